#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

GCKPTI_COLD

/* ---- forms: what else returns the bits of an op, with other bytes and other work ---- */
/* Makes of a copy of a loss what runs in its place; 0: it has no such form. All but the last form
 * of a head compute each logit once, of so many rows at a time; the last twice, in chunks. */
static int gckpti_form(gckpti_planner *p, gckpt_tensor *t, int form)
{
    enum { LAST = GCKPTI_FORMS - 1 };
    static const int rows[LAST - 1] = { 256, 64, 16 };
    gckpti_head o = { 0, 0.0f };
    const gckpt_tensor *logits = t->in[0];
    if (t->op == &gckpti_op_cross_entropy) {
        if ((logits->op != &gckpti_op_matmul && logits->op != &gckpti_op_linear) ||
            logits->inputs != 2 || !*(const int *)logits->attributes || logits->mixes ||
            logits->batchless || logits->in[1]->shape.n != 2 || !logits->in[1]->batchless)
            return 0;
        t->op = &gckpti_op_linear_cross_entropy;
        t->in[2] = t->in[1];
        t->in[1] = logits->in[1];
        t->in[0] = logits->in[0];
        t->inputs = 3;
    } else if (t->op != &gckpti_op_linear_cross_entropy || form == LAST) {
        return 0;
    }
    if (form < LAST) {
        if (t->attribute_bytes)
            o = *(const gckpti_head *)t->attributes;
        o.once = rows[form - 1];
        t->attributes = gckpti_scratch_copy(&p->scratch, &o, 1, sizeof o);
        t->attribute_bytes = o.cap > 0.0f ? sizeof o : offsetof(gckpti_head, cap);
        t->aux_bytes = 0;
    }
    return 1;
}

/* Whether `as` may run in place of t. A tensor it does not read any more is not computed: nobody
 * else may want it, nor may its rounding be part of the numbers; and what sent gradients to the
 * inputs of that tensor sends them from t, so nobody may add to them in between. */
static int gckpti_form_fits(const gckpti_planner *p, const gckpt_tensor *t, const gckpt_tensor *as)
{
    const gckpt_tensor *gone = t->in[0]->base;
    if (t->batchless || !(p->active[t->id] & GCKPTI_RUNS) || p->desc->precision == GCKPT_BF16_FAST)
        return 0; /* a backend's fast kernels have one form */
    if (as->in[0]->base == gone)
        return 1;
    if (gone->keep || gone->recompute || p->rounding[gone->id])
        return 0;
    for (int i = 0; i < p->desc->fetches; i++)
        if (p->desc->fetch[i].tensor && p->desc->fetch[i].tensor->base == gone)
            return 0;
    for (int i = gone->id + 1; i < p->n; i++) {
        const gckpt_tensor *user = p->g->tensors[i];
        for (int k = 0; user != t && user->kind == GCKPTI_OP && k < user->inputs; k++) {
            const gckpt_tensor *q = user->in[k]->base;
            if (q == gone || (i < t->id && (q == as->in[0]->base || q == as->in[1]->base)))
                return 0;
        }
    }
    return 1;
}

/* Puts what runs in the planner's form in place of what was built: an op that has fewer forms takes
 * its last. */
GCKPTI_FN void gckpti_take_form(gckpti_planner *p)
{
    for (int i = 0; i < p->n && !p->failed; i++) {
        const gckpt_tensor *t = p->g->tensors[i];
        for (int form = gckpti_is_loss(t) ? p->variant.form : 0; form > 0; form--) {
            gckpt_tensor as = *t;
            if (!gckpti_form(p, &as, form) || (as.attribute_bytes && !as.attributes) ||
                !gckpti_form_fits(p, t, &as))
                continue;
            p->tensors[i] =
                (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &as, 1, sizeof as);
            p->offered = p->offered || form == p->variant.form;
            break;
        }
    }
}

/* Bytes that an op, which runs forward and backward once, takes beside its operands. */
static size_t gckpti_bytes_beside(const gckpti_planner *p, int id)
{
    size_t forward = p->work_forward[id], backward = p->work_backward[id];
    return p->tensors[id]->aux_bytes + (forward > backward ? forward : backward);
}

GCKPTI_FN int gckpti_is_of_use(const gckpti_planner *q, const gckpti_planner *p)
{
    int better = p->units != q->units || p->link_count != q->link_count;
    for (int i = 0; i < p->n && !better; i++)
        better =
            q->cost[i].forward + q->cost[i].backward < p->cost[i].forward + p->cost[i].backward ||
            gckpti_bytes_beside(q, i) < gckpti_bytes_beside(p, i);
    return better;
}

GCKPTI_WARM
