#ifndef GCKPT_NO_RANKS
#include "run/own.h"
#include "num/num.h"
#include "graph/graph.h"

static void gckpti_merge_totals(void *mine, const void *heard, size_t bytes)
{
    gckpti_loss_total *a = (gckpti_loss_total *)mine;
    const gckpti_loss_total *b = (const gckpti_loss_total *)heard;
    for (size_t i = 0; i < bytes / sizeof *a; i++) {
        a[i].sum += b[i].sum;
        a[i].count += b[i].count;
    }
}

/* Totals of all ranks that have rows of their own, and behind them their rows. */
static void gckpti_sum_totals(gckpt_exec *e, int64_t rows)
{
    gckpti_crew *g = e->crew;
    const gckpti_loss_total last = { 0, rows };
    g->totals[e->plan->term_count] = last;
    if (gckpti_shares_rows(e->plan))
        gckpti_merge_all(&g->peers, g->totals, (e->plan->term_count + 1) * sizeof *g->totals,
                         gckpti_merge_totals);
}

/* What the losses will count on all ranks, and the rows they have. */
static void gckpti_sum_counts(gckpt_exec *e, int64_t rows)
{
    gckpti_crew *g = e->crew;
    for (size_t i = 0; i < e->plan->term_count; i++) {
        g->totals[i].sum = 0;
        g->totals[i].count = e->losses.terms[i].expected;
    }
    gckpti_sum_totals(e, rows);
    for (size_t i = 0; i < e->plan->term_count; i++)
        e->losses.terms[i].expected = e->losses.terms[i].expected < 0 ? -1 : g->totals[i].count;
}

/* A hash of what exchanges, and what they bring, depend on: of the plan and of the desc. Steps that
 * may be skipped, or look at their gradients, exchange square sums earlier than others. */
static uint64_t gckpti_hash_listed(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const uint64_t some[] = { (uint64_t)p->batch,          (uint64_t)p->precision,
                              (uint64_t)p->optimiser,      e->desc.fast_reduce != 0,
                              e->desc.skip_nonfinite != 0, gckpti_debug(e) & GCKPT_DEBUG_FINITE,
                              (uint64_t)e->crew->peers.queues };
    uint64_t hash = p->check;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        hash = gckpti_fnv_number(hash, some[i]);
    for (size_t i = 0; i < p->term_count; i++) {
        hash = gckpti_fnv_number(hash, (uint64_t)p->terms[i].id);
        hash = gckpti_fnv_number(hash, p->terms[i].weight);
    }
    for (size_t x = 0; x < p->length; x++)
        hash = gckpti_fnv_number(hash, (uint64_t)p->list[x].id * 8 + (uint64_t)p->list[x].kind);
    return hash;
}

/* A hash of values and state that all ranks have whole. */
static uint64_t gckpti_hash_same(gckpt_exec *e)
{
    void *out = e->crew->peers.out;
    uint64_t hash = GCKPTI_FNV_START;
    for (size_t i = 0; i < e->plan->param_count; i++) {
        const gckpti_param *q = gckpti_param_of(e, (int)i);
        hash = gckpti_fnv_number(hash, q->updates);
        hash = gckpti_fnv_number(hash, gckpti_bits(q->p.lr_scale));
        hash = gckpti_fnv_number(hash, gckpti_bits(q->p.decay_scale));
        for (int slot = -1; slot < gckpti_state_slots(q); slot++) {
            const float *x = gckpti_values_here(e, q, slot);
            const int whole = q->p.storage == GCKPT_STORAGE_F32 &&
                              !gckpti_is_sharded(gckpti_array_share(e->store, q, slot));
            for (int64_t at = 0, n; whole && at < q->p.elements; at += n) {
                n = gckpti_min(q->p.elements - at, (int64_t)(e->crew->room / sizeof *x));
                gckpti_from_backend(e, out, x + at, (size_t)n * sizeof *x);
                for (int64_t k = 0; k < n; k++)
                    hash = (hash ^ gckpti_bits(((const float *)out)[k])) * UINT64_C(0x100000001b3);
            }
        }
    }
    return hash;
}

