/* encoder.h - BERT-like encoders as families of model.h, which includes this file, and the heads of
 * classifiers and embeddings for encoders and decoders. To copy with model.h.
 *
 *     model_head head = { MODEL_CLASSIFY, 3, names, 0 };
 *     model_any m; // BertForSequenceClassification, or BertModel with a new classifier
 *     if (model_load_head(&m, store, "bert", NULL, NULL, &head) != 0)
 *         fprintf(stderr, "%s\n", m.error);
 *     encoder_text text = encoder_input(&m, g, "", B, T);
 *     gckpt_tensor *logits = encoder_logits(&m, &text, NULL);                 // (B,3)
 *     gckpt_tensor *loss = gckpt_cross_entropy(logits, labels, NULL, 0);
 *
 * Builds model_type bert, roberta, xlm-roberta, distilbert, mpnet and modernbert (Devlin 2019, Liu
 * 2019, Conneau 2020, Sanh 2019, Song 2020, Warner 2024). A family is a row of encoder_rows: names
 * of its modules, and how it computes. Every token sees all tokens of its row. Parameters are named
 * as in Hugging Face's files, without the common prefix ("bert.", "model."). Weights are (out,in),
 * like torch's Linear. Decoders (gpt2.h, llama.h) become classifiers with a matrix `score` on the
 * last token. C99 or C++11. */
#ifndef ENCODER_H
#define ENCODER_H
#ifndef MODEL_H
#error "include model.h, which includes encoder.h"
#endif

/* ---- families: a table ----------------------------------------------------------------------- */
/* Modules of an encoder; NULL means that the family does not have the module. In a block: `fused`
 * is q, k and v in one matrix; up, with twice the columns if the MLP is gated. */
typedef struct {
    /* keys of config.json */
    const char *width, *layers, *heads, *inner, *activation, *epsilon;
    double default_epsilon;
    const char *words, *positions, *types, *norm, *bias, *last_norm;
    const char *q, *k, *v, *fused, *output, *attention_norm, *up, *down, *mlp_norm;
    /* the classifier of texts: out(act(dense(x))), with head_norm after act; act NULL means
     * classifier_activation */
    const char *dense, *head_norm, *out;
    const char *pooler; /* a layer that BertModel has and embeddings do not use; it is kept */
    model_activation act;
    int tags_dense;  /* nonzero if the classifier of tokens has `dense` as well; its out is
                       * "classifier" */
    int pre_norm;    /* nonzero if norms come before attention and MLP, which is then gated */
    int64_t padding; /* positions begin after this row of the table: -1 for row 0, -2 for
                       * pad_token_id + 1 */
    const char
        *architectures[3]; /* classes of transformers for a model_task, from MODEL_CLASSIFY */
} encoder_row;

#define ENCODER_BERT_KEYS                                                                          \
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",  \
        "layer_norm_eps", 1e-12
#define ENCODER_BERT_EMBEDDINGS(types)                                                             \
    "embeddings.word_embeddings", "embeddings.position_embeddings", types, "embeddings.LayerNorm"
#define ENCODER_BERT_BLOCK                                                                         \
    "attention.self.query", "attention.self.key", "attention.self.value", NULL,                    \
        "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense",              \
        "output.dense", "output.LayerNorm"
#define ENCODER_CLASSES(name)                                                                      \
    {                                                                                              \
        name "ForSequenceClassification", name "ForTokenClassification", name "Model"              \
    }
/* clang-format off */
static const encoder_row encoder_rows[] = {
    { ENCODER_BERT_KEYS, ENCODER_BERT_EMBEDDINGS("embeddings.token_type_embeddings"), NULL, NULL,
      ENCODER_BERT_BLOCK, "pooler.dense", NULL, "classifier", "pooler.dense", gckpt_tanh, 0, 0, -1,
      ENCODER_CLASSES("Bert") },
    { ENCODER_BERT_KEYS, ENCODER_BERT_EMBEDDINGS("embeddings.token_type_embeddings"), NULL, NULL,
      ENCODER_BERT_BLOCK, "classifier.dense", NULL, "classifier.out_proj", "pooler.dense",
      gckpt_tanh, 0, 0, -2, ENCODER_CLASSES("Roberta") },
    { ENCODER_BERT_KEYS, ENCODER_BERT_EMBEDDINGS("embeddings.token_type_embeddings"), NULL, NULL,
      ENCODER_BERT_BLOCK, "classifier.dense", NULL, "classifier.out_proj", "pooler.dense",
      gckpt_tanh, 0, 0, -2, ENCODER_CLASSES("XLMRoberta") },
    { "dim", "n_layers", "n_heads", "hidden_dim", "activation", NULL, 1e-12,
      ENCODER_BERT_EMBEDDINGS(NULL), NULL, NULL, "attention.q_lin", "attention.k_lin",
      "attention.v_lin", NULL, "attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2",
      "output_layer_norm", "pre_classifier", NULL, "classifier", NULL, gckpt_relu, 0, 0, -1,
      ENCODER_CLASSES("DistilBert") },
    { ENCODER_BERT_KEYS, ENCODER_BERT_EMBEDDINGS(NULL), "encoder.relative_attention_bias", NULL,
      "attention.attn.q", "attention.attn.k", "attention.attn.v", NULL, "attention.attn.o",
      "attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
      "classifier.dense", NULL, "classifier.out_proj", "pooler.dense", gckpt_tanh, 0, 0, 1,
      ENCODER_CLASSES("MPNet") },
    { "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
      "hidden_activation", "norm_eps", 1e-5, "embeddings.tok_embeddings", NULL, NULL,
      "embeddings.norm", NULL, "final_norm", NULL, NULL, NULL, "attn.Wqkv", "attn.Wo", "attn_norm",
      "mlp.Wi", "mlp.Wo", "mlp_norm", "head.dense", "head.norm", "classifier", NULL, NULL, 1, 1, -1,
      ENCODER_CLASSES("ModernBert") },
};
/* clang-format on */
enum {
    ENCODER_FAMILIES = sizeof encoder_rows / sizeof encoder_rows[0],
    ENCODER_BEFORE = 6, /* parameters before the blocks: see encoder_outside */
    ENCODER_AFTER = 8,
    ENCODER_MODULES = 9, /* modules of a block, with two parameters each */
    ENCODER_ALL_MODULES = ENCODER_MODULES + 8,
    ENCODER_BUCKETS = 32 /* rows of the table of relative positions */
};

