/* test_attention.c - compares gckpt_attention with PyTorch (golden/make_attention.py), with the formula in binary64
 * (windows, caps, scales, several tiles), and with a graph that repeats shared key heads by slices. Masked keys must
 * change no bit of a result. Every comparison runs on all instruction sets of this machine, in fp32 and bf16 plans,
 * with one and several threads, with whole batches and row by row, with values kept and recomputed. */
#include "gradckpt.h"
#include "util.h"
#include "golden/attention.h"
#include <math.h>
#include <string.h>

enum { CAPACITY = 1 << 15, Q = 0, K, V, G, OUT, DQ, DK, DV, ARRAYS };

typedef struct {
    int64_t b, t, s, d;
    int heads, key_heads, causal;
    const int32_t *lengths;
    int repeat; /* if nonzero, the graph repeats key heads by slices */
    int64_t window;
    float cap, scale;
} problem;

typedef struct {
    float x[ARRAYS][CAPACITY];
} arrays;

typedef struct {
    gckpt_isa isa;
    gckpt_mode mode;
    gckpt_precision precision;
    int threads;
    int64_t rows;
} way;

static int64_t elements_of(const problem *p, int which)
{
    const int of_keys = which == K || which == V || which == DK || which == DV;
    return p->b * (of_keys ? p->s * p->key_heads : p->t * p->heads) * p->d;
}

/* fills all arrays with the numbers that numbers() of make_attention.py returns */
static void fill(const problem *p, arrays *a)
{
    for (int which = Q; which <= G; which++)
        for (int64_t i = 0; i < elements_of(p, which); i++)
            a->x[which][i] = (float)((i * 37 + (which + 1) * 11) % 101 - 50) / 32;
}

/* Repeats the columns of each key head of x once for each query head that shares it, by slices and concatenation. */
static gckpt_tensor *repeated(const problem *p, gckpt_tensor *x)
{
    gckpt_tensor *all = NULL;
    for (int h = 0; h < p->heads; h++) {
        const int64_t at = h / (p->heads / p->key_heads) * p->d;
        gckpt_tensor *two[2] = { all, gckpt_slice(x, 2, at, at + p->d) };
        all = all ? gckpt_concat(two, 2, 2) : two[1];
    }
    return all;
}

/* Computes the attention's output `out`, and the gradients of q, k and v if a->x[G] is the gradient of `out`. */
static void solve(const problem *p, const way *w, arrays *a)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const int64_t c = p->heads * p->d, kc = p->key_heads * p->d;
    gckpt_tensor *in[4] = { gckpt_input(g, "q", GCKPT_F32, gckpt_shape3(w->rows, p->t, c)),
                            gckpt_input(g, "k", GCKPT_F32, gckpt_shape3(w->rows, p->s, kc)),
                            gckpt_input(g, "v", GCKPT_F32, gckpt_shape3(w->rows, p->s, kc)),
                            gckpt_input(g, "g", GCKPT_F32, gckpt_shape3(w->rows, p->t, c)) };
    gckpt_attention_desc desc = { p->heads, p->key_heads, p->causal, NULL, p->window, p->cap, p->scale, NULL, NULL, NULL };
    if (p->lengths)
        desc.lengths = gckpt_input(g, "lengths", GCKPT_I32, gckpt_shape1(w->rows));
    gckpt_tensor *out = p->repeat ? gckpt_attention(in[Q], repeated(p, in[K]), repeated(p, in[V]),
                                                    &(gckpt_attention_desc){ .heads = p->heads, .causal = p->causal })
                                  : gckpt_attention(in[Q], in[K], in[V], &desc);
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(out, in[G])), 1, 0 };
    const gckpt_fetch_spec fetches[4] = { { out, 0 }, { in[Q], 1 }, { in[K], 1 }, { in[V], 1 } };
    gckpt_plan_desc d = { .mode = w->mode, .batch = p->b, .threads = w->threads, .bf16.precision = w->precision,
                          .fetch.specs = fetches, .fetch.count = 4 };
    gckpt_exec_desc x = { .isa = w->isa, .parallel_for = any_order, .debug = GCKPT_DEBUG_POISON };
    gckpt_plan *plan = gckpt_plan_new(g, &term, 1, &d);
    gckpt_exec *e = gckpt_exec_new(plan, s, &x);
    if (!CHECK_MSG(e != NULL, "%s %s", gckpt_error_text(g), gckpt_error_text(s)))
        exit(check_report("test_attention"));
    CHECK(gckpt_plan_split_exact(plan, NULL) == 1);
    gckpt_feed feeds[5] = {
        { 0, NULL }, { 0, NULL }, { 0, NULL }, { 0, NULL }, { gckpt_id(desc.lengths), p->lengths }
    };
    for (int i = 0; i < 4; i++) {
        feeds[i].input = gckpt_id(in[i]), feeds[i].data = a->x[i];
        CHECK(gckpt_collect(e, gckpt_id(i ? in[i - 1] : out), i > 0, a->x[OUT + i], CAPACITY) == GCKPT_OK);
    }
    CHECK_MSG(gckpt_gradients(e, feeds, p->lengths ? 5 : 4, p->b, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    util_free(e, plan, g, s);
}

/* ---- compared with PyTorch ---- */
static void near_golden(const char *name, const problem *p, const double *const *want)
{
    static arrays a;
    for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++) {
        const way w = { (gckpt_isa)isa, GCKPT_STORE_ALL, GCKPT_FP32, 1, p->b };
        if (!gckpt_isa_available(w.isa))
            continue;
        fill(p, &a);
        solve(p, &w, &a);
        for (int which = OUT; which < ARRAYS; which++)
            for (int64_t i = 0; i < elements_of(p, which == OUT ? Q : which - DQ); i++) {
                const double x = (double)a.x[which][i], y = want[which - OUT][i];
                CHECK_MSG(fabs(x - y) < 1e-6 * (1 + fabs(y)), "%s, %s: array %d, element %d is %.9g, not %.9g", name,
                          isa_name(w.isa), which, (int)i, x, y);
            }
    }
}

