#include "search/own.h"
#include "base/base.h"
#include "num/num.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- cuts as schedules, and a rung's schedule by cuts ---- */
/* Writes the body that computes all, as late as it is needed, keeps through the turn what `again`
 * does not mark, and computes or reloads the rest just before the first backward that needs it. */
static void gckpti_make_again(gckpti_planner *p, const unsigned char *again)
{
    int *stack = p->queue, next = p->prologue;
    unsigned char *there = p->computed;
    for (int u = 0; u < p->units; u++)
        there[u] = !again[u] || p->when[u] > 0;
    for (int r = 0; r < p->body_backwards; r++) {
        const gckpti_unit *u = &p->unit[p->backward[r]];
        gckpti_emit_late(p, &next, r);
        for (int k = 0; k < u->reads + u->reads_aux; k++) {
            int depth = 1;
            stack[0] = k < u->reads ? p->links[u->read + k] : p->backward[r];
            while (depth > 0) {
                const gckpti_unit *q = &p->unit[stack[depth - 1]];
                int missing = -1, far = again[stack[depth - 1]] == GCKPTI_FAR;
                for (int i = q->in; i < q->in + q->inputs && missing < 0 && !far; i++)
                    missing = there[p->links[i]] ? -1 : p->links[i];
                if (there[stack[depth - 1]]) {
                    depth--;
                } else if (missing >= 0) {
                    stack[depth++] = missing;
                } else {
                    there[stack[--depth]] = 1;
                    gckpti_emit(p, stack[depth] + (far ? p->units : 0));
                }
            }
        }
        gckpti_emit(p, ~p->backward[r]);
    }
    gckpti_emit_late(p, &next, INT32_MAX); /* losses, where nothing has a backward */
}

/* Where a cut offloads more than slower memory holds, those that cost least to compute again, by
 * byte, are computed again (or kept, if they may not be). */
static void gckpti_limit_far(gckpti_search *s, unsigned char *again)
{
    const gckpti_planner *p = s->p;
    int64_t far = 0;
    size_t n = 0;
    if (!gckpti_want(&s->scratch, &s->key, 2 * (size_t)p->units, sizeof *s->key))
        return;
    for (int u = 0; u < p->units && p->offloads; u++) {
        int64_t bytes = again[u] == GCKPTI_FAR ? p->unit[u].out + p->unit[u].aux : 0;
        if (!bytes)
            continue;
        far += bytes;
        s->key[n].item = u;
        s->key[n++].key = p->unit[u].fixed ? UINT64_MAX : gckpti_score(p->unit[u].cost, bytes);
    }
    if (far <= p->far)
        return;
    gckpti_sort_keys(s->key, s->key + n, n);
    for (size_t k = 0; k < n && far > p->far; k++) {
        const gckpti_unit *u = &p->unit[s->key[k].item];
        again[s->key[k].item] = u->fixed ? 0 : GCKPTI_AGAIN;
        far -= u->out + u->aux;
    }
}

/* Makes the present schedule of what a cut marks. Returns its peak; INT64_MAX: out of memory. */
GCKPTI_FN int64_t gckpti_try_late(gckpti_search *s, unsigned char *again)
{
    gckpti_planner *p = s->p;
    gckpti_limit_far(s, again);
    gckpti_make_again(p, again);
    return gckpti_take_made(s) ? s->now.peak : INT64_MAX;
}

/* The present schedule is that of a cut. Returns its peak. */
GCKPTI_FN int64_t gckpti_try_cut(gckpti_search *s, const gckpti_cut_table *table, int cut)
{
    gckpti_cut_mark(s->bound, table, cut);
    return gckpti_try_late(s, s->bound->again);
}

/* An answer's schedule from all cuts of the instant that decides: the first that fits; else, or
 * when it is not good enough, one that keeps a little more (three for a small graph), squeezed. */
static void gckpti_solve_counted(gckpti_search *s, gckpti_answer *answer, const gckpti_instant *t)
{
    const gckpti_cut_table *all = &t->table[GCKPTI_ALL];
    int64_t room = answer->limit - t->gradients;
    const int small = s->p->units <= GCKPTI_SMALL;
    int cut = gckpti_cut_within(&all->last, room), fits = 0;
    for (int tried = 0; cut >= 0 && tried < 6 && !fits && !s->p->failed; cut--, tried++) {
        fits = gckpti_try_cut(s, all, cut) <= answer->limit;
        if (fits)
            gckpti_offer(s, answer);
        if ((fits || tried == 0) && !gckpti_certified(s, answer))
            gckpti_improve(s, answer, 0);
    }
    for (int part = small ? 80 : 40; part >= (small ? 20 : 40); part /= 2) {
        if (gckpti_certified(s, answer))
            return;
        cut = gckpti_cut_within(&all->last, room + answer->limit / part);
        if (cut < 0)
            continue;
        gckpti_try_cut(s, all, cut);
        gckpti_improve(s, answer, 0);
    }
}

