/* test_backend.c - the executor on a backend whose memory the host cannot read (backend.h). Plans, splits, streams,
 * fetches, files, debug modes, gradcheck must give the bits that the processor gives.
 * A step that does not clip waits for nothing before its first update, even if that update is then skipped.
 *
 *     build/test_backend [first seed] [graphs] */
#include "base/base.h"
#include "num/num.h"
#include "graph/graph.h"
#include "ops/ops.h"
#include "plan/plan.h"
#include "run/run.h"

#if !defined(__unix__) && !defined(__APPLE__)
int main(void) { return 0; }
#else
#ifdef TESTED_ELSEWHERE
#include "check.h"
#else
#include "backend.h"
#endif

/* The two backends on which the test cases run, and control of backend i: tested_blocks returns the number of its
 * live allocations; tested_lacks names an op that the backend then lacks (NULL for none); tested_fails makes its
 * allocation number `index` from now on fail (0 for none). A file that includes this one can define them for other
 * backends with TESTED_ELSEWHERE, as test_cuda.c does. */
static const gckpt_backend *tested[2];
static long tested_blocks(int i);
static void tested_lacks(int i, const char *op);
static void tested_fails(int i, long index);

#ifndef TESTED_ELSEWHERE
static device plain_device, fast_device;
static gckpt_backend plain_backend, fast_backend;
static device *device_tested(int i) { return i ? &fast_device : &plain_device; }
static long tested_blocks(int i) { return device_tested(i)->live; }
static void tested_lacks(int i, const char *op) { device_tested(i)->missing = op; }
static void tested_fails(int i, long index)
{
    device_reset(device_tested(i));
    device_tested(i)->fail_at = index;
}
#endif

/* The backend that runs the random graphs; the results to compare with are computed on the processor. */
static const gckpt_backend *backend_of_graph;
#define RANDOM_BACKEND(wanted) ((wanted) ? backend_of_graph : NULL)
#define main                   random_main
#include "integration/test_random.c"
#undef main
#include "generation.h"

/* ---- a small training of x and tokens with three losses: cross-entropy, squares, a regulariser ---- */
enum { ROWS = 6, WIDTH = 24, CLASSES = 7, WIDE = 200 };

/* A user-defined op y = x^2 for which no backend has a kernel; it saves x and needs a workspace. */
static gckpt_result square_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    call->saved_bytes = (size_t)count_of(&call->shape) * sizeof(float);
    call->workspace_forward = call->saved_bytes + 4;
    call->workspace_backward = 12;
    return GCKPT_OK;
}
static void square_forward(const gckpt_call *call)
{
    float *scratch = (float *)call->workspace;
    for (int64_t i = 0, n = count_of(&call->shape); i < n; i++) {
        scratch[i + 1] = call->in[0].data[i];
        if (call->saved)
            memcpy((float *)call->saved + i, &call->in[0].data[i], sizeof(float));
        if (call->out)
            call->out[i] = scratch[i + 1] * call->in[0].data[i];
    }
}
static void square_backward(const gckpt_call *call)
{
    float *scratch = (float *)call->workspace;
    for (int64_t i = 0, n = count_of(&call->shape); i < n; i++) {
        memcpy(scratch, (float *)call->saved + i, sizeof(float));
        scratch[2] = 2 * scratch[0] * call->grad_out[i];
        call->in[0].grad[i] = call->in[0].accumulate ? call->in[0].grad[i] + scratch[2] : scratch[2];
    }
}
static const gckpt_op square_op = { .name = "square_op", .shape = square_shape, .forward = square_forward,
                                    .backward = square_backward, .needs = { GCKPT_SAVED } };

/* A loss with its own count: the sum of x^2/2, whose forward counts 3 for each row. */
static gckpt_result odd_loss_shape(gckpt_call *call)
{
    (void)call;
    return GCKPT_OK;
}
static void odd_loss_forward(const gckpt_call *call)
{
    for (int64_t i = 0, n = count_of(&call->in[0].shape); i < n && call->loss_sum; i++)
        *call->loss_sum += 0.5 * (double)call->in[0].data[i] * (double)call->in[0].data[i];
    if (call->loss_count)
        *call->loss_count += 3 * call->rows;
}
static void odd_loss_backward(const gckpt_call *call)
{
    for (int64_t i = 0, n = count_of(&call->in[0].shape); i < n; i++)
        call->in[0].grad[i] = (call->in[0].accumulate ? call->in[0].grad[i] : 0) +
                              call->in[0].data[i] * call->loss_scale;
}
static const gckpt_op odd_loss_op = { .name = "odd_loss", .shape = odd_loss_shape, .forward = odd_loss_forward,
                                      .backward = odd_loss_backward, .needs = { GCKPT_IN(0) }, .flags = GCKPT_LOSS };

static const gckpt_op *odd_loss_of = &odd_loss_op;

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    int x, targets;
    gckpt_tensor *h;
    gckpt_term terms[2];
} small;

typedef struct {
    const gckpt_backend *backend;
    gckpt_optimiser optimiser;
    gckpt_precision precision;
    int micro, odd, stage, skips, streams;
    unsigned debug;
    gckpt_mode mode;
    gckpt_store *store; /* if NULL, makes a new one */
} setting;

static float small_x[ROWS * WIDTH];
static int32_t small_targets[ROWS];

static void own_optimiser(void *user, const gckpt_update *u)
{
    (void)user;
    for (int64_t i = 0; i < u->elements; i++) {
        u->state[0][i] += u->gradient[i] * u->clip_scale;
        u->values[i] -= u->options->lr * u->state[0][i] * u->lr_scale;
    }
}

