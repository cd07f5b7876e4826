#include "plan/internal.h"

/* ---- time: two engines, one that computes items in their order, and one that copies ----
 * A copy begins where it stands, an offload behind its forward, when those begun before are done.
 * What reads a reload waits for it. Bytes of what is offloaded are free behind its last use, which
 * may be a hold: what is computed next waits for the copy. Copies end with the body. Whoever runs a
 * plan takes no longer: what is free may lie where nothing comes next. */
typedef struct {
    const gckpti_planner *p;
    gckpti_schedule *sched, *out; /* to: s with holds is written there; or NULL */
    int64_t limit;           /* of live bytes with what is held */
    uint64_t compute_end, copy_end; /* when what was computed, and what was copied so far, ends */
    uint64_t free_at;               /* when bytes are free that were let go */
    gckpti_keyed *in_flight; /* offloads under way: item: position of the forward; key: its end */
    int count;               /* of them */
} gckpti_timeline;

/* Until which position bytes live of what the forward at x made and is offloaded. */
static int gckpti_offload_until(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    int until = s->offload_parts[x] & GCKPTI_SAVED ? s->saved_end[x] : INT32_MAX, count;
    int end = s->offload_parts[x] & GCKPTI_VALUE ? s->value_end[x] : INT32_MAX;
    if (end > x && end < s->length && s->entry[end] >= 0) { /* it may be written in place there */
        const int *edges = gckpti_entry_reads(p, s->entry[end], &count);
        const int in_place = p->node[gckpti_entry_node(p, s->entry[end])].in_place;
        for (int k = 0; k < count; k++)
            end -= edges[k] == s->entry[x] && in_place >> k & 1;
    }
    return end < until ? end : until;
}

/* Bytes of an offload that would live at position x only if they are held. */
static int64_t gckpti_kept_bytes(const gckpti_timeline *c, int from, int x)
{
    const gckpti_schedule *s = c->sched;
    const gckpti_node *u = &c->p->node[s->entry[from]];
    int value = s->offload_parts[from] & GCKPTI_VALUE && s->value_end[from] <= x;
    int saved = s->offload_parts[from] & GCKPTI_SAVED && s->saved_end[from] < x;
    return gckpti_offload_until(c->p, s, from) < x ? (value ? u->out : 0) + (saved ? u->saved : 0)
                                                   : 0;
}

/* In front of position x goes of what is being offloaded: what is copied, what the item there makes
 * anew, and what lives no more unless it is held, for which there must be room. */
static void gckpti_release_offloads(gckpti_timeline *c, int x)
{
    gckpti_schedule *s = c->sched;
    const int defines = s->entry[x] >= 0 && !gckpti_is_offload_done(c->p, s->entry[x]);
    const int node = defines ? gckpti_entry_node(c->p, s->entry[x]) : -1;
    int64_t excess = s->live_bytes[x] - c->limit;
    int pending = 0;
    for (int k = 0; k < c->count && c->out; k++)
        excess += gckpti_kept_bytes(c, c->in_flight[k].value, x);
    for (int k = 0; k < c->count; k++) {
        const gckpti_keyed copy = c->in_flight[k];
        const int from = copy.value, until = gckpti_offload_until(c->p, s, from);
        const int64_t bytes = gckpti_kept_bytes(c, from, x);
        if (copy.key > c->compute_end && s->entry[from] != node &&
            (until >= x || (c->out && (excess <= 0 || !bytes)))) {
            c->in_flight[pending++] = copy;
            continue;
        }
        excess -= bytes;
        c->free_at = copy.key > c->free_at ? copy.key : c->free_at;
        if (c->out && until < x - 1)
            c->out->entry[c->out->length++] = s->entry[from] + 2 * c->p->nodes;
    }
    c->count = pending;
}

/* Begins a copy of parts of unit u. */
static void gckpti_start_copy(gckpti_timeline *c, int u, int parts)
{
    c->copy_end = gckpti_add_cost(c->copy_end > c->compute_end ? c->copy_end : c->compute_end,
                                  gckpti_parts_cost(c->p, u, parts));
}

GCKPTI_FN uint64_t gckpti_schedule_time(gckpti_planner *p, gckpti_schedule *s, int64_t limit,
                                        gckpti_schedule *out)
{
    gckpti_timeline c = { p, s, out, limit, 0, 0, 0, NULL, 0 };
    gckpti_scratch_clear(&p->temp);
    c.in_flight =
        (gckpti_keyed *)gckpti_scratch_alloc(&p->temp, (size_t)s->length + 1, sizeof *c.in_flight);
    if (p->failed)
        return 0;
    for (int u = 0; u < p->nodes; u++)
        p->state[u].ready = 0;
    for (int x = 0; x < s->length; x++) {
        int i = s->entry[x], u = gckpti_entry_node(p, i), count;
        const int *edges = gckpti_entry_reads(p, i, &count);
        gckpti_release_offloads(&c, x);
        if (out)
            out->entry[out->length++] = i;
        if (gckpti_is_reload(p, i)) {
            gckpti_start_copy(&c, u, gckpti_parts(s->value_end[x], s->saved_end[x]));
            p->state[u].ready = c.copy_end;
        }
        if (i >= p->nodes)
            continue;
        if (i < 0 && p->node[u].backward_index == p->body_backwards)
            c.free_at = c.copy_end;
        c.compute_end = c.compute_end > c.free_at ? c.compute_end : c.free_at;
        for (int k = 0; k < count; k++)
            c.compute_end =
                c.compute_end > p->state[edges[k]].ready ? c.compute_end : p->state[edges[k]].ready;
        if (i < 0 && p->node[u].reads_saved && p->state[u].ready > c.compute_end)
            c.compute_end = p->state[u].ready;
        c.compute_end = gckpti_add_cost(c.compute_end, gckpti_entry_cost(p, i));
        p->state[u].ready = i < 0 ? p->state[u].ready : 0;
        if (i >= 0 && s->offload_parts[x]) {
            gckpti_start_copy(&c, u, s->offload_parts[x]);
            c.in_flight[c.count].key = c.copy_end;
            c.in_flight[c.count++].value = x;
        }
    }
    return c.compute_end > c.copy_end ? c.compute_end : c.copy_end;
}
