/* cuda_images.c - compares CUDA kernels with the plain kernels, bit by bit (block.h): convolutions and transposed
 * convolutions, pools, group and batch norm, gather, recurrent layers, the gated delta rule, u8 inputs. It also checks that every op has CUDA
 * kernels. Then it trains a small ResNet, a GRU and an LSTM: all plans and splits must give the processor's bits, also
 * with replayed micro-batches, and no step may copy data to the host before its last update.
 *     build/cuda_images [first seed] [rounds] */
#include "graph/graph.h"
#include "ops/internal.h"
#include "images/images.h"
#include "recurrent/recurrent.h"
#include "block.h"
#ifdef GCKPT_CUDA_SHIM
#include "cuda_shim.h"
#endif

static int special; /* of the current case: if nonzero, values include NaN, infinities, zeros, subnormals */

static float value(void)
{
    static const uint32_t bits[] = { 0x7fc00000u, 0x7f800000u, 0xff800000u, 0x80000000u, 0u,
                                     1u,          0x80000001u, 0x00800000u, 0x7f7fffffu };
    if (special && chance(special > 1 ? 6 : 30))
        return float_of(bits[special > 1 ? below(9) : 3 + below(4)]);
    return (float)((int)below(1 << 16) - (1 << 15)) / 16384.0f;
}

