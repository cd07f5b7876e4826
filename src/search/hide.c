#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- copies that hide: what is offloaded is held while it is copied, reloads begin ahead, both as
 * far as a limit has room (plan/time) ---- */
/* What is being offloaded at a position: s->insert, in the order in which copies end; key: when. */
typedef struct {
    gckpti_search *s;
    uint64_t now, free, link; /* as gckpti_time has them */
    int first, end;           /* of s->insert */
    int64_t limit;
    int *out, length; /* the list with holds */
} gckpti_holding;

/* Bytes of an offload that live at position x only because they are held. */
static int64_t gckpti_held_bytes(const gckpti_search *s, int at, int x)
{
    const gckpti_schedule *t = &s->now;
    const gckpti_unit *u = &s->p->unit[t->item[at]];
    const int over = gckpti_offload_until(s->p, t, at) < x;
    return !over ? 0
                 : (t->offloaded[at] & GCKPTI_VALUE && t->value_end[at] <= x ? u->out : 0) +
                       (t->offloaded[at] & GCKPTI_AUX && t->aux_end[at] < x ? u->aux : 0);
}

/* Lets go, in front of position x, of the k-th of what is held. */
static void gckpti_release(gckpti_holding *h, int k, int x)
{
    gckpti_keyed *q = h->s->insert;
    const int at = q[k].item;
    if (gckpti_offload_until(h->s->p, &h->s->now, at) < x - 1)
        h->out[h->length++] = h->s->now.item[at] + 2 * h->s->p->units;
    h->free = h->free > q[k].key ? h->free : q[k].key;
    memmove(q + k, q + k + 1, (size_t)(--h->end - k) * sizeof *q);
}

/* Of what is held in front of position x goes what is copied, what the item there makes anew, and,
 * first things first, as much as x has no room for. */
static void gckpti_release_some(gckpti_holding *h, int x)
{
    gckpti_search *s = h->s;
    const int unit = s->now.item[x] < 0 ? -1 : gckpti_unit_of(s->p, s->now.item[x]);
    int64_t over = s->now.live[x] - h->limit;
    for (int k = 0; k < h->end; k++)
        over += gckpti_held_bytes(s, s->insert[k].item, x);
    for (int k = 0; k < h->end;) {
        const int64_t bytes = gckpti_held_bytes(s, s->insert[k].item, x);
        if (s->insert[k].key > h->now && s->now.item[s->insert[k].item] != unit &&
            (over <= 0 || !bytes)) {
            k++;
            continue;
        }
        over -= bytes;
        gckpti_release(h, k, x);
    }
}

/* Writes the present schedule with holds, behind as much as there is room for and as is copied
 * meanwhile, to s->next. The clock is that of gckpti_time, but for what is let go of early. */
static void gckpti_add_holds(gckpti_search *s, int64_t limit)
{
    const gckpti_planner *p = s->p;
    const gckpti_schedule *t = &s->now;
    gckpti_holding h = { s, 0, 0, 0, 0, 0, limit, s->next.item, 0 };
    for (int u = 0; u < p->units; u++)
        s->note[u].ready = 0;
    for (int x = 0; x < t->length; x++) {
        int i = t->item[x], u = gckpti_unit_of(p, i), count;
        const int *links = gckpti_reads(p, i, &count);
        gckpti_release_some(&h, x);
        h.out[h.length++] = i;
        if (gckpti_reloads(p, i)) {
            int parts = gckpti_parts(t->value_end[x], t->aux_end[x]);
            h.link = (h.link > h.now ? h.link : h.now) + gckpti_parts_work(p, u, parts);
            s->note[u].ready = h.link;
        }
        if (i >= p->units)
            continue;
        h.now = h.now > h.free ? h.now : h.free;
        for (int k = 0; k < count; k++)
            h.now = h.now > s->note[links[k]].ready ? h.now : s->note[links[k]].ready;
        if (i < 0 && s->note[u].ready > h.now)
            h.now = s->note[u].ready;
        h.now += gckpti_item_work(p, i);
        if (i >= 0 && t->offloaded[x]) {
            h.link = (h.link > h.now ? h.link : h.now) + gckpti_parts_work(p, u, t->offloaded[x]);
            s->insert[h.end].item = x;
            s->insert[h.end++].key = h.link;
        }
    }
    s->next.length = h.length;
}

/* How far ahead of position x its reload may stand: where, by the clock (s->saving), it ends before
 * `by`, or as far as there is room. Adds its bytes to what lives meanwhile. */
