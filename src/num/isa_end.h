#if GCKPTI_ISA < 0
#pragma pop_macro("V")
#pragma pop_macro("W")
#pragma pop_macro("FLOATS")
#pragma pop_macro("INTS")
#undef GCKPTI_TARGET
#undef GCKPTI_UNROLL
#undef GCKPTI_MASK_OF
#undef GCKPTI_LANE
#undef GCKPTI_KERNEL
#undef GCKPTI_ALWAYS
#undef GCKPTI_INLINED
#undef GCKPTI_ISA_NOINLINE
#undef GCKPTI_DOUBLES
#endif
