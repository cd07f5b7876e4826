/* Loops up to per_isa_end.h are read, like num/formulas.h, for plain floats (a vector has W = 1
 * lanes) and once more for each instruction set: they are the plain and the fast kernels of ops. */
#define GCKPTI_ISA (-1)
#endif /* GRADCKPT_IMPLEMENTATION */
#ifdef GCKPTI_ISA