/* Returns x + x p q gain for three frozen parameters: p in int8, q in f16, gain in bf16. The inner size of the product
 * p q, 31, is no multiple of a vector. */
static gckpt_tensor *packed_layers(gckpt_tensor *x)
{
    enum { NARROW = 31 };
    const gckpt_init normal = { 0.2f, 0, 0 };
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_store *s = g->store;
    gckpt_tensor *bytes = gckpt_param(g, "frozen.i8", gckpt_shape2(WIDE, NARROW), normal);
    gckpt_tensor *halves = gckpt_param(g, "frozen.f16", gckpt_shape2(NARROW, WIDE), normal);
    gckpt_tensor *gain = gckpt_param(g, "frozen.bf16", gckpt_shape1(WIDE), normal);
    CHECK(gckpt_store_freeze(s, "frozen.*", 1) == GCKPT_OK &&
          gckpt_store_quantise(s, "*.i8", GCKPT_STORAGE_I8) == GCKPT_OK &&
          gckpt_store_quantise(s, "*.f16", GCKPT_STORAGE_F16) == GCKPT_OK &&
          gckpt_store_quantise(s, "*.bf16", GCKPT_STORAGE_BF16) == GCKPT_OK);
    return gckpt_add(x, gckpt_mul(gckpt_linear(gckpt_linear(x, bytes, NULL), halves, NULL), gain));
}

/* Creates graph and plan of the small training; if `wanted` is nonzero, also its executor. */
static small make(const setting *o, int wanted)
{
    const gckpt_init normal = { 0.3f, 0, 0 }, one = { 0, 0, 1 };
    gckpt_store_desc seed = { .seed = 5 };
    small m = { .s = o->store ? o->store : gckpt_store_new(&seed) };
    static float scale[WIDE];
    for (int i = 0; i < WIDE; i++)
        scale[i] = 1 + (float)(i % 5) / 8;
    m.g = gckpt_graph_new(m.s, NULL);
    const int64_t rows = o->micro ? o->micro : ROWS;
    gckpt_tensor *x = gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape2(rows, WIDTH));
    gckpt_tensor *t = gckpt_input(m.g, "targets", GCKPT_I32, gckpt_shape1(rows));
    gckpt_tensor *w = gckpt_param(m.g, "w", gckpt_shape2(WIDTH, WIDE), normal);
    gckpt_tensor *v = gckpt_param(m.g, "v", gckpt_shape2(WIDE, CLASSES), normal);
    gckpt_tensor *gain = gckpt_param(m.g, "gain", gckpt_shape1(WIDE), one);
    gckpt_tensor *h = gckpt_linear(x, w, NULL);
    h = gckpt_mul(h, gckpt_constant(m.g, "scale", GCKPT_F32, gckpt_shape1(WIDE), scale));
    h = gckpt_rmsnorm(h, gain, 0);
    h = gckpt_apply(&square_op, &h, 1, NULL, 0);
    m.h = h = gckpt_dropout(gckpt_tanh(h), 0.2f);
    gckpt_tensor *logits = gckpt_linear(packed_layers(h), v, NULL);
    gckpt_term terms[3] = { { gckpt_cross_entropy(logits, t, NULL, 0), 1, 0 },
                            { gckpt_sum_loss(gckpt_mul(v, v)), 0.01f, 1 },
                            { NULL, 0.5f, 0 } };
    if (o->odd) /* odd is the number of the loss's inputs: 1 (logits) or 2 (and targets) */
        terms[0].loss = gckpt_apply(odd_loss_of, (gckpt_tensor *[]){ logits, t }, o->odd, NULL, 0);
    gckpt_fetch_spec fetch[3] = { { h, 0 }, { h, 1 }, { w, 1 } };
    gckpt_plan_desc d = { .mode = o->mode,
                          .batch = ROWS,
                          .optimiser = o->optimiser,
                          .custom_state = 1,
                          .kernels.stage_parameters = o->stage,
                          .offload.state = o->streams,
                          .bf16.precision = o->precision,
                          .fetch.specs = fetch,
                          .fetch.count = 3,
                          .backend = o->backend };
    if (o->optimiser != GCKPT_CUSTOM_OPTIMISER)
        d.custom_state = 0;
    m.x = gckpt_id(x), m.targets = gckpt_id(t);
    memcpy(m.terms, terms, sizeof m.terms);
    m.p = gckpt_plan_new(m.g, terms, 2, &d);
    CHECK_MSG(m.p != NULL, "%s", gckpt_error_text(m.g));
    gckpt_exec_desc x_desc = { .backend = o->backend, .custom_optimiser = own_optimiser, .debug = o->debug,
                               .skip_nonfinite = o->skips };
    m.e = wanted ? gckpt_exec_new(m.p, m.s, &x_desc) : NULL;
    CHECK_MSG(!wanted || m.e, "%s", gckpt_error_text(m.s));
    return m;
}

static void small_data(int step)
{
    for (int i = 0; i < ROWS * WIDTH; i++)
        small_x[i] = (float)((i * 37 + step * 11) % 23 - 11) / 9;
    for (int i = 0; i < ROWS; i++)
        small_targets[i] = i % 4 == 2 ? -1 : (i + step) % CLASSES;
}

