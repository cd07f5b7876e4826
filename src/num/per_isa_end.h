/* Ends the part that is read for each instruction set (per_isa_begin.h). */
#endif /* GCKPTI_ISA */
#if defined(GCKPTI_ISA) && GCKPTI_ISA == -1 /* the implementation continues */
#undef GCKPTI_ISA
