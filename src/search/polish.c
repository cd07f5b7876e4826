#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- polish: takes repeated forwards out. Room below the limit by position: a tree of minima;
 * what a node holds is relative to its parent; leaf size + 1 + x is position x ---- */
static int64_t gckpti_room_least(const gckpti_rooms *t, int from, int to)
{
    int64_t left = INT64_MAX / 2, right = left;
    int a = t->width + from, b = t->width + to + 2;
    for (; (a ^ b) > 1; a /= 2, b /= 2) {
        left = !(a & 1) && t->node[a ^ 1] < left ? t->node[a ^ 1] : left;
        right = b & 1 && t->node[b ^ 1] < right ? t->node[b ^ 1] : right;
        left += t->node[a / 2];
        right += t->node[b / 2];
    }
    for (left = left < right ? left : right; (a /= 2) > 0;)
        left += t->node[a];
    return left;
}

/* Makes a node hold the least of its children's. */
static void gckpti_room_lift(gckpti_rooms *t, int node)
{
    int64_t *child = &t->node[2 * node], least = child[0] < child[1] ? child[0] : child[1];
    child[0] -= least;
    child[1] -= least;
    t->node[node] += least;
}

static void gckpti_room_add(gckpti_rooms *t, int from, int to, int64_t bytes)
{
    int a = t->width + from, b = t->width + to + 2;
    for (; (a ^ b) > 1; a /= 2, b /= 2) {
        t->node[a ^ 1] += a & 1 ? 0 : bytes;
        t->node[b ^ 1] += b & 1 ? bytes : 0;
        gckpti_room_lift(t, a / 2);
        gckpti_room_lift(t, b / 2);
    }
    while ((a /= 2) > 0)
        gckpti_room_lift(t, a);
}

static int gckpti_room_build(gckpti_search *s, int64_t limit)
{
    gckpti_rooms *t = &s->room;
    for (t->width = 2; t->width < s->now.length + 2;)
        t->width *= 2;
    if (!gckpti_want(&s->scratch, &t->node, 2 * (size_t)t->width, sizeof *t->node))
        return 0;
    memset(t->node, 0, 2 * (size_t)t->width * sizeof *t->node);
    for (int x = 0; x < s->now.length; x++)
        t->node[t->width + 1 + x] = limit - s->now.live[x];
    for (int node = t->width - 1; node > 0; node--)
        gckpti_room_lift(t, node);
    return 1;
}

/* Gives or takes back the bytes of what only the repeated forward still keeps. */
static void gckpti_free_inputs(gckpti_search *s, const gckpti_move *m, int sign)
{
    for (int k = m->set; k < m->set + m->units; k += 2)
        gckpti_room_add(&s->room, s->set[k + 1], m->to, sign * s->note[s->set[k]].out);
}

/* Whether the version before can serve the repeated forward's uses too: its bytes must fit between;
 * take: takes them. The inputs' bytes are given back only where they may decide, or for good. */
static int gckpti_stretch(gckpti_search *s, const gckpti_move *m, int take)
{
    const gckpti_schedule *t = &s->now;
    int fits = 1, given = 0;
    int64_t inputs = 0;
    for (int k = m->set; k < m->set + m->units; k += 2)
        inputs += s->note[s->set[k]].out;
    for (int aux = 0; aux < 2 && fits; aux++) {
        const int *end = aux ? t->aux_end : t->value_end;
        int from = (end[m->start] > m->start ? end[m->start] : m->start) + 1;
        int64_t size = aux ? m->aux : m->value;
        if (end[m->to] < 0 || from >= m->to || size == 0)
            continue;
        int64_t least = gckpti_room_least(&s->room, from, m->to - 1);
        if (!given && least < size && least + inputs >= size) {
            gckpti_free_inputs(s, m, 1);
            given = 1;
            least = gckpti_room_least(&s->room, from, m->to - 1);
        }
        fits = least >= size;
        if (fits && take)
            gckpti_room_add(&s->room, from, m->to - 1, -size);
    }
    if (given != (fits && take))
        gckpti_free_inputs(s, m, given ? -1 : 1);
    s->looked += 16 * (1 + m->units);
    return fits;
}

/* Work of an offload and a reload of what is read of unit u's version that begins at x. */
static uint64_t gckpti_there_and_back(const gckpti_search *s, int u, int x)
{
    int parts = gckpti_parts(s->now.value_end[x], s->now.aux_end[x]);
    return gckpti_copies_work(s, gckpti_parts_bytes(&s->p->unit[u], parts));
}

/* Notes what only the repeated item at m->to still keeps: pairs of a unit and the position from
 * which its value goes, too. */
static void gckpti_note_freed(gckpti_search *s, gckpti_move *m, const int *links, int count)
{
    m->set = s->sets;
    if (!gckpti_want(&s->scratch, &s->set, (size_t)s->sets + 2 * GCKPT_MAX_INPUTS, sizeof(int)))
        return;
    for (int k = 0; k < count; k++) {
        const gckpti_note *q = &s->note[links[k]];
        if (q->value_end != m->to)
            continue;
        s->set[s->sets++] = links[k];
        s->set[s->sets++] = q->from + (q->from > q->start || s->saving[q->start] == 0);
    }
    m->units = s->sets - m->set;
}

/* Repeated forwards and reloads of the present schedule, largest saving first, in s->move: `start`
 * is the version before; with a limit only those whose bytes fit below it. What only a repeated
 * forward reads goes with it; such forwards are a tree, so each is counted once. */
