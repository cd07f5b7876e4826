#ifndef GCKPT_NO_RANKS
#include "run/own.h"
#include "num/num.h"

/* ---- an executor among others ---- */
/* Bytes of host memory for exchanges, each way: small things and, where floats do not go from and
 * to where they are, half of the largest array. */
GCKPTI_FN size_t gckpti_crew_room(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_transport *by = e->desc.transport;
    const int copies = gckpti_on(e)->own_memory && by && !by->device_aware;
    size_t most = 16 * GCKPT_UPDATE_BLOCK, squares = e->update.square_count * sizeof(float);
    const size_t totals = (p->term_count + 1) * sizeof(gckpti_loss_total);
    most = most > squares ? most : squares;
    most = most > totals ? most : totals;
    for (size_t id = 0; id < p->node_count && copies; id++) {
        int64_t n = gckpti_planned_elements(p, &p->nodes[id]);
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
    const size_t totals = p->term_count + 1;
    gckpti_crew counted, *g = (gckpti_crew *)gckpti_carve(b, 1, sizeof *g);
    e->crew = g;
    g = g ? g : &counted;
    g->room = several ? gckpti_crew_room(e) : 0;
    g->peers.out = (unsigned char *)gckpti_carve(b, g->room, 1);
    g->peers.in = (unsigned char *)gckpti_carve(b, g->room, 1);
    g->totals =
        (gckpti_loss_total *)gckpti_carve(b, totals > leaves ? totals : leaves, sizeof *g->totals);
}

GCKPTI_FN gckpt_result gckpti_crew_bind(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_transport *by = p->ranks > 1 ? e->desc.transport : NULL;
    if (p->ranks > 1 && (!by || !by->exchange || by->rank != e->store->rank ||
                         by->size != e->store->ranks || (e->desc.fast_reduce && !by->all_reduce)))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: the store is rank %i of %i: desc.ranks must be these, with "
                            "exchange%s",
                            e->store->rank, e->store->ranks,
                            e->desc.fast_reduce ? " and, for fast_reduce, all_reduce" : "");
    if (!e->crew)
        return GCKPT_OK;
    gckpti_peers *s = &e->crew->peers;
    s->engine = by;
    s->on = gckpti_on(e);
    s->rank = s->told.rank = e->store->rank;
    s->ranks = p->ranks;
    s->queues = by && s->on->use_comm_queue && s->on->wait_comm_queue && by->enqueue && by->enqueued_done && by->abort;
    return GCKPT_OK;
}

GCKPTI_FN void gckpti_leave(gckpt_exec *e)
{
    if (e->crew && e->crew->peers.engine && e->step.state != GCKPTI_IDLE)
        gckpti_break(&e->crew->peers);
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
    gckpti_go_on(e, 0);
    s->told.alike[0] += (uint64_t)++g->meetings << 8;
    gckpti_merge_all(s, &s->told, sizeof s->told, gckpti_merge_meetings);
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

GCKPTI_FN gckpt_result gckpti_crew_merge(gckpt_exec *e, void *mine, size_t bytes,
                                         gckpti_merge merge)
{
    if (!e->crew)
        return GCKPT_OK;
    gckpti_merge_all(&e->crew->peers, mine, bytes, merge);
    return gckpti_drain(e, GCKPT_OK);
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

GCKPT_API uint64_t gckpt_exec_bytes_sent(const gckpt_exec *exec)
{
    return exec && exec->crew ? exec->crew->peers.sent : 0;
}

/* ---- values of which each rank has a share ---- */
GCKPTI_FN int gckpti_holder(int64_t elements, int64_t at, int ranks)
{
    int rank = 0;
    for (gckpti_share s; rank + 1 < ranks; rank++) {
        s = gckpti_share_of(elements, rank, ranks);
        if (at >= s.first && at - s.first < s.count)
            break;
    }
    return rank;
}

/* The next values of a parameter from element `at` on, *n of them, on all ranks. */
static const float *gckpti_gather_piece(gckpt_exec *e, const gckpti_param *q, int64_t at,
                                        float room[GCKPTI_DRAWN], int64_t *n)
{
    int64_t end, some;
    if (!gckpti_is_sharded(gckpti_array_share(e->store, q, GCKPTI_VALUES)))
        return gckpti_values_at(e->store, q, at, room, n);
    gckpti_peers *s = &e->crew->peers;
    void *out = s->out;
    const int owner = gckpti_holder(q->p.elements, at, e->store->ranks);
    const gckpti_share share = gckpti_share_of(q->p.elements, owner, e->store->ranks);
    end = share.first + share.count;
    *n = gckpti_min(end - at, (int64_t)(e->crew->room / sizeof(float)));
    for (int64_t i = 0; i < *n && owner == s->rank; i += some) {
        const float *x = gckpti_values_at(e->store, q, at + i, room, &some);
        some = gckpti_min(some, *n - i);
        memcpy((float *)out + i, x, (size_t)some * sizeof *x);
    }
    for (int bit = 1; bit < s->ranks && !s->broken; bit *= 2) {
        int has = (s->rank ^ owner) < bit, gets = (s->rank ^ bit ^ owner) < bit;
        gckpti_exchange(s, s->rank ^ bit, out, has ? (size_t)*n * sizeof(float) : 0, out,
                        gets ? (size_t)*n * sizeof(float) : 0);
        gckpti_wait_for(s);
    }
    return (const float *)out;
}

/* All values of parameters first..last, where they are wanted. */
static gckpt_result gckpti_gather_all(gckpt_exec *e, int first, int last, float *to, uint64_t *hash)
{
    float room[GCKPTI_DRAWN];
    gckpt_result result = GCKPT_OK;
    if (gckpti_is_under_way(e))
        return GCKPT_E_ARG;
    if (first < 0 || last >= (int)e->store->count)
        result = gckpti_error(e, GCKPT_E_ARG, "gather: no parameter has index %i", first);
    result = gckpti_crew_call(e, GCKPTI_CALL_GATHER, first, result);
    for (int i = first; i <= last && result == GCKPT_OK; i++) {
        const gckpti_param *q = &e->store->params[i];
        for (int64_t at = 0, n; at < q->p.elements && result == GCKPT_OK; at += n) {
            const float *x = gckpti_gather_piece(e, q, at, room, &n);
            if (to)
                memcpy(to + at, x, (size_t)n * sizeof *x);
            if (hash)
                *hash = gckpti_hash_floats(*hash, x, n);
            result = gckpti_drain(e, GCKPT_OK);
        }
    }
    return result == GCKPT_OK ? gckpti_ok(e) : result;
}

GCKPT_API gckpt_result gckpt_gather_values(gckpt_exec *exec, int index, float *to)
{
    return exec ? gckpti_gather_all(exec, index, index, to, NULL) : GCKPT_E_ARG;
}

GCKPT_API gckpt_result gckpt_gather_hash(gckpt_exec *exec, uint64_t *hash)
{
    uint64_t all = GCKPTI_FNV_START;
    if (!exec)
        return GCKPT_E_ARG;
    gckpt_result result = gckpti_gather_all(exec, 0, (int)exec->store->count - 1, NULL, &all);
    if (hash)
        *hash = result == GCKPT_OK ? all : 0;
    return result;
}
#endif
