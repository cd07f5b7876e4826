/* model.h - language models in Hugging Face's format for gradckpt.h, built from public calls. To
 * copy and change, with gpt2.h, llama.h, encoder.h, json.h and the gguf headers.
 *
 *     model_any m;
 *     gckpt_store *s = gckpt_store_new(NULL);
 *     if (model_load(&m, s, "gpt2", NULL) != 0) // config.json, model.safetensors (or shards)
 *         fprintf(stderr, "%s\n", m.error);
 *
 *     gckpt_graph *g = gckpt_graph_new(s, NULL);
 *     gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(B, T));
 *     gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(B, T));
 *     gckpt_term loss = { model_loss(&m, model_hidden(&m, tokens, NULL), targets), 1, 0 };
 *     ... gckpt_plan_new, gckpt_exec_new, gckpt_step ...
 *     model_save(&m, s, "tuned", GCKPT_STORAGE_F32); // from_pretrained("tuned") loads it
 *
 * config.json names the model's family: gpt2.h, llama.h or, for classifiers and embeddings,
 * encoder.h. A model_family describes how the families differ; adapters.h, peft.h and generate.h depend on nothing else of them. Parameters
 * are named as in Hugging Face's files, without the common prefix ("transformer.", "model."):
 * "wte.weight", "h.0.attn.c_attn.weight"; "layers.0.self_attn.q_proj.weight". The LM head is the
 * embedding table, or lm_head.weight if config.json does not tie them. Functions that may fail
 * return 0, or -1 after writing m->error. C99 or C++11. */
#ifndef MODEL_H
#define MODEL_H
#include "gguf.h"
#include "gradckpt.h"
#include "json.h"
#include <stdio.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif
#define MODEL_MMAP 1
#else
#define MODEL_MMAP 0
#endif
/* with this flag, pages of the file count as memory only when they are written to */
#ifdef MAP_NORESERVE
#define MODEL_NORESERVE MAP_NORESERVE
#else
#define MODEL_NORESERVE 0
#endif

/* ---- sizes ---------------------------------------------------------------------------------- */
enum { MODEL_NAME = 96, MODEL_PATH = 4096, MODEL_EOS = 8, MODEL_NOTES = 4096 };
typedef gckpt_tensor *(*model_activation)(gckpt_tensor *x);
typedef struct model_family model_family;

typedef enum {
    LLAMA_UNSCALED,
    LLAMA_LINEAR,
    LLAMA_LLAMA3,
    LLAMA_YARN,
    LLAMA_LONGROPE,
    LLAMA_PROPORTIONAL
} llama_scaling;
enum { LLAMA_MASK_BITS = 256, LLAMA_LONGROPE_PAIRS = 128 };
typedef struct llama_type llama_type;
typedef struct {
    int64_t columns; /* only the first columns of a head are rotated; 0 selects all of them */
    /* how the frequencies of rotary positions are scaled, rope_type in config.json */
    llama_scaling scaling;
    /* base: rope_theta; factor: factor of the scaling; original, low, high: further parameters of
     * llama3 */
    double base, factor, original, low, high;
    /* fast, slow: parameters of yarn; scale: factor of cosines and sines */
    double fast, slow, scale;
    int truncate;
    double part; /* proportional: the part of a head's pairs of columns that is rotated */
    /* longrope: divisors of the frequencies, [0] for texts of at most `original` tokens, [1] for
     * longer ones */
    float divisors[2][LLAMA_LONGROPE_PAIRS];
} llama_positions;
typedef struct {
    const llama_type *row; /* the model's row in llama_types */
    double epsilon;        /* the constant that norms add to mean squares */
    int plus_one;          /* Gemma: norms multiply by 1 + weight */
    /* nonzero if the model has: qkv_bias, biases of queries, keys and values; output_bias, a bias
     * of attention's output; mlp_bias, biases in the MLP */
    int qkv_bias, output_bias, mlp_bias;
    int parallel; /* if nonzero, the MLP has the same input as attention (GPT-NeoX) */
    /* factors of the embeddings and of the results of branches; 0 selects 1 */
    double embedding_scale, branch_scale;
    /* factors of queries by position (Ministral 3), see llama_read_query_scales */
    double query_beta, query_original;
    /* bit set of the layers without rotary positions */
    uint64_t no_rope[LLAMA_MASK_BITS / 64];
    /* bit set of the layers with a sliding window */
    uint64_t sliding[LLAMA_MASK_BITS / 64];
    /* number of keys that a query sees in a layer with a sliding window, including its own
     * token's */
    int64_t window;
    /* score_cap: cap of attention's scores, 0 for none; score_scale: their scale, 0 for 1 /
     * sqrt(head_dim) */
    double score_cap, score_scale;
    /* [0]: for layers with full attention; [1]: for layers with a sliding window */
    llama_positions positions[2];
    /* Gemma 4. full_head_dim, full_key_heads: columns of a head and number of key heads in layers
     * with full attention, 0 if these are as in other layers; keys_as_values: these layers have no
     * layer for values; shared_from: the first layer that has the keys and values of an earlier
     * one, 0 for none; wide: these layers have an MLP of twice the width; layer_inputs: columns of
     * the further embedding that each layer has as an input, 0 for none */
    int64_t full_head_dim, full_key_heads, shared_from, layer_inputs;
    int keys_as_values, wide;
    /* Qwen 3.5: bit set of the layers that are gated delta nets; their number of heads of keys and
     * of values, the columns of such heads, and the taps of their convolution */
    uint64_t nets[LLAMA_MASK_BITS / 64];
    int64_t net_keys, net_values, net_key_dim, net_value_dim, net_taps;
} llama_config; /* used by llama.h only; GPT-2 needs none of
                                                      * these fields */

/* What a model computes: the next token, a class of a text, a class of each token, or a vector for
 * a text. Encoders do not have the first. */
typedef enum { MODEL_NEXT_TOKEN, MODEL_CLASSIFY, MODEL_TAGS, MODEL_EMBED } model_task;
typedef struct {
    model_task task;
    int64_t labels;           /* number of classes; 0 takes those of config.json */
    const char *const *names; /* names of the classes, which must outlive the model; or NULL */
    int is_new;               /* if nonzero, the classifier's weights are not loaded from a file */
    int32_t padding;          /* token after the end of a row; set by model_read_config_for */
} model_head;

typedef struct {
    double epsilon;    /* the constant that norms add to variances */
    int64_t types;     /* number of token types */
    int64_t first;     /* row of the position table for the first token */
    int64_t positions; /* number of rows of the position table */
    /* local layers: a query sees keys at most `window` positions away, on both sides */
    int64_t window;
    uint64_t local[LLAMA_MASK_BITS / 64]; /* bit set of the layers with this window */
    double base[2];               /* base of rotary angles in layers without and with a window */
    int attention_bias, mlp_bias; /* nonzero if the dense layers have biases */
    int mean; /* nonzero if the classifier reads the mean of all tokens, not the first one */
    model_activation head_activation;
} encoder_config; /* used by encoder.h only */

typedef struct {
    const model_family *family;
    const char *type; /* value of model_type in config.json */
    /* constant text that precedes the names of parameters in the store, or NULL */
    const char *name_prefix;
    /* inner: width inside the MLP; context: most positions of a text */
    int64_t layers, width, inner, context, vocabulary;
    /* heads: number of heads of queries; key_heads: of keys and values; head_dim: columns of a
     * head */
    int64_t heads, key_heads, head_dim;
    model_activation activation;
    int uneven;         /* if nonzero, layers have different parameters (Gemma 4, Qwen 3.5) */
    int extra_params;   /* number of parameters after the blocks that other types do not have */
    int tied;           /* if nonzero, the LM head is the embedding table */
    double logit_cap;   /* if above 0, logits z become cap * tanh(z / cap) (Gemma 2) */
    double logit_scale; /* factor of the logits (Granite); 0 selects 1 */
    /* Tokens that end a text, followed by -1; the first one separates texts. */
    int32_t eos[MODEL_EOS + 1];
    double init_range; /* standard deviation of the initial values of a new model */
    llama_config llama;
    encoder_config encoder;
    model_head head;
} model_config;

typedef struct {
    void *memory;
    size_t size;
} model_mapping;

typedef struct {
    model_config config;
    char error[512];
    char note[512]; /* a message of model_load for the user, or "" */
    /* the config.json that was read, from which model_save copies unknown keys */
    json config_json;
    float *query_scales; /* factors of queries by position, for llama.h, or NULL */
    model_mapping *maps; /* files that model_load has mapped into memory */
    int map_count;
    struct encoder_table *tables; /* constants of graphs, for encoder.h */
} model_any;

typedef struct {
    char name[MODEL_NAME];
    gckpt_shape shape; /* n is 0 if this model does not have the parameter */
    gckpt_init init; /* initial values as in transformers, normally distributed: N(0, init_range) */
    int constant;    /* if nonzero, training does not change it */
} model_parameter;

typedef struct model_site model_site;
typedef struct model_options model_options;

/* The properties and functions of one family of models. */
struct model_family {
    const char *name;        /* name for error texts: "GPT-2" */
    const char *model_types; /* values of model_type, separated by ", " */
    /* reads the sizes from m->config_json; errors are stored there */
    int (*read_config)(model_any *m);
    /* Keys of config.json that this family has in addition to those of every model: `keys` lists
     * those that write_config writes, with ' ' around each; write_new_config writes all others,
     * for a new model. */
    const char *keys;
    void (*write_config)(const model_any *m, FILE *f);
    void (*write_new_config)(const model_config *c, FILE *f);
    /* value of "architectures" in config.json: "GPT2LMHeadModel" */
    const char *(*architecture)(const model_config *c);

