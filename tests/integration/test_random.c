/* test_random.c - random graphs from the whole op set: every plan, split, way of feeding, thread count and debug
 * option gives the bits of a store-all run over the whole batch with plain kernels, within the promised bytes.
 * Gradients agree with finite differences.
 *
 *     build/test_random [first seed] [graphs] */
#include "gradckpt.h"

#include "examples/gradcheck.h"
#include "net.h"
#include <math.h>

/* tests/devices/test_backend.c defines RANDOM_BACKEND and includes this file, to run the graphs on memory that the host
 * cannot read. */
#ifndef RANDOM_BACKEND
#define RANDOM_BACKEND(wanted) NULL
#endif

enum { STEPS = 2, FETCHES = 8 };

/* ---- runs ---- */
typedef struct {
    const char *what;
    gckpt_mode mode;
    int64_t rows, stream; /* stream: number of rows that are added at a time, or 0 if the batch is not streamed */
    int pieces, in_backward, way, instructions, no_clip;
    unsigned debug;
    size_t budget;
    const gckpt_instruction *schedule;
} run;
typedef struct {
    double loss[STEPS], norm[STEPS];
    int64_t count;
    uint64_t hash;
    size_t bytes;
    util_losses terms[STEPS];
} outcome;
static struct { int id, gradient, data; int64_t n; float *values; } fetched[FETCHES];
static int fetch_count, not_finite;

static gckpt_result one_step(gckpt_exec *e, const run *r, gckpt_report *report)
{
    gckpt_feed f[NET_FEEDS];
    gckpt_hyper hyper = { .lr = 0.02f, .weight_decay = 0.1f, .clip = r->in_backward || r->no_clip ? 0 : 0.3f };
    if (r->mode == GCKPT_INFERENCE)
        return gckpt_forward(e, f, net_feed(NULL, 0, f), net.batch, report);
    return util_step(e, net_feed, NULL, net.batch, r->stream, r->pieces, &hyper, report);
}

/* Returns whether the plan contains a batch norm. */
static int mixes_rows(const gckpt_plan *p)
{
    gckpt_instruction in;
    for (int i = 0; gckpt_plan_get(p, i, &in) == GCKPT_OK; i++)
        if (in.kind == GCKPT_FORWARD && !strcmp(gckpt_plan_op(p, in.id), "batchnorm"))
            return 1;
    return 0;
}

/* Trains by this run and compares the outcome with `want`. If want is NULL, this is the run to compare with, and its
 * fetched values are kept. */
