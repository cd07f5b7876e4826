#ifndef GCKPT_NO_TRAINING
#include "run/own.h"
#include "graph/graph.h"

/* Of the gradient of input i: GCKPTI_SUM_HERE, _ON or 0. */
static int gckpti_sums_of(const gckpt_plan *p, const gckpti_node *node, int i)
{
    int on = p->looped && !node->batchless && p->nodes[node->in[i]].batchless;
    return !(node->sums >> i & 1) ? 0 : on ? GCKPTI_SUM_ON : GCKPTI_SUM_HERE;
}

/* Where the gradient of input i goes, and its low part: the next of the workspace, or behind it. */
static void gckpti_gradient_start(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                  gckpt_call *c, int i)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    gckpt_arg *arg = &c->in[i];
    int64_t n = gckpti_elements(&arg->shape);
    arg->accumulate = (ins->accumulate >> i) & 1;
    arg->grad = gckpti_at(e, o->in[i].gradient);
    int sums = o->in[i].gradient != GCKPTI_NONE ? gckpti_sums_of(e->plan, node, i) : 0;
    if ((ins->zero >> i) & 1)
        gckpti_on(e)->fill(c, arg->grad, 0, n);
    if (sums == GCKPTI_SUM_HERE) {
        arg->low = (float *)c->work;
        c->work = (unsigned char *)c->work + gckpti_round_up((size_t)n * sizeof(float), 64);
        gckpti_on(e)->fill(c, arg->low, 0, n);
    } else if (arg->grad && sums == GCKPTI_SUM_ON)
        arg->low = arg->grad + n;
}

/* What remains to do with it: rounding, and adding what was computed apart. */
static void gckpti_gradient_end(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                gckpt_call *c, int i)
{
    if (!gckpti_plan_rounds(e->plan) && o->in[i].total == GCKPTI_NONE)
        return;
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const gckpti_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
    int64_t n = gckpti_elements(&c->in[i].shape);
    float *x = c->in[i].grad;
    size_t to = o->in[i].total != GCKPTI_NONE ? o->in[i].total : o->in[i].gradient;
    uint16_t *narrow = q->rounding & GCKPTI_NARROW_GRADIENT ? gckpti_at_bf16(e, to) : NULL;
    if (o->in[i].total != GCKPTI_NONE && narrow) {
        gckpti_widen(e, c, GCKPT_WIDEN_ADD, narrow, x, n);
    } else if (o->in[i].total != GCKPTI_NONE) {
        gckpti_on(e)->add(c, gckpti_at(e, to), x, n);
        x = gckpti_at(e, to);
    }
    if (x && q->rounding & GCKPTI_ROUNDED && (x != c->grad_out || o->in[i].gradient != o->gradient))
        gckpti_round(e, c, gckpti_stream(ins->id, 1 + i), x, narrow, n);
}

/* Sends the gradient of an op's output, its accumulators added up, on to its inputs. */
GCKPTI_FN void gckpti_run_backward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpt_unpacking stored;
    gckpti_call_of(e, ins, &o, c);
    if (p->packed)
        gckpti_call_stored(e, ins, c, &stored);
    float *grad_out = gckpti_at(e, o.gradient);
    for (int u = 1; u < ins->uses; u++)
        gckpti_on(e)->add(c, grad_out, gckpti_at(e, o.more[u - 1]), gckpti_elements(&node->shape));
    c->grad_out = grad_out;
    GCKPT_ASSERT(grad_out || node->op->flags & GCKPT_LOSS);
    for (int i = 0; i < node->inputs; i++)
        gckpti_gradient_start(e, ins, &o, c, i);
    if (gckpti_plan_rounds(p))
        gckpti_mixed_operands(e, ins, &o, c);
    if (node->op->flags & GCKPT_LOSS) {
        int term = gckpti_term_of(p, ins->id);
        c->loss_scale = gckpti_loss_scale(e, term);
        c->loss_sum = node->op->flags & GCKPTI_LATE ? &gckpti_loss_at(e, term)->sum : NULL;
    }
    gckpti_run_kernel(e, ins, c);
    for (int i = 0; i < node->inputs; i++)
        gckpti_gradient_end(e, ins, &o, c, i);
}

GCKPTI_FN void gckpti_clear_accumulators(gckpt_exec *e, size_t end)
{
    const gckpt_plan *p = e->plan;
    for (size_t x = 0; x < end && p->looped; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_node *node = &p->nodes[gckpti_ins_tensor(p, ins)];
        gckpti_operands o;
        gckpti_operands_of(p->operands, ins, node->inputs, &o);
        for (int i = 0; ins->kind == GCKPT_BACKWARD && i < node->inputs; i++) {
            const gckpti_node *q = &p->nodes[node->in[i]];
            float *sum = gckpti_at(e, o.in[i].gradient);
            int64_t n = gckpti_elements(&q->shape);
            if (sum && q->batchless)
                gckpti_fill(e, sum, 0,
                            4 * (size_t)(gckpti_sums_of(p, node, i) == GCKPTI_SUM_ON ? 2 * n : n));
        }
    }
}
#endif
