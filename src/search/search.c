#include "offload/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * search: the schedule of least cost for every budget
 *
 * The level grid, which depends on the model alone, has byte limits from store-all's down to the
 * proven minimum. A level is solved once, when a budget needs it (gckpti_solve_level):
 *   cut      The cut of the deciding point says what to keep there; the rest is recomputed just
 *            before its first reader. The local search (search/moves) brings that schedule within
 *            the limit, and removes recomputes that are not needed for it. A schedule within 0.1 %
 *            of a step of the bound is proven near-optimal; then the level is done.
 *   initial  Else schedules built once without a limit compete: store-all, segments, memory-poor,
 *            and those of a dynamic programme over a chain of stages (search/chain). The local
 *            search improves the best that fits, a few that do not, and the schedule of the next
 *            larger level, except at the first of each GCKPTI_LEVEL_GROUP levels. In a large graph
 *            a level takes the schedule of the next larger level as it is, if that fits.
 * gckpti_find_best takes the candidate of least cost: of levels from the one above the budget down
 * until the next is proven to cost no less, and of the initials. It ignores a
 * level's schedule that would also fit the next lower level, because smaller budgets never search
 * this level. So the candidates do not depend on the budget, and more memory never costs more time.
 *
 * Invariants: 1. gckpti_evaluate computes for each position the live bytes of the lowered plan of
 * the same schedule (sizes rounded up to the alignment). 2. A level's schedule is within its limit
 * and depends neither on the budget nor on earlier calls. 3. Effort limits count entries, never
 * time, and numbers are integers or IEEE doubles, so that a plan is the same on every machine.
 * ============================================================================================== */

/* Returns whether a candidate is proven near-optimal for its limit. */
static int gckpti_is_proven(const gckpti_search *s, const gckpti_candidate *candidate)
{
    return candidate->length > 0 &&
           candidate->overhead - candidate->bound <= s->p->least_cost / 1000;
}

/* Makes the schedule of s->action the current one: it runs all nodes as late as they are needed,
 * keeps results that are not marked, and recomputes marked ones, or copies them back, just before
 * the first backward that needs them. Returns its peak; out of memory: INT64_MAX. */
static int64_t gckpti_try_actions(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    int next = p->prologue;
    for (int u = 0; u < p->nodes; u++) {
        p->computed[u] = !s->action[u] || p->needed_by[u] > 0;
        p->state[u].run_count = 1;
    }
    for (int r = 0; r < p->body_backwards; r++) {
        gckpti_emit_late(p, &next, r);
        gckpti_emit_backward(p, r, 0, s->action);
    }
    gckpti_emit_late(p, &next, INT32_MAX); /* losses of a graph without backwards */
    return gckpti_take_built(s) ? s->now.peak : INT64_MAX;
}

/* ---- initial schedules: built once without a limit ---- */
enum { GCKPTI_REDUCED = 10 }; /* most initials that get a copy with a reduced peak */

/* Orders initials by peak, then cost. */
static int gckpti_initial_before(const void *first, const void *second, const void *context)
{
    const gckpti_candidate *a = (const gckpti_candidate *)first,
                           *b = (const gckpti_candidate *)second;
    (void)context;
    return a->peak != b->peak ? a->peak < b->peak : a->overhead < b->overhead;
}

/* Sorts the initials, and removes those that cost over twice as much as another one of no larger
 * peak, unless there are few nodes: they may take fewer bytes once they are placed. */
static void gckpti_sort_initials(gckpti_search *s)
{
    uint64_t least = UINT64_MAX;
    int kept = 0;
    gckpti_sort(s->initial, (size_t)s->initials, sizeof *s->initial, gckpti_initial_before, NULL);
    for (int i = 0; i < s->initials; i++) {
        if (s->initial[i].overhead / 2 > least && s->p->nodes > GCKPTI_SMALL_N)
            continue;
        least = s->initial[i].overhead < least ? s->initial[i].overhead : least;
        s->initial[kept++] = s->initial[i];
    }
    s->initials = kept;
}

