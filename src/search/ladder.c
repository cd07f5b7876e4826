#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- the ladder: its rungs, and what is done to solve one ---- */
/* Most units for which every single move is tried; seeds that a rung polishes exactly; how often it
 * is shaken; rungs that depend on one another, at the most. */
enum { GCKPTI_EXACT = 32, GCKPTI_TRIED = 12, GCKPTI_SHAKES = 4, GCKPTI_GROUP = 4 };

/* The limits: from store-all's bytes down to what is proven to be needed, each a little below the
 * one above. Rungs never depend on a budget. */
GCKPTI_FN void gckpti_make_rungs(gckpti_search *s, int64_t most)
{
    int64_t resident = s->gradient_between[0], least = s->bound->least;
    int units = s->p->units, part = units <= 300 ? 40 : units <= 1000 ? 25 : 12, at;
    int every = (most - least) / s->grain <= 96;
    uint64_t deep = gckpti_hulls_work(s->bound, least, &at) / 8 * 7;
    for (int64_t limit = most; limit >= least;) {
        gckpti_slot *slot = gckpti_slot_new(s, &s->slot, &s->slots);
        int64_t step = every ? s->grain : (limit - resident) / part;
        if (!slot)
            return;
        slot->limit = limit;
        if (!every && gckpti_hulls_work(s->bound, limit, &at) > deep)
            step *= units <= 300 ? 2 : 3;  /* where proofs are weak, rungs are dear */
        step = step / s->grain * s->grain; /* as live bytes are */
        step = step > 0 ? step : s->grain;
        limit = limit - least > step ? limit - step : limit > least ? least : least - 1;
    }
    for (int k = 0; k < s->slots; k++)
        if (gckpti_hulls_work(s->bound, s->slot[k].limit, &at) < UINT64_MAX)
            s->deciders |= 1u << at;
}

/* Begins a rung: what its limit proves, and what cuts find. Returns whether more may be found. */
static int gckpti_begin_rung(gckpti_search *s, gckpti_slot *slot)
{
    int at;
    if (slot->state != GCKPTI_NEW)
        return slot->state == GCKPTI_BEGUN;
    s->items = s->looked = s->attempts = 0;
    slot->state = GCKPTI_BEGUN;
    slot->bound = gckpti_bound_work(s->bound, slot->limit, &at);
    if (slot->bound < UINT64_MAX && s->bound->instants > 0) {
        gckpti_instant *t = &s->bound->instant[at];
        gckpti_solve_counted(s, slot, t);
        if (!gckpti_certified(s, slot))
            gckpti_solve_ties(s, slot, t, &t->hull);
        for (int c = 1; c <= GCKPTI_CHEAP && s->p->offloads && !gckpti_certified(s, slot); c++)
            gckpti_solve_ties(s, slot, t, gckpti_cheap_cuts(s->bound, t, c));
    }
    if (slot->bound == UINT64_MAX || gckpti_certified(s, slot))
        slot->state = GCKPTI_DONE;
    return slot->state == GCKPTI_BEGUN;
}

/* Whether a rung takes up what the one above found. */
static int gckpti_follows(const gckpti_search *s, int k)
{
    return s->whole ? k > 0 : k % GCKPTI_GROUP != 0;
}

/* Ends it: the best seed within its limit, polished; seeds not far above it and the rung above,
 * squeezed. */
static void gckpti_end_rung(gckpti_search *s, int k)
{
    gckpti_slot *slot = &s->slot[k];
    int exact = s->p->units <= GCKPTI_EXACT, best = -1, above = 0, tried = 0;
    if (slot->state != GCKPTI_BEGUN)
        return;
    if (s->seeds == 0)
        gckpti_find_seeds(s);
    s->items = s->looked = s->attempts = 0;
    slot->state = GCKPTI_DONE;
    for (; above < s->seeds && s->seed[above].peak <= slot->limit; above++) {
        if (best < 0 || s->seed[above].extra <= s->seed[best].extra)
            best = above;
    }
    for (int i = above, most = GCKPTI_TRIED; exact && i-- > 0 && most > 0;)
        if (!s->seed[i].dominated && most-- && gckpti_slot_load(s, &s->seed[i]))
            gckpti_improve(s, slot, 1);
    if (best >= 0 && gckpti_slot_load(s, &s->seed[best])) {
        gckpti_offer(s, slot);
        gckpti_improve(s, slot, 0);
    }
    if (gckpti_follows(s, k) && s->slot[k - 1].length == 0)
        return; /* with more bytes nothing was found */
    for (uint64_t least = UINT64_MAX; above < s->seeds && tried < 4; above++)
        if (s->seed[above].extra / 8 * 7 <= least && s->seed[above].extra / 4 <= s->p->least_work &&
            gckpti_slot_load(s, &s->seed[above])) {
            least = s->seed[above].extra < least ? s->seed[above].extra : least;
            gckpti_improve(s, slot, 0);
            tried++;
        }
    for (int how = 0; how <= exact && gckpti_follows(s, k); how++)
        if (gckpti_slot_load(s, &s->slot[k - 1]))
            gckpti_improve(s, slot, how);
    if (s->p->units <= GCKPTI_SMALL)
        gckpti_shake(s, slot, exact ? s->p->units : GCKPTI_SHAKES, exact);
}

/* Finds the schedule of rung k. The rung above has a part in it, unless that is certified or
 * belongs to another group and something else was found. */
GCKPTI_FN void gckpti_solve(gckpti_search *s, int k)
{
    int top = k;
    while (gckpti_begin_rung(s, &s->slot[top]) && gckpti_follows(s, top) && !s->p->failed)
        top--;
    for (; top <= k && !s->p->failed; top++) {
        gckpti_slot *slot = &s->slot[top];
        gckpti_end_rung(s, top);
        if (slot->length || slot->bound == UINT64_MAX || top == 0 || gckpti_follows(s, top))
            continue;
        gckpti_solve(s, top - 1);
        if (gckpti_slot_load(s, &s->slot[top - 1]))
            gckpti_offer(s, slot);
    }
}
#endif
