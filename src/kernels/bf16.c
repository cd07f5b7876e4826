#ifndef GCKPT_NO_BF16
/* ---- bf16 ---- */
GCKPTI_INLINED FLOATS V(load_bf16)(const uint16_t *x, int64_t n)
{
    return V(stored)(GCKPT_STORED_BF16, x, 0, V(zero)(), n);
}

static GCKPTI_TARGET void V(widen)(const uint16_t *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(y + i, V(load_bf16)(x + i, n - i), n - i);
}

/* gckpti_to_bf16: to nearest even; NaN stays NaN, subnormals become zeros of their sign. */
static GCKPTI_TARGET void V(narrow)(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
    const __m256i all = _mm256_set1_epi32(0x7fffffff), inf = _mm256_set1_epi32(0x7f800000);
    const __m256i quiet = _mm256_set1_epi32(0x400000), least = _mm256_set1_epi32(0x7fffff);
    for (; i + 8 <= n; i += 8) {
        __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        __m256i size = _mm256_and_si256(u, all),
                odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
        __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, half));
        r = _mm256_blendv_epi8(r, _mm256_or_si256(u, quiet), _mm256_cmpgt_epi32(size, inf));
        r = _mm256_blendv_epi8(_mm256_andnot_si256(all, u), r, _mm256_cmpgt_epi32(size, least));
        r = _mm256_srli_epi32(r, 16);
        r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 8);
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_castsi256_si128(r));
    }
#endif
    for (; i < n; i++)
        y[i] = gckpti_to_bf16(x[i]);
}

/* What is less than 2^-126 in size becomes a zero; where the processor was told so, it is. */
GCKPTI_INLINED FLOATS V(flushed)(FLOATS x)
{
#if GCKPTI_X86
    return x;
#else
    const INTS u = V(bits)(x), normal = (INTS)((u & 0x7f800000u) != 0);
    return V(floats)(u & (normal | 0x80000000u));
#endif
}

/* x = from + (first + second), of m rows and n columns; rows of the two are GCKPTI_PANEL apart. */
static GCKPTI_TARGET void V(mixed_add)(const gckpti_mixed_tile *t, const float *first,
                                       const float *second, int64_t m, int64_t n, const float *from,
                                       float *x)
{
    for (int64_t i = 0; i < m; i++, first += GCKPTI_PANEL, second += GCKPTI_PANEL, x += t->c_row) {
        for (int64_t j = 0; j < n; j += W) {
            const FLOATS s = V(flushed)(V(load)(first + j) + V(load)(second + j));
            const FLOATS d = from ? V(flushed)(V(load)(from + j)) : V(zero)();
            V(store)(x + j, V(flushed)(d + s));
        }
        from = from ? from + t->from_row : NULL;
    }
}

/* Factors of a block of b as floats: link after link, `width` columns each. */
static GCKPTI_TARGET void V(mixed_b)(const uint32_t *b, int64_t row, int64_t width, float *d)
{
    for (int64_t q = 0; q < GCKPTI_LINKS / 2; q++, b += row, d += 2 * width)
        for (int64_t j = 0; j < width; j += W) {
            INTS x;
            memcpy(&x, b + j, sizeof x);
            V(store)(d + j, V(flushed)(V(floats)(x << 16)));
            V(store)(d + width + j, V(flushed)(V(floats)(x & 0xffff0000u)));
        }
}

