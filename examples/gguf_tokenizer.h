/* gguf_tokenizer.h - reads the tokenizer and the chat template of a GGUF file. To copy, with
 * gguf.h, chat.h, and tokenizer.h with the headers that it includes.
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
 *           text, must be one of gguf_pres
 *   llama   SentencePiece's BPE. As in transformers, each split of a token into two tokens is a
 *           merge. Merges into tokens of higher score come first; for equal scores, those with a
 *           longer first part. If all tokens have the same score, lower ids come first.
 *   gemma4  the same with a list of merges
 *   bert    WordPiece. A token that begins a word has U+2581 before its text there. A text ends with
 *           the separator, whatever the keys are, as in llama.cpp
 *   t5      SentencePiece's Unigram, also XLM-RoBERTa's
 * Settings that GGUF files lack are assumed to be those of these models: qwen2, qwen35, olmo,
 * command-r and modern-bert normalize to NFC; added tokens absorb no white space around them; with add_space_prefix, a space is put
 * before each text after an added token, but only before the first text in Mistral's
 * vocabularies, which have [INST]. C99 or C++11. */
#ifndef GGUF_TOKENIZER_H
#define GGUF_TOKENIZER_H
#include "chat.h"
#include "gguf.h"
#include "tokenizer.h"

#define GGUF_KEY(name) "tokenizer.ggml." name

typedef struct {
    /* pre_tokenizer and normalizer are JSON texts for tokenizer.json */
    const char *name, *pre_tokenizer, *normalizer;
    /* add_bos: whether a text begins with bos_token; ignore_merges: the option of the BPE model */
    int add_bos, ignore_merges;
} gguf_pre;

/* The values of tokenizer.ggml.model. */
typedef enum { GGUF_GPT2, GGUF_LLAMA, GGUF_GEMMA4, GGUF_BERT, GGUF_T5, GGUF_KINDS } gguf_kind;
static const char *const gguf_kinds[] = { "gpt2", "llama", "gemma4", "bert", "t5" };

typedef struct {
    gguf *g;
    gguf_kind kind;
    int spm;             /* nonzero for GGUF_LLAMA and GGUF_GEMMA4, SentencePiece's BPE */
    const gguf_pre *pre; /* if tokenizer.ggml.model is "gpt2", the rule that splits texts */
    char *texts;         /* memory for texts of tokens that differ from those in the file */
    bpe_list l;
} gguf_vocabulary;

/* ---- keys ------------------------------------------------------------------------------------ */
#define GGUF_SPLIT(regex)                                                                           \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}," GGUF_BYTES("false", "false") "]}"
#define GGUF_BYTES(space, regex)                                                                   \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":" space                                          \
    ",\"trim_offsets\":true,\"use_regex\":" regex "}"
/* The regular expressions, with the backslashes of C and of JSON. */
#define GGUF_ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GGUF_LINES   "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define GGUF_BEFORE  "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define GGUF_LLAMA(letters, digits, others)                                                        \
    GGUF_SPLIT(GGUF_ENDINGS "|" GGUF_BEFORE letters "+|" digits "| ?" others                       \
                            "+[\\\\r\\\\n]*" GGUF_LINES)
#define GGUF_UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define GGUF_LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define GGUF_CASES(endings, digits)                                                                \
    GGUF_SPLIT(GGUF_BEFORE GGUF_UPPER "*" GGUF_LOWER "+" endings "|" GGUF_BEFORE GGUF_UPPER        \
                                      "+" GGUF_LOWER "*" endings "|" digits                        \
                                      "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" GGUF_LINES)
#define GGUF_GPT2   GGUF_BYTES("false", "true")
#define GGUF_LLAMA3 GGUF_LLAMA("\\\\p{L}", "\\\\p{N}{1,3}", "[^\\\\s\\\\p{L}\\\\p{N}]")
#define GGUF_QWEN2  GGUF_LLAMA("\\\\p{L}", "\\\\p{N}", "[^\\\\s\\\\p{L}\\\\p{N}]")
#define GGUF_QWEN35 GGUF_LLAMA("[\\\\p{L}\\\\p{M}]", "\\\\p{N}", "[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]")
#define GGUF_TEKKEN GGUF_CASES("", "\\\\p{N}")
#define GGUF_O200K  GGUF_CASES(GGUF_ENDINGS "?", "\\\\p{N}{1,3}")
#define GGUF_DIGITS                                                                                \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":"        \
    "true}," GGUF_BYTES("false", "true") "]}"
