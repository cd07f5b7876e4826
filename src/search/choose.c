#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- exact bytes of a schedule ---- */
/* Drafts and places an answer's schedule: p->draft, answer->arena, answer->time. What this
 * machine cannot address is no error here: GCKPT_OK, an arena of SIZE_MAX. */
GCKPTI_FN gckpt_result gckpti_lay(gckpti_search *s, gckpti_answer *answer)
{
    gckpti_planner *p = s->p;
    gckpti_unwant(&s->scratch, &s->move); /* a draft takes as much, and needs no moves */
    gckpti_unwant(&s->scratch, &s->sorted);
    gckpti_unwant(&s->scratch, &s->key);
    gckpti_unwant(&s->scratch, &s->set);
    gckpti_unwant(&s->scratch, &s->room.node);
    gckpt_result result = gckpti_draft_runs(p, answer->run, answer->length);
    int large = gckpti_too_large(p, result);
    if (result == GCKPT_OK)
        result = gckpti_place_draft(p);
    answer->arena = large ? SIZE_MAX : p->draft.arena;
    answer->time = p->draft.work - p->own_work;
    return large ? GCKPT_OK : result;
}

/* ---- what counts for a budget, and what is found ---- */
/* Whether nothing has gone wrong so far. */
static int gckpti_is_well(const gckpti_search *s) { return s->result == GCKPT_OK && !s->p->failed; }

/* Lays out what an answer has, if nobody has. */
static void gckpti_lay_once(gckpti_search *s, gckpti_answer *answer)
{
    if (gckpti_is_well(s) && answer->length && answer->arena == 0)
        s->result = gckpti_lay(s, answer);
}

/* What a schedule takes at least, whatever it hides. */
static uint64_t gckpti_least_time(const gckpti_search *s, uint64_t extra, uint64_t again)
{
    return s->p->beside ? again : extra;
}

/* Whether an answer, of which the arena need not be known, is no better than the winner, or larger
 * than `most` bytes. */
static int gckpti_is_useless(const gckpti_search *s, const gckpti_answer *answer, size_t most)
{
    const gckpti_answer *old = &s->winner;
    const uint64_t known = gckpti_least_time(s, answer->extra, answer->again);
    const int64_t least = answer->peak - s->bound->spare; /* bytes of its arena */
    return least > (int64_t)most ||
           (old->length && !s->hunting && known > old->time) ||
           (old->length && least >= (int64_t)old->arena && (s->hunting || known == old->time));
}

/* Makes an answer the winner if its arena has at most `most` bytes and at least `floor`, and it has
 * less work (or time) than the one before, or as much in fewer bytes; s->hunting: fewer bytes. */
static void gckpti_consider(gckpti_search *s, gckpti_answer *answer, size_t floor, size_t most)
{
    const gckpti_answer *old = &s->winner;
    if (!gckpti_is_well(s) || answer->length == 0 || gckpti_is_useless(s, answer, most))
        return;
    gckpti_lay_once(s, answer);
    int better = !old->length || (s->hunting ? answer->arena < old->arena
                                             : answer->time < old->time ||
                                                   (answer->time == old->time &&
                                                    gckpti_answer_before(answer, old, NULL)));
    if (gckpti_is_well(s) && answer->arena >= floor && answer->arena <= most && better)
        s->winner = *answer;
}

/* The least budget for which rung k counts: the least that rounded up is the rung below's limit. */
static size_t gckpti_below(const gckpti_search *s, int k)
{
    int64_t limit = k + 1 < s->rungs && !s->whole ? s->rung[k + 1].limit : 0;
    return limit > s->bound->spare ? (size_t)(limit - s->bound->spare) : 0;
}

/* Solves rung k and places what it has: its schedule and, when that has a larger arena than the
 * limit, the same squeezed a little further, if that takes no less work: a rung whose schedule is
 * of no use is not laid, so that no such one may be missed. */
static void gckpti_lay_rung(gckpti_search *s, int k)
{
    gckpti_solve(s, k);
    gckpti_answer *answer = &s->rung[k];
    gckpti_lay_once(s, answer);
    if (answer->arena <= (size_t)answer->limit || answer->arena == SIZE_MAX || answer->tight)
        return;
    answer->tight = (gckpti_answer *)gckpti_scratch_take(&s->scratch, 1, sizeof *answer);
    if (answer->tight && gckpti_press(s, answer, 2 * answer->limit - (int64_t)answer->arena) &&
        (s->whole || gckpti_least_time(s, s->now.extra, s->now.again) >=
                         gckpti_least_time(s, answer->extra, answer->again))) {
        gckpti_answer_store(s, answer->tight, &s->now);
        gckpti_lay_once(s, answer->tight);
    }
}

