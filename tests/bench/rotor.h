/* rotor.h - computes the best persistent schedules of a chain of stages, with which the planner is compared:
 * Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains" (2019), as in
 * their program `rotor`, for the blocks of any network.
 *
 * A stage is a group of ops of one outermost segment. Its forward keeps either only the values that later stages
 * read (a checkpoint), or also the values that its backward needs. In rotor these are one set of tensors per stage.
 * "With options" (as in Rockmate) a stage has several ways to run, from keeping everything to keeping almost
 * nothing, each with bytes and cost; they are found by reducing the peak of the stage alone. Memory is counted in
 * slots, which only guide the search: the library computes the bytes and costs of the schedules. */
#ifndef BENCH_ROTOR_H
#define BENCH_ROTOR_H
#include "graphs.h"
#include "graph/graph.h" /* no getter of the public API returns segments or the inputs of backwards */
#include <stdlib.h>

typedef struct {
    size_t bytes; /* net_bytes */
    double overhead;
} point;

/* The points of a planner, the one with the fewest bytes first; each costs less than the point before. */
typedef struct {
    point *p;
    int n, capacity;
} pareto;

static inline void pareto_add(pareto *c, size_t bytes, double overhead)
{
    if (c->n == c->capacity) {
        c->capacity = c->capacity * 2 + 64;
        c->p = (point *)realloc(c->p, (size_t)c->capacity * sizeof *c->p);
        if (c->p == NULL)
            abort();
    }
    c->p[c->n].bytes = bytes;
    c->p[c->n++].overhead = overhead;
}

static inline int pareto_before(const void *first, const void *second)
{
    const point *a = (const point *)first, *b = (const point *)second;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return a->overhead < b->overhead ? -1 : a->overhead > b->overhead;
}

/* Sorts the points, and removes those that have more bytes and cost than another point. */
static inline void pareto_finish(pareto *c)
{
    int kept = 0;
    if (c->n == 0)
        return;
    qsort(c->p, (size_t)c->n, sizeof *c->p, pareto_before);
    for (int i = 0; i < c->n; i++)
        if (kept == 0 || c->p[i].overhead < c->p[kept - 1].overhead)
            c->p[kept++] = c->p[i];
    c->n = kept;
}

/* ---- the network in the form that rotor takes ---- */
enum { STAGE_REST = 1 << 30, STAGE_OPS = 256, STAGE_LIST = 8 * STAGE_OPS, ROTOR_SLOTS = 400 };

typedef struct {
    int id, segment, inputs;
    int in[GCKPT_MAX_INPUTS]; /* the ops that the op reads, or -1 for an input or a parameter */
    unsigned reads, flags;    /* reads: inputs of the op's backward, as in gckpt_op.needs */
    size_t out, saved, workspace;    /* workspace of the forward */
    /* before: bytes of the gradients that are live before the op's backward; during: workspace of its backward */
    size_t before, during;
    uint64_t forward, backward;
    int last_user;
} rotor_op;

/* One way to run a stage: a list of forwards (i) and backwards (~i) of ops i, of which the entries from `middle` on
 * run after the later stages. Bytes do not include the inputs of the stage. */
typedef struct {
    int *list, n, middle;
    size_t kept, peak_forward, peak_backward;
    uint64_t cost;
} rotor_option;

typedef struct {
    int low, high; /* ops */
    size_t pass;   /* peak of bytes of a forward that keeps only the outputs of the stage */
    rotor_option *options;
    int option_count, owner; /* owner: the first stage of the same shape, which has the options */
} rotor_stage;

typedef struct {
    const net *n;
    rotor_op *ops;
    int count;
    rotor_stage *stages;
    int stage_count;
    size_t all; /* bytes of the store-all plan */
} rotor;

static inline void *rotor_new(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (p == NULL)
        abort();
    return p;
}

/* Reads the ops from the graph and from its store-all plan. The buffers of this plan show when gradients and
 * workspace are live, which is the same in every plan, since the order of backwards is fixed. */
