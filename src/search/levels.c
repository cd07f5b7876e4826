#include "search/internal.h"
#include "base/base.h"
#include "num/num.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* Emits a body that runs all nodes as late as they are needed, keeps results that `action` does not
 * mark, and recomputes or reloads marked results just before the first backward that needs them. */
static void gckpti_build_cut(gckpti_planner *p, const unsigned char *action)
{
    int *stack = p->queue, next = p->prologue;
    unsigned char *present = p->computed;
    for (int u = 0; u < p->nodes; u++)
        present[u] = !action[u] || p->needed_by[u] > 0;
    for (int r = 0; r < p->body_backwards; r++) {
        const gckpti_node *u = &p->node[p->backward[r]];
        gckpti_emit_late(p, &next, r);
        for (int k = 0; k < u->reads + u->reads_saved; k++) {
            int depth = 1;
            stack[0] = k < u->reads ? p->edges[u->read + k] : p->backward[r];
            while (depth > 0) {
                const gckpti_node *q = &p->node[stack[depth - 1]];
                int missing = -1, is_reload = action[stack[depth - 1]] == GCKPTI_CUT_OFFLOAD;
                for (int i = q->in; i < q->in + q->inputs && missing < 0 && !is_reload; i++)
                    missing = present[p->edges[i]] ? -1 : p->edges[i];
                if (present[stack[depth - 1]]) {
                    depth--;
                } else if (missing >= 0) {
                    stack[depth++] = missing;
                } else {
                    present[stack[--depth]] = 1;
                    gckpti_emit(p, stack[depth] + (is_reload ? p->nodes : 0));
                }
            }
        }
        gckpti_emit(p, ~p->backward[r]);
    }
    gckpti_emit_late(p, &next, INT32_MAX); /* losses of a graph without backwards */
}

/* If a cut offloads more than the host limit, recomputes or keeps the values cheapest per byte. */
static void gckpti_limit_offload(gckpti_search *s, unsigned char *action)
{
    const gckpti_planner *p = s->p;
    int64_t offloaded = 0;
    size_t n = 0;
    if (!gckpti_reserve(&s->scratch, &s->key, 2 * (size_t)p->nodes, sizeof *s->key))
        return;
    for (int u = 0; u < p->nodes && p->can_offload; u++) {
        int64_t bytes = action[u] == GCKPTI_CUT_OFFLOAD ? p->node[u].out + p->node[u].saved : 0;
        if (!bytes)
            continue;
        offloaded += bytes;
        s->key[n].value = u;
        s->key[n++].key = p->node[u].runs_once ? UINT64_MAX : gckpti_score(p->node[u].cost, bytes);
    }
    if (offloaded <= p->host_limit)
        return;
    gckpti_sort_keys(s->key, s->key + n, n);
    for (size_t k = 0; k < n && offloaded > p->host_limit; k++) {
        const gckpti_node *u = &p->node[s->key[k].value];
        action[s->key[k].value] = u->runs_once ? 0 : GCKPTI_CUT_RECOMPUTE;
        offloaded -= u->out + u->saved;
    }
}

/* Makes the schedule of a cut's actions the current one. Returns its peak; no memory: INT64_MAX. */
GCKPTI_FN int64_t gckpti_try_actions(gckpti_search *s, unsigned char *action)
{
    gckpti_planner *p = s->p;
    gckpti_limit_offload(s, action);
    gckpti_build_cut(p, action);
    return gckpti_take_built(s) ? s->now.peak : INT64_MAX;
}

/* Makes the schedule of a cut the current one. Returns its peak; INT64_MAX if out of memory. */
GCKPTI_FN int64_t gckpti_try_cut(gckpti_search *s, const gckpti_cut_table *table, int cut)
{
    gckpti_mark_cut(s->bound, table, cut);
    return gckpti_try_actions(s, s->bound->action);
}

/* Solves a level from all cuts of the deciding point: takes the first schedule that fits. If it is
 * not near-optimal, reduces the peaks of one (small graphs: three) that keep a little more. */
