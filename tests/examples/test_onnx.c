/* test_onnx.c - examples/onnx.h: exports graphs that together have every op of inference, and compares the hashes of
 * the files with those of files that onnxruntime has run: tests/golden/make_onnx.py builds this test, runs the files on the
 * inputs that it writes with them, compares the results with those of gckpt_forward, and prints the hashes. Also
 * tests that other graphs are refused by name.
 *
 *     build/test_onnx [folder]      also writes NAME.onnx, and NAME.in.npz and NAME.out.npz for make_onnx.py */
#include "gradckpt.h"
#include "check.h"
#include "examples/npy.h"
#include "examples/onnx.h"

enum { B = 3, T = 6, C = 8 };

static const struct {
    const char *name;
    uint64_t hash;
} golden[] = {
#include "golden/onnx.h"
};

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    onnx_output out[24];
    int outs;
    gckpt_feed feeds[4];
    float x[B * 16 * 16 * C];
    int32_t index[B * T], lengths[B];
    unsigned char bytes[B * C];
} net;

static gckpt_tensor *param(net *n, const char *name, gckpt_shape shape)
{
    return gckpt_param(n->g, name, shape, (gckpt_init){ 0.4f, 0, 0.1f });
}

static void output(net *n, const char *name, gckpt_tensor *t)
{
    CHECK_MSG(t != NULL, "%s: %s", name, gckpt_error_text(n->g));
    n->out[n->outs++] = (onnx_output){ t, name };
}

static gckpt_tensor *signal(net *n)
{
    gckpt_tensor *x = gckpt_input(n->g, "x", GCKPT_F32, gckpt_shape3(B, T, C));
    n->feeds[0] = (gckpt_feed){ gckpt_id(x), n->x };
    return x;
}

static void build_elementwise(net *n)
{
    gckpt_tensor *x = signal(n), *positive = gckpt_activation(x, GCKPT_SOFTPLUS, 0),
                 *w = param(n, "w", gckpt_shape1(C));
    gckpt_tensor *bytes = gckpt_input(n->g, "bytes", GCKPT_U8, gckpt_shape2(B, C));
    n->feeds[1] = (gckpt_feed){ gckpt_id(bytes), n->bytes };
    gckpt_tensor *y = gckpt_add(gckpt_relu(x), gckpt_gelu(x));
    y = gckpt_sub(gckpt_mul(y, gckpt_gelu_erf(x)), gckpt_silu(x));
    output(n, "activations", gckpt_div(y, gckpt_add(gckpt_sigmoid(x), gckpt_tanh(positive))));
    y = gckpt_maximum(gckpt_exp(gckpt_scale(x, 0.5f)), gckpt_log(positive));
    y = gckpt_add(gckpt_minimum(y, gckpt_sqrt(positive)), gckpt_abs(x));
    output(n, "functions",
           gckpt_add(gckpt_mul(y, gckpt_sin(x)), gckpt_cos(gckpt_pow(positive, -1))));
    y = gckpt_activation(gckpt_pow(positive, 1.7f), GCKPT_LEAKY_RELU, 0.2f);
    output(n, "numbers",
           gckpt_add(gckpt_clamp(y, 0.3f, 1.5f), gckpt_dropout(gckpt_detach(w), 0.5f)));
    output(n, "chosen", gckpt_where(gckpt_relu(x), gckpt_softmax(x), gckpt_log_softmax(w)));
    y = gckpt_sub(gckpt_activation(x, GCKPT_ELU, 0.7f), gckpt_activation(x, GCKPT_SELU, 0));
    y = gckpt_add(gckpt_add(y, gckpt_activation(x, GCKPT_MISH, 0)),
                  gckpt_activation(x, GCKPT_HARDSWISH, 0));
    output(n, "more", gckpt_add(y, gckpt_prelu(x, w)));
    output(n, "bytes.f32", gckpt_from_u8(bytes, 0.0625f, -1));
}

