/* onnx.h - writes the part of a graph that computes given tensors as an ONNX file, with the store's
 * weights, for onnxruntime and other inference engines. To copy; it uses public calls only.
 *
 *     onnx_output out = { logits, "logits" };
 *     char error[ONNX_ERROR];
 *     if (onnx_save(g, store, &out, 1, "model.onnx", error) != 0)
 *         fprintf(stderr, "%s\n", error);
 *
 * Inputs keep their names, types and shapes; their first axis is named "batch" and may have any
 * size in the file, if no op of the graph moves the batch to another axis. Dropout is left out, and
 * batch norms use their running statistics. Channels stay the last axis: transposes are written
 * around convolutions and pools, which engines merge or remove. Attention, rotary positions, norms
 * and recurrent cells are written as the ops of which they consist (opset 19), so any engine runs
 * them; engines sum in another order, so that results differ in the last bits. Losses, caches and
 * user-defined ops are refused by name, and files of 2 GB or more. Returns 0, or -1 with the error
 * text; then there is no new file. C99 or C++11; include gradckpt.h first. */
#ifndef ONNX_H
#define ONNX_H
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ONNX_ERROR = 512, ONNX_NAME = 96 };

typedef struct {
    const gckpt_tensor *tensor;
    const char *name; /* of the output in the file */
} onnx_output;

/* ---- protocol buffers: fields are a key (number and type) and a value -------------------------- */
typedef struct {
    unsigned char *bytes;
    size_t used, capacity;
    int failed; /* nonzero if memory ran out */
} onnx_buffer;

static inline void onnx_put(onnx_buffer *b, const void *bytes, size_t n)
{
    if (b->used + n > b->capacity) {
        const size_t capacity = 2 * b->capacity + n + 64;
        unsigned char *grown = (unsigned char *)realloc(b->bytes, capacity);
        b->failed |= grown == NULL;
        if (grown == NULL)
            return;
        b->bytes = grown;
        b->capacity = capacity;
    }
    if (n > 0)
        memcpy(b->bytes + b->used, bytes, n);
    b->used += n;
}

static inline void onnx_number(onnx_buffer *b, uint64_t x) /* 7 bits a byte, the lowest first */
{
    unsigned char bytes[10];
    size_t n = 0;
    for (; x > 127; x >>= 7)
        bytes[n++] = (unsigned char)(x | 128);
    bytes[n++] = (unsigned char)x;
    onnx_put(b, bytes, n);
}

static inline void onnx_int(onnx_buffer *b, int field, int64_t x)
{
    onnx_number(b, (uint64_t)field << 3);
    onnx_number(b, (uint64_t)x);
}

static inline void onnx_bytes(onnx_buffer *b, int field, const void *bytes, size_t n)
{
    onnx_number(b, (uint64_t)field << 3 | 2);
    onnx_number(b, n);
    onnx_put(b, bytes, n);
}

static inline void onnx_text(onnx_buffer *b, int field, const char *text)
{
    onnx_bytes(b, field, text, strlen(text));
}

/* Appends a message as a field, and frees its memory. */
static inline void onnx_message(onnx_buffer *b, int field, onnx_buffer *message)
{
    b->failed |= message->failed;
    onnx_bytes(b, field, message->bytes, message->used);
    free(message->bytes);
    memset(message, 0, sizeof *message);
}

static inline void onnx_float(onnx_buffer *b, int field, float x)
{
    uint32_t bits;
    unsigned char bytes[4];
    memcpy(&bits, &x, sizeof bits);
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(bits >> 8 * i);
    onnx_number(b, (uint64_t)field << 3 | 5);
    onnx_put(b, bytes, 4);
}

/* ---- the state of a file ---------------------------------------------------------------------- */
enum { ONNX_FLOAT = 1, ONNX_U8 = 2, ONNX_I32 = 6, ONNX_I64 = 7, ONNX_BOOL = 9 };

typedef struct {
    const gckpt_graph *graph;
    gckpt_store *store;
    onnx_buffer *nodes; /* of the graph, or of the body of a loop */
    onnx_buffer graph_nodes, weights, inputs, outputs;
    char (*names)[ONNX_NAME]; /* of each tensor of the graph; "" if it has no node yet */
    int count;                /* of names made so far */
    int *params;              /* indices in the store of the parameters that the file has */
    int param_count;
    gckpt_node node; /* the present tensor, its words of attributes, its inputs */
    int32_t words[16 + GCKPT_MAX_DIMS];
    int word_count;
    const char *in[GCKPT_MAX_INPUTS];
    gckpt_node from[GCKPT_MAX_INPUTS]; /* the inputs' descriptions */
    char *error;
} onnx_writer;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
onnx_fail(onnx_writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (w->error[0] == 0)
        vsnprintf(w->error, ONNX_ERROR, format, args);
    va_end(args);
    return -1;
}

typedef struct { /* the name of a value */
    char text[ONNX_NAME];
} onnx_name;

static inline onnx_name onnx_named(const char *text)
{
    onnx_name name;
    snprintf(name.text, sizeof name.text, "%s", text);
    return name;
}

static inline onnx_name onnx_fresh(onnx_writer *w)
{
    onnx_name name;
    snprintf(name.text, sizeof name.text, "%%%d", w->count++);
    return name;
}

/* Begins a tensor of the graph's weights, which ends with n bytes of values in the file's order. */
static inline void onnx_weight(onnx_buffer *to, const char *name, int type, int dims,
                               const int64_t *shape, size_t n)
{
    onnx_buffer t = { NULL, 0, 0, 0 };
    for (int i = 0; i < dims; i++)
        onnx_int(&t, 1, shape[i]);
    onnx_int(&t, 2, type);
    onnx_text(&t, 8, name);
    onnx_number(&t, 9 << 3 | 2);
    onnx_number(&t, n);
    onnx_number(to, 5 << 3 | 2);
    onnx_number(to, t.used + n);
    onnx_put(to, t.bytes, t.used);
    to->failed |= t.failed;
    free(t.bytes);
}

/* Makes a constant of floats (int64_t if `integers` is nonzero), lowest bytes first. */
static inline onnx_name onnx_constant(onnx_writer *w, int type, int dims, const int64_t *shape,
                                      const void *values)
{
    const onnx_name name = onnx_fresh(w);
    const size_t size = type == ONNX_I64 ? 8 : 4;
    size_t n = 1;
    for (int i = 0; i < dims; i++)
        n *= (size_t)shape[i];
    onnx_weight(&w->weights, name.text, type, dims, shape, n * size);
    for (size_t i = 0; i < n; i++) {
        unsigned char bytes[8];
        uint64_t x = 0;
        uint32_t word;
        if (size == 8)
            memcpy(&x, (const char *)values + 8 * i, 8);
        else {
            memcpy(&word, (const char *)values + 4 * i, 4);
            x = word;
        }
        for (size_t k = 0; k < size; k++)
            bytes[k] = (unsigned char)(x >> 8 * k);
        onnx_put(&w->weights, bytes, size);
    }
    return name;
}

static inline onnx_name onnx_scalar(onnx_writer *w, double x)
{
    const float value = (float)x;
    return onnx_constant(w, ONNX_FLOAT, 0, NULL, &value);
}

static inline onnx_name onnx_integers(onnx_writer *w, int n, const int64_t *values)
{
    const int64_t shape = n;
    return onnx_constant(w, ONNX_I64, 1, &shape, values);
}

