/* once.h - what the library asks of its build and the processor has the same answer each time: whether
 * numbers are the contract's, for each store (once.c), and whether the fast kernels give the bits of the
 * plain ones, for each executor. Here both are asked once a process, which saves readers of small files a
 * seventh of their time, those that make executors a third. fuzz.sh links a target that includes this
 * so that the function at the end is called for the library's own. */
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
