/* test_plan_check.c - tests the checker of plans (plan_check.h): the checker accepts plans of all modes and options,
 * and refuses each of many corrupted plans with the expected message. Its table of ops equals the op descriptors.
 *
 *     build/test_plan_check [first seed] [random nets] */
#include "ops/ops.h"

#include "net.h"

/* ---- a net with everything that a plan must handle: a residual connection, an op that reads one tensor twice, tied
 * and other weights, functions of weights, dropout, two losses, a regulariser ---- */
enum { ROWS = 4, WIDTH = 8, WIDE = 600, LAYERS = 5, TERMS = 3 };
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_term terms[TERMS];
    int count;
    T *x, *middle, *last;
} sample;

static T *weight_of(gckpt_graph *g, const char *name, int i, int64_t a, int64_t b)
{
    const gckpt_init init = { 0.2f, 0, 0 };
    char full[16];
    snprintf(full, sizeof full, "%s%d", name, i);
    return gckpt_param(g, full, b ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}

static T *layer(T *x, void *user)
{
    int i = *(const int *)user;
    gckpt_graph *g = gckpt_graph_of(x);
    T *gain = weight_of(g, "gain", i, WIDTH, 0), *w = weight_of(g, "w", i % 3, WIDTH, WIDTH);
    T *b = weight_of(g, "b", i, WIDTH, 0);
    T *y = gckpt_gelu(gckpt_linear(gckpt_rmsnorm(x, gain, 0), i % 2 ? w : gckpt_tanh(w), b));
    return gckpt_add(x, gckpt_dropout(i == 2 ? gckpt_mul(y, y) : y, 0.1f));
}

enum { REGULAR = 1, SEVERAL = 2, ONLY = 4, KEEP = 8, AGAIN = 16, LARGE = 32 };
static void make(sample *n, int64_t rows, int what)
{
    memset(n, 0, sizeof *n);
    n->s = gckpt_store_new(NULL);
    n->g = gckpt_graph_new(n->s, NULL);
    n->x = gckpt_input(n->g, "x", GCKPT_F32, gckpt_shape2(rows, WIDTH));
    T *y = gckpt_input(n->g, "y", GCKPT_F32, gckpt_shape2(rows, WIDTH)), *h = n->x;
    T *same = weight_of(n->g, "same", 0, WIDTH, WIDTH);
    h = gckpt_linear(h, same, NULL);
    if (what & LARGE) /* makes some parameters large enough to be cut into shards */
        for (int i = 0; i < 2; i++)
            h = gckpt_linear(h, weight_of(n->g, "wide", i, i ? WIDE : WIDTH, i ? WIDTH : WIDE),
                             NULL);
    for (int i = 0; i < LAYERS; i++) {
        h = gckpt_checkpoint(layer, h, &i);
        n->middle = i == 1 ? h : n->middle;
    }
    n->last = gckpt_relu(gckpt_linear(h, same, NULL));
    if (what & KEEP)
        gckpt_keep(n->middle);
    if (what & AGAIN)
        gckpt_recompute(n->middle);
    T *end = what & ONLY ? gckpt_detach(n->last) : n->last; /* ONLY: only regularisers train anything */
    n->terms[n->count++] = (gckpt_term){ gckpt_mean_squared_error(end, y, NULL), 1, 0 };
    if (what & SEVERAL)
        n->terms[n->count++] = (gckpt_term){ gckpt_huber(n->middle, y, NULL, 1), 0.5f, 0 };
    if (what & (REGULAR | ONLY))
        n->terms[n->count++] =
            (gckpt_term){ gckpt_sum_loss(gckpt_mul(same, gckpt_tanh(same))), 0.1f, 1 };
}

/* ---- correct plans ---- */
static long good;
static void accept(const sample *n, const gckpt_plan_desc *d, const char *what)
{
    gckpt_plan *p = gckpt_plan_new(n->g, n->terms, n->count, d);
    const char *problem = p ? plan_check(p, n->g, d) : gckpt_error_text(n->g);
    good++;
    CHECK_MSG(!problem, "%s: %s", what, problem);
    gckpt_plan_free(p);
}

static size_t bytes_of(const sample *n, const gckpt_plan_desc *d, gckpt_mode mode)
{
    gckpt_plan_desc e = *d;
    e.mode = mode;
    e.budget = 0;
    gckpt_plan *p = gckpt_plan_new(n->g, n->terms, n->count, &e);
    size_t bytes = gckpt_plan_bytes(p);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(n->g));
    gckpt_plan_free(p);
    return bytes;
}

/* Checks plans of every mode with these options, and of OPTIMAL at several budgets. */
static void every_mode(const sample *n, const gckpt_plan_desc *options, const char *what)
{
    for (int mode = GCKPT_STORE_ALL; mode <= GCKPT_SQRT; mode++) {
        gckpt_plan_desc d = *options;
        d.mode = (gckpt_mode)mode;
        accept(n, &d, what);
    }
    size_t most = bytes_of(n, options, GCKPT_STORE_ALL), least = bytes_of(n, options, GCKPT_SQRT);
    for (int i = 0; i <= 4; i++) {
        gckpt_plan_desc d = *options;
        d.budget = least + (most - least) * (size_t)i / 4;
        accept(n, &d, what);
    }
}

