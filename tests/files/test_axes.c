/* test_axes.c - the order of axes in files of other programs: a net of PyTorch's
 * (golden/make_cnn.py) has the same outputs here when its weights are permuted, and is refused
 * until the program has said that they are, whatever reads them, loaded before the graph is built
 * or after; files of this library load without a word; counters of batch norms are left out with a
 * note. */
#include "gradckpt.h"
#include "rig.h"
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

/* ---- files ---- */
/* A file of this header, in which `metadata`, if any, comes first, and these data. */
static file made(const char *metadata, const char *header, const void *data, size_t bytes)
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

/* What PyTorch saved, with metadata of its own or another's. */
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
    return made(metadata, header, bytes + 8 + length, size - 8 - length);
}

static gckpt_result read_as(gckpt_store *s, const file *f, const gckpt_file_desc *d)
{
    file copy = *f;
    copy.at = copy.calls = 0;
    return gckpt_store_read_as(s, file_read, &copy, f->size, d);
}

static file written(gckpt_store *s, const gckpt_file_desc *d)
{
    file f = { 0 };
    CHECK_MSG(gckpt_store_write_as(s, file_write, &f, d) == GCKPT_OK, "%s", gckpt_error_text(s));
    return f;
}

static int has_text(const file *f, const char *text)
{
    return strstr((const char *)f->bytes + 8, text) != NULL;
}

/* Both orders, the tensor and the remedy are in an error's text. */
static void told(const void *object, const char *name)
{
    const char *text = gckpt_error_text(object);
    CHECK_MSG(gckpt_error(object) == GCKPT_E_DATA && strstr(text, name) &&
                  strstr(text, "(KH,KW,I,O)") && strstr(text, "(O,I,KH,KW)") &&
                  strstr(text, "desc.convolutions = GCKPT_AXES_HWIO") && strstr(text, "Flatten"),
              "%s", text);
}

/* ---- the net ---- */
typedef struct {
    gckpt_graph *g;
    gckpt_tensor *x, *y;
} net;

/* in_graph: parameters are as in PyTorch, and the graph permutes them. */
static net build(gckpt_store *s, int in_graph)
{
    const gckpt_init none = { 0, 0, 0 };
    const gckpt_window same = { .padding = { 1, 1 } };
    net n = { gckpt_graph_new(s, NULL), NULL, NULL };
    n.x = gckpt_input(n.g, "x", GCKPT_F32, gckpt_shape4(2, 2, 4, 3));
    gckpt_tensor *w = gckpt_param(n.g, "0.weight", gckpt_shape4(3, 3, 3, 3), none);
    gckpt_tensor *b = gckpt_param(n.g, "0.bias", gckpt_shape1(3), none);
    w = in_graph ? gckpt_permute(w, weights, 4) : w;
    gckpt_tensor *h = gckpt_relu(layers_batchnorm(gckpt_conv2d(n.x, w, b, &same), "1"));
    w = gckpt_param(n.g, "4.weight", gckpt_shape2(5, 24), none);
    b = gckpt_param(n.g, "4.bias", gckpt_shape1(5), none);
    if (in_graph) {
        w = gckpt_permute(gckpt_reshape(w, gckpt_shape4(5, 3, 2, 4)), flat, 4);
        w = gckpt_reshape(w, gckpt_shape2(5, 24));
    }
    n.y = gckpt_linear_transposed(gckpt_reshape(h, gckpt_shape2(2, 24)), w, b);
    return n;
}

/* How far its outputs are from PyTorch's. */
static double distance(gckpt_store *s, const net *n)
{
    float x[48];
    double most = 0;
    gckpt_pick pick = { n->y, 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch = &pick, .fetches = 1 };
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

/* What docs/from-pytorch.md does in C. */
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

/* Until the program has said the order, nothing is filled: neither by the file that PyTorch wrote,
 * nor with the metadata that others add. What is said without having been done gives other outputs.
 */
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
            told(s, "tensor \"0.weight\"");
            CHECK(gckpt_store_note(s, "1.num_batches_tracked") == NULL);
            gckpt_file_desc d = ways[way];
            d.convolutions = GCKPT_AXES_HWIO;
            CHECK_MSG(read_as(s, &f, &d) == GCKPT_OK, "%s", gckpt_error_text(s));
            CHECK(distance(s, &n) > 0.1);
            rig_free(NULL, NULL, n.g, s);
            free(f.bytes);
        }
    CHECK(mem.live == 0);
}

/* Loaded first, and built later: read or mapped, the building is refused, until the file was loaded
 * again and the order said. */
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
        told(n.g, "param \"0.weight\"");
        gckpt_graph_free(n.g);
        CHECK_MSG(read_as(s, &f, &said) == GCKPT_OK, "%s", gckpt_error_text(s));
        n = build(s, 0);
        CHECK_MSG(n.y != NULL, "%s", gckpt_error_text(n.g));
        CHECK(read_as(s, &f, NULL) == GCKPT_E_DATA);
        rig_free(NULL, NULL, n.g, s);
        free(f.bytes);
    }
}

/* Three ways to PyTorch's outputs: permuted in C from a second store, permuted in Python, where the
 * file says so, loaded before and after building; permuted by the graph, which reads the file as it
 * is. */
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
        const double far = distance(s, &n);
        CHECK_MSG(far < 1e-6, "way %d: %g from PyTorch", way, far);
        gckpt_store_free(from);
        rig_free(NULL, NULL, n.g, s);
    }
    free(theirs.bytes), free(permuted.bytes);
    CHECK(mem.live == 0);
}

