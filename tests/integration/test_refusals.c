/* test_refusals.c - everything that the library must refuse: shapes, arguments, feeds, arenas, streaming.
 * Each refusal is tested by its result and a part of its error text, and must change nothing. */
#include "base/base.h"
#include "graph/graph.h"
#include "attention/attention.h"
#include "axes/axes.h"
#include "ops/internal.h"
#include "plan/plan.h"
#include "base/test_hooks.h"

#include <math.h>
#include <stdlib.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "examples/print.h"
#include "util.h"

static const char *assert_failed; /* the last assertion that failed */
static void note_failed(const char *text, const char *where, int line)
{
    (void)where, (void)line;
    assert_failed = text;
}

static float numbers[4096];
static int32_t indices[4096];

static gckpt_store *s;
static gckpt_graph *g;
static int named;

static void end(void)
{
    gckpt_graph_free(g);
    gckpt_store_free(s);
    s = NULL, g = NULL;
}

static void begin(void)
{
    end();
    s = gckpt_store_new(NULL);
    g = gckpt_graph_new(s, NULL);
}

static gckpt_shape shape(int n, int64_t a, int64_t b, int64_t c, int64_t d)
{
    gckpt_shape x = gckpt_shape4(a, b, c, d);
    x.n = n;
    return x;
}
static gckpt_shape sizes(int n) /* n axes of size one */
{
    gckpt_shape x = gckpt_shape1(1);
    x.n = n;
    for (int i = 0; i < n && i < GCKPT_MAX_DIMS; i++)
        x.d[i] = 1;
    return x;
}

/* Returns a constant of any shape. */
static gckpt_tensor *constant(gckpt_type type, gckpt_shape x)
{
    char name[16];
    snprintf(name, sizeof name, "c%d", named++);
    const void *data = type == GCKPT_F32 ? (const void *)numbers : (const void *)indices;
    return gckpt_constant(g, name, type, x, data);
}
static gckpt_tensor *f1(int64_t a) { return constant(GCKPT_F32, gckpt_shape1(a)); }
static gckpt_tensor *f2(int64_t a, int64_t b) { return constant(GCKPT_F32, gckpt_shape2(a, b)); }
static gckpt_tensor *f3(int64_t a, int64_t b, int64_t c)
{
    return constant(GCKPT_F32, gckpt_shape3(a, b, c));
}
static gckpt_tensor *f4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return constant(GCKPT_F32, gckpt_shape4(a, b, c, d));
}
static gckpt_tensor *f0(void) { return constant(GCKPT_F32, sizes(0)); }
static gckpt_tensor *i1(int64_t a) { return constant(GCKPT_I32, gckpt_shape1(a)); }
static gckpt_tensor *i2(int64_t a, int64_t b) { return constant(GCKPT_I32, gckpt_shape2(a, b)); }

/* ---- building: shapes ---- */
static void check_error(int line, const void *object, gckpt_result result, const char *text)
{
    const char *got = gckpt_error_text(object);
    CHECK_MSG(gckpt_error(object) == result && strstr(got, text),
              "line %d: result %d, \"%s\", not %d, \"%s\"", line, (int)gckpt_error(object), got,
              (int)result, text);
}
#define ERROR_IS(object, result, text) check_error(__LINE__, object, result, text)

static void refused(int line, const gckpt_tensor *t, gckpt_result result, const char *text)
{
    CHECK_MSG(!t, "line %d: not refused", line);
    check_error(line, g, result, text);
    CHECK_MSG(!gckpt_relu(f1(3)) && gckpt_error(g) == result, "line %d: the error does not stay",
              line);
}
#define REFUSED(result, text, call)                                                                \
    do {                                                                                           \
        begin();                                                                                   \
        refused(__LINE__, call, result, text);                                                     \
    } while (0)
/* After a REFUSED call: the same call with the wrong size corrected must be accepted. */
#define TAKEN(call)                                                                                \
    do {                                                                                           \
        begin();                                                                                   \
        const gckpt_tensor *taken = call;                                                          \
        CHECK_MSG(taken &&gckpt_error(g) == GCKPT_OK, "%s", gckpt_error_text(g));                  \
    } while (0)

#define E_S GCKPT_E_SHAPE
#define E_A GCKPT_E_ARG

static gckpt_tensor *permuted(gckpt_tensor *x, int a, int b, int c, int n)
{
    int axes[8] = { a, b, c, 0, 0, 0, 0, 0 };
    return gckpt_permute(x, axes, n);
}
static gckpt_tensor *joined(gckpt_tensor *a, gckpt_tensor *b, int axis)
{
    gckpt_tensor *x[2] = { a, b };
    return gckpt_concat(x, 2, axis);
}
static gckpt_tensor *joined_many(int n)
{
    gckpt_tensor *x[GCKPT_MAX_INPUTS + 1];
    for (int i = 0; i <= GCKPT_MAX_INPUTS; i++)
        x[i] = f1(2);
    return gckpt_concat(x, n, 0);
}

static void refuse_rotary(void)
{
    const float f[4] = { 1, 0.5f, 0, -1 }, odd[2] = { NAN, INFINITY };
    gckpt_rotary_desc d = { .heads = 2, .columns = 6, .frequencies = f, .scale = 1.5f };
    TAKEN(gckpt_rotary(f3(2, 3, 12), &d));
    REFUSED(E_S, "C = 2 heads, and columns 6 even and at most a head's 4 (0: all)",
            gckpt_rotary(f3(2, 3, 8), &d));
    REFUSED(E_S, "x [2,3,9] must be (B,T,C) with C = 2 heads", gckpt_rotary(f3(2, 3, 9), &d));
    d.columns = 3;
    REFUSED(E_S, "columns 3 even", gckpt_rotary(f3(2, 3, 8), &d));
    d.columns = -2;
    REFUSED(E_S, "columns -1 even", gckpt_rotary(f3(2, 3, 8), &d));
    d.columns = 8;
    REFUSED(E_A, "rotary: frequency 3 is -1; it must be finite and >= 0",
            gckpt_rotary(f3(2, 3, 16), &d));
    d.frequencies = odd, d.columns = 2;
    REFUSED(E_A, "rotary: frequency 0 is nan", gckpt_rotary(f3(2, 3, 8), &d));
    d.frequencies = odd + 1;
    REFUSED(E_A, "rotary: frequency 0 is inf", gckpt_rotary(f3(2, 3, 8), &d));
    d.columns = 1026;
    REFUSED(E_A, "frequencies at most 512, not 513", gckpt_rotary(f3(1, 1, 2052), &d));
    d.frequencies = NULL, d.columns = 4, d.scale = -1;
    REFUSED(E_A, "rotary: scale -1 must be positive", gckpt_rotary(f3(2, 3, 8), &d));
    d.scale = 0, d.position = -1;
    REFUSED(E_A, "rotary: first position -1;", gckpt_rotary(f3(2, 3, 8), &d));
    REFUSED(E_A, "rotary: x or desc is NULL", gckpt_rotary(f3(2, 3, 8), NULL));
}

static void layers(void)
{
    TAKEN(gckpt_embed(f2(5, 3), constant(GCKPT_I32, sizes(5))));
    REFUSED(E_S, "embed: table [5] needs two axes", gckpt_embed(f1(5), i1(4)));
    REFUSED(E_S, "embed: table [5,3,2] needs two axes", gckpt_embed(f3(5, 3, 2), i1(4)));
    REFUSED(E_S, "at most 5", gckpt_embed(f2(5, 3), constant(GCKPT_I32, sizes(6))));
    REFUSED(E_A, "needs i32", gckpt_embed(f2(5, 3), f1(4)));
    REFUSED(E_A, "needs f32", gckpt_embed(i2(5, 3), i1(4)));
    REFUSED(E_A, "input 0 is NULL", gckpt_embed(NULL, i1(4)));
    REFUSED(E_A, "input 1 is NULL", gckpt_embed(f2(5, 3), NULL));

    TAKEN(gckpt_matmul(f4(2, 3, 4, 5), f4(2, 3, 5, 6)));
    TAKEN(gckpt_matmul(f1(4), f2(4, 5)));
    TAKEN(gckpt_matmul(f2(4, 5), f1(5)));
    TAKEN(gckpt_matmul(f2(4, 5), f3(2, 5, 3)));
    TAKEN(gckpt_matmul(f4(2, 2, 4, 5), f3(2, 5, 3)));
    TAKEN(gckpt_matmul(f4(2, 3, 4, 5), f4(2, 1, 5, 4)));
    REFUSED(E_S, "matmul: [] x [4,5]: ", gckpt_matmul(f0(), f2(4, 5)));
    REFUSED(E_S, "matmul: [4,5] x []: both need an axis or more", gckpt_matmul(f2(4, 5), f0()));
    REFUSED(E_S, "matmul: [4,5] x [5]: both need an axis or more, b two if transposed",
            gckpt_matmul_transposed(f2(4, 5), f1(5)));
    REFUSED(E_S, "matmul: [2,4,5] x [3,5,4]: leading sizes 2 and 3 differ (matched from the last axis; only 1 is",
            gckpt_matmul(f3(2, 4, 5), f3(3, 5, 4)));
    REFUSED(E_S, "leading sizes 2 and 3 differ", gckpt_matmul(f4(1, 2, 4, 5), f3(3, 5, 4)));
    REFUSED(E_S, "matmul: [2,4,5] x [1,4,5]: inner sizes 5 and 4 differ",
            gckpt_matmul(f3(2, 4, 5), f3(1, 4, 5)));
    REFUSED(E_A, "input 1 is NULL", gckpt_matmul(f1(4), NULL));
    REFUSED(E_S, "matmul: [4,5] x [4,5]: inner sizes 5 and 4 differ",
            gckpt_matmul(f2(4, 5), f2(4, 5)));
    REFUSED(E_S, "matmul_transposed: [4,5] x [5,4]: inner sizes 5 and 4",
            gckpt_matmul_transposed(f2(4, 5), f2(5, 4)));
    REFUSED(E_S, "matmul_transposed: [2,4,5] x [6,4]: inner",
            gckpt_matmul_transposed(f3(2, 4, 5), f2(6, 4)));

    TAKEN(gckpt_linear(f1(4), f2(4, 5), f1(5)));
    REFUSED(E_S, "linear: x [] needs an axis", gckpt_linear(f0(), f2(1, 5), NULL));
    REFUSED(E_S, "w [4] two", gckpt_linear(f2(3, 4), f1(4), NULL));
    REFUSED(E_S, "w [4,5,1] two", gckpt_linear(f2(3, 4), f3(4, 5, 1), NULL));
    REFUSED(E_S, "linear: [3,4] x [5,4]: inner sizes 4 and 5 differ",
            gckpt_linear(f2(3, 4), f2(5, 4), NULL));
    REFUSED(E_S, "linear_transposed: [3,4] x [4,5]: inner",
            gckpt_linear_transposed(f2(3, 4), f2(4, 5), NULL));
    REFUSED(E_S, "needs a bias of shape [5], not [4]", gckpt_linear(f2(3, 4), f2(4, 5), f1(4)));
    REFUSED(E_S, "needs a bias of shape [5], not [1,5]",
            gckpt_linear(f2(3, 4), f2(4, 5), f2(1, 5)));
    REFUSED(E_S, "needs a bias of shape [4]", gckpt_linear_transposed(f2(3, 5), f2(4, 5), f1(5)));

    TAKEN(gckpt_layernorm(f2(3, 4), f1(4), f1(4), 0));
    REFUSED(E_S, "layernorm: x has no axis", gckpt_layernorm(f0(), NULL, NULL, 0));
    REFUSED(E_S, "layernorm: x [3,4] needs a gain of [4], not [3]",
            gckpt_layernorm(f2(3, 4), f1(3), f1(4), 0));
    REFUSED(E_S, "layernorm: x [3,4] needs a bias of [4], not [5]",
            gckpt_layernorm(f2(3, 4), f1(4), f1(5), 0));
    REFUSED(E_S, "layernorm: x [3,4] needs a bias of [4], not [5]",
            gckpt_layernorm(f2(3, 4), NULL, f1(5), 0));
    REFUSED(E_S, "needs a gain of [4], not [1,4]", gckpt_layernorm(f2(3, 4), f2(1, 4), NULL, 0));
    REFUSED(E_S, "rmsnorm: x has no axis", gckpt_rmsnorm(f0(), NULL, 0));
    TAKEN(gckpt_rmsnorm(f2(3, 4), NULL, 1e-6f));
    TAKEN(gckpt_rmsnorm(f2(3, 4), f1(4), 0));
    REFUSED(E_A, "rmsnorm: epsilon nan must be", gckpt_rmsnorm(f2(3, 4), f1(4), NAN));
    REFUSED(E_A, "layernorm: epsilon inf must be", gckpt_layernorm(f2(3, 4), NULL, NULL, INFINITY));
    REFUSED(E_A, "layernorm: epsilon -1 must be positive, or 0 for 1e-5", gckpt_layernorm(f2(3, 4), NULL, NULL, -1));
    REFUSED(E_S, "rmsnorm: x [3,4] needs a gain of [4], not [3]", gckpt_rmsnorm(f2(3, 4), f1(3), 0));

    TAKEN(gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "attention, 2 heads, key_heads 2, which must divide them: q [3,8] must be (B,T,heads D)",
            gckpt_attention(f2(3, 8), f3(2, 5, 8), f3(2, 5, 8), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "k [5,8] and v [5,8] (B,S,key_heads D)",
            gckpt_attention(f3(2, 3, 8), f2(5, 8), f2(5, 8), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "v [2,4,8] (B,S,",
            gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 4, 8), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "v [2,5,4] (B,S,",
            gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 4), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "v [1,5,8] (B,S,",
            gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(1, 5, 8), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "v [2,5] (B,S,",
            gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f2(2, 5), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "k [3,5,8]",
            gckpt_attention(f3(2, 3, 8), f3(3, 5, 8), f3(3, 5, 8), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "k [2,5,6]",
            gckpt_attention(f3(2, 3, 8), f3(2, 5, 6), f3(2, 5, 6), &(gckpt_attention_desc){ .heads = 2 }));
    REFUSED(E_S, "attention, 3 heads, key_heads 3, which must divide them: q [2,3,8]",
            gckpt_attention(f3(2, 3, 8), f3(2, 3, 8), f3(2, 3, 8), &(gckpt_attention_desc){ .heads = 3 }));
    REFUSED(E_S, "attention, 0 heads",
            gckpt_attention(f3(2, 3, 8), f3(2, 3, 8), f3(2, 3, 8), &(gckpt_attention_desc){ .heads = 0 }));
    REFUSED(E_S, "attention, -2 heads",
            gckpt_attention(f3(2, 3, 8), f3(2, 3, 8), f3(2, 3, 8), &(gckpt_attention_desc){ .heads = -2 }));
    TAKEN(gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &(gckpt_attention_desc){ .heads = 2, .causal = 1 }));
    REFUSED(E_S, "a key for each of q's 5 queries, but k has 4; q [2,5,8], k [2,4,8]",
            gckpt_attention(f3(2, 5, 8), f3(2, 4, 8), f3(2, 4, 8), &(gckpt_attention_desc){ .heads = 2, .causal = 1 }));
    REFUSED(E_A, "attention: input 2 is NULL",
            gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), NULL, &(gckpt_attention_desc){ .heads = 2 }));

    static const gckpt_attention_desc two = { 4, 2, 0, NULL, 0, 0, 0, NULL, NULL, NULL }, three = { 4, 3, 0, NULL, 0, 0, 0, NULL, NULL, NULL },
                                      eight = { 4, 8, 0, NULL, 0, 0, 0, NULL, NULL, NULL }, less = { 4, -2, 1, NULL, 0, 0, 0, NULL, NULL, NULL },
                                      none = { 0, 0, 0, NULL, 0, 0, 0, NULL, NULL, NULL };
    gckpt_attention_desc few = { 4, 0, 0, NULL, 0, 0, 0, NULL, NULL, NULL };
    TAKEN(gckpt_attention(f3(2, 3, 8), f3(2, 5, 4), f3(2, 5, 4), &two));
    REFUSED(E_A, "attention: desc is NULL", gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), NULL));
    REFUSED(E_S, "attention, 4 heads, key_heads 2, which must divide them: q [2,3,8] must be (B,T,heads D), k [2,5,8] and v",
            gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &two));
    REFUSED(E_S, "4 heads, key_heads 3", gckpt_attention(f3(2, 3, 8), f3(2, 5, 6), f3(2, 5, 6), &three));
    REFUSED(E_S, "4 heads, key_heads 8", gckpt_attention(f3(2, 3, 8), f3(2, 5, 16), f3(2, 5, 16), &eight));
    REFUSED(E_S, "4 heads, key_heads -2", gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &less));
    REFUSED(E_S, "attention, 0 heads", gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &none));
    REFUSED(E_S, "v [2,5,8] (B,S,", gckpt_attention(f3(2, 3, 8), f3(2, 5, 4), f3(2, 5, 8), &two));
    REFUSED(E_S, "lengths [3] must be (B), one for each row of q [2,3,8]",
            (few.lengths = i1(3), gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &few)));
    REFUSED(E_S, "lengths [2,1] must be",
            (few.lengths = i2(2, 1), gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &few)));
    REFUSED(E_A, "needs i32",
            (few.lengths = f1(2), gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &few)));
    TAKEN((few.lengths = i1(2), gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &few)));
    static const gckpt_attention_desc odd[] = { { 2, 0, 0, NULL, 3, 0, 0, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, -1, 0, 0, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, INT64_C(2147483648), 0, 0, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, -1, 0, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, NAN, 0, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, INFINITY, 0, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, 0, -0.5f, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, 0, NAN, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, 1e-31f, 0, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, 1e31f, 0, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, 1e-30f, 1e9f, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, 1e30f, 1e-9f, NULL, NULL, NULL },
                                                { 2, 0, 1, NULL, 0, 0, INFINITY, NULL, NULL, NULL } };
    static const char *const why[] = { "window is 3 keys without causal",
                                       "window is -1 keys;",
                                       "2147483648 keys;",
                                       "cap is -1,",
                                       "cap is nan",
                                       "cap is inf",
                                       "scale -0.5;",
                                       "scale nan;",
                                       "1e-30 to 1e30 (0: none)",
                                       "cap is 1e31,",
                                       "scale / cap a normal float",
                                       "scale 1e-9;",
                                       "scale inf;" };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        REFUSED(E_A, why[i], gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &odd[i]));
    static const gckpt_attention_desc good = { 2, 0, 1, NULL, 2147483647, 1e-30f, 1e8f, NULL, NULL, NULL };
    TAKEN(gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &good));
    gckpt_attention_desc masked = { .heads = 2 };
    REFUSED(E_S, "attention: the mask [3,5,1] must broadcast to the scores (B,heads,T,S) = [2,2,3,5]",
            (masked.mask = f3(3, 5, 1), gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &masked)));
    REFUSED(E_S, "attention, 3 heads", (masked.heads = 3, masked.mask = f2(3, 5),
                                      gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &masked)));
    masked.heads = 2;
    REFUSED(E_A, "cap is -1, scale 0", (masked.cap = -1, masked.mask = f2(3, 5),
                                        gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &masked)));
    REFUSED(E_A, "with a mask, causal, lengths and window must be 0 or NULL",
            (masked.causal = 1, masked.mask = f2(3, 5),
             gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &masked)));
    static const gckpt_linear_loss_desc below = { -1 }, nan = { NAN }, capped = { 30 }, tiny = { 1e-39f },
                                        huge = { 2e38f };
    REFUSED(E_A, "a cap of 1e-39; it must be 1e-30 to 1e30, or 0",
            gckpt_linear_cross_entropy(f2(2, 3), f2(5, 3), i1(2), &tiny));
    REFUSED(E_A, "a cap of 2e38;", gckpt_linear_cross_entropy(f2(2, 3), f2(5, 3), i1(2), &huge));
    REFUSED(E_A, "linear_cross_entropy: a cap of -1;",
            gckpt_linear_cross_entropy(f2(2, 3), f2(5, 3), i1(2), &below));
    REFUSED(E_A, "a cap of nan;", gckpt_linear_cross_entropy(f2(2, 3), f2(5, 3), i1(2), &nan));
    TAKEN(gckpt_linear_cross_entropy(f2(2, 3), f2(5, 3), i1(2), &capped));

    TAKEN(gckpt_rotary(f3(2, 3, 8), &(gckpt_rotary_desc){ .heads = 4 }));
    REFUSED(E_S, "rotary: x [3,8] must be", gckpt_rotary(f2(3, 8), &(gckpt_rotary_desc){ .heads = 2 }));
    REFUSED(E_S, "rotary: x [2,3,8] must be (B,T,C) with C = 0 heads", gckpt_rotary(f3(2, 3, 8), &(gckpt_rotary_desc){ .heads = 0 }));
    REFUSED(E_S, "C = 3 heads", gckpt_rotary(f3(2, 3, 8), &(gckpt_rotary_desc){ .heads = 3 }));
    REFUSED(E_S, "C = 8 heads, and columns 1 even", gckpt_rotary(f3(2, 3, 8), &(gckpt_rotary_desc){ .heads = 8 }));
    REFUSED(E_A, "rotary: base -1 must be positive",
            gckpt_rotary(f3(2, 3, 8), &(gckpt_rotary_desc){ .heads = 2, .base = -1 }));
    REFUSED(E_A, "rotary: base inf must be positive",
            gckpt_rotary(f3(2, 3, 8), &(gckpt_rotary_desc){ .heads = 2, .base = INFINITY }));
    REFUSED(E_A, "rotary: base nan must be positive",
            gckpt_rotary(f3(2, 3, 8), &(gckpt_rotary_desc){ .heads = 2, .base = NAN }));
    refuse_rotary();

    TAKEN(gckpt_positions(f3(2, 3, 4), f2(3, 4), 0));
    REFUSED(E_S, "positions: constant", gckpt_positions(f2(3, 4), f2(3, 4), 0));
    REFUSED(E_S, "[4] (Tmax,C) with Tmax >= T", gckpt_positions(f3(2, 3, 4), f1(4), 0));
    REFUSED(E_S, "[2,4] (Tmax,C)", gckpt_positions(f3(2, 3, 4), f2(2, 4), 0));
    REFUSED(E_S, "[3,5] (Tmax,C)", gckpt_positions(f3(2, 3, 4), f2(3, 5), 0));
}

