/* gguf_model.h - reads models of model.h from GGUF files, as llama.cpp's converter writes them.
 * model.h includes this file: to copy with it and gguf.h.
 *
 *     model_load(&m, store, "model.gguf", NULL); // a path instead of a folder
 *
 * Reads the architectures of gguf_architectures; llama is also Mistral's and SmolLM2's, and bert also
 * RoBERTa's, XLM-RoBERTa's and DistilBERT's. Keys are
 * converted to the text of a config.json, which is then parsed. Tensors get the names and layouts of
 * Hugging Face's files, by undoing the converter's changes: the order of rows of queries and keys, and
 * of heads of gated delta nets (gguf_order), the 1 added to norms (gemma, qwen35), the exponential of
 * decays, and the transposition of GPT-2's matrices. The store reads a stream in
 * safetensors' format that is produced row by row (gguf_stream), so no file is in memory as a
 * whole. Unknown keys and tensors are refused by name, since they could change the model's
 * results. */
#ifndef GGUF_MODEL_H
#define GGUF_MODEL_H
#ifndef MODEL_H
#error "include model.h, which includes gguf_model.h"
#endif

/* ---- names ----------------------------------------------------------------------------------- */
typedef struct {
    const char *name; /* value of general.architecture */
    const char *type; /* value of model_type in config.json */
    const char *activation;
    /* the biases that llama.cpp reads, as letters of llama_shapes */
    const char *biases;
    /* nonzero if rows of queries and keys are stored as interleaved pairs, which ggml's rotary
     * positions require */
    int interleaved;
    int plus_one;     /* nonzero if the file has 1 + weight for norms */
    int sandwich;     /* nonzero for Gemma 2 to 4: norms after branches, windows and caps */
    const char *keys; /* keys that only this architecture has, with ' ' around each */
} gguf_architecture;

static const gguf_architecture gguf_architectures[] = {
    { "llama", "llama", "silu", "qom", 1, 0, 0, " " },
    { "qwen2", "qwen2", "silu", "q", 0, 0, 0, " " },
    { "qwen3", "qwen3", "silu", "q", 0, 0, 0, " " },
    { "smollm3", "smollm3", "silu", "q", 1, 0, 0, " " },
    { "gemma", "gemma", "gelu_pytorch_tanh", "q", 0, 1, 0, " " },
    { "gemma2", "gemma2", "gelu_pytorch_tanh", "q", 0, 1, 1, " " },
    { "gemma3", "gemma3_text", "gelu_pytorch_tanh", "q", 0, 1, 1, " " },
    { "gemma4", "gemma4_text", "gelu_pytorch_tanh", "", 0, 0, 1,
      " attention.key_length_swa attention.value_length_swa attention.shared_kv_layers "
      "embedding_length_per_layer_input rope.dimension_count_swa " },
    { "phi3", "phi3", "silu", "q", 0, 0, 0, " rope.scaling.attn_factor " },
    { "granite", "granite", "silu", "qom", 1, 0, 0,
      " embedding_scale residual_scale attention.scale logit_scale " },
    { "olmo2", "olmo2", "silu", "q", 0, 0, 0, " " },
    { "glm4", "glm4", "silu", "q", 0, 0, 0, " " },
    { "chatglm", "glm", "silu", "q", 0, 0, 0, " " },
    { "hunyuan-dense", "hunyuan_v1_dense", "silu", "q", 0, 0, 0, " " },
    { "ernie4_5", "ernie4_5", "silu", "qo", 0, 0, 0, " " },
    { "mistral3", "ministral3", "silu", "qom", 1, 0, 0,
      " attention.temperature_scale rope.scaling.yarn_log_multiplier " },
    { "gptneox", "gpt_neox", "gelu", "qomn", 0, 0, 0,
      " attention.layer_norm_epsilon use_parallel_residual " },
    { "qwen35", "qwen3_5_text", "silu", "", 0, 1, 0,
      " ssm.conv_kernel ssm.state_size ssm.group_count ssm.time_step_rank ssm.inner_size "
      "full_attention_interval rope.dimension_sections nextn_predict_layers " },
    { "gpt2", "gpt2", "gelu_new", "qomn", 0, 0, 0, " " },
    /* also RoBERTa's and XLM-RoBERTa's, whose positions begin with row 0 there; DistilBERT's files
     * have no token types */
    { "bert", "bert", "gelu", "", 0, 0, 0, " " },
    { "bert", "distilbert", "gelu", "", 0, 0, 0, " " },
    { "modern-bert", "modernbert", "gelu", "", 0, 0, 0,
      " attention.layer_norm_rms_epsilon attention.sliding_window rope.freq_base "
      "attention.sliding_window_pattern rope.freq_base_swa rope.scaling.type hidden_activation " },
};
enum { GGUF_ARCHITECTURES = sizeof gguf_architectures / sizeof gguf_architectures[0] };

/* Names of modules in GGUF's tensors, and in this program's parameters: first those of a block, after
 * "blk.N.", in the order of llama_shapes and with Llama's names in llama_layouts; then those outside
 * the blocks, of which embeddings and norm have the family's names. */
static const struct {
    const char *name, *gpt2, *llama;
} gguf_modules[] = {
    { "attn_norm", "ln_1", NULL },
    { "attn_q", NULL, NULL },
    { "attn_k", NULL, NULL },
    { "attn_v", NULL, NULL },
    { "attn_qkv", "attn.c_attn", NULL },
    { "attn_q_norm", NULL, NULL },
    { "attn_k_norm", NULL, NULL },
    { "attn_output", "attn.c_proj", NULL },
    { "post_attention_norm", NULL, NULL },
    { "ffn_norm", "ln_2", NULL },
    { "post_ffw_norm", NULL, NULL },
    { "ffn_gate", NULL, NULL },
    { "ffn_up", "mlp.c_fc", NULL },
    { "ffn_up", NULL, NULL }, /* gate and up */
    { "ffn_down", "mlp.c_proj", NULL },
    { "inp_gate", NULL, NULL },
    { "proj", NULL, NULL },
    { "post_norm", NULL, NULL },
    { "layer_output_scale", NULL, NULL },
    { "ssm_a", NULL, NULL },
    { "ssm_dt", NULL, NULL },
    { "ssm_conv1d", NULL, NULL },
    { "ssm_norm", NULL, NULL },
    { "ssm_out", NULL, NULL },
    { "attn_qkv", NULL, NULL },
    { "attn_gate", NULL, NULL },
    { "ssm_beta", NULL, NULL },
    { "ssm_alpha", NULL, NULL },
    { "token_embd", "wte", NULL },
    { "output_norm", "ln_f", NULL },
    { "position_embd", "wpe", NULL },
    { "output", "lm_head", "lm_head" },
    { "per_layer_token_embd", NULL, "embed_tokens_per_layer" },
    { "per_layer_model_proj", NULL, "per_layer_model_projection" },
    { "per_layer_proj_norm", NULL, "per_layer_projection_norm" },
};
/* Names of an encoder's modules in GGUF's tensors, of bert and of modern-bert, in the order of
 * encoder_module. */
static const char *const gguf_encoder_modules[ENCODER_ALL_MODULES][2] = {
    { "attn_q", NULL },
    { "attn_k", NULL },
    { "attn_v", NULL },
    { NULL, "attn_qkv" },
    { "attn_output", "attn_output" },
    { "attn_output_norm", "attn_norm" },
    { "ffn_up", "ffn_up" },
    { "ffn_down", "ffn_down" },
    { "layer_output_norm", "ffn_norm" },
    { "token_embd", "token_embd" },
    { "position_embd", NULL },
    { "token_types", NULL },
    { "token_embd_norm", "token_embd_norm" },
    { NULL, "output_norm" },
    { "cls", "cls" },
    { NULL, "cls.norm" },
    { "cls.output", "cls.output" },
};
enum {
    GGUF_EMBEDDINGS = LLAMA_MODULES, /* the first module outside the blocks */
    GGUF_NORM,
    GGUF_MODULES = sizeof gguf_modules / sizeof gguf_modules[0]
};

/* Returns the family of an architecture if that is an encoder, else NULL. */
static inline const model_family *gguf_encoder_of(const gguf_architecture *a)
{
    int i = 0;
    while (i < ENCODER_FAMILIES && strcmp(encoder_families[i].model_types, a->type) != 0)
        i++;
    return i < ENCODER_FAMILIES ? &encoder_families[i] : NULL;
}

/* Returns the name of module i in GGUF's tensors, and sets *module to its name in parameters; each is
 * NULL if the architecture does not have the module. */
static inline const char *gguf_module_of(const gguf_architecture *a, const model_config *c, int i,
                                         const char **module)
{
    if (gguf_encoder_of(a) != NULL) {
        *module = encoder_module(encoder_row_of(c), i);
        return gguf_encoder_modules[i][encoder_row_of(c)->pre_norm];
    }
    *module = strcmp(a->name, "gpt2") == 0 ? gguf_modules[i].gpt2
              : i == GGUF_EMBEDDINGS       ? c->family->embeddings
              : i == GGUF_NORM             ? c->family->norm
              : i < GGUF_EMBEDDINGS        ? llama_layouts[c->llama.row->layout].names[i]
                                           : gguf_modules[i].llama;
    return i == LLAMA_MLP_NORM && strcmp(a->name, "qwen35") == 0 ? "post_attention_norm"
                                                                 : gguf_modules[i].name;
}

/* Sets *first and *end to the numbers of modules in blocks, or of others. */
static inline void gguf_module_rows(const gguf_architecture *a, int in_block, int *first, int *end)
{
    const int encoder = gguf_encoder_of(a) != NULL;
    const int blocks = encoder ? (int)ENCODER_MODULES : (int)GGUF_EMBEDDINGS;
    *first = in_block ? 0 : blocks;
    *end = in_block ? blocks : encoder ? (int)ENCODER_ALL_MODULES : (int)GGUF_MODULES;
}

