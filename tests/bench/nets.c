/* nets.c - trains nets of many kinds, and runs single ops, for tests/bench/speed.py, which lets PyTorch do the same in
 * turns (nets.py has the same nets and ops).
 *
 *     build/nets list                 prints the names: kind (net or op), name
 *     build/nets NAME THREADS FILE    writes inputs and parameters to FILE, prints parameters and loss of the first
 *                                     step, then reads numbers of steps from standard input; after each number n,
 *                                     runs n steps and prints the seconds of a step and the peak of memory in bytes
 *
 * A step of a net consists of forward, backward and AdamW. For an op, the program times its forward and its backward
 * only. With one thread, times are processor times of the process. The peak does not count the memory that the
 * process had at its start. */
#include "op_fixture.h"

static T *images(int64_t batch, int64_t size, int64_t channels)
{
    return input(GCKPT_F32, gckpt_shape4(batch, size, size, channels), 0);
}
static T *square(int64_t batch, int64_t size, int64_t channels)
{
    return in4(batch, size, size, channels);
}
static int64_t last(const T *x) { return gckpt_shape_of(x).d[gckpt_shape_of(x).n - 1]; }

/* ---- layers: each creates its parameters in the order of nets.py ---- */
static T *weight(gckpt_shape shape)
{
    double inputs = 1;
    for (int i = 0; i < shape.n - 1; i++)
        inputs *= (double)shape.d[i];
    return initial(shape, (gckpt_init){ (float)sqrt(1 / inputs), 0, 0 });
}
static T *vector(int64_t n, float value)
{
    return initial(gckpt_shape1(n), (gckpt_init){ 0, 0, value });
}

static T *linear(T *x, int64_t out)
{
    T *w = weight(gckpt_shape2(last(x), out));
    return gckpt_linear(x, w, vector(out, 0));
}

/* Convolves without a bias. Pads x so that its size is only divided by the stride, except if no windows overlap. */
static T *conv(T *x, int64_t out, int size, int stride, int groups)
{
    const int padding = stride < size ? size / 2 : 0;
    T *w = weight(gckpt_shape4(size, size, last(x) / groups, out));
    return gckpt_conv2d(x, w, NULL,
                        &(gckpt_window){ .stride = { stride, stride },
                                         .padding = { padding, padding },
                                         .groups = groups });
}

static T *upward(T *x, int64_t out)
{
    T *w = weight(gckpt_shape4(2, 2, out, last(x)));
    return gckpt_conv2d_transposed(x, w, vector(out, 0), &(gckpt_window){ .stride = { 2, 2 } });
}

static T *batchnorm(T *x)
{
    char name[2][16];
    T *gain = vector(last(x), 1), *bias = vector(last(x), 0);
    T *running[2];
    for (int i = 0; i < 2; i++) {
        snprintf(name[i], sizeof name[i], "%c%d", "mv"[i], r.params);
        running[i] = gckpt_running(r.graph, name[i], gckpt_shape1(last(x)),
                                   (gckpt_init){ 0, 0, (float)i }, 0.1f);
    }
    return gckpt_batchnorm(x, gain, bias, running[0], running[1], 0);
}

static T *layernorm(T *x)
{
    T *gain = vector(last(x), 1);
    return gckpt_layernorm(x, gain, vector(last(x), 0), 0);
}

static T *groupnorm(T *x, int groups)
{
    T *gain = vector(last(x), 1);
    return gckpt_groupnorm(x, groups, gain, vector(last(x), 0), 0);
}

static T *lstm(T *x, int64_t hidden)
{
    T *wx = weight(gckpt_shape2(last(x), 4 * hidden)),
      *wh = weight(gckpt_shape2(hidden, 4 * hidden));
    x = gckpt_lstm(x, wx, wh, vector(4 * hidden, 0), NULL);
    return gckpt_slice(x, 2, 0, hidden); /* without the cells */
}

static T *gru(T *x, int64_t hidden)
{
    T *wx = weight(gckpt_shape2(last(x), 3 * hidden)),
      *wh = weight(gckpt_shape2(hidden, 3 * hidden));
    T *bx = vector(3 * hidden, 0);
    return gckpt_gru(x, wx, bx, wh, vector(3 * hidden, 0), NULL);
}

static T *attention(T *x, int heads, int causal)
{
    T *q = linear(x, last(x)), *k = linear(x, last(x)), *v = linear(x, last(x));
    return gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = heads, .causal = causal });
}