/* Considers an answer with what it copies hidden, within so many live bytes. */
static void gckpti_consider_ahead(gckpti_search *s, gckpti_answer *answer, int64_t limit,
                                  size_t floor, size_t most)
{
    if (!s->p->beside || answer->length == 0 || answer->moved == 0)
        return;
    if (!answer->ahead)
        gckpti_hide(s, answer, limit);
    if (answer->ahead)
        gckpti_consider(s, answer->ahead, floor, most);
}

/* Whether what rung k has, which is laid, fits into its own limit. */
static int gckpti_serves(const gckpti_search *s, int k)
{
    const gckpti_answer *answer = &s->rung[k], *tight = answer->tight ? answer->tight : answer;
    const size_t most = (size_t)(answer->limit - s->bound->spare);
    return (answer->length && answer->arena <= most) || (tight->length && tight->arena <= most);
}

/* Considers seeds of some rungs, k and those below; of k alone: those that its limit has room for
 * and that of the next rung has not. */
static void gckpti_consider_seeds(gckpti_search *s, int k, int alone, size_t most)
{
    const int64_t high = s->whole ? INT64_MAX : s->rung[k].limit;
    const int64_t low = !s->whole && alone && k + 1 < s->rungs ? s->rung[k + 1].limit : -1;
    if (s->seeds == 0 && gckpti_is_well(s))
        gckpti_find_seeds(s);
    for (int i = 0; i < s->seeds; i++)
        if (s->seed[i].peak <= high && s->seed[i].peak > low) {
            gckpti_consider(s, &s->seed[i], 0, most);
            gckpti_consider_ahead(s, &s->seed[i], s->seed[i].peak, 0, most);
        }
}

/* Considers what rung k offers: what it has, unless that fits into the rung below, which then has
 * better or what is all but the best possible; and, where it is not certified or is one of the
 * lowest, the seeds between the two. */
static void gckpti_consider_rung(gckpti_search *s, int k, int lowest, size_t most)
{
    gckpti_answer *answer = &s->rung[k];
    gckpti_solve(s, k);
    if (s->whole || answer->length == 0 || !gckpti_is_useless(s, answer, SIZE_MAX / 4)) {
        gckpti_lay_rung(s, k);
        gckpti_consider(s, answer, gckpti_below(s, k), most);
        if (answer->tight)
            gckpti_consider(s, answer->tight, gckpti_below(s, k), most);
        gckpti_consider_ahead(s, answer, answer->limit, gckpti_below(s, k), most);
    }
    if (s->whole || lowest || !gckpti_certified(s, answer))
        gckpti_consider_seeds(s, k, 1, most);
}

/* Bytes that a cut may keep though they are not there at its instant, the nth backward: what runs
 * for the first time later, what gckpt_recompute lets go, and what is offloaded with its other
 * part. */
static int64_t gckpti_absent(const gckpti_planner *p, int nth)
{
    int64_t bytes = 0;
    for (int u = p->prologue; u < p->units; u++)
        if (p->when[u] > nth || p->unit[u].recompute ||
            (p->unit[u].offloads && p->unit[u].out && p->unit[u].aux))
            bytes += p->unit[u].out + p->unit[u].aux;
    return bytes;
}

/* Considers cuts of an instant themselves, those with least work first that may lie within `most`
 * bytes. */
static void gckpti_consider_cuts(gckpti_search *s, int at, size_t most)
{
    gckpti_instant *t = &s->bound->instant[at];
    const gckpti_cut_table *cuts = gckpti_cuts(s->bound, t, GCKPTI_ALL);
    const gckpti_kept_list *all = &cuts->last;
    const int64_t limit = (int64_t)gckpti_round_up(most, s->p->alignment);
    const int64_t absent = gckpti_absent(s->p, t->nth);
    const int64_t room = limit - t->gradients + absent;
    if (!s->known[at] && all->n > 0)
        s->known[at] =
            (gckpti_known *)gckpti_scratch_take(&s->scratch, (size_t)all->n, sizeof *s->known[at]);
    gckpti_known *known = s->known[at];
    for (int e = gckpti_cut_within(all, room); known && e >= 0 && gckpti_is_well(s); e--) {
        if (s->winner.length && !s->hunting && !s->late && gckpti_cut_work(t, e) >= s->winner.extra)
            break;
        if (known[e].arena > most || known[e].peak > limit)
            continue;
        known[e].peak = gckpti_try_cut(s, cuts, e);
        if (!s->late && s->now.extra < gckpti_cut_work(t, e))
            known[e].peak = INT64_MAX; /* with less offloaded: another cut, or it would not count */
        if (known[e].peak > limit || s->p->failed)
            continue;
        gckpti_answer_store(s, &s->trial, &s->now);
        int64_t floor = all->cut[e].bytes + t->gradients - absent - s->bound->spare;
        /* in fewer bytes it is no cut */
        gckpti_consider(s, &s->trial, floor > 0 ? (size_t)floor : 0, most);
        known[e].arena = s->trial.arena;
        if (s->winner.run == s->trial.run)
            memset(&s->trial, 0, sizeof s->trial); /* the winner keeps the list */
    }
}

