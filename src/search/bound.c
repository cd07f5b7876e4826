#include "search/search.h"
#include "base/base.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * cuts: lower bounds of the cost and the bytes of any schedule, from minimal cuts
 *
 * Take any schedule whose live bytes never exceed M, and a point: some backward. Let r(u) be 1 if
 * node u runs again after the point, else 0. Whatever a later backward, a fetch or a later run
 * reads is in the arena at the point or the result of such a run. Let n(u) be 1 if a backward from
 * the point on, or a run of some j with r(j) = 1, reads the value of u. Then all values with
 * n(u) (1 - r(u)) = 1 and what nodes with r(u) = 0 saved are in the arena, next to the gradients
 * and the workspace of that backward, which every schedule has. The value that a backward
 * reads is in the arena whatever r is. Each u that has certainly run before costs its forward
 * again. Hence no schedule within M recomputes at less cost than, for any point,
 *     min sum cost(u) r(u) where sum (out(u) n(u) + saved(u)) (1 - r(u)) <= M - gradients.
 * This is a cut (project selection, Picard 1976) with a knapsack. A dynamic programme over the
 * nodes from last to first solves it for all M at once. Its states are the sets of values that only
 * recomputation would read (beyond GCKPTI_MAX_OPEN at a time they are free). Each state has a list
 * of cuts: (bytes, cost) pairs, the corners of a lower convex hull. As pairs are only shifted and
 * united, the hull of the last list follows from the earlier hulls: the solutions for all Lagrange
 * multipliers of a byte at once (Gallo, Grigoriadis and Tarjan 1989). Lines between corners of the
 * hull are a bound as well. In a small graph with slower memory, lists instead keep all pairs of
 * which none dominates another (Nemhauser and Ullmann 1969).
 *
 * Points are the backwards at which more bytes are live in every schedule than at any earlier one,
 * a selection if there are many. Bounds hold for the model's order of backwards and lowerings. Of
 * two values that share bytes (in place) only one is read later. The bound is optimistic, never
 * wrong, about gckpt_recompute, values of the prologue that stay live, updates in the backward, and
 * nodes that may first run after the point (free).
 *
 * The least bytes of any schedule are the maximum over: all points, with the closure that keeps
 * least; all backwards; all forwards with their inputs and their result in the arena.
 * ============================================================================================== */
/* Limits of values with bits, and of cuts after a node (four times as many with slower memory). */
enum { GCKPTI_MAX_OPEN = 6, GCKPTI_MAX_HULL = 1024 };

/* Sets the flags of the nodes at a point. */
static void gckpti_flag_nodes(const gckpti_planner *p, gckpti_cut_point *point)
{
    for (int i = 0; i < p->nodes; i++) {
        const gckpti_node *u = &p->node[i];
        const int r = u->backward_index, at = point->backward_index;
        unsigned char *flags = &point->node[i].flags;
        *flags |= (u->fetched ? GCKPTI_READ : 0) | (i < p->prologue ? GCKPTI_RAN : 0);
        if (r < 0)
            continue;
        const int now = r == at, later = r >= at, ran = r <= at ? GCKPTI_RAN : 0;
        const int value = ran | (later ? GCKPTI_READ : 0) | (now ? GCKPTI_LIVE : 0);
        const int saved = ran | (later ? GCKPTI_READ_SAVED : 0) | (now ? GCKPTI_LIVE_SAVED : 0);
        *flags |= (unsigned char)(u->reads_saved ? saved : 0);
        for (int k = u->read; k < u->read + u->reads; k++)
            point->node[p->edges[k]].flags |= (unsigned char)value;
    }
    for (int i = p->nodes; i-- > 0;) {
        const gckpti_node *u = &p->node[i];
        unsigned char *flags = &point->node[i].flags;
        for (int k = u->in; k < u->in + u->inputs && *flags & GCKPTI_RAN; k++)
            point->node[p->edges[k]].flags |= GCKPTI_RAN;
        *flags |= u->runs_once && *flags & GCKPTI_RAN ? GCKPTI_RUNS_ONCE : 0;
    }
}

