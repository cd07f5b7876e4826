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

static void gckpti_fast_convert_item(void *context, int64_t item)
{
    const gckpti_converting *s = (const gckpti_converting *)context;
    const gckpti_mixed_kernels *kernels = gckpti_kernels_of(s->call)->mixed;
    const gckpt_conversion *c = s->c;
    int64_t at = item * GCKPTI_JOB, n = gckpti_min(c->n - at, GCKPTI_JOB);
    if (c->kind == GCKPT_WIDEN)
        kernels->widen(c->from + at, c->x + at, n);
    else
        kernels->narrow(c->x + at, c->to + at, n);
}

static void gckpti_fast_convert(const gckpt_call *call, const gckpt_conversion *c)
{
    gckpti_converting s = { call, c };
    int nearest = c->kind == GCKPT_NARROW && call->precision != GCKPT_BF16_STOCHASTIC;
    if (c->kind == GCKPT_WIDEN || nearest)
        gckpti_cpu_jobs(call, c->n, gckpti_fast_convert_item, &s);
    else
        gckpti_cpu_convert(call, c);
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
    gckpti_fast_find, gckpti_cpu_fill, gckpti_fast_add, gckpti_fast_convert, gckpti_fast_update,
    gckpti_cpu_finish, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL };
/* clang-format on */
#endif
