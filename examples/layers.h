/* layers.h - the layers of common networks, a function a layer. To copy and to change: it uses
 * public calls only. C99 or C++11; include gradckpt.h first.
 *
 *     h = gckpt_relu(layers_dense(x, "fc1", 64));       // (..,I) -> (..,64)
 *     for (int i = 0; i < 12; i++)
 *         h = layers_gpt_block(h, &gpt, i);             // (B,T,C) -> (B,T,C)
 *
 * Names, shapes and initial values follow PyTorch; transformer blocks follow their model (GPT-2,
 * Llama). A dense layer is an nn.Linear with "fc1.weight" (64,I) and "fc1.bias". Here images
 * have their channels last, and a convolution's weights are (KH,KW,I,O) instead of PyTorch's
 * (O,I,KH,KW). layers_pytorch_load and layers_pytorch_save read and write files in PyTorch's
 * order; layers_flatten orders features as nn.Flatten does. So
 *
 *     layers_pytorch_load(s, "net.safetensors");
 *
 * reads a state_dict into the graph's parameters, and layers_pytorch_save writes a file for
 * load_state_dict (docs/from-pytorch.md). Given a NULL tensor, layers return NULL. */
#ifndef LAYERS_H
#define LAYERS_H
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Layers with the same name share their weights, like two calls of one nn.Module. If layers_share
 * is 0, a message on stderr reports the first such pair of layers as a likely mistake; if nonzero,
 * there is no message. */
static int layers_share;

/* Returns parameter NAME.part. Creates it if the graph does not have it yet; otherwise the layers
 * share it. */
static inline gckpt_tensor *layers_param_shared(gckpt_graph *g, const char *name, const char *part,
                                                gckpt_shape shape, gckpt_init init)
{
    char full[256];
    const int n = snprintf(full, sizeof full, "%s.%s", name, part);
    return gckpt_param(g, n < (int)sizeof full ? full : NULL, shape, init);
}

/* Returns parameter NAME.part of a layer. If the graph already has this parameter and layers_share
 * is 0, prints a warning. */
static inline gckpt_tensor *layers_param(gckpt_graph *g, const char *name, const char *part,
                                         gckpt_shape shape, gckpt_init init)
{
    const int before = gckpt_graph_size(g);
    gckpt_tensor *p = layers_param_shared(g, name, part, shape, init);
    if (p != NULL && gckpt_graph_size(g) == before && !layers_share) {
        fprintf(stderr,
                "layers.h: two layers are named \"%s\" and share %s.%s: rename one, or "
                "set layers_share = 1 if they should share\n",
                name, name, part);
        layers_share = 1; /* suppresses further warnings */
    }
    return p;
}

/* Returns the size of the last axis, or 1 for NULL. */
static inline int64_t layers_width(const gckpt_tensor *x)
{
    const gckpt_shape s = gckpt_shape_of(x);
    return s.n > 0 ? s.d[s.n - 1] : 1;
}

/* Permutes axes like PyTorch's permute: axis i of `to` is axis axes[i] of `from`, and `shape` is
 * the shape of `from`. (2,3,1,0) converts weights of nn.Conv2d to those of gckpt_conv2d, and
 * (3,2,0,1) converts them back; for nn.Conv1d, (2,1,0) converts in both directions. */
static inline void layers_permute(const float *from, gckpt_shape shape, const int *axes, float *to)
{
    int64_t step[GCKPT_MAX_DIMS], n = 1;
    for (int i = shape.n; i-- > 0; n *= shape.d[i])
        step[i] = n;
    for (int64_t k = 0; k < n; k++) {
        int64_t rest = k, at = 0;
        for (int i = shape.n; i-- > 0; rest /= shape.d[axes[i]])
            at += rest % shape.d[axes[i]] * step[axes[i]];
        to[k] = from[at];
    }
}

/* Sets the order by which layers_permute converts a parameter from PyTorch's order of axes
 * (to_pytorch 0) or to it (1), and returns the permuted shape. Weights of convolutions, also
 * transposed ones, are recognised by names that end in "weight" and by three axes (1D) or four axes
 * (2D); their channels come first in PyTorch, then the kernel's axes. */
