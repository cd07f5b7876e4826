/* fuzz_backend.c - a backend written against the public API, of which any function may be missing or fail. The
 * backend has separate memory, which is poisoned except while one of its functions runs, or uses the host's memory.
 * Steps are taken at once, in pieces, row by row or profiled, with fetched or collected tensors.
 *
 * The rules: sanitizers report nothing, so that only the backend touches its memory. Plan, executor and step are
 * refused with an error text, or give the bits of a store-all plan on the processor with fast kernels. All memory of
 * the backend is released. */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#define PLAN_CHECK_OFF "plans of backends have no files"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_net.h"

enum { FEEDS = 24, BLOCKS = 64 };

static heap memory;
static long tried, planned, executors, ran, equal;

/* ---- the backend's memory: accessible only while one of its functions runs ---- */
static struct {
    struct {
        unsigned char *at;
        size_t size;
    } block[BLOCKS];
    int blocks, depth, host;
    long fail_get, fail_host, fail_finish, fail_workspace, moves;
    int failed;
} device;

static void opened(int open)
{
    device.depth += open ? 1 : -1;
    for (int i = 0; i < BLOCKS && device.depth == open; i++)
        if (device.block[i].at) {
            if (open)
                ASAN_UNPOISON_MEMORY_REGION(device.block[i].at, device.block[i].size);
            else
                ASAN_POISON_MEMORY_REGION(device.block[i].at, device.block[i].size);
        }
}
static int fails(long *count)
{
    const int now = *count > 0 && --*count == 0;
    device.failed |= now;
    return now;
}
static void on_device(const void *at, size_t size)
{
    for (int i = 0; i < BLOCKS; i++)
        if (device.block[i].at && (const unsigned char *)at >= device.block[i].at &&
            (const unsigned char *)at + size <= device.block[i].at + device.block[i].size)
            return;
    MUST(size == 0, "%p is not the backend's", at);
}