    /* Number of parameters before the blocks, in block `layer` and after the blocks, which is also
     * their order; config->extra_params follow. A separate LM head is one more parameter at the end. get_param describes
     * parameter `part` of block `layer`, with its name without "h.LAYER."; if layer is -1, `part`
     * counts the parameters outside the blocks. */
    int params_before, params_after;
    int (*block_params)(const model_config *c, int64_t layer);
    void (*get_param)(const model_config *c, int64_t layer, int part, model_parameter *p);
    /* returns whether a tensor in a file is not a parameter and must be ignored; may be NULL */
    int (*is_skipped)(const char *name);
    /* if nonzero, weights have the shape (out,in), as in torch's Linear; if 0, (in,out) */
    int transposed;

    /* prefix of parameter names in files, except of the LM head's: "transformer." */
    const char *prefix;
    const char *head;              /* name of the LM head in files: "lm_head.weight" */
    const char *blocks;            /* name of the list of blocks: with "h", block 3 is "h.3" */
    const char *embeddings, *norm; /* modules outside the blocks: "wte", "ln_f" */
    const char *attention, *mlp;   /* modules of a block: "attn", "mlp" */
    /* returns the dense layers of a block, as targets of LoRA: "c_attn,c_proj,c_fc" */
    const char *(*linear)(const model_config *c);
    const char *residual; /* the dense layers whose results are added to the residual stream */
    const char *norms;    /* a pattern for gckpt_store_freeze that matches all norms: "*ln_*" */
    /* returns the targets that peft selects for LoRA by default */
    const char *(*lora_targets)(const model_config *c);

    /* Builds the hidden states after the last norm, (B,T,C), from tokens (B,T). */
    gckpt_tensor *(*hidden)(const model_any *m, gckpt_tensor *tokens, const model_options *options);
    /* Computes keys and values (1,P,key_heads head_dim), without rotary positions, of P prompt
     * vectors (1,P,C), for LLaMA-Adapter. */
    void (*keys_values)(const model_site *at, gckpt_tensor *prompts, gckpt_tensor **k,
                        gckpt_tensor **v);
    /* name of attention's output layer if peft adds LLaMA-Adapter's result after it, or NULL */
    const char *attn_output;
    /* Returns whether this parameter is the gain of a norm at the end of a branch (attention or
     * MLP), and sets *gain to the value with which such a branch adds nothing to the residual
     * stream. NULL if no model of the family has such norms: there, a branch adds nothing if its
     * `residual` layer is 0. */
    int (*is_post_norm)(const model_config *c, const char *name, float *gain);
};

/* Activation functions by their names in config.json. */
static const struct {
    const char *name;
    model_activation op;
} model_activations[] = {
    { "gelu_new", gckpt_gelu }, { "gelu_fast", gckpt_gelu }, { "gelu_pytorch_tanh", gckpt_gelu },
    { "gelu", gckpt_gelu_erf }, { "relu", gckpt_relu },      { "silu", gckpt_silu },
    { "swish", gckpt_silu },    { "tanh", gckpt_tanh },
};
enum { MODEL_ACTIVATIONS = sizeof model_activations / sizeof model_activations[0] };