static T *max_pool(T *x) { return gckpt_max_pool(x, &(gckpt_window){ .size = { 2, 2 } }); }
static T *overlapping_pool(T *x)
{
    return gckpt_max_pool(
        x, &(gckpt_window){ .size = { 3, 3 }, .stride = { 2, 2 }, .padding = { 1, 1 } });
}
static T *average_pool(T *x) { return gckpt_average_pool(x, &(gckpt_window){ .size = { 2, 2 } }); }

/* Returns the loss of x (.., classes) and an input of targets (..). */
static T *classified(T *x)
{
    gckpt_shape shape = gckpt_shape_of(x);
    const int64_t classes = shape.d[--shape.n];
    return gckpt_cross_entropy(x, input(GCKPT_I32, shape, classes), NULL, 0);
}

/* ---- nets ---- */
static T *normed(T *x, int64_t out, int size, int stride, int groups)
{
    return batchnorm(conv(x, out, size, stride, groups));
}

static T *joined(T *h, T *x, int stride)
{
    if (stride > 1 || last(x) != last(h))
        x = normed(x, last(h), 1, stride, 1);
    return gckpt_relu(gckpt_add(h, x));
}

static T *resnet18(int64_t batch, int64_t size, int64_t classes)
{
    const int large = size > 64;
    T *x = gckpt_relu(normed(images(batch, size, 3), 64, large ? 7 : 3, large ? 2 : 1, 1));
    if (large)
        x = overlapping_pool(x);
    for (int i = 0; i < 8; i++) {
        const int stride = i == 2 || i == 4 || i == 6 ? 2 : 1;
        const int64_t out = 64 << i / 2;
        T *h = normed(gckpt_relu(normed(x, out, 3, stride, 1)), out, 3, 1, 1);
        x = joined(h, x, stride);
    }
    return classified(linear(gckpt_global_average_pool(x), classes));
}

static T *resnext(void)
{
    T *x = gckpt_relu(normed(images(8, 32, 3), 64, 3, 1, 1));
    for (int i = 0; i < 6; i++) {
        const int stride = i == 2 || i == 4 ? 2 : 1;
        const int64_t width = 128 << i / 2;
        T *h = gckpt_relu(normed(x, width, 1, 1, 1));
        h = normed(gckpt_relu(normed(h, width, 3, stride, 32)), 2 * width, 1, 1, 1);
        x = joined(h, x, stride);
    }
    return classified(linear(gckpt_global_average_pool(x), 10));
}

static T *mobilenet(void)
{
    static const struct {
        int expansion, out, blocks, stride;
    } stages[] = { { 1, 16, 1, 1 }, { 6, 24, 2, 2 },  { 6, 32, 3, 2 }, { 6, 64, 4, 2 },
                   { 6, 96, 3, 1 }, { 6, 160, 3, 2 }, { 6, 320, 1, 1 } };
    T *x = gckpt_clamp(normed(images(16, 96, 3), 32, 3, 2, 1), 0, 6);
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < stages[i].blocks; k++) {
            const int64_t width = last(x) * stages[i].expansion;
            const int stride = k == 0 ? stages[i].stride : 1;
            T *h = x;
            if (stages[i].expansion > 1)
                h = gckpt_clamp(normed(h, width, 1, 1, 1), 0, 6);
            h = gckpt_clamp(normed(h, width, 3, stride, (int)width), 0, 6);
            h = normed(h, stages[i].out, 1, 1, 1);
            x = stride == 1 && last(x) == last(h) ? gckpt_add(x, h) : h;
        }
    x = gckpt_clamp(normed(x, 1280, 1, 1, 1), 0, 6);
    return classified(linear(gckpt_global_average_pool(x), 1000));
}

static T *twice(T *x, int64_t out)
{
    x = gckpt_relu(normed(x, out, 3, 1, 1));
    return gckpt_relu(normed(x, out, 3, 1, 1));
}

static T *unet(void)
{
    T *skip[3], *x = images(4, 128, 3);
    for (int i = 0; i < 3; i++) {
        skip[i] = twice(x, 32 << i);
        x = max_pool(skip[i]);
    }
    x = twice(x, 256);
    for (int i = 2; i >= 0; i--)
        x = twice(pair_of(skip[i], upward(x, 32 << i), 3), 32 << i);
    return classified(linear(x, 2));
}

static T *small_conv(void)
{
    T *x = max_pool(gckpt_relu(conv(images(64, 28, 1), 32, 3, 1, 1)));
    x = max_pool(gckpt_relu(conv(x, 64, 3, 1, 1)));
    x = gckpt_relu(linear(gckpt_reshape(x, gckpt_shape2(64, 7 * 7 * 64)), 128));
    return classified(linear(x, 10));
}

