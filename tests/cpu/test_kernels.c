/* test_kernels.c - compares every fast kernel of every instruction set of this machine with the plain op that defines
 * its result. All bits must be equal, and a kernel may write only to outputs and planned scratch memory.
 *
 *     test_kernels [-v] [percent] [part of an op's name]
 *
 * The number `percent` is the share of the listed cases that run: by default 10, or 50 with ITERATIONS. By default,
 * check_iterations(50) percent of the random cases run.
 *
 * Sizes exceed every block size of the kernels: vectors, tiles, 64 keys, 384 terms, 1024 classes, 256 rows. Each op
 * runs with 1, 2 and 3 threads, the last worker first, on scratch memory full of NaN. A backward gets the buffers that
 * its op descriptor lists, and NULL for all others. All NaN count as equal. */
#include "base/base.h"
#include "num/num.h"
#include "ops/internal.h"
#include "attention/cpu.h"
#include "bf16/cpu.h"
#include "cpu/internal.h"
#include "images/images.h"
#include "linear_loss/linear_loss.h"
#include "recurrent/recurrent.h"
#include "util.h"
#include <math.h>
#include <string.h>

#if defined(GCKPT_NO_FAST) || defined(GCKPT_FORCE_SOFT_FMA) || !defined(__GNUC__) ||               \
    UINTPTR_MAX < UINT64_MAX
int main(void)
{
    for (int isa = GCKPT_ISA_C; isa < GCKPT_ISA_COUNT; isa++)
        CHECK(!gckpt_isa_available((gckpt_isa)isa));
    return check_report("kernels (none in this build)");
}
#else

static int verbose, percent, random_percent; /* percent of the listed cases and of the random cases that run */
static const char *only;
static uint64_t state = 1; /* state of the random generator */

/* Returns an instruction set's kernels, or NULL if this machine lacks it. The function remembers its results, because
 * gckpti_kernels_for tests the kernels at each call. */
static const gckpti_kernels *kernels_of(gckpt_isa isa)
{
    static const gckpti_kernels *have[GCKPT_ISA_COUNT];
    static int known[GCKPT_ISA_COUNT];
    if (!known[isa])
        known[isa] = 1, have[isa] = gckpti_kernels_for(isa);
    return have[isa];
}

/* Returns whether to run f32 ops by an instruction set's kernels: this machine has it, and they are not those of another
 * one, as AMX's are (test_available). */
static int runs_f32(int isa) { return isa != GCKPT_ISA_AMX && kernels_of((gckpt_isa)isa); }

/* == numbers ================================================================================== */
/* Returns a random integer from `least` to `most`. */
static int64_t random_in(int64_t least, int64_t most)
{
    return least + (int64_t)(next_random(&state) % (uint64_t)(most - least + 1));
}

/* Styles of random values. NORMAL: ordinary numbers. MIXED: also zeros, subnormals and huge numbers. WILD: MIXED with a
 * few infinities and NaN. SIGNS: mostly zeros of both signs. TINY: products are subnormal. HUGE_: some products
 * overflow. STEEP: exponentials of very different sizes. */
enum { NORMAL, MIXED, WILD, SIGNS, TINY, HUGE_, STEEP, STYLES };

static void draw(float *x, int64_t n, int style)
{
    static const uint32_t some[] = { 0,           0x80000000u, 1,           0x80000001u,
                                     0x007fffffu, 0x807fffffu, 0x00800000u, 0x7f7fffffu,
                                     0xff7fffffu, 0x71000000u, 0x7f800000u, 0xff800000u,
                                     0x7fc00000u };
    static const float few[] = { 0.0f, -0.0f, 0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -3.0f };
    const float factor = style == TINY    ? 1e-22f
                         : style == HUGE_ ? 3e18f
                         : style == STEEP ? 40.0f
                                          : 1;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 3; k++)
            sum += (float)(next_random(&state) >> 40) / 16777216.0f - 0.5f;
        x[i] = style == SIGNS ? few[next_random(&state) % 8] : 2 * sum * factor;
        if ((style == MIXED || style == WILD) && next_random(&state) % 50 == 0)
            x[i] = some[next_random(&state) % 7] ? float_of(some[next_random(&state) % 10]) : x[i];
    }
    for (int k = 0; k < 2 && style == WILD && n > 0; k++)
        x[random_in(0, n - 1)] = float_of(some[random_in(10, 12)]);
}

/* Returns the index of the first element in which x and y differ, or -1. All NaN count as equal. */
static int64_t differs(const float *x, const float *y, int64_t n)
{
    if (memcmp(x, y, (size_t)n * sizeof *x) == 0)
        return -1;
    for (int64_t i = 0; i < n; i++)
        if (memcmp(x + i, y + i, sizeof *x) != 0 && (x[i] == x[i] || y[i] == y[i]))
            return i;
    return -1;
}

/* == memory =================================================================================== */
/* A region is n floats at a random alignment. Guard values before and after it show writes out of bounds. Builds with
 * sanitizers (and valgrind: -DGUARD=0) have no guards, because these tools report such reads and writes. */
#ifndef GUARD
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define GUARD 0
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define GUARD 0
#endif
#endif
#ifndef GUARD
#define GUARD 96
#endif
typedef struct {
    uint32_t *block;
    float *at;
    int64_t n, skip;
} region;

static uint32_t guard_word(int64_t i) { return 0x5aa50000u + (uint32_t)i; }

static region region_new(int64_t n, int guard)
{
    region r = { NULL, NULL, n, random_in(0, 15) };
    if (guard)
        r.skip += GUARD;
    int64_t all = r.skip + n + (guard ? GUARD : 0);
    r.block = (uint32_t *)malloc((size_t)(all ? all : 1) * sizeof *r.block);
    for (int64_t i = 0; i < all; i++)
        r.block[i] = guard_word(i);
    r.at = (float *)r.block + r.skip;
    return r;
}

static int region_intact(const region *r)
{
    for (int64_t i = 0; i < r->skip; i++)
        if (r->block[i] != guard_word(i))
            return 0;
    for (int64_t i = 0; i < GUARD; i++)
        if (r->block[r->skip + r->n + i] != guard_word(r->skip + r->n + i))
            return 0;
    return 1;
}

static void fill_nan(region *r) { memset(r->at, 0xff, (size_t)r->n * sizeof *r->at); }

/* == a call of an op =========================================================================== */
enum { INPUTS = 5, ALL_INPUTS = (1 << INPUTS) - 1 };
typedef struct {
    const gckpt_op *op;
    const void *attributes;
    int inputs;
    gckpt_shape shape[INPUTS];
    int classes; /* number of classes of the i32 input, which is targets, indices or a condition */
    int twice;   /* if nonzero, inputs 0 and 1 are the same tensor */
    int style;
    double cost; /* approximate number of multiply-adds; costly cases are skipped */
    int64_t row; /* position of the first row in the batch */
    uint64_t seed;
    char name[128];
} problem;

typedef struct { /* results of the plain op, which every kernel must match */
    region x[INPUTS], grad_out, out, saved;
    int32_t *index;
    double sum;
    int64_t count, saved_floats;
} expected;

/* Returns whether input i is i32: an index, or the condition of gckpt_where if p->classes is nonzero. */
static int is_i32(const problem *p, int i)
{
    const int recurrent = p->op == &gckpti_op_gru || p->op == &gckpti_op_gru_reset_before || p->op == &gckpti_op_lstm;
    return p->op->flags & GCKPT_INDEX(i) || (p->op == &gckpti_op_where && p->classes && i == 0) ||
           (recurrent && p->classes && i == p->inputs - 1);
}

/* Returns a mask of the inputs that are not i32. */
static unsigned floats_of(const problem *p)
{
    unsigned mask = 0;
    for (int i = 0; i < p->inputs; i++)
        mask |= is_i32(p, i) ? 0 : 1u << i;
    return mask;
}

static void last_first(void *user, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    (void)user;
    while (n-- > 0)
        body(context, n);
}

#ifdef _OPENMP
static void at_once(void *user, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    (void)user;
#pragma omp parallel for schedule(static, 1) num_threads(3)
    for (int64_t i = 0; i < n; i++)
        body(context, i);
}
#else
#define at_once last_first
#endif
static const gckpti_runner runners[2] = { { .parallel_for = last_first },
                                           { .parallel_for = at_once } };

/* Returns a call of the problem's op for `threads` threads, with shapes and sizes set. If bit i of `needs` is set,
 * input i has data. */
static gckpt_call call_of(const problem *p, const expected *a, unsigned needs, int threads)
{
    gckpt_call call = { .inputs = p->inputs,
                        .attributes = p->attributes,
                        .threads = threads,
                        .first_row = p->row,
                        .rows = p->shape[0].d[0],
                        .seed = p->seed,
                        .id = (int)(p->seed % 99),
                        .step = p->seed % 77,
                        .training = 1,
                        .precision = GCKPT_FP32,
                        .loss_scale = 0.37f };
    for (int i = 0; i < p->inputs; i++)
        call.in[i].shape = p->shape[i];
    CHECK_MSG(p->op->shape(&call) == GCKPT_OK, "%s: shape", p->name);
    if (p->op->flags & GCKPT_LOSS)
        call.shape.n = 0;
    for (int i = 0; i < p->inputs && a; i++) {
        if (is_i32(p, i))
            call.in[i].index = a->index; /* an i32 input always has data, since it comes from the caller */
        else
            call.in[i].data = needs >> i & 1 ? a->x[p->twice ? 0 : i].at : NULL;
    }
    return call;
}

static int same(const problem *p, const char *how, const char *what, const float *want,
                const region *got)
{
    int64_t i = differs(want, got->at, got->n);
    CHECK_MSG(region_intact(got), "%s, %s: writes beyond %s", p->name, how, what);
    return CHECK_MSG(i < 0, "%s, %s: %s[%ld] of %ld is %.9g, not %.9g", p->name, how, what, (long)i,
                     (long)got->n, i < 0 ? 0 : (double)got->at[i], i < 0 ? 0 : (double)want[i]);
}

/* == forward ================================================================================== */
/* Output buffers that a forward gets. ALL: all buffers; NO_SAVED: none for saved values; NO_OUT: none for the result;
 * IN_PLACE, IN_PLACE_1, IN_PLACE_2: the result is in the memory of input 0, 1 or 2. */
enum { ALL, NO_SAVED, NO_OUT, IN_PLACE, IN_PLACE_1, IN_PLACE_2, WAYS };

static int alike(const problem *p, int i) /* returns whether input i has the output's shape */
{
    gckpt_call call = call_of(p, NULL, 0, 1);
    return gckpti_same_shape(&call.shape, &p->shape[i]);
}

static int possible(const problem *p, int64_t saved_floats, int way)
{
    switch (way) {
    case NO_SAVED:
    case NO_OUT: return saved_floats > 0;
    case IN_PLACE:
    case IN_PLACE_1:
    case IN_PLACE_2:
        return (p->op->flags & GCKPT_INPLACE(way - IN_PLACE)) != 0 && !p->twice &&
               alike(p, way - IN_PLACE);
    default: return 1;
    }
}

