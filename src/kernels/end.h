#undef GCKPTI_KERNELS
#undef GCKPTI_TRAINED

#undef GCKPTI_ISA
#undef GCKPTI_MM
#undef GCKPTI_TILE_ROWS
#undef GCKPTI_TILE_VECTORS
#pragma pop_macro("V")
#pragma pop_macro("W")
#pragma pop_macro("FLOATS")
#pragma pop_macro("INTS")
#if (defined(__cplusplus) || !GCKPTI_OPTIMISED) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif /* GCKPTI_ISA */
