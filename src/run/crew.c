#ifndef GCKPT_NO_RANKS
#include "run/own.h"
#include "num/num.h"

/* Bytes of host memory for exchanges, each way: small things and, where floats do not go from and
 * to where they are, half of the largest array. */
GCKPTI_FN size_t gckpti_crew_room(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_ranks *by = e->desc.ranks;
    const int copies = gckpti_on(e)->own_memory && by && !by->on_backend;
    size_t most = 16 * GCKPT_UPDATE_BLOCK, squares = e->update.square_count * sizeof(float);
    most = most > squares ? most : squares;
    for (size_t id = 0; id < p->node_count && copies; id++) {
        int64_t n = gckpti_elements(&p->nodes[id].shape);
        if (n > GCKPT_UPDATE_BLOCK && !e->desc.fast_reduce)
            n = gckpti_share_of(n, 0, 2).count;
        if (p->nodes[id].batchless && (size_t)n * sizeof(float) > most)
            most = (size_t)n * sizeof(float);
    }
    return most;
}

GCKPTI_FN void gckpti_crew_tables(gckpt_exec *e, gckpti_block *b)
{
    if (!gckpti_has_crew(e->plan))
        return;
    const gckpt_plan *p = e->plan;
    const size_t several = p->ranks > 1, leaves = (size_t)gckpti_own_leaves(p);
    size_t room = several ? gckpti_crew_room(e) : 0, totals = p->term_count + 1;
    gckpti_crew *g = (gckpti_crew *)gckpti_carve(b, 1, sizeof *g);
    void *out = gckpti_carve(b, room, 1), *in = gckpti_carve(b, room, 1);
    void *sums = gckpti_carve(b, totals > leaves ? totals : leaves, sizeof *g->totals);
    void *heard = gckpti_carve(b, totals, sizeof *g->heard);
    if (!b->base)
        return;
    e->crew = g;
    g->peers.out = (unsigned char *)out;
    g->peers.in = (unsigned char *)in;
    g->room = room;
    g->totals = (gckpti_loss_total *)sums;
    g->heard = (gckpti_loss_total *)heard;
}

/* A hash of what exchanges, and what they bring, depend on: of the plan and of the desc. Steps that
 * may be skipped, or look at their gradients, exchange square sums earlier than others. */
static uint64_t gckpti_hash_listed(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const uint64_t some[] = { (uint64_t)p->batch,          (uint64_t)p->precision,
                              (uint64_t)p->optimiser,      e->desc.fast_reduce != 0,
                              e->desc.skip_nonfinite != 0, gckpti_debug(e) & GCKPT_DEBUG_FINITE };
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

GCKPTI_FN gckpt_result gckpti_crew_bind(gckpt_exec *e)
{
    if (!e->crew)
        return GCKPT_OK;
    const gckpt_plan *p = e->plan;
    const gckpt_ranks *by = p->ranks > 1 ? e->desc.ranks : NULL;
    gckpti_peers *s = &e->crew->peers;
    if (p->ranks > 1 && (!by || !by->exchange || by->rank != e->store->rank ||
                         by->size != e->store->ranks || (e->desc.fast_reduce && !by->all_reduce)))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: the store is rank %i of %i: desc.ranks must be these, with "
                            "exchange%s",
                            e->store->rank, e->store->ranks,
                            e->desc.fast_reduce ? " and, for fast_reduce, all_reduce" : "");
    s->engine = by;
    s->on = gckpti_on(e);
    s->rank = s->told.rank = e->store->rank;
    s->ranks = p->ranks;
    e->crew->listed = gckpti_hash_listed(e);
    return GCKPT_OK;
}

GCKPTI_FN void gckpti_leave(gckpt_exec *e)
{
    if (e->crew && e->crew->peers.engine && e->step.state != GCKPTI_IDLE)
        gckpti_break(&e->crew->peers);
}

/* What is left of the sum under way: as far as that goes without waiting, or all. */
GCKPTI_FN void gckpti_go_on(gckpt_exec *e, int wait)
{
    gckpti_crew *g = e->crew;
    gckpti_peers *s = &g->peers;
    gckpt_call c;
    if (!g->reducing)
        return;
    gckpti_bare_call(e, &c);
    g->reducing = !gckpti_tree_poll(s, &c, wait);
    const gckpti_share share = gckpti_share_of(s->tree.n, s->rank, s->ranks);
    if (!g->reducing && g->shard && !s->broken)
        s->on->copy(c.backend, g->shard, s->tree.x + share.first,
                    (size_t)share.count * sizeof(float));
}

