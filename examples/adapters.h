/* adapters.h - ways to fine-tune a language model that train few parameters, for model.h: to
 * copy and change.
 *
 *     adapters_options o = { ADAPTERS_LORA };           // zeros select the defaults
 *     adapters a;
 *     if (adapters_begin(&a, &model, store, &o) != 0)   // creates its parameters, freezes the rest
 *         fprintf(stderr, "%s\n", model.error);
 *     model_options how = { 0, 0, 0, &a.hooks };         // for model_hidden and generator
 *     ... build, plan, train ...
 *     adapters_save(&a, "adapter", "gpt2");             // as peft, where peft has the method
 *     adapters_end(&a);
 *
 *     adapters_load(&a, &model, store, "adapter");      // instead of adapters_begin
 *
 * method      trains                                                       file
 * full        all parameters                                               model_save
 * last        the last `layers` blocks and the last norm                   own, model_save
 * head        a separate head, which begins as a copy of the embeddings      own, model_save
 * bias        all biases (BitFit: Ben Zaken 2021)                            own, model_save
 * new-blocks  `layers` new blocks on top, which begin as identities        own, model_save
 * lora        x A' B' alpha / r added to targeted layers (Hu 2021); with the peft LORA
 *             norms of their rows (DoRA: Liu 2024); with whole modules
 * houlsby     a bottleneck after attention and MLP; norms (Houlsby 2019)   own
 * llama       prompts with a gate that begins at 0 (LLaMA-Adapter, 2023)   peft ADAPTION_PROMPT
 * prefix      keys and values before the first in each layer (Li 2021)     peft PREFIX_TUNING
 * prompt      vectors before the first embedding (Lester 2021)             peft PROMPT_TUNING
 *
 * Files of the methods that peft does not have hold the trained parameters under their names in
 * the store, with an adapter_config.json of the options (peft.h). Functions return 0, or -1
 * after writing the model's `error`. C99 or C++11, with what model.h needs, pattern.h, peft.h
 * and gguf_adapter.h. */
#ifndef ADAPTERS_H
#define ADAPTERS_H
#include "model.h"
#include "pattern.h"

typedef enum {
    ADAPTERS_FULL,
    ADAPTERS_LAST,
    ADAPTERS_HEAD,
    ADAPTERS_BIAS,
    ADAPTERS_NEW_BLOCKS,
    ADAPTERS_LORA,
    ADAPTERS_HOULSBY,
    ADAPTERS_LLAMA,
    ADAPTERS_PREFIX,
    ADAPTERS_PROMPT,
    ADAPTERS_METHODS
} adapters_method;
static const char *const adapters_names[] = { "full",   "last",   "head",    "bias",
                                              "new-blocks", "lora", "houlsby", "llama",
                                              "prefix", "prompt", NULL };
typedef enum { ADAPTERS_NO_BIAS, ADAPTERS_ALL_BIASES, ADAPTERS_LORA_BIASES } adapters_bias;

typedef struct {
    adapters_method method;
    /* number of blocks, counted from the last; 0 selects 1 for LAST and NEW_BLOCKS, and all blocks
     * for LLAMA */
    int64_t layers;
    /* LORA: rank, 0 selects 8; HOULSBY: width of the bottleneck, 0 selects 64; LLAMA, PREFIX and
     * PROMPT: number of tokens, 0 selects 10 */
    int64_t size;
    /* PREFIX: width of an MLP that computes keys and values during training; 0 for no MLP */
    int64_t hidden;
    double alpha;   /* LORA: the product A' B' is multiplied by alpha / rank; 0 selects alpha 8 */
    /* LORA: if nonzero, the product is multiplied by alpha / sqrt(rank) instead (Kalajdzievski
     * 2023) */
    int rslora;
    double dropout; /* LORA: dropout rate of x before it is multiplied by A' */
    /* LORA: the modules that get adapters, as a list of regular expressions separated by commas.
     * Each one must match a module's name, or the end of its name after a dot: "c_attn,mlp.c_fc",
     * "h.[0-5].attn.c_(attn|proj)". "all-linear" selects all dense layers of blocks. NULL selects
     * peft's default: "c_attn" for GPT-2, "q_proj,v_proj" for Llama. */
    const char *targets;
    const char *excluded;       /* LORA: patterns of modules that get no adapters, or NULL */
    /* LORA: ranks and alphas of modules that differ from the others:
     * "mlp.c_fc=4,h.0.attn.c_attn=16" */
    const char *rank_pattern, *alpha_pattern;
    adapters_bias bias;         /* LORA: which biases are trained in addition */
    int lenient; /* LORA: if nonzero, patterns that match nothing are ignored, as in peft */
    /* LORA: if nonzero, trains DoRA (Liu 2024). Then each row of a layer's weights W (out,in) is
     * rescaled: W becomes m (W + s B A) / |W + s B A|, with the norms | | taken by row, and s =
     * alpha / rank. m (out) is trained and starts at |W|; the backward treats the norm as a
     * constant. */
    int dora;
    /* LORA: modules that are trained as a whole and saved with the adapter, or NULL. A list
     * separated by commas; each entry is the end of a module's name ("lm_head,embed_tokens") and
     * covers all parameters of that module. If an entry names an embedding table that is also the
     * LM head, the head becomes a separate copy; but if `tied` is nonzero, the shared table is
     * trained (peft's ensure_weight_tying). */
    const char *modules_to_save;
    int tied;
    /* LORA: indices of the blocks that get adapters: "0,2,5" or "4-7"; NULL for all blocks */
    const char *layers_to_transform;
    /* bytes of the file from which values will be loaded; options that need a larger file are an
     * error; 0 for no check */
    int64_t file_bytes;
    int plan_only; /* if nonzero, parameters are only declared: no value is read or allocated, so
                    * graphs can be planned, not run */
} adapters_options;

typedef struct {
    adapters_options options; /* the options, with defaults filled in; their texts are copies */
    model_hooks hooks;
    model_any *model;
    gckpt_store *store;
    /* tensors of the graph that is being built; adapters_embedded sets them */
    gckpt_tensor *zeros, *mlp_hidden;
    /* the original weights while LoRA is merged into the model, else NULL */
    float *merged;
    /* factors of DoRA for generation, computed by adapters_prepare */
    float *dora_scales;
    char *texts;                 /* the memory of the options' texts */
    /* number of elements of all parameters that the method has created */
    double elements;
} adapters;

/* Returns the number of elements of all parameters in the store that are not frozen. */
static inline int64_t adapters_trainable(const gckpt_store *store)
{
    int64_t n = 0;
    gckpt_parameter p;
    for (int i = 0; gckpt_store_peek(store, i, &p) == GCKPT_OK; i++)
        n += p.frozen ? 0 : p.elements;
    return n;
}

static inline int adapters_ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* If `name` is MODULE followed by `end`, writes MODULE to `module` and returns nonzero, else
 * returns 0. */
static inline int adapters_module_of(const char *name, const char *end, char *module)
{
    const int ends = adapters_ends_with(name, end);
    if (ends) {
        model_join(module, name, "");
        module[strlen(module) - strlen(end)] = 0;
    }
    return ends;
}

/* largest value allowed for alpha */
#define ADAPTERS_MAX_ALPHA 1e12
/* DoRA's m of a module is the parameter with this end of its name */
static const char adapters_magnitude[] = ".lora_magnitude_vector";

/* ---- patterns -------------------------------------------------------------------------------- */
/* Returns 1 if the pattern p of n characters matches a module's name, or the end of its name after
 * a dot, as peft does for target_modules and for keys of rank_pattern. Returns 0 if it does not
 * match, and -1 if it is malformed. */
