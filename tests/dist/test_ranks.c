/* test_ranks.c - threads as ranks: for any number of ranks, shards, plan, micro-batches and way of feeding, weights,
 * losses, counts and norms are those of one process with the same number of virtual ranks, and each rank takes at
 * most the planned bytes. Also tests the transport of these tests (rank_threads.h).
 *
 *     build/test_ranks [wide]    all settings of the matrix instead of a sample */
#include "gradckpt.h"
#include "examples/print.h"
#include "rank_training.h"
#if RANKS_THREADS

/* ---- the transport: arguments and results ---- */
enum { ROUNDS = 20 };
typedef struct {
    int breach;          /* the rule that rank 1 breaks in round 8: SIZE to IN_PLACE, or 0 for none */
    int matched[RANKS_MOST]; /* number of exchanges that received the right bytes */
    int failed[RANKS_MOST];
} exchanges;
enum { SIZE = 1, CHANGE, TOUCH, TWICE, AFTER, IN_PLACE, BREACHES };

static int wait_for(const gckpt_transport *r)
{
    double begin = r->clock(r->user);
    int done = r->done ? 0 : 1;
    while (done == 0 && r->clock(r->user) - begin < r->timeout)
        done = r->done(r->user);
    return done == 1;
}

static void exchange_all(ranks_world *w, int rank, void *context)
{
    exchanges *x = (exchanges *)context;
    const gckpt_transport *r = &w->rank[rank].transport;
    unsigned char mine[100], other[100], third[100];
    for (int round = 0; round < ROUNDS && !x->failed[rank]; round++)
        for (int bit = 1; bit < w->size && !x->failed[rank]; bit *= 2) {
            int wrong = rank == 1 && round == 8 ? x->breach : 0, peer = rank ^ bit;
            memset(mine, round * 8 + rank, sizeof mine);
            int ok = r->exchange(r->user, peer, mine, sizeof mine - (wrong == SIZE),
                                 wrong == IN_PLACE ? mine + 99 : other, sizeof other);
            if (wrong == CHANGE || wrong == TOUCH)
                (wrong == CHANGE ? mine : other)[3]++;
            if (wrong == TWICE)
                r->exchange(r->user, peer, mine, sizeof mine, third, sizeof third);
            if (wrong == AFTER)
                r->abort(r->user);
            ok = ok && wait_for(r);
            x->matched[rank] += ok && other[99] == round * 8 + peer;
            x->failed[rank] = !ok;
            if (!ok && wrong != AFTER)
                r->abort(r->user);
        }
    if (x->breach == AFTER && rank == 1)
        r->exchange(r->user, 0, mine, 1, other, 1);
}

static void test_transport(void)
{
    static const int most = 2 * ROUNDS;
    for (int blocking = 0; blocking < 2; blocking++)
        for (int how = -1; how <= RANKS_VANISHES; how++)
            for (int call = 0; call < (how < 0 || blocking ? 1 : 2); call++) {
                ranks_world w;
                exchanges x = { .breach = 0 };
                ranks_open(&w, 4);
                w.blocking = blocking;
                if (how >= 0)
                    w.fault = (ranks_fault){ 2, (ranks_call)call, (ranks_how)how, 31 };
                ranks_run(&w, exchange_all, &x);
                ranks_close(&w);
                for (int i = 0; i < 4; i++) {
                    CHECK(how < 0 ? x.matched[i] == most && w.rank[i].sent == 100 * 2 * ROUNDS
                                  : x.matched[i] < most);
                    CHECK(x.failed[i] == (how >= 0 && !(i == 2 && how >= RANKS_DIES)));
                }
                CHECK((w.clock_offset > 0) ==
                      (!blocking && (how == RANKS_HANGS || how == RANKS_VANISHES)));
            }
/* broken rules are not tested with the thread sanitizer, which itself reports some of them as errors */
#ifndef __SANITIZE_THREAD__
    for (int breach = SIZE; breach < BREACHES; breach++) {
        ranks_world w;
        exchanges x = { .breach = breach };
        ranks_open(&w, 2);
        ranks_run(&w, exchange_all, &x);
        CHECK_MSG(w.wrong > 0, "breach %d is not seen", breach);
        w.wrong = 0;
        ranks_close(&w);
    }
#endif
}