#define GGUF_NFC "{\"type\":\"NFC\"}"
static const gguf_pre gguf_pres[] = {
    { "gpt-2", GGUF_GPT2, "null", 0, 0 },
    { "phi-2", GGUF_GPT2, "null", 0, 0 },
    { "olmo", GGUF_GPT2, GGUF_NFC, 0, 0 }, /* Pythia's as well */
    { "modern-bert", GGUF_GPT2, GGUF_NFC, 0, 0 },
    { "roberta-bpe", GGUF_GPT2, "null", 1, 0 },
    { "llama-bpe", GGUF_LLAMA3, "null", 1, 1 },
    { "llama3", GGUF_LLAMA3, "null", 1, 1 },
    { "llama-v3", GGUF_LLAMA3, "null", 1, 1 },
    { "smaug-bpe", GGUF_LLAMA3, "null", 0, 1 },
    { "dbrx", GGUF_LLAMA3, "null", 0, 0 }, /* Phi-4, OLMo 2 */
    { "glm4", GGUF_LLAMA3, "null", 0, 0 },
    { "chatglm-bpe", GGUF_LLAMA3, "null", 0, 0 },
    { "qwen2", GGUF_QWEN2, GGUF_NFC, 0, 0 },
    { "deepseek-r1-qwen", GGUF_QWEN2, GGUF_NFC, 0, 0 },
    { "qwen35", GGUF_QWEN35, GGUF_NFC, 0, 0 },
    { "tekken", GGUF_TEKKEN, "null", 0, 1 },
    { "gpt-4o", GGUF_O200K, "null", 0, 0 }, /* gpt-oss, Phi-4-mini */
    { "llama4", GGUF_O200K, "null", 0, 0 },
    { "smollm", GGUF_DIGITS, "null", 0, 0 },
    { "refact", GGUF_DIGITS, "null", 0, 0 }, /* Granite 3 */
    { "starcoder", GGUF_DIGITS, "null", 0, 0 },
    { "codeshell", GGUF_DIGITS, "null", 0, 0 },
    { "command-r", GGUF_DIGITS, GGUF_NFC, 0, 0 },
};
static const char gguf_gpt2_prefix[] = GGUF_BYTES("true", "true");
#undef GGUF_SPLIT
#undef GGUF_BYTES
#undef GGUF_ENDINGS
#undef GGUF_LINES
#undef GGUF_BEFORE
#undef GGUF_LLAMA
#undef GGUF_UPPER
#undef GGUF_LOWER
#undef GGUF_CASES
#undef GGUF_GPT2
#undef GGUF_LLAMA3
#undef GGUF_QWEN2
#undef GGUF_QWEN35
#undef GGUF_TEKKEN
#undef GGUF_O200K
#undef GGUF_DIGITS
#undef GGUF_NFC
enum { GGUF_PRES = sizeof gguf_pres / sizeof gguf_pres[0] };

/* Determines the kind of the file's tokenizer. Returns 0, or -1 with an error that lists the
 * supported kinds. */