static inline int adapters_matches(const model_config *c, const char *p, size_t n,
                                   const char *module)
{
    char text[PATTERN_MAX_TEXT + 1];
    uint64_t from = 1;
    const size_t before = strlen(c->family->prefix);
    memcpy(text, c->family->prefix, before);
    snprintf(text + before, sizeof text - before, "%s", module);
    for (size_t i = 0; text[i] != 0; i++)
        from |= text[i] == '.' ? (uint64_t)2 << i : 0;
    return pattern_match(text, from, p, n);
}

/* Returns the length of the pattern at p, the first one of a list, and sets *rest to the length of
 * its whole entry. If numbered is nonzero, an entry is PATTERN=NUMBER, else PATTERN. */
static inline size_t adapters_pattern_len(const char *p, int numbered, size_t *rest)
{
    size_t n = strcspn(p, ","), k = n;
    while (numbered && k > 0 && p[k] != '=')
        k--;
    *rest = n;
    return k > 0 ? k : n;
}

/* Finds the first entry of a list whose pattern matches a module's name. If value is not NULL,
 * entries are PATTERN=NUMBER, and *value becomes the number. Returns 1 if a pattern matches, 0 if
 * none does, and -1 with m->error if a pattern is malformed. */
static inline int adapters_match_list(model_any *m, const char *list, const char *module, double *value)
{
    int found = 0;
    size_t rest;
    for (const char *p = list; *p != 0; p += rest + (p[rest] == ',')) {
        const size_t n = adapters_pattern_len(p, value != NULL, &rest);
        char *end = NULL;
        const int matches = adapters_matches(&m->config, p, n, module);
        const double x = n < rest ? strtod(p + n + 1, &end) : 0;
        if (matches < 0 || (value != NULL && (end != p + rest || !(x > 0 && x <= ADAPTERS_MAX_ALPHA))))
            return model_fail(
                m, "\"%.*s\": allowed are names of modules, with . * + ? [] () | \\d%s", (int)rest,
                p, value != NULL ? ", and '=' and a number above 0 and at most 1e12" : "");
        if (matches && !found && value != NULL)
            *value = x;
        found |= matches;
    }
    return found;
}

/* Writes the names of the modules of all blocks, for error texts: "attn.c_attn, attn.c_proj, .. and
 * mlp.c_proj in h.0 to h.1". */
static inline void adapters_list_modules(const model_config *c, char *text, size_t size)
{
    /* length of "h.0.", which precedes the module's name */
    const size_t skipped = strlen(c->family->blocks) + 3;
    const int64_t first = model_first_param(c, 0), end = model_first_param(c, 1);
    model_parameter p;
    int modules = 0, k = 0;
    size_t n = 0;
    for (int64_t i = first; i < end; i++)
        modules += model_module(c, i, &p);
    for (int64_t i = first; i < end; i++)
        if (model_module(c, i, &p) && n < size)
            n += (size_t)snprintf(text + n, size - n, "%s%s",
                                  k++ == 0       ? ""
                                  : k == modules ? " and "
                                                 : ", ",
                                  p.name + skipped);
    if (n < size)
        snprintf(text + n, size - n, " in %s.0 to %s.%lld", c->family->blocks, c->family->blocks,
                 (long long)c->layers - 1);
}

/* Returns an error for a pattern of the list that is probably misspelt: one that matches no dense
 * layer of the model or, if targets is not NULL, none of the layers that `targets` selects. */
static inline int adapters_check_list(model_any *m, const char *list, const char *targets)
{
    size_t rest;
    for (const char *p = list; *p != 0; p += rest + (p[rest] == ',')) {
        const size_t n = adapters_pattern_len(p, targets != NULL, &rest);
        int matches = 0;
        model_parameter q;
        for (int64_t i = 0; i < model_param_count(&m->config) && matches == 0; i++)
            if (model_module(&m->config, i, &q) &&
                (targets == NULL || adapters_match_list(m, targets, q.name, NULL) > 0))
                matches = adapters_matches(&m->config, p, n, q.name);
        if (matches == 0 && targets != NULL)
            return model_fail(m, "lora: the pattern \"%.*s\" matches none of the targets, \"%s\"; "
                                 "correct or remove it", (int)rest, p,
                              targets);
        if (matches == 0) {
            char all[256];
            adapters_list_modules(&m->config, all, sizeof all);
            return model_fail(m,
                              "lora: target \"%.*s\" matches no layer; allowed are %s, or all-linear",
                              (int)rest, p, all);
        }
    }
    return 0;
}

/* Returns 1 if block `layer` is in a list of layers_to_transform (an empty list contains all
 * blocks), 0 if not, -1 if the list is malformed. If greatest is not NULL, sets *greatest to the
 * greatest index in the list. */
static inline int adapters_in_layers(const char *list, int64_t layer, int64_t *greatest)
{
    int found = *list == 0;
    for (const char *p = list; *p != 0;) {
        char *end;
        const long long first = strtoll(p, &end, 10);
        long long last = first;
        if (end == p || *p < '0' || *p > '9')
            return -1;
        if (*end == '-') {
            p = end + 1;
            last = strtoll(p, &end, 10);
            if (end == p || *p < '0' || *p > '9')
                return -1;
        }
        if (last < first || last > 1 << 24 || (*end != 0 && (*end != ',' || end[1] == 0)))
            return -1;
        found |= layer >= first && layer <= last;
        if (greatest != NULL && last > *greatest)
            *greatest = last;
        p = end + (*end == ',');
    }
    return found;
}

/* Returns the index of a module's block: 3 for "h.3.attn". */
static inline int64_t adapters_layer_of(const model_config *c, const char *module)
{
    return strtoll(module + strlen(c->family->blocks) + 1, NULL, 10);
}

/* Returns an error if layers_to_transform has layers that the model does not have, or targets that
 * peft does not accept together with layers_to_transform. */
static inline int adapters_check_layers(model_any *m, const adapters_options *o)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz_.,0123456789";
    int64_t greatest = 0, found = 0;
    for (int64_t i = 0; i < m->config.layers && found == 0; i++)
        found = adapters_in_layers(o->layers_to_transform, i, NULL);
    if (adapters_in_layers(o->layers_to_transform, 0, &greatest) < 0)
        return model_fail(m,
                          "layers_to_transform \"%s\": allowed are numbers and ranges, such as "
                          "0,2,5 or 4-7",
                          o->layers_to_transform);
    if (greatest >= m->config.layers && (!o->lenient || found == 0))
        return model_fail(m, "layers_to_transform \"%s\": the model has layers 0 to %lld",
                          o->layers_to_transform, (long long)m->config.layers - 1);
    if (*o->layers_to_transform != 0 && o->targets[strspn(o->targets, plain)] != 0)
        return model_fail(m,
                          "layers_to_transform needs targets that are plain names, as in peft; "
                          "\"%s\" is a pattern, which can name the layers itself",
                          o->targets);
    return 0;
}

/* ---- hooks for model.h; each one changes only modules for which the store has parameters ---- */
/* Returns the parameter that is called MODULE + end, or NULL if the store does not have it. */
static inline gckpt_tensor *adapters_find_param(const adapters *a, gckpt_graph *g, const char *module,
                                          const char *end)
{
    const gckpt_init none = { 0, 0, 0 };
    char name[MODEL_NAME];
    gckpt_parameter p;
    const int i = gckpt_store_find(a->store, model_join(name, module, end));
    if (i < 0 || gckpt_store_peek(a->store, i, &p) != GCKPT_OK)
        return NULL;
    return gckpt_param(g, name, p.shape, none);
}

/* Returns the factor of LoRA's product for a module with this rank: alpha / rank, or alpha /
 * sqrt(rank). */
static inline double adapters_scale(const adapters *a, const char *module, int64_t rank)
{
    double alpha = a->options.alpha;
    adapters_match_list(a->model, a->options.alpha_pattern, module, &alpha);
    return alpha / (a->options.rslora ? model_sqrt((double)rank) : (double)rank);
}

/* Returns the index in a->dora_scales of the first factor of a module. For "" returns the number of
 * all factors. */
