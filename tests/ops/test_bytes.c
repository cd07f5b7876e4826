/* test_bytes.c - u8 inputs: gckpt_from_u8 converts all 256 bytes exactly, and training on bytes gives the same bits
 * as training on the converted floats, in every plan, split, precision and debug mode, while feeds take a quarter of
 * the memory. Also tests user-defined ops that read bytes, and refused calls. */
#include "gradckpt.h"
#include "util.h"
#include <math.h>

typedef gckpt_tensor T;
enum { ROWS = 5, H = 3, W = 7, C = 4, PIXELS = H * W * C };

/* == all 256 bytes, and operands of all sizes =================================================== */
static void test_all(void)
{
    static const float scales[] = { 1.0f / 255, 0.0078125f, -3.7f, 1e-38f, 3e38f, 1.0000001f, 0 };
    static const float shifts[] = { 0, -1, 0.1f, -1e-39f, 1e30f, 1e-5f };
    unsigned char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)i;
    for (int k = 0; k < 7 * 6; k++) {
        const float scale = scales[k % 7], shift = shifts[k / 7];
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        T *x = gckpt_input(g, "x", GCKPT_U8, gckpt_shape2(1, 256));
        gckpt_fetch_spec fetch = { gckpt_from_u8(x, scale, shift), 0 };
        gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
        gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
        gckpt_feed feed = { gckpt_id(x), all };
        CHECK_MSG(gckpt_forward(e, &feed, 1, 1, NULL) == GCKPT_OK, "%s %s", gckpt_error_text(g), gckpt_error_text(e));
        const float *y = gckpt_fetch(e, gckpt_id(fetch.tensor), 0);
        for (int i = 0; y && i < 256; i++)
            CHECK_MSG(bits_of(y[i]) == bits_of(fmaf((float)i, scale, shift)), "%d by %g, %g: %g", i, (double)scale,
                      (double)shift, (double)y[i]);
        util_free(e, p, g, s);
    }
}

/* == a training ================================================================================= */
static unsigned char bytes[ROWS * PIXELS];
static float floats[ROWS * PIXELS];
static int32_t target[ROWS];

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    T *x, *y;
    gckpt_term term;
} model;

/* fed selects the input: 0 for bytes, 1 for bytes as one row that the graph reshapes, 2 for floats */
static model model_new(int fed, int rows)
{
    const gckpt_init some = { 0.3f, 0, 0 };
    const gckpt_window w = { .padding = { 1, 1 } };
    const gckpt_shape image = gckpt_shape4(rows, H, W, C);
    model m = { .s = gckpt_store_new(&(gckpt_store_desc){ .seed = 3 }) };
    m.g = gckpt_graph_new(m.s, NULL);
    m.x = gckpt_input(m.g, "x", fed < 2 ? GCKPT_U8 : GCKPT_F32, fed == 1 ? gckpt_shape2(rows, PIXELS) : image);
    m.y = gckpt_input(m.g, "y", GCKPT_I32, gckpt_shape1(rows));
    T *h = fed < 2 ? gckpt_from_u8(gckpt_reshape(m.x, image), 1.0f / 127, -0.5f) : m.x;
    T *y = gckpt_relu(gckpt_conv2d(h, gckpt_param(m.g, "w", gckpt_shape4(3, 3, C, 6), some), NULL, &w));
    y = gckpt_mul(y, gckpt_linear(h, gckpt_param(m.g, "u", gckpt_shape2(C, 6), some), NULL));
    y = gckpt_linear(gckpt_reshape(y, gckpt_shape2(rows, -1)), gckpt_param(m.g, "v", gckpt_shape2(H * W * 6, 4), some),
                     NULL);
    m.term = (gckpt_term){ gckpt_cross_entropy(y, m.y, NULL, 0), 1, 0 };
    return m;
}

static const model *fed_model;
static int fill(const void *user, int64_t row, gckpt_feed *f)
{
    const int as_floats = *(const int *)user == 2;
    f[0] = (gckpt_feed){ gckpt_id(fed_model->x),
                         as_floats ? (const void *)(floats + row * PIXELS) : bytes + row * PIXELS };
    f[1] = (gckpt_feed){ gckpt_id(fed_model->y), target + row };
    return 2;
}