static void losses(void)
{
    TAKEN(gckpt_cross_entropy(f3(2, 3, 5), i2(2, 3), NULL, 0));
    REFUSED(E_S, "cross_entropy: targets [2] must be [2,3] for logits [2,3,5]",
            gckpt_cross_entropy(f3(2, 3, 5), i1(2), NULL, 0));
    REFUSED(E_S, "targets [2,3] must be", gckpt_cross_entropy(f2(2, 5), i2(2, 3), NULL, 0));
    REFUSED(E_S, "targets [3] must be", gckpt_cross_entropy(f2(2, 5), i1(3), NULL, 0));
    REFUSED(E_S, "logits []", gckpt_cross_entropy(f0(), i1(1), NULL, 0));
    TAKEN(gckpt_linear_cross_entropy(f3(2, 3, 5), f2(7, 5), i2(2, 3), NULL));
    REFUSED(E_S, "linear_cross_entropy: targets [2,5] must be [2] for x [2,5]",
            gckpt_linear_cross_entropy(f2(2, 5), f2(7, 5), i2(2, 5), NULL));
    REFUSED(E_S, "w [7] must be", gckpt_linear_cross_entropy(f2(2, 5), f1(7), i1(2), NULL));
    REFUSED(E_S, "w [7,5,1]", gckpt_linear_cross_entropy(f2(2, 5), f3(7, 5, 1), i1(2), NULL));
    REFUSED(E_S, "w [5,7]", gckpt_linear_cross_entropy(f2(2, 5), f2(5, 7), i1(2), NULL));
    TAKEN(gckpt_mean_squared_error(f2(2, 3), f2(2, 3), NULL));
    REFUSED(E_S, "prediction [2,3], target [2] differ", gckpt_mean_squared_error(f2(2, 3), f1(2), NULL));
    REFUSED(E_S, "prediction [2,3], target [2,1] differ",
            gckpt_mean_squared_error(f2(2, 3), f2(2, 1), NULL));
    REFUSED(E_S, "prediction [2,3], target [3,2] differ",
            gckpt_mean_squared_error(f2(2, 3), f2(3, 2), NULL));
    REFUSED(E_A, "is a loss; only a gckpt_term can use it", gckpt_relu(gckpt_sum_loss(f1(2))));
    REFUSED(E_S, "do not multiply to", gckpt_reshape(gckpt_sum_loss(f1(2)), sizes(1)));
}

static void shapes(void)
{
    gckpt_tensor *x;
    TAKEN(gckpt_add(f3(2, 1, 4), f2(3, 1)));
    REFUSED(E_S, "broadcast: [2,3] with [2]: sizes 3 and 2 differ", gckpt_add(f2(2, 3), f1(2)));
    REFUSED(E_S, "broadcast: [3] with [2,2]: sizes 3 and 2 differ", gckpt_sub(f1(3), f2(2, 2)));
    REFUSED(E_S, "broadcast: [4,1] with [3,2]: sizes 4 and 3 differ",
            gckpt_mul(f2(4, 1), f2(3, 2)));
    REFUSED(E_S, "broadcast: [2,3] with [2]: sizes 3 and 2 differ", gckpt_div(f2(2, 3), f1(2)));
    REFUSED(E_S, "broadcast: [3] with [2,2]: sizes 3 and 2 differ", gckpt_maximum(f1(3), f2(2, 2)));
    REFUSED(E_S, "broadcast: [3] with [2]: sizes 3 and 2 differ", gckpt_minimum(f1(3), f1(2)));

    TAKEN(gckpt_clamp(f1(2), 1, 1));
    TAKEN(gckpt_clamp(f1(2), -INFINITY, INFINITY));
    REFUSED(E_A, "clamp: low = 2 must not be above high = 1", gckpt_clamp(f1(2), 2, 1));
    REFUSED(E_A, "must not be above high = nan", gckpt_clamp(f1(2), 0, NAN));
    REFUSED(E_A, "clamp: low = nan must", gckpt_clamp(f1(2), NAN, 1));
    TAKEN(gckpt_pow(f1(2), -INFINITY));
    REFUSED(E_A, "pow: the exponent nan must be a number other than 0", gckpt_pow(f1(2), NAN));
    REFUSED(E_A, "pow: the exponent 0 must", gckpt_pow(f1(2), 0));
    TAKEN(gckpt_activation(f1(2), GCKPT_LEAKY_RELU, 0));
    REFUSED(E_A, "leaky_relu: slope = -0.1 must be finite and 0 or above", gckpt_activation(f1(2), GCKPT_LEAKY_RELU, -0.1f));
    REFUSED(E_A, "leaky_relu: slope = nan", gckpt_activation(f1(2), GCKPT_LEAKY_RELU, NAN));
    REFUSED(E_A, "elu: alpha = inf must be finite", gckpt_activation(f1(2), GCKPT_ELU, INFINITY));
    REFUSED(E_A, "mish: has no parameter: p must be 0, not 0.5", gckpt_activation(f1(2), GCKPT_MISH, 0.5f));
    REFUSED(E_A, "activation: kind 6 is none of", gckpt_activation(f1(2), (gckpt_activation_kind)6, 0));
    REFUSED(E_A, "leaky_relu: slope = inf", gckpt_activation(f1(2), GCKPT_LEAKY_RELU, INFINITY));
    TAKEN(gckpt_where(f2(2, 1), f3(2, 1, 3), f1(1)));
    TAKEN(gckpt_where(i1(2), f1(1), f2(2, 2)));
    REFUSED(E_S, "broadcast: [2,3] with [2]: sizes 3 and 2 differ", gckpt_where(f1(3), f2(2, 3), f1(2)));
    REFUSED(E_S, "broadcast: [3] with [2]: sizes 3 and 2 differ", gckpt_where(f1(3), f1(2), f1(3)));
    REFUSED(E_A, "is i32, where needs f32", gckpt_where(f1(2), i1(2), f1(2)));
    REFUSED(E_A, "where: input 2 is NULL", gckpt_where(f1(2), f1(2), NULL));

    TAKEN(permuted(f3(2, 3, 4), 0, -1, 1, 3));
    REFUSED(E_A, "permute: 2 axes given, [2,3,4] has 3", permuted(f3(2, 3, 4), 0, 1, 2, 2));
    REFUSED(E_A, "permute: 8 axes given", permuted(f3(2, 3, 4), 0, 1, 2, 8));
    REFUSED(E_A, "permute: 0 axes given", gckpt_permute(f3(2, 3, 4), NULL, 3));
    REFUSED(E_A, "axes[1] = 3 is repeated or not in", permuted(f3(2, 3, 4), 0, 3, 2, 3));
    REFUSED(E_A, "axes[2] = -4 is repeated or not in", permuted(f3(2, 3, 4), 0, 1, -4, 3));
    REFUSED(E_A, "axes[2] = 1 is repeated", permuted(f3(2, 3, 4), 0, 1, 1, 3));
    REFUSED(E_A, "axes[2] = -3 is repeated", permuted(f3(2, 3, 4), 0, 1, -3, 3));

    TAKEN(gckpt_slice(f2(2, 3), -2, 1, 2));
    REFUSED(E_A, "slice: [2,3] has no axis 2: -2 to 1 are possible",
            gckpt_slice(f2(2, 3), 2, 0, 1));
    REFUSED(E_A, "slice: [2,3] has no axis -3", gckpt_slice(f2(2, 3), -3, 0, 1));
    REFUSED(E_A, "slice: [] has no axis 0", gckpt_slice(f0(), 0, 0, 1));
    TAKEN(gckpt_slice(f2(2, 3), 0, -1, 2));
    TAKEN(gckpt_slice(f2(2, 3), 1, -3, -1));
    REFUSED(E_S, "slice: -3 to 1, counted from 0, of axis 0", gckpt_slice(f2(2, 3), 0, -3, 1));
    REFUSED(E_S, "slice: 1 to -4, counted from 0, of axis 1", gckpt_slice(f2(2, 3), 1, 1, -4));
    REFUSED(E_S, "slice: 2 to 1, counted from 0, of axis 1", gckpt_slice(f2(2, 3), 1, -1, -2));
    REFUSED(E_S, "slice: 1 to 1, counted from 0, of axis 0", gckpt_slice(f2(2, 3), 0, 1, 1));
    REFUSED(E_S, "slice: 2 to 4, counted from 0, of axis 1 of [2,3]: needs 0 <= begin < end <= 3",
            gckpt_slice(f2(2, 3), 1, 2, 4));
    REFUSED(E_S, "slice: 4294967297 to 4294967298",
            gckpt_slice(f2(2, 3), 1, 4294967297, 4294967298));

    TAKEN(joined(f2(2, 3), f2(2, 5), -1));
    REFUSED(E_A, "concat: [2,3] has no axis 2", joined(f2(2, 3), f2(2, 3), 2));
    REFUSED(E_A, "concat: [2,3] has no axis -3", joined(f2(2, 3), f2(2, 3), -3));
    REFUSED(E_S, "[2,3] and [3,3]: all sizes except that of axis 1", joined(f2(2, 3), f2(3, 3), 1));
    REFUSED(E_S, "[2,3] and [3]: all sizes except", joined(f2(2, 3), f1(3), 0));
    REFUSED(E_S, "[2] and [2,1]: all sizes except", joined(f1(2), f2(2, 1), 0));
    TAKEN(joined_many(GCKPT_MAX_INPUTS));
    REFUSED(E_A, "1 to 8 inputs", joined_many(GCKPT_MAX_INPUTS + 1));
    REFUSED(E_A, "input 1 is NULL", joined(f2(2, 3), NULL, 0));
    begin();
    CHECK(!joined_many(0) && !joined_many(-1) && !joined_many(INT32_MIN) && !gckpt_concat(NULL, 2, 0));

    REFUSED(E_A, "sum: [2,3] has no axis 2", gckpt_sum(f2(2, 3), 2));
    REFUSED(E_A, "mean: [2,3] has no axis -3", gckpt_mean(f2(2, 3), -3));
    REFUSED(E_A, "sum: [] has no axis 0", gckpt_sum(f0(), 0));
    REFUSED(E_A, "max: [2,3] has no axis 2", gckpt_max(f2(2, 3), 2));
    REFUSED(E_A, "argmax: [2,3] has no axis -3", gckpt_argmax(f2(2, 3), -3));

    REFUSED(E_A, "dropout: p = 1 must be below 1", gckpt_dropout(f1(2), 1));
    REFUSED(E_A, "dropout: p = nan must be below 1", gckpt_dropout(f1(2), NAN));
    begin();
    x = f1(2);
    CHECK(gckpt_dropout(x, 0) == x && gckpt_dropout(x, -1) == x && !gckpt_dropout(NULL, 0));

    TAKEN(gckpt_reshape(f2(6, 4), shape(3, 3, -1, 2, 0)));
    REFUSED(E_S, "reshape: [2,3] to [-1,-1]", gckpt_reshape(f2(2, 3), gckpt_shape2(-1, -1)));
    REFUSED(E_S, "reshape: [2,3] to [4,-1]: the sizes do not multiply to 6",
            gckpt_reshape(f2(2, 3), gckpt_shape2(4, -1)));
    REFUSED(E_S, "reshape: [2,3] to [0,6]", gckpt_reshape(f2(2, 3), gckpt_shape2(0, 6)));
    REFUSED(E_S, "reshape: [2,3] to [-2,-3]", gckpt_reshape(f2(2, 3), gckpt_shape2(-2, -3)));
    REFUSED(E_S, "reshape: [2,3] to [5]", gckpt_reshape(f2(2, 3), gckpt_shape1(5)));
    REFUSED(E_S, "reshape: [2,3] to [6,2]", gckpt_reshape(f2(2, 3), gckpt_shape2(6, 2)));
    REFUSED(E_S, "reshape: [2,3] to [4611686018427387904,4]",
            gckpt_reshape(f2(2, 3), gckpt_shape2(INT64_C(1) << 62, 4)));
    REFUSED(E_S, "reshape: [2] to []", gckpt_reshape(f1(2), sizes(0)));
    REFUSED(E_S, "do not multiply", gckpt_reshape(f1(2), sizes(-1)));
}

/* ---- building: leaves, user ops ---- */
static gckpt_init ones(void)
{
    gckpt_init one = { 0, 0, 1 };
    return one;
}

