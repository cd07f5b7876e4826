/* test_faults.c - injects faults outside the library, one at a time; each fault must end in an error or do no harm.
 *
 * The faults:
 * - an allocation fails, or all allocations from then on;
 * - a system call on a file fails (EIO, ENOSPC, EINTR, EMFILE), or transfers half of the bytes, none, or all except
 *   one;
 * - a function of a backend fails or, if it returns no result, does nothing or does its work twice;
 * - a callback returns an invalid value;
 * - the clock stops, jumps, goes back or returns no number.
 *
 * Each kind of fault hits the calls of a program in turn (short runs leave some calls out). The program builds store,
 * graph, plan and executor, trains, saves and loads.
 *
 * After each fault there is an error with its text (or, for a harmless fault, the same bits), nothing leaks, no
 * file is left open, and the file on disk is the old or the new one. The library trusts a backend's arithmetic and
 * the names that `rename` returns: these faults may give other bits, and are counted. Then the same program without
 * the fault must give the same bits as before. tests/dist/test_ranks_faults.c tests failing exchanges between
 * ranks. Prints the number of faults of each kind. */
#if !defined(__unix__) && !defined(__APPLE__)
int main(void) { return 0; }
#else
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#define GCKPTI_NO_HOOKS /* this file defines the hooks itself, as macros over the system's functions */
#include "num/num.h"
#include "store/store.h"
#include "files/files.h"
#include "base/test_hooks.h"
#include "backend.h"
#include "util.h"

/* ---- the fault ---- */
typedef enum {
    NONE,
    ALLOCATION,
    ALLOCATIONS,
    FILE_CALL,
    WRITE_FN,
    READ_FN,
    OP_SHAPE,
    OP_CLASSES,
    BUILD,
    MEASURE,
    COSTS,
    PROGRESS,
    OFFLOAD,
    RELOAD,
    WAIT,
    RENAME,
    BACKEND_GET,
    BACKEND_WORKSPACE,
    BACKEND_FIND,
    BACKEND_FINISH,
    BACKEND_HOST,
    BACKEND_VOID
} kind;
/* the kind of fault for which the program is set up, also in runs without an injected fault */
static kind setup;
static struct {
    kind kind;
    long at, calls; /* at: number of the faulty call, from 1; calls: calls so far */
    int how, injected;
    int fatal; /* nonzero if later calls cannot make up for the failed one, so that the program must report an error */
} fault;

static int is_faulty(kind k)
{
    if (fault.kind != k)
        return 0;
    const int now = ++fault.calls == fault.at || (k == BACKEND_FINISH && fault.calls > fault.at);
    fault.injected |= now;
    return now;
}

/* ---- calls that faults hit ---- */
static const int errors[] = { EIO, ENOSPC, EINTR, EMFILE, EAGAIN, EINTR };
/* Returns how many of n bytes the faulty call transfers. */
static size_t part_of(size_t n) { return fault.how < 4 ? n / 2 : fault.how == 4 || !n ? 0 : n - 1; }
static int io_fails(void)
{
    const int now = is_faulty(FILE_CALL);
    errno = now ? errors[fault.how] : errno;
    return now;
}
static int io_fails_fatally(void)
{
    const int now = io_fails();
    fault.fatal |= now;
    return now;
}
static FILE *test_fopen(const char *path, const char *mode)
{
    return io_fails() ? NULL : fopen(path, mode);
}
static FILE *test_fdopen(int fd, const char *mode) { return io_fails() ? NULL : fdopen(fd, mode); }
static size_t test_fread(void *to, size_t size, size_t n, FILE *f)
{
    return fread(to, size, io_fails() ? part_of(n) : n, f);
}
static size_t test_fwrite(const void *from, size_t size, size_t n, FILE *f)
{
    return fwrite(from, size, io_fails_fatally() ? part_of(n) : n, f);
}
static int test_fflush(FILE *f) { return io_fails_fatally() ? EOF : fflush(f); }
static int test_fseek(FILE *f, long at, int whence) { return io_fails() ? -1 : fseek(f, at, whence); }
static int test_fclose(FILE *f)
{
    const int failed = io_fails(), error = errno, closed = fclose(f);
    errno = failed ? error : errno;
    return failed || closed ? EOF : 0;
}
/* replaces fsync, which need not do anything, since this file tests no power cuts */
static int test_fsync(int fd) { return io_fails_fatally() ? -1 : fd < 0; }
static int test_rename(const char *from, const char *to)
{
    return io_fails_fatally() ? -1 : rename(from, to);
}
static int test_remove(const char *path) { return io_fails() ? -1 : remove(path); }
static int test_open(const char *path, int flags, unsigned mode)
{
    return io_fails() ? -1 : open(path, flags, mode);
}
static int test_stat(const char *path, struct stat *s) { return io_fails() ? -1 : stat(path, s); }
static int test_fstat(int fd, struct stat *s) { return io_fails() ? -1 : fstat(fd, s); }
static int (*system_flock)(int fd, int how);
static int test_flock(int fd, int how) { return io_fails() ? -1 : system_flock(fd, how); }

