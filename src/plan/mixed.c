#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

#ifndef GCKPT_NO_BF16
/* ---- bf16 plans (manual, 5l): what depends on the batch is rounded, and kept narrow unless it is
 * fetched, as floats; f32 copies in front of a workspace ---- */
GCKPTI_FN gckpt_precision gckpti_op_precision(int rounding, int batchless,
                                              gckpt_precision precision)
{
    if (precision == GCKPT_BF16_FAST && !(rounding & GCKPTI_FAST_OP))
        precision = GCKPT_BF16;
    return batchless ? GCKPT_FP32 : precision;
}

/* Marks what a bf16 plan rounds and keeps narrow: what ops of the batch make, but not what is
 * fetched. */
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

/* Those of an op. */
GCKPTI_FN void gckpti_plan_copies(const gckpti_planner *p, const gckpt_tensor *t, int backward,
                                  gckpti_copies *c)
{
    int rounding[1 + GCKPT_MAX_INPUTS];
    int64_t n[1 + GCKPT_MAX_INPUTS];
    unsigned wanted = 0;
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
                     gckpti_needs(p, t), wanted, c);
}
#endif
