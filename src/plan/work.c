#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- work: of ops, by the cost model, and of copies; sums of it ---- */
/* The work of op t by the roofline model (Williams 2009): flops, or 10 x bytes moved when that is
 * more, + what an instruction costs however small it is (about 100 ns where a flop is 7 ps);
 * integers, so that a plan is the same on every machine. A backward does the forward's flops for
 * one or two of its inputs (as a matmul does), or what the op says; it moves what it reads, the
 * gradient that comes in and those that go out. */
GCKPTI_FN gckpt_cost gckpti_model_cost(const gckpti_planner *p, const gckpt_tensor *t,
                                       gckpt_call *call)
{
    uint64_t flops = t->op->flops ? t->op->flops(call) : (uint64_t)gckpti_elements(&t->shape);
    uint64_t out = gckpti_value_bytes(p, t), forward = out, backward = out;
    unsigned needs = gckpti_needs(p, t), gradients = 0;
    float wanted;
    for (int k = 0; k < t->inputs; k++) {
        forward += gckpti_value_bytes(p, t->in[k]);
        backward += needs & GCKPT_IN(k) ? gckpti_value_bytes(p, t->in[k]) : 0;
        if (!p->active[t->in[k]->base->id])
            continue;
        gradients++;
        call->in[k].grad = &wanted;
        backward += t->op->flags & GCKPT_PASSES(k) ? 0 : gckpti_gradient_bytes(p, t->in[k]);
    }
    backward += needs & GCKPT_OUT ? out : 0;
    gckpt_cost cost = { flops > 10 * forward ? flops : 10 * forward, 0 };
    if (t->op->flags & GCKPTI_LATE && t->attribute_bytes)
        cost.forward = 0; /* the backward does it all */
    cost.forward += GCKPTI_INSTRUCTION_WORK;
    if (gradients == 0)
        return cost;
    flops =
        t->op->flops_backward ? t->op->flops_backward(call) : gckpti_gradients_flops(call, flops);
    cost.backward = (flops > 10 * backward ? flops : 10 * backward) + GCKPTI_INSTRUCTION_WORK;
    return cost;
}

GCKPTI_FN uint64_t gckpti_add_work(uint64_t sum, uint64_t more)
{
    return more < UINT64_MAX - sum ? sum + more : UINT64_MAX;
}

GCKPTI_FN int gckpti_parts(int value_end, int aux_end)
{
    return (value_end < 0 ? 0 : GCKPTI_VALUE) | (aux_end < 0 ? 0 : GCKPTI_AUX);
}

GCKPTI_FN int64_t gckpti_parts_bytes(const gckpti_unit *u, int parts)
{
    return (parts & GCKPTI_VALUE ? u->out : 0) + (parts & GCKPTI_AUX ? u->aux : 0);
}

GCKPTI_FN uint64_t gckpti_copy_work(uint64_t offload_work, int64_t bytes)
{
    uint64_t most = UINT64_MAX / 4, n = (uint64_t)bytes, whole = n >> 20, rest = n & 0xfffff;
    if (n && (offload_work > most >> 20 || (whole && offload_work > most / whole)))
        return most;
    return whole * offload_work + ((rest * offload_work + 0xfffff) >> 20);
}

GCKPTI_FN uint64_t gckpti_parts_work(const gckpti_planner *p, int unit, int parts)
{
    return gckpti_copy_work(p->desc->offload_work, gckpti_parts_bytes(&p->unit[unit], parts));
}

GCKPTI_FN gckpt_result gckpti_check_work(const gckpti_planner *p)
{
    uint64_t most = UINT64_MAX / 2 / ((uint64_t)p->n + 1), sum = 0;
    most = most < UINT64_C(1) << 53 ? most : UINT64_C(1) << 53;
    for (int i = 0; i < p->n; i++) {
        sum = gckpti_add_work(sum, p->cost[i].forward); /* 0 for what is no op */
        sum = gckpti_add_work(sum, p->cost[i].backward);
        if (p->of[i] >= 0 && p->unit[p->of[i]].offloads)
            sum =
                gckpti_add_work(sum, 2 * gckpti_parts_work(p, p->of[i], GCKPTI_VALUE | GCKPTI_AUX));
    }
    return sum <= most ? GCKPT_OK
                       : gckpti_error(p->g, GCKPT_E_ARG,
                                      "plan: the work of all ops adds up to more than %u; %s", most,
                                      p->desc->costs || p->offloads ? "give costs in a larger unit"
                                                                    : "use fewer rows");
}