static gckpt_report small_step(const small *m, int step, float clip)
{
    gckpt_report report = { 0 };
    gckpt_hyper hyper = { .lr = 0.01f, .weight_decay = 0.1f, .clip = clip };
    gckpt_feed feeds[2] = { { m->x, small_x }, { m->targets, small_targets } };
    small_data(step);
    gckpt_result result = gckpt_step(m->e, feeds, 2, ROWS, &hyper, &report);
    CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(m->e));
    return report;
}

static void small_free(small *m, int keep_store)
{
    util_free(m->e, m->p, m->g, keep_store ? NULL : m->s);
}

/* Trains by the setting and returns a hash of all results to compare: losses, norms, fetches, values and state. */
static uint64_t small_run(const setting *o, float clip)
{
    small m = make(o, 1);
    uint64_t hash = 1469598103934665603u;
    file saved = { 0 };
    for (int step = 0; step < 3; step++) {
        gckpt_report r = small_step(&m, step, clip);
        const double two[2] = { r.loss, r.grad_norm };
        hash = gckpti_fnv(hash, two, sizeof two);
        for (int i = 0; i < 3; i++) {
            const float *got = gckpt_fetch(m.e, i < 2 ? gckpt_id(m.h) : 2, i > 0);
            int64_t n = i < 2 ? (o->micro ? (ROWS - 1) % o->micro + 1 : ROWS) * WIDE : WIDTH * WIDE;
            CHECK(got != NULL);
            hash = got ? gckpti_hash_floats(hash, got, n) : 0;
        }
        hash ^= gckpt_store_hash(m.s);
    }
    CHECK(gckpt_store_write(m.s, file_write, &saved, NULL) == GCKPT_OK);
    hash = gckpti_fnv(hash, saved.bytes, saved.size);
    gckpt_exec_free(m.e); /* the store must have all values after the executor is freed */
    m.e = NULL;
    file again = { 0 };
    CHECK(gckpt_store_write(m.s, file_write, &again, NULL) == GCKPT_OK && same_file(&saved, &again));
    free(saved.bytes);
    free(again.bytes);
    small_free(&m, 0);
    return hash;
}

static void test_small(void)
{
    for (int optimiser = 0; optimiser <= GCKPT_CUSTOM_OPTIMISER; optimiser++)
        for (int precision = 0; precision <= GCKPT_BF16; precision++)
            for (int way = 0; way < 8; way++) {
                setting o = { .optimiser = (gckpt_optimiser)optimiser,
                              .micro = way % 2 * 4,
                              .precision = (gckpt_precision)precision,
                              .odd = way / 4,
                              .mode = way % 4 < 2 ? GCKPT_STORE_ALL : GCKPT_MEMORY_POOR,
                              .stage = way % 5 == 3,
                              .streams = way % 3 == 2 };
                uint64_t want = small_run(&o, way % 2 ? 0.1f : 0);
                for (int i = 0; i < 2; i++) {
                    o.backend = tested[i];
                    o.debug = way % 3 == 1 ? GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE : 0;
                    o.debug |= way % 5 == 4 ? GCKPT_DEBUG_PLAIN : 0;
                    tested_lacks(i, way % 4 == 1 ? "linear" : way % 4 == 2 ? "cross_entropy" : NULL);
                    CHECK_MSG(small_run(&o, way % 2 ? 0.1f : 0) == want,
                              "optimiser %d, precision %d, way %d on %s: other bits", optimiser, precision, way,
                              o.backend->name);
                    CHECK_MSG(tested_blocks(i) == 0, "%ld allocations left", tested_blocks(i));
                    tested_lacks(i, NULL);
                }
            }
}

/* Tests that a skipped step changes nothing. */
static void test_skipped(void)
{
    for (int way = 0; way < 16; way++) {
        uint64_t want = 0;
        for (int bad = 0; bad < 2; bad++) {
            setting o = { .backend = tested[way % 2], .skips = bad, .optimiser = (gckpt_optimiser)(way / 2 % 4),
                          .micro = way % 3 ? 4 : 0 };
            small m = make(&o, 1);
            gckpt_hyper hyper = { .lr = 0.01f, .weight_decay = 0.1f, .clip = way / 8 ? 0.1f : 0 };
            gckpt_feed feeds[2] = { { m.x, small_x }, { m.targets, small_targets } };
            file saved = { 0 };
            for (int step = 0; step < 3; step++) {
                gckpt_report r = { 0 };
                small_data(step);
                small_x[5 * WIDTH + 3] = float_of(0x7f800000);
                for (int i = 0; i < 2 * bad; i++) {
                    CHECK_MSG(gckpt_step(m.e, feeds, 2, ROWS, &hyper, &r) == GCKPT_SKIPPED, "%s: %s",
                              o.backend->name, gckpt_error_text(m.e));
                    CHECK(r.step == (uint64_t)step && r.grad_norm - r.grad_norm != 0);
                }
                small_step(&m, step, hyper.clip);
            }
            CHECK(gckpt_store_write(m.s, file_write, &saved, NULL) == GCKPT_OK);
            uint64_t hash = gckpti_fnv(gckpt_store_hash(m.s), saved.bytes, saved.size);
            want = bad ? want : hash;
            CHECK_MSG(hash == want, "way %d: a skipped step left a trace", way);
            free(saved.bytes);
            small_free(&m, 0);
        }
    }
}

#ifndef TESTED_ELSEWHERE
/* Allocates memory that is not zeroed, as a driver may do. */
static void *used_get(void *context, size_t bytes, size_t alignment)
{
    device *d = (device *)context;
    void *at = device_get(context, bytes, alignment);
    device_open(d);
    if (at)
        memset(at, 0xee, bytes);
    device_close(d);
    return at;
}

