#include "plan/own.h"
#include "graph/graph.h"

/* ---- lives: a walk over a schedule from its end, which comes to a value's last use first ---- */
GCKPTI_FN void gckpti_begin_pass(gckpti_planner *p)
{
    for (int u = 0; u < p->units; u++) {
        gckpti_note *v = &p->note[u];
        v->value_end = v->aux_end = v->start = v->from = -1;
        v->runs = v->reload = v->far = v->stale = 0;
    }
}

/* Moves the items that a walk kept to the front. */
static void gckpti_close_up(gckpti_schedule *t, int dropped)
{
    t->length -= dropped;
    for (int x = 0; x < t->length && dropped > 0; x++) {
        int value_end = t->value_end[x + dropped], aux_end = t->aux_end[x + dropped];
        t->item[x] = t->item[x + dropped];
        t->live[x] = t->live[x + dropped];
        t->offloaded[x] = t->offloaded[x + dropped];
        t->value_end[x] = value_end < 0 ? -1 : value_end - dropped;
        t->aux_end[x] = aux_end < 0 ? -1 : aux_end - dropped;
    }
}

/* What the prologue leaves is read by every micro-batch, so it lives to the end of the body, where
 * the walk is now. Returns the bytes. */
static int64_t gckpti_hold(gckpti_planner *p, int end)
{
    int64_t held = 0;
    for (int u = 0; u < p->prologue; u++)
        if (p->note[u].held && p->note[u].value_end < 0) {
            p->note[u].value_end = end;
            held += p->note[u].out;
        }
    return held;
}

/* What is offloaded behind the forward of unit u at position x, for the reloads behind: its work;
 * it is live then. Returns the bytes that nobody else reads. */
static int64_t gckpti_offload(gckpti_planner *p, gckpti_schedule *t, int u, int x)
{
    gckpti_note *v = &p->note[u];
    int alone = v->reload & ~gckpti_parts(v->value_end, v->aux_end);
    t->moved = gckpti_add_work(t->moved, gckpti_parts_work(p, u, v->reload));
    t->far += gckpti_parts_bytes(&p->unit[u], v->reload & ~v->far);
    v->far |= v->reload;
    v->value_end = alone & GCKPTI_VALUE ? x : v->value_end;
    v->aux_end = alone & GCKPTI_AUX ? x : v->aux_end;
    v->reload = 0;
    return gckpti_parts_bytes(&p->unit[u], alone);
}

/* Where the walk comes to a forward (runs) or a reload of a unit, at position x: its work, its last
 * uses. Returns the bytes that do not live before it. */
static int64_t gckpti_begin_version(gckpti_planner *p, gckpti_schedule *t, int unit, int runs,
                                    int x)
{
    gckpti_note *v = &p->note[unit];
    t->value_end[x] = v->value_end;
    t->aux_end[x] = v->aux_end;
    if (runs) {
        t->again = v->start < 0 ? t->again : gckpti_add_work(t->again, p->unit[unit].cost);
        v->start = x;
    } else {
        int parts = gckpti_parts(v->value_end, v->aux_end);
        t->moved = gckpti_add_work(t->moved, gckpti_parts_work(p, unit, parts));
        v->reload |= parts;
    }
    return gckpti_end_life(v);
}

/* Where the walk comes to a hold at position x: what is offloaded of the version there, to be
 * reloaded behind it, lives at least until then. Adds its bytes to *live. Returns these parts. */
static int gckpti_hold_until(gckpti_planner *p, int unit, int x, int64_t *live)
{
    gckpti_note *v = &p->note[unit];
    int news = v->reload & ~gckpti_parts(v->value_end, v->aux_end);
    v->value_end = news & GCKPTI_VALUE ? x : v->value_end;
    v->aux_end = news & GCKPTI_AUX ? x : v->aux_end;
    *live += gckpti_parts_bytes(&p->unit[unit], news);
    return v->reload;
}