GCKPTI_FN gckpt_result gckpti_crew_begin(gckpt_exec *e, int64_t rows, gckpt_result result)
{
    if (!e->crew)
        return result;
    gckpti_crew *g = e->crew;
    uint64_t *alike = g->peers.told.alike;
    g->round = g->squared = g->summed = 0;
    g->in_body = 1;
    alike[2] = e->store->step;
    alike[3] = e->store->seed;
    if (!g->same)
        g->listed = gckpti_hash_listed(e);
    alike[4] = g->listed;
    alike[5] = gckpti_fnv(GCKPTI_FNV_START, &e->update.hyper, sizeof e->update.hyper);
    if (!g->same && g->peers.ranks > 1 && result == GCKPT_OK)
        alike[6] = gckpti_hash_same(e);
    result = gckpti_crew_call(e, gckpti_streams(e) ? GCKPTI_CALL_STREAM : GCKPTI_CALL_STEP, rows,
                              result);
    if (result != GCKPT_OK)
        return result;
    g->same = 1;
    if (rows > 0)
        gckpti_sum_counts(e, 0);
    return gckpti_drain(e, GCKPT_OK);
}

GCKPTI_FN int64_t gckpti_crew_batches(const gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const int64_t batch = gckpti_leaf_batch(p, e->step.rows), end = e->step.row_end;
    int64_t n = 0, at = end - rows; /* what is before it is counted */
    for (int leaf = 0; leaf < p->leaves; leaf++) {
        int64_t to = gckpti_min(gckpti_leaf_row(batch, p->leaves, leaf + 1), end);
        n += to > at ? (to - at + p->rows - 1) / p->rows : 0;
        at = to > at ? to : at;
    }
    return n;
}

/* Rounds of a leaf: as many as the rank has micro-batches whose leaf it is that has most rows. */
static int gckpti_rounds(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int64_t most = 1, leaf = e->step.leaf, step = gckpti_own_leaves(p);
    for (; leaf < p->leaves; leaf += step) {
        int64_t n = (gckpti_leaf_rows(p, e->step.rows, leaf) + p->rows - 1) / p->rows;
        most = n > most ? n : most;
    }
    return (int)most;
}

/* Of a stream only step_end ends the rank's last leaf, since the sums of that are exchanged. */
GCKPTI_FN int gckpti_set_round(gckpt_exec *e)
{
    if (!e->crew) {
        gckpti_feed_rows(e);
        return 1;
    }
    const gckpt_plan *p = e->plan;
    gckpti_crew *g = e->crew;
    const int leaves = gckpti_own_leaves(p), before = gckpti_shares_rows(p) ? leaves : 0;
    if (e->step.leaf == leaves)
        return 0;
    int64_t end = gckpti_leaf_row(gckpti_leaf_batch(p, e->step.rows), p->leaves,
                                  g->peers.rank * before + e->step.leaf + 1);
    e->step.stop = gckpti_min(end, e->step.row_end);
    if (!gckpti_streams(e))
        g->last = g->round + 1 == gckpti_rounds(e);
    else if (e->step.state == GCKPTI_STREAMING)
        g->last = e->step.row + gckpti_micro_rows(e) == end && e->step.leaf + 1 < leaves;
    else
        g->last = 1;
    g->hollow = e->step.row == e->step.stop;
    if (g->hollow && !g->last && e->step.state == GCKPTI_STREAMING)
        return 0;
    e->step.pc = e->step.again && p->mode != GCKPT_INFERENCE ? p->body : 0;
    if (!g->hollow)
        gckpti_feed_rows(e);
    return 1;
}

GCKPTI_FN gckpt_result gckpti_sum_losses(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpti_crew *g = e->crew;
    if (!g || g->summed || !e->step.rows)
        return GCKPT_OK;
    g->summed = 1;
    gckpti_go_on(e, 0);
    gckpt_result result = gckpti_wait(e);
    for (size_t i = 0; i < p->term_count; i++) {
        const size_t n = (size_t)gckpti_own_leaves(p);
        gckpti_loss_total *t = g->totals;
        gckpti_from_backend(e, t, &e->losses.totals[i * n], n * sizeof *t);
        for (size_t far = 1; far < n; far *= 2) /* the tree's levels */
            for (size_t k = 0; k < n; k += 2 * far)
                gckpti_merge_totals(&t[k], &t[k + far], sizeof *t);
        e->losses.terms[i].seen = *t;
    }
    result = gckpti_meet(e, result);
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < p->term_count; i++)
        g->totals[i] = e->losses.terms[i].seen;
    gckpti_sum_totals(e, 0);
    for (size_t i = 0; i < p->term_count; i++)
        e->losses.terms[i].seen = g->totals[i];
    return gckpti_drain(e, GCKPT_OK);
}

