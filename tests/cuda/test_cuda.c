/* test_cuda.c - tests the CUDA backend: the cases of test_backend.c, including random graphs, on two devices; how often
 * the host waits for a device; micro-batches that are captured and replayed; several host threads; devices that run out
 * of memory or fail.
 *     test_cuda [first seed] [graphs]
 * With GCKPT_CUDA_SHIM, the test also checks the shim's counters and lets calls fail (cuda_shim.h). */
#define TESTED_ELSEWHERE
#include "devices/test_backend.c"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cuda_shim.h"
#include "opening.h"

static const gckpt_backend *gpu[2]; /* devices 0 and 1; both entries are the same device if there is only one */
static gckpt_backend watched;          /* gpu[0] with functions that count calls */
static const char *why;

#ifdef GCKPT_CUDA_SHIM
static long allocations_at_start;
static long tested_blocks(int i) { return (void)i, cuda_shim.live_device - allocations_at_start; }
static void tested_fails(int i, long n) { (void)i, cuda_shim.fail_malloc = n; }
#else
static long allocations, fails_at;
static void *counted_get(void *context, size_t bytes, size_t alignment)
{
    void *p = fails_at && !--fails_at ? NULL : gpu[0]->allocate(context, bytes, alignment);
    allocations += p != NULL;
    return p;
}
static void counted_release(void *context, void *memory, size_t bytes)
{
    allocations--;
    gpu[0]->release(context, memory, bytes);
}
static long tested_blocks(int i) { return (void)i, allocations; }
static void tested_fails(int i, long index) { (void)i, fails_at = index; }
#endif

/* Name of an op for which find_except returns no kernel, so that the host runs the op. */
static const char *lacking;
static void tested_lacks(int i, const char *op) { (void)i, lacking = op; }
static gckpt_kernel find_except(void *context, const gckpt_op *op, gckpt_kind kind)
{
    return lacking && !strcmp(lacking, op->name) ? NULL : gpu[0]->find(context, op, kind);
}

/* ---- counting waits and replays ---- */
static long asked, repeated, refused, first_update, last_update, waits_then;
static int spoils; /* if nonzero, the kernel of gelu waits for the device, which makes a capture impossible */

static long waits(void)
{
#ifdef GCKPT_CUDA_SHIM
    return cuda_shim.waits;
#else
    return 0;
#endif
}
static int watched_repeat(void *context, const gckpt_step_params *m)
{
    int done = gpu[0]->replay(context, m);
    asked++;
    repeated += done;
    return done;
}
static int watched_recorded(void *context)
{
    int done = gpu[0]->captured(context);
    refused += !done;
    return done;
}
static void watched_update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    if (pass->update) {
        first_update = first_update < 0 ? waits() - waits_then : first_update;
        last_update = waits() - waits_then;
    }
    gpu[0]->update(call, pass);
}
static void waiting_gelu(const gckpt_call *call)
{
    float x;
    gpu[0]->find(call->backend, &gckpti_op_gelu, GCKPT_FORWARD)(call);
    gpu[0]->copy_out(call->backend, &x, call->out, sizeof x);
}
static gckpt_kernel watched_find(void *context, const gckpt_op *op, gckpt_kind kind)
{
    if (spoils && kind == GCKPT_FORWARD && !strcmp(op->name, "gelu"))
        return waiting_gelu;
    return gpu[0]->find(context, op, kind);
}

/* A net whose micro-batches differ in everything that a replay must update: two losses that count their rows
 * differently, dropout and a regulariser. */
enum { N = 7, IN = 9, HIDDEN = 20, OUT = 5 };
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_feed feeds[3];
} net2;
static float net2_x[N * IN], net2_y[N * OUT];
static int32_t net2_t[N];

static int say_nothing(void *user, const gckpt_progress *at) { return (void)user, (void)at, 0; }

