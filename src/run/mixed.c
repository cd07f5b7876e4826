#include "run/own.h"

/* ---- bf16 plans: kernels get f32 copies, or bf16 where they take it; results are rounded ---- */
/* n floats at x become what bf16 at `from` are, or (GCKPT_WIDEN_ADD) that is added to them. */
GCKPTI_FN void gckpti_widen(const gckpt_exec *e, const gckpt_call *c, gckpt_conversion_kind kind,
                            const uint16_t *from, float *x, int64_t n)
{
    const gckpt_conversion widening = { kind, x, from, NULL, n, 0 };
    gckpti_on(e)->convert(c, &widening);
}

/* Rounds n floats to bf16, at `to`, or, if that is NULL, in place. */
GCKPTI_FN void gckpti_round(const gckpt_exec *e, const gckpt_call *c, uint32_t stream, float *x,
                            uint16_t *to, int64_t n)
{
    const gckpt_conversion rounding = { to ? GCKPT_NARROW : GCKPT_ROUND, x, NULL, to, n, stream };
    gckpti_on(e)->convert(c, &rounding);
}

/* The value of an op is stream 0, what its backward sends to input i is 1 + i; dropout has the
 * streams below 2^31. */
GCKPTI_FN uint32_t gckpti_stream(int id, int which)
{
    return 0x80000000u | ((uint32_t)id * (1 + GCKPT_MAX_INPUTS) + (uint32_t)which);
}

/* Of the gradient of input i: GCKPTI_SUM_HERE, _ON or 0. */
GCKPTI_FN int gckpti_sums_of(const gckpt_plan *p, const gckpti_node *node, int i)
{
    const gckpti_node *q = &p->nodes[node->in[i]];
    return gckpti_sum_kind(node->op, i, node->batchless, &node->shape, q->batchless, &q->shape,
                           p->looped);
}

/* Where the copies of this instruction are. Without bf16 there are none, and asking for them takes
 * as long as many an op. */
GCKPTI_FN void gckpti_copies_at(const gckpt_exec *e, const gckpti_ins *ins,
                                const gckpti_operands *o, gckpti_copies *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    c->bytes = 0;
    c->portions = 0;
    for (int i = 0; i <= node->inputs && !GCKPTI_LEAN; i++)
        c->value[i] = c->gradient[i] = GCKPTI_NONE;
    if (GCKPTI_LEAN || p->precision == GCKPT_FP32)
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

/* The copy at this offset of the workspace; NULL: there is none (GCKPTI_NONE). */
GCKPTI_FN float *gckpti_copy_at(const gckpt_call *c, size_t offset)
{
    void *p = offset == GCKPTI_NONE ? NULL : (unsigned char *)c->work + offset;
    return (float *)p;
}

/* The copy of n elements at *narrow, which becomes NULL; without a copy NULL. */
GCKPTI_FN float *gckpti_widen_copy(const gckpt_exec *e, const gckpt_call *c, size_t offset,
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
GCKPTI_FN void gckpti_widen_inputs(const gckpt_exec *e, gckpt_call *c, const gckpti_copies *copies)
{
    for (int i = 0; i < c->inputs; i++)
        if (c->in[i].bf16)
            c->in[i].data = gckpti_widen_copy(e, c, copies->value[1 + i], &c->in[i].bf16,
                                              gckpti_elements(&c->in[i].shape));
}

/* The op's own workspace begins behind all copies. */
GCKPTI_FN void gckpti_own_work(gckpt_call *c, const gckpti_copies *copies)
{
    if (c->work)
        c->work = (unsigned char *)c->work + gckpti_round_up(copies->bytes, 64);
}
