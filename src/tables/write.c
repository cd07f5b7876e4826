#include "tables/own.h"
#include "base/base.h"
#include "num/num.h"
#include "plan/plan.h"

#ifndef GCKPT_NO_TABLES
/* Numbers, and into the hash of all that were written. */
static void gckpti_put_numbers(gckpti_sink *k, uint64_t *check, const uint64_t *numbers, int n)
{
    for (int i = 0; i < n; i++) {
        *check = gckpti_fnv_number(*check, numbers[i]);
        gckpti_sink_number(k, numbers[i], 8);
    }
}

static void gckpti_put_number(gckpti_sink *k, uint64_t *check, uint64_t number)
{
    gckpti_put_numbers(k, check, &number, 1);
}

GCKPT_API gckpt_result gckpt_plan_write(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    uint64_t check = GCKPTI_FNV_START;
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    gckpt_instruction in;
    if (!plan || !plan->told || !write || plan->made_for > GCKPTI_FOR_PLAIN)
        return GCKPT_E_ARG;
    const uint64_t head[] = { GCKPTI_PLAN_MAGIC, (uint64_t)plan->format, (uint64_t)plan->contract,
                              plan->node_count };
    gckpti_put_numbers(&k, &check, head, 4);
    for (size_t i = 0; i < plan->node_count; i++) {
        const gckpt_cost *cost = &plan->told[i].cost;
        const uint64_t tensor[] = { plan->told[i].hash, cost->forward, cost->backward };
        gckpti_put_numbers(&k, &check, tensor, 3);
    }
#define GCKPTI_SAVE(type, name, most)                                                              \
    if ((uint64_t)(most) > 0)                                                                      \
        gckpti_put_number(&k, &check, (uint64_t)plan->name);
    GCKPTI_PLAN_NUMBERS(GCKPTI_SAVE)
#undef GCKPTI_SAVE
    for (size_t i = 0; i < plan->term_count; i++) {
        const gckpti_plan_term *t = &plan->terms[i];
        const uint64_t term[] = { (uint64_t)t->id, t->weight, t->regulariser != 0, t->built.forward,
                                  t->built.backward };
        gckpti_put_numbers(&k, &check, term, 5);
    }
    gckpti_put_number(&k, &check, plan->pick_count);
    for (size_t i = 0; i < plan->pick_count; i++) {
        const uint64_t pick[] = { (uint64_t)plan->picks[i].id, plan->picks[i].gradient != 0 };
        gckpti_put_numbers(&k, &check, pick, 2);
    }
    gckpti_put_number(&k, &check, plan->length);
    for (int x = 0; gckpt_plan_get(plan, x, &in) == GCKPT_OK; x++)
        gckpti_put_number(&k, &check, 8 * (uint64_t)in.id + (uint64_t)in.kind);
    gckpti_put_number(&k, &check, plan->param_count);
    for (size_t i = 0; i < plan->param_count; i++)
        gckpti_put_number(&k, &check,
                          2 * (uint64_t)plan->params[i].storage +
                              (uint64_t)gckpti_updates(&plan->params[i]));
    gckpti_put_number(&k, &check, plan->life_count);
    for (size_t i = 0; i < plan->life_count; i++)
        gckpti_put_number(&k, &check, plan->lives[i].offset);
    gckpti_put_number(&k, &check, check);
    return gckpti_sink_flush(&k);
}
#endif
