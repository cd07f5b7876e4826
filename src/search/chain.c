#include "search/internal.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- the chain programme ----
 * The body is divided into stages. A stage can run in many ways (options), from keeping everything
 * to keeping nothing. An option has a drop count for each node: after that many more runs its
 * results are no longer dropped. With 0 they are kept while the rest of the chain runs forward and
 * backward; with 1 once they are recomputed; .. Options are found once for all equal stages, among
 * those that differ in one count from an option that none dominates.
 *
 * A dynamic programme combines them (Beaumont et al. 2019; with options as in Zhao et al. 2023,
 * "Rockmate"). To run stages a to b forward and backward, either a runs by one of its options, and
 * a + 1 to b in the middle of that; or a to k - 1 run forward keeping only what crosses the border
 * before some stage k, then k to b run, then a to k - 1. Bytes are counted in steps, without what
 * enters a, and above the gradients live when the backwards of b begin, so that equal ranges of
 * stages share a row of the table. This is optimal among schedules that keep a checkpoint until its
 * stage's backward: however a to b begin, the rest is one or two ranges that share no bytes but
 * checkpoints, and the table has their least cost for each amount of memory. It is an estimate,
 * since options may peak at different times; its schedules are initials, evaluated like all. */
enum {
    GCKPTI_MAX_ROWS = 40000,   /* most rows x stages; with more, stages are merged */
    GCKPTI_MEMORY_STEPS = 256, /* steps of memory; up to EXACT_STEPS if a step is the grain */
    GCKPTI_EXACT_STEPS = 1024,
    GCKPTI_EFFORT = 200000, /* entries examined to find options, in all stages */
    /* Initials are nodes / SPACING of their bytes apart (1/50 to 1/8) */
    GCKPTI_SPACING = 11000
};

/* ---- the table of the chain programme ---- */
/* Returns the memory steps for some bytes; a small part of a step does not count. */
static int gckpti_to_steps(const gckpti_chain *c, int64_t bytes)
{
    int64_t n = bytes <= 0 ? 0 : (bytes + c->step - 1 - c->step / 16) / c->step;
    return n > c->steps ? c->steps + 1 : (int)n;
}

static size_t gckpti_cells(const gckpti_chain *c, int rows)
{
    return (size_t)rows * ((size_t)c->steps + 1);
}

/* Returns by how many memory steps a range of stages up to k may exceed one up to b. */
static int gckpti_extra_steps(const gckpti_chain *c, int k, int b)
{
    int64_t more = c->stage[b].base - c->stage[k].base;
    return more < 0                    ? -gckpti_to_steps(c, -more)
           : more / c->step > c->steps ? c->steps
                                       : (int)(more / c->step);
}

/* A way to run stages a to b: option i of a or, for larger i, a checkpoint before a later stage. In
 * m >= need memory steps it costs cost + later[m - kept] + sooner[m + more] (table rows). */
typedef struct {
    int a, b, i, need, kept, more;
    const uint64_t *later, *sooner;
    uint64_t cost, forward_cost;
    int64_t forward_peak; /* most live bytes in the forward */
} gckpti_choice;

/* Advances w to the next way to run stages w->a to w->b (first: i = -1). Returns 0 at the end. */
static int gckpti_next_choice(const gckpti_chain *c, gckpti_choice *w)
{
    const gckpti_stage *stage = c->stage, *q = &stage[stage[w->a].owner];
    const gckpti_stage_option *o = &c->option[q->option];
    const uint64_t *none = c->cost + gckpti_cells(c, c->rows);
    int wide = c->n + 1, k = w->a;
    w->i++;
    w->later = w->sooner = none;
    w->kept = w->more = 0;
    if (w->i < q->options) {
        int after =
            gckpti_to_steps(c, o[w->i].bytes[GCKPTI_AFTER] + stage[k].base - stage[w->b].base);
        w->need = (int)o[w->i].steps[GCKPTI_BEFORE];
        w->need = after > w->need ? after : w->need;
        w->cost = o[w->i].cost;
        k++;
        if (k > w->b)
            return 1;
        w->kept = (int)o[w->i].steps[GCKPTI_DURING];
    } else {
        k += w->i - q->options + 1;
        if (k > w->b)
            return 0;
        const gckpti_stage *last = &stage[stage[k - 1].owner];
        int64_t peak = c->crossing[w->a * wide + k - 1] + last->forward_peak;
        w->forward_peak = peak > w->forward_peak ? peak : w->forward_peak;
        w->cost = w->forward_cost += last->forward_cost;
        w->need = gckpti_to_steps(c, w->forward_peak);
        w->kept = gckpti_to_steps(c, c->crossing[w->a * wide + k]);
        w->more = gckpti_extra_steps(c, k - 1, w->b);
        int row = c->row[w->a * wide + k - 1 - w->a];
        w->sooner = c->cost + gckpti_cells(c, row);
        w->need = c->need[row] - w->more > w->need ? c->need[row] - w->more : w->need;
    }
    int row = c->row[k * wide + w->b - k];
    w->later = c->cost + gckpti_cells(c, row);
    w->need = c->need[row] + w->kept > w->need ? c->need[row] + w->kept : w->need;
    return 1;
}