static inline int rotor_read(rotor *r)
{
    const gckpt_graph *g = r->n->graph;
    const gckpt_plan_desc desc = net_desc(r->n, GCKPT_STORE_ALL);
    gckpt_plan *plan = gckpt_plan_new(r->n->graph, &r->n->loss, 1, &desc);
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    if (plan == NULL)
        return 0;
    int length = info.instructions;
    int *number =
        (int *)rotor_new((size_t)gckpt_graph_size(g), sizeof *number); /* index of a tensor's op */
    unsigned char *active = (unsigned char *)rotor_new((size_t)gckpt_graph_size(g), 1);
    gckpt_node node;
    size_t *before = (size_t *)rotor_new((size_t)length + 1, sizeof *before);
    size_t *during = (size_t *)rotor_new((size_t)length + 1, sizeof *during);
    r->all = net_bytes(plan);
    r->ops = (rotor_op *)rotor_new((size_t)length, sizeof *r->ops);
    for (int i = 0; i < info.buffers; i++) {
        gckpt_buffer b;
        gckpt_plan_buffer(plan, i, &b);
        if (b.kind == GCKPT_BUFFER_GRADIENT || b.kind == GCKPT_BUFFER_WORKSPACE)
            for (int x = b.start; x <= b.end && x < length; x++) {
                during[x] += b.size;
                before[x] += x > b.start ? b.size : 0;
            }
    }
    for (int i = 0; gckpt_graph_node(g, i, &node) == GCKPT_OK; i++)
        active[i] = strcmp(node.op, "param") == 0, number[i] = -1;
    for (int x = 0; x < length; x++) {
        gckpt_instruction ins;
        gckpt_plan_get(plan, x, &ins);
        if (ins.kind == GCKPT_BACKWARD)
            active[ins.id] = 1;
    }
    for (int x = 0; x < length; x++) {
        gckpt_instruction ins;
        gckpt_usage usage;
        gckpt_plan_get(plan, x, &ins);
        gckpt_plan_usage(plan, x, &usage);
        if (gckpt_graph_node(g, ins.id, &node) != GCKPT_OK || node.batch_invariant) /* an op that depends on parameters only, so it runs once per step in every plan */
            continue;
        if (ins.kind == GCKPT_BACKWARD) {
            r->ops[number[ins.id]].before = before[x];
            r->ops[number[ins.id]].during = during[x];
            r->ops[number[ins.id]].backward = usage.cost;
        }
        if (ins.kind != GCKPT_FORWARD)
            continue;
        rotor_op *o = &r->ops[r->count];
        number[ins.id] = r->count++;
        o->id = ins.id;
        o->segment = -1;
        const gckpt_tensor *t = g->tensors[ins.id];
        for (int s = t->segment; s >= 0; s = g->segments[s].parent)
            o->segment = s;
        o->inputs = node.inputs;
        o->flags = t->op->flags;
        o->out = node.loss ? 0 : sizeof(float);
        for (int i = 0; i < node.shape.n; i++)
            o->out *= (size_t)node.shape.d[i];
        o->saved = t->saved_bytes;
        o->workspace = during[x];
        o->forward = usage.cost;
        for (int k = 0; k < o->inputs; k++) {
            const int q = gckpt_id(t->in[k]->base);
            o->in[k] = number[q];
            o->reads |= active[q] ? t->op->needs[k] : 0;
            if (o->in[k] >= 0)
                r->ops[o->in[k]].last_user = number[ins.id];
        }
    }
    free(number);
    free(active);
    free(before);
    free(during);
    gckpt_plan_free(plan);
    return 1;
}

/* ---- the ways to run a stage ---- */
typedef struct {
    size_t live[STAGE_LIST]; /* bytes while instruction i runs */
    int last[STAGE_LIST];    /* for each forward in the list, the last instruction that reads its value */
    size_t peak;
    uint64_t cost;
} stage_run;

static inline int op_at(int instruction) { return instruction < 0 ? ~instruction : instruction; }