static int test_close(int fd)
{
    const int failed = io_fails(), error = errno, closed = close(fd);
    errno = failed ? error : errno;
    return failed || closed ? -1 : 0;
}

static void watch(void)
{
    gckpti_test_hooks here = gckpti_hooks;
    here.fopen = test_fopen;
    here.fdopen = test_fdopen;
    here.fread = test_fread;
    here.fwrite = test_fwrite;
    here.fflush = test_fflush;
    here.fseek = test_fseek;
    here.fclose = test_fclose;
    here.fsync = test_fsync;
    here.rename = test_rename;
    here.remove = test_remove;
    here.open = test_open;
    here.stat = test_stat;
    here.fstat = test_fstat;
    system_flock = here.flock;
    here.flock = test_flock;
    here.close = test_close;
    gckpti_hooks = here;
}

/* Returns a wrong count of transferred bytes for n bytes: one less, none, one more, or far more. */
static size_t odd_count(size_t n)
{
    const size_t odd[] = { n - 1, 0, n + 1, SIZE_MAX };
    return odd[fault.how];
}
static size_t odd_write(void *user, const void *bytes, size_t n)
{
    const size_t done = file_write(user, bytes, n);
    return is_faulty(WRITE_FN) ? odd_count(done) : done;
}
static size_t odd_read(void *user, void *bytes, size_t n)
{
    const size_t done = file_read(user, bytes, n);
    return is_faulty(READ_FN) ? odd_count(done) : done;
}

/* y = 2 x, as a user's op. */
static gckpt_result twice_shape(gckpt_call *call)
{
    static const gckpt_result results[] = { GCKPT_E_ARG, GCKPT_E_DATA, GCKPT_RESULT_COUNT,
                                            (gckpt_result)77 };
    call->shape = call->in[0].shape;
    if (!is_faulty(OP_SHAPE))
        return GCKPT_OK;
    if (fault.how < 4)
        return results[fault.how];
    if (fault.how == 4)
        call->shape.n = -1;
    else if (fault.how == 5)
        call->shape.n = GCKPT_MAX_DIMS + 1;
    else if (fault.how == 6)
        call->shape.d[call->shape.n - 1] = -3;
    else if (fault.how == 7)
        call->shape.d[call->shape.n - 1] = INT64_MAX;
    else
        call->saved_bytes = call->workspace_forward = call->workspace_backward = SIZE_MAX;
    return GCKPT_OK;
}
static void twice_forward(const gckpt_call *call)
{
    for (int64_t i = 0; call->out && i < count_of(&call->shape); i++)
        call->out[i] = 2 * call->in[0].data[i];
}
static void twice_backward(const gckpt_call *call)
{
    for (int64_t i = 0; i < count_of(&call->shape); i++)
        call->in[0].grad[i] =
            (call->in[0].accumulate ? call->in[0].grad[i] : 0) + 2 * call->grad_out[i];
}
static const gckpt_op twice = {
    .name = "twice", .shape = twice_shape, .forward = twice_forward, .backward = twice_backward
};