/* ---- nodes: attributes are collected, then the node takes them --------------------------------- */
static inline void onnx_attribute(onnx_buffer *a, const char *name, int64_t x)
{
    onnx_buffer b = { NULL, 0, 0, 0 };
    onnx_text(&b, 1, name);
    onnx_int(&b, 3, x);
    onnx_int(&b, 20, 2);
    onnx_message(a, 5, &b);
}

static inline void onnx_attribute_real(onnx_buffer *a, const char *name, float x)
{
    onnx_buffer b = { NULL, 0, 0, 0 };
    onnx_text(&b, 1, name);
    onnx_float(&b, 2, x);
    onnx_int(&b, 20, 1);
    onnx_message(a, 5, &b);
}

static inline void onnx_attribute_text(onnx_buffer *a, const char *name, const char *text)
{
    onnx_buffer b = { NULL, 0, 0, 0 };
    onnx_text(&b, 1, name);
    onnx_text(&b, 4, text);
    onnx_int(&b, 20, 3);
    onnx_message(a, 5, &b);
}

static inline void onnx_attribute_list(onnx_buffer *a, const char *name, int n, const int64_t *x)
{
    onnx_buffer b = { NULL, 0, 0, 0 };
    onnx_text(&b, 1, name);
    for (int i = 0; i < n; i++)
        onnx_int(&b, 8, x[i]);
    onnx_int(&b, 20, 7);
    onnx_message(a, 5, &b);
}

/* Appends a node with these inputs (until NULL) and takes its attributes, which may be NULL. */
static inline void onnx_node_to(onnx_writer *w, const char *op, const char *out,
                                onnx_buffer *attributes, const char *a, const char *b,
                                const char *c)
{
    const char *const in[] = { a, b, c };
    onnx_buffer n = { NULL, 0, 0, 0 };
    for (int i = 0; i < 3; i++)
        if (in[i] != NULL)
            onnx_text(&n, 1, in[i]);
    onnx_text(&n, 2, out);
    onnx_text(&n, 4, op);
    if (attributes != NULL) {
        n.failed |= attributes->failed;
        onnx_put(&n, attributes->bytes, attributes->used);
        free(attributes->bytes);
        memset(attributes, 0, sizeof *attributes);
    }
    onnx_message(w->nodes, 1, &n);
}

static inline onnx_name onnx_add(onnx_writer *w, const char *op, onnx_buffer *attributes,
                                 onnx_name a)
{
    const onnx_name out = onnx_fresh(w);
    onnx_node_to(w, op, out.text, attributes, a.text, NULL, NULL);
    return out;
}

static inline onnx_name onnx_add2(onnx_writer *w, const char *op, onnx_name a, onnx_name b)
{
    const onnx_name out = onnx_fresh(w);
    onnx_node_to(w, op, out.text, NULL, a.text, b.text, NULL);
    return out;
}

static inline onnx_name onnx_transpose(onnx_writer *w, onnx_name x, int n, const int64_t *axes)
{
    onnx_buffer a = { NULL, 0, 0, 0 };
    onnx_attribute_list(&a, "perm", n, axes);
    return onnx_add(w, "Transpose", &a, x);
}

/* Reshapes; the first size may be that of the batch, and is computed by the engine. */
static inline onnx_name onnx_reshape(onnx_writer *w, onnx_name x, int n, const int64_t *shape)
{
    int64_t sizes[GCKPT_MAX_DIMS + 2];
    for (int i = 0; i < n; i++)
        sizes[i] = i == 0 ? -1 : shape[i];
    return onnx_add2(w, "Reshape", x, onnx_integers(w, n, sizes));
}

/* Reduces axes, which stay with size 1 if keep is nonzero. */
static inline onnx_name onnx_reduce(onnx_writer *w, const char *op, onnx_name x, int n,
                                    const int64_t *axes, int keep)
{
    const onnx_name out = onnx_fresh(w), list = onnx_integers(w, n, axes);
    onnx_buffer a = { NULL, 0, 0, 0 };
    onnx_attribute(&a, "keepdims", keep);
    onnx_node_to(w, op, out.text, &a, x.text, list.text, NULL);
    return out;
}

/* Takes elements begin..end-1 of an axis. */
static inline onnx_name onnx_slice(onnx_writer *w, onnx_name x, int64_t axis, int64_t begin,
                                   int64_t end)
{
    const onnx_name out = onnx_fresh(w), from = onnx_integers(w, 1, &begin),
                    to = onnx_integers(w, 1, &end), axes = onnx_integers(w, 1, &axis);
    onnx_buffer n = { NULL, 0, 0, 0 };
    onnx_text(&n, 1, x.text);
    onnx_text(&n, 1, from.text);
    onnx_text(&n, 1, to.text);
    onnx_text(&n, 1, axes.text);
    onnx_text(&n, 2, out.text);
    onnx_text(&n, 4, "Slice");
    onnx_message(w->nodes, 1, &n);
    return out;
}

static inline onnx_name onnx_concat(onnx_writer *w, int64_t axis, int count, const onnx_name *x)
{
    const onnx_name out = onnx_fresh(w);
    onnx_buffer n = { NULL, 0, 0, 0 }, a = { NULL, 0, 0, 0 };
    for (int i = 0; i < count; i++)
        onnx_text(&n, 1, x[i].text);
    onnx_text(&n, 2, out.text);
    onnx_text(&n, 4, "Concat");
    onnx_attribute(&a, "axis", axis);
    onnx_put(&n, a.bytes, a.used);
    free(a.bytes);
    onnx_message(w->nodes, 1, &n);
    return out;
}

/* ---- the present node ------------------------------------------------------------------------- */
static inline onnx_name onnx_in(const onnx_writer *w, int i) { return onnx_named(w->in[i]); }
static inline int32_t onnx_word(const onnx_writer *w, int i)
{
    return i < w->word_count ? w->words[i] : 0;
}
static inline float onnx_word_real(const onnx_writer *w, int i)
{
    float x = 0;
    if (i < w->word_count)
        memcpy(&x, &w->words[i], sizeof x);
    return x;
}
static inline int64_t onnx_axis(int64_t axis, int n) { return axis < 0 ? axis + n : axis; }

/* Returns x times, then plus, the inputs with these indices, where they are not 0. */
static inline onnx_name onnx_affine(onnx_writer *w, onnx_name x, int gain, int bias)
{
    x = gain > 0 ? onnx_add2(w, "Mul", x, onnx_in(w, gain)) : x;
    return bias > 0 ? onnx_add2(w, "Add", x, onnx_in(w, bias)) : x;
}

/* Returns (x - mean) / sqrt(variance + epsilon) over axes; without the mean if center is 0. */
static inline onnx_name onnx_normalise(onnx_writer *w, onnx_name x, int n, const int64_t *axes,
                                       int center, float epsilon)
{
    if (center)
        x = onnx_add2(w, "Sub", x, onnx_reduce(w, "ReduceMean", x, n, axes, 1));
    onnx_name v = onnx_reduce(w, "ReduceMean", onnx_add2(w, "Mul", x, x), n, axes, 1);
    v = onnx_add2(w, "Add", v, onnx_scalar(w, (double)epsilon));
    return onnx_add2(w, "Div", x, onnx_add(w, "Sqrt", NULL, v));
}

