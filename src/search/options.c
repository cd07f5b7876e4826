#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- options of a stage of the chain programme (search/chain) ---- */
enum { GCKPTI_OPTIONS = 128 }; /* most ways to run a stage */

/* Finds what the list of a stage takes: a walk from its end, as gckpti_find_lives, of its own units
 * only. Nothing is dropped that nobody reads, it just counts nothing. */
static void gckpti_weigh(gckpti_chain *c, const gckpti_stage *q, gckpti_option *o)
{
    const gckpti_search *s = c->s;
    const gckpti_planner *p = s->p;
    int64_t live = 0, gradients = 0, base = s->gradient_between[q->back];
    int part = GCKPTI_BEHIND;
    memset(o, 0, sizeof *o);
    for (int u = q->first; u < q->end; u++)
        p->note[u].value_end = p->note[u].aux_end = -1;
    for (int x = c->length; x-- > 0;) {
        int i = c->item[x], u = i < 0 ? ~i : i;
        if (i == GCKPTI_REST) {
            for (int v = q->first; v < q->end; v++)
                if (s->last_either[v] >= q->end && p->note[v].value_end < 0) {
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
        int64_t now = live + (i < 0 ? s->gradient_at[w->rank] - base
                                    : gradients + w->work - (over ? w->out : 0));
        o->bytes[part] = now > o->bytes[part] ? now : o->bytes[part];
        if (i < 0) {
            gradients = s->gradient_between[w->rank] - base;
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
                int border = u < q->end && gckpti_is_border(c->s, GCKPTI_AT_SEGMENTS, u, 0);
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
