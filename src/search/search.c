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
    size_t n = (size_t)length + 1;
    return gckpti_want(&s->scratch, &t->item, n, sizeof(int)) &&
           gckpti_want(&s->scratch, &t->value_end, n, sizeof(int)) &&
           gckpti_want(&s->scratch, &t->aux_end, n, sizeof(int)) &&
           gckpti_want(&s->scratch, &t->live, n, sizeof *t->live);
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

/* Readies the search for a model: what gradients take, the bytes of units, what all sizes are
 * multiples of, and which of the prologue's values every micro-batch reads. */
GCKPTI_FN void gckpti_search_sizes(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    s->gradient_at = p->gradient_at;
    s->gradient_between = p->gradient_between;
    for (int r = 0; r <= p->backwards; r++)
        s->grain =
            gckpti_divisor(gckpti_divisor(s->grain, p->gradient_at[r]), p->gradient_between[r]);
    s->note = (gckpti_note *)gckpti_scratch_take(&s->scratch, (size_t)p->units, sizeof *s->note);
    for (int u = 0; u < p->units && !p->failed; u++) {
        const gckpti_unit *q = &p->unit[u];
        s->note[u].out = q->out;
        s->note[u].aux = q->aux;
        s->grain = gckpti_divisor(gckpti_divisor(s->grain, q->out), q->aux);
        s->grain = gckpti_divisor(s->grain, q->work);
        s->effects = s->effects || q->effect;
        for (int k = q->in; k < q->in + q->inputs && p->looped && u >= p->prologue; k++)
            s->note[p->links[k]].held = p->links[k] < p->prologue;
        for (int k = q->read; k < q->read + q->reads && p->looped && u >= p->prologue; k++)
            s->note[p->links[k]].held = p->links[k] < p->prologue;
    }
}

/* ---- evaluation ---- */
/* Forgets what the pass before noted; from the end of a schedule, `length` is where what is fetched
 * is read. Returns their bytes. */
static int64_t gckpti_begin_pass(gckpti_search *s, int length)
{
    int64_t fetched = 0;
    for (int u = 0; u < s->p->units; u++) {
        gckpti_note *v = &s->note[u];
        int read = length >= 0 && s->p->unit[u].fetched;
        v->value_end = read ? length : -1;
        v->aux_end = v->start = v->from = -1;
        v->runs = v->reload = v->far = 0;
        fetched += read ? v->out : 0;
    }
    return fetched;
}

/* Moves the items that an evaluation kept to the front. */
static void gckpti_close_up(gckpti_schedule *t, int dropped)
{
    t->length -= dropped;
    for (int x = 0; x < t->length && dropped > 0; x++) {
        int value_end = t->value_end[x + dropped], aux_end = t->aux_end[x + dropped];
        t->item[x] = t->item[x + dropped];
        t->live[x] = t->live[x + dropped];
        t->value_end[x] = value_end < 0 ? -1 : value_end - dropped;
        t->aux_end[x] = aux_end < 0 ? -1 : aux_end - dropped;
    }
}

/* What the prologue leaves is read by every micro-batch, so it lives to the end of the body, where
 * the pass is now. Returns the bytes. */
static int64_t gckpti_hold(gckpti_search *s, int end)
{
    int64_t held = 0;
    for (int u = 0; u < s->p->prologue; u++)
        if (s->note[u].held && s->note[u].value_end < 0) {
            s->note[u].value_end = end;
            held += s->note[u].out;
        }
    return held;
}

/* What is offloaded behind the forward of unit u at position x, for the reloads behind: its work;
 * it is live then. Returns the bytes that nobody else reads. */
static int64_t gckpti_evaluate_offload(gckpti_search *s, gckpti_schedule *t, int u, int x)
{
    gckpti_note *v = &s->note[u];
    int alone = v->reload & ~gckpti_parts(v->value_end, v->aux_end);
    t->extra = gckpti_add_work(t->extra, gckpti_parts_work(s->p, u, v->reload));
    t->far += gckpti_parts_bytes(&s->p->unit[u], v->reload & ~v->far);
    v->far |= v->reload;
    v->value_end = alone & GCKPTI_VALUE ? x : v->value_end;
    v->aux_end = alone & GCKPTI_AUX ? x : v->aux_end;
    v->reload = 0;
    return gckpti_parts_bytes(&s->p->unit[u], alone);
}

