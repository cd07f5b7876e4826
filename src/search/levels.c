#include "search/internal.h"
#include "base/base.h"
#include "num/num.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- cuts as schedules, and a rung's schedule by cuts ---- */
/* Writes the body that computes all, as late as it is needed, keeps through the turn what `again`
 * does not mark, and computes or reloads the rest just before the first backward that needs it. */
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
    gckpti_emit_late(p, &next, INT32_MAX); /* losses, where nothing has a backward */
}

/* Where a cut offloads more than slower memory holds, those that cost least to compute again, by
 * byte, are computed again (or kept, if they may not be). */
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

/* Makes the present schedule of what a cut marks. Returns its peak; INT64_MAX: out of memory. */
GCKPTI_FN int64_t gckpti_try_actions(gckpti_search *s, unsigned char *action)
{
    gckpti_planner *p = s->p;
    gckpti_limit_offload(s, action);
    gckpti_build_cut(p, action);
    return gckpti_take_built(s) ? s->now.peak : INT64_MAX;
}

/* The present schedule is that of a cut. Returns its peak. */
GCKPTI_FN int64_t gckpti_try_cut(gckpti_search *s, const gckpti_cut_table *table, int cut)
{
    gckpti_mark_cut(s->bound, table, cut);
    return gckpti_try_actions(s, s->bound->action);
}

/* An answer's schedule from all cuts of the instant that decides: the first that fits; else, or
 * when it is not good enough, one that keeps a little more (three for a small graph), squeezed. */
static void gckpti_solve_full(gckpti_search *s, gckpti_candidate *candidate,
                              const gckpti_cut_point *point)
{
    const gckpti_cut_table *all = &point->table[GCKPTI_FULL];
    int64_t space = candidate->limit - point->base;
    const int small = s->p->nodes <= GCKPTI_SMALL_N;
    int cut = gckpti_cut_within(&all->last, space), fits = 0;
    for (int tried = 0; cut >= 0 && tried < 6 && !fits && !s->p->failed; cut--, tried++) {
        fits = gckpti_try_cut(s, all, cut) <= candidate->limit;
        if (fits)
            gckpti_candidate_update(s, candidate);
        if ((fits || tried == 0) && !gckpti_is_proven(s, candidate))
            gckpti_improve(s, candidate, 0);
    }
    for (int part = small ? 80 : 40; part >= (small ? 20 : 40); part /= 2) {
        if (gckpti_is_proven(s, candidate))
            return;
        cut = gckpti_cut_within(&all->last, space + candidate->limit / part);
        if (cut < 0)
            continue;
        gckpti_try_cut(s, all, cut);
        gckpti_improve(s, candidate, 0);
    }
}

/* Marks in `out` what is computed again when of the ties between two cuts of a hull, from the last
 * unit to the first, `bytes` are kept: as late as possible (way 0), with gaps that grow with the
 * root of what the backwards have freed (1), or evenly (2). */
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

/* An answer's schedule from the two cuts of a hull around its limit: what one keeps and the other
 * does not may be kept in part; with gaps that grow only, where all cuts were tried. */
static void gckpti_solve_between(gckpti_search *s, gckpti_candidate *candidate,
                                 const gckpti_cut_point *point, const gckpti_cut_table *cuts)
{
    const gckpti_cut_list *hull = &cuts->last;
    int64_t space = candidate->limit - point->base, total = 0;
    const int one =
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
    for (int spacing = one; spacing < (one ? 2 : 3) && !s->p->failed; spacing++) {
        int64_t bytes = space - hull->cut[cut].bytes, excess = 0;
        for (int iteration = 0; iteration < 2 && bytes >= 0; iteration++, bytes -= excess) {
            if (gckpti_is_proven(s, candidate) || gckpti_is_exhausted(s))
                return;
            gckpti_keep_part(s, spacing, total, bytes < total ? bytes : total, s->bound->action);
            excess = gckpti_try_actions(s, s->bound->action) - candidate->limit;
            if (excess > candidate->limit / 4)
                return; /* far above whatever is kept */
            gckpti_improve(s, candidate, 0);
            if (excess <= 0)
                break;
        }
    }
}

/* ---- seeds: schedules that know no limit, made once (search/search) ---- */
enum { GCKPTI_REDUCED = 16 }; /* most seeds that are squeezed a little */