/* ---- a matrix of settings ---- */
static const setting base = {
    .ranks = 1, .mode = GCKPT_STORE_ALL, .rows = 2, .virtual_ranks = VRANKS, .flags = DROPOUT | SECOND
};

static void test_matrix(int wide)
{
    outcome want, again;
    int n = 0;
    one_process(&base, &want);
    CHECK(want.report[2].count == 0 && want.report[2].step == 2 && want.report[3].step == 3);
    for (int ranks = 1; ranks <= VRANKS; ranks *= 2)
        for (int shard = 0; shard <= GCKPT_SHARD_VALUES; shard++)
            for (int poor = 0; poor < 2; poor++)
                for (int rows = 1; rows <= 2; rows++, n++) {
                    setting s = base;
                    s.ranks = ranks;
                    s.shard = (gckpt_shard)shard;
                    s.mode = poor ? GCKPT_OPTIMAL : GCKPT_STORE_ALL;
                    s.rows = rows;
                    s.feed = n % 3 == 1 ? PIECES : WHOLE;
                    s.blocking = n % 5 == 2;
                    if (wide || n % 5 == 0)
                        compare(&s, &want);
                    s.overlap = 1;
                    if (ranks > 1 && shard == GCKPT_SHARD_VALUES)
                        compare(&s, &want);
                }
    setting other = base;
    other.virtual_ranks = 1; /* with another number of virtual ranks, sums have another order and so other bits */
    one_process(&other, &again);
    CHECK(want.hash != again.hash && fabs(want.report[0].loss - again.report[0].loss) < 1e-6);
}

/* Tests plans that overlap exchanges with products so large that the exchanges advance within a product: the bits must
 * be those of one process. */
static void test_within(void)
{
    const setting one = { .mode = GCKPT_STORE_ALL, .rows = 8, .virtual_ranks = 2, .flags = LARGE };
    outcome want;
    one_process(&one, &want);
    for (int shard = 0; shard <= GCKPT_SHARD_VALUES; shard++) {
        setting s = one;
        s.ranks = 2;
        s.shard = (gckpt_shard)shard;
        s.overlap = 1;
        compare(&s, &want);
    }
}

static void test_features(int wide)
{
    static const setting kinds[] = {
        { .virtual_ranks = 8, .flags = DROPOUT, .feed = PIECES, .rows = 1 },
        { .virtual_ranks = 8, .flags = SECOND, .optimiser = GCKPT_SGD, .rows = 1 },
        { .virtual_ranks = 4, .flags = SECOND, .optimiser = GCKPT_MOMENTUM, .rows = 3 },
        { .virtual_ranks = 16, .flags = SECOND, .optimiser = GCKPT_CUSTOM_OPTIMISER, .rows = 1 },
        { .virtual_ranks = 4, .flags = SIZED, .optimiser = GCKPT_CUSTOM_OPTIMISER, .rows = 2 },
        { .virtual_ranks = 8, .flags = FROZEN, .rows = 2 },
        { .virtual_ranks = 8, .flags = PACKED | DROPOUT, .rows = 4 },
        { .virtual_ranks = 8, .flags = RUNNING, .rows = 2 },
        { .virtual_ranks = 8, .flags = INFINITE | SECOND, .rows = 1 },
        { .virtual_ranks = 8, .flags = DROPOUT | SECOND, .precision = GCKPT_BF16, .rows = 2 },
        { .virtual_ranks = 8, .flags = DROPOUT, .precision = GCKPT_BF16, .rows = 1 },
        { .virtual_ranks = 8, .flags = SECOND, .threads = 2, .rows = 2 },
        { .virtual_ranks = 8,
          .flags = DROPOUT,
          .rows = 1,
          .debug = GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE },
        { .virtual_ranks = 8, .flags = SECOND, .rows = 2, .debug = GCKPT_DEBUG_FINITE | GCKPT_DEBUG_POISON },
    };
    for (size_t k = 0, n = 0; k < sizeof kinds / sizeof *kinds; k++) {
        outcome want;
        one_process(&kinds[k], &want);
        if (kinds[k].flags & INFINITE)
            CHECK(want.result[1] == GCKPT_SKIPPED && want.report[1].step == 1);
        for (int ranks = 2; ranks <= kinds[k].virtual_ranks && ranks <= 8; ranks *= 2)
            for (int shard = 0; shard <= (kinds[k].flags & SIZED ? 0 : GCKPT_SHARD_VALUES); shard++, n++) {
                setting s = kinds[k];
                s.ranks = ranks;
                s.shard = (gckpt_shard)shard;
                s.mode = n % 2 ? GCKPT_OPTIMAL : GCKPT_STORE_ALL;
                /* looked: nonzero for a setting that always runs, in which GCKPT_DEBUG_FINITE must not read values that
                 * are still being gathered */
                int looked = s.debug & GCKPT_DEBUG_FINITE && ranks == 2 && shard == GCKPT_SHARD_VALUES;
                s.blocking = n % 7 == 3 && !looked;
                if (wide || check_sampled((unsigned)n, 17) || looked || s.flags & SIZED)
                    compare(&s, &want);
            }
    }
}

