#include "run/internal.h"
#include "graph/graph.h"
#include "num/num.h"

/* Returns the values of an i32 constant or input: all rows of the latest feeds. */
static const int32_t *gckpti_indices(const gckpt_exec *e, const gckpti_plan_node *q)
{
    const void *data = q->kind == GCKPTI_CONSTANT ? q->data : e->feeds.inputs[q->index].feed;
    return (const int32_t *)data;
}

/* Checks the range of i32 input i of a node, in all rows. */
static gckpt_result gckpti_check_indices(gckpt_exec *e, const gckpti_plan_node *node, int id, int i,
                                         int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *q = &p->nodes[p->nodes[node->in[i]].base];
    if (q->kind == GCKPTI_OP) /* checked when the graph was built */
        return GCKPT_OK;
    const int32_t *index = gckpti_indices(e, q);
    int ignores = node->op->flags & GCKPT_LOSS && i == gckpti_counted_input(node->op);
    gckpt_call c;
    gckpti_init_op_call(e, node, id, p->rows, &c);
    int64_t limit = node->op->classes(&c, i), per_row = gckpti_planned_elements(p, q), n = per_row;
    if (q->kind != GCKPTI_CONSTANT) {
        per_row /= p->rows;
        n = per_row * rows;
    }
    for (int64_t k = 0; k < n && limit; k++)
        if (index[k] >= limit || (index[k] < 0 && !ignores))
            return gckpti_error(e, GCKPT_E_DATA,
                                "\"%s\": index %i at row %I, position %I: %s #%i takes 0 to %I",
                                p->names + q->name, (int)index[k], k / per_row, k % per_row,
                                node->op->name, id, limit - 1);
    return GCKPT_OK;
}

/* Assigns each feed to its input; every input that is read must have one. */
static gckpt_result gckpti_match_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count)
{
    const gckpt_plan *p = e->plan;
    if (count < 0 || (count > 0 && !feeds))
        return gckpti_error(e, GCKPT_E_ARG, "feeds: NULL or a negative count");
    for (size_t i = 0; i < p->inputs; i++)
        e->feeds.inputs[i].feed = NULL;
    for (int i = 0; i < count; i++) {
        const gckpti_plan_node *q = NULL;
        if (feeds[i].input >= 0 && (size_t)feeds[i].input < p->node_count)
            q = &p->nodes[p->nodes[feeds[i].input].base];
        if (!q || q->kind != GCKPTI_INPUT || !feeds[i].data)
            return gckpti_error(
                e, GCKPT_E_ARG, "feed %i: %s", i,
                !feeds[i].data
                    ? "its data is NULL, or (GCKPT_FEED) not of the type of its input"
                    : "its id is not that of an input (gckpt_id of a gckpt_input tensor)");
        if (e->feeds.inputs[q->index].feed)
            return gckpti_error(e, GCKPT_E_ARG, "feed %i: input \"%s\" is fed twice", i,
                                p->names + q->name);
        e->feeds.inputs[q->index].feed = (const unsigned char *)feeds[i].data;
    }
    for (size_t i = 0; i < p->inputs; i++)
        if (e->feeds.inputs[i].node >= 0 && !e->feeds.inputs[i].feed)
            return gckpti_error(e, GCKPT_E_ARG, "input \"%s\" is not fed",
                                p->names + p->nodes[e->feeds.inputs[i].node].name);
    return GCKPT_OK;
}

