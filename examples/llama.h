/* llama.h - Llama-like models as a family of model.h, which includes this file. To copy with
 * model.h.
 *
 *     model_any m; // a new model; model_load reads one from files
 *     // layers, width, heads, key heads, context, vocabulary:
 *     llama_new(&m, 16, 2048, 32, 8, 8192, 128256);
 *     model_declare(&m, store);
 *
 * Builds model_type llama, mistral, qwen2, qwen3, smollm3, gemma, gemma2 and gemma3_text. They
 * have root-mean-square norms (Zhang & Sennrich 2019), rotary positions (Su 2021), key heads
 * that several query heads share (Ainslie 2023) and a gated MLP (Shazeer 2020), as in Llama
 * (Touvron 2023). Differences are read from config.json: biases, norms of heads, norms after
 * attention and MLP, layers without positions, sliding-window layers (Jiang 2023), which in
 * Gemma 3 have different rotary frequencies, scaled frequencies (linear; llama3; yarn: Peng
 * 2023), caps of scores and logits (Gemma 2), activation, and whether the head is the embedding
 * table. During generation, a layer with a window keeps only the keys that its window needs.
 * Weights are (out,in), like torch's Linear and for gckpt_linear_transposed. C99 or C++11. */
#ifndef LLAMA_H
#define LLAMA_H
#ifndef MODEL_H
#error "include model.h, which includes llama.h"
#endif

/* Says which layers have a sliding window if config.json has no layer_types, in this order: none;
 * all; those from max_window_layers on; those without rotary positions; or all except every n-th, n
 * from sliding_window_pattern. */
typedef enum {
    LLAMA_NO_WINDOW,
    LLAMA_ALL_LAYERS,
    LLAMA_LATER_LAYERS,
    LLAMA_NO_ROPE,
    LLAMA_PATTERN
} llama_windows;

/* Model types, with the defaults of transformers for keys that config.json lacks. */
static const struct {
    const char *type, *architecture;
    /* key_heads: 0 means as many as heads; head: columns of a head, 0 means width / heads */
    int64_t key_heads, head;
    double base;
    int tied;
    llama_windows windows;
    int gemma; /* 1 to 3 for versions of Gemma, 0 for other types */
} llama_types[] = {
    { "llama", "LlamaForCausalLM", 0, 0, 10000, 0, LLAMA_NO_WINDOW, 0 },
    { "mistral", "MistralForCausalLM", 8, 0, 10000, 0, LLAMA_ALL_LAYERS, 0 },
    { "qwen2", "Qwen2ForCausalLM", 32, 0, 10000, 0, LLAMA_LATER_LAYERS, 0 },
    { "qwen3", "Qwen3ForCausalLM", 32, 128, 10000, 0, LLAMA_LATER_LAYERS, 0 },
    { "smollm3", "SmolLM3ForCausalLM", 4, 0, 2000000, 1, LLAMA_NO_ROPE, 0 },
    { "gemma", "GemmaForCausalLM", 16, 256, 10000, 1, LLAMA_NO_WINDOW, 1 },
    { "gemma2", "Gemma2ForCausalLM", 4, 256, 10000, 1, LLAMA_PATTERN, 2 },
    { "gemma3_text", "Gemma3ForCausalLM", 4, 256, 1000000, 1, LLAMA_PATTERN, 3 },
};
enum { LLAMA_TYPES = sizeof llama_types / sizeof llama_types[0], LLAMA_MAX_HEAD_DIM = 1024 };

/* ---- parameters: a table -------------------------------------------------------------------- */
/* Shapes of the parameters of a block. The letters mean sizes: C width, Q all heads of queries
 * together, K all heads of keys together, D a head, I inner width of the MLP; '1' in `rows` means
 * that the parameter is a vector. `where` says which models have the parameter: 0, all models; q,
 * models with biases of queries, keys and values; o, with a bias of attention's output; m, with
 * biases in the MLP; n, with norms of heads; p, with norms before and after the MLP. In the last
 * ones, post_attention_layernorm really comes after attention; in all others it comes before the
 * MLP. */
static const struct {
    const char *name;
    char rows, columns, where;
} llama_table[] = {
    { "input_layernorm.weight", '1', 'C', 0 },
    { "self_attn.q_proj.weight", 'Q', 'C', 0 },
    { "self_attn.q_proj.bias", '1', 'Q', 'q' },
    { "self_attn.k_proj.weight", 'K', 'C', 0 },
    { "self_attn.k_proj.bias", '1', 'K', 'q' },
    { "self_attn.v_proj.weight", 'K', 'C', 0 },
    { "self_attn.v_proj.bias", '1', 'K', 'q' },
    { "self_attn.q_norm.weight", '1', 'D', 'n' },
    { "self_attn.k_norm.weight", '1', 'D', 'n' },
    { "self_attn.o_proj.weight", 'C', 'Q', 0 },
    { "self_attn.o_proj.bias", '1', 'C', 'o' },
    { "post_attention_layernorm.weight", '1', 'C', 0 },
    { "pre_feedforward_layernorm.weight", '1', 'C', 'p' },
    { "post_feedforward_layernorm.weight", '1', 'C', 'p' },
    { "mlp.gate_proj.weight", 'I', 'C', 0 },
    { "mlp.gate_proj.bias", '1', 'I', 'm' },
    { "mlp.up_proj.weight", 'I', 'C', 0 },
    { "mlp.up_proj.bias", '1', 'I', 'm' },
    { "mlp.down_proj.weight", 'C', 'I', 0 },
    { "mlp.down_proj.bias", '1', 'C', 'm' },
};
enum { LLAMA_PARAMS = sizeof llama_table / sizeof llama_table[0] };