/* layernorm, rmsnorm: words center, gain, bias, epsilon (1e-5 if omitted). */
static inline onnx_name onnx_norm(onnx_writer *w)
{
    static const int64_t last = -1;
    const float epsilon = w->word_count > 3 ? onnx_word_real(w, 3) : 1e-5f;
    const onnx_name x = onnx_normalise(w, onnx_in(w, 0), 1, &last, onnx_word(w, 0), epsilon);
    return onnx_affine(w, x, onnx_word(w, 1), onnx_word(w, 2));
}

/* groupnorm: words groups, gain, bias, epsilon (1e-5 if omitted). batchnorm: 0 for groups; its
 * inputs 1 and 2 are mean and variance. */
static inline onnx_name onnx_channel_norm(onnx_writer *w)
{
    static const int64_t axes[] = { 1, 3 };
    const gckpt_shape s = w->node.shape;
    const int64_t channels = s.d[s.n - 1], groups = onnx_word(w, 0);
    const float epsilon = w->word_count > 3 ? onnx_word_real(w, 3) : 1e-5f;
    onnx_name x = onnx_in(w, 0);
    if (groups == 0) {
        onnx_name v = onnx_add2(w, "Add", onnx_in(w, 2), onnx_scalar(w, (double)epsilon));
        x = onnx_add2(w, "Sub", x, onnx_in(w, 1));
        x = onnx_add2(w, "Div", x, onnx_add(w, "Sqrt", NULL, v));
    } else {
        int64_t pixels = 1;
        for (int i = 1; i < s.n - 1; i++)
            pixels *= s.d[i];
        const int64_t shape[] = { 0, pixels, groups, channels / groups };
        x = onnx_normalise(w, onnx_reshape(w, x, 4, shape), 2, axes, 1, epsilon);
        x = onnx_reshape(w, x, s.n, s.d);
    }
    return onnx_affine(w, x, onnx_word(w, 1), onnx_word(w, 2));
}

/* gelu: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), or x/2 (1 + erf(x / sqrt 2)). */
static inline onnx_name onnx_gelu(onnx_writer *w, int is_erf)
{
    const onnx_name x = onnx_in(w, 0);
    onnx_name y;
    if (is_erf) {
        y = onnx_add(w, "Erf", NULL, onnx_add2(w, "Mul", x, onnx_scalar(w, 0.70710678118654752)));
    } else {
        y = onnx_add2(w, "Mul", onnx_add2(w, "Mul", x, x), onnx_scalar(w, 0.044715));
        y = onnx_add2(w, "Mul", onnx_add2(w, "Add", y, onnx_scalar(w, 1)), x);
        y = onnx_add(w, "Tanh", NULL, onnx_add2(w, "Mul", y, onnx_scalar(w, 0.79788456080286536)));
    }
    y = onnx_add2(w, "Add", y, onnx_scalar(w, 1));
    return onnx_add2(w, "Mul", onnx_add2(w, "Mul", x, onnx_scalar(w, 0.5)), y);
}

/* Returns an image or signal with its channels after the batch (first 1), or last again (0). */
static inline onnx_name onnx_channels(onnx_writer *w, onnx_name x, int n, int first)
{
    static const int64_t axes[2][2][4] = { { { 0, 2, 1 }, { 0, 2, 3, 1 } },
                                           { { 0, 2, 1 }, { 0, 3, 1, 2 } } };
    return onnx_transpose(w, x, n, axes[first][n - 3]);
}

/* Adds the attributes of a window: words are pairs (size, stride, padding, dilation). Convolutions
 * have no size here, and signals only the second of each pair. */
static inline void onnx_window(onnx_buffer *a, const onnx_writer *w, int axes, int sizes)
{
    static const char *const names[] = { "kernel_shape", "strides", "pads", "dilations" };
    for (int k = sizes ? 0 : 1; k < 4; k++) {
        int64_t pair[4] = { onnx_word(w, 2 * k), onnx_word(w, 2 * k + 1), 0, 0 };
        if (axes == 1)
            pair[0] = pair[1];
        if (k == 2) { /* at the beginnings of the axes, then at their ends */
            pair[1] = axes == 2 ? pair[1] : pair[0];
            pair[2] = pair[0];
            pair[3] = onnx_word(w, 5);
        }
        onnx_attribute_list(a, names[k], k == 2 ? 2 * axes : axes, pair);
    }
}

/* conv2d: words of gckpt_window (size, stride, padding, dilation, groups, output_padding, and two of
 * pools), then 1 if it is transposed. Weights are (KH,KW,I/groups,O), or (KH,KW,O/groups,I). */
static inline onnx_name onnx_conv(onnx_writer *w)
{
    static const int64_t axes[] = { 3, 2, 0, 1 };
    const int transposed = onnx_word(w, 13);
    const int64_t more[2] = { onnx_word(w, 9), onnx_word(w, 10) };
    const onnx_name out = onnx_fresh(w), x = onnx_channels(w, onnx_in(w, 0), 4, 1),
                    filter = onnx_transpose(w, onnx_in(w, 1), 4, axes);
    onnx_buffer a = { NULL, 0, 0, 0 };
    onnx_window(&a, w, 2, 0);
    onnx_attribute(&a, "group", onnx_word(w, 8));
    if (transposed)
        onnx_attribute_list(&a, "output_padding", 2, more);
    onnx_node_to(w, transposed ? "ConvTranspose" : "Conv", out.text, &a, x.text, filter.text,
                 w->node.inputs > 2 ? w->in[2] : NULL);
    return onnx_channels(w, out, 4, 0);
}

/* max_pool, average_pool: words size, stride, padding, dilation, ceil, exclude_padding. */
static inline onnx_name onnx_pool(onnx_writer *w, int max)
{
    const int n = w->node.shape.n;
    const onnx_name x = onnx_channels(w, onnx_in(w, 0), n, 1);
    onnx_buffer a = { NULL, 0, 0, 0 };
    onnx_window(&a, w, n - 2, 1);
    onnx_attribute(&a, "ceil_mode", onnx_word(w, 8));
    if (!max)
        onnx_attribute(&a, "count_include_pad", !onnx_word(w, 9));
    return onnx_channels(w, onnx_add(w, max ? "MaxPool" : "AveragePool", &a, x), n, 0);
}

/* upsample: words height, width, mode. */
static inline onnx_name onnx_upsample(onnx_writer *w)
{
    static const int64_t axes[] = { 2, 3 };
    const int64_t sizes[] = { onnx_word(w, 0), onnx_word(w, 1) };
    const int mode = onnx_word(w, 2);
    const onnx_name out = onnx_fresh(w), x = onnx_channels(w, onnx_in(w, 0), 4, 1),
                    to = onnx_integers(w, 2, sizes);
    onnx_buffer n = { NULL, 0, 0, 0 }, a = { NULL, 0, 0, 0 };
    onnx_attribute_text(&a, "mode", mode == GCKPT_NEAREST ? "nearest" : "linear");
    onnx_attribute_text(&a, "nearest_mode", "floor");
    onnx_attribute_text(&a, "coordinate_transformation_mode",
                        mode == GCKPT_NEAREST    ? "asymmetric"
                        : mode == GCKPT_BILINEAR ? "half_pixel"
                                                 : "align_corners");
    onnx_attribute_list(&a, "axes", 2, axes);
    onnx_text(&n, 1, x.text);
    onnx_text(&n, 1, ""); /* no regions, no scales: sizes */
    onnx_text(&n, 1, "");
    onnx_text(&n, 1, to.text);
    onnx_text(&n, 2, out.text);
    onnx_text(&n, 4, "Resize");
    onnx_put(&n, a.bytes, a.used);
    free(a.bytes);
    onnx_message(w->nodes, 1, &n);
    return onnx_channels(w, out, 4, 0);
}

