/* gguf_export.h - writes a whole model with its tokenizer as a GGUF file, which llama.cpp and Ollama
 * load. To copy, with gguf_write.h, gguf_tokenizer.h, model.h and tokenizer.h.
 *
 *     gguf_export e = { &m, store, &tokenizer, "smol", GGUF_T_F16, stops };
 *     if (gguf_export_model(&e, "smol.gguf") != 0)
 *         fprintf(stderr, "%s\n", m.error);
 *
 * This is the inverse of gguf_model.h and gguf_tokenizer.h: keys from the model's config, tensors in
 * GGUF's order of rows, and a tokenizer whose rule for splitting texts is found by comparison with
 * those in gguf_tokenizer.h. Matrices get the type of gguf_export.type; vectors and tables of
 * positions are F32. With Q4_0, embeddings and head are Q8_0. A matrix whose rows are not whole
 * blocks is F16. The file is written under another name, read again, and renamed only if its keys
 * and its tokenizer describe the same model. C99 or C++11. */
#ifndef GGUF_EXPORT_H
#define GGUF_EXPORT_H
#include "gguf_tokenizer.h"
#include "gguf_write.h"
#include "model.h"

#define GGUF_KEY(name) "tokenizer.ggml." name
typedef struct {
    model_any *model;
    gckpt_store *store;
    bpe *tokenizer;
    const char *source; /* the model's folder or GGUF file, from which the chat template comes */
    int type;           /* of matrices: GGUF_T_F32, F16, BF16, Q8_0 or Q4_0 */
    /* tokens that end a text or an answer; -1 ends the list */
    const int32_t *stops;
} gguf_export;

/* ---- keys of the model ----------------------------------------------------------------------- */
typedef struct {
    gguf_export *e;
    gguf_writer w;
    const gguf_architecture *a;
    uint64_t keys;
    char name[96]; /* memory for the result of gguf_export_key */
} gguf_exporter;

/* Counts a key and returns its name, which has the architecture before it if `in_architecture` is
 * nonzero. It is valid until the next call. */
static inline const char *gguf_export_key(gguf_exporter *x, const char *key, int in_architecture)
{
    x->keys++;
    snprintf(x->name, sizeof x->name, "%s%s%s", in_architecture ? x->a->name : "",
             in_architecture ? "." : "", key);
    return x->name;
}

static inline void gguf_export_size(gguf_exporter *x, const char *key, int64_t value)
{
    gguf_put_int(&x->w, gguf_export_key(x, key, 1), value);
}

static inline void gguf_export_real(gguf_exporter *x, const char *key, double value)
{
    gguf_put_real(&x->w, gguf_export_key(x, key, 1), value);
}

/* Returns the last part of the model's path, without ".gguf". */
static inline void gguf_export_name(const char *path, char *name, size_t size)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    end -= end - begin > 5 && strncmp(path + end - 5, ".gguf", 5) == 0 ? 5 : 0;
    snprintf(name, size, "%.*s", (int)(end - begin), path + begin);
}

static inline void gguf_export_general(gguf_exporter *x)
{
    static const struct {
        int type, file_type; /* file_type: llama.cpp's number of a file of mostly this type */
    } types[] = { { GGUF_T_F32, 0 },
                  { GGUF_T_F16, 1 },
                  { GGUF_T_Q4_0, 2 },
                  { GGUF_T_Q8_0, 7 },
                  { GGUF_T_BF16, 32 } };
    char name[128];
    size_t i = 0;
    while (i + 1 < sizeof types / sizeof types[0] && types[i].type != x->e->type)
        i++;
    gguf_export_name(x->e->source, name, sizeof name);
    gguf_put_key(&x->w, gguf_export_key(x, "general.architecture", 0), x->a->name);
    gguf_put_key(&x->w, gguf_export_key(x, "general.type", 0), "model");
    gguf_put_key(&x->w, gguf_export_key(x, "general.name", 0), name);
    gguf_put_int(&x->w, gguf_export_key(x, "general.file_type", 0), types[i].file_type);
    gguf_put_int(&x->w, gguf_export_key(x, "general.quantization_version", 0), 2);
}

/* Writes the keys of scaled rotary positions. llama3's scaling is a tensor instead. */
static inline void gguf_export_positions(gguf_exporter *x)
{
    const llama_config *l = &x->e->model->config.llama;
    const llama_positions *at = &l->positions[0];
    gguf_export_real(x, "rope.freq_base", at->base);
    if (l->query_beta > 0)
        gguf_export_real(x, "attention.temperature_scale", l->query_beta);
    if (l->query_beta > 0 && at->scaling != LLAMA_YARN)
        gguf_export_size(x, "rope.scaling.original_context_length", (int64_t)l->query_original);
    if (at->scaling == LLAMA_LLAMA3)
        gguf_export_size(x, "rope.scaling.original_context_length", (int64_t)at->original);
    if (at->scaling == LLAMA_LONGROPE) {
        gguf_export_size(x, "rope.scaling.original_context_length", (int64_t)at->original);
        gguf_export_real(x, "rope.scaling.attn_factor", at->scale);
    }
    if (at->scaling != LLAMA_YARN && (at->scaling != LLAMA_LINEAR || at->factor == 1))
        return;
    gguf_put_key(&x->w, gguf_export_key(x, "rope.scaling.type", 1),
                 at->scaling == LLAMA_YARN ? "yarn" : "linear");
    gguf_export_real(x, "rope.scaling.factor", at->factor);
    if (at->scaling == LLAMA_LINEAR)
        return;
    gguf_export_size(x, "rope.scaling.original_context_length", (int64_t)at->original);
    gguf_export_real(x, "rope.scaling.yarn_beta_fast", at->fast);
    gguf_export_real(x, "rope.scaling.yarn_beta_slow", at->slow);
    const double usual = llama_yarn_scale(at->factor, 1);
    if (strstr(x->a->keys, " rope.scaling.yarn_log_multiplier ") != NULL && usual > 1 &&
        at->scale < usual) /* llama.cpp computes usual / llama_yarn_scale(factor, multiplier) */
        gguf_export_real(x, "rope.scaling.yarn_log_multiplier",
                         (usual / at->scale - 1) / (usual - 1));
}

