/* gpt2.h - GPT-2 as a family of model.h, which includes this file. To copy with model.h.
 *
 *     model_any m; // a new model; model_load reads one from files
 *     gpt2_new(&m, 12, 12, 768, 1024, 50257);
 *     model_declare(&m, store);
 *
 * Dense layers are Conv1D of transformers, whose weights are (in,out), as gckpt_linear takes
 * them. Positions are learned embeddings (Radford 2019). C99 or C++11. */
#ifndef GPT2_H
#define GPT2_H
#ifndef MODEL_H
#error "include model.h"
#endif
/* ---- parameters: a table -------------------------------------------------------------------- */
/* Shapes of the parameters of a block, then of those outside the blocks. The letters mean sizes: C
 * width, 3 three times the width, I inner width of the MLP, V vocabulary, P positions. '1' in
 * `rows` means that the parameter is a vector. */
static const struct {
    const char *name;
    char rows, columns;
} gpt2_table[] = {
    { "ln_1.weight", '1', 'C' },        { "ln_1.bias", '1', 'C' },
    { "attn.c_attn.weight", 'C', '3' }, { "attn.c_attn.bias", '1', '3' },
    { "attn.c_proj.weight", 'C', 'C' }, { "attn.c_proj.bias", '1', 'C' },
    { "ln_2.weight", '1', 'C' },        { "ln_2.bias", '1', 'C' },
    { "mlp.c_fc.weight", 'C', 'I' },    { "mlp.c_fc.bias", '1', 'I' },
    { "mlp.c_proj.weight", 'I', 'C' },  { "mlp.c_proj.bias", '1', 'C' },
    { "wte.weight", 'V', 'C' },         { "wpe.weight", 'P', 'C' },
    { "ln_f.weight", '1', 'C' },        { "ln_f.bias", '1', 'C' },
    { "lm_head.weight", 'V', 'C' },
};
enum { GPT2_BLOCK_PARAMS = 12 };

static inline int gpt2_block_params(const model_config *c, int64_t layer)
{
    return (void)c, (void)layer, GPT2_BLOCK_PARAMS;
}

static inline int64_t gpt2_dim(const model_config *c, char letter)
{
    return letter == 'C'   ? c->width
           : letter == '3' ? 3 * c->width
           : letter == 'I' ? c->inner
           : letter == 'V' ? c->vocabulary
           : letter == 'P' ? c->context
                           : 1;
}

/* Describes a parameter. Initial values are those of transformers, N(0, range), with a smaller
 * range in layers that add to the residual stream. */
static inline void gpt2_get_param(const model_config *c, int64_t layer, int part, model_parameter *p)
{
    const int row = layer < 0 ? GPT2_BLOCK_PARAMS + part : part;
    const char *name = gpt2_table[row].name;
    const char rows = gpt2_table[row].rows, columns = gpt2_table[row].columns;
    const int64_t n = gpt2_dim(c, columns);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->shape = rows == '1' ? gckpt_shape1(n) : gckpt_shape2(gpt2_dim(c, rows), n);
    if (rows != '1')
        p->init.normal = (float)(strstr(name, "c_proj") == NULL
                                     ? c->init_range
                                     : c->init_range / model_sqrt(2.0 * (double)c->layers));
    else if (strncmp(name, "ln_", 3) == 0 && strstr(name, "weight") != NULL)
        p->init.constant = 1;
}

/* Returns whether a tensor in a file is a causal mask, which old files contain and which is no
 * parameter. */
static inline int gpt2_is_skipped(const char *name)
{
    const char *end = strstr(name, ".attn.");
    return end != NULL && (strcmp(end, ".attn.bias") == 0 || strcmp(end, ".attn.masked_bias") == 0);
}

/* ---- building the graph ---------------------------------------------------------------------- */
static inline gckpt_tensor *gpt2_norm(const model_site *at, gckpt_tensor *x, const char *part)
{
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *gain = model_param(g, at, part, ".weight");
    return gckpt_layernorm(x, gain, model_param(g, at, part, ".bias"), 0);
}