static inline int encoder_read_config(model_any *m);
static inline void encoder_write_config(const model_any *m, FILE *f) { (void)m, (void)f; }
static inline void encoder_write_new_config(const model_config *c, FILE *f) { (void)c, (void)f; }
static inline const char *encoder_architecture(const model_config *c);
static inline int encoder_block_params(const model_config *c, int64_t layer);
static inline void encoder_get_param(const model_config *c, int64_t layer, int part,
                                     model_parameter *p);
static inline const char *encoder_linear(const model_config *c);
static inline const char *encoder_lora_targets(const model_config *c);

/* encoder_hidden builds their graph, which has more inputs than tokens. */
#define ENCODER_FAMILY(name, type, prefix, blocks, words, attention, mlp, residual, norms)         \
    {                                                                                              \
        name, type, encoder_read_config, " ", encoder_write_config, encoder_write_new_config,      \
            encoder_architecture, ENCODER_BEFORE, ENCODER_AFTER, encoder_block_params,             \
            encoder_get_param, NULL, 1, prefix, "", blocks, words, "", attention, mlp,             \
            encoder_linear, residual, norms, encoder_lora_targets, NULL, NULL, NULL, NULL          \
    }
#define ENCODER_BERT_FAMILY(name, type, prefix)                                                    \
    ENCODER_FAMILY(name, type, prefix, "encoder.layer", "embeddings.word_embeddings", "attention", \
                   "output", "output.dense", "*LayerNorm*")
static const model_family encoder_families[ENCODER_FAMILIES] = {
    ENCODER_BERT_FAMILY("BERT", "bert", "bert."),
    ENCODER_BERT_FAMILY("RoBERTa", "roberta", "roberta."),
    ENCODER_BERT_FAMILY("XLM-RoBERTa", "xlm-roberta", "roberta."),
    ENCODER_FAMILY("DistilBERT", "distilbert", "distilbert.", "transformer.layer",
                   "embeddings.word_embeddings", "attention", "ffn", "out_lin,lin2",
                   "*layer_norm*"),
    ENCODER_FAMILY("MPNet", "mpnet", "mpnet.", "encoder.layer", "embeddings.word_embeddings",
                   "attention", "output", "o,output.dense", "*LayerNorm*"),
    ENCODER_FAMILY("ModernBERT", "modernbert", "model.", "layers", "embeddings.tok_embeddings",
                   "attn", "mlp", "Wo", "*norm*"),
};

static inline int encoder_is_family(const model_family *family)
{
    return family >= encoder_families && family < encoder_families + ENCODER_FAMILIES;
}

static inline const encoder_row *encoder_row_of(const model_config *c)
{
    return &encoder_rows[c->family - encoder_families];
}

static inline const char *encoder_architecture(const model_config *c)
{
    return encoder_row_of(c)->architectures[c->head.task - MODEL_CLASSIFY];
}

/* Returns the default of pad_token_id. */
static inline int32_t encoder_padding(const model_config *c)
{
    const int64_t padding = encoder_row_of(c)->padding;
    return c->vocabulary > 50283 && encoder_row_of(c)->pre_norm ? 50283 : padding == -1 ? 0 : 1;
}

/* ---- parameters ------------------------------------------------------------------------------ */
/* Returns module i: those of a block, then embeddings and norms outside the blocks, then those of the
 * classifier of texts. NULL means that the family does not have the module. */
