/* test_user_ops.c - the functions that user-defined kernels may call (gckpt_parallel, gckpt_fma, gckpt_dot,
 * gckpt_product), and the ops that examples/convolution.h and examples/elementwise.h build from them. Uses only the
 * public API, on plain and vector kernels, with one and several threads, from OpenMP or from the program's own pool. */
#include "gradckpt.h"
#include "convolve.h"
#include "examples/convolution.h"
#include "examples/elementwise.h"
#include "examples/gradcheck.h"
#include "golden/convolution.h"

/* ---- the harness: an op whose forward calls `inside`, run on every kind of executor ---- */
static void (*inside)(const gckpt_call *call);
static size_t (*inside_workspace)(const gckpt_call *call);
static long jobs; /* number of calls of the program's own thread pool */

static gckpt_result probe_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    call->workspace_forward = inside_workspace ? inside_workspace(call) : 0;
    return GCKPT_OK;
}

static void probe_forward(const gckpt_call *call)
{
    memcpy(call->out, call->in[0].data, (size_t)count_of(&call->shape) * sizeof(float));
    inside(call);
}

static void last_first(void *user, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    (void)user;
    jobs++;
    while (n-- > 0)
        body(context, n);
}

#ifdef _OPENMP
static void at_once(void *user, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    (void)user;
    jobs++;
#pragma omp parallel for schedule(static, 1) num_threads(3)
    for (int64_t i = 0; i < n; i++)
        body(context, i);
}
#else
#define at_once last_first
#endif

typedef struct {
    gckpt_isa isa;
    int threads, plain, pool; /* pool: the program's own thread pool: 0 for none, 1 for last_first, 2 for at_once */
} executor;

/* Stores the description of executor i in *e; returns 0 if there is no executor i. */
static int executor_at(int i, executor *e)
{
    static const gckpt_isa isas[] = { GCKPT_ISA_PLAIN, GCKPT_ISA_C, GCKPT_ISA_NEON, GCKPT_ISA_AVX2,
                                      GCKPT_ISA_AVX512 };
    const executor how = { isas[i / 6 % 5], i % 3 + 1, i == 30, i % 6 < 3 ? 0 : 1 + (i % 2) };
    *e = how;
    return i < 31;
}

static void run_inside(void (*what)(const gckpt_call *call), size_t (*workspace)(const gckpt_call *call))
{
    static const gckpt_op probe = { .name = "probe",
                                    .shape = probe_shape,
                                    .forward = probe_forward };
    executor how;
    inside = what;
    inside_workspace = workspace;
    for (int i = 0; executor_at(i, &how); i++) {
        if (!gckpt_isa_available(how.isa))
            continue;
        float x[2] = { 1, 2 };
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 1));
        gckpt_fetch_spec fetch = { gckpt_apply(&probe, &in, 1, NULL, 0), 0 };
        gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE,
                                 .fetch.specs = &fetch,
                                 .fetch.count = 1,
                                 .threads = how.threads,
                                 .kernels.plain = how.plain };
        gckpt_exec_desc run = { .isa = how.plain ? GCKPT_ISA_AUTO : how.isa,
                                .parallel_for = how.pool == 1   ? last_first
                                                : how.pool == 2 ? at_once
                                                                : NULL };
        gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, &run);
        gckpt_feed feed = { gckpt_id(in), x };
        CHECK_MSG(gckpt_forward(e, &feed, 1, 2, NULL) == GCKPT_OK, "%s",
                  gckpt_error_text(e ? (void *)e : (void *)g));
        util_free(e, p, g, s);
    }
}

/* ---- gckpt_parallel ---- */
enum { ITEMS = 1000 };
typedef struct {
    const gckpt_call *call;
    int count[ITEMS], busy[3], wrong, nested;
} item_counts;

static void nested_item(void *context, int64_t i, int64_t worker)
{
    (void)i;
    *(int *)context += worker == 0;
}

