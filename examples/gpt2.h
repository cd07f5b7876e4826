/* gpt2.h - GPT-2 for gradckpt.h, in Hugging Face's format, of public calls: to copy and change.
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
 *     gpt2_save(&m, s, "tuned", GCKPT_STORED_F32); // from_pretrained("tuned") loads it
 *
 * Parameters are named as in Hugging Face's files, without "transformer.": "wte.weight",
 * "h.0.attn.c_attn.weight". Their layers are Conv1D, whose (in,out) is what gckpt_linear takes; the
 * head is wte, or lm_head.weight where config.json does not tie them. Functions that may fail
 * return 0, or -1 after writing m->error. C99 or C++11, with json.h. */
#ifndef GPT2_H
#define GPT2_H
#include "gradckpt.h"
#include "json.h"
#include <stdio.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define GPT2_MMAP 1
#else
#define GPT2_MMAP 0
#endif
#ifdef MAP_NORESERVE /* pages of the file are only counted as memory when they are written to */
#define GPT2_NORESERVE MAP_NORESERVE
#else
#define GPT2_NORESERVE 0
#endif

/* ---- sizes ----------------------------------------------------------------------------------- */
typedef struct {
    int64_t layers, heads, width, inner, context, vocabulary; /* inner: of the MLP */
    gckpt_tensor *(*activation)(gckpt_tensor *x);
    int tied;     /* 1: the head is the embedding table */
    int64_t eos;  /* the token between texts; -1: none */
    double range; /* initializer_range: of new weights */
} gpt2_config;

typedef struct {
    void *memory;
    size_t size;
} gpt2_mapping;