static inline const char *model_activation_name(model_activation op)
{
    int i = 0;
    while (i + 1 < MODEL_ACTIVATIONS && model_activations[i].op != op)
        i++;
    return model_activations[i].name;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
model_fail(model_any *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(m->error, sizeof m->error, format, args);
    va_end(args);
    return -1;
}

/* Returns sqrt(x) by Newton's method, so that programs need no math library. */
static inline double model_sqrt(double x)
{
    double r = x > 1 ? x : 1;
    for (int i = 0; i < 60; i++)
        r = (r + x / r) / 2;
    return r;
}

/* ---- parameters ------------------------------------------------------------------------------ */
/* Writes first + second to `name`, which has MODEL_NAME bytes; cuts the text off if it is too
 * long. */
static inline const char *model_join(char *name, const char *first, const char *second)
{
    size_t n = strlen(first), most = MODEL_NAME - 1;
    memmove(name, first, n = n < most ? n : most);
    most -= n;
    memcpy(name + n, second, most = strlen(second) < most ? strlen(second) : most);
    name[n + most] = 0;
    return name;
}

/* Writes the name of a parameter: "h.LAYER.PART", or "PART" if layer is -1 (outside the blocks). */
static inline const char *model_block_name(const model_config *c, char *name, int64_t layer,
                                           const char *part)
{
    char block[48] = "";
    if (layer >= 0)
        snprintf(block, sizeof block, "%s.%lld.", c->family->blocks, (long long)layer);
    return model_join(name, block, part);
}

/* Writes a parameter's name in the store to `to`: with c->name_prefix, if the model has one. */
static inline const char *model_store_name(const model_config *c, char *to, const char *name)
{
    return model_join(to, c->name_prefix != NULL ? c->name_prefix : "", name);
}

static inline int encoder_is_family(const model_family *family); /* defined in encoder.h */

/* Returns whether the model is a decoder with a classifier instead of the LM head. */
static inline int model_has_score(const model_config *c)
{
    return c->head.task != MODEL_NEXT_TOKEN && !encoder_is_family(c->family);
}

/* Returns the index of the first parameter of block `layer` or, if that is the number of layers, of
 * the first one after the blocks. */
static inline int64_t model_first_param(const model_config *c, int64_t layer)
{
    int64_t i = c->family->params_before;
    if (!c->uneven)
        return i + layer * c->family->block_params(c, 0);
    for (int64_t k = 0; k < layer; k++)
        i += c->family->block_params(c, k);
    return i;
}

/* Returns the number of parameters of the model. */
static inline int64_t model_param_count(const model_config *c)
{
    return model_first_param(c, c->layers) + c->family->params_after + c->extra_params +
           (model_has_score(c) || !c->tied);
}

/* Returns name, shape and initial values of parameter i, below model_param_count. */
static inline model_parameter model_get_param(const model_config *c, int64_t i)
{
    const int64_t before = c->family->params_before, end = model_first_param(c, c->layers);
    char part[MODEL_NAME];
    model_parameter p;
    memset(&p, 0, sizeof p);
    if (model_has_score(c) && i == model_param_count(c) - 1) {
        snprintf(p.name, sizeof p.name, "score.weight");
        p.shape = gckpt_shape2(c->head.labels, c->width);
        p.init.normal = (float)c->init_range;
        return p;
    }
    if (i < before || i >= end) {
        c->family->get_param(c, -1, (int)(i < before ? i : i - end + before), &p);
        return p;
    }
    int64_t layer = c->uneven ? 0 : (i - before) / c->family->block_params(c, 0);
    int64_t at = i - model_first_param(c, layer);
    for (int n; at >= (n = c->family->block_params(c, layer)); layer++)
        at -= n;
    c->family->get_param(c, layer, (int)at, &p);
    memcpy(part, p.name, sizeof part);
    model_block_name(c, p.name, layer, part);
    return p;
}

/* Returns the index of the parameter called `name`, or -1. */
static inline int64_t model_find_param(const model_config *c, const char *name)
{
    const int64_t before = c->family->params_before, end = model_first_param(c, c->layers);
    const int64_t all = model_param_count(c);
    const size_t n = strlen(c->family->blocks);
    char *rest = NULL;
    if (strncmp(name, c->family->blocks, n) == 0 && name[n] == '.') {
        const long long layer = strtoll(name + n + 1, &rest, 10);
        if (layer < 0 || layer >= c->layers)
            return -1;
        const int64_t first = model_first_param(c, layer);
        for (int64_t i = first; i < first + c->family->block_params(c, layer); i++)
            if (strcmp(model_get_param(c, i).name, name) == 0)
                return i;
        return -1;
    }
    for (int64_t i = before > 0 ? 0 : end; i < all; i = i == before - 1 ? end : i + 1)
        if (strcmp(model_get_param(c, i).name, name) == 0)
            return i;
    return -1;
}

/* Returns whether parameter i is the weight matrix of a module inside a block. If so, p->name
 * becomes the module's name, which is the parameter's name without ".weight". */
static inline int model_module(const model_config *c, int64_t i, model_parameter *p)
{
    *p = model_get_param(c, i);
    char *end = strstr(p->name, ".weight");
    if (i < c->family->params_before || i >= model_first_param(c, c->layers) || p->shape.n != 2 ||
        end == NULL)
        return 0;
    *end = 0;
    return 1;
}

/* Returns the prefix of a parameter's name in files: the family's, except that heads have none. */
static inline const char *model_file_prefix(const model_config *c, const char *name)
{
    static const char *const heads[] = { "lm_head.", "score.", "classifier.", "pre_classifier.",
                                         "head." };
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        if (strncmp(name, heads[i], strlen(heads[i])) == 0)
            return "";
    return c->head.task == MODEL_EMBED ? "" : c->family->prefix;
}

/* Returns whether parameter `name` belongs to one of the modules in `list`, names separated by ','.
 * As in peft's modules_to_save, an entry of the list matches the end of a module's name, and covers
 * all parameters of the module. */
static inline int model_is_in_modules(const model_config *c, const char *list, const char *name)
{
    char full[2 * MODEL_NAME];
    size_t n;
    snprintf(full, sizeof full, "%s%s", model_file_prefix(c, name), name);
    for (const char *p = list; *p != 0; p += n + (p[n] == ',')) {
        n = strcspn(p, ",");
        for (const char *end = strchr(full, '.'); end != NULL && n > 0; end = strchr(end + 1, '.'))
            if ((size_t)(end - full) >= n && strncmp(end - n, p, n) == 0)
                return 1;
    }
    return 0;
}

/* Freezes the parameters that training must not change. */
static inline int model_freeze_constants(model_any *m, gckpt_store *store)
{
    for (int64_t i = 0; i < model_param_count(&m->config); i++) {
        const model_parameter p = model_get_param(&m->config, i);
        char name[MODEL_NAME];
        if (p.constant &&
            gckpt_store_freeze(store, model_store_name(&m->config, name, p.name), 1) != GCKPT_OK)
            return model_fail(m, "%s", gckpt_error_text(store));
    }
    return 0;
}

/* Creates the parameters in the store, matrices only if `matrices` is nonzero. A parameter that the
 * store has already keeps its values. */
static inline int model_declare_all(model_any *m, gckpt_store *store, int matrices)
{
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    for (int64_t i = 0; i < model_param_count(&m->config); i++) {
        model_parameter p = model_get_param(&m->config, i);
        char name[MODEL_NAME];
        if (p.shape.n > 0 && (matrices || p.shape.n != 2))
            gckpt_param(g, model_store_name(&m->config, name, p.name), p.shape, p.init);
    }
    int failed = gckpt_error(g) != GCKPT_OK ? model_fail(m, "%s", gckpt_error_text(g)) : 0;
    gckpt_graph_free(g);
    return failed || model_freeze_constants(m, store) != 0 ? -1 : 0;
}

static inline int model_declare(model_any *m, gckpt_store *store) /* creates all parameters */
{
    return model_declare_all(m, store, 1);
}

/* ---- building the graph ---------------------------------------------------------------------- */
/* Functions by which adapters.h changes the model while a graph is built. Each one may be NULL. */
typedef struct {
    void *user;
    /* number of pairs (key, value) that each layer has before those of the first token */
    int64_t prefix;
    int64_t prompt; /* number of vectors that precede the embedding of the first token */
    /* Changes x (B,T,C), the embeddings of the tokens; positions are added later. */
    gckpt_tensor *(*embedded)(void *user, const model_site *at, gckpt_tensor *x);
    /* Computes a dense layer instead of model_affine. module is its name, such as
     * "h.0.attn.c_attn". */
    gckpt_tensor *(*linear)(void *user, const model_site *at, const char *module, gckpt_tensor *x,
                            gckpt_tensor *w, gckpt_tensor *bias);
    /* Changes the keys and values (B,T,key_heads head_dim) of the tokens. Rotary positions have
     * been applied to the keys; keys and values are cached afterwards. */
    void (*keys_values)(void *user, const model_site *at, gckpt_tensor **k, gckpt_tensor **v);
    /* Changes x (B,T,C), the result of a branch, before it is added to the residual stream. q
     * (B,T,heads head_dim) is the queries in the branch of attention, and NULL in that of the
     * MLP. */
    gckpt_tensor *(*branch)(void *user, const model_site *at, gckpt_tensor *q, gckpt_tensor *x);
    /* called before graphs with caches are built; returns 0, or -1 with m->error */
    int (*prepare)(void *user);
} model_hooks;

struct model_options {
    /* dropout rate of embeddings and of the results of both branches; attention's weights have no
     * dropout */
    double dropout;
    /* If above 0, the graph is for generation, with caches of this many positions. Vectors that
     * hooks put before the tokens are cached once, by a separate graph for which `prime` is nonzero
     * and whose input is prefix + prompt tokens of any value. */
    int64_t capacity;
    int prime;
    const model_hooks *hooks; /* functions that change the model, or NULL */
};

struct model_site { /* the place in the model at which a hook is called */
    const model_config *config;
    const model_options *options;
    int64_t layer; /* index of the block, or -1 outside the blocks */
};

/* Returns the parameter that is called PART + end at this place, such as "attn.c_attn" and
 * ".weight", or NULL if the model does not have it. */
static inline gckpt_tensor *model_param(gckpt_graph *g, const model_site *at, const char *part,
                                        const char *end)
{
    char name[MODEL_NAME];
    model_join(name, model_block_name(at->config, name, at->layer, part), end);
    const int64_t i = model_find_param(at->config, name);
    if (i < 0)
        return NULL;
    const model_parameter p = model_get_param(at->config, i);
    if (p.shape.n == 0)
        return NULL;
    return gckpt_param(g, model_store_name(at->config, name, p.name), p.shape, p.init);
}

/* Returns x times the weights w, whose order of axes depends on the family, plus bias unless it is
 * NULL. */
static inline gckpt_tensor *model_affine(const model_config *c, gckpt_tensor *x, gckpt_tensor *w,
                                         gckpt_tensor *bias)
{
    return c->family->transposed ? gckpt_linear_transposed(x, w, bias) : gckpt_linear(x, w, bias);
}

/* Returns attention of queries (B,T,heads head_dim) to S keys and values (B,S,key_heads head_dim).
 * The attention is causal if `causal` is nonzero. */
static inline gckpt_tensor *model_attention(const model_config *c, gckpt_tensor *q, gckpt_tensor *k,
                                            gckpt_tensor *v, int causal)
{
    const gckpt_attention_desc desc = {
        (int)c->heads, (int)c->key_heads, causal, NULL, 0, 0, 0, NULL, NULL, NULL
    };
    return gckpt_attention(q, k, v, &desc);
}

/* Return the input width and the output width of a dense layer whose weights have the shape w. */
static inline int64_t model_in_features(const model_config *c, gckpt_shape w)
{
    return w.d[c->family->transposed];
}

static inline int64_t model_out_features(const model_config *c, gckpt_shape w)
{
    return w.d[!c->family->transposed];
}

/* Appends dense layer `part` of a block to x; a hook may replace its computation. */
static inline gckpt_tensor *model_linear(const model_site *at, gckpt_tensor *x, const char *part)
{
    char module[MODEL_NAME];
    const model_hooks *hooks = at->options->hooks;
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *w = model_param(g, at, part, ".weight");
    gckpt_tensor *bias = model_param(g, at, part, ".bias");
    model_block_name(at->config, module, at->layer, part);
    x = hooks != NULL && hooks->linear != NULL ? hooks->linear(hooks->user, at, module, x, w, bias)
                                               : model_affine(at->config, x, w, bias);
    return gckpt_name(x, module);
}

/* Applies dropout, and the hook for branches, to the result x of a branch. q is the queries in the
 * branch of attention, and NULL in that of the MLP. */
static inline gckpt_tensor *model_branch(const model_site *at, gckpt_tensor *q, gckpt_tensor *x)
{
    const model_hooks *hooks = at->options->hooks;
    if (at->options->dropout > 0)
        x = gckpt_dropout(x, (float)at->options->dropout);
    return hooks != NULL && hooks->branch != NULL ? hooks->branch(hooks->user, at, q, x) : x;
}

/* Builds the hidden states after the last norm, (B,T,C), from tokens (B,T). If options is NULL, all
 * options are 0. */
static inline gckpt_tensor *model_hidden(const model_any *m, gckpt_tensor *tokens,
                                         const model_options *options)
{
    const model_options none = { 0, 0, 0, NULL };
    return m->config.family->hidden(m, tokens, options != NULL ? options : &none);
}

/* Returns how matrix `name` is stored if matrices are stored as `storage`: with I4, embeddings and
 * the LM head are I8, since their errors reach every token. */
static inline gckpt_storage model_storage_of(const model_config *c, const char *name,
                                             gckpt_storage storage)
{
    const size_t n = strlen(c->family->embeddings);
    const int table = (strncmp(name, c->family->embeddings, n) == 0 && name[n] == '.') ||
                      strncmp(name, "lm_head.", 8) == 0;
    return storage == GCKPT_STORAGE_I4 && table ? GCKPT_STORAGE_I8 : storage;
}

/* Returns the weights (V,C) of the LM head, V the size of the vocabulary. */
static inline gckpt_tensor *model_lm_head(const model_any *m, gckpt_graph *g)
{
    const model_site at = { &m->config, NULL, -1 };
    return model_param(g, &at, m->config.tied ? m->config.family->embeddings : "lm_head",
                       ".weight");
}

/* Returns hidden states times the factor of the logits. */
static inline gckpt_tensor *model_scaled(const model_any *m, gckpt_tensor *hidden)
{
    const double scale = m->config.logit_scale;
    return scale != 0 ? gckpt_scale(hidden, (float)scale) : hidden;
}

/* Returns the mean cross-entropy of hidden (B,T,C) for targets i32 (B,T). Positions with a negative
 * target do not count. */
static inline gckpt_tensor *model_loss(const model_any *m, gckpt_tensor *hidden,
                                       gckpt_tensor *targets)
{
    const gckpt_linear_loss_desc desc = { (float)m->config.logit_cap };
    gckpt_graph *g = gckpt_graph_of(targets);
    return gckpt_linear_cross_entropy(model_scaled(m, hidden), model_lm_head(m, g), targets, &desc);
}

/* Returns the logits (..,V) for hidden states (..,C). */
static inline gckpt_tensor *model_logits(const model_any *m, gckpt_tensor *hidden)
{
    gckpt_graph *g = gckpt_graph_of(hidden);
    const float cap = (float)m->config.logit_cap;
    gckpt_tensor *logits =
        gckpt_linear_transposed(model_scaled(m, hidden), model_lm_head(m, g), NULL);
    return cap > 0 ? gckpt_scale(gckpt_tanh(gckpt_scale(logits, 1 / cap)), cap) : logits;
}

/* ---- files ----------------------------------------------------------------------------------- */
typedef struct {
    /* how weight matrices are stored; if not as F32, they are frozen (gckpt_store_quantise) */
    gckpt_storage storage;
    /* If nonzero, weight matrices stay in the file, which is mapped into memory until model_close:
     * matrices of F32 can be trained, which copies their pages and does not change the file; those
     * of BF16 or F16 are frozen. Vectors are read into memory. Without mmap, or from a GGUF file,
     * all values are read. */
    int map;
    /* modules whose matrices stay F32 and can be trained (see model_is_in_modules), or NULL */
    const char *floats;
    /* If nonzero, each matrix of a GGUF file is stored in the format that is nearest to its type in
     * the file (gguf_storage_of); it is frozen unless that is F32. */
    int as_file;
} model_source;

static inline void encoder_free_tables(model_any *m); /* these are defined in encoder.h */
static inline int encoder_group(model_any *m, gckpt_store *store);

/* Frees memory and unmaps files of model_load. Call it after freeing the store. */
static inline void model_close(model_any *m)
{
    json_free(&m->config_json);
    free(m->query_scales);
    m->query_scales = NULL;
#if MODEL_MMAP
    for (int i = 0; i < m->map_count; i++)
        munmap(m->maps[i].memory, m->maps[i].size);
#endif
    encoder_free_tables(m);
    free(m->maps);
    m->maps = NULL;
    m->map_count = 0;
}

static inline int model_path(model_any *m, char *path, const char *dir, const char *file)
{
    int n = snprintf(path, MODEL_PATH, "%s/%s", dir, file);
    return n >= 0 && n < MODEL_PATH ? 0 : model_fail(m, "%s: the path is too long", dir);
}

/* Reads a size from config.json. Returns `fallback` if the key is absent, but if fallback is 0, the
 * key is required. */
static inline int64_t model_read_size(json *d, const char *key, int64_t fallback)
{
    if (fallback == 0 && json_find_nonnull(d, JSON_ROOT, key) == 0) {
        json_fail(d, 0, "%s is missing: a number from 1 to 16777216", key);
        return 1;
    }
    const int64_t n = json_int(d, JSON_ROOT, key, fallback);
    if (n >= 1 && n <= 1 << 24)
        return n;
    json_mismatch(d, json_find(d, JSON_ROOT, key), "a number from 1 to 16777216");
    return 1; /* an allowed value, because callers divide by the result */
}

/* Returns the activation whose name is value `at` of config.json, or NULL with d->error. */
static inline model_activation model_read_activation(json *d, uint32_t at)
{
    for (int i = 0; i < MODEL_ACTIVATIONS; i++)
        if (json_is(d, at, model_activations[i].name))
            return model_activations[i].op;
    json_mismatch(d, at, "gelu_new, gelu, relu, silu or tanh");
    return NULL;
}

/* Returns whether the token ends a text. */
static inline int model_is_eos(const model_config *c, int32_t token)
{
    const int32_t *p = c->eos;
    while (*p >= 0 && *p != token)
        p++;
    return *p >= 0;
}

/* Adds the value of eos_token_id, a number or a list of numbers, to c->eos. Ignores tokens outside
 * the vocabulary, because configurations of small models often contain those of a large one. */
static inline void model_read_eos(json *d, model_config *c)
{
    const uint32_t all = json_find_nonnull(d, JSON_ROOT, "eos_token_id");
    const int list = json_kind_of(d, all) == JSON_ARRAY;
    int n = 0;
    while (c->eos[n] >= 0)
        n++;
    for (uint32_t at = list ? json_first(d, all) : all; at != 0; at = list ? json_next(d, at) : 0) {
        const int64_t id = json_int_of(d, at);
        if (id < 0 || id >= c->vocabulary || model_is_eos(c, (int32_t)id))
            continue;
        if (n == MODEL_EOS) {
            json_mismatch(d, all, "8 numbers at most");
            return;
        }
        c->eos[n++] = (int32_t)id;
        c->eos[n] = -1;
    }
}

#include "gpt2.h"
#include "llama.h"
#include "encoder.h"

static const model_family *const model_families[] = { &gpt2_family, &llama_family, &neox_family };
enum { MODEL_FAMILIES = sizeof model_families / sizeof model_families[0] };

/* Returns whether `list`, names separated by ", ", contains `name`. */
static inline int model_is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p != NULL; p = strchr(p, ','), p = p != NULL ? p + 2 : NULL)
        if (strcspn(p, ",") == n && strncmp(p, name, n) == 0)
            return 1;
    return 0;
}

