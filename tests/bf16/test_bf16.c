/* test_bf16.c - tests bf16 plans on the processor. Conversions follow their definition, and one step has the bits of
 * the same step written out in this file. Every plan, split of the batch and number of threads gives the same bits,
 * measured bytes equal planned bytes, and results are close to fp32's. */
#include "num/num.h"
#include "store/store.h"
#include "ops/ops.h"
#include "attention/cpu.h"
#include "bf16/cpu.h"
#include "cpu/internal.h"
#include "graph/graph.h"
#include "plan/internal.h"
#include "underflow.h"
#include "attention_block.h"
#include "examples/gradcheck.h"
#include "util.h"
#include <math.h>

/* bf16/plan.c */
GCKPTI_FN size_t gckpti_place_copies(const gckpti_planner *p, const gckpt_tensor *t, int backward, size_t *copy);

#if defined(GCKPT_NO_FAST) || defined(GCKPT_FORCE_SOFT_FMA) || !defined(__GNUC__) ||               \
    UINTPTR_MAX < UINT64_MAX
#define FAST 0
#else
#define FAST 1
#endif

static int is_quick, is_wide; /* set by main's arguments "quick" and "wide" */

/* Hashes of a training of the small GPT below, equal on every machine. A change of them is a change of the numeric
 * specification (manual, 5l). */
#define GOLDEN UINT64_C(0x081572b9bcf4dc08)

/* ---- conversions ---- */

/* Returns the bf16 number nearest to x, found by comparing distances; of two equally near numbers, the even one. */
static uint16_t nearest(float x)
{
    const uint32_t u = bits_of(x), down = u & 0xffff0000u, up = down + 0x10000u;
    double below = fabs((double)x - (double)float_of(down));
    double above = up << 1 == 0xff000000u ? ldexp(1, 128) - fabs((double)x)
                                          : fabs((double)x - (double)float_of(up));
    return (uint16_t)((above < below || (above == below && (up >> 16 & 1) == 0) ? up : down) >> 16);
}

static void test_conversions(void)
{
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = gckpt_from_bf16((uint16_t)h);
        const uint16_t back = gckpt_to_bf16(x);
        CHECK(bits_of(x) == h << 16 || (x != x && (h & 0x7fff) > 0x7f80));
        if ((h & 0x7fff) > 0x7f80)
            CHECK_MSG(back == (h | 0x40), "NaN %04x came back as %04x", h, back);
        else if (!(h & 0x7f80))
            CHECK_MSG(back == (h & 0x8000), "subnormal %04x became %04x", h, back);
        else
            CHECK_MSG(back == h, "%04x came back as %04x", h, back);
    }
    uint32_t random = 1;
    for (int i = 0, end = check_iterations(300000); i < end; i++) {
        random = random * 1664525u + 1013904223u;
        uint32_t u = random ^ random >> 15;
        u = i % 4 == 0 ? (u & 0xffff0000u) | 0x8000u : i % 4 == 1 ? (u & 0xfffffff0u) : u;
        if ((u & 0x7f800000u) == 0 || (u & 0x7f800000u) == 0x7f800000u)
            continue;
        CHECK_MSG(gckpt_to_bf16(float_of(u)) == nearest(float_of(u)), "%08x became %04x", u,
                  gckpt_to_bf16(float_of(u)));
    }
    CHECK(gckpt_to_bf16(float_of(0x7f7fffffu)) == 0x7f80 && gckpt_to_bf16(-INFINITY) == 0xff80);
    CHECK(gckpt_to_bf16(float_of(0x7f7f7fffu)) == 0x7f7f);
}

/* ---- exact sums in integers (manual, 5l): a b + c with a and b in bf16, computed in units of 2^-300, then rounded to
 * 24 bits as if exponents had no lower limit. Operands and results below 2^-126 become zeros. ---- */
static float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x; }

enum { INTEGER_WORDS = 20 };
typedef struct {
    uint32_t w[INTEGER_WORDS]; /* least significant word first */
} integer;

static integer shifted(uint32_t m, uint32_t by)
{
    integer x = { { 0 } };
    x.w[by / 32] = m << by % 32;
    x.w[by / 32 + 1] = by % 32 ? m >> (32 - by % 32) : 0;
    return x;
}

/* Returns x + y, or x - y if `minus` is nonzero. */
static integer combined(const integer *x, const integer *y, int minus)
{
    integer z;
    uint64_t carry = (uint64_t)minus;
    for (int i = 0; i < INTEGER_WORDS; i++) {
        carry += (uint64_t)x->w[i] + (minus ? ~y->w[i] : y->w[i]);
        z.w[i] = (uint32_t)carry;
        carry >>= 32;
    }
    return z;
}

static int bit(const integer *x, int i) { return (int)(x->w[i / 32] >> i % 32 & 1); }

static float exact_term(float a, float b, float c)
{
    const uint32_t u[3] = { bits_of(a), bits_of(b), bits_of(c) };
    uint32_t e[3], m[3];
    for (int i = 0; i < 3; i++) {
        e[i] = u[i] >> 23 & 255, m[i] = e[i] ? (u[i] & 0x7fffff) | 0x800000 : 0;
        if (e[i] == 255)
            return fmaf(flushed(a), flushed(b), flushed(c));
    }
    const uint32_t sign = (u[0] ^ u[1]) >> 31, other = u[2] >> 31;
    const integer p = shifted((m[0] >> 16) * m[1], e[0] + e[1] + 16);
    const integer q = shifted(m[2], e[2] + 150);
    integer sum = combined(&p, &q, sign != other);
    int negative = (int)sign, top = 32 * INTEGER_WORDS - 1;
    if (sign != other && bit(&sum, top)) { /* |q| > |p|: the sum has the sign of q */
        sum = combined(&q, &p, 1);
        negative = (int)other;
    }
    while (top >= 0 && !bit(&sum, top))
        top -= sum.w[top / 32] ? 1 : 32; /* skips a word of 32 zero bits, or a single 0 */
    if (top < 0)
        return sign && other ? -0.0f : 0.0f;
    double kept = 0;
    int half = top >= 24 && bit(&sum, top - 24), rest = 0;
    for (int i = top; i >= 0 && i > top - 24; i--)
        kept = 2 * kept + bit(&sum, i);
    for (int i = 0; i < top - 24 && !rest; i += sum.w[i / 32] ? 1 : 32)
        rest = bit(&sum, i);
    if (top < 23)
        kept = ldexp(kept, 23 - top);
    kept += half && (rest || fmod(kept, 2) > 0);
    kept = ldexp(kept, top - 23 - 300);
    kept = kept < ldexp(1, -126) ? 0 : kept >= ldexp(1, 128) ? (double)INFINITY : kept;
    return (float)(negative ? -kept : kept);
}

/* Returns d plus n products a[p] b[p], added in the order that the numeric specification demands (5l). A sample has
 * `run` terms; if `run` is 0, all terms belong to one sample. The first sample's first `before` terms are already in
 * d. */
static float exact_element(float d, const float *a, const float *b, int n, int run, int before)
{
    float two[2] = { 0, 0 };
    for (int p = 0; p < n; p++) {
        const int place = run ? (before + p) % run : p;
        if (run > 0 && run < 32) {
            d = exact_term(a[p], b[p], d);
            continue;
        }
        two[place % 2] = exact_term(a[p], b[p], two[place % 2]);
        if (place % 32 == 31 || place == run - 1 || p == n - 1) {
            d = exact_term(1, exact_term(1, two[1], two[0]), d);
            two[0] = two[1] = 0;
        }
    }
    return d;
}

/* Returns the kernels of an instruction set, or NULL if this machine lacks it. The number GCKPT_ISA_COUNT means AVX-512
 * without its bf16 instructions. */
static const void *kernels_or_without(int isa)
{
#if FAST
    if (isa < GCKPT_ISA_COUNT)
        return gckpti_kernels_for((gckpt_isa)isa);
#if GCKPTI_AVX512
    return gckpti_kernels_for(GCKPT_ISA_AVX512) ? &gckpti_kernels_avx512 : NULL;
#endif
#endif
    (void)isa;
    return NULL;
}

/* Computes a product with kernels_or_without(isa). Returns 0 if this machine lacks these kernels. */
static int product_by(int isa, const gckpti_product *t)
{
    gckpt_call call = { .threads = 1, .precision = GCKPT_BF16 };
    call.kernels = kernels_or_without(isa);
    if (isa == GCKPT_ISA_PLAIN)
        gckpti_mixed_plain(&call, t);
#if FAST
    else if (call.kernels)
        gckpti_mixed_fast(&call, t);
#endif
    return isa == GCKPT_ISA_PLAIN || call.kernels;
}

/* Adds one random product to a number, with every instruction set. Most results are close to the smallest normal number
 * 2^-126, where an ordinary fma rounds to fewer bits than the specification demands. */
static void test_terms(void)
{
    enum { N = 48 };
    const int rounds = check_iterations(60);
    int coarse = 0; /* number of elements for which an ordinary fma gives a wrong result */
    for (int round = 0; round < rounds; round++) {
        static float want[N * N], start[N * N], got[N * N];
        uint16_t a[N], b[N];
        const uint32_t depth = 133 + below(20), first = 20 + below(88); /* a b is about 2^-depth */
        for (int i = 0; i < N; i++) {
            a[i] = (uint16_t)(below(2) << 15 | first << 7 | below(128));
            b[i] = (uint16_t)(below(2) << 15 | (254 - depth - first + below(3)) << 7 | below(128));
            if (round % 10 == 9) /* any operands, with subnormal ones */
                a[i] = (uint16_t)(below(65536) & (i % 3 ? 0xffff : 0x807f)),
                b[i] = (uint16_t)(below(65536) & (i % 4 ? 0xffff : 0x807f));
        }
        for (int i = 0; i < N * N; i++) {
            const float x = gckpt_from_bf16(a[i / N]), y = gckpt_from_bf16(b[i % N]);
            const double p = fabs((double)x * (double)y);
            const uint32_t away = p < ldexp(1, -126) ? (uint32_t)ldexp(p, 149) : 0;
            const uint32_t sign = below(8) ? ~(bits_of(x) ^ bits_of(y)) >> 31 : below(2);
            start[i] = float_of(sign << 31 | (0x800000 + away + (below(4) ? 0 : below(3))));
            if (round % 10 == 8)
                start[i] = float_of(below(1 << 16) << 16 | below(1 << 16));
            want[i] = exact_term(x, y, start[i]);
            coarse += want[i] == 0 && fabsf(fmaf(x, y, flushed(start[i]))) == ldexpf(1, -126);
        }
        for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT + 1; isa++) {
            gckpti_product t = { .batch = 1, .m = N, .n = N, .k = 1, .accumulate = 1, .c = got };
            t.k_period = 1;
            t.a.halves = a, t.a.stride = t.a.k_stride = 1, t.b.halves = b, t.b.stride = t.b.k_stride = 1;
            memcpy(got, start, sizeof got);
            if (!product_by(isa, &t))
                continue;
            for (int i = 0; i < N * N; i++)
                CHECK_MSG(bits_of(got[i]) == bits_of(want[i]) ||
                              (got[i] != got[i] && want[i] != want[i]),
                          "kernels %d: %04x %04x %08x became %08x, not %08x", isa, a[i / N],
                          b[i % N], bits_of(start[i]), bits_of(got[i]), bits_of(want[i]));
        }
    }
    CHECK_MSG(coarse > 33 * rounds, "an ordinary fma differs in only %d terms", coarse);
}

/* Returns a random bf16 operand; `which` is 0 for a, 1 for b. Numbers of kind 0 are ordinary; products of kind 1 are
 * around 2^-126; kind 2 is ordinary numbers with some zeros, infinities, NaN, subnormals and smallest normal numbers;
 * kind 3 has any bits; sums of kind 4 cancel; sums of kind 5 cancel and are below 2^-126; products of kind 7 are
 * multiples of 2^-126. */
static uint16_t operand_of(int kind, int which)
{
    static const uint16_t odd[16] = {
        0,    0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 1,
        0x3f, 0x807f, 0x80,   0x8080, 0x8081, 0x4049, 0x7f7f, 0xff7f
    };
    const uint32_t sign = below(2) << 15;
    if (kind == 1)
        return (uint16_t)(sign | (63 + below(3)) << 7 | (below(3) ? 0 : below(128)));
    if (kind == 2 && below(40) == 0)
        return odd[below(16)];
    if (kind == 3)
        return (uint16_t)(sign | below(32768));
    if (kind == 7)
        return (uint16_t)(sign | 71 << 7 | below(128));
    if (kind == 4 || kind == 5)
        return (uint16_t)(which ? 0x3f80
                                : sign | (kind == 5 ? 0x80 + below(128) : 0x3f80 + below(2)));
    return gckpt_to_bf16(((float)below(2001) - 1000) / 333);
}

enum { BLOCKS_M = 40, BLOCKS_N = 140, BLOCKS_K = 620 };
static uint16_t blocks_a[BLOCKS_M * BLOCKS_K], blocks_b[BLOCKS_N * BLOCKS_K];
static float blocks_f32[2][BLOCKS_N * BLOCKS_K], blocks_start[BLOCKS_M * BLOCKS_N];
static float blocks_got[BLOCKS_M * BLOCKS_N], blocks_space[1 << 17];

/* Computes the product t with every instruction set. 50 of its elements must equal exact sums in integers. */
static void blocks_check(const gckpti_product *t, int kind)
{
    enum { SEEN = 50 };
    float want[SEEN];
    uint32_t at[SEEN];
    const uint32_t m = (uint32_t)t->m, n = (uint32_t)t->n, k = (uint32_t)t->k;
    for (int e = 0; e < SEEN; e++) {
        static float x[BLOCKS_K], y[BLOCKS_K];
        const uint32_t row = e ? below(m) : m - 1, column = e > 1 ? below(n) : n - 1;
        for (uint32_t p = 0; p < k; p++) {
            x[p] = gckpt_from_bf16(blocks_a[row * t->a.stride + p * t->a.k_stride]);
            y[p] = gckpt_from_bf16(blocks_b[column * t->b.stride + p * t->b.k_stride]);
        }
        at[e] = row * n + column;
        want[e] = exact_element(blocks_start[at[e]], x, y, (int)k, (int)t->k_period, (int)t->k_offset);
    }
    for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT + 1; isa++) {
        memcpy(blocks_got, blocks_start, sizeof blocks_got);
        if (!product_by(isa, t))
            continue;
        for (int e = 0; e < SEEN; e++) {
            const float got = blocks_got[at[e]];
            CHECK_MSG(
                bits_of(got) == bits_of(want[e]) || (got != got && want[e] != want[e]),
                "kernels %d, kind %d: element %u of %u x %u x %u, %d terms a sample, %d before: "
                "%08x, not %08x",
                isa, kind, at[e], m, n, k, (int)t->k_period, (int)t->k_offset, bits_of(got),
                bits_of(want[e]));
        }
    }
}