/* Adds copies of initials with a peak reduced by 1/1000: a level may improve them much further. */
static void gckpti_reduce_initials(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    uint64_t least = UINT64_MAX;
    for (int i = 0, done = 0, n = s->initials; i < n && done < GCKPTI_REDUCED && !p->failed; i++) {
        const gckpti_candidate *from = &s->initial[i];
        if (from->overhead / 8 * 7 >= least || from->overhead < p->least_cost / 4)
            continue;
        least = from->overhead < least ? from->overhead : least;
        done++;
        int64_t limit = from->peak - (from->peak - p->gradient_between[0]) / 1000 - 1;
        s->effort = s->started = 0;
        if (!gckpti_candidate_load(s, from) || !gckpti_search_locally(s, limit))
            continue;
        gckpti_reapply_policy(s);
        gckpti_add_initial(s);
    }
}

/* Adds initials of segments of 1, 2, .. `most` nodes or, if `unit` is -1, of the user's outermost
 * segments. If `most` is large, sizes grow by an eighth. */
static void gckpti_add_segments(gckpti_search *s, int unit, int most)
{
    for (int n = 1; n <= most && !s->p->failed; n += most > GCKPTI_SMALL_N ? 1 + n / 8 : 1) {
        gckpti_build_segments(s->p, n * unit);
        gckpti_add_built(s);
    }
}

/* Finds the initials, once: store-all, uniform segments, the user's segments, the chain's,
 * memory-poor. */
static void gckpti_find_initials(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    if (s->initials > 0)
        return;
    gckpti_build_store_all(p);
    gckpti_add_built(s);
    int64_t most = s->initial ? s->initial[0].peak - p->gradient_between[0] : 0;
    gckpti_add_segments(s, 1, p->nodes - p->prologue);
    gckpti_add_segments(s, -1, p->g->top_segments);
    gckpti_build_segments(p, 0);
    gckpti_add_built(s);
    gckpti_build_segments(p, gckpti_segment_size(p));
    gckpti_add_built(s);
    if (s->bound->points > 0) {
        gckpti_add_chain_initials(s, GCKPTI_AT_SEGMENTS, most);
        const int narrow = gckpti_add_chain_initials(s, GCKPTI_AT_NARROW, most);
        if (p->nodes <= (narrow ? GCKPTI_SMALL_N : GCKPTI_MEDIUM_N))
            gckpti_add_chain_initials(s, GCKPTI_AT_NODES, most);
    }
    if (p->nodes <= GCKPTI_MEDIUM_N && !p->failed) {
        gckpti_build_late(p, -1);
        gckpti_add_built(s);
    }
    gckpti_sort_initials(s);
    if (p->nodes <= GCKPTI_SMALL_N) {
        gckpti_reduce_initials(s);
        gckpti_sort_initials(s);
    }
    s->starts = s->initials;
    if (s->bound->points > 0 && p->nodes <= GCKPTI_SMALL_N)
        gckpti_add_chain_initials(s, GCKPTI_LEAN, most);
}

/* ---- levels ---- */
enum { GCKPTI_LEVEL_GROUP = 8 }; /* levels that depend on one another */

/* Builds the level grid: limits from store-all's bytes to the proven minimum, for all budgets. */
static void gckpti_build_levels(gckpti_search *s, int64_t most)
{
    const int64_t resident = s->p->gradient_between[0], least = s->bound->min_bytes;
    const int64_t grain = (int64_t)s->p->alignment; /* live bytes are multiples of it */
    const int part = s->p->nodes <= 64 ? 100 : s->p->nodes <= GCKPTI_LARGE_N ? 40 : 16;
    int decider;
    const uint64_t steep_cost = gckpti_bound_cost(s->bound, least, &decider) / 8 * 7;
    for (int64_t limit = most; limit >= least;) {
        int64_t step = (limit - resident) / part / grain * grain;
        if (gckpti_bound_cost(s->bound, limit, &decider) > steep_cost)
            step *= 2; /* fewer levels where bounds are weak */
        if (step < grain || (most - least) / grain <= 96)
            step = grain;
        gckpti_candidate *level = gckpti_candidate_new(s, &s->level, &s->levels);
        if (!level)
            return;
        level->limit = limit;
        limit = limit - least > step ? limit - step : limit > least ? least : least - 1;
    }
}

/* Improves the schedule of a candidate for a level's limit, unless its peak is far above, and
 * stores it in the level if it is better. */
