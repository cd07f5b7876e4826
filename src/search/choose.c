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
    gckpti_release(&s->scratch, &s->pool);
    gckpti_release(&s->scratch, &s->slack.min);
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

/* Places a candidate unless it is placed or empty. */
static void gckpti_place_once(gckpti_search *s, gckpti_candidate *candidate)
{
    if (gckpti_is_ok(s) && candidate->length && candidate->arena == 0)
        s->result = gckpti_place_candidate(s, candidate);
}

/* Returns the least time above base_cost of a schedule with these costs: all copies overlap. */
static uint64_t gckpti_min_time(const gckpti_search *s, uint64_t overhead, uint64_t recompute_cost)
{
    return s->p->overlap ? recompute_cost : overhead;
}

/* Returns whether a candidate is no better than the winner, or larger than `most` bytes. */
static int gckpti_is_useless(const gckpti_search *s, const gckpti_candidate *candidate, size_t most)
{
    const gckpti_candidate *old = &s->winner;
    const uint64_t cost = gckpti_min_time(s, candidate->overhead, candidate->recompute_cost);
    const int64_t least = candidate->peak - s->bound->padding; /* least bytes of its arena */
    return least > (int64_t)most || (old->length && !s->minimise_bytes && cost > old->time) ||
           (old->length && least >= (int64_t)old->arena &&
            (s->minimise_bytes || cost == old->time));
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
    int better =
        !old->length || (s->minimise_bytes ? candidate->arena < old->arena
                                           : candidate->time < old->time ||
                                                 (candidate->time == old->time &&
                                                  gckpti_candidate_before(candidate, old, NULL)));
    if (gckpti_is_ok(s) && candidate->arena >= lower && candidate->arena <= most && better)
        s->winner = *candidate;
}

/* Returns the least budget that considers level k: the limit of the next lower level, rounded. */
static size_t gckpti_min_budget(const gckpti_search *s, int k)
{
    int64_t limit = k + 1 < s->levels && !s->tiny ? s->level[k + 1].limit : 0;
    return limit > s->bound->padding ? (size_t)(limit - s->bound->padding) : 0;
}

/* Solves level k and places its schedule. If its arena exceeds the limit, places also (`tight`) a
 * copy with a further reduced peak, if that costs no less: levels that cannot win are never placed,
 * and a cheaper schedule must not be missed. */
static void gckpti_place_level(gckpti_search *s, int k)
{
    gckpti_solve_level(s, k);
    gckpti_candidate *level = &s->level[k];
    gckpti_place_once(s, level);
    if (level->arena <= (size_t)level->limit || level->arena == SIZE_MAX || level->tight)
        return;
    level->tight = (gckpti_candidate *)gckpti_scratch_alloc(&s->scratch, 1, sizeof *level);
    if (level->tight && gckpti_reduce_to(s, level, 2 * level->limit - (int64_t)level->arena) &&
        (s->tiny || gckpti_min_time(s, s->now.overhead, s->now.recompute_cost) >=
                        gckpti_min_time(s, level->overhead, level->recompute_cost))) {
        gckpti_candidate_store(s, level->tight, &s->now);
        gckpti_place_once(s, level->tight);
    }
}

/* Considers a candidate with its copies overlapped as far as `limit` live bytes allow. */
static void gckpti_consider_hidden(gckpti_search *s, gckpti_candidate *candidate, int64_t limit,
                                   size_t lower, size_t most)
{
    if (!s->p->overlap || candidate->length == 0 || candidate->transfer_cost == 0)
        return;
    if (!candidate->hidden)
        gckpti_hide_copies(s, candidate, limit);
    if (candidate->hidden)
        gckpti_consider(s, candidate->hidden, lower, most);
}

/* Returns whether level k's schedule, or its tight one, has an arena within the level's limit. */
static int gckpti_level_fits(const gckpti_search *s, int k)
{
    const gckpti_candidate *level = &s->level[k], *tight = level->tight ? level->tight : level;
    const size_t most = (size_t)(level->limit - s->bound->padding);
    return (level->length && level->arena <= most) || (tight->length && tight->arena <= most);
}

