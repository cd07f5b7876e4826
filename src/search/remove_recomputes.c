#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- removing recomputes; the tree of the bytes left below the limit, by position: each vertex
 * has the minimum of its leaves, relative to its parent; leaf width + 1 + x is position x ---- */
static int64_t gckpti_slack_min(const gckpti_slack_tree *tree, int from, int to)
{
    int64_t left = INT64_MAX / 2, right = left;
    int a = tree->width + from, b = tree->width + to + 2;
    for (; (a ^ b) > 1; a /= 2, b /= 2) {
        left = !(a & 1) && tree->min[a ^ 1] < left ? tree->min[a ^ 1] : left;
        right = b & 1 && tree->min[b ^ 1] < right ? tree->min[b ^ 1] : right;
        left += tree->min[a / 2];
        right += tree->min[b / 2];
    }
    for (left = left < right ? left : right; (a /= 2) > 0;)
        left += tree->min[a];
    return left;
}

/* Restores the minimum of the vertex `parent` after its children changed. */
static void gckpti_slack_update(gckpti_slack_tree *tree, int parent)
{
    int64_t *child = &tree->min[2 * parent], least = child[0] < child[1] ? child[0] : child[1];
    child[0] -= least;
    child[1] -= least;
    tree->min[parent] += least;
}

static void gckpti_slack_add(gckpti_slack_tree *tree, int from, int to, int64_t bytes)
{
    int a = tree->width + from, b = tree->width + to + 2;
    for (; (a ^ b) > 1; a /= 2, b /= 2) {
        tree->min[a ^ 1] += a & 1 ? 0 : bytes;
        tree->min[b ^ 1] += b & 1 ? bytes : 0;
        gckpti_slack_update(tree, a / 2);
        gckpti_slack_update(tree, b / 2);
    }
    while ((a /= 2) > 0)
        gckpti_slack_update(tree, a);
}

static int gckpti_slack_build(gckpti_search *s, int64_t limit)
{
    gckpti_slack_tree *tree = &s->slack;
    for (tree->width = 2; tree->width < s->now.length + 2;)
        tree->width *= 2;
    if (!gckpti_reserve(&s->scratch, &tree->min, 2 * (size_t)tree->width, sizeof *tree->min))
        return 0;
    memset(tree->min, 0, 2 * (size_t)tree->width * sizeof *tree->min);
    for (int x = 0; x < s->now.length; x++)
        tree->min[tree->width + 1 + x] = limit - s->now.live_bytes[x];
    for (int parent = tree->width - 1; parent > 0; parent--)
        gckpti_slack_update(tree, parent);
    return 1;
}

/* Adds (sign 1) or subtracts (-1) the bytes of inputs that only the recompute of m keeps live. */
static void gckpti_slack_add_inputs(gckpti_search *s, const gckpti_move *m, int sign)
{
    for (int k = m->first; k < m->first + m->count; k += 2)
        gckpti_slack_add(&s->slack, s->pool[k + 1], m->to, sign * s->state[s->pool[k]].out);
}

/* Returns whether the previous definition can serve the uses of m's recompute: its bytes must fit
 * between both. If `commit` is nonzero, takes these bytes. */
static int gckpti_extend_range(gckpti_search *s, const gckpti_move *m, int commit)
{
    const gckpti_schedule *now = &s->now;
    int fits = 1, freed = 0;
    int64_t inputs = 0;
    for (int k = m->first; k < m->first + m->count; k += 2)
        inputs += s->state[s->pool[k]].out;
    for (int saved = 0; saved < 2 && fits; saved++) {
        const int *end = saved ? now->saved_end : now->value_end;
        int from = (end[m->start] > m->start ? end[m->start] : m->start) + 1;
        int64_t size = saved ? m->saved : m->value;
        if (end[m->to] < 0 || from >= m->to || size == 0)
            continue;
        int64_t least = gckpti_slack_min(&s->slack, from, m->to - 1);
        if (!freed && least < size && least + inputs >= size) {
            gckpti_slack_add_inputs(s, m, 1);
            freed = 1;
            least = gckpti_slack_min(&s->slack, from, m->to - 1);
        }
        fits = least >= size;
        if (fits && commit)
            gckpti_slack_add(&s->slack, from, m->to - 1, -size);
    }
    if (freed != (fits && commit))
        gckpti_slack_add_inputs(s, m, freed ? -1 : 1);
    s->examined += 16 * (1 + m->count);
    return fits;
}

/* Returns the cost of offloading and reloading the parts of u's definition that are read at x. */
static uint64_t gckpti_reload_cost(const gckpti_search *s, int u, int x)
{
    int parts = gckpti_parts(s->now.value_end[x], s->now.saved_end[x]);
    return gckpti_round_trip_cost(s, gckpti_parts_bytes(&s->p->node[u], parts));
}

/* Records in s->pool the values that only the recompute at m->to keeps live, as pairs: a node, and
 * the position from which its value would be free. */
static void gckpti_record_freed(gckpti_search *s, gckpti_move *m, const int *edges, int count)
{
    m->first = s->pooled;
    if (!gckpti_reserve(&s->scratch, &s->pool, (size_t)s->pooled + 2 * GCKPT_MAX_INPUTS,
                        sizeof(int)))
        return;
    for (int k = 0; k < count; k++) {
        const gckpti_node_state *q = &s->state[edges[k]];
        if (q->value_end != m->to)
            continue;
        s->pool[s->pooled++] = edges[k];
        s->pool[s->pooled++] = q->prev_use + (q->prev_use > q->start || s->saving[q->start] == 0);
    }
    m->count = s->pooled - m->first;
}

