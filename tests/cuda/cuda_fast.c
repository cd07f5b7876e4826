/* cuda_fast.c - tests GCKPT_BF16_FAST on CUDA. The results of every kernel must be within error bounds that follow from
 * the kernel's roundings, compared with results in double, for every combination of f32 and bf16 operands. Trainings
 * must have the same bits in all plans, and in those splits of the batch for which the mode promises the same bits. */
#include <math.h>
#include <stdlib.h>

#include "attention/attention.h"
#include "linear_loss/linear_loss.h"
#include "ops/ops.h"
#include "plan/plan.h"

#include "check.h"
#include "util.h"
#ifdef GCKPT_CUDA_SHIM
#include "cuda_shim.h"
#include "opening.h"
#include <sys/wait.h>
#endif

static const gckpt_backend *gpu;

/* HALF: unit roundoff of bf16, which has 8 binary digits and rounds to nearest. CUT: largest relative error of an f32
 * result that a tensor core truncates instead of rounding. */
static const double HALF = 0x1p-8, CUT = 0x1p-23;

/* ---- calling forward and backward kernel of an op ---- */
/* Bits of trial.narrow that select arrays in bf16: bit i (0 to 2) input i, OUT the output, GRAD_OUT the gradient of the
 * output, bit GRAD + i the gradient of input i. Bit i of trial.held: the gradient of input i accumulates. */
enum { OUT = 1 << 3, GRAD_OUT = 1 << 4, GRAD = 5 /* bit number of the first input's gradient */ };
typedef struct {
    const char *name;
    const gckpt_op *op;
    const void *attributes;
    int inputs;
    gckpt_shape shape[4];
    unsigned narrow, held, no_gradient;
    float scale;       /* scale of the random values */
    float *x[4], *g;   /* values of the inputs, gradient of the output */
    float *start[4];   /* initial values of gradients that accumulate */
    int32_t *index;    /* data of the input i with GCKPT_INDEX(i) */
    float *out, *saved, *grad[4];     /* results of the kernels */
    float *given_out, *given_saved;   /* output and saved values for the backward, or NULL for the forward's */
    double sum;
    int64_t count;
    gckpt_shape out_shape;
    int64_t saved_floats;
} trial;

static void *held[64];
static int allocation_count;
static size_t aside; /* arrays begin this number of bytes after a multiple of 256 */

static void *on_device(const void *from, size_t bytes)
{
    char *p = (char *)gpu->allocate(gpu->context, bytes + aside, 256);
    if (from)
        gpu->copy_in(gpu->context, p + aside, from, bytes);
    held[allocation_count++] = p;
    return p + aside;
}

static void free_device(void)
{
    while (allocation_count)
        gpu->release(gpu->context, held[--allocation_count], 0);
}

/* Copies n values to the device, as bf16 if `narrow` is nonzero, else as f32. */
static void *put(const float *x, int64_t n, int narrow)
{
    uint16_t *half = (uint16_t *)malloc((size_t)n * 2);
    for (int64_t i = 0; x && i < n; i++)
        half[i] = gckpt_to_bf16(x[i]);
    void *p = on_device(!x ? NULL : narrow ? (void *)half : (void *)x, (size_t)n * (narrow ? 2 : 4));
    free(half);
    return p;
}

static void fetch(float *x, const void *from, int64_t n, int narrow)
{
    uint16_t *half = (uint16_t *)malloc((size_t)n * 2);
    gpu->copy_out(gpu->context, narrow ? (void *)half : (void *)x, from, (size_t)n * (narrow ? 2 : 4));
    for (int64_t i = 0; narrow && i < n; i++)
        x[i] = gckpt_from_bf16(half[i]);
    free(half);
}

static float *floats(int64_t n) { return (float *)calloc((size_t)(n > 0 ? n : 1), sizeof(float)); }

static float value(float scale)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(int)(below(20001)) - 10000.0f;
    return sum * 1e-4f * scale;
}

static float *values(int64_t n, float scale, int narrow)
{
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++) {
        x[i] = value(scale);
        if (narrow)
            x[i] = gckpt_from_bf16(gckpt_to_bf16(x[i]));
    }
    return x;
}

/* Returns a call for trial t, and gives t random operands. */
static gckpt_call begin(trial *t)
{
    gckpt_call call;
    memset(&call, 0, sizeof call);
    call.inputs = t->inputs;
    call.attributes = t->attributes;
    call.rows = t->shape[0].n ? t->shape[0].d[0] : 1;
    call.training = call.threads = call.plain = 1;
    call.precision = GCKPT_BF16_FAST;
    call.loss_scale = 0.75f;
    for (int i = 0; i < t->inputs; i++)
        call.in[i].shape = t->shape[i];
    CHECK_MSG(t->op->shape(&call) == GCKPT_OK, "%s: shape", t->name);
    if (t->op->flags & GCKPT_LOSS)
        call.shape.n = 0;
    t->out_shape = call.shape;
    t->saved_floats = (int64_t)(call.saved_bytes / 4);
    return call;
}

static void prepare(trial *t)
{
    begin(t);
    for (int i = 0; i < t->inputs; i++) {
        int64_t n = count_of(&t->shape[i]);
        if (t->op->flags & GCKPT_INDEX(i)) {
            t->index = (int32_t *)calloc((size_t)n, 4);
            for (int64_t k = 0; k < n; k++)
                t->index[k] =
                    k % 7 == 3 ? -1
                               : (int32_t)below(t->op->classes(
                                     &(gckpt_call){ .in = { { .shape = t->shape[0] }, { .shape = t->shape[1] } } }, i));
            continue;
        }
        t->x[i] = values(n, t->scale, t->narrow >> i & 1);
        t->start[i] = values(n, t->scale, t->narrow >> (GRAD + i) & 1);
        t->grad[i] = floats(n);
    }
    t->g = values(count_of(&t->out_shape), t->scale, (t->narrow & GRAD_OUT) != 0);
    t->out = floats(count_of(&t->out_shape));
    t->saved = floats(t->saved_floats);
}

static void finish(trial *t)
{
    for (int i = 0; i < 3; i++)
        free(t->x[i]), free(t->start[i]), free(t->grad[i]);
    free(t->g), free(t->out), free(t->saved), free(t->index), free(t->given_out), free(t->given_saved);
}

static void workspace_sizes(const trial *t, gckpt_call *call)
{
    static uint16_t marker;
    gckpt_call planning = *call;
    for (int i = 0; i < t->inputs; i++)
        planning.in[i].bf16 = t->x[i] && t->narrow >> i & 1 ? &marker : NULL;
    planning.out_bf16 = t->narrow & OUT ? &marker : NULL;
    planning.grad_out_bf16 = t->narrow & GRAD_OUT ? &marker : NULL;
    CHECK(gpu->workspace(gpu->context, t->op, &planning) == GCKPT_OK);
    call->workspace_forward = planning.workspace_forward;
    call->workspace_backward = planning.workspace_backward;
}

static void device_runs(trial *t)
{
    gckpt_call call = begin(t);
    int64_t n = count_of(&t->out_shape);
    int loss = (t->op->flags & GCKPT_LOSS) != 0;
    void *out = NULL, *saved = NULL, *grad[4] = { NULL, NULL, NULL, NULL };
    struct {
        double sum;
        int64_t count;
    } total = { 0, 0 };
    workspace_sizes(t, &call);
    call.backend = gpu->context;
    for (int i = 0; i < t->inputs; i++) {
        int64_t size = count_of(&t->shape[i]);
        void *x = t->x[i] ? put(t->x[i], size, t->narrow >> i & 1) : on_device(t->index, (size_t)size * 4);
        if (!t->x[i])
            call.in[i].index = (const int32_t *)x;
        else if (t->narrow >> i & 1)
            call.in[i].bf16 = (const uint16_t *)x;
        else
            call.in[i].data = (const float *)x;
    }
    void *totals = on_device(&total, sizeof total);
    if (!loss) {
        out = put(NULL, n, t->narrow & OUT);
        if (t->narrow & OUT)
            call.out_bf16 = (uint16_t *)out;
        else
            call.out = (float *)out;
    } else {
        call.loss_sum = (double *)totals;
        call.loss_count = (int64_t *)(void *)((char *)totals + 8);
    }
    call.saved = saved = t->saved_floats ? put(NULL, t->saved_floats, 0) : NULL;
    call.workspace = call.workspace_forward ? on_device(NULL, call.workspace_forward) : NULL;
    gpu->find_fast(gpu->context, t->op, GCKPT_FORWARD)(&call);
    if (!loss)
        fetch(t->out, out, n, t->narrow & OUT);
    if (saved)
        fetch(t->saved, saved, t->saved_floats, 0);
    if (t->given_saved)
        call.saved = put(t->given_saved, t->saved_floats, 0);
    if (t->given_out && t->narrow & OUT)
        call.out_bf16 = (uint16_t *)put(t->given_out, n, 1);
    else if (t->given_out)
        call.out = (float *)put(t->given_out, n, 0);
    for (int i = 0; i < t->inputs; i++) {
        int64_t size = count_of(&t->shape[i]);
        int narrow = t->narrow >> (GRAD + i) & 1, add = t->held >> i & 1;
        if (!t->x[i] || t->no_gradient >> i & 1)
            continue;
        grad[i] = put(add ? t->start[i] : NULL, size, narrow);
        call.in[i].accumulate = add;
        if (narrow)
            call.in[i].grad_bf16 = (uint16_t *)grad[i];
        else
            call.in[i].grad = (float *)grad[i];
        if (t->op->needs[i] & GCKPT_SUMS && (!narrow || size < n)) {
            float *zero = floats(size);
            call.in[i].compensation = (float *)put(zero, size, 0);
            free(zero);
        }
    }
    if (!loss && t->narrow & GRAD_OUT)
        call.grad_out_bf16 = (uint16_t *)put(t->g, n, 1);
    else if (!loss)
        call.grad_out = (float *)put(t->g, n, 0);
    call.workspace = call.workspace_backward ? on_device(NULL, call.workspace_backward) : NULL;
    for (int i = 0; i < t->inputs; i++) { /* zeroes gradients; the backend may fold a fill into the kernel */
        int64_t size = count_of(&t->shape[i]);
        if (!call.in[i].grad || call.in[i].accumulate || size % 2)
            continue;
        gpu->fill(&call, call.in[i].grad, 0, size);
        call.in[i].accumulate = 1;
        if (call.in[i].compensation)
            gpu->fill(&call, call.in[i].compensation, 0, size);
    }
    call.loss_count = NULL; /* linear_cross_entropy adds the loss only where its lowering computes it */
    gpu->find_fast(gpu->context, t->op, GCKPT_BACKWARD)(&call);
    for (int i = 0; i < t->inputs; i++)
        if (grad[i])
            fetch(t->grad[i], grad[i], count_of(&t->shape[i]), t->narrow >> (GRAD + i) & 1);
    gpu->copy_out(gpu->context, &total, totals, sizeof total);
    t->sum = total.sum;
    t->count = total.count;
    const char *problem = gpu->finish(gpu->context);
    CHECK_MSG(!problem, "%s: %s", t->name, problem);
    free_device();
}