static void build_axes(net *n)
{
    static const int32_t rows[] = { 3, 0, 2 };
    static const int axes[] = { 0, 2, 1 };
    gckpt_tensor *x = signal(n), *table = param(n, "table", gckpt_shape2(7, C));
    gckpt_tensor *index = gckpt_input(n->g, "index", GCKPT_I32, gckpt_shape2(B, T));
    n->feeds[1] = (gckpt_feed){ gckpt_id(index), n->index };
    gckpt_tensor *parts[] = { gckpt_slice(x, 1, 1, 4), gckpt_slice(x, 1, -2, T) };
    output(n, "sum", gckpt_sum(gckpt_concat(parts, 2, 1), 1));
    output(n, "mean", gckpt_mean(gckpt_permute(x, axes, 3), -1));
    output(n, "max", gckpt_max(gckpt_pad(x, -2, 1, 2, GCKPT_PAD_VALUE, 0.5f), 1));
    output(n, "reflected",
           gckpt_pad(gckpt_pad(x, 1, 3, 2, GCKPT_PAD_REFLECT, 0), 2, 1, 4, GCKPT_PAD_REPLICATE, 0));
    output(n, "argmax", gckpt_argmax(x, 2));
    gckpt_tensor *indices;
    output(n, "top_k", gckpt_top_k(x, 1, 3, NULL));
    gckpt_top_k(gckpt_relu(x), -1, 5, &indices); /* many zeros */
    output(n, "top_k indices", indices);
    output(n, "embed",
           gckpt_add(gckpt_embed(table, index),
                     gckpt_positions(x, param(n, "places", gckpt_shape2(9, C)), 2)));
    output(n, "gather", gckpt_gather(x, index));
    output(n, "constant",
           gckpt_embed(table, gckpt_constant(n->g, "rows", GCKPT_I32, gckpt_shape1(3), rows)));
    gckpt_tensor *a = gckpt_reshape(x, gckpt_shape4(B, 2, 3, C));
    output(n, "products",
           gckpt_matmul(gckpt_matmul_transposed(a, a),
                        gckpt_reshape(gckpt_slice(x, 1, 0, 6), gckpt_shape4(B, 2, 3, C))));
    output(n, "broadcast products", /* (B,2,3,C) x (C,2), then a vector; one matrix for all rows */
           gckpt_matmul(gckpt_matmul_transposed(a, gckpt_reshape(table, gckpt_shape3(1, 7, C))),
                        param(n, "column", gckpt_shape1(7))));
    output(n, "left product", gckpt_matmul(param(n, "left", gckpt_shape2(2, 6)), gckpt_slice(x, 1, 0, 6)));
    output(n, "linear", gckpt_linear_transposed(x, table, param(n, "b", gckpt_shape1(7))));
}

static void build_images(net *n)
{
    gckpt_tensor *x = gckpt_input(n->g, "image", GCKPT_F32, gckpt_shape4(B, 9, 8, C));
    n->feeds[0] = (gckpt_feed){ gckpt_id(x), n->x };
    const gckpt_window window = {
        .stride = { 2, 1 }, .padding = { 1, 2 }, .dilation = { 1, 2 }, .groups = 2
    };
    const gckpt_window up = {
        .stride = { 2, 2 }, .padding = { 1, 0 }, .output_padding = { 1, 0 }, .groups = 2
    };
    const gckpt_window pool = { .size = { 3, 2 }, .stride = { 2, 2 }, .padding = { 1, 1 } };
    const gckpt_window signals = { .size = { 0, 3 }, .padding = { 0, 1 } };
    gckpt_tensor *y = gckpt_conv2d(x, param(n, "conv", gckpt_shape4(3, 2, C / 2, 6)),
                                   param(n, "b", gckpt_shape1(6)), &window);
    output(n, "convolved", y);
    output(n, "transposed",
           gckpt_conv2d_transposed(y, param(n, "up", gckpt_shape4(3, 2, 4, 6)), NULL, &up));
    output(n, "max", gckpt_max_pool(x, &pool));
    output(n, "average", gckpt_average_pool(x, &pool));
    const gckpt_window wide = {
        .size = { 3, 2 }, .stride = { 2, 3 }, .padding = { 1, 1 }, .dilation = { 1, 3 }, .ceil = 1
    };
    const gckpt_window own = {
        .size = { 3, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 }, .ceil = 1, .exclude_padding = 1
    };
    output(n, "max of taps", gckpt_max_pool(x, &wide));
    output(n, "average without padding", gckpt_average_pool(x, &own));
    output(n, "nearest", gckpt_upsample(x, 13, 20, GCKPT_NEAREST));
    output(n, "bilinear", gckpt_upsample(x, 13, 5, GCKPT_BILINEAR));
    output(n, "aligned", gckpt_upsample(x, 20, 11, GCKPT_BILINEAR_ALIGNED));
    gckpt_tensor *gain = param(n, "gain", gckpt_shape1(C)),
                 *bias = param(n, "bias", gckpt_shape1(C));
    output(n, "groups", gckpt_groupnorm(x, 2, gain, bias, 1e-6f));
    gckpt_tensor *mean =
        gckpt_running(n->g, "mean", gckpt_shape1(C), (gckpt_init){ 0, 0, 0.2f }, 0.1f);
    gckpt_tensor *variance =
        gckpt_running(n->g, "variance", gckpt_shape1(C), (gckpt_init){ 0, 0, 0.7f }, 0.1f);
    output(n, "batch", gckpt_batchnorm(x, NULL, bias, mean, variance, 1e-3f));
    output(n, "pooled", gckpt_global_average_pool(x));
    gckpt_tensor *s = gckpt_reshape(x, gckpt_shape3(B, 72, C));
    output(n, "signal",
           gckpt_max_pool(gckpt_conv1d(s, param(n, "taps", gckpt_shape3(4, C, 5)), NULL, NULL),
                          &signals));
}

