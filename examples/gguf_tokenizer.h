/* gguf_tokenizer.h - reads the tokenizer and the chat template of a GGUF file. To copy, with
 * gguf.h, tokenizer.h, chat.h, json.h and unicode.h.
 *
 *     gguf g;
 *     bpe b;
 *     chat c;
 *     int bad = gguf_open(&g, "model.gguf") != 0 || gguf_tokenizer(&g, &b) != 0;
 *     if (bad || gguf_chat(&g, &c, NULL) != 0)
 *         fprintf(stderr, "%s\n", g.error);
 *     gguf_close(&g); // b and c remain valid
 *
 * gguf_open_tokenizer and gguf_open_chat do the same from a path. The keys tokenizer.ggml.* are
 * converted to the text of a tokenizer.json (gguf_tokenizer_json), which tokenizer.h reads. So
 * the tokens equal those of Hugging Face's tokenizer of the model. tokenizer.ggml.model may be
 * one of the following; others are refused with an error that names them:
 *   gpt2    byte-level BPE with a list of merges. tokenizer.ggml.pre, the rule that splits
 *           text, must be gpt-2, llama-bpe (llama3, llama-v3), smaug-bpe, qwen2 or smollm
 *   llama   SentencePiece's BPE. As in transformers, each split of a token into two tokens is a
 *           merge. Merges into tokens of higher score come first; for equal scores, those with a
 *           longer first part. If all tokens have the same score, lower ids come first.
 * Settings that GGUF files lack are assumed to be those of these models: qwen2 normalizes to
 * NFC; added tokens absorb no white space around them; with add_space_prefix, a space is put
 * before each text after an added token, but only before the first text in Mistral's
 * vocabularies, which have [INST]. C99 or C++11. */
#ifndef GGUF_TOKENIZER_H
#define GGUF_TOKENIZER_H
#include "chat.h"
#include "gguf.h"
#include "tokenizer.h"

/* Values of tokenizer.ggml.token_type. */
enum {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN,
    GGUF_TOKEN_CONTROL,
    GGUF_TOKEN_USER, /* an added token, which is searched for in a text before BPE runs */
    GGUF_TOKEN_UNUSED,
    GGUF_TOKEN_BYTE,
    GGUF_TOKEN_LONGEST = 1024 /* longest token, in bytes, for which merges are derived */
};
#define GGUF_KEY(name) "tokenizer.ggml." name

typedef struct {
    const char *text;
    uint32_t size;
    int type;
    double score;
} gguf_token;

typedef struct {
    double score;
    int32_t id, left, right;
    uint32_t sizes[2]; /* number of characters of the left and the right part */
} gguf_bpe_merge;

typedef struct {
    /* pre_tokenizer and normalizer are JSON texts for tokenizer.json */
    const char *name, *pre_tokenizer, *normalizer;
    /* add_bos: whether a text begins with bos_token; ignore_merges: the option of the BPE model */
    int add_bos, ignore_merges;
} gguf_pre;

typedef struct {
    gguf *g;
    gguf_token *tokens;
    /* count: number of tokens; base: tokens from this id on are added ones that are not in the
     * vocabulary */
    int32_t count, base;
    int32_t bos, eos, unk;
    int spm;               /* nonzero if tokenizer.ggml.model is "llama", that is, SentencePiece */
    const gguf_pre *pre;   /* if tokenizer.ggml.model is "gpt2", the rule that splits texts */
    /* hash table of tokens; a slot has 1 + the token's id, or 0 if it is empty */
    uint32_t *slots, mask;
    char *texts;         /* memory for texts of tokens that differ from those in the file */
    gguf_bpe_merge *merges;
    size_t merge_count, merge_capacity;
    char *text; /* the text of the tokenizer.json that is being written */
    size_t size, capacity;
} gguf_vocabulary;

/* ---- writing a text -------------------------------------------------------------------------- */
static inline void gguf_json_put(gguf_vocabulary *v, const char *text, size_t n)
{
    if (v->g->error[0] != 0)
        return;
    if (v->capacity - v->size <= n) {
        const size_t capacity = 2 * v->capacity + n + 4096;
        char *more = (char *)realloc(v->text, capacity);
        if (more == NULL) {
            gguf_fail(v->g, "out of memory for %llu bytes of tokens", (unsigned long long)capacity);
            return;
        }
        v->text = more;
        v->capacity = capacity;
    }
    memcpy(v->text + v->size, text, n);
    v->size += n;
    v->text[v->size] = 0;
}

static inline void gguf_json_text(gguf_vocabulary *v, const char *text)
{
    gguf_json_put(v, text, strlen(text));
}

static inline void gguf_json_int(gguf_vocabulary *v, int32_t number)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%ld", (long)number);
    gguf_json_text(v, digits);
}

