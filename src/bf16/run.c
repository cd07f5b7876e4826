#include "run/internal.h"
#include "num/num.h"
#include "ops/ops.h"

#ifndef GCKPT_NO_BF16
static uint16_t *gckpti_arena_bf16(const gckpt_exec *e, size_t offset)
{
    return (uint16_t *)gckpti_arena_ptr(e, offset);
}

/* Rounds n floats to bf16, written to `to` or, if that is NULL, as floats in place. */
static void gckpti_round_bf16(const gckpt_exec *e, const gckpt_call *c, float *x, uint16_t *to,
                              int64_t n)
{
    const gckpt_conversion rounding = { to ? GCKPT_NARROW : GCKPT_ROUND, x, NULL, to, n };
    GCKPTI_OF(gckpti_backend(e), convert)(c, &rounding);
}

/* Returns the f32 copy at `offset` of n bf16, converted if `read` is nonzero; NULL if no offset. */
static float *gckpti_widen_copy(const gckpt_exec *e, const gckpt_call *c, size_t offset,
                                const uint16_t *narrow, int read, int64_t n)
{
    const gckpt_conversion widening = { GCKPT_WIDEN, gckpti_arena_f32(e, offset), narrow, NULL, n };
    if (widening.x && read)
        GCKPTI_OF(gckpti_backend(e), convert)(c, &widening);
    return widening.x;
}

/* Sets the operands of a call that the plan stores as bf16: as bf16, if the op's kernel takes them
 * so in this plan, else as an f32 copy in the arena. */
GCKPTI_FN void gckpti_mixed_operands(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpti_operands *o, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    if (!gckpti_is_bf16_plan(p))
        return;
    const size_t *copy = gckpti_f32_copies(ins, o), *out = copy + 2 * node->inputs;
    int64_t n = gckpti_elements(&c->shape);
    for (int i = 0; i < node->inputs; i++, copy += 2) {
        const gckpti_plan_node *q = &p->nodes[p->nodes[node->in[i]].base];
        gckpt_arg *arg = &c->in[i];
        int64_t count = gckpti_elements(&arg->shape);
        if (arg->bf16) {
            arg->data = gckpti_widen_copy(e, c, copy[0], arg->bf16, 1, count);
            arg->bf16 = arg->data ? NULL : arg->bf16;
        }
        if (arg->grad && q->rounding & GCKPTI_BF16_GRADIENT && o->in[i].total == GCKPTI_NO_OFFSET) {
            uint16_t *narrow = gckpti_arena_bf16(e, o->in[i].gradient);
            arg->grad = gckpti_widen_copy(e, c, copy[1], narrow, arg->accumulate, count);
            arg->grad_bf16 = arg->grad ? NULL : narrow;
        }
    }
    if (c->out && node->rounding & GCKPTI_BF16_VALUE) {
        uint16_t *narrow = (uint16_t *)(void *)c->out;
        c->out = gckpti_widen_copy(e, c, out[0], narrow, ins->kind == GCKPT_BACKWARD, n);
        c->out_bf16 = c->out ? NULL : narrow;
    }
    if (c->grad_out && node->rounding & GCKPTI_BF16_GRADIENT) {
        const uint16_t *narrow = gckpti_arena_bf16(e, o->gradient);
        c->grad_out = gckpti_widen_copy(e, c, out[1], narrow, 1, n);
        c->grad_out_bf16 = c->grad_out ? NULL : narrow;
    }
}

/* Rounds the output of a forward of a bf16 plan, unless its kernel did. */
GCKPTI_FN void gckpti_end_mixed_output(const gckpt_exec *e, const gckpti_ins *ins,
                                       const gckpti_operands *o, const gckpt_call *c)
{
    const gckpti_plan_node *node = &e->plan->nodes[ins->id];
    const void *data = e->tables.nodes[ins->id].data; /* NULL unless it outlives the step */
    void *out = data ? (void *)(uintptr_t)data : gckpti_arena_ptr(e, o->out);
    uint16_t *narrow = node->rounding & GCKPTI_BF16_VALUE ? (uint16_t *)out : NULL;
    if (c->out && node->rounding & GCKPTI_ROUNDED && ins->kind == GCKPT_FORWARD)
        gckpti_round_bf16(e, c, c->out, narrow, gckpti_elements(&c->shape));
}

/* In a bf16 plan, adds the gradient of input i to the total, if it is separate, and rounds it;
 * returns whether the plan is one. */
GCKPTI_FN int gckpti_end_mixed_gradient(const gckpt_exec *e, const gckpti_ins *ins,
                                        const gckpti_operands *o, const gckpt_call *c, int i)
{
    const gckpti_plan_node *node = &e->plan->nodes[ins->id];
    const gckpti_plan_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
    const int64_t n = gckpti_elements(&c->in[i].shape);
    const int adds = o->in[i].total != GCKPTI_NO_OFFSET;
    if (!gckpti_is_bf16_plan(e->plan))
        return 0;
    const size_t to = adds ? o->in[i].total : o->in[i].gradient;
    uint16_t *narrow = q->rounding & GCKPTI_BF16_GRADIENT ? gckpti_arena_bf16(e, to) : NULL;
    float *x = c->in[i].grad;
    const gckpt_conversion addition = { GCKPT_WIDEN_ADD, x, narrow, NULL, n };
    if (adds && narrow) {
        GCKPTI_OF(gckpti_backend(e), convert)(c, &addition);
    } else if (adds) {
        GCKPTI_OF(gckpti_backend(e), add)(c, gckpti_arena_f32(e, to), x, n);
        x = gckpti_arena_f32(e, to);
    }
    if (x && q->rounding & GCKPTI_ROUNDED && (x != c->grad_out || o->in[i].gradient != o->gradient))
        gckpti_round_bf16(e, c, x, narrow, n);
    return 1;
}