#define GOLDEN(name, ...)                                                                                           \
    do {                                                                                                            \
        const problem golden = { __VA_ARGS__ };                                                                     \
        const double *const want[4] = { golden_attention_##name##_out, golden_attention_##name##_dq,                \
                                        golden_attention_##name##_dk, golden_attention_##name##_dv };               \
        near_golden(#name, &golden, want);                                                                          \
    } while (0)

static void pytorch(void)
{
    static const int32_t some[3] = { 5, 1, 3 }, more[3] = { 2, 4, 1 };
    GOLDEN(shared, 2, 3, 5, 3, 4, 2, 0, NULL, 0, 0, 0, 0);
    GOLDEN(shared_causal, 1, 4, 4, 3, 3, 1, 1, NULL, 0, 0, 0, 0);
    GOLDEN(lengths, 3, 3, 5, 3, 2, 2, 0, some, 0, 0, 0, 0);
    GOLDEN(both, 3, 4, 4, 3, 4, 2, 1, more, 0, 0, 0, 0);
    GOLDEN(window, 1, 6, 6, 3, 2, 1, 1, NULL, 0, 3, 0, 0);
    GOLDEN(capped, 1, 3, 5, 3, 2, 2, 0, NULL, 0, 0, 1.5f, 0);
    GOLDEN(window_capped, 2, 5, 5, 3, 2, 1, 1, NULL, 0, 2, 2, 0.75f);
}

/* Tests a mask (heads or 1,T,S) that hides key 2 of the last head from query 0, and its gradient. */
static void biased(const char *name, int64_t heads, int64_t key_heads, int precision, const double *const *want)
{
    enum { B = 2, T = 3, S = 5, D = 3 };
    static arrays a;
    float mask[4 * T * S];
    const problem p = { B, T, S, D, (int)heads, (int)key_heads, 0, NULL, 0, 0, 0, 0 };
    const int64_t masks = heads != key_heads ? heads : 1;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    fill(&p, &a);
    for (int64_t i = 0; i < masks * T * S; i++)
        mask[i] = (float)((i * 37 + 5 * 11) % 101 - 50) / 32;
    mask[(masks - 1) * T * S + 2] = -INFINITY;
    gckpt_tensor *in[5] = { gckpt_input(g, "q", GCKPT_F32, gckpt_shape3(1, T, heads * D)),
                            gckpt_input(g, "k", GCKPT_F32, gckpt_shape3(1, S, key_heads * D)),
                            gckpt_input(g, "v", GCKPT_F32, gckpt_shape3(1, S, key_heads * D)),
                            gckpt_input(g, "g", GCKPT_F32, gckpt_shape3(1, T, heads * D)),
                            gckpt_constant(g, "mask", GCKPT_F32, gckpt_shape3(masks, T, S), mask) };
    gckpt_tensor *out = gckpt_attention(
        in[Q], in[K], in[V], &(gckpt_attention_desc){ .heads = p.heads, .key_heads = p.key_heads, .mask = in[4] });
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(out, in[G])), 1, 0 };
    const gckpt_fetch_spec fetches[5] = { { out, 0 }, { in[Q], 1 }, { in[K], 1 }, { in[V], 1 }, { in[4], 1 } };
    gckpt_plan_desc d = { .batch = B, .bf16.precision = (gckpt_precision)precision,
                          .fetch.specs = fetches, .fetch.count = 5 };
    gckpt_plan *plan = gckpt_plan_new(g, &term, 1, &d);
    gckpt_exec *e = gckpt_exec_new(plan, s, NULL);
    if (!CHECK_MSG(e != NULL, "%s %s", gckpt_error_text(g), gckpt_error_text(s)))
        exit(check_report("test_attention"));
    CHECK(gckpt_plan_split_exact(plan, NULL) == 1);
    gckpt_feed feeds[4];
    for (int i = 0; i < 4; i++) {
        feeds[i].input = gckpt_id(in[i]), feeds[i].data = a.x[i];
        CHECK(gckpt_collect(e, gckpt_id(i ? in[i - 1] : out), i > 0, a.x[OUT + i], CAPACITY) == GCKPT_OK);
    }
    CHECK_MSG(gckpt_gradients(e, feeds, 4, B, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    const float *dmask = gckpt_fetch(e, gckpt_id(in[4]), 1);
    for (int which = OUT; which <= ARRAYS; which++) {
        const int64_t n = which == ARRAYS ? masks * T * S : elements_of(&p, which == OUT ? Q : which - DQ);
        for (int64_t i = 0; i < n; i++) {
            const double x = (double)(which == ARRAYS ? dmask[i] : a.x[which][i]), y = want[which - OUT][i];
            CHECK_MSG(fabs(x - y) < (precision ? 0.05 : 1e-6) * (1 + fabs(y)),
                      "%s: array %d, element %d is %.9g, not %.9g", name, which, (int)i, x, y);
        }
    }
    util_free(e, plan, g, s);
}

static void masks(void)
{
    const double *const shared[5] = { golden_attention_biased_out, golden_attention_biased_dq, golden_attention_biased_dk,
                                      golden_attention_biased_dv, golden_attention_biased_dmask };
    const double *const once[5] = { golden_attention_biased_once_out, golden_attention_biased_once_dq,
                                    golden_attention_biased_once_dk, golden_attention_biased_once_dv,
                                    golden_attention_biased_once_dmask };
    for (int precision = 0; precision < 2; precision++) {
        biased("a mask for each head", 4, 2, precision, shared);
        biased("a mask for all heads", 2, 2, precision, once);
    }
}

/* ---- compared with the formula in binary64 ---- */
/* Computes `out` for head h of batch row b, and adds the contributions of this head to the gradients. */
static void head_written_out(const problem *p, const arrays *a, double (*to)[CAPACITY], int64_t b, int h)
{
    static double probability[300];
    const int64_t c = p->heads * p->d, kc = p->key_heads * p->d, keys = p->lengths ? p->lengths[b] : p->s;
    const double scale = p->scale > 0 ? (double)p->scale : 1 / sqrt((double)p->d), cap = (double)p->cap;
    for (int64_t i = 0; i < p->t; i++) {
        const int64_t at = (b * p->t + i) * c + h * p->d, last = p->causal ? p->s - p->t + i : p->s - 1;
        const int64_t first = p->window && last + 1 > p->window ? last + 1 - p->window : 0;
        const int64_t end = last < keys ? last + 1 : keys;
        const float *q = a->x[Q] + at, *g = a->x[G] + at;
        double sum = 0, delta = 0;
        for (int pass = 0; pass < 3; pass++)
            for (int64_t j = first; j < end; j++) {
                const int64_t key = (b * p->s + j) * kc + h / (p->heads / p->key_heads) * p->d;
                double s = 0, dp = 0, slope = scale;
                for (int64_t e = 0; e < p->d; e++)
                    s += (double)q[e] * (double)a->x[K][key + e], dp += (double)g[e] * (double)a->x[V][key + e];
                s *= scale;
                if (cap > 0) {
                    const double y = tanh(s / cap);
                    s = cap * y, slope *= 1 - y * y;
                }
                if (pass == 0)
                    sum += exp(s);
                probability[j] = exp(s) / sum;
                if (pass == 1)
                    delta += probability[j] * dp;
                for (int64_t e = 0; pass == 2 && e < p->d; e++) {
                    const double ds = probability[j] * (dp - delta) * slope;
                    to[OUT][at + e] += probability[j] * (double)a->x[V][key + e];
                    to[DQ][at + e] += ds * (double)a->x[K][key + e];
                    to[DK][key + e] += ds * (double)q[e];
                    to[DV][key + e] += probability[j] * (double)g[e];
                }
            }
    }
}

static void written_out(void)
{
    static const int32_t short_ones[2] = { 50, 7 };
    static const problem problems[] = {
        { 1, 150, 150, 5, 1, 1, 1, NULL, 0, 70, 0, 0 },    { 1, 90, 200, 4, 2, 1, 1, NULL, 0, 33, 1.25f, 0 },
        { 2, 70, 70, 3, 2, 2, 1, NULL, 0, 1, 0, 0.5f },    { 2, 80, 130, 3, 2, 1, 0, NULL, 0, 0, 0.75f, 0.25f },
        { 2, 100, 100, 3, 1, 1, 1, short_ones, 0, 20, 2, 0 }, { 1, 130, 130, 3, 1, 1, 1, NULL, 0, 64, 0, 0 },
        { 1, 3, 200, 5, 2, 1, 1, NULL, 0, 100, 0, 0 },     { 1, 200, 200, 2, 1, 1, 1, NULL, 0, 128, 0, 0 },
    };
    static arrays a;
    static double want[ARRAYS][CAPACITY];
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++) {
            const problem *p = &problems[i];
            const way w = { (gckpt_isa)isa, GCKPT_STORE_ALL, GCKPT_FP32, 1, p->b };
            if (!gckpt_isa_available(w.isa))
                continue;
            fill(p, &a);
            memset(want, 0, sizeof want);
            for (int64_t b = 0; b < p->b * p->heads; b++)
                head_written_out(p, &a, want, b / p->heads, (int)(b % p->heads));
            solve(p, &w, &a);
            for (int which = OUT; which < ARRAYS; which++)
                for (int64_t k = 0; k < elements_of(p, which == OUT ? Q : which - DQ); k++) {
                    const double x = (double)a.x[which][k], y = want[which][k];
                    CHECK_MSG(fabs(x - y) < 4e-6 * (1 + fabs(y)),
                              "problem %d, %s: array %d, element %d is %.9g, not %.9g", (int)i, isa_name(w.isa),
                              which, (int)k, x, y);
                }
        }
}

/* ---- the same bits in every way to run: with shared or repeated key heads, and for rows without their masked keys
 * ---- */
static int differ(const float *x, const float *y, int64_t n) { return memcmp(x, y, (size_t)n * sizeof *x) != 0; }

static void same_ways(const problem *p, gckpt_precision precision)
{
    static arrays want, got;
    const way plain = { GCKPT_ISA_PLAIN, GCKPT_STORE_ALL, precision, 1, p->b };
    fill(p, &want);
    got = want;
    solve(p, &plain, &want);
    for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++)
        for (int i = 0; i < 6 && gckpt_isa_available((gckpt_isa)isa); i++) {
            const way w = { (gckpt_isa)isa, i % 2 ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL, precision, 1 + i % 3,
                            i < 3 ? p->b : i < 5 ? 1 : 2 };
            for (int which = OUT; which < ARRAYS; which++)
                memset(got.x[which], 0xff, sizeof got.x[which]);
            solve(p, &w, &got);
            for (int which = OUT; which < ARRAYS; which++)
                CHECK_MSG(!differ(want.x[which], got.x[which], elements_of(p, which == OUT ? Q : which - DQ)),
                          "%s, way %d, precision %d: array %d differs", isa_name(w.isa), i, (int)precision,
                          which);
        }
}

