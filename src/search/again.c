#include "search/own.h"
#include "base/base.h"
#include "num/num.h"

#ifndef GCKPT_NO_SEARCH
/* ---- cuts as schedules, and a rung's schedule by cuts ---- */
/* Writes the body that computes all, as late as it is needed, keeps through the turn what `again`
 * does not mark, and computes or reloads the rest just before the first backward that needs it. */
static void gckpti_make_again(gckpti_planner *p, const unsigned char *again)
{
    int *stack = p->queue, next = p->prologue;
    unsigned char *there = p->computed;
    p->made_length = 0;
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

/* A slot's schedule from all cuts of the instant that decides: the first that fits; else, or when
 * it is not good enough, those that keep a little more, squeezed. */
GCKPTI_FN void gckpti_solve_counted(gckpti_search *s, gckpti_slot *slot, const gckpti_instant *t)
{
    const gckpti_kept_list *all = &t->all.last;
    int64_t room = slot->limit - t->gradients;
    int cut = gckpti_cut_within(all, room), fits = 0;
    for (int tried = 0; cut >= 0 && tried < 6 && !fits && !s->p->failed; cut--, tried++) {
        gckpti_cut_mark(s->bound, &t->all, cut);
        fits = gckpti_try_late(s, s->bound->again) <= slot->limit;
        if (fits)
            gckpti_offer(s, slot);
        if ((fits || tried == 0) && !gckpti_certified(s, slot))
            gckpti_improve(s, slot, 0);
    }
    for (int part = 80; all->n > 0 && part >= 20 && !gckpti_certified(s, slot); part /= 2) {
        cut = gckpti_cut_within(all, room + slot->limit / part);
        if (cut < 0)
            continue;
        gckpti_cut_mark(s->bound, &t->all, cut);
        gckpti_try_late(s, s->bound->again);
        gckpti_improve(s, slot, 0);
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

/* A slot's schedule from the two cuts of a hull around its limit: what one keeps and the other does
 * not may be kept in part. */
GCKPTI_FN void gckpti_solve_ties(gckpti_search *s, gckpti_slot *slot, const gckpti_instant *t,
                                 const gckpti_cut_table *cuts)
{
    const gckpti_kept_list *hull = &cuts->last;
    int64_t room = slot->limit - t->gradients, ties = 0;
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
    for (int way = 0; way < 3 && !s->p->failed; way++) {
        int64_t bytes = room - hull->cut[cut].bytes, over = 0;
        for (int tries = 0; tries < 2 && bytes >= 0; tries++, bytes -= over) {
            if (gckpti_certified(s, slot) || gckpti_spent(s))
                return;
            gckpti_keep_ties(s, way, ties, bytes < ties ? bytes : ties, s->bound->again);
            over = gckpti_try_late(s, s->bound->again) - slot->limit;
            if (over > slot->limit / 4)
                return; /* far above whatever is kept */
            gckpti_improve(s, slot, 0);
            if (over <= 0)
                break;
        }
    }
}
#endif
