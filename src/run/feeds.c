#include "run/own.h"
#include "graph/graph.h"
#include "ask/ask.h"

/* ---- a step ---- */

static const int32_t *gckpti_indices(const gckpt_exec *e, const gckpti_node *q)
{
    const void *data = q->kind == GCKPTI_CONSTANT ? q->data : e->inputs[q->index].feed;
    return (const int32_t *)data;
}

/* The values of i32 input i of a node, in all rows. */
static gckpt_result gckpti_check_indices(gckpt_exec *e, const gckpti_node *node, int id, int i,
                                         int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *q = &p->nodes[p->nodes[node->in[i]].base];
    const int32_t *index = gckpti_indices(e, q);
    int ignores = node->op->flags & GCKPT_LOSS && i == gckpti_counted(node->op);
    gckpt_call c;
    gckpti_call_start(e, node, id, p->rows, &c);
    int64_t limit = node->op->classes(&c, i), per_row = gckpti_elements(&q->shape), n = per_row;
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

/* Which input each feed is for; every input that is read must have one. */
static gckpt_result gckpti_match_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count)
{
    const gckpt_plan *p = e->plan;
    if (count < 0 || (count > 0 && !feeds))
        return gckpti_error(e, GCKPT_E_ARG, "feeds: NULL or a negative count");
    for (size_t i = 0; i < p->inputs; i++)
        e->inputs[i].feed = NULL;
    for (int i = 0; i < count; i++) {
        const gckpti_node *q = NULL;
        if (feeds[i].input >= 0 && (size_t)feeds[i].input < p->node_count)
            q = &p->nodes[p->nodes[feeds[i].input].base];
        if (!q || q->kind != GCKPTI_INPUT || !feeds[i].data)
            return gckpti_error(
                e, GCKPT_E_ARG, "feed %i: %s", i,
                !feeds[i].data
                    ? "its data is NULL"
                    : "its id is not that of an input (gckpt_id of a gckpt_input tensor)");
        if (e->inputs[q->index].feed)
            return gckpti_error(e, GCKPT_E_ARG, "feed %i: input \"%s\" is fed twice", i,
                                p->names + q->name);
        e->inputs[q->index].feed = (const unsigned char *)feeds[i].data;
    }
    for (size_t i = 0; i < p->inputs; i++)
        if (e->inputs[i].node >= 0 && !e->inputs[i].feed)
            return gckpti_error(e, GCKPT_E_ARG, "input \"%s\" is not fed",
                                p->names + p->nodes[e->inputs[i].node].name);
    return GCKPT_OK;
}

GCKPTI_FN void gckpti_feed_rows(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->inputs; i++) {
        const gckpti_exec_input *in = &e->inputs[i];
        if (in->node < 0)
            continue;
        size_t row = gckpti_row_bytes(p, &p->nodes[in->node]);
        const unsigned char *rows = in->feed + (size_t)(e->row - e->feed_row) * row;
        if (in->on_backend)
            gckpti_on(e)->copy_in(gckpti_on(e)->context, in->on_backend, rows,
                                  row * (size_t)gckpti_micro_rows(e));
        e->nodes[in->node].data = in->on_backend ? in->on_backend : rows;
    }
}

/* GCKPT_DEBUG_FINITE: an infinity may be meant, a NaN is not. */
static gckpt_result gckpti_check_fed(gckpt_exec *e, const gckpti_exec_input *in, int64_t rows)
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
                e->plan->names + q->name, e->row_end + i / row, i % row);
    return GCKPT_OK;
}

/* Takes the feeds for the next rows of the step and checks what indices they hold. */
GCKPTI_FN gckpt_result gckpti_take_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                         int64_t rows)
{
    const gckpt_plan *p = e->plan;
    gckpt_result result = gckpti_match_feeds(e, feeds, count);
    for (size_t x = 0; x < p->length && result == GCKPT_OK; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_node *node =
            ins->kind == GCKPT_FORWARD && ins->first ? &p->nodes[ins->id] : NULL;
        for (int i = 0; node && node->op && node->op->classes && i < node->inputs; i++)
            if (node->op->flags & GCKPT_INDEX(i) && result == GCKPT_OK)
                result = gckpti_check_indices(e, node, ins->id, i, rows);
    }
    for (size_t i = 0; i < p->inputs && result == GCKPT_OK; i++) {
        gckpti_exec_input *in = &e->inputs[i];
        if (in->node >= 0 && gckpti_debug(e) & GCKPT_DEBUG_FINITE)
            result = gckpti_check_fed(e, in, rows);
        if (!in->copy || result != GCKPT_OK)
            continue;
        memcpy(in->copy, in->feed, gckpti_row_bytes(p, &p->nodes[in->node]) * (size_t)rows);
        in->feed = in->copy;
    }
    return result;
}

