#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- moves of gckpti_reduce_peak and gckpti_remove_recomputes: their list, their scores ---- */
/* Returns (cost + 1) / gain as an integer that sorts like a floating-point number: an exponent
 * above 32 bits of mantissa. Adding GCKPTI_DOUBLE_SCORE doubles it. */
GCKPTI_FN uint64_t gckpti_score(uint64_t cost, int64_t gain)
{
    uint64_t a = cost + 1, b = (uint64_t)gain, exponent = 128 - 33;
    for (int k = 32; k > 0; k /= 2) { /* shifts to 2^62 .. 2^63 */
        if (a >> (63 - k) == 0) {
            a <<= k;
            exponent -= (uint64_t)k;
        }
        if (b >> (63 - k) == 0) {
            b <<= k;
            exponent += (uint64_t)k;
        }
    }
    a /= b >> 33; /* now 2^32 .. 2^34 */
    while (a >= UINT64_C(1) << 33) {
        a >>= 1;
        exponent++;
    }
    return exponent * GCKPTI_DOUBLE_SCORE + (a - GCKPTI_DOUBLE_SCORE);
}

/* Appends a move to s->move. */
GCKPTI_FN void gckpti_add_move(gckpti_search *s, const gckpti_move *m)
{
    if (gckpti_reserve(&s->scratch, &s->move, (size_t)s->moves + 1, sizeof *m))
        s->move[s->moves++] = *m;
}

/* Sorts s->move by key; of equal keys, the later position comes first. Reserves s->chosen. */
GCKPTI_FN void gckpti_sort_moves(gckpti_search *s)
{
    size_t n = (size_t)s->moves;
    if (!gckpti_reserve(&s->scratch, &s->key, 2 * n, sizeof *s->key) ||
        !gckpti_reserve(&s->scratch, &s->sorted, n, sizeof *s->sorted) ||
        !gckpti_reserve(&s->scratch, &s->chosen, n, sizeof *s->chosen))
        return;
    for (size_t i = 0; i < n; i++) {
        s->key[i].key = s->move[n - 1 - i].key;
        s->key[i].value = (int)(n - 1 - i);
    }
    gckpti_sort_keys(s->key, s->key + n, n);
    for (size_t i = 0; i < n; i++)
        s->sorted[i] = s->move[s->key[i].value];
    gckpti_move *swap = s->move;
    s->move = s->sorted;
    s->sorted = swap;
}

/* ---- applying moves to the current schedule, s->now: builds s->next, accepts it if better ---- */
/* Sets s->next to s->now with the closures of n moves inserted. Returns 0 if out of memory. */
static int gckpti_insert_closures(gckpti_search *s, const int *move, int n)
{
    const gckpti_schedule *now = &s->now;
    size_t most = 0, k = 0, length = 0;
    for (int i = 0; i < n; i++)
        most += (size_t)s->move[move[i]].count;
    if (!gckpti_reserve(&s->scratch, &s->insert, 2 * most, sizeof *s->insert) ||
        !gckpti_schedule_reserve(&s->scratch, &s->next, now->length + (int)most))
        return 0;
    for (int i = 0; i < n; i++) {
        const gckpti_move *m = &s->move[move[i]];
        for (int j = m->first; j < m->first + m->count; j++, k++) {
            s->insert[k].key =
                (uint64_t)m->to << 32 | (uint64_t)gckpti_entry_node(s->p, s->member[j]);
            s->insert[k].value = s->member[j];
        }
        s->incomplete = s->incomplete || m->truncated;
    }
    gckpti_sort_keys(s->insert, s->insert + most, most);
    int *out = s->next.entry, x = 0;
    for (k = 0; k < most; k++) {
        int to = (int)(s->insert[k].key >> 32);
        memcpy(out + length, now->entry + x, (size_t)(to - x) * sizeof *out);
        length += (size_t)(to - x);
        x = to;
        if (k == 0 || s->insert[k].key != s->insert[k - 1].key)
            out[length++] = s->insert[k].value;
    }
    memcpy(out + length, now->entry + x, (size_t)(now->length - x) * sizeof *out);
    s->next.length = (int)length + now->length - x;
    return 1;
}

