#include "bf16/cpu.h"
#include "cpu/internal.h"

#ifndef GCKPT_NO_BF16
/* ---- conversions to bf16 and back, between the ops of bf16 plans ---- */
/* Converts elements first..end-1; `word` has 16 random bits for each of 8 elements (stochastic). */
static void gckpti_convert_each(const gckpti_convert_state *s, int64_t first, int64_t end)
{
    const gckpt_conversion *c = s->c;
    const int stochastic = s->call->precision == GCKPT_BF16_STOCHASTIC;
    uint32_t word[4] = { 0, 0, 0, 0 };
    for (int64_t i = first; i < end; i++) {
        const uint64_t at = s->offset + (uint64_t)i;
        if (c->kind == GCKPT_WIDEN_ADD) {
            c->x[i] = gckpti_from_bf16(c->from[i]) + c->x[i];
            continue;
        }
        if (stochastic && (i == first || at % 8 == 0))
            gckpti_philox(s->random.key, at / 8, s->random.stream, s->random.step, word);
        const uint32_t random_bits = word[at / 2 % 4] >> 16 * (at % 2) & 0xffffu;
        const uint16_t half = stochastic ? gckpti_bits_to_bf16(gckpti_bits(c->x[i]), random_bits)
                                         : gckpti_to_bf16(c->x[i]);
        if (c->kind == GCKPT_NARROW)
            c->to[i] = half;
        else
            c->x[i] = gckpti_from_bf16(half);
    }
}

static void gckpti_convert_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_convert_state *s = (const gckpti_convert_state *)context;
    const gckpt_conversion *c = s->c;
    int64_t at = item * GCKPTI_GRAIN_SIZE, n = gckpti_min(c->n - at, GCKPTI_GRAIN_SIZE);
    (void)worker;
    if (c->kind == GCKPT_WIDEN)
        gckpti_widen_row(s->call, c->from + at, c->x + at, n);
    else if (c->kind >= GCKPT_NARROW && s->call->precision == GCKPT_BF16_STOCHASTIC)
        GCKPTI_KERNEL_OF(s->call, mixed->round_stochastic, gckpti_convert_each)(s, at, at + n);
    else if (c->kind == GCKPT_NARROW)
        gckpti_narrow_row(s->call, c->x + at, c->to + at, n);
    else
        gckpti_convert_each(s, at, at + n);
}

GCKPTI_FN void gckpti_cpu_convert(const gckpt_call *call, const gckpt_conversion *c)
{
    gckpti_convert_state s = { call, c, { call->seed, c->stream, (uint32_t)call->step }, 0 };
    s.offset = call->first_row ? (uint64_t)call->first_row * (uint64_t)(c->n / call->rows) : 0;
    gckpt_parallel(call, GCKPTI_GRAINS(c->n), gckpti_convert_item, &s);
}
#endif