static outcome train(unsigned seed, const run *r, const outcome *want)
{
    gckpt_report report = { 0 };
    gckpt_fetch_spec fetch[FETCHES];
    gckpt_parameter q;
    net_open(seed, r->way, r->rows);
    int inference = r->mode == GCKPT_INFERENCE, fetches = inference ? 0 : fetch_count;
    for (int i = 0; i < fetches; i++)
        fetch[i] = (gckpt_fetch_spec){ net.nodes[fetched[i].id].t, fetched[i].gradient };
    gckpt_plan_desc d = net.d;
    d.mode = r->mode;
    d.batch = net.batch;
    d.budget = r->budget;
    d.update_in_backward = r->in_backward;
    d.schedule.instructions = r->schedule;
    d.schedule.count = r->instructions;
    d.fetch.specs = fetch;
    d.fetch.count = fetches;
    d.backend = RANDOM_BACKEND(want);
    gckpt_exec_desc x = { .debug = r->debug, .backend = d.backend, .custom_optimiser = net_update };
    gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, &d);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    gckpt_exec *e = p ? gckpt_exec_new(p, net.s, &x) : NULL;
    if (!CHECK_MSG(e != NULL, "seed %u %s: %s %s", seed, r->what, gckpt_error_text(net.g), gckpt_error_text(net.s)))
        exit(check_report("test_random"));
    outcome o = { .bytes = gckpt_plan_bytes(p) };
    CHECK(gckpt_plan_split_exact(p, NULL) == (inference || !mixes_rows(p)) &&
          info.arena >= info.peak);
    CHECK(!r->budget || o.bytes <= r->budget);
    gckpt_result result = GCKPT_OK;
    for (int i = 0; i < STEPS && result == GCKPT_OK; i++) {
        result = one_step(e, r, &report);
        o.loss[i] = report.loss, o.norm[i] = report.grad_norm, o.count = report.count;
        if (result == GCKPT_OK)
            o.terms[i] = util_term_losses(e, net.term, net.terms, &report);
        CHECK_MSG(!o.terms[i].wrong, "seed %u %s rows %d: terms", seed, r->what, (int)r->rows);
        const double all = inference || o.count > 0 ? o.terms[i].total : 0;
        CHECK_MSG(result != GCKPT_OK || !memcmp(&o.loss[i], &all, sizeof all), "seed %u %s: loss %.9g, not %.9g", seed,
                  r->what, o.loss[i], all);
    }
    int refused = r->stream && result == GCKPT_E_ARG && strstr(gckpt_error_text(e), "count of its own");
    CHECK_MSG(refused || result == GCKPT_OK, "seed %u %s rows %d: %s", seed, r->what, (int)r->rows,
              gckpt_error_text(e));
    o.hash = gckpt_store_hash(net.s);
    for (int i = 0; gckpt_store_get(net.s, i, &q) == GCKPT_OK; i++)
        for (int64_t k = 0; k < 4 * q.elements; k++)
            if (q.state[k % 4]) { /* the payload of a NaN is not defined */
                const float value = q.state[k % 4][k / 4];
                o.hash = (o.hash ^ bits_of(value == value ? value : (float)NAN)) * 1099511628211u;
            }
    const int64_t vranks = d.ranks.virtual_ranks && !inference ? d.ranks.virtual_ranks : 1;
    /* tail: number of rows of the last micro-batch; fetches return the values of these rows */
    int64_t at_once = r->stream ? r->stream : net.batch,
            tail = (net.batch - 1) % at_once % net.rows + 1;
    for (int i = 0; i < fetches && result == GCKPT_OK; i++) {
        if (fetched[i].data && vranks > 1)
            /* not compared: with virtual ranks, a fetch returns only rows of the last virtual rank */
            continue;
        const float *got = gckpt_fetch(e, fetched[i].id, fetched[i].gradient);
        int64_t n = fetched[i].data ? fetched[i].n / net.batch * tail : fetched[i].n;
        if (!want)
            memcpy(fetched[i].values, got, (size_t)n * sizeof(float));
        CHECK_MSG(got && memcmp(got, fetched[i].values + fetched[i].n - n, (size_t)n * sizeof(float)) == 0,
                  "seed %u %s rows %d: fetched %s of tensor %d differs", seed, r->what, (int)r->rows,
                  fetched[i].gradient ? "gradient" : "value", fetched[i].id);
    }
    if (want && !refused)
        CHECK_MSG(o.count == want->count && (inference || memcmp(o.loss, want->loss, sizeof o.loss) == 0) &&
                      memcmp(o.terms, want->terms, inference ? sizeof o.terms[0] : sizeof o.terms) == 0 &&
                      (inference || (o.hash == want->hash && memcmp(o.norm, want->norm, sizeof o.norm) == 0)),
                  "seed %u %s rows %d: other bits (loss %.9g, %.9g; norm %.9g, %.9g)", seed, r->what, (int)r->rows,
                  o.loss[1], want->loss[1], o.norm[1], want->norm[1]);
    /* if a virtual rank has fewer rows than a micro-batch of the plan, no micro-batch is full */
    const int full = (net.batch + vranks - 1) / vranks >= net.rows && (!r->stream || r->stream >= net.rows);
    if (r->debug & GCKPT_DEBUG_MEASURE && !(r->debug & GCKPT_DEBUG_POISON) && full && !refused)
        CHECK_MSG(gckpt_bytes_measured(e) == o.bytes, "seed %u %s rows %d: %lu bytes planned, %lu measured", seed,
                  r->what, (int)r->rows, (unsigned long)o.bytes, (unsigned long)gckpt_bytes_measured(e));
    util_free(e, p, NULL, NULL);
    destroy();
    return o;
}

/* Makes a random schedule from the list of a store-all plan: runs of consecutive forwards are repeated anywhere, and
 * losses run at any place before their backward, or before all backwards if losses_first. Returns its length. */
