#include "cpu/own.h"

#if GCKPTI_HAS_FAST
/* ---- the fast backend: the plain one with these kernels ---- */
static gckpt_kernel gckpti_fast_find(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context;
    return kind == GCKPT_FORWARD ? op->forward_fast : op->backward_fast;
}

typedef struct {
    void (*add)(float *to, const float *from, int64_t n);
    float *to;
    const float *from;
    int64_t n;
} gckpti_adding;

static void gckpti_fast_add_item(void *context, int64_t i)
{
    const gckpti_adding *s = (const gckpti_adding *)context;
    int64_t at = i * GCKPTI_JOB;
    s->add(s->to + at, s->from + at, gckpti_min(s->n - at, GCKPTI_JOB));
}

GCKPTI_FN void gckpti_fast_add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    gckpti_adding s = { gckpti_kernels_of(call)->add, to, from, n };
    gckpti_cpu_jobs(call, n, gckpti_fast_add_item, &s);
}

static void gckpti_fast_update(const gckpt_call *call, const gckpt_pass *pass)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    gckpti_passing s = { pass, k->add, k->update, 0 };
    gckpti_cpu_pass(call, &s);
}

/* clang-format off */
GCKPTI_DATA const gckpt_backend gckpti_backend_fast = {
    "fast", NULL, 0, 0, NULL, NULL, gckpti_cpu_copy, gckpti_cpu_copy, gckpti_cpu_copy, NULL,
    gckpti_fast_find, gckpti_cpu_fill, gckpti_fast_add, GCKPTI_IF_BF16(gckpti_fast_convert),
    gckpti_fast_update, gckpti_cpu_finish, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL };
/* clang-format on */
#endif
