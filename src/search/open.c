#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- how a search begins, and the plan for a budget from all ways to search ---- */
/* Ways to search: a price of copies; and how many eighths of what could be copied there and back
 * while each op runs once may be offloaded, or 0: no limit but the request's. With a limit, where
 * many values are alike, some are offloaded and some computed again. */
static const signed char gckpti_search_ways[][2] = { { GCKPTI_WHOLE_PRICE, 0 },
                                                     { 1, 0 },
                                                     { 0, 0 },
                                                     { 0, 4 },
                                                     { 0, 3 },
                                                     { 0, 2 } };

GCKPTI_FN int gckpti_count_ways(const gckpti_planner *p)
{
    return p->beside ? (int)(sizeof gckpti_search_ways / sizeof *gckpti_search_ways) : 1;
}

GCKPTI_FN gckpt_result gckpti_search_open(gckpti_search *s, gckpti_planner *p, int way)
{
    const int price = gckpti_search_ways[way][0];
    const uint64_t copied = p->desc->offload_cost / 512 + 1; /* 2^10 bytes, there and back */
    const uint64_t far = p->own_work / copied * (uint64_t)gckpti_search_ways[way][1];
    memset(s, 0, sizeof *s);
    s->p = p;
    p->price = price;
    p->far = far && far < (uint64_t)(p->most_far >> 7) ? (int64_t)far << 7 : p->most_far;
    s->scratch = gckpti_scratch_new(p->memory, &p->failed);
    s->barred = -1;
    s->attempt = -1;
    for (int u = p->prologue; u < p->units; u++)
        s->late = s->late || p->when[u] > 0;
    s->whole = p->units <= GCKPTI_LITTLE;
    s->enough = s->whole ? 0 : p->least_work / 1000;
    gckpt_result result = p->most > 0 ? GCKPT_OK : gckpti_draft_mode(p, GCKPT_STORE_ALL, 0);
    if (p->most > GCKPTI_SEARCHED && p->most <= (double)GCKPTI_ADDRESSABLE)
        return gckpti_error(p->g, GCKPT_E_MEMORY,
                            "plan: %g bytes without recomputing are too many to search below; "
                            "use fewer rows",
                            p->most);
    if (p->failed || p->most > GCKPTI_SEARCHED ||
        (result != GCKPT_OK && !gckpti_too_large(p, result)))
        return GCKPT_E_MEMORY;
    s->grain = gckpti_grain(p);
    s->note = p->note;
    s->fewer = (unsigned char *)gckpti_scratch_take(&s->scratch, (size_t)p->units, 1);
    s->more = (unsigned char *)gckpti_scratch_take(&s->scratch, (size_t)p->units, 1);
    gckpti_open_bounds(p);
    if (!p->failed) {
        s->bound = &p->bound[GCKPTI_WHOLE_PRICE - price];
        gckpti_make_rungs(s, gckpti_try_late(s, s->more)); /* which has nothing to do again */
    }
    if (!p->failed)
        gckpti_offer(s, &s->rung[0]);
    gckpti_make_store_all(p);
    if (!p->failed && gckpti_take_made(s))
        gckpti_answer_store(s, &s->all, &s->now);
    if (!p->failed && s->whole)
        gckpti_find_seeds(s);
    return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
}

/* Lowers p->fast by a bisection of the rungs; what these have serves all variants of a budget. */
static gckpt_result gckpti_find_fast(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    gckpt_result result = GCKPT_OK;
    const uint64_t most = p->most_work - p->own_work;
    int low = 0, high = p->own_work > p->most_work ? 0 : s->rungs;
    for (int k = -1; low < high && result == GCKPT_OK; k = low + (high - low) / 2) {
        const size_t bytes = k < 0 ? p->fast - 1 : (size_t)s->rung[k].limit;
        int fast = k >= 0 && bytes >= p->fast;
        if (!fast && (k < 0 || gckpti_bound_time(p, (int64_t)bytes, 1) <= most)) {
            result = gckpti_choose(s, bytes);
            fast = result == GCKPT_OK && s->winner.length && s->winner.time <= most;
            p->fast = fast ? s->winner.arena : p->fast;
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
    for (int k = 0; k < gckpti_count_ways(p) && result == GCKPT_OK; k++) {
        gckpti_search s;
        result = gckpti_search_open(&s, p, k);
        if (result == GCKPT_OK && most_bytes > 0)
            result = gckpti_choose(&s, most_bytes);
        const uint64_t work = p->own_work + s.winner.time;
        int better = !found || work < p->best.work ||
                     (work == p->best.work && s.winner.arena < p->best.arena);
        if (result == GCKPT_OK && s.winner.length > 0 && better) {
            found = 1;
            *least = s.winner.arena;
            result = gckpti_lay(&s, &s.winner);
            gckpti_keep_draft(p);
        } else if (result == GCKPT_OK && !found) {
            size_t own;
            result = gckpti_find_least(&s, *least, &own);
            *least = own < *least ? own : *least;
            if (result == GCKPT_OK && p->most_work)
                result = gckpti_find_fast(&s);
        }
        gckpti_scratch_free(&s.scratch);
        if (found && p->best.work <= gckpti_prove_work(p, most_bytes))
            break;
    }
    if (result == GCKPT_OK && *least == SIZE_MAX)
        result = GCKPT_E_MEMORY; /* none that this machine can address: the error is there */
    return result;
}
#endif
