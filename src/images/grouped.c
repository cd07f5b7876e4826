#ifndef GCKPT_NO_IMAGES
/* ---- conv2d in groups of 1, 2, 4, 8 or 16 channels with as many results: a lane is a channel ----
 * A tile (gckpti_grouped_tile) has 4 successive results or, for DW (the gradient of w), windows.
 * Registers hold two vectors of each result's chains while all taps are added. For DW they hold the
 * windows, whose terms are added in order to the chains of each tap. `kind` is 0 if a group is one
 * channel, 1 if a vector holds several groups, 2 if a group fills whole vectors. kind, dw and edge
 * are constants in compiled tiles. */

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
GCKPTI_ALWAYS FLOATS V(group_term)(const float *x, int64_t t, INTS first, int kind, int64_t n)
{
    if (kind == 2)
        return V(set1)(x[t]);
    return kind ? V(permute)(V(load_n)(x, n), first + (uint32_t)t) : V(load_n)(x, n);
}

/* Computes channels from c on of a tile's results, in chains that continue from tile->start, or
 * (dw) adds its windows' terms to dw. edge: nonzero if there can be less than two vectors (`left`
 * channels) or, for dw, less windows. */
GCKPTI_ALWAYS void V(grouped_tile)(const gckpti_grouped_tile *tile, int64_t group, int64_t c,
                                   int64_t left, INTS first, int kind, int dw, int edge)
{
    enum { WINDOWS = GCKPTI_TILE_WINDOWS };
    const int64_t n[2] = { edge ? gckpti_min(left, W) : W,
                           !edge ? W : left > W ? gckpti_min(left - W, W) : 0 };
    const int64_t taps = tile->taps, g = kind ? group : 1, w_term = tile->w_term;
    int64_t at = c, next = W;
    if (kind == 2) /* next: of the second vector's group, if there is one */
        at = c / g * g, next = n[1] > 0 ? (c + W) / g * g - at : 0;
    FLOATS sum[WINDOWS][2]; /* dw: of the window */
    GCKPTI_UNROLL
    for (int p = 0; p < WINDOWS; p++) {
        const float *start = tile->start[p] + c;
        sum[p][0] = V(load_n)(start, n[0]), sum[p][1] = V(load_n)(start + W, n[1]);
    }
    for (int64_t k = 0; k < taps; k++) {
        float *d = dw ? tile->dw[k] + c : NULL;
        const float *w = dw ? d : tile->w[k] + c;
        for (int64_t t = 0; t < g; t++, w += w_term, d += dw ? w_term : 0) {
            FLOATS w0 = V(load_n)(w, n[0]), w1 = V(load_n)(w + W, n[1]);
            GCKPTI_UNROLL
            for (int p = 0; p < WINDOWS; p++) {
                const float *x = tile->from[k][p] + at;
                const FLOATS x0 = V(group_term)(x, t, first, kind, n[0]);
                const FLOATS x1 = V(group_term)(x + next, t, first, kind, n[1]);
                if (!dw)
                    sum[p][0] = V(fma)(x0, w0, sum[p][0]), sum[p][1] = V(fma)(x1, w1, sum[p][1]);
                else if (!edge || p < tile->windows)
                    w0 = V(fma)(x0, sum[p][0], w0), w1 = V(fma)(x1, sum[p][1], w1);
            }
            if (dw)
                V(store_n)(d, w0, n[0]), V(store_n)(d + W, w1, n[1]);
        }
    }
    GCKPTI_UNROLL
    for (int p = 0; p < WINDOWS && !dw; p++) {
        float *to = tile->to[p] + c;
        V(store_n)(to, sum[p][0], n[0]), V(store_n)(to + W, sum[p][1], n[1]);
    }
}
#define GCKPTI_GROUPED_TILE(kind, dw)                                                              \
    static GCKPTI_TARGET void V(grouped_tile_##kind##_##dw)(const gckpti_grouped_tile *tile,       \
                                                            int64_t g, INTS first)                 \
    {                                                                                              \
        int64_t c = 0;                                                                             \
        for (; c + 2 * W <= tile->n && (!dw || tile->windows == GCKPTI_TILE_WINDOWS); c += 2 * W)  \
            V(grouped_tile)(tile, g, c, 2 * W, first, kind, dw, 0);                                \
        for (; c < tile->n; c += 2 * W)                                                            \
            V(grouped_tile)(tile, g, c, tile->n - c, first, kind, dw, 1);                          \
    }