/* Writes a key that has an array with a number for each layer. */
static inline void gguf_export_layers(gguf_exporter *x, const char *key,
                                      int64_t (*number)(const model_config *, int64_t))
{
    const model_config *c = &x->e->model->config;
    gguf_put_array(&x->w, gguf_export_key(x, key, 1), GGUF_I32, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put(&x->w, (uint64_t)number(c, i), 4);
}

static inline int64_t gguf_inner_of(const model_config *c, int64_t layer)
{
    return llama_dim(c, layer, 'I');
}

/* Writes the keys of Gemma 4 for sizes that differ by layer. */
static inline void gguf_export_gemma4(gguf_exporter *x)
{
    const model_config *c = &x->e->model->config;
    const llama_config *l = &c->llama;
    gguf_export_layers(x, "feed_forward_length", gguf_inner_of);
    gguf_export_layers(x, "attention.head_count_kv", llama_key_heads);
    gguf_export_size(x, "attention.key_length_swa", c->head_dim);
    gguf_export_size(x, "attention.value_length_swa", c->head_dim);
    gguf_export_size(x, "rope.dimension_count_swa", c->head_dim);
    gguf_export_size(x, "attention.shared_kv_layers",
                     l->shared_from > 0 ? c->layers - l->shared_from : 0);
    gguf_export_size(x, "embedding_length_per_layer_input", l->layer_inputs);
}

/* Writes the keys of gated delta nets. GGUF has them in all layers but every n-th. */
static inline void gguf_export_nets(gguf_exporter *x)
{
    const model_config *c = &x->e->model->config;
    const llama_config *l = &c->llama;
    const int64_t pairs = (l->positions[0].columns > 0 ? l->positions[0].columns : c->head_dim) / 2;
    int64_t every = 1;
    while (every <= c->layers && llama_bit(l->nets, every - 1))
        every++;
    gguf_export_size(x, "ssm.conv_kernel", l->net_taps);
    gguf_export_size(x, "ssm.state_size", l->net_key_dim);
    gguf_export_size(x, "ssm.group_count", l->net_keys);
    gguf_export_size(x, "ssm.time_step_rank", l->net_values);
    gguf_export_size(x, "ssm.inner_size", l->net_values * l->net_value_dim);
    gguf_export_size(x, "full_attention_interval", every);
    /* pairs of columns that rotate by a place in time, in height and in width, which text has equal */
    gguf_put_array(&x->w, gguf_export_key(x, "rope.dimension_sections", 1), GGUF_I32, 4);
    for (int i = 0; i < 4; i++)
        gguf_put(&x->w, (uint64_t)(i < 3 ? (pairs + 2 - i) / 3 : 0), 4);
}

/* Writes the sliding window, and the layers that have it if they are not those that readers
 * assume. */
static inline void gguf_export_windows(gguf_exporter *x)
{
    const model_config *c = &x->e->model->config;
    const int every = strcmp(x->a->name, "gemma2") == 0 ? 2 : 6;
    int sliding = 0, usual = 1;
    for (int64_t i = 0; i < c->layers; i++) {
        const int slides = llama_bit(c->llama.sliding, i);
        sliding |= slides;
        usual &= slides == ((i + 1) % every != 0);
    }
    const int gemma4 = strcmp(x->a->name, "gemma4") == 0; /* llama.cpp requires its keys */
    if (!sliding && !gemma4)
        return;
    gguf_export_size(x, "attention.sliding_window", c->llama.window);
    if (!x->a->sandwich || (usual && !gemma4))
        return;
    gguf_put_array(&x->w, gguf_export_key(x, "attention.sliding_window_pattern", 1), GGUF_BOOL,
                   (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put(&x->w, (uint64_t)llama_bit(c->llama.sliding, i), 1);
}

/* Returns a factor of the config, where 0 stands for 1. */
static inline double gguf_factor(double factor) { return factor != 0 ? factor : 1; }

static inline void gguf_export_sizes(gguf_exporter *x)
{
    const model_config *c = &x->e->model->config;
    const int gpt2 = strcmp(x->a->name, "gpt2") == 0, gemma4 = strcmp(x->a->name, "gemma4") == 0;
    const int neox = strcmp(x->a->name, "gptneox") == 0;
    gguf_export_size(x, "block_count", c->layers);
    gguf_export_size(x, "context_length", c->context);
    gguf_export_size(x, "embedding_length", c->width);
    gguf_export_size(x, "attention.head_count", c->heads);
    if (gemma4)
        gguf_export_gemma4(x);
    else
        gguf_export_size(x, "feed_forward_length", c->inner);
    if (gpt2) {
        gguf_export_real(x, "attention.layer_norm_epsilon", 1e-5);
        return;
    }
    /* of layers with full attention, if some differ: the last one has it */
    const int64_t columns = llama_head_dim(c, c->layers - 1);
    gguf_export_size(x, "vocab_size", c->vocabulary);
    if (!gemma4)
        gguf_export_size(x, "attention.head_count_kv", c->key_heads);
    gguf_export_real(x, neox ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                     c->llama.epsilon);
    gguf_export_size(x, "attention.key_length", columns);
    gguf_export_size(x, "attention.value_length", columns);
    gguf_export_size(x, "rope.dimension_count",
                     c->llama.positions[0].columns > 0 ? c->llama.positions[0].columns : columns);
    if (neox)
        gguf_put_bool(&x->w, gguf_export_key(x, "use_parallel_residual", 1), c->llama.parallel);
    if (strstr(x->a->keys, " embedding_scale ") != NULL) {
        gguf_export_real(x, "embedding_scale", gguf_factor(c->llama.embedding_scale));
        gguf_export_real(x, "residual_scale", gguf_factor(c->llama.branch_scale));
        gguf_export_real(x, "attention.scale", c->llama.score_scale);
        gguf_export_real(x, "logit_scale", 1 / gguf_factor(c->logit_scale));
    }
    if (c->llama.row->traits & LLAMA_NETS)
        gguf_export_nets(x);
    gguf_export_positions(x);
    gguf_export_windows(x);
    if (c->llama.score_cap > 0)
        gguf_export_real(x, "attn_logit_softcapping", c->llama.score_cap);
    if (c->logit_cap > 0 || gemma4) /* without the key, llama.cpp caps Gemma 4's logits at 30 */
        gguf_export_real(x, "final_logit_softcapping", c->logit_cap);
    if (gemma4 || strcmp(x->a->name, "gemma3") == 0)
        gguf_export_real(x, "rope.freq_base_swa", c->llama.positions[1].base);
}

/* ---- tokenizer ------------------------------------------------------------------------------- */
/* Returns the added token with this id, or NULL. */
static inline const bpe_added *gguf_added_of(const bpe *b, int32_t id)
{
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < b->added_count[list]; i++)
            if (b->added[list][i].id == id)
                return &b->added[list][i];
    return NULL;
}

/* Returns whether two steps search for the same regular expression, or for none. */
static inline int gguf_has_same_regex(const bpe_regex *a, const bpe_regex *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    return a->op_count == b->op_count && a->set_count == b->set_count &&
           a->range_count == b->range_count && a->anchored == b->anchored &&
           memcmp(a->ops, b->ops, (size_t)a->op_count * sizeof *a->ops) == 0 &&
           memcmp(a->sets, b->sets, (size_t)a->set_count * sizeof *a->sets) == 0 &&
           memcmp(a->ranges, b->ranges, (size_t)a->range_count * sizeof *a->ranges) == 0;
}

/* Returns the first step from number i on that can change or split a text. Gemma's tokenizers split
 * after spaces, of which the last normalizer has left none. */
static inline int gguf_next_step(const bpe *b, int i)
{
    const bpe_step *last = b->normalizers > 0 ? &b->steps[b->normalizers - 1] : NULL;
    const int replaces = last != NULL && last->kind == BPE_REPLACE && last->regex == NULL &&
                         memchr(last->to, last->from[0], last->to_size) == NULL;
    while (replaces && i >= b->normalizers && i < b->step_count &&
           b->steps[i].kind == BPE_SPLIT_AFTER && b->steps[i].from_size == last->from_size &&
           memcmp(b->steps[i].from, last->from, last->from_size) == 0)
        i++;
    return i;
}

/* Returns whether two tokenizers change and split texts in the same way. */
static inline int gguf_has_same_steps(const bpe *a, const bpe *b)
{
    int same = a->normalizers == b->normalizers, i = 0, k = 0;
    while (same && i < a->step_count && k < b->step_count) {
        const bpe_step *p = &a->steps[i], *q = &b->steps[k];
        same = p->kind == q->kind && p->when == q->when && p->from_size == q->from_size &&
               p->to_size == q->to_size && memcmp(p->from, q->from, p->from_size) == 0 &&
               memcmp(p->to, q->to, p->to_size) == 0 && gguf_has_same_regex(p->regex, q->regex);
        i = gguf_next_step(a, i + 1);
        k = gguf_next_step(b, k + 1);
    }
    return same && i == a->step_count && k == b->step_count;
}

/* Returns the rule with which tokenizer.ggml.pre describes how b splits texts, or NULL if none
 * does. */
static inline const gguf_pre *gguf_pre_of(const bpe *b)
{
    for (int i = 0; i < GGUF_PRES; i++) {
        const gguf_pre *p = &gguf_pres[i];
        static const char format[] =
            "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":%s,"
            "\"pre_tokenizer\":%s,\"decoder\":{\"type\":\"ByteLevel\"}}";
        const size_t size = sizeof format + strlen(p->normalizer) + strlen(p->pre_tokenizer);
        char *text = (char *)malloc(size);
        bpe other;
        if (text == NULL)
            return NULL;
        const int n = snprintf(text, size, format, p->normalizer, p->pre_tokenizer);
        const int same = bpe_read_text(&other, p->name, text, (size_t)n) == 0 &&
                         gguf_has_same_steps(&other, b) && p->ignore_merges == b->ignore_merges;
        if (other.error[0] == 0)
            bpe_free(&other);
        if (same)
            return p;
    }
    return NULL;
}

/* Returns the type of a token for tokenizer.ggml.token_type. */
static inline int gguf_token_type(const bpe *b, int32_t id)
{
    const bpe_added *a = gguf_added_of(b, id);
    const char *name = id < b->count ? b->names + b->name_start[id] : "";
    return id >= b->count                                                    ? BPE_TOKEN_UNUSED
           : !b->byte_level && b->model != BPE_WORDPIECE && id == b->unknown ? BPE_TOKEN_UNKNOWN
           : a != NULL ? (a->special ? BPE_TOKEN_CONTROL : BPE_TOKEN_USER)
           : !b->byte_level && bpe_fallback_of(name, b->name_start[id + 1] - b->name_start[id]) >= 0
               ? BPE_TOKEN_BYTE
               : BPE_TOKEN_NORMAL;
}

/* Returns the kind of a tokenizer, for tokenizer.ggml.model. */
static inline gguf_kind gguf_kind_of(const gguf_architecture *a, const bpe *b)
{
    return b->model == BPE_WORDPIECE                 ? GGUF_BERT
           : b->model == BPE_UNIGRAM                 ? GGUF_T5
           : b->byte_level                           ? GGUF_GPT2
           : a != NULL && !strcmp(a->name, "gemma4") ? GGUF_GEMMA4
                                                     : GGUF_LLAMA;
}

/* Writes the text of a token to `to`, which has space for `size` bytes, as GGUF has it: in a
 * byte-level vocabulary, characters stand for bytes; in WordPiece, U+2581 is before a token that
 * begins a word, and others have no ##; in that of the kind llama, added tokens have spaces.
 * Returns its size in bytes. */
static inline size_t gguf_token_name(const bpe *b, gguf_kind kind, int32_t id, char *to,
                                     size_t size)
{
    const bpe_added *a = gguf_added_of(b, id);
    if (id >= b->count)
        return (size_t)snprintf(to, size, "[PAD%ld]", (long)id);
    const char *name = a != NULL ? a->name : b->names + b->name_start[id];
    const size_t n = a != NULL ? a->name_size : b->name_start[id + 1] - b->name_start[id];
    size_t at = 0;
    if (a == NULL && b->byte_level && *bpe_id_slot(b, name, n) == id) {
        for (size_t i = 0; i < n; i++)
            at += (size_t)json_put_utf8(to + at, bpe_character_of((unsigned char)name[i]));
        return at;
    }
    if (kind == GGUF_BERT && (a == NULL || !a->special)) {
        const int continues = n >= 2 && memcmp(name, "##", 2) == 0;
        memcpy(to, BPE_SPACE, 3);
        memcpy(to + (continues ? 0 : 3), name + 2 * continues, n - 2 * (size_t)continues);
        return continues ? n - 2 : n + 3;
    }
    if (a != NULL && !a->special && kind == GGUF_LLAMA) {
        bpe_step spaces = { BPE_REPLACE, BPE_SPACE, " ", 3, 1, BPE_NEVER, NULL };
        return bpe_put_replaced(&spaces, name, n, to);
    }
    memcpy(to, name, n);
    return n;
}

/* Returns whether a token is in the vocabulary of the model, and not only an added token. */
static inline int gguf_in_vocabulary(const bpe *b, int32_t id)
{
    return id < b->count && *bpe_id_slot(b, b->names + b->name_start[id],
                                         b->name_start[id + 1] - b->name_start[id]) == id;
}

static inline int gguf_rank_order(const void *a, const void *b)
{
    const bpe_merge *p = *(const bpe_merge *const *)a, *q = *(const bpe_merge *const *)b;
    return (p->rank > q->rank) - (p->rank < q->rank);
}

/* Returns the merges in the order of their ranks, and sets *count; the caller frees the array. NULL
 * if out of memory. */
static inline const bpe_merge **gguf_sort_merges(const bpe *b, size_t *count)
{
    const bpe_merge **all = (const bpe_merge **)malloc(((size_t)b->merge_mask + 2) * sizeof *all);
    *count = 0;
    for (uint32_t i = 0; all != NULL && b->merges != NULL && i <= b->merge_mask; i++)
        if (b->merges[i].pair != BPE_NO_PAIR)
            all[(*count)++] = &b->merges[i];
    if (*count > 0)
        qsort(all, *count, sizeof *all, gguf_rank_order);
    return all;
}

/* Writes the scores of SentencePiece: 0 for the token that is merged first, then -1, -2, ..; other
 * tokens come after these. Tokens whose merges are mixed with each other had equal scores, and get
 * equal scores again. */
static inline int gguf_export_scores(gguf_exporter *x, int32_t tokens)
{
    const bpe *b = x->e->tokenizer;
    size_t count = 0, end = 0;
    const bpe_merge **all = gguf_sort_merges(b, &count);
    float *scores = (float *)calloc((size_t)tokens, sizeof *scores);
    size_t *last = (size_t *)calloc((size_t)tokens, sizeof *last); /* last merge into each token */
    const int failed = all == NULL || scores == NULL || last == NULL;
    float next = 0;
    for (size_t i = 0; i < count && !failed; i++)
        last[all[i]->id] = i;
    /* readers give user-defined tokens the score 0 */
    for (uint32_t k = 0; k < b->added_count[0] + b->added_count[1] && !failed; k++) {
        const bpe_added *a =
            k < b->added_count[0] ? &b->added[0][k] : &b->added[1][k - b->added_count[0]];
        end = !a->special && last[a->id] > end ? last[a->id] : end;
    }
    for (size_t i = 0; i < count && !failed; i++) {
        next += i == 0 || i > end ? 1 : 0;
        end = last[all[i]->id] > end ? last[all[i]->id] : end;
        scores[all[i]->id] = next;
    }
    gguf_put_array(&x->w, gguf_export_key(x, GGUF_KEY("scores"), 0), GGUF_F32, (uint64_t)tokens);
    for (int32_t i = 0; i < tokens && !failed; i++) {
        if (scores[i] == 0 && gguf_token_type(b, i) == BPE_TOKEN_NORMAL)
            scores[i] = ++next;
        gguf_put_float(&x->w, scores[i] > 0 ? 1 - scores[i] : 0);
    }
    free(all);
    free(scores);
    free(last);
    return failed ? model_fail(x->e->model, "out of memory for scores of tokens") : 0;
}

/* Writes the scores of a Unigram model, and the map of its normalizer. */
static inline void gguf_export_unigram(gguf_exporter *x, int32_t tokens)
{
    const bpe *b = x->e->tokenizer;
    const bpe_charsmap *m = &b->map;
    gguf_put_array(&x->w, gguf_export_key(x, GGUF_KEY("scores"), 0), GGUF_F32, (uint64_t)tokens);
    for (int32_t i = 0; i < tokens; i++)
        gguf_put_float(&x->w, gguf_in_vocabulary(b, i) ? (float)b->scores[i] : 0);
    if (m->units == NULL)
        return;
    gguf_put_array(&x->w, gguf_export_key(x, GGUF_KEY("precompiled_charsmap"), 0), GGUF_U8,
                   4 + 4 * m->count + m->size);
    gguf_put(&x->w, 4 * m->count, 4);
    for (size_t i = 0; i < m->count; i++)
        gguf_put(&x->w, m->units[i], 4);
    gguf_put_bytes(&x->w, m->texts, m->size);
}

/* Writes merges, "first second". */
static inline int gguf_export_merges(gguf_exporter *x, char *name, size_t size)
{
    const bpe *b = x->e->tokenizer;
    const gguf_kind kind = gguf_kind_of(x->a, b);
    size_t count = 0;
    const bpe_merge **all = gguf_sort_merges(b, &count);
    gguf_put_array(&x->w, gguf_export_key(x, GGUF_KEY("merges"), 0), GGUF_STRING, count);
    for (size_t i = 0; i < count; i++) {
        size_t n = gguf_token_name(b, kind, (int32_t)(all[i]->pair >> 32), name, size);
        name[n++] = ' ';
        n += gguf_token_name(b, kind, (int32_t)(uint32_t)all[i]->pair, name + n, size - n);
        gguf_put_string(&x->w, name, n);
    }
    free(all);
    return all != NULL ? 0 : model_fail(x->e->model, "out of memory for merges");
}

/* Writes the texts and types of the tokens, with fillers up to the size of the model's
 * vocabulary. */
static inline int gguf_export_tokens(gguf_exporter *x)
{
    const bpe *b = x->e->tokenizer;
    const gguf_kind kind = gguf_kind_of(x->a, b);
    const int64_t most = x->e->model->config.vocabulary;
    const int32_t tokens = most > b->count ? (int32_t)most : b->count;
    size_t longest = 32;
    for (int32_t i = 0; i < b->count; i++)
        longest = b->name_start[i + 1] - b->name_start[i] > longest
                      ? b->name_start[i + 1] - b->name_start[i]
                      : longest;
    char *name = (char *)malloc(8 * longest + 16);
    if (name == NULL)
        return model_fail(x->e->model, "out of memory for tokens");
    gguf_put_array(&x->w, gguf_export_key(x, GGUF_KEY("tokens"), 0), GGUF_STRING, (uint64_t)tokens);
    for (int32_t i = 0; i < tokens; i++) {
        const size_t n = gguf_token_name(b, kind, i, name, 8 * longest + 16);
        gguf_put_string(&x->w, name, n);
    }
    gguf_put_array(&x->w, gguf_export_key(x, GGUF_KEY("token_type"), 0), GGUF_I32,
                   (uint64_t)tokens);
    for (int32_t i = 0; i < tokens; i++)
        gguf_put(&x->w, (uint64_t)gguf_token_type(b, i), 4);
    const int failed = kind == GGUF_GPT2 || kind == GGUF_GEMMA4
                           ? gguf_export_merges(x, name, 8 * longest + 16)
                       : kind == GGUF_LLAMA ? gguf_export_scores(x, tokens)
                                            : 0;
    if (kind == GGUF_T5)
        gguf_export_unigram(x, tokens);
    free(name);
    return failed;
}

/* Writes the ids of tokens with a special meaning, and whether texts begin and end with them. */
static inline void gguf_export_ids(gguf_exporter *x)
{
    static const char *const ends[] = { GGUF_KEY("eos_token_id"), GGUF_KEY("eot_token_id"),
                                        GGUF_KEY("eom_token_id") };
    const bpe *b = x->e->tokenizer;
    int spaces = 0, strips = 0, lower = 0, accents = 0;
    for (int i = 0; i < b->step_count; i++) {
        const bpe_step *p = &b->steps[i];
        spaces |= p->kind == BPE_PREPEND || (p->kind == BPE_METASPACE && p->when != BPE_NEVER);
        strips |= p->kind == BPE_WHITESPACE || (p->kind == BPE_REPLACE && p->regex != NULL);
        lower |= p->kind == BPE_LOWER;
        accents |= p->kind == BPE_ACCENTS;
    }
    const int bert = b->model == BPE_WORDPIECE, unigram = b->model == BPE_UNIGRAM;
    if (b->prefix_count > 0)
        gguf_put_int(&x->w, gguf_export_key(x, GGUF_KEY("bos_token_id"), 0), b->prefix[0]);
    if (b->suffix_count > 0 && (bert || unigram)) /* ends a text, not an answer */
        gguf_put_int(&x->w, gguf_export_key(x, bert ? GGUF_KEY("seperator_token_id") : ends[0], 0),
                     b->suffix[0]);
    for (int i = unigram && b->suffix_count > 0; i < 3 && x->e->stops[i] >= 0; i++)
        gguf_put_int(&x->w, gguf_export_key(x, ends[i], 0), x->e->stops[i]);
    if (b->unknown >= 0)
        gguf_put_int(&x->w, gguf_export_key(x, GGUF_KEY("unknown_token_id"), 0), b->unknown);
    gguf_put_bool(&x->w, gguf_export_key(x, GGUF_KEY("add_bos_token"), 0), b->prefix_count > 0);
    gguf_put_bool(
        &x->w, gguf_export_key(x, bert ? GGUF_KEY("add_sep_token") : GGUF_KEY("add_eos_token"), 0),
        b->suffix_count > 0);
    if (!bert)
        gguf_put_bool(&x->w, gguf_export_key(x, GGUF_KEY("add_space_prefix"), 0), spaces);
    if (unigram)
        gguf_put_bool(&x->w, gguf_export_key(x, GGUF_KEY("remove_extra_whitespaces"), 0), strips);
    if (bert) {
        gguf_put_bool(&x->w, gguf_export_key(x, GGUF_KEY("normalizer.lowercase"), 0), lower);
        gguf_put_bool(&x->w, gguf_export_key(x, GGUF_KEY("normalizer.strip_accents"), 0), accents);
    }
}

/* Writes the chat template of the model's folder, if it has one. */
static inline int gguf_export_template(gguf_exporter *x)
{
    static const char *const files[] = { "chat_template.jinja", "tokenizer_config.json" };
    char path[MODEL_PATH];
    json d;
    int written = 0;
    for (int i = 0; i < 2 && !written; i++) {
        size_t size = 0;
        const char *text = NULL;
        if (!model_has_file(x->e->model, path, x->e->source, files[i]))
            continue;
        if (i == 0) {
            text = json_read_text(&d, path, &size);
        } else if (json_read_file(&d, path) == 0) {
            uint32_t at = json_find(&d, JSON_ROOT, "chat_template"), list = at;
            for (uint32_t k = json_kind_of(&d, list) == JSON_ARRAY ? json_first(&d, list) : 0;
                 k != 0; k = json_next(&d, k))
                if (json_is(&d, json_find(&d, k, "name"), "default"))
                    at = json_find(&d, k, "template");
            text = json_kind_of(&d, at) == JSON_STRING ? json_text(&d, at) : NULL;
            size = text != NULL ? json_size(&d, at) : 0;
        }
        if (text != NULL) {
            gguf_put_name(&x->w, gguf_export_key(x, "tokenizer.chat_template", 0), GGUF_STRING);
            gguf_put_string(&x->w, text, size);
            written = 1;
        }
        const int failed = d.error[0] != 0 ? model_fail(x->e->model, "%s", d.error) : 0;
        json_free(&d);
        if (failed)
            return -1;
    }
    return 0;
}

/* Copies the keys of the tokenizer from the GGUF file that the model was read from. */
static inline int gguf_copy_tokenizer(gguf_exporter *x)
{
    gguf g;
    gguf_open(&g, x->e->source);
    for (size_t i = 0; i < g.key_count && g.error[0] == 0; i++) {
        const gguf_key *k = &g.keys[i];
        if (strncmp(k->name, "tokenizer.", 10) != 0)
            continue;
        x->keys++;
        if (k->type != GGUF_ARRAY)
            gguf_put_name(&x->w, k->name, k->type);
        if (k->type == GGUF_STRING) {
            gguf_put_string(&x->w, (const char *)k->value, (size_t)k->count);
        } else if (k->type != GGUF_ARRAY) {
            gguf_put_bytes(&x->w, k->value, (size_t)gguf_types[k->type].bytes);
        } else {
            gguf_items all = { k->count, NULL, 0, 0, 0, k->value, k->item_type };
            gguf_put_array(&x->w, k->name, k->item_type, k->count);
            while (gguf_next(&all))
                ;
            gguf_put_bytes(&x->w, k->value, (size_t)(all.at - k->value));
        }
    }
    if (g.error[0] != 0)
        model_fail(x->e->model, "%s", g.error);
    gguf_close(&g);
    return g.error[0] != 0 ? -1 : 0;
}

static inline int gguf_export_tokenizer(gguf_exporter *x)
{
    const bpe *b = x->e->tokenizer;
    const gguf_pre *pre = gguf_pre_of(b);
    if (gguf_is_file(x->e->source))
        return gguf_copy_tokenizer(x);
    gguf_put_key(&x->w, gguf_export_key(x, GGUF_KEY("model"), 0),
                 gguf_kinds[gguf_kind_of(x->a, b)]);
    if (b->byte_level)
        gguf_put_key(&x->w, gguf_export_key(x, GGUF_KEY("pre"), 0), pre->name);
    else
        gguf_put_key(&x->w, gguf_export_key(x, GGUF_KEY("pre"), 0), "default");
    gguf_export_ids(x);
    return gguf_export_tokens(x) != 0 || gguf_export_template(x) != 0 ? -1 : 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */
/* How a parameter becomes a tensor. */
typedef struct {
    char name[MODEL_NAME];
    int type, transposed;
    int64_t rows, columns; /* of the tensor; rows is 0 for a vector */
    gguf_order order, column_order;
    float added; /* gguf_norm_offset */
    int decays;  /* gguf_is_decay */
} gguf_export_view;

static inline int gguf_export_view_of(gguf_exporter *x, const model_parameter *p,
                                      gguf_export_view *v)
{
    const model_config *c = &x->e->model->config;
    const int matrix = p->shape.n > 1, type = x->e->type;
    memset(v, 0, sizeof *v);
    if (!gguf_tensor_of(x->a, c, p->name, v->name))
        return model_fail(x->e->model, "parameter %s has no counterpart in GGUF's %s", p->name,
                          x->a->name);
    v->transposed = gguf_is_transposed(c, p);
    v->rows = matrix ? p->shape.d[v->transposed] : 0;
    v->columns = p->shape.d[v->transposed ? 0 : p->shape.n - 1];
    v->order = gguf_order_of(x->a, c, p->name, p->shape.d[0]);
    v->column_order = gguf_column_order_of(c, p->name);
    v->added = gguf_norm_offset(x->a, p->name);
    v->decays = gguf_is_decay(p->name);
    const int table =
        strncmp(v->name, "token_embd", 10) == 0 || strncmp(v->name, "output.", 7) == 0;
    v->type = p->shape.n != 2 || strncmp(v->name, "position_embd", 13) == 0 ? GGUF_T_F32
              : type == GGUF_T_Q4_0 && table                                ? GGUF_T_Q8_0
                                                                            : type;
    if (v->columns % gguf_tensor_types[v->type].values != 0)
        v->type = GGUF_T_F16;
    return 0;
}

/* Writes the values of a parameter. */
static inline int gguf_export_values(gguf_exporter *x, const gguf_export_view *v,
                                     const gckpt_parameter *p)
{
    const int64_t rows = v->rows > 0 ? v->rows : v->order.a > 0 ? v->columns : 1;
    const int64_t columns = v->rows == 0 && v->order.a > 0 ? 1 : v->columns;
    const size_t bytes = gguf_bytes(v->type, columns);
    float *row = (float *)malloc((size_t)columns * sizeof *row + bytes);
    unsigned char *to = (unsigned char *)(row + columns);
    int failed =
        row == NULL ? model_fail(x->e->model, "out of memory for a row of %s", v->name) : 0;
    for (int64_t i = 0; i < rows && !failed; i++) {
        const int64_t at = gguf_param_row(v->order, i);
        float bad = 0;
        for (int64_t k = 0; k < columns; k++) {
            const int64_t from = gguf_param_row(v->column_order, k);
            row[k] = v->transposed ? p->values[k * rows + at] : p->values[at * columns + from];
            row[k] = v->decays ? (float)-llama_exp((double)row[k]) : row[k];
            row[k] = v->added != 0 ? row[k] + v->added : row[k];
            bad += row[k] - row[k];
        }
        if (bad != 0 || gguf_from_floats(v->type, row, columns, to) != 0)
            failed = model_fail(x->e->model, "%s has a value that %s cannot hold%s", v->name,
                                gguf_tensor_types[v->type].name,
                                bad != 0 ? ": infinite or NaN" : "; write BF16 or F32");
        gguf_put_bytes(&x->w, to, bytes);
    }
    gguf_put_align(&x->w);
    free(row);
    return failed;
}

/* Tensors of divisors of the frequencies of rotary positions, one for each pair of columns. */
enum { GGUF_ROPE_FREQS, GGUF_ROPE_SHORT, GGUF_ROPE_LONG, GGUF_ROPE_TENSORS };

/* Returns the number of values that the model's tensor `which` has, or 0 if it has no such tensor:
 * rope_freqs.weight belongs to llama3's positions and to Gemma 4, the others to longrope. */
static inline int64_t gguf_divisor_count(const gguf_exporter *x, int which)
{
    const model_config *c = &x->e->model->config;
    const llama_positions *at = &c->llama.positions[0];
    const int64_t head = c->llama.row == NULL ? 0
                         : at->columns > 0    ? at->columns
                                              : llama_head_dim(c, c->layers - 1);
    const int freqs = strcmp(x->a->name, "gemma4") == 0 || at->scaling == LLAMA_LLAMA3;
    return (which == GGUF_ROPE_FREQS ? freqs : at->scaling == LLAMA_LONGROPE) ? head / 2 : 0;
}

/* Returns value i of the tensor `which`, which has n. 1e30 stands for a pair that does not rotate. */
static inline double gguf_divisor(const llama_positions *at, int which, int64_t i, int64_t n)
{
    const gguf_llama3 l = { at->factor, at->low, at->high, at->original };
    const double f = llama_exp(-(double)i / (double)n * llama_log(at->base));
    return which != GGUF_ROPE_FREQS              ? (double)at->divisors[which == GGUF_ROPE_LONG][i]
           : at->scaling == LLAMA_LLAMA3         ? gguf_llama3_factor(&l, f)
           : at->scaling == LLAMA_UNSCALED       ? 1
           : i < (int64_t)(at->part * (double)n) ? at->factor
                                                 : 1e30;
}

/* Writes these tensors, in pass 0 their headers and in pass 1 their values. */
static inline void gguf_export_divisors(gguf_exporter *x, int pass, uint64_t *offset)
{
    static const char *const names[GGUF_ROPE_TENSORS] = { "rope_freqs.weight",
                                                          "rope_factors_short.weight",
                                                          "rope_factors_long.weight" };
    for (int which = 0; which < GGUF_ROPE_TENSORS; which++) {
        const int64_t n = gguf_divisor_count(x, which);
        if (n > 0 && pass == 0)
            gguf_put_tensor(&x->w, names[which], GGUF_T_F32, 0, n, offset);
        for (int64_t i = 0; i < n && pass == 1; i++)
            gguf_put_float(
                &x->w, (float)gguf_divisor(&x->e->model->config.llama.positions[0], which, i, n));
        if (n > 0 && pass == 1)
            gguf_put_align(&x->w);
    }
}

static inline int gguf_export_tensors(gguf_exporter *x)
{
    model_any *m = x->e->model;
    uint64_t offset = 0;
    int failed = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < model_param_count(&m->config) && !failed; i++) {
            const model_parameter p = model_get_param(&m->config, i);
            char name[MODEL_NAME];
            gguf_export_view v;
            gckpt_parameter values;
            if (gguf_export_view_of(x, &p, &v) != 0)
                return -1;
            if (pass == 0)
                gguf_put_tensor(&x->w, v.name, v.type, v.rows, v.columns, &offset);
            else if (gckpt_store_get(
                         x->e->store,
                         gckpt_store_find(x->e->store, model_store_name(&m->config, name, p.name)),
                         &values) != GCKPT_OK)
                failed = model_fail(m, "%s", gckpt_error_text(x->e->store));
            else
                failed = gguf_export_values(x, &v, &values);
        }
        gguf_export_divisors(x, pass, &offset);
        gguf_put_align(&x->w);
    }
    return failed;
}

/* ---- reading the file again ------------------------------------------------------------------ */
static inline int gguf_is_near(double a, double b)
{
    const double d = a - b, size = a < 0 ? -a : a;
    return d <= 1e-6 * size && d >= -1e-6 * size;
}

static inline int gguf_has_same_positions(const llama_positions *p, const llama_positions *q)
{
    const int scaled = p->scaling != LLAMA_UNSCALED && p->factor != 1;
    return gguf_is_near(p->base, q->base) && p->columns == q->columns &&
           gguf_is_near(p->scaling == LLAMA_PROPORTIONAL ? p->part : 1,
                        q->scaling == LLAMA_PROPORTIONAL ? q->part : 1) &&
           (!scaled || (p->scaling == q->scaling && gguf_is_near(p->factor, q->factor))) &&
           gguf_is_near(p->scale, q->scale) &&
           (p->scaling != LLAMA_LLAMA3 ||
            (gguf_is_near(p->original, q->original) && gguf_is_near(p->low, q->low) &&
             gguf_is_near(p->high, q->high))) &&
           (p->scaling != LLAMA_YARN ||
            (gguf_is_near(p->original, q->original) && gguf_is_near(p->fast, q->fast) &&
             gguf_is_near(p->slow, q->slow) && p->truncate == q->truncate)) &&
           (p->scaling != LLAMA_LONGROPE ||
            memcmp(p->divisors, q->divisors, sizeof p->divisors) == 0);
}

/* Returns the name of a part of the model in which two configs differ, or NULL. */
static inline const char *gguf_config_difference(const model_config *a, const model_config *b)
{
    const llama_config *p = &a->llama, *q = &b->llama;
    int sliding = 0, rotary = 0, nets = 0,
        sizes = p->layer_inputs != q->layer_inputs || p->keys_as_values != q->keys_as_values ||
                a->layers != b->layers || (p->row == NULL) != (q->row == NULL);
    for (int64_t i = 0; i < a->layers && !sizes; i++) {
        sliding |= llama_bit(p->sliding, i) != llama_bit(q->sliding, i) ||
                   (llama_bit(p->sliding, i) && p->window != q->window);
        rotary |= llama_bit(p->no_rope, i) != llama_bit(q->no_rope, i);
        sizes |= p->row != NULL && (llama_head_dim(a, i) != llama_head_dim(b, i) ||
                                    llama_key_heads(a, i) != llama_key_heads(b, i) ||
                                    llama_dim(a, i, 'I') != llama_dim(b, i, 'I') ||
                                    llama_shares(a, i) != llama_shares(b, i));
        nets |= llama_bit(p->nets, i) != llama_bit(q->nets, i);
    }
    nets |= p->net_taps != q->net_taps || p->net_keys != q->net_keys ||
            p->net_values != q->net_values || p->net_key_dim != q->net_key_dim ||
            p->net_value_dim != q->net_value_dim;
    return a->family != b->family || a->layers != b->layers || a->width != b->width ||
                   a->inner != b->inner || a->context != b->context || a->heads != b->heads ||
                   a->key_heads != b->key_heads || a->head_dim != b->head_dim ||
                   a->vocabulary != b->vocabulary || a->tied != b->tied || sizes
               ? "sizes"
           : a->activation != b->activation ? "activation"
           : !gguf_is_near(p->epsilon, q->epsilon) || p->plus_one != q->plus_one ||
                   (p->row != NULL && p->row->layout != q->row->layout)
               ? "norms"
           : p->qkv_bias != q->qkv_bias || p->output_bias != q->output_bias ||
                   p->mlp_bias != q->mlp_bias
               ? "biases"
           : nets    ? "gated delta nets"
           : sliding ? "sliding windows"
           : rotary  ? "layers without rotary positions"
           : !gguf_has_same_positions(&p->positions[0], &q->positions[0]) ||
                   !gguf_has_same_positions(&p->positions[1], &q->positions[1])
               ? "rotary positions"
           : !gguf_is_near(p->score_cap, q->score_cap) ||
                   !gguf_is_near(a->logit_cap, b->logit_cap) ||
                   !gguf_is_near(p->score_scale, q->score_scale)
               ? "scales or caps of scores"
           : p->parallel != q->parallel || !gguf_is_near(p->query_beta, q->query_beta) ||
                   (p->query_beta > 0 && !gguf_is_near(p->query_original, q->query_original)) ||
                   !gguf_is_near(gguf_factor(p->embedding_scale),
                                 gguf_factor(q->embedding_scale)) ||
                   !gguf_is_near(gguf_factor(p->branch_scale), gguf_factor(q->branch_scale)) ||
                   !gguf_is_near(gguf_factor(a->logit_scale), gguf_factor(b->logit_scale))
               ? "factors of embeddings, branches or logits"
               : NULL;
}

/* Returns the name of a part in which two tokenizers differ, or NULL. */
static inline const char *gguf_tokenizer_difference(const bpe *a, const bpe *b)
{
    size_t n = 0, k = 0;
    const bpe_merge **p = gguf_sort_merges(a, &n), **q = gguf_sort_merges(b, &k);
    int merges = p == NULL || q == NULL || n != k, scores = 0;
    for (size_t i = 0; i < n && !merges; i++)
        merges = p[i]->pair != q[i]->pair || p[i]->id != q[i]->id;
    free(p);
    free(q);
    for (int32_t i = 0; a->model == BPE_UNIGRAM && b->model == BPE_UNIGRAM && i < a->count; i++)
        scores |= i >= b->count || gguf_in_vocabulary(a, i) != gguf_in_vocabulary(b, i) ||
                  (gguf_in_vocabulary(a, i) && !gguf_is_near(a->scores[i], b->scores[i]));
    return a->model != b->model || a->byte_fallback != b->byte_fallback ||
                   a->most_characters != b->most_characters ||
                   a->continuing_size != b->continuing_size
               ? "model"
           : a->count != b->count || a->unknown != b->unknown ||
                   memcmp(a->name_start, b->name_start,
                          ((size_t)a->count + 1) * sizeof *a->name_start) != 0 ||
                   memcmp(a->names, b->names, a->name_start[a->count]) != 0
               ? "tokens"
           : !gguf_has_same_steps(a, b) || a->ignore_merges != b->ignore_merges
               ? "rule that splits texts"
           : a->prefix_count != b->prefix_count || a->suffix_count != b->suffix_count ||
                   memcmp(a->prefix, b->prefix, (size_t)a->prefix_count * sizeof *a->prefix) != 0
               ? "tokens around a text"
           : merges ? "merges"
           : scores ? "scores"
                    : NULL;
}

/* Checks that the keys in the file describe the model and its tokenizer. */
static inline int gguf_export_verify(gguf_export *e, const char *path)
{
    model_any m;
    bpe b;
    const char *part = NULL, *of = "config.json";
    if (model_read_config(&m, path) != 0) {
        model_fail(e->model, "%s", m.error);
        model_close(&m);
        return -1;
    }
    part = gguf_config_difference(&e->model->config, &m.config);
    model_close(&m);
    if (part == NULL && gguf_open_tokenizer(&b, path) != 0)
        return model_fail(e->model, "%s", b.error);
    if (part == NULL) {
        part = gguf_tokenizer_difference(e->tokenizer, &b);
        of = "the tokenizer";
        bpe_free(&b);
    }
    return part == NULL ? 0 : model_fail(e->model, "GGUF's keys cannot express %s of %s", part, of);
}

/* ---- the file -------------------------------------------------------------------------------- */
/* Checks, without writing, that GGUF has the model's architecture and its tokenizer's rule. A
 * training calls this before it begins. Returns 0, or -1 with the model's error. */
static inline int gguf_export_check(const gguf_export *e)
{
    const model_config *c = &e->model->config;
    const gguf_architecture *a = gguf_architecture_of(c);
    if (a == NULL)
        return model_fail(e->model, "a %s cannot be saved as GGUF here", c->type);
    for (const char *bias = "qom"; *bias != 0 && c->llama.row != NULL; bias++)
        if (llama_has_bias(c, *bias) && strchr(a->biases, *bias) == NULL)
            return model_fail(e->model,
                              "llama.cpp reads no biases of %s in a %s; save the model as a folder",
                              *bias == 'q'   ? "queries, keys and values"
                              : *bias == 'o' ? "attention's output"
                                             : "the MLP",
                              a->name);
    const llama_config *l = &c->llama;
    if (l->shared_from > 0 && (l->shared_from < 2 || !llama_bit(l->sliding, l->shared_from - 2) ||
                               llama_bit(l->sliding, l->shared_from - 1)))
        return model_fail(e->model,
                          "llama.cpp requires that of the layers with keys of their own, the last "
                          "one has full attention and the one before it a sliding window; save "
                          "the model as a folder");
    if (e->tokenizer->byte_level && !gguf_is_file(e->source) && gguf_pre_of(e->tokenizer) == NULL)
        return model_fail(e->model,
                          "%s: GGUF has no name for the rule by which its tokenizer splits "
                          "texts",
                          e->source);
    return 0;
}

/* Writes the model to `path`. An older file of this name is replaced after the new one is complete
 * and was checked. Returns 0, or -1 with the model's error. */
static inline int gguf_export_model(gguf_export *e, const char *path)
{
    char temporary[MODEL_PATH];
    model_any *m = e->model;
    gguf_exporter x;
    memset(&x, 0, sizeof x);
    x.e = e;
    x.a = gguf_architecture_of(&m->config);
    if (gguf_export_check(e) != 0)
        return -1;
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary)
        return model_fail(m, "%s: the path is too long", path);
    if ((x.w.f = fopen(temporary, "wb")) == NULL)
        return model_fail(m, "%s: %s", temporary, strerror(errno));
    uint64_t tensors = (uint64_t)model_param_count(&m->config);
    for (int i = 0; i < GGUF_ROPE_TENSORS; i++)
        tensors += gguf_divisor_count(&x, i) > 0;
    gguf_put_begin(&x.w, tensors, 0);
    gguf_export_general(&x);
    gguf_export_sizes(&x);
    int failed = gguf_export_tokenizer(&x) != 0 || gguf_export_tensors(&x) != 0;
    rewind(x.w.f);
    gguf_put_begin(&x.w, tensors, x.keys); /* now the number of keys is known */
    if (failed)
        fclose(x.w.f);
    else if (model_close_file(m, x.w.f, temporary) != 0)
        return -1;
    if (!failed && gguf_export_verify(e, temporary) == 0)
        return model_commit_file(m, temporary);
    remove(temporary);
    return -1;
}
#undef GGUF_KEY
#endif
