#include "run/own.h"
#include "num/num.h"
#include "ops/ops.h"

#ifndef GCKPT_NO_BF16
/* ---- bf16 plans: kernels get bf16, or floats in copies, as the plan has it (plan/mixed.c) ---- */
/* The copy at `offset`, NONE: there is none, of n numbers that are bf16 in the arena; what they are
 * is in it if the kernel reads it. */
static float *gckpti_mixed_copy(const gckpt_exec *e, const gckpt_call *c, size_t offset,
                                const uint16_t *narrow, int read, int64_t n)
{
    float *copy = gckpti_at(e, offset);
    if (copy && read)
        gckpti_widen(e, c, GCKPT_WIDEN, narrow, copy, n);
    return copy;
}

GCKPTI_FN void gckpti_mixed_copies(gckpt_exec *e, unsigned char *at)
{
    for (size_t i = 0; i < e->plan->param_count && e->bound.copies; i++) {
        const size_t bytes = gckpti_bf16_bytes(e->plan, i);
        e->bound.copies[i].values = bytes ? (uint16_t *)(void *)at : NULL;
        at += bytes;
    }
}

GCKPTI_FN void gckpti_copied(const gckpt_exec *e, int i)
{
    if (e->bound.copies)
        e->bound.copies[i].seen = gckpti_param_of(e, i)->changes;
}

/* The copy from which an op reads parameter i: made anew if values were changed, but by an update
 * of this executor's, which wrote both. */
static const uint16_t *gckpti_mixed_weight(const gckpt_exec *e, int i)
{
    const gckpti_weight *to = &e->bound.copies[i];
    const gckpti_param *q = gckpti_param_of(e, i);
    gckpt_call by;
    if (to->seen != q->changes) {
        gckpti_call_between(e, &by);
        gckpti_round(e, &by, 0, q->p.values, to->values, q->p.elements);
        gckpti_copied(e, i);
    }
    return to->values;
}

GCKPTI_FN void gckpti_mixed_operands(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpti_operands *o, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    const size_t *copy = gckpti_copies_of(ins, o), *out = copy + 2 * node->inputs;
    int64_t n = gckpti_elements(&c->shape);
    for (int i = 0; i < node->inputs; i++, copy += 2) {
        const gckpti_node *q = &p->nodes[p->nodes[node->in[i]].base];
        gckpt_arg *arg = &c->in[i];
        int64_t count = gckpti_elements(&arg->shape);
        if (arg->bf16) {
            arg->data = gckpti_mixed_copy(e, c, copy[0], arg->bf16, 1, count);
            arg->bf16 = arg->data ? NULL : arg->bf16;
        }
        if (arg->grad && q->rounding & GCKPTI_NARROW_GRADIENT && o->in[i].total == GCKPTI_NONE) {
            uint16_t *narrow = gckpti_at_bf16(e, o->in[i].gradient);
            arg->grad = gckpti_mixed_copy(e, c, copy[1], narrow, arg->accumulate, count);
            arg->grad_bf16 = arg->grad ? NULL : narrow;
        }
    }
    const int weight = gckpti_bf16_weight(p, node);
    if (weight >= 0)
        c->in[1].bf16 = gckpti_mixed_weight(e, weight);
    if (c->out && node->rounding & GCKPTI_NARROW_VALUE) {
        uint16_t *narrow = (uint16_t *)(void *)c->out;
        c->out = gckpti_mixed_copy(e, c, out[0], narrow, ins->kind == GCKPT_BACKWARD, n);
        c->out_bf16 = c->out ? NULL : narrow;
    }
    if (c->grad_out && node->rounding & GCKPTI_NARROW_GRADIENT) {
        const uint16_t *narrow = gckpti_at_bf16(e, o->gradient);
        c->grad_out = gckpti_mixed_copy(e, c, out[1], narrow, 1, n);
        c->grad_out_bf16 = c->grad_out ? NULL : narrow;
    }
}