static int custom_schedule(unsigned seed, const gckpt_instruction *list, int n, int losses_first,
                           gckpt_instruction *out, int most)
{
    int count = 0, forwards = 0, late[4] = { 0, 0, 0, 0 };
    build(seed, 0);
    for (int i = 0; i < n; i++) {
        int loss = -1, back = list[i].kind == GCKPT_BACKWARD;
        for (int k = 0; k < net.terms; k++) {
            loss = gckpt_id(net.term[k].loss) == list[i].id ? k : loss;
            if (late[k] && ((back && k == loss) || chance(10)))
                out[count++] = (gckpt_instruction){ GCKPT_FORWARD, late[k] }, late[k] = 0;
        }
        if (!back && loss >= 0 && !losses_first && chance(50)) {
            late[loss] = list[i].id;
            continue;
        }
        for (int again = (int)below(3); again > 0 && forwards > 0; again--) {
            int a = (int)below(forwards), b = a + (int)below(forwards - a + 1);
            for (; a < b && count < most; a++)
                out[count++] = list[a];
        }
        forwards += !back && forwards == i;
        out[count++] = list[i];
    }
    for (int k = 0; k < net.terms; k++) /* a loss that depends on frozen parameters only has no backward */
        if (late[k])
            out[count++] = (gckpt_instruction){ GCKPT_FORWARD, late[k] };
    destroy();
    return count;
}

/* Draws the data of a graph, chooses tensors to fetch that have a value or a gradient, and lists store-all's schedule
 * of the ops that depend on the batch. Returns the length of the list. */
static int prepare(unsigned seed, gckpt_instruction *list)
{
    gckpt_fetch_spec all[FETCHES];
    int n = 0;
    net_open(seed, 0, 0);
    gckpt_plan_desc d = net.d;
    d.mode = GCKPT_STORE_ALL;
    net_fill();
    for (int i = 0; i < VALUES && seed % 16 == 12; i++) /* every target of these nets is ignored */
        target_data[0][i] = target_data[1][i] = -1;
    for (int i = 0; i < LARGEST; i++)
        constant_data[i] = (float)below(9) / 4.0f - 1.0f;
    fetch_count = 0;
    d.batch = 2 * net.batch; /* some gradients can be fetched only if the batch is one micro-batch */
    for (int i = 0; i < 20 && fetch_count < FETCHES; i++) {
        T *t = net.nodes[below(net.count)].t;
        gckpt_fetch_spec *fetch = &all[fetch_count];
        fetch->tensor = t, fetch->gradient = chance(50), d.fetch.specs = fetch, d.fetch.count = 1;
        gckpt_plan *p = t ? gckpt_plan_new(net.g, net.term, net.terms, &d) : NULL;
        if (p) {
            fetched[fetch_count].id = gckpt_id(t), fetched[fetch_count].gradient = fetch->gradient;
            fetched[fetch_count].data = net.nodes[gckpt_id(t)].data, fetched[fetch_count].n = elements(t);
            fetched[fetch_count++].values = (float *)malloc((size_t)elements(t) * sizeof(float));
        }
        gckpt_plan_free(p);
    }
    d.fetch.specs = all, d.fetch.count = fetch_count, d.batch = net.d.batch;
    gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, &d);
    CHECK_MSG(p != NULL, "seed %u: %s", seed, gckpt_error_text(net.g));
    const int length = gckpt_plan_describe(p).instructions;
    for (int i = 0; i < length; i++)
        n += gckpt_plan_get(p, i, &list[n]) == GCKPT_OK && list[n].id >= 0 && net.nodes[list[n].id].data;
    gckpt_plan_free(p);
    destroy();
    return n;
}

/* The gradient check below runs on graphs without relu, at whose kink finite differences are wrong. */
static int hidden; /* number of graphs of which some gradient could not be checked */

static void check_gradients(unsigned seed, int64_t count)
{
    gckpt_plan_desc d = { .mode = GCKPT_SQRT, .backend = RANDOM_BACKEND(1) };
    gckpt_feed f[NET_FEEDS];
    gradcheck_result check;
    build(seed, 0);
    const int feeds = net_feed(NULL, 0, f);
    gckpt_result result = gradcheck(net.s, net.term, net.terms, &d, f, feeds, net.batch, &check);
    hidden += result == GCKPT_UNRESOLVED; /* some gradients are so small (1e-7 of the loss) that rounding hides them */
    if (count == 0)
        CHECK_MSG(result == GCKPT_E_DATA && strstr(check.text, "no row has a target >= 0"), "seed %u: %s", seed, check.text);
    else
        CHECK_MSG(result == GCKPT_OK || result == GCKPT_UNRESOLVED, "seed %u: %s", seed, check.text);
    destroy();
}