/* Fills in the row of stages a to b. Tries checkpoints where options cost more than the least. */
static void gckpti_fill_row(gckpti_chain *c, int a, int b, int row)
{
    uint64_t *cost = c->cost + gckpti_cells(c, row), least = 0;
    gckpti_choice w = { a, b, -1, 0, 0, 0, NULL, NULL, 0, 0, 0 };
    int top = c->steps + 1, *fewest = &c->need[row], options = c->stage[c->stage[a].owner].options;
    for (int m = 0; m <= c->steps; m++)
        cost[m] = GCKPTI_INFINITE_COST;
    for (int k = a; k <= b; k++)
        least += c->stage[c->stage[k].owner].min_cost;
    while (gckpti_next_choice(c, &w)) {
        if (w.i == options)
            for (top = 0; top <= c->steps && cost[top] > least;)
                top++;
        for (int m = w.need; m < top; m++) {
            int sooner = m + w.more < c->steps ? m + w.more : c->steps;
            uint64_t sum = w.cost + w.later[m - w.kept] + w.sooner[sooner];
            cost[m] = sum < cost[m] ? sum : cost[m];
        }
    }
    for (*fewest = 0; *fewest <= c->steps && cost[*fewest] == GCKPTI_INFINITE_COST;)
        ++*fewest;
}

/* Chooses a step for up to `most` bytes: the grain, or a divisor of the smallest large result. */
static void gckpti_choose_step(gckpti_chain *c, int64_t most)
{
    const gckpti_planner *p = c->s->p;
    int64_t grain = c->s->grain, large = most;
    c->step = most / GCKPTI_MEMORY_STEPS > grain ? most / GCKPTI_MEMORY_STEPS : grain;
    for (int u = p->prologue; u < p->nodes; u++)
        large = p->node[u].out > most / 100 && p->node[u].out < large ? p->node[u].out : large;
    c->step = large > c->step ? large / (large / c->step) : c->step;
    c->step = most / grain <= GCKPTI_EXACT_STEPS ? grain : c->step;
    c->steps = (int)(most / c->step);
    for (int a = 0; a < c->n; a++)
        for (int i = 0; c->stage[a].owner == a && i < c->stage[a].options; i++) {
            gckpti_stage_option *o = &c->option[c->stage[a].option + i];
            for (int k = 0; k < GCKPTI_PHASES; k++)
                o->steps[k] = gckpti_to_steps(c, o->bytes[k]);
        }
}

/* Emits the schedule of all stages in m memory steps. */
static void gckpti_emit_table(gckpti_chain *c, int m)
{
    gckpti_planner *p = c->s->p;
    struct {
        int a, b, m; /* b < 0 means the backwards of stage a, by option m */
    } todo[2 * GCKPTI_MAX_STAGES + 3], now = { 0, c->n - 1, m };
    todo[0] = now;
    for (int count = 1; count > 0;) {
        now = todo[--count];
        const gckpti_stage *q = &c->stage[now.a], *owner = &c->stage[q->owner];
        if (now.b < 0) {
            gckpti_list_stage(c, q, c->drop + c->option[owner->option + now.m].drop);
            for (int x = q->end - q->first + 1; x < c->length; x++)
                gckpti_emit(p, c->entry[x]);
            continue;
        }
        gckpti_choice w = { now.a, now.b, -1, 0, 0, 0, NULL, NULL, 0, 0, 0 };
        uint64_t cost =
            c->cost[gckpti_cells(c, c->row[now.a * (c->n + 1) + now.b - now.a]) + (size_t)now.m];
        int sooner = 0;
        while (gckpti_next_choice(c, &w)) {
            sooner = now.m + w.more < c->steps ? now.m + w.more : c->steps;
            if (w.need <= now.m && w.cost + w.later[now.m - w.kept] + w.sooner[sooner] == cost)
                break;
        }
        int k = w.i < owner->options ? now.a + 1 : now.a + 1 + w.i - owner->options;
        for (int u = q->first; u < c->stage[k - 1].end; u++)
            gckpti_emit(p, u);
        todo[count].a = now.a;
        todo[count].b = w.i < owner->options ? -1 : k - 1;
        todo[count++].m = w.i < owner->options ? w.i : sooner;
        now.a = k;
        now.m -= w.kept;
        if (k <= now.b)
            todo[count++] = now;
    }
}

