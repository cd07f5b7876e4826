#include "run/own.h"

#ifndef GCKPT_NO_BF16
/* ---- bf16 plans: kernels get f32 copies, or bf16 where they take it; results are rounded ---- */
/* Where the copies of this instruction are. A plan in f32 has none, and asking for them takes as
 * long as many an op. */
GCKPTI_FN void gckpti_copies_at(const gckpt_exec *e, const gckpti_ins *ins,
                                const gckpti_operands *o, gckpti_copies *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    c->bytes = 0;
    c->portions = 0;
    if (!gckpti_plan_rounds(p))
        return;
    int rounding[1 + GCKPT_MAX_INPUTS], backward = ins->kind == GCKPT_BACKWARD;
    int64_t n[1 + GCKPT_MAX_INPUTS];
    unsigned reads = backward && o->out != GCKPTI_NONE ? GCKPT_OUT : 0, wanted = 0;
    rounding[0] = node->rounding;
    n[0] = gckpti_elements(&node->shape);
    for (int i = 0; i < node->inputs; i++) {
        rounding[1 + i] = p->nodes[p->nodes[node->in[i]].base].rounding;
        n[1 + i] = gckpti_elements(&p->nodes[node->in[i]].shape);
        if (backward && o->in[i].value != GCKPTI_NONE)
            reads |= GCKPT_IN(i);
        if (backward && o->in[i].gradient != GCKPTI_NONE && o->in[i].total == GCKPTI_NONE)
            wanted |= 1u << i;
    }
    gckpti_copies_of(node->op, node->inputs, rounding, n, gckpti_last(&node->shape), p->made_for,
                     e->bound.nodes[ins->id].precision, backward, reads, wanted, c);
}

/* The copy of n elements at *narrow, which becomes NULL; without a copy NULL. */
static float *gckpti_widen_copy(const gckpt_exec *e, const gckpt_call *c, size_t offset,
                                const uint16_t **narrow, int64_t n)
{
    float *copy = gckpti_copy_at(c, offset);
    if (copy) {
        gckpti_widen(e, c, GCKPT_WIDEN, *narrow, copy, n);
        *narrow = NULL;
    }
    return copy;
}

/* Those that the kernel takes as bf16 have no copy, and stay. */
static void gckpti_widen_inputs(const gckpt_exec *e, gckpt_call *c, const gckpti_copies *copies)
{
    for (int i = 0; i < c->inputs; i++)
        if (c->in[i].bf16)
            c->in[i].data = gckpti_widen_copy(e, c, copies->value[1 + i], &c->in[i].bf16,
                                              gckpti_elements(&c->in[i].shape));
}

GCKPTI_FN int gckpti_mixed_forward(const gckpt_exec *e, const gckpti_ins *ins,
                                   const gckpti_operands *o, uint16_t *narrow, gckpt_call *c)
{
    gckpti_copies copies;
    gckpti_copies_at(e, ins, o, &copies);
    gckpti_widen_inputs(e, c, &copies);
    if (narrow)
        c->out = gckpti_copy_at(c, copies.value[0]);
    c->out_bf16 = c->out ? NULL : narrow;
    gckpti_own_work(c, &copies);
    return copies.portions;
}

GCKPTI_FN void gckpti_mixed_backward(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpti_operands *o, const gckpti_copies *copies,
                                     gckpt_call *c)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    int64_t n = gckpti_elements(&c->shape);
    gckpti_widen_inputs(e, c, copies);
    if (c->out && node->rounding & GCKPTI_NARROW_VALUE) {
        const uint16_t *narrow = gckpti_at_bf16(e, o->out);
        c->out = gckpti_widen_copy(e, c, copies->value[0], &narrow, n);
        c->out_bf16 = narrow ? gckpti_at_bf16(e, o->out) : NULL;
    }
    if (c->grad_out && node->rounding & GCKPTI_NARROW_GRADIENT) {
        c->grad_out_bf16 = gckpti_at_bf16(e, o->gradient);
        c->grad_out = gckpti_widen_copy(e, c, copies->gradient[0], &c->grad_out_bf16, n);
    }
}

GCKPTI_FN void gckpti_mixed_gradient(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpti_operands *o, const gckpti_copies *copies,
                                     gckpt_call *c, int i)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const gckpti_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
    gckpt_arg *arg = &c->in[i];
    if (copies->gradient[1 + i] != GCKPTI_NONE) {
        const uint16_t *narrow = gckpti_at_bf16(e, o->in[i].gradient);
        arg->grad = gckpti_copy_at(c, copies->gradient[1 + i]);
        if (arg->accumulate)
            gckpti_widen(e, c, GCKPT_WIDEN, narrow, arg->grad, gckpti_elements(&arg->shape));
        else if (copies->gradient[0] != GCKPTI_NONE && node->op->flags & GCKPT_PASSES(i) &&
                 gckpti_same_shape(&arg->shape, &c->shape))
            arg->grad = gckpti_copy_at(c, copies->gradient[0]);
    } else if (arg->grad && q->rounding & GCKPTI_NARROW_GRADIENT && o->in[i].total == GCKPTI_NONE) {
        arg->grad_bf16 = gckpti_at_bf16(e, o->in[i].gradient);
        arg->grad = NULL;
    }
}
#endif