static void gckpti_improve(gckpti_search *s, gckpti_candidate *level, const gckpti_candidate *from)
{
    if (from->peak / 5 * 4 > level->limit || !gckpti_candidate_load(s, from))
        return;
    s->started = s->effort;
    if (gckpti_search_locally(s, level->limit))
        gckpti_candidate_update(s, level);
}

/* Solves a level from the last cut of a hull that keeps no more bytes than the limit allows. */
static void gckpti_solve_cut(gckpti_search *s, gckpti_candidate *level, gckpti_cut_point *point,
                             int which)
{
    const gckpti_cut_table *cuts = gckpti_cuts(s->bound, point, which);
    const int cut = gckpti_cut_within(&cuts->last, level->limit - point->base);
    if (cut < 0 || gckpti_is_proven(s, level))
        return;
    if (s->cuts != cuts || s->cut_index != cut) { /* many levels have one cut */
        s->cuts = cuts;
        s->cut_index = cut;
        gckpti_mark_cut(s->bound, cuts, cut, s->action);
        gckpti_try_actions(s);
        gckpti_candidate_store(s, &s->cut, &s->now);
    }
    gckpti_improve(s, level, &s->cut);
}

/* Solves level k by cuts and, unless one is proven near-optimal, by initials and level k - 1. */
GCKPTI_FN void gckpti_solve_level(gckpti_search *s, int k)
{
    gckpti_candidate *level = &s->level[k];
    const int grouped = k % GCKPTI_LEVEL_GROUP > 0, few_nodes = s->p->nodes <= GCKPTI_SMALL_N;
    const int perturbs = few_nodes ? 4 : s->p->can_copy ? 2 : 0; /* to leave a local optimum */
    const int tries = few_nodes ? 6 : grouped ? 0 : 2;           /* initials beyond the limit */
    int decider, i = 0, best = -1;
    if (level->solved || s->p->failed)
        return;
    level->solved = 1;
    level->bound = gckpti_bound_cost(s->bound, level->limit, &decider);
    if (level->bound == UINT64_MAX)
        return;
    s->effort = 0;
    for (int c = 0; c < (s->p->can_copy ? GCKPTI_TABLES : 1) && decider < s->bound->points; c++)
        gckpti_solve_cut(s, level, &s->bound->point[decider], c);
    if (gckpti_is_proven(s, level))
        return;
    gckpti_find_initials(s);
    if (grouped)
        gckpti_solve_level(s, k - 1);
    if (grouped && !few_nodes && s->level[k - 1].peak <= level->limit &&
        gckpti_candidate_load(s, &s->level[k - 1])) {
        gckpti_candidate_update(s, level);
        return;
    }
    s->effort = 0;
    for (; i < s->starts && s->initial[i].peak <= level->limit; i++)
        if (best < 0 || s->initial[i].overhead <= s->initial[best].overhead)
            best = i;
    if (best >= 0)
        gckpti_improve(s, level, &s->initial[best]);
    uint64_t least = UINT64_MAX;
    for (int tried = 0; i < s->starts && tried < tries; i++) {
        const gckpti_candidate *initial = &s->initial[i];
        if (initial->overhead / 8 * 7 > least || initial->overhead / 4 > s->p->least_cost)
            continue;
        least = initial->overhead < least ? initial->overhead : least;
        gckpti_improve(s, level, initial);
        tried++;
    }
    if (grouped)
        gckpti_improve(s, level, &s->level[k - 1]);
    for (i = 0; i < perturbs && gckpti_candidate_load(s, level); i++) {
        const uint64_t before = level->overhead;
        s->started = s->effort;
        gckpti_perturb(s, level->limit, i);
        gckpti_candidate_update(s, level);
        i = level->overhead < before ? -1 : i;
    }
}

/* Lowers and places a candidate: sets p->lowered, candidate->arena and candidate->time. Far above
 * the proven minimum, planning time is worth more than an arena of the fewest bytes, if it has at
 * most `most`. If the arena cannot be addressed, sets it to SIZE_MAX, which is no error. */