static gckpt_result same_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static gckpt_result no_shape(gckpt_call *call)
{
    (void)call;
    return GCKPT_E_SHAPE;
}
static gckpt_result custom_text(gckpt_call *call)
{
    return gckpt_fail(call, GCKPT_E_ARG, "%s %i %I %u %z %g %S %T %q %% %", "mine", -7, INT64_C(-8),
                      UINT64_C(9), (size_t)10, 0.5, &call->in[0].shape, (const gckpt_tensor *)NULL);
}
static gckpt_result reports_twice(gckpt_call *call)
{
    gckpt_fail(call, GCKPT_E_DATA, "the first");
    return gckpt_fail(call, GCKPT_E_ARG, "the second");
}
static gckpt_result huge_shape(gckpt_call *call)
{
    call->shape = gckpt_shape2(INT64_C(1) << 40, INT64_C(1) << 40);
    return GCKPT_OK;
}
static gckpt_result huge_saved(gckpt_call *call)
{
    call->saved_bytes = SIZE_MAX / 2;
    return same_shape(call);
}
/* A shape rule that refuses more than 4 rows. An op with this rule counts as mixing rows. */
static gckpt_result grows(gckpt_call *call)
{
    return call->in[0].shape.d[0] > 4 ? GCKPT_E_SHAPE : same_shape(call);
}
/* A shape rule whose result has another number of columns if there are more than 2 rows. */
static gckpt_result pairs(gckpt_call *call)
{
    call->shape = gckpt_shape2(call->in[0].shape.d[0], call->in[0].shape.d[0] > 2 ? 2 : 1);
    return GCKPT_OK;
}
static gckpt_result one_more_axis(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    call->shape.n = call->in[0].shape.d[0] > 2 ? 2 : 1;
    call->shape.d[1] = 1;
    return GCKPT_OK;
}
static gckpt_result no_axes(gckpt_call *call)
{
    call->shape.n = 0;
    return GCKPT_OK;
}
static void copies(const gckpt_call *call)
{
    memcpy(call->out, call->in[0].data, (size_t)(call->rows * 3) * sizeof(float));
}

static gckpt_op user_op(const char *name, gckpt_result (*rule)(gckpt_call *))
{
    gckpt_op op;
    memset(&op, 0, sizeof op);
    op.name = name;
    op.shape = rule;
    op.forward = copies;
    return op;
}
static gckpt_tensor *apply(const gckpt_op *op, gckpt_tensor *x)
{
    return gckpt_apply(op, &x, 1, NULL, 0);
}
static gckpt_tensor *apply_rule(gckpt_result (*rule)(gckpt_call *))
{
    static gckpt_op op;
    op = user_op("mine", rule);
    return apply(&op, f1(3));
}
/* Returns whether a user-defined op with this shape rule, applied to an input of two rows, counts as mixing rows. */
static int mixing(gckpt_result (*rule)(gckpt_call *))
{
    static gckpt_op op;
    const char *name = NULL;
    begin();
    op = user_op("mixer", rule);
    gckpt_term term = { gckpt_sum_loss(apply(&op, gckpt_input(g, "x", GCKPT_F32, gckpt_shape1(2)))),
                        1, 0 };
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.mode = GCKPT_INFERENCE;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    int exact = gckpt_plan_split_exact(p, &name);
    CHECK(exact || !strcmp(name, "mixer"));
    gckpt_plan_free(p);
    return !exact;
}

static void leaves(void)
{
    const gckpt_shape two = gckpt_shape2(2, 3);
    REFUSED(E_A, "need a name", gckpt_input(g, NULL, GCKPT_F32, two));
    REFUSED(E_A, "need a name", gckpt_input(g, "", GCKPT_F32, two));
    REFUSED(E_A, "need a name", gckpt_param(g, NULL, two, ones()));
    REFUSED(E_A, "need a name", gckpt_constant(g, NULL, GCKPT_F32, two, numbers));
    REFUSED(E_A, "is reserved", gckpt_param(g, "__metadata__", two, ones()));
    REFUSED(E_A, "is not UTF-8", gckpt_param(g, "a\xff", two, ones()));
    REFUSED(E_A, "optimiser state", gckpt_param(g, "w#state0", two, ones()));
    REFUSED(E_A, "the type must be", gckpt_input(g, "x", (gckpt_type)3, two));
    REFUSED(E_A, "of an input, GCKPT_U8", gckpt_constant(g, "x", GCKPT_U8, two, &two));
    REFUSED(E_A, "constant \"c\": its data is NULL", gckpt_constant(g, "c", GCKPT_F32, two, NULL));
    REFUSED(E_S, "input \"x\": needs at least the batch axis",
            gckpt_input(g, "x", GCKPT_F32, sizes(0)));
    REFUSED(E_S, "input \"x\": needs at least the batch axis",
            gckpt_input(g, "x", GCKPT_F32, sizes(-3)));
    REFUSED(E_S, "\"c\": [-1 axes; 0 to 6", gckpt_constant(g, "c", GCKPT_F32, sizes(-1), numbers));
    REFUSED(E_S, "sizes must be positive", gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 0)));
    REFUSED(E_S, "sizes must be positive", gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(-2, 3)));
    REFUSED(E_S, "too many axes or elements for this machine",
            gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, INT64_MAX)));
    begin();
    gckpt_input(g, "x", GCKPT_F32, two);
    refused(__LINE__, gckpt_input(g, "y", GCKPT_F32, gckpt_shape1(3)), E_S,
            "axis 0 is the batch and must be 2");
    begin();
    gckpt_param(g, "w", two, ones());
    refused(__LINE__, gckpt_param(g, "w", gckpt_shape2(3, 2), ones()), E_S,
            "it is [3,2] here, but [2,3] in the store");
    CHECK(gckpt_store_count(s) == 1);

    begin(); /* tensors of two graphs */
    gckpt_graph *other = gckpt_graph_new(s, NULL);
    gckpt_tensor *past_end = gckpt_constant(other, "far", GCKPT_F32, gckpt_shape1(3), numbers);
    refused(__LINE__, gckpt_add(f1(3), past_end), E_A, "constant \"far\" belongs to another graph");
    gckpt_graph_free(other);

    begin(); /* the first error of a graph must be kept */
    CHECK(!gckpt_slice(f1(3), 5, 0, 1) && !gckpt_slice(f1(3), 6, 0, 1));
    CHECK(!gckpt_input(g, "x", GCKPT_F32, two) && !gckpt_param(g, "w", two, ones()) && !f1(3));
    ERROR_IS(g, E_A, "no axis 5");
    gckpt_segment_begin(g);
    gckpt_segment_end(g);
    gckpt_segment_end(g);
    CHECK(!gckpt_plan_new(g, NULL, 0, NULL));
    ERROR_IS(g, E_A, "no axis 5");

    begin();
    gckpt_segment_end(g);
    ERROR_IS(g, E_A, "gckpt_segment_end without gckpt_segment_begin");
}

static void user_ops(void)
{
    const gckpt_op nameless = user_op(NULL, same_shape), shapeless = user_op("a", NULL);
    gckpt_op still = user_op("a", same_shape), plain = still;
    static int word;
    still.forward = NULL;
    REFUSED(E_A, "an op needs a name, shape(), forward()", apply(NULL, f1(3)));
    REFUSED(E_A, "an op needs a name", apply(&nameless, f1(3)));
    REFUSED(E_A, "an op needs a name", apply(&shapeless, f1(3)));
    REFUSED(E_A, "an op needs a name", apply(&still, f1(3)));
    begin();
    CHECK(!gckpt_apply(&plain, NULL, 1, NULL, 0) && !apply(&plain, NULL) &&
          gckpt_error(g) == GCKPT_OK);
    gckpt_tensor *x = f1(3);
    refused(__LINE__, gckpt_apply(&plain, &x, 1, NULL, 4), E_A, "a: attributes is NULL, but attribute_bytes is 4");
    begin();
    gckpt_tensor *many[GCKPT_MAX_INPUTS + 1];
    for (int i = 0; i <= GCKPT_MAX_INPUTS; i++)
        many[i] = f1(3);
    refused(__LINE__, gckpt_apply(&plain, many, GCKPT_MAX_INPUTS + 1, NULL, 0), E_A, "and 1 to 8 inputs");
    begin();
    x = f1(3);
    CHECK(gckpt_apply(&plain, &x, 1, &word, sizeof word) && gckpt_error(g) == GCKPT_OK);
    REFUSED(E_S, "mine: shapes do not fit (inputs constant \"c", apply_rule(no_shape));
    REFUSED(E_A, "mine -7 -8 9 10 0.5 [3] NULL q %  (inputs constant", apply_rule(custom_text));
    REFUSED(GCKPT_E_DATA, "the first (inputs", apply_rule(reports_twice));
    REFUSED(E_S, "does not fit; at most", apply_rule(huge_shape));
    REFUSED(E_S, "does not fit", apply_rule(huge_saved));
    CHECK(gckpt_fail(NULL, GCKPT_E_DATA, "nowhere to tell") == GCKPT_E_DATA);
    CHECK(!mixing(same_shape) && mixing(grows) && mixing(pairs) && mixing(one_more_axis) && mixing(no_axes));
    TAKEN(gckpt_name(f1(3), "three"));
    begin();
    x = gckpt_relu(f1(3));
    CHECK(gckpt_name(x, NULL) == x && !gckpt_name(NULL, "x"));
    gckpt_tensor *y = gckpt_relu(f1(2));
    gckpt_name(y, "short");
    refused(__LINE__, gckpt_mean_squared_error(x, y, NULL), E_S, "(inputs relu #1, relu \"short\")");
}

/* Tests that a negative standard deviation gives the same initial values with the opposite sign. */
static void spreads(void)
{
    const gckpt_init up[2] = { { 0.5f, 0, 0 }, { 0, 0.5f, 0 } }, down[2] = { { -0.5f, 0, 0 }, { 0, -0.5f, 0 } };
    for (int k = 0; k < 2; k++) {
        gckpt_parameter a, b;
        float drawn[5];
        begin();
        gckpt_param(g, "w", gckpt_shape1(5), up[k]);
        CHECK(gckpt_store_get(s, 0, &a) == GCKPT_OK);
        memcpy(drawn, a.values, sizeof drawn);
        begin();
        gckpt_param(g, "w", gckpt_shape1(5), down[k]);
        CHECK(gckpt_store_get(s, 0, &b) == GCKPT_OK);
        for (int i = 0; i < 5; i++)
            CHECK_MSG(drawn[i] + b.values[i] == 0.0f && drawn[i] != 0.0f, "%g, %g", (double)drawn[i],
                      (double)b.values[i]);
    }
}

/* Tests negative axis numbers, which count from the last axis. */
static void negative_axes(void)
{
    float x[24], out[2][24];
    for (int i = 0; i < 24; i++)
        x[i] = (float)i;
    for (int k = 0; k < 2; k++) {
        gckpti_permute o = { 3, { 0, k ? 2 : -1, k ? 1 : -2, 0, 0, 0 } };
        gckpt_call call;
        memset(&call, 0, sizeof call);
        call.inputs = 1, call.rows = 2, call.threads = 1, call.plain = 1, call.attributes = &o;
        call.in[0].shape = gckpt_shape3(2, 3, 4), call.shape = gckpt_shape3(2, 4, 3);
        call.in[0].data = x, call.out = out[k];
        gckpti_op_permute.forward(&call);
    }
    CHECK(!memcmp(out[0], out[1], sizeof out[0]) && out[0][1] == 4.0f);
}

/* Tests that every byte of an op's attributes is part of the plan's hash, also the bytes of a last word that is not
 * full. */
static void odd_attributes(void)
{
    gckpt_op plain = user_op("odd", same_shape);
    uint64_t hash[2];
    for (int k = 0; k < 2; k++) {
        const unsigned char bytes[5] = { 1, 2, 3, 4, (unsigned char)(5 + k) };
        gckpt_plan_desc d;
        memset(&d, 0, sizeof d);
        begin();
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 3));
        const gckpt_fetch_spec fetch = { gckpt_apply(&plain, &x, 1, bytes, sizeof bytes), 0 };
        d.mode = GCKPT_INFERENCE, d.fetch.specs = &fetch, d.fetch.count = 1;
        gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &d);
        hash[k] = gckpt_plan_describe(p).hash;
        gckpt_plan_free(p);
    }
    CHECK(hash[0] && hash[1] && hash[0] != hash[1]);
}

/* Tests an attention op whose output is dropped while its saved values are kept for the backward. */
static void saved_alone(void)
{
    float x[3][2 * 5 * 8], out[2 * 5 * 8], saved[2][2 * 5 * 2];
    gckpti_attention o = { 2, 1, 0, 0, 0, 0, 0 };
    gckpt_call call;
    memset(&call, 0, sizeof call);
    for (int i = 0; i < 2 * 5 * 8; i++)
        for (int k = 0; k < 3; k++)
            x[k][i] = (float)((i * 37 + k * 11) % 23 - 11) / 9;
    call.inputs = 3, call.rows = 2, call.threads = 1, call.plain = 1, call.training = 1;
    call.attributes = &o;
    call.shape = gckpt_shape3(2, 5, 8);
    for (int k = 0; k < 3; k++)
        call.in[k].shape = call.shape, call.in[k].data = x[k];
    for (int k = 0; k < 2; k++) {
        call.out = k ? NULL : out;
        call.saved = saved[k];
        gckpti_op_attention.forward(&call);
    }
    CHECK(!memcmp(saved[0], saved[1], sizeof saved[0]) && saved[0][3] != 0.0f);
}

/* ---- NULL for every object ---- */
static size_t swallow(void *user, const void *bytes, size_t size)
{
    (void)user, (void)bytes;
    return size;
}
static size_t nothing(void *user, void *bytes, size_t size)
{
    (void)user, (void)bytes, (void)size;
    return 0;
}
static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    (void)user;
    return gckpt_relu(x);
}
/* Tests conditions of the library that are joined by && or ||, with calls in which only one of the parts decides. */
static void one_by_one(void)
{
#define WINDOW(...) &(const gckpt_window){ __VA_ARGS__ }
    const int64_t far = INT64_C(1) << 32;
    REFUSED(E_S, "linear_cross_entropy: x [], w [7,5]", gckpt_linear_cross_entropy(f0(), f2(7, 5), i1(2), NULL));
    REFUSED(E_A, "linear_cross_entropy: input 1 is NULL", gckpt_linear_cross_entropy(f2(2, 5), NULL, i1(2), NULL));
    REFUSED(E_A, "linear_cross_entropy: input 2 is NULL", gckpt_linear_cross_entropy(f2(2, 5), f2(7, 5), NULL, NULL));
    REFUSED(E_S, "weights [] must have the first axes", gckpt_mean_squared_error(f2(2, 3), f2(2, 3), f0()));
    REFUSED(E_S, "gather: x [2,3,4], index [3,2]", gckpt_gather(f3(2, 3, 4), i2(3, 2)));
    REFUSED(E_A, "pad: 0 and 4294967296", gckpt_pad(f2(2, 3), 1, 0, far, GCKPT_PAD_VALUE, 0));
    REFUSED(E_A, "upsample: 4294967299 x 3", gckpt_upsample(f4(1, 2, 2, 1), far + 3, 3, GCKPT_NEAREST));
    REFUSED(E_A, "upsample: 3 x 0", gckpt_upsample(f4(1, 2, 2, 1), 3, 0, GCKPT_NEAREST));
    REFUSED(E_A, "running \"\": momentum 2 must be", gckpt_running(g, NULL, gckpt_shape1(2), ones(), 2));
    REFUSED(E_S, "groupnorm: x [2,4] needs a gain of [4], not [4,1]", gckpt_groupnorm(f2(2, 4), 2, f2(4, 1), NULL, 0));
    REFUSED(E_S, "batchnorm: x [2,4] needs a variance of [4], not [5]",
            gckpt_batchnorm(gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 4)), NULL, NULL,
                            gckpt_running(g, "mean", gckpt_shape1(4), ones(), 0.1f),
                            gckpt_running(g, "variance", gckpt_shape1(5), ones(), 0.1f), 0));
    REFUSED(E_S, "gru: x wx [4,2,15] and wh [5,15,1]",
            gckpt_gru(f3(4, 2, 3), f2(3, 15), NULL, f3(5, 15, 1), NULL, NULL));
    REFUSED(E_A, "attention: beta without decay",
            gckpt_attention(f3(2, 3, 8), f3(2, 5, 8), f3(2, 5, 8), &(gckpt_attention_desc){ .heads = 2, .beta = f2(1, 1) }));
    REFUSED(E_A, "linear: input 0 is NULL", gckpt_lstm(NULL, f2(3, 20), f2(5, 20), NULL, NULL));

    REFUSED(E_S, "max_pool: window.size 2, stride 2, padding -1",
            gckpt_max_pool(f4(1, 4, 4, 1), WINDOW(.size = { 2, 2 }, .padding = { -1, 0 })));
    REFUSED(E_A, "a convolution's", gckpt_max_pool(f4(1, 4, 4, 1), WINDOW(.size = { 2, 2 }, .groups = 2)));
    REFUSED(E_S, "padding 0, dilation -2",
            gckpt_max_pool(f4(1, 4, 4, 1), WINDOW(.size = { 2, 2 }, .dilation = { -2, 1 })));
    REFUSED(E_S, "with padding, the dilation must not be above that (it is 3)",
            gckpt_average_pool(f4(1, 2, 4, 1), WINDOW(.size = { 2, 2 }, .padding = { 1, 0 }, .dilation = { 3, 1 })));
    REFUSED(E_S, "x [1,4,4,1] has 4 positions, the window needs 5 (padding 0)",
            gckpt_max_pool(f4(1, 4, 4, 1), WINDOW(.size = { 2, 3 }, .dilation = { 1, 2 })));
    REFUSED(E_A, "exclude_padding is average_pool's",
            gckpt_max_pool(f4(1, 4, 4, 1), WINDOW(.size = { 2, 2 }, .exclude_padding = 1)));
    REFUSED(E_A, "ceil and exclude_padding of a window are a pool's",
            gckpt_conv2d(f4(1, 4, 4, 1), f4(1, 1, 1, 1), NULL, WINDOW(.ceil = 1)));
    REFUSED(E_A, "a convolution's",
            gckpt_max_pool(f4(1, 4, 4, 1), WINDOW(.size = { 2, 2 }, .output_padding = { 1, 0 })));
    REFUSED(E_S, "max_pool: the result [1,3,",
            gckpt_max_pool(f3(1, 1, (int64_t)(SIZE_MAX / 128)),
                           WINDOW(.size = { 0, 3 }, .stride = { 0, 1 }, .padding = { 0, 2 })));
    REFUSED(E_A, "output_padding -1 x 0",
            gckpt_conv2d_transposed(f4(1, 4, 4, 2), f4(3, 3, 5, 2), NULL, WINDOW(.output_padding = { -1, 0 })));
    REFUSED(E_S, "too large a result",
            gckpt_conv2d_transposed(f4(1, 1, 1, 1), f4((1 << 25) + 2, 1, 1, 1), NULL,
                                    WINDOW(.dilation = { 0x7fffffff, 1 })));
    REFUSED(E_S, "needs a bias of shape [4], not [4,1]", gckpt_conv2d(f4(1, 4, 4, 2), f4(3, 3, 2, 4), f2(4, 1), NULL));
    REFUSED(E_A, "conv2d: input 1 is NULL", gckpt_conv2d(f4(1, 4, 4, 2), NULL, NULL, NULL));
    REFUSED(E_A, "conv2d: input 1 is NULL", gckpt_conv1d(f3(1, 5, 2), NULL, NULL, NULL));
    REFUSED(E_S, "w [1,3,3,4] (KH,KW,I/groups,O), with 1 groups", gckpt_conv1d(f3(1, 5, 2), f3(3, 3, 4), NULL, NULL));
    TAKEN(
        gckpt_conv2d(f4(1, 4, 4, 2), gckpt_relu(gckpt_input(g, "w", GCKPT_F32, gckpt_shape4(3, 3, 2, 4))), NULL, NULL));
    begin(); /* for a signal, a window may have the signal's padding in both of its elements */
    CHECK(gckpt_shape_of(gckpt_conv1d(f3(1, 5, 2), f3(3, 2, 4), NULL, WINDOW(.padding = { 1, 1 }))).d[1] == 5);
