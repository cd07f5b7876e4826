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
                (uint64_t)m->to << 32 | (uint64_t)gckpti_entry_node(s->p, s->pool[j]);
            s->insert[k].value = s->pool[j];
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

/* Sets s->next to s->now with n recomputes removed or made reloads. Returns 0 if out of memory. */
static int gckpti_remove_or_reload(gckpti_search *s, int kind, const int *move, int n)
{
    const gckpti_schedule *now = &s->now;
    if (!gckpti_schedule_reserve(&s->scratch, &s->next, now->length))
        return 0;
    int *out = s->next.entry, length = 0;
    memcpy(out, now->entry, (size_t)now->length * sizeof *out);
    for (int i = 0; i < n; i++) {
        int x = s->move[move[i]].to;
        out[x] = kind == GCKPTI_MOVE_RELOAD ? out[x] + s->p->nodes : INT32_MAX;
    }
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
                                   : gckpti_remove_or_reload(s, kind, move, n))
        gckpti_evaluate(s, &s->next);
}

/* Makes s->next the current schedule. */
GCKPTI_FN void gckpti_accept_next(gckpti_search *s)
{
    gckpti_schedule swap = s->now;
    s->now = s->next;
    s->next = swap;
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

/* Tries moves one at a time, in order, and applies the best. If `exact` is 0, stops after 8 moves
 * that help or 200 tries. Returns 0 if none helps. */
GCKPTI_FN int gckpti_apply_best_move(gckpti_search *s, int kind, int64_t limit, int exact)
{
    const int attempts = exact ? s->moves : 200, most = exact ? s->moves : 8;
    int64_t excess = gckpti_excess(&s->now, limit);
    uint64_t least = UINT64_MAX;
    int best = -1, helped = 0;
    for (int m = 0; m < s->moves && m < attempts && helped < most && !s->p->failed; m++) {
        gckpti_try_moves(s, kind, &m, 1);
        uint64_t rate = gckpti_rate_next(s, limit, excess);
        helped += rate < UINT64_MAX;
        best = rate < least ? m : best;
        least = rate < least ? rate : least;
    }
    if (best < 0 || s->p->failed)
        return 0;
    gckpti_apply_move(s, kind, best);
    return !s->p->failed;
}

/* ---- reducing the peak below a limit by closing live-range holes (search/search) ---- */
enum { GCKPTI_MAX_CLOSURE = 400 }; /* most forwards to close one hole */

/* Returns whether the current schedule may offload `bytes` more bytes, of this node. */
static int gckpti_can_offload(const gckpti_search *s, int node, int64_t bytes)
{
    return s->p->node[node].can_offload && s->now.host_bytes <= s->p->host_limit - bytes;
}

/* How a closure gets an input that is not live. CHEAPEST: keeps it live where that adds no excess,
 * else recomputes it, or reloads it if that is cheaper. RECOMPUTED: never keeps it live.
 * KEPT_INPUTS: always keeps it live. RELOADED: the node itself is reloaded and needs no inputs. */
enum { GCKPTI_CHEAPEST, GCKPTI_RECOMPUTED, GCKPTI_KEPT_INPUTS, GCKPTI_RELOADED, GCKPTI_CLOSURES };

/* Finds the closure of m's node before position m->to, where the scan must be: s->pool[first..],
 * m->cost, m->penalty. Returns bits: 1 if an input is kept live, 2 if one that could be kept is
 * recomputed or reloaded. If 0, all kinds except RELOADED give this closure. */
static int gckpti_find_closure(gckpti_search *s, gckpti_move *m, int first, int kind)
{
    int choice = 0, h = first, end = first, x = m->to;
    m->cost = 0;
    m->penalty = 0;
    if (!gckpti_reserve(&s->scratch, &s->pool,
                        (size_t)first + GCKPTI_MAX_CLOSURE + GCKPT_MAX_INPUTS, sizeof(int)))
        return 0;
    s->state[m->node].stamp = ++s->stamp;
    s->pool[end++] = kind == GCKPTI_RELOADED ? m->node + s->p->nodes : m->node;
    if (kind == GCKPTI_RELOADED)
        m->cost = gckpti_round_trip_cost(s, m->value + m->saved);
    for (h += kind == GCKPTI_RELOADED; h < end && end - first < GCKPTI_MAX_CLOSURE; h++) {
        if (gckpti_is_reload(s->p, s->pool[h])) {
            m->cost += gckpti_round_trip_cost(s, s->p->node[s->pool[h] - s->p->nodes].out);
            continue;
        }
        const gckpti_node *u = &s->p->node[s->pool[h]];
        m->cost += u->cost;
        s->examined += u->inputs;
        for (int k = u->in; k < u->in + u->inputs; k++) {
            int q = s->p->edges[k];
            gckpti_node_state *v = &s->state[q];
            if (v->value_end >= x || v->stamp == s->stamp ||
                (s->p->node[q].runs_once && !gckpti_can_offload(s, q, v->out)))
                continue;
            int reload =
                gckpti_can_offload(s, q, v->out) &&
                (s->p->node[q].runs_once || gckpti_round_trip_cost(s, v->out) < s->p->node[q].cost);
            int from = (v->value_end > v->start ? v->value_end : v->start) + 1;
            int64_t excess = from < x ? s->excess_count[x] - s->excess_count[from] : 0;
            int forced = gckpti_must_recompute(s, q, x - 1);
            int kept = !forced &&
                       (kind == GCKPTI_KEPT_INPUTS || (excess == 0 && kind != GCKPTI_RECOMPUTED));
            v->stamp = s->stamp;
            choice |= kept ? 1 : forced ? 0 : 2;
            if (kept)
                m->penalty += excess * v->out;
            else
                s->pool[end++] = reload ? q + s->p->nodes : q;
        }
    }
    m->first = first;
    m->count = end - first;
    m->truncated = h < end;
    return choice;
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

/* Which holes are found. all_kinds: with each useful kind of closure (if 0, only the best kind).
 * any_score: with any score (if 0, only scores within twice the best, that is, up to `worst`). */
typedef struct {
    int any_score, all_kinds;
    uint64_t worst;
} gckpti_hole_filter;

/* Adds the move that closes the hole of `node` before position x, if it lowers the excess. */
static void gckpti_consider_hole(gckpti_search *s, int node, int x, gckpti_hole_filter *filter)
{
    const gckpti_node_state *v = &s->state[node];
    const int all_kinds = filter->all_kinds, fixed = s->p->node[node].runs_once;
    gckpti_move best, m;
    int reload, choice = 3;
    if ((fixed && !s->p->node[node].can_offload) || node == s->excluded)
        return;
    memset(&m, 0, sizeof m);
    m.node = node;
    m.start = v->start;
    m.from = v->prev_use;
    m.to = x;
    m.value = v->value_end >= x ? v->out : 0;
    m.saved = v->saved_end >= x ? v->saved : 0;
    int64_t gain = gckpti_excess_gain(s, v->prev_use + 1, x, m.value) +
                   gckpti_excess_gain(s, v->start + 1, x, m.saved);
    reload = gckpti_can_offload(s, node, m.value + m.saved);
    if (gain <= 0 || (!reload && gckpti_score(s->p->node[node].cost, gain) > filter->worst))
        return;
    best.key = UINT64_MAX;
    for (int kind = fixed ? GCKPTI_RELOADED : 0; kind < GCKPTI_CLOSURES && !s->p->failed; kind++) {
        /* skips kinds that cannot give another or a better closure than an earlier kind */
        if (kind == GCKPTI_RELOADED
                ? !reload
                : !(choice & (all_kinds ? 3 : 2)) || (kind == GCKPTI_RECOMPUTED && !all_kinds))
            continue;
        choice = gckpti_find_closure(s, &m, s->pooled, kind);
        m.key = gain > m.penalty ? gckpti_score(m.cost, gain - m.penalty) : UINT64_MAX;
        if (m.key >= best.key && !(all_kinds && m.key < UINT64_MAX))
            continue;
        best = m;
        s->pooled += m.count;
        if (all_kinds)
            gckpti_add_move(s, &m);
    }
    if (all_kinds || best.key == UINT64_MAX || best.key > filter->worst)
        return; /* e.g. for a node that runs once, if the host is full */
    if (!filter->any_score && best.key < filter->worst - GCKPTI_DOUBLE_SCORE)
        filter->worst = best.key + GCKPTI_DOUBLE_SCORE;
    gckpti_add_move(s, &best);
}

/* Lists in s->move the holes whose closing lowers the excess, best first (gckpti_hole_filter). */
GCKPTI_FN void gckpti_find_holes(gckpti_search *s, int64_t limit, int any_score, int all_kinds)
{
    gckpti_hole_filter filter = { any_score, all_kinds, UINT64_MAX };
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
                gckpti_consider_hole(s, edges[k], x, &filter);
        }
        if (self >= 0 && s->excess_count[x] > 0)
            gckpti_consider_hole(s, self, x, &filter);
        gckpti_scan_entry(s, x);
    }
    gckpti_sort_moves(s);
}

