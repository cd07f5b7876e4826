#include "search/search.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- the current schedule, s->now, and candidates, which store schedules ---- */
/* Evaluates a schedule: finds its live ranges, and removes entries whose results nobody reads. */
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *schedule)
{
    s->effort += schedule->length;
    if (gckpti_schedule_reserve(&s->scratch, schedule, schedule->length))
        gckpti_find_live_ranges(s->p, schedule);
}

/* Most entries that an attempt of the local search evaluates, per node. A level has ATTEMPTS times
 * as many. */
enum { GCKPTI_EFFORT = 44, GCKPTI_ATTEMPTS = 12 };

/* Returns whether the effort is used up. `first` and `left`: an attempt's excess, first and now. */
GCKPTI_FN int gckpti_should_stop(gckpti_search *s, int64_t first, int64_t left)
{
    const int64_t most = GCKPTI_EFFORT * ((int64_t)s->p->nodes + 200);
    const int64_t used = s->effort - s->started;
    int ends = s->effort > GCKPTI_ATTEMPTS * most || used > most ||
               (used > most / 4 && left > first / 4 * 3) || (used > most / 2 && left > first / 2);
    s->incomplete = s->incomplete || ends;
    return ends;
}

/* Makes s->next the current schedule. */
GCKPTI_FN void gckpti_accept_next(gckpti_search *s)
{
    gckpti_schedule swap = s->now;
    s->now = s->next;
    s->next = swap;
}

/* Applies gckpt_recompute to the current schedule again after moves. */
GCKPTI_FN void gckpti_reapply_policy(gckpti_search *s)
{
    if (s->p->recompute_count > 0 &&
        gckpti_finish_schedule(s->p, s->now.entry, s->now.length, &s->scratch, &s->next))
        gckpti_accept_next(s);
}

/* Makes a builder's entries the current schedule. */
GCKPTI_FN int gckpti_take_built(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    int good = gckpti_finish_schedule(p, p->entries, (int)p->entry_count, &s->scratch, &s->now);
    p->entry_count = 0;
    return good;
}

/* Replaces a candidate's schedule; the new one is not placed yet. */
GCKPTI_FN void gckpti_candidate_store(gckpti_search *s, gckpti_candidate *candidate,
                                      const gckpti_schedule *schedule)
{
    const size_t n = (size_t)schedule->length;
    if (!gckpti_reserve(&s->scratch, &candidate->entry, n, sizeof(int)))
        return;
    memcpy(candidate->entry, schedule->entry, n * sizeof(int));
    candidate->length = schedule->length;
    candidate->peak = schedule->peak;
    candidate->overhead = schedule->overhead;
    candidate->recompute_cost = schedule->recompute_cost;
    candidate->transfer_cost = schedule->transfer_cost;
    candidate->arena = 0;
    candidate->overlapped = NULL;
}

/* Makes a candidate's schedule the current one, evaluated. Returns 0 if it has none. */
GCKPTI_FN int gckpti_candidate_load(gckpti_search *s, const gckpti_candidate *candidate)
{
    if (candidate->length == 0 || !gckpti_schedule_reserve(&s->scratch, &s->now, candidate->length))
        return 0;
    memcpy(s->now.entry, candidate->entry, (size_t)candidate->length * sizeof(int));
    s->now.length = candidate->length;
    gckpti_evaluate(s, &s->now);
    return 1;
}

/* Appends an empty candidate to *list, which may move the list. Returns NULL if out of memory. */
GCKPTI_FN gckpti_candidate *gckpti_candidate_new(gckpti_search *s, gckpti_candidate **list,
                                                 int *count)
{
    if (!gckpti_reserve(&s->scratch, list, (size_t)*count + 1, sizeof **list))
        return NULL;
    gckpti_candidate *candidate = &(*list)[(*count)++];
    memset(candidate, 0, sizeof *candidate);
    return candidate;
}

/* Stores the current schedule in a candidate if it is within the candidate's limit and better. */
GCKPTI_FN void gckpti_candidate_update(gckpti_search *s, gckpti_candidate *candidate)
{
    const gckpti_schedule *now = &s->now;
    gckpti_reapply_policy(s);
    int better = candidate->length == 0 || now->overhead < candidate->overhead ||
                 (now->overhead == candidate->overhead && now->peak < candidate->peak);
    if (now->peak <= candidate->limit && better && !s->p->failed)
        gckpti_candidate_store(s, candidate, now);
}

/* Stores the current schedule as a new initial, unless it is one. One of the same peak and cost may
 * need fewer bytes once it is placed. */
GCKPTI_FN void gckpti_add_initial(gckpti_search *s)
{
    const gckpti_schedule *now = &s->now;
    for (int i = 0; i < s->initials; i++) {
        const gckpti_candidate *q = &s->initial[i];
        if (q->length == now->length &&
            memcmp(q->entry, now->entry, (size_t)now->length * sizeof(int)) == 0)
            return;
    }
    gckpti_candidate *added = gckpti_candidate_new(s, &s->initial, &s->initials);
    if (!added)
        return;
    added->limit = now->peak;
    gckpti_candidate_store(s, added, now);
}

/* Makes a builder's entries the current schedule, and stores it as a new initial. */
GCKPTI_FN void gckpti_add_built(gckpti_search *s)
{
    if (gckpti_take_built(s))
        gckpti_add_initial(s);
}

/* Emits the backward with index r, after recomputes and copies back of what it and they read of
 * nodes from `first` on that are not present (p->computed). After drop[u] recomputes of node u, or
 * its copy back, its results stay present. */
GCKPTI_FN void gckpti_emit_backward(gckpti_planner *p, int r, int first, const unsigned char *drop)
{
    const gckpti_node *u = &p->node[p->backward[r]];
    const size_t begin = p->entry_count;
    int *stack = p->queue;
    for (int k = 0; k < u->reads + u->reads_saved; k++) {
        int depth = 1;
        stack[0] = k < u->reads ? p->edges[u->read + k] : p->backward[r];
        while (depth > 0) {
            const int top = stack[depth - 1], copied = drop[top] == GCKPTI_CUT_COPY;
            const gckpti_node *q = &p->node[top];
            int missing = -1;
            for (int i = q->in; i < q->in + q->inputs && missing < 0 && !copied; i++)
                missing = p->edges[i] < first || p->computed[p->edges[i]] ? -1 : p->edges[i];
            if (top < first || p->computed[top]) {
                depth--;
            } else if (missing >= 0) {
                stack[depth++] = missing;
            } else {
                p->computed[stack[--depth]] = 1;
                gckpti_emit(p, top + (copied ? p->nodes : 0));
            }
        }
    }
    for (size_t x = begin; x < p->entry_count; x++) {
        const int v = gckpti_entry_node(p, p->entries[x]);
        p->computed[v] = drop[v] == GCKPTI_CUT_COPY || ++p->state[v].run_count > drop[v];
    }
    gckpti_emit(p, ~p->backward[r]);
}
#endif
