/* rank_training.h - trains one model on threads as ranks, in any setting and with a fault on one rank, and compares
 * the result with one process that has the same number of virtual ranks. Include after gradckpt.h. */
#ifndef TESTS_RANK_TRAINING_H
#define TESTS_RANK_TRAINING_H
#include "rank_threads.h"
#include "util.h"
#if RANKS_THREADS
#include <math.h>

/* ---- A model with all kinds of gradients and values that are summed over ranks: a tied table, products with and
 * without a bias, gains, broadcasting, functions of parameters, a regulariser, losses with separate counts. The nets
 * of net.h have parameters that are too small to be sharded; test_ranks_random.c trains them on ranks. ---- */
enum { BATCH = 16, T = 3, D = 5, C = 20, V = 250, WIDE = 700, VRANKS = 8, STEPS = 4 };
enum {
    DROPOUT = 1,
    SECOND = 2, /* adds a second loss, with other targets */
    FROZEN = 4,
    PACKED = 8,
    RUNNING = 16,
    INFINITE = 32, /* the last rank's rows of the second step contain an infinity, so that the step is skipped */
    SMALL = 256,   /* fewer neurons, so that no parameter has more than two blocks of 4096 */
    LARGE = 512,   /* more neurons, so that half of a parameter is more than 16 blocks of 4096 */
    SIZED = 1024   /* the custom optimiser's state has bytes, not floats of the parameter's shape */
};
typedef enum { WHOLE, PIECES, FEEDINGS } feeding;
typedef struct {
    int ranks;
    gckpt_shard shard;
    gckpt_mode mode; /* for OPTIMAL, the budget is half way between the least bytes and those of store-all */
    int rows, virtual_ranks;
    unsigned flags;
    gckpt_optimiser optimiser;
    gckpt_precision precision;
    feeding feed;
    int blocking, threads, overlap;
    int steps;                     /* if 0, STEPS */
    int repeats;                      /* how often the sequence of all steps runs; 0 means once */
    /* no_debug: if nonzero, no debug mode, so that a backend can capture micro-batches; unclipped: if nonzero, no
     * clipping */
    int no_debug, unclipped;
    int batch; /* if 0, BATCH */
    unsigned debug;                /* if 0, GCKPT_DEBUG_MEASURE */
    const gckpt_backend *const *backends; /* a backend for each rank, or NULL for the processor */
    /* on_backend: nonzero if exchanges read and write the backend's memory; queued: nonzero if these exchanges run in a
     * separate queue of the backend */
    int on_backend, queued;
    gckpt_transport *(*transport)(ranks_world *w, int rank); /* if NULL, the threads' transport */
    void (*on_step)(int rank, int begins);           /* called before and after each step; may be NULL */
    size_t offload; /* bytes of slower memory that the plan may use */
} setting;
/* A fault on one rank, in its first step whose index is at least `step`. After the fault, all ranks repeat the step. */
typedef struct {
    ranks_fault fault; /* a fault of the transport */
    int silent;        /* if nonzero, the transport has no `abort` */
    int odd, clock;    /* as in ranks_world */
    int rank, step;
    /* number of the call of the progress callback, counted from the rank's first step, in which the callback cancels */
    long cancel_at;
    int bad_index;  /* if nonzero, the rank is fed an index that is out of range */
    /* one of DIFFERENCES: in which the request of this rank differs from the request of the other ranks */
    int differs;
    int no_memory;  /* if nonzero, the rank gets no memory for its executor */
} injection;
enum {
    SAME,
    OTHER_ROWS,
    RATE,
    SEED,
    VALUES_OF,
    PLAN_OF,
    BATCH_OF,
    PRECISION_OF,
    SKIPPING,
    DEBUG_OF,
    DIFFERENCES
};
typedef struct {
    gckpt_result result[STEPS], hashed;
    gckpt_report report[STEPS];
    uint64_t hash, sent;
    size_t measured, planned, offloaded;
    int64_t updated; /* elements that custom optimisers updated */
    char text[300];  /* text of the first unexpected error */
    /* after an injected fault: */
    int failed;               /* calls that returned an error */
    gckpt_result first, last; /* results of the first and of the last call that returned an error */
    char first_text[300];
    int changed;  /* nonzero if a step that failed before its updates changed values */
    long progress_calls;    /* calls of the progress callback */
    int updating; /* nonzero once the updates of the current step have begun */
} outcome;
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *tokens, *x, *targets, *others, *before_head;
    gckpt_term terms[4];
    int term_count;
} model;
typedef struct trial trial;
typedef struct { /* context of a rank's callbacks */
    trial *t;
    int rank;
} watcher;
struct trial {
    setting s;
    injection bad;
    const gckpt_plan *plan; /* a plan made for the store of rank 0; all ranks run it */
    outcome out[RANKS_MOST];
    model m[RANKS_MOST]; /* a model for each rank; not on the stack of the rank's thread, which may end anywhere */
    gckpt_exec *e[RANKS_MOST];
    watcher user[RANKS_MOST];
};