static T *mlp(void)
{
    T *x = input(GCKPT_F32, gckpt_shape2(256, 64), 0);
    for (int i = 0; i < 3; i++)
        x = gckpt_relu(linear(x, 256));
    return classified(linear(x, 2));
}

static T *blocks(T *x, int layers, int heads, int causal)
{
    for (int i = 0; i < layers; i++) {
        x = gckpt_add(x, linear(attention(layernorm(x), heads, causal), last(x)));
        T *h = linear(layernorm(x), 4 * last(x));
        x = gckpt_add(x, linear(causal ? gckpt_gelu(h) : gckpt_gelu_erf(h), last(x)));
    }
    return layernorm(x);
}

static T *vit(void)
{
    T *x = gckpt_reshape(conv(images(8, 224, 3), 192, 16, 16, 1), gckpt_shape3(8, 196, 192));
    x = gckpt_positions(x, weight(gckpt_shape2(196, 192)), 0);
    return classified(linear(gckpt_mean(blocks(x, 12, 3, 0), 1), 1000));
}

/* A BERT, or if causal, a GPT; the head is tied to the table of words. */
static T *words(int layers, int heads, int64_t dim, int64_t length, int64_t batch, int64_t count,
                int causal)
{
    T *table = initial(gckpt_shape2(count, dim), (gckpt_init){ 0.02f, 0, 0 });
    T *x = gckpt_embed(table, input(GCKPT_I32, gckpt_shape2(batch, length), count));
    x = gckpt_positions(x, weight(gckpt_shape2(length, dim)), 0);
    return classified(gckpt_linear_transposed(blocks(x, layers, heads, causal), table, NULL));
}

static T *sequences(int is_lstm)
{
    T *x = input(GCKPT_F32, gckpt_shape3(32, 64, 128), 0);
    x = is_lstm ? lstm(x, 256) : gru(x, 256);
    return classified(linear(x, 10));
}

static T *scaled(T *x) { return gckpt_mul(x, in2(gckpt_shape_of(x).d[0], 1)); }
static T *attended(T *q, int heads)
{
    T *k = in3(1, 2048, 512), *v = in3(1, 2048, 512);
    return gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = heads, .causal = 1 });
}

/* Builds net or op number i and returns its result, or NULL if no net or op has this number. nets.py has the same
 * names. If r.graph is NULL, only sets r.name. */
