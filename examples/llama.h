/* llama.h - Llama-like models as a family of model.h, which includes this file. To copy with
 * model.h.
 *
 *     model_any m; // a new model; model_load reads one from files
 *     // layers, width, heads, key heads, context, vocabulary:
 *     llama_new(&m, 16, 2048, 32, 8, 8192, 128256);
 *     model_declare(&m, store);
 *
 * Builds the model types of llama_types. They have rotary positions (Su 2021), key heads that
 * several query heads may share (Ainslie 2023) and, except GPT-NeoX (Black 2022), root-mean-square
 * norms (Zhang & Sennrich 2019) and a gated MLP (Shazeer 2020), as in Llama (Touvron 2023). A row
 * of llama_types and one of llama_layouts describe a type: names of modules, norms and their
 * places, fused layers, biases, positions, factors. Other differences are read from config.json:
 * layers without positions, sliding-window layers (Jiang 2023), which in Gemma 3 have different
 * rotary frequencies, scaled frequencies (linear; llama3; yarn: Peng 2023; longrope: Ding 2024),
 * caps of scores and logits (Gemma 2), activation, and whether the head is the embedding table. In
 * Gemma 4, layers differ in size, late layers use keys and values of earlier ones, and each layer
 * has a second embedding as a further input.
 * During generation, a layer with a window keeps only the keys that its window needs, and a gated
 * delta net its state and the rows of the last calls.
 * Weights are (out,in), like torch's Linear and for gckpt_linear_transposed. C99 or C++11. */
#ifndef LLAMA_H
#define LLAMA_H
#ifndef MODEL_H
#error "include model.h, which includes llama.h"
#endif

/* Says which layers have a sliding window if config.json has no layer_types, in this order: none;
 * all; all if config.json has a window, whatever layer_types says; those from max_window_layers on;
 * those without rotary positions; or all except every n-th, n from sliding_window_pattern. */
typedef enum {
    LLAMA_NO_WINDOW,
    LLAMA_ALL_LAYERS,
    LLAMA_GIVEN_WINDOW,
    LLAMA_LATER_LAYERS,
    LLAMA_NO_ROPE,
    LLAMA_PATTERN
} llama_windows;

/* ---- tables ---------------------------------------------------------------------------------- */
/* The modules of a block, in the order in which their parameters are declared and saved. Norms
 * without POST come before attention and the MLP, POST norms after them. */
enum {
    LLAMA_ATTENTION_NORM,
    LLAMA_Q,
    LLAMA_K,
    LLAMA_V,
    LLAMA_QKV, /* queries, keys and values in one layer */
    LLAMA_Q_NORM,
    LLAMA_K_NORM,
    LLAMA_OUTPUT,
    LLAMA_ATTENTION_POST_NORM,
    LLAMA_MLP_NORM,
    LLAMA_MLP_POST_NORM,
    LLAMA_GATE,
    LLAMA_UP,
    LLAMA_GATE_UP, /* gate and up in one layer */
    LLAMA_DOWN,
    /* Gemma 4: gate, projection and norm of a layer's further input, and a constant factor */
    LLAMA_INPUT_GATE,
    LLAMA_INPUT_PROJECTION,
    LLAMA_INPUT_NORM,
    LLAMA_SCALAR,
    /* Qwen 3.5: a gated delta net, which layers of type linear_attention have in place of attention.
     * Its queries, keys and values come from one layer and a convolution; other layers give gates of
     * its output, and the factors decay and beta */
    LLAMA_NET_DECAYS,
    LLAMA_NET_STEPS,
    LLAMA_NET_CONV,
    LLAMA_NET_NORM,
    LLAMA_NET_OUTPUT,
    LLAMA_NET_QKV,
    LLAMA_NET_GATE,
    LLAMA_NET_BETA,
    LLAMA_NET_DECAY,
    LLAMA_MODULES
};

/* Shapes of the modules' weights. The letters mean sizes: C width, Q all heads of queries together,
 * K all heads of keys together, F = Q + 2 K, I inner width of the MLP, G = 2 I, P columns of a
 * layer's further input, and of norms of queries and keys, q and k: a head, or Q and K. '1' in `rows`
 * means that the weight is a vector. D is Q or, with gates of attention's output, 2 Q. Gated delta
 * nets have N queries, keys and values together, V all heads of values, v a head of them, H heads of
 * values, and t taps of the convolution, whose weights are (N,1,t).
 * `bias` says which models have a bias here: q, o and m, those with qkv_bias, output_bias and
 * mlp_bias; n, those with LayerNorm; 0, none. */
static const struct {
    char rows, columns, bias;
} llama_shapes[LLAMA_MODULES] = {
    { '1', 'C', 'n' }, { 'D', 'C', 'q' }, { 'K', 'C', 'q' }, { 'K', 'C', 'q' }, { 'F', 'C', 'q' },
    { '1', 'q', 0 },   { '1', 'k', 0 },   { 'C', 'Q', 'o' }, { '1', 'C', 'n' }, { '1', 'C', 'n' },
    { '1', 'C', 'n' }, { 'I', 'C', 'm' }, { 'I', 'C', 'm' }, { 'G', 'C', 'm' }, { 'C', 'I', 'm' },
    { 'P', 'C', 0 },   { 'C', 'P', 0 },   { '1', 'C', 0 },   { '1', '1', 0 },   { '1', 'H', 0 },
    { '1', 'H', 0 },   { 'N', 't', 0 },   { '1', 'v', 0 },   { 'C', 'V', 0 },   { 'N', 'C', 0 },
    { 'V', 'C', 0 },   { 'H', 'C', 0 },   { 'H', 'C', 0 },
};

/* Names of the modules of a block, NULL for those that it lacks; its dense layers, and the default
 * targets of LoRA. */
typedef struct {
    const char *names[LLAMA_MODULES], *linear, *lora;
} llama_layout;

enum {
    LLAMA_PLAIN,
    LLAMA_HEAD_NORMS,
    LLAMA_SANDWICH,
    LLAMA_SANDWICH_HEAD_NORMS,
    LLAMA_PHI3,
    LLAMA_OLMO2,
    LLAMA_GLM,
    LLAMA_GLM4,
    LLAMA_HUNYUAN,
    LLAMA_NEOX,
    LLAMA_GEMMA4,
    LLAMA_QWEN35
};
static const llama_layout llama_layouts[] = {
    { { "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL, NULL,
        NULL, "self_attn.o_proj", NULL, "post_attention_layernorm", NULL, "mlp.gate_proj",
        "mlp.up_proj", NULL, "mlp.down_proj" },
      "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
      "q_proj,v_proj" },
    { { "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL,
        "self_attn.q_norm", "self_attn.k_norm", "self_attn.o_proj", NULL,
        "post_attention_layernorm", NULL, "mlp.gate_proj", "mlp.up_proj", NULL, "mlp.down_proj" },
      "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
      "q_proj,v_proj" },
    { { "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL, NULL,
        NULL, "self_attn.o_proj", "post_attention_layernorm", "pre_feedforward_layernorm",
        "post_feedforward_layernorm", "mlp.gate_proj", "mlp.up_proj", NULL, "mlp.down_proj" },
      "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
      "q_proj,v_proj" },
    { { "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL,
        "self_attn.q_norm", "self_attn.k_norm", "self_attn.o_proj", "post_attention_layernorm",
        "pre_feedforward_layernorm", "post_feedforward_layernorm", "mlp.gate_proj", "mlp.up_proj",
        NULL, "mlp.down_proj" },
      "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
      "q_proj,v_proj" },
    { { "input_layernorm", NULL, NULL, NULL, "self_attn.qkv_proj", NULL, NULL, "self_attn.o_proj",
        NULL, "post_attention_layernorm", NULL, NULL, NULL, "mlp.gate_up_proj", "mlp.down_proj" },
      "qkv_proj,o_proj,gate_up_proj,down_proj",
      "qkv_proj" },
    { { NULL, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL, "self_attn.q_norm",
        "self_attn.k_norm", "self_attn.o_proj", "post_attention_layernorm", NULL,
        "post_feedforward_layernorm", "mlp.gate_proj", "mlp.up_proj", NULL, "mlp.down_proj" },
      "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
      "q_proj,v_proj" },
    { { "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL, NULL,
        NULL, "self_attn.o_proj", NULL, "post_attention_layernorm", NULL, NULL, NULL,
        "mlp.gate_up_proj", "mlp.down_proj" },
      "q_proj,k_proj,v_proj,o_proj,gate_up_proj,down_proj",
      "q_proj,v_proj" },
    { { "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL, NULL,
        NULL, "self_attn.o_proj", "post_self_attn_layernorm", "post_attention_layernorm",
        "post_mlp_layernorm", NULL, NULL, "mlp.gate_up_proj", "mlp.down_proj" },
      "q_proj,k_proj,v_proj,o_proj,gate_up_proj,down_proj",
      "q_proj,v_proj" },
    { { "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL,
        "self_attn.query_layernorm", "self_attn.key_layernorm", "self_attn.o_proj", NULL,
        "post_attention_layernorm", NULL, "mlp.gate_proj", "mlp.up_proj", NULL, "mlp.down_proj" },
      "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
      "q_proj,v_proj" },
    { { "input_layernorm", NULL, NULL, NULL, "attention.query_key_value", NULL, NULL,
        "attention.dense", NULL, "post_attention_layernorm", NULL, NULL, "mlp.dense_h_to_4h", NULL,
        "mlp.dense_4h_to_h" },
      "query_key_value,dense,dense_h_to_4h,dense_4h_to_h",
      "query_key_value" },
    { { "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", NULL,
        "self_attn.q_norm", "self_attn.k_norm", "self_attn.o_proj", "post_attention_layernorm",
        "pre_feedforward_layernorm", "post_feedforward_layernorm", "mlp.gate_proj", "mlp.up_proj",
        NULL, "mlp.down_proj", "per_layer_input_gate", "per_layer_projection",
        "post_per_layer_input_norm", "layer_scalar" },
      "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,per_layer_input_gate,"
      "per_layer_projection",
      "q_proj,v_proj" },
    { { "input_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        NULL,
        "self_attn.q_norm",
        "self_attn.k_norm",
        "self_attn.o_proj",
        NULL,
        "post_attention_layernorm",
        NULL,
        "mlp.gate_proj",
        "mlp.up_proj",
        NULL,
        "mlp.down_proj",
        NULL,
        NULL,
        NULL,
        NULL,
        "linear_attn.A_log",
        "linear_attn.dt_bias",
        "linear_attn.conv1d",
        "linear_attn.norm",
        "linear_attn.out_proj",
        "linear_attn.in_proj_qkv",
        "linear_attn.in_proj_z",
        "linear_attn.in_proj_b",
        "linear_attn.in_proj_a" },
      "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,out_proj,in_proj_qkv,in_proj_z,"
      "in_proj_b,in_proj_a",
      "q_proj,v_proj" },
};