/* ---- whatever reads it ---- */
enum { AS_IT_IS, RESHAPED, SCALED, MASKED, WAYS, PERMUTED = WAYS };

/* Convolution `kind` of a parameter "w" of 81 or 12 elements, read in some way. */
static gckpt_graph *convolve(gckpt_store *s, int kind, int way)
{
    const gckpt_init none = { 0, 0, 0 };
    const gckpt_window window = { .groups = kind == 4 ? 3 : 1 };
    const int signals = kind == 1 || kind == 3, turn[4] = { 0, 1, 2, 3 };
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
        w = gckpt_permute(w, turn, shape.n);
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
                file f = made(NULL, header, zeros, bytes);
                gckpt_store *s = store_new();
                gckpt_graph *g = later ? NULL : convolve(s, kind, way);
                gckpt_file_desc d = { .partial = 1 };
                gckpt_result result = read_as(s, &f, &d);
                CHECK_MSG(result == (later || way == PERMUTED ? GCKPT_OK : GCKPT_E_DATA),
                          "kind %d way %d: %s", kind, way, gckpt_error_text(s));
                CHECK_MSG(later || gckpt_error(g) == GCKPT_OK, "%s", gckpt_error_text(g));
                g = later ? convolve(s, kind, way) : g;
                if (way != PERMUTED)
                    told(later ? (void *)g : s, "\"w\"");
                else
                    CHECK_MSG(gckpt_error(g) == GCKPT_OK, "%s", gckpt_error_text(g));
                rig_free(NULL, NULL, g, s);
                free(f.bytes);
            }
    CHECK(mem.live == 0);
}

/* ---- files of this library ---- */
static void test_own(void)
{
    static const char *const old =
        "\"format\":\"gradckpt\",\"contract\":\"1\",\"step\":\"4\",\"seed\":\"3\","
        "\"optimiser\":\"0\"";
    static const gckpt_file_desc ways[] = { { .values_only = 0 }, { .values_only = 1 } };
    file permuted = golden("cnn_hwio", NULL), theirs = golden("cnn", NULL),
         first = golden("cnn", old);
    for (int i = 0; i < 2; i++)
        for (int later = 0; later < 2; later++) { /* what is saved loads, without a word */
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
            rig_free(NULL, NULL, n.g, s);
            rig_free(NULL, NULL, m.g, t);
            free(f.bytes);
        }
    for (int later = 0; later < 2; later++) { /* so do those of version 0.1, which said less */
        gckpt_store *s = store_new();
        net n = { NULL, NULL, NULL };
        if (!later)
            n = build(s, 0);
        CHECK_MSG(read_as(s, &first, NULL) == GCKPT_OTHER_CONTRACT, "%s", gckpt_error_text(s));
        n = later ? build(s, 0) : n;
        CHECK_MSG(n.y != NULL && gckpt_store_step(s) == 4, "%s", gckpt_error_text(n.g));
        rig_free(NULL, NULL, n.g, s);
    }
    for (int i = 0; i < 2; i++) { /* what was taken without its order being said goes on so */
        gckpt_store *s = store_new(), *t = store_new();
        CHECK(read_as(s, &theirs, NULL) == GCKPT_OK);
        file f = written(s, &ways[i]);
        CHECK(has_text(&f, "\"convolution_axes\":\"unsaid\"") == !i && !has_text(&f, "HWIO"));
        net n = build(t, 0);
        CHECK(read_as(t, &f, NULL) == GCKPT_E_DATA);
        told(t, "\"0.weight\"");
        CHECK(read_as(t, &f, &said) == GCKPT_OK && gckpt_store_note(t, "convolution_axes") == NULL);
        rig_free(NULL, NULL, n.g, t);
        free(f.bytes);
        f = written(s, &ways[i]);
        t = store_new();
        CHECK(read_as(t, &f, NULL) == GCKPT_OK && (n = build(t, 0)).y == NULL);
        told(n.g, "\"0.weight\"");
        rig_free(NULL, NULL, n.g, t);
        gckpt_store_free(s);
        free(f.bytes);
    }
    gckpt_store *s = store_new(); /* where nothing can be a convolution's, nothing is said */
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "w", gckpt_shape2(2, 3), (gckpt_init){ 0, 0, 0 });
    file f = written(s, &ways[1]);
    CHECK(!has_text(&f, "axes"));
    free(f.bytes);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape4(1, 1, 1, 3));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(2, 3), (gckpt_init){ 0, 0, 0 });
    CHECK(gckpt_conv2d(x, gckpt_reshape(w, gckpt_shape4(1, 1, 3, 2)), NULL, NULL) != NULL);
    f = written(s, &ways[1]); /* now one of two axes is */
    CHECK(has_text(&f, "\"convolution_axes\":\"HWIO\""));
    rig_free(NULL, NULL, g, s);
    free(f.bytes), free(permuted.bytes), free(theirs.bytes), free(first.bytes);
    CHECK(mem.live == 0);
}

/* ---- the rest of the desc and of the file ---- */
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
    for (int i = 0; i < 2; i++) { /* neither another I64 nor another type of that name */
        char header[200];
        snprintf(header, sizeof header,
                 "{\"%s\":{\"dtype\":\"%s\",\"shape\":[],\"data_offsets\":[0,%d]}}", refused[i],
                 types[i], i ? 4 : 8);
        file g = made(NULL, header, "\1\0\0\0\0\0\0", i ? 4 : 8);
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

int main(void)
{
    test_refused();
    test_later();
    test_outputs();
    test_readers();
    test_own();
    test_counters();
    test_arguments();
    return check_report("axes");
}