/* A tile by fma, GCKPTI_TILE_ROWS rows at a time. */
GCKPTI_INLINED void V(mixed_tile_of)(const gckpti_mixed_tile *t, int chain)
{
    enum { ACROSS = GCKPTI_TILE_VECTORS * W, WIDE = (int)GCKPTI_LINKS * GCKPTI_PANEL };
    float wide[WIDE] GCKPTI_ALIGNED, rows[GCKPTI_TILE_ROWS * GCKPTI_LINKS];
    float sums[2][GCKPTI_TILE_ROWS * GCKPTI_PANEL] GCKPTI_ALIGNED;
    for (int64_t p = 0; p < t->blocks; p++) {
        const int64_t links =
            p + 1 < t->blocks ? (int64_t)GCKPTI_LINKS : gckpti_multiple(t->last, 2);
        V(mixed_b)(t->b + p * (GCKPTI_LINKS / 2) * t->b_row, t->b_row, t->width, wide);
        for (int64_t i = 0; i < t->m; i += GCKPTI_TILE_ROWS) {
            const int64_t m = gckpti_min(t->m - i, GCKPTI_TILE_ROWS);
            const float *from = p         ? t->c + i * t->c_row
                                : t->from ? t->from + i * t->from_row
                                          : NULL;
            for (int64_t r = 0; r < m; r++) {
                const uint16_t *a = t->a + (i + r) * t->a_row + p * GCKPTI_LINKS;
                for (int64_t l = 0; l < GCKPTI_LINKS; l += W)
                    V(store)(rows + r * GCKPTI_LINKS + l, V(flushed)(V(load_bf16)(a + l, W)));
            }
            const int64_t from_row = p ? t->c_row : t->from_row;
            float *c = t->c + i * t->c_row;
            gckpti_tile tile = { links, rows,     GCKPTI_LINKS, 1,        wide, t->width,
                                 from,  from_row, c,            t->c_row, W,    rows };
            gckpti_mixed_tile add = *t;
            add.from_row = from_row;
            if (!chain)
                tile.k = links / 2, tile.a_step = 2, tile.b_step = 2 * t->width, tile.from = NULL,
                tile.c_row = GCKPTI_PANEL;
            for (int64_t j = 0; j < t->width; j += ACROSS) {
                const int64_t n = gckpti_min(t->width - j, ACROSS), v = n / W - 1;
                for (int odd = 0; odd < 2 - chain; odd++) {
                    tile.a = rows + odd, tile.b = wide + odd * t->width + j;
                    tile.c = chain ? c + j : sums[odd] + j;
                    tile.from = chain && from ? from + j : NULL;
                    tile.next = tile.c;
                    V(tiles)[v][m - 1](&tile);
                }
            }
            if (!chain)
                V(mixed_add)(&add, sums[0], sums[1], m, t->width, from, c);
        }
    }
    for (int64_t i = 0; t->c_bf16 && i < t->m; i++)
        V(narrow)(t->c + i * t->c_row, t->c_bf16 + i * t->narrow_row, t->width);
}
static GCKPTI_TARGET void V(mixed_tile)(const gckpti_mixed_tile *t) { V(mixed_tile_of)(t, 0); }
static GCKPTI_TARGET void V(mixed_chain)(const gckpti_mixed_tile *t) { V(mixed_tile_of)(t, 1); }

/* ---- factors packed (cpu/cpu.h) ---- */
/* n elements of x from `at` on. */
GCKPTI_INLINED void V(halves)(const gckpti_factor *x, int64_t at, int64_t n, uint16_t *d)
{
    if (x->bf16)
        memcpy(d, x->bf16 + at, (size_t)n * sizeof *d);
    else
        V(narrow)(x->f32 + at, d, n);
}

/* Links of the block of s that begins at link p. */
GCKPTI_INLINED int64_t V(mixed_block)(const gckpti_mixed_links *s, int64_t p)
{
    return gckpti_is_chain(s->t) ? gckpti_min(s->t->k - p, GCKPTI_LINKS) : gckpti_block_at(s->t, p);
}

/* A block of s from link p on as the kernels of packing take it: what is stored comes to `room` as
 * floats. *at: its first element. */