/* Writes the ops of the stage whose values this instruction reads to `list`, and returns their number. */
static inline int stage_reads(const rotor *r, const rotor_stage *s, int instruction, int *ops)
{
    int n = 0;
    if (instruction == STAGE_REST) { /* the later stages read the stage's outputs, and keep them */
        for (int i = s->low; i < s->high; i++)
            if (r->ops[i].last_user >= s->high)
                ops[n++] = i;
        return n;
    }
    const rotor_op *o = &r->ops[op_at(instruction)];
    for (int k = 0; k < o->inputs; k++)
        if (o->in[k] >= s->low && (instruction >= 0 || o->reads & GCKPT_IN(k)))
            ops[n++] = o->in[k];
    if (instruction < 0 && o->reads & GCKPT_OUT)
        ops[n++] = op_at(instruction);
    return n;
}

/* Removes forwards from the list whose values no instruction reads. Returns the new length. */
static inline int stage_drop_unread(const rotor *r, const rotor_stage *s, int *list, int n)
{
    unsigned char value[STAGE_OPS] = { 0 }, saved[STAGE_OPS] = { 0 };
    int ops[STAGE_OPS], keep = n;
    for (int x = n; x-- > 0;) {
        int e = list[x], at = e == STAGE_REST ? 0 : op_at(e) - s->low;
        if (e != STAGE_REST && e >= 0) {
            if (!value[at] && !saved[at] && !(r->ops[e].flags & GCKPT_LOSS))
                continue;
            value[at] = saved[at] = 0;
        } else if (e < 0) {
            saved[at] |= (r->ops[op_at(e)].reads & GCKPT_SAVED) != 0;
        }
        for (int k = stage_reads(r, s, e, ops); k-- > 0;)
            value[ops[k] - s->low] = 1;
        list[--keep] = e;
    }
    memmove(list, list + keep, (size_t)(n - keep) * sizeof *list);
    return n - keep;
}

/* Computes the live bytes at each instruction of the list, and the cost of the list. Gradients are counted from
 * `middle` on. */
static inline void stage_evaluate(const rotor *r, const rotor_stage *s, const int *list, int n,
                                  stage_run *run)
{
    int value[STAGE_OPS], saved_end[STAGE_LIST], ops[STAGE_OPS], rest = n;
    int64_t change[STAGE_LIST + 1] = { 0 }, live = 0;
    size_t gradients = 0;
    run->cost = 0;
    run->peak = 0;
    for (int x = 0; x < n; x++) {
        int e = list[x];
        run->last[x] = saved_end[x] = -1;
        for (int k = stage_reads(r, s, e, ops); k-- > 0;)
            run->last[value[ops[k] - s->low]] = x;
        if (e == STAGE_REST) {
            rest = x;
        } else if (e >= 0) {
            value[e - s->low] = x;
            run->cost += r->ops[e].forward;
        } else {
            if (r->ops[op_at(e)].reads & GCKPT_SAVED)
                saved_end[value[op_at(e) - s->low]] = x;
            run->cost += r->ops[op_at(e)].backward;
        }
    }
    for (int x = 0; x < n; x++)
        if (list[x] != STAGE_REST && list[x] >= 0) {
            const rotor_op *o = &r->ops[list[x]];
            change[x] += (int64_t)o->out;
            change[(run->last[x] < x ? x : run->last[x]) + 1] -= (int64_t)o->out;
            if (saved_end[x] >= 0) {
                change[x] += (int64_t)o->saved;
                change[saved_end[x] + 1] -= (int64_t)o->saved;
            }
        }
    for (int x = n; x-- > 0;) { /* adds the gradients, which depend on the backward that comes next */
        if (list[x] < 0)
            gradients = r->ops[op_at(list[x])].before;
        run->live[x] = x < rest ? 0 : list[x] < 0 ? r->ops[op_at(list[x])].during : gradients;
        if (x == rest)
            run->live[x] = 0; /* the live bytes during the later stages are counted in those stages */
    }
    for (int x = 0; x < n; x++) {
        live += change[x];
        run->live[x] += (size_t)live;
        if (list[x] != STAGE_REST && list[x] >= 0) {
            const rotor_op *o = &r->ops[list[x]];
            run->live[x] += o->workspace;
            for (int k = 0; k < o->inputs; k++) /* an op may compute in place of an input that is not read afterwards */
                if (o->flags & GCKPT_INPLACE(k) && o->in[k] >= s->low &&
                    r->ops[o->in[k]].out == o->out) {
                    int from = x - 1;
                    while (list[from] != o->in[k])
                        from--;
                    if (run->last[from] == x) {
                        run->live[x] -= o->out;
                        break;
                    }
                }
        }
        run->peak = run->live[x] > run->peak ? run->live[x] : run->peak;
    }
}