static inline gckpt_shape layers_pytorch_axes(const char *name, gckpt_shape shape, int to_pytorch,
                                              int *axes)
{
    static const int orders[3][4] = { { 2, 1, 0 }, { 2, 3, 1, 0 }, { 3, 2, 0, 1 } };
    const size_t n = strlen(name);
    const int moved =
        (shape.n == 3 || shape.n == 4) && n >= 6 && strcmp(name + n - 6, "weight") == 0;
    const int *order = orders[shape.n == 3 ? 0 : 1 + to_pytorch];
    gckpt_shape permuted = shape;
    for (int i = 0; i < shape.n; i++) {
        axes[i] = moved ? order[i] : i;
        permuted.d[i] = shape.d[axes[i]];
    }
    return permuted;
}

/* Copies all parameters of one store to parameters of another store that have the same names and
 * the permuted shape. On failure prints the parameter's name and returns E_DATA. */
static inline gckpt_result layers_pytorch_copy(gckpt_store *from, gckpt_store *to, int to_pytorch)
{
    gckpt_parameter p, q;
    int axes[GCKPT_MAX_DIMS];
    for (int i = 0; i < gckpt_store_count(from); i++) {
        const int known = gckpt_store_get(from, i, &p) == GCKPT_OK &&
                          gckpt_store_get(to, gckpt_store_find(to, p.name), &q) == GCKPT_OK;
        const gckpt_shape shape = layers_pytorch_axes(p.name, p.shape, to_pytorch, axes);
        int fits = known && q.shape.n == shape.n && p.values != NULL && q.values != NULL;
        for (int k = 0; k < shape.n && fits; k++)
            fits = q.shape.d[k] == shape.d[k];
        if (!fits) {
            fprintf(stderr,
                    "layers.h: \"%s\" is not in both model and file, as F32 and of the same "
                    "shape after permuting its axes\n",
                    p.name);
            return GCKPT_E_DATA;
        }
        layers_permute(p.values, p.shape, axes, q.values);
    }
    return GCKPT_OK;
}

/* A gckpt_file_desc.rename that leaves out the counters of PyTorch's batch norms. */
static inline const char *layers_pytorch_name(void *user, const char *name)
{
    const size_t n = strlen(name);
    (void)user;
    return n >= 19 && !strcmp(name + n - 19, "num_batches_tracked") ? NULL : name;
}

/* Reads PyTorch's values of all parameters of `s`, which a graph must have created. Holds a second
 * copy of the values. Prints what is wrong with the file and returns an error; parameters read
 * before that keep the file's values. */
static inline gckpt_result layers_pytorch_load(gckpt_store *s, const char *path)
{
    const gckpt_file_desc values = { layers_pytorch_name, NULL, 1, 0, 0, GCKPT_STORAGE_F32 };
    gckpt_store *torch = gckpt_store_new(NULL);
    gckpt_result result = gckpt_store_load(torch, path, &values);
    if (result != GCKPT_OK)
        fprintf(stderr, "%s\n", gckpt_error_text(torch));
    else
        result = layers_pytorch_copy(torch, s, 0);
    if (result == GCKPT_OK && gckpt_store_count(torch) != gckpt_store_count(s)) {
        fprintf(stderr, "layers.h: %s has %d parameters, the model has %d\n", path,
                gckpt_store_count(torch), gckpt_store_count(s));
        result = GCKPT_E_DATA;
    }
    gckpt_store_free(torch);
    return result;
}

/* Writes the values of all parameters in PyTorch's order of axes. Holds a second copy of them. */
static inline gckpt_result layers_pytorch_save(gckpt_store *s, const char *path)
{
    const gckpt_file_desc values = { NULL, NULL, 1, 0, 0, GCKPT_STORAGE_F32 };
    const gckpt_init zero = { 0, 0, 0 };
    gckpt_store *torch = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(torch, NULL);
    gckpt_parameter p;
    int axes[GCKPT_MAX_DIMS];
    for (int i = 0; gckpt_store_peek(s, i, &p) == GCKPT_OK; i++)
        gckpt_param(g, p.name, layers_pytorch_axes(p.name, p.shape, 1, axes), zero);
    gckpt_result result = layers_pytorch_copy(s, torch, 1);
    if (result == GCKPT_OK && (result = gckpt_store_save(torch, path, &values)) != GCKPT_OK)
        fprintf(stderr, "%s\n", gckpt_error_text(torch));
    gckpt_graph_free(g);
    gckpt_store_free(torch);
    return result;
}