/* Lists the recomputes and reloads of the current schedule in s->move, largest saving first;
 * `start` is the previous definition. With a limit, lists only those that fit. A recompute takes
 * along the recomputes that only it reads: they form a tree, so each is counted once. */
static void gckpti_find_recomputes(gckpti_search *s, int64_t limit)
{
    if (!gckpti_begin_scan(s, limit) || !gckpti_slack_build(s, limit) ||
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
        m.start = s->state[self].start;
        m.to = x;
        m.value = s->state[self].out;
        m.saved = s->state[self].saved;
        gckpti_record_freed(s, &m, edges, count);
        if (limit == INT64_MAX || gckpti_extend_range(s, &m, 0))
            gckpti_add_move(s, &m);
    }
    gckpti_sort_moves(s);
}

/* Chooses, one by one, all recomputes whose previous definitions fit. Returns how many. */
static int gckpti_choose_recomputes(gckpti_search *s)
{
    int n = 0;
    for (int m = 0; m < s->moves; m++)
        if (gckpti_extend_range(s, &s->move[m], 1))
            s->chosen[n++] = m;
    return n;
}

/* Turns recomputes into cheaper reloads: all, or the half with the largest savings, and so on. */
static void gckpti_reload_recomputes(gckpti_search *s, int64_t limit)
{
    int n = 0;
    gckpti_find_recomputes(s, INT64_MAX);
    for (int m = 0; m < s->moves && !s->p->failed; m++) {
        int x = s->move[m].to, u = s->move[m].node;
        if (s->now.entry[x] == u && s->p->node[u].can_offload &&
            s->saving[x] > gckpti_reload_cost(s, u, x))
            s->chosen[n++] = m;
    }
    gckpti_apply_moves(s, GCKPTI_MOVE_RELOAD, limit, n);
}

/* Removes recomputes within the limit; if `exact` is 1, one at a time, the best first. */
static void gckpti_remove_recomputes(gckpti_search *s, int64_t limit, int exact)
{
    if (s->p->can_offload && s->now.overhead > 0)
        gckpti_reload_recomputes(s, limit);
    for (int iteration = 0; (exact || iteration < 6) && s->now.overhead > 0; iteration++) {
        gckpti_find_recomputes(s, exact ? INT64_MAX : limit);
        if (s->p->failed || gckpti_is_exhausted(s) ||
            !(exact
                  ? gckpti_apply_best_move(s, GCKPTI_MOVE_REMOVE, limit, 1)
                  : gckpti_apply_moves(s, GCKPTI_MOVE_REMOVE, limit, gckpti_choose_recomputes(s))))
            return;
    }
}

/* Makes a candidate's schedule, reduced to a limit, the current one. Returns 0 if it cannot. */
GCKPTI_FN int gckpti_reduce_to(gckpti_search *s, const gckpti_candidate *candidate, int64_t limit)
{
    s->evaluated = s->examined = 0;
    if (!gckpti_candidate_load(s, candidate) || !gckpti_reduce_peak(s, limit, 0))
        return 0;
    gckpti_remove_recomputes(s, limit, 0);
    gckpti_reapply_policy(s);
    return !s->p->failed;
}

/* Reduces the peak of the current schedule to a candidate's limit unless it is far above, removes
 * recomputes, and stores the schedule in the candidate if it is better. */
GCKPTI_FN void gckpti_improve(gckpti_search *s, gckpti_candidate *candidate, int exact)
{
    if (s->now.peak / 5 * 4 > candidate->limit)
        return;
    s->started = exact ? -1 : s->evaluated + s->examined / 4; /* an attempt: 1/8 of all effort */
    if (gckpti_reduce_peak(s, candidate->limit, exact)) {
        gckpti_remove_recomputes(s, candidate->limit, exact);
        gckpti_candidate_update(s, candidate);
    }
    s->started = -1;
}

/* Perturbs a candidate's schedule to leave a local optimum: removes one recompute, even beyond the
 * limit, and reduces the peak without dropping that node again. Tries the `count` largest savings;
 * starts again after a success. */
GCKPTI_FN void gckpti_perturb(gckpti_search *s, gckpti_candidate *candidate, int count, int exact)
{
    for (int i = 0; i < count && candidate->length && !gckpti_is_exhausted(s); i++) {
        uint64_t before = candidate->overhead;
        if (!gckpti_candidate_load(s, candidate))
            return;
        gckpti_find_recomputes(s, INT64_MAX);
        if (i >= s->moves || s->p->failed)
            return;
        s->excluded = s->move[i].node;
        gckpti_apply_move(s, GCKPTI_MOVE_REMOVE, i);
        int fits = gckpti_reduce_peak(s, candidate->limit, exact);
        s->excluded = -1;
        if (!fits)
            continue;
        gckpti_remove_recomputes(s, candidate->limit, exact);
        gckpti_candidate_update(s, candidate);
        i = candidate->overhead < before ? -1 : i;
    }
}
#endif