/* Returns what to do with a model_type that no family has, or NULL if no advice fits. */
static inline const char *model_type_remedy(const char *type)
{
    static const char *const remedies[][2] = {
        /* part of the type, and the advice */
        { "gemma3n",
          "its predicted streams (AltUp) are not built here: take a Gemma 3 or 4, of type "
          "gemma3_text or gemma4_text" },
        { "gemma4", "it also reads pictures: save its text model in transformers "
                    "(docs/finetuning.md shows how), whose type is gemma4_text" },
        { "gemma3", "it also reads pictures: save its text model in transformers "
                    "(docs/finetuning.md shows how), whose type is gemma3_text" },
        { "mistral3", "it also reads pictures: save its text model in transformers, as "
                      "docs/finetuning.md shows for gemma3; its type is mistral or ministral3" },
        { "moe", "mixtures of experts are not built here: take a dense model of the same family" },
        { "mixtral", "mixtures of experts are not built here: take a mistral" },
        { "deepseek", "mixtures of experts are not built here: take one of DeepSeek's distilled "
                      "models, of type qwen2 or llama" },
        { "gpt_oss",
          "mixtures of experts are not built here: take a dense model, such as a qwen3" },
        { "qwen3_next", "gated delta nets are not built here: take a qwen3 or qwen3_5_text" },
        { "qwen3_5", "it also reads pictures: save its text model in transformers, as "
                     "docs/finetuning.md shows for gemma3; its type is qwen3_5_text" },
        { "mamba", "state-space layers are not built here: take a llama" },
        { "olmo", "take an OLMo 2, of type olmo2" },
        { "phi", "take a Phi-3, 3.5 or 4-mini, of type phi3" },
        { "chatglm", "take the model of the same name that ends in -hf, of type glm or glm4" },
        { "bert", "this encoder is not built here: take a bert, such as BGE or MiniLM, a roberta, "
                  "xlm-roberta, distilbert or modernbert" },
        { "_vl", "it also reads pictures: take the family's text model" },
    };
    for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++)
        if (strstr(type, remedies[i][0]) != NULL)
            return remedies[i][1];
    return NULL;
}

/* Returns the family for the model_type in config.json, and GPT-2's if that key is absent, as in
 * its old files. Returns NULL with d->error for a type that is unknown or has no such task. */
static inline const model_family *model_family_of(json *d, model_task task)
{
    const uint32_t type = json_find_nonnull(d, JSON_ROOT, "model_type");
    const char *name = type ? json_text(d, type) : "gpt2";
    char all[512] = "";
    size_t n = 0;
    for (int i = 0; i < MODEL_FAMILIES; i++) {
        if (model_is_listed(model_families[i]->model_types, name))
            return model_families[i];
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i > 0 ? ", " : "",
                              model_families[i]->model_types);
    }
    for (int i = 0; i < ENCODER_FAMILIES; i++) {
        if (task != MODEL_NEXT_TOKEN)
            n += (size_t)snprintf(all + n, sizeof all - n, ", %s", encoder_families[i].model_types);
        if (strcmp(encoder_families[i].model_types, name) != 0)
            continue;
        if (task != MODEL_NEXT_TOKEN)
            return &encoder_families[i];
        json_fail(d, 0,
                  "model_type %s is an encoder, which cannot continue a text: train it as a "
                  "classifier or for embeddings (build/classify)",
                  name);
        return NULL;
    }
    if (type != 0 && model_type_remedy(name) != NULL)
        json_fail(d, d->nodes[type].line, "model_type %.40s is none of %s: %s", name, all,
                  model_type_remedy(name));
    json_mismatch(d, type, all);
    return NULL;
}

static inline int model_has_file(model_any *m, char *path, const char *dir, const char *file)
{
    return model_path(m, path, dir, file) == 0 && json_file_exists(path);
}

/* Adds the end-of-text tokens in DIR/generation_config.json, if that file exists, to those of the
 * model. */
static inline int model_read_generation(model_any *m, const char *dir)
{
    char path[MODEL_PATH];
    json d;
    if (!model_has_file(m, path, dir, "generation_config.json"))
        return 0;
    if (json_read_file(&d, path) == 0)
        model_read_eos(&d, &m->config);
    json_free(&d);
    return d.error[0] ? model_fail(m, "%s", d.error) : 0;
}

/* Returns the end of an error text for a folder without config.json: which other file of a model
 * the folder has, and how to convert that file; or "". */