static void gckpti_find_repeats(gckpti_search *s, int64_t limit)
{
    if (!gckpti_index(s, limit) || !gckpti_room_build(s, limit) ||
        !gckpti_want(&s->scratch, &s->saving, (size_t)s->now.length, sizeof *s->saving))
        return;
    for (int x = 0; x < s->now.length && !s->p->failed; gckpti_step(s, x++)) {
        int i = s->now.item[x], count, self = gckpti_unit_of(s->p, i), reloads = i > self;
        const int *links = gckpti_reads(s->p, i, &count);
        if (i < 0)
            continue;
        s->saving[x] = s->note[self].runs > 0 ? s->p->unit[self].cost : 0;
        if (reloads)
            s->saving[x] = gckpti_there_and_back(s, self, x);
        for (int k = 0; k < count && s->note[self].runs > 0; k++) {
            const gckpti_note *q = &s->note[links[k]];
            if (q->value_end == x && q->from == q->start && q->aux_end < 0)
                s->saving[x] += s->saving[q->start];
        }
        if (s->note[self].runs == 0 || gckpti_is_stale(s, self, s->now.value_end[x]) ||
            gckpti_is_stale(s, self, s->now.aux_end[x]))
            continue;
        gckpti_move m;
        memset(&m, 0, sizeof m);
        m.key = UINT64_MAX - s->saving[x];
        m.unit = self;
        m.start = s->note[self].start;
        m.to = x;
        m.value = s->note[self].out;
        m.aux = s->note[self].aux;
        gckpti_note_freed(s, &m, links, count);
        if (limit == INT64_MAX || gckpti_stretch(s, &m, 0))
            gckpti_add_move(s, &m);
    }
    gckpti_sort_moves(s);
}

/* Chooses all repeated forwards whose predecessors' bytes fit, one after another: how many. */
static int gckpti_choose_repeats(gckpti_search *s)
{
    int n = 0;
    for (int m = 0; m < s->moves; m++)
        if (gckpti_stretch(s, &s->move[m], 1))
            s->chosen[n++] = m;
    return n;
}

/* Reloads what is computed again with more work, all of it or, where that does not fit, the half
 * that saves most, and so on. */
static void gckpti_reload_repeats(gckpti_search *s, int64_t limit)
{
    int n = 0;
    gckpti_find_repeats(s, INT64_MAX);
    for (int m = 0; m < s->moves && !s->p->failed; m++) {
        int x = s->move[m].to, u = s->move[m].unit;
        if (s->now.item[x] == u && s->p->unit[u].offloads &&
            s->saving[x] > gckpti_there_and_back(s, u, x))
            s->chosen[n++] = m;
    }
    gckpti_make_moves(s, GCKPTI_TO_RELOAD, limit, n);
}

/* Takes out repeated forwards while the limit holds; exact: one at a time, whichever leaves least
 * work. */
static void gckpti_polish(gckpti_search *s, int64_t limit, int exact)
{
    if (s->p->offloads && s->now.extra > 0)
        gckpti_reload_repeats(s, limit);
    for (int round = 0; (exact || round < 6) && s->now.extra > 0; round++) {
        gckpti_find_repeats(s, exact ? INT64_MAX : limit);
        if (s->p->failed || gckpti_spent(s) ||
            !(exact ? gckpti_make_best(s, GCKPTI_TAKE_OUT, limit, 1)
                    : gckpti_make_moves(s, GCKPTI_TAKE_OUT, limit, gckpti_choose_repeats(s))))
            return;
    }
}

/* ---- squeezed and polished ---- */
/* An answer's schedule, squeezed below a limit and polished, is the present one. 0: it is not. */
GCKPTI_FN int gckpti_press(gckpti_search *s, const gckpti_answer *answer, int64_t limit)
{
    s->items = s->looked = 0;
    if (!gckpti_answer_load(s, answer) || !gckpti_squeeze(s, limit, 0))
        return 0;
    gckpti_polish(s, limit, 0);
    gckpti_settle(s);
    return !s->p->failed;
}

/* Gives the present schedule to an answer, squeezed if it must be and is not far above the limit,
 * and polished. */
GCKPTI_FN void gckpti_improve(gckpti_search *s, gckpti_answer *answer, int exact)
{
    if (s->now.peak / 5 * 4 > answer->limit)
        return;
    s->attempt = exact ? -1 : s->items + s->looked / 4; /* one of many: an eighth of it all */
    if (gckpti_squeeze(s, answer->limit, exact)) {
        gckpti_polish(s, answer->limit, exact);
        gckpti_offer(s, answer);
    }
    s->attempt = -1;
}

/* Takes one repeated forward out of an answer's schedule, over the limit if need be, and squeezes
 * it back without touching that unit: a way out of where single moves end. Tries the `tries`
 * largest savings, anew after each success. */
GCKPTI_FN void gckpti_shake(gckpti_search *s, gckpti_answer *answer, int tries, int exact)
{
    for (int i = 0; i < tries && answer->length && !gckpti_spent(s); i++) {
        uint64_t before = answer->extra;
        if (!gckpti_answer_load(s, answer))
            return;
        gckpti_find_repeats(s, INT64_MAX);
        if (i >= s->moves || s->p->failed)
            return;
        s->barred = s->move[i].unit;
        gckpti_make_move(s, GCKPTI_TAKE_OUT, i);
        int fits = gckpti_squeeze(s, answer->limit, exact);
        s->barred = -1;
        if (!fits)
            continue;
        gckpti_polish(s, answer->limit, exact);
        gckpti_offer(s, answer);
        i = answer->extra < before ? -1 : i;
    }
}
#endif