static float *operand(int64_t n)
{
    float *x = block_take(n, chance(60) ? 4 : 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = value();
    return x;
}

static gckpt_call new_call(const void *attributes, int inputs)
{
    gckpt_call c = block_call(attributes);
    c.inputs = inputs;
    c.plain = 1;
    block_clear();
    special = chance(30) ? 1 + (int)below(2) : 0;
#ifdef GCKPT_CUDA_SHIM
    cuda_shim.multiprocessors = chance(50) ? 1 : 132; /* the number of multiprocessors decides on tile sizes */
#endif
    return c;
}

static void values(gckpt_call *c)
{
    for (int i = 0; i < c->inputs; i++)
        c->in[i].data = c->in[i].index || c->in[i].bytes ? NULL : operand(count_of(&c->in[i].shape));
}

/* Adds the gradient of the output, and gradients of some inputs, some of which accumulate. */
static void gradients(const gckpt_op *op, gckpt_call *c)
{
    c->grad_out = operand(count_of(&c->shape));
    for (int i = 0; i < c->inputs; i++) {
        gckpt_arg *x = &c->in[i];
        if (x->index || x->bytes || (c->inputs > 1 && chance(15)))
            continue;
        const int64_t n = count_of(&x->shape);
        x->grad = operand(n), x->accumulate = chance(50);
        if (op->needs[i] & GCKPT_SUMS && chance(80))
            x->compensation = operand(n);
        for (int64_t k = 0; x->compensation && k < n; k++)
            x->compensation[k] *= 1e-7f;
    }
}

static void all_are(const float *x, const gckpt_shape *shape, float v)
{
    for (int64_t i = 0; x && i < count_of(shape); i++)
        ((float *)(uintptr_t)x)[i] = v;
}

/* Runs forward and backward of a call. If `negative` is nonzero, all products of the op are -0, so that their sums must
 * be -0; a kernel that adds one more term of +0 would give +0. */
static void ways(const gckpt_op *op, gckpt_call *c, int negative)
{
    for (int i = 0; negative && i < c->inputs; i++)
        all_are(c->in[i].data, &c->in[i].shape, i == 0 ? 0.0f : i == 1 ? -1.0f : -0.0f);
    c->out = operand(count_of(&c->shape));
    both(op, GCKPT_FORWARD, c);
    gradients(op, c);
    if (negative) {
        all_are(c->grad_out, &c->shape, -1);
        all_are(c->in[1].grad, &c->in[1].shape, -0.0f);
        c->in[1].accumulate = 1;
    }
    both(op, GCKPT_BACKWARD, c);
}

/* ---- conv2d, and its transpose ---- */
/* size[]: batch, height, width, window height, window width, groups, channels of a group on the image's side and on the
 * other side. */
static void convolution(const int *size, gckpti_conv2d a, int bias)
{
    gckpt_call c = new_call(&a, 2 + bias);
    const int groups = size[5];
    a.window.groups = groups;
    c.in[0].shape = gckpt_shape4(size[0], size[1], size[2], groups * size[a.transposed ? 7 : 6]);
    c.in[1].shape = gckpt_shape4(size[3], size[4], size[6], groups * size[7]);
    c.in[2].shape = gckpt_shape1(groups * size[a.transposed ? 6 : 7]);
    if (gckpti_op_conv2d.shape(&c) != GCKPT_OK) /* the window is larger than the image */
        return;
    const gckpt_shape *places = a.transposed ? &c.in[0].shape : &c.shape;
    if (count_of(places) * size[3] * size[4] * size[6] > 2000000 || count_of(&c.shape) > 150000)
        return;
    values(&c);
    ways(&gckpti_op_conv2d, &c, bias && chance(20));
}

static void convolutions(int rounds)
{
    static const int widths[] = { 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65 };
    for (int i = 0; i < 12 * rounds; i++) {
        gckpti_conv2d a = { .transposed = chance(40) };
        const int large = chance(20), line = chance(15);
        int size[8] = { 1 + (int)below(3), line ? 1 : 1 + (int)below(large ? 30 : 9), 1 + (int)below(large ? 30 : 9),
                        line ? 1 : 1 + (int)below(4), 1 + (int)below(4), chance(50) ? 1 : 1 + (int)below(5),
                        widths[below(large ? 8 : 15)], widths[below(large ? 8 : 15)] };
        if (chance(20)) /* depthwise convolution */
            size[5] = 1 + (int)below(40), size[6] = size[7] = 1;
        for (int k = 0; k < 2; k++) {
            a.window.stride[k] = 1 + (int)below(chance(60) ? 1 : 4);
            a.window.dilation[k] = 1 + (int)below(chance(60) ? 1 : 3);
            a.window.padding[k] = chance(50) ? (int)below(4) : 0;
            const int most = a.window.stride[k] > a.window.dilation[k] ? a.window.stride[k] : a.window.dilation[k];
            a.window.output_padding[k] = a.transposed && chance(30) ? (int)below(most) : 0;
        }
        convolution(size, a, chance(60));
    }
    for (int i = 0; i < 2; i++) { /* on every device, these sizes use large tiles */
        const int size[8] = { 2, 48, 47, 1, 2, 1, 9, 65 };
        const gckpti_conv2d a = { .window = { .stride = { 1, 1 }, .dilation = { 1, 1 } }, .transposed = i };
        convolution(size, a, 1);
    }
}

/* ---- pools ---- */
static void pools(void)
{
    gckpti_pool o = { { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, chance(30), 0 };
    const gckpt_op *op = chance(50) ? &gckpti_op_max_pool : &gckpti_op_average_pool;
    gckpt_call c = new_call(&o, 1);
    const int channels = 1 + (int)below(40);
    c.in[0].shape = chance(30) ? gckpt_shape3(1 + (int)below(3), 1 + (int)below(30), channels)
                               : gckpt_shape4(1 + (int)below(3), 1 + (int)below(12), 1 + (int)below(12), channels);
    for (int k = 0; k < 2; k++) {
        o.size[k] = k == 0 && c.in[0].shape.n == 3 ? 1 : 1 + (int)below(5);
        o.stride[k] = 1 + (int)below(4);
        o.dilation[k] = 1 + (int)below(3) * chance(30);
        o.padding[k] = chance(50) ? (int)below((o.size[k] - 1) * o.dilation[k] + 1) : 0;
    }
    o.exclude_padding = op == &gckpti_op_average_pool && chance(40);
    if (op->shape(&c) != GCKPT_OK)
        return;
    values(&c);
    float *x = (float *)(uintptr_t)c.in[0].data;
    const int64_t n = count_of(&c.in[0].shape);
    for (int64_t i = 0; i < n; i++) /* makes some values equal */
        x[i] = chance(30) ? x[below(n)] : x[i];
    c.saved = op == &gckpti_op_max_pool ? operand((int64_t)c.saved_bytes / 4 + 1) : NULL;
    ways(op, &c, 0);
}

/* ---- groupnorm, batchnorm ---- */
static void channels(void)
{
    const int batch = chance(50), gain = chance(60), bias = chance(60), first = batch ? 3 : 1;
    static const int sizes[] = { 1, 2, 3, 8, 16, 31, 32, 33, 40, 64, 65 };
    const int groups = batch ? 0 : 1 + (int)below(4);
    gckpti_norm o = { groups, gain ? first : 0, bias ? first + gain : 0, chance(30) ? 0.25f : 0 };
    const gckpt_op *op = batch ? &gckpti_op_batchnorm : &gckpti_op_groupnorm;
    gckpt_call c = new_call(&o, first + gain + bias);
    const int64_t n = sizes[below(11)] * (batch ? 1 : groups);
    c.in[0].shape = chance(30) ? gckpt_shape2(1 + below(70), n)
                               : gckpt_shape4(1 + below(3), 1 + below(9), 1 + below(9), n);
    if (groups && n / groups * (count_of(&c.in[0].shape) / c.in[0].shape.d[0] / n) == 1)
        return; /* groupnorm refuses groups with a single value */
    for (int i = 1; i < c.inputs; i++)
        c.in[i].shape = gckpt_shape1(n);
    CHECK(op->shape(&c) == GCKPT_OK);
    c.rows = c.in[0].shape.d[0];
    values(&c);
    float *x = (float *)(uintptr_t)c.in[0].data, far = chance(20) ? 1000.0f : 0.0f;
    for (int64_t i = 0; i < count_of(&c.in[0].shape); i++)
        x[i] += far;
    for (int64_t i = 0; batch && i < n; i++)
        ((float *)(uintptr_t)c.in[2].data)[i] = 0.1f + (float)below(100) / 30;
    if (batch && chance(20)) { /* batchnorm in inference */
        c.training = 0;
        c.out = operand(count_of(&c.shape));
        both(op, GCKPT_FORWARD, &c);
        return;
    }
    c.saved = chance(80) ? operand((int64_t)c.saved_bytes / 4) : NULL;
    c.out = !c.saved || chance(90) ? operand(count_of(&c.shape)) : NULL;
    both(op, GCKPT_FORWARD, &c);
    if (!c.saved)
        return;
    c.out = NULL;
    gradients(op, &c);
    both(op, GCKPT_BACKWARD, &c);
}

/* ---- gather, and u8 inputs converted to f32 ---- */
static void taken(void)
{
    gckpt_call c = new_call(NULL, 2);
    const int64_t b = 1 + below(4), n = 1 + below(20), m = 1 + below(40);
    c.in[0].shape = gckpt_shape3(b, n, 1 + below(70));
    c.in[1].shape = gckpt_shape2(b, m);
    CHECK(gckpti_op_gather.shape(&c) == GCKPT_OK);
    int32_t *index = (int32_t *)(void *)operand(b * m);
    for (int64_t i = 0; i < b * m; i++)
        index[i] = (int32_t)below(n);
    c.in[1].index = index;
    values(&c);
    ways(&gckpti_op_gather, &c, 0);
}

static void bytes(void)
{
    const float o[2] = { 1.0f / 255, -0.5f };
    gckpt_call c = new_call(o, 1);
    const int64_t n = 1 + below(2000);
    c.in[0].shape = gckpt_shape1(n);
    CHECK(gckpti_op_from_u8.shape(&c) == GCKPT_OK);
    uint8_t *x = (uint8_t *)(void *)operand((n + 3) / 4);
    for (int64_t i = 0; i < n; i++)
        x[i] = (uint8_t)below(256);
    c.in[0].bytes = x;
    c.out = operand(n);
    both(&gckpti_op_from_u8, GCKPT_FORWARD, &c);
}

/* ---- gru, lstm, delta_rule ---- */
static void recurrent(void)
{
    const int gates = 3 + (int)below(2), bias = gates == 3 && chance(60), start = chance(60);
    const int states = start ? gates - 2 : 0, lengths = chance(50) ? 2 + bias + states : 0;
    gckpti_recurrent o = { gates, bias ? 2 : 0, start ? 2 + bias : 0, lengths };
    const gckpt_op *op = gates == 4    ? &gckpti_op_lstm
                         : chance(50) ? &gckpti_op_gru
                                      : &gckpti_op_gru_reset_before;
    gckpt_call c = new_call(&o, 2 + bias + states + (lengths > 0));
    const int64_t b = 1 + below(chance(20) ? 40 : 5), t = 1 + below(6), h = 1 + below(chance(20) ? 70 : 20);
    c.in[0].shape = gckpt_shape3(b, t, gates * h);
    c.in[1].shape = gckpt_shape2(h, gates * h);
    for (int i = 2; i < c.inputs; i++)
        c.in[i].shape = i == o.bias ? gckpt_shape1(gates * h) : i == lengths ? gckpt_shape1(b) : gckpt_shape2(b, h);
    int32_t *index = lengths ? (int32_t *)(void *)operand(b) : NULL;
    for (int64_t i = 0; index && i < b; i++)
        index[i] = (int32_t)below(t + 1);
    if (lengths)
        c.in[lengths].index = index;
    c.precision = chance(50) ? GCKPT_FP32 : GCKPT_BF16;
    CHECK(op->shape(&c) == GCKPT_OK);
    values(&c);
    float *saved = operand((int64_t)c.saved_bytes / 4);
    c.saved = saved;
    c.out = operand(count_of(&c.shape));
    both(op, GCKPT_FORWARD, &c);
    gckpt_call d = c;
    d.saved = chance(50) ? NULL : saved, d.out = d.saved && chance(50) ? NULL : c.out;
    both(op, GCKPT_FORWARD, &d);
    gradients(op, &c);
    both(op, GCKPT_BACKWARD, &c);
}

static void delta(void)
{
    const int shared = 1 + (int)below(2), heads = shared * (1 + (int)below(2)), cached = chance(40);
    const int64_t b = 1 + below(3), t = 1 + below(10), keys = 1 + below(chance(20) ? 40 : 9);
    const int64_t values_of_head = 1 + below(chance(20) ? 300 : 40), rows = cached ? 2 * t : t;
    const gckpti_delta o = { cached ? 99 : 0, cached, heads, shared, chance(50) ? 0.5f : 0 };
    gckpt_call c = new_call(&o, 5);
    c.in[0].shape = gckpt_shape3(b, t, shared * keys);
    c.in[1].shape = gckpt_shape3(b, rows, shared * keys);
    c.in[2].shape = gckpt_shape3(b, rows, heads * values_of_head);
    c.in[3].shape = c.in[4].shape = gckpt_shape3(b, rows, heads);
    c.precision = chance(50) ? GCKPT_FP32 : GCKPT_BF16;
    if (cached) { /* the state of position `at`, which the call advances; then the rule from there on */
        const int32_t at = (int32_t)below((uint64_t)t + 1);
        CHECK(gckpti_op_delta_state.shape(&c) == GCKPT_OK);
        values(&c);
        c.position = chance(80) ? at + (int64_t)below((uint64_t)t) : (int64_t)below(3);
        float *state = operand(count_of(&c.shape));
        for (int64_t i = 0; i < count_of(&c.shape); i++)
            if (i / values_of_head % (keys + 1) == keys)
                memcpy(state + i, &at, sizeof at);
        c.out = state;
        both(&gckpti_op_delta_state, GCKPT_FORWARD, &c);
        c.inputs = 6, c.in[5].data = state, c.in[5].shape = c.shape;
    }
    CHECK(gckpti_op_delta_rule.shape(&c) == GCKPT_OK);
    if (!cached)
        values(&c);
    c.out = operand(count_of(&c.shape));
    both(&gckpti_op_delta_rule, GCKPT_FORWARD, &c);
    if (cached)
        return;
    gradients(&gckpti_op_delta_rule, &c);
    both(&gckpti_op_delta_rule, GCKPT_BACKWARD, &c);
}

/* Checks that every op has a forward kernel, and a backward kernel if it has a backward. */
static void all_ops(void)
{
#define X(which, part) &gckpti_op_##which,
    static const gckpt_op *const ops[] = { GCKPTI_OPS(X) };
#undef X
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (int kind = GCKPT_FORWARD; kind <= GCKPT_BACKWARD; kind++)
            CHECK_MSG((kind == GCKPT_BACKWARD && !ops[i]->backward) ||
                          device->find(device->context, ops[i], (gckpt_kind)kind),
                      "%s has no kernel %d", ops[i]->name, kind);
}

/* ---- trainings ---- */
enum { BATCH = 6, SIDE = 9, CLASSES = 5, STEPS = 5, TIME = 5, WIDTH = 7 };

/* outs: copies to the host. within: copies to the host in a step before its last update. asked, repeated, refused:
 * number of micro-batches that could have been replayed, that were replayed, and that could not be captured. */
static long outs, outs_before, within, asked, repeated, refused;
static gckpt_backend watched;
static void watched_out(void *context, void *host_memory, const void *from, size_t n)
{
    outs++;
    device->copy_out(context, host_memory, from, n);
}
static void watched_update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    within += pass->update ? outs - outs_before : 0;
    outs_before = outs;
    device->update(call, pass);
}
static int watched_repeat(void *context, const gckpt_step_params *m)
{
    const int done = device->replay(context, m);
    asked++;
    repeated += done;
    return done;
}
static int watched_recorded(void *context)
{
    const int done = device->captured(context);
    refused += !done;
    return done;
}

typedef struct {
    int recurrent, norm; /* norm: 0 for batchnorm, 1 for groupnorm */
    gckpt_mode mode;
    int64_t rows;
    gckpt_precision precision;
} net;

static gckpt_graph *graph;
static gckpt_tensor *weight(const char *name, gckpt_shape shape, float mean)
{
    const gckpt_init init = { 0.3f, 0, mean };
    return gckpt_param(graph, name, shape, init);
}

static gckpt_tensor *normed(const net *o, gckpt_tensor *x, const char *name)
{
    const gckpt_init zero = { 0, 0, 0 }, one = { 0, 0, 1 };
    char of[4][32];
    for (int i = 0; i < 4; i++)
        snprintf(of[i], sizeof of[i], "%s.%c", name, "gbmv"[i]);
    const gckpt_shape c = gckpt_shape1(x->shape.d[x->shape.n - 1]);
    gckpt_tensor *gain = weight(of[0], c, 1), *bias = weight(of[1], c, 0);
    if (o->norm)
        return gckpt_groupnorm(x, 2, gain, bias, 0);
    return gckpt_batchnorm(x, gain, bias, gckpt_running(graph, of[2], c, zero, 0.1f),
                           gckpt_running(graph, of[3], c, one, 0.1f), 0);
}

/* Builds a small ResNet with all kinds of convolutions and pools: a first convolution, then blocks, one of which halves
 * height and width. */
static gckpt_tensor *images(const net *o, gckpt_tensor *in)
{
    const gckpt_window same = { .padding = { 1, 1 } }, half = { .stride = { 2, 2 }, .padding = { 1, 1 } };
    const gckpt_window pool = { .size = { 3, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 } };
    const gckpt_window less = { .stride = { 2, 2 } }, groups = { .padding = { 1, 1 }, .groups = 2 };
    const gckpt_window mean = { .size = { 2, 2 }, .stride = { 1, 1 } };
    gckpt_tensor *x = gckpt_from_u8(in, 1.0f / 64, -2), *y;
    x = gckpt_conv2d(x, weight("stem", gckpt_shape4(3, 3, 3, 8), 0), NULL, &same);
    x = gckpt_max_pool(gckpt_relu(normed(o, x, "n0")), &pool);
    y = gckpt_relu(normed(o, gckpt_conv2d(x, weight("a", gckpt_shape4(3, 3, 8, 8), 0), NULL, &same), "n1"));
    x = gckpt_relu(
        gckpt_add(x, normed(o, gckpt_conv2d(y, weight("b", gckpt_shape4(3, 3, 4, 8), 0), NULL, &groups), "n2")));
    y = gckpt_relu(normed(o, gckpt_conv2d(x, weight("c", gckpt_shape4(3, 3, 8, 12), 0), NULL, &half), "n3"));
    y = normed(o, gckpt_conv2d(y, weight("d", gckpt_shape4(3, 3, 12, 12), 0), NULL, &same), "n4");
    x = gckpt_relu(
        gckpt_add(normed(o, gckpt_conv2d(x, weight("e", gckpt_shape4(1, 1, 8, 12), 0), NULL, &less), "n5"), y));
    y = gckpt_conv2d_transposed(x, weight("up", gckpt_shape4(2, 2, 3, 12), 0), weight("ub", gckpt_shape1(3), 0), &less);
    y = gckpt_global_average_pool(gckpt_average_pool(y, &mean));
    y = gckpt_linear(y, weight("side", gckpt_shape2(3, CLASSES), 0), NULL);
    x = gckpt_linear(gckpt_global_average_pool(x), weight("head", gckpt_shape2(12, CLASSES), 0),
                     weight("hb", gckpt_shape1(CLASSES), 0));
    return gckpt_add(x, y);
}

static gckpt_tensor *sequences(gckpt_tensor *in, gckpt_tensor *order)
{
    gckpt_tensor *h0 = gckpt_scale(gckpt_mean(in, 1), 0.5f);
    gckpt_tensor *x =
        gckpt_gru(in, weight("wx", gckpt_shape2(WIDTH, 3 * WIDTH), 0), NULL,
                  weight("wh", gckpt_shape2(WIDTH, 3 * WIDTH), 0), weight("bh", gckpt_shape1(3 * WIDTH), 0),
                  &(gckpt_recurrent_desc){ .h0 = h0, .reset_before = 1 });
    x = gckpt_gather(x, order);
    x = gckpt_conv1d(x, weight("conv", gckpt_shape3(3, WIDTH, WIDTH), 0), weight("cb", gckpt_shape1(WIDTH), 0),
                     &(gckpt_window){ .padding = { 0, 1 } });
    x = gckpt_lstm(x, weight("vx", gckpt_shape2(WIDTH, 4 * WIDTH), 0), weight("vh", gckpt_shape2(WIDTH, 4 * WIDTH), 0),
                   weight("vb", gckpt_shape1(4 * WIDTH), 0),
                   &(gckpt_recurrent_desc){ h0, gckpt_tanh(h0), gckpt_argmax(gckpt_max(x, 2), 1), 0 });
    return gckpt_linear(gckpt_max(x, 1), weight("head", gckpt_shape2(2 * WIDTH, CLASSES), 0), NULL);
}

static uint64_t train(const net *o, const gckpt_backend *backend)
{
    static uint8_t pixels[BATCH * SIDE * SIDE * 3];
    static float signals[BATCH * TIME * WIDTH];
    static int32_t wanted[BATCH], order[BATCH * TIME];
    gckpt_store_desc seed = { { NULL, NULL, NULL, 0 }, 99 };
    gckpt_store *s = gckpt_store_new(&seed);
    gckpt_graph *g = graph = gckpt_graph_new(s, NULL);
    gckpt_tensor *to = gckpt_input(g, "to", GCKPT_I32, gckpt_shape1(o->rows)), *in, *at = NULL;
    if (o->recurrent) {
        in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(o->rows, TIME, WIDTH));
        at = gckpt_input(g, "order", GCKPT_I32, gckpt_shape2(o->rows, TIME));
    } else {
        in = gckpt_input(g, "x", GCKPT_U8, gckpt_shape4(o->rows, SIDE, SIDE, 3));
    }
    gckpt_term term = { gckpt_cross_entropy(o->recurrent ? sequences(in, at) : images(o, in), to, NULL, 0), 1, 0 };
    gckpt_plan_desc d = { .mode = o->mode, .batch = BATCH, .bf16.precision = o->precision, .backend = backend };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_exec_desc how = { .backend = backend };
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(s));
    uint64_t hash = 1;
    within = asked = repeated = refused = 0;
    for (int step = 0; step < STEPS && e; step++) {
        gckpt_report r = { 0 };
        gckpt_hyper hyper = { .lr = 0.02f, .weight_decay = 0.1f };
        gckpt_feed feeds[3] = { { gckpt_id(in), o->recurrent ? (void *)signals : (void *)pixels },
                                { gckpt_id(to), wanted },
                                { 0, order } };
        for (int i = 0; i < BATCH * SIDE * SIDE * 3; i++)
            pixels[i] = (uint8_t)((i * 37 + step * 11) % 251);
        for (int i = 0; i < BATCH * TIME * WIDTH; i++)
            signals[i] = (float)((i * 53 + step * 7) % 89 - 44) / 40;
        for (int i = 0; i < BATCH * TIME; i++)
            order[i] = (i * 7 + step) % TIME, wanted[i % BATCH] = (i * 3 + step) % CLASSES;
        if (at)
            feeds[2].input = gckpt_id(at);
        outs_before = outs;
        CHECK_MSG(gckpt_step(e, feeds, at ? 3 : 2, BATCH, &hyper, &r) == GCKPT_OK, "%s", gckpt_error_text(e));
        CHECK_MSG(r.loss > 0 && r.loss < 1e3, "loss %g", r.loss);
        hash = gckpti_fnv(hash, &r.loss, sizeof r.loss) ^ gckpt_store_hash(s);
    }
    util_free(e, p, g, s);
    return hash;
}