/* What a loss will count over all rows. What does not depend on the batch, or mixes its rows, is
 * counted once a micro-batch. */
static int64_t gckpti_expected_count(const gckpt_exec *e, int id, int64_t unit, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[id];
    const gckpti_node *q = &p->nodes[p->nodes[node->in[gckpti_counted(node->op)]].base];
    int64_t n = gckpti_elements(&q->shape), times = (rows + p->rows - 1) / p->rows, ignored = 0;
    times = gckpti_ranking_of(p) ? gckpti_ranking_of(p)->batches(e, rows) : times;
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
        if (e->terms[i].expected >= 0)
            e->terms[i].expected +=
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
        int rule = node->op->flags & GCKPT_COUNTS_FEEDS || (several && !e->streamed);
        memset(&e->terms[i], 0, sizeof e->terms[i]);
        e->terms[i].expected = rule && !node->batchless ? 0 : -1;
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

/* Elements of so many rows, n being those of a micro-batch (what mixes rows has whole ones). */
static int64_t gckpti_elements_of(const gckpt_plan *p, int64_t n, int64_t rows)
{
    return rows / p->rows * n + n / p->rows * (rows % p->rows);
}

/* Whether all that is collected has room for so many rows. */
GCKPTI_FN gckpt_result gckpti_check_collected(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    for (size_t k = 0; k < p->pick_count; k++) {
        const gckpti_exec_pick *at = &e->picked[k];
        int64_t n = gckpti_elements(&p->nodes[p->picks[k].id].shape);
        int fits = (uint64_t)(rows / p->rows) <= (uint64_t)at->size / (uint64_t)n;
        if (at->to && (!fits || (uint64_t)gckpti_elements_of(p, n, rows) > (uint64_t)at->size))
            return gckpti_error(e, GCKPT_E_ARG,
                                "collect: %I rows of \"%s\" #%i are more than the %z floats there "
                                "is room for (%I a micro-batch of %I rows)",
                                rows, gckpti_node_name(p, p->picks[k].id), p->picks[k].id, at->size,
                                n, p->rows);
    }
    return GCKPT_OK;
}

/* As many rows as the plan takes in a step or call. */
GCKPTI_FN gckpt_result gckpti_check_rows(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    int inference = p->mode == GCKPT_INFERENCE;
    int64_t end = e->streamed && gckpti_ranking_of(p) ? e->crew->end : p->batch, own = rows;
    if (rows < 1 || (!inference && rows > end - e->row_end))
        return gckpti_error(e, GCKPT_E_ARG, "step: %I rows; this plan takes 1 to %I in a step%s",
                            rows, p->batch,
                            e->row_end ? " (all calls of the step together)" : " (desc.batch)");
    const gckpt_op *mixer = p->mixer < 0 ? NULL : p->nodes[p->mixer].op;
    int whole = p->mixer >= 0 && (e->streamed || !mixer || !gckpti_hands_in(mixer));
    int64_t rest = rows % p->rows;
    for (int leaf = 0; leaf < p->leaves && gckpti_ranking_of(p) && !rest; leaf++)
        rest = gckpti_leaf_rows(p, e->streamed ? p->batch : rows, leaf) % p->rows;
    if (whole && rest) /* the last one may be short where rows mix by statistics */
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: %I rows in %i leaves: each must be a multiple of the micro-batch of %I, because "
            "%s #%i mixes rows",
            rows, p->leaves, p->rows, gckpti_node_name(p, p->mixer), p->mixer);
    if (gckpti_ranking_of(p) && !e->streamed)
        own = gckpti_ranking_of(p)->rows(e, rows);
    own += e->row_end - (gckpti_ranking_of(p) ? e->crew->first : 0);
    return p->picking ? p->picking->check_collected(e, own) : GCKPT_OK;
}

