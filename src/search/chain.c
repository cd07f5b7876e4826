#include "search/search.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * the chain programme: initial schedules by dynamic programming over a chain of stages
 *
 * Borders where few bytes cross divide the body into stages. A stage can run in many ways (options)
 * that differ in the values kept for its backwards: those that a cut of the hull keeps
 * (search/bound) and, for the others, a drop count: after that many more runs a result is no longer
 * dropped. With 1 it is kept once it is recomputed, with 255 never. Equal stages share options.
 *
 * A dynamic programme combines them (Beaumont et al. 2019; with options as in Zhao et al. 2023,
 * "Rockmate"). To run stages a to b forward and backward, either a runs by one of its options, and
 * a + 1 to b in the middle of that; or a to k - 1 run forward keeping only what crosses the border
 * before some stage k, then k to b run, then a to k - 1. Bytes are counted in steps, without what
 * enters a and above the gradients that are live when the backwards of b begin, so that equal
 * ranges of stages share a row of the table. Its schedules are evaluated like all.
 * ============================================================================================== */
enum {
    GCKPTI_MAX_ROWS = 70000,   /* most rows x stages of more than 64 stages, else fewer stages */
    GCKPTI_MEMORY_STEPS = 128, /* steps of memory; up to EXACT_STEPS if a step is the grain */
    GCKPTI_EXACT_STEPS = 1024,
    GCKPTI_MAX_ENTRIES = 150000 /* of an initial of the chain: more take memory and time */
};
#define GCKPTI_INFINITE_COST (UINT64_C(1) << 62) /* more than any cost */

/* Returns whether stages a < b have nodes of equal sizes and costs, have equal gradients, and pass
 * on the same bytes. They may read values differently, which makes the table less exact. */
static int gckpti_equal_stages(const gckpti_chain *c, int a, int b)
{
    const gckpti_planner *p = c->s->p;
    const gckpti_stage *q = &c->stage[a], *r = &c->stage[b];
    const int wide = c->n + 1, size = q->end - q->first;
    const int64_t *at = p->gradient_at, *after = p->gradient_between + 1;
    const int64_t more = q->gradients - r->gradients;
    int equal =
        size == r->end - r->first && q->backward_end - q->backward == r->backward_end - r->backward;
    for (int i = q->backward, k = r->backward; i < q->backward_end && equal; i++, k++)
        equal = at[i] - at[k] == more && after[i] - after[k] == more;
    for (int i = 0; i < size && equal; i++) {
        const gckpti_node *u = &p->node[q->first + i], *v = &p->node[r->first + i];
        equal = u->out == v->out && u->saved == v->saved && u->workspace == v->workspace &&
                u->cost == v->cost && u->inputs == v->inputs && u->reads == v->reads &&
                u->reads_saved == v->reads_saved && u->runs_once == v->runs_once;
    }
    for (int k = 1; b + k < c->n && equal; k++)
        equal = c->crossing[a * wide + a + k] == c->crossing[b * wide + b + k];
    return equal;
}

/* Computes the bytes that each range of stages passes on, and finds equal stages and ranges. */
static void gckpti_compare_stages(gckpti_chain *c)
{
    const int n = c->n, wide = n + 1;
    int64_t *sends = c->crossing;
    for (int a = 0; a < n; a++)
        for (int u = c->stage[a].first; u < c->stage[a].end; u++)
            for (int k = a + 1; k < n && c->stage[k].first <= c->last_reader[u]; k++)
                sends[a * wide + k] += c->s->p->node[u].out;
    for (int a = 0; a < n; a++)
        for (c->stage[a].equal = 0;
             c->stage[a].equal < a && !gckpti_equal_stages(c, c->stage[a].equal, a);)
            c->stage[a].equal++;
    for (int a = n - 1; a-- > 0;)
        for (int k = a + 2; k < n; k++)
            sends[a * wide + k] += sends[(a + 1) * wide + k];
    for (int length = 1; length <= n; length++)
        for (int a = 0; a + length <= n; a++) { /* its rest is equal, and its last stage is */
            int k = 0, b = length - 1, *row = c->row + b;
            while (k < a && (c->stage[k + b].equal != c->stage[a + b].equal ||
                             (b > 0 && row[k * wide - 1] != row[a * wide - 1])))
                k++;
            row[a * wide] = k < a ? row[k * wide] : c->rows++;
        }
}

/* ---- the table ---- */
/* Returns the memory steps for some bytes; a small part of a step does not count. */
static int gckpti_to_steps(const gckpti_chain *c, int64_t bytes)
{
    int64_t n = bytes <= 0 ? bytes / c->step : (bytes + c->step - 1 - c->step / 16) / c->step;
    return n > c->steps ? c->steps + 1 : (int)n;
}

static size_t gckpti_cells(const gckpti_chain *c, int rows)
{
    return (size_t)rows * ((size_t)c->steps + 1);
}