/* Marks in `out` what is computed again when of the ties between two cuts of a hull, from the last
 * unit to the first, `bytes` are kept: as late as possible (way 0), with gaps that grow with the
 * root of what the backwards have freed (1), or evenly (2). */
static void gckpti_keep_ties(gckpti_search *s, int way, int64_t ties, int64_t bytes,
                             unsigned char *out)
{
    const gckpti_planner *p = s->p;
    int64_t seen = 0, kept = 0;
    int shift = 0;
    while (ties >> shift >= 1 << 20)
        shift++;
    memcpy(out, s->fewer, (size_t)p->units);
    for (int u = p->units; u-- > 0;) {
        int64_t size = p->unit[u].out + p->unit[u].aux, now = (kept + size) >> shift;
        if (!s->fewer[u] || s->more[u])
            continue;
        seen += size;
        int64_t most = bytes >> shift, all = ties >> shift, part = seen >> shift;
        if (way == 0   ? kept + size > bytes
            : way == 1 ? now * now * (all + 1) > most * most * (part + 1)
                       : now * (all + 1) > most * (part + 1))
            continue;
        kept += size;
        out[u] = 0;
    }
}

/* An answer's schedule from the two cuts of a hull around its limit: what one keeps and the other
 * does not may be kept in part; with gaps that grow only, where all cuts were tried. */
static void gckpti_solve_ties(gckpti_search *s, gckpti_answer *answer, const gckpti_instant *t,
                              const gckpti_cut_table *cuts)
{
    const gckpti_kept_list *hull = &cuts->last;
    int64_t room = answer->limit - t->gradients, ties = 0;
    const int one = s->p->units > GCKPTI_SMALL && t->table[GCKPTI_ALL].last.n && !s->p->offloads;
    int cut = gckpti_cut_within(hull, room);
    if (cut < 0)
        return;
    gckpti_cut_mark(s->bound, cuts, cut);
    memcpy(s->fewer, s->bound->again, (size_t)s->p->units);
    memset(s->more, 0, (size_t)s->p->units);
    if (cut + 1 < hull->n) {
        gckpti_cut_mark(s->bound, cuts, cut + 1);
        memcpy(s->more, s->bound->again, (size_t)s->p->units);
    }
    for (int u = 0; u < s->p->units; u++)
        ties += s->fewer[u] && !s->more[u] ? s->p->unit[u].out + s->p->unit[u].aux : 0;
    for (int way = one; way < (one ? 2 : 3) && !s->p->failed; way++) {
        int64_t bytes = room - hull->cut[cut].bytes, over = 0;
        for (int tries = 0; tries < 2 && bytes >= 0; tries++, bytes -= over) {
            if (gckpti_certified(s, answer) || gckpti_spent(s))
                return;
            gckpti_keep_ties(s, way, ties, bytes < ties ? bytes : ties, s->bound->again);
            over = gckpti_try_late(s, s->bound->again) - answer->limit;
            if (over > answer->limit / 4)
                return; /* far above whatever is kept */
            gckpti_improve(s, answer, 0);
            if (over <= 0)
                break;
        }
    }
}

/* ---- seeds: schedules that know no limit, made once (search/search) ---- */
enum { GCKPTI_SINKS = 16 }; /* most seeds that are squeezed a little */

/* Orders seeds: by live bytes, then work. */
static int gckpti_seed_before(const void *first, const void *second, const void *context)
{
    const gckpti_answer *a = (const gckpti_answer *)first, *b = (const gckpti_answer *)second;
    return a->peak != b->peak     ? a->peak < b->peak
           : a->extra != b->extra ? a->extra < b->extra
                                  : gckpti_answer_before(a, b, context);
}

