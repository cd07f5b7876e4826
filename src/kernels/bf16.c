#ifndef GCKPT_NO_BF16
/* ---- bf16 ---- */
GCKPTI_INLINED FLOATS V(load_bf16)(const uint16_t *x, int64_t n)
{
    return V(stored)(GCKPT_STORAGE_BF16, x, 0, V(zero)(), n);
}

static GCKPTI_TARGET void V(widen)(const uint16_t *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(y + i, V(load_bf16)(x + i, n - i), n - i);
}

/* gckpti_halve, in the upper halves of words. */
GCKPTI_INLINED INTS V(halved)(FLOATS x, INTS more)
{
    const INTS u = V(bits)(x), nan = (INTS)(x != x), small = (INTS)((u & 0x7f800000u) == 0);
    return ((u + (more & ~nan)) | (nan & 0x400000u)) & ~(small >> 1) & 0xffff0000u;
}

/* gckpti_to_bf16, so. */
GCKPTI_INLINED INTS V(rounded)(FLOATS x)
{
    return V(halved)(x, (V(bits)(x) >> 16 & 1) + 0x7fff);
}

/* W of them, to y. */
GCKPTI_INLINED void V(narrow_few)(INTS upper, void *y)
{
    const INTS r = upper >> 16;
#if GCKPTI_ISA == 3
    const __m256i halves = _mm512_cvtepi32_epi16((__m512i)r);
#elif GCKPTI_ISA == 2
    const __m256i all = (__m256i)r;
    const __m128i high = _mm256_extracti128_si256(all, 1);
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(all), high);
#elif GCKPTI_ISA == 1
    const uint16x4_t halves = vmovn_u32((uint32x4_t)r);
#else
    uint16_t halves[W];
    for (int i = 0; i < W; i++)
        halves[i] = (uint16_t)r[i];
#endif
    memcpy(y, &halves, sizeof halves);
}

static GCKPTI_TARGET void V(narrow)(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
    for (; i + W <= n; i += W)
        V(narrow_few)(V(rounded)(V(load)(x + i)), y + i);
    for (; i < n; i++)
        y[i] = gckpti_to_bf16(x[i]);
}

/* Elements first..end-1 of a conversion that rounds by chance (cpu/convert). */
static GCKPTI_TARGET void V(chance)(const gckpti_converting *s, int64_t first, int64_t end)
{
    const gckpt_conversion *c = s->c;
    uint16_t more[9 * W] = { 0 }, some[W]; /* of 8 W elements, and what is read past them */
    uint64_t at = (s->at + (uint64_t)first) / 8;
    int64_t i = first - (int64_t)((s->at + (uint64_t)first) % 8); /* where block `at` begins */
    for (int64_t n; first < end; i += 8 * W, at += W) {
        INTS word[4];
        V(philox)(&s->random, at, word);
        for (int k = 0; k < 8 * W; k++)
            more[k] = (uint16_t)(word[k / 2 % 4][k / 8] >> 16 * (k % 2));
        for (; first < end && first < i + 8 * W; first += n) {
            n = gckpti_min(gckpti_min(end, i + 8 * W) - first, W);
            const INTS bits = V(bits)(V(load_bf16)(more + (first - i), W)) >> 16;
            const INTS r = V(halved)(V(load_n)(c->x + first, n), bits);
            V(narrow_few)(r, n < W || !c->to ? some : c->to + first);
            if (!c->to)
                V(store_n)(c->x + first, V(floats)(r), n);
            else if (n < W)
                memcpy(c->to + first, some, (size_t)n * sizeof *some);
        }
    }
}

/* A block of t as floats: of a, rows of its links; of b, link after link. */
GCKPTI_INLINED void V(mixed_wide)(const gckpti_mixed_tile *t, int64_t block, float *a, float *b)
{
    const uint16_t *rows = t->a + block * GCKPTI_LINKS;
    const uint32_t *words = t->b + block * (GCKPTI_LINKS / 2) * t->b_row;
    const int64_t low = gckpti_little_endian() ? 0 : t->width, high = t->width - low;
    for (int64_t i = 0; i < t->m; i++, rows += t->a_row) {
        __builtin_prefetch(rows + GCKPTI_LINKS);
        for (int64_t l = 0; l < GCKPTI_LINKS; l += W, a += W)
            V(store)(a, V(flushed)(V(load_bf16)(rows + l, W)));
    }
    for (int64_t q = 0; q < GCKPTI_LINKS / 2; q++, words += t->b_row, b += 2 * t->width)
        for (int64_t j = 0; j < t->width; j += W) {
            INTS x;
            memcpy(&x, words + j, sizeof x);
            V(store)(b + low + j, V(flushed)(V(floats)(x << 16)));
            V(store)(b + high + j, V(flushed)(V(floats)(x & 0xffff0000u)));
        }
}