static void count_item(void *context, int64_t i, int64_t worker)
{
    item_counts *t = (item_counts *)context;
    t->count[i]++;
    if (worker < 0 || worker >= t->call->threads) {
        t->wrong = 1;
        return;
    }
    int *mine = &t->busy[worker]; /* the slot of this worker, which no other work item may use at the same time */
    *mine += 1;
    if (t->nested && i % 100 == 0) {
        gckpt_call one = *t->call;
        int inner = 0;
        one.threads = 1;
        gckpt_parallel(&one, 50, 1000000, nested_item, &inner);
        t->wrong |= inner != 50;
    }
    for (volatile int k = 0; k < 50; k++)
        t->wrong |= *mine % 2 != 1;
    *mine += 1;
}

static void check_parallel(const gckpt_call *call)
{
    static const int64_t works[] = { 0, 1, 3000, 1000000, INT64_MAX, -5 };
    for (int k = 0; k < 12; k++) {
        static item_counts t;
        memset(&t, 0, sizeof t);
        t.call = call;
        t.nested = k >= 6;
        int64_t n = k == 0 ? 0 : k == 1 ? 1 : ITEMS;
        gckpt_parallel(call, n, works[k % 6], count_item, &t);
        for (int64_t i = 0; i < ITEMS; i++)
            CHECK_MSG(t.count[i] == (i < n), "item %d of %d: %d times", (int)i, (int)n, t.count[i]);
        CHECK(!t.wrong);
    }
}

/* ---- gckpt_fma and gckpt_dot, compared with loops that follow the manual (5a and 5d) ---- */
static float some_float(void)
{
    uint32_t u = (uint32_t)next_random(&random_state);
    return u % 8 ? (float)(int32_t)u / 1e9f : float_of(u & 0xff7fffffu);
}

static void check_numbers(const gckpt_call *call)
{
    float x[200], y[200];
    random_state = 3;
    for (int i = 0; i < 200; i++)
        x[i] = some_float(), y[i] = some_float();
    for (int i = 0; i + 2 < 200; i++) {
        float a = gckpt_fma(x[i], y[i], x[i + 2]), b = fmaf(x[i], y[i], x[i + 2]);
        CHECK(bits_of(a) == bits_of(b) || (a != a && b != b));
    }
    for (int n = 0; n <= 200; n++) {
        float lane[32] = { 0 }, got = gckpt_dot(call, x, y, n);
        for (int i = 0; i < n; i++)
            lane[i % 32] = fmaf(x[i], y[i], lane[i % 32]);
        for (int h = 16; h; h /= 2)
            for (int i = 0; i < h; i++)
                lane[i] += lane[i + h];
        CHECK_MSG(bits_of(got) == bits_of(lane[0]) || got != got, "dot of %d", n);
        CHECK(bits_of(gckpt_dot(NULL, x, y, n)) == bits_of(got) || got != got);
    }
}

/* ---- gckpt_product with any strides, compared with sums by plain loops ---- */
enum { BUFFER = 900000, GUARD = 1024 };
static float buffer_a[BUFFER], buffer_b[BUFFER], buffer_c[BUFFER], buffer_d[BUFFER];
static const int16_t sizes[][3] = { { 1, 1, 1 },       { 7, 5, 3 },     { 33, 50, 17 },
                                    { 5, 200, 9 },     { 200, 5, 9 },   { 9, 49, 17 },
                                    { 3, 4, 700 },     { 20, 30, 0 },   { 70, 70, 70 },
                                    { 260, 530, 130 }, { 600, 40, 720 } };
enum { SIZES = sizeof sizes / sizeof sizes[0] };
/* `edges`: sizes (M, N, K) whose last vector is partial, with scratch memory on the stack or in the workspace.
 * `over`: three values of `way` for strides(), one each for A, B and C, that make elements overlap, repeat or run
 * backwards. */
static const int16_t edges[][3] = { { 64, 47, 128 }, { 240, 191, 384 }, { 9, 49, 17 }, { 1, 40, 9 }, { 40, 1, 9 } };
static const char over[][3] = { { 3, 3, 0 }, { 3, 3, 1 }, { 0, 3, 0 }, { 3, 0, 1 }, { 1, 3, 0 },
                                { 3, 1, 1 }, { 4, 4, 0 }, { 4, 5, 1 }, { 5, 4, 0 }, { 5, 5, 1 },
                                { 0, 4, 0 }, { 0, 5, 0 }, { 6, 6, 0 }, { 6, 6, 1 }, { 3, 6, 0 },
                                { 6, 3, 1 }, { 4, 0, 2 }, { 0, 0, 7 }, { 7, 7, 7 } };
