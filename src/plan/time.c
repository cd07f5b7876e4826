#include "plan/own.h"

/* ---- time: two engines, one that computes items in their order, and one that copies ----
 * A copy begins where it stands, an offload behind its forward, when those begun before are done.
 * What reads a reload waits for it. Bytes of what is offloaded are free behind its last use, which
 * may be a hold: what is computed next waits for the copy. Copies end with the body. Whoever runs a
 * plan takes no longer: what is free may lie where nothing comes next. */
typedef struct {
    const gckpti_planner *p;
    gckpti_schedule *s, *to; /* to: s with holds is written there; or NULL */
    int64_t limit;           /* of live bytes with what is held */
    uint64_t now, link;      /* when what was computed, and what was copied so far, ends */
    uint64_t free;           /* when bytes are free that were let go */
    gckpti_keyed *flying;    /* offloads under way: item: position of the forward; key: its end */
    int count;               /* of them */
} gckpti_engines;

/* Until which position bytes live of what the forward at x made and is offloaded. */
static int gckpti_offload_until(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    int until = s->offloaded[x] & GCKPTI_AUX ? s->aux_end[x] : INT32_MAX, count;
    int end = s->offloaded[x] & GCKPTI_VALUE ? s->value_end[x] : INT32_MAX;
    if (end > x && end < s->length && s->item[end] >= 0) { /* it may be written in place there */
        const int *links = gckpti_reads(p, s->item[end], &count);
        const int in_place = p->unit[gckpti_unit_of(p, s->item[end])].in_place;
        for (int k = 0; k < count; k++)
            end -= links[k] == s->item[x] && in_place >> k & 1;
    }
    return end < until ? end : until;
}

/* Bytes of an offload that would live at position x only if they are held. */
static int64_t gckpti_held_bytes(const gckpti_engines *c, int from, int x)
{
    const gckpti_schedule *s = c->s;
    const gckpti_unit *u = &c->p->unit[s->item[from]];
    int value = s->offloaded[from] & GCKPTI_VALUE && s->value_end[from] <= x;
    int aux = s->offloaded[from] & GCKPTI_AUX && s->aux_end[from] < x;
    return gckpti_offload_until(c->p, s, from) < x ? (value ? u->out : 0) + (aux ? u->aux : 0) : 0;
}

/* In front of position x goes of what is being offloaded: what is copied, what the item there makes
 * anew, and what lives no more unless it is held, for which there must be room. */
static void gckpti_let_go(gckpti_engines *c, int x)
{
    gckpti_schedule *s = c->s;
    const int made = s->item[x] >= 0 && !gckpti_is_hold(c->p, s->item[x]);
    const int unit = made ? gckpti_unit_of(c->p, s->item[x]) : -1;
    int64_t over = s->live[x] - c->limit;
    int left = 0;
    for (int k = 0; k < c->count && c->to; k++)
        over += gckpti_held_bytes(c, c->flying[k].item, x);
    for (int k = 0; k < c->count; k++) {
        const gckpti_keyed copy = c->flying[k];
        const int from = copy.item, until = gckpti_offload_until(c->p, s, from);
        const int64_t bytes = gckpti_held_bytes(c, from, x);
        if (copy.key > c->now && s->item[from] != unit &&
            (until >= x || (c->to && (over <= 0 || !bytes)))) {
            c->flying[left++] = copy;
            continue;
        }
        over -= bytes;
        c->free = copy.key > c->free ? copy.key : c->free;
        if (c->to && until < x - 1)
            c->to->item[c->to->length++] = s->item[from] + 2 * c->p->units;
    }
    c->count = left;
}

/* Begins a copy of parts of unit u. */
static void gckpti_copy(gckpti_engines *c, int u, int parts)
{
    c->link = gckpti_add_work(c->link > c->now ? c->link : c->now,
                              gckpti_parts_work(c->p, u, parts));
}

GCKPTI_FN uint64_t gckpti_time(gckpti_planner *p, gckpti_schedule *s, int64_t limit,
                               gckpti_schedule *to)
{
    gckpti_engines c = { p, s, to, limit, 0, 0, 0, NULL, 0 };
    gckpti_scratch_clear(&p->pass);
    c.flying =
        (gckpti_keyed *)gckpti_scratch_take(&p->pass, (size_t)s->length + 1, sizeof *c.flying);
    if (p->failed)
        return 0;
    for (int u = 0; u < p->units; u++)
        p->note[u].ready = 0;
    for (int x = 0; x < s->length; x++) {
        int i = s->item[x], u = gckpti_unit_of(p, i), count;
        const int *links = gckpti_reads(p, i, &count);
        gckpti_let_go(&c, x);
        if (to)
            to->item[to->length++] = i;
        if (gckpti_reloads(p, i)) {
            gckpti_copy(&c, u, gckpti_parts(s->value_end[x], s->aux_end[x]));
            p->note[u].ready = c.link;
        }
        if (i >= p->units)
            continue;
        if (i < 0 && p->unit[u].nth == p->body_backwards)
            c.free = c.link;
        c.now = c.now > c.free ? c.now : c.free;
        for (int k = 0; k < count; k++)
            c.now = c.now > p->note[links[k]].ready ? c.now : p->note[links[k]].ready;
        if (i < 0 && p->unit[u].reads_aux && p->note[u].ready > c.now)
            c.now = p->note[u].ready;
        c.now = gckpti_add_work(c.now, gckpti_item_work(p, i));
        p->note[u].ready = i < 0 ? p->note[u].ready : 0;
        if (i >= 0 && s->offloaded[x]) {
            gckpti_copy(&c, u, s->offloaded[x]);
            c.flying[c.count].key = c.link;
            c.flying[c.count++].item = x;
        }
    }
    return c.now > c.link ? c.now : c.link;
}