static float x_data[2][BATCH * T * D]; /* the second array equals the first except for an infinity in row 9 */
static int32_t token_data[BATCH * T], target_data[STEPS][BATCH * T], other_data[BATCH * T];
/* Rows of each step. The second step has no valid targets from row 6 on, the third step has none at all. */
static const int step_rows[STEPS] = { BATCH, 11, 5, BATCH };

static inline void fill(void)
{
    uint64_t state = 5;
    for (int i = 0; i < BATCH * T * D; i++)
        x_data[0][i] = x_data[1][i] = (float)(int)(next_random(&state) % 2001) / 700.0f - 1.4f;
    x_data[1][9 * T * D + 2] = HUGE_VALF;
    for (int i = 0; i < BATCH * T; i++) {
        token_data[i] = (int32_t)(next_random(&state) % V);
        other_data[i] = (int32_t)(next_random(&state) % 9) - 2 - (i / T == 3) * 9;
        other_data[i] = other_data[i] < -1 ? -1 : other_data[i];
        for (int step = 0; step < STEPS; step++) {
            int none = step == 2 || (step == 1 && i / T >= 6) || next_random(&state) % 4 == 0;
            target_data[step][i] = none ? -1 : (int32_t)(next_random(&state) % V);
        }
    }
}

static inline gckpt_tensor *weight(const model *m, const char *name, int64_t a, int64_t b)
{
    gckpt_init init = { b ? 0.15f : 0.05f, 0, b ? 0.0f : 0.5f };
    return gckpt_param(m->g, name, b ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}

static inline model build(gckpt_store *store, const setting *s)
{
    model m = { .s = store, .g = gckpt_graph_new(store, NULL) };
    m.tokens = gckpt_input(m.g, "tokens", GCKPT_I32, gckpt_shape2(s->rows, T));
    m.x = gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape3(s->rows, T, D));
    m.targets = gckpt_input(m.g, "targets", GCKPT_I32, gckpt_shape2(s->rows, T));
    const int64_t U = s->flags & SMALL ? 210 : s->flags & LARGE ? 1700 : WIDE;
    gckpt_tensor *table = weight(&m, "table", V, C), *up = weight(&m, "up", C, U);
    gckpt_tensor *h =
        gckpt_add(gckpt_embed(table, m.tokens),
                  gckpt_linear(m.x, weight(&m, "in", D, C), weight(&m, "bias", C, 0)));
#ifndef GCKPT_NO_IMAGES
    if (s->flags & RUNNING) {
        gckpt_init one = { 0, 0, 1 };
        h = gckpt_batchnorm(h, NULL, NULL, gckpt_running(m.g, "mean", gckpt_shape1(C), one, 0.25f),
                            gckpt_running(m.g, "variance", gckpt_shape1(C), one, 0.25f), 0);
    }
#endif
    if (s->flags & DROPOUT)
        h = gckpt_dropout(h, 0.25f);
    gckpt_tensor *n = gckpt_layernorm(h, weight(&m, "gain", C, 0), weight(&m, "shift", C, 0), 0);
    gckpt_tensor *a = gckpt_gelu(gckpt_linear(n, up, weight(&m, "wide", U, 0)));
    h = gckpt_add(h, gckpt_linear(a, weight(&m, "down", U, C), NULL));
    /* a sharded parameter to whose gradient both the batch and the epilogue add */
    gckpt_tensor *both = gckpt_tanh(weight(&m, "both", C, U));
    /* a parameter that two ops read, one of them in the epilogue */
    gckpt_tensor *side = gckpt_tanh(weight(&m, "side", C, 0));
    h = gckpt_add(gckpt_mul(h, side),
                  gckpt_linear_transposed(gckpt_linear(h, both, NULL), both, NULL));
    h = gckpt_mul(gckpt_rmsnorm(h, weight(&m, "last", C, 0), 0), side);
    m.before_head = h;
    m.terms[0] = (gckpt_term){ gckpt_linear_cross_entropy(h, table, m.targets, NULL), 1, 0 };
    m.terms[1] = (gckpt_term){ gckpt_sum_loss(gckpt_mul(up, up)), 0.0005f, 1 };
    m.terms[2] = (gckpt_term){ gckpt_sum_loss(gckpt_mul(side, side)), 0.001f, 1 };
    m.term_count = 3;
    if (s->flags & SECOND) {
        m.others = gckpt_input(m.g, "others", GCKPT_I32, gckpt_shape2(s->rows, T));
        gckpt_tensor *l = gckpt_linear(h, weight(&m, "head", C, 7), NULL);
        m.terms[m.term_count++] = (gckpt_term){ gckpt_cross_entropy(l, m.others, NULL, 0), 0.3f, 0 };
    }
    if (s->flags & (FROZEN | PACKED))
        gckpt_store_freeze(store, "down", 1);
#ifndef GCKPT_NO_QUANT
    if (s->flags & PACKED)
        gckpt_store_quantise(store, "down", GCKPT_STORAGE_I8);
#endif
    return m;
}

