#ifndef GCKPT_NO_BF16
/* What gckpti_kernels has for bf16 plans. */
static const gckpti_mixed_kernels V(mixed_kernels) = {
    { { 32, GCKPTI_PANEL, 0, GCKPTI_WORDS_PAIRS, V(mixed_tile) },
      { 32, GCKPTI_PANEL, 0, GCKPTI_WORDS_PAIRS, V(mixed_chain) } },
    V(mixed_pack_a),
    V(mixed_pack_b),
    V(widen),
    V(narrow),
    NULL,
    NULL
};
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
static const gckpti_mixed_kernels gckpti_mixed_kernels_bf16 = {
    { { 8, GCKPTI_PANEL, 1, GCKPTI_WORDS_APART, gckpti_mixed_tile_bf16 },
      { 32, GCKPTI_PANEL, 0, GCKPTI_WORDS_PAIRS, V(mixed_chain) } },
    gckpti_mixed_pack_a_bf16,
    gckpti_mixed_pack_b_bf16,
    V(widen),
    gckpti_mixed_narrow_bf16,
    NULL,
    NULL
};
#endif
#endif
