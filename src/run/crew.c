#ifndef GCKPT_NO_RANKS
#include "run/own.h"
#include "num/num.h"

/* =================================================================================================
 * crew: sums and values of several processes, by exchanges
 *
 * There are N = 2^k ranks. What is added up over all of them goes by a fixed binary tree: first the
 * sums of ranks that differ in bit 0 of their number, then those that differ in bit 1, and so on
 * (two numbers have the same sum either way round, so each rank adds its partner's to its own). Of
 * a gradient of P elements a rank sends its partner, at each level, the half that the partner will
 * keep (recursive halving), so that each ends with its share (gckpti_share) of the whole sum;
 * shares are brought together the way back (recursive doubling). Each way a rank sends P (N - 1) /
 * N elements, the least possible. Small things (losses, counts, results, square sums, tensors of
 * one block) are exchanged whole at each level.
 * ============================================================================================== */
/* ---- exchanges ---- */
/* There will be no exchange any more; the program is told to give up. */
static void gckpti_break(gckpti_peers *s)
{
    if (!s->broken && s->engine->give_up)
        s->engine->give_up(s->engine->user);
    s->broken = 1;
    s->busy = s->tree.bit = 0;
}

/* Begins to send bytes of the host to a rank, and to receive from it. */
static void gckpti_exchange(gckpti_peers *s, int peer, const void *send, size_t n, void *receive,
                            size_t m)
{
    s->peer = peer; /* with or without bytes: an error names it */
    if (s->broken || n + m == 0)
        return;
    s->sent += n;
    s->busy = 1;
    if (!s->engine->exchange(s->engine->user, peer, send, n, receive, m))
        gckpti_break(s);
}

/* 1: nothing is under way, or (broken) ever will be. */
static int gckpti_is_done(gckpti_peers *s)
{
    int done = !s->busy || !s->engine->done ? 1 : s->engine->done(s->engine->user);
    if (done < 0)
        gckpti_break(s);
    else if (done && s->busy && s->to)
        s->on->copy_in(s->on->context, s->to, s->in, s->bytes);
    if (done)
        s->busy = 0;
    return done != 0;
}

/* Until it is done; 0: it never will be. */
static int gckpti_wait_for(gckpti_peers *s)
{
    const gckpt_ranks *by = s->engine;
    double start = by && by->clock ? by->clock(by->user) : 0;
    while (!gckpti_is_done(s))
        if (by->clock && by->timeout > 0 && by->clock(by->user) - start > by->timeout)
            gckpti_break(s);
    return !s->broken;
}

/* Begins to send n floats from where the backend has them, and to receive m; peer -1: the engine's
 * own sum of the n floats `from` over all ranks, to the same place. */
static void gckpti_exchange_floats(gckpti_peers *s, int peer, const float *from, int64_t n,
                                   float *to, int64_t m)
{
    const gckpt_backend *b = s->on;
    const int copies = b->own_memory && !s->engine->on_backend;
    const size_t size = (size_t)n * sizeof *from;
    void *out = !copies ? (void *)(uintptr_t)from : peer < 0 ? s->in : s->out;
    void *in = copies ? (void *)s->in : (void *)to;
    s->bytes = (size_t)m * sizeof *to;
    s->to = copies ? to : NULL;
    if (copies && n)
        b->copy_out(b->context, out, from, size);
    else if (b->own_memory)
        (void)b->finish(b->context); /* what failed it says again in each later call */
    if (peer >= 0) {
        gckpti_exchange(s, peer, out, size, in, s->bytes);
        return;
    }
    s->peer = peer;
    s->busy = 1;
    if (!s->engine->all_reduce(s->engine->user, (float *)in, (size_t)n))
        gckpti_break(s);
}

/* Leaves off where an exchange fails (s->broken). */
GCKPTI_FN void gckpti_merge_all(gckpti_peers *s, void *mine, size_t bytes, gckpti_merge merge)
{
    s->to = NULL;
    for (int bit = 1; bit < s->ranks && !s->broken; bit *= 2) {
        gckpti_exchange(s, s->rank ^ bit, mine, bytes, s->in, bytes);
        if (gckpti_wait_for(s))
            merge(mine, s->in, bytes);
    }
}

/* ---- large ones, level by level, while something else is computed ---- */
static void gckpti_tree_level(gckpti_peers *s)
{
    gckpti_tree *t = &s->tree;
    int peer = t->kind == GCKPTI_ENGINE ? -1 : s->rank ^ t->bit;
    /* one block goes whole */
    const int parts = t->n > GCKPT_UPDATE_BLOCK && peer >= 0 ? 2 * t->bit : 1;
    const gckpti_share own = gckpti_share_of(t->n, s->rank, parts),
                       other = gckpti_share_of(t->n, peer, parts);
    const int64_t first = other.first, n = other.count;
    t->first = own.first;
    t->count = own.count;
    if (peer < 0)
        gckpti_exchange_floats(s, peer, t->x, n, t->x, n);
    else if (t->kind == GCKPTI_GATHER)
        gckpti_exchange_floats(s, peer, t->x + t->first, t->count, t->x + first, n);
    else
        gckpti_exchange_floats(s, peer, t->x + first, n, t->work, t->count);
}

/* Begins a sum of n floats, or brings their shares together; one at a time. Sums, but for
 * ENGINE, need `work`: floats of the larger half, or n where that is one block. Who began it polls
 * it to its end, before anything else is exchanged. */
GCKPTI_FN void gckpti_tree_begin(gckpti_peers *s, gckpti_tree_kind kind, float *x, int64_t n,
                                 float *work)
{
    const int bit = s->broken ? 0 : kind == GCKPTI_GATHER ? s->ranks / 2 : 1;
    const gckpti_tree begun = { kind, x, work, n, 0, n, bit };
    s->tree = begun;
    if (bit)
        gckpti_tree_level(s);
}

/* Goes on as far as it can without waiting, or to its end. 1: it is over. */
GCKPTI_FN int gckpti_tree_poll(gckpti_peers *s, const gckpt_call *c, int wait)
{
    gckpti_tree *t = &s->tree;
    while (t->bit && (wait ? gckpti_wait_for(s) : gckpti_is_done(s)) && t->bit) {
        if (t->kind == GCKPTI_ENGINE) {
            t->bit = 0;
        } else if (t->kind == GCKPTI_GATHER) {
            t->bit /= 2;
        } else {
            s->on->add(c, t->x + t->first, t->work, t->count);
            t->bit *= 2;
            if (t->bit == s->ranks) {
                int shares = t->kind == GCKPTI_SUM_ALL && t->n > GCKPT_UPDATE_BLOCK;
                t->kind = GCKPTI_GATHER;
                t->bit = shares ? s->ranks / 2 : 0;
            }
        }
        if (t->bit)
            gckpti_tree_level(s);
    }
    return !t->bit;
}

/* ---- an executor among others ---- */
/* Bytes of host memory for exchanges, each way: small things and, where floats do not go from and
 * to where they are, half of the largest array. */
GCKPTI_FN size_t gckpti_crew_room(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_ranks *by = e->desc.ranks;
    const int copies = gckpti_on(e)->own_memory && by && !by->on_backend;
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
    const gckpt_ranks *by = p->ranks > 1 ? e->desc.ranks : NULL;
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

GCKPT_API uint64_t gckpt_exec_sent(const gckpt_exec *exec)
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