static inline const char *model_format_hint(model_any *m, const char *dir)
{
    static const char *const files[][2] = {
        { "adapter_config.json",
          "; adapter_config.json says that it is an adapter: give its base model as the model, and "
          "this folder as the adapter" },
        { "consolidated.safetensors",
          "; consolidated.safetensors is in Mistral's own format: take the same model in Hugging "
          "Face's, with config.json and model.safetensors" },
        { "consolidated.00.pth",
          "; consolidated.00.pth is in Meta's own format: take the same model in Hugging Face's, "
          "with config.json and model.safetensors" },
        { "pytorch_model.bin",
          "; pytorch_model.bin is a pickle, which is not read: in Python, load the model with "
          "transformers, then save_pretrained writes model.safetensors" },
        { "pytorch_model.bin.index.json",
          "; pytorch_model.bin.index.json lists pickles, which are not read: in Python, load the "
          "model with transformers, then save_pretrained writes model.safetensors" },
    };
    char path[MODEL_PATH];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (model_has_file(m, path, dir, files[i][0]))
            return files[i][1];
    return "";
}

static inline int gguf_is_file(const char *path); /* defined in gguf_model.h */
static inline int gguf_read_config(model_any *m, const char *path);

/* Returns an error for keys of config.json that transformers applies to every type of model and
 * that this file does not support. */
static inline void model_refuse_keys(json *d)
{
    const uint32_t causal = json_find(d, JSON_ROOT, "is_causal");
    const uint32_t layers = json_find_nonnull(d, JSON_ROOT, "per_layer_config");
    const uint32_t file = json_find_nonnull(d, JSON_ROOT, "transformers_weights");
    const uint32_t quantised = json_find_nonnull(d, JSON_ROOT, "quantization_config");
    const uint32_t method = json_find_nonnull(d, quantised, "quant_method");
    if (causal != 0 && json_kind_of(d, causal) != JSON_TRUE)
        json_mismatch(d, causal, "true: models whose tokens see later tokens are not built here");
    if (json_size(d, layers) > 0 &&
        !json_is(d, json_find(d, JSON_ROOT, "model_type"), "gemma4_text"))
        json_mismatch(d, layers, "null: layers of different sizes are not built here");
    if (file != 0)
        json_mismatch(d, file, "null: the weights are read from model.safetensors, or its shards");
    if (quantised != 0)
        json_fail(d, d->nodes[quantised].line,
                  "quantization_config: expected weights that are not quantised, found "
                  "weights of %.40s: take the original model, whose matrices can be stored as "
                  "int8 or int4 here, or a GGUF file of it",
                  json_kind_of(d, method) == JSON_STRING ? json_text(d, method)
                                                         : "a method without a name");
}

/* Reads the classes of a classifier from config.json: their number, if it is not given; and the
 * token that pads rows, or the end of a text if it is not given. */
static inline void model_read_head(json *d, model_config *c)
{
    model_head *head = &c->head;
    const uint32_t names = json_find_nonnull(d, JSON_ROOT, "id2label");
    const int32_t end = c->eos[0] >= 0 ? c->eos[0] : 0;
    head->padding = (int32_t)json_int(d, JSON_ROOT, "pad_token_id",
                                      encoder_is_family(c->family) ? encoder_padding(c) : end);
    if (head->padding < 0 || head->padding >= c->vocabulary)
        json_mismatch(d, json_find(d, JSON_ROOT, "pad_token_id"), "a token of the vocabulary");
    if (head->labels == 0 && head->task != MODEL_EMBED)
        head->labels = names != 0 ? json_size(d, names) : 2;
    if ((head->labels < 1 || head->labels > 1 << 20) && head->task != MODEL_EMBED)
        json_mismatch(d, names, "1 to 1048576 classes");
}

/* Reads DIR/config.json or, if `dir` is a GGUF file, its keys, or, if it ends with .json, that file.
 * Absent keys have the defaults of transformers. `head` NULL means a language model. model_close
 * frees the memory. */
static inline int model_read_config_for(model_any *m, const char *dir, const model_head *head)
{
    char path[MODEL_PATH];
    json *d = &m->config_json;
    memset(m, 0, sizeof *m);
    m->config.eos[0] = -1;
    if (head != NULL)
        m->config.head = *head;
    const size_t n = strlen(dir);
    const int alone = n > 5 && strcmp(dir + n - 5, ".json") == 0;
    if (model_path(m, path, dir, alone ? "" : "config.json") != 0)
        return -1;
    path[n] = alone ? 0 : path[n]; /* the file itself, without the slash */
    const int keys = gguf_is_file(dir),
              none = !keys && !alone && !model_has_file(m, path, dir, "config.json");
    if ((keys ? gguf_read_config(m, dir) : json_read_file(d, path)) == 0) {
        model_config *c = &m->config;
        if (json_kind_of(d, JSON_ROOT) != JSON_OBJECT)
            json_mismatch(d, JSON_ROOT, "an object");
        model_refuse_keys(d);
        if (d->error[0] == 0)
            c->family = model_family_of(d, c->head.task);
        if (c->family != NULL) {
            c->family->read_config(m);
            c->init_range = json_real(d, JSON_ROOT, "initializer_range", 0.02);
            model_read_eos(d, c);
            if (c->head.task != MODEL_NEXT_TOKEN && c->llama.row != NULL && c->llama.row->gemma == 4)
                json_fail(d, 0,
                          "model_type %s: classifiers of Gemma 4 are not built here, as transformers "
                          "has none: take a Gemma 3, of type gemma3_text, or a qwen3",
                          c->type);
            else if (c->head.task != MODEL_NEXT_TOKEN)
                model_read_head(d, c);
        }
        if (c->layers > 10000)
            json_fail(d, 0, "%lld layers: 10000 at most", (long long)c->layers);
    }
    /* name for later errors, because `path` ends with this function */
    d->name = keys ? "the file's keys" : "config.json";
    if (d->error[0] == 0 && model_read_generation(m, dir) == 0)
        return 0;
    if (d->error[0] != 0)
        model_fail(m, "%s%s", d->error, none ? model_format_hint(m, dir) : "");
    json_free(d);
    return -1;
}

static inline int model_read_config(model_any *m, const char *dir)
{
    return model_read_config_for(m, dir, NULL);
}

/* ---- headers of safetensors ------------------------------------------------------------------ */
/* A tensor of a safetensors file. Its type is one that gguf_read_floats can read; F64 stands for
 * all other types. */
typedef struct {
    char path[MODEL_PATH]; /* file that has the tensor, or "" if no file has it */
    gguf_tensor values;
} model_tensor;

/* Parses the header of a safetensors file into d, and sets *data to the offset of the values.
 * Returns -1 if the header cannot be read; loading the file will report that error. Call json_free
 * in both cases. */
static inline int model_read_header(const char *path, json *d, uint64_t *data)
{
    unsigned char size[8] = { 0 };
    gguf g; /* used because gguf_read_bytes reads at offsets above 2 GB */
    memset(&g, 0, sizeof g);
    json_init(d, path);
    g.file = fopen(path, "rb");
    g.size = g.file != NULL ? gguf_file_size(&g) : 0;
    int good = gguf_read_bytes(&g, 0, size, 8) == 0;
    const uint64_t n = gguf_read_le(size, 8);
    /* the limit that safetensors has for headers */
    good = good && n <= 100000000 && n <= g.size - 8;
    d->owned = good ? (char *)malloc((size_t)n + 1) : NULL;
    good = d->owned != NULL && gguf_read_bytes(&g, 8, d->owned, (size_t)n) == 0;
    gguf_close(&g);
    if (!good)
        return -1;
    d->owned[n] = 0;
    *data = 8 + n;
    return json_parse(d, d->owned, (size_t)n);
}

/* Fills *t from `at`, the entry of a tensor in the header d of a safetensors file. */
static inline void model_describe(json *d, uint32_t at, uint64_t data, const char *path,
                                  model_tensor *t)
{
    const uint32_t type = json_find(d, at, "dtype");
    uint32_t axis = json_first(d, json_find(d, at, "shape"));
    memset(t, 0, sizeof *t);
    snprintf(t->path, sizeof t->path, "%s", path);
    t->values.type = json_is(d, type, "F32")    ? GGUF_T_F32
                     : json_is(d, type, "F16")  ? GGUF_T_F16
                     : json_is(d, type, "BF16") ? GGUF_T_BF16
                                                : GGUF_T_F64;
    t->values.name = "";
    t->values.elements = 1;
    for (int i = 0; i < 2 && axis != 0; i++, axis = json_next(d, axis)) {
        const int64_t n = json_int_of(d, axis);
        /* 0 for other sizes, which loading will refuse */
        t->values.d[i] = n >= 0 && n <= 1 << 30 ? n : 0;
        t->values.elements *= t->values.d[i];
    }
    t->values.offset =
        data + (uint64_t)json_int_of(d, json_first(d, json_find(d, at, "data_offsets")));
}

/* Returns whether two tensors have the same shape and the same values, even if their types
 * differ. */
static inline int model_same_values(const model_tensor *a, const model_tensor *b)
{
    enum { SOME = 1024 };
    const model_tensor *const both[] = { a, b };
    float x[2][SOME];
    gguf files[2];
    int same = memcmp(a->values.d, b->values.d, sizeof a->values.d) == 0;
    memset(files, 0, sizeof files);
    for (int i = 0; i < 2; i++) {
        files[i].file = fopen(both[i]->path, "rb");
        files[i].size = files[i].file != NULL ? gguf_file_size(&files[i]) : 0;
    }
    for (int64_t at = 0, n; same && at < a->values.elements; at += n) {
        n = a->values.elements - at < SOME ? a->values.elements - at : (int64_t)SOME;
        for (int i = 0; i < 2 && same; i++)
            same = gguf_read_floats(&files[i], &both[i]->values, at, n, x[i]) == 0;
        for (int64_t i = 0; i < n && same; i++)
            same = x[0][i] == x[1][i];
    }
    gguf_close(&files[0]);
    gguf_close(&files[1]);
    return same;
}

