#include "cpu/own.h"

#ifndef GCKPT_NO_BF16
/* ---- to bf16 and back, between the ops of bf16 plans ---- */

typedef struct {
    const gckpt_call *call;
    const gckpt_conversion *c;
} gckpti_converting;

/* By chance: 16 of Philox's bits for each element, numbered in the whole batch. `word` holds those
 * of 8 elements, drawn when `fresh` or when they begin. */
static uint16_t gckpti_round_by_chance(const gckpti_converting *s, int64_t i, int fresh,
                                       uint32_t word[4])
{
    const gckpt_call *call = s->call;
    uint64_t at = (uint64_t)i;
    at += call->row ? (uint64_t)call->row * (uint64_t)(s->c->n / call->rows) : 0;
    if (fresh || at % 8 == 0)
        gckpti_philox(call->seed, at / 8, s->c->stream, (uint32_t)call->step, word);
    return gckpti_halve(gckpti_bits(s->c->x[i]), word[at / 2 % 4] >> 16 * (at % 2) & 0xffffu);
}

/* Elements first..end-1, one by one. */
static void gckpti_convert_each(const gckpti_converting *s, int64_t first, int64_t end)
{
    const gckpt_conversion *c = s->c;
    int by_chance = s->call->precision == GCKPT_BF16_STOCHASTIC;
    uint32_t word[4] = { 0, 0, 0, 0 };
    for (int64_t i = first; i < end; i++) {
        if (c->kind == GCKPT_WIDEN || c->kind == GCKPT_WIDEN_ADD) {
            float wide = gckpti_from_bf16(c->from[i]);
            c->x[i] = c->kind == GCKPT_WIDEN ? wide : wide + c->x[i];
            continue;
        }
        uint16_t half =
            by_chance ? gckpti_round_by_chance(s, i, i == first, word) : gckpti_to_bf16(c->x[i]);
        if (c->kind == GCKPT_NARROW)
            c->to[i] = half;
        else
            c->x[i] = gckpti_from_bf16(half);
    }
}

static void gckpti_convert_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_converting *s = (const gckpti_converting *)context;
    const gckpt_conversion *c = s->c;
    int64_t at = item * GCKPTI_JOB, n = gckpti_min(c->n - at, GCKPTI_JOB);
    (void)worker;
#if GCKPTI_HAS_FAST
    int by_chance = s->call->precision == GCKPT_BF16_STOCHASTIC;
    if (s->call->kernels && c->kind == GCKPT_WIDEN) {
        gckpti_kernels_of(s->call)->mixed->widen(c->from + at, c->x + at, n);
        return;
    }
    if (s->call->kernels && c->kind == GCKPT_NARROW && !by_chance) {
        gckpti_kernels_of(s->call)->mixed->narrow(c->x + at, c->to + at, n);
        return;
    }
#endif
    gckpti_convert_each(s, at, at + n);
}

GCKPTI_FN void gckpti_cpu_convert(const gckpt_call *call, const gckpt_conversion *c)
{
    gckpti_converting s = { call, c };
    gckpt_parallel(call, GCKPTI_JOBS(c->n), gckpti_convert_item, &s);
}
#endif