static void gckpti_solve_full(gckpti_search *s, gckpti_candidate *level,
                              const gckpti_cut_point *point)
{
    const gckpti_cut_table *all = &point->table[GCKPTI_FULL];
    int64_t space = level->limit - point->base;
    const int small = s->p->nodes <= GCKPTI_SMALL_N;
    int cut = gckpti_cut_within(&all->last, space), fits = 0;
    for (int tried = 0; cut >= 0 && tried < 6 && !fits && !s->p->failed; cut--, tried++) {
        fits = gckpti_try_cut(s, all, cut) <= level->limit;
        if (fits)
            gckpti_candidate_update(s, level);
        if ((fits || tried == 0) && !gckpti_is_proven(s, level))
            gckpti_improve(s, level, 0);
    }
    for (int part = small ? 80 : 40; part >= (small ? 20 : 40); part /= 2) {
        if (gckpti_is_proven(s, level))
            return;
        cut = gckpti_cut_within(&all->last, space + level->limit / part);
        if (cut < 0)
            continue;
        gckpti_try_cut(s, all, cut);
        gckpti_improve(s, level, 0);
    }
}

/* Marks in `out` the nodes to recompute: those of the lower cut, except `bytes` of nodes that the
 * upper cut keeps: the last (spacing 0), at distances growing as the root of the bytes freed by
 * backwards (1), or evenly spaced (2). */
static void gckpti_keep_part(gckpti_search *s, int spacing, int64_t total, int64_t bytes,
                             unsigned char *out)
{
    const gckpti_planner *p = s->p;
    int64_t seen = 0, kept = 0;
    int shift = 0;
    while (total >> shift >= 1 << 20)
        shift++;
    memcpy(out, s->lower_cut, (size_t)p->nodes);
    for (int u = p->nodes; u-- > 0;) {
        int64_t size = p->node[u].out + p->node[u].saved, now = (kept + size) >> shift;
        if (!s->lower_cut[u] || s->upper_cut[u])
            continue;
        seen += size;
        int64_t most = bytes >> shift, all = total >> shift, part = seen >> shift;
        if (spacing == 0   ? kept + size > bytes
            : spacing == 1 ? now * now * (all + 1) > most * most * (part + 1)
                           : now * (all + 1) > most * (part + 1))
            continue;
        kept += size;
        out[u] = 0;
    }
}

/* Solves a level from the two cuts around it on a hull: keeps some nodes in which they differ. */
static void gckpti_solve_between(gckpti_search *s, gckpti_candidate *level,
                                 const gckpti_cut_point *point, const gckpti_cut_table *cuts)
{
    const gckpti_cut_list *hull = &cuts->last;
    int64_t space = level->limit - point->base, total = 0;
    const int growing =
        s->p->nodes > GCKPTI_SMALL_N && point->table[GCKPTI_FULL].last.n && !s->p->can_offload;
    int cut = gckpti_cut_within(hull, space);
    if (cut < 0)
        return;
    gckpti_mark_cut(s->bound, cuts, cut);
    memcpy(s->lower_cut, s->bound->action, (size_t)s->p->nodes);
    memset(s->upper_cut, 0, (size_t)s->p->nodes);
    if (cut + 1 < hull->n) {
        gckpti_mark_cut(s->bound, cuts, cut + 1);
        memcpy(s->upper_cut, s->bound->action, (size_t)s->p->nodes);
    }
    for (int u = 0; u < s->p->nodes; u++)
        total += s->lower_cut[u] && !s->upper_cut[u] ? s->p->node[u].out + s->p->node[u].saved : 0;
    for (int spacing = growing; spacing < (growing ? 2 : 3) && !s->p->failed; spacing++) {
        int64_t bytes = space - hull->cut[cut].bytes, excess = 0;
        for (int iteration = 0; iteration < 2 && bytes >= 0; iteration++, bytes -= excess) {
            if (gckpti_is_proven(s, level) || gckpti_is_exhausted(s))
                return;
            gckpti_keep_part(s, spacing, total, bytes < total ? bytes : total, s->bound->action);
            excess = gckpti_try_actions(s, s->bound->action) - level->limit;
            if (excess > level->limit / 4)
                return; /* the peak is too far above the limit */
            gckpti_improve(s, level, 0);
            if (excess <= 0)
                break;
        }
    }
}

/* ---- initial schedules: built once without a limit (search/search) ---- */
enum { GCKPTI_REDUCED = 16 }; /* most initials that get a copy with a reduced peak */

/* Orders initials by peak, then cost. */
static int gckpti_initial_before(const void *first, const void *second, const void *context)
{
    const gckpti_candidate *a = (const gckpti_candidate *)first,
                           *b = (const gckpti_candidate *)second;
    return a->peak != b->peak           ? a->peak < b->peak
           : a->overhead != b->overhead ? a->overhead < b->overhead
                                        : gckpti_candidate_before(a, b, context);
}

