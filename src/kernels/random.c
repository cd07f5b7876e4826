/* ---- random numbers (num/random.h) in vectors: dropout, initial values ---- */
GCKPTI_INLINED INTS V(mul_high)(INTS a, uint32_t b)
{
#if GCKPTI_ISA == 3
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

/* gckpti_philox: out[k] has word k of the blocks index..index+W-1. */
GCKPTI_ISA_NOINLINE void V(philox)(const gckpti_random *s, uint64_t index, INTS *out)
{
    uint32_t k0 = (uint32_t)s->key, k1 = (uint32_t)(s->key >> 32), low[W];
    INTS c0, c1, c2, c3;
    for (uint32_t i = 0; i < W; i++)
        low[i] = (uint32_t)index + i;
    memcpy(&c0, low, sizeof c0);
    c1 = ((INTS)(c0 < low[0]) & 1u) + (uint32_t)(index >> 32);
    c2 = (c0 ^ c0) + s->stream, c3 = (c0 ^ c0) + s->step;
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

/* Computes elements first..end-1 of a dropout (ops/unary.c). */
static GCKPTI_TARGET void V(dropout)(const gckpti_dropout *d, int64_t first, int64_t end)
{
    const FLOATS factor = V(set1)(d->scale);
    uint32_t words[5 * W] = { 0 }; /* 4 W elements, and elements read after them */
    uint64_t at = (d->offset + (uint64_t)first) / 4;
    int64_t i = first - (int64_t)((d->offset + (uint64_t)first) % 4); /* start of block `at` */
    for (int64_t n; first < end; i += 4 * W, at += W) {
        INTS word[4];
        V(philox)(&d->random, at, word);
        for (int k = 0; k < 4 * W; k++)
            words[k] = word[k % 4][k / 4];
        for (; first < end && first < i + 4 * W; first += n) {
            n = gckpti_min(gckpti_min(end, i + 4 * W) - first, W);
            memcpy(word, words + (first - i), sizeof *word);
            const INTS kept = (INTS)(*word >> 8 >= d->threshold);
            const FLOATS x = V(floats)(V(bits)(V(load_n)(d->loop.x + first, n)) & kept);
            V(put_product_n)(d->loop.to + first, factor, x, d->loop.accumulate, n);
        }
    }
}

/* Returns x < 2^24 times 2^-24, exactly, in two halves: bits or-ed into those of 2^23 add to it. */
GCKPTI_INLINED FLOATS V(uniform)(INTS x)
{
    const FLOATS magic = V(set1)(8388608.0f);
    const FLOATS high = (V(floats)(x >> 12 | 0x4b000000u) - magic) * 4096.0f;
    return (high + (V(floats)((x & 4095u) | 0x4b000000u) - magic)) * 5.9604644775390625e-8f;
}

/* gckpti_normal, by gckpti_radians and gckpti_sincos_of; reduces the angle lane by lane. */
GCKPTI_ISA_NOINLINE void V(normals)(const INTS *word, FLOATS *y)
{
    const FLOATS unit = V(set1)(3.40612167e-19f), x = 6.28318531f * V(uniform)(word[1] >> 8);
    const FLOATS r = V(sqrt)(-2.0f * V(log)(V(uniform)((word[0] >> 8) + 1u)));
    float angle[4][W];
    V(store)(angle[0], x);
    for (int i = 0; i < W; i++) {
        const uint32_t bits = gckpti_bits(angle[0][i]);
        gckpti_angle t = { 0, 0.0f, 0.0f };
        if (bits > GCKPTI_SMALL_ANGLE)
            t = gckpti_angle_large(bits);
        angle[1][i] = t.hi, angle[2][i] = t.lo, angle[3][i] = gckpti_float(t.quadrant);
    }
    const FLOATS a = V(load)(angle[1]), b = V(load)(angle[2]);
    FLOATS hi = V(fma)(a, unit, V(zero)()), lo = V(fma)(a, unit, -hi);
    lo = V(fma)(b, unit, V(fma)(a, V(set1)(-9.4783968e-27f), lo));
    hi = V(if_less)(V(set1)(gckpti_float(GCKPTI_SMALL_ANGLE)), x, hi, x); /* there lo is 0 */
    const FLOATS s = V(sine)(hi, lo), c = V(cosine)(hi, lo);
    const INTS quadrant = V(bits)(V(load)(angle[3]));
    const INTS odd = 0u - (quadrant & 1u), flip = (quadrant & 2u) << 30;
    const INTS u = ((V(bits)(-s) & odd) | (V(bits)(c) & ~odd)) ^ flip;
    const INTS v = ((V(bits)(c) & odd) | (V(bits)(s) & ~odd)) ^ flip;
    y[0] = V(fma)(r, V(floats)(u), V(zero)()), y[1] = V(fma)(r, V(floats)(v), V(zero)());
}

static GCKPTI_TARGET void V(initialise)(const gckpti_init_span *d)
{
    const gckpt_init *init = &d->init;
    for (int64_t i = -(d->at & 1); i < d->n; i += 2 * W) {
        FLOATS y[2] = { V(zero)(), V(zero)() };
        float x[2][W];
        INTS word[4];
        V(philox)(&d->random, (uint64_t)(d->at + i) / 2, word);
        if (init->normal < 0 || init->normal > 0)
            V(normals)(word, y);
        for (int k = 0; k < 2; k++) {
            const FLOATS u = V(fma)(V(set1)(2.0f), V(uniform)(word[2 + k] >> 8), V(set1)(-1.0f));
            y[k] = V(fma)(V(set1)(init->normal), y[k], V(set1)(init->constant));
            V(store)(x[k], V(fma)(V(set1)(init->uniform), u, y[k]));
        }
        for (int64_t e = i < 0; e < 2 * W && i + e < d->n; e++)
            d->out[i + e] = x[e % 2][e / 2];
    }
}
