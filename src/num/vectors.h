/* set1: x in all lanes; highest, lowest: b if either is NaN; fnma: c - a * b; less, equal: a < b or
 * a == b ? c : d, both sides being computed; bits, floats: reinterpret the same bits */
#if GCKPTI_ISA < 0
GCKPTI_INLINE float V(set1)(float x) { return x; }
GCKPTI_INLINE float V(vmax)(float a, float b) { return a > b ? a : b; }
GCKPTI_INLINE float V(vmin)(float a, float b) { return a < b ? a : b; }
GCKPTI_INLINE float V(fnma)(float a, float b, float c) { return gckpti_fma(-a, b, c); }
GCKPTI_INLINE float V(floats)(uint32_t a) { return gckpti_float(a); }
GCKPTI_INLINE float V(if_less)(float a, float b, float c, float d) { return a < b ? c : d; }
/* Selects by a mask, not a branch, so that loops over this function vectorise. */
GCKPTI_INLINE float V(if_equal)(float a, float b, float c, float d)
{
    const uint32_t mask = 0u - (uint32_t)(a == b);
    return gckpti_float((gckpti_bits(c) & mask) | (gckpti_bits(d) & ~mask));
}
GCKPTI_INLINE void V(to_doubles)(float x, double *y) { *y = (double)x; }
GCKPTI_INLINE float V(to_floats)(const double *x) { return (float)*x; }
GCKPTI_INLINE float V(add)(float a, float b) { return a + b; }
#if GCKPTI_ISA == -1
GCKPTI_INLINE float gckpti_load_n(const float *x, int64_t n) { return (void)n, *x; }
GCKPTI_INLINE float gckpti_fold_sum(float a) { return a; }
GCKPTI_INLINE float gckpti_fold_max(float a) { return a; }
GCKPTI_INLINE void gckpti_store_n(float *x, float a, int64_t n) { (void)n, *x = a; }
#endif
#else
GCKPTI_ALWAYS FLOATS V(load)(const float *x)
{
    FLOATS a;
    memcpy(&a, x, sizeof a);
    return a;
}
GCKPTI_ALWAYS void V(store)(float *x, FLOATS a) { memcpy(x, &a, sizeof a); }

/* load_n, store_n: the first n floats (all if n > W), others are read as 0; upto: a in the first n
 * lanes, then b; fold_sum, fold_max: combine lane j with lane j + W / 2, then halves again */
#if GCKPTI_X86 && GCKPTI_ISA >= 2
GCKPTI_ALWAYS FLOATS V(set1)(float x) { return GCKPTI_MM(set1_ps)(x); }
GCKPTI_ALWAYS FLOATS V(sqrt)(FLOATS a) { return GCKPTI_MM(sqrt_ps)(a); }
GCKPTI_ALWAYS FLOATS V(vmax)(FLOATS a, FLOATS b) { return GCKPTI_MM(max_ps)(a, b); }
GCKPTI_ALWAYS FLOATS V(vmin)(FLOATS a, FLOATS b) { return GCKPTI_MM(min_ps)(a, b); }
GCKPTI_ALWAYS FLOATS V(fma)(FLOATS a, FLOATS b, FLOATS c) { return GCKPTI_MM(fmadd_ps)(a, b, c); }
GCKPTI_ALWAYS FLOATS V(fnma)(FLOATS a, FLOATS b, FLOATS c) { return GCKPTI_MM(fnmadd_ps)(a, b, c); }
GCKPTI_ALWAYS float V(fold_sum8)(__m256 a)
{
    __m128 b = _mm256_extractf128_ps(a, 1) + _mm256_castps256_ps128(a);
    b = _mm_movehl_ps(b, b) + b;
    return _mm_cvtss_f32(_mm_shuffle_ps(b, b, 1) + b);
}
GCKPTI_ALWAYS float V(fold_max8)(__m256 a)
{
    __m128 b = _mm_max_ps(_mm256_extractf128_ps(a, 1), _mm256_castps256_ps128(a));
    b = _mm_max_ps(_mm_movehl_ps(b, b), b);
    return _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps(b, b, 1), b));
}
#endif
#if GCKPTI_ISA == 3
#define GCKPTI_MASK(n)               ((__mmask16)((1u << (n)) - 1u))
#define GCKPTI_MASKED_LOAD(x, n)     _mm512_maskz_loadu_ps(GCKPTI_MASK(n), x)
#define GCKPTI_MASKED_STORE(x, a, n) _mm512_mask_storeu_ps(x, GCKPTI_MASK(n), a)
#define GCKPTI_MASKED_BLEND(b, a, n) _mm512_mask_mov_ps(b, GCKPTI_MASK(n), a)
GCKPTI_ALWAYS FLOATS V(if_less)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    return _mm512_mask_mov_ps(d, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), c);
}
GCKPTI_ALWAYS float V(fold_sum)(FLOATS a)
{
    return V(fold_sum8)(_mm512_extractf32x8_ps(a, 1) + _mm512_castps512_ps256(a));
}
GCKPTI_ALWAYS float V(fold_max)(FLOATS a)
{
    return V(fold_max8)(_mm256_max_ps(_mm512_extractf32x8_ps(a, 1), _mm512_castps512_ps256(a)));
}
#elif GCKPTI_ISA == 2
#define GCKPTI_MASK(n)                                                                             \
    _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define GCKPTI_MASKED_LOAD(x, n)     _mm256_maskload_ps(x, GCKPTI_MASK(n))