/* Flattens like nn.Flatten: (B,H,W,C) -> (B,C H W), (B,T,C) -> (B,C T). A row of the result has all
 * values of channel 0, then those of channel 1 and so on, which is PyTorch's order. */
static inline gckpt_tensor *layers_flatten(gckpt_tensor *x)
{
    static const int order[2][4] = { { 0, 2, 1, 0 }, { 0, 3, 1, 2 } };
    const gckpt_shape s = gckpt_shape_of(x);
    if (s.n == 3 || s.n == 4)
        x = gckpt_permute(x, order[s.n - 3], s.n);
    return gckpt_reshape(x, gckpt_shape2(s.n > 0 ? s.d[0] : 1, -1));
}

/* Returns 1 / sqrt(n) by Newton's method, so that programs need no math library. */
static inline float layers_rsqrt(double n)
{
    double x = 1;
    while (x * x * n > 1)
        x /= 2;
    for (int i = 0; i < 8; i++)
        x *= 1.5 - 0.5 * n * x * x;
    return (float)x;
}

/* A dense layer with the given initial values: x weight' + bias, (..,I) -> (..,out). */
static inline gckpt_tensor *layers_dense_with(gckpt_tensor *x, const char *name, int64_t out,
                                              gckpt_init weight, gckpt_init bias)
{
    gckpt_graph *g = gckpt_graph_of(x);
    const gckpt_shape shape = gckpt_shape2(out, layers_width(x));
    gckpt_tensor *w = layers_param(g, name, "weight", shape, weight);
    gckpt_tensor *b = layers_param(g, name, "bias", gckpt_shape1(out), bias);
    return gckpt_linear_transposed(x, w, b);
}

/* A dense layer like nn.Linear(I, out). Weight and bias start uniform in (-1,1) / sqrt(I), as in
 * PyTorch. */
static inline gckpt_tensor *layers_dense(gckpt_tensor *x, const char *name, int64_t out)
{
    const gckpt_init init = { 0, layers_rsqrt((double)layers_width(x)), 0 };
    return layers_dense_with(x, name, out, init, init);
}

/* Dense layers NAME.0, NAME.1, .. with these widths. Between two of them there are relu and
 * dropout. */
static inline gckpt_tensor *layers_mlp(gckpt_tensor *x, const char *name, const int64_t *widths,
                                       int layers, float dropout)
{
    char full[128];
    for (int i = 0; i < layers; i++) {
        snprintf(full, sizeof full, "%s.%i", name, i);
        x = layers_dense(x, full, widths[i]);
        x = i < layers - 1 ? gckpt_relu(x) : x;
        x = i < layers - 1 && dropout > 0 ? gckpt_dropout(x, dropout) : x;
    }
    return x;
}

/* A layer norm like nn.LayerNorm: NAME.weight starts at 1, NAME.bias at 0. */
static inline gckpt_tensor *layers_layernorm(gckpt_tensor *x, const char *name)
{
    const gckpt_init one = { 0, 0, 1 }, zero = { 0, 0, 0 };
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *gain = layers_param(g, name, "weight", gckpt_shape1(layers_width(x)), one);
    gckpt_tensor *bias = layers_param(g, name, "bias", gckpt_shape1(layers_width(x)), zero);
    return gckpt_layernorm(x, gain, bias, 0);
}

/* A convolution by `op`, which is gckpt_conv2d, gckpt_conv1d or a transposed convolution.
 * NAME.weight has the given shape; if `biases` is nonzero, NAME.bias has that many elements. Both
 * start uniform in (-1,1) / sqrt(n), as in PyTorch, where n is the product of all axes of the shape
 * except the last one. */
static inline gckpt_tensor *layers_convolve(gckpt_tensor *(*op)(gckpt_tensor *x, gckpt_tensor *w,
                                                                gckpt_tensor *bias,
                                                                const gckpt_window *window),
                                            gckpt_tensor *x, const char *name, gckpt_shape shape,
                                            int64_t biases, const gckpt_window *window)
{
    gckpt_graph *g = gckpt_graph_of(x);
    double fan_in = 1;
    for (int i = 0; i + 1 < shape.n; i++)
        fan_in *= (double)shape.d[i];
    const gckpt_init init = { 0, layers_rsqrt(fan_in), 0 };
    gckpt_tensor *w = layers_param(g, name, "weight", shape, init);
    gckpt_tensor *b =
        biases != 0 ? layers_param(g, name, "bias", gckpt_shape1(biases), init) : NULL;
    return op(x, w, b, window);
}

