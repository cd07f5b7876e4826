/* test_ranks_random.c - random graphs from the whole op set on threads as ranks, with random virtual ranks, plans and
 * splits of the batch: they give the bits of one process with a store-all plan and the same number of virtual ranks,
 * and take at most the planned bytes.
 *
 *     build/test_ranks_random [first seed] [graphs] */
#include "gradckpt.h"
#include "net.h"
#include "rank_threads.h"
#if RANKS_THREADS

enum { STEPS = 2, FETCHES = 3 };
typedef struct {
    int ranks, virtual_ranks, shard, poor, pieces, overlap;
    gckpt_mode mode;
    int64_t rows, step_rows; /* rows: rows of a micro-batch; step_rows: rows of a step; 0 means the whole batch */
} setting;
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_result result;
    gckpt_report report[STEPS];
    util_losses terms[STEPS];
    uint64_t hash, fetched; /* hash of the weights; hash of the fetched gradients */
    char text[200];
} rank_run;
typedef struct {
    setting s;
    rank_run rank[RANKS_MOST];
    int fetches, fetch[FETCHES];
    int64_t size[FETCHES];
} trial;

static void train(ranks_world *w, int rank, void *context)
{
    trial *t = (trial *)context;
    rank_run *r = &t->rank[rank];
    const gckpt_hyper hyper = { .lr = 0.02f, .weight_decay = 0.1f, .clip = 0.3f };
    int64_t rows = t->s.step_rows ? t->s.step_rows : net.batch, first;
    gckpt_feed f[NET_FEEDS];
    gckpt_plan_rank_rows(r->p, rows, rank, &first);
    int n = net_feed(NULL, first, f);
    for (int step = 0; step < STEPS && r->result == GCKPT_OK; step++) {
        if (t->s.pieces) {
            r->result = gckpt_step_start(r->e, f, n, rows, &hyper);
            for (r->result = r->result ? r->result : GCKPT_MORE; r->result == GCKPT_MORE;)
                r->result = gckpt_run_some(r->e, t->s.pieces + rank, &r->report[step]);
        } else {
            r->result = gckpt_step(r->e, f, n, rows, &hyper, &r->report[step]);
        }
        if (r->result == GCKPT_OK)
            r->terms[step] = util_term_losses(r->e, net.term, net.terms, &r->report[step]);
    }
    for (int i = 0; i < t->fetches && r->result == GCKPT_OK; i++) {
        const float *g = gckpt_fetch(r->e, t->fetch[i], 1);
        r->fetched = g ? ranks_hash(g, (size_t)t->size[i] * sizeof *g) * 31 + r->fetched : 0;
        r->result = g ? GCKPT_OK : GCKPT_E_ARG;
    }
    if (r->result == GCKPT_OK && w->size > 1)
        r->result = gckpt_gather_values(r->e, -1, NULL, &r->hash);
    else
        r->hash = gckpt_store_hash(r->s);
    if (r->result != GCKPT_OK)
        snprintf(r->text, sizeof r->text, "%s", gckpt_error_text(r->e));
}

/* Builds the graph of this seed, and the plan and the executor of one rank. */
static int prepare(unsigned seed, trial *t, ranks_world *w, int rank)
{
    rank_run *r = &t->rank[rank];
    gckpt_fetch_spec fetches[FETCHES];
    build(seed, t->s.rows);
    r->s = net.s;
    r->g = net.g;
    if (t->s.ranks > 1)
        CHECK(gckpt_store_ranks(net.s, rank, t->s.ranks, (gckpt_shard)t->s.shard) == GCKPT_OK);
    for (int i = 0; i < t->fetches; i++)
        fetches[i] = (gckpt_fetch_spec){ net.nodes[t->fetch[i]].t, 1 };
    gckpt_plan_desc d = { .mode = t->s.mode,
                          .batch = net.batch,
                          .ranks.virtual_ranks = t->s.virtual_ranks,
                          .ranks.link_cost = (uint64_t)t->s.overlap << 24,
                          .ranks.overlap = t->s.overlap,
                          .fetch.specs = fetches,
                          .fetch.count = t->fetches };
    if (t->s.poor) {
        size_t bytes[2];
        for (int i = 0; i < 2; i++) {
            d.mode = i ? GCKPT_STORE_ALL : GCKPT_MEMORY_POOR;
            gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, &d);
            bytes[i] = gckpt_plan_bytes(p);
            gckpt_plan_free(p);
        }
        d.mode = GCKPT_OPTIMAL;
        d.budget = (bytes[0] + bytes[1]) / 2;
    }
    gckpt_exec_desc x = { .debug = GCKPT_DEBUG_MEASURE | (seed % 3 ? 0 : GCKPT_DEBUG_RECOMPUTE),
                          .transport = t->s.ranks > 1 ? &w->rank[rank].transport : NULL };
    r->p = gckpt_plan_new(net.g, net.term, net.terms, &d);
    r->e = r->p ? gckpt_exec_new(r->p, net.s, &x) : NULL;
    CHECK_MSG(r->e, "seed %u: %s %s", seed, gckpt_error_text(net.g), gckpt_error_text(net.s));
    return r->e != NULL;
}