static inline int64_t adapters_dora_offset(const adapters *a, const char *module)
{
    char name[MODEL_NAME];
    gckpt_parameter p;
    int64_t n = 0;
    model_join(name, module, adapters_magnitude);
    for (int i = 0; gckpt_store_peek(a->store, i, &p) == GCKPT_OK; i++) {
        if (strcmp(p.name, name) == 0)
            break;
        n += adapters_ends_with(p.name, adapters_magnitude) ? p.elements : 0;
    }
    return n;
}

/* Returns DoRA's factors m / |W + s B A| (out), or NULL if the module has no m. Here W = w has the
 * weights, A = down and B = up are LoRA's matrices, s = scale, and m is the trained magnitude. The
 * factors depend on parameters only, so they are computed once per step. W + s B A itself is never
 * computed: the squared norm of a row is |W|^2, which is stored, + 2 s B (A W') + s^2 B (A A') B'.
 * As in peft, the backward treats the norms as constants. */
static inline gckpt_tensor *adapters_dora_scale(const adapters *a, const char *module, gckpt_tensor *w,
                                             gckpt_tensor *down, gckpt_tensor *up, double scale)
{
    static const int swap[] = { 1, 0 };
    gckpt_graph *g = gckpt_graph_of(w);
    gckpt_tensor *m = adapters_find_param(a, g, module, adapters_magnitude);
    if (m == NULL)
        return NULL;
    gckpt_tensor *scaled = gckpt_scale(down, (float)scale);
    gckpt_tensor *cross = model_affine(&a->model->config, scaled, w, NULL); /* shape (rank,out) */
    cross = gckpt_scale(gckpt_permute(cross, swap, 2), 2);
    /* shape (out,rank) */
    gckpt_tensor *gram = gckpt_matmul(up, gckpt_matmul_transposed(scaled, scaled));
    gckpt_tensor *squares = gckpt_sum(gckpt_mul(up, gckpt_add(cross, gram)), -1);
    squares = gckpt_add(squares, adapters_find_param(a, g, module, ".lora_squares"));
    return gckpt_div(m, gckpt_detach(gckpt_sqrt(squares)));
}

/* Returns the factors of adapters_dora_scale that adapters_prepare has computed for a module, or
 * NULL if the module has no DoRA. */
static inline gckpt_tensor *adapters_cached_scale(const adapters *a, gckpt_graph *g,
                                                  const char *module)
{
    gckpt_parameter m;
    char name[MODEL_NAME];
    const int i = gckpt_store_find(a->store, model_join(name, module, adapters_magnitude));
    if (i < 0 || gckpt_store_peek(a->store, i, &m) != GCKPT_OK)
        return NULL;
    return gckpt_constant(g, model_join(name, module, ".lora_lengths"), GCKPT_F32, m.shape,
                          a->dora_scales + adapters_dora_offset(a, module));
}

/* Returns x w + bias + s (dropout(x) A') B', with A (rank,in), B (out,rank) and s = adapters_scale.
 * With DoRA, the sum without bias is multiplied by adapters_dora_scale. With DoRA and dropout, it
 * computes as peft does: x w + bias, plus the difference that DoRA makes to dropout(x) w.
 * Generation with DoRA has no dropout. */
static inline gckpt_tensor *adapters_linear(void *user, const model_site *at, const char *module,
                                            gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias)
{
    adapters *a = (adapters *)user;
    const model_config *c = at->config;
    gckpt_graph *g = gckpt_graph_of(w);
    gckpt_tensor *down = a->merged ? NULL : adapters_find_param(a, g, module, ".lora_A.weight");
    if (down == NULL)
        return model_affine(c, x, w, bias);
    gckpt_tensor *up = adapters_find_param(a, g, module, ".lora_B.weight");
    const double scale = adapters_scale(a, module, gckpt_shape_of(down).d[0]);
    gckpt_tensor *dora_scale = at->options->capacity > 0 && a->dora_scales != NULL
                                ? adapters_cached_scale(a, g, module)
                                : adapters_dora_scale(a, module, w, down, up, scale);
    const int drops = a->options.dropout > 0 && (dora_scale == NULL || at->options->capacity == 0);
    gckpt_tensor *y = dora_scale == NULL || drops ? model_affine(c, x, w, bias) : NULL;
    if (drops)
        x = gckpt_dropout(x, (float)a->options.dropout);
    gckpt_tensor *base = dora_scale != NULL ? model_affine(c, x, w, NULL) : NULL;
    x = gckpt_linear_transposed(x, down, NULL);
    x = gckpt_linear_transposed(gckpt_scale(x, (float)scale), up, NULL);
    if (dora_scale == NULL)
        return gckpt_add(y, x);
    x = gckpt_mul(gckpt_add(base, x), dora_scale);
    if (drops)
        return gckpt_add(y, gckpt_sub(x, base));
    return bias != NULL ? gckpt_add(x, bias) : x;
}

/* Repeats x (P,C) for each row of a batch: returns (B,P,C). */
static inline gckpt_tensor *adapters_expand(const adapters *a, gckpt_tensor *x)
{
    const gckpt_shape s = gckpt_shape_of(x);
    return gckpt_add(gckpt_reshape(x, gckpt_shape3(1, s.d[s.n - 2], s.d[s.n - 1])), a->zeros);
}

/* Returns tanh(x w' + bias) (P,hidden), the hidden layer of prefix tuning's MLP, where x is the
 * embedding of the P prefix tokens. Returns NULL if there is no MLP. */
static inline gckpt_tensor *adapters_prefix_mlp(const adapters *a, gckpt_graph *g)
{
    gckpt_tensor *x = adapters_find_param(a, g, "prefix", ".embedding.weight");
    if (x == NULL)
        return NULL;
    gckpt_tensor *w = adapters_find_param(a, g, "prefix", ".transform.0.weight");
    gckpt_tensor *bias = adapters_find_param(a, g, "prefix", ".transform.0.bias");
    return gckpt_tanh(gckpt_linear_transposed(x, w, bias));
}

/* Puts the vectors of prompt tuning before x (B,T,C). Also sets tensors that the other hooks use:
 * a->zeros (B,1,1), a slice of x times 0, and a->mlp_hidden (see adapters_prefix_mlp). */
static inline gckpt_tensor *adapters_embedded(void *user, const model_site *at, gckpt_tensor *x)
{
    adapters *a = (adapters *)user;
    gckpt_graph *g = gckpt_graph_of(x);
    const model_options *o = at->options;
    if (a->options.method < ADAPTERS_LLAMA)
        return x;
    a->zeros = gckpt_scale(gckpt_slice(gckpt_slice(x, 1, 0, 1), 2, 0, 1), 0);
    a->mlp_hidden = adapters_prefix_mlp(a, g);
    if (a->options.method != ADAPTERS_PROMPT || (o->capacity > 0 && !o->prime))
        return x;
    gckpt_tensor *both[2];
    both[0] = adapters_expand(a, adapters_find_param(a, g, "prompt_embeddings", ""));
    both[1] = x;
    return o->prime ? both[0] : gckpt_concat(both, 2, 1);
}

/* Returns the keys or values of P tokens, (P,key_heads head_dim), that prefix tuning adds to a
 * layer; `which` is "prefix_key" or "prefix_value". */
static inline gckpt_tensor *adapters_prefix_kv(const adapters *a, gckpt_graph *g, int64_t layer,
                                               const char *which)
{
    const model_config *c = &a->model->config;
    char module[MODEL_NAME], part[64];
    snprintf(part, sizeof part, "%s.%s", c->family->attention, which);
    model_block_name(c, module, layer, part);
    gckpt_tensor *p = adapters_find_param(a, g, module, "");
    if (p != NULL || a->mlp_hidden == NULL)
        return p;
    gckpt_tensor *w = adapters_find_param(a, g, module, ".weight");
    return gckpt_linear_transposed(a->mlp_hidden, w, adapters_find_param(a, g, module, ".bias"));
}