/* Returns the end of the tensor's name, if the parameter of module i has the name of its module without
 * an end like ".weight"; else NULL. */
static inline const char *gguf_end_of(const gguf_architecture *a, int i)
{
    return gguf_encoder_of(a) != NULL ? NULL
           : i == LLAMA_SCALAR        ? ".weight"
           : i == LLAMA_NET_STEPS     ? ".bias"
           : i == LLAMA_NET_DECAYS    ? ""
                                      : NULL;
}

/* Returns the architecture of a model, or NULL if GGUF has none that is supported. */
static inline const gguf_architecture *gguf_architecture_of(const model_config *c)
{
    const char *type = strcmp(c->type, "mistral") == 0 ? "llama" : c->type;
    int i = 0;
    while (i < GGUF_ARCHITECTURES && strcmp(gguf_architectures[i].type, type) != 0)
        i++;
    return i < GGUF_ARCHITECTURES ? &gguf_architectures[i] : NULL;
}

/* Writes the name that a parameter has in GGUF. Returns 0 if GGUF has no such tensor. */
static inline int gguf_tensor_of(const gguf_architecture *a, const model_config *c,
                                 const char *parameter, char *name)
{
    const size_t n = strlen(c->family->blocks);
    const char *module = parameter, *end = strrchr(parameter, '.');
    char block[32] = "";
    int row, rows;
    if (strncmp(parameter, c->family->blocks, n) == 0 && parameter[n] == '.') {
        char *dot = NULL;
        snprintf(block, sizeof block, "blk.%lld.", strtoll(parameter + n + 1, &dot, 10));
        module = *dot == '.' ? dot + 1 : "";
    }
    gguf_module_rows(a, block[0] != 0, &row, &rows);
    for (; row < rows; row++) {
        const char *known, *tensor = gguf_module_of(a, c, row, &known);
        const char *whole = gguf_end_of(a, row);
        const size_t size =
            whole != NULL ? strlen(module) : end < module ? 0 : (size_t)(end - module);
        if (known == NULL || tensor == NULL || size == 0 || strlen(known) != size ||
            strncmp(known, module, size) != 0)
            continue;
        snprintf(name, MODEL_NAME, "%s%s%s", block, tensor, whole != NULL ? whole : end);
        return 1;
    }
    return 0;
}

/* How GGUF orders the rows of a parameter from row `first` on: the index (outer,a,b,inner) of a row
 * there is (outer,b,a,inner) here. a is 0 if the rows have the same order. */
typedef struct {
    int64_t a, b, inner, first;
} gguf_order;

/* Returns the order of heads of values in a gated delta net, each of `inner` rows: those that share
 * a key are neighbours here; in GGUF, heads of all keys alternate. */
static inline gguf_order gguf_net_order(const model_config *c, int64_t inner, int64_t first)
{
    const llama_config *l = &c->llama;
    const gguf_order order = { l->net_values / l->net_keys, l->net_keys, inner, first };
    return order;
}

/* Returns the order of this parameter's or module's columns. */
static inline gguf_order gguf_column_order_of(const model_config *c, const char *name)
{
    const gguf_order same = { 0, 0, 1, 0 };
    return strstr(name, ".linear_attn.out_proj") != NULL
               ? gguf_net_order(c, c->llama.net_value_dim, 0)
               : same;
}

/* Returns the order of the rows of this parameter or module, which has `rows` rows. In a head, ggml's
 * rotary positions rotate neighbours where Hugging Face has two halves. In GPT-NeoX, each head has its
 * own query, key and value, which GGUF stores as all queries, all keys and all values. */
static inline gguf_order gguf_order_of(const gguf_architecture *a, const model_config *c,
                                       const char *name, int64_t rows)
{
    const gguf_order same = { 0, 0, 1, 0 }, neox = { 3, c->heads, rows / 3 / c->heads, 0 };
    const int64_t heads = strstr(name, ".q_proj") != NULL   ? c->heads
                          : strstr(name, ".k_proj") != NULL ? c->key_heads
                                                            : 0;
    if (strstr(name, ".query_key_value") != NULL)
        return neox;
    if (strstr(name, ".linear_attn.") != NULL) {
        const int64_t columns = c->llama.net_value_dim, V = c->llama.net_values * columns;
        return strstr(name, ".in_proj_qkv") != NULL || strstr(name, ".conv1d") != NULL
                   ? gguf_net_order(c, columns, rows - V)
               : strstr(name, ".in_proj_z") != NULL ? gguf_net_order(c, columns, 0)
               : strstr(name, ".norm") != NULL || strstr(name, ".out_proj") != NULL
                   ? same
                   : gguf_net_order(c, 1, 0);
    }
    if (!a->interleaved || heads == 0)
        return same;
    const gguf_order pairs = { rows / heads / 2, 2, 1, 0 };
    return pairs;
}

/* Returns the row of a parameter that is row i in GGUF. */
static inline int64_t gguf_param_row(gguf_order o, int64_t i)
{
    if (o.a == 0 || i < o.first)
        return i;
    const int64_t k = (i - o.first) / o.inner, outer = k / (o.a * o.b);
    return o.first + ((outer * o.b + k % o.b) * o.a + k / o.b % o.a) * o.inner +
           (i - o.first) % o.inner;
}

/* Returns the row in GGUF that is row i of a parameter. */
static inline int64_t gguf_file_row(gguf_order o, int64_t i)
{
    const gguf_order back = { o.b, o.a, o.inner, o.first };
    return gguf_param_row(back, i);
}

/* Returns the number that GGUF's values of this parameter have in addition. */
static inline float gguf_norm_offset(const gguf_architecture *a, const char *name)
{
    return a->plus_one && strstr(name, "norm.weight") != NULL &&
                   strstr(name, ".linear_attn.") == NULL
               ? 1.0f
               : 0.0f;
}

/* Returns whether GGUF has -exp(x) for each value x of this parameter. */
static inline int gguf_is_decay(const char *name) { return strstr(name, ".A_log") != NULL; }

/* Writes the name of the parameter that a GGUF tensor belongs to. Returns 0 if it belongs to no
 * parameter. */
static inline int gguf_param_name(const gguf_architecture *a, const model_config *c,
                                  const char *tensor, char *name)
{
    const char *part = tensor;
    long long layer = -1;
    char *end = NULL;
    if (strncmp(tensor, "blk.", 4) == 0) {
        layer = strtoll(tensor + 4, &end, 10);
        if (end == tensor + 4 || *end != '.' || tensor[4] < '0' || tensor[4] > '9')
            return 0;
        part = end + 1;
    }
    const char *last = strrchr(part, '.');
    const size_t n = last != NULL ? (size_t)(last - part) : strlen(part);
    int i, rows;
    gguf_module_rows(a, layer >= 0, &i, &rows);
    for (; i < rows; i++) {
        const char *module, *known = gguf_module_of(a, c, i, &module);
        const char *whole = gguf_end_of(a, i);
        if (module == NULL || known == NULL || strlen(known) != n || strncmp(known, part, n) != 0)
            continue;
        model_join(name, model_block_name(c, name, layer, module),
                   whole != NULL && strcmp(part + n, whole) == 0 ? "" : part + n);
        return 1;
    }
    return 0;
}

/* Returns whether a tensor can be ignored: its values follow from keys or are computed here, or it
 * belongs to the head of another task, or to qwen35's blocks after the last one, which predict further
 * tokens. */
static inline int gguf_is_skipped(const gguf_architecture *a, const model_config *c,
                                  const char *tensor)
{
    const model_head *head = &c->head;
    if (strcmp(a->name, "qwen35") == 0 && strncmp(tensor, "blk.", 4) == 0 &&
        strtoll(tensor + 4, NULL, 10) >= c->layers)
        return 1;
    if (strncmp(tensor, "cls.", 4) == 0 && (head->task != MODEL_CLASSIFY || head->is_new))
        return 1;
    if (strcmp(tensor, "output.weight") == 0 && head->task != MODEL_NEXT_TOKEN)
        return 1;
    return strcmp(tensor, "rope_freqs.weight") == 0 || strncmp(tensor, "rope_factors_", 13) == 0 ||
           strstr(tensor, ".attn_rot_embd") != NULL;
}

/* Returns whether the name ends like that of a GGUF file. */
static inline int gguf_is_file_name(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

/* Returns whether the path is a GGUF file: a file that begins like one, or whose name ends like
 * that of one. A folder is not. */
static inline int gguf_is_file(const char *path)
{
    char magic[4] = { 0, 0, 0, 0 };
#if MODEL_MMAP
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return 0;
#endif
    FILE *f = fopen(path, "rb");
    const size_t read = f != NULL ? fread(magic, 1, 4, f) : 0;
    if (f != NULL)
        fclose(f);
    return (read == 4 && memcmp(magic, "GGUF", 4) == 0) || gguf_is_file_name(path);
}

/* ---- keys as config.json --------------------------------------------------------------------- */
typedef struct {
    gguf g;
    const gguf_architecture *a;
    json *to; /* the config.json that is being written, in to->owned */
    size_t size;
    int out_of_memory;
    char key[96]; /* memory for the result of gguf_key_of */
} gguf_reader;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void
gguf_print(gguf_reader *r, const char *format, ...)
{
    va_list args;
    char text[256];
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    while (!r->out_of_memory && r->size + sizeof text >= r->to->owned_capacity)
        r->out_of_memory = json_grow(r->to) != 0;
    if (r->out_of_memory || n < 0 || n >= (int)sizeof text)
        return;
    memcpy(r->to->owned + r->size, text, (size_t)n + 1);
    r->size += (size_t)n;
}

/* Returns the name of a key with the architecture before it, "architecture.key". It is valid until
 * the next call. */
static inline const char *gguf_key_of(gguf_reader *r, const char *key)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->a->name, key);
    return r->key;
}

static inline int gguf_has_key(gguf_reader *r, const char *key)
{
    return gguf_find(&r->g, gguf_key_of(r, key)) != NULL;
}