/* User-defined op y = x with a further index input, which the kernel does not read. */
static gckpt_result indexed_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static void indexed_forward(const gckpt_call *call)
{
    for (int64_t i = 0; call->out && i < count_of(&call->shape); i++)
        call->out[i] = call->in[0].data[i];
}
static void indexed_backward(const gckpt_call *call)
{
    for (int64_t i = 0; i < count_of(&call->shape); i++)
        call->in[0].grad[i] = (call->in[0].accumulate ? call->in[0].grad[i] : 0) + call->grad_out[i];
}
static int64_t indexed_classes(const gckpt_call *call, int i)
{
    static const int64_t odd[] = { 0, -1, INT64_MIN, INT64_MAX, 1 };
    (void)call, (void)i;
    return is_faulty(OP_CLASSES) ? odd[fault.how] : 5;
}
static const gckpt_op indexed = { .name = "beside",
                                 .shape = indexed_shape,
                                 .forward = indexed_forward,
                                 .backward = indexed_backward,
                                 .classes = indexed_classes,
                                 .flags = GCKPT_INDEX(1) };

/* A gckpt_file_desc.rename: returns "in a file NAME" for parameter NAME. */
static const char *renamed(void *user, const char *name)
{
    static char text[5001];
    static const char before[] = "in a file ";
    const int writing = *(const int *)user;
    const size_t n = strlen(before);
    memset(text, 'x', 5000);
    text[5000] = 0;
    if (is_faulty(RENAME)) {
        const char *odd[] = { NULL, "", "w0", text, "\"\n\\\x01\xff" };
        return odd[fault.how];
    }
    if (!writing)
        return !strncmp(name, before, n) ? name + n : name;
    snprintf(text, sizeof text, "%s%s", before, name);
    return text;
}

static int progress(void *user, const gckpt_progress *p)
{
    static const int odd[] = { 1, -1, 2, INT_MIN };
    (void)user, (void)p;
    return is_faulty(PROGRESS) ? odd[fault.how] : 0;
}

static unsigned char host_memory[1 << 16];
static size_t offload(void *user, size_t at, const void *from, size_t n)
{
    (void)user;
    memcpy(host_memory + at, from, n);
    return is_faulty(OFFLOAD) ? odd_count(n) : n;
}
static size_t reload(void *user, size_t at, void *to, size_t n)
{
    (void)user;
    memcpy(to, host_memory + at, n);
    return is_faulty(RELOAD) ? odd_count(n) : n;
}

static int wait_for(void *user, int later)
{
    static const int odd[] = { 1, -1, INT_MIN, INT_MAX };
    (void)user, (void)later;
    return is_faulty(WAIT) ? odd[fault.how] : 0;
}

static void *odd_get(void *context, size_t bytes, size_t alignment)
{
    return is_faulty(BACKEND_GET) ? NULL : device_get(context, bytes, alignment);
}
static gckpt_result odd_workspace(void *context, const gckpt_op *op, gckpt_call *call)
{
    static const gckpt_result results[] = { GCKPT_E_ARG, GCKPT_E_MEMORY, GCKPT_RESULT_COUNT,
                                            (gckpt_result)77 };
    return is_faulty(BACKEND_WORKSPACE) ? results[fault.how] : device_workspace(context, op, call);
}
/* The backend's `find`. The fault: of the different kernels that are requested, the backend lacks number fault.at. */
static gckpt_kernel odd_find(void *context, const gckpt_op *op, gckpt_kind k)
{
    static struct {
        const gckpt_op *op;
        gckpt_kind k;
    } asked[32];
    static int count;
    int i = 0;
    while (i < count && (asked[i].op != op || asked[i].k != k))
        i++;
    if (i == count && count < 32)
        asked[count].op = op, asked[count++].k = k;
    if (fault.kind != BACKEND_FIND || i + 1 != fault.at)
        return device_find(context, op, k);
    fault.injected = 1;
    return NULL;
}
static const char *odd_finish(void *context)
{
    const char *problem = device_finish(context);
    return is_faulty(BACKEND_FINISH) ? "it burns" : problem;
}