/* Returns the number of channels in a group. If `exact` is nonzero and the channels cannot be
 * divided evenly, returns 0, for which gckpt_conv2d reports an error. */
static inline int64_t layers_group_width(int64_t channels, const gckpt_window *window, int exact)
{
    const int64_t groups = window != NULL && window->groups > 0 ? window->groups : 1;
    return exact && channels % groups != 0 ? 0 : channels / groups;
}

/* A convolution like nn.Conv2d(I, out, size): (B,H,W,I) -> (B,P,Q,out). window has stride, padding,
 * dilation and groups; NULL selects the defaults of gckpt_conv2d. If bias is 0, the layer has no
 * bias. Use layers_convolve for kernels that are not square. */
static inline gckpt_tensor *layers_conv2d(gckpt_tensor *x, const char *name, int64_t out, int size,
                                          const gckpt_window *window, int bias)
{
    const gckpt_shape s =
        gckpt_shape4(size, size, layers_group_width(layers_width(x), window, 0), out);
    return layers_convolve(gckpt_conv2d, x, name, s, bias ? out : 0, window);
}

/* A convolution like nn.Conv2d(I, out, size, stride, padding=size // 2, bias=False), for odd sizes.
 * With stride 1 the image keeps its size. Use it before a norm, whose bias makes another one
 * superfluous. */
static inline gckpt_tensor *layers_conv(gckpt_tensor *x, const char *name, int64_t out, int size,
                                        int stride)
{
    gckpt_window window;
    memset(&window, 0, sizeof window);
    for (int i = 0; i < 2; i++)
        window.stride[i] = stride, window.padding[i] = size / 2;
    return layers_conv2d(x, name, out, size, &window, 0);
}

/* A convolution like nn.Conv1d: (B,T,I) -> (B,P,out). It uses only element 1 of the window's arrays,
 * for example { .padding = { 0, 1 } }. */
static inline gckpt_tensor *layers_conv1d(gckpt_tensor *x, const char *name, int64_t out, int size,
                                          const gckpt_window *window, int bias)
{
    const gckpt_shape s = gckpt_shape3(size, layers_group_width(layers_width(x), window, 0), out);
    return layers_convolve(gckpt_conv1d, x, name, s, bias ? out : 0, window);
}

/* A transposed convolution like nn.ConvTranspose2d. The next function is like
 * nn.ConvTranspose1d. */
static inline gckpt_tensor *layers_conv2d_transposed(gckpt_tensor *x, const char *name, int64_t out,
                                                     int size, const gckpt_window *window, int bias)
{
    const gckpt_shape s =
        gckpt_shape4(size, size, layers_group_width(out, window, 1), layers_width(x));
    return layers_convolve(gckpt_conv2d_transposed, x, name, s, bias ? out : 0, window);
}
static inline gckpt_tensor *layers_conv1d_transposed(gckpt_tensor *x, const char *name, int64_t out,
                                                     int size, const gckpt_window *window, int bias)
{
    const gckpt_shape s = gckpt_shape3(size, layers_group_width(out, window, 1), layers_width(x));
    return layers_convolve(gckpt_conv1d_transposed, x, name, s, bias ? out : 0, window);
}

/* A group norm like nn.GroupNorm(groups, C): NAME.weight starts at 1, NAME.bias at 0. */
static inline gckpt_tensor *layers_groupnorm(gckpt_tensor *x, const char *name, int groups)
{
    const gckpt_init one = { 0, 0, 1 }, zero = { 0, 0, 0 };
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *gain = layers_param(g, name, "weight", gckpt_shape1(layers_width(x)), one);
    gckpt_tensor *bias = layers_param(g, name, "bias", gckpt_shape1(layers_width(x)), zero);
    return gckpt_groupnorm(x, groups, gain, bias, 0);
}

/* A batch norm like nn.BatchNorm2d and nn.BatchNorm1d. Its parameters are NAME.weight and
 * NAME.bias, its running statistics NAME.running_mean and NAME.running_var. */