static void *get(void *context, size_t size, size_t alignment)
{
    int i = 0;
    MUST(context == &device, "context");
    MUST(alignment > 0 && (alignment & (alignment - 1)) == 0, "alignment %lu",
         (unsigned long)alignment);
    while (i < BLOCKS && device.block[i].at)
        i++;
    if (fails(&device.fail_get) || i == BLOCKS || size > 4 << 20)
        return NULL;
    void *at = NULL;
    alignment = alignment < sizeof(void *) ? sizeof(void *) : alignment;
    if (posix_memalign(&at, alignment, size ? size : 1) != 0)
        return NULL;
    memset(at, 0xee, size);
    device.block[i].at = (unsigned char *)at, device.block[i].size = size, device.blocks++;
    ASAN_POISON_MEMORY_REGION(at, size);
    return at;
}
static void give_back(void *context, void *at, size_t size)
{
    (void)context;
    for (int i = 0; i < BLOCKS; i++)
        if (device.block[i].at == at && at) {
            MUST(device.block[i].size == size, "%lu bytes given back as %lu",
                 (unsigned long)device.block[i].size, (unsigned long)size);
            ASAN_UNPOISON_MEMORY_REGION(at, size);
            device.block[i].at = NULL, device.blocks--;
            free(at);
            return;
        }
    MUST(0, "%p was not taken", at);
}
static void copy(void *context, void *to, const void *from, size_t size)
{
    (void)context;
    opened(1);
    memcpy(to, from, size);
    opened(0);
}
static void copy_in(void *context, void *to, const void *from, size_t size)
{
    on_device(to, size);
    copy(context, to, from, size);
}
static void copy_out(void *context, void *to, const void *from, size_t size)
{
    on_device(from, size);
    copy(context, to, from, size);
}
static const char *finish(void *context)
{
    (void)context;
    return fails(&device.fail_finish) ? "it burns" : NULL;
}
static gckpt_result workspace(void *context, const gckpt_op *op, gckpt_call *call)
{
    (void)context, (void)op;
    if (fails(&device.fail_workspace))
        return GCKPT_E_ARG;
    call->workspace_forward += 64, call->workspace_backward += 32;
    return GCKPT_OK;
}
static void fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    MUST(call->backend == &device, "context");
    opened(1);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)to + 4 * i, &word, 4);
    opened(0);
}
static void add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    (void)call;
    opened(1);
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
    opened(0);
}
static void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    (void)call;
    opened(1);
    for (int64_t i = 0; i < c->n; i++)
        switch (c->kind) {
        case GCKPT_WIDEN: c->x[i] = gckpt_from_bf16(c->from[i]); break;
        case GCKPT_WIDEN_ADD: c->x[i] = gckpt_from_bf16(c->from[i]) + c->x[i]; break;
        case GCKPT_NARROW: c->to[i] = gckpt_to_bf16(c->x[i]); break;
        default: c->x[i] = gckpt_from_bf16(gckpt_to_bf16(c->x[i]));
        }
    opened(0);
}
/* Updates one element by the formulas of num/formulas, written again from their documentation. */
static void update_one(const gckpt_update_pass *p, int64_t i, float g)
{
    const gckpt_update_constants *r = &p->rates;
    float *w = p->values + i, *m = p->state[0] ? p->state[0] + i : NULL,
          *v = p->state[1] ? p->state[1] + i : NULL;
    const float decayed = gckpt_fma(-r->decay, *w, *w), d = g * r->scale;
    if (p->optimiser == GCKPT_SGD) {
        *w = gckpt_fma(-r->rate, d, decayed);
    } else if (p->optimiser == GCKPT_MOMENTUM) {
        *m = gckpt_fma(p->momentum, *m, d);
        *w = gckpt_fma(-r->rate, *m, decayed);
    } else {
        *m = gckpt_fma(r->beta1, *m, r->rest1 * d);
        *v = gckpt_fma(r->beta2, *v, r->rest2 * (d * d));
        *w = gckpt_fma(-r->rate, *m / (sqrtf(*v * r->correct2) + r->eps), decayed);
    }
}
static void update(const gckpt_call *call, const gckpt_update_pass *p)
{
    opened(1);
    const int goes = p->update;
    for (int64_t at = 0; at < p->elements; at += GCKPT_UPDATE_BLOCK) {
        const int64_t n =
            p->elements - at < GCKPT_UPDATE_BLOCK ? p->elements - at : GCKPT_UPDATE_BLOCK;
        float *g = p->gradient + at;
        for (int k = 0; k < p->adds; k++)
            for (int64_t i = 0; i < n; i++)
                g[i] += ((const float *)(const void *)((const char *)p->base + p->more[k]))[at + i];
        for (int64_t i = 0; i < n && p->count > 0; i++)
            g[i] /= p->count;
        if (p->squares)
            p->squares[at / GCKPT_UPDATE_BLOCK] = gckpt_dot(call, g, g, n);
        for (int64_t i = 0; i < n && goes; i++)
            update_one(p, at + i, g[i]);
    }
    opened(0);
}
/* Runs a user-defined op by the functions of its descriptor. */
static void forward_here(const gckpt_call *call)
{
    opened(1);
    own_forward(call);
    opened(0);
}
static void backward_here(const gckpt_call *call)
{
    opened(1);
    own_backward(call);
    opened(0);
}
static gckpt_kernel find(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context;
    return op != &user_op ? NULL : kind == GCKPT_FORWARD ? forward_here : backward_here;
}
static gckpt_kernel find_none(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context, (void)op, (void)kind;
    return NULL;
}
static int repeat(void *context, const gckpt_step_params *moment)
{
    (void)context;
    MUST(moment->rows > 0 && moment->owner, "moment");
    return 0;
}
static int recorded(void *context)
{
    (void)context;
    return 1;
}
static void forget(void *context, const void *owner) { (void)context, (void)owner; }
static const char *shortage(void *context)
{
    (void)context;
    return "its memory is full";
}
static void *host_get(void *context, size_t size)
{
    (void)context;
    if (fails(&device.fail_host) || size > 4 << 20)
        return NULL;
    device.host++;
    return malloc(size ? size : 1);
}
static void host_release(void *context, void *at, size_t size)
{
    (void)context, (void)size;
    device.host--;
    free(at);
}
static void move(void *context, void *to, const void *from, size_t size, int out)
{
    on_device(out ? from : to, size);
    device.moves++;
    copy(context, to, from, size);
}
static void join(void *context, int later)
{
    (void)context;
    MUST(later >= 0, "join %d", later);
}

