#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- the chain programme ----
 * The body is cut into stages. A stage by itself can run in many ways (options), from keeping all
 * to keeping nothing: each of its units has a level, which says behind how many of its runs its
 * results are let go again; 0: they are kept while the rest of the chain runs forward and backward;
 * 1: they are held when they have run again; .. Options are looked for once for all stages that are
 * the same: among those that differ in one level from an option that no other beats.
 *
 * A dynamic programme combines them (Beaumont et al. 2019; with options as in Zhao et al. 2023,
 * "Rockmate"). To run stages a to b forward and backward, either a runs by one of its options, and
 * a + 1 to b in the middle of that; or all run forward to some stage k keeping only what crosses
 * there, then k to b runs, then a to k - 1. Bytes are counted in steps, without what enters a, and
 * above the gradients that wait when the backwards of b begin: so equal runs of stages have equal
 * rows of the table, and share them. Why that is the best of all schedules that hold a checkpoint
 * until its stage's backward: whichever way a to b begin, what is left are one or two runs of
 * stages that share no bytes but those that are held meanwhile, and of these the table has the
 * least work for each amount of memory. What it says is an estimate all the same, as options may
 * peak at different moments; its schedules are seeds, evaluated like all others. */
enum {
    GCKPTI_ROWS = 40000, /* most rows of its table times stages; else stages are fewer */
    GCKPTI_STEPS = 256,  /* its steps of memory; or up to FINE, when they are exact */
    GCKPTI_FINE = 1024,
    GCKPTI_TRIALS = 300000, /* items of lists looked at to find options, for all stages */
    GCKPTI_SEEDS = 11000    /* its seeds are units / SEEDS of their bytes apart, 1/50 to 1/8, */
}; /* or, of up to GCKPTI_MANY units, 1/1000 of a step's work */

/* ---- its table ---- */
/* Steps for some bytes; a small part of a step does not count. */
static int gckpti_steps(const gckpti_chain *c, int64_t bytes)
{
    int64_t n = bytes <= 0 ? 0 : (bytes + c->step - 1 - c->step / 16) / c->step;
    return n > c->steps ? c->steps + 1 : (int)n;
}

static size_t gckpti_cells(const gckpti_chain *c, int rows)
{
    return (size_t)rows * ((size_t)c->steps + 1);
}

/* Steps that a run which ends with stage k has more than one that ends with b. */
static int gckpti_more_steps(const gckpti_chain *c, int k, int b)
{
    int64_t more = c->stage[b].waits - c->stage[k].waits;
    return more < 0                    ? -gckpti_steps(c, -more)
           : more / c->step > c->steps ? c->steps
                                       : (int)(more / c->step);
}

/* One way to run stages a to b: the i-th option of a; or, behind these, one for each stage to keep
 * what enters it. In m steps, at least `need`, it costs `work` and, by rows of the table, what
 * `later` does in m - kept and `sooner` in m + more. */
typedef struct {
    int a, b, i, need, kept, more;
    const uint64_t *later, *sooner;
    uint64_t work, ahead;
    int64_t through; /* most bytes on the way forward */
} gckpti_way;

/* The next way to run w->a to w->b; 0: no more. Begins with i = -1. */
static int gckpti_next_way(const gckpti_chain *c, gckpti_way *w)
{
    const gckpti_stage *stage = c->stage, *q = &stage[stage[w->a].owner];
    const gckpti_option *o = &c->option[q->option];
    const uint64_t *none = c->cost + gckpti_cells(c, c->rows);
    int wide = c->n + 1, k = w->a;
    do
        w->i++;
    while (w->i < q->options && o[w->i].dropped);
    w->later = w->sooner = none;
    w->kept = w->more = 0;
    if (w->i < q->options) {
        int behind =
            gckpti_steps(c, o[w->i].bytes[GCKPTI_BEHIND] + stage[k].waits - stage[w->b].waits);
        w->need = (int)o[w->i].steps[GCKPTI_BEFORE];
        w->need = behind > w->need ? behind : w->need;
        w->work = o[w->i].cost;
        k++;
        if (k > w->b)
            return 1;
        w->kept = (int)o[w->i].steps[GCKPTI_KEPT];
    } else {
        k += w->i - q->options + 1;
        if (k > w->b)
            return 0;
        const gckpti_stage *last = &stage[stage[k - 1].owner];
        int64_t run = c->crossing[w->a * wide + k - 1] + last->pass;
        w->through = run > w->through ? run : w->through;
        w->work = w->ahead += last->cost;
        w->need = gckpti_steps(c, w->through);
        w->kept = gckpti_steps(c, c->crossing[w->a * wide + k]);
        w->more = gckpti_more_steps(c, k - 1, w->b);
        int row = c->row[w->a * wide + k - 1 - w->a];
        w->sooner = c->cost + gckpti_cells(c, row);
        w->need = c->first[row] - w->more > w->need ? c->first[row] - w->more : w->need;
    }
    int row = c->row[k * wide + w->b - k];
    w->later = c->cost + gckpti_cells(c, row);
    w->need = c->first[row] + w->kept > w->need ? c->first[row] + w->kept : w->need;
    return 1;
}