/* Appends a block to x: (B,T,C) -> (B,T,C). It is one segment for gckpt_checkpoint. */
static inline gckpt_tensor *gpt2_block(gckpt_tensor *x, void *user)
{
    const model_site *at = (const model_site *)user;
    const model_hooks *hooks = at->options->hooks;
    const int64_t C = at->config->width, capacity = at->options->capacity;
    /* shape (B,T,3C): queries, keys and values */
    gckpt_tensor *a = model_linear(at, gpt2_norm(at, x, "ln_1"), "attn.c_attn");
    gckpt_tensor *q = gckpt_slice(a, -1, 0, C);
    gckpt_tensor *k = gckpt_slice(a, -1, C, 2 * C);
    gckpt_tensor *v = gckpt_slice(a, -1, 2 * C, 3 * C);
    if (hooks != NULL && hooks->keys_values != NULL)
        hooks->keys_values(hooks->user, at, &k, &v);
    if (capacity > 0) {
        k = gckpt_cache(k, capacity);
        v = gckpt_cache(v, capacity);
    }
    a = model_attention(at->config, q, k, v, 1);
    x = gckpt_add(x, model_branch(at, q, model_linear(at, a, "attn.c_proj")));
    /* shape (B,T,I), with I the inner width */
    a = model_linear(at, gpt2_norm(at, x, "ln_2"), "mlp.c_fc");
    a = model_linear(at, at->config->activation(a), "mlp.c_proj");
    return gckpt_add(x, model_branch(at, NULL, a));
}

static inline gckpt_tensor *gpt2_hidden(const model_any *m, gckpt_tensor *tokens,
                                        const model_options *o)
{
    const model_hooks *hooks = o->hooks;
    model_site at = { &m->config, o, -1 };
    gckpt_graph *g = gckpt_graph_of(tokens);
    gckpt_tensor *x = gckpt_embed(model_param(g, &at, "wte", ".weight"), tokens);
    if (hooks != NULL && hooks->embedded != NULL)
        x = hooks->embedded(hooks->user, &at, x);
    gckpt_tensor *table = model_param(g, &at, "wpe", ".weight");
    const int64_t first = o->capacity == 0 && hooks != NULL ? hooks->prefix : 0;
    x = gckpt_positions(x, table, first);
    if (o->dropout > 0)
        x = gckpt_dropout(x, (float)o->dropout);
    for (at.layer = 0; at.layer < m->config.layers; at.layer++)
        x = gckpt_checkpoint(gpt2_block, x, &at);
    at.layer = -1;
    if (o->capacity == 0 && hooks != NULL && hooks->prompt > 0)
        x = gckpt_slice(x, 1, hooks->prompt, gckpt_shape_of(x).d[1]);
    return gpt2_norm(&at, x, "ln_f");
}

/* Computes keys and values of the prompts of LLaMA-Adapter, with the weights of c_attn. */
static inline void gpt2_keys_values(const model_site *at, gckpt_tensor *prompts, gckpt_tensor **k,
                                    gckpt_tensor **v)
{
    gckpt_graph *g = gckpt_graph_of(prompts);
    const int64_t C = at->config->width;
    gckpt_tensor *w = model_param(g, at, "attn.c_attn", ".weight");
    prompts = gckpt_linear(prompts, w, model_param(g, at, "attn.c_attn", ".bias"));
    *k = gckpt_slice(prompts, -1, C, 2 * C);
    *v = gckpt_slice(prompts, -1, 2 * C, 3 * C);
}

/* ---- config.json ----------------------------------------------------------------------------- */
/* Returns an error if config.json selects a variant of GPT-2 that this file does not build. */
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
            json_mismatch(d, json_find(d, JSON_ROOT, fixed[i].key),
                       fixed[i].value ? "true, all that is supported"
                                      : "false, all that is supported");
    const double eps = json_real(d, JSON_ROOT, "layer_norm_epsilon", 1e-5);
    if (eps < 0.999999e-5 || eps > 1.000001e-5)
        json_mismatch(d, json_find(d, JSON_ROOT, "layer_norm_epsilon"), "1e-5, all that is supported");
}

/* Reads a size that may have one of two names in config.json. If both are there, `alias` counts, as
 * in transformers. */
static inline int64_t gpt2_read_size(json *d, const char *key, const char *alias, int64_t fallback)
{
    return model_read_size(d, json_find_nonnull(d, JSON_ROOT, alias) != 0 ? alias : key, fallback);
}