/* Returns the backend's table without the functions that the input leaves out. */
static gckpt_backend table(bytes *b)
{
    gckpt_backend t;
    const unsigned few = byte(b);
    const uint32_t left_out =
        few % 2 ? 0 : (uint32_t)byte(b) | (uint32_t)byte(b) << 8 | (uint32_t)byte(b) << 16;
    /* for one in four values of `few`, leaves out only optional functions (entries 16 to 23 below) */
    const uint32_t out = few % 4 == 2 ? left_out & 0xff0000u : left_out;
    memset(&t, 0, sizeof t);
    t.name = few & 4 ? "fuzz" : "other";
    t.context = &device;
    t.own_memory = few % 8 != 0;
#define ENTRY(bit, name, function) t.name = out >> (bit)&1 ? NULL : (function)
    ENTRY(0, allocate, get);
    ENTRY(1, release, give_back);
    ENTRY(2, copy_in, copy_in);
    ENTRY(3, copy_out, copy_out);
    ENTRY(4, copy, copy);
    ENTRY(5, find, find);
    ENTRY(6, fill, fill);
    ENTRY(7, add, add);
    ENTRY(8, convert, convert);
    ENTRY(9, update, update);
    ENTRY(10, finish, finish);
    ENTRY(16, workspace, workspace);
    ENTRY(18, memory_hint, shortage);
    ENTRY(19, discard_captures, forget);
    if (!(out >> 20 & 1)) /* both or neither */
        t.replay = repeat, t.captured = recorded;
    if (!(out >> 21 & 1)) /* all four or none */
        t.host_get = host_get, t.host_release = host_release, t.copy_async = move, t.wait_copies = join;
    ENTRY(23, find_fast, find_none);
#undef ENTRY
    if (!t.own_memory) { /* a backend that uses the host's memory needs no allocations and no copies */
        t.allocate = NULL, t.release = NULL;
        t.copy_in = t.copy_out = NULL;
        t.copy_async = NULL, t.host_get = NULL, t.host_release = NULL, t.wait_copies = NULL;
    }
    t.writes_back = t.update != NULL; /* update() stores the gradient after division by the count */
    return t;
}

static void begin(net_run *l, bytes b, int64_t rows)
{
    net_run_open(l, &memory);
    net_make(&l->net, l->g, b, rows);
}
static gckpt_result step(gckpt_exec *e, int way, const gckpt_feed *f, int n, int64_t rows,
                         int64_t of, const gckpt_hyper *h, gckpt_report *report, int updates)
{
    gckpt_result r;
    switch (way) {
    case 1: /* in pieces */
        r = gckpt_step_start(e, f, n, rows, h);
        for (r = r == GCKPT_OK ? GCKPT_MORE : r; r == GCKPT_MORE;)
            r = gckpt_run_some(e, 3, report);
        return r;
    case 2: /* adds the rows of the batch in parts of `of` rows */
        if (of == rows)
            return gckpt_step(e, f, n, rows, h, report);
        r = gckpt_step_begin(e, h);
        for (int64_t i = 0; i < rows && r == GCKPT_OK; i += of)
            r = gckpt_step_add(e, f, n, rows - i < of ? rows - i : of);
        return r == GCKPT_OK ? gckpt_step_end(e, report) : r;
    case 3:
        if (updates)
            return gckpt_step(e, f, n, rows, h, report);
        return gckpt_gradients(e, f, n, rows, report);
    default: return gckpt_step(e, f, n, rows, h, report);
    }
}
static void steps(net_run *l, const gckpt_exec_desc *d, const gckpt_feed *f, int n, int64_t rows,
                  const gckpt_hyper *h, int inference, int way, int updates)
{
    const gckpt_plan_info info = gckpt_plan_describe(l->p);
    l->e = gckpt_exec_new(l->p, l->s, d);
    for (int i = 0; i < 2 && l->e; i++) {
        memset(&l->report[i], 0, sizeof l->report[i]);
        l->result[i] = inference ? gckpt_forward(l->e, f, n, rows, &l->report[i])
                                 : step(l->e, i ? way : 0, f, n, rows, info.rows, h,
                                        &l->report[i], updates);
        MUST(l->result[i] < GCKPT_E_SHAPE ||
                 (gckpt_error(l->e) == l->result[i] && gckpt_error_text(l->e)[0]),
             "no text");
    }
    for (int i = 0; i < l->net.fetches && l->e && way & 1; i++) {
        static float to[NET_ROWS * NET_ELEMENTS];
        const int id = gckpt_id(l->net.fetch[i].tensor), gradient = l->net.fetch[i].gradient;
        volatile float first = 0;
        const float *at = gckpt_fetch(l->e, id, gradient);
        MUST(at || gckpt_error_text(l->e)[0], "no text");
        if (at) /* on the host */
            first = at[0];
        (void)first;
        gckpt_collect(l->e, id, gradient, to, NET_ROWS * NET_ELEMENTS);
        gckpt_gradients(l->e, f, n, rows, NULL);
        gckpt_collect(l->e, id, gradient, NULL, 0);
    }
}

