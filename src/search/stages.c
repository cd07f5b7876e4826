#include "search/search.h"
#include "base/base.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- stages and their borders ---- */
/* Where stages may begin: between the user's outermost segments; where few bytes cross, and fewer
 * than at the node before; between any two nodes. LEAN: that, with options for the last stage. */
typedef enum { GCKPTI_AT_SEGMENTS, GCKPTI_AT_NARROW, GCKPTI_AT_NODES, GCKPTI_LEAN } gckpti_border;

enum { GCKPTI_MAX_STAGES = 257 }; /* of a chain */
#define GCKPTI_REST INT32_MAX     /* in a stage's entries: the rest runs here */

/* A way to run a stage. Bytes count its own values and gradients, less values that only its own
 * forwards read of those that enter it, which it may free. */
typedef struct {
    int64_t kept;              /* bytes kept while the rest of the chain runs */
    int64_t forward, backward; /* most bytes before that, and after it */
    uint64_t cost;
    const unsigned char *mark; /* by node of the stage: nonzero if it is dropped .. */
    unsigned char count;       /* .. with this drop count */
} gckpti_stage_option;

typedef struct {
    int first, end, backward, backward_end; /* ranges of nodes and of backward indices */
    int equal;                              /* first stage with equal nodes, whose options it has */
    int option, options;                    /* first option and number of options */
    int64_t gradients;                      /* bytes of gradients when its backwards begin */
    gckpti_stage_option forward;            /* it runs forward, keeping only its outputs */
} gckpti_stage;

typedef struct {
    gckpti_search *s;
    gckpti_scratch scratch;
    int *last_reader;  /* by node: last node whose forward or backward reads its value */
    int *first_reader; /* by node: first node that reads its value, or itself if a backward does */
    int64_t *livein;   /* by node: bytes of earlier values that it or later nodes read */
    int64_t widest;    /* most bytes at a narrow border: 1.5 times those between segments */
    gckpti_stage stage[GCKPTI_MAX_STAGES + 1];
    int n;             /* number of stages */
    int64_t *crossing; /* [a * (n + 1) + k]: bytes that stages a to k - 1 produce and k, .. read */
    gckpti_stage_option *option;
    int options;
    unsigned char *mark;   /* [i * nodes + u]: nonzero if the i-th way to keep drops node u */
    int marks, *row, rows; /* row[a * (n + 1) + b - a]: the table row of stages a to b */
    int *need;             /* by row: fewest memory steps that suffice */
    uint64_t *cost;        /* [row * (steps + 1) + m], the least cost in m steps */
    int steps;
    int64_t step;
} gckpti_chain;

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
        c->last_reader[u] = u;
        c->first_reader[u] = INT32_MAX;
        for (int backward = 0; backward <= (p->node[u].backward_index >= 0); backward++)
            for (const int *q = gckpti_entry_reads(p, backward ? ~u : u, &count); count-- > 0;
                 q++) {
                gckpti_set_min(&c->first_reader[*q], backward ? *q : u);
                c->last_reader[*q] = u;
            }
    }
    for (int u = p->prologue; u < p->nodes; u++) {
        c->livein[u + 1] += p->node[u].out;
        c->livein[c->last_reader[u] + 1] -= p->node[u].out;
    }
    for (int u = 1; u < p->nodes; u++)
        c->livein[u] += c->livein[u - 1];
}

/* Returns whether a stage may begin at node u. */
static int gckpti_is_border(const gckpti_chain *c, gckpti_border kind, int u)
{
    const gckpti_planner *p = c->s->p;
    if (kind == GCKPTI_AT_SEGMENTS)
        return gckpti_child_segment(p, 0, -1, u) != gckpti_child_segment(p, 0, -1, u - 1);
    return kind >= GCKPTI_AT_NODES ||
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
/* Measures a stage's entries (p->entries, which it empties) as gckpti_find_live_ranges does, for a
 * last stage if `rest` is 0. Entries nobody reads cost nothing. */
static void gckpti_measure_option(gckpti_chain *c, const gckpti_stage *q, int rest,
                                  gckpti_stage_option *o)
{
    gckpti_planner *p = c->s->p;
    int64_t live = 0, gradients = 0, *peak = &o->backward;
    for (int u = p->prologue; u < q->end; u++) {
        const int counts =
            u >= q->first || (c->first_reader[u] >= q->first && c->last_reader[u] >= q->first &&
                              c->last_reader[u] < q->end);
        p->state[u].value_end = p->state[u].saved_end = counts ? -1 : INT32_MAX;
        live -= counts && u < q->first ? p->node[u].out : 0;
    }
    for (int x = (int)p->entry_count; x-- > 0;) {
        int i = p->entries[x], u = i < 0 ? ~i : i;
        if (i == GCKPTI_REST) {
            for (int v = q->first; v < q->end && rest; v++)
                if (c->last_reader[v] >= q->end && p->state[v].value_end < 0) {
                    p->state[v].value_end = x;
                    live += p->state[v].out;
                }
            o->kept = rest ? live : INT64_MAX / 2;
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

/* Emits a stage's backwards, with an option's recomputes. Returns 0 if there are too many. */
GCKPTI_FN int gckpti_emit_stage(gckpti_chain *c, const gckpti_stage *q,
                                const gckpti_stage_option *o)
{
    gckpti_planner *p = c->s->p;
    const size_t most = p->entry_count + 5 * (size_t)(q->end - q->first) + 64;
    for (int u = q->first; u < q->end; u++) {
        c->s->action[u] = o->mark[u - q->first] && !p->node[u].runs_once ? o->count : 0;
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

/* Adds the option with these marks and this drop count, unless another one is as good; if `rest` is
 * 0, for a last stage. */
static void gckpti_try_option(gckpti_chain *c, gckpti_stage *q, const unsigned char *mark,
                              unsigned char count, int rest)
{
    gckpti_stage_option o = { 0, 0, 0, 0, mark, count };
    int kept = q->option;
    gckpti_emit_forward(c->s->p, q);
    const int fits = gckpti_emit_stage(c, q, &o) && !c->s->p->failed;
    gckpti_measure_option(c, q, rest, &o);
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
    if (kept - q->option < GCKPTI_MAX_OPTIONS &&
        gckpti_reserve(&c->scratch, &c->option, (size_t)kept + 1, sizeof o))
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
 * values, with three drop counts. If `lean` is nonzero, also those for the last stage. */
GCKPTI_FN void gckpti_find_options(gckpti_chain *c, int a, int lean)
{
    static const unsigned char counts[] = { GCKPTI_CUT_RECOMPUTE, 2, GCKPTI_CUT_NEVER_KEEP };
    gckpti_planner *p = c->s->p;
    gckpti_stage *q = &c->stage[a];
    const size_t size = (size_t)(q->end - q->first);
    gckpti_emit_forward(p, q);
    gckpti_measure_option(c, q, 1, &q->forward);
    q->option = c->options;
    for (size_t i = 0; i < (size_t)c->marks; i++) {
        const unsigned char *tried = NULL;
        for (int b = a; b < c->n; b++) {
            const unsigned char *mark = c->mark + (size_t)p->nodes * i + c->stage[b].first;
            if (c->stage[b].equal != a || (tried && !memcmp(tried, mark, size)))
                continue;
            tried = mark;
            for (size_t k = 0; k < sizeof counts && !p->failed; k++)
                for (int rest = 1; rest >= !lean; rest--)
                    gckpti_try_option(c, q, mark, counts[k], rest);
        }
    }
    q->options = c->options - q->option;
}
#endif
