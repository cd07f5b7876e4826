#if !GCKPTI_OPTIMISED && !defined(__clang__) /* see kernels/vectors.c */
#pragma GCC pop_options
#endif