/* ---- Bytes that N ranks send. For a parameter of more than one block of 4096 elements, each rank sends (N - 1) / N of
 * the gradient in parts to the other ranks, and as many bytes again to return results: the summed gradient without
 * shards, the updated values with shards, both of these if the epilogue adds to the gradient. For a smaller parameter,
 * each rank sends the whole gradient at each of the log2(N) levels of the sum. Status barriers add a few bytes. ---- */
static void test_sent(void)
{
    for (int ranks = 2; ranks <= VRANKS; ranks *= 2)
        for (int shard = 0; shard < GCKPT_SHARD_VALUES; shard++) {
            static trial t;
            ranks_world w;
            setting s = base;
            s.ranks = ranks;
            s.shard = (gckpt_shard)shard;
            if (!run(&t, &s, NULL, &w))
                continue;
            model m = build(store_of(&base, 0, 11), &base);
            double whole = 0, sent = 0, levels = 0, least = 0;
            for (int i = 0; i < gckpt_store_count(m.s); i++) {
                gckpt_parameter q;
                gckpt_store_get(m.s, i, &q);
                /* times: number of transfers; the step without valid targets sums gradients but sends no values */
                int both = shard == 0 || !strcmp(q.name, "up") || !strcmp(q.name, "both");
                int times = (both ? 2 : 1) * STEPS + (shard ? STEPS - 1 : 0);
                double n = (double)count_of(&q.shape);
                least += n > 4096 ? 4 * n * (ranks - 1) * times : 0;
                whole += n > 4096 ? 0 : n;
            }
            for (int bit = 1; bit < ranks; bit *= 2)
                levels++;
            for (int i = 0; i < ranks; i++)
                sent += (double)t.out[i].sent;
            double most = least + ranks * levels * STEPS * (4 * whole + 4096);
            CHECK_MSG(least <= sent && sent <= most,
                      "%d ranks, shard %d: %.0f bytes, not %.0f to %.0f", ranks, shard, sent, least,
                      most);
            gckpt_graph_free(m.g);
            gckpt_store_free(m.s);
        }
}

/* ---- calls that update nothing: gckpt_gradients, gckpt_fetch, gckpt_collect and gckpt_forward ---- */
enum { ROWS = 13 };
typedef struct {
    gckpt_result result;
    gckpt_report gradients, forward;
    float shift[C],
        all[2][ROWS * T * C]; /* shift: gradient of a parameter; all: values and gradients of a tensor, row by row */
    float table[V * C];
    char text[200];
} query_results;
typedef struct {
    int ranks, virtual_ranks, forward_virtual_ranks;
    gckpt_shard shard;
    query_results got[RANKS_MOST];
} queries;