static void forward(const problem *p, const expected *a, gckpt_isa isa, int threads, int together,
                    int way)
{
    static const char *const ways[] = { "", ", no saved", ", no out", ", in place",
                                        ", in place of 1", ", in place of 2" };
    int loss = (p->op->flags & GCKPT_LOSS) != 0;
    gckpt_call call = call_of(p, a, ALL_INPUTS, threads);
    region out = region_new(loss ? 0 : count_of(&call.shape), 1),
           saved = region_new(a->saved_floats, 1);
    region workspace = region_new((int64_t)(call.workspace_forward / sizeof(float)), 1);
    double sum = 0;
    int64_t count = 0;
    char how[64];
    sprintf(how, "%s, %d threads%s", isa_name(isa), threads, ways[way]);
    fill_nan(&out);
    fill_nan(&saved);
    fill_nan(&workspace);
    if (way >= IN_PLACE) {
        memcpy(out.at, a->x[way - IN_PLACE].at, (size_t)out.n * sizeof(float));
        call.in[way - IN_PLACE].data = out.at;
    }
    call.out = loss || way == NO_OUT ? NULL : out.at;
    call.saved = !a->saved_floats || way == NO_SAVED ? NULL : saved.at;
    call.workspace = workspace.at;
    if (loss && way != NO_OUT)
        call.loss_sum = &sum, call.loss_count = &count;
    call.kernels = kernels_of(isa);
    call.runner = &runners[together];
    p->op->forward(&call);
    if (call.out)
        same(p, how, "out", a->out.at, &out);
    if (call.saved)
        same(p, how, "saved", a->saved.at, &saved);
    CHECK_MSG(region_intact(&workspace), "%s, %s: more scratch than planned", p->name, how);
    if (call.loss_sum)
        CHECK_MSG(count == a->count &&
                      (memcmp(&sum, &a->sum, sizeof sum) == 0 || (sum != sum && a->sum != a->sum)),
                  "%s, %s: loss %.17g of %ld, not %.17g of %ld", p->name, how, sum, (long)count,
                  a->sum, (long)a->count);
    free(out.block);
    free(saved.block);
    free(workspace.block);
}

/* == backward ================================================================================= */
/* Returns a call of the backward. Bit i of `wanted` requests the gradient of input i in d[i]; bit i of `accumulate`
 * adds to d[i] instead of writing it. If d[INPUTS + i] has elements, it is the compensation of that gradient. */
static gckpt_call backward_call(const problem *p, const expected *a, unsigned wanted,
                                unsigned accumulate, int threads, region *d)
{
    unsigned needs = 0;
    for (int i = 0; i < p->inputs; i++)
        needs |= wanted >> i & 1 ? p->op->needs[i] : 0;
    gckpt_call call = call_of(p, a, needs, threads);
    call.out = needs & GCKPT_OUT ? a->out.at : NULL;
    call.saved = needs & GCKPT_SAVED ? a->saved.at : NULL;
    call.grad_out = p->op->flags & GCKPT_LOSS ? NULL : a->grad_out.at;
    for (int i = 0; i < p->inputs; i++)
        if (wanted >> i & 1) {
            call.in[i].grad = d[p->twice ? 0 : i].at;
            call.in[i].compensation = d[INPUTS + i].n ? d[INPUTS + i].at : NULL;
            call.in[i].accumulate = (p->twice && i == 1) || accumulate >> i & 1;
        }
    return call;
}

static void backward(const problem *p, const expected *a, unsigned wanted, unsigned accumulate)
{
    region old[2 * INPUTS], want[2 * INPUTS], got[2 * INPUTS];
    gckpt_call call;
    /* With these flags, the gradient of input 0 may be written over the output's gradient. */
    int in_place = p->op->flags & (GCKPT_INPLACE_GRAD | GCKPT_PASSES_GRAD(0)) && alike(p, 0) &&
                   wanted & 1 && !(accumulate & 1) && !p->twice;
    for (int i = 0; i < 2 * INPUTS; i++) {
        int k = i % INPUTS, wants = k < p->inputs && wanted >> k & 1, adds = accumulate >> k & 1;
        int64_t n = wants ? count_of(&p->shape[k]) : 0;
        /* a gradient that sums over rows has a compensation, unless it has one addend and is not accumulated */
        if (i >= INPUTS && n) {
            gckpt_call all = call_of(p, NULL, 0, 1);
            const int one_addend = n == count_of(&all.shape) && /* 0 for gru's bias with 3 steps, a mere coincidence */
                                   gckpti_last(&p->shape[k]) == gckpti_last(&all.shape);
            n = p->op->needs[k] & GCKPT_SUMS && (adds || !one_addend) && !p->twice ? n : 0;
        }
        old[i] = region_new(n, 0);
        draw(old[i].at, n, adds ? (p->style == WILD ? WILD : SIGNS) : WILD);
        if (i >= INPUTS && !adds)
            memset(old[i].at, 0, (size_t)n * sizeof(float));
        want[i] = region_new(n, 1);
        got[i] = region_new(n, 1);
        memcpy(want[i].at, old[i].at, (size_t)n * sizeof(float));
    }
    in_place = in_place && !want[INPUTS].n;
    call = backward_call(p, a, wanted, accumulate, 1, want);
    region workspace = region_new((int64_t)(call.workspace_backward / sizeof(float)), 1);
    call.workspace = workspace.at;
    p->op->backward(&call);
    for (int i = 0; i < 2 * INPUTS; i++)
        CHECK_MSG(region_intact(&want[i]) && region_intact(&workspace), "%s: plain op", p->name);
    free(workspace.block);
    for (int isa = GCKPT_ISA_C; isa < GCKPT_ISA_COUNT; isa++)
        for (int t = 0; t < 4 + in_place && runs_f32(isa); t++) {
            char how[96];
            int threads = t < 3 ? t + 1 : 3;
            if (t == 3 && p->cost < 1e5)
                continue;
            sprintf(how, "%s, %d threads, gradients %u, accumulate %u%s",
                    isa_name((gckpt_isa)isa), threads, wanted, accumulate,
                    t == 4   ? ", in place"
                    : t == 3 ? " at once"
                             : "");
            for (int i = 0; i < 2 * INPUTS; i++)
                memcpy(got[i].at, t == 4 && i == 0 ? a->grad_out.at : old[i].at,
                       (size_t)got[i].n * sizeof(float));
            call = backward_call(p, a, wanted, accumulate, threads, got);
            if (t == 4)
                call.grad_out = call.in[0].grad;
            workspace = region_new((int64_t)(call.workspace_backward / sizeof(float)), 1);
            fill_nan(&workspace);
            call.workspace = workspace.at;
            call.kernels = kernels_of((gckpt_isa)isa);
            call.runner = &runners[t == 3];
            p->op->backward(&call);
            CHECK_MSG(region_intact(&workspace), "%s, %s: more scratch than planned", p->name, how);
            for (int i = 0; i < 2 * INPUTS; i++) {
                char what[24];
                sprintf(what, "%s %d", i < INPUTS ? "gradient" : "low part", i % INPUTS);
                same(p, how, what, want[i].at, &got[i]);
            }
            free(workspace.block);
        }
    for (int i = 0; i < 2 * INPUTS; i++) {
        free(old[i].block);
        free(want[i].block);
        free(got[i].block);
    }
}

/* == a problem ================================================================================ */
/* Number of problems by op, in the order of GCKPTI_OPS. */
#define OP(name, part) OP_##name,
enum { GCKPTI_OPS(OP) OPS };
#undef OP
static long tried[OPS];

static void try_problem(const problem *p)
{
#define OP(name, part) &gckpti_op_##name,
    static const gckpt_op *const ops[OPS] = { GCKPTI_OPS(OP) };
#undef OP
    for (int i = 0; i < OPS; i++)
        tried[i] += p->op == ops[i];
    int loss = (p->op->flags & GCKPT_LOSS) != 0;
    unsigned all = floats_of(p);
    gckpt_call call = call_of(p, NULL, 0, 1);
    expected a = { 0 };
    for (int i = 0; i < p->inputs; i++) {
        int64_t n = count_of(&p->shape[i]), left_out = loss ? random_in(0, 9) : 0;
        if (all >> i & 1) {
            a.x[i] = region_new(n, 0);
            draw(a.x[i].at, n, p->style);
            continue;
        }
        a.index = (int32_t *)malloc((size_t)n * sizeof *a.index);
        for (int64_t j = 0; j < n; j++)
            a.index[j] = random_in(0, 9) < left_out ? -1 : (int32_t)random_in(0, p->classes - 1);
        a.index[random_in(0, n - 1)] = p->op == &gckpti_op_where ? INT32_MIN : p->classes - 1;
    }
    a.saved_floats = (int64_t)((call.saved_bytes + sizeof(float) - 1) / sizeof(float));
    a.out = region_new(loss ? 0 : count_of(&call.shape), 1);
    a.saved = region_new(a.saved_floats, 1);
    a.grad_out = region_new(a.out.n, 0);
    draw(a.grad_out.at, a.grad_out.n, p->style == STEEP ? NORMAL : p->style);
    call = call_of(p, &a, ALL_INPUTS, 1);
    region workspace = region_new((int64_t)(call.workspace_forward / sizeof(float)), 1);
    fill_nan(&a.out);
    fill_nan(&a.saved);
    fill_nan(&workspace);
    call.out = loss ? NULL : a.out.at;
    call.saved = a.saved_floats ? a.saved.at : NULL;
    call.workspace = workspace.at;
    if (loss)
        call.loss_sum = &a.sum, call.loss_count = &a.count;
    p->op->forward(&call);
    CHECK_MSG(region_intact(&a.out) && region_intact(&a.saved) && region_intact(&workspace),
              "%s: plain op", p->name);
    free(workspace.block);
    for (int isa = GCKPT_ISA_C; isa < GCKPT_ISA_COUNT; isa++)
        for (int way = 0; way < WAYS && runs_f32(isa); way++) {
            if (!possible(p, a.saved_floats, way))
                continue;
            for (int threads = 1; threads <= 3; threads++)
                forward(p, &a, (gckpt_isa)isa, threads, 0, way);
            if (p->cost >= 1e5)
                forward(p, &a, (gckpt_isa)isa, 3, 1, way);
        }
    if (p->cost > 4e5 && !p->twice) {
        unsigned some = (unsigned)next_random(&state) & all;
        backward(p, &a, all, (unsigned)next_random(&state) & all);
        if (some && some != all)
            backward(p, &a, some, (unsigned)next_random(&state) & all);
    } else {
        for (unsigned wanted = p->twice ? all : 1; wanted <= all; wanted++)
            for (int twice = 0; twice < 2 && !(wanted & ~all); twice++)
                backward(p, &a, wanted, twice ? wanted & (unsigned)random_in(1, all) : 0);
    }
    for (int i = 0; i < INPUTS; i++)
        free(a.x[i].block);
    free(a.grad_out.block);
    free(a.out.block);
    free(a.saved.block);
    free(a.index);
}

