#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- copies that hide: what is offloaded is held while it is copied, reloads begin ahead, both as
 * far as a limit has room (plan/time) ---- */
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

/* An answer with as much hidden as so many live bytes allow: answer->ahead, empty where that does
 * not fit. */
GCKPTI_FN void gckpti_hide(gckpti_search *s, gckpti_answer *answer, int64_t limit)
{
    answer->ahead = (gckpti_answer *)gckpti_scratch_take(&s->scratch, 1, sizeof *answer);
    if (!answer->ahead || !gckpti_answer_load(s, answer))
        return;
    for (int way = 0; way < 2; way++) {
        const size_t n = 2 * (size_t)s->now.length + 1;
        if (!gckpti_schedule_room(&s->scratch, &s->next, (int)n) ||
            !gckpti_want(&s->scratch, &s->insert, 2 * n, sizeof *s->insert) ||
            !gckpti_want(&s->scratch, &s->saving, n, sizeof *s->saving))
            return;
        s->next.length = 0;
        if (way == 0)
            (void)gckpti_time(s->p, &s->now, limit, &s->next);
        else
            gckpti_put_ahead(s, limit);
        gckpti_accept(s);
        gckpti_evaluate(s, &s->now);
        gckpti_settle(s);
    }
    if (s->now.peak <= limit && !s->p->failed)
        gckpti_answer_store(s, answer->ahead, &s->now);
}
#endif
