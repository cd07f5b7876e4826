/* gpt2.h - GPT-2 for gradckpt.h, in Hugging Face's format, of public calls only: to copy and change.
 *
 *     gpt2_model m;
 *     gckpt_store *s = gckpt_store_new(NULL);
 *     if (gpt2_load(&m, s, "gpt2", NULL) != 0) // config.json, model.safetensors or its shards
 *         fprintf(stderr, "%s\n", m.error);
 *
 *     gckpt_graph *g = gckpt_graph_new(s, NULL);
 *     gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(B, T));
 *     gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(B, T));
 *     gckpt_term loss = { gpt2_loss(&m, gpt2_hidden(&m, tokens, NULL), targets), 1, 0 };
 *     ... gckpt_plan_new, gckpt_exec_new, gckpt_step ...
 *     gpt2_save(&m, s, "tuned");               // from_pretrained("tuned") loads it
 *
 * Parameters are named as in Hugging Face's files, without "transformer.": "wte.weight",
 * "h.0.attn.c_attn.weight". Their layers are Conv1D, whose (in,out) is what gckpt_linear takes; the
 * head is wte, or lm_head.weight where config.json does not tie them. Functions that may fail return
 * 0, or -1 after writing m->error. C99 or C++11, with json.h and sample.h. */
#ifndef GPT2_H
#define GPT2_H
#include "gradckpt.h"
#include "json.h"
#include <stdio.h>
#include <string.h>

/* ---- sizes ----------------------------------------------------------------------------------- */
typedef struct {
    int64_t layers, heads, width, inner, context, vocabulary; /* inner: of the MLP */
    gckpt_tensor *(*activation)(gckpt_tensor *x);
    int tied;     /* 1: the head is the embedding table */
    double range; /* initializer_range: of new weights */
} gpt2_config;

typedef struct {
    gpt2_config config;
    char error[512];
} gpt2_model;

/* activation_function of config.json */
static const struct {
    const char *name;
    gckpt_tensor *(*op)(gckpt_tensor *x);
} gpt2_activations[] = {
    { "gelu_new", gckpt_gelu }, { "gelu_fast", gckpt_gelu }, { "gelu_pytorch_tanh", gckpt_gelu },
    { "gelu", gckpt_gelu_erf }, { "relu", gckpt_relu },      { "silu", gckpt_silu },
    { "swish", gckpt_silu },    { "tanh", gckpt_tanh },
};
enum { GPT2_ACTIVATIONS = sizeof gpt2_activations / sizeof gpt2_activations[0] };