/* Puts the keys and values of prefix tuning before those of the tokens. */
static inline void adapters_keys_values(void *user, const model_site *at, gckpt_tensor **k,
                                        gckpt_tensor **v)
{
    adapters *a = (adapters *)user;
    const model_options *o = at->options;
    gckpt_tensor **const both[2] = { k, v };
    if (a->options.method != ADAPTERS_PREFIX || (o->capacity > 0 && !o->prime))
        return;
    for (int i = 0; i < 2; i++) {
        gckpt_tensor *p[2];
        p[0] =
            adapters_prefix_kv(a, gckpt_graph_of(*k), at->layer, i ? "prefix_value" : "prefix_key");
        p[0] = adapters_expand(a, p[0]);
        p[1] = *both[i];
        *both[i] = o->prime ? p[0] : gckpt_concat(p, 2, 1);
    }
}

/* Changes the result x of a branch. LLaMA-Adapter: x + gate softmax(q k') v, where k and v are the
 * keys and values of the prompts. Houlsby: x + gelu(x down + bias) up + bias. */
static inline gckpt_tensor *adapters_branch(void *user, const model_site *at, gckpt_tensor *q,
                                            gckpt_tensor *x)
{
    adapters *a = (adapters *)user;
    gckpt_graph *g = gckpt_graph_of(x);
    const model_config *c = at->config;
    char module[MODEL_NAME];
    model_block_name(c, module, at->layer, q != NULL ? c->family->attention : c->family->mlp);
    gckpt_tensor *prompt = q != NULL ? adapters_find_param(a, g, module, ".adaption_prompt") : NULL;
    if (prompt != NULL) {
        gckpt_tensor *k, *v;
        c->family->keys_values(at, prompt, &k, &v);
        q = model_attention(c, q, adapters_expand(a, k), adapters_expand(a, v), 0);
        q = gckpt_mul(q, adapters_find_param(a, g, module, ".adaption_gate"));
        if (c->family->attn_output != NULL)
            q = model_affine(c, q, model_param(g, at, c->family->attn_output, ".weight"),
                              model_param(g, at, c->family->attn_output, ".bias"));
        x = gckpt_add(x, q);
    }
    gckpt_tensor *down = adapters_find_param(a, g, module, ".adapter.down.weight");
    if (down == NULL)
        return x;
    down = gckpt_linear(x, down, adapters_find_param(a, g, module, ".adapter.down.bias"));
    gckpt_tensor *up = adapters_find_param(a, g, module, ".adapter.up.weight");
    up = gckpt_linear(gckpt_gelu(down), up, adapters_find_param(a, g, module, ".adapter.up.bias"));
    return gckpt_add(x, up);
}

/* ---- the methods ----------------------------------------------------------------------------- */
/* Methods create their parameters by gckpt_param, in a graph that is made for this purpose. */
/* Returns whether a file of options.file_bytes bytes can hold the parameters of the method. A value
 * takes at least half a byte; the check allows twice as many values, and 1e6 in any case, since the
 * code that reads the file reports small differences. */
static inline int adapters_fits_file(const adapters *a)
{
    return a->options.file_bytes == 0 || a->elements <= 4 * (double)a->options.file_bytes + 1e6;
}

/* Creates a parameter of the method (LoRA, ..). Does nothing if the parameters created so far cannot
 * be in the adapter file that is loaded, as it is too short; adapters_begin then returns an error. */
static inline void adapters_new_param(adapters *a, gckpt_graph *g, const char *module, const char *end,
                                gckpt_shape shape, double normal, double uniform)
{
    const gckpt_init init = { (float)normal, (float)uniform, 0 };
    char name[MODEL_NAME];
    double n = 1;
    for (int i = 0; i < shape.n; i++)
        n *= (double)shape.d[i];
    a->elements += n;
    if (adapters_fits_file(a))
        gckpt_param(g, model_join(name, module, end), shape, init);
}

/* Unfreezes the parameters that match a pattern of gckpt_store_freeze. Returns an error if one of
 * them is quantised, because quantised parameters cannot be trained. */
static inline int adapters_unfreeze(adapters *a, const char *pattern)
{
    char regex[2 * MODEL_NAME]; /* the pattern converted to the syntax of pattern.h */
    size_t n = 0;
    gckpt_parameter p;
    for (const char *c = pattern; *c != 0; c++) {
        regex[n++] = *c == '*' ? '.' : *c;
        regex[n] = '*';
        n += *c == '*';
    }
    for (int i = 0; gckpt_store_peek(a->store, i, &p) == GCKPT_OK; i++)
        if (p.storage != GCKPT_STORAGE_F32 && pattern_match(p.name, 1, regex, n) != 0)
            return model_fail(a->model,
                              "%s: \"%s\" is quantised, and so frozen; load the model as F32",
                              adapters_names[a->options.method], p.name);
    return gckpt_store_freeze(a->store, pattern, 0) == GCKPT_OK
               ? 0
               : model_fail(a->model, "%s", gckpt_error_text(a->store));
}

static inline int adapters_full(adapters *a, gckpt_graph *g)
{
    (void)g;
    return adapters_unfreeze(a, "*");
}

/* Sets options.layers to `fallback` if it is 0. Returns options.layers, or 0 with the model's error
 * if options.layers is below 1 or above `most`. */
static inline int64_t adapters_layer_count(adapters *a, int64_t fallback, int64_t most)
{
    a->options.layers = a->options.layers != 0 ? a->options.layers : fallback;
    if (a->options.layers > 0 && a->options.layers <= most)
        return a->options.layers;
    model_fail(a->model, "%s: %lld layers: allowed is 1 to %lld", adapters_names[a->options.method],
               (long long)a->options.layers, (long long)most);
    return 0;
}

static inline int adapters_last(adapters *a, gckpt_graph *g)
{
    const int64_t n = adapters_layer_count(a, 1, a->model->config.layers);
    char name[MODEL_NAME];
    int failed =
        n == 0 || adapters_unfreeze(a, model_join(name, a->model->config.family->norm, ".*")) != 0;
    (void)g;
    for (int64_t i = a->model->config.layers - n; i < a->model->config.layers && !failed; i++)
        failed = adapters_unfreeze(a, model_block_name(&a->model->config, name, i, "*"));
    return failed ? -1 : 0;
}

/* Computes tensors that depend on parameters only, by an inference plan, and copies their values to
 * `to`, one tensor after the other. */
static inline int adapters_compute(adapters *a, gckpt_graph *g, gckpt_tensor *const *tensors,
                                  int count, float *to)
{
    gckpt_plan_desc desc;
    gckpt_exec_desc initial;
    memset(&desc, 0, sizeof desc);
    memset(&initial, 0, sizeof initial);
    initial.allow_initial = 1; /* the parameters of new adapters have initial values only */
    gckpt_fetch_spec *fetches = (gckpt_fetch_spec *)calloc((size_t)count, sizeof *fetches);
    for (int i = 0; i < count && fetches != NULL; i++)
        fetches[i].tensor = tensors[i];
    desc.mode = GCKPT_INFERENCE;
    desc.fetch.specs = fetches;
    desc.fetch.count = count;
    gckpt_plan *plan = fetches != NULL ? gckpt_plan_new(g, NULL, 0, &desc) : NULL;
    gckpt_exec *e = plan != NULL ? gckpt_exec_new(plan, a->store, &initial) : NULL;
    int failed = e == NULL
                     ? model_fail(a->model, "%s", gckpt_error_text(plan ? (void *)a->store : g))
                 : gckpt_forward(e, NULL, 0, 1, NULL) != GCKPT_OK
                     ? model_fail(a->model, "%s", gckpt_error_text(e))
                     : 0;
    for (int i = 0; i < count && !failed; i++) {
        const gckpt_shape s = gckpt_shape_of(tensors[i]);
        const size_t n = (size_t)(s.d[0] * s.d[1]);
        memcpy(to, gckpt_fetch(e, gckpt_id(tensors[i]), 0), n * sizeof *to);
        to += n;
    }
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    free(fetches);
    return failed;
}

