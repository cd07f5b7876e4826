#include "search/internal.h"
#include "base/base.h"
#include "num/num.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- stages of the chain programme (search/chain): borders; which stages are equal ---- */
static const unsigned char gckpti_drop_choices[GCKPTI_DROP_CHOICES] = { 0, 1, 2, 255 };

/* Finds the last reader of each value, and the bytes that cross the border before each node, for
 * backwards in reverse order of nodes (other orders have no chain). Returns 0 if out of memory. */
GCKPTI_FN int gckpti_find_borders(gckpti_chain *c)
{
    const gckpti_planner *p = c->s->p;
    size_t n = (size_t)p->nodes;
    int count;
    c->last_reader = (int *)gckpti_scratch_alloc(&c->scratch, n, sizeof(int));
    c->livein = (int64_t *)gckpti_scratch_alloc(&c->scratch, n + 2, sizeof(int64_t));
    if (p->failed)
        return 0;
    for (int u = 0; u < p->nodes; u++) {
        c->last_reader[u] = u;
        for (int backward = 0; backward < 1 + (p->node[u].backward_index >= 0); backward++)
            for (const int *q = gckpti_entry_reads(p, backward ? ~u : u, &count); count-- > 0; q++)
                c->last_reader[*q] = u;
    }
    for (int u = p->prologue; u < p->nodes; u++) {
        c->livein[u + 1] += p->node[u].out;
        c->livein[c->last_reader[u] + 1] -= p->node[u].out;
    }
    for (int u = 1; u < p->nodes; u++)
        c->livein[u] += c->livein[u - 1];
    return 1;
}

static int gckpti_is_border(const gckpti_chain *c, int kind, int u, int64_t widest)
{
    const gckpt_graph *g = c->s->p->g;
    int segment[2];
    for (int k = 0; k < 2; k++) {
        segment[k] = g->tensors[c->s->p->node[u - k].id]->segment;
        while (segment[k] >= 0 && g->segments[segment[k]].parent >= 0)
            segment[k] = g->segments[segment[k]].parent;
    }
    return kind == GCKPTI_AT_NODES ||
           (kind == GCKPTI_AT_SEGMENTS
                ? segment[0] != segment[1]
                : c->livein[u] <= widest && c->livein[u] < c->livein[u - 1] &&
                      c->livein[u] <= c->livein[u + 1]);
}

/* Divides the body into at most `most` stages: of each window of borders takes the cheapest. */
GCKPTI_FN void gckpti_find_stages(gckpti_chain *c, int kind, int most)
{
    const gckpti_planner *p = c->s->p;
    int64_t widest = p->g->top_segments < 2 ? INT64_MAX : 0;
    int borders = 1, window, seen = 0, best = -1, backward = 0;
    for (int u = p->prologue + 1; u < p->nodes; u++)
        if (gckpti_is_border(c, GCKPTI_AT_SEGMENTS, u, 0) && c->livein[u] > widest)
            widest = c->livein[u];
    for (int u = p->prologue + 1; u < p->nodes; u++)
        borders += gckpti_is_border(c, kind, u, widest);
    window = (borders + most - 1) / most;
    c->borders = borders;
    c->stage[0].first = p->prologue;
    c->n = 1;
    for (int u = p->prologue + 1; u < p->nodes; u++) {
        if (!gckpti_is_border(c, kind, u, widest))
            continue;
        best = best < 0 || c->livein[u] < c->livein[best] ? u : best;
        if (++seen % window == 0) {
            c->stage[c->n++].first = best;
            best = -1;
        }
    }
    for (int k = c->n; k-- > 0;) {
        gckpti_stage *q = &c->stage[k];
        q->end = k + 1 < c->n ? c->stage[k + 1].first : p->nodes;
        q->backward = backward;
        while (backward < p->body_backwards && p->backward[backward] >= q->first)
            backward++;
        q->backward_end = backward;
        q->base = p->gradient_between[q->backward] - p->gradient_between[0];
    }
}