/* Tests plans for several ranks, which can be written to a file but not printed. */
static void test_ranks(void)
{
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int way = 0; way < 4; way++) {
            sample n;
            gckpt_plan_desc d = { .batch = 2 * ROWS, .ranks.virtual_ranks = way % 2 ? 8 : 2 };
            make(&n, way < 2 ? ROWS : 1, LARGE | REGULAR | SEVERAL);
            CHECK(gckpt_store_ranks(n.s, 0, 2, (gckpt_shard)shard) == GCKPT_OK);
            every_mode(&n, &d, "ranks");
            util_free(NULL, NULL, n.g, n.s);
        }
}

static void test_good(void)
{
    static const int nets[] = { 0, REGULAR, SEVERAL, REGULAR | SEVERAL, ONLY, KEEP, AGAIN };
    for (size_t k = 0; k < sizeof nets / sizeof *nets; k++)
        for (int way = 0; way < 12; way++) {
            static const char *const ways[] = { "one micro-batch", "accumulates", "virtual ranks",
                                                "virtual ranks, accumulates", "in backward", "bf16",
                                                "staged",          "alignment",   "offloading",
                                                "quantised", "fetches, bf16", "frozen, fetches" };
            if (!check_sampled((unsigned)(12 * k) + (unsigned)way, 5))
                continue;
            sample n;
            gckpt_plan_desc d = { .optimiser = GCKPT_ADAMW };
            make(&n, way == 1 || way == 3 ? 1 : way == 2 ? 2 : ROWS, nets[k]);
            const gckpt_fetch_spec fetches[] = { { n.middle, 0 }, { n.middle, 1 }, { n.x, 1 } };
            d.batch = ROWS;
            d.ranks.virtual_ranks = way == 2 ? 2 : way == 3 ? 4 : 0;
            d.update_in_backward = way == 4;
            d.bf16.precision = way == 5 || way == 10 ? GCKPT_BF16 : GCKPT_FP32;
            d.kernels.stage_parameters = way == 6;
            d.kernels.alignment = way == 7 ? 4 : 0;
            d.offload.bytes = way == 8 ? 1 << 20 : 0;
            d.offload.cost = 1 << 20;
            d.offload.overlap = way == 8 && k % 2;
            if (way == 9) {
                CHECK(gckpt_store_freeze(n.s, "w*", 1) == GCKPT_OK &&
                      gckpt_store_quantise(n.s, "w*", GCKPT_STORAGE_I8) == GCKPT_OK);
            }
            if (way >= 10 && !(nets[k] & ONLY)) {
                d.fetch.specs = fetches;
                d.fetch.count = 3;
            }
            if (way == 11)
                CHECK(gckpt_store_freeze(n.s, "gain*", 1) == GCKPT_OK);
            every_mode(&n, &d, ways[way]);
            if (!(nets[k] & ONLY)) {
                gckpt_plan_desc e = { .mode = GCKPT_INFERENCE, .fetch.specs = fetches, .fetch.count = 1 };
                accept(&n, &e, "inference");
                gckpt_plan *p = gckpt_plan_new(n.g, NULL, 0, &e);
                CHECK(p && !plan_check(p, n.g, NULL));
                gckpt_plan_free(p);
            }
            util_free(NULL, NULL, n.g, n.s);
        }
    CHECK_MSG(good > check_iterations(500), "%ld plans", good);
}

/* ---- corruptions ---- */
/* Returns the position of an instruction of this kind, after skipping `after` others of the kind, or -1 if there is
 * none. If recompute is nonzero, only recomputes are considered. */
static int find(const plan_facts *f, int kind, int after, int recompute)
{
    for (int x = 0; x < f->length; x++)
        if ((int)f->list[x].kind == kind && (recompute < 0 || f->usage[x].recompute == recompute) &&
            after-- == 0)
            return x;
    return -1;
}

/* Removes the list of operands, f->ins. A plan that cannot be printed lacks this list as well; without it, the checker
 * checks only the other facts. */
static void blind(plan_facts *f)
{
    free(f->ins);
    f->ins = NULL;
}

/* Removes instruction x and the buffers that live only there. */
static void drop(plan_facts *f, int x)
{
    int kept = 0;
    memmove(f->list + x, f->list + x + 1, (size_t)(f->length - x - 1) * sizeof *f->list);
    memmove(f->usage + x, f->usage + x + 1, (size_t)(f->length - x - 1) * sizeof *f->usage);
    f->length--;
    for (int b = 0; b < f->buffers; b++) {
        gckpt_buffer q = f->buffer[b];
        if (q.start == x && q.end == x)
            continue;
        q.start -= q.start > x;
        q.end -= q.end >= x && q.end > q.start;
        f->buffer[kept++] = q;
    }
    f->buffers = kept;
    blind(f);
}

/* Inserts a copy of instruction x after position y. */
static void insert(plan_facts *f, int x, int y)
{
    gckpt_instruction in = f->list[x];
    gckpt_usage u = f->usage[x];
    f->list = (gckpt_instruction *)realloc(f->list, (size_t)(f->length + 2) * sizeof *f->list);
    f->usage = (gckpt_usage *)realloc(f->usage, (size_t)(f->length + 2) * sizeof *f->usage);
    memmove(f->list + y + 2, f->list + y + 1, (size_t)(f->length - y - 1) * sizeof in);
    memmove(f->usage + y + 2, f->usage + y + 1, (size_t)(f->length - y - 1) * sizeof u);
    f->list[y + 1] = in;
    f->usage[y + 1] = u;
    f->length++;
    for (int b = 0; b < f->buffers; b++) {
        f->buffer[b].start += f->buffer[b].start > y;
        f->buffer[b].end += f->buffer[b].end > y;
    }
    blind(f);
}