/* Returns the row of stages a to b, or the row of zeros if there are none. */
static int gckpti_range_index(const gckpti_chain *c, int a, int b)
{
    return a > b ? c->rows : c->row[a * (c->n + 1) + b - a];
}

/* A way to run stages a to b: option i of a or, for larger i, a checkpoint before a later stage.
 * Stages from `next` on run in the middle, in `later` more steps than are given; if `next` is a
 * checkpoint, those before it run again, in `sooner` more. It takes at least `need` steps. */
typedef struct {
    int a, b, i, next, need, later, sooner;
    const uint64_t *later_cost, *sooner_cost; /* table rows */
    uint64_t cost, forward_cost;
    int64_t forward_peak; /* most live bytes in the forward */
} gckpti_choice;

/* Advances w to the next way to run stages w->a to w->b (first: i = -1). Returns 0 at the end. */
static int gckpti_next_choice(const gckpti_chain *c, gckpti_choice *w)
{
    const gckpti_stage *stage = c->stage, *q = &stage[stage[w->a].equal];
    const int wide = c->n + 1, is_option = ++w->i < q->options;
    const int next = w->next = is_option ? w->a + 1 : w->a + 1 + w->i - q->options;
    int64_t peak, kept;
    if (is_option) {
        const gckpti_stage_option *o = &c->option[q->option + w->i];
        w->cost = o->cost;
        peak = o->backward + stage[w->a].gradients - stage[w->b].gradients;
        peak = o->forward > peak ? o->forward : peak;
        kept = next > w->b ? 0 : o->kept;
    } else if (next <= w->b) {
        const gckpti_stage_option *last = &stage[stage[next - 1].equal].forward;
        peak = c->crossing[w->a * wide + next - 1] + last->forward;
        w->forward_peak = peak > w->forward_peak ? peak : w->forward_peak;
        w->cost = w->forward_cost += last->cost;
        peak = w->forward_peak;
        kept = c->crossing[w->a * wide + next];
    } else
        return 0;
    const int later = gckpti_range_index(c, next, w->b);
    const int sooner = is_option ? c->rows : gckpti_range_index(c, w->a, next - 1);
    w->later = -gckpti_to_steps(c, kept);
    w->sooner = -gckpti_to_steps(c, stage[next - 1].gradients - stage[w->b].gradients);
    w->need = peak > 0 ? gckpti_to_steps(c, peak) : 0;
    w->need = w->need > c->need[sooner] - w->sooner ? w->need : c->need[sooner] - w->sooner;
    w->need = w->need > c->need[later] - w->later ? w->need : c->need[later] - w->later;
    w->later_cost = c->cost + gckpti_cells(c, later);
    w->sooner_cost = c->cost + gckpti_cells(c, sooner);
    return 1;
}

/* Returns m steps and `more`, at most as many as the table has. */
static int gckpti_add_steps(const gckpti_chain *c, int m, int more)
{
    return m + more < c->steps ? m + more : c->steps;
}

/* Returns the least cost in m memory steps. */
static inline uint64_t gckpti_cost_within(const gckpti_chain *c, const gckpti_choice *w, int m)
{
    return w->cost + w->later_cost[gckpti_add_steps(c, m, w->later)] +
           w->sooner_cost[gckpti_add_steps(c, m, w->sooner)];
}

/* Fills in the row of stages a to b. A way to run them costs least with all memory (`least`). Once
 * an earlier way costs no more than that in m memory steps, this way improves no larger m. */
static void gckpti_fill_row(gckpti_chain *c, int a, int b, int row)
{
    uint64_t *cost = c->cost + gckpti_cells(c, row);
    gckpti_choice w = { a, b, -1, 0, 0, 0, 0, NULL, NULL, 0, 0, 0 };
    for (int m = 0; m <= c->steps; m++)
        cost[m] = GCKPTI_INFINITE_COST;
    while (gckpti_next_choice(c, &w)) {
        const uint64_t least = w.cost + w.later_cost[c->steps] + w.sooner_cost[c->steps];
        for (int m = w.need; m <= c->steps && cost[m] > least; m++) {
            const uint64_t sum = gckpti_cost_within(c, &w, m);
            cost[m] = sum < cost[m] ? sum : cost[m];
        }
    }
    for (c->need[row] = 0; c->need[row] <= c->steps && cost[c->need[row]] == GCKPTI_INFINITE_COST;)
        c->need[row]++;
}

/* Emits the schedule of stages a to b in m memory steps. */
static void gckpti_emit_range(gckpti_chain *c, int a, int b, int m)
{
    const gckpti_stage *q = &c->stage[a], *equal = &c->stage[q->equal];
    gckpti_choice w = { a, b, -1, 0, 0, 0, 0, NULL, NULL, 0, 0, 0 };
    if (a > b || c->s->p->entry_count > GCKPTI_MAX_ENTRIES)
        return;
    const uint64_t cost = c->cost[gckpti_cells(c, gckpti_range_index(c, a, b)) + (size_t)m];
    while (gckpti_next_choice(c, &w))
        if (w.need <= m && w.cost <= cost && gckpti_cost_within(c, &w, m) == cost)
            break;
    for (int u = q->first; u < c->stage[w.next - 1].end; u++)
        gckpti_emit(c->s->p, u);
    gckpti_emit_range(c, w.next, b, gckpti_add_steps(c, m, w.later));
    if (w.i < equal->options)
        gckpti_emit_stage(c, q, &c->option[equal->option + w.i]);
    else
        gckpti_emit_range(c, a, w.next - 1, gckpti_add_steps(c, m, w.sooner));
}

