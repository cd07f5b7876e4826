/* test_axes.c - tests the order of axes in files that other programs wrote. A small convolutional net of PyTorch
 * (golden/make_cnn.py) must have PyTorch's outputs here once its weights are permuted. Until the program has declared
 * the order of a file's axes, loading the file or building a graph with its weights is refused, for every op that reads
 * weights of convolutions. Files of this library load without a declaration; PyTorch's counters of batch norms are
 * skipped with a note. With desc.axes, PyTorch's file is read, mapped and written in its own order. Any order of any
 * number of axes, of values and state in any storage, must equal moving each element separately. An impossible order is
 * refused with the tensor's name, and no tensor is changed by a refused load. */
#include "gradckpt.h"
#include "util.h"
#include "examples/layers.h"
#include "golden/cnn.h"
#include <math.h>

static heap mem;
static const gckpt_file_desc said = { .convolutions = GCKPT_AXES_HWIO };
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

static file written(gckpt_store *s, const gckpt_file_desc *d)
{
    file f = { 0 };
    CHECK_MSG(gckpt_store_write(s, file_write, &f, d) == GCKPT_OK, "%s", gckpt_error_text(s));
    return f;
}

static int has_text(const file *f, const char *text)
{
    return strstr((const char *)f->bytes + 8, text) != NULL;
}

/* Checks that the error text names the tensor, both orders of its axes, and what to do. */
static void check_axes_error(const void *object, const char *name)
{
    const char *text = gckpt_error_text(object);
    CHECK_MSG(gckpt_error(object) == GCKPT_E_DATA && strstr(text, name) &&
                  strstr(text, "(KH,KW,I,O)") && strstr(text, "(O,I,KH,KW)") &&
                  strstr(text, "desc.convolutions = GCKPT_AXES_HWIO") && strstr(text, "Flatten"),
              "%s", text);
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

/* Copies all parameters from a store in PyTorch's order to a store in this library's order. */
static void permute_all(gckpt_store *from, gckpt_store *to)
{
    gckpt_parameter a, b;
    for (int i = 0; gckpt_store_get(from, i, &a) == GCKPT_OK; i++) {
        const int there = gckpt_store_get(to, gckpt_store_find(to, a.name), &b) == GCKPT_OK;
        if (!CHECK_MSG(there && a.elements == b.elements, "%s", a.name))
            continue;
        if (a.shape.n == 4)
            layers_permute(a.values, a.shape, weights, b.values);
        else if (a.shape.n == 2)
            layers_permute(a.values, gckpt_shape4(5, 3, 2, 4), flat, b.values);
        else
            memcpy(b.values, a.values, sizeof(float) * (size_t)a.elements);
    }
}

/* A file of PyTorch, or with metadata of other programs, must be refused and fill no parameter until the program has
 * declared the order. If the declared order is wrong, outputs differ from PyTorch's. */
static void test_refused(void)
{
    static const char *const metadata[] = {
        NULL, "\"format\":\"pt\"", "\"convolution_axes\":\"OIHW\"",
        "\"format\":\"gradckpt\",\"contract\":\"3\",\"step\":\"0\","
        "\"seed\":\"0\",\"optimiser\":\"0\","
        "\"convolution_axes\":\"unsaid\""
    };
    static const gckpt_file_desc ways[] = { { .values_only = 0 },
                                            { .values_only = 1 },
                                            { .partial = 1 } };
    for (int i = 0; i < 4; i++)
        for (int way = 0; way < 3; way++) {
            file f = golden("cnn", metadata[i]);
            gckpt_store *s = store_new();
            net n = build(s, 0);
            const uint64_t before = gckpt_store_hash(s);
            CHECK(read_as(s, &f, &ways[way]) == GCKPT_E_DATA && gckpt_store_hash(s) == before);
            check_axes_error(s, "tensor \"0.weight\"");
            CHECK(gckpt_store_note(s, "1.num_batches_tracked") == NULL && !gckpt_store_note(s, NULL) &&
                  !gckpt_store_note(NULL, "a"));
            gckpt_file_desc d = ways[way];
            d.convolutions = GCKPT_AXES_HWIO;
            CHECK_MSG(read_as(s, &f, &d) == GCKPT_OK, "%s", gckpt_error_text(s));
            CHECK(distance(s, &n) > 0.1);
            util_free(NULL, NULL, n.g, s);
            free(f.bytes);
        }
    CHECK(mem.live == 0);
}

/* If a file is read or mapped before the graph is built, building is refused until the file has been loaded again with
 * the order declared. */
static void test_later(void)
{
    for (int mapped = 0; mapped < 2; mapped++) {
        file f = golden("cnn", NULL);
        gckpt_store *s = store_new();
        CHECK((mapped ? gckpt_store_map(s, f.bytes, f.size, NULL) : read_as(s, &f, NULL)) ==
              GCKPT_OK);
        net n = build(s, 0);
        gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE };
        CHECK(n.y == NULL && gckpt_plan_new(n.g, NULL, 0, &desc) == NULL);
        check_axes_error(n.g, "param \"0.weight\"");
        gckpt_graph_free(n.g);
        CHECK_MSG(read_as(s, &f, &said) == GCKPT_OK, "%s", gckpt_error_text(s));
        n = build(s, 0);
        CHECK_MSG(n.y != NULL, "%s", gckpt_error_text(n.g));
        CHECK(read_as(s, &f, NULL) == GCKPT_E_DATA);
        util_free(NULL, NULL, n.g, s);
        free(f.bytes);
    }
}