static int by_start(const void *a, const void *b)
{
    const gckpt_buffer *p = (const gckpt_buffer *)a, *q = (const gckpt_buffer *)b;
    return p->start - q->start;
}

/* Exchanges instructions x and y; buffers that begin or end at one of them then begin or end at the other. */
static void exchange(plan_facts *f, int x, int y)
{
    gckpt_instruction in = f->list[x];
    gckpt_usage u = f->usage[x];
    f->list[x] = f->list[y], f->list[y] = in;
    f->usage[x] = f->usage[y], f->usage[y] = u;
    for (int b = 0; b < f->buffers; b++) {
        gckpt_buffer *q = &f->buffer[b];
        int start = q->start == x ? y : q->start == y ? x : q->start;
        int end = q->end == x ? y : q->end == y ? x : q->end;
        q->start = start < end ? start : end;
        q->end = start < end ? end : start;
    }
    qsort(f->buffer, (size_t)f->buffers, sizeof *f->buffer, by_start);
    blind(f);
}

/* Returns the index of a buffer of this kind that lives for more than two instructions, after skipping `after`
 * others, or -1. */
static int buffer(const plan_facts *f, int kind, int after)
{
    for (int b = 0; b < f->buffers; b++)
        if ((int)f->buffer[b].kind == kind && f->buffer[b].end > f->buffer[b].start + 1 &&
            after-- == 0)
            return b;
    return -1;
}

/* Sets the end of buffer b. */
static int ends(plan_facts *f, int b, int end)
{
    f->buffer[b].end = end;
    return 1;
}

/* The next functions corrupt a plan. Parameter n selects one of the places at which the corruption is possible; each
 * function returns 0 if there is no such place. */
