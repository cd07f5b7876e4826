#ifndef GCKPT_NO_IMAGES
/* ---- conv2d: a block of a product whose operand a is the virtual matrix of all windows ---- */
/* Gathers a block of that matrix: d[i * d_row + p] is term first + p of row `row` + i, for i < rows
 * and p < terms; 0 outside the image. */
static GCKPTI_TARGET void V(unfold)(const gckpti_conv_gemm *s, int64_t row, int64_t rows,
                                    int64_t first, int64_t terms, float *d, int64_t d_row)
{
    const gckpti_axis_map *r = s->r;
    const int64_t tap = first / s->tap_len;
    int64_t j = row % r[1].results, i = row / r[1].results % r[0].results;
    const float *from = s->from + row / r[1].results / r[0].results * s->image;
    for (; rows > 0; rows--, d += d_row) {
        int64_t ky = tap / s->line_taps, kx = tap % s->line_taps, c = first % s->tap_len;
        for (int64_t l = 0, n; l < terms; l += n, c = 0) {
            const int64_t y = i * r[0].stride + ky * r[0].dilation + r[0].first;
            const int64_t x = j * s->step + kx * s->tap + s->first + c;
            const float *line = from + y * s->width + x;
            n = gckpti_min(terms - l, s->tap_len - c);
            int64_t at = x < 0 ? gckpti_min(-x, n) : 0, end = gckpti_min(s->width - x, n);
            if (y < 0 || y >= r[0].size || end < at)
                at = end = n;
            for (int64_t e = 0; e < at; e++)
                d[l + e] = 0.0f;
            for (; at < end; at += W)
                V(store_n)(d + l + at, V(load_n)(line + at, end - at), end - at);
            for (int64_t e = end; e < n; e++)
                d[l + e] = 0.0f;
            if (++kx == s->line_taps)
                kx = 0, ky++;
        }
        if (++j == r[1].results) {
            j = 0;
            if (++i == r[0].results)
                i = 0, from += s->image;
        }
    }
}

/* Packs terms p..p+k-1 of columns j..j+n-1 of b as V(pack_panels) does, tap after tap. */
static GCKPTI_TARGET void V(pack_taps)(const gckpti_conv_gemm *s, int64_t p, int64_t k, int64_t j,
                                       int64_t n, float *d, int64_t deep)
{
    const gckpti_product *t = &s->t;
    const int64_t span = s->kind == GCKPTI_CONV_UP ? s->z->group_o : t->k;
    for (int64_t at = 0, width; at < n; at += width) {
        const int64_t cols = gckpti_min(n - at, width = V(panel_width)(n, at));
        for (int64_t l = 0, terms; l < k; l += terms) {
            const int64_t tap = (p + l) / span, o = (p + l) % span;
            const float *b = t->b.f32 + (j + at) * t->b.stride + o * t->b.k_stride;
            terms = gckpti_min(span - o, k - l);
            if (s->kind == GCKPTI_CONV_UP)
                b += gckpti_conv_gemm_b(s, tap);
            V(pack)(b, t->b.k_stride, t->b.stride, cols, terms, d + at * deep + l * width, width);
        }
    }
}

/* Computes the tiles of `rows` rows of c whose rows of a are gathered. u has all fields that are
 * equal for these tiles; b is in place at `b`, packed at `panels`. */
static GCKPTI_TARGET void V(conv_tiles)(const gckpti_conv_gemm *s, gckpti_tile u, int64_t rows,
                                        int64_t n, const float *b, const float *panels,
                                        const gckpti_blocking *sizes)
{
    const gckpti_tile first = u;
    for (int64_t i = 0, high; i < rows; i += high) {
        high = gckpti_min(rows - i, GCKPTI_TILE_ROWS);
        u.a = first.a + i * u.a_row;
        for (int64_t at = 0, width; at < n; at += width) {
            width = V(panel_width)(n, at);
            u.last = gckpti_min(n - at - width + W, W);
            u.b = panels + at * sizes->kc, u.b_step = width;
            if (sizes->in_place && u.last == W)
                u.b = b + at, u.b_step = s->t.b.k_stride;
            u.c = first.c + i * u.c_row + at;
            u.from = first.from ? first.from + i * u.from_row + at : NULL;
            u.next_c = at + width < n ? u.c + width : u.c;
            V(tiles)[width / W - 1][high - 1](&u);
        }
    }
}

/* V(product_block) for a convolution: gathers up to `most` rows of a before their tiles. If rows of
 * other phases are between those of c (UP with a stride), it gathers at most a line of results. */
