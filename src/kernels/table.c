/* The table of kernels of one instruction set, in the order of gckpti_kernels (ops/kernels.h). */
#define GCKPTI_TRAINED(name) GCKPTI_IF_TRAINING(V(name))
#define GCKPTI_KERNELS(mixed, narrow)                                                              \
    V(product_block), V(divide), V(dot), GCKPTI_TRAINED(update_block), V(add_into),                \
        V(elementwise), V(run_loop), V(softmax_row), GCKPTI_TRAINED(softmax_row_grad),             \
        V(log_softmax_row), GCKPTI_TRAINED(log_softmax_row_grad), V(norm_row),                     \
        GCKPTI_TRAINED(norm_row_grad), V(column_sums), &V(element_loss_kernels),                   \
        &V(class_loss_kernels), V(dropout_elements), gckpti_fp32_fast,                             \
        GCKPTI_IF_BF16(gckpti_mixed_fast), GCKPTI_IF_BF16(V(widen)), GCKPTI_IF_BF16(narrow),       \
        GCKPTI_IF_BF16(mixed), GCKPTI_IF_ATTENTION(&V(attention_loops)),                           \
        GCKPTI_IF_IMAGES(&V(image_kernels)), GCKPTI_IF_RECURRENT(&V(cell_loops))
GCKPTI_DATA const gckpti_kernels V(kernels) = { GCKPTI_KERNELS(&V(mixed_kernels), V(narrow)) };
#if GCKPTI_ISA == 3 && GCKPTI_AMX
GCKPTI_DATA const gckpti_kernels gckpti_kernels_amx = {
    GCKPTI_KERNELS(&gckpti_mixed_kernels_amx, gckpti_narrow_amx)
};
#endif
#undef GCKPTI_KERNELS
#undef GCKPTI_TRAINED

#undef GCKPTI_ALWAYS
#undef GCKPTI_ISA_NOINLINE
#undef GCKPTI_KERNEL
#undef GCKPTI_INLINED
#undef GCKPTI_ISA
#undef GCKPTI_DOUBLES
#undef GCKPTI_MASK_OF
#undef GCKPTI_LANE
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