/* Assigns bits to values that only recomputes read. Without a bit a value counts as free. */
static void gckpti_assign_bits(const gckpti_planner *p, gckpti_cut_point *point)
{
    unsigned taken = 0;
    for (int i = p->nodes; i-- > 0;) {
        const gckpti_node *u = &p->node[i];
        gckpti_cut_node *c = &point->node[i];
        for (int k = u->in; k < u->in + u->inputs && !(c->flags & GCKPTI_RUNS_ONCE); k++) {
            gckpti_cut_node *q = &point->node[p->edges[k]];
            unsigned bit = ~taken & (taken + 1);
            if (q->flags & GCKPTI_READ || (!q->own_bit && bit >> GCKPTI_MAX_OPEN))
                continue;
            q->own_bit = q->own_bit ? q->own_bit : (unsigned char)bit;
            taken |= q->own_bit;
            c->input_bits |= q->own_bit;
        }
        taken &= ~(unsigned)c->own_bit;
    }
}

/* Appends cut q, which has more bytes, to v if it costs less than all cuts there. Unless `all`,
 * removes cuts that are no corners of the hull, or by 1 in 10^15 only (rounding). Returns the new
 * length. */
static int gckpti_append_cut(gckpti_cut *v, int n, const gckpti_cut *q, int all)
{
    if (n > 0 && q->cost >= v[n - 1].cost)
        return n;
    while (!all && n > 1 &&
           (double)(v[n - 2].cost - v[n - 1].cost) * (double)(q->bytes - v[n - 1].bytes) <=
               (double)(v[n - 1].cost - q->cost) * (double)(v[n - 1].bytes - v[n - 2].bytes) *
                   (1 + 1e-15))
        n--;
    v[n] = *q;
    return n + 1;
}

/* Merges into `to` the cuts of `more` (numbered from `first`) plus a node's bytes and cost. */
static void gckpti_merge_cuts(gckpti_bound *b, gckpti_cut_list *to, const gckpti_cut_list *more,
                              int64_t bytes, uint64_t cost, uint32_t first)
{
    gckpti_cut *out = b->memory[2], *old = to->cut, *end = old + to->n;
    int n = 0;
    for (int k = 0; k < more->n; k++) {
        gckpti_cut q = { more->cut[k].bytes + bytes, more->cut[k].cost + cost,
                         first + (uint32_t)k };
        while (old < end && (old->bytes < q.bytes || (old->bytes == q.bytes && old->cost < q.cost)))
            n = gckpti_append_cut(out, n, old++, b->all);
        n = gckpti_append_cut(out, n, &q, b->all);
    }
    while (old < end)
        n = gckpti_append_cut(out, n, old++, b->all);
    to->n = n;
    memcpy(to->cut, out, (size_t)n * sizeof *out);
}

/* The lists of cuts before or after a node, indexed by state: a subset of the bits `open`. */
typedef struct {
    gckpti_cut_list list[1 << GCKPTI_MAX_OPEN];
    unsigned open;
} gckpti_cut_states;

/* Merges into `to`, the list of state y after node i, the lists of all states before i that i can
 * turn into y. Then i's own value is not needed any more, and i's inputs are if i runs again. */
static void gckpti_extend_cuts(gckpti_bound *b, const gckpti_cut_point *point, int i,
                               const gckpti_cut_states *front, unsigned y, gckpti_cut_list *to)
{
    const gckpti_node *u = &b->p->node[i];
    const gckpti_cut_node *c = &point->node[i];
    const unsigned own_bit = c->own_bit, some = (c->input_bits | own_bit) & front->open;
    const int64_t saved = c->flags & GCKPTI_READ_SAVED ? u->saved : 0;
    const int64_t live =
        (c->flags & GCKPTI_LIVE ? u->out : 0) + (c->flags & GCKPTI_LIVE_SAVED ? saved : 0);
    uint64_t cost = c->flags & GCKPTI_RAN ? u->cost : 0;
    unsigned part = 0;
    do {
        const unsigned x = (y & front->open & ~some) | part;
        const int needed = c->flags & GCKPTI_READ || x & own_bit;
        const int64_t bytes = (needed ? u->out : 0) + saved;
        const gckpti_cut_list *from = &front->list[x];
        const uint32_t first = (uint32_t)(from->cut - front->list[0].cut);
        if ((x & ~own_bit) == y)
            gckpti_merge_cuts(b, to, from, bytes, 0, first);
        if (u->can_copy && (x & ~own_bit) == y) {
            /* A third choice: a result that is copied back after the point takes no bytes there,
             * and costs both copies. Host memory is not limited, which lowers bounds. */
            const int parts = gckpti_parts(needed && u->out && !(c->flags & GCKPTI_LIVE) ? 0 : -1,
                                           saved && !(c->flags & GCKPTI_LIVE_SAVED) ? 0 : -1);
            for (int q = parts; q > 0; q = (q - 1) & parts) {
                const uint64_t both_ways = 2 * gckpti_parts_cost(b->p, i, q);
                gckpti_merge_cuts(b, to, from, bytes - gckpti_parts_bytes(u, q),
                                  gckpti_scaled_cost(b->copy_cost, both_ways) >> b->shift,
                                  first | UINT32_C(1) << 30);
            }
        }
        if (((x | c->input_bits) & ~own_bit) == y && bytes > 0 && !(c->flags & GCKPTI_RUNS_ONCE))
            gckpti_merge_cuts(b, to, from, live, cost, first | UINT32_C(1) << 31);
        part = (part - some) & some;
    } while (part);
}