static inline const char *encoder_module(const encoder_row *r, int i)
{
    const char *const modules[ENCODER_ALL_MODULES] = {
        r->q,    r->k,         r->v,        r->fused,     r->output,    r->attention_norm,
        r->up,   r->down,      r->mlp_norm, r->words,     r->positions, r->types,
        r->norm, r->last_norm, r->dense,    r->head_norm, r->out
    };
    return modules[i];
}

static inline int encoder_block_params(const model_config *c, int64_t layer)
{
    return (void)c, (void)layer, 2 * ENCODER_MODULES;
}

/* Fills in the weight (rows,columns) or, if `is_bias`, the bias (rows) of a module; rows 0 means
 * the gain or bias (columns) of a norm. */
static inline void encoder_set_param(const model_config *c, model_parameter *p, const char *module,
                                     int is_bias, int64_t rows, int64_t columns)
{
    model_join(p->name, module, is_bias ? ".bias" : ".weight");
    p->shape = is_bias && rows > 0 ? gckpt_shape1(rows)
               : rows == 0         ? gckpt_shape1(columns)
                                   : gckpt_shape2(rows, columns);
    if (rows > 0 && !is_bias)
        p->init.normal = (float)c->init_range;
    else
        p->init.constant = rows == 0 && !is_bias ? 1 : 0;
}

/* Fills in a parameter outside the blocks. */
static inline void encoder_outside(const model_config *c, int part, model_parameter *p)
{
    const encoder_row *r = encoder_row_of(c);
    const encoder_config *e = &c->encoder;
    const int classifies = c->head.task == MODEL_CLASSIFY, tags = c->head.task == MODEL_TAGS;
    const int dense = classifies || (tags && r->tags_dense), is_bias = part % 2;
    const char *const tables[] = { r->words, r->positions, r->types };
    const int64_t sizes[] = { c->vocabulary, e->positions, e->types };
    const char *const after[] = { r->last_norm,
                                  dense                         ? r->dense
                                  : c->head.task == MODEL_EMBED ? r->pooler
                                                                : NULL,
                                  dense ? r->head_norm : NULL,
                                  classifies ? r->out
                                  : tags     ? "classifier"
                                             : NULL };
    const int64_t rows[] = { 0, c->width, 0, c->head.labels };
    const char *module = after[0];
    if (part < 3 && tables[part] != NULL)
        encoder_set_param(c, p, tables[part], 0, sizes[part], c->width);
    else if (part == 3 || (part == 4 && !r->pre_norm))
        encoder_set_param(c, p, r->norm, part == 4, 0, c->width);
    else if (part == 5 && r->bias != NULL)
        encoder_set_param(c, p, r->bias, 0, ENCODER_BUCKETS, c->heads);
    if (part < ENCODER_BEFORE)
        return;
    part -= ENCODER_BEFORE;
    module = after[part / 2];
    /* ModernBERT has biases only in the last layer of its head */
    if (module != NULL && (!is_bias || !r->pre_norm || part / 2 == 3))
        encoder_set_param(c, p, module, is_bias, rows[part / 2], c->width);
}

static inline void encoder_get_param(const model_config *c, int64_t layer, int part,
                                     model_parameter *p)
{
    const encoder_row *r = encoder_row_of(c);
    const int64_t C = c->width, I = c->inner;
    const int64_t rows[] = { C, C, C, 3 * C, C, 0, r->pre_norm ? 2 * I : I, C, 0 };
    const int i = part / 2, is_bias = part % 2, norm = layer >= 0 && rows[i] == 0;
    if (layer < 0) {
        encoder_outside(c, part, p);
        return;
    }
    const char *module = encoder_module(r, i);
    if (module == NULL || (r->pre_norm && layer == 0 && module == r->attention_norm))
        return; /* the first block of ModernBERT follows a norm */
    if (is_bias && (norm ? r->pre_norm : i < 5 ? !c->encoder.attention_bias : !c->encoder.mlp_bias))
        return;
    encoder_set_param(c, p, module, is_bias, rows[i], i == 7 ? I : C);
}

/* The queries and values, as in peft for BERT. */
static inline const char *encoder_linear(const model_config *c)
{
    static const char *const layers[ENCODER_FAMILIES] = {
        "query,key,value,dense", "query,key,value,dense",
        "query,key,value,dense", "q_lin,k_lin,v_lin,out_lin,lin1,lin2",
        "q,k,v,o,dense",         "Wqkv,Wo,Wi"
    };
    return layers[c->family - encoder_families];
}

static inline const char *encoder_lora_targets(const model_config *c)
{
    static const char *const targets[ENCODER_FAMILIES] = { "query,value", "query,value",
                                                           "query,value", "q_lin,v_lin",
                                                           "q,v",         "Wqkv" };
    return targets[c->family - encoder_families];
}