/* Drops what nobody reads, as gckpti_drop does, and finds the live bytes at each position, their
 * peak and the work: what gckpti_sum_live finds for the draft, but that sizes are rounded up. One
 * pass from the end, which comes to a value's last use first. */
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *t)
{
    const gckpti_planner *p = s->p;
    int kept = t->length, rank = p->backwards, hold = p->looped ? p->body_backwards : -1, count;
    int64_t live = gckpti_begin_pass(s, kept);
    t->peak = t->far = 0;
    t->extra = 0;
    if (!gckpti_search_room(s, t, kept))
        return;
    s->items += kept;
    for (int x = 0; x < t->length && s->effects; x++)
        if (t->item[x] >= 0 && !gckpti_reloads(p, t->item[x]))
            s->note[t->item[x]].runs++;
    for (int x = t->length; x-- > 0;) {
        int i = t->item[x], in_place = 0, self = gckpti_unit_of(p, i), runs = i == self;
        const gckpti_unit *u = &p->unit[self];
        gckpti_note *v = &s->note[self];
        if (rank == hold) {
            live += gckpti_hold(s, kept - 1);
            hold = -1;
        }
        v->runs -= runs;
        if (i >= 0 && v->value_end < 0 && v->aux_end < 0 &&
            !(runs && (v->reload || (u->effect && v->runs == 0))))
            continue;
        kept--;
        live += runs && v->reload ? gckpti_evaluate_offload(s, t, self, kept) : 0;
        const int *links = gckpti_reads(p, i, &count);
        for (int k = 0; k < count; k++) {
            gckpti_note *q = &s->note[links[k]];
            if (q->value_end >= 0)
                continue;
            q->value_end = kept;
            live += q->out;
            in_place |= u->in_place >> k; /* who read that dies here */
        }
        if (i < 0 && u->reads_aux && v->aux_end < 0) {
            v->aux_end = kept;
            live += v->aux;
        }
        int64_t sum = live + (i < 0 ? s->gradient_at[--rank]
                                    : s->gradient_between[rank] + (runs ? u->work : 0));
        t->item[kept] = i;
        if (i >= 0) {
            int64_t out = v->value_end < 0 ? 0 : v->out;
            sum -= in_place & 1 ? out : 0;
            live -= out + (v->aux_end < 0 ? 0 : v->aux);
            t->value_end[kept] = v->value_end;
            t->aux_end[kept] = v->aux_end;
            if (runs) {
                t->extra = v->start < 0 ? t->extra : gckpti_add_work(t->extra, u->cost);
                v->start = kept;
            } else {
                int parts = gckpti_parts(v->value_end, v->aux_end);
                t->extra = gckpti_add_work(t->extra, gckpti_parts_work(p, self, parts));
                v->reload |= parts;
            }
            v->value_end = v->aux_end = -1;
        }
        t->live[kept] = sum;
        t->peak = sum > t->peak ? sum : t->peak;
    }
    gckpti_close_up(t, kept);
    t->peak = t->far > p->far ? INT64_MAX : t->peak;
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
    gckpti_begin_pass(s, -1);
    s->firsts = 0;
    for (int x = 0; x < s->first_backward && s->p->pinned > 0; x++)
        if (s->note[gckpti_unit_of(s->p, t->item[x])].runs++ == 0)
            s->firsts = x + 1;
    gckpti_begin_pass(s, -1);
    return 1;
}

/* Whether gckpt_recompute asks for a unit's value anew for who reads it at position x: the last
 * before is from before the backwards, as gckpti_add_pins sees it. */
GCKPTI_FN int gckpti_is_stale(const gckpti_search *s, int unit, int x)
{
    return s->p->unit[unit].recompute && x >= s->first_backward && s->note[unit].start < s->firsts;
}
#endif
