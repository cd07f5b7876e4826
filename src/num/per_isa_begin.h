/* The header is read more than once: vectors.h and formulas.h here for plain floats, and, with the
 * kernels, once more for each instruction set, when the header includes itself (cpu/kernels.c). So
 * the implementation ends here, and continues in per_isa_end.h. */
#define GCKPTI_ISA (-1) /* plain floats: see num/vectors.h */
#endif /* GRADCKPT_IMPLEMENTATION */
#ifdef GCKPTI_ISA