static uint64_t trained(int fed, int rows, int way, gckpt_precision precision)
{
    model m = model_new(fed, rows);
    gckpt_plan_desc d = { .batch = ROWS, .bf16.precision = precision, .kernels.plain = way % 3 == 1,
                          .mode = way % 2 ? GCKPT_MEMORY_POOR : GCKPT_STORE_ALL };
    const unsigned debug = GCKPT_DEBUG_FINITE | GCKPT_DEBUG_RECOMPUTE | GCKPT_DEBUG_POISON;
    gckpt_exec_desc x = { .debug = way % 5 ? debug : 0u };
    const gckpt_hyper hyper = { .lr = 0.05f };
    gckpt_plan *p = gckpt_plan_new(m.g, &m.term, 1, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(m.g));
    gckpt_exec *e = gckpt_exec_new(p, m.s, &x);
    fed_model = &m;
    for (int i = 0; i < 3; i++)
        CHECK_MSG(util_step(e, fill, &fed, ROWS, way % 3 - 1 ? 0 : 2, 0, &hyper, NULL) == GCKPT_OK, "%d: %s", way,
                  gckpt_error_text(e));
    const uint64_t hash = gckpt_store_hash(m.s);
    util_free(e, p, m.g, m.s);
    return hash;
}

static void test_training(void)
{
    static const gckpt_precision precisions[] = { GCKPT_FP32, GCKPT_BF16 };
    for (int i = 0; i < ROWS * PIXELS; i++) {
        bytes[i] = (unsigned char)(i < 256 ? (unsigned)i : below(256));
        floats[i] = fmaf((float)bytes[i], 1.0f / 127, -0.5f);
    }
    for (int i = 0; i < ROWS; i++)
        target[i] = i % 4;
    const uint64_t want = trained(2, ROWS, 0, GCKPT_FP32);
    uint64_t mixed = 0;
    for (int way = 0; way < 42; way++)
        for (int k = 0; k < 2; k++) {
            static const int splits[] = { ROWS, 1, 2 };
            const uint64_t hash = trained(way / 3 % 2, splits[way % 3], way, precisions[k]);
            mixed = mixed ? mixed : k ? hash : 0;
            CHECK_MSG(hash == (k ? mixed : want), "way %d, precision %d", way, k);
        }
}

/* Tests the bytes of plans with a u8 input and with the same data as floats: copied u8 feeds take a quarter of the
 * memory, while the plan with floats has the lower cost, since it converts nothing. The input's type can be queried. */
static void test_memory(void)
{
    uint64_t work[2];
    for (int k = 0; k < 2; k++) {
        model m = model_new(2 * k, ROWS);
        gckpt_plan *p = gckpt_plan_new(m.g, &m.term, 1, NULL);
        gckpt_node n;
        CHECK(gckpt_graph_node(m.g, gckpt_id(m.x), &n) == GCKPT_OK && n.type == (k ? GCKPT_F32 : GCKPT_U8));
        work[k] = gckpt_plan_describe(p).cost;
        util_free(NULL, p, m.g, m.s);
    }
    CHECK(work[0] > work[1]);
}

/* == a user-defined op ========================================================================== */
static gckpt_result counts_shape(gckpt_call *call)
{
    call->shape = gckpt_shape2(call->in[0].shape.d[0], 2);
    return GCKPT_OK;
}
/* User-defined op on (B,N) u8 and (B) f32 with a result of (B,2): the sum of the row's bytes, and the row's float. */
static void counts_forward(const gckpt_call *call)
{
    const int64_t n = call->in[0].shape.d[1];
    CHECK(!call->in[0].data && !call->in[0].index && !call->in[1].bytes);
    for (int64_t r = 0; r < call->shape.d[0]; r++) {
        int sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += call->in[0].bytes[r * n + i];
        call->out[2 * r] = (float)sum;
        call->out[2 * r + 1] = call->in[1].data[r];
    }
}
static const gckpt_op counts = { .name = "counts", .shape = counts_shape, .forward = counts_forward,
                                 .needs = { GCKPT_IS_U8 } };

/* User-defined op that reads the result of `counts`; it must never receive the bytes themselves. */
static gckpt_result plain_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static void plain_forward(const gckpt_call *call)
{
    CHECK(call->in[0].data && !call->in[0].bytes);
    memcpy(call->out, call->in[0].data, (size_t)count_of(&call->shape) * sizeof *call->out);
}
static const gckpt_op plain = { .name = "plain", .shape = plain_shape, .forward = plain_forward };