GCKPTI_FN void gckpti_find_lives(gckpti_planner *p, gckpti_schedule *t)
{
    int kept = t->length, nth = p->backwards, hold = p->looped ? p->body_backwards : -1;
    int64_t live = 0;
    t->peak = t->far = 0;
    t->again = t->moved = 0;
    gckpti_begin_pass(p);
    for (int u = 0; u < p->units; u++)
        if (p->unit[u].fetched) { /* read at the end */
            p->note[u].value_end = kept;
            live += p->note[u].out;
        }
    for (int x = 0; x < t->length; x++)
        if (t->item[x] >= 0 && t->item[x] < p->units)
            p->note[t->item[x]].runs++;
    for (int x = t->length; x-- > 0;) {
        int i = t->item[x], self = gckpti_unit_of(p, i), runs = i == self;
        const gckpti_unit *u = &p->unit[self];
        gckpti_note *v = &p->note[self];
        if (nth == hold) {
            live += gckpti_hold(p, kept - 1);
            hold = -1;
        }
        const int holds = gckpti_is_hold(p, i);
        v->runs -= runs;
        if (holds ? !v->reload
                  : i >= 0 && v->value_end < 0 && v->aux_end < 0 &&
                        !(runs && (v->reload || (u->effect && v->runs == 0))))
            continue;
        t->item[--kept] = i;
        t->offloaded[kept] = runs ? v->reload : holds ? gckpti_hold_until(p, self, kept, &live) : 0;
        live += runs && v->reload ? gckpti_offload(p, t, self, kept) : 0;
        int in_place = gckpti_use(p, 0, i, kept, &live);
        int64_t over = i >= 0 && in_place && v->value_end >= 0 ? v->out : 0;
        int64_t sum = live + (i < 0 ? p->gradient_at[--nth]
                                    : p->gradient_between[nth] + (runs ? u->work : 0) - over);
        t->live[kept] = sum;
        t->peak = sum > t->peak ? sum : t->peak;
        live -= i < 0 || holds ? 0 : gckpti_begin_version(p, t, self, runs, kept);
    }
    gckpti_close_up(t, kept);
    t->extra = gckpti_add_work(t->again, gckpti_priced(p->price, t->moved));
    t->peak = t->far > p->far ? INT64_MAX : t->peak;
}

/* ---- schedules: what a maker wrote becomes one ---- */
GCKPTI_FN int gckpti_is_hold(const gckpti_planner *p, int item) { return item >= 2 * p->units; }

GCKPTI_FN int gckpti_reloads(const gckpti_planner *p, int item)
{
    return item >= p->units && !gckpti_is_hold(p, item);
}

GCKPTI_FN int gckpti_schedule_room(gckpti_scratch *scratch, gckpti_schedule *s, int length)
{
    size_t n = (size_t)length + 1;
    gckpti_want(scratch, &s->item, n, sizeof *s->item);
    gckpti_want(scratch, &s->value_end, n, sizeof *s->value_end);
    gckpti_want(scratch, &s->aux_end, n, sizeof *s->aux_end);
    gckpti_want(scratch, &s->offloaded, n, sizeof *s->offloaded);
    gckpti_want(scratch, &s->flying, n, sizeof *s->flying);
    gckpti_want(scratch, &s->ends, n, sizeof *s->ends);
    return gckpti_want(scratch, &s->live, n, sizeof *s->live) && !*scratch->failed;
}

GCKPTI_FN int gckpti_to_runs(const int *item, int length, gckpti_span *run)
{
    int runs = 0;
    for (int x = 0, from = 0; x < length; x++) {
        if (x + 1 < length && item[x + 1] == item[x] + 1)
            continue;
        if (run) {
            run[runs].first = item[from];
            run[runs].count = x + 1 - from;
        }
        runs++;
        from = x + 1;
    }
    return runs;
}

GCKPTI_FN void gckpti_from_runs(const gckpti_span *run, int length, int *item)
{
    for (int x = 0; x < length; run++)
        for (int k = 0; k < run->count; k++)
            item[x++] = run->first + k;
}

