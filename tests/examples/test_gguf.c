/* test_gguf.c - tests reading and writing GGUF files. Blocks of every type must have the values of the gguf package,
 * bit for bit. Files of the golden models, written by llama.cpp's converter or here in the same way, must give those
 * models in every storage. Adapters are read and written. A file with false claims must be refused with the name of the
 * wrong key or tensor, and no flipped byte may cause a crash.
 *
 *     build/test_gguf [folder for saved files] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "examples/gguf_export.h"
#include "golden/gguf.h"
#include "tuning.h"

static char path[128];

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", tuning_folder, name);
    return path;
}

/* ---- writing files --------------------------------------------------------------------------- */
static void put(file *b, uint64_t number, int n)
{
    unsigned char bytes[8];
    for (int i = 0; i < n; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
    file_write(b, bytes, (size_t)n);
}

static void put_text(file *b, const char *text)
{
    put(b, strlen(text), 8);
    file_write(b, text, strlen(text));
}

/* Appends a key with the prefix "architecture."; if architecture is "", without a prefix. */
static void put_key(file *b, const char *architecture, const char *name, gguf_type type)
{
    char key[96];
    snprintf(key, sizeof key, "%s%s%s", architecture, architecture[0] ? "." : "", name);
    put_text(b, key);
    put(b, type, 4);
}

static void put_size(file *b, const char *architecture, const char *name, int64_t n)
{
    put_key(b, architecture, name, GGUF_U32);
    put(b, (uint64_t)n, 4);
}

static void put_real(file *b, const char *architecture, const char *name, double x)
{
    put_key(b, architecture, name, GGUF_F32);
    put(b, bits_of((float)x), 4);
}

typedef struct { /* the three parts of a file while it is built */
    file keys, infos, data;
    uint64_t key_count, tensor_count;
} gguf_builder;

static void add_tensor(gguf_builder *f, const char *name, int type, int axes, const int64_t *d,
                       const void *bytes, size_t size)
{
    put_text(&f->infos, name);
    put(&f->infos, (uint64_t)axes, 4);
    for (int i = 0; i < axes; i++)
        put(&f->infos, (uint64_t)d[i], 8);
    put(&f->infos, (uint64_t)type, 4);
    put(&f->infos, f->data.size, 8);
    file_write(&f->data, bytes, size);
    while (f->data.size % 32 != 0)
        put(&f->data, 0, 1);
    f->tensor_count++;
}

/* Joins the three parts into one file, which the caller must free, and frees the parts. */
static file join_parts(gguf_builder *f)
{
    file all = { NULL, 0, 0, 0, 0, 0, 0 };
    file_write(&all, "GGUF", 4);
    put(&all, 3, 4);
    put(&all, f->tensor_count, 8);
    put(&all, f->key_count, 8);
    file_write(&all, f->keys.bytes, f->keys.size);
    if (f->infos.size > 0)
        file_write(&all, f->infos.bytes, f->infos.size);
    while (all.size % 32 != 0)
        put(&all, 0, 1);
    file_write(&all, f->data.bytes, f->data.size);
    free(f->keys.bytes);
    free(f->infos.bytes);
    free(f->data.bytes);
    return all;
}

static void store_file(const char *name, const unsigned char *bytes, size_t size)
{
    FILE *f = fopen(name, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, size, f) == size && fclose(f) == 0);
}

/* ---- blocks of quantised values ---------------------------------------------------------------- */
static const struct {
    int type;
    const unsigned char *bytes;
    size_t size;
    const uint32_t *values;
    int64_t count;
} golden_blocks[] = {
#define GOLDEN_BLOCK(name)                                                                         \
    {                                                                                              \
        GGUF_T_##name, golden_##name, sizeof golden_##name, golden_##name##_values,                \
            sizeof golden_##name##_values / 4                                                      \
    }
    GOLDEN_BLOCK(F32),  GOLDEN_BLOCK(F16),  GOLDEN_BLOCK(BF16), GOLDEN_BLOCK(Q8_0),
    GOLDEN_BLOCK(Q4_0), GOLDEN_BLOCK(Q4_1), GOLDEN_BLOCK(Q5_0), GOLDEN_BLOCK(Q5_1),
    GOLDEN_BLOCK(Q4_K), GOLDEN_BLOCK(Q5_K), GOLDEN_BLOCK(Q6_K)
};
enum { BLOCKS = sizeof golden_blocks / sizeof golden_blocks[0] };

static void test_blocks(void)
{
    gguf_builder f;
    gguf g;
    memset(&f, 0, sizeof f);
    put_key(&f.keys, "", "general.architecture", GGUF_STRING);
    put_text(&f.keys, "none");
    f.key_count = 1;
    for (int i = 0; i < BLOCKS; i++)
        add_tensor(&f, gguf_tensor_types[golden_blocks[i].type].name, golden_blocks[i].type, 1,
                   &golden_blocks[i].count, golden_blocks[i].bytes, golden_blocks[i].size);
    file all = join_parts(&f);
    store_file(in_folder("blocks.gguf"), all.bytes, all.size);
    CHECK_MSG(gguf_open(&g, path) == 0, "%s", g.error);
    for (int i = 0; i < BLOCKS; i++) {
        float have[256];
        const char *name = gguf_tensor_types[golden_blocks[i].type].name;
        const gguf_tensor *t = gguf_find_tensor(&g, name);
        if (!CHECK_MSG(t != NULL && t->elements == golden_blocks[i].count, "%s: not there", name) ||
            !CHECK_MSG(gguf_read_floats(&g, t, 0, t->elements, have) == 0, "%s", g.error))
            continue;
        for (int64_t k = 0; k < t->elements; k++)
            CHECK_MSG(bits_of(have[k]) == golden_blocks[i].values[k], "%s: value %d is %g, not %g",
                      name, (int)k, (double)have[k], (double)float_of(golden_blocks[i].values[k]));
    }
    gguf_close(&g);
    free(all.bytes);
}

/* ---- model files, written as llama.cpp's converter writes them --------------------------------- */
/* Names of modules: in Hugging Face's files, and as the converter writes them. */
static const char *const names[][2] = {
    { "input_layernorm", "attn_norm" },
    { "self_attn.q_proj", "attn_q" },
    { "self_attn.k_proj", "attn_k" },
    { "self_attn.v_proj", "attn_v" },
    { "self_attn.q_norm", "attn_q_norm" },
    { "self_attn.k_norm", "attn_k_norm" },
    { "self_attn.o_proj", "attn_output" },
    { "post_attention_layernorm", "ffn_norm" },
    { "mlp.gate_proj", "ffn_gate" },
    { "mlp.up_proj", "ffn_up" },
    { "mlp.down_proj", "ffn_down" },
    { "embed_tokens", "token_embd" },
    { "norm", "output_norm" },
    { "lm_head", "output" },
    { "ln_1", "attn_norm" },
    { "attn.c_attn", "attn_qkv" },
    { "attn.c_proj", "attn_output" },
    { "ln_2", "ffn_norm" },
    { "mlp.c_fc", "ffn_up" },
    { "mlp.c_proj", "ffn_down" },
    { "wte", "token_embd" },
    { "wpe", "position_embd" },
    { "ln_f", "output_norm" },
};

/* Names of the norms in models with norms after attention and after the feed-forward part, as the converter writes
 * them. */
static const char *const others[][2] = {
    { "post_attention_layernorm", "post_attention_norm" },
    { "pre_feedforward_layernorm", "ffn_norm" },
    { "post_feedforward_layernorm", "post_ffw_norm" },
};

static int has_post_norms(const model_config *c)
{
    return c->llama.row != NULL && llama_name(c, 0, LLAMA_MLP_POST_NORM) != NULL;
}

/* Converts the name of a parameter, such as "layers.1.mlp.up_proj.weight" or "norm.weight", to the name in a GGUF
 * file. */
static void name_of(const model_config *c, const char *parameter, char *name)
{
    char module[MODEL_NAME];
    const char *end = strrchr(parameter, '.'), *found = NULL;
    int layer = -1, n = 0;
    if (sscanf(parameter, "layers.%d.%n", &layer, &n) < 1 &&
        sscanf(parameter, "h.%d.%n", &layer, &n) < 1)
        n = 0;
    snprintf(module, sizeof module, "%.*s", (int)(end - parameter) - n, parameter + n);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        found = strcmp(names[i][0], module) == 0 ? names[i][1] : found;
    for (size_t i = 0; i < sizeof others / sizeof others[0] && has_post_norms(c); i++)
        found = strcmp(others[i][0], module) == 0 ? others[i][1] : found;
    CHECK_MSG(found != NULL, "%s: no name", parameter);
    if (layer >= 0)
        snprintf(name, MODEL_NAME, "blk.%d.%s%s", layer, found != NULL ? found : "", end);
    else
        snprintf(name, MODEL_NAME, "%s%s", found != NULL ? found : "", end);
}