GCKPTI_INLINED gckpti_factor V(mixed_from)(const gckpti_mixed_links *s, int64_t p, int64_t links,
                                           float *room, int64_t *at)
{
    gckpti_factor x = *s->x;
    *at = s->at + p * x.step;
    (void)links;
    if (!gckpti_is_stored(s->x))
        return x;
    if (x.row == 1) {
        GCKPTI_STORED(V(unpack)(x.stored, *at, x.step, links, s->n, room, GCKPTI_PANEL));
        x.step = GCKPTI_PANEL;
    } else {
        GCKPTI_STORED(V(unpack)(x.stored, *at, x.row, s->n, links, room, GCKPTI_PANEL));
        x.row = GCKPTI_PANEL;
    }
    x.f32 = room;
    *at = 0;
    return x;
}

/* Words are pairs, of both. */
static GCKPTI_TARGET void V(mixed_pack_a)(const gckpti_mixed_links *s, int words, uint16_t *d,
                                          int64_t row)
{
    const gckpti_factor *x = s->x;
    (void)words;
    int64_t p = s->p, links;
    for (int64_t block = 0; block < s->blocks; block++, p += links, d += GCKPTI_LINKS) {
        const int64_t at = s->at + p * x->step;
        links = V(mixed_block)(s, p);
        for (int64_t i = 0; i < s->n; i++) {
            if (x->step == 1)
                V(halves)(x, at + i * x->row, links, d + i * row);
            for (int64_t l = links; l < GCKPTI_LINKS; l++)
                d[i * row + l] = 0x8000;
        }
        for (int64_t i = s->n; i < gckpti_multiple(s->n, 16); i++) /* tiles may take them, too */
            for (int64_t l = 0; l < GCKPTI_LINKS; l++)
                d[i * row + l] = 0x8000;
        for (int64_t i = 0; i < s->n && x->step != 1; i += 16)
            for (int64_t l = 0; l < links; l++) {
                const int64_t lanes = gckpti_min(s->n - i, 16);
                uint16_t some[16];
                if (x->row == 1)
                    V(halves)(x, at + i + l * x->step, lanes, some);
                for (int64_t e = 0; e < lanes && x->row != 1; e++)
                    V(halves)(x, at + (i + e) * x->row + l * x->step, 1, some + e);
                for (int64_t e = 0; e < lanes; e++)
                    d[(i + e) * row + l] = some[e];
            }
    }
}

static GCKPTI_TARGET void V(mixed_pack_b)(const gckpti_mixed_links *s, int words, uint32_t *d,
                                          int64_t width)
{
    float room[GCKPTI_PANEL * GCKPTI_PANEL];
    int64_t p = s->p, links, at;
    (void)words;
    for (int64_t block = 0; block < s->blocks; block++, p += links) {
        links = V(mixed_block)(s, p);
        const gckpti_factor from = V(mixed_from)(s, p, links, room, &at), *x = &from;
        for (int64_t i = 0; i < width && x->row != 1; i++) {
            uint16_t lane[GCKPTI_LINKS] = { 0 };
            for (int64_t l = 0; l < links && i < s->n; l += x->step == 1 ? links : 1)
                V(halves)(x, at + i * x->row + l * x->step, x->step == 1 ? links : 1, lane + l);
            for (int64_t q = 0; q < GCKPTI_LINKS / 2; q++)
                d[q * width + i] = lane[2 * q] | (uint32_t)lane[2 * q + 1] << 16;
        }
        for (int64_t q = 0; q < GCKPTI_LINKS / 2; q++, d += width)
            for (int64_t i = 0; i < width && x->row == 1; i += 64) {
                const int64_t n = gckpti_min(s->n - i, 64), lanes = gckpti_min(width - i, 64);
                uint16_t two[2][64] = { { 0 } };
                for (int64_t l = 2 * q; l < gckpti_min(2 * q + 2, links); l++)
                    V(halves)(x, at + i + l * x->step, n, two[l % 2]);
                for (int64_t e = 0; e < lanes; e++)
                    d[i + e] = two[0][e] | (uint32_t)two[1][e] << 16;
            }
    }
}
#endif