/* Returns a hash of all in a stage; stages with equal hashes share a list of options (chain.c). */
static uint64_t gckpti_hash_stage(const gckpti_chain *c, const gckpti_stage *q)
{
    const gckpti_planner *p = c->s->p;
    const int64_t waiting = p->gradient_between[q->backward];
    uint64_t hash = gckpti_fnv_number(GCKPTI_FNV_START, (uint64_t)(q->end - q->first));
    for (int u = q->first; u < q->end; u++) {
        const gckpti_node *x = &p->node[u];
        const int trains = x->backward_index >= 0;
        const int64_t values[] = { x->out,
                                   x->saved,
                                   x->workspace,
                                   (int64_t)x->cost,
                                   x->inputs,
                                   x->in_place,
                                   x->runs_once,
                                   x->reads_saved,
                                   trains ? x->backward_index - q->backward : -1,
                                   trains ? x->reads : 0,
                                   c->last_reader[u] < q->end };
        for (size_t k = 0; k < sizeof values / sizeof *values; k++)
            hash = gckpti_fnv_number(hash, (uint64_t)values[k]);
        for (int backward = 0, count; backward < 1 + trains;
             backward++) /* hashes edges by offset into the stage, or -1 */
            for (const int *v = gckpti_entry_reads(p, backward ? ~u : u, &count); count-- > 0; v++)
                hash = gckpti_fnv_number(hash, (uint64_t)(*v < q->first ? -1 : *v - q->first));
    }
    for (int r = q->backward; r <= q->backward_end; r++) {
        hash = gckpti_fnv_number(hash, (uint64_t)(p->gradient_between[r] - waiting));
        if (r < q->backward_end)
            hash = gckpti_fnv_number(hash, (uint64_t)(p->gradient_at[r] - waiting));
    }
    return hash;
}

/* Computes the bytes that each range of stages passes on, and finds equal stages and ranges. */
GCKPTI_FN void gckpti_compare_stages(gckpti_chain *c)
{
    const int n = c->n, wide = n + 1;
    int64_t *sends = c->crossing;
    for (int a = 0; a < n; a++)
        for (int u = c->stage[a].first; u < c->stage[a].end; u++)
            for (int k = a + 1; k < n && c->stage[k].first <= c->last_reader[u]; k++)
                sends[a * wide + k] += c->s->p->node[u].out;
    for (int a = 0; a < n; a++) {
        gckpti_stage *q = &c->stage[a];
        q->hash = gckpti_hash_stage(c, q);
        for (int k = a + 1; k < n && sends[a * wide + k] > 0; k++)
            q->hash = gckpti_fnv_number(q->hash, (uint64_t)sends[a * wide + k]);
        for (q->owner = 0; c->stage[q->owner].hash != q->hash;)
            q->owner++;
    }
    for (int a = n - 1; a-- > 0;)
        for (int k = a + 2; k < n; k++)
            sends[a * wide + k] += sends[(a + 1) * wide + k];
    for (int length = 1; length <= n; length++)
        for (int a = 0; a + length <= n; a++) { /* its rest is equal, and its last stage is */
            int k = 0, b = length - 1, *row = c->row + b;
            while (k < a && (c->stage[k + b].owner != c->stage[a + b].owner ||
                             (b > 0 && row[k * wide - 1] != row[a * wide - 1])))
                k++;
            row[a * wide] = k < a ? row[k * wide] : c->rows++;
        }
}

/* ---- options of a stage of the chain programme (search/chain) ---- */
enum { GCKPTI_MAX_OPTIONS = 128 }; /* most options of one stage */