enum { EDGES = sizeof edges / sizeof edges[0], OVER = sizeof over / sizeof over[0] };

static size_t product_scratch(const gckpt_call *call)
{
    size_t most = 0;
    for (int i = 0; i < SIZES + EDGES; i++) {
        const int16_t *size = i < SIZES ? sizes[i] : edges[i - SIZES];
        size_t workspace = gckpt_product_workspace(call, size[0], size[1], size[2]);
        most = workspace > most ? workspace : most;
    }
    CHECK(call->plain ? most == 0 : (most > 0 || !gckpt_isa_available(GCKPT_ISA_C)));
    return most + GUARD;
}

/* Sets the strides of a (rows, cols) matrix in the buffer and returns its first element. In ways 0 to 2 no two
 * elements overlap: 0 has adjacent columns, 1 adjacent rows, 2 neither. 3: each row begins one element after the
 * previous row; 4: all rows are the same memory; 5: all columns are; 6: the matrix runs backwards from the buffer's
 * end; 7: only its rows run backwards. */
static float *strides(float *buffer, int way, int64_t rows, int64_t cols, int64_t *row, int64_t *col)
{
    const int64_t across[] = { cols + 3, 1, 2 * cols + 1, 1, 0, 1, -cols - 3, -cols - 3 };
    const int64_t along[] = { 1, rows + 2, 2, 1, 1, 0, -1, 1 };
    *row = across[way], *col = along[way];
    return way == 6 ? buffer + BUFFER - 1 : way == 7 ? buffer + BUFFER - cols : buffer;
}

static void try_product(const gckpt_call *call, const int16_t *size, int a, int b, int c, int accumulate)
{
    gckpt_product_desc t = { .m = size[0],
                             .n = size[1],
                             .k = size[2],
                             .accumulate = accumulate,
                             .workspace = call->workspace };
    size_t workspace = gckpt_product_workspace(call, t.m, t.n, t.k);
    /* the bytes after the op's workspace, which nothing may write */
    unsigned char *guard = (unsigned char *)call->workspace + workspace;
    int wrong = 0;
    memset(guard, 0x5a, GUARD);
    t.a = strides(buffer_a, a, t.m, t.k, &t.a_row, &t.a_col);
    t.b = strides(buffer_b, b, t.k, t.n, &t.b_row, &t.b_col);
    t.c = strides(buffer_c, c, t.m, t.n, &t.c_row, &t.c_col);
    int64_t span = c == 7 ? t.m * -t.c_row + 64 : t.m * t.c_row + t.n * t.c_col + 64;
    int64_t begin = c == 7 ? BUFFER - span : 0, end = begin + span, first = t.c - buffer_c;
    CHECK(span <= BUFFER && t.m * t.a_row + t.k * t.a_col <= BUFFER &&
          t.k * t.b_row + t.n * t.b_col <= BUFFER);
    for (int64_t i = begin; i < end; i++)
        buffer_c[i] = buffer_d[i] = (float)(i % 7) - 3;
    gckpt_product(call, &t);
    for (int64_t i = 0; i < t.m; i++)
        for (int64_t j = 0; j < t.n; j++) {
            float *d = &buffer_d[first + i * t.c_row + j * t.c_col];
            *d = t.accumulate ? *d : 0.0f;
            for (int64_t p = 0; p < t.k; p++)
                *d = fmaf(t.a[i * t.a_row + p * t.a_col], t.b[p * t.b_row + j * t.b_col], *d);
        }
    for (int i = 0; i < GUARD; i++)
        wrong += guard[i] != 0x5a;
    /* the comparison covers the whole buffer, so it also shows writes outside of C */
    for (int64_t i = begin; i < end; i++)
        wrong += bits_of(buffer_c[i]) != bits_of(buffer_d[i]);
    CHECK_MSG(!wrong, "%d x %d x %d, strides %d %d %d, add %d, %d threads: %d wrong", size[0], size[1], size[2], a, b,
              c, accumulate, call->threads, wrong);
}

/* Each executor tests every `tried`-th combination, from another first one than the executor before it; if `tried` is
 * 1, it tests all combinations. */
static int tried;