GCKPTI_FN gckpt_result gckpti_drain(gckpt_exec *e, gckpt_result result)
{
    if (!e->crew)
        return result;
    gckpti_peers *s = &e->crew->peers;
    if (s->broken) {
        e->crew->over = 1;
        e->step.state = GCKPTI_IDLE;
        return gckpti_error(
            e, GCKPT_E_PEER,
            "%s%i does not answer: it ended, hangs or cannot be reached; this "
            "executor is of no more use%s",
            s->peer < 0 ? "one of ranks 0 to " : "rank ", s->peer < 0 ? s->ranks - 1 : s->peer,
            e->update.begun ? ", and parameters may have changed: go back to what was "
                              "saved"
                            : "");
    }
    if (result == GCKPT_OK || s->ranks == 1 || e->crew->over)
        return result;
    if (s->told.result == GCKPT_OK) {
        s->told.result = (int32_t)result;
        memcpy(s->told.text, e->object.text, sizeof s->told.text);
    }
    return GCKPT_OK;
}

GCKPTI_FN gckpt_result gckpti_failed_here(gckpt_exec *e)
{
    const gckpti_meeting *told = e->crew ? &e->crew->peers.told : NULL;
    return told && told->result != GCKPT_OK
               ? gckpti_error(e, (gckpt_result)told->result, "%s", told->text)
               : GCKPT_OK;
}

/* A merge: what both have heard so far: the failure of the lowest rank that failed, else the first
 * thing in which they differ. */
static void gckpti_merge_meetings(void *mine, const void *heard, size_t bytes)
{
    static const char *const names[GCKPTI_ALIKE] = { "the call they make",
                                                     "rows",
                                                     "the store's step",
                                                     "the store's seed",
                                                     "plans, or how they are run",
                                                     "hyper",
                                                     "what they hold that should be the same" };
    gckpti_meeting *a = (gckpti_meeting *)mine;
    const gckpti_meeting *b = (const gckpti_meeting *)heard;
    int32_t low = a->rank < b->rank ? a->rank : b->rank, high = a->rank + b->rank - low;
    if (b->result != GCKPT_OK && (a->result == GCKPT_OK || b->rank < a->rank))
        memcpy(a, b, bytes);
    for (int i = 0; a->result == GCKPT_OK && i < GCKPTI_ALIKE; i++) {
        gckpti_object text;
        if (a->alike[i] == b->alike[i])
            continue;
        memset(&text, 0, sizeof text);
        a->result = (int32_t)gckpti_error(&text, GCKPT_E_ARG, "ranks %i and %i differ in %s",
                                          (int)low, (int)high, names[i]);
        memcpy(a->text, text.text, sizeof a->text);
        low = -1;
    }
    if (a->result == GCKPT_OK || low < 0)
        a->rank = low;
}

GCKPTI_FN gckpt_result gckpti_meet(gckpt_exec *e, gckpt_result result)
{
    if (!e->crew)
        return result;
    gckpti_crew *g = e->crew;
    gckpti_peers *s = &g->peers;
    if (s->ranks == 1 || g->over)
        return result;
    (void)gckpti_drain(e, result);
    gckpti_go_on(e, 1);
    s->told.alike[0] += (uint64_t)++g->meetings << 8;
    gckpti_merge_all(s, &s->told, &s->heard, sizeof s->told, gckpti_merge_meetings);
    const gckpti_meeting met = s->told;
    memset(&s->told, 0, sizeof s->told);
    s->told.rank = s->rank;
    if (s->broken)
        return gckpti_drain(e, GCKPT_OK);
    if (met.result == GCKPT_OK)
        return GCKPT_OK;
    g->over = 1;
    e->step.state = GCKPTI_IDLE;
    return met.rank < 0
               ? gckpti_error(e, (gckpt_result)met.result, "%s", met.text)
               : gckpti_error(e, (gckpt_result)met.result, "rank %i: %s", (int)met.rank, met.text);
}

GCKPTI_FN gckpt_result gckpti_crew_merge(gckpt_exec *e, void *mine, void *heard, size_t bytes,
                                         void (*merge)(void *mine, const void *heard, size_t bytes))
{
    if (!e->crew)
        return GCKPT_OK;
    gckpti_merge_all(&e->crew->peers, mine, heard, bytes, merge);
    return gckpti_drain(e, GCKPT_OK);
}

static void gckpti_merge_totals(void *mine, const void *heard, size_t bytes)
{
    gckpti_loss_total *a = (gckpti_loss_total *)mine;
    const gckpti_loss_total *b = (const gckpti_loss_total *)heard;
    for (size_t i = 0; i < bytes / sizeof *a; i++) {
        a[i].sum += b[i].sum;
        a[i].count += b[i].count;
    }
}