typedef struct {
    model_any *model;
    gckpt_store *store;
    int map;
    double bytes;         /* bytes of all files together */
    unsigned char *found; /* for each parameter, 1 if one of the files has it */
    char unknown[MODEL_NAME], store_name[MODEL_NAME], bare_name[MODEL_NAME];
    /* the embedding table and lm_head.weight as the files have them, if config.json says they are
     * one tensor */
    model_tensor table, head;
    /* [0]: name of a tensor in the file, [1]: another name under which to load it; or both NULL */
    const char *shared[2];
} model_loader;

/* Returns a tensor's name without the family's prefix, such as "transformer.", and the LM head's as
 * "lm_head.weight". */
static inline const char *model_bare_name(const model_config *c, const char *name)
{
    const size_t n = strlen(c->family->prefix);
    if (strcmp(name, c->family->head) == 0)
        return "lm_head.weight";
    return name + (strncmp(name, c->family->prefix, n) == 0 ? n : 0);
}

/* A gckpt_file_desc.rename for loading: converts the name of a file's tensor to that of the
 * parameter in the store. Returns NULL for a tensor to skip. */
static inline const char *model_load_name(void *user, const char *name)
{
    model_loader *l = (model_loader *)user;
    const model_config *c = &l->model->config;
    if (c->family->is_skipped != NULL && c->family->is_skipped(name))
        return NULL;
    if (c->head.task != MODEL_NEXT_TOKEN && encoder_is_skipped(c, name))
        return NULL;
    if (l->shared[0] != NULL && strcmp(name, l->shared[0]) != 0)
        return NULL;
    name = model_bare_name(c, l->shared[0] != NULL ? l->shared[1] : name);
    if (c->tied && strcmp(name, "lm_head.weight") == 0) {
        if (l->table.path[0] != 0)
            /* skips this tensor: model_resolve_head has found that its values equal those of the
             * other table */
            return NULL;
        name = model_join(l->bare_name, c->family->embeddings, ".weight");
    }
    const int64_t i = model_find_param(c, name);
    if (i < 0) {
        if (l->unknown[0] == 0)
            snprintf(l->unknown, sizeof l->unknown, "%s", name);
        return NULL;
    }
    l->found[i] = 1;
    return c->name_prefix != NULL ? model_store_name(c, l->store_name, name) : name;
}

#include "gguf_model.h"

/* Maps a file into memory until model_close. Returns its bytes, or NULL with m->error. Must not be
 * called without MODEL_MMAP. */
static inline void *model_map_file(model_any *m, const char *path, size_t *size)
{
#if MODEL_MMAP
    struct stat info;
    void *memory = MAP_FAILED;
    const int file = open(path, O_RDONLY);
    const int known = file >= 0 && fstat(file, &info) == 0 && info.st_size > 0;
    model_mapping *maps =
        (model_mapping *)realloc(m->maps, (size_t)(m->map_count + 1) * sizeof *maps);
    m->maps = maps != NULL ? maps : m->maps;
    if (known && maps != NULL && (uintmax_t)info.st_size <= SIZE_MAX)
        memory = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MODEL_NORESERVE, file, 0);
    if (memory == MAP_FAILED)
        model_fail(m, "%s: cannot be mapped: %s", path, strerror(errno));
    if (file >= 0)
        close(file);
    if (memory == MAP_FAILED)
        return NULL;
    m->maps[m->map_count].memory = memory;
    m->maps[m->map_count++].size = *size = (size_t)info.st_size;
    return memory;
#else
    (void)m, (void)path, (void)size;
    return NULL;
#endif
}

/* Returns the end of an error text: a reason why the files do not match config.json; or "". */
static inline const char *model_type_hint(model_any *m)
{
    return json_find_nonnull(&m->config_json, JSON_ROOT, "model_type") != 0
               ? ""
               : "; config.json has no model_type, so it is read as GPT-2's";
}

/* Adds the size of file DIR/NAME to l->bytes. An unreadable file adds 0; loading will report that
 * error. */
static inline int model_count_bytes(model_loader *l, const char *dir, const char *name)
{
    char path[MODEL_PATH];
    gguf g; /* used because gguf_file_size handles sizes above 2 GB */
    memset(&g, 0, sizeof g);
    if (model_path(l->model, path, dir, name) != 0)
        return -1;
    g.file = fopen(path, "rb");
    if (g.file != NULL)
        l->bytes += (double)gguf_file_size(&g);
    gguf_close(&g);
    return 0;
}

/* Calls `visit` for DIR/model.safetensors or, if there is no such file, for each file that is
 * listed in DIR/model.safetensors.index.json. */
static inline int model_visit_files(model_loader *l, const char *dir,
                                    int (*visit)(model_loader *l, const char *dir,
                                                 const char *name))
{
    char path[MODEL_PATH];
    json d;
    if (model_has_file(l->model, path, dir, "model.safetensors"))
        return visit(l, dir, "model.safetensors");
    if (!model_has_file(l->model, path, dir, "model.safetensors.index.json"))
        return model_fail(l->model,
                          "%s: no weights: expected model.safetensors, or "
                          "model.safetensors.index.json and the shards that it names%s",
                          dir, model_format_hint(l->model, dir));
    int failed = 0;
    if (json_read_file(&d, path) == 0) {
        uint32_t all = json_require(&d, JSON_ROOT, "weight_map", JSON_OBJECT);
        for (uint32_t k = json_first(&d, all); k != 0 && !failed; k = json_next(&d, k)) {
            const char *name = json_text(&d, k + 1);
            int repeated = 0;
            for (uint32_t i = json_first(&d, all); i != k && !repeated; i = json_next(&d, i))
                repeated = json_is(&d, i + 1, name);
            if (repeated || d.error[0] != 0)
                continue;
            failed = strpbrk(name, "/\\") != NULL
                         ? model_fail(l->model,
                                      "%s: \"%s\": expected the name of a file in the same folder",
                                      dir, name)
                         : visit(l, dir, name);
        }
    }
    json_free(&d);
    return d.error[0] ? model_fail(l->model, "%s", d.error) : failed;
}

/* Returns the end of an error text: a reason why a file has an unexpected tensor of this name; or
 * "". */
static inline const char *model_tensor_hint(const char *name)
{
    static const struct {
        const char *part, *says;
    } causes[] = {
        { "module.", "; names that begin with module. come from a model that was saved inside "
                     "DataParallel or DistributedDataParallel: save model.module" },
        { "_orig_mod.", "; names with _orig_mod. come from a model that torch.compile made: save "
                        "model._orig_mod" },
        { "_fsdp_wrapped_module.", "; the model was saved inside FSDP: save its full state_dict" },
        { "base_model.model.", "; these are the weights of a peft model: call merge_and_unload() "
                               "before save_pretrained, or take the base model and the adapter" },
        { "language_model.", "; this is a model of pictures or sounds: save its language model" },
        { "score.",
          "; the folder is a classifier's (ForSequenceClassification), and language models "
          "are trained here: take the model that it was made from" },
        { "classifier.", "; the folder is a classifier's, and language models are trained here: "
                         "take the model that it was made from" },
        { "qa_outputs.", "; the folder is a question answering model's (ForQuestionAnswering), and "
                         "language models are trained here: take the model that it was made from" },
        { "v_head.", "; the model has a value head (TRL's): save it without, as pretrained_model" },
    };
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        const char *at = strstr(name, causes[i].part);
        if (at != NULL && (at == name || at[-1] == '.'))
            return causes[i].says;
    }
    return "";
}

/* Loads the tensors of a file. If l->shared[0] is set, loads only that tensor, as l->shared[1]. */
static inline int model_load_tensors(model_loader *l, const char *path)
{
    gckpt_store *store = l->store;
    gckpt_file_desc desc;
    gckpt_result result;
    memset(&desc, 0, sizeof desc);
    desc.rename = model_load_name;
    desc.user = l;
    desc.values_only = desc.partial = desc.writable = 1;
    if (l->map) {
        size_t size = 0;
        const void *memory = model_map_file(l->model, path, &size);
        if (memory == NULL)
            return -1;
        result = gckpt_store_map(store, memory, size, &desc);
    } else {
        result = gckpt_store_load(store, path, &desc);
    }
    if (result != GCKPT_OK && result != GCKPT_OTHER_CONTRACT)
        return model_fail(l->model, "%s: %s", path, gckpt_error_text(store));
    return 0;
}

/* Loads one file of the model. If its metadata maps a name to the name of another tensor, the two
 * tensors share memory and only the second one is in the file (safetensors.torch.save_model writes
 * {"a": "b"} if a is stored as b): then also loads that tensor under the first name. */