/* Gives a model whose LM head is the embedding table a separate LM head, a frozen copy of that
 * table. */
static inline int adapters_untie(adapters *a, gckpt_graph *g)
{
    model_config *c = &a->model->config;
    const model_site at = { c, NULL, -1 };
    gckpt_parameter head;
    c->tied = 0;
    gckpt_tensor *from = gckpt_scale(model_param(g, &at, c->family->embeddings, ".weight"), 1);
    model_param(g, &at, "lm_head", ".weight");
    if (gckpt_error(g) != GCKPT_OK)
        return 0; /* adapters_begin will report the error */
    if (gckpt_store_freeze(a->store, "lm_head.weight", 1) != GCKPT_OK)
        return model_fail(a->model, "%s", gckpt_error_text(a->store));
    if (a->options.plan_only)
        return 0;
    if (gckpt_store_get(a->store, gckpt_store_find(a->store, "lm_head.weight"), &head) != GCKPT_OK)
        return model_fail(a->model, "%s", gckpt_error_text(a->store));
    return adapters_compute(a, g, &from, 1, head.values);
}

/* The hook model_hooks.prepare, which generator_new calls. Computes DoRA's factors of all layers
 * once, since weights do not change during generation. */
static inline int adapters_prepare(void *user)
{
    adapters *a = (adapters *)user;
    gckpt_parameter p;
    const int count = gckpt_store_count(a->store);
    const int64_t all = adapters_dora_offset(a, "");
    int n = 0;
    if (all == 0 || a->merged != NULL)
        return 0;
    /* allocated once and then reused, because other generators may be reading it */
    if (a->dora_scales == NULL)
        a->dora_scales = (float *)malloc((size_t)all * sizeof *a->dora_scales);
    gckpt_tensor **x = (gckpt_tensor **)calloc((size_t)count, sizeof *x);
    gckpt_graph *g = gckpt_graph_new(a->store, NULL);
    gckpt_store_pull(a->store, "*.lora_*");
    for (int i = 0; i < count && x != NULL && gckpt_store_peek(a->store, i, &p) == GCKPT_OK; i++) {
        char module[MODEL_NAME];
        if (!adapters_module_of(p.name, adapters_magnitude, module))
            continue;
        gckpt_tensor *down = adapters_find_param(a, g, module, ".lora_A.weight");
        const double scale = adapters_scale(a, module, gckpt_shape_of(down).d[0]);
        x[n] = adapters_dora_scale(a, module, adapters_find_param(a, g, module, ".weight"), down,
                                adapters_find_param(a, g, module, ".lora_B.weight"), scale);
        x[n] = gckpt_reshape(x[n], gckpt_shape2(1, p.elements));
        n++;
    }
    const int failed = x == NULL || a->dora_scales == NULL ? model_fail(a->model, "dora: out of memory")
                                                       : adapters_compute(a, g, x, n, a->dora_scales);
    gckpt_graph_free(g);
    free(x);
    return failed;
}

/* Method "head": trains a separate LM head only (linear probing), so the backward ends at the
 * head. */
static inline int adapters_head(adapters *a, gckpt_graph *g)
{
    if (a->model->config.tied && adapters_untie(a, g) != 0)
        return -1;
    return gckpt_error(g) != GCKPT_OK ? 0 : adapters_unfreeze(a, "lm_head.weight");
}

static inline int adapters_biases(adapters *a, gckpt_graph *g)
{
    gckpt_parameter p;
    int biases = 0;
    (void)g;
    for (int i = 0; gckpt_store_peek(a->store, i, &p) == GCKPT_OK; i++)
        biases += adapters_ends_with(p.name, ".bias");
    if (biases == 0 && a->options.method == ADAPTERS_LORA && a->options.lenient)
        return 0; /* not an error, because peft allows bias "all" for models without biases */
    if (biases == 0)
        return model_fail(
            a->model, "bias: this %s has no biases to train; choose another method, such as lora "
                      "on all-linear",
            a->model->config.family->name);
    return adapters_unfreeze(a, "*.bias");
}

/* Returns whether the result of this module is added to the residual stream. */
static inline int adapters_is_residual(const model_config *c, const char *module)
{
    const char *last = strrchr(module, '.');
    const size_t n = last != NULL ? strlen(++last) : 0;
    for (const char *p = c->family->residual; n > 0; p++) {
        const size_t k = strcspn(p, ",");
        if (k == n && strncmp(p, last, n) == 0)
            return 1;
        if (p[k] == 0)
            break;
        p += k;
    }
    return 0;
}

/* Method "new-blocks" (LLaMA Pro: Wu 2024): adds blocks to the end of the model. At first their
 * branches add nothing, because the last layer of each branch is 0. If a norm follows the branch,
 * the gain of that norm is 0 instead, since the norm of a row of zeros would have gradients of 1 /
 * sqrt(epsilon). */
static inline int adapters_added(adapters *a, gckpt_graph *g)
{
    model_config *c = &a->model->config;
    const int64_t n = adapters_layer_count(a, 1, 1000);
    const int64_t first = model_first_param(c, c->layers);
    float gain;
    int post_norms = 0;
    c->layers += n;
    const int64_t end = model_first_param(c, c->layers);
    for (int64_t i = first; i < end && c->family->is_post_norm != NULL; i++)
        post_norms |= c->family->is_post_norm(c, model_get_param(c, i).name, &gain);
    for (int64_t i = first; i < end; i++) {
        model_parameter p, module;
        p = model_get_param(c, i);
        if (post_norms && c->family->is_post_norm(c, p.name, &gain))
            p.init.constant = gain;
        else if (!post_norms && model_module(c, i, &module) && adapters_is_residual(c, module.name))
            p.init.normal = 0;
        gckpt_param(g, p.name, p.shape, p.init);
    }
    return n == 0 ? -1 : 0;
}

/* Unfreezes a parameter of modules_to_save. A quantised parameter is converted to F32 if that
 * changes no value (BF16, F16), or if its values will come from a file (lenient). */
static inline int adapters_train_parameter(adapters *a, const char *name)
{
    gckpt_parameter p;
    if (gckpt_store_peek(a->store, gckpt_store_find(a->store, name), &p) != GCKPT_OK)
        return model_fail(a->model, "modules_to_save: %s", gckpt_error_text(a->store));
    const int lossless = p.storage == GCKPT_STORAGE_BF16 || p.storage == GCKPT_STORAGE_F16;
    if (p.storage != GCKPT_STORAGE_F32 && !lossless && !a->options.lenient)
        return model_fail(a->model,
                          "modules_to_save: \"%s\" is quantised; load it as floats, by "
                          "model_source.floats",
                          name);
    if ((p.storage != GCKPT_STORAGE_F32 &&
         gckpt_store_quantise(a->store, name, GCKPT_STORAGE_F32) != GCKPT_OK) ||
        gckpt_store_freeze(a->store, name, 0) != GCKPT_OK)
        return model_fail(a->model, "modules_to_save: %s", gckpt_error_text(a->store));
    return 0;
}

/* Returns an error for names in modules_to_save that match no module. */
static inline int adapters_check_modules(adapters *a, const char *list)
{
    const model_config *c = &a->model->config;
    size_t n;
    for (const char *p = list; *p != 0; p += n + (p[n] == ',')) {
        char name[MODEL_NAME];
        int found = 0;
        n = strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        for (int64_t i = 0; i < model_param_count(c) && !found; i++)
            found = model_is_in_modules(c, name, model_get_param(c, i).name);
        /* peft lists both names of a head, whichever the model has */
        found |= c->head.task != MODEL_NEXT_TOKEN &&
                 (strcmp(name, "classifier") == 0 || strcmp(name, "score") == 0);
        if (!found && !(c->tied && model_is_in_modules(c, name, "lm_head.weight")))
            return model_fail(a->model,
                              "modules_to_save: \"%s\" is no module; allowed are %s, lm_head, %s and "
                              "modules of %s.0 to %s.%lld, such as %s",
                              name, c->family->embeddings, c->family->norm, c->family->blocks,
                              c->family->blocks, (long long)c->layers - 1, c->family->mlp);
    }
    return 0;
}