/* Takes the feeds for the next rows of the step, and checks their indices. */
GCKPTI_FN gckpt_result gckpti_take_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                         int64_t rows)
{
    const gckpt_plan *p = e->plan;
    gckpt_result result = gckpti_match_feeds(e, feeds, count);
    for (size_t x = 0; x < p->length && result == GCKPT_OK; x++) {
        const gckpti_ins *ins = &p->ins[x];
        const gckpti_plan_node *node =
            ins->kind == GCKPT_FORWARD && ins->first ? &p->nodes[ins->id] : NULL;
        for (int i = 0; node && node->op && node->op->classes && i < node->inputs; i++)
            if (node->op->flags & GCKPT_INDEX(i) && result == GCKPT_OK)
                result = gckpti_check_indices(e, node, ins->id, i, rows);
    }
    if (result == GCKPT_OK)
        result = gckpti_check_finite_feeds(e, rows);
    for (size_t i = 0; i < p->inputs && result == GCKPT_OK; i++) {
        gckpti_exec_input *in = &e->feeds.inputs[i];
        if (!in->copy)
            continue;
        memcpy(in->copy, in->feed, gckpti_row_bytes(p, &p->nodes[in->node]) * (size_t)rows);
        in->feed = in->copy;
    }
    return result;
}

GCKPTI_FN void gckpti_feed_rows(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->inputs; i++) {
        const gckpti_exec_input *in = &e->feeds.inputs[i];
        if (in->node < 0)
            continue;
        size_t row = gckpti_row_bytes(p, &p->nodes[in->node]);
        const unsigned char *rows = in->feed + (size_t)(e->step.row - e->feeds.first_row) * row;
        if (in->backend_copy)
            gckpti_to_backend(e, in->backend_copy, rows, row * (size_t)gckpti_micro_rows(e));
        e->tables.nodes[in->node].data = in->backend_copy ? in->backend_copy : rows;
    }
}

/* ---- counts and sums of losses ---- */
/* Returns the loss term whose loss is node `id`, or -1. */
GCKPTI_FN int gckpti_term_of(const gckpt_plan *p, int id)
{
    for (size_t i = 0; i < p->term_count; i++)
        if (p->terms[i].id == id)
            return (int)i;
    return -1;
}

/* Returns the total that a loss adds to now: of this virtual rank, except for regularisers. */
GCKPTI_FN gckpti_loss_total *gckpti_running_loss(const gckpt_exec *e, int term)
{
    const gckpt_plan *p = e->plan;
    int vrank = p->terms[term].regulariser ? 0 : e->step.vrank;
    return &e->losses.totals[term * gckpti_local_vranks(p) + vrank];
}

/* Waits for the backend and copies counts and sums of the losses to the host. */
static gckpt_result gckpti_read_losses(gckpt_exec *e)
{
    gckpt_result result = gckpti_wait_backend(e);
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < e->plan->term_count; i++)
        if (!gckpti_group_of(e) || e->plan->terms[i].regulariser) /* else gckpti_sum_losses did */
            gckpti_from_backend(e, &e->losses.terms[i].total, gckpti_running_loss(e, (int)i),
                                sizeof *e->losses.totals);
    return GCKPT_OK;
}

GCKPTI_FN int64_t gckpti_loss_count(const gckpt_exec *e)
{
    return e->losses.terms[0].expected >= 0 ? e->losses.terms[0].expected
                                            : e->losses.terms[0].total.count;
}

/* Returns the factor of the gradient of a loss's sum, relative to the first loss (manual, 3). */
GCKPTI_FN float gckpti_loss_scale(gckpt_exec *e, int term)
{
    const gckpti_plan_term *t = &e->plan->terms[term];
    float weight = gckpti_float(t->weight);
    double count = (double)e->losses.terms[term].expected;
    if (term == 0)
        return weight;
    if (t->regulariser && e->losses.terms[0].expected < 0)
        (void)gckpti_read_losses(e); /* an error shows again before the first update */
    if (t->regulariser)
        return (float)((double)weight * (double)gckpti_loss_count(e));
    if (gckpti_is_streaming(e)) /* the same count */
        return weight;
    return count > 0 ? (float)((double)weight * (double)gckpti_loss_count(e) / count) : 0;
}

/* Adds to each loss's expected count that of the rows just fed, if it follows from the feeds: the
 * loss has GCKPT_COUNT_FROM_FEEDS, or there are several losses (gckpti_check_counts checks them). A
 * batch-invariant input, or one that mixes rows, counts once a micro-batch. */
