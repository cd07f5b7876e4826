#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- placing a candidate ---- */
/* Lowers and places a candidate: sets p->lowered, candidate->arena and candidate->time. If the
 * arena cannot be addressed, sets candidate->arena to SIZE_MAX, which is no error. */
GCKPTI_FN gckpt_result gckpti_place_candidate(gckpti_search *s, gckpti_candidate *candidate)
{
    gckpti_planner *p = s->p;
    gckpti_release(&s->scratch, &s->move); /* frees memory: lowering needs no moves */
    gckpti_release(&s->scratch, &s->sorted);
    gckpti_release(&s->scratch, &s->key);
    gckpti_release(&s->scratch, &s->member);
    gckpti_release(&s->scratch, &s->slack);
    gckpt_result result = gckpti_lower_spans(p, candidate->span, candidate->length);
    int large = gckpti_is_too_large(p, result);
    if (result == GCKPT_OK)
        result = gckpti_place_buffers(p);
    candidate->arena = large ? SIZE_MAX : p->lowered.arena;
    candidate->time = p->lowered.cost - p->base_cost;
    return large ? GCKPT_OK : result;
}

/* ---- the candidates that are considered for a budget ---- */
/* Returns whether no error has occurred. */
static int gckpti_is_ok(const gckpti_search *s) { return s->result == GCKPT_OK && !s->p->failed; }

/* Returns whether a candidate is no better than the winner, or larger than `most` bytes. */
static int gckpti_is_useless(const gckpti_search *s, const gckpti_candidate *candidate, size_t most)
{
    const gckpti_candidate *old = &s->winner;
    const uint64_t cost = s->p->overlap ? candidate->recompute_cost : candidate->overhead;
    const int64_t least = candidate->peak - s->bound->padding; /* least bytes of its arena */
    return least > (int64_t)most || (old->length && !s->minimise_bytes && cost > old->time) ||
           (old->length && least >= (int64_t)old->arena &&
            (s->minimise_bytes || cost == old->time));
}

/* Places a candidate unless it is placed or empty. */
static void gckpti_place_once(gckpti_search *s, gckpti_candidate *candidate)
{
    if (gckpti_is_ok(s) && candidate->length > 0 && candidate->arena == 0)
        s->result = gckpti_place_candidate(s, candidate);
}

/* Makes a candidate the winner if its arena has `lower` to `most` bytes and it takes less time or,
 * in equal time, fewer bytes than the winner. With s->minimise_bytes only bytes count. */
static void gckpti_consider(gckpti_search *s, gckpti_candidate *candidate, size_t lower,
                            size_t most)
{
    const gckpti_candidate *old = &s->winner;
    if (!gckpti_is_ok(s) || candidate->length == 0 || gckpti_is_useless(s, candidate, most))
        return;
    gckpti_place_once(s, candidate);
    int fewer = candidate->arena < old->arena;
    int better = s->minimise_bytes
                     ? fewer
                     : candidate->time < old->time || (candidate->time == old->time && fewer);
    if (gckpti_is_ok(s) && candidate->arena >= lower && candidate->arena <= most &&
        (better || !old->length))
        s->winner = *candidate;
}

/* Considers a candidate; if its copies may overlap computation, also with copies so placed. */
static void gckpti_consider_both(gckpti_search *s, gckpti_candidate *candidate, size_t lower,
                                 size_t most)
{
    gckpti_consider(s, candidate, lower, most);
    if (!s->p->overlap || candidate->length == 0 || candidate->transfer_cost == 0)
        return;
    if (!candidate->hidden)
        gckpti_hide_copies(s, candidate);
    if (candidate->hidden)
        gckpti_consider(s, candidate->hidden, lower, most);
}

/* Returns the least budget that considers level k: the limit of the next lower level, rounded. */
static size_t gckpti_min_budget(const gckpti_search *s, int k)
{
    int64_t limit = k + 1 < s->levels ? s->level[k + 1].limit : 0;
    return limit > s->bound->padding ? (size_t)(limit - s->bound->padding) : 0;
}

/* Considers level k's schedule, unless it also fits the next lower level. If it is not proven
 * near-optimal, or its arena exceeds the limit, considers the initials between the limits of both
 * levels. */