static void check_product(const gckpt_call *call)
{
    static int calls;
    const int most = 1000;
    const float unit = 1000;
    random_state = 5;
    calls++;
    for (int i = 0; i < BUFFER; i++) {
        buffer_a[i] = (float)between(-most, most) / unit;
        buffer_b[i] = (float)between(-most, most) / unit;
    }
    for (int i = 0; i < SIZES; i++)
        for (int ways = 0; ways < 54; ways++)
            if ((i + 2 < SIZES || ways == 13 || (i + 1 < SIZES && ways % 13 == 0)) &&
                (i + ways + calls) % tried == 0)
                try_product(call, sizes[i], ways % 3, ways / 3 % 3, ways / 9 % 3, ways / 27);
    for (int i = 0; i < EDGES; i++)
        for (int k = 0; k < (i == 1 ? 4 : OVER); k++)
            if ((i + k + calls) % tried == 0)
                try_product(call, edges[i], over[k][0], over[k][1], over[k][2], k % 2);
}

/* ---- the convolution of examples/convolution.h, compared with its definition and with gckpt_conv2d ---- */
static gckpt_tensor *as_conv2d(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias, const gckpt_window *window)
{
    return convolution(x, w, bias, (int)window->stride[0], (int)window->padding[0]);
}

/* Computes the convolution by its definition, in double. All operands are small multiples of 1/64, so that all sums
 * are exact. */
static void convolve_naively(const problem *z, double *y, double *dx, double *dw, double *db)
{
    const int64_t *xs = z->x.d, *ws = z->w.d, *ys = z->y.d;
    const int64_t stride = z->window.stride[0], padding = z->window.padding[0];
    for (int64_t b = 0; b < ys[0]; b++)
        for (int64_t o = 0; o < ys[1]; o++)
            for (int64_t p = 0; p < ys[2]; p++)
                for (int64_t q = 0; q < ys[3]; q++) {
                    int64_t at = ((b * ys[1] + o) * ys[2] + p) * ys[3] + q;
                    double sum = z->o ? (double)z->b_data[o] : 0, g = (double)z->target[at];
                    db[o] += g;
                    for (int64_t c = 0; c < xs[1]; c++)
                        for (int64_t r = 0; r < ws[2]; r++)
                            for (int64_t s = 0; s < ws[3]; s++) {
                                int64_t i = p * stride + r - padding;
                                int64_t j = q * stride + s - padding;
                                int64_t from = ((b * xs[1] + c) * xs[2] + i) * xs[3] + j;
                                int64_t with = ((o * xs[1] + c) * ws[2] + r) * ws[3] + s;
                                if (i < 0 || i >= xs[2] || j < 0 || j >= xs[3])
                                    continue;
                                sum += (double)z->w_data[with] * (double)z->x_data[from];
                                dw[with] += g * (double)z->x_data[from];
                                dx[from] += g * (double)z->w_data[with];
                            }
                    y[at] = sum;
                }
}