/* Adds copies of initials with a peak reduced by 1/1000: a level may improve them much further. */
static void gckpti_reduce_initials(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    uint64_t least = UINT64_MAX;
    for (int i = 0, done = 0, n = s->initials; i < n && done < GCKPTI_REDUCED && !p->failed; i++) {
        const gckpti_candidate *from = &s->initial[i];
        if (from->dense || from->overhead / 8 * 7 >= least || from->overhead < p->least_cost / 4 ||
            from->overhead / 4 > p->least_cost)
            continue;
        least = from->overhead < least ? from->overhead : least;
        done++;
        int64_t limit = from->peak - (from->peak - p->gradient_between[0]) / 1000 - 1;
        gckpti_candidate *reduced = gckpti_reduce_to(s, from, limit)
                                        ? gckpti_candidate_new(s, &s->initial, &s->initials)
                                        : NULL;
        if (reduced)
            gckpti_candidate_store(s, reduced, &s->now);
    }
    gckpti_sort(s->initial, (size_t)s->initials, sizeof *s->initial, gckpti_initial_before, NULL);
}

/* Finds the initials: store-all, store-all with late forwards, uniform segments, user's segments,
 * the chain's, memory-poor. The user's and the chain's need order 0 of backwards. */
GCKPTI_FN void gckpti_find_initials(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    size_t n = (size_t)p->body_count, groups = n + (size_t)p->g->top_segments;
    s->evaluated = s->examined = 0;
    gckpti_build_store_all(p);
    gckpti_add_initial(s, 0);
    int64_t most = s->initial ? s->initial[0].peak - p->gradient_between[0] : 0;
    gckpti_build_late(p, 0);
    gckpti_add_initial(s, 0);
    for (size_t i = 0; i <= groups && !p->failed; i++) {
        int group = i < groups ? gckpti_group_size(p, i) : 0;
        if ((i >= n && p->variant.order) || (i < groups && !group))
            continue;
        gckpti_build_segments(p, group);
        gckpti_add_initial(s, 0);
    }
    for (int kind = 0, fine = 0; kind < GCKPTI_BORDERS && !p->variant.order && !p->failed; kind++) {
        if (kind == GCKPTI_AT_NODES && p->nodes > (fine ? GCKPTI_SMALL_N : GCKPTI_MEDIUM_N))
            break;
        fine = gckpti_add_chain_initials(s, kind, most);
    }
    if (s->p->nodes <= GCKPTI_MEDIUM_N && !p->failed) {
        gckpti_build_late(p, -1);
        gckpti_add_initial(s, 0);
    }
    gckpti_sort(s->initial, (size_t)s->initials, sizeof *s->initial, gckpti_initial_before, NULL);
    gckpti_reduce_initials(s);
}

/* Most nodes to try every move; initials improved so; perturbations; levels in a group. */
enum { GCKPTI_EXACT_N = 32, GCKPTI_EXACT_TRIES = 12, GCKPTI_PERTURBS = 4, GCKPTI_LEVEL_GROUP = 4 };

/* Builds the level grid: limits from store-all's bytes to the proven minimum, for all budgets. */
GCKPTI_FN void gckpti_build_levels(gckpti_search *s, int64_t most)
{
    int64_t resident = s->p->gradient_between[0], least = s->bound->min_bytes;
    int nodes = s->p->nodes, part = nodes <= 300 ? 40 : nodes <= GCKPTI_LARGE_N ? 25 : 12, decider;
    int every = (most - least) / s->grain <= 96, fine = !every && part == 25;
    uint64_t steep_cost = gckpti_hulls_cost(s->bound, least, &decider) / 8 * 7;
    for (int64_t limit = most, next; limit >= least; limit = next) {
        int64_t step = every ? s->grain : (limit - resident) / part, parts = 1;
        const uint64_t cost = gckpti_hulls_cost(s->bound, limit, &decider);
        if (!every && cost > steep_cost)
            step *= nodes <= 300 ? 2 : 3;  /* fewer levels where bounds are weak */
        step = step / s->grain * s->grain; /* live bytes are multiples of it */
        step = step > 0 ? step : s->grain;
        next = limit - least > step ? limit - step : limit > least ? least : least - 1;
        while (fine && next >= least && parts < 8 && /* steep cost, and no table of all cuts */
               gckpti_hulls_cost(s->bound, next, &decider) - cost > (uint64_t)parts * 2 * s->margin)
            parts *= 2;
        step = (limit - next) / parts / s->grain * s->grain;
        for (int k = 0; k < parts && (k == 0 || step > 0); k++) {
            gckpti_candidate *level = gckpti_candidate_new(s, &s->level, &s->levels);
            if (!level)
                return;
            level->limit = limit - k * step;
        }
    }
    for (int k = 0; k < s->levels; k++)
        if (gckpti_hulls_cost(s->bound, s->level[k].limit, &decider) < UINT64_MAX)
            s->decider_bits |= 1u << decider;
}