/* Returns the value of a key that is a size. The value may also be an array with a size for each
 * layer: returns the one of `layer`, or of all layers, which must be equal, if layer is -1. Returns
 * `fallback` if the key is missing, but if fallback is 0, the key is required. */
static inline int64_t gguf_layer_size(gguf_reader *r, const char *key, int64_t fallback,
                                      int64_t layer)
{
    const char *name = gguf_key_of(r, key);
    int64_t size = fallback;
    if (gguf_type_of(&r->g, name) == GGUF_ARRAY) {
        gguf_items all = gguf_array(&r->g, name, GGUF_I32);
        for (int64_t i = 0; gguf_next(&all); i++) {
            if (layer < 0 && i > 0 && all.integer != size)
                gguf_fail(&r->g, "key %s: layers differ, %lld and %lld; all layers must be equal",
                          name, (long long)size, (long long)all.integer);
            size = layer < 0 || i == layer ? all.integer : size;
        }
    } else {
        size = gguf_int(&r->g, name, fallback);
    }
    if (size == 0 && fallback == 0 && gguf_find(&r->g, name) == NULL)
        gguf_fail(&r->g, "key %s is missing", name);
    else if (size < 1 || size > 1 << 24)
        gguf_fail(&r->g, "key %s is %lld: a number from 1 to 16777216 is expected", name,
                  (long long)size);
    return size;
}

static inline int64_t gguf_key_size(gguf_reader *r, const char *key, int64_t fallback)
{
    return gguf_layer_size(r, key, fallback, -1);
}

/* Writes the member "name": x, with the fewest digits from which the same float can be read. */
static inline void gguf_print_real(gguf_reader *r, const char *name, double x)
{
    char text[40];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if ((float)strtod(text, NULL) == (float)x)
            break;
    }
    if (!(x > -1e30 && x < 1e30))
        gguf_fail(&r->g, "%s: a number is expected", name);
    gguf_print(r, ",\n  \"%s\": %s", name, text);
}

/* Returns the value of a key that must exist and is a number. */
static inline double gguf_require_real(gguf_reader *r, const char *key)
{
    const char *name = gguf_key_of(r, key);
    if (gguf_find(&r->g, name) == NULL)
        gguf_fail(&r->g, "key %s is missing", name);
    return gguf_real(&r->g, name, 0);
}

/* Returns a list of the keys that are supported for an architecture, with ' ' around each. */
static inline const char *gguf_known_keys(const gguf_architecture *a)
{
    if (gguf_encoder_of(a) != NULL)
        return " block_count embedding_length feed_forward_length context_length vocab_size "
               "attention.head_count attention.layer_norm_epsilon attention.causal pooling_type "
               "classifier.output_labels classifier.pooling_type ";
    if (strcmp(a->name, "gpt2") == 0)
        return " block_count embedding_length feed_forward_length context_length vocab_size "
               "attention.head_count attention.head_count_kv attention.layer_norm_epsilon "
               "attention.key_length attention.value_length attention.causal expert_count ";
    return " block_count embedding_length feed_forward_length context_length vocab_size "
           "attention.head_count attention.head_count_kv attention.layer_norm_rms_epsilon "
           "attention.key_length attention.value_length attention.causal expert_count "
           "attention.sliding_window attention.sliding_window_pattern tensor_data_layout "
           "attn_logit_softcapping final_logit_softcapping rope.dimension_count rope.freq_base "
           "rope.freq_base_swa rope.scale_linear rope.scaling.type rope.scaling.factor "
           "rope.scaling.original_context_length rope.scaling.finetuned "
           "rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow "
           "rope.scaling.yarn_ext_factor ";
}

/* Returns an error for models that have unknown keys, are mixtures of experts, or have no causal
 * attention. */
static inline void gguf_refuse_others(gguf_reader *r)
{
    gguf *g = &r->g;
    char key[96];
    const size_t n = strlen(r->a->name);
    for (size_t i = 0; i < g->key_count && g->error[0] == 0; i++) {
        const char *name = g->keys[i].name;
        if (strncmp(name, r->a->name, n) != 0 || name[n] != '.')
            continue;
        snprintf(key, sizeof key, " %.90s ", name + n + 1);
        if (strstr(key, " expert_") != NULL && strstr(key, "_count ") != NULL &&
            gguf_int(g, name, 0) > 0)
            gguf_fail(g, "key %s: mixtures of experts are not supported", name);
        else if (strstr(gguf_known_keys(r->a), key) == NULL && strstr(r->a->keys, key) == NULL)
            gguf_fail(g, "key %.64s is unknown, and may change the model's results", name);
    }
    const int causal = gguf_encoder_of(r->a) == NULL;
    if (gguf_bool(g, gguf_key_of(r, "attention.causal"), causal) != causal)
        gguf_fail(g, "key %s: %s is expected for %s", gguf_key_of(r, "attention.causal"),
                  causal ? "true" : "false", r->a->name);
}

/* Opens the file and determines its architecture. Returns 0, or -1 with g->error. */
static inline int gguf_open_model(gguf_reader *r, const char *path)
{
    gguf *g = &r->g;
    char all[320] = "";
    size_t n = 0;
    if (gguf_open(g, path) != 0)
        return -1;
    const char *type = gguf_text(g, "general.type", NULL);
    const char *name = gguf_text(g, "general.architecture", NULL);
    if (g->error[0] == 0 && type != NULL && strcmp(type, "model") != 0)
        return gguf_fail(g, "key general.type is %.40s: a model is expected%s", type,
                         strcmp(type, "adapter") == 0 ? " (--adapter takes adapters)" : "");
    if (g->error[0] == 0 && gguf_int(g, "split.count", 1) != 1)
        return gguf_fail(
            g,
            "is one of %lld parts; llama-gguf-split --merge FIRST-PART WHOLE.gguf makes "
            "one file of them",
            (long long)gguf_int(g, "split.count", 1));
    const int typed = gguf_find_tensor(g, "token_types.weight") != NULL;
    for (int i = 0; i < GGUF_ARCHITECTURES; i++) {
        const int distilbert = strcmp(gguf_architectures[i].type, "distilbert") == 0;
        if (name != NULL && strcmp(name, gguf_architectures[i].name) == 0 && !(distilbert && typed))
            r->a = &gguf_architectures[i];
        n += distilbert ? 0
                        : (size_t)snprintf(all + n, sizeof all - n, "%s%s", i > 0 ? ", " : "",
                                           gguf_architectures[i].name);
    }
    const char *remedy = name != NULL ? model_type_remedy(name) : NULL;
    if (r->a == NULL)
        return gguf_fail(g, "key general.architecture is %.40s: one of %s is expected%s%s",
                         name != NULL ? name : "missing", all, remedy != NULL ? ": " : "",
                         remedy != NULL ? remedy : "");
    gguf_refuse_others(r);
    return g->error[0] == 0 ? 0 : -1;
}