static void build_attention(net *n)
{
    static const float frequencies[] = { 1, 0.25f };
    gckpt_tensor *x = signal(n),
                 *lengths = gckpt_input(n->g, "lengths", GCKPT_I32, gckpt_shape1(B));
    gckpt_tensor *q = gckpt_linear(x, param(n, "q", gckpt_shape2(C, 16)), NULL);
    gckpt_tensor *k = gckpt_linear(x, param(n, "k", gckpt_shape2(C, 8)), NULL);
    n->feeds[1] = (gckpt_feed){ gckpt_id(lengths), n->lengths };
    q = gckpt_rotary(q, &(gckpt_rotary_desc){ .heads = 4, .position = 3 });
    k = gckpt_rotary(k, &(gckpt_rotary_desc){ .heads = 2, .position = 3, .base = 100 });
    output(n, "plain",
           gckpt_attention(q, k, k, &(gckpt_attention_desc){ .heads = 4, .key_heads = 2 }));
    output(n, "causal",
           gckpt_attention(gckpt_slice(q, 1, 2, T), k, k,
                           &(gckpt_attention_desc){ .heads = 4, .key_heads = 2, .causal = 1 }));
    output(
        n, "window",
        gckpt_attention(
            q, k, k,
            &(gckpt_attention_desc){
                .heads = 4, .key_heads = 2, .causal = 1, .window = 3, .cap = 2, .scale = 0.7f }));
    output(n, "shorter",
           gckpt_attention(q, q, x = gckpt_scale(q, -1),
                           &(gckpt_attention_desc){ .heads = 2, .lengths = lengths }));
    static const float hidden[T * T] = { [1] = -INFINITY, [T + 2] = -INFINITY };
    gckpt_tensor *biases = param(n, "biases", gckpt_shape4(1, 4, T, T));
    gckpt_tensor *seen = gckpt_constant(n->g, "seen", GCKPT_F32, gckpt_shape2(T, T), hidden);
    output(n, "biased",
           gckpt_attention(q, k, k, &(gckpt_attention_desc){ .heads = 4, .key_heads = 2, .cap = 2,
                                                             .mask = gckpt_add(biases, seen) }));
    output(n, "masked rows", /* the mask (B,1,1,T) is a column of each row of the batch */
           gckpt_attention(q, k, k, &(gckpt_attention_desc){
                                        .heads = 4,
                                        .key_heads = 2,
                                        .mask = gckpt_reshape(gckpt_slice(x, 2, 0, 1), gckpt_shape4(B, 1, 1, T)) }));
    output(
        n, "part",
        gckpt_rotary(x, &(gckpt_rotary_desc){
                            .heads = 2, .columns = 4, .frequencies = frequencies, .scale = 1.5f }));
    gckpt_tensor *gain = param(n, "gain", gckpt_shape1(16)),
                 *bias = param(n, "bias", gckpt_shape1(16));
    output(n, "norms", gckpt_layernorm(gckpt_rmsnorm(q, gain, 1e-3f), gain, bias, 0));
    output(n, "bias only", gckpt_layernorm(q, NULL, bias, 1e-6f));
}