/* Returns the row in a GGUF file of row r of a parameter. In queries and keys of some architectures, the converter puts
 * rows j and j + head / 2 of a head next to each other. */
static int64_t row_of(const model_config *c, const char *name, int64_t r)
{
    const int paired = strcmp(c->type, "llama") == 0 || strcmp(c->type, "mistral") == 0 ||
                       strcmp(c->type, "smollm3") == 0;
    const int64_t head = c->head_dim, h = r / head, in = r % head;
    if (!paired || (strstr(name, "q_proj") == NULL && strstr(name, "k_proj") == NULL))
        return r;
    return h * head + (in < head / 2 ? 2 * in : 2 * (in - head / 2) + 1);
}

/* Returns `type`, or F16 if rows of `columns` numbers cannot be divided into blocks of `type`. */
static int type_for(int type, int64_t columns)
{
    return columns % gguf_tensor_types[type].values == 0 ? type : GGUF_T_F16;
}

static int is_table(const char *name)
{
    return strncmp(name, "wte", 3) == 0 || strncmp(name, "wpe", 3) == 0 ||
           strncmp(name, "lm_head", 7) == 0;
}

/* Fills random blocks of a type with small scales, so that all values are finite. */
static void random_bytes(int type, int64_t n, unsigned char *to)
{
    const size_t each = (size_t)gguf_tensor_types[type].bytes, size = gguf_bytes(type, n);
    /* 1 for types whose blocks begin with a binary16 scale (or value), 0 for F32 and BF16 */
    const size_t half = type == GGUF_T_F16 || each > 4 ? 1 : 0;
    for (size_t i = 0; i < size; i++)
        to[i] = (unsigned char)below(256);
    for (size_t i = 0; i < size; i += each) {
        if (half)
            to[i + 1] = (unsigned char)((to[i + 1] & 0x83) | 0x20);
        if (type == GGUF_T_Q4_1 || type == GGUF_T_Q5_1)
            to[i + 3] = (unsigned char)((to[i + 3] & 0x83) | 0x20);
        if (!half) { /* types F32 and BF16 */
            to[i + each - 1] = (unsigned char)((to[i + each - 1] & 0x80) | 0x3c);
            to[i + each - 2] &= 0x7f;
        }
    }
}

/* Adds the window length and, for Gemma 2 and 3, the layers with a window and further keys. */
static void add_windows(gguf_builder *f, const model_config *c, const char *architecture)
{
    file *b = &f->keys;
    put_size(b, architecture, "attention.sliding_window", c->llama.window);
    f->key_count++;
    if (!has_post_norms(c))
        return;
    put_key(b, architecture, "attention.sliding_window_pattern", GGUF_ARRAY);
    put(b, GGUF_BOOL, 4);
    put(b, (uint64_t)c->layers, 8);
    for (int64_t i = 0; i < c->layers; i++)
        put(b, c->llama.sliding[0] >> i & 1, 1);
    put_real(b, architecture, "attn_logit_softcapping", c->llama.score_cap);
    put_real(b, architecture, "final_logit_softcapping", c->logit_cap);
    put_real(b, architecture, "rope.freq_base_swa", c->llama.positions[1].base);
    f->key_count += 4;
}

/* Adds the keys that describe a model's config. */
static void add_keys(gguf_builder *f, const model_any *m, const char *architecture)
{
    const model_config *c = &m->config;
    const llama_positions *at = &c->llama.positions[0];
    file *b = &f->keys;
    const int gpt2 = strcmp(architecture, "gpt2") == 0;
    put_key(b, "", "general.architecture", GGUF_STRING);
    put_text(b, architecture);
    put_size(b, architecture, "block_count", c->layers);
    put_size(b, architecture, "embedding_length", c->width);
    put_size(b, architecture, "feed_forward_length", c->inner);
    put_size(b, architecture, "context_length", c->context);
    put_size(b, architecture, "attention.head_count", c->heads);
    put_size(b, "", "tokenizer.ggml.eos_token_id", c->eos[0]);
    f->key_count += 7;
    if (gpt2) {
        put_real(b, architecture, "attention.layer_norm_epsilon", 1e-5);
        f->key_count++;
        return;
    }
    put_key(b, architecture, "attention.head_count_kv",
            GGUF_ARRAY); /* here an array with a number for each layer */
    put(b, GGUF_I32, 4);
    put(b, (uint64_t)c->layers, 8);
    for (int64_t i = 0; i < c->layers; i++)
        put(b, (uint64_t)c->key_heads, 4);
    put_size(b, architecture, "attention.key_length", c->head_dim);
    put_real(b, architecture, "attention.layer_norm_rms_epsilon", c->llama.epsilon);
    put_real(b, architecture, "rope.freq_base", at->base);
    f->key_count += 4;
    if (c->llama.window > 0)
        add_windows(f, c, architecture);
    if (at->scaling != LLAMA_LINEAR && at->scaling != LLAMA_YARN)
        return;
    put_key(b, architecture, "rope.scaling.type", GGUF_STRING);
    put_text(b, at->scaling == LLAMA_YARN ? "yarn" : "linear");
    put_real(b, architecture, "rope.scaling.factor", at->factor);
    f->key_count += 2;
    if (at->scaling == LLAMA_LINEAR)
        return;
    put_size(b, architecture, "rope.scaling.original_context_length", (int64_t)at->original);
    f->key_count++;
}

/* Adds the position factors of llama3, computed as the converter does. */
static void add_factors(gguf_builder *f, const model_config *c)
{
    unsigned char bytes[4 * LLAMA_MAX_HEAD_DIM / 2];
    float plain[LLAMA_MAX_HEAD_DIM / 2], scaled[LLAMA_MAX_HEAD_DIM / 2];
    const int64_t n = c->head_dim / 2;
    llama_positions without = c->llama.positions[0];
    without.scaling = LLAMA_LINEAR;
    without.factor = 1;
    llama_frequencies(&without, c->head_dim, plain);
    llama_frequencies(&c->llama.positions[0], c->head_dim, scaled);
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++)
            bytes[4 * i + k] = (unsigned char)(bits_of(plain[i] / scaled[i]) >> 8 * k);
    add_tensor(f, "rope_freqs.weight", GGUF_T_F32, 1, &n, bytes, (size_t)n * 4);
}

/* Returns a file of a model with random values, whose matrices have this type. *floats gets the values of all
 * parameters, one parameter after the other. */
static file make_file(const model_any *m, const char *architecture, int type, file *floats)
{
    const model_config *c = &m->config;
    gguf_builder f;
    memset(&f, 0, sizeof f);
    add_keys(&f, m, architecture);
    for (int64_t i = 0; i < model_param_count(c); i++) {
        const model_parameter p = model_get_param(c, i);
        const int matrix = p.shape.n == 2;
        const int turned = matrix && !c->family->transposed && !is_table(p.name);
        const int64_t n = count_of(&p.shape), last = p.shape.d[p.shape.n - 1];
        const int64_t d[2] = { turned ? p.shape.d[0] : last, matrix ? p.shape.d[turned] : 1 };
        const int as = matrix ? type_for(type, d[0]) : GGUF_T_F32;
        const size_t size = gguf_bytes(as, n);
        unsigned char *bytes = (unsigned char *)malloc(size);
        float *values = (float *)malloc((size_t)n * sizeof *values);
        char name[MODEL_NAME];
        random_bytes(as, n, bytes);
        gguf_to_floats(as, bytes, n, values);
        name_of(c, p.name, name);
        add_tensor(&f, name, as, p.shape.n, d, bytes, size);
        for (int64_t k = 0; k < n; k++) {
            const int64_t row = matrix ? k / last : k, column = matrix ? k % last : 0;
            const int64_t at = turned   ? column * d[0] + row
                               : matrix ? row_of(c, p.name, row) * last + column
                                        : row_of(c, p.name, row);
            float x = values[at];
            if (strncmp(architecture, "gemma", 5) == 0 && strstr(p.name, "norm.weight") != NULL)
                x -= 1;
            file_write(floats, &x, sizeof x);
        }
        free(bytes);
        free(values);
    }
    if (c->llama.positions[0].scaling == LLAMA_LLAMA3)
        add_factors(&f, c);
    return join_parts(&f);
}

static double apart(double a, double b) { return a > b ? a - b : b - a; }