GCKPTI_FN gckpt_result gckpti_next_round(gckpt_exec *e)
{
    if (!e->crew)
        return gckpti_next_rows(e);
    gckpti_crew *g = e->crew;
    e->step.row += gckpti_micro_rows(e);
    e->step.again = 1;
    g->round++;
    if (g->last) {
        e->step.leaf++;
        g->round = 0;
        if (e->step.leaf < gckpti_own_leaves(e->plan))
            gckpti_clear_accumulators(e, (size_t)e->plan->epilogue);
    }
    if (gckpti_set_round(e))
        return GCKPT_OK;
    if (e->step.state == GCKPTI_STREAMING)
        return GCKPT_MORE;
    g->in_body = 0;
    const int late = e->plan->ranks == 1 || g->peers.queues; /* nobody needs them */
    return late && gckpti_are_promised(e) && e->losses.terms[0].expected >= 0
               ? gckpti_meet(e, GCKPT_OK)
               : gckpti_sum_losses(e);
}

GCKPTI_FN gckpt_result gckpti_end_stream(gckpt_exec *e)
{
    if (!e->crew)
        return GCKPT_OK;
    const gckpt_plan *p = e->plan;
    gckpti_crew *g = e->crew;
    int64_t own = e->step.row_end - e->step.first;
    gckpt_result result = gckpti_meet(e, GCKPT_OK);
    if (result != GCKPT_OK)
        return result;
    gckpti_sum_counts(e, own);
    e->step.rows = g->totals[p->term_count].count;
    result = gckpti_drain(e, GCKPT_OK);
    if (result == GCKPT_OK && own != gckpt_plan_rank_rows(p, e->step.rows, g->peers.rank, NULL))
        result =
            gckpti_error(e, GCKPT_E_ARG,
                         "step_end: %I rows streamed in here, %I on all ranks; of so many "
                         "%I are this rank's (gckpt_plan_rank_rows)",
                         own, e->step.rows, gckpt_plan_rank_rows(p, e->step.rows, g->peers.rank, NULL));
    result = gckpti_meet(e, result);
    if (result == GCKPT_OK)
        gckpti_set_round(e);
    return result;
}

/* Whether it brings a parameter's shares together. */
static int gckpti_gathers(const gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpti_node *node = &e->plan->nodes[gckpti_ins_tensor(e->plan, ins)];
    return ins->kind == GCKPT_FORWARD && node->kind == GCKPTI_PARAM &&
           gckpti_is_sharded(
               gckpti_array_share(e->store, gckpti_param_of(e, node->index), GCKPTI_VALUES));
}

GCKPTI_FN int gckpti_skips(gckpt_exec *e, const gckpti_ins *ins)
{
    if (!e->crew)
        return 0;
    const gckpt_plan *p = e->plan;
    const gckpti_crew *g = e->crew;
    int hollow = e->step.pc >= p->body && e->step.pc < p->epilogue && g->hollow;
    int left = GCKPTI_FLIGHTS;
    for (int i = 0; i < g->flights; i++)
        left = g->flight[i].due <= e->step.pc ? g->flights - 1 - i : left;
    if (!gckpti_is_recording(e)) /* nothing is due within a part */
        gckpti_go_on(e, left);
    const int threads = e->on.runner.team || p->threads == 1; /* whose numbers are known */
    e->on.runner.between =
        g->flights && threads && !gckpti_on(e)->own_memory ? gckpti_look_after : NULL;
    e->on.runner.context = e->crew;
    if (ins->kind == GCKPT_REDUCE)
        return !g->last;
    if (ins->kind == GCKPT_UPDATE || gckpti_gathers(e, ins))
        return 0;
    return hollow || (g->peers.told.result != GCKPT_OK && !e->update.begun);
}