/* Properties of a type, for llama_type.traits. */
enum {
    LLAMA_INTERLEAVED = 1,  /* rotary positions rotate pairs of neighbours (2i, 2i + 1) */
    LLAMA_WHOLE_NORM = 2,   /* norms of queries and keys are over all heads together */
    LLAMA_LATER_NORM = 4,   /* norms of queries and keys come after rotary positions */
    LLAMA_MULTIPLIERS = 8,  /* Granite's factors */
    LLAMA_QUERY_SCALE = 16, /* queries are scaled by position (Llama 4, Ministral 3) */
    /* GPT-NeoX: LayerNorm, biases in the MLP, parallel branches, qkv by head */
    LLAMA_LAYERNORM = 32,
    LLAMA_NETS = 64 /* Qwen 3.5: gated delta nets, and gates of attention's output */
};

/* A model type, with the defaults of transformers for keys that config.json lacks. */
struct llama_type {
    const char *type, *architecture;
    int layout; /* index in llama_layouts */
    /* key_heads: 0 means as many as heads; head: columns of a head, 0 means width / heads */
    int64_t key_heads, head;
    double base, epsilon;
    /* default of partial_rotary_factor, or 0 if transformers ignores that key */
    double rotated;
    /* default of original_max_position_embeddings, or 0 for max_position_embeddings */
    double original;
    int tied;
    llama_windows windows;
    /* keys that say whether queries, keys and values, attention's output and the MLP have biases,
     * or NULL; biased: default of the first two, and their value without a key */
    const char *bias, *output_bias, *mlp_bias;
    int biased;
    int gemma; /* 1 to 4 for versions of Gemma, 0 for other types */
    int traits;
};
static const llama_type llama_types[] = {
    { "llama", "LlamaForCausalLM", LLAMA_PLAIN, 0, 0, 10000, 1e-6, 0, 0, 0, LLAMA_NO_WINDOW,
      "attention_bias", "attention_bias", "mlp_bias", 0, 0, 0 },
    { "mistral", "MistralForCausalLM", LLAMA_PLAIN, 8, 0, 10000, 1e-6, 0, 0, 0, LLAMA_ALL_LAYERS,
      NULL, NULL, NULL, 0, 0, 0 },
    { "qwen2", "Qwen2ForCausalLM", LLAMA_PLAIN, 32, 0, 10000, 1e-6, 0, 0, 0, LLAMA_LATER_LAYERS,
      NULL, NULL, NULL, 1, 0, 0 },
    { "qwen3", "Qwen3ForCausalLM", LLAMA_HEAD_NORMS, 32, 128, 10000, 1e-6, 0, 0, 0,
      LLAMA_LATER_LAYERS, "attention_bias", "attention_bias", NULL, 0, 0, 0 },
    { "smollm3", "SmolLM3ForCausalLM", LLAMA_PLAIN, 4, 0, 2000000, 1e-6, 0, 0, 1, LLAMA_NO_ROPE,
      "attention_bias", "attention_bias", "mlp_bias", 0, 0, 0 },
    { "gemma", "GemmaForCausalLM", LLAMA_PLAIN, 16, 256, 10000, 1e-6, 0, 0, 1, LLAMA_NO_WINDOW,
      "attention_bias", "attention_bias", NULL, 0, 1, 0 },
    { "gemma2", "Gemma2ForCausalLM", LLAMA_SANDWICH, 4, 256, 10000, 1e-6, 0, 0, 1, LLAMA_PATTERN,
      "attention_bias", "attention_bias", NULL, 0, 2, 0 },
    { "gemma3_text", "Gemma3ForCausalLM", LLAMA_SANDWICH_HEAD_NORMS, 4, 256, 1000000, 1e-6, 0, 0, 1,
      LLAMA_PATTERN, "attention_bias", "attention_bias", NULL, 0, 3, 0 },
    { "phi3", "Phi3ForCausalLM", LLAMA_PHI3, 0, 0, 10000, 1e-5, 1, 4096, 0, LLAMA_GIVEN_WINDOW,
      NULL, NULL, NULL, 0, 0, 0 },
    { "granite", "GraniteForCausalLM", LLAMA_PLAIN, 0, 0, 10000, 1e-6, 0, 0, 0, LLAMA_NO_WINDOW,
      "attention_bias", "attention_bias", "mlp_bias", 0, 0, LLAMA_MULTIPLIERS },
    { "olmo2", "Olmo2ForCausalLM", LLAMA_OLMO2, 0, 0, 10000, 1e-5, 0, 0, 0, LLAMA_NO_WINDOW,
      "attention_bias", "attention_bias", NULL, 0, 0, LLAMA_WHOLE_NORM },
    { "glm", "GlmForCausalLM", LLAMA_GLM, 2, 128, 10000, 1.5625e-7, 0.5, 0, 0, LLAMA_NO_WINDOW,
      "attention_bias", NULL, NULL, 1, 0, LLAMA_INTERLEAVED },
    { "glm4", "Glm4ForCausalLM", LLAMA_GLM4, 2, 128, 10000, 1.5625e-7, 0.5, 0, 0, LLAMA_NO_WINDOW,
      "attention_bias", NULL, NULL, 1, 0, LLAMA_INTERLEAVED },
    { "ministral3", "Ministral3ForCausalLM", LLAMA_PLAIN, 8, 128, 10000, 1e-5, 0, 0, 0,
      LLAMA_GIVEN_WINDOW, NULL, NULL, NULL, 0, 0, LLAMA_QUERY_SCALE },
    { "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", LLAMA_HUNYUAN, 0, 0, 10000, 1e-5, 0, 0, 0,
      LLAMA_NO_WINDOW, "attention_bias", "attention_bias", NULL, 0, 0, LLAMA_LATER_NORM },
    { "ernie4_5", "Ernie4_5ForCausalLM", LLAMA_PLAIN, 2, 128, 500000, 1e-5, 0, 0, 1,
      LLAMA_NO_WINDOW, "use_bias", "use_bias", "use_bias", 0, 0, LLAMA_INTERLEAVED },
    { "gpt_neox", "GPTNeoXForCausalLM", LLAMA_NEOX, 0, 0, 10000, 1e-5, 0.25, 0, 0, LLAMA_NO_WINDOW,
      "attention_bias", "attention_bias", NULL, 1, 0, LLAMA_LAYERNORM },
    { "gemma4_text", "Gemma4ForCausalLM", LLAMA_GEMMA4, 4, 256, 1000000, 1e-6, 0, 0, 1,
      LLAMA_PATTERN, "attention_bias", "attention_bias", NULL, 0, 4, 0 },
    { "qwen3_5_text", "Qwen3_5ForCausalLM", LLAMA_QWEN35, 4, 256, 10000, 1e-6, 0.25, 0, 0,
      LLAMA_NO_WINDOW, "attention_bias", "attention_bias", NULL, 0, 0, LLAMA_NETS },
};
enum { LLAMA_TYPES = sizeof llama_types / sizeof llama_types[0], LLAMA_MAX_HEAD_DIM = 1024 };

/* Returns the row of a model_type, which must be one of llama_types. */
static inline const llama_type *llama_find_type(const char *type)
{
    int row = 0;
    while (strcmp(type, llama_types[row].type) != 0)
        row++;
    return &llama_types[row];
}

/* ---- parameters ------------------------------------------------------------------------------ */
/* Returns the bit of a layer in one of the bit sets of llama_config. */
static inline int llama_bit(const uint64_t *mask, int64_t layer)
{
    return layer >= 0 && layer < LLAMA_MASK_BITS && (mask[layer / 64] >> layer % 64 & 1) != 0;
}

/* Returns whether a layer has the keys and values of an earlier layer. */
static inline int llama_shares(const model_config *c, int64_t layer)
{
    return c->llama.shared_from > 0 && layer >= c->llama.shared_from;
}

/* Returns the name of a module in a block, or NULL if the block has no such module. */
static inline const char *llama_name(const model_config *c, int64_t layer, int module)
{
    const int keys = module == LLAMA_K || module == LLAMA_V || module == LLAMA_K_NORM;
    if ((module >= LLAMA_Q && module <= LLAMA_OUTPUT && llama_bit(c->llama.nets, layer)) ||
        (module >= LLAMA_NET_DECAYS && !llama_bit(c->llama.nets, layer)))
        return NULL;
    const int input = module >= LLAMA_INPUT_GATE && module <= LLAMA_INPUT_NORM;
    if ((keys && llama_shares(c, layer)) || (input && c->llama.layer_inputs == 0) ||
        (module == LLAMA_V && c->llama.keys_as_values && !llama_bit(c->llama.sliding, layer)))
        return NULL;
    return llama_layouts[c->llama.row->layout].names[module];
}

/* Returns the number of columns of a head. */
static inline int64_t llama_head_dim(const model_config *c, int64_t layer)
{
    const int64_t full = c->llama.full_head_dim;
    return full > 0 && !llama_bit(c->llama.sliding, layer) ? full : c->head_dim;
}

static inline int64_t llama_key_heads(const model_config *c, int64_t layer)
{
    const int64_t full = c->llama.full_key_heads;
    return full > 0 && !llama_bit(c->llama.sliding, layer) ? full : c->key_heads;
}