/* Fills the operands a and b of product t and the initial values of its result. Kinds are those of operand_of; kind 6:
 * the first row of a is ordinary, all other rows and b are small (kind 1); kind 7: the initial value cancels the first
 * term except for its last bits, which may be below 2^-126. */
static void blocks_fill(const gckpti_product *t, int kind)
{
    const int64_t m = t->m, n = t->n, k = t->k;
    for (int64_t e = 0; e < m * k; e++) {
        const int small = kind == 6 && (t->a.stride == 1 ? e % m : e / k) > 0;
        blocks_f32[0][e] = gckpt_from_bf16(blocks_a[e] = operand_of(small ? 1 : kind, 0));
    }
    for (int64_t e = 0; e < n * k; e++)
        blocks_f32[1][e] = gckpt_from_bf16(blocks_b[e] = operand_of(kind == 6 ? 1 : kind, 1));
    for (int64_t e = 0; e < m * n; e++) { /* initial values: most are of the size of a term, some have any bits */
        const float first = blocks_f32[0][e / n * t->a.stride] * blocks_f32[1][e % n * t->b.stride];
        blocks_start[e] =
            kind == 7  ? -first * (1 + (float)below(4) * ldexpf(1, -23))
            : below(4) ? gckpt_from_bf16(operand_of(kind, 0)) * gckpt_from_bf16(operand_of(kind, 1))
                       : float_of(below(1 << 16) << 16 | below(1 << 16));
    }
}

static void test_blocks(void)
{
    static const uint32_t runs[12] = { 0, 0, 0, 1, 7, 31, 32, 33, 64, 77, 100, 200 };
    for (int i = 0, end = check_iterations(240); i < end; i++) {
        const uint32_t run = runs[below(12)], blocks = (run + 31) / 32, ways = below(16);
        const uint32_t before = run < 32 ? 0 : 32 * below(blocks), m = 1 + below(BLOCKS_M);
        const uint32_t k = run ? run * (1 + below(3)) - before : 1 + below(i % 4 ? 90 : 400);
        const uint32_t n = 1 + below(BLOCKS_N);
        gckpti_product t = { .batch = 1, .m = m, .n = n, .k = k, .k_period = run, .k_offset = before };
        t.a.stride = ways & 4 ? k : 1, t.a.k_stride = ways & 4 ? 1 : m;
        t.b.stride = ways & 8 ? k : 1, t.b.k_stride = ways & 8 ? 1 : n;
        t.accumulate = 1, t.c = blocks_got, t.workspace = blocks_space;
        blocks_fill(&t, i % 8);
        t.a.f32 = ways & 1 ? blocks_f32[0] : NULL, t.a.halves = t.a.f32 ? NULL : blocks_a;
        t.b.f32 = ways & 2 ? blocks_f32[1] : NULL, t.b.halves = t.b.f32 ? NULL : blocks_b;
        blocks_check(&t, i % 8);
    }
}

#ifndef GCKPT_NO_QUANT
/* A product that reads quantised weights directly, without an f32 copy, must have the bits of the product of weights
 * that plain C has dequantised. */
static void test_quantised(void)
{
    static uint16_t packed[BLOCKS_N * BLOCKS_K];
    static float want[BLOCKS_M * BLOCKS_N];
    for (int i = 0; i < 24; i++) {
        const gckpt_storage storage = (gckpt_storage)(GCKPT_STORAGE_BF16 + i % 4);
        const uint32_t grain = storage == GCKPT_STORAGE_I4 ? 32 : 1, by_terms = i & 4; /* blocks of I8 may be short */
        const uint32_t m = 1 + below(BLOCKS_M), n = (1 + below(i % 3 ? 128 : 40) / grain) * grain;
        const uint32_t k = (1 + below(i % 3 ? 90 : 400) / grain) * grain;
        gckpti_product t = { .batch = 1, .m = m, .n = n, .k = k, .accumulate = 1 };
        t.a.stride = i & 8 ? k : 1, t.a.k_stride = i & 8 ? 1 : m;
        t.b.stride = by_terms ? k : 1, t.b.k_stride = by_terms ? 1 : n;
        blocks_fill(&t, 0);
        const gckpt_dequantisation stored = { storage, packed, n * k, by_terms ? k : n, NULL };
        for (int at = 0; at < BLOCKS_N * BLOCKS_K; at++)
            packed[at] = (uint16_t)(storage >= GCKPT_STORAGE_I8 ? below(65536) : below(2) << 15 | 0x3000 | below(4096));
        for (int64_t at = 0; at < stored.n && storage >= GCKPT_STORAGE_I8; at += gckpti_min(32, stored.row - at % stored.row)) {
            const uint16_t scale = (uint16_t)(below(2) << 15 | 0x3000 | below(4096));
            memcpy((unsigned char *)packed + gckpti_storage_bytes((int)storage, stored.row, at), &scale, sizeof scale);
        }
        gckpti_decompress(&stored, 0, n * k, blocks_f32[1]);
        t.a.halves = blocks_a, t.b.f32 = blocks_f32[1], t.c = want, t.workspace = blocks_space;
        memcpy(want, blocks_start, sizeof want);
        product_by(GCKPT_ISA_PLAIN, &t);
        t.b.f32 = NULL, t.b.compressed = &stored, t.c = blocks_got;
        for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT + 1; isa++) {
            memcpy(blocks_got, blocks_start, sizeof blocks_got);
            if (!product_by(isa, &t))
                continue;
            for (uint32_t e = 0; e < m * n; e++)
                CHECK_MSG(bits_of(blocks_got[e]) == bits_of(want[e]) ||
                              (blocks_got[e] != blocks_got[e] && want[e] != want[e]),
                          "kernels %d, storage %d, %s: element %u of %u x %u x %u: %08x, not %08x",
                          isa, (int)storage, by_terms ? "adjacent terms" : "adjacent rows",
                          e, m, n, k, bits_of(blocks_got[e]), bits_of(want[e]));
        }
    }
}
#endif

/* Tests products whose scratch memory is too small for all partial results of c, with few terms in samples of two
 * blocks. The kernels must then process c in parts: a panel of columns at a time and, if that is too large, a few
 * rows. */
static void test_little_space(void)
{
    enum { M = 260, N = 256, K = 64, PAST = 512 };
    static uint16_t a[M * K], b[N * K], want[M * N], got[M * N];
    gckpti_product t = { .batch = 1, .m = M, .n = N, .k = K, .k_period = 33 };
    const int64_t size = gckpti_mixed_workspace(M, N, K);
    CHECK(size > 0 && size + PAST <= (int64_t)(sizeof blocks_space / sizeof *blocks_space));
    for (int i = 0; i < M * K; i++)
        a[i] = operand_of(0, 0);
    for (int i = 0; i < N * K; i++)
        b[i] = operand_of(0, 1);
    t.a.halves = a, t.b.halves = b, t.a.stride = t.b.stride = K, t.a.k_stride = t.b.k_stride = 1;
    t.c_halves = want, t.workspace = blocks_space;
    product_by(GCKPT_ISA_PLAIN, &t);
    t.c_halves = got;
    for (int isa = GCKPT_ISA_PLAIN + 1; isa < GCKPT_ISA_COUNT + 1; isa++) {
        memset(got, 0xff, sizeof got);
        for (int64_t past = 0; past < PAST; past++)
            blocks_space[size + past] = 77;
        CHECK_MSG(!product_by(isa, &t) || !memcmp(got, want, sizeof got), "kernels %d", isa);
        for (int64_t past = 0; past < PAST; past++)
            CHECK_MSG(blocks_space[size + past] == 77, "kernels %d: wrote beyond their scratch", isa);
    }
}

static void test_edge(void)
{
    for (int i = 0; i < 2 * GCKPT_ISA_COUNT; i++) {
        const gckpt_isa isa = (gckpt_isa)(i % GCKPT_ISA_COUNT);
        if (gckpt_isa_available(isa))
            check_underflow(NULL, isa, i >= GCKPT_ISA_COUNT);
    }
}

/* ---- one training step of a small net, written out in plain C ----
 * The net is h = x w + b, a = relu(h), m = a h, o = m v + c with loss (o - y)^2, trained by SGD. */
enum { R = 5, I = 7, H = 37, O = 3 };
static float half_of(float x) { return gckpt_from_bf16(gckpt_to_bf16(x)); }

/* Returns a b + c, rounded once; results below 2^-126 become zeros. */
static float add_term(float a, float b, float c)
{
    const float end = fmaf(a, b, c);
    return fabsf(end) > ldexpf(1, -126) ? end : exact_term(a, b, c);
}

/* Returns d plus n products of elements of a and b (with strides s and t) rounded to bf16, added as manual 5l demands:
 * in blocks of 32 terms, where a new block begins after each `run` terms (never if `run` is 0). If `run` is 1 to 31,
 * all terms form one chain. Terms before `from` are skipped. */
static float element(float d, const float *a, int s, const float *b, int t, int from, int n,
                     int run)
{
    d = flushed(d);
    for (int first = 0, end; first < n; first = end) {
        float two[2] = { 0, 0 };
        end = run && first / run * run + run < first + 32 ? first / run * run + run : first + 32;
        end = end < n ? end : n;
        for (int p = first; p < end; p++)
            if (p >= from) {
                float *term = run && run < 32 ? &d : &two[(p - first) % 2];
                *term = add_term(half_of(a[p * s]), half_of(b[p * t]), *term);
            }
        if (!run || run >= 32)
            d = flushed(d + flushed(two[0] + two[1]));
    }
    return d;
}
static float blocks(float d, const float *a, int s, const float *b, int t, int n)
{
    return element(d, a, s, b, t, 0, n, 0);
}

typedef struct {
    float w[I * H], b[H], v[H * O], c[O];
} weights;

static void descend(float *w, const float *g, int n, float lr, int count)
{
    for (int i = 0; i < n; i++)
        w[i] = fmaf(-lr, g[i] / (float)count, w[i]);
}

/* Returns the compensated (Kahan) sum of n numbers (manual, 5e). */
static float kahan_sum(const float *x, int step, int n)
{
    float sum = 0, comp = 0;
    for (int i = 0; i < n; i++) {
        const float y = x[i * step] - comp, s = sum + y;
        comp = (s - sum) - y;
        sum = s;
    }
    return sum;
}

static void trained_by_hand(weights *p, const float *x, const float *y, float lr)
{
    float h[R * H], a[R * H], m[R * H], o[R * O], dm[R * H], dh[R * H], go[R * O];
    weights g;
    for (int r = 0; r < R; r++)
        for (int j = 0; j < H; j++) {
            const int at = r * H + j;
            h[at] = half_of(blocks(p->b[j], x + r * I, 1, p->w + j, H, I));
            a[at] = h[at] > 0 ? h[at] : 0;
            m[at] = half_of(a[at] * h[at]);
        }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++) {
            o[r * O + j] = half_of(blocks(p->c[j], m + r * H, 1, p->v + j, O, H));
            go[r * O + j] = half_of(2 * (o[r * O + j] - y[r * O + j]));
        }
    for (int at = 0; at < R * H; at++) {
        dm[at] = half_of(blocks(0, go + at / H * O, 1, p->v + at % H * O, 1, O));
        const float da = half_of(dm[at] * h[at]);
        dh[at] = half_of(dm[at] * a[at]);
        dh[at] = half_of(dh[at] + (h[at] > 0 ? da : 0));
    }
    for (int i = 0; i < H * O; i++)
        g.v[i] = element(0, m + i / O, H, go + i % O, O, 0, R, 1);
    for (int i = 0; i < I * H; i++)
        g.w[i] = element(0, x + i / H, I, dh + i % H, H, 0, R, 1);
    for (int j = 0; j < O; j++)
        g.c[j] = kahan_sum(go + j, O, R);
    for (int j = 0; j < H; j++)
        g.b[j] = kahan_sum(dh + j, H, R);
    descend(p->w, g.w, I * H, lr, R * O);
    descend(p->b, g.b, H, lr, R * O);
    descend(p->v, g.v, H * O, lr, R * O);
    descend(p->c, g.c, O, lr, R * O);
}

static void test_written_out(void)
{
    const gckpt_init init = { 0.5f, 0, 0 };
    float x[R * I], y[R * O];
    for (int i = 0; i < R * I; i++)
        x[i] = sinf((float)i) * 2;
    for (int i = 0; i < R * O; i++)
        y[i] = cosf((float)i);
    for (int debug = 0; debug < 2; debug++) {
        weights mine;
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *tx = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(R, I));
        gckpt_tensor *ty = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(R, O));
        gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(I, H), init);
        gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(H), init);
        gckpt_tensor *v = gckpt_param(g, "v", gckpt_shape2(H, O), init);
        gckpt_tensor *c = gckpt_param(g, "c", gckpt_shape1(O), init);
        gckpt_tensor *h = gckpt_linear(tx, w, b);
        gckpt_tensor *m = gckpt_mul(gckpt_relu(h), h);
        gckpt_term term = { gckpt_mean_squared_error(gckpt_linear(m, v, c), ty, NULL), 1, 0 };
        gckpt_plan_desc desc = { .optimiser = GCKPT_SGD, .bf16.precision = GCKPT_BF16 };
        gckpt_exec_desc exec = { .debug = debug ? GCKPT_DEBUG_PLAIN : 0 };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, &exec);
        CHECK_MSG(e != NULL, "%s", gckpt_error_text(s));
        const gckpt_feed feeds[2] = { { gckpt_id(tx), x }, { gckpt_id(ty), y } };
        float *const at[4] = { mine.w, mine.b, mine.v, mine.c };
        gckpt_parameter q;
        for (int i = 0; i < 4; i++) {
            gckpt_store_get(s, i, &q);
            memcpy(at[i], q.values, (size_t)q.elements * sizeof(float));
        }
        for (int step = 0; step < 3; step++) {
            gckpt_hyper hyper = { .lr = 0.25f };
            CHECK(gckpt_step(e, feeds, 2, R, &hyper, NULL) == GCKPT_OK);
            trained_by_hand(&mine, x, y, 0.25f);
            for (int i = 0; i < 4; i++) {
                gckpt_store_get(s, i, &q);
                CHECK_MSG(!memcmp(at[i], q.values, (size_t)q.elements * sizeof(float)),
                          "step %d: \"%s\" differs from the step written out (plain %d)", step,
                          q.name, debug);
            }
        }
        util_free(e, p, g, s);
    }
}