/* ---- kernels in portions: of so many elements, or of whole rows ---- */
typedef struct {
    const gckpt_exec *e;
    const gckpt_call *call;
    gckpt_kernel kernel;
    int backward, sums; /* sums: portions come in turn, and add to gradients that have none */
    int64_t n, row;     /* elements of a portion; of a row: inputs but the first have none. Or 0 */
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

/* Portion i, as a call of its own. It knows where its bf16 are, too: fast kernels fetch those of
 * the next one, which lie behind them, meanwhile. */
static void gckpti_portion_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_portions *s = (const gckpti_portions *)context;
    float room[GCKPTI_PORTION_ROOM] GCKPTI_ALIGNED, *next = room;
    gckpt_call c = *s->call;
    int64_t at = i * s->n, n = gckpti_min(gckpti_elements(&c.shape) - at, s->n);
    (void)worker;
    c.shape = s->row ? gckpt_shape2(n / s->row, s->row) : gckpt_shape1(n);
    c.saved = c.saved ? (unsigned char *)c.saved + (size_t)(at / s->row) * s->aux : NULL;
    c.threads = 1;
    c.out_bf16 = c.out_bf16 ? c.out_bf16 + at : NULL;
    c.grad_out_bf16 = c.grad_out_bf16 ? c.grad_out_bf16 + at : NULL;
    c.out = c.out ? c.out + at : gckpti_portion_open(s, &c, c.out_bf16, s->backward, &next);
    c.grad_out =
        c.grad_out ? c.grad_out + at : gckpti_portion_open(s, &c, c.grad_out_bf16, 1, &next);
    for (int k = 0; k < c.inputs; k++) {
        gckpt_arg *in = &c.in[k];
        if (s->row && k > 0) {
            in->grad = s->sums ? in->grad : NULL;
            in->accumulate |= i > 0;
            continue;
        }
        in->shape = c.shape;
        in->bf16 = in->bf16 ? in->bf16 + at : NULL;
        in->grad_bf16 = in->grad_bf16 ? in->grad_bf16 + at : NULL;
        in->data = in->data ? in->data + at : gckpti_portion_open(s, &c, in->bf16, 1, &next);
        in->index = in->index ? in->index + at : NULL;
        in->bytes = in->bytes ? in->bytes + at : NULL;
        in->compensation = in->compensation ? in->compensation + at : NULL;
        in->grad = in->grad ? in->grad + at
                            : gckpti_portion_open(s, &c, in->grad_bf16, in->accumulate, &next);
    }
    s->kernel(&c);
    if (!s->backward && c.out_bf16)
        gckpti_round(s->e, &c, 0, c.out, c.out_bf16, n);
    for (int k = 0; k < c.inputs; k++)
        if (c.in[k].grad_bf16)
            gckpti_round(s->e, &c, 0, c.in[k].grad, c.in[k].grad_bf16, n);
}

/* Fast kernels sum over all rows at once, when all portions are done. */
GCKPTI_FN void gckpti_run_portions(const gckpt_exec *e, const gckpti_ins *ins,
                                   const gckpt_call *call, gckpt_kernel kernel)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const gckpt_op *op = node->op;
    gckpt_call own = *call, rest = *call; /* rest: gradients that are sums over rows */
    gckpti_portions s = { e, &own, kernel, ins->kind == GCKPT_BACKWARD, 0, GCKPTI_PORTION, 0, 0 };
    if (gckpti_own_flag(op, GCKPTI_BY_ROW)) {
        const gckpt_shape planned = gckpti_planned_shape(e->plan, node);
        s.row = gckpti_last(&call->shape);
        s.n = s.row > s.n ? s.row : s.n / s.row * s.row;
        s.aux = node->aux_bytes / (size_t)gckpti_rows(&planned);
    }
    int parts = !s.backward, sums = 0;
    for (int i = 0; i < call->inputs; i++) {
        gckpt_arg *in = &own.in[i];
        if (s.row && i > 0) {
            sums |= in->grad != NULL;
            continue;
        }
        if (op->flags & GCKPT_PASSES_GRAD(i) && in->grad_bf16 == own.grad_out_bf16)
            in->grad_bf16 = NULL; /* it is there already */
        parts |= in->grad || in->grad_bf16;
        rest.in[i].grad = NULL, rest.in[i].grad_bf16 = NULL;
    }
    s.sums = sums && kernel == op->backward;
    int64_t items = (gckpti_elements(&call->shape) + s.n - 1) / s.n;
    for (int64_t i = 0; i < items && s.sums; i++)
        gckpti_portion_item(&s, i, 0);
    if (parts && !s.sums)
        gckpt_parallel(call, items, 4 * s.n, gckpti_portion_item, &s); /* each fetches the next */
    if (sums && !s.sums)
        kernel(&rest);
}
#endif