/* V(tiles) of full columns, for a block. */
static GCKPTI_TARGET void V(blocks)(const gckpti_tile *t, int64_t vectors)
{
    if (W == 16 && vectors == 1)
        V(tile)(t, GCKPTI_TILE_ROWS / 2, 1, 1);
    else if (GCKPTI_TILE_VECTORS == 2 || vectors == 2)
        V(tile)(t, GCKPTI_TILE_ROWS / 2, 2, 1);
    else
        V(tile)(t, GCKPTI_TILE_ROWS / 2, GCKPTI_TILE_VECTORS, 1);
}

/* A tile by fma: GCKPTI_TILE_ROWS rows at a time or (for blocks) half of these. */
static GCKPTI_TARGET void V(mixed_tile_of)(const gckpti_mixed_tile *t, int chain)
{
    static const float zeros[GCKPTI_PANEL] GCKPTI_ALIGNED = { 0.0f };
    float a[32 * GCKPTI_LINKS] GCKPTI_ALIGNED, b[(int)GCKPTI_LINKS * GCKPTI_PANEL] GCKPTI_ALIGNED;
    gckpti_tile tile = {
        0,    a,        GCKPTI_LINKS, 2 - chain, b, t->width, NULL, t->from ? t->from_row : 0,
        NULL, t->c_row, W,            a
    };
    const int64_t high = chain ? GCKPTI_TILE_ROWS : GCKPTI_TILE_ROWS / 2;
    for (int64_t p = 0; p < t->blocks; p++, tile.from_row = t->c_row) {
        const float *from = p ? t->c : t->from ? t->from : chain ? NULL : zeros;
        V(mixed_wide)(t, p, a, b);
        tile.k = p + 1 < t->blocks ? (int64_t)GCKPTI_LINKS : gckpti_multiple(t->last, 2);
        tile.k /= 2 - chain;
        for (int64_t i = 0, m; i < t->m; i += m) {
            m = gckpti_min(t->m - i, high);
            for (int64_t r = -i & 3; r < m; r += 4)
                gckpti_fetch_some(t->fetch);
            for (int64_t r = i + m; p == 0 && r < i + 2 * m && r < t->more; r++)
                for (int64_t j = 0; j < t->width; j += 16)
                    __builtin_prefetch(t->c + r * t->c_row + j);
            tile.a = a + i * GCKPTI_LINKS;
            for (int64_t j = 0, n; j < t->width; j += n) {
                n = V(panel)(t->width, j);
                tile.b = b + j, tile.c = t->c + i * t->c_row + j;
                tile.from = from ? from + i * tile.from_row + j : NULL;
                if (chain)
                    V(tiles)[n / W - 1][m - 1](&tile);
                else
                    V(blocks)(&tile, n / W);
            }
        }
    }
    for (int64_t i = 0; t->c_bf16 && i < t->m; i++)
        V(narrow)(t->c + i * t->c_row, t->c_bf16 + i * t->narrow_row, t->width);
}
static GCKPTI_TARGET void V(mixed_tile)(const gckpti_mixed_tile *t) { V(mixed_tile_of)(t, 0); }
static GCKPTI_TARGET void V(mixed_chain)(const gckpti_mixed_tile *t) { V(mixed_tile_of)(t, 1); }

/* ---- factors packed (cpu/cpu.h) ---- */
/* A block of s from link p on as the kernels of packing take it: what is stored comes to `room` as
 * floats. *at: its first element. */
GCKPTI_INLINED gckpti_factor V(mixed_from)(const gckpti_mixed_links *s, int64_t p, int64_t links,
                                           float *room, int64_t *at)
{
    gckpti_factor x = *s->x;
    const int64_t across = x.row == 1, lines = across ? links : s->n, each = across ? s->n : links;
    int64_t *row = across ? &x.step : &x.row; /* from line to line */
    *at = s->at + p * x.step;
    (void)lines, (void)each;
    if (!gckpti_is_stored(s->x))
        return x;
    GCKPTI_STORED(V(unpack)(x.stored, *at, *row, lines, each, room, GCKPTI_PANEL));
    *row = GCKPTI_PANEL, x.f32 = room, *at = 0;
    return x;
}

/* Of a block, 16 lanes and 32 links from element `at` of x on, all of which exist; words: as
 * gckpti_words says. */
typedef struct {
    const gckpti_factor *x;
    int64_t at;
    int words, as_a;
} V(square);
typedef void V(put_square)(const V(square) * s, uint32_t *d, int64_t row);

/* W elements of x from `at` on, in the upper halves of words. */
GCKPTI_INLINED INTS V(upper)(const gckpti_factor *x, int64_t at)
{
    return x->bf16 ? V(bits)(V(load_bf16)(x->bf16 + at, W)) : V(rounded)(V(load)(x->f32 + at));
}