/* Returns the mask of causal attention, (T,S): 0 for keys that a query sees, -infinity for others.
 * Words: heads, causal, key heads, extras, window, cap, scale. */
static inline onnx_name onnx_causal_mask(onnx_writer *w, int64_t T, int64_t S)
{
    const int64_t shape[] = { T, S }, window = onnx_word(w, 4);
    onnx_name name = { "" };
    float *mask = (float *)malloc((size_t)(T * S) * sizeof *mask);
    for (int64_t i = 0; i < T * S && mask != NULL; i++) {
        const int64_t own = i / S + S - T, key = i % S;
        mask[i] = key <= own && (window == 0 || key > own - window) ? 0.0f : -(float)INFINITY;
    }
    if (mask != NULL)
        name = onnx_constant(w, ONNX_FLOAT, 2, shape, mask);
    w->weights.failed |= mask == NULL;
    free(mask);
    return name;
}

/* Returns which of S places are below the lengths, input i: (B,1,1,1,S), or (B,S,1) if `rows`. */
static inline onnx_name onnx_below(onnx_writer *w, int i, int64_t S, int rows)
{
    static const int64_t axes[] = { -1, 1, 1, 1, 1 };
    const int64_t shape[] = { S, 1 };
    onnx_name below = onnx_named("");
    onnx_buffer a = { NULL, 0, 0, 0 };
    int64_t *places = (int64_t *)malloc((size_t)S * sizeof *places);
    for (int64_t k = 0; k < S && places != NULL; k++)
        places[k] = k;
    w->weights.failed |= places == NULL;
    if (places != NULL) {
        onnx_attribute(&a, "to", ONNX_I64);
        const onnx_name lengths =
            onnx_reshape(w, onnx_add(w, "Cast", &a, onnx_in(w, i)), rows ? 3 : 5, axes);
        below = onnx_add2(w, "Less", onnx_constant(w, ONNX_I64, 1 + rows, shape, places), lengths);
    }
    free(places);
    return below;
}

/* Returns x where `below` is true, else y. */
static inline onnx_name onnx_choose(onnx_writer *w, onnx_name below, onnx_name x, double y)
{
    const onnx_name out = onnx_fresh(w), other = onnx_scalar(w, y);
    onnx_node_to(w, "Where", out.text, NULL, below.text, x.text, other.text);
    return out;
}

/* Returns scores in which the keys from lengths (input 3) on are -infinity. */
static inline onnx_name onnx_hide_keys(onnx_writer *w, onnx_name scores, onnx_name *seen, int64_t S)
{
    *seen = onnx_below(w, 3, S, 0);
    return onnx_choose(w, *seen, scores, -(double)INFINITY);
}

/* Returns scores (B,key_heads,heads / key_heads,T,S) plus the mask (input 3). */
static inline onnx_name onnx_add_mask(onnx_writer *w, onnx_name scores, int64_t heads,
                                      int64_t key_heads)
{
    const gckpt_shape mask = w->from[3].shape;
    int64_t to[5] = { 1, 1, 1, 1, 1 };
    for (int k = 1; k <= mask.n && k <= 2; k++)
        to[5 - k] = mask.d[mask.n - k];
    if (mask.n >= 3 && mask.d[mask.n - 3] > 1)
        to[1] = key_heads, to[2] = heads / key_heads;
    if (mask.n == 4 && mask.d[0] > 1)
        to[0] = 0; /* the batch of the mask */
    return onnx_add2(w, "Add", scores, onnx_reshape(w, onnx_in(w, 3), 5, to));
}

/* attention: query heads of one key head share an axis, so heads are axes 1 (key heads) and 2. */
static inline onnx_name onnx_attention(onnx_writer *w, const char *op)
{
    static const int64_t to_q[] = { 0, 2, 3, 1, 4 }, to_k[] = { 0, 2, 3, 4, 1 },
                         back[] = { 0, 3, 1, 2, 4 };
    const int64_t heads = onnx_word(w, 0), key_heads = onnx_word(w, 2) ? onnx_word(w, 2) : heads;
    const int64_t T = w->node.shape.d[1], C = w->node.shape.d[2], S = w->from[1].shape.d[1];
    const int64_t D = C / heads, q_shape[] = { 0, T, key_heads, heads / key_heads, D },
                  k_shape[] = { 0, S, key_heads, 1, D };
    const int masked = strcmp(op, "masked_attention") == 0, lengths = w->node.inputs > 3 && !masked;
    const float cap = onnx_word_real(w, 5), scale = onnx_word_real(w, 6);
    const onnx_name q = onnx_transpose(w, onnx_reshape(w, onnx_in(w, 0), 5, q_shape), 5, to_q);
    const onnx_name k = onnx_transpose(w, onnx_reshape(w, onnx_in(w, 1), 5, k_shape), 5, to_k);
    const onnx_name v = onnx_transpose(w, onnx_reshape(w, onnx_in(w, 2), 5, k_shape), 5, to_q);
    onnx_name seen, s = onnx_add2(w, "MatMul", q, k);
    onnx_buffer a = { NULL, 0, 0, 0 };
    if (scale > 0)
        s = onnx_add2(w, "Mul", s, onnx_scalar(w, (double)scale));
    else
        s = onnx_add2(w, "Div", s, onnx_add(w, "Sqrt", NULL, onnx_scalar(w, (double)D)));
    if (cap > 0) {
        s = onnx_add2(w, "Mul", s, onnx_scalar(w, 1 / (double)cap));
        s = onnx_add2(w, "Mul", onnx_add(w, "Tanh", NULL, s), onnx_scalar(w, (double)cap));
    }
    if (onnx_word(w, 1) != 0)
        s = onnx_add2(w, "Add", s, onnx_causal_mask(w, T, S));
    if (masked)
        s = onnx_add_mask(w, s, heads, key_heads);
    if (lengths)
        s = onnx_hide_keys(w, s, &seen, S);
    onnx_attribute(&a, "axis", -1);
    s = onnx_add(w, "Softmax", &a, s);
    if (masked || lengths) { /* a query without keys gives 0; of -infinity only, Softmax is NaN */
        const onnx_name p = s, zero = onnx_scalar(w, 0);
        if (masked)
            seen = onnx_add(w, "Not", NULL, onnx_add(w, "IsNaN", NULL, p));
        s = onnx_fresh(w);
        onnx_node_to(w, "Where", s.text, NULL, seen.text, p.text, zero.text);
    }
    s = onnx_transpose(w, onnx_add2(w, "MatMul", s, v), 5, back);
    return onnx_reshape(w, s, 3, w->node.shape.d);
}

/* Writes the factors of a rotary op, (T,R): the cosines of R/2 angles, then the sines. They are what
 * gckpt_rotary makes of rows of R/2 ones and R/2 zeros. */