/* Tests a step that updates running statistics but trains nothing: no gradient can make this step be skipped. */
static void test_measured_alone(void)
{
    uint64_t want = 0;
    for (int way = 0; way < 4; way++) {
        const gckpt_init zero = { 0, 0, 0 }, one = { 0, 0, 1 };
        gckpt_backend used = *tested[way % 2];
        used.allocate = used_get;
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, WIDTH));
        gckpt_tensor *mean = gckpt_running(g, "mean", gckpt_shape1(WIDTH), zero, 0.1f);
        gckpt_tensor *variance = gckpt_running(g, "variance", gckpt_shape1(WIDTH), one, 0.1f);
        gckpt_tensor *h = gckpt_batchnorm(x, NULL, NULL, mean, variance, 0);
        gckpt_term term = { gckpt_sum_loss(gckpt_mul(h, h)), 1, 0 };
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .backend = way < 2 ? NULL : &used };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
        gckpt_exec_desc e_desc = { .backend = d.backend, .skip_nonfinite = 1 };
        gckpt_exec *e = gckpt_exec_new(p, s, &e_desc);
        gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
        gckpt_feed feed = { gckpt_id(x), small_x };
        gckpt_report r = { 0 };
        small_data(1);
        CHECK_MSG(gckpt_step(e, &feed, 1, ROWS, &hyper, &r) == GCKPT_OK, "%s", gckpt_error_text(e));
        CHECK(gckpt_store_pull(s, "*") == GCKPT_OK);
        const uint64_t hash = gckpt_store_hash(s);
        want = way ? want : hash;
        CHECK_MSG(hash == want, "way %d: statistics were measured and not kept", way);
        util_free(e, p, g, s);
    }
}

static void square_on_device(const gckpt_call *call) { device_run(call, square_forward); }
static void square_back_on_device(const gckpt_call *call) { device_run(call, square_backward); }
static void odd_loss_on_device(const gckpt_call *call) { device_run(call, odd_loss_forward); }
static void odd_loss_back_on_device(const gckpt_call *call) { device_run(call, odd_loss_backward); }

/* Counts copies and waits of a step. If the backend's copies of all values are up to date, only feeds are copied to
 * the backend; the host waits for nothing before the first update, except if the step clips, may be skipped, or the
 * loss has its own count. */
static void test_waits(void)
{
    device *d = &plain_device;
    /* ways 1 and 3 clip; in ways 2 and 3, the loss has its own count; way 4 sets skip_nonfinite */
    for (int way = 0; way < 5; way++) {
        setting o = { .backend = &plain_backend, .odd = way / 2 % 2, .skips = way == 4 };
        small m = make(&o, 1);
        d->missing = NULL;
        small_step(&m, 0, 0);
        device_reset(d);
        /* a backend without a kernel for this op would make the host run it and wait for copies */
        m.e->tables.nodes[gckpt_id(m.h) - 2].forward = square_on_device;
        m.e->tables.nodes[gckpt_id(m.h) - 2].backward = square_back_on_device;
        if (o.odd) {
            m.e->tables.nodes[m.p->terms[0].id].forward = odd_loss_on_device;
            m.e->tables.nodes[m.p->terms[0].id].backward = odd_loss_back_on_device;
        }
        small_step(&m, 1, way % 2 ? 1e-3f : 0);
        CHECK_MSG((d->waited > 0) == (way > 0), "way %d: %ld waits before the first update", way, d->waited);
        CHECK_MSG(d->gets == 0, "way %d: %ld allocations in a step", way, d->gets);
        CHECK_MSG(d->copies_in == 2 - o.odd, "way %d: %ld copies in of the feeds", way, d->copies_in);
        CHECK(d->updates == 3 && d->kernel_calls > 0 && d->waits >= 1);
        small_free(&m, 0);
    }
}
#endif

/* Tests one store with executors on the processor and on two devices, used alternately: each executor must read the
 * values that the one before it has written. */
static void test_one_store(void)
{
    const gckpt_backend *turns[4] = { tested[0], NULL, tested[1], tested[0] };
    uint64_t want = 0;
    for (int way = 0; way < 2; way++) {
        gckpt_store_desc seed = { .seed = 5 };
        gckpt_parameter kept, q;
        setting o = { .store = gckpt_store_new(&seed) };
        small m[4];
        for (int i = 0; i < 4; i++) {
            o.backend = way ? turns[i] : NULL;
            o.streams = i == 3; /* its device has the state for m[0] and not for m[3] */
            m[i] = make(&o, 1);
        }
        CHECK(gckpt_store_get(o.store, 0, &kept) == GCKPT_OK);
        for (int step = 0; step < 12; step++) {
            if (step == 5) { /* step 5 reads a value that was written through the pointer from gckpt_store_get */
                CHECK(gckpt_store_get(o.store, 1, &q) == GCKPT_OK);
                q.values[3] = 0.25f;
            }
            if (step == 8) { /* step 8 reads a value that was written through a pointer taken several steps before */
                CHECK(gckpt_store_pull(o.store, "w") == GCKPT_OK);
                kept.values[7] += 1;
                CHECK(gckpt_store_push(o.store, "w") == GCKPT_OK);
            }
            if (step == 10)
                CHECK(gckpt_store_reset(o.store, "v") == GCKPT_OK);
            small_step(&m[step * 7 % 4], step, step % 3 ? 0 : 0.5f);
        }
        uint64_t hash = gckpt_store_hash(o.store);
        CHECK(gckpt_store_pull(o.store, "*") == GCKPT_OK && gckpt_store_hash(o.store) == hash);
        CHECK(gckpt_store_pull(o.store, "none") == GCKPT_E_ARG && gckpt_store_push(o.store, "none") == GCKPT_E_ARG);
        want = way ? want : hash;
        CHECK_MSG(hash == want, "executors on several backends: other bits");
        for (int i = 0; i < 3; i++)
            small_free(&m[i], 1);
        CHECK(gckpt_store_hash(o.store) == want);
        gckpt_store_free(o.store); /* before its last executor */
        small_free(&m[3], 1);
        CHECK(tested_blocks(0) == 0 && tested_blocks(1) == 0);
    }
}

