/* test_axes.c - tests files of PyTorch, whose convolutions have another order of axes. A small net
 * (golden/make_cnn.py) must have PyTorch's outputs once layers_pytorch_load of examples/layers.h has permuted its
 * weights; layers_pytorch_save must write PyTorch's bytes. The key convolution_axes, which older versions wrote, is a
 * note. */
#include "gradckpt.h"
#include "util.h"
#include "examples/layers.h"
#include "golden/cnn.h"
#include <math.h>

static heap mem;
static const int weights[4] = { 2, 3, 1, 0 }, flat[4] = { 0, 2, 3, 1 };

static gckpt_store *store_new(void)
{
    gckpt_store_desc desc = { .memory = heap_memory(&mem), .seed = 3 };
    return gckpt_store_new(&desc);
}

/* ---- files in memory ---- */
/* Returns a file with this header and data. If `metadata` is not NULL, it is the first entry of the header. */
static file file_with(const char *metadata, const char *header, const void *data, size_t bytes)
{
    char text[2000];
    file f = { 0 };
    int n = metadata
                ? snprintf(text, sizeof text, "{\"__metadata__\":{%s},%s", metadata, header + 1)
                : snprintf(text, sizeof text, "%s", header);
    for (int i = 0; i < 8; i++) {
        const unsigned char c = (unsigned char)((uint64_t)n >> (8 * i));
        file_write(&f, &c, 1);
    }
    file_write(&f, text, (size_t)n);
    file_write(&f, data, bytes);
    return f;
}

/* Returns a file of tests/golden. If `metadata` is NULL, the file keeps its metadata; else `metadata` replaces it. */
static file golden(const char *name, const char *metadata)
{
    static char bytes[4000];
    char path[64], header[2000];
    snprintf(path, sizeof path, "tests/golden/%s.safetensors", name);
    FILE *stream = fopen(path, "rb");
    const size_t size = stream ? fread(bytes, 1, sizeof bytes, stream) : 0;
    const size_t length = (unsigned char)bytes[0] + 256u * (unsigned char)bytes[1];
    if (!CHECK_MSG(size > length + 8 && length < sizeof header, "%s", path))
        exit(1);
    fclose(stream);
    memcpy(header, bytes + 8, length);
    header[length] = 0;
    return file_with(metadata, header, bytes + 8 + length, size - 8 - length);
}

static gckpt_result read_as(gckpt_store *s, const file *f, const gckpt_file_desc *d)
{
    file copy = *f;
    copy.at = copy.calls = 0;
    return gckpt_store_read(s, file_read, &copy, f->size, d);
}

/* ---- the net of golden/make_cnn.py ---- */
typedef struct {
    gckpt_graph *g;
    gckpt_tensor *x, *y;
} net;

/* Builds the net. If in_graph is 1, parameters have PyTorch's order and the graph permutes them. If it is 0 or FLAT,
 * parameters have this library's order; with FLAT, layers_flatten flattens the image as PyTorch does. */
enum { FLAT = 2 };
static net build(gckpt_store *s, int in_graph)
{
    const gckpt_init none = { 0, 0, 0 };
    const gckpt_window same = { .padding = { 1, 1 } };
    net n = { gckpt_graph_new(s, NULL), NULL, NULL };
    n.x = gckpt_input(n.g, "x", GCKPT_F32, gckpt_shape4(2, 2, 4, 3));
    gckpt_tensor *w = gckpt_param(n.g, "0.weight", gckpt_shape4(3, 3, 3, 3), none);
    gckpt_tensor *b = gckpt_param(n.g, "0.bias", gckpt_shape1(3), none);
    w = in_graph == 1 ? gckpt_permute(w, weights, 4) : w;
    gckpt_tensor *h = gckpt_relu(layers_batchnorm(gckpt_conv2d(n.x, w, b, &same), "1"));
    w = gckpt_param(n.g, "4.weight", gckpt_shape2(5, 24), none);
    b = gckpt_param(n.g, "4.bias", gckpt_shape1(5), none);
    if (in_graph == 1) {
        w = gckpt_permute(gckpt_reshape(w, gckpt_shape4(5, 3, 2, 4)), flat, 4);
        w = gckpt_reshape(w, gckpt_shape2(5, 24));
    }
    h = in_graph == FLAT ? layers_flatten(h) : gckpt_reshape(h, gckpt_shape2(2, 24));
    n.y = gckpt_linear_transposed(h, w, b);
    return n;
}