/* The net must have PyTorch's outputs in three cases: C code permutes the weights from one store to another; Python has
 * permuted them in a file that declares its order, loaded before or after building; the graph permutes weights of the
 * original file. */
static void test_outputs(void)
{
    file theirs = golden("cnn", NULL), permuted = golden("cnn_hwio", NULL);
    for (int way = 0; way < 5; way++) {
        gckpt_store *s = store_new(), *from = store_new();
        file *f = way < 3 ? &permuted : &theirs;
        if (way == 1 || way == 3)
            CHECK_MSG(read_as(s, f, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
        net n = build(s, way >= 3);
        if (way == 2 || way == 4)
            CHECK_MSG(read_as(s, f, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
        if (way == 0) {
            CHECK_MSG(read_as(from, &theirs, NULL) == GCKPT_OK, "%s", gckpt_error_text(from));
            permute_all(from, s);
        }
        CHECK_MSG(n.y != NULL, "%s", gckpt_error_text(n.g));
        const double error = distance(s, &n);
        CHECK_MSG(error < 1e-6, "way %d: %g from PyTorch", way, error);
        gckpt_store_free(from);
        util_free(NULL, NULL, n.g, s);
    }
    free(theirs.bytes), free(permuted.bytes);
    CHECK(mem.live == 0);
}

/* ---- ops between a parameter and the convolution that reads it ---- */
enum { AS_IT_IS, RESHAPED, SCALED, MASKED, WAYS, PERMUTED = WAYS };

/* Builds a convolution whose weights are a parameter "w" of 81 or 12 elements. `kind` selects the convolution, `way`
 * the ops between "w" and the convolution. */
static gckpt_graph *convolve(gckpt_store *s, int kind, int way)
{
    const gckpt_init none = { 0, 0, 0 };
    const gckpt_window window = { .groups = kind == 4 ? 3 : 1 };
    const int signals = kind == 1 || kind == 3, permuting[4] = { 0, 1, 2, 3 };
    const gckpt_shape shape = signals     ? gckpt_shape3(2, 3, 2)
                              : kind == 4 ? gckpt_shape4(2, 2, 1, 3)
                                          : gckpt_shape4(3, 3, 3, 3);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *w = gckpt_param(g, "w", shape, none);
    gckpt_tensor *x =
        gckpt_input(g, "x", GCKPT_F32,
                    signals ? gckpt_shape3(1, 5, kind == 3 ? 2 : 3) : gckpt_shape4(1, 4, 4, 3));
    if (way == RESHAPED)
        w = gckpt_reshape(gckpt_reshape(w, gckpt_shape1(-1)), shape);
    else if (way == SCALED)
        w = gckpt_scale(gckpt_reshape(gckpt_scale(w, 2), shape), 0.5f);
    else if (way == MASKED)
        w = gckpt_mul(gckpt_param(g, "gain", gckpt_shape1(1), none), w);
    else if (way == PERMUTED)
        w = gckpt_permute(w, permuting, shape.n);
    CHECK(x != NULL && w != NULL);
    switch (kind) {
    case 1: gckpt_conv1d(x, w, NULL, &window); break;
    case 2: gckpt_conv2d_transposed(x, w, NULL, &window); break;
    case 3: gckpt_conv1d_transposed(x, w, NULL, &window); break;
    default: gckpt_conv2d(x, w, NULL, &window);
    }
    return g;
}

static void test_readers(void)
{
    static const char *const shapes[] = { "[3,3,3,3]", "[2,3,2]", "[3,3,3,3]", "[2,3,2]",
                                          "[2,2,1,3]" };
    static const int elements[] = { 81, 12, 81, 12, 12 };
    static const float zeros[81] = { 0 };
    for (int kind = 0; kind < 5; kind++)
        for (int way = 0; way <= PERMUTED; way++)
            for (int later = 0; later < 2; later++) {
                char header[200];
                const size_t bytes = sizeof(float) * (size_t)elements[kind];
                snprintf(header, sizeof header,
                         "{\"w\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[0,%d]}}",
                         shapes[kind], (int)bytes);
                file f = file_with(NULL, header, zeros, bytes);
                gckpt_store *s = store_new();
                gckpt_graph *g = later ? NULL : convolve(s, kind, way);
                gckpt_file_desc d = { .partial = 1 };
                gckpt_result result = read_as(s, &f, &d);
                CHECK_MSG(result == (later || way == PERMUTED ? GCKPT_OK : GCKPT_E_DATA),
                          "kind %d way %d: %s", kind, way, gckpt_error_text(s));
                CHECK_MSG(later || gckpt_error(g) == GCKPT_OK, "%s", gckpt_error_text(g));
                g = later ? convolve(s, kind, way) : g;
                if (way != PERMUTED)
                    check_axes_error(later ? (void *)g : s, "\"w\"");
                else
                    CHECK_MSG(gckpt_error(g) == GCKPT_OK, "%s", gckpt_error_text(g));
                util_free(NULL, NULL, g, s);
                free(f.bytes);
            }
    CHECK(mem.live == 0);
}

/* ---- files of this library ---- */
static void test_own_files(void)
{
    static const char *const old =
        "\"format\":\"gradckpt\",\"contract\":\"1\",\"step\":\"4\",\"seed\":\"3\","
        "\"optimiser\":\"0\"";
    static const gckpt_file_desc ways[] = { { .values_only = 0 }, { .values_only = 1 } };
    file permuted = golden("cnn_hwio", NULL), theirs = golden("cnn", NULL),
         first = golden("cnn", old);
    for (int i = 0; i < 2; i++)
        /* the file needs no declaration, loaded after (later = 0) or before building the graph */
        for (int later = 0; later < 2; later++) {
            gckpt_store *s = store_new(), *t = store_new();
            CHECK(read_as(s, &permuted, NULL) == GCKPT_OK);
            net n = build(s, 0), m = { NULL, NULL, NULL };
            file f = written(s, &ways[i]);
            CHECK(has_text(&f, "\"convolution_axes\":\"HWIO\"") == i && !has_text(&f, "unsaid"));
            if (!later)
                m = build(t, 0);
            CHECK_MSG(read_as(t, &f, &ways[i]) == GCKPT_OK, "%s", gckpt_error_text(t));
            if (later)
                m = build(t, 0);
            CHECK(distance(t, &m) < 1e-6);
            util_free(NULL, NULL, n.g, s);
            util_free(NULL, NULL, m.g, t);
            free(f.bytes);
        }
    /* Files of version 0.1, whose metadata lack the order, load as well. */
    for (int later = 0; later < 2; later++) {
        gckpt_store *s = store_new();
        net n = { NULL, NULL, NULL };
        if (!later)
            n = build(s, 0);
        CHECK_MSG(read_as(s, &first, NULL) == GCKPT_OTHER_CONTRACT, "%s", gckpt_error_text(s));
        n = later ? build(s, 0) : n;
        CHECK_MSG(n.y != NULL && gckpt_store_step(s) == 4, "%s", gckpt_error_text(n.g));
        util_free(NULL, NULL, n.g, s);
    }
    /* If weights were loaded from a file without a declared order, they are saved as "unsaid", and a later load of
     * these is refused in the same way. */
    for (int i = 0; i < 2; i++) {
        gckpt_store *s = store_new(), *t = store_new();
        CHECK(read_as(s, &theirs, NULL) == GCKPT_OK);
        file f = written(s, &ways[i]);
        CHECK(has_text(&f, "\"convolution_axes\":\"unsaid\"") == !i && !has_text(&f, "HWIO"));
        net n = build(t, 0);
        CHECK(read_as(t, &f, NULL) == GCKPT_E_DATA);
        check_axes_error(t, "\"0.weight\"");
        CHECK(read_as(t, &f, &said) == GCKPT_OK && gckpt_store_note(t, "convolution_axes") == NULL);
        util_free(NULL, NULL, n.g, t);
        free(f.bytes);
        f = written(s, &ways[i]);
        t = store_new();
        CHECK(read_as(t, &f, NULL) == GCKPT_OK && (n = build(t, 0)).y == NULL);
        check_axes_error(n.g, "\"0.weight\"");
        util_free(NULL, NULL, n.g, t);
        gckpt_store_free(s);
        free(f.bytes);
    }
    /* If no tensor can belong to a convolution, the saved file has no entry about the order. */
    gckpt_store *s = store_new();
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "w", gckpt_shape2(2, 3), (gckpt_init){ 0, 0, 0 });
    file f = written(s, &ways[1]);
    CHECK(!has_text(&f, "axes"));
    free(f.bytes);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(1, 1, 1, 3));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(2, 3), (gckpt_init){ 0, 0, 0 });
    CHECK(gckpt_conv2d(x, gckpt_reshape(w, gckpt_shape4(1, 1, 3, 2)), NULL, NULL) != NULL);
    f = written(s, &ways[1]); /* a convolution reads this tensor, though it has only two axes */
    CHECK(has_text(&f, "\"convolution_axes\":\"HWIO\""));
    util_free(NULL, NULL, g, s);
    free(f.bytes), free(permuted.bytes), free(theirs.bytes), free(first.bytes);
    CHECK(mem.live == 0);
}

/* ---- counters of batch norms, convolution_axes and other fields ---- */
static void test_counters(void)
{
    static const gckpt_file_desc only = { .values_only = 1, .convolutions = GCKPT_AXES_HWIO };
    file f = golden("cnn", NULL);
    const char *note = NULL;
    for (int way = 0; way < 2; way++) {
        gckpt_store *s = store_new();
        CHECK_MSG(read_as(s, &f, way ? &only : &said) == GCKPT_OK, "%s", gckpt_error_text(s));
        CHECK(gckpt_store_count(s) == 8 && gckpt_store_find(s, "1.num_batches_tracked") < 0);
        note = gckpt_store_note(s, "1.num_batches_tracked");
        CHECK_MSG(note && !strcmp(note, "I64, left out"), "%s", note ? note : "no note");
        gckpt_store_free(s);
    }
    gckpt_result result = GCKPT_E_MEMORY; /* each allocation fails in turn */
    for (long n = 1; n < 60 && result != GCKPT_OK; n++) {
        gckpt_store *s = store_new();
        mem.calls = 0;
        mem.fail_at = n;
        result = read_as(s, &f, NULL);
        mem.fail_at = 0;
        CHECK(result == GCKPT_OK || (result == GCKPT_E_MEMORY && gckpt_store_count(s) == 0 &&
                                     gckpt_store_note(s, "1.num_batches_tracked") == NULL));
        gckpt_store_free(s);
    }
    CHECK(result == GCKPT_OK && mem.live == 0);
    static const char *const refused[] = { "num_batches", "1.num_batches_tracked" };
    static const char *const types[] = { "I64", "I32" };
    /* Refused: an I64 tensor with another name, and a tensor with a counter's name but another type. */
    for (int i = 0; i < 2; i++) {
        char header[200];
        snprintf(header, sizeof header,
                 "{\"%s\":{\"dtype\":\"%s\",\"shape\":[],\"data_offsets\":[0,%d]}}", refused[i],
                 types[i], i ? 4 : 8);
        file g = file_with(NULL, header, "\1\0\0\0\0\0\0", i ? 4 : 8);
        gckpt_store *s = store_new();
        CHECK(read_as(s, &g, NULL) == GCKPT_E_DATA && strstr(gckpt_error_text(s), refused[i]));
        gckpt_store_free(s);
        free(g.bytes);
    }
    free(f.bytes);
}

static void test_arguments(void)
{
    file f = golden("cnn", NULL);
    gckpt_store *s = store_new();
    gckpt_file_desc wrong = { .convolutions = (gckpt_axes)(GCKPT_AXES_HWIO + 1) };
    CHECK(read_as(s, &f, &wrong) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "desc.convolutions 2"));
    CHECK(gckpt_store_set_note(s, "convolution_axes", "HWIO") == GCKPT_E_ARG);
    gckpt_store_free(s);
    free(f.bytes);
}

