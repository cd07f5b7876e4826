/* The table of kernels of one instruction set, in the order of gckpti_kernels (cpu/cpu.h). */
#define GCKPTI_TRAINED(name) GCKPTI_IF_TRAINING(V(name))
#define GCKPTI_KERNELS(mixed)                                                                      \
    V(product_block), V(online_softmax), V(divide), V(dot), GCKPTI_TRAINED(update), V(add_to),     \
        V(elementwise_forward), GCKPTI_TRAINED(elementwise_backward), V(softmax_forward),          \
        GCKPTI_TRAINED(softmax_backward), V(log_softmax_forward),                                  \
        GCKPTI_TRAINED(log_softmax_backward), V(norm_forward), GCKPTI_TRAINED(norm_backward),      \
        V(rotary), V(column_sums), V(attention_forward), GCKPTI_TRAINED(attention_backward),       \
        GCKPTI_TRAINED(classes_backward), V(surprisal), V(element_loss_forward),                   \
        GCKPTI_TRAINED(element_loss_backward), V(exp_scalar), V(log_scalar), V(softcap),           \
        GCKPTI_TRAINED(dropout), GCKPTI_TRAINED(initialise), GCKPTI_IF_BF16(V(round_stochastic)),  \
        mixed GCKPTI_RECURRENT_KERNELS(V) GCKPTI_IMAGE_KERNELS(V)
GCKPTI_DATA const gckpti_kernels V(kernels) = { GCKPTI_KERNELS(GCKPTI_IF_BF16(&V(mixed_kernels))) };
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
GCKPTI_DATA const gckpti_kernels gckpti_kernels_bf16 = { GCKPTI_KERNELS(
    &gckpti_mixed_kernels_bf16) };
#if GCKPTI_AMX
GCKPTI_DATA const gckpti_kernels gckpti_kernels_amx = { GCKPTI_KERNELS(&gckpti_mixed_kernels_amx) };
#endif
#endif
#undef GCKPTI_KERNELS
#undef GCKPTI_TRAINED

#undef GCKPTI_ALWAYS
#undef GCKPTI_ISA_NOINLINE
#undef GCKPTI_INLINED
#undef GCKPTI_ISA
#undef GCKPTI_ATTN_ROWS
#undef GCKPTI_DOUBLES
#undef GCKPTI_MM
#undef GCKPTI_TARGET
#undef GCKPTI_TILE_ROWS
#undef GCKPTI_TILE_VECTORS
#undef GCKPTI_UNROLL
#pragma pop_macro("V")
#pragma pop_macro("W")
#pragma pop_macro("FLOATS")
#pragma pop_macro("INTS")
#if (defined(__cplusplus) || !GCKPTI_OPTIMISED) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