static net2 net2_make(gckpt_store *s, const gckpt_backend *b, int64_t rows, gckpt_precision precision,
                      int plainly, int inference)
{
    const gckpt_init init = { 0.4f, 0, 0 };
    gckpt_store_desc seed = { .seed = 9 };
    net2 m = { .s = s ? s : gckpt_store_new(&seed) };
    m.g = gckpt_graph_new(m.s, NULL);
    gckpt_tensor *x = gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape2(rows, IN));
    gckpt_tensor *t = gckpt_input(m.g, "t", GCKPT_I32, gckpt_shape1(rows));
    gckpt_tensor *y = gckpt_input(m.g, "y", GCKPT_F32, gckpt_shape2(rows, OUT));
    gckpt_tensor *w = gckpt_param(m.g, "w", gckpt_shape2(IN, HIDDEN), init);
    gckpt_tensor *v = gckpt_param(m.g, "v", gckpt_shape2(HIDDEN, OUT), init);
    gckpt_tensor *gain = gckpt_param(m.g, "gain", gckpt_shape1(HIDDEN), init);
    gckpt_tensor *fixed = gckpt_param(m.g, "fixed", gckpt_shape2(HIDDEN, HIDDEN), init);
    CHECK(gckpt_store_freeze(m.s, "fixed", 1) == GCKPT_OK &&
          gckpt_store_quantise(m.s, "fixed", GCKPT_STORAGE_I8) == GCKPT_OK);
    gckpt_tensor *h = gckpt_gelu(gckpt_mul(gckpt_linear(x, w, NULL), gain));
    h = gckpt_linear(gckpt_dropout(gckpt_linear(h, fixed, NULL), 0.3f), v, NULL);
    gckpt_term terms[3] = { { gckpt_cross_entropy(h, t, NULL, 0), 1, 0 },
                            { gckpt_mean_squared_error(h, y, NULL), 0.5f, 0 },
                            { gckpt_sum_loss(gckpt_mul(w, w)), 0.01f, 1 } };
    gckpt_plan_desc d = { .mode = inference ? GCKPT_INFERENCE : GCKPT_MEMORY_POOR, .batch = N,
                          .bf16.precision = precision, .backend = b };
    m.p = gckpt_plan_new(m.g, terms, 3, &d);
    CHECK_MSG(m.p != NULL, "%s", gckpt_error_text(m.g));
    gckpt_exec_desc how = { .backend = b, .progress = plainly ? say_nothing : NULL };
    m.e = gckpt_exec_new(m.p, m.s, &how);
    CHECK_MSG(m.e != NULL, "%s", gckpt_error_text(m.s));
    m.feeds[0].input = gckpt_id(x), m.feeds[0].data = net2_x;
    m.feeds[1].input = gckpt_id(t), m.feeds[1].data = net2_t;
    m.feeds[2].input = gckpt_id(y), m.feeds[2].data = net2_y;
    return m;
}

/* Runs a step over `rows` rows; inputs and targets depend on the number `step`. Returns `hash` combined with loss,
 * gradient norm and weights. */
static uint64_t net2_step(net2 *m, int step, int64_t rows, float clip, uint64_t hash)
{
    gckpt_report r = { 0 };
    const gckpt_hyper hyper = { .lr = 0.02f, .clip = clip };
    for (int i = 0; i < N * IN; i++)
        net2_x[i] = (float)((i * 29 + step * 13) % 19 - 9) / 8;
    for (int i = 0; i < N; i++)
        net2_t[i] = (i + step) % 3 == 1 ? -1 : (i * 3 + step) % OUT;
    for (int i = 0; i < N * OUT; i++)
        net2_y[i] = (float)((i * 7 + step) % 5) / 4;
    waits_then = waits();
    first_update = -1;
    CHECK_MSG(gckpt_step(m->e, m->feeds, 3, rows, &hyper, &r) == GCKPT_OK, "%s", gckpt_error_text(m->e));
    const double reported[2] = { r.loss, r.grad_norm };
    hash = gckpti_fnv(hash, reported, sizeof reported);
    return hash ^ gckpt_store_hash(m->s);
}

static void net2_free(net2 *m, int keep_store) { util_free(m->e, m->p, m->g, keep_store ? NULL : m->s); }

/* Returns a hash of eight steps. With replayed micro-batches it must be the same as without captures and on the
 * processor. */
