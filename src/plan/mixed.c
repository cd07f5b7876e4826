#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- bf16 plans (manual, 5l): values and gradients of what depends on the batch are rounded, and
 * kept narrow unless they are fetched, as floats ---- */

GCKPTI_FN gckpt_precision gckpti_op_precision(int rounding, int batchless,
                                              gckpt_precision precision)
{
    if (GCKPTI_LEAN)
        return GCKPT_FP32;
    if (precision == GCKPT_BF16_FAST && !(rounding & GCKPTI_FAST_OP))
        precision = GCKPT_BF16;
    return batchless ? GCKPT_FP32 : precision;
}

GCKPTI_FN size_t gckpti_bytes(const gckpti_planner *p, const gckpt_tensor *t, int narrow)
{
    return (size_t)gckpti_elements(&t->shape) *
           (p->rounding[t->base->id] & narrow ? 2 : sizeof(float));
}

GCKPTI_FN size_t gckpti_value_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_bytes(p, t, GCKPTI_NARROW_VALUE);
}

GCKPTI_FN size_t gckpti_gradient_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_bytes(p, t, GCKPTI_NARROW_GRADIENT);
}

GCKPTI_FN void gckpti_mark_rounding(gckpti_planner *p)
{
    for (int i = 0; i < p->n && p->desc->precision != GCKPT_FP32; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind == GCKPTI_OP && !t->batchless && !gckpti_is_loss(t))
            p->rounding[i] = GCKPTI_ROUNDED | GCKPTI_NARROW_VALUE | GCKPTI_NARROW_GRADIENT;
    }
    for (int i = 0; i < p->desc->fetches; i++) {
        const gckpt_pick *pick = &p->desc->fetch[i];
        int narrow = pick->gradient ? GCKPTI_NARROW_GRADIENT : GCKPTI_NARROW_VALUE;
        if (pick->tensor && pick->tensor->graph == p->g)
            p->rounding[pick->tensor->base->id] &= (unsigned char)~narrow;
    }
}

/* What t's backward reads: GCKPT_IN, GCKPT_OUT, GCKPT_AUX bits. */
GCKPTI_FN unsigned gckpti_needs(const gckpti_planner *p, const gckpt_tensor *t)
{
    unsigned mask = 0;
    for (int i = 0; i < t->inputs; i++)
        if (p->active[t->in[i]->base->id])
            mask |= t->op->needs[i];
    return mask;
}

/* Whether an op's kernel runs in portions: no input is repeated; of rows, only the first is
 * bf16. */
static int gckpti_has_portions(const gckpt_op *op, int inputs, const int *rounding,
                               const int64_t *n, int64_t row)
{
    const int narrow = GCKPTI_NARROW_VALUE | GCKPTI_NARROW_GRADIENT;
    const int rows = gckpti_own_flag(op, GCKPTI_BY_ROW);
    int portions = rows || gckpti_own_flag(op, GCKPTI_BY_ELEMENT);
    for (int i = 0; i < inputs && portions; i++)
        portions = rows ? i == 0 || !(rounding[1 + i] & narrow) : n[1 + i] == n[0];
    return portions && (!rows || row <= GCKPTI_PORTION_ROW);
}

GCKPTI_FN void gckpti_copy_add(gckpti_copies *c, size_t *at, int64_t elements)
{
    *at = gckpti_round_up(c->bytes, 64);
    c->bytes = *at + (size_t)elements * sizeof(float);
}