static void repeated_heads(const problem *p, const way *w)
{
    static arrays want, got;
    problem by_hand = *p;
    by_hand.repeat = 1;
    fill(p, &want);
    got = want;
    solve(&by_hand, w, &want);
    solve(p, w, &got);
    CHECK_MSG(!differ(want.x[OUT], got.x[OUT], elements_of(p, Q)) && !differ(want.x[DQ], got.x[DQ], elements_of(p, Q)),
              "%s, precision %d: repeated key heads give other bits", isa_name(w->isa), (int)w->precision);
    /* in a graph that repeats heads, dk and dv are summed in another order, so that their bits may differ */
    for (int which = DK; which <= DV; which++)
        for (int64_t i = 0; i < elements_of(p, K) && w->precision == GCKPT_FP32; i++)
            CHECK(fabsf(want.x[which][i] - got.x[which][i]) < 1e-5f * (1 + fabsf(want.x[which][i])));
}

/* Masked keys and values may hold any bits, here NaN, infinities and large numbers. Tests that their gradients are
 * +0, and that each batch row has the same bits as a run of this row alone whose keys and values lack the masked
 * ones. */
static void rows_alone(const problem *p, const way *w)
{
    static arrays all, one;
    static const float odd[4] = { NAN, INFINITY, -INFINITY, 3e38f };
    const int64_t c = p->heads * p->d, kc = p->key_heads * p->d;
    fill(p, &all);
    for (int which = K; which <= V; which++)
        for (int64_t i = 0; i < elements_of(p, K); i++)
            if (i / kc % p->s >= p->lengths[i / kc / p->s])
                all.x[which][i] = odd[i % 4];
    solve(p, w, &all);
    for (int64_t b = 0; b < p->b; b++) {
        const int64_t keys = p->lengths[b], q = b * p->t * c, k = b * p->s * kc;
        const problem alone = { 1, p->t, keys, p->d, p->heads, p->key_heads, p->causal, NULL, 0, 0, 0, 0 };
        const way whole = { w->isa, w->mode, w->precision, w->threads, 1 };
        const float *dk = all.x[DK] + k, *dv = all.x[DV] + k;
        uint32_t words = 0;
        for (int64_t i = keys * kc; i < p->s * kc; i++)
            words |= bits_of(dk[i]) | bits_of(dv[i]);
        for (int64_t i = 0; keys == 0 && i < p->t * c; i++)
            words |= bits_of(all.x[OUT][q + i]) | bits_of(all.x[DQ][q + i]);
        CHECK_MSG(words == 0, "%s, precision %d: row %d with %d keys: a masked gradient is not +0",
                  isa_name(w->isa), (int)w->precision, (int)b, (int)keys);
        /* if causal, a row with fewer keys would align its queries with other keys, so it cannot be compared */
        if (keys == 0 || (p->causal && keys < p->s))
            continue;
        memcpy(one.x[Q], all.x[Q] + q, (size_t)(p->t * c) * sizeof(float));
        memcpy(one.x[G], all.x[G] + q, (size_t)(p->t * c) * sizeof(float));
        memcpy(one.x[K], all.x[K] + k, (size_t)(keys * kc) * sizeof(float));
        memcpy(one.x[V], all.x[V] + k, (size_t)(keys * kc) * sizeof(float));
        solve(&alone, &whole, &one);
        CHECK_MSG(!differ(one.x[OUT], all.x[OUT] + q, p->t * c) && !differ(one.x[DQ], all.x[DQ] + q, p->t * c) &&
                      !differ(one.x[DK], dk, keys * kc) && !differ(one.x[DV], dv, keys * kc),
                  "%s, precision %d: row %d of %d keys differs from the row computed alone", isa_name(w->isa),
                  (int)w->precision, (int)b, (int)keys);
    }
}