static inline int adapters_train_modules(adapters *a, gckpt_graph *g)
{
    model_config *c = &a->model->config;
    const char *list = a->options.modules_to_save;
    char table[MODEL_NAME];
    model_join(table, c->family->embeddings, ".weight");
    const int has_table =
        c->tied && c->head.task == MODEL_NEXT_TOKEN &&
        (model_is_in_modules(c, list, "lm_head.weight") || model_is_in_modules(c, list, table));
    if (adapters_check_modules(a, list) != 0)
        return -1;
    if (has_table && (a->options.tied ? adapters_train_parameter(a, table) : adapters_untie(a, g)))
        return -1;
    if (gckpt_error(g) != GCKPT_OK)
        return 0; /* adapters_begin will report the error */
    for (int64_t i = 0; i < model_param_count(c); i++) {
        const model_parameter p = model_get_param(c, i);
        if (model_is_in_modules(c, list, p.name) && adapters_train_parameter(a, p.name) != 0)
            return -1;
    }
    return 0;
}

/* Computes the squared norm of each row of a layer's weights (out,in), which may be quantised.
 * Processes a few rows at a time. */
static inline int adapters_row_squares(adapters *a, const char *weight, double *sums)
{
    static const int64_t most = 64; /* number of rows processed at a time */
    const gckpt_init none = { 0, 0, 0 };
    const int transposed = a->model->config.family->transposed;
    int32_t index[64];
    gckpt_parameter w;
    gckpt_plan_desc desc;
    gckpt_exec_desc initial;
    memset(&desc, 0, sizeof desc);
    memset(&initial, 0, sizeof initial);
    initial.allow_initial = 1; /* the weights of a new model have initial values only */
    if (gckpt_store_peek(a->store, gckpt_store_find(a->store, weight), &w) != GCKPT_OK)
        return model_fail(a->model, "dora: %s", gckpt_error_text(a->store));
    const int64_t all = w.shape.d[0], columns = w.shape.d[1];
    gckpt_graph *g = gckpt_graph_new(a->store, NULL);
    gckpt_tensor *rows = gckpt_input(g, "rows", GCKPT_I32, gckpt_shape1(all < most ? all : most));
    const gckpt_fetch_spec pick = { gckpt_embed(gckpt_param(g, weight, w.shape, none), rows), 0 };
    const gckpt_feed feed = { gckpt_id(rows), index };
    desc.mode = GCKPT_INFERENCE;
    desc.fetch.specs = &pick;
    desc.fetch.count = 1;
    gckpt_plan *plan = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = plan != NULL ? gckpt_exec_new(plan, a->store, &initial) : NULL;
    int failed =
        e == NULL ? model_fail(a->model, "dora: %s", gckpt_error_text(plan ? (void *)a->store : g))
                  : 0;
    for (int64_t first = 0; first < all && !failed; first += most) {
        const int64_t n = all - first < most ? all - first : most;
        for (int64_t i = 0; i < n; i++)
            index[i] = (int32_t)(first + i);
        failed = gckpt_forward(e, &feed, 1, n, NULL) != GCKPT_OK
                     ? model_fail(a->model, "dora: %s", gckpt_error_text(e))
                     : 0;
        const float *x = failed ? NULL : gckpt_fetch(e, gckpt_id(pick.tensor), 0);
        for (int64_t k = 0; x != NULL && k < n * columns; k++)
            sums[transposed ? first + k / columns : k % columns] += (double)x[k] * (double)x[k];
    }
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    return failed;
}

/* For each layer with DoRA, stores |W|^2 and sets m to |W|, the norms of the rows of W. Norms below
 * 1e-15 count as 1e-15. */
static inline int adapters_init_dora(adapters *a)
{
    gckpt_parameter m, squares;
    for (int i = 0; gckpt_store_peek(a->store, i, &m) == GCKPT_OK; i++) {
        char module[MODEL_NAME], name[MODEL_NAME];
        if (!adapters_module_of(m.name, adapters_magnitude, module))
            continue;
        double *sums = (double *)calloc((size_t)m.elements, sizeof *sums);
        int failed = sums == NULL ? model_fail(a->model, "dora: out of memory")
                                  : adapters_row_squares(a, model_join(name, module, ".weight"), sums);
        model_join(name, module, ".lora_squares");
        if (!failed &&
            (gckpt_store_get(a->store, i, &m) != GCKPT_OK ||
             gckpt_store_get(a->store, gckpt_store_find(a->store, name), &squares) != GCKPT_OK ||
             gckpt_store_freeze(a->store, name, 1) != GCKPT_OK))
            failed = model_fail(a->model, "dora: %s", gckpt_error_text(a->store));
        for (int64_t k = 0; k < m.elements && !failed; k++) {
            squares.values[k] = (float)(sums[k] > 1e-30 ? sums[k] : 1e-30);
            m.values[k] = (float)model_sqrt((double)squares.values[k]);
        }
        free(sums);
        if (failed)
            return -1;
        gckpt_store_push(a->store, name);
        gckpt_store_push(a->store, m.name);
    }
    return 0;
}

/* Creates the LoRA parameters of a module. A starts like torch's kaiming_uniform_(a = sqrt 5),
 * uniform in (-1,1) / sqrt(in); B starts at 0. */
static inline void adapters_lora_module(adapters *a, gckpt_graph *g, const model_parameter *p,
                                        int64_t rank)
{
    const model_config *c = &a->model->config;
    const int64_t in = model_in_features(c, p->shape), out = model_out_features(c, p->shape);
    adapters_new_param(a, g, p->name, ".lora_A.weight", gckpt_shape2(rank, in), 0,
                 1 / model_sqrt((double)in));
    adapters_new_param(a, g, p->name, ".lora_B.weight", gckpt_shape2(out, rank), 0, 0);
    if (a->options.dora) {
        adapters_new_param(a, g, p->name, adapters_magnitude, gckpt_shape1(out), 0, 0);
        adapters_new_param(a, g, p->name, ".lora_squares", gckpt_shape1(out), 0, 0);
    }
}

/* Returns 1 if the module gets LoRA, 0 if not, -1 with the model's error if a pattern is
 * malformed. */
static inline int adapters_is_target(adapters *a, const char *module)
{
    const adapters_options *o = &a->options;
    const model_config *c = &a->model->config;
    char weight[MODEL_NAME];
    model_join(weight, module, ".weight");
    const int excluded = adapters_match_list(a->model, o->excluded, module, NULL);
    const int listed = excluded != 0 ? (excluded < 0 ? -1 : 0)
                                     : adapters_match_list(a->model, o->targets, module, NULL);
    return listed > 0 ? adapters_in_layers(o->layers_to_transform, adapters_layer_of(c, module),
                                           NULL) > 0 &&
                            !model_is_in_modules(c, o->modules_to_save, weight)
                      : listed;
}

/* Returns an error if targets match the embedding table or the LM head: peft would add LoRA there,
 * but this file does not support it. */
static inline int adapters_check_tables(adapters *a)
{
    const adapters_options *o = &a->options;
    const char *const tables[] = { "lm_head", a->model->config.family->embeddings };
    for (int i = 0; i < 2 && *o->layers_to_transform == 0; i++)
        if (adapters_match_list(a->model, o->targets, tables[i], NULL) > 0 &&
            adapters_match_list(a->model, o->excluded, tables[i], NULL) == 0)
            return model_fail(a->model,
                              "lora: targets \"%s\" match %s, but only layers of blocks can have "
                                                  "LoRA here; remove it from the targets, or name "
                                                  "it in modules_to_save to train it as a whole",
                              o->targets, tables[i]);
    return 0;
}