/* Begins a level: computes its bound, tries schedules from cuts. Returns 0 if the level is done. */
static int gckpti_begin_level(gckpti_search *s, gckpti_candidate *level)
{
    int decider;
    if (level->state != GCKPTI_LEVEL_NEW)
        return level->state == GCKPTI_LEVEL_BEGUN;
    s->evaluated = s->examined = 0;
    level->state = GCKPTI_LEVEL_BEGUN;
    level->bound = gckpti_bound_cost(s->bound, level->limit, &decider);
    if (level->bound < UINT64_MAX && s->bound->points > 0) {
        gckpti_cut_point *point = &s->bound->point[decider];
        gckpti_solve_full(s, level, point);
        for (int c = 0; c < (s->p->can_offload ? GCKPTI_FULL : 1) && !gckpti_is_proven(s, level);
             c++)
            gckpti_solve_between(s, level, point, gckpti_cuts(s->bound, point, c));
    }
    if (level->bound == UINT64_MAX || gckpti_is_proven(s, level))
        level->state = GCKPTI_LEVEL_DONE;
    return level->state == GCKPTI_LEVEL_BEGUN;
}

/* Returns whether level k also improves the schedule of the level above it (larger limit). */
static int gckpti_uses_above(const gckpti_search *s, int k)
{
    return s->tiny ? k > 0 : k % GCKPTI_LEVEL_GROUP != 0;
}

/* Finishes a level: improves initials within or near its limit, and the level above's schedule. */
static void gckpti_finish_level(gckpti_search *s, int k)
{
    gckpti_candidate *level = &s->level[k];
    int exact = s->p->nodes <= GCKPTI_EXACT_N, best = -1, above = 0, tried = 0;
    if (level->state != GCKPTI_LEVEL_BEGUN)
        return;
    if (s->initials == 0)
        gckpti_find_initials(s);
    s->evaluated = s->examined = 0;
    level->state = GCKPTI_LEVEL_DONE;
    for (; above < s->initials && s->initial[above].peak <= level->limit; above++) {
        if (!s->initial[above].dense &&
            (best < 0 || s->initial[above].overhead <= s->initial[best].overhead))
            best = above;
    }
    for (int i = above, most = GCKPTI_EXACT_TRIES; exact && i-- > 0 && most > 0;)
        if (!s->initial[i].dominated && most-- && gckpti_candidate_load(s, &s->initial[i]))
            gckpti_improve(s, level, 1);
    if (best >= 0 && gckpti_candidate_load(s, &s->initial[best])) {
        gckpti_candidate_update(s, level);
        gckpti_improve(s, level, 0);
    }
    if (gckpti_uses_above(s, k) && s->level[k - 1].length == 0)
        return; /* not even the level above has one */
    for (uint64_t least = UINT64_MAX; above < s->initials && tried < 4; above++) {
        const gckpti_candidate *initial = &s->initial[above];
        if (!initial->dense && initial->overhead / 8 * 7 <= least &&
            initial->overhead / 4 <= s->p->least_cost && gckpti_candidate_load(s, initial)) {
            least = initial->overhead < least ? initial->overhead : least;
            gckpti_improve(s, level, 0);
            tried++;
        }
    }
    for (int exactness = 0; exactness <= exact && gckpti_uses_above(s, k); exactness++)
        if (gckpti_candidate_load(s, &s->level[k - 1]))
            gckpti_improve(s, level, exactness);
    if (s->p->nodes <= GCKPTI_SMALL_N)
        gckpti_perturb(s, level, exact ? s->p->nodes : GCKPTI_PERTURBS, exact);
}

/* Solves level k and those it depends on. If none is found, copies the level above's schedule. */
GCKPTI_FN void gckpti_solve_level(gckpti_search *s, int k)
{
    int top = k;
    while (gckpti_begin_level(s, &s->level[top]) && gckpti_uses_above(s, top) && !s->p->failed)
        top--;
    for (; top <= k && !s->p->failed; top++) {
        gckpti_candidate *level = &s->level[top];
        gckpti_finish_level(s, top);
        if (level->length || level->bound == UINT64_MAX || top == 0 || gckpti_uses_above(s, top))
            continue;
        gckpti_solve_level(s, top - 1);
        if (gckpti_candidate_load(s, &s->level[top - 1]))
            gckpti_candidate_update(s, level);
    }
}
#endif
