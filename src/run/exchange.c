#ifndef GCKPT_NO_RANKS
#include "run/own.h"

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
    if (!s->broken && s->engine->give_up)
        s->engine->give_up(s->engine->user);
    s->broken = 1;
    s->busy = s->tree.bit = 0;
}

/* Begins to send bytes of the host to a rank, and to receive from it. */
GCKPTI_FN void gckpti_exchange(gckpti_peers *s, int peer, const void *send, size_t n, void *receive,
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
GCKPTI_FN int gckpti_wait_for(gckpti_peers *s)
{
    const gckpt_ranks *by = s->engine;
    double start = by && by->clock ? by->clock(by->user) : 0;
    while (!gckpti_is_done(s))
        if (by->clock && by->timeout > 0 && by->clock(by->user) - start > by->timeout)
            gckpti_break(s);
    return !s->broken;
}

/* Begins to send n floats from where the backend has them, and to receive m. */
static void gckpti_exchange_floats(gckpti_peers *s, int peer, const float *from, int64_t n,
                                   float *to, int64_t m)
{
    const gckpt_backend *b = s->on;
    int copies = b->own_memory && !s->engine->on_backend;
    size_t size = (size_t)n * sizeof *from;
    s->bytes = (size_t)m * sizeof *to;
    s->to = copies ? to : NULL;
    if (copies && n)
        b->copy_out(b->context, s->out, from, size);
    else if (b->own_memory)
        (void)b->finish(b->context); /* what failed it says again in each later call */
    gckpti_exchange(s, peer, copies ? (void *)s->out : (void *)(uintptr_t)from, size,
                    copies ? (void *)s->in : (void *)to, s->bytes);
}

/* Begins a sum of the engine's own. */
static void gckpti_all_reduce(gckpti_peers *s, float *x, int64_t n)
{
    const gckpt_backend *b = s->on;
    void *here = x;
    s->peer = -1;
    s->to = NULL;
    s->bytes = (size_t)n * sizeof *x;
    if (b->own_memory && !s->engine->on_backend) {
        s->to = x;
        here = s->in;
        b->copy_out(b->context, here, x, s->bytes);
    } else if (b->own_memory) {
        (void)b->finish(b->context);
    }
    s->busy = 1;
    if (!s->engine->all_reduce(s->engine->user, (float *)here, (size_t)n))
        gckpti_break(s);
}

/* Merges each rank's bytes with those of all others, which come to `heard`, as many. Leaves off
 * where an exchange fails (s->broken). */
GCKPTI_FN void gckpti_merge_all(gckpti_peers *s, void *mine, void *heard, size_t bytes,
                                void (*merge)(void *mine, const void *heard, size_t bytes))
{
    s->to = NULL;
    for (int bit = 1; bit < s->ranks && !s->broken; bit *= 2) {
        gckpti_exchange(s, s->rank ^ bit, mine, bytes, heard, bytes);
        if (gckpti_wait_for(s))
            merge(mine, heard, bytes);
    }
}

/* A merge: adds. */
GCKPTI_FN void gckpti_merge_floats(void *mine, const void *heard, size_t bytes)
{
    gckpti_add_into((float *)mine, (const float *)heard, (int64_t)(bytes / sizeof(float)));
}

/* A merge: what both have heard so far: the failure of the lowest rank that failed, else the first
 * thing in which they differ. */
GCKPTI_FN void gckpti_merge_meetings(void *mine, const void *heard, size_t bytes)
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

/* ---- large ones, level by level, while something else is computed ---- */
static void gckpti_tree_level(gckpti_peers *s)
{
    gckpti_tree *t = &s->tree;
    int peer = s->rank ^ t->bit;
    int64_t first = 0, n = t->n;
    t->first = 0; /* one block goes whole */
    t->count = n;
    if (n > GCKPT_UPDATE_BLOCK) {
        t->count = gckpti_share(t->n, s->rank, 2 * t->bit, &t->first);
        n = gckpti_share(t->n, peer, 2 * t->bit, &first);
    }
    if (t->kind == GCKPTI_GATHER)
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
    gckpti_tree *t = &s->tree;
    t->kind = kind;
    t->x = x;
    t->work = work;
    t->n = n;
    t->bit = s->broken ? 0 : kind == GCKPTI_GATHER ? s->ranks / 2 : 1;
    if (t->bit && kind == GCKPTI_ENGINE)
        gckpti_all_reduce(s, x, n);
    else if (t->bit)
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

GCKPT_API uint64_t gckpt_exec_sent(const gckpt_exec *exec)
{
    return exec && exec->crew ? exec->crew->peers.sent : 0;
}
#endif
