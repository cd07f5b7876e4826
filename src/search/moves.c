#include "offload/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * the local search for one limit, with three moves: it closes live-range holes of the current
 * schedule, s->now, by a recompute or by a copy to slower memory and back until the peak is within
 * the limit, then removes recomputes and copies that are not needed for that
 *
 * A move inserts entries before a position, or replaces the entry there. An iteration lists all
 * moves, sorts them by their score, chooses those that do not conflict, applies them at once and
 * evaluates the result exactly. If that does not help, half of them are applied, and so on.
 * ============================================================================================== */
#define GCKPTI_REMOVE INT32_MAX    /* in a move: the entry at its position is removed */
enum { GCKPTI_MAX_CLOSURE = 400 }; /* most forwards to close one hole */
#define GCKPTI_DOUBLE_SCORE (UINT64_C(1) << 52) /* adding this to a score doubles it */

/* Returns the bits of (cost + 1) / gain, which sort as the numbers do. Every machine rounds this
 * division of doubles alike (base/config.h), so plans are the same on each. */
static uint64_t gckpti_score(uint64_t cost, int64_t gain)
{
    const double score = (double)(cost + 1) / (double)gain;
    uint64_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits;
}

/* Advances a scan, which keeps definitions in p->state, past the entry at position x. */
static void gckpti_scan_entry(gckpti_search *s, int x)
{
    const gckpti_schedule *now = &s->now;
    int i = now->entry[x], count;
    const int *edges = gckpti_entry_reads(s->p, i, &count);
    for (int k = 0; k < count; k++)
        s->p->state[edges[k]].prev_use = x;
    if (i < 0) {
        s->p->state[~i].prev_use = s->p->node[~i].reads_saved ? x : s->p->state[~i].prev_use;
        return;
    }
    gckpti_node_state *v = &s->p->state[gckpti_entry_node(s->p, i)];
    v->value_end = now->value_end[x];
    v->saved_end = now->saved_end[x];
    v->start = v->prev_use = x;
    v->run_count += i < s->p->nodes;
}

/* Returns the next move, of a node at position x, where the scan must be, without entries; NULL if
 * out of memory. The caller adds it, and its entries, to s->moves and s->members. */
static gckpti_move *gckpti_next_move(gckpti_search *s, int node, int x)
{
    if (!gckpti_reserve(&s->scratch, &s->move, (size_t)s->moves + 1, sizeof *s->move) ||
        !gckpti_reserve(&s->scratch, &s->member,
                        (size_t)s->members + GCKPTI_MAX_CLOSURE + GCKPT_MAX_INPUTS, sizeof(int)))
        return NULL;
    const gckpti_node_state *v = &s->p->state[node];
    const gckpti_move m = { UINT64_MAX, node, v->start, x, s->members, 0, 0, 0, 0, 0 };
    s->move[s->moves] = m;
    return &s->move[s->moves];
}

/* Orders moves by key, in s->order (of equal keys, the later move first). Reserves s->chosen. */
static void gckpti_sort_moves(gckpti_search *s)
{
    size_t n = (size_t)s->moves;
    if (!gckpti_reserve(&s->scratch, &s->order, 2 * n, sizeof *s->order) ||
        !gckpti_reserve(&s->scratch, &s->chosen, n + 1, sizeof *s->chosen))
        return;
    for (size_t i = 0; i < n; i++) {
        s->order[i].key = s->move[n - 1 - i].key;
        s->order[i].value = (int)(n - 1 - i);
    }
    gckpti_sort_keys(s->order, s->order + n, n);
}

/* Sets s->next to s->now changed by n moves, without entries nobody reads, and evaluates it. */
static void gckpti_try_moves(gckpti_search *s, const int *move, int n)
{
    const gckpti_schedule *now = &s->now;
    size_t most = 0, k = 0;
    for (int i = 0; i < n; i++)
        most += (size_t)s->move[move[i]].count;
    if (!gckpti_reserve(&s->scratch, &s->insert, 2 * most, sizeof *s->insert) ||
        !gckpti_schedule_reserve(&s->scratch, &s->next, now->length + (int)most))
        return;
    for (int i = 0; i < n; i++) {
        const gckpti_move *m = &s->move[move[i]];
        for (int j = m->first; j < m->first + m->count; j++, k++) {
            const int entry = s->member[j];
            const int node = entry == GCKPTI_REMOVE ? entry : gckpti_entry_node(s->p, entry);
            s->insert[k].key = (uint64_t)m->to << 32 | (uint64_t)node;
            s->insert[k].value = entry;
        }
    }
    gckpti_sort_keys(s->insert, s->insert + most, most);
    s->next.length = 0;
    k = 0;
    for (int x = 0; x < now->length; x++) {
        int stays = 1;
        for (; k < most && (int)(s->insert[k].key >> 32) == x; k++)
            if (s->insert[k].value == GCKPTI_REMOVE)
                stays = 0;
            else if (k == 0 || s->insert[k].key != s->insert[k - 1].key)
                s->next.entry[s->next.length++] = s->insert[k].value;
        if (stays)
            s->next.entry[s->next.length++] = now->entry[x];
    }
    gckpti_evaluate(s, &s->next);
}

