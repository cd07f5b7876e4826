/* test_pack.c - quantised parameters (gckpt_store_quantise): the value of each stored number, bytes, errors and
 * failing allocations. Training with quantised parameters has the bits of training with floats of equal value, in
 * every mode, budget and micro-batch; frozen weights take exactly the bytes and the cost that they need.
 *
 *     build/test_pack [first seed] [graphs] */
#include "num/num.h"
#include "store/store.h"
#include "graph/graph.h"
#include "ops/ops.h"
#include "cpu/internal.h"
#include "plan/plan.h"

#include <math.h>

#ifndef GCKPT_NO_DEVICES
#include "backend.h"
#endif
#include "examples/gradcheck.h"
#include "examples/model.h"
#include "net.h"

enum { STEPS = 2 };

/* ---- one value ---- */
/* Tests the conversion of every f16 number, and of floats between two neighbouring f16 numbers. */
static void test_f16(void)
{
    for (uint32_t h = 0; h < 0x8000; h++) {
        uint32_t e = h >> 10, m = h & 1023;
        float x = gckpti_from_f16((uint16_t)h), minus = gckpti_from_f16((uint16_t)(h | 0x8000));
        double unit = 5.9604644775390625e-8, want = e ? (1024.0 + m) * unit : m * unit;
        for (uint32_t k = 1; k < e; k++)
            want *= 2;
        if (e == 31) {
            uint32_t bits = m ? 0x7fc00000u : 0x7f800000u;
            CHECK(bits_of(x) == bits && bits_of(minus) == (m ? bits : bits | 0x80000000u));
            continue;
        }
        CHECK_MSG((double)x == want && bits_of(minus) == (bits_of(x) | 0x80000000u), "%x", h);
        CHECK(gckpti_to_f16(x) == h && gckpti_to_f16(minus) == (h | 0x8000));
        if (h == 0x7bff)
            continue;
        float middle = (x + gckpti_from_f16((uint16_t)(h + 1))) / 2; /* exact */
        CHECK(gckpti_to_f16(middle) == h + (h & 1));
        CHECK(gckpti_to_f16(float_of(bits_of(middle) + 1)) == h + 1);
        CHECK(gckpti_to_f16(float_of(bits_of(middle) - 1)) == h);
    }
    CHECK(gckpti_to_f16(float_of(0x7f812345u)) == 0x7e00 && gckpti_to_f16(1e-9f) == 0);
}

#if !defined(GCKPT_NO_FAST) && !defined(GCKPT_FORCE_SOFT_FMA) && defined(__GNUC__) && UINTPTR_MAX >= UINT64_MAX
/* Tests reading every f16 number, and blocks of int8 and int4 with many scales, at the positions at which vector kernels
 * read them: along rows and along columns. f16 numbers are also read from the second half of a 32-bit word. */
static void test_reading(void)
{
    enum { N = 65536, LONGEST = 100 }; /* rows of 96 elements, or 100 of int8, do not fill whole cache lines */
    static uint16_t all[N];
    static float want[N], got[N], a[LONGEST];
    for (int i = 0; i < N; i++)
        all[i] = (uint16_t)(i ^ i >> 8);
    for (int k = 0; k < LONGEST; k++)
        a[k] = 0.3f * (float)(k % 13) - 1.7f;
    for (int isa = GCKPT_ISA_C; isa < GCKPT_ISA_COUNT; isa++)
        for (int k = GCKPT_STORAGE_BF16; k <= GCKPT_STORAGE_I4 && gckpt_isa_available((gckpt_isa)isa); k++) {
            const int each = k == GCKPT_STORAGE_I8 ? LONGEST : 96, rows = N / each;
            const gckpt_dequantisation across = { (gckpt_storage)k, all, N, N, NULL };
            const gckpt_dequantisation down = { (gckpt_storage)k, all, each * rows, each, NULL };
            const gckpt_call call = { .kernels = gckpti_kernels_for((gckpt_isa)isa), .threads = 1 };
            const float one = 1;
            gckpti_product t = gckpti_product_of(1, N, 1, gckpti_matrix(&one, 1, 1), gckpti_matrix(NULL, 1, N), got);
            t.b.compressed = &across;
            gckpti_decompress(&across, 0, N, want);
            gckpti_fp32_fast(&call, &t);
            for (int i = 0; i < N; i++)
                CHECK_MSG(bits_of(got[i]) ==
                              (want[i] == want[i] ? bits_of(want[i] + 0.0f) : bits_of(want[i]) | 0x400000),
                          "%s, %s: %x", isa_name((gckpt_isa)isa), gckpti_kind_of(k)->name, i);
            t = gckpti_product_of(1, rows, each, gckpti_matrix(a, each, 1), gckpti_matrix(NULL, each, 1), got);
            t.b.compressed = &down;
            gckpti_decompress(&down, 0, each * rows, want);
            gckpti_fp32_fast(&call, &t);
            for (int j = 0; j < rows; j++) {
                float sum = 0;
                for (int p = 0; p < each; p++)
                    sum = gckpti_fma(a[p], want[j * each + p], sum);
                CHECK_MSG(bits_of(got[j]) == bits_of(sum) || (got[j] != got[j] && sum != sum), "%s, %s: row %d",
                          isa_name((gckpt_isa)isa), gckpti_kind_of(k)->name, j);
            }
        }
}
#else
static void test_reading(void) {}
#endif

/* ---- a store with one parameter, initialised and then quantised ---- */
static gckpt_store *store_of(gckpt_shape shape, const float *values, const gckpt_memory *memory)
{
    gckpt_store_desc desc = { .seed = 3 };
    gckpt_parameter p;
    if (memory)
        desc.memory = *memory;
    gckpt_store *s = gckpt_store_new(&desc);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "w", shape, (gckpt_init){ 0.02f, 0, 0 });
    gckpt_graph_free(g);
    gckpt_store_freeze(s, "w", 1);
    if (values && gckpt_store_get(s, 0, &p) == GCKPT_OK)
        memcpy(p.values, values, (size_t)p.elements * sizeof(float));
    return s;
}

/* Dequantises the parameter and returns its values as the ops read them. */
static float *floats_of(gckpt_store *s)
{
    gckpt_parameter p;
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_F32) == GCKPT_OK);
    CHECK(gckpt_store_get(s, 0, &p) == GCKPT_OK && p.frozen);
    return p.values;
}

static void test_values(void)
{
    /* a number of rows that is odd, and sizes larger than the number of values that are initialised at a time */
    enum { ROWS = 9, WIDTH = 165, BLOCKS = 6, N = ROWS * WIDTH }; /* the last block of a row has 5 values */
    static const size_t bytes[] = { 4 * N, 2 * N, 2 * N, N + 2 * ROWS * BLOCKS };
    static float x[N];
    CHECK(gckpti_kind_of(4)->bytes == 1 && !gckpti_kind_of(5));
    for (int i = 0; i < N; i++)
        x[i] = ((float)below(2001) - 1000) * (i / WIDTH == 3 ? 0 : i / WIDTH == 4 ? 1e-7f : 0.06f);
    x[5 * WIDTH] = -0.0f;
    for (int k = 0; k < 4; k++) {
        gckpt_storage storage = (gckpt_storage)k;
        gckpt_store *s = store_of(gckpt_shape3(3, 3, WIDTH), x, NULL);
        CHECK_MSG(gckpt_store_quantise(s, "*", storage) == GCKPT_OK, "%s", gckpt_error_text(s));
        CHECK(gckpt_store_bytes(s) == bytes[k]);
        gckpt_parameter p;
        CHECK(gckpt_store_peek(s, 0, &p) == GCKPT_OK && p.storage == storage && p.frozen);
        CHECK(!p.values == (k > 0) && !p.quantised == (k == 0));
        gckpt_store_freeze(s, "w", 0);
        CHECK(gckpt_store_peek(s, 0, &p) == GCKPT_OK && p.frozen == (k > 0));
        gckpt_store_freeze(s, "w", 1);
        uint64_t hash = gckpt_store_hash(s);
        const float *y = floats_of(s);
        CHECK(gckpt_store_hash(s) == hash && gckpt_store_bytes(s) == bytes[0]);
        for (int r = 0; r < ROWS * BLOCKS; r++) {
            float most = 0;
            const int begin = r / BLOCKS * WIDTH + r % BLOCKS * 32, end = r % BLOCKS == BLOCKS - 1 ? begin + 5 : begin + 32;
            for (int i = begin; i < end; i++)
                most = x[i] > most ? x[i] : -x[i] > most ? -x[i] : most;
            const float scale = gckpti_from_f16(gckpti_to_f16(most / 127));
            for (int i = begin; i < end; i++) {
                float want = x[i], off = y[i] - x[i];
                if (storage == GCKPT_STORAGE_BF16)
                    want = gckpt_from_bf16(gckpt_to_bf16(x[i]));
                if (storage == GCKPT_STORAGE_F16)
                    want = gckpti_from_f16(gckpti_to_f16(x[i]));
                if (k < 3)
                    CHECK(bits_of(y[i]) == bits_of(want));
                else /* the greatest values divided by a scale that was rounded down may be cut to 127 */
                    CHECK((off < 0 ? -off : off) <= (scale < 7e-5f ? 0.5f * most : 0.55f * scale));
            }
        }
        /* quantising again changes nothing */
        CHECK(gckpt_store_quantise(s, "w", storage) == GCKPT_OK && gckpt_store_hash(s) == hash);
        gckpt_store_free(s);
    }
    /* a parameter quantised before its initialisation gets the same bits as one quantised after it, hashed or not,
     * whichever call initialises it */
    for (int k = 1; k < 4; k++) {
        gckpt_parameter p;
        heap h = { 0 };
        gckpt_memory memory = heap_memory(&h);
        gckpt_store *s = store_of(gckpt_shape2(ROWS, WIDTH), NULL, &memory);
        gckpt_store *t = store_of(gckpt_shape2(ROWS, WIDTH), NULL, NULL);
        CHECK(gckpt_store_get(t, 0, &p) == GCKPT_OK);
        CHECK(gckpt_store_quantise(s, "w", (gckpt_storage)k) == GCKPT_OK);
        CHECK(gckpt_store_quantise(t, "w", (gckpt_storage)k) == GCKPT_OK);
        CHECK(gckpt_store_peek(s, 0, &p) == GCKPT_OK && !p.values && !p.quantised);
        CHECK(gckpt_store_bytes(s) == bytes[k] && gckpt_store_hash(s) == gckpt_store_hash(t));
        size_t live = h.live;
        h.peak = live;
        CHECK(gckpt_store_get(s, 0, &p) == GCKPT_OK && !p.values && p.quantised);
        CHECK_MSG(h.peak - live == bytes[k], "%lu bytes taken", (unsigned long)(h.peak - live));
        CHECK(gckpt_store_hash(s) == gckpt_store_hash(t));
        gckpt_store_free(s);
        gckpt_store_free(t);
        CHECK(h.live == 0 && h.wrong_sizes == 0);
    }
    /* a vector has no rows, so quantising it to I8 leaves it as it is, trainable or not */
    gckpt_store *s = store_of(gckpt_shape1(WIDTH), NULL, NULL);
    gckpt_parameter p;
    CHECK(gckpt_store_freeze(s, "w", 0) == GCKPT_OK);
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I8) == GCKPT_OK && gckpt_store_bytes(s) == 4 * WIDTH);
    CHECK(gckpt_store_peek(s, 0, &p) == GCKPT_OK && p.storage == GCKPT_STORAGE_F32 && !p.frozen);
    gckpt_store_free(s);
}