/* Checks that |got - want| is at most `error`, plus the rounding to bf16 if `narrow` is nonzero. */
static int near(const trial *t, const char *what, int64_t i, float got, double want, double error, int narrow)
{
    double allowed = error + (narrow ? HALF * (fabs(want) + error) : 0) + 1e-37;
    return CHECK_MSG(fabs((double)got - want) <= allowed,
                     "%s (narrow %x, held %x): %s[%ld] is %.9g, not %.9g: off by %.3g of %.3g", t->name, t->narrow,
                     t->held, what, (long)i, (double)got, want, fabs((double)got - want), allowed);
}

static double narrowed(double x, int already) { return already ? x : (double)gckpt_from_bf16(gckpt_to_bf16((float)x)); }

/* ---- linear ---- */
static void test_linear_of(int64_t m, int64_t k, int64_t n, int transposed, int bias, unsigned narrow, unsigned held)
{
    trial t = { .name = "linear", .op = &gckpti_op_linear, .attributes = &transposed, .inputs = 2 + bias,
                .shape = { gckpt_shape2(m, k), transposed ? gckpt_shape2(n, k) : gckpt_shape2(k, n), gckpt_shape1(n) },
                .narrow = narrow, .held = held, .scale = 1 };
    prepare(&t);
    device_runs(&t);
    /* x, w and g are the operands as the kernel reads them: it rounds f32 operands to bf16. */
    double *x = (double *)malloc((size_t)(m * k) * 8), *w = (double *)malloc((size_t)(n * k) * 8),
           *g = (double *)malloc((size_t)(m * n) * 8);
    for (int64_t i = 0; i < m * k; i++)
        x[i] = narrowed(t.x[0][i], narrow & 1);
    for (int64_t i = 0; i < n * k; i++) /* w is stored as (n,k) */
        w[i] = narrowed(t.x[1][transposed ? i : i % k * n + i / k], narrow >> 1 & 1);
    for (int64_t i = 0; i < m * n; i++)
        g[i] = narrowed(t.g[i], narrow & GRAD_OUT);
    /* The error of an addition is at most 2 CUT times the sum of magnitudes so far. */
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double want = bias ? t.x[2][j] : 0, all = fabs(want);
            for (int64_t p = 0; p < k; p++)
                want += x[i * k + p] * w[j * k + p], all += fabs(x[i * k + p] * w[j * k + p]);
            near(&t, "out", i * n + j, t.out[i * n + j], want, (double)(k + 2) * 2 * CUT * all, narrow & OUT);
        }
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++) {
            double want = held & 1 ? t.start[0][i * k + p] : 0, all = fabs(want);
            for (int64_t j = 0; j < n; j++)
                want += g[i * n + j] * w[j * k + p], all += fabs(g[i * n + j] * w[j * k + p]);
            near(&t, "dx", i * k + p, t.grad[0][i * k + p], want, (double)(n + 2) * 2 * CUT * all, narrow >> GRAD & 1);
        }
    for (int64_t j = 0; j < n; j++)
        for (int64_t p = 0; p < k; p++) {
            int64_t at = transposed ? j * k + p : p * n + j;
            double want = held & 2 ? t.start[1][at] : 0, all = fabs(want);
            for (int64_t i = 0; i < m; i++)
                want += g[i * n + j] * x[i * k + p], all += fabs(g[i * n + j] * x[i * k + p]);
            near(&t, "dw", at, t.grad[1][at], want, (double)(m + 2) * 2 * CUT * all, narrow >> (GRAD + 1) & 1);
        }
    for (int64_t j = 0; bias && j < n; j++) { /* sums of 16 rows at a time are added with compensation */
        double want = held & 4 ? t.start[2][j] : 0, all = fabs(want);
        for (int64_t i = 0; i < m; i++)
            want += t.g[i * n + j], all += fabs((double)t.g[i * n + j]);
        near(&t, "dbias", j, t.grad[2][j], want, 20 * CUT * all, 0);
    }
    free(x), free(w), free(g);
    finish(&t);
}

static void test_linear(int large)
{
    static const int64_t some[][3] = {
        { 1, 1, 1 },    { 16, 32, 8 },   { 33, 17, 31 },  { 64, 64, 64 }, { 65, 63, 66 },
        { 31, 127, 2 }, { 128, 40, 72 }, { 130, 129, 9 }, { 15, 8, 129 }, { 200, 24, 16 }
    };
    static const int64_t wide[][3] = { { 65, 128, 66 }, { 200, 70, 101 }, { 193, 250, 256 } };
    const int64_t(*sizes)[3] = large ? wide : some;
    for (int i = 0; i < (large ? 3 : 10); i++)
        for (int way = 0; way < 4; way++) {
            if (large && way != i && way != 3)
                continue;
            unsigned keeps = 1 | OUT | GRAD_OUT | 1 << GRAD; /* way 0 is as in plans; 1 all f32; 2 also bf16 weights */
            unsigned narrow = way == 0 ? keeps : way == 1 ? 0 : way == 2 ? keeps | 2 | 1 << (GRAD + 1) : 1 | GRAD_OUT;
            test_linear_of(sizes[i][0], sizes[i][1], sizes[i][2], (way + (int)i) % 2, way != 2, narrow,
                           way == 1   ? 7
                           : way == 2 ? 1
                                      : 2);
        }
}

/* ---- attention. If `causal` is nonzero, the last causal - 1 keys do not exist, as in a cache that is not full. window
 * and factor are those of gckpti_attention, or 0 ---- */
static void test_window_attention(int64_t b, int64_t queries, int64_t keys, int heads, int group, int64_t d, int causal,
                                  int few, unsigned narrow, unsigned held, unsigned unwanted, int window, float factor)
{
    const int extras = window || factor > 0;
    const gckpti_attention o = { heads, causal, group > 1 ? heads / group : 0, extras, window, 0, factor };
    int64_t c = heads * d, kc = c / group;
    trial t = { .name = "attention",
                .op = &gckpti_op_attention,
                .attributes = &o,
                .inputs = 3 + few,
                .shape = { gckpt_shape3(b, queries, c), gckpt_shape3(b, keys, kc), gckpt_shape3(b, keys, kc),
                           gckpt_shape1(b) },
                .narrow = narrow,
                .held = held,
                .no_gradient = unwanted,
                .scale = 1 };
    prepare(&t);
    const int64_t whole = causal ? keys + 1 - causal : keys;
    for (int64_t i = 0; few && i < b; i++)
        t.index[i] = (int32_t)(i % 3 == 0 ? keys / 2 : i % 3 == 1 ? 0 : keys);
    for (int64_t i = 0; i < b * keys * kc; i++)
        if (i / kc % keys >= (few ? t.index[i / kc / keys] : whole) ||
            (window && i / kc % keys + window <= whole - queries)) /* no query sees it */
            t.x[1][i] = t.x[2][i] = NAN;
    int64_t nq = b * queries * c, nk = b * keys * kc;
    double *out = (double *)calloc((size_t)nq, 8), *out_error = (double *)calloc((size_t)nq, 8),
           scale = factor > 0 ? factor : 1 / sqrt((double)d);
    double *want[3], *error[3], *p = (double *)malloc((size_t)keys * 8), *all = (double *)malloc((size_t)keys * 8);
    t.given_out = floats(nq);
    t.given_saved = floats(b * heads * queries);
    for (int i = 0; i < 3; i++)
        want[i] = (double *)calloc((size_t)(i ? nk : nq), 8), error[i] = (double *)calloc((size_t)(i ? nk : nq), 8);
#define Q(i, e) narrowed(t.x[0][((row * queries + (i)) * heads + h) * d + (e)], narrow & 1)
#define K(j, e) narrowed(t.x[1][((row * keys + (j)) * heads + h) / group * d + (e)], narrow & 2)
#define V(j, e) narrowed(t.x[2][((row * keys + (j)) * heads + h) / group * d + (e)], narrow & 4)
#define G(i, e) narrowed(t.g[((row * queries + (i)) * heads + h) * d + (e)], narrow & GRAD_OUT)
    for (int64_t row = 0; row < b; row++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < queries; i++) {
                const int64_t there = few ? t.index[row] : keys, last = causal ? whole - queries + i + 1 : keys;
                const int64_t from = window && last > window ? last - window : 0;
                int64_t seen = last < there ? last : there, at = ((row * queries + i) * heads + h) * d,
                        n = (row * heads + h) * queries + i;
                double max = -INFINITY, sum = 0, most = 0, delta = 0, around = 0;
                for (int64_t j = from; j < seen; j++) {
                    p[j] = all[j] = 0;
                    for (int64_t e = 0; e < d; e++)
                        p[j] += Q(i, e) * K(j, e) * scale, all[j] += fabs(Q(i, e) * K(j, e)) * scale;
                    max = fmax(max, p[j]), most = fmax(most, all[j]);
                }
                for (int64_t j = from; j < seen; j++)
                    sum += p[j] = exp(p[j] - max);
                max = seen > from ? max : 0, sum = seen > from ? sum : 1;
                t.given_saved[n] = (float)(max + log(sum));
                /* `off` bounds the error of a score: the truncations in its sum and a few roundings (conversion to base
                 * 2, maximum, `saved`). The relative error of an exponential is the error of its score plus the error
                 * of exp2, 4 truncations. A weight p is rounded to bf16 before it is multiplied by v. */
                double off = ((double)d + 12) * 2 * CUT * most + 8 * CUT;
                near(&t, "saved", n, t.given_saved[n], max + log(sum), off + 1e-6, 0);
                for (int64_t j = from; j < seen; j++)
                    p[j] /= sum;
                for (int64_t e = 0; e < d; e++) {
                    for (int64_t j = from; j < seen; j++)
                        out[at + e] += p[j] * V(j, e), out_error[at + e] += p[j] * fabs(V(j, e));
                    out_error[at + e] *= HALF + 2 * off + (double)(seen + 4) * 2 * CUT;
                    t.given_out[at + e] = gckpt_from_bf16(gckpt_to_bf16((float)out[at + e]));
                    delta += t.g[at + e] * (double)t.given_out[at + e],
                        around += fabs(t.g[at + e] * (double)t.given_out[at + e]);
                }
                for (int64_t j = from; j < seen; j++) {
                    double dp = 0, wide = 0;
                    int64_t key = ((row * keys + j) * heads + h) / group * d;
                    for (int64_t e = 0; e < d; e++)
                        dp += G(i, e) * V(j, e), wide += fabs(G(i, e) * V(j, e));
                    double ds = p[j] * (dp - delta) * scale;
                    double slack = p[j] * scale *
                                   (2 * off * fabs(dp - delta) + ((double)d + 4) * 2 * CUT * (wide + around)) * 1.01;
                    slack += HALF * (fabs(ds) + slack);
                    double slip = p[j] * (HALF + 2 * off + (double)(queries + keys) * 2 * CUT);
                    slack += fabs(ds) * (double)(queries + keys) * 2 * CUT;
                    for (int64_t e = 0; e < d; e++) {
                        want[0][at + e] += ds * K(j, e), error[0][at + e] += slack * fabs(K(j, e));
                        want[1][key + e] += ds * Q(i, e), error[1][key + e] += slack * fabs(Q(i, e));
                        want[2][key + e] += p[j] * G(i, e), error[2][key + e] += slip * fabs(G(i, e));
                    }
                }
            }
#undef Q
#undef K
#undef V
#undef G
    device_runs(&t);
    for (int64_t i = 0; i < nq; i++)
        near(&t, "out", i, t.out[i], out[i], out_error[i], narrow & OUT);
    for (int64_t i = 0; i < b * heads * queries; i++)
        near(&t, "saved", i, t.saved[i], t.given_saved[i], ((double)d + 16) * 2 * CUT * 16 * (double)d, 0);
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < (k ? nk : nq) && !(unwanted >> k & 1); i++) {
            double start = held >> k & 1 ? t.start[k][i] : 0;
            near(&t,
                 k == 0   ? "dq"
                 : k == 1 ? "dk"
                          : "dv",
                 i, t.grad[k][i], start + want[k][i], error[k][i] + 2 * CUT * fabs(start), narrow >> (GRAD + k) & 1);
        }
    for (int i = 0; i < 3; i++)
        free(want[i]), free(error[i]);
    free(out), free(out_error), free(p), free(all);
    finish(&t);
}