GCKPTI_FN void gckpti_copies_of(const gckpt_op *op, int inputs, const int *rounding,
                                const int64_t *n, int64_t row, int made_for,
                                gckpt_precision precision, int backward, unsigned reads,
                                unsigned wanted, gckpti_copies *c)
{
    int by_chance = precision == GCKPT_BF16_STOCHASTIC, fast = precision == GCKPT_BF16_FAST;
    int own = made_for <= GCKPTI_FOR_PLAIN && precision != GCKPT_FP32;
    int portions = own && gckpti_has_portions(op, inputs, rounding, n, row);
    int all = fast || portions || (own && gckpti_own_flag(op, GCKPTI_NARROW));
    int takes = all || op->flags & GCKPT_TAKES_BF16, out = !takes || by_chance;
    int most = all ? GCKPT_MAX_INPUTS : 1; /* the last input it takes so */
    memset(c, 0xff, sizeof *c);
    c->bytes = 0;
    c->portions = portions;
    out = out && rounding[0] & GCKPTI_NARROW_VALUE;
    for (int i = 0; i < inputs && !backward && out && !takes; i++)
        if (op->flags & GCKPT_INPLACE(i) && rounding[1 + i] & GCKPTI_NARROW_VALUE &&
            n[1 + i] == n[0]) {
            gckpti_copy_add(c, &c->value[1 + i], n[0]);
            c->value[0] = c->value[1 + i];
            out = 0;
        }
    if (!backward && out)
        gckpti_copy_add(c, &c->value[0], n[0]);
    else if (backward && !takes && reads & GCKPT_OUT && rounding[0] & GCKPTI_NARROW_VALUE)
        gckpti_copy_add(c, &c->value[0], n[0]);
    for (int i = 0; i < inputs; i++)
        if ((!takes || i > most) && rounding[1 + i] & GCKPTI_NARROW_VALUE &&
            c->value[1 + i] == GCKPTI_NONE && (!backward || reads & GCKPT_IN(i)))
            gckpti_copy_add(c, &c->value[1 + i], n[1 + i]);
    for (int i = 0; i < inputs && backward; i++)
        if ((!takes || i > most || by_chance) && rounding[1 + i] & GCKPTI_NARROW_GRADIENT &&
            wanted >> i & 1)
            gckpti_copy_add(c, &c->gradient[1 + i], n[1 + i]);
    if (backward && !takes && rounding[0] & GCKPTI_NARROW_GRADIENT)
        gckpti_copy_add(c, &c->gradient[0], n[0]);
}

GCKPTI_FN int gckpti_sum_kind(const gckpt_op *op, int i, int batchless, const gckpt_shape *shape,
                              int batchless_in, const gckpt_shape *in, int looped)
{
    if (!(op->needs[i] & GCKPT_SUMS))
        return 0;
    if (batchless_in && !batchless)
        return looped ? GCKPTI_SUM_ON : GCKPTI_SUM_HERE;
    return gckpti_elements(in) != gckpti_elements(shape) ? GCKPTI_SUM_HERE : 0;
}

GCKPTI_FN int gckpti_sums(const gckpti_planner *p, const gckpt_tensor *t, int i)
{
    const gckpt_tensor *q = t->in[i];
    return gckpti_sum_kind(t->op, i, t->batchless, &t->shape, q->batchless, &q->shape, p->looped);
}

/* Input i's tensor is an earlier input of the same op too: its gradient is computed apart. */
GCKPTI_FN int gckpti_repeats(const gckpt_tensor *t, int i)
{
    for (int k = 0; k < i; k++)
        if (t->in[k]->base == t->in[i]->base)
            return 1;
    return 0;
}

/* Bytes of an op's copies and low parts in front of its workspace, forward or backward. */
GCKPTI_FN size_t gckpti_copy_bytes(const gckpti_planner *p, const gckpt_tensor *t, int backward)
{
    int rounding[1 + GCKPT_MAX_INPUTS];
    int64_t n[1 + GCKPT_MAX_INPUTS];
    unsigned wanted = 0;
    size_t low;
    gckpti_copies c;
    for (int i = -1; i < t->inputs; i++) {
        const gckpt_tensor *q = i < 0 ? t : t->in[i];
        rounding[1 + i] = p->rounding[q->base->id];
        n[1 + i] = gckpti_elements(&q->shape);
        if (i >= 0 && p->active[q->base->id] && !gckpti_repeats(t, i))
            wanted |= 1u << i;
    }
    gckpti_copies_of(t->op, t->inputs, rounding, n, gckpti_last(&t->shape),
                     gckpti_made_for(p->desc->backend, p->plain),
                     gckpti_op_precision(rounding[0], t->batchless, p->desc->precision), backward,
                     gckpti_needs(p, t), wanted, &c);
    for (int i = 0; i < t->inputs && backward; i++)
        if (p->active[t->in[i]->base->id] && gckpti_sums(p, t, i) == GCKPTI_SUM_HERE)
            gckpti_copy_add(&c, &low, n[1 + i]);
    return c.bytes;
}

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
