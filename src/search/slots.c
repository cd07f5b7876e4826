#include "search/own.h"
#include "base/base.h"

/* ---- slots ---- */
GCKPTI_FN void gckpti_slot_store(gckpti_search *s, gckpti_slot *slot, const gckpti_schedule *t)
{
    size_t n = (size_t)t->length;
    if (!gckpti_want(&s->scratch, &slot->item, n, sizeof(int)))
        return;
    memcpy(slot->item, t->item, n * sizeof(int));
    slot->length = t->length;
    slot->peak = t->peak;
    slot->extra = t->extra;
    slot->arena = 0;
}

GCKPTI_FN int gckpti_slot_load(gckpti_search *s, const gckpti_slot *slot)
{
    if (slot->length == 0 || !gckpti_search_room(s, &s->now, slot->length))
        return 0;
    memcpy(s->now.item, slot->item, (size_t)slot->length * sizeof(int));
    s->now.length = slot->length;
    gckpti_evaluate(s, &s->now);
    return 1;
}

GCKPTI_FN gckpti_slot *gckpti_slot_new(gckpti_search *s, gckpti_slot **slots, int *count)
{
    if (!gckpti_want(&s->scratch, slots, (size_t)*count + 1, sizeof **slots))
        return NULL;
    gckpti_slot *slot = &(*slots)[(*count)++];
    memset(slot, 0, sizeof *slot);
    return slot;
}

/* ---- seeds ---- */
/* What a maker wrote becomes the present schedule: finished until that changes nothing, as it is
 * again when it is drafted, and what is dropped may tell gckpt_recompute's turn otherwise. */
GCKPTI_FN int gckpti_take_made(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    for (int round = 0, same = 0; round < 4 && !same; round++) {
        if (!gckpti_finish(p, p->made, (int)p->made_length, &s->scratch, &s->now))
            return 0;
        same = !p->pinned || (size_t)s->now.length == p->made_length;
        p->made_length = 0;
        for (int x = 0; x < s->now.length && !same; x++)
            gckpti_emit(p, s->now.item[x]);
    }
    p->made_length = 0;
    s->items += s->now.length;
    gckpti_evaluate(s, &s->now);
    return 1;
}

/* Gives the present schedule what gckpt_recompute asks for behind moves, too. */
GCKPTI_FN void gckpti_settle(gckpti_search *s)
{
    s->p->made_length = 0;
    for (int x = 0; x < s->now.length && s->p->pinned; x++)
        gckpti_emit(s->p, s->now.item[x]);
    if (s->p->pinned)
        gckpti_take_made(s);
}

/* The same, and a seed. */
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
