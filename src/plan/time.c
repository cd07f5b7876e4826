#include "plan/own.h"

/* ---- time: two engines, one that computes items in their order, and one that copies ---- */

GCKPTI_FN int gckpti_offload_until(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    int until = INT32_MAX, count, end = s->value_end[x], u = s->item[x];
    if (s->offloaded[x] & GCKPTI_AUX)
        until = s->aux_end[x];
    if (!(s->offloaded[x] & GCKPTI_VALUE) || end > until)
        return until;
    if (end > x && end < s->length && s->item[end] >= 0) { /* it may be written in place there */
        const int *links = gckpti_reads(p, s->item[end], &count);
        for (int k = 0; k < count; k++)
            if (links[k] == u && p->unit[gckpti_unit_of(p, s->item[end])].in_place >> k & 1)
                return end - 1;
    }
    return end;
}

/* A copy begins where it stands, at an offload behind its forward, and when those begun before it
 * are done. What reads a reload waits for it. Bytes of what is offloaded are free behind its last
 * use: what is computed next waits for the copy. Copies end with the body. Whoever runs a plan
 * takes no longer: bytes are free sooner where nothing lies there next. */
GCKPTI_FN uint64_t gckpti_time(gckpti_planner *p, gckpti_schedule *s)
{
    uint64_t now = 0, free = 0, link = 0;
    memset(s->wait, 0, ((size_t)s->length + 2) * sizeof *s->wait);
    for (int u = 0; u < p->units; u++)
        p->note[u].ready = 0;
    for (int x = 0; x < s->length; x++) {
        int i = s->item[x], u = gckpti_unit_of(p, i), count;
        free = s->wait[x] > free ? s->wait[x] : free;
        if (gckpti_reloads(p, i)) {
            link = gckpti_add_work(link > now ? link : now,
                                   gckpti_parts_work(
                                       p, u, gckpti_parts(s->value_end[x], s->aux_end[x])));
            p->note[u].ready = link;
        }
        if (i >= p->units)
            continue;
        if (i < 0 && p->unit[u].nth == p->body_backwards)
            free = link;
        now = now > free ? now : free;
        for (const int *links = gckpti_reads(p, i, &count); count-- > 0;)
            now = now > p->note[links[count]].ready ? now : p->note[links[count]].ready;
        if (i < 0 && p->unit[u].reads_aux && p->note[u].ready > now)
            now = p->note[u].ready;
        now = gckpti_add_work(now, gckpti_item_work(p, i));
        if (i < 0)
            continue;
        p->note[u].ready = 0;
        if (s->offloaded[x]) {
            uint64_t *wait = &s->wait[gckpti_offload_until(p, s, x) + 1];
            link = gckpti_add_work(link > now ? link : now,
                                   gckpti_parts_work(p, u, s->offloaded[x]));
            *wait = link > *wait ? link : *wait;
        }
    }
    return now > link ? now : link;
}