static inline int llama_has_bias(const model_config *c, char bias)
{
    return bias == 'q'   ? c->llama.qkv_bias
           : bias == 'o' ? c->llama.output_bias
           : bias == 'm' ? c->llama.mlp_bias
           : bias == 'n' ? (c->llama.row->traits & LLAMA_LAYERNORM) != 0
                         : 0;
}

static inline int64_t llama_dim(const model_config *c, int64_t layer, char letter)
{
    const int64_t D = llama_head_dim(c, layer);
    const int64_t Q = c->heads * D, K = llama_key_heads(c, layer) * D;
    const int64_t I = c->llama.wide && llama_shares(c, layer) ? 2 * c->inner : c->inner;
    const int whole = (c->llama.row->traits & LLAMA_WHOLE_NORM) != 0;
    const int64_t V = c->llama.net_values * c->llama.net_value_dim;
    return letter == 'C'   ? c->width
           : letter == 'D' ? (c->llama.row->traits & LLAMA_NETS ? 2 * Q : Q)
           : letter == 'N' ? 2 * c->llama.net_keys * c->llama.net_key_dim + V
           : letter == 'V' ? V
           : letter == 'v' ? c->llama.net_value_dim
           : letter == 'H' ? c->llama.net_values
           : letter == 't' ? c->llama.net_taps
           : letter == 'Q' ? Q
           : letter == 'K' ? K
           : letter == 'F' ? Q + 2 * K
           : letter == 'q' ? (whole ? Q : D)
           : letter == 'k' ? (whole ? K : D)
           : letter == 'I' ? I
           : letter == 'G' ? 2 * I
           : letter == 'P' ? c->llama.layer_inputs
                           : 1;
}

static inline int llama_block_params(const model_config *c, int64_t layer)
{
    int n = 0;
    for (int i = 0; i < LLAMA_MODULES; i++)
        n += llama_name(c, layer, i) != NULL ? 1 + llama_has_bias(c, llama_shapes[i].bias) : 0;
    return n;
}

/* Describes a weight or bias of module i of a block. */
static inline void llama_describe(const model_config *c, int64_t layer, int i, int bias,
                                  model_parameter *p)
{
    const int64_t rows = llama_dim(c, layer, llama_shapes[i].rows);
    const int64_t columns = llama_dim(c, layer, llama_shapes[i].columns);
    const int vector = llama_shapes[i].rows == '1',
              net = i == LLAMA_NET_DECAYS || i == LLAMA_NET_STEPS;
    p->constant = i == LLAMA_SCALAR;
    snprintf(p->name, sizeof p->name, "%s%s", llama_name(c, layer, i),
             p->constant || net ? ""
             : bias             ? ".bias"
                                : ".weight");
    p->shape = vector                ? gckpt_shape1(columns)
               : bias                ? gckpt_shape1(rows)
               : i == LLAMA_NET_CONV ? gckpt_shape3(rows, 1, columns)
                                     : gckpt_shape2(rows, columns);
    if (p->shape.n > 1)
        p->init.normal = (float)c->init_range;
    else if (!bias)
        p->init.constant = (float)(!c->llama.plus_one || net || i == LLAMA_NET_NORM);
}

/* Describes the parameters after the blocks that models with inputs of layers have: 0, their
 * embeddings; 1, a projection of the usual embedding; 2, its norm. */
static inline void llama_describe_inputs(const model_config *c, int part, model_parameter *p)
{
    static const char *const names[] = { "embed_tokens_per_layer.weight",
                                         "per_layer_model_projection.weight",
                                         "per_layer_projection_norm.weight" };
    const int64_t P = c->llama.layer_inputs, all = c->layers * P;
    snprintf(p->name, sizeof p->name, "%s", names[part]);
    p->shape = part == 0   ? gckpt_shape2(c->vocabulary, all)
               : part == 1 ? gckpt_shape2(all, c->width)
                           : gckpt_shape1(P);
    if (part < 2)
        p->init.normal = (float)c->init_range;
    else
        p->init.constant = 1;
}

static inline void llama_get_param(const model_config *c, int64_t layer, int part, model_parameter *p)
{
    for (int i = 0; layer >= 0; i++) {
        const int n = llama_name(c, layer, i) ? 1 + llama_has_bias(c, llama_shapes[i].bias) : 0;
        if (part < n) {
            llama_describe(c, layer, i, part, p);
            return;
        }
        part -= n;
    }
    const int after = c->family->params_after, norm = part > 0 && part <= after;
    if (part > after && part <= after + c->extra_params) {
        llama_describe_inputs(c, part - after - 1, p);
        return;
    }
    model_join(p->name,
               norm        ? c->family->norm
               : part == 0 ? c->family->embeddings
                           : "lm_head",
               part == 2 && norm ? ".bias" : ".weight");
    p->shape = norm ? gckpt_shape1(c->width) : gckpt_shape2(c->vocabulary, c->width);
    if (!norm)
        p->init.normal = (float)c->init_range;
    else if (part == 1)
        p->init.constant = (float)!c->llama.plus_one;
}

/* Returns whether a tensor in a file is a table of rotary frequencies, which old files contain and
 * which is no parameter. */
static inline int llama_is_skipped(const char *name)
{
    return strstr(name, ".rotary_emb.inv_freq") != NULL;
}

/* As llama_is_skipped, also for causal masks, which old files of GPT-NeoX contain. */
static inline int neox_is_skipped(const char *name)
{
    const char *end = strstr(name, ".attention.");
    return llama_is_skipped(name) || (end != NULL && (strcmp(end, ".attention.bias") == 0 ||
                                                      strcmp(end, ".attention.masked_bias") == 0));
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
        if (l->scaling == LLAMA_PROPORTIONAL && i >= (int64_t)(l->part * (double)head / 2))
            to[i] = 0;
    }
}

/* Fills *to for the rotary positions *l in a graph for texts of `length` tokens: during generation,
 * that is the caches' capacity. `frequencies` is memory for scaled frequencies. */
static inline void llama_rotary(const llama_positions *l, int64_t head, int64_t length,
                                float *frequencies, gckpt_rotary_desc *to)
{
    const int64_t columns = l->columns > 0 ? l->columns : head;
    const float *divisors = l->divisors[(double)length > l->original];
    to->base = (float)l->base;
    to->scale = (float)l->scale;
    to->columns = columns;
    if (l->scaling == LLAMA_UNSCALED)
        return;
    llama_frequencies(l, columns, frequencies);
    for (int64_t i = 0; l->scaling == LLAMA_LONGROPE && i < columns / 2; i++)
        frequencies[i] /= divisors[i];
    to->frequencies = frequencies;
}

/* ---- building the graph ---------------------------------------------------------------------- */
typedef struct {
    model_site site;              /* must be the first field, because hooks get a pointer to it */
    /* [0]: for layers with full attention; [1]: for layers with a sliding window */
    gckpt_rotary_desc rotary[2];
    /* constant 1, if norms multiply by 1 + weight; NULL if they multiply by weight */
    gckpt_tensor *one;
    gckpt_tensor *query_scales; /* factors of queries by position (T,1), or NULL */
    gckpt_tensor *inputs;       /* the layers' further inputs (B,T,layers P), or NULL */
    /* keys and values of the last layer that computed its own, as in `rotary` */
    gckpt_tensor *keys[2], *values[2];
} llama_site;

/* Normalises the last axis of x with the gain of `part`. Returns x if part is NULL. */
static inline gckpt_tensor *llama_norm(const llama_site *p, gckpt_tensor *x, const char *part)
{
    if (part == NULL)
        return x;
    gckpt_graph *g = gckpt_graph_of(x);
    const llama_config *l = &p->site.config->llama;
    gckpt_tensor *gain = model_param(g, &p->site, part, ".weight");
    if (l->row->traits & LLAMA_LAYERNORM)
        return gckpt_layernorm(x, gain, model_param(g, &p->site, part, ".bias"), (float)l->epsilon);
    return gckpt_rmsnorm(x, p->one != NULL ? gckpt_add(gain, p->one) : gain, (float)l->epsilon);
}

/* Normalises each head of x (B,T,heads D) or, with LLAMA_WHOLE_NORM, all heads together. Returns x if
 * part is NULL. */
static inline gckpt_tensor *llama_head_norm(const llama_site *p, gckpt_tensor *x, const char *part)
{
    const gckpt_shape s = gckpt_shape_of(x);
    const int64_t D = llama_head_dim(p->site.config, p->site.layer);
    if (part == NULL || s.n != 3 || (p->site.config->llama.row->traits & LLAMA_WHOLE_NORM))
        return llama_norm(p, x, part);
    x = gckpt_reshape(x, gckpt_shape4(s.d[0], s.d[1], s.d[2] / D, D));
    return gckpt_reshape(llama_norm(p, x, part), s);
}

/* Normalises each head of values x (B,T,heads D), without a gain. */
static inline gckpt_tensor *llama_value_norm(const llama_site *p, gckpt_tensor *x)
{
    const gckpt_shape s = gckpt_shape_of(x);
    const int64_t D = llama_head_dim(p->site.config, p->site.layer);
    if (s.n != 3)
        return x;
    x = gckpt_reshape(x, gckpt_shape4(s.d[0], s.d[1], s.d[2] / D, D));
    return gckpt_reshape(gckpt_rmsnorm(x, NULL, (float)p->site.config->llama.epsilon), s);
}

/* Moves the first R columns of each head of x (B,T,heads D): `from` gives the sizes of the two axes
 * that these columns have, (R/2,2) or (2,R/2), which change places. So pairs of neighbours become
 * pairs (i, i + R/2), or the reverse. */