static int shift_offset(plan_facts *f, int n)
{
    for (int b = 0; b < f->buffers; b++)
        for (int c = 0; c < f->buffers; c++) {
            gckpt_buffer *p = &f->buffer[b], *q = &f->buffer[c];
            if (b != c && p->start <= q->end && q->start <= p->end && n-- == 0)
                return (p->offset = q->offset), blind(f), 1;
        }
    return 0;
}
static int overlap_gradients(plan_facts *f, int n)
{
    int a = buffer(f, GCKPT_BUFFER_PARAMETER_GRADIENT, n), b = -1;
    for (int c = 0; a >= 0 && c < f->buffers; c++)
        if (c != a && f->buffer[c].kind == GCKPT_BUFFER_PARAMETER_GRADIENT &&
            f->buffer[c].start < f->buffer[a].end && f->buffer[c].end > f->buffer[a].start)
            b = c;
    return b >= 0 && (f->buffer[b].offset = f->buffer[a].offset, blind(f), 1);
}
static int unalign(plan_facts *f, int n)
{
    return f->buffers > n && (f->buffer[n].offset += 2, blind(f), 1);
}
static int free_early(plan_facts *f, int n)
{
    int b = buffer(f, GCKPT_BUFFER_VALUE, n);
    return b >= 0 && ends(f, b, f->buffer[b].end - 1);
}
static int free_late(plan_facts *f, int n)
{
    int b = buffer(f, GCKPT_BUFFER_VALUE, n);
    return b >= 0 && f->buffer[b].end + 1 < f->length && ends(f, b, f->buffer[b].end + 1);
}
static int free_gradient_early(plan_facts *f, int n)
{
    int b = buffer(f, GCKPT_BUFFER_PARAMETER_GRADIENT, n);
    return b >= 0 && ends(f, b, f->buffer[b].end - 1);
}
static int free_saved_early(plan_facts *f, int n)
{
    int b = buffer(f, GCKPT_BUFFER_SAVED, n);
    return b >= 0 && ends(f, b, f->buffer[b].start);
}
static int begin_late(plan_facts *f, int n)
{
    int b = buffer(f, GCKPT_BUFFER_VALUE, n);
    return b >= 0 && (f->buffer[b].start++, 1);
}
static int shrink_value(plan_facts *f, int n)
{
    int b = buffer(f, GCKPT_BUFFER_VALUE, n);
    return b >= 0 && (f->buffer[b].size -= 4, 1);
}
static int shrink_gradient(plan_facts *f, int n)
{
    int b = buffer(f, GCKPT_BUFFER_PARAMETER_GRADIENT, n);
    return b >= 0 && (f->buffer[b].size -= 4, 1);
}
static int shrink_workspace(plan_facts *f, int n)
{
    for (int b = 0; b < f->buffers && f->batch <= f->rows; b++) {
        const gckpt_buffer *q = &f->buffer[b];
        const pc_node *node = &f->node[q->id];
        int sums = 0;
        for (int i = 0; i < node->inputs; i++)
            sums |= node->op.needs[i] & GCKPT_SUMS && !node->batch_invariant && f->trained[node->in[i]];
        if (q->kind == GCKPT_BUFFER_WORKSPACE && f->list[q->start].kind == GCKPT_BACKWARD && sums &&
            n-- == 0)
            return (f->buffer[b].size = 1), 1;
    }
    return 0;
}
static int lose_buffer(plan_facts *f, int n)
{
    int b = buffer(f, GCKPT_BUFFER_VALUE, n);
    if (b >= 0)
        memmove(f->buffer + b, f->buffer + b + 1, (size_t)(--f->buffers - b) * sizeof *f->buffer);
    return b >= 0;
}
static int little_arena(plan_facts *f, int n) { return (f->arena -= 4 + 0 * (size_t)n), 1; }
static int little_bound(plan_facts *f, int n) { return (f->bound -= 64 + 0 * (size_t)n), 1; }
static int little_live(plan_facts *f, int n) { return f->length > n && (f->usage[n].live -= 4, 1); }
static int little_bytes(plan_facts *f, int n) { return (f->bytes -= 4 + 0 * (size_t)n), 1; }
static int wrong_kind(plan_facts *f, int n)
{
    f->kind[GCKPT_BYTES_ACTIVATIONS] += 64 + 0 * (size_t)n;
    f->kind[GCKPT_BYTES_GRADIENTS] -= 64;
    return 1;
}
static int little_budget(plan_facts *f, int n)
{
    f->mode = GCKPT_OPTIMAL;
    f->budget = f->bytes - 1 + 0 * (size_t)n;
    return 1;
}
static int drop_kind(plan_facts *f, int kind, int n, int recompute)
{
    int x = find(f, kind, n, recompute);
    return x >= 0 && (drop(f, x), 1);
}
static int drop_recompute(plan_facts *f, int n) { return drop_kind(f, GCKPT_FORWARD, n, 1); }
static int drop_forward(plan_facts *f, int n) { return drop_kind(f, GCKPT_FORWARD, 3 + n, 0); }
static int drop_backward(plan_facts *f, int n) { return drop_kind(f, GCKPT_BACKWARD, n, -1); }
static int drop_update(plan_facts *f, int n) { return drop_kind(f, GCKPT_UPDATE, n, -1); }
static int drop_offload(plan_facts *f, int n) { return drop_kind(f, GCKPT_OFFLOAD, n, -1); }
static int drop_reload(plan_facts *f, int n) { return drop_kind(f, GCKPT_RELOAD, n, -1); }
static int drop_offload_done(plan_facts *f, int n) { return drop_kind(f, GCKPT_OFFLOAD_DONE, n, -1); }
static int repeat_offload_done(plan_facts *f, int n)
{
    int x = find(f, GCKPT_OFFLOAD_DONE, n, -1), last = 0;
    for (int y = 0; y < f->length; y++)
        last = f->list[y].kind == GCKPT_RELOAD ? y : last;
    return x >= 0 && (insert(f, x, last + 2), 1);
}
static int short_time(plan_facts *f, int n)
{
    return f->hidden > 0 && (f->work -= 1, f->hidden += 1, n == 0);
}
static int drop_begin(plan_facts *f, int n) { return drop_kind(f, GCKPT_BEGIN, n, -1); }
static int drop_next(plan_facts *f, int n) { return drop_kind(f, GCKPT_NEXT, n, -1); }
static int drop_barrier(plan_facts *f, int n) { return drop_kind(f, GCKPT_BARRIER, n, -1); }
static int drop_reduce(plan_facts *f, int n) { return drop_kind(f, GCKPT_REDUCE, n, -1); }
static int repeat_kind(plan_facts *f, int kind, int n)
{
    int x = find(f, kind, n, -1);
    return x >= 0 && (insert(f, x, x), 1);
}
static int repeat_forward(plan_facts *f, int n) { return repeat_kind(f, GCKPT_FORWARD, 2 + n); }
static int repeat_backward(plan_facts *f, int n) { return repeat_kind(f, GCKPT_BACKWARD, n); }
static int repeat_update(plan_facts *f, int n) { return repeat_kind(f, GCKPT_UPDATE, n); }
static int repeat_begin(plan_facts *f, int n) { return repeat_kind(f, GCKPT_BEGIN, n); }
static int repeat_next(plan_facts *f, int n) { return repeat_kind(f, GCKPT_NEXT, n); }
static int repeat_barrier(plan_facts *f, int n) { return repeat_kind(f, GCKPT_BARRIER, n); }
static int repeat_reduce(plan_facts *f, int n) { return repeat_kind(f, GCKPT_REDUCE, n); }
/* Moves the first update, with its BARRIER, before the backward before it. */
static int early_update(plan_facts *f, int n)
{
    int x = find(f, GCKPT_BARRIER, 0, -1);
    return x > 0 && f->list[x - 1].kind == GCKPT_BACKWARD &&
           (exchange(f, x - 1, x), exchange(f, x, x + 1), n == 0);
}
static int early_reduce(plan_facts *f, int n)
{
    int x = find(f, GCKPT_REDUCE, n, -1);
    return x > 0 && f->list[x - 1].kind == GCKPT_BACKWARD && (exchange(f, x - 1, x), 1);
}
static int late_reload(plan_facts *f, int n)
{
    int x = find(f, GCKPT_RELOAD, n, -1);
    return x >= 0 && (exchange(f, x, x + 1), 1);
}
static int late_offload(plan_facts *f, int n)
{
    int x = find(f, GCKPT_OFFLOAD, n, -1);
    return x >= 0 && (exchange(f, x, x + 1), 1);
}
static int swap_forwards(plan_facts *f, int n)
{
    int x = find(f, GCKPT_FORWARD, 4 + n, 0), reads = 0;
    const int follows = x > 0 && x + 1 < f->length && f->list[x + 1].kind == GCKPT_FORWARD;
    const pc_node *next = follows ? &f->node[f->list[x + 1].id] : NULL;
    for (int i = 0; next && i < next->inputs; i++)
        reads |= f->node[next->in[i]].base == f->list[x].id;
    return reads && (exchange(f, x, x + 1), 1);
}
/* Exchanges a backward with the next one, which needs the gradient that the first one computes. */
static int swap_backwards(plan_facts *f, int n)
{
    int x = find(f, GCKPT_BACKWARD, n, -1), reads = 0;
    const pc_node *first = x > 0 ? &f->node[f->list[x].id] : NULL;
    for (int i = 0; first && i < first->inputs; i++)
        reads |= f->node[first->in[i]].base == f->list[x + 1].id;
    return reads && f->list[x + 1].kind == GCKPT_BACKWARD && (exchange(f, x, x + 1), 1);
}
/* Finds two backwards that add to the same gradient, and moves the first one after the second. */
static int wrong_order(plan_facts *f, int n)
{
    for (int id = 0; id < f->count; id++)
        for (int a = 0; a < f->count; a++)
            for (int b = a + 1; b < f->count; b++) {
                pc_node *p = &f->node[a], *q = &f->node[b];
                if (p->kind != PC_OP || q->kind != PC_OP || p->inputs < 1 || q->inputs < 1 ||
                    f->node[id].batch_invariant || p->in[0] != id || q->in[0] != id || n-- != 0)
                    continue;
                for (int x = 0; x < f->length; x++)
                    for (int y = x + 1; y < f->length; y++)
                        if (f->list[x].kind == GCKPT_BACKWARD && f->list[x].id == b &&
                            f->list[y].kind == GCKPT_BACKWARD && f->list[y].id == a) {
                            for (; x < y; x++)
                                exchange(f, x, x + 1);
                            return 1;
                        }
            }
    return 0;
}
static int read_another(plan_facts *f, int n)
{
    int x = find(f, GCKPT_FORWARD, 6 + n, -1), id = x < 0 ? -1 : f->list[x].id;
    int in = id < 0 || f->node[id].inputs < 1 ? -1 : f->node[id].in[0];
    for (int k = 0; in >= 0 && k < in; k++)
        if (f->node[k].kind == PC_OP && !f->node[k].batch_invariant && f->node[k].n == f->node[in].n &&
            f->node[in].base != k)
            return (f->node[id].in[0] = k), 1;
    return 0;
}
static int wrong_once(plan_facts *f, int n) { return (f->usage[f->length / 2].once ^= 1), n == 0; }
static int wrong_again(plan_facts *f, int n)
{
    int x = find(f, GCKPT_FORWARD, n, -1);
    return x >= 0 && (f->usage[x].recompute ^= 1, 1);
}
static int wrong_cost(plan_facts *f, int n)
{
    return f->length > n && f->list[n].kind <= GCKPT_BACKWARD && (f->usage[n].cost++, 1);
}
static int wrong_total_work(plan_facts *f, int n) { return (f->work--), n == 0; }
static int wrong_recompute(plan_facts *f, int n) { return (f->recompute += 0.001), n == 0; }
static int cheap(plan_facts *f, int n)
{
    int id = f->list[n].id;
    if (f->list[n].kind > GCKPT_BACKWARD || !f->by_model)
        return 0;
    f->usage[n].cost = 1;
    *(f->list[n].kind == GCKPT_FORWARD ? &f->cost[id].forward : &f->cost[id].backward) = 1;
    return 1;
}
static int side_effect(plan_facts *f, int n)
{
    int x = find(f, GCKPT_FORWARD, n, 1);
    return x >= 0 && (f->node[f->list[x].id].op.flags |= GCKPT_SIDE_EFFECT, 1);
}
static int not_kept(plan_facts *f, int n)
{
    int x = find(f, GCKPT_FORWARD, n, 1);
    return x >= 0 && (f->node[f->list[x].id].keep = 1);
}
/* Gives the policy must_recompute to a value of a store-all plan that a backward reads without a recompute. */
static int not_again(plan_facts *f, int n)
{
    int x = find(f, GCKPT_BACKWARD, 3 + n, -1), id = x < 0 ? 0 : f->list[x].id;
    for (int i = 0; x >= 0 && f->mode == GCKPT_STORE_ALL && i < f->node[id].inputs; i++) {
        pc_node *q = &f->node[f->node[id].in[i]];
        if (f->node[id].op.needs[0] & GCKPT_IN(i) && q->kind == PC_OP && !q->batch_invariant)
            return q->recompute = 1;
    }
    return 0;
}
static int no_update(plan_facts *f, int n)
{
    int x = find(f, GCKPT_UPDATE, n, -1);
    return x >= 0 && (f->list[x].id = f->list[x > 0 ? x - 1 : x + 1].id, 1);
}
static int little_host(plan_facts *f, int n)
{
    return f->offloaded > 0 && (f->offloaded /= 2, n == 0);
}
static int little_host_allowed(plan_facts *f, int n)
{
    return f->offloaded > 0 && (f->offload_bytes = f->offloaded - 1, n == 0);
}
static int host_overlap(plan_facts *f, int n)
{
    int first = -1;
    for (int i = 0; f->host_offset && i < 2 * f->count; i++)
        if (f->host_offset[i] != PC_NONE) {
            if (first >= 0 && n-- == 0)
                return (f->host_offset[i] = f->host_offset[first]), 1;
            first = i;
        }
    return 0;
}
static int narrow(plan_facts *f, int n)
{
    f->precision = f->precision ? GCKPT_FP32 : GCKPT_BF16;
    return n == 0;
}
static int fetch_more(plan_facts *f, int n)
{
    int x = find(f, GCKPT_FORWARD, 5 + n, -1);
    for (int i = 0; i < f->fetches && x >= 0; i++)
        if (f->fetch[i].id == f->list[x].id)
            return 0;
    f->fetch = (pc_fetch *)realloc(f->fetch, (size_t)(f->fetches + 1) * sizeof *f->fetch);
    if (x < 0 || f->node[f->list[x].id].kind != PC_OP ||
        f->node[f->list[x].id].op.flags & GCKPT_LOSS)
        return 0;
    f->fetch[f->fetches++] = (pc_fetch){ f->list[x].id, 0, PC_NONE };
    return 1;
}
static int another_loss(plan_facts *f, int n)
{
    for (int x = 0; x < f->length; x++) /* removes the loss's forward, as if the loss term were another op */
        if (f->list[x].id == f->term[0] && f->list[x].kind == GCKPT_FORWARD && n == 0)
            return drop(f, x), 1;
    return 0;
}
static int loop_early(plan_facts *f, int n)
{
    int x = f->length;
    while (x > 0 && f->usage[x - 1].once)
        x--;
    for (int b = 0; b < f->buffers && f->batch > f->rows; b++) {
        gckpt_buffer *q = &f->buffer[b];
        if (q->kind == GCKPT_BUFFER_VALUE && f->usage[q->start].once && q->end > q->start + 1 &&
            n-- == 0)
            return ends(f, b, x - 3); /* before the last instruction and the NEXT */
    }
    return 0;
}
static int resident_short(plan_facts *f, int n)
{
    for (int b = 0; b < f->buffers; b++)
        if (f->buffer[b].start == 0 && f->buffer[b].end == f->length && n-- == 0)
            return ends(f, b, f->length - 1);
    return 0;
}
/* facts of the C constant */
static size_t *number_at(plan_facts *f, int kind, int n, int operand)
{
    int x = find(f, kind, n, -1);
    return x < 0 || !f->ins ? NULL : &f->operand[f->ins[x].at + operand];
}
static int move_operand(plan_facts *f, int kind, int n, int operand)
{
    size_t *at = number_at(f, kind, n, operand);
    return at && *at != PC_NONE && (*at += f->alignment, 1);
}
static int move_out(plan_facts *f, int n) { return move_operand(f, GCKPT_FORWARD, n, 0); }
static int move_in(plan_facts *f, int n) { return move_operand(f, GCKPT_FORWARD, 1 + n, 3); }
static int move_gradient(plan_facts *f, int n) { return move_operand(f, GCKPT_BACKWARD, n, 3); }
static int move_read(plan_facts *f, int n) { return move_operand(f, GCKPT_BACKWARD, n, 4); }
static int move_input_gradient(plan_facts *f, int n) { return move_operand(f, GCKPT_BACKWARD, n, 5); }
static int move_total(plan_facts *f, int n)
{
    for (int x = 0; x < f->length && f->ins; x++)
        for (int i = 0; f->list[x].kind == GCKPT_BACKWARD && i < f->node[f->list[x].id].inputs;
             i++) {
            size_t *total = &f->operand[f->ins[x].at + 6 + 3 * i];
            if (*total != PC_NONE && n-- == 0)
                return (*total += f->alignment), 1;
        }
    return 0;
}
static int move_update(plan_facts *f, int n) { return move_operand(f, GCKPT_UPDATE, n, 0); }
static int move_more(plan_facts *f, int n)
{
    int x = find(f, GCKPT_UPDATE, n, -1);
    return x >= 0 && f->ins && f->ins[x].uses > 1 && move_operand(f, GCKPT_UPDATE, n, 1);
}
static int move_reduce(plan_facts *f, int n) { return move_operand(f, GCKPT_REDUCE, n, 1); }
static int move_offload(plan_facts *f, int n) { return move_operand(f, GCKPT_OFFLOAD, n, 0); }
static int move_fetch(plan_facts *f, int n)
{
    return n < f->fetches && f->ins && (f->fetch[n].offset += f->alignment, 1);
}
static int change_ins(plan_facts *f, int kind, int n, int what)
{
    int x = find(f, kind, n, -1);
    if (x < 0 || !f->ins)
        return 0;
    int *const field[] = { &f->ins[x].first, &f->ins[x].accumulate, &f->ins[x].zero,
                           &f->ins[x].uses, &f->ins[x].id };
    *field[what] ^= 1;
    return 1;
}
static int wrong_first(plan_facts *f, int n) { return change_ins(f, GCKPT_FORWARD, n, 0); }
static int wrong_add(plan_facts *f, int n) { return change_ins(f, GCKPT_BACKWARD, n, 1); }
static int wrong_zero(plan_facts *f, int n) { return change_ins(f, GCKPT_BACKWARD, n, 2); }
static int wrong_uses(plan_facts *f, int n) { return change_ins(f, GCKPT_BACKWARD, n, 3); }
static int wrong_sums(plan_facts *f, int n) { return change_ins(f, GCKPT_REDUCE, n, 3); }
static int wrong_param(plan_facts *f, int n) { return change_ins(f, GCKPT_UPDATE, n, 4); }