/* Appends to s what an item reads and gckpt_recompute has let go. Such values may read one another,
 * so they are walked with a list: first the request, then its stale inputs, ... */
static void gckpti_refresh(gckpti_planner *p, int item, gckpti_schedule *s)
{
    int count = 0, reads;
    if (item < 0 && p->unit[~item].reads_aux && p->note[~item].stale) {
        p->note[~item].stale = 0;
        p->queue[count++] = ~item;
    }
    for (int i = -1; i < count; i++) {
        const int *links = gckpti_reads(p, i < 0 ? item : p->queue[i], &reads);
        for (int k = 0; k < reads; k++)
            if (p->note[links[k]].stale) {
                p->note[links[k]].stale = 0;
                p->queue[count++] = links[k];
            }
    }
    for (int i = 1; i < count; i++) /* inputs before users */
        for (int j = i; j > 0 && p->queue[j] < p->queue[j - 1]; j--) {
            int swap = p->queue[j];
            p->queue[j] = p->queue[j - 1];
            p->queue[j - 1] = swap;
        }
    for (int i = 0; i < count; i++)
        s->item[s->length++] = p->queue[i];
}

/* Prologue, body without what pins forbid and with what they demand, epilogue. What gckpt_recompute
 * lets go is there again when it has run anew behind all that runs for the first time. */
static void gckpti_add_pins(gckpti_planner *p, const int *made, int length, gckpti_schedule *s)
{
    int backward_seen = 0, firsts = 0;
    gckpti_begin_pass(p);
    s->length = 0;
    for (int u = 0; u < p->prologue; u++)
        s->item[s->length++] = u;
    for (int x = 0; x < length; x++) {
        int i = made[x], u = gckpti_unit_of(p, i);
        if (u < p->prologue || (i == u && p->unit[u].fixed && p->note[u].start >= 0))
            continue;
        if (i < 0 && !backward_seen++)
            for (int k = p->prologue; k < p->units; k++)
                p->note[k].stale = p->unit[k].recompute && p->note[k].start < firsts;
        if (backward_seen)
            gckpti_refresh(p, i, s);
        if (i >= 0) {
            firsts = p->note[u].start < 0 ? s->length + 1 : firsts;
            p->note[u].start = s->length;
            p->note[u].stale = 0;
        }
        s->item[s->length++] = i;
    }
    for (int r = p->body_backwards; r < p->backwards; r++)
        s->item[s->length++] = ~p->backward[r];
}

GCKPTI_FN int gckpti_finish(gckpti_planner *p, const int *made, int length, gckpti_scratch *scratch,
                            gckpti_schedule *s)
{
    int most = length + p->pinned + p->prologue + p->backwards - p->body_backwards;
    if (p->failed || !gckpti_schedule_room(scratch, s, most))
        return 0;
    gckpti_add_pins(p, made, length, s);
    gckpti_find_lives(p, s);
    return 1;
}

/* Whether all that a schedule reads was made before (by the user's it may not be). */
GCKPTI_FN gckpt_result gckpti_check_reads(gckpti_planner *p, const gckpti_schedule *s)
{
    memset(p->computed, 0, (size_t)p->units);
    for (int x = 0; x < s->length; x++) {
        int i = s->item[x], self = gckpti_unit_of(p, i), count;
        int own = i >= p->units || (i < 0 && p->unit[self].reads_aux);
        int missing = own && !p->computed[self] ? self : -1;
        for (const int *links = gckpti_reads(p, i, &count); count-- > 0;)
            missing = p->computed[links[count]] ? missing : links[count];
        if (missing >= 0)
            return gckpti_error(p->g, GCKPT_E_ARG, "schedule: %s of %T before any forward of %T",
                                i < 0                  ? "backward"
                                : gckpti_is_hold(p, i) ? "hold"
                                : gckpti_reloads(p, i) ? "reload"
                                                       : "forward",
                                p->tensors[p->unit[self].id], p->tensors[p->unit[missing].id]);
        p->computed[self] |= i == self;
    }
    return GCKPT_OK;
}
