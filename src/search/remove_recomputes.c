#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- removing recomputes; s->slack: the bytes left below the limit, as a tree of minima ----
 * The leaf s->slack[s->width + 1 + x] is position x. A vertex has the least slack below it minus
 * what its ancestors have, so that of two siblings one has 0. */
/* Moves the least of two siblings to their parent. */
static void gckpti_raise_least(int64_t *slack, int vertex)
{
    int64_t *pair = slack + (vertex & ~1), least = pair[0] < pair[1] ? pair[0] : pair[1];
    pair[0] -= least;
    pair[1] -= least;
    slack[vertex / 2] += least;
}

/* Adds bytes to the slack at positions from .. to. Climbs from the leaves next to both ends: the
 * vertices between both paths are those that change. */
static void gckpti_add_slack(gckpti_search *s, int from, int to, int64_t bytes)
{
    int64_t *slack = s->slack;
    int left = s->width + from, right = s->width + to + 2;
    for (; (left ^ right) > 1; left /= 2, right /= 2) {
        slack[left + 1] += left % 2 ? 0 : bytes;
        slack[right - 1] += right % 2 ? bytes : 0;
        gckpti_raise_least(slack, left);
        gckpti_raise_least(slack, right);
    }
    for (; left > 1; left /= 2)
        gckpti_raise_least(slack, left);
}

/* Returns the least slack at positions from .. to. */
static int64_t gckpti_least_slack(const gckpti_search *s, int from, int to)
{
    const int64_t *slack = s->slack;
    int64_t least = INT64_MAX / 2, right_least = least;
    int left = s->width + from, right = s->width + to + 2;
    for (; (left ^ right) > 1; left /= 2, right /= 2) {
        if (left % 2 == 0 && slack[left + 1] < least)
            least = slack[left + 1];
        if (right % 2 && slack[right - 1] < right_least)
            right_least = slack[right - 1];
        least += slack[left / 2];
        right_least += slack[right / 2];
    }
    least = right_least < least ? right_least : least;
    for (; left > 1; left /= 2)
        least += slack[left / 2];
    return least;
}

static int gckpti_build_slack(gckpti_search *s, int64_t limit)
{
    for (s->width = 1; s->width < s->now.length + 2;)
        s->width *= 2;
    if (!gckpti_reserve(&s->scratch, &s->slack, 2 * (size_t)s->width, sizeof *s->slack))
        return 0;
    memset(s->slack, 0, 2 * (size_t)s->width * sizeof *s->slack);
    for (int x = 0; x < s->now.length; x++)
        s->slack[s->width + 1 + x] = limit - s->now.live_bytes[x];
    for (int vertex = 2 * s->width - 2; vertex > 0; vertex -= 2)
        gckpti_raise_least(s->slack, vertex);
    return 1;
}

/* Adds (sign 1) or subtracts (-1) the bytes of inputs that only the recompute of m keeps live. */
static void gckpti_add_inputs(gckpti_search *s, const gckpti_move *m, int sign)
{
    for (int k = m->first; k < m->first + m->count; k += 2)
        gckpti_add_slack(s, s->member[k + 1], m->to, sign * s->state[s->member[k]].out);
}

/* Returns whether the previous definition can serve the uses of m's recompute: its bytes must fit
 * between both. If so, takes these bytes. */
static int gckpti_extend_range(gckpti_search *s, const gckpti_move *m)
{
    const gckpti_schedule *now = &s->now;
    int fits = 1, freed = 0;
    for (int saved = 0; saved < 2 && fits; saved++) {
        const int *end = saved ? now->saved_end : now->value_end;
        int from = (end[m->start] > m->start ? end[m->start] : m->start) + 1;
        int64_t size = saved ? m->saved : m->value;
        if (end[m->to] < 0 || from >= m->to || size == 0)
            continue;
        int64_t least = gckpti_least_slack(s, from, m->to - 1);
        if (!freed && least < size && least + m->freed >= size) {
            gckpti_add_inputs(s, m, 1);
            freed = 1;
            least = gckpti_least_slack(s, from, m->to - 1);
        }
        fits = least >= size;
        if (fits)
            gckpti_add_slack(s, from, m->to - 1, -size);
    }
    if (freed != fits)
        gckpti_add_inputs(s, m, freed ? -1 : 1);
    s->examined += 16 * (1 + m->count);
    return fits;
}

