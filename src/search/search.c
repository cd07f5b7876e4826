#include "search/own.h"
#include "base/base.h"
#include "num/num.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * search: the least work for every budget: cuts, seeds, squeeze, polish
 *
 * A ladder of rungs, which depends on the model alone, has byte limits from store-all's down to the
 * proven least. A rung is solved once, when a budget needs it (gckpti_solve):
 *   cuts     The cut of the instant that decides says what to keep through the turn; the rest is
 *            computed again just before its first reader. If all cuts are known these are tried,
 *            else the two of the hull around the limit, with a part of what only one of them keeps.
 *            A schedule within 0.1 % of a step of the bound is certified, and the rung is done.
 *   seeds    Else schedules that know no limit, made once: store-all, segments, memory-poor, and
 *            those of a dynamic programme over a chain of stages (chain). The best that fits is
 *            polished; a few others, and what the rung above has, are squeezed first. At most
 *            GCKPTI_GROUP rungs depend on one another.
 *   squeeze  takes a schedule below a limit: a gap between two uses of a value is closed by
 *            computing it again before the second one, with what that reads and is gone (its
 *            closure). All gaps whose work per excess byte is within twice the best and which do
 *            not touch one another are closed at once, and the result is evaluated exactly.
 *   polish   takes repeated forwards out again, largest saving first, while the limit holds.
 * gckpti_choose finds the least work that counts for a budget: of cuts, and of rungs from the one
 * above it down, until the next is proven to have no less work than the best so far. A schedule
 * counts if its arena fits, unless it fits into the limit of the rung below, too, where smaller
 * budgets would not look. So what counts for a budget counts for all larger ones: more bytes never
 * cost more work. Seeds count where a rung is not certified and for the lowest rungs, up to the
 * first with something in its own limit. Up to GCKPTI_LITTLE units everything always counts.
 *
 * Invariants: 1. gckpti_evaluate finds at each position the bytes that are live in the draft of the
 * same schedule (sizes rounded up to the alignment). 2. What a rung has is within its limit and
 * depends neither on the budget nor on earlier calls. 3. Limits of effort count list items, never
 * time, and all numbers are integers, so that a plan is the same on every machine.
 * ============================================================================================== */

/* The greatest that divides both. */
static int64_t gckpti_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t c = a % b;
        a = b;
        b = c;
    }
    return a;
}

/* What all sizes of a model are multiples of. */
GCKPTI_FN int64_t gckpti_grain(const gckpti_planner *p)
{
    int64_t grain = 0;
    for (int r = 0; r <= p->backwards; r++)
        grain = gckpti_divisor(gckpti_divisor(grain, p->gradient_at[r]), p->gradient_between[r]);
    for (int u = 0; u < p->units; u++) {
        const gckpti_unit *q = &p->unit[u];
        grain = gckpti_divisor(gckpti_divisor(gckpti_divisor(grain, q->out), q->aux), q->work);
    }
    return grain;
}

/* What one rung may cost, for each unit: list items evaluated; four times as many items and links
 * looked at to find moves. */
#define GCKPTI_WORK_LIMIT INT64_C(700)

/* Whether the search has counted as much as it may, or one attempt of several, which lags when a
 * quarter or half of its work took no such part off `first`, its excess, of which `now` is left;
 * then it ends, wherever it is. */
GCKPTI_FN int gckpti_ends(gckpti_search *s, int64_t first, int64_t now)
{
    int64_t units = (s->p->units + 200) * (s->whole ? 20 : 1), most = GCKPTI_WORK_LIMIT * units;
    int64_t used = s->attempt < 0 ? 0 : s->items + s->looked / 4 - s->attempt;
    int ends = s->items > most || s->looked > 4 * most || used > most / 8 ||
               (used > most / 32 && now > first / 4 * 3) || (used > most / 16 && now > first / 2);
    s->incomplete = s->incomplete || ends;
    return ends;
}

GCKPTI_FN int gckpti_spent(gckpti_search *s) { return gckpti_ends(s, 0, 0); }

