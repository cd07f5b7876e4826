#ifndef GCKPT_NO_BF16
/* ---- bf16 ---- */
GCKPTI_INLINED FLOATS V(load_bf16)(const uint16_t *x, int64_t n)
{
    return V(load_wide)(GCKPT_STORAGE_BF16, x, 0, n);
}

/* Returns n floats from x[at] on or, if x is NULL, n widened bf16 from narrow[at] on. */
GCKPTI_INLINED FLOATS V(load_any)(const float *x, const uint16_t *narrow, int64_t at, int64_t n)
{
    if (__builtin_expect(x != NULL, 1)) /* otherwise gcc branches for each vector */
        return V(load_n)(x + at, n);
    return V(load_bf16)(narrow + at, n);
}

static GCKPTI_TARGET void V(widen)(const uint16_t *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(y + i, V(load_bf16)(x + i, n - i), n - i);
}

/* Rounds to nearest even, as gckpti_to_bf16 does, into the upper halves of words. */
GCKPTI_INLINED INTS V(rounded)(FLOATS x)
{
    const INTS u = V(bits)(x), nan = (INTS)(x != x), subnormal = (INTS)((u & 0x7f800000u) == 0);
    const INTS bias = (u >> 16 & 1) + 0x7fff;
    return ((u + (bias & ~nan)) | (nan & 0x400000u)) & ~(subnormal >> 1) & 0xffff0000u;
}

/* Stores the upper halves of W words to y. */
GCKPTI_INLINED void V(narrow_vector)(INTS words, void *y)
{
    const INTS r = words >> 16;
#if GCKPTI_ISA == 2
    const __m256i all = (__m256i)r;
    const __m128i high = _mm256_extracti128_si256(all, 1);
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(all), high);
#else
    typedef uint16_t narrow __attribute__((vector_size(2 * W)));
    const narrow halves = __builtin_convertvector(r, narrow);
#endif
    memcpy(y, &halves, sizeof halves);
}

static GCKPTI_TARGET void V(narrow)(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
    for (; i + W <= n; i += W)
        V(narrow_vector)(V(rounded)(V(load)(x + i)), y + i);
    for (; i < n; i++)
        y[i] = gckpti_to_bf16(x[i]);
}

/* Widens a block of t to floats: rows of a's terms; b term by term. */
GCKPTI_INLINED void V(widen_block)(const gckpti_mixed_tile *t, int64_t block, float *a, float *b)
{
    const uint16_t *rows = t->a + block * GCKPTI_K_BLOCK;
    const uint32_t *words = t->b + block * (GCKPTI_K_BLOCK / 2) * t->b_row;
    const int64_t low = gckpti_little_endian() ? 0 : t->width, high = t->width - low;
    for (int64_t i = 0; i < t->m; i++, rows += t->a_row) {
        __builtin_prefetch(rows + GCKPTI_K_BLOCK);
        for (int64_t l = 0; l < GCKPTI_K_BLOCK; l += W, a += W)
            V(store)(a, V(flushed)(V(load_bf16)(rows + l, W)));
    }
    for (int64_t q = 0; q < GCKPTI_K_BLOCK / 2; q++, words += t->b_row, b += 2 * t->width)
        for (int64_t j = 0; j < t->width; j += W) {
            INTS x;
            memcpy(&x, words + j, sizeof x);
            V(store)(b + low + j, V(flushed)(V(floats)(x << 16)));
            V(store)(b + high + j, V(flushed)(V(floats)(x & 0xffff0000u)));
        }
}

/* V(tiles) of whole vectors of columns, for one block of terms. */
static GCKPTI_TARGET void V(block_tile)(const gckpti_tile *t, int64_t vectors)
{
    if (W == 16 && vectors == 1)
        V(tile)(t, GCKPTI_TILE_ROWS / 2, 1, 1);
    else if (GCKPTI_TILE_VECTORS == 2 || vectors == 2)
        V(tile)(t, GCKPTI_TILE_ROWS / 2, 2, 1);
    else
        V(tile)(t, GCKPTI_TILE_ROWS / 2, GCKPTI_TILE_VECTORS, 1);
}