/* Tests that quantising keeps int8 blocks of which a value is 127 or -127 times the scale, as all blocks are that ggml
 * writes (Q8_0): their dequantised values become the same bytes again, for any scale that is not 0. Also tests the rule
 * for other blocks (manual, 5n). */
static void test_int8_blocks(void)
{
    enum { N = 4000, EACH = 34 };
    static unsigned char blocks[N * EACH], back[N * EACH];
    static float x[32 * N], y[32 * N];
    const gckpti_storage_kind *kind = gckpti_kind_of(GCKPT_STORAGE_I8);
    const gckpt_dequantisation u = { GCKPT_STORAGE_I8, blocks, 32 * N, 32 * N, NULL };
    for (int i = 0; i < N; i++) {
        unsigned char *b = blocks + EACH * i;
        const unsigned half = i < 40 ? 1 + (unsigned)i : 1 + below(0x7bff); /* subnormal to 65504 */
        b[0] = (unsigned char)half, b[1] = (unsigned char)(half >> 8);
        for (int k = 0; k < 32; k++)
            b[2 + k] = (unsigned char)(int)(below(255) - 127u);
        b[2 + below(32)] = i % 2 ? 127 : 129;
    }
    gckpti_decompress(&u, 0, 32 * N, x);
    for (int i = 0; i < N; i++)
        CHECK(kind->write(x + 32 * i, 32, back + EACH * i));
    CHECK(!memcmp(back, blocks, sizeof blocks));
    for (int i = 0; i < 32 * N; i++)
        x[i] = ((float)below(2000001) - 1e6f) * (i / 32 % 9 ? 3e-8f : 8e-13f * (float)(i / 288 % 9));
    for (int i = 0; i < N; i++)
        CHECK(kind->write(x + 32 * i, 32, blocks + EACH * i));
    gckpti_decompress(&u, 0, 32 * N, y);
    for (int i = 0; i < N; i++) {
        const unsigned char *b = blocks + EACH * i;
        float most = 0;
        for (int k = 0; k < 32; k++)
            most = fabsf(x[32 * i + k]) > most ? fabsf(x[32 * i + k]) : most;
        const uint16_t half = gckpti_to_f16(most / 127);
        const double scale = (double)gckpti_from_f16(half);
        CHECK(b[0] == (half & 255) && b[1] == half >> 8);
        for (int k = 0; k < 32; k++) {
            const double q = scale > 0 ? nearbyint((double)(x[32 * i + k] / (float)scale)) : 0;
            const int want = (int)(q < -127 ? -127 : q > 127 ? 127 : q);
            CHECK((signed char)b[2 + k] == want && bits_of(y[32 * i + k] + 0.0f) == bits_of((float)(want * scale) + 0.0f));
        }
    }
}

/* ---- blocks of I4 ---- */
enum { BLOCK = 32, BLOCK_BYTES = 19 };

/* Quantises a block by the rule of the manual (5n), written differently from the library: tries all candidates in
 * binary64, where everything is exact except the quotients and the differences, which the rule rounds, and takes one
 * without errors or else the best of the last six. */
static void block_by_rule(const float *x, unsigned char *to)
{
    static const float steps[21] = { 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 15, 15.5f, 16, 16.5f, 17, 18 };
    float least = 0, most = 0;
    double best = -1;
    for (int i = 0; i < BLOCK; i++) {
        least = fminf(least, x[i]);
        most = fmaxf(most, x[i]);
    }
    for (int k = 0; k < 21 && best != 0; k++) {
        if ((most - least) / steps[k] > 65504)
            continue;
        const uint16_t half = gckpti_to_f16((most - least) / steps[k]);
        const double scale = gckpti_from_f16(half);
        const float sixteenths = -least / (most - least) * fminf(16 * steps[k], 240);
        const int zero = scale == 0 ? 0 : (int)nearbyintf(sixteenths);
        double e[BLOCK], off = 0;
        int q[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            const float quotient = scale == 0 ? 0 : x[i] / (float)scale + (float)zero / 16;
            q[i] = (int)(quotient < 0 ? 0 : quotient > 15 ? 15 : nearbyintf(quotient));
            const double difference = (float)((double)x[i] - (16 * q[i] - zero) * scale / 16);
            e[i] = difference * difference;
            off += fabs(difference);
        }
        for (int n = BLOCK; n > 1; n /= 2)
            for (int i = 0; i < n / 2; i++)
                e[i] = e[i] + e[i + n / 2];
        if (k < 15 ? off != 0 : best >= 0 && !(e[0] < best))
            continue;
        best = e[0];
        to[0] = (unsigned char)(half & 255), to[1] = (unsigned char)(half >> 8), to[18] = (unsigned char)zero;
        for (int i = 0; i < 16; i++)
            to[2 + i] = (unsigned char)(q[i] | q[i + 16] << 4);
    }
}