static void bits(void)
{
    static const int32_t few[5] = { 0, 7, 1, 3, 0 }, many[5] = { 130, 64, 0, 65, 1 };
    static const problem problems[] = {
        { 5, 4, 7, 3, 4, 2, 0, few, 0, 0, 0, 0 },      { 5, 5, 7, 5, 3, 1, 1, few, 0, 0, 0, 0 },
        { 5, 70, 130, 4, 2, 1, 0, many, 0, 0, 0, 0 },  { 5, 66, 130, 4, 2, 2, 1, many, 0, 0, 0, 0 },
        { 5, 1, 130, 7, 6, 3, 0, many, 0, 0, 0, 0 },   { 5, 3, 130, 8, 4, 4, 0, many, 0, 0, 0, 0 },
        { 3, 100, 130, 4, 4, 2, 1, NULL, 0, 40, 0, 0 }, { 5, 70, 130, 4, 2, 1, 1, many, 0, 20, 1.5f, 0.25f },
        { 3, 70, 70, 5, 4, 2, 1, NULL, 0, 10, 0, 0 },  { 3, 3, 140, 4, 2, 1, 1, NULL, 0, 66, 0.5f, 0 },
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int precision = 0; precision < 2; precision++) {
            same_ways(&problems[i], precision ? GCKPT_BF16 : GCKPT_FP32);
            for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++) {
                const way w = { (gckpt_isa)isa, GCKPT_STORE_ALL, precision ? GCKPT_BF16 : GCKPT_FP32, 2, 5 };
                problem all = problems[i];
                all.lengths = NULL;
                if (!gckpt_isa_available(w.isa))
                    continue;
                if (problems[i].lengths && !problems[i].window)
                    rows_alone(&problems[i], &w);
                if (!problems[i].window)
                    repeated_heads(&all, &w);
            }
        }
}