/* Orders seeds: by live bytes, then work. */
static int gckpti_initial_before(const void *first, const void *second, const void *context)
{
    const gckpti_candidate *a = (const gckpti_candidate *)first,
                           *b = (const gckpti_candidate *)second;
    return a->peak != b->peak           ? a->peak < b->peak
           : a->overhead != b->overhead ? a->overhead < b->overhead
                                        : gckpti_candidate_before(a, b, context);
}

/* Where bytes are fewest, a little less may lead far: seeds squeezed by 1/1000 are seeds, too. */
static void gckpti_reduce_initials(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    uint64_t least = UINT64_MAX;
    for (int i = 0, tried = 0, n = s->initials; i < n && tried < GCKPTI_REDUCED && !p->failed;
         i++) {
        const gckpti_candidate *initial = &s->initial[i];
        if (initial->dense || initial->overhead / 8 * 7 >= least ||
            initial->overhead < p->least_cost / 4 || initial->overhead / 4 > p->least_cost)
            continue;
        least = initial->overhead < least ? initial->overhead : least;
        tried++;
        int64_t limit = initial->peak - (initial->peak - p->gradient_between[0]) / 1000 - 1;
        gckpti_candidate *candidate = gckpti_reduce_to(s, initial, limit)
                                          ? gckpti_candidate_new(s, &s->initial, &s->initials)
                                          : NULL;
        if (candidate)
            gckpti_candidate_store(s, candidate, &s->now);
    }
    gckpti_sort(s->initial, (size_t)s->initials, sizeof *s->initial, gckpti_initial_before, NULL);
}

/* Store-all, the same with late forwards, uniform segments, the user's, the chain's, memory-poor;
 * the user's and the chain's for backwards in order 0. */
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
    for (int kind = 0, finer = 0; kind < GCKPTI_BORDERS && !p->variant.order && !p->failed;
         kind++) {
        if (kind == GCKPTI_AT_UNITS && p->nodes > (finer ? GCKPTI_SMALL_N : GCKPTI_MEDIUM_N))
            break;
        finer = gckpti_add_chain_initials(s, kind, most);
    }
    if (s->p->nodes <= GCKPTI_MEDIUM_N && !p->failed) {
        gckpti_build_late(p, -1);
        gckpti_add_initial(s, 0);
    }
    gckpti_sort(s->initial, (size_t)s->initials, sizeof *s->initial, gckpti_initial_before, NULL);
    gckpti_reduce_initials(s);
}

/* ---- the ladder: its rungs, and what is done to solve one ---- */
/* Most units for which every single move is tried; seeds that a rung polishes exactly; how often it
 * is shaken; rungs that depend on one another, at the most. */
enum { GCKPTI_EXACT_N = 32, GCKPTI_EXACT_TRIES = 12, GCKPTI_PERTURBS = 4, GCKPTI_LEVEL_GROUP = 4 };

/* The limits: from store-all's bytes down to what is proven to be needed, each a little below the
 * one above. Rungs never depend on a budget. */
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
            step *= nodes <= 300 ? 2 : 3;  /* where proofs are weak, rungs are dear */
        step = step / s->grain * s->grain; /* as live bytes are */
        step = step > 0 ? step : s->grain;
        next = limit - least > step ? limit - step : limit > least ? least : least - 1;
        while (fine && next >= least && parts < 8 && /* steep, and no list of all cuts */
               gckpti_hulls_cost(s->bound, next, &decider) - cost > (uint64_t)parts * 2 * s->margin)
            parts *= 2;
        step = (limit - next) / parts / s->grain * s->grain;
        for (int k = 0; k < parts && (k == 0 || step > 0); k++) {
            gckpti_candidate *candidate = gckpti_candidate_new(s, &s->level, &s->levels);
            if (!candidate)
                return;
            candidate->limit = limit - k * step;
        }
    }
    for (int k = 0; k < s->levels; k++)
        if (gckpti_hulls_cost(s->bound, s->level[k].limit, &decider) < UINT64_MAX)
            s->decider_bits |= 1u << decider;
}