static void try_one(bytes in)
{
    net_run a, c;
    in.odd = byte(&in) % 4 == 3;
    const bytes net = part(&in, byte(&in));
    const unsigned o = byte(&in), q = byte(&in), w = byte(&in);
    const int64_t rows = 1 + o % 3;
    gckpt_feed f[FEEDS];
    gckpt_plan_desc d;
    gckpt_exec_desc x;
    memset(&d, 0, sizeof d), memset(&x, 0, sizeof x);
    begin(&a, net, rows);
    tried++;
    d.memory = x.memory = net_heap(&memory);
    d.mode = w % 4 == 3 ? GCKPT_INFERENCE : GCKPT_STORE_ALL;
    d.batch = rows * (o & 4 ? 2 : 1);
    d.optimiser = o & 8 ? GCKPT_SGD : o & 16 ? GCKPT_MOMENTUM : GCKPT_ADAMW;
    d.bf16.precision = q % 4 == 3 ? GCKPT_BF16 : GCKPT_FP32;
    x.skip_nonfinite = q >> 2 & 1;
    d.fetch.specs = a.net.fetch, d.fetch.count = o & 64 ? a.net.fetches : 0;
    const int inference_too = w % 4 == 3;
    for (int i = 0; i < a.net.fetches && inference_too; i++)
        a.net.fetch[i].gradient = 0;
    a.p = gckpt_plan_new(a.g, a.net.term, a.net.terms, &d);
    const int n = a.p ? net_feed_all(a.g, &in, f, FEEDS) : -1;
    const gckpt_backend here = table(&in), other = table(&in);
    gckpt_hyper h = gckpt_hyper_lr(0.01f);
    h.clip = q & 8 ? 0.1f : 0;
    if (n >= 0) {
        begin(&c, net, rows);
        planned++;
        d.backend = &here;
        d.fetch.specs = c.net.fetch;
        for (int i = 0; i < c.net.fetches && inference_too; i++)
            c.net.fetch[i].gradient = 0;
        d.mode = w % 4 == 3 ? GCKPT_INFERENCE : (gckpt_mode)(w % 4);
        d.update_in_backward = w % 4 != 3 && (q & 0xc) == 0 && (q & 16);
        d.offload.bytes = q & 32 ? 4096 : 0, d.offload.overlap = q >> 6 & 1;
        d.budget =
            d.mode == GCKPT_AUTO && q & 128 ? gckpt_plan_bytes(a.p) * (3 + w / 4 % 8) / 10 : 0;
        d.kernels.stage_parameters = w >> 5 & 1;
        if (q % 8 == 7 && here.find_fast)
            d.bf16.precision = GCKPT_BF16_FAST;
        const unsigned fail = byte(&in), when = 1 + byte(&in) % 32;
        device.fail_get = fail % 8 == 1 ? when : 0;
        device.fail_finish = fail % 8 == 2 ? when : 0;
        device.fail_host = fail % 8 == 3 ? when % 3 + 1 : 0;
        device.fail_workspace = fail % 16 == 4 ? when : 0;
        const size_t live = memory.live;
        c.p = gckpt_plan_new(c.g, c.net.term, c.net.terms, &d);
        MUST(c.p || (gckpt_error(c.g) >= GCKPT_E_SHAPE && gckpt_error_text(c.g)[0]), "no text");
        MUST(c.p || memory.live == live, "a plan that was refused left bytes");
        if (c.p) {
            const unsigned by = byte(&in);
            executors++;
            const int way = (int)(by / 32);
            x.isa = by % 16 == 6 ? GCKPT_ISA_AUTO : GCKPT_ISA_PLAIN;
            steps(&a, &x, f, n, d.batch, &h, d.mode == GCKPT_INFERENCE, way, d.update_in_backward);
            x.isa = GCKPT_ISA_AUTO;
            x.backend = by % 16 == 1 ? &other : by % 16 == 2 ? NULL : &here;
            x.debug = by % 16 == 3   ? GCKPT_DEBUG_PLAIN
                      : by % 16 == 4 ? GCKPT_DEBUG_POISON
                      : by % 16 == 5 ? GCKPT_DEBUG_FINITE
                                     : 0;
            if (by % 16 == 7)
                gckpt_exec_need(c.p, &x);
            steps(&c, &x, f, n, d.batch, &h, d.mode == GCKPT_INFERENCE, way, d.update_in_backward);
            MUST(c.e || (gckpt_error(c.s) >= GCKPT_E_SHAPE && gckpt_error_text(c.s)[0]), "no text");
            ran += c.e != NULL;
        }
        if (a.e && c.e && !device.failed && a.result[0] == c.result[0] &&
            a.result[1] == c.result[1] && x.debug == 0) {
            equal++;
            for (int i = 0; i < 2; i++) {
                const double *u = &a.report[i].loss, *v = &c.report[i].loss;
                MUST(*u == *v || (*u != *u && *v != *v),
                     "loss %.17g, %.17g; step %d, mode %d, precision %d, memory %d", *u, *v, i,
                     (int)d.mode, (int)d.bf16.precision, here.own_memory);
                u = &a.report[i].grad_norm, v = &c.report[i].grad_norm;
                MUST(*u == *v || (*u != *u && *v != *v), "norm %.17g, %.17g", *u, *v);
            }
            MUST(gckpt_store_pull(c.s, "*") == GCKPT_OK || gckpt_store_count(c.s) == 0, "pull: %s",
                 gckpt_error_text(c.s));
            MUST(gckpt_store_hash(a.s) == gckpt_store_hash(c.s), "other weights on the backend");
        } else if (a.e && c.e && !device.failed && x.debug == 0)
            MUST(c.result[0] != GCKPT_OK && c.result[0] != GCKPT_SKIPPED
                     ? 1
                     : c.result[1] == a.result[1] && c.result[0] == a.result[0],
                 "%s; %s", gckpt_error_text(a.e), gckpt_error_text(c.e));
        const int store_first = byte(&in) & 1;
        if (store_first && c.e) {
            gckpt_graph_free(c.g), c.g = NULL;
            gckpt_store_free(c.s), c.s = NULL;
        }
        util_free(c.e, c.p, c.g, c.s);
    }
    util_free(a.e, a.p, a.g, a.s);
}

static void print_counts(void)
{
    fprintf(stderr, "%ld tries, %ld nets, %ld plans, %ld executors, %ld compared\n", tried, planned,
            executors, ran, equal);
}
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const uint8_t head[] = { 0, 60 };
    (void)argc, (void)argv;
    write_seeds("backend", 200, 120, head, sizeof head);
    net_data();
    if (getenv("FUZZ_COUNT"))
        atexit(print_counts);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size)
{
    bytes in;
    in.at = at, in.left = size, in.odd = 0;
    net_memory(&memory), memset(&device, 0, sizeof device);
    try_one(in);
    MUST(device.blocks == 0 && device.host == 0 && device.depth == 0,
         "%d blocks of the backend's are left", device.blocks);
    MUST(memory.live == 0 && memory.blocks == 0 && memory.wrong_sizes == 0,
         "%lu bytes in %ld blocks are left", (unsigned long)memory.live, memory.blocks);
    return 0;
}