/* Computes a tile by fma: GCKPTI_TILE_ROWS rows at a time, or half as many for blocks. */
static GCKPTI_TARGET void V(mixed_tile_by)(const gckpti_mixed_tile *t, int chain)
{
    static const float zeros[GCKPTI_PANEL] GCKPTI_ALIGNED = { 0.0f };
    float a[32 * GCKPTI_K_BLOCK] GCKPTI_ALIGNED,
        b[(int)GCKPTI_K_BLOCK * GCKPTI_PANEL] GCKPTI_ALIGNED;
    const int64_t from_row = t->from ? t->from_row : 0;
    gckpti_tile tile = { 0,    a,        GCKPTI_K_BLOCK, 2 - chain, b, t->width,
                         NULL, from_row, NULL,           t->c_row,  W, a };
    const int64_t high = chain ? GCKPTI_TILE_ROWS : GCKPTI_TILE_ROWS / 2;
    for (int64_t p = 0; p < t->blocks; p++, tile.from_row = t->c_row) {
        const float *from = p ? t->c : t->from ? t->from : chain ? NULL : zeros;
        V(widen_block)(t, p, a, b);
        tile.k = p + 1 < t->blocks ? (int64_t)GCKPTI_K_BLOCK : gckpti_ceil_to(t->last, 2);
        tile.k /= 2 - chain;
        for (int64_t i = 0, m; i < t->m; i += m) {
            m = gckpti_min(t->m - i, high);
            for (int64_t r = i + m; p == 0 && r < i + 2 * m && r < t->c_rows && !t->c_bf16; r++)
                for (int64_t j = 0; j < t->width; j += 16)
                    __builtin_prefetch(t->c + r * t->c_row + j);
            tile.a = a + i * GCKPTI_K_BLOCK;
            for (int64_t j = 0, n; j < t->width; j += n) {
                n = V(panel_width)(t->width, j);
                tile.b = b + j, tile.c = t->c + i * t->c_row + j;
                tile.from = from ? from + i * tile.from_row + j : NULL;
                if (chain)
                    V(tiles)[n / W - 1][m - 1](&tile);
                else
                    V(block_tile)(&tile, n / W);
            }
        }
    }
}
static GCKPTI_TARGET void V(mixed_tile)(const gckpti_mixed_tile *t) { V(mixed_tile_by)(t, 0); }
static GCKPTI_TARGET void V(mixed_chain)(const gckpti_mixed_tile *t) { V(mixed_tile_by)(t, 1); }

/* ---- packed operands (cpu/cpu.h) ---- */
/* Returns W elements of x, from `at` on, as bf16 in the upper halves of words. */
GCKPTI_INLINED INTS V(load_upper)(const gckpti_operand *x, int64_t at)
{
    return x->halves ? V(bits)(V(load_bf16)(x->halves + at, W)) : V(rounded)(V(load)(x->f32 + at));
}