/* Considers initials within level k's limit; if `alone` is 1, none within level k + 1's limit. */
static void gckpti_consider_initials(gckpti_search *s, int k, int alone, size_t most)
{
    const int64_t high = s->tiny ? INT64_MAX : s->level[k].limit;
    const int64_t low = !s->tiny && alone && k + 1 < s->levels ? s->level[k + 1].limit : -1;
    if (s->initials == 0 && gckpti_is_ok(s))
        gckpti_find_initials(s);
    for (int i = 0; i < s->initials; i++)
        if (s->initial[i].peak <= high && s->initial[i].peak > low) {
            gckpti_consider(s, &s->initial[i], 0, most);
            gckpti_consider_hidden(s, &s->initial[i], s->initial[i].peak, 0, most);
        }
}

/* Considers level k's schedule, unless it also fits the next lower level. If it is not near-optimal
 * or k is one of the lowest levels, considers the initials between the limits of both levels. */
static void gckpti_consider_level(gckpti_search *s, int k, int lowest, size_t most)
{
    gckpti_candidate *level = &s->level[k];
    gckpti_solve_level(s, k);
    if (s->tiny || level->length == 0 || !gckpti_is_useless(s, level, SIZE_MAX / 4)) {
        gckpti_place_level(s, k);
        gckpti_consider(s, level, gckpti_min_budget(s, k), most);
        if (level->tight)
            gckpti_consider(s, level->tight, gckpti_min_budget(s, k), most);
        gckpti_consider_hidden(s, level, level->limit, gckpti_min_budget(s, k), most);
    }
    if (s->tiny || lowest || !gckpti_is_proven(s, level))
        gckpti_consider_initials(s, k, 1, most);
}

/* Returns bytes that a cut may count as kept although they are not live at its point: of nodes that
 * first run later, that gckpt_recompute drops, or that are offloaded in part. */
static int64_t gckpti_absent_bytes(const gckpti_planner *p, int backward_index)
{
    int64_t bytes = 0;
    for (int u = p->prologue; u < p->nodes; u++)
        if (p->needed_by[u] > backward_index || p->node[u].must_recompute ||
            (p->node[u].can_offload && p->node[u].out && p->node[u].saved))
            bytes += p->node[u].out + p->node[u].saved;
    return bytes;
}

/* Considers the cuts of a point that may fit `most` bytes, those of least cost first. */
static void gckpti_consider_cuts(gckpti_search *s, int index, size_t most)
{
    gckpti_cut_point *point = &s->bound->point[index];
    const gckpti_cut_table *cuts = gckpti_cuts(s->bound, point, GCKPTI_FULL);
    const gckpti_cut_list *all = &cuts->last;
    const int64_t limit = (int64_t)gckpti_round_up(most, s->p->alignment);
    const int64_t absent = gckpti_absent_bytes(s->p, point->backward_index);
    const int64_t space = limit - point->base + absent;
    if (!s->tried[index] && all->n > 0)
        s->tried[index] = (gckpti_tried *)gckpti_scratch_alloc(&s->scratch, (size_t)all->n,
                                                               sizeof *s->tried[index]);
    gckpti_tried *known = s->tried[index];
    for (int e = gckpti_cut_within(all, space); known && e >= 0 && gckpti_is_ok(s); e--) {
        if (s->winner.length && !s->minimise_bytes && !s->late &&
            gckpti_cut_cost(point, e) >= s->winner.overhead)
            break;
        if (known[e].arena > most || known[e].peak > limit)
            continue;
        known[e].peak = gckpti_try_cut(s, cuts, e);
        if (!s->late && s->now.overhead < gckpti_cut_cost(point, e))
            known[e].peak = INT64_MAX; /* offloads less than the cut: another cut, or useless */
        if (known[e].peak > limit || s->p->failed)
            continue;
        gckpti_candidate_store(s, &s->trial, &s->now);
        int64_t lower = all->cut[e].bytes + point->base - absent - s->bound->padding;
        /* with fewer bytes the schedule would belong to another cut */
        gckpti_consider(s, &s->trial, lower > 0 ? (size_t)lower : 0, most);
        known[e].arena = s->trial.arena;
        if (s->winner.span == s->trial.span)
            memset(&s->trial, 0, sizeof s->trial); /* now the winner owns the spans */
    }
}