/* Checks that two configs are equal, except for the place they were read from. */
static void same_config(const char *what, const model_config *a, const model_config *b)
{
    float x[LLAMA_MAX_HEAD_DIM / 2], y[LLAMA_MAX_HEAD_DIM / 2];
    CHECK_MSG(a->family == b->family && strcmp(a->type, b->type) == 0 && a->layers == b->layers &&
                  a->width == b->width && a->inner == b->inner && a->context == b->context &&
                  a->vocabulary == b->vocabulary && a->heads == b->heads &&
                  a->key_heads == b->key_heads && a->head_dim == b->head_dim &&
                  a->activation == b->activation && a->tied == b->tied && a->eos[0] == b->eos[0],
              "%s: a %s of other sizes", what, a->type);
    if (a->family == &gpt2_family)
        return;
    CHECK_MSG(a->llama.epsilon == b->llama.epsilon && a->llama.plus_one == b->llama.plus_one &&
                  a->llama.qkv_bias == b->llama.qkv_bias &&
                  a->llama.output_bias == b->llama.output_bias &&
                  a->llama.mlp_bias == b->llama.mlp_bias && a->logit_cap == b->logit_cap &&
                  memcmp(a->llama.no_rope, b->llama.no_rope, sizeof a->llama.no_rope) == 0 &&
                  memcmp(a->llama.sliding, b->llama.sliding, sizeof a->llama.sliding) == 0 &&
                  a->llama.window == b->llama.window && a->llama.score_cap == b->llama.score_cap,
              "%s: another model", what);
    CHECK_MSG(
        !has_post_norms(a) || a->llama.score_scale == (a->llama.row->gemma == 4),
        "%s: scores times %g", what,
        a->llama
            .score_scale); /* a GGUF has no key for score_scale; 0 stands for 1 / sqrt(head_dim) */
    for (int k = 0; k < (a->llama.window > 0 ? 2 : 1); k++) {
        llama_frequencies(&a->llama.positions[k], a->head_dim, x);
        llama_frequencies(&b->llama.positions[k], b->head_dim, y);
        CHECK_MSG(a->llama.positions[k].scale == b->llama.positions[k].scale, "%s: scale", what);
        for (int64_t i = 0; i < a->head_dim / 2; i++)
            CHECK_MSG(apart((double)x[i], (double)y[i]) <= 2e-7 * (double)y[i],
                      "%s: angle %d is %.9g, not %.9g", what, (int)i, (double)x[i], (double)y[i]);
    }
}

/* Checks the storage of each parameter of the store, and compares its values with the floats `want`: bit for bit, or if
 * the reader has converted the parameter to int8, within the rounding of int8. as_file: nonzero if the reader was asked
 * to keep the storage of the file, whose matrices have the type `type`. */
static void same_values(const char *what, const model_config *c, gckpt_store *s, const float *want,
                        int as_file, int type)
{
    for (int64_t i = 0; i < model_param_count(c); i++) {
        const model_parameter q = model_get_param(c, i);
        const int64_t n = count_of(&q.shape);
        const int turned = q.shape.n == 2 && !c->family->transposed && !is_table(q.name);
        const int of = type_for(type, q.shape.d[turned ? 0 : q.shape.n - 1]);
        const gckpt_storage expect = !as_file || q.shape.n == 1     ? GCKPT_STORAGE_F32
                                     : of == GGUF_T_F32             ? GCKPT_STORAGE_F32
                                     : of == GGUF_T_F16             ? GCKPT_STORAGE_F16
                                     : of == GGUF_T_BF16            ? GCKPT_STORAGE_BF16
                                     : of == GGUF_T_Q4_0 && !turned ? GCKPT_STORAGE_I4
                                                                    : GCKPT_STORAGE_I8;
        gckpt_parameter p;
        long wrong = 0;
        if (!CHECK(gckpt_store_get(s, gckpt_store_find(s, q.name), &p) == GCKPT_OK))
            continue;
        CHECK_MSG(p.storage == expect, "%s: %s is stored as %d, not %d", what, q.name,
                  (int)p.storage, (int)expect);
        for (int64_t k = 0; k < n; k++) {
            const unsigned char *bytes = (const unsigned char *)p.quantised;
            float have = 0;
            double off = 0;
            if (p.storage == GCKPT_STORAGE_F32)
                have = p.values[k];
            else if (p.storage == GCKPT_STORAGE_I8) {
                float block[32], scale;
                gguf_to_floats(GGUF_T_Q8_0, bytes + k / 32 * 34, 32, block);
                gguf_to_floats(GGUF_T_F16, bytes + k / 32 * 34, 1, &scale);
                have = block[k % 32];
                off = of == GGUF_T_Q8_0 && !turned ? 0 : 0.55 * (double)scale;
            } else if (p.storage == GCKPT_STORAGE_I4) {
                float block[32];
                gguf_to_floats(GGUF_T_Q4_0, bytes + k / 32 * 19, 32, block);
                wrong += bytes[k / 32 * 19 + 18] != 128;
                have = block[k % 32];
            } else {
                uint16_t bits;
                memcpy(&bits, bytes + 2 * k, 2);
                const unsigned char low_first[2] = { (unsigned char)bits,
                                                     (unsigned char)(bits >> 8) };
                gguf_to_floats(p.storage == GCKPT_STORAGE_F16 ? GGUF_T_F16 : GGUF_T_BF16, low_first,
                               1, &have);
            }
            wrong += off > 0 ? apart((double)have, (double)want[k]) > off
                             : bits_of(have) != bits_of(want[k]);
        }
        CHECK_MSG(wrong == 0, "%s: %ld of %ld values of %s are others", what, wrong, (long)n,
                  q.name);
        want += n;
    }
}

/* Writes and loads every kind of model with matrices of every type, once as floats and once quantised as closely to the
 * file as possible. */
static void test_models(void)
{
    static const char *const models[][2] = {
        { "tests/golden/llama/gqa", "llama" },       { "tests/golden/llama/mistral", "llama" },
        { "tests/golden/llama/qwen2", "qwen2" },     { "tests/golden/llama/qwen3", "qwen3" },
        { "tests/golden/llama/smollm3", "smollm3" }, { "tests/golden/llama/gemma", "gemma" },
        { "tests/golden/windows/gemma2", "gemma2" }, { "tests/golden/windows/gemma3", "gemma3" },
        { "tests/golden/windows/mistral", "llama" }, { "tests/golden/llama/yarn", NULL },
        { "tests/golden/llama/linear", NULL },       { "tests/golden/gpt2/model", "gpt2" }
    };
    static const int types[] = { GGUF_T_F32,  GGUF_T_F16,  GGUF_T_BF16, GGUF_T_Q8_0,
                                 GGUF_T_Q4_0, GGUF_T_Q4_1, GGUF_T_Q5_0, GGUF_T_Q5_1 };
    enum { MODELS = sizeof models / sizeof models[0] };
    for (int i = 0; i < MODELS; i++)
        for (int k = 0; k < 8; k++) {
            model_any m;
            char what[96];
            file floats = { NULL, 0, 0, 0, 0, 0, 0 };
            if ((i > 0 && i < MODELS - 1 && k != 0 && k != i % 8) ||
                !CHECK_MSG(model_read_config(&m, models[i][0]) == 0, "%s", m.error))
                continue;
            const char *architecture = models[i][1] != NULL ? models[i][1] : m.config.type;
            snprintf(what, sizeof what, "%s as %s", models[i][0] + 13,
                     gguf_tensor_types[types[k]].name);
            if (strcmp(m.config.type, "mistral") == 0 && m.config.llama.window == 0)
                m.config.type =
                    "llama"; /* the converter writes "llama" for a Mistral without windows */
            /* GGUF has no key for layers without rotary. By default every fourth layer has none, so here all 3 layers
             * have rotary. */
            memset(m.config.llama.no_rope, 0, sizeof m.config.llama.no_rope);
            file all = make_file(&m, architecture, types[k], &floats);
            store_file(in_folder("model.gguf"), all.bytes, all.size);
            for (int as_file = 0; as_file < 2; as_file++) {
                const model_source source = { GCKPT_STORAGE_F32, 0, NULL, as_file };
                model_any have;
                gckpt_store *s = gckpt_store_new(NULL);
                if (CHECK_MSG(model_load(&have, s, path, &source) == 0, "%s: %s", what,
                              have.error)) {
                    same_config(what, &have.config, &m.config);
                    same_values(what, &have.config, s, (const float *)(void *)floats.bytes, as_file,
                                types[k]);
                }
                gckpt_store_free(s);
                model_close(&have);
            }
            model_close(&m);
            free(all.bytes);
            free(floats.bytes);
        }
}

/* Tests files that llama.cpp's converter and llama-quantize wrote: each weight of a matrix must be close to the
 * original weight, and vectors must be equal. */
