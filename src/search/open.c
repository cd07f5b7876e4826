#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- opening a search; the plan for a budget, from all strategies ---- */
/* Strategies: { copy cost, n }: at most n eighths of the bytes may be offloaded that could be
 * copied to the host and back during a step without recomputes; n = 0 leaves only the request's
 * limit. Such a limit offloads some of many similar values and recomputes others. */
static const signed char gckpti_strategies[][2] = {
    { GCKPTI_FULL_COPY_COST, 0 }, { 1, 0 }, { 0, 0 }, { 0, 4 }, { 0, 3 }, { 0, 2 }
};

GCKPTI_FN int gckpti_count_strategies(const gckpti_planner *p)
{
    return p->overlap ? (int)(sizeof gckpti_strategies / sizeof *gckpti_strategies) : 1;
}

GCKPTI_FN gckpt_result gckpti_search_open(gckpti_search *s, gckpti_planner *p, int strategy)
{
    const int copy_cost = gckpti_strategies[strategy][0];
    const uint64_t copied = p->desc->offload.cost / 512 + 1; /* of 1024 bytes there and back */
    const uint64_t offload = p->base_cost / copied * (uint64_t)gckpti_strategies[strategy][1];
    memset(s, 0, sizeof *s);
    s->p = p;
    p->copy_cost = copy_cost;
    p->host_limit = offload && offload < (uint64_t)(p->max_host_limit >> 7) ? (int64_t)offload << 7
                                                                            : p->max_host_limit;
    s->scratch = gckpti_scratch_new(p->memory, &p->failed);
    s->excluded = -1;
    s->started = -1;
    for (int u = p->prologue; u < p->nodes; u++)
        s->late = s->late || p->needed_by[u] > 0;
    s->tiny = p->nodes <= GCKPTI_TINY_N;
    s->margin = s->tiny ? 0 : p->least_cost / 1000;
    gckpt_result result =
        p->store_all_peak > 0 ? GCKPT_OK : gckpti_lower_mode(p, GCKPT_STORE_ALL, 0);
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
    s->lower_cut = (unsigned char *)gckpti_scratch_alloc(&s->scratch, (size_t)p->nodes, 1);
    s->upper_cut = (unsigned char *)gckpti_scratch_alloc(&s->scratch, (size_t)p->nodes, 1);
    gckpti_open_bounds(p);
    if (!p->failed) {
        s->bound = &p->bound[GCKPTI_FULL_COPY_COST - copy_cost];
        gckpti_build_levels(s, gckpti_try_actions(s, s->upper_cut)); /* actions 0 keep all */
    }
    if (!p->failed)
        gckpti_candidate_update(s, &s->level[0]);
    gckpti_build_store_all(p);
    if (!p->failed && gckpti_take_built(s))
        gckpti_candidate_store(s, &s->store_all, &s->now);
    if (!p->failed && s->tiny)
        gckpti_find_initials(s);
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