/* Adds the list to the options of the stage, unless another option has neither more bytes nor more cost. */
static inline void stage_add_option(const rotor *r, rotor_stage *s, const int *list, int n)
{
    stage_run run;
    stage_evaluate(r, s, list, n, &run);
    rotor_option o = { .cost = run.cost };
    for (int x = 0; x < n; x++)
        if (list[x] == STAGE_REST) {
            o.middle = x;
            o.kept = run.live[x];
        }
    for (int x = 0; x < n; x++) {
        size_t *peak = x < o.middle ? &o.peak_forward : &o.peak_backward;
        if (x != o.middle && run.live[x] > *peak)
            *peak = run.live[x];
    }
    for (int i = 0; i < s->option_count; i++) {
        const rotor_option *b = &s->options[i];
        if (b->cost <= o.cost && b->kept <= o.kept && b->peak_forward <= o.peak_forward &&
            b->peak_backward <= o.peak_backward)
            return;
    }
    o.n = n - 1; /* without the middle itself */
    o.list = (int *)rotor_new((size_t)n, sizeof *o.list);
    memcpy(o.list, list, (size_t)o.middle * sizeof *list);
    memcpy(o.list + o.middle, list + o.middle + 1, (size_t)(n - 1 - o.middle) * sizeof *list);
    s->options =
        (rotor_option *)realloc(s->options, (size_t)(s->option_count + 1) * sizeof *s->options);
    if (s->options == NULL)
        abort();
    s->options[s->option_count++] = o;
}

/* ---- reducing the peak of a stage ---- */
enum { CASCADE_NONE, CASCADE_DEAD, CASCADE_ALL, CASCADES };

/* Makes a list in which op `j` drops its value before instruction x and computes it again for the value's next
 * reader, instruction `use`. With `cascade`, inputs of op j are dropped and recomputed as well: those without a
 * reader from x on, or all those without a reader from `use` on; the other inputs stay live. Returns the new length,
 * or 0 if it would be too long. */
static inline int stage_drop_value(const rotor *r, const rotor_stage *s, const int *list, int n,
                               const stage_run *run, int j, int x, int use, int cascade, int *out)
{
    unsigned char recomputed[STAGE_OPS] = { 0 };
    int extra = 0;
    recomputed[j - s->low] = 1;
    for (int i = j; i >= s->low; i--)
        for (int k = 0; recomputed[i - s->low] && k < r->ops[i].inputs; k++) {
            int q = r->ops[i].in[k], from = use - 1;
            if (q < s->low || cascade == CASCADE_NONE)
                continue;
            while (list[from] != q)
                from--;
            if (run->last[from] < (cascade == CASCADE_DEAD ? x : use))
                recomputed[q - s->low] = 1;
        }
    for (int i = s->low; i <= j; i++)
        extra += recomputed[i - s->low];
    if (n + extra > STAGE_LIST)
        return 0;
    memcpy(out, list, (size_t)use * sizeof *list);
    n += extra;
    extra = use;
    for (int i = s->low; i <= j; i++)
        if (recomputed[i - s->low])
            out[extra++] = i;
    memcpy(out + extra, list + use, (size_t)(n - extra) * sizeof *list);
    return stage_drop_unread(r, s, out, n);
}

/* Returns the sum over all instructions of the bytes above the limit; bytes that are kept during the later stages
 * have the weight `ballast`. */
static inline double stage_excess(const int *list, int n, stage_run *run, size_t ballast,
                                  size_t limit)
{
    double sum = 0;
    run->peak = 0;
    for (int x = 0; x < n; x++) {
        run->live[x] += list[x] == STAGE_REST ? ballast : 0;
        run->peak = run->live[x] > run->peak ? run->live[x] : run->peak;
        sum += run->live[x] > limit ? (double)(run->live[x] - limit) : 0;
    }
    return sum;
}