static void test_converted(void)
{
    static const struct {
        const char *file, *folder;
        double step; /* largest allowed error of a weight / largest magnitude of the tensor */
    } golden[] = { { "llama-q8_0.gguf", "tests/golden/llama/gqa", 0.5 / 127 + 1.0 / 2048 },
                   { "gpt2-q4_0.gguf", "tests/golden/gpt2/model", 1.0 / 8 + 1.0 / 2048 } };
    for (int i = 0; i < 2; i++) {
        model_any a, b;
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_store *t = tuning_load(&b, golden[i].folder, NULL);
        snprintf(path, sizeof path, "tests/golden/gguf/%s", golden[i].file);
        if (CHECK_MSG(model_load(&a, s, path, NULL) == 0, "%s", a.error)) {
            same_config(golden[i].file, &a.config, &b.config);
            CHECK(gckpt_store_count(s) == gckpt_store_count(t));
            gckpt_parameter p, q;
            for (int k = 0; gckpt_store_get(s, k, &p) == GCKPT_OK; k++) {
                double most = 0, off = 0;
                CHECK(gckpt_store_get(t, gckpt_store_find(t, p.name), &q) == GCKPT_OK);
                for (int64_t n = 0; n < p.elements; n++) {
                    const double x = apart((double)q.values[n], 0);
                    const double d = apart((double)p.values[n], (double)q.values[n]);
                    most = x > most ? x : most;
                    off = d > off ? d : off;
                }
                CHECK_MSG(off <= (p.shape.n == 1 ? 0 : golden[i].step * most),
                          "%s: %s is %g off, of %g", golden[i].file, p.name, off, most);
            }
        }
        gckpt_store_free(s);
        gckpt_store_free(t);
        model_close(&a);
        model_close(&b);
    }
}

/* Bytes of one block that the Python package gguf 0.19 wrote (gguf.quants.quantize). */
static void test_quantised(void)
{
    static const unsigned char q8_0[] = { 113, 33,  206, 10,  222, 26, 238, 127, 254, 210, 15, 227,
                                          31,  243, 47,  3,   215, 20, 232, 36,  248, 52,  8,  220,
                                          24,  236, 41,  253, 209, 13, 225, 29,  241, 46 };
    static const unsigned char q4_0[] = { 102, 177, 171, 103, 154, 86,  121, 160, 104,
                                          155, 87,  138, 182, 121, 165, 104, 155, 87 };
    static const unsigned char f16[] = { 74,  184, 165, 46,  208, 181, 110, 52,  23,  178, 102,
                                         61,  110, 164, 192, 183, 251, 48,  251, 180, 66,  53,
                                         110, 176, 3,   56,  110, 40,  236, 182, 165, 50,  39,
                                         180, 23,  54,  137, 173, 110, 56,  137, 45,  23,  182,
                                         39,  52,  165, 178, 236, 54,  110, 168, 3,   184, 110,
                                         48,  66,  181, 251, 52,  251, 176, 192, 55 };
    static const unsigned char bf16[] = { 9,   191, 213, 61,  186, 190, 142, 62,  67,  190, 173,
                                          63,  142, 188, 248, 190, 31,  62,  159, 190, 168, 62,
                                          14,  190, 0,   63,  14,  61,  221, 190, 85,  62,  133,
                                          190, 195, 62,  177, 189, 14,  63,  177, 61,  195, 190,
                                          133, 62,  85,  190, 221, 62,  14,  189, 0,   191, 14,
                                          62,  168, 190, 159, 62,  31,  190, 248, 62 };
    static const struct {
        int type;
        const unsigned char *bytes;
        size_t size;
    } want[] = { { GGUF_T_Q8_0, q8_0, sizeof q8_0 },
                 { GGUF_T_Q4_0, q4_0, sizeof q4_0 },
                 { GGUF_T_F16, f16, sizeof f16 },
                 { GGUF_T_BF16, bf16, sizeof bf16 } };
    float x[32];
    for (int i = 0; i < 32; i++)
        x[i] = (float)((i * 37 % 64 - 31) * 0.0173 + (i == 5 ? 0.9 : 0));
    for (int i = 0; i < 4; i++) {
        unsigned char have[64];
        CHECK(gguf_from_floats(want[i].type, x, 32, have) == 0);
        CHECK_MSG(memcmp(have, want[i].bytes, want[i].size) == 0, "%s has other bytes",
                  gguf_tensor_types[want[i].type].name);
    }
    /* every binary16 number that is finite returns to its bits; larger numbers are refused */
    for (unsigned bits = 0; bits < 65536; bits++) {
        const unsigned char half[] = { (unsigned char)bits, (unsigned char)(bits >> 8) };
        const float value = gguf_from_f16(half);
        if ((bits & 0x7c00) != 0x7c00)
            CHECK_MSG(gguf_to_f16(value) == bits, "%x", bits);
    }
    const float large[] = { 65519, 65520 }, tiny[] = { 1.0f / 33554432, 1.5f / 33554432 };
    unsigned char have[2];
    CHECK(gguf_from_floats(GGUF_T_F16, large, 1, have) == 0);
    CHECK(gguf_from_floats(GGUF_T_F16, large + 1, 1, have) != 0);
    CHECK(gguf_to_f16(tiny[0]) == 0 && gguf_to_f16(tiny[1]) == 1);
}

/* Opens the tokenizer that is exported with golden models. */
static void open_tokenizer(bpe *b, int spm)
{
    CHECK_MSG(gguf_open_tokenizer(b, spm ? "tests/golden/gguf_tokenizer/spm.gguf"
                                         : "tests/golden/gguf_tokenizer/bpe.gguf") == 0,
              "%s", b->error);
}

/* Compares the values of a model with those of the same model after it was written and read. */
static void same_parameters(const char *what, const model_any *m, gckpt_store *s, gckpt_store *t)
{
    gckpt_parameter p, q;
    CHECK(gckpt_store_count(s) == gckpt_store_count(t));
    for (int k = 0; gckpt_store_get(s, k, &p) == GCKPT_OK; k++) {
        const int norm = m->config.llama.plus_one && strstr(p.name, "norm.weight") != NULL &&
                         strstr(p.name, ".linear_attn.") == NULL;
        const int decay = strstr(p.name, ".A_log") != NULL;
        int64_t wrong = 0;
        CHECK(gckpt_store_get(t, gckpt_store_find(t, p.name), &q) == GCKPT_OK);
        for (int64_t n = 0; n < p.elements; n++) /* of a norm, 1 + weight is stored, of decays -exp(x) */
            wrong += norm    ? bits_of(1 + p.values[n]) != bits_of(1 + q.values[n])
                     : decay ? !(fabsf(p.values[n] - q.values[n]) <= 1.2e-7f)
                             : bits_of(p.values[n]) != bits_of(q.values[n]);
        CHECK_MSG(wrong == 0, "%s: %ld values of %s are others", what, (long)wrong, p.name);
    }
}

/* Whole models as F32: written with either kind of tokenizer and read again, all has its old bits. */
static void test_exported(void)
{
    /* refused: part of the model that no key of GGUF expresses, or NULL */
    static const struct {
        const char *folder, *refused;
    } models[] = { { "tests/golden/llama/gqa", NULL },
                   { "tests/golden/llama/mistral", NULL },
                   { "tests/golden/llama/qwen2", NULL },
                   { "tests/golden/llama/qwen3", NULL },
                   { "tests/golden/llama/gemma", NULL },
                   { "tests/golden/windows/gemma3", NULL },
                   { "tests/golden/llama/linear", NULL },
                   { "tests/golden/llama/yarn", NULL },
                   { "tests/golden/gpt2/model", NULL },
                   { "tests/golden/decoders/phi3", NULL },
                   { "tests/golden/decoders/granite", NULL },
                   { "tests/golden/decoders/olmo2", NULL },
                   { "tests/golden/decoders/glm", NULL },
                   { "tests/golden/decoders/glm4", NULL },
                   { "tests/golden/decoders/ministral3", NULL },
                   { "tests/golden/decoders/hunyuan", NULL },
                   { "tests/golden/decoders/neox", NULL },
                   { "tests/golden/decoders/gemma4_big", NULL },
                   { "tests/golden/decoders/qwen35", NULL },
                   { "tests/golden/decoders/ernie", "no biases of the MLP in a ernie4_5" },
                   { "tests/golden/decoders/gemma4", "no biases of queries, keys and values" },
                   { "tests/golden/llama/smollm3", "layers without rotary positions" },
                   { "tests/golden/windows/gemma2", "scales or caps of scores" } };
    enum { MODELS = sizeof models / sizeof models[0] };
    for (int i = 0; i < MODELS; i++) {
        model_any m, n;
        bpe b, c;
        gckpt_store *s = tuning_load(&m, models[i].folder, NULL), *t = gckpt_store_new(NULL);
        open_tokenizer(&b, i % 2);
        gguf_export e = { &m, s, &b, models[i].folder, GGUF_T_F32, m.config.eos };
        const int failed = gguf_export_model(&e, in_folder("exported.gguf"));
        CHECK_MSG(models[i].refused == NULL ? failed == 0
                                            : failed && strstr(m.error, models[i].refused) != NULL,
                  "%s: %s", models[i].folder, m.error);
        if (!failed &&
            CHECK_MSG(model_load(&n, t, path, NULL) == 0, "%s: %s", models[i].folder, n.error)) {
            if (strcmp(m.config.type, "mistral") == 0) /* GGUF calls it llama */
                m.config.type = "llama";
            same_config(models[i].folder, &n.config, &m.config);
            same_parameters(models[i].folder, &m, s, t);
            CHECK_MSG(gguf_open_tokenizer(&c, path) == 0, "%s", c.error);
            CHECK(gguf_tokenizer_difference(&b, &c) == NULL);
            bpe_free(&c);
        }
        gckpt_store_free(s);
        gckpt_store_free(t);
        bpe_free(&b);
        model_close(&m);
        if (!failed)
            model_close(&n);
    }
}

