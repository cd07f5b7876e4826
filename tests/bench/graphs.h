/* graphs.h - builds the networks that planning is measured on, by public calls. They are planned but never run, so 124
 * million parameters need neither memory nor time.
 *
 *     net n;
 *     gpt_size z = gpt2_124m;
 *     z.batch = 4;
 *     if (net_gpt(&n, "GPT-2 124M", &z)) {
 *         gckpt_plan_desc desc = net_desc(&n, GCKPT_SQRT);
 *         gckpt_plan *p = gckpt_plan_new(n.graph, &n.loss, 1, &desc);
 *         printf("%zu bytes\n", net_bytes(p));
 *         gckpt_plan_free(p);
 *     }
 *     net_free(&n);
 *
 * Every block is a segment.
 */
#ifndef BENCH_GRAPHS_H
#define BENCH_GRAPHS_H
#include "gradckpt.h"
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_term loss;
    int64_t rows;
    int rank; /* of LoRA adapters of products without a bias; 0 trains all weights instead */
} net;

/* Plans are made for a step of two micro-batches. Parameter gradients then live during the whole step, with one
 * accumulator for each use, so that only the rest of the arena depends on the schedule: activations, their gradients
 * and workspace. */
static inline gckpt_plan_desc net_desc(const net *n, gckpt_mode mode)
{
    gckpt_plan_desc desc = { .mode = mode, .batch = 2 * n->rows };
    return desc;
}

/* Returns the bytes of the arena of a plan made with net_desc, without the gradients of parameters: activations, their
 * gradients and workspace, including unused bytes. */
static inline size_t net_bytes(const gckpt_plan *p)
{
    return gckpt_plan_describe(p).arena - gckpt_plan_kind_bytes(p, GCKPT_BYTES_GRADIENTS);
}

static inline void net_open(net *n, const char *name, int64_t rows)
{
    memset(n, 0, sizeof *n);
    n->name = name;
    n->rows = rows;
    n->loss.weight = 1;
    n->store = gckpt_store_new(NULL);
    n->graph = gckpt_graph_new(n->store, NULL);
}

/* Ends the graph with this loss. Returns 1, or 0 after printing the graph's error. */
static inline int net_close(net *n, gckpt_tensor *loss)
{
    n->loss.loss = loss;
    if (loss == NULL)
        fprintf(stderr, "%s: %s\n", n->name, gckpt_error_text(n->graph));
    return loss != NULL;
}

static inline void net_free(net *n)
{
    gckpt_graph_free(n->graph);
    gckpt_store_free(n->store);
}

/* A place in a network, from which the names of its parameters are made. */
typedef struct {
    net *n;
    const char *part;
    int layer;
    int64_t dim;
    int heads, causal;
    gckpt_tensor *memory; /* input of the block's cross-attention, or NULL */
} place;

/* Returns a trainable parameter. Its values are never read, so all parameters may share one float. */
static inline gckpt_tensor *net_parameter(const place *p, const char *part, gckpt_shape shape)
{
    static float nothing;
    const gckpt_init zero = { 0, 0, 0 };
    char name[64];
    snprintf(name, sizeof name, "%s%d.%s", p->part, p->layer, part);
    if (gckpt_store_find(p->n->store, name) < 0)
        gckpt_store_external(p->n->store, name, shape, &nothing, 1);
    return gckpt_param(p->n->graph, name, shape, zero);
}

/* Returns a trainable parameter of shape (rows,columns), or (rows) if columns is 0. */
static inline gckpt_tensor *net_weight(const place *p, const char *part, int64_t rows,
                                       int64_t columns)
{
    return net_parameter(p, part, columns > 0 ? gckpt_shape2(rows, columns) : gckpt_shape1(rows));
}

