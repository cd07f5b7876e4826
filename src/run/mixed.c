#include "run/own.h"
#include "num/num.h"
#include "ops/ops.h"

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

/* ---- kernels in portions ---- */
typedef struct {
    const gckpt_exec *e;
    const gckpt_call *call;
    gckpt_kernel kernel;
    int backward, sums; /* sums: portions come in turn, and add to gradients that have none */
    int64_t n, row;     /* elements of a portion; of a row, 0: they do not matter */
    size_t aux;         /* bytes a row */
} gckpti_portions;

/* n floats at *next, which moves on: those of `narrow`, if they are read. */
static float *gckpti_portion_open(const gckpti_portions *s, const gckpt_call *c,
                                  const uint16_t *narrow, int read, float **next)
{
    int64_t n = gckpti_elements(&c->shape);
    float *x = *next;
    if (!narrow)
        return NULL;
    if (read)
        gckpti_widen(s->e, c, GCKPT_WIDEN, narrow, x, n);
    *next += gckpti_multiple(n, 16);
    return x;
}

static void gckpti_portion_close(const gckpti_portions *s, const gckpt_call *c, float *x,
                                 uint16_t *narrow)
{
    if (narrow)
        gckpti_round(s->e, c, 0, x, narrow, gckpti_elements(&c->shape));
}

/* Portion i, as a call of its own. It knows where its bf16 are, too: fast kernels fetch those of
 * the next one, which lie behind them, meanwhile. */
static void gckpti_portion_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_portions *s = (const gckpti_portions *)context;
    const gckpt_call *call = s->call;
    float room[GCKPTI_PORTION_ROOM], *next = room;
    int64_t all = gckpti_elements(&call->shape), at = i * s->n, n = gckpti_min(all - at, s->n);
    gckpt_call c = *call;
    (void)worker;
    c.shape = s->row ? gckpt_shape2(n / s->row, s->row) : gckpt_shape1(n);
    c.aux = c.aux ? (unsigned char *)c.aux + (size_t)(at / s->row) * s->aux : NULL;
    c.threads = 1;
    c.out_bf16 = c.out_bf16 ? c.out_bf16 + at : NULL;
    c.grad_out_bf16 = c.grad_out_bf16 ? c.grad_out_bf16 + at : NULL;
    c.out = c.out ? c.out + at : gckpti_portion_open(s, &c, c.out_bf16, s->backward, &next);
    float *g = gckpti_portion_open(s, &c, c.grad_out_bf16, 1, &next);
    c.grad_out = c.grad_out ? c.grad_out + at : g;
    for (int k = 0; k < c.inputs; k++) {
        gckpt_arg *in = &c.in[k];
        if (gckpti_elements(&in->shape) != all) {
            in->grad = s->sums ? in->grad : NULL;
            in->accumulate |= i > 0;
            continue;
        }
        in->shape = c.shape;
        in->bf16 = in->bf16 ? in->bf16 + at : NULL;
        in->grad_bf16 = in->grad_bf16 ? in->grad_bf16 + at : NULL;
        in->data = in->data ? in->data + at : gckpti_portion_open(s, &c, in->bf16, 1, &next);
        in->low = in->low ? in->low + at : NULL;
        if (in->grad)
            in->grad += at;
        else
            in->grad = gckpti_portion_open(s, &c, in->grad_bf16, in->accumulate, &next);
    }
    s->kernel(&c);
    if (!s->backward)
        gckpti_portion_close(s, &c, c.out, c.out_bf16);
    for (int k = 0; k < c.inputs; k++)
        gckpti_portion_close(s, &c, c.in[k].grad, c.in[k].grad_bf16);
}

/* Fast kernels sum over all rows at once, when all portions are done. */
GCKPTI_FN void gckpti_run_portions(const gckpt_exec *e, const gckpti_ins *ins,
                                   const gckpt_call *call, gckpt_kernel kernel)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const gckpt_op *op = node->op;
    int64_t all = gckpti_elements(&call->shape), row = gckpti_last(&call->shape);
    gckpt_call own = *call, rest = *call; /* rest: gradients that are sums over rows */
    gckpti_portions s = { e, &own, kernel, ins->kind == GCKPT_BACKWARD, 0, GCKPTI_PORTION, 0, 0 };
    int parts = !s.backward, sums = 0;
    for (int i = 0; i < call->inputs; i++) {
        gckpt_arg *in = &own.in[i];
        int part = gckpti_elements(&in->shape) == all;
        if (op->flags & GCKPT_PASSES(i) && in->grad_bf16 == own.grad_out_bf16)
            in->grad_bf16 = NULL;
        parts |= part && (in->grad || in->grad_bf16);
        sums |= !part && in->grad;
        if (part)
            rest.in[i].grad = NULL, rest.in[i].grad_bf16 = NULL;
    }
    s.sums = sums && kernel == op->backward;
    if (gckpti_own_flag(op, GCKPTI_BY_ROW)) {
        s.row = row;
        s.n = row > s.n ? row : s.n / row * row;
        s.aux = node->aux_bytes / (size_t)gckpti_rows(&node->shape);
    }
    int64_t items = (all + s.n - 1) / s.n;
    for (int64_t i = 0; i < items && s.sums; i++)
        gckpti_portion_item(&s, i, 0);
    if (parts && !s.sums)
        gckpt_parallel(call, items, 4 * s.n, gckpti_portion_item, &s); /* each fetches the next */
    if (sums && !s.sums)
        kernel(&rest);
}
#endif