static T *build(int i, int *is_net)
{
    int n = 0;
#define CASE(net, text, make)                                                                      \
    if (i == n++) {                                                                                \
        r.name = text;                                                                             \
        *is_net = net;                                                                             \
        return r.graph == NULL ? NULL : make;                                                      \
    }
    CASE(1, "ResNet-18, 32 x 32, B16", resnet18(16, 32, 10))
    CASE(1, "ResNet-18, 224 x 224, B2", resnet18(2, 224, 1000))
    CASE(1, "MobileNetV2, 96 x 96, B16", mobilenet())
    CASE(1, "U-Net of 4 levels, 128 x 128, B4", unet())
    CASE(1, "ResNeXt of 32 groups, 32 x 32, B8", resnext())
    CASE(1, "conv net 1-32-64, 28 x 28, B64", small_conv())
    CASE(1, "LSTM 128-256, T64, B32", sequences(1))
    CASE(1, "GRU 128-256, T64, B32", sequences(0))
    CASE(1, "ViT-tiny, 224/16, B8", vit())
    CASE(1, "BERT of 4 x 256, T128, B16", words(4, 4, 256, 128, 16, 8000, 0))
    CASE(1, "MLP 64-256-256-256-2, B256", mlp())
    CASE(1, "GPT of 6 x 192, T256, B16", words(6, 6, 192, 256, 16, 256, 1))
    CASE(1, "GPT of 6 x 384, T256, B16", words(6, 6, 384, 256, 16, 256, 1))
    CASE(1, "GPT-2 124M, T64, B4", words(12, 12, 768, 64, 4, 50257, 1))
    CASE(0, "sum, last axis", gckpt_sum(in3(32, 128, 256), 2))
    CASE(0, "sum, middle axis", gckpt_sum(in3(32, 128, 256), 1))
    CASE(0, "mean, middle axis", gckpt_mean(in3(32, 128, 256), 1))
    CASE(0, "max, last axis", gckpt_max(in3(32, 128, 256), 2))
    CASE(0, "max, middle axis", gckpt_max(in3(32, 128, 256), 1))
    CASE(0, "permute, last two axes", swapped(in3(32, 128, 256)))
    CASE(0, "slice, last axis", gckpt_slice(in3(32, 128, 256), 2, 3, 250))
    CASE(0, "pad, last axis", gckpt_pad(in3(32, 128, 256), 2, 3, 1, GCKPT_PAD_VALUE, 0))
    CASE(0, "product with a column", scaled(in2(4096, 256)))
    CASE(0, "linear, 256-1, 4096 rows", linear(in2(4096, 256), 1))
    CASE(0, "linear, 1024-1024, 1 row", linear(in2(1, 1024), 1024))
    CASE(0, "linear, 256-1024, 512 rows", linear(in2(512, 256), 1024))
    CASE(0, "conv 3 x 3, 32 groups", conv(square(8, 32, 128), 128, 3, 1, 32))
    CASE(0, "conv 3 x 3, depthwise", conv(square(8, 48, 96), 96, 3, 1, 96))
    CASE(0, "conv 3 x 3, depthwise, stride 2", conv(square(8, 48, 96), 96, 3, 2, 96))
    CASE(0, "conv 7 x 7, depthwise", conv(square(8, 14, 192), 192, 7, 1, 192))
    CASE(0, "conv 7 x 7, stem, stride 2", conv(images(2, 224, 3), 64, 7, 2, 1))
    CASE(0, "conv 3 x 3, stem", conv(images(16, 32, 3), 64, 3, 1, 1))
    CASE(0, "conv 3 x 3, stem, stride 2", conv(images(16, 96, 3), 32, 3, 2, 1))
    CASE(0, "conv 16 x 16, patches", conv(images(8, 224, 3), 192, 16, 16, 1))
    CASE(0, "conv 3 x 3, 64-64", conv(square(8, 32, 64), 64, 3, 1, 1))
    CASE(0, "conv 1 x 1, 24-144", conv(square(16, 24, 24), 144, 1, 1, 1))
    CASE(0, "conv 1 x 1, 144-32", conv(square(16, 12, 144), 32, 1, 1, 1))
    CASE(0, "bilinear upsampling", gckpt_upsample(square(4, 32, 64), 64, 64, GCKPT_BILINEAR))
    CASE(0, "max pool 2 x 2", max_pool(square(8, 64, 64)))
    CASE(0, "max pool 3 x 3, stride 2", overlapping_pool(square(8, 64, 64)))
    CASE(0, "average pool 2 x 2", average_pool(square(8, 64, 64)))
    CASE(0, "batchnorm", batchnorm(square(8, 32, 64)))
    CASE(0, "groupnorm, 8 groups", groupnorm(square(8, 32, 64), 8))
    CASE(0, "layernorm", layernorm(in2(2048, 256)))
    CASE(0, "softmax", gckpt_softmax(in2(2048, 256)))
    CASE(0, "gelu", gckpt_gelu_erf(in2(2048, 1024)))
    CASE(0, "cross-entropy, 2 classes", classified(in2(65536, 2)))
    CASE(0, "cross-entropy, 8000 classes", classified(in2(512, 8000)))
    CASE(0, "attention, T2048", attended(in3(1, 2048, 512), 8))
    CASE(0, "LSTM, T64, B32", lstm(in3(32, 64, 128), 256))
    CASE(0, "GRU, T64, B32", gru(in3(32, 64, 128), 256))
#undef CASE
    r.name = NULL;
    return NULL;
}

/* ---- running them ---- */
static clockid_t clock_id = CLOCK_MONOTONIC;
static double now(void)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long long peak_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char text[128];
    long long kilobytes = 0;
    while (file && fgets(text, sizeof text, file))
        if (strncmp(text, "VmHWM:", 6) == 0)
            kilobytes = atoll(text + 6);
    if (file)
        fclose(file);
    return 1024 * kilobytes;
}

/* The time of the forwards and backwards of the ops up to `last`: the measured op may be built of several. */
typedef struct {
    const gckpt_plan *plan;
    int last, running;
    double start, seconds;
} stopwatch;

static int watch(void *user, const gckpt_progress *progress)
{
    stopwatch *w = (stopwatch *)user;
    gckpt_instruction in = { GCKPT_UPDATE, 0 };
    const double time = now();
    if (w->running)
        w->seconds += time - w->start;
    gckpt_plan_get(w->plan, progress->instruction, &in);
    w->running = in.kind <= GCKPT_BACKWARD && in.id <= w->last;
    for (int i = 0; i < r.fetches; i++) /* the scale by 1 that follows an input */
        w->running = w->running && in.id != gckpt_id(r.wanted_gradients[i].tensor) + 1;
    w->start = now();
    return 0;
}

static int write_array(FILE *file, const void *data, size_t n)
{
    const int64_t count = (int64_t)n;
    return fwrite(&count, sizeof count, 1, file) == 1 && fwrite(data, sizeof(float), n, file) == n;
}

