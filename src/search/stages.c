#include "search/internal.h"
#include "base/base.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- stages and their borders ---- */
/* Finds the last reader of each value, and the bytes that cross the border before each node, for
 * backwards in reverse order of nodes (other orders have no chain). */
GCKPTI_FN void gckpti_find_borders(gckpti_chain *c)
{
    const gckpti_planner *p = c->s->p;
    size_t n = (size_t)p->nodes;
    int count;
    c->last_reader = (int *)gckpti_scratch_alloc(&c->scratch, n, sizeof(int));
    c->first_reader = (int *)gckpti_scratch_alloc(&c->scratch, n, sizeof(int));
    c->livein = (int64_t *)gckpti_scratch_alloc(&c->scratch, n + 2, sizeof(int64_t));
    if (p->failed)
        return;
    for (int u = 0; u < p->nodes; u++) {
        c->last_reader[u] = c->first_reader[u] = u;
        for (const int *q = gckpti_entry_reads(p, u, &count); count-- > 0; q++) {
            c->first_reader[*q] = c->last_reader[*q] > *q ? c->first_reader[*q] : u;
            c->last_reader[*q] = u;
        }
    }
    for (int u = 0; u < p->nodes; u++) {
        const int *q = gckpti_entry_reads(p, ~u, &count);
        for (; count-- > 0 && p->node[u].backward_index >= 0; q++) {
            c->first_reader[*q] = *q;
            c->last_reader[*q] = u > c->last_reader[*q] ? u : c->last_reader[*q];
        }
    }
    for (int u = p->prologue; u < p->nodes; u++) {
        c->livein[u + 1] += p->node[u].out;
        c->livein[c->last_reader[u] + 1] -= p->node[u].out;
    }
    for (int u = 1; u < p->nodes; u++)
        c->livein[u] += c->livein[u - 1];
}

/* Returns the user's outermost segment that node u is in, or -1. */
static int gckpti_outer_segment(const gckpti_planner *p, int u)
{
    int segment = p->g->tensors[p->node[u].id]->segment;
    while (segment >= 0 && p->g->segments[segment].parent >= 0)
        segment = p->g->segments[segment].parent;
    return segment;
}

/* Returns whether a stage may begin at node u. */
static int gckpti_is_border(const gckpti_chain *c, gckpti_border kind, int u)
{
    const gckpti_planner *p = c->s->p;
    if (kind == GCKPTI_AT_SEGMENTS)
        return gckpti_outer_segment(p, u) != gckpti_outer_segment(p, u - 1);
    return kind == GCKPTI_AT_NODES ||
           (c->livein[u] <= c->widest && c->livein[u] < c->livein[u - 1] &&
            c->livein[u] <= c->livein[u + 1]);
}

/* Divides the body into at most `most` stages: takes each border, each second one, and so on. */
GCKPTI_FN void gckpti_find_stages(gckpti_chain *c, gckpti_border kind, int most)
{
    const gckpti_planner *p = c->s->p;
    int borders = 0, seen = 0, backward = 0;
    int64_t most_bytes = 0; /* between segments */
    for (int u = p->prologue + 1; u < p->nodes; u++)
        if (c->livein[u] > most_bytes && gckpti_is_border(c, GCKPTI_AT_SEGMENTS, u))
            most_bytes = c->livein[u];
    c->widest = p->g->top_segments < 2 ? INT64_MAX : most_bytes + most_bytes / 2;
    for (int u = p->prologue + 1; u < p->nodes; u++)
        borders += gckpti_is_border(c, kind, u);
    const int spacing = (borders + most - 2) / (most - 1);
    c->stage[0].first = p->prologue;
    c->n = 1;
    for (int u = p->prologue + 1; u < p->nodes; u++)
        if (gckpti_is_border(c, kind, u) && seen++ % spacing == 0)
            c->stage[c->n++].first = u;
    for (int k = c->n; k-- > 0;) {
        gckpti_stage *q = &c->stage[k];
        q->end = k + 1 < c->n ? c->stage[k + 1].first : p->nodes;
        q->backward = backward;
        while (backward < p->body_backwards && p->backward[backward] >= q->first)
            backward++;
        q->backward_end = backward;
        q->gradients = p->gradient_between[q->backward];
    }
}

enum { GCKPTI_MAX_OPTIONS = 64, GCKPTI_MAX_MARKS = 32 }; /* of a stage; cuts that they come from */

/* ---- options of a stage ---- */
/* Measures a stage's entries (p->entries, which it empties) as gckpti_find_live_ranges does.
 * Entries nobody reads cost nothing. */
static void gckpti_measure_option(gckpti_chain *c, const gckpti_stage *q, gckpti_stage_option *o)
{
    gckpti_planner *p = c->s->p;
    int64_t live = 0, gradients = 0, *peak = &o->backward;
    memset(o, 0, sizeof *o);
    for (int u = p->prologue; u < q->end; u++) {
        const int counts =
            u >= q->first || (c->first_reader[u] >= q->first && c->last_reader[u] < q->end);
        p->state[u].value_end = p->state[u].saved_end = counts ? -1 : INT32_MAX;
        live -= counts && u < q->first ? p->node[u].out : 0;
    }
    for (int x = (int)p->entry_count; x-- > 0;) {
        int i = p->entries[x], u = i < 0 ? ~i : i;
        if (i == GCKPTI_REST) {
            for (int v = q->first; v < q->end; v++)
                if (c->last_reader[v] >= q->end && p->state[v].value_end < 0) {
                    p->state[v].value_end = x;
                    live += p->state[v].out;
                }
            o->kept = live;
            peak = &o->forward;
            gradients = 0;
            continue;
        }
        const gckpti_node *w = &p->node[u];
        gckpti_node_state *v = &p->state[u];
        if (i >= 0 && v->value_end < 0 && v->saved_end < 0 && !w->side_effect)
            continue;
        int in_place = gckpti_mark_uses(p, p->prologue, i, x, &live) && v->value_end >= 0;
        int64_t now = live + (i < 0 ? p->gradient_at[w->backward_index] - q->gradients
                                    : gradients + w->workspace - (in_place ? w->out : 0));
        *peak = now > *peak ? now : *peak;
        if (i < 0) {
            gradients = p->gradient_between[w->backward_index] - q->gradients;
            continue;
        }
        o->cost += w->cost;
        live -= gckpti_end_live_range(v);
    }
    p->entry_count = 0;
}