static void *odd_host_get(void *context, size_t bytes)
{
    (void)context;
    return is_faulty(BACKEND_HOST) ? NULL : malloc(bytes);
}
static void odd_host_release(void *context, void *memory, size_t bytes)
{
    (void)context, (void)bytes;
    free(memory);
}
static void device_move(void *context, void *to, const void *from, size_t bytes, int out)
{
    (void)out;
    device_copy(context, to, from, bytes);
}
static void odd_join(void *context, int later) { (void)context, (void)later; }

/* Defines the backend's functions without a result: the faulty call does nothing, or does its work twice. */
#define ODD(name, parameters, ...)                                                                                     \
    static void odd_##name parameters                                                                                  \
    {                                                                                                                  \
        const int now = is_faulty(BACKEND_VOID);                                                                       \
        for (int i = 0; i < (now ? 2 * fault.how : 1); i++)                                                            \
            device_##name(__VA_ARGS__);                                                                                \
    }
ODD(copy_in, (void *c, void *to, const void *from, size_t n), c, to, from, n)
ODD(copy_out, (void *c, void *to, const void *from, size_t n), c, to, from, n)
ODD(copy, (void *c, void *to, const void *from, size_t n), c, to, from, n)
ODD(move, (void *c, void *to, const void *from, size_t n, int out), c, to, from, n, out)
ODD(fill, (const gckpt_call *c, void *to, uint32_t word, int64_t n), c, to, word, n)
ODD(add, (const gckpt_call *c, float *to, const float *from, int64_t n), c, to, from, n)
ODD(convert, (const gckpt_call *c, const gckpt_conversion *conversion), c, conversion)
ODD(update, (const gckpt_call *c, const gckpt_update_pass *pass), c, pass)

/* ---- the program that faults hit ---- */
enum { ROWS = 4, WIDE = 12, LAYERS = 4, STEPS = 2 };
static const char path[] = "test_faults.safetensors";
static heap mem;
static float x[ROWS * WIDE], y[ROWS * WIDE];
static char error_text[600]; /* text of the first error */
static size_t budget[2]; /* budgets at which plans offload, on the processor and on a backend */
static gckpt_backend odd_backend;

static int index_id; /* id of the index input, which the graph has only if setup is OP_CLASSES */
static int build(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    static const int odd[] = { INT_MIN, 0, FIT_MAX_TERMS + 1, INT_MAX, 1, 1 };
    const gckpt_init init = { 0.3f, 0, 0 };
    (void)user;
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, WIDE)), *h = in;
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(rows, WIDE));
    for (int i = 0; i < LAYERS; i++) {
        const char name[] = { 'w', (char)('0' + i), 0 };
        gckpt_tensor *w = gckpt_param(g, name, gckpt_shape2(WIDE, WIDE), init);
        gckpt_tensor *z = gckpt_gelu(gckpt_linear(h, w, NULL));
        h = i == 1 ? gckpt_apply(&twice, &z, 1, NULL, 0) : z;
    }
    if (setup == OP_CLASSES) {
        gckpt_tensor *two[] = { h, gckpt_input(g, "index", GCKPT_I32, gckpt_shape1(rows)) };
        index_id = gckpt_id(two[1]);
        h = gckpt_apply(&indexed, two, 2, NULL, 0);
    }
    terms[0].loss = gckpt_mean_squared_error(h, target, NULL);
    terms[0].weight = 1;
    terms[0].regulariser = 0;
    if (!is_faulty(BUILD))
        return 1;
    if (fault.how >= 4)
        terms[0].loss = fault.how == 4 ? NULL : in;
    return odd[fault.how];
}

static gckpt_result measure(gckpt_graph *g, const gckpt_term *terms, int count, gckpt_cost *costs,
                            int n, void *user)
{
    static const gckpt_result results[] = { GCKPT_E_ARG, GCKPT_E_BACKEND, GCKPT_RESULT_COUNT,
                                            (gckpt_result)77 };
    (void)g, (void)terms, (void)count, (void)user;
    for (int i = 0; i < n; i++)
        costs[i].forward = costs[i].backward = 1000;
    if (is_faulty(COSTS))
        for (int i = 0; i < n; i++)
            costs[i].forward = costs[i].backward = fault.how ? UINT64_MAX : 0;
    return is_faulty(MEASURE) ? results[fault.how] : GCKPT_OK;
}