/* Stores 16 rows of `row` words, transposed if necessary: lanes of a, or pairs of terms of b. */
static GCKPTI_TARGET void V(mixed_put)(const gckpti_pack_block *s, uint32_t *d, int64_t row)
{
    const gckpti_operand x = *s->x;
    const int across = x.stride == 1, transposed = s->as_a == across,
              swap = !gckpti_little_endian();
    uint16_t buffer[16 * GCKPTI_K_BLOCK];
    const int64_t to_row = transposed ? 2 * GCKPTI_K_BLOCK : 4 * row;
    const int in_place = transposed && !across && x.halves;
    const void *from = in_place ? (const void *)(x.halves + s->at) : buffer;
    char *line = (char *)(transposed ? (void *)buffer : (void *)d);
    for (int64_t i = 0; i < 16 && !in_place; i++, line += to_row) {
        const int64_t at = s->at + i * x.stride, low = s->at + (2 * i + swap) * x.k_stride;
        const int64_t high = s->at + (2 * i + !swap) * x.k_stride;
        if (!across && x.halves)
            memcpy(line, x.halves + at, 2 * GCKPTI_K_BLOCK);
        for (int64_t j = 0; !across && !x.halves && j < GCKPTI_K_BLOCK; j += W)
            V(narrow_vector)(V(rounded)(V(load)(x.f32 + at + j)), line + 2 * j);
        for (int64_t j = 0; across && j < 16; j += W) {
            const INTS words = V(load_upper)(&x, low + j) >> 16 | V(load_upper)(&x, high + j);
            memcpy(line + 4 * j, &words, sizeof words);
        }
    }
    const int64_t from_row = in_place ? 2 * x.stride : to_row;
    for (int64_t i = 0; transposed && i < 16; i += 4)
        for (int64_t j = 0; j < 16; j += W) {
            FLOATS r[4];
            V(transpose4)((const char *)from + j * from_row + 4 * i, from_row, r);
            for (int k = 0; k < 4; k++)
                memcpy(d + (i + k) * row + j, &r[k], sizeof r[k]);
        }
}

/* Sets `words` and x to a block of fewer lanes or terms; pads a with -0, b with +0. */
static GCKPTI_TARGET void V(pad_block)(const gckpti_pack_block *s, int64_t lanes, int64_t terms,
                                       uint16_t *words, gckpti_operand *x)
{
    const int across = s->x->stride == 1;
    const int64_t lines = across ? terms : lanes, each = across ? lanes : terms;
    const int64_t line_terms = across ? 16 : GCKPTI_K_BLOCK;
    *x = *s->x;
    for (int i = 0; i < 16 * GCKPTI_K_BLOCK; i++)
        words[i] = s->as_a ? 0x8000 : 0;
    for (int64_t i = 0, at = s->at; i < lines && each > 0;
         i++, at += across ? s->x->k_stride : s->x->stride)
        if (x->halves)
            memcpy(words + i * line_terms, x->halves + at, (size_t)each * sizeof *words);
        else
            V(narrow)(x->f32 + at, words + i * line_terms, each);
    x->halves = words, x->stride = across ? 1 : line_terms, x->k_stride = across ? line_terms : 1;
}

/* Packs the blocks of s, 16 lanes at a time: a to rows of `row` words, b to panels `row` wide. */
static GCKPTI_TARGET void V(mixed_pack)(const gckpti_pack_lanes *s, int as_a, uint32_t *d,
                                        int64_t row)
{
    uint16_t words[16 * GCKPTI_K_BLOCK];
    float buffer[GCKPTI_PANEL * GCKPTI_PANEL]; /* of decompressed values */
    const int across = s->x->stride == 1;
    int64_t p = s->p, terms;
    for (int64_t block = 0; block < s->blocks; block++, p += terms) {
        gckpti_operand x = *s->x;
        int64_t *line = across ? &x.k_stride : &x.stride, at = s->at + p * x.k_stride;
        (void)line, (void)buffer; /* unused if no operand is compressed */
        terms = gckpti_block_terms(s->t, p);
        if (gckpti_has_compressed(&x)) {
            GCKPTI_IF_COMPRESSED(V(decompress)(x.compressed, at, *line, across ? terms : s->n,
                                               across ? s->n : terms, buffer, GCKPTI_PANEL));
            *line = GCKPTI_PANEL, x.f32 = buffer, at = 0;
        }
        for (int64_t i = 0; i < (as_a ? s->n : row); i += 16) {
            gckpti_operand padded;
            gckpti_pack_block part = { &x, at + i * x.stride, as_a };
            if (s->n - i < 16 || terms < GCKPTI_K_BLOCK) {
                V(pad_block)(&part, gckpti_min(s->n - i, 16), terms, words, &padded);
                part.x = &padded, part.at = 0;
            }
            s->kernels->put(&part, as_a ? d + i * row : d + i, row);
        }
        d += as_a ? GCKPTI_K_BLOCK / 2 : GCKPTI_K_BLOCK / 2 * row;
    }
}
#endif