static void test_blocks(void)
{
    enum { ROWS = 160, WIDTH = 96, N = ROWS * WIDTH, BYTES = N / BLOCK * BLOCK_BYTES };
    static float x[N], piece[N];
    static unsigned char want[BYTES];
    /* sums of squared errors: by the rule, and of ggml's Q4_0 */
    double squares[2] = { 0, 0 };
    for (int i = 0; i < N; i++) {
        const int kind = i / BLOCK % 12;
        const float u = ((float)below(2000001) - 1e6f) * 1e-6f, v = ((float)below(2000001) - 1e6f) * 1e-6f;
        x[i] = kind == 0   ? 0.0f * u
               : kind == 1 ? 1e-6f * u /* subnormal scales */
               : kind == 2 ? 3e-7f * u
               : kind == 3 ? 1e-40f * u
               : kind == 4 ? 524032 * (i % 5 ? u : 1)
               : kind == 5 ? (float)(below(16) - 8.0) * 0.25f /* halfway between two values */
               : kind == 6 ? (float)(below(3) - 1.0)
               : kind == 7 ? (float)(below(16) - 8.0) * 0.0010004044f
                           : 0.02f * u * v * (i / BLOCK % 2 ? u * v : 1);
    }
    for (int i = 0; i < N; i += BLOCK)
        block_by_rule(x + i, want + i / BLOCK * BLOCK_BYTES);
    gckpt_store *s = store_of(gckpt_shape3(4, ROWS / 4, WIDTH), x, NULL);
    gckpt_parameter p;
    CHECK_MSG(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_OK, "%s", gckpt_error_text(s));
    CHECK(gckpt_store_peek(s, 0, &p) == GCKPT_OK && p.storage == GCKPT_STORAGE_I4 && p.quantised && !p.values);
    CHECK(gckpt_store_bytes(s) == BYTES);
    for (int i = 0; i < BYTES / BLOCK_BYTES && p.quantised; i++)
        CHECK_MSG(!memcmp((const char *)p.quantised + i * BLOCK_BYTES, want + i * BLOCK_BYTES, BLOCK_BYTES),
                  "block %d, kind %d", i, i % 12);
    for (int at = 0; at < N; at += 1 + at % 7) { /* pieces of any length */
        const int n = 1 + (int)below(at + 70 < N ? 70 : (unsigned)(N - at));
        gckpti_decompress_at(&s->params[0], at, n, piece);
        for (int i = 0; i < n; i++) {
            const unsigned char *b = want + (at + i) / BLOCK * BLOCK_BYTES;
            const int k = (at + i) % BLOCK, half = k < 16 ? b[2 + k] & 15 : b[2 + k - 16] >> 4;
            CHECK(bits_of(piece[i]) == bits_of((float)(16 * half - b[18]) / 16 * gckpti_from_f16((uint16_t)(b[0] + 256 * b[1]))));
        }
    }
    for (int i = 0; i < N; i++) {
        float top = 0;
        for (int k = i / BLOCK * BLOCK; k < i / BLOCK * BLOCK + BLOCK; k++)
            top = fabsf(x[k]) > fabsf(top) ? x[k] : top;
        const float scale = gckpti_from_f16(gckpti_to_f16(top / -8));
        const float q = scale < 0 || scale > 0 ? nearbyintf(x[i] / scale) : 0, y = (q < -8  ? -8
                                                                                    : q > 7 ? 7
                                                                                            : q) *
                                                                                   scale;
        gckpti_decompress_at(&s->params[0], i, 1, piece);
        squares[0] += i / BLOCK % 12 > 7 ? ((double)x[i] - (double)piece[0]) * ((double)x[i] - (double)piece[0]) : 0;
        squares[1] += i / BLOCK % 12 > 7 ? ((double)x[i] - (double)y) * ((double)x[i] - (double)y) : 0;
    }
    CHECK_MSG(squares[0] < 0.75 * squares[1], "off by %g, ggml's rule by %g", squares[0], squares[1]);
    /* quantising again changes nothing */
    const uint64_t hash = gckpt_store_hash(s);
    floats_of(s);
    CHECK(gckpt_store_hash(s) == hash && gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_OK);
    CHECK(gckpt_store_peek(s, 0, &p) == GCKPT_OK && p.quantised);
    for (int i = 0; i < BYTES / BLOCK_BYTES && p.quantised; i++) /* except for subnormal scales */
        CHECK_MSG(!memcmp((const char *)p.quantised + i * BLOCK_BYTES, want + i * BLOCK_BYTES, BLOCK_BYTES) ||
                      (i % 12 > 0 && i % 12 < 4),
                  "again: block %d, kind %d", i, i % 12);
    /* A parameter is quantised to I8 and not then to I4, since I8 rounds 524032 up; then a new parameter is
     * quantised to I4 before its initialisation. */
    gckpt_store_free(s);
    s = store_of(gckpt_shape3(4, ROWS / 4, WIDTH), x, NULL);
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I8) == GCKPT_OK &&
          gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_E_DATA && s->params[0].p.storage == GCKPT_STORAGE_I8);
    gckpt_store_free(s);
    heap h = { 0 };
    gckpt_memory memory = heap_memory(&h);
    s = store_of(gckpt_shape2(ROWS, WIDTH), NULL, &memory);
    gckpt_store *t = store_of(gckpt_shape2(ROWS, WIDTH), NULL, NULL);
    CHECK(gckpt_store_get(t, 0, &p) == GCKPT_OK && gckpt_store_quantise(t, "w", GCKPT_STORAGE_I4) == GCKPT_OK);
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_OK && gckpt_store_bytes(s) == BYTES);
    CHECK(gckpt_store_peek(s, 0, &p) == GCKPT_OK && !p.quantised && gckpt_store_hash(s) == gckpt_store_hash(t));
    const size_t live = h.peak = h.live;
    CHECK(gckpt_store_get(s, 0, &p) == GCKPT_OK && !p.values && p.quantised && h.peak - live == BYTES);
    CHECK(gckpt_store_hash(s) == gckpt_store_hash(t));
    gckpt_store_free(s);
    gckpt_store_free(t);
    CHECK(h.live == 0 && h.wrong_sizes == 0);
    /* shapes without whole blocks */
    s = store_of(gckpt_shape2(32, 33), NULL, NULL);
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_OK && s->params[0].p.storage == GCKPT_STORAGE_I8);
    gckpt_store_free(s);
    s = store_of(gckpt_shape1(64), NULL, NULL);
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_OK && s->params[0].p.storage == GCKPT_STORAGE_F32);
    gckpt_store_free(s);
    /* with values of magnitude above 524032 no scale exists for the block */
    static const float large[] = { 524032, -524032, 524064, -524064, INFINITY, -INFINITY, NAN };
    for (int i = 0; i < 7; i++) {
        memset(x, 0, sizeof x);
        x[77] = large[i];
        s = store_of(gckpt_shape2(2, 64), x, NULL);
        const gckpt_result result = gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4);
        CHECK_MSG(i > 1 ? result == GCKPT_E_DATA && strstr(gckpt_error_text(s), "524032") : result == GCKPT_OK,
                  "%g: %s", (double)large[i], gckpt_error_text(s));
        CHECK(s->params[0].p.storage == (i > 1 ? GCKPT_STORAGE_F32 : GCKPT_STORAGE_I4));
        gckpt_store_free(s);
    }
    s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "large", gckpt_shape2(2, 32), (gckpt_init){ 1e5f, 0, 0 });
    gckpt_store_freeze(s, "*", 1);
    CHECK(gckpt_store_quantise(s, "*", GCKPT_STORAGE_I4) == GCKPT_E_DATA && strstr(gckpt_error_text(s), "\"large\""));
    gckpt_graph_free(g);
    /* external I4 blocks may be at any address */
    memset(x, 0, sizeof x);
    CHECK(gckpt_store_external_quantised(s, "w", gckpt_shape2(2, 33), GCKPT_STORAGE_I4, want) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "multiple of 32"));
    CHECK(gckpt_store_external_quantised(s, "w", gckpt_shape1(64), GCKPT_STORAGE_I8, want) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "\"w\": I8 and I4 need two axes"));
    float odd[4];
    const char *const at = (const char *)odd + 1; /* a misaligned address for 2-byte values */
    CHECK(gckpt_store_external_quantised(s, NULL, gckpt_shape2(2, 4), GCKPT_STORAGE_BF16, at) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "\"\": values are not aligned"));
    CHECK(gckpt_store_external_quantised(s, "w", gckpt_shape1(64), GCKPT_STORAGE_I4, want) == GCKPT_E_ARG);
    gckpt_shape many = gckpt_shape2(2, 64);
    many.n = INT32_MAX; /* the error must be found without reading further sizes */
    CHECK(gckpt_store_external_quantised(s, "w", many, GCKPT_STORAGE_I4, want) == GCKPT_E_SHAPE &&
          strstr(gckpt_error_text(s), "axes"));
    memmove(want + 1, want, BYTES - 1);
    CHECK(gckpt_store_external_quantised(s, "w", gckpt_shape2(2, 64), GCKPT_STORAGE_I4, want + 1) == GCKPT_OK);
    CHECK(s->params[1].p.quantised == want + 1 && s->params[1].p.frozen);
    gckpt_store_free(s);
}

/* ---- refused calls: each leaves the store unchanged ---- */
static void test_errors(void)
{
    static const struct { float x; gckpt_storage storage; gckpt_result result; const char *text; } tries[] = {
        { 65504, GCKPT_STORAGE_F16, GCKPT_OK, "" },
        { -65505, GCKPT_STORAGE_F16, GCKPT_E_DATA, "65504" },
        { INFINITY, GCKPT_STORAGE_F16, GCKPT_E_DATA, "\"w\"" },
        { NAN, GCKPT_STORAGE_F16, GCKPT_OK, "" },
        { INFINITY, GCKPT_STORAGE_BF16, GCKPT_OK, "" },
        { NAN, GCKPT_STORAGE_I8, GCKPT_E_DATA, "finite" },
        { -INFINITY, GCKPT_STORAGE_I8, GCKPT_E_DATA, "finite" },
        { -8319009, GCKPT_STORAGE_I8, GCKPT_E_DATA, "beyond 8319008" }, /* 127 * 65504 */
        { -8319008, GCKPT_STORAGE_I8, GCKPT_OK, "" },
        { 1, (gckpt_storage)5, GCKPT_E_ARG, "gckpt_storage" }
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        float x[64] = { 0, 1, 2, 3, 4 };
        x[33] = tries[i].x;
        gckpt_store *s = store_of(gckpt_shape2(2, 32), x, NULL);
        uint64_t hash = gckpt_store_hash(s);
        CHECK_MSG(gckpt_store_quantise(s, "w", tries[i].storage) == tries[i].result &&
                      (!tries[i].result || strstr(gckpt_error_text(s), tries[i].text)),
                  "%d: %s", (int)i, gckpt_error_text(s));
        if (tries[i].result)
            CHECK(gckpt_store_hash(s) == hash && gckpt_store_bytes(s) == 256 && s->params[0].p.values);
        gckpt_store_free(s);
    }
    gckpt_store *s = store_of(gckpt_shape2(2, 32), NULL, NULL);
    CHECK(gckpt_store_quantise(s, "v", GCKPT_STORAGE_I8) == GCKPT_E_ARG && strstr(gckpt_error_text(s), "\"v\""));
    CHECK(gckpt_store_quantise(NULL, "w", GCKPT_STORAGE_I8) == GCKPT_E_ARG);
    CHECK(gckpt_store_quantise(s, NULL, GCKPT_STORAGE_I8) == GCKPT_E_ARG);
    gckpt_store_freeze(s, "w", 0);
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_BF16) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "trainable"));
    /* if the initialisation would make values beyond the storage's range, quantising is refused before it */
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "large", gckpt_shape2(2, 32), (gckpt_init){ 1e4f, 0, 6000 });
    gckpt_store_freeze(s, "*", 1);
    CHECK(gckpt_store_quantise(s, "*", GCKPT_STORAGE_F16) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "\"large\""));
    CHECK(gckpt_store_bytes(s) == 512 && gckpt_store_quantise(s, "*", GCKPT_STORAGE_I8) == GCKPT_OK);
    CHECK(gckpt_store_bytes(s) == 4 * 34);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    /* external parameters */
    static const unsigned char bytes[68] = { 0x00, 0x38, 1, 129, 127, 128, 0, [34] = 0x00, 0xc0, 5, 250 }; /* 0.5, -2 */
    static const uint16_t halves[6] = { 0x3c00, 0x8001, 0x7c00, 0xffff, 0, 0x0400 };
    s = gckpt_store_new(NULL);
    gckpt_shape two = gckpt_shape2(2, 3), blocks = gckpt_shape2(2, 32);
    CHECK(gckpt_store_external_quantised(s, "w", two, GCKPT_STORAGE_F32, bytes) == GCKPT_E_ARG);
    CHECK(gckpt_store_external_quantised(s, "w", two, (gckpt_storage)9, bytes) == GCKPT_E_ARG);
    CHECK(gckpt_store_external_quantised(s, "w", two, GCKPT_STORAGE_I4, bytes) == GCKPT_E_ARG);
    CHECK(gckpt_store_external_quantised(s, "w", gckpt_shape1(6), GCKPT_STORAGE_I8, bytes) == GCKPT_E_ARG);
    CHECK(gckpt_store_external_quantised(s, "w", blocks, GCKPT_STORAGE_I8, NULL) == GCKPT_E_ARG);
    CHECK(gckpt_store_external_quantised(s, NULL, blocks, GCKPT_STORAGE_I8, bytes) == GCKPT_E_ARG);
    CHECK(gckpt_store_external_quantised(s, "w", gckpt_shape2(2, -3), GCKPT_STORAGE_I8, bytes) ==
          GCKPT_E_SHAPE);
    CHECK(gckpt_store_external_quantised(NULL, "w", blocks, GCKPT_STORAGE_I8, bytes) == GCKPT_E_ARG);
    CHECK(gckpt_store_external_quantised(s, "w", two, GCKPT_STORAGE_F16, (const char *)halves + 1) ==
              GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "aligned"));
    CHECK(gckpt_store_count(s) == 0);
    CHECK(gckpt_store_external_quantised(s, "w", blocks, GCKPT_STORAGE_I8, bytes) == GCKPT_OK);
    CHECK(gckpt_store_external_quantised(s, "w", blocks, GCKPT_STORAGE_I8, bytes) == GCKPT_E_ARG);
    CHECK(gckpt_store_external_quantised(s, "h", two, GCKPT_STORAGE_F16, halves) == GCKPT_OK);
    CHECK(gckpt_store_bytes(s) == 0 && gckpt_store_freeze(s, "*", 0) == GCKPT_OK);
    CHECK(s->params[0].p.frozen && s->params[1].p.frozen && s->params[0].p.quantised == bytes);
    const float *x = floats_of(s), want[64] = { 0.5f, -63.5f, 63.5f, -64, 0, [32] = -10, 12 };
    for (int i = 0; i < 64; i++)
        CHECK(bits_of(x[i] + 0.0f) == bits_of(want[i] + 0.0f));
    CHECK(gckpt_store_bytes(s) == 256);
    CHECK(gckpt_store_quantise(s, "h", GCKPT_STORAGE_F32) == GCKPT_OK && gckpt_store_bytes(s) == 256 + 24);
    static const uint32_t wide[6] = { 0x3f800000, 0xb3800000, 0x7f800000, 0x7fc00000, 0, 0x38800000 };
    CHECK(!memcmp(s->params[1].p.values, wide, sizeof wide));
    /* both parameters were dequantised into memory of the store, so they are no longer external */
    CHECK(gckpt_store_freeze(s, "*", 0) == GCKPT_OK && !s->params[0].p.frozen);
    gckpt_store_free(s);
}