static int bad(const void *object, gckpt_result result)
{
    if (result == GCKPT_OK || *error_text)
        return result != GCKPT_OK;
    snprintf(error_text, sizeof error_text, "%s", gckpt_error_text(object));
    if (result == GCKPT_CANCELLED && !*error_text)
        strcpy(error_text, "cancelled");
    return 1;
}

/* Runs the program into which faults are injected. Returns the hash of the store at the end; if a call failed, copies
 * its error text to error_text and returns 0. */
static uint64_t lifecycle(const gckpt_backend *backend, int fitted)
{
    const gckpt_store_desc in = { .memory = heap_memory(&mem), .seed = 4 };
    gckpt_plan_desc pd = { .memory = heap_memory(&mem), .backend = backend, .batch = ROWS };
    gckpt_exec_desc ed = { .memory = heap_memory(&mem), .backend = backend, .progress = progress };
    const gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    gckpt_graph *g = NULL;
    gckpt_plan *p = NULL;
    gckpt_exec *e = NULL;
    gckpt_term term;
    file f = { 0 };
    uint64_t hash = 0, before = 0;
    int writing = 1;
    const gckpt_file_desc fd = { .rename = setup == RENAME ? renamed : NULL,
                                 .user = &writing };
    *error_text = 0;
    gckpt_store *s = gckpt_store_new(&in), *t = gckpt_store_new(&in);
    if (!s || !t)
        strcpy(error_text, "no store");
    int failed = !s || !t;
    if (!failed && fitted) {
        fit_error why;
        p = fit_plan(s, build, NULL, ROWS, &pd, measure, &why);
        failed = !p;
        if (failed)
            snprintf(error_text, sizeof error_text, "%s", why.text);
    } else if (!failed) {
        const gckpt_memory memory = heap_memory(&mem);
        g = gckpt_graph_new(s, &memory);
        const int built = g ? build(g, 1, &term, NULL) : 0;
        pd.mode = GCKPT_MEMORY_POOR;
        if (!backend || setup >= BACKEND_HOST) {
            pd.mode = GCKPT_AUTO;
            pd.budget = budget[backend != NULL];
            pd.offload.bytes = sizeof host_memory;
            pd.offload.cost = 1;
            ed.offload = backend ? NULL : offload, ed.reload = backend ? NULL : reload;
            ed.wait = setup == WAIT ? wait_for : NULL;
        }
        p = built ? gckpt_plan_new(g, &term, 1, &pd) : NULL;
        failed = !p && bad(g ? (void *)g : (void *)s, gckpt_error(g ? (void *)g : (void *)s));
    }
    e = failed || !p ? NULL : gckpt_exec_new(p, s, &ed);
    failed = failed || (!e && bad(s, gckpt_error(s)));
    for (int i = 0; i < STEPS && e && !failed; i++) {
        static const int32_t index[ROWS];
        const gckpt_feed feeds[] = { { 0, x }, { 1, y }, { index_id, index } };
        before = gckpt_store_hash(s);
        failed = bad(e, gckpt_step(e, feeds, setup == OP_CLASSES ? 3 : 2, ROWS, &hyper, NULL));
        /* A failed step must change no values. Exceptions: faults of the backend's `finish`, which are reported late,
         * and of the kinds after BACKEND_FINISH, which hit functions whose work the library trusts. */
        if (fault.kind < BACKEND_FINISH)
            CHECK_MSG(!failed || gckpt_store_hash(s) == before,
                      "fault %d, %ld, way %d: a failed step changed values: %s", fault.kind, fault.at,
                      fault.how, error_text);

    }
    failed = failed || !e || bad(s, gckpt_store_pull(s, "*"));
    before = failed ? 0 : gckpt_store_hash(s);
    const uint64_t empty = t ? gckpt_store_hash(t) : 0;
    failed = failed || bad(s, gckpt_store_write(s, odd_write, &f, &fd));
    writing = 0;
    if (!failed) {
        failed = bad(t, gckpt_store_read(t, odd_read, &f, f.size, &fd));
        CHECK(!failed || gckpt_store_hash(t) == empty);
    }
    failed = failed || bad(s, gckpt_store_save(s, path, NULL));
    failed = failed || bad(t, gckpt_store_load(t, path, NULL));
    if (before)
        CHECK(gckpt_store_hash(s) == before);
    if (!failed && fault.kind != RENAME) /* a faulty `rename` may omit tensors from the file */
        CHECK(gckpt_store_hash(t) == before);
    hash = failed ? 0 : before;
    util_free(e, p, g, s);
    gckpt_store_free(t);
    free(f.bytes);
    return hash;
}

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) != -1;
    return n;
}