/* Computes the cuts of a point. The table stays empty if there are too many. */
static void gckpti_find_cuts(gckpti_bound *b, const gckpti_cut_point *point,
                             gckpti_cut_table *table)
{
    gckpti_cut_states states[2], *front = &states[0], *next = &states[1];
    size_t used = 0, n = 1, branches = b->p->can_copy ? 5 : 2;
    table->first = (size_t *)gckpti_scratch_alloc(b->scratch, (size_t)b->p->nodes, sizeof(size_t));
    front->open = 0;
    front->list[0].cut = b->memory[0];
    front->list[0].n = 1;
    memset(b->memory[0], 0, sizeof **b->memory);
    for (int i = b->p->nodes; i-- > 0 && !b->p->failed;) {
        const gckpti_cut_node *c = &point->node[i];
        const unsigned open_bits = (front->open | c->input_bits) & ~(unsigned)c->own_bit;
        unsigned y = 0;
        gckpti_cut *cut = front->list[0].cut == b->memory[0] ? b->memory[1] : b->memory[0];
        if (branches * n > b->capacity ||
            !gckpti_reserve(b->scratch, &table->parent, used + branches * n, sizeof(uint32_t)))
            return;
        n = 0;
        do { /* lists are contiguous, so cuts have one numbering */
            next->list[y].cut = cut + n;
            next->list[y].n = 0;
            gckpti_extend_cuts(b, point, i, front, y, &next->list[y]);
            n += (size_t)next->list[y].n;
            y = (y - open_bits) & open_bits;
        } while (y);
        table->first[i] = used;
        for (size_t k = 0; k < n; k++)
            table->parent[used++] = cut[k].parent;
        gckpti_cut_states *swap = front;
        front = next, next = swap;
        front->open = open_bits;
    }
    table->last.cut =
        (gckpti_cut *)gckpti_scratch_copy(b->scratch, front->list[0].cut, n, sizeof **b->memory);
    table->last.n = b->p->failed ? 0 : (int)n;
    table->last.all = b->all;
}

/* Returns a table of a point, computed on demand. With cheaper copies, cuts copy more: useful,
 * since a cut counts a recompute once, which is not enough if a value is recomputed repeatedly. */
GCKPTI_FN const gckpti_cut_table *gckpti_cuts(gckpti_bound *b, gckpti_cut_point *point, int which)
{
    gckpti_cut_table *table = &point->table[which];
    if (b->p->can_copy)
        b->shift = which < GCKPTI_TABLES - 1 ? which : 63;
    if (!table->first)
        gckpti_find_cuts(b, point, table);
    if (table->last.n == 0 && b->all) { /* too many */
        b->all = 0;
        gckpti_find_cuts(b, point, table);
    }
    return table;
}