static inline int gguf_tokenizer_kind(gguf_vocabulary *v)
{
    static const char *const others[][2] = {
        { "rwkv", ", RWKV's own" },
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
    int known = 0;
    while (known < GGUF_KINDS && strcmp(model, gguf_kinds[known]) != 0)
        known++;
    v->kind = (gguf_kind)known;
    v->spm = known == GGUF_LLAMA || known == GGUF_GEMMA4;
    if (known != GGUF_GPT2 && known != GGUF_KINDS)
        return 0;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(model, others[i][0]) == 0)
            what = others[i][1];
    if (known == GGUF_KINDS)
        return gguf_fail(
            g,
            "key " GGUF_KEY("model") " is \"%.40s\"%s; supported are gpt2 (byte-level BPE), llama "
                                     "and gemma4 (SentencePiece's BPE), t5 (its Unigram) and bert "
                                     "(WordPiece)",
            model, what);
    if ((pre == NULL || strcmp(pre, "default") == 0) && kind != NULL && strcmp(kind, "gpt2") == 0)
        pre = "gpt-2"; /* the key is missing in older files of GPT-2 */
    for (int i = 0; i < GGUF_PRES && pre != NULL; i++)
        if (strcmp(pre, gguf_pres[i].name) == 0)
            v->pre = &gguf_pres[i];
    if (v->pre != NULL)
        return 0;
    return gguf_fail(
        g,
        "key " GGUF_KEY(
            "pre") " is %s%.40s%s: how its text is split %s; supported are "
                   "gpt-2, olmo, llama-bpe, smaug-bpe, dbrx, glm4, qwen2, qwen35, tekken, "
                   "gpt-4o, smollm, refact, command-r and names for the same rules",
        pre != NULL ? "\"" : "", pre != NULL ? pre : "missing", pre != NULL ? "\"" : "",
        pre == NULL || strcmp(pre, "default") == 0
            ? "is not stored in such an old file, so convert the model again"
            : "is not supported");
}

/* Returns the token id that is the value of a key, or `fallback` if there is no such key. */
static inline int32_t gguf_bpe_id(gguf_vocabulary *v, const char *key, int32_t fallback)
{
    const int64_t id = gguf_int(v->g, key, fallback);
    if (gguf_find(v->g, key) != NULL && (id < 0 || id >= v->l.count))
        gguf_fail(v->g, "key %s is %lld: the ids of tokens are 0 to %ld", key, (long long)id,
                  (long)v->l.count - 1);
    return v->g->error[0] == 0 ? (int32_t)id : -1;
}