static int leftovers(void) /* counts temporary files */
{
    int n = 0;
    DIR *d = opendir(".");
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += !strncmp(e->d_name, path, sizeof path - 1) && e->d_name[sizeof path - 1];
    if (d)
        closedir(d);
    return n;
}

/* Sets the budgets half way between the least bytes and those of store-all, so that plans with these budgets
 * offload. */
static void find_bytes(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_term term;
    gckpt_plan_desc d = { .batch = ROWS };
    CHECK(build(g, 1, &term, NULL) == 1);
    for (int i = 0; i < 4; i++) {
        d.mode = i % 2 ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL;
        d.backend = i / 2 ? &odd_backend : NULL;
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        CHECK(p != NULL);
        budget[i / 2] += gckpt_plan_bytes(p) / 2;
        gckpt_plan_free(p);
    }
    util_free(NULL, NULL, g, s);
}

/* ---- injection ---- */
static device faulty_device;

static long all;
/* Allowed outcomes of a fault. HARMLESS: the same bits, or an error; HARMS: an error; TRUSTED: an error or any bits. */
enum { HARMLESS, HARMS, TRUSTED };

/* Injects faults of kind k, one in a run, at every stride-th call in each of `ways` ways. Prints how many calls the
 * faults hit and with which outcomes. */
static void inject_all(kind k, const char *layer, const char *what, int ways, int harms)
{
    const long stride = check_iterations(9) > 1 ? 1 : 3;

    const gckpt_backend *backend = k >= BACKEND_GET ? &odd_backend : NULL;
    const int fitted = k == BUILD || k == MEASURE || k == COSTS, before = open_files();
    long injected = 0, refused = 0, points = 0, other = 0;
    uint64_t right = 0;
    setup = k;
    fault.kind = NONE;
    fault.calls = 0;
    mem.fail_at = mem.fail_from = 0;
    right = lifecycle(backend, fitted);
    CHECK_MSG(right, "%s", error_text);
    for (int how = 0; how < ways; how++)
        for (long at = 1, more = 1; more; at += stride) {
            fault.kind = k;
            fault.at = at, fault.calls = 0;
            fault.how = how, fault.injected = fault.fatal = 0;
            mem.calls = 0;
            mem.fail_at = k == ALLOCATION ? at : 0;
            mem.fail_from = k == ALLOCATIONS ? at : 0;
            const uint64_t hash = lifecycle(backend, fitted);
            more = k <= ALLOCATIONS ? mem.calls >= at : fault.injected;
            mem.fail_at = mem.fail_from = 0;
            fault.kind = NONE;
            other += hash && hash != right;
            CHECK_MSG(hash ? hash == right || harms == TRUSTED : *error_text != 0, "%s, %s %ld, way %d: %s", layer,
                      what, at, how, hash ? "other bits" : "no text");
            CHECK_MSG(!more || !(harms == HARMS || fault.fatal) || !hash, "%s, %s %ld, way %d: not seen",
                      layer, what, at, how);
            CHECK_MSG(mem.live == 0 && mem.blocks == 0 && mem.wrong_sizes == 0 && faulty_device.live == 0,
                      "%s, %s %ld, way %d: %lu bytes, %ld of the backend", layer, what, at, how,
                      (unsigned long)mem.live, faulty_device.live);
            CHECK_MSG(open_files() == before, "%s, %s %ld, way %d: a file stays open", layer, what,
                      at, how);
            injected += more, refused += !hash;
            points += more && !how;
            CHECK(more || hash == right); /* if the fault was not reached, the run was without a fault */
            if (hash != right && (at % 7 == 0 || k == FILE_CALL)) {
                CHECK_MSG(lifecycle(backend, fitted) == right, "%s, %s %ld, way %d: then: %s", layer,
                          what, at, how, error_text);
                CHECK(leftovers() == 0);
            }
            if (at > 20000)
                more = CHECK(0);
        }
    char text[40] = "";
    if (other)
        snprintf(text, sizeof text, ", %6ld trusted", other);
    all += injected;
    CHECK(injected > 0);
    printf("%-6s %-34s %5ld points, %2d ways: %6ld faults, %6ld refused, %6ld harmless%s\n", layer,
           what, points, ways, injected, refused, injected - refused - other, text);
}

