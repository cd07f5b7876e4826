#ifndef GCKPT_NO_IMAGES
/* ---- conv2d in groups of 1, 2, 4, 8 or 16 channels with as many results: a lane is a channel ----
 * A tile keeps its chains in registers: of some adjacent windows over all taps, or (DW) of some
 * taps over a line of windows. `kind` is 0 if a group is one channel, 1 if a vector has several
 * groups, 2 if a group has whole vectors. In tiles, kind and edge are constants. */
enum { V(tile_pixels) = 4, V(tile_width) = 2 * W };

/* Returns a, each of whose groups of g lanes holds only its lane t; index: lane / g * g + t. */
GCKPTI_ALWAYS FLOATS V(permute)(FLOATS a, INTS index)
{
#if GCKPTI_ISA == 3
    return _mm512_permutexvar_ps((__m512i)index, a);
#elif GCKPTI_ISA == 2
    return _mm256_permutevar_ps(a, (__m256i)index); /* within 4 lanes: g is 2 or 4 */
#else
    const FLOATS x = a;
    for (int i = 0; i < W; i++)
        a[i] = x[index[i]];
    return a;
#endif
}

/* Returns the operands at x of n chains for term t of their groups. */
GCKPTI_ALWAYS FLOATS V(group_term)(const float *x, int64_t t, INTS first, int kind, int edge,
                                   int64_t n)
{
    FLOATS a;
    if (kind == 2)
        return V(set1)(x[t]);
    a = edge ? V(load_n)(x, n) : V(load)(x);
    return kind ? V(permute)(a, first + (uint32_t)t) : a;
}

static GCKPTI_TARGET INTS V(first_lanes)(int64_t g)
{
    uint32_t first[W];
    INTS lanes;
    for (int i = 0; i < W; i++)
        first[i] = (uint32_t)(i / g * g);
    memcpy(&lanes, first, sizeof lanes);
    return lanes;
}

/* A line of results: of n channels from c on; w is at w + ky * w_row + kx * w_col + t * w_term. */
typedef struct {
    const gckpti_conv *s;
    const float *image, *w, *start, *zeros;
    float *to;
    int64_t y, c, n, w_row, w_col, w_term, begin, end; /* windows begin..end-1 */
} V(conv_line);

/* Computes the results of tile_pixels windows, or fewer at the end of a line, from window j on.
 * edge: nonzero if taps can be outside the image, or windows or channels be missing. */
