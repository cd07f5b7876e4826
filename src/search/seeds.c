#include "search/own.h"
#include "base/base.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- seeds: schedules that know no limit, made once (search/search) ---- */
enum { GCKPTI_SINKS = 16 }; /* most seeds that are squeezed a little */

GCKPTI_FN void gckpti_seed(gckpti_search *s)
{
    const gckpti_schedule *t = &s->now;
    int dominated = 0;
    if (!gckpti_take_made(s))
        return;
    for (int i = 0; i < s->seeds; i++) {
        const gckpti_slot *q = &s->seed[i];
        if (q->length == t->length && !memcmp(q->item, t->item, (size_t)q->length * sizeof(int)))
            return;
        dominated = dominated || (q->peak <= s->now.peak && q->extra <= t->extra);
    }
    gckpti_slot *slot = gckpti_slot_new(s, &s->seed, &s->seeds);
    if (!slot)
        return;
    gckpti_slot_store(s, slot, &s->now);
    slot->dominated = dominated;
}

/* Orders seeds: by live bytes, then work. */
static int gckpti_seed_before(const void *first, const void *second, const void *context)
{
    const gckpti_slot *a = (const gckpti_slot *)first, *b = (const gckpti_slot *)second;
    return a->peak != b->peak     ? a->peak < b->peak
           : a->extra != b->extra ? a->extra < b->extra
                                  : gckpti_slot_before(a, b, context);
}

/* Where bytes are fewest, a little less may lead far: seeds squeezed by 1/1000 are seeds, too. */
static void gckpti_sink_seeds(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    uint64_t least = UINT64_MAX;
    for (int i = 0, tried = 0, n = s->seeds; i < n && tried < GCKPTI_SINKS && !p->failed; i++) {
        if (s->seed[i].extra / 8 * 7 >= least || s->seed[i].extra < p->least_work / 4 ||
            s->seed[i].extra / 4 > p->least_work)
            continue;
        least = s->seed[i].extra < least ? s->seed[i].extra : least;
        tried++;
        s->items = s->looked = 0;
        int64_t limit = s->seed[i].peak - (s->seed[i].peak - s->gradient_between[0]) / 1000 - 1;
        if (!gckpti_slot_load(s, &s->seed[i]) || !gckpti_squeeze(s, limit, 0))
            continue;
        gckpti_polish(s, limit, 0);
        gckpti_settle(s);
        gckpti_slot *slot = gckpti_slot_new(s, &s->seed, &s->seeds);
        if (slot)
            gckpti_slot_store(s, slot, &s->now);
    }
    gckpti_sort(s->seed, (size_t)s->seeds, sizeof *s->seed, gckpti_seed_before, NULL);
}

/* Store-all, the same with late forwards, uniform segments, the user's, the chain's, memory-poor;
 * the user's and the chain's for backwards in order 0. */
GCKPTI_FN void gckpti_find_seeds(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    size_t n = (size_t)p->body_count, groups = n + (size_t)p->g->outermost;
    s->items = s->looked = 0;
    p->made_length = 0;
    gckpti_make_store_all(p);
    gckpti_seed(s);
    int64_t most = s->seed ? s->seed[0].peak - s->gradient_between[0] : 0;
    gckpti_make_late(p, 0);
    gckpti_seed(s);
    for (size_t i = 0; i <= groups && !p->failed; i++) {
        int group = i < groups ? gckpti_group(p, i) : 0;
        if ((i >= n && p->variant.order) || (i < groups && !group))
            continue;
        gckpti_make_segments(p, group);
        gckpti_seed(s);
    }
    for (int how = 0, finer = 0; how < GCKPTI_BORDERS && !p->variant.order && !p->failed; how++) {
        if (how == GCKPTI_AT_UNITS && p->units > (finer ? GCKPTI_SMALL : GCKPTI_POOR))
            break;
        finer = gckpti_seed_chain(s, how, most);
    }
    if (s->p->units <= GCKPTI_POOR && !p->failed) {
        gckpti_make_late(p, -1);
        gckpti_seed(s);
    }
    gckpti_sort(s->seed, (size_t)s->seeds, sizeof *s->seed, gckpti_seed_before, NULL);
    gckpti_sink_seeds(s);
}
#endif