/* ---- optimiser state in the host's memory (desc.offload.state) ---- */
static const gckpt_backend *counted_of;
static size_t counted; /* bytes that the backend has allocated */
static void *counted_allocate(void *context, size_t bytes, size_t alignment)
{
    counted += bytes;
    return counted_of->allocate(context, bytes, alignment);
}

/* Trains a matrix whose state passes through the workspace in two parts, of 2^20 and 2049 elements. Returns a hash of
 * the results; *taken gets the bytes that the device allocated. */
static uint64_t streamed_run(const gckpt_backend *b, const setting *o, size_t *taken)
{
    enum { SIDE = 1025, ELEMENTS = SIDE * SIDE };
    const gckpt_init normal = { 0.02f, 0, 0 };
    const size_t state = (o->optimiser == GCKPT_ADAMW ? 8 : o->optimiser == GCKPT_MOMENTUM ? 4 : 0) * (size_t)ELEMENTS;
    static float streamed_x[2 * SIDE];
    gckpt_backend watched = { 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, SIDE));
    gckpt_tensor *y = gckpt_linear(x, gckpt_param(g, "w", gckpt_shape2(SIDE, SIDE), normal), NULL);
    const gckpt_term term = { gckpt_mean_squared_error(y, x, NULL), 1, 0 };
    if (b) {
        counted_of = b, counted = 0;
        watched = *b;
        watched.allocate = counted_allocate;
    }
    const gckpt_plan_desc d = { .mode = o->mode, .batch = o->micro ? 1 : 2, .backend = b ? &watched : NULL,
                                .optimiser = o->optimiser, .update_in_backward = o->micro, .offload.state = o->streams };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    const int streams = b && o->streams;
    CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE) == (streams ? 0 : state) &&
          gckpt_plan_kind_bytes(p, GCKPT_BYTES_HOST_STATE) == (streams ? state : 0));
    const gckpt_exec_desc how = { .backend = d.backend, .debug = GCKPT_DEBUG_MEASURE };
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(s));
    const gckpt_hyper hyper = { .lr = 0.01f, .weight_decay = 0.1f, .clip = o->micro ? 0 : 0.5f };
    const gckpt_feed feed = { gckpt_id(x), streamed_x };
    gckpt_report report = { 0 };
    file saved = { 0 };
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2 * SIDE; i++)
            streamed_x[i] = (float)((i * 7 + step) % 11 - 5) / 4;
        CHECK_MSG(gckpt_step(e, &feed, 1, d.batch, &hyper, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
    }
    CHECK_MSG(gckpt_bytes_measured(e) == gckpt_plan_bytes(p), "%zu bytes, planned were %zu", gckpt_bytes_measured(e),
              gckpt_plan_bytes(p));
    CHECK(gckpt_store_write(s, file_write, &saved, NULL) == GCKPT_OK);
    const uint64_t hash = gckpti_fnv(gckpt_store_hash(s), saved.bytes, saved.size) ^ (uint64_t)gckpti_bits((float)report.grad_norm);
    free(saved.bytes);
    util_free(e, p, g, s);
    *taken = counted;
    return hash;
}

static void test_streamed(void)
{
    for (int way = 0; way < 4; way++) {
        setting o = { .optimiser = way < 2 ? GCKPT_ADAMW : way == 2 ? GCKPT_MOMENTUM : GCKPT_SGD, .micro = way == 1 };
        size_t taken[2], unused;
        const uint64_t want = streamed_run(NULL, &o, &unused);
        for (o.streams = 0; o.streams < 2; o.streams++)
            CHECK_MSG(streamed_run(tested[way % 2], &o, &taken[o.streams]) == want, "way %d, streams %d: other bits", way,
                      o.streams);
        /* without the state, and with its workspace for 2^20 elements where the arena has no space for it */
        const size_t state = (way < 2 ? 2 : way == 2 ? 1 : 0) * sizeof(float);
        CHECK_MSG(taken[1] + state * 1025 * 1025 <= taken[0] + (state << 20) && taken[1] <= taken[0],
                  "way %d: %zu bytes, with the state %zu", way, taken[1], taken[0]);
        CHECK(tested_blocks(way % 2) == 0);
    }
}

