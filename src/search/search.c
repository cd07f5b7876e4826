#include "search/internal.h"
#include "base/base.h"
#include "num/num.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * search: the least work for every budget: cuts, seeds, squeeze, polish
 *
 * A ladder of rungs, which depends on the model alone, has byte limits from store-all's down to the
 * proven least. A rung is solved once, when a budget needs it (gckpti_solve_level):
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
 * gckpti_find_best finds the least work that counts for a budget: of cuts, and of rungs from the one
 * above it down, until the next is proven to have no less work than the best so far. A schedule
 * counts if its arena fits, unless it fits into the limit of the rung below, too, where smaller
 * budgets would not look. So what counts for a budget counts for all larger ones: more bytes never
 * cost more work. Seeds count where a rung is not certified and for the lowest rungs, up to the
 * first with something in its own limit. Up to GCKPTI_TINY_N units everything always counts.
 *
 * Invariants: 1. gckpti_evaluate finds at each position the bytes that are live in the draft of the
 * same schedule (sizes rounded up to the alignment). 2. What a rung has is within its limit and
 * depends neither on the budget nor on earlier calls. 3. Limits of effort count list items, never
 * time, and all numbers are integers, so that a plan is the same on every machine.
 * ============================================================================================== */

/* The greatest that divides both. */
static int64_t gckpti_gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t c = a % b;
        a = b;
        b = c;
    }
    return a;
}

/* What all sizes of a model are multiples of. */
GCKPTI_FN int64_t gckpti_size_grain(const gckpti_planner *p)
{
    int64_t grain = 0;
    for (int r = 0; r <= p->backwards; r++)
        grain = gckpti_gcd(gckpti_gcd(grain, p->gradient_at[r]), p->gradient_between[r]);
    for (int u = 0; u < p->nodes; u++) {
        const gckpti_node *q = &p->node[u];
        grain = gckpti_gcd(gckpti_gcd(gckpti_gcd(grain, q->out), q->saved), q->workspace);
    }
    return grain;
}

/* What one rung may cost, for each unit: list items evaluated; four times as many items and links
 * looked at to find moves. */
#define GCKPTI_EFFORT_LIMIT INT64_C(700)

/* Whether the search has counted as much as it may, or one attempt of several, which lags when a
 * quarter or half of its work took no such part off `first`, its excess, of which `now` is left;
 * then it ends, wherever it is. */
GCKPTI_FN int gckpti_should_stop(gckpti_search *s, int64_t first, int64_t left)
{
    int64_t nodes = (s->p->nodes + 200) * (s->tiny ? 20 : 1), most = GCKPTI_EFFORT_LIMIT * nodes;
    int64_t used = s->started < 0 ? 0 : s->evaluated + s->examined / 4 - s->started;
    int ends = s->evaluated > most || s->examined > 4 * most || used > most / 8 ||
               (used > most / 32 && left > first / 4 * 3) || (used > most / 16 && left > first / 2);
    s->incomplete = s->incomplete || ends;
    return ends;
}

GCKPTI_FN int gckpti_is_exhausted(gckpti_search *s) { return gckpti_should_stop(s, 0, 0); }

/* Finds the lives of a schedule, without what nobody reads. */
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *schedule)
{
    s->evaluated += schedule->length;
    if (gckpti_schedule_reserve(&s->scratch, schedule, schedule->length))
        gckpti_find_live_ranges(s->p, schedule);
}

/* Bytes by which a schedule exceeds the limit, summed over its positions. */
GCKPTI_FN int64_t gckpti_excess(const gckpti_schedule *schedule, int64_t limit)
{
    int64_t sum = schedule->peak == INT64_MAX ? INT64_MAX / 2 : 0;
    if (schedule->peak <= limit)
        return 0;
    for (int x = 0; x < schedule->length; x++)
        sum += schedule->live_bytes[x] > limit ? schedule->live_bytes[x] - limit : 0;
    return sum;
}