/* ---- a training step with two losses of one value h, written out ----
 * h = x w; the losses are cross-entropy with logits h v' and the squared error (h - z)^2; the optimiser is SGD. The
 * backward of the loss that was built last runs first and writes the gradient of h; the backward of the first loss adds
 * to that gradient. */
enum { MOST_ROWS = 1030, MOST_H = MOST_ROWS * 8, MOST_V = 1100 * 37, MOST_D = MOST_ROWS * 40 };
typedef struct {
    /* rows: rows of the batch; c: columns of h; classes: classes of cross-entropy; t: rows of a sample. entropy_first:
     * nonzero if cross-entropy is built before the squared error, so that its backward adds to the gradient of h. */
    int rows, c, classes, t, entropy_first;
    float x[MOST_ROWS * 3], z[MOST_H], w[3 * 37], v[MOST_V], dh[MOST_H];
    int32_t target[MOST_ROWS];
} two_losses;

static void two_losses_by_hand(two_losses *p, float lr)
{
    static float h[MOST_H], d[MOST_D], gv[MOST_V];
    const int rows = p->rows, c = p->c, n = p->classes;
    float gw[3 * 37];
    int count = 0;
    for (int r = 0; r < rows; r++)
        count += p->target[r] >= 0;
    const float scale = (float)(0.5 * count / (rows * c));
    for (int r = 0; r < rows; r++) {
        float *logit = d + r * n, max = 0, sum = 0;
        for (int j = 0; j < c; j++)
            h[r * c + j] = half_of(blocks(0, p->x + r * 3, 1, p->w + j, c, 3));
        for (int k = 0; k < n; k++)
            logit[k] = blocks(0, h + r * c, 1, p->v + k * c, 1, c);
        for (int k = 0; k < n; k += 1024)
            gckpti_online(logit + k, NULL, n - k < 1024 ? n - k : 1024, k == 0, &max, &sum);
        for (int k = 0; k < n; k++)
            logit[k] = p->target[r] < 0 ? 0
                                        : gckpti_exp((logit[k] - max) - gckpti_log(sum)) -
                                              (k == p->target[r] ? 1.0f : 0.0f);
        for (int j = 0; j < c; j++) {
            const float square = 2 * (h[r * c + j] - p->z[r * c + j]);
            float start = p->entropy_first ? half_of(square * scale) : 0;
            start = half_of(blocks(start, logit, 1, p->v + j, c, n));
            p->dh[r * c + j] = p->entropy_first ? start : half_of(fmaf(square, scale, start));
        }
    }
    for (int i = 0; i < n * c; i++)
        gv[i] = element(0, d + i / c, n, h + i % c, c, 0, rows, p->t);
    for (int i = 0; i < 3 * c; i++)
        gw[i] = element(0, p->x + i / c, 3, p->dh + i % c, c, 0, rows, p->t);
    descend(p->v, gv, n * c, lr, count);
    descend(p->w, gw, 3 * c, lr, count);
}

/* Trains two steps with micro-batches of `micro` samples and compares them with the steps written out in *p.
 * `which`: bit 0 fetches the gradient of h, bit 1 selects plain kernels for the executor, and bit 2 for the plan. */
static void two_trained(const two_losses *start, two_losses *p, int micro, int which)
{
    const gckpt_init init = { 0.4f, 0, 0 };
    const int c = start->c, t = start->t, rows = start->rows, entries = rows / t;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(micro, t, 3));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape2(micro, t));
    gckpt_tensor *z = gckpt_input(g, "z", GCKPT_F32, gckpt_shape3(micro, t, c));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(3, c), init);
    gckpt_tensor *v = gckpt_param(g, "v", gckpt_shape2(start->classes, c), init);
    gckpt_tensor *h = gckpt_linear(x, w, NULL);
    gckpt_term terms[2] = { { NULL, 1, 0 }, { NULL, 0.5f, 0 } };
    for (int i = 0; i < 2; i++)
        if (i == !start->entropy_first)
            terms[0].loss = gckpt_linear_cross_entropy(h, v, y, NULL);
        else
            terms[1].loss = gckpt_mean_squared_error(h, z, NULL);
    const gckpt_fetch_spec pick = { h, 1 };
    gckpt_plan_desc desc = { .bf16.precision = GCKPT_BF16,
                             .optimiser = GCKPT_SGD,
                             .batch = entries,
                             .fetch.specs = &pick,
                             .fetch.count = which & 1,
                             .kernels.plain = which >= 4 };
    gckpt_exec_desc how = { .isa = which & 2 ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO };
    gckpt_hyper hyper = { .lr = 0.25f };
    gckpt_plan *plan = gckpt_plan_new(g, terms, 2, &desc);
    gckpt_exec *e = gckpt_exec_new(plan, s, &how);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(s));
    const gckpt_feed feeds[3] = { { gckpt_id(x), start->x },
                                  { gckpt_id(y), start->target },
                                  { gckpt_id(z), start->z } };
    const int from = (entries - 1) / micro * micro * t; /* first row of the last micro-batch */
    gckpt_parameter q[2];
    gckpt_store_get(s, 0, &q[0]);
    gckpt_store_get(s, 1, &q[1]);
    memcpy(p->w, q[0].values, (size_t)q[0].elements * sizeof(float));
    memcpy(p->v, q[1].values, (size_t)q[1].elements * sizeof(float));
    for (int step = 0; step < 2; step++) {
        CHECK_MSG(gckpt_step(e, feeds, 3, entries, &hyper, NULL) == GCKPT_OK, "%s",
                  gckpt_error_text(e));
        two_losses_by_hand(p, 0.25f);
        CHECK_MSG(!memcmp(p->w, q[0].values, (size_t)q[0].elements * sizeof(float)) &&
                      !memcmp(p->v, q[1].values, (size_t)q[1].elements * sizeof(float)),
                  "two losses, %d rows by %d, case %d: differs from the step written out", rows, micro,
                  which);
        const float *f = which & 1 ? gckpt_fetch(e, gckpt_id(h), 1) : p->dh + from * c;
        CHECK_MSG(!memcmp(f, p->dh + from * c, (size_t)((rows - from) * c) * sizeof(float)),
                  "two losses, %d rows by %d, case %d: another gradient", rows, micro, which);
    }
    util_free(e, plan, g, s);
}

static void test_two_losses(void)
{
    static const int sizes[4][4] = {
        { 6, 37, 1100, 1 }, { MOST_ROWS, 8, 40, 1 }, { 99, 8, 40, 33 }, { 700, 8, 40, 100 }
    };
    static const int split[4][3] = {
        { 6, 4, 1 }, { MOST_ROWS, 515, 400 }, { 3, 2, 1 }, { 7, 5, 2 }
    };
    static two_losses p, start;
    for (int i = 0; i < 8; i++) {
        if (!check_sampled((unsigned)i, 3))
            continue;
        const int *size = sizes[i / 2];
        start.rows = size[0], start.c = size[1], start.classes = size[2], start.t = size[3];
        start.entropy_first = i % 2 == 0;
        for (int k = 0; k < size[0]; k++)
            start.target[k] = k % 5 == 2 ? -1 : k * 389 % size[2];
        for (int k = 0; k < size[0] * 3; k++)
            start.x[k] = sinf((float)k) * 2;
        for (int k = 0; k < size[0] * size[1]; k++)
            start.z[k] = cosf((float)k) * 40;      /* makes the gradients of the two losses similar in size */
        const int step = is_wide ? 1 : i % 2 ? 7 : 5; /* visits every split (k / 6) and every `which` (k % 6) */
        for (int k = 0; k < 18; k += step) {
            p = start;
            two_trained(&start, &p, split[i / 2][k / 6], k % 6);
        }
    }
}

/* ---- products: every instruction set compared with the plain definition, down to subnormals ---- */
#if FAST && defined(__x86_64__)
/* Returns a random number. Kind 0 is an ordinary number; kind 1 has products near the smallest normal number; kind 2 is
 * itself near that number. */
static float number(int kind)
{
    const uint32_t u = below(1 << 24), exponent = kind == 1 ? 58 + u % 14 : 1 + u % 20;
    if (kind == 0)
        return ((float)(u % 2001) - 1000) / 333;
    return u % 7 ? float_of(below(2) << 31 | exponent << 23 | (u & 0x7fffff)) : -0.0f;
}

static void test_products(void)
{
    enum { MOST = 3 * 130 * 2300, PAST = 512 };
    static float f32[3][MOST], bias[200], c32[2][550 * 200], room[90000 + PAST];
    static uint16_t half[3][MOST], c16[2][550 * 200];
    /* { m, n, k }: rows of a, columns of the product and terms. The sizes are at limits of kernels that read rows in
     * place: the last block has one term, all terms fit into one block, a has one row less than 8, or all of the
     * scratch memory is needed. */
    static const uint32_t given[9][3] = { { 120, 96, 801 }, { 120, 96, 305 }, { 30, 60, 513 },
                                          { 15, 90, 273 },  { 7, 20, 64 },    { 15, 130, 305 },
                                          { 48, 180, 513 }, { 64, 60, 417 },  { 33, 50, 259 } };
    const int drawn = check_iterations(600);
    for (int i = 0; i < 609 + 18; i++) {
        if (i < 600 ? i >= drawn : !check_sampled((unsigned)i, 4))
            continue;
        const uint32_t *const of = i < 609 ? NULL : given[(i - 609) % 9];
        /* nonzero for large operands, with which kernels use the scratch memory `room` and not the stack */
        const int large = i >= 600;
        /* nonzero if a has rows of bf16, mostly of odd length: kernels copy only the ends of these rows */
        const int odd = i >= 606;
        const int tall = i == 607;  /* more rows than a work item converts to bf16; AMX reads bf16 rows in place */
        const uint32_t m = of      ? of[0]
                           : large ? (tall ? 525 : i % 3 ? 100 : 260) + (below(20) | (uint32_t)odd)
                                   : 1 + below(37);
        const uint32_t n = of ? of[1] : large ? 90 + below(110) : 1 + below(130);
        const uint32_t drawn_k = of      ? of[2]
                                 : large ? 790 + (below(100) | (uint32_t)odd)
                                         : 1 + below(i % 40 ? 90 : 700);
        /* If k is a multiple of 32, kernels read rows in place. */
        const uint32_t k = i % 3 == 1 ? (drawn_k + 31) / 32 * 32 : drawn_k;
        const uint32_t batch = large ? 1 : 1 + below(3);
        const uint32_t any = large ? below(32) | (uint32_t)i % 2 << 5 : below(64);
        const uint32_t which = odd ? (any & (tall ? ~33u : ~1u)) | 4 : any;
        const uint32_t count[3] = { m * k, n * k, m * n };
        /* Operands end at the end of their memory, so that sanitizers notice reads beyond them, or begin at a cache
         * line. */
        char *room_of[2];
        void *whole[2];
        for (uint32_t j = 0; j < 3; j++)
            for (uint32_t at = 0; at < batch * count[j]; at++) {
                f32[j][at] = number(j == 2 && i % 3 ? 2 : i % 3);
                half[j][at] = gckpt_to_bf16(f32[j][at]);
            }
        for (uint32_t j = 0; j < n; j++)
            bias[j] = number(i % 3);
        for (int j = 0; j < 2; j++) {
            const size_t size = (size_t)(batch * count[j]) * (which >> j & 1 ? 4 : 2);
            room_of[j] = (char *)malloc(size + 64);
            whole[j] = room_of[j] + 64 - (i / 2 % 2 ? (uintptr_t)room_of[j] % 64 : 0);
            memcpy(whole[j], which >> j & 1 ? (void *)f32[j] : half[j], size);
        }
        /* With 3 threads, the product is cut into more parts, which here run one after another. */
        gckpt_call call = { .threads = 1 + i / 3 % 2 * 2 };
        gckpti_product t = { .batch = batch,
                             .m = m,
                             .n = n,
                             .k = k,
                             .a.f32 = which & 1 ? whole[0] : NULL,
                             .a.halves = which & 1 ? NULL : whole[0],
                             .b.f32 = which & 2 ? whole[1] : NULL,
                             .b.halves = which & 2 ? NULL : whole[1],
                             .a.stride = which & 4 ? k : 1,
                             .a.k_stride = which & 4 ? 1 : m,
                             .a.batch_stride = m * k,
                             .b.stride = which & 8 ? k : 1,
                             .b.k_stride = which & 8 ? 1 : n,
                             .b.batch_stride = n * k,
                             .accumulate = (which & 16) != 0 };
        t.initial = !t.accumulate && i % 2 ? bias : NULL;
        t.k_period = i % 3 ? 0 : i % 2 ? 1 + below(k) : k;
        t.k_offset = t.k_period < 32 ? 0 : 32 * below((uint32_t)(t.k_period + 31) / 32);
        t.workspace = room;
        CHECK(!large || gckpti_mixed_workspace(m, n, k) <= 90000);
        const gckpti_kernels *kernels[5];
        kernels[0] = NULL;
        kernels[1] = gckpti_kernels_for(GCKPT_ISA_AVX2);
        kernels[2] = gckpti_kernels_for(GCKPT_ISA_AVX512);
        kernels[3] = (const gckpti_kernels *)kernels_or_without(GCKPT_ISA_COUNT);
        kernels[4] = gckpti_kernels_for(GCKPT_ISA_AMX);
        for (int v = 0; v < 5; v++) {
            const int at = v > 0;
            call.kernels = kernels[v];
            memcpy(c32[at], f32[2], sizeof c32[at]);
            memcpy(c16[at], half[2], sizeof c16[at]);
            t.c = which & 32 ? c32[at] : NULL;
            t.c_halves = which & 32 ? NULL : c16[at];
            for (int64_t past = 0; past < PAST; past++)
                room[gckpti_mixed_workspace(m, n, k) + past] = 77;
            if (v == 0)
                gckpti_mixed_plain(&call, &t);
            else if (kernels[v])
                gckpti_mixed_fast(&call, &t);
            CHECK_MSG(v == 0 || !kernels[v] ||
                          (which & 32 ? !memcmp(c32[0], c32[1], 4 * batch * m * n)
                                      : !memcmp(c16[0], c16[1], 2 * batch * m * n)),
                      "product %d: %u x %u x %u, kernels %d, case %u", i, m, n, k, v, which);
            for (int64_t past = 0; past < PAST; past++)
                CHECK_MSG(room[gckpti_mixed_workspace(m, n, k) + past] == 77,
                          "product %d: %u x %u x %u, kernels %d: past its scratch", i, m, n, k, v);
        }
        free(room_of[0]), free(room_of[1]);
    }
}

