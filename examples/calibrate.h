/* calibrate.h - stores a model's matrices as GCKPT_STORAGE_I4 with the least error in what the
 * layers compute. To copy, with model.h and gguf_write.h.
 *
 *     calibration c = { 0 };  // the model's matrices are stored as GCKPT_STORAGE_I8, for example
 *     if (calibrate_measure(&c, &model, store, tokens, 16, 256) != 0 || // 4,096 tokens of the data
 *         calibrate_store(&c, store, &model) != 0)                      // the matrices become I4
 *         fprintf(stderr, "%s\n", model.error);
 *     calibrate_end(&c);
 *
 * The method is GPTQ (Frantar 2022), in blocks of a layer's input columns. It rounds the weights of one
 * column after the other, and changes those of later columns so that they compensate the error. For
 * that it needs the sums x' x over the inputs x. Each 32 weights take the scale and zero point, of a
 * small table, with the least error, weighted by the sums' diagonal. Memory: 4 * block bytes for each
 * column of the inputs. The results do not depend on the number of threads (compile with
 * -ffp-contract=off, as gradckpt.h itself is).
 * Functions that may fail return 0, or -1 after writing model->error. C99 or C++11. */
#ifndef CALIBRATE_H
#define CALIBRATE_H
#include "gguf_write.h"
#include "model.h"

typedef struct { /* the input of one layer or of several, such as those of queries, keys, values */
    int id;      /* gckpt_id of the tensor in the graph that was built first */
    int64_t width, block, rows; /* rows: inputs that are in the sums */
    /* sums of products of two columns of a block, (n,n) for a block of n columns; or NULL */
    float *sums;
} calibration_input;

typedef struct {
    char module[MODEL_NAME];
    calibration_input *input;
    int measures; /* nonzero if this layer's input is measured, 0 if it is that of another one */
} calibration_layer;

typedef struct {
    int64_t block; /* columns of a block */
    calibration_layer *layers;
    size_t count, capacity;
    int failed; /* nonzero if memory was missing */
    /* The caller of calibrate_measure sets threads (0: all) and exec; it sets bytes to those of the sums,
     * the model and its run. */
    int threads;
    gckpt_exec_desc exec;
    size_t bytes;
} calibration;

enum { CALIBRATE_MOST = 512 }; /* most columns of a block */

/* ---- measuring ------------------------------------------------------------------------------- */
static inline gckpt_result calibrate_shape(gckpt_call *call)
{
    int64_t rows = 1;
    call->shape = call->in[0].shape;
    for (int i = 0; i < call->shape.n - 1; i++)
        rows *= call->shape.d[i];
    call->workspace_forward = gckpt_product_workspace(call, CALIBRATE_MOST, CALIBRATE_MOST, rows);
    return GCKPT_OK;
}

/* Adds x' x of each block of columns to the sums, if there are any, and copies x. */
static inline void calibrate_forward(const gckpt_call *call)
{
    calibration_input *in;
    memcpy(&in, call->attributes, sizeof in);
    const float *x = call->in[0].data;
    int64_t rows = 1;
    for (int i = 0; i < call->shape.n - 1; i++)
        rows *= call->shape.d[i];
    for (int64_t at = 0; at < in->width && in->sums != NULL; at += in->block) {
        const int64_t n = in->width - at < in->block ? in->width - at : in->block;
        gckpt_product_desc d;
        memset(&d, 0, sizeof d);
        d.m = d.n = n, d.k = rows;
        d.a = d.b = x + at;
        d.a_row = d.b_col = 1;
        d.a_col = d.b_row = in->width;
        d.c = in->sums + at * in->block;
        d.c_row = n, d.c_col = 1;
        d.accumulate = 1;
        d.workspace = call->workspace;
        gckpt_product(call, &d);
    }
    in->rows += in->sums != NULL ? rows : 0;
    memcpy(call->out, x, (size_t)(rows * in->width) * sizeof *x);
}

/* Returns x, the input of a layer of `module`; when the graph is run, it is measured. Several graphs
 * of the same model add to the same sums. */
