#include "search/own.h"
#include "base/base.h"
#include "num/num.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- stages of the chain programme (search/chain): borders, which ones are the same ---- */
static const unsigned char gckpti_stage_levels[GCKPTI_LEVELS] = { 0, 1, 2, 255 }; /* tried */

/* Finds who reads each value last, and the bytes that cross the border before each unit. Backwards
 * come in the reverse order of the units: those in other orders have no chain. */
GCKPTI_FN int gckpti_find_borders(gckpti_chain *c)
{
    const gckpti_planner *p = c->s->p;
    size_t n = (size_t)p->units;
    int count;
    c->last_either = (int *)gckpti_scratch_take(&c->scratch, n, sizeof(int));
    c->enters = (int64_t *)gckpti_scratch_take(&c->scratch, n + 2, sizeof(int64_t));
    if (p->failed)
        return 0;
    for (int u = 0; u < p->units; u++) {
        c->last_either[u] = u;
        for (int way = 0; way < 1 + (p->unit[u].nth >= 0); way++)
            for (const int *q = gckpti_reads(p, way ? ~u : u, &count); count-- > 0; q++)
                c->last_either[*q] = u;
    }
    for (int u = p->prologue; u < p->units; u++) {
        c->enters[u + 1] += p->unit[u].out;
        c->enters[c->last_either[u] + 1] -= p->unit[u].out;
    }
    for (int u = 1; u < p->units; u++)
        c->enters[u] += c->enters[u - 1];
    return 1;
}

static int gckpti_is_border(const gckpti_chain *c, int how, int u, int64_t widest)
{
    const gckpt_graph *g = c->s->p->g;
    int segment[2];
    for (int k = 0; k < 2; k++) {
        segment[k] = g->tensors[c->s->p->unit[u - k].id]->segment;
        while (segment[k] >= 0 && g->segments[segment[k]].parent >= 0)
            segment[k] = g->segments[segment[k]].parent;
    }
    return how == GCKPTI_AT_UNITS ||
           (how == GCKPTI_AT_SEGMENTS ? segment[0] != segment[1]
                                      : c->enters[u] <= widest && c->enters[u] < c->enters[u - 1] &&
                                            c->enters[u] <= c->enters[u + 1]);
}

/* Makes stages of the body; when they are too many, at the cheapest border of each window. */
GCKPTI_FN void gckpti_find_stages(gckpti_chain *c, int how, int most)
{
    const gckpti_planner *p = c->s->p;
    int64_t widest = p->g->outermost < 2 ? INT64_MAX : 0;
    int borders = 1, window, seen = 0, best = -1, back = 0;
    for (int u = p->prologue + 1; u < p->units; u++)
        if (gckpti_is_border(c, GCKPTI_AT_SEGMENTS, u, 0) && c->enters[u] > widest)
            widest = c->enters[u];
    for (int u = p->prologue + 1; u < p->units; u++)
        borders += gckpti_is_border(c, how, u, widest);
    window = (borders + most - 1) / most;
    c->borders = borders;
    c->stage[0].first = p->prologue;
    c->n = 1;
    for (int u = p->prologue + 1; u < p->units; u++) {
        if (!gckpti_is_border(c, how, u, widest))
            continue;
        best = best < 0 || c->enters[u] < c->enters[best] ? u : best;
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
        q->waits = p->gradient_between[q->back] - p->gradient_between[0];
    }
}

/* All that tells a stage from others inside: two with the same number have the same options. */
static uint64_t gckpti_hash_stage(const gckpti_chain *c, const gckpti_stage *q)
{
    const gckpti_planner *p = c->s->p;
    const int64_t waits = p->gradient_between[q->back];
    uint64_t hash = gckpti_fnv_number(GCKPTI_FNV_START, (uint64_t)(q->end - q->first));
    for (int u = q->first; u < q->end; u++) {
        const gckpti_unit *x = &p->unit[u];
        const int back = x->nth >= 0;
        const int64_t of[] = { x->out,
                               x->aux,
                               x->work,
                               (int64_t)x->cost,
                               x->inputs,
                               x->in_place,
                               x->fixed,
                               x->reads_aux,
                               back ? x->nth - q->back : -1,
                               back ? x->reads : 0,
                               c->last_either[u] < q->end };
        for (size_t k = 0; k < sizeof of / sizeof *of; k++)
            hash = gckpti_fnv_number(hash, (uint64_t)of[k]);
        for (int way = 0, count; way < 1 + back; way++) /* links: to places in it, or out of it */
            for (const int *v = gckpti_reads(p, way ? ~u : u, &count); count-- > 0; v++)
                hash = gckpti_fnv_number(hash, (uint64_t)(*v < q->first ? -1 : *v - q->first));
    }
    for (int r = q->back; r <= q->back_end; r++) {
        hash = gckpti_fnv_number(hash, (uint64_t)(p->gradient_between[r] - waits));
        if (r < q->back_end)
            hash = gckpti_fnv_number(hash, (uint64_t)(p->gradient_at[r] - waits));
    }
    return hash;
}