static inline int llama_has_param(const model_config *c, char where)
{
    return where == 'q'   ? c->llama.qkv_bias
           : where == 'o' ? c->llama.output_bias
           : where == 'm' ? c->llama.mlp_bias
           : where == 'n' ? c->llama.head_norms
           : where == 'p' ? c->llama.post_norms
                          : 1;
}

static inline int64_t llama_dim(const model_config *c, char letter)
{
    return letter == 'C'   ? c->width
           : letter == 'Q' ? c->heads * c->head_dim
           : letter == 'K' ? c->key_heads * c->head_dim
           : letter == 'D' ? c->head_dim
           : letter == 'I' ? c->inner
                           : 1;
}

static inline int llama_block_params(const model_config *c)
{
    int n = 0;
    for (int i = 0; i < LLAMA_PARAMS; i++)
        n += llama_has_param(c, llama_table[i].where);
    return n;
}

static inline int llama_is_norm(const char *name) { return strstr(name, "norm.weight") != NULL; }

static inline void llama_get_param(const model_config *c, int64_t layer, int part, model_parameter *p)
{
    static const char *const outside[] = { "embed_tokens.weight", "norm.weight", "lm_head.weight" };
    int row = -1;
    for (int left = part; layer >= 0 && left >= 0; left--)
        while (!llama_has_param(c, llama_table[++row].where))
            ;
    snprintf(p->name, sizeof p->name, "%s", row < 0 ? outside[part] : llama_table[row].name);
    if (row < 0)
        p->shape = part == 1 ? gckpt_shape1(c->width) : gckpt_shape2(c->vocabulary, c->width);
    else if (llama_table[row].rows == '1')
        p->shape = gckpt_shape1(llama_dim(c, llama_table[row].columns));
    else
        p->shape = gckpt_shape2(llama_dim(c, llama_table[row].rows),
                                llama_dim(c, llama_table[row].columns));
    if (p->shape.n == 2)
        p->init.normal = (float)c->init_range;
    else if (llama_is_norm(p->name))
        p->init.constant = (float)!c->llama.plus_one;
}

/* Returns whether a tensor in a file is a table of rotary frequencies, which old files contain and
 * which is no parameter. */
static inline int llama_is_skipped(const char *name)
{
    return strstr(name, ".rotary_emb.inv_freq") != NULL;
}

/* ---- positions ------------------------------------------------------------------------------- */
/* Returns the natural logarithm of x > 0. Like llama_exp, it makes a math library unnecessary */
static inline double llama_log(double x)
{
    int twos = 0;
    for (; x > 1.5; x /= 2)
        twos++;
    for (; x < 0.75; x *= 2)
        twos--;
    const double y = (x - 1) / (x + 1);
    double sum = 0, power = y;
    for (int k = 1; k < 60; k += 2, power *= y * y)
        sum += power / k;
    return twos * 0.69314718055994530942 + 2 * sum;
}

static inline double llama_exp(double x)
{
    int doubled = 0;
    double sum = 1, term = 1;
    for (; x > 0.5 || x < -0.5; x /= 2)
        doubled++;
    for (int k = 1; k < 20; k++)
        sum += term *= x / k;
    for (; doubled > 0; doubled--)
        sum *= sum;
    return sum;
}

static inline double llama_clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* For YaRN: returns the index of the pair of columns that rotates `rotations` times within the
 * original context. */
static inline double llama_yarn_dim(const llama_positions *l, int64_t head, double rotations)
{
    const double two_pi = 6.28318530717958647693;
    return (double)head * llama_log(l->original / (rotations * two_pi)) / (2 * llama_log(l->base));
}

static inline double llama_round(double x, int up)
{
    if (!(x > -1e15 && x < 1e15)) /* numbers this large have no fraction */
        return x;
    const double n = (double)(int64_t)x; /* the conversion to an integer rounds towards 0 */
    return up ? n + (n < x) : n - (n > x);
}

/* Computes, for each pair of columns of a head, the rotation angle per position, as
 * modeling_rope_utils of transformers does. `head` is the number of columns of a head. */
static inline void llama_frequencies(const llama_positions *l, int64_t head, float *to)
{
    double low = 0, high = 0;
    if (l->scaling == LLAMA_YARN) {
        low = llama_yarn_dim(l, head, l->fast);
        high = llama_yarn_dim(l, head, l->slow);
        low = l->truncate ? llama_round(low, 0) : low;
        high = l->truncate ? llama_round(high, 1) : high;
        low = low > 0 ? low : 0;
        high = high < (double)head - 1 ? high : (double)head - 1;
        high += high == low ? 0.001 : 0;
    }
    for (int64_t i = 0; i < head / 2; i++) {
        const double f = llama_exp(-2.0 * (double)i / (double)head * llama_log(l->base));
        /* fraction of the angle that the scaling keeps; the rest is divided by the factor */
        double kept = 0;
        if (l->scaling == LLAMA_YARN)
            kept = 1 - llama_clamp(((double)i - low) / (high - low), 0, 1);
        else if (l->scaling == LLAMA_LLAMA3) {
            const double rotations = l->original * f / 6.28318530717958647693;
            kept = llama_clamp((rotations - l->low) / (l->high - l->low), 0, 1);
        }
        to[i] = (float)(f * kept + f / l->factor * (1 - kept));
    }
}