/* Checks that two files have the same tensors, with all bits. */
static void same_tensors(const char *one, const char *other)
{
    gguf have, want;
    int same = 0;
    CHECK_MSG(gguf_open(&have, one) == 0, "%s", have.error);
    CHECK_MSG(gguf_open(&want, other) == 0, "%s", want.error);
    CHECK_MSG(have.tensor_count == want.tensor_count, "%s: %d tensors, not %d", other,
              (int)have.tensor_count, (int)want.tensor_count);
    for (size_t i = 0; i < want.tensor_count && i < have.tensor_count; i++) {
        const gguf_tensor *p = &have.tensors[i], *q = &want.tensors[i];
        unsigned char *x = malloc((size_t)p->bytes + 1), *y = malloc((size_t)q->bytes + 1);
        CHECK_MSG(strcmp(p->name, q->name) == 0 && p->type == q->type && p->d[0] == q->d[0] &&
                      p->d[1] == q->d[1],
                  "%s: %s %s and %s %s", other, p->name, gguf_tensor_types[p->type].name, q->name,
                  gguf_tensor_types[q->type].name);
        if (p->type == q->type && p->bytes == q->bytes &&
            CHECK(gguf_read_bytes(&have, p->offset, x, (size_t)p->bytes) == 0 &&
                  gguf_read_bytes(&want, q->offset, y, (size_t)q->bytes) == 0))
            same += CHECK_MSG(memcmp(x, y, (size_t)p->bytes) == 0, "%s: %s has other values", other,
                              p->name);
        free(x);
        free(y);
    }
    CHECK(same == (int)want.tensor_count);
    gguf_close(&have);
    gguf_close(&want);
}

/* A Q8_0 file has the tensors, with all bits, of the one that llama.cpp's converter wrote. */
static void test_exported_q8_0(void)
{
    static const int32_t stops[] = { 2, -1 };
    model_any m;
    bpe b;
    gckpt_store *s = tuning_load(&m, "tests/golden/llama/gqa", NULL);
    open_tokenizer(&b, 0);
    gguf_export e = { &m, s, &b, "tests/golden/llama/gqa", GGUF_T_Q8_0, stops };
    CHECK_MSG(gguf_export_model(&e, in_folder("exported.gguf")) == 0, "%s", m.error);
    same_tensors(path, "tests/golden/gguf/llama-q8_0.gguf");
    gckpt_store_free(s);
    bpe_free(&b);
    model_close(&m);
}

/* Checks that a file has the architecture's keys that another one, of the converter, has, with the same values. Sizes may be
 * arrays instead, and keys of scaled positions may be missing if their type is none. */
static void same_keys(const char *one, const char *other)
{
    gguf have, want;
    CHECK_MSG(gguf_open(&have, one) == 0, "%s", have.error);
    CHECK_MSG(gguf_open(&want, other) == 0, "%s", want.error);
    const char *architecture = gguf_text(&want, "general.architecture", NULL);
    char scaling[64];
    snprintf(scaling, sizeof scaling, "%s.rope.scaling.type", architecture);
    const char *type = gguf_text(&want, scaling, NULL);
    const int none = type != NULL && strcmp(type, "none") == 0;
    /* without this key, llama.cpp caps the logits */
    CHECK(strcmp(architecture, "gemma4") != 0 ||
          gguf_find(&have, "gemma4.final_logit_softcapping") != NULL);
    for (size_t i = 0; i < want.key_count; i++) {
        const gguf_key *k = &want.keys[i];
        if (strncmp(k->name, architecture, strlen(architecture)) != 0 ||
            (none && strstr(k->name, ".rope.scaling.") != NULL))
            continue;
        if (!CHECK_MSG(gguf_find(&have, k->name) != NULL, "%s: no key %s", other, k->name) ||
            k->type == GGUF_ARRAY || k->type == GGUF_STRING ||
            gguf_type_of(&have, k->name) == GGUF_ARRAY)
            continue;
        const double x = gguf_is_integer(k->type) ? (double)gguf_int(&have, k->name, -1)
                         : k->type == GGUF_BOOL   ? (double)gguf_bool(&have, k->name, -1)
                                                  : gguf_real(&have, k->name, -1);
        const double y = gguf_is_integer(k->type) ? (double)gguf_int(&want, k->name, -1)
                         : k->type == GGUF_BOOL   ? (double)gguf_bool(&want, k->name, -1)
                                                  : gguf_real(&want, k->name, -1);
        CHECK_MSG(x == y, "%s: %s is %g, not %g", other, k->name, x, y);
    }
    gguf_close(&have);
    gguf_close(&want);
}

/* F16 files of the other architectures, made as llama.cpp's converter does: the logits are those of transformers, and
 * the model has the same tensors, with all bits, after it was read and written. */
static void test_exported_decoders(void)
{
    static const char *const files[] = { "gguf/decoders/glm",
                                         "gguf/decoders/ministral3",
                                         "gguf/decoders/hunyuan",
                                         "gguf/decoders/ernie",
                                         "gguf/decoders/neox",
                                         "gguf/decoders/gemma4",
                                         "gguf/decoders/gemma4_big",
                                         "decoders/phi3_long",
                                         "decoders/granite",
                                         "decoders/olmo2",
                                         "decoders/glm4",
                                         "decoders/qwen35" };
    enum { FILES = sizeof files / sizeof files[0], EVERY = 8 };
    gckpt_store *logits = gckpt_store_new(NULL);
    CHECK(gckpt_store_load(logits, "tests/golden/gguf/decoders/expected.safetensors", NULL) ==
          GCKPT_OK);
    for (int i = 0; i < FILES; i++) {
        char file_name[96];
        const char *name = strrchr(files[i], '/') + 1;
        model_any m;
        bpe b;
        gckpt_parameter want;
        float have[LOGITS];
        snprintf(file_name, sizeof file_name, "tests/golden/%s.gguf", files[i]);
        gckpt_store *s = tuning_load(&m, file_name, NULL);
        open_tokenizer(&b, 0);
        if (strncmp(files[i], "gguf/", 5) == 0 &&
            CHECK(gckpt_store_get(logits, gckpt_store_find(logits, name), &want) == GCKPT_OK) &&
            CHECK(want.elements == LOGITS / EVERY && tuning_run(&m, s, NULL, name, have)))
            for (int k = 0; k < LOGITS / EVERY; k++)
                CHECK_MSG(apart((double)have[EVERY * k], (double)want.values[k]) <= 1e-4,
                          "%s: logit %d is %g, not %g", name, EVERY * k, (double)have[EVERY * k],
                          (double)want.values[k]);
        gguf_export e = { &m, s, &b, "tests/golden", GGUF_T_F16, m.config.eos };
        if (CHECK_MSG(gguf_export_model(&e, in_folder("exported.gguf")) == 0, "%s", m.error)) {
            same_tensors(path, file_name);
            same_keys(path, file_name);
        }
        if (m.config.llama.shared_from > 0) {
            m.config.llama.shared_from++;
            CHECK_MSG(gguf_export_check(&e) != 0 && strstr(m.error, "a sliding window; save"), "%s",
                      m.error);
        }
        gckpt_store_free(s);
        bpe_free(&b);
        model_close(&m);
    }
    gckpt_store_free(logits);
}

/* Tokenizers of each kind come back with the same model, of any architecture; those whose rules no key expresses are
 * refused. */