/* Returns how much of the excess left by earlier moves `size` fewer bytes remove, by chunks, at
 * number a to b - 1 of the positions above the limit. If `commit` is nonzero, removes it. */
static int64_t gckpti_leftover_gain(gckpti_search *s, int a, int b, int64_t size, int commit)
{
    gckpti_leftover *left = &s->left;
    int64_t gain = 0;
    for (int end; a < b; a = end) {
        int c = a >> left->shift;
        int64_t sum = left->chunk[c], most;
        end = (c + 1) << left->shift;
        end = end < b ? end : b;
        most = size * (end - a);
        if (end - a < 1 << left->shift) /* part of a chunk */
            sum = sum * (end - a) >> left->shift;
        sum = sum < most ? sum : most;
        gain += sum;
        left->chunk[c] -= commit ? sum : 0;
        s->examined++;
    }
    left->total -= commit ? gain : 0;
    return gain;
}

/* Returns how much excess left by earlier moves m removes. If `commit` is nonzero, removes it. */
static int64_t gckpti_relief_of_move(gckpti_search *s, const gckpti_move *m, int commit)
{
    const int *count = s->excess_count;
    int from = m->from + 1 < m->to ? m->from + 1 : m->to;
    return (m->saved ? gckpti_leftover_gain(s, count[m->start + 1], count[from], m->saved, commit)
                     : 0) +
           gckpti_leftover_gain(s, count[from], count[m->to], m->value + m->saved, commit);
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

/* Divides the positions above the limit into chunks and sums the excess of each. */
static int gckpti_sum_chunks(gckpti_search *s)
{
    gckpti_leftover *left = &s->left;
    int above = s->excess_count[s->now.length];
    for (left->shift = 0; above >> left->shift > 512;)
        left->shift++;
    size_t chunks = (size_t)(above >> left->shift) + 1;
    if (!gckpti_reserve(&s->scratch, &left->chunk, chunks, sizeof *left->chunk))
        return 0;
    memset(left->chunk, 0, chunks * sizeof *left->chunk);
    for (int x = 0; x < s->now.length; x++)
        left->chunk[s->excess_count[x] >> left->shift] += s->excess_sum[x + 1] - s->excess_sum[x];
    left->total = s->excess_sum[s->now.length];
    return 1;
}

/* Chooses holes to close from s->move, in order, with scores within twice the best and without
 * common nodes, until no excess is left. Returns how many. */
static int gckpti_choose_holes(gckpti_search *s)
{
    int n = 0;
    if (s->moves == 0 || !gckpti_sum_chunks(s))
        return 0;
    uint64_t worst = s->move[0].key + GCKPTI_DOUBLE_SCORE;
    for (int u = 0; u < s->p->nodes; u++)
        s->state[u].touched = 0;
    for (int i = 0; i < s->moves && s->move[i].key <= worst && s->left.total > 0; i++) {
        const gckpti_move *m = &s->move[i];
        int conflict = s->state[m->node].touched;
        for (int j = m->first; j < m->first + m->count && !conflict; j++)
            conflict = gckpti_touch_nodes(s, s->pool[j], 0);
        int64_t gain = conflict ? 0 : gckpti_relief_of_move(s, m, 0);
        if (gain <= m->penalty || gckpti_score(m->cost, gain - m->penalty) > worst)
            continue;
        for (int j = m->first; j < m->first + m->count; j++)
            gckpti_touch_nodes(s, s->pool[j], 1);
        gckpti_relief_of_move(s, m, 1);
        s->chosen[n++] = i;
    }
    return n;
}

/* Reduces the peak of the current schedule to the limit. Returns 0 if it cannot in its effort. */
GCKPTI_FN int gckpti_reduce_peak(gckpti_search *s, int64_t limit, int exact)
{
    int64_t first = 0;
    for (int iteration = 0; s->now.peak > limit && !s->p->failed; iteration++) {
        s->incomplete = s->incomplete || iteration > 300;
        if (iteration > 300 || gckpti_is_exhausted(s))
            return 0;
        gckpti_find_holes(s, limit, exact, exact);
        if (s->p->failed)
            return 0;
        const int64_t excess = s->excess_sum[s->now.length];
        first = iteration ? first : excess;
        if (gckpti_should_stop(s, first, excess))
            return 0;
        if (!exact && gckpti_apply_moves(s, GCKPTI_MOVE_INSERT, limit, gckpti_choose_holes(s)))
            continue;
        if (!exact)
            gckpti_find_holes(s, limit, 1, 0);
        if (!gckpti_apply_best_move(s, GCKPTI_MOVE_INSERT, limit, exact))
            return 0;
    }
    return !s->p->failed;
}
#endif