static inline onnx_name onnx_angles(onnx_writer *w, int64_t T, int64_t R)
{
    const int64_t shape[] = { T, 1, R };
    gckpt_rotary_desc desc;
    gckpt_plan_desc forward;
    onnx_name name = { "" };
    memset(&desc, 0, sizeof desc);
    memset(&forward, 0, sizeof forward);
    desc.heads = 1;
    desc.base = onnx_word_real(w, 1);
    desc.position = onnx_word(w, 2);
    desc.frequencies = onnx_word(w, 5) ? (const float *)w->node.attributes + 6 : NULL;
    desc.scale = onnx_word_real(w, 4);
    float *x = (float *)calloc((size_t)(T * R), sizeof *x);
    for (int64_t i = 0; i < T * R && x != NULL; i++)
        x[i] = i % R < R / 2;
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(1, T, R));
    const gckpt_fetch_spec turned = { gckpt_rotary(in, &desc), 0 };
    const gckpt_feed feed = { gckpt_id(in), x };
    forward.mode = GCKPT_INFERENCE;
    forward.fetch.specs = &turned;
    forward.fetch.count = 1;
    gckpt_plan *plan = gckpt_plan_new(g, NULL, 0, &forward);
    gckpt_exec *e = plan != NULL ? gckpt_exec_new(plan, store, NULL) : NULL;
    if (x != NULL && e != NULL && gckpt_forward(e, &feed, 1, 1, NULL) == GCKPT_OK)
        name = onnx_constant(w, ONNX_FLOAT, 3, shape, gckpt_fetch(e, gckpt_id(turned.tensor), 0));
    else
        onnx_fail(w, "rotary: out of memory");
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    gckpt_store_free(store);
    free(x);
    return name;
}

/* rotary: words heads, base, first position, columns, scale, whether frequencies follow. */
static inline onnx_name onnx_rotary(onnx_writer *w)
{
    const gckpt_shape s = w->node.shape;
    const int64_t T = s.d[1], heads = onnx_word(w, 0), D = s.d[2] / heads;
    const int64_t R = onnx_word(w, 3) ? onnx_word(w, 3) : D, shape[] = { 0, T, heads, D };
    const onnx_name angles = onnx_angles(w, T, R), c = onnx_slice(w, angles, 2, 0, R / 2),
                    sine = onnx_slice(w, angles, 2, R / 2, R);
    const onnx_name x = onnx_reshape(w, onnx_in(w, 0), 4, shape), a = onnx_slice(w, x, 3, 0, R / 2),
                    b = onnx_slice(w, x, 3, R / 2, R);
    onnx_name turned[3];
    turned[0] = onnx_add2(w, "Sub", onnx_add2(w, "Mul", a, c), onnx_add2(w, "Mul", b, sine));
    turned[1] = onnx_add2(w, "Add", onnx_add2(w, "Mul", b, c), onnx_add2(w, "Mul", a, sine));
    if (R < D)
        turned[2] = onnx_slice(w, x, 3, R, D);
    return onnx_reshape(w, onnx_concat(w, 3, R < D ? 3 : 2, turned), 3, s.d);
}

/* ---- recurrent cells: a Scan, whose body is the cell ------------------------------------------- */
/* Describes a value of type float and of this shape, whose first size is `batch`. */
static inline void onnx_value(onnx_buffer *to, int field, const char *name, int type, int n,
                              const int64_t *shape, int batch)
{
    onnx_buffer value = { NULL, 0, 0, 0 }, t = value, tensor = value, sizes = value;
    for (int i = 0; i < n; i++) {
        onnx_buffer size = { NULL, 0, 0, 0 };
        if (i == 0 && batch)
            onnx_text(&size, 2, "batch");
        else
            onnx_int(&size, 1, shape[i]);
        onnx_message(&sizes, 1, &size);
    }
    onnx_int(&tensor, 1, type);
    onnx_message(&tensor, 2, &sizes);
    onnx_message(&t, 1, &tensor);
    onnx_text(&value, 1, name);
    onnx_message(&value, 2, &t);
    onnx_message(to, field, &value);
}

/* Returns gate i of x (B,gates H) by the activation. */
static inline onnx_name onnx_gate(onnx_writer *w, const char *activation, onnx_name x, int64_t H,
                                  int i)
{
    return onnx_add(w, activation, NULL, onnx_slice(w, x, 1, i * H, (i + 1) * H));
}

/* Returns h wh + bias; bias: input word 1, if it is not 0. */
static inline onnx_name onnx_chains(onnx_writer *w, onnx_name h)
{
    const onnx_name a = onnx_add2(w, "MatMul", h, onnx_in(w, 1));
    return onnx_word(w, 1) ? onnx_add2(w, "Add", a, onnx_in(w, onnx_word(w, 1))) : a;
}

/* Returns the new h of a GRU; p: x wx + bx, a: h wh + bh. before: if nonzero, n reads (r h) wh. */
static inline onnx_name onnx_gru_cell(onnx_writer *w, onnx_name p, onnx_name a, onnx_name h,
                                      int64_t H, int before)
{
    const onnx_name sum = onnx_add2(w, "Add", p, a), r = onnx_gate(w, "Sigmoid", sum, H, 0),
                    z = onnx_gate(w, "Sigmoid", sum, H, 1);
    a = before ? onnx_chains(w, onnx_add2(w, "Mul", r, h)) : a;
    onnx_name n = onnx_slice(w, a, 1, 2 * H, 3 * H);
    n = before ? n : onnx_add2(w, "Mul", r, n);
    n = onnx_add(w, "Tanh", NULL, onnx_add2(w, "Add", onnx_slice(w, p, 1, 2 * H, 3 * H), n));
    return onnx_add2(w, "Add", n, onnx_add2(w, "Mul", z, onnx_add2(w, "Sub", h, n)));
}

/* Returns the new h of an LSTM, and replaces *c by the new cells. */
static inline onnx_name onnx_lstm_cell(onnx_writer *w, onnx_name p, onnx_name a, onnx_name *c,
                                       int64_t H)
{
    const onnx_name sum = onnx_add2(w, "Add", p, a), i = onnx_gate(w, "Sigmoid", sum, H, 0),
                    f = onnx_gate(w, "Sigmoid", sum, H, 1), g = onnx_gate(w, "Tanh", sum, H, 2),
                    o = onnx_gate(w, "Sigmoid", sum, H, 3);
    *c = onnx_add2(w, "Add", onnx_add2(w, "Mul", f, *c), onnx_add2(w, "Mul", i, g));
    return onnx_add2(w, "Mul", o, onnx_add(w, "Tanh", NULL, *c));
}

/* Returns zeros of shape (B,H), where B is the first size of x. */
static inline onnx_name onnx_zeros(onnx_writer *w, onnx_name x, int64_t H)
{
    const onnx_name shape = onnx_add(w, "Shape", NULL, x);
    const onnx_name sizes[] = { onnx_slice(w, shape, 0, 0, 1), onnx_integers(w, 1, &H) };
    return onnx_add(w, "ConstantOfShape", NULL, onnx_concat(w, 0, 2, sizes));
}

/* gru, gru_reset_before, lstm: inputs x wx + bias (B,T,gates H) and wh; words gates, index of the
 * bias, of h0, and of the lengths. */