static void test_shared_attention(int64_t b, int64_t queries, int64_t keys, int heads, int group, int64_t d, int causal,
                                  int few, unsigned narrow, unsigned held, unsigned unwanted)
{
    test_window_attention(b, queries, keys, heads, group, d, causal, few, narrow, held, unwanted, 0, 0);
}

static void test_attention_of(int64_t b, int64_t queries, int64_t keys, int heads, int64_t d, int causal,
                              unsigned narrow, unsigned held, unsigned unwanted)
{
    test_shared_attention(b, queries, keys, heads, 1, d, causal, 0, narrow, held, unwanted);
}

/* Makes one element of q, k, v or of the output's gradient infinite or NaN, at one token. Results that do not depend on
 * that token must keep their bits; the results that add products with this element must become infinite or NaN. */
static void test_masked(int64_t d, int64_t queries, int64_t keys, int window)
{
    const gckpti_attention o = { 1, 1, 0, window > 0, window, 0, 0 };
    const int64_t most = window ? window : keys;
    const int64_t n[3] = { queries * d, keys * d, keys * d }, ahead = keys - queries;
    trial t = { .name = "attention", .op = &gckpti_op_attention, .attributes = &o, .inputs = 3,
                .shape = { gckpt_shape3(1, queries, d), gckpt_shape3(1, keys, d), gckpt_shape3(1, keys, d) },
                .narrow = 7 | OUT | GRAD_OUT | 7 << GRAD, .scale = 1 };
    prepare(&t);
    device_runs(&t);
    float *clean[4] = { t.grad[0], t.grad[1], t.grad[2], t.out };
    for (int which = 0; which < 4; which++)
        for (int64_t token = queries / 3 - 1; token < queries; token += queries / 3) {
            int of_query = which == 0 || which == 3; /* which: 0 to 3 for an element of q, k, v or g */
            float *x = (which == 3 ? t.g : t.x[which]) + (token + (of_query ? 0 : ahead)) * d + d / 2, before = *x;
            int64_t wrong = 0, hidden = 0;
            *x = token / (queries / 3) % 2 ? INFINITY : NAN;
            for (int i = 0; i < 3; i++)
                t.grad[i] = floats(n[i]);
            t.out = floats(n[0]);
            device_runs(&t);
            for (int64_t i = 0; i < n[0]; i++) { /* outputs and dq; `apart`: the query does not see the token */
                int apart = of_query ? i / d != token : i / d < token || i / d >= token + most;
                wrong += (apart || which == 3) && t.out[i] != clean[3][i];
                wrong += apart && t.grad[0][i] != clean[0][i];
                hidden += !of_query && !apart && i % d == d / 2 && isfinite(which == 1 ? t.grad[0][i] : t.out[i]);
            }
            for (int64_t i = 0; i < n[1]; i++) { /* dk, dv; `apart`: the token's query does not see the key */
                int apart = i / d > token + ahead || i / d + most <= token + ahead;
                wrong += of_query && apart && (t.grad[1][i] != clean[1][i] || t.grad[2][i] != clean[2][i]);
                hidden += of_query && !apart && i % d == d / 2 && isfinite(t.grad[which == 0 ? 1 : 2][i]);
            }
            CHECK_MSG(wrong == 0 && hidden == 0,
                      "attention %ld over %ld, heads of %ld: %c of token %ld not finite: %ld wrong, %ld hidden",
                      (long)queries, (long)keys, (long)d, "qkvg"[which], (long)token, (long)wrong, (long)hidden);
            *x = before;
            for (int i = 0; i < 3; i++)
                free(t.grad[i]);
            free(t.out);
        }
    for (int i = 0; i < 3; i++)
        t.grad[i] = clean[i];
    t.out = clean[3];
    finish(&t);
}

/* Attention over three rows must have the bits of attention over each row alone. Four heads share two key heads. Rows
 * have lengths, or a cache that is not full. */
static void test_row_by_row(int64_t d, int64_t queries, int64_t keys, int few)
{
    enum { ROWS = 3, HEADS_OF = 4, KEY_HEADS = 2 };
    const gckpti_attention o = { HEADS_OF, few ? 1 : 1 + 9, KEY_HEADS, 0, 0, 0, 0 };
    const int64_t c = HEADS_OF * d, kc = KEY_HEADS * d, nq = queries * c, nk = keys * kc, stats = HEADS_OF * queries;
    trial t = { .name = "attention", .op = &gckpti_op_attention, .attributes = &o, .inputs = 3 + few,
                .shape = { gckpt_shape3(ROWS, queries, c), gckpt_shape3(ROWS, keys, kc), gckpt_shape3(ROWS, keys, kc),
                           gckpt_shape1(ROWS) },
                .narrow = 7 | OUT | GRAD_OUT | 1 << GRAD, .scale = 1 };
    prepare(&t);
    for (int64_t i = 0; few && i < ROWS; i++)
        t.index[i] = (int32_t)(i == 0 ? keys / 2 : keys - i);
    device_runs(&t);
    for (int row = 0; row < ROWS; row++) {
        trial one = t;
        const int64_t n[3] = { nq, nk, nk };
        for (int i = 0; i < 3 + few; i++)
            one.shape[i].d[0] = 1;
        for (int i = 0; i < 3; i++)
            one.x[i] = t.x[i] + row * n[i], one.grad[i] = floats(n[i]);
        one.g = t.g + row * nq, one.out = floats(nq), one.saved = floats(stats);
        one.index = few ? t.index + row : NULL;
        device_runs(&one);
        CHECK_MSG(!memcmp(one.out, t.out + row * nq, (size_t)nq * 4) &&
                      !memcmp(one.saved, t.saved + row * stats, (size_t)stats * 4),
                  "heads of %d, row %d alone: other bits", (int)d, row);
        for (int i = 0; i < 3; i++) {
            CHECK_MSG(!memcmp(one.grad[i], t.grad[i] + row * n[i], (size_t)n[i] * 4),
                      "heads of %d, row %d alone: other bits of gradient %d", (int)d, row, i);
            free(one.grad[i]);
        }
        free(one.out), free(one.saved);
    }
    finish(&t);
}