/* ---- lengths are checked before anything runs; default options give the same plan as the call without options ---- */
static void refusals(void)
{
    float x[2 * 3 * 4] = { 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL), *old = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(2, 3, 4));
    gckpt_attention_desc desc = { 2, 0, 0, gckpt_input(g, "lengths", GCKPT_I32, gckpt_shape1(2)), 0, 0, 0, NULL, NULL, NULL };
    gckpt_fetch_spec fetch = { gckpt_attention(in, in, in, &desc), 0 };
    gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d), *q, *same;
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    for (int32_t length = -1; length < 6; length++) {
        const int32_t lengths[2] = { 2, length };
        gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(desc.lengths), lengths } };
        const int fits = length >= 0 && length <= 3;
        char want[80];
        snprintf(want, sizeof want, "\"lengths\": index %d at row 1, position 0: attention #2 takes 0 to 3",
                 (int)length);
        CHECK(gckpt_forward(e, feeds, 2, 2, NULL) == (fits ? GCKPT_OK : GCKPT_E_DATA));
        CHECK_MSG(fits || strstr(gckpt_error_text(e), want), "%s", gckpt_error_text(e));
        if (!fits)
            util_free(e, NULL, NULL, NULL), e = gckpt_exec_new(p, s, NULL);
    }
    util_free(e, p, g, NULL);
    /* key_heads equal to heads is the default, so naming it must not change the plan */
    in = gckpt_input(old, "x", GCKPT_F32, gckpt_shape3(2, 3, 4));
    desc.lengths = NULL, desc.key_heads = 2;
    g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in2 = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(2, 3, 4));
    fetch.tensor = gckpt_attention(in, in, in, &(gckpt_attention_desc){ .heads = 2 });
    q = gckpt_plan_new(old, NULL, 0, &d);
    fetch.tensor = gckpt_attention(in2, in2, in2, &desc);
    same = gckpt_plan_new(g, NULL, 0, &d);
    file one = { 0 }, two = { 0 };
    CHECK(gckpt_plan_c(q, "p", file_write, &one) == GCKPT_OK && gckpt_plan_c(same, "p", file_write, &two) == GCKPT_OK);
    CHECK(same_file(&one, &two));
    free(one.bytes), free(two.bytes);
    gckpt_plan_free(q);
    desc.cap = -1; /* two mistakes at once, of which the error text must name that q belongs to another graph */
    CHECK(!gckpt_attention(in2, in, in, &desc) && gckpt_error(old) == GCKPT_OK);
    CHECK(gckpt_error(g) == GCKPT_E_ARG && strstr(gckpt_error_text(g), "belongs to another graph"));
    util_free(NULL, same, g, NULL);
    util_free(NULL, NULL, old, s);
}

int main(void)
{
    pytorch();
    masks();
    written_out();
    bits();
    refusals();
    return check_report("attention");
}