static void run_query(ranks_world *w, int rank, void *context)
{
    queries *q = (queries *)context;
    query_results *a = &q->got[rank];
    setting s = base;
    s.ranks = q->ranks;
    s.shard = q->shard;
    model m = build(store_of(&s, rank, 11), &s);
    gckpt_parameter table;
    gckpt_tensor *shift_t = gckpt_param(m.g, "shift", gckpt_shape1(C), (gckpt_init){ 0, 0, 0 });
    gckpt_fetch_spec fetches[3] = { { shift_t, 1 }, { m.before_head, 0 }, { m.before_head, 1 } };
    gckpt_plan_desc desc = { .batch = BATCH, .ranks.virtual_ranks = q->virtual_ranks, .fetch.specs = fetches,
                             .fetch.count = 3 };
    gckpt_exec_desc x = { .transport = q->ranks > 1 ? &w->rank[rank].transport : NULL };
    gckpt_plan *p = gckpt_plan_new(m.g, m.terms, m.term_count, &desc);
    desc.mode = GCKPT_INFERENCE;
    desc.ranks.virtual_ranks = q->forward_virtual_ranks;
    desc.fetch.count = 0;
    gckpt_plan *forward = gckpt_plan_new(m.g, m.terms, m.term_count, &desc);
    gckpt_exec *e = gckpt_exec_new(p, m.s, &x), *f = gckpt_exec_new(forward, m.s, &x);
    int64_t first, share = gckpt_plan_rank_rows(p, ROWS, rank, &first), id = gckpt_id(m.before_head);
    gckpt_feed feeds[4];
    for (int k = 0; k < 2; k++)
        a->result = a->result ? a->result
                              : gckpt_collect(e, (int)id, k, a->all[k] + first * T * C,
                                              (size_t)(share * T * C));
    a->result = a->result ? a->result
                          : gckpt_gradients(e, feeds, feeds_of(&m, &s, 0, first, feeds), ROWS,
                                            &a->gradients);
    const float *g = a->result ? NULL : gckpt_fetch(e, gckpt_id(shift_t), 1);
    if (g)
        memcpy(a->shift, g, sizeof a->shift);
    snprintf(a->text, sizeof a->text, "%s %s", gckpt_error_text(m.g), gckpt_error_text(e));
    gckpt_plan_rank_rows(forward, ROWS, rank, &first);
    if (a->result == GCKPT_OK)
        a->result = gckpt_forward(f, feeds, feeds_of(&m, &s, 0, first, feeds), ROWS, &a->forward);
    if (a->result == GCKPT_OK && q->ranks > 1)
        a->result = gckpt_gather_values(f, gckpt_store_find(m.s, "table"), a->table, NULL);
    else if (gckpt_store_get(m.s, gckpt_store_find(m.s, "table"), &table) == GCKPT_OK)
        memcpy(a->table, table.values, sizeof a->table);
    util_free(e, p, NULL, NULL);
    util_free(f, forward, m.g, m.s);
}