/* ---- desc.axes ---- */
enum { PARAMS = 5 };
typedef struct {
    int n[PARAMS], axes[PARAMS][GCKPT_MAX_DIMS]; /* axes[i], of length n[i], is for "p<i>"; n[i] = 0 keeps the order */
    int given;                                   /* nonzero if n has values to be tested as they are, even wrong ones */
} orders;

/* A rename callback: "p0" in the store is "q0" in the file, and vice versa. */
static const char *in_file_q(void *user, const char *name)
{
    static char other[8];
    (void)user;
    snprintf(other, sizeof other, "%c%s", name[0] == 'p' ? 'q' : 'p', name + 1);
    return other;
}

static int order_of(void *user, const char *name, gckpt_shape shape, int *axes)
{
    orders *o = (orders *)user;
    const int i = name[1] - '0';
    CHECK(name[0] == 'p' && (shape.n == o->n[i] || o->n[i] == 0 || o->given));
    memcpy(axes, o->axes[i], sizeof o->axes[i]);
    return o->n[i];
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

/* Checks that axis i of the tensor in `reordered` is axis axes[i] of the tensor in `plain`; elements have `size`
 * bytes. */
static void moved(const file *plain, const file *reordered, const char *name, const int *axes,
                  size_t size)
{
    gckpt_shape was, is;
    float from[4096], to[4096];
    const unsigned char *a = data_of(plain, name, &was), *b = data_of(reordered, name, &is);
    if (!CHECK_MSG(a && b && was.n == is.n && count_of(&was) <= 4096, "%s", name))
        return;
    for (int i = 0; i < is.n; i++)
        CHECK_MSG(is.d[i] == was.d[axes[i]], "%s: axis %d", name, i);
    for (int k = 0; k < (int)count_of(&was); k++)
        from[k] = (float)k;
    layers_permute(from, was, axes, to);
    int wrong = 0;
    for (int k = 0; k < (int)count_of(&was); k++)
        wrong += memcmp(a + (size_t)to[k] * size, b + (size_t)k * size, size) != 0;
    CHECK_MSG(wrong == 0, "%s: %d elements elsewhere", name, wrong);
}

/* Builds parameters "p0", "p1", .. of these shapes. The losses terms[1], .. are the sums of their squares. */
static gckpt_graph *any(gckpt_store *s, const gckpt_shape *shapes, gckpt_term *terms)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    for (int i = 0; i < PARAMS; i++) {
        const char name[] = { 'p', (char)('0' + i), 0 };
        gckpt_tensor *w = gckpt_param(g, name, shapes[i], (gckpt_init){ 1, 0, 0 });
        terms[i + 1] = (gckpt_term){ gckpt_sum_loss(gckpt_mul(w, w)), 1, 1 };
    }
    return g;
}