/* Tests that quantising several parameters, initialised or not, external or not, quantises all of them or, if an
 * allocation fails, none. */
static void test_memory(void)
{
    static float outside[4 * 32];
    int worked = 0;
    for (long n = 1; !worked && n < 100; n++) {
        heap h = { 0 };
        gckpt_store_desc desc = { .memory = heap_memory(&h), .seed = 1 };
        gckpt_store *s = gckpt_store_new(&desc);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_store_external(s, "a", gckpt_shape2(4, 32), outside, (int)(n % 2));
        for (int i = 0; i < 3; i++)
            gckpt_param(g, i == 0 ? "b" : i == 1 ? "c" : "v", i < 2 ? gckpt_shape2(8, 64) : gckpt_shape1(9),
                        (gckpt_init){ 1, 0, 0 });
        gckpt_store_freeze(s, "*", 1);
        gckpt_parameter p;
        CHECK(gckpt_store_get(s, 1, &p) == GCKPT_OK && gckpt_store_get(s, 3, &p) == GCKPT_OK);
        for (int k = 0; k < 3; k++) {
            uint64_t hash = gckpt_store_hash(s);
            size_t bytes = gckpt_store_bytes(s), live = h.live;
            h.calls = 0;
            h.fail_at = n;
            gckpt_result result = gckpt_store_quantise(s, "*",
                                                       k == 0   ? GCKPT_STORAGE_I8
                                                       : k == 1 ? GCKPT_STORAGE_F16
                                                                : GCKPT_STORAGE_F32);
            worked = result == GCKPT_OK && h.calls < n;
            if (result != GCKPT_OK)
                CHECK_MSG(result == GCKPT_E_MEMORY && strstr(gckpt_error_text(s), "quantise:") && h.live == live &&
                              gckpt_store_bytes(s) == bytes && gckpt_store_hash(s) == hash,
                          "%s", gckpt_error_text(s));
        }
        gckpt_graph_free(g);
        gckpt_store_free(s);
        CHECK(h.live == 0 && h.wrong_sizes == 0);
    }
    CHECK(worked);
}

/* ---- training ---- */
/* Quantises a random part of the net's parameters in random storages, and freezes them. If floats is nonzero, stores
 * the dequantised values as floats instead. */
static void pack_net(unsigned seed, int floats)
{
    uint64_t saved = random_state;
    random_state = seed;
    for (int i = 1; i < net.params; i++) { /* p0 is trained */
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        if (!chance(60))
            continue;
        gckpt_storage storage = (gckpt_storage)(1 + below(4));
        gckpt_store_freeze(net.s, name, 1);
        gckpt_result result = gckpt_store_quantise(net.s, name, storage);
        /* gckpt_store_get initialises the parameter first; initialising it after the change to floats would give
         * other values */
        if (floats && result == GCKPT_OK) {
            gckpt_parameter p;
            gckpt_store_get(net.s, i, &p);
            result = gckpt_store_quantise(net.s, name, GCKPT_STORAGE_F32);
        }
        CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(net.s));
    }
    random_state = saved;
}

static gckpt_plan *plan(const gckpt_plan_desc *d, const char *what)
{
    gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, d);
    if (!CHECK_MSG(p != NULL, "%s: %s", what, gckpt_error_text(net.g)))
        return NULL;
    CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS) == gckpt_store_bytes(net.s));
    return p;
}

/* Trains for some steps and returns a hash of the store and the losses. */
static uint64_t train(const gckpt_plan *p, const char *what, const gckpt_backend *backend, int64_t stream)
{
    gckpt_exec_desc x = { .debug = GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE,
                          .backend = backend };
    gckpt_exec *e = gckpt_exec_new(p, net.s, &x);
    gckpt_hyper hyper = { .lr = 0.02f, .weight_decay = 0.1f };
    gckpt_report report = { 0, 0, 0, 0 };
    gckpt_result result = e ? GCKPT_OK : GCKPT_E_ARG;
    uint64_t hash = 0;
    for (int i = 0; i < STEPS && result == GCKPT_OK; i++) {
        result = util_step(e, net_feed, NULL, net.batch, stream, 0, &hyper, &report);
        hash = gckpti_fnv(hash, &report.loss, sizeof report.loss);
    }
    CHECK_MSG(result == GCKPT_OK && gckpt_bytes_measured(e) == gckpt_plan_bytes(p),
              "%s: %s %s: %lu bytes planned, %lu measured", what, gckpt_error_text(net.s), gckpt_error_text(e),
              (unsigned long)gckpt_plan_bytes(p), (unsigned long)gckpt_bytes_measured(e));
    gckpt_exec_free(e);
    return hash ^ gckpt_store_hash(net.s);
}

/* Tests that quantised weights and floats give the same bits in all modes, with all micro-batches and thread counts. */
static void test_modes(unsigned seed, gckpt_precision precision)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS,
                                        GCKPT_SQRT,      GCKPT_SCHEDULE,  GCKPT_OPTIMAL };
    static gckpt_instruction list[20000];
    uint64_t want = 0;
    char what[80];
    for (int k = 0; k < 7; k++) {
        int64_t rows = k == 2 ? 1 : k == 3 ? 2 : 0;
        build(seed, rows);
        gckpt_plan_desc d = { .mode = modes[k], .batch = net.batch, .schedule.instructions = list,
                              .bf16.precision = precision,
                              .threads = 1 + k % 3, .kernels.stage_parameters = k == 4, .kernels.plain = k == 5 };
        snprintf(what, sizeof what, "seed %u, mode %d, %d rows, precision %d", seed, (int)d.mode, (int)rows,
                 (int)precision);
        pack_net(seed, k == 0);
        if (d.mode == GCKPT_SCHEDULE)
            d.schedule.count = random_schedule(net.g, net.term, net.terms, list, 10000);
        gckpt_plan *p = plan(&d, what);
        int exact = p && (gckpt_plan_split_exact(p, NULL) || rows == 0);
        uint64_t hash = train(p, what, NULL, rows ? 0 : k == 6 && gckpt_plan_describe(p).batch > net.rows);
        want = k == 0 ? hash : want;
        CHECK_MSG(hash == want || !exact, "%s: other bits", what);
        gckpt_plan_free(p);
        destroy();
    }
}

/* Tests that plans with quantised weights respect their budgets, and that smaller budgets only cost more work. */
static void test_budgets(unsigned seed)
{
    char what[64];
    uint64_t want = 0;
    gckpt_point at[3] = { { 0, 0, 0, 0, 0 } };
    snprintf(what, sizeof what, "budgets of seed %u", seed);
    build(seed, 0);
    pack_net(seed, 0);
    gckpt_plan_desc d = { .batch = net.batch };
    gckpt_frontier *f = gckpt_frontier_new(net.g, net.term, net.terms, &d);
    int points = gckpt_frontier_describe(f).points;
    CHECK_MSG(points > 0, "%s: %s", what, gckpt_error_text(net.g));
    for (int i = 0; i < 3; i++)
        gckpt_frontier_get(f, i * (points - 1) / 2, &at[i]);
    gckpt_frontier_free(f);
    destroy();
    d.mode = GCKPT_OPTIMAL;
    for (int i = 0; i < 3; i++) {
        build(seed, 0);
        pack_net(seed, 0);
        d.budget = at[i].bytes;
        gckpt_plan *p = plan(&d, what);
        CHECK_MSG(p && gckpt_plan_bytes(p) <= d.budget && gckpt_plan_describe(p).cost <= at[i].cost, "%s", what);
        uint64_t hash = train(p, what, NULL, 0);
        want = i == 0 ? hash : want;
        CHECK_MSG(hash == want, "%s: other bits", what);
        gckpt_plan_free(p);
        destroy();
    }
}