/* Begins a rung: what its limit proves, and what cuts find. Returns whether more may be found. */
static int gckpti_begin_level(gckpti_search *s, gckpti_candidate *candidate)
{
    int decider;
    if (candidate->state != GCKPTI_LEVEL_NEW)
        return candidate->state == GCKPTI_LEVEL_BEGUN;
    s->evaluated = s->examined = 0;
    candidate->state = GCKPTI_LEVEL_BEGUN;
    candidate->bound = gckpti_bound_cost(s->bound, candidate->limit, &decider);
    if (candidate->bound < UINT64_MAX && s->bound->points > 0) {
        gckpti_cut_point *point = &s->bound->point[decider];
        gckpti_solve_full(s, candidate, point);
        for (int c = 0;
             c < (s->p->can_offload ? GCKPTI_FULL : 1) && !gckpti_is_proven(s, candidate); c++)
            gckpti_solve_between(s, candidate, point, gckpti_cuts(s->bound, point, c));
    }
    if (candidate->bound == UINT64_MAX || gckpti_is_proven(s, candidate))
        candidate->state = GCKPTI_LEVEL_DONE;
    return candidate->state == GCKPTI_LEVEL_BEGUN;
}

/* Whether a rung takes up what the one above found. */
static int gckpti_uses_above(const gckpti_search *s, int k)
{
    return s->tiny ? k > 0 : k % GCKPTI_LEVEL_GROUP != 0;
}

/* Ends it: the best seed within its limit, polished; seeds not far above it and the rung above,
 * squeezed. */
static void gckpti_finish_level(gckpti_search *s, int k)
{
    gckpti_candidate *candidate = &s->level[k];
    int exact = s->p->nodes <= GCKPTI_EXACT_N, best = -1, above = 0, tried = 0;
    if (candidate->state != GCKPTI_LEVEL_BEGUN)
        return;
    if (s->initials == 0)
        gckpti_find_initials(s);
    s->evaluated = s->examined = 0;
    candidate->state = GCKPTI_LEVEL_DONE;
    for (; above < s->initials && s->initial[above].peak <= candidate->limit; above++) {
        if (!s->initial[above].dense &&
            (best < 0 || s->initial[above].overhead <= s->initial[best].overhead))
            best = above;
    }
    for (int i = above, most = GCKPTI_EXACT_TRIES; exact && i-- > 0 && most > 0;)
        if (!s->initial[i].dominated && most-- && gckpti_candidate_load(s, &s->initial[i]))
            gckpti_improve(s, candidate, 1);
    if (best >= 0 && gckpti_candidate_load(s, &s->initial[best])) {
        gckpti_candidate_update(s, candidate);
        gckpti_improve(s, candidate, 0);
    }
    if (gckpti_uses_above(s, k) && s->level[k - 1].length == 0)
        return; /* with more bytes nothing was found */
    for (uint64_t least = UINT64_MAX; above < s->initials && tried < 4; above++) {
        const gckpti_candidate *initial = &s->initial[above];
        if (!initial->dense && initial->overhead / 8 * 7 <= least &&
            initial->overhead / 4 <= s->p->least_cost && gckpti_candidate_load(s, initial)) {
            least = initial->overhead < least ? initial->overhead : least;
            gckpti_improve(s, candidate, 0);
            tried++;
        }
    }
    for (int exactness = 0; exactness <= exact && gckpti_uses_above(s, k); exactness++)
        if (gckpti_candidate_load(s, &s->level[k - 1]))
            gckpti_improve(s, candidate, exactness);
    if (s->p->nodes <= GCKPTI_SMALL_N)
        gckpti_perturb(s, candidate, exact ? s->p->nodes : GCKPTI_PERTURBS, exact);
}

/* Finds the schedule of rung k. The rung above has a part in it, unless that is certified or
 * belongs to another group and something else was found. */
GCKPTI_FN void gckpti_solve_level(gckpti_search *s, int k)
{
    int top = k;
    while (gckpti_begin_level(s, &s->level[top]) && gckpti_uses_above(s, top) && !s->p->failed)
        top--;
    for (; top <= k && !s->p->failed; top++) {
        gckpti_candidate *candidate = &s->level[top];
        gckpti_finish_level(s, top);
        if (candidate->length || candidate->bound == UINT64_MAX || top == 0 ||
            gckpti_uses_above(s, top))
            continue;
        gckpti_solve_level(s, top - 1);
        if (gckpti_candidate_load(s, &s->level[top - 1]))
            gckpti_candidate_update(s, candidate);
    }
}
#endif
