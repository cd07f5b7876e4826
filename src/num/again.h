#define GCKPTI_ISA (-1) /* once as plain floats: num/vectors */
#endif /* GRADCKPT_IMPLEMENTATION */
#ifdef GCKPTI_ISA
