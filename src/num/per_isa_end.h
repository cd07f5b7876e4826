/* Ends the part that is read more than once (per_isa_begin.h). */
#endif /* GCKPTI_ISA */
#if defined(GCKPTI_ISA) && GCKPTI_ISA < 0 /* on with the implementation */
#undef GCKPTI_ISA