/* Sets random shapes and, for each, a random order or the unchanged order. */
static void shapes_of(gckpt_shape *shapes, orders *o)
{
    memset(o, 0, sizeof *o);
    for (int i = 0; i < PARAMS; i++) {
        memset(&shapes[i], 0, sizeof shapes[i]);
        shapes[i].n = (int)below(GCKPT_MAX_DIMS + 1);
        for (int k = 0; k < shapes[i].n; k++) {
            shapes[i].d[k] = between(1, 4);
            o->axes[i][k] = k;
        }
        o->n[i] = chance(20) ? 0 : shapes[i].n;
        for (int k = shapes[i].n - 1; k > 0 && chance(90); k--) {
            const int other = (int)below(k + 1), was = o->axes[i][k];
            o->axes[i][k] = o->axes[i][other];
            o->axes[i][other] = was;
        }
        for (int k = 0; k < shapes[i].n && !o->n[i]; k++)
            o->axes[i][k] = k;
    }
}

/* Writes values and AdamW's state in a random order, and reads or maps them again. */
static void test_any(void)
{
    for (int round = 0; round < 60; round++) {
        gckpt_shape shapes[PARAMS];
        orders o;
        random_state = (uint64_t)round + 34;
        shapes_of(shapes, &o);
        const int whole = round % 2;
        gckpt_file_desc plain = { .values_only = !whole },
                        permuting = { .user = &o, .values_only = !whole, .axes = order_of };
        if (round % 3 == 0)
            plain.rename = permuting.rename = in_file_q;
        gckpt_store *s = store_new();
        gckpt_term terms[PARAMS + 1];
        gckpt_graph *g = any(s, shapes, terms);
        const float one = 1;
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape1(1));
        terms[0] = (gckpt_term){ gckpt_sum_loss(x), 1, 0 };
        if (whole) {
            gckpt_plan *p = gckpt_plan_new(g, terms, PARAMS + 1, NULL);
            gckpt_exec *e = gckpt_exec_new(p, s, NULL);
            gckpt_feed feed = { gckpt_id(x), &one };
            gckpt_hyper h = gckpt_hyper_lr(0.1f);
            CHECK_MSG(gckpt_step(e, &feed, 1, 1, &h, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
            gckpt_exec_free(e), gckpt_plan_free(p);
        }
        file a = written(s, &plain), b = written(s, &permuting);
        int reordered = 0;
        for (int i = 0; i < PARAMS; i++)
            for (int slot = -1; slot < (whole ? 2 : 0); slot++) {
                char name[32];
                snprintf(name, sizeof name, slot < 0 ? "%c%d" : "%c%d#state%d",
                         round % 3 ? 'p' : 'q', i, slot);
                moved(&a, &b, name, o.axes[i], sizeof(float));
                for (int k = 0; k < shapes[i].n; k++)
                    reordered |= o.axes[i][k] != k;
            }
        CHECK(has_text(&b, "\"convolution_axes\":\"unsaid\"") == (whole && reordered));
        CHECK(!reordered || !has_text(&b, "HWIO"));
        /* way: 0 builds the graph before reading the file, 1 builds none, 2 maps the file */
        for (int way = 0; way < 3; way++) {
            gckpt_store *t = store_new();
            gckpt_graph *h = way ? NULL : any(t, shapes, terms);
            CHECK_MSG((way == 2 ? gckpt_store_map(t, b.bytes, b.size, &permuting)
                                : read_as(t, &b, &permuting)) == GCKPT_OK,
                      "%s", gckpt_error_text(t));
            CHECK(gckpt_store_hash(t) == gckpt_store_hash(s));
            file again = written(t, &permuting);
            CHECK(same_file(&b, &again));
            free(again.bytes);
            util_free(NULL, NULL, h, t);
        }
        free(a.bytes), free(b.bytes);
        util_free(NULL, NULL, g, s);
    }
    CHECK(mem.live == 0);
}

static void pack_p0(gckpt_store *s, gckpt_storage storage)
{
    CHECK(gckpt_store_freeze(s, "p0", 1) == GCKPT_OK);
    CHECK_MSG(gckpt_store_quantise(s, "p0", storage) == GCKPT_OK, "%s", gckpt_error_text(s));
}

/* Reads "p0" of shape (4,3,2,5) with permuted axes from files in F32, BF16 and F16. there: 0 to 2 for a parameter in
 * one of these storages, 3 for read-only memory of the program, 4 for mapping the file. If the storage equals the
 * file's type, saving must give the same file again. */
static void test_quantised(void)
{
    orders o = { { 4 }, { { 3, 2, 0, 1 } }, 0 };
    for (int in_file = 0; in_file < 3; in_file++)
        for (int there = 0; there < 5; there++) {
            gckpt_store *s = store_new(), *t = store_new();
            const gckpt_shape shape = gckpt_shape4(4, 3, 2, 5);
            gckpt_graph *g = gckpt_graph_new(s, NULL), *h = gckpt_graph_new(t, NULL);
            gckpt_parameter p;
            gckpt_param(g, "p0", shape, (gckpt_init){ 0, 0, 0 });
            CHECK(gckpt_store_get(s, 0, &p) == GCKPT_OK);
            for (int k = 0; k < 120; k++)
                p.values[k] = (float)(k - 60) / 4; /* all types represent these values exactly */
            const gckpt_storage types[] = { GCKPT_STORAGE_F32, GCKPT_STORAGE_BF16, GCKPT_STORAGE_F16 };
            const gckpt_file_desc permuting = { .user = &o,
                                           .values_only = 1,
                                           .storage = types[in_file],
                                           .axes = order_of },
                                  plain = { .values_only = 1, .storage = types[in_file] };
            file a = written(s, &plain), b = written(s, &permuting);
            moved(&a, &b, "p0", o.axes[0], in_file ? 2 : 4);
            if (there < 3) {
                gckpt_param(h, "p0", shape, (gckpt_init){ 1, 0, 0 });
                if (there)
                    pack_p0(t, types[there]);
            }
            /* The parameter is read-only memory of the program: a file with equal values is accepted, one with other
             * values is refused. */
            if (there == 3) {
                static float own[120];
                memcpy(own, p.values, sizeof own);
                CHECK(gckpt_store_external(t, "p0", shape, own, 0) == GCKPT_OK);
                gckpt_result want = in_file ? GCKPT_E_DATA : GCKPT_OK;
                CHECK_MSG(read_as(t, &b, &permuting) == want, "%s", gckpt_error_text(t));
                own[77] += 1;
                CHECK(read_as(t, &b, &permuting) == GCKPT_E_DATA &&
                      strstr(gckpt_error_text(t), "not writable"));
            } else {
                CHECK_MSG((there == 4 ? gckpt_store_map(t, b.bytes, b.size, &permuting)
                                      : read_as(t, &b, &permuting)) == GCKPT_OK,
                          "%s", gckpt_error_text(t));
                CHECK(gckpt_store_hash(s) == gckpt_store_hash(t));
                CHECK(gckpt_store_get(t, 0, &p) == GCKPT_OK &&
                      p.storage == types[there < 3 ? there : 0] && !p.frozen == (there % 4 == 0));
                file again = written(t, &permuting);
                CHECK(same_file(&b, &again) == (there % 4 == 0 || there == in_file));
                free(again.bytes);
            }
            free(a.bytes), free(b.bytes);
            util_free(NULL, NULL, g, s);
            util_free(NULL, NULL, h, t);
        }
    CHECK(mem.live == 0);
}

/* Refused without reading or writing anything: an order that is no permutation of all axes, shapes that differ after
 * permuting, permuted I8 or I4 tensors in a file or store, and values beyond the range of F16. */
static void test_axes_refused(void)
{
    static const orders wrong[] = { { { 3 }, { { 0, 1, 2 } }, 1 },   { { 2 }, { { 0, 0 } }, 1 },
                                    { { 2 }, { { 0, 2 } }, 1 },      { { 2 }, { { 1, -1 } }, 1 },
                                    { { 1 }, { { 0 } }, 1 },         { { -1 }, { { 0, 1 } }, 1 },
                                    { { 2 }, { { 1 << 30, 0 } }, 1 } };
    orders o = { { 2 }, { { 1, 0 } }, 0 };
    gckpt_file_desc d = { .user = &o, .axes = order_of }, values = { .values_only = 1 };
    gckpt_store *s = store_new();
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "p0", gckpt_shape2(3, 32), (gckpt_init){ 1, 0, 0 });
    gckpt_param(g, "p1", gckpt_shape1(2), (gckpt_init){ 1, 0, 0 });
    file f = written(s, &values), none = { 0 };
    const uint64_t before = gckpt_store_hash(s);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        orders w = wrong[i];
        d.user = &w;
        CHECK(read_as(s, &f, &d) == GCKPT_E_ARG && gckpt_store_hash(s) == before &&
              strstr(gckpt_error_text(s), "tensor \"p0\": desc.axes gives "));
        CHECK(gckpt_store_write(s, file_write, &none, &d) == GCKPT_E_ARG && none.size == 0);
        CHECK_MSG(strstr(gckpt_error_text(s), "\"p0\"") && strstr(gckpt_error_text(s), "[3,32]"),
                  "%s", gckpt_error_text(s));
        gckpt_store *t = store_new();
        CHECK(read_as(t, &f, &d) == GCKPT_E_ARG && gckpt_store_count(t) == 0);
        gckpt_store_free(t);
    }
    d.user = &o; /* the file's tensor of shape (3,32), permuted, is (32,3), but the store expects (3,32) */
    CHECK(read_as(s, &f, &d) == GCKPT_E_SHAPE && gckpt_store_hash(s) == before);
    CHECK_MSG(strstr(gckpt_error_text(s), "[32,3], permuted by desc.axes, the store as [3,32]"),
              "%s", gckpt_error_text(s));
    for (int type = GCKPT_STORAGE_I8; type <= GCKPT_STORAGE_I4; type++) {
        pack_p0(s, (gckpt_storage)type);
        file small = written(s, &values);
        const uint64_t now = gckpt_store_hash(s);
        gckpt_store *t = store_new();
        for (int way = 0; way < 2; way++) {
            CHECK((way ? gckpt_store_map(t, small.bytes, small.size, &d)
                       : read_as(t, &small, &d)) == GCKPT_E_DATA &&
                  gckpt_store_count(t) == 0 && strstr(gckpt_error_text(t), "tensor \"p0\""));
            CHECK_MSG(strstr(gckpt_error_text(t), "I8 and I4"), "%s", gckpt_error_text(t));
        }
        CHECK(gckpt_store_write(s, file_write, &none, &d) == GCKPT_E_DATA && none.size == 0 &&
              strstr(gckpt_error_text(s), "\"p0\""));
        gckpt_graph *h = gckpt_graph_new(t, NULL); /* permuted F32 cannot be read into a parameter in I8 or I4 */
        gckpt_param(h, "p0", gckpt_shape2(32, 32), (gckpt_init){ 1, 0, 0 });
        gckpt_param(h, "p1", gckpt_shape1(2), (gckpt_init){ 1, 0, 0 });
        file square = written(t, &values);
        pack_p0(t, (gckpt_storage)type);
        const uint64_t held = gckpt_store_hash(t);
        CHECK(read_as(t, &square, &d) == GCKPT_E_DATA && gckpt_store_hash(t) == held);
        CHECK(gckpt_store_hash(s) == now);
        util_free(NULL, NULL, h, t);
        free(small.bytes), free(square.bytes);
    }
    pack_p0(s, GCKPT_STORAGE_F32);
    gckpt_parameter p;
    CHECK(gckpt_store_get(s, 0, &p) == GCKPT_OK);
    p.values[5] = 1e6f;
    d.storage = GCKPT_STORAGE_F16;
    CHECK(gckpt_store_write(s, file_write, &none, &d) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "65504"));
    d.storage = GCKPT_STORAGE_F32;
    file reordered = written(s, &d);
    gckpt_store *t = store_new();
    gckpt_graph *h = gckpt_graph_new(t, NULL);
    gckpt_param(h, "p0", gckpt_shape2(3, 32), (gckpt_init){ 1, 0, 0 });
    gckpt_param(h, "p1", gckpt_shape1(2), (gckpt_init){ 1, 0, 0 });
    pack_p0(t, GCKPT_STORAGE_F16);
    const uint64_t half = gckpt_store_hash(t);
    CHECK(read_as(t, &reordered, &d) == GCKPT_E_DATA && gckpt_store_hash(t) == half &&
          strstr(gckpt_error_text(t), "65504"));
    util_free(NULL, NULL, h, t);
    free(f.bytes), free(none.bytes), free(reordered.bytes);
    util_free(NULL, NULL, g, s);
    CHECK(mem.live == 0);
}