static void test_queries(void)
{
    static queries one, q;
    /* if alone is nonzero, each rank runs gckpt_forward for all rows, without the other ranks */
    for (int alone = 0; alone < 2; alone++)
        for (int ranks = 1; ranks <= 8; ranks *= 2)
            for (int shard = 0; shard <= (ranks > 1 ? GCKPT_SHARD_VALUES : 0); shard++) {
                ranks_world w;
                memset(&q, 0, sizeof q);
                q.ranks = ranks;
                q.virtual_ranks = VRANKS;
                q.forward_virtual_ranks = alone ? 1 : VRANKS;
                q.shard = (gckpt_shard)shard;
                ranks_open(&w, ranks);
                ranks_run(&w, run_query, &q);
                ranks_close(&w);
                one = ranks == 1 ? q : one;
                for (int i = 0; i < ranks; i++) {
                    const query_results *a = &q.got[i], *b = &one.got[0];
                    int64_t from = ROWS, to = 0;
                    for (int64_t r = 0; r < ROWS; r++)
                        if (r * VRANKS / BATCH * ranks / VRANKS == i)
                            from = r < from ? r : from, to = r + 1;
                    size_t at = (size_t)from * T * C,
                           n = to > from ? (size_t)(to - from) * T * C : 0;
                    CHECK_MSG(a->result == GCKPT_OK, "%d ranks, shard %d, rank %d: %s", ranks,
                              shard, i, a->text);
                    CHECK(same_report(&a->gradients, &b->gradients) && a->gradients.count > 20);
                    CHECK_MSG(same_report(&a->forward, &b->forward) && a->forward.count > 20,
                              "%d ranks, shard %d, rank %d: loss %.17g, not %.17g", ranks, shard, i,
                              a->forward.loss, b->forward.loss);
                    CHECK(!memcmp(a->shift, b->shift, sizeof a->shift) && a->shift[1] != 0);
                    CHECK(n == 0 || (!memcmp(a->all[0] + at, b->all[0] + at, n * sizeof(float)) &&
                                     !memcmp(a->all[1] + at, b->all[1] + at, n * sizeof(float))));
                    CHECK(!memcmp(a->table, b->table, sizeof a->table));
                }
            }
}