/* Returns the cost of reloading, with its offload, what is read of u's definition at x. */
static uint64_t gckpti_reload_cost(const gckpti_search *s, int u, int x)
{
    const int parts = gckpti_parts(s->now.value_end[x], s->now.saved_end[x]);
    return gckpti_round_trip_cost(s, gckpti_parts_bytes(&s->p->node[u], parts));
}

/* Records in s->member the values that only the recompute at m->to keeps live, as pairs: a node,
 * and the position from which its value would be free. */
static void gckpti_record_freed(gckpti_search *s, gckpti_move *m, const int *edges, int count)
{
    m->first = s->members;
    if (!gckpti_reserve(&s->scratch, &s->member, (size_t)s->members + 2 * GCKPT_MAX_INPUTS,
                        sizeof(int)))
        return;
    for (int k = 0; k < count; k++) {
        const gckpti_node_state *q = &s->state[edges[k]];
        if (q->value_end != m->to)
            continue;
        m->freed += q->out;
        s->member[s->members++] = edges[k];
        s->member[s->members++] =
            q->prev_use + (q->prev_use > q->start || s->saving[q->start] == 0);
    }
    m->count = s->members - m->first;
}

/* Lists the recomputes and reloads of the current schedule in s->move, largest saving first;
 * `start` is the previous definition. A recompute takes along the recomputes that only it reads:
 * they form a tree, so each is counted once. */
GCKPTI_FN void gckpti_find_recomputes(gckpti_search *s, int64_t limit)
{
    if (!gckpti_begin_scan(s, limit) || !gckpti_build_slack(s, limit) ||
        !gckpti_reserve(&s->scratch, &s->saving, (size_t)s->now.length, sizeof *s->saving))
        return;
    for (int x = 0; x < s->now.length && !s->p->failed; gckpti_scan_entry(s, x++)) {
        int i = s->now.entry[x], count, self = gckpti_entry_node(s->p, i), is_reload = i > self;
        const int *edges = gckpti_entry_reads(s->p, i, &count);
        if (i < 0)
            continue;
        s->saving[x] = s->state[self].run_count > 0 ? s->p->node[self].cost : 0;
        if (is_reload)
            s->saving[x] = gckpti_reload_cost(s, self, x);
        for (int k = 0; k < count && s->state[self].run_count > 0; k++) {
            const gckpti_node_state *q = &s->state[edges[k]];
            if (q->value_end == x && q->prev_use == q->start && q->saved_end < 0)
                s->saving[x] += s->saving[q->start];
        }
        if (s->state[self].run_count == 0 || gckpti_must_recompute(s, self, s->now.value_end[x]) ||
            gckpti_must_recompute(s, self, s->now.saved_end[x]))
            continue;
        gckpti_move m;
        memset(&m, 0, sizeof m);
        m.key = UINT64_MAX - s->saving[x];
        m.node = self;
        m.entry = !is_reload && s->p->node[self].can_offload &&
                          s->saving[x] > gckpti_reload_cost(s, self, x)
                      ? self + s->p->nodes
                      : INT32_MAX;
        m.start = s->state[self].start;
        m.to = x;
        m.value = s->state[self].out;
        m.saved = s->state[self].saved;
        gckpti_record_freed(s, &m, edges, count);
        gckpti_add_move(s, &m);
    }
    gckpti_sort_moves(s);
}

/* Chooses, one by one, all recomputes whose previous definitions fit, and the other ones that a
 * reload replaces. Returns how many. */
static int gckpti_choose_recomputes(gckpti_search *s)
{
    int n = 0;
    for (int m = 0; m < s->moves; m++) {
        if (gckpti_extend_range(s, &s->move[m]))
            s->move[m].entry = INT32_MAX;
        else if (s->move[m].entry == INT32_MAX)
            continue;
        s->chosen[n++] = m;
    }
    return n;
}

/* Removes recomputes within the limit, or turns them into cheaper reloads. */
GCKPTI_FN void gckpti_remove_recomputes(gckpti_search *s, int64_t limit)
{
    for (int iteration = 0; iteration < 6 && s->now.overhead > 0; iteration++) {
        gckpti_find_recomputes(s, limit);
        if (s->p->failed || gckpti_is_exhausted(s) ||
            !gckpti_apply_moves(s, GCKPTI_MOVE_REPLACE, limit, gckpti_choose_recomputes(s)))
            return;
    }
}
#endif