static inline gckpt_tensor *net_norm(const place *p, const char *part, gckpt_tensor *x)
{
    char name[32];
    snprintf(name, sizeof name, "%s.gain", part);
    gckpt_tensor *gain = net_weight(p, name, p->dim, 0);
    snprintf(name, sizeof name, "%s.bias", part);
    return gckpt_layernorm(x, gain, net_weight(p, name, p->dim, 0), 0);
}

static inline gckpt_tensor *net_linear(const place *p, const char *part, gckpt_tensor *x,
                                       int64_t in, int64_t out)
{
    char name[32];
    snprintf(name, sizeof name, "%s.bias", part);
    gckpt_tensor *w = net_weight(p, part, in, out);
    return gckpt_linear(x, w, net_weight(p, name, out, 0));
}

/* ---- transformers ---- */

/* Returns x + projection(attention(..)), with keys and values computed from `source`, or from x if source is NULL. */
static inline gckpt_tensor *net_attend(const place *p, const char *part, gckpt_tensor *x,
                                       gckpt_tensor *source, int causal)
{
    const int64_t C = p->dim;
    char name[5][24];
    static const char *const parts[] = { "norm", "q", "k", "v", "proj" };
    for (int i = 0; i < 5; i++)
        snprintf(name[i], sizeof name[i], "%s.%s", part, parts[i]);
    gckpt_tensor *h = net_norm(p, name[0], x);
    gckpt_tensor *q = net_linear(p, name[1], h, C, C);
    gckpt_tensor *k = net_linear(p, name[2], source != NULL ? source : h, C, C);
    gckpt_tensor *v = net_linear(p, name[3], source != NULL ? source : h, C, C);
    h = gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = p->heads, .causal = causal });
    return gckpt_add(x, net_linear(p, name[4], h, C, C));
}

/* Builds a transformer block with norms before its layers; with cross-attention if p->memory is not NULL. */
static inline gckpt_tensor *net_block(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    x = net_attend(p, "self", x, NULL, p->causal);
    if (p->memory != NULL)
        x = net_attend(p, "cross", x, p->memory, 0);
    gckpt_tensor *h = net_norm(p, "norm", x);
    h = gckpt_gelu(net_linear(p, "fc", h, p->dim, 4 * p->dim));
    return gckpt_add(x, net_linear(p, "out", h, 4 * p->dim, p->dim));
}

static inline gckpt_tensor *net_embed(const place *p, const char *name, gckpt_tensor *table,
                                      int64_t batch, int64_t context)
{
    gckpt_tensor *in = gckpt_input(p->n->graph, name, GCKPT_I32, gckpt_shape2(batch, context));
    gckpt_tensor *x = gckpt_embed(table, in);
    return gckpt_add(x, net_weight(p, name, context, p->dim)); /* learned positions */
}

typedef struct {
    int layers, heads;
    int64_t dim, context, vocabulary, batch;
} gpt_size;
static const gpt_size gpt2_124m = { 12, 12, 768, 1024, 50257, 1 };
static const gpt_size gpt_mcu = { 4, 2, 16, 32, 32, 1 };
static const gpt_size gpt_384 = { 6, 6, 384, 1024, 50257, 1 };

/* Builds a GPT-2 of any size: learned positions, tied head. */
static inline int net_gpt(net *n, const char *name, const gpt_size *z)
{
    net_open(n, name, z->batch);
    place p = { n, "", 0, z->dim, z->heads, 1, NULL };
    gckpt_tensor *table = net_weight(&p, "table", z->vocabulary, z->dim);
    gckpt_tensor *x = net_embed(&p, "tokens", table, z->batch, z->context);
    for (p.layer = 0; p.layer < z->layers; p.layer++)
        x = gckpt_checkpoint(net_block, x, &p);
    gckpt_tensor *target =
        gckpt_input(n->graph, "targets", GCKPT_I32, gckpt_shape2(z->batch, z->context));
    return net_close(n, gckpt_linear_cross_entropy(net_norm(&p, "last", x), table, target, NULL));
}

