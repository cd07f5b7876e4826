#ifndef GCKPT_NO_IMAGES
/* ---- conv2d: a block of a product whose operand a is the virtual matrix of all windows ---- */
/* Gathers a block of that matrix: d[i * d_row + p] is term first + p of row `row` + i, for i < rows
 * and p < terms; 0 outside the image. */
static GCKPTI_TARGET void V(unfold)(const gckpti_conv_gemm *s, int64_t row, int64_t rows,
                                    int64_t first, int64_t terms, float *d, int64_t d_row)
{
    const gckpti_axis_map *r = s->conv->r;
    for (int64_t some; rows > 0; rows -= some, row += some, d += some * d_row) {
        const int64_t j = row % r[1].results, line = row / r[1].results, i = line % r[0].results;
        some = gckpti_min(rows, r[1].results - j); /* of a line */
        for (int64_t l = 0, n; l < terms; l += n) {
            const int64_t run = (first + l) / s->tap_len, c = (first + l) % s->tap_len;
            const int64_t ky = run / s->line_taps, kx = run % s->line_taps;
            const int64_t y = i * r[0].stride + ky * r[0].dilation + r[0].first;
            int64_t x = j * s->step + kx * s->tap + s->first + c;
            const float *from = s->from + line / r[0].results * s->image + y * s->width;
            const int64_t width = y < 0 || y >= r[0].size ? 0 : s->width;
            float *to = d + l;
            n = gckpti_min(terms - l, s->tap_len - c);
            const int64_t last = n > W ? n - W : 0;
            for (int64_t q = 0; q < some; q++, x += s->step, to += d_row) {
                if (x >= 0 && x <= width - n) {
                    for (int64_t e = 0; e < n - W; e += W)
                        V(store)(to + e, V(load)(from + x + e));
                    V(store_n)(to + last, V(load_n)(from + x + last, n), n);
                    continue;
                }
                const int64_t at = gckpti_min(x < 0 ? -x : 0, n), end = gckpti_min(width - x, n);
                memset(to, 0, (size_t)n * sizeof *to);
                if (end > at)
                    memcpy(to + at, from + x + at, (size_t)(end - at) * sizeof *to);
            }
        }
    }
}

/* Packs terms p..p+k-1 of columns j..j+n-1 of b as V(pack_panels) does, tap after tap. */
static GCKPTI_TARGET void V(pack_taps)(const gckpti_conv_gemm *s, int64_t p, int64_t k, int64_t j,
                                       int64_t n, float *d, int64_t deep)
{
    const gckpti_product *t = &s->t;
    const gckpti_conv_sizes *z = s->conv->z;
    const gckpti_axis_map *r = s->conv->r;
    const int up = s->conv->kind == GCKPTI_CONV_UP;
    const int64_t span = up ? z->group_o : t->k;
    for (int64_t at = 0, width; at < n; at += width) {
        const int64_t cols = gckpti_min(n - at, width = V(panel_width)(n, at));
        for (int64_t l = 0, terms; l < k; l += terms) {
            const int64_t tap = (p + l) / span, o = (p + l) % span;
            const float *b = t->b.f32 + (j + at) * t->b.stride + o * t->b.k_stride;
            terms = gckpti_min(span - o, k - l);
            if (up)
                b += gckpti_conv_tap(z, r, tap / r[1].taps, tap % r[1].taps) * z->group_c * z->o;
            V(pack)(b, t->b.k_stride, t->b.stride, cols, terms, d + at * deep + l * width, width);
        }
    }
}

/* Computes the tiles of `rows` rows of c whose rows of a are gathered. u has all fields that are
 * equal for these tiles; b is packed at `panels`, a panel's terms `deep`. */
static GCKPTI_TARGET void V(conv_tiles)(gckpti_tile u, int64_t rows, int64_t n, const float *panels,
                                        int64_t deep)
{
    const gckpti_tile first = u;
    const int64_t most = n <= W ? GCKPTI_NARROW_ROWS : GCKPTI_TILE_ROWS;
    for (int64_t i = 0, high; i < rows; i += high) {
        high = gckpti_min(rows - i, most);
        u.a = first.a + i * u.a_row;
        for (int64_t at = 0, width; at < n; at += width) {
            width = V(panel_width)(n, at);
            u.last = gckpti_min(n - at - width + W, W);
            u.b = panels + at * deep, u.b_step = width;
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
    const gckpti_axis_map *r = s->conv->r;
    const int dw = s->conv->kind == GCKPTI_CONV_DW, up = s->conv->kind == GCKPTI_CONV_UP;
    const int64_t most = dw ? GCKPTI_GATHER_ROWS : GCKPTI_STRIP;
    const int lines = up && (r[0].out_step > 1 || r[1].out_step > 1);
    gckpti_blocking sizes = V(blocking)(t, i1 - block->i0, floats);
    floats -= GCKPTI_PANEL * 16; /* V(pack) may write this much after the panels */
    sizes.kc = gckpti_min(sizes.kc, floats / (GCKPTI_PANEL + most) / 16 * 16);
    sizes.nc = gckpti_min(GCKPTI_NC, (floats / sizes.kc - most) / GCKPTI_PANEL * GCKPTI_PANEL);
    float *const panels = pack + most * sizes.kc;
    int64_t p = 0;
    do {
        const int64_t k = gckpti_min(t->k - p, sizes.kc);
        for (int64_t j = block->j0, n; j < j1; j += n) {
            n = gckpti_min(j1 - j, sizes.nc);
            V(pack_taps)(s, p, k, j, n, panels, sizes.kc);
            for (int64_t i = block->i0, some; i < i1; i += some) {
                const int64_t place = dw ? i : gckpti_conv_place(s->conv, i);
                gckpti_tile u = { k,    pack, 1,          GCKPTI_GATHER_ROWS,
                                  NULL, 0,    t->initial, t->initial_stride,
                                  NULL, 0,    0,          NULL };
                some = gckpti_min(i1 - i, most);
                if (lines)
                    some = gckpti_min(some, r[1].results - i % r[1].results);
                if (dw)
                    V(unfold)(s, p, k, i, some, pack, GCKPTI_GATHER_ROWS);
                else
                    V(unfold)(s, i, some, p, k, pack, sizes.kc);
                if (!dw)
                    u.a_row = sizes.kc, u.a_step = 1;
                u.c = t->c + place * t->c_stride + j;
                u.c_row = t->c_stride * (dw ? 1 : r[1].out_step);
                if (p || t->accumulate)
                    u.from = u.c, u.from_row = u.c_row;
                else if (t->initial)
                    u.from = t->initial + j;
                V(conv_tiles)(u, some, n, panels, sizes.kc);
            }
        }
        p += k;
    } while (p < t->k);
}

static const gckpti_image_kernels V(image_kernels) = {
    V(conv_block),   V(conv_grouped), W, V(pool_row), &V(channel_loops),
    V(upsample_row), gckpti_conv_fast
};
#endif