GCKPTI_FN void gckpti_expect_counts(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->term_count; i++) {
        const gckpti_plan_node *node = &p->nodes[p->terms[i].id];
        if (e->losses.terms[i].expected < 0)
            continue;
        const gckpti_plan_node *q =
            &p->nodes[p->nodes[node->in[gckpti_counted_input(node->op)]].base];
        int64_t n = gckpti_planned_elements(p, q);
        int64_t times = gckpti_count_micro_batches(e, rows), ignored = 0;
        if (!q->batch_invariant && n % p->rows == 0) {
            n = n / p->rows * rows;
            times = 1;
        }
        for (int64_t k = 0; q->type == GCKPT_I32 && q->kind != GCKPTI_OP && k < n; k++)
            ignored += gckpti_indices(e, q)[k] < 0;
        e->losses.terms[i].expected += (n - ignored) / p->terms[i].sample_size * times;
    }
}

/* Sets expected counts to 0, or to -1 if they do not follow from the feeds. */
GCKPTI_FN void gckpti_init_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int several = 0;
    for (size_t i = 1; i < p->term_count; i++)
        several = several || !p->terms[i].regulariser;
    for (size_t i = 0; i < p->term_count; i++) {
        const gckpti_plan_node *node = &p->nodes[p->terms[i].id];
        int rule = node->op->flags & GCKPT_COUNT_FROM_FEEDS || (several && !gckpti_is_streaming(e));
        memset(&e->losses.terms[i], 0, sizeof e->losses.terms[i]);
        e->losses.terms[i].expected = rule && !node->batch_invariant ? 0 : -1;
    }
}

/* Checks that all losses of the batch have the same count, since rows stream in. */
GCKPTI_FN gckpt_result gckpti_check_same_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *first = &p->nodes[p->terms[0].id];
    for (size_t i = 1; i < p->term_count; i++) {
        const gckpti_plan_node *node = &p->nodes[p->terms[i].id];
        const gckpti_plan_node *a = &p->nodes[first->in[gckpti_counted_input(first->op)]];
        const gckpti_plan_node *b = &p->nodes[node->in[gckpti_counted_input(node->op)]];
        int same =
            a->type == b->type &&
            (a->type == GCKPT_I32 ? a->base == b->base
                                  : gckpti_planned_elements(p, a) / p->terms[0].sample_size ==
                                        gckpti_planned_elements(p, b) / p->terms[i].sample_size);
        if (!p->terms[i].regulariser && !same)
            return gckpti_error(
                e, GCKPT_E_ARG,
                "step_begin: loss %s #%i has a count of its own, which is not known while rows "
                "stream in; use gckpt_step",
                node->op->name, p->terms[i].id);
    }
    return GCKPT_OK;
}

/* Reads the losses. If the step trains, their counts must be the expected ones. */
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
                "step: loss %s #%i counted %I; its feeds say %I. A loss that counts in its own "
                "way can only be the first of a plan",
                p->nodes[p->terms[i].id].op->name, p->terms[i].id, e->losses.terms[i].total.count,
                e->losses.terms[i].expected);
    return GCKPT_OK;
}

GCKPTI_FN int gckpti_has_known_counts(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int known = gckpti_backend(e)->own_memory && !gckpti_is_inference(p);
    for (size_t i = 0; i < p->term_count; i++)
        known = known && (p->terms[i].regulariser ||
                          p->nodes[p->terms[i].id].op->flags & GCKPT_COUNT_FROM_FEEDS);
    return known;
}

/* Before the first update, checks the counts of losses, unless all are known from the feeds. */
GCKPTI_FN gckpt_result gckpti_finalize_counts(gckpt_exec *e)
{
    gckpt_result result = GCKPT_OK;
    if (!e->losses.finalized && !gckpti_has_known_counts(e))
        result = gckpti_check_counts(e);
    e->losses.finalized = result == GCKPT_OK;
    return result;
}