static inline int adapters_lora(adapters *a, gckpt_graph *g)
{
    const model_config *c = &a->model->config;
    const adapters_options *o = &a->options;
    int64_t targets = 0;
    if (adapters_check_layers(a->model, o) != 0 || adapters_check_tables(a) != 0)
        return -1;
    for (int64_t i = 0; i < model_param_count(c); i++) {
        model_parameter p;
        double rank = (double)a->options.size, alpha = 0;
        if (!model_module(c, i, &p))
            continue;
        const int target = adapters_is_target(a, p.name);
        if (target < 0 || adapters_match_list(a->model, a->options.rank_pattern, p.name, &rank) < 0 ||
            adapters_match_list(a->model, a->options.alpha_pattern, p.name, &alpha) < 0)
            return -1;
        const int64_t r = rank < 1e6 ? (int64_t)rank : 0;
        if (!target)
            continue;
        if (r < 1 || (double)r != rank)
            return model_fail(a->model, "lora: rank %g of \"%s\": allowed is a whole number", rank,
                              p.name);
        targets++;
        adapters_lora_module(a, g, &p, r);
        model_join(p.name, p.name, ".bias");
        if (o->bias == ADAPTERS_LORA_BIASES && model_find_param(c, p.name) >= 0 &&
            adapters_unfreeze(a, p.name) != 0)
            return -1;
    }
    if (!o->lenient && (adapters_check_list(a->model, o->targets, NULL) != 0 ||
                     adapters_check_list(a->model, o->rank_pattern, o->targets) != 0 ||
                     adapters_check_list(a->model, o->alpha_pattern, o->targets) != 0))
        return -1;
    if (targets == 0) {
        char all[256];
        adapters_list_modules(c, all, sizeof all);
        return model_fail(a->model, "lora: targets \"%s\" match none of the layers %s%s",
                          o->targets, all, *o->excluded != 0 ? " that exclude_modules leaves; "
                                                               "change one of the two lists" : "");
    }
    return adapters_train_modules(a, g) != 0 ? -1
           : o->bias == ADAPTERS_ALL_BIASES ? adapters_biases(a, g)
                                            : 0;
}

static inline int adapters_houlsby(adapters *a, gckpt_graph *g)
{
    const model_config *c = &a->model->config;
    const int64_t C = c->width, m = a->options.size;
    for (int64_t i = 0; i < 2 * c->layers; i++) {
        char module[MODEL_NAME];
        model_block_name(c, module, i / 2, i % 2 ? c->family->mlp : c->family->attention);
        model_join(module, module, ".adapter");
        adapters_new_param(a, g, module, ".down.weight", gckpt_shape2(C, m), 0.01, 0);
        adapters_new_param(a, g, module, ".down.bias", gckpt_shape1(m), 0, 0);
        adapters_new_param(a, g, module, ".up.weight", gckpt_shape2(m, C), 0.01, 0);
        adapters_new_param(a, g, module, ".up.bias", gckpt_shape1(C), 0, 0);
    }
    return adapters_unfreeze(a, c->family->norms);
}

static inline int adapters_llama(adapters *a, gckpt_graph *g)
{
    const model_config *c = &a->model->config;
    const int64_t n = adapters_layer_count(a, c->layers, c->layers);
    for (int64_t i = c->layers - n; i < c->layers; i++) {
        char module[MODEL_NAME];
        model_block_name(c, module, i, c->family->attention);
        adapters_new_param(a, g, module, ".adaption_prompt", gckpt_shape3(1, a->options.size, c->width),
                     1, 0);
        adapters_new_param(a, g, module, ".adaption_gate", gckpt_shape1(1), 0, 0);
    }
    return n == 0 ? -1 : 0;
}

/* Creates the parameters of prefix tuning, whose initial values are those of torch's Embedding and
 * Linear. */
static inline int adapters_prefix(adapters *a, gckpt_graph *g)
{
    const model_config *c = &a->model->config;
    const int64_t C = c->width, P = a->options.size, H = a->options.hidden;
    const int64_t K = c->key_heads * c->head_dim;
    const double bound_c = 1 / model_sqrt((double)C), bound_h = 1 / model_sqrt((double)(H > 0 ? H : 1));
    if (H > 0) {
        adapters_new_param(a, g, "prefix", ".embedding.weight", gckpt_shape2(P, C), 1, 0);
        adapters_new_param(a, g, "prefix", ".transform.0.weight", gckpt_shape2(H, C), 0, bound_c);
        adapters_new_param(a, g, "prefix", ".transform.0.bias", gckpt_shape1(H), 0, bound_c);
    }
    for (int64_t i = 0; i < 2 * c->layers; i++) {
        char module[MODEL_NAME];
        model_block_name(c, module, i / 2, c->family->attention);
        model_join(module, module, i % 2 ? ".prefix_value" : ".prefix_key");
        if (H == 0)
            adapters_new_param(a, g, module, "", gckpt_shape2(P, K), 1, 0);
        else
            adapters_new_param(a, g, module, ".weight", gckpt_shape2(K, H), 0, bound_h);
        if (H > 0)
            adapters_new_param(a, g, module, ".bias", gckpt_shape1(K), 0, bound_h);
    }
    a->hooks.prefix = P;
    return 0;
}

static inline int adapters_prompt(adapters *a, gckpt_graph *g)
{
    a->hooks.prompt = a->options.size;
    adapters_new_param(a, g, "prompt_embeddings", "",
                 gckpt_shape2(a->options.size, a->model->config.width), 1, 0);
    return 0;
}

static inline void adapters_end(adapters *a)
{
    free(a->texts);
    free(a->merged);
    free(a->dora_scales);
    a->texts = NULL;
    a->merged = a->dora_scales = NULL;
}

/* Copies the texts of the options to a->texts, because the caller's may change. NULL becomes "". */
static inline int adapters_copy_texts(adapters *a)
{
    enum { TEXTS = 6 };
    adapters_options *o = &a->options;
    const char **const texts[TEXTS] = { &o->targets, &o->excluded,        &o->rank_pattern,
                                        &o->alpha_pattern,  &o->modules_to_save, &o->layers_to_transform };
    size_t n = TEXTS;
    for (int i = 0; i < TEXTS; i++)
        n += *texts[i] != NULL ? strlen(*texts[i]) : 0;
    char *to = a->texts = (char *)malloc(n);
    if (to == NULL)
        return model_fail(a->model, "out of memory");
    for (int i = 0; i < TEXTS; i++) {
        const size_t size = *texts[i] != NULL ? strlen(*texts[i]) : 0;
        memcpy(to, *texts[i] != NULL ? *texts[i] : "", size + 1);
        *texts[i] = to;
        to += size + 1;
    }
    return 0;
}

/* Freezes all parameters of the store, creates those of the method, and unfreezes the ones that the
 * method trains. Model and store must outlive *a. *a must stay where it is, because hooks point to
 * it. Build graphs afterwards, since HEAD and NEW_BLOCKS change the model's config. Call
 * adapters_end in any case, also after an error. */