static inline onnx_name onnx_recurrent(onnx_writer *w, int before)
{
    static const int64_t one = 1;
    const int gates = onnx_word(w, 0), states = gates - 2, first = onnx_word(w, 2),
              lengths = onnx_word(w, 3);
    const int64_t H = w->from[1].shape.d[0], p_shape[] = { 0, gates * H }, h_shape[] = { 0, H },
                  out_shape[] = { 0, states * H };
    const onnx_name out = onnx_fresh(w);
    onnx_buffer body = { NULL, 0, 0, 0 }, a = body, n = body, *const outer = w->nodes;
    onnx_name state[2], next[2], begin[2], p = onnx_fresh(w);
    for (int i = 0; i < states; i++)
        begin[i] = first ? onnx_in(w, first + i) : onnx_zeros(w, onnx_in(w, 0), H);
    w->nodes = &body;
    for (int i = 0; i < states; i++)
        state[i] = next[i] = onnx_fresh(w);
    const onnx_name x = onnx_chains(w, state[0]);
    next[0] = states == 1 ? onnx_gru_cell(w, p, x, state[0], H, before)
                          : onnx_lstm_cell(w, p, x, &next[1], H);
    /* a value of a body may be one output only */
    const onnx_name result =
        states == 1 ? onnx_add(w, "Identity", NULL, next[0]) : onnx_concat(w, 1, 2, next);
    w->nodes = outer;
    onnx_text(&body, 2, "cell");
    for (int i = 0; i < states; i++)
        onnx_value(&body, 11, state[i].text, ONNX_FLOAT, 2, h_shape, 1);
    onnx_value(&body, 11, p.text, ONNX_FLOAT, 2, p_shape, 1);
    for (int i = 0; i < states; i++)
        onnx_value(&body, 12, next[i].text, ONNX_FLOAT, 2, h_shape, 1);
    onnx_value(&body, 12, result.text, ONNX_FLOAT, 2, out_shape, 1);
    for (int i = 0; i < states; i++)
        onnx_text(&n, 1, begin[i].text);
    onnx_text(&n, 1, w->in[0]);
    for (int i = 0; i < states; i++)
        onnx_text(&n, 2, onnx_fresh(w).text); /* the last state */
    onnx_text(&n, 2, out.text);
    onnx_text(&n, 4, "Scan");
    onnx_text(&a, 1, "body");
    onnx_message(&a, 6, &body);
    onnx_int(&a, 20, 5);
    onnx_message(&n, 5, &a);
    onnx_attribute(&n, "num_scan_inputs", 1);
    onnx_attribute_list(&n, "scan_input_axes", 1, &one);
    onnx_attribute_list(&n, "scan_output_axes", 1, &one);
    onnx_message(w->nodes, 1, &n);
    return lengths ? onnx_choose(w, onnx_below(w, lengths, w->from[0].shape.d[1], 1), out, 0) : out;
}

/* ---- ops -------------------------------------------------------------------------------------- */
/* matmul, linear: word 1 if the second operand is transposed. */
static inline onnx_name onnx_product(onnx_writer *w)
{
    static const int64_t axes[2][4] = { { 1, 0 }, { 0, 1, 3, 2 } };
    const int n = w->from[1].shape.n;
    onnx_name b = onnx_in(w, 1);
    if (onnx_word(w, 0)) {
        int64_t swapped[GCKPT_MAX_DIMS];
        for (int i = 0; i < n; i++)
            swapped[i] = i < n - 2 ? i : 2 * n - 3 - i;
        b = onnx_transpose(w, b, n, n == 2 ? axes[0] : swapped);
    }
    const onnx_name y = onnx_add2(w, "MatMul", onnx_in(w, 0), b);
    return w->node.inputs > 2 ? onnx_add2(w, "Add", y, onnx_in(w, 2)) : y;
}

/* top_k, top_k_indices: words axis, k; ONNX's order of equal elements is the same. */
static inline onnx_name onnx_top_k(onnx_writer *w, int indices)
{
    const int64_t k = onnx_word(w, 1);
    const onnx_name values = onnx_fresh(w), at = onnx_fresh(w), count = onnx_integers(w, 1, &k);
    onnx_buffer n = { NULL, 0, 0, 0 }, a = n;
    onnx_text(&n, 1, w->in[0]);
    onnx_text(&n, 1, count.text);
    onnx_text(&n, 2, values.text);
    onnx_text(&n, 2, at.text);
    onnx_text(&n, 4, "TopK");
    onnx_attribute(&n, "axis", onnx_axis(onnx_word(w, 0), w->from[0].shape.n));
    onnx_message(w->nodes, 1, &n);
    if (!indices)
        return values;
    onnx_attribute(&a, "to", ONNX_I32);
    return onnx_add(w, "Cast", &a, at);
}

/* slice: words begin and end, two each, axis. permute: n, axes. pad: axis, before, after, value, mode.
 * concat, sum, mean, max, argmax: axis. */
static inline onnx_name onnx_axes(onnx_writer *w, const char *op)
{
    const int n = w->from[0].shape.n;
    const int64_t axis = onnx_axis(onnx_word(w, 0), n);
    onnx_buffer a = { NULL, 0, 0, 0 };
    if (strcmp(op, "slice") == 0) {
        int64_t ends[2];
        for (int i = 0; i < 2; i++)
            ends[i] = (int64_t)((uint64_t)(uint32_t)onnx_word(w, 2 * i) |
                                (uint64_t)(uint32_t)onnx_word(w, 2 * i + 1) << 32);
        return onnx_slice(w, onnx_in(w, 0), onnx_axis(onnx_word(w, 4), n), ends[0], ends[1]);
    }
    if (strcmp(op, "permute") == 0) {
        int64_t axes[GCKPT_MAX_DIMS];
        for (int i = 0; i < n; i++)
            axes[i] = onnx_axis(onnx_word(w, 1 + i), n);
        return onnx_transpose(w, onnx_in(w, 0), n, axes);
    }
    if (strcmp(op, "pad") == 0) {
        int64_t ends[2 * GCKPT_MAX_DIMS] = { 0 };
        ends[axis] = onnx_word(w, 1);
        ends[n + axis] = onnx_word(w, 2);
        const int mode = onnx_word(w, 4);
        const onnx_name out = onnx_fresh(w), pads = onnx_integers(w, 2 * n, ends);
        onnx_attribute_text(&a, "mode",
                            mode == GCKPT_PAD_VALUE     ? "constant"
                            : mode == GCKPT_PAD_REFLECT ? "reflect"
                                                        : "edge");
        onnx_node_to(w, "Pad", out.text, &a, w->in[0], pads.text,
                     mode == GCKPT_PAD_VALUE ? onnx_scalar(w, (double)onnx_word_real(w, 3)).text
                                             : NULL);
        return out;
    }
    if (strcmp(op, "concat") == 0) {
        onnx_name all[GCKPT_MAX_INPUTS];
        for (int i = 0; i < w->node.inputs; i++)
            all[i] = onnx_in(w, i);
        return onnx_concat(w, axis, w->node.inputs, all);
    }
    if (strcmp(op, "argmax") == 0) {
        onnx_attribute(&a, "axis", axis);
        onnx_attribute(&a, "keepdims", 0);
        const onnx_name wide = onnx_add(w, "ArgMax", &a, onnx_in(w, 0));
        onnx_attribute(&a, "to", ONNX_I32);
        return onnx_add(w, "Cast", &a, wide);
    }
    return onnx_reduce(w,
                       strcmp(op, "sum") == 0    ? "ReduceSum"
                       : strcmp(op, "mean") == 0 ? "ReduceMean"
                                                 : "ReduceMax",
                       onnx_in(w, 0), 1, &axis, 0);
}

/* Ops of one or two inputs that ONNX has; `attribute`: the name of word 0 as an attribute; an axis
 * of -1 if `last`. */