/* Where bytes are fewest, a little less may lead far: seeds squeezed by 1/1000 are seeds, too. */
static void gckpti_sink_seeds(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    uint64_t least = UINT64_MAX;
    for (int i = 0, tried = 0, n = s->seeds; i < n && tried < GCKPTI_SINKS && !p->failed; i++) {
        const gckpti_answer *seed = &s->seed[i];
        if (seed->between || seed->extra / 8 * 7 >= least || seed->extra < p->least_work / 4 ||
            seed->extra / 4 > p->least_work)
            continue;
        least = seed->extra < least ? seed->extra : least;
        tried++;
        int64_t limit = seed->peak - (seed->peak - p->gradient_between[0]) / 1000 - 1;
        gckpti_answer *answer =
            gckpti_press(s, seed, limit) ? gckpti_answer_new(s, &s->seed, &s->seeds) : NULL;
        if (answer)
            gckpti_answer_store(s, answer, &s->now);
    }
    gckpti_sort(s->seed, (size_t)s->seeds, sizeof *s->seed, gckpti_seed_before, NULL);
}

/* Store-all, the same with late forwards, uniform segments, the user's, the chain's, memory-poor;
 * the user's and the chain's for backwards in order 0. */
GCKPTI_FN void gckpti_find_seeds(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    size_t n = (size_t)p->body_count, groups = n + (size_t)p->g->outermost;
    s->items = s->looked = 0;
    gckpti_make_store_all(p);
    gckpti_seed(s, 0);
    int64_t most = s->seed ? s->seed[0].peak - p->gradient_between[0] : 0;
    gckpti_make_late(p, 0);
    gckpti_seed(s, 0);
    for (size_t i = 0; i <= groups && !p->failed; i++) {
        int group = i < groups ? gckpti_group(p, i) : 0;
        if ((i >= n && p->variant.order) || (i < groups && !group))
            continue;
        gckpti_make_segments(p, group);
        gckpti_seed(s, 0);
    }
    for (int how = 0, finer = 0; how < GCKPTI_BORDERS && !p->variant.order && !p->failed; how++) {
        if (how == GCKPTI_AT_UNITS && p->units > (finer ? GCKPTI_SMALL : GCKPTI_POOR))
            break;
        finer = gckpti_seed_chain(s, how, most);
    }
    if (s->p->units <= GCKPTI_POOR && !p->failed) {
        gckpti_make_late(p, -1);
        gckpti_seed(s, 0);
    }
    gckpti_sort(s->seed, (size_t)s->seeds, sizeof *s->seed, gckpti_seed_before, NULL);
    gckpti_sink_seeds(s);
}

/* ---- the ladder: its rungs, and what is done to solve one ---- */
/* Most units for which every single move is tried; seeds that a rung polishes exactly; how often it
 * is shaken; rungs that depend on one another, at the most. */
enum { GCKPTI_EXACT = 32, GCKPTI_TRIED = 12, GCKPTI_SHAKES = 4, GCKPTI_GROUP = 4 };

/* The limits: from store-all's bytes down to what is proven to be needed, each a little below the
 * one above. Rungs never depend on a budget. */
GCKPTI_FN void gckpti_make_rungs(gckpti_search *s, int64_t most)
{
    int64_t resident = s->p->gradient_between[0], least = s->bound->least;
    int units = s->p->units, part = units <= 300 ? 40 : units <= GCKPTI_MANY ? 25 : 12, at;
    int every = (most - least) / s->grain <= 96, fine = !every && part == 25;
    uint64_t deep = gckpti_hulls_work(s->bound, least, &at) / 8 * 7;
    for (int64_t limit = most, next; limit >= least; limit = next) {
        int64_t step = every ? s->grain : (limit - resident) / part, parts = 1;
        const uint64_t work = gckpti_hulls_work(s->bound, limit, &at);
        if (!every && work > deep)
            step *= units <= 300 ? 2 : 3;  /* where proofs are weak, rungs are dear */
        step = step / s->grain * s->grain; /* as live bytes are */
        step = step > 0 ? step : s->grain;
        next = limit - least > step ? limit - step : limit > least ? least : least - 1;
        while (fine && next >= least && parts < 8 && /* steep, and no list of all cuts */
               gckpti_hulls_work(s->bound, next, &at) - work > (uint64_t)parts * 2 * s->enough)
            parts *= 2;
        step = (limit - next) / parts / s->grain * s->grain;
        for (int k = 0; k < parts && (k == 0 || step > 0); k++) {
            gckpti_answer *answer = gckpti_answer_new(s, &s->rung, &s->rungs);
            if (!answer)
                return;
            answer->limit = limit - k * step;
        }
    }
    for (int k = 0; k < s->rungs; k++)
        if (gckpti_hulls_work(s->bound, s->rung[k].limit, &at) < UINT64_MAX)
            s->deciders |= 1u << at;
}