static inline size_t own_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    (void)user, (void)name;
    return sizeof(float) * (size_t)(rows * columns) + 1;
}

/* Makes the plan for the rank of model m. */
static inline gckpt_plan *plan_of(const model *m, const setting *s)
{
    gckpt_plan_desc desc = { .mode = s->mode,
                             .batch = s->batch ? s->batch : BATCH,
                             .optimiser = s->optimiser,
                             .custom_state = s->optimiser == GCKPT_CUSTOM_OPTIMISER,
                             .state_bytes = s->flags & SIZED ? own_bytes : NULL,
                             .threads = s->threads,
                             .ranks.virtual_ranks = s->virtual_ranks,
                             .ranks.link_cost = s->overlap ? 1 << 24 : 1000,
                             .ranks.overlap = s->overlap,
                             .bf16.precision = s->precision,
                             .offload.bytes = s->offload,
                             .offload.cost = s->overlap ? 1 << 24 : 1,
                             .offload.overlap = s->overlap,
                             .backend = s->backends ? s->backends[0] : NULL };
    if (s->mode == GCKPT_OPTIMAL) {
        desc.mode = GCKPT_STORE_ALL;
        gckpt_plan *all = gckpt_plan_new(m->g, m->terms, m->term_count, &desc);
        desc.mode = GCKPT_MEMORY_POOR;
        gckpt_plan *poor = gckpt_plan_new(m->g, m->terms, m->term_count, &desc);
        desc.mode = GCKPT_OPTIMAL;
        desc.budget = (gckpt_plan_bytes(all) + gckpt_plan_bytes(poor)) / 2;
        gckpt_plan_free(all);
        gckpt_plan_free(poor);
    }
    return gckpt_plan_new(m->g, m->terms, m->term_count, &desc);
}

static inline gckpt_store *store_of(const setting *s, int rank, uint64_t seed)
{
    gckpt_store_desc desc = { .seed = seed };
    gckpt_store *store = gckpt_store_new(&desc);
    if (s->ranks > 1)
        gckpt_store_ranks(store, rank, s->ranks, s->shard);
    return store;
}

/* A custom optimiser, momentum, which works on a shard as well as on a whole parameter. */
static inline void own_optimiser(void *user, const gckpt_update *u)
{
    const watcher *o = (const watcher *)user;
    o->t->out[o->rank].updated += u->elements;
    for (int64_t i = 0; i < u->elements; i++) {
        u->state[0][i] = 0.75f * u->state[0][i] + u->gradient[i] * u->clip_scale;
        u->values[i] -= 0.5f * u->options->lr * u->state[0][i];
    }
}

