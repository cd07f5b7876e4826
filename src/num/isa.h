/* ---- vector types and operations of formulas and kernels ----
 * Read with GCKPTI_ISA -1 and again for each instruction set, when the header includes itself
 * (cpu/kernels.c). V(name) is gckpti_<name> with the suffix of the instruction set. FLOATS is a
 * vector of W floats (one float if GCKPTI_ISA is -1), INTS of W uint32_t; the compiler's operators
 * + - * / & | ^ << >> work on vectors, and with a scalar for all lanes. */
#pragma push_macro("V")
#pragma push_macro("W")
#pragma push_macro("FLOATS")
#pragma push_macro("INTS")
#undef V
#undef W
#undef FLOATS
#undef INTS
#undef GCKPTI_TARGET
#undef GCKPTI_UNROLL
#undef GCKPTI_MASK_OF
#undef GCKPTI_LANE
#undef GCKPTI_KERNEL
#undef GCKPTI_ALWAYS
#undef GCKPTI_INLINED
#undef GCKPTI_ISA_NOINLINE
#undef GCKPTI_DOUBLES
#if GCKPTI_ISA < 0
#if GCKPTI_ISA == -2 /* a warp of CUDA: a thread has one lane of a vector (cuda/common/warp.cu) */
#define W             32
#define V(name)       gckpti_##name##_warp
#define GCKPTI_KERNEL GCKPTI_INLINE
#else
#define W             1
#define V(name)       gckpti_##name
#define GCKPTI_KERNEL GCKPTI_UNUSED static
#endif
#define GCKPTI_TARGET
#define GCKPTI_UNROLL
#define FLOATS                    float
#define INTS                      uint32_t
#define GCKPTI_MASK_OF(condition) (0u - (uint32_t)(condition))
#define GCKPTI_LANE(x, i)         ((void)(i), (x))
#define GCKPTI_DOUBLES            double
#define GCKPTI_ALWAYS             GCKPTI_INLINE
#define GCKPTI_INLINED            GCKPTI_INLINE
#define GCKPTI_ISA_NOINLINE       GCKPTI_NOINLINE
#else
/* g++ (bug 105593) warns of undefined lanes in its own headers, gcc -O1 of vectors set by lanes. */
#if (defined(__cplusplus) || !GCKPTI_OPTIMISED) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if GCKPTI_ISA == 3 /* AVX-512 */
#define W             16
#define V(name)       gckpti_##name##_avx512
#define GCKPTI_TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define FLOATS        __m512
#define GCKPTI_MM(of) _mm512_##of
#elif GCKPTI_ISA == 2
#define W             8
#define V(name)       gckpti_##name##_avx2
#define GCKPTI_TARGET __attribute__((target("avx2,fma")))
#define FLOATS        __m256
#define GCKPTI_MM(of) _mm256_##of
#else
#define W       4
#define V(name) gckpti_##name##_any
#define GCKPTI_TARGET
#define FLOATS gckpti_floats4
typedef float gckpti_floats4 __attribute__((vector_size(16)));
#endif
typedef uint32_t V(ints) __attribute__((vector_size(4 * W)));
typedef double V(doubles) __attribute__((vector_size(8 * W)));
#define INTS                      V(ints)
#define GCKPTI_MASK_OF(condition) ((INTS)(condition)) /* all bits of the lanes where it holds */
#define GCKPTI_LANE(x, i)         ((x)[i])
#define GCKPTI_DOUBLES            V(doubles)
/* ALWAYS functions are inlined; INLINED ones only in optimised builds. At -O0, gcc still inlines
 * ALWAYS and compiles the hot code, up to kernels/hot_end.h, at -O1; clang cannot, and
 * inlines none. Inlining all without optimising needs 8 (gcc) or 16 MB. FORMULAs are called. */
#if GCKPTI_OPTIMISED || !defined(__clang__)
#define GCKPTI_ALWAYS static inline __attribute__((always_inline)) GCKPTI_TARGET
#else
#define GCKPTI_ALWAYS static inline GCKPTI_TARGET
#endif
#if GCKPTI_OPTIMISED
#define GCKPTI_INLINED GCKPTI_ALWAYS
#else
#define GCKPTI_INLINED static inline GCKPTI_TARGET
#endif
/* Precedes a loop over an array of vectors, so that they stay in registers. */
#define GCKPTI_UNROLL       _Pragma("GCC unroll 8")
#define GCKPTI_ISA_NOINLINE GCKPTI_UNUSED static __attribute__((noinline)) GCKPTI_TARGET
#define GCKPTI_KERNEL       static GCKPTI_TARGET
#if !GCKPTI_OPTIMISED && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O1")
#endif
#endif