/* Writes n bytes of text as a JSON string. */
static inline void gguf_json_string(gguf_vocabulary *v, const char *text, size_t n)
{
    char hex[8];
    gguf_json_text(v, "\"");
    for (size_t i = 0, run; i < n; i += run) {
        const unsigned char c = (unsigned char)text[i];
        for (run = 0; i + run < n && (unsigned char)text[i + run] >= 32 && text[i + run] != '"' &&
                      text[i + run] != '\\';)
            run++;
        gguf_json_put(v, text + i, run);
        if (run == 0) {
            snprintf(hex, sizeof hex, c < 32 ? "\\u%04x" : "\\%c", c);
            gguf_json_text(v, hex);
            run = 1;
        }
    }
    gguf_json_text(v, "\"");
}

/* ---- keys ------------------------------------------------------------------------------------ */
#define GGUF_SPLIT(digits)                                                                         \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\""      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits                 \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"     \
    "\"behavior\":\"Isolated\",\"invert\":false}," GGUF_BYTES("false", "false") "]}"
#define GGUF_BYTES(space, regex)                                                                   \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":" space                                          \
    ",\"trim_offsets\":true,\"use_regex\":" regex "}"
#define GGUF_DIGITS                                                                                \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":"        \
    "true}," GGUF_BYTES("false", "true") "]}"
static const gguf_pre gguf_pres[] = {
    { "gpt-2", GGUF_BYTES("false", "true"), "null", 0, 0 },
    { "llama-bpe", GGUF_SPLIT("\\\\p{N}{1,3}"), "null", 1, 1 },
    { "llama3", GGUF_SPLIT("\\\\p{N}{1,3}"), "null", 1, 1 },
    { "llama-v3", GGUF_SPLIT("\\\\p{N}{1,3}"), "null", 1, 1 },
    { "smaug-bpe", GGUF_SPLIT("\\\\p{N}{1,3}"), "null", 0, 1 },
    { "qwen2", GGUF_SPLIT("\\\\p{N}"), "{\"type\":\"NFC\"}", 0, 0 },
    { "deepseek-r1-qwen", GGUF_SPLIT("\\\\p{N}"), "{\"type\":\"NFC\"}", 0, 0 },
    { "smollm", GGUF_DIGITS, "null", 0, 0 },
};
static const char gguf_gpt2_prefix[] = GGUF_BYTES("true", "true");
#undef GGUF_SPLIT
#undef GGUF_DIGITS
#undef GGUF_BYTES
enum { GGUF_PRES = sizeof gguf_pres / sizeof gguf_pres[0] };

/* Determines the kind of the file's tokenizer. Returns 0, or -1 with an error that lists the
 * supported kinds. */
static inline int gguf_tokenizer_kind(gguf_vocabulary *v)
{
    static const char *const others[][2] = {
        { "t5", ", a unigram model" },
        { "bert", ", WordPiece" },
        { "rwkv", ", RWKV's own" },
        { "gemma4", ", Gemma 4's own" },
        { "plamo2", ", PLaMo 2's own" },
        { "none", ": the file has no tokenizer" },
        { "no_vocab", ": the file has no tokenizer" },
    };
    gguf *g = v->g;
    const char *model = gguf_text(g, GGUF_KEY("model"), NULL), *what = "";
    const char *pre = gguf_text(g, GGUF_KEY("pre"), NULL);
    const char *kind = gguf_text(g, "general.architecture", NULL);
    if (g->error[0] != 0)
        return -1;
    if (model == NULL)
        return gguf_fail(g, "key " GGUF_KEY("model") " is missing: the file has no tokenizer");
    v->spm = strcmp(model, "llama") == 0;
    if (v->spm)
        return 0;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(model, others[i][0]) == 0)
            what = others[i][1];
    if (strcmp(model, "gpt2") != 0)
        return gguf_fail(
            g,
            "key " GGUF_KEY("model") " is \"%.40s\"%s; supported are gpt2 (byte-level BPE) "
                                     "and llama (SentencePiece's BPE)",
            model, what);
    if ((pre == NULL || strcmp(pre, "default") == 0) && kind != NULL && strcmp(kind, "gpt2") == 0)
        pre = "gpt-2"; /* the key is missing in older files of GPT-2 */
    for (int i = 0; i < GGUF_PRES && pre != NULL; i++)
        if (strcmp(pre, gguf_pres[i].name) == 0)
            v->pre = &gguf_pres[i];
    if (v->pre != NULL)
        return 0;
    return gguf_fail(g,
                     "key " GGUF_KEY("pre") " is %s%.40s%s: how its text is split %s; supported are "
                                            "gpt-2, llama-bpe, smaug-bpe, qwen2 and smollm",
                     pre != NULL ? "\"" : "", pre != NULL ? pre : "missing",
                     pre != NULL ? "\"" : "",
                     pre == NULL || strcmp(pre, "default") == 0
                         ? "is not stored in such an old file, so convert the model again"
                         : "is not supported");
}