/* Returns x @ w without a bias; with an adapter of rank n->rank, x @ w + x @ a @ b. */
static inline gckpt_tensor *net_project(const place *p, const char *part, gckpt_tensor *x,
                                        int64_t in, int64_t out)
{
    const int64_t rank = p->n->rank;
    gckpt_tensor *y = gckpt_linear(x, net_weight(p, part, in, out), NULL);
    char name[2][24];
    if (rank == 0)
        return y;
    snprintf(name[0], sizeof name[0], "%s.lora_a", part);
    snprintf(name[1], sizeof name[1], "%s.lora_b", part);
    x = gckpt_linear(x, net_weight(p, name[0], in, rank), NULL);
    return gckpt_add(y, gckpt_linear(x, net_weight(p, name[1], rank, out), NULL));
}

/* Builds a block of a Llama: heads of 64 columns, rotary positions, SwiGLU; three query heads share a key head. */
static inline gckpt_tensor *net_llama_block(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    const int64_t C = p->dim, I = C * 8 / 3;
    gckpt_attention_desc desc = { .heads = p->heads, .key_heads = p->heads / 3, .causal = 1 };
    gckpt_tensor *h = gckpt_rmsnorm(x, net_weight(p, "before", C, 0), 0);
    gckpt_tensor *q =
        gckpt_rotary(net_project(p, "q", h, C, C), &(gckpt_rotary_desc){ .heads = desc.heads });
    gckpt_tensor *k = gckpt_rotary(net_project(p, "k", h, C, C / 3),
                                   &(gckpt_rotary_desc){ .heads = desc.key_heads });
    gckpt_tensor *v = net_project(p, "v", h, C, C / 3);
    h = gckpt_attention(q, k, v, &desc);
    x = gckpt_add(x, net_project(p, "proj", h, C, C));
    h = gckpt_rmsnorm(x, net_weight(p, "between", C, 0), 0);
    gckpt_tensor *gate = gckpt_silu(net_project(p, "gate", h, C, I));
    h = gckpt_mul(gate, net_project(p, "up", h, C, I));
    return gckpt_add(x, net_project(p, "down", h, I, C));
}

/* Builds a network of SmolLM2-135M's shape, tied head. If rank is not 0, only LoRA adapters of that rank are trained. */
static inline int net_llama(net *n, const char *name, int64_t context, int rank)
{
    const int64_t dim = 576, vocabulary = 49152;
    net_open(n, name, 1);
    n->rank = rank;
    place p = { n, "", 0, dim, 9, 1, NULL };
    gckpt_tensor *table = net_weight(&p, "table", vocabulary, dim);
    gckpt_tensor *in = gckpt_input(n->graph, "tokens", GCKPT_I32, gckpt_shape2(1, context));
    gckpt_tensor *x = gckpt_embed(table, in);
    for (p.layer = 0; p.layer < 30; p.layer++)
        x = gckpt_checkpoint(net_llama_block, x, &p);
    gckpt_tensor *target = gckpt_input(n->graph, "targets", GCKPT_I32, gckpt_shape2(1, context));
    x = gckpt_rmsnorm(x, net_weight(&p, "last", dim, 0), 0);
    if (rank > 0) {
        gckpt_store_freeze(n->store, "*", 1);
        gckpt_store_freeze(n->store, "*.lora_?", 0);
    }
    return net_close(n, gckpt_linear_cross_entropy(x, table, target, NULL));
}

/* Builds an encoder and a decoder with `layers` layers each; each layer of the decoder attends to the encoder's
 * output. */