/* ---- passes from the front of the present schedule: s->note has the versions where it is ---- */
/* Passes position x. */
GCKPTI_FN void gckpti_scan_entry(gckpti_search *s, int x)
{
    const gckpti_schedule *now = &s->now;
    int i = now->entry[x], count;
    const int *edges = gckpti_entry_reads(s->p, i, &count);
    for (int k = 0; k < count; k++)
        s->state[edges[k]].prev_use = x;
    s->examined += count + 1;
    if (i < 0) {
        s->state[~i].prev_use = s->p->node[~i].reads_saved ? x : s->state[~i].prev_use;
        return;
    }
    gckpti_node_state *v = &s->state[gckpti_entry_node(s->p, i)];
    v->value_end = now->value_end[x];
    v->saved_end = now->saved_end[x];
    v->start = v->prev_use = x;
    v->run_count += !gckpti_is_reload(s->p, i);
}

/* Sums the excess over a limit, and begins a pass. */
GCKPTI_FN int gckpti_begin_scan(gckpti_search *s, int64_t limit)
{
    const gckpti_schedule *now = &s->now;
    size_t n = (size_t)now->length + 1;
    if (!gckpti_reserve(&s->scratch, &s->excess_sum, n, sizeof *s->excess_sum) ||
        !gckpti_reserve(&s->scratch, &s->excess_count, n, sizeof(int)))
        return 0;
    s->excess_sum[0] = 0;
    s->excess_count[0] = 0;
    for (int x = 0; x < now->length; x++) {
        int64_t excess = now->live_bytes[x] > limit ? now->live_bytes[x] - limit : 0;
        s->excess_sum[x + 1] = s->excess_sum[x] + excess;
        s->excess_count[x + 1] = s->excess_count[x] + (excess > 0);
    }
    s->moves = s->pooled = 0;
    s->first_backward = 0;
    while (s->first_backward < now->length && now->entry[s->first_backward] >= 0)
        s->first_backward++;
    gckpti_reset_states(s->p);
    s->firsts_end = 0;
    for (int x = 0; x < s->first_backward && s->p->recompute_count > 0; x++)
        if (s->state[gckpti_entry_node(s->p, now->entry[x])].run_count++ == 0)
            s->firsts_end = x + 1;
    gckpti_reset_states(s->p);
    return 1;
}

/* Whether gckpt_recompute asks for a unit's value anew for who reads it at position x: the last
 * before is from before the backwards, as gckpti_apply_policy sees it. */
GCKPTI_FN int gckpti_must_recompute(const gckpti_search *s, int node, int x)
{
    return s->p->node[node].must_recompute && x >= s->first_backward &&
           s->state[node].start < s->firsts_end;
}

/* ---- the present schedule, s->now; answers that keep one, and make it better ---- */
/* Writes the present schedule as a maker does. */
static void gckpti_emit_now(gckpti_search *s)
{
    s->p->entry_count = 0;
    for (int x = 0; x < s->now.length; x++)
        gckpti_emit(s->p, s->now.entry[x]);
}

/* What a maker wrote becomes the present schedule: finished until that changes nothing, as it is
 * again when it is drafted, and what is dropped may tell gckpt_recompute's turn otherwise. */
GCKPTI_FN int gckpti_take_built(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    for (int iteration = 0, same = 0; iteration < 4 && !same; iteration++) {
        if (!gckpti_finish_schedule(p, p->entries, (int)p->entry_count, &s->scratch, &s->now))
            return 0;
        same = !p->recompute_count || (size_t)s->now.length == p->entry_count;
        if (!same)
            gckpti_emit_now(s);
    }
    p->entry_count = 0;
    s->evaluated += 2 * (int64_t)s->now.length;
    return 1;
}

/* Gives the present schedule what gckpt_recompute asks for behind moves, too. */
GCKPTI_FN void gckpti_reapply_policy(gckpti_search *s)
{
    if (s->p->recompute_count) {
        gckpti_emit_now(s);
        gckpti_take_built(s);
    }
}

/* Keeps a schedule, which is not laid out yet, in place of what the answer has. */
GCKPTI_FN void gckpti_candidate_store(gckpti_search *s, gckpti_candidate *candidate,
                                      const gckpti_schedule *schedule)
{
    candidate->spans = gckpti_to_spans(schedule->entry, schedule->length, NULL);
    if (!gckpti_reserve(&s->scratch, &candidate->span, (size_t)candidate->spans,
                        sizeof *candidate->span))
        return;
    gckpti_to_spans(schedule->entry, schedule->length, candidate->span);
    candidate->length = schedule->length;
    candidate->peak = schedule->peak;
    candidate->overhead = schedule->overhead;
    candidate->recompute_cost = schedule->recompute_cost;
    candidate->transfer_cost = schedule->transfer_cost;
    candidate->arena = 0;
    candidate->hidden = NULL;
}