/* Returns the modules of the head, for peft's modules_to_save, or NULL for embeddings. */
static inline const char *encoder_head_modules(const model_config *c)
{
    if (model_has_score(c) || c->head.task == MODEL_EMBED)
        return model_has_score(c) ? "score" : NULL;
    const encoder_row *r = encoder_row_of(c);
    return r->tags_dense ? "head,classifier"
           : c->head.task == MODEL_CLASSIFY && strcmp(r->dense, "pooler.dense") == 0
               ? "pooler.dense,classifier"
               : "classifier";
}

/* Returns whether parameter i belongs to the head, which a file of another task does not have. */
static inline int encoder_is_head(const model_config *c, int64_t i)
{
    if (!encoder_is_family(c->family))
        return model_has_score(c) && i == model_param_count(c) - 1;
    return i >= model_param_count(c) - (ENCODER_AFTER - 2);
}

/* Sets the relative biases to no weight decay, as transformers' Trainer does, and freezes the
 * pooler of embeddings. */
static inline int encoder_group(model_any *m, gckpt_store *store)
{
    char name[MODEL_NAME], full[MODEL_NAME];
    if (!encoder_is_family(m->config.family))
        return 0;
    const encoder_row *r = encoder_row_of(&m->config);
    int failed = 0;
    if (r->bias != NULL) {
        model_store_name(&m->config, full, model_join(name, r->bias, ".weight"));
        failed = gckpt_store_group(store, full, 1, 0) != GCKPT_OK;
    }
    if (r->pooler != NULL && m->config.head.task == MODEL_EMBED) {
        model_store_name(&m->config, full, model_join(name, r->pooler, "*"));
        failed = failed || gckpt_store_freeze(store, full, 1) != GCKPT_OK;
    }
    return failed ? model_fail(m, "%s", gckpt_error_text(store)) : 0;
}

/* Returns whether a tensor of a file is not used by this model: heads of other tasks. `name` is as
 * in the file. */
static inline int encoder_is_skipped(const model_config *c, const char *name)
{
    static const char *const others[] = {
        "cls.",  "lm_head.",    "vocab_",          "decoder.",    "pooler.",
        "head.", "classifier.", "pre_classifier.", "qa_outputs.", "embeddings.position_ids",
        "score."
    };
    const char *bare = name;
    const size_t n = strlen(c->family->prefix);
    if (strncmp(name, c->family->prefix, n) == 0)
        bare += n;
    const int64_t i = model_find_param(c, bare);
    if (i >= 0 && model_get_param(c, i).shape.n > 0)
        return c->head.is_new && encoder_is_head(c, i) && strncmp(bare, "pooler.", 7) != 0;
    if (!encoder_is_family(c->family)) /* the LM head, unless it is the embedding table */
        return !c->tied && strcmp(name, "lm_head.weight") == 0;
    for (size_t k = 0; k < sizeof others / sizeof others[0]; k++)
        if (strncmp(bare, others[k], strlen(others[k])) == 0)
            return 1;
    return 0;
}

/* ---- config.json ----------------------------------------------------------------------------- */
static inline double encoder_read_base(json *d, const char *layers, const char *old_key,
                                       double fallback)
{
    const uint32_t all = json_find_nonnull(d, JSON_ROOT, "rope_parameters");
    const uint32_t at = json_find_nonnull(d, all, layers);
    const uint32_t type = json_find_nonnull(d, at, "rope_type");
    if (type != 0 && !json_is(d, type, "default"))
        json_mismatch(d, type, "default");
    return llama_read_real(d, at, "rope_theta", llama_read_real(d, JSON_ROOT, old_key, fallback, 0),
                           0);
}

/* Reads the keys that only ModernBERT has. */
static inline void encoder_read_modern(json *d, model_config *c)
{
    encoder_config *e = &c->encoder;
    const uint32_t types = json_find_nonnull(d, JSON_ROOT, "layer_types");
    const uint32_t act = json_find_nonnull(d, JSON_ROOT, "classifier_activation");
    const uint32_t pooling = json_find_nonnull(d, JSON_ROOT, "classifier_pooling");
    const int64_t every = model_read_size(d, "global_attn_every_n_layers", 3);
    uint32_t at = json_first(d, types);
    e->attention_bias = json_bool(d, JSON_ROOT, "attention_bias", 0);
    e->mlp_bias = json_bool(d, JSON_ROOT, "mlp_bias", 0);
    e->window = model_read_size(d, "local_attention", 128) / 2;
    e->base[0] = encoder_read_base(d, "full_attention", "global_rope_theta", 160000);
    e->base[1] = encoder_read_base(d, "sliding_attention", "local_rope_theta", 10000);
    e->mean = json_is(d, pooling, "mean");
    e->head_activation = act != 0 ? model_read_activation(d, act) : gckpt_gelu_erf;
    if (pooling != 0 && !e->mean && !json_is(d, pooling, "cls"))
        json_mismatch(d, pooling, "cls or mean");
    if (json_bool(d, JSON_ROOT, "norm_bias", 0) || json_bool(d, JSON_ROOT, "classifier_bias", 0))
        json_fail(d, 0, "norm_bias and classifier_bias: only false is built here");
    if (c->layers > LLAMA_MASK_BITS)
        json_fail(d, 0, "num_hidden_layers %lld: %d at most", (long long)c->layers,
                  (int)LLAMA_MASK_BITS);
    for (int64_t i = 0; i < c->layers && d->error[0] == 0; i++) {
        const int local = types != 0 ? json_is(d, at, "sliding_attention") : i % every != 0;
        if (types != 0 && !local && !json_is(d, at, "full_attention"))
            json_mismatch(d, at, "full_attention or sliding_attention for each layer");
        at = at != 0 ? json_next(d, at) : 0;
        e->local[i / 64] |= (uint64_t)local << i % 64;
    }
}

