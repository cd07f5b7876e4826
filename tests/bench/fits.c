/* fits.c - prints the largest networks that train in 32 to 512 KB of a device's memory, with all activations kept and
 * with recomputes; recorded in docs/benchmarks/device.tsv (make fits). A network is a member of a family whose
 * members grow by a rule. Both plans train it to the same bits. */
#include "plan/plan.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 8, VOCABULARY = 64, CLASSES = 10, STEPS = 2 };
enum { REST = 4096 }; /* bytes of the device that the stack and the rest of the program need */

typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_term loss;
    gckpt_tensor *in[2]; /* in: data and targets; in_bytes: bytes of one row of each */
    size_t in_bytes[2];
    char size[32];
} net;

typedef struct family {
    const char *name;
    void (*build)(net *n, const struct family *of, int width);
    int side, colours, stages; /* of images */
    int first, step;           /* widths */
} family;

static gckpt_tensor *param(net *n, const char *part, int layer, gckpt_shape shape, float normal,
                           float constant)
{
    const gckpt_init init = { normal, 0, constant };
    char name[32];
    snprintf(name, sizeof name, "%d.%s", layer, part);
    return gckpt_param(n->graph, name, shape, init);
}

/* ---- transformers with C columns: C / 4 layers, a context of 4 C tokens, 2 heads, hidden layers of 4 C columns
 * ---- */
static gckpt_tensor *dense(net *n, gckpt_tensor *x, const char *part, int layer, int in, int out)
{
    gckpt_tensor *w = param(n, part, layer, gckpt_shape2(in, out), 0.1f, 0);
    return gckpt_linear(x, w, NULL);
}

static gckpt_tensor *norm(net *n, gckpt_tensor *x, const char *part, int layer, int width)
{
    return gckpt_rmsnorm(x, param(n, part, layer, gckpt_shape1(width), 0, 1), 0);
}

static void build_gpt(net *n, const family *of, int width)
{
    const int C = width, T = 4 * C, layers = C / 4;
    (void)of;
    for (int i = 0; i < 2; i++) {
        n->in[i] = gckpt_input(n->graph, i ? "targets" : "x", GCKPT_I32, gckpt_shape2(1, T));
        n->in_bytes[i] = 4 * (size_t)T;
    }
    gckpt_tensor *words = param(n, "words", 0, gckpt_shape2(VOCABULARY, C), 0.1f, 0);
    gckpt_tensor *x = gckpt_embed(words, n->in[0]);
    x = gckpt_positions(x, param(n, "places", 0, gckpt_shape2(T, C), 0.1f, 0), 0);
    for (int l = 0; l < layers; l++) {
        gckpt_tensor *a = dense(n, norm(n, x, "norm1", l, C), "qkv", l, C, 3 * C);
        gckpt_tensor *q = gckpt_slice(a, -1, 0, C), *k = gckpt_slice(a, -1, C, 2 * C);
        a = gckpt_attention(q, k, gckpt_slice(a, -1, 2 * C, 3 * C), &(gckpt_attention_desc){ .heads = 2, .causal = 1 });
        x = gckpt_add(x, dense(n, a, "proj", l, C, C));
        a = gckpt_gelu(dense(n, norm(n, x, "norm2", l, C), "up", l, C, 4 * C));
        x = gckpt_add(x, dense(n, a, "down", l, 4 * C, C));
    }
    x = norm(n, x, "norm", 0, C);
    n->loss.loss = gckpt_linear_cross_entropy(x, words, n->in[1], NULL);
    snprintf(n->size, sizeof n->size, "%d x %d x %d", layers, C, T);
}

/* ---- convolutional networks: stages of two 3 x 3 convolutions, each with group norm and relu. The first stage has
 * the image's size and W channels; each further stage halves the side and doubles the channels. A mean over the pixels
 * and a dense layer follow. ---- */
static gckpt_tensor *convolution(net *n, gckpt_tensor *x, int layer, int in, int out, int stride)
{
    const gckpt_window window = { .stride = { stride, stride }, .padding = { 1, 1 } };
    gckpt_tensor *w = param(n, "conv", layer, gckpt_shape4(3, 3, in, out), 0.1f, 0);
    x = gckpt_conv2d(x, w, NULL, &window);
    gckpt_tensor *gain = param(n, "gain", layer, gckpt_shape1(out), 0, 1);
    gckpt_tensor *bias = param(n, "bias", layer, gckpt_shape1(out), 0, 0);
    return gckpt_relu(gckpt_groupnorm(x, 2, gain, bias, 0));
}