/* While a file with permuted axes is written and read, each allocation, read and write fails in turn. Then three bits
 * of each byte of the header are flipped in turn. */
static void test_axes_failing(void)
{
    gckpt_shape shapes[PARAMS];
    orders o;
    random_state = 7;
    shapes_of(shapes, &o);
    const gckpt_file_desc permuting = { .user = &o, .axes = order_of };
    gckpt_store *s = store_new();
    gckpt_term terms[PARAMS + 1];
    gckpt_graph *g = any(s, shapes, terms);
    file f = written(s, &permuting);
    gckpt_result result = GCKPT_E_FILE;
    for (size_t n = 1; n < 300 && result != GCKPT_OK; n++) {
        file copy = { .bytes = f.bytes, .size = f.size, .fail_call = n }, out = { .fail_call = n };
        gckpt_store *t = store_new();
        result = gckpt_store_read(t, file_read, &copy, f.size, &permuting);
        CHECK(result == GCKPT_OK || (result == GCKPT_E_FILE && gckpt_store_count(t) == 0));
        CHECK(gckpt_store_write(s, file_write, &out, &permuting) ==
              (n > 1 && result == GCKPT_OK ? GCKPT_OK : gckpt_error(s)));
        free(out.bytes);
        gckpt_store_free(t);
    }
    CHECK(result == GCKPT_OK);
    result = GCKPT_E_MEMORY;
    for (long n = 1; n < 200 && result != GCKPT_OK; n++) {
        gckpt_store *t = store_new();
        mem.calls = 0;
        mem.fail_at = n;
        result = read_as(t, &f, &permuting);
        mem.fail_at = 0;
        CHECK(result == GCKPT_OK || (result == GCKPT_E_MEMORY && gckpt_store_count(t) == 0));
        gckpt_store_free(t);
    }
    CHECK(result == GCKPT_OK);
    const uint64_t before = gckpt_store_hash(s);
    const size_t header = 8 + f.bytes[0] + 256u * f.bytes[1];
    for (size_t at = 8; at < header; at++)
        for (int bit = 0; bit < 8; bit += 3) {
            f.bytes[at] ^= (unsigned char)(1 << bit);
            result = read_as(s, &f, &permuting);
            CHECK(result == GCKPT_OK || gckpt_store_hash(s) == before);
            f.bytes[at] ^= (unsigned char)(1 << bit);
            if (result == GCKPT_OK)
                CHECK(read_as(s, &f, &permuting) == GCKPT_OK && gckpt_store_hash(s) == before);
        }
    free(f.bytes);
    util_free(NULL, NULL, g, s);
    CHECK(mem.live == 0);
}