static void gckpti_consider_level(gckpti_search *s, int k, size_t most)
{
    gckpti_candidate *level = &s->level[k];
    const int64_t lower = k + 1 < s->levels ? s->level[k + 1].limit : -1;
    gckpti_solve_level(s, k);
    gckpti_consider_both(s, level, gckpti_min_budget(s, k), most);
    if (gckpti_is_proven(s, level)) {
        gckpti_place_once(s, level);
        if ((int64_t)level->arena + s->bound->padding <= level->limit)
            return;
    }
    if (gckpti_is_ok(s))
        gckpti_find_initials(s);
    for (int i = 0; i < s->initials; i++)
        if (s->initial[i].peak <= level->limit && s->initial[i].peak > lower)
            gckpti_consider_both(s, &s->initial[i], 0, most);
}

/* Returns whether a schedule within `limit` and the limit of level k may beat the winner. */
static int gckpti_may_improve(const gckpti_search *s, int k, int64_t limit)
{
    const int64_t most = s->level[k].limit < limit ? s->level[k].limit : limit;
    const uint64_t bound = gckpti_bound_time(s->p, most, 1);
    return gckpti_is_ok(s) && bound < UINT64_MAX && (!s->winner.length || bound < s->winner.time);
}

GCKPTI_FN gckpt_result gckpti_find_best(gckpti_search *s, size_t most)
{
    int k = 0;
    most = most < PTRDIFF_MAX / 2 ? most : PTRDIFF_MAX / 2;
    const int64_t limit = (int64_t)gckpti_round_up(most, s->p->alignment);
    memset(&s->winner, 0, sizeof s->winner);
    s->minimise_bytes = 0;
    while (k < s->levels && s->level[k].limit > limit)
        k++;
    gckpti_consider(s, &s->store_all, 0, most); /* may equal the cost of larger candidates */
    for (int below = k; below < s->levels && gckpti_may_improve(s, below, limit); below++)
        gckpti_consider_level(s, below, most);
    if (k > 0 && gckpti_may_improve(s, k - 1, limit))
        gckpti_consider_level(s, k - 1, most); /* few of its candidates beat the winner */
    if (gckpti_may_improve(s, 0, limit)) /* no plan is worse than a builder's in the same bytes */
        gckpti_find_initials(s);
    for (int i = 0; i < s->initials; i++)
        gckpti_consider_both(s, &s->initial[i], 0, most);
    return s->p->failed ? GCKPT_E_MEMORY : s->result;
}

GCKPTI_FN gckpt_result gckpti_find_min_budget(gckpti_search *s, size_t upper, size_t *least)
{
    memset(&s->winner, 0, sizeof s->winner);
    s->minimise_bytes = 1;
    for (int k = s->levels; k-- > 0 && gckpti_is_ok(s) && gckpti_min_budget(s, k) < upper;) {
        gckpti_consider_level(s, k, SIZE_MAX / 4);
        if (s->winner.length && (int64_t)s->winner.arena + s->bound->padding <= s->level[k].limit)
            break;
    }
    if (gckpti_is_ok(s)) /* no builder's plan takes fewer bytes */
        gckpti_find_initials(s);
    for (int i = 0; i < s->initials; i++)
        gckpti_consider(s, &s->initial[i], 0, SIZE_MAX / 4);
    *least = s->winner.length ? s->winner.arena : SIZE_MAX;
    return s->p->failed ? GCKPT_E_MEMORY : s->result;
}

/* ---- the proven bounds of a plan ---- */
GCKPTI_FN uint64_t gckpti_proven_cost(const gckpti_planner *p, size_t arena)
{
    const gckpti_bound *b = p->bound; /* at full copy cost */
    gckpt_mode mode = p->desc->mode;
    int searched = mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL;
    int64_t limit = b->padding + (int64_t)(arena < PTRDIFF_MAX / 2 ? arena : PTRDIFF_MAX / 2);
    return gckpti_add_cost(gckpti_bound_time(p, limit, searched), b->base_cost);
}

GCKPTI_FN size_t gckpti_proven_bytes(const gckpti_planner *p)
{
    const gckpti_bound *b = p->bound; /* at full copy cost */
    int64_t least = b->min_bytes - b->padding;
    return least < 0 ? 0 : (uint64_t)least < PTRDIFF_MAX ? (size_t)least : (size_t)PTRDIFF_MAX;
}