/* ---- building the graph ---------------------------------------------------------------------- */
typedef struct {
    model_site site;              /* must be the first field, because hooks get a pointer to it */
    /* [0]: for layers with full attention; [1]: for layers with a sliding window */
    gckpt_rotary_desc rotary[2];
    /* constant 1, if norms multiply by 1 + weight; NULL if they multiply by weight */
    gckpt_tensor *one;
} llama_site;

/* Returns the bit of a layer in one of the bit sets of llama_config. */
static inline int llama_bit(const uint64_t *mask, int64_t layer)
{
    return layer >= 0 && layer < LLAMA_MASK_BITS && (mask[layer / 64] >> layer % 64 & 1) != 0;
}

static inline gckpt_tensor *llama_norm(const llama_site *p, gckpt_tensor *x, const char *part)
{
    gckpt_tensor *gain = model_param(gckpt_graph_of(x), &p->site, part, ".weight");
    return gckpt_rmsnorm(x, p->one != NULL ? gckpt_add(gain, p->one) : gain,
                             (float)p->site.config->llama.epsilon);
}

/* If the model has norms of heads, normalises each head of x (B,T,heads D); else returns x. */
static inline gckpt_tensor *llama_head_norm(const llama_site *p, gckpt_tensor *x, const char *part)
{
    const gckpt_shape s = gckpt_shape_of(x);
    const int64_t D = p->site.config->head_dim;
    if (!p->site.config->llama.head_norms || s.n != 3)
        return x;
    x = gckpt_reshape(x, gckpt_shape4(s.d[0], s.d[1], s.d[2] / D, D));
    return gckpt_reshape(llama_norm(p, x, part), s);
}

static inline gckpt_tensor *llama_rope(const llama_site *p, gckpt_tensor *x, int64_t heads)
{
    const llama_config *l = &p->site.config->llama;
    gckpt_rotary_desc desc = p->rotary[llama_bit(l->sliding, p->site.layer)];
    desc.heads = (int)heads;
    return llama_bit(l->no_rope, p->site.layer) ? x : gckpt_rotary(x, &desc);
}

/* Returns attention of queries, keys and values; rotary positions have been applied. In a graph for
 * generation, the keys and values are cached. */
static inline gckpt_tensor *llama_attention(const llama_site *p, gckpt_tensor *q, gckpt_tensor *k,
                                            gckpt_tensor *v)
{
    const model_config *c = p->site.config;
    const int64_t capacity = p->site.options->capacity;
    gckpt_attention_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.heads = (int)c->heads;
    desc.key_heads = (int)c->key_heads;
    desc.causal = 1;
    desc.window = llama_bit(c->llama.sliding, p->site.layer) ? c->llama.window : 0;
    desc.cap = (float)c->llama.score_cap;
    desc.scale = (float)c->llama.score_scale;
    if (capacity > 0) {
        const model_hooks *hooks = p->site.options->hooks;
        /* number of vectors that hooks put before the tokens; they enter the caches in one call */
        const int64_t first = hooks != NULL ? hooks->prefix + hooks->prompt : 0;
        const int64_t kept = desc.window + (desc.window > 0 && first > 64 ? first - 64 : 0);
        k = gckpt_cache_window(k, capacity, kept);
        v = gckpt_cache_window(v, capacity, kept);
    }
    return gckpt_attention(q, k, v, &desc);
}

/* Adds the result of a branch to x. If the model has norms after branches, first applies the norm
 * called `norm` to the result. */
static inline gckpt_tensor *llama_add_branch(const llama_site *p, gckpt_tensor *x, gckpt_tensor *branch,
                                      const char *norm)
{
    return gckpt_add(x, p->site.config->llama.post_norms ? llama_norm(p, branch, norm) : branch);
}

