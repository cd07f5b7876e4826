#include "bf16/cpu.h"
#include "cpu/internal.h"

#ifndef GCKPT_NO_BF16
/* ---- conversions to bf16 and back, between the ops of bf16 plans ---- */
typedef struct {
    const gckpt_call *call;
    const gckpt_conversion *c;
} gckpti_convert_state;

static void gckpti_convert_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_convert_state *s = (const gckpti_convert_state *)context;
    const gckpt_conversion *c = s->c;
    const int64_t at = item * GCKPTI_GRAIN_SIZE, n = gckpti_min(c->n - at, GCKPTI_GRAIN_SIZE);
    (void)worker;
    if (c->kind == GCKPT_WIDEN)
        gckpti_widen_row(s->call, c->from + at, c->x + at, n);
    else if (c->kind == GCKPT_NARROW)
        gckpti_narrow_row(s->call, c->x + at, c->to + at, n);
    else
        for (int64_t i = at; i < at + n; i++)
            c->x[i] = c->kind == GCKPT_WIDEN_ADD ? gckpti_from_bf16(c->from[i]) + c->x[i]
                                                 : gckpti_from_bf16(gckpti_to_bf16(c->x[i]));
}

GCKPTI_FN void gckpti_cpu_convert(const gckpt_call *call, const gckpt_conversion *c)
{
    gckpti_convert_state s = { call, c };
    gckpt_parallel(call, GCKPTI_GRAINS(c->n), gckpti_convert_item, &s);
}
#endif
