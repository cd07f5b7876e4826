#include "cpu/internal.h"

#if GCKPTI_HAS_FAST
/* ---- a set of kernels for each instruction set: kernels/, at the end of this file ---- */
#ifndef GCKPTI_SEPARATE_TU
#ifndef GRADCKPT_FILE
#define GRADCKPT_FILE "gradckpt.h"
#endif
#ifdef __has_include
#if !__has_include(GRADCKPT_FILE)
#error "gradckpt.h includes itself: define GRADCKPT_FILE as the name it has here, or GCKPT_NO_FAST"
#endif
#endif
#if GCKPTI_FMA
#define GCKPTI_ISA 0
#include GRADCKPT_FILE
#endif
#ifdef __aarch64__
#define GCKPTI_ISA 1
#include GRADCKPT_FILE
#endif
#if GCKPTI_X86
#define GCKPTI_ISA 2
#include GRADCKPT_FILE
#endif
#if GCKPTI_AVX512
#define GCKPTI_ISA 3
#include GRADCKPT_FILE
#endif
#endif

GCKPTI_COLD_BEGIN

/* Compares a product larger than a tile in rows, columns and terms (b transposed) with chains. */
static int gckpti_products_match(const gckpti_kernels *kernels)
{
    enum { M = 9, N = 49, K = 17 };
    float a[M * K], b[N * K], c[M * N], pack[16 * (GCKPTI_PANEL + GCKPTI_STRIP)];
    int same = 1;
    for (int i = 0; i < N * K; i++) {
        b[i] = (float)(i * 29 % 31 - 15) / 9.0f;
        a[i % (M * K)] = (float)(i * 37 % 23 - 11) / 7.0f;
    }
    gckpti_product t =
        gckpti_product_of(M, N, K, gckpti_matrix(a, K, 1), gckpti_matrix(b, K, 1), c);
    const gckpti_c_block all = { 0, M, 0, N, 0 };
    t.initial = b;
    kernels->product_block(&t, &all, pack, sizeof pack / sizeof *pack);
    for (int i = 0; i < M; i++) {
        float row[N];
        memcpy(row, b, sizeof row);
        gckpti_chains(a + i * K, 1, b, K, N, K, row);
        same = same && !memcmp(row, c + i * N, sizeof row);
    }
    return same;
}

/* Returns 0 if compiler options (-freciprocal-math) changed the arithmetic of the kernels. */
GCKPTI_FN int gckpti_kernels_match(const gckpti_kernels *kernels)
{
    enum { N = 45 };
    float x[N], fast[3][N], plain[3][N];
    gckpt_call c;
    memset(&c, 0, sizeof c);
    c.shape = c.in[0].shape = gckpti_shape(2, 1, N, 0, 0);
    c.in[0].data = x;
    for (int i = 0; i < N; i++)
        x[i] = (float)(i * 37 % 23 - 11) / 7.0f;
    c.out = plain[0];
    gckpti_softmax_forward(&c);
    c.out = plain[1];
    gckpti_gelu_forward(&c);
    c.kernels = kernels, c.out = fast[0];
    gckpti_softmax_forward(&c);
    c.out = fast[1];
    gckpti_gelu_forward(&c);
    memcpy(fast[2], x, sizeof x);
    kernels->divide(fast[2], 3.0f, N);
    for (int i = 0; i < N; i++)
        plain[2][i] = x[i] / 3.0f;
    return !memcmp(fast, plain, sizeof fast) && gckpti_products_match(kernels) &&
           gckpti_mixed_matches(kernels);
}

/* Returns the kernels of an instruction set, or NULL (plain) if this processor lacks it. */
GCKPTI_FN const gckpti_kernels *gckpti_kernels_for(gckpt_isa isa)
{
    const gckpti_kernels *kernels = NULL;
    (void)isa; /* unused if there are no kernels */
#if GCKPTI_FMA
    if (isa == GCKPT_ISA_C)
        kernels = &gckpti_kernels_any;
#endif
#ifdef __aarch64__
    if (isa == GCKPT_ISA_NEON)
        kernels = &gckpti_kernels_neon;
#elif GCKPTI_X86
    if (isa == GCKPT_ISA_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        kernels = &gckpti_kernels_avx2;
#endif
#if GCKPTI_AVX512
    if (isa >= GCKPT_ISA_AVX512 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
        kernels = isa == GCKPT_ISA_AVX512 ? &gckpti_kernels_avx512 : gckpti_wider_kernels(isa);
#endif
    return kernels && gckpti_kernels_match(kernels) ? kernels : NULL;
}

GCKPTI_COLD_END
#endif