static GCKPTI_TARGET void V(conv_block)(const gckpti_conv_gemm *s, const gckpti_c_block *block,
                                        float *pack, int64_t floats)
{
    const int64_t i1 = block->i1, j1 = block->j1;
    const gckpti_product *t = &s->t;
    const int dw = s->kind == GCKPTI_CONV_DW;
    const int64_t most = dw ? GCKPTI_GATHER_ROWS : GCKPTI_STRIP;
    const int lines = s->kind == GCKPTI_CONV_UP && (s->r[0].out_step > 1 || s->r[1].out_step > 1);
    gckpti_blocking sizes = V(blocking)(t, i1 - block->i0, floats);
    sizes.in_place = sizes.in_place && s->kind != GCKPTI_CONV_UP;
    floats -= GCKPTI_PANEL * 16; /* V(pack) may write this much after the panels */
    sizes.kc = gckpti_min(sizes.kc, floats / (GCKPTI_PANEL + most) / 16 * 16);
    sizes.nc = gckpti_min(GCKPTI_NC, (floats / sizes.kc - most) / GCKPTI_PANEL * GCKPTI_PANEL);
    float *const panels = pack + most * sizes.kc;
    int64_t p = 0;
    do {
        const int64_t k = gckpti_min(t->k - p, sizes.kc);
        for (int64_t j = block->j0, n; j < j1; j += n) {
            const float *b = t->b.f32 + p * t->b.k_stride + j * t->b.stride;
            n = gckpti_min(j1 - j, sizes.nc);
            if (!sizes.in_place || n % W)
                V(pack_taps)(s, p, k, j, n, panels, sizes.kc);
            for (int64_t i = block->i0, some; i < i1; i += some) {
                const int64_t at = gckpti_conv_gemm_c(s, i) + j;
                gckpti_tile u = { k,    pack, 1,          GCKPTI_GATHER_ROWS,
                                  NULL, 0,    t->initial, t->initial_stride,
                                  NULL, 0,    0,          NULL };
                some = gckpti_min(i1 - i, most);
                if (lines)
                    some = gckpti_min(some, s->r[1].results - i % s->r[1].results);
                if (dw)
                    V(unfold)(s, p, k, i, some, pack, GCKPTI_GATHER_ROWS);
                else
                    V(unfold)(s, i, some, p, k, pack, sizes.kc);
                if (!dw)
                    u.a_row = sizes.kc, u.a_step = 1;
                u.c = t->c + at;
                u.c_row = t->c_stride * (dw ? 1 : s->r[1].out_step);
                if (p || t->accumulate)
                    u.from = u.c, u.from_row = u.c_row;
                else if (t->initial)
                    u.from = t->initial + j;
                V(conv_tiles)(s, u, some, n, b, panels, &sizes);
            }
        }
        p += k;
    } while (p < t->k);
}

static GCKPTI_TARGET void V(multiply_add)(float *d, const float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += W) {
        FLOATS a = x ? V(load_n)(x + i, n - i) : V(zero)();
        V(store_n)(d + i, V(fma)(a, V(load_n)(y + i, n - i), V(load_n)(d + i, n - i)), n - i);
    }
}

static GCKPTI_TARGET void V(scaled_add)(float *to, float factor, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)
    (to + i, V(fma)(V(set1)(factor), V(load_n)(from + i, n - i), V(load_n)(to + i, n - i)), n - i);
}

/* ---- max_pool: the steps of gckpti_plain_max_window ---- */
static GCKPTI_TARGET void V(max_window)(const gckpti_pool_state *s, const float *x, int64_t p,
                                        int64_t q, float *y, uint16_t *tap)
{
    int64_t h, w, h_end, w_end, h_begin = gckpti_valid_taps(s, 0, p, &h, &h_end);
    int64_t w_begin = gckpti_valid_taps(s, 1, q, &w, &w_end), n = s->channels;
    for (int64_t c = 0; c < n; c += W) {
        const INTS none = V(bits)(V(zero)());
        INTS at = none + (uint32_t)(h_begin * s->o.size[1] + w_begin);
        FLOATS best = V(load_n)(x + ((h + h_begin) * s->in[1] + w + w_begin) * n + c, n - c);
        for (int64_t i = h_begin; i < h_end; i++)
            for (int64_t j = w_begin; j < w_end; j++) {
                FLOATS v = V(load_n)(x + ((h + i) * s->in[1] + w + j) * n + c, n - c);
                INTS take = (INTS)(best == best) & ~(INTS)(v <= best);
                best = V(floats)((take & V(bits)(v)) | (~take & V(bits)(best)));
                at = (take & (none + (uint32_t)(i * s->o.size[1] + j))) | (~take & at);
            }
        if (y)
            V(store_n)(y + c, best, n - c);
        for (int64_t k = 0; tap && k < W && k < n - c; k++)
            tap[c + k] = (uint16_t)at[k];
    }
}