/* Writes all inputs, then all parameters, in the order of their creation. Returns the number of parameters' elements,
 * or -1. */
static long long write_file(const char *path)
{
    FILE *file = fopen(path, "wb");
    long long elements = 0;
    int good = file != NULL;
    const int64_t counts[2] = { r.feeds, r.params };
    good = good && fwrite(&counts[0], sizeof *counts, 1, file) == 1;
    for (int i = 0; i < r.feeds && good; i++)
        good = write_array(file, r.data[i], r.elements[i]);
    good = good && fwrite(&counts[1], sizeof *counts, 1, file) == 1;
    for (int i = 0; i < r.params && good; i++) {
        char name[16];
        gckpt_parameter p;
        snprintf(name, sizeof name, "p%d", i);
        gckpt_store_get(r.store, gckpt_store_find(r.store, name), &p);
        good = write_array(file, p.values, (size_t)p.elements);
        elements += p.elements;
    }
    good = file != NULL && fclose(file) == 0 && good;
    return good ? elements : -1;
}

static int serve(T *made, int is_net, int threads, const char *path)
{
    const int is_loss = gckpt_shape_of(made).n == 0;
    gckpt_term term = { made, 1, 0 };
    const gckpt_plan_desc desc = { .threads = threads,
                                   .mode = GCKPT_STORE_ALL,
                                   .update_in_backward = 1,
                                   .fetch.specs = r.wanted_gradients,
                                   .fetch.count = r.fetches,
                                   .schedule.as_built = !is_net };
    const gckpt_hyper adamw = gckpt_hyper_lr(1e-6f);
    const long long base = peak_bytes();
    if (!is_loss)
        term.loss = gckpt_sum_loss(gckpt_mul(made, made)); /* gradients with different values */
    gckpt_plan *plan = gckpt_plan_new(r.graph, &term, 1, &desc);
    stopwatch w = { plan, gckpt_id(made), 0, 0, 0 };
    gckpt_exec *exec = gckpt_exec_new(
        plan, r.store, &(gckpt_exec_desc){ .progress = is_net ? NULL : watch, .user = &w });
    gckpt_report report = { 0, 0, 0, 0 };
    const long long elements = exec != NULL ? write_file(path) : -1;
    const int64_t rows = plan != NULL ? gckpt_plan_describe(plan).batch : 0;
    gckpt_result result = elements >= 0 ? GCKPT_OK : GCKPT_E_ARG;
    int steps = 1, is_first = 1;
    do {
        w.seconds = 0;
        double start = now();
        for (int i = 0; i < steps && result == GCKPT_OK; i++)
            result = gckpt_step(exec, r.feed, r.feeds, rows, &adamw, &report);
        start = is_net ? now() - start : w.seconds;
        if (is_first)
            printf("%lld %.9g\n", elements, report.loss);
        else
            printf("%.9g %lld\n", start / steps, peak_bytes() - base);
        fflush(stdout);
        is_first = 0;
    } while (result == GCKPT_OK && scanf("%d", &steps) == 1 && steps > 0);
    if (result != GCKPT_OK)
        fprintf(stderr, "%s: %s\n", r.name,
                gckpt_error_text(plan == NULL ? (void *)r.graph : (void *)r.store));
    gckpt_exec_free(exec);
    gckpt_plan_free(plan);
    return result != GCKPT_OK;
}

int main(int argc, char **argv)
{
    int is_net = 0, found = 0, status = 0;
    for (int i = 0; build(i, &is_net), r.name != NULL; i++) {
        if (argc == 2)
            printf("%s;%s\n", is_net ? "net" : "op", r.name);
        else if (argc == 4 && strcmp(argv[1], r.name) == 0) {
            r.store = gckpt_store_new(NULL);
            r.graph = gckpt_graph_new(r.store, NULL);
            const int threads = atoi(argv[2]);
            if (threads == 1)
                clock_id = CLOCK_PROCESS_CPUTIME_ID;
            T *made = build(i, &is_net);
            status = made == NULL || serve(made, is_net, threads, argv[3]);
            if (made == NULL)
                fprintf(stderr, "%s: %s\n", r.name, gckpt_error_text(r.graph));
            gckpt_graph_free(r.graph);
            gckpt_store_free(r.store);
            for (int k = 0; k < r.feeds; k++)
                free(r.data[k]);
            return status;
        }
        found = argc == 2;
    }
    if (!found)
        fprintf(stderr, "usage: nets list | nets NAME THREADS FILE\n");
    return !found;
}
