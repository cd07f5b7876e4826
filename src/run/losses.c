#include "run/own.h"
#include "num/num.h"

/* The term whose loss node `id` is; -1: none. */
GCKPTI_FN int gckpti_term_of(const gckpt_plan *p, int id)
{
    for (size_t i = 0; i < p->term_count; i++)
        if (p->terms[i].id == id)
            return (int)i;
    return -1;
}

/* What a loss adds to now; regularisers have no leaves. */
GCKPTI_FN gckpti_loss_total *gckpti_loss_at(const gckpt_exec *e, int term)
{
    const gckpt_plan *p = e->plan;
    int leaf = gckpti_crew_of(e) && !p->terms[term].regulariser ? gckpti_crew_of(e)->leaf : 0;
    return &e->losses.totals[term * gckpti_own_leaves(p) + leaf];
}

/* What the losses counted and summed up so far; the backend is waited for. */
GCKPTI_FN gckpt_result gckpti_read_losses(gckpt_exec *e)
{
    gckpt_result result = gckpti_wait(e);
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < e->plan->term_count; i++)
        if (!gckpti_crew_of(e) ||
            e->plan->terms[i].regulariser) /* else they are summed up already */
            gckpti_on(e)->copy_out(gckpti_on(e)->context, &e->losses.terms[i].seen,
                                   gckpti_loss_at(e, (int)i), sizeof *e->losses.totals);
    return GCKPT_OK;
}

GCKPTI_FN int64_t gckpti_count(const gckpt_exec *e)
{
    return e->losses.terms[0].expected >= 0 ? e->losses.terms[0].expected
                                            : e->losses.terms[0].seen.count;
}

/* What the gradient of a loss's sum is worth in units of the first loss's count (manual, 3). */
GCKPTI_FN float gckpti_loss_scale(gckpt_exec *e, int term)
{
    const gckpti_plan_term *t = &e->plan->terms[term];
    float weight = gckpti_float(t->weight);
    double own = (double)e->losses.terms[term].expected;
    if (term == 0)
        return weight;
    if (t->regulariser && e->losses.terms[0].expected < 0)
        (void)gckpti_read_losses(e); /* an error comes again before the first update */
    if (t->regulariser)
        return (float)((double)weight * (double)gckpti_count(e));
    if (e->step.streamed) /* the same count */
        return weight;
    return own > 0 ? (float)((double)weight * (double)gckpti_count(e) / own) : 0;
}

/* What a loss will count over all rows. What does not depend on the batch, or mixes its rows, is
 * counted once a micro-batch. */
static int64_t gckpti_expected_count(const gckpt_exec *e, int id, int64_t unit, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[id];
    const gckpti_node *q = &p->nodes[p->nodes[node->in[gckpti_counted(node->op)]].base];
    int64_t n = gckpti_elements(&q->shape), times = gckpti_crew_batches(e, rows), ignored = 0;
    if (!q->batchless && n % p->rows == 0) {
        n = n / p->rows * rows;
        times = 1;
    }
    for (int64_t k = 0; q->type == GCKPT_I32 && k < n; k++)
        ignored += gckpti_indices(e, q)[k] < 0;
    return (n - ignored) / unit * times;
}

/* Adds what each loss will count over the rows just fed, where a rule says what that is: the loss
 * has GCKPT_COUNTS_FEEDS, or there are several, which then must keep to it (check_counts). */
GCKPTI_FN void gckpti_expect_counts(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->term_count; i++)
        if (e->losses.terms[i].expected >= 0)
            e->losses.terms[i].expected +=
                gckpti_expected_count(e, p->terms[i].id, p->terms[i].unit, rows);
}

/* Before the first rows: 0 where they will be counted, -1 where they cannot be. */
GCKPTI_FN void gckpti_start_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int several = 0;
    for (size_t i = 1; i < p->term_count; i++)
        several = several || !p->terms[i].regulariser;
    for (size_t i = 0; i < p->term_count; i++) {
        const gckpti_node *node = &p->nodes[p->terms[i].id];
        int rule = node->op->flags & GCKPT_COUNTS_FEEDS || (several && !e->step.streamed);
        memset(&e->losses.terms[i], 0, sizeof e->losses.terms[i]);
        e->losses.terms[i].expected = rule && !node->batchless ? 0 : -1;
    }
}

/* Streaming cannot count ahead: all losses of the batch must share the first one's count. */
GCKPTI_FN gckpt_result gckpti_check_streaming(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *first = &p->nodes[p->terms[0].id];
    for (size_t i = 1; i < p->term_count; i++) {
        const gckpti_node *node = &p->nodes[p->terms[i].id];
        const gckpti_node *a = &p->nodes[first->in[gckpti_counted(first->op)]];
        const gckpti_node *b = &p->nodes[node->in[gckpti_counted(node->op)]];
        int same = a->type == b->type &&
                   (a->type == GCKPT_I32 ? a->base == b->base
                                         : gckpti_elements(&a->shape) / p->terms[0].unit ==
                                               gckpti_elements(&b->shape) / p->terms[i].unit);
        if (!p->terms[i].regulariser && !same)
            return gckpti_error(
                e, GCKPT_E_ARG,
                "step_begin: loss %s #%i has a count of its own, which is not known while rows "
                "stream in; use gckpt_step",
                node->op->name, p->terms[i].id);
    }
    return GCKPT_OK;
}

/* In a step that changes anything, losses count what the feeds say. */
GCKPTI_FN gckpt_result gckpti_check_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int trains = p->mode != GCKPT_INFERENCE && (gckpti_count(e) || e->losses.terms[0].seen.count);
    for (size_t i = 0; i < p->term_count && trains; i++)
        if (e->losses.terms[i].expected >= 0 &&
            e->losses.terms[i].expected != e->losses.terms[i].seen.count)
            return gckpti_error(
                e, GCKPT_E_DATA,
                "step: loss %s #%i counted %I; its feeds say %I. A loss that counts in its own "
                "way can only be the first of a plan",
                p->nodes[p->terms[i].id].op->name, p->terms[i].id, e->losses.terms[i].seen.count,
                e->losses.terms[i].expected);
    return GCKPT_OK;
}

/* Before anything is changed: the first loss's count, and that all counted as they should. Where
 * all have promised so nothing waits for it, and a broken promise shows at the end of the step. */
GCKPTI_FN gckpt_result gckpti_settle_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int promised = gckpti_on(e)->own_memory;
    gckpt_result result = GCKPT_OK;
    for (size_t i = 0; i < p->term_count; i++)
        promised = promised && (p->terms[i].regulariser ||
                                p->nodes[p->terms[i].id].op->flags & GCKPT_COUNTS_FEEDS);
    if (!e->losses.settled && !promised)
        result = gckpti_read_losses(e);
    if (!e->losses.settled && !promised && result == GCKPT_OK)
        result = gckpti_check_counts(e);
    e->losses.settled = result == GCKPT_OK;
    return result;
}