typedef struct {
    gpt2_config config;
    char error[512];
    json file;          /* config.json as it was read: what is not ours is written again */
    gpt2_mapping *maps; /* files that gpt2_load mapped */
    int map_count;
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
    const gpt2_config c = { layers,     heads,   width,
                            4 * width,  context, vocabulary,
                            gckpt_gelu, 1,       vocabulary == 50257 ? 50256 : -1,
                            0.02 };
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
enum { GPT2_PARTS = sizeof gpt2_parts / sizeof gpt2_parts[0], GPT2_NAME = 96, GPT2_PATH = 4096 };

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

/* Makes those of so many axes or fewer in the store; what it does not have yet has new values. */
static inline int gpt2_declare_some(gpt2_model *m, gckpt_store *store, int axes)
{
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    for (int64_t i = 0; i < gpt2_count(&m->config); i++) {
        gpt2_parameter p = gpt2_get(&m->config, i);
        if (p.shape.n <= axes)
            gckpt_param(g, p.name, p.shape, p.init);
    }
    int failed = gckpt_error(g) != GCKPT_OK ? gpt2_fail(m, "%s", gckpt_error_text(g)) : 0;
    gckpt_graph_free(g);
    return failed;
}

static inline int gpt2_declare(gpt2_model *m, gckpt_store *store) /* all of them */
{
    return gpt2_declare_some(m, store, 2);
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

/* first + second, cut where `name` ends */
static inline const char *gpt2_join(char *name, const char *first, const char *second)
{
    size_t n = strlen(first), most = GPT2_NAME - 1;
    memmove(name, first, n = n < most ? n : most);
    most -= n;
    memcpy(name + n, second, most = strlen(second) < most ? strlen(second) : most);
    name[n + most] = 0;
    return name;
}

/* Parameter PART + end, e.g. "attn.c_attn" and ".weight". */
static inline gckpt_tensor *gpt2_param(gckpt_graph *g, const gpt2_place *at, const char *part,
                                       const char *end)
{
    char name[GPT2_NAME];
    gpt2_join(name, gpt2_named(name, at->layer, part), end);
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

/* ---- files ----------------------------------------------------------------------------------- */
typedef struct {
    /* what matrices are kept as, frozen then (gckpt_store_pack). F32: as floats; */
    gckpt_storage storage;
    /* or, 1: in the file itself, as F32, or as BF16 or F16 and frozen. What is trained there
     * becomes the process's own copy, page by page; the file stays as it is. The mapping lasts
     * until gpt2_close. Vectors are read, as are all where there is no mmap. */
    int map;
} gpt2_source;

/* Gives back what gpt2_load mapped and read: after the store is freed. */
static inline void gpt2_close(gpt2_model *m)
{
    json_free(&m->file);
#if GPT2_MMAP
    for (int i = 0; i < m->map_count; i++)
        munmap(m->maps[i].memory, m->maps[i].size);
#endif
    free(m->maps);
    m->maps = NULL;
    m->map_count = 0;
}

static inline int gpt2_path(gpt2_model *m, char *path, const char *dir, const char *file)
{
    int n = snprintf(path, GPT2_PATH, "%s/%s", dir, file);
    return n >= 0 && n < GPT2_PATH ? 0 : gpt2_fail(m, "%s: the path is too long", dir);
}

/* What these models differ in, and this file does not build. */
static inline void gpt2_refuse_others(json *d)
{
    static const struct {
        const char *key;
        int value;
    } fixed[] = { { "scale_attn_weights", 1 },
                  { "scale_attn_by_inverse_layer_idx", 0 },
                  { "add_cross_attention", 0 } };
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (json_bool(d, JSON_ROOT, fixed[i].key, fixed[i].value) != fixed[i].value)
            json_wrong(d, json_find(d, JSON_ROOT, fixed[i].key),
                       fixed[i].value ? "true, all that is supported"
                                      : "false, all that is supported");
    uint32_t type = json_find_set(d, JSON_ROOT, "model_type");
    if (type && !json_is(d, type, "gpt2"))
        json_wrong(d, type, "gpt2");
    const double eps = json_real(d, JSON_ROOT, "layer_norm_epsilon", 1e-5);
    if (eps < 0.999999e-5 || eps > 1.000001e-5)
        json_wrong(d, json_find(d, JSON_ROOT, "layer_norm_epsilon"), "1e-5, all that is supported");
    uint32_t quantised = json_find_set(d, JSON_ROOT, "quantization_config");
    if (quantised)
        json_wrong(d, quantised, "weights that are not quantised");
}

static inline int64_t gpt2_size(json *d, const char *key, int64_t usual)
{
    const int64_t n = json_int(d, JSON_ROOT, key, usual);
    if (n < 1 || n > 1 << 24)
        json_wrong(d, json_find(d, JSON_ROOT, key), "a number from 1 to 16777216");
    return n;
}

/* Reads DIR/config.json; what it does not say is as transformers' GPT2Config has it. gpt2_close
 * gives back what it keeps. */
static inline int gpt2_read_config(gpt2_model *m, const char *dir)
{
    char path[GPT2_PATH];
    gpt2_new(m, 12, 12, 768, 1024, 50257);
    if (gpt2_path(m, path, dir, "config.json") != 0)
        return -1;
    json *d = &m->file;
    if (json_read_file(d, path) == 0) {
        gpt2_config *c = &m->config;
        if (json_kind_of(d, JSON_ROOT) != JSON_OBJECT)
            json_wrong(d, JSON_ROOT, "an object");
        gpt2_refuse_others(d);
        c->layers = gpt2_size(d, "n_layer", 12);
        c->heads = gpt2_size(d, "n_head", 12);
        c->width = gpt2_size(d, "n_embd", 768);
        c->inner = gpt2_size(d, "n_inner", 4 * c->width);
        c->context = gpt2_size(d, "n_positions", 1024);
        c->vocabulary = gpt2_size(d, "vocab_size", 50257);
        c->tied = json_bool(d, JSON_ROOT, "tie_word_embeddings", 1);
        c->range = json_real(d, JSON_ROOT, "initializer_range", 0.02);
        uint32_t at = json_find_set(d, JSON_ROOT, "eos_token_id");
        at = json_kind_of(d, at) == JSON_ARRAY ? json_first(d, at) : at;
        c->eos = at ? json_int_of(d, at) : -1;
        if (c->eos >= c->vocabulary) /* small models often name gpt2's, and lack it */
            c->eos = -1;
        if (c->layers > 10000)
            json_fail(d, 0, "n_layer %lld: 10000 at most", (long long)c->layers);
        if (c->width % c->heads != 0)
            json_fail(d, 0, "n_embd %lld is no multiple of n_head %lld", (long long)c->width,
                      (long long)c->heads);
        at = json_find_set(d, JSON_ROOT, "activation_function");
        for (int i = 0; i < GPT2_ACTIVATIONS && at; i++)
            if (json_is(d, at, gpt2_activations[i].name)) {
                c->activation = gpt2_activations[i].op;
                at = 0;
            }
        if (at)
            json_wrong(d, at, "gelu_new, gelu, relu, silu or tanh");
    }
    d->name = "config.json"; /* the path is not kept */
    if (d->error[0] == 0)
        return 0;
    gpt2_fail(m, "%s", d->error);
    json_free(d);
    return -1;
}

typedef struct {
    gpt2_model *model;
    unsigned char *found; /* by parameter */
    char unknown[GPT2_NAME];
} gpt2_loading;

/* The parameter that a tensor of a file is for. */
static inline const char *gpt2_renamed(void *user, const char *name)
{
    gpt2_loading *l = (gpt2_loading *)user;
    const char *end = strstr(name, ".attn.");
    name += strncmp(name, "transformer.", 12) == 0 ? 12 : 0;
    if (end != NULL && (strcmp(end, ".attn.bias") == 0 || strcmp(end, ".attn.masked_bias") == 0))
        return NULL; /* causal masks */
    if (l->model->config.tied && strcmp(name, "lm_head.weight") == 0)
        return NULL;
    const int64_t i = gpt2_find(&l->model->config, name);
    if (i < 0) {
        if (l->unknown[0] == 0)
            snprintf(l->unknown, sizeof l->unknown, "%s", name);
        return NULL;
    }
    l->found[i] = 1;
    return name;
}

/* The mapped bytes of a file, which gpt2_close gives back; NULL: m->error. */
static inline void *gpt2_map(gpt2_model *m, const char *path, size_t *size)
{
#if GPT2_MMAP
    struct stat is;
    void *memory = MAP_FAILED;
    const int file = open(path, O_RDONLY);
    const int known = file >= 0 && fstat(file, &is) == 0 && is.st_size > 0;
    gpt2_mapping *maps =
        (gpt2_mapping *)realloc(m->maps, (size_t)(m->map_count + 1) * sizeof *maps);
    m->maps = maps != NULL ? maps : m->maps;
    if (known && maps != NULL && (uintmax_t)is.st_size <= SIZE_MAX)
        memory = mmap(NULL, (size_t)is.st_size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | GPT2_NORESERVE, file, 0);
    if (memory == MAP_FAILED)
        gpt2_fail(m, "%s: cannot be mapped: %s", path, strerror(errno));
    if (file >= 0)
        close(file);
    if (memory == MAP_FAILED)
        return NULL;
    m->maps[m->map_count].memory = memory;
    m->maps[m->map_count++].size = *size = (size_t)is.st_size;
    return memory;
#else
    (void)m, (void)path, (void)size;
    return NULL;
#endif
}

/* Takes in one file of the model. */
static inline int gpt2_load_file(gpt2_loading *l, gckpt_store *store, const char *dir,
                                 const char *name, int map)
{
    char path[GPT2_PATH];
    gckpt_file_desc desc;
    gckpt_result result;
    memset(&desc, 0, sizeof desc);
    desc.rename = gpt2_renamed;
    desc.user = l;
    desc.values_only = desc.partial = desc.writable = 1;
    if (strpbrk(name, "/\\") != NULL)
        return gpt2_fail(l->model, "%s: \"%s\": a file beside it is expected", dir, name);
    if (gpt2_path(l->model, path, dir, name) != 0)
        return -1;
    if (map) {
        size_t size = 0;
        const void *memory = gpt2_map(l->model, path, &size);
        if (memory == NULL)
            return -1;
        result = gckpt_store_map(store, memory, size, &desc);
    } else {
        result = gckpt_store_load_as(store, path, &desc);
    }
    if (result != GCKPT_OK && result != GCKPT_OTHER_CONTRACT)
        return gpt2_fail(l->model, "%s: %s", path, gckpt_error_text(store));
    if (l->unknown[0] != 0)
        return gpt2_fail(l->model, "%s: tensor \"%s\" is none of a GPT-2 of %lld layers%s", path,
                         l->unknown, (long long)l->model->config.layers,
                         l->model->config.tied ? "" : " with a head of its own");
    return 0;
}

static inline int gpt2_has(gpt2_model *m, char *path, const char *dir, const char *file)
{
    FILE *f = gpt2_path(m, path, dir, file) == 0 ? fopen(path, "rb") : NULL;
    return f != NULL && fclose(f) == 0;
}

/* model.safetensors, or else all files that model.safetensors.index.json names. */
static inline int gpt2_load_files(gpt2_loading *l, gckpt_store *store, const char *dir, int map)
{
    char path[GPT2_PATH];
    json d;
    if (gpt2_has(l->model, path, dir, "model.safetensors") ||
        !gpt2_has(l->model, path, dir, "model.safetensors.index.json"))
        return gpt2_load_file(l, store, dir, "model.safetensors", map);
    int failed = 0;
    if (json_read_file(&d, path) == 0) {
        uint32_t all = json_need(&d, JSON_ROOT, "weight_map", JSON_OBJECT);
        for (uint32_t k = json_first(&d, all); k != 0 && !failed; k = json_next(&d, k)) {
            const char *name = json_text(&d, k + 1);
            int again = 0;
            for (uint32_t i = json_first(&d, all); i != k && !again; i = json_next(&d, i))
                again = json_is(&d, i + 1, name);
            if (!again && d.error[0] == 0)
                failed = gpt2_load_file(l, store, dir, name, map);
        }
    }
    json_free(&d);
    return d.error[0] ? gpt2_fail(l->model, "%s", d.error) : failed;
}

/* Freezes and packs matrices, before they have values. */
static inline int gpt2_pack(gpt2_model *m, gckpt_store *store, gckpt_storage storage)
{
    for (int64_t i = 0; i < gpt2_count(&m->config); i++) {
        const gpt2_parameter p = gpt2_get(&m->config, i);
        if (p.shape.n == 2 && (gckpt_store_freeze(store, p.name, 1) != GCKPT_OK ||
                               gckpt_store_pack(store, p.name, storage) != GCKPT_OK))
            return gpt2_fail(m, "%s", gckpt_error_text(store));
    }
    return 0;
}

/* Reads a model's directory into a store that has none of its parameters; source NULL: all zero.
 * After an error, free the store, then gpt2_close. */
static inline int gpt2_load(gpt2_model *m, gckpt_store *store, const char *dir,
                            const gpt2_source *source)
{
    const gpt2_source none = { GCKPT_STORED_F32, 0 };
    source = source != NULL ? source : &none;
    if (gpt2_read_config(m, dir) != 0)
        return -1;
    const int map = source->map && source->storage == GCKPT_STORED_F32 && GPT2_MMAP;
    const int64_t n = gpt2_count(&m->config);
    gpt2_loading l = { m, (unsigned char *)calloc((size_t)n, 1), { 0 } };
    if (l.found == NULL)
        return gpt2_fail(m, "%s: out of memory", dir);
    int failed = gpt2_declare_some(m, store, map ? 1 : 2) != 0 ||
                 (source->storage != GCKPT_STORED_F32 && gpt2_pack(m, store, source->storage) != 0);
    failed = failed || gpt2_load_files(&l, store, dir, map) != 0;
    for (int64_t i = 0; i < n && !failed; i++) {
        const gpt2_parameter p = gpt2_get(&m->config, i);
        if (!l.found[i])
            failed = gpt2_fail(m, "%s: no file has tensor \"%s\", (%lld%s%.0lld) by config.json",
                               dir, p.name, (long long)p.shape.d[0], p.shape.n > 1 ? "," : "",
                               (long long)p.shape.d[1]);
    }
    free(l.found);
    return failed || (map && gpt2_declare(m, store) != 0) ? -1 : 0; /* of mapped ones: the shapes */
}

typedef struct {
    const gpt2_model *model;
    char name[GPT2_NAME + 16];
} gpt2_saving;

/* The name of a parameter in a file of transformers' GPT2LMHeadModel; NULL: it is none of it. */
static inline const char *gpt2_renamed_back(void *user, const char *name)
{
    static const char prefix[] = "transformer.";
    gpt2_saving *s = (gpt2_saving *)user;
    if (gpt2_find(&s->model->config, name) < 0)
        return NULL;
    snprintf(s->name, sizeof s->name, "%s%s", strcmp(name, "lm_head.weight") ? prefix : "", name);
    return s->name;
}

/* Makes a folder if it is not there. */
static inline int gpt2_folder(gpt2_model *m, const char *dir)
{
#if GPT2_MMAP
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return gpt2_fail(m, "%s: %s", dir, strerror(errno));
#endif
    return (void)m, (void)dir, 0;
}

/* A file that takes DIR/NAME's place when all of it is written (gpt2_end_file): path gets the name it
 * has until then. NULL: m->error. */
static inline FILE *gpt2_begin_file(gpt2_model *m, char *path, const char *dir, const char *name)
{
    char file[GPT2_NAME];
    if (gpt2_path(m, path, dir, gpt2_join(file, name, ".tmp")) != 0)
        return NULL;
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        gpt2_fail(m, "%s: %s", path, strerror(errno));
    return f;
}

static inline int gpt2_end_file(gpt2_model *m, FILE *f, const char *path)
{
    char to[GPT2_PATH];
    const int written = ferror(f) == 0;
    snprintf(to, sizeof to, "%.*s", (int)(strlen(path) - strlen(".tmp")), path);
    if (fclose(f) == 0 && written && rename(path, to) == 0)
        return 0;
    gpt2_fail(m, "%s: %s; what was there is unharmed", to, strerror(errno));
    remove(path);
    return -1;
}

/* What a new model says of itself. */
static inline void gpt2_write_sizes(const gpt2_config *c, FILE *f)
{
    int activation = 0;
    while (activation + 1 < GPT2_ACTIVATIONS && gpt2_activations[activation].op != c->activation)
        activation++;
    fprintf(f, ",\n  \"n_head\": %lld,\n  \"n_embd\": %lld,\n  \"n_inner\": %lld",
            (long long)c->heads, (long long)c->width, (long long)c->inner);
    fprintf(f, ",\n  \"n_positions\": %lld,\n  \"n_ctx\": %lld,\n  \"vocab_size\": %lld",
            (long long)c->context, (long long)c->context, (long long)c->vocabulary);
    fprintf(f, ",\n  \"activation_function\": \"%s\",\n  \"layer_norm_epsilon\": 1e-05",
            gpt2_activations[activation].name);
    fprintf(f, ",\n  \"initializer_range\": %.9g", c->range);
    if (c->eos >= 0)
        fprintf(f, ",\n  \"bos_token_id\": %lld,\n  \"eos_token_id\": %lld", (long long)c->eos,
                (long long)c->eos);
}

/* What methods and files change is written anew; all else as config.json had it, known or not. */
static inline void gpt2_write_config(const gpt2_model *m, FILE *f, const char *type)
{
    static const char *const ours[] = { "architectures",       "model_type",  "n_layer",
                                        "tie_word_embeddings", "torch_dtype", "dtype" };
    const json *d = &m->file;
    int newer = 0; /* transformers 5 says dtype */
    for (uint32_t k = json_first(d, JSON_ROOT); k != 0; k = json_next(d, k))
        newer |= json_is(d, k, "dtype");
    fputs("{\n  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n", f);
    fprintf(f, "  \"model_type\": \"gpt2\",\n  \"n_layer\": %lld", (long long)m->config.layers);
    fprintf(f, ",\n  \"tie_word_embeddings\": %s", m->config.tied ? "true" : "false");
    fprintf(f, ",\n  \"%s\": \"%s\"", newer ? "dtype" : "torch_dtype", type);
    for (uint32_t k = json_first(d, JSON_ROOT); k != 0; k = json_next(d, k)) {
        int own = 0;
        for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
            own |= json_is(d, k, ours[i]);
        if (own)
            continue;
        fputs(",\n  ", f);
        json_write_value(f, d, k);
        fputs(": ", f);
        json_write_value(f, d, k + 1);
    }
    if (json_kind_of(d, JSON_ROOT) == JSON_NOTHING)
        gpt2_write_sizes(&m->config, f);
    fputs("\n}\n", f);
}

/* Writes DIR/config.json and DIR/model.safetensors (F32 values as storage: F32, BF16 or F16), which
 * from_pretrained loads; makes DIR if it is not there. Of a model that was read, config.json keeps
 * all that neither methods nor files change. */
static inline int gpt2_save(gpt2_model *m, gckpt_store *store, const char *dir,
                            gckpt_storage storage)
{
    static const char *const types[] = { "float32", "bfloat16", "float16" };
    char path[GPT2_PATH];
    gpt2_saving s;
    gckpt_file_desc desc;
    s.model = m;
    memset(&desc, 0, sizeof desc);
    desc.rename = gpt2_renamed_back;
    desc.user = &s;
    desc.values_only = 1;
    desc.storage = storage;
    gckpt_parameter p;
    for (int i = 0; gckpt_store_peek(store, i, &p) == GCKPT_OK; i++)
        if (p.storage == GCKPT_STORED_I8)
            return gpt2_fail(m,
                             "%s: \"%s\" is kept as int8, which is no format of transformers'; "
                             "load the model as floats to save it",
                             dir, p.name);
    if (gpt2_folder(m, dir) != 0 || gpt2_path(m, path, dir, "model.safetensors") != 0)
        return -1;
    if (gckpt_store_save_as(store, path, &desc) != GCKPT_OK)
        return gpt2_fail(m, "%s: %s", path, gckpt_error_text(store));
    FILE *f = gpt2_begin_file(m, path, dir, "config.json");
    if (f == NULL)
        return -1;
    gpt2_write_config(m, f, types[storage]);
    return gpt2_end_file(m, f, path);
}
#endif