/* Returns a schedule's excess over the limit: live bytes above it, summed over positions. */
static int64_t gckpti_excess(const gckpti_schedule *schedule, int64_t limit)
{
    int64_t sum = schedule->peak == INT64_MAX ? INT64_MAX / 2 : 0;
    if (schedule->peak <= limit)
        return 0;
    for (int x = 0; x < schedule->length; x++)
        sum += schedule->live_bytes[x] > limit ? schedule->live_bytes[x] - limit : 0;
    return sum;
}

/* Applies the n moves in s->chosen, or half of them, and so on, until s->next has less excess over
 * the limit or, if there is none, less cost. If a schedule with excess does not improve, tries
 * single moves in order. Returns 0 if nothing helps. */
static int gckpti_apply_moves(gckpti_search *s, int64_t limit, int n, int64_t first)
{
    const int64_t excess = gckpti_excess(&s->now, limit);
    const int singles = excess == 0 ? 0 : s->moves;
    for (int single = 0; (n > 0 || single < singles) && !gckpti_should_stop(s, first, excess);
         n /= 2) {
        if (n == 0)
            s->chosen[0] = s->order[single++].value;
        gckpti_try_moves(s, s->chosen, n > 0 ? n : 1);
        if (s->p->failed)
            return 0;
        const int64_t left = gckpti_excess(&s->next, limit);
        if (left < excess || (left == 0 && s->next.overhead < s->now.overhead)) {
            gckpti_accept_next(s);
            return 1;
        }
    }
    return 0;
}

/* ---- listing moves ---- */
/* Finds the closure of m's node before position m->to, where the scan must be: nodes in s->member
 * from m->first on. An input that is not live is kept live if that adds no excess or if it runs
 * once, else recomputed. Returns its cost. */