/* Makes what an answer has the present schedule, evaluated. 0: it has nothing, or no memory. */
GCKPTI_FN int gckpti_candidate_load(gckpti_search *s, const gckpti_candidate *candidate)
{
    if (candidate->length == 0 || !gckpti_schedule_reserve(&s->scratch, &s->now, candidate->length))
        return 0;
    gckpti_from_spans(candidate->span, candidate->length, s->now.entry);
    s->now.length = candidate->length;
    gckpti_evaluate(s, &s->now);
    return 1;
}

/* Appends an empty answer to *answers, where those there may move to. NULL: no memory. */
GCKPTI_FN gckpti_candidate *gckpti_candidate_new(gckpti_search *s, gckpti_candidate **list,
                                                 int *count)
{
    if (!gckpti_reserve(&s->scratch, list, (size_t)*count + 1, sizeof **list))
        return NULL;
    gckpti_candidate *candidate = &(*list)[(*count)++];
    memset(candidate, 0, sizeof *candidate);
    return candidate;
}

/* Gives the present schedule to an answer if it fits there and is better than what that has. */
GCKPTI_FN void gckpti_candidate_update(gckpti_search *s, gckpti_candidate *candidate)
{
    const gckpti_schedule *now = &s->now;
    gckpti_reapply_policy(s);
    int better = candidate->length == 0 || now->overhead < candidate->overhead ||
                 (now->overhead == candidate->overhead && now->peak < candidate->peak);
    if (now->peak <= candidate->limit && better && !s->p->failed)
        gckpti_candidate_store(s, candidate, now);
}

/* Whether an answer's schedule is as good as proven, nearly. */
GCKPTI_FN int gckpti_is_proven(const gckpti_search *s, const gckpti_candidate *candidate)
{
    return candidate->length > 0 && candidate->overhead - candidate->bound <= s->margin;
}

/* Whether of two lists of runs that differ from here on the first one has the lesser item first. */
static int gckpti_span_before(const gckpti_span *a, const gckpti_span *b)
{
    return a->first != b->first  ? a->first < b->first
           : a->count < b->count ? a[1].first < b->first + a->count
                                 : a->first + b->count < b[1].first;
}

/* Orders schedules that are laid out: by bytes, then work, then anything that tells them apart
 * (number by number: as bytes the order would depend on the machine). */
GCKPTI_FN int gckpti_candidate_before(const void *first, const void *second, const void *context)
{
    const gckpti_candidate *a = (const gckpti_candidate *)first,
                           *b = (const gckpti_candidate *)second;
    int x = 0, k = 0;
    (void)context;
    while (a->length == b->length && x < a->length && a->span[k].first == b->span[k].first &&
           a->span[k].count == b->span[k].count)
        x += a->span[k++].count;
    return a->arena != b->arena         ? a->arena < b->arena
           : a->overhead != b->overhead ? a->overhead < b->overhead
           : a->length != b->length     ? a->length < b->length
                                    : x < a->length && gckpti_span_before(a->span + k, b->span + k);
}

/* Whether runs have these items. */
static int gckpti_same_entries(const gckpti_span *span, const int *entry, int length)
{
    for (int x = 0; x < length; span++)
        for (int k = 0; k < span->count; k++)
            if (entry[x++] != span->first + k)
                return 0;
    return 1;
}

/* What a maker wrote becomes the present schedule and a seed, if it is none yet. */
GCKPTI_FN void gckpti_add_initial(gckpti_search *s, int dense)
{
    const gckpti_schedule *now = &s->now;
    int dominated = 0;
    if (!gckpti_take_built(s))
        return;
    for (int i = 0; i < s->initials; i++) {
        gckpti_candidate *q = &s->initial[i];
        if (q->length == now->length && gckpti_same_entries(q->span, now->entry, now->length)) {
            q->dense = q->dense && dense;
            return;
        }
        dominated = dominated || (q->peak <= s->now.peak && q->overhead <= now->overhead);
    }
    gckpti_candidate *candidate = gckpti_candidate_new(s, &s->initial, &s->initials);
    if (!candidate)
        return;
    gckpti_candidate_store(s, candidate, &s->now);
    candidate->dominated = dominated;
    candidate->dense = dense;
}
#endif
