#include "run/internal.h"
#include "graph/graph.h"
#include "num/num.h"

/* Returns the loss term whose loss is node `id`; a plan runs no other losses. */
GCKPTI_FN int gckpti_term_of(const gckpt_plan *p, int id)
{
    int i = 0;
    while (p->terms[i].id != id)
        i++;
    return i;
}

/* Waits for the backend and copies counts and sums of the losses to the host. */
static gckpt_result gckpti_read_losses(gckpt_exec *e)
{
    gckpt_result result = gckpti_wait_backend(e);
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < e->plan->term_count; i++)
        if (!gckpti_group_of(e) || e->plan->terms[i].regulariser) /* else gckpti_sum_losses did */
            gckpti_from_backend(e, &e->losses.terms[i].total, &e->losses.totals[i],
                                sizeof *e->losses.totals);
    return GCKPT_OK;
}

GCKPTI_FN int64_t gckpti_loss_count(const gckpt_exec *e)
{
    return e->losses.terms[0].expected >= 0 ? e->losses.terms[0].expected
                                            : e->losses.terms[0].total.count;
}

/* Returns the factor of a loss's gradient: updates divide by the first loss's count (manual, 3). */
GCKPTI_FN float gckpti_loss_scale(gckpt_exec *e, int term)
{
    const gckpti_plan_term *t = &e->plan->terms[term];
    float weight = gckpti_float(t->weight);
    double count = (double)e->losses.terms[term].expected;
    if (term == 0)
        return weight;
    if (t->regulariser && e->losses.terms[0].expected < 0)
        (void)gckpti_read_losses(e); /* an error is returned again before the first update */
    if (t->regulariser)
        return (float)((double)weight * (double)gckpti_loss_count(e));
    return count > 0 ? (float)((double)weight * (double)gckpti_loss_count(e) / count) : 0;
}

/* Adds the count of the rows just fed to the expected count of each loss, or sets it to -1 if feeds
 * do not determine it. The rows are counted in the input that the loss reads. An input that is
 * batch-invariant, or whose size is no multiple of the rows, counts once per micro-batch. */
GCKPTI_FN void gckpti_expect_counts(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    int several = 0;
    for (size_t i = 1; i < p->term_count; i++)
        several = several || !p->terms[i].regulariser;
    for (size_t i = 0; i < p->term_count; i++) {
        const gckpti_plan_node *node = &p->nodes[p->terms[i].id];
        const gckpti_plan_node *q =
            &p->nodes[p->nodes[node->in[gckpti_counted_input(node->op)]].base];
        int64_t n = gckpti_planned_elements(p, q);
        int64_t times = gckpti_count_micro_batches(e, rows), ignored = 0;
        if (node->batch_invariant || !(several || node->op->flags & GCKPT_COUNT_FROM_FEEDS)) {
            e->losses.terms[i].expected = -1;
            continue;
        }
        if (!q->batch_invariant && n % p->rows == 0) {
            n = n / p->rows * rows;
            times = 1;
        }
        for (int64_t k = 0; q->type == GCKPT_I32 && q->kind != GCKPTI_OP && k < n; k++)
            ignored += gckpti_indices(e, q)[k] < 0;
        e->losses.terms[i].expected += (n - ignored) / p->terms[i].sample_size * times;
    }
}

/* Reads the losses. In a step that trains, checks each count that the feeds determine. */
GCKPTI_FN gckpt_result gckpti_check_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_result result = gckpti_read_losses(e);
    if (result != GCKPT_OK || gckpti_is_inference(p))
        return result;
    int trains = gckpti_loss_count(e) || e->losses.terms[0].total.count;
    for (size_t i = 0; i < p->term_count && trains; i++)
        if (e->losses.terms[i].expected >= 0 &&
            e->losses.terms[i].expected != e->losses.terms[i].total.count)
            return gckpti_error(
                e, GCKPT_E_DATA,
                "step: loss %s #%i counted %I; its feeds say %I. A loss with a count of its own "
                "must be the plan's only loss besides regularisers, without GCKPT_COUNT_FROM_FEEDS",
                p->nodes[p->terms[i].id].op->name, p->terms[i].id, e->losses.terms[i].total.count,
                e->losses.terms[i].expected);
    return GCKPT_OK;
}