static uint64_t repeats_run(const gckpt_backend *b, int64_t rows, gckpt_precision precision, int plainly)
{
    uint64_t hash = 1469598103934665603u;
    net2 m = net2_make(NULL, b, rows, precision, plainly, 0), other = { 0 };
    for (int step = 0; step < 8; step++) {
        if (step == 5) /* a second executor of the same store, whose parameters have the same addresses */
            other = net2_make(m.s, b, rows == N ? 2 : N, precision, plainly, 0);
        if (step == 6) { /* after a step on the processor, parameters have other addresses on the device */
            net2 here = net2_make(m.s, NULL, 2, precision, 0, 0);
            hash = net2_step(&here, 20, N, 0, hash);
            net2_free(&here, 1);
        }
        /* Steps 0 and 1 have one micro-batch. In later steps the last micro-batch is shorter, by different numbers of
         * rows. */
        int64_t all = step < 2 ? rows : step % 4 == 3 ? N - 1 : N;
        hash = net2_step(step == 5 ? &other : &m, step, all, step % 2 ? 0.05f : 0, hash);
    }
    net2_free(&other, 1);
    net2_free(&m, 0);
    return hash;
}

static void test_repeats(void)
{
    for (int precision = 0; precision <= GCKPT_BF16; precision++)
        for (int64_t rows = 1; rows <= N; rows += 2) {
            uint64_t want = repeats_run(NULL, rows, (gckpt_precision)precision, 0);
            /* way 0 captures, way 1 does not, way 2 makes captures impossible, way 3 has no memory for graphs */
            for (int way = 0; way < 4; way++) {
                asked = repeated = refused = 0;
                spoils = way == 2;
#ifdef GCKPT_CUDA_SHIM
                cuda_shim.fail_upload = cuda_shim.fail_always = way == 3;
#else
                if (way == 3)
                    break;
#endif
                uint64_t got = repeats_run(&watched, rows, (gckpt_precision)precision, way == 1);
                CHECK_MSG(got == want, "precision %d, rows %d, way %d: other bits", precision, (int)rows, way);
                CHECK_MSG(way == 0 ? repeated > asked / 5 && !refused : !repeated,
                          "way %d: of %ld micro-batches %ld replayed, %ld not captured", way, asked, repeated, refused);
                CHECK(way < 2 || refused > 0);
                CHECK_MSG(tested_blocks(0) == 0, "%ld pieces left", tested_blocks(0));
#ifdef GCKPT_CUDA_SHIM
                CHECK_MSG(cuda_shim.live_graphs == 0, "%ld graphs left", cuda_shim.live_graphs);
#endif
            }
        }
    spoils = 0;
#ifdef GCKPT_CUDA_SHIM
    cuda_shim.fail_upload = cuda_shim.fail_always = 0;
#endif
}

/* Tests inference for several numbers of rows. */
static void test_inference(void)
{
    double want[4];
    for (int way = 0; way < 3; way++) {
        net2 m = net2_make(NULL, way ? &watched : NULL, 3, GCKPT_FP32, way == 2, 1);
        repeated = 0;
        for (int i = 0; i < 4; i++) {
            gckpt_report r = { 0 };
            CHECK(gckpt_forward(m.e, m.feeds, 3, N - (i == 2), &r) == GCKPT_OK);
            want[i] = way ? want[i] : r.loss;
            CHECK_MSG(r.loss == want[i], "forward %d: %.17g, not %.17g", i, r.loss, want[i]);
        }
        CHECK((repeated > 0) == (way == 1));
        net2_free(&m, 0);
    }
}

#ifdef GCKPT_CUDA_SHIM
/* Between the first instruction of a step and its last update, the host may wait for the device only to read the
 * gradient norm, and only if the step clips or may be skipped. */
static void test_no_waits(void)
{
    net2 m = net2_make(NULL, &watched, 1, GCKPT_FP32, 0, 0);
    const gckpt_exec_desc skips = { .backend = &watched, .skip_nonfinite = 1 };
    for (int step = 0; step < 16; step++) {
        if (step == 8) {
            gckpt_exec_free(m.e);
            m.e = gckpt_exec_new(m.p, m.s, &skips);
        }
        net2_step(&m, step, N, step % 2 ? 0.05f : 0, 0);
        const int waits = step % 2 || step >= 8;
        CHECK_MSG(first_update == waits && last_update == waits,
                  "step %d: %ld waits before the first update, %ld before the last", step, first_update, last_update);
    }
    net2_free(&m, 0);
}