/* Fills in the row of stages a to b: checkpoints only where options take more than least work. */
static void gckpti_fill_row(gckpti_chain *c, int a, int b, int row)
{
    uint64_t *cost = c->cost + gckpti_cells(c, row), least = 0;
    gckpti_way w = { a, b, -1, 0, 0, 0, NULL, NULL, 0, 0, 0 };
    int top = c->steps + 1, *first = &c->first[row], options = c->stage[c->stage[a].owner].options;
    for (int m = 0; m <= c->steps; m++)
        cost[m] = GCKPTI_NEVER;
    for (int k = a; k <= b; k++)
        least += c->stage[c->stage[k].owner].least;
    while (gckpti_next_way(c, &w)) {
        if (w.i == options)
            for (top = 0; top <= c->steps && cost[top] > least;)
                top++;
        for (int m = w.need; m < top; m++) {
            int sooner = m + w.more < c->steps ? m + w.more : c->steps;
            uint64_t sum = w.work + w.later[m - w.kept] + w.sooner[sooner];
            cost[m] = sum < cost[m] ? sum : cost[m];
        }
    }
    for (*first = 0; *first <= c->steps && cost[*first] == GCKPTI_NEVER;)
        ++*first;
}

/* A step for up to `most` bytes: the grain, if few sizes differ; else it divides the smallest large
 * result. The options in these steps; what another is as good as drops out. */
static void gckpti_choose_step(gckpti_chain *c, int64_t most)
{
    const gckpti_planner *p = c->s->p;
    int64_t grain = c->s->grain, large = most;
    c->step = most / GCKPTI_STEPS > grain ? most / GCKPTI_STEPS : grain;
    for (int u = p->prologue; u < p->units; u++)
        large = p->unit[u].out > most / 100 && p->unit[u].out < large ? p->unit[u].out : large;
    c->step = large > c->step ? large / (large / c->step) : c->step;
    c->step = most / grain <= GCKPTI_FINE ? grain : c->step;
    c->steps = (int)(most / c->step);
    for (int a = 0; a < c->n; a++)
        for (int i = 0; c->stage[a].owner == a && i < c->stage[a].options; i++) {
            gckpti_option *first = c->option + c->stage[a].option, *o = first + i;
            for (int k = 0; k < GCKPTI_FIGURES; k++)
                o->steps[k] = gckpti_steps(c, o->bytes[k]);
            o->dropped = 0;
            for (int k = 0; k < i && !o->dropped; k++) {
                o->dropped = !first[k].dropped &&
                             gckpti_as_good(first[k].steps, first[k].cost, o->steps, o->cost);
                first[k].dropped |=
                    !o->dropped && gckpti_as_good(o->steps, o->cost, first[k].steps, first[k].cost);
            }
        }
}