static inline int adapters_begin(adapters *a, model_any *m, gckpt_store *store,
                                 const adapters_options *options)
{
    static int (*const begin[])(adapters *, gckpt_graph *) = {
        adapters_full, adapters_last,    adapters_head,  adapters_biases, adapters_added,
        adapters_lora, adapters_houlsby, adapters_llama, adapters_prefix, adapters_prompt
    };
    memset(a, 0, sizeof *a);
    a->options = *options;
    adapters_options *o = &a->options;
    if (o->targets == NULL || strcmp(o->targets, "all-linear") == 0)
        o->targets = (o->targets == NULL ? m->config.family->lora_targets
                                         : m->config.family->linear)(&m->config);
    o->size = o->size != 0                    ? o->size
              : o->method == ADAPTERS_LORA    ? 8
              : o->method == ADAPTERS_HOULSBY ? 64
                                              : 10;
    o->alpha = o->alpha > 0 ? o->alpha : 8;
    a->model = m;
    a->store = store;
    a->hooks.user = a;
    a->hooks.embedded = adapters_embedded;
    a->hooks.linear = adapters_linear;
    a->hooks.keys_values = adapters_keys_values;
    a->hooks.branch = adapters_branch;
    a->hooks.prepare = adapters_prepare;
    if (o->size < 1 || o->hidden < 0)
        return model_fail(m, "%s: size %lld and hidden %lld: allowed are a size of 1 or more and hidden of 0 or more",
                          adapters_names[o->method], (long long)o->size, (long long)o->hidden);
    if (!(o->alpha <= ADAPTERS_MAX_ALPHA) || !(o->dropout >= 0 && o->dropout < 1))
        return model_fail(m,
                          "%s: alpha %g, dropout %g: allowed are an alpha above 0, %g at most, and "
                          "a dropout from 0 to below 1",
                          adapters_names[o->method], o->alpha, o->dropout, ADAPTERS_MAX_ALPHA);
    if (m->config.uneven && (o->method == ADAPTERS_NEW_BLOCKS || o->method >= ADAPTERS_LLAMA))
        return model_fail(m,
                          "%s: not for %s, whose layers differ in size and share keys: choose "
                          "lora, houlsby, last or full",
                          adapters_names[o->method], m->config.type);
    if (adapters_copy_texts(a) != 0 || model_declare(m, store) != 0)
        return -1;
    if (o->method != ADAPTERS_LORA &&
        (o->dora || *o->modules_to_save != 0 || *o->layers_to_transform != 0))
        return model_fail(m, "%s: dora, modules_to_save and layers_to_transform are options of lora only",
                          adapters_names[o->method]);
    gckpt_store_freeze(store, "*", 1);
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    int failed = begin[o->method](a, g);
    if (!adapters_fits_file(a))
        failed =
            model_fail(m, "%s: its options describe %.0f values, more than its file of %lld bytes "
                          "can hold: the file is cut off, or belongs to another adapter",
                       adapters_names[o->method], a->elements, (long long)o->file_bytes);
    if (!failed && gckpt_error(g) != GCKPT_OK)
        failed = model_fail(m, "%s", gckpt_error_text(g));
    gckpt_graph_free(g);
    failed = failed || model_freeze_constants(m, store) != 0;
    return failed || (o->dora && !o->plan_only && adapters_init_dora(a) != 0) ? -1 : 0;
}

/* ---- merging --------------------------------------------------------------------------------- */
typedef enum { ADAPTERS_COUNT, ADAPTERS_MERGE, ADAPTERS_RESTORE } adapters_action;

/* Adds s A' B' to the weights w, with s = scale, A = down, B = up; w is (in,out), or (out,in) if
 * transposed is nonzero. With DoRA (m->values is not NULL), then rescales the weights of each
 * output to the norm in m. */
static inline int adapters_add_lora(gckpt_parameter *w, const gckpt_parameter *down,
                               const gckpt_parameter *up, const gckpt_parameter *m, double scale,
                               int transposed)
{
    const int64_t rank = down->shape.d[0], in = down->shape.d[1], out = up->shape.d[0];
    double *row = (double *)malloc((size_t)in * sizeof *row);
    for (int64_t o = 0; o < out && row != NULL; o++) {
        double squares = 0, rescale = 1;
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t r = 0; r < rank; r++)
                sum += (double)down->values[r * in + i] * (double)up->values[o * rank + r];
            row[i] = (double)w->values[transposed ? o * in + i : i * out + o] + scale * sum;
            squares += row[i] * row[i];
        }
        if (m->values != NULL)
            rescale = (double)m->values[o] / model_sqrt(squares > 1e-30 ? squares : 1e-30);
        for (int64_t i = 0; i < in; i++)
            w->values[transposed ? o * in + i : i * out + o] = (float)(rescale * row[i]);
    }
    free(row);
    return row != NULL ? 0 : -1;
}

/* Merges LoRA into each weight that has it, or restores the original weights, which a->merged holds
 * one after the other. Sets *elements to the number of these values; ADAPTERS_COUNT does nothing
 * else. */
static inline int adapters_each_weight(adapters *a, adapters_action act, int64_t *elements)
{
    gckpt_parameter down, up, w, m;
    *elements = 0;
    for (int i = 0; gckpt_store_peek(a->store, i, &down) == GCKPT_OK; i++) {
        char module[MODEL_NAME], name[MODEL_NAME];
        if (!adapters_module_of(down.name, ".lora_A.weight", module))
            continue;
        model_join(name, module, ".lora_B.weight");
        if (gckpt_store_get(a->store, i, &down) != GCKPT_OK ||
            gckpt_store_get(a->store, gckpt_store_find(a->store, name), &up) != GCKPT_OK ||
            gckpt_store_get(a->store,
                            gckpt_store_find(a->store, model_join(name, module, ".weight")),
                            &w) != GCKPT_OK)
            return model_fail(a->model, "merge: %s", gckpt_error_text(a->store));
        if (w.values == NULL)
            return model_fail(a->model, "merge: \"%s\" is quantised; load the model as F32", name);
        float *kept = a->merged != NULL ? a->merged + *elements : NULL;
        *elements += w.elements;
        if (act == ADAPTERS_COUNT)
            continue;
        memcpy(act == ADAPTERS_MERGE ? kept : w.values, act == ADAPTERS_MERGE ? w.values : kept,
               (size_t)w.elements * sizeof *kept);
        char magnitude[MODEL_NAME];
        m.values = NULL;
        model_join(magnitude, module, adapters_magnitude);
        if (a->options.dora &&
            gckpt_store_get(a->store, gckpt_store_find(a->store, magnitude), &m) != GCKPT_OK)
            return model_fail(a->model, "merge: %s", gckpt_error_text(a->store));
        if (act == ADAPTERS_MERGE &&
            adapters_add_lora(&w, &down, &up, &m, adapters_scale(a, module, down.shape.d[0]),
                         a->model->config.family->transposed) != 0)
            return model_fail(a->model, "merge: out of memory");
        gckpt_store_push(a->store, name);
    }
    return 0;
}

/* Adds LoRA's products to the weights and, with DoRA, rescales them. Keeps a copy of the original
 * weights. Graphs that are built afterwards have no LoRA branches, and model_save writes the merged
 * weights. */
static inline int adapters_merge(adapters *a)
{
    int64_t n;
    if (a->options.method != ADAPTERS_LORA || a->merged != NULL)
        return model_fail(a->model, "merge: %s",
                          a->merged != NULL ? "it is merged already"
                                            : "only LoRA can be merged");
    if (adapters_each_weight(a, ADAPTERS_COUNT, &n) != 0)
        return -1;
    a->merged = (float *)malloc((size_t)n * sizeof *a->merged);
    if (a->merged == NULL)
        return model_fail(a->model, "merge: out of memory for a copy of %lld weights", (long long)n);
    return adapters_each_weight(a, ADAPTERS_MERGE, &n);
}

/* Restores the original weights, which adapters_merge has copied, with the same bits. */
static inline int adapters_unmerge(adapters *a)
{
    int64_t n;
    if (a->merged == NULL)
        return model_fail(a->model, "unmerge: nothing is merged");
    const int failed = adapters_each_weight(a, ADAPTERS_RESTORE, &n);
    free(a->merged);
    a->merged = NULL;
    return failed;
}
#include "gguf_adapter.h"
#include "peft.h" /* defines adapters_save and adapters_load */
#endif