static uint64_t gckpti_find_closure(gckpti_search *s, gckpti_move *m)
{
    uint64_t cost = 0;
    const gckpti_planner *p = s->p;
    int h = m->first, end = h;
    s->p->state[m->node].stamp = ++s->stamp;
    s->member[end++] = m->node;
    for (; h < end && end - m->first < GCKPTI_MAX_CLOSURE; h++) {
        const gckpti_node *u = &p->node[s->member[h]];
        cost += u->cost;
        for (int k = u->in; k < u->in + u->inputs; k++) {
            const int q = p->edges[k];
            gckpti_node_state *v = &p->state[q];
            if (v->value_end >= m->to || v->stamp == s->stamp || p->node[q].runs_once)
                continue;
            v->stamp = s->stamp;
            const int dies = v->value_end > v->start ? v->value_end : v->start;
            if (s->excess_count[m->to] > s->excess_count[dies + 1])
                s->member[end++] = q;
        }
    }
    m->count = end - m->first;
    s->incomplete = s->incomplete || h < end;
    return cost;
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

/* Adds the move that closes the hole of `node` before position x, if it lowers the excess: inserts
 * the node's closure, or a copy back if that is cheaper. */
static void gckpti_consider_hole(gckpti_search *s, int node, int x)
{
    const gckpti_node_state *v = &s->p->state[node];
    const int64_t value = v->value_end >= x ? v->out : 0, saved = v->saved_end >= x ? v->saved : 0;
    const int64_t gain = gckpti_excess_gain(s, v->prev_use + 1, x, value) +
                         gckpti_excess_gain(s, v->start + 1, x, saved);
    gckpti_move *m = node == s->excluded || gain <= 0 ? NULL : gckpti_next_move(s, node, x);
    if (!m)
        return;
    m->value = value;
    m->saved = saved;
    m->value_from = v->prev_use;
    m->saved_from = v->start;
    if (!s->p->node[node].runs_once)
        m->key = gckpti_score(gckpti_find_closure(s, m), gain);
    const uint64_t copy = gckpti_copy_cost(s, node, value + saved);
    if (copy < UINT64_MAX && gckpti_score(copy, gain) < m->key) {
        m->key = gckpti_score(copy, gain);
        m->count = 1;
        s->member[m->first] = node + s->p->nodes;
    }
    s->moves += m->count > 0; /* else the node runs once, and slower memory is full */
    s->members += m->count;
}

/* Considers the holes before position x of all results that the entry there reads. */
static void gckpti_consider_holes(gckpti_search *s, int x)
{
    int i = s->now.entry[x], self = i < 0 && s->p->node[~i].reads_saved ? ~i : -1, count;
    const int *edges = gckpti_entry_reads(s->p, i, &count);
    for (int k = 0; k < count; k++) {
        self = edges[k] == self ? -1 : self;
        gckpti_consider_hole(s, edges[k], x);
    }
    if (self >= 0)
        gckpti_consider_hole(s, self, x);
}

/* Adds the move that removes the recompute or copy back at position x, if there is one: the
 * previous definition is used instead, or copied back. A recompute takes along the recomputes that
 * only it reads: they form a tree, so each is counted once. */
static void gckpti_consider_recompute(gckpti_search *s, int x)
{
    int i = s->now.entry[x], count, self = gckpti_entry_node(s->p, i);
    const gckpti_node *u = &s->p->node[self];
    const gckpti_node_state *v = &s->p->state[self];
    const int *edges = gckpti_entry_reads(s->p, i, &count);
    if (i < 0)
        return;
    s->saving[x] = i > self ? gckpti_restore_cost(s, self, x) : v->run_count > 0 ? u->cost : 0;
    for (int k = 0; k < count && v->run_count > 0; k++) {
        const gckpti_node_state *q = &s->p->state[edges[k]];
        if (q->value_end == x && q->prev_use == q->start && q->saved_end < 0)
            s->saving[x] += s->saving[q->start];
    }
    gckpti_move *m = v->run_count > u->must_recompute ? gckpti_next_move(s, self, x) : NULL;
    if (!m)
        return;
    m->key = UINT64_MAX - s->saving[x]; /* largest saving first */
    m->value = s->now.value_end[x] < 0 ? 0 : v->out;
    m->saved = s->now.saved_end[x] < 0 ? 0 : v->saved;
    m->value_from = s->now.value_end[m->start];
    m->saved_from = s->now.saved_end[m->start];
    s->member[s->members++] = GCKPTI_REMOVE;
    if (u->can_copy && i == self && s->saving[x] > gckpti_restore_cost(s, self, x))
        s->member[s->members++] = self + s->p->nodes;
    m->count = s->members - m->first;
    s->moves++;
}

/* Lists the moves of the current schedule in s->move, best first. If it exceeds the limit, moves
 * close holes and lower the excess; otherwise they remove recomputes and copies. */
GCKPTI_FN void gckpti_find_moves(gckpti_search *s, int64_t limit)
{
    const size_t n = (size_t)s->now.length + 1;
    if (!gckpti_reserve(&s->scratch, &s->excess_sum, n, sizeof *s->excess_sum) ||
        !gckpti_reserve(&s->scratch, &s->excess_count, n, sizeof(int)) ||
        !gckpti_reserve(&s->scratch, &s->slack, n, sizeof *s->slack) ||
        !gckpti_reserve(&s->scratch, &s->saving, n, sizeof *s->saving))
        return;
    s->excess_sum[0] = 0;
    s->excess_count[0] = 0;
    for (int x = 0; x < s->now.length; x++) {
        const int64_t slack = s->slack[x] = limit - s->now.live_bytes[x];
        s->excess_sum[x + 1] = s->excess_sum[x] - (slack < 0 ? slack : 0);
        s->excess_count[x + 1] = s->excess_count[x] + (slack < 0);
    }
    s->moves = s->members = 0;
    gckpti_reset_states(s->p);
    for (int x = 0; x < s->now.length && !s->p->failed; gckpti_scan_entry(s, x++))
        if (s->excess_sum[s->now.length] == 0)
            gckpti_consider_recompute(s, x);
        else if (s->excess_count[x] > 0)
            gckpti_consider_holes(s, x);
    gckpti_sort_moves(s);
}

/* ---- choosing moves ---- */
/* Returns the bytes that a move frees, or needs, at position x after m->start and before m->to. */
static int64_t gckpti_move_bytes(const gckpti_move *m, int x)
{
    return (x > m->value_from ? m->value : 0) + (x > m->saved_from ? m->saved : 0);
}

/* Frees the bytes of a move that closes a hole, after the moves chosen so far. Returns by how much
 * that lowers the excess. */
static int64_t gckpti_free_bytes(gckpti_search *s, const gckpti_move *m)
{
    int64_t gain = 0;
    for (int x = (m->saved ? m->saved_from : m->value_from) + 1; x < m->to; x++) {
        if (s->slack[x] >= 0)
            continue;
        const int64_t bytes = gckpti_move_bytes(m, x), excess = -s->slack[x];
        gain += excess < bytes ? excess : bytes;
        s->slack[x] += bytes;
    }
    return gain;
}

/* Returns whether a node that the move computes or reads has the current stamp. If `mark` is
 * nonzero, all get it. */
static int gckpti_stamp_nodes(gckpti_search *s, const gckpti_move *m, int mark)
{
    int stamped = 0, count;
    for (int j = m->first; j < m->first + m->count && (mark || !stamped); j++) {
        const int *edges = gckpti_entry_reads(s->p, s->member[j], &count);
        for (int k = -1; k < count; k++) {
            const int node = k < 0 ? gckpti_entry_node(s->p, s->member[j]) : edges[k];
            stamped = stamped || s->p->state[node].stamp == s->stamp;
            s->p->state[node].stamp = mark ? s->stamp : s->p->state[node].stamp;
        }
    }
    return stamped;
}

/* Chooses holes to close from s->move, in order, with scores within twice the best and without
 * common nodes, until no excess is left. Returns how many. */
static int gckpti_choose_holes(gckpti_search *s)
{
    const uint64_t worst = s->moves > 0 ? s->order[0].key + GCKPTI_DOUBLE_SCORE : 0;
    int64_t left = s->excess_sum[s->now.length];
    int n = 0;
    s->stamp++;
    for (int i = 0; i < s->moves && s->order[i].key <= worst && left > 0; i++) {
        const gckpti_move *m = &s->move[s->order[i].value];
        const int64_t gain = gckpti_stamp_nodes(s, m, 0) ? 0 : gckpti_free_bytes(s, m);
        if (gain == 0)
            continue;
        gckpti_stamp_nodes(s, m, 1);
        left -= gain;
        s->chosen[n++] = s->order[i].value;
    }
    return n;
}

/* Returns whether the previous definition can serve the uses of m's recompute: its bytes must fit
 * between both. If so, takes these bytes. *tight is a position where other bytes did not fit. */
static int gckpti_extend_range(gckpti_search *s, const gckpti_move *m, int *tight)
{
    if (*tight > m->start && *tight < m->to && gckpti_move_bytes(m, *tight) > s->slack[*tight])
        return 0;
    for (int x = m->start + 1; x < m->to; x++)
        if (gckpti_move_bytes(m, x) > s->slack[x]) {
            *tight = x;
            return 0;
        }
    for (int x = m->start + 1; x < m->to; x++)
        s->slack[x] -= gckpti_move_bytes(m, x);
    return 1;
}

/* Chooses, one by one, all recomputes whose previous definitions fit, and the other ones that a
 * copy back replaces. Returns how many. */
static int gckpti_choose_recomputes(gckpti_search *s)
{
    int n = 0, tight = -1;
    for (int i = 0; i < s->moves; i++) {
        gckpti_move *m = &s->move[s->order[i].value];
        if (gckpti_extend_range(s, m, &tight))
            m->count = 1; /* it only removes its recompute */
        else if (m->count == 1)
            continue;
        s->chosen[n++] = s->order[i].value;
    }
    return n;
}

/* Improves the current schedule by moves until none helps or the effort is used up. Returns whether
 * its peak is within the limit. */
GCKPTI_FN int gckpti_search_locally(gckpti_search *s, int64_t limit)
{
    int64_t first = 0, excess;
    int n;
    do {
        gckpti_find_moves(s, limit);
        if (s->p->failed)
            return 0;
        excess = s->excess_sum[s->now.length];
        first = first ? first : excess;
        n = excess > 0 ? gckpti_choose_holes(s) : gckpti_choose_recomputes(s);
    } while (gckpti_apply_moves(s, limit, n, first));
    return s->now.peak <= limit && !s->p->failed;
}

/* Perturbs the current schedule, which is within the limit: removes the recompute with the i-th
 * largest saving, even beyond the limit, and improves the result without dropping its node. */
GCKPTI_FN void gckpti_perturb(gckpti_search *s, int64_t limit, int i)
{
    gckpti_find_moves(s, limit);
    if (i >= s->moves || s->p->failed)
        return;
    i = s->order[i].value;
    s->excluded = s->move[i].node;
    s->move[i].count = 1;
    gckpti_try_moves(s, &i, 1);
    gckpti_accept_next(s);
    gckpti_search_locally(s, limit);
    s->excluded = -1;
}
#endif