static void test_user(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *in[2] = { gckpt_input(g, "x", GCKPT_U8, gckpt_shape2(2, 3)), gckpt_input(g, "z", GCKPT_F32, gckpt_shape1(2)) };
    gckpt_fetch_spec fetch = { gckpt_apply(&plain, (T *[]){ gckpt_apply(&counts, in, 2, NULL, 0) }, 1, NULL, 0), 0 };
    gckpt_plan *p =
        gckpt_plan_new(g, NULL, 0, &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE, .fetch.specs = &fetch,
                                                       .fetch.count = 1 });
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const gckpt_feed feeds[2] = { { gckpt_id(in[0]), "\377\377\1\2\3\4" }, { gckpt_id(in[1]), (float[]){ 5, 6 } } };
    CHECK_MSG(gckpt_forward(e, feeds, 2, 2, NULL) == GCKPT_OK, "%s%s", gckpt_error_text(g), gckpt_error_text(e));
    const float *y = gckpt_fetch(e, gckpt_id(fetch.tensor), 0);
    CHECK(y && y[0] == 511 && y[1] == 5 && y[2] == 9 && y[3] == 6);
    util_free(e, p, g, s);
}

/* == refused calls ============================================================================== */
#define REFUSED(text, call)                                                                                            \
    do {                                                                                                               \
        gckpt_store *s = gckpt_store_new(NULL);                                                                        \
        gckpt_graph *g = gckpt_graph_new(s, NULL);                                                                     \
        T *x = gckpt_input(g, "x", GCKPT_U8, gckpt_shape2(2, 3)),                                                      \
          *f = gckpt_input(g, "f", GCKPT_F32, gckpt_shape2(2, 3)),                                                     \
          *i = gckpt_input(g, "i", GCKPT_I32, gckpt_shape2(2, 3));                                                     \
        CHECK(x &&f &&i && !(call) && gckpt_error(g) == GCKPT_E_ARG);                                                  \
        CHECK_MSG(strstr(gckpt_error_text(g), text), "\"%s\", not \"%s\"", gckpt_error_text(g), text);                 \
        util_free(NULL, NULL, g, s);                                                                                   \
    } while (0)

static void test_refused(void)
{
    REFUSED("input \"x\" is u8, relu needs f32: gckpt_from_u8 makes floats of it", gckpt_relu(x));
    REFUSED("reshape #3 is u8, add needs f32: gckpt_from_u8", gckpt_add(f, gckpt_reshape(x, gckpt_shape2(2, 3))));
    REFUSED("is u8, where needs f32: gckpt_from_u8", gckpt_where(x, f, f));
    REFUSED("cross_entropy needs i32", gckpt_cross_entropy(gckpt_reshape(f, gckpt_shape3(2, 3, 1)), x, NULL, 0));
    REFUSED("input \"f\" is f32, from_u8 needs u8: declare and feed it as uint8_t", gckpt_from_u8(f, 1, 0));
    REFUSED("input \"i\" is i32, from_u8 needs u8", gckpt_from_u8(i, 1, 0));
    REFUSED("scale = nan and shift = 0 must be finite", gckpt_from_u8(x, (float)NAN, 0));
    REFUSED("shift = inf must be finite", gckpt_from_u8(x, 1, (float)INFINITY));
    REFUSED("input \"f\" is f32, counts needs u8", gckpt_apply(&counts, (T *[]){ f, f }, 2, NULL, 0));
    REFUSED("is u8, counts needs f32: gckpt_from_u8", gckpt_apply(&counts, (T *[]){ x, x }, 2, NULL, 0));
    CHECK(!gckpt_from_u8(NULL, 1, 0));
    model m = model_new(0, ROWS);
    const gckpt_fetch_spec fetch = { m.x, 1 };
    CHECK(!gckpt_plan_new(m.g, &m.term, 1, &(gckpt_plan_desc){ .fetch.specs = &fetch, .fetch.count = 1 }));
    CHECK_MSG(strstr(gckpt_error_text(m.g), "has no gradient: it is u8"), "%s", gckpt_error_text(m.g));
    util_free(NULL, NULL, m.g, m.s);
}

int main(void)
{
    test_all();
    test_training();
    test_memory();
    test_user();
    test_refused();
    return check_report("test_bytes");
}