#undef WINDOW

    const gckpt_rotary_desc plain = { .heads = 2 }, less = { .heads = 2, .scale = 0.5f },
                            endless = { .heads = 2, .scale = INFINITY };
    REFUSED(E_A, "rotary: scale inf must be positive", gckpt_rotary(f3(2, 3, 8), &endless));
    begin();
    CHECK(gckpt_rotary(f3(2, 3, 8), &less)->attribute_bytes >
          gckpt_rotary(f3(2, 3, 8), &plain)->attribute_bytes);
    begin(); /* a tensor without axes has no rows, so an op that makes one mixes rows */
    CHECK(gckpt_reshape(gckpt_input(g, "one", GCKPT_F32, gckpt_shape1(1)), sizes(0))->mixes_rows & GCKPTI_MIXES_ALWAYS);
    begin(); /* a condition needs no gradient, so a parameter that is a condition is detached */
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(2), ones());
    CHECK(gckpt_where(w, f1(2), f1(2))->in[0] != w);

    begin(); /* after an error, the graph accepts no more ops */
    w = gckpt_param(g, "w", gckpt_shape1(2), ones());
    const gckpt_term term = { gckpt_sum_loss(gckpt_mul(gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 2)), w)), 1, 0 };
    gckpt_frontier *f = gckpt_frontier_new(g, &term, 1, NULL);
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL), untold = *p;
    gckpt_usage usage;
    untold.info = NULL; /* a plan without this table, which is optional */
    CHECK(gckpt_plan_usage(p, 0, &usage) == GCKPT_OK && gckpt_plan_usage(&untold, 0, &usage) == E_A);
    CHECK(f && !gckpt_slice(f1(3), 5, 0, 1) && gckpt_error(g) == E_A && !gckpt_frontier_plan(f, 0));
    gckpt_frontier_free(f);
    gckpt_plan_free(p);
    CHECK(!gckpt_frontier_new(g, NULL, 0, NULL));
    ERROR_IS(g, E_A, "no axis 5");
}

static void null_ops(void)
{
    begin();
    gckpt_tensor *x = f2(2, 3);
#define UNARY(name, ...) gckpt_##name,
    gckpt_tensor *(*const one[])(gckpt_tensor *) = { UNARY_TESTS(UNARY) gckpt_softmax, gckpt_sum_loss, gckpt_keep,
                                                     gckpt_detach, gckpt_recompute, gckpt_log_softmax };
#undef UNARY
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        CHECK(!one[i](NULL));
    gckpt_tensor *(*const two[])(gckpt_tensor *, gckpt_tensor *) = {
        gckpt_embed, gckpt_matmul, gckpt_matmul_transposed, gckpt_add,    gckpt_sub,
        gckpt_mul,   gckpt_div,    gckpt_maximum,           gckpt_minimum, gckpt_prelu
    };
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        CHECK(!two[i](NULL, NULL));
    CHECK(!gckpt_positions(x, NULL, 0) && !gckpt_positions(NULL, x, 0));
    CHECK(!gckpt_rmsnorm(NULL, NULL, 0) && !gckpt_mean_squared_error(NULL, NULL, NULL) &&
          !gckpt_cross_entropy(NULL, NULL, NULL, 0) && !gckpt_cross_entropy(NULL, NULL, NULL, 0.1f) &&
          !gckpt_positions(NULL, NULL, 0));
    CHECK(!gckpt_linear(NULL, NULL, NULL) && !gckpt_linear_transposed(NULL, NULL, NULL));
    CHECK(!gckpt_layernorm(NULL, NULL, NULL, 0) && !gckpt_linear_cross_entropy(NULL, NULL, NULL, NULL));
    CHECK(!gckpt_attention(NULL, NULL, NULL, &(gckpt_attention_desc){ .heads = 1 }) &&
          !gckpt_attention(NULL, NULL, NULL, NULL) &&
          !gckpt_rotary(NULL, &(gckpt_rotary_desc){ .heads = 1 }) && !gckpt_scale(NULL, 1));
    CHECK(!gckpt_pow(NULL, 2) && !gckpt_clamp(NULL, 0, 1) && !gckpt_activation(NULL, GCKPT_LEAKY_RELU, 0.1f));
    CHECK(!gckpt_where(NULL, NULL, NULL));
    CHECK(!gckpt_dropout(NULL, 0.5f) && !gckpt_reshape(NULL, gckpt_shape1(1)) &&
          !gckpt_permute(NULL, NULL, 0));
    CHECK(!gckpt_slice(NULL, 0, 0, 1) && !gckpt_concat(NULL, 0, 0) && !gckpt_sum(NULL, 0) &&
          !gckpt_mean(NULL, 0));
    CHECK(!gckpt_checkpoint(NULL, x, NULL) && !gckpt_checkpoint(block, NULL, NULL));
    CHECK(!gckpt_name(NULL, "x") && !gckpt_graph_of(NULL) && gckpt_id(NULL) == -1 &&
          gckpt_shape_of(NULL).n == -1);
    CHECK(gckpt_error(g) == GCKPT_OK && gckpt_graph_of(x) == g);
    REFUSED(E_A, "linear: input 1 is NULL", gckpt_linear(f2(2, 3), NULL, NULL));
    REFUSED(E_A, "linear: input 0 is NULL", gckpt_linear(NULL, f2(2, 3), NULL));
    REFUSED(E_A, "layernorm: input 0 is NULL", gckpt_layernorm(NULL, f1(3), NULL, 0));
    REFUSED(E_A, "rmsnorm: input 0 is NULL", gckpt_rmsnorm(NULL, f1(3), 0));
    REFUSED(E_A, "add: input 1 is NULL", gckpt_add(f1(3), NULL));
    gckpt_graph *none = NULL;
    CHECK(!gckpt_input(none, "x", GCKPT_F32, sizes(1)) &&
          !gckpt_param(none, "x", sizes(1), ones()));
    CHECK(!gckpt_constant(none, "x", GCKPT_F32, sizes(1), numbers));
    gckpt_segment_begin(NULL);
    gckpt_segment_end(NULL);
}

static void null_objects(void)
{
    gckpt_instruction in;
    gckpt_usage usage;
    gckpt_point point;
    gckpt_buffer buffer;
    gckpt_parameter parameter;
    gckpt_hyper hyper = gckpt_hyper_lr(0);
    const char *name = NULL;
    CHECK(gckpt_error(NULL) == GCKPT_E_MEMORY &&
          strstr(gckpt_error_text(NULL),
                 "NULL: the call that should have made this object failed; call gckpt_error_text of its "
                 "origin: the graph for a plan or a frontier, the store for an executor or a graph"));
    CHECK(!strcmp(gckpt_result_text(GCKPT_RESULT_COUNT), "not a gckpt_result"));
    CHECK(!strcmp(gckpt_result_text((gckpt_result)-1), "not a gckpt_result"));
    gckpt_store_free(NULL);
    gckpt_graph_free(NULL);
    gckpt_plan_free(NULL);
    gckpt_exec_free(NULL);
    gckpt_frontier_free(NULL);

    CHECK(gckpt_store_freeze(NULL, "*", 1) == E_A && gckpt_store_group(NULL, "*", 1, 1) == E_A);
    CHECK(gckpt_store_reset(NULL, "*") == E_A && gckpt_store_count(NULL) == 0 &&
          gckpt_store_bytes(NULL) == 0);
    CHECK(gckpt_store_external(NULL, "w", sizes(1), numbers, 0) == E_A &&
          gckpt_store_step(NULL) == 0);
    CHECK(gckpt_store_get(NULL, 0, &parameter) == E_A && gckpt_store_find(NULL, "w") == -1);
    CHECK(gckpt_store_hash(NULL) == UINT64_C(0xcbf29ce484222325));
    CHECK(gckpt_store_write(NULL, swallow, NULL, NULL) == E_A &&
          gckpt_store_read(NULL, nothing, NULL, 0, NULL) == E_A);
    CHECK(gckpt_store_save(NULL, "x", NULL) == E_A && gckpt_store_load(NULL, "x", NULL) == E_A);
    CHECK(!gckpt_graph_new(NULL, NULL) && !gckpt_plan_new(NULL, NULL, 0, NULL));
    CHECK(!gckpt_frontier_new(NULL, NULL, 0, NULL));
    CHECK(!gckpt_exec_new(NULL, NULL, NULL));

    CHECK(gckpt_plan_bytes(NULL) == 0 && gckpt_plan_describe(NULL).arena == 0 &&
          gckpt_plan_describe(NULL).peak == 0);
    CHECK(gckpt_plan_kind_bytes(NULL, 0) == 0 && gckpt_plan_describe(NULL).cost == 0 &&
          gckpt_plan_describe(NULL).step_cost == 0);
    CHECK(!(gckpt_plan_describe(NULL).recompute > 0) && !(gckpt_plan_describe(NULL).overhead > 0) &&
          gckpt_plan_describe(NULL).rows == 0);
    CHECK(gckpt_plan_describe(NULL).update_in_backward == 0 && gckpt_plan_describe(NULL).mode == GCKPT_AUTO &&
          gckpt_plan_describe(NULL).instructions == 0);
    CHECK(gckpt_plan_get(NULL, 0, &in) == E_A && gckpt_plan_describe(NULL).buffers == 0 &&
          gckpt_plan_describe(NULL).hash == 0);
    CHECK(gckpt_plan_buffer(NULL, 0, &buffer) == E_A && !*gckpt_plan_name(NULL, 0));
    gckpt_plan_split_exact(NULL, &name);
    gckpt_plan_split_exact(NULL, NULL);
    CHECK(gckpt_plan_usage(NULL, 0, &usage) == E_A && gckpt_plan_describe(NULL).batch == 0 &&
          !*gckpt_plan_op(NULL, 0));
    CHECK(print_plan(NULL, swallow, NULL) == E_A);
    CHECK(print_trace(NULL, swallow, NULL) == E_A);
    CHECK(gckpt_plan_c(NULL, "x", swallow, NULL) == E_A);
    CHECK(gckpt_plan_params(NULL, NULL) == E_A);
    int64_t first = 1;
    CHECK(gckpt_plan_rank_rows(NULL, 8, 0, &first) == 0 && first == 0);

    CHECK(gckpt_frontier_describe(NULL).points == 0 && gckpt_frontier_get(NULL, 0, &point) == E_A);
    CHECK(gckpt_frontier_describe(NULL).complete == 0 && gckpt_frontier_find(NULL, 0) == -1 &&
          !gckpt_frontier_plan(NULL, 0));
    CHECK(print_frontier(NULL, 0, swallow, NULL) == E_A);
    CHECK(print_frontier_json(NULL, 0, swallow, NULL) == E_A);

    CHECK(gckpt_step(NULL, NULL, 0, 1, &hyper, NULL) == E_A &&
          gckpt_forward(NULL, NULL, 0, 1, NULL) == E_A);
    CHECK(gckpt_step_begin(NULL, &hyper) == E_A && gckpt_step_add(NULL, NULL, 0, 1) == E_A);
    CHECK(gckpt_step_end(NULL, NULL) == E_A && gckpt_step_start(NULL, NULL, 0, 1, &hyper) == E_A);
    CHECK(gckpt_run_some(NULL, 1, NULL) == E_A && gckpt_next_instruction(NULL).id == -1 &&
          !gckpt_fetch(NULL, 0, 0));
    CHECK(gckpt_bytes_measured(NULL) == 0 && gckpt_exec_isa(NULL) == GCKPT_ISA_AUTO);
    CHECK(!gckpt_isa_available((gckpt_isa)-1) && gckpt_isa_available(GCKPT_ISA_AUTO));
    CHECK(gckpt_threads() >= 1);
}

/* ---- running: a small net; refused calls change nothing ---- */
enum { ROWS = 2, BATCH = 6, T = 3, V = 5, C = 4 };

typedef struct {
    gckpt_tensor *tokens, *targets, *hidden, *table;
    gckpt_term terms[2];
    gckpt_plan *p;
    gckpt_exec *e;
} net;

static int32_t tokens[BATCH * T], targets[BATCH * T];

/* Builds the graph on the current store. */
static net build(void)
{
    const gckpt_init normal = { 0.5f, 0, 0 };
    net n;
    memset(&n, 0, sizeof n);
    for (int i = 0; i < BATCH * T; i++)
        tokens[i] = i * 7 % V, targets[i] = i * 3 % V;
    n.tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(ROWS, T));
    n.targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(ROWS, T));
    n.table = gckpt_param(g, "table", gckpt_shape2(V, C), normal);
    n.hidden = gckpt_tanh(gckpt_linear(gckpt_embed(n.table, n.tokens),
                                       gckpt_param(g, "w", gckpt_shape2(C, C), normal), NULL));
    n.terms[0].loss = gckpt_cross_entropy(gckpt_matmul_transposed(n.hidden, n.table), n.targets, NULL, 0);
    n.terms[0].weight = 1;
    return n;
}
static net start(const gckpt_plan_desc *desc, const gckpt_exec_desc *bind)
{
    begin();
    net n = build();
    n.p = gckpt_plan_new(g, n.terms, 1, desc);
    CHECK_MSG(n.p != NULL, "%s", gckpt_error_text(g));
    n.e = gckpt_exec_new(n.p, s, bind);
    return n;
}
static void stop(net *n)
{
    gckpt_exec_free(n->e);
    gckpt_plan_free(n->p);
    n->e = NULL, n->p = NULL;
}
static gckpt_plan_desc batch_of(int64_t rows)
{
    gckpt_plan_desc d;
    memset(&d, 0, sizeof d);
    d.batch = rows;
    return d;
}
static gckpt_exec_desc no_desc(void)
{
    gckpt_exec_desc d;
    memset(&d, 0, sizeof d);
    return d;
}
static gckpt_hyper rate(float lr)
{
    gckpt_hyper h;
    memset(&h, 0, sizeof h);
    h.lr = lr;
    return h;
}
static gckpt_result step(const net *n, int64_t rows, gckpt_report *report)
{
    gckpt_feed feeds[2] = { { gckpt_id(n->tokens), tokens }, { gckpt_id(n->targets), targets } };
    gckpt_hyper h = rate(0.01f);
    return gckpt_step(n->e, feeds, 2, rows, &h, report);
}

/* Takes a step that must be refused with this result and text, and checks that weights and step number are
 * unchanged. */
static void step_refused(int line, const net *n, gckpt_feed a, gckpt_feed b, int count,
                         gckpt_result result, const char *text)
{
    gckpt_feed feeds[3];
    gckpt_hyper h = rate(0.01f);
    uint64_t hash = gckpt_store_hash(s), steps = gckpt_store_step(s);
    feeds[0] = a, feeds[1] = b, feeds[2] = b;
    CHECK_MSG(gckpt_step(n->e, count > 3 ? NULL : feeds, count, ROWS, &h, NULL) == result,
              "line %d", line);
    check_error(line, n->e, result, text);
    CHECK_MSG(gckpt_store_hash(s) == hash && gckpt_store_step(s) == steps,
              "line %d: something changed", line);
}