static void build_recurrent(net *n)
{
    enum { H = 4 };
    gckpt_tensor *x = signal(n),
                 *h0 = gckpt_slice(gckpt_reshape(x, gckpt_shape2(B, T * C)), 1, 3, 3 + H);
    gckpt_tensor *wx = param(n, "gru.x", gckpt_shape2(C, 3 * H)),
                 *wh = param(n, "gru.h", gckpt_shape2(H, 3 * H));
    gckpt_tensor *b = param(n, "gru.b", gckpt_shape1(3 * H));
    gckpt_recurrent_desc desc = { .h0 = h0 };
    output(n, "gru", gckpt_gru(x, wx, b, wh, b, &desc));
    desc.reset_before = 1, desc.lengths = gckpt_argmax(gckpt_max(x, 2), 1);
    output(n, "gru, reset before, lengths", gckpt_gru(x, wx, b, wh, b, &desc));
    desc.reset_before = 0, desc.c0 = gckpt_scale(h0, 2);
    output(n, "gru from 0", gckpt_gru(x, wx, NULL, wh, NULL, NULL));
    wx = param(n, "lstm.x", gckpt_shape2(C, 4 * H)),
    wh = param(n, "lstm.h", gckpt_shape2(H, 4 * H));
    output(n, "lstm", gckpt_lstm(x, wx, wh, param(n, "lstm.b", gckpt_shape1(4 * H)), &desc));
    output(n, "lstm from 0", gckpt_lstm(x, wx, wh, NULL, NULL));
}

static void fill(net *n)
{
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof n->x / sizeof *n->x; i++) {
        state = state * 1664525 + 1013904223;
        n->x[i] = (float)(int32_t)(state >> 8 & 0xffff) / 32768 - 1;
    }
    for (int i = 0; i < B * T; i++)
        n->index[i] = i % 5;
    for (int i = 0; i < B; i++)
        n->lengths[i] = 2 * i; /* the first row has no keys */
    for (int i = 0; i < B * C; i++)
        n->bytes[i] = (unsigned char)(11 * i);
}

/* Writes the inputs, and the outputs of gckpt_forward, for make_onnx.py. */
static void write_values(net *n, const char *folder, const char *name)
{
    static const char *const types[] = { "<f4", "<i4", "|u1" };
    char path[300];
    npy_writer w;
    gckpt_node node;
    gckpt_fetch_spec specs[24];
    for (int i = 0; i < n->outs; i++)
        specs[i] = (gckpt_fetch_spec){ (gckpt_tensor *)(uintptr_t)n->out[i].tensor, 0 };
    const gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE,
                                   .fetch = { .specs = specs, .count = n->outs } };
    const gckpt_exec_desc initial = { .allow_initial = 1 };
    gckpt_plan *plan = gckpt_plan_new(n->g, NULL, 0, &desc);
    gckpt_exec *exec = plan != NULL ? gckpt_exec_new(plan, n->s, &initial) : NULL;
    int feeds = 0;
    while (n->feeds[feeds].data != NULL)
        feeds++;
    CHECK_MSG(exec != NULL && gckpt_forward(exec, n->feeds, feeds, B, NULL) == GCKPT_OK,
              "%s: %s %s", name, gckpt_error_text(n->g), gckpt_error_text(exec));
    for (int out = 0; out < 2; out++) {
        snprintf(path, sizeof path, "%s/%s.%s.npz", folder, name, out ? "out" : "in");
        npy_create(&w, path);
        for (int i = 0; i < (out ? n->outs : feeds); i++) {
            const int id = out ? gckpt_id(n->out[i].tensor) : n->feeds[i].input;
            gckpt_graph_node(n->g, id, &node);
            npy_put(&w, out ? n->out[i].name : node.name, types[node.type], node.shape,
                    out ? gckpt_fetch(exec, id, 0) : n->feeds[i].data);
        }
        CHECK_MSG(npy_end(&w) == 0, "%s", w.error);
    }
    gckpt_exec_free(exec);
    gckpt_plan_free(plan);
}