/* Reads a store file while an executor exists; the results of gradcheck must be those of the processor. */
static void test_tools(void)
{
    gradcheck_result check[2];
    uint64_t hash[2];
    for (int way = 0; way < 2; way++) {
        setting o = { .backend = way ? tested[1] : NULL };
        small m = make(&o, 1);
        file f = { 0 };
        gckpt_feed feeds[2] = { { m.x, small_x }, { m.targets, small_targets } };
        small_step(&m, 0, 0);
        CHECK(gckpt_store_write(m.s, file_write, &f, NULL) == GCKPT_OK);
        small_step(&m, 1, 0);
        CHECK(gckpt_store_read(m.s, file_read, &f, f.size, NULL) == GCKPT_OK);
        small_step(&m, 2, 0);
        hash[way] = gckpt_store_hash(m.s);
        const gckpt_plan_desc desc = { .batch = ROWS, .backend = o.backend };
        gradcheck(m.s, m.terms, 2, &desc, feeds, 2, ROWS, &check[way]);
        CHECK(gckpt_store_hash(m.s) == hash[way]);
        small_step(&m, 3, 0.5f);
        hash[way] ^= gckpt_store_hash(m.s);
        free(f.bytes);
        small_free(&m, 0);
    }
    CHECK(hash[0] == hash[1]);
    CHECK(check[0].worst == check[1].worst && check[0].directions == check[1].directions);
}

/* Lets the n-th allocation of the backend fail, for each n: creating the executor fails. When no allocation fails any
 * more, training gives the same bits as on the processor. */
static void test_out_of_memory(void)
{
    setting o = { .backend = tested[0] };
    small m = make(&o, 0);
    const gckpt_exec_desc x = { .backend = tested[0] };
    for (long n = 1; !m.e; n++) {
        tested_fails(0, n);
        m.e = gckpt_exec_new(m.p, m.s, &x);
        tested_fails(0, 0);
        CHECK(m.e ? n > 7 : gckpt_error(m.s) == GCKPT_E_MEMORY && tested_blocks(0) == 0);
    }
    small_step(&m, 0, 0);
    uint64_t hash = gckpt_store_hash(m.s);
    small_free(&m, 0);
    o.backend = NULL;
    m = make(&o, 1);
    small_step(&m, 0, 0);
    CHECK(gckpt_store_hash(m.s) == hash);
    small_free(&m, 0);
}

#ifndef TESTED_ELSEWHERE
static void no_move(void *c, void *to, const void *from, size_t n, int out) { CHECK(!c && !to && !from && !n && out); }
static void *no_host_get(void *context, size_t bytes) { return CHECK(!context && !bytes) ? NULL : context; }
static void no_host_release(void *context, void *memory, size_t bytes) { CHECK(!context && !memory && !bytes); }
static void no_join(void *context, int later) { CHECK(!context && !later); }

/* Lets each allocation of host memory fail in turn while an executor is created: the call must fail, and no memory of
 * the backend may stay allocated. */
static void test_no_host_memory(void)
{
    heap h = { 0 };
    gckpt_store_desc desc = { .seed = 5, .memory = heap_memory(&h) };
    gckpt_store *s = gckpt_store_new(&desc);
    small m = make(&(setting){ .backend = &plain_backend, .store = s }, 0);
    const gckpt_exec_desc x = { .backend = &plain_backend };
    gckpt_exec *e = NULL;
    int failures = 0;
    for (long n = 1; !e && n < 100; n++) {
        h.fail_at = h.calls + n;
        e = gckpt_exec_new(m.p, s, &x);
        h.fail_at = 0;
        CHECK_MSG(e || gckpt_error(s) == GCKPT_E_MEMORY, "%ld: %s", n, gckpt_error_text(s));
        failures += !e;
        CHECK(e || plain_device.live == 0);
    }
    CHECK_MSG(e && failures > 0, "%d allocations failed", failures);
    m.e = e;
    small_free(&m, 0);
    CHECK(h.blocks == 0 && h.wrong_sizes == 0);
}

static void test_refusals(void)
{
    setting o = { .backend = &plain_backend };
    gckpt_backend partial = plain_backend;
    file f = { 0 };
    small m = make(&o, 0);
    gckpt_exec_desc x = { .backend = NULL };
    CHECK(!gckpt_exec_new(m.p, m.s, &x) && strstr(gckpt_error_text(m.s), "made for another backend"));
    x.backend = &fast_backend;
    CHECK(!gckpt_exec_new(m.p, m.s, &x) && strstr(gckpt_error_text(m.s), "fast pages"));
    x.backend = &partial;
#define WITHOUT(entry)                                                                                        \
    {                                                                                                         \
        const gckpt_backend whole = partial;                                                                  \
        partial.entry = NULL;                                                                                 \
        CHECK(!gckpt_exec_new(m.p, m.s, &x) && strstr(gckpt_error_text(m.s), "all functions"));           \
        partial = whole;                                                                                      \
    }
    WITHOUT(allocate)
    WITHOUT(release)
    WITHOUT(copy_in)
    WITHOUT(copy_out)
    WITHOUT(copy)
    WITHOUT(find)
    WITHOUT(fill)
    WITHOUT(add)
#ifndef GCKPT_NO_BF16
    WITHOUT(convert)
#endif
    WITHOUT(update)
    WITHOUT(finish)
    /* tests that copy_async is accepted only with the other three functions for host copies */
    partial.copy_async = no_move;
    partial.host_get = no_host_get;
    partial.host_release = no_host_release;
    partial.wait_copies = no_join;
    WITHOUT(host_get)
    WITHOUT(host_release)
    WITHOUT(wait_copies)
#undef WITHOUT
    CHECK(gckpt_plan_c(m.p, "small", file_write, &f) == GCKPT_E_ARG);
    free(f.bytes);
    small cpu = make(&(setting){ .store = m.s }, 0);
    x.backend = &plain_backend;
    CHECK(!gckpt_exec_new(cpu.p, cpu.s, &x) && strstr(gckpt_error_text(m.s), "made for the processor"));
    m.e = gckpt_exec_new(m.p, m.s, &x);
    plain_device.problem = "the cable is out";
    gckpt_feed feeds[2] = { { m.x, small_x }, { m.targets, small_targets } };
    gckpt_hyper hyper = { .lr = 0.01f };
    CHECK(gckpt_step(m.e, feeds, 2, ROWS, &hyper, NULL) == GCKPT_E_BACKEND &&
          !strcmp(gckpt_error_text(m.e), "step: plain pages: the cable is out"));
    plain_device.problem = NULL;
    util_free(cpu.e, cpu.p, cpu.g, NULL);
    small_free(&m, 0);
}
#endif