/* ---- devices that run out of memory or fail ---- */
static void test_device_out_of_memory(void)
{
    setting o = { .backend = gpu[0] };
    small m = make(&o, 0);
    const gckpt_exec_desc x = { .backend = gpu[0] };
    cuda_shim.fail_malloc = 1; /* the executor cannot allocate its memory on the device */
    CHECK(!gckpt_exec_new(m.p, m.s, &x) && gckpt_error(m.s) == GCKPT_E_MEMORY);
    CHECK_MSG(strstr(gckpt_error_text(m.s), "smaller budget") && strstr(gckpt_error_text(m.s), "CUDA device 0 has"),
              "%s", gckpt_error_text(m.s));
    cuda_shim.fail_malloc = 0;
    small_free(&m, 0);
}

/* Lets launch number `launch` or copy number `copy` of a step fail. The test runs in a child process, because the
 * device is unusable afterwards. */
static void break_it(long launch, long copy)
{
    setting o = { .backend = gpu[0], .micro = 4 };
    small m = make(&o, 1);
    small_step(&m, 0, 0);
    gckpt_feed feeds[2] = { { m.x, small_x }, { m.targets, small_targets } };
    gckpt_hyper hyper = { .lr = 0.01f };
    cuda_shim.fail_launch = launch;
    cuda_shim.fail_copy = copy;
    for (int again = 0; again < 2; again++) { /* later steps must return the same error */
        CHECK(gckpt_step(m.e, feeds, 2, ROWS, &hyper, NULL) == GCKPT_E_BACKEND);
        CHECK_MSG(strstr(gckpt_error_text(m.e), "step: cuda: CUDA device 0: "), "%s", gckpt_error_text(m.e));
        CHECK_MSG(strstr(gckpt_error_text(m.e), "restart from a checkpoint"), "%s", gckpt_error_text(m.e));
        /* The error text has the kernel's name without template parameters. */
        if (launch && !cuda_shim.lazy)
            CHECK_MSG(strstr(gckpt_error_text(m.e), "_kernel") && !strstr(gckpt_error_text(m.e), " T>"), "%s",
                      gckpt_error_text(m.e));
    }
    const gckpt_exec_desc x = { .backend = gpu[0] };
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK(gckpt_plan_params(m.p, s) == GCKPT_OK && !gckpt_exec_new(m.p, s, &x));
    CHECK_MSG(gckpt_error(s) == GCKPT_E_MEMORY && strstr(gckpt_error_text(s), "restart"), "%s",
              gckpt_error_text(s));
    gckpt_store_free(s);
    small_free(&m, 0);
}

static void test_broken(void)
{
    for (int way = 0; way < 8; way++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            check_failed = 0;
            break_it(way < 5 ? 1 + 6 * way : 0, way < 5 ? 0 : way - 4);
            fflush(stdout);
            _exit(check_failed != 0);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK_MSG(status == 0, "break %d: status %d", way, status);
    }
}

/* Opening a device that fails must leave no memory allocated, and a later attempt to open it must succeed. A device that
 * is only opened has no memory for copies. */
static void test_open(void)
{
    const long streams = cuda_shim.live_streams, events = cuda_shim.live_events, pinned = cuda_shim.live_pinned,
               memory = cuda_shim.live_device;
    cuda_shim.fail_malloc = 1;
    CHECK(!gckpt_cuda_backend(1, &why));
    CHECK_MSG(strstr(why, "CUDA device 1: ") && strstr(why, "out of memory"), "%s", why);
    CHECK(cuda_shim.live_streams == streams && cuda_shim.live_events == events &&
          cuda_shim.live_device == memory);
    /* The first launch is that of the self-test, the second a product by wgmma: without it, mma.sync is used. */
    char text[256];
    const gckpt_backend *opened;
    cuda_shim.refuse_launch = 2;
    open_printing(1, &opened, text);
    CHECK_MSG(strstr(text, "GCKPT_BF16_FAST is slower") && strstr(text, "too many resources"), "%s", text);
    CHECK(opened && cuda_shim.live_pinned == pinned && cuda_shim.live_device == memory + 1);
}

/* Compute capability 8.6 runs the code for 8.0; 12.0 has none and compiles PTX, of which a line warns. */
static void test_warning(void)
{
    char text[256];
    const gckpt_backend *opened;
    const int own = cuda_shim.capability;
    cuda_shim.capability = 86;
    CHECK_MSG(!open_printing(2, &opened, text)[0], "%s", text);
    cuda_shim.capability = 120;
    CHECK_MSG(strstr(open_printing(3, &opened, text), "device 3: compiling PTX takes minutes"),
              "%s", text);
    cuda_shim.capability = own;
}