/* The corruptions, each with a part of the checker's message, which must occur at least once. The checker must refuse
 * every corruption at each of its places in all plans. */
static const struct {
    const char *name;
    int (*corrupt)(plan_facts *f, int n);
    const char *says;
} corruptions[] = {
    { "an offset is that of another", shift_offset, "overlap" },
    { "two gradients overlap", overlap_gradients, "overlap" },
    { "an offset is not aligned", unalign, "not aligned" },
    { "a value is dropped too early", free_early, "whose buffer" },
    { "a value is kept for nothing", free_late, "is the last to use it" },
    { "a parameter's gradient is dropped too early", free_gradient_early, "gradient" },
    { "saved is dropped too early", free_saved_early, "whose buffer" },
    { "a buffer begins too late", begin_late, "has no place" },
    { "a value's buffer is too small", shrink_value, "has no place" },
    { "a gradient's buffer is too small", shrink_gradient, "gradient" },
    { "a workspace has no space for compensations", shrink_workspace, "compensations" },
    { "a value has no buffer", lose_buffer, "has no place" },
    { "the arena is reported too small", little_arena, "exceeds the arena" },
    { "the bound is reported too small", little_bound, "bound" },
    { "live bytes are reported too small", little_live, "are reported as live" },
    { "the bytes are reported too small", little_bytes, "reported in all" },
    { "kinds of bytes are reported wrong", wrong_kind, "by kind" },
    { "the budget is exceeded", little_budget, "exceed the budget" },
    { "a recompute is missing", drop_recompute, "reads the" },
    { "a first forward is missing", drop_forward, "which was never computed" },
    { "a loss is never computed", another_loss, "before its forward" },
    { "a backward is missing", drop_backward, "adds to the gradient" },
    { "an update is missing", drop_update, "was not updated" },
    { "an offload is missing", drop_offload, "was not offloaded" },
    { "a reload is missing", drop_reload, "nothing of it is reloaded" },
    { "an offload_done is missing", drop_offload_done, "" },
    { "an offload_done follows all reloads", repeat_offload_done, "nothing of it is reloaded" },
    { "a time is reported too short", short_time, "in a time of" },
    { "the BEGIN is missing", drop_begin, "does not begin with a BEGIN and end with a NEXT" },
    { "the NEXT is missing", drop_next, "does not begin with a BEGIN and end with a NEXT" },
    { "the BEGIN is repeated", repeat_begin, "is in the wrong part of the list" },
    { "the NEXT is repeated", repeat_next, "is in the wrong part of the list" },
    { "the BARRIER is missing", drop_barrier, "is in the wrong part of the list" },
    { "the BARRIER is repeated", repeat_barrier, "is not before the first update" },
    { "a REDUCE is missing", drop_reduce, "was not reduced" },
    { "a forward is repeated", repeat_forward, "no op reads its result" },
    { "a backward is repeated", repeat_backward, "runs a second time" },
    { "an update is repeated", repeat_update, "is there a second time" },
    { "a REDUCE is repeated", repeat_reduce, "was written over" },
    { "an update comes too early", early_update, "comes after an update" },
    { "a REDUCE comes too early", early_reduce, "has not added to it yet" },
    { "a reload comes too late", late_reload, "reads the" },
    { "an offload comes too late", late_offload, "does not follow its forward" },
    { "two forwards change places", swap_forwards, "reads the" },
    { "two backwards change places", swap_backwards, "contributions" },
    { "additions come in the wrong order", wrong_order, "as number" },
    { "an op reads another value", read_another, "" },
    { "a part of the list is reported wrong", wrong_once, "a body that does not begin" },
    { "a recompute is reported wrong", wrong_again, "is reported to run" },
    { "the cost of an instruction is reported wrong", wrong_cost, "its work is reported" },
    { "an op costs less than the bytes that it moves", cheap, "the bytes that it moves cost" },
    { "the work is reported too small", wrong_total_work, "are reported; it is" },
    { "the recomputed work is reported wrong", wrong_recompute, "are reported; it is" },
    { "a side effect happens twice", side_effect, "side effect" },
    { "gckpt_keep is not obeyed", not_kept, "has a policy" },
    { "gckpt_recompute is not obeyed", not_again, "must be recomputed" },
    { "an update is of a tensor that is no parameter", no_update, "" },
    { "slower memory is reported too small", little_host, "offloaded" },
    { "more is offloaded than allowed", little_host_allowed, "allowed" },
    { "two overlap in slower memory", host_overlap, "overlap in slower memory" },
    { "values have another precision", narrow, "has no place" },
    { "a fetched value is dropped", fetch_more, "" },
    { "a value that a loop reads is dropped in its midst", loop_early, "in the midst of a loop" },
    { "an accumulator does not last", resident_short, "through the step" },
    { "a value is written elsewhere", move_out, "operand out" },
    { "a value is read elsewhere", move_in, "operand value" },
    { "a gradient is read elsewhere", move_gradient, "operand gradient" },
    { "a backward reads elsewhere", move_read, "operand value" },
    { "a gradient is written elsewhere", move_input_gradient, "operand gradient of input" },
    { "a gradient is added to another", move_total, "operand total" },
    { "an update reads elsewhere", move_update, "operand gradient" },
    { "an accumulator is read elsewhere", move_more, "operand accumulator" },
    { "a REDUCE is elsewhere", move_reduce, "operand gradient" },
    { "an offload reads elsewhere", move_offload, "operand out" },
    { "a fetch is elsewhere", move_fetch, "is fetched at" },
    { "a first forward is no first", wrong_first, "first" },
    { "a gradient is stored, not added", wrong_add, "accumulates" },
    { "a gradient is cleared, or not", wrong_zero, "clears" },
    { "a backward adds up too many", wrong_uses, "adds up" },
    { "a REDUCE adds up too many", wrong_sums, "adds up" },
    { "an update is of another parameter", wrong_param, "runs as" },
};
enum { CORRUPTIONS = sizeof corruptions / sizeof *corruptions };
static int applied[CORRUPTIONS], reported[CORRUPTIONS];