/* Considers cuts of all instants that decide for some budget; not for time, their order is that of
 * work. */
static void gckpti_consider_instants(gckpti_search *s, size_t most)
{
    for (int at = 0; at < s->bound->instants && gckpti_is_well(s) && !s->p->beside; at++)
        if (s->deciders >> at & 1)
            gckpti_consider_cuts(s, at, most);
}

/* Whether rung k serves, and what fits into its limit has no less work than the winner. */
static int gckpti_is_behind(const gckpti_search *s, int k)
{
    return s->winner.length && gckpti_serves(s, k) &&
           s->winner.time <= gckpti_bound_time(s->p, s->rung[k].limit, 1);
}

/* Considers the seeds of the lowest rungs, which count whatever is proven: of the last one up to
 * the first that serves, which is behind rung i, or between k and that. What has no less work than
 * a rung proves needs no seeds of that or of one below. */
static void gckpti_consider_lowest(gckpti_search *s, int k, int i, size_t most)
{
    int low = -1;
    for (int x = i; x < s->rungs; x++)
        if (s->rung[x].arena && gckpti_is_behind(s, x))
            return;
    for (int x = i; x < s->rungs && gckpti_is_well(s); x++) {
        gckpti_lay_rung(s, x);
        low = gckpti_serves(s, x) ? x : low;
        if (low == x && gckpti_is_behind(s, x))
            return;
    }
    for (int x = i; low < 0 && x-- > k && gckpti_is_well(s);) {
        gckpti_lay_rung(s, x);
        low = gckpti_serves(s, x) ? x : low;
    }
    gckpti_consider_seeds(s, low < 0 ? k : low, 0, most);
}

GCKPTI_FN gckpt_result gckpti_choose(gckpti_search *s, size_t most)
{
    int k = 0;
    most = most < PTRDIFF_MAX / 2 ? most : PTRDIFF_MAX / 2;
    const int64_t limit = (int64_t)gckpti_round_up(most, s->p->alignment);
    memset(&s->winner, 0, sizeof s->winner);
    s->hunting = 0;
    while (k < s->rungs && s->rung[k].limit > limit)
        k++;
    k = s->whole || k == 0 ? 0 : k - 1;
    uint64_t bound = gckpti_bound_time(s->p, limit, 1);
    gckpti_consider(s, &s->all, 0, most); /* has the work of some that have larger arenas */
    int i = k, proven = s->winner.length && s->winner.time <= bound;
    for (; i < s->rungs && !proven && gckpti_is_well(s); i++) {
        if (s->rung[i].limit <= limit)
            bound = gckpti_bound_time(s->p, s->rung[i].limit, 1);
        if (bound == UINT64_MAX || (s->winner.length && s->winner.time <= bound))
            break;
        gckpti_consider_rung(s, i, 0, most);
    }
    if (gckpti_is_well(s) && !proven && !s->whole)
        gckpti_consider_lowest(s, k, i, most);
    gckpti_consider_instants(s, most);
    return s->p->failed ? GCKPT_E_MEMORY : s->result;
}

GCKPTI_FN gckpt_result gckpti_find_least(gckpti_search *s, size_t enough, size_t *least)
{
    const size_t most = SIZE_MAX / 4;
    int lowest = 1;
    memset(&s->winner, 0, sizeof s->winner);
    s->hunting = 1;
    for (int k = s->rungs; k-- > 0 && gckpti_is_well(s) && gckpti_below(s, k) < enough;) {
        gckpti_consider_rung(s, k, lowest, most);
        lowest = lowest && !gckpti_serves(s, k);
        if (s->winner.length && !s->whole &&
            (int64_t)s->winner.arena + s->bound->spare <= s->rung[k].limit)
            break;
    }
    if (s->winner.length)
        gckpti_consider_instants(s, s->winner.arena - 1);
    *least = s->winner.length ? s->winner.arena : SIZE_MAX;
    return s->p->failed ? GCKPT_E_MEMORY : s->result;
}
#endif