/* ---- groupnorm, batchnorm: sums over pixels, of 4 vectors of channels in registers ---- */
/* Sums channels j..j+n-1 like V(column_sums_of): d = x - mean, d d, g or, if `both`, g and g h. */
GCKPTI_INLINED void V(channel_sums_of)(const gckpti_channel_pass *p, int64_t j, int64_t n,
                                       int vectors, int both)
{
    const float *from = p->g ? p->g : p->x, *x = both ? p->x : from;
    const int squares = p->squares;
    const int64_t each = vectors > 1 ? W : n, channels = p->channels;
    FLOATS s[4], s_comp[4], t[4], t_comp[4], mean[4], rstd[4];
    int64_t at[4];
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        at[i] = V(col_at)(j, n, i);
        s[i] = s_comp[i] = t[i] = t_comp[i] = V(zero)();
        mean[i] = V(sum_load)(both || !p->g ? p->mean : NULL, at[i], each);
        rstd[i] = V(sum_load)(both ? p->rstd : NULL, at[i], each);
    }
    for (int64_t place = p->pixels; place > 0; place--, from += channels, x += channels) {
        GCKPTI_UNROLL
        for (int i = 0; i < vectors; i++) {
            FLOATS a = V(load_n)(from + at[i], each), d = a - mean[i];
            if (both) {
                d = (V(load_n)(x + at[i], each) - mean[i]) * rstd[i];
                V(sum_add)(&s[i], &s_comp[i], a);
                V(sum_add)(&t[i], &t_comp[i], V(fma)(a, d, V(zero)()));
            } else {
                V(sum_add)(&s[i], &s_comp[i], squares ? V(fma)(d, d, V(zero)()) : d);
            }
        }
    }
    GCKPTI_UNROLL
    for (int i = 0; i < vectors; i++) {
        V(sum_store)(p->s, at[i], s[i], each);
        V(sum_store)(both ? p->t : NULL, at[i], t[i], each);
    }
}

static GCKPTI_TARGET void V(channel_sums)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    const int both = p->g && p->t;
    for (int64_t j = first, n; j < end; j += n) {
        n = V(sum_columns)(end - j);
        if (n < W && both)
            V(channel_sums_of)(p, j, n, 1, 1);
        else if (n < W)
            V(channel_sums_of)(p, j, n, 1, 0);
        else if (both)
            V(channel_sums_of)(p, j, n, 4, 1);
        else
            V(channel_sums_of)(p, j, n, 4, 0);
    }
}

static GCKPTI_TARGET void V(channel_out)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    for (int64_t place = 0; place < p->pixels; place++)
        for (int64_t c = first, at = place * p->channels + first; c < end; c += W, at += W) {
            FLOATS y = V(load_n)(p->rstd + c, end - c);
            FLOATS h = V(load_n)(p->x + at, end - c) - V(load_n)(p->mean + c, end - c);
            if (p->gain)
                h = h * y, y = V(load_n)(p->gain + c, end - c);
            if (p->bias)
                y = V(fma)(h, y, V(load_n)(p->bias + c, end - c));
            else
                y = h * y;
            V(store_n)(p->to + at, y, end - c);
        }
}

static GCKPTI_TARGET void V(channel_dx)(const gckpti_channel_pass *p, int64_t first, int64_t end)
{
    const FLOATS zero = V(zero)();
    for (int64_t place = 0; place < p->pixels; place++)
        for (int64_t c = first, at = place * p->channels + first; c < end; c += W, at += W) {
            const FLOATS rstd = V(load_n)(p->rstd + c, end - c);
            FLOATS h = V(load_n)(p->x + at, end - c) - V(load_n)(p->mean + c, end - c);
            FLOATS u = V(load_n)(p->g + at, end - c);
            if (p->gain)
                u = V(fma)(u, V(load_n)(p->gain + c, end - c), zero);
            u = V(fnma)(h * rstd, V(load_n)(p->t + c, end - c), u - V(load_n)(p->s + c, end - c));
            V(put_product)(p->to + at, rstd, u, p->accumulate, end - c);
        }
}
#endif
