#if GCKPTI_AMX && GCKPTI_ISA == 3
/* ---- AMX: a tile register is 16 rows of 16 words. tdpbf16ps adds a block of 32 terms to 16 x 16
 * elements: a chain from +0 over the words' lower halves, one over their upper halves, and the sum
 * of both to the element, subnormals being zeros: as 5l defines, whatever MXCSR says. ---- */

/* The instructions in AT&T and Intel syntax; tests replace them by an emulation. (Intrinsics are
 * not used: compilers do not know that they read memory.) */
#ifndef GCKPTI_AMX_LOAD
#define GCKPTI_AMX_SHAPES(at) __asm__ volatile("ldtilecfg {(%0)|[%0]}" ::"r"(at) : "memory")
#define GCKPTI_AMX_RELEASE()  __asm__ volatile("tilerelease" ::: "memory")
#define GCKPTI_AMX_ZERO(n)    __asm__ volatile("tilezero {%%|}tmm" #n ::)
#define GCKPTI_AMX_LOAD(n, at, row)                                                                \
    __asm__ volatile("tileloadd {(%0,%1,1), %%tmm" #n "|tmm" #n ", [%0+%1*1]}" ::"r"(at), "r"(row) \
                     : "memory")
#define GCKPTI_AMX_STORE(n, at, row)                                                               \
    __asm__ volatile("tilestored {%%tmm" #n ", (%0,%1,1)|[%0+%1*1], tmm" #n "}" ::"r"(at),         \
                     "r"(row)                                                                      \
                     : "memory")
#define GCKPTI_AMX_BLOCK(c, a, b)                                                                  \
    __asm__ volatile("tdpbf16ps {%%tmm" #b ", %%tmm" #a ", %%tmm" #c "|tmm" #c ", tmm" #a          \
                     ", tmm" #b "}" ::)
#endif

#define GCKPTI_TARGET_AMX                                                                          \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma,prfchw")))
#if GCKPTI_OPTIMISED
#define GCKPTI_INLINED_AMX static inline __attribute__((always_inline)) GCKPTI_TARGET_AMX
#else
#define GCKPTI_INLINED_AMX static inline GCKPTI_TARGET_AMX
#endif

static GCKPTI_TARGET_AMX void gckpti_narrow_amx(const float *x, uint16_t *y, int64_t n)
{
    for (; n >= 16; n -= 16, x += 16, y += 16) {
        const __m256i words = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x));
        memcpy(y, &words, sizeof words);
    }
    V(narrow)(x, y, n);
}

/* ---- V(mixed_put) by instructions that round to bf16 ---- */
GCKPTI_INLINED_AMX __m512i gckpti_concat_amx(const void *low, const void *high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)low)),
                              _mm256_loadu_si256((const __m256i *)high), 1);
}

/* Returns elements low..low+15 and high..high+15 of x as bf16; narrow (a constant): x is bf16. */
GCKPTI_INLINED_AMX __m512i gckpti_halves_amx(const gckpti_operand *x, int64_t low, int64_t high,
                                             int narrow)
{
    if (narrow)
        return gckpti_concat_amx(x->halves + low, x->halves + high);
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x->f32 + high),
                                        _mm512_loadu_ps(x->f32 + low));
}

/* Returns 8 elements from x on, followed by 8 from y on. */
GCKPTI_INLINED_AMX __m256i gckpti_eights_amx(const uint16_t *x, const uint16_t *y)
{
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)x);
    const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)y);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Returns 8 elements in each quarter of a vector: from `at`, and 1, 2, 3 distances after `at`. */
GCKPTI_INLINED_AMX __m512i gckpti_quarters_amx(const gckpti_operand *x, int64_t at, int64_t apart,
                                               int narrow)
{
    if (narrow) {
        const uint16_t *b = x->halves + at, *c = b + 2 * apart;
        return _mm512_inserti64x4(_mm512_castsi256_si512(gckpti_eights_amx(b, b + apart)),
                                  gckpti_eights_amx(c, c + apart), 1);
    }
    const float *f = x->f32 + at, *g = f + 2 * apart;
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)gckpti_concat_amx(g, g + apart),
                                        (__m512)gckpti_concat_amx(f, f + apart));
}