static inline gckpt_tensor *calibrate_input(calibration *c, const char *module, gckpt_tensor *x)
{
    static const gckpt_op op = { "calibrate_input",
                                 calibrate_shape,
                                 calibrate_forward,
                                 NULL,
                                 NULL,
                                 NULL,
                                 { 0 },
                                 GCKPT_SIDE_EFFECT,
                                 NULL,
                                 NULL };
    const gckpt_shape shape = gckpt_shape_of(x);
    const int64_t width = shape.d[shape.n - 1];
    calibration_layer *layer = NULL;
    calibration_input *shared = NULL;
    if (width % 32 != 0 || c->failed)
        return x;
    for (size_t i = 0; i < c->count && layer == NULL; i++) {
        layer = strcmp(c->layers[i].module, module) == 0 ? &c->layers[i] : NULL;
        shared = c->layers[i].input->id == gckpt_id(x) ? c->layers[i].input : shared;
    }
    if (layer == NULL) {
        const size_t capacity = c->capacity > 0 ? 2 * c->capacity : 64;
        if (c->count == c->capacity) {
            void *more = realloc(c->layers, capacity * sizeof *c->layers);
            c->failed = more == NULL;
            if (c->failed)
                return x;
            c->layers = (calibration_layer *)more;
            c->capacity = capacity;
        }
        layer = &c->layers[c->count];
        snprintf(layer->module, sizeof layer->module, "%s", module);
        layer->measures = shared == NULL;
        layer->input = shared != NULL ? shared : (calibration_input *)malloc(sizeof *shared);
        if (layer->input != NULL && shared == NULL) {
            layer->input->id = gckpt_id(x);
            layer->input->width = width;
            layer->input->sums = NULL;
        }
        c->failed = layer->input == NULL;
        if (c->failed)
            return x;
        c->count++;
    }
    return layer->measures ? gckpt_apply(&op, &x, 1, &layer->input, sizeof layer->input) : x;
}

static inline size_t calibrate_input_bytes(const calibration_input *in, int64_t block)
{
    return (size_t)(in->width * (in->width < block ? in->width : block)) * sizeof(float);
}

/* Returns the bytes of the sums of blocks of `block` columns. */
static inline size_t calibrate_bytes(const calibration *c, int64_t block)
{
    size_t bytes = 0;
    for (size_t i = 0; i < c->count; i++)
        if (c->layers[i].measures)
            bytes += calibrate_input_bytes(c->layers[i].input, block);
    return bytes;
}

/* Sets the sums to 0, for blocks of `block` columns, a multiple of 32 up to CALIBRATE_MOST: what runs
 * from now on is measured. Returns -1 if memory is missing. */
static inline int calibrate_begin(calibration *c, int64_t block)
{
    c->block = block;
    for (size_t i = 0; i < c->count; i++) {
        calibration_input *in = c->layers[i].input;
        if (!c->layers[i].measures)
            continue;
        free(in->sums);
        in->block = in->width < block ? in->width : block;
        in->rows = 0;
        in->sums = (float *)calloc(calibrate_input_bytes(in, block), 1);
        c->failed |= in->sums == NULL;
    }
    return c->failed ? -1 : 0;
}

static inline void calibrate_end(calibration *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->layers[i].measures) {
            free(c->layers[i].input->sums);
            free(c->layers[i].input);
        }
    free(c->layers);
    memset(c, 0, sizeof *c);
}

/* ---- rounding -------------------------------------------------------------------------------- */
/* Writes to u (n,n), above the diagonal, the U of the product (U + 1) D (U + 1)' that the sums
 * (n,n) of `rows` inputs are, with a diagonal D. A share of the mean of the sums' diagonal is added to
 * it first: 1 % so that columns that are 0, or multiples of each other, divide nothing by 0; and more
 * for few rows, whose products say less about other inputs (Ledoit & Wolf 2004). */
static inline void calibrate_factor(const float *sums, int64_t n, int64_t rows, float *u)
{
    const float share = 0.01f + 100 / (float)(rows > 0 ? rows : 1);
    float mean = 0;
    for (int64_t i = 0; i < n; i++)
        mean += sums[i * n + i] / (float)n;
    for (int64_t i = 0; i < n * n; i++)
        u[i] = sums[i] + (i % (n + 1) != 0 ? 0 : mean > 0 ? share * mean : 1);
    for (int64_t j = n - 1; j >= 0; j--)
        for (int64_t a = 0; a < j; a++) {
            const float part = u[a * n + j] / u[j * n + j];
            for (int64_t b = a; b < j; b++)
                u[a * n + b] -= part * u[b * n + j];
            u[a * n + j] = part;
        }
}