/* Finds the lives of a schedule, without what nobody reads. */
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *t)
{
    s->items += t->length;
    if (gckpti_schedule_room(&s->scratch, t, t->length))
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

/* ---- the present schedule, s->now; answers that keep one, and make it better ---- */
/* Writes the present schedule as a maker does. */
static void gckpti_make_now(gckpti_search *s)
{
    s->p->made_length = 0;
    for (int x = 0; x < s->now.length; x++)
        gckpti_emit(s->p, s->now.item[x]);
}

/* What a maker wrote becomes the present schedule: finished until that changes nothing, as it is
 * again when it is drafted, and what is dropped may tell gckpt_recompute's turn otherwise. */
GCKPTI_FN int gckpti_take_made(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    for (int round = 0, same = 0; round < 4 && !same; round++) {
        if (!gckpti_finish(p, p->made, (int)p->made_length, &s->scratch, &s->now))
            return 0;
        same = !p->pinned || (size_t)s->now.length == p->made_length;
        if (!same)
            gckpti_make_now(s);
    }
    p->made_length = 0;
    s->items += 2 * (int64_t)s->now.length;
    return 1;
}

/* Gives the present schedule what gckpt_recompute asks for behind moves, too. */
GCKPTI_FN void gckpti_settle(gckpti_search *s)
{
    if (s->p->pinned) {
        gckpti_make_now(s);
        gckpti_take_made(s);
    }
}

/* Keeps a schedule, which is not laid out yet, in place of what the answer has. */
GCKPTI_FN void gckpti_answer_store(gckpti_search *s, gckpti_answer *answer,
                                   const gckpti_schedule *t)
{
    answer->runs = gckpti_to_runs(t->item, t->length, NULL);
    if (!gckpti_want(&s->scratch, &answer->run, (size_t)answer->runs, sizeof *answer->run))
        return;
    gckpti_to_runs(t->item, t->length, answer->run);
    answer->length = t->length;
    answer->peak = t->peak;
    answer->extra = t->extra;
    answer->again = t->again;
    answer->moved = t->moved;
    answer->arena = 0;
    answer->ahead = NULL;
}

/* Makes what an answer has the present schedule, evaluated. 0: it has nothing, or no memory. */
GCKPTI_FN int gckpti_answer_load(gckpti_search *s, const gckpti_answer *answer)
{
    if (answer->length == 0 || !gckpti_schedule_room(&s->scratch, &s->now, answer->length))
        return 0;
    gckpti_from_runs(answer->run, answer->length, s->now.item);
    s->now.length = answer->length;
    gckpti_evaluate(s, &s->now);
    return 1;
}

/* Appends an empty answer to *answers, where those there may move to. NULL: no memory. */
GCKPTI_FN gckpti_answer *gckpti_answer_new(gckpti_search *s, gckpti_answer **answers, int *count)
{
    if (!gckpti_want(&s->scratch, answers, (size_t)*count + 1, sizeof **answers))
        return NULL;
    gckpti_answer *answer = &(*answers)[(*count)++];
    memset(answer, 0, sizeof *answer);
    return answer;
}

/* Gives the present schedule to an answer if it fits there and is better than what that has. */
GCKPTI_FN void gckpti_offer(gckpti_search *s, gckpti_answer *answer)
{
    const gckpti_schedule *t = &s->now;
    gckpti_settle(s);
    int better = answer->length == 0 || t->extra < answer->extra ||
                 (t->extra == answer->extra && t->peak < answer->peak);
    if (t->peak <= answer->limit && better && !s->p->failed)
        gckpti_answer_store(s, answer, t);
}

/* Whether an answer's schedule is as good as proven, nearly. */
GCKPTI_FN int gckpti_certified(const gckpti_search *s, const gckpti_answer *answer)
{
    return answer->length > 0 && answer->extra - answer->bound <= s->enough;
}

/* Whether of two lists of runs that differ from here on the first one has the lesser item first. */
static int gckpti_run_before(const gckpti_span *a, const gckpti_span *b)
{
    return a->first != b->first  ? a->first < b->first
           : a->count < b->count ? a[1].first < b->first + a->count
                                 : a->first + b->count < b[1].first;
}

/* Orders schedules that are laid out: by bytes, then work, then anything that tells them apart
 * (number by number: as bytes the order would depend on the machine). */
GCKPTI_FN int gckpti_answer_before(const void *first, const void *second, const void *context)
{
    const gckpti_answer *a = (const gckpti_answer *)first, *b = (const gckpti_answer *)second;
    int x = 0, k = 0;
    (void)context;
    while (a->length == b->length && x < a->length && a->run[k].first == b->run[k].first &&
           a->run[k].count == b->run[k].count)
        x += a->run[k++].count;
    return a->arena != b->arena     ? a->arena < b->arena
           : a->extra != b->extra   ? a->extra < b->extra
           : a->length != b->length ? a->length < b->length
                                    : x < a->length && gckpti_run_before(a->run + k, b->run + k);
}

/* Whether runs have these items. */
static int gckpti_same_items(const gckpti_span *run, const int *item, int length)
{
    for (int x = 0; x < length; run++)
        for (int k = 0; k < run->count; k++)
            if (item[x++] != run->first + k)
                return 0;
    return 1;
}

/* What a maker wrote becomes the present schedule and a seed, if it is none yet. */
GCKPTI_FN void gckpti_seed(gckpti_search *s, int between)
{
    const gckpti_schedule *t = &s->now;
    int dominated = 0;
    if (!gckpti_take_made(s))
        return;
    for (int i = 0; i < s->seeds; i++) {
        gckpti_answer *q = &s->seed[i];
        if (q->length == t->length && gckpti_same_items(q->run, t->item, t->length)) {
            q->between = q->between && between;
            return;
        }
        dominated = dominated || (q->peak <= s->now.peak && q->extra <= t->extra);
    }
    gckpti_answer *answer = gckpti_answer_new(s, &s->seed, &s->seeds);
    if (!answer)
        return;
    gckpti_answer_store(s, answer, &s->now);
    answer->dominated = dominated;
    answer->between = between;
}
#endif