static void test_exported_tokenizers(void)
{
    static const struct {
        const char *model, *tokenizer, *kind, *refused;
    } cases[] = {
        { "gpt2/model", "bert", "bert", NULL },
        { "gpt2/model", "cased", NULL, "model of the tokenizer" },
        { "gpt2/model", "xlmr", "t5", NULL },
        { "gpt2/model", "t5", NULL, "rule that splits texts" },
        { "gpt2/model", "spm_unigram", NULL, "rule that splits texts" },
        { "decoders/gemma4_big", "gemma", "gemma4", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char folder[96], tokenizer[96];
        model_any m;
        bpe b, c;
        gguf g;
        snprintf(folder, sizeof folder, "tests/golden/%s", cases[i].model);
        snprintf(tokenizer, sizeof tokenizer, "tests/golden/tokenizer/%s", cases[i].tokenizer);
        gckpt_store *s = tuning_load(&m, folder, NULL);
        CHECK_MSG(bpe_open(&b, tokenizer) == 0, "%s", b.error);
        gguf_export e = { &m, s, &b, folder, GGUF_T_F16, m.config.eos };
        const int failed = gguf_export_model(&e, in_folder("exported.gguf"));
        CHECK_MSG(cases[i].refused == NULL ? failed == 0
                                           : failed && strstr(m.error, cases[i].refused) != NULL,
                  "%s: %s", tokenizer, m.error);
        if (!failed && CHECK_MSG(gguf_open(&g, path) == 0, "%s", g.error)) {
            size_t size;
            CHECK(strcmp(gguf_text(&g, "tokenizer.ggml.model", &size), cases[i].kind) == 0);
            CHECK_MSG(gguf_tokenizer(&g, &c) == 0, "%s", g.error);
            const char *difference = gguf_tokenizer_difference(&b, &c);
            CHECK_MSG(difference == NULL, "%s: %s", tokenizer, difference);
            gguf_close(&g);
            bpe_free(&c);
        }
        gckpt_store_free(s);
        bpe_free(&b);
        model_close(&m);
    }
}

/* A model read from a GGUF file, saved as a folder and loaded again must be the same model. */
static void test_saved_as_folder(void)
{
    model_any a, b;
    char folder[96];
    gckpt_store *s = gckpt_store_new(NULL);
    snprintf(folder, sizeof folder, "%s/whole", tuning_folder);
    CHECK_MSG(model_load(&a, s, "tests/golden/gguf/llama-q8_0.gguf", NULL) == 0 &&
                  model_save(&a, s, folder, GCKPT_STORAGE_F32) == 0,
              "%s", a.error);
    gckpt_store *t = tuning_load(&b, folder, NULL);
    same_config("whole", &b.config, &a.config);
    CHECK(gckpt_store_hash(s) == gckpt_store_hash(t));
    gckpt_store_free(s);
    gckpt_store_free(t);
    model_close(&a);
    model_close(&b);
}

/* ---- adapters -------------------------------------------------------------------------------- */
typedef struct {
    model_any m;
    gckpt_store *s;
    adapters a;
    model_options how;
} tuned;

static void begin(tuned *t, const char *folder)
{
    memset(t, 0, sizeof *t);
    t->s = tuning_load(&t->m, folder, NULL);
    t->how.hooks = &t->a.hooks;
}

static void end(tuned *t)
{
    adapters_end(&t->a);
    gckpt_store_free(t->s);
    model_close(&t->m);
}

/* An adapter in the converter's file must equal the original adapter. The file written here must have the same tensors;
 * keys that do not describe the adapter may be missing. */
static void test_golden_adapter(void)
{
    tuned t, u;
    gckpt_parameter p, q;
    gguf a, b;
    begin(&t, "tests/golden/llama/gqa");
    begin(&u, "tests/golden/llama/gqa");
    CHECK_MSG(adapters_load(&t.a, &t.m, t.s, "tests/golden/llama/lora") == 0, "%s", t.m.error);
    CHECK_MSG(adapters_load(&u.a, &u.m, u.s, "tests/golden/gguf/lora.gguf") == 0, "%s", u.m.error);
    CHECK(gckpt_store_count(t.s) == gckpt_store_count(u.s) &&
          t.a.options.size == u.a.options.size && t.a.options.alpha == u.a.options.alpha);
    for (int i = 0; gckpt_store_get(t.s, i, &p) == GCKPT_OK; i++)
        CHECK_MSG(gckpt_store_get(u.s, gckpt_store_find(u.s, p.name), &q) == GCKPT_OK &&
                      p.frozen == q.frozen && p.elements == q.elements &&
                      memcmp(p.values, q.values, (size_t)p.elements * sizeof *p.values) == 0,
                  "%s is another", p.name);
    CHECK_MSG(gguf_adapter_save(&t.a, in_folder("lora.gguf")) == 0, "%s", t.m.error);
    CHECK(gguf_open(&a, "tests/golden/gguf/lora.gguf") == 0 && gguf_open(&b, path) == 0 &&
          a.tensor_count == b.tensor_count);
    for (size_t i = 0; i < a.tensor_count; i++) {
        unsigned char x[1024], y[1024];
        const gguf_tensor *v = &a.tensors[i], *w = gguf_find_tensor(&b, v->name);
        CHECK_MSG(w != NULL && v->type == w->type && memcmp(v->d, w->d, sizeof v->d) == 0 &&
                      v->bytes <= sizeof x &&
                      gguf_read_bytes(&a, v->offset, x, (size_t)v->bytes) == 0 &&
                      gguf_read_bytes(&b, w->offset, y, (size_t)w->bytes) == 0 &&
                      memcmp(x, y, (size_t)v->bytes) == 0,
                  "%s is another", v->name);
    }
    CHECK(gguf_real(&b, "adapter.lora.alpha", 0) == 8);
    gguf_close(&a);
    gguf_close(&b);
    end(&t);
    end(&u);
}

/* Adapters that are written and read again must compute the same results: ranks and alphas of single modules, rsLoRA, a
 * GPT-2. */
static void test_adapters(void)
{
    static const struct {
        const char *folder;
        adapters_options options;
    } cases[] = {
        { "tests/golden/llama/gqa",
          { .method = ADAPTERS_LORA, .size = 3, .alpha = 5, .targets = "all-linear" } },
        { "tests/golden/llama/smollm3",
          { .method = ADAPTERS_LORA,
            .size = 4,
            .rslora = 1,
            .targets = "q_proj,k_proj,mlp.down_proj" } },
        { "tests/golden/llama/qwen2",
          { .method = ADAPTERS_LORA,
            .targets = "q_proj,v_proj",
            .rank_pattern = "layers.1.self_attn.q_proj=2",
            .alpha_pattern = "v_proj=3" } },
        { "tests/golden/gpt2/model", { .method = ADAPTERS_LORA, .targets = "all-linear" } },
    };
    static float want[LOGITS], have[LOGITS];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tuned t, u;
        gckpt_parameter p;
        double most = 0, plain = 0;
        begin(&t, cases[i].folder);
        CHECK(tuning_run(&t.m, t.s, NULL, "without", have));
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &cases[i].options) == 0, "%s", t.m.error);
        for (int k = 0; gckpt_store_get(t.s, k, &p) == GCKPT_OK; k++)
            for (int64_t n = 0; !p.frozen && n < p.elements; n++)
                p.values[n] = (float)((double)below(2001) / 4000 - 0.25);
        CHECK(tuning_run(&t.m, t.s, &t.how, "lora", want));
        for (int k = 0; k < LOGITS; k++)
            plain = apart((double)have[k], (double)want[k]) > plain
                        ? apart((double)have[k], (double)want[k])
                        : plain;
        CHECK_MSG(gguf_adapter_save(&t.a, in_folder("lora.gguf")) == 0, "%s", t.m.error);
        begin(&u, cases[i].folder);
        if (CHECK_MSG(adapters_load(&u.a, &u.m, u.s, path) == 0, "%s", u.m.error) &&
            CHECK(tuning_run(&u.m, u.s, &u.how, "lora", have)))
            for (int k = 0; k < LOGITS; k++)
                most = apart((double)have[k], (double)want[k]) > most
                           ? apart((double)have[k], (double)want[k])
                           : most;
        CHECK_MSG(most <= 1e-5 && plain > 0.01, "%s: logits are %g apart, %g without it",
                  cases[i].folder, most, plain);
        end(&t);
        end(&u);
    }
}