static inline int watch(void *user, const gckpt_progress *p)
{
    const watcher *o = (const watcher *)user;
    outcome *out = &o->t->out[o->rank];
    out->updating |= p->kind == GCKPT_UPDATE;
    return ++out->progress_calls == o->t->bad.cancel_at && o->rank == o->t->bad.rank;
}

static inline int feeds_of(const model *m, const setting *s, int step, int64_t row, gckpt_feed *f)
{
    int infinite = (s->flags & INFINITE) && step == 1;
    f[0] = (gckpt_feed){ gckpt_id(m->tokens), token_data + row * T };
    f[1] = (gckpt_feed){ gckpt_id(m->x), x_data[infinite] + row * T * D };
    f[2] = (gckpt_feed){ gckpt_id(m->targets), target_data[step] + row * T };
    if (m->others)
        f[3] = (gckpt_feed){ gckpt_id(m->others), other_data + row * T };
    return m->others ? 4 : 3;
}

/* Feeds a rank its rows of a step and runs the step. If t->bad applies to this step, feeds wrong data. */
static inline gckpt_result take_step(gckpt_exec *e, const model *m, const trial *t, int rank,
                                     int step, int bad, gckpt_report *report)
{
    const int differs = bad ? t->bad.differs : SAME;
    const gckpt_hyper hyper = { .lr = differs == RATE ? 0.021f : 0.02f,
                                .weight_decay = 0.1f,
                                .clip = t->s.unclipped ? 0 : 0.05f };
    gckpt_feed feeds[4];
    int64_t rows = step_rows[step], first;
    (void)gckpt_plan_rank_rows(t->plan, rows, rank, &first);
    int32_t indices[BATCH * T];
    int n = feeds_of(m, &t->s, step, first, feeds);
    memcpy(indices, token_data, sizeof indices);
    indices[first * T + 1] = V;
    if (bad && t->bad.bad_index)
        feeds[0].data = indices + first * T;
    if (t->s.feed == WHOLE)
        return gckpt_step(e, feeds, n, rows - (differs == OTHER_ROWS), &hyper, report);
    gckpt_result result = gckpt_step_start(e, feeds, n, rows - (differs == OTHER_ROWS), &hyper);
    for (result = result ? result : GCKPT_MORE; result == GCKPT_MORE;)
        result = gckpt_run_some(e, 3 + rank, report);
    return result;
}

/* Takes all steps. If a step fails because of the injected fault, repeats that step without the fault. */
static inline void take_steps(gckpt_exec *e, const model *m, trial *t, int rank)
{
    outcome *o = &t->out[rank];
    const int steps = t->s.steps ? t->s.steps : STEPS;
    for (int at = 0; at < steps * (t->s.repeats ? t->s.repeats : 1); at++) {
        const int step = at % steps;
        uint64_t before = gckpt_store_hash(m->s);
        int bad = o->failed == 0 && step >= t->bad.step && rank == t->bad.rank;
        o->updating = 0;
        if (t->s.on_step)
            t->s.on_step(rank, 1);
        gckpt_result result = take_step(e, m, t, rank, step, bad, &o->report[step]);
        if (t->s.on_step)
            t->s.on_step(rank, 0);
        o->result[step] = result;
        if (result == GCKPT_OK || result == GCKPT_SKIPPED)
            continue;
        o->changed |= !o->updating && gckpt_store_hash(m->s) != before;
        o->last = result;
        if (o->failed++ == 0) {
            o->first = result;
            snprintf(o->first_text, sizeof o->first_text, "%s", gckpt_error_text(e));
        }
        if (o->failed > 1)
            snprintf(o->text, sizeof o->text, "step %d: %s", step, gckpt_error_text(e));
        if (o->failed > 1)
            return;
        at--;
    }
}

