/* once.h - makes two slow checks run once in a process, since their results never change: the self-test of the build
 * and processor, which the library runs for each store (once.c), and the comparison of fast kernels with plain ones,
 * which the library runs for each executor. This saves a seventh of the time of targets that read small files, and a
 * third of the time of targets with executors. fuzz.sh links a target that includes this file in such a way that the
 * function at the end replaces the library's. */
#ifndef TESTS_FUZZ_ONCE_H
#define TESTS_FUZZ_ONCE_H
#include "gradckpt.h"

const void *__real_gckpti_kernels_for(gckpt_isa isa);
const void *__wrap_gckpti_kernels_for(gckpt_isa isa);

const void *__wrap_gckpti_kernels_for(gckpt_isa isa)
{
    static const void *kernels[GCKPT_ISA_COUNT];
    static int asked[GCKPT_ISA_COUNT];
    if ((unsigned)isa >= GCKPT_ISA_COUNT)
        return __real_gckpti_kernels_for(isa);
    if (!asked[isa]) {
        kernels[isa] = __real_gckpti_kernels_for(isa);
        asked[isa] = 1;
    }
    return kernels[isa];
}
#endif
