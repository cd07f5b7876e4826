/* vectors.h and formulas.h, which follow, are read more than once: here as plain floats, and by the
 * header including itself (cpu/kernels.c), which sees nothing but them and kernels. So the
 * implementation ends here, and goes on in per_isa_end.h. */
#define GCKPTI_ISA (-1) /* once as plain floats: num/vectors */
#endif /* GRADCKPT_IMPLEMENTATION */
#ifdef GCKPTI_ISA
