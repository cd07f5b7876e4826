#include "plan/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

#ifndef GCKPT_NO_BF16
/* ---- bf16 plans (manual, 5l) ----
 * Values and gradients that depend on the batch are rounded, except variables whose op writes no
 * bf16. They are bf16 in the arena, unless they are fetched as floats. All of this is decided here:
 *   `rounding`, by tensor: whether its value and gradient are rounded, and whether they are bf16;
 *       the precision of an op, and whether it runs in strips
 *   gckpti_f32_copies, by instruction: where the fp32 copies of bf16 operands are, before the op's
 *       own workspace. Without a copy the kernel takes the bf16 operand itself.
 * The executor widens the copies that are read and rounds those that the kernel has written.
 *
 * A kernel takes as bf16: nothing; inputs 0 and 1, their gradients, the output and its gradient
 * (GCKPT_TAKES_BF16); or all operands (fast kernels of a backend; on the CPU, kernels with
 * GCKPTI_TAKES_ALL_BF16 or in strips). */
static gckpt_result gckpti_mark_rounding(gckpti_planner *p)
{
    const gckpt_plan_desc *d = p->desc;
    const gckpti_range range = { "bf16.precision", (int)d->bf16.precision, 0, GCKPT_BF16_FAST };
    if (!gckpti_check_ranges(p->g, "plan", &range, 1))
        return GCKPT_E_ARG;
    if (d->bf16.precision == GCKPT_BF16_FAST && !gckpti_has_fast_kernel(d->backend, NULL))
        return gckpti_error(p->g, GCKPT_E_ARG,
                            "plan: %s has no kernels of GCKPT_BF16_FAST; GCKPT_BF16 takes the same "
                            "bytes and runs everywhere",
                            gckpti_backend_name(d->backend));
    for (int i = 0; i < p->n && gckpti_is_rounded(d); i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind == GCKPTI_OP && t->type == GCKPT_F32 && !t->batch_invariant &&
            !gckpti_is_loss(t) &&
            (t->op->flags & (GCKPTI_VARIABLE | GCKPT_TAKES_BF16)) != GCKPTI_VARIABLE)
            p->rounding[i] = GCKPTI_ROUNDED | GCKPTI_BF16_VALUE | GCKPTI_BF16_GRADIENT;
    }
    for (int i = 0; i < p->desc->fetch.count; i++) {
        const gckpt_fetch_spec *fetch = &p->desc->fetch.specs[i];
        int bf16_flag = fetch->gradient ? GCKPTI_BF16_GRADIENT : GCKPTI_BF16_VALUE;
        if (fetch->tensor && fetch->tensor->graph == p->g)
            p->rounding[fetch->tensor->base->id] &= (unsigned char)~bf16_flag;
    }
    return GCKPT_OK;
}

static int gckpti_is_bf16(const gckpti_planner *p, const gckpt_tensor *t, int bf16_flag)
{
    return p->rounding[t->base->id] & bf16_flag;
}

/* Returns whether op t can run in strips: no broadcast input; if rowwise, only input 0 is bf16. */
static int gckpti_has_strips(const gckpti_planner *p, const gckpt_tensor *t)
{
    const int rows = gckpti_has_builtin_flag(t->op, GCKPTI_IS_ROWWISE);
    const int bf16_flag = GCKPTI_BF16_VALUE | GCKPTI_BF16_GRADIENT;
    int strips = rows ? gckpti_last(&t->shape) <= GCKPTI_STRIP_ROW
                      : gckpti_has_builtin_flag(t->op, GCKPTI_IS_ELEMENTWISE);
    for (int i = 0; i < t->inputs && strips; i++)
        strips = rows ? i == 0 || !gckpti_is_bf16(p, t->in[i], bf16_flag)
                      : gckpti_elements(&t->in[i]->shape) == gckpti_elements(&t->shape);
    return strips;
}

/* Returns the precision that the kernel of op t is first requested for. */
GCKPTI_FN gckpt_precision gckpti_first_precision(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_precision precision = t->batch_invariant ? GCKPT_FP32 : p->desc->bf16.precision;
    return precision == GCKPT_BF16_FAST && !gckpti_has_fast_kernel(p->desc->backend, t->op)
               ? GCKPT_BF16
               : precision;
}

/* Marks the operands of op t's call that are bf16 in the arena: their pointers are not NULL. */
GCKPTI_FN void gckpti_mark_operands(const gckpti_planner *p, const gckpt_tensor *t,
                                    gckpt_call *call)
{
    uint16_t *const narrow = (uint16_t *)(void *)call; /* only compared with NULL */
    for (int k = 0; k < t->inputs; k++)
        if (gckpti_is_bf16(p, t->in[k], GCKPTI_BF16_VALUE))
            call->in[k].bf16 = narrow;
    call->out_bf16 = gckpti_is_bf16(p, t, GCKPTI_BF16_VALUE) ? narrow : NULL;
    call->grad_out_bf16 = gckpti_is_bf16(p, t, GCKPTI_BF16_GRADIENT) ? narrow : NULL;
}

/* Returns 1, and the next precision to ask for, if a backend has no kernel of the one before. */
GCKPTI_FN int gckpti_falls_back(const gckpt_call *call, gckpt_precision *precision)
{
    const int falls = *precision == GCKPT_BF16_FAST && call->precision != *precision;
    *precision = falls ? GCKPT_BF16 : *precision;
    return falls;
}