/* Sets s->next to s->now with the entries of n recomputes replaced by m->entry, or removed if that
 * is INT32_MAX. Returns 0 if out of memory. */
static int gckpti_replace_recomputes(gckpti_search *s, const int *move, int n)
{
    const gckpti_schedule *now = &s->now;
    if (!gckpti_schedule_reserve(&s->scratch, &s->next, now->length))
        return 0;
    int *out = s->next.entry, length = 0;
    memcpy(out, now->entry, (size_t)now->length * sizeof *out);
    for (int i = 0; i < n; i++)
        out[s->move[move[i]].to] = s->move[move[i]].entry;
    for (int x = 0; x < now->length; x++)
        if (out[x] != INT32_MAX)
            out[length++] = out[x];
    s->next.length = length;
    return 1;
}

/* Sets s->next to s->now changed by n moves, without entries nobody reads, and evaluates it. */
static void gckpti_try_moves(gckpti_search *s, int kind, const int *move, int n)
{
    if (kind == GCKPTI_MOVE_INSERT ? gckpti_insert_closures(s, move, n)
                                   : gckpti_replace_recomputes(s, move, n))
        gckpti_evaluate(s, &s->next);
}

/* Applies one move, whether it helps or not. */
GCKPTI_FN void gckpti_apply_move(gckpti_search *s, int kind, int move)
{
    gckpti_try_moves(s, kind, &move, 1);
    gckpti_accept_next(s);
}

/* Rates s->next, lower is better: by added cost per byte of excess that it removes from s->now or,
 * without excess, by cost. Returns UINT64_MAX if it is no better than s->now. */
static uint64_t gckpti_rate_next(const gckpti_search *s, int64_t limit, int64_t excess)
{
    int64_t gain = excess - gckpti_excess(&s->next, limit);
    uint64_t cost = s->next.overhead, before = s->now.overhead;
    if (excess > 0 && gain > 0)
        return gckpti_score(cost > before ? cost - before : 0, gain);
    return excess == 0 && gain == 0 && cost < before ? cost : UINT64_MAX;
}

/* Applies the n moves in s->chosen, or half of them, and so on, until some help. Else returns 0. */
GCKPTI_FN int gckpti_apply_moves(gckpti_search *s, int kind, int64_t limit, int n)
{
    int64_t excess = gckpti_excess(&s->now, limit);
    for (; n > 0 && !s->p->failed; n /= 2) {
        gckpti_try_moves(s, kind, s->chosen, n);
        if (gckpti_rate_next(s, limit, excess) < UINT64_MAX && !s->p->failed) {
            gckpti_accept_next(s);
            return 1;
        }
    }
    return 0;
}

/* Tries insertions one at a time, in order, until 8 help or 200 are tried, and applies the best.
 * Returns 0 if none helps. */
static int gckpti_apply_best_move(gckpti_search *s, int64_t limit)
{
    int64_t excess = gckpti_excess(&s->now, limit);
    uint64_t least = UINT64_MAX;
    int best = -1, helped = 0;
    for (int m = 0; m < s->moves && m < 200 && helped < 8 && !s->p->failed; m++) {
        gckpti_try_moves(s, GCKPTI_MOVE_INSERT, &m, 1);
        uint64_t rate = gckpti_rate_next(s, limit, excess);
        helped += rate < UINT64_MAX;
        best = rate < least ? m : best;
        least = rate < least ? rate : least;
    }
    if (best < 0 || s->p->failed)
        return 0;
    gckpti_apply_move(s, GCKPTI_MOVE_INSERT, best);
    return !s->p->failed;
}

/* ---- reducing the peak below a limit by closing live-range holes (search/search) ---- */
enum { GCKPTI_MAX_CLOSURE = 400 }; /* most forwards to close one hole */

/* Finds the closure of m's node before position m->to, where the scan must be: entries of s->member
 * from m->first on, and m->cost. An input that is not live is kept live if that adds no excess,
 * else recomputed, or reloaded if that is cheaper. */