static inline int encoder_read_config(model_any *m)
{
    json *d = &m->config_json;
    model_config *c = &m->config;
    encoder_config *e = &c->encoder;
    const encoder_row *r = encoder_row_of(c);
    const uint32_t act = json_find_nonnull(d, JSON_ROOT, r->activation);
    const uint32_t kind = json_find_nonnull(d, JSON_ROOT, "position_embedding_type");
    c->type = c->family->model_types;
    c->width = model_read_size(d, r->width, 768);
    c->layers = model_read_size(d, r->layers,
                                strcmp(c->type, "distilbert") == 0 ? 6
                                : r->pre_norm                      ? 22
                                                                   : 12);
    c->heads = c->key_heads = model_read_size(d, r->heads, 12);
    c->inner = model_read_size(d, r->inner, r->pre_norm ? 1152 : 3072);
    c->vocabulary = model_read_size(d, "vocab_size", 0);
    c->activation = act != 0 ? model_read_activation(d, act) : gckpt_gelu_erf;
    c->head_dim = c->width / c->heads;
    c->tied = 1;
    e->positions = c->context =
        model_read_size(d, "max_position_embeddings", r->pre_norm ? 8192 : 512);
    e->types = model_read_size(d, "type_vocab_size", 2);
    e->epsilon = r->epsilon != NULL
                     ? llama_read_real(d, JSON_ROOT, r->epsilon, r->default_epsilon, 0)
                     : r->default_epsilon;
    e->first = r->padding == -2 ? json_int(d, JSON_ROOT, "pad_token_id", 1) + 1 : r->padding + 1;
    if (e->first < 0 || e->first >= e->positions)
        json_mismatch(d, json_find(d, JSON_ROOT, "pad_token_id"),
                      "a number below max_position_embeddings");
    c->context -= e->first;
    e->head_activation = r->act;
    e->attention_bias = e->mlp_bias = 1;
    if (c->width % c->heads != 0)
        json_fail(d, 0, "%s %lld is no multiple of %s %lld", r->width, (long long)c->width,
                  r->heads, (long long)c->heads);
    if (kind != 0 && !json_is(d, kind, "absolute"))
        json_mismatch(d, kind, "absolute");
    if (json_bool(d, JSON_ROOT, "is_decoder", 0) ||
        json_bool(d, JSON_ROOT, "add_cross_attention", 0))
        json_fail(d, 0, "is_decoder and add_cross_attention: only false is built here");
    if (r->bias != NULL &&
        model_read_size(d, "relative_attention_num_buckets", ENCODER_BUCKETS) != ENCODER_BUCKETS)
        json_fail(d, 0, "relative_attention_num_buckets: expected 32");
    if (r->pre_norm)
        encoder_read_modern(d, c);
    return d->error[0] != 0 ? -1 : 0;
}

/* ---- constants of a graph -------------------------------------------------------------------- */
/* A table (T,T) for queries t and keys s, which a graph reads until its model is closed. */
typedef struct encoder_table encoder_table;
struct encoder_table {
    encoder_table *next;
    int64_t T, window; /* if window is -1, `of` has buckets of relative positions */
    union {
        float sees[1];      /* 1 if the window of query t contains key s, else 0 */
        int32_t buckets[1]; /* the row of MPNet's table of biases for s - t */
    } of;
};

static inline void encoder_free_tables(model_any *m)
{
    for (encoder_table *p = m->tables, *next; p != NULL; p = next) {
        next = p->next;
        free(p);
    }
    m->tables = NULL;
}

/* Returns the bucket of a key's position minus that of the query (Raffel 2020): sixteen for each
 * side, eight of them for one distance each, the others 8 * 2^(k/2) wide. */
static inline int32_t encoder_bucket(int64_t distance)
{
    const int32_t side = distance > 0 ? ENCODER_BUCKETS / 2 : 0;
    const int64_t n = distance < 0 ? -distance : distance;
    int32_t k = 0;
    if (n < 8)
        return side + (int32_t)n;
    while (k < 7 && n * n >= (int64_t)128 << k) /* n >= 8 * 2^((k + 1) / 2) */
        k++;
    return side + 8 + k;
}