/* Tests that error texts name the given value, the allowed values and the remedy. */
static void wordings(void)
{
    REFUSED(E_A, "input \"y\" is i32, mean_squared_error needs f32: declare and feed it as floats",
            gckpt_mean_squared_error(f1(4), gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(4)), NULL));
    REFUSED(E_A, "input \"y\" is f32, embed needs i32: declare and feed it as int32_t",
            gckpt_embed(f2(4, 3), gckpt_input(g, "y", GCKPT_F32, gckpt_shape1(4))));
    REFUSED(E_A, "input \"y\" is u8, relu needs f32: gckpt_from_u8 makes floats of it",
            gckpt_relu(gckpt_input(g, "y", GCKPT_U8, gckpt_shape1(4))));
    REFUSED(E_S, "cross_entropy: targets [4,1] must be [4] for logits [4,3]: use gckpt_reshape",
            gckpt_cross_entropy(f2(4, 3), i2(4, 1), NULL, 0));
    REFUSED(E_S, "cross_entropy: targets [5] must be [4] for logits [4,3]: declare and feed them so",
            gckpt_cross_entropy(f2(4, 3), i1(5), NULL, 0));
    REFUSED(E_S, "soft_cross_entropy: targets [4] must be [4,3] for logits [4,3]: declare and feed them so",
            gckpt_soft_cross_entropy(f2(4, 3), f1(4), NULL));
    REFUSED(E_S, "linear_cross_entropy: targets [4,1] must be [4] for x [4,3]: use gckpt_reshape",
            gckpt_linear_cross_entropy(f2(4, 3), f2(5, 3), i2(4, 1), NULL));
    begin();
    gckpt_parameter p;
    CHECK(gckpt_store_get(s, -1, &p) == E_A);
    ERROR_IS(s, E_A, "get: index -1 is not one of the store's 0 parameters");
    CHECK(gckpt_store_get(s, 0, NULL) == E_A);
    ERROR_IS(s, E_A, "get: index 0");
}

/* Tests calls that use a store which was freed too early; its memory can still be read here. */
static void freed_store(void)
{
    static heap left;
    const gckpt_memory memory = heap_memory(&left);
    gckpt_store_desc d = { .memory = memory };
    end();
    s = gckpt_store_new(&d);
    g = gckpt_graph_new(s, NULL);
    net n = build();
    const gckpt_plan_desc streams = batch_of(BATCH);
    gckpt_hyper h = rate(0.01f);
    n.p = gckpt_plan_new(g, n.terms, 1, &streams);
    n.e = gckpt_exec_new(n.p, s, NULL);
    CHECK(step(&n, BATCH, NULL) == GCKPT_OK);
    gckpt_exec *other = gckpt_exec_new(n.p, s, NULL);
    /* frees the second of three executors, so that the store's list of executors is tested */
    gckpt_exec_free(gckpt_exec_new(n.p, s, NULL));
    gckpt_graph_free(g);
    gckpt_store_free(s);
    s = NULL, g = NULL;
    CHECK(step(&n, BATCH, NULL) == E_A);
    ERROR_IS(n.e, E_A, "step: the executor's store was freed: free a store after its executors");
    CHECK(gckpt_step_begin(other, &h) == E_A);
    ERROR_IS(other, E_A, "step: the executor's store was freed");
    gckpt_exec_free(other);
    stop(&n);
    CHECK(left.live == 0);
}

/* Tests two calls on one executor at once: a callback within the first call makes the second one, as another thread
 * could do. */
static net *within;
static gckpt_result second;
static char second_text[300];
static int call_within(void *user, const gckpt_progress *progress)
{
    (void)user;
    if (progress->instruction == 1 && within) {
        second = step(within, ROWS, NULL);
        snprintf(second_text, sizeof second_text, "%s", gckpt_error_text(within->e));
    }
    return 0;
}

static void two_at_once(void)
{
    gckpt_exec_desc d = no_desc();
    gckpt_report report, alone;
    net n = start(NULL, NULL);
    CHECK(step(&n, ROWS, &alone) == GCKPT_OK && step(&n, ROWS, &alone) == GCKPT_OK);
    stop(&n);
    d.progress = call_within;
    n = start(NULL, &d);
    within = &n;
    CHECK(step(&n, ROWS, &report) == GCKPT_OK && second == E_A);
    CHECK_MSG(
        strstr(second_text, "step: a call of this executor is under way, in another thread or around this callback"),
        "%s", second_text);
    within = NULL;
    CHECK(step(&n, ROWS, &report) == GCKPT_OK && report.step == 2 &&
          !memcmp(&report.loss, &alone.loss, sizeof alone.loss));
    stop(&n);
}

static void feeds(void)
{
    net n = start(NULL, NULL);
    gckpt_feed x, y, z;
    x.input = gckpt_id(n.tokens), x.data = tokens;
    y.input = gckpt_id(n.targets), y.data = targets;
#define STEP_REFUSED(a, b, count, result, text)                                                    \
    step_refused(__LINE__, &n, a, b, count, result, text)
    STEP_REFUSED(x, y, -1, E_A, "feeds: NULL or a negative count");
    STEP_REFUSED(x, y, 4, E_A, "feeds: NULL or a negative count");
    STEP_REFUSED(x, y, 0, E_A, "input \"tokens\" is not fed");
    STEP_REFUSED(x, y, 1, E_A, "input \"targets\" is not fed");
    STEP_REFUSED(x, x, 2, E_A, "feed 1: input \"tokens\" is fed twice");
    STEP_REFUSED(x, y, 3, E_A, "feed 2: input \"targets\" is fed twice");
    const int wrong[] = { -1, INT32_MAX, gckpt_id(n.table), gckpt_id(n.hidden),
                          gckpt_id(n.terms[0].loss) };
    for (int i = 0; i < 5; i++) {
        z = y;
        z.input = wrong[i];
        STEP_REFUSED(x, z, 2, E_A, "feed 1: its id is not that of an input");
    }
    z = y;
    z.data = NULL;
    STEP_REFUSED(x, z, 2, E_A, "feed 1: its data is NULL");

    tokens[4] = -1; /* a negative index is ignored in targets, and refused in other inputs */
    STEP_REFUSED(x, y, 2, GCKPT_E_DATA, "\"tokens\": index -1 at row 1, position 1: embed #");
    tokens[4] = V;
    STEP_REFUSED(x, y, 2, GCKPT_E_DATA, "\"tokens\": index 5 at row 1, position 1");
    tokens[4] = INT32_MIN;
    STEP_REFUSED(x, y, 2, GCKPT_E_DATA, "index -2147483648");
    tokens[4] = 0;
    targets[5] = V;
    STEP_REFUSED(x, y, 2, GCKPT_E_DATA,
                 "\"targets\": index 5 at row 1, position 2: linear_cross_entropy #");
    STEP_REFUSED(x, y, 2, GCKPT_E_DATA, "takes 0 to 4");
    targets[5] = INT32_MIN;
    gckpt_report report;
    CHECK(step(&n, ROWS, &report) == GCKPT_OK && report.count == ROWS * T - 1 && report.step == 1);
    CHECK(step(&n, 0, NULL) == E_A);
    ERROR_IS(n.e, E_A, "step: 0 rows; this plan takes 1 to 2 in a step (desc.batch)");
    CHECK(step(&n, ROWS + 1, NULL) == E_A && step(&n, -1, NULL) == E_A &&
          step(&n, INT64_MIN, NULL) == E_A);
    CHECK(gckpt_forward(n.e, &x, 1, ROWS, NULL) == E_A);
    ERROR_IS(n.e, E_A, "this plan trains");
    CHECK(step(&n, ROWS, NULL) == GCKPT_OK && gckpt_error(n.e) == GCKPT_OK);
    stop(&n);

    gckpt_plan_desc desc = batch_of(0);
    desc.mode = GCKPT_INFERENCE;
    n = start(&desc, NULL);
    CHECK(step(&n, ROWS, NULL) == E_A);
    ERROR_IS(n.e, E_A, "this plan is for GCKPT_INFERENCE");
    gckpt_feed both[2];
    both[0] = x, both[1] = y;
    CHECK(gckpt_forward(n.e, both, 2, 0, NULL) == E_A &&
          gckpt_forward(n.e, both, 1, ROWS, NULL) == E_A);
    CHECK(gckpt_forward(n.e, both, 2, BATCH, &report) == GCKPT_OK && report.step == 0);
    stop(&n);

    begin(); /* a constant as index */
    static const int32_t outside[3] = { 0, 1, V };
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, C));
    gckpt_tensor *rows =
        gckpt_embed(gckpt_param(g, "t", gckpt_shape2(V, C), ones()),
                    gckpt_constant(g, "fetched", GCKPT_I32, gckpt_shape1(3), outside));
    gckpt_term term = { gckpt_sum_loss(gckpt_matmul_transposed(in, rows)), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(in), numbers };
    gckpt_hyper h = rate(0.1f);
    CHECK(gckpt_step(e, &feed, 1, ROWS, &h, NULL) == GCKPT_E_DATA);
    ERROR_IS(e, GCKPT_E_DATA, "\"fetched\": index 5 at row 0, position 2");
    gckpt_exec_free(e);
    gckpt_plan_free(p);
}

static void hypers(void)
{
    static const float wild[] = { NAN, INFINITY, -INFINITY };
    net n = start(NULL, NULL);
    gckpt_feed both[2] = { { gckpt_id(n.tokens), tokens }, { gckpt_id(n.targets), targets } };
    uint64_t hash = gckpt_store_hash(s);
    CHECK(gckpt_step(n.e, both, 2, ROWS, NULL, NULL) == E_A);
    ERROR_IS(n.e, E_A, "hyper is NULL");
    for (int field = 0; field < 7; field++) {
        static const char *const names[] = { "lr",  "weight_decay", "beta1", "beta2",
                                             "eps", "momentum",     "clip" };
        static const float above[] = { 0, 0, 1, 1, 1.5f, 1.5f, 0 },
                           below[] = { -0.01f, -1, -2, -2, -1, -2, -1 };
        for (int i = 0; i < 5; i++) {
            float value = i < 3 ? wild[i] : i == 3 ? above[field] : below[field];
            gckpt_hyper h = rate(0.01f);
            float *at[] = {
                &h.lr, &h.weight_decay, &h.beta1, &h.beta2, &h.eps, &h.momentum, &h.clip
            };
            if (i >= 3 && !(value < 0 || value > 0))
                continue;
            *at[field] = value;
            CHECK_MSG(gckpt_step(n.e, both, 2, ROWS, &h, NULL) == E_A, "%s = %g", names[field],
                      (double)value);
            ERROR_IS(n.e, E_A, "step: hyper.");
            ERROR_IS(n.e, E_A, names[field]);
        }
    }
    CHECK(gckpt_store_hash(s) == hash && gckpt_store_step(s) == 0);
    gckpt_hyper edge = rate(0); /* the largest allowed values */
    edge.beta1 = -1, edge.beta2 = 0.9999999f, edge.eps = 1, edge.momentum = 1, edge.clip = 3e38f;
    CHECK(gckpt_step(n.e, both, 2, ROWS, &edge, NULL) == GCKPT_OK);
    stop(&n);

    gckpt_plan_desc desc = batch_of(0);
    desc.update_in_backward = 1;
    n = start(&desc, NULL);
    edge = rate(0.01f), edge.clip = 1;
    CHECK(gckpt_step(n.e, both, 2, ROWS, &edge, NULL) == E_A);
    ERROR_IS(n.e, E_A, "clip needs all gradients before the first update");
    stop(&n);
}

/* ---- binding: arenas, instruction sets, stores ---- */
static void exec_refused(int line, const gckpt_plan *p, const gckpt_exec_desc *d,
                         gckpt_result result, const char *text)
{
    gckpt_exec *e = gckpt_exec_new(p, s, d);
    CHECK_MSG(!e, "line %d: not refused", line);
    check_error(line, s, result, text);
    gckpt_exec_free(e);
    if (!p || gckpt_exec_need(p, d) == SIZE_MAX)
        return;
    /* the same refusal must come if the memory for the executor is too small, since arguments are checked first */
    gckpt_exec_desc small = { 0 };
    small = d ? *d : small;
    small.memory.size = gckpt_exec_need(p, NULL) * 3 / 4;
    small.memory.memory = malloc(small.memory.size);
    CHECK(!gckpt_exec_new(p, s, &small));
    check_error(line, s, result, text);
    free(small.memory.memory);
}
#define EXEC_REFUSED(p, d, result, text) exec_refused(__LINE__, p, d, result, text)

static void arenas(void)
{
    gckpt_plan_desc desc = batch_of(BATCH);
    gckpt_report own, given, twice;
    desc.kernels.alignment = 256;
    net n = start(&desc, NULL);
    CHECK(step(&n, BATCH, &own) == GCKPT_OK);
    uint64_t hash = gckpt_store_hash(s);
    stop(&n);

    n = start(&desc, NULL);
    gckpt_exec_free(n.e);
    const size_t size = gckpt_plan_describe(n.p).arena;
    unsigned char *room = (unsigned char *)malloc(size + 2 * 256 + 16);
    unsigned char *at = room + (256 - (uintptr_t)room % 256);
    gckpt_exec_desc bind = no_desc();
    memset(room, 0xee, size + 2 * 256 + 16);
    bind.arena = at;
    EXEC_REFUSED(n.p, &bind, E_A, "exec: the arena given has 0 bytes; the plan needs");
    bind.arena_size = size - 1;
    EXEC_REFUSED(n.p, &bind, E_A, "aligned to 256");
    bind.arena_size = size;
    for (int off = 1; off < 256; off += off) {
        bind.arena = at + off;
        EXEC_REFUSED(n.p, &bind, E_A, "the arena given has");
    }
    bind.arena = at; /* an arena of exactly the needed bytes, used by two executors */
    bind.debug = GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_POISON;
    n.e = gckpt_exec_new(n.p, s, &bind);
    CHECK(n.e && step(&n, BATCH, &given) == GCKPT_OK && gckpt_store_hash(s) == hash &&
          given.loss == own.loss);
    net m = n;
    gckpt_store *first = s;
    s = gckpt_store_new(NULL);
    gckpt_graph *first_graph = g;
    g = gckpt_graph_new(s, NULL);
    build();
    m.e = gckpt_exec_new(n.p, s, &bind);
    CHECK(m.e && step(&m, BATCH, &twice) == GCKPT_OK && twice.loss == own.loss &&
          gckpt_store_hash(s) == hash);
    for (int i = 0; i < 3; i++)
        CHECK(step(&n, BATCH, &given) == GCKPT_OK && step(&m, BATCH, &twice) == GCKPT_OK &&
              given.loss == twice.loss);
    CHECK(gckpt_store_hash(s) == gckpt_store_hash(first));
    CHECK(gckpt_bytes_measured(n.e) == gckpt_plan_bytes(n.p));
    for (size_t i = 0; i < size + 2 * 256 + 16; i++)
        if (room + i < at || room + i >= at + size)
            CHECK_MSG(room[i] == 0xee, "byte %ld beside the arena was written",
                      (long)i - (long)(at - room));
    gckpt_exec_free(m.e);
    end();
    s = first, g = first_graph;
    stop(&n);
    free(room);
}

static void fetched_user_op(void)
{
    static gckpt_op op;
    begin();
    op = user_op("copies", same_shape);
    op.forward = copies;
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3));
    gckpt_tensor *y = apply(&op, x);
    gckpt_fetch_spec fetch = { y, 0 };
    gckpt_plan_desc desc = batch_of(0);
    desc.mode = GCKPT_INFERENCE;
    desc.fetch.specs = &fetch;
    desc.fetch.count = 1;
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(x), numbers };
    CHECK(gckpt_forward(e, &feed, 1, ROWS, NULL) == GCKPT_OK && gckpt_fetch(e, gckpt_id(y), 0));
    CHECK(!gckpt_fetch(e, gckpt_id(y), 1) && !gckpt_fetch(e, gckpt_id(x), 0) &&
          !gckpt_fetch(e, -1, 0));
    gckpt_exec_free(e);
    gckpt_plan_free(p);
}

static void own_optimiser(void *user, const gckpt_update *u) { (void)user, (void)u; }