/* A desc.axes callback whose answer changes from call to call. The written file is useless, but writing it must read no
 * memory outside the store, even with uninitialised values and I8 or I4 rows. */
static int other_order(void *user, const char *name, gckpt_shape shape, int *axes)
{
    (void)user, (void)name;
    for (int i = 0; i < shape.n; i++)
        axes[i] = shape.n - 1 - i;
    return chance(50) ? 0 : shape.n;
}

static void test_axes_changing(void)
{
    const gckpt_file_desc permuting = { .axes = other_order };
    gckpt_store *s = store_new();
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    random_state = 3;
    gckpt_param(g, "drawn", gckpt_shape2(7, 30), (gckpt_init){ 1, 0, 0 });
    gckpt_param(g, "a", gckpt_shape2(3, 64), (gckpt_init){ 1, 0, 0 });
    gckpt_param(g, "b", gckpt_shape2(3, 64), (gckpt_init){ 1, 0, 0 });
    CHECK(gckpt_store_freeze(s, "?", 1) == GCKPT_OK &&
          gckpt_store_quantise(s, "a", GCKPT_STORAGE_I4) == GCKPT_OK &&
          gckpt_store_quantise(s, "b", GCKPT_STORAGE_I8) == GCKPT_OK);
    int done = 0;
    for (int i = 0; i < 200; i++) {
        file out = { 0 };
        done += gckpt_store_write(s, file_write, &out, &permuting) == GCKPT_OK;
        gckpt_store *t = store_new();
        file copy = out;
        copy.at = copy.calls = 0;
        if (out.size)
            CHECK(gckpt_store_read(t, file_read, &copy, out.size, &permuting) == GCKPT_OK ||
                  gckpt_store_count(t) == 0);
        free(out.bytes);
        gckpt_store_free(t);
    }
    CHECK(done > 20);
    util_free(NULL, NULL, g, s);
    CHECK(mem.live == 0);
}