typedef struct {
    int list[STAGE_LIST], n;
    stage_run run;
} stage_try;

/* Of all values that are live at instruction x and not read by it, drops the one that removes most bytes above the
 * limit for its cost. Returns 0 if no such value exists. */
static inline int stage_reduce_peak_at(const rotor *r, const rotor_stage *s, stage_try *now,
                                   stage_try *best, int x, size_t ballast, size_t limit)
{
    static stage_try t; /* large */
    double excess = 0, best_score = 0;
    int found = 0, ops[STAGE_OPS];
    for (int i = 0; i < now->n; i++)
        excess += now->run.live[i] > limit ? (double)(now->run.live[i] - limit) : 0;
    for (int from = 0; from < x; from++) {
        int j = now->list[from], use = x, busy = 0;
        if (j < 0 || j == STAGE_REST || now->run.last[from] <= x)
            continue;
        for (int k = stage_reads(r, s, now->list[x], ops); k-- > 0;)
            busy = busy || (ops[k] == j && now->list[x] != STAGE_REST);
        for (int reads = 0; !reads && !busy;) /* its next reader */
            for (int k = stage_reads(r, s, now->list[++use], ops); k-- > 0;)
                reads = reads || ops[k] == j;
        for (int cascade = 0; cascade < CASCADES && !busy; cascade++) {
            t.n = stage_drop_value(r, s, now->list, now->n, &now->run, j, x, use, cascade, t.list);
            if (t.n == 0)
                continue;
            stage_evaluate(r, s, t.list, t.n, &t.run);
            double less = excess - stage_excess(t.list, t.n, &t.run, ballast, limit);
            double more = (double)t.run.cost - (double)now->run.cost;
            double score = ((more > 0 ? more : 0) + 1) / less;
            if (less <= 0 || (found && score >= best_score))
                continue;
            found = 1;
            best_score = score;
            *best = t;
        }
    }
    if (found)
        *now = *best;
    return found;
}

/* Drops values until the stage is within the limit. Returns 0 if that is impossible. */
static inline int stage_reduce_peak(const rotor *r, const rotor_stage *s, stage_try *now,
                                size_t ballast, size_t limit)
{
    static stage_try best; /* large */
    for (int turns = 4 * (s->high - s->low) + 200; now->run.peak > limit; turns--) {
        int found = 0;
        for (int x = 0; x < now->n && !found; x++)
            if (now->run.live[x] == now->run.peak)
                found = stage_reduce_peak_at(r, s, now, &best, x, ballast, limit);
        for (int x = 0; x < now->n && !found; x++)
            if (now->run.live[x] > limit && now->run.live[x] < now->run.peak)
                found = stage_reduce_peak_at(r, s, now, &best, x, ballast, limit);
        if (!found || turns == 0)
            return 0;
    }
    return 1;
}

/* Removes recomputes that the limit does not make necessary, those that save most first. */
static inline void stage_remove_recomputes(const rotor *r, const rotor_stage *s, stage_try *now,
                                size_t ballast, size_t limit)
{
    static stage_try t, best; /* large */
    for (int found = 1; found;) {
        unsigned char seen[STAGE_OPS] = { 0 };
        found = 0;
        for (int x = 0; x < now->n; x++) {
            int e = now->list[x];
            if (e < 0 || e == STAGE_REST || !seen[e - s->low]) {
                if (e >= 0 && e != STAGE_REST)
                    seen[e - s->low] = 1;
                continue;
            }
            memcpy(t.list, now->list, (size_t)x * sizeof *t.list);
            memcpy(t.list + x, now->list + x + 1, (size_t)(now->n - x - 1) * sizeof *t.list);
            t.n = stage_drop_unread(r, s, t.list, now->n - 1);
            stage_evaluate(r, s, t.list, t.n, &t.run);
            stage_excess(t.list, t.n, &t.run, ballast, limit);
            if (t.run.peak <= limit && t.run.cost < now->run.cost &&
                (!found || t.run.cost < best.run.cost)) {
                found = 1;
                best = t;
            }
        }
        if (found)
            *now = best;
    }
}