/* Large results of rows in place: AMX stores them directly to memory, and rounds them while it computes the next tile. */
static void test_large_results(void)
{
    enum { M = 1056, K = 64 };
    static const struct {
        int n, threads, accumulate, shift; /* elements between a cache line's begin and the result */
    } tries[] = { { 1024, 1, 0, 0 }, { 1024, 3, 1, 0 }, { 1024, 3, 0, 8 }, { 1033, 1, 0, 0 }, { 992, 1, 1, 0 } };
    const gckpti_kernels *amx = gckpti_kernels_for(GCKPT_ISA_AMX), *avx2 = gckpti_kernels_for(GCKPT_ISA_AVX2);
    for (size_t i = 0; amx && i < sizeof tries / sizeof *tries; i++) {
        const int n = tries[i].n, shift = tries[i].shift;
        const size_t c_size = (size_t)M * (size_t)n, size = 2 * (c_size + 64);
        uint16_t *a = (uint16_t *)malloc(2 * M * K + 64), *b = (uint16_t *)malloc((size_t)(2 * n * K)), *c[2];
        uint16_t *in_place = a + (64 - (uintptr_t)a % 64) / 2;
        for (int k = 0; k < M * K; k++)
            in_place[k] = gckpt_to_bf16(number(0));
        for (int k = 0; k < n * K; k++)
            b[k] = gckpt_to_bf16(number(0));
        gckpt_call call = { .threads = tries[i].threads };
        gckpti_product t = { .batch = 1,
                             .m = M,
                             .n = n,
                             .k = K,
                             .a = { .halves = in_place, .stride = K, .k_stride = 1 },
                             .b = { .halves = b, .stride = 1, .k_stride = n },
                             .accumulate = tries[i].accumulate };
        t.workspace = (float *)malloc((size_t)(gckpti_mixed_workspace(M, n, K) * t.batch * 4 * call.threads));
        for (int v = 0; v < 2; v++) {
            c[v] = (uint16_t *)malloc(size + 64);
            uint16_t *line = c[v] + (64 - (uintptr_t)c[v] % 64) / 2;
            for (size_t k = 0; k < size / 2; k++)
                line[k] = (uint16_t)(0x3f00 + k % 50);
            t.c_halves = line + shift;
            call.kernels = v ? amx : avx2;
            gckpti_mixed_fast(&call, &t);
        }
        CHECK_MSG(!memcmp(c[0] + (64 - (uintptr_t)c[0] % 64) / 2, c[1] + (64 - (uintptr_t)c[1] % 64) / 2, size),
                  "large result %d: AMX has other bits than AVX2, or writes past its end", (int)i);
        free(a), free(b), free(c[0]), free(c[1]), free(t.workspace);
    }
}

/* The kernels of a linear layer must not write beyond the workspace that the layer declares, whether its columns or its
 * terms are few. */
static void test_workspace(void)
{
    enum { M = 640, WIDE = 785, NARROW = 10, PAST = 65536 };
    static uint16_t x[M * WIDE], dx[M * WIDE], g[M * WIDE], out[M * WIDE];
    static float w[WIDE * NARROW], dw[WIDE * NARROW];
    for (int i = 0; i < 8; i++) {
        const int wide = i & 4 ? WIDE : WIDE - 1; /* WIDE is odd: kernels must copy an odd number of terms in pairs */
        const int turned = i & 1, n = i & 2 ? wide : NARROW, k = i & 2 ? NARROW : wide;
        gckpt_call call = { .threads = 1, .inputs = 2, .precision = GCKPT_BF16 };
        call.attributes = &turned;
        call.kernels = gckpti_kernels_for(GCKPT_ISA_AVX2);
        call.in[0].shape = gckpt_shape2(M, k);
        call.in[1].shape = turned ? gckpt_shape2(n, k) : gckpt_shape2(k, n);
        CHECK(gckpti_op_linear.shape(&call) == GCKPT_OK);
        call.in[0].bf16 = x, call.in[0].grad_bf16 = dx;
        call.in[1].data = w, call.in[1].grad = dw;
        call.out_bf16 = out;
        for (int backward = 0; backward < 2 && call.kernels; backward++) {
            const size_t size = (backward ? call.workspace_backward : call.workspace_forward) / 4;
            float *workspace = (float *)calloc(size + PAST, sizeof *workspace);
            float past = 0;
            call.workspace = workspace;
            for (size_t at = 0; at < PAST; at++)
                workspace[size + at] = 1;
            call.grad_out_bf16 = backward ? g : NULL;
            (backward ? gckpti_linear_backward : gckpti_linear_forward)(&call);
            for (size_t at = 0; at < PAST; at++)
                past += workspace[size + at];
            CHECK_MSG(past == PAST, "workspace: %s of %d x %d, %s, goes past its %lu floats",
                      backward ? "backward" : "forward", k, n, turned ? "transposed" : "as it is",
                      (unsigned long)size);
            free(workspace);
        }
    }
}

/* ---- attention, written out in plain C: chains with bf16 operands; exponentials and sums in f32 ---- */
enum { AT = 70, AD = 38, AH = 2, AC = AD * AH, AN = 2 * AT * AC };
typedef struct {
    float q[AN], k[AN], v[AN], g[AN], out[AN], saved[2 * AH * AT], dq[AN], dk[AN], dv[AN];
} heads;

static float ended(float x) { return x == 0 ? 0 : x; }

/* Computes attention for the first nq queries of each row. If `causal` is nonzero, the last of these queries sees all
 * keys. `group` query heads share a key head; lengths[r] is the number of valid keys of row r. */
static void attention_written_out(heads *h, int nq, int causal, int group, const int32_t *lengths)
{
    static float w[AT * AT], ds[AT * AT];
    const float scale = 1 / sqrtf((float)AD);
    const int AK = AC / group;
    memset(h->dk, 0, sizeof h->dk), memset(h->dv, 0, sizeof h->dv);
    for (int i = 0; i < 2 * AH * nq; i++) {
        const int t = i % nq, head = i / nq % AH, at = (i / nq / AH * nq + t) * AC + head * AD;
        const int first = i / nq / AH * AT * AK + head / group * AD, there = lengths[i / nq / AH];
        const int limit = causal ? AT - nq + t + 1 : AT, seen = limit < there ? limit : there;
        float p[AT], max = 0, sum = 0, out[AD] = { 0 }, delta[AD];
        for (int j = 0; j < seen; j += 64) {
            const int n = seen - j < 64 ? seen - j : 64;
            for (int e = j; e < j + n; e++)
                p[e] = blocks(0, h->q + at, 1, h->k + first + e * AK, 1, AD) * scale;
            const float factor = gckpti_online(p + j, p + j, n, j == 0, &max, &sum);
            for (int e = 0; e < AD; e++)
                out[e] =
                    blocks(j ? out[e] * factor : 0, p + j, 1, h->v + first + j * AK + e, AK, n);
        }
        gckpti_softmax_end(&max, &sum);
        for (int e = 0; e < AD; e++)
            h->out[at + e] = ended(out[e]) / sum;
        h->saved[i] = max + gckpti_log(sum);
        for (int e = 0; e < AD; e++)
            delta[e] = h->g[at + e];
        const float d = gckpti_dot(delta, h->out + at, AD);
        for (int j = 0; j < seen; j++) {
            const int key = first + j * AK, place = t * AT + j;
            const float s = blocks(0, h->q + at, 1, h->k + key, 1, AD) * scale;
            w[place] = gckpti_exp(s - h->saved[i]);
            ds[place] = w[place] * (blocks(0, h->g + at, 1, h->v + key, 1, AD) - d) * scale;
        }
        for (int e = 0; e < AD; e++)
            h->dq[at + e] = ended(blocks(0, ds + t * AT, 1, h->k + first + e, AK, seen));
        for (int j = 0; j < there && t == nq - 1; j++) { /* after the head's last query: gradients of its keys */
            const int from = causal && j > AT - nq ? j - (AT - nq) : 0, query = at - t * AC;
            for (int e = 0; e < AD; e++) {
                float *k = h->dk + first + j * AK + e, *v = h->dv + first + j * AK + e;
                *k = ended(element(*k, ds + j, AT, h->q + query + e, AC, from, nq, 0));
                *v = ended(element(*v, w + j, AT, h->g + query + e, AC, from, nq, 0));
            }
        }
    }
}

/* Compares attention kernels with attention_written_out. If `wide` is nonzero, operands are f32 values that are not
 * rounded to bf16; only plain kernels accept them. */
static void test_attention(void)
{
    static heads want, got;
    static float workspace[1 << 16];
    for (int i = 0; i < 64 * GCKPT_ISA_COUNT; i++) {
        static const int queries[4] = { AT, AT - 3, 7, 1 };
        const int causal = i & 1, wide = i >> 1 & 1, small = i >> 2 & 1, nq = queries[i >> 3 & 3];
        const int isa = i / 64, more = i >> 5 & 1, group = more && (i ^ i >> 3) & 1 ? AH : 1;
        const int32_t some[2] = { (int32_t)below(AT + 1), i & 4 ? 0 : (int32_t)below(AT + 1) };
        const int32_t all[2] = { AT, AT }, *lengths = more && (group == 1 || i & 2) ? some : all;
        const gckpti_attention o = { AH, causal, group > 1 ? AH / group : 0, 0, 0, 0, 0 };
        gckpt_call call;
        if (isa == GCKPT_ISA_AUTO || !gckpt_isa_available((gckpt_isa)isa) || !check_sampled((unsigned)i, 7))
            continue;
        for (int at = 0; at < AN; at++) {
            float *x[4] = { want.q, want.k, want.v, want.g };
            for (int w = 0; w < 4; w++) {
                /* If `small` is nonzero, k, v and g are so small that products are near the smallest normal number, or
                 * only v is near that number. Rescaling by a new maximum then makes outputs subnormal. */
                x[w][at] = number(!small || !w ? 0 : i >> 3 & 1 ? (w == 2 ? 2 : 0) : 1);
                x[w][at] = wide ? x[w][at] : half_of(x[w][at]);
            }
        }
        attention_written_out(&want, nq, causal, group, lengths);
        got = want;
        memset(&call, 0, sizeof call);
        call.inputs = lengths == some ? 4 : 3;
        call.in[3].index = some;
        call.attributes = &o;
        call.precision = GCKPT_BF16;
        call.threads = 1;
        call.kernels = gckpti_kernels_for((gckpt_isa)isa);
        call.workspace = workspace;
        call.rounded = wide ? GCKPT_IN(0) : GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_OUT;
        call.shape = gckpt_shape3(2, AT, AC);
        for (int w = 0; w < 3; w++)
            call.in[w].shape = gckpt_shape3(2, AT, w ? AC / group : AC);
        call.shape.d[1] = call.in[0].shape.d[1] = nq;
        call.in[0].data = want.q, call.in[1].data = want.k, call.in[2].data = want.v;
        call.out = got.out, call.saved = got.saved;
        gckpti_attention_forward(&call);
        call.grad_out = want.g;
        call.in[0].grad = got.dq, call.in[1].grad = got.dk, call.in[2].grad = got.dv;
        gckpti_attention_backward(&call);
        CHECK_MSG(!memcmp(want.out, got.out, sizeof got.out), "attention %d: out", i);
        CHECK_MSG(!memcmp(want.saved, got.saved, sizeof got.saved), "attention %d: saved", i);
        CHECK_MSG(!memcmp(want.dq, got.dq, sizeof got.dq), "attention %d: dq", i);
        CHECK_MSG(!memcmp(want.dk, got.dk, sizeof got.dk), "attention %d: dk", i);
        CHECK_MSG(!memcmp(want.dv, got.dv, sizeof got.dv), "attention %d: dv", i);
    }
}

/* ---- attention: every instruction set must have the bits of plain kernels, with each operand in f32 or bf16, for all
 * kinds of numbers, and with gradients that start at -0 ---- */
enum { KT = 140, KC = 80, KN = KT * KC };
typedef struct {
    float f32[8][KN]; /* [0] to [7]: q, k, v, out, gradient of out, dq, dk, dv */
    uint16_t half[8][KN] __attribute__((aligned(64)));
    float saved[6 * KT];
} attended;

static uint16_t odd_number(int kind)
{
    static const uint16_t odd[12] = { 0,      0x8000, 0x8000, 0x3f80, 0xbf80, 0x7f80,
                                      0xff80, 0x7fc0, 1,      0x80,   0x8081, 0x4049 };
    if (kind == 0 || (kind == 2 && below(64)))
        return gckpti_to_bf16(number(0));
    return odd[below(kind == 1 ? 5 : 12)];
}

/* Runs attention forward and backward on the arrays of `a` with t queries and s keys. Bit i of `narrow` gives array i
 * in bf16. Bits 0 to 2 of `wanted` request dq, dk and dv; those of `accumulate` add to them. `length` may be NULL for
 * all keys. If t is odd and o->causal > 1, only half of the earlier keys exist yet, as in generation; then only the
 * forward runs. */