static void gckpti_find_closure(gckpti_search *s, gckpti_move *m)
{
    const gckpti_planner *p = s->p;
    int h = m->first, end = h;
    s->state[m->node].stamp = ++s->stamp;
    s->member[end++] = m->node;
    for (; h < end && end - m->first < GCKPTI_MAX_CLOSURE; h++) {
        const gckpti_node *u = &p->node[gckpti_entry_node(p, s->member[h])];
        if (gckpti_is_reload(p, s->member[h])) {
            m->cost += gckpti_round_trip_cost(s, u->out);
            continue;
        }
        m->cost += u->cost;
        s->examined += u->inputs;
        for (int k = u->in; k < u->in + u->inputs; k++) {
            const int q = p->edges[k], fixed = p->node[q].runs_once;
            gckpti_node_state *v = &s->state[q];
            if (v->value_end >= m->to || v->stamp == s->stamp)
                continue;
            v->stamp = s->stamp;
            const uint64_t copy = gckpti_copy_cost(s, q, v->out);
            const int from = (v->value_end > v->start ? v->value_end : v->start) + 1;
            const int excess = from < m->to && s->excess_count[m->to] > s->excess_count[from];
            if ((excess || gckpti_must_recompute(s, q, m->to - 1)) && (!fixed || copy < UINT64_MAX))
                s->member[end++] = fixed || copy < p->node[q].cost ? q + p->nodes : q;
        }
    }
    m->count = end - m->first;
    m->truncated = h < end;
}

/* Returns an upper bound of the excess at positions low to x - 1 that `size` fewer bytes remove. */
static int64_t gckpti_excess_gain(const gckpti_search *s, int low, int x, int64_t size)
{
    if (low >= x)
        return 0;
    int64_t sum = s->excess_sum[x] - s->excess_sum[low];
    int64_t most = size * (s->excess_count[x] - s->excess_count[low]);
    return sum < most ? sum : most;
}

/* Adds the move that closes the hole of `node` before position x, if it lowers the excess. */
static void gckpti_consider_hole(gckpti_search *s, int node, int x)
{
    const gckpti_node_state *v = &s->state[node];
    gckpti_move m;
    if (node == s->excluded)
        return;
    memset(&m, 0, sizeof m);
    m.key = UINT64_MAX;
    m.node = node;
    m.start = v->start;
    m.from = v->prev_use;
    m.to = x;
    m.first = s->members;
    m.value = v->value_end >= x ? v->out : 0;
    m.saved = v->saved_end >= x ? v->saved : 0;
    const int64_t gain = gckpti_excess_gain(s, v->prev_use + 1, x, m.value) +
                         gckpti_excess_gain(s, v->start + 1, x, m.saved);
    if (gain <= 0 ||
        !gckpti_reserve(&s->scratch, &s->member,
                        (size_t)s->members + GCKPTI_MAX_CLOSURE + GCKPT_MAX_INPUTS, sizeof(int)))
        return;
    if (!s->p->node[node].runs_once) {
        gckpti_find_closure(s, &m);
        m.key = gckpti_score(m.cost, gain);
    }
    const uint64_t copy = gckpti_copy_cost(s, node, m.value + m.saved);
    if (copy < UINT64_MAX && gckpti_score(copy, gain) < m.key) {
        m.key = gckpti_score(copy, gain);
        m.cost = copy;
        m.count = 1;
        m.truncated = 0;
        s->member[m.first] = node + s->p->nodes;
    }
    if (m.key == UINT64_MAX)
        return; /* a node that runs once, if the host is full */
    s->members += m.count;
    gckpti_add_move(s, &m);
}

/* Lists in s->move the holes whose closing lowers the excess, best first. */
GCKPTI_FN void gckpti_find_holes(gckpti_search *s, int64_t limit)
{
    int last = 0;
    if (!gckpti_begin_scan(s, limit))
        return;
    for (int x = 0; x < s->now.length; x++)
        last = s->now.live_bytes[x] > limit ? x : last;
    for (int x = 0; x < s->now.length && !s->p->failed; x++) {
        int i = s->now.entry[x], self = i < 0 && s->p->node[~i].reads_saved ? ~i : -1, count;
        const int *edges = gckpti_entry_reads(s->p, i, &count);
        for (int k = 0; k < count && s->excess_count[x] > 0; k++) {
            const gckpti_node_state *v = &s->state[edges[k]];
            self = edges[k] == self ? -1 : self;
            if (v->prev_use < last || (v->start < last && v->saved_end >= x))
                gckpti_consider_hole(s, edges[k], x);
        }
        if (self >= 0 && s->excess_count[x] > 0)
            gckpti_consider_hole(s, self, x);
        gckpti_scan_entry(s, x);
    }
    gckpti_sort_moves(s);
}