static void test_values(void)
{
    static const struct {
        int b, c, h, w, o, r, s, stride, padding, bias;
    } sizes_of[] = {
        { 2, 3, 5, 6, 4, 3, 2, 2, 1, 1 },    { 1, 1, 1, 1, 1, 1, 1, 1, 0, 0 },
        { 3, 2, 7, 5, 3, 3, 3, 1, 1, 1 },    { 2, 2, 4, 4, 2, 3, 3, 1, 4, 1 },
        { 1, 2, 9, 8, 5, 1, 1, 3, 0, 1 },    { 2, 1, 6, 3, 2, 6, 3, 1, 0, 0 },
        { 2, 4, 8, 8, 3, 5, 5, 2, 2, 1 },    { 1, 3, 4, 7, 2, 2, 4, 5, 3, 1 },
        { 1, 40, 40, 41, 12, 3, 3, 1, 1, 1 } /* large enough that the op computes it in several row tiles */
    };
    static problem z;
    z.op = as_conv2d;
    for (size_t i = 0; i < sizeof sizes_of / sizeof sizes_of[0]; i++) {
        const int stride = sizes_of[i].stride, padding = sizes_of[i].padding;
        z.window.stride[0] = stride;
        z.window.padding[0] = padding;
        z.x = gckpt_shape4(sizes_of[i].b, sizes_of[i].c, sizes_of[i].h, sizes_of[i].w);
        z.w = gckpt_shape4(sizes_of[i].o, sizes_of[i].c, sizes_of[i].r, sizes_of[i].s);
        z.y = gckpt_shape4(sizes_of[i].b, sizes_of[i].o, (sizes_of[i].h + 2 * padding - sizes_of[i].r) / stride + 1,
                           (sizes_of[i].w + 2 * padding - sizes_of[i].s) / stride + 1);
        z.o = sizes_of[i].bias ? sizes_of[i].o : 0;
        fill_operands(&z);
        const int64_t nx = count_of(&z.x), nw = count_of(&z.w), ny = count_of(&z.y);
        double *sums = (double *)calloc((size_t)(nx + nw + ny + z.w.d[0]), sizeof *sums);
        double *dx = sums + ny, *dw = dx + nx, *db = dw + nw;
        convolve_naively(&z, sums, dx, dw, db);
        for (int k = 0; k < GCKPT_ISA_COUNT * 3; k++) {
            if (!gckpt_isa_available((gckpt_isa)(k / 3)) || !convolve(&z, (gckpt_isa)(k / 3), k % 3 + 1))
                continue;
            const int wrong[4] = { differ(z.values, sums, ny, 1), differ(z.dx, dx, nx, 1),
                                   differ(z.dw, dw, nw, z.count), differ(z.db, db, z.o, z.count) };
            CHECK_MSG(!wrong[0] && !wrong[1] && !wrong[2] && !wrong[3], "problem %d, %s, %d threads: %d %d %d %d",
                      (int)i, isa_name((gckpt_isa)(k / 3)), k % 3 + 1, wrong[0], wrong[1], wrong[2], wrong[3]);
            if (i == 0) /* only the first problem has golden results */
                CHECK(!differ(z.values, golden_y, ny, 1) && !differ(z.dx, golden_dx, nx, 1) &&
                      !differ(z.dw, golden_dw, nw, z.count) && !differ(z.db, golden_db, z.o, z.count));
        }
        free(sums);
    }
}

/* ---- a small network with user-defined ops gives the same bits in every plan and way to train ---- */
enum { BATCH = 6 };
typedef enum { NO_SQUARES, OWN_SQUARES, BUILT_IN_SQUARES } squares;

static float square_of(float x)
{
    return x * x;
}

static float slope_of_square(float x)
{
    return 2 * x;
}

ELEMENTWISE(own_square, square_of, slope_of_square)

typedef struct {
    int64_t rows;
    gckpt_isa isa;
    int threads, pool, plain;
    gckpt_mode mode;
    int least; /* if nonzero, the plan has the smallest feasible budget */
    gckpt_precision precision;
    int check; /* if nonzero, the gradients are checked and nothing is trained */
    squares squares; /* whether the network has squares, by ELEMENTWISE or by gckpt_pow */
} training;

static gckpt_tensor *square(const training *t, gckpt_tensor *x)
{
    return t->squares == OWN_SQUARES ? own_square(x) : gckpt_pow(x, 2);
}

