#ifndef GCKPT_NO_DEBUG
#include "run/own.h"
#include "num/num.h"
#include "graph/graph.h"

/* ---- GCKPT_DEBUG_FINITE: who made the first NaN or infinity? ---- */
enum { GCKPTI_A_NAN = 1, GCKPTI_AN_INFINITY = 2 };

GCKPTI_FN void gckpti_see(gckpti_look *s, double x, int id, int gradient, int64_t at)
{
    unsigned kind = gckpti_finite(x) ? 0 : x != x ? GCKPTI_A_NAN : GCKPTI_AN_INFINITY;
    s->kinds |= kind;
    if (s->id < 0 && kind & s->sought) {
        s->id = id;
        s->gradient = gradient;
        s->at = at;
        s->value = x;
    }
}

/* All n floats of an array of the backend's, or as many bf16. NULL: none. */
static void gckpti_see_all(const gckpt_exec *e, gckpti_look *s, const void *x, int narrow,
                           int64_t n, int id, int gradient)
{
    const unsigned char *next = (const unsigned char *)x;
    for (int64_t at = 0, piece; next && at < n; at += piece) {
        float wide[64];
        uint16_t half[64];
        piece = gckpti_min(n - at, 64);
        size_t bytes = (size_t)piece * (narrow ? sizeof *half : sizeof *wide);
        gckpti_on(e)->copy_out(gckpti_on(e)->context, narrow ? (void *)half : (void *)wide, next,
                               bytes);
        next += bytes;
        for (int64_t i = 0; i < piece; i++)
            gckpti_see(s, (double)(narrow ? gckpti_from_bf16(half[i]) : wide[i]), id, gradient,
                       at + i);
    }
}

/* A node's value or gradient in this micro-batch; scratch: as floats, whatever the plan keeps. */
static void gckpti_see_node(const gckpt_exec *e, gckpti_look *s, const void *x, int id,
                            int gradient, int scratch)
{
    const gckpti_node *q = &e->plan->nodes[id];
    gckpt_shape shape = gckpti_node_shape(e, q, gckpti_micro_rows(e));
    int narrow = q->rounding & (gradient ? GCKPTI_NARROW_GRADIENT : GCKPTI_NARROW_VALUE);
    if ((x || gradient || !gckpti_see_stored(e, s, id)) && q->type == GCKPT_F32)
        gckpti_see_all(e, s, x, narrow && !scratch, gckpti_elements(&shape), id, gradient);
}

/* What an instruction is about to read, or has written. */
GCKPTI_FN void gckpti_see_operands(const gckpt_exec *e, gckpti_look *s, const gckpti_ins *ins,
                                   int written)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    int backward = ins->kind == GCKPT_BACKWARD, cache = gckpti_is_cache(node->op);
    int loss = node->op && node->op->flags & GCKPT_LOSS;
    unsigned needs = backward ? 0 : UINT32_MAX;
    gckpti_operands o;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    for (int i = 0; i < node->inputs && backward; i++)
        needs |= o.in[i].gradient != GCKPTI_NONE ? node->op->needs[i] : 0;
    if (loss && (!backward || node->op->flags & GCKPTI_LATE)) {
        gckpti_loss_total sum;
        gckpti_on(e)->copy_out(gckpti_on(e)->context, &sum,
                               gckpti_loss_at(e, gckpti_term_of(p, ins->id)), sizeof sum);
        gckpti_see(s, sum.sum, ins->id, 0, -1);
    } else if (!loss && written != backward) { /* a forward's; a backward reads it, perhaps */
        gckpti_see_node(e, s, cache ? e->bound.nodes[ins->id].data : gckpti_at_any(e, o.out),
                        ins->id, 0, 0);
    }
    if (backward && !written)
        gckpti_see_node(e, s, gckpti_at_any(e, o.gradient), ins->id, 1, 0);
    for (int u = 1; u < ins->uses && !written; u++)
        gckpti_see_node(e, s, gckpti_at_any(e, o.more[u - 1]), ins->id, 1, 0);
    for (int i = 0; i < node->inputs; i++) {
        int id = p->nodes[node->in[i]].base, apart = o.in[i].total != GCKPTI_NONE;
        if (!written && needs & GCKPT_IN(i))
            gckpti_see_node(e, s,
                            o.in[i].value != GCKPTI_NONE ? gckpti_at_any(e, o.in[i].value)
                                                         : e->bound.nodes[id].data,
                            id, 0, 0);
        if (backward && (written || (ins->accumulate & ~ins->zero) >> i & 1))
            gckpti_see_node(e, s, gckpti_at_any(e, o.in[i].gradient), id, 1, apart);
        if (backward)
            gckpti_see_node(e, s, gckpti_at_any(e, o.in[i].total), id, 1, 0);
    }
}