static int gckpti_reach_back(gckpti_search *s, int x, uint64_t start, int64_t limit)
{
    const gckpti_planner *p = s->p;
    gckpti_schedule *t = &s->now;
    const int unit = gckpti_unit_of(p, t->item[x]);
    const int64_t bytes =
        gckpti_parts_bytes(&p->unit[unit], gckpti_parts(t->value_end[x], t->aux_end[x]));
    int to = x;
    for (; to > 0 && s->saving[to] > start && t->live[to - 1] + bytes <= limit; to--) {
        int count, i = t->item[to - 1], uses = gckpti_unit_of(p, i) == unit;
        for (const int *links = gckpti_reads(p, i, &count); count-- > 0;)
            uses = uses || links[count] == unit;
        if (uses)
            break;
        t->live[to - 1] += bytes;
    }
    return to;
}

/* Writes the present schedule with reloads ahead, to s->next: from the last one on, each as late as
 * it is there for its reader, and the link free for the next one, in an ideal run. */
static void gckpti_put_ahead(gckpti_search *s, int64_t limit)
{
    const gckpti_planner *p = s->p;
    const gckpti_schedule *t = &s->now;
    uint64_t by = UINT64_MAX;
    size_t n = 0;
    int y = 0;
    s->saving[0] = 0;
    for (int x = 0; x < t->length; x++)
        s->saving[x + 1] =
            s->saving[x] + (t->item[x] < p->units ? gckpti_item_work(p, t->item[x]) : 0);
    for (int x = t->length; x-- > 0;) {
        if (!gckpti_reloads(p, t->item[x]))
            continue;
        const int u = gckpti_unit_of(p, t->item[x]);
        int reader = x + 1, found = 0, count;
        for (; reader < t->length && !found; reader += !found) {
            found = t->item[reader] == ~u;
            for (const int *links = gckpti_reads(p, t->item[reader], &count); count-- > 0;)
                found = found || links[count] == u;
        }
        uint64_t work =
            gckpti_parts_work(p, u, gckpti_parts(t->value_end[x], t->aux_end[x]));
        by = by < s->saving[reader] ? by : s->saving[reader];
        by = by > work ? by - work : 0;
        s->insert[n].key = (uint64_t)gckpti_reach_back(s, x, by, limit) << 32 | (uint64_t)x;
        by = by > s->saving[s->insert[n].key >> 32] ? by : s->saving[s->insert[n].key >> 32];
        s->insert[n++].item = t->item[x];
    }
    gckpti_sort_keys(s->insert, s->insert + n, n);
    for (size_t k = 0; y < t->length; y++) {
        for (; k < n && (int)(s->insert[k].key >> 32) == y; k++)
            s->next.item[s->next.length++] = s->insert[k].item;
        if (!gckpti_reloads(p, t->item[y]))
            s->next.item[s->next.length++] = t->item[y];
    }
}

/* The list in s->next becomes the present schedule. */
static void gckpti_take_next(gckpti_search *s)
{
    gckpti_schedule swap = s->now;
    s->now = s->next;
    s->next = swap;
    gckpti_evaluate(s, &s->now);
    gckpti_settle(s);
}

/* An answer with as much hidden as so many live bytes allow: answer->ahead, empty where that does
 * not fit. */
GCKPTI_FN void gckpti_hide(gckpti_search *s, gckpti_answer *answer, int64_t limit)
{
    size_t n = 2 * (size_t)answer->length + 1;
    answer->ahead = (gckpti_answer *)gckpti_scratch_take(&s->scratch, 1, sizeof *answer);
    if (!answer->ahead || !gckpti_answer_load(s, answer))
        return;
    for (int way = 0; way < 2; way++) {
        n = 2 * (size_t)s->now.length + 1;
        if (!gckpti_schedule_room(&s->scratch, &s->next, (int)n) ||
            !gckpti_want(&s->scratch, &s->insert, 2 * n, sizeof *s->insert) ||
            !gckpti_want(&s->scratch, &s->saving, n, sizeof *s->saving))
            return;
        s->next.length = 0;
        if (way == 0)
            gckpti_add_holds(s, limit);
        else
            gckpti_put_ahead(s, limit);
        gckpti_take_next(s);
    }
    if (s->now.peak <= limit && !s->p->failed)
        gckpti_answer_store(s, answer->ahead, &s->now);
}
#endif