static void binding(void)
{
    gckpt_exec_desc bind = no_desc();
    net n = start(NULL, NULL);
    for (int isa = 0; isa <= GCKPT_ISA_COUNT; isa++) {
        bind.isa = (gckpt_isa)isa;
        gckpt_exec *e = gckpt_exec_new(n.p, s, &bind);
        CHECK((e != NULL) == gckpt_isa_available((gckpt_isa)isa));
        if (e)
            CHECK(isa == GCKPT_ISA_AUTO || (int)gckpt_exec_isa(e) == isa);
        else if (isa == GCKPT_ISA_COUNT)
            ERROR_IS(s, E_A, "exec: desc.isa is 7; allowed is 0 to 6");
        else
            ERROR_IS(s, E_A, "exec: this processor or build has no kernels of gckpt_isa ");
        gckpt_exec_free(e);
    }
    CHECK(!gckpt_isa_available(GCKPT_ISA_COUNT)); /* one of the instruction sets was refused above */
    bind.isa = GCKPT_ISA_AUTO;
    bind.debug = 2 * GCKPT_DEBUG_FINITE;
    EXEC_REFUSED(n.p, &bind, E_A, "exec: desc.debug is 32; allowed is 0 to 31");
    bind.debug = 0;
    EXEC_REFUSED(NULL, NULL, E_A, "exec: the plan is NULL");
    CHECK(gckpt_exec_need(NULL, NULL) == SIZE_MAX && gckpt_exec_need(n.p, NULL) < SIZE_MAX);

    /* stores without the plan's parameters, with other, with frozen, and with the same parameters in another order */
    gckpt_store *full = s;
    s = gckpt_store_new(NULL);
    EXEC_REFUSED(n.p, NULL, E_A, "exec: the store has no parameter \"table\" of 20 elements");
    gckpt_graph *other = gckpt_graph_new(s, NULL);
    gckpt_param(other, "table", gckpt_shape2(V, C + 1), ones());
    EXEC_REFUSED(n.p, NULL, E_A, "no parameter \"table\" of 20 elements");
    gckpt_graph_free(other);
    gckpt_store_free(s);
    s = gckpt_store_new(NULL);
    other = gckpt_graph_new(s, NULL);
    gckpt_param(other, "w", gckpt_shape2(C, C), ones());
    gckpt_param(other, "between", gckpt_shape1(1), ones());
    gckpt_param(other, "table", gckpt_shape2(V, C), ones());
    gckpt_store_freeze(s, "w", 1);
    EXEC_REFUSED(n.p, NULL, E_A, "exec: \"w\" was frozen after planning; make a new plan");
    gckpt_store_freeze(s, "w", 0);
    for (int i = 0; i < 2; i++) { /* copies the weights to the store that has them in another order */
        gckpt_parameter from, to;
        const char *name = i ? "w" : "table";
        gckpt_store_get(full, gckpt_store_find(full, name), &from);
        gckpt_store_get(s, gckpt_store_find(s, name), &to);
        memcpy(to.values, from.values, (size_t)from.elements * sizeof(float));
    }
    net m = n;
    gckpt_report a, b;
    m.e = gckpt_exec_new(n.p, s, NULL);
    CHECK(m.e && step(&m, ROWS, &a) == GCKPT_OK && step(&n, ROWS, &b) == GCKPT_OK &&
          a.loss == b.loss);
    CHECK(step(&m, ROWS, &a) == GCKPT_OK && step(&n, ROWS, &b) == GCKPT_OK && a.loss == b.loss);
    gckpt_exec_free(m.e);
    gckpt_graph_free(other);
    gckpt_store_free(s);
    s = full;

    gckpt_store_freeze(s, "w", 1); /* freezes a parameter while an executor trains it */
    uint64_t hash = gckpt_store_hash(s);
    CHECK(step(&n, ROWS, NULL) == E_A && gckpt_store_hash(s) == hash);
    ERROR_IS(n.e, E_A, "step: \"w\" was frozen after planning; make a new plan");
    gckpt_store_freeze(s, "w", 0);
    CHECK(step(&n, ROWS, NULL) == GCKPT_OK);
    stop(&n);

    gckpt_plan_desc desc = batch_of(0);
    desc.optimiser = GCKPT_CUSTOM_OPTIMISER;
    begin();
    n = build();
    n.p = gckpt_plan_new(g, n.terms, 1, &desc);
    EXEC_REFUSED(n.p, NULL, E_A, "desc.custom_optimiser is missing");
    bind = no_desc();
    EXEC_REFUSED(n.p, &bind, E_A, "desc.custom_optimiser is missing");
    bind.custom_optimiser = own_optimiser;
    n.e = gckpt_exec_new(n.p, s, &bind);
    hash = gckpt_store_hash(s);
    CHECK(n.e && step(&n, ROWS, NULL) == GCKPT_OK && gckpt_store_hash(s) == hash &&
          gckpt_store_step(s) == 1);
    stop(&n);

}

/* ---- streaming, pieces, cancelling ---- */
static void streaming(void)
{
    gckpt_plan_desc desc = batch_of(BATCH);
    gckpt_hyper h = rate(0.01f);
    gckpt_report report, whole;
    net n = start(&desc, NULL);
    CHECK(step(&n, 5, &whole) == GCKPT_OK);
    uint64_t hash = gckpt_store_hash(s);
    stop(&n);

    n = start(&desc, NULL);
    gckpt_feed both[2] = { { gckpt_id(n.tokens), tokens }, { gckpt_id(n.targets), targets } };
    uint64_t before = gckpt_store_hash(s);
    CHECK(gckpt_step_add(n.e, both, 2, ROWS) == E_A);
    ERROR_IS(n.e, E_A, "step_add: no step was begun (gckpt_step_begin)");
    CHECK(gckpt_step_end(n.e, &report) == E_A);
    ERROR_IS(n.e, E_A, "step_end: no step was begun (gckpt_step_begin)");
    CHECK(gckpt_run_some(n.e, 1, &report) == E_A);
    ERROR_IS(n.e, E_A, "run_some: no step was started (gckpt_step_start)");
    CHECK(gckpt_step_begin(n.e, NULL) == E_A && gckpt_step_add(n.e, both, 2, ROWS) == E_A);
    CHECK(gckpt_step_begin(n.e, &h) == GCKPT_OK && gckpt_run_some(n.e, 1, NULL) == E_A);

    CHECK(gckpt_step_begin(n.e, &h) == GCKPT_OK); /* a step without rows */
    memset(&report, 0x55, sizeof report);
    CHECK(gckpt_step_end(n.e, &report) == GCKPT_OK && report.count == 0 && report.step == 0);
    CHECK(!(report.loss < 0 || report.loss > 0) && !(report.grad_norm < 0 || report.grad_norm > 0));
    CHECK(gckpt_store_hash(s) == before && gckpt_store_step(s) == 0);
    CHECK(gckpt_step_end(n.e, &report) == E_A && gckpt_step_add(n.e, both, 2, ROWS) == E_A);

    CHECK(gckpt_step_begin(n.e, &h) == GCKPT_OK && gckpt_step_add(n.e, both, 2, 3) == GCKPT_OK);
    /* more rows than the batch has left are refused, and the rows before stay */
    CHECK(gckpt_step_add(n.e, both, 2, 4) == E_A);
    ERROR_IS(n.e, E_A,
         "step: 4 rows; this plan takes 1 to 6 in a step (all calls of the step together)");
    CHECK(gckpt_step_add(n.e, both, 2, 0) == E_A && gckpt_step_add(n.e, both, 1, 1) == E_A);
    both[0].data = tokens + 3 * T, both[1].data = targets + 3 * T;
    CHECK(gckpt_step_add(n.e, both, 2, 2) == GCKPT_OK && gckpt_step_end(n.e, &report) == GCKPT_OK);
    CHECK(report.loss == whole.loss && report.count == whole.count && gckpt_store_hash(s) == hash);

    CHECK(gckpt_step_begin(n.e, &h) == GCKPT_OK && gckpt_step_add(n.e, both, 2, 2) == GCKPT_OK);
    CHECK(gckpt_step_begin(n.e, &h) == GCKPT_OK); /* abandons the step before */
    CHECK(gckpt_step_end(n.e, &report) == GCKPT_OK && report.count == 0 &&
          gckpt_store_hash(s) == hash);
    stop(&n);

    n = start(NULL, NULL);
    CHECK(gckpt_step_begin(n.e, &h) == E_A);
    ERROR_IS(n.e, E_A, "desc.batch is larger than the graph's 2 rows");
    CHECK(gckpt_step_add(n.e, both, 2, ROWS) == E_A);
    stop(&n);

    /* Streams need one loss besides regularisers; in kind 1 both losses have the same targets, in kind 2 one is a
     * regulariser. */
    for (int kind = 0; kind < 3; kind++) {
        begin();
        n = build();
        gckpt_tensor *more = gckpt_input(g, "more", GCKPT_F32, gckpt_shape3(ROWS, T, C));
        n.terms[1].loss = kind == 0   ? gckpt_mean_squared_error(n.hidden, more, NULL)
                          : kind == 1 ? gckpt_linear_cross_entropy(n.hidden, n.table, n.targets, NULL)
                                      : gckpt_sum_loss(gckpt_mul(n.table, n.table));
        n.terms[1].regulariser = kind == 2;
        n.terms[1].weight = 0.5f;
        n.p = gckpt_plan_new(g, n.terms, 2, &desc);
        n.e = gckpt_exec_new(n.p, s, NULL);
        CHECK(gckpt_step_begin(n.e, &h) == (kind == 2 ? GCKPT_OK : E_A));
        if (kind < 2)
            ERROR_IS(n.e, E_A, "has a count of its own, which is not known while rows stream in");
        stop(&n);
    }
}

static void partial_steps(void)
{
    gckpt_plan_desc desc = batch_of(BATCH);
    gckpt_report report, whole;
    gckpt_hyper h = rate(0.01f);
    net n = start(&desc, NULL);
    CHECK(step(&n, 5, &whole) == GCKPT_OK);
    uint64_t hash = gckpt_store_hash(s);
    stop(&n);
    for (int piece = 1; piece < 5; piece++) {
        n = start(&desc, NULL);
        gckpt_feed both[2] = { { gckpt_id(n.tokens), tokens }, { gckpt_id(n.targets), targets } };
        int runs = 0, length = gckpt_plan_describe(n.p).instructions, losses_run = 0;
        CHECK(gckpt_next_instruction(n.e).id == -1);
        CHECK(gckpt_step_start(n.e, both, 2, 5, &h) == GCKPT_OK);
        gckpt_result result = GCKPT_MORE;
        while (result == GCKPT_MORE) {
            gckpt_instruction next = gckpt_next_instruction(n.e), at;
            int known = 0;
            for (int i = 0; i < length; i++)
                known += gckpt_plan_get(n.p, i, &at) == GCKPT_OK && at.kind == next.kind &&
                         at.id == next.id;
            CHECK(known == (next.kind != GCKPT_FORWARD || next.id >= 0)); /* one of the plan's, or the end */
            losses_run +=
                piece == 1 && next.kind == GCKPT_FORWARD && next.id == gckpt_id(n.terms[0].loss);
            CHECK(gckpt_run_some(n.e, 0, &report) == GCKPT_MORE && gckpt_next_instruction(n.e).id == next.id);
            result = gckpt_run_some(n.e, piece, &report);
            runs++;
        }
        CHECK(result == GCKPT_OK && runs > length / piece && report.loss == whole.loss);
        CHECK(gckpt_store_hash(s) == hash && gckpt_next_instruction(n.e).id == -1);
        CHECK_MSG(piece > 1 || losses_run == 3, "%d micro-batches", losses_run);
        CHECK(gckpt_run_some(n.e, 1, &report) == E_A);
        stop(&n);
    }
}

typedef struct {
    int at, calls, updates;
} canceller;
static int cancels(void *user, const gckpt_progress *p)
{
    canceller *c = (canceller *)user;
    CHECK(p->instruction >= 0 && p->instruction < p->instructions && p->first_row >= 0 &&
          p->first_row <= p->rows && p->name);
    c->updates += p->kind == GCKPT_UPDATE;
    return c->calls++ >= c->at;
}

static void cancelling(void)
{
    gckpt_plan_desc desc = batch_of(BATCH);
    gckpt_report report;
    net n = start(&desc, NULL);
    CHECK(step(&n, BATCH, &report) == GCKPT_OK);
    uint64_t done = gckpt_store_hash(s);
    stop(&n);
    int cancelled = 0, finished = 0;
    for (int at = 0; at < 60; at++) {
        canceller c = { at, 0, 0 };
        gckpt_exec_desc bind = no_desc();
        bind.progress = cancels;
        bind.user = &c;
        n = start(&desc, &bind);
        uint64_t before = gckpt_store_hash(s);
        gckpt_result result = step(&n, BATCH, &report);
        if (result ==
            GCKPT_CANCELLED) { /* the callback before the first update is the last one that can cancel the step */
            cancelled++;
            CHECK(c.updates <= 1 && c.calls == at + 1);
            CHECK(gckpt_store_hash(s) == before && gckpt_store_step(s) == 0 &&
                  gckpt_next_instruction(n.e).id == -1);
            ERROR_IS(n.e, GCKPT_CANCELLED, "nothing was changed");
            c.at = 1000;
            CHECK(step(&n, BATCH, &report) == GCKPT_OK && gckpt_store_hash(s) == done);
        } else { /* a step cannot be cancelled any more once updates have begun */
            finished++;
            CHECK(result == GCKPT_OK && gckpt_store_hash(s) == done && c.updates == 2);
        }
        stop(&n);
    }
    CHECK_MSG(cancelled >= 20 && finished >= 20, "%d, %d", cancelled, finished);
}

/* ---- planning: the request ---- */
static void plan_refused(int line, const net *n, const gckpt_term *terms, int count,
                         const gckpt_plan_desc *d, const char *text)
{
    gckpt_plan *p = gckpt_plan_new(g, terms, count, d);
    CHECK_MSG(!p, "line %d: not refused", line);
    check_error(line, g, E_A, text);
    gckpt_plan_free(p);
    p = gckpt_plan_new(g, n->terms, 1, NULL); /* after the refusal, the graph must still be usable */
    CHECK_MSG(p && gckpt_error(g) == GCKPT_OK, "line %d", line);
    gckpt_plan_free(p);
}

static void requests(void)
{
    begin();
    net n = build();
    gckpt_term t[2];
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(C, C), ones());
    gckpt_tensor *decay = gckpt_sum_loss(gckpt_mul(w, w));
    gckpt_cost costs[2] = { { 1, 1 }, { 1, 1 } };
    gckpt_fetch_spec fetch = { NULL, 0 };
    gckpt_instruction in = { GCKPT_FORWARD, 0 };