static void test_attention(void)
{
    const unsigned all = 7 | OUT | GRAD_OUT | 7 << GRAD;
    test_attention_of(1, 330, 330, 1, 8, 1, all, 0, 0); /* more tiles than stages; first, as for products in main */
    test_attention_of(1, 1, 1, 1, 1, 1, all, 0, 0);
    test_attention_of(2, 66, 66, 2, 8, 1, all, 0, 0);
    test_attention_of(1, 64, 64, 1, 64, 1, all, 7, 0);
    test_attention_of(1, 65, 130, 1, 16, 0, all, 2, 0);
    test_attention_of(1, 130, 31, 2, 5, 0, all & ~2u, 1, 0);
    test_attention_of(1, 129, 129, 1, 20, 1, 0, 5, 0);
    test_attention_of(1, 70, 70, 1, 72, 1, all, 0, 0);
    test_attention_of(1, 33, 97, 1, 128, 0, all & ~(unsigned)OUT, 4, 0);
    test_attention_of(1, 40, 40, 1, 65, 1, 7 | GRAD_OUT, 0, 1);
    test_attention_of(1, 40, 40, 1, 24, 1, all, 0, 6);
    test_attention_of(1, 40, 40, 1, 24, 1, all, 0, 2);
    test_attention_of(2, 3, 66, 2, 8, 1, all, 0, 0);
    test_attention_of(1, 70, 133, 1, 16, 1, all, 7, 0);
    test_attention_of(1, 65, 129, 1, 24, 1, all, 0, 0);
    test_attention_of(1, 66, 131, 1, 72, 1, all & ~2u, 2, 0);
    test_attention_of(2, 1, 100, 2, 8, 1 + 29, all, 0, 0);
    test_attention_of(1, 40, 140, 1, 20, 1 + 12, 0, 0, 0);
    test_shared_attention(1, 66, 66, 4, 2, 8, 1, 0, all, 0, 0);
    test_shared_attention(2, 40, 131, 3, 3, 24, 0, 0, all, 2, 0);
    test_shared_attention(1, 70, 70, 4, 4, 72, 1, 0, all & ~2u, 6, 0);
    test_shared_attention(3, 65, 130, 2, 1, 16, 0, 1, all, 0, 0);
    test_shared_attention(3, 40, 70, 2, 1, 20, 1, 1, 0, 5, 0);
    test_shared_attention(3, 67, 140, 4, 2, 8, 1, 1, all, 0, 0);
    test_shared_attention(3, 1, 100, 6, 3, 8, 0, 1, all, 0, 0);
    test_attention_of(1, 66, 200, 1, 128, 1 + 30, all, 3, 0);
    test_shared_attention(3, 70, 140, 2, 2, 64, 1, 1, all, 1, 0);
    test_shared_attention(3, 67, 131, 2, 2, 128, 0, 1, 7 | OUT | GRAD_OUT, 6, 0);
    test_masked(24, 70, 70, 0);
    test_masked(16, 40, 71, 0);
    test_masked(66, 67, 67, 0);
    test_masked(8, 5, 67, 0);
    test_masked(128, 66, 70, 0);
    test_masked(24, 140, 140, 20);
    test_masked(66, 67, 140, 70);
    test_window_attention(1, 330, 330, 2, 1, 16, 1, 0, all, 0, 0, 40, 0);
    test_window_attention(1, 200, 200, 1, 1, 24, 1, 0, all, 7, 0, 1, 0.25f);
    test_window_attention(1, 200, 200, 1, 1, 16, 1, 0, all, 0, 0, 127, 0); /* tiles without one pair */
    test_window_attention(1, 140, 140, 1, 1, 72, 1, 0, all, 0, 0, 95, 0);
    test_window_attention(2, 70, 141, 4, 2, 72, 1, 0, all, 2, 0, 64, 0);
    test_window_attention(2, 130, 130, 2, 2, 128, 1, 0, all & ~2u, 5, 0, 65, 0);
    test_window_attention(3, 100, 170, 2, 1, 8, 1, 1, all, 6, 0, 30, 0.5f);
    test_window_attention(1, 66, 200, 1, 1, 64, 1 + 30, 0, all, 0, 0, 100, 0);
    test_window_attention(1, 40, 40, 1, 1, 8, 0, 0, all, 0, 0, 0, 2);
    test_row_by_row(64, 70, 140, 0);
    test_row_by_row(104, 66, 66, 1);
}

/* ---- linear_cross_entropy ---- */
/* Runs t again in the lowering, in which the backward computes all, `block` rows at a time: the bits must be equal. */
static void same_in_blocks(trial *t, int block)
{
    const gckpti_linear_loss lowering = { block, 0 };
    float *before[2];
    const double sum = t->sum;
    const int64_t count = t->count;
    for (int i = 0; i < 2; i++) {
        before[i] = t->grad[i];
        t->grad[i] = floats(count_of(&t->shape[i]));
    }
    t->attributes = &lowering;
    device_runs(t);
    t->attributes = NULL;
    CHECK_MSG(t->sum == sum && t->count == count, "blocks of %d: loss %.17g of %ld, not %.17g of %ld", block, t->sum,
              (long)t->count, sum, (long)count);
    for (int i = 0; i < 2; i++) {
        CHECK_MSG(!memcmp(t->grad[i], before[i], (size_t)count_of(&t->shape[i]) * 4),
                  "blocks of %d: other bits of gradient %d", block, i);
        free(t->grad[i]);
        t->grad[i] = before[i];
    }
}

static void test_loss_of(int64_t rows, int64_t c, int64_t v, float scale, unsigned narrow, unsigned held,
                         unsigned unwanted)
{
    trial t = { .name = "linear_cross_entropy", .op = &gckpti_op_linear_cross_entropy, .inputs = 3,
                .shape = { gckpt_shape2(rows, c), gckpt_shape2(v, c), gckpt_shape1(rows) },
                .narrow = narrow, .held = held, .no_gradient = unwanted, .scale = scale };
    prepare(&t);
    device_runs(&t);
    if (rows < 1000)
        same_in_blocks(&t, 16 * (1 + (int)below(4)));
    double *x = (double *)malloc((size_t)(rows * c) * 8), *w = (double *)malloc((size_t)(v * c) * 8),
           *p = (double *)malloc((size_t)v * 8);
    double *dw = (double *)calloc((size_t)(v * c), 8), *dw_error = (double *)calloc((size_t)(v * c), 8),
           *d = (double *)malloc((size_t)c * 8), *d_error = (double *)malloc((size_t)c * 8);
    for (int64_t i = 0; i < rows * c; i++)
        x[i] = narrowed(t.x[0][i], narrow & 1);
    for (int64_t i = 0; i < v * c; i++)
        w[i] = narrowed(t.x[1][i], narrow & 2);
    double loss = 0, loss_error = 0;
    int64_t count = 0;
    for (int64_t r = 0; r < rows; r++) {
        double max = -INFINITY, sum = 0, most = 0;
        for (int64_t e = 0; e < c; e++)
            d[e] = d_error[e] = 0;
        for (int64_t j = 0; j < v && t.index[r] >= 0; j++) {
            double all = 0;
            p[j] = 0;
            for (int64_t e = 0; e < c; e++)
                p[j] += x[r * c + e] * w[j * c + e], all += fabs(x[r * c + e] * w[j * c + e]);
            max = fmax(max, p[j]), most = fmax(most, all);
        }
        /* `off` bounds the error of a logit: truncations, and roundings when the maximum is subtracted. `sums` bounds
         * the relative error of a sum: one truncation for each addition. */
        double off = ((double)c + 8) * 2 * CUT * most + 8 * CUT, sums = (double)(128 + (v + 63) / 64) * 2 * CUT;
        for (int64_t j = 0; j < v && t.index[r] >= 0; j++)
            sum += exp(p[j] - max);
        if (t.index[r] >= 0) {
            count++;
            loss += log(sum) - (p[t.index[r]] - max);
            loss_error += 4 * off + 2 * sums + 4 * CUT * (fabs(log(sum)) + most);
        }
        for (int64_t j = 0; j < v && t.index[r] >= 0; j++) {
            double q = exp(p[j] - max) / sum, deriv = (q - (j == t.index[r])) * 0.75;
            double slack = q * 0.75 * (4 * off + sums + 4 * CUT * (fabs(log(sum)) + 2 * most)) + 2 * CUT * fabs(deriv);
            slack += HALF * (fabs(deriv) + slack);
            for (int64_t e = 0; e < c; e++) {
                d[e] += deriv * w[j * c + e],
                    d_error[e] += (slack + (double)(v + 2) * 2 * CUT * fabs(deriv)) * fabs(w[j * c + e]);
                dw[j * c + e] += deriv * x[r * c + e],
                    dw_error[j * c + e] += (slack + (double)(rows + 2) * 2 * CUT * fabs(deriv)) * fabs(x[r * c + e]);
            }
        }
        for (int64_t e = 0; e < c && !(unwanted & 1); e++) {
            double start = held & 1 ? t.start[0][r * c + e] : 0;
            near(&t, "dx", r * c + e, t.grad[0][r * c + e], start + d[e],
                 d_error[e] + (double)(v + 2) * 2 * CUT * fabs(start), narrow >> GRAD & 1);
        }
    }
    CHECK_MSG(t.count == count && fabs(t.sum - loss) <= loss_error, "%s: %ld rows of %ld, loss %.9g, not %.9g", t.name,
              (long)t.count, (long)count, t.sum, loss);
    for (int64_t i = 0; i < v * c && !(unwanted & 2); i++) {
        double start = held & 2 ? t.start[1][i] : 0;
        near(&t, "dw", i, t.grad[1][i], start + dw[i], dw_error[i] + (double)(rows + 2) * 2 * CUT * fabs(start), 0);
    }
    free(x), free(w), free(p), free(dw), free(dw_error), free(d), free(d_error);
    finish(&t);
}

static void test_loss(void)
{
    test_loss_of(1, 1, 1, 1, 1, 0, 0);
    test_loss_of(33, 16, 100, 1, 1 | 1 << GRAD, 0, 0);
    test_loss_of(66, 24, 65, 8, 1 | 1 << GRAD, 3, 0); /* logits of several hundred */
    test_loss_of(17, 31, 129, 1, 0, 2, 0);
    test_loss_of(16, 8, 131, 1, 0, 1, 2);
    test_loss_of(16, 8, 64, 1, 1 | 1 << GRAD, 1, 1);
    test_loss_of(18, 8, 4201, 1, 1 | 1 << GRAD, 1, 0); /* classes that take two chunks */
    test_loss_of(16388, 8, 10, 1, 1 | 1 << GRAD, 2, 0); /* rows in two blocks in the forward, in five in the backward */
}