static void test_graph(unsigned seed)
{
    static gckpt_instruction list[4 * MOST], schedule[20000];
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS, GCKPT_SQRT,
                                        GCKPT_SCHEDULE };
    static const char *const names[] = { "store-all", "memory-poor", "segments", "sqrt", "schedule" };
    size_t least = SIZE_MAX, most = 0;
    random_state = seed + 77u;
    int length = prepare(seed, list), mixes = net.mixes, vranks = net.d.ranks.virtual_ranks;
    int other = net.dropout || mixes; /* in inference */
    int64_t batch = net.batch;
    run plain = { .what = "plain", .mode = GCKPT_STORE_ALL, .rows = batch, .debug = GCKPT_DEBUG_PLAIN };
    outcome want = train(seed, &plain, NULL);
    not_finite += !isfinite(want.loss[1]) || !isfinite(want.norm[1]);
    for (int k = 0; k < 5 && isfinite(want.loss[1]) && isfinite(want.norm[1]); k++)
        for (int64_t rows = batch; rows >= 1; rows = rows > 1 && !mixes ? 1 + (int64_t)below(rows - 1) : 0) {
            run r = { .what = names[k], .mode = modes[k], .rows = rows, .schedule = schedule };
            r.instructions = k == 4 ? custom_schedule(seed, list, length, 0, schedule, 15000) : 0;
            r.debug = GCKPT_DEBUG_MEASURE | (chance(25) ? GCKPT_DEBUG_PLAIN : 0);
            outcome o = train(seed, &r, &want);
            if (rows == batch && k < 4)
                least = o.bytes < least ? o.bytes : least, most = o.bytes > most ? o.bytes : most;
            r.way = chance(70) ? 1 + (int)below(9) : 0;
            r.pieces = chance(40) ? 1 + (int)below(5) : 0;
            r.stream = chance(30) && rows < batch && !r.pieces ? 1 + (int64_t)below(batch) : 0;
            r.stream = vranks > 1 ? 0 : r.stream; /* rows do not stream in with several virtual ranks */
            r.debug =
                (chance(60) ? GCKPT_DEBUG_POISON : GCKPT_DEBUG_MEASURE) | (chance(50) ? GCKPT_DEBUG_RECOMPUTE : 0);
            train(seed, &r, &want);
        }
    if (most > 0) {
        run r = { .what = "budget", .rows = batch, .budget = least + below((int64_t)(most - least) + 1) };
        train(seed, &r, &want);
        r = (run){ .what = "inference", .mode = GCKPT_INFERENCE, .rows = 1 + (int64_t)below(batch) };
        train(seed, &r, other ? NULL : &want);
        plain.no_clip = 1;
        outcome late = train(seed, &plain, NULL);
        for (int k = 0; k < 5 && vranks < 2; k++) {
            r = (run){
                .what = "update in backward", .mode = modes[k], .rows = batch, .in_backward = 1, .schedule = schedule
            };
            r.instructions = k == 4 ? custom_schedule(seed, list, length, 1, schedule, 15000) : 0;
            r.way = chance(70) ? 1 + (int)below(9) : 0;
            r.debug = chance(50) ? GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE : GCKPT_DEBUG_MEASURE;
            train(seed, &r, &late);
        }
        if (seed % 2 == 0)
            check_gradients(seed, want.count);
    }
    for (int i = 0; i < fetch_count; i++)
        free(fetched[i].values);
    fetch_count = 0;
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : check_seed();
    unsigned count = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)check_iterations(32);
    net_features = NET_MIXING | NET_ALONE;
    for (unsigned i = 0; i < count; i++)
        test_graph(first + i);
    /* the share of graphs that overflow or cannot be checked; in a run of few graphs, it may be larger than a fifth */
    const int most = count < 32 ? (int)count - 1 : (int)count / 5;
    CHECK_MSG(not_finite <= most, "%d of %u graphs overflowed", not_finite, count);
    CHECK_MSG(hidden <= most, "%d of %u graphs too coarse", hidden, count);
    return check_report("test_random");
}
