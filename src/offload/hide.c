#if !defined(GCKPT_NO_SEARCH) && !defined(GCKPT_NO_OFFLOAD)
#include "search/internal.h"
#include "base/base.h"

/* ---- overlapping copies with computation: offloaded values stay live until copied, and
 * reloads start early, as far as the limit allows (plan/time) ---- */
/* Returns the position to which the reload at position x moves: where, by the clock s->saving, it
 * starts at time `start`, or later if the limit demands it. Adds its bytes from there on. */
static int gckpti_place_reload(gckpti_search *s, int x, uint64_t start, int64_t limit)
{
    const gckpti_planner *p = s->p;
    gckpti_schedule *now = &s->now;
    const int node = gckpti_entry_node(p, now->entry[x]);
    const int64_t bytes =
        gckpti_parts_bytes(&p->node[node], gckpti_parts(now->value_end[x], now->saved_end[x]));
    int to = x;
    for (; to > 0 && s->saving[to] > start && now->live_bytes[to - 1] + bytes <= limit; to--) {
        int count, i = now->entry[to - 1], uses = gckpti_entry_node(p, i) == node;
        for (const int *edges = gckpti_entry_reads(p, i, &count); count-- > 0;)
            uses = uses || edges[count] == node;
        if (uses)
            break;
        now->live_bytes[to - 1] += bytes;
    }
    return to;
}

/* Sets s->next to the current schedule with earlier reloads. From the last one on, each starts as
 * late as it still ends before its reader and the next copy, if no copy waited. */
static void gckpti_advance_reloads(gckpti_search *s, int64_t limit)
{
    const gckpti_planner *p = s->p;
    const gckpti_schedule *now = &s->now;
    uint64_t due = UINT64_MAX;
    size_t n = 0;
    int y = 0;
    s->saving[0] = 0;
    for (int x = 0; x < now->length; x++)
        s->saving[x + 1] =
            s->saving[x] + (now->entry[x] < p->nodes ? gckpti_entry_cost(p, now->entry[x]) : 0);
    for (int x = now->length; x-- > 0;) {
        if (!gckpti_is_reload(p, now->entry[x]))
            continue;
        const int u = gckpti_entry_node(p, now->entry[x]);
        int reader = x + 1, found = 0, count;
        for (; reader < now->length && !found; reader += !found) {
            found = now->entry[reader] == ~u;
            for (const int *edges = gckpti_entry_reads(p, now->entry[reader], &count); count-- > 0;)
                found = found || edges[count] == u;
        }
        uint64_t cost = gckpti_parts_cost(p, u, gckpti_parts(now->value_end[x], now->saved_end[x]));
        due = due < s->saving[reader] ? due : s->saving[reader];
        due = due > cost ? due - cost : 0;
        s->insert[n].key = (uint64_t)gckpti_place_reload(s, x, due, limit) << 32 | (uint64_t)x;
        due = due > s->saving[s->insert[n].key >> 32] ? due : s->saving[s->insert[n].key >> 32];
        s->insert[n++].value = now->entry[x];
    }
    gckpti_sort_keys(s->insert, s->insert + n, n);
    for (size_t k = 0; y < now->length; y++) {
        for (; k < n && (int)(s->insert[k].key >> 32) == y; k++)
            s->next.entry[s->next.length++] = s->insert[k].value;
        if (!gckpti_is_reload(p, now->entry[y]))
            s->next.entry[s->next.length++] = now->entry[y];
    }
}

/* Sets candidate->hidden to its schedule with copies overlapped in its limit, or leaves that empty.
 */
GCKPTI_FN void gckpti_hide_copies(gckpti_search *s, gckpti_candidate *candidate)
{
    const int64_t limit = candidate->limit;
    candidate->hidden = (gckpti_candidate *)gckpti_scratch_alloc(&s->scratch, 1, sizeof *candidate);
    if (!candidate->hidden || !gckpti_candidate_load(s, candidate))
        return;
    for (int pass = 0; pass < 2; pass++) {
        const size_t n = 2 * (size_t)s->now.length + 1;
        if (!gckpti_schedule_reserve(&s->scratch, &s->next, (int)n) ||
            !gckpti_reserve(&s->scratch, &s->insert, 2 * n, sizeof *s->insert) ||
            !gckpti_reserve(&s->scratch, &s->saving, n, sizeof *s->saving))
            return;
        s->next.length = 0;
        if (pass == 0)
            (void)gckpti_schedule_time(s->p, &s->now, limit, &s->next);
        else
            gckpti_advance_reloads(s, limit);
        gckpti_accept_next(s);
        gckpti_evaluate(s, &s->now);
        gckpti_reapply_policy(s);
    }
    if (s->now.peak <= limit && !s->p->failed)
        gckpti_candidate_store(s, candidate->hidden, &s->now);
}
#endif