#define PLAN_REFUSED(field, value, text)                                                           \
    do {                                                                                           \
        gckpt_plan_desc d = batch_of(0);                                                           \
        d.field = value;                                                                           \
        plan_refused(__LINE__, &n, n.terms, 1, &d, text);                                          \
    } while (0)
    PLAN_REFUSED(mode, (gckpt_mode)42, "plan: desc.mode is 42; allowed is 0 to 7");
    PLAN_REFUSED(mode, (gckpt_mode)-1, "desc.mode is -1; allowed is 0 to 7");
    PLAN_REFUSED(optimiser, (gckpt_optimiser)4, "desc.optimiser is 4; allowed is 0 to 3");
    PLAN_REFUSED(custom_state, -1, "desc.custom_state is -1; allowed is 0 to 4");
    PLAN_REFUSED(custom_state, 5, "desc.custom_state is 5; allowed");
    PLAN_REFUSED(threads, -1, "desc.threads is -1; allowed is 0 to 1024");
    PLAN_REFUSED(threads, 1025, "desc.threads is 1025");
    PLAN_REFUSED(schedule.segment_size, INT32_MIN,
                 "desc.schedule.segment_size is -2147483648; allowed is -2147483647 or more");
    PLAN_REFUSED(batch, -1, "desc.batch is -1; allowed is 0 or more");
    PLAN_REFUSED(bf16.precision, GCKPT_BF16_FAST, "the processor has no kernels of GCKPT_BF16_FAST; GCKPT_BF16");
    PLAN_REFUSED(bf16.precision, (gckpt_precision)3, "desc.bf16.precision is 3; allowed is 0 to 2");
    PLAN_REFUSED(update_in_backward, 3, "desc.update_in_backward is 3; allowed is 0 to 1");
    PLAN_REFUSED(kernels.alignment, 3, "desc.kernels.alignment must be a power of two from 4 to 65536");
    PLAN_REFUSED(kernels.alignment, 2, "alignment must be");
    PLAN_REFUSED(kernels.alignment, 131072, "alignment must be");
    PLAN_REFUSED(fetch.count, -1, "desc.fetch.count is -1; allowed is 0 or more");
    PLAN_REFUSED(fetch.count, 1, "desc.fetch.count is not 0, but desc.fetch.specs is NULL");
    PLAN_REFUSED(mode, GCKPT_SCHEDULE, "GCKPT_SCHEDULE needs desc.schedule.instructions and");
    gckpt_plan_desc d = batch_of(0);
    d.mode = GCKPT_SCHEDULE;
    d.schedule.instructions = &in;
    plan_refused(__LINE__, &n, n.terms, 1, &d, "as its length, desc.schedule.count");
    d.schedule.count = -1;
    plan_refused(__LINE__, &n, n.terms, 1, &d, "as its length, desc.schedule.count");
    const gckpt_instruction wrong[] = { { GCKPT_FORWARD, -1 },
                                        { GCKPT_FORWARD, 1000 },
                                        { GCKPT_UPDATE, gckpt_id(n.hidden) },
                                        { GCKPT_FORWARD, gckpt_id(n.tokens) },
                                        { GCKPT_BACKWARD, -1 },
                                        { GCKPT_BACKWARD, 1000 },
                                        { GCKPT_BEGIN, gckpt_id(n.hidden) },
                                        { GCKPT_NEXT, gckpt_id(n.hidden) },
                                        { GCKPT_BARRIER, gckpt_id(n.hidden) },
                                        { (gckpt_kind)(GCKPT_BARRIER + 1), gckpt_id(n.hidden) } };
    d.schedule.count = 1;
    for (int i = 0; i < 10; i++) {
        d.schedule.instructions = &wrong[i];
        plan_refused(__LINE__, &n, n.terms, 1, &d, "is no op that its kind can run");
    }
    d = batch_of(0);
    d.costs.by_id = costs;
    d.costs.count = 2;
    plan_refused(__LINE__, &n, n.terms, 1, &d, "desc.costs must have a cost for each tensor");
    d.costs.count = -1;
    plan_refused(__LINE__, &n, n.terms, 1, &d, "desc.costs must have a cost for each tensor");
    d = batch_of(BATCH);
    d.update_in_backward = 1;
    plan_refused(__LINE__, &n, n.terms, 1, &d,
                 "update_in_backward needs the whole batch in one micro-batch");
    d = batch_of(0);
    d.update_in_backward = 1;
    d.mode = GCKPT_INFERENCE;
    plan_refused(__LINE__, &n, n.terms, 1, &d, "update_in_backward needs");
    plan_refused(__LINE__, &n, NULL, 1, NULL, "plan: terms is NULL, or their count is negative");
    plan_refused(__LINE__, &n, n.terms, -1, NULL, "plan: terms is NULL, or their count is negative");
    plan_refused(__LINE__, &n, NULL, 0, NULL, "training needs at least one loss term");
    d = batch_of(0);
    d.mode = GCKPT_INFERENCE;
    plan_refused(__LINE__, &n, NULL, 0, &d, "inference a term or a fetch");
    d.fetch.specs = &fetch;
    d.fetch.count = 1;
    plan_refused(__LINE__, &n, NULL, 0, &d, "fetch 0 is NULL");
    fetch.tensor = n.tokens;
    plan_refused(__LINE__, &n, NULL, 0, &d, "fetch 0: input \"tokens\" is not the result of an op");
    fetch.tensor = n.terms[0].loss;
    plan_refused(__LINE__, &n, NULL, 0, &d, "is not the result of an op");
    fetch.tensor = n.hidden, fetch.gradient = 1;
    plan_refused(__LINE__, &n, NULL, 0, &d, "has no gradient");
    d.mode = GCKPT_AUTO;
    fetch.tensor = n.tokens;
    plan_refused(__LINE__, &n, n.terms, 1, &d, "has no gradient");
    fetch.tensor = n.terms[0].loss;
    plan_refused(__LINE__, &n, n.terms, 1, &d, "has no gradient");

    t[0] = n.terms[0], t[1] = n.terms[0];
    plan_refused(__LINE__, &n, t, 2, NULL, "terms 0 and 1 are the same loss");
    t[1].loss = NULL;
    plan_refused(
        __LINE__, &n, t, 2, NULL,
        "the loss of term 1 is NULL, as ops that are given NULL return NULL; "
        "the last tensor that was made in this graph is sum_loss #");
    gckpt_graph *empty = gckpt_graph_new(s, NULL);
    CHECK(gckpt_plan_new(empty, &t[1], 1, NULL) == NULL);
    ERROR_IS(empty, E_A, "the loss of term 0 is NULL, and the graph has no tensor");
    gckpt_graph_free(empty);
    t[1].loss = n.hidden;
    plan_refused(__LINE__, &n, t, 2, NULL, "is not a loss; gckpt_sum_loss makes one");
    t[1].loss = decay;
    plan_refused(__LINE__, &n, t, 2, NULL, "depends on parameters only; mark it as regulariser");
    t[0].loss = decay;
    plan_refused(__LINE__, &n, t, 1, NULL,
                 "term 0 must depend on an input: its count divides gradients");
    t[0].regulariser = 1;
    gckpt_plan *constant =
        gckpt_plan_new(g, t, 1, &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE }); /* inference takes no loss */
    CHECK_MSG(constant != NULL, "%s", gckpt_error_text(g));
    gckpt_plan_free(constant);
    t[0] = n.terms[0], t[0].regulariser = 1;
    plan_refused(__LINE__, &n, t, 1, NULL, "term 0 must depend on an input: its count divides");
    t[0] = n.terms[0], t[1].loss = gckpt_sum_loss(n.hidden), t[1].regulariser = 1;
    plan_refused(__LINE__, &n, t, 2, NULL, "a regulariser may depend on parameters only");
    t[0].weight = NAN;
    plan_refused(__LINE__, &n, t, 1, NULL, "the weight of term 0 is not finite");
    t[0].weight = -INFINITY;
    plan_refused(__LINE__, &n, t, 1, NULL, "the weight of term 0 is not finite");
    gckpt_graph *other = gckpt_graph_new(s, NULL);
    t[0].weight = 1;
    t[0].loss = gckpt_sum_loss(gckpt_input(other, "x", GCKPT_F32, gckpt_shape1(2)));
    plan_refused(__LINE__, &n, t, 1, NULL, "the loss of term 0 is of another graph");
    d = batch_of(0);
    d.fetch.specs = &fetch, d.fetch.count = 1;
    fetch.tensor = NULL, fetch.gradient = 1;
    plan_refused(__LINE__, &n, n.terms, 1, &d, "fetch 0 is NULL");
    fetch.gradient = 0;
    fetch.tensor = gckpt_relu(gckpt_input(other, "y", GCKPT_F32, gckpt_shape1(2)));
    plan_refused(__LINE__, &n, n.terms, 1, &d, "fetch 0 is of another graph");
    gckpt_graph_free(other);
    gckpt_segment_begin(g);
    CHECK(!gckpt_plan_new(g, n.terms, 1, NULL));
    ERROR_IS(g, E_A, "a segment is still open");
    gckpt_segment_end(g);

    /* calls the getters of a plan with indices out of range */
    gckpt_plan *p = gckpt_plan_new(g, n.terms, 1, NULL);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    gckpt_buffer buffer;
    gckpt_usage usage;
    gckpt_parameter parameter;
    const int last[] = { info.instructions, info.buffers, gckpt_store_count(s) };
    CHECK(gckpt_plan_get(p, -1, &in) == E_A && gckpt_plan_get(p, last[0], &in) == E_A &&
          gckpt_plan_get(p, 0, NULL) == E_A);
    CHECK(gckpt_plan_get(p, last[0] - 1, &in) == GCKPT_OK && in.kind == GCKPT_UPDATE);
    CHECK(gckpt_plan_buffer(p, -1, &buffer) == E_A &&
          gckpt_plan_buffer(p, last[1], &buffer) == E_A);
    CHECK(gckpt_plan_buffer(p, 0, NULL) == E_A &&
          gckpt_plan_buffer(p, last[1] - 1, &buffer) == GCKPT_OK);
    CHECK(gckpt_store_get(s, -1, &parameter) == E_A &&
          gckpt_store_get(s, last[2], &parameter) == E_A);
    CHECK(gckpt_store_get(s, 0, NULL) == E_A &&
          gckpt_store_get(s, last[2] - 1, &parameter) == GCKPT_OK);
    CHECK(gckpt_store_find(s, NULL) == -1 && gckpt_store_find(s, "nobody") == -1);
    CHECK(gckpt_plan_kind_bytes(p, -1) == 0 && gckpt_plan_kind_bytes(p, GCKPT_BYTES_KINDS) == 0);
    CHECK(!*gckpt_plan_name(p, -1) && !*gckpt_plan_name(p, 1000) &&
          !strcmp(gckpt_plan_name(p, 0), "tokens"));
    CHECK(!*gckpt_plan_op(p, -1) && !*gckpt_plan_op(p, 1000) && !*gckpt_plan_op(p, 0));
    CHECK(gckpt_plan_usage(p, -1, &usage) == E_A && gckpt_plan_usage(p, last[0], &usage) == E_A &&
          gckpt_plan_usage(p, 0, NULL) == E_A);
    CHECK(gckpt_plan_usage(p, last[0] - 1, &usage) == GCKPT_OK && usage.cost == 0);
    CHECK(print_plan(p, NULL, NULL) == E_A);
    CHECK(print_trace(p, NULL, NULL) == E_A);
    CHECK(gckpt_plan_c(p, "x", NULL, NULL) == E_A);
    CHECK(gckpt_plan_c(p, NULL, swallow, NULL) == E_A && gckpt_plan_params(p, NULL) == E_A);
    gckpt_plan_free(p);

    gckpt_frontier *f = gckpt_frontier_new(g, n.terms, 1, NULL);
    gckpt_point point;
    CHECK(f && gckpt_frontier_get(f, -1, &point) == E_A && gckpt_frontier_get(f, 0, NULL) == E_A);
    CHECK(gckpt_frontier_get(f, gckpt_frontier_describe(f).points, &point) == E_A &&
          gckpt_frontier_find(f, 1) == -1);
    CHECK(print_frontier(f, 0, NULL, NULL) == E_A);
    CHECK(print_frontier_json(f, 0, NULL, NULL) == E_A && !gckpt_frontier_plan(f, 1));
    ERROR_IS(g, GCKPT_E_BUDGET, "");
    gckpt_frontier_free(f);
    CHECK(!gckpt_frontier_new(g, NULL, 0, NULL));
    ERROR_IS(g, E_A, "training needs at least one loss term");
}

/* ---- stores ---- */
static void stores(void)
{
    begin();
    CHECK(gckpt_store_freeze(s, "*", 1) == E_A);
    ERROR_IS(s, E_A, "no parameter matches \"*\" (of 0;");
    CHECK(gckpt_store_freeze(s, NULL, 1) == E_A && gckpt_store_group(s, "w", 1, 1) == E_A);
    CHECK(gckpt_store_reset(s, "w") == E_A);
    build();
    CHECK(gckpt_store_freeze(s, "table**", 1) == GCKPT_OK &&
          gckpt_store_freeze(s, "table*?", 1) == E_A);
    CHECK(gckpt_store_freeze(s, "t?b*e", 1) == GCKPT_OK && gckpt_store_freeze(s, "tabl", 1) == E_A);
    CHECK(gckpt_store_freeze(s, "table?", 1) == E_A && gckpt_store_freeze(s, "*x*", 1) == E_A);
    CHECK(gckpt_store_freeze(s, "*a*l*", 0) == GCKPT_OK &&
          gckpt_store_freeze(s, "**", 0) == GCKPT_OK);
    CHECK(gckpt_store_external(s, NULL, sizes(1), numbers, 0) == E_A &&
          gckpt_store_external(s, "x", sizes(1), NULL, 0) == E_A);
    ERROR_IS(s, E_A, "store, name and values are needed");
    CHECK(gckpt_store_external(s, "", sizes(1), numbers, 0) == E_A);
    ERROR_IS(s, E_A, "the name is reserved");
    CHECK(gckpt_store_external(s, "x", gckpt_shape1(0), numbers, 0) == E_S);
    ERROR_IS(s, E_S, "sizes must be positive");
    CHECK(gckpt_store_external(s, "w", sizes(1), numbers, 0) == E_A);
    ERROR_IS(s, E_A, "external parameter \"w\" exists already");
    CHECK(gckpt_store_external(s, "x", sizes(1), numbers, 0) == GCKPT_OK &&
          gckpt_error(s) == GCKPT_OK);
    CHECK(gckpt_store_write(s, NULL, NULL, NULL) == E_A && gckpt_store_read(s, NULL, NULL, 8, NULL) == E_A);
    CHECK(gckpt_store_save(s, NULL, NULL) == E_A && gckpt_store_load(s, NULL, NULL) == E_A);
    ERROR_IS(s, E_A, "load: a store and a path are needed");
    /* names that are invalid UTF-8 in different ways, then the longest valid names */
    static const char *const bad[] = {
        "\x80",
        "\xc3",
        "\xc1\xbf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf8\x88\x80\x80",
        "\xe2\x82",
        "\xc3(",
    };
    static const char *const good[] = { "\xc3\xa9",         "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                        "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "w#state",
                                        "#stateX",          "w#state10" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(gckpt_store_external(s, bad[i], sizes(1), numbers, 0) == E_A, "bad name %d",
                  (int)i);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_MSG(gckpt_store_external(s, good[i], sizes(1), numbers, 0) == GCKPT_OK,
                  "good name %d", (int)i);
}

/* ---- numbers in texts ---- */
static void number(double x, const char *want)
{
    char got[40];
    gckpti_text t = { got, sizeof got - 1 };
    gckpti_text_add(&t, "%g", x);
    CHECK_MSG(!strcmp(got, want), "%s, not %s", got, want);
}

static void texts(void)
{
    number(0, "0"), number(-0.0, "0"), number(1, "1"), number(-1.5, "-1.5");
    number((double)NAN, "nan");
    number((double)INFINITY, "inf"), number((double)-INFINITY, "-inf");
    number(0.5, "0.5"), number(0.0123457, "0.0123457"), number(12345.7, "12345.7"),
        number(999999.6, "1000000");
    number(1e9, "1e9"), number(123456789, "123457000"), number(1e-9, "1e-9"),
        number(-1.5e-9, "-1.5e-9");
    number(1.25e300, "1.25e300"), number(0.0001, "0.0001"), number(0.00001, "1e-5"),
        number(0.00000123, "1.23e-6");
    number(DBL_MAX, "1.79769e308"), number(1e-300, "1e-300"), number((double)0.1f, "0.1"),
        number(9.999999, "10");
    number(100, "100"), number(1000000, "1000000");
    const gckpt_shape one = gckpt_shape1(3);
    char small[8]; /* a buffer that is too small gets the beginning of the text, terminated */
    gckpti_text t = { small, sizeof small - 1 };
    gckpti_text_add(&t, "%s%i%S", "abcde", -12345, &one);
    CHECK(!strcmp(small, "abcde-1"));
    number(5e-324, "4.94066e-324");
}

/* ---- user ops: arguments of kernels; side effects ---- */
static struct {
    int runs, backwards, wrong;
    float scale; /* gradient of the loss that its last backward received */
} observed;

static void counts(const gckpt_call *call)
{
    observed.runs++;
    if (call->out) /* no op reads the result, so it need not be written */
        copies(call);
}
static void once_forward(
    const gckpt_call *call) /* The op has a parameter as its input, so it runs on 1 row, however large the batch is. */
{
    observed.runs++;
    observed.wrong += call->first_row != 0 || call->rows != 1;
    memcpy(call->out, call->in[0].data, 3 * sizeof(float));
}
static void once_backward(const gckpt_call *call)
{
    observed.backwards++;
    observed.wrong += call->first_row != 0 || call->rows != 1;
    for (int i = 0; i < 3 && call->in[0].grad; i++)
        call->in[0].grad[i] =
            (call->in[0].accumulate ? call->in[0].grad[i] : 0) + call->grad_out[i];
}
static void pass_backward(const gckpt_call *call)
{
    observed.backwards++;
    for (int64_t i = 0; i < 3 * call->rows && call->in[0].grad; i++)
        call->in[0].grad[i] =
            (call->in[0].accumulate ? call->in[0].grad[i] : 0) + call->grad_out[i];
}

static void side_effects(void)
{
    static gckpt_op op, once;
    op = user_op("telling", same_shape);
    op.forward = counts;
    op.backward = pass_backward;
    op.flags = GCKPT_SIDE_EFFECT;
    once = op;
    once.flags = 0;
    once.forward = once_forward;
    once.backward = once_backward;
    /* In kinds 0, 2 and 3, another op reads `mid`, the result of the op; in kind 1, no op does. Kind 2 calls
     * gckpt_recompute for `mid`, kind 3 gckpt_keep. */
    for (int kind = 0; kind < 4; kind++)
        for (int mode = GCKPT_AUTO; mode <= GCKPT_INFERENCE; mode++) {
            if (mode == GCKPT_SCHEDULE)
                continue;
            begin();
            gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3));
            gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(3), ones());
            gckpt_segment_begin(g);
            gckpt_tensor *h = gckpt_mul(x, apply(&once, w));
            gckpt_tensor *mid = apply(&op, gckpt_tanh(h));
            h = kind == 1 ? gckpt_tanh(h) : gckpt_mul(mid, mid);
            if (kind == 2)
                gckpt_recompute(mid);
            if (kind == 3)
                gckpt_keep(mid);
            gckpt_segment_end(g);
            for (int i = 0; i < 6; i++)
                h = gckpt_gelu(gckpt_mul(gckpt_tanh(h), w));
            gckpt_term loss = { gckpt_sum_loss(h), 1, 0 };
            gckpt_plan_desc desc = batch_of(mode == GCKPT_INFERENCE ? 0 : BATCH);
            desc.mode = (gckpt_mode)mode;
            if (mode == GCKPT_OPTIMAL) { /* the smallest budget */
                desc.budget = 1;
                gckpt_plan_free(gckpt_plan_new(g, &loss, 1, &desc));
                desc.budget = util_least_budget(g);
            }
            gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
            gckpt_exec *e = gckpt_exec_new(p, s, NULL);
            gckpt_feed feed = { gckpt_id(x), numbers };
            gckpt_hyper rates = rate(0.1f);
            memset(&observed, 0, sizeof observed);
            gckpt_result result = mode == GCKPT_INFERENCE
                                      ? gckpt_forward(e, &feed, 1, BATCH, NULL)
                                      : gckpt_step(e, &feed, 1, BATCH, &rates, NULL);
            CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e ? (void *)e : (void *)g));
            int others = mode == GCKPT_INFERENCE ? BATCH / ROWS : 1; /* number of runs of the op `once` */
            CHECK_MSG(observed.runs == BATCH / ROWS + others, "kind %d, mode %d: %d runs", kind, mode,
                      observed.runs - others);
            CHECK(observed.wrong == 0);
            gckpt_exec_free(e);
            gckpt_plan_free(p);
        }
}

/* A user-defined loss with index targets, all of which may be ignored. */
static gckpt_result hit_shape(gckpt_call *call)
{
    (void)call;
    return GCKPT_OK;
}
static void hit_forward(const gckpt_call *call)
{
    for (int64_t i = 0; i < call->rows; i++)
        if (call->in[1].index[i] >= 0 && call->loss_sum && call->loss_count) {
            *call->loss_sum += (double)call->in[0].data[i];
            *call->loss_count += 1;
        }
}
static void hit_backward(const gckpt_call *call)
{
    observed.scale = call->loss_scale;
    for (int64_t i = 0; i < call->rows && call->in[0].grad; i++)
        call->in[0].grad[i] = (call->in[0].accumulate ? call->in[0].grad[i] : 0) +
                              (call->in[1].index[i] >= 0 ? call->loss_scale : 0);
}
static int64_t ten(const gckpt_call *call, int i)
{
    (void)call;
    return i == 1 ? 10 : 1;
}
/* A loss whose forward counts something else than the valid targets in its feeds. */
static void wrong_forward(const gckpt_call *call)
{
    hit_forward(call);
    if (call->loss_count)
        *call->loss_count += 1;
}