static uint64_t hash_file(const char *path)
{
    uint64_t hash = 0xcbf29ce484222325u;
    FILE *f = fopen(path, "rb");
    CHECK_MSG(f != NULL, "%s", path);
    for (int c; f != NULL && (c = fgetc(f)) != EOF;)
        hash = (hash ^ (uint64_t)c) * 0x100000001b3u;
    if (f != NULL)
        fclose(f);
    return hash;
}

static void test_net(const char *folder, const char *name, void (*build)(net *), uint64_t expected)
{
    static net n;
    char path[300], error[ONNX_ERROR];
    memset(&n, 0, sizeof n);
    n.s = gckpt_store_new(NULL);
    n.g = gckpt_graph_new(n.s, NULL);
    fill(&n);
    build(&n);
    snprintf(path, sizeof path, "%s/%s.onnx", folder != NULL ? folder : "build", name);
    CHECK_MSG(onnx_save(n.g, n.s, n.out, n.outs, path, error) == 0, "%s: %s", name, error);
    const uint64_t hash = hash_file(path);
    CHECK_MSG(
        hash == expected || folder != NULL,
        "%s: the file is not the one that onnxruntime ran; python tests/golden/make_onnx.py runs and records it",
        name);
    if (folder != NULL) {
        write_values(&n, folder, name);
        printf("    { \"%s\", 0x%016llx },\n", name, (unsigned long long)hash);
    }
    gckpt_graph_free(n.g);
    gckpt_store_free(n.s);
}

static gckpt_result own_shape(gckpt_call *call)
{
    return call->shape = call->in[0].shape, GCKPT_OK;
}
static void own_forward(const gckpt_call *call) { call->out[0] = 0; }

static void test_refused(void)
{
    static const gckpt_op own = { .name = "own", .shape = own_shape, .forward = own_forward };
    char error[ONNX_ERROR];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(B, T, C)),
                 *nothing = gckpt_embed(x, x);
    onnx_output out = { gckpt_apply(&own, &x, 1, NULL, 0), "y" };
    CHECK(onnx_save(g, s, &out, 1, "build/refused.onnx", error) != 0 &&
          (nothing == NULL || nothing != NULL));
    gckpt_graph_free(g);
    g = gckpt_graph_new(s, NULL);
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(B, T, C));
    out.tensor = gckpt_apply(&own, &x, 1, NULL, 0);
    CHECK(onnx_save(g, s, &out, 1, "build/refused.onnx", error) != 0 &&
          strstr(error, "own has no form in ONNX") != NULL);
    out.tensor = gckpt_cache(x, 12);
    CHECK(onnx_save(g, s, &out, 1, "build/refused.onnx", error) != 0 &&
          strstr(error, "without caches") != NULL);
    out.tensor = gckpt_sum_loss(x);
    CHECK(onnx_save(g, s, &out, 1, "build/refused.onnx", error) != 0 &&
          strstr(error, "is a loss; export the tensor") != NULL);
    out.tensor = gckpt_relu(x);
    out.name = "x";
    CHECK(onnx_save(g, s, &out, 1, "build/refused.onnx", error) != 0 &&
          strstr(error, "\"x\" is an input or a parameter, too") != NULL);
    out.name = "y";
    CHECK(onnx_save(g, s, &out, 1, "build/none/refused.onnx", error) != 0 &&
          strstr(error, "cannot write it") != NULL);
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

int main(int argc, char **argv)
{
    static void (*const builders[])(net *) = { build_elementwise, build_axes, build_images,
                                               build_attention, build_recurrent };
    static const char *const names[] = { "elementwise", "axes", "images", "attention",
                                         "recurrent" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        test_net(argc > 1 ? argv[1] : NULL, names[i], builders[i], golden[i].hash);
    test_refused();
    return check_report("test_onnx");
}