static void corrupt_all(gckpt_graph *graph, const gckpt_term *terms, int count,
                        const gckpt_plan_desc *d, unsigned seed)
{
    gckpt_plan *p = gckpt_plan_new(graph, terms, count, d);
    pc_graph *g = pc_graph_new(graph, terms, count);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(graph));
    for (int c = 0; c < CORRUPTIONS && p; c++)
        for (int k = 0; k < (seed ? 3 : 12); k++) {
            plan_facts f;
            CHECK(plan_facts_read(&f, p, g, d));
            plan_facts_print(&f, p);
            int done = corruptions[c].corrupt(&f, seed ? 3 * k : k);
            const char *problem = done ? plan_facts_check(&f) : "";
            applied[c] += done;
            CHECK_MSG(problem != NULL, "%s (%d, %s, seed %u) passes", corruptions[c].name, k,
                      mode_name(d->mode), seed);
            CHECK_MSG(!done || !problem || strstr(problem, "nstruction "), "%s: %s",
                      corruptions[c].name, problem);
            reported[c] += done && problem && strstr(problem, corruptions[c].says);
            plan_facts_free(&f);
        }
    pc_graph_free(g);
    gckpt_plan_free(p);
}

static void test_corruptions(void)
{
    for (int way = 0; way < 9; way++) {
        sample n;
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
        make(&n, way == 2 || way == 3 ? 1 : ROWS / (1 + (way == 7)),
             way == 5   ? 0
             : way == 7 ? LARGE
                        : REGULAR | SEVERAL);
        const gckpt_fetch_spec fetches[] = { { n.middle, 0 }, { n.x, 1 } };
        d.batch = ROWS;
        d.fetch.specs = fetches;
        d.fetch.count = way == 0 ? 2 : 0;
        d.ranks.virtual_ranks = way == 3 ? 4 : way == 7 ? 2 : 0;
        d.mode = way == 1 ? GCKPT_SEGMENTS : way == 6 ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL;
        if (way == 7)
            CHECK(gckpt_store_ranks(n.s, 0, 2, GCKPT_SHARD_GRADIENTS) == GCKPT_OK);
        /* ways 4 and 8 offload values, which are cheap to copy in way 4; in way 8 the copies overlap computation */
        if (way == 4 || way == 8) {
            d.mode = GCKPT_OPTIMAL;
            d.offload.bytes = 1 << 20;
            d.offload.cost = way == 4 ? 1 : 1 << 24;
            d.offload.overlap = way == 8;
            d.budget = bytes_of(&n, &d, GCKPT_SQRT);
        }
        corrupt_all(n.g, n.terms, n.count, &d, 0);
        util_free(NULL, NULL, n.g, n.s);
    }
    for (int c = 0; c < CORRUPTIONS; c++) {
        CHECK_MSG(applied[c] > 0, "%s: no plan has that", corruptions[c].name);
        CHECK_MSG(reported[c] > 0 || !applied[c], "%s: never said \"%s\"", corruptions[c].name,
                  corruptions[c].says);
    }
}