static inline void stage_store_all(const rotor *r, const rotor_stage *s, stage_try *t,
                                   size_t ballast)
{
    t->n = 0;
    for (int i = s->low; i < s->high; i++)
        t->list[t->n++] = i;
    t->list[t->n++] = STAGE_REST;
    for (int i = s->high; i-- > s->low;)
        t->list[t->n++] = ~i;
    t->n = stage_drop_unread(r, s, t->list, t->n);
    stage_evaluate(r, s, t->list, t->n, &t->run);
    stage_excess(t->list, t->n, &t->run, ballast, SIZE_MAX);
}

/* Finds the options of a stage: store-all; and if `options` is nonzero, options with a smaller peak, and options that
 * keep fewer bytes during the later stages. */
static inline void stage_find_options(const rotor *r, rotor_stage *s, int options)
{
    static stage_try now, next; /* large */
    for (int way = 0; way <= options; way++) {
        size_t ballast = 0;
        stage_store_all(r, s, &now, 0);
        stage_add_option(r, s, now.list, now.n);
        if (!options)
            return;
        if (way == 1)
            ballast = 4 * now.run.peak;
        stage_store_all(r, s, &now, ballast);
        for (;;) {
            size_t limit = way == 0 ? now.run.peak / 10 * 9 : now.run.peak - 1;
            next = now;
            if (now.run.peak == 0 || !stage_reduce_peak(r, s, &next, ballast, limit))
                break;
            now = next;
            stage_add_option(r, s, now.list, now.n);
            stage_remove_recomputes(r, s, &next, ballast, way == 0 ? limit : now.run.peak);
            stage_add_option(r, s, next.list, next.n);
            if (way == 0)
                now = next;
        }
    }
}

/* Returns whether two stages have the same ops and sizes. */
static inline int stage_same(const rotor *r, const rotor_stage *a, const rotor_stage *b)
{
    int same = a->high - a->low == b->high - b->low;
    for (int i = 0; same && i < a->high - a->low; i++) {
        const rotor_op *x = &r->ops[a->low + i], *y = &r->ops[b->low + i];
        same = x->inputs == y->inputs && x->reads == y->reads && x->flags == y->flags &&
               x->out == y->out && x->saved == y->saved && x->workspace == y->workspace &&
               x->before == y->before && x->during == y->during && x->forward == y->forward &&
               x->backward == y->backward && (x->last_user >= a->high) == (y->last_user >= b->high);
        for (int k = 0; same && k < x->inputs; k++) {
            int p = x->in[k] < a->low ? -1 : x->in[k] - a->low;
            same = p == (y->in[k] < b->low ? -1 : y->in[k] - b->low);
        }
    }
    return same;
}

/* Divides the network into stages. Ops between segments are separate stages, or if `coarse` is nonzero, they belong
 * to the stage before. Returns 0 if the network cannot be divided. */
static inline int rotor_open(rotor *r, const net *n, int options, int coarse)
{
    memset(r, 0, sizeof *r);
    r->n = n;
    if (!rotor_read(r))
        return 0;
    r->stages = (rotor_stage *)rotor_new((size_t)r->count, sizeof *r->stages);
    for (int i = 0; i < r->count; i++) {
        if (i == 0 ||
            (r->ops[i].segment != r->ops[i - 1].segment && !(coarse && r->ops[i].segment < 0)))
            r->stages[r->stage_count++].low = i;
        r->stages[r->stage_count - 1].high = i + 1;
    }
    for (int i = 0; i < r->stage_count; i++) {
        rotor_stage *s = &r->stages[i];
        int list[STAGE_OPS];
        stage_run run;
        if (s->high - s->low >= STAGE_OPS)
            return 0;
        for (int k = s->low; k < s->high; k++)
            list[k - s->low] = k;
        list[s->high - s->low] = STAGE_REST;
        stage_evaluate(r, s, list, s->high - s->low + 1, &run);
        s->pass = run.peak;
        s->owner = 0;
        while (s->owner < i && !stage_same(r, &r->stages[s->owner], s))
            s->owner++;
        if (s->owner == i)
            stage_find_options(r, s, options);
        else
            s->owner = r->stages[s->owner].owner;
    }
    return 1;
}