static inline gckpt_tensor *layers_batchnorm(gckpt_tensor *x, const char *name)
{
    const gckpt_init one = { 0, 0, 1 }, zero = { 0, 0, 0 };
    const gckpt_shape shape = gckpt_shape1(layers_width(x));
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *gain = layers_param(g, name, "weight", shape, one);
    gckpt_tensor *bias = layers_param(g, name, "bias", shape, zero);
    char full[2][256];
    snprintf(full[0], sizeof full[0], "%s.running_mean", name);
    snprintf(full[1], sizeof full[1], "%s.running_var", name);
    gckpt_tensor *mean = gckpt_running(g, full[0], shape, zero, 0.1f);
    gckpt_tensor *variance = gckpt_running(g, full[1], shape, one, 0.1f);
    return gckpt_batchnorm(x, gain, bias, mean, variance, 0);
}

/* An embedding with the given initial values, i32 (..) -> (..,width): selects rows of NAME.weight
 * (count,width). Initial values of GPT-2 and Llama are { 0.02f, 0, 0 }. */
static inline gckpt_tensor *layers_embed_with(gckpt_tensor *index, const char *name, int64_t count,
                                              int64_t width, gckpt_init init)
{
    return gckpt_embed(
        layers_param(gckpt_graph_of(index), name, "weight", gckpt_shape2(count, width), init),
        index);
}

/* An embedding like nn.Embedding(count, width), whose initial values are normally distributed,
 * N(0,1). */
static inline gckpt_tensor *layers_embed(gckpt_tensor *index, const char *name, int64_t count,
                                         int64_t width)
{
    const gckpt_init normal = { 1, 0, 0 };
    return layers_embed_with(index, name, count, width, normal);
}

/* Returns gckpt_attention of q, k and v (B,T,C) with `heads` heads. If causal is nonzero, a token
 * sees only itself and earlier tokens. (The variable desc is needed because C++ has no compound
 * literals.) */
static inline gckpt_tensor *layers_attention(gckpt_tensor *q, gckpt_tensor *k, gckpt_tensor *v,
                                             int heads, int causal)
{
    gckpt_attention_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.heads = heads;
    desc.causal = causal;
    return gckpt_attention(q, k, v, &desc);
}

/* Returns gckpt_rotary of x (B,T,C) with `heads` heads; positions begin at 0. */
static inline gckpt_tensor *layers_rotary(gckpt_tensor *x, int heads)
{
    gckpt_rotary_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.heads = heads;
    return gckpt_rotary(x, &desc);
}

typedef struct {
    int layers, heads;
    int causal; /* if nonzero, a token sees only itself and earlier tokens */
    float dropout;
} layers_gpt;

/* Block number `layer` of a transformer with norms before attention and MLP (Radford 2019), (B,T,C)
 * -> (B,T,C). Names ("h.3.attn.c_attn") and initial values are those of GPT-2: N(0, 0.02), divided
 * by sqrt(2 layers) in layers that add to the residual stream. */
static inline gckpt_tensor *layers_gpt_block(gckpt_tensor *x, const layers_gpt *gpt, int layer)
{
    const gckpt_init normal = { 0.02f, 0, 0 }, zero = { 0, 0, 0 };
    const gckpt_init branch = { 0.02f * layers_rsqrt(2.0 * gpt->layers), 0, 0 };
    const int64_t C = layers_width(x);
    char name[6][32];
    static const char *const parts[6] = { "ln_1", "attn.c_attn", "attn.c_proj",
                                          "ln_2", "mlp.c_fc",    "mlp.c_proj" };
    for (int i = 0; i < 6; i++)
        snprintf(name[i], sizeof name[i], "h.%i.%s", layer, parts[i]);
    gckpt_tensor *a = layers_dense_with(layers_layernorm(x, name[0]), name[1], 3 * C, normal, zero);
    gckpt_tensor *q = gckpt_slice(a, -1, 0, C), *k = gckpt_slice(a, -1, C, 2 * C);
    a = layers_attention(q, k, gckpt_slice(a, -1, 2 * C, 3 * C), gpt->heads, gpt->causal);
    x = gckpt_add(x, gckpt_dropout(layers_dense_with(a, name[2], C, branch, zero), gpt->dropout));
    a = gckpt_gelu(layers_dense_with(layers_layernorm(x, name[3]), name[4], 4 * C, normal, zero));
    return gckpt_add(x,
                     gckpt_dropout(layers_dense_with(a, name[5], C, branch, zero), gpt->dropout));
}