/* Writes the sizes of the model, under the names that they have in config.json. */
static inline void gguf_print_sizes(gguf_reader *r)
{
    static const struct {
        const char *key, *names[3];
    } sizes[] = { { "block_count", { "num_hidden_layers", "n_layer", "n_layers" } },
                  { "embedding_length", { "hidden_size", "n_embd", "dim" } },
                  { "feed_forward_length", { "intermediate_size", "n_inner", "hidden_dim" } },
                  { "context_length",
                    { "max_position_embeddings", "n_positions", "max_position_embeddings" } },
                  { "attention.head_count", { "num_attention_heads", "n_head", "n_heads" } } };
    const int column = strcmp(r->a->type, "gpt2") == 0         ? 1
                       : strcmp(r->a->type, "distilbert") == 0 ? 2
                                                               : 0;
    const gguf_tensor *table = gguf_find_tensor(&r->g, "token_embd.weight");
    const int gemma4 = strcmp(r->a->name, "gemma4") == 0; /* whose last layers may be wider */
    const int64_t further = gguf_int(&r->g, gguf_key_of(r, "nextn_predict_layers"), 0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        gguf_print(r, ",\n  \"%s\": %lld", sizes[i].names[column],
                   (long long)(gguf_layer_size(r, sizes[i].key, 0, gemma4 && i == 2 ? 0 : -1) -
                               (i == 0 ? further : 0)));
    if (table == NULL)
        gguf_fail(&r->g, "tensor token_embd.weight is missing; does the file have keys only?");
    else
        gguf_print(r, ",\n  \"vocab_size\": %lld", (long long)table->d[1]);
    gguf_print(r, ",\n  \"tie_word_embeddings\": %s",
               gguf_find_tensor(&r->g, "output.weight") == NULL ? "true" : "false");
}

/* Returns the number of columns of a head; in Gemma 4, of layers with full attention. */
static inline int64_t gguf_head_dim(gguf_reader *r)
{
    const int64_t width = gguf_key_size(r, "embedding_length", 0);
    const int64_t heads = gguf_key_size(r, "attention.head_count", 0);
    if (r->g.error[0] != 0)
        return 1;
    const int64_t head =
        gguf_key_size(r, "attention.key_length", width >= heads ? width / heads : 1);
    if (!gguf_has_key(r, "attention.key_length") && width % heads != 0)
        gguf_fail(&r->g,
                  "the width %lld is not a multiple of the %lld heads, and key %s, the "
                  "width of a head, is missing",
                  (long long)width, (long long)heads, r->key);
    const int partial = strcmp(r->a->name, "gpt2") == 0 || llama_find_type(r->a->type)->rotated > 0;
    if (gguf_key_size(r, "attention.value_length", head) != head ||
        (!partial && gguf_key_size(r, "rope.dimension_count", head) != head))
        gguf_fail(&r->g, "key %s: the %lld columns of a head's keys are expected", r->key,
                  (long long)head);
    return head;
}

/* ---- positions: reconstructs llama3's scaling from the factors in the file ------------------- */
typedef struct {
    double factor, low, high, original;
} gguf_llama3;

/* Returns the factor by which llama3's scaling divides a frequency, as in modeling_rope_utils of
 * transformers. */
static inline double gguf_llama3_factor(const gguf_llama3 *l, double frequency)
{
    const double rotations = l->original * frequency / 6.28318530717958647693;
    const double kept = llama_clamp((rotations - l->low) / (l->high - l->low), 0, 1);
    return 1 / ((1 - kept) / l->factor + kept);
}

/* Returns the greatest relative difference between the factors of *l and the expected factors. */
static inline double gguf_llama3_error(const gguf_llama3 *l, const float *expected, int64_t n,
                                       double base)
{
    double error = 0;
    for (int64_t i = 0; i < n; i++) {
        const double f = llama_exp(-(double)i / (double)n * llama_log(base));
        const double d = gguf_llama3_factor(l, f) / (double)expected[i] - 1;
        error = d > error ? d : -d > error ? -d : error;
    }
    return error;
}

/* Returns x rounded to 4 digits if that is close to x: then config.json probably had this number.
 * Otherwise returns x. */
static inline double gguf_round4(double x)
{
    char text[40];
    snprintf(text, sizeof text, "%.4g", x);
    const double y = strtod(text, NULL), error = y / x - 1;
    return error < 2e-5 && error > -2e-5 ? y : x;
}

/* Determines l->low and l->high from the expected factors. Between low and high, the part of a
 * frequency that is kept is a linear function of the rotations, and two points determine it. Up to
 * four points are known: the last frequency that is not scaled (0), the first (1) and the last (2)
 * one between low and high, and the first one that is divided by the whole factor (3). Tries pairs
 * of these points until the factors agree. */
static inline void gguf_llama3_fit(gguf_llama3 *l, const float *expected, int64_t n, double base)
{
    static const int pairs[][2] = { { 1, 2 }, { 1, 3 }, { 0, 1 }, { 0, 3 } };
    double rotations[4] = { 0, 0, 0, 0 }, fraction[4] = { 1, 0, 0, 0 };
    for (int64_t i = 0; i < n; i++) { /* in descending order of frequencies */
        const double x = l->original * llama_exp(-(double)i / (double)n * llama_log(base)) /
                         6.28318530717958647693;
        const double y = (1 / (double)expected[i] - 1 / l->factor) / (1 - 1 / l->factor);
        const int to = y > 1 - 1e-4 ? 0 : y < 1e-4 ? 3 : rotations[1] > 0 ? 2 : 1;
        if (to == 3 && rotations[3] > 0)
            break;
        rotations[to] = x;
        fraction[to] = to == 0 ? 1 : to == 3 ? 0 : y;
    }
    /* pass -1 tries point 1 alone, with high = 4 low, as most models have */
    for (int i = -1; i < 4; i++) {
        const int p = i < 0 ? 1 : pairs[i][0], q = i < 0 ? 1 : pairs[i][1];
        if (!(rotations[p] > 0) || !(rotations[q] > 0))
            continue;
        const double fallback = rotations[1] / (1 + 3 * fraction[1]);
        const double slope = i < 0 ? 1 / (3 * fallback)
                                   : (fraction[p] - fraction[q]) / (rotations[p] - rotations[q]);
        l->low = gguf_round4(rotations[q] - fraction[q] / slope);
        l->high = gguf_round4(rotations[p] + (1 - fraction[p]) / slope);
        if (gguf_llama3_error(l, expected, n, base) <= 1e-5)
            return;
    }
}

/* Writes rope_scaling of config.json, from the factors in the tensor rope_freqs.weight. */
static inline void gguf_print_llama3(gguf_reader *r, const gguf_tensor *t, double base)
{
    float expected[LLAMA_MAX_HEAD_DIM / 2];
    const int64_t n = gguf_head_dim(r) / 2;
    gguf_llama3 l = { 1, 1, 4, 8192 }; /* values of Meta's models */
    if (r->g.error[0] == 0 &&
        (t->elements != n || n > LLAMA_MAX_HEAD_DIM / 2 || t->type != GGUF_T_F32))
        gguf_fail(&r->g,
                  "tensor %s: %lld numbers of type F32 are expected, one for each pair of "
                  "columns of a head",
                  t->name, (long long)n);
    if (r->g.error[0] != 0 || gguf_read_floats(&r->g, t, 0, n, expected) != 0)
        return;
    for (int64_t i = 0; i < n; i++)
        l.factor = (double)expected[i] > l.factor ? (double)expected[i] : l.factor;
    if (l.factor == 1) /* the factors scale no frequency */
        return;
    l.original =
        (double)gguf_int(&r->g, gguf_key_of(r, "rope.scaling.original_context_length"), 8192);
    if (gguf_llama3_error(&l, expected, n, base) > 1e-5)
        gguf_llama3_fit(&l, expected, n, base);
    if (!(gguf_llama3_error(&l, expected, n, base) <= 1e-5) || !(l.high > l.low) || !(l.low > 0))
        gguf_fail(&r->g, "tensor %s: its factors do not fit Llama 3's scaling", t->name);
    gguf_print(r, ",\n  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %.9g, ",
               l.factor);
    gguf_print(r, "\"low_freq_factor\": %.9g, \"high_freq_factor\": %.9g, ", l.low, l.high);
    gguf_print(r, "\"original_max_position_embeddings\": %.9g}", l.original);
}

/* Writes rope_scaling of config.json for longrope, from the divisors in two tensors. */
static inline void gguf_print_longrope(gguf_reader *r)
{
    static const char *const lists[][2] = { { "rope_factors_short.weight", "short_factor" },
                                            { "rope_factors_long.weight", "long_factor" } };
    const int64_t context = gguf_key_size(r, "context_length", 0);
    gguf_print(r, ",\n  \"original_max_position_embeddings\": %lld",
               (long long)gguf_key_size(r, "rope.scaling.original_context_length", context));
    gguf_print(r, ",\n  \"rope_scaling\": {\"rope_type\": \"longrope\"");
    gguf_print_real(r, "attention_factor",
                    gguf_real(&r->g, gguf_key_of(r, "rope.scaling.attn_factor"), 1));
    for (int i = 0; i < 2 && r->g.error[0] == 0; i++) {
        float values[LLAMA_LONGROPE_PAIRS];
        const gguf_tensor *t = gguf_find_tensor(&r->g, lists[i][0]);
        if (t == NULL || t->elements > LLAMA_LONGROPE_PAIRS || t->type != GGUF_T_F32)
            gguf_fail(&r->g, "tensor %s: at most %d numbers of type F32 are expected", lists[i][0],
                      LLAMA_LONGROPE_PAIRS);
        else if (gguf_read_floats(&r->g, t, 0, t->elements, values) == 0)
            for (int64_t k = 0; k < t->elements; k++) {
                if (k == 0)
                    gguf_print(r, ",\n  \"%s\": [", lists[i][1]);
                gguf_print(r, "%s%.9g", k > 0 ? ", " : "", (double)values[k]);
            }
        gguf_print(r, "]");
    }
    gguf_print(r, "}");
}

/* Writes which part of a head's columns rotary positions rotate, if the model type has that key. */
static inline void gguf_print_rotated(gguf_reader *r)
{
    const int64_t head = gguf_head_dim(r), columns = gguf_key_size(r, "rope.dimension_count", head);
    double part = (double)columns / (double)head;
    if (llama_find_type(r->a->type)->rotated == 0)
        return;
    if ((int64_t)(part * (double)head) != columns) /* the product was rounded down */
        part = ((double)columns + 0.5) / (double)head;
    gguf_print(r, ",\n  \"%s\": %.17g",
               strcmp(r->a->name, "gptneox") ? "partial_rotary_factor" : "rotary_pct", part);
}

/* Writes the rotary positions of Gemma 4. In layers with full attention, rope_freqs.weight has
 * divisors of the frequencies, and very large ones for pairs of columns that do not rotate. */
static inline void gguf_print_gemma4_positions(gguf_reader *r)
{
    float divisors[LLAMA_MAX_HEAD_DIM / 2];
    const gguf_tensor *t = gguf_find_tensor(&r->g, "rope_freqs.weight");
    const int64_t n = gguf_head_dim(r) / 2;
    int64_t rotated = 0, others = 0;
    if (t == NULL || t->elements != n || n > LLAMA_MAX_HEAD_DIM / 2 || t->type != GGUF_T_F32) {
        gguf_fail(&r->g,
                  "tensor rope_freqs.weight: %lld numbers of type F32 are expected, one for "
                  "each pair of columns of a head",
                  (long long)n);
        return;
    }
    if (gguf_read_floats(&r->g, t, 0, n, divisors) != 0)
        return;
    while (rotated < n && divisors[rotated] == divisors[0] && divisors[0] < 1e20f)
        rotated++;
    while (rotated + others < n && divisors[rotated + others] >= 1e20f)
        others++;
    if (rotated == 0 || rotated + others < n || !(divisors[0] > 0))
        gguf_fail(&r->g, "tensor rope_freqs.weight: equal numbers above 0 and then numbers of at "
                         "least 1e20 are expected");
    gguf_print(r, ",\n  \"rope_parameters\": {\"full_attention\": {\"rope_type\": "
                  "\"proportional\"");
    gguf_print_real(r, "rope_theta", gguf_require_real(r, "rope.freq_base"));
    gguf_print_real(r, "factor", (double)divisors[0]);
    gguf_print(r,
               ",\n  \"partial_rotary_factor\": %.17g},\n  \"sliding_attention\": {\"rope_type\": "
               "\"default\"",
               (double)rotated / (double)n);
    gguf_print_real(r, "rope_theta", gguf_real(&r->g, gguf_key_of(r, "rope.freq_base_swa"), 10000));
    gguf_print(r, "}}");
}

/* Writes the keys with which YaRN's factor of cosines and sines, and Ministral's factor of queries,
 * follow from the text's length. */
static inline void gguf_print_mistral3(gguf_reader *r)
{
    const double scale = gguf_real(&r->g, gguf_key_of(r, "attention.temperature_scale"), 0);
    const double all = gguf_real(&r->g, gguf_key_of(r, "rope.scaling.yarn_log_multiplier"), 0);
    if (all != 0) {
        gguf_print(r, ",\n  \"mscale\": 1.0");
        gguf_print_real(r, "mscale_all_dim", all);
    }
    gguf_print_real(r, "llama_4_scaling_beta", scale);
}

/* Writes the keys of config.json for rotary positions. */
static inline void gguf_print_positions(gguf_reader *r)
{
    gguf *g = &r->g;
    const gguf_tensor *factors = gguf_find_tensor(g, "rope_freqs.weight");
    const double base = gguf_real(g, gguf_key_of(r, "rope.freq_base"), 10000);
    const char *type = gguf_text(g, gguf_key_of(r, "rope.scaling.type"), NULL);
    const double old = gguf_real(g, gguf_key_of(r, "rope.scale_linear"), 1);
    const double factor = gguf_real(g, gguf_key_of(r, "rope.scaling.factor"), old);
    const int yarn = type != NULL && strcmp(type, "yarn") == 0;
    const int mistral3 = strcmp(r->a->name, "mistral3") == 0;
    if (!(base > 1))
        gguf_fail(g, "key %s.rope.freq_base is %g: a number above 1 is expected", r->a->name, base);
    if (strcmp(r->a->name, "gemma4") == 0) {
        gguf_print_gemma4_positions(r);
        return;
    }
    gguf_print_real(r, strcmp(r->a->name, "gptneox") ? "rope_theta" : "rotary_emb_base", base);
    gguf_print_rotated(r);
    if (gguf_find_tensor(g, "rope_factors_long.weight") != NULL) {
        gguf_print_longrope(r);
        return;
    }
    if (type != NULL && !yarn && strcmp(type, "linear") != 0 && strcmp(type, "none") != 0)
        gguf_fail(g, "key %s.rope.scaling.type is %.40s: none, linear or yarn is expected",
                  r->a->name, type);
    if (factors != NULL && g->error[0] == 0) {
        if (type != NULL && strcmp(type, "none") != 0)
            gguf_fail(g,
                      "tensor %s and key %s both scale frequencies; only one of them is "
                      "supported",
                      factors->name, gguf_key_of(r, "rope.scaling.type"));
        gguf_print_llama3(r, factors, base);
        return;
    }
    const int unscaled = !yarn && (factor == 1 || (type != NULL && *type == 'n'));
    if (g->error[0] != 0 || (unscaled && !mistral3))
        return;
    gguf_print(r, ",\n  \"rope_scaling\": {\"rope_type\": \"%s\"",
               yarn       ? "yarn"
               : unscaled ? "default"
                          : "linear");
    gguf_print_real(r, "factor", factor);
    if (mistral3)
        gguf_print_mistral3(r);
    static const char *const keys[][2] = {
        { "rope.scaling.yarn_attn_factor", "attention_factor" },
        { "rope.scaling.yarn_beta_fast", "beta_fast" },
        { "rope.scaling.yarn_beta_slow", "beta_slow" },
    };
    for (int i = 0; i < 3 && yarn; i++)
        if (gguf_has_key(r, keys[i][0]))
            gguf_print_real(r, keys[i][1], gguf_real(g, r->key, 0));
    if (yarn && gguf_real(g, gguf_key_of(r, "rope.scaling.yarn_ext_factor"), 1) != 1)
        gguf_fail(g, "key %s: 1 is expected, the only supported value", r->key);
    if ((yarn || mistral3) && gguf_has_key(r, "rope.scaling.original_context_length"))
        gguf_print(r, ",\n  \"original_max_position_embeddings\": %lld",
                   (long long)gguf_key_size(r, "rope.scaling.original_context_length", 0));
    gguf_print(r, "}");
}

/* Writes the sliding window and, for Gemma and ModernBERT, which layers have it. If no key of the file
 * tells, all layers have it, except every second one in gemma2, every sixth one in gemma3, and
 * layers 0, 3, 6, .. of modern-bert. */
static inline void gguf_print_windows(gguf_reader *r)
{
    gguf *g = &r->g;
    const int gemma2 = strcmp(r->a->name, "gemma2") == 0;
    const int modern = strcmp(r->a->name, "modern-bert") == 0;
    const int64_t layers = gguf_key_size(r, "block_count", 0);
    const int64_t window =
        gguf_int(g, gguf_key_of(r, "attention.sliding_window"), gemma2 ? 4096 : 0);
    const char *pattern = gguf_key_of(r, "attention.sliding_window_pattern");
    gguf_items each;
    memset(&each, 0, sizeof each);
    if (window > 0)
        gguf_print(r, ",\n  \"%s\": %lld", modern ? "local_attention" : "sliding_window",
                   (long long)window);
    if (!r->a->sandwich && !modern)
        return;
    if (gguf_type_of(g, pattern) == GGUF_ARRAY)
        each = gguf_array(g, pattern, GGUF_BOOL);
    const int64_t every = each.count > 0 ? 0 : gguf_int(g, pattern, gemma2 ? 2 : modern ? 3 : 6);
    if (each.count > 0 ? each.count != (uint64_t)layers : every < 0)
        gguf_fail(g, "key %s: a number, or a bool for each of %lld layers, is expected", pattern,
                  (long long)layers);
    gguf_print(r, ",\n  \"layer_types\": [");
    for (int64_t i = 0; i < layers && g->error[0] == 0; i++) {
        const int slides = each.item_type == GGUF_BOOL && gguf_next(&each) ? each.integer != 0
                           : every == 0                                    ? window > 0
                                        : (i + !modern) % every != 0;
        gguf_print(r, "%s\"%s\"", i > 0 ? ", " : "",
                   slides && window > 0 ? "sliding_attention" : "full_attention");
    }
    gguf_print(r, "]");
}

/* Writes keys that only gemma2 and gemma3 have: caps, and query_pre_attn_scalar. GGUF has no key
 * for the latter. As in llama.cpp, it is embedding_length / head_count in the largest models, which
 * are recognised by their number of layers, and the head's width in all others. */
static inline void gguf_print_gemma(gguf_reader *r)
{
    static const char *const caps[] = { "attn_logit_softcapping", "final_logit_softcapping" };
    const int largest =
        gguf_key_size(r, "block_count", 0) == (strcmp(r->a->name, "gemma2") ? 62 : 46);
    const int64_t divisor =
        gguf_key_size(r, "embedding_length", 0) / gguf_key_size(r, "attention.head_count", 1);
    for (int i = 0; i < 2; i++)
        if (gguf_has_key(r, caps[i]) && gguf_real(&r->g, r->key, 0) != 0)
            gguf_print_real(r, caps[i], gguf_real(&r->g, r->key, 0));
        else
            gguf_print(r, ",\n  \"%s\": null", caps[i]);
    gguf_print(r, ",\n  \"query_pre_attn_scalar\": %lld",
               (long long)(largest ? divisor : gguf_head_dim(r)));
    if (strcmp(r->a->name, "gemma3") == 0)
        gguf_print_real(r, "rope_local_base_freq",
                        gguf_real(&r->g, gguf_key_of(r, "rope.freq_base_swa"), 10000));
}

/* Returns whether Gemma 4's layer has a sliding window. */
static inline int gguf_layer_slides(gguf_reader *r, int64_t layer)
{
    gguf_items each =
        gguf_array(&r->g, gguf_key_of(r, "attention.sliding_window_pattern"), GGUF_BOOL);
    while (gguf_next(&each))
        if (layer-- == 0)
            return each.integer != 0;
    return 0;
}

/* Writes keys that only Gemma 4 has: sizes that differ by layer, layers that share keys, and the
 * layers' further inputs. A layer with full attention that computes keys, but no values, uses its
 * keys as values. */
static inline void gguf_print_gemma4(gguf_reader *r)
{
    gguf *g = &r->g;
    const int64_t layers = gguf_key_size(r, "block_count", 0), head = gguf_head_dim(r);
    const int64_t shared = gguf_int(g, gguf_key_of(r, "attention.shared_kv_layers"), 0);
    const int64_t first = gguf_layer_size(r, "feed_forward_length", 0, 0);
    const int64_t last = gguf_layer_size(r, "feed_forward_length", 0, layers - 1);
    const int64_t columns = gguf_key_size(r, "attention.key_length_swa", head);
    int64_t key_heads[2] = { 0, 0 }; /* of layers with full attention, of others */
    int as_values = 0, n = 0;
    if (gguf_key_size(r, "attention.value_length_swa", columns) != columns ||
        gguf_key_size(r, "rope.dimension_count_swa", columns) != columns)
        gguf_fail(g, "key %s: the %lld columns of a head's keys are expected", r->key,
                  (long long)columns);
    gguf_print(r, ",\n  \"per_layer_config\": {");
    for (int64_t i = 0; i < layers && g->error[0] == 0; i++) {
        char name[64];
        const int slides = gguf_layer_slides(r, i);
        key_heads[slides] = gguf_layer_size(r, "attention.head_count_kv", 0, i);
        snprintf(name, sizeof name, "blk.%lld.attn_v.weight", (long long)i);
        as_values |= !slides && i < layers - shared && gguf_find_tensor(g, name) == NULL;
        if (!slides)
            gguf_print(r, "%s\"%lld\": {\"head_dim\": %lld, \"num_key_value_heads\": %lld}",
                       n++ > 0 ? ", " : "", (long long)i, (long long)head, (long long)key_heads[0]);
    }
    gguf_print(r, "},\n  \"head_dim\": %lld", (long long)columns);
    gguf_print(r, ",\n  \"num_key_value_heads\": %lld",
               (long long)(key_heads[1] > 0 ? key_heads[1] : key_heads[0]));
    gguf_print(r, ",\n  \"num_kv_shared_layers\": %lld,\n  \"use_double_wide_mlp\": %s",
               (long long)shared, first == last ? "false" : "true");
    gguf_print(r, ",\n  \"attention_k_eq_v\": %s", as_values ? "true" : "false");
    gguf_print(r, ",\n  \"hidden_size_per_layer_input\": %lld",
               (long long)gguf_int(g, gguf_key_of(r, "embedding_length_per_layer_input"), 0));
    const gguf_tensor *table = gguf_find_tensor(g, "per_layer_token_embd.weight");
    if (table != NULL)
        gguf_print(r, ",\n  \"vocab_size_per_layer_input\": %lld", (long long)table->d[1]);
}

/* Writes the sizes of the gated delta nets, and which layers are one. */
static inline void gguf_print_nets(gguf_reader *r)
{
    static const char *const sizes[][2] = { { "ssm.conv_kernel", "linear_conv_kernel_dim" },
                                            { "ssm.state_size", "linear_key_head_dim" },
                                            { "ssm.group_count", "linear_num_key_heads" },
                                            { "ssm.time_step_rank", "linear_num_value_heads" } };
    const int64_t all = gguf_key_size(r, "ssm.inner_size", 0);
    const int64_t heads = gguf_key_size(r, "ssm.time_step_rank", 0);
    for (int i = 0; i < 4; i++)
        gguf_print(r, ",\n  \"%s\": %lld", sizes[i][1],
                   (long long)gguf_key_size(r, sizes[i][0], 0));
    if (r->g.error[0] == 0 && all % heads != 0)
        gguf_fail(&r->g, "key %s: a multiple of the %lld heads of values is expected",
                  gguf_key_of(r, "ssm.inner_size"), (long long)heads);
    gguf_print(r, ",\n  \"linear_value_head_dim\": %lld",
               (long long)(heads > 0 ? all / heads : 0));
    gguf_print(r, ",\n  \"full_attention_interval\": %lld",
               (long long)gguf_key_size(r, "full_attention_interval", 4));
}

/* Writes eos_token_id: the tokens that end a text, a turn or a message. */
static inline void gguf_print_eos(gguf_reader *r)
{
    static const char *const keys[] = { "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    int n = 0;
    if (gguf_find(&r->g, "tokenizer.ggml.bos_token_id") != NULL)
        gguf_print(r, ",\n  \"bos_token_id\": %lld",
                   (long long)gguf_int(&r->g, "tokenizer.ggml.bos_token_id", 0));
    gguf_print(r, ",\n  \"eos_token_id\": [");
    for (int i = 0; i < 3; i++)
        if (gguf_find(&r->g, keys[i]) != NULL)
            gguf_print(r, "%s%lld", n++ > 0 ? ", " : "", (long long)gguf_int(&r->g, keys[i], 0));
    gguf_print(r, "]");
}

static inline void gguf_print_llama(gguf_reader *r)
{
    gguf *g = &r->g;
    const int64_t heads = gguf_key_size(r, "attention.head_count", 1);
    const int neox = strcmp(r->a->name, "gptneox") == 0;
    if (strcmp(r->a->name, "gemma4") == 0) {
        gguf_print_gemma4(r);
    } else {
        gguf_print(r, ",\n  \"num_key_value_heads\": %lld",
                   (long long)gguf_key_size(r, "attention.head_count_kv", heads));
        gguf_print(r, ",\n  \"head_dim\": %lld", (long long)gguf_head_dim(r));
    }
    gguf_print(r, ",\n  \"hidden_act\": \"%s\"", r->a->activation);
    if (r->a->plus_one || r->a->sandwich)
        gguf_print(r, ",\n  \"hidden_activation\": \"%s\"", r->a->activation);
    if (neox)
        gguf_print_real(r, "layer_norm_eps", gguf_require_real(r, "attention.layer_norm_epsilon"));
    else
        gguf_print_real(r, "rms_norm_eps",
                        gguf_require_real(r, "attention.layer_norm_rms_epsilon"));
    if (neox)
        gguf_print(r, ",\n  \"use_parallel_residual\": %s",
                   gguf_bool(g, gguf_key_of(r, "use_parallel_residual"), 1) ? "true" : "false");
    if (strcmp(r->a->name, "qwen2") != 0)
        gguf_print(r, ",\n  \"attention_bias\": %s",
                   gguf_find_tensor(g, "blk.0.attn_q.bias") != NULL ||
                           gguf_find_tensor(g, "blk.0.attn_qkv.bias") != NULL
                       ? "true"
                       : "false");
    if (gguf_find_tensor(g, "blk.0.ffn_gate.bias") != NULL)
        gguf_print(r, ",\n  \"mlp_bias\": true");
    static const char *const factors[][2] = { { "embedding_scale", "embedding_multiplier" },
                                              { "residual_scale", "residual_multiplier" },
                                              { "attention.scale", "attention_multiplier" },
                                              { "logit_scale", "logits_scaling" } };
    for (int i = 0; i < 4; i++)
        if (gguf_has_key(r, factors[i][0]))
            gguf_print_real(r, factors[i][1], gguf_real(g, r->key, 1));
    if (llama_find_type(r->a->type)->traits & LLAMA_NETS)
        gguf_print_nets(r);
    gguf_print_positions(r);
    gguf_print_windows(r);
    if (r->a->sandwich)
        gguf_print_gemma(r);
}

/* Writes the classes: the names in the file's keys, or LABEL_0, LABEL_1, .. */
static inline void gguf_print_classes(gguf_reader *r, int64_t count)
{
    gguf_items all = gguf_array(&r->g, gguf_key_of(r, "classifier.output_labels"), GGUF_STRING);
    if (all.count > 0 && all.count != (uint64_t)count)
        gguf_fail(&r->g, "key %s: %lld names are expected, one for each row of cls.output.weight",
                  gguf_key_of(r, "classifier.output_labels"), (long long)count);
    gguf_print(r, ",\n  \"id2label\": {");
    for (int64_t i = 0; i < count && r->g.error[0] == 0 && !r->out_of_memory; i++) {
        json_buffer name;
        memset(&name, 0, sizeof name);
        if (gguf_next(&all))
            json_add_string(&name, all.text, all.size);
        if (name.size > 200)
            gguf_fail(&r->g, "key %s: a name of at most 200 bytes is expected",
                      gguf_key_of(r, "classifier.output_labels"));
        r->out_of_memory |= name.failed;
        gguf_print(r, "%s\"%lld\": ", i > 0 ? ", " : "", (long long)i);
        if (name.text != NULL)
            gguf_print(r, "%s", name.text);
        else
            gguf_print(r, "\"LABEL_%lld\"", (long long)i);
        free(name.text);
    }
    gguf_print(r, "}");
}

/* Writes the keys of an encoder. The file has a whole classifier if it has a matrix before the one of
 * the classes; the converter leaves out BERT's. */
static inline void gguf_print_encoder(gguf_reader *r)
{
    gguf *g = &r->g;
    const encoder_row *e = &encoder_rows[gguf_encoder_of(r->a) - encoder_families];
    const gguf_tensor *types = gguf_find_tensor(g, "token_types.weight");
    const gguf_tensor *classes = gguf_find_tensor(g, "cls.output.weight");
    const int whole = classes != NULL && gguf_find_tensor(g, "cls.weight") != NULL;
    const char *norm = e->pre_norm && !gguf_has_key(r, "attention.layer_norm_epsilon")
                           ? "attention.layer_norm_rms_epsilon" /* ModernBERT's norm_eps */
                           : "attention.layer_norm_epsilon";
    const double epsilon = gguf_require_real(r, norm);
    const char *act = gguf_text(g, gguf_key_of(r, "hidden_activation"), NULL);
    if (e->epsilon == NULL && (float)epsilon != (float)e->default_epsilon)
        gguf_fail(g, "key %s is %g: %g is expected", gguf_key_of(r, "attention.layer_norm_epsilon"),
                  epsilon, e->default_epsilon);
    if (e->epsilon != NULL)
        gguf_print_real(r, e->epsilon, epsilon);
    gguf_print(r, ",\n  \"%s\": \"%.40s\"", e->activation, act != NULL ? act : r->a->activation);
    if (types != NULL)
        gguf_print(r, ",\n  \"type_vocab_size\": %lld", (long long)types->d[1]);
    gguf_print(r, ",\n  \"pad_token_id\": %lld",
               (long long)gguf_int(g, "tokenizer.ggml.padding_token_id", 0));
    gguf_print(r, ",\n  \"architectures\": [\"%s\"]", e->architectures[whole ? 0 : 2]);
    if (whole)
        gguf_print_classes(r, classes->d[1]);
    if (!e->pre_norm)
        return;
    gguf_print_real(r, "global_rope_theta", gguf_require_real(r, "rope.freq_base"));
    gguf_print_real(
        r, "local_rope_theta",
        gguf_real(g, gguf_key_of(r, "rope.freq_base_swa"), gguf_require_real(r, "rope.freq_base")));
    gguf_print(r, ",\n  \"classifier_pooling\": \"%s\"",
               gguf_int(g, gguf_key_of(r, "classifier.pooling_type"), 1) == 2 ? "cls" : "mean");
    gguf_print(r, ",\n  \"attention_bias\": %s,\n  \"mlp_bias\": %s",
               gguf_find_tensor(g, "blk.0.attn_qkv.bias") != NULL ? "true" : "false",
               gguf_find_tensor(g, "blk.0.ffn_up.bias") != NULL ? "true" : "false");
    gguf_print_windows(r);
}

/* Writes the whole config.json of the model. */
static inline void gguf_print_config(gguf_reader *r)
{
    const int windowed = strcmp(r->a->name, "llama") == 0 &&
                         gguf_int(&r->g, gguf_key_of(r, "attention.sliding_window"), 0) > 0;
    gguf_print(r, "{\n  \"model_type\": \"%s\"", windowed ? "mistral" : r->a->type);
    gguf_print_sizes(r);
    if (gguf_encoder_of(r->a) != NULL) {
        gguf_print_encoder(r);
    } else if (strcmp(r->a->name, "gpt2") == 0) {
        gguf_print(r, ",\n  \"activation_function\": \"%s\"", r->a->activation);
        gguf_print_real(r, "layer_norm_epsilon",
                        gguf_require_real(r, "attention.layer_norm_epsilon"));
    } else {
        gguf_print_llama(r);
    }
    gguf_print_eos(r);
    gguf_print(r, "\n}\n");
}

/* Sets m->config_json from the keys of a GGUF file. */
static inline int gguf_read_config(model_any *m, const char *path)
{
    gguf_reader r;
    memset(&r, 0, sizeof r);
    r.to = &m->config_json;
    json_init(&m->config_json, "the file's keys");
    if (gguf_open_model(&r, path) == 0)
        gguf_print_config(&r);
    if (m->config.head.task == MODEL_CLASSIFY && r.g.error[0] == 0 &&
        gguf_find_tensor(&r.g, "cls.output.weight") != NULL &&
        gguf_find_tensor(&r.g, "cls.weight") == NULL)
        snprintf(m->note, sizeof m->note,
                 " (the file has one without the pooler before it, which llama.cpp's converter "
                 "leaves out: give its folder)");
    if (r.g.error[0] == 0 && !r.out_of_memory)
        json_parse(&m->config_json, m->config_json.owned, r.size);
    if (r.g.error[0] != 0)
        memcpy(m->config_json.error, r.g.error, sizeof r.g.error);
    gguf_close(&r.g);
    return m->config_json.error[0] == 0 ? 0 : -1;
}

/* ---- weights: the file as a stream in safetensors' format ------------------------------------ */
typedef struct { /* how a tensor of the file appears in the stream */
    const gguf_tensor *tensor;
    gckpt_storage storage;
    int64_t rows, columns; /* shape of the parameter: its rows and columns */
    gguf_order order, column_order;
    int decays; /* nonzero if the file has -exp(x) for each x */
    /* nonzero if the rows of the parameter are the columns in the file */
    int transposed;
    float subtract; /* number to subtract from each value */
    size_t row_bytes;
    uint64_t begin; /* offset in the stream, counted from the end of the stream's header */
} gguf_view;

typedef struct {
    gguf *g;
    gguf_view *views; /* the tensors in the order of the stream, which is that of the file */
    size_t count, current;
    char *header;
    size_t header_bytes;
    uint64_t at;         /* number of bytes that were returned so far */
    unsigned char *rows; /* buffer with some rows of views[current] */
    int64_t first, n;    /* index of the first row in the buffer, and number of rows in it */
    /* capacity: bytes of the buffer for rows; raw_bytes: bytes after them for data as read from the
     * file */
    size_t capacity, raw_bytes;
} gguf_stream;

/* Converts n values of a view from the type in the file to the type in the stream. Returns -1 if one
 * of them is no possible value. */
static inline int gguf_convert(const gguf_view *p, const unsigned char *raw, int64_t n,
                                unsigned char *to)
{
    enum { SOME = 256 };
    float values[SOME];
    const int type = p->tensor->type;
    int result = 0;
    for (; p->storage == GCKPT_STORAGE_I4 && n > 0; n -= 32, raw += 18, to += 19) {
        memcpy(to, raw, 18);
        to[18] = 128; /* the zero point of Q4_0: 8 of 16 numbers, in 16ths */
    }
    if (n == 0)
        return 0;
    if (p->storage != GCKPT_STORAGE_F32 ||
        (type == GGUF_T_F32 && p->subtract == 0 && !p->decays)) {
        memcpy(to, raw, gguf_bytes(type, n));
        return 0;
    }
    for (int64_t count; n > 0; n -= count, raw += gguf_bytes(type, count)) {
        count = n < SOME ? n : (int64_t)SOME;
        gguf_to_floats(type, raw, count, values);
        for (int64_t i = 0; i < count; i++, to += 4) {
            uint32_t bits;
            values[i] -= p->subtract;
            if (p->decays && !(values[i] < 0 && values[i] > -1e30f))
                result = -1;
            else if (p->decays)
                values[i] = (float)llama_log(-(double)values[i]);
            memcpy(&bits, &values[i], 4);
            for (int k = 0; k < 4; k++)
                to[k] = (unsigned char)(bits >> 8 * k);
        }
    }
    return result;
}

/* Puts the columns of a row in the stream's type into the order that they have here. */
static inline void gguf_order_columns(const gguf_view *p, unsigned char *row, unsigned char *copy)
{
    const int64_t inner = p->column_order.inner, heads = p->columns / inner;
    const size_t bytes = p->row_bytes / (size_t)heads;
    memcpy(copy, row, p->row_bytes);
    for (int64_t i = 0; i < heads; i++)
        memcpy(row + (size_t)(gguf_param_row(p->column_order, i * inner) / inner) * bytes,
               copy + (size_t)i * bytes, bytes);
}

enum { GGUF_STRIP = 256 }; /* number of rows of a transposed parameter that are read together */

/* Fills the buffer for a transposed parameter: reads s->n columns of the file, which become rows
 * s->first to s->first + s->n - 1. */
static inline int gguf_transpose(gguf_stream *s, const gguf_view *p)
{
    unsigned char value[4 * GGUF_STRIP], *raw = s->rows + s->capacity;
    const size_t size = p->row_bytes / (size_t)p->columns;
    const uint64_t row = gguf_bytes(p->tensor->type, p->rows);
    const uint64_t begin = p->tensor->offset + gguf_bytes(p->tensor->type, s->first);
    for (int64_t i = 0; i < p->columns; i++) {
        if (gguf_read_bytes(s->g, begin + (uint64_t)i * row, raw,
                            gguf_bytes(p->tensor->type, s->n)) != 0)
            return -1;
        gguf_convert(p, raw, s->n, value);
        for (int64_t k = 0; k < s->n; k++)
            memcpy(s->rows + (size_t)k * p->row_bytes + (size_t)i * size, value + (size_t)k * size,
                   size);
    }
    return 0;
}

/* Fills the buffer with rows of views[current], beginning with `row`. */
static inline int gguf_fill_rows(gguf_stream *s, int64_t row)
{
    const gguf_view *p = &s->views[s->current];
    const size_t bytes = gguf_bytes(p->tensor->type, p->transposed ? 0 : p->columns);
    s->first = row;
    s->n = !p->transposed ? 1 : p->rows - row < GGUF_STRIP ? p->rows - row : (int64_t)GGUF_STRIP;
    if (p->transposed)
        return gguf_transpose(s, p);
    unsigned char *raw = s->rows + s->capacity;
    if (gguf_read_bytes(s->g, p->tensor->offset + (uint64_t)gguf_file_row(p->order, row) * bytes,
                        raw, bytes) != 0)
        return -1;
    if (gguf_convert(p, raw, p->columns, s->rows) != 0)
        return gguf_fail(s->g, "tensor %s: numbers below 0 are expected", p->tensor->name);
    if (p->column_order.a > 0)
        gguf_order_columns(p, s->rows, raw);
    return 0;
}

/* The gckpt_read_fn through which the store reads the stream. */
static inline size_t gguf_stream_read(void *user, void *bytes, size_t size)
{
    gguf_stream *s = (gguf_stream *)user;
    unsigned char *to = (unsigned char *)bytes;
    size_t done = 0;
    while (done < size) {
        size_t n = size - done;
        if (s->at < s->header_bytes) {
            n = n < s->header_bytes - s->at ? n : s->header_bytes - (size_t)s->at;
            memcpy(to + done, s->header + s->at, n);
        } else {
            const uint64_t at = s->at - s->header_bytes;
            while (s->current + 1 < s->count && at >= s->views[s->current + 1].begin) {
                s->current++;
                s->n = 0;
            }
            const gguf_view *p = &s->views[s->current];
            const int64_t row = (int64_t)((at - p->begin) / p->row_bytes);
            if (row >= p->rows ||
                ((row < s->first || row >= s->first + s->n) && gguf_fill_rows(s, row) != 0))
                break;
            const size_t in = (size_t)(at - p->begin - (uint64_t)s->first * p->row_bytes);
            const size_t left = (size_t)s->n * p->row_bytes - in;
            n = n < left ? n : left;
            memcpy(to + done, s->rows + in, n);
        }
        done += n;
        s->at += n;
    }
    return done;
}

static inline void gguf_stream_free(gguf_stream *s)
{
    free(s->views);
    free(s->header);
    free(s->rows);
}

/* Allocates a buffer that is large enough for the longest rows. */
static inline int gguf_stream_rows(gguf_stream *s)
{
    for (size_t i = 0; i < s->count; i++) {
        const gguf_view *p = &s->views[i];
        size_t raw = p->transposed ? 4 * GGUF_STRIP : gguf_bytes(p->tensor->type, p->columns);
        raw = p->column_order.a > 0 && p->row_bytes > raw ? p->row_bytes : raw;
        const size_t rows = p->transposed ? GGUF_STRIP : 1;
        if (p->row_bytes > SIZE_MAX / 4 / rows)
            return gguf_fail(s->g, "tensor %s: its rows are too large", p->tensor->name);
        s->capacity = s->capacity > rows * p->row_bytes ? s->capacity : rows * p->row_bytes;
        s->raw_bytes = s->raw_bytes > raw ? s->raw_bytes : raw;
    }
    s->rows = (unsigned char *)malloc(s->capacity + s->raw_bytes + 1);
    return s->rows != NULL ? 0 : gguf_fail(s->g, "out of memory for rows of tensors");
}

/* Writes the safetensors header of the stream. Sets *size to the size of the whole stream in
 * bytes. */
static inline int gguf_stream_header(gguf_stream *s, const gguf_architecture *a,
                                     const model_config *c, uint64_t *size)
{
    static const char *const names[] = { "F32", "BF16", "F16", "I8", "U8" };
    const size_t each = MODEL_NAME + 160;
    uint64_t begin = 0;
    s->header = (char *)malloc(16 + (s->count + 1) * each);
    if (s->header == NULL)
        return gguf_fail(s->g, "out of memory for %llu tensors", (unsigned long long)s->count);
    size_t n = 8;
    for (size_t i = 0; i < s->count; i++) {
        gguf_view *p = &s->views[i];
        char name[MODEL_NAME];
        const uint64_t end = begin + (uint64_t)p->rows * p->row_bytes;
        gguf_param_name(a, c, p->tensor->name, name);
        n += (size_t)snprintf(s->header + n, each, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                              i > 0 ? ',' : '{', name, names[p->storage]);
        const int64_t packed_columns =
            p->storage >= GCKPT_STORAGE_I8 ? (int64_t)p->row_bytes : p->columns;
        const int axes = model_get_param(c, model_find_param(c, name)).shape.n;
        n += axes > 1 ? (size_t)snprintf(s->header + n, each, "%lld,%s%lld", (long long)p->rows,
                                         axes > 2 ? "1," : "", (long long)packed_columns)
                      : (size_t)snprintf(s->header + n, each, "%lld",
                                       (long long)(p->rows * packed_columns));
        n += (size_t)snprintf(s->header + n, each, "],\"data_offsets\":[%llu,%llu]}",
                              (unsigned long long)begin, (unsigned long long)end);
        p->begin = begin;
        begin = end;
    }
    n += (size_t)snprintf(s->header + n, 8, "%s}", s->count > 0 ? "" : "{");
    for (int i = 0; i < 8; i++)
        s->header[i] = (char)(unsigned char)((uint64_t)(n - 8) >> 8 * i);
    s->header_bytes = n;
    *size = n + begin;
    return *size <= SIZE_MAX ? 0 : gguf_fail(s->g, "is too large for this machine");
}

/* Returns the storage whose values are closest to those of a matrix in the file. Q4_0 becomes I4
 * and Q8_0 I8 with the same values, unless a transposition would divide the blocks. All other
 * quantised types, also those of 4 and 5 bits, become I8: rounding to 4 bits again would add an
 * error as large as the first one. */
static inline gckpt_storage gguf_storage_of(int type, int transposed)
{
    return type == GGUF_T_F32                   ? GCKPT_STORAGE_F32
           : type == GGUF_T_F16                 ? GCKPT_STORAGE_F16
           : type == GGUF_T_BF16                ? GCKPT_STORAGE_BF16
           : type == GGUF_T_Q4_0 && !transposed ? GCKPT_STORAGE_I4
                                                : GCKPT_STORAGE_I8;
}

/* Returns whether the matrix is (in,out) in the model's family; it is (out,in) in GGUF. */
static inline int gguf_is_transposed(const model_config *c, const model_parameter *p)
{
    static const char *const tables[] = { "wte.", "wpe.", "lm_head." };
    int table = 0;
    for (int i = 0; i < 3; i++)
        table |= strncmp(p->name, tables[i], strlen(tables[i])) == 0;
    return p->shape.n == 2 && !c->family->transposed && !table;
}

/* Fills *view, which says how tensor view->tensor becomes parameter p with the storage `keep`.
 * Returns 0, or -1 with g->error. */
static inline int gguf_make_view(gguf *g, const gguf_architecture *a, const model_config *c,
                                 const model_parameter *p, gckpt_storage keep, gguf_view *view)
{
    const gguf_tensor *t = view->tensor;
    const int matrix = p->shape.n > 1; /* with three axes, the second one has size 1 */
    view->transposed = gguf_is_transposed(c, p);
    view->rows = matrix ? p->shape.d[0] : 1;
    view->columns = p->shape.d[p->shape.n - 1];
    if (t->d[view->transposed] != view->columns || t->d[!view->transposed] != view->rows ||
        t->d[2] * t->d[3] != 1)
        return gguf_fail(g,
                         "tensor %s: shape (%lld,%lld,%lld,%lld), but the keys of the file "
                         "require (%lld,%lld)",
                         t->name, (long long)t->d[0], (long long)t->d[1], (long long)t->d[2],
                         (long long)t->d[3],
                         (long long)(view->transposed ? view->rows : view->columns),
                         (long long)(view->transposed ? view->columns : view->rows));
    if (!gguf_is_supported(t->type))
        return gguf_read_floats(g, t, 0, 0, NULL); /* sets the error text for an unsupported type */
    view->order = gguf_order_of(a, c, p->name, p->shape.d[0]);
    view->column_order = gguf_column_order_of(c, p->name);
    view->decays = gguf_is_decay(p->name);
    if (view->order.a > 0) {
        view->rows *= matrix ? 1 : view->columns;
        view->columns = matrix ? view->columns : 1;
    }
    if (gguf_tensor_types[t->type].values > 1 && !matrix)
        return gguf_fail(g, "tensor %s: a vector of %s; F32 is expected", t->name,
                         gguf_tensor_types[t->type].name);
    view->subtract = gguf_norm_offset(a, p->name);
    const int changed = view->subtract != 0 || view->decays;
    view->storage = !changed && t->type == GGUF_T_F16    ? GCKPT_STORAGE_F16
                    : !changed && t->type == GGUF_T_BF16 ? GCKPT_STORAGE_BF16
                                                         : GCKPT_STORAGE_F32;
    view->row_bytes = (size_t)view->columns * (view->storage == GCKPT_STORAGE_F32 ? 4 : 2);
    if (((keep == GCKPT_STORAGE_I4 && t->type == GGUF_T_Q4_0) ||
         (keep == GCKPT_STORAGE_I8 && t->type == GGUF_T_Q8_0)) &&
        !view->transposed && (view->column_order.a == 0 || view->column_order.inner % 32 == 0)) {
        view->storage = keep;
        view->row_bytes = gguf_bytes(t->type, view->columns);
        if (keep == GCKPT_STORAGE_I4)
            view->row_bytes += (size_t)view->columns / 32; /* zero points, see gguf_convert */
    }
    return 0;
}

/* Finds the tensor of each parameter, fills the stream's views, and sets the storage of the
 * parameters. */
static inline int gguf_plan_views(model_loader *l, gckpt_store *store, gguf_stream *s,
                                  const gguf_architecture *a, const model_source *source)
{
    gguf *g = s->g;
    const model_config *c = &l->model->config;
    const gguf_tensor **all = gguf_sort_by_offset(g);
    s->views = (gguf_view *)malloc((g->tensor_count + 1) * sizeof *s->views);
    if (all == NULL || s->views == NULL)
        gguf_fail(g, "out of memory for %llu tensors", (unsigned long long)g->tensor_count);
    for (size_t i = 0; i < g->tensor_count && g->error[0] == 0; i++) {
        char name[MODEL_NAME];
        if (gguf_is_skipped(a, c, all[i]->name))
            continue;
        const int64_t at =
            gguf_param_name(a, c, all[i]->name, name) ? model_find_param(c, name) : -1;
        if (at < 0) {
            gguf_fail(g, "tensor %s does not belong to a %s of %lld layers", all[i]->name, a->name,
                      (long long)c->layers);
            break;
        }
        const model_parameter p = model_get_param(c, at);
        gguf_view *view = &s->views[s->count++];
        const int floats = source->floats != NULL && model_is_in_modules(c, source->floats, p.name);
        const gckpt_storage keep = floats ? GCKPT_STORAGE_F32
                                   : source->as_file
                                       ? gguf_storage_of(all[i]->type, gguf_is_transposed(c, &p))
                                       : model_storage_of(c, p.name, source->storage);
        memset(view, 0, sizeof *view);
        view->tensor = all[i];
        model_store_name(c, name, p.name);
        if (gguf_make_view(g, a, c, &p, keep, view) == 0 && p.shape.n == 2 &&
            keep != GCKPT_STORAGE_F32 &&
            (gckpt_store_freeze(store, name, 1) != GCKPT_OK ||
             gckpt_store_quantise(store, name, keep) != GCKPT_OK))
            gguf_fail(g, "%s", gckpt_error_text(store));
    }
    free(all);
    return g->error[0] == 0 ? 0 : -1;
}

/* Creates the parameters in the store. Returns an error if the keys claim more layers than there
 * can be with the file's tensors. */
static inline int gguf_declare(model_loader *l, gckpt_store *store, gguf *g)
{
    const int64_t layers = l->model->config.layers;
    if ((uint64_t)layers > g->tensor_count)
        return gguf_fail(g,
                         "its keys name %lld layers, but it has only %llu tensors: cut off or "
                         "damaged",
                         (long long)layers, (unsigned long long)g->tensor_count);
    return model_declare(l->model, store) == 0 ? 0 : gguf_fail(g, "%s", l->model->error);
}

/* Creates all parameters in the store and loads their values from the file. */
static inline int gguf_load(model_loader *l, gckpt_store *store, const char *path,
                            const model_source *source)
{
    gguf_reader r;
    gguf_stream s;
    gckpt_file_desc desc;
    uint64_t size = 0;
    memset(&r, 0, sizeof r);
    memset(&s, 0, sizeof s);
    memset(&desc, 0, sizeof desc);
    desc.rename = model_load_name;
    desc.user = l;
    desc.values_only = desc.partial = 1;
    s.g = &r.g;
    if (gguf_open_model(&r, path) == 0 && gguf_declare(l, store, &r.g) == 0 &&
        gguf_plan_views(l, store, &s, r.a, source) == 0 &&
        gguf_stream_header(&s, r.a, &l->model->config, &size) == 0 && gguf_stream_rows(&s) == 0) {
        const gckpt_result result =
            gckpt_store_read(store, gguf_stream_read, &s, (size_t)size, &desc);
        if (result != GCKPT_OK && result != GCKPT_OTHER_CONTRACT)
            gguf_fail(&r.g, "%s", gckpt_error_text(store));
    }
    if (r.g.error[0] != 0)
        model_fail(l->model, "%s", r.g.error);
    gguf_stream_free(&s);
    gguf_close(&r.g);
    return r.g.error[0] == 0 ? 0 : -1;
}
#endif