static void test_other_adapters(void)
{
    static const struct {
        adapters_options options;
        const char *says;
    } cases[] = {
        { { .method = ADAPTERS_LORA, .bias = ADAPTERS_ALL_BIASES },
          "\"h.0.ln_1.bias\" is also trained" },
        { { .method = ADAPTERS_HOULSBY }, "houlsby of a gpt2 cannot be saved as GGUF" },
    };
    static const struct {
        const char *folder, *file, *says;
    } loads[] = {
        { "tests/golden/gpt2/model", "tests/golden/gguf/lora.gguf",
          "key general.architecture is llama; the model is a gpt2" },
        { "tests/golden/llama/gemma", "tests/golden/gguf/lora.gguf", "the model is a gemma" },
        { "tests/golden/llama/mha", "tests/golden/gguf/lora.gguf", "the model needs" },
        { "tests/golden/llama/gqa", "tests/golden/gguf/llama-q8_0.gguf",
          "is a model; an adapter is expected" },
        { "tests/golden/llama/gqa", "tests/golden/gguf/none.gguf", "cannot open it" },
    };
    for (int i = 0; i < 2; i++) {
        tuned t;
        begin(&t, "tests/golden/gpt2/model");
        CHECK(adapters_begin(&t.a, &t.m, t.s, &cases[i].options) == 0);
        CHECK_MSG(gguf_adapter_save(&t.a, in_folder("none.gguf")) != 0 &&
                      strstr(t.m.error, cases[i].says) != NULL && access(path, F_OK) != 0,
                  "%s: %s", cases[i].says, t.m.error);
        end(&t);
    }
    for (size_t i = 0; i < sizeof loads / sizeof loads[0]; i++) {
        tuned t;
        begin(&t, loads[i].folder);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, loads[i].file) != 0 &&
                      strstr(t.m.error, loads[i].says) != NULL,
                  "%s: %s", loads[i].says, t.m.error);
        end(&t);
    }
}

/* ---- files with false claims ------------------------------------------------------------------- */
/* Returns a file with keys of all kinds and two tensors. The last byte of the second tensor is the last byte of the
 * file. */
static file small_file(void)
{
    static const unsigned char zeros[64] = { 0 };
    static const int64_t one[2] = { 8, 2 }, two[1] = { 32 };
    gguf_builder f;
    memset(&f, 0, sizeof f);
    put_key(&f.keys, "", "general.architecture", GGUF_STRING);
    put_text(&f.keys, "llama");
    put_size(&f.keys, "", "general.alignment", 32);
    put_key(&f.keys, "", "a.flag", GGUF_BOOL);
    put(&f.keys, 1, 1);
    put_key(&f.keys, "", "a.list", GGUF_ARRAY);
    put(&f.keys, GGUF_I16, 4);
    put(&f.keys, 2, 8);
    put(&f.keys, 0xfffe0005, 4); /* two 16-bit numbers, 5 and -2 */
    put_key(&f.keys, "", "a.words", GGUF_ARRAY);
    put(&f.keys, GGUF_STRING, 4);
    put(&f.keys, 2, 8);
    put_text(&f.keys, "so");
    put_text(&f.keys, "");
    put_key(&f.keys, "", "a.long", GGUF_I64);
    put(&f.keys, (uint64_t)-3, 8);
    put_key(&f.keys, "", "a.real", GGUF_F64);
    put(&f.keys, 0x3ff8000000000000, 8); /* 1.5 as a double */
    f.key_count = 7;
    add_tensor(&f, "one", GGUF_T_F32, 2, one, zeros, 64);
    add_tensor(&f, "two", GGUF_T_Q4_0, 1, two, zeros, 18);
    file all = join_parts(&f);
    all.size -= 14; /* removes the padding at the end */
    return all;
}

static size_t behind(const file *all, const char *text)
{
    const size_t n = strlen(text);
    for (size_t i = 0; i + n <= all->size; i++)
        if (memcmp(all->bytes + i, text, n) == 0)
            return i + n;
    CHECK_MSG(0, "no %s", text);
    return 0;
}

static void test_keys(void)
{
    gguf g;
    size_t size;
    file all = small_file();
    store_file(in_folder("small.gguf"), all.bytes, all.size);
    CHECK_MSG(gguf_open(&g, path) == 0, "%s", g.error);
    CHECK(g.key_count == 7 && g.tensor_count == 2 && g.alignment == 32);
    CHECK(strcmp(gguf_text(&g, "general.architecture", &size), "llama") == 0 && size == 5);
    CHECK(gguf_text(&g, "none", &size) == NULL && size == 0 && gguf_int(&g, "none", 7) == 7);
    CHECK(gguf_bool(&g, "a.flag", 0) == 1 && gguf_int(&g, "a.long", 0) == -3);
    CHECK(gguf_real(&g, "a.real", 0) == 1.5);
    gguf_items items = gguf_array(&g, "a.list", GGUF_I32);
    CHECK(items.count == 2 && gguf_next(&items) && items.integer == 5 && items.real == 5);
    CHECK(gguf_next(&items) && items.integer == -2 && !gguf_next(&items));
    items = gguf_array(&g, "a.words", GGUF_STRING);
    CHECK(gguf_next(&items) && items.size == 2 && memcmp(items.text, "so", 2) == 0);
    CHECK(gguf_next(&items) && items.size == 0 && !gguf_next(&items));
    CHECK(g.error[0] == 0 && gguf_array(&g, "none", GGUF_STRING).count == 0 && g.error[0] == 0);
    CHECK(gguf_int(&g, "a.words", 4) == 4 &&
          strstr(g.error, "key a.words: a whole number expected, found array of string") != NULL);
    CHECK(gguf_array(&g, "a.flag", GGUF_I32).count ==
          0); /* a later call must fail and keep the first error */
    CHECK(strstr(g.error, "a.words") != NULL);
    gguf_close(&g);
    free(all.bytes);
}

static void test_refused(void)
{
    static const struct {
        const char *
            behind; /* text just before the bytes to change; if NULL, they are at the start of the file */
        int skip, bytes;
        uint64_t value;
        const char *says;
    } lies[] = {
        { NULL, 0, 4, 0x46554746, "is no GGUF file" },
        { NULL, 4, 4, 1, "version 1; 2 and 3 are supported" },
        { NULL, 4, 4, 4, "version 4; 2 and 3 are supported" },
        { NULL, 4, 4, 0x03000000, "is big-endian" },
        { NULL, 8, 8, (uint64_t)1 << 40, "1099511627776 tensors" },
        { NULL, 16, 8, UINT64_MAX, "18446744073709551615 keys" },
        { NULL, 24, 8, (uint64_t)1 << 62, "says that 4611686018427387904 bytes follow" },
        { NULL, 24, 8, 0, "the name of key 0 has 0 bytes" },
        { "general.", 0, 1, 7, "control characters" },
        { "general.architecture", 0, 4, 13, "type 13 of a value is unknown" },
        { "general.architecture", 4, 8, UINT64_MAX, "bytes follow" },
        { "a.flag", 4, 1, 2, "key a.flag: a bool is 0 or 1, not 2" },
        { "a.list", 4, 4, 77, "key a.list: type 77 of a value" },
        { "a.list", 4, 4, GGUF_ARRAY, "arrays of arrays are not supported" },
        { "a.list", 8, 8, (uint64_t)1 << 62, "4611686018427387904 items of 2 bytes" },
        { "a.words", 8, 8, (uint64_t)1 << 61, "2305843009213693952 items of 8 bytes" },
        { "a.words", 16, 8, (uint64_t)1 << 50, "bytes follow" },
        { "general.alignment", 4, 4, 0, "general.alignment is 0: a power of 2" },
        { "general.alignment", 4, 4, 48, "general.alignment is 48: a power of 2" },
        { "general.alignment", 4, 4, 64, "tensor one: 64 bytes at 0 after the header of 384" },
        { "general.alignment", 4, 4, 0x80000000, "cut off or damaged" },
        { "general.alignment", 0, 4, GGUF_F32, "general.alignment: a whole number expected" },
        { "a.flag", -1, 1, 'x', NULL }, /* another name of a key is allowed */
        { "a.rea", 0, 1, 'x', NULL },
        { "one", 0, 4, 5, "tensor one: 5 axes; 4 at most" },
        { "one", 4, 8, 0, NULL }, /* a tensor without elements is allowed */
        { "one", 4, 8, (uint64_t)1 << 63, "more than 2^63 elements" },
        { "one", 4, 8, (uint64_t)1 << 61, "more than the file's" },
        { "one", 4, 8, (uint64_t)1 << 62, "more than 2^63 elements" },
        { "one", 20, 4, 43, "type 43 of a tensor is unknown" },
        { "one", 20, 4, 4, "type 4 of a tensor is unknown" },
        { "one", 24, 8, 8, "begins at byte 8, which is not a multiple of the alignment 32" },
        { "one", 24, 8, 96, "64 bytes at 96 after" },
        { "one", 24, 8, (uint64_t)1 << 63, "cut off or damaged" },
        { "one", 24, 8, UINT64_MAX - 31, "cut off or damaged" },
        { "one", 24, 8, 32, "cut off or damaged" },
        { "two", 4, 8, 33, "rows have 33 values, which is not a multiple of 32" },
        { "two", 16, 8, 32, "overlap" },
        { "two", 16, 8, 0, "overlap" },
        { "two", -3, 3, 0x656e6f, "tensor one comes twice" },
        { "a.flag", -4, 4, 0x7473696c, "key a.list comes twice" },
    };
    gguf g;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        file all = small_file();
        size_t at = lies[i].behind != NULL ? behind(&all, lies[i].behind) : 0;
        at = (size_t)((long)at + lies[i].skip);
        for (int k = 0; k < lies[i].bytes; k++)
            all.bytes[at + (size_t)k] = (unsigned char)(lies[i].value >> 8 * k);
        store_file(in_folder("lie.gguf"), all.bytes, all.size);
        const int opened = gguf_open(&g, path);
        CHECK_MSG(lies[i].says == NULL ? opened == 0
                                       : opened != 0 && strstr(g.error, lies[i].says) != NULL,
                  "lie %d, %s: %s", (int)i, lies[i].says ? lies[i].says : "none", g.error);
        gguf_close(&g);
        free(all.bytes);
    }
    CHECK(gguf_open(&g, tuning_folder) != 0 && strstr(g.error, tuning_folder) != NULL);
    gguf_close(&g);
}