GCKPTI_FN int gckpti_part_end(gckpt_exec *e, int64_t *part)
{
    const gckpt_plan *p = e->plan;
    const gckpti_crew *g = e->crew;
    const int pc = e->step.pc, last = e->step.leaf + 1 == gckpti_own_leaves(p) && p->ranks > 1;
    int end = p->epilogue, x, copies = pc > p->body; /* where the body begins none is under way */
    if (gckpti_skips(e, &p->list[pc]) || g->hollow || g->peers.told.result != GCKPT_OK)
        return pc;
    for (int i = 0; i < g->flights; i++)
        gckpti_lower(&end, g->flight[i].due);
    for (int i = 0; i < e->offload.pending; i++)
        gckpti_lower(&end, e->offload.due[i]);
    do { /* copies stand alone, but in a micro-batch that is one part */
        for (x = pc; x < end && !gckpti_gathers(e, &p->list[x]); x++)
            if (p->list[x].kind == GCKPT_REDUCE ? g->last && last
                                                : copies && p->list[x].kind > GCKPT_UPDATE)
                break;
    } while (x < p->epilogue && !copies++);
    *part = ((2 * e->step.leaf + g->last) * (int64_t)p->length + pc) * (int64_t)p->length + x;
    return x;
}

/* Whether an instruction reads what the FORWARD of a parameter brought into the arena. */
static int gckpti_reads_staged(const gckpt_plan *p, const gckpti_ins *ins, int id)
{
    const gckpti_node *node = &p->nodes[gckpti_ins_tensor(p, ins)];
    int reads = 0;
    gckpti_operands o;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    for (int i = 0; ins->kind <= GCKPT_BACKWARD && i < node->inputs; i++)
        reads |= o.in[i].value != GCKPTI_NONE && p->nodes[node->in[i]].base == id;
    return reads;
}

/* The first instruction that needs over what this one begins (gckpti_flight). */
static int gckpti_due(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpti_ins *ins = &p->list[e->step.pc], *next = ins + 1;
    const int sum = ins->kind == GCKPT_REDUCE;
    while (next < p->list + p->length &&
           !(sum ? next->kind == GCKPT_REDUCE || next->kind == GCKPT_UPDATE
                 : gckpti_reads_staged(p, next, ins->id)))
        next++;
    return (int)(next - p->list);
}

/* A leaf's sum of a gradient: its uses, and with them the sums of leaves before that wait for it,
 * like the digits of a binary counter. The rank's own sum is then added to the others'. */
GCKPTI_FN void gckpti_run_reduce(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    gckpti_crew *g = e->crew;
    int64_t n = gckpti_planned_elements(p, &p->nodes[ins->id]);
    int level = 0, last = e->step.leaf + 1 == gckpti_own_leaves(p);
    gckpti_operands o;
    gckpt_call c;
    gckpti_bare_call(e, &c);
    gckpti_operands_of(p->operands, ins, 0, &o);
    float *sum = gckpti_at(e, o.gradient);
    const size_t *waits = o.more + ins->uses - 1;
    if (g->hollow && !p->looped) /* no backward has begun it */
        gckpti_on(e)->fill(&c, sum, 0, n);
    for (int u = 1; u < ins->uses && (p->looped || !g->hollow); u++)
        gckpti_on(e)->add(&c, sum, gckpti_at(e, o.more[u - 1]), n);
    for (; e->step.leaf >> level & 1; level++)
        gckpti_on(e)->add(&c, sum, gckpti_at(e, waits[level]), n);
    if (!last)
        gckpti_on(e)->copy(c.backend, gckpti_at(e, waits[level]), sum, (size_t)n * sizeof *sum);
    else if (p->ranks > 1) {
        const gckpti_flight begun = {
            e->desc.fast_reduce ? GCKPTI_ENGINE
            : ins->accumulate   ? GCKPTI_SCATTER
                                : GCKPTI_SUM_ALL,
            gckpti_due(e), sum, gckpti_at(e, o.work), gckpti_at(e, o.shard), n
        };
        gckpti_fly(e, &begun);
        if (gckpti_debug(e) & GCKPT_DEBUG_POISON) /* it paints too early */
            gckpti_go_on(e, 0);
    }
}