/* ---- tokens ---------------------------------------------------------------------------------- */
/* Returns how many bytes of a text an error text should print: at most 40, in whole characters. */
static inline int gguf_print_size(const char *text, size_t size)
{
    size_t n = size < 40 ? size : 40;
    while (n > 0 && n < size && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    return (int)n;
}

/* Undoes the changes of converters to GGUF, which write U+2581 in added tokens as a space, and fill
 * gaps of a vocabulary with tokens such as [PAD7] for token 7, which is marked as unused. In WordPiece,
 * they put U+2581 before tokens that begin a word, and remove ## from the others. */
static inline void gguf_hf_text(gguf_vocabulary *v, int32_t id, size_t *at)
{
    bpe_listed *t = &v->l.tokens[id];
    char filler[24];
    const int n = snprintf(filler, sizeof filler, "[PAD%ld]", (long)id);
    if (t->size == (uint32_t)n && memcmp(t->text, filler, t->size) == 0)
        t->type = BPE_TOKEN_UNUSED;
    if (v->kind == GGUF_BERT && t->type != BPE_TOKEN_CONTROL && t->type != BPE_TOKEN_UNUSED) {
        if (t->size >= 3 && memcmp(t->text, BPE_SPACE, 3) == 0) {
            t->text += 3;
            t->size -= 3;
            return;
        }
        char *to = v->texts + *at;
        memcpy(to, "##", 2);
        memcpy(to + 2, t->text, t->size);
        t->text = to;
        t->size += 2;
        *at += t->size;
    }
    if (!v->spm || t->type != BPE_TOKEN_USER || memchr(t->text, ' ', t->size) == NULL)
        return;
    bpe_step spaces = { BPE_REPLACE, " ", "", 1, 3, BPE_NEVER, NULL };
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
    const int scored = v->kind == GGUF_LLAMA || v->kind == GGUF_T5; /* others need no scores */
    if (scored)
        scores = gguf_array(g, GGUF_KEY("scores"), is_integer ? GGUF_I32 : GGUF_F32);
    if (g->error[0] == 0 && types.at != NULL && types.count != (uint64_t)v->l.count)
        return gguf_fail(g,
                         "key " GGUF_KEY("token_type") ": %llu types for %ld tokens, expected "
                                                       "one per token",
                         (unsigned long long)types.count, (long)v->l.count);
    if (g->error[0] == 0 && scored && scores.count != (uint64_t)v->l.count)
        return gguf_fail(g,
                         "key " GGUF_KEY("scores") ": %llu scores for %ld tokens, expected one "
                                                   "per token",
                         (unsigned long long)scores.count, (long)v->l.count);
    for (int32_t i = 0; i < v->l.count && g->error[0] == 0; i++) {
        bpe_listed *t = &v->l.tokens[i];
        t->type = BPE_TOKEN_NORMAL;
        if (gguf_next(&types)) {
            if (types.integer < 0 || types.integer > BPE_TOKEN_BYTE)
                return gguf_fail(g, "token %ld, \"%.*s\": type %lld; expected 1 to 6", (long)i,
                                 gguf_print_size(t->text, t->size), t->text,
                                 (long long)types.integer);
            t->type = types.integer > 0 ? (int)types.integer : BPE_TOKEN_NORMAL;
        } else if (v->spm && bpe_fallback_of(t->text, t->size) >= 0) {
            t->type = BPE_TOKEN_BYTE;
        }
        if (t->type == BPE_TOKEN_BYTE && bpe_fallback_of(t->text, t->size) < 0)
            return gguf_fail(g, "token %ld, \"%.*s\", has the type byte, but not the form <0x0A>",
                             (long)i, gguf_print_size(t->text, t->size), t->text);
        if (gguf_next(&scores))
            /* user-defined tokens have score 0, as in SentencePiece */
            t->score = t->type == BPE_TOKEN_USER ? 0 : scores.real;
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
    static const int32_t usual[GGUF_KINDS][3] = {
        { -1, -1, -1 }, { 1, 2, 0 }, { -1, -1, -1 }, { 101, 102, 100 }, { -1, 1, 2 }
    }; /* llama.cpp's defaults of bos, eos and the unknown token */
    const int bert = v->kind == GGUF_BERT;
    int32_t fallback[3];
    for (int i = 0; i < 3; i++)
        fallback[i] = v->l.count > usual[v->kind][i] ? usual[v->kind][i] : -1;
    v->l.bos = gguf_bpe_id(v, GGUF_KEY("bos_token_id"), fallback[0]);
    v->l.eos = gguf_bpe_id(v, GGUF_KEY("eos_token_id"), fallback[1]);
    v->l.unk = gguf_bpe_id(v, GGUF_KEY("unknown_token_id"), fallback[2]);
    if (bert) {
        v->l.bos = gguf_bpe_id(v, GGUF_KEY("cls_token_id"), v->l.bos);
        v->l.eos = gguf_bpe_id(v, GGUF_KEY("seperator_token_id"), v->l.eos); /* as in llama.cpp */
    }
    gguf_bpe_id(v, GGUF_KEY("eot_token_id"), -1);
    gguf_bpe_id(v, GGUF_KEY("eom_token_id"), -1);
    gguf_bpe_id(v, GGUF_KEY("padding_token_id"), -1);
    if (v->g->error[0] != 0)
        return -1;
    if (!typed && v->l.bos >= 0)
        v->l.tokens[v->l.bos].type = BPE_TOKEN_CONTROL;
    if (!typed && v->l.eos >= 0)
        v->l.tokens[v->l.eos].type = BPE_TOKEN_CONTROL;
    if (!typed && v->kind != GGUF_GPT2 && v->l.unk >= 0)
        v->l.tokens[v->l.unk].type = BPE_TOKEN_UNKNOWN;
    if ((bert || v->kind == GGUF_T5) && v->l.unk < 0)
        return gguf_fail(v->g, "key " GGUF_KEY("unknown_token_id") " is missing");
    if (bert && !typed)
        return gguf_fail(v->g, "key " GGUF_KEY("token_type") " is missing");
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
    v->l.count = (int32_t)all.count;
    while (slots < 2 * (size_t)v->l.count)
        slots *= 2;
    v->l.mask = (uint32_t)(slots - 1);
    v->l.tokens = (bpe_listed *)calloc((size_t)v->l.count, sizeof *v->l.tokens);
    v->l.slots = (uint32_t *)calloc(slots, sizeof *v->l.slots);
    if (v->l.tokens == NULL || v->l.slots == NULL)
        return gguf_fail(g, "out of memory for %ld tokens", (long)v->l.count);
    for (int32_t i = 0; gguf_next(&all); i++) {
        v->l.tokens[i].text = all.text;
        v->l.tokens[i].size = (uint32_t)all.size;
        if (!json_is_utf8(all.text, all.size))
            return gguf_fail(g, "the text of token %ld is not valid UTF-8", (long)i);
    }
    if (gguf_read_types(v) != 0 || gguf_read_ids(v) != 0)
        return -1;
    for (int32_t i = 0; i < v->l.count; i++)
        bytes += v->kind == GGUF_BERT                    ? (size_t)v->l.tokens[i].size + 2
                 : v->l.tokens[i].type == BPE_TOKEN_USER ? 3 * (size_t)v->l.tokens[i].size
                                                         : 0;
    v->texts = (char *)malloc(bytes);
    if (v->texts == NULL)
        return gguf_fail(g, "out of memory for %llu bytes", (unsigned long long)bytes);
    for (int32_t i = 0; i < v->l.count; i++) {
        gguf_hf_text(v, i, &at);
        uint32_t *slot = bpe_list_slot(&v->l, v->l.tokens[i].text, v->l.tokens[i].size);
        if (*slot != 0)
            return gguf_fail(g, "tokens %ld and %ld are both \"%.*s\"", (long)*slot - 1, (long)i,
                             gguf_print_size(v->l.tokens[i].text, v->l.tokens[i].size),
                             v->l.tokens[i].text);
        *slot = (uint32_t)i + 1;
    }
    return 0;
}

/* ---- merges ---------------------------------------------------------------------------------- */
/* Checks a merge of the file, "first second". Returns the length of the first part, or -1 with an
 * error. */
static inline int64_t gguf_check_merge(gguf_vocabulary *v, int64_t number, const char *text,
                                       size_t size)
{
    const char *space = (const char *)memchr(text, ' ', size);
    const size_t n = space != NULL ? (size_t)(space - text) : 0, m = space ? size - n - 1 : 0;
    char joined[2 * BPE_TOKEN_LONGEST];
    if (n == 0 || m == 0 || memchr(space + 1, ' ', m) != NULL || size > sizeof joined)
        return gguf_fail(v->g,
                         "key " GGUF_KEY("merges") ": merge %lld, \"%.*s\": two tokens and a space "
                                                   "between them are expected",
                         (long long)number, gguf_print_size(text, size), text);
    memcpy(joined, text, n);
    memcpy(joined + n, space + 1, m);
    const int32_t ids[3] = { bpe_list_id(&v->l, text, n), bpe_list_id(&v->l, space + 1, m),
                             bpe_list_id(&v->l, joined, n + m) };
    for (int i = 0; i < 3; i++) {
        const char *part = i == 0 ? text : i == 1 ? space + 1 : joined;
        const size_t length = i == 0 ? n : i == 1 ? m : n + m;
        if (ids[i] < 0)
            return gguf_fail(v->g,
                             "key " GGUF_KEY("merges") ": merge %lld has \"%.*s\", which is not "
                                                       "a token",
                             (long long)number, gguf_print_size(part, length), part);
        v->l.base = ids[i] >= v->l.base ? ids[i] + 1 : v->l.base;
    }
    return (int64_t)n;
}

/* Sets v->l.base: added tokens at the end of the list that are in no merge do not belong to the
 * vocabulary, as in Hugging Face's files. Also drops unused tokens at the end. */
static inline int gguf_find_base(gguf_vocabulary *v)
{
    gguf_items all = gguf_array(v->g, GGUF_KEY("merges"), GGUF_STRING);
    const int listed = v->kind == GGUF_GPT2 || v->kind == GGUF_GEMMA4;
    if (listed && v->g->error[0] == 0 && all.at == NULL)
        return gguf_fail(v->g, "key " GGUF_KEY("merges") " is missing");
    for (int64_t i = 0; listed && gguf_next(&all); i++)
        if (gguf_check_merge(v, i, all.text, all.size) < 0)
            return -1;
    int32_t used = v->l.count, base;
    while (used > v->l.base && v->l.tokens[used - 1].type == BPE_TOKEN_UNUSED)
        used--;
    for (base = used;
         v->kind != GGUF_BERT && base > v->l.base && bpe_list_is_added(&v->l.tokens[base - 1]);
         base--)
        if (v->spm && v->l.tokens[base - 1].type != BPE_TOKEN_CONTROL)
            break;
    v->l.base = base;
    if (used <= v->l.bos || used <= v->l.eos || used <= v->l.unk)
        return gguf_fail(v->g, "tokens from %ld on are unused, but one of them begins or ends text",
                         (long)used);
    v->l.count = used;
    return v->g->error[0] == 0 ? 0 : -1;
}

/* ---- the text of a tokenizer.json ------------------------------------------------------------ */
static inline void gguf_json_model(gguf_vocabulary *v)
{
    bpe_list_bpe(&v->l, v->spm ? v->l.unk : -1, v->spm, !v->spm && v->pre->ignore_merges);
    gguf_items all;
    memset(&all, 0, sizeof all);
    if (v->kind == GGUF_LLAMA)
        bpe_list_merges(&v->l);
    else
        all = gguf_array(v->g, GGUF_KEY("merges"), GGUF_STRING);
    for (int n = 0; gguf_next(&all); n = 1) {
        json_add_text(&v->l.out, n > 0 ? ",\n" : "");
        json_add_string(&v->l.out, all.text, all.size);
    }
    json_add_text(&v->l.out, "]}}\n");
}

/* Writes normalizer, pre-tokenizer, decoder and model of WordPiece. */
static inline void gguf_json_wordpiece(gguf_vocabulary *v)
{
    static const char *const values[] = { "false", "true" };
    const int lower = gguf_bool(v->g, GGUF_KEY("normalizer.lowercase"), 1);
    const int accents = gguf_bool(v->g, GGUF_KEY("normalizer.strip_accents"), lower);
    json_buffer *out = &v->l.out;
    json_add_text(out, "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                       "\"handle_chinese_chars\":true,\"strip_accents\":");
    json_add_text(out, values[accents != 0]);
    json_add_text(out, ",\"lowercase\":");
    json_add_text(out, values[lower != 0]);
    json_add_text(out, "},\n\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\n\"decoder\":{"
                       "\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},\n\"model\":{"
                       "\"type\":\"WordPiece\",\"unk_token\":");
    json_add_string(out, v->l.tokens[v->l.unk].text, v->l.tokens[v->l.unk].size);
    json_add_text(out, ",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100,\n"
                       "\"vocab\":");
    bpe_list_vocabulary(&v->l);
    json_add_text(out, "}}\n");
}

/* Writes the tokenizer.json of SentencePiece's Unigram. */
static inline void gguf_json_unigram(gguf_vocabulary *v, int begins, int ends)
{
    gguf *g = v->g;
    const gguf_key *map = gguf_find(g, GGUF_KEY("precompiled_charsmap"));
    bpe_spm m;
    memset(&m, 0, sizeof m);
    m.unigram = 1;
    m.prefix = gguf_bool(g, GGUF_KEY("add_space_prefix"), 1);
    /* XLM-RoBERTa's tokenizer splits at white space, even if the converter has written another key */
    const char *arch = gguf_text(g, "general.architecture", NULL);
    m.strips = (int)gguf_bool(g, GGUF_KEY("remove_extra_whitespaces"), 0) ||
               (arch != NULL && strcmp(arch, "bert") == 0);
    if (map != NULL &&
        (map->type != GGUF_ARRAY || (map->item_type != GGUF_U8 && map->item_type != GGUF_I8)))
        gguf_fail(g, "key %s: an array of bytes is expected", map->name);
    if (g->error[0] != 0)
        return;
    if (map != NULL) {
        m.charsmap.s = map->value;
        m.charsmap.end = map->value + map->count;
    }
    double least = 0; /* the score of unknown characters follows from the least score */
    for (int32_t i = 0; i < v->l.count; i++) {
        const bpe_listed *t = &v->l.tokens[i];
        m.byte_fallback |= t->type == BPE_TOKEN_BYTE;
        least = t->type == BPE_TOKEN_NORMAL && t->score < least ? t->score : least;
    }
    for (int32_t i = 0; i < v->l.count; i++)
        v->l.tokens[i].score = v->l.tokens[i].score < least ? least : v->l.tokens[i].score;
    m.words = map != NULL && m.prefix && m.strips;
    m.list = v->l;
    bpe_spm_write(&m, begins, ends);
    v->l = m.list;
}

static inline void gguf_json_tokenizer(gguf_vocabulary *v)
{
    gguf *g = v->g;
    const int bert = v->kind == GGUF_BERT, t5 = v->kind == GGUF_T5;
    const int begins =
        gguf_bool(g, GGUF_KEY("add_bos_token"), v->spm || bert || (v->pre && v->pre->add_bos));
    const int roberta = t5 || (v->pre != NULL && strcmp(v->pre->name, "roberta-bpe") == 0);
    const int twice = gguf_bool(g, GGUF_KEY("add_sep_token"), roberta && !t5) && roberta;
    /* a text of bert ends with its separator, whatever the keys are, as in llama.cpp */
    const int ends = bert || gguf_bool(g, GGUF_KEY("add_eos_token"), t5);
    const int prefix = gguf_bool(g, GGUF_KEY("add_space_prefix"), v->spm);
    if (begins && v->l.bos < 0)
        gguf_fail(g, "a text begins with the token of key " GGUF_KEY(
                         "bos_token_id") ", which is missing");
    if (ends && v->l.eos < 0)
        gguf_fail(
            g, "a text ends with the token of key " GGUF_KEY("eos_token_id") ", which is missing");
    v->l.separators = ends ? 1 + twice : 0;
    if (g->error[0] != 0)
        return;
    if (t5) {
        gguf_json_unigram(v, begins, ends);
        return;
    }
    json_add_text(&v->l.out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    bpe_list_added(&v->l);
    if (begins || ends)
        bpe_list_template(&v->l, begins, ends);
    if (bert) {
        gguf_json_wordpiece(v);
        return;
    }
    if (v->spm) {
        bpe_list_spaces(&v->l, prefix, "");
    } else {
        const char *splitter =
            prefix && v->pre == gguf_pres ? gguf_gpt2_prefix : v->pre->pre_tokenizer;
        json_add_text(&v->l.out, "\"normalizer\":");
        json_add_text(&v->l.out, v->pre->normalizer);
        json_add_text(&v->l.out, ",\n\"pre_tokenizer\":");
        json_add_text(&v->l.out, splitter);
        json_add_text(&v->l.out, ",\n\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                                 "\"trim_offsets\":true,\"use_regex\":true},\n");
    }
    gguf_json_model(v);
}

/* Ends the writing of a text. Returns it and its *size, or NULL with g->error after freeing it. */
static inline char *gguf_end_text(gguf_vocabulary *v, size_t *size)
{
    if (v->l.error[0] != 0)
        gguf_fail(v->g, "%s", v->l.error);
    if (v->l.out.failed)
        gguf_fail(v->g, "out of memory for %llu bytes of tokens",
                  (unsigned long long)v->l.out.capacity);
    if (v->g->error[0] != 0)
        free(v->l.out.text);
    *size = v->l.out.size;
    return v->g->error[0] == 0 ? v->l.out.text : NULL;
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
    free(v.l.tokens);
    free(v.l.slots);
    free(v.texts);
    free(v.l.merges);
    return gguf_end_text(&v, size);
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
    json_add_text(&v.l.out, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                            "  \"clean_up_tokenization_spaces\": false");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        gguf_items all = gguf_array(g, GGUF_KEY("tokens"), GGUF_STRING);
        int64_t id = gguf_int(g, names[i][1], -1);
        for (; id >= 0 && gguf_next(&all); id--)
            if (id == 0) {
                json_add_text(&v.l.out, ",\n  \"");
                json_add_text(&v.l.out, names[i][0]);
                json_add_text(&v.l.out, "\": ");
                json_add_string(&v.l.out, all.text, all.size);
            }
    }
    size_t n = 0;
    const char *text = gguf_text(g, "tokenizer.chat_template", &n);
    if (text != NULL) {
        json_add_text(&v.l.out, ",\n  \"chat_template\": ");
        json_add_string(&v.l.out, text, n);
    }
    json_add_text(&v.l.out, "\n}\n");
    return gguf_end_text(&v, size);
}
#undef GGUF_KEY
#endif