/* Returns how much excess `bytes` fewer bytes at positions from `from` to `to` - 1 remove, after
 * the moves chosen so far. If `commit` is nonzero, removes it. */
static int64_t gckpti_relieve(gckpti_search *s, int from, int to, int64_t bytes, int commit)
{
    int64_t gain = 0;
    for (int k = s->excess_count[from]; k < s->excess_count[to]; k++) {
        const int64_t part = s->excess[k] < bytes ? s->excess[k] : bytes;
        gain += part;
        s->excess[k] -= commit ? part : 0;
        s->examined++;
    }
    return gain;
}

/* Returns how much excess a move removes, after those chosen so far; `commit`: gckpti_relieve. */
static int64_t gckpti_relief_of_move(gckpti_search *s, const gckpti_move *m, int commit)
{
    const int from = m->from + 1 < m->to ? m->from + 1 : m->to;
    return (m->saved ? gckpti_relieve(s, m->start + 1, from, m->saved, commit) : 0) +
           gckpti_relieve(s, from, m->to, m->value + m->saved, commit);
}

/* Returns whether the entry's node or one it reads is touched. If `mark` is 1, touches all. */
static int gckpti_touch_nodes(gckpti_search *s, int entry, int mark)
{
    int node = gckpti_entry_node(s->p, entry), touched = s->state[node].touched, count;
    const int *edges = gckpti_entry_reads(s->p, entry, &count);
    s->state[node].touched = touched || mark;
    for (int k = 0; k < count; k++) {
        touched = touched || s->state[edges[k]].touched;
        s->state[edges[k]].touched |= mark;
    }
    return touched;
}

/* Chooses holes to close from s->move, in order, with scores within twice the best and without
 * common nodes, until no excess is left. Returns how many. */
static int gckpti_choose_holes(gckpti_search *s)
{
    const uint64_t worst = s->moves > 0 ? s->move[0].key + GCKPTI_DOUBLE_SCORE : 0;
    int64_t left = s->excess_sum[s->now.length];
    int n = 0;
    for (int u = 0; u < s->p->nodes; u++)
        s->state[u].touched = 0;
    for (int i = 0; i < s->moves && s->move[i].key <= worst && left > 0; i++) {
        const gckpti_move *m = &s->move[i];
        int conflict = s->state[m->node].touched;
        for (int j = m->first; j < m->first + m->count && !conflict; j++)
            conflict = gckpti_touch_nodes(s, s->member[j], 0);
        int64_t gain = conflict ? 0 : gckpti_relief_of_move(s, m, 0);
        if (gain <= 0 || gckpti_score(m->cost, gain) > worst)
            continue;
        for (int j = m->first; j < m->first + m->count; j++)
            gckpti_touch_nodes(s, s->member[j], 1);
        left -= gckpti_relief_of_move(s, m, 1);
        s->chosen[n++] = i;
    }
    return n;
}

/* Reduces the peak of the current schedule to the limit. Returns 0 if it cannot in its effort. */
GCKPTI_FN int gckpti_reduce_peak(gckpti_search *s, int64_t limit)
{
    int64_t first = 0;
    for (int iteration = 0; s->now.peak > limit && !s->p->failed; iteration++) {
        s->incomplete = s->incomplete || iteration > 300;
        if (iteration > 300 || gckpti_is_exhausted(s))
            return 0;
        gckpti_find_holes(s, limit);
        if (s->p->failed)
            return 0;
        const int64_t excess = s->excess_sum[s->now.length];
        first = iteration ? first : excess;
        if (gckpti_should_stop(s, first, excess))
            return 0;
        if (!gckpti_apply_moves(s, GCKPTI_MOVE_INSERT, limit, gckpti_choose_holes(s)) &&
            !gckpti_apply_best_move(s, limit))
            return 0;
    }
    return !s->p->failed;
}
#endif