static inline int net_encoder_decoder(net *n, const char *name, int layers)
{
    const int64_t batch = 4, context = 512, dim = 512, vocabulary = 32000;
    net_open(n, name, batch);
    place p = { n, "encoder", 0, dim, 8, 0, NULL };
    gckpt_tensor *table = net_weight(&p, "table", vocabulary, dim);
    gckpt_tensor *x = net_embed(&p, "source", table, batch, context);
    for (p.layer = 0; p.layer < layers; p.layer++)
        x = gckpt_checkpoint(net_block, x, &p);
    gckpt_tensor *memory = net_norm(&p, "last", x);
    place d = { n, "decoder", 0, dim, 8, 1, memory };
    x = net_embed(&d, "tokens", table, batch, context);
    for (d.layer = 0; d.layer < layers; d.layer++)
        x = gckpt_checkpoint(net_block, x, &d);
    gckpt_tensor *target =
        gckpt_input(n->graph, "targets", GCKPT_I32, gckpt_shape2(batch, context));
    return net_close(n, gckpt_linear_cross_entropy(net_norm(&d, "last", x), table, target, NULL));
}

/* ---- a plain chain ---- */
static inline gckpt_tensor *net_layer(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    return gckpt_relu(net_linear(p, "fc", x, p->dim, p->dim));
}

static inline int net_mlp(net *n, const char *name, int layers)
{
    const int64_t batch = 256, head = 16;
    net_open(n, name, batch);
    place p = { n, "", 0, 1024, 0, 0, NULL };
    gckpt_tensor *x = gckpt_input(n->graph, "x", GCKPT_F32, gckpt_shape2(batch, p.dim));
    for (p.layer = 0; p.layer < layers; p.layer++)
        x = gckpt_checkpoint(net_layer, x, &p);
    x = net_linear(&p, "head", x, p.dim, head);
    gckpt_tensor *target = gckpt_input(n->graph, "y", GCKPT_F32, gckpt_shape2(batch, head));
    return net_close(n, gckpt_mean_squared_error(x, target, NULL));
}

/* ---- a U-Net of user-defined ops that have only the functions and facts that planning needs (shape, flops, inputs
 * of the backward) and that compute nothing. Images are (B,H,W,C). ---- */
static inline void image_kernel(const gckpt_call *call) { (void)call; }

/* x (B,H,W,I), w (9,I*O) -> (B,H,W,O); the attribute is O */
static inline gckpt_result image_conv_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    call->shape.d[3] = *(const int *)call->attributes;
    return GCKPT_OK;
}

static inline uint64_t image_conv_flops(const gckpt_call *call)
{
    const gckpt_shape *s = &call->shape;
    return 2 * (uint64_t)(s->d[0] * s->d[1] * s->d[2] * 9 * call->in[0].shape.d[3] * s->d[3]);
}

/* x (B,H,W,I), w (4,I*O) -> (B,2H,2W,O): a transposed convolution, 2 x 2 with stride 2 */
static inline gckpt_result image_up_shape(gckpt_call *call)
{
    image_conv_shape(call);
    call->shape.d[1] *= 2;
    call->shape.d[2] *= 2;
    return GCKPT_OK;
}

static inline uint64_t image_up_flops(const gckpt_call *call) { return image_conv_flops(call) / 9; }

/* A norm that saves statistics of 64 f16 numbers per sample. */
static inline gckpt_result image_norm_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    call->saved_bytes = (size_t)call->shape.d[0] * 128;
    return GCKPT_OK;
}

/* The maximum of each 2 x 2 pixels, whose position is saved as one byte. */
static inline gckpt_result image_pool_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    call->shape.d[1] /= 2;
    call->shape.d[2] /= 2;
    call->saved_bytes =
        (size_t)(call->shape.d[0] * call->shape.d[1] * call->shape.d[2] * call->shape.d[3]);
    return GCKPT_OK;
}

static inline gckpt_tensor *image_conv(const place *p, const char *part, gckpt_tensor *x, int out)
{
    static const gckpt_op conv = { "conv3x3",
                                   image_conv_shape,
                                   image_kernel,
                                   image_kernel,
                                   image_conv_flops,
                                   NULL,
                                   { GCKPT_IN(1), GCKPT_IN(0) },
                                   0,
                                   NULL,
                                   NULL };
    gckpt_tensor *in[2] = { x, net_weight(p, part, 9, gckpt_shape_of(x).d[3] * out) };
    return gckpt_apply(&conv, in, 2, &out, sizeof out);
}