GCKPTI_FN void gckpti_clear_accumulators(gckpt_exec *e, size_t end)
{
    const gckpt_plan *p = e->plan;
    for (size_t x = 0; x < end && p->looped; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_node *node = &p->nodes[gckpti_ins_tensor(p, ins)];
        gckpti_operands o;
        gckpti_operands_of(p->operands, ins, node->inputs, &o);
        for (int i = 0; ins->kind == GCKPT_BACKWARD && i < node->inputs; i++) {
            const gckpti_node *q = &p->nodes[node->in[i]];
            float *sum = gckpti_at(e, o.in[i].gradient);
            int64_t n = gckpti_elements(&q->shape);
            if (sum && q->batchless)
                gckpti_fill(e, sum, 0,
                            4 * (size_t)(gckpti_sums_of(p, node, i) == GCKPTI_SUM_ON ? 2 * n : n));
        }
    }
}

/* Finite and in range, each of them. */
static gckpt_result gckpti_check_hyper(gckpt_exec *e, const gckpt_hyper *h)
{
    const struct {
        const char *name;
        float value, low, high;
    } fields[] = { { "lr", h->lr, 0, FLT_MAX },
                   { "weight_decay", h->weight_decay, 0, FLT_MAX },
                   { "beta1", h->beta1, -1, 0.9999999f },
                   { "beta2", h->beta2, -1, 0.9999999f },
                   { "eps", h->eps, 0, 1 },
                   { "momentum", h->momentum, -1, 1 },
                   { "clip", h->clip, 0, FLT_MAX } };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!(fields[i].value >= fields[i].low && fields[i].value <= fields[i].high)) /* or NaN */
            return gckpti_error(e, GCKPT_E_ARG, "step: hyper.%s is %g; it must be from %g to %g%s",
                                fields[i].name, (double)fields[i].value, (double)fields[i].low,
                                (double)fields[i].high,
                                i ? "" : " (a term of negative weight is maximised)");
    return GCKPT_OK;
}

/* The plan's parameters: as they were when it was made, and their newest values where this executor
 * reads them. */
static gckpt_result gckpti_begin_params(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->param_count; i++) {
        gckpti_param *q = &e->store->params[e->params[i].index];
        if (p->params[i].storage != (gckpti_byte)q->p.storage)
            return gckpti_error(e, GCKPT_E_ARG,
                                "step: \"%s\" is stored as %s, the plan was made for %s; make a "
                                "new plan",
                                q->p.name, gckpti_storage_name(q->p.storage),
                                gckpti_storage_name((gckpt_storage)p->params[i].storage));
        if (gckpti_updates(&p->params[i]) && q->p.frozen)
            return gckpti_error(e, GCKPT_E_ARG,
                                "step: \"%s\" was frozen after planning; make a new plan",
                                p->names + p->params[i].name);
        if (p->params[i].trained && gckpti_others_state(p, q))
            return gckpti_error(e, GCKPT_E_ARG,
                                "step: \"%s\" got state of another optimiser after this executor "
                                "was made; gckpt_store_reset clears it",
                                p->names + p->params[i].name);
        if (gckpti_bring(e, q) != GCKPT_OK)
            return gckpti_error(e, GCKPT_E_MEMORY, "step: %s has no memory for \"%s\"%s",
                                gckpti_on(e)->name, p->names + p->params[i].name,
                                gckpti_shortage(e));
        const void **data = &e->nodes[p->params[i].node].data;
        if (*data != gckpti_values_here(e, q, -1))
            gckpti_forget(e);
        *data = gckpti_values_here(e, q, -1);
        int cut = gckpti_array_cut(e->store, q, GCKPTI_VALUES);
        if (gckpti_debug(e) & GCKPT_DEBUG_FINITE &&
            gckpti_check_leaf(e, p->params[i].node, *data, cut ? q->p.first : 0,
                              cut ? q->p.count : q->p.elements, p->params[i].trained) != GCKPT_OK)
            return GCKPT_E_DATA;
    }
    for (size_t i = 0; i < p->node_count && gckpti_debug(e) & GCKPT_DEBUG_FINITE; i++)
        if (p->nodes[i].kind == GCKPTI_CONSTANT &&
            gckpti_check_leaf(e, (int)i, e->nodes[i].data, 0, gckpti_elements(&p->nodes[i].shape),
                              0) != GCKPT_OK)
            return GCKPT_E_DATA;
    return GCKPT_OK;
}