/* A dense layer without bias and with the given initial values: x weight', (..,I) -> (..,out). */
static inline gckpt_tensor *layers_dense_nobias_with(gckpt_tensor *x, const char *name, int64_t out,
                                                     gckpt_init init)
{
    const gckpt_shape shape = gckpt_shape2(out, layers_width(x));
    return gckpt_linear_transposed(x, layers_param(gckpt_graph_of(x), name, "weight", shape, init),
                                   NULL);
}

/* A dense layer like nn.Linear(I, out, bias=False). */
static inline gckpt_tensor *layers_dense_nobias(gckpt_tensor *x, const char *name, int64_t out)
{
    const gckpt_init init = { 0, layers_rsqrt((double)layers_width(x)), 0 };
    return layers_dense_nobias_with(x, name, out, init);
}

/* A root-mean-square norm (Zhang & Sennrich 2019): NAME.weight starts at 1. */
static inline gckpt_tensor *layers_rmsnorm(gckpt_tensor *x, const char *name)
{
    const gckpt_init one = { 0, 0, 1 };
    gckpt_graph *g = gckpt_graph_of(x);
    return gckpt_rmsnorm(x, layers_param(g, name, "weight", gckpt_shape1(layers_width(x)), one), 0);
}

/* Block number `layer` of a Llama (Touvron 2023), (B,T,C) -> (B,T,C), whose MLP has `inner` hidden
 * units. Names ("model.layers.3.self_attn.q_proj.weight"), the pairs of columns of rotary
 * positions, and initial values, N(0, 0.02), are those of transformers. */
static inline gckpt_tensor *layers_llama_block(gckpt_tensor *x, int heads, int64_t inner, int layer)
{
    static const char *const parts[9] = { "input_layernorm",  "self_attn.q_proj",
                                          "self_attn.k_proj", "self_attn.v_proj",
                                          "self_attn.o_proj", "post_attention_layernorm",
                                          "mlp.gate_proj",    "mlp.up_proj",
                                          "mlp.down_proj" };
    const gckpt_init normal = { 0.02f, 0, 0 };
    const int64_t C = layers_width(x);
    char name[9][64];
    for (int i = 0; i < 9; i++)
        snprintf(name[i], sizeof name[i], "model.layers.%i.%s", layer, parts[i]);
    gckpt_tensor *h = layers_rmsnorm(x, name[0]);
    gckpt_tensor *q = layers_rotary(layers_dense_nobias_with(h, name[1], C, normal), heads);
    gckpt_tensor *k = layers_rotary(layers_dense_nobias_with(h, name[2], C, normal), heads);
    h = layers_attention(q, k, layers_dense_nobias_with(h, name[3], C, normal), heads, 1);
    x = gckpt_add(x, layers_dense_nobias_with(h, name[4], C, normal));
    h = layers_rmsnorm(x, name[5]);
    gckpt_tensor *gate = gckpt_silu(layers_dense_nobias_with(h, name[6], inner, normal));
    gate = gckpt_mul(gate, layers_dense_nobias_with(h, name[7], inner, normal));
    return gckpt_add(x, layers_dense_nobias_with(gate, name[8], C, normal));
}

/* Sets params[0..3] to the parameters of layer `layer` of a recurrent net in PyTorch:
 * NAME.weight_ih_l0 (rows,I), .bias_ih_l0, .weight_hh_l0 (rows,hidden), .bias_hh_l0 for layer 0.
 * All start uniform in (-1,1) / sqrt(hidden). */
static inline void layers_rnn_params(gckpt_tensor *x, const char *name, int layer, int64_t rows,
                                     int64_t hidden, gckpt_tensor *params[4])
{
    static const char *const parts[4] = { "weight_ih", "bias_ih", "weight_hh", "bias_hh" };
    const gckpt_init init = { 0, layers_rsqrt((double)hidden), 0 };
    for (int i = 0; i < 4; i++) {
        char part[32];
        const gckpt_shape wide = gckpt_shape2(rows, i == 0 ? layers_width(x) : hidden);
        snprintf(part, sizeof part, "%s_l%i", parts[i], layer);
        params[i] = layers_param_shared(gckpt_graph_of(x), name, part,
                                        i % 2 == 0 ? wide : gckpt_shape1(rows), init);
    }
}

/* One time step of a gated recurrent unit (Cho 2014, nn.GRU): returns the next h (B,hidden) from x
 * (B,I) and h. At the first step h is NULL, which means 0. Steps with the same name share their
 * weights, whose gates are in the order reset, update, new. */