#define GCKPTI_MASKED_STORE(x, a, n) _mm256_maskstore_ps(x, GCKPTI_MASK(n), a)
#define GCKPTI_MASKED_BLEND(b, a, n) _mm256_blendv_ps(b, a, _mm256_castsi256_ps(GCKPTI_MASK(n)))
GCKPTI_ALWAYS FLOATS V(if_less)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    return _mm256_blendv_ps(d, c, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
GCKPTI_ALWAYS float V(fold_sum)(FLOATS a) { return V(fold_sum8)(a); }
GCKPTI_ALWAYS float V(fold_max)(FLOATS a) { return V(fold_max8)(a); }
#endif
#if GCKPTI_X86 && GCKPTI_ISA >= 2
GCKPTI_ALWAYS FLOATS V(load_n)(const float *x, int64_t n)
{
    return n >= W ? GCKPTI_MM(loadu_ps)(x) : GCKPTI_MASKED_LOAD(x, n);
}
GCKPTI_ALWAYS void V(store_n)(float *x, FLOATS a, int64_t n)
{
    if (n >= W)
        GCKPTI_MM(storeu_ps)(x, a);
    else
        GCKPTI_MASKED_STORE(x, a, n);
}
GCKPTI_ALWAYS FLOATS V(blend_n)(int64_t n, FLOATS a, FLOATS b)
{
    return n >= W ? a : GCKPTI_MASKED_BLEND(b, a, n);
}
#undef GCKPTI_MASK
#undef GCKPTI_MASKED_LOAD
#undef GCKPTI_MASKED_STORE
#undef GCKPTI_MASKED_BLEND
#else
GCKPTI_ALWAYS FLOATS V(load_n)(const float *x, int64_t n)
{
    float a[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    memcpy(a, x, (size_t)(n < 4 ? n : 4) * sizeof *a);
    return V(load)(a);
}
GCKPTI_ALWAYS void V(store_n)(float *x, FLOATS a, int64_t n)
{
    memcpy(x, &a, (size_t)(n < 4 ? n : 4) * sizeof *x);
}
GCKPTI_ALWAYS FLOATS V(blend_n)(int64_t n, FLOATS a, FLOATS b)
{
    memcpy(&b, &a, (size_t)(n < 4 ? n : 4) * sizeof(float));
    return b;
}
GCKPTI_ALWAYS float V(fold_sum)(FLOATS a) { return (a[0] + a[2]) + (a[1] + a[3]); }
GCKPTI_ALWAYS float V(fold_max)(FLOATS a)
{
    float b = a[2] > a[0] ? a[2] : a[0], c = a[3] > a[1] ? a[3] : a[1];
    return c > b ? c : b;
}
/* Defines operations that C has no operator for, lane by lane. Compilers find the instructions of
 * NEON for them, except for roots, and for fma where they keep errno. */
#define GCKPTI_LANEWISE(name, parameters, result)                                                  \
    GCKPTI_ALWAYS FLOATS V(name) parameters                                                        \
    {                                                                                              \
        for (int i = 0; i < 4; i++)                                                                \
            a[i] = result;                                                                         \
        return a;                                                                                  \
    }
#ifdef __aarch64__
GCKPTI_ALWAYS FLOATS V(sqrt)(FLOATS a) { return vsqrtq_f32(a); }
GCKPTI_ALWAYS FLOATS V(fma)(FLOATS a, FLOATS b, FLOATS c) { return vfmaq_f32(c, a, b); }
GCKPTI_ALWAYS FLOATS V(fnma)(FLOATS a, FLOATS b, FLOATS c) { return vfmsq_f32(c, a, b); }
#else
GCKPTI_LANEWISE(sqrt, (FLOATS a), gckpti_sqrt(a[i]))
GCKPTI_LANEWISE(fma, (FLOATS a, FLOATS b, FLOATS c), gckpti_fma(a[i], b[i], c[i]))
GCKPTI_LANEWISE(fnma, (FLOATS a, FLOATS b, FLOATS c), gckpti_fma(-a[i], b[i], c[i]))
#endif
GCKPTI_LANEWISE(vmax, (FLOATS a, FLOATS b), a[i] > b[i] ? a[i] : b[i])
GCKPTI_LANEWISE(vmin, (FLOATS a, FLOATS b), a[i] < b[i] ? a[i] : b[i])
GCKPTI_LANEWISE(if_less, (FLOATS a, FLOATS b, FLOATS c, FLOATS d), a[i] < b[i] ? c[i] : d[i])
#undef GCKPTI_LANEWISE
GCKPTI_ALWAYS FLOATS V(set1)(float x)
{
    FLOATS a = { x, x, x, x };
    return a;
}
#endif
GCKPTI_ALWAYS FLOATS V(add)(FLOATS a, FLOATS b) { return a + b; }
GCKPTI_ALWAYS INTS V(bits)(FLOATS a) { return (INTS)a; }
GCKPTI_ALWAYS FLOATS V(floats)(INTS a) { return (FLOATS)a; }
GCKPTI_ALWAYS FLOATS V(if_equal)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    INTS mask = (INTS)(a == b);
    return V(floats)((mask & V(bits)(c)) | (~mask & V(bits)(d)));
}
/* Converts to doubles at y, not as a return value: that can be wider than any vector register. */
GCKPTI_INLINED void V(to_doubles)(FLOATS x, GCKPTI_DOUBLES *y)
{
    *y = __builtin_convertvector(x, GCKPTI_DOUBLES);
}
GCKPTI_INLINED FLOATS V(to_floats)(const GCKPTI_DOUBLES *x)
{
    return __builtin_convertvector(*x, FLOATS);
}
#endif
GCKPTI_ALWAYS FLOATS V(zero)(void) { return V(set1)(0.0f); }
GCKPTI_ALWAYS FLOATS V(select)(INTS mask, FLOATS a, FLOATS b)
{
    return V(floats)((mask & V(bits)(a)) | (~mask & V(bits)(b)));
}
GCKPTI_ALWAYS FLOATS V(bit_or)(FLOATS a, FLOATS b) { return V(floats)(V(bits)(a) | V(bits)(b)); }
GCKPTI_ALWAYS FLOATS V(sign_bit)(FLOATS a) { return V(floats)(V(bits)(a) & 0x80000000u); }
GCKPTI_ALWAYS FLOATS V(abs)(FLOATS a) { return V(floats)(V(bits)(a) & 0x7fffffffu); }
GCKPTI_ALWAYS FLOATS V(from_exponent)(INTS n) { return V(floats)(n << 23); } /* 2^(n - 127) */

/* Returns the upper halves of the 64-bit products of b and each word of a. */
GCKPTI_INLINED INTS V(mul_high)(INTS a, uint32_t b)
{
#if GCKPTI_ISA < 0
    return (uint32_t)((uint64_t)a * b >> 32);
#elif GCKPTI_ISA == 3
    const __m512i m = _mm512_set1_epi32((int)b), x = (__m512i)a;
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
    return (INTS)_mm512_mask_mov_epi32(_mm512_srli_epi64(_mm512_mul_epu32(x, m), 32), 0xaaaa, odd);
#elif GCKPTI_ISA == 2
    const __m256i m = _mm256_set1_epi32((int)b), x = (__m256i)a;
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    return (INTS)_mm256_blend_epi32(_mm256_srli_epi64(_mm256_mul_epu32(x, m), 32), odd, 0xaa);
#else
    for (int i = 0; i < W; i++)
        a[i] = (uint32_t)((uint64_t)a[i] * b >> 32);
    return a;
#endif
}

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128 random
 * bits that depend only on key and counter: each element can be computed again, in any order.
 * out[k] has word k of the blocks index..index+W-1. */
GCKPTI_ISA_NOINLINE void V(philox)(uint64_t key, uint64_t index, uint32_t stream, uint32_t step,
                                   INTS out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32), low[W];
    INTS c0, c1, c2, c3;
    for (uint32_t i = 0; i < W; i++)
        low[i] = (uint32_t)index + i;
    memcpy(&c0, low, sizeof c0);
    c1 = ((INTS)(c0 < low[0]) & 1u) + (uint32_t)(index >> 32);
    c2 = (c0 ^ c0) + stream, c3 = (c0 ^ c0) + step;
    for (int round = 0; round < 10; round++) {
        const INTS a = V(mul_high)(c0, 0xd2511f53u), b = V(mul_high)(c2, 0xcd9e8d57u);
        const INTS a_low = c0 * 0xd2511f53u, b_low = c2 * 0xcd9e8d57u;
        c0 = b ^ c1 ^ k0;
        c2 = a ^ c3 ^ k1;
        c1 = b_low, c3 = a_low;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}