/* The beginning that steps, streams and forwards share: what they ask for fits the plan, and all
 * that belongs to a step is as before its first instruction. */
GCKPTI_FN gckpt_result gckpti_begin(gckpt_exec *e, const gckpt_hyper *hyper, int inference)
{
    const gckpt_plan *p = e->plan;
    e->state = GCKPTI_IDLE;
    gckpti_join(e); /* of a step that was abandoned */
    if (inference != (p->mode == GCKPT_INFERENCE))
        return gckpti_error(e, GCKPT_E_ARG,
                            inference
                                ? "forward: this plan trains; make one with GCKPT_INFERENCE"
                                : "step: this plan is for GCKPT_INFERENCE; gckpt_forward runs it");
    if (!inference && !hyper)
        return gckpti_error(e, GCKPT_E_ARG, "step: hyper is NULL");
    if (!inference && gckpti_check_hyper(e, hyper) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (!inference && p->update_in_backward && hyper->clip > 0)
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: clip needs all gradients before the first update; this plan updates in "
            "the backward (desc.update_in_backward)");
    gckpt_result result = gckpti_begin_params(e);
    if (result != GCKPT_OK)
        return result;
    if (hyper)
        e->hyper = *hyper;
    e->unbiased = 0;
    e->step = e->store->step;
    e->packs = e->store->packs;
    e->streamed = 0;
    e->counts_settled = 0;
    e->updating = 0;
    e->next_death = 0;
    e->row = e->row_end = e->feed_row = 0;
    e->grad_norm = 0;
    e->clip_scale = 1;
    return gckpti_ok(e);
}

/* At the end of a micro-batch: its rows of all that is collected. */
GCKPTI_FN void gckpti_collect_rows(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int64_t first = gckpti_ranking_of(p) ? e->crew->first : 0;
    for (size_t k = 0; k < p->pick_count; k++) {
        int64_t n = gckpti_elements(&p->nodes[p->picks[k].id].shape);
        size_t count = (size_t)gckpti_elements_of(p, n, gckpti_micro_rows(e));
        if (e->picked[k].to)
            gckpti_on(e)->copy_out(gckpti_on(e)->context,
                                   e->picked[k].to + gckpti_elements_of(p, n, e->row - first),
                                   e->arena + p->picks[k].offset, count * sizeof(float));
    }
}

GCKPTI_FN void gckpti_collect(gckpt_exec *e)
{
    if (e->plan->picking)
        e->plan->picking->collect_rows(e);
}

GCKPTI_FN void gckpti_start_step(gckpt_exec *e)
{
    gckpti_measure_start(e);
    e->pc = e->finished = 0;
    e->accumulators_cleared = 0;
    gckpti_fill(e, e->losses, 0,
                e->plan->term_count * (size_t)gckpti_own_leaves(e->plan) * sizeof *e->losses);
}

/* In a step that changes anything, losses count what the feeds say. */
GCKPTI_FN gckpt_result gckpti_check_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int trains = p->mode != GCKPT_INFERENCE && (gckpti_count(e) || e->terms[0].seen.count);
    for (size_t i = 0; i < p->term_count && trains; i++)
        if (e->terms[i].expected >= 0 && e->terms[i].expected != e->terms[i].seen.count)
            return gckpti_error(
                e, GCKPT_E_DATA,
                "step: loss %s #%i counted %I; its feeds say %I. A loss that counts in its own "
                "way can only be the first of a plan",
                p->nodes[p->terms[i].id].op->name, p->terms[i].id, e->terms[i].seen.count,
                e->terms[i].expected);
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
    if (!e->counts_settled && !promised)
        result = gckpti_read_losses(e);
    if (!e->counts_settled && !promised && result == GCKPT_OK)
        result = gckpti_check_counts(e);
    e->counts_settled = result == GCKPT_OK;
    return result;
}