/* ---- requests that have no plan ---- */
static void test_refused(void)
{
    setting s = base;
    s.ranks = 8;
    s.shard = GCKPT_SHARD_STATE;
    model m = build(store_of(&s, 3, 11), &s);
    gckpt_tensor *up = gckpt_param(m.g, "up", gckpt_shape2(C, WIDE), (gckpt_init){ 0, 0, 0 });
    gckpt_fetch_spec fetch = { up, 1 };
    const struct {
        gckpt_plan_desc desc;
        const char *text;
    } wrong[] = {
        { { .batch = BATCH, .ranks.virtual_ranks = 4 }, "8 ranks" },
        { { .batch = BATCH, .ranks.virtual_ranks = 3 }, "power of two" },
        { { .batch = BATCH, .ranks.virtual_ranks = -8 }, "-8" },
        { { .batch = BATCH, .ranks.virtual_ranks = 8, .update_in_backward = 1 }, "backward" },
        { { .batch = BATCH, .ranks.virtual_ranks = 8, .fetch.specs = &fetch, .fetch.count = 1 }, "up" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gckpt_plan *p = gckpt_plan_new(m.g, m.terms, m.term_count, &wrong[i].desc);
        CHECK_MSG(!p && gckpt_error(m.g) == GCKPT_E_ARG &&
                      strstr(gckpt_error_text(m.g), wrong[i].text),
                  "%d: \"%s\" lacks \"%s\"", (int)i, gckpt_error_text(m.g), wrong[i].text);
        gckpt_plan_free(p);
    }
    gckpt_plan_desc desc = { .batch = BATCH, .ranks.virtual_ranks = 8 };
    gckpt_plan *p = gckpt_plan_new(m.g, m.terms, m.term_count, &desc);
    gckpt_exec *e = gckpt_exec_new(p, m.s, NULL); /* without a transport */
    CHECK_MSG(!e && gckpt_error(m.s) == GCKPT_E_ARG && strstr(gckpt_error_text(m.s), "desc.transport"), "%s",
              gckpt_error_text(m.s));
    ranks_world w;
    ranks_open(&w, 8);
    gckpt_exec_desc x = { .transport = &w.rank[2].transport }; /* with the transport of another rank */
    e = gckpt_exec_new(p, m.s, &x);
    CHECK_MSG(!e && gckpt_error(m.s) == GCKPT_E_ARG && strstr(gckpt_error_text(m.s), "rank"), "%s",
              gckpt_error_text(m.s));
    ranks_close(&w);
    util_free(e, p, m.g, m.s);
}

/* ---- all ranks make the same plan from the same request ---- */
static void test_plans(void)
{
    for (int shard = 0; shard <= GCKPT_SHARD_VALUES; shard++) {
        file first = { 0 };
        for (int rank = 0; rank < 4; rank++) {
            setting s = base;
            file f = { 0 };
            s.ranks = 4;
            s.shard = (gckpt_shard)shard;
            s.mode = GCKPT_OPTIMAL;
            model m = build(store_of(&s, rank, 11), &s);
            gckpt_plan *p = plan_of(&m, &s);
            CHECK_MSG(p && print_plan(p, file_write, &f) == GCKPT_OK, "%s",
                      gckpt_error_text(m.g));
            CHECK(rank == 0 || same_file(&f, &first));
            if (rank == 0)
                first = f;
            else
                free(f.bytes);
            gckpt_plan_free(p);
            gckpt_graph_free(m.g);
            gckpt_store_free(m.s);
        }
        free(first.bytes);
    }
}

/* ---- An op's thread can advance exchanges between pieces of its work, but only if it is the thread that called the
 * step. OpenMP's workers have different numbers, while each thread of a program's own pool is thread 0 for OpenMP.
 * The transport checks the calling thread. ---- */
enum { SQUARE = 384, LAYERS = 4, THEIRS = 32 };
typedef struct {
    int64_t from;
    void (*body)(void *context, int64_t i);
    void *context;
} evens;

static void *run_evens(void *user)
{
    const evens *s = (const evens *)user;
    for (int64_t i = s->from; i >= 0; i -= 2)
        s->body(s->context, i);
    return NULL;
}

static void by_two(void *user, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    pthread_t other;
    evens mine = { n - 1, body, context }, theirs = { n - 2, body, context };
    const int made = !pthread_create(&other, NULL, run_evens, &theirs);
    (void)user;
    run_evens(&mine);
    if (made)
        pthread_join(other, NULL);
    else
        run_evens(&theirs);
}

typedef struct {
    int program_threads;     /* number of threads of the program's pool */
    /* steps that each rank has completed; checked after the threads end, since CHECK may only run on one thread */
    int done[2];
} callers;

static void call_transport(ranks_world *w, int rank, void *context)
{
    callers *c = context;
    static float rows[THEIRS * SQUARE];
    const setting two = { .ranks = 2, .shard = GCKPT_SHARD_VALUES };
    const gckpt_hyper hyper = { .lr = 0.01f };
    gckpt_store *s = store_of(&two, rank, 11);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "in", GCKPT_F32, gckpt_shape2(THEIRS, SQUARE)), *x = in;
    for (int i = 0; i < LAYERS; i++) {
        char name[2] = { (char)('a' + i), 0 };
        x = gckpt_linear(x, gckpt_param(g, name, gckpt_shape2(SQUARE, SQUARE), (gckpt_init){ 0.05f, 0, 0 }), NULL);
    }
    gckpt_term term = { gckpt_sum_loss(x), 1, 0 };
    gckpt_plan_desc desc = {
        .batch = 2 * THEIRS, .threads = 2, .ranks.virtual_ranks = 2, .ranks.link_cost = 1 << 24, .ranks.overlap = 1
    };
    gckpt_exec_desc how = { .transport = &w->rank[rank].transport, .parallel_for = c->program_threads ? by_two : NULL };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    gckpt_feed feed = { gckpt_id(in), rows };
    for (int step = 0; step < 3 && e; step++)
        c->done[rank] += gckpt_step(e, &feed, 1, 2 * THEIRS, &hyper, NULL) == GCKPT_OK;
    util_free(e, p, g, s);
}

static void test_callers(void)
{
    for (int own = 0; own < 2; own++) {
        ranks_world w;
        callers c = { own, { 0, 0 } };
        ranks_open(&w, 2);
        w.lag = 40;
        ranks_run(&w, call_transport, &c);
        CHECK(c.done[0] == 3 && c.done[1] == 3);
        ranks_close(&w);
    }
}

int main(int argc, char **argv)
{
    int wide = argc > 1;
    (void)argv;
    test_transport();
    fill();
    test_plans();
    test_matrix(wide);
    test_within();
    test_features(wide);
    test_sent();
    test_queries();
    test_callers();
    test_refused();
    return check_report("test_ranks");
}
#else
int main(void) { return check_report("test_ranks"); /* this system has no threads */ }
#endif
