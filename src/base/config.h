#pragma once
#include "base/separate_tu.h"

#include <float.h>
#include <stdarg.h>
#include <string.h>
#ifndef GCKPT_NO_STDIO
#include <errno.h>
#include <stdio.h>
#if defined(__unix__) || defined(__APPLE__)
#define GCKPTI_POSIX 1
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#else
#define GCKPTI_POSIX 0
#endif
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#include <sys/stat.h>
#endif
#endif
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__GNUC__) && (defined(_OPENMP) || defined(GCKPTI_TEAMS))
#include <sched.h>
#ifdef _WIN32
#include <unistd.h>
#else
#include <sys/select.h>
#endif
#endif

#if defined(GCKPT_REALLOC) != defined(GCKPT_FREE)
#error "gradckpt.h: define both GCKPT_REALLOC(p,n) and GCKPT_FREE(p), or neither"
#endif
#if !defined(GCKPT_REALLOC) && !defined(GCKPT_NO_HEAP)
#include <stdlib.h>
#define GCKPT_REALLOC(p, n) realloc(p, n)
#define GCKPT_FREE(p)       free(p)
#if defined(__linux__) && defined(__GNUC__)
#include <sys/mman.h>
#define GCKPTI_HUGE_PAGES 1
#ifndef __cplusplus /* hidden by -std=c99 and _POSIX_C_SOURCE, but they exist */
extern int madvise(void *start, size_t size, int advice);
extern int posix_memalign(void **start, size_t alignment, size_t size);
#endif
#endif
#endif
#ifndef GCKPTI_HUGE_PAGES
#define GCKPTI_HUGE_PAGES 0
#endif
#ifndef GCKPT_ASSERT
#define GCKPT_ASSERT(x) ((void)0)
#endif

/* Arithmetic must be exactly as written (manual, 5). For gcc, these pragmas override the command
 * line. clang with -ffast-math and x87 registers cannot be made exact: they are refused. */
#if defined(__FAST_MATH__) && (defined(__clang__) || !defined(__GNUC__))
#error "gradckpt.h: -ffast-math breaks the numeric contract; compile this file without it"
#endif
#if defined(_M_FP_FAST)
#error "gradckpt.h: /fp:fast breaks the numeric contract; compile this file with /fp:precise"
#endif
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16 /* _Float16 too */   \
    && !defined(__FAST_MATH__)
#error "gradckpt.h: FLT_EVAL_METHOD must be 0; on 32-bit x86 use -msse2 -mfpmath=sse"
#error "gradckpt.h: on s390x use -fexcess-precision=fast or -std=gnu99"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#if __clang_major__ >= 12
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wignored-pragmas" /* unknown to clang for ARM, RISC-V, wasm */
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma clang diagnostic pop
#endif
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "fp-contract=off", "no-math-errno")
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2) /* MVE vectors flush subnormals to 0 */
#pragma GCC optimize("no-tree-vectorize")
#endif
#elif defined(_MSC_VER)
#pragma fp_contract(off)
#endif

/* Code from GCKPTI_COLD_BEGIN to GCKPTI_COLD_END runs rarely, not in steps. An optimising gcc
 * compiles it for size, which saves 7 % of .text. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) &&                           \
    !defined(GCKPTI_SEPARATE_TU)
#define GCKPTI_COLD_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"Os\")")
#define GCKPTI_COLD_END   _Pragma("GCC pop_options")
#else
#define GCKPTI_COLD_BEGIN
#define GCKPTI_COLD_END
#endif

/* Vector instructions come after the pragmas, which hold for their inline functions too. HAS_FAST:
 * the vector kernels exist here. X86: those for AVX2 too (gcc's bug 54412 on Windows). AVX512: and
 * those. SQRT: square roots by SSE2 (1), NEON (2), a device's FPU (4: of floats), integers (0). */
#if defined(GCKPT_NO_FAST) || defined(GCKPT_FORCE_SOFT_FMA) || !defined(__GNUC__) ||               \
    UINTPTR_MAX < UINT64_MAX
#define GCKPTI_HAS_FAST 0
#define GCKPTI_ALIGNED
#else
#define GCKPTI_HAS_FAST 1
#define GCKPTI_ALIGNED  __attribute__((aligned(64))) /* no vector in it crosses a line of L1 */
#endif
#if GCKPTI_HAS_FAST && defined(__x86_64__) && (!defined(_WIN32) || defined(__clang__)) &&          \
    !defined(GCKPT_NO_AVX2)