/* Begins a rung: what its limit proves, and what cuts find. Returns whether more may be found. */
static int gckpti_begin_rung(gckpti_search *s, gckpti_answer *answer)
{
    int at;
    if (answer->state != GCKPTI_NEW)
        return answer->state == GCKPTI_BEGUN;
    s->items = s->looked = 0;
    answer->state = GCKPTI_BEGUN;
    answer->bound = gckpti_bound_work(s->bound, answer->limit, &at);
    if (answer->bound < UINT64_MAX && s->bound->instants > 0) {
        gckpti_instant *t = &s->bound->instant[at];
        gckpti_solve_counted(s, answer, t);
        for (int c = 0; c < (s->p->offloads ? GCKPTI_ALL : 1) && !gckpti_certified(s, answer); c++)
            gckpti_solve_ties(s, answer, t, gckpti_cuts(s->bound, t, c));
    }
    if (answer->bound == UINT64_MAX || gckpti_certified(s, answer))
        answer->state = GCKPTI_DONE;
    return answer->state == GCKPTI_BEGUN;
}

/* Whether a rung takes up what the one above found. */
static int gckpti_follows(const gckpti_search *s, int k)
{
    return s->whole ? k > 0 : k % GCKPTI_GROUP != 0;
}

/* Ends it: the best seed within its limit, polished; seeds not far above it and the rung above,
 * squeezed. */
static void gckpti_end_rung(gckpti_search *s, int k)
{
    gckpti_answer *answer = &s->rung[k];
    int exact = s->p->units <= GCKPTI_EXACT, best = -1, above = 0, tried = 0;
    if (answer->state != GCKPTI_BEGUN)
        return;
    if (s->seeds == 0)
        gckpti_find_seeds(s);
    s->items = s->looked = 0;
    answer->state = GCKPTI_DONE;
    for (; above < s->seeds && s->seed[above].peak <= answer->limit; above++) {
        if (!s->seed[above].between && (best < 0 || s->seed[above].extra <= s->seed[best].extra))
            best = above;
    }
    for (int i = above, most = GCKPTI_TRIED; exact && i-- > 0 && most > 0;)
        if (!s->seed[i].dominated && most-- && gckpti_answer_load(s, &s->seed[i]))
            gckpti_improve(s, answer, 1);
    if (best >= 0 && gckpti_answer_load(s, &s->seed[best])) {
        gckpti_offer(s, answer);
        gckpti_improve(s, answer, 0);
    }
    if (gckpti_follows(s, k) && s->rung[k - 1].length == 0)
        return; /* with more bytes nothing was found */
    for (uint64_t least = UINT64_MAX; above < s->seeds && tried < 4; above++) {
        const gckpti_answer *seed = &s->seed[above];
        if (!seed->between && seed->extra / 8 * 7 <= least &&
            seed->extra / 4 <= s->p->least_work && gckpti_answer_load(s, seed)) {
            least = seed->extra < least ? seed->extra : least;
            gckpti_improve(s, answer, 0);
            tried++;
        }
    }
    for (int how = 0; how <= exact && gckpti_follows(s, k); how++)
        if (gckpti_answer_load(s, &s->rung[k - 1]))
            gckpti_improve(s, answer, how);
    if (s->p->units <= GCKPTI_SMALL)
        gckpti_shake(s, answer, exact ? s->p->units : GCKPTI_SHAKES, exact);
}

/* Finds the schedule of rung k. The rung above has a part in it, unless that is certified or
 * belongs to another group and something else was found. */
GCKPTI_FN void gckpti_solve(gckpti_search *s, int k)
{
    int top = k;
    while (gckpti_begin_rung(s, &s->rung[top]) && gckpti_follows(s, top) && !s->p->failed)
        top--;
    for (; top <= k && !s->p->failed; top++) {
        gckpti_answer *answer = &s->rung[top];
        gckpti_end_rung(s, top);
        if (answer->length || answer->bound == UINT64_MAX || top == 0 || gckpti_follows(s, top))
            continue;
        gckpti_solve(s, top - 1);
        if (gckpti_answer_load(s, &s->rung[top - 1]))
            gckpti_offer(s, answer);
    }
}
#endif