static int none_said(void *user, const char *name, gckpt_shape shape, int *axes)
{
    (void)user, (void)name, (void)shape, (void)axes;
    return 0;
}

static int as_here(void *user, const char *name, gckpt_shape shape, int *axes)
{
    ++*(int *)user;
    (void)name;
    for (int i = 0; i < shape.n; i++)
        axes[i] = i;
    return shape.n;
}

/* Tests PyTorch's net in PyTorch's file, which is read or mapped, before or after building the graph. Saved again with
 * desc.axes, its tensors have the shapes and bytes of PyTorch's file. Without a declared order the file is refused,
 * even if desc.axes is set. */
static void test_pytorch(void)
{
    static const char *const names[] = { "0.weight", "0.bias",         "1.weight",      "1.bias",
                                         "4.weight", "1.running_mean", "1.running_var", "4.bias" };
    file f = golden("cnn", NULL), hwio = golden("cnn_hwio", NULL);
    int asked = 0;
    const gckpt_file_desc torch = { .values_only = 1, .axes = layers_pytorch_axes },
                          silent = { .axes = none_said },
                          here = { .user = &asked, .axes = as_here };
    for (int way = 0; way < 4; way++) {
        gckpt_store *s = store_new();
        net n = { NULL, NULL, NULL };
        if (way % 2)
            n = build(s, FLAT);
        CHECK_MSG((way < 2 ? read_as(s, &f, &torch)
                           : gckpt_store_map(s, f.bytes, f.size, &torch)) == GCKPT_OK,
                  "%s", gckpt_error_text(s));
        if (way % 2 == 0)
            n = build(s, FLAT);
        CHECK_MSG(n.y != NULL, "%s", gckpt_error_text(n.g));
        CHECK(distance(s, &n) < 1e-6);
        file out = written(s, &torch);
        CHECK(!has_text(&out, "axes"));
        for (int i = 0; i < 8; i++) {
            gckpt_shape a = { 0, { 0 } }, b = { 0, { 0 } };
            const unsigned char *was = data_of(&f, names[i], &a), *is = data_of(&out, names[i], &b);
            CHECK_MSG(was && is && a.n == b.n && !memcmp(a.d, b.d, sizeof a.d) &&
                          !memcmp(was, is, sizeof(float) * (size_t)count_of(&a)),
                      "%s", names[i]);
        }
        util_free(NULL, NULL, n.g, s);
        free(out.bytes);
    }
    gckpt_store *s = store_new();
    net n = build(s, 0);
    const uint64_t before = gckpt_store_hash(s);
    CHECK(read_as(s, &f, &silent) == GCKPT_E_DATA && gckpt_store_hash(s) == before);
    check_axes_error(s, "tensor \"0.weight\"");
    CHECK(strstr(gckpt_error_text(s), "desc.axes") != NULL);
    CHECK(read_as(s, &f, &here) == GCKPT_OK && asked >= 8 && distance(s, &n) > 0.1);
    asked = 0; /* a file that declares its order never calls desc.axes */
    CHECK(read_as(s, &hwio, &here) == GCKPT_OK && asked == 0 && distance(s, &n) < 1e-6);
    CHECK(read_as(s, &hwio, &torch) == GCKPT_OK && distance(s, &n) < 1e-6);
    const gckpt_file_desc whole = { .axes = layers_pytorch_axes };
    file out = written(s, &whole), own = written(s, &here);
    CHECK(has_text(&out, "\"convolution_axes\":\"unsaid\"") && !has_text(&own, "unsaid"));
    CHECK(read_as(s, &out, NULL) == GCKPT_E_DATA && read_as(s, &out, &whole) == GCKPT_OK &&
          distance(s, &n) < 1e-6);
    CHECK(read_as(s, &own, &torch) == GCKPT_OK && distance(s, &n) < 1e-6);
    free(out.bytes), free(own.bytes), free(f.bytes), free(hwio.bytes);
    util_free(NULL, NULL, n.g, s);
    CHECK(mem.live == 0);
}

int main(void)
{
    test_refused();
    test_later();
    test_outputs();
    test_readers();
    test_own_files();
    test_counters();
    test_arguments();
    test_any();
    test_quantised();
    test_axes_refused();
    test_axes_failing();
    test_axes_changing();
    test_pytorch();
    return check_report("axes");
}