/* Tests a loss that declares GCKPT_COUNT_FROM_FEEDS but whose forward counts something else. On the processor, the step
 * fails before it changes anything; on a backend, the count is compared only at the end of the step. */
static void test_promise(void)
{
    /* ways 1 and 3 run on the backend; in ways 2 and 3 all targets are ignored, so the count should be 0 */
    for (int way = 0; way < 4; way++) {
        gckpt_op liar = odd_loss_op;
        liar.flags |= GCKPT_COUNT_FROM_FEEDS | (way / 2 ? GCKPT_INDEX(1) : 0);
        odd_loss_of = &liar;
        setting o = { .backend = way % 2 ? tested[0] : NULL, .odd = 1 + way / 2 };
        small m = make(&o, 1);
        int32_t none[ROWS];
        gckpt_feed feeds[2] = { { m.x, small_x }, { m.targets, way / 2 ? none : small_targets } };
        gckpt_hyper hyper = { .lr = 0.01f };
        uint64_t hash = gckpt_store_hash(m.s);
        memset(none, -1, sizeof none);
        CHECK_MSG(gckpt_step(m.e, feeds, 2, ROWS, &hyper, NULL) == GCKPT_E_DATA, "way %d", way);
        CHECK_MSG(strstr(gckpt_error_text(m.e), way / 2 ? "counted 18; its feeds say 0" : "counted 18"), "way %d: %s",
                  way, gckpt_error_text(m.e));
        /* only way 1 has already updated values; without valid targets (ways 2 and 3) there is no update */
        CHECK((gckpt_store_hash(m.s) == hash) == (way != 1));
        small_free(&m, 0);
    }
    odd_loss_of = &odd_loss_op;
}

/* Overwrites the store's values while ops should read the staged copy in the arena, so that a read of the store would
 * change the results. */
static int spoil(void *user, const gckpt_progress *at)
{
    static float kept;
    float *values = (float *)user;
    if (at->instruction == 1 && at->first_row == 0)
        kept = values[0], values[0] = 1e9f;
    if (at->kind == GCKPT_UPDATE && values[0] > 1e8f)
        values[0] = kept;
    return 0;
}

/* Trains with a staged parameter: adds a FORWARD of parameter w to the plan of setting `o`, which copies w into the
 * arena, where all ops that use w read it. */
static uint64_t staged_run(const setting *o)
{
    static gckpti_ins list[200];
    static size_t operands[4000];
    small m = make(o, 0);
    gckpt_plan p = *m.p;
    int w = -1;
    for (size_t i = 0; i < p.node_count; i++)
        w = p.nodes[i].kind == GCKPTI_PARAM && w < 0 ? (int)i : w;
    size_t at = (p.arena + 63) / 64 * 64;
    memcpy(list + 1, p.ins, p.length * sizeof *list);
    memcpy(operands, p.operands, p.operand_count * sizeof *operands);
    for (size_t x = 1; x <= p.length; x++) {
        const gckpti_plan_node *node = list[x].kind == GCKPT_UPDATE ? NULL : &p.nodes[list[x].id];
        size_t *first = operands + list[x].operands;
        for (int i = 0; node && i < node->inputs; i++)
            if (p.nodes[node->in[i]].base == w)
                first[list[x].kind == GCKPT_FORWARD ? 3 + i : 4 + 3 * i] = at;
    }
    memset(&list[0], 0, sizeof list[0]);
    list[0].kind = GCKPT_FORWARD;
    list[0].first = 1;
    list[0].id = w;
    list[0].operands = p.operand_count;
    operands[p.operand_count] = at;
    operands[p.operand_count + 1] = operands[p.operand_count + 2] = SIZE_MAX;
    p.block = NULL; /* makes the plan one that does not own its memory, like a plan that is a C constant */
    p.ins = list, p.operands = operands;
    p.length++, p.body++, p.epilogue++, p.operand_count += 3;
    p.arena = at + (size_t)gckpti_planned_elements(&p, &p.nodes[w]) * sizeof(float);
    p.buffer_count = 0;
    gckpt_exec_desc x = { .backend = o->backend };
    gckpt_parameter q;
    CHECK(gckpt_store_get(m.s, 0, &q) == GCKPT_OK && !strcmp(q.name, "w"));
    x.progress = o->backend ? NULL : spoil;
    x.user = q.values;
    m.e = gckpt_exec_new(&p, m.s, &x);
    CHECK_MSG(m.e != NULL, "%s", gckpt_error_text(m.s));
    double loss = 0;
    for (int step = 0; step < 3; step++)
        loss += small_step(&m, step, 0.1f).loss;
    uint64_t hash = gckpti_fnv(gckpt_store_hash(m.s), &loss, sizeof loss);
    gckpt_exec_free(m.e);
    x.progress = NULL;
    m.e = gckpt_exec_new(m.p, m.s, &x); /* the original plan must still be usable */
    small_step(&m, 3, 0.1f);
    hash ^= gckpt_store_hash(m.s);
    small_free(&m, 0);
    return hash;
}