/* The error about what was seen: who made it, and what is known. */
static gckpt_result gckpti_not_finite(gckpt_exec *e, const gckpti_look *s, const char *who,
                                      const char *name, const char *why)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *q = &p->nodes[s->id];
    int64_t rows = gckpti_micro_rows(e), left = s->at;
    gckpt_shape shape = gckpti_node_shape(e, q, rows), at = shape;
    char where[112] = "";
    gckpti_text t = { where, sizeof where - 1 };
    for (int i = at.n; i-- > 0; left /= shape.d[i])
        at.d[i] = left % shape.d[i];
    if (s->at >= 0)
        gckpti_text_add(&t, " at %S of %S", &at, &shape);
    if (s->at >= 0 && !q->batchless && gckpti_elements(&shape) >= rows)
        gckpti_text_add(&t, ", row %I of the batch",
                        e->step.row + s->at / (gckpti_elements(&shape) / rows));
    return gckpti_error(e, GCKPT_E_DATA, "finite: %s%s made %g in %s \"%s\" #%i%s; %s", who, name,
                        s->value,
                        s->at < 0     ? "the sum of"
                        : s->gradient ? "the gradient of"
                                      : "the value of",
                        gckpti_node_name(p, s->id), s->id, where, why);
}

/* What an instruction wrote, when it had read such kinds. */
GCKPTI_FN gckpt_result gckpti_check_finite(gckpt_exec *e, const gckpti_ins *ins, unsigned read)
{
    gckpti_look s = { 0, GCKPTI_A_NAN | GCKPTI_AN_INFINITY, -1, 0, 0, 0 };
    const gckpti_node *node = &e->plan->nodes[ins->id];
    if (read || node->kind == GCKPTI_PARAM) /* a NaN may come of a NaN, an infinity of either */
        s.sought = read & GCKPTI_A_NAN ? 0u : (unsigned)GCKPTI_A_NAN;
    gckpti_see_operands(e, &s, ins, 1);
    if (s.id < 0)
        return GCKPT_OK;
    const char *why = read ? "it read infinities, but no NaN; nothing was changed"
                           : "all it read is finite; nothing was changed";
    if (e->update.begun) /* in the backward */
        why = "parameters have changed, go back to what was saved";
    return gckpti_not_finite(e, &s, ins->kind == GCKPT_FORWARD ? "forward of " : "backward of ",
                             node->op ? node->op->name : "param", why);
}

/* A parameter's gradient before its update, and what that made of it. */
GCKPTI_FN gckpt_result gckpti_check_update(gckpt_exec *e, const gckpti_ins *ins, int done)
{
    const gckpt_plan *p = e->plan;
    const gckpti_param *q = &e->store->params[e->bound.params[ins->id].index];
    gckpti_look s = { 0, GCKPTI_A_NAN | GCKPTI_AN_INFINITY, -1, 0, 0, 0 };
    int id = p->params[ins->id].node;
    gckpt_pass pass;
    gckpti_pass_start(e, ins, &pass);
    if (!done)
        gckpti_see_all(e, &s, pass.gradient, 0, pass.elements, id, 1);
    int slot = done ? -1 : p->state_slots;
    for (; slot < p->state_slots && s.id < 0; slot++)
        gckpti_see_all(e, &s, slot < 0 ? pass.values : gckpti_values_here(e, q, slot), 0,
                       pass.elements, id, 0);
    s.at += pass.elements < q->p.elements ? q->p.first : 0;
    const char *who = !done      ? "the batch"
                      : slot > 0 ? "the update's optimiser state"
                                 : "the update";
    const char *why = "nothing was changed";
    if (done || e->update.begun)
        why = "lower lr, or clip; parameters have changed, go back to what was saved";
    return s.id < 0 ? GCKPT_OK : gckpti_not_finite(e, &s, who, "", why);
}

/* A parameter or constant that a step begins with, n values from `first` on: NaN, or, where it
 * is trained, an infinity. */
GCKPTI_FN gckpt_result gckpti_check_leaf(gckpt_exec *e, int id, const void *values, int64_t first,
                                         int64_t n, int trained)
{
    gckpti_look s = { 0, GCKPTI_A_NAN, -1, 0, 0, 0 };
    s.sought |= trained ? GCKPTI_AN_INFINITY : 0;
    if (!gckpti_see_stored(e, &s, id))
        gckpti_see_all(e, &s, e->plan->nodes[id].type == GCKPT_F32 ? values : NULL, 0, n, id, 0);
    return s.id < 0 ? GCKPT_OK
                    : gckpti_error(e, GCKPT_E_DATA,
                                   "finite: \"%s\" is %g at position %I: an earlier step, or "
                                   "what was loaded or set, made it so",
                                   gckpti_node_name(e->plan, id), s.value, first + s.at);
}

/* What is fed: an infinity may be meant, a NaN is not. */
GCKPTI_FN gckpt_result gckpti_check_fed(gckpt_exec *e, const gckpti_exec_input *in, int64_t rows)
{
    const gckpti_node *q = &e->plan->nodes[in->node];
    int64_t row = (int64_t)(gckpti_row_bytes(e->plan, q) / sizeof(float)), n = row * rows;
    const void *fed = in->feed;
    const float *x = (const float *)fed;
    for (int64_t i = 0; i < n && q->type == GCKPT_F32; i++)
        if (x[i] != x[i])
            return gckpti_error(
                e, GCKPT_E_DATA,
                "finite: \"%s\": NaN was fed at row %I, position %I; look at the data",
                e->plan->names + q->name, e->step.row_end + i / row, i % row);
    return GCKPT_OK;
}
#endif
