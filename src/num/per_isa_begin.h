/* vectors.h and formulas.h follow and are read more than once: here for plain floats, and when the
 * header includes itself (cpu/kernels.c), which then reads only them and kernels. So the
 * implementation ends here and continues in per_isa_end.h. */
#define GCKPTI_ISA (-1) /* once as plain floats: num/vectors */
#endif /* GRADCKPT_IMPLEMENTATION */
#ifdef GCKPTI_ISA
