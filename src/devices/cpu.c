#ifndef GCKPT_NO_DEVICES
#include "devices/devices.h"
#include "cpu/internal.h"

/* ---- the CPU as a backend ---- */
/* clang-format off */
#define GCKPTI_CPU_BACKEND(name, writes_back, find)                                                \
    static const gckpt_backend gckpti_backend_##name = {                                      \
        #name, NULL, 0, writes_back, NULL, NULL, gckpti_cpu_copy, gckpti_cpu_copy,                 \
        gckpti_cpu_copy, NULL, find, gckpti_cpu_fill, GCKPTI_IF_TRAINING(gckpti_cpu_add),          \
        GCKPTI_IF_MIXED(gckpti_cpu_convert), GCKPTI_IF_TRAINING(gckpti_cpu_update),                \
        gckpti_cpu_finish, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,                   \
        gckpti_cpu_dequantise, NULL, NULL }
/* clang-format on */
GCKPTI_CPU_BACKEND(plain, 1, NULL);
#if GCKPTI_HAS_FAST
static gckpt_kernel gckpti_fast_find(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context;
    if (kind == GCKPT_FORWARD)
        return op->forward_fast ? op->forward_fast : op->forward;
    return op->backward_fast ? op->backward_fast : op->backward;
}

GCKPTI_CPU_BACKEND(fast, 0, gckpti_fast_find);
#endif
#undef GCKPTI_CPU_BACKEND

GCKPTI_FN const gckpt_backend *gckpti_cpu_backend(gckpt_isa isa, const void **kernels)
{
    if (!gckpti_cpu_has(isa, kernels))
        return NULL;
#if GCKPTI_HAS_FAST
    if (*kernels)
        return &gckpti_backend_fast;
#endif
    return &gckpti_backend_plain;
}
#endif