/* Adds the table's schedules for amounts of memory from `least` to `most` bytes as initials. A step
 * is the grain, or a divisor of the smallest large result. */
static void gckpti_add_table_initials(gckpti_chain *c, int64_t least, int64_t most)
{
    gckpti_search *s = c->s;
    const gckpti_node *node = s->p->node;
    int64_t grain = (int64_t)s->p->alignment, large = most;
    int rows = 0;
    c->step = most / GCKPTI_MEMORY_STEPS > grain ? most / GCKPTI_MEMORY_STEPS : grain;
    for (int u = s->p->prologue; u < s->p->nodes; u++)
        large = node[u].out > most / 100 && node[u].out < large ? node[u].out : large;
    c->step = large > c->step ? large / (large / c->step) : c->step;
    c->step = most / grain <= GCKPTI_EXACT_STEPS ? grain : c->step;
    c->steps = (int)(most / c->step);
    gckpti_reserve(&c->scratch, &c->cost, gckpti_cells(c, c->rows + 1), sizeof *c->cost);
    gckpti_reserve(&c->scratch, &c->need, (size_t)c->rows + 1, sizeof(int)); /* + a row of zeros */
    if (s->p->failed)
        return;
    c->need[c->rows] = 0;
    memset(c->cost + gckpti_cells(c, c->rows), 0, gckpti_cells(c, 1) * sizeof *c->cost);
    for (int length = 1; length <= c->n; length++)
        for (int a = 0; a + length <= c->n; a++)
            if (gckpti_range_index(c, a, a + length - 1) == rows)
                gckpti_fill_row(c, a, a + length - 1, rows++);
    const int nodes = s->p->nodes, spacing = nodes <= GCKPTI_SMALL_N   ? GCKPTI_EXACT_STEPS
                                             : nodes <= GCKPTI_LARGE_N ? 30
                                                                       : 8;
    uint64_t last = GCKPTI_INFINITE_COST; /* cost of the last initial */
    for (int m = (int)(least / c->step), before = 0;
         m <= c->steps && !s->p->failed && s->p->entry_count <= GCKPTI_MAX_ENTRIES; m++) {
        uint64_t cost = c->cost[gckpti_cells(c, gckpti_range_index(c, 0, c->n - 1)) + (size_t)m];
        if (cost >= last || (int64_t)(m - before) * spacing < before)
            continue;
        last = cost;
        before = m;
        gckpti_emit_range(c, 0, c->n - 1, m);
        if (s->p->entry_count <= GCKPTI_MAX_ENTRIES)
            gckpti_add_built(s);
    }
    s->p->entry_count = 0; /* of a schedule that is too long, which ends the loop */
}

/* Adds initials of the chain programme for a kind of borders. Returns 0 if it finds no stages;
 * `most`: bytes of store-all. */
GCKPTI_FN int gckpti_add_chain_initials(gckpti_search *s, gckpti_border kind, int64_t most)
{
    gckpti_planner *p = s->p;
    gckpti_chain c;
    memset(&c, 0, sizeof c);
    c.s = s;
    c.scratch = gckpti_scratch_new(p->memory, &p->failed);
    gckpti_find_borders(&c);
    for (int stages = GCKPTI_MAX_STAGES; stages >= 64 && !p->failed; stages /= 2) {
        gckpti_find_stages(&c, kind, stages);
        const size_t pairs = ((size_t)c.n + 1) * ((size_t)c.n + 1);
        c.crossing = (int64_t *)gckpti_scratch_alloc(&c.scratch, pairs, sizeof(int64_t));
        c.row = (int *)gckpti_scratch_alloc(&c.scratch, pairs, sizeof(int));
        c.rows = 0;
        if (!p->failed)
            gckpti_compare_stages(&c);
        if ((int64_t)c.rows * c.n <= GCKPTI_MAX_ROWS)
            break;
    }
    const int found = !p->failed && c.n > 1;
    if (found)
        gckpti_mark_cuts(&c);
    for (int a = 0; a < c.n && found; a++)
        if (c.stage[a].equal == a)
            gckpti_find_options(&c, a, kind == GCKPTI_LEAN);
    for (int part = 1; part <= 16 && found; part *= 4) /* finer steps for fewer bytes */
        gckpti_add_table_initials(&c, part < 16 ? most / part / 4 : 0, most / part);
    gckpti_scratch_free(&c.scratch);
    return found;
}
#endif