static uint64_t train(const training *t)
{
    static float pixels[BATCH * 2 * 12 * 11], targets[BATCH * 3];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(t->rows, 2, 12, 11));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(t->rows, 3));
    gckpt_tensor *w1 = gckpt_param(g, "w1", gckpt_shape4(8, 2, 3, 3), normal);
    gckpt_tensor *b1 = gckpt_param(g, "b1", gckpt_shape1(8), normal);
    gckpt_tensor *w2 = gckpt_param(g, "w2", gckpt_shape4(8, 8, 3, 3), normal);
    gckpt_tensor *b2 = gckpt_param(g, "b2", gckpt_shape1(8), normal);
    gckpt_tensor *w3 = gckpt_param(g, "w3", gckpt_shape4(6, 8, 2, 2), normal);
    gckpt_tensor *w4 = gckpt_param(g, "w4", gckpt_shape2(6 * 6 * 5, 3), normal);
    gckpt_tensor *h = gckpt_tanh(convolution(x, w1, b1, 1, 1)), *out;
    h = gckpt_add(h, gckpt_tanh(convolution(h, w2, b2, 1, 1))); /* two ops read h, so its gradient is a sum of two */
    if (t->squares) /* h is read twice here too, by a square first and last */
        h = gckpt_mul(square(t, h), gckpt_add(square(t, gckpt_tanh(h)), square(t, h)));
    out = convolution(h, w3, NULL, 2, 0);
    out = gckpt_linear(gckpt_reshape(out, gckpt_shape2(t->rows, 6 * 6 * 5)), w4, NULL);
    gckpt_term loss = { gckpt_mean_squared_error(out, y, NULL), 1, 0 };
    gckpt_plan_desc desc = { .mode = t->mode,
                             .batch = BATCH,
                             .threads = t->threads,
                             .kernels.plain = t->plain,
                             .bf16.precision = t->precision,
                             .budget = t->least ? 1 : 0 };
    gckpt_exec_desc run = { .isa = t->isa,
                            .debug = GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE,
                            .parallel_for = t->pool ? at_once : NULL };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    if (!p && t->least) { /* the error text names the smallest feasible budget, which is used now */
        const char *text = gckpt_error_text(g), *at = strstr(text, "at least ");
        CHECK(at != NULL);
        desc.budget = at ? (size_t)strtoull(at + 9, NULL, 10) : 0;
        p = gckpt_plan_new(g, &loss, 1, &desc);
    }
    gckpt_exec *e = gckpt_exec_new(p, s, &run);
    gckpt_feed feeds[2] = { { gckpt_id(x), pixels }, { gckpt_id(y), targets } };
    gckpt_hyper hyper = { .lr = 0.01f };
    uint64_t hash = 0;
    random_state = 11;
    for (size_t i = 0; i < sizeof pixels / sizeof pixels[0]; i++)
        pixels[i] = (float)below(2001) / 1000.0f - 1;
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++)
        targets[i] = (float)below(2001) / 1000.0f - 1;
    if (t->check) {
        gradcheck_result check;
        const gckpt_result result = gradcheck(s, &loss, 1, &desc, feeds, 2, BATCH, &check);
        CHECK_MSG(result == GCKPT_OK, "%s", check.text);
    } else {
        for (int step = 0; step < 3; step++)
            CHECK_MSG(gckpt_step(e, feeds, 2, BATCH, &hyper, NULL) == GCKPT_OK, "%s",
                      gckpt_error_text(e ? (void *)e : (void *)g));
        hash = gckpt_store_hash(s);
    }
    util_free(e, p, g, s);
    return hash;
}

static void test_training(void)
{
    static const gckpt_mode modes[] = { GCKPT_AUTO, GCKPT_STORE_ALL, GCKPT_MEMORY_POOR,
                                        GCKPT_SQRT };
    const training base = { .rows = BATCH, .threads = 1, .isa = GCKPT_ISA_PLAIN };
    training t = base;
    uint64_t want = train(&base);
    t.check = 1;
    train(&t);
    t.isa = GCKPT_ISA_AUTO, t.threads = 2;
    train(&t);
    for (int i = 0; i < 60; i++) {
        /* micro-batches of 4 and 5 rows leave a shorter last micro-batch */
        static const int64_t rows[] = { 6, 1, 4, 2, 5 };
        t = base;
        t.rows = rows[i % 5];
        t.isa = (gckpt_isa)(i / 2 % GCKPT_ISA_COUNT);
        t.threads = i % 3 + 1;
        t.mode = modes[i % 4];
        t.least = t.mode == GCKPT_AUTO;
        t.pool = i % 7 == 0;
        t.plain = i % 11 == 0 && t.isa == GCKPT_ISA_AUTO;
        if (gckpt_isa_available(t.isa))
            CHECK_MSG(train(&t) == want, "rows %d, %s, %d threads, mode %d", (int)t.rows,
                      isa_name(t.isa), t.threads, (int)t.mode);
    }
    t = base; /* a bf16 plan: stored values are rounded, while the op computes in binary32 */
    t.precision = GCKPT_BF16;
    want = train(&t);
    t.rows = 4, t.threads = 3, t.isa = GCKPT_ISA_AUTO, t.least = 1;
    CHECK(train(&t) == want);
}

