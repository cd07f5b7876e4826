#pragma once
#include "bf16/cpu.h"

#ifndef GCKPT_NO_BF16
GCKPTI_FN void gckpti_cpu_convert(const gckpt_call *call, const gckpt_conversion *c);
#if GCKPTI_HAS_FAST
GCKPTI_FN int gckpti_mixed_matches(const gckpti_kernels *kernels);
#if GCKPTI_AMX
GCKPTI_FN int gckpti_cpu_has_amx(void);
#ifndef GCKPTI_CPU_HAS_AMX /* tests define it */
#define GCKPTI_CPU_HAS_AMX() gckpti_cpu_has_amx()
#endif
#ifdef GCKPTI_SEPARATE_TU
extern GCKPTI_DATA const gckpti_kernels gckpti_kernels_amx;
#endif
/* Returns the kernels of an instruction set that extends AVX-512, if this processor has it. */
#define gckpti_wider_kernels(isa)                                                                  \
    ((isa) == GCKPT_ISA_AMX && __builtin_cpu_supports("avx512bf16") && GCKPTI_CPU_HAS_AMX()        \
         ? &gckpti_kernels_amx                                                                     \
         : NULL)
#endif
#endif
#else
#define gckpti_mixed_matches(kernels) (!(kernels)->mixed)
#endif
#if !GCKPTI_AMX
#define gckpti_wider_kernels(isa) NULL
#endif