static int wanted_op(const char *name) { return !only || strstr(name, only) != NULL; }

/* sampled(n): how many of n random cases run. lengths(n): how many of n sizes run. skipped(cost): nonzero if a listed
 * case is too costly for `percent`. */
static int64_t sampled(int64_t n) { return (n * random_percent + 99) / 100; }
static int64_t lengths(int64_t n) { return (n * percent + 99) / 100; }
static int skipped(double cost) { return cost > 2e5 + 4e4 * percent && percent < 100; }

/* Returns how many times each listed case runs: `most` times if at least half of the random cases run, else once. */
static int times(int most) { return random_percent < 50 ? 1 : most; }

/* Returns nonzero in one of n calls, starting at a call that the seed chooses; in every call if percent is at least
 * 50. */
static int is_sampled(unsigned n)
{
    static unsigned calls;
    return check_sampled(calls++, n) || percent >= 50;
}

/* == linear and matmul ======================================================================== */
static void product(int64_t m, int64_t n, int64_t k, int style)
{
    int transposed = (int)random_in(0, 1), kind = (int)random_in(0, 3);
    problem p = { .op = kind ? &gckpti_op_linear : &gckpti_op_matmul,
                  .attributes = &transposed,
                  .style = style,
                  .cost = (double)m * (double)n * (double)k,
                  .inputs = kind > 1 ? 3 : 2,
                  .shape[0] = gckpt_shape2(m, k),
                  .shape[1] = transposed ? gckpt_shape2(n, k) : gckpt_shape2(k, n),
                  .shape[2] = gckpt_shape1(n) };
    if (kind == 0 && p.cost < 2e5 && random_in(0, 3)) { /* 3 or 6 products, perhaps with one shared second matrix */
        int64_t first = random_in(1, 2), second = 3;
        p.shape[0] = gckpt_shape4(first, second, m, k);
        p.cost *= (double)(first * second);
        if (random_in(0, 2))
            p.shape[1] = gckpt_shape4(first, second, p.shape[1].d[0], p.shape[1].d[1]);
    }
    else if (kind < 2 && p.cost < 2e5) { /* broadcasts */
        static const int8_t leads[][2][3] = { /* of both operands */
            { { 1, 1, 1 }, { 1, 1, 3 } }, { { 1, 1, 3 }, { 1, 2, 1 } }, { { 1, 2, 1 }, { 3, 1, 2 } },
            { { 3, 1, 2 }, { 1, 2, 2 } }, { { 2, 2, 3 }, { 1, 2, 1 } }, { { 1, 3, 1 }, { 2, 3, 2 } }
        };
        const int8_t(*lead)[3] = leads[random_in(0, 5)];
        p.op = &gckpti_op_broadcast_matmul, p.inputs = 2, p.cost *= 12;
        for (int i = 0; i < 2; i++) {
            gckpt_shape s = { 5, { lead[i][0], lead[i][1], lead[i][2], p.shape[i].d[0], p.shape[i].d[1] } };
            p.shape[i] = s;
        }
    }
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "%s%s %ld x %ld x %ld%s%s, style %d", p.op->name,
            transposed ? "_transposed" : "", (long)m, (long)n, (long)k,
            p.inputs == 3 ? ", bias" : "", p.shape[1].n == 4 ? ", batched" : "", style);
    try_problem(&p);
}

static void test_products(void)
{
    static const int16_t sizes[][3] = {
        /* { rows, columns, terms } */
        { 1, 1, 1 },     { 1, 3, 1000 },    { 1, 1000, 3 },   { 1000, 1, 3 },   { 3, 1000, 1 },
        { 1, 48, 400 },  { 7, 800, 50 },    { 200, 401, 97 }, { 2, 17, 769 },   { 17, 16, 385 },
        { 33, 49, 800 }, { 65, 385, 40 },   { 40, 65, 385 },  { 385, 40, 65 },  { 400, 8, 30 },
        { 97, 193, 50 }, { 100, 100, 100 }, { 130, 70, 390 }, { 16, 770, 20 },  { 770, 16, 20 },
        { 49, 500, 33 }, { 9, 48, 384 },    { 8, 96, 768 },   { 150, 150, 16 }, { 1, 2000, 2 },
        { 2000, 2, 1 },  { 2100, 3, 5 } /* with this number of rows, kernels read each row in place */
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int twice = 0; twice < times(3); twice++)
            product(sizes[i][0], sizes[i][1], sizes[i][2], twice ? (int)(i % STYLES) : NORMAL);
    for (int i = 0; i < times(3); i++) /* these sizes need planned scratch memory */
        product(260, 530, 130, NORMAL);
    CHECK(gckpti_product_workspace(260, 530, 130) > 0 && gckpti_product_workspace(256, 1024, 70) > 0);
    for (int64_t i = 0, end = sampled(420); i < end; i++) {
        int64_t m = random_in(1, 70), n = random_in(1, 70), k = random_in(1, 70);
        if (i % 3 == 0) /* few rows, few columns or few terms */
            *(i % 9 == 0 ? &m : i % 9 == 3 ? &n : &k) = random_in(1, 5);
        product(m, n, k, (int)(i % STYLES));
    }
}

/* == attention ================================================================================ */
/* Gives o a random window (if causal), a cap and a scale; each may be absent. */
static void draw_more(gckpti_attention *o)
{
    const int which = (int)random_in(1, 7);
    o->extras = 1;
    if (o->causal && which & 1)
        o->window = (int)(random_in(0, 1) ? random_in(1, 20) : random_in(1, 150));
    if (which & 2)
        o->cap = 0.0625f * (float)(1 << random_in(0, 6));
    if (which & 4)
        o->scale = 0.1f * (float)random_in(1, 9);
}

/* Tests attention with `group` query heads per key head. If with_lengths is nonzero, each row has a number of valid
 * keys, possibly 0. If more is nonzero, draw_more() adds a window, a cap or a scale. */
static void attention_of(int64_t rows, int64_t t, int64_t s, int64_t d, int heads, int causal,
                         int style, int group, int with_lengths, int more)
{
    gckpti_attention o = { .heads = heads * group, .causal = causal, .key_heads = group > 1 ? heads : 0 };
    if (more)
        draw_more(&o);
    problem p = { .op = &gckpti_op_attention,
                  .attributes = &o,
                  .style = style,
                  .cost = (double)(rows * t * o.heads) * (double)(s * d),
                  .inputs = 3 + with_lengths,
                  .shape[0] = gckpt_shape3(rows, t, o.heads * d),
                  .shape[3] = gckpt_shape1(rows) };
    s = causal && s < t ? t : s;
    p.shape[1] = p.shape[2] = gckpt_shape3(rows, s, heads * d);
    p.classes = (int)s + 1;
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name,
            "attention %ld x %ld over %ld, %d heads of %ld%s, %d of keys%s, style %d, window %d, cap "
            "%g, scale %g",
            (long)rows, (long)t, (long)s, o.heads, (long)d, causal ? ", causal" : "", heads,
            with_lengths ? ", lengths" : "", style, o.window, (double)o.cap, (double)o.scale);
    try_problem(&p);
}

/* Tests attention with a mask, each of whose axes may be repeated; it is drawn by `style` like the other inputs, so it
 * may have infinities, which hide keys. */
static void masked_attention(int64_t rows, int64_t t, int64_t s, int64_t d, int heads, int style, int group)
{
    gckpti_attention o = { .heads = heads * group, .key_heads = group > 1 ? heads : 0, .extras = -1 };
    problem p = { .op = &gckpti_op_masked_attention,
                  .attributes = &o,
                  .style = style,
                  .cost = 2 * (double)(rows * t * o.heads) * (double)(s * d),
                  .inputs = 4,
                  .shape[0] = gckpt_shape3(rows, t, o.heads * d),
                  .shape[3] = gckpt_shape4(rows, o.heads, t, s) };
    p.shape[1] = p.shape[2] = gckpt_shape3(rows, s, heads * d);
    gckpt_shape *mask = &p.shape[3];
    o.cap = random_in(0, 2) ? 0.0f : 0.5f, o.scale = random_in(0, 1) ? 0.0f : 0.3f;
    for (int i = 0; i < 4; i++)
        mask->d[i] = random_in(0, 2) ? mask->d[i] : 1;
    for (; mask->n > 1 && mask->d[0] == 1 && random_in(0, 1); mask->n--)
        memmove(mask->d, mask->d + 1, 3 * sizeof *mask->d);
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "masked_attention %ld x %ld over %ld, %d heads of %ld, %d of keys, mask %ld %ld %ld %ld, style %d",
            (long)rows, (long)t, (long)s, o.heads, (long)d, heads, (long)mask->d[0], (long)mask->d[1],
            (long)mask->d[2], (long)mask->d[3], style);
    try_problem(&p);
}

static void attention(int64_t rows, int64_t t, int64_t s, int64_t d, int heads, int causal,
                      int style)
{
    attention_of(rows, t, s, d, heads, causal, style, 1, 0, 0);
}

static void test_attention(void)
{
    static const int16_t sizes[][4] = {
        /* { queries, keys, columns, heads } */
        { 1, 1, 1, 1 },      { 1, 200, 5, 2 },    { 200, 1, 5, 1 },   { 64, 64, 64, 1 },
        { 65, 63, 16, 2 },   { 200, 200, 64, 1 }, { 150, 70, 80, 1 }, { 129, 129, 32, 2 },
        { 100, 130, 80, 1 }, { 70, 70, 130, 1 },  { 20, 30, 128, 2 }, { 33, 33, 97, 2 },
        { 128, 128, 16, 3 }, { 66, 200, 33, 1 },  { 191, 193, 8, 1 }, { 17, 80, 112, 1 }
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int causal = 0; causal < 2; causal++)
            for (int twice = 0; twice < times(2); twice++)
                if (is_sampled(5))
                    attention(twice ? 1 : 2, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], causal,
                          twice ? (int)(i % STYLES) : NORMAL);
    for (int64_t i = 0, end = sampled(110); i < end; i++) {
        int64_t t = i % 4 ? random_in(1, 70) : random_in(1, 140), s = i % 5 ? random_in(1, 70) : random_in(1, 200);
        attention(random_in(1, 2), t, s, i % 3 ? random_in(1, 20) : random_in(1, 70), (int)random_in(1, 3),
                  (int)(i & 1), (int)(i % STYLES));
    }
    for (int64_t i = 0, end = sampled(140); i < end; i++) {
        int64_t t = i % 4 ? random_in(1, 70) : random_in(1, 140), s = i % 5 ? random_in(1, 70) : random_in(1, 200);
        int lengths = i % 4 < 2, group = i % 4 ? (int)random_in(2, 4) : 1;
        attention_of(random_in(1, 2 + 2 * lengths), t, s, i % 3 ? random_in(1, 20) : random_in(1, 70),
                     (int)random_in(1, 2), (int)(i / 2 & 1), (int)(i % STYLES), group, lengths, 0);
    }
    for (int64_t i = 0, end = sampled(200); i < end; i++) {
        int64_t t = i % 4 ? random_in(1, 70) : random_in(1, 220), s = i % 5 ? random_in(1, 70) : random_in(1, 300);
        attention_of(random_in(1, 2), t, s, i % 3 ? random_in(1, 20) : random_in(1, 70), (int)random_in(1, 2),
                     i % 8 != 0, (int)(i % STYLES), i % 4 ? 1 : (int)random_in(2, 3), i % 3 == 0, 1);
    }
    for (int64_t i = 0, end = sampled(120); i < end; i++) {
        int64_t t = i % 4 ? random_in(1, 70) : random_in(1, 140), s = i % 5 ? random_in(1, 70) : random_in(1, 200);
        masked_attention(random_in(1, 3), t, s, i % 3 ? random_in(1, 20) : random_in(1, 70), (int)random_in(1, 2),
                         (int)(i % STYLES), (int)random_in(1, 2));
    }
}