static inline gckpt_tensor *llama_move_pairs(const llama_site *p, gckpt_tensor *x, int64_t first,
                                             int64_t second)
{
    static const int axes[] = { 0, 1, 2, 4, 3 };
    const gckpt_shape s = gckpt_shape_of(x);
    const int64_t D = llama_head_dim(p->site.config, p->site.layer), R = first * second;
    if (s.n != 3)
        return x;
    const gckpt_shape heads = gckpt_shape4(s.d[0], s.d[1], s.d[2] / D, D);
    gckpt_shape rotated = heads, pairs = heads;
    rotated.d[3] = R;
    pairs.n = 5;
    pairs.d[3] = first;
    pairs.d[4] = second;
    gckpt_tensor *both[2];
    x = gckpt_reshape(x, heads);
    both[0] = gckpt_reshape(R < D ? gckpt_slice(x, -1, 0, R) : x, pairs);
    both[0] = gckpt_reshape(gckpt_permute(both[0], axes, 5), rotated);
    if (R < D) {
        both[1] = gckpt_slice(x, -1, R, D);
        both[0] = gckpt_concat(both, 2, -1);
    }
    return gckpt_reshape(both[0], s);
}

static inline gckpt_tensor *llama_rope(const llama_site *p, gckpt_tensor *x, int64_t heads)
{
    const llama_config *l = &p->site.config->llama;
    gckpt_rotary_desc desc = p->rotary[llama_bit(l->sliding, p->site.layer)];
    desc.heads = (int)heads;
    if (llama_bit(l->no_rope, p->site.layer))
        return x;
    if (!(l->row->traits & LLAMA_INTERLEAVED))
        return gckpt_rotary(x, &desc);
    x = gckpt_rotary(llama_move_pairs(p, x, desc.columns / 2, 2), &desc);
    return llama_move_pairs(p, x, 2, desc.columns / 2);
}

/* Returns queries or keys x with their norm and rotary positions. */
static inline gckpt_tensor *llama_place(const llama_site *p, gckpt_tensor *x, int64_t heads,
                                        int norm)
{
    const char *part = llama_name(p->site.config, p->site.layer, norm);
    return p->site.config->llama.row->traits & LLAMA_LATER_NORM
               ? llama_head_norm(p, llama_rope(p, x, heads), part)
               : llama_rope(p, llama_head_norm(p, x, part), heads);
}

/* Divides qkv (B,T,Q + 2 K) of a layer, the result of a fused layer, into queries, keys and values. */
static inline void llama_divide(const model_config *c, int64_t layer, gckpt_tensor *qkv,
                                gckpt_tensor **q, gckpt_tensor **k, gckpt_tensor **v)
{
    const int64_t Q = llama_dim(c, layer, 'Q'), K = llama_dim(c, layer, 'K'), D = c->head_dim;
    const gckpt_shape s = gckpt_shape_of(qkv);
    gckpt_tensor **const to[] = { q, k, v };
    if ((c->llama.row->traits & LLAMA_LAYERNORM) && s.n == 3) {
        /* each head has its own query, key and value next to each other */
        qkv = gckpt_reshape(qkv, gckpt_shape4(s.d[0], s.d[1], c->heads, 3 * D));
        for (int i = 0; i < 3; i++)
            *to[i] = gckpt_reshape(gckpt_slice(qkv, -1, i * D, (i + 1) * D),
                                   gckpt_shape3(s.d[0], s.d[1], Q));
        return;
    }
    *q = gckpt_slice(qkv, -1, 0, Q);
    *k = gckpt_slice(qkv, -1, Q, Q + K);
    *v = gckpt_slice(qkv, -1, Q + K, Q + 2 * K);
}

/* Returns the sliding window of this layer, or 0 for none. */
static inline int64_t llama_window(const llama_site *p)
{
    const llama_config *l = &p->site.config->llama;
    return llama_bit(l->sliding, p->site.layer) ? l->window : 0;
}

/* Returns the number of vectors that hooks put before the tokens; they enter the caches in one call. */
static inline int64_t llama_prefix(const llama_site *p)
{
    const model_hooks *hooks = p->site.options->hooks;
    return hooks != NULL ? hooks->prefix + hooks->prompt : 0;
}

/* Caches keys and values in a graph for generation; rotary positions have been applied. */
static inline void llama_cache(const llama_site *p, gckpt_tensor **k, gckpt_tensor **v)
{
    const int64_t capacity = p->site.options->capacity, window = llama_window(p);
    const int64_t first = llama_prefix(p);
    const int64_t kept = window + (window > 0 && first > 64 ? first - 64 : 0);
    if (capacity > 0) {
        *k = gckpt_cache_window(*k, capacity, kept);
        *v = gckpt_cache_window(*v, capacity, kept);
    }
}

/* Returns attention of queries, keys and values; rotary positions have been applied. */
static inline gckpt_tensor *llama_attention(const llama_site *p, gckpt_tensor *q, gckpt_tensor *k,
                                            gckpt_tensor *v)
{
    const model_config *c = p->site.config;
    gckpt_attention_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.heads = (int)c->heads;
    desc.key_heads = (int)llama_key_heads(c, p->site.layer);
    desc.causal = 1;
    desc.window = llama_window(p);
    desc.cap = (float)c->llama.score_cap;
    desc.scale = (float)c->llama.score_scale;
    return gckpt_attention(q, k, v, &desc);
}

/* Adds the result of a branch to x, after the norm `post`, if the model has it, and a factor. */
static inline gckpt_tensor *llama_add_branch(const llama_site *p, gckpt_tensor *x,
                                             gckpt_tensor *branch, int post)
{
    const double scale = p->site.config->llama.branch_scale;
    branch = llama_norm(p, branch, llama_name(p->site.config, p->site.layer, post));
    return gckpt_add(x, scale != 0 ? gckpt_scale(branch, (float)scale) : branch);
}

/* Appends the dense layer `module` to x. */
static inline gckpt_tensor *llama_linear(const llama_site *p, gckpt_tensor *x, int module)
{
    return model_linear(&p->site, x, llama_name(p->site.config, p->site.layer, module));
}

/* Multiplies queries (B,T,heads D) by a factor that depends on the position, if the model has it. */
static inline gckpt_tensor *llama_scale_queries(const llama_site *p, gckpt_tensor *q)
{
    if (p->query_scales == NULL)
        return q;
    gckpt_tensor *zeros = gckpt_scale(gckpt_slice(q, -1, 0, 1), 0);
    return gckpt_mul(q, gckpt_positions(zeros, p->query_scales, p->rotary[0].position));
}

/* Multiplies attention's result x (B,T,Q) by gates, the second half of each head of `both`
 * (B,T,2 Q), whose first half are queries. */
static inline gckpt_tensor *llama_gate(const llama_site *p, gckpt_tensor *x, gckpt_tensor *both)
{
    const int64_t D = p->site.config->head_dim;
    const gckpt_shape s = gckpt_shape_of(x);
    if (both == NULL || s.n != 3)
        return x;
    return gckpt_mul(x, gckpt_sigmoid(gckpt_reshape(gckpt_slice(both, -1, D, 2 * D), s)));
}

/* Caches x (B,T,N), an operand of a gated delta net, in a graph for generation. Calls can add half of
 * the cache's rows: 64, or as many vectors as hooks put before the tokens. */
static inline gckpt_tensor *llama_cache_rows(const llama_site *p, gckpt_tensor *x)
{
    const int64_t capacity = p->site.options->capacity, first = llama_prefix(p);
    return capacity > 0 ? gckpt_cache_window(x, capacity, first > 64 ? 2 * first - 63 : 65) : x;
}

/* Returns a depthwise causal convolution of x (B,T,N) along time, of which the kernel's last tap is
 * for the token itself. During generation, earlier rows come from a cache. */
static inline gckpt_tensor *llama_convolve(const llama_site *p, gckpt_tensor *x)
{
    static const int axes[] = { 1, 0 };
    const int64_t taps = p->site.config->llama.net_taps, rows = gckpt_shape_of(x).d[1] + taps - 1;
    const int64_t N = llama_dim(p->site.config, p->site.layer, 'N');
    const char *part = llama_name(p->site.config, p->site.layer, LLAMA_NET_CONV);
    gckpt_tensor *w = model_param(gckpt_graph_of(x), &p->site, part, ".weight");
    gckpt_window window;
    memset(&window, 0, sizeof window);
    window.groups = (int)N;
    w = gckpt_permute(gckpt_reshape(w, gckpt_shape2(N, taps)), axes, 2);
    w = gckpt_reshape(w, gckpt_shape3(taps, 1, N));
    if (p->site.options->capacity > 0) {
        x = llama_cache_rows(p, x);
        const int64_t held = gckpt_shape_of(x).d[1];
        x = gckpt_slice(x, 1, held > rows ? held - rows : 0, held);
    }
    x = gckpt_pad(x, 1, rows - gckpt_shape_of(x).d[1], 0, GCKPT_PAD_VALUE, 0);
    return p->site.config->activation(gckpt_conv1d(x, w, NULL, &window));
}

/* Returns the first `heads` heads, from column `first` on, of x (B,T,N), each divided by the root of
 * its sum of squares. */
static inline gckpt_tensor *llama_unit_heads(const model_config *c, gckpt_tensor *x, int64_t first)
{
    const int64_t D = c->llama.net_key_dim, K = c->llama.net_keys * D;
    x = gckpt_slice(x, -1, first, first + K);
    const gckpt_shape s = gckpt_shape_of(x);
    x = gckpt_reshape(x, gckpt_shape4(s.d[0], s.d[1], c->llama.net_keys, D));
    x = gckpt_rmsnorm(x, NULL, (float)(1e-6 / (double)D));
    return gckpt_reshape(gckpt_scale(x, (float)(1 / model_sqrt((double)D))), s);
}