/* Makes the store, model and executor of a rank before its first step. */
static inline void prepare(trial *t, ranks_world *w, int rank)
{
    const int bad = rank == t->bad.rank, differs = bad ? t->bad.differs : SAME;
    const int watched = t->bad.cancel_at || t->bad.fault.at;
    model *m = &t->m[rank];
    gckpt_parameter q;
    t->user[rank] = (watcher){ t, rank };
    *m = build(store_of(&t->s, rank, differs == SEED ? 12 : 11), &t->s);
    const unsigned debug = differs == DEBUG_OF ? GCKPT_DEBUG_FINITE
                           : t->s.no_debug   ? 0
                           : t->s.debug       ? t->s.debug
                                              : GCKPT_DEBUG_MEASURE;
    gckpt_exec_desc desc = { .debug = watched ? 0 : debug,
                             .skip_nonfinite = (t->s.flags & INFINITE) != 0 || differs == SKIPPING,
                             .transport = t->s.ranks == 1 ? NULL
                                      : t->s.transport   ? t->s.transport(w, rank)
                                                      : &w->rank[rank].transport,
                             .backend = t->s.backends ? t->s.backends[rank] : NULL,
                             .progress = watched ? watch : NULL,
                             .custom_optimiser = own_optimiser,
                             .user = &t->user[rank],
                             .parallel_for = t->s.threads > 1 ? any_order : NULL };
    const gckpt_plan *plan = t->plan;
    gckpt_plan *other_plan = NULL;
    if (differs >= PLAN_OF && differs <= PRECISION_OF) {
        setting s = t->s;
        if (differs == PLAN_OF)
            s.mode = s.mode == GCKPT_STORE_ALL ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL;
        s.batch = differs == BATCH_OF ? 2 * BATCH : 0;
        s.precision = differs == PRECISION_OF ? GCKPT_BF16 : s.precision;
        plan = other_plan = plan_of(m, &s);
    }
    t->e[rank] = bad && t->bad.no_memory ? NULL : gckpt_exec_new(plan, m->s, &desc);
    gckpt_plan_free(other_plan);
    if (differs == VALUES_OF &&
        gckpt_store_get(m->s, gckpt_store_find(m->s, "shift"), &q) == GCKPT_OK)
        q.values[3] += 1;
}

static inline void train(ranks_world *w, int rank, void *context)
{
    trial *t = (trial *)context;
    outcome *o = &t->out[rank];
    prepare(t, w, rank);
    gckpt_exec *e = t->e[rank];
    gckpt_store *store = t->m[rank].s;
    if (e == NULL)
        snprintf(o->text, sizeof o->text, "no executor: %s", gckpt_error_text(store));
    else
        take_steps(e, &t->m[rank], t, rank);
    if (e && o->failed < 2) {
        o->offloaded = gckpt_plan_describe(t->plan).offloaded;
        o->hashed = t->s.ranks > 1 ? gckpt_gather_values(e, -1, NULL, &o->hash) : GCKPT_OK;
        o->hash = t->s.ranks > 1 ? o->hash : gckpt_store_hash(store);
        o->measured = gckpt_bytes_measured(e);
        o->sent = gckpt_exec_bytes_sent(e);
        o->planned = gckpt_plan_bytes(t->plan);
    }
}

static inline void name_of(const setting *s, char *to, size_t size)
{
    static const char *const shards[] = { "none", "state", "gradients", "values" };
    snprintf(
        to, size,
        "%d ranks, %s, %s, %d rows, %d virtual ranks, with %x, optimiser %d, precision %d, feeding %d%s",
        s->ranks, shards[s->shard], mode_name((int)s->mode), s->rows, s->virtual_ranks, s->flags,
        (int)s->optimiser, (int)s->precision, (int)s->feed, s->blocking ? ", blocking" : "");
}