/* == convolutions ============================================================================= */
/* Tests a convolution. `image` and `taps` are the sizes of the image and of the window; c and o are input and output
 * channels of a group. If transposed is nonzero, `image` is about the size of the result. */
static void convolution(int64_t rows, const int64_t *image, const int64_t *taps, int64_t c,
                        int64_t o, gckpt_window window, int transposed, int style)
{
    gckpti_conv2d a = { window, transposed };
    problem p = { .op = &gckpti_op_conv2d,
                  .attributes = &a,
                  .style = style,
                  .inputs = 2 + (int)random_in(0, 1),
                  .shape[0] = gckpt_shape4(rows, image[0], image[1], window.groups * c),
                  .shape[1] = gckpt_shape4(taps[0], taps[1], c, window.groups * o) };
    gckpt_call call;
    if (transposed) {
        p.shape[0].d[3] = window.groups * o;
        for (int i = 0; i < 2; i++) {
            p.shape[0].d[1 + i] = image[i] / window.stride[i] + 1;
            a.window.output_padding[i] = (int)random_in(0, window.stride[i] - 1);
        }
    }
    p.shape[2] = gckpt_shape1(window.groups * (transposed ? c : o));
    for (int i = 0; i < 2; i++) /* the least padding for which the window fits into the image */
        while (!transposed &&
               image[i] + 2 * a.window.padding[i] < (taps[i] - 1) * window.dilation[i] + 1)
            a.window.padding[i]++;
    for (int i = 0; i < 2 && transposed; i++)
        while (p.shape[0].d[1 + i] * window.stride[i] + (taps[i] - 1) * window.dilation[i] <
               window.stride[i] + 2 * a.window.padding[i])
            a.window.padding[i]--;
    call = call_of(&p, NULL, 0, 1);
    p.cost = (double)gckpti_op_conv2d.flops(&call) / 2;
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(
        p.name,
        "conv2d%s %ld x %ld x %ld, %ld x %ld, %d groups of %ld and %ld, strides %d %d, padding %d %d, "
        "dilation %d %d, style %d",
        transposed ? "_transposed" : "", (long)rows, (long)image[0], (long)image[1], (long)taps[0],
        (long)taps[1], window.groups, (long)c, (long)o, window.stride[0], window.stride[1],
        a.window.padding[0], a.window.padding[1], window.dilation[0], window.dilation[1], style);
    try_problem(&p);
}