/* Brings the shares of n floats together, before instruction `due`. */
static void gckpti_gather_floats(gckpt_exec *e, float *x, int64_t n, int due)
{
    const gckpti_flight begun = { GCKPTI_GATHER, due, x, NULL, NULL, n };
    gckpti_fly(e, &begun);
    if (gckpti_debug(e) & GCKPT_DEBUG_FINITE) /* it looks at once */
        gckpti_go_on(e, 0);
}

GCKPTI_FN int gckpti_run_gather(gckpt_exec *e, const gckpti_param *q, const float *share, float *to)
{
    if (!gckpti_is_sharded(gckpti_array_share(e->store, q, GCKPTI_VALUES)))
        return 0;
    gckpti_on(e)->copy(gckpti_on(e)->context, to + q->p.first, share,
                       (size_t)q->p.count * sizeof *to);
    gckpti_gather_floats(e, to, q->p.elements, gckpti_due(e));
    return 1;
}

/* Of a parameter that is cut each rank updates its share. Its sum stands in its place in the whole
 * gradient, or, where REDUCE has put it elsewhere, UPDATE's gradient is nothing but the share;
 * further accumulators are whole, so they are read from the share on. */
GCKPTI_FN void gckpti_pass_share(const gckpt_exec *e, const gckpti_ins *ins, gckpt_update_pass *pass)
{
    const gckpt_plan *p = e->plan;
    const gckpti_param *q = gckpti_param_of(e, ins->id);
    const int64_t first = q->p.first;
    size_t shard = GCKPTI_NONE;
    gckpti_operands o;
    if (!gckpti_is_sharded(gckpti_array_share(e->store, q, 0)))
        return;
    for (size_t x = 0; x < p->length && shard == GCKPTI_NONE; x++)
        if (p->list[x].kind == GCKPT_REDUCE && p->list[x].id == p->params[ins->id].node) {
            gckpti_operands_of(p->operands, &p->list[x], 0, &o);
            shard = o.shard;
        }
    pass->elements = q->p.count;
    pass->gradient += shard == GCKPTI_NONE ? first : 0;
    pass->base = e->blocks.arena + (size_t)first * sizeof(float);
    pass->squares = pass->squares ? pass->squares + first / GCKPT_UPDATE_BLOCK : NULL;
    pass->values += gckpti_is_sharded(gckpti_array_share(e->store, q, GCKPTI_VALUES)) ? 0 : first;
}

GCKPTI_FN void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q)
{
    if (gckpti_is_sharded(gckpti_array_share(e->store, q, 0)) &&
        !gckpti_is_sharded(gckpti_array_share(e->store, q, GCKPTI_VALUES)))
        gckpti_gather_floats(e, gckpti_values_here(e, q, -1), q->p.elements,
                             (int)e->plan->length);
}

static void gckpti_merge_floats(void *mine, const void *heard, size_t bytes)
{
    gckpti_add_into((float *)mine, (const float *)heard, (int64_t)(bytes / sizeof(float)));
}

/* Square sums of all: of what is not in its share a rank has 0, but rank 0 has what is not cut. */
GCKPTI_FN void gckpti_gather_squares(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpti_crew *g = e->crew;
    size_t bytes = e->update.square_count * sizeof(float);
    if (p->ranks == 1 || p->shard == GCKPT_SHARD_NONE || g->squared)
        return;
    float *squares = (float *)(void *)g->peers.out;
    g->squared = 1;
    gckpti_go_on(e, 0);
    gckpti_from_backend(e, squares, e->update.squares, bytes);
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = gckpti_param_of(e, (int)i);
        int64_t n = (q->p.elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
        int64_t first = q->p.first / GCKPT_UPDATE_BLOCK;
        int64_t last = first + (q->p.count + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
        if (!gckpti_is_sharded(gckpti_array_share(e->store, q, 0)))
            last = g->peers.rank ? 0 : n;
        for (int64_t k = 0; k < n && p->params[i].trained; k++)
            if (k < first || k >= last)
                squares[e->bound.params[i].square + (size_t)k] = 0;
    }
    gckpti_merge_all(&g->peers, squares, bytes, gckpti_merge_floats);
    gckpti_to_backend(e, e->update.squares, squares, bytes);
}
#endif