GCKPTI_GROUPED_TILE(0, 0)
GCKPTI_GROUPED_TILE(1, 0)
GCKPTI_GROUPED_TILE(2, 0)
GCKPTI_GROUPED_TILE(0, 1)
GCKPTI_GROUPED_TILE(1, 1)
GCKPTI_GROUPED_TILE(2, 1)
#undef GCKPTI_GROUPED_TILE

/* Copies the w of a tile's channels and taps, lanes adjacent: UP reads w transposed. */
static GCKPTI_TARGET void V(grouped_pack)(const gckpti_conv *s, const gckpti_grouped_tile *tile,
                                          float *pack)
{
    const int64_t g = s->z->group_c, all = s->z->c, n = tile->n, across = s->r[1].taps;
    for (int64_t k = tile->first; k < tile->first + tile->taps; k++) {
        const float *w = s->w + gckpti_conv_tap(s->z, s->r, k / across, k % across) * g * all;
        for (int64_t t = 0; t < g; t++, pack += n)
            for (int64_t i = 0, c = tile->c; i < n; i++, c++)
                pack[i] = w[c % g * all + c / g * g + t];
    }
}

/* Runs an item of a gckpti_grouped. */
GCKPTI_KERNEL void V(conv_grouped)(void *grouped, int64_t item, int64_t worker)
{
    const gckpti_grouped *u = (const gckpti_grouped *)grouped;
    const gckpti_conv *s = u->conv;
    const int dw = s->kind == GCKPTI_CONV_DW;
    const int64_t g = s->z->group_c, taps = s->r[0].taps * s->r[1].taps, part = item / u->blocks;
    const int64_t end = dw ? gckpti_min(taps, (part + 1) * u->taps) : taps;
    uint32_t lanes[W];
    INTS first; /* lane of each group */
    for (int i = 0; i < W; i++)
        lanes[i] = (uint32_t)(i / g * g);
    memcpy(&first, lanes, sizeof first);
    const float zeros[GCKPTI_GROUPED_CHANNELS] = { 0.0f };
    float unused[GCKPTI_GROUPED_CHANNELS];
    float pack[GCKPTI_STACK_FLOATS] GCKPTI_ALIGNED;
    gckpti_grouped_tile tile;
    (void)worker;
    tile.zeros = zeros, tile.unused = unused, tile.c = item % u->blocks * u->width;
    tile.n = gckpti_min(s->z->c - tile.c, u->width), tile.first = dw ? part * u->taps : 0;
    do {
        tile.taps = gckpti_min(end - tile.first, u->taps);
        if (u->packs)
            V(grouped_pack)(s, &tile, pack);
        gckpti_grouped_begin(s, &tile, u->packs ? pack : NULL, dw ? 0 : part * u->each);
        for (int64_t left = u->each; gckpti_grouped_next(s, &tile, left);
             left -= GCKPTI_TILE_WINDOWS)
            if (dw)
                (g == 1  ? V(grouped_tile_0_1)
                 : g < W ? V(grouped_tile_1_1)
                         : V(grouped_tile_2_1))(&tile, g, first);
            else
                (g == 1  ? V(grouped_tile_0_0)
                 : g < W ? V(grouped_tile_1_0)
                         : V(grouped_tile_2_0))(&tile, g, first);
    } while ((tile.first += u->taps) < end);
}
#endif