/* Returns the result of a gated delta net (Yang 2024) for x (B,T,C). */
static inline gckpt_tensor *llama_net(const llama_site *p, gckpt_tensor *x)
{
    const model_config *c = p->site.config;
    const llama_config *l = &c->llama;
    gckpt_graph *g = gckpt_graph_of(x);
    const int64_t layer = p->site.layer, K = l->net_keys * l->net_key_dim,
                  N = llama_dim(c, layer, 'N');
    gckpt_tensor *decays = model_param(g, &p->site, llama_name(c, layer, LLAMA_NET_DECAYS), "");
    gckpt_tensor *steps = model_param(g, &p->site, llama_name(c, layer, LLAMA_NET_STEPS), "");
    gckpt_tensor *qkv = llama_convolve(p, llama_linear(p, x, LLAMA_NET_QKV));
    gckpt_tensor *gate = gckpt_silu(llama_linear(p, x, LLAMA_NET_GATE));
    gckpt_tensor *beta = gckpt_sigmoid(llama_linear(p, x, LLAMA_NET_BETA));
    gckpt_tensor *decay = gckpt_add(llama_linear(p, x, LLAMA_NET_DECAY), steps);
    decay =
        gckpt_mul(gckpt_activation(decay, GCKPT_SOFTPLUS, 0), gckpt_scale(gckpt_exp(decays), -1));
    gckpt_tensor *q = llama_unit_heads(c, qkv, 0), *k = llama_unit_heads(c, qkv, K);
    gckpt_tensor *v = gckpt_slice(qkv, -1, 2 * K, N);
    gckpt_attention_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.heads = (int)l->net_values;
    desc.key_heads = (int)l->net_keys;
    desc.causal = 1;
    desc.decay = llama_cache_rows(p, decay);
    desc.beta = llama_cache_rows(p, beta);
    x = gckpt_attention(q, llama_cache_rows(p, k), llama_cache_rows(p, v), &desc);
    const gckpt_shape s = gckpt_shape_of(x);
    gckpt_tensor *gain = model_param(g, &p->site, llama_name(c, layer, LLAMA_NET_NORM), ".weight");
    x = gckpt_reshape(x, gckpt_shape4(s.d[0], s.d[1], l->net_values, l->net_value_dim));
    x = gckpt_mul(gckpt_reshape(gckpt_rmsnorm(x, gain, (float)l->epsilon), s), gate);
    return model_branch(&p->site, q, llama_linear(p, x, LLAMA_NET_OUTPUT));
}

/* Returns the result of attention for x (B,T,C). */
static inline gckpt_tensor *llama_attend(llama_site *p, gckpt_tensor *x)
{
    const model_config *c = p->site.config;
    const int64_t layer = p->site.layer;
    if (llama_bit(c->llama.nets, layer))
        return llama_net(p, x);
    const int slides = llama_bit(c->llama.sliding, layer);
    const model_hooks *hooks = p->site.options->hooks;
    gckpt_tensor *q, *k = p->keys[slides], *v = p->values[slides], *gated = NULL;
    if (llama_name(c, layer, LLAMA_QKV) != NULL) {
        llama_divide(c, layer, llama_linear(p, x, LLAMA_QKV), &q, &k, &v);
    } else {
        q = llama_linear(p, x, LLAMA_Q);
        if (!llama_shares(c, layer)) {
            k = llama_linear(p, x, LLAMA_K);
            v = llama_name(c, layer, LLAMA_V) != NULL ? llama_linear(p, x, LLAMA_V) : k;
        }
    }
    if (c->llama.row->traits & LLAMA_NETS) {
        const gckpt_shape s = gckpt_shape_of(q);
        gated = gckpt_reshape(q, gckpt_shape4(s.d[0], s.d[1], c->heads, 2 * c->head_dim));
        q = gckpt_reshape(gckpt_slice(gated, -1, 0, c->head_dim),
                          gckpt_shape3(s.d[0], s.d[1], s.d[2] / 2));
    }
    q = llama_scale_queries(p, llama_place(p, q, c->heads, LLAMA_Q_NORM));
    if (!llama_shares(c, layer)) {
        k = llama_place(p, k, llama_key_heads(c, layer), LLAMA_K_NORM);
        v = c->llama.row->gemma == 4 ? llama_value_norm(p, v) : v;
        if (hooks != NULL && hooks->keys_values != NULL)
            hooks->keys_values(hooks->user, &p->site, &k, &v);
        llama_cache(p, &k, &v);
        p->keys[slides] = k;
        p->values[slides] = v;
    }
    x = llama_linear(p, llama_gate(p, llama_attention(p, q, k, v), gated), LLAMA_OUTPUT);
    return model_branch(&p->site, q, x);
}

/* Returns the result of the MLP for x (B,T,C). */
static inline gckpt_tensor *llama_mlp(const llama_site *p, gckpt_tensor *x)
{
    const model_config *c = p->site.config;
    gckpt_tensor *gate, *up; /* shape (B,T,I), with I the inner width */
    if (llama_name(c, p->site.layer, LLAMA_GATE_UP) != NULL) {
        x = llama_linear(p, x, LLAMA_GATE_UP);
        gate = gckpt_slice(x, -1, 0, c->inner);
        up = gckpt_slice(x, -1, c->inner, 2 * c->inner);
    } else {
        gate = llama_name(c, p->site.layer, LLAMA_GATE) != NULL ? llama_linear(p, x, LLAMA_GATE)
                                                                : NULL;
        up = llama_linear(p, x, LLAMA_UP);
    }
    x = gate != NULL ? gckpt_mul(c->activation(gate), up) : c->activation(up);
    x = llama_linear(p, x, LLAMA_DOWN);
    return model_branch(&p->site, NULL, x);
}

/* Adds the layer's further input, multiplied by a gate that x (B,T,C) determines, to x. */
static inline gckpt_tensor *llama_add_input(const llama_site *p, gckpt_tensor *x)
{
    const model_config *c = p->site.config;
    const int64_t P = c->llama.layer_inputs, first = p->site.layer * P;
    gckpt_tensor *gate = c->activation(llama_linear(p, x, LLAMA_INPUT_GATE));
    gckpt_tensor *input = gckpt_mul(gate, gckpt_slice(p->inputs, -1, first, first + P));
    input = llama_linear(p, input, LLAMA_INPUT_PROJECTION);
    return llama_add_branch(p, x, input, LLAMA_INPUT_NORM);
}

/* Appends a block to x: (B,T,C) -> (B,T,C). It is one segment for gckpt_checkpoint. */
static inline gckpt_tensor *llama_block(gckpt_tensor *x, void *user)
{
    llama_site *p = (llama_site *)user;
    const model_config *c = p->site.config;
    const int64_t layer = p->site.layer;
    gckpt_tensor *a = llama_attend(p, llama_norm(p, x, llama_name(c, layer, LLAMA_ATTENTION_NORM)));
    gckpt_tensor *sum = llama_add_branch(p, x, a, LLAMA_ATTENTION_POST_NORM);
    a = c->llama.parallel ? x : sum; /* the input of the MLP's branch */
    a = llama_mlp(p, llama_norm(p, a, llama_name(c, layer, LLAMA_MLP_NORM)));
    x = llama_add_branch(p, sum, a, LLAMA_MLP_POST_NORM);
    if (p->inputs != NULL)
        x = llama_add_input(p, x);
    const char *scalar = llama_name(c, layer, LLAMA_SCALAR);
    return scalar != NULL ? gckpt_mul(x, model_param(gckpt_graph_of(x), &p->site, scalar, "")) : x;
}

/* Returns the further inputs of all layers (B,T,layers P): an embedding of the tokens plus
 * a normalised projection of x (B,T,C), the usual embedding. */
static inline gckpt_tensor *llama_inputs(const llama_site *p, gckpt_tensor *x, gckpt_tensor *tokens)
{
    const model_config *c = p->site.config;
    const int64_t P = c->llama.layer_inputs;
    const gckpt_shape s = gckpt_shape_of(x);
    gckpt_graph *g = gckpt_graph_of(tokens);
    gckpt_tensor *table = model_param(g, &p->site, "embed_tokens_per_layer", ".weight");
    gckpt_tensor *w = model_param(g, &p->site, "per_layer_model_projection", ".weight");
    if (s.n != 3)
        return x;
    const gckpt_shape apart = gckpt_shape4(s.d[0], s.d[1], c->layers, P);
    table = gckpt_scale(gckpt_embed(table, tokens), (float)model_sqrt((double)P));
    x = gckpt_scale(gckpt_linear_transposed(x, w, NULL), (float)(1 / model_sqrt((double)c->width)));
    x = llama_norm(p, gckpt_reshape(x, apart), "per_layer_projection_norm");
    x = gckpt_scale(gckpt_add(x, gckpt_reshape(table, apart)), (float)(1 / model_sqrt(2)));
    return gckpt_reshape(x, gckpt_shape3(s.d[0], s.d[1], c->layers * P));
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
    gckpt_graph *g = gckpt_graph_of(tokens);
    gckpt_tensor *x =
        gckpt_embed(model_param(g, &p.site, c->family->embeddings, ".weight"), tokens);
    if (c->llama.plus_one)
        p.one = gckpt_constant(g, "model.one", GCKPT_F32, gckpt_shape1(1), &one);
    if (c->llama.embedding_scale != 0)
        x = gckpt_scale(x, (float)c->llama.embedding_scale);
    if (c->llama.layer_inputs > 0)
        p.inputs = llama_inputs(&p, x, tokens);
    if (hooks != NULL && hooks->embedded != NULL)
        x = hooks->embedded(hooks->user, &p.site, x);
    const int64_t first = o->capacity == 0 && hooks != NULL ? hooks->prefix : 0;
    const int64_t length = o->capacity > 0 ? o->capacity : first + gckpt_shape_of(x).d[1];
    if (m->query_scales != NULL && (double)length > c->llama.query_original)
        p.query_scales = gckpt_constant(g, "model.query_scales", GCKPT_F32,
                                        gckpt_shape2(c->context, 1), m->query_scales);
    for (int i = 0; i < 2; i++) {
        p.rotary[i].position = first;
        const int64_t full = c->llama.full_head_dim, D = i == 0 && full > 0 ? full : c->head_dim;
        llama_rotary(&c->llama.positions[i], D, length, frequencies[i], &p.rotary[i]);
    }
    if (o->dropout > 0)
        x = gckpt_dropout(x, (float)o->dropout);
    for (p.site.layer = 0; p.site.layer < c->layers; p.site.layer++)
        x = gckpt_checkpoint(llama_block, x, &p);
    p.site.layer = -1;
    if (o->capacity == 0 && hooks != NULL && hooks->prompt > 0)
        x = gckpt_slice(x, 1, hooks->prompt, gckpt_shape_of(x).d[1]);
    return llama_norm(&p, x, c->family->norm);
}

