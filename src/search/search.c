#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * search: the least work for every budget: cuts, seeds, squeeze, polish
 *
 * The same model and the same schedules as in plan. The search needs only a schedule's live bytes
 * and its repeated work (gckpti_evaluate). A ladder of rungs, which depends on the model alone, has
 * byte limits each a little below the one above, from store-all's down to what is proven to be
 * needed. A rung is solved once, when a budget asks for it (gckpti_solve):
 *   bound    what is proven for its limit, and the instant that decides it (bound).
 *   cuts     that instant's cut says what to keep through the turn; the rest is computed again just
 *            before its first reader. Where all cuts are known these are tried, else the two of the
 *            hull around the limit, with a part of their ties, what only one of them keeps. What is
 *            within 0.1 % of a step of the bound is certified, and the rung is done.
 *   seeds    else schedules that know no limit, made once: store-all, segments, memory-poor, and
 *            those of a dynamic programme over a chain of stages, for many amounts of memory (after
 *            Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains": rotor). The
 *            best that fits is polished; a few that do not, and what the rung above has, are
 *            squeezed first. At most GCKPTI_GROUP rungs depend on one another.
 *   squeeze  takes a schedule below a limit: every gap between two uses of a value may be closed by
 *            computing the value again before the second one, together with what that reads and is
 *            gone (its closure). Gaps are scored by work added per excess byte removed; all that
 *            are within twice the best and do not touch one another are closed at once, unread
 *            forwards dropped, the result evaluated exactly.
 *   polish   takes repeated forwards out again, largest saving first, while the limit holds.
 * A budget gets the least work of what counts for it (gckpti_choose): of cuts themselves; and of
 * rungs, from the one above it down, until the next is proven to have no less work than the best so
 * far. Only what may be the best is drafted and placed. It counts for a budget if its arena fits;
 * but what a rung has that fits into the limit of the rung below counts for none, as budgets below
 * would not look there. So what counts for a budget does for all larger ones: more bytes never cost
 * more work. Seeds count where a rung is not certified and, whatever is proven about work, for the
 * lowest rungs, up to the first with something in its own limit: they may take the least bytes.
 * Up to GCKPTI_LITTLE units all seeds and rungs always count.
 *
 * Invariants: gckpti_evaluate finds at each position the bytes that are live in the draft of the
 * same schedule (sizes rounded up to the alignment). What a rung has is within its limit, and never
 * depends on the budget or on what was asked before. Work limits are counted in list items, never
 * timed, and there are integers only, so that a plan is the same on every machine.
 * ============================================================================================== */

GCKPTI_FN int gckpti_search_room(gckpti_search *s, gckpti_schedule *t, int length)
{
    return gckpti_schedule_room(&s->scratch, t, length);
}

/* ---- sizes of a model ---- */
static int64_t gckpti_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t c = a % b;
        a = b;
        b = c;
    }
    return a;
}

/* Readies the search for a model: what all sizes are multiples of. */
GCKPTI_FN void gckpti_search_sizes(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    s->gradient_at = p->gradient_at;
    s->gradient_between = p->gradient_between;
    for (int r = 0; r <= p->backwards; r++)
        s->grain =
            gckpti_divisor(gckpti_divisor(s->grain, p->gradient_at[r]), p->gradient_between[r]);
    s->note = p->note;
    for (int u = 0; u < p->units; u++) {
        const gckpti_unit *q = &p->unit[u];
        s->grain = gckpti_divisor(gckpti_divisor(s->grain, q->out), q->aux);
        s->grain = gckpti_divisor(s->grain, q->work);
    }
}

/* Finds the lives of a schedule, without what nobody reads. */
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *t)
{
    s->items += t->length;
    if (gckpti_search_room(s, t, t->length))
        gckpti_find_lives(s->p, t);
}

/* Bytes by which a schedule exceeds the limit, summed over its positions. */
GCKPTI_FN int64_t gckpti_excess(const gckpti_schedule *t, int64_t limit)
{
    int64_t sum = t->peak == INT64_MAX ? INT64_MAX / 2 : 0;
    if (t->peak <= limit)
        return 0;
    for (int x = 0; x < t->length; x++)
        sum += t->live[x] > limit ? t->live[x] - limit : 0;
    return sum;
}

/* ---- passes from the front of the present schedule: s->note has the versions where it is ---- */
/* Passes position x. */
GCKPTI_FN void gckpti_step(gckpti_search *s, int x)
{
    const gckpti_schedule *t = &s->now;
    int i = t->item[x], count;
    const int *links = gckpti_reads(s->p, i, &count);
    for (int k = 0; k < count; k++)
        s->note[links[k]].from = x;
    s->looked += count + 1;
    if (i < 0) {
        s->note[~i].from = s->p->unit[~i].reads_aux ? x : s->note[~i].from;
        return;
    }
    gckpti_note *v = &s->note[gckpti_unit_of(s->p, i)];
    v->value_end = t->value_end[x];
    v->aux_end = t->aux_end[x];
    v->start = v->from = x;
    v->runs += !gckpti_reloads(s->p, i);
}

/* Sums the excess over a limit, and begins a pass. */
GCKPTI_FN int gckpti_index(gckpti_search *s, int64_t limit)
{
    const gckpti_schedule *t = &s->now;
    size_t n = (size_t)t->length + 1;
    if (!gckpti_want(&s->scratch, &s->excess_sum, n, sizeof *s->excess_sum) ||
        !gckpti_want(&s->scratch, &s->excess_count, n, sizeof(int)))
        return 0;
    s->excess_sum[0] = 0;
    s->excess_count[0] = 0;
    for (int x = 0; x < t->length; x++) {
        int64_t excess = t->live[x] > limit ? t->live[x] - limit : 0;
        s->excess_sum[x + 1] = s->excess_sum[x] + excess;
        s->excess_count[x + 1] = s->excess_count[x] + (excess > 0);
    }
    s->moves = s->sets = 0;
    s->worst = UINT64_MAX;
    s->first_backward = 0;
    while (s->first_backward < t->length && t->item[s->first_backward] >= 0)
        s->first_backward++;
    gckpti_begin_pass(s->p);
    s->firsts = 0;
    for (int x = 0; x < s->first_backward && s->p->pinned > 0; x++)
        if (s->note[gckpti_unit_of(s->p, t->item[x])].runs++ == 0)
            s->firsts = x + 1;
    gckpti_begin_pass(s->p);
    return 1;
}

/* Whether gckpt_recompute asks for a unit's value anew for who reads it at position x: the last
 * before is from before the backwards, as gckpti_add_pins sees it. */
GCKPTI_FN int gckpti_is_stale(const gckpti_search *s, int unit, int x)
{
    return s->p->unit[unit].recompute && x >= s->first_backward && s->note[unit].start < s->firsts;
}
#endif