/* ---- norms ---- */
static void test_norm_of(int64_t rows, int64_t n, int center, int gain, int bias, float offset, unsigned narrow,
                         unsigned held)
{
    const float epsilon = n % 2 ? 0.03125f : 1e-5f;
    const gckpti_norm o = { center, gain, bias ? gain + 1 : 0, n % 2 ? epsilon : 0 };
    trial t = { .name = center ? "layernorm" : "rmsnorm",
                .op = center ? &gckpti_op_layernorm : &gckpti_op_rmsnorm,
                .attributes = &o,
                .inputs = 1 + gain + bias,
                .shape = { gckpt_shape2(rows, n), gckpt_shape1(n), gckpt_shape1(n) },
                .narrow = narrow,
                .held = held,
                .scale = 1 };
    prepare(&t);
    for (int64_t i = 0; i < rows * n; i++) {
        t.x[0][i] += offset;
        if (narrow & 1)
            t.x[0][i] = gckpt_from_bf16(gckpt_to_bf16(t.x[0][i]));
    }
    device_runs(&t);
    const float *gains = gain ? t.x[1] : NULL, *biases = bias ? t.x[1 + gain] : NULL;
    double *dgain = (double *)calloc((size_t)n, 8), *gain_error = (double *)calloc((size_t)n, 8),
           *h = (double *)malloc((size_t)n * 8), *h_error = (double *)malloc((size_t)n * 8);
    double each = ((double)n / 32 + 16) * 2 * CUT; /* relative error of a sum that 32 lanes compute together */
    for (int64_t r = 0; r < rows; r++) {
        const float *x = t.x[0] + r * n, *g = t.g + r * n;
        double mean = 0, squares = 0, most = 0, a = 0, b = 0, around = 0, slip = 0;
        for (int64_t i = 0; i < n; i++)
            mean += center ? (double)x[i] / (double)n : 0;
        for (int64_t i = 0; i < n; i++)
            squares += (x[i] - mean) * (x[i] - mean) / (double)n, most = fmax(most, fabs((double)x[i] - x[0]));
        double rstd = 1 / sqrt(squares + epsilon);
        /* `off` bounds the error of x - mean: the error of the sum of x - x[0], and a rounding for each of two
         * subtractions. */
        double off = center ? each * most + CUT * (fabs(mean) + fabs((double)x[0])) : 0;
        for (int64_t i = 0; i < n; i++) {
            h[i] = (x[i] - mean) * rstd;
            h_error[i] = rstd * off * (1 + 2 * fabs(h[i])) + fabs(h[i]) * (each + 8 * CUT);
            double u = g[i] * (gains ? gains[i] : 1.0);
            a += center ? u / (double)n : 0, b += u * h[i] / (double)n;
            around += fabs(u) / (double)n, slip += (fabs(u * h[i]) * each + fabs(u) * h_error[i]) / (double)n;
            dgain[i] += g[i] * h[i], gain_error[i] += fabs((double)g[i]) * (h_error[i] + 24 * CUT * fabs(h[i]));
        }
        for (int64_t i = 0; i < n; i++) {
            double by = gains ? gains[i] : 1, plus = biases ? biases[i] : 0, u = g[i] * by;
            near(&t, "out", r * n + i, t.out[r * n + i], h[i] * by + plus,
                 fabs(by) * h_error[i] + 4 * CUT * (fabs(h[i] * by) + fabs(plus)), narrow & OUT);
            double start = held & 1 ? t.start[0][r * n + i] : 0, dx = rstd * (u - a - h[i] * b);
            double error = rstd * (each * around + fabs(h[i]) * slip + h_error[i] * fabs(b)) +
                           (rstd * rstd * off + each + 8 * CUT) * rstd * (fabs(u) + fabs(a) + fabs(h[i] * b));
            near(&t, "dx", r * n + i, t.grad[0][r * n + i], start + dx, error + 2 * CUT * (fabs(start) + fabs(dx)),
                 narrow >> GRAD & 1);
        }
    }
    for (int64_t i = 0; i < n && gain; i++) {
        double start = held & 2 ? t.start[1][i] : 0;
        near(&t, "dgain", i, t.grad[1][i], start + dgain[i], gain_error[i] + 4 * CUT * (fabs(start) + fabs(dgain[i])),
             0);
    }
    for (int64_t i = 0; i < n && bias; i++) {
        double want = held >> (1 + gain) & 1 ? t.start[1 + gain][i] : 0, all = fabs(want);
        for (int64_t r = 0; r < rows; r++)
            want += t.g[r * n + i], all += fabs((double)t.g[r * n + i]);
        near(&t, "dbias", i, t.grad[1 + gain][i], want, 20 * CUT * all, 0);
    }
    free(dgain), free(gain_error), free(h), free(h_error);
    finish(&t);
}

static void test_norms(void)
{
    const unsigned all = 1 | OUT | GRAD_OUT | 1 << GRAD;
    test_norm_of(1, 1, 1, 1, 1, 0, all, 0);
    test_norm_of(33, 768, 1, 1, 1, 0, all, 0);
    test_norm_of(300, 31, 1, 1, 0, 100, all, 3);
    test_norm_of(17, 264, 1, 0, 1, 0, all, 1);
    test_norm_of(16, 257, 1, 0, 0, -5, 0, 0);
    test_norm_of(65, 64, 0, 1, 0, 1, all, 1);
    test_norm_of(9, 129, 0, 0, 0, 0, 1 | GRAD_OUT, 1);
    test_norm_of(8211, 8, 1, 1, 1, 0, all, 6); /* the sum of the gain's gradient takes three launches */
}

/* ---- elementwise ops and slice, whose error is that of a few roundings of one f32 formula ---- */
static double plain(const trial *t, const gckpt_call *call, int i, int64_t at)
{
    return i < 0 ? (double)call->out[at]
                 : (double)call->in[i].grad[at] + (t->held >> i & 1 ? (double)t->start[i][at] : 0);
}

/* gelu as GCKPT_BF16_FAST computes it: y = x s with s = 1 / (1 + exp(-u)), u = 2 c (x + 0.044715 x^3) and c the root
 * of 2 / pi. Sets *y, its derivative *deriv, the error bound *off of y and the error bound *slip of the derivative. The
 * error of s comes from four roundings of u, 2 ulp of exp2, one sum and 1 ulp of the quotient; 1 - s has one rounding
 * more. */
static void gelu_of(double x, double *y, double *off, double *deriv, double *slip)
{
    const double c = sqrt(2 / acos(-1)), u = 2 * c * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(-u)),
                 r = (2 * fabs(u) + 6) * CUT;
    const double by = 2 * c * (1 + 3 * 0.044715 * x * x), around = fabs(x * s * by);
    *y = x * s, *off = fabs(*y) * (r + CUT);
    *deriv = s + x * s * (1 - s) * by;
    *slip = s * r + around * ((1 - s) * (r + 4 * CUT) + s * r + CUT) + CUT * fabs(*deriv);
}

/* Compares the device's fast kernels of an op with the exact fp32 kernels of the processor on the same values. */
static void test_alike(trial t)
{
    float *grad[3] = { NULL, NULL, NULL };
    prepare(&t);
    device_runs(&t);
    gckpt_call call = begin(&t);
    float *low = floats(count_of(&t.out_shape));
    call.precision = GCKPT_FP32;
    call.out = floats(count_of(&t.out_shape));
    call.workspace = calloc(call.workspace_forward + 1, 1);
    for (int i = 0; i < t.inputs; i++) {
        call.in[i].data = t.x[i];
        call.in[i].grad = grad[i] = floats(count_of(&t.shape[i]));
        call.in[i].compensation = count_of(&t.shape[i]) < count_of(&t.out_shape) ? low : NULL;
    }
    t.op->forward(&call);
    const int own = t.op == &gckpti_op_gelu;
    double y, off, deriv, slip;
    for (int64_t i = 0; i < count_of(&t.out_shape); i++) {
        y = plain(&t, &call, -1, i), off = 4 * CUT * fabs(y);
        if (own)
            gelu_of(t.x[0][i], &y, &off, &deriv, &slip);
        near(&t, "out", i, t.out[i], y, off, t.narrow & OUT);
    }
    float *out = call.out; /* the exact backward reads the output of the fast forward */
    call.out = t.out;
    call.grad_out = t.g;
    t.op->backward(&call);
    for (int k = 0; k < t.inputs; k++)
        for (int64_t i = 0; i < count_of(&t.shape[k]); i++) {
            double want = plain(&t, &call, k, i), error = 4 * CUT * (fabs(want) + fabs((double)grad[k][i]));
            if (count_of(&t.shape[k]) < count_of(&t.out_shape)) /* sums over rows, some of them with compensation */
                error += 32 * CUT;
            if (own) {
                gelu_of(t.x[0][i], &y, &off, &deriv, &slip);
                want = t.g[i] * deriv + (t.held & 1 ? (double)t.start[0][i] : 0);
                error = fabs((double)t.g[i]) * (slip + CUT * fabs(deriv)) + CUT * fabs(want);
            }
            near(&t, "gradient", i, t.grad[k][i], want, error, t.narrow >> (GRAD + k) & 1);
        }
    for (int k = 0; k < 3; k++)
        free(grad[k]);
    free(out), free(low), free(call.workspace);
    finish(&t);
}

static void test_elementwise(void)
{
    const gckpt_op *const ops[] = { &gckpti_op_gelu,    &gckpti_op_gelu_erf, &gckpti_op_silu, &gckpti_op_tanh,
                                    &gckpti_op_sigmoid, &gckpti_op_add,      &gckpti_op_sub,  &gckpti_op_mul,
                                    &gckpti_op_slice,   &gckpti_op_relu,     &gckpti_op_scale };
    static const float factor = 0.3f;
    static const int64_t sizes[] = { 1, 7, 8, 65, 256 };
    for (int k = 0; k < 11; k++)
        for (int way = 0; way < 5; way++)
            for (int i = 0; i < 5; i++) {
                aside = way == 4 ? 4 : 0; /* 4 bytes off: not aligned to 16 bytes */
                const gckpti_slice part = { .axis = 1, .begin = { sizes[i], 0 }, .end = { 3 * sizes[i], 0 } };
                gckpt_shape s = gckpt_shape2(5, k == 8 ? 4 * sizes[i] : sizes[i]);
                trial t = { .name = ops[k]->name,
                            .op = ops[k],
                            .attributes = k == 8 ? (const void *)&part : &factor,
                            .inputs = k < 5 || k >= 8 ? 1 : 2,
                            .shape = { s, s },
                            .scale = 2 };
                t.narrow = way % 4 == 0 ? 3u | OUT | GRAD_OUT | 3 << GRAD
                           : way == 1   ? 0
                           : way == 2   ? 1u | GRAD_OUT
                                        : 2u | OUT | 1 << GRAD;
                t.held = (unsigned)(way + i);
                test_alike(t);
            }
    /* Rotary with 1, 7, 8, 65 or 256 pairs per head, or on a part of a head; then dropout and add with broadcasting. */
    for (int k = 0; k < 3; k++)
        for (int way = 0; way < 5; way++)
            for (int i = 0; i < 7; i++) {
                const int64_t c = i < 5 ? 4 * sizes[i] : i == 5 ? 48 : 40;
                const gckpti_rotary rotary = { 2, 10000, 5, i < 5 ? 0 : i == 5 ? 16 : 8, 1.5f, 0 };
                const float *p = &factor;
                aside = way == 4 ? 4 : 0;
                trial t = { .name = k == 0   ? "rotary"
                                    : k == 1 ? "dropout"
                                             : "a repeated add",
                            .attributes = k ? (const void *)p : &rotary,
                            .inputs = 1 + k / 2,
                            .op = k == 0   ? &gckpti_op_rotary
                                  : k == 1 ? &gckpti_op_dropout
                                           : &gckpti_op_add,
                            .shape = { gckpt_shape3(3, 5, c), gckpt_shape2(5, c) },
                            .scale = 2 };
                t.narrow = way % 4 == 0 ? 1u | OUT | GRAD_OUT | 1 << GRAD
                           : way == 1   ? 0
                           : way == 2   ? 1u | GRAD_OUT
                                        : 2u | OUT | 3 << GRAD;
                t.held = (unsigned)(way + i);
                test_alike(t);
            }
    aside = 0;
}