static const struct {
    const char *op, *onnx, *attribute;
    int last;
} onnx_simple[] = {
    { "relu", "Relu", NULL, 0 },
    { "tanh", "Tanh", NULL, 0 },
    { "sigmoid", "Sigmoid", NULL, 0 },
    { "exp", "Exp", NULL, 0 },
    { "log", "Log", NULL, 0 },
    { "sqrt", "Sqrt", NULL, 0 },
    { "abs", "Abs", NULL, 0 },
    { "reciprocal", "Reciprocal", NULL, 0 },
    { "sin", "Sin", NULL, 0 },
    { "cos", "Cos", NULL, 0 },
    { "softplus", "Softplus", NULL, 0 },
    { "detach", "Identity", NULL, 0 },
    { "dropout", "Identity", NULL, 0 },
    { "leaky_relu", "LeakyRelu", "alpha", 0 },
    { "elu", "Elu", "alpha", 0 },
    { "selu", "Selu", NULL, 0 },
    { "mish", "Mish", NULL, 0 },
    { "hardswish", "HardSwish", NULL, 0 },
    { "prelu", "PRelu", NULL, 0 },
    { "softmax", "Softmax", NULL, 1 },
    { "log_softmax", "LogSoftmax", NULL, 1 },
    { "add", "Add", NULL, 0 },
    { "sub", "Sub", NULL, 0 },
    { "mul", "Mul", NULL, 0 },
    { "div", "Div", NULL, 0 },
    { "maximum", "Max", NULL, 0 },
    { "minimum", "Min", NULL, 0 },
};

/* The other elementwise ops, of word 0 and word 1. */
static inline onnx_name onnx_elementwise(onnx_writer *w, const char *op)
{
    const onnx_name x = onnx_in(w, 0), out = onnx_fresh(w);
    const double word[] = { (double)onnx_word_real(w, 0), (double)onnx_word_real(w, 1) };
    onnx_buffer a = { NULL, 0, 0, 0 };
    if (strcmp(op, "silu") == 0)
        return onnx_add2(w, "Mul", x, onnx_add(w, "Sigmoid", NULL, x));
    if (strcmp(op, "pow") == 0)
        return onnx_add2(w, "Pow", x, onnx_scalar(w, word[0]));
    if (strcmp(op, "scale") == 0)
        return onnx_add2(w, "Mul", x, onnx_scalar(w, word[0]));
    if (strcmp(op, "clamp") == 0) {
        onnx_node_to(w, "Clip", out.text, NULL, x.text, onnx_scalar(w, word[0]).text,
                     onnx_scalar(w, word[1]).text);
        return out;
    }
    if (strcmp(op, "from_u8") == 0) {
        onnx_attribute(&a, "to", ONNX_FLOAT);
        const onnx_name y =
            onnx_add2(w, "Mul", onnx_add(w, "Cast", &a, x), onnx_scalar(w, word[0]));
        return onnx_add2(w, "Add", y, onnx_scalar(w, word[1]));
    }
    onnx_attribute(&a, "to", ONNX_BOOL); /* where */
    onnx_node_to(w, "Where", out.text, NULL, onnx_add(w, "Cast", &a, x).text, w->in[1], w->in[2]);
    return out;
}

/* embed; gather: rows of each row of the batch. */
static inline onnx_name onnx_rows(onnx_writer *w, const char *op)
{
    const int64_t shape[] = { 0, w->from[1].shape.d[1], 1 };
    onnx_buffer a = { NULL, 0, 0, 0 };
    if (strcmp(op, "embed") == 0)
        return onnx_add2(w, "Gather", onnx_in(w, 0), onnx_in(w, 1));
    onnx_attribute(&a, "to", ONNX_I64);
    const onnx_name index = onnx_reshape(w, onnx_add(w, "Cast", &a, onnx_in(w, 1)), 3, shape),
                    out = onnx_fresh(w);
    onnx_attribute(&a, "batch_dims", 1);
    onnx_node_to(w, "GatherND", out.text, &a, w->in[0], index.text, NULL);
    return out;
}

/* Writes the nodes of an op, and returns the name of the result. */
static inline onnx_name onnx_op(onnx_writer *w, const char *op)
{
    static const char *const groups[] = { " layernorm rmsnorm ",
                                          " groupnorm batchnorm ",
                                          " gelu gelu_erf ",
                                          " conv2d ",
                                          " max_pool average_pool ",
                                          " upsample ",
                                          " attention masked_attention ",
                                          " rotary ",
                                          " gru gru_reset_before lstm ",
                                          " matmul broadcast_matmul linear ",
                                          " slice permute pad concat sum mean max argmax ",
                                          " silu pow scale clamp from_u8 where ",
                                          " embed gather ",
                                          " top_k top_k_indices " };
    char spaced[64];
    int group = 0;
    for (size_t i = 0; i < sizeof onnx_simple / sizeof *onnx_simple; i++)
        if (strcmp(op, onnx_simple[i].op) == 0) {
            const onnx_name out = onnx_fresh(w);
            onnx_buffer a = { NULL, 0, 0, 0 };
            if (onnx_simple[i].attribute != NULL)
                onnx_attribute_real(&a, onnx_simple[i].attribute, onnx_word_real(w, 0));
            if (onnx_simple[i].last)
                onnx_attribute(&a, "axis", -1);
            onnx_node_to(w, onnx_simple[i].onnx, out.text, &a, w->in[0],
                         w->node.inputs > 1 ? w->in[1] : NULL, NULL);
            return out;
        }
    snprintf(spaced, sizeof spaced, " %.60s ", op);
    while (group < 14 && strstr(groups[group], spaced) == NULL)
        group++;
    switch (group) {
    case 0: return onnx_norm(w);
    case 1: return onnx_channel_norm(w);
    case 2: return onnx_gelu(w, strcmp(op, "gelu_erf") == 0);
    case 3: return onnx_conv(w);
    case 4: return onnx_pool(w, strcmp(op, "max_pool") == 0);
    case 5: return onnx_upsample(w);
    case 6: return onnx_attention(w, op);
    case 7: return onnx_rotary(w);
    case 8: return onnx_recurrent(w, strcmp(op, "gru_reset_before") == 0);
    case 9: return onnx_product(w);
    case 10: return onnx_axes(w, op);
    case 11: return onnx_elementwise(w, op);
    case 12: return onnx_rows(w, op);
    case 13: return onnx_top_k(w, strcmp(op, "top_k_indices") == 0);
    default:
        onnx_fail(w, "%s has no form in ONNX here; export the tensor before it%s", op,
                  strcmp(op, "cache") == 0 ? ", or build the graph without caches" : "");
        return onnx_named("");
    }
}

/* ---- the graph -------------------------------------------------------------------------------- */
/* Adds a parameter, which the file has as floats. */
static inline int onnx_param(onnx_writer *w, const char *name)
{
    gckpt_parameter p;
    const int index = gckpt_store_find(w->store, name);
    if (strlen(name) >= ONNX_NAME)
        return onnx_fail(w, "parameter \"%s\": the name is longer than %d bytes", name,
                         ONNX_NAME - 1);
    if (gckpt_store_get(w->store, index, &p) != GCKPT_OK)
        return onnx_fail(w, "parameter \"%s\": %s", name, gckpt_error_text(w->store));
    if (p.values == NULL)
        return onnx_fail(w, "parameter \"%s\" is not stored as floats; load the model as F32",
                         name);
    w->params[w->param_count++] = index;
    return 0;
}

