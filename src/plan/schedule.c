#include "plan/own.h"
#include "graph/graph.h"

/* ---- schedules: what a maker wrote becomes one; its spans ---- */
GCKPTI_FN int gckpti_reloads(const gckpti_planner *p, int item) { return item >= p->units; }

/* Room for a schedule of `length` items; what it held stays. 0: out of memory. */
GCKPTI_FN int gckpti_schedule_room(gckpti_scratch *scratch, gckpti_schedule *s, int length,
                                   int sources)
{
    size_t n = (size_t)length + 2;
    gckpti_want(scratch, &s->item, n, sizeof *s->item);
    gckpti_want(scratch, &s->span, n, sizeof *s->span);
    gckpti_want(scratch, &s->at, n, sizeof *s->at);
    gckpti_want(scratch, &s->source, n * (size_t)sources, sizeof *s->source);
    return !*scratch->failed;
}

/* Appends to s what an item reads and gckpt_recompute has let go. Such values may read one another,
 * so they are walked with a list: first the request, then its stale inputs, ... */
static void gckpti_refresh(gckpti_planner *p, int item, gckpti_schedule *s)
{
    int count = 0, reads;
    if (item < 0 && p->unit[~item].reads_aux && p->stale[~item]) {
        p->stale[~item] = 0;
        p->queue[count++] = ~item;
    }
    for (int i = -1; i < count; i++) {
        const int *links = gckpti_reads(p, i < 0 ? item : p->queue[i], &reads);
        for (int k = 0; k < reads; k++)
            if (p->stale[links[k]]) {
                p->stale[links[k]] = 0;
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
    memset(p->stale, 0, (size_t)p->units);
    memset(p->computed, 0, (size_t)p->units);
    s->length = 0;
    for (int u = 0; u < p->prologue; u++)
        s->item[s->length++] = u;
    for (int x = 0; x < length; x++) {
        int i = made[x], u = gckpti_unit_of(p, i);
        if (u < p->prologue || (i == u && p->unit[u].fixed && p->computed[u]))
            continue;
        if (i < 0 && !backward_seen++)
            for (int k = p->prologue; k < p->units; k++)
                p->stale[k] = p->unit[k].recompute && (!p->computed[k] || p->latest[k] < firsts);
        if (backward_seen)
            gckpti_refresh(p, i, s);
        if (i >= 0) {
            p->latest[u] = s->length;
            firsts = p->computed[u] ? firsts : s->length + 1;
            p->computed[u] = 1;
            p->stale[u] = 0;
        }
        s->item[s->length++] = i;
    }
    for (int r = p->body_backwards; r < p->backwards; r++)
        s->item[s->length++] = ~p->backward[r];
}

/* One pass from the end: drops forwards and reloads that nobody reads, so that a recompute stops by
 * itself at the last value that is needed. Losses and side effects stay in their first forward.
 * Returns the new length. */
static int gckpti_drop(gckpti_planner *p, int *item, int length)
{
    enum { VALUE = GCKPTI_VALUE, AUX = GCKPTI_AUX, BACK = 4 }; /* BACK: a reload brings it back */
    int kept = length;
    memset(p->left, 0, (size_t)p->units * sizeof *p->left);
    for (int x = 0; x < length; x++)
        if (item[x] >= 0 && !gckpti_reloads(p, item[x]))
            p->left[item[x]]++;
    for (int u = 0; u < p->units; u++)
        p->behind[u] = p->unit[u].fetched ? VALUE : 0;
    for (int x = length; x-- > 0;) {
        int i = item[x], count;
        const int *links = gckpti_reads(p, i, &count);
        if (i < 0) {
            p->behind[~i] |= p->unit[~i].reads_aux ? AUX : 0;
        } else if (gckpti_reloads(p, i)) {
            if (!(p->behind[i - p->units] & (VALUE | AUX)))
                continue;
            p->behind[i - p->units] = BACK;
        } else {
            p->left[i]--;
            if (!p->behind[i] && !(p->unit[i].effect && p->left[i] == 0))
                continue;
            p->behind[i] = 0;
        }
        item[--kept] = i;
        for (int k = 0; k < count; k++)
            p->behind[links[k]] |= VALUE;
    }
    memmove(item, item + kept, (size_t)(length - kept) * sizeof *item);
    return length - kept;
}

GCKPTI_FN int gckpti_finish(gckpti_planner *p, const int *made, int length, gckpti_scratch *scratch,
                            gckpti_schedule *s)
{
    int most = length + p->pinned + p->prologue + p->backwards - p->body_backwards;
    if (p->failed || !gckpti_schedule_room(scratch, s, most, p->sources))
        return 0;
    gckpti_add_pins(p, made, length, s);
    s->length = gckpti_drop(p, s->item, s->length);
    return 1;
}

/* Whether a span may take over the bytes of another that it reads: who read that dies there, and
 * the next micro-batch does not read it again. */
GCKPTI_FN int gckpti_takes_over(const gckpti_planner *p, const gckpti_span *v,
                                const gckpti_span *of)
{
    return of->value_end == v->start &&
           !(p->looped && of->start < p->prologue && v->start >= p->prologue);
}

/* Finds the spans of a schedule: what begins where, how long it is read. What the prologue leaves
 * is read by every micro-batch, so it lives to the end of the body. Returns -1, or the position of
 * what reads a value that nothing before it makes (the user's schedule may). */
GCKPTI_FN int gckpti_find_spans(const gckpti_planner *p, gckpti_schedule *s)
{
    int *latest = p->latest, body_end = s->length, taken = 0, reads;
    memset(latest, 0xff, (size_t)p->units * sizeof *latest);
    s->spans = 0;
    for (int x = 0; x < s->length; x++) {
        int i = s->item[x], self = gckpti_unit_of(p, i);
        const gckpti_unit *u = &p->unit[self];
        const int *links = gckpti_reads(p, i, &reads);
        gckpti_span *v = &s->span[s->spans];
        if (gckpti_reloads(p, i) && latest[self] < 0)
            return x;
        v->source = taken;
        for (int k = 0; k < reads; k++) {
            int q = latest[links[k]];
            if (q < 0)
                return x;
            s->span[q].value_end = x;
            if (i >= 0 && u->in_place >> k & 1)
                s->source[taken++] = q;
        }
        s->at[x] = -1;
        if (i < 0) {
            if (u->reads_aux && latest[self] < 0)
                return x;
            if (u->reads_aux)
                s->span[latest[self]].aux_end = x;
            body_end = u->rank == p->body_backwards ? x : body_end;
            continue;
        }
        v->sources = taken - v->source;
        v->unit = self;
        v->start = x;
        v->value_end = v->aux_end = -1;
        v->home = gckpti_reloads(p, i) ? s->span[latest[self]].home : s->spans;
        v->far = 0;
        s->at[x] = latest[self] = s->spans++;
    }
    for (int u = 0; u < p->units; u++)
        if (p->unit[u].fetched)
            s->span[latest[u]].value_end = s->length;
    for (int i = 0; i < s->spans; i++) {
        gckpti_span *v = &s->span[i], *home = &s->span[v->home];
        if (v == home)
            continue;
        home->far |= gckpti_parts(v->value_end, v->aux_end);
        if (home->far & GCKPTI_VALUE && home->value_end < 0)
            home->value_end = home->start;
        if (home->far & GCKPTI_AUX && home->aux_end < 0)
            home->aux_end = home->start;
    }
    for (int i = 0; i < s->spans && p->looped && s->span[i].start < p->prologue; i++) {
        gckpti_span *v = &s->span[i];
        if (v->value_end >= p->prologue && v->value_end < body_end)
            v->value_end = body_end - 1;
        if (v->aux_end >= p->prologue && v->aux_end < body_end)
            v->aux_end = body_end - 1;
    }
    return -1;
}

/* Says what is missing where gckpti_find_spans ended. */
GCKPTI_FN gckpt_result gckpti_missing(const gckpti_planner *p, int item)
{
    int count, missing = gckpti_unit_of(p, item);
    const gckpt_tensor *t = p->tensors[p->unit[missing].id];
    const int *links = gckpti_reads(p, item, &count);
    while (count-- > 0)
        missing = p->latest[links[count]] < 0 ? links[count] : missing;
    return gckpti_graph_error(p->g, GCKPT_E_ARG, "schedule: %s of %T before any forward of %T",
                              item < 0                  ? "backward"
                              : gckpti_reloads(p, item) ? "reload"
                                                        : "forward",
                              t, p->tensors[p->unit[missing].id]);
}