static inline int model_load_file(model_loader *l, const char *dir, const char *name)
{
    const model_config *c = &l->model->config;
    char path[MODEL_PATH];
    uint64_t data;
    json d;
    if (model_path(l->model, path, dir, name) != 0 || model_load_tensors(l, path) != 0)
        return -1;
    if (l->unknown[0] != 0) {
        const char *cause = model_tensor_hint(l->unknown);
        return model_fail(l->model, "%s: tensor \"%s\" does not belong to a %s of %lld layers%s%s",
                          path, l->unknown, c->family->name, (long long)c->layers,
                          *cause != 0 ? ""
                          : c->tied   ? ""
                                      : " with a separate head",
                          *cause != 0 ? cause : model_type_hint(l->model));
    }
    int failed = 0;
    const uint32_t notes =
        model_read_header(path, &d, &data) == 0 ? json_find(&d, JSON_ROOT, "__metadata__") : 0;
    if (json_size(&d, notes) > MODEL_NOTES)
        failed = model_fail(l->model, "%s: its __metadata__ has %lu keys: %d at most are read",
                            path, (unsigned long)json_size(&d, notes), MODEL_NOTES);
    for (uint32_t k = json_first(&d, notes); k != 0 && !failed; k = json_next(&d, k)) {
        const char *from = json_kind_of(&d, k + 1) == JSON_STRING ? json_text(&d, k + 1) : "";
        const int64_t i = model_find_param(c, model_bare_name(c, json_text(&d, k)));
        if (i < 0 || l->found[i] || json_find(&d, JSON_ROOT, from) == 0)
            continue;
        l->shared[0] = from;
        l->shared[1] = json_text(&d, k);
        failed = model_load_tensors(l, path);
        l->shared[0] = NULL;
    }
    json_free(&d);
    return failed;
}

/* Sets l->table and l->head if this file has the embedding table or lm_head.weight. */
static inline int model_find_head(model_loader *l, const char *dir, const char *name)
{
    const model_config *c = &l->model->config;
    char path[MODEL_PATH], table[MODEL_NAME];
    uint64_t data;
    json d;
    if (model_path(l->model, path, dir, name) != 0)
        return -1;
    model_join(table, c->family->embeddings, ".weight");
    if (model_read_header(path, &d, &data) == 0)
        for (uint32_t k = json_first(&d, JSON_ROOT); k != 0; k = json_next(&d, k)) {
            const char *tensor = model_bare_name(c, json_text(&d, k));
            if (strcmp(tensor, table) == 0)
                model_describe(&d, k + 1, data, path, &l->table);
            else if (strcmp(tensor, "lm_head.weight") == 0)
                model_describe(&d, k + 1, data, path, &l->head);
        }
    json_free(&d);
    return 0;
}

/* If config.json says that the LM head is the embedding table, decides, like transformers, whether
 * this is true of the files. If the files have only one of the two tensors, it serves as both. If
 * they have both with different values, the head becomes a separate table, and m->note reports
 * it. */
static inline int model_resolve_head(model_loader *l, const char *dir)
{
    model_any *m = l->model;
    if (!m->config.tied)
        return 0;
    if (model_visit_files(l, dir, model_find_head) != 0)
        return -1;
    if (l->head.path[0] == 0 || l->table.path[0] == 0 || model_same_values(&l->head, &l->table))
        return 0;
    m->config.tied = 0;
    snprintf(m->note, sizeof m->note,
             "%s: lm_head.weight differs from %s.weight, which config.json ties it to: the head is "
             "a separate table, as in transformers, and is saved so (tie_word_embeddings false)",
             dir, m->config.family->embeddings);
    return 0;
}

/* Compares the model's size with that of the files before memory is allocated: returns an error if
 * config.json describes a much larger model. If only a few weights are missing, loading reports
 * their names. */
static inline int model_check_bytes(model_loader *l, const char *dir)
{
    const model_config *c = &l->model->config;
    double weights = 0;
    if (model_visit_files(l, dir, model_count_bytes) != 0)
        return -1;
    for (int64_t i = 0; i < model_param_count(c); i++) {
        const gckpt_shape s = model_get_param(c, i).shape;
        weights += (double)s.d[0] * (s.n > 1 ? (double)s.d[1] : 1);
    }
    if (weights <= l->bytes + (1 << 22))
        return 0;
    return model_fail(l->model,
                      "%s: config.json describes %.0f weights, but the files have %.0f bytes%s",
                      dir, weights, l->bytes, model_type_hint(l->model));
}

/* Freezes the weight matrices and sets their storage (model_storage_of), except those of the modules
 * in `floats`, which may be NULL. Best called before they have values, since then no second copy is
 * needed. */
static inline int model_quantise_except(model_any *m, gckpt_store *store, gckpt_storage storage,
                                        const char *floats)
{
    for (int64_t i = 0; i < model_param_count(&m->config); i++) {
        const model_parameter p = model_get_param(&m->config, i);
        char name[MODEL_NAME];
        if (floats != NULL && model_is_in_modules(&m->config, floats, p.name))
            continue;
        model_store_name(&m->config, name, p.name);
        if (p.shape.n == 2 && (gckpt_store_freeze(store, name, 1) != GCKPT_OK ||
                               gckpt_store_quantise(store, name, model_storage_of(&m->config, p.name, storage)) !=
                                   GCKPT_OK))
            return model_fail(m, "%s", gckpt_error_text(store));
    }
    return 0;
}

static inline int model_quantise(model_any *m, gckpt_store *store, gckpt_storage storage)
{
    return model_quantise_except(m, store, storage, NULL);
}

/* Like model_load, but each parameter's name in the store is preceded by `prefix`, a constant text
 * or NULL, so that one store and one graph can have two models; and with the head of a classifier
 * unless `head` is NULL. If the files do not have that head, it keeps its initial values, and
 * m->note says so. */
static inline int model_load_head(model_any *m, gckpt_store *store, const char *dir,
                                  const model_source *source, const char *prefix,
                                  const model_head *head)
{
    model_source none;
    memset(&none, 0, sizeof none);
    source = source != NULL ? source : &none;
    if (model_read_config_for(m, dir, head) != 0)
        return -1;
    m->config.name_prefix = prefix;
    const int keys = gguf_is_file(dir);
    const int map = !keys && source->map && source->storage == GCKPT_STORAGE_F32 && MODEL_MMAP;
    model_loader l;
    memset(&l, 0, sizeof l);
    l.model = m;
    l.store = store;
    l.map = map;
    if (!keys && model_resolve_head(&l, dir) != 0)
        return -1;
    const int64_t n = model_param_count(&m->config);
    l.found = (unsigned char *)calloc((size_t)n, 1);
    if (l.found == NULL)
        return model_fail(m, "%s: out of memory", dir);
    int failed =
        keys ? gguf_load(&l, store, dir, source)
             : model_check_bytes(&l, dir) != 0 || model_declare_all(m, store, !map) != 0 ||
                   (source->storage != GCKPT_STORAGE_F32 &&
                    model_quantise_except(m, store, source->storage, source->floats) != 0) ||
                   model_visit_files(&l, dir, model_load_file) != 0;
    for (int64_t i = 0; i < n && !failed; i++) {
        const model_parameter p = model_get_param(&m->config, i);
        if (!l.found[i] && encoder_is_head(&m->config, i)) {
            if (p.shape.n > 0 && m->config.head.task != MODEL_EMBED)
                snprintf(m->note, sizeof m->note, "%s is new, with random values: train it",
                         p.name);
        } else if (!l.found[i] && p.shape.n > 0)
            failed = model_fail(m, "%s: no file has tensor \"%s\", (%lld%s%.0lld) by config.json",
                                dir, p.name, (long long)p.shape.d[0], p.shape.n > 1 ? "," : "",
                                (long long)p.shape.d[1]);
    }
    free(l.found);
    return failed || (map && model_declare(m, store) != 0) || encoder_group(m, store) != 0
               ? -1
               /* matrices are mapped later: declaring
                                                            * them now checks their shapes */
               : 0;
}

static inline int model_load_prefixed(model_any *m, gckpt_store *store, const char *dir,
                                      const model_source *source, const char *prefix)
{
    return model_load_head(m, store, dir, source, prefix, NULL);
}

/* Reads a model from a folder or a GGUF file into a store, which must not have any of its
 * parameters yet. If source is NULL, all its fields are 0. After an error, free the store, then
 * call model_close. */
static inline int model_load(model_any *m, gckpt_store *store, const char *dir,
                             const model_source *source)
{
    return model_load_prefixed(m, store, dir, source, NULL);
}

typedef struct {
    const model_any *model;
    char name[MODEL_NAME + 16];
} model_saver;

/* A gckpt_file_desc.rename for saving: converts a parameter's name to that in files of
 * transformers' causal models. Returns NULL for other parameters, which are not saved. */
static inline const char *model_save_name(void *user, const char *name)
{
    model_saver *s = (model_saver *)user;
    const model_config *c = &s->model->config;
    if (model_find_param(c, name) < 0)
        return NULL;
    const int head = strcmp(name, "lm_head.weight") == 0;
    snprintf(s->name, sizeof s->name, "%s%s", head ? "" : model_file_prefix(c, name),
             head ? c->family->head : name);
    return s->name;
}

/* Creates a folder unless it exists already. */
static inline int model_make_folder(model_any *m, const char *dir)
{
#if MODEL_MMAP
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return model_fail(m, "%s: %s", dir, strerror(errno));
#endif
    return (void)m, (void)dir, 0;
}

/* Opens a temporary file that will replace DIR/NAME; model_commit_file renames it. Writes its
 * temporary name to `path`. Returns NULL with m->error on failure. */
static inline FILE *model_begin_file(model_any *m, char *path, const char *dir, const char *name)
{
    char file[MODEL_NAME];
    if (model_path(m, path, dir, model_join(file, name, ".tmp")) != 0)
        return NULL;
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        model_fail(m, "%s: %s", path, strerror(errno));
    return f;
}