/* Tests that an op by ELEMENTWISE trains to the bits of the built-in op with the same formula. */
static void test_elementwise(void)
{
    training t = { .rows = BATCH, .threads = 1, .check = 1, .squares = OWN_SQUARES };
    train(&t);
    t.check = 0;
    for (int i = 0; i < 12; i++) {
        t.rows = BATCH - i % 3;
        t.threads = 1 + i % 4;
        t.mode = i % 2 ? GCKPT_AUTO : GCKPT_STORE_ALL;
        t.least = i % 2;
        t.precision = i < 6 ? GCKPT_FP32 : GCKPT_BF16;
        training built_in = t;
        built_in.squares = BUILT_IN_SQUARES;
        CHECK_MSG(train(&t) == train(&built_in), "rows %d, %d threads, least %d, precision %d", (int)t.rows, t.threads,
                  t.least, (int)t.precision);
    }
}

static uint64_t cost_of(int ours, const int size[6])
{
    const int64_t c = size[0], h = size[1], w = size[2], taps = size[3];
    const gckpt_window window = { .stride = { size[4], size[4] }, .padding = { size[5], size[5] } };
    const gckpt_init normal = { 1, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x =
        gckpt_input(g, "x", GCKPT_F32, ours ? gckpt_shape4(1, c, h, w) : gckpt_shape4(1, h, w, c));
    gckpt_tensor *k = gckpt_param(
        g, "w", ours ? gckpt_shape4(5, c, taps, 2) : gckpt_shape4(taps, 2, c, 5), normal);
    gckpt_fetch_spec fetch = { ours ? convolution(x, k, NULL, size[4], size[5])
                             : gckpt_conv2d(x, k, NULL, &window),
                        0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    const uint64_t cost = gckpt_plan_describe(p).cost;
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    util_free(NULL, p, g, s);
    return cost;
}

static void test_costs(void)
{
    static const int sizes_of[][6] = { { 2, 12, 11, 3, 1, 1 },
                                       { 3, 9, 8, 2, 2, 0 },
                                       { 40, 40, 41, 3, 1, 1 } }; /* the last size needs several row tiles */
    for (size_t i = 0; i < sizeof sizes_of / sizeof sizes_of[0]; i++) {
        const uint64_t ours = cost_of(1, sizes_of[i]), built_in = cost_of(0, sizes_of[i]);
        CHECK_MSG(ours == built_in && ours > 0, "problem %d: costs %.0f, gckpt_conv2d %.0f", (int)i,
                  (double)ours, (double)built_in);
    }
}

/* Tests that operands whose shapes do not fit are refused by an error text that names the op. */
static void test_refusals(void)
{
    static const int64_t wrong[][5] = { { 3, 3, 3, 1, 0 },
                                        { 2, 6, 3, 1, 0 },
                                        { 2, 3, 8, 1, 0 },
                                        { 2, 3, 3, 0, 0 },
                                        { 2, 3, 3, 1, -1 } };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        const gckpt_init normal = { 1, 0, 0 };
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(1, 2, 5, 7));
        gckpt_tensor *w =
            gckpt_param(g, "w", gckpt_shape4(4, wrong[i][0], wrong[i][1], wrong[i][2]), normal);
        CHECK(convolution(x, w, NULL, (int)wrong[i][3], (int)wrong[i][4]) == NULL);
        CHECK(strstr(gckpt_error_text(g), "convolution: x ") != NULL);
        util_free(NULL, NULL, g, s);
    }
    float x = 2, y = 3;
    gckpt_parallel(NULL, 5, 1, NULL, NULL);
    gckpt_product(NULL, NULL);
    gckpt_call call;
    memset(&call, 0, sizeof call);
    gckpt_product(&call, NULL); /* a call with a NULL product must do nothing */
    CHECK(gckpt_product_workspace(NULL, 1000, 1000, 1000) == 0);
    CHECK(gckpt_dot(NULL, &x, &y, 1) == 6.0f);
}

int main(int argc, char **argv)
{
    tried = argc > 1 ? atoi(argv[1]) : 15 / check_iterations(3);
    CHECK_MSG(tried > 0, "the argument must be a number above 0: every how many combinations of a product run");
    run_inside(check_parallel, NULL);
    CHECK(jobs > 0 || !gckpt_isa_available(GCKPT_ISA_C));
    run_inside(check_numbers, NULL);
    run_inside(check_product, product_scratch);
    test_values();
    test_training();
    test_elementwise();
    test_costs();
    test_refusals();
    return check_report("user ops");
}