static void run_attention(attended *a, const gckpti_attention *o, int isa, int64_t t, int64_t s,
                          int64_t c, const int32_t *length, unsigned narrow, unsigned wanted,
                          unsigned accumulate)
{
    const int64_t kc = o->key_heads ? c / o->heads * o->key_heads : c;
    static float workspace[1 << 17];
    gckpt_call call;
    memset(&call, 0, sizeof call);
    call.inputs = 3, call.attributes = o, call.precision = GCKPT_BF16, call.threads = 1;
    if (length)
        call.inputs = 4, call.in[3].index = length, call.in[3].shape = gckpt_shape1(1);
    call.position = o->causal > 1 ? (o->causal - 1) / (1 + (int)(t % 2)) : 0;
    call.plain = isa == GCKPT_ISA_PLAIN;
    call.kernels = call.plain ? NULL : kernels_or_without(isa);
    for (int i = 0; i < 3; i++) {
        call.in[i].shape = gckpt_shape3(1, i ? s : t, i ? kc : c);
        call.in[i].accumulate = accumulate >> i & 1;
        call.in[i].data = narrow >> i & 1 ? NULL : a->f32[i];
        call.in[i].bf16 = narrow >> i & 1 ? a->half[i] : NULL;
    }
    CHECK(gckpti_op_attention.shape(&call) == GCKPT_OK);
    CHECK(call.workspace_forward <= sizeof workspace && call.workspace_backward <= sizeof workspace);
    memset(workspace, 0xff, sizeof workspace);
    call.workspace = workspace, call.saved = a->saved;
    call.out = narrow >> 3 & 1 ? NULL : a->f32[3],
    call.out_bf16 = narrow >> 3 & 1 ? a->half[3] : NULL;
    gckpti_attention_forward(&call);
    if (call.position < o->causal - 1)
        return;
    memset(workspace, 0xff, sizeof workspace);
    call.grad_out = narrow >> 4 & 1 ? NULL : a->f32[4];
    call.grad_out_bf16 = narrow >> 4 & 1 ? a->half[4] : NULL;
    for (int i = 0; i < 3; i++)
        if (wanted >> i & 1) {
            call.in[i].grad = narrow >> (5 + i) & 1 ? NULL : a->f32[5 + i];
            call.in[i].grad_bf16 = narrow >> (5 + i) & 1 ? a->half[5 + i] : NULL;
        }
    gckpti_attention_backward(&call);
}

/* Fills each array with the same random numbers in f32 and in bf16. In kinds 3 and 4, elements of v are -2^-126 (in
 * kind 3, some are -0) and gradients of out are about 2^-30, so that sums of gradients end at -0; one term too many
 * would make such a sum +0. */
static void attended_draw(attended *a, int kind)
{
    for (int i = 0; i < 8; i++)
        for (int at = 0; at < KN; at++) {
            a->half[i][at] = i < 5                  ? odd_number(kind < 3 ? kind : 0)
                             : kind % 2 || kind > 2 ? 0x8000
                                                    : odd_number(0);
            if (kind > 2 && i == 2)
                a->half[i][at] = kind == 3 && below(2) ? 0x8000 : 0x8080;
            if (kind > 2 && i == 4)
                a->half[i][at] = (uint16_t)(0x3080 + below(64));
            a->f32[i][at] = gckpti_from_bf16(a->half[i][at]);
            if ((a->half[i][at] & 0x7fff) > 0x7f80) /* bf16 has only one NaN; in f32, take another NaN */
                a->f32[i][at] = float_of(below(2) ? 0x7fffffff : 0x7f800001);
        }
}

static int attended_same(const attended *a, const attended *b)
{
    int same = 1;
    for (int i = 3; i < 8; i++)
        for (int at = 0; at < KN; at++) {
            float x = a->f32[i][at], y = b->f32[i][at];
            float v = gckpti_from_bf16(a->half[i][at]), w = gckpti_from_bf16(b->half[i][at]);
            same = same && (!memcmp(&x, &y, sizeof x) || (x != x && y != y)) &&
                   (!memcmp(&v, &w, sizeof v) || (v != v && w != w));
        }
    return same;
}

static int64_t d_of(int kind) { return kind < 4 ? 1 + below(KC / 2) : 33 + below(KC / 2 - 33); }

static void test_attention_kernels(void)
{
    static attended start, want, got;
    /* Problems from n = 84 on have shared key heads, lengths, or both; problems from 144 on may also have windows, caps
     * and scales. */
    for (int n = 0; n < 228; n++) {
        const int i = n < 84 ? n : n < 144 ? n - 84 : n - 144, with = n >= 84;
        if (i % 60 >= check_iterations(i < 60 ? 60 : 24)) /* runs a sample of each of the three parts */
            continue;
        const int causal = i % 4 != 0, shared = with && i % 3, kind = i < 60 ? i % 3 : 3 + i % 2;
        const int many = shared ? 2 + (int)below(5) : 1 + (int)below(2);
        const int64_t t = i % 6 ? 1 + below(i % 5 ? KT : 9) : 66 + below(40);
        const int64_t d = shared ? 1 + below(KC / (uint32_t)many) : i % 3 == 1 ? 32 : d_of(kind);
        const int64_t c = many * d;
        const int64_t more_keys = below((uint32_t)(KT - t + 1));
        const int64_t s = !causal ? 1 + below(KT) : t + (i % 3 == 1 ? 0 : more_keys);
        const unsigned narrow = i % 2 ? 0xffu : below(256), wanted = i % 6 ? 7 : below(8);
        const int32_t some = (int32_t)(i % 5 ? below((uint32_t)s + 1) : s * (i / 5 % 2));
        const int32_t *length = with && i % 3 != 1 ? &some : NULL;
        const int later = causal && i % 8 > 4 && !length ? (int)below((uint32_t)(s - t + 1)) : 0;
        gckpti_attention o = { many, causal + later, !shared ? 0 : many % 2 ? 1 : many / 2, n >= 144, 0, 0, 0 };
        if (o.extras && below(3))
            o.window = causal ? 1 + (int)below(i % 2 ? 12 : KT) : 0;
        if (o.extras && (!o.window || below(3) == 0))
            o.cap = 0.5f * (float)(1 + below(5)), o.scale = below(2) ? 0.3f : 0;
        const unsigned more = kind > 2 || i % 7 < 2 ? 7 : i % 7 < 4 ? below(8) : 0;
        attended_draw(&start, kind);
        want = start;
        run_attention(&want, &o, GCKPT_ISA_PLAIN, t, s, c, length, narrow, wanted, more);
        for (int isa = GCKPT_ISA_PLAIN + 1; isa < GCKPT_ISA_COUNT + 1; isa++) {
            if (!kernels_or_without(isa))
                continue;
            got = start;
            run_attention(&got, &o, isa, t, s, c, length, narrow, wanted, more);
            CHECK_MSG(attended_same(&want, &got),
                      "attention kernels %d, problem %d: %d queries, %d keys, many of %d", isa, n,
                      (int)t, (int)s, (int)d);
        }
    }
}

/* Positions masked by causal attention must have no influence; the t queries are the last t of s positions. First, the
 * first `bad` queries and their incoming gradients are NaN or infinite: outputs and gradients of later queries, and of
 * keys that the bad queries do not see, must not change. Then (`late`) the last `bad` keys and values are NaN or
 * infinite: outputs and gradients of earlier queries must not change. */
static void masked_out(int isa, int t, int s, int bad)
{
    enum { D = 40 };
    static attended want, got;
    const gckpti_attention o = { 1, 1, 0, 0, 0, 0, 0 };
    for (int late = 0; late < 2; late++) {
        const int keep = late ? t - bad : 0, end = late ? t : bad, more = s - t;
        attended_draw(&want, 0);
        memset(want.half[4] + keep * D, 0, (size_t)((late ? bad : 0) * D) * sizeof *want.half[4]);
        got = want;
        for (int at = keep * D; at < end * D; at++) {
            const int key = at + more * D;
            got.half[late ? 1 : 0][late ? key : at] = below(2) ? 0x7fc0 : 0xff80;
            got.half[late ? 2 : 4][late ? key : at] = below(2) ? 0x7fc0 : 0x7f80;
        }
        run_attention(&want, &o, isa, t, s, D, NULL, 0xff, 7, 0);
        run_attention(&got, &o, isa, t, s, D, NULL, 0xff, 7, 0);
        for (int i = 3; i < (late ? 6 : 8); i++) {
            const int of_keys = i > 5, from = late ? 0 : of_keys ? more + bad : bad;
            const int to = late ? t - bad : of_keys ? s : t;
            CHECK_MSG(i == 4 || !memcmp(want.half[i] + from * D, got.half[i] + from * D,
                                        (size_t)((to - from) * D) * sizeof *got.half[i]),
                      "attention kernels %d, %d of %d keys: %d masked %s change %d", isa, t,
                      s, bad, late ? "keys" : "queries", i);
        }
    }
}

static void test_masked_keys(void)
{
    static const int sizes[6][2] = { { 75, 75 },   { 33, 33 }, { 64, 64 },
                                     { 100, 100 }, { 7, 70 },  { 40, 75 } };
    for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT + 1; isa++)
        for (int i = 0; i < 6 && (isa == GCKPT_ISA_PLAIN || kernels_or_without(isa)); i++)
            for (int bad = 1; bad < 20 && bad < sizes[i][0]; bad += 3 + 2 * (i > 0))
                masked_out(isa, sizes[i][0], sizes[i][1], bad);
}
#else
static void test_products(void) {}
static void test_workspace(void) {}
static void test_attention(void) {}
static void test_attention_kernels(void) {}
static void test_masked_keys(void) {}
#endif

/* ---- a small GPT with many kinds of ops ---- */
enum { BATCH = 4, T = 34, C = 32, V = 61 };

static gckpt_tensor *feed_forward(gckpt_tensor *x, void *user)
{
    (void)user;
    gckpt_tensor *a = gckpt_rmsnorm(x, weight(x, "rms.gain", C, 0), 0), *part[2];
    gckpt_tensor *w = weight(x, "fc", C, 4 * C), *b = weight(x, "fc.bias", 4 * C, 0);
    a = gckpt_linear(a, w, b);
    part[0] = gckpt_gelu(gckpt_slice(a, 2, 0, 2 * C));
    part[1] = gckpt_silu(gckpt_slice(a, 2, 2 * C, 4 * C));
    a = gckpt_linear(gckpt_concat(part, 2, 2), weight(x, "out", 4 * C, C), NULL);
    return gckpt_add(gckpt_scale(x, 0.75f), a);
}

static gckpt_tensor *by_hand(gckpt_tensor *x, void *user)
{
    (void)user;
    gckpt_tensor *scores = gckpt_softmax(gckpt_scale(gckpt_matmul_transposed(x, x), 0.5f));
    gckpt_tensor *h = gckpt_matmul(scores, x);
    h = gckpt_mul(h, h);
    h = gckpt_add(h, h);
    return gckpt_add(h, gckpt_mul(x, weight(x, "gain", C, 0)));
}

typedef struct {
    gckpt_plan_desc plan;
    int64_t micro;
    unsigned debug;
    int steps, fetch, quarter; /* quarter: budget of GCKPT_OPTIMAL, in quarters from the least bytes to all */
    gckpt_isa isa;
    /* results of train() */
    size_t bytes, arena;
    double loss, loss_first;
} trial;

static uint64_t train(trial *o)
{
    static int32_t tokens[BATCH * T], targets[BATCH * T];
    static float values[BATCH * C];
    for (int i = 0; i < BATCH * T; i++) {
        tokens[i] = (i * 37 + i / 7) % V;
        targets[i] = i % 11 == 3 ? -1 : (tokens[i] * 5 + 1) % V;
    }
    for (int i = 0; i < BATCH * C; i++)
        values[i] = (float)(i * 7 % 13 - 6) / 8;
    gckpt_store_desc seed = { { NULL, NULL, NULL, 0 }, 1234 };
    gckpt_store *s = gckpt_store_new(&seed);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(o->micro, T));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(o->micro, T));
    gckpt_tensor *value = gckpt_input(g, "value", GCKPT_F32, gckpt_shape2(o->micro, C));
    const gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), init);
    gckpt_tensor *x = gckpt_embed(gckpt_scale(table, 1.25f), in);
    x = gckpt_positions(x, weight(x, "places", T, C), 0);
    gckpt_tensor *start = x;
    x = gckpt_checkpoint(attention_block, x, NULL);
    x = gckpt_checkpoint(feed_forward, x, NULL);
    x = gckpt_checkpoint(by_hand, x, NULL);
    gckpt_tensor *guess = gckpt_sub(gckpt_mean(x, 1), value);
    guess = gckpt_linear(guess, weight(x, "value.w", C, C), NULL);
    gckpt_term terms[3];
    terms[0].loss = gckpt_linear_cross_entropy(gckpt_layernorm(x, NULL, NULL, 0), table, target, NULL);
    terms[1].loss = gckpt_mean_squared_error(guess, value, NULL);
    terms[2].loss = gckpt_sum_loss(gckpt_mul(table, table));
    for (int i = 0; i < 3; i++) {
        terms[i].weight = i == 0 ? 1.0f : i == 1 ? 0.5f : 0.01f;
        terms[i].regulariser = i == 2;
    }
    const gckpt_fetch_spec fetches[4] = { { x, 0 }, { start, 1 }, { table, 1 }, { guess, 0 } };
    gckpt_plan_desc desc = o->plan;
    desc.batch = BATCH;
    desc.fetch.specs = o->fetch ? fetches : NULL;
    desc.fetch.count = o->fetch ? 4 : 0;
    gckpt_plan *p = NULL;
    if (desc.mode == GCKPT_OPTIMAL) {
        gckpt_frontier *f = gckpt_frontier_new(g, terms, 3, &desc);
        gckpt_point point = { 0, 0, 0, 0, 0 };
        gckpt_frontier_get(f, (gckpt_frontier_describe(f).points - 1) * o->quarter / 4, &point);
        p = gckpt_frontier_plan(f, point.bytes);
        CHECK(p && gckpt_plan_bytes(p) == point.bytes);
        gckpt_frontier_free(f);
    } else {
        p = gckpt_plan_new(g, terms, 3, &desc);
    }
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_exec_desc ed = { .debug = o->debug, .isa = o->isa };
    gckpt_exec *e = gckpt_exec_new(p, s, &ed);
    CHECK_MSG(p == NULL || e != NULL, "%s", gckpt_error_text(s));
    const gckpt_feed feeds[3] = { { gckpt_id(in), tokens },
                                  { gckpt_id(target), targets },
                                  { gckpt_id(value), values } };
    gckpt_hyper hyper = { .lr = 0.01f, .weight_decay = 0.1f, .clip = 0.5f };
    gckpt_report report = { 0, 0, 0, 0 };
    for (int step = 0; step < o->steps && e != NULL; step++) {
        CHECK_MSG(gckpt_step(e, feeds, 3, BATCH, &hyper, &report) == GCKPT_OK, "%s",
                  gckpt_error_text(e));
        o->loss_first = step ? o->loss_first : report.loss;
    }
    o->loss = report.loss;
    o->bytes = gckpt_plan_bytes(p);
    o->arena = gckpt_plan_describe(p).arena;
    if (o->debug & GCKPT_DEBUG_MEASURE)
        CHECK_MSG(gckpt_bytes_measured(e) == o->bytes, "mode %d, micro %d: %zu planned, %zu used",
                  (int)desc.mode, (int)o->micro, o->bytes, gckpt_bytes_measured(e));
    for (int k = 0; k < 4 && o->fetch; k++) {
        const float *f = gckpt_fetch(e, gckpt_id(fetches[k].tensor), fetches[k].gradient);
        CHECK(f != NULL && f[0] == f[0]);
        for (int i = 0; f && i < C && k != 2; i++) /* the smallest fetched tensor has C elements */
            CHECK_MSG(half_of(f[i]) == f[i], "fetch %d: %g is not a bf16 value", k, (double)f[i]);
    }
    uint64_t hash = gckpt_store_hash(s);
    util_free(e, p, g, s);
    return hash;
}