/* An error of the program's own calls is reported by its name when a device is opened, and never cleared. */
static void test_program_error(void)
{
    enum { OUT_OF_MEMORY = 2 };
    cuda_shim_set_error(OUT_OF_MEMORY);
    CHECK(!gckpt_cuda_backend(1, &why) && cuda_shim_error() == OUT_OF_MEMORY);
    CHECK_MSG(strstr(why, "device 1: ") && strstr(why, "cudaErrorMemoryAllocation"), "%s", why);
    CHECK(gckpt_cuda_backend(0, &why) == gpu[0] && !why[0]);
    for (int i = 0; i < 2; i++) { /* micro-batches that are captured; captures that fail */
        net2 m = net2_make(NULL, gpu[0], 2, GCKPT_FP32, 0, 0);
        cuda_shim.fail_upload = i;
        for (int step = 0; step < 3; step++)
            net2_step(&m, step, N, 0.05f, 0);
        net2_free(&m, 0);
        CHECK(cuda_shim_error() == (i ? 0 : OUT_OF_MEMORY));
    }
    cuda_shim_set_error(0);
}

/* After an error that CUDA survives, the executor's steps return it. When all memory of the device is released, it is
 * over. */
static void test_survived(void)
{
    const gckpt_hyper hyper = { .lr = 0.02f };
    char text[512] = "";
    uint64_t want = 0;
    for (int way = 0; way < 3; way++) {
        net2 m = net2_make(NULL, gpu[0], 2, GCKPT_FP32, 0, 0);
        cuda_shim.refuse_launch = way == 1 ? 4 : 0;
        for (int again = 0; again < 2 && way == 1; again++) {
            CHECK(gckpt_step(m.e, m.feeds, 3, N, &hyper, NULL) == GCKPT_E_BACKEND);
            CHECK_MSG(strstr(gckpt_error_text(m.e), "_kernel: too many resources"), "%s",
                      gckpt_error_text(m.e));
            CHECK(!again || !strcmp(text, gckpt_error_text(m.e)));
            snprintf(text, sizeof text, "%s", gckpt_error_text(m.e));
        }
        if (way == 0)
            want = net2_step(&m, 0, N, 0, 0);
        else if (way == 2)
            CHECK(net2_step(&m, 0, N, 0, 0) == want);
        net2_free(&m, 0);
    }
}

/* gckpt_cuda_memory returns the bytes that can be allocated. The first block also pins memory for copies. */
static void test_memory(void)
{
    const unsigned long all = cuda_shim.device_bytes;
    size_t left = 0, after = 0, total = 0;
    CHECK(gckpt_cuda_memory(99, &left, &total) && !left && !total);
    CHECK(!gckpt_cuda_memory(1, &left, &total) && total == all);
    cuda_shim.device_bytes = total - left + (1 << 20);
    CHECK(!gckpt_cuda_memory(1, &left, &total) && left == 1 << 20 &&
          total == cuda_shim.device_bytes);
    cuda_shim.fail_pinned = cuda_shim.fail_always = 1;
    CHECK(!gpu[1]->allocate(gpu[1]->context, left, 64));
    cuda_shim.fail_pinned = cuda_shim.fail_always = 0;
    void *block = gpu[1]->allocate(gpu[1]->context, left, 64);
    CHECK(block && !gckpt_cuda_memory(1, &after, &total) && after == 0);
    CHECK(!gpu[1]->allocate(gpu[1]->context, 1, 64) &&
          strstr(gpu[1]->memory_hint(gpu[1]->context), "smaller budget"));
    gpu[1]->release(gpu[1]->context, block, left);
    cuda_shim.device_bytes = all;
}

/* An allocation takes the memory of captures if there is no other. They are made again. */
static void test_capture_memory(void)
{
    const unsigned long all = cuda_shim.device_bytes;
    size_t left = 0, total = 0;
    net2 m = net2_make(NULL, &watched, 2, GCKPT_FP32, 0, 0);
    for (int step = 0; step < 3; step++)
        net2_step(&m, step, N, 0, 0);
    CHECK(cuda_shim.live_graphs > 0 && !gckpt_cuda_memory(0, &left, &total));
    cuda_shim.device_bytes = total - left;
    void *block = gpu[0]->allocate(gpu[0]->context, cuda_shim.graph_bytes, 64);
    CHECK(block && cuda_shim.live_graphs == 0);
    gpu[0]->release(gpu[0]->context, block, cuda_shim.graph_bytes);
    cuda_shim.device_bytes = all;
    repeated = 0;
    for (int step = 3; step < 6; step++)
        net2_step(&m, step, N, 0, 0);
    CHECK(repeated > 0); /* captured again */
    net2_free(&m, 0);
}
#endif