/* A model of these sizes, for new weights: gpt2 itself is (12, 12, 768, 1024, 50257). */
static inline void gpt2_new(gpt2_model *m, int64_t layers, int64_t heads, int64_t width,
                            int64_t context, int64_t vocabulary)
{
    const gpt2_config c = { layers,     heads,      width, 4 * width, context,
                            vocabulary, gckpt_gelu, 1,     0.02 };
    memset(m, 0, sizeof *m);
    m->config = c;
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
gpt2_fail(gpt2_model *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(m->error, sizeof m->error, format, args);
    va_end(args);
    return -1;
}

static inline double gpt2_root(double x) /* Newton; saves a math library */
{
    double r = x > 1 ? x : 1;
    for (int i = 0; i < 60; i++)
        r = (r + x / r) / 2;
    return r;
}

/* ---- parameters: a table -------------------------------------------------------------------- */
/* Of a block; sizes by letter: C width, 3 three of them, I inner, 1 a vector. */
static const struct {
    const char *name;
    char rows, columns;
} gpt2_parts[] = {
    { "ln_1.weight", '1', 'C' },        { "ln_1.bias", '1', 'C' },
    { "attn.c_attn.weight", 'C', '3' }, { "attn.c_attn.bias", '1', '3' },
    { "attn.c_proj.weight", 'C', 'C' }, { "attn.c_proj.bias", '1', 'C' },
    { "ln_2.weight", '1', 'C' },        { "ln_2.bias", '1', 'C' },
    { "mlp.c_fc.weight", 'C', 'I' },    { "mlp.c_fc.bias", '1', 'I' },
    { "mlp.c_proj.weight", 'I', 'C' },  { "mlp.c_proj.bias", '1', 'C' },
};
enum { GPT2_PARTS = sizeof gpt2_parts / sizeof gpt2_parts[0], GPT2_NAME = 96 };

typedef struct {
    char name[GPT2_NAME];
    gckpt_shape shape;
    gckpt_init init; /* as transformers: N(0, range), what adds to the residual stream less */
} gpt2_parameter;

/* "h.LAYER.PART", or "PART" outside of blocks */
static inline const char *gpt2_named(char *name, int64_t layer, const char *part)
{
    if (layer < 0)
        snprintf(name, GPT2_NAME, "%s", part);
    else
        snprintf(name, GPT2_NAME, "h.%lld.%s", (long long)layer, part);
    return name;
}

static inline int64_t gpt2_count(const gpt2_config *c)
{
    return 2 + GPT2_PARTS * c->layers + 2 + !c->tied;
}

/* Parameter i of gpt2_count, in the order of the model. */
static inline gpt2_parameter gpt2_get(const gpt2_config *c, int64_t i)
{
    static const char *const last[] = { "ln_f.weight", "ln_f.bias", "lm_head.weight" };
    gpt2_parameter p;
    memset(&p, 0, sizeof p);
    if (i < 2 || i == gpt2_count(c) - 1 + c->tied) {
        gpt2_named(p.name, -1, i == 0 ? "wte.weight" : i == 1 ? "wpe.weight" : last[2]);
        p.shape = gckpt_shape2(i == 1 ? c->context : c->vocabulary, c->width);
        p.init.normal = (float)c->range;
    } else if (i >= 2 + GPT2_PARTS * c->layers) {
        const int bias = i != 2 + GPT2_PARTS * c->layers;
        gpt2_named(p.name, -1, last[bias]);
        p.shape = gckpt_shape1(c->width);
        p.init.constant = (float)!bias;
    } else {
        const int64_t layer = (i - 2) / GPT2_PARTS, part = (i - 2) % GPT2_PARTS;
        const char rows = gpt2_parts[part].rows, columns = gpt2_parts[part].columns;
        const int64_t n = columns == 'C' ? c->width : columns == 'I' ? c->inner : 3 * c->width;
        const char *name = gpt2_parts[part].name;
        gpt2_named(p.name, layer, name);
        p.shape =
            rows == '1' ? gckpt_shape1(n) : gckpt_shape2(rows == 'C' ? c->width : c->inner, n);
        if (rows != '1') /* Radford 2019 */
            p.init.normal = (float)(strstr(name, "c_proj") == NULL
                                        ? c->range
                                        : c->range / gpt2_root(2.0 * (double)c->layers));
        else if (strncmp(name, "ln_", 3) == 0 && strstr(name, "weight") != NULL)
            p.init.constant = 1;
    }
    return p;
}

/* Its number, or -1. */
static inline int64_t gpt2_find(const gpt2_config *c, const char *name)
{
    long long layer = 0;
    int at = 0;
    if (sscanf(name, "h.%lld.%n", &layer, &at) == 1 && at > 0 && layer >= 0 && layer < c->layers)
        for (int k = 0; k < GPT2_PARTS; k++)
            if (strcmp(name + at, gpt2_parts[k].name) == 0) {
                int64_t i = 2 + GPT2_PARTS * (int64_t)layer + k;
                return strcmp(gpt2_get(c, i).name, name) == 0 ? i : -1; /* not "h.+1." */
            }
    for (int64_t i = 0; i < gpt2_count(c); i += i == 1 ? 1 + GPT2_PARTS * c->layers : 1)
        if (strcmp(gpt2_get(c, i).name, name) == 0)
            return i;
    return -1;
}

/* Makes all of them in the store, those it does not have yet with new values. */
static inline int gpt2_declare(gpt2_model *m, gckpt_store *store)
{
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    for (int64_t i = 0; i < gpt2_count(&m->config); i++) {
        gpt2_parameter p = gpt2_get(&m->config, i);
        gckpt_param(g, p.name, p.shape, p.init);
    }
    int failed = gckpt_error(g) != GCKPT_OK ? gpt2_fail(m, "%s", gckpt_error_text(g)) : 0;
    gckpt_graph_free(g);
    return failed;
}

/* ---- the model ------------------------------------------------------------------------------- */
typedef struct gpt2_place gpt2_place;

/* What changes the model from outside: adapters.h. Functions may be NULL. */
typedef struct {
    void *user;
    int64_t prefix; /* keys and values before the first token's, in each layer */
    int64_t prompt; /* vectors before the first token's embedding */
    /* x (B,T,C), the tokens' embeddings, before positions */
    gckpt_tensor *(*embedded)(void *user, const gpt2_place *at, gckpt_tensor *x);
    /* instead of gckpt_linear; module: "h.0.attn.c_attn" */
    gckpt_tensor *(*linear)(void *user, const gpt2_place *at, const char *module, gckpt_tensor *x,
                            gckpt_tensor *w, gckpt_tensor *bias);
    /* of the tokens, (B,T,C), before they are cached */
    void (*keys_values)(void *user, const gpt2_place *at, gckpt_tensor **k, gckpt_tensor **v);
    /* x (B,T,C), what attention (of queries q) or the MLP (q NULL) adds to the residual stream */
    gckpt_tensor *(*branch)(void *user, const gpt2_place *at, gckpt_tensor *q, gckpt_tensor *x);
} gpt2_hooks;

typedef struct {
    double dropout; /* of embeddings and of both residual branches; not of attention */
    /* > 0: for generation, with gckpt_cache of so many positions. Then what hooks put before the
     * tokens is brought there once, by a graph with `prime` of prefix + prompt tokens (any). */
    int64_t capacity;
    int prime;
    const gpt2_hooks *hooks; /* NULL: none */
} gpt2_options;

struct gpt2_place { /* where a hook is called */
    const gpt2_config *config;
    const gpt2_options *options;
    int64_t layer; /* -1: outside of blocks */
};

/* Parameter PART + end, e.g. "attn.c_attn" and ".weight". */
static inline gckpt_tensor *gpt2_param(gckpt_graph *g, const gpt2_place *at, const char *part,
                                       const char *end)
{
    char name[GPT2_NAME];
    gpt2_named(name, at->layer, part);
    strncat(name, end, GPT2_NAME - strlen(name) - 1);
    const gpt2_parameter p = gpt2_get(at->config, gpt2_find(at->config, name));
    return gckpt_param(g, p.name, p.shape, p.init);
}

static inline gckpt_tensor *gpt2_norm(const gpt2_place *at, gckpt_tensor *x, const char *part)
{
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *gain = gpt2_param(g, at, part, ".weight");
    return gckpt_layernorm(x, gain, gpt2_param(g, at, part, ".bias"));
}

static inline gckpt_tensor *gpt2_linear(const gpt2_place *at, gckpt_tensor *x, const char *part)
{
    char module[GPT2_NAME];
    const gpt2_hooks *hooks = at->options->hooks;
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *w = gpt2_param(g, at, part, ".weight");
    gckpt_tensor *bias = gpt2_param(g, at, part, ".bias");
    gpt2_named(module, at->layer, part);
    x = hooks != NULL && hooks->linear != NULL ? hooks->linear(hooks->user, at, module, x, w, bias)
                                               : gckpt_linear(x, w, bias);
    return gckpt_name(x, module);
}

/* What a branch adds to the residual stream; q: attention's queries. */
static inline gckpt_tensor *gpt2_branch(const gpt2_place *at, gckpt_tensor *q, gckpt_tensor *x)
{
    const gpt2_hooks *hooks = at->options->hooks;
    if (at->options->dropout > 0)
        x = gckpt_dropout(x, (float)at->options->dropout);
    return hooks != NULL && hooks->branch != NULL ? hooks->branch(hooks->user, at, q, x) : x;
}

/* (B,T,C) -> (B,T,C), one segment (gckpt_checkpoint). */
static inline gckpt_tensor *gpt2_block(gckpt_tensor *x, void *user)
{
    const gpt2_place *at = (const gpt2_place *)user;
    const gpt2_hooks *hooks = at->options->hooks;
    const int64_t C = at->config->width, capacity = at->options->capacity;
    gckpt_tensor *a = gpt2_linear(at, gpt2_norm(at, x, "ln_1"), "attn.c_attn"); /* (B,T,3C) */
    gckpt_tensor *q = gckpt_slice(a, -1, 0, C);
    gckpt_tensor *k = gckpt_slice(a, -1, C, 2 * C);
    gckpt_tensor *v = gckpt_slice(a, -1, 2 * C, 3 * C);
    if (hooks != NULL && hooks->keys_values != NULL)
        hooks->keys_values(hooks->user, at, &k, &v);
    if (capacity > 0) {
        k = gckpt_cache(k, capacity);
        v = gckpt_cache(v, capacity);
    }
    a = gckpt_attention(q, k, v, (int)at->config->heads, 1);
    x = gckpt_add(x, gpt2_branch(at, q, gpt2_linear(at, a, "attn.c_proj")));
    a = gpt2_linear(at, gpt2_norm(at, x, "ln_2"), "mlp.c_fc"); /* (B,T,I) */
    a = gpt2_linear(at, at->config->activation(a), "mlp.c_proj");
    return gckpt_add(x, gpt2_branch(at, NULL, a));
}

/* tokens (B,T) -> hidden states behind the last norm, (B,T,C). options NULL: all zero. */
static inline gckpt_tensor *gpt2_hidden(const gpt2_model *m, gckpt_tensor *tokens,
                                        const gpt2_options *options)
{
    const gpt2_options none = { 0, 0, 0, NULL }, *o = options != NULL ? options : &none;
    const gpt2_hooks *hooks = o->hooks;
    gpt2_place at = { &m->config, o, -1 };
    gckpt_graph *g = gckpt_graph_of(tokens);
    gckpt_tensor *x = gckpt_embed(gpt2_param(g, &at, "wte", ".weight"), tokens);
    if (hooks != NULL && hooks->embedded != NULL)
        x = hooks->embedded(hooks->user, &at, x);
    gckpt_tensor *table = gpt2_param(g, &at, "wpe", ".weight");
    const int64_t first = o->capacity == 0 && hooks != NULL ? hooks->prefix : 0;
    x = o->capacity == 0 && first == 0 ? gckpt_positions(x, table)
                                       : gckpt_positions_at(x, table, first);
    if (o->dropout > 0)
        x = gckpt_dropout(x, (float)o->dropout);
    for (at.layer = 0; at.layer < m->config.layers; at.layer++)
        x = gckpt_checkpoint(gpt2_block, x, &at);
    at.layer = -1;
    if (o->capacity == 0 && hooks != NULL && hooks->prompt > 0)
        x = gckpt_slice(x, 1, hooks->prompt, gckpt_shape_of(x).d[1]);
    return gpt2_norm(&at, x, "ln_f");
}

/* The head's (V,C) table. */
static inline gckpt_tensor *gpt2_head(const gpt2_model *m, gckpt_graph *g)
{
    const gpt2_place at = { &m->config, NULL, -1 };
    return gpt2_param(g, &at, m->config.tied ? "wte" : "lm_head", ".weight");
}

/* hidden (B,T,C), targets i32 (B,T), of which those below 0 do not count */
static inline gckpt_tensor *gpt2_loss(const gpt2_model *m, gckpt_tensor *hidden,
                                      gckpt_tensor *targets)
{
    gckpt_graph *g = gckpt_graph_of(targets);
    return gckpt_linear_cross_entropy(hidden, gpt2_head(m, g), targets);
}

/* hidden (..,C) -> (..,V) */
static inline gckpt_tensor *gpt2_logits(const gpt2_model *m, gckpt_tensor *hidden)
{
    gckpt_graph *g = gckpt_graph_of(hidden);
    return gckpt_linear_transposed(hidden, gpt2_head(m, g), NULL);
}
#endif