/* Returns the token id that is the value of a key, or `fallback` if there is no such key. */
static inline int32_t gguf_bpe_id(gguf_vocabulary *v, const char *key, int32_t fallback)
{
    const int64_t id = gguf_int(v->g, key, fallback);
    if (gguf_find(v->g, key) != NULL && (id < 0 || id >= v->count))
        gguf_fail(v->g, "key %s is %lld: the ids of tokens are 0 to %ld", key, (long long)id,
                  (long)v->count - 1);
    return v->g->error[0] == 0 ? (int32_t)id : -1;
}

/* ---- tokens ---------------------------------------------------------------------------------- */
/* Returns the slot that holds a token's text, or the empty slot where it would be put. */
static inline uint32_t *gguf_bpe_slot(const gguf_vocabulary *v, const char *text, size_t size)
{
    for (uint32_t i = bpe_hash(text, size);; i++) {
        uint32_t *slot = &v->slots[i & v->mask];
        if (*slot == 0 || (v->tokens[*slot - 1].size == size &&
                           memcmp(v->tokens[*slot - 1].text, text, size) == 0))
            return slot;
    }
}

/* Returns the id of the token with this text, or -1. */
static inline int32_t gguf_id_of(const gguf_vocabulary *v, const char *text, size_t size)
{
    return (int32_t)*gguf_bpe_slot(v, text, size) - 1;
}

static inline int gguf_is_utf8(const char *text, size_t size)
{
    int length = 1;
    uint32_t c;
    for (size_t i = 0; i < size && length > 0; i += (size_t)length)
        length = json_utf8(text + i, size - i, &c);
    return length > 0;
}

