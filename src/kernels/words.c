#ifndef GCKPT_NO_BF16
/* ---- words: in bf16 plans, a pair of links each, the first one in the upper half. bf16 (a
 * constant): by the processor's instructions. ---- */
GCKPTI_INLINED INTS V(words)(const uint32_t *x)
{
    INTS a;
    memcpy(&a, x, sizeof a);
    return a;
}
GCKPTI_INLINED INTS V(word)(uint32_t x) { return V(bits)(V(set1)(gckpti_float(x))); }
GCKPTI_INLINED void V(store_words)(uint32_t *x, INTS a) { memcpy(x, &a, sizeof a); }

/* Two links of chains. */
GCKPTI_INLINED FLOATS V(two_links)(INTS a, INTS b, FLOATS c, int bf16)
{
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
    if (bf16) {
        __asm__("vdpbf16ps {%2, %1, %0|%0, %1, %2}" : "+v"(c) : "v"(a), "v"(b));
        return c;
    }
#endif
    (void)bf16;
    c = V(fma)(V(floats)(a & 0xffff0000u), V(floats)(b & 0xffff0000u), c);
    return V(fma)(V(floats)(a << 16), V(floats)(b << 16), c);
}

/* Words of the 2 W neighbours a, b. */
GCKPTI_INLINED INTS V(neighbours)(FLOATS a, FLOATS b, int bf16)
{
    uint32_t x[2 * W], y[W];
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
    if (bf16) {
        __m512i both;
        __asm__("vcvtne2ps2bf16 {%2, %1, %0|%0, %1, %2}" : "=v"(both) : "v"(b), "v"(a));
        return (INTS)_mm512_rol_epi32(both, 16);
    }
#endif
    (void)bf16;
    V(store_words)(x, V(halve)(a));
    V(store_words)(x + W, V(halve)(b));
    for (int i = 0; i < W; i++)
        y[i] = (x[2 * i] & 0xffff0000u) | x[2 * i + 1] >> 16;
    return V(words)(y);
}
#endif
