#include "search/own.h"
#include "base/base.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- stages of the chain programme (search/chain): borders, which ones are the same ---- */
GCKPTI_DATA const unsigned char gckpti_stage_levels[GCKPTI_LEVELS] = { 0, 1, 2, 255 }; /* tried */

/* Finds who reads each value last, and the bytes that cross the border before each unit; INT64_MAX
 * where backwards do not come in the order of the units on both sides. */
GCKPTI_FN int gckpti_find_borders(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    size_t n = (size_t)p->units;
    int count, last = -1, backwards = 0;
    gckpti_want(&s->scratch, &s->last_either, n, sizeof(int));
    if (!gckpti_want(&s->scratch, &s->enters, n + 2, sizeof *s->enters) || p->failed)
        return 0;
    for (int u = 0; u < p->units; u++) {
        s->last_either[u] = u;
        for (int way = 0; way < 1 + (p->unit[u].rank >= 0); way++)
            for (const int *q = gckpti_reads(p, way ? ~u : u, &count); count-- > 0; q++)
                s->last_either[*q] = u;
    }
    memset(s->enters, 0, (n + 2) * sizeof *s->enters);
    for (int u = p->prologue; u < p->units; u++) {
        s->enters[u + 1] += p->unit[u].out;
        s->enters[s->last_either[u] + 1] -= p->unit[u].out;
    }
    for (int u = 1; u < p->units; u++)
        s->enters[u] += s->enters[u - 1];
    for (int u = p->units; u-- > p->prologue;) {
        last = p->unit[u].rank > last ? p->unit[u].rank : last;
        backwards += p->unit[u].rank >= 0;
        s->enters[u] = last + 1 == backwards ? s->enters[u] : INT64_MAX;
    }
    return 1;
}

GCKPTI_FN int gckpti_is_border(const gckpti_search *s, int how, int u, int64_t widest)
{
    int segment[2];
    for (int k = 0; k < 2; k++) {
        segment[k] = s->p->g->tensors[s->p->unit[u - k].id]->segment;
        while (segment[k] >= 0 && s->p->g->segments[segment[k]].parent >= 0)
            segment[k] = s->p->g->segments[segment[k]].parent;
    }
    if (s->enters[u] == INT64_MAX)
        return 0;
    return how == GCKPTI_AT_UNITS ||
           (how == GCKPTI_AT_SEGMENTS ? segment[0] != segment[1]
                                      : s->enters[u] <= widest && s->enters[u] < s->enters[u - 1] &&
                                            s->enters[u] <= s->enters[u + 1]);
}

/* Makes stages of the body; when they are too many, at the cheapest border of each window. */
GCKPTI_FN void gckpti_find_stages(gckpti_chain *c, int how, int most)
{
    const gckpti_search *s = c->s;
    const gckpti_planner *p = s->p;
    int64_t widest = p->g->outermost < 2 ? INT64_MAX : 0;
    int borders = 1, window, seen = 0, best = -1, back = 0;
    for (int u = p->prologue + 1; u < p->units; u++)
        if (gckpti_is_border(s, GCKPTI_AT_SEGMENTS, u, 0) && s->enters[u] > widest)
            widest = s->enters[u];
    for (int u = p->prologue + 1; u < p->units; u++)
        borders += gckpti_is_border(s, how, u, widest);
    window = (borders + most - 1) / most;
    c->borders = borders;
    c->stage[0].first = p->prologue;
    c->n = 1;
    for (int u = p->prologue + 1; u < p->units; u++) {
        if (!gckpti_is_border(s, how, u, widest))
            continue;
        best = best < 0 || s->enters[u] < s->enters[best] ? u : best;
        if (++seen % window == 0) {
            c->stage[c->n++].first = best;
            best = -1;
        }
    }
    for (int k = c->n; k-- > 0;) {
        gckpti_stage *q = &c->stage[k];
        q->end = k + 1 < c->n ? c->stage[k + 1].first : p->units;
        q->back = back;
        while (back < p->body_backwards && p->backward[back] >= q->first)
            back++;
        q->back_end = back;
        q->waits = s->gradient_between[q->back] - s->gradient_between[0];
    }
}