/* Tests the gradients of trained parameters in a net with quantised weights, by finite differences. */
static void test_gradients(unsigned seed)
{
    gradcheck_result check;
    build(2 * seed, 0);
    pack_net(seed, 0);
    gckpt_plan_desc d = { .batch = net.batch };
    gckpt_feed feeds[NET_FEEDS];
    int n = net_feed(NULL, 0, feeds);
    gckpt_result result = gradcheck(net.s, net.term, net.terms, &d, feeds, n, net.batch, &check);
    CHECK_MSG(result == GCKPT_OK || result == GCKPT_UNRESOLVED, "seed %u: %s", seed, check.text);
    destroy();
}

/* Fetches the gradient of a quantised operand of a product. The backward for it reads only the other operand, which
 * is float. The bits must be those of a product of two float operands. */
static void test_fetched(gckpt_storage storage, int beside, int precision)
{
    enum { ROWS = 4, K = 40, N = 24, P = 3 };
    const gckpt_init normal = { 0.4f, 0, 0 };
    const gckpt_hyper hyper = { .lr = 0.01f };
    gckpt_parameter made;
    float in[ROWS * K], want[P * K] = { 0 };
    for (int i = 0; i < ROWS * K; i++)
        in[i] = (float)(i * 37 % 23 - 11) / 8;
    for (int packed = 0; packed < 2; packed++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, K));
        gckpt_tensor *a = gckpt_param(g, "a", gckpt_shape2(P, K), normal);
        gckpt_tensor *w = gckpt_param(g, "w", beside == 1 ? gckpt_shape2(N, K) : gckpt_shape2(K, N), normal);
        gckpt_tensor *y = beside == 1   ? gckpt_linear_transposed(a, w, NULL)
                          : beside == 2 ? gckpt_matmul(a, w)
                                        : gckpt_linear(a, w, NULL);
        gckpt_tensor *h = gckpt_linear(x, gckpt_param(g, "v", gckpt_shape2(K, N), normal), NULL);
        h = gckpt_mul(h, gckpt_mean(y, 0));
        const gckpt_term term = { gckpt_sum_loss(gckpt_mul(h, h)), 1, 0 };
        const gckpt_fetch_spec fetch = { a, 1 };
        CHECK(gckpt_store_freeze(s, "a", 1) == GCKPT_OK && gckpt_store_freeze(s, "w", 1) == GCKPT_OK);
        CHECK(gckpt_store_quantise(s, "a", storage) == GCKPT_OK);
        CHECK(gckpt_store_get(s, gckpt_store_find(s, "a"), &made) == GCKPT_OK);
        CHECK(packed || gckpt_store_quantise(s, "a", GCKPT_STORAGE_F32) == GCKPT_OK);
        gckpt_plan_desc d = { .fetch.specs = &fetch, .fetch.count = 1, .bf16.precision = (gckpt_precision)precision };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        const gckpt_feed feed = { gckpt_id(x), in };
        CHECK_MSG(e && gckpt_step(e, &feed, 1, ROWS, &hyper, NULL) == GCKPT_OK, "%s %s %s",
                  gckpt_error_text(g), gckpt_error_text(s), gckpt_error_text(e));
        const float *got = gckpt_fetch(e, gckpt_id(a), 1);
        if (got && !packed)
            memcpy(want, got, sizeof want);
        CHECK_MSG(got && !memcmp(got, want, sizeof want), "storage %d, op %d, precision %d: other bits",
                  (int)storage, beside, precision);
        util_free(e, p, g, s);
    }
}

#ifndef GCKPT_NO_DEVICES
/* A backend with separate memory. */
static void test_backend(unsigned seed)
{
    device d;
    gckpt_backend b;
    uint64_t want = 0;
    if (!device_start(&d, &b, "device", GCKPT_ISA_PLAIN))
        return;
    for (int k = 0; k < 4; k++) {
        build(seed, k == 2);
        pack_net(seed, k == 0);
        device_reset(&d);
        /* if the backend has no `dequantise`, the host dequantises and copies the floats to the device */
        b.dequantise = k == 3 ? NULL : device_unpack;
        gckpt_plan_desc desc = { .mode = k == 2 ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL, .batch = net.batch,
                                 .backend = k ? &b : NULL };
        gckpt_plan *p = plan(&desc, "device");
        int exact = gckpt_plan_split_exact(p, NULL) || k != 2;
        uint64_t hash = train(p, "device", desc.backend, 0);
        want = k == 0 ? hash : want;
        CHECK_MSG(hash == want || !exact, "device, seed %u, %d: other bits", seed, k);
        gckpt_plan_free(p);
        destroy();
    }
    device_end(&d);
}
#endif

/* ---- frozen weights take exactly the bytes and the cost that they need ---- */
enum { B = 2, TOKENS = 72, WIDE = 32, WORDS = 33, LOW = 1, HIGH = 2, RANK = 2 };

static gckpt_tensor *frozen(gckpt_graph *g, const char *name, int layer, int64_t rows, int64_t columns)
{
    char full[32];
    snprintf(full, sizeof full, "frozen.%s.%d", name, layer);
    return gckpt_param(g, full, columns ? gckpt_shape2(rows, columns) : gckpt_shape1(rows),
                       (gckpt_init){ columns ? 0.2f : 0, 0, columns == 0 });
}

typedef struct {
    /* x: the block's output; inner: the result of gelu; added: the first op that reads a trained tensor */
    gckpt_tensor *x, *inner, *added;
} block_parts;

/* Builds a GPT block. If trained is nonzero, one of its layers has trained low-rank matrices added. */
static block_parts gpt_block(gckpt_tensor *x, int layer, int trained)
{
    gckpt_graph *g = gckpt_graph_of(x);
    block_parts p = { NULL, NULL, NULL };
    gckpt_tensor *gain = frozen(g, "gain", layer, WIDE, 0), *bias = frozen(g, "bias", layer, WIDE, 0);
    gckpt_tensor *w = frozen(g, "qkv", layer, WIDE, 3 * WIDE), *b = frozen(g, "qkv_bias", layer, 3 * WIDE, 0);
    gckpt_tensor *h = gckpt_layernorm(x, gain, bias, 0), *a = gckpt_linear(h, w, b);
    if (trained) {
        char name[32];
        snprintf(name, sizeof name, "down.%d", layer);
        gckpt_tensor *down = gckpt_param(g, name, gckpt_shape2(WIDE, RANK), (gckpt_init){ 0.3f, 0, 0 });
        snprintf(name, sizeof name, "up.%d", layer);
        gckpt_tensor *up = gckpt_param(g, name, gckpt_shape2(RANK, 3 * WIDE), (gckpt_init){ 0.3f, 0, 0 });
        p.added = gckpt_linear(h, down, NULL);
        a = gckpt_add(a, gckpt_linear(p.added, up, NULL));
    }
    gckpt_tensor *q = gckpt_slice(a, -1, 0, WIDE), *k = gckpt_slice(a, -1, WIDE, 2 * WIDE);
    a = gckpt_attention(q, k, gckpt_slice(a, -1, 2 * WIDE, 3 * WIDE),
                        &(gckpt_attention_desc){ .heads = 2, .causal = 1 });
    x = gckpt_add(x, gckpt_linear(a, frozen(g, "out", layer, WIDE, WIDE), NULL));
    h = gckpt_rmsnorm(x, frozen(g, "gain2", layer, WIDE, 0), 0);
    w = frozen(g, "fc", layer, WIDE, 4 * WIDE);
    p.inner = gckpt_gelu(gckpt_linear(h, w, frozen(g, "fc_bias", layer, 4 * WIDE, 0)));
    w = frozen(g, "proj", layer, 4 * WIDE, WIDE);
    p.x = gckpt_add(x, gckpt_linear(p.inner, w, frozen(g, "proj_bias", layer, WIDE, 0)));
    return p;
}

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *tokens, *targets, *inner[8], *added;
    gckpt_term term;
} tower;

static tower tower_new(int low, int high, gckpt_storage storage)
{
    tower t = { .s = gckpt_store_new(NULL) };
    t.g = gckpt_graph_new(t.s, NULL);
    t.tokens = gckpt_input(t.g, "tokens", GCKPT_I32, gckpt_shape2(B, TOKENS));
    t.targets = gckpt_input(t.g, "targets", GCKPT_I32, gckpt_shape2(B, TOKENS));
    gckpt_tensor *table = frozen(t.g, "table", 0, WORDS, WIDE), *x = gckpt_embed(table, t.tokens);
    x = gckpt_positions(x, frozen(t.g, "positions", 0, TOKENS + 5, WIDE), 0);
    for (int i = 0; i < low + high; i++) {
        block_parts part = gpt_block(x, i, i >= low);
        x = part.x;
        t.inner[i] = part.inner;
        t.added = t.added ? t.added : part.added;
    }
    t.term.loss = gckpt_linear_cross_entropy(gckpt_layernorm(x, frozen(t.g, "gain", 9, WIDE, 0), NULL, 0), table,
                                             t.targets, NULL);
    t.term.weight = 1;
    CHECK(gckpt_store_freeze(t.s, "frozen.*", 1) == GCKPT_OK);
    CHECK_MSG(gckpt_store_quantise(t.s, "frozen.*", storage) == GCKPT_OK, "%s", gckpt_error_text(t.s));
    return t;
}