static gckpt_result gckpti_place_candidate(gckpti_search *s, gckpti_candidate *candidate,
                                           size_t most)
{
    gckpti_planner *p = s->p;
    const size_t enough = (size_t)(candidate->peak + (candidate->peak - s->bound->min_bytes) / 64);
    candidate->enough = enough < most ? enough : most;
    gckpt_result result = gckpti_lower_schedule(p, candidate->entry, candidate->length);
    int large = gckpti_is_too_large(p, result);
    if (result == GCKPT_OK)
        result = gckpti_place_buffers(p, candidate->enough);
    candidate->arena = large ? SIZE_MAX : p->lowered.arena;
    candidate->time = p->lowered.cost - p->base_cost;
    return large ? GCKPT_OK : result;
}

/* ---- the candidates that are considered for a budget ---- */
/* Returns whether no error has occurred. */
static int gckpti_is_ok(const gckpti_search *s) { return s->result == GCKPT_OK && !s->p->failed; }

/* Places a candidate and, if its copies may overlap computation, its schedule with such copies.
 * Each becomes the winner if its arena has `lower` to `most` bytes and it takes less time or, in
 * equal time, fewer bytes than the winner. */
static void gckpti_consider(gckpti_search *s, gckpti_candidate *candidate, size_t lower,
                            size_t most)
{
    for (; candidate; candidate = gckpti_overlap_copies(s, candidate)) {
        const gckpti_candidate *old = &s->winner;
        const uint64_t cost = s->p->overlap ? candidate->recompute_cost : candidate->overhead;
        const int64_t least = candidate->peak - s->bound->padding; /* least bytes of its arena */
        /* placing stopped early, above the live bytes */
        const int may_shrink =
            candidate->arena <= candidate->enough && (int64_t)candidate->arena > candidate->peak;
        if (!gckpti_is_ok(s) || candidate->length == 0 || least > (int64_t)most ||
            cost > old->time || (cost == old->time && least >= (int64_t)old->arena))
            return; /* it is no better */
        if (candidate->arena == 0 || (candidate->arena > most && may_shrink))
            s->result = gckpti_place_candidate(s, candidate, most);
        int better = candidate->time == old->time ? candidate->arena < old->arena
                                                  : candidate->time < old->time;
        if (gckpti_is_ok(s) && candidate->arena >= lower && candidate->arena <= most && better) {
            s->winner = *candidate;
            gckpti_keep_lowered(s->p);
        }
    }
}

/* Copies where a candidate was placed to another one of the same schedule. */
static void gckpti_copy_placement(const gckpti_candidate *from, gckpti_candidate *to)
{
    if (from->arena == 0 || to->arena > 0 || to->length != from->length ||
        memcmp(to->entry, from->entry, (size_t)to->length * sizeof *to->entry) != 0)
        return;
    to->arena = from->arena;
    to->enough = from->enough;
    to->time = from->time;
}

/* Returns the least budget that considers level k: the limit of the next lower level, rounded. */
static size_t gckpti_min_budget(const gckpti_search *s, int k)
{
    int64_t limit = k + 1 < s->levels ? s->level[k + 1].limit : 0;
    return limit > s->bound->padding ? (size_t)(limit - s->bound->padding) : 0;
}

/* Returns whether a schedule within `limit` and the limit of level k may beat the winner. */
static int gckpti_may_improve(const gckpti_search *s, int k, int64_t limit)
{
    const int64_t most = s->level[k].limit < limit ? s->level[k].limit : limit;
    const uint64_t bound = gckpti_bound_time(s->p, most);
    return gckpti_is_ok(s) && bound < s->winner.time;
}

GCKPTI_FN gckpt_result gckpti_find_best(gckpti_search *s, size_t most, uint64_t cost, size_t arena)
{
    const uint64_t base = s->p->base_cost;
    int k = 0;
    most = most < PTRDIFF_MAX / 2 ? most : PTRDIFF_MAX / 2;
    const int64_t limit = (int64_t)gckpti_round_up(most, s->p->alignment);
    memset(&s->winner, 0, sizeof s->winner);
    s->winner.time = cost > base ? cost - base : 0;
    s->winner.arena = arena < PTRDIFF_MAX ? arena : PTRDIFF_MAX;
    while (k < s->levels && s->level[k].limit > limit)
        k++;
    for (k = k > 0 ? k - 1 : 0; k < s->levels && gckpti_may_improve(s, k, limit); k++) {
        gckpti_solve_level(s, k);
        if (k > 0)
            gckpti_copy_placement(&s->level[k - 1], &s->level[k]);
        gckpti_consider(s, &s->level[k], gckpti_min_budget(s, k), most);
    }
    if (gckpti_may_improve(s, 0, limit)) { /* no plan is worse than a builder's in the same bytes */
        gckpti_find_initials(s);
        for (int i = s->initials; i-- > 0;) /* the order in which few are placed */
            gckpti_consider(s, &s->initial[i], 0, most);
    }
    return s->p->failed ? GCKPT_E_MEMORY : s->result;
}