static void user_losses(void)
{
    static gckpt_op op;
    static const int32_t none[ROWS] = { -1, -7 }, one[ROWS] = { 3, -1 }, both[ROWS] = { 9, 0 };
    static const int32_t *const fed[] = { none, one, both };
    for (int wrong = 0; wrong < 2; wrong++)
        for (int i = 0; i < 3; i++) {
            begin();
            op = user_op("hit", hit_shape);
            op.forward = wrong ? wrong_forward : hit_forward;
            op.backward = hit_backward;
            op.classes = ten;
            op.flags = GCKPT_LOSS | GCKPT_INDEX(1);
            gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape1(ROWS));
            gckpt_tensor *in[2] = { gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(1), ones())),
                                    gckpt_input(g, "hits", GCKPT_I32, gckpt_shape1(ROWS)) };
            gckpt_term terms[2] = { { gckpt_sum_loss(in[0]), 1, 0 },
                                    { gckpt_apply(&op, in, 2, NULL, 0), 3, 0 } };
            gckpt_plan *p = gckpt_plan_new(g, terms, 2, NULL);
            gckpt_exec *e = gckpt_exec_new(p, s, NULL);
            gckpt_feed feeds[2] = { { gckpt_id(x), numbers }, { gckpt_id(in[1]), fed[i] } };
            gckpt_hyper h = rate(0.1f);
            gckpt_report report;
            observed.scale = -1;
            gckpt_result result = gckpt_step(e, feeds, 2, ROWS, &h, &report);
            CHECK_MSG(result == (wrong ? GCKPT_E_DATA : GCKPT_OK), "%s", gckpt_error_text(e));
            if (wrong)
                ERROR_IS(e, GCKPT_E_DATA, "A loss with a count of its own must be the plan's only loss");
            else
                CHECK(report.loss == report.loss && report.grad_norm == report.grad_norm &&
                      report.count == ROWS);
            /* scale of the second loss: its weight * count of the first loss / its own count, and 0 (not infinity)
             * if that count is 0 */
            const float want[] = { 0, 3 * 2, 3 };
            CHECK_MSG(observed.scale == want[i], "%g", (double)observed.scale);
            gckpt_exec_free(e);
            gckpt_plan_free(p);
        }
}

/* Tests that the cost of attention is proportional to the number of pairs of a query and a visible key. */
static void attention_cost(void)
{
    for (int t = 1; t < 70; t += 3) {
        gckpt_call call;
        int keys = t + t % 5;
        uint64_t flops[2], causal = 0;
        for (int i = 0; i < 2; i++) {
            gckpti_attention o = { 2, i, 0, 0, 0, 0, 0 };
            memset(&call, 0, sizeof call);
            call.attributes = &o;
            call.shape = call.in[0].shape = gckpt_shape3(3, t, 8);
            call.in[1].shape = call.in[2].shape = gckpt_shape3(3, keys, 8);
            flops[i] = gckpti_op_attention.flops(&call);
        }
        for (int q = 0; q < t; q++)
            for (int k = 0; k <= keys - t + q; k++)
                causal++;
        CHECK_MSG(flops[0] > 0 && flops[1] * (uint64_t)(t * keys) == flops[0] * causal,
                  "T = %d: %lu, %lu", t, (unsigned long)flops[0], (unsigned long)flops[1]);
        for (int window = 1; window <= keys; window += 1 + window / 3) {
            const gckpti_attention o = { 2, 1, 0, 1, window, 0, 0 };
            uint64_t seen = 0;
            for (int q = 0; q < t; q++)
                seen += (uint64_t)(keys - t + q + 1 < window ? keys - t + q + 1 : window);
            call.attributes = &o;
            CHECK_MSG(gckpti_op_attention.flops(&call) * causal == flops[1] * seen, "T = %d, window %d", t, window);
        }
    }
}

/* Tests costs whose sum is too large, and values whose sum of bytes no machine can address. */
static void large(void)
{
    begin();
    net n = build();
    static gckpt_cost costs[64];
    gckpt_plan_desc desc = batch_of(0);
    desc.costs.by_id = costs;
    desc.costs.count = gckpt_id(n.terms[0].loss) + 1;
    for (int i = 0; i < 2; i++) {
        memset(costs, 0, sizeof costs);
        for (int k = 0; k < desc.costs.count; k++)
            *(i ? &costs[k].forward : &costs[k].backward) = UINT64_MAX / 2;
        CHECK(!gckpt_plan_new(g, n.terms, 1, &desc));
        ERROR_IS(g, E_A, "adds up to more than 9007199254740992; give costs in a larger unit");
        for (int k = 0; k < desc.costs.count; k++)
            costs[k].forward = costs[k].backward = UINT64_C(1) << 52;
        CHECK(!gckpt_plan_new(g, n.terms, 1, &desc));
        ERROR_IS(g, E_A, "adds up to more than 9007199254740992");
    }
    desc.costs.by_id = NULL;

    begin(); /* 6000 values of 2^52 bytes each: store-all exceeds the address space, and 1 MB is too small a budget */
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *h = gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(1), ones()));
    const int64_t wide = INT64_C(1) << 50;
    gckpt_tensor *big = constant(GCKPT_F32, gckpt_shape2(1, wide));
    gckpt_tensor *sum = NULL;
    for (int i = 0; i < 3000; i++)
        sum = gckpt_tanh(gckpt_add(i ? sum : h, big));
    gckpt_term term = { gckpt_sum_loss(sum), 1, 0 };
    desc = batch_of(0);
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_AUTO, GCKPT_OPTIMAL };
    for (int i = 0; i < 3; i++) {
        desc.mode = modes[i];
        desc.budget = i ? 1000000 : 0;
        gckpt_plan *q = gckpt_plan_new(g, &term, 1, &desc);
        CHECK_MSG(!q && gckpt_error(g) != GCKPT_OK, "mode %d", i);
        gckpt_plan_free(q);
    }
}

/* ---- a processor in another floating-point mode: gckpt_store_new must fail ---- */
static void wrong_modes(void)
{
#ifdef __SSE2__
    const unsigned usual = _mm_getcsr();
    static const unsigned modes[] = { 0x8000, 0x2000, 0x4000,
                                      0x6000 }; /* flush to zero; rounding */
    for (int i = 0; i < 4; i++) {
        end();
        _mm_setcsr(usual | modes[i]);
        s = gckpt_store_new(NULL);
        _mm_setcsr(usual);
        ERROR_IS(s, GCKPT_E_BACKEND, "self-test ");
        g = gckpt_graph_new(s, NULL);
        CHECK(!f1(3));
        ERROR_IS(g, GCKPT_E_BACKEND, "self-test ");
        static file none;
        CHECK(gckpt_store_read(s, file_read, &none, 0, NULL) == GCKPT_E_BACKEND);
        CHECK(gckpt_store_freeze(s, "*", 1) == E_A);
        ERROR_IS(s, GCKPT_E_BACKEND, "self-test "); /* the error is kept */
    }
    begin();
    net n = build();
    n.p = gckpt_plan_new(g, n.terms, 1, NULL);
    _mm_setcsr(usual | 0x8000);
    gckpt_store *broken = gckpt_store_new(NULL);
    _mm_setcsr(usual);
    CHECK(gckpt_plan_params(n.p, broken) == GCKPT_E_BACKEND && gckpt_store_count(broken) == 0);
    gckpt_store_free(broken);
    stop(&n);
#endif
}

/* ---- allocation number n fails while a graph is built ---- */
static void no_memory(void)
{
    static gckpt_op op;
    static int word;
    heap h;
    int whole = 0;
    memset(&h, 0, sizeof h);
    for (int n = 0; n < 400 && !whole; n++) {
        gckpt_store_desc desc = { heap_memory(&h), 0 };
        end();
        memset(&h, 0, sizeof h);
        h.fail_from = n + 1;
        s = gckpt_store_new(&desc);
        g = gckpt_graph_new(s, &desc.memory);
        gckpt_result bound = gckpt_store_external(s, "flash", gckpt_shape1(3), numbers, 0);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 3)), *first = x;
        for (int i = 0; i < 60; i++) {
            char name[300];
            memset(name, 'n', sizeof name - 1);
            snprintf(name + 280, 19, "%d", i);
            x = gckpt_add(x, gckpt_param(g, name, gckpt_shape1(3), ones()));
            x = gckpt_name(gckpt_reshape(x, gckpt_shape2(-1, 3)), name);
            x = gckpt_slice(x, 1, 0, 3);
        }
        whole = x && bound == GCKPT_OK;
        CHECK(whole || !s || !g || gckpt_error(g) == GCKPT_E_MEMORY || bound == GCKPT_E_MEMORY ||
              !first);
        CHECK(!s || bound == GCKPT_OK || bound == GCKPT_E_MEMORY);
        CHECK(!g || x || gckpt_error(g) == GCKPT_E_MEMORY);
    }
    CHECK(whole && h.wrong_sizes == 0);
    begin(); /* more than any memory */
    op = user_op("mine", same_shape);
    gckpt_tensor *x = f1(3);
    refused(__LINE__, gckpt_apply(&op, &x, 1, &word, SIZE_MAX - 3), GCKPT_E_MEMORY,
            "graph: no memory for ");
}

/* ---- requests that are only refused when a plan is made ---- */
static gckpt_result one_thread(gckpt_call *call)
{
    call->workspace_forward = call->threads > 2 ? SIZE_MAX / 2 : 0;
    call->workspace_backward = call->threads > 3 ? SIZE_MAX / 2 : 0;
    return call->threads > 1 && call->threads != 3 ? GCKPT_E_SHAPE : same_shape(call);
}

static void plans_refused(void)
{
    static gckpt_op op;
    const gckpt_init normal = { 0.5f, 0, 0 };
    begin();
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(ROWS));
    refused(__LINE__, gckpt_linear_cross_entropy(x, gckpt_reshape(x, gckpt_shape2(ROWS, 3)), y, NULL),
            E_A, "depends on the batch; it must be a function of parameters");

    begin();
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(3), normal);
    op = user_op("alone", one_thread);
    op.backward = pass_backward;
    gckpt_term terms[2] = { { gckpt_sum_loss(apply(&op, gckpt_mul(x, w))), 1, 0 }, { NULL, 1, 0 } };
    for (int threads = 1; threads < 5; threads++) {
        gckpt_plan_desc desc = batch_of(0);
        desc.threads = threads;
        gckpt_plan *p = gckpt_plan_new(g, terms, 1, &desc);
        CHECK((p != NULL) == (threads == 1));
        if (!p)
            ERROR_IS(g, E_S, "cannot be planned for ");
        gckpt_plan_free(p);
    }

    /* schedules without the forward of a loss, with a backward before the forward, and with a missing instruction */
    begin();
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3));
    w = gckpt_param(g, "w", gckpt_shape1(3), normal);
    gckpt_tensor *h = gckpt_mul(x, w), *t = gckpt_tanh(h), *idle = gckpt_tanh(x);
    y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(ROWS));
    terms[0].loss = gckpt_cross_entropy(t, y, NULL, 0);
    terms[1].loss = gckpt_sum_loss(idle); /* depends on no parameter */
    const gckpt_instruction F = { GCKPT_FORWARD, 0 }, Bw = { GCKPT_BACKWARD, 0 };
    gckpt_instruction list[8];
    const gckpt_tensor *of[] = { h, t, terms[0].loss, terms[0].loss, t, h, idle, terms[1].loss };
    for (int i = 0; i < 8; i++) {
        list[i] = i < 3 || i > 5 ? F : Bw;
        list[i].id = gckpt_id(of[i]);
    }
    gckpt_plan_desc desc = batch_of(0);
    desc.mode = GCKPT_SCHEDULE;
    desc.schedule.instructions = list;
    desc.schedule.count = 8;
    gckpt_plan *p = gckpt_plan_new(g, terms, 2, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_plan_free(p);
    desc.update_in_backward = 1;
    CHECK(!gckpt_plan_new(g, terms, 2, &desc));
    ERROR_IS(g, E_A, "with update_in_backward all losses come first");
    desc.update_in_backward = 0;
    desc.schedule.count = 6;
    CHECK(!gckpt_plan_new(g, terms, 2, &desc));
    ERROR_IS(g, E_A, "needs a forward");
    desc.schedule.count = 7; /* the forward of `idle`, which the second loss reads, is missing */
    list[6] = list[7];
    CHECK(!gckpt_plan_new(g, terms, 2, &desc) && gckpt_error(g) == E_A);
    desc.schedule.count = 5;
    CHECK(!gckpt_plan_new(g, terms, 1, &desc));
    ERROR_IS(g, E_A, "needs a forward and a backward");
    desc.schedule.count = 6;
    gckpt_instruction swap = list[2]; /* exchanges forward and backward of the loss, so that the backward comes first */
    list[2] = list[3], list[3] = swap;
    CHECK(!gckpt_plan_new(g, terms, 1, &desc));
    ERROR_IS(g, E_A, "before any forward");
    list[3] = list[2], list[2] = swap;
    swap = list[0]; /* exchanges the first two forwards, so that one comes before the forward of its input */
    list[0] = list[1], list[1] = swap;
    CHECK(!gckpt_plan_new(g, terms, 1, &desc) && gckpt_error(g) == E_A);

    begin(); /* more bytes to keep than the search can count */
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 1));
    h = gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(1), normal));
    for (int i = 0; i < 6; i++)
        h = gckpt_tanh(gckpt_add(h, constant(GCKPT_F32, gckpt_shape2(1, INT64_C(1) << 42))));
    terms[0].loss = gckpt_sum_loss(h);
    static gckpt_cost costs[64];
    desc = batch_of(0);
    desc.costs.by_id = costs;
    desc.costs.count = gckpt_id(terms[0].loss) + 1;
    desc.budget = (size_t)1 << 40;
    CHECK(!gckpt_plan_new(g, terms, 1, &desc));
    ERROR_IS(g, GCKPT_E_MEMORY, "more than the search can handle");
    desc.budget = 0;
    CHECK(!gckpt_frontier_new(g, terms, 1, &desc));
    ERROR_IS(g, GCKPT_E_MEMORY, "more than the search can handle");

    begin(); /* a view that divides rows prevents an exact split: its name or its reader's is returned */
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 3));
    h = gckpt_name(gckpt_reshape(gckpt_mul(x, gckpt_param(g, "w", gckpt_shape1(3), normal)),
                                 gckpt_shape2(3, ROWS)),
                   "cut");
    terms[0].loss = gckpt_sum_loss(gckpt_tanh(h));
    p = gckpt_plan_new(g, terms, 1, NULL);
    const char *name = "";
    CHECK(!gckpt_plan_split_exact(p, &name) && name &&
          (!strcmp(name, "cut") || !strcmp(name, "tanh")));
    gckpt_plan_free(p);
}

/* Tests that a store is not written if the header of the file would exceed 100 MB. */
static void long_names(void)
{
    const size_t n = (size_t)18 << 20;
    char *name = (char *)malloc(n);
    memset(name, 1, n); /* a character that takes six bytes in JSON */
    name[n - 1] = 0;
    begin();
    CHECK(gckpt_store_external(s, name, gckpt_shape1(3), numbers, 0) == GCKPT_OK);
    CHECK(gckpt_store_write(s, swallow, NULL, NULL) == GCKPT_E_DATA);
    ERROR_IS(s, GCKPT_E_DATA, "use shorter names");
    end();
    free(name);
}

/* Tests that the backward of every op, if none of its gradients is used, writes nothing but workspace. */
static void no_gradient(void)
{
#define OP(name, part) &gckpti_op_##name,
    static const gckpt_op *const ops[] = { GCKPTI_OPS(OP) };
#undef OP
    static float values[64], before[64], workspace[4096];
    int ones[64];
    for (int i = 0; i < 64; i++)
        ones[i] = 1, values[i] = before[i] = 0.5f;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        gckpt_call call;
        memset(&call, 0, sizeof call);
        call.inputs = 3, call.rows = 1, call.threads = 1, call.training = 1, call.plain = 1;
        call.shape = sizes(4);
        for (int k = 0; k < GCKPT_MAX_INPUTS; k++)
            call.in[k].shape = sizes(4), call.in[k].data = values, call.in[k].index = indices;
        call.out = values, call.grad_out = values, call.saved = values;
        call.attributes = ones, call.workspace = workspace;
        if (ops[i]->backward)
            ops[i]->backward(&call);
        CHECK_MSG(!memcmp(values, before, sizeof values), "%s", ops[i]->name);
    }
}

#ifdef GCKPT_NO_FAST
static void no_fast(void)
{
    /* in a build without fast kernels every plan is for plain kernels; a plan of another build must be refused */
    net n = start(NULL, NULL);
    CHECK(n.e && gckpt_exec_isa(n.e) == GCKPT_ISA_PLAIN);
    gckpt_plan other = *n.p;
    other.made_for = GCKPTI_BACKEND_CPU;
    EXEC_REFUSED(&other, NULL, E_A, "make it with gckpt_plan_desc.kernels.plain = 1");
    stop(&n);
}
#endif

int main(void)
{
    gckpti_hooks.assert_failed = note_failed;
    layers();
    losses();
    shapes();
    leaves();
    user_ops();
    one_by_one();
    spreads();
    saved_alone();
    negative_axes();
    odd_attributes();
    null_ops();
    null_objects();
    wordings();
    freed_store();
    two_at_once();
    feeds();
    hypers();
    arenas();
    fetched_user_op();
    binding();
    streaming();
    partial_steps();
    cancelling();
    requests();
    stores();
    texts();
    side_effects();
    user_losses();
    attention_cost();
    large();
    wrong_modes();
    no_memory();
    plans_refused();
    long_names();
    no_gradient();
#ifdef GCKPT_NO_FAST
    no_fast();
#endif
    end();
    CHECK_MSG(!assert_failed, "GCKPT_ASSERT: %s", assert_failed);
    return check_report("test_refusals");
}
