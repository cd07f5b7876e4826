#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- live ranges: a scan of a schedule from its end, which meets a value's last use first ---- */
GCKPTI_FN void gckpti_reset_states(gckpti_planner *p)
{
    for (int u = 0; u < p->nodes; u++) {
        gckpti_node_state *v = &p->state[u];
        v->value_end = v->saved_end = v->start = v->prev_use = -1;
        v->run_count = v->awaited_parts = v->copied_parts = v->dropped = 0;
    }
}

/* Moves the entries that the scan kept to the front. */
static void gckpti_compact_schedule(gckpti_schedule *s, int dropped)
{
    s->length -= dropped;
    for (int x = 0; x < s->length && dropped > 0; x++) {
        int value_end = s->value_end[x + dropped], saved_end = s->saved_end[x + dropped];
        s->entry[x] = s->entry[x + dropped];
        s->live_bytes[x] = s->live_bytes[x + dropped];
        s->copied_parts[x] = s->copied_parts[x + dropped];
        s->value_end[x] = value_end < 0 ? -1 : value_end - dropped;
        s->saved_end[x] = saved_end < 0 ? -1 : saved_end - dropped;
    }
}

/* Extends live ranges to position `end`: of fetched values, or of those in the prologue that every
 * micro-batch reads, if the scan has reached the end of the body. Returns the bytes. */
static int64_t gckpti_extend_ranges(gckpti_planner *p, int in_prologue, int end)
{
    int64_t bytes = 0;
    for (int u = 0; u < (in_prologue ? p->prologue : p->nodes); u++)
        if ((in_prologue ? p->state[u].persistent : p->node[u].fetched) &&
            p->state[u].value_end < 0) {
            p->state[u].value_end = end;
            bytes += p->state[u].out;
        }
    return bytes;
}

GCKPTI_FN void gckpti_find_live_ranges(gckpti_planner *p, gckpti_schedule *s)
{
    int kept = s->length, index = p->backwards, body_end = p->accumulates ? p->body_backwards : -1;
    s->peak = s->host_bytes = 0, s->recompute_cost = s->transfer_cost = 0;
    gckpti_reset_states(p);
    int64_t live = gckpti_extend_ranges(p, 0, kept);
    for (int x = 0; x < s->length; x++)
        if (s->entry[x] >= 0 && s->entry[x] < p->nodes)
            p->state[s->entry[x]].run_count++;
    for (int x = s->length; x-- > 0;) {
        int i = s->entry[x], self = gckpti_entry_node(p, i), is_forward = i == self;
        const gckpti_node *u = &p->node[self];
        gckpti_node_state *v = &p->state[self];
        if (index == body_end) {
            live += gckpti_extend_ranges(p, 1, kept - 1);
            body_end = -1;
        }
        v->run_count -= is_forward;
        int needed = i < 0 || v->value_end >= 0 || v->saved_end >= 0 ||
                     (is_forward && u->side_effect && v->run_count == 0);
        if (p->can_copy && !gckpti_is_copy_back(p, i))
            needed = (needed && i < p->nodes) || v->awaited_parts;
        if (!needed)
            continue;
        s->entry[--kept] = i;
        s->value_end[kept] = s->saved_end[kept] = -1;
        s->copied_parts[kept] = 0;
        if (p->can_copy)
            live += gckpti_scan_copies(p, s, i, kept);
        int in_place = gckpti_mark_uses(p, 0, i, kept, &live);
        int64_t reused = i >= 0 && in_place && v->value_end >= 0 ? v->out : 0;
        int64_t extra = (is_forward ? u->workspace : 0) - reused;
        int64_t sum = live + (i < 0 ? p->gradient_at[--index] : p->gradient_between[index] + extra);
        s->live_bytes[kept] = sum;
        s->peak = sum > s->peak ? sum : s->peak;
        if (i < 0 || i >= 2 * p->nodes)
            continue;
        s->value_end[kept] = v->value_end; /* i begins a definition */
        s->saved_end[kept] = v->saved_end;
        if (is_forward && v->start >= 0)
            s->recompute_cost = gckpti_add_cost(s->recompute_cost, u->cost);
        v->start = is_forward ? kept : v->start;
        live -= gckpti_end_live_range(v);
    }
    gckpti_compact_schedule(s, kept);
    s->overhead = s->recompute_cost;
    if (p->can_copy) {
        s->overhead =
            gckpti_add_cost(s->overhead, gckpti_scaled_cost(p->copy_cost, s->transfer_cost));
        s->peak = s->host_bytes > p->host_limit ? INT64_MAX : s->peak;
    }
}

/* ---- from the output of a builder to a schedule ---- */
GCKPTI_FN int gckpti_schedule_reserve(gckpti_scratch *scratch, gckpti_schedule *s, int length)
{
    size_t n = (size_t)length + 1;
    gckpti_reserve(scratch, &s->entry, n, sizeof *s->entry);
    gckpti_reserve(scratch, &s->value_end, n, sizeof *s->value_end);
    gckpti_reserve(scratch, &s->saved_end, n, sizeof *s->saved_end);
    gckpti_reserve(scratch, &s->copied_parts, n, sizeof *s->copied_parts);
    return gckpti_reserve(scratch, &s->live_bytes, n, sizeof *s->live_bytes) && !*scratch->failed;
}

/* Writes prologue, body and epilogue, without repeated forwards of nodes that run once. */
static void gckpti_add_other_parts(gckpti_planner *p, const int *entries, int length,
                                   gckpti_schedule *s)
{
    gckpti_reset_states(p);
    s->length = 0;
    for (int u = 0; u < p->prologue; u++)
        s->entry[s->length++] = u;
    for (int x = 0; x < length; x++) {
        int i = entries[x], u = gckpti_entry_node(p, i);
        if (u < p->prologue || (i == u && p->node[u].runs_once && p->state[u].run_count > 0))
            continue;
        p->state[u].run_count += i == u;
        s->entry[s->length++] = i;
    }
    for (int r = p->body_backwards; r < p->backwards; r++)
        s->entry[s->length++] = ~p->backward[r];
}

GCKPTI_FN int gckpti_finish_schedule(gckpti_planner *p, const int *entries, int length,
                                     gckpti_scratch *scratch, gckpti_schedule *s)
{
    int most = length + p->recompute_count + p->prologue + p->backwards - p->body_backwards;
    if (p->failed || !gckpti_schedule_reserve(scratch, s, most))
        return 0;
    gckpti_add_other_parts(p, entries, length, s);
    int before, passes = 0;
    do { /* without entries that nobody reads, gckpt_recompute may require others */
        before = s->length;
        if (p->recompute_count > 0 &&
            gckpti_schedule_reserve(scratch, s, before + p->recompute_count))
            (void)gckpti_pass(p, GCKPTI_PASS_POLICY, s);
        gckpti_find_live_ranges(p, s);
    } while (p->recompute_count > 0 && s->length != before && ++passes < 4);
    return !p->failed;
}
#endif