/* Returns the table of a graph as a constant (T,T), or NULL without memory. */
static inline gckpt_tensor *encoder_constant(model_any *m, gckpt_graph *g, int64_t T,
                                             int64_t window)
{
    const char *name = window >= 0 ? "encoder.window" : "encoder.buckets";
    encoder_table *p = m->tables;
    while (p != NULL && (p->T != T || p->window != window))
        p = p->next;
    if (p == NULL) {
        p = (encoder_table *)malloc(sizeof *p + (size_t)(T * T) * sizeof(float));
        if (p == NULL)
            return NULL;
        p->T = T;
        p->window = window;
        p->next = m->tables;
        m->tables = p;
        for (int64_t t = 0; t < T; t++)
            for (int64_t s = 0; s < T; s++)
                if (window >= 0)
                    p->of.sees[t * T + s] = (float)(t - s <= window && s - t <= window);
                else
                    p->of.buckets[t * T + s] = encoder_bucket(s - t);
    }
    return gckpt_constant(g, name, window >= 0 ? GCKPT_F32 : GCKPT_I32, gckpt_shape2(T, T),
                          window >= 0 ? (const void *)p->of.sees : p->of.buckets);
}

/* ---- building the graph ---------------------------------------------------------------------- */
/* The inputs of B texts, padded on the right to T tokens. */
typedef struct {
    gckpt_tensor *tokens; /* i32 (B,T) */
    gckpt_tensor *types;  /* i32 (B,T), token types, or NULL if there is one type */
    gckpt_tensor
        *lengths;       /* i32 (B), tokens that are not padding; decoders: index of the last one */
    gckpt_tensor *mask; /* f32 (B,T), 1 for a token and 0 for padding, or NULL for decoders */
} encoder_text;

/* Adds the inputs to a graph, called prefix + "tokens", "types", "lengths", "mask". */
static inline encoder_text encoder_input(const model_any *m, gckpt_graph *g, const char *prefix,
                                         int64_t B, int64_t T)
{
    char name[MODEL_NAME];
    encoder_text t;
    memset(&t, 0, sizeof t);
    t.tokens = gckpt_input(g, model_join(name, prefix, "tokens"), GCKPT_I32, gckpt_shape2(B, T));
    t.lengths = gckpt_input(g, model_join(name, prefix, "lengths"), GCKPT_I32, gckpt_shape1(B));
    if (!encoder_is_family(m->config.family))
        return t;
    if (encoder_row_of(&m->config)->types != NULL && m->config.encoder.types > 1)
        t.types = gckpt_input(g, model_join(name, prefix, "types"), GCKPT_I32, gckpt_shape2(B, T));
    t.mask = gckpt_input(g, model_join(name, prefix, "mask"), GCKPT_F32, gckpt_shape2(B, T));
    return t;
}

typedef struct {
    model_site site; /* must be the first field, because hooks get a pointer to it */
    const encoder_text *text;
    const encoder_row *row;
    /* bias: (H,T,T), added to scores; sees: (T,T), the window of local layers; hidden: a score
     * whose exponential is 0;
     * mask: (B,1,1,T); each may be NULL */
    gckpt_tensor *bias, *sees, *hidden, *mask;
} encoder_site;

static inline gckpt_tensor *encoder_norm(const encoder_site *p, gckpt_tensor *x, const char *part)
{
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *gain = model_param(g, &p->site, part, ".weight");
    gckpt_tensor *bias = model_param(g, &p->site, part, ".bias");
    if (gain == NULL)
        return x; /* the first block of ModernBERT */
    return gckpt_layernorm(x, gain, bias, (float)p->site.config->encoder.epsilon);
}

/* (B,T,heads D) -> (B,heads,T,D) */
static inline gckpt_tensor *encoder_heads(gckpt_tensor *x, int64_t heads)
{
    static const int order[] = { 0, 2, 1, 3 };
    const gckpt_shape s = gckpt_shape_of(x);
    return gckpt_permute(gckpt_reshape(x, gckpt_shape4(s.d[0], s.d[1], heads, s.d[2] / heads)),
                         order, 4);
}

/* Attention (B,T,C) of tokens to all tokens of their row, or to those of the window. Layers with a
 * window or a bias have their scores in memory; the others do not. */
static inline gckpt_tensor *encoder_attention(const encoder_site *p, gckpt_tensor *q,
                                              gckpt_tensor *k, gckpt_tensor *v)
{
    static const int order[] = { 0, 2, 1, 3 };
    const model_config *c = p->site.config;
    const gckpt_shape shape = gckpt_shape_of(q);
    const int local = llama_bit(c->encoder.local, p->site.layer);
    if (p->bias == NULL && !local) {
        gckpt_attention_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.heads = (int)c->heads;
        desc.lengths = p->text->lengths;
        return gckpt_attention(q, k, v, &desc);
    }
    q = gckpt_scale(encoder_heads(q, c->heads), (float)(1 / model_sqrt((double)c->head_dim)));
    gckpt_tensor *scores = gckpt_matmul_transposed(q, encoder_heads(k, c->heads));
    if (p->bias != NULL)
        scores = gckpt_add(scores, p->bias);
    if (local)
        scores = gckpt_where(p->sees, scores, p->hidden);
    scores = gckpt_softmax(gckpt_where(p->mask, scores, p->hidden));
    gckpt_tensor *seen = gckpt_matmul(scores, encoder_heads(v, c->heads));
    return gckpt_reshape(gckpt_permute(seen, order, 4), shape);
}