/* 16 rows of `row` words: a's lanes, or b's pairs of links. What x has in such rows goes as it is,
 * what it has in the others is turned. */
static GCKPTI_TARGET void V(mixed_put)(const V(square) * s, uint32_t *d, int64_t row)
{
    const gckpti_factor x = *s->x;
    const int across = x.row == 1, turned = s->as_a == across, swap = !gckpti_little_endian();
    uint16_t room[16 * GCKPTI_LINKS];
    const int64_t to_row = turned ? 2 * GCKPTI_LINKS : 4 * row;
    const int in_place = turned && !across && x.bf16;
    const void *from = in_place ? (const void *)(x.bf16 + s->at) : room;
    char *line = (char *)(turned ? (void *)room : (void *)d);
    for (int64_t i = 0; i < 16 && !in_place; i++, line += to_row) {
        const int64_t at = s->at + i * x.row, low = s->at + (2 * i + swap) * x.step;
        const int64_t high = s->at + (2 * i + !swap) * x.step;
        if (!across && x.bf16)
            memcpy(line, x.bf16 + at, 2 * GCKPTI_LINKS);
        for (int64_t j = 0; !across && !x.bf16 && j < GCKPTI_LINKS; j += W)
            V(narrow_few)(V(rounded)(V(load)(x.f32 + at + j)), line + 2 * j);
        for (int64_t j = 0; across && j < 16; j += W) {
            const INTS words = V(upper)(&x, low + j) >> 16 | V(upper)(&x, high + j);
            memcpy(line + 4 * j, &words, sizeof words);
        }
    }
    const int64_t from_row = in_place ? 2 * x.row : to_row;
    for (int64_t i = 0; turned && i < 16; i += 4)
        for (int64_t j = 0; j < 16; j += W) {
            FLOATS r[4];
            V(turn)((const char *)from + j * from_row + 4 * i, from_row, r);
            for (int k = 0; k < 4; k++)
                memcpy(d + (i + k) * row + j, &r[k], sizeof r[k]);
        }
}

/* The same of a block of which `lanes` and `links` exist; other places of a are -0, of b +0. */
static GCKPTI_TARGET void V(mixed_put_part)(const V(square) * s, int64_t lanes, int64_t links,
                                            uint32_t *d, int64_t row, V(put_square) * put)
{
    const int across = s->x->row == 1;
    const int64_t lines = across ? links : lanes, each = across ? lanes : links;
    const int64_t wide = across ? 16 : GCKPTI_LINKS;
    uint16_t words[16 * GCKPTI_LINKS];
    gckpti_factor x = *s->x;
    const V(square) all = { &x, 0, s->words, s->as_a };
    for (int i = 0; i < 16 * GCKPTI_LINKS; i++)
        words[i] = s->as_a ? 0x8000 : 0;
    for (int64_t i = 0, at = s->at; i < lines && each > 0; i++, at += across ? x.step : x.row)
        if (x.bf16)
            memcpy(words + i * wide, x.bf16 + at, (size_t)each * sizeof *words);
        else
            V(narrow)(x.f32 + at, words + i * wide, each);
    x.bf16 = words, x.row = across ? 1 : wide, x.step = across ? wide : 1;
    put(&all, d, row);
}

/* Blocks of s, each 16 lanes at a time: a's to rows of `row` words, b's to panels of as many. */
static GCKPTI_TARGET void V(mixed_pack)(const gckpti_mixed_links *s, int words, int as_a,
                                        uint32_t *d, int64_t row, V(put_square) * put)
{
    float room[GCKPTI_PANEL * GCKPTI_PANEL];
    int64_t p = s->p, links, at;
    for (int64_t block = 0; block < s->blocks; block++, p += links) {
        links = gckpti_block_at(s->t, p);
        const gckpti_factor x = V(mixed_from)(s, p, links, room, &at);
        for (int64_t i = 0; i < (as_a ? s->n : row); i += 16) {
            const V(square) some = { &x, at + i * x.row, words, as_a };
            uint32_t *to = as_a ? d + i * row : d + i;
            if (s->n - i >= 16 && links == GCKPTI_LINKS)
                put(&some, to, row);
            else
                V(mixed_put_part)(&some, gckpti_min(s->n - i, 16), links, to, row, put);
        }
        d += as_a ? GCKPTI_LINKS / 2 : GCKPTI_LINKS / 2 * row;
    }
}

static GCKPTI_TARGET void V(mixed_pack_a)(const gckpti_mixed_links *s, int words, uint16_t *d,
                                          int64_t row)
{
    void *to = d;
    V(mixed_pack)(s, words, 1, (uint32_t *)to, row / 2, V(mixed_put));
}

static GCKPTI_TARGET void V(mixed_pack_b)(const gckpti_mixed_links *s, int words, uint32_t *d,
                                          int64_t width)
{
    V(mixed_pack)(s, words, 0, d, width, V(mixed_put));
}
#endif
