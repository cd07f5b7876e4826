GCKPTI_COLD_END /* begun in run/layout.c */

#ifdef __cplusplus
}
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT DEFAULT
#if __clang_major__ >= 12
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wignored-pragmas"
#pragma float_control(pop)
#pragma clang diagnostic pop
#endif
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#ifdef GCKPT_SMALL
#pragma pop_macro("int64_t")
#pragma pop_macro("INT64_MAX")
#endif
#endif /* GRADCKPT_IMPLEMENTATION */