static trial trial_of(gckpt_precision precision, gckpt_mode mode, int64_t micro, int threads)
{
    trial o = { .plan.bf16.precision = precision,
                .plan.mode = mode,
                .plan.threads = threads,
                .micro = micro,
                .steps = 4 };
    return o;
}

static void test_same_bits(void)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS,
                                        GCKPT_SQRT };
    trial first = trial_of(GCKPT_BF16, GCKPT_STORE_ALL, BATCH, 1);
    const uint64_t hash = train(&first);
    CHECK_MSG(hash == GOLDEN, "golden hash: %016llx, expected %016llx", (unsigned long long)hash,
              (unsigned long long)GOLDEN);
    const unsigned all = GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_RECOMPUTE;
    for (unsigned n = 0; n < (is_quick ? 2 : 24); n++) {
        const int i = (int)n;
        if (!is_quick && !check_sampled(n, 5))
            continue;
        trial o = trial_of(GCKPT_BF16, modes[i % 4], i / 4 % 3 == 2 ? BATCH : i / 4 % 3 + 1 + i / 12,
                           1 + i % 3);
        o.debug = i % 5 == 0 ? GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE : all;
        o.plan.kernels.plain = i % 7 == 3;
        o.plan.kernels.alignment = i % 4 == 1 ? 4 : 0;
        o.fetch = i % 6 == 2;
        CHECK_MSG(train(&o) == hash && o.loss == first.loss,
                  "mode %d, micro %d, threads %d, plain %d, fetch %d: other bits",
                  (int)o.plan.mode, (int)o.micro, o.plan.threads, o.plan.kernels.plain,
                  o.fetch);
    }
    for (int quarter = 0; quarter < 4 && !is_quick; quarter++) {
        if (!check_sampled((unsigned)quarter, 3))
            continue;
        trial o = trial_of(GCKPT_BF16, GCKPT_OPTIMAL, quarter % 2 ? BATCH : 2, 1);
        o.quarter = quarter;
        o.debug = all;
        CHECK_MSG(train(&o) == hash, "quarter %d of the frontier: other bits", quarter);
    }
    for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++) {
        trial o = trial_of(GCKPT_BF16, GCKPT_STORE_ALL, BATCH, 1);
        o.isa = (gckpt_isa)isa;
        if (gckpt_isa_available(o.isa))
            CHECK_MSG(train(&o) == hash, "%s: other bits", isa_name(o.isa));
    }
}

/* ---- samples of t rows, whose weight gradients are summed in blocks of rows: weights and losses must be the same for
 * every split of the batch, number of threads and kernel ---- */
static uint64_t entries_trained(int t, int vranks, int micro, int threads, int plain)
{
    enum { ENTRIES = 4, MOST_T = 100, IN = 5, WIDTH = 20, CLASSES = 41 };
    const gckpt_init init = { 0.4f, 0, 0 };
    static float data[ENTRIES * MOST_T * IN];
    static int32_t targets[ENTRIES * MOST_T];
    for (int i = 0; i < ENTRIES * t * IN; i++)
        data[i] = (float)(i * 37 % 101 - 50) / 50;
    for (int i = 0; i < ENTRIES * t; i++)
        targets[i] = i % 9 == 4 ? -1 : i * 13 % CLASSES;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(micro, t, IN));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape2(micro, t));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(IN, WIDTH), init);
    gckpt_tensor *h = gckpt_linear(x, w, gckpt_param(g, "b", gckpt_shape1(WIDTH), init)), *k,
                 *loss[2];
    k = gckpt_linear_transposed(h, gckpt_param(g, "k", gckpt_shape2(WIDTH, WIDTH), init), NULL);
    h = gckpt_add(h, gckpt_attention(h, k, k, &(gckpt_attention_desc){ .heads = 2, .causal = 1 }));
    h = gckpt_add(h, gckpt_matmul(gckpt_softmax(gckpt_matmul_transposed(h, k)), k));
    w = gckpt_param(g, "v", gckpt_shape2(CLASSES, WIDTH), init);
    loss[0] = gckpt_linear_cross_entropy(h, w, y, NULL);
    k = gckpt_gelu(gckpt_matmul(k, gckpt_param(g, "u", gckpt_shape2(WIDTH, WIDTH), init)));
    loss[1] = gckpt_cross_entropy(gckpt_linear_transposed(k, w, NULL), y, NULL, 0);
    gckpt_term terms[2] = { { loss[0], 1, 0 }, { loss[1], 0.5f, 0 } };
    gckpt_plan_desc desc = { .bf16.precision = GCKPT_BF16,
                             .optimiser = GCKPT_SGD,
                             .batch = ENTRIES,
                             .ranks.virtual_ranks = vranks,
                             .threads = threads,
                             .kernels.plain = plain };
    gckpt_exec_desc how = { .parallel_for = threads > 1 ? any_order : NULL };
    gckpt_hyper hyper = { .lr = 0.1f };
    gckpt_plan *p = gckpt_plan_new(g, terms, 2, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    CHECK_MSG(e != NULL, "%s %s", gckpt_error_text(g), gckpt_error_text(s));
    gckpt_feed feeds[2] = { { gckpt_id(x), data }, { gckpt_id(y), targets } };
    gckpt_report report = { 0, 0, 0, 0 };
    uint64_t hash = 0, bits;
    for (int step = 0; step < 2; step++) {
        CHECK_MSG(gckpt_step(e, feeds, 2, ENTRIES, &hyper, &report) == GCKPT_OK, "%s",
                  gckpt_error_text(e));
        memcpy(&bits, &report.loss, sizeof bits);
        hash = hash * 31 + bits;
    }
    hash = hash * 31 + gckpt_store_hash(s);
    util_free(e, p, g, s);
    return hash;
}

static void test_entries(void)
{
    static const int lengths[6] = { 1, 7, 32, 33, 64, 100 };
    for (int i = 0; i < 12; i++) {
        const int t = lengths[i / 2], vranks = i % 2 ? 4 : 1;
        const uint64_t want = entries_trained(t, vranks, 4, 1, 1);
        for (int k = 0; k < 16; k++)
            CHECK_MSG(!check_sampled((unsigned)(16 * i + k), 7) ||
                          entries_trained(t, vranks, 4 - k % 4, 1 + k / 4 % 2, k / 8) == want,
                      "entries of %d, %d leaves, %d at once, %d threads, plain %d: other bits", t, vranks, 4 - k % 4,
                      1 + k / 4 % 2, k / 8);
    }
}

/* Tests how the gradient of b in a batched product a b is summed over rows of a. A sample is all rows if the matrices
 * of a share b, else the rows of one matrix. If a sample has less than 32 rows, the sum is one chain of all terms;
 * otherwise even and odd terms of a block have a chain each. Terms are so large that they cancel in the demanded order
 * and overflow in any other: their signs alternate from row to row for one chain, from pair to pair for two. Each
 * matrix b is 1 x 1. */
static void test_rows_of_entries(void)
{
    static const int rows[3] = { 10, 20, 32 };
    const gckpt_init one = { 0, 0, 1 };
    for (int i = 0; i < 12; i++) {
        const int t = rows[i % 3], shared = i / 3 % 2, run = shared ? 2 * t : t;
        float x[64], least[2] = { ldexpf(1, -100), ldexpf(1, -100) };
        for (int k = 0; k < 2 * t; k++)
            x[k] = ldexpf((run < 32 ? k : k / 2) % 2 ? -1.5f : 1.5f, 127);
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *a = gckpt_input(g, "a", GCKPT_F32, gckpt_shape4(1, 2, t, 1));
        gckpt_tensor *b = gckpt_input(g, "b", GCKPT_F32, gckpt_shape4(1, 2, 1, 1));
        gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(1, 1), one);
        b = shared ? gckpt_scale(w, least[0]) : gckpt_mul(b, w);
        gckpt_term term = { gckpt_sum_loss(gckpt_matmul(a, b)), 1, 0 };
        const gckpt_fetch_spec pick = { b, 1 };
        gckpt_plan_desc desc = { .bf16.precision = GCKPT_BF16, .fetch.specs = &pick, .fetch.count = 1 };
        gckpt_exec_desc how = { .isa = i < 6 ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO };
        const gckpt_feed feeds[2] = { { 0, x }, { 1, least } };
        const gckpt_hyper still = gckpt_hyper_lr(0);
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, &how);
        CHECK_MSG(e && gckpt_step(e, feeds, shared ? 1 : 2, 1, &still, NULL) == GCKPT_OK, "%s %s",
                  gckpt_error_text(g), gckpt_error_text(e));
        const float *f = gckpt_fetch(e, gckpt_id(b), 1);
        CHECK_MSG(f && f[0] == 0 && f[!shared] == 0, "entries of %d rows, %s: %g", t,
                  shared ? "one b" : "matrices", f ? (double)f[0] : -1);
        util_free(e, p, g, s);
    }
}

static void test_close_to_fp32(void)
{
    trial wide = trial_of(GCKPT_FP32, GCKPT_STORE_ALL, BATCH, 1);
    trial half = trial_of(GCKPT_BF16, GCKPT_STORE_ALL, BATCH, 1);
    wide.steps = half.steps = 60;
    CHECK(train(&wide) != train(&half));
    CHECK(half.loss < 0.5 * half.loss_first);
    CHECK_MSG(fabs(half.loss_first - wide.loss_first) < 0.01 * wide.loss_first, "%g, fp32 %g",
              half.loss_first, wide.loss_first);
    CHECK_MSG(fabs(half.loss - wide.loss) < 0.05 * wide.loss_first, "%g, fp32 %g", half.loss,
              wide.loss);
    CHECK_MSG(half.arena < wide.arena, "%zu bytes, fp32 %zu", half.arena, wide.arena);
}

/* Tests ops in bf16. Their value must be the bf16 rounding of the fp32 op's value for rounded inputs. Their gradient is
 * computed from rounded values and must be close to fp32's. */
enum { OPS = 18 };
static gckpt_tensor *one_of(int i, gckpt_tensor *a, gckpt_tensor *b)
{
    switch (i) {
    case 0: return gckpt_exp(a);
    case 1: return gckpt_log(b);
    case 2: return gckpt_sqrt(b);
    case 3: return gckpt_abs(a);
    case 4: return gckpt_pow(b, -1);
    case 5: return gckpt_pow(a, 2);
    case 6: return gckpt_pow(b, -1.5f);
    case 7: return gckpt_clamp(a, -0.7f, 0.7f); /* the limits become bf16 numbers: 0.69921875 */
    case 8: return gckpt_detach(a);
    case 9: return gckpt_div(a, b);
    case 10: return gckpt_maximum(a, b);
    case 11: return gckpt_minimum(a, b);
    case 12: return gckpt_activation(a, GCKPT_LEAKY_RELU, 0.1f);
    case 13: return gckpt_activation(a, GCKPT_SOFTPLUS, 0);
    case 14: return gckpt_sin(a);
    case 15: return gckpt_cos(b);
    case 16: return gckpt_where(gckpt_relu(a), b, a);
    default: return gckpt_log_softmax(a);
    }
}

static void test_ops_of_losses(void)
{
    enum { N = 37, ROWS = 3, ALL = N * ROWS };
    static float value[2][OPS][ALL], slope[2][2][ALL];
    const gckpt_init one = { 0, 0, 1 };
    float x[3][ALL];
    for (int i = 0; i < 3 * ALL; i++)
        x[i / ALL][i % ALL] = half_of(i < ALL ? sinf((float)i) * 3 : 1.5f + cosf((float)i));
    for (int narrow = 0; narrow < 2; narrow++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in[3], *h[2], *sum = NULL;
        gckpt_feed feeds[3];
        gckpt_fetch_spec fetches[OPS + 2];
        static const char *const names[] = { "a", "b", "g" };
        for (int i = 0; i < 3; i++) {
            in[i] = gckpt_input(g, names[i], GCKPT_F32, gckpt_shape2(ROWS, N));
            feeds[i] = (gckpt_feed){ gckpt_id(in[i]), x[i] };
            if (i < 2)
                h[i] = gckpt_mul(in[i], gckpt_param(g, "one", gckpt_shape1(1), one));
        }
        for (int i = 0; i < OPS; i++) {
            fetches[i] = (gckpt_fetch_spec){ one_of(i, h[0], h[1]), 0 };
            sum = sum ? gckpt_add(sum, fetches[i].tensor) : fetches[i].tensor;
        }
        fetches[OPS] = (gckpt_fetch_spec){ h[0], 1 }, fetches[OPS + 1] = (gckpt_fetch_spec){ h[1], 1 };
        gckpt_term term = { gckpt_sum_loss(gckpt_mul(sum, in[2])), 1, 0 };
        gckpt_plan_desc desc = { .bf16.precision = narrow ? GCKPT_BF16 : GCKPT_FP32,
                                 .fetch.specs = fetches,
                                 .fetch.count = OPS + 2 };
        gckpt_hyper still = gckpt_hyper_lr(0);
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        CHECK_MSG(gckpt_step(e, feeds, 3, ROWS, &still, NULL) == GCKPT_OK, "%s %s",
                  gckpt_error_text(g), gckpt_error_text(e));
        for (int i = 0; i < OPS + 2; i++) {
            const float *f = gckpt_fetch(e, gckpt_id(fetches[i].tensor), fetches[i].gradient);
            if (CHECK(f != NULL))
                memcpy(i < OPS ? value[narrow][i] : slope[narrow][i - OPS], f, sizeof x[0]);
        }
        util_free(e, p, g, s);
    }
    for (int i = 0; i < OPS * ALL; i++)
        CHECK_MSG(half_of(value[0][i / ALL][i % ALL]) == value[1][i / ALL][i % ALL],
                  "op %d: %.9g in bf16, %.9g in fp32", i / ALL, (double)value[1][i / ALL][i % ALL],
                  (double)value[0][i / ALL][i % ALL]);
    for (int i = 0; i < 2 * ALL; i++) /* a sum of about ten contributions, each rounded, as is each partial sum */
        CHECK_MSG(fabsf(slope[0][i / ALL][i % ALL] - slope[1][i / ALL][i % ALL]) <
                      0.05f * (2 + fabsf(slope[0][i / ALL][i % ALL])),
                  "gradient %d: %.9g in bf16, %.9g in fp32", i, (double)slope[1][i / ALL][i % ALL],
                  (double)slope[0][i / ALL][i % ALL]);
}