/* Adds the table's schedules for amounts of memory from `least` to `most` bytes as initials. */
static void gckpti_add_table_initials(gckpti_chain *c, int64_t least, int64_t most)
{
    gckpti_search *s = c->s;
    gckpti_choose_step(c, most);
    size_t cells = ((size_t)c->rows + 1) * ((size_t)c->steps + 1); /* an extra row is zeros */
    int rows = 0, small = s->p->nodes <= GCKPTI_SMALL_N;
    gckpti_reserve(&c->scratch, &c->cost, cells, sizeof *c->cost);
    gckpti_reserve(&c->scratch, &c->need, (size_t)c->rows, sizeof(int));
    if (!s->p->failed)
        memset(c->cost + gckpti_cells(c, c->rows), 0, gckpti_cells(c, 1) * sizeof *c->cost);
    for (int length = 1; length <= c->n && !s->p->failed; length++)
        for (int a = 0; a + length <= c->n; a++)
            if (c->row[a * (c->n + 1) + length - 1] == rows) {
                gckpti_fill_row(c, a, a + length - 1, rows);
                rows++;
            }
    s->evaluated += (int64_t)cells * c->n / 24;
    int spacing = GCKPTI_SPACING / s->p->nodes; /* 8 to 50 */
    spacing = spacing < 8 ? 8 : spacing > 50 ? 50 : spacing;
    uint64_t last = UINT64_MAX; /* cost of the last initial */
    for (int m = (int)(least / c->step), before = 0; m <= c->steps && !s->p->failed; m++) {
        uint64_t cost = c->cost[gckpti_cells(c, c->row[c->n - 1]) + (size_t)m];
        if (cost >= last || cost == GCKPTI_INFINITE_COST ||
            (!small && (int64_t)(m - before) * spacing < before))
            continue;
        last = cost;
        before = m;
        gckpti_emit_table(c, m);
        gckpti_add_built(s);
    }
}

/* Adds initials of the chain programme for a kind of borders. Returns 0 if it finds no stages. */
GCKPTI_FN int gckpti_add_chain_initials(gckpti_search *s, int kind, int64_t most)
{
    gckpti_planner *p = s->p;
    size_t n = (size_t)p->nodes;
    gckpti_chain c;
    memset(&c, 0, sizeof c);
    c.s = s;
    c.scratch = gckpti_scratch_new(p->memory, &p->failed);
    for (int stages = gckpti_find_borders(&c) ? GCKPTI_MAX_STAGES : 0; !p->failed; stages /= 2) {
        gckpti_find_stages(&c, kind, stages);
        size_t pairs = ((size_t)c.n + 1) * ((size_t)c.n + 1);
        c.crossing = (int64_t *)gckpti_scratch_alloc(&c.scratch, pairs, sizeof(int64_t));
        c.row = (int *)gckpti_scratch_alloc(&c.scratch, pairs, sizeof(int));
        c.rows = 0;
        if (!p->failed)
            gckpti_compare_stages(&c);
        if (stages < 64 || (int64_t)c.rows * c.n <= GCKPTI_MAX_ROWS)
            break;
    }
    if (c.n < 2 || (kind == GCKPTI_AT_NARROW && c.borders > c.n)) {
        gckpti_scratch_free(&c.scratch);
        return c.n > 1;
    }
    int64_t nodes = 0, effort = GCKPTI_EFFORT;
    for (int a = 0; a < c.n; a++) {
        int size = c.stage[a].end - c.stage[a].first;
        c.capacity = 5 * size + 64 > c.capacity ? 5 * size + 64 : c.capacity;
        nodes += c.stage[a].owner == a ? size : 0;
    }
    c.entry = (int *)gckpti_scratch_alloc(&c.scratch, (size_t)c.capacity * 2, sizeof(int));
    c.trial = (unsigned char *)gckpti_scratch_alloc(&c.scratch, n, 1);
    c.present = (unsigned char *)gckpti_scratch_alloc(&c.scratch, n, 1);
    c.needed = (unsigned char *)gckpti_scratch_alloc(&c.scratch, n, 1);
    c.runs = (int *)gckpti_scratch_alloc(&c.scratch, n, sizeof(int));
    for (int a = 0; a < c.n && !p->failed; a++) {
        int64_t size = c.stage[a].end - c.stage[a].first, before = s->examined;
        if (c.stage[a].owner != a)
            continue;
        gckpti_find_options(&c, &c.stage[a], effort * size / nodes);
        effort -= s->examined - before;
        nodes -= size;
    }
    for (int part = 1; part <= 16 && !p->failed; part *= 4)
        gckpti_add_table_initials(&c, part < 16 ? most / part / 4 : 0, most / part);
    gckpti_scratch_free(&c.scratch);
    return 1;
}
#endif