/* Trains on all ranks. Returns 0 if the setting has no plan. */
static inline int run(trial *t, const setting *s, const injection *bad, ranks_world *w)
{
    char name[200];
    name_of(s, name, sizeof name);
    memset(t, 0, sizeof *t);
    t->s = *s;
    model m = build(store_of(s, 0, 11), s);
    gckpt_plan *p = plan_of(&m, s);
    CHECK_MSG(p != NULL, "%s: %s", name, gckpt_error_text(m.g));
    t->plan = p;
    ranks_open(w, s->ranks);
    w->blocking = s->blocking;
    for (int i = 0; i < s->ranks; i++)
        w->rank[i].transport.device_aware = s->on_backend;
    for (int i = 0; i < s->ranks && s->queued; i++) {
        w->rank[i].transport.enqueue = ranks_enqueue;
        w->rank[i].transport.enqueued_done = ranks_enqueued_done;
    }
    if (bad) {
        t->bad = *bad;
        w->fault = bad->fault;
        w->odd = bad->odd;
        w->clock = bad->clock;
        for (int i = 0; i < s->ranks && bad->silent; i++)
            w->rank[i].transport.abort = NULL;
    } else {
        t->bad.rank = -1;
    }
    if (p)
        ranks_run(w, train, t);
    for (int i = 0; i < s->ranks; i++)
        util_free(t->e[i], NULL, t->m[i].g, t->m[i].s);
    ranks_close(w);
    gckpt_plan_free(p);
    gckpt_graph_free(m.g);
    gckpt_store_free(m.s);
    t->plan = NULL;
    return p != NULL;
}

static inline int same_number(double a, double b) { return a == b || (a != a && b != b); }
static inline int same_report(const gckpt_report *a, const gckpt_report *b)
{
    return same_number(a->loss, b->loss) && same_number(a->grad_norm, b->grad_norm) &&
           a->count == b->count && a->step == b->step;
}

/* Trains on all ranks and compares the outcome of each with `want`, the outcome of one process. Returns rank 0's
 * outcome. */
static inline const outcome *compare(const setting *s, const outcome *want)
{
    static trial t;
    ranks_world w;
    char name[200];
    name_of(s, name, sizeof name);
    if (!run(&t, s, NULL, &w))
        return &t.out[0];
    for (int i = 0; i < s->ranks; i++) {
        const outcome *o = &t.out[i];
        if (!CHECK_MSG(o->text[0] == 0, "%s: rank %d: %s", name, i, o->text))
            continue;
        for (int step = 0; step < STEPS; step++)
            CHECK_MSG(o->result[step] == want->result[step] &&
                          same_report(&o->report[step], &want->report[step]),
                      "%s: rank %d, step %d: loss %.17g of %d, norm %.17g, not %.17g of %d, %.17g",
                      name, i, step, o->report[step].loss, (int)o->report[step].count,
                      o->report[step].grad_norm, want->report[step].loss,
                      (int)want->report[step].count, want->report[step].grad_norm);
        CHECK_MSG(o->hashed == GCKPT_OK && o->hash == want->hash, "%s: rank %d: other weights",
                  name, i);
        /* Bytes are planned for rank 0, which has the largest shards. Another rank's shard may be a block smaller, and
         * so leave a block of the last buffer, and its padding, untouched. */
        const size_t untouched = i ? GCKPT_UPDATE_BLOCK * sizeof(float) + 64 : 0;
        CHECK_MSG(s->debug || s->no_debug || s->rows > BATCH / s->virtual_ranks ||
                      (o->measured <= o->planned && o->planned - o->measured <= untouched),
                  "%s: rank %d: %zu bytes measured, %zu planned", name, i, o->measured, o->planned);
        CHECK_MSG(s->transport || o->sent == w.rank[i].sent, "%s: rank %d: sent %.0f bytes, says %.0f", name, i,
                  (double)w.rank[i].sent, (double)o->sent);
    }
    return &t.out[0];
}

static inline void one_process(const setting *s, outcome *o)
{
    static trial t;
    ranks_world w;
    setting one = *s;
    char name[200];
    one.ranks = 1;
    one.shard = GCKPT_SHARD_NONE;
    one.mode = GCKPT_STORE_ALL;
    one.feed = WHOLE;
    one.blocking = 0;
    one.debug = 0;
    one.backends = NULL;
    one.transport = NULL;
    one.on_step = NULL;
    one.no_debug = one.queued = 0;
    name_of(&one, name, sizeof name);
    run(&t, &one, NULL, &w);
    *o = t.out[0];
    CHECK_MSG(o->text[0] == 0 || (one.flags & INFINITE), "%s: %s", name, o->text);
    CHECK(one.rows > BATCH / one.virtual_ranks || o->measured == o->planned);
}

#endif
#endif