/* ---- a product (op linear) whose launch the backend delays, to fuse the next op with the product: fused or not, the
 * bits must be the same ---- */
enum { GELU, ADD, ADD_BEFORE, DERIVATIVE };           /* the op after the product */
/* Memory of the next op's result. APART: separate memory; the other values: memory of the product's result (IN_PLACE),
 * operand, workspace, or, after the backward of a product (DERIVATIVE), of the x that it reads to compute dw. */
enum { APART, IN_PLACE, OVER_OPERAND, OVER_WORKSPACE, OVER_X };
enum { NEXT, WAIT, FILL, CAPTURED };             /* between the calls of the two ops: nothing, a wait, a fill;
                                                  * CAPTURED: a capture contains both calls */

static gckpt_call bare(const gckpt_op *op, int inputs, const int *attributes, gckpt_shape a, gckpt_shape b)
{
    gckpt_call c;
    memset(&c, 0, sizeof c);
    c.inputs = inputs, c.attributes = attributes, c.rows = a.d[0];
    c.training = c.threads = c.plain = 1;
    c.precision = GCKPT_BF16_FAST;
    c.in[0].shape = a, c.in[1].shape = b, c.in[2].shape = gckpt_shape1(b.d[1]);
    CHECK(op->shape(&c) == GCKPT_OK);
    c.backend = gpu->context;
    return c;
}

typedef struct {
    int64_t m, k, n;
    int next, place, between;
    long launches;
    uint64_t hash;   /* hash of the results of the product and of the next op */
} chain;

static void run_chain(chain *o)
{
    static const int plain_w = 0;
    const int64_t m = o->m, k = o->k, n = o->n, most = m * (k > n ? k : n) + k * n;
    const gckpt_shape mn = gckpt_shape2(m, n), mk = gckpt_shape2(m, k);
    const int back = o->next == DERIVATIVE;
    random_state = (uint64_t)(m * 31 + k * 7 + n);
    float *x = values(most, 1, 1), *w = values(k * n, 1, 0), *bias = values(n, 1, 0), *other = values(m * n, 2, 1);
    uint16_t *factor = (uint16_t *)put(x, most, 1), *c = (uint16_t *)put(NULL, m * n, 1),
             *workspace = (uint16_t *)put(NULL, 2 * most + 4096, 1);
    const uint16_t *with = (const uint16_t *)put(other, m * n, 1);
    uint16_t *twin = (uint16_t *)put(x, m * n, 1);
    float *dw = (float *)put(NULL, k * n, 0);
    uint16_t *out = o->place == IN_PLACE         ? c
                    : o->place == OVER_OPERAND   ? factor
                    : o->place == OVER_WORKSPACE ? workspace
                    : o->place == OVER_X         ? twin
                                                 : (uint16_t *)put(NULL, m * n, 1);
    gckpt_call first =
        bare(&gckpti_op_linear, back ? 2 : 3, &plain_w, back ? mn : mk, back ? gckpt_shape2(n, k) : gckpt_shape2(k, n));
    first.workspace = workspace;
    first.in[1].data = (const float *)put(w, k * n, 0);
    if (back) {
        first.grad_out_bf16 = factor, first.in[0].grad_bf16 = c;
        first.in[0].bf16 = twin, first.in[1].grad = dw; /* the call also computes dw, from x (`twin`) */
    } else {
        first.in[0].bf16 = factor, first.out_bf16 = c;
        first.in[2].data = (const float *)put(bias, n, 0);
    }
    const gckpt_op *op = o->next == ADD || o->next == ADD_BEFORE ? &gckpti_op_add : &gckpti_op_gelu;
    gckpt_call second = bare(op, op == &gckpti_op_add ? 2 : 1, NULL, mn, mn);
    if (back)
        second.in[0].bf16 = with, second.grad_out_bf16 = c, second.in[0].grad_bf16 = out;
    else
        second.in[o->next == ADD_BEFORE].bf16 = c, second.in[o->next == ADD].bf16 = op == &gckpti_op_add ? with : c,
                             second.out_bf16 = out;
    const gckpt_step_params step_key = { .owner = &plain_w, .rows = 1 };
    for (int i = 0; i < 2 && o->between == CAPTURED; i++) { /* the backend captures a key when it sees it again */
        CHECK(!gpu->replay(gpu->context, &step_key));
        CHECK(i || gpu->captured(gpu->context));
    }
#ifdef GCKPT_CUDA_SHIM
    o->launches = -cuda_shim.launches;
#endif
    gpu->find_fast(gpu->context, &gckpti_op_linear, back ? GCKPT_BACKWARD : GCKPT_FORWARD)(&first);
    if (o->between == WAIT)
        CHECK(!gpu->finish(gpu->context));
    else if (o->between == FILL) /* the fill overwrites a part of the product's result */
        gpu->fill(&first, c, 0x40003f80u, m * n / 4);
    gpu->find_fast(gpu->context, op, back ? GCKPT_BACKWARD : GCKPT_FORWARD)(&second);
    CHECK(o->between != CAPTURED || gpu->captured(gpu->context));
    CHECK(!gpu->finish(gpu->context));
#ifdef GCKPT_CUDA_SHIM
    o->launches += cuda_shim.launches;
#endif
    gpu->discard_captures(gpu->context, step_key.owner);
    float *got = floats(2 * m * n + k * n);
    fetch(got, c, m * n, 1), fetch(got + m * n, out, m * n, 1);
    if (back)
        fetch(got + 2 * m * n, dw, k * n, 0);
    o->hash = gckpti_hash_floats(UINT64_C(0xcbf29ce484222325), got, 2 * m * n + k * n);
    free(x), free(w), free(bias), free(other), free(got);
    free_device();
}

static void test_folded(void)
{
    static const int64_t sizes[][3] = {
        { 64, 32, 64 }, { 130, 40, 72 }, { 33, 17, 31 }, { 129, 8, 136 }, { 5, 64, 2 }
    };
    for (int i = 0; i < 5 * 4 * 6; i++) {
        const int64_t *z = sizes[i % 5];
        aside = i / 20 == 5 ? 4 : 0; /* 4 bytes off: not aligned to 16 bytes */
        chain by = { .m = z[0], .k = z[1], .n = z[2], .next = i / 5 % 4, .place = i / 20 % 5 }, wait = by, fill = by,
              filled = by, recorded = by;
        wait.between = WAIT, recorded.between = CAPTURED;
        run_chain(&by), run_chain(&wait), run_chain(&recorded);
        CHECK_MSG(by.hash == wait.hash, "pair %d: fused, other bits", i);
        CHECK_MSG(by.hash == recorded.hash, "pair %d: captured, other bits", i);
#ifdef GCKPT_CUDA_SHIM
        /* dw runs before the product that computes dx, and no longer reads x */
        CHECK_MSG(by.launches == wait.launches - (by.place <= IN_PLACE || by.place == OVER_X),
                  "pair %d: %ld launches, unfused %ld", i, by.launches, wait.launches);
#endif
        fill.between = FILL;
        run_chain(&fill);
        filled.between = FILL, filled.place = IN_PLACE;
        if (i / 20 % 5 == 0 && i % 5 == 0) { /* shows that the fill changes the results */
            run_chain(&filled);
            CHECK(fill.hash != by.hash && filled.hash != fill.hash);
        }
    }
    aside = 0;
}

#ifdef GCKPT_CUDA_SHIM
/* Of mma.sync, if a multiprocessor has 100 KiB of shared memory, large tiles have three stages, and the operand of a
 * fused op is read from the device's memory. The bits are the same. */
static void test_less_shared(void)
{
    static const int64_t sizes[][3] = { { 250, 40, 120 }, { 200, 8, 250 }, { 256, 96, 128 } };
    const int many = cuda_shim.multiprocessors;
    const unsigned long bytes = cuda_shim.shared_bytes;
    cuda_shim.multiprocessors = 1; /* so that tiles are large */
    for (int i = 0; i < 3 * 4 * 2; i++) {
        const int64_t *z = sizes[i % 3];
        chain by = { .m = z[0], .k = z[1], .n = z[2], .next = i / 3 % 4, .place = i % 2 }, less = by;
        aside = i / 12 ? 4 : 0;
        cuda_shim.dynamic_bytes = 0;
        run_chain(&by);
        CHECK_MSG(cuda_shim.dynamic_bytes == 64 << 10, "%lu bytes", cuda_shim.dynamic_bytes);
        cuda_shim.shared_bytes = 100 << 10;
        cuda_shim.dynamic_bytes = 0;
        run_chain(&less);
        CHECK_MSG(cuda_shim.dynamic_bytes == 48 << 10, "%lu bytes", cuda_shim.dynamic_bytes);
        cuda_shim.shared_bytes = bytes;
        CHECK_MSG(by.hash == less.hash, "pair %d: three stages, other bits", i);
    }
    aside = 0;
    cuda_shim.shared_bytes = 100 << 10;
    test_loss();
    cuda_shim.shared_bytes = bytes;
    cuda_shim.multiprocessors = many;
}

/* Tests products by wgmma in all layouts of operands. Their rows, columns and terms fill no tile. Five multiprocessors
 * share the terms of dw, whose tiles are small or large. */
static void test_wgmma_products(void)
{
    static const int64_t sizes[][3] = { { 70, 72, 200 }, { 150, 136, 264 }, { 130, 256, 384 } };
    const unsigned keeps = 1 | OUT | GRAD_OUT | 1 << GRAD;
    const int many = cuda_shim.multiprocessors;
    const long mmas = cuda_shim.mmas;
    cuda_shim.multiprocessors = 5;
    for (int i = 2; i >= 0; i--)
        for (int transposed = 0; transposed < 2 && i + transposed < 3; transposed++)
            test_linear_of(sizes[i][0], sizes[i][1], sizes[i][2], transposed, 1,
                           i ? keeps : keeps | 2 | 1 << (GRAD + 1), i ? 2 : 1);
    CHECK(cuda_shim.mmas == mmas && cuda_shim.wgmmas > 0);
    cuda_shim.multiprocessors = many;
}

/* Sums of dw that one block hands on to another have the bits of a sum by one block, also in a captured micro-batch. The
 * first size has more terms than shared memory has stages for. */
