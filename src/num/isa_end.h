#if GCKPTI_ISA < 0
#pragma pop_macro("V")
#pragma pop_macro("W")
#pragma pop_macro("FLOATS")
#pragma pop_macro("INTS")
#endif