static void build_cnn(net *n, const family *of, int width)
{
    const int side = of->side, colours = of->colours;
    n->in[0] = gckpt_input(n->graph, "x", GCKPT_F32, gckpt_shape4(1, side, side, colours));
    n->in[1] = gckpt_input(n->graph, "targets", GCKPT_I32, gckpt_shape1(1));
    n->in_bytes[0] = 4 * (size_t)(side * side * colours);
    n->in_bytes[1] = 4;
    gckpt_tensor *x = n->in[0];
    int channels = colours;
    for (int s = 0; s < of->stages; s++) {
        const int wide = width << s;
        x = convolution(n, x, 2 * s, channels, wide, s ? 2 : 1);
        x = convolution(n, x, 2 * s + 1, wide, wide, 1);
        channels = wide;
    }
    x = dense(n, gckpt_global_average_pool(x), "head", 0, channels, CLASSES);
    n->loss.loss = gckpt_cross_entropy(x, n->in[1], NULL, 0);
    snprintf(n->size, sizeof n->size, "%d x %d", 2 * of->stages, width);
}

static const family families[] = {
    { "GPT: layers x width x context", build_gpt, 0, 0, 0, 4, 2 },
    { "CNN, 8 x 8 x 1: convolutions x width", build_cnn, 8, 1, 2, 2, 2 },
    { "CNN, 32 x 32 x 3: convolutions x width", build_cnn, 32, 3, 3, 2, 2 },
};

static net open_net(const family *of, int width)
{
    net n = { NULL, NULL, { NULL, 1, 0 }, { NULL, NULL }, { 0, 0 }, "" };
    n.store = gckpt_store_new(NULL);
    n.graph = gckpt_graph_new(n.store, NULL);
    of->build(&n, of, width);
    return n;
}

static void close_net(net *n)
{
    gckpt_graph_free(n->graph);
    gckpt_store_free(n->store);
}

/* ---- the memory that a compiled-in plan needs: its blocks, with the sizes of structs on this machine, and one row
 * of data and targets ---- */
static size_t bytes_of(const net *n, const gckpt_plan *p)
{
    gckpt_plan constant = *p;
    constant.block = NULL;
    return gckpt_store_need(&constant) + gckpt_exec_need(&constant, NULL) + n->in_bytes[0] +
           n->in_bytes[1];
}

static gckpt_plan *plan(const net *n, gckpt_optimiser optimiser, gckpt_mode mode, size_t budget)
{
    static gckpt_plan_desc desc;
    desc.mode = mode;
    desc.budget = budget;
    desc.batch = BATCH;
    desc.optimiser = optimiser;
    desc.kernels.plain = 1;
    desc.kernels.alignment = 8;
    return gckpt_plan_new(n->graph, &n->loss, 1, &desc);
}

/* Returns the plan with the least cost that needs at most `capacity` bytes including its tables and feeds, or NULL.
 * The bytes of tables depend on the plan's instructions, so the budget is found by trial. */
static gckpt_plan *plan_within(const net *n, gckpt_optimiser optimiser, size_t capacity)
{
    gckpt_plan *p = plan(n, optimiser, GCKPT_STORE_ALL, 0);
    for (int i = 0; i < 4 && p; i++) {
        const size_t bytes = bytes_of(n, p), beyond = bytes - gckpt_plan_bytes(p);
        if (bytes <= capacity)
            return p;
        gckpt_plan_free(p);
        p = capacity > beyond ? plan(n, optimiser, GCKPT_AUTO, capacity - beyond) : NULL;
    }
    gckpt_plan_free(p);
    return NULL;
}