/* ---- opening a search; the plan for a budget, from all strategies ---- */
GCKPTI_FN gckpt_result gckpti_search_open(gckpti_search *s, gckpti_planner *p, int strategy)
{
    memset(s, 0, sizeof *s);
    s->p = p;
    gckpti_begin_strategy(p, strategy);
    s->scratch = gckpti_scratch_new(p->memory, &p->failed);
    s->excluded = -1;
    s->started = -1;
    s->margin = p->least_cost / 1000;
    gckpt_result result = p->store_all_peak > 0 ? GCKPT_OK : gckpti_lower_mode(p, GCKPT_STORE_ALL);
    if (p->store_all_peak > GCKPTI_SEARCH_LIMIT && p->store_all_peak <= (double)GCKPTI_ARENA_MAX)
        return gckpti_error(p->g, GCKPT_E_MEMORY,
                            "plan: the step takes %g bytes without recomputing, more than the "
                            "search can handle; use fewer rows",
                            p->store_all_peak);
    if (p->failed || p->store_all_peak > GCKPTI_SEARCH_LIMIT ||
        (result != GCKPT_OK && !gckpti_is_too_large(p, result)))
        return GCKPT_E_MEMORY;
    s->grain = gckpti_size_grain(p);
    s->state = p->state;
    s->action = (unsigned char *)gckpti_scratch_alloc(&s->scratch, (size_t)p->nodes, 1);
    s->upper_cut = (unsigned char *)gckpti_scratch_alloc(&s->scratch, (size_t)p->nodes, 1);
    gckpti_open_bounds(p);
    if (!p->failed) {
        s->bound = &p->bound[GCKPTI_FULL_COPY_COST - p->copy_cost];
        gckpti_build_levels(s, gckpti_try_actions(s)); /* actions 0 keep all */
    }
    if (!p->failed)
        gckpti_candidate_update(s, &s->level[0]);
    gckpti_build_store_all(p);
    if (!p->failed && gckpti_take_built(s))
        gckpti_candidate_store(s, &s->store_all, &s->now);
    return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
}

/* Lowers p->fast_bytes by a bisection of levels. Levels, once solved, serve all later budgets. */
static gckpt_result gckpti_find_fast(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    gckpt_result result = GCKPT_OK;
    const uint64_t most = p->fast_cost - p->base_cost;
    int low = 0, high = p->base_cost > p->fast_cost ? 0 : s->levels;
    for (int k = -1; low < high && result == GCKPT_OK; k = low + (high - low) / 2) {
        const size_t bytes = k < 0 ? p->fast_bytes - 1 : (size_t)s->level[k].limit;
        int fast = k >= 0 && bytes >= p->fast_bytes;
        if (!fast && (k < 0 || gckpti_bound_time(p, (int64_t)bytes, 1) <= most)) {
            result = gckpti_find_best(s, bytes);
            fast = result == GCKPT_OK && s->winner.length && s->winner.time <= most;
            p->fast_bytes = fast ? s->winner.arena : p->fast_bytes;
        }
        low = fast ? k + 1 : low;
        high = fast ? high : k;
    }
    return result;
}

GCKPTI_FN gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes, size_t *least)
{
    gckpt_result result = GCKPT_OK;
    int found = 0;
    *least = SIZE_MAX;
    for (int k = 0; k < gckpti_count_strategies(p) && result == GCKPT_OK; k++) {
        gckpti_search s;
        result = gckpti_search_open(&s, p, k);
        if (result == GCKPT_OK && most_bytes > 0)
            result = gckpti_find_best(&s, most_bytes);
        const uint64_t cost = p->base_cost + s.winner.time;
        int better = !found || cost < p->best.cost ||
                     (cost == p->best.cost && s.winner.arena < p->best.arena);
        if (result == GCKPT_OK && s.winner.length > 0 && better) {
            found = 1;
            *least = s.winner.arena;
            result = gckpti_place_candidate(&s, &s.winner);
            gckpti_keep_lowered(p);
        } else if (result == GCKPT_OK && !found) {
            size_t needed;
            result = gckpti_find_min_budget(&s, *least, &needed);
            *least = needed < *least ? needed : *least;
            if (result == GCKPT_OK && p->fast_cost)
                result = gckpti_find_fast(&s);
        }
        gckpti_scratch_free(&s.scratch);
        if (found && p->best.cost <= gckpti_proven_cost(p, most_bytes))
            break;
    }
    if (result == GCKPT_OK && *least == SIZE_MAX)
        result = GCKPT_E_MEMORY; /* no plan can be addressed; the error text is set */
    return result;
}
#endif