/* ---- fit_plan, inference, and calls that must be refused ---- */
static int build(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    const gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *h = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, 16));
    char name[2] = "a";
    (void)user;
    for (; *name < 'g'; ++*name)
        h = gckpt_tanh(gckpt_linear(h, gckpt_param(g, name, gckpt_shape2(16, 16), init), NULL));
    terms[0].loss = gckpt_sum_loss(h);
    terms[0].weight = 1;
    return 1;
}

/* Here the gradient of slim is fetched (f32) and has half the elements of the gradient of wide (bf16), so both take
 * equally many bytes. While both are live, they must not share memory. `which`: 0 for slim + wide, 1 for wide + slim, 2
 * for slim - wide. */
static uint64_t fetched(int which, int fetch)
{
    const gckpt_init init = { 0.3f, 0, 0 };
    const float x[4] = { 1, -2, 3, 0.5f }, y[8] = { 1, 0, 2, 0, 3, 0, 4, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 1));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(4, 2));
    gckpt_tensor *wide = gckpt_linear(in, gckpt_param(g, "a", gckpt_shape2(1, 2), init), NULL);
    gckpt_tensor *slim = gckpt_linear(in, gckpt_param(g, "b", gckpt_shape2(1, 1), init), NULL);
    gckpt_tensor *both = which == 0   ? gckpt_add(slim, wide)
                         : which == 1 ? gckpt_add(wide, slim)
                                      : gckpt_sub(slim, wide);
    gckpt_term term = { NULL, 1, 0 };
    term.loss = gckpt_mean_squared_error(both, target, NULL);
    const gckpt_fetch_spec fetches[3] = { { slim, 1 }, { both, 0 }, { wide, 1 } };
    gckpt_plan_desc desc = { .bf16.precision = GCKPT_BF16, .fetch.specs = fetches, .fetch.count = fetch };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), y } };
    gckpt_hyper hyper = { .lr = 0.1f };
    CHECK_MSG(gckpt_step(e, feeds, 2, 4, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(g));
    const float *one = fetch > 0 ? gckpt_fetch(e, gckpt_id(slim), 1) : NULL;
    const float *o = fetch > 1 ? gckpt_fetch(e, gckpt_id(both), 0) : NULL;
    const float *two = fetch > 2 ? gckpt_fetch(e, gckpt_id(wide), 1) : NULL;
    for (int i = 0; o && i < 4; i++) {
        const float a = half_of(2 * (o[2 * i] - y[2 * i]));
        const float b = half_of(2 * (o[2 * i + 1] - y[2 * i + 1])), sign = which == 2 ? -1 : 1;
        CHECK_MSG(one[i] == half_of(a + b), "fetched, case %d: %g, not %g", which, (double)one[i],
                  (double)half_of(a + b));
        CHECK(!two || (two[2 * i] == sign * a && two[2 * i + 1] == sign * b));
    }
    const uint64_t hash = gckpt_store_hash(s);
    util_free(e, p, g, s);
    return hash;
}

static void test_rest(void)
{
    size_t most[2] = { 0, 0 };
    for (int precision = 0; precision < 2; precision++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_term term = { NULL, 1, 0 };
        gckpt_report report = { 0, 0, 0, 0 };
        float x[64 * 16];
        build(g, 64, &term, NULL);
        for (int i = 0; i < 64 * 16; i++)
            x[i] = cosf((float)i);
        const gckpt_feed feed = { 0, x };
        gckpt_plan_desc desc = { .bf16.precision = (gckpt_precision)precision, .mode = GCKPT_SQRT };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
        /* the check is of the fp32 gradients: rounding to bf16 is coarser than the differences */
        CHECK(gradcheck(s, &term, 1, &desc, &feed, 1, 64, NULL) == GCKPT_OK);
        gckpt_plan_free(p);

        desc.mode = GCKPT_INFERENCE;
        p = gckpt_plan_new(g, &term, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        CHECK(gckpt_forward(e, &feed, 1, 64, &report) == GCKPT_OK && report.count > 0);
        util_free(e, p, NULL, NULL);

        fit_error why;
        desc.mode = GCKPT_AUTO;
        desc.budget = 1;
        CHECK(!fit_plan(s, build, NULL, 64, &desc, NULL, &why) && why.result == GCKPT_E_BUDGET);
        desc.budget = 40000;
        p = fit_plan(s, build, NULL, 64, &desc, NULL, &why);
        CHECK_MSG(p && gckpt_plan_bytes(p) <= desc.budget, "%s", why.text);
        gckpt_plan_free(p);
        desc.budget = 0;
        desc.batch = 0;
        gckpt_frontier *f = gckpt_frontier_new(g, &term, 1, &desc);
        gckpt_point point = { 0, 0, 0, 0, 0 };
        int n = gckpt_frontier_describe(f).points;
        CHECK(gckpt_frontier_get(f, n - 1, &point) == GCKPT_OK);
        most[precision] = point.bytes;
        p = gckpt_frontier_plan(f, 0);
        CHECK(p && gckpt_plan_bytes(p) == point.bytes);
        gckpt_plan_free(p);
        gckpt_frontier_free(f);
        desc.bf16.precision = GCKPT_BF16_FAST;
        CHECK(!gckpt_plan_new(g, &term, 1, &desc) && gckpt_error(g) == GCKPT_E_ARG);
        util_free(NULL, NULL, g, s);
    }
    CHECK_MSG(most[1] < most[0], "%zu bytes, fp32 %zu", most[1], most[0]);
}

/* A loss's backward may add to a gradient of x that the backward of another op has started. Results must be the same
 * with plain and fast kernels and for every split of the batch. */
static void test_two_users(void)
{
    static const int rows[3] = { 32, 8, 5 };
    float data[32 * 24];
    int32_t target[32];
    uint64_t first = 0;
    for (int i = 0; i < 32 * 24; i++)
        data[i] = (float)(i * 37 % 101 - 50) / 50.0f;
    for (int i = 0; i < 32; i++)
        target[i] = i * 97 % 1200;
    for (int i = 0; i < 6; i++) {
        const gckpt_init normal = { 0.3f, 0, 0 };
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows[i / 2], 24));
        gckpt_tensor *y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(rows[i / 2]));
        gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(24, 40), normal);
        gckpt_tensor *v = gckpt_param(g, "v", gckpt_shape2(1200, 40), normal);
        gckpt_tensor *h = gckpt_gelu(gckpt_linear(x, w, NULL));
        gckpt_term terms[2] = { { gckpt_linear_cross_entropy(h, v, y, NULL), 1, 0 }, { NULL, 0.1f, 0 } };
        gckpt_plan_desc desc = { .bf16.precision = GCKPT_BF16, .batch = 32 };
        gckpt_exec_desc how = { .isa = i % 2 ? GCKPT_ISA_AUTO : GCKPT_ISA_PLAIN };
        gckpt_hyper hyper = { .lr = 0.01f };
        terms[1].loss = gckpt_sum_loss(gckpt_mul(h, h));
        gckpt_plan *p = gckpt_plan_new(g, terms, 2, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, &how);
        gckpt_feed feeds[2] = { { gckpt_id(x), data }, { gckpt_id(y), target } };
        CHECK(e != NULL && gckpt_step(e, feeds, 2, 32, &hyper, NULL) == GCKPT_OK);
        first = i ? first : gckpt_store_hash(s);
        CHECK_MSG(gckpt_store_hash(s) == first, "two users: %d rows, %s", rows[i / 2],
                  isa_name(how.isa));
        util_free(e, p, g, s);
    }
}

/* A backend that has no kernels, so that all ops get f32 copies and run on the processor. */
#ifndef GCKPT_NO_DEVICES
static const gckpt_backend no_kernels = { .name = "copies" };
static const gckpt_backend *const f32_copies = &no_kernels;
#else
static const gckpt_backend *const f32_copies = NULL;
#endif

/* Returns a hash after training a net with three groups of ops: those that process bf16 operands in strips of elements,
 * those that process them row by row (some rows too long for a strip), and those that read f32 copies (embed,
 * cross_entropy). `how`: 0 for f32 copies everywhere, as other backends have; 1 for plain kernels; 2 for AVX2; 3 and 4
 * for the fastest kernels with 1 and 3 threads. */
static uint64_t strips(int how, int64_t width, int64_t micro)
{
    const gckpt_init normal = { 0.5f, 0, 0 }, one = { 0.2f, 0, 1 };
    enum { ROWS = 6, WORDS = 5, IN = 3 };
    float data[ROWS * WORDS * IN];
    int32_t tokens[ROWS * WORDS], targets[ROWS * WORDS];
    for (int i = 0; i < ROWS * WORDS * IN; i++)
        data[i] = (float)(i * 37 % 101 - 50) / 50.0f;
    for (int i = 0; i < ROWS * WORDS; i++)
        tokens[i] = i * 5 % 7, targets[i] = i % 4 == 2 ? -1 : (int32_t)(i * 997 % width);
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(micro, WORDS, IN));
    gckpt_tensor *gain = gckpt_param(g, "gain", gckpt_shape1(width), one);
    gckpt_tensor *bias = gckpt_param(g, "bias", gckpt_shape1(width), normal);
    gckpt_tensor *h = gckpt_linear(x, gckpt_param(g, "w", gckpt_shape2(IN, width), normal), bias);
    gckpt_tensor *t = gckpt_input(g, "t", GCKPT_I32, gckpt_shape2(micro, WORDS));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape2(micro, WORDS));
    h = gckpt_add(h, gckpt_embed(gckpt_param(g, "table", gckpt_shape2(7, width), normal), t));
    gckpt_tensor *early = gckpt_cross_entropy(h, y, NULL, 0); /* its backward adds to the gradient of h */
    gckpt_tensor *a = gckpt_gelu(gckpt_layernorm(h, gain, bias, 0));
    a = gckpt_add(h, gckpt_layernorm(a, NULL, NULL, 0));
    a = gckpt_mul(gckpt_softmax(a), gckpt_exp(gckpt_rmsnorm(a, gain, 0)));
    gckpt_tensor *b = gckpt_log_softmax(gckpt_sub(gckpt_scale(h, 0.7f), gckpt_relu(a)));
    b = gckpt_div(b, gckpt_add(gckpt_sigmoid(h), gckpt_exp(gckpt_tanh(gckpt_maximum(a, h)))));
    b = gckpt_add(gckpt_layernorm(b, NULL, bias, 0), gckpt_detach(gckpt_silu(gckpt_pow(a, 3))));
    gckpt_term terms[3] = { { early, 1, 0 }, { NULL, 0.1f, 0 }, { NULL, 0.5f, 0 } };
    terms[1].loss = gckpt_sum_loss(gckpt_clamp(gckpt_mul(b, b), -9, 9));
    terms[2].loss = gckpt_cross_entropy(h, y, NULL, 0);
    /* A fetched value or gradient is f32, even if the values next to it are bf16. */
    const gckpt_fetch_spec pick = { h, width == 4100 };
    const int fetches = width >= 2100;
    gckpt_plan_desc desc = {
        .bf16.precision = GCKPT_BF16, .batch = ROWS, .fetch.specs = &pick, .fetch.count = fetches
    };
    gckpt_exec_desc x_desc = { .isa = how == 1 ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO };
    const gckpt_hyper hyper = { .lr = 0.01f };
    const gckpt_feed feeds[3] = { { gckpt_id(x), data },
                                  { gckpt_id(t), tokens },
                                  { gckpt_id(y), targets } };
    desc.threads = how == 4 ? 3 : 1;
    desc.backend = x_desc.backend = how ? NULL : f32_copies;
    if (how == 2 && gckpt_isa_available(GCKPT_ISA_AVX2))
        x_desc.isa = GCKPT_ISA_AVX2;
    gckpt_plan *p = gckpt_plan_new(g, terms, 3, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, &x_desc);
    gckpt_report report = { 0, 0, 0, 0 };
    CHECK_MSG(e && gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_OK, "%s %s",
              gckpt_error_text(g), gckpt_error_text(e));
    CHECK(report.loss > 0 && report.loss < 1e9);
    const uint64_t hash = gckpt_store_hash(s);
    util_free(e, p, g, s);
    return hash;
}

static void test_strips(void)
{
    static const int64_t widths[5] = { 33, 700, 1100, 2100, 4100 };
    for (int i = 0; i < 5; i++) {
        const uint64_t want = strips(0, widths[i], 6);
        for (int how = 1; how < 5; how++)
            CHECK_MSG(!check_sampled((unsigned)(5 * i + how), 3) ||
                          strips(how, widths[i], how == 3 ? 4 : 6) == want,
                      "strips of %d, way %d: other bits", (int)widths[i], how);
    }
}

/* ---- more about bf16 plans: sums in strips, values that depend only on parameters, recomputed values, ops with index
 * inputs, f32 copies ---- */
/* Returns a hash after training a net that sums gradients in strips. `which`: 0 for a layernorm whose gain is computed
 * from the batch; 1 for the same with the gain fetched; 2 for a bias with as many elements as its other operand; 3 for
 * one gradient passed on to two ops. `how` is as in strips(). */