/* Writes tensor `id`; those that it reads are written already. */
static inline int onnx_tensor(onnx_writer *w, int id)
{
    static const int types[] = { ONNX_FLOAT, ONNX_I32, ONNX_U8 };
    gckpt_node *n = &w->node;
    char *name = w->names[id];
    gckpt_graph_node(w->graph, id, n);
    w->word_count = (int)(n->attribute_bytes / 4);
    w->word_count = w->word_count < 16 ? w->word_count : 16;
    if (w->word_count > 0)
        memcpy(w->words, n->attributes, 4 * (size_t)w->word_count);
    for (int i = 0; i < n->inputs; i++) {
        w->in[i] = w->names[n->input[i]];
        gckpt_graph_node(w->graph, n->input[i], &w->from[i]);
    }
    if (strcmp(n->op, "input") == 0) {
        snprintf(name, ONNX_NAME, "%s", n->name);
        onnx_value(&w->inputs, 11, name, types[n->type], n->shape.n, n->shape.d, 1);
    } else if (strcmp(n->op, "param") == 0) {
        snprintf(name, ONNX_NAME, "%s", n->name);
        return onnx_param(w, n->name);
    } else if (strcmp(n->op, "constant") == 0) {
        if (n->type == GCKPT_U8)
            return onnx_fail(w, "a constant of bytes has no form in ONNX here; make it an input");
        snprintf(name, ONNX_NAME, "%s",
                 onnx_constant(w, types[n->type], n->shape.n, n->shape.d, n->data).text);
    } else if (strcmp(n->op, "reshape") == 0) {
        snprintf(name, ONNX_NAME, "%s",
                 onnx_reshape(w, onnx_in(w, 0), n->shape.n, n->shape.d).text);
    } else if (n->loss) {
        return onnx_fail(w, "%s is a loss; export the tensor that it reads", n->op);
    } else {
        snprintf(name, ONNX_NAME, "%s", onnx_op(w, n->op).text);
    }
    return w->error[0] != 0 ? -1 : 0;
}

/* Marks the tensors that tensor `id` depends on. */
static inline void onnx_mark(const onnx_writer *w, int id, unsigned char *needed)
{
    for (int i = id; i >= 0; i--) { /* inputs have lower ids */
        gckpt_node n;
        if ((i == id || needed[i]) && gckpt_graph_node(w->graph, i, &n) == GCKPT_OK) {
            needed[i] = 1;
            for (int k = 0; k < n.inputs; k++)
                needed[n.input[k]] = 1;
        }
    }
}

/* Writes all parts of the graph, or only counts their bytes if f is NULL. Returns the bytes, or 0
 * after an error. */
static inline size_t onnx_write_graph(onnx_writer *w, FILE *f)
{
    const onnx_buffer *const parts[] = { &w->graph_nodes, &w->weights, &w->inputs, &w->outputs };
    size_t size = 0;
    int good = 1;
    for (int i = 0; i < 4 && good; i++) {
        size += parts[i]->used;
        good = !parts[i]->failed &&
               (f == NULL || fwrite(parts[i]->bytes, 1, parts[i]->used, f) == parts[i]->used);
    }
    for (int i = 0; i < w->param_count && good; i++) {
        gckpt_parameter p;
        onnx_buffer head = { NULL, 0, 0, 0 };
        gckpt_store_get(w->store, w->params[i], &p);
        const size_t n = (size_t)p.elements;
        onnx_weight(&head, p.name, ONNX_FLOAT, p.shape.n, p.shape.d, 4 * n);
        size += head.used + 4 * n;
        good = !head.failed && (f == NULL || fwrite(head.bytes, 1, head.used, f) == head.used);
        free(head.bytes);
        for (size_t k = 0; k < n && good && f != NULL; k++) {
            unsigned char bytes[4];
            uint32_t x;
            memcpy(&x, &p.values[k], 4);
            for (int c = 0; c < 4; c++)
                bytes[c] = (unsigned char)(x >> 8 * c);
            good = fwrite(bytes, 1, 4, f) == 4;
        }
    }
    return good ? size : 0;
}

/* Writes the file. */
static inline int onnx_write(onnx_writer *w, const char *path)
{
    onnx_buffer head = { NULL, 0, 0, 0 }, opset = { NULL, 0, 0, 0 };
    onnx_int(&head, 1, 9);
    onnx_text(&head, 2, "gradckpt.h");
    onnx_text(&opset, 1, "");
    onnx_int(&opset, 2, 19);
    onnx_message(&head, 8, &opset);
    onnx_text(&w->graph_nodes, 2, "graph");
    const size_t size = onnx_write_graph(w, NULL);
    onnx_number(&head, 7 << 3 | 2);
    onnx_number(&head, size);
    if (size == 0 || head.failed)
        onnx_fail(w, "out of memory");
    else if (size + head.used > INT32_MAX)
        onnx_fail(w, "%s: an ONNX file has less than 2 GB, and this one would have %.1f", path,
                  1e-9 * (double)size);
    FILE *f = w->error[0] == 0 ? fopen(path, "wb") : NULL;
    if (w->error[0] == 0) {
        int good = f != NULL && fwrite(head.bytes, 1, head.used, f) == head.used &&
                   onnx_write_graph(w, f) == size;
        good = (f != NULL && fclose(f) == 0) && good;
        if (!good)
            onnx_fail(w, "%s: cannot write it: %s", path, strerror(errno));
        if (!good && f != NULL)
            remove(path);
    }
    free(head.bytes);
    return w->error[0] != 0 ? -1 : 0;
}

static inline int onnx_save(gckpt_graph *graph, gckpt_store *store, const onnx_output *outputs,
                            int count, const char *path, char error[ONNX_ERROR])
{
    static const int types[] = { ONNX_FLOAT, ONNX_I32, ONNX_U8 };
    const int n = gckpt_graph_size(graph);
    unsigned char *needed = (unsigned char *)calloc((size_t)n + 1, 1);
    onnx_writer w;
    memset(&w, 0, sizeof w);
    w.graph = graph;
    w.store = store;
    w.nodes = &w.graph_nodes;
    w.error = error;
    w.names = (char(*)[ONNX_NAME])calloc((size_t)n + 1, sizeof *w.names);
    w.params = (int *)calloc((size_t)n + 1, sizeof *w.params);
    error[0] = 0;
    if (needed == NULL || w.names == NULL || w.params == NULL)
        onnx_fail(&w, "out of memory");
    for (int i = 0; i < count && error[0] == 0; i++)
        if (outputs[i].tensor == NULL)
            onnx_fail(&w, "output \"%s\" is NULL: %s", outputs[i].name, gckpt_error_text(graph));
        else
            onnx_mark(&w, gckpt_id(outputs[i].tensor), needed);
    for (int i = 0; i < n && error[0] == 0; i++)
        if (needed[i])
            onnx_tensor(&w, i);
    for (int i = 0; i < count && error[0] == 0; i++) {
        const int id = gckpt_id(outputs[i].tensor);
        gckpt_node node;
        gckpt_graph_node(graph, id, &node);
        for (int k = 0; k < n; k++)
            if (needed[k] && strcmp(w.names[k], outputs[i].name) == 0)
                onnx_fail(&w, "output \"%s\" is an input or a parameter, too; choose another name",
                          outputs[i].name);
        onnx_node_to(&w, "Identity", outputs[i].name, NULL, w.names[id], NULL, NULL);
        onnx_value(&w.outputs, 12, outputs[i].name, types[node.type], node.shape.n, node.shape.d,
                   !node.batch_invariant);
    }
    if (error[0] == 0)
        onnx_write(&w, path);
    free(needed);
    free(w.names);
    free(w.params);
    free(w.graph_nodes.bytes);
    free(w.weights.bytes);
    free(w.inputs.bytes);
    free(w.outputs.bytes);
    return error[0] != 0 ? -1 : 0;
}
#endif /* ONNX_H */