#define GCKPTI_X86 1
#ifndef GCKPTI_SEPARATE_TU
#include <immintrin.h> /* compiled separately, kernels/all.c includes it, since that is slow */
#endif
#else
#define GCKPTI_X86 0
#endif
#if GCKPTI_X86 && !defined(GCKPT_NO_AVX512)
#define GCKPTI_AVX512 1
#else
#define GCKPTI_AVX512 0
#endif
#ifdef __OPTIMIZE__ /* tested here, since pragmas of kernels/vectors change it for gcc */
#define GCKPTI_OPTIMISED 1
#else
#define GCKPTI_OPTIMISED 0
#endif
#if defined(GCKPTI_SQRT)
#elif !defined(GCKPT_FORCE_SOFT_FMA) && (defined(__SSE2__) || defined(_M_X64))
#define GCKPTI_SQRT 1
#include <emmintrin.h>
#elif !defined(GCKPT_FORCE_SOFT_FMA) && defined(__aarch64__)
#define GCKPTI_SQRT 2
#include <arm_neon.h>
#elif !defined(GCKPT_FORCE_SOFT_FMA) && defined(__GNUC__) &&                                       \
    (defined(__riscv_fsqrt) || (defined(__ARM_FP) && (__ARM_FP & 4)))
#define GCKPTI_SQRT 4
#else
#define GCKPTI_SQRT 0
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Marks functions that gradckpt_cuda.cu also compiles (there GCKPTI_FMA and GCKPTI_SQRT are 3). */
#ifndef GCKPTI_DEVICE
#define GCKPTI_DEVICE
#endif
/* GCKPTI_FN, GCKPTI_DATA: for functions and data declared in a layer header or an internal.h. */
#if defined(__GNUC__) && !defined(GCKPTI_FULL_BUILD) /* partial builds do not use all */
#define GCKPTI_UNUSED __attribute__((unused))
#else /* tests/check_all.sh: warns if the full build has unused ones */
#define GCKPTI_UNUSED
#endif
#ifndef GCKPTI_SEPARATE_TU
#define GCKPTI_FN   GCKPTI_UNUSED static
#define GCKPTI_DATA GCKPTI_UNUSED static
#endif
#define GCKPTI_INLINE    GCKPTI_DEVICE static inline
#define GCKPTI_ARENA_MAX (PTRDIFF_MAX / 8) /* most bytes of an arena */
#define GCKPTI_NO_OFFSET SIZE_MAX
/* GCKPT_SMALL implies, in addition to omitted features (api.h): small numbers and stack frames
 * (IS_SMALL); plans that are constants of the program, and no planner (RUNS_BUILT); only the plain
 * backend on one thread, no custom optimisers and no copies of feeds (RUNS_BACKENDS). These
 * conditions are constants, so that the compiler removes the code that depends on them. */
#ifdef GCKPT_SMALL
#define GCKPTI_IS_SMALL 1
#pragma push_macro("int64_t")
#pragma push_macro("INT64_MAX")
#undef INT64_MAX
#define int64_t   int32_t
#define INT64_MAX INT32_MAX
#else
#define GCKPTI_IS_SMALL 0
#endif
/* Optional parts. For each part X, the constants GCKPTI_WITH_X (for headers) and GCKPTI_RUNS_X are
 * 1 or 0; layer headers have stubs for parts that are left out. GCKPTI_PART: a macro that is
 * defined (GCKPT_NO_X) stringifies to "1" or "", not to its name. */
#define GCKPTI_PARTS(X)                                                                            \
    X(TRAINING) X(RANKS) X(FETCH) X(DEBUG) X(CACHES) X(LOSSES) X(BF16) X(TILES) X(QUANT)           \
    X(OFFLOAD) X(DEVICES) X(LINEAR_LOSS) X(FAST) X(TEXT) X(SEARCH) X(NOTES) X(SCHEDULES)           \
    X(ACTIVATIONS)
#define GCKPTI_STRINGIFY(text)  #text
#define GCKPTI_STRING_OF(macro) GCKPTI_STRINGIFY(macro)
#define GCKPTI_PART(no)                                                                            \
    GCKPTI_WITH_##no = sizeof GCKPTI_STRING_OF(GCKPT_NO_##no) == sizeof "GCKPT_NO_" #no,           \
    GCKPTI_RUNS_##no = GCKPTI_WITH_##no,
enum { GCKPTI_PARTS(GCKPTI_PART) GCKPTI_RUNS_BUILT = !GCKPTI_IS_SMALL }; /* graphs, plans */
enum { GCKPTI_RUNS_BACKENDS = !GCKPTI_IS_SMALL };
enum { GCKPTI_TEXT_BYTES = GCKPTI_WITH_TEXT ? 256 : 1 }; /* bytes of an error text */
#if GCKPTI_IS_SMALL && defined(__GNUC__)
#define GCKPTI_OWN_FRAME __attribute__((noinline)) /* its frame exists only while it runs */
#else
#define GCKPTI_OWN_FRAME
#endif
/* GCKPTI_TEAMS: one OpenMP region per execution, whose threads run the loops of all instructions.
 * Tests set it to 1 and use their own threads. */
#if GCKPTI_HAS_FAST && (defined(_OPENMP) || defined(GCKPTI_TEAMS))
#undef GCKPTI_TEAMS
#define GCKPTI_TEAMS 1
#else
#undef GCKPTI_TEAMS
#define GCKPTI_TEAMS 0
#endif