/* Checks plans of random nets that contain all ops. */
static void test_random_nets(unsigned first, unsigned nets)
{
    for (unsigned seed = first; seed < first + nets; seed++) {
        gckpt_plan_desc d = { .optimiser = GCKPT_SGD };
        build(seed, seed % 2);
        d.batch = net.batch;
        d.mode = seed % 3 ? seed % 3 > 1 ? GCKPT_MEMORY_POOR : GCKPT_SEGMENTS : GCKPT_STORE_ALL;
        corrupt_all(net.g, net.term, net.terms, &d, seed);
        destroy();
    }
}

/* ---- each row of the checker's table of ops equals the descriptor of that op ---- */
static void same_descriptor(const gckpt_op *op)
{
    const unsigned flags = 0xffffu | GCKPT_INPLACE_GRAD | GCKPT_LOSS | GCKPT_SIDE_EFFECT;
    const unsigned needs = 0x3ffu | GCKPT_SUMS;
    const pc_op *q = pc_find_op(op->name);
    CHECK_MSG(q != NULL, "%s is not in the table", op->name);
    if (!q)
        return;
    CHECK_MSG((op->flags & flags) == (q->flags & flags) &&
                  (op->backward != NULL) == ((q->flags & PC_BACKWARD) != 0),
              "%s has other flags", op->name);
    for (int i = 0; i < GCKPT_MAX_INPUTS; i++)
        CHECK_MSG((op->needs[i] & needs) == q->needs[i], "%s, input %d", op->name, i);
}

static void test_table(void)
{
#define ROW(name, part) same_descriptor(&gckpti_op_##name);
    GCKPTI_OPS(ROW)
#undef ROW
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : check_seed();
    test_table();
    test_good();
    test_ranks();
    test_corruptions();
    test_random_nets(first,
                     argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)check_iterations(6));
    return check_report("test_plan_check");
}