/* Emits a stage's backwards, with recomputes by s->action. Returns 0 if there are too many. */
GCKPTI_FN int gckpti_emit_stage(gckpti_chain *c, const gckpti_stage *q)
{
    gckpti_planner *p = c->s->p;
    const size_t most = p->entry_count + 5 * (size_t)(q->end - q->first) + 64;
    for (int u = q->first; u < q->end; u++) {
        p->computed[u] = c->s->action[u] == 0;
        p->state[u].run_count = 1;
    }
    for (int r = q->backward; r < q->backward_end && p->entry_count < most; r++)
        gckpti_emit_backward(p, r, q->first, c->s->action);
    return p->entry_count < most;
}

/* Emits a stage's forwards, then GCKPTI_REST. */
static void gckpti_emit_forward(gckpti_planner *p, const gckpti_stage *q)
{
    p->entry_count = 0;
    for (int u = q->first; u < q->end; u++)
        gckpti_emit(p, u);
    gckpti_emit(p, GCKPTI_REST);
}

/* Returns whether option a is as good as b in bytes and cost. */
static int gckpti_no_worse(const gckpti_stage_option *a, const gckpti_stage_option *b)
{
    return a->cost <= b->cost && a->kept <= b->kept && a->forward <= b->forward &&
           a->backward <= b->backward;
}

/* Adds the option with the drop counts in s->action, unless another one is as good. */
static void gckpti_try_option(gckpti_chain *c, gckpti_stage *q)
{
    size_t size = (size_t)(q->end - q->first);
    gckpti_stage_option o;
    int kept = q->option;
    gckpti_emit_forward(c->s->p, q);
    const int fits = gckpti_emit_stage(c, q) && !c->s->p->failed;
    gckpti_measure_option(c, q, &o);
    if (!fits)
        return;
    for (int i = q->option; i < c->options; i++) {
        gckpti_stage_option *b = &c->option[i];
        if (gckpti_no_worse(b, &o))
            return;
        if (!gckpti_no_worse(&o, b))
            c->option[kept++] = *b;
    }
    c->options = kept;
    if (kept - q->option == GCKPTI_MAX_OPTIONS ||
        !gckpti_reserve(&c->scratch, &c->option, (size_t)kept + 1, sizeof o) ||
        !gckpti_reserve(&c->scratch, &c->drop, (size_t)c->drops + size, 1))
        return;
    o.drop = c->drops;
    c->drops += (int)size;
    memcpy(c->drop + o.drop, c->s->action + q->first, size);
    c->option[c->options++] = o;
}

/* Lists ways to keep values, as marks of those that are dropped: none, those that a cut of the
 * first point's hull does not keep (for some of many cuts), and all. */
GCKPTI_FN void gckpti_mark_cuts(gckpti_chain *c)
{
    gckpti_search *s = c->s;
    const size_t n = (size_t)s->p->nodes;
    const gckpti_cut_table *cuts = gckpti_cuts(s->bound, &s->bound->point[0], GCKPTI_HULL);
    c->mark = (unsigned char *)gckpti_scratch_alloc(&c->scratch, GCKPTI_MAX_MARKS + 3, n);
    if (!c->mark)
        return;
    for (int cut = 0; cut < cuts->last.n; cut += 1 + cuts->last.n / GCKPTI_MAX_MARKS)
        gckpti_mark_cut(s->bound, cuts, cut, c->mark + n * (size_t)++c->marks);
    memset(c->mark + n * (size_t)++c->marks, GCKPTI_CUT_RECOMPUTE, n);
    c->marks++;
}

/* Finds the options of stage a and of those equal to it: each way in which one of them keeps
 * values, with three drop counts. */
GCKPTI_FN void gckpti_find_options(gckpti_chain *c, int a)
{
    static const unsigned char counts[] = { GCKPTI_CUT_RECOMPUTE, 2, GCKPTI_CUT_NEVER_KEEP };
    gckpti_planner *p = c->s->p;
    gckpti_stage *q = &c->stage[a];
    const size_t size = (size_t)(q->end - q->first), n = (size_t)p->nodes;
    gckpti_emit_forward(p, q);
    gckpti_measure_option(c, q, &q->forward);
    q->option = c->options;
    for (size_t i = 0; i < (size_t)c->marks; i++) {
        const unsigned char *tried = NULL;
        for (int b = a; b < c->n; b++) {
            const unsigned char *mark = c->mark + n * i + c->stage[b].first;
            if (c->stage[b].equal != a || (tried && !memcmp(tried, mark, size)))
                continue;
            tried = mark;
            for (size_t k = 0; k < sizeof counts && !p->failed; k++) {
                for (size_t u = 0; u < size; u++)
                    c->s->action[(size_t)q->first + u] =
                        mark[u] && !p->node[(size_t)q->first + u].runs_once ? counts[k] : 0;
                gckpti_try_option(c, q);
            }
        }
    }
    q->options = c->options - q->option;
}
#endif
