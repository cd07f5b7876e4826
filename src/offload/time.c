#ifndef GCKPT_NO_OFFLOAD
#include "plan/internal.h"

/* ---- offloads and reloads in a scan of a schedule from its end ---- */
GCKPTI_FN int64_t gckpti_scan_copies(gckpti_planner *p, gckpti_schedule *s, int entry, int x)
{
    const int u = gckpti_entry_node(p, entry), reload = gckpti_is_copy_back(p, entry);
    gckpti_node_state *v = &p->state[u];
    const int used = gckpti_parts(v->value_end, v->saved_end);
    const int parts = reload ? used : entry < 0 ? 0 : v->awaited_parts, added = parts & ~used;
    if (reload || entry == u)
        s->transfer_cost = gckpti_add_cost(s->transfer_cost, gckpti_parts_cost(p, u, parts));
    if (reload) {
        v->awaited_parts |= parts;
        return 0;
    }
    s->copied_parts[x] = parts;
    v->value_end = added & GCKPTI_VALUE ? x : v->value_end;
    v->saved_end = added & GCKPTI_SAVED ? x : v->saved_end;
    if (entry == u) {
        s->host_bytes += gckpti_parts_bytes(&p->node[u], parts & ~v->copied_parts);
        v->copied_parts |= parts;
        v->awaited_parts = 0;
    }
    return gckpti_parts_bytes(&p->node[u], added);
}

/* ---- time: two queues, one for computation and one for copies, each in the schedule's order ----
 * A copy starts at its position, an offload right after its forward, once earlier copies are done.
 * Readers of a reload wait for it. The buffers of an offload are free after their last use, which
 * may be an offload_done; the next computation waits for the copy. Copies end with the body. */
typedef struct {
    const gckpti_planner *p;
    gckpti_schedule *sched, *out;   /* out: receives sched with offload_done entries; or NULL */
    int64_t limit;                  /* limit of live bytes, buffers of pending offloads included */
    uint64_t compute_end, copy_end; /* end of the computation and of the copies so far */
    uint64_t free_at;               /* time at which released bytes are free */
    gckpti_keyed *in_flight;        /* offloads; value: position of the forward; key: end */
    int count;                      /* length of in_flight */
} gckpti_timeline;

/* Returns the last position at which the offloaded parts of the forward at x are all live. */
static int gckpti_offload_until(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    int until = s->copied_parts[x] & GCKPTI_SAVED ? s->saved_end[x] : INT32_MAX, count;
    int end = s->copied_parts[x] & GCKPTI_VALUE ? s->value_end[x] : INT32_MAX;
    if (end > x && end < s->length && s->entry[end] >= 0) { /* it may be overwritten there */
        const int *edges = gckpti_entry_reads(p, s->entry[end], &count);
        const int in_place = p->node[gckpti_entry_node(p, s->entry[end])].in_place;
        for (int k = 0; k < count; k++)
            end -= edges[k] == s->entry[x] && in_place >> k & 1;
    }
    return end < until ? end : until;
}

/* Returns the bytes of the offload at `from` that are live at x only if an offload_done follows. */
static int64_t gckpti_kept_bytes(const gckpti_timeline *c, int from, int x)
{
    const gckpti_schedule *s = c->sched;
    const gckpti_node *u = &c->p->node[s->entry[from]];
    int value = s->copied_parts[from] & GCKPTI_VALUE && s->value_end[from] <= x;
    int saved = s->copied_parts[from] & GCKPTI_SAVED && s->saved_end[from] < x;
    return gckpti_offload_until(c->p, s, from) < x ? (value ? u->out : 0) + (saved ? u->saved : 0)
                                                   : 0;
}

/* Before position x, removes offloads in flight: those that are done, those whose node the entry
 * defines again, and those that are dead and do not fit into the limit. */
static void gckpti_release_offloads(gckpti_timeline *c, int x)
{
    gckpti_schedule *s = c->sched;
    const int defines = s->entry[x] >= 0 && s->entry[x] < 2 * c->p->nodes;
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
        if (gckpti_is_copy_back(p, i)) {
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
        if (i >= 0 && s->copied_parts[x]) {
            gckpti_start_copy(&c, u, s->copied_parts[x]);
            c.in_flight[c.count].key = c.copy_end, c.in_flight[c.count++].value = x;
        }
    }
    return c.compute_end > c.copy_end ? c.compute_end : c.copy_end;
}
#endif
