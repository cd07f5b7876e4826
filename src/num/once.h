/* The end of what is read more than once (again.h). */
#endif /* GCKPTI_ISA */
#if defined(GCKPTI_ISA) && GCKPTI_ISA < 0 /* on with the implementation */
#undef GCKPTI_ISA