/* ---- values offloaded to pinned memory while kernels run, also in captured micro-batches ---- */
static long moved;
static void watched_move(void *context, void *to, const void *from, size_t bytes, int out)
{
    moved++;
    gpu[0]->copy_async(context, to, from, bytes, out);
}

/* Trains with a plan that offloads nothing (if `offloads` is 0), values (1), or values by copies that overlap kernels
 * (2). Returns a hash of the weights. */
static uint64_t offload_run(const gckpt_backend *b, int64_t rows, int offloads)
{
    const gckpt_init init = { 0.2f, 0, 0 };
    gckpt_store_desc seed = { .seed = 3 };
    gckpt_store *s = gckpt_store_new(&seed);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(rows, 4, 8)), *h = x;
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape3(rows, 4, 8));
    for (int i = 0; i < 6; i++) {
        char name[2][8] = { { 'u', (char)('a' + i) }, { 'v', (char)('a' + i) } };
        gckpt_tensor *a =
            gckpt_linear(gckpt_layernorm(h, NULL, NULL, 0), gckpt_param(g, name[0], gckpt_shape2(8, 16), init), NULL);
        a = gckpt_linear(gckpt_gelu(a), gckpt_param(g, name[1], gckpt_shape2(16, 8), init), NULL);
        h = gckpt_add(h, a);
    }
    gckpt_term term = { gckpt_mean_squared_error(h, y, NULL), 1, 0 };
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .batch = 4, .backend = b };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    if (offloads) {
        size_t most = gckpt_plan_bytes(p);
        d.mode = GCKPT_OPTIMAL;
        d.budget = 1;
        CHECK(!gckpt_plan_new(g, &term, 1, &d) && gckpt_error(g) == GCKPT_E_BUDGET);
        d.budget = util_least_budget(g) + (most - util_least_budget(g)) / 8;
        d.offload.bytes = 1 << 20;
        d.offload.cost = 1 << (offloads == 2 ? 26 : 20);
        d.offload.overlap = offloads == 2;
        gckpt_plan_free(p);
        p = gckpt_plan_new(g, &term, 1, &d);
        CHECK_MSG(p && gckpt_plan_describe(p).offloaded > 0, "%s", gckpt_error_text(g));
        CHECK((gckpt_plan_describe(p).hidden_cost > 0) == (offloads == 2));
    }
    const gckpt_exec_desc how = { .backend = b };
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(s));
    static float x_data[4 * 32], y_data[4 * 32];
    gckpt_feed feeds[2] = { { gckpt_id(x), x_data }, { gckpt_id(y), y_data } };
    const gckpt_hyper hyper = { .lr = 0.01f };
    for (int step = 0; step < 4 && e; step++) {
        for (int i = 0; i < 4 * 32; i++)
            x_data[i] = (float)((i * 7 + step) % 13 - 6) / 5, y_data[i] = (float)(i % 3);
        CHECK_MSG(gckpt_step(e, feeds, 2, 4, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    }
    uint64_t hash = gckpt_store_hash(s);
    util_free(e, p, g, s);
    return hash;
}

static void test_offloads(void)
{
    uint64_t want = offload_run(NULL, 4, 0);
    for (int64_t rows = 1, way = 1; rows <= 4; rows += way == 2, way = 3 - way) {
        moved = repeated = 0;
        CHECK_MSG(offload_run(&watched, rows, (int)way) == want, "offloads, rows %d: other bits", (int)rows);
        CHECK_MSG(moved > 0 && repeated > 0, "rows %d: %ld moves, %ld repeated", (int)rows, moved, repeated);
#ifdef GCKPT_CUDA_SHIM
        CHECK(cuda_shim.live_graphs == 0 && tested_blocks(0) == 0);
#endif
    }
}

/* A copy of any size must be complete, even if it is larger than all staging buffers together (in tests, a buffer has
 * 4096 bytes). */
static void test_copies(void)
{
    static const size_t sizes[] = { 0, 1, 3, 4095, 4096, 4097, 1 << 19, (1 << 20) + 5 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        unsigned char *host = (unsigned char *)malloc(2 * n + 1);
        unsigned char *a = (unsigned char *)gpu[0]->allocate(gpu[0]->context, n + 1, 64),
                      *b = (unsigned char *)gpu[0]->allocate(gpu[0]->context, n, 64);
        CHECK(host && a && b && (uintptr_t)a % 64 == 0);
        for (size_t k = 0; k < n; k++)
            host[k] = (unsigned char)(k * 167 >> 8 ^ k);
        gpu[0]->copy_in(gpu[0]->context, a + 1, host, n); /* the source may change when copy_in has returned */
        memset(host, 0x77, n);
        gpu[0]->copy(gpu[0]->context, b, a + 1, n);
        gpu[0]->copy_out(gpu[0]->context, host + n, b, n);
        size_t same = 0;
        while (same < n && host[n + same] == (unsigned char)(same * 167 >> 8 ^ same))
            same++;
        CHECK_MSG(same == n, "of %zu bytes %zu are as they were", n, same);
        gpu[0]->release(gpu[0]->context, a, n + 1);
        gpu[0]->release(gpu[0]->context, b, n);
        free(host);
    }
    CHECK(gpu[0]->finish(gpu[0]->context) == NULL);
}

/* Tests dequantising for every storage, with any alignment. */
static void test_unpack(void)
{
    enum { MOST = 203, PLACES = 256 };
    static uint16_t quantised[MOST];
    static float want[PLACES], got[PLACES];
    const gckpt_backend *b = gpu[0];
    gckpt_call call = { .backend = b->context, .threads = 1 };
    unsigned char *packed = (unsigned char *)b->allocate(b->context, sizeof quantised + 16, 64);
    float *to = (float *)b->allocate(b->context, PLACES * sizeof *to, 64);
    unsigned char *bytes = (unsigned char *)quantised; /* blocks too, also at odd addresses; scales are not NaN */
    for (int storage = GCKPT_STORAGE_BF16; storage <= GCKPT_STORAGE_I4; storage++)
        for (int shift = 0; shift < 15; shift++) {
            const int each = storage == GCKPT_STORAGE_I8 ? 34 : storage == GCKPT_STORAGE_I4 ? 19 : 2;
            const int row = each == 34 ? 31 + shift : 32, n = each > 2 ? row * (1 + shift / 3) : MOST - shift; /* short blocks */
            const size_t size = (size_t)gckpti_storage_bytes(storage, row, n);
            const size_t at = (size_t)(each > 2 ? shift : 2 * (shift % 3));
            for (int i = 0; i < MOST; i++)
                quantised[i] = (uint16_t)(i * 40503 + 77);
            for (int i = 0; i < n && each > 2; i += gckpti_min(32, row - i % row))
                bytes[gckpti_storage_bytes(storage, row, i) + 1] &= 0xbf;
            gckpt_dequantisation u = { (gckpt_storage)storage, quantised, n, row, want };
            gckpti_decompress(&u, 0, u.n, want);
            u.quantised = packed + at;
            u.to = to + shift % 2;
            b->copy_in(b->context, packed + at, quantised, size);
            b->dequantise(&call, &u);
            b->copy_out(b->context, got, u.to, (size_t)u.n * sizeof *got);
            CHECK_MSG(!memcmp(got, want, (size_t)u.n * sizeof *got), "storage %d, shifted by %d", storage, shift);
        }
    b->release(b->context, packed, sizeof quantised + 16);
    b->release(b->context, to, PLACES * sizeof *to);
}

/* ---- several host threads, each with its own store, on one device or two ---- */
typedef struct {
    const gckpt_backend *backend;
    int64_t rows;
    uint64_t hash;
} trainer;

static void *train_there(void *user)
{
    trainer *t = (trainer *)user;
    static const float x[N * IN] = { 0.5f, -1, 0.25f }, y[N * OUT] = { 1 };
    static const int32_t targets[N] = { 1, 2, -1, 4 };
    net2 m = net2_make(NULL, t->backend, t->rows, GCKPT_BF16, 0, 0);
    const gckpt_hyper hyper = { .lr = 0.02f, .clip = 0.5f };
    m.feeds[0].data = x, m.feeds[1].data = targets, m.feeds[2].data = y;
    for (int step = 0; step < 6; step++)
        CHECK(gckpt_step(m.e, m.feeds, 3, N, &hyper, NULL) == GCKPT_OK);
    t->hash = gckpt_store_hash(m.s);
    net2_free(&m, 0);
    return NULL;
}

typedef struct {
    const gckpt_backend *backend;
    float *to;
} place;

static void *put_one(void *user)
{
    const place *p = (const place *)user;
    const float one = 1;
    p->backend->copy_in(p->backend->context, p->to, &one, sizeof one);
    return NULL;
}

/* While one thread has directed its calls to the communication queue, calls of other threads must not go to that queue,
 * where they would run too late. */
static void test_host_queues(void)
{
    const gckpt_backend *b = gpu[0];
    const place p = { b, (float *)b->allocate(b->context, sizeof(float), 0) };
    float is = 0;
    pthread_t thread;
#ifdef GCKPT_CUDA_SHIM
    const cuda_shim_settings now = cuda_shim;
    cuda_shim.lazy = 1, cuda_shim.schedule = CUDA_SHIM_REVERSE;
#endif
    b->copy_in(b->context, p.to, &is, sizeof is);
    b->use_comm_queue(b->context, 1);
    CHECK(pthread_create(&thread, NULL, put_one, (void *)(uintptr_t)&p) == 0 && pthread_join(thread, NULL) == 0);
    b->use_comm_queue(b->context, 0);
    b->copy_out(b->context, &is, p.to, sizeof is);
    CHECK_MSG(is == 1, "%g came out", (double)is);
    b->release(b->context, p.to, sizeof is);
#ifdef GCKPT_CUDA_SHIM
    cuda_shim.lazy = now.lazy, cuda_shim.schedule = now.schedule;
#endif
}

static void test_host_threads(void)
{
    trainer want = { NULL, 2, 0 };
    train_there(&want);
    for (int way = 0; way < 4; way++) {
        trainer t[3] = { { gpu[0], 2, 0 }, { gpu[way % 2], 3, 0 }, { gpu[0], 1, 0 } };
        pthread_t thread[3];
        for (int i = 0; i < 3; i++)
            CHECK(pthread_create(&thread[i], NULL, train_there, &t[i]) == 0);
        for (int i = 0; i < 3; i++) {
            CHECK(pthread_join(thread[i], NULL) == 0);
            CHECK_MSG(t[i].hash == want.hash, "way %d, thread %d: other bits", way, i);
        }
    }
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    unsigned count = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 4;
    gpu[0] = gckpt_cuda_backend(0, &why);
    if (!gpu[0]) {
        printf("%s\n", why);
        return 1;
    }
    CHECK(why[0] == 0 && gpu[0] == gckpt_cuda_backend(0, NULL));
    CHECK(!gckpt_cuda_backend(-1, &why) && strstr(why, "numbered from 0"));
    CHECK(!gckpt_cuda_backend(99, NULL));
#ifdef GCKPT_CUDA_SHIM
    test_program_error();
    test_open();
    test_warning();
#endif
    gpu[1] = gckpt_cuda_backend(1, &why);
    gpu[1] = gpu[1] ? gpu[1] : gpu[0];
#ifdef GCKPT_CUDA_SHIM
    CHECK(gpu[1] != gpu[0]);
    test_memory();
    allocations_at_start = cuda_shim.live_device;
#endif
    static gckpt_backend lacks[2];
    for (int i = 0; i < 2; i++) {
        lacks[i] = *gpu[i];
        lacks[i].find = find_except;
#ifndef GCKPT_CUDA_SHIM
        lacks[i].allocate = counted_get;
        lacks[i].release = counted_release;
#endif
        tested[i] = &lacks[i];
    }
    watched = *tested[0];
    watched.replay = watched_repeat;
    watched.captured = watched_recorded;
    watched.update = watched_update;
    watched.find = watched_find;
    watched.copy_async = watched_move;
    test_copies();
    test_unpack();
    test_repeats();
    test_inference();
    test_offloads();
#ifdef GCKPT_CUDA_SHIM
    test_no_waits();
    test_capture_memory();
    test_survived();
    test_device_out_of_memory();
    test_broken();
#endif
    test_host_queues();
    test_host_threads();
    test_tested(first, count);
    return check_report("cuda");
}
