/* Computes a block of one row or one term row by row, which reads and writes b and c in long runs.
 * Returns 0 for other blocks. */
static GCKPTI_TARGET int V(product_rows)(const gckpti_product *t, const gckpti_c_block *block)
{
    const int compressed = gckpti_has_compressed(&t->b);
    const int outer = t->k == 1 && t->b.stride == 1 && !compressed; /* b is a row of floats */
    const int use_dots = t->b.k_stride == 1 && !outer;
    const int64_t b_row = use_dots ? t->b.stride : t->b.k_stride;
    const int64_t j0 = block->j0, n = block->j1 - j0;
    if (!outer && (block->i1 - block->i0 != 1 || (t->b.k_stride != 1 && t->b.stride != 1)))
        return 0;
    for (int64_t i = block->i0; i < block->i1; i++) {
        const float *a = t->a.f32 + i * t->a.stride, *from = gckpti_chain_starts(t, i, j0);
        float *c = t->c + i * t->c_stride + j0;
        V(gemv) u = { t->k, n, a, t->a.k_stride, NULL, b_row, from, c, NULL };
        if (!use_dots && !from)
            memset(c, 0, (size_t)n * sizeof *c);
        else if (!use_dots && from != c)
            memcpy(c, from, (size_t)n * sizeof *c);
        if (compressed) {
            GCKPTI_IF_COMPRESSED(
                (use_dots ? V(compressed_dot) : V(compressed_axpy))(t->b.compressed, j0, &u));
            continue;
        }
        u.b = t->b.f32 + j0 * t->b.stride;
        (use_dots ? V(gemv_dot) : V(gemv_axpy))(&u);
    }
    return 1;
}

/* Computes a block of c; pack: scratch of `floats` floats, see gckpti_product_workspace.
 *
 * Loops, from the outside: blocks of b, along its columns and then down its terms (p, j; n columns,
 * k terms); rows of c, a tile's at a time (i); the panels of b's block (col). A tile keeps some
 * rows and vectors of c in registers while it adds k terms. Between blocks of terms, partial sums
 * are in c; the first block starts them at `from`. */
static GCKPTI_TARGET void V(product_block)(const gckpti_product *t, const gckpti_c_block *block,
                                           float *pack, int64_t floats)
{
    const int64_t i0 = block->i0, i1 = block->i1, j0 = block->j0, j1 = block->j1;
    const gckpti_blocking s = V(blocking)(t, i1 - i0, floats);
    const int64_t high = GCKPTI_TILE_ROWS;
    float *const panels = pack + GCKPTI_STRIP * s.kc;
    int64_t p = 0, j = j0, next_p, next_j;
    if (V(product_rows)(t, block))
        return;
    do {
        const float *a = t->a.f32 + p * t->a.k_stride;
        const int64_t n = gckpti_min(j1 - j, s.nc), k = gckpti_min(t->k - p, s.kc);
        const int64_t at_b = p * t->b.k_stride + j * t->b.stride;
        const float *b = gckpti_has_compressed(&t->b) ? NULL : t->b.f32 + at_b;
        gckpti_tile u = { k,    a, t->a.stride, t->a.k_stride, b, 0,
                          NULL, 0, NULL,        t->c_stride,   0, NULL };
        next_j = j + n < j1 ? j + n : j0;
        next_p = j + n < j1 ? p : p + s.kc;
        if (gckpti_has_compressed(&t->b))
            GCKPTI_IF_COMPRESSED(V(pack_compressed)(t, p, j, n, k, panels, s.kc));
        else if (!s.in_place || n % W)
            V(pack_panels)(t, b, n, k, s.in_place, panels, s.kc);
        for (int64_t i = i0, rows; i < i1; i += rows) {
            float *c = t->c + i * t->c_stride + j;
            const int64_t in_strip = (i - i0) % GCKPTI_STRIP;
            rows = gckpti_min(i1 - i, high);
            u.a = a + i * t->a.stride;
            if (s.packs_a && in_strip == 0)
                V(pack_strip)(u.a, t->a.k_stride, gckpti_min(i1 - i, GCKPTI_STRIP), k, pack, s.kc);
            if (s.packs_a)
                u.a = pack + in_strip * s.kc, u.a_row = 1, u.a_step = high;
            for (int64_t col = 0, width; col < n; col += width) {
                width = V(panel_width)(n, col);
                u.last = gckpti_min(n - col - width + W, W);
                u.b = panels + col * s.kc, u.b_step = width;
                if (s.in_place && u.last == W)
                    u.b = b + col, u.b_step = t->b.k_stride;
                u.from = u.c = c + col, u.from_row = t->c_stride;
                if (p == 0 && !t->accumulate)
                    u.from = gckpti_chain_starts(t, i, j + col), u.from_row = t->initial_stride;
                u.next_c = u.c; /* the tile after this one */
                if (col + width < n)
                    u.next_c += width;
                else if (i1 - i >= 2 * high)
                    u.next_c = c + rows * t->c_stride;
                V(tiles)[width / W - 1][rows - 1](&u);
            }
        }
        p = next_p, j = next_j;
    } while (p < t->k || j > j0);
}
