GCKPTI_WARM /* since check */

/* No private macro outlives the implementation. */
#undef GCKPTI_ADDRESSABLE
#undef GCKPTI_ALIGN
#undef GCKPTI_AVX512
#undef GCKPTI_AVX512_BF16
#undef GCKPTI_BOTH_WAYS
#undef GCKPTI_FAST_CLASSES
#undef GCKPTI_FAST_ERRORS
#undef GCKPTI_IF_BF16
#undef GCKPTI_STORED
#undef GCKPTI_COLD
#undef GCKPTI_CURVES
#undef GCKPTI_CURVE_FLAGS
#undef GCKPTI_ERF_MAX
#undef GCKPTI_ERF_SPLIT
#undef GCKPTI_EXP_MAX
#undef GCKPTI_EXP_MIN
#undef GCKPTI_FAST
#undef GCKPTI_DATA
#undef GCKPTI_FMA
#undef GCKPTI_FN
#undef GCKPTI_FNV_START
#undef GCKPTI_GELU_C1
#undef GCKPTI_GELU_C3
#undef GCKPTI_HAS_FAST
#undef GCKPTI_HEADER_MAX
#undef GCKPTI_INFINITY
#undef GCKPTI_INLINE
#undef GCKPTI_LEAN
#undef GCKPTI_LN2_HI
#undef GCKPTI_LN2_LO
#undef GCKPTI_LOG2E
#undef GCKPTI_MAGIC
#undef GCKPTI_NAMELESS
#undef GCKPTI_NAN
#undef GCKPTI_NONE
#undef GCKPTI_ALL_OPS
#undef GCKPTI_OPS
#undef GCKPTI_LEFT_OUT
#undef GCKPTI_RECURRENT
#undef GCKPTI_IMAGES
#undef GCKPTI_LOSSES
#undef GCKPTI_ERRORS
#undef GCKPTI_READS_MORE
#undef GCKPTI_WITH_LOSSES
#undef GCKPTI_RECURRENT_KERNELS
#undef GCKPTI_IMAGE_KERNELS
#undef GCKPTI_OPTIMISED
#undef GCKPTI_PAIRS
#undef GCKPTI_PLAIN
#undef GCKPTI_PLANS
#undef GCKPTI_PLAN_ARRAYS
#undef GCKPTI_PLAN_MAGIC
#undef GCKPTI_PLAN_NUMBERS
#undef GCKPTI_POSIX
#undef GCKPTI_HEAP_WHOLE
#undef GCKPTI_HUGE_PAGES
#undef GCKPTI_TEAMS
#undef GCKPTI_RANKS_LOAD
#undef GCKPTI_ROUND
#undef GCKPTI_ROW
#undef GCKPTI_ROW_WITH
#undef GCKPTI_SQRT
#undef GCKPTI_TANH_MAX
#undef GCKPTI_TANH_SPLIT
#undef GCKPTI_TEXT
#undef GCKPTI_UNUSED
#undef GCKPTI_UNARY_FLAGS
#undef GCKPTI_WARM
#undef GCKPTI_WITH_BACKENDS
#undef GCKPTI_WITH_BF16
#undef GCKPTI_WITH_PACK
#undef GCKPTI_X86
#undef GCKPTI_WITH_CACHES
#undef GCKPTI_WITH_DEBUG
#undef GCKPTI_WITH_PICKS
#undef GCKPTI_WITH_PLANNER
#undef GCKPTI_WITH_RANKS
#undef GCKPTI_WORK_LIMIT
#undef GCKPTI_SEARCHED
#undef GCKPTI_TWICE
#undef GCKPTI_REST
#undef GCKPTI_NEVER
#undef gckpti_crew_begin
#undef gckpti_run_gather
#undef gckpti_pass_share
#undef gckpti_check_collected
#undef gckpti_check_caches
#undef gckpti_cache_at
#undef gckpti_copies_at
#undef gckpti_mixed_forward
#undef gckpti_mixed_backward
#undef gckpti_mixed_gradient
#undef gckpti_run_portions
#undef gckpti_compare
#undef gckpti_kinds_read
#undef gckpti_check_finite
#undef gckpti_check_update
#undef gckpti_check_fed
#undef gckpti_run_unpack
#undef gckpti_call_stored

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
#ifdef GCKPT_NO_TEXT
#undef gckpti_error
#undef gckpti_fail
#undef gckpti_graph_error
#undef gckpti_tell_block
#undef gckpt_fail
#endif
#endif /* GRADCKPT_IMPLEMENTATION */