/* Measures a stage's list as gckpti_find_live_ranges does. Entries nobody reads cost nothing. */
static void gckpti_measure_option(gckpti_chain *c, const gckpti_stage *q, gckpti_stage_option *o)
{
    const gckpti_planner *p = c->s->p;
    int64_t live = 0, gradients = 0, base = p->gradient_between[q->backward];
    int phase = GCKPTI_AFTER;
    memset(o, 0, sizeof *o);
    for (int u = q->first; u < q->end; u++)
        p->state[u].value_end = p->state[u].saved_end = -1;
    for (int x = c->length; x-- > 0;) {
        int i = c->entry[x], u = i < 0 ? ~i : i;
        if (i == GCKPTI_REST) {
            for (int v = q->first; v < q->end; v++)
                if (c->last_reader[v] >= q->end && p->state[v].value_end < 0) {
                    p->state[v].value_end = x;
                    live += p->state[v].out;
                }
            o->bytes[GCKPTI_DURING] = live;
            phase = GCKPTI_BEFORE;
            gradients = 0;
            continue;
        }
        const gckpti_node *w = &p->node[u];
        gckpti_node_state *v = &p->state[u];
        if (i >= 0 && v->value_end < 0 && v->saved_end < 0 && !w->side_effect)
            continue;
        int in_place = gckpti_mark_uses(p, q->first, i, x, &live) && v->value_end >= 0;
        int64_t now = live + (i < 0 ? p->gradient_at[w->backward_index] - base
                                    : gradients + w->workspace - (in_place ? w->out : 0));
        o->bytes[phase] = now > o->bytes[phase] ? now : o->bytes[phase];
        if (i < 0) {
            gradients = p->gradient_between[w->backward_index] - base;
            continue;
        }
        o->cost += w->cost;
        live -= gckpti_end_live_range(v);
    }
}

/* Appends node i to the stage's list, after those of its inputs that are not live. */
static void gckpti_list_node(gckpti_chain *c, const gckpti_stage *q, int i)
{
    enum { PRESENT = 1, NEEDED = 2 };
    const gckpti_planner *p = c->s->p;
    int lowest = i, missing = 1;
    c->present[i] = NEEDED;
    for (; missing > 0; lowest--)
        if (c->present[lowest] == NEEDED) {
            const gckpti_node *u = &p->node[lowest];
            missing--;
            for (int k = u->in; k < u->in + u->inputs; k++)
                if (p->edges[k] >= q->first && !c->present[p->edges[k]]) {
                    c->present[p->edges[k]] = NEEDED;
                    missing++;
                }
        }
    while (++lowest <= i)
        if (c->present[lowest] == NEEDED) {
            c->present[lowest] = PRESENT;
            c->runs[lowest]++;
            c->entry[c->length++] = lowest;
        }
}

/* Writes a stage's list for some drop counts: its forwards, the rest of the chain, then its
 * backwards with recomputes of the nodes that they need. Returns 0 if the list is too long. */
GCKPTI_FN int gckpti_list_stage(gckpti_chain *c, const gckpti_stage *q, const unsigned char *drop)
{
    const gckpti_planner *p = c->s->p;
    int count;
    c->length = 0;
    for (int u = q->first; u < q->end; u++) {
        c->entry[c->length++] = u;
        c->present[u] = drop[u - q->first] == 0;
        c->runs[u] = 1;
    }
    c->entry[c->length++] = GCKPTI_REST;
    for (int r = q->backward; r < q->backward_end; r++) {
        int u = p->backward[r], before = c->length;
        const int *edges = gckpti_entry_reads(p, ~u, &count);
        for (int k = 0; k < count; k++)
            if (edges[k] >= q->first && !c->present[edges[k]])
                gckpti_list_node(c, q, edges[k]);
        if (p->node[u].reads_saved && !c->present[u])
            gckpti_list_node(c, q, u);
        for (int x = before; x < c->length; x++)
            c->present[c->entry[x]] = c->runs[c->entry[x]] > drop[c->entry[x] - q->first];
        c->entry[c->length++] = ~u;
        if (c->length > c->capacity)
            return 0;
    }
    return 1;
}

/* Returns whether option a is as good as b in bytes and cost. */
static int gckpti_no_worse(const gckpti_stage_option *a, const gckpti_stage_option *b)
{
    int good = a->cost <= b->cost;
    for (int k = 0; k < GCKPTI_PHASES; k++)
        good = good && a->bytes[k] <= b->bytes[k];
    return good;
}