/* Returns the index of the last cut that keeps at most `space` bytes, or -1 if none does. */
GCKPTI_FN int gckpti_cut_within(const gckpti_cut_list *v, int64_t space)
{
    int low = -1, high = v->n - 1;
    while (low < high) {
        int middle = high - (high - low) / 2;
        if (v->cut[middle].bytes <= space)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Sets action[u] to a cut's action on each node u (GCKPTI_CUT_..). */
GCKPTI_FN void gckpti_mark_cut(const gckpti_bound *b, const gckpti_cut_table *table, int cut,
                               unsigned char *action)
{
    uint32_t k = (uint32_t)cut;
    for (int i = 0; i < b->p->nodes; i++) {
        uint32_t from = table->parent[table->first[i] + k];
        action[i] = from >> 31 ? GCKPTI_CUT_RECOMPUTE : from >> 30 ? GCKPTI_CUT_COPY : 0;
        k = from & 0x3fffffff;
    }
}

/* Returns the least cost on a point's hull within `space` bytes, rounded down a little. */
GCKPTI_FN uint64_t gckpti_hull_cost(const gckpti_cut_list *hull, int64_t space)
{
    const int i = gckpti_cut_within(hull, space);
    if (hull->n == 0)
        return 0; /* the hull had too many corners */
    if (i < 0 || i == hull->n - 1 || hull->all)
        return i < 0 ? UINT64_MAX : hull->cut[i].cost;
    const gckpti_cut *a = &hull->cut[i], *z = a + 1;
    const double part = (double)(space - a->bytes) / (double)(z->bytes - a->bytes);
    const uint64_t off = (uint64_t)((double)(a->cost - z->cost) * part * (1 + 1e-15)) + 1;
    return off < a->cost - z->cost ? a->cost - off : z->cost;
}

GCKPTI_FN uint64_t gckpti_bound_cost(const gckpti_bound *b, int64_t limit, int *decider)
{
    uint64_t most = 0;
    *decider = 0;
    if (limit < b->min_bytes)
        return UINT64_MAX;
    for (int k = 0; k < b->points; k++) {
        const gckpti_cut_point *point = &b->point[k];
        uint64_t cost = gckpti_hull_cost(&point->table[GCKPTI_HULL].last, limit - point->base);
        *decider = cost >= most ? k : *decider;
        most = cost >= most ? cost : most;
    }
    return most;
}

/* Returns bytes that are live in every schedule while an entry runs. For a forward, read[u] is
 * nonzero if the value of u is ever read; backwards ignore `read`. */
static int64_t gckpti_min_live(const gckpti_planner *p, int entry, const unsigned char *read)
{
    const gckpti_node *u = &p->node[entry < 0 ? ~entry : entry];
    int count;
    const int *edges = gckpti_entry_reads(p, entry, &count);
    int64_t bytes = u->reads_saved ? u->saved : 0;
    if (entry >= 0 && !u->in_place && read[entry] && u->out > bytes)
        bytes = u->out; /* one definition's value and another's `saved` may live */
    bytes += entry < 0 ? p->gradient_at[u->backward_index] : p->gradient_between[0] + u->workspace;
    while (count-- > 0)
        bytes += p->node[edges[count]].out;
    return bytes;
}

/* Computes min_bytes from single entries (not yet from points), and padding. */
static void gckpti_sum_bounds(gckpti_bound *b)
{
    const gckpti_planner *p = b->p;
    unsigned char *read = (unsigned char *)gckpti_scratch_alloc(b->scratch, (size_t)p->nodes, 1);
    size_t sizes = p->alignment; /* the OR of all sizes: its lowest set bit is theirs */
    for (int i = 0; i < p->edge_count && read; i++)
        read[p->edges[i]] = 1;
    for (int i = 0; i < p->gradients; i++)
        sizes |= p->gradient[i].size;
    for (int i = 0; i < p->nodes && read; i++) {
        const gckpti_node *u = &p->node[i];
        const gckpt_tensor *t = p->tensors[u->id];
        read[i] |= u->fetched;
        sizes |= (u->out ? gckpti_value_bytes(p, t) : 0) | (u->reads_saved ? t->saved_bytes : 0) |
                 p->workspace_forward[u->id];
        for (int k = 0; k < 1 + (u->backward_index >= 0); k++) {
            int64_t bytes = gckpti_min_live(p, k ? ~i : i, read);
            b->min_bytes = bytes > b->min_bytes ? bytes : b->min_bytes;
        }
        sizes |= u->backward_index >= 0 ? p->workspace_backward[u->id] : 0;
    }
    b->padding = (int64_t)(p->alignment - (sizes & (~sizes + 1)));
}

/* Initialises bound number k of a model (p->bound). */
GCKPTI_FN void gckpti_bound_open(gckpti_bound *b, const gckpti_planner *p, int k,
                                 gckpti_scratch *scratch)
{
    size_t n = (size_t)p->nodes;
    int64_t most = -1;
    memset(b, 0, sizeof *b);
    b->p = p;
    if (p->can_copy)
        b->copy_cost = GCKPTI_FULL_COPY_COST - k;
    b->scratch = scratch;
    b->all = p->can_copy && n <= GCKPTI_SMALL_N;
    b->capacity = (n < 30 ? 64 + 32 * n : (size_t)GCKPTI_MAX_HULL) * (p->can_copy ? 4 : 1);
    for (k = 0; k < 3; k++)
        b->memory[k] = (gckpti_cut *)gckpti_scratch_alloc(scratch, b->capacity, sizeof **b->memory);
    if (p->failed)
        return;
    gckpti_sum_bounds(b);
    int *record = (int *)gckpti_scratch_alloc(scratch, (size_t)p->body_backwards, sizeof(int));
    int count = 0;
    for (int r = 0; r < p->body_backwards && record; r++) {
        int64_t live = gckpti_min_live(p, ~p->backward[r], NULL);
        if (live > most)
            record[count++] = r;
        most = live > most ? live : most;
    }
    b->points = count < GCKPTI_POINTS ? count : GCKPTI_POINTS;
    for (k = 0; k < b->points; k++) { /* evenly spaced ones, from the first to the last */
        gckpti_cut_point *point = &b->point[k];
        const int intervals = b->points > 1 ? b->points - 1 : 1;
        point->backward_index = record[(int64_t)k * (count - 1) / intervals];
        point->base = p->gradient_at[point->backward_index];
        point->node = (gckpti_cut_node *)gckpti_scratch_alloc(scratch, n, sizeof *point->node);
        if (!point->node)
            return;
        gckpti_flag_nodes(p, point);
        gckpti_assign_bits(p, point);
        const gckpti_cut_list *hull = &gckpti_cuts(b, point, GCKPTI_HULL)->last;
        if (hull->n && point->base + hull->cut[0].bytes > b->min_bytes)
            b->min_bytes = point->base + hull->cut[0].bytes;
    }
}

/* ---- lower bounds for a model ---- */
GCKPTI_FN void gckpti_open_bounds(gckpti_planner *p)
{
    for (; p; p = p->next) {
        int n = 1;
        if (p->bound)
            continue;
        if (p->overlap)
            n = GCKPTI_COPY_COSTS;
        p->bound = (gckpti_bound *)gckpti_scratch_alloc(&p->scratch, (size_t)n, sizeof *p->bound);
        for (int k = 0; k < n && p->bound; k++)
            gckpti_bound_open(&p->bound[k], p, k, &p->scratch);
    }
}

GCKPTI_FN uint64_t gckpti_bound_time(const gckpti_planner *p, int64_t limit)
{
    int decider;
    uint64_t most = gckpti_bound_cost(p->bound, limit, &decider);
    if (p->overlap && most < UINT64_MAX) {
        /* A schedule that computes for C and copies for M, both at once, takes at least max(C, M),
         * hence at least ((8 - a) C + a M) / 8 for each a. That is (8 - a) / 8 of C + M a / (8 -
         * a), which cuts bound with that copy cost. (It is rounded down per node, which only
         * lowers the bound.) a is 0 to 4, since M rarely exceeds C. */
        most = 0;
        for (int k = 0; k < GCKPTI_COPY_COSTS; k++) {
            const gckpti_bound *b = &p->bound[GCKPTI_FULL_COPY_COST - k];
            uint64_t cost = gckpti_bound_cost(b, limit, &decider);
            if (cost == UINT64_MAX)
                return cost;
            cost = gckpti_add_cost(cost, p->base_cost);
            cost -= cost / 8 * (uint64_t)k + cost % 8 * (uint64_t)k / 8; /* x (8 - k) / 8, up */
            cost = cost > p->base_cost ? cost - p->base_cost : 0;
            most = cost > most ? cost : most;
        }
    }
    return most;
}

GCKPTI_FN uint64_t gckpti_proven_cost(const gckpti_planner *p, size_t arena)
{
    const gckpti_bound *b = p->bound; /* at full copy cost */
    int64_t limit = b->padding + (int64_t)(arena < PTRDIFF_MAX / 2 ? arena : PTRDIFF_MAX / 2);
    return gckpti_add_cost(gckpti_bound_time(p, limit), p->base_cost);
}

GCKPTI_FN size_t gckpti_proven_bytes(const gckpti_planner *p)
{
    const gckpti_bound *b = p->bound; /* at full copy cost */
    int64_t least = b->min_bytes - b->padding;
    return least < 0 ? 0 : (uint64_t)least < PTRDIFF_MAX ? (size_t)least : (size_t)PTRDIFF_MAX;
}
#endif