/* Returns the largest difference between the net's outputs and those of PyTorch. */
static double distance(gckpt_store *s, const net *n)
{
    float x[48];
    double most = 0;
    gckpt_fetch_spec fetch = { n->y, 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(n->g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(n->x), x };
    layers_permute(golden_cnn_x, gckpt_shape4(2, 3, 2, 4), flat, x);
    CHECK_MSG(gckpt_forward(e, &feed, 1, 2, NULL) == GCKPT_OK, "%s",
              gckpt_error_text(p ? (void *)s : n->g));
    const float *y = e ? gckpt_fetch(e, gckpt_id(n->y), 0) : golden_cnn_x;
    for (int i = 0; i < 10; i++)
        most = fmax(most, fabs((double)y[i] - (double)golden_cnn_y[i]));
    gckpt_exec_free(e), gckpt_plan_free(p);
    return most;
}

/* Returns a tensor's data in the file and sets *shape, or returns NULL if the file has no such tensor. */
static const unsigned char *data_of(const file *f, const char *name, gckpt_shape *shape)
{
    char key[64];
    const char *header = (const char *)f->bytes + 8;
    const size_t length = f->bytes[0] + 256u * f->bytes[1];
    snprintf(key, sizeof key, "\"%s\":{\"dtype\":", name);
    const char *at = strstr(header, key);
    if (at == NULL || at > header + length)
        return NULL;
    at = strstr(at, "\"shape\":[") + 9;
    for (shape->n = 0; *at != ']'; at += *at == ',')
        shape->d[shape->n++] = strtoll(at, (char **)(uintptr_t)&at, 10);
    return f->bytes + 8 + length + strtoll(strstr(at, "offsets\":[") + 10, NULL, 10);
}

/* Returns the bytes of a file. */
static file file_at(const char *path)
{
    static unsigned char bytes[4000];
    file f = { 0 };
    FILE *stream = fopen(path, "rb");
    if (CHECK_MSG(stream != NULL, "%s", path)) {
        file_write(&f, bytes, fread(bytes, 1, sizeof bytes, stream));
        fclose(stream);
    }
    return f;
}

/* PyTorch's file, loaded by layers_pytorch_load, gives PyTorch's outputs; saved by layers_pytorch_save, its tensors have
 * the same shapes and bytes. The file whose axes Python has permuted loads without it. The order of the file's axes is
 * wrong without layers_pytorch_load: this net's 3 x 3 weights of 3 channels fit by chance. */
static void test_pytorch(void)
{
    static const char *const tensors[] = { "0.weight", "0.bias",         "1.weight",      "1.bias",
                                         "4.weight", "1.running_mean", "1.running_var", "4.bias" };
    file f = golden("cnn", NULL), hwio = golden("cnn_hwio", NULL);
    gckpt_store *s = store_new();
    net n = build(s, FLAT);
    CHECK(layers_pytorch_load(s, "tests/golden/cnn.safetensors") == GCKPT_OK && distance(s, &n) < 1e-6);
    CHECK(layers_pytorch_save(s, "build/test_axes.safetensors") == GCKPT_OK);
    file out = file_at("build/test_axes.safetensors");
    for (int i = 0; i < 8; i++) {
        gckpt_shape a = { 0, { 0 } }, b = { 0, { 0 } };
        const unsigned char *was = data_of(&f, tensors[i], &a), *is = data_of(&out, tensors[i], &b);
        CHECK_MSG(was && is && a.n == b.n && !memcmp(a.d, b.d, sizeof a.d) &&
                      !memcmp(was, is, sizeof(float) * (size_t)count_of(&a)),
                  "%s", tensors[i]);
    }
    CHECK(read_as(s, &f, NULL) == GCKPT_E_DATA && strstr(gckpt_error_text(s), "num_batches_tracked"));
    const gckpt_file_desc names = { .rename = layers_pytorch_name };
    CHECK(read_as(s, &f, &names) == GCKPT_OK && distance(s, &n) > 0.1);
    util_free(NULL, NULL, n.g, s);
    s = store_new();
    n = build(s, 0);
    CHECK(read_as(s, &hwio, &names) == GCKPT_OK && distance(s, &n) < 1e-6);
    CHECK(!strcmp(gckpt_store_note(s, "convolution_axes"), "HWIO"));
    CHECK(layers_pytorch_load(s, "build/no_such_file") == GCKPT_E_FILE);
    util_free(NULL, NULL, n.g, s);
    free(f.bytes), free(hwio.bytes), free(out.bytes);
    CHECK(mem.live == 0);
}

/* layers_pytorch_load refuses a file without a tensor of the model, with other tensors, or of other shapes. */
static void test_refused(void)
{
    const gckpt_init none = { 0, 0, 0 };
    const gckpt_shape shapes[3] = { gckpt_shape4(4, 2, 3, 5), gckpt_shape4(5, 2, 3, 4), gckpt_shape1(3) };
    for (int way = 0; way < 4; way++) {
        gckpt_store *s = store_new(), *t = store_new();
        gckpt_graph *g = gckpt_graph_new(s, NULL), *h = gckpt_graph_new(t, NULL);
        gckpt_param(g, "a.weight", gckpt_shape4(3, 5, 2, 4), none);
        gckpt_param(g, "a.bias", shapes[2], none);
        gckpt_param(h, "a.weight", shapes[way == 1], none);
        if (way != 2)
            gckpt_param(h, "a.bias", shapes[2], none);
        if (way == 3)
            gckpt_param(h, "b", shapes[2], none);
        CHECK(gckpt_store_save(t, "build/test_axes.safetensors", NULL) == GCKPT_OK);
        CHECK(layers_pytorch_load(s, "build/test_axes.safetensors") == (way ? GCKPT_E_DATA : GCKPT_OK));
        util_free(NULL, NULL, g, s), util_free(NULL, NULL, h, t);
    }
    CHECK(mem.live == 0);
}

int main(void)
{
    test_pytorch();
    test_refused();
    return check_report("axes");
}