static inline gckpt_tensor *image_up(const place *p, gckpt_tensor *x, int out)
{
    static const gckpt_op up = { "up2x2",
                                 image_up_shape,
                                 image_kernel,
                                 image_kernel,
                                 image_up_flops,
                                 NULL,
                                 { GCKPT_IN(1), GCKPT_IN(0) },
                                 0,
                                 NULL,
                                 NULL };
    gckpt_tensor *in[2] = { x, net_weight(p, "up", 4, gckpt_shape_of(x).d[3] * out) };
    return gckpt_apply(&up, in, 2, &out, sizeof out);
}

static inline gckpt_tensor *image_norm(gckpt_tensor *x)
{
    static const gckpt_op norm = { "groupnorm",
                                   image_norm_shape,
                                   image_kernel,
                                   image_kernel,
                                   NULL,
                                   NULL,
                                   { GCKPT_IN(0) | GCKPT_SAVED },
                                   0,
                                   NULL,
                                   NULL };
    return gckpt_apply(&norm, &x, 1, NULL, 0);
}

static inline gckpt_tensor *image_pool(gckpt_tensor *x)
{
    static const gckpt_op pool = { "pool2x2",
                                   image_pool_shape,
                                   image_kernel,
                                   image_kernel,
                                   NULL,
                                   NULL,
                                   { GCKPT_SAVED },
                                   0,
                                   NULL,
                                   NULL };
    return gckpt_apply(&pool, &x, 1, NULL, 0);
}

/* Builds a segment of two times convolution, norm and silu; in the upward half of the U-Net, p->memory is the skip
 * connection that is a further input. */
static inline gckpt_tensor *image_block(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    if (p->memory != NULL) {
        gckpt_tensor *both[2];
        both[0] = image_up(p, x, (int)p->dim);
        both[1] = p->memory;
        x = gckpt_concat(both, 2, 3);
    }
    for (int i = 0; i < 2; i++)
        x = gckpt_silu(image_norm(image_conv(p, i == 0 ? "conv1" : "conv2", x, (int)p->dim)));
    return x;
}

static inline int net_unet(net *n, const char *name)
{
    enum { DEPTH = 4 };
    const int64_t batch = 8, side = 256, width = 32;
    const int channels = 4;
    gckpt_tensor *skip[DEPTH];
    net_open(n, name, batch);
    gckpt_tensor *x =
        gckpt_input(n->graph, "x", GCKPT_F32, gckpt_shape4(batch, side, side, channels));
    place down = { n, "down", 0, width, 0, 0, NULL };
    for (; down.layer < DEPTH; down.layer++, down.dim *= 2) {
        skip[down.layer] = gckpt_checkpoint(image_block, x, &down);
        x = image_pool(skip[down.layer]);
    }
    x = gckpt_checkpoint(image_block, x, &down);
    place up = { n, "up", DEPTH, down.dim, 0, 0, NULL };
    while (up.layer > 0) {
        up.dim /= 2;
        up.memory = skip[--up.layer];
        x = gckpt_checkpoint(image_block, x, &up);
    }
    x = image_conv(&up, "last", x, channels);
    gckpt_tensor *target =
        gckpt_input(n->graph, "y", GCKPT_F32, gckpt_shape4(batch, side, side, channels));
    return net_close(n, gckpt_mean_squared_error(x, target, NULL));
}

/* ---- networks of images ---- */
/* Returns a convolution of x without a bias; windows that do not overlap have no padding. */
static inline gckpt_tensor *net_conv(const place *p, const char *part, gckpt_tensor *x, int64_t out,
                                     int size, int stride, int groups)
{
    const gckpt_shape from = gckpt_shape_of(x);
    const int padding = stride < size ? size / 2 : 0;
    gckpt_tensor *w =
        net_parameter(p, part, gckpt_shape4(size, size, from.d[from.n - 1] / groups, out));
    return gckpt_conv2d(x, w, NULL,
                        &(gckpt_window){ .stride = { stride, stride },
                                         .padding = { padding, padding },
                                         .groups = groups });
}