/* ---- a short training, to check that both plans give the same bits ---- */
static uint64_t train(const family *of, int width, gckpt_optimiser optimiser, size_t capacity)
{
    net n = open_net(of, width);
    gckpt_plan *p =
        capacity ? plan_within(&n, optimiser, capacity) : plan(&n, optimiser, GCKPT_STORE_ALL, 0);
    gckpt_exec *e = gckpt_exec_new(p, n.store, NULL);
    const gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    uint32_t *data[2] = { NULL, NULL };
    gckpt_feed feeds[2];
    for (int i = 0; i < 2; i++) {
        const size_t words = BATCH * n.in_bytes[i] / 4;
        const float f[2] = { 0.5f, -0.25f };
        data[i] = (uint32_t *)malloc(4 * words);
        for (size_t k = 0; k < words && data[i]; k++) {
            data[i][k] = (uint32_t)(k * k + 3 * k + k / 7) % CLASSES;
            if (of->side && i == 0)
                memcpy(&data[i][k], &f[data[i][k] % 2], 4);
        }
        feeds[i].input = gckpt_id(n.in[i]);
        feeds[i].data = data[i];
    }
    for (int s = 0; s < STEPS; s++)
        if (gckpt_step(e, feeds, 2, BATCH, &hyper, NULL) != GCKPT_OK)
            exit(1);
    const uint64_t hash = gckpt_store_hash(n.store);
    free(data[0]);
    free(data[1]);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    close_net(&n);
    return hash;
}

/* ---- the table ---- */
typedef struct {
    int width; /* 0 if none fits */
    long parameters;
    size_t bytes, whole; /* whole: bytes with all activations kept */
    double extra;
    char size[32];
} row;

static row largest(const family *of, gckpt_optimiser optimiser, size_t capacity, int planned)
{
    row best = { 0, 0, 0, 0, 0, "-" };
    for (int width = of->first, more = 1; more; width += of->step) {
        net n = open_net(of, width);
        gckpt_plan *whole = plan(&n, optimiser, GCKPT_STORE_ALL, 0);
        const size_t all = bytes_of(&n, whole);
        gckpt_plan *p = planned ? plan_within(&n, optimiser, capacity) : NULL;
        more = planned ? p != NULL : all <= capacity;
        if (more) {
            best.width = width;
            best.whole = all;
            best.bytes = p ? bytes_of(&n, p) : all;
            best.extra = 100 * gckpt_plan_describe(p).overhead;
            best.parameters = 0;
            for (int i = 0; i < gckpt_store_count(n.store); i++) {
                gckpt_parameter q;
                gckpt_store_peek(n.store, i, &q);
                best.parameters += (long)q.elements;
            }
            memcpy(best.size, n.size, sizeof n.size);
        }
        gckpt_plan_free(p);
        gckpt_plan_free(whole);
        close_net(&n);
    }
    return best;
}

static void print_cells(const row *r)
{
    if (r->width == 0)
        printf(" none | | |");
    else
        printf(" %s | %ld | %lu |", r->size, r->parameters, (unsigned long)r->bytes);
}

static void print_row(const family *of, size_t kb, int sgd)
{
    const gckpt_optimiser optimiser = sgd ? GCKPT_SGD : GCKPT_ADAMW;
    const size_t capacity = kb * 1024 - REST;
    const row kept = largest(of, optimiser, capacity, 0), planned = largest(of, optimiser, capacity, 1);
    printf("| %d KB, %s |", (int)kb, sgd ? "SGD" : "AdamW");
    print_cells(&kept);
    print_cells(&planned);
    if (planned.width == 0)
        printf(" | |\n");
    else
        printf(" %lu | %.1f %% |\n", (unsigned long)planned.whole, planned.extra);
    fflush(stdout);
    if (planned.width != 0 &&
        train(of, planned.width, optimiser, 0) != train(of, planned.width, optimiser, capacity)) {
        fprintf(stderr, "fits: the planned %s trains to other bits\n", planned.size);
        exit(1);
    }
}

int main(void)
{
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        const family *of = &families[f];
        printf(
            "| %s | all kept | parameters | bytes | planned | parameters | bytes | the same, all kept | "
            "extra work |\n|---|---|--:|--:|---|--:|--:|--:|--:|\n",
            of->name);
        for (int sgd = 0; sgd < 2; sgd++)
            for (size_t kb = 32; kb <= 512; kb *= 2)
                print_row(of, kb, sgd);
        printf("\n");
    }
    return 0;
}