/* Stores 16 words of 16 lanes, transposed, to rows of `row` words. Loading by quarters needs 48
 * shuffles for adjacent lanes, 64 for adjacent terms; a transposition by rows needs 80. */
GCKPTI_INLINED_AMX void gckpti_transpose_amx(const gckpti_pack_block *s, int across, int narrow,
                                             uint32_t *d, int64_t row)
{
    const gckpti_operand x = *s->x;
    __m512i term[8], r[4];
    GCKPTI_UNROLL
    for (int i = 0; i < 4; i++, d += 4 * row) {
        GCKPTI_UNROLL
        for (int k = 0; k < 8; k++)
            if (across && i % 2 == 0)
                term[k] =
                    gckpti_quarters_amx(&x, s->at + 4 * i + k * x.k_stride, 8 * x.k_stride, narrow);
        GCKPTI_UNROLL
        for (int k = 0; k < 4; k++)
            r[k] = !across
                       ? gckpti_quarters_amx(&x, s->at + 8 * i + k * x.stride, 4 * x.stride, narrow)
                   : i % 2 ? _mm512_unpackhi_epi16(term[2 * k], term[2 * k + 1])
                           : _mm512_unpacklo_epi16(term[2 * k], term[2 * k + 1]);
        const __m512i l01 = _mm512_unpacklo_epi32(r[0], r[1]);
        const __m512i h01 = _mm512_unpackhi_epi32(r[0], r[1]);
        const __m512i l23 = _mm512_unpacklo_epi32(r[2], r[3]);
        const __m512i h23 = _mm512_unpackhi_epi32(r[2], r[3]);
        _mm512_storeu_si512(d, _mm512_unpacklo_epi64(l01, l23));
        _mm512_storeu_si512(d + row, _mm512_unpackhi_epi64(l01, l23));
        _mm512_storeu_si512(d + 2 * row, _mm512_unpacklo_epi64(h01, h23));
        _mm512_storeu_si512(d + 3 * row, _mm512_unpackhi_epi64(h01, h23));
    }
}

/* V(mixed_put); across (lanes are adjacent) and narrow are constants. */
GCKPTI_INLINED_AMX void gckpti_put_as_amx(const gckpti_pack_block *s, int across, int narrow,
                                          uint32_t *d, int64_t row)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i pairs = _mm512_add_epi32(_mm512_or_si512(lane, _mm512_slli_epi32(lane, 16)),
                                           _mm512_set1_epi32(16 << 16));
    const gckpti_operand *x = s->x;
    if (s->as_a == across) {
        gckpti_transpose_amx(s, across, narrow, d, row);
        return;
    }
    GCKPTI_UNROLL
    for (int i = 0; i < 16; i++) {
        const int64_t at = s->at + i * (across ? 2 * x->k_stride : x->stride);
        const __m512i y = gckpti_halves_amx(x, at, at + (across ? x->k_stride : 16), narrow);
        _mm512_storeu_si512(d + i * row, across ? _mm512_permutexvar_epi16(pairs, y) : y);
    }
}

static GCKPTI_TARGET_AMX void gckpti_put_amx(const gckpti_pack_block *s, uint32_t *d, int64_t row)
{
    const int across = s->x->stride == 1, narrow = s->x->halves != NULL;
    if (narrow)
        across ? gckpti_put_as_amx(s, 1, 1, d, row) : gckpti_put_as_amx(s, 0, 1, d, row);
    else
        across ? gckpti_put_as_amx(s, 1, 0, d, row) : gckpti_put_as_amx(s, 0, 0, d, row);
}

/* Configures all 8 tile registers before a work item (enable = 1); releases them after it.
 * From then on, other threads may read what non-temporal stores wrote. */
static void gckpti_mixed_configure_amx(int enable)
{
    static const struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } full = {
        1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 }
    };
    if (enable) {
        GCKPTI_AMX_SHAPES(&full);
    } else {
        _mm_sfence();
        GCKPTI_AMX_RELEASE();
    }
}

/* What vector units do while tile registers compute t: round rows i to end - 1 of the tile before,
 * and prefetch the lines that rows i to end - 1 of the tile below will be stored to. (Stores that
 * wait for memory, one after another, would take longer than the products.) */