static inline gckpt_tensor *net_images(net *n, int side, int channels)
{
    return gckpt_input(n->graph, "x", GCKPT_F32, gckpt_shape4(n->rows, side, side, channels));
}

/* Ends the graph with 1,000 classes of each row of x. */
static inline int net_classes(const place *p, gckpt_tensor *x)
{
    gckpt_tensor *target = gckpt_input(p->n->graph, "y", GCKPT_I32, gckpt_shape1(p->n->rows));
    x = net_linear(p, "head", x, p->dim, 1000);
    return net_close(p->n, gckpt_cross_entropy(x, target, NULL, 0));
}

/* Builds a ViT-B/16 (Dosovitskiy 2021), with the mean of all patches in place of a class token. */
static inline int net_vit(net *n, const char *name)
{
    const int64_t batch = 8, patches = 14 * 14, dim = 768;
    net_open(n, name, batch);
    place p = { n, "", 0, dim, 12, 0, NULL };
    gckpt_tensor *x = net_conv(&p, "patches", net_images(n, 224, 3), dim, 16, 16, 1);
    x = gckpt_reshape(x, gckpt_shape3(batch, patches, dim));
    x = gckpt_add(x, net_weight(&p, "positions", patches, dim));
    for (; p.layer < 12; p.layer++)
        x = gckpt_checkpoint(net_block, x, &p);
    return net_classes(&p, gckpt_mean(net_norm(&p, "last", x), 1));
}

static inline gckpt_tensor *net_convnext_block(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    const int64_t C = p->dim;
    gckpt_tensor *h = net_norm(p, "norm", net_conv(p, "depthwise", x, C, 7, 1, (int)C));
    h = gckpt_gelu(net_linear(p, "widen", h, C, 4 * C));
    h = net_linear(p, "narrow", h, 4 * C, C);
    return gckpt_add(x, gckpt_mul(h, net_weight(p, "scale", C, 0)));
}

/* Builds a ConvNeXt-T (Liu 2022). */
static inline int net_convnext(net *n, const char *name)
{
    static const int depth[] = { 3, 3, 9, 3 };
    net_open(n, name, 8);
    place p = { n, "", 0, 96, 0, 0, NULL };
    gckpt_tensor *x =
        net_norm(&p, "stem", net_conv(&p, "patches", net_images(n, 224, 3), 96, 4, 4, 1));
    for (int stage = 0; stage < 4; stage++) {
        if (stage > 0) {
            x = net_conv(&p, "halve", net_norm(&p, "before", x), 2 * p.dim, 2, 2, 1);
            p.dim *= 2;
        }
        for (int end = p.layer + depth[stage]; p.layer < end; p.layer++)
            x = gckpt_checkpoint(net_convnext_block, x, &p);
    }
    return net_classes(&p, net_norm(&p, "last", gckpt_global_average_pool(x)));
}

static inline gckpt_tensor *net_groupnorm(const place *p, const char *part, gckpt_tensor *x)
{
    const gckpt_shape s = gckpt_shape_of(x);
    const int64_t C = s.d[s.n - 1];
    char name[2][24];
    snprintf(name[0], sizeof name[0], "%s.gain", part);
    snprintf(name[1], sizeof name[1], "%s.bias", part);
    return gckpt_groupnorm(x, 32, net_weight(p, name[0], C, 0), net_weight(p, name[1], C, 0), 0);
}

/* Builds a residual block of two convolutions, to which p->memory, the embedding of the noise level, is added; with
 * attention over all pixels if p->heads is not 0. */