static inline void rotor_close(rotor *r)
{
    for (int i = 0; i < r->stage_count; i++) {
        for (int k = 0; k < r->stages[i].option_count; k++)
            free(r->stages[i].options[k].list);
        free(r->stages[i].options);
    }
    free(r->stages);
    free(r->ops);
}

/* ---- dynamic programming: cost[s][t][m] is the least cost to run stages s to t forward and backward in m slots,
 * where the inputs of s are available and not counted ---- */
typedef struct {
    const rotor *r;
    double slot_bytes, *cost; /* slot_bytes: bytes of one slot */
    /* choice for each entry of cost: k > s checkpoints the inputs of stage k; -1 - i runs stage s by its option i */
    short *choice;
} rotor_table;

static inline size_t rotor_cell(const rotor_table *d, int s, int t, int m)
{
    return ((size_t)s * (size_t)d->r->stage_count + (size_t)t) * (ROTOR_SLOTS + 1) + (size_t)m;
}

static inline int rotor_slots(const rotor_table *d, size_t bytes)
{
    double slots = (double)bytes / d->slot_bytes;
    int whole = slots > ROTOR_SLOTS ? ROTOR_SLOTS : (int)slots;
    return whole + ((double)whole < slots);
}

static inline const rotor_option *rotor_options(const rotor *r, int s)
{
    return r->stages[r->stages[s].owner].options;
}

/* Returns the bytes of the values that stages s to k - 1 compute and that stages from k on read. */
static inline size_t rotor_crossing(const rotor *r, int s, int k)
{
    size_t bytes = 0;
    for (int i = r->stages[s].low; i < r->stages[k].low; i++)
        bytes += r->ops[i].last_user >= r->stages[k].low ? r->ops[i].out : 0;
    return bytes;
}

static inline void rotor_try(rotor_table *d, int s, int t, int m, double cost, int choice)
{
    size_t cell = rotor_cell(d, s, t, m);
    if (cost < d->cost[cell]) {
        d->cost[cell] = cost;
        d->choice[cell] = (short)choice;
    }
}

static inline void rotor_fill(rotor_table *d)
{
    const rotor *r = d->r;
    const int L = r->stage_count;
    for (size_t i = 0; i < rotor_cell(d, L - 1, L - 1, ROTOR_SLOTS) + 1; i++)
        d->cost[i] = 1e300;
    for (int length = 1; length <= L; length++)
        for (int s = 0; s + length <= L; s++) {
            int t = s + length - 1, owner = r->stages[s].owner, least = 0;
            /* bytes of the gradients that are live before the backward of stage t */
            size_t waiting = r->ops[r->stages[t].high - 1].before;
            double passed = 0;
            for (int i = 0; i < r->stages[owner].option_count; i++) {
                const rotor_option *o = &rotor_options(r, s)[i];
                int kept = s < t ? rotor_slots(d, o->kept) : 0;
                int need = rotor_slots(d, waiting + o->peak_forward);
                int back = rotor_slots(d, o->peak_backward);
                need = need > back ? need : back;
                for (int m = need > kept ? need : kept; m <= ROTOR_SLOTS; m++)
                    rotor_try(d, s, t, m,
                              (double)o->cost +
                                  (s < t ? d->cost[rotor_cell(d, s + 1, t, m - kept)] : 0),
                              -1 - i);
            }
            for (int k = s + 1; k <= t; k++) {
                size_t entered = rotor_crossing(r, s, k - 1);
                int need = rotor_slots(d, waiting + entered + r->stages[k - 1].pass);
                int kept = rotor_slots(d, rotor_crossing(r, s, k));
                least = need > least ? need : least;
                for (int i = r->stages[k - 1].low; i < r->stages[k - 1].high; i++)
                    passed += (double)r->ops[i].forward;
                for (int m = least > kept ? least : kept; m <= ROTOR_SLOTS; m++)
                    rotor_try(d, s, t, m,
                              passed + d->cost[rotor_cell(d, k, t, m - kept)] +
                                  d->cost[rotor_cell(d, s, k - 1, m)],
                              k);
            }
        }
}