static gckpt_plan *tower_plan(const tower *t, const gckpt_plan_desc *d)
{
    gckpt_plan *p = gckpt_plan_new(t->g, &t->term, 1, d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(t->g));
    return p;
}

/* Returns the index of the last instruction that needs the value. */
static int last_use(const gckpt_plan *p, int id)
{
    gckpt_buffer b;
    for (int i = 0; gckpt_plan_buffer(p, i, &b) == GCKPT_OK; i++)
        if (b.id == id && b.kind == GCKPT_BUFFER_VALUE)
            return b.end;
    return -1;
}

static void test_frozen(gckpt_storage storage)
{
    enum { TRAINED = HIGH * (WIDE * RANK + RANK * 3 * WIDE) };
    tower t = tower_new(LOW, HIGH, storage);
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
    gckpt_plan *p = tower_plan(&t, &d);
    int backward = 0, updates = 0, length = gckpt_plan_describe(p).instructions;
    gckpt_instruction in = { GCKPT_FORWARD, 0 };
    gckpt_buffer b;
    CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE) == TRAINED * 2 * sizeof(float));
    CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS) == gckpt_store_bytes(t.s));
    for (int i = 0; gckpt_plan_get(p, i, &in) == GCKPT_OK; i++) {
        backward = !backward && in.kind == GCKPT_BACKWARD ? i : backward;
        updates += in.kind == GCKPT_UPDATE;
        CHECK_MSG(in.kind != GCKPT_BACKWARD || in.id >= gckpt_id(t.added), "a backward of %s, below trained tensors",
                  gckpt_plan_op(p, in.id));
    }
    CHECK(updates == 2 * HIGH && backward > 0);
    for (int i = 0; gckpt_plan_buffer(p, i, &b) == GCKPT_OK; i++) {
        const char *name = gckpt_plan_name(p, b.id);
        int below = b.id < gckpt_id(t.added),
            gradient = b.kind == GCKPT_BUFFER_GRADIENT || b.kind == GCKPT_BUFFER_PARAMETER_GRADIENT;
        CHECK_MSG(!gradient || strncmp(name, "frozen.", 7), "a gradient of %s", name);
        CHECK_MSG(!gradient || !below || p->nodes[b.id].kind == GCKPTI_PARAM, "a gradient of %s, below trained ones",
                  name);
        CHECK_MSG(!below || b.kind != GCKPT_BUFFER_SAVED, "%s keeps saved for no backward", name);
    }
    /* the input of a frozen linear layer is dropped after that layer's forward, before the first backward */
    for (int i = 0; i < LOW + HIGH; i++) {
        /* if gelu overwrites its input, the buffer of the tensor before it holds its result */
        int end = last_use(p, gckpt_id(t.inner[i]));
        end = end < 0 ? last_use(p, gckpt_id(t.inner[i]) - 1) : end;
        CHECK_MSG(end >= 0 && end < backward, "block %d: kept until %d", i, end);
    }
    /* a layer with only one gradient must cost one product in the backward */
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_plan_node *q = &p->nodes[i];
        if (q->op == &gckpti_op_linear && q->in[1] < (int)p->node_count && !p->params[p->nodes[q->in[1]].index].trained)
            CHECK(p->info[i].cost.backward <= p->info[i].cost.forward + p->info[i].cost.forward / 10);
    }
    size_t arena = gckpt_plan_describe(p).arena;
    gckpt_plan_free(p);
    util_free(NULL, NULL, t.g, t.s);
    /* further blocks below the lowest trained block must not enlarge the arena */
    t = tower_new(LOW + 3, HIGH, storage);
    p = tower_plan(&t, &d);
    const gckpt_plan_info p_info = gckpt_plan_describe(p);
    CHECK_MSG(p_info.arena == arena, "%lu bytes, %lu with more blocks below", (unsigned long)arena,
              (unsigned long)p_info.arena);
    CHECK(p_info.instructions > length);
    gckpt_plan_free(p);
    util_free(NULL, NULL, t.g, t.s);
}