/* Returns (number - zero / 16) scale for the number, 0 to 15, for which this is closest to x. */
static inline float calibrate_round(float x, float scale, float zero)
{
    const float number = scale > 0 ? x / scale + zero / 16 : 0;
    const int whole = number < 0 ? 0 : number > 15 ? 15 : (int)(number + 0.5f);
    return ((float)whole - zero / 16) * scale;
}

/* Finds scale and zero point of 32 values with the least sum of weights times squared errors. They
 * are those that GCKPT_STORAGE_I4 finds for the rounded values, which it thus keeps. */
static inline void calibrate_fit(const float *x, const float *weights, float *scale, float *zero)
{
    /* shares of the values below and above 0 that can be represented */
    static const float shares[][2] = { { 1, 1 },       { 0.95f, 0.95f }, { 0.9f, 0.9f },
                                       { 1, 0.9f },    { 0.9f, 1 },      { 0.85f, 0.85f },
                                       { 0.8f, 0.8f }, { 0.95f, 1 },     { 1, 0.95f } };
    float least = 0, most = 0, best = 0;
    for (int i = 0; i < 32; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    for (size_t k = 0; k < sizeof shares / sizeof shares[0]; k++) {
        const float from = shares[k][0] * least, to = shares[k][1] * most;
        const uint32_t half = gguf_to_f16((to - from) / 15);
        const unsigned char bytes[2] = { (unsigned char)half, (unsigned char)(half >> 8) };
        const float s = gguf_from_f16(bytes);
        const float z = s > 0 ? (float)(int)(-from / s * 16 + 0.5f) : 0;
        float error = 0;
        for (int i = 0; i < 32; i++) {
            const float off = x[i] - calibrate_round(x[i], s, z);
            error += off * off * weights[i];
        }
        if (k > 0 && !(error < best))
            continue;
        best = error;
        *scale = s;
        *zero = z < 255 ? z : 255;
    }
}

typedef struct {
    float u[CALIBRATE_MOST * CALIBRATE_MOST]; /* calibrate_factor */
    float weights[CALIBRATE_MOST];            /* of the columns' errors */
    /* weights (n,32) of a block's n columns and of 32 outputs, with the compensations */
    float values[CALIBRATE_MOST * 32];
} calibrate_scratch;

/* Finds scale and zero point of the numbers of 32 outputs from column i of a block on: a pair for 32
 * columns of each output or, if the weights are (in,out), for column i of all outputs. */
static inline void calibrate_scales(const calibrate_scratch *s, int transposed, int64_t i,
                                    float *scale, float *zero)
{
    static const float equal[32] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    for (int r = 0; r < 32; r++) {
        float x[32];
        for (int k = 0; k < 32 && transposed; k++)
            x[k] = s->values[(i + k) * 32 + r];
        if (transposed)
            calibrate_fit(x, s->weights + i, scale + r, zero + r);
        else if (r == 0)
            calibrate_fit(s->values + i * 32, equal, scale, zero);
        else
            scale[r] = scale[0], zero[r] = zero[0];
    }
}

/* Rounds the weights of n columns from `at` on of a layer's input: w (out,in) or, unless transposed,
 * (in,out). */
static inline void calibrate_columns(const calibration_input *in, int64_t at, int64_t n,
                                     int64_t out, int transposed, float *w, calibrate_scratch *s)
{
    const float *sums = in->sums + at * in->block;
    const int64_t column = transposed ? 1 : out, output = transposed ? in->width : 1;
    calibrate_factor(sums, n, in->rows, s->u);
    for (int64_t i = 0; i < n; i++)
        s->weights[i] = sums[i * n + i];
    for (int64_t first = 0; first < out; first += 32) {
        const int64_t outputs = out - first < 32 ? out - first : 32;
        float *x = w + at * column + first * output;
        float scale[32], zero[32], error[32] = { 0 };
        for (int64_t i = 0; i < n; i++)
            for (int64_t r = 0; r < 32; r++)
                s->values[i * 32 + r] = r < outputs ? x[i * column + r * output] : 0;
        for (int64_t i = 0; i < n; i++) {
            if (i % 32 == 0 || !transposed)
                calibrate_scales(s, transposed, i, scale, zero);
            for (int64_t r = 0; r < outputs; r++) {
                float *to = x + i * column + r * output;
                const float rounded = calibrate_round(s->values[i * 32 + r], scale[r], zero[r]);
                error[r] = *to - rounded;
                *to = rounded;
            }
            for (int64_t k = i + 1; k < n; k++) {
                const float part = s->u[i * n + k];
                for (int r = 0; r < 32; r++)
                    s->values[k * 32 + r] += error[r] * part;
            }
        }
    }
}

/* Stores the weights of a layer as I4, unless they are floats or their rows are no multiple of 32. */
static inline int calibrate_layer(const calibration_layer *layer, gckpt_store *store, model_any *m,
                                  calibrate_scratch *s)
{
    const calibration_input *in = layer->input;
    const int transposed = m->config.family->transposed;
    char weight[MODEL_NAME], name[MODEL_NAME];
    gckpt_parameter p;
    model_store_name(&m->config, name, model_join(weight, layer->module, ".weight"));
    const int id = gckpt_store_find(store, name);
    if (gckpt_store_peek(store, id, &p) != GCKPT_OK || p.storage == GCKPT_STORAGE_F32 ||
        p.shape.n != 2 || p.shape.d[transposed] != in->width || p.shape.d[1] % 32 != 0)
        return 0;
    if (gckpt_store_quantise(store, name, GCKPT_STORAGE_F32) != GCKPT_OK ||
        gckpt_store_get(store, id, &p) != GCKPT_OK)
        return model_fail(m, "%s", gckpt_error_text(store));
    for (int64_t at = 0; at < in->width; at += in->block)
        calibrate_columns(in, at, in->width - at < in->block ? in->width - at : in->block,
                          p.shape.d[!transposed], transposed, p.values, s);
    return gckpt_store_quantise(store, name, GCKPT_STORAGE_I4) == GCKPT_OK
               ? 0
               : model_fail(m, "%s", gckpt_error_text(store));
}

/* Stores as I4 the weights of all measured layers that are quantised (as I8, for example). */
static inline int calibrate_store(const calibration *c, gckpt_store *store, model_any *m)
{
    calibrate_scratch *s = (calibrate_scratch *)malloc(sizeof *s);
    int failed = s == NULL || c->failed ? model_fail(m, "out of memory for the sums of inputs") : 0;
    for (size_t i = 0; i < c->count && !failed; i++)
        failed = calibrate_layer(&c->layers[i], store, m, s);
    free(s);
    return failed;
}

/* ---- a model --------------------------------------------------------------------------------- */
static inline gckpt_tensor *calibrate_linear(void *user, const model_site *at, const char *module,
                                             gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias)
{
    return model_affine(at->config, calibrate_input((calibration *)user, module, x), w, bias);
}

/* Measures the inputs of all layers of a model for `tokens` (rows,T), in blocks of CALIBRATE_MOST
 * columns. Call calibrate_end afterwards, also after an error. */
static inline int calibrate_measure(calibration *c, model_any *m, gckpt_store *store,
                                    const int32_t *tokens, int64_t rows, int64_t T)
{
    model_hooks hooks;
    model_options options;
    gckpt_plan_desc desc;
    memset(&hooks, 0, sizeof hooks);
    memset(&options, 0, sizeof options);
    memset(&desc, 0, sizeof desc);
    hooks.user = c;
    hooks.linear = calibrate_linear;
    options.hooks = &hooks;
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    gckpt_tensor *input = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, T));
    const gckpt_fetch_spec hidden = { model_hidden(m, input, &options), 0 };
    desc.mode = GCKPT_INFERENCE;
    desc.threads = c->threads;
    desc.fetch.specs = &hidden;
    desc.fetch.count = 1;
    gckpt_plan *plan = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *exec = gckpt_exec_new(plan, store, &c->exec);
    gckpt_result result = exec != NULL ? GCKPT_OK : GCKPT_E_MEMORY;
    const void *from = plan == NULL ? (void *)g : exec == NULL ? (void *)store : (void *)exec;
    if (exec != NULL && calibrate_begin(c, CALIBRATE_MOST) == 0) {
        c->bytes = gckpt_plan_bytes(plan) + calibrate_bytes(c, c->block);
        for (int64_t row = 0; row < rows && result == GCKPT_OK; row++) {
            const gckpt_feed feed = { gckpt_id(input), tokens + row * T };
            result = gckpt_forward(exec, &feed, 1, 1, NULL);
        }
    }
    const int failed = c->failed            ? model_fail(m, "out of memory for the sums of inputs")
                       : result != GCKPT_OK ? model_fail(m, "%s", gckpt_error_text(from))
                                            : 0;
    gckpt_exec_free(exec);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    return failed;
}
#endif