/* Queries, keys and values of x; ModernBERT has them in one matrix, with rotary positions. */
static inline void encoder_project(const encoder_site *p, gckpt_tensor *x, gckpt_tensor **q,
                                   gckpt_tensor **k, gckpt_tensor **v)
{
    const model_config *c = p->site.config;
    const encoder_row *r = p->row;
    const char *const names[] = { r->q, r->k, r->v };
    gckpt_tensor **const to[] = { q, k, v };
    gckpt_tensor *all = r->fused != NULL ? model_linear(&p->site, x, r->fused) : NULL;
    for (int i = 0; i < 3; i++)
        *to[i] = all != NULL ? gckpt_slice(all, 2, i * c->width, (i + 1) * c->width)
                             : model_linear(&p->site, x, names[i]);
    if (r->fused == NULL)
        return;
    gckpt_rotary_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.heads = (int)c->heads;
    desc.base = (float)c->encoder.base[llama_bit(c->encoder.local, p->site.layer)];
    *q = gckpt_rotary(*q, &desc);
    *k = gckpt_rotary(*k, &desc);
}

/* Appends a block to x: (B,T,C) -> (B,T,C). It is one segment for gckpt_checkpoint. */
static inline gckpt_tensor *encoder_block(gckpt_tensor *x, void *user)
{
    const encoder_site *p = (const encoder_site *)user;
    const model_config *c = p->site.config;
    const encoder_row *r = p->row;
    gckpt_tensor *q, *k, *v;
    encoder_project(p, r->pre_norm ? encoder_norm(p, x, r->attention_norm) : x, &q, &k, &v);
    gckpt_tensor *a = model_linear(&p->site, encoder_attention(p, q, k, v), r->output);
    x = gckpt_add(x, model_branch(&p->site, q, a));
    x = r->pre_norm ? x : encoder_norm(p, x, r->attention_norm);
    a = model_linear(&p->site, r->pre_norm ? encoder_norm(p, x, r->mlp_norm) : x, r->up);
    if (r->pre_norm)
        a = gckpt_mul(c->activation(gckpt_slice(a, 2, 0, c->inner)),
                      gckpt_slice(a, 2, c->inner, 2 * c->inner));
    else
        a = c->activation(a);
    a = model_branch(&p->site, NULL, model_linear(&p->site, a, r->down));
    x = gckpt_add(x, a);
    return r->pre_norm ? x : encoder_norm(p, x, r->mlp_norm);
}

/* Adds the constants of layers with a window or a bias. */
static inline void encoder_add_constants(encoder_site *p, model_any *m, gckpt_graph *g)
{
    static const int heads_first[] = { 2, 0, 1 };
    static const float least = -1e38f; /* its exponential is 0 */
    const gckpt_shape s = gckpt_shape_of(p->text->tokens);
    int local = 0;
    for (int i = 0; i < LLAMA_MASK_BITS / 64; i++)
        local |= m->config.encoder.local[i] != 0;
    if (local)
        p->sees = encoder_constant(m, g, s.d[1], m->config.encoder.window);
    if (p->row->bias != NULL)
        p->bias = gckpt_permute(gckpt_embed(model_param(g, &p->site, p->row->bias, ".weight"),
                                            encoder_constant(m, g, s.d[1], -1)),
                                heads_first, 3);
    if (!local && p->bias == NULL)
        return;
    p->hidden = gckpt_constant(g, "encoder.hidden", GCKPT_F32, gckpt_shape1(1), &least);
    p->mask = gckpt_reshape(p->text->mask, gckpt_shape4(s.d[0], 1, 1, s.d[1]));
}

/* Builds the hidden states (B,T,C) of texts. options NULL means no dropout and no hooks. */
static inline gckpt_tensor *encoder_hidden(model_any *m, const encoder_text *text,
                                           const model_options *options)
{
    const model_options none = { 0, 0, 0, NULL };
    const model_config *c = &m->config;
    const encoder_config *e = &c->encoder;
    options = options != NULL ? options : &none;
    if (!encoder_is_family(c->family))
        return model_hidden(m, text->tokens, options);
    encoder_site p;
    memset(&p, 0, sizeof p);
    p.site.config = c;
    p.site.options = options;
    p.site.layer = -1;
    p.text = text;
    p.row = encoder_row_of(c);
    gckpt_graph *g = gckpt_graph_of(text->tokens);
    encoder_add_constants(&p, m, g);
    gckpt_tensor *x = gckpt_embed(model_param(g, &p.site, p.row->words, ".weight"), text->tokens);
    if (p.row->types != NULL) {
        gckpt_tensor *types = model_param(g, &p.site, p.row->types, ".weight");
        x = gckpt_add(x, text->types != NULL ? gckpt_embed(types, text->types)
                                             : gckpt_slice(types, 0, 0, 1));
    }
    if (p.row->positions != NULL)
        x = gckpt_positions(x, model_param(g, &p.site, p.row->positions, ".weight"), e->first);
    x = encoder_norm(&p, x, p.row->norm);
    if (options->dropout > 0)
        x = gckpt_dropout(x, (float)options->dropout);
    for (p.site.layer = 0; p.site.layer < c->layers; p.site.layer++)
        x = gckpt_checkpoint(encoder_block, x, &p);
    p.site.layer = -1;
    return p.row->last_norm != NULL ? encoder_norm(&p, x, p.row->last_norm) : x;
}