GCKPTI_INLINED_AMX void gckpti_between_amx(const gckpti_mixed_tile *t, int64_t i, int64_t end)
{
    gckpti_mixed_tile *before = t->before;
    for (int64_t r = i + t->m; !t->streams && r < end + t->m && r < t->c_rows; r++)
        if (t->c_bf16)
            __builtin_prefetch(t->c_bf16 + r * t->bf16_row, 1);
        else
            for (int64_t j = 0; j < t->width; j += 16)
                __builtin_prefetch(t->c + r * t->c_row + j, 1);
    for (; before->c_bf16 && before->width == 32 && i < end && i < before->m; i++) {
        const float *x = before->c + i * before->c_row;
        uint16_t *y = before->c_bf16 + i * before->bf16_row;
        const __m512i words =
            (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
        if (before->streams)
            _mm512_stream_si512((__m512i *)(void *)y, words);
        else
            _mm512_storeu_si512(y, words);
        before->rounded = i + 1;
    }
}

/* Tiles of 16 or 32 rows and columns: registers 0 to 3 hold c, 4 and 5 hold a, 6 and 7 hold b. */
static GCKPTI_TARGET_AMX void gckpti_mixed_tile_amx(const gckpti_mixed_tile *t)
{
    const int low = t->m > 16, right = t->width > 16;
    const int64_t a_row = 2 * t->a_row, b_row = 4 * t->b_row, c_row = 4 * t->c_row;
    const uint16_t *a = t->a;
    const uint32_t *b = t->b;
    float *const c = t->c, *const c_low = t->c + 16 * t->c_row;
    const int64_t pace = (t->m + t->blocks - 1) / t->blocks;
    int64_t between = 0;
    if (t->from) {
        const float *from = t->from, *from_low = from + 16 * t->from_row;
        const int64_t row = 4 * t->from_row;
        GCKPTI_AMX_LOAD(0, from, row);
        if (right)
            GCKPTI_AMX_LOAD(1, from + 16, row);
        if (low)
            GCKPTI_AMX_LOAD(2, from_low, row);
        if (low && right)
            GCKPTI_AMX_LOAD(3, from_low + 16, row);
    } else {
        GCKPTI_AMX_ZERO(0);
        GCKPTI_AMX_ZERO(1);
        GCKPTI_AMX_ZERO(2);
        GCKPTI_AMX_ZERO(3);
    }
    for (int64_t n = t->blocks; n > 0;
         n--, a += GCKPTI_K_BLOCK, b += GCKPTI_K_BLOCK / 2 * t->b_row) {
        GCKPTI_AMX_LOAD(4, a, a_row);
        GCKPTI_AMX_LOAD(6, b, b_row);
        GCKPTI_AMX_BLOCK(0, 4, 6);
        if (right) {
            GCKPTI_AMX_LOAD(7, b + 16, b_row);
            GCKPTI_AMX_BLOCK(1, 4, 7);
        }
        if (low) {
            GCKPTI_AMX_LOAD(5, a + 16 * t->a_row, a_row);
            GCKPTI_AMX_BLOCK(2, 5, 6);
        }
        if (low && right)
            GCKPTI_AMX_BLOCK(3, 5, 7);
        gckpti_between_amx(t, between, between + pace);
        between += pace;
    }
    GCKPTI_AMX_STORE(0, c, c_row);
    if (right)
        GCKPTI_AMX_STORE(1, c + 16, c_row);
    if (low)
        GCKPTI_AMX_STORE(2, c_low, c_row);
    if (low && right)
        GCKPTI_AMX_STORE(3, c_low + 16, c_row);
}

static const gckpti_mixed_kernels gckpti_mixed_kernels_amx = {
    gckpti_mixed_fast,
    { { 32, 32, 16, gckpti_mixed_tile_amx }, { 32, GCKPTI_PANEL, 1, V(mixed_chain) } },
    gckpti_mixed_configure_amx,
    64,
    V(mixed_pack),
    gckpti_put_amx,
    V(widen),
    gckpti_narrow_amx
};

GCKPTI_DATA const gckpti_kernels gckpti_kernels_amx = { GCKPTI_KERNELS(&gckpti_mixed_kernels_amx) };
#undef GCKPTI_TARGET_AMX
#undef GCKPTI_INLINED_AMX
#endif