/* Sets the precision of op t, and whether it runs in strips. */
GCKPTI_FN void gckpti_mark_precision(gckpti_planner *p, const gckpt_tensor *t,
                                     gckpt_precision precision)
{
    int on_cpu = precision != GCKPT_FP32 && !p->desc->backend;
    int strips = on_cpu && gckpti_has_strips(p, t) ? GCKPTI_IN_STRIPS : 0;
    p->rounding[t->id] |= (unsigned char)((int)precision * GCKPTI_PRECISION | strips);
}

/* Places the fp32 copies of op t, in the order of gckpti_f32_copies. Returns their bytes. */
GCKPTI_FN size_t gckpti_place_copies(const gckpti_planner *p, const gckpt_tensor *t, int backward,
                                     size_t *copy)
{
    const int rounding = p->rounding[t->id];
    const int takes_all =
        gckpti_precision_of(rounding) == GCKPT_BF16_FAST || rounding & GCKPTI_IN_STRIPS ||
        (!p->desc->backend && gckpti_has_builtin_flag(t->op, GCKPTI_TAKES_ALL_BF16));
    /* inputs from the first one on that the kernel takes as bf16; if any, also the output */
    const int takes = takes_all ? GCKPT_MAX_INPUTS : t->op->flags & GCKPT_TAKES_BF16 ? 2 : 0;
    const unsigned reads = backward ? gckpti_backward_needs(p, t) : ~0u;
    size_t bytes = 0, *out = copy + 2 * t->inputs;
    memset(copy, 0xff, (size_t)(2 * t->inputs + 2) * sizeof *copy);
    if (!takes && reads & GCKPT_OUT && gckpti_is_bf16(p, t, GCKPTI_BF16_VALUE))
        *out = gckpti_add_floats(&bytes, t);
    int in_place = !backward && !takes && *out != GCKPTI_NO_OFFSET;
    for (int i = 0; i < t->inputs; i++) {
        const gckpt_tensor *q = t->in[i];
        if (i < takes || !(reads & GCKPT_IN(i)) || !gckpti_is_bf16(p, q, GCKPTI_BF16_VALUE))
            continue;
        int shared = in_place && t->op->flags & GCKPT_INPLACE(i) &&
                     gckpti_elements(&q->shape) == gckpti_elements(&t->shape);
        copy[2 * i] = shared ? *out : gckpti_add_floats(&bytes, q);
        in_place = in_place && !shared;
    }
    for (int i = 0; i < t->inputs && backward; i++) {
        const gckpt_tensor *q = t->in[i];
        if (i >= takes && gckpti_is_bf16(p, q, GCKPTI_BF16_GRADIENT) && p->active[q->base->id] &&
            !gckpti_is_repeated(t, i))
            copy[2 * i + 1] = gckpti_add_floats(&bytes, q);
    }
    if (backward && !takes && gckpti_is_bf16(p, t, GCKPTI_BF16_GRADIENT))
        out[1] = gckpti_add_floats(&bytes, t);
    return bytes;
}

/* Returns how many operands, offsets of fp32 copies, follow the other ones of an instruction. */
GCKPTI_FN size_t gckpti_copy_operands(const gckpti_planner *p, int kind, const gckpt_tensor *t)
{
    const int runs = t->op && kind <= GCKPT_BACKWARD && p->desc->bf16.precision != GCKPT_FP32;
    return runs ? 2 + 2 * (size_t)t->inputs : 0;
}

/* Writes the offsets of an instruction's copies into a plan's operands. Where the op passes a
 * gradient on, the copy of the incoming gradient serves. The rest of the workspace is the op's. */
static void gckpti_encode_copies(const gckpti_planner *p, const gckpti_ins *ins, size_t *operand)
{
    const gckpt_tensor *t = p->tensors[ins->id];
    const int backward = ins->kind == GCKPT_BACKWARD, out = 2 * t->inputs;
    gckpti_operands o;
    gckpti_operands_of(operand, ins, t->inputs, &o);
    size_t *copy = operand + (gckpti_f32_copies(ins, &o) - operand);
    size_t bytes = gckpti_place_copies(p, t, backward, copy);
    size_t all = backward ? p->workspace_backward[ins->id] : p->workspace_forward[ins->id];
    for (int i = 0; i < t->inputs; i++)
        if (copy[2 * i + 1] != GCKPTI_NO_OFFSET && copy[out + 1] != GCKPTI_NO_OFFSET &&
            t->op->flags & GCKPT_PASSES_GRAD(i) && !(ins->accumulate >> i & 1) &&
            gckpti_same_shape(&t->in[i]->shape, &t->shape))
            copy[2 * i + 1] = copy[out + 1];
    for (int k = 0; k < out + 2; k++)
        copy[k] += copy[k] == GCKPTI_NO_OFFSET ? 0 : o.workspace;
    operand[ins->operands + 2] = all > gckpti_round_up(bytes, 64)
                                     ? o.workspace + gckpti_round_up(bytes, 64)
                                     : GCKPTI_NO_OFFSET;
}

GCKPTI_PASSES(bf16)
{
    gckpti_encoder *e = (gckpti_encoder *)arg;
    const gckpti_lowered *d = &p->best;
    if (stage == GCKPTI_PASS_START)
        return gckpti_mark_rounding(p);
    if (stage != GCKPTI_PASS_ENCODED)
        return GCKPT_OK;
    for (size_t x = 0; x < d->length; x++)
        if (gckpti_copy_operands(p, d->ins[x].kind, p->tensors[d->ins[x].id]))
            gckpti_encode_copies(p, &d->ins[x], e->operands);
    e->plan.precision = p->desc->bf16.precision;
    return GCKPT_OK;
}
#endif
