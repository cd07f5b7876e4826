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
#if GCKPTI_X86
#define GCKPTI_ISA 2
#include GRADCKPT_FILE
#endif
#if GCKPTI_AVX512
#define GCKPTI_ISA 3
#include GRADCKPT_FILE
#endif
#endif

/* Returns 0 if compiler options (-freciprocal-math) changed the arithmetic of the kernels. The
 * product, with w transposed, is larger than a tile in rows and columns. */
GCKPTI_FN int gckpti_kernels_match(const gckpti_kernels *kernels)
{
    enum { ROWS = 9, OUTPUTS = 49, INPUTS = 45 };
    void (*const forward[])(const gckpt_call *) = { gckpti_softmax_forward, gckpti_gelu_forward,
                                                    gckpti_linear_forward };
    const int transposed = 1, columns[] = { INPUTS, INPUTS, OUTPUTS };
    float x[OUTPUTS * INPUTS], y[2][ROWS * OUTPUTS];
    gckpt_call c;
    memset(&c, 0, sizeof c);
    c.in[0].shape = gckpti_shape(2, ROWS, INPUTS, 0, 0);
    c.in[1].shape = gckpti_shape(2, OUTPUTS, INPUTS, 0, 0);
    c.in[0].data = c.in[1].data = c.in[2].data = x; /* input, weight and bias */
    c.inputs = 3, c.threads = 1, c.attributes = &transposed;
    for (int i = 0; i < OUTPUTS * INPUTS; i++)
        x[i] = (float)(i * 37 % 23 - 11) / 7.0f;
    for (int i = 0; i < ROWS * OUTPUTS; i++)
        y[0][i] = x[i] / 3.0f;
    memcpy(y[1], x, sizeof y[1]);
    kernels->divide(y[1], 3.0f, ROWS * OUTPUTS);
    int same = !memcmp(y[0], y[1], sizeof y[0]);
    for (int op = 0; op < 3; op++) {
        c.shape = gckpti_shape(2, ROWS, columns[op], 0, 0);
        c.kernels = NULL, c.out = y[0];
        forward[op](&c);
        c.kernels = kernels, c.out = y[1];
        forward[op](&c);
        same = same && !memcmp(y[0], y[1], (size_t)(ROWS * columns[op]) * sizeof(float));
    }
    return same && gckpti_mixed_matches(kernels);
}

/* Returns the kernels of an instruction set, or NULL (plain) if this processor lacks it. */
GCKPTI_FN const gckpti_kernels *gckpti_kernels_for(gckpt_isa isa)
{
    const gckpti_kernels *kernels = NULL;
    (void)isa; /* unused if there are no kernels */
#ifdef __aarch64__
    isa = isa == GCKPT_ISA_NEON ? GCKPT_ISA_C : isa;
#endif
#if GCKPTI_FMA
    if (isa == GCKPT_ISA_C)
        kernels = &gckpti_kernels_any;
#endif
#if GCKPTI_X86
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
#endif