GCKPTI_ALWAYS void V(grouped_tile)(const V(conv_line) *line, int64_t j, INTS first, int kind,
                                   int edge)
{
    enum { PIXELS = V(tile_pixels) };
    const V(conv_line) u = *line;
    const gckpti_axis_map rows = u.s->r[0], cols = u.s->r[1];
    const int64_t all = u.s->z->c, g = kind ? u.s->z->group_c : 1, d_step = cols.out_step * all;
    const int64_t n[2] = { edge ? gckpti_min(u.n, W) : W,
                           !edge ? W : u.n > W ? gckpti_min(u.n - W, W) : 0 };
    const int64_t second = kind != 2 ? W : u.n > W ? (u.c % g + W) / g * g : 0;
    const int64_t pixels = edge ? gckpti_min(cols.results - j, PIXELS) : PIXELS;
    float *d = u.to + j * d_step;
    const float *x[PIXELS];
    FLOATS sum[PIXELS][2];
    GCKPTI_UNROLL
    for (int p = 0; p < PIXELS; p++) {
        const float *start = u.start ? u.start : d + p * d_step;
        sum[p][0] = sum[p][1] = V(zero)();
        if ((u.start || u.s->accumulate) && p < pixels)
            sum[p][0] = V(load_n)(start, n[0]), sum[p][1] = V(load_n)(start + W, n[1]);
    }
    for (int64_t ky = 0; ky < rows.taps; ky++) {
        const int64_t y = u.y + ky * rows.dilation;
        const int within = y >= 0 && y < rows.size;
        for (int64_t kx = 0; kx < cols.taps; kx++) {
            const int64_t at = j * cols.stride + cols.first + kx * cols.dilation;
            const float *w = u.w + ky * u.w_row + kx * u.w_col;
            const float *from = within ? u.image + (y * cols.size + at) * all : u.zeros;
            const int64_t step = within ? cols.stride * all : 0;
            GCKPTI_UNROLL
            for (int p = 0; p < PIXELS; p++) {
                x[p] = from + p * step;
                if (edge && !(p < pixels && at + p * cols.stride >= 0 &&
                              at + p * cols.stride < cols.size))
                    x[p] = u.zeros;
            }
            for (int64_t t = 0; t < g; t++, w += u.w_term) {
                const FLOATS w0 = edge ? V(load_n)(w, n[0]) : V(load)(w);
                const FLOATS w1 = edge ? V(load_n)(w + W, n[1]) : V(load)(w + W);
                GCKPTI_UNROLL
                for (int p = 0; p < PIXELS; p++) {
                    const FLOATS x0 = V(group_term)(x[p], t, first, kind, edge, n[0]);
                    const FLOATS x1 = V(group_term)(x[p] + second, t, first, kind, edge, n[1]);
                    sum[p][0] = V(fma)(x0, w0, sum[p][0]);
                    sum[p][1] = V(fma)(x1, w1, sum[p][1]);
                }
            }
        }
    }
    GCKPTI_UNROLL
    for (int p = 0; p < PIXELS; p++)
        if (p < pixels) {
            V(store_n)(d + p * d_step, sum[p][0], n[0]);
            V(store_n)(d + p * d_step + W, sum[p][1], n[1]);
        }
}
#define GCKPTI_GROUPED_TILE(kind)                                                                  \
    static GCKPTI_TARGET void V(grouped_line_##kind)(const V(conv_line) *u, INTS first)            \
    {                                                                                              \
        const gckpti_axis_map r = u->s->r[1];                                                      \
        const int64_t span = r.taps ? (r.taps - 1) * r.dilation : 0, last = V(tile_pixels) - 1;    \
        for (int64_t j = u->begin; j < u->end; j += last + 1) {                                    \
            const int64_t at = j * r.stride + r.first, end = at + last * r.stride;                 \
            if (u->n < V(tile_width) || r.results - j <= last || at + gckpti_min(span, 0) < 0 ||   \
                end - gckpti_min(-span, 0) >= r.size)                                              \
                V(grouped_tile)(u, j, first, kind, 1);                                             \
            else                                                                                   \
                V(grouped_tile)(u, j, first, kind, 0);                                             \
        }                                                                                          \
    }
GCKPTI_GROUPED_TILE(0)
GCKPTI_GROUPED_TILE(1)
GCKPTI_GROUPED_TILE(2)
#undef GCKPTI_GROUPED_TILE

typedef struct {
    int64_t c, ky, kx, t;
    const float *zeros;
} V(dw_tile);

/* Adds the terms of a line of windows to dw: of taps kx.. of row ky and, from channel c on, of
 * four vectors (kind 0) or terms t.. of a vector. edge: nonzero if channels are missing. */
GCKPTI_ALWAYS void V(grouped_dw)(const gckpti_conv *s, const V(dw_tile) *u, int64_t place,
                                 INTS first, int kind, int edge)
{
    enum { TAPS = GCKPTI_DW_TAPS, COLUMNS = GCKPTI_DW_COLUMNS };
    const gckpti_axis_map rows = s->r[0], cols = s->r[1];
    const int64_t all = s->z->c, g = kind ? s->z->group_c : 1, left = all - u->c;
    const int64_t image = place / rows.results, i = place % rows.results;
    const int64_t y = i * rows.stride + u->ky * rows.dilation + rows.first;
    const int64_t wide = y >= 0 && y < rows.size ? cols.size : 0;
    const float *from = s->from + (image * rows.size + y) * cols.size * all;
    const float *w = s->w + place * cols.results * all + u->c;
    float *d[TAPS][COLUMNS];
    int64_t n[COLUMNS], t[COLUMNS];
    FLOATS sum[TAPS][COLUMNS], b[COLUMNS];
    from += kind == 2 ? u->c / g * g : u->c;
    GCKPTI_UNROLL
    for (int k = 0; k < COLUMNS; k++) {
        const int64_t at = kind ? 0 : k * W;
        t[k] = kind ? gckpti_min(u->t + k, g - 1) : 0;
        n[k] = !edge ? W : left > at ? gckpti_min(left - at, W) : 0;
        GCKPTI_UNROLL
        for (int a = 0; a < TAPS; a++) {
            const int64_t kx = gckpti_min(u->kx + a, cols.taps - 1);
            d[a][k] = s->out + ((u->ky * cols.taps + kx) * g + t[k]) * all + u->c + at;
            sum[a][k] = V(load_n)(d[a][k], n[k]);
        }
    }
    for (int64_t j = 0, at = u->kx * cols.dilation + cols.first; j < cols.results;
         j++, at += cols.stride, w += all) {
        GCKPTI_UNROLL
        for (int k = 0; k < COLUMNS; k++)
            b[k] = kind && k ? b[0] : edge ? V(load_n)(w + k * W, n[k]) : V(load)(w + k * W);
        GCKPTI_UNROLL
        for (int a = 0; a < TAPS; a++) {
            const int64_t column = at + a * cols.dilation;
            const float *x = column >= 0 && column < wide ? from + column * all : u->zeros;
            GCKPTI_UNROLL
            for (int k = 0; k < COLUMNS; k++) {
                const float *xk = kind ? x : x + k * W;
                sum[a][k] = V(fma)(V(group_term)(xk, t[k], first, kind, edge, n[k]), b[k],
                                   sum[a][k]);
            }
        }
    }
    GCKPTI_UNROLL
    for (int a = 0; a < TAPS; a++) {
        GCKPTI_UNROLL
        for (int k = 0; k < COLUMNS; k++)
            if (u->kx + a < cols.taps && (!kind || u->t + k < g))
                V(store_n)(d[a][k], sum[a][k], n[k]);
    }
}

#define GCKPTI_GROUPED_DW(kind, edge)                                                              \
    static GCKPTI_TARGET void V(grouped_dw_##kind##_##edge)(                                       \
        const gckpti_conv *s, const V(dw_tile) *u, int64_t line, INTS first)                       \
    {                                                                                              \
        V(grouped_dw)(s, u, line, first, kind, edge);                                              \
    }
GCKPTI_GROUPED_DW(0, 0)
GCKPTI_GROUPED_DW(0, 1)
GCKPTI_GROUPED_DW(1, 0)
GCKPTI_GROUPED_DW(1, 1)
GCKPTI_GROUPED_DW(2, 0)
#undef GCKPTI_GROUPED_DW

static GCKPTI_TARGET void V(grouped_dw_item)(const gckpti_grouped *u, int64_t item,
                                             const float *zeros)
{
    const gckpti_conv *s = u->conv;
    const gckpti_axis_map *r = s->r;
    const int64_t g = s->z->group_c, lines = s->z->rows * r[0].results, width = u->width;
    const int64_t across = (r[1].taps + GCKPTI_DW_TAPS - 1) / GCKPTI_DW_TAPS;
    const int64_t deep = g > 1 ? (g + GCKPTI_DW_COLUMNS - 1) / GCKPTI_DW_COLUMNS : 1;
    const int64_t end = gckpti_min((item + 1) * u->each, u->tiles);
    const INTS first = V(first_lanes)(g);
    for (int64_t line = 0; line < lines; line++)
        for (int64_t i = item * u->each, rest = i; i < end; rest = ++i) {
            V(dw_tile) tile = { 0, 0, 0, rest % deep * GCKPTI_DW_COLUMNS, zeros };
            rest /= deep, tile.kx = rest % across * GCKPTI_DW_TAPS;
            rest /= across, tile.ky = rest % r[0].taps, tile.c = rest / r[0].taps * width;
            if (s->z->c - tile.c < width)
                (g == 1  ? V(grouped_dw_0_1)
                 : g < W ? V(grouped_dw_1_1)
                         : V(grouped_dw_2_0))(s, &tile, line, first);
            else
                (g == 1  ? V(grouped_dw_0_0)
                 : g < W ? V(grouped_dw_1_0)
                         : V(grouped_dw_2_0))(s, &tile, line, first);
        }
}

/* Runs an item: u->each tiles of dw, or u->each lines of results. UP with groups of several
 * channels first copies the block of w that its channels read, lanes adjacent. */
GCKPTI_KERNEL void V(conv_grouped)(const gckpti_grouped *u, int64_t item)
{
    const gckpti_conv *s = u->conv;
    const gckpti_conv_sizes *z = s->z;
    const gckpti_axis_map *r = s->r;
    const int64_t g = z->group_c, all = z->c, width = V(tile_width), lines = z->rows * r[0].results;
    const int64_t chunk = item / u->blocks * u->each, block = item % u->blocks * width;
    const float zeros[GCKPTI_GROUPED_MOST * 4] = { 0.0f };
    const INTS first = V(first_lanes)(g);
    const int packed = u->blocks > 1 || (s->kind == GCKPTI_CONV_UP && g > 1);
    float pack[GCKPTI_STACK_FLOATS] GCKPTI_ALIGNED;
    V(conv_line) l;
    if (s->kind == GCKPTI_CONV_DW) {
        V(grouped_dw_item)(u, item, zeros);
        return;
    }
    l.s = s, l.zeros = zeros, l.w_term = packed ? width : all;
    l.w_col = packed ? g * width : r[1].tap_step * g * all;
    l.w_row = packed ? r[1].taps * g * width : r[0].tap_step * z->taps[1] * g * all;
    for (int64_t k = 0; packed && k < r[0].taps * r[1].taps * g; k++) {
        const int64_t tap = gckpti_conv_tap(z, r, k / g / r[1].taps, k / g % r[1].taps);
        for (int64_t i = 0, c = block; i < width && c < all; i++, c++)
            pack[k * width + i] = s->w[(tap * g + c % g) * all + c / g * g + k % g];
    }
    for (int64_t i = chunk; i < gckpti_min(chunk + u->each, lines); i++)
        for (l.begin = 0; l.begin < r[1].results; l.begin = l.end) {
            l.end = gckpti_min(l.begin + (packed ? r[1].results : V(tile_pixels)), r[1].results);
            for (l.c = block; l.c < (packed ? gckpti_min(block + width, all) : all); l.c += width) {
                l.n = gckpti_min(all - l.c, width), l.start = s->start ? s->start + l.c : NULL;
                l.w = packed ? pack : s->w + gckpti_conv_tap(z, r, 0, 0) * g * all + l.c;
                l.y = i % r[0].results * r[0].stride + r[0].first;
                l.image = s->from + i / r[0].results * r[0].size * r[1].size * all + l.c / g * g;
                l.to = s->out + gckpti_conv_place(s, i * r[1].results) * all + l.c;
                (g == 1  ? V(grouped_line_0)
                 : g < W ? V(grouped_line_1)
                         : V(grouped_line_2))(&l, first);
            }
        }
}
#endif