static void test_handed_on(void)
{
    static const int64_t sizes[][3] = { { 600, 136, 200 }, { 130, 256, 384 } };
    const int many = cuda_shim.multiprocessors;
    for (int i = 0; i < 2; i++) {
        chain want = { .m = sizes[i][0], .k = sizes[i][1], .n = sizes[i][2], .next = DERIVATIVE };
        run_chain(&want);
        for (int sms = 2; sms < 6; sms++) {
            chain o = want;
            cuda_shim.multiprocessors = sms;
            o.between = sms % 2 ? CAPTURED : NEXT;
            run_chain(&o);
            CHECK_MSG(o.hash == want.hash, "%d multiprocessors: other bits", sms);
        }
        cuda_shim.multiprocessors = many;
    }
}

/* Tests the products and attention of a device that uses mma.sync. */
static void test_mma_sync(void)
{
    const int many = cuda_shim.multiprocessors;
    test_linear(0);
    test_loss();
    test_attention();
    cuda_shim.multiprocessors = 1;
    test_linear(1);
    cuda_shim.multiprocessors = many;
    test_less_shared();
}

/* Whether wgmma or mma.sync computes an op depends on its alignment, never on its number of tokens. Devices without
 * sm_90a, programs that were not compiled for it, and devices whose wgmma is wrong use mma.sync. */
static void test_choice(int way)
{
    const gckpt_backend *own = gpu;
    char text[256];
    if (way > 2) {
        cuda_shim.capability = way == 3 ? 80 : 90;
        cuda_shim.sm_90a = way == 3 ? 1 : way == 4 ? 0 : 2;
        open_printing(way - 2, &gpu, text);
        CHECK_MSG(way == 3   ? !text[0]
                  : way == 4 ? strstr(text, "nvcc -arch=sm_90a") != NULL
                             : strstr(text, "wgmma gave wrong results") != NULL,
                  "%d: %s", way, text);
        cuda_shim.capability = 90;
        cuda_shim.sm_90a = 1;
    }
    if (way == 3)
        test_mma_sync();
    for (int64_t m = 1; m < 300; m = 3 * m + 7) {
        const long mmas = cuda_shim.mmas, wgmmas = cuda_shim.wgmmas;
        const int64_t k = way == 1 ? 20 : 24;
        aside = way == 2 ? 4 : 0;
        test_linear_of(m, k, k + 8, 0, 1, 1 | OUT | GRAD_OUT | 1 << GRAD, 2);
        test_attention_of(1, m, m, 1, k, 1, 7 | OUT | GRAD_OUT | 7 << GRAD, 0, 0);
        CHECK_MSG((cuda_shim.mmas == mmas) == (way == 0) && (cuda_shim.wgmmas == wgmmas) == (way > 0),
                  "way %d, %d tokens", way, (int)m);
    }
    aside = 0;
    gpu = own;
}
#endif

/* A product that is delayed when a capture begins must run before the capture and not be part of it. A product that is
 * delayed when the capture ends must be part of it. */
static void test_border(void)
{
    static const int plain_w = 0;
    const gckpt_step_params m = { .owner = &plain_w, .rows = 1, .seed = 1 };
    gckpt_call call = bare(&gckpti_op_linear, 2, &plain_w, gckpt_shape2(16, 16), gckpt_shape2(16, 8)), before = call;
    float *x = values(256, 1, 1), *none = floats(128), *y = floats(128), *first = floats(128);
    call.in[0].bf16 = before.in[0].bf16 = (const uint16_t *)put(x, 256, 1);
    call.in[1].bf16 = before.in[1].bf16 = (const uint16_t *)put(x, 128, 1);
    call.out_bf16 = (uint16_t *)put(none, 128, 1), before.out_bf16 = (uint16_t *)put(none, 128, 1);
    const gckpt_kernel linear = gpu->find_fast(gpu->context, &gckpti_op_linear, GCKPT_FORWARD);
    for (int i = 0; i < 3; i++) { /* i = 0 runs, i = 1 captures, i = 2 replays */
        gpu->copy_in(gpu->context, call.out_bf16, none, 256);
        gpu->copy_in(gpu->context, before.out_bf16, none, 256);
        linear(&before);
        CHECK(gpu->replay(gpu->context, &m) == (i == 2));
        if (i == 2)
            gpu->copy_in(gpu->context, before.out_bf16, none, 256); /* cleared: a replay must not write it */
        else
            linear(&call);
        CHECK(gpu->captured(gpu->context) == 1);
        fetch(y, call.out_bf16, 128, 1);
        if (i == 0)
            memcpy(first, y, 128 * sizeof *y);
        CHECK_MSG(!memcmp(first, y, 128 * sizeof *y) && y[0] != 0, "time %d", i);
        fetch(y, before.out_bf16, 128, 1);
        CHECK_MSG((y[0] != 0) == (i < 2), "time %d, before it", i);
    }
    CHECK(!gpu->finish(gpu->context));
    gpu->discard_captures(gpu->context, m.owner);
    free(x), free(none), free(y), free(first);
    free_device();
}