static inline gckpt_tensor *layers_gru_cell(gckpt_tensor *x, gckpt_tensor *h, const char *name,
                                            int64_t hidden)
{
    const int64_t H = hidden;
    gckpt_tensor *part[2][3], *w[4];
    layers_rnn_params(x, name, 0, 3 * H, H, w);
    gckpt_tensor *proj_x = gckpt_linear_transposed(x, w[0], w[1]);
    gckpt_tensor *proj_h = h != NULL ? gckpt_linear_transposed(h, w[2], w[3]) : w[3];
    for (int i = 0; i < 3; i++) {
        part[0][i] = gckpt_slice(proj_x, -1, i * H, (i + 1) * H);
        part[1][i] = gckpt_slice(proj_h, -1, i * H, (i + 1) * H);
    }
    gckpt_tensor *reset = gckpt_sigmoid(gckpt_add(part[0][0], part[1][0]));
    gckpt_tensor *update = gckpt_sigmoid(gckpt_add(part[0][1], part[1][1]));
    gckpt_tensor *candidate = gckpt_tanh(gckpt_add(part[0][2], gckpt_mul(reset, part[1][2])));
    /* the result is (1 - update) candidate + update h */
    return gckpt_add(candidate, gckpt_mul(update, h != NULL ? gckpt_sub(h, candidate)
                                                            : gckpt_scale(candidate, -1)));
}

/* All time steps of a GRU by the op gckpt_gru: x (B,T,I) -> (B,T,hidden). It has the parameters of
 * layers_gru_cell but not the same bits, since gckpt_gru sums in another order. It is faster, but a
 * plan can only keep or recompute all steps together. */
static inline gckpt_tensor *layers_gru_sequence(gckpt_tensor *x, const char *name, int64_t hidden)
{
    static const int swap[2] = { 1, 0 };
    gckpt_tensor *w[4];
    layers_rnn_params(x, name, 0, 3 * hidden, hidden, w);
    gckpt_tensor *wx = gckpt_permute(w[0], swap, 2);
    return gckpt_gru(x, wx, w[1], gckpt_permute(w[2], swap, 2), w[3], NULL);
}

/* One time step of nn.LSTM (Hochreiter & Schmidhuber 1997) from x (B,I) and state[] = h and c,
 * (B,hidden). At the first step both are NULL, which means 0. Replaces state[] by the next h and c,
 * and returns the next h. Steps with the same name share their weights, whose gates are in the
 * order input, forget, cell, output. */
static inline gckpt_tensor *layers_lstm_cell(gckpt_tensor *x, gckpt_tensor *state[2],
                                             const char *name, int64_t hidden)
{
    const int64_t H = hidden;
    gckpt_tensor *part[4], *w[4], *h = state[0], *c = state[1];
    layers_rnn_params(x, name, 0, 4 * H, H, w);
    h = gckpt_add(gckpt_linear_transposed(x, w[0], w[1]),
                  h != NULL ? gckpt_linear_transposed(h, w[2], w[3]) : w[3]);
    for (int i = 0; i < 4; i++) {
        part[i] = gckpt_slice(h, -1, i * H, (i + 1) * H);
        part[i] = i == 2 ? gckpt_tanh(part[i]) : gckpt_sigmoid(part[i]);
    }
    h = gckpt_mul(part[0], part[2]);
    state[1] = c != NULL ? gckpt_add(gckpt_mul(part[1], c), h) : h;
    return state[0] = gckpt_mul(part[3], gckpt_tanh(state[1]));
}

/* All time steps of `layers` stacked LSTM layers by the op gckpt_lstm: x (B,T,I) -> h of the last
 * layer (B,T,hidden). It has the parameters of layers_lstm_cell but not the same bits, and a plan
 * can only keep or recompute all steps together. */
static inline gckpt_tensor *layers_lstm_sequence(gckpt_tensor *x, const char *name, int64_t hidden,
                                                 int layers)
{
    static const int swap[2] = { 1, 0 };
    gckpt_tensor *w[4];
    for (int i = 0; i < layers; i++) {
        layers_rnn_params(x, name, i, 4 * hidden, hidden, w);
        gckpt_tensor *wx = gckpt_permute(w[0], swap, 2), *wh = gckpt_permute(w[2], swap, 2);
        x = gckpt_lstm(x, wx, wh, gckpt_add(w[1], w[3]), NULL);
        x = gckpt_slice(x, -1, 0, hidden);
    }
    return x;
}
#endif