/* Reads config.json. Missing keys have the defaults of transformers' GPT2Config. */
static inline int gpt2_read_config(model_any *m)
{
    json *d = &m->config_json;
    model_config *c = &m->config;
    gpt2_refuse_others(d);
    c->type = "gpt2";
    c->layers = gpt2_read_size(d, "n_layer", "num_hidden_layers", 12);
    c->heads = c->key_heads = gpt2_read_size(d, "n_head", "num_attention_heads", 12);
    c->width = gpt2_read_size(d, "n_embd", "hidden_size", 768);
    c->inner = model_read_size(d, "n_inner", 4 * c->width);
    c->context = gpt2_read_size(d, "n_positions", "max_position_embeddings", 1024);
    c->vocabulary = model_read_size(d, "vocab_size", 50257);
    c->tied = json_bool(d, JSON_ROOT, "tie_word_embeddings", 1);
    c->head_dim = c->width / c->heads;
    if (c->width % c->heads != 0)
        json_fail(d, 0, "n_embd %lld is no multiple of n_head %lld", (long long)c->width,
                  (long long)c->heads);
    const uint32_t at = json_find_nonnull(d, JSON_ROOT, "activation_function");
    c->activation = at ? model_read_activation(d, at) : gckpt_gelu;
    return d->error[0] != 0 ? -1 : 0;
}

static inline void gpt2_write_config(const model_any *m, FILE *f)
{
    fprintf(f, ",\n  \"n_layer\": %lld", (long long)m->config.layers);
}

/* Writes those keys of config.json that a new GPT-2 needs and that model.h does not write. */
static inline void gpt2_write_new_config(const model_config *c, FILE *f)
{
    fprintf(f, ",\n  \"n_head\": %lld,\n  \"n_embd\": %lld,\n  \"n_inner\": %lld",
            (long long)c->heads, (long long)c->width, (long long)c->inner);
    fprintf(f, ",\n  \"n_positions\": %lld,\n  \"n_ctx\": %lld,\n  \"vocab_size\": %lld",
            (long long)c->context, (long long)c->context, (long long)c->vocabulary);
    fprintf(f, ",\n  \"activation_function\": \"%s\",\n  \"layer_norm_epsilon\": 1e-05",
            model_activation_name(c->activation));
    fprintf(f, ",\n  \"initializer_range\": %.9g", c->init_range);
    if (c->eos[0] >= 0)
        fprintf(f, ",\n  \"bos_token_id\": %d,\n  \"eos_token_id\": %d", (int)c->eos[0],
                (int)c->eos[0]);
}

static inline const char *gpt2_architecture(const model_config *c)
{
    return (void)c, "GPT2LMHeadModel";
}

static inline const char *gpt2_linear(const model_config *c)
{
    return (void)c, "c_attn,c_proj,c_fc";
}

static inline const char *gpt2_lora_targets(const model_config *c) { return (void)c, "c_attn"; }

static const model_family gpt2_family = {
    "GPT-2",
    "gpt2",
    gpt2_read_config,
    " n_layer num_hidden_layers ",
    gpt2_write_config,
    gpt2_write_new_config,
    gpt2_architecture,
    2, /* number of parameters before the blocks */
    2, /* number of parameters after the blocks, in addition to the LM head */
    gpt2_block_params,
    gpt2_get_param,
    gpt2_is_skipped,
    0,
    "transformer.",
    "lm_head.weight",
    "h",
    "wte",
    "ln_f",
    "attn",
    "mlp",
    gpt2_linear,
    "c_proj",
    "*ln_*",
    gpt2_lora_targets,
    gpt2_hidden,
    gpt2_keys_values,
    NULL,
    NULL,
};

/* Makes *m a new GPT-2 of these sizes. The smallest released GPT-2 has (12, 12, 768, 1024,
 * 50257). */
static inline void gpt2_new(model_any *m, int64_t layers, int64_t heads, int64_t width,
                            int64_t context, int64_t vocabulary)
{
    model_config *c = &m->config;
    memset(m, 0, sizeof *m);
    c->family = &gpt2_family;
    c->type = "gpt2";
    c->layers = layers;
    c->heads = c->key_heads = heads;
    c->head_dim = heads > 0 ? width / heads : 0;
    c->width = width;
    c->inner = 4 * width;
    c->context = context;
    c->vocabulary = vocabulary;
    c->activation = gckpt_gelu;
    c->tied = 1;
    c->eos[0] = vocabulary == 50257 ? 50256 : -1;
    c->eos[1] = -1;
    c->init_range = 0.02;
}
#endif