/* Makes the schedule of all stages in m steps. */
static void gckpti_emit_table(gckpti_chain *c, int m)
{
    gckpti_planner *p = c->s->p;
    struct {
        int a, b, m; /* b < 0: what stage a does behind the rest by option m */
    } todo[2 * GCKPTI_STAGES + 3], now = { 0, c->n - 1, m };
    todo[0] = now;
    for (int count = 1; count > 0;) {
        now = todo[--count];
        const gckpti_stage *q = &c->stage[now.a], *owner = &c->stage[q->owner];
        if (now.b < 0) {
            gckpti_list_stage(c, q, c->level + c->option[owner->option + now.m].level);
            for (int x = q->end - q->first + 1; x < c->length; x++)
                gckpti_emit(p, c->item[x]);
            continue;
        }
        gckpti_way w = { now.a, now.b, -1, 0, 0, 0, NULL, NULL, 0, 0, 0 };
        uint64_t cost =
            c->cost[gckpti_cells(c, c->row[now.a * (c->n + 1) + now.b - now.a]) + (size_t)now.m];
        int sooner = 0;
        while (gckpti_next_way(c, &w)) {
            sooner = now.m + w.more < c->steps ? now.m + w.more : c->steps;
            if (w.need <= now.m && w.work + w.later[now.m - w.kept] + w.sooner[sooner] == cost)
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

/* The schedules for amounts of memory from `least` up to `most` become seeds. */
static void gckpti_seed_table(gckpti_chain *c, int64_t least, int64_t most)
{
    gckpti_search *s = c->s;
    gckpti_choose_step(c, most);
    size_t cells = ((size_t)c->rows + 1) * ((size_t)c->steps + 1); /* one of zeros */
    int rows = 0, small = s->p->units <= GCKPTI_SMALL, many = s->p->units > GCKPTI_MANY;
    gckpti_want(&c->scratch, &c->cost, cells, sizeof *c->cost);
    gckpti_want(&c->scratch, &c->first, (size_t)c->rows, sizeof(int));
    if (!s->p->failed)
        memset(c->cost + gckpti_cells(c, c->rows), 0, gckpti_cells(c, 1) * sizeof *c->cost);
    for (int length = 1; length <= c->n && !s->p->failed; length++)
        for (int a = 0; a + length <= c->n; a++)
            if (c->row[a * (c->n + 1) + length - 1] == rows) {
                gckpti_fill_row(c, a, a + length - 1, rows);
                rows++;
            }
    s->items += (int64_t)cells * c->n / 24;
    int spaced = GCKPTI_SEEDS / s->p->units; /* 8 to 50 */
    spaced = spaced < 8 ? 8 : spaced > 50 ? 50 : spaced;
    uint64_t last = UINT64_MAX, apart = last; /* of the last seed; of the last not between */
    for (int m = (int)(least / c->step), before = 0; m <= c->steps && !s->p->failed; m++) {
        uint64_t cost = c->cost[gckpti_cells(c, c->row[c->n - 1]) + (size_t)m];
        int again = small && c->step == s->grain && cost == apart; /* it may lie in fewer bytes */
        int seed = (cost < apart || again) && (small || (int64_t)(m - before) * spaced >= before);
        int between = !seed && !many && cost < last - (s->p->own_work + cost) / 1000;
        if (cost == GCKPTI_NEVER || !(seed || between))
            continue;
        last = cost;
        if (seed)
            apart = cost, before = m;
        gckpti_emit_table(c, m);
        gckpti_seed(s, between);
    }
}

/* The programme on the stages of one way to cut: seeds. 0: there are no stages. */
GCKPTI_FN int gckpti_seed_chain(gckpti_search *s, int how, int64_t most)
{
    gckpti_planner *p = s->p;
    size_t n = (size_t)p->units;
    gckpti_chain c;
    memset(&c, 0, sizeof c);
    c.s = s;
    c.scratch = gckpti_scratch_new(p->memory, &p->failed);
    for (int stages = gckpti_find_borders(&c) ? GCKPTI_STAGES : 0; !p->failed; stages /= 2) {
        gckpti_find_stages(&c, how, stages);
        size_t pairs = ((size_t)c.n + 1) * ((size_t)c.n + 1);
        c.crossing = (int64_t *)gckpti_scratch_take(&c.scratch, pairs, sizeof(int64_t));
        c.row = (int *)gckpti_scratch_take(&c.scratch, pairs, sizeof(int));
        c.rows = 0;
        if (!p->failed)
            gckpti_compare_stages(&c);
        if (stages < 64 || (int64_t)c.rows * c.n <= GCKPTI_ROWS)
            break;
    }
    if (c.n < 2 || (how == GCKPTI_AT_NARROW && c.borders > c.n)) {
        gckpti_scratch_free(&c.scratch);
        return c.n > 1;
    }
    int64_t units = 0, trials = GCKPTI_TRIALS;
    for (int a = 0; a < c.n; a++) {
        int size = c.stage[a].end - c.stage[a].first;
        c.room = 5 * size + 64 > c.room ? 5 * size + 64 : c.room;
        units += c.stage[a].owner == a ? size : 0;
    }
    c.item = (int *)gckpti_scratch_take(&c.scratch, (size_t)c.room * 2, sizeof(int));
    c.trial = (unsigned char *)gckpti_scratch_take(&c.scratch, n, 1);
    c.has = (unsigned char *)gckpti_scratch_take(&c.scratch, n, 1);
    c.wants = (unsigned char *)gckpti_scratch_take(&c.scratch, n, 1);
    c.runs = (int *)gckpti_scratch_take(&c.scratch, n, sizeof(int));
    for (int a = 0; a < c.n && !p->failed; a++) {
        int64_t size = c.stage[a].end - c.stage[a].first, before = s->looked;
        if (c.stage[a].owner != a)
            continue;
        gckpti_find_options(&c, &c.stage[a], trials * size / units);
        trials -= s->looked - before;
        units -= size;
    }
    for (int part = 1; part <= 16 && !p->failed; part *= 4)
        gckpti_seed_table(&c, part < 16 ? most / part / 4 : 0, most / part);
    gckpti_scratch_free(&c.scratch);
    return 1;
}
#endif
