#include "search/own.h"
#include "base/base.h"
#include "num/num.h"

#ifndef GCKPT_NO_SEARCH
/* ---- the present schedule, s->now; slots that keep one, and make it better ---- */
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
    s->items += 2 * (int64_t)s->now.length;
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

/* Keeps a schedule, which is not laid out yet, in place of what the slot has. */
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

/* Makes what a slot has the present schedule, evaluated. 0: it has nothing, or no memory. */
GCKPTI_FN int gckpti_slot_load(gckpti_search *s, const gckpti_slot *slot)
{
    if (slot->length == 0 || !gckpti_search_room(s, &s->now, slot->length))
        return 0;
    memcpy(s->now.item, slot->item, (size_t)slot->length * sizeof(int));
    s->now.length = slot->length;
    gckpti_evaluate(s, &s->now);
    return 1;
}

/* Appends an empty slot to *slots, where those there may move to. NULL: no memory. */
GCKPTI_FN gckpti_slot *gckpti_slot_new(gckpti_search *s, gckpti_slot **slots, int *count)
{
    if (!gckpti_want(&s->scratch, slots, (size_t)*count + 1, sizeof **slots))
        return NULL;
    gckpti_slot *slot = &(*slots)[(*count)++];
    memset(slot, 0, sizeof *slot);
    return slot;
}

/* Gives the present schedule to a slot if it fits there and is better than what the slot has. */
GCKPTI_FN void gckpti_offer(gckpti_search *s, gckpti_slot *slot)
{
    const gckpti_schedule *t = &s->now;
    gckpti_settle(s);
    int better = slot->length == 0 || t->extra < slot->extra ||
                 (t->extra == slot->extra && t->peak < slot->peak);
    if (t->peak <= slot->limit && better && !s->p->failed)
        gckpti_slot_store(s, slot, t);
}

/* Whether a slot's schedule is as good as proven, nearly. */
GCKPTI_FN int gckpti_certified(const gckpti_search *s, const gckpti_slot *slot)
{
    return slot->length > 0 && slot->extra - slot->bound <= s->enough;
}

/* Orders schedules that are laid out: by bytes, then work, then anything that tells them apart
 * (number by number: as bytes the order would depend on the machine). */
GCKPTI_FN int gckpti_slot_before(const void *first, const void *second, const void *context)
{
    const gckpti_slot *a = (const gckpti_slot *)first, *b = (const gckpti_slot *)second;
    int x = 0;
    (void)context;
    while (a->length == b->length && x < a->length && a->item[x] == b->item[x])
        x++;
    return a->arena != b->arena     ? a->arena < b->arena
           : a->extra != b->extra   ? a->extra < b->extra
           : a->length != b->length ? a->length < b->length
                                    : x < a->length && a->item[x] < b->item[x];
}

/* Whether the present schedule was to be improved for this rung already: then it ends as before. */
static int gckpti_was_tried(gckpti_search *s, int exact)
{
    uint64_t hash = GCKPTI_FNV_START + (uint64_t)exact;
    for (int x = 0; x < s->now.length; x++)
        hash = (hash ^ (uint32_t)s->now.item[x]) * UINT64_C(0x100000001b3);
    for (int i = 0; i < s->attempts; i++)
        if (s->tried[i] == hash)
            return 1;
    if (s->attempts < GCKPTI_ATTEMPTS)
        s->tried[s->attempts++] = hash;
    return 0;
}

/* Gives the present schedule to a slot, squeezed if it must be and is not far above the limit, and
 * polished. */
GCKPTI_FN void gckpti_improve(gckpti_search *s, gckpti_slot *slot, int exact)
{
    if (s->now.peak / 5 * 4 > slot->limit || gckpti_was_tried(s, exact))
        return;
    int above = s->now.peak > slot->limit;
    s->attempt = exact ? -1 : s->items + s->looked / 4; /* one of many: an eighth of it all */
    if (gckpti_squeeze(s, slot->limit, exact) && !(above && gckpti_was_tried(s, exact))) {
        gckpti_polish(s, slot->limit, exact);
        gckpti_offer(s, slot);
    }
    s->attempt = -1;
}

/* Takes one repeated forward out of a slot's schedule, over the limit if need be, and squeezes it
 * back without touching that unit: a way out of where single moves end. Tries the `tries` largest
 * savings, anew after each success. */
GCKPTI_FN void gckpti_shake(gckpti_search *s, gckpti_slot *slot, int tries, int exact)
{
    for (int i = 0; i < tries && slot->length && !gckpti_spent(s); i++) {
        uint64_t before = slot->extra;
        if (!gckpti_slot_load(s, slot))
            return;
        gckpti_find_repeats(s, INT64_MAX);
        if (i >= s->moves || s->p->failed)
            return;
        s->barred = s->move[i].unit;
        gckpti_try_without(s, &i, 1);
        gckpti_accept(s);
        int fits = gckpti_squeeze(s, slot->limit, exact);
        s->barred = -1;
        if (!fits)
            continue;
        gckpti_polish(s, slot->limit, exact);
        gckpti_offer(s, slot);
        i = slot->extra < before ? -1 : i;
    }
}
#endif