static inline gckpt_tensor *net_denoise_block(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    const gckpt_shape s = gckpt_shape_of(x);
    const int64_t C = p->dim, pixels = s.d[1] * s.d[2];
    gckpt_tensor *h = net_conv(p, "conv1", gckpt_silu(net_groupnorm(p, "norm1", x)), C, 3, 1, 1);
    gckpt_tensor *t = net_linear(p, "noise", gckpt_silu(p->memory), 512, C);
    h = gckpt_add(h, gckpt_reshape(t, gckpt_shape4(s.d[0], 1, 1, C)));
    h = net_conv(p, "conv2", gckpt_silu(net_groupnorm(p, "norm2", h)), C, 3, 1, 1);
    x = gckpt_add(h, s.d[3] == C ? x : net_conv(p, "skip", x, C, 1, 1, 1));
    if (p->heads == 0)
        return x;
    h = gckpt_reshape(net_groupnorm(p, "norm3", x), gckpt_shape3(s.d[0], pixels, C));
    h = gckpt_attention(net_linear(p, "q", h, C, C), net_linear(p, "k", h, C, C),
                        net_linear(p, "v", h, C, C), &(gckpt_attention_desc){ .heads = p->heads });
    h = gckpt_reshape(net_linear(p, "proj", h, C, C), gckpt_shape4(s.d[0], s.d[1], s.d[2], C));
    return gckpt_add(x, h);
}

/* Builds the U-Net of a diffusion model for 32 x 32 pixels (Ho 2020): 4 resolutions with two blocks each on the way down
 * and three on the way up, attention at 16 x 16. */
static inline int net_diffusion(net *n, const char *name)
{
    enum { LEVELS = 4, SKIPS = 3 * LEVELS };
    const int64_t batch = 16;
    gckpt_tensor *skip[SKIPS];
    int skips = 0, side = 32;
    net_open(n, name, batch);
    place p = { n, "", 0, 128, 0, 0, NULL };
    gckpt_tensor *t = gckpt_input(n->graph, "noise level", GCKPT_F32, gckpt_shape2(batch, 128));
    t = net_linear(&p, "t2", gckpt_silu(net_linear(&p, "t1", t, 128, 512)), 512, 512);
    p.memory = t;
    gckpt_tensor *x = skip[skips++] = net_conv(&p, "first", net_images(n, side, 3), p.dim, 3, 1, 1);
    for (int level = 0; level < LEVELS; level++) {
        p.dim = level == 0 ? 128 : 256;
        p.heads = side == 16 ? 4 : 0;
        for (int i = 0; i < 2; i++, p.layer++)
            x = skip[skips++] = gckpt_checkpoint(net_denoise_block, x, &p);
        if (level + 1 == LEVELS)
            break;
        x = skip[skips++] = net_conv(&p, "halve", x, p.dim, 3, 2, 1);
        side /= 2;
    }
    for (int i = 0; i < 2; i++, p.layer++)
        x = gckpt_checkpoint(net_denoise_block, x, &p);
    for (int level = LEVELS; level-- > 0;) {
        p.dim = level == 0 ? 128 : 256;
        p.heads = side == 16 ? 4 : 0;
        for (int i = 0; i < 3; i++, p.layer++) {
            gckpt_tensor *both[2] = { x, skip[--skips] };
            x = gckpt_checkpoint(net_denoise_block, gckpt_concat(both, 2, 3), &p);
        }
        if (level == 0)
            break;
        side *= 2;
        x = net_conv(&p, "double", gckpt_upsample(x, side, side, GCKPT_NEAREST), p.dim, 3, 1, 1);
    }
    x = net_conv(&p, "last", gckpt_silu(net_groupnorm(&p, "norm", x)), 3, 3, 1, 1);
    gckpt_tensor *target = gckpt_input(n->graph, "y", GCKPT_F32, gckpt_shape_of(x));
    return net_close(n, gckpt_mean_squared_error(x, target, NULL));
}
#endif