static void test_convolutions(void)
{
    static const struct {
        int64_t rows, image[2], taps[2], c, o;
        gckpt_window window;
    } list[] = {
        { 2, { 9, 8 }, { 3, 3 }, 16, 24, { { 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, { 0 }, 0, 0 } },
        { 1, { 6, 7 }, { 3, 3 }, 50, 52, { { 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, { 0 }, 0, 0 } },
        { 1, { 5, 5 }, { 3, 3 }, 70, 3, { { 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, { 0 }, 0, 0 } },
        { 2, { 9, 9 }, { 3, 3 }, 3, 49, { { 0 }, { 2, 2 }, { 1, 1 }, { 1, 1 }, 1, { 0 }, 0, 0 } },
        { 3, { 8, 9 }, { 1, 1 }, 20, 17, { { 0 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1, { 0 }, 0, 0 } },
        { 1, { 7, 11 }, { 2, 5 }, 9, 10, { { 0 }, { 3, 2 }, { 1, 2 }, { 2, 1 }, 2, { 0 }, 0, 0 } },
        { 2, { 6, 9 }, { 3, 3 }, 1, 1, { { 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 70, { 0 }, 0, 0 } },
        { 2, { 6, 9 }, { 3, 3 }, 1, 3, { { 0 }, { 2, 1 }, { 1, 1 }, { 1, 1 }, 13, { 0 }, 0, 0 } },
        { 1, { 4, 5 }, { 3, 3 }, 1, 2, { { 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 66, { 0 }, 0, 0 } },
        { 1, { 4, 5 }, { 3, 3 }, 2, 1, { { 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 35, { 0 }, 0, 0 } },
        { 2, { 6, 9 }, { 3, 3 }, 5, 1, { { 0 }, { 1, 2 }, { 0, 1 }, { 1, 3 }, 4, { 0 }, 0, 0 } },
        { 4,
          { 16, 16 },
          { 3, 3 },
          32,
          64,
          { { 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, { 0 }, 0, 0 } }, /* this case needs planned scratch memory */
        { 1, { 1, 3000 }, { 1, 9 }, 32, 32, { { 0 }, { 1, 2 }, { 0, 4 }, { 1, 1 }, 1, { 0 }, 0, 0 } },
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (int twice = 0; twice < times(2); twice++)
            for (int transposed = 0; transposed < 2; transposed++)
                convolution(list[i].rows, list[i].image, list[i].taps, list[i].c, list[i].o,
                            list[i].window, transposed, twice ? (int)(i % STYLES) : NORMAL);
    for (int64_t i = 0, end = sampled(160); i < end; i++) {
        int64_t image[2] = { random_in(1, 9), random_in(1, i % 5 ? 9 : 40) },
                taps[2] = { random_in(1, 4), random_in(1, 4) };
        gckpt_window window = { .stride = { (int)random_in(1, 3), (int)random_in(1, 4) },
                                .padding = { (int)random_in(0, 2), (int)random_in(0, 2) },
                                .dilation = { (int)random_in(1, 3), (int)random_in(1, 3) },
                                .groups = i % 3 ? 1 : (int)random_in(1, 9) };
        convolution(random_in(1, 3), image, taps, i % 4 ? random_in(1, 8) : random_in(1, 33),
                    i % 4 == 1 ? 1 : random_in(1, 20), window, (int)(i & 1), (int)(i % STYLES));
    }
}

/* Runs the forward of attention with an instruction set, for t queries from position `at` on, with key and value
 * buffers for `capacity` keys. */
static void attend(gckpt_call *call, gckpt_isa isa, const gckpti_attention *o, int64_t t,
                   int64_t capacity)
{
    gckpt_shape *q = &call->in[0].shape;
    call->inputs = 3;
    call->attributes = o;
    call->threads = call->rounded ? 1 : 2;
    call->kernels = kernels_of(isa);
    call->runner = &runners[0];
    q->d[1] = t;
    call->in[1].shape = call->in[2].shape = gckpt_shape3(
        q->d[0], capacity, q->d[2] / o->heads * (o->key_heads ? o->key_heads : o->heads));
    CHECK(gckpti_op_attention.shape(call) == GCKPT_OK);
    region workspace = region_new((int64_t)(call->workspace_forward / sizeof(float)), 1);
    fill_nan(&workspace);
    call->workspace = workspace.at;
    gckpti_op_attention.forward(call);
    CHECK(region_intact(&workspace));
    free(workspace.block);
}

/* Tests generation: queries come a few at a time, and their keys and values are appended to buffers that are NaN where
 * still empty. The bits must be those of one call with all queries. */
static void generation(int64_t n, int64_t t, int64_t d, int heads, int group, int prefix,
                       gckpt_precision precision)
{
    enum { ROWS = 2 };
    int64_t c = heads * d, kc = c / group, capacity = n + 70;
    gckpti_attention o = { .heads = heads, .causal = 1, .key_heads = group > 1 ? heads / group : 0 };
    gckpt_call call = { .shape = { 0 },
                        .precision = precision,
                        .rounded = precision == GCKPT_BF16 ? 7 : 0,
                        .in[0].shape = gckpt_shape3(ROWS, n, c) };
    region q = region_new(ROWS * n * c, 0), out = region_new(ROWS * n * c, 0),
           some = region_new(ROWS * t * c, 0);
    region saved = region_new(ROWS * heads * n, 0), of_some = region_new(ROWS * heads * t, 0);
    region got = region_new(ROWS * t * c, 1), got_saved = region_new(ROWS * heads * t, 1);
    region keys[2] = { region_new(ROWS * n * kc, 0), region_new(ROWS * n * kc, 0) };
    region cache[2] = { region_new(ROWS * capacity * kc, 0), region_new(ROWS * capacity * kc, 0) };
    draw(q.at, q.n, NORMAL);
    for (int i = 0; i < 2; i++)
        draw(keys[i].at, keys[i].n, i ? NORMAL : MIXED);
    for (int64_t i = 0; i < q.n && precision == GCKPT_BF16; i++) {
        q.at[i] = gckpti_from_bf16(gckpti_to_bf16(q.at[i]));
        for (int k = 0; k < 2 && i < keys[k].n; k++)
            keys[k].at[i] = gckpti_from_bf16(gckpti_to_bf16(keys[k].at[i]));
    }
    call.in[0].data = q.at, call.in[1].data = keys[0].at, call.in[2].data = keys[1].at;
    call.out = out.at, call.saved = saved.at;
    attend(&call, GCKPT_ISA_PLAIN, &o, n, n);
    for (int64_t at = prefix; at < n; at += t) {
        int64_t now = at + t < n ? t : n - at;
        for (int64_t r = 0; r < ROWS; r++) {
            memcpy(some.at + r * now * c, q.at + (r * n + at) * c,
                   (size_t)(now * c) * sizeof(float));
            for (int h = 0; h < heads; h++)
                memcpy(of_some.at + (r * heads + h) * now, saved.at + (r * heads + h) * n + at,
                       (size_t)now * sizeof(float));
            for (int i = 0; i < 2; i++) {
                float *to = cache[i].at + r * capacity * kc;
                memset(to, 0xff, (size_t)(capacity * kc) * sizeof *to);
                memcpy(to, keys[i].at + r * n * kc, (size_t)((at + now) * kc) * sizeof *to);
            }
        }
        call.in[0].data = some.at, call.in[1].data = cache[0].at, call.in[2].data = cache[1].at;
        call.out = got.at, call.saved = got_saved.at;
        call.position = at - prefix;
        o.causal = 1 + (int)(capacity - prefix -
                             /* 1 + the keys that are missing at position 0; the `prefix` keys exist there and do not
                              * count as positions */
                             now);
        for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++) {
            if (isa != GCKPT_ISA_PLAIN && !kernels_of((gckpt_isa)isa))
                continue;
            fill_nan(&got), fill_nan(&got_saved);
            attend(&call, (gckpt_isa)isa, &o, now, capacity);
            int right = region_intact(&got) && region_intact(&got_saved);
            for (int64_t r = 0; r < ROWS; r++)
                right &= differs(out.at + (r * n + at) * c, got.at + r * now * c, now * c) < 0;
            CHECK_MSG(right && differs(of_some.at, got_saved.at, ROWS * heads * now) < 0,
                      "attention, %ld queries from %ld on, heads of %ld, %s, precision %d",
                      (long)now, (long)at, (long)d, isa_name((gckpt_isa)isa), (int)precision);
        }
    }
    region *all[] = {
        &q, &out, &some, &saved, &of_some, &got, &got_saved, keys, keys + 1, cache, cache + 1
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->block);
}

static void test_generation(void)
{
    static const int8_t few[] = { 1, 2, 7, 8, 9, 16, 17, 63, 64, 65, 70 };
    for (size_t i = 0; i < sizeof few && wanted_op("attention"); i++)
        for (int mixed = 0; mixed < 2; mixed++) {
            if (!is_sampled(5))
                continue;
            generation(i ? 200 : 130, few[i], i % 3 ? random_in(1, 20) : random_in(30, 100), (int)random_in(1, 2),
                       1, 0, mixed ? GCKPT_BF16 : GCKPT_FP32);
            generation(140, few[i], random_in(1, 40), 1, 1, (int)random_in(1, 130),
                       mixed ? GCKPT_BF16 : GCKPT_FP32);
            generation(130, few[i], random_in(1, 40), 6, (int)random_in(2, 3), (int)random_in(0, 1) * 40,
                       mixed ? GCKPT_BF16 : GCKPT_FP32);
        }
}

/* == ops that work row by row: norms, softmax, unary ops ======================================= */
static void row_op(const gckpt_op *op, const gckpti_norm *o, int64_t rows, int64_t n, int style)
{
    problem p = { .op = op,
                  .attributes = o,
                  .style = style,
                  .cost = 8.0 * (double)(rows * n),
                  .inputs = 1 + (o && o->gain) + (o && o->bias),
                  .shape[0] = gckpt_shape2(rows, n) };
    p.shape[1] = p.shape[2] = gckpt_shape1(n);
    if (!wanted_op(op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "%s %ld x %ld%s%s, style %d", op->name, (long)rows, (long)n,
            o && o->gain ? ", gain" : "", o && o->bias ? ", bias" : "", style);
    try_problem(&p);
}

/* Tests a unary op; if the op has attributes, with several values of them. */
static void unary(const gckpt_op *op, int64_t rows, int64_t n, int style)
{
    static const float exponents[] = { 0,    1,     2,     3,    0.5f, -0.5f, -1,      -2,
                                       2.5f, -1.5f, 1e-3f, 7.0f, 1e9f, -3e4f, 1 / 3.0f };
    static const float rates[] = { 0.1f, 0.5f, 0.25f, 1e-9f, 0.99999994f, 0.3f, 5.9604645e-8f };
    const float inf = INFINITY, limits[][2] = { { -1, 1 }, { 0, inf }, { -inf, 0.5f }, { 0, 0 } };
    problem p = { .op = op,
                  .style = style,
                  .cost = 8.0 * (double)(rows * n),
                  .inputs = 1,
                  .shape[0] = gckpt_shape2(rows, n) };
    if (op == &gckpti_op_pow || op == &gckpti_op_scale)
        p.attributes = &exponents[random_in(op == &gckpti_op_pow, (int64_t)(sizeof exponents / sizeof *exponents) - 1)];
    else if (op == &gckpti_op_leaky_relu || op == &gckpti_op_elu)
        p.attributes = &exponents[random_in(0, 3)];
    else if (op == &gckpti_op_clamp)
        p.attributes = limits[random_in(0, 3)];
    else if (op == &gckpti_op_dropout) {
        /* Some rows lie around element 2^34 of the batch, where the random generator's counter needs its second
         * word. */
        p.attributes = &rates[random_in(0, (int64_t)(sizeof rates / sizeof *rates) - 1)];
        p.row = random_in(0, 2) ? random_in(0, 2000) : ((int64_t)1 << 34) / n - random_in(0, rows);
        p.seed = next_random(&state);
    }
    if (!wanted_op(op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "%s %g %ld x %ld, style %d", op->name,
            p.attributes ? (double)*(const float *)p.attributes : 0.0, (long)rows, (long)n, style);
    try_problem(&p);
}

/* Tests rotary on rows of t positions and heads of d columns, some of which are rotated. In some styles the caller
 * gives the frequencies. */
static void rotary(int64_t entries, int64_t t, int heads, int64_t d, int style)
{
    struct {
        gckpti_rotary o;
        float frequency[64];
    } a = { { heads, 500.0f, style * 7, (int)(d > 3 && style % 2 ? d / 4 * 2 : d / 2 * 2),
              style % 2 ? 1.0f : 1.25f, style % 3 == 1 },
            { 0 } };
    problem p = { .op = &gckpti_op_rotary,
                  .attributes = &a,
                  .style = style,
                  .cost = 30.0 * (double)(entries * t * heads * d),
                  .inputs = 1,
                  .shape[0] = gckpt_shape3(entries, t, heads * d) };
    for (int i = 0; i < 64; i++)
        a.frequency[i] = 1.0f / (float)(1 + i * i);
    if (!wanted_op("rotary") || skipped(p.cost))
        return;
    sprintf(p.name, "rotary %ld x %ld, %d heads of %ld, %d turned, style %d", (long)entries,
            (long)t, heads, (long)d, a.o.columns, style);
    try_problem(&p);
}

static void test_rotary(void)
{
    static const uint8_t heads[][2] = { { 1, 2 },  { 3, 6 },  { 2, 16 },
                                        { 5, 33 }, { 4, 64 }, { 1, 128 } };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (int style = 0; style < STYLES; style++)
            rotary(random_in(1, 3), random_in(1, 40), heads[i][0], heads[i][1], style);
    rotary(2, 200, 9, 64, 0);
}

static void row_ops(int64_t rows, int64_t n, int style)
{
    static const gckpti_norm norms[6] = { { 1, 0, 0, 0 }, { 1, 1, 0, 1e-12f }, { 1, 0, 1, 0 },
                                          { 1, 1, 2, 0 }, { 0, 0, 0, 0.5f },   { 0, 1, 0, 0 } };
#define UNARY(name, ...) &gckpti_op_##name,
    static const gckpt_op *const curves[] = {
        UNARY_TESTS(UNARY) &gckpti_op_softmax, &gckpti_op_log_softmax, &gckpti_op_pow, &gckpti_op_clamp,
        &gckpti_op_leaky_relu, &gckpti_op_elu, &gckpti_op_dropout, &gckpti_op_scale
    };
#undef UNARY
    for (int i = 0; i < 6; i++)
        row_op(norms[i].center ? &gckpti_op_layernorm : &gckpti_op_rmsnorm, &norms[i], rows, n,
               style);
    for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
        unary(curves[i], rows, n, style);
}

static void test_rows(void)
{
    static const int16_t sizes[][2] = { { 1, 1 },   { 1, 5000 }, { 3, 1024 },
                                        { 90, 70 }, { 300, 64 }, { 40, 385 },
                                        { 500, 3 }, { 2, 4097 }, { 130, 129 } };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int twice = 0; twice < times(2); twice++)
            if (is_sampled(3))
                row_ops(sizes[i][0], sizes[i][1], twice ? (int)(i % STYLES) : NORMAL);
    for (int64_t n = 1, end = lengths(100); n <= end; n++)
        row_ops(random_in(1, 9), n, (int)(n % STYLES));
}

/* == ops with two inputs ====================================================================== */
/* Shapes of the two inputs. SAME: both are (rows,n). ROW, COLUMN, ONE: input 0 is (rows,n) and input 1 is (n),
 * (rows,1) or (1). OUTER: input 0 is (rows,1) and input 1 is (n). BOTH_ONE: both inputs are one tensor. */
enum { SAME, ROW, COLUMN, ONE, OUTER, BOTH_ONE, LAYOUTS };

static void pair_op(const gckpt_op *op, int64_t rows, int64_t n, int layout, int style)
{
    problem p = { .op = op,
                  .style = style,
                  .cost = 2.0 * (double)(rows * n),
                  .inputs = 2,
                  .twice = layout == BOTH_ONE,
                  .shape[0] = layout == OUTER ? gckpt_shape2(rows, 1) : gckpt_shape2(rows, n) };
    p.shape[1] = layout == ROW || layout == OUTER ? gckpt_shape1(n)
                 : layout == COLUMN               ? gckpt_shape2(rows, 1)
                 : layout == ONE                  ? gckpt_shape1(1)
                                                  : p.shape[0];
    if (!wanted_op(op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "%s %ld x %ld, layout %d, style %d", op->name, (long)rows, (long)n, layout,
            style);
    try_problem(&p);
}

static void test_pairs(void)
{
    static const gckpt_op *const ops[] = { &gckpti_op_add, &gckpti_op_sub,     &gckpti_op_mul,
                                           &gckpti_op_div, &gckpti_op_maximum, &gckpti_op_minimum,
                                           &gckpti_op_prelu };
    static const int16_t sizes[][2] = { { 1, 4096 }, { 4097, 1 }, { 300, 300 }, { 5, 4095 } };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        for (int layout = 0; layout < LAYOUTS; layout++) {
            for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
                if (is_sampled(5))
                    pair_op(ops[i], sizes[k][0], sizes[k][1], layout, (int)k);
            for (int64_t k = 0, end = sampled(20); k < end; k++)
                pair_op(ops[i], random_in(1, 9), random_in(1, 40), layout, (int)(k % STYLES));
        }
        for (int64_t n = 1, end = lengths(100); n <= end; n++)
            pair_op(ops[i], 1, n, SAME, (int)(n % STYLES));
    }
}

/* Tests gckpt_where, which takes elements of a or b by a condition. Shapes are (rows,n), except: `layout` ROW, COLUMN
 * or ONE makes b (n), (rows,1) or (1); bit 0 of `repeated` gives the condition one row, bit 1 gives it one column, and
 * bit 2 makes a (n). */
static void where(int64_t rows, int64_t n, int layout, int repeated, int style)
{
    problem p = { .op = &gckpti_op_where,
                  .style = style,
                  .cost = 2.0 * (double)(rows * n),
                  .inputs = 3,
                  .classes = (int)random_in(0, 1) * 3 };
    p.shape[0] = gckpt_shape2(repeated & 1 ? 1 : rows, repeated & 2 ? 1 : n);
    p.shape[1] = repeated & 4 ? gckpt_shape1(n) : gckpt_shape2(rows, n);
    p.shape[2] = layout == ROW      ? gckpt_shape1(n)
                 : layout == COLUMN ? gckpt_shape2(rows, 1)
                 : layout == ONE    ? gckpt_shape1(1)
                                    : gckpt_shape2(rows, n);
    if (!wanted_op("where") || skipped(p.cost))
        return;
    sprintf(p.name, "where %ld x %ld, layout %d, repeated %d, i32 %d, style %d", (long)rows,
            (long)n, layout, repeated, p.classes != 0, style);
    try_problem(&p);
}

static void test_where(void)
{
    static const int16_t sizes[][2] = { { 1, 4096 }, { 4097, 1 }, { 300, 300 }, { 5, 4095 } };
    for (int layout = SAME; layout <= ONE; layout++)
        for (int repeated = 0; repeated < 8; repeated++) {
            if (layout == SAME && repeated < 4)
                where(sizes[repeated][0], sizes[repeated][1], SAME, 0, repeated);
            for (int64_t k = 0, end = sampled(6); k < end; k++)
                where(random_in(1, 9), random_in(1, 40), layout, repeated, (int)(k % STYLES));
        }
    for (int64_t n = 1, end = lengths(100); n <= end; n++)
        where(1, n, SAME, 0, n % 3 ? SIGNS : (int)(n % STYLES));
}

/* == embed ==================================================================================== */
static void embed(int64_t classes, int64_t columns, int64_t rows, int style)
{
    problem p = { .op = &gckpti_op_embed,
                  .style = style,
                  .cost = (double)(columns * (rows + classes)),
                  .inputs = 2,
                  .classes = (int)classes,
                  .shape[0] = gckpt_shape2(classes, columns),
                  .shape[1] = rows % 2 ? gckpt_shape1(rows) : gckpt_shape2(2, rows / 2) };
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "embed %ld of %ld x %ld, style %d", (long)rows, (long)classes, (long)columns,
            style);
    try_problem(&p);
}

static void test_embed(void)
{
    static const int16_t sizes[][3] = { { 1, 1, 1 },      { 70, 130, 513 }, { 3, 1000, 200 },
                                        { 2000, 65, 90 }, { 1, 64, 700 },   { 500, 3, 1500 } };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int twice = 0; twice < times(2); twice++)
            embed(sizes[i][0], sizes[i][1], sizes[i][2], twice ? (int)(i % STYLES) : NORMAL);
    for (int64_t i = 0, end = sampled(60); i < end; i++)
        embed(random_in(1, 70), random_in(1, 140), random_in(1, 70), (int)(i % STYLES));
}

/* == pools, batchnorm, groupnorm =============================================================== */
static void pool(int average, int64_t rows, int64_t high, int64_t wide, int64_t channels, int style)
{
    gckpti_pool o = { { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, (int)random_in(0, 1), 0 };
    const int images = high > 1 || random_in(0, 1);
    for (int i = !images; i < 2; i++) {
        o.size[i] = (int)random_in(1, 4);
        o.dilation[i] = random_in(0, 2) ? 1 : (int)random_in(1, 3);
        o.padding[i] = (int)random_in(0, (o.size[i] - 1) * o.dilation[i]);
        o.stride[i] = (int)random_in(1, 4);
    }
    o.exclude_padding = average && !random_in(0, 2);
    problem p = { .op = average ? &gckpti_op_average_pool : &gckpti_op_max_pool,
                  .attributes = &o,
                  .style = style,
                  .cost = 8.0 * (double)(rows * high * wide * channels),
                  .inputs = 1,
                  .shape = { images ? gckpt_shape4(rows, high, wide, channels)
                                    : gckpt_shape3(rows, wide, channels) } };
    gckpt_call call = { .attributes = &o, .in = { { .shape = p.shape[0] } } };
    if (!wanted_op(p.op->name) || skipped(p.cost) || p.op->shape(&call) != GCKPT_OK)
        return;
    sprintf(p.name, "%s %ld x %ld x %ld x %ld by %d x %d, style %d", p.op->name, (long)rows,
            (long)high, (long)wide, (long)channels, o.size[0], o.size[1], style);
    try_problem(&p);
}

static void upsample(int64_t rows, int64_t high, int64_t wide, int64_t channels, int style)
{
    gckpti_upsample o = { { (int)random_in(1, 12), (int)random_in(1, 12) }, (int)random_in(0, 2) };
    problem p = { .op = &gckpti_op_upsample,
                  .attributes = &o,
                  .style = style,
                  .cost = 8.0 * (double)(rows * o.size[0] * o.size[1] * channels),
                  .inputs = 1,
                  .shape = { gckpt_shape4(rows, high, wide, channels) } };
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "upsample %ld x %ld x %ld x %ld to %d x %d, how %d, style %d", (long)rows, (long)high,
            (long)wide, (long)channels, o.size[0], o.size[1], o.mode, style);
    try_problem(&p);
}

/* Tests batchnorm (groups = 0) or groupnorm. Bit 0 of kind gives it a gain, bit 1 a bias. */
static void channels(int64_t rows, int64_t places, int groups, int64_t m, int kind, int style)
{
    int first = groups ? 1 : 3;
    gckpti_norm o = { groups, kind & 1 ? first : 0, kind & 2 ? first + (kind & 1) : 0,
                      random_in(0, 2) ? 0.0f : 0.25f };
    int64_t n = groups ? groups * m : m;
    problem p = { .op = groups ? &gckpti_op_groupnorm : &gckpti_op_batchnorm,
                  .attributes = &o,
                  .style = style,
                  .cost = 8.0 * (double)(rows * places * n),
                  .inputs = first + (kind & 1) + (kind >> 1),
                  .shape = { gckpt_shape3(rows, places, n) } };
    for (int i = 1; i < p.inputs; i++)
        p.shape[i] = gckpt_shape1(n);
    if (groups && places * m == 1) /* groupnorm refuses groups with a single value */
        return;
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "%s %ld x %ld x %d x %ld, kind %d, style %d", p.op->name, (long)rows,
            (long)places, groups, (long)m, kind, style);
    try_problem(&p);
}

static void test_images(void)
{
    for (int64_t i = 0, end = sampled(120); i < end; i++)
        pool((int)(i & 1), random_in(1, 4), random_in(1, 9), random_in(1, 9), random_in(1, 40), (int)(i % STYLES));
    for (int i = 0; i < 6; i++)
        pool(i & 1, 5, 20, 21, 67, NORMAL);
    for (int64_t i = 0, end = sampled(60); i < end; i++)
        upsample(random_in(1, 3), random_in(1, 9), random_in(1, 9), random_in(1, 40), (int)(i % STYLES));
    upsample(5, 20, 21, 67, NORMAL);
    for (int64_t i = 0, end = sampled(120); i < end; i++)
        channels(random_in(1, 5), random_in(1, 9), (int)random_in(0, 5), random_in(1, i % 5 ? 20 : 150), (int)(i & 3),
                 (int)(i / 4 % STYLES));
    for (int kind = 0; kind < 4; kind++) {
        channels(4, 100, 0, 70, kind, NORMAL);
        channels(4, 100, 2, 67, kind, NORMAL);
    }
}

/* == gather, recurrent layers ================================================================= */
static void gather(int64_t rows, int64_t n, int64_t m, int64_t columns, int style)
{
    problem p = { .op = &gckpti_op_gather,
                  .style = style,
                  .cost = (double)rows * (double)(columns * (n + m)),
                  .inputs = 2,
                  .classes = (int)n,
                  .shape[0] = gckpt_shape3(rows, n, columns),
                  .shape[1] = gckpt_shape2(rows, m) };
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "gather %ld x %ld of %ld x %ld, style %d", (long)rows, (long)m, (long)n,
            (long)columns, style);
    try_problem(&p);
}

/* Tests an lstm (bit 0 of kind is set) or a gru. Bit 1 gives it an initial state, bit 2 gives a gru a bias of wh, bit 3
 * gives it lengths, bit 4 lets a gru's reset gate come before the product. */
static void recurrent(int64_t rows, int64_t steps, int64_t units, int kind, int style)
{
    int lstm = kind & 1, start = kind >> 1 & 1, bias = !lstm && kind & 4;
    int states = start + (start && lstm), lengths = kind & 8 ? 2 + bias + states : 0;
    gckpti_recurrent o = { lstm ? 4 : 3, bias ? 2 : 0, start ? 2 + bias : 0, lengths };
    int64_t gates = o.gates * units;
    problem p = { .op = lstm ? &gckpti_op_lstm : kind & 16 ? &gckpti_op_gru_reset_before : &gckpti_op_gru,
                  .attributes = &o,
                  .style = style,
                  .cost = (double)(rows * steps) * (double)(units * gates),
                  .inputs = 2 + bias + states + (lengths > 0),
                  .classes = lengths ? (int)steps + 1 : 0,
                  .shape = { gckpt_shape3(rows, steps, gates), gckpt_shape2(units, gates) } };
    for (int i = 2; i < p.inputs; i++)
        p.shape[i] = i == o.bias    ? gckpt_shape1(gates)
                     : i == lengths ? gckpt_shape1(rows)
                                    : gckpt_shape2(rows, units);
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "%s %ld x %ld x %ld%s%s%s, style %d", p.op->name, (long)rows, (long)steps,
            (long)units, bias ? ", bias" : "", start ? ", first state" : "", lengths ? ", lengths" : "", style);
    try_problem(&p);
}

/* Tests the gated delta rule: heads with `keys` and `values` columns, `shared` of them for each head of keys. */
static void delta(int64_t rows, int64_t steps, int heads, int shared, int64_t keys, int64_t values, int style)
{
    const gckpti_delta o = { 0, 0, heads, heads / shared, style % 2 ? 0.3f : 0 };
    const gckpt_shape k = gckpt_shape3(rows, steps, keys * o.key_heads), factors = gckpt_shape3(rows, steps, heads);
    problem p = { .op = &gckpti_op_delta_rule,
                  .attributes = &o,
                  .style = style,
                  .cost = (double)(rows * steps * heads) * (double)(keys * values),
                  .inputs = 5,
                  .shape = { k, k, gckpt_shape3(rows, steps, values * heads), factors, factors } };
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "delta_rule %ld x %ld, %d heads, %d share, %ld x %ld, style %d", (long)rows, (long)steps, heads,
            shared, (long)keys, (long)values, style);
    try_problem(&p);
}

static void test_sequences(void)
{
    static const int16_t sizes[][3] = { /* { rows, steps, units } */
                                        { 1, 1, 1 },   { 70, 3, 5 }, { 33, 2, 40 },
                                        { 1, 30, 65 }, { 5, 7, 48 }, { 130, 4, 17 }
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int kind = 0; kind < 32; kind++)
            if (is_sampled(5))
                recurrent(sizes[i][0], sizes[i][1], sizes[i][2], kind, NORMAL);
    for (int64_t i = 0, end = sampled(60); i < end; i++)
        recurrent(random_in(1, 9), random_in(1, 6), random_in(1, 40), (int)(next_random(&state) & 31),
                  (int)(i / 8 % STYLES));
    delta(2, 5, 2, 2, 20, 70, NORMAL);
    delta(1, 17, 3, 1, 4, 130, NORMAL);
    for (int64_t i = 0, end = sampled(40); i < end; i++) {
        const int shared = (int)random_in(1, 2), heads = shared * (int)random_in(1, 2);
        delta(random_in(1, 3), random_in(1, 10), heads, shared, random_in(1, 9), random_in(1, 70), (int)(i % STYLES));
    }
    gather(3, 700, 900, 65, NORMAL);
    for (int64_t i = 0, end = sampled(30); i < end; i++)
        gather(random_in(1, 5), random_in(1, 20), random_in(1, 30), random_in(1, 40), (int)(i % STYLES));
}

/* Tests the backward of embed from a bf16 gradient into a table of 32 rows. */
static void test_embed_bf16(void)
{
    enum { TABLE = 32, MOST = 200 };
    static float from[TABLE * MOST], want[TABLE * MOST], got[TABLE * MOST];
    static uint16_t grad[40 * MOST];
    int32_t index[40];
    for (int isa = GCKPT_ISA_C; isa < GCKPT_ISA_COUNT; isa++)
        for (int i = 0; i < 40 && gckpt_isa_available((gckpt_isa)isa); i++) {
            const int64_t rows = i % 4 ? random_in(1, 40) : 40, n = i % 5 ? random_in(1, MOST) : MOST;
            gckpt_call call = { .kernels = kernels_of((gckpt_isa)isa), .threads = 1, .inputs = 2 };
            call.shape = gckpt_shape2(rows, n);
            call.in[0].shape = gckpt_shape2(TABLE, n);
            call.in[0].accumulate = i % 2;
            call.in[1].shape = gckpt_shape1(rows);
            call.in[1].index = index;
            call.grad_out_bf16 = grad;
            for (int64_t r = 0; r < rows; r++)
                index[r] = (int32_t)random_in(0, TABLE - 1);
            draw(from, TABLE * n, SIGNS);
            for (int64_t k = 0; k < rows * n; k++)
                grad[k] = gckpti_to_bf16(from[k % (TABLE * n)] * 3);
            memcpy(want, from, sizeof from);
            memcpy(got, from, sizeof from);
            const void *kernels = call.kernels;
            call.in[0].grad = want, call.kernels = NULL;
            gckpti_embed_backward(&call);
            call.in[0].grad = got, call.kernels = kernels;
            gckpti_embed_backward(&call);
            CHECK_MSG(differs(want, got, TABLE * MOST) < 0, "embed from bf16, %s, %ld x %ld",
                      isa_name((gckpt_isa)isa), (long)rows, (long)n);
        }
}

/* Tests the function that sets buffers to zero, with a size that exceeds the caches, and the function that adds a
 * buffer to another one; both run between ops. */
static void test_between(void)
{
    enum { MOST = GCKPTI_UNCACHED + 5 };
    float *got = malloc((MOST + 8) * sizeof *got), *want = calloc(MOST + 8, sizeof *want);
    gckpt_call call = { .kernels = kernels_of(GCKPT_ISA_AVX2), .threads = 1 };
    CHECK(got && want);
    for (int i = 0; i < 5; i++) { /* one of the starts got + i is a multiple of 16 bytes */
        const int64_t n = i == 4 ? 1003 : MOST;
        memset(got, 0x55, (MOST + 8) * sizeof *got);
        gckpti_cpu_fill(&call, got + i, 0, n);
        CHECK_MSG(!memcmp(got + i, want, (size_t)n * sizeof *got), "zeros, %d", i);
        memset(want, 0x55, 8 * sizeof *want);
        CHECK_MSG(!memcmp(got + i + n, want, 3 * sizeof *got), "more zeros, %d", i);
        memset(want, 0, 8 * sizeof *want);
    }
    for (int64_t i = 0; i < 70001; i++)
        got[i] = want[i] = (float)(i % 977) / 7;
    for (int64_t i = 0; i < 70001; i++)
        want[i] += want[i + 3];
    if (call.kernels)
        gckpti_cpu_add(&call, got, memcpy(got + 100000, got + 3, 280000), 70001);
    for (int64_t i = 0; i < 69998; i++)
        CHECK(!call.kernels || got[i] == want[i]);
    free(want);
    free(got);
}

/* == losses =================================================================================== */
static void loss(int64_t rows, int64_t columns, int64_t classes, int style)
{
    const gckpti_linear_loss capped = { 0, 0.5f * (float)random_in(1, 6) };
    problem p = { .op = columns ? &gckpti_op_linear_cross_entropy : &gckpti_op_cross_entropy,
                  .style = style,
                  .cost = (columns ? (double)columns : 8.0) * (double)(rows * classes),
                  .inputs = columns ? 3 : 2,
                  .classes = (int)classes,
                  .attributes = columns && random_in(0, 2) == 0 ? &capped : NULL,
                  .shape[0] = gckpt_shape2(rows, columns ? columns : classes),
                  .shape[1] = gckpt_shape2(classes, columns) };
    p.shape[p.inputs - 1] = gckpt_shape1(rows);
    if (!wanted_op(p.op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "%s %ld x %ld over %ld classes, style %d%s", p.op->name, (long)rows,
            (long)columns, (long)classes, style, p.attributes ? ", capped" : "");
    try_problem(&p);
}

/* Tests a loss of predictions (rows,middle,classes) with weights for the first `axes` axes, or without weights if axes
 * is 0. */
static void weighted(const gckpt_op *op, int64_t rows, int64_t middle, int64_t classes, int axes,
                     int style)
{
    const float attribute = op == &gckpti_op_huber ? 0.6f : (float)random_in(0, 2) / 4.0f;
    int hard = op == &gckpti_op_cross_entropy_with, soft = op == &gckpti_op_soft_cross_entropy;
    gckpt_shape all = gckpt_shape3(rows, middle, classes), heads = gckpt_shape2(rows, middle);
    problem p = { .op = op,
                  .style = style,
                  .cost = 8.0 * (double)(rows * middle * classes),
                  .inputs = op == &gckpti_op_sum_loss ? 1
                            : axes                    ? 3
                                                      : 2,
                  .classes = (int)classes,
                  .attributes = hard || op == &gckpti_op_huber ? &attribute : NULL,
                  .shape = { all, hard ? heads : all, all } };
    p.shape[2].n = (hard || soft) && axes > 2 ? 2 : axes;
    if (op == &gckpti_op_mean_squared_error)
        p.inputs = 2;
    if (!wanted_op(op->name) || skipped(p.cost))
        return;
    sprintf(p.name, "%s %ld x %ld x %ld, weights of %d axes, style %d", op->name, (long)rows,
            (long)middle, (long)classes, axes, style);
    try_problem(&p);
}

static void test_weighted(void)
{
    static const gckpt_op *const ops[] = {
        &gckpti_op_cross_entropy_with,  &gckpti_op_soft_cross_entropy,      &gckpti_op_sum_loss,
        &gckpti_op_mean_squared_error,  &gckpti_op_mean_squared_error_with, &gckpti_op_huber,
        &gckpti_op_binary_cross_entropy
    };
    static const int16_t sizes[][3] = { /* { rows, middle, classes } */
                                        { 1, 1, 1 },   { 1, 1, 2050 }, { 1030, 1, 3 },
                                        { 3, 700, 2 }, { 6, 7, 33 },   { 2, 40, 37 }
    };
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        int least = ops[k] == &gckpti_op_mean_squared_error_with;
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int axes = least; axes < 4; axes++)
                if (is_sampled(5))
                    weighted(ops[k], sizes[i][0], sizes[i][1], sizes[i][2], axes,
                         i % 2 ? NORMAL : (int)random_in(0, STYLES - 1));
        for (int64_t i = 0, end = sampled(60); i < end; i++)
            weighted(ops[k], random_in(1, 5), random_in(1, 12), random_in(1, 40), (int)random_in(least, 3),
                     (int)(i % STYLES));
    }
}

static void test_losses(void)
{
    static const int16_t sizes[][3] = {
        /* { rows, columns, classes } */
        { 1, 1, 1 },     { 513, 3, 70 },   { 300, 2, 1030 }, { 5, 7, 2049 },  { 257, 1, 2050 },
        { 256, 16, 64 }, { 20, 400, 50 },  { 70, 40, 1025 }, { 3, 770, 100 }, { 600, 20, 33 },
        { 1, 5, 3000 },  { 100, 64, 200 }, { 30, 390, 390 }
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int twice = 0; twice < times(2); twice++) {
            loss(sizes[i][0], sizes[i][1], sizes[i][2], twice ? (int)(i % STYLES) : NORMAL);
            loss(sizes[i][0], 0, sizes[i][2], twice ? (int)(i % STYLES) : STEEP);
        }
    loss(270, 70, 1100, NORMAL);
    for (int64_t i = 0, end = sampled(110); i < end; i++) {
        loss(random_in(1, 40), random_in(1, 40), random_in(1, 70), (int)(i % STYLES));
        loss(random_in(1, 40), 0, random_in(1, 100), (int)(i % STYLES));
    }
}

/* == kernels that update parameters ========================================================== */
static void update(int64_t n, int style, gckpt_isa isa)
{
    static const gckpt_update_constants how[3] = {
        { 0.7f, 0.01f, 0.9f, 0.1f, 0.999f, 0.001f, 1e-8f, 0.003f, 1.3f },
        { 1.0f, 0.0f, 0.0f, 1.0f, 0.5f, 0.5f, 0.0f, 1.0f, 1.0f },
        { 1e-30f, 1.0f, 0.9f, 0.1f, 0.95f, 0.05f, 1e-12f, 1e20f, 1e3f }
    };
    static const float by[] = { 3, 1, 7, 1e-38f, 1e30f, 0 };
    const gckpti_kernels *kernels = kernels_of(isa);
    region x[4], y[4], g = region_new(n, 1), more = region_new(n, 1);
    char line[64];
    problem p = { 0 };
    sprintf(line, "%s, %ld elements, style %d", isa_name(isa), (long)n, style);
    for (int i = 0; i < 4; i++) { /* gradient, values, and AdamW's m and v */
        x[i] = region_new(n, 1);
        y[i] = region_new(n, 1);
        draw(x[i].at, n, i && style == TINY ? NORMAL : style);
        for (int64_t k = 0; k < n && i == 3; k++)
            x[i].at[k] = fabsf(x[i].at[k]);
        memcpy(y[i].at, x[i].at, (size_t)n * sizeof(float));
    }
    draw(more.at, n, style == TINY ? NORMAL : style);
    for (int h = 0; h < 5 * 4 * 3; h++) {
        static const float counts[] = { 3, 0, 16, 1, 1048577 };
        gckpt_update_pass pass = { 0 };
        float sums[2];
        int64_t half = h % 2 && n > 64 ? 32 : 0; /* the update begins at element 0 or 32 */
        const float *adds = h % 3 == 1 ? more.at + half : NULL;
        int updates = h / 5 % 4 < 3;
        pass.squares = sums;
        pass.optimiser = (gckpt_optimiser)(h / 5 % 4);
        pass.count = counts[h % 5];
        pass.write_back = h / 5 % 2;
        pass.momentum = 0.9f;
        pass.rates = how[h / 20];
        memcpy(g.at, x[0].at, (size_t)n * sizeof(float));
        memcpy(y[0].at, x[0].at, (size_t)n * sizeof(float));
        pass.gradient = g.at, pass.values = x[1].at;
        pass.state[0] = x[2].at, pass.state[1] = x[3].at;
        sums[0] = gckpti_update_block(&pass, adds, half, n - half, updates);
        pass.gradient = y[0].at, pass.values = y[1].at;
        pass.state[0] = y[2].at, pass.state[1] = y[3].at;
        sums[1] = kernels->update(&pass, adds, half, n - half, updates);
        sprintf(p.name, "update %d", h);
        CHECK_MSG(differs(sums, sums + 1, 1) < 0, "squares of %s, %s: %.9g, not %.9g", p.name, line,
                  (double)sums[1], (double)sums[0]);
        if (!pass.write_back) /* then the gradient stays as it was, except that addends of a pass without update are added */
            memcpy(g.at, x[0].at, (size_t)n * sizeof(float));
        for (int64_t i = half; i < n && !pass.write_back && adds && !updates; i++)
            g.at[i] += adds[i - half];
        same(&p, line, "g", g.at, &y[0]);
        for (int i = 1; i < 4; i++)
            same(&p, line, i == 1 ? "w" : i == 2 ? "m" : "v", x[i].at, &y[i]);
    }
    memcpy(y[0].at, x[0].at, (size_t)n * sizeof(float));
    for (size_t k = 0; k < sizeof by / sizeof by[0]; k++) {
        for (int64_t i = 0; i < n; i++)
            x[1].at[i] = x[0].at[i] / by[k];
        memcpy(y[1].at, x[0].at, (size_t)n * sizeof(float));
        kernels->divide(y[1].at, by[k], n);
        strcpy(p.name, "divide");
        same(&p, line, "quotient", x[1].at, &y[1]);
    }
    free(g.block);
    free(more.block);
    for (int i = 0; i < 4; i++) {
        free(x[i].block);
        free(y[i].block);
    }
}

static void test_update(void)
{
    for (int isa = GCKPT_ISA_C; isa < GCKPT_ISA_COUNT; isa++)
        for (int64_t n = 0; n < 140 && runs_f32(isa); n += percent < 50 ? 13 : 1)
            for (int style = 0; style < STYLES; style++)
                update(n < 130 ? n : 409 * (n - 129) + 7, style, (gckpt_isa)isa);
}

/* == dropout ================================================================================= */
/* For any rate p, the threshold that gckpti_dropout_of computes must be the first random number u with u >= p. */
static void test_rates(void)
{
    float x = 0.0f, p;
    for (int i = 0; i < 40 * percent; i++) {
        gckpt_call call = { .attributes = &p, .in[0].data = &x, .out = &x, .rows = 1 };
        p = gckpti_float((uint32_t)random_in(1, 0x3f7fffff));
        p = i % 2 ? gckpti_uniform((uint32_t)random_in(1, (1 << 24) - 1) << 8) : p;
        p = i % 4 == 2 ? gckpti_float(gckpti_bits(gckpti_uniform((uint32_t)random_in(2, 999) << 12)) + 1) : p;
        p = i % 64 == 9 ? -p : i % 64 == 11 ? 0.0f : p;
        const int64_t least = gckpti_dropout_of(&call, 0).threshold;
        CHECK(least <= 1 << 24);
        for (int64_t k = least < 2 ? 0 : least - 2; k < least + 2 && k < 1 << 24; k++)
            CHECK_MSG((gckpti_uniform((uint32_t)k << 8) >= p) == (k >= least), "%.9g drops to %lld, not %lld",
                      (double)p, (long long)least, (long long)k);
    }
}

/* Every instruction set that this processor has must be available: gckpti_kernels_match() must not reject its
 * kernels. */
static void test_available(void)
{
    int available[GCKPT_ISA_COUNT];
    for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++) {
        available[isa] = gckpt_isa_available((gckpt_isa)isa);
        if (available[isa] && isa >= GCKPT_ISA_C)
            printf("%s ", isa_name((gckpt_isa)isa));
    }
    fflush(stdout);
    if (available[GCKPT_ISA_AMX]) {
        gckpti_kernels amx = *kernels_of(GCKPT_ISA_AMX);
        amx.mixed = kernels_of(GCKPT_ISA_AVX512)->mixed;
        CHECK(memcmp(&amx, kernels_of(GCKPT_ISA_AVX512), sizeof amx) == 0);
    }
#if defined(__FP_FAST_FMAF) && (!defined(__clang__) || defined(__GLIBC__))
    CHECK(available[GCKPT_ISA_C]);
#endif
#ifdef __aarch64__
    CHECK(available[GCKPT_ISA_NEON]);
#elif defined(__x86_64__) && (!defined(_WIN32) || defined(__clang__))
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    CHECK(available[GCKPT_ISA_AVX2] == avx2);
    CHECK(available[GCKPT_ISA_AVX512] ==
          (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")));
#endif
}

/* ---- kernels with wrong bits must be rejected: each function below calls a right kernel and changes the last bit of
 * the last element written ---- */
static const gckpti_kernels *right;

static void off(float *x)
{
    *x = gckpti_float(gckpti_bits(*x) ^ 1);
}

static void off_product(const gckpti_product *t, const gckpti_c_block *at, float *pack, int64_t space)
{
    right->product_block(t, at, pack, space);
    off(t->c + t->m * t->n - 1);
}

static void off_divide(float *x, float by, int64_t n)
{
    right->divide(x, by, n);
    off(x + n - 1);
}

static void off_softmax(const gckpt_call *call, int64_t row)
{
    right->rows[GCKPTI_ROW_OP_softmax][0](call, row);
    off(call->out + call->shape.d[1] - 1);
}

static void off_gelu(const gckpti_loop *loop, gckpti_loop_fn gelu)
{
    float *last = loop->to + loop->n - 1;
    right->run_loop(loop, gelu);
    off(last);
}

static void off_narrow(const float *x, uint16_t *y, int64_t n)
{
    right->mixed->narrow(x, y, n);
    y[n - 1] ^= 1;
}

/* Returns a copy of a product's operand with the terms in reverse order, so that sums have other bits. */
static gckpti_operand reversed_terms(const gckpti_pack_lanes *s)
{
    static uint16_t halves[16 * 64];
    static float floats[16 * 64];
    gckpti_operand x = *s->x;
    const int64_t k = s->t->k, lanes = s->x == &s->t->a ? s->t->m : s->t->n;
    for (int64_t i = 0; CHECK(lanes <= 16 && k <= 64 && x.stride == k && x.k_stride == 1) && i < lanes; i++)
        for (int64_t p = 0; p < k; p++) {
            if (x.halves)
                halves[i * k + p] = x.halves[i * k + k - 1 - p];
            else
                floats[i * k + p] = x.f32[i * k + k - 1 - p];
        }
    x.halves = x.halves ? halves : NULL;
    x.f32 = floats;
    return x;
}

static void pack_reversed(const gckpti_pack_lanes *s, int as_a, uint32_t *d, int64_t row)
{
    gckpti_pack_lanes other = *s;
    const gckpti_operand x = reversed_terms(s);
    other.x = &x;
    right->mixed->pack(&other, as_a, d, row);
}

static void test_wrong(void)
{
    for (int isa = GCKPT_ISA_C; isa < GCKPT_ISA_COUNT; isa++)
        for (int what = 0; what < 6 && gckpt_isa_available((gckpt_isa)isa); what++) {
            right = gckpti_kernels_for((gckpt_isa)isa);
            gckpti_kernels k = *right;
            gckpti_mixed_kernels mixed = *right->mixed;
            k.mixed = &mixed;
            CHECK(gckpti_kernels_match(&k));
            if (what == 0)
                k.product_block = off_product;
            else if (what == 1)
                k.divide = off_divide;
            else if (what == 2)
                k.rows[GCKPTI_ROW_OP_softmax][0] = off_softmax;
            else if (what == 3)
                k.run_loop = off_gelu;
            else if (what == 4)
                mixed.narrow = off_narrow;
            else
                mixed.pack = pack_reversed;
            CHECK_MSG(!gckpti_kernels_match(&k), "%s: kernel %d is wrong, and runs", isa_name((gckpt_isa)isa),
                      what);
        }
}

/* Checks that the problems of a tenth of the cases or more have every op, except those that have only plain loops. */
static void test_complete(void)
{
#define OP(name, part) { #name, #part },
    static const char *const ops[OPS][2] = { GCKPTI_OPS(OP) };
#undef OP
    for (int i = 0; i < OPS; i++) {
        const char *name = ops[i][0], *part = ops[i][1];
        const int fast = !strcmp(name, "broadcast_matmul") || !strcmp(name, "gather");
        const int advances = !strcmp(name, "delta_state"); /* the kernels of delta_rule, in test_cache.c */
        const int plain = advances || (!strcmp(part, "AXES") && !fast) || !strcmp(part, "CACHES") ||
                          !strcmp(name, "detach") || !strcmp(name, "from_u8") || !strcmp(name, "slice");
        CHECK_MSG(plain == !tried[i], "%ld problems of %s", tried[i], name);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = { { "products", test_products },
                  { "attention", test_attention },
                  { "generation", test_generation },
                  { "rows", test_rows },
                  { "rotary", test_rotary },
                  { "pairs", test_pairs },
                  { "where", test_where },
                  { "embed", test_embed },
                  { "sequences", test_sequences },
                  { "losses", test_losses },
                  { "weighted", test_weighted },
                  { "update", test_update },
                  { "rates", test_rates },
                  { "embed-bf16", test_embed_bf16 },
                  { "between", test_between },
                  { "convolutions", test_convolutions },
                  { "images", test_images } };
    percent = check_iterations(9) > 1 ? 50 : 10;
    random_percent = check_iterations(50);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            verbose = 1;
        else if (atoi(argv[i]) > 0)
            percent = random_percent = atoi(argv[i]);
        else
            only = argv[i];
    }
    test_available();
    test_wrong();
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        long before = check_passed + check_failed;
        state = (uint64_t)check_seed() << 8 | (i + 1);
        tests[i].run();
        if (verbose)
            printf("%s: %ld checks\n", tests[i].name, check_passed + check_failed - before);
    }
    if (!only && percent >= 10)
        test_complete();
    return check_report("kernels");
}
#endif