/* ---- heads ----------------------------------------------------------------------------------- */
/* The mean (B,C) of hidden states (B,T,C) over the tokens that are not padding. */
static inline gckpt_tensor *encoder_mean(const encoder_text *text, gckpt_tensor *hidden)
{
    const gckpt_shape s = gckpt_shape_of(hidden);
    gckpt_tensor *weights = gckpt_reshape(text->mask, gckpt_shape3(s.d[0], s.d[1], 1));
    return gckpt_div(gckpt_sum(gckpt_mul(hidden, weights), 1), gckpt_sum(weights, 1));
}

/* The hidden state (B,C) of the first token. */
static inline gckpt_tensor *encoder_first(gckpt_tensor *hidden)
{
    const gckpt_shape s = gckpt_shape_of(hidden);
    return gckpt_reshape(gckpt_slice(hidden, 1, 0, 1), gckpt_shape2(s.d[0], s.d[2]));
}

/* Builds the logits of a classifier, before the softmax: (B,labels) for MODEL_CLASSIFY,
 * (B,T,labels) for MODEL_TAGS. */
static inline gckpt_tensor *encoder_logits(model_any *m, const encoder_text *text,
                                           const model_options *options)
{
    const model_options none = { 0, 0, 0, NULL };
    const model_config *c = &m->config;
    options = options != NULL ? options : &none;
    gckpt_graph *g = gckpt_graph_of(text->tokens);
    encoder_site p;
    memset(&p, 0, sizeof p);
    p.site.config = c;
    p.site.options = options;
    p.site.layer = -1;
    gckpt_tensor *x = encoder_hidden(m, text, options);
    if (model_has_score(c)) {
        const gckpt_shape s = gckpt_shape_of(text->lengths);
        x = gckpt_gather(x, gckpt_reshape(text->lengths, gckpt_shape2(s.d[0], 1)));
        x = gckpt_reshape(x, gckpt_shape2(s.d[0], c->width));
        return gckpt_linear_transposed(x, model_param(g, &p.site, "score", ".weight"), NULL);
    }
    const encoder_row *r = encoder_row_of(c);
    const int tags = c->head.task == MODEL_TAGS;
    if (!tags)
        x = c->encoder.mean ? encoder_mean(text, x) : encoder_first(x);
    if (!tags || r->tags_dense) {
        x = c->encoder.head_activation(model_linear(&p.site, x, r->dense));
        x = r->head_norm != NULL ? encoder_norm(&p, x, r->head_norm) : x;
    }
    if (options->dropout > 0)
        x = gckpt_dropout(x, (float)options->dropout);
    return model_linear(&p.site, x, tags ? "classifier" : r->out);
}

/* Divides each row of x (B,C) by its norm, or by 1e-12 if that is larger. */
static inline gckpt_tensor *encoder_normalise(gckpt_tensor *x)
{
    const int64_t B = gckpt_shape_of(x).d[0];
    gckpt_tensor *squares = gckpt_clamp(gckpt_sum(gckpt_mul(x, x), 1), 1e-24f, 1e38f);
    return gckpt_div(x, gckpt_reshape(gckpt_sqrt(squares), gckpt_shape2(B, 1)));
}

/* The cosines (B,B) of each anchor (B,C) and each positive (B,C). */
static inline gckpt_tensor *encoder_cosines(gckpt_tensor *anchors, gckpt_tensor *positives)
{
    gckpt_tensor *a = encoder_normalise(anchors);
    return gckpt_matmul_transposed(a, encoder_normalise(positives));
}

/* The contrastive loss of B pairs (Henderson 2017), sentence-transformers'
 * MultipleNegativesRankingLoss: cross-entropy of the cosines times `scale`; the positives of the
 * other pairs are the negatives. targets: i32 (B), 0, 1, 2, .. The loss mixes rows, so a
 * micro-batch is the whole batch. */
static inline gckpt_tensor *encoder_contrastive(gckpt_tensor *anchors, gckpt_tensor *positives,
                                                gckpt_tensor *targets, double scale)
{
    gckpt_tensor *scores = gckpt_scale(encoder_cosines(anchors, positives), (float)scale);
    return gckpt_cross_entropy(scores, targets, NULL, 0);
}
#endif
