#ifndef GCKPT_NO_RANKS
#include "run/own.h"
#include "num/num.h"

/* =================================================================================================
 * exchange: sums and values of several processes, by exchanges
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
GCKPTI_FN void gckpti_break(gckpti_peers *s)
{
    if (!s->broken && s->engine->abort)
        s->engine->abort(s->engine->user);
    s->broken = 1;
    s->busy = s->tree.bit = 0;
}

/* Begins to send bytes of the host to a rank, and to receive from it. */
GCKPTI_FN void gckpti_exchange(gckpti_peers *s, int peer, const void *send, size_t n,
                               void *receive, size_t m)
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
    int (*ask)(void *) = s->lands ? s->engine->enqueued_done : s->engine->done;
    int done = !s->busy || !ask ? 1 : ask(s->engine->user);
    if (done < 0)
        gckpti_break(s);
    else if (done && s->busy && s->to)
        s->on->copy_in(s->on->context, s->to, s->in, s->bytes);
    if (done)
        s->busy = 0;
    return done != 0;
}

/* Until it is done; 0: it never will be. */
GCKPTI_FN int gckpti_wait_for(gckpti_peers *s)
{
    const gckpt_transport *by = s->engine;
    double start = by && by->clock ? by->clock(by->user) : 0;
    while (!gckpti_is_done(s))
        if (by->clock && by->timeout > 0 && by->clock(by->user) - start > by->timeout)
            gckpti_break(s);
    return !s->broken;
}

GCKPTI_FN void gckpti_land(const gckpt_exec *e, size_t brought)
{
    gckpti_peers *s = e->crew ? &e->crew->peers : NULL;
    if (!s || !s->aloft)
        return;
    const size_t least = (size_t)1 << 19, most = 32 * least; /* as beside says of copy_in */
    s->brought += brought < least ? least : brought;
    if (brought && s->brought < most)
        return;
    s->brought = 0;
    s->to = NULL;
    s->lands = s->busy = !s->broken;
    gckpti_wait_for(s);
    s->lands = s->aloft = 0;
}

/* Begins to send n floats from where the backend has them, and to receive m; peer -1: the engine's
 * own sum of the n floats `from` over all ranks, to the same place. */
static void gckpti_exchange_floats(gckpti_peers *s, int peer, const float *from, int64_t n,
                                   float *to, int64_t m)
{
    const gckpt_backend *b = s->on;
    const int copies = b->own_memory && !s->engine->device_aware;
    const gckpti_tree *t = &s->tree; /* what a gather sends on has come from others */
    const int own = t->kind != GCKPTI_GATHER || t->bit == s->ranks / 2;
    const size_t size = (size_t)n * sizeof *from;
    void *out = !copies ? (void *)(uintptr_t)from : peer < 0 ? s->in : s->out;
    void *in = copies ? (void *)s->in : (void *)to;
    s->bytes = (size_t)m * sizeof *to;
    s->to = copies ? to : NULL;
    if (s->queue) {
        s->peer = -1; /* any may be missing, later */
        s->sent += peer < 0 ? 0 : size;
        if (n + m > 0 &&
            !s->engine->enqueue(s->engine->user, s->queue, peer, from, size, to, s->bytes))
            gckpti_break(s);
        return;
    }
    if (copies && n)
        b->copy_out(b->context, out, from, size);
    else if (b->own_memory && own)
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
static void gckpti_tree_begin(gckpti_peers *s, const gckpti_flight *f)
{
    const int bit = s->broken ? 0 : f->kind == GCKPTI_GATHER ? s->ranks / 2 : 1;
    const gckpti_tree begun = { f->kind, f->x, f->work, f->shard, f->n, 0, f->n, bit };
    s->tree = begun;
    if (bit)
        gckpti_tree_level(s);
}

/* Goes on as far as it can without waiting, or to its end; c NULL: as far as nothing is to be
 * added. 1: it is over. */
static int gckpti_tree_poll(gckpti_peers *s, const gckpt_call *c, int wait)
{
    gckpti_tree *t = &s->tree;
    while (t->bit && (wait ? gckpti_wait_for(s) : gckpti_is_done(s)) && t->bit) {
        if (!c && t->kind != GCKPTI_GATHER)
            return 0;
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
        const gckpti_share share = gckpti_share_of(t->n, s->rank, s->ranks);
        if (t->bit)
            gckpti_tree_level(s);
        else if (t->shard)
            s->on->copy(s->on->context, t->shard, t->x + share.first,
                        (size_t)share.count * sizeof(float));
    }
    return !t->bit;
}

/* ---- what instructions have begun: one after the other, in their order ---- */
/* What was begun goes on as far as it can without waiting, and until no more than `left` of it are
 * not over. c: as gckpti_tree_poll has it. */
static void gckpti_go_on_by(gckpti_crew *g, const gckpt_call *c, int left)
{
    gckpti_peers *s = &g->peers;
    if (s->queues && g->flights > left) {
        s->on->wait_comm_queue(s->on->context, left);
        memmove(g->flight, g->flight + g->flights - left, (size_t)left * sizeof *g->flight);
        g->flights = left;
    }
    while (!s->queues && g->flights && gckpti_tree_poll(s, c, g->flights > left)) {
        memmove(&g->flight[0], &g->flight[1], (size_t)--g->flights * sizeof *g->flight);
        if (g->flights)
            gckpti_tree_begin(s, g->flight);
    }
}

GCKPTI_FN void gckpti_go_on(gckpt_exec *e, int left)
{
    gckpt_call c;
    if (!e->crew->flights)
        return;
    gckpti_bare_call(e, &c);
    gckpti_go_on_by(e->crew, &c, left);
}

/* Within an instruction. */
GCKPTI_FN void gckpti_look_after(void *crew)
{
    gckpti_crew *g = (gckpti_crew *)crew;
    if (g->peers.tree.bit)
        gckpti_go_on_by(g, NULL, GCKPTI_FLIGHTS);
}

/* Begins it, or lets it follow what is under way, or puts all of it into the backend's queue. */
GCKPTI_FN void gckpti_fly(gckpt_exec *e, const gckpti_flight *next)
{
    gckpti_crew *g = e->crew;
    gckpti_peers *s = &g->peers;
    gckpt_call c;
    gckpti_bare_call(e, &c);
    gckpti_go_on_by(g, &c, GCKPTI_FLIGHTS - 1);
    g->flight[g->flights++] = *next;
    s->queue = s->queues ? s->on->use_comm_queue(s->on->context, 1) : NULL;
    if (g->flights == 1 || s->queue)
        gckpti_tree_begin(s, next);
    if (s->queue) {
        s->aloft = gckpti_tree_poll(s, &c, 0); /* nothing is under way for the host */
        s->on->use_comm_queue(s->on->context, 0);
        s->queue = NULL;
    }
    gckpti_go_on_by(g, &c, GCKPTI_FLIGHTS);
}
#endif