GCKPTI_FN gckpt_result gckpti_lower_min_budget(gckpti_search *s, size_t *least)
{
    gckpt_result result = GCKPT_OK;
    s->winner.length = 0;
    for (int k = s->levels; k-- > 0 && result == GCKPT_OK && s->winner.length == 0 &&
                            gckpti_min_budget(s, k) < *least;) {
        const size_t limit = k > 0 ? (size_t)s->level[k].limit : SIZE_MAX;
        result = gckpti_find_best(s, limit < *least ? limit : *least - 1, UINT64_MAX, 0);
    }
    while (result == GCKPT_OK && s->winner.length > 0) {
        *least = s->winner.arena < *least ? s->winner.arena : *least;
        result = gckpti_find_best(s, s->winner.arena - 1, UINT64_MAX, 0);
    }
    return result;
}

/* ---- opening a search; the plan for a budget, from all strategies ---- */
GCKPTI_FN gckpt_result gckpti_search_open(gckpti_search *s, gckpti_planner *p, int strategy)
{
    memset(s, 0, sizeof *s);
    s->p = p;
    gckpti_begin_strategy(p, strategy);
    s->scratch = gckpti_scratch_new(p->memory, &p->failed);
    s->excluded = -1;
    gckpt_result result = p->store_all_peak > 0 ? GCKPT_OK : gckpti_lower_mode(p, GCKPT_STORE_ALL);
    if (p->store_all_peak > GCKPTI_SEARCH_LIMIT && p->store_all_peak <= (double)GCKPTI_ARENA_MAX)
        return gckpti_error(p->g, GCKPT_E_MEMORY,
                            "plan: the step takes %g bytes without recomputing, more than the "
                            "search can handle; use fewer rows",
                            p->store_all_peak);
    if (p->failed || p->store_all_peak > GCKPTI_SEARCH_LIMIT ||
        (result != GCKPT_OK && !gckpti_is_too_large(p, result)))
        return GCKPT_E_MEMORY;
    s->action = (unsigned char *)gckpti_scratch_alloc(&s->scratch, (size_t)p->nodes, 1);
    gckpti_open_bounds(p);
    if (!p->failed) {
        s->bound = p->bound;
        if (p->overlap)
            s->bound += GCKPTI_FULL_COPY_COST - p->copy_cost;
        gckpti_build_levels(s, gckpti_try_actions(s)); /* actions 0 keep all */
    }
    if (!p->failed)
        gckpti_candidate_update(s, &s->level[0]);
    return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
}

GCKPTI_FN gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes,
                                           const gckpti_lowered *best, size_t *least)
{
    gckpt_result result = GCKPT_OK;
    for (int k = 0; k < (p->overlap ? GCKPTI_STRATEGIES : 1) && result == GCKPT_OK; k++) {
        gckpti_search s;
        if (best && best->cost <= gckpti_proven_cost(p, most_bytes))
            break;
        result = gckpti_search_open(&s, p, k);
        if (result == GCKPT_OK && most_bytes > 0)
            result = gckpti_find_best(&s, most_bytes, best ? best->cost : UINT64_MAX,
                                      best ? best->arena : 0);
        if (s.winner.length > 0) {
            best = &p->best;
            *least = s.winner.arena;
        } else if (result == GCKPT_OK && !best)
            result = gckpti_lower_min_budget(&s, least);
        gckpti_scratch_free(&s.scratch);
    }
    if (result == GCKPT_OK && !best && *least == SIZE_MAX)
        result = GCKPT_E_MEMORY; /* no plan can be addressed; the error text is set */
    return result;
}
#endif