static uint64_t sums(int how, int which)
{
    const gckpt_init normal = { 0.5f, 0, 0 };
    enum { ROWS = 6, IN = 3 };
    const int64_t width = which == 0 ? 33 : which == 1 ? 700 : 4100, micro = which == 2 ? 1 : ROWS;
    float data[ROWS * IN];
    for (int i = 0; i < ROWS * IN; i++)
        data[i] = (float)(i * 37 % 101 - 50) / 50.0f;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(micro, IN)), *y, *gain = NULL;
    gckpt_tensor *h = gckpt_linear(x, gckpt_param(g, "w", gckpt_shape2(IN, width), normal), NULL);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(width), normal);
    if (which < 2)
        y = gckpt_layernorm(h, gain = gckpt_mean(h, 0), b, 0);
    else if (which == 2)
        y = gckpt_mul(gckpt_add(h, b), b);
    else
        y = gckpt_add(h, gckpt_linear(x, gckpt_param(g, "v", gckpt_shape2(IN, width), normal), b));
    gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, y)), 1, 0 };
    const gckpt_fetch_spec fetches[2] = { { gain, 0 }, { gain, 1 } };
    gckpt_plan_desc desc = { .bf16.precision = GCKPT_BF16, .batch = ROWS, .fetch.specs = fetches };
    gckpt_exec_desc exec = { .isa = how == 1 ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO };
    const gckpt_hyper hyper = { .lr = 0.01f };
    const gckpt_feed feed = { gckpt_id(x), data };
    desc.fetch.count = which == 1 ? 2 : 0;
    desc.backend = exec.backend = how ? NULL : f32_copies;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, &exec);
    CHECK_MSG(e && gckpt_step(e, &feed, 1, ROWS, &hyper, NULL) == GCKPT_OK, "%s %s",
              gckpt_error_text(g), gckpt_error_text(e));
    uint64_t hash = gckpt_store_hash(s);
    for (int i = 0; i < desc.fetch.count; i++) {
        const float *f = gckpt_fetch(e, gckpt_id(gain), i);
        for (int64_t j = 0; CHECK(f != NULL) && j < width; j++)
            hash = hash * 31 + bits_of(f[j]);
    }
    util_free(e, p, g, s);
    return hash;
}

/* A product of two parameters must be computed in f32, with the bits of an f32 plan. */
static void test_of_parameters(void)
{
    enum { N = 24 };
    float values[3][N * N], x[N * N];
    for (int i = 0; i < N * N; i++)
        x[i] = sinf((float)i);
    for (int i = 0; i < 3; i++) {
        const gckpt_init normal = { 1, 0, 0 };
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(N, N));
        gckpt_tensor *a = gckpt_param(g, "a", gckpt_shape2(N, N), normal);
        gckpt_tensor *w = gckpt_matmul(a, gckpt_param(g, "b", gckpt_shape2(N, N), normal));
        gckpt_term term = { gckpt_sum_loss(gckpt_linear(in, w, NULL)), 1, 0 };
        const gckpt_fetch_spec pick = { w, 0 };
        gckpt_plan_desc desc = {
            .bf16.precision = i ? GCKPT_BF16 : GCKPT_FP32, .fetch.specs = &pick, .fetch.count = 1,
            .kernels.plain = i == 2
        };
        gckpt_hyper still = gckpt_hyper_lr(0);
        const gckpt_feed feed = { gckpt_id(in), x };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        CHECK_MSG(e && gckpt_step(e, &feed, 1, N, &still, NULL) == GCKPT_OK, "%s",
                  gckpt_error_text(g));
        memcpy(values[i], gckpt_fetch(e, gckpt_id(w), 0), sizeof x);
        CHECK_MSG(!memcmp(values[i], values[0], sizeof x), "of parameters, case %d: not f32's", i);
        util_free(e, p, g, s);
    }
}

static gckpt_result as_input(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

static int drifts; /* number of calls of drift(): running it again gives other values */
static void drift(const gckpt_call *call)
{
    drifts++;
    for (int64_t i = 0; i < count_of(&call->shape); i++)
        call->out[i] = call->in[0].data[i] + (float)drifts;
}

/* Forward of a user-defined op with four values and three index inputs. Its GCKPT_INDEX flags are at positions where no
 * built-in op has an index. */
static void indexed(const gckpt_call *call)
{
    for (int64_t i = 0; i < count_of(&call->shape); i++) {
        const int32_t sum =
            call->in[4].index[i] + 2 * call->in[5].index[i] + 4 * call->in[6].index[i];
        call->out[i] = call->in[0].data[i] + call->in[1].data[i] + call->in[2].data[i] +
                       call->in[3].data[i] + (float)sum;
    }
}

static void pass_on(const gckpt_call *call)
{
    for (int k = 0; k < call->inputs; k++)
        for (int64_t i = 0; call->in[k].grad && i < count_of(&call->shape); i++)
            call->in[k].grad[i] =
                call->grad_out[i] + (call->in[k].accumulate ? call->in[k].grad[i] : 0);
}

static void test_ops_of_users(void)
{
    enum { ROWS = 16, N = 200 };
    static gckpt_op op[2];
    static int32_t index[3][ROWS * N];
    const gckpt_init one = { 0, 0, 1 };
    float x[ROWS];
    double want = 0;
    op[0].name = "drift", op[0].forward = drift, op[1].name = "indexed", op[1].forward = indexed;
    op[1].flags = GCKPT_INDEX(4) | GCKPT_INDEX(5) | GCKPT_INDEX(6);
    for (int i = 0; i < ROWS * N; i++) {
        index[0][i] = i % 4, index[1][i] = i / 7 % 4, index[2][i] = i / 2048 + i % 2;
        want += 4 + index[0][i] + 2 * index[1][i] + 4 * index[2][i];
    }
    for (int i = 0; i < ROWS; i++)
        x[i] = 1;
    for (int i = 0; i < 4; i++) { /* cases 2 and 3 use plain kernels */
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in[7];
        gckpt_feed feeds[4] = { { 0, x } };
        static const char *const names[3] = { "i", "j", "k" };
        gckpt_tensor *start = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 1)), *y;
        in[0] = gckpt_linear(start, gckpt_param(g, "w", gckpt_shape2(1, N), one), NULL);
        in[1] = in[2] = in[3] = in[0];
        for (int k = 0; k < 3; k++) {
            in[4 + k] = gckpt_input(g, names[k], GCKPT_I32, gckpt_shape2(ROWS, N));
            feeds[1 + k] = (gckpt_feed){ gckpt_id(in[4 + k]), index[k] };
        }
        feeds[0].input = gckpt_id(start);
        op[i % 2].shape = as_input, op[i % 2].backward = pass_on;
        y = gckpt_apply(&op[i % 2], in, i % 2 ? 7 : 1, NULL, 0);
        gckpt_term term = { gckpt_sum_loss(i % 2 ? y : gckpt_mul(y, y)), 1, 0 };
        gckpt_plan_desc desc = { .bf16.precision = GCKPT_BF16,
                                 .mode = GCKPT_MEMORY_POOR,
                                 .kernels.plain = i > 1 };
        gckpt_exec_desc how = { .debug = GCKPT_DEBUG_RECOMPUTE };
        gckpt_hyper still = gckpt_hyper_lr(0);
        gckpt_report report = { 0, 0, 0, 0 };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, &how);
        CHECK_MSG(e != NULL, "%s", gckpt_error_text(g));
        const gckpt_result result = gckpt_step(e, feeds, i % 2 ? 4 : 1, ROWS, &still, &report);
        if (i % 2)
            CHECK_MSG(result == GCKPT_OK && report.loss * (double)report.count == want,
                      "indices: %g, not %g: %s", report.loss * (double)report.count, want,
                      gckpt_error_text(e));
        else
            CHECK_MSG(result == GCKPT_E_DATA && strstr(gckpt_error_text(e), "recompute"),
                      "a forward that is not a function of its inputs: %s", gckpt_error_text(e));
        util_free(e, p, g, s);
    }
}

/* An op that works in strips must pass each strip the matching part of its i32 condition. Its results must have the
 * bits of the results with an f32 condition that chooses the same elements. */
static void test_integers(void)
{
    enum { ROWS = 4, N = 1000 };
    static int32_t integers[ROWS * N];
    static float floats[ROWS * N], x[ROWS * 3];
    for (int i = 0; i < ROWS * N; i++) {
        integers[i] = i * i % 7 < 3 ? INT32_MIN : 0;
        floats[i] = integers[i] != 0;
    }
    for (int i = 0; i < ROWS * 3; i++)
        x[i] = (float)(i % 5 - 2) / 3;
    uint64_t want = 0;
    for (int way = 0; way < 8; way++) { /* bits of `way`: 1: i32 condition; 2: desc.plain; 4: two micro-batches */
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        const int64_t rows = way / 4 ? ROWS / 2 : ROWS;
        gckpt_tensor *by = gckpt_input(g, "by", way % 2 ? GCKPT_I32 : GCKPT_F32, gckpt_shape2(rows, N));
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(rows, 3));
        gckpt_tensor *y = gckpt_linear(in, gckpt_param(g, "w", gckpt_shape2(3, N), (gckpt_init){ 1, 0, 0 }), NULL);
        y = gckpt_where(by, gckpt_tanh(y), gckpt_scale(y, 2));
        gckpt_term term = { gckpt_sum_loss(gckpt_mul(y, y)), 1, 0 };
        gckpt_plan_desc d = { .bf16.precision = GCKPT_BF16, .batch = ROWS, .kernels.plain = way / 2 % 2 };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        gckpt_feed feeds[2] = { { gckpt_id(by), floats }, { gckpt_id(in), x } };
        if (way % 2)
            feeds[0].data = integers;
        const gckpt_hyper hyper = { .lr = 0.01f };
        CHECK_MSG(e && gckpt_step(e, feeds, 2, ROWS, &hyper, NULL) == GCKPT_OK, "%s %s", gckpt_error_text(g),
                  gckpt_error_text(e));
        want = way ? want : gckpt_store_hash(s);
        CHECK_MSG(gckpt_store_hash(s) == want, "integers choose, way %d: other bits", way);
        util_free(e, p, g, s);
    }
}

/* A backward whose op reads f32 must get f32 copies of exactly those bf16 arrays that it reads and writes. */
static void test_copies(void)
{
    const int narrow = GCKPTI_ROUNDED | GCKPTI_BF16_VALUE | GCKPTI_BF16_GRADIENT;
    unsigned char rounding[3] = { (unsigned char)narrow, (unsigned char)narrow,
                                  (unsigned char)narrow };
    unsigned char active[3] = { 1, 0, 1 };
    gckpt_plan_desc desc = { .bf16.precision = GCKPT_BF16 };
    gckpt_op op = { .needs = { GCKPT_IN(1), GCKPT_OUT } };
    gckpt_tensor t[3];
    gckpti_planner p;
    size_t c[6];
    memset(&p, 0, sizeof p), memset(t, 0, sizeof t);
    p.desc = &desc, p.rounding = rounding, p.active = active;
    for (int i = 0; i < 3; i++)
        t[i].id = i, t[i].base = &t[i], t[i].shape = gckpt_shape1(64);
    t[2].op = &op, t[2].inputs = 2, t[2].in[0] = &t[0], t[2].in[1] = &t[1];
    CHECK(gckpti_place_copies(&p, &t[2], 1, c) == 3 * 64 * sizeof(float));
    CHECK(c[0] == SIZE_MAX && c[2] != SIZE_MAX && c[4] == SIZE_MAX);
    CHECK(c[1] != SIZE_MAX && c[3] == SIZE_MAX && c[5] != SIZE_MAX);
    active[0] = 0, active[1] = 1;
    gckpti_place_copies(&p, &t[2], 1, c);
    CHECK(c[0] == SIZE_MAX && c[2] == SIZE_MAX && c[4] != SIZE_MAX && c[3] != SIZE_MAX);
}

static void test_sums(void)
{
    for (int which = 0; which < 4; which++)
        for (int how = 1; how < 3; how++)
            CHECK_MSG(sums(how, which) == sums(0, which), "sums %d, way %d: other bits", which,
                      how);
}

static void test_fetched(void)
{
    for (int i = 0; i < 9; i++)
        CHECK_MSG(fetched(i / 3, 0) == fetched(i / 3, 1 + i % 3), "fetched, case %d: other bits",
                  i);
}


/* Arguments: "quick" runs only the golden hashes and a few parts, for emulators; "wide" runs all variants of the two
 * losses; any other argument runs the parts whose names begin with it. */
int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
        int quick;
    } parts[] = { { "conversions", test_conversions, 1 },
                  { "kernels by edges", test_edge, 1 },
                  { "kernels by terms", test_terms, 1 },
                  { "kernels by blocks", test_blocks, 1 },
#ifndef GCKPT_NO_QUANT
                  { "kernels of quantised weights", test_quantised, 1 },
#endif
                  { "kernels of products", test_products, 0 },
                  { "kernels of large results", test_large_results, 0 },
                  { "kernels in small scratch", test_little_space, 0 },
                  { "kernels of attention", test_attention_kernels, 0 },
                  { "kernels and masked keys", test_masked_keys, 0 },
                  { "kernels in their workspace", test_workspace, 0 },
                  { "rest", test_rest, 1 },
                  { "fetched", test_fetched, 1 },
                  { "written out", test_written_out, 1 },
                  { "bits", test_same_bits, 1 },
                  { "attention", test_attention, 0 },
                  { "entries", test_entries, 0 },
                  { "rows of entries", test_rows_of_entries, 0 },
                  { "fp32", test_close_to_fp32, 0 },
                  { "losses", test_two_losses, 0 },
                  { "users", test_two_users, 0 },
                  { "ops of losses", test_ops_of_losses, 0 },
                  { "strips", test_strips, 0 },
                  { "sums", test_sums, 0 },
                  { "parameters", test_of_parameters, 0 },
                  { "ops of users", test_ops_of_users, 0 },
                  { "integers", test_integers, 0 },
                  { "copies", test_copies, 0 } };
    const char *first = argc > 1 ? argv[1] : "";
    is_quick = !strcmp(first, "quick"), is_wide = !strcmp(first, "wide");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int asked = is_quick ? parts[i].quick : is_wide || argc < 2;
        for (int k = 1; k < argc; k++)
            asked |= !strncmp(parts[i].name, argv[k], strlen(argv[k]));
        if (asked)
            parts[i].run();
    }
    if (!gckpt_isa_available(GCKPT_ISA_AMX))
        printf("skipped: the AMX instructions, which this processor lacks; test_amx emulates them\n");
    return check_report("bf16");
}