/* Writes the schedule of stages s to t in m slots, and returns the number of instructions. Uses an explicit stack
 * instead of recursion, since a network may have many stages. */
typedef struct {
    gckpt_instruction *list;
    int n, capacity;
} rotor_schedule;

static inline void schedule_add(rotor_schedule *s, const rotor *r, int instruction)
{
    if (s->n == s->capacity) {
        s->capacity = s->capacity * 2 + 1024;
        s->list = (gckpt_instruction *)realloc(s->list, (size_t)s->capacity * sizeof *s->list);
        if (s->list == NULL)
            abort();
    }
    s->list[s->n].kind = instruction < 0 ? GCKPT_BACKWARD : GCKPT_FORWARD;
    s->list[s->n++].id = r->ops[op_at(instruction)].id;
}

static inline void rotor_emit(const rotor_table *d, int s, int t, int m, rotor_schedule *out)
{
    const rotor *r = d->r;
    int k = d->choice[rotor_cell(d, s, t, m)];
    if (k > s) {
        for (int i = r->stages[s].low; i < r->stages[k].low; i++)
            schedule_add(out, r, i);
        rotor_emit(d, k, t, m - rotor_slots(d, rotor_crossing(r, s, k)), out);
        rotor_emit(d, s, k - 1, m, out);
        return;
    }
    const rotor_option *o = &rotor_options(r, s)[-1 - k];
    int shift = r->stages[s].low - r->stages[r->stages[s].owner].low;
    for (int x = 0; x < o->n; x++) {
        if (x == o->middle && s < t)
            rotor_emit(d, s + 1, t, m - rotor_slots(d, o->kept), out);
        schedule_add(out, r, o->list[x] < 0 ? o->list[x] - shift : o->list[x] + shift);
    }
}

/* Adds the points that the dynamic programme finds with slots of this size. Returns 0 after printing an error. */
static inline int rotor_points(const rotor *r, double slot, pareto *c)
{
    const size_t cells = (size_t)r->stage_count * (size_t)r->stage_count * (ROTOR_SLOTS + 1);
    rotor_table d = { r, slot, NULL, NULL };
    rotor_schedule schedule = { NULL, 0, 0 };
    double last = 1e300;
    int good = 1;
    d.cost = (double *)rotor_new(cells, sizeof *d.cost);
    d.choice = (short *)rotor_new(cells, sizeof *d.choice);
    rotor_fill(&d);
    for (int m = 1; m <= ROTOR_SLOTS && good; m++) {
        double cost = d.cost[rotor_cell(&d, 0, r->stage_count - 1, m)];
        if (!(cost < last))
            continue;
        last = cost;
        schedule.n = 0;
        rotor_emit(&d, 0, r->stage_count - 1, m, &schedule);
        gckpt_plan_desc desc = net_desc(r->n, GCKPT_SCHEDULE);
        desc.schedule.instructions = schedule.list;
        desc.schedule.count = schedule.n;
        gckpt_plan *p = gckpt_plan_new(r->n->graph, &r->n->loss, 1, &desc);
        good = p != NULL;
        if (good)
            pareto_add(c, net_bytes(p), gckpt_plan_describe(p).overhead);
        else
            fprintf(stderr, "rotor, %s: %s\n", r->n->name, gckpt_error_text(r->n->graph));
        gckpt_plan_free(p);
    }
    free(d.cost);
    free(d.choice);
    free(schedule.list);
    return good;
}

/* Returns all points of rotor, for both ways to divide the network into stages, and several sizes of slots; no point
 * if the network cannot be divided. */
static inline pareto rotor_pareto(const net *n, int options)
{
    /* sizes of the memory that the slots divide, relative to the bytes of store-all */
    static const double ranges[] = { 1.1, 0.3, 0.1 };
    pareto c = { NULL, 0, 0 };
    int good = 1;
    for (int coarse = 0; coarse < 2 && good; coarse++) {
        rotor r;
        good = rotor_open(&r, n, options, coarse);
        for (int i = 0; i < 3 && good; i++)
            good = rotor_points(&r, ranges[i] * (double)r.all / ROTOR_SLOTS, &c);
        rotor_close(&r);
    }
    pareto_finish(&c);
    return c;
}
#endif