/* Returns how many bytes of a text an error text should print: at most 40, in whole characters. */
static inline int gguf_print_size(const char *text, size_t size)
{
    size_t n = size < 40 ? size : 40;
    while (n > 0 && n < size && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    return (int)n;
}

/* Undoes two changes of converters to GGUF, which write U+2581 in added tokens as a space, and fill
 * gaps of a vocabulary with tokens such as [PAD7] for token 7. Puts U+2581 back into the token's
 * text, or marks the token as unused. */
static inline void gguf_hf_text(gguf_vocabulary *v, int32_t id, size_t *at)
{
    gguf_token *t = &v->tokens[id];
    char filler[24];
    const int n = snprintf(filler, sizeof filler, "[PAD%ld]", (long)id);
    if (t->size == (uint32_t)n && memcmp(t->text, filler, t->size) == 0)
        t->type = GGUF_TOKEN_UNUSED;
    if (!v->spm || t->type != GGUF_TOKEN_USER || memchr(t->text, ' ', t->size) == NULL)
        return;
    bpe_step spaces = { BPE_REPLACE, " ", "", 1, 3, BPE_NEVER };
    memcpy(spaces.to, BPE_SPACE, 3);
    char *to = v->texts + *at;
    t->size = (uint32_t)bpe_put_replaced(&spaces, t->text, t->size, to);
    t->text = to;
    *at += t->size;
}

/* Reads types and scores of the tokens, if the file has them. Their number must be that of the
 * tokens. */
static inline int gguf_read_types(gguf_vocabulary *v)
{
    gguf *g = v->g;
    gguf_items types = gguf_array(g, GGUF_KEY("token_type"), GGUF_I32), scores;
    const gguf_key *k = gguf_find(g, GGUF_KEY("scores"));
    const int is_integer = k != NULL && k->type == GGUF_ARRAY && gguf_is_integer(k->item_type);
    memset(&scores, 0, sizeof scores);
    if (v->spm) /* scores are only needed for SentencePiece; gpt2 has a list of merges */
        scores = gguf_array(g, GGUF_KEY("scores"), is_integer ? GGUF_I32 : GGUF_F32);
    if (g->error[0] == 0 && types.at != NULL && types.count != (uint64_t)v->count)
        return gguf_fail(g, "key " GGUF_KEY("token_type") ": %llu types for %ld tokens, expected "
                                                          "one per token",
                         (unsigned long long)types.count, (long)v->count);
    if (g->error[0] == 0 && v->spm && scores.count != (uint64_t)v->count)
        return gguf_fail(g, "key " GGUF_KEY("scores") ": %llu scores for %ld tokens, expected one "
                                                      "per token",
                         (unsigned long long)scores.count, (long)v->count);
    for (int32_t i = 0; i < v->count && g->error[0] == 0; i++) {
        gguf_token *t = &v->tokens[i];
        t->type = GGUF_TOKEN_NORMAL;
        if (gguf_next(&types)) {
            if (types.integer < 0 || types.integer > GGUF_TOKEN_BYTE)
                return gguf_fail(g, "token %ld, \"%.*s\": type %lld; expected 1 to 6", (long)i,
                                 gguf_print_size(t->text, t->size), t->text,
                                 (long long)types.integer);
            t->type = types.integer > 0 ? (int)types.integer : GGUF_TOKEN_NORMAL;
        } else if (v->spm && bpe_fallback_of(t->text, t->size) >= 0) {
            t->type = GGUF_TOKEN_BYTE;
        }
        if (t->type == GGUF_TOKEN_BYTE && bpe_fallback_of(t->text, t->size) < 0)
            return gguf_fail(g, "token %ld, \"%.*s\", has the type byte, but not the form <0x0A>",
                             (long)i, gguf_print_size(t->text, t->size), t->text);
        if (gguf_next(&scores))
            /* user-defined tokens have score 0, as in SentencePiece */
            t->score = t->type == GGUF_TOKEN_USER ? 0 : scores.real;
        if (!(t->score > -1e30 && t->score < 1e30))
            return gguf_fail(g, "token %ld, \"%.*s\": a score of %g", (long)i,
                             gguf_print_size(t->text, t->size), t->text, t->score);
    }
    return g->error[0] == 0 ? 0 : -1;
}

/* Reads the ids of the tokens that begin and end a text, and of the unknown token. */
static inline int gguf_read_ids(gguf_vocabulary *v)
{
    const int typed = gguf_find(v->g, GGUF_KEY("token_type")) != NULL;
    const int32_t fallback[3] = { v->spm && v->count > 2 ? 1 : -1, v->spm && v->count > 2 ? 2 : -1,
                               v->spm ? 0 : -1 };
    v->bos = gguf_bpe_id(v, GGUF_KEY("bos_token_id"), fallback[0]);
    v->eos = gguf_bpe_id(v, GGUF_KEY("eos_token_id"), fallback[1]);
    v->unk = gguf_bpe_id(v, GGUF_KEY("unknown_token_id"), fallback[2]);
    gguf_bpe_id(v, GGUF_KEY("eot_token_id"), -1);
    gguf_bpe_id(v, GGUF_KEY("eom_token_id"), -1);
    gguf_bpe_id(v, GGUF_KEY("padding_token_id"), -1);
    if (v->g->error[0] != 0)
        return -1;
    if (!typed && v->bos >= 0)
        v->tokens[v->bos].type = GGUF_TOKEN_CONTROL;
    if (!typed && v->eos >= 0)
        v->tokens[v->eos].type = GGUF_TOKEN_CONTROL;
    if (!typed && v->spm)
        v->tokens[v->unk].type = GGUF_TOKEN_UNKNOWN;
    return 0;
}

/* Reads all tokens with their types and scores, and fills the hash table. */
static inline int gguf_read_tokens(gguf_vocabulary *v)
{
    gguf *g = v->g;
    gguf_items all = gguf_array(g, GGUF_KEY("tokens"), GGUF_STRING);
    size_t slots = 64, bytes = 1, at = 0;
    if (g->error[0] != 0)
        return -1;
    if (all.count == 0)
        return gguf_fail(g, "key " GGUF_KEY("tokens") " is missing or empty");
    /* fits into 32 bits: a token takes 8 bytes in the file, and GGUF_MAX_HEADER limits them all */
    v->count = (int32_t)all.count;
    while (slots < 2 * (size_t)v->count)
        slots *= 2;
    v->mask = (uint32_t)(slots - 1);
    v->tokens = (gguf_token *)calloc((size_t)v->count, sizeof *v->tokens);
    v->slots = (uint32_t *)calloc(slots, sizeof *v->slots);
    if (v->tokens == NULL || v->slots == NULL)
        return gguf_fail(g, "out of memory for %ld tokens", (long)v->count);
    for (int32_t i = 0; gguf_next(&all); i++) {
        v->tokens[i].text = all.text;
        v->tokens[i].size = (uint32_t)all.size;
        if (!gguf_is_utf8(all.text, all.size))
            return gguf_fail(g, "the text of token %ld is not valid UTF-8", (long)i);
    }
    if (gguf_read_types(v) != 0 || gguf_read_ids(v) != 0)
        return -1;
    for (int32_t i = 0; i < v->count; i++)
        bytes += v->tokens[i].type == GGUF_TOKEN_USER ? 3 * (size_t)v->tokens[i].size : 0;
    v->texts = (char *)malloc(bytes);
    if (v->texts == NULL)
        return gguf_fail(g, "out of memory for %llu bytes", (unsigned long long)bytes);
    for (int32_t i = 0; i < v->count; i++) {
        gguf_hf_text(v, i, &at);
        uint32_t *slot = gguf_bpe_slot(v, v->tokens[i].text, v->tokens[i].size);
        if (*slot != 0)
            return gguf_fail(g, "tokens %ld and %ld are both \"%.*s\"", (long)*slot - 1, (long)i,
                             gguf_print_size(v->tokens[i].text, v->tokens[i].size),
                             v->tokens[i].text);
        *slot = (uint32_t)i + 1;
    }
    return 0;
}

/* Returns whether a token is an added one, which is searched for in a text as it is. */
static inline int gguf_is_added(const gguf_token *t)
{
    return t->type == GGUF_TOKEN_CONTROL || t->type == GGUF_TOKEN_USER ||
           t->type == GGUF_TOKEN_UNKNOWN;
}

/* ---- merges ---------------------------------------------------------------------------------- */
/* Compares two merges for qsort: the order is that of transformers. */
static inline int gguf_merge_order(const void *a, const void *b)
{
    const gguf_bpe_merge *p = (const gguf_bpe_merge *)a, *q = (const gguf_bpe_merge *)b;
    return p->score != q->score         ? (p->score < q->score ? 1 : -1)
           : p->sizes[0] != q->sizes[0] ? (p->sizes[0] < q->sizes[0] ? 1 : -1)
           : p->sizes[1] != q->sizes[1] ? (p->sizes[1] < q->sizes[1] ? 1 : -1)
                                        : (p->id > q->id) - (p->id < q->id);
}

static inline int gguf_is_mergeable(const gguf_token *t)
{
    return (t->type == GGUF_TOKEN_NORMAL || t->type == GGUF_TOKEN_USER) &&
           memchr(t->text, ' ', t->size) == NULL;
}

/* Appends every merge that results in token `id`: one for each position at which its text splits
 * into two tokens. */
static inline int gguf_split_token(gguf_vocabulary *v, int32_t id)
{
    const gguf_token *t = &v->tokens[id];
    uint32_t before = 1, all = 0;
    for (size_t i = 0; i < t->size; i++)
        all += ((unsigned char)t->text[i] & 0xc0) != 0x80;
    for (size_t i = 1; i < t->size; i++) {
        if (((unsigned char)t->text[i] & 0xc0) == 0x80)
            continue;
        gguf_bpe_merge m = { t->score, id, -1, -1, { before, all - before } };
        before++;
        m.left = gguf_id_of(v, t->text, i);
        if (m.left < 0 || !gguf_is_mergeable(&v->tokens[m.left]))
            continue;
        m.right = gguf_id_of(v, t->text + i, t->size - i);
        if (m.right < 0 || !gguf_is_mergeable(&v->tokens[m.right]))
            continue;
        if (v->merge_count == v->merge_capacity) {
            const size_t capacity = 2 * v->merge_capacity + 1024;
            gguf_bpe_merge *more = (gguf_bpe_merge *)realloc(v->merges, capacity * sizeof *more);
            if (more == NULL)
                return gguf_fail(v->g, "out of memory for %llu merges", (unsigned long long)capacity);
            v->merges = more;
            v->merge_capacity = capacity;
        }
        v->merges[v->merge_count++] = m;
    }
    return 0;
}

/* If all normal tokens have the same score, the converter had no scores. Then sets scores by id,
 * because ids follow the order of training. */
static inline void gguf_score_by_id(gguf_vocabulary *v)
{
    int32_t first = 0;
    while (first < v->count && v->tokens[first].type != GGUF_TOKEN_NORMAL)
        first++;
    for (int32_t i = first; i < v->count; i++)
        if (v->tokens[i].type == GGUF_TOKEN_NORMAL && v->tokens[i].score != v->tokens[first].score)
            return;
    for (int32_t i = first; i < v->count; i++)
        if (v->tokens[i].type == GGUF_TOKEN_NORMAL)
            v->tokens[i].score = -(double)i;
}

/* Derives the merges of SentencePiece from the tokens' scores, and writes them. */
static inline int gguf_derive_merges(gguf_vocabulary *v)
{
    gguf_score_by_id(v);
    for (int32_t i = 0; i < v->count; i++) {
        const gguf_token *t = &v->tokens[i];
        if (!gguf_is_mergeable(t))
            continue;
        if (t->size > GGUF_TOKEN_LONGEST)
            return gguf_fail(v->g, "token %ld has %lu bytes: at most %d are expected", (long)i,
                             (unsigned long)t->size, (int)GGUF_TOKEN_LONGEST);
        if (gguf_split_token(v, i) != 0)
            return -1;
    }
    if (v->merge_count > 0)
        qsort(v->merges, v->merge_count, sizeof *v->merges, gguf_merge_order);
    for (size_t i = 0; i < v->merge_count; i++) {
        const gguf_token *left = &v->tokens[v->merges[i].left];
        const gguf_token *right = &v->tokens[v->merges[i].right];
        gguf_json_text(v, i > 0 ? ",\n[" : "[");
        gguf_json_string(v, left->text, left->size);
        gguf_json_text(v, ",");
        gguf_json_string(v, right->text, right->size);
        gguf_json_text(v, "]");
    }
    return v->g->error[0] == 0 ? 0 : -1;
}

/* Checks a merge of the file, "first second". Returns the length of the first part, or -1 with an
 * error. */
static inline int64_t gguf_check_merge(gguf_vocabulary *v, int64_t number, const char *text,
                                       size_t size)
{
    const char *space = (const char *)memchr(text, ' ', size);
    const size_t n = space != NULL ? (size_t)(space - text) : 0, m = space ? size - n - 1 : 0;
    char joined[2 * GGUF_TOKEN_LONGEST];
    if (n == 0 || m == 0 || memchr(space + 1, ' ', m) != NULL || size > sizeof joined)
        return gguf_fail(v->g,
                         "key " GGUF_KEY("merges") ": merge %lld, \"%.*s\": two tokens and a space "
                                                   "between them are expected",
                         (long long)number, gguf_print_size(text, size), text);
    memcpy(joined, text, n);
    memcpy(joined + n, space + 1, m);
    const int32_t ids[3] = { gguf_id_of(v, text, n), gguf_id_of(v, space + 1, m),
                             gguf_id_of(v, joined, n + m) };
    for (int i = 0; i < 3; i++) {
        const char *part = i == 0 ? text : i == 1 ? space + 1 : joined;
        const size_t length = i == 0 ? n : i == 1 ? m : n + m;
        if (ids[i] < 0)
            return gguf_fail(v->g,
                             "key " GGUF_KEY("merges") ": merge %lld has \"%.*s\", which is not "
                                                       "a token",
                             (long long)number, gguf_print_size(part, length), part);
        v->base = ids[i] >= v->base ? ids[i] + 1 : v->base;
    }
    return (int64_t)n;
}

/* Sets v->base: added tokens at the end of the list that are in no merge do not belong to the
 * vocabulary, as in Hugging Face's files. Also drops unused tokens at the end. */
static inline int gguf_find_base(gguf_vocabulary *v)
{
    gguf_items all = gguf_array(v->g, GGUF_KEY("merges"), GGUF_STRING);
    if (!v->spm && v->g->error[0] == 0 && all.at == NULL)
        return gguf_fail(v->g, "key " GGUF_KEY("merges") " is missing");
    for (int64_t i = 0; !v->spm && gguf_next(&all); i++)
        if (gguf_check_merge(v, i, all.text, all.size) < 0)
            return -1;
    int32_t used = v->count, base;
    while (used > v->base && v->tokens[used - 1].type == GGUF_TOKEN_UNUSED)
        used--;
    for (base = used; base > v->base && gguf_is_added(&v->tokens[base - 1]); base--)
        if (v->spm && v->tokens[base - 1].type != GGUF_TOKEN_CONTROL)
            break;
    v->base = base;
    if (used <= v->bos || used <= v->eos || used <= v->unk)
        return gguf_fail(v->g, "tokens from %ld on are unused, but one of them begins or ends text",
                         (long)used);
    v->count = used;
    return v->g->error[0] == 0 ? 0 : -1;
}

/* ---- the text of a tokenizer.json ------------------------------------------------------------ */
static inline void gguf_json_added(gguf_vocabulary *v)
{
    int n = 0;
    gguf_json_text(v, "\"added_tokens\":[");
    for (int32_t i = 0; i < v->count; i++) {
        const gguf_token *t = &v->tokens[i];
        if (!gguf_is_added(t) || t->size == 0)
            continue;
        gguf_json_text(v, n++ > 0 ? ",\n{\"id\":" : "{\"id\":");
        gguf_json_int(v, i);
        gguf_json_text(v, ",\"content\":");
        gguf_json_string(v, t->text, t->size);
        gguf_json_text(v, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                          "\"normalized\":false,\"special\":");
        gguf_json_text(v, t->type == GGUF_TOKEN_USER ? "false}" : "true}");
    }
    gguf_json_text(v, "],\n");
}

/* Writes the template that adds tokens before and after a text, for tokenizer.json. */
static inline void gguf_json_template(gguf_vocabulary *v, int begins, int ends)
{
    const int32_t ids[2] = { begins ? v->bos : -1, ends ? v->eos : -1 };
    const int one = ids[0] >= 0 && ids[0] == ids[1];
    gguf_json_text(v, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    for (int pair = 0; pair < 2; pair++) {
        for (int i = 0; i < 3; i++) {
            const int32_t id = i == 1 ? 0 : ids[i / 2];
            if (id < 0)
                continue;
            if (i == 1)
                gguf_json_text(v, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
            if (i == 1 && pair)
                gguf_json_text(v, ",{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}");
            gguf_json_text(v, i == 2 ? "," : "");
            gguf_json_text(v, i != 1 ? "{\"SpecialToken\":{\"id\":" : "");
            if (i != 1)
                gguf_json_string(v, v->tokens[id].text, v->tokens[id].size);
            gguf_json_text(v, i != 1 ? ",\"type_id\":0}}" : "");
            gguf_json_text(v, i == 0 ? "," : "");
        }
        gguf_json_text(v, pair == 0 ? "],\"pair\":[" : "],\"special_tokens\":{");
    }
    for (int i = 0, n = 0; i < 2; i++) {
        if (ids[i] < 0 || (i == 1 && one))
            continue;
        const gguf_token *t = &v->tokens[ids[i]];
        gguf_json_text(v, n++ > 0 ? "," : "");
        gguf_json_string(v, t->text, t->size);
        gguf_json_text(v, ":{\"id\":");
        gguf_json_string(v, t->text, t->size);
        gguf_json_text(v, ",\"ids\":[");
        gguf_json_int(v, ids[i]);
        gguf_json_text(v, "],\"tokens\":[");
        gguf_json_string(v, t->text, t->size);
        gguf_json_text(v, "]}");
    }
    gguf_json_text(v, "}},\n");
}

/* For SentencePiece, writes rules that replace spaces by U+2581 and, if prefix is nonzero, put a
 * U+2581 before a text. */
static inline void gguf_json_spaces(gguf_vocabulary *v, int prefix)
{
    static const char replace[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" BPE_SPACE "\"}";
    const int32_t inst = gguf_id_of(v, "[INST]", 6);
    const int first = prefix && inst >= 0 && v->tokens[inst].type == GGUF_TOKEN_CONTROL;
    gguf_json_text(v, "\"normalizer\":");
    if (first) {
        gguf_json_text(
            v, "null,\n\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" BPE_SPACE
               "\",\"prepend_scheme\":\"first\",\"split\":false},\n");
    } else {
        if (prefix)
            gguf_json_text(
                v, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                   "\"" BPE_SPACE "\"},");
        gguf_json_text(v, replace);
        gguf_json_text(v, prefix ? "]},\n" : ",\n");
        gguf_json_text(v, "\"pre_tokenizer\":null,\n");
    }
    gguf_json_text(
        v, "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
           "{\"String\":\"" BPE_SPACE "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
           "{\"type\":\"Fuse\"}");
    gguf_json_text(v,
                   prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
    gguf_json_text(v, "]},\n");
}

static inline void gguf_json_model(gguf_vocabulary *v)
{
    gguf_json_text(v, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (v->spm)
        gguf_json_string(v, v->tokens[v->unk].text, v->tokens[v->unk].size);
    else
        gguf_json_text(v, "null");
    gguf_json_text(v,
                   ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":");
    gguf_json_text(v, v->spm ? "true,\"byte_fallback\":true" : "false,\"byte_fallback\":false");
    gguf_json_text(v, ",\"ignore_merges\":");
    gguf_json_text(v, !v->spm && v->pre->ignore_merges ? "true,\n\"vocab\":{" : "false,\n\"vocab\":{");
    for (int32_t i = 0; i < v->base; i++) {
        gguf_json_text(v, i > 0 ? ",\n" : "");
        gguf_json_string(v, v->tokens[i].text, v->tokens[i].size);
        gguf_json_text(v, ":");
        gguf_json_int(v, i);
    }
    gguf_json_text(v, "},\n\"merges\":[");
    gguf_items all;
    memset(&all, 0, sizeof all);
    if (v->spm)
        gguf_derive_merges(v);
    else
        all = gguf_array(v->g, GGUF_KEY("merges"), GGUF_STRING);
    for (int n = 0; gguf_next(&all); n = 1) {
        gguf_json_text(v, n > 0 ? ",\n" : "");
        gguf_json_string(v, all.text, all.size);
    }
    gguf_json_text(v, "]}}\n");
}

static inline void gguf_json_tokenizer(gguf_vocabulary *v)
{
    gguf *g = v->g;
    const int begins = gguf_bool(g, GGUF_KEY("add_bos_token"), v->spm || v->pre->add_bos);
    const int ends = gguf_bool(g, GGUF_KEY("add_eos_token"), 0);
    const int prefix = gguf_bool(g, GGUF_KEY("add_space_prefix"), v->spm);
    if (begins && v->bos < 0)
        gguf_fail(g, "a text begins with the token of key " GGUF_KEY("bos_token_id") ", which is missing");
    if (ends && v->eos < 0)
        gguf_fail(g, "a text ends with the token of key " GGUF_KEY("eos_token_id") ", which is missing");
    if (g->error[0] != 0)
        return;
    gguf_json_text(v, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    gguf_json_added(v);
    if (begins || ends)
        gguf_json_template(v, begins, ends);
    if (v->spm) {
        gguf_json_spaces(v, prefix);
    } else {
        const char *splitter = prefix && v->pre == gguf_pres ? gguf_gpt2_prefix : v->pre->pre_tokenizer;
        gguf_json_text(v, "\"normalizer\":");
        gguf_json_text(v, v->pre->normalizer);
        gguf_json_text(v, ",\n\"pre_tokenizer\":");
        gguf_json_text(v, splitter);
        gguf_json_text(v, ",\n\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                          "\"trim_offsets\":true,\"use_regex\":true},\n");
    }
    gguf_json_model(v);
}

/* Returns the text of a tokenizer.json that describes the file's tokenizer. A 0 follows the *size
 * bytes, and the caller must free the text. Returns NULL with g->error on failure. */
static inline char *gguf_tokenizer_json(gguf *g, size_t *size)
{
    gguf_vocabulary v;
    memset(&v, 0, sizeof v);
    v.g = g;
    if (gguf_tokenizer_kind(&v) == 0 && gguf_read_tokens(&v) == 0 && gguf_find_base(&v) == 0)
        gguf_json_tokenizer(&v);
    free(v.tokens);
    free(v.slots);
    free(v.texts);
    free(v.merges);
    *size = v.size;
    if (g->error[0] == 0)
        return v.text;
    free(v.text);
    return NULL;
}

/* Reads the file's tokenizer into b. Returns 0. On failure returns -1 with g->error and b->error;
 * then nothing needs to be freed. */
static inline int gguf_tokenizer(gguf *g, bpe *b)
{
    size_t size = 0;
    char *text = gguf_tokenizer_json(g, &size);
    memset(b, 0, sizeof *b);
    if (text == NULL)
        snprintf(b->error, sizeof b->error, "%s", g->error);
    else if (bpe_read_text(b, g->path, text, size) != 0)
        gguf_fail(g, "%s", b->error);
    return text == NULL || b->error[0] != 0 ? -1 : 0;
}

/* ---- chats ----------------------------------------------------------------------------------- */
/* Copies to `to` the text of the token whose id is the value of a key. Leaves `to` unchanged if
 * there is no such token or if its text is too long. */
static inline void gguf_token_text(gguf *g, const char *key, char *to, size_t size)
{
    gguf_items all = gguf_array(g, GGUF_KEY("tokens"), GGUF_STRING);
    int64_t id = gguf_int(g, key, -1);
    while (id >= 0 && gguf_next(&all))
        if (id-- == 0 && all.size < size) {
            memcpy(to, all.text, all.size);
            to[all.size] = 0;
        }
}

/* Reads the file's chat template, with `name` as in chat_open. Returns 0, or -1 with g->error and
 * c->error. Call chat_free in both cases. */
static inline int gguf_chat(gguf *g, chat *c, const char *name)
{
    size_t size;
    memset(c, 0, sizeof *c);
    gguf_token_text(g, GGUF_KEY("bos_token_id"), c->bos_eos[0], sizeof c->bos_eos[0]);
    gguf_token_text(g, GGUF_KEY("eos_token_id"), c->bos_eos[1], sizeof c->bos_eos[1]);
    const char *text = gguf_text(g, "tokenizer.chat_template", &size);
    if (text != NULL)
        snprintf(c->source, sizeof c->source, "tokenizer.chat_template");
    if (g->error[0] != 0)
        return chat_fail(c, "%s", g->error);
    if ((text == NULL || chat_use(c, "model", text, size) == 0) &&
        (name == NULL || chat_select_named(c, name) == 0))
        return 0;
    return gguf_fail(g, "%s", c->error);
}

/* ---- by path, and as files of a folder ------------------------------------------------------- */
/* gguf_open_tokenizer and gguf_open_chat read tokenizer and chat template of a GGUF file, as
 * bpe_open and chat_open do of a folder. */
static inline int gguf_open_tokenizer(bpe *b, const char *path)
{
    gguf g;
    memset(b, 0, sizeof *b);
    if (gguf_open(&g, path) != 0 || gguf_tokenizer(&g, b) != 0)
        snprintf(b->error, sizeof b->error, "%s", g.error);
    gguf_close(&g);
    return g.error[0] == 0 ? 0 : -1;
}

static inline int gguf_open_chat(chat *c, const char *path, const char *name)
{
    gguf g;
    memset(c, 0, sizeof *c);
    if (gguf_open(&g, path) != 0 || gguf_chat(&g, c, name) != 0)
        chat_fail(c, "%s", g.error);
    gguf_close(&g);
    return g.error[0] == 0 ? 0 : -1;
}

/* Returns the text of a tokenizer_config.json with the tokens that begin and end a text, and with
 * the chat template. The caller must free it. Returns NULL with g->error on failure. */
static inline char *gguf_tokenizer_config(gguf *g, size_t *size)
{
    static const char *const names[][2] = { { "bos_token", GGUF_KEY("bos_token_id") },
                                            { "eos_token", GGUF_KEY("eos_token_id") },
                                            { "unk_token", GGUF_KEY("unknown_token_id") },
                                            { "pad_token", GGUF_KEY("padding_token_id") } };
    gguf_vocabulary v;
    memset(&v, 0, sizeof v);
    v.g = g;
    gguf_json_text(&v, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                       "  \"clean_up_tokenization_spaces\": false");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        gguf_items all = gguf_array(g, GGUF_KEY("tokens"), GGUF_STRING);
        int64_t id = gguf_int(g, names[i][1], -1);
        for (; id >= 0 && gguf_next(&all); id--)
            if (id == 0) {
                gguf_json_text(&v, ",\n  \"");
                gguf_json_text(&v, names[i][0]);
                gguf_json_text(&v, "\": ");
                gguf_json_string(&v, all.text, all.size);
            }
    }
    size_t n = 0;
    const char *text = gguf_text(g, "tokenizer.chat_template", &n);
    if (text != NULL) {
        gguf_json_text(&v, ",\n  \"chat_template\": ");
        gguf_json_string(&v, text, n);
    }
    gguf_json_text(&v, "\n}\n");
    *size = v.size;
    if (g->error[0] == 0)
        return v.text;
    free(v.text);
    return NULL;
}
#undef GGUF_KEY
#endif
