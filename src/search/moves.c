#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- moves, of squeeze and of polish: their list, what they cost ---- */
/* cost / gain as an integer that orders like a floating-point number: 6 bits of exponent and more
 * above 32 bits of mantissa, so that adding GCKPTI_TWICE doubles it. */
GCKPTI_FN uint64_t gckpti_score(uint64_t cost, int64_t gain)
{
    uint64_t a = cost + 1, b = (uint64_t)gain, exponent = 128 - 33;
    for (int k = 32; k > 0; k /= 2) { /* to 2^62 .. 2^63 */
        if (a >> (63 - k) == 0) {
            a <<= k;
            exponent -= (uint64_t)k;
        }
        if (b >> (63 - k) == 0) {
            b <<= k;
            exponent += (uint64_t)k;
        }
    }
    a /= b >> 33; /* 2^32 .. 2^34 */
    while (a >= UINT64_C(1) << 33) {
        a >>= 1;
        exponent++;
    }
    return exponent * GCKPTI_TWICE + (a - GCKPTI_TWICE);
}

GCKPTI_FN void gckpti_add_move(gckpti_search *s, const gckpti_move *m)
{
    if (gckpti_want(&s->scratch, &s->move, (size_t)s->moves + 1, sizeof *m))
        s->move[s->moves++] = *m;
}

/* Sorts s->move by key; of those with the same, what is later in the schedule comes first. */
GCKPTI_FN void gckpti_sort_moves(gckpti_search *s)
{
    size_t n = (size_t)s->moves;
    if (!gckpti_want(&s->scratch, &s->key, 2 * n, sizeof *s->key) ||
        !gckpti_want(&s->scratch, &s->sorted, n, sizeof *s->sorted))
        return;
    for (size_t i = 0; i < n; i++) {
        s->key[i].key = s->move[n - 1 - i].key;
        s->key[i].item = (int)(n - 1 - i);
    }
    gckpti_sort_keys(s->key, s->key + n, n);
    for (size_t i = 0; i < n; i++)
        s->sorted[i] = s->move[s->key[i].item];
    gckpti_move *swap = s->move;
    s->move = s->sorted;
    s->sorted = swap;
}

GCKPTI_FN void gckpti_accept(gckpti_search *s)
{
    gckpti_schedule swap = s->now;
    s->now = s->next;
    s->next = swap;
}

/* What one rung may cost, for each unit: list items evaluated; four times as many items and links
 * looked at to find moves. */
#define GCKPTI_WORK_LIMIT INT64_C(700)

/* Whether the search has counted as much as it may; then it ends, wherever it is. */
GCKPTI_FN int gckpti_spent(gckpti_search *s)
{
    int64_t units = (s->p->units + 200) * (s->whole ? 20 : 1), most = GCKPTI_WORK_LIMIT * units;
    int spent = s->items > most || s->looked > 4 * most ||
                (s->attempt >= 0 && s->items + s->looked / 4 > s->attempt + most / 8);
    s->cut = s->cut || spent;
    return spent;
}
#endif