/* ---- a plan is only valid for the storages that its parameters had when it was made ---- */
static void test_plans(void)
{
    tower t = tower_new(0, 1, GCKPT_STORAGE_I8), other = tower_new(0, 1, GCKPT_STORAGE_F32);
    int32_t tokens[B * TOKENS], targets[B * TOKENS];
    for (int i = 0; i < B * TOKENS; i++)
        tokens[i] = i * 7 % WORDS, targets[i] = i * 5 % WORDS;
    gckpt_feed feeds[2] = { { gckpt_id(t.tokens), tokens }, { gckpt_id(t.targets), targets } };
    const gckpt_hyper hyper = { .lr = 0.01f };
    gckpt_plan *p = tower_plan(&t, NULL), *q = tower_plan(&other, NULL);
    CHECK(gckpt_plan_describe(p).hash == gckpt_plan_describe(q).hash); /* the same graph */
    gckpt_exec *e = gckpt_exec_new(p, t.s, NULL), *none = gckpt_exec_new(q, t.s, NULL);
    CHECK_MSG(e && gckpt_step(e, feeds, 2, B, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(t.s));
    CHECK_MSG(!none && strstr(gckpt_error_text(t.s), "\"frozen.table.0\" is stored as I8, the plan was made for F32"),
              "%s", gckpt_error_text(t.s));
    CHECK(!gckpt_exec_new(p, other.s, NULL) && strstr(gckpt_error_text(other.s), "stored as F32"));
    /* quantising a parameter between steps: the executor of the old storage refuses to run, a new executor runs */
    CHECK(gckpt_store_quantise(t.s, "frozen.fc.0", GCKPT_STORAGE_BF16) == GCKPT_OK);
    uint64_t hash = gckpt_store_hash(t.s);
    CHECK(gckpt_step(e, feeds, 2, B, &hyper, NULL) == GCKPT_E_ARG && gckpt_store_hash(t.s) == hash);
    CHECK_MSG(strstr(gckpt_error_text(e), "\"frozen.fc.0\" is stored as BF16"), "%s", gckpt_error_text(e));
    gckpt_exec_free(e);
    CHECK(gckpt_store_quantise(t.s, "frozen.fc.0", GCKPT_STORAGE_I8) == GCKPT_OK);
    file f = { 0 };
    CHECK(gckpt_plan_c(p, "tower", file_write, &f) == GCKPT_OK &&
          strstr((const char *)f.bytes, "has quantised parameters"));
    /* a store whose parameters gckpt_plan_params creates has the same storages */
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK(gckpt_plan_params(p, s) == GCKPT_OK &&
          gckpt_store_bytes(s) == gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS));
    e = gckpt_exec_new(p, s, NULL);
    CHECK_MSG(e && gckpt_step(e, feeds, 2, B, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
    /* quantising a parameter within a step ends the step, which must read nothing more */
    hash = gckpt_store_hash(s);
    CHECK(gckpt_step_start(e, feeds, 2, B, &hyper) == GCKPT_OK && gckpt_run_some(e, 1, NULL) == GCKPT_MORE);
    CHECK(gckpt_store_quantise(s, "frozen.fc.0", GCKPT_STORAGE_F32) == GCKPT_OK);
    CHECK(gckpt_run_some(e, 1, NULL) == GCKPT_E_ARG && strstr(gckpt_error_text(e), "storage of parameters changed"));
    CHECK(gckpt_run_some(e, 1, NULL) == GCKPT_E_ARG && strstr(gckpt_error_text(e), "no step was started"));
    CHECK(gckpt_store_hash(s) == hash && gckpt_store_step(s) == 1);
    free(f.bytes);
    gckpt_plan_free(q);
    util_free(e, NULL, NULL, s);
    util_free(NULL, NULL, other.g, other.s);
    util_free(NULL, p, t.g, t.s);
}

/* Tests a parameter that is quantised and dequantised between steps: it fits the plan again, but its optimiser state is
 * gone. If the optimiser has state, the executor refuses the next step, and a new executor begins with new state. */
static void test_state_lost(void)
{
    for (int optimiser = GCKPT_ADAMW; optimiser <= GCKPT_MOMENTUM; optimiser++) {
        tower t = tower_new(0, 1, GCKPT_STORAGE_F32);
        int32_t tokens[B * TOKENS], targets[B * TOKENS];
        for (int i = 0; i < B * TOKENS; i++)
            tokens[i] = i * 7 % WORDS, targets[i] = i * 5 % WORDS;
        gckpt_feed feeds[2] = { { gckpt_id(t.tokens), tokens }, { gckpt_id(t.targets), targets } };
        const gckpt_hyper hyper = { .lr = 0.01f };
        const gckpt_plan_desc d = { .optimiser = (gckpt_optimiser)optimiser };
        const int has_state = optimiser != GCKPT_SGD;
        gckpt_plan *p = tower_plan(&t, &d);
        gckpt_exec *e = gckpt_exec_new(p, t.s, NULL);
        CHECK_MSG(e && gckpt_step(e, feeds, 2, B, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(t.s));
        const size_t bytes = gckpt_store_bytes(t.s);
        CHECK(gckpt_store_freeze(t.s, "down.*", 1) == GCKPT_OK &&
              gckpt_store_quantise(t.s, "down.*", GCKPT_STORAGE_BF16) == GCKPT_OK &&
              gckpt_store_quantise(t.s, "down.*", GCKPT_STORAGE_F32) == GCKPT_OK &&
              gckpt_store_freeze(t.s, "down.*", 0) == GCKPT_OK);
        CHECK((gckpt_store_bytes(t.s) < bytes) == has_state);
        const uint64_t hash = gckpt_store_hash(t.s);
        CHECK_MSG(gckpt_step(e, feeds, 2, B, &hyper, NULL) == (has_state ? GCKPT_E_ARG : GCKPT_OK), "optimiser %d: %s",
                  optimiser, gckpt_error_text(e));
        if (has_state) {
            CHECK_MSG(strstr(gckpt_error_text(e), "\"down.0\"") && strstr(gckpt_error_text(e), "make a new executor"),
                      "%s", gckpt_error_text(e));
            CHECK(gckpt_store_hash(t.s) == hash && gckpt_store_step(t.s) == 1);
        }
        gckpt_exec_free(e);
        e = gckpt_exec_new(p, t.s, NULL);
        CHECK(gckpt_store_bytes(t.s) == bytes);
        CHECK_MSG(e && gckpt_step(e, feeds, 2, B, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
        util_free(e, p, t.g, t.s);
    }
}

#ifndef GCKPT_NO_DEVICES
/* Tests that quantising a parameter removes its optimiser state and the device's copy of it. */
static void test_device(void)
{
    device d;
    gckpt_backend b;
    if (!device_start(&d, &b, "device", GCKPT_ISA_PLAIN))
        return;
    static const float data[64] = { 1, -2, 0.5f };
    const gckpt_hyper hyper = { .lr = 0.1f };
    uint64_t hash[2];
    for (int k = 0; k < 2; k++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 32)), *y = x;
        gckpt_exec *e[2];
        gckpt_plan *p[2];
        for (int i = 0; i < 2; i++)
            y = gckpt_tanh(
                gckpt_linear(y, gckpt_param(g, i ? "w1" : "w0", gckpt_shape2(32, 32), (gckpt_init){ 0.1f, 0, 0 }), NULL));
        gckpt_term term = { gckpt_sum_loss(y), 1, 0 };
        gckpt_feed feed = { gckpt_id(x), data };
        gckpt_plan_desc plan_desc = { .backend = k ? &b : NULL };
        gckpt_exec_desc exec_desc = { .backend = k ? &b : NULL };
        for (int packed = 0; packed < 2; packed++) {
            if (packed) {
                CHECK(gckpt_store_freeze(s, "w0", 1) == GCKPT_OK && gckpt_store_bytes(s) == 3 * 2 * 4096);
                CHECK(gckpt_store_quantise(s, "w0", GCKPT_STORAGE_I8) == GCKPT_OK);
                CHECK(gckpt_store_bytes(s) == 32 * 34 + 3 * 4096);
                CHECK(gckpt_step(e[0], &feed, 1, 2, &hyper, NULL) == GCKPT_E_ARG);
            }
            p[packed] = gckpt_plan_new(g, &term, 1, &plan_desc);
            e[packed] = gckpt_exec_new(p[packed], s, &exec_desc);
            CHECK_MSG(e[packed] && gckpt_step(e[packed], &feed, 1, 2, &hyper, NULL) == GCKPT_OK, "%s",
                      gckpt_error_text(s));
        }
        hash[k] = gckpt_store_hash(s);
        gckpt_exec_free(e[1]);
        gckpt_plan_free(p[1]);
        util_free(e[0], p[0], g, s);
    }
    CHECK(hash[0] == hash[1]);
    device_end(&d);
}
#endif

/* Tests plans for a small budget: quantised weights are read in place; with staging, the tied table is dropped between
 * its uses, and so dequantised at least twice. */
static void test_few_bytes(void)
{
    tower t = tower_new(2, 2, GCKPT_STORAGE_I8);
    gckpt_plan_desc d = { .mode = GCKPT_OPTIMAL };
    size_t least[2];
    int table = gckpt_id(gckpt_param(t.g, "frozen.table.0", gckpt_shape2(WORDS, WIDE), (gckpt_init){ 0, 0, 0 }));
    for (int k = 0; k < 2; k++) {
        int times = 0;
        d.kernels.stage_parameters = k;
        d.budget = 1;
        CHECK(!gckpt_plan_new(t.g, &t.term, 1, &d) && gckpt_error(t.g) == GCKPT_E_BUDGET);
        d.budget = least[k] = util_least_budget(t.g);
        gckpt_plan *few = tower_plan(&t, &d);
        for (size_t x = 0; few && x < few->length; x++)
            times += few->ins[x].kind == GCKPT_FORWARD && few->ins[x].id == table;
        CHECK_MSG(k ? times >= 2 : times == 0, "the table came %d times", times);
        gckpt_plan_free(few);
    }
    CHECK_MSG(least[0] <= least[1], "%lu bytes, staged %lu", (unsigned long)least[0],
              (unsigned long)least[1]);
    util_free(NULL, NULL, t.g, t.s);
}

/* ---- plans for GPT-2 with 1.5 billion weights stored as int8, with low-rank matrices, within 3.1 * 10^9 bytes ---- */
static gckpt_tensor *low_rank(void *user, const model_site *at, const char *module, gckpt_tensor *x, gckpt_tensor *w,
                              gckpt_tensor *bias)
{
    const gckpt_shape shape = gckpt_shape_of(w);
    const gckpt_init init = { 0.02f, 0, 0 };
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *y = gckpt_linear(x, w, bias), *a;
    char name[MODEL_NAME + 8];
    (void)user, (void)at;
    if (!strstr(module, "c_attn"))
        return y;
    snprintf(name, sizeof name, "%s.A", module);
    a = gckpt_param(g, name, gckpt_shape2(8, shape.d[0]), init);
    snprintf(name, sizeof name, "%s.B", module);
    a = gckpt_linear_transposed(gckpt_linear_transposed(x, a, NULL),
                                gckpt_param(g, name, gckpt_shape2(shape.d[1], 8), init), NULL);
    return gckpt_add(y, a);
}

static void test_large(void)
{
    enum { LAYERS = 48, C = 1600, VOCABULARY = 50257, CONTEXT = 512, WPE = 1024 };
    const uint64_t matrices = (uint64_t)LAYERS * 12 * C * C + (uint64_t)(VOCABULARY + WPE) * C;
    const uint64_t vectors = LAYERS * (2 + 3 + 1 + 2 + 4 + 1) * C + 2 * C;
    const uint64_t trained = LAYERS * 8 * (C + 3 * C), bytes = matrices / 32 * 34 + 4 * (vectors + trained);
    if (sizeof(size_t) < 8)
        return;
    model_any m;
    model_hooks hooks = { .linear = low_rank };
    model_options how = { .hooks = &hooks };
    gckpt_store *s = gckpt_store_new(NULL);
    gpt2_new(&m, LAYERS, 25, C, WPE, VOCABULARY);
    CHECK(model_declare(&m, s) == 0 && gckpt_store_freeze(s, "*", 1) == GCKPT_OK);
    CHECK(gckpt_store_quantise(s, "*", GCKPT_STORAGE_I8) == GCKPT_OK);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, CONTEXT));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(1, CONTEXT));
    gckpt_term term = { model_loss(&m, model_hidden(&m, tokens, &how), targets), 1, 0 };
    gckpt_tensor *table = gckpt_param(g, "wte.weight", gckpt_shape2(VOCABULARY, C), (gckpt_init){ 0, 0, 0 });
    CHECK_MSG(gckpt_store_bytes(s) == bytes, "%lu bytes stored, not %lu", (unsigned long)gckpt_store_bytes(s),
              (unsigned long)bytes);
    for (int k = 0; k < 2; k++) {
        gckpt_plan_desc d = { .budget = (size_t)(k ? 2000000000u : 3100000000u) };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        int times = 0;
        if (!CHECK_MSG(p && gckpt_plan_bytes(p) <= d.budget, "%s", gckpt_error_text(g)))
            break;
        for (size_t x = 0; x < p->length; x++)
            times += p->ins[x].kind == GCKPT_FORWARD && p->ins[x].id == gckpt_id(table);
        CHECK(gckpt_plan_kind_bytes(p, GCKPT_BYTES_PARAMETERS) == bytes &&
              gckpt_plan_kind_bytes(p, GCKPT_BYTES_STATE) == 8 * trained);
        CHECK_MSG(times == 0, "%lu bytes: the table comes %d times", (unsigned long)d.budget, times);
        CHECK_MSG(info.overhead < (k ? 0.3 : 0.05), "%lu bytes cost %g", (unsigned long)d.budget,
                  info.overhead);
        gckpt_plan_free(p);
    }
    util_free(NULL, NULL, g, s);
}

/* Creates, quantises, trains and frees a store while allocation number n fails, for each n. */
static void test_allocations(void)
{
    int worked = 0;
    for (long n = 1; !worked && n < 2000; n++) {
        heap h = { .fail_at = n };
        gckpt_store_desc desc = { .memory = heap_memory(&h) };
        gckpt_exec_desc how = { .memory = heap_memory(&h) };
        gckpt_store *s = gckpt_store_new(&desc);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 32)), *y = x;
        for (int i = 0; i < 4; i++) {
            char name[] = "w0";
            name[1] = (char)('0' + i);
            y = gckpt_tanh(gckpt_linear(y, gckpt_param(g, name, gckpt_shape2(32, 32), (gckpt_init){ 0.1f, 0, 0 }), NULL));
        }
        gckpt_store_freeze(s, "w1", 1);
        gckpt_store_freeze(s, "w3", 1);
        gckpt_term term = { gckpt_sum_loss(y), 1, 0 };
        static const float data[64] = { 1, -2, 0.5f };
        const gckpt_hyper hyper = { .lr = 0.1f };
        gckpt_feed feed = { gckpt_id(x), data };
        gckpt_plan *p = NULL;
        gckpt_exec *e = NULL;
        if (gckpt_store_quantise(s, "w1", GCKPT_STORAGE_I8) == GCKPT_OK &&
            gckpt_store_quantise(s, "w3", GCKPT_STORAGE_F16) == GCKPT_OK)
            p = gckpt_plan_new(g, &term, 1, NULL);
        size_t before = gckpt_store_bytes(s), live = h.live;
        e = p ? gckpt_exec_new(p, s, &how) : NULL;
        if (p && !e)
            CHECK_MSG(gckpt_store_bytes(s) == before && h.live == live && gckpt_error(s) == GCKPT_E_MEMORY, "%s",
                      gckpt_error_text(s));
        worked = e && gckpt_step(e, &feed, 1, 2, &hyper, NULL) == GCKPT_OK && h.calls < n;
        CHECK(!e || s->params[1].p.quantised);
        util_free(e, p, g, s);
        CHECK(h.live == 0 && h.wrong_sizes == 0);
    }
    CHECK(worked);
}