static void trainings(void)
{
    static const gckpt_mode modes[3] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT };
    watched = *device;
    watched.copy_out = watched_out, watched.update = watched_update;
    watched.replay = watched_repeat, watched.captured = watched_recorded;
    for (int i = 0; i < 12; i++) {
        net o = { i % 3 == 2, i % 3 == 1, modes[i / 3 % 3],
                  i < 3   ? BATCH
                  : i < 6 ? 2
                          : 3,
                  (gckpt_precision)(i / 3 % 2) };
        const uint64_t want = train(&o, NULL), got = train(&o, &watched);
        CHECK_MSG(got == want, "training %d: other bits", i);
        CHECK_MSG(within == 0, "training %d: %ld copies to the host within its steps", i, within);
        CHECK_MSG(repeated > asked / 4 && !refused, "training %d: of %ld micro-batches %ld repeated, %ld not recorded",
                  i, asked, repeated, refused);
    }
}

int main(int argc, char **argv)
{
    const int rounds = argc > 2 ? atoi(argv[2]) : 5;
    if (!block_open(argc, argv))
        return check_report("cuda images");
    all_ops();
    convolutions(rounds);
    for (int i = 0; i < 4 * rounds; i++) {
        pools();
        channels();
        taken();
        bytes();
        recurrent();
        delta();
    }
    trainings();
    block_close();
    return check_report("cuda images");
}