/* What each run of stages sends on; which stages, and which runs of them, are the same. */
GCKPTI_FN void gckpti_compare_stages(gckpti_chain *c)
{
    const int n = c->n, wide = n + 1;
    int64_t *sends = c->crossing;
    for (int a = 0; a < n; a++)
        for (int u = c->stage[a].first; u < c->stage[a].end; u++)
            for (int k = a + 1; k < n && c->stage[k].first <= c->last_either[u]; k++)
                sends[a * wide + k] += c->s->p->unit[u].out;
    for (int a = 0; a < n; a++) {
        gckpti_stage *q = &c->stage[a];
        q->inside = q->all = gckpti_hash_stage(c, q);
        for (int k = a + 1; k < n && sends[a * wide + k] > 0; k++)
            q->all = gckpti_fnv_number(q->all, (uint64_t)sends[a * wide + k]);
        for (q->owner = 0; c->stage[q->owner].inside != q->inside;)
            q->owner++;
        for (q->kind = q->owner; c->stage[q->kind].all != q->all;)
            q->kind++;
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

/* ---- options of a stage of the chain programme (search/chain) ---- */
enum { GCKPTI_OPTIONS = 128 }; /* most ways to run a stage */

/* Finds what the list of a stage takes: a walk from its end, as gckpti_find_lives, of its own units
 * only. Nothing is dropped that nobody reads, it just counts nothing. */
static void gckpti_weigh(gckpti_chain *c, const gckpti_stage *q, gckpti_option *o)
{
    const gckpti_planner *p = c->s->p;
    int64_t live = 0, gradients = 0, base = p->gradient_between[q->back];
    int part = GCKPTI_BEHIND;
    memset(o, 0, sizeof *o);
    for (int u = q->first; u < q->end; u++)
        p->note[u].value_end = p->note[u].aux_end = -1;
    for (int x = c->length; x-- > 0;) {
        int i = c->item[x], u = i < 0 ? ~i : i;
        if (i == GCKPTI_REST) {
            for (int v = q->first; v < q->end; v++)
                if (c->last_either[v] >= q->end && p->note[v].value_end < 0) {
                    p->note[v].value_end = x;
                    live += p->note[v].out;
                }
            o->bytes[GCKPTI_KEPT] = live;
            part = GCKPTI_BEFORE;
            gradients = 0;
            continue;
        }
        const gckpti_unit *w = &p->unit[u];
        gckpti_note *v = &p->note[u];
        if (i >= 0 && v->value_end < 0 && v->aux_end < 0 && !w->effect)
            continue;
        int over = gckpti_use(p, q->first, i, x, &live) && v->value_end >= 0;
        int64_t now = live + (i < 0 ? p->gradient_at[w->nth] - base
                                    : gradients + w->work - (over ? w->out : 0));
        o->bytes[part] = now > o->bytes[part] ? now : o->bytes[part];
        if (i < 0) {
            gradients = p->gradient_between[w->nth] - base;
            continue;
        }
        o->cost += w->cost;
        live -= gckpti_end_life(v);
    }
}

/* Appends unit i to the list, behind what it reads and is not there. */
static void gckpti_run_unit(gckpti_chain *c, const gckpti_stage *q, int i)
{
    enum { THERE = 1, WANTED = 2 };
    const gckpti_planner *p = c->s->p;
    int low = i, open = 1;
    c->has[i] = WANTED;
    for (; open > 0; low--)
        if (c->has[low] == WANTED) {
            const gckpti_unit *u = &p->unit[low];
            open--;
            for (int k = u->in; k < u->in + u->inputs; k++)
                if (p->links[k] >= q->first && !c->has[p->links[k]]) {
                    c->has[p->links[k]] = WANTED;
                    open++;
                }
        }
    while (++low <= i)
        if (c->has[low] == WANTED) {
            c->has[low] = THERE;
            c->runs[low]++;
            c->item[c->length++] = low;
        }
}

/* Lists a stage by levels: its forwards, the rest, then its backwards, with what runs again for
 * them. 0: that is too long. */
GCKPTI_FN int gckpti_list_stage(gckpti_chain *c, const gckpti_stage *q, const unsigned char *level)
{
    const gckpti_planner *p = c->s->p;
    int count;
    c->length = 0;
    for (int u = q->first; u < q->end; u++) {
        c->item[c->length++] = u;
        c->has[u] = level[u - q->first] == 0;
        c->runs[u] = 1;
    }
    c->item[c->length++] = GCKPTI_REST;
    for (int r = q->back; r < q->back_end; r++) {
        int u = p->backward[r], before = c->length;
        const int *links = gckpti_reads(p, ~u, &count);
        for (int k = 0; k < count; k++)
            if (links[k] >= q->first && !c->has[links[k]])
                gckpti_run_unit(c, q, links[k]);
        if (p->unit[u].reads_aux && !c->has[u])
            gckpti_run_unit(c, q, u);
        for (int x = before; x < c->length; x++)
            c->has[c->item[x]] = c->runs[c->item[x]] > level[c->item[x] - q->first];
        c->item[c->length++] = ~u;
        if (c->length > c->room)
            return 0;
    }
    return 1;
}

GCKPTI_FN int gckpti_as_good(const int64_t *a, uint64_t cost_a, const int64_t *b, uint64_t cost_b)
{
    return cost_a <= cost_b && a[GCKPTI_KEPT] <= b[GCKPTI_KEPT] &&
           a[GCKPTI_BEFORE] <= b[GCKPTI_BEFORE] && a[GCKPTI_BEHIND] <= b[GCKPTI_BEHIND];
}

/* The levels of c->trial become an option, unless one is as good in all. */
static void gckpti_try_levels(gckpti_chain *c, gckpti_stage *q)
{
    size_t size = (size_t)(q->end - q->first);
    gckpti_option o;
    int good = gckpti_list_stage(c, q, c->trial), kept = q->option;
    c->s->looked += 2 * c->length;
    if (!good)
        return;
    gckpti_weigh(c, q, &o);
    for (int i = q->option; i < c->options; i++) {
        gckpti_option *b = &c->option[i];
        if (gckpti_as_good(b->bytes, b->cost, o.bytes, o.cost))
            return;
        if (!gckpti_as_good(o.bytes, o.cost, b->bytes, b->cost))
            c->option[kept++] = *b;
    }
    c->options = kept;
    if (kept - q->option == GCKPTI_OPTIONS ||
        !gckpti_want(&c->scratch, &c->option, (size_t)kept + 1, sizeof o) ||
        !gckpti_want(&c->scratch, &c->level, (size_t)c->levels + size, 1))
        return;
    o.level = c->levels;
    c->levels += (int)size;
    memcpy(c->level + o.level, c->trial, size);
    c->option[c->options++] = o;
}

/* Tries levels to begin with: none let go; all on the same level, but what is at every border of
 * segments, or at every 2nd, 4th, .. */
static void gckpti_first_options(gckpti_chain *c, gckpti_stage *q)
{
    const gckpti_unit *unit = &c->s->p->unit[q->first];
    int size = q->end - q->first;
    memset(c->trial, 0, (size_t)size);
    gckpti_try_levels(c, q);
    for (int apart = 1; apart <= size && !c->s->p->failed; apart *= 2)
        for (int l = 1; l < GCKPTI_LEVELS; l++) {
            for (int i = 0, borders = 0; i < size; i++) {
                int u = q->first + i + 1;
                int border = u < q->end && gckpti_is_border(c, GCKPTI_AT_SEGMENTS, u, 0);
                borders += border;
                c->trial[i] = gckpti_stage_levels[c->wants[u - 1] ? l : GCKPTI_LEVELS - 1];
                if (unit[i].fixed || (border && borders % apart == 0))
                    c->trial[i] = 0;
            }
            gckpti_try_levels(c, q);
        }
}

/* Finds the options of a stage that owns them, within some work. */
GCKPTI_FN void gckpti_find_options(gckpti_chain *c, gckpti_stage *q, int64_t work)
{
    const gckpti_search *s = c->s;
    const gckpti_planner *p = s->p;
    int size = q->end - q->first, count;
    gckpti_option pass;
    for (int u = q->first; u < q->end; u++)
        c->item[u - q->first] = u;
    c->item[size] = GCKPTI_REST;
    c->length = size + 1;
    gckpti_weigh(c, q, &pass);
    q->pass = pass.bytes[GCKPTI_BEFORE];
    q->cost = pass.cost;
    for (int r = q->back; r < q->back_end; r++) {
        c->wants[p->backward[r]] |= p->unit[p->backward[r]].reads_aux;
        for (const int *v = gckpti_reads(p, ~p->backward[r], &count); count-- > 0; v++)
            c->wants[*v] = 1;
    }
    q->option = c->options;
    work += s->looked;
    gckpti_first_options(c, q);
    for (int i = q->option; i < c->options && s->looked < work; i++) {
        int level = c->option[i].level;
        if (c->option[i].flipped)
            continue;
        c->option[i].flipped = 1;
        for (int k = 0; k < GCKPTI_LEVELS * size && s->looked < work && !p->failed; k++) {
            int u = k / GCKPTI_LEVELS;
            memcpy(c->trial, c->level + level, (size_t)size);
            if (!c->wants[q->first + u] || p->unit[q->first + u].fixed ||
                c->trial[u] == gckpti_stage_levels[k % GCKPTI_LEVELS])
                continue;
            c->trial[u] = gckpti_stage_levels[k % GCKPTI_LEVELS];
            gckpti_try_levels(c, q);
        }
        i = q->option - 1; /* options before it may have gone */
    }
    q->options = c->options - q->option;
    q->least = GCKPTI_NEVER;
    for (int i = q->option; i < c->options; i++)
        q->least = c->option[i].cost < q->least ? c->option[i].cost : q->least;
}
#endif