/* ---- inference reads quantised weights in place: the bits are those of a plan that stages all of them as floats
 * ---- */
enum { READERS = 5 };
typedef struct { int64_t m, n, k; } sizes;

static gckpt_graph *readers(gckpt_store *s, sizes z, int64_t rows, gckpt_fetch_spec *fetch)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(rows, z.m, z.k));
    gckpt_tensor *i = gckpt_input(g, "i", GCKPT_I32, gckpt_shape2(rows, z.m));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(z.k, z.n), (gckpt_init){ 0, 0, 0 });
    gckpt_tensor *v = gckpt_param(g, "v", gckpt_shape2(z.n, z.k), (gckpt_init){ 0, 0, 0 });
    gckpt_tensor *bias = gckpt_param(g, "bias", gckpt_shape1(z.n), (gckpt_init){ 0, 0, 0.5f });
    gckpt_tensor *const made[READERS] = { gckpt_linear(x, w, bias), gckpt_linear_transposed(x, v, NULL),
                                          gckpt_matmul_transposed(x, v), gckpt_embed(v, i), gckpt_positions(x, v, 0) };
    for (int k = 0; k < READERS; k++)
        fetch[k] = (gckpt_fetch_spec){ made[k], 0 };
    return g;
}

/* Runs all ops that read quantised weights. Returns a hash of their results. */
static uint64_t read_all(gckpt_store *s, sizes z, gckpt_plan_desc d, gckpt_exec_desc x, const float *in,
                         const int32_t *index, size_t *arena, const char *what)
{
    gckpt_fetch_spec fetch[READERS];
    gckpt_graph *g = readers(s, z, 1, fetch);
    uint64_t hash = 0;
    d.mode = GCKPT_INFERENCE, d.fetch.specs = fetch, d.fetch.count = READERS;
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
    CHECK_MSG(p != NULL, "%s: %s", what, gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, &x);
    gckpt_feed feeds[2] = { { 0, in }, { 1, index } };
    CHECK_MSG(e && gckpt_forward(e, feeds, 2, 1, NULL) == GCKPT_OK, "%s: %s %s", what, gckpt_error_text(g),
              gckpt_error_text(s));
    *arena = gckpt_plan_describe(p).arena;
    for (int k = 0; e && k < READERS; k++)
        hash = gckpti_hash_floats(hash, gckpt_fetch(e, gckpt_id(fetch[k].tensor), 0), z.m * (k > 2 ? z.k : z.n));
    CHECK(!e || !(x.debug & GCKPT_DEBUG_MEASURE) || gckpt_bytes_measured(e) == gckpt_plan_bytes(p));
    util_free(e, p, g, NULL);
    return hash;
}

static void test_reads(gckpt_storage storage)
{
    static const sizes fours[] = { { 1, 128, 64 }, { 1, 160, 32 }, { 1, 32, 96 },   { 1, 2144, 96 },
                                   { 3, 96, 160 }, { 2, 64, 32 },  { 37, 224, 128 } };
    static const sizes others[] = { { 1, 131, 67 },  { 1, 100, 64 },  { 1, 1, 48 }, { 1, 33, 1 },
                                 { 1, 2100, 80 }, { 3, 131, 67 }, { 2, 64, 16 }, { 37, 200, 130 } };
    static float in[37 * 130];
    static int32_t index[37];
    const int each = storage == GCKPT_STORAGE_I8 ? 34 : 19, blocks = storage >= GCKPT_STORAGE_I8; /* bytes of a block */
    for (size_t t = 0; t < (blocks ? sizeof fours : sizeof others) / sizeof(sizes); t++) {
        const sizes z = blocks ? fours[t] : others[t];
        const int64_t count = z.n * z.k;
        unsigned char *bytes = (unsigned char *)malloc((size_t)(4 * count + 8 * (z.n + z.k)));
        gckpt_store *s = gckpt_store_new(NULL);
        size_t arena, staged;
        char what[96];
        for (int64_t i = 0; i < 4 * count + 1; i++)
            bytes[i] = (unsigned char)below(256); /* f16 values include NaN, infinities and subnormals */
        for (int64_t i = 0; i < 2 * count && t % 2 && !blocks; i++)
            bytes[2 * i + 1] &= 0xbf;
        for (int64_t i = 0; i < 4 * count / each && blocks && t % 2; i++)
            bytes[each * i + 1] &= 0xbf;
        for (int64_t i = 0; i < z.m * z.k; i++)
            in[i] = ((float)below(2001) - 1000) / 700;
        for (int64_t i = 0; i < z.m; i++)
            index[i] = (int32_t)below((unsigned)z.n);
        /* the bytes of the second parameter, v, do not begin where those of w do */
        CHECK(gckpt_store_external_quantised(s, "w", gckpt_shape2(z.k, z.n), storage, bytes) == GCKPT_OK);
        CHECK(gckpt_store_external_quantised(s, "v", gckpt_shape2(z.n, z.k), storage,
                                             bytes + (blocks ? each * (int64_t)t : 2 * (count + (int64_t)t % 3))) == GCKPT_OK);
        gckpt_plan_desc d = { .threads = 1, .kernels.stage_parameters = 1 };
        gckpt_exec_desc x = { .isa = GCKPT_ISA_PLAIN };
        const uint64_t want = read_all(s, z, d, x, in, index, &staged, "staged");
        d.kernels.stage_parameters = 0;
        for (int isa = 0; isa < GCKPT_ISA_COUNT; isa++)
            for (int threads = 1; threads < 4; threads++) {
                d.threads = threads;
                x = (gckpt_exec_desc){ .isa = (gckpt_isa)isa,
                                       .debug = threads == 1 ? GCKPT_DEBUG_MEASURE : GCKPT_DEBUG_POISON,
                                       .parallel_for = threads == 3 ? any_order : NULL };
                snprintf(what, sizeof what, "%s, %d threads, %s: (%d,%d,%d)", isa_name((gckpt_isa)isa), threads,
                         gckpti_kind_of((int)storage)->name, (int)z.m, (int)z.n, (int)z.k);
                if (gckpt_isa_available((gckpt_isa)isa))
                    CHECK_MSG(read_all(s, z, d, x, in, index, &arena, what) == want, "%s", what);
                CHECK_MSG(arena + 4 * (size_t)count <= staged, "%s: %lu bytes, staged %lu", what, (unsigned long)arena,
                          (unsigned long)staged);
            }
        gckpt_store_free(s);
        free(bytes);
    }
}

/* Tests GCKPT_DEBUG_FINITE with weights that are read in place: they may be infinite, and may make further
 * infinities, but a NaN is reported. */
static void test_finite(void)
{
    static const uint16_t odd[2] = { 0x7f80, 0x7fc0 };
    for (int i = 0; i < 4; i++) {
        uint16_t halves[3 * 2] = { 0x3f80, 0x3f80, 0x3f80, 0x3f80, odd[i & 1], 0x3f80 };
        const float in[3] = { 1, 1, 1 };
        gckpt_store *s = gckpt_store_new(NULL);
        CHECK(gckpt_store_external_quantised(s, "w", gckpt_shape2(3, 2), GCKPT_STORAGE_BF16, halves) == GCKPT_OK);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 3));
        const gckpt_fetch_spec fetch = {
            gckpt_linear(x, gckpt_param(g, "w", gckpt_shape2(3, 2), (gckpt_init){ 0, 0, 0 }), NULL), 0
        };
        gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1,
                              .kernels.stage_parameters = i / 2 };
        gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
        gckpt_exec *e = gckpt_exec_new(p, s, &(gckpt_exec_desc){ .debug = GCKPT_DEBUG_FINITE });
        const gckpt_feed feed = { gckpt_id(x), in };
        const gckpt_result result = gckpt_forward(e, &feed, 1, 1, NULL);
        CHECK_MSG(result == (i & 1 ? GCKPT_E_DATA : GCKPT_OK), "finite %d: %s", i, gckpt_error_text(e));
        CHECK_MSG(!(i & 1) || strstr(gckpt_error_text(e), "\"w\" is nan"), "finite %d: %s", i, gckpt_error_text(e));
        util_free(e, p, g, s);
    }
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : check_seed();
    unsigned graphs = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)check_iterations(12);
    test_f16();
    test_reading();
    test_values();
    test_int8_blocks();
    test_blocks();
    test_errors();
    test_memory();
    test_frozen(GCKPT_STORAGE_F32);
    test_frozen(GCKPT_STORAGE_I8);
    test_frozen(GCKPT_STORAGE_I4);
    test_plans();
    test_state_lost();
#ifndef GCKPT_NO_DEVICES
    test_device();
#endif
    test_few_bytes();
    test_large();
    test_allocations();
    for (int k = GCKPT_STORAGE_BF16; k <= GCKPT_STORAGE_I4; k++)
        test_reads((gckpt_storage)k);
    for (int k = GCKPT_STORAGE_BF16; k <= GCKPT_STORAGE_I4; k++)
        for (int i = 0; i < 6; i++)
            test_fetched((gckpt_storage)k, i / 2, i % 2);
    test_finite();
    for (unsigned seed = first; seed < first + graphs; seed++) {
        random_state = seed;
        net_fill();
        test_modes(seed, seed % 3 ? GCKPT_FP32 : GCKPT_BF16);
        test_budgets(seed);
#ifndef GCKPT_NO_DEVICES
        test_backend(seed);
#endif
        test_gradients(seed);
    }
    return check_report("test_pack");
}