static void test_staged(void)
{
    for (int way = 0; way < 2; way++) {
        setting o = { .micro = 4 * way };
        uint64_t want = 0;
        small m = make(&o, 1);
        double loss = 0;
        for (int step = 0; step < 3; step++)
            loss += small_step(&m, step, 0.1f).loss;
        want = gckpti_fnv(gckpt_store_hash(m.s), &loss, sizeof loss);
        small_step(&m, 3, 0.1f);
        want ^= gckpt_store_hash(m.s);
        small_free(&m, 0);
        CHECK(staged_run(&o) == want);
        o.backend = tested[1];
        CHECK(staged_run(&o) == want);
    }
}

/* Tests a backend in host memory that implements only some ops: the library's kernels run the others. */
static long found;
static gckpt_kernel find_some(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context, (void)kind;
    found++;
    return op == &gckpti_op_linear ? (kind == GCKPT_FORWARD ? op->forward : op->backward) : NULL;
}

static void test_partial(void)
{
    const gckpt_backend some = { .name = "some", .find = find_some };
    setting o = { .micro = 4 };
    uint64_t want = small_run(&o, 0.1f);
    o.backend = &some;
    CHECK(small_run(&o, 0.1f) == want && found > 0);
}

/* Tests a model that generates text with its caches in the backend's memory, also if the backend has no kernel for
 * the op "cache". Any allocation may fail. */
static void test_caches(void)
{
    gen_fill();
    for (int i = 0; i < 4; i++) {
        const gckpt_backend *b = tested[i % 2];
        gckpt_plan_desc d = { .backend = b, .bf16.precision = i % 3 ? GCKPT_BF16 : GCKPT_FP32 };
        gckpt_exec_desc x = { .backend = b };
        tested_lacks(i % 2, i < 2 ? NULL : "cache");
        gen_check_same(1 + i % 2, &d, &x, "own memory");
        gen_check_same(DELTA + i % 2, &d, &x, "states on the host"); /* the backends have no kernels of it */
        tested_lacks(i % 2, NULL);
    }
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_exec_desc x = { .backend = tested[0] };
    generator r = gen_start(s, B, 4, 20, ROTARY, &(gckpt_plan_desc){ .backend = tested[0] }, &x);
    long n = 0, pieces = tested_blocks(0);
    gckpt_exec *e = NULL;
    while (!e && ++n < 9) { /* parameters are allocated */
        tested_fails(0, n);
        e = gckpt_exec_new(r.p, s, &x);
        CHECK(e || (gckpt_error(s) == GCKPT_E_MEMORY && tested_blocks(0) == pieces));
    }
    /* the executor needs one allocation, for sums, feeds, caches and arena together */
    CHECK_MSG(e && n == 2, "%ld allocations", n);
    tested_fails(0, 0);
    gckpt_exec_free(e);
    gen_end(&r);
    gckpt_store_free(s);
}

/* Runs all test cases with the backends tested[0] and tested[1], and `count` random graphs. Any two backends with
 * separate memory must pass them. */
static void test_tested(unsigned first, unsigned count)
{
    test_small();
    test_one_store();
    test_streamed();
    test_skipped();
    test_tools();
    test_out_of_memory();
    test_promise();
    test_staged();
    test_partial();
    test_caches();
    for (unsigned i = 0; i < count; i++) {
        backend_of_graph = tested[!(i % 2)];
        test_graph(first + i);
    }
    backend_of_graph = tested[0];
    test_graph(14); /* a graph in which the host runs an op that does not read the quantised parameter of the graph */
}

#ifndef TESTED_ELSEWHERE
/* The following code checks that the host cannot read the memory of the emulated device. */
static sigjmp_buf back;
static void caught(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

static void test_pages(void)
{
    setting o = { .backend = &plain_backend };
    small m = make(&o, 1);
    static volatile int faults;
    const int signals[2] = { SIGSEGV, SIGBUS };
    const unsigned char *places[3] = { m.e->blocks.arena, (const unsigned char *)m.e->losses.totals,
                                       (const unsigned char *)m.s->params[0].mirror.array[0] };
    struct sigaction action, old[2];
    memset(&action, 0, sizeof action);
    action.sa_handler = caught;
    for (int i = 0; i < 2; i++)
        sigaction(signals[i], &action, &old[i]);
    for (volatile int i = 0; i < 3; i++)
        if (sigsetjmp(back, 1))
            faults++;
        else
            CHECK_MSG(*(const volatile unsigned char *)places[i] < 0, "the host read place %d", (int)i);
    for (int i = 0; i < 2; i++)
        sigaction(signals[i], &old[i], NULL);
    CHECK(faults == 3);
    small_free(&m, 0);
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : check_seed();
    unsigned count = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)check_iterations(4);
    int widest = GCKPT_ISA_COUNT - 1;
    while (!gckpt_isa_available((gckpt_isa)widest))
        widest--;
    if (!device_start(&plain_device, &plain_backend, "plain pages", GCKPT_ISA_PLAIN) ||
        !device_start(&fast_device, &fast_backend, "fast pages", (gckpt_isa)widest)) {
        printf("backend: 0 passed, 0 failed (no pages without access here)\n");
        return 0;
    }
    tested[0] = &plain_backend;
    tested[1] = &fast_backend;
    test_pages();
    test_measured_alone();
    test_waits();
    test_no_host_memory();
    test_refusals();
    test_tested(first, count);
    device_end(&plain_device);
    device_end(&fast_device);
    return check_report("backend");
}
#endif
#endif