/* Chooses tensors without a batch axis, whose gradients are sums over the batch, and fetches these gradients. */
static void choose_fetches(unsigned seed, trial *t)
{
    build(seed, 0);
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .batch = 2 * net.batch, .ranks.virtual_ranks = 2 };
    for (int i = net.count; i-- > 0 && t->fetches < FETCHES;) {
        gckpt_fetch_spec fetch = { net.nodes[i].t, 1 };
        d.fetch.specs = &fetch;
        d.fetch.count = 1;
        gckpt_plan *p =
            fetch.tensor && !net.nodes[i].data && i % 3 != 1 && elements(fetch.tensor) <= 4096
                ? gckpt_plan_new(net.g, net.term, net.terms, &d)
                : NULL;
        if (p) {
            t->size[t->fetches] = elements(fetch.tensor);
            t->fetch[t->fetches++] = i;
        }
        gckpt_plan_free(p);
    }
    destroy();
}

/* Returns whether some micro-batch of the rank has all the rows that the plan provides for. */
static int has_full(const trial *t, int rank)
{
    int64_t rows = t->s.step_rows ? t->s.step_rows : net.batch,
            full = t->s.rows ? t->s.rows : net.batch;
    int own = t->s.virtual_ranks / t->s.ranks, most = 0;
    for (int vrank_rows = rank * own, n; vrank_rows < (rank + 1) * own; vrank_rows++) {
        n = 0;
        for (int64_t r = 0; r < rows; r++)
            n += r * t->s.virtual_ranks / net.batch == vrank_rows;
        most = n > most ? n : most;
    }
    return most >= full;
}

static void run(unsigned seed, trial *t, const setting *s, const rank_run *want)
{
    ranks_world w;
    char name[160];
    t->s = *s;
    memset(t->rank, 0, sizeof t->rank);
    ranks_open(&w, s->ranks);
    int ready = 1;
    for (int i = 0; i < s->ranks; i++)
        ready &= prepare(seed, t, &w, i);
    snprintf(name, sizeof name,
             "seed %u: %d ranks, %d virtual ranks, shard %d, mode %d%s, rows %d of %d of %d", seed,
             s->ranks, s->virtual_ranks, s->shard, (int)s->mode, s->poor ? ", poor" : "", (int)s->rows,
             (int)s->step_rows, (int)net.batch);
    if (ready)
        ranks_run(&w, train, t);
    ranks_close(&w);
    want = want ? want : &t->rank[0];
    for (int i = 0; i < s->ranks; i++) {
        rank_run *r = &t->rank[i];
        if (ready && CHECK_MSG(r->result == GCKPT_OK, "%s: rank %d: %s", name, i, r->text)) {
            CHECK_MSG(r->hash == want->hash && r->fetched == want->fetched &&
                          !memcmp(r->report, want->report, sizeof r->report) &&
                          !memcmp(r->terms, want->terms, sizeof r->terms) &&
                          !r->terms[0].wrong && !r->terms[1].wrong,
                      "%s: rank %d: loss %.17g, norm %.17g, not %.17g, %.17g, hashes %d %d", name,
                      i, r->report[1].loss, r->report[1].grad_norm, want->report[1].loss,
                      want->report[1].grad_norm, r->hash == want->hash, r->fetched == want->fetched);
            size_t measured = gckpt_bytes_measured(r->e), planned = gckpt_plan_bytes(r->p);
            CHECK_MSG(has_full(t, i) ? measured == planned : measured <= planned,
                      "%s: rank %d: %zu bytes, planned %zu", name, i, measured, planned);
        }
        util_free(r->e, r->p, r->g, r->s);
    }
}

int main(int argc, char **argv)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT,
                                        GCKPT_SEGMENTS, GCKPT_AUTO };
    static trial one, t;
    unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : check_seed(),
             count = argc > 2 ? (unsigned)atoi(argv[2]) : (unsigned)check_iterations(8);
    for (unsigned seed = first; seed < first + count; seed++) {
        random_state = seed;
        net_fill();
        setting s = { .ranks = 1, .virtual_ranks = 2 << seed % 3, .mode = GCKPT_STORE_ALL };
        s.step_rows = seed % 4 == 3 ? 2 : 0;
        uint64_t state = seed;
        memset(&one, 0, sizeof one);
        choose_fetches(seed, &one);
        run(seed, &one, &s, NULL);
        for (int ranks = 1; ranks <= s.virtual_ranks; ranks *= 2)
            for (int i = 0; i < 2; i++) {
                setting o = s;
                o.ranks = ranks;
                o.shard = (int)(next_random(&state) % 4);
                o.mode = modes[next_random(&state) % 5];
                o.poor = next_random(&state) % 2 != 0;
                o.rows = 1 + (int64_t)(next_random(&state) % 3);
                o.pieces = next_random(&state) % 3 == 0;
                o.overlap = next_random(&state) % 2 == 0;
                t = one;
                run(seed, &t, &o, &one.rank[0]);
            }
    }
    return check_report("test_ranks_random");
}
#else
int main(void) { return check_report("test_ranks_random"); /* this system has no threads */ }
#endif