/* Appends a block to x: (B,T,C) -> (B,T,C). It is one segment for gckpt_checkpoint. */
static inline gckpt_tensor *llama_block(gckpt_tensor *x, void *user)
{
    const llama_site *p = (const llama_site *)user;
    const model_site *at = &p->site;
    const model_config *c = at->config;
    const model_hooks *hooks = at->options->hooks;
    gckpt_tensor *a = llama_norm(p, x, "input_layernorm");
    gckpt_tensor *q =
        llama_head_norm(p, model_linear(at, a, "self_attn.q_proj"), "self_attn.q_norm");
    gckpt_tensor *k =
        llama_head_norm(p, model_linear(at, a, "self_attn.k_proj"), "self_attn.k_norm");
    gckpt_tensor *v = model_linear(at, a, "self_attn.v_proj");
    q = llama_rope(p, q, c->heads);
    k = llama_rope(p, k, c->key_heads);
    if (hooks != NULL && hooks->keys_values != NULL)
        hooks->keys_values(hooks->user, at, &k, &v);
    a = model_linear(at, llama_attention(p, q, k, v), "self_attn.o_proj");
    x = llama_add_branch(p, x, model_branch(at, q, a), "post_attention_layernorm");
    a = llama_norm(p, x,
                   c->llama.post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    /* shape (B,T,I), with I the inner width */
    gckpt_tensor *gate = c->activation(model_linear(at, a, "mlp.gate_proj"));
    a = model_linear(at, gckpt_mul(gate, model_linear(at, a, "mlp.up_proj")), "mlp.down_proj");
    return llama_add_branch(p, x, model_branch(at, NULL, a), "post_feedforward_layernorm");
}

static inline gckpt_tensor *llama_hidden(const model_any *m, gckpt_tensor *tokens,
                                         const model_options *o)
{
    static const float one = 1;
    const model_config *c = &m->config;
    const model_hooks *hooks = o->hooks;
    float frequencies[2][LLAMA_MAX_HEAD_DIM / 2];
    llama_site p;
    memset(&p, 0, sizeof p);
    p.site.config = c;
    p.site.options = o;
    p.site.layer = -1;
    for (int i = 0; i < 2; i++) {
        const llama_positions *l = &c->llama.positions[i];
        p.rotary[i].base = (float)l->base;
        p.rotary[i].scale = (float)l->scale;
        p.rotary[i].position = o->capacity == 0 && hooks != NULL ? hooks->prefix : 0;
        if (l->scaling == LLAMA_UNSCALED)
            continue;
        llama_frequencies(l, c->head_dim, frequencies[i]);
        p.rotary[i].frequencies = frequencies[i];
    }
    gckpt_graph *g = gckpt_graph_of(tokens);
    gckpt_tensor *x = gckpt_embed(model_param(g, &p.site, "embed_tokens", ".weight"), tokens);
    if (c->llama.plus_one) {
        p.one = gckpt_constant(g, "model.one", GCKPT_F32, gckpt_shape1(1), &one);
        x = gckpt_scale(x, (float)model_sqrt((double)c->width));
    }
    if (hooks != NULL && hooks->embedded != NULL)
        x = hooks->embedded(hooks->user, &p.site, x);
    if (o->dropout > 0)
        x = gckpt_dropout(x, (float)o->dropout);
    for (p.site.layer = 0; p.site.layer < c->layers; p.site.layer++)
        x = gckpt_checkpoint(llama_block, x, &p);
    p.site.layer = -1;
    if (o->capacity == 0 && hooks != NULL && hooks->prompt > 0)
        x = gckpt_slice(x, 1, hooks->prompt, gckpt_shape_of(x).d[1]);
    return llama_norm(&p, x, "norm");
}

/* Computes keys and values of the prompts of LLaMA-Adapter, without rotary positions. */
static inline void llama_keys_values(const model_site *at, gckpt_tensor *prompts, gckpt_tensor **k,
                                     gckpt_tensor **v)
{
    static const char *const parts[] = { "self_attn.k_proj", "self_attn.v_proj" };
    gckpt_tensor **const to[] = { k, v };
    gckpt_graph *g = gckpt_graph_of(prompts);
    for (int i = 0; i < 2; i++)
        *to[i] = gckpt_linear_transposed(prompts, model_param(g, at, parts[i], ".weight"),
                                         model_param(g, at, parts[i], ".bias"));
}

static inline int llama_is_post_norm(const model_config *c, const char *name, float *gain)
{
    *gain = c->llama.plus_one ? -1 : 0;
    return c->llama.post_norms && (strstr(name, ".post_attention_layernorm.") != NULL ||
                                   strstr(name, ".post_feedforward_layernorm.") != NULL);
}

/* ---- config.json ----------------------------------------------------------------------------- */
/* Returns a number in an object of config.json, which must be above `least` and at most 1e12. If it
 * is not, sets d->error. */
static inline double llama_read_real(json *d, uint32_t object, const char *key, double fallback,
                                double least)
{
    const double x = json_real(d, object, key, fallback);
    if (x > least && x <= 1e12)
        return x;
    json_fail(d, 0, "%s %g: expected a number above %g and at most 1e12", key, x, least);
    return least + 1; /* an allowed value, because callers divide by it and loop up to it */
}

/* Returns the factor by which YaRN multiplies cosines and sines. */
static inline double llama_yarn_scale(double scale, double mscale)
{
    return scale > 1 ? 0.1 * mscale * llama_log(scale) + 1 : 1;
}

static inline void llama_read_yarn(json *d, uint32_t at, llama_positions *l)
{
    const double mscale = json_real(d, at, "mscale", 0), mscale_all = json_real(d, at, "mscale_all_dim", 0);
    const double fast = json_real(d, at, "beta_fast", 0), slow = json_real(d, at, "beta_slow", 0);
    /* 0 or less selects the default; other values must be above 1e-6, because their logarithms are taken */
    l->fast = fast > 0 ? llama_read_real(d, at, "beta_fast", 32, 1e-6) : 32;
    l->slow = slow > 0 ? llama_read_real(d, at, "beta_slow", 1, 1e-6) : 1;
    l->truncate = json_bool(d, at, "truncate", 1);
    l->scale = mscale != 0 && mscale_all != 0
                   ? llama_yarn_scale(l->factor, mscale) / llama_yarn_scale(l->factor, mscale_all)
                   : llama_yarn_scale(l->factor, 1);
    l->scale = llama_read_real(d, at, "attention_factor", l->scale, 0);
}

/* Reads the rotary positions, rope_theta and the scaling, from object `at` of config.json. If at is
 * 0, sets the defaults. */
static inline void llama_read_rope(json *d, uint32_t at, const model_config *c, double base,
                                     llama_positions *l)
{
    static const char *const names[] = { "default", "linear", "llama3", "yarn" };
    uint32_t type = json_find_nonnull(d, at, "rope_type");
    int which = 0;
    l->factor = l->scale = 1;
    l->base = base;
    if (at == 0)
        return;
    if (json_kind_of(d, at) != JSON_OBJECT) {
        json_mismatch(d, at, "an object");
        return;
    }
    for (uint32_t k = json_first(d, at); k != 0; k = json_next(d, k))
        if (json_kind_of(d, k + 1) == JSON_OBJECT)
            json_mismatch(d, k + 1, "a number: the same positions in all layers");
    l->base = llama_read_real(d, at, "rope_theta", l->base, 1);
    if (llama_read_real(d, at, "partial_rotary_factor", 1, 0) != 1)
        json_mismatch(d, json_find(d, at, "partial_rotary_factor"), "1: all columns of a head");
    type = type ? type : json_find_nonnull(d, at, "type");
    while (type && which < 4 && !json_is(d, type, names[which]))
        which++;
    if (which == 4)
        json_mismatch(d, type, "default, linear, llama3 or yarn");
    l->scaling = (llama_scaling)(which % 4);
    if (l->scaling == LLAMA_UNSCALED)
        return;
    l->original = json_real(d, at, "original_max_position_embeddings", (double)c->context);
    l->original = llama_read_real(d, JSON_ROOT, "original_max_position_embeddings", l->original, 0.5);
    const int by_context = l->scaling == LLAMA_YARN && json_find_nonnull(d, at, "factor") == 0;
    l->factor = by_context ? (double)c->context / l->original : llama_read_real(d, at, "factor", 0, 0);
    if (l->scaling == LLAMA_YARN)
        llama_read_yarn(d, at, l);
    if (l->scaling != LLAMA_LLAMA3)
        return;
    l->low = llama_read_real(d, at, "low_freq_factor", 0, 0);
    l->high = llama_read_real(d, at, "high_freq_factor", 0, l->low);
}

/* Reads the rotary positions of all layers. In Gemma 3, layers with full attention and layers with
 * a sliding window have different ones. Older files use the keys rope_scaling, rope_theta and
 * rope_local_base_freq. */
static inline void llama_read_positions(json *d, model_config *c, int row)
{
    llama_positions *l = c->llama.positions;
    const uint32_t scaling = json_find_nonnull(d, JSON_ROOT, "rope_scaling");
    const uint32_t all = json_find_nonnull(d, JSON_ROOT, "rope_parameters");
    const uint32_t old = json_size(d, scaling) > 0 ? scaling : 0;
    double base = llama_read_real(d, JSON_ROOT, "rope_theta", llama_types[row].base, 1);
    if (llama_read_real(d, JSON_ROOT, "partial_rotary_factor", 1, 0) != 1)
        json_mismatch(d, json_find(d, JSON_ROOT, "partial_rotary_factor"), "1: all columns of a head");
    if (llama_types[row].gemma != 3) {
        llama_read_rope(d, old ? old : all, c, base, l);
        l[1] = l[0];
        return;
    }
    for (uint32_t k = json_first(d, all); k != 0; k = json_next(d, k))
        if (json_kind_of(d, all) == JSON_OBJECT && json_kind_of(d, k + 1) != JSON_OBJECT)
            json_mismatch(d, k + 1,
                       "an object: rope_parameters has an object full_attention and "
                       "an object sliding_attention");
    const uint32_t full = json_find_nonnull(d, all, "full_attention");
    base = full ? llama_read_real(d, full, "rope_theta", base, 1) : base;
    llama_read_rope(d, old ? old : full, c, base, l);
    base = llama_read_real(d, JSON_ROOT, "rope_local_base_freq", 10000, 1);
    llama_read_rope(d, json_find_nonnull(d, all, "sliding_attention"), c, base, l + 1);
}

/* Reads which layers have no rotary positions. */
static inline void llama_read_no_rope(json *d, model_config *c)
{
    /* a list with 1 for each layer that has positions */
    const uint32_t rope = json_find_nonnull(d, JSON_ROOT, "no_rope_layers");
    const int64_t each = json_int(d, JSON_ROOT, "no_rope_layer_interval", 4);
    if (rope && json_size(d, rope) != (uint32_t)c->layers)
        json_mismatch(d, rope, "as many numbers as there are layers");
    if (each < 1 || c->layers > LLAMA_MASK_BITS)
        json_fail(d, 0,
                  "no_rope_layer_interval %lld, %lld layers: expected 1 or more, and at most %d layers",
                  (long long)each, (long long)c->layers, LLAMA_MASK_BITS);
    uint32_t at = json_first(d, rope);
    for (int64_t i = 0; d->error[0] == 0 && i < c->layers; i++) {
        const int no_rope = rope ? json_int_of(d, at) == 0 : (i + 1) % each == 0;
        c->llama.no_rope[i / 64] |= (uint64_t)no_rope << i % 64;
        at = json_next(d, at);
    }
}

/* Returns the size of the sliding window, or 0 if the model has no sliding window. */
static inline int64_t llama_read_window(json *d, llama_windows windows)
{
    const int later = windows == LLAMA_LATER_LAYERS && !json_bool(d, JSON_ROOT, "use_sliding_window", 0);
    const uint32_t at = json_find(d, JSON_ROOT, "sliding_window");
    const int64_t fallback = at != 0 || windows == LLAMA_NO_ROPE ? 0 : 4096;
    if (windows == LLAMA_NO_WINDOW || later)
        return 0;
    const int64_t window = json_int(d, JSON_ROOT, "sliding_window", fallback);
    if (json_find_nonnull(d, JSON_ROOT, "sliding_window") != 0 && window < 1)
        json_fail(d, 0, "sliding_window %lld: expected 1 or more, or null", (long long)window);
    return window < 1 << 30 ? window : 1 << 30;
}

/* Reads which layers have the sliding window. Also sets bits above the number of layers: they apply
 * to layers that adapters.h may add. */
static inline void llama_read_sliding(json *d, model_config *c, int row)
{
    llama_config *l = &c->llama;
    const llama_windows windows = llama_types[row].windows;
    const uint32_t types = json_find_nonnull(d, JSON_ROOT, "layer_types");
    const int64_t later = json_int(d, JSON_ROOT, "max_window_layers", 28);
    const int64_t pattern =
        llama_types[row].gemma == 3 ? json_int(d, JSON_ROOT, "sliding_window_pattern", 6) : 2;
    const int uses = json_bool(d, JSON_ROOT, "use_sliding_window", 0);
    uint32_t at = json_first(d, types);
    l->window = llama_read_window(d, windows);
    for (uint32_t i = at; i != 0; i = json_next(d, i))
        if (!json_is(d, i, "full_attention") && !json_is(d, i, "sliding_attention"))
            json_mismatch(d, i, "full_attention or sliding_attention");
    if (windows != LLAMA_NO_WINDOW && types && json_size(d, types) != (uint32_t)c->layers)
        json_mismatch(d, types, "as many types as there are layers");
    if (pattern < 1)
        json_fail(d, 0, "sliding_window_pattern %lld: expected 1 or more", (long long)pattern);
    if (l->window > 0 && c->layers > LLAMA_MASK_BITS)
        json_fail(d, 0, "a sliding_window in %lld layers: expected %d layers at most",
                  (long long)c->layers, LLAMA_MASK_BITS);
    for (int64_t i = 0; windows != LLAMA_NO_WINDOW && d->error[0] == 0 && i < LLAMA_MASK_BITS; i++) {
        const int unlisted = windows == LLAMA_PATTERN ? (i + 1) % pattern != 0
                             : l->window == 0         ? 0
                             : windows == LLAMA_LATER_LAYERS
                                 ? i >= later
                                 : windows == LLAMA_ALL_LAYERS || (uses && llama_bit(l->no_rope, i));
        const int slides = !types ? unlisted : at != 0 && json_is(d, at, "sliding_attention");
        if (slides && i < c->layers && l->window == 0)
            json_fail(d, 0,
                      "layer %lld has sliding attention, but there is no window: expected a number as "
                      "sliding_window, and use_sliding_window true if present",
                      (long long)i);
        l->sliding[i / 64] |= (uint64_t)slides << i % 64;
        at = json_next(d, at);
    }
}

/* Reads the numbers of heads and the columns of a head, and checks that they are consistent. */
static inline void llama_read_heads(json *d, model_config *c, int row)
{
    const int64_t fallback =
        llama_types[row].key_heads > 0 && !json_find(d, JSON_ROOT, "num_key_value_heads")
            ? llama_types[row].key_heads
            : 0;
    c->heads = model_read_size(d, "num_attention_heads", 0);
    if (d->error[0] != 0)
        return;
    c->key_heads = model_read_size(d, "num_key_value_heads", fallback > 0 ? fallback : c->heads);
    if (d->error[0] != 0)
        return;
    const int64_t head = llama_types[row].head > 0 && !json_find(d, JSON_ROOT, "head_dim")
                             ? llama_types[row].head
                             : 0;
    c->head_dim =
        model_read_size(d, "head_dim", head > 0 ? head : c->width / c->heads + (c->width < c->heads));
    if (head == 0 && !json_find_nonnull(d, JSON_ROOT, "head_dim") && c->width % c->heads != 0)
        json_fail(d, 0,
                  "hidden_size %lld is no multiple of num_attention_heads %lld, and no head_dim "
                  "is given",
                  (long long)c->width, (long long)c->heads);
    if (c->heads % c->key_heads != 0)
        json_fail(d, 0, "num_attention_heads %lld is no multiple of num_key_value_heads %lld",
                  (long long)c->heads, (long long)c->key_heads);
    if (c->head_dim % 2 != 0 || c->head_dim > LLAMA_MAX_HEAD_DIM)
        json_fail(d, 0, "head_dim %lld: expected an even number, %d at most", (long long)c->head_dim,
                  LLAMA_MAX_HEAD_DIM);
}

static inline void llama_read_activation(json *d, model_config *c, int gemma)
{
    const uint32_t at = json_find_nonnull(d, JSON_ROOT, gemma > 1 ? "hidden_activation" : "hidden_act");
    c->activation = at ? model_read_activation(d, at) : gemma ? gckpt_gelu : gckpt_silu;
    /* the first files of Gemma 1 have gelu, but mean its approximation by tanh */
    if (gemma == 1 && c->activation == gckpt_gelu_erf)
        c->activation = gckpt_gelu;
}

/* Returns the cap of scores or logits, or 0 if there is no cap. */
static inline double llama_read_cap(json *d, const char *key, double fallback)
{
    if (json_find_nonnull(d, JSON_ROOT, key) == 0)
        return json_find(d, JSON_ROOT, key) != 0 ? 0 : fallback;
    return llama_read_real(d, JSON_ROOT, key, fallback, 0);
}

/* Reads the keys of config.json that Gemma has. */
static inline void llama_read_gemma(json *d, model_config *c, int gemma)
{
    llama_config *l = &c->llama;
    l->plus_one = 1;
    if (json_bool(d, JSON_ROOT, "use_bidirectional_attention", 0))
        json_mismatch(d, json_find(d, JSON_ROOT, "use_bidirectional_attention"), "false or null");
    if (gemma == 1)
        return;
    const double scalar = llama_read_real(d, JSON_ROOT, "query_pre_attn_scalar", 256, 0);
    l->post_norms = 1;
    l->score_scale = scalar == (double)c->head_dim ? 0 : 1 / model_sqrt(scalar);
    if (gemma == 2) /* Gemma 3 has this key as well, but transformers ignores it there */
        l->score_cap = llama_read_cap(d, "attn_logit_softcapping", 50);
    c->logit_cap = llama_read_cap(d, "final_logit_softcapping", gemma == 2 ? 30 : 0);
}

/* Reads config.json, for a model_type that llama_types contains. */
static inline int llama_read_config(model_any *m)
{
    json *d = &m->config_json;
    model_config *c = &m->config;
    llama_config *l = &c->llama;
    int row = 0;
    while (!json_is(d, json_find_nonnull(d, JSON_ROOT, "model_type"), llama_types[row].type))
        row++;
    c->type = llama_types[row].type;
    const int qwen2 = strcmp(c->type, "qwen2") == 0, mistral = strcmp(c->type, "mistral") == 0;
    const int gemma = llama_types[row].gemma, smollm3 = strcmp(c->type, "smollm3") == 0;
    c->layers = model_read_size(d, "num_hidden_layers", 0);
    c->width = model_read_size(d, "hidden_size", 0);
    c->inner = model_read_size(d, "intermediate_size", 0);
    c->context = model_read_size(d, "max_position_embeddings", 0);
    c->vocabulary = model_read_size(d, "vocab_size", 0);
    c->tied = json_bool(d, JSON_ROOT, "tie_word_embeddings", llama_types[row].tied);
    llama_read_heads(d, c, row);
    llama_read_activation(d, c, gemma);
    l->epsilon = llama_read_real(d, JSON_ROOT, "rms_norm_eps", 1e-6, 0);
    l->head_norms = gemma == 3 || strcmp(c->type, "qwen3") == 0;
    l->output_bias = !qwen2 && !mistral && json_bool(d, JSON_ROOT, "attention_bias", 0);
    l->qkv_bias = qwen2 || l->output_bias;
    l->mlp_bias =
        (smollm3 || strcmp(c->type, "llama") == 0) && json_bool(d, JSON_ROOT, "mlp_bias", 0);
    if (gemma != 0)
        llama_read_gemma(d, c, gemma);
    llama_read_positions(d, c, row);
    if (smollm3)
        llama_read_no_rope(d, c);
    llama_read_sliding(d, c, row);
    return d->error[0] != 0 ? -1 : 0;
}

/* Writes those keys of config.json that adapters can change: the number of layers, and lists with a
 * value for each layer. */
static inline void llama_write_config(const model_any *m, FILE *f)
{
    json d = m->config_json; /* a copy, because json_find stores errors in it */
    const model_config *c = &m->config;
    uint32_t at = json_find_nonnull(&d, JSON_ROOT, "layer_types");
    fprintf(f, ",\n  \"num_hidden_layers\": %lld", (long long)c->layers);
    if (at != 0) {
        fputs(",\n  \"layer_types\": [", f);
        at = json_first(&d, at);
        for (int64_t i = 0; i < c->layers; i++, at = json_next(&d, at))
            fprintf(f, "%s\"%s\"", i > 0 ? ", " : "",
                    at != 0 ? json_text(&d, at) : "full_attention");
        fputs("]", f);
    }
    if (strcmp(c->type, "smollm3") == 0) {
        fputs(",\n  \"no_rope_layers\": [", f);
        for (int64_t i = 0; i < c->layers; i++)
            fprintf(f, "%s%d", i > 0 ? ", " : "", !llama_bit(c->llama.no_rope, i));
        fputs("]", f);
    }
}

/* Writes further keys of config.json that a new Gemma needs. */
static inline void llama_write_gemma(const model_config *c, FILE *f)
{
    const llama_config *l = &c->llama;
    const double root = l->score_scale > 0 ? 1 / l->score_scale : model_sqrt((double)c->head_dim);
    fprintf(f, ",\n  \"hidden_activation\": \"%s\",\n  \"query_pre_attn_scalar\": %.9g",
            model_activation_name(c->activation), root * root);
    fprintf(f, ",\n  \"sliding_window\": %lld", (long long)l->window);
    /* written with a decimal point, because transformers refuses an integer here */
    if (l->score_cap > 0)
        fprintf(f, ",\n  \"attn_logit_softcapping\": %.6f", l->score_cap);
    if (c->logit_cap > 0)
        fprintf(f, ",\n  \"final_logit_softcapping\": %.6f", c->logit_cap);
    if (l->positions[1].base < l->positions[0].base)
        fprintf(f, ",\n  \"rope_local_base_freq\": %.9g", l->positions[1].base);
}

/* Writes those keys of config.json that a new model needs and that model.h does not write. */
static inline void llama_write_new_config(const model_config *c, FILE *f)
{
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = { { "hidden_size", c->width },
                  { "intermediate_size", c->inner },
                  { "num_attention_heads", c->heads },
                  { "num_key_value_heads", c->key_heads },
                  { "head_dim", c->head_dim },
                  { "max_position_embeddings", c->context },
                  { "vocab_size", c->vocabulary } };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        fprintf(f, ",\n  \"%s\": %lld", sizes[i].key, (long long)sizes[i].value);
    fprintf(f, ",\n  \"hidden_act\": \"%s\",\n  \"rms_norm_eps\": %.9g",
            model_activation_name(c->activation), c->llama.epsilon);
    fprintf(f, ",\n  \"rope_theta\": %.9g,\n  \"initializer_range\": %.9g",
            c->llama.positions[0].base, c->init_range);
    if (c->eos[0] >= 0)
        fprintf(f, ",\n  \"bos_token_id\": %d,\n  \"eos_token_id\": %d", (int)c->eos[0],
                (int)c->eos[0]);
    else
        fputs(",\n  \"bos_token_id\": null,\n  \"eos_token_id\": null", f);
    if (c->llama.post_norms)
        llama_write_gemma(c, f);
}

static inline const char *llama_architecture(const model_config *c)
{
    int row = 0;
    while (strcmp(c->type, llama_types[row].type) != 0)
        row++;
    return llama_types[row].architecture;
}

static inline const char *llama_lora_targets(const model_config *c) { return (void)c, "q_proj,v_proj"; }

static const model_family llama_family = {
    "Llama",
    "llama, mistral, qwen2, qwen3, smollm3, gemma, gemma2, gemma3_text",
    llama_read_config,
    " num_hidden_layers layer_types no_rope_layers ",
    llama_write_config,
    llama_write_new_config,
    llama_architecture,
    1, /* number of parameters before the blocks */
    1, /* number of parameters after the blocks, in addition to the LM head */
    llama_block_params,
    llama_get_param,
    llama_is_skipped,
    1,
    "model.",
    "layers",
    "embed_tokens",
    "norm",
    "self_attn",
    "mlp",
    "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
    "o_proj,down_proj",
    "*norm.weight",
    llama_lora_targets,
    llama_hidden,
    llama_keys_values,
    "self_attn.o_proj",
    llama_is_post_norm,
};

/* Makes *m a new model of these sizes, with model_type llama. SmolLM2-135M has (30, 576, 9, 3,
 * 8192, 49152) and c->inner 1536. By default, the inner width of the MLP is 8/3 of the width,
 * rounded up to a multiple of 16. */
static inline void llama_new(model_any *m, int64_t layers, int64_t width, int64_t heads,
                             int64_t key_heads, int64_t context, int64_t vocabulary)
{
    model_config *c = &m->config;
    memset(m, 0, sizeof *m);
    c->family = &llama_family;
    c->type = "llama";
    c->layers = layers;
    c->width = width;
    c->heads = heads;
    c->key_heads = key_heads;
    c->head_dim = heads > 0 ? width / heads : 0;
    c->inner = (width * 8 / 3 + 15) / 16 * 16;
    c->context = context;
    c->vocabulary = vocabulary;
    c->activation = gckpt_silu;
    c->tied = 1;
    c->eos[0] = -1;
    c->init_range = 0.02;
    c->llama.epsilon = 1e-5;
    for (int i = 0; i < 2; i++) {
        c->llama.positions[i].base = 10000;
        c->llama.positions[i].factor = c->llama.positions[i].scale = 1;
    }
}

/* Turns a new model of llama_new into a Gemma 2 or 3 (`which`). All layers get a sliding window of
 * `window` tokens, except every second one in Gemma 2 and every sixth one in Gemma 3. */
static inline void llama_as_gemma(model_any *m, int which, int64_t window)
{
    model_config *c = &m->config;
    llama_config *l = &c->llama;
    c->type = which == 2 ? "gemma2" : "gemma3_text";
    c->activation = gckpt_gelu;
    c->logit_cap = which == 2 ? 30 : 0;
    l->score_cap = which == 2 ? 50 : 0;
    l->epsilon = 1e-6;
    l->plus_one = l->post_norms = 1;
    l->head_norms = which == 3;
    l->window = window;
    l->positions[0].base = which == 3 ? 1e6 : 10000;
    for (int i = 0; i < LLAMA_MASK_BITS; i++)
        l->sliding[i / 64] |= (uint64_t)((i + 1) % (which == 2 ? 2 : 6) != 0) << i % 64;
}
#endif