/* Computes keys and values of the prompts of LLaMA-Adapter, without rotary positions. */
static inline void llama_keys_values(const model_site *at, gckpt_tensor *prompts, gckpt_tensor **k,
                                     gckpt_tensor **v)
{
    static const int parts[] = { LLAMA_K, LLAMA_V, LLAMA_QKV };
    gckpt_tensor *q, **const to[] = { k, v, &q };
    const model_config *c = at->config;
    gckpt_graph *g = gckpt_graph_of(prompts);
    const int fused = llama_name(c, at->layer, LLAMA_QKV) != NULL;
    for (int i = fused ? 2 : 0; i < (fused ? 3 : 2); i++) {
        const char *name = llama_name(c, at->layer, parts[i]);
        *to[i] = gckpt_linear_transposed(prompts, model_param(g, at, name, ".weight"),
                                         model_param(g, at, name, ".bias"));
    }
    if (fused)
        llama_divide(c, at->layer, q, &q, k, v);
}

static inline int llama_is_post_norm(const model_config *c, const char *name, float *gain)
{
    const char *attention = llama_name(c, 0, LLAMA_ATTENTION_POST_NORM);
    const char *mlp = llama_name(c, 0, LLAMA_MLP_POST_NORM);
    *gain = c->llama.plus_one ? -1 : 0;
    return attention != NULL && (strstr(name, attention) != NULL || strstr(name, mlp) != NULL);
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

/* Reads LongRoPE's divisors of the frequencies, and its factor of cosines and sines. */
static inline void llama_read_longrope(json *d, uint32_t at, const model_config *c,
                                       llama_positions *l)
{
    static const char *const keys[] = { "short_factor", "long_factor" };
    const int64_t pairs = (l->columns > 0 ? l->columns : c->head_dim) / 2;
    for (int i = 0; i < 2 && d->error[0] == 0; i++) {
        const uint32_t list = json_find_nonnull(d, at, keys[i]);
        if (list == 0)
            json_fail(d, 0, "rope_type: expected a list %s with longrope", keys[i]);
        else if (pairs > LLAMA_LONGROPE_PAIRS || json_size(d, list) != (uint32_t)pairs)
            json_fail(d, d->nodes[list].line,
                      "%s: expected %lld numbers, one for each pair of columns, and at most %d",
                      keys[i], (long long)pairs, LLAMA_LONGROPE_PAIRS);
        uint32_t item = json_first(d, list);
        for (int64_t k = 0; d->error[0] == 0 && k < pairs; k++, item = json_next(d, item)) {
            const double x = json_real_of(d, item);
            if (!(x > 0 && x <= 1e12))
                json_mismatch(d, item, "a number above 0 and at most 1e12");
            l->divisors[i][k] = (float)x;
        }
    }
    l->factor = json_find_nonnull(d, at, "factor") ? llama_read_real(d, at, "factor", 1, 0)
                                                   : (double)c->context / l->original;
    l->scale = l->factor > 1 ? model_sqrt(1 + llama_log(l->factor) / llama_log(l->original)) : 1;
    l->scale = llama_read_real(d, at, "attention_factor", l->scale, 0);
    l->factor = 1; /* scales no frequency itself */
}

/* Reads the number of columns that rotary positions rotate; 0 stands for all columns of a head. */
static inline int64_t llama_read_rotated(json *d, uint32_t at, const model_config *c)
{
    const double usual = c->llama.row->rotated;
    const uint32_t inner = json_find_nonnull(d, at, "partial_rotary_factor");
    const uint32_t from = inner != 0 ? at : (uint32_t)JSON_ROOT;
    const char *key = inner == 0 && (c->llama.row->traits & LLAMA_LAYERNORM)
                          ? "rotary_pct"
                          : "partial_rotary_factor";
    const double part = llama_read_real(d, from, key, usual > 0 ? usual : 1, 0);
    const int64_t columns = (int64_t)(part * (double)c->head_dim);
    if (usual == 0 ? part != 1 : part > 1 || columns < 2 || columns % 2 != 0)
        json_mismatch(d, json_find(d, from, key),
                      usual == 0 ? "1: all columns of a head"
                                 : "a part of a head's columns that is an even number");
    return part == 1 ? 0 : columns;
}

/* Reads positions of type proportional: a part of the pairs of columns rotates, with the
 * frequencies that these pairs have if all rotate. */
static inline void llama_read_proportional(json *d, uint32_t at, llama_positions *l)
{
    l->scaling = LLAMA_PROPORTIONAL;
    l->base = llama_read_real(d, at, "rope_theta", l->base, 1);
    l->factor = llama_read_real(d, at, "factor", 1, 0);
    l->part = llama_read_real(d, at, "partial_rotary_factor", 1, 0);
    if (l->part > 1)
        json_mismatch(d, json_find(d, at, "partial_rotary_factor"), "a number above 0, 1 at most");
}

/* Reads the rotary positions, rope_theta and the scaling, from object `at` of config.json. If at is
 * 0, sets the defaults. */
static inline void llama_read_rope(json *d, uint32_t at, const model_config *c, double base,
                                     llama_positions *l)
{
    static const char *const names[] = { "default", "linear", "llama3", "yarn", "longrope" };
    const double original = c->llama.row->original;
    uint32_t type = json_find_nonnull(d, at, "rope_type");
    int which = 0;
    l->factor = l->scale = 1;
    l->base = base;
    if (c->llama.row->gemma == 4 && json_is(d, type, "proportional")) {
        llama_read_proportional(d, at, l);
        return;
    }
    l->columns = llama_read_rotated(d, at, c);
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
    type = type ? type : json_find_nonnull(d, at, "type");
    while (type && which < 5 && !json_is(d, type, names[which]))
        which++;
    if (type && (c->llama.row->traits & LLAMA_LATER_NORM) && json_is(d, type, "dynamic") &&
        json_find_nonnull(d, at, "alpha")) {
        /* Hunyuan: a fixed alpha raises the base */
        const double power = (double)c->head_dim / ((double)c->head_dim - 2);
        l->base *= llama_exp(power * llama_log(llama_read_real(d, at, "alpha", 1, 0)));
        l->scaling = LLAMA_LINEAR;
        return;
    }
    /* names that files of Phi-3 have for longrope */
    if (type && original > 0 && (which == LLAMA_YARN || json_is(d, type, "su")))
        which = LLAMA_LONGROPE;
    if (which == 5)
        json_mismatch(d, type, "default, linear, llama3, yarn or longrope");
    l->scaling = (llama_scaling)(which % 5);
    if (l->scaling == LLAMA_UNSCALED)
        return;
    l->original = original > 0
                      ? original
                      : json_real(d, at, "original_max_position_embeddings", (double)c->context);
    l->original = llama_read_real(d, JSON_ROOT, "original_max_position_embeddings", l->original,
                                  l->scaling == LLAMA_LONGROPE ? 1 : 0.5);
    if (l->scaling == LLAMA_LONGROPE) {
        llama_read_longrope(d, at, c, l);
        return;
    }
    const int by_context = l->scaling == LLAMA_YARN && json_find_nonnull(d, at, "factor") == 0;
    l->factor = by_context ? (double)c->context / l->original : llama_read_real(d, at, "factor", 0, 0);
    if (l->scaling == LLAMA_YARN)
        llama_read_yarn(d, at, l);
    if (l->scaling != LLAMA_LLAMA3)
        return;
    l->low = llama_read_real(d, at, "low_freq_factor", 0, 0);
    l->high = llama_read_real(d, at, "high_freq_factor", 0, l->low);
}

/* Reads the rotary positions of Gemma 4 from rope_parameters, `all`. */
static inline void llama_read_gemma4_positions(json *d, uint32_t all, model_config *c)
{
    static const char *const kinds[] = { "full_attention", "sliding_attention" };
    static const char *const ignored[] = { "rope_theta", "rope_scaling", "partial_rotary_factor" };
    llama_positions *l = c->llama.positions;
    for (int i = 0; i < 3; i++)
        if (json_find_nonnull(d, JSON_ROOT, ignored[i]) != 0)
            json_mismatch(d, json_find(d, JSON_ROOT, ignored[i]),
                          "null: rope_parameters has the positions of this model type");
    for (int i = 0; i < 2; i++) {
        const uint32_t at = all != 0 ? json_require(d, all, kinds[i], JSON_OBJECT) : 0;
        const uint32_t type = json_find_nonnull(d, at, "rope_type");
        if (type != 0 && !json_is(d, type, "default") && !json_is(d, type, "proportional"))
            json_mismatch(d, type, "default or proportional");
        if (at != 0)
            json_require(d, at, "rope_theta", JSON_NUMBER);
        llama_read_rope(d, at, c, 10000, l + i);
    }
    if (all == 0) { /* the defaults of transformers */
        l->base = 1e6;
        l->scaling = LLAMA_PROPORTIONAL;
        l->part = 0.25;
    }
}

/* Reads the rotary positions of all layers. In Gemma 3, layers with full attention and layers with
 * a sliding window have different ones. Older files use the keys rope_scaling, rope_theta and
 * rope_local_base_freq. */
static inline void llama_read_positions(json *d, model_config *c)
{
    llama_positions *l = c->llama.positions;
    const uint32_t scaling = json_find_nonnull(d, JSON_ROOT, "rope_scaling");
    const uint32_t all = json_find_nonnull(d, JSON_ROOT, "rope_parameters");
    const uint32_t old = json_size(d, scaling) > 0 ? scaling : 0;
    const int neox = (c->llama.row->traits & LLAMA_LAYERNORM) != 0;
    double base = llama_read_real(d, JSON_ROOT, neox ? "rotary_emb_base" : "rope_theta",
                                  c->llama.row->base, 1);
    if (c->llama.row->gemma < 3) {
        llama_read_rope(d, old ? old : all, c, base, l);
        l[1] = l[0];
        return;
    }
    if (c->llama.row->gemma == 4) {
        llama_read_gemma4_positions(d, all, c);
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
static inline int64_t llama_read_window(json *d, const llama_type *row)
{
    const llama_windows windows = row->windows;
    const int later = windows == LLAMA_LATER_LAYERS && !json_bool(d, JSON_ROOT, "use_sliding_window", 0);
    const uint32_t at = json_find(d, JSON_ROOT, "sliding_window");
    const int none = at != 0 || windows == LLAMA_NO_ROPE || windows == LLAMA_GIVEN_WINDOW;
    const int64_t fallback = none ? 0 : row->gemma == 4 ? 512 : 4096;
    if (windows == LLAMA_NO_WINDOW || later)
        return 0;
    const int64_t window = json_int(d, JSON_ROOT, "sliding_window", fallback);
    if (json_find_nonnull(d, JSON_ROOT, "sliding_window") != 0 && window < 1)
        json_fail(d, 0, "sliding_window %lld: expected 1 or more, or null", (long long)window);
    return window < 1 << 30 ? window : 1 << 30;
}

/* Reads which layers have the sliding window. Also sets bits above the number of layers: they apply
 * to layers that adapters.h may add. */
static inline void llama_read_sliding(json *d, model_config *c)
{
    llama_config *l = &c->llama;
    const llama_windows windows = l->row->windows;
    const uint32_t types =
        windows == LLAMA_GIVEN_WINDOW ? 0 : json_find_nonnull(d, JSON_ROOT, "layer_types");
    const int64_t later = json_int(d, JSON_ROOT, "max_window_layers", 28);
    const int64_t pattern = l->row->gemma == 3 ? json_int(d, JSON_ROOT, "sliding_window_pattern", 6)
                            : l->row->gemma == 4 ? 6
                                                 : 2;
    const int uses = json_bool(d, JSON_ROOT, "use_sliding_window", 0);
    uint32_t at = json_first(d, types);
    l->window = llama_read_window(d, l->row);
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
                                 : windows == LLAMA_ALL_LAYERS || windows == LLAMA_GIVEN_WINDOW ||
                                       (uses && llama_bit(l->no_rope, i));
        const int last = l->row->gemma == 4 && i == c->layers - 1; /* always has full attention */
        const int slides =
            !last && (!types ? unlisted : at != 0 && json_is(d, at, "sliding_attention"));
        if (slides && i < c->layers && l->window == 0)
            json_fail(d, 0,
                      "layer %lld has sliding attention, but there is no window: expected a number as "
                      "sliding_window, and use_sliding_window true if present",
                      (long long)i);
        l->sliding[i / 64] |= (uint64_t)slides << i % 64;
        at = json_next(d, at);
    }
}

static inline void llama_check_heads(json *d, const model_config *c, int64_t head_dim,
                                     int64_t key_heads)
{
    if (c->heads % key_heads != 0)
        json_fail(d, 0, "num_attention_heads %lld is no multiple of num_key_value_heads %lld",
                  (long long)c->heads, (long long)key_heads);
    if (head_dim % 2 != 0 || head_dim > LLAMA_MAX_HEAD_DIM)
        json_fail(d, 0, "head_dim %lld: expected an even number, %d at most", (long long)head_dim,
                  LLAMA_MAX_HEAD_DIM);
}

/* Reads the numbers of heads and the columns of a head, and checks that they are consistent. */
static inline void llama_read_heads(json *d, model_config *c)
{
    const llama_type *row = c->llama.row;
    const int64_t fallback = json_find(d, JSON_ROOT, "num_key_value_heads") ? 0 : row->key_heads;
    c->heads = model_read_size(d, "num_attention_heads", 0);
    if (d->error[0] != 0)
        return;
    c->key_heads =
        row->traits & LLAMA_LAYERNORM
            ? c->heads
            : model_read_size(d, "num_key_value_heads", fallback > 0 ? fallback : c->heads);
    if (d->error[0] != 0)
        return;
    const int64_t head = json_find(d, JSON_ROOT, "head_dim") ? 0 : row->head;
    c->head_dim =
        model_read_size(d, "head_dim", head > 0 ? head : c->width / c->heads + (c->width < c->heads));
    if (head == 0 && !json_find_nonnull(d, JSON_ROOT, "head_dim") && c->width % c->heads != 0)
        json_fail(d, 0,
                  "hidden_size %lld is no multiple of num_attention_heads %lld, and no head_dim "
                  "is given",
                  (long long)c->width, (long long)c->heads);
    llama_check_heads(d, c, c->head_dim, c->key_heads);
}

static inline void llama_read_activation(json *d, model_config *c)
{
    const int gemma = c->llama.row->gemma;
    const model_activation usual = gemma                                    ? gckpt_gelu
                                   : c->llama.row->traits & LLAMA_LAYERNORM ? gckpt_gelu_erf
                                                                            : gckpt_silu;
    const uint32_t at = json_find_nonnull(d, JSON_ROOT, gemma > 1 ? "hidden_activation" : "hidden_act");
    c->activation = at ? model_read_activation(d, at) : usual;
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
    const uint32_t both = json_find_nonnull(d, JSON_ROOT, "use_bidirectional_attention");
    l->plus_one = gemma < 4;
    l->embedding_scale = model_sqrt((double)c->width);
    c->logit_cap =
        gemma > 1 ? llama_read_cap(d, "final_logit_softcapping", gemma == 2 ? 30 : 0) : 0;
    if (gemma == 4) {
        l->score_scale = 1;
        if (both != 0 && !json_is(d, both, "vision"))
            json_mismatch(d, both, "null or vision");
        return;
    }
    if (json_bool(d, JSON_ROOT, "use_bidirectional_attention", 0))
        json_mismatch(d, json_find(d, JSON_ROOT, "use_bidirectional_attention"), "false or null");
    if (gemma == 1)
        return;
    const double scalar = llama_read_real(d, JSON_ROOT, "query_pre_attn_scalar", 256, 0);
    l->score_scale = scalar == (double)c->head_dim ? 0 : 1 / model_sqrt(scalar);
    if (gemma == 2) /* Gemma 3 has this key as well, but transformers ignores it there */
        l->score_cap = llama_read_cap(d, "attn_logit_softcapping", 50);
}

/* Reads the columns of heads and the number of key heads in layers with full attention, from
 * per_layer_config or, if config.json lacks that key, from other keys. */
static inline void llama_read_full_heads(json *d, model_config *c)
{
    static const char says[] = "null, or head_dim and num_key_value_heads of layers with full "
                               "attention, equal in all of them";
    llama_config *l = &c->llama;
    const uint32_t sizes = json_find(d, JSON_ROOT, "per_layer_config");
    int64_t full = 0;
    if (sizes == 0) {
        l->full_head_dim = model_read_size(d, "global_head_dim", 512);
        if (l->keys_as_values && json_find_nonnull(d, JSON_ROOT, "num_global_key_value_heads"))
            l->full_key_heads = model_read_size(d, "num_global_key_value_heads", 0);
    }
    for (uint32_t k = json_first(d, sizes); k != 0 && d->error[0] == 0;
         k = json_next(d, k), full++) {
        char *end;
        const long long layer = strtoll(json_text(d, k), &end, 10);
        const uint32_t size = k + 1;
        const int64_t head = json_int(d, size, "head_dim", c->head_dim);
        const int64_t heads = json_int(d, size, "num_key_value_heads", c->key_heads);
        const uint32_t known = (json_find(d, size, "head_dim") != 0 ? 1u : 0u) +
                               (json_find(d, size, "num_key_value_heads") != 0 ? 1u : 0u);
        if (*end != 0 || layer < 0 || layer >= c->layers || llama_bit(l->sliding, layer) ||
            json_kind_of(d, size) != JSON_OBJECT || json_size(d, size) != known || head < 1 ||
            heads < 1 || (full > 0 && (head != l->full_head_dim || heads != l->full_key_heads)))
            json_mismatch(d, sizes, says);
        l->full_head_dim = head;
        l->full_key_heads = heads;
    }
    for (int64_t i = 0; i < c->layers && full > 0; i++)
        full -= !llama_bit(l->sliding, i);
    if (full != 0)
        json_mismatch(d, sizes, says);
    llama_check_heads(d, c, l->full_head_dim > 0 ? l->full_head_dim : c->head_dim,
                      l->full_key_heads > 0 ? l->full_key_heads : c->key_heads);
}

/* Reads the keys of config.json that only Gemma 4 has. */
static inline void llama_read_gemma4(json *d, model_config *c)
{
    llama_config *l = &c->llama;
    const int64_t shared = json_int(d, JSON_ROOT, "num_kv_shared_layers", 0);
    const int64_t columns = json_int(d, JSON_ROOT, "hidden_size_per_layer_input", 256);
    const int64_t first = c->layers - shared;
    int own[2] = { 0, 0 }, other[2] = { 0, 0 }; /* kinds of layers with own keys; with others' */
    c->uneven = 1;
    if (json_bool(d, JSON_ROOT, "enable_moe_block", 0))
        json_mismatch(d, json_find(d, JSON_ROOT, "enable_moe_block"),
                      "false: mixtures of experts are not built here");
    if (c->layers > LLAMA_MASK_BITS)
        json_fail(d, 0, "%lld layers of %s: %d at most", (long long)c->layers, c->type,
                  LLAMA_MASK_BITS);
    if (d->error[0] != 0)
        return;
    l->keys_as_values = json_bool(d, JSON_ROOT, "attention_k_eq_v", 0);
    l->wide = json_bool(d, JSON_ROOT, "use_double_wide_mlp", 0);
    l->shared_from = shared > 0 ? first : 0;
    for (int64_t i = 0; i < c->layers; i++)
        (i < first ? own : other)[llama_bit(l->sliding, i)] = 1;
    if (shared < 0 || first < 1 || own[0] < other[0] || own[1] < other[1])
        json_mismatch(d, json_find(d, JSON_ROOT, "num_kv_shared_layers"),
                      "a number of last layers, for each of whose layer_types an earlier layer has "
                      "keys");
    if (columns < 0 || columns > 65536)
        json_mismatch(d, json_find(d, JSON_ROOT, "hidden_size_per_layer_input"),
                      "a number from 0 to 65536");
    l->layer_inputs = columns;
    c->extra_params = columns > 0 ? 3 : 0;
    if (columns > 0 && model_read_size(d, "vocab_size_per_layer_input", 262144) != c->vocabulary)
        json_fail(d, 0, "vocab_size_per_layer_input: expected vocab_size, %lld",
                  (long long)c->vocabulary);
    llama_read_full_heads(d, c);
}

/* Reads which layers of Qwen 3.5 are gated delta nets, and the sizes of these. */
static inline void llama_read_nets(json *d, model_config *c)
{
    llama_config *l = &c->llama;
    const uint32_t types = json_find_nonnull(d, JSON_ROOT, "layer_types");
    const int64_t each = json_int(d, JSON_ROOT, "full_attention_interval", 4);
    l->plus_one = 1;
    l->net_taps = model_read_size(d, "linear_conv_kernel_dim", 4);
    l->net_key_dim = model_read_size(d, "linear_key_head_dim", 128);
    l->net_value_dim = model_read_size(d, "linear_value_head_dim", 128);
    l->net_keys = model_read_size(d, "linear_num_key_heads", 16);
    l->net_values = model_read_size(d, "linear_num_value_heads", 32);
    c->uneven = 1;
    if (d->error[0] != 0)
        return;
    if (l->net_values % l->net_keys != 0)
        json_fail(d, 0, "linear_num_value_heads %lld is no multiple of linear_num_key_heads %lld",
                  (long long)l->net_values, (long long)l->net_keys);
    if (l->net_key_dim > LLAMA_MAX_HEAD_DIM || l->net_value_dim > LLAMA_MAX_HEAD_DIM ||
        l->net_taps < 2)
        json_fail(d, 0,
                  "linear_key_head_dim %lld, linear_value_head_dim %lld, linear_conv_kernel_dim "
                  "%lld: expected heads of at most %d columns, and at least 2 taps",
                  (long long)l->net_key_dim, (long long)l->net_value_dim, (long long)l->net_taps,
                  LLAMA_MAX_HEAD_DIM);
    if (each < 1 || c->layers > LLAMA_MASK_BITS)
        json_fail(
            d, 0,
            "full_attention_interval %lld, %lld layers: expected 1 or more, and at most %d layers",
            (long long)each, (long long)c->layers, LLAMA_MASK_BITS);
    if (types != 0 && json_size(d, types) != (uint32_t)c->layers)
        json_fail(d, d->nodes[types].line, "layer_types: expected num_hidden_layers, %lld, types",
                  (long long)c->layers);
    uint32_t at = json_first(d, types);
    for (int64_t i = 0; d->error[0] == 0 && i < c->layers; i++, at = json_next(d, at)) {
        const int net = types != 0 ? json_is(d, at, "linear_attention") : (i + 1) % each != 0;
        if (types != 0 && !net && !json_is(d, at, "full_attention"))
            json_fail(d, d->nodes[at].line,
                      "layer_types: expected linear_attention or full_attention for layer %lld",
                      (long long)i);
        l->nets[i / 64] |= (uint64_t)net << i % 64;
    }
}

/* Reads Granite's factors. */
static inline void llama_read_multipliers(json *d, model_config *c)
{
    c->llama.embedding_scale = llama_read_real(d, JSON_ROOT, "embedding_multiplier", 1, 0);
    c->llama.branch_scale = llama_read_real(d, JSON_ROOT, "residual_multiplier", 1, 0);
    c->llama.score_scale = llama_read_real(d, JSON_ROOT, "attention_multiplier", 1, 0);
    c->logit_scale = 1 / llama_read_real(d, JSON_ROOT, "logits_scaling", 1, 0);
}

/* Computes m->query_scales: for position t, 1 + beta log(1 + floor(t / original)). */
static inline void llama_read_query_scales(model_any *m)
{
    json *d = &m->config_json;
    model_config *c = &m->config;
    const uint32_t rope = json_find_nonnull(d, JSON_ROOT, "rope_scaling")
                              ? json_find_nonnull(d, JSON_ROOT, "rope_scaling")
                              : json_require(d, JSON_ROOT, "rope_parameters", JSON_OBJECT);
    const double beta = json_real(d, rope, "llama_4_scaling_beta", 0);
    c->llama.query_beta = beta;
    c->llama.query_original =
        llama_read_real(d, rope, "original_max_position_embeddings", (double)c->context, 0.5);
    if (d->error[0] != 0 || beta == 0 || c->llama.query_original >= (double)c->context)
        return;
    m->query_scales = (float *)malloc((size_t)c->context * sizeof *m->query_scales);
    if (m->query_scales == NULL)
        json_fail(d, 0, "out of memory");
    for (int64_t t = 0; m->query_scales != NULL && t < c->context; t++)
        m->query_scales[t] =
            (float)(1 + beta * llama_log(1 + llama_round((double)t / c->llama.query_original, 0)));
}

/* Reads whether a model has biases: the value of `key`, or `fallback` if the key is NULL or
 * absent. */
static inline int llama_read_bias(json *d, const char *key, int fallback)
{
    return key != NULL ? json_bool(d, JSON_ROOT, key, fallback) : fallback;
}

/* Reads config.json, for a model_type that llama_types contains. */
static inline int llama_read_config(model_any *m)
{
    json *d = &m->config_json;
    model_config *c = &m->config;
    llama_config *l = &c->llama;
    const llama_type *row =
        llama_find_type(json_text(d, json_find_nonnull(d, JSON_ROOT, "model_type")));
    const int neox = (row->traits & LLAMA_LAYERNORM) != 0;
    l->row = row;
    c->type = row->type;
    c->layers = model_read_size(d, "num_hidden_layers", 0);
    c->width = model_read_size(d, "hidden_size", 0);
    c->inner = model_read_size(d, "intermediate_size", 0);
    c->context = model_read_size(d, "max_position_embeddings", 0);
    c->vocabulary = model_read_size(d, "vocab_size", 0);
    c->tied = json_bool(d, JSON_ROOT, "tie_word_embeddings", row->tied);
    llama_read_heads(d, c);
    llama_read_activation(d, c);
    l->epsilon =
        llama_read_real(d, JSON_ROOT, neox ? "layer_norm_eps" : "rms_norm_eps", row->epsilon, 0);
    l->qkv_bias = llama_read_bias(d, row->bias, row->biased);
    l->output_bias = llama_read_bias(d, row->output_bias, row->output_bias ? row->biased : 0);
    l->mlp_bias = llama_read_bias(d, row->mlp_bias, neox);
    l->parallel = neox && json_bool(d, JSON_ROOT, "use_parallel_residual", 1);
    if (row->gemma != 0)
        llama_read_gemma(d, c, row->gemma);
    if (row->traits & LLAMA_MULTIPLIERS)
        llama_read_multipliers(d, c);
    llama_read_positions(d, c);
    if (row->traits & LLAMA_QUERY_SCALE)
        llama_read_query_scales(m);
    if (row->windows == LLAMA_NO_ROPE)
        llama_read_no_rope(d, c);
    if (row->traits & LLAMA_NETS)
        llama_read_nets(d, c);
    else
        llama_read_sliding(d, c);
    if (row->gemma == 4)
        llama_read_gemma4(d, c);
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
    if (c->llama.row->gemma > 1)
        llama_write_gemma(c, f);
}

static inline const char *llama_architecture(const model_config *c)
{
    return c->llama.row->architecture;
}

static inline const char *llama_linear_layers(const model_config *c)
{
    const int layout = c->llama.row->layout;
    const int plain = layout == LLAMA_GEMMA4 && c->llama.layer_inputs == 0;
    return llama_layouts[plain ? LLAMA_SANDWICH_HEAD_NORMS : layout].linear;
}

static inline const char *llama_lora_targets(const model_config *c)
{
    return llama_layouts[c->llama.row->layout].lora;
}

static const model_family llama_family = {
    "Llama",
    "llama, mistral, qwen2, qwen3, smollm3, gemma, gemma2, gemma3_text, phi3, granite, olmo2, "
    "glm, glm4, ministral3, hunyuan_v1_dense, ernie4_5, gemma4_text, qwen3_5_text",
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
    "lm_head.weight",
    "layers",
    "embed_tokens",
    "norm",
    "self_attn",
    "mlp",
    llama_linear_layers,
    "o_proj,down_proj",
    "*norm.weight",
    llama_lora_targets,
    llama_hidden,
    llama_keys_values,
    "self_attn.o_proj",
    llama_is_post_norm,
};

static const model_family neox_family = {
    "GPT-NeoX",
    "gpt_neox",
    llama_read_config,
    " num_hidden_layers ",
    llama_write_config,
    llama_write_new_config,
    llama_architecture,
    1, /* number of parameters before the blocks */
    2, /* number of parameters after the blocks, in addition to the LM head */
    llama_block_params,
    llama_get_param,
    neox_is_skipped,
    1,
    "gpt_neox.",
    "embed_out.weight",
    "layers",
    "embed_in",
    "final_layer_norm",
    "attention",
    "mlp",
    llama_linear_layers,
    "dense,dense_4h_to_h",
    "*norm.*",
    llama_lora_targets,
    llama_hidden,
    llama_keys_values,
    NULL,
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
    c->llama.row = llama_find_type(c->type);
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
    l->row = llama_find_type(c->type);
    l->embedding_scale = model_sqrt((double)c->width);
    c->activation = gckpt_gelu;
    c->logit_cap = which == 2 ? 30 : 0;
    l->score_cap = which == 2 ? 50 : 0;
    l->epsilon = 1e-6;
    l->plus_one = 1;
    l->window = window;
    l->positions[0].base = which == 3 ? 1e6 : 10000;
    for (int i = 0; i < LLAMA_MASK_BITS; i++)
        l->sliding[i / 64] |= (uint64_t)((i + 1) % (which == 2 ? 2 : 6) != 0) << i % 64;
}
#endif