int main(void)
{
    for (int i = 0; i < ROWS * WIDE; i++) {
        x[i] = (float)(i % 7) / 4 - 1;
        y[i] = (float)(i % 5) / 4 - 0.5f;
    }
    watch();
    remove(path);
    if (!device_start(&faulty_device, &odd_backend, "odd", GCKPT_ISA_PLAIN)) {
        printf("test_faults: no pages without access here\n");
        return 0;
    }
    odd_backend.allocate = odd_get;
    odd_backend.workspace = odd_workspace;
    odd_backend.find = odd_find;
    odd_backend.finish = odd_finish;
    odd_backend.copy_in = odd_copy_in;
    odd_backend.copy_out = odd_copy_out;
    odd_backend.copy = odd_copy;
    odd_backend.fill = odd_fill;
    odd_backend.add = odd_add;
    odd_backend.convert = odd_convert;
    odd_backend.update = odd_update;
    odd_backend.host_get = odd_host_get;
    odd_backend.host_release = odd_host_release;
    odd_backend.copy_async = odd_move;
    odd_backend.wait_copies = odd_join;
    find_bytes();
    inject_all(ALLOCATION, "base", "allocation, once", 1, HARMS);
    inject_all(ALLOCATIONS, "base", "allocations from there on", 1, HARMS);
    inject_all(OP_SHAPE, "graph", "a user op's shape", 9, HARMLESS);
    inject_all(OP_CLASSES, "graph", "a user op's classes", 5, HARMLESS);
    inject_all(BUILD, "ask", "what build returns", 6, HARMLESS);
    inject_all(MEASURE, "ask", "what measure returns", 4, HARMS);
    inject_all(COSTS, "ask", "costs that measure gives", 2, HARMLESS);
    inject_all(PROGRESS, "run", "what progress returns", 4, HARMLESS);
    inject_all(OFFLOAD, "run", "bytes offloaded", 4, HARMLESS);
    inject_all(RELOAD, "run", "bytes reloaded", 4, HARMLESS);
    inject_all(WAIT, "run", "what wait returns", 4, HARMS);
    inject_all(BACKEND_GET, "run", "a backend's memory", 1, HARMS);
    inject_all(BACKEND_WORKSPACE, "run", "a backend's workspace", 4, HARMLESS);
    inject_all(BACKEND_FIND, "run", "a kernel that it lacks", 1, HARMLESS);
    inject_all(BACKEND_FINISH, "run", "a backend's finish, from there on", 1, HARMS);
    inject_all(BACKEND_HOST, "run", "a backend's memory of the host", 1, HARMS);
    inject_all(BACKEND_VOID, "run", "a backend's entry without result", 2, TRUSTED);
    inject_all(WRITE_FN, "files", "bytes that write says it wrote", 4, HARMS);
    inject_all(READ_FN, "files", "bytes that read says it read", 4, HARMLESS);
    inject_all(RENAME, "files", "what rename returns", 5, TRUSTED);
    inject_all(FILE_CALL, "files", "a call of the system", 6, HARMLESS);
    printf("%ld faults\n", all);
    device_end(&faulty_device);
    remove(path);
    return check_report("test_faults");
}
#endif