/* Considers cuts of points whose bound is the largest at some level; none if copies overlap. */
static void gckpti_consider_points(gckpti_search *s, size_t most)
{
    for (int index = 0; index < s->bound->points && gckpti_is_ok(s) && !s->p->overlap; index++)
        if (s->decider_bits >> index & 1)
            gckpti_consider_cuts(s, index, most);
}

/* Returns whether level k fits its limit and no schedule within it is better than the winner. */
static int gckpti_is_level_beaten(const gckpti_search *s, int k)
{
    return s->winner.length && gckpti_level_fits(s, k) &&
           s->winner.time <= gckpti_bound_time(s->p, s->level[k].limit, 1);
}

/* Considers, for every budget, the initials of the lowest levels: from the last level up to the
 * first that fits its own limit (from i on, else from k). None if a level is proven no better. */
static void gckpti_consider_lowest(gckpti_search *s, int k, int i, size_t most)
{
    int low = -1;
    for (int x = i; x < s->levels; x++)
        if (s->level[x].arena && gckpti_is_level_beaten(s, x))
            return;
    for (int x = i; x < s->levels && gckpti_is_ok(s); x++) {
        gckpti_place_level(s, x);
        low = gckpti_level_fits(s, x) ? x : low;
        if (low == x && gckpti_is_level_beaten(s, x))
            return;
    }
    for (int x = i; low < 0 && x-- > k && gckpti_is_ok(s);) {
        gckpti_place_level(s, x);
        low = gckpti_level_fits(s, x) ? x : low;
    }
    gckpti_consider_initials(s, low < 0 ? k : low, 0, most);
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
    k = s->tiny || k == 0 ? 0 : k - 1;
    uint64_t bound = gckpti_bound_time(s->p, limit, 1);
    gckpti_consider(s, &s->store_all, 0, most); /* may equal the cost of larger candidates */
    int i = k, proven = s->winner.length && s->winner.time <= bound;
    for (; i < s->levels && !proven && gckpti_is_ok(s); i++) {
        if (s->level[i].limit <= limit)
            bound = gckpti_bound_time(s->p, s->level[i].limit, 1);
        if (bound == UINT64_MAX || (s->winner.length && s->winner.time <= bound))
            break;
        gckpti_consider_level(s, i, 0, most);
    }
    if (gckpti_is_ok(s) && !proven && !s->tiny)
        gckpti_consider_lowest(s, k, i, most);
    gckpti_consider_points(s, most);
    return s->p->failed ? GCKPT_E_MEMORY : s->result;
}

GCKPTI_FN gckpt_result gckpti_find_min_budget(gckpti_search *s, size_t upper, size_t *least)
{
    const size_t most = SIZE_MAX / 4;
    int lowest = 1;
    memset(&s->winner, 0, sizeof s->winner);
    s->minimise_bytes = 1;
    for (int k = s->levels; k-- > 0 && gckpti_is_ok(s) && gckpti_min_budget(s, k) < upper;) {
        gckpti_consider_level(s, k, lowest, most);
        lowest = lowest && !gckpti_level_fits(s, k);
        if (s->winner.length && !s->tiny &&
            (int64_t)s->winner.arena + s->bound->padding <= s->level[k].limit)
            break;
    }
    if (s->winner.length)
        gckpti_consider_points(s, s->winner.arena - 1);
    *least = s->winner.length ? s->winner.arena : SIZE_MAX;
    return s->p->failed ? GCKPT_E_MEMORY : s->result;
}
#endif