/* Adds an option with drop counts c->trial, unless another option is as good in bytes and cost. */
static void gckpti_try_option(gckpti_chain *c, gckpti_stage *q)
{
    size_t size = (size_t)(q->end - q->first);
    gckpti_stage_option o;
    int fits = gckpti_list_stage(c, q, c->trial), kept = q->option;
    c->s->examined += 2 * c->length;
    if (!fits)
        return;
    gckpti_measure_option(c, q, &o);
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
    memcpy(c->drop + o.drop, c->trial, size);
    c->option[c->options++] = o;
}

/* Tries first options: no drops; one count for all nodes except at each border, each 2nd, 4th.. */
static void gckpti_try_first_options(gckpti_chain *c, gckpti_stage *q)
{
    const gckpti_node *node = &c->s->p->node[q->first];
    int size = q->end - q->first;
    memset(c->trial, 0, (size_t)size);
    gckpti_try_option(c, q);
    for (int apart = 1; apart <= size && !c->s->p->failed; apart *= 2)
        for (int l = 1; l < GCKPTI_DROP_CHOICES; l++) {
            for (int i = 0, borders = 0; i < size; i++) {
                int u = q->first + i + 1;
                int border = u < q->end && gckpti_is_border(c, GCKPTI_AT_SEGMENTS, u, 0);
                borders += border;
                c->trial[i] = gckpti_drop_choices[c->needed[u - 1] ? l : GCKPTI_DROP_CHOICES - 1];
                if (node[i].runs_once || (border && borders % apart == 0))
                    c->trial[i] = 0;
            }
            gckpti_try_option(c, q);
        }
}

/* Finds the options of a stage that no equal stage precedes (it owns them), within an effort. */
GCKPTI_FN void gckpti_find_options(gckpti_chain *c, gckpti_stage *q, int64_t effort)
{
    const gckpti_search *s = c->s;
    const gckpti_planner *p = s->p;
    int size = q->end - q->first, count;
    gckpti_stage_option forward;
    for (int u = q->first; u < q->end; u++)
        c->entry[u - q->first] = u;
    c->entry[size] = GCKPTI_REST;
    c->length = size + 1;
    gckpti_measure_option(c, q, &forward);
    q->forward_peak = forward.bytes[GCKPTI_BEFORE];
    q->forward_cost = forward.cost;
    for (int r = q->backward; r < q->backward_end; r++) {
        c->needed[p->backward[r]] |= p->node[p->backward[r]].reads_saved;
        for (const int *v = gckpti_entry_reads(p, ~p->backward[r], &count); count-- > 0; v++)
            c->needed[*v] = 1;
    }
    q->option = c->options;
    effort += s->examined;
    gckpti_try_first_options(c, q);
    for (int i = q->option; i < c->options && s->examined < effort; i++) {
        int drop = c->option[i].drop;
        if (c->option[i].expanded)
            continue;
        c->option[i].expanded = 1;
        for (int k = 0; k < GCKPTI_DROP_CHOICES * size && s->examined < effort && !p->failed; k++) {
            int u = k / GCKPTI_DROP_CHOICES;
            memcpy(c->trial, c->drop + drop, (size_t)size);
            if (!c->needed[q->first + u] || p->node[q->first + u].runs_once ||
                c->trial[u] == gckpti_drop_choices[k % GCKPTI_DROP_CHOICES])
                continue;
            c->trial[u] = gckpti_drop_choices[k % GCKPTI_DROP_CHOICES];
            gckpti_try_option(c, q);
        }
        i = q->option - 1; /* earlier options may have been removed */
    }
    q->options = c->options - q->option;
    q->min_cost = GCKPTI_INFINITE_COST;
    for (int i = q->option; i < c->options; i++)
        q->min_cost = c->option[i].cost < q->min_cost ? c->option[i].cost : q->min_cost;
}
#endif