/* Totals of all ranks that have rows of their own, and one more count. */
GCKPTI_FN void gckpti_sum_totals(gckpt_exec *e)
{
    gckpti_crew *g = e->crew;
    if (gckpti_shares_rows(e->plan))
        gckpti_merge_all(&g->peers, g->totals, g->heard,
                         (e->plan->term_count + 1) * sizeof *g->totals, gckpti_merge_totals);
}

/* What the losses will count on all ranks, and the rows they have. */
GCKPTI_FN void gckpti_sum_counts(gckpt_exec *e, int64_t rows)
{
    gckpti_crew *g = e->crew;
    size_t n = e->plan->term_count;
    memset(g->totals, 0, (n + 1) * sizeof *g->totals);
    for (size_t i = 0; i < n; i++)
        g->totals[i].count = e->losses.terms[i].expected;
    g->totals[n].count = rows;
    gckpti_sum_totals(e);
    for (size_t i = 0; i < n; i++)
        e->losses.terms[i].expected = e->losses.terms[i].expected < 0 ? -1 : g->totals[i].count;
}

/* A hash of values and state that all ranks have whole. */
static uint64_t gckpti_hash_same(gckpt_exec *e)
{
    const gckpti_crew *g = e->crew;
    void *out = g->peers.out;
    uint64_t hash = GCKPTI_FNV_START;
    for (size_t i = 0; i < e->plan->param_count; i++) {
        const gckpti_param *q = gckpti_param_of(e, (int)i);
        hash = gckpti_fnv_number(hash, q->updates);
        hash = gckpti_fnv_number(hash, gckpti_bits(q->p.lr_scale));
        hash = gckpti_fnv_number(hash, gckpti_bits(q->p.decay_scale));
        for (int slot = -1; slot < gckpti_state_slots(q); slot++) {
            const float *x = gckpti_values_here(e, q, slot);
            const int whole =
                q->p.storage == GCKPT_STORED_F32 &&
                !gckpti_is_cut(gckpti_array_share(e->store, q, slot));
            for (int64_t at = 0, n; whole && at < q->p.elements; at += n) {
                n = gckpti_min(q->p.elements - at, (int64_t)(g->room / sizeof *x));
                gckpti_from_backend(e, out, x + at, (size_t)n * sizeof *x);
                for (int64_t k = 0; k < n; k++)
                    hash = (hash ^ gckpti_bits(((const float *)out)[k])) * UINT64_C(0x100000001b3);
            }
        }
    }
    return hash;
}

GCKPTI_FN int64_t gckpti_crew_rows(gckpt_exec *e, int64_t rows)
{
    if (!e->crew)
        return rows;
    gckpti_crew *g = e->crew;
    int64_t n = gckpt_plan_share(e->plan, rows, g->peers.rank, &g->first);
    g->end = g->first + n;
    e->step.row = e->step.row_end = e->feeds.first = g->stop = g->first;
    g->rows = rows;
    g->leaf = g->round = g->again = g->squared = 0;
    g->in_body = 1;
    return n;
}

GCKPTI_FN int64_t gckpti_crew_batches(const gckpt_exec *e, int64_t rows)
{
    if (!e->crew)
        return (rows + e->plan->rows - 1) / e->plan->rows;
    const gckpt_plan *p = e->plan;
    const int64_t batch = gckpti_leaf_batch(p, e->crew->rows), end = e->step.row_end;
    int64_t n = 0, at = end - rows; /* what is before it is counted */
    for (int leaf = 0; leaf < p->leaves; leaf++) {
        int64_t to = gckpti_min(gckpti_leaf_row(batch, p->leaves, leaf + 1), end);
        n += to > at ? (to - at + p->rows - 1) / p->rows : 0;
        at = to > at ? to : at;
    }
    return n;
}

GCKPTI_FN gckpt_result gckpti_crew_call(gckpt_exec *e, gckpti_ranks_call call, int64_t number,
                                        gckpt_result result)
{
    if (!e->crew)
        return result;
    const uint64_t same[2] = { (uint64_t)call, (uint64_t)number };
    e->crew->over = 0;
    memcpy(e->crew->peers.told.alike, same, sizeof same);
    return gckpti_meet(e, result);
}

GCKPTI_FN gckpt_result gckpti_crew_begin(gckpt_exec *e, int64_t rows, gckpt_result result)
{
    if (!e->crew)
        return result;
    gckpti_crew *g = e->crew;
    uint64_t *alike = g->peers.told.alike;
    alike[2] = e->store->step;
    alike[3] = e->store->seed;
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
#endif