typedef struct {
    const gckpt_call *call;
    gckpt_kernel kernel;
    int backward, sums; /* sums: strips run in order and add to gradients that are sums over rows */
    int64_t n;          /* elements of a strip */
    int64_t row_size;   /* elements of a row of input 0; 0 if all inputs have the same shape */
    size_t saved_bytes; /* saved bytes of a row */
} gckpti_strips;

/* Takes a strip's floats from *next; if `read` is nonzero, converts the bf16 `narrow` to them. */
static float *gckpti_open_strip(const gckpt_call *c, const uint16_t *narrow, int read, float **next)
{
    int64_t n = gckpti_elements(&c->shape);
    float *x = *next;
    if (!narrow)
        return NULL;
    if (read)
        gckpti_widen_row(c, narrow, x, n);
    *next += gckpti_ceil_to(n, 16);
    return x;
}

/* Runs strip i as a separate call. */
static void gckpti_strip_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_strips *strips = (const gckpti_strips *)context;
    float scratch[GCKPTI_STRIP_BUFFER] GCKPTI_ALIGNED, *next = scratch;
    gckpt_call c = *strips->call;
    int64_t first = i * strips->n, n = gckpti_min(gckpti_elements(&c.shape) - first, strips->n);
    (void)worker;
    const int64_t row_size = strips->row_size;
    c.shape = row_size ? gckpt_shape2(n / row_size, row_size) : gckpt_shape1(n);
    if (c.saved)
        c.saved = (unsigned char *)c.saved + (size_t)(first / row_size) * strips->saved_bytes;
    c.threads = 1;
    c.out_bf16 = c.out_bf16 ? c.out_bf16 + first : NULL;
    c.grad_out_bf16 = c.grad_out_bf16 ? c.grad_out_bf16 + first : NULL;
    c.out = c.out ? c.out + first : gckpti_open_strip(&c, c.out_bf16, strips->backward, &next);
    c.grad_out = c.grad_out ? c.grad_out + first : gckpti_open_strip(&c, c.grad_out_bf16, 1, &next);
    for (int k = 0; k < c.inputs; k++) {
        gckpt_arg *in = &c.in[k];
        if (strips->row_size && k > 0) {
            in->grad = strips->sums ? in->grad : NULL;
            in->accumulate |= i > 0;
            continue;
        }
        in->shape = c.shape;
        in->bf16 = in->bf16 ? in->bf16 + first : NULL;
        in->grad_bf16 = in->grad_bf16 ? in->grad_bf16 + first : NULL;
        in->data = in->data ? in->data + first : gckpti_open_strip(&c, in->bf16, 1, &next);
        in->index = in->index ? in->index + first : NULL;
        in->bytes = in->bytes ? in->bytes + first : NULL;
        in->compensation = in->compensation ? in->compensation + first : NULL;
        in->grad = in->grad ? in->grad + first
                            : gckpti_open_strip(&c, in->grad_bf16, in->accumulate, &next);
    }
    strips->kernel(&c);
    if (!strips->backward && c.out_bf16)
        gckpti_narrow_row(&c, c.out, c.out_bf16, n);
    for (int k = 0; k < c.inputs; k++)
        if (c.in[k].grad_bf16)
            gckpti_narrow_row(&c, c.in[k].grad, c.in[k].grad_bf16, n);
}

/* If the node runs in strips, runs a kernel that takes floats on bf16 operands, strip by strip, and
 * returns 1. Sums over rows: plain kernels add strip by strip; fast ones compute them after all
 * strips. */
GCKPTI_FN int gckpti_run_strips(const gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *call,
                                gckpt_kernel kernel)
{
    const gckpti_plan_node *node = &e->plan->nodes[ins->id];
    const gckpt_op *op = node->op;
    if (!(node->rounding & GCKPTI_IN_STRIPS))
        return 0;
    gckpt_call strip_call = *call, sum_call = *call; /* sum_call: sums over rows */
    const int backward = ins->kind == GCKPT_BACKWARD;
    gckpti_strips strips = { &strip_call, kernel, backward, 0, GCKPTI_STRIP_FLOATS, 0, 0 };
    if (gckpti_has_builtin_flag(op, GCKPTI_IS_ROWWISE)) {
        const gckpt_shape planned = gckpti_planned_shape(e->plan, node);
        const int64_t size = strips.row_size = gckpti_last(&call->shape);
        strips.n = size > strips.n ? size : strips.n / size * size;
        strips.saved_bytes = node->saved_bytes / (size_t)gckpti_rows(&planned);
    }
    int parts = !strips.backward, sums = 0;
    for (int i = 0; i < call->inputs; i++) {
        gckpt_arg *in = &strip_call.in[i];
        if (strips.row_size && i > 0) {
            sums |= in->grad != NULL;
            continue;
        }
        if (op->flags & GCKPT_PASSES_GRAD(i) && in->grad_bf16 == strip_call.grad_out_bf16)
            in->grad_bf16 = NULL; /* the gradient is there already */
        parts |= in->grad || in->grad_bf16;
        sum_call.in[i].grad = NULL, sum_call.in[i].grad_bf16 = NULL;
    }
    strips.sums = sums && !call->kernels;
    int64_t items = (gckpti_elements(&call->shape) + strips.n - 1) / strips.n;
    for (int64_t i = 0; i < items && strips.sums; i++)
        gckpti_strip_item(&strips, i, 0);
    if (parts && !strips.sums)
        gckpt_parallel(call, items, 4 * strips.n, gckpti_strip_item, &strips);
    if (sums && !strips.sums)
        kernel(&sum_call);
    return 1;
}
#endif