#ifdef GCKPT_CUDA_SHIM
/* If a delayed launch fails, the next call that waits must return the error with the kernel's name. */
static void test_late_failure(void)
{
    fflush(stdout);
    pid_t child = fork(); /* in a child process, because the error makes the device unusable */
    if (child == 0) {
        static const int plain_w = 0;
        gckpt_call call = bare(&gckpti_op_linear, 2, &plain_w, gckpt_shape2(16, 16), gckpt_shape2(16, 8));
        call.in[0].bf16 = call.in[1].bf16 = (const uint16_t *)put(NULL, 256, 1),
        call.out_bf16 = (uint16_t *)put(NULL, 128, 1);
        CHECK(!gpu->finish(gpu->context));
        cuda_shim.fail_launch = 1;
        check_failed = 0;
        gpu->find_fast(gpu->context, &gckpti_op_linear, GCKPT_FORWARD)(&call);
        CHECK(cuda_shim.fail_launch == 1); /* the launch is delayed, so it has not failed yet */
        const char *why = gpu->finish(gpu->context);
        CHECK_MSG(why && (cuda_shim.lazy || strstr(why, "mma_product_kernel")), "%s", why ? why : "no error");
        fflush(stdout);
        _exit(check_failed != 0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}
#endif

/* ---- trainings: samples of `tokens` tokens through two transformer blocks ---- */
enum { BATCH = 4, CLASSES = 37, WIDTH = 24, HEADS = 3, STEPS = 2 };

static gckpt_tensor *weight(gckpt_tensor *x, const char *name, int64_t a, int64_t b)
{
    const gckpt_init init = { 0.2f, b ? 0 : 0.1f, 0 };
    return gckpt_param(gckpt_graph_of(x), name, b ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}

static int use_rotary; /* if nonzero, uses rotary instead of position embeddings, and dropout */

static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const char *const *names = (const char *const *)user;
    gckpt_tensor *gain = weight(x, names[0], WIDTH, 0), *bias = weight(x, names[1], WIDTH, 0);
    gckpt_tensor *h = gckpt_layernorm(x, gain, bias, 0);
    gckpt_tensor *w = weight(x, names[2], WIDTH, 3 * WIDTH), *b = weight(x, names[3], 3 * WIDTH, 0);
    h = gckpt_linear(h, w, b);
    gckpt_tensor *q = gckpt_slice(h, -1, 0, WIDTH), *k = gckpt_slice(h, -1, WIDTH, 2 * WIDTH);
    if (use_rotary)
        q = gckpt_rotary(q, &(gckpt_rotary_desc){ .heads = HEADS }),
        k = gckpt_rotary(k, &(gckpt_rotary_desc){ .heads = HEADS }), x = gckpt_dropout(x, 0.3f);
    h = gckpt_attention(q, k, gckpt_slice(h, -1, 2 * WIDTH, 3 * WIDTH),
                        &(gckpt_attention_desc){ .heads = HEADS, .causal = 1 });
    x = gckpt_add(x, gckpt_linear_transposed(h, weight(x, names[4], WIDTH, WIDTH), NULL));
    w = weight(x, names[5], WIDTH, 4 * WIDTH), b = weight(x, names[6], 4 * WIDTH, 0);
    h = gckpt_gelu(gckpt_linear(gckpt_rmsnorm(x, weight(x, names[7], WIDTH, 0), 0), w, b));
    return gckpt_add(x, gckpt_linear(h, weight(x, names[8], 4 * WIDTH, WIDTH), NULL));
}

typedef struct {
    int64_t tokens, micro; /* tokens of a sample; samples of a micro-batch */
    gckpt_mode mode;
    gckpt_precision precision;
    /* bare: if nonzero, memory is not filled with poison. exact: result, nonzero if the plan says that all splits have
     * the same bits. */
    int fetch, two_ops, bare, exact;
    int classes;     /* 0: CLASSES */
    float cap;       /* soft cap of the logits, or 0 */
    char mixer[32];
    size_t bytes, budget;
    int lowering;    /* result: the plan's lowering of the loss */
    double loss;
    long launches; /* result: launches of the last step, if the shim counts them */
} setting;

static uint64_t train(setting *o)
{
    static const char *const names[2][9] = {
        { "1.gain", "1.bias", "1.qkv", "1.qkv.bias", "1.proj", "1.fc", "1.fc.bias", "1.rms", "1.out" },
        { "2.gain", "2.bias", "2.qkv", "2.qkv.bias", "2.proj", "2.fc", "2.fc.bias", "2.rms", "2.out" }
    };
    static int32_t tokens[BATCH * 80], targets[BATCH * 80];
    const int classes = o->classes ? o->classes : CLASSES;
    for (int i = 0; i < BATCH * (int)o->tokens; i++) {
        tokens[i] = (i * 379 + i / 7) % classes;
        targets[i] = i % 11 == 3 ? -1 : (i * 211 + 17) % classes;
    }
    const gckpt_store_desc seed = { .seed = 1234 };
    gckpt_store *s = gckpt_store_new(&seed);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(o->micro, o->tokens));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(o->micro, o->tokens));
    const gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(classes, WIDTH), init);
    gckpt_tensor *x = gckpt_embed(table, in);
    if (!use_rotary)
        x = gckpt_positions(x, weight(x, "places", o->tokens, WIDTH), 0);
    x = gckpt_checkpoint(block, x, (void *)(uintptr_t)names[0]);
    gckpt_tensor *middle = x;
    x = gckpt_checkpoint(block, x, (void *)(uintptr_t)names[1]);
    x = gckpt_layernorm(x, NULL, NULL, 0);
    const gckpt_linear_loss_desc loss = { .cap = o->cap };
    gckpt_term term = { o->two_ops ? gckpt_cross_entropy(gckpt_linear_transposed(x, table, NULL), target, NULL, 0)
                                   : gckpt_linear_cross_entropy(x, table, target, &loss), 1, 0 };
    const gckpt_fetch_spec fetches[2] = { { middle, 0 }, { middle, 1 } };
    gckpt_plan_desc desc = { .mode = o->mode, .budget = o->budget, .batch = BATCH, .bf16.precision = o->precision,
                             .backend = gpu, .fetch.specs = fetches, .fetch.count = o->fetch ? 2 : 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    const char *mixer = NULL;
    o->exact = gckpt_plan_split_exact(p, &mixer);
    snprintf(o->mixer, sizeof o->mixer, "%s", mixer ? mixer : "");
    o->bytes = gckpt_plan_bytes(p);
    o->lowering = p ? p->lowering : -1;
    const gckpt_exec_desc how = { .backend = gpu, .debug = o->bare ? 0 : GCKPT_DEBUG_POISON };
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    CHECK_MSG(!p || e != NULL, "%s", gckpt_error_text(s));
    const gckpt_feed feeds[2] = { { gckpt_id(in), tokens }, { gckpt_id(target), targets } };
    const gckpt_hyper hyper = { .lr = 0.01f, .weight_decay = 0.1f, .clip = 0.7f };
    gckpt_report report = { 0, 0, 0, 0 };
    for (int i = 0; i < STEPS && e; i++) {
#ifdef GCKPT_CUDA_SHIM
        o->launches = -cuda_shim.launches;
#endif
        CHECK_MSG(gckpt_step(e, feeds, 2, BATCH, &hyper, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
#ifdef GCKPT_CUDA_SHIM
        o->launches += cuda_shim.launches;
#endif
    }
    o->loss = report.loss;
    uint64_t hash = gckpt_store_hash(s);
    util_free(e, p, g, s);
    return hash;
}

static void test_training(void)
{
    static const gckpt_mode modes[3] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS };
    setting wide = { .tokens = 16, .micro = BATCH }, exact = wide, first = wide;
    exact.precision = GCKPT_BF16, first.precision = GCKPT_BF16_FAST;
    train(&wide), train(&exact);
    uint64_t want = train(&first);
    CHECK_MSG(fabs(first.loss - wide.loss) < 0.02 * wide.loss, "loss %.9g, fp32 %.9g, bf16 %.9g", first.loss, wide.loss,
              exact.loss);
    CHECK_MSG(first.exact && !*first.mixer, "16 tokens: %s makes splits inexact", first.mixer);
    /* 4 of the launches are updates: 20 parameters, 16 in a launch, and 2 passes because of clipping. Almost no launch
     * fills memory with zeros. */
    CHECK_MSG(first.launches <= 197, "a step has %ld launches", first.launches);
    setting folded = first; /* a fill with poison makes the backend launch delayed products */
    folded.bare = 1;
    CHECK_MSG(train(&folded) == want && folded.launches <= 114, "without poison a step has %ld launches",
              folded.launches);
    CHECK_MSG(first.bytes <= exact.bytes, "%zu bytes, GCKPT_BF16 %zu", first.bytes, exact.bytes);
    for (int i = 0; i < 9; i++) { /* micro-batches of 4, 1 or 3 samples; with 3, the last micro-batch has 1 sample */
        setting o = first;
        o.mode = modes[i % 3], o.micro = i / 3 == 0 ? BATCH : i / 3 == 1 ? 1 : 3, o.fetch = i % 2, o.bare = i / 2 % 2;
        CHECK_MSG(train(&o) == want && (i / 3 == 2 || o.loss == first.loss) && o.exact,
                  "mode %d, micro-batches of %d, fetch %d: other bits; loss %.17g, not %.17g", (int)o.mode,
                  (int)o.micro, o.fetch, o.loss, first.loss);
    }
    setting odd = { .tokens = 66, .micro = 3, .precision = GCKPT_BF16_FAST };
    setting whole = { .tokens = 66, .micro = BATCH, .precision = GCKPT_BF16_FAST, .mode = GCKPT_MEMORY_POOR },
            same = whole;
    same.mode = GCKPT_STORE_ALL;
    CHECK(train(&whole) == train(&same) && whole.loss == same.loss);
    train(&odd);
    CHECK_MSG(!odd.exact && *odd.mixer, "66 tokens, 3 rows: the plan calls splits exact");
    use_rotary = 1;
    setting other = first;
    want = train(&other);
    for (int i = 0; i < 9; i++) {
        setting o = first;
        o.mode = modes[i % 3], o.micro = i / 3 == 0 ? BATCH : i / 3 == 1 ? 1 : 3;
        CHECK_MSG(train(&o) == want && o.exact, "rotary, mode %d, micro-batches of %d: other bits", (int)o.mode,
                  (int)o.micro);
    }
    use_rotary = 0;
    setting two = first, poor = first;
    two.two_ops = poor.two_ops = 1, poor.mode = GCKPT_MEMORY_POOR, poor.micro = 2;
    CHECK(train(&two) == train(&poor) && two.loss == poor.loss);
}

/* Tests that plans for every budget have the bits of STORE_ALL, whether they compute the logits once (large budgets) or
 * twice; and that other plans run the loss as it was built. */
static void test_budgets(void)
{
    setting built = { .tokens = 16, .micro = BATCH, .mode = GCKPT_STORE_ALL, .precision = GCKPT_BF16_FAST };
    setting exact = { .tokens = 16, .micro = BATCH, .precision = GCKPT_BF16 }, capped = built, capped_auto = built;
    capped.cap = capped_auto.cap = 3, capped_auto.mode = GCKPT_AUTO;
    CHECK(train(&capped) == train(&capped_auto) && capped_auto.lowering == 0); /* no fast kernel has a cap */
    train(&exact);
    built.classes = 4200; /* two chunks */
    const uint64_t want = train(&built);
    CHECK(built.lowering == 0 && exact.lowering == 0);
    int seen[2] = { 0, 0 };
    size_t all = 0;         /* bytes of the plan without a budget */
    for (int i = 0; i < 6; i++) { /* three budgets each for micro-batches of 4 and of 1 sample */
        setting o = built;
        o.mode = GCKPT_AUTO, o.micro = i / 3 ? 1 : BATCH, o.fetch = i / 3, o.bare = i % 2;
        o.budget = i % 3 ? all - all / 200 * (size_t)(i % 3) : 0;
        CHECK_MSG(train(&o) == want, "budget %zu, micro-batches of %d: other bits", o.budget, (int)o.micro);
        CHECK(o.budget ? o.bytes <= o.budget : o.lowering == 1);
        all = o.budget ? all : o.bytes;
        seen[o.lowering > 0]++;
    }
    CHECK_MSG(seen[0] && seen[1], "%d plans compute logits twice, %d once", seen[0], seen[1]);
}

/* Tests plans that are refused, and ops that use the kernels of GCKPT_BF16 because this mode has none for them. */
static void test_limits(void)
{
    gckpt_backend without = *gpu;
    without.name = "without";
    without.find_fast = NULL;
    for (int way = 0; way < 3; way++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(2, 16, 130));
        gckpt_tensor *x = gckpt_add(in, weight(in, "w", 16, 130)); /* broadcasts its second operand */
        x = gckpt_attention(x, x, x, &(gckpt_attention_desc){ .heads = 1, .causal = 1 }); /* too wide for its kernel */
        gckpt_term term = { gckpt_sum_loss(gckpt_mul(x, x)), 1, 0 };
        gckpt_plan_desc desc = { .bf16.precision = way ? GCKPT_BF16 : GCKPT_BF16_FAST, .backend = &without };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        CHECK(way ? p != NULL : !p && strstr(gckpt_error_text(g), "without has no kernels of GCKPT_BF16_FAST") != NULL);
        gckpt_plan_free(p);
        static uint64_t hash[3];
        desc.backend = gpu;
        desc.bf16.precision = way == 1 ? GCKPT_BF16 : GCKPT_BF16_FAST;
        p = gckpt_plan_new(g, &term, 1, &desc);
        const gckpt_exec_desc how = { .backend = gpu };
        gckpt_exec *e = gckpt_exec_new(p, s, &how);
        float *data = values(2 * 16 * 130, 1, 1);
        random_state = 7;
        for (int i = 0; i < 2 * 16 * 130; i++)
            data[i] = value(1);
        const gckpt_feed feed = { gckpt_id(in), data };
        const gckpt_hyper hyper = { .lr = 0.1f };
        CHECK_MSG(gckpt_step(e, &feed, 1, 2, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
        hash[way] = gckpt_store_hash(s);
        CHECK(hash[way] == hash[0]);
        free(data);
        util_free(e, p, g, s);
    }
}

int main(void)
{
    const char *error;
    gpu = gckpt_cuda_backend(0, &error);
    if (!CHECK_MSG(gpu != NULL, "%s", error))
        return check_report("cuda fast");
#ifdef GCKPT_CUDA_SHIM
    /* first: the shim records early launches for tests/cuda/ptx, and these run all loops, of wgmma and of mma.sync */
    test_wgmma_products();
    test_choice(3);
#endif
    test_linear(0);
/* With one multiprocessor, a kernel uses its large tile if more than half of the tile is filled. */
#ifdef GCKPT_CUDA_SHIM
    int many = cuda_shim.multiprocessors;
    cuda_shim.multiprocessors = 1;
    test_linear(1);
    cuda_shim.multiprocessors = many;
#else
    test_linear_of(1537, 18, 1409, 0, 1, 1 | OUT | GRAD_OUT | 1 << GRAD, 0);
    test_linear_of(18, 1537, 1409, 1, 1, 1 | OUT | GRAD_OUT | 1 << GRAD, 2);
    test_linear_of(1537, 1409, 18, 1, 1, 1 | OUT | GRAD_OUT | 1 << GRAD, 0);
#endif
    test_linear_of(4099, 1, 11, 0, 1, 1 | OUT | GRAD_OUT | 1 << GRAD, 4); /* its bias gradient takes two launches */
    test_attention();
    test_loss();
    test_norms();
    test_elementwise();
    test_folded();
    test_border();
#ifdef GCKPT_CUDA_SHIM
    test_late_failure();
    test_handed_on();
    for (int way = 0; way < 6; way++)
        if (way != 3)
            test_choice(way);
#endif
    test_limits();
    test_training();
    test_budgets();
    return check_report("cuda fast");
}