/* Reads the golden file of an encoder or, if `encoder` is NULL, of a Llama. */
static file open_golden(const char *encoder)
{
    char name[96];
    snprintf(name, sizeof name, "tests/golden/gguf/encoders/%s.gguf", encoder);
    return tuning_read(encoder != NULL ? name : "tests/golden/gguf/llama-q8_0.gguf");
}

/* Loads the file `path`, an encoder's with its classifier. */
static int load_golden(model_any *m, gckpt_store *s, const char *encoder,
                       const model_source *source)
{
    const model_head head = { MODEL_CLASSIFY, 0, NULL, 0, 0 };
    return encoder != NULL ? model_load_head(m, s, path, source, NULL, &head)
                           : model_load(m, s, path, source);
}

/* A decoder's file gives the hidden states of a new classifier, without its LM head. */
static void test_new_head(void)
{
    static const char *const classes[] = { "no", "yes" };
    const model_head head = { MODEL_CLASSIFY, 2, classes, 1, 0 };
    model_any m;
    gckpt_parameter p;
    gckpt_store *s = gckpt_store_new(NULL);
    CHECK_MSG(model_load_head(&m, s, "tests/golden/gguf/llama-q8_0.gguf", NULL, NULL, &head) == 0,
              "%s", m.error);
    CHECK(gckpt_store_get(s, gckpt_store_find(s, "score.weight"), &p) == GCKPT_OK);
    CHECK(p.shape.n == 2 && p.shape.d[0] == 2 && p.shape.d[1] == m.config.width);
    CHECK(gckpt_store_find(s, "lm_head.weight") < 0 &&
          strstr(m.note, "score.weight is new") != NULL);
    gckpt_store_free(s);
    model_close(&m);
}

/* Tests files of unsupported models, and files whose tensors contradict their keys. */
static void test_other_models(void)
{
    static const struct {
        const char *behind;
        int skip, bytes;
        uint64_t value;
        const char *says,
            *encoder; /* encoder: name of the file in gguf/encoders, or NULL for llama */
    } lies[] = {
        { "general.architecture", 12, 5, 0x6f616d616c, "is lamao: one of llama, qwen2, qwen3",
          NULL },
        { "llama.vocab_size", -4, 1, 'x', "key llama.vocab_xize is unknown", NULL },
        { "llama.block_count", 4, 4, 0, "key llama.block_count is 0: a number from 1", NULL },
        { "llama.block_count", 4, 4, 1, "tensor blk.1", NULL },
        { "llama.block_count", 4, 4, 3, "no file has tensor \"layers.2.", NULL },
        { "llama.block_count", 4, 4, 9999, "its keys name 9999 layers, but it has only 21 tensors",
          NULL },
        { "llama.block_count", 4, 4, 20000, "20000 layers: 10000 at most", NULL },
        { "llama.embedding_length", 4, 4, 64, "but the keys of the file require (", NULL },
        { "llama.attention.head_count", 4, 4, 3, "num_attention_heads 3", NULL },
        { "llama.attention.head_count_kv", 4, 4, 1, "but the keys of the file require (32,8)",
          NULL },
        { "llama.rope.dimension_count", 4, 4, 4, "the 8 columns of a head's keys are expected",
          NULL },
        { "llama.attention.layer_norm_rms_epsilo", 0, 1, 'x', "is unknown", NULL },
        { "blk.0.attn_q.weigh", 0, 1, 'x', "tensor blk.0.attn_q.weighx does not belong to a llama",
          NULL },
        { "blk.0.attn_", 0, 1, 'x', "does not belong to a llama of 2 layers", NULL },
        { "blk.0.attn_norm.weight", 12, 4, GGUF_T_F16, NULL, NULL },
        { "blk.0.attn_q.weight", 20, 4, 11, "not a multiple of 256, the block size of Q3_K", NULL },
        { "general.architecture", 12, 1, 'n', "nodern-bert: one of llama", "modernbert" },
        { "general.architecture", 12, 1, 'n', "this encoder is not built here", "modernbert" },
        { "bert.attention.causal", 4, 1, 1, "false is expected for bert", "bert" },
        { "bert.attention.layer_norm_epsilo", 0, 1, 'x', "is unknown", "bert" },
        { "bert.attention.layer_norm_epsilon", 4, 4, 0x3a83126f, "1e-12 is expected",
          "distilbert" },
        { "bert.context_length", 4, 4, 25, "but the keys of the file require (16,25)", "roberta" },
        { "cls.outpu", 0, 1, 'x', "tensor cls.outpux", "roberta" },
        { "blk.0.ffn_", 0, 1, 'x', "does not belong to a modern-bert of 4 layers", "modernbert" },
        { "modern-bert.rope.freq_bas", 0, 1, 'x', "freq_basx is unknown", "modernbert" },
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        model_any m;
        file all = open_golden(lies[i].encoder);
        const size_t at = (size_t)((long)behind(&all, lies[i].behind) + lies[i].skip);
        for (int k = 0; k < lies[i].bytes; k++)
            all.bytes[at + (size_t)k] = (unsigned char)(lies[i].value >> 8 * k);
        store_file(in_folder("lie.gguf"), all.bytes, all.size);
        gckpt_store *s = gckpt_store_new(NULL);
        const int loaded = load_golden(&m, s, lies[i].encoder, NULL);
        CHECK_MSG(lies[i].says == NULL ? loaded == 0
                                       : loaded != 0 && strstr(m.error, lies[i].says) != NULL,
                  "lie %d, %s: %s", (int)i, lies[i].says ? lies[i].says : "none", m.error);
        gckpt_store_free(s);
        model_close(&m);
        free(all.bytes);
    }
}

/* A file that is cut off must be refused. A file with a flipped bit must either open or be refused. */
static void test_damaged(void)
{
    file all = small_file();
    gguf g;
    long opened = 0;
    in_folder("damaged.gguf");
    for (size_t n = 0; n < all.size; n++) {
        store_file(path, all.bytes, n);
        CHECK_MSG(gguf_open(&g, path) != 0 && g.error[0] != 0, "opened with %d bytes of %d", (int)n,
                  (int)all.size);
        gguf_close(&g);
    }
    for (size_t n = 0; n < 8 * all.size; n++) {
        all.bytes[n / 8] ^= (unsigned char)(1 << n % 8);
        store_file(path, all.bytes, all.size);
        opened += gguf_open(&g, path) == 0;
        gguf_close(&g);
        all.bytes[n / 8] ^= (unsigned char)(1 << n % 8);
    }
    CHECK_MSG(opened > 8 * 82 && opened < (long)(8 * all.size), "%ld opened", opened);
    free(all.bytes);
    static const char *const encoders[] = { NULL, "roberta", "modernbert" };
    file files[3];
    for (int i = 0; i < 3; i++)
        files[i] = open_golden(encoders[i]);
    for (int i = 0; i < check_iterations(600); i++) {
        model_any m;
        gckpt_store *s = gckpt_store_new(NULL);
        const model_source source = { GCKPT_STORAGE_F32, 0, NULL, i % 2 };
        const file *f = &files[i % 3];
        const size_t n = below(8 * 5600); /* a bit among the keys or the descriptions of tensors */
        f->bytes[n / 8] ^= (unsigned char)(1 << n % 8);
        store_file(path, f->bytes, f->size);
        if (load_golden(&m, s, encoders[i % 3], &source) != 0)
            CHECK(m.error[0] != 0);
        gckpt_store_free(s);
        model_close(&m);
        f->bytes[n / 8] ^= (unsigned char)(1 << n % 8);
    }
    for (int i = 0; i < 3; i++)
        free(files[i].bytes);
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    test_blocks();
    test_keys();
    test_refused();
    test_models();
    test_converted();
    test_quantised();
    test_exported();
    test_exported_q8_0();
    test_exported_decoders();
    test_exported_tokenizers();
    test_saved_as_folder();
    test_golden_adapter();
    test_adapters();
    test_other_adapters();
    test_new_head();
    test_other_models();
    test_damaged();
    tuning_close(argc);
    return check_report("gguf");
}