/* Writes the cached data of a file or folder to the disk, so that it survives a power cut. Returns
 * 0 on failure; returns 1 after success and on systems without fsync. */
static inline int model_sync(const char *path)
{
#if MODEL_MMAP
    const int file = open(path, O_RDONLY);
    const int synced = file >= 0 && (fsync(file) == 0 || errno == EINVAL);
    if (file >= 0)
        close(file);
    return synced;
#else
    return (void)path, 1;
#endif
}

/* Returns the end of an error text of a failed save: that the older file `path` is unchanged or, if
 * there is no older file, that no file of this name exists. */
static inline const char *model_save_hint(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return "no file of this name exists";
    fclose(f);
    return "the older file is unchanged";
}

/* Flushes and closes the temporary file `path`. If that fails, removes the file and returns -1. */
static inline int model_close_file(model_any *m, FILE *f, const char *path)
{
    const int written = ferror(f) == 0;
    char to[MODEL_PATH];
    if (fclose(f) == 0 && written && model_sync(path))
        return 0;
    const int error = errno;
    snprintf(to, sizeof to, "%.*s", (int)(strlen(path) - strlen(".tmp")), path);
    model_fail(m, "%s: %s; %s", to, strerror(error), model_save_hint(to));
    remove(path);
    return -1;
}

/* Closes a JSON file like model_close_file. If the file is not valid JSON, for example because a
 * number is not finite, removes it and returns -1. */
static inline int model_close_json(model_any *m, FILE *f, const char *path)
{
    json d;
    if (model_close_file(m, f, path) != 0)
        return -1;
    const int failed = json_read_file(&d, path) != 0;
    if (failed) {
        model_fail(m, "not written, because it would not be JSON (is a number not finite?): %s",
                   d.error);
        remove(path);
    }
    json_free(&d);
    return failed ? -1 : 0;
}

/* Keeps the file that a rename will replace open, and returns its descriptor. FAT frees the
 * clusters of a replaced file at once unless the file is open, while the name on the disk still
 * refers to them. Returns -1 on other file systems. */
static inline int model_keep_open(const char *path)
{
#ifdef __linux__
    struct statfs s;
    return statfs(path, &s) == 0 && s.f_type == 0x4d44 ? open(path, O_RDONLY) : -1;
#else
    return (void)path, -1;
#endif
}

/* Renames the closed temporary file `path` to its final name. */
static inline int model_commit_file(model_any *m, const char *path)
{
    char to[MODEL_PATH], folder[MODEL_PATH];
    char *slash;
    snprintf(to, sizeof to, "%.*s", (int)(strlen(path) - strlen(".tmp")), path);
    const int kept_open = model_keep_open(to), failed = rename(path, to);
    if (failed) {
        const int error = errno;
        model_fail(m, "%s: %s; %s", to, strerror(error), model_save_hint(to));
        remove(path);
    } else { /* writes the new name and, for FAT, the file's clusters to the disk */
        snprintf(folder, sizeof folder, "%s", to);
        slash = strrchr(folder, '/');
        memcpy(slash != NULL ? slash + 1 : folder, ".", 2);
        model_sync(folder);
        model_sync(to);
    }
#if MODEL_MMAP
    if (kept_open >= 0)
        close(kept_open);
#endif
    return (void)kept_open, failed ? -1 : 0;
}

static inline int model_end_file(model_any *m, FILE *f, const char *path)
{
    return model_close_file(m, f, path) != 0 ? -1 : model_commit_file(m, path);
}

/* Writes the weights to DIR/NAME, then renames `path`, a closed temporary file that describes them,
 * to its final name. Both files replace older ones only after both are written, so a full disk
 * leaves the older files unchanged. */
static inline int model_save_weights(model_any *m, gckpt_store *store, const char *dir,
                                     const char *name, const gckpt_file_desc *desc,
                                     const char *path)
{
    char file[MODEL_NAME], weights[MODEL_PATH];
    if (model_path(m, weights, dir, model_join(file, name, ".tmp")) != 0) {
        remove(path);
        return -1;
    }
    if (gckpt_store_save(store, weights, desc) != GCKPT_OK) {
        remove(path);
        /* its last sentence says that the older file is unchanged and where the temporary one is */
        const char *text = gckpt_error_text(store);
        const char *kept = model_path(m, weights, dir, name) == 0 ? model_save_hint(weights) : "";
        return model_fail(m, "%s: %.*s; %s", weights, (int)strcspn(text, "?"), text, kept);
    }
    if (model_commit_file(m, path) == 0)
        return model_commit_file(m, weights);
    remove(weights);
    return -1;
}

/* Writes the class of transformers for the model and its head: GPT2ForSequenceClassification for
 * the family's GPT2LMHeadModel. */
static inline void model_write_architecture(const model_config *c, FILE *f)
{
    const char *name = c->family->architecture(c), *end = strstr(name, "ForCausalLM");
    if (end == NULL)
        end = strstr(name, "LMHeadModel");
    if (model_has_score(c) && end != NULL)
        fprintf(f, "%.*s%sForSequenceClassification", (int)(end - name), name,
                strcmp(c->type, "gemma3_text") == 0 || strcmp(c->type, "qwen3_5_text") == 0 ? "Text"
                                                                                            : "");
    else
        fputs(name, f);
}

/* Writes the names of the classes, and the token that pads rows. */
static inline void model_write_labels(const model_head *head, FILE *f)
{
    for (int back = 0; back < 2; back++) {
        fprintf(f, ",\n  \"%s\": {", back ? "label2id" : "id2label");
        for (int64_t i = 0; i < head->labels; i++) {
            fprintf(f, "%s\n    ", i > 0 ? "," : "");
            if (!back)
                fprintf(f, "\"%lld\": ", (long long)i);
            json_write_string(f, head->names[i], strlen(head->names[i]));
            if (back)
                fprintf(f, ": %lld", (long long)i);
        }
        fputs("\n  }", f);
    }
    fprintf(f, ",\n  \"pad_token_id\": %d", (int)head->padding);
}

/* Writes config.json: first the keys that can change, then all other keys as they were read,
 * including unknown ones. */
static inline void model_write_config(const model_any *m, FILE *f, const char *type)
{
    static const char ours[] = " architectures model_type tie_word_embeddings torch_dtype dtype ";
    static const char labels[] = " id2label label2id num_labels problem_type pad_token_id ";
    const json *d = &m->config_json;
    const model_config *c = &m->config;
    /* nonzero if the file has the key dtype of transformers 5 instead of torch_dtype */
    int newer = 0;
    for (uint32_t k = json_first(d, JSON_ROOT); k != 0; k = json_next(d, k))
        newer |= json_is(d, k, "dtype");
    fputs("{\n  \"architectures\": [\n    \"", f);
    model_write_architecture(c, f);
    fputs("\"\n  ],\n", f);
    fprintf(f, "  \"model_type\": \"%s\"", c->type);
    c->family->write_config(m, f);
    fprintf(f, ",\n  \"tie_word_embeddings\": %s", c->tied ? "true" : "false");
    fprintf(f, ",\n  \"%s\": \"%s\"", newer ? "dtype" : "torch_dtype", type);
    if (c->head.names != NULL)
        model_write_labels(&c->head, f);
    for (uint32_t k = json_first(d, JSON_ROOT); k != 0; k = json_next(d, k)) {
        char key[64];
        const int n = snprintf(key, sizeof key, " %s ", d->text + d->nodes[k].at);
        if (n < (int)sizeof key && (strstr(ours, key) || strstr(c->family->keys, key) ||
                                    (c->head.names != NULL && strstr(labels, key))))
            continue;
        fputs(",\n  ", f);
        json_write_value(f, d, k);
        fputs(": ", f);
        json_write_value(f, d, k + 1);
    }
    if (json_kind_of(d, JSON_ROOT) == JSON_NOTHING)
        c->family->write_new_config(c, f);
    fputs("\n}\n", f);
}

/* Writes DIR/config.json and DIR/model.safetensors, which from_pretrained loads; creates DIR. F32
 * values are written as `storage`: F32, BF16 or F16. For a model that was read from files,
 * config.json keeps all keys whose values do not change. */
static inline int model_save(model_any *m, gckpt_store *store, const char *dir,
                             gckpt_storage storage)
{
    static const char *const types[] = { "float32", "bfloat16", "float16" };
    char path[MODEL_PATH];
    model_saver s;
    gckpt_file_desc desc;
    s.model = m;
    memset(&desc, 0, sizeof desc);
    desc.rename = model_save_name;
    desc.user = &s;
    desc.values_only = 1;
    desc.storage = storage;
    gckpt_parameter p;
    for (int i = 0; gckpt_store_peek(store, i, &p) == GCKPT_OK; i++)
        if ((p.storage == GCKPT_STORAGE_I8 || p.storage == GCKPT_STORAGE_I4) &&
            model_find_param(&m->config, p.name) >= 0)
            return model_fail(m,
                              "%s: \"%s\" is stored as %s, which transformers cannot load; "
                              "load the model as floats to save it",
                              dir, p.name, p.storage == GCKPT_STORAGE_I8 ? "int8" : "int4");
    FILE *f = model_make_folder(m, dir) != 0 ? NULL : model_begin_file(m, path, dir, "config.json");
    if (f == NULL)
        return -1;
    model_write_config(m, f, types[storage]);
    return model_close_json(m, f, path) != 0
               ? -1
               : model_save_weights(m, store, dir, "model.safetensors", &desc, path);
}
#endif