/* Whether two runs of links lead to the same places of their stages, or out of them. */
static int gckpti_same_links(const int *a, int first_a, const int *b, int first_b, int n)
{
    int k = 0;
    while (k < n && (a[k] - first_a == b[k] - first_b || (a[k] < first_a && b[k] < first_b)))
        k++;
    return k == n;
}

/* Whether two stages are the same inside. */
static int gckpti_same_stage(const gckpti_search *s, const gckpti_stage *a, const gckpti_stage *b)
{
    const gckpti_planner *p = s->p;
    int same =
        b->end - b->first == a->end - a->first && b->back_end - b->back == a->back_end - a->back;
    int64_t more = b->waits - a->waits;
    for (int i = 0; same && i < a->end - a->first; i++) {
        const gckpti_unit *x = &p->unit[a->first + i], *y = &p->unit[b->first + i];
        same =
            x->out == y->out && x->aux == y->aux && x->work == y->work && x->cost == y->cost &&
            x->inputs == y->inputs && x->in_place == y->in_place && x->fixed == y->fixed &&
            x->reads_aux == y->reads_aux && (x->rank < 0) == (y->rank < 0) &&
            (x->rank < 0 || (x->reads == y->reads && x->rank - a->back == y->rank - b->back)) &&
            (s->last_either[a->first + i] < a->end) == (s->last_either[b->first + i] < b->end) &&
            gckpti_same_links(p->links + x->in, a->first, p->links + y->in, b->first, x->inputs) &&
            (x->rank < 0 || gckpti_same_links(p->links + x->read, a->first, p->links + y->read,
                                              b->first, x->reads));
    }
    for (int i = a->back, k = b->back; same && i <= a->back_end; i++, k++)
        same = s->gradient_between[k] - s->gradient_between[i] == more &&
               (i == a->back_end || s->gradient_at[k] - s->gradient_at[i] == more);
    return same;
}

/* What each run of stages sends on; which stages, and which runs of them, are the same. */
GCKPTI_FN void gckpti_compare_stages(gckpti_chain *c)
{
    const int n = c->n, wide = n + 1;
    int64_t *sends = c->crossing;
    for (int a = 0; a < n; a++)
        for (int u = c->stage[a].first; u < c->stage[a].end; u++)
            for (int k = a + 1; k < n && c->stage[k].first <= c->s->last_either[u]; k++)
                sends[a * wide + k] += c->s->p->unit[u].out;
    for (int a = 0; a < n; a++) {
        gckpti_stage *q = &c->stage[a];
        for (q->owner = 0; q->owner < a; q->owner++)
            if (c->stage[q->owner].owner == q->owner &&
                gckpti_same_stage(c->s, &c->stage[q->owner], q))
                break;
        for (q->kind = q->owner; q->kind < a; q->kind++) {
            int same = c->stage[q->kind].owner == q->owner && c->stage[q->kind].kind == q->kind;
            for (int k = 1; same && q->kind + k < n; k++)
                same = sends[q->kind * wide + q->kind + k] ==
                       (a + k < n ? sends[a * wide + a + k] : 0);
            if (same)
                break;
        }
    }
    for (int a = n - 1; a-- > 0;)
        for (int k = a + 2; k < n; k++)
            sends[a * wide + k] += sends[(a + 1) * wide + k];
    for (int length = 1; length <= n; length++)
        for (int a = 0; a + length <= n; a++) { /* the same but for its last stage, and there */
            int k = 0, b = length - 1, *row = c->row + b;
            while (k < a && (c->stage[k + b].kind != c->stage[a + b].kind ||
                             (b > 0 && row[k * wide - 1] != row[a * wide - 1])))
                k++;
            row[a * wide] = k < a ? row[k * wide] : c->rows++;
        }
}
#endif
