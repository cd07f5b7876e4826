/* tokenizer_files.h - converts other files of tokenizers to the text of a tokenizer.json, for
 * tokenizer.h: vocab.txt of BERT, SentencePiece's tokenizer.model, and Mistral's tekken.json. To copy, with json.h. C99 or C++11. */
#ifndef TOKENIZER_FILES_H
#define TOKENIZER_FILES_H
#include "json.h"

#define BPE_SAVE_HINT                                                                              \
    "in Python, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes tokenizer.json"

/* Ends a conversion. Returns the text, which the caller must free, and its *size; or NULL with
 * d->error if there was an error or memory ran out. Frees d's memory. */
static inline char *bpe_end_text(json *d, json_buffer *out, size_t *size)
{
    if (out->failed)
        json_fail(d, 0, "out of memory for %.0f bytes of tokens", (double)out->capacity);
    if (d->error[0])
        free(out->text);
    json_free(d);
    *size = out->size;
    return d->error[0] ? NULL : out->text;
}

/* ---- hashes ----------------------------------------------------------------------------------- */
/* Returns the hash of a text whose hash without its last n bytes, s, is h, before bpe_hash_end. */
static inline uint32_t bpe_hash_more(uint32_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h;
}

#define BPE_HASH 2166136261u /* the hash of no bytes */

static inline uint32_t bpe_hash_end(uint32_t h) { return h ^ h >> 15; }

static inline uint32_t bpe_hash(const char *s, size_t n)
{
    return bpe_hash_end(bpe_hash_more(BPE_HASH, s, n));
}

#define BPE_SPACE "\xe2\x96\x81" /* U+2581, which stands for a space */

/* ---- lists of tokens, as in SentencePiece's tokenizer.model and in GGUF files ----------------- */
/* Types of tokens, as in both files. */
enum {
    BPE_TOKEN_NORMAL = 1,
    BPE_TOKEN_UNKNOWN,
    BPE_TOKEN_CONTROL,
    BPE_TOKEN_USER, /* an added token, which is searched for in a text before BPE runs */
    BPE_TOKEN_UNUSED,
    BPE_TOKEN_BYTE,
    BPE_TOKEN_LONGEST = 1024 /* longest token, in bytes, for which merges are derived */
};

typedef struct {
    const char *text;
    uint32_t size;
    int type;
    double score;
} bpe_listed;

typedef struct {
    double score;
    int32_t id, left, right;
    uint32_t sizes[2]; /* number of characters of the left and the right part */
} bpe_list_merge;

typedef struct {
    bpe_listed *tokens;
    /* count: number of tokens; base: tokens from this id on are added ones that are not in the
     * vocabulary */
    int32_t count, base;
    int32_t bos, eos, unk;
    int separators; /* number of eos between two texts, if a text ends with eos */
    /* hash table of tokens; a slot has 1 + the token's id, or 0 if it is empty */
    uint32_t *slots, mask;
    bpe_list_merge *merges;
    size_t merge_count, merge_capacity;
    json_buffer out; /* the text of the tokenizer.json that is being written */
    char error[256];
} bpe_list;

/* Stores an error, unless an earlier one is stored. Returns -1. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
bpe_list_fail(bpe_list *v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (v->error[0] == 0)
        vsnprintf(v->error, sizeof v->error, format, args);
    va_end(args);
    return -1;
}

/* Returns the slot that holds a token's text, or the empty slot where it would be put. */
static inline uint32_t *bpe_list_slot(const bpe_list *v, const char *text, size_t size)
{
    for (uint32_t i = bpe_hash(text, size);; i++) {
        uint32_t *slot = &v->slots[i & v->mask];
        if (*slot == 0 || (v->tokens[*slot - 1].size == size &&
                           memcmp(v->tokens[*slot - 1].text, text, size) == 0))
            return slot;
    }
}

/* Returns the id of the token with this text, or -1. */
static inline int32_t bpe_list_id(const bpe_list *v, const char *text, size_t size)
{
    return (int32_t)*bpe_list_slot(v, text, size) - 1;
}

/* Returns whether a token is an added one, which is searched for in a text as it is. */
static inline int bpe_list_is_added(const bpe_listed *t)
{
    return t->type == BPE_TOKEN_CONTROL || t->type == BPE_TOKEN_USER ||
           t->type == BPE_TOKEN_UNKNOWN;
}

/* Compares two merges for qsort: the order is that of transformers. */
static inline int bpe_list_order(const void *a, const void *b)
{
    const bpe_list_merge *p = (const bpe_list_merge *)a, *q = (const bpe_list_merge *)b;
    return p->score != q->score         ? (p->score < q->score ? 1 : -1)
           : p->sizes[0] != q->sizes[0] ? (p->sizes[0] < q->sizes[0] ? 1 : -1)
           : p->sizes[1] != q->sizes[1] ? (p->sizes[1] < q->sizes[1] ? 1 : -1)
                                        : (p->id > q->id) - (p->id < q->id);
}

static inline int bpe_list_is_mergeable(const bpe_listed *t)
{
    return (t->type == BPE_TOKEN_NORMAL || t->type == BPE_TOKEN_USER) &&
           memchr(t->text, ' ', t->size) == NULL;
}

/* Appends every merge that results in token `id`: one for each position at which its text splits
 * into two tokens. */
static inline int bpe_list_split(bpe_list *v, int32_t id)
{
    const bpe_listed *t = &v->tokens[id];
    uint32_t before = 1, all = 0;
    for (size_t i = 0; i < t->size; i++)
        all += ((unsigned char)t->text[i] & 0xc0) != 0x80;
    for (size_t i = 1; i < t->size; i++) {
        if (((unsigned char)t->text[i] & 0xc0) == 0x80)
            continue;
        bpe_list_merge m = { t->score, id, -1, -1, { before, all - before } };
        before++;
        m.left = bpe_list_id(v, t->text, i);
        if (m.left < 0 || !bpe_list_is_mergeable(&v->tokens[m.left]))
            continue;
        m.right = bpe_list_id(v, t->text + i, t->size - i);
        if (m.right < 0 || !bpe_list_is_mergeable(&v->tokens[m.right]))
            continue;
        if (v->merge_count == v->merge_capacity) {
            const size_t capacity = 2 * v->merge_capacity + 1024;
            bpe_list_merge *more = (bpe_list_merge *)realloc(v->merges, capacity * sizeof *more);
            if (more == NULL)
                return bpe_list_fail(v, "out of memory for %llu merges",
                                     (unsigned long long)capacity);
            v->merges = more;
            v->merge_capacity = capacity;
        }
        v->merges[v->merge_count++] = m;
    }
    return 0;
}

/* If all normal tokens have the same score, the converter had no scores. Then sets scores by id,
 * because ids follow the order of training. */
static inline void bpe_list_score_by_id(bpe_list *v)
{
    int32_t first = 0;
    while (first < v->count && v->tokens[first].type != BPE_TOKEN_NORMAL)
        first++;
    for (int32_t i = first; i < v->count; i++)
        if (v->tokens[i].type == BPE_TOKEN_NORMAL && v->tokens[i].score != v->tokens[first].score)
            return;
    for (int32_t i = first; i < v->count; i++)
        if (v->tokens[i].type == BPE_TOKEN_NORMAL)
            v->tokens[i].score = -(double)i;
}

/* Derives the merges of SentencePiece from the tokens' scores, and writes them. */
static inline int bpe_list_merges(bpe_list *v)
{
    bpe_list_score_by_id(v);
    for (int32_t i = 0; i < v->count; i++) {
        const bpe_listed *t = &v->tokens[i];
        if (!bpe_list_is_mergeable(t))
            continue;
        if (t->size > BPE_TOKEN_LONGEST)
            return bpe_list_fail(v, "token %ld has %lu bytes: at most %d are expected", (long)i,
                                 (unsigned long)t->size, (int)BPE_TOKEN_LONGEST);
        if (bpe_list_split(v, i) != 0)
            return -1;
    }
    if (v->merge_count > 0)
        qsort(v->merges, v->merge_count, sizeof *v->merges, bpe_list_order);
    for (size_t i = 0; i < v->merge_count; i++) {
        const bpe_listed *left = &v->tokens[v->merges[i].left];
        const bpe_listed *right = &v->tokens[v->merges[i].right];
        json_add_text(&v->out, i > 0 ? ",\n[" : "[");
        json_add_string(&v->out, left->text, left->size);
        json_add_text(&v->out, ",");
        json_add_string(&v->out, right->text, right->size);
        json_add_text(&v->out, "]");
    }
    return v->error[0] == 0 ? 0 : -1;
}

static inline void bpe_list_added(bpe_list *v)
{
    int n = 0;
    json_add_text(&v->out, "\"added_tokens\":[");
    for (int32_t i = 0; i < v->count; i++) {
        const bpe_listed *t = &v->tokens[i];
        if (!bpe_list_is_added(t) || t->size == 0)
            continue;
        json_add_text(&v->out, n++ > 0 ? ",\n{\"id\":" : "{\"id\":");
        json_add_int(&v->out, i);
        json_add_text(&v->out, ",\"content\":");
        json_add_string(&v->out, t->text, t->size);
        json_add_text(&v->out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                               "\"normalized\":false,\"special\":");
        json_add_text(&v->out, t->type == BPE_TOKEN_USER ? "false}" : "true}");
    }
    json_add_text(&v->out, "],\n");
}

/* Writes one element of a template: a text ("A" or "B"), or a token if `text` is NULL. */
static inline void bpe_list_element(bpe_list *v, const char *text, int32_t id, int type, int first)
{
    json_add_text(&v->out, first ? "" : ",");
    json_add_text(&v->out, text != NULL ? "{\"Sequence\":{\"id\":" : "{\"SpecialToken\":{\"id\":");
    if (text != NULL)
        json_add_string(&v->out, text, 1);
    else
        json_add_string(&v->out, v->tokens[id].text, v->tokens[id].size);
    json_add_text(&v->out, type ? ",\"type_id\":1}}" : ",\"type_id\":0}}");
}

/* Writes the template that adds tokens before and after a text, for tokenizer.json. */
static inline void bpe_list_template(bpe_list *v, int begins, int ends)
{
    const int32_t ids[2] = { begins ? v->bos : -1, ends ? v->eos : -1 };
    const int one = ids[0] >= 0 && ids[0] == ids[1];
    json_add_text(&v->out, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    for (int pair = 0; pair < 2; pair++) {
        const int last = pair && v->separators > 0; /* token type of the end */
        if (ids[0] >= 0)
            bpe_list_element(v, NULL, ids[0], 0, 1);
        bpe_list_element(v, "A", 0, 0, ids[0] < 0);
        for (int i = 0; i < v->separators && pair; i++)
            bpe_list_element(v, NULL, v->eos, 0, 0);
        if (pair)
            bpe_list_element(v, "B", 0, 1, 0);
        if (ids[1] >= 0)
            bpe_list_element(v, NULL, ids[1], last, 0);
        json_add_text(&v->out, pair == 0 ? "],\"pair\":[" : "],\"special_tokens\":{");
    }
    for (int i = 0, n = 0; i < 2; i++) {
        if (ids[i] < 0 || (i == 1 && one))
            continue;
        const bpe_listed *t = &v->tokens[ids[i]];
        json_add_text(&v->out, n++ > 0 ? "," : "");
        json_add_string(&v->out, t->text, t->size);
        json_add_text(&v->out, ":{\"id\":");
        json_add_string(&v->out, t->text, t->size);
        json_add_text(&v->out, ",\"ids\":[");
        json_add_int(&v->out, ids[i]);
        json_add_text(&v->out, "],\"tokens\":[");
        json_add_string(&v->out, t->text, t->size);
        json_add_text(&v->out, "]}");
    }
    json_add_text(&v->out, "}},\n");
}

/* For SentencePiece, writes rules that replace spaces by U+2581 and, if prefix is nonzero, put a
 * U+2581 before a text. `before` is the JSON text of other normalizers, each with a comma after it. */
static inline void bpe_list_spaces(bpe_list *v, int prefix, const char *before)
{
    static const char replace[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" BPE_SPACE "\"}";
    const int32_t inst = bpe_list_id(v, "[INST]", 6);
    const int first =
        prefix && *before == 0 && inst >= 0 && v->tokens[inst].type == BPE_TOKEN_CONTROL;
    json_add_text(&v->out, "\"normalizer\":");
    if (first) {
        json_add_text(
            &v->out, "null,\n\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" BPE_SPACE
                     "\",\"prepend_scheme\":\"first\",\"split\":false},\n");
    } else {
        const int several = prefix || *before != 0;
        json_add_text(&v->out, several ? "{\"type\":\"Sequence\",\"normalizers\":[" : "");
        json_add_text(&v->out, before);
        json_add_text(&v->out,
                      prefix ? "{\"type\":\"Prepend\",\"prepend\":\"" BPE_SPACE "\"}," : "");
        json_add_text(&v->out, replace);
        json_add_text(&v->out, several ? "]},\n" : ",\n");
        json_add_text(&v->out, "\"pre_tokenizer\":null,\n");
    }
    json_add_text(
        &v->out,
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\"" BPE_SPACE "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
        "{\"type\":\"Fuse\"}");
    json_add_text(&v->out,
                  prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
    json_add_text(&v->out, "]},\n");
}

/* Writes the vocabulary of a model, an object. */
static inline void bpe_list_vocabulary(bpe_list *v)
{
    for (int32_t i = 0; i < v->base; i++) {
        json_add_text(&v->out, i > 0 ? ",\n" : "{");
        json_add_string(&v->out, v->tokens[i].text, v->tokens[i].size);
        json_add_text(&v->out, ":");
        json_add_int(&v->out, i);
    }
    json_add_text(&v->out, v->base > 0 ? "}" : "{}");
}

/* Writes a BPE model up to its merges. unk: the id of the unknown token, or -1. */
static inline void bpe_list_bpe(bpe_list *v, int32_t unk, int byte_fallback, int ignore_merges)
{
    json_add_text(&v->out, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (unk >= 0)
        json_add_string(&v->out, v->tokens[unk].text, v->tokens[unk].size);
    else
        json_add_text(&v->out, "null");
    json_add_text(&v->out,
                  ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":");
    json_add_text(&v->out, unk >= 0 ? "true,\"byte_fallback\":" : "false,\"byte_fallback\":");
    json_add_text(&v->out, byte_fallback ? "true,\"ignore_merges\":" : "false,\"ignore_merges\":");
    json_add_text(&v->out, ignore_merges ? "true,\n\"vocab\":" : "false,\n\"vocab\":");
    bpe_list_vocabulary(v);
    json_add_text(&v->out, ",\n\"merges\":[");
}

/* ---- tokenizer.model --------------------------------------------------------------------------- */
/* A message of protocol buffers, of which a part has been read. */
typedef struct {
    const unsigned char *s, *end;
} bpe_proto;

/* Reads a number of 7 bits a byte. Returns 0, or -1 at the end of the message. */
static inline int bpe_proto_number(bpe_proto *p, uint64_t *number)
{
    *number = 0;
    for (int shift = 0; p->s < p->end && shift < 64; shift += 7) {
        *number |= (uint64_t)(*p->s & 127) << shift;
        if (*p->s++ < 128)
            return 0;
    }
    return -1;
}

/* Reads the next field: its number, and its value, a number or (for texts and messages) bytes. Returns 1,
 * 0 at the end of the message, or -1 if it is not one. */
static inline int bpe_proto_next(bpe_proto *p, int *field, uint64_t *number, bpe_proto *bytes)
{
    uint64_t key, size;
    if (p->s == p->end)
        return 0;
    if (bpe_proto_number(p, &key) != 0 || key >> 3 > 1 << 20)
        return -1;
    *field = (int)(key >> 3);
    *number = 0;
    bytes->s = bytes->end = p->s;
    if ((key & 7) == 0)
        return bpe_proto_number(p, number) == 0 ? 1 : -1;
    size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : 0;
    if (size == 0 && ((key & 7) != 2 || bpe_proto_number(p, &size) != 0))
        return -1;
    if (size > (uint64_t)(p->end - p->s))
        return -1;
    bytes->s = p->s;
    bytes->end = p->s = p->s + size;
    for (int i = 0; i < 4 && (key & 7) == 5; i++)
        *number |= (uint64_t)bytes->s[i] << 8 * i;
    return 1;
}

typedef struct {
    bpe_list list;
    int unigram, byte_fallback; /* of the trainer's settings */
    int prefix, strips,
        escapes;        /* add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces */
    bpe_proto charsmap; /* the precompiled_charsmap */
    /* if nonzero, texts are split at white space, and U+2581 is put before each word, as in Hugging
     * Face's files of XLM-RoBERTa; `prefix` and `strips` are then not used */
    int words;
} bpe_spm;

/* Reads the settings of the trainer (field 2 of the file) and the normalizer (field 3). */
static inline int bpe_spm_settings(bpe_spm *m, json *d, int settings, bpe_proto p)
{
    uint64_t number;
    bpe_proto bytes;
    int field, status;
    while ((status = bpe_proto_next(&p, &field, &number, &bytes)) > 0) {
        if (settings == 3 && field == 2)
            m->charsmap = bytes;
        else if (settings == 3 && field >= 3 && field <= 5)
            *(field == 3 ? &m->prefix : field == 4 ? &m->strips : &m->escapes) = number != 0;
        else if (settings == 2 && field == 35)
            m->byte_fallback = number != 0;
        else if (settings == 2 && field >= 40 && field <= 42)
            *(field == 40   ? &m->list.unk
              : field == 41 ? &m->list.bos
                            : &m->list.eos) = number < INT32_MAX ? (int32_t)number : -1;
        else if (settings == 2 && field == 3 && number != 1 && number != 2)
            return json_fail(d, 0, "model_type %.0f: expected 1 (Unigram) or 2 (BPE)",
                             (double)number);
        else if (settings == 2 && field == 3)
            m->unigram = number == 1;
        else if (settings == 2 && field == 24 && number != 0)
            return json_fail(d, 0, "treat_whitespace_as_suffix is not supported; " BPE_SAVE_HINT);
    }
    return status == 0 ? 0 : json_fail(d, 0, "it is not a SentencePiece model, or it is cut off");
}

/* Reads a token: its text, score and type. */
static inline int bpe_spm_token(bpe_listed *t, bpe_proto p)
{
    uint64_t number;
    bpe_proto bytes;
    int field, status;
    t->type = BPE_TOKEN_NORMAL;
    t->text = "";
    while ((status = bpe_proto_next(&p, &field, &number, &bytes)) > 0) {
        if (field == 1) {
            t->text = (const char *)bytes.s;
            t->size = (uint32_t)(bytes.end - bytes.s);
        } else if (field == 2) {
            const uint32_t bits = (uint32_t)number;
            float score;
            memcpy(&score, &bits, sizeof score);
            t->score = (double)score;
        } else if (field == 3) {
            t->type = number <= BPE_TOKEN_BYTE ? (int)number : BPE_TOKEN_NORMAL;
        }
    }
    return status;
}

/* Reads the whole file, n bytes. Returns 0, or -1 with d->error. */
static inline int bpe_spm_read(bpe_spm *m, json *d, const char *file, size_t n)
{
    bpe_list *v = &m->list;
    const bpe_proto all = { (const unsigned char *)file, (const unsigned char *)file + n };
    size_t slots = 64;
    for (int pass = 0; pass < 2; pass++) {
        bpe_proto p = all, bytes;
        uint64_t number;
        int field, status;
        v->count = 0;
        while ((status = bpe_proto_next(&p, &field, &number, &bytes)) > 0) {
            if (field == 1 && pass == 1 && bpe_spm_token(&v->tokens[v->count], bytes) != 0)
                break;
            v->count += field == 1;
            if (v->count == 1 << 26)
                return json_fail(d, 0, "it has more than %d tokens", v->count - 1);
            if ((field == 2 || field == 3) && pass == 0 &&
                bpe_spm_settings(m, d, field, bytes) != 0)
                return -1;
        }
        if (status != 0 || v->count == 0)
            return json_fail(d, 0, "it is not a SentencePiece model, or it is cut off");
        while (slots < 2 * (size_t)v->count)
            slots *= 2;
        if (pass == 0) {
            v->tokens = (bpe_listed *)calloc((size_t)v->count, sizeof *v->tokens);
            v->slots = (uint32_t *)calloc(slots, sizeof *v->slots);
            v->mask = (uint32_t)(slots - 1);
        }
        if (v->tokens == NULL || v->slots == NULL)
            return json_fail(d, 0, "out of memory for %.0f tokens", (double)v->count);
    }
    for (int32_t i = 0; i < v->count; i++) {
        const bpe_listed *t = &v->tokens[i];
        uint32_t *slot = bpe_list_slot(v, t->text, t->size);
        if (*slot != 0)
            return json_fail(d, 0, "tokens %.0f and %.0f are equal", (double)(*slot - 1),
                             (double)i);
        *slot = (uint32_t)i + 1;
        if (!(t->score > -1e30 && t->score < 1e30))
            return json_fail(d, 0, "token %.0f: its score is not between -1e30 and 1e30",
                             (double)i);
    }
    v->base = v->count;
    if (v->unk < 0 || v->unk >= v->count)
        return json_fail(d, 0, "unk_id %.0f: expected the id of a token", (double)v->unk);
    return m->escapes ? 0 : json_fail(d, 0, "escape_whitespaces is off, which is not supported");
}

/* Decodes n characters of base64 to `to`. Returns the number of bytes, or SIZE_MAX if they are not
 * base64. */
static inline size_t bpe_base64(const char *s, size_t n, unsigned char *to)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t size = 0;
    uint32_t bits = 0;
    for (int i = 0; i < 2 && n > 2 && (n + (size_t)i) % 4 == 0 && s[n - 1] == '='; i++)
        n--; /* padding */
    for (size_t i = 0; i < n; i++) {
        const char *at = s[i] != 0 ? strchr(digits, s[i]) : NULL;
        if (at == NULL)
            return SIZE_MAX;
        bits = bits << 6 | (uint32_t)(at - digits);
        if (i % 4 != 0)
            to[size++] = (unsigned char)(bits >> (6 - i % 4 * 2));
    }
    return n % 4 == 1 ? SIZE_MAX : size;
}

/* Appends n bytes in base64. */
static inline void bpe_add_base64(json_buffer *out, const unsigned char *s, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t bits = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) |
                              (i + 2 < n ? (uint32_t)s[i + 2] : 0);
        const char four[4] = { digits[bits >> 18], digits[bits >> 12 & 63],
                               i + 1 < n ? digits[bits >> 6 & 63] : '=',
                               i + 2 < n ? digits[bits & 63] : '=' };
        json_add(out, four, 4);
    }
}

/* Writes the tokenizer.json of a model that was read. */
static inline void bpe_spm_write(bpe_spm *m, int begins, int ends)
{
    bpe_list *v = &m->list;
    json_buffer before = { NULL, 0, 0, 0 };
    static const char space[] = "{\"type\":\"Metaspace\",\"replacement\":\"" BPE_SPACE
                                "\",\"prepend_scheme\":\"always\",\"split\":true}";
    json_add_text(&v->out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    bpe_list_added(v);
    if (begins || ends)
        bpe_list_template(v, begins, ends);
    if (m->charsmap.s < m->charsmap.end) {
        json_add_text(&before, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        bpe_add_base64(&before, m->charsmap.s, (size_t)(m->charsmap.end - m->charsmap.s));
        json_add_text(&before, m->words ? "\"}" : "\"},");
    }
    if (m->strips && !m->words)
        /* in this order, since the time of the second search grows with the square of a run of spaces */
        json_add_text(&before,
                      "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":"
                      "\" \"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":"
                      "\"\\\\A +| +\\\\z\"},\"content\":\"\"},");
    v->out.failed |= before.failed;
    if (m->words) {
        json_add_text(&v->out, "\"normalizer\":");
        json_add_text(&v->out, before.text != NULL ? before.text : "null");
        json_add_text(&v->out, ",\n\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                               "{\"type\":\"WhitespaceSplit\"},");
        json_add_text(&v->out, space);
        json_add_text(&v->out, "]},\n\"decoder\":");
        json_add_text(&v->out, space);
        json_add_text(&v->out, ",\n");
    } else {
        bpe_list_spaces(v, m->prefix, before.text != NULL ? before.text : "");
    }
    free(before.text);
    if (m->unigram) {
        char number[40];
        json_add_text(&v->out, "\"model\":{\"type\":\"Unigram\",\"unk_id\":");
        json_add_int(&v->out, v->unk);
        json_add_text(&v->out, m->byte_fallback ? ",\"byte_fallback\":true,\n\"vocab\":["
                                                : ",\"byte_fallback\":false,\n\"vocab\":[");
        for (int32_t i = 0; i < v->base; i++) {
            json_add_text(&v->out, i > 0 ? ",\n[" : "[");
            json_add_string(&v->out, v->tokens[i].text, v->tokens[i].size);
            snprintf(number, sizeof number, ",%.17g]", v->tokens[i].score);
            json_add_text(&v->out, number);
        }
    } else {
        bpe_list_bpe(v, v->unk, m->byte_fallback, 0);
        bpe_list_merges(v);
    }
    json_add_text(&v->out, "]}}\n");
}

/* Converts SentencePiece's tokenizer.model, a BPE or Unigram model, to the text of a tokenizer.json.
 * `config` is the path of tokenizer_config.json, or NULL. It is read for tokenizer_class, which must be that
 * of Llama or Gemma if it is there, add_bos_token and add_eos_token; by default a text begins with the
 * model's bos token, and nothing ends it. Returns a text that the caller must free, and its *size, or NULL
 * with d->error. */
static inline char *bpe_spm_json(json *d, const char *path, const char *config, size_t *size)
{
    json in;
    size_t n = 0;
    bpe_spm m;
    memset(&m, 0, sizeof m);
    m.unigram = m.prefix = m.strips = m.escapes = m.list.bos = 1; /* SentencePiece's defaults */
    m.list.eos = 2;
    const char *file = json_read_text(&in, path, &n);
    json_init(d, config != NULL ? config : path);
    if (in.error[0])
        memcpy(d->error, in.error, sizeof d->error);
    else if (config != NULL)
        json_read_file(d, config);
    uint32_t name = json_find_nonnull(d, JSON_ROOT, "tokenizer_class");
    uint32_t added = json_find_nonnull(d, JSON_ROOT, "added_tokens_decoder");
    if (name && strncmp(json_text(d, name), "LlamaTokenizer", 14) != 0 &&
        strncmp(json_text(d, name), "GemmaTokenizer", 14) != 0)
        json_mismatch(
            d, name,
            "LlamaTokenizer or GemmaTokenizer, whose tokenizer.model is read; for others, " BPE_SAVE_HINT);
    const int begins = json_bool(d, JSON_ROOT, "add_bos_token", m.list.bos >= 0);
    const int ends = json_bool(d, JSON_ROOT, "add_eos_token", 0);
    d->name = path;
    if (!d->error[0] && bpe_spm_read(&m, d, file, n) == 0) {
        for (uint32_t i = json_first(d, added); i != 0 && !d->error[0]; i = json_next(d, i))
            if (strtol(json_text(d, i), NULL, 10) >= m.list.count)
                json_fail(
                    d, 0,
                    "tokenizer_config.json adds token %.20s, but there are %.0f tokens; " BPE_SAVE_HINT,
                    json_text(d, i), (double)m.list.count);
        if ((begins && (m.list.bos < 0 || m.list.bos >= m.list.count)) ||
            (ends && (m.list.eos < 0 || m.list.eos >= m.list.count)))
            json_fail(d, 0,
                      "the token that begins or ends a text is missing: set add_bos_token or "
                      "add_eos_token to false in tokenizer_config.json");
        if (!d->error[0])
            bpe_spm_write(&m, begins, ends);
    }
    if (m.list.error[0])
        json_fail(d, 0, "%s", m.list.error);
    free(m.list.tokens);
    free(m.list.slots);
    free(m.list.merges);
    json_free(&in);
    return bpe_end_text(d, &m.list.out, size);
}

/* ---- tekken.json ------------------------------------------------------------------------------- */
/* Returns the character that stands for a byte in names of a byte-level vocabulary. Each visible
 * ASCII or Latin-1 byte stands for itself; the other 68 bytes (0 to 32, 127 to 160 and 173) become
 * the characters from 256 on. */
static inline uint32_t bpe_character_of(int byte)
{
    if ((byte > 32 && byte < 127) || (byte > 160 && byte != 173))
        return (uint32_t)byte;
    return (uint32_t)(byte < 33 ? 256 + byte : byte < 161 ? 256 + byte - 127 + 33 : 323);
}

/* Appends the name of a token of n bytes in a byte-level vocabulary, without quotes. */
static inline void bpe_add_name(json_buffer *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char name[4];
        const uint32_t c = bpe_character_of((unsigned char)s[i]);
        json_add_text(out, c == '"' || c == '\\' ? "\\" : "");
        json_add(out, name, (size_t)json_put_utf8(name, c));
    }
}

/* Special tokens of files that do not list them, as in mistral-common up to version 7 of the format. */
static const char *const bpe_tekken_specials[] = { "<unk>",
                                                   "<s>",
                                                   "</s>",
                                                   "[INST]",
                                                   "[/INST]",
                                                   "[AVAILABLE_TOOLS]",
                                                   "[/AVAILABLE_TOOLS]",
                                                   "[TOOL_RESULTS]",
                                                   "[/TOOL_RESULTS]",
                                                   "[TOOL_CALLS]",
                                                   "[IMG]",
                                                   "<pad>",
                                                   "[IMG_BREAK]",
                                                   "[IMG_END]",
                                                   "[PREFIX]",
                                                   "[MIDDLE]",
                                                   "[SUFFIX]",
                                                   "[SYSTEM_PROMPT]",
                                                   "[/SYSTEM_PROMPT]",
                                                   "[TOOL_CONTENT]" };

/* A tekken.json that is being read: its tokens; its first tokens, which are special; memory for
 * texts of tokens. */
typedef struct {
    bpe_list list;
    int32_t specials;
    char *texts;
} bpe_tekken;

/* Sets the texts of special tokens, of which the file may list the first. Returns the end of the texts
 * that it wrote to m->texts. */
static inline char *bpe_tekken_names(bpe_tekken *m, json *d)
{
    enum { KNOWN = sizeof bpe_tekken_specials / sizeof bpe_tekken_specials[0] };
    const uint32_t listed = json_find_nonnull(d, JSON_ROOT, "special_tokens");
    uint32_t at = json_first(d, listed);
    char *to = m->texts;
    for (int32_t i = 0; i < m->specials && !d->error[0]; i++) {
        bpe_listed *t = &m->list.tokens[i];
        t->type = BPE_TOKEN_CONTROL;
        if (at != 0) {
            const uint32_t text = json_require(d, at, "token_str", JSON_STRING);
            if (json_int(d, at, "rank", i) != i)
                json_mismatch(d, json_find(d, at, "rank"), "ranks from 0 on, in order");
            t->text = json_text(d, text);
            t->size = json_size(d, text);
            at = json_next(d, at);
        } else if (listed == 0 && i < KNOWN) {
            t->text = bpe_tekken_specials[i];
            t->size = (uint32_t)strlen(t->text);
        } else {
            t->text = to;
            t->size = (uint32_t)sprintf(to, "<SPECIAL_%ld>", (long)i);
            to += t->size;
        }
        if (t->size == 3 && memcmp(t->text, "<s>", 3) == 0)
            m->list.bos = i;
    }
    if (at != 0)
        json_mismatch(d, listed, "at most default_num_special_tokens tokens");
    return to;
}

/* Reads the bytes of the tokens after the special ones. `to` has space for them. */
static inline void bpe_tekken_tokens(bpe_tekken *m, json *d, uint32_t vocabulary, char *to)
{
    bpe_list *v = &m->list;
    uint32_t at = json_first(d, vocabulary);
    for (int32_t i = m->specials; i < v->count && !d->error[0]; i++, at = json_next(d, at)) {
        const uint32_t text = json_require(d, at, "token_bytes", JSON_STRING);
        bpe_listed *t = &v->tokens[i];
        const size_t size =
            d->error[0] ? 0
                        : bpe_base64(json_text(d, text), json_size(d, text), (unsigned char *)to);
        if (!d->error[0] && (size == 0 || size > BPE_TOKEN_LONGEST))
            json_mismatch(d, text, "1 to 1024 bytes in base64");
        if (json_int(d, at, "rank", -1) != i - m->specials)
            json_mismatch(d, json_find(d, at, "rank"), "ranks from 0 on, in order");
        if (d->error[0])
            return;
        t->text = to;
        t->size = (uint32_t)size;
        t->type = BPE_TOKEN_NORMAL;
        to += size;
        uint32_t *slot = bpe_list_slot(v, t->text, t->size);
        if (*slot != 0)
            json_fail(d, d->nodes[at].line, "tokens %.0f and %.0f are equal", (double)*slot - 1,
                      (double)i);
        *slot = (uint32_t)i + 1;
    }
}

/* Writes the model: the vocabulary, and as merges all pairs of tokens that together are a token. */
static inline void bpe_tekken_model(bpe_tekken *m)
{
    bpe_list *v = &m->list;
    json_buffer *out = &v->out;
    int merges = 0;
    json_add_text(out, "\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\n\"vocab\":{");
    for (int32_t i = m->specials; i < v->count; i++) {
        json_add_text(out, i > m->specials ? ",\n\"" : "\"");
        bpe_add_name(out, v->tokens[i].text, v->tokens[i].size);
        json_add_text(out, "\":");
        json_add_int(out, i);
    }
    json_add_text(out, "},\n\"merges\":[");
    for (int32_t i = m->specials; i < v->count && !out->failed; i++) {
        const bpe_listed *t = &v->tokens[i];
        for (size_t k = 1; k < t->size; k++) {
            if (bpe_list_id(v, t->text, k) < 0 || bpe_list_id(v, t->text + k, t->size - k) < 0)
                continue;
            json_add_text(out, merges++ > 0 ? ",\n\"" : "\"");
            bpe_add_name(out, t->text, k);
            json_add_text(out, " ");
            bpe_add_name(out, t->text + k, t->size - k);
            json_add_text(out, "\"");
        }
    }
    json_add_text(out, "]}}\n");
}

/* Converts Mistral's tekken.json to the text of a tokenizer.json: tokens as bytes in base64, in the
 * order of their merges, after default_num_special_tokens special tokens. A text begins with <s>.
 * Returns a text that the caller must free, and its *size, or NULL with d->error. */
static inline char *bpe_tekken_json(json *d, const char *path, size_t *size)
{
    bpe_tekken m;
    memset(&m, 0, sizeof m);
    m.list.bos = m.list.eos = -1;
    json_init(d, path);
    json_read_file(d, path);
    const uint32_t config = json_require(d, JSON_ROOT, "config", JSON_OBJECT);
    const uint32_t pattern = json_require(d, config, "pattern", JSON_STRING);
    const uint32_t vocabulary = json_require(d, JSON_ROOT, "vocab", JSON_ARRAY);
    const int64_t all = json_int(d, config, "default_vocab_size", 0);
    const int64_t specials = json_int(d, config, "default_num_special_tokens", 0);
    if (!d->error[0] && (specials < 1 || specials > 1 << 20 || all <= specials ||
                         all - specials > (int64_t)json_size(d, vocabulary)))
        json_fail(d, 0,
                  "default_vocab_size %.0f, default_num_special_tokens %.0f: expected special "
                  "tokens, and as many others as vocab has, or fewer",
                  (double)all, (double)specials);
    size_t bytes = d->error[0] ? 0 : 24 * (size_t)specials + 1, slots = 64;
    for (uint32_t at = json_first(d, vocabulary); !d->error[0] && at != 0; at = json_next(d, at))
        bytes += json_size(d, json_require(d, at, "token_bytes", JSON_STRING));
    if (!d->error[0]) {
        while (slots < 2 * (size_t)all)
            slots *= 2;
        m.specials = (int32_t)specials;
        m.list.count = (int32_t)all;
        m.list.mask = (uint32_t)(slots - 1);
        m.list.tokens = (bpe_listed *)calloc((size_t)all, sizeof *m.list.tokens);
        m.list.slots = (uint32_t *)calloc(slots, sizeof *m.list.slots);
        m.texts = (char *)malloc(bytes);
        if (m.list.tokens == NULL || m.list.slots == NULL || m.texts == NULL)
            json_fail(d, 0, "out of memory for %.0f tokens", (double)all);
    }
    if (!d->error[0])
        bpe_tekken_tokens(&m, d, vocabulary, bpe_tekken_names(&m, d));
    if (!d->error[0]) {
        json_buffer *out = &m.list.out;
        json_add_text(out, "{\"version\":\"1.0\",");
        bpe_list_added(&m.list);
        if (m.list.bos >= 0)
            bpe_list_template(&m.list, 1, 0);
        json_add_text(out, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                           "\"Split\",\"pattern\":{\"Regex\":");
        json_add_string(out, json_text(d, pattern), json_size(d, pattern));
        json_add_text(out, "},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"use_regex\":"
                           "false}]},\n\"decoder\":{\"type\":\"ByteLevel\"},\n");
        bpe_tekken_model(&m);
    }
    free(m.list.tokens);
    free(m.list.slots);
    free(m.texts);
    return bpe_end_text(d, &m.list.out, size);
}

/* ---- vocab.txt -------------------------------------------------------------------------------- */
/* Appends an added token to a tokenizer.json. `flags` is an object with its flags, or 0 for a special
 * token that is searched for in the text as it is. */
static inline void bpe_add_token(json_buffer *out, json *d, uint32_t flags, const char *text,
                                 size_t n, int64_t id)
{
    static const char *const names[] = { "special", "normalized", "lstrip", "rstrip",
                                         "single_word" };
    json_add_text(out, out->text[out->size - 1] == '[' ? "{\"id\":" : ",\n{\"id\":");
    json_add_int(out, id);
    json_add_text(out, ",\"content\":");
    json_add_string(out, text, n);
    for (int i = 0; i < 5; i++) {
        json_add_text(out, ",\"");
        json_add_text(out, names[i]);
        json_add_text(out,
                      json_bool(d, flags, names[i], flags == 0 && i == 0) ? "\":true" : "\":false");
    }
    json_add_text(out, "}");
}

/* Returns the index of the line `name` in a text, or -1. */
static inline int64_t bpe_line_of(const char *text, const char *end, const char *name, size_t size)
{
    for (int64_t i = 0; text < end; i++) {
        const char *next = (const char *)memchr(text, '\n', (size_t)(end - text));
        const char *stop = next != NULL ? next : end;
        stop -= stop > text && stop[-1] == '\r';
        if ((size_t)(stop - text) == size && memcmp(text, name, size) == 0)
            return i;
        text = next != NULL ? next + 1 : end;
    }
    return -1;
}

/* Returns the text of a special token in tokenizer_config.json, a string or an object with a content,
 * or `fallback` without one. */
static inline const char *bpe_special_text(json *d, const char *key, const char *fallback,
                                           size_t *size)
{
    uint32_t at = json_find_nonnull(d, JSON_ROOT, key);
    if (json_kind_of(d, at) == JSON_OBJECT)
        at = json_require(d, at, "content", JSON_STRING);
    const char *text = at ? json_text(d, at) : fallback;
    *size = at ? json_size(d, at) : strlen(fallback);
    return text;
}

/* Appends the end of the model, the added tokens, and the post-processor that adds the tokens before and
 * after a text. */
static inline void bpe_add_specials(json_buffer *out, json *d, const char *text, const char *end,
                                    int mpnet)
{
    static const char *const keys[] = { "cls_token", "sep_token", "unk_token", "pad_token",
                                        "mask_token" };
    static const char *const names[2][5] = { { "[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]" },
                                             { "<s>", "</s>", "[UNK]", "<pad>", "<mask>" } };
    uint32_t all = json_find_nonnull(d, JSON_ROOT, "added_tokens_decoder");
    int64_t ids[5];
    const char *specials[5];
    size_t sizes[5];
    specials[2] = bpe_special_text(d, keys[2], names[mpnet][2], &sizes[2]);
    json_add_text(out, "\"type\":\"WordPiece\",\"unk_token\":");
    json_add_string(out, specials[2], sizes[2]);
    json_add_text(out, "},\n\"added_tokens\":[");
    for (uint32_t i = json_first(d, all); i != 0 && !d->error[0] && !out->failed;
         i = json_next(d, i)) {
        uint32_t content = json_require(d, i + 1, "content", JSON_STRING);
        if (!d->error[0])
            bpe_add_token(out, d, i + 1, json_text(d, content), json_size(d, content),
                          strtol(json_text(d, i), NULL, 10));
    }
    for (int i = 0; i < 5 && !d->error[0] && !out->failed; i++) {
        specials[i] = bpe_special_text(d, keys[i], names[mpnet][i], &sizes[i]);
        ids[i] = bpe_line_of(text, end, specials[i], sizes[i]);
        if (ids[i] < 0 && i < 3)
            json_fail(d, 0,
                      "%s \"%.80s\" is not in vocab.txt: name the token in tokenizer_config.json",
                      keys[i], specials[i]);
        if (all == 0 && ids[i] >= 0)
            bpe_add_token(out, d, 0, specials[i], sizes[i], ids[i]);
    }
    if (d->error[0] || out->failed)
        return;
    json_add_text(out, "],\n\"post_processor\":{\"type\":\"BertProcessing\"");
    for (int i = 0; i < 2; i++) {
        json_add_text(out, i == 0 ? ",\"cls\":[" : ",\"sep\":[");
        json_add_string(out, specials[i], sizes[i]);
        json_add_text(out, ",");
        json_add_int(out, ids[i]);
        json_add_text(out, "]");
    }
    json_add_text(out, "},\n");
}

/* Converts vocab.txt, a token a line, to the text of a tokenizer.json. `config` is the path of
 * tokenizer_config.json; NULL selects the settings of bert-base-uncased. It is read for
 * tokenizer_class, do_lower_case, strip_accents, tokenize_chinese_chars, added_tokens_decoder and the
 * names of special tokens. Returns a text that the caller must free, and its *size, or NULL with
 * d->error. */
static inline char *bpe_vocab_json(json *d, const char *vocabulary, const char *config,
                                   size_t *size)
{
    static const char *const classes[] = { "BertTokenizer", "DistilBertTokenizer",
                                           "ElectraTokenizer", "MobileBertTokenizer",
                                           "MPNetTokenizer" };
    static const char *const keys[] = { "do_lower_case", "strip_accents",
                                        "tokenize_chinese_chars" };
    static const char *const options[] = { "lowercase", "strip_accents", "handle_chinese_chars" };
    json in;
    json_buffer out = { NULL, 0, 0, 0 };
    size_t n = 0;
    const char *s = json_read_text(&in, vocabulary, &n);
    const int bom = s != NULL ? json_bom_size(&in, s, n) : 0;
    const char *text = bom > 0 ? s + bom : s, *end = s != NULL ? s + n : s;
    json_init(d, config != NULL ? config : vocabulary);
    if (in.error[0])
        memcpy(d->error, in.error, sizeof d->error);
    else if (config != NULL)
        json_read_file(d, config);
    uint32_t class_name = json_find_nonnull(d, JSON_ROOT, "tokenizer_class");
    int known = class_name == 0 || d->error[0] ? 5 : 0;
    for (; known < 5; known++) {
        const size_t length = strlen(classes[known]);
        if (strncmp(json_text(d, class_name), classes[known], length) == 0)
            break;
    }
    if (class_name && !d->error[0] && known == 5)
        json_mismatch(d, class_name,
                      "the class of BERT, DistilBERT, ELECTRA, MobileBERT or MPNet, whose "
                      "vocab.txt is read; for others, " BPE_SAVE_HINT);
    const char *first = text; /* tokens come first, so that errors name their lines in vocab.txt */
    json_add_text(&out, "{\"model\":{\"vocab\":{");
    for (int64_t i = 0; text < end; i++) {
        const char *next = (const char *)memchr(text, '\n', (size_t)(end - text));
        const size_t line = (size_t)((next != NULL ? next : end) - text);
        const size_t cut = line > 0 && text[line - 1] == '\r';
        json_add_text(&out, i > 0 ? ",\n" : "");
        json_add_string(&out, text, line - cut);
        json_add_text(&out, ":");
        json_add_int(&out, i);
        text += line + 1;
    }
    json_add_text(&out, "},\n");
    if (!d->error[0] && !out.failed)
        bpe_add_specials(&out, d, first, end, known == 4);
    json_add_text(&out, "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\n\"decoder\":"
                        "{\"type\":\"WordPiece\"},\n\"normalizer\":{\"type\":\"BertNormalizer\"");
    for (int i = 0; i < 3; i++) {
        uint32_t value = json_find_nonnull(d, JSON_ROOT, keys[i]);
        if (value == 0)
            continue;
        json_add_text(&out, ",\"");
        json_add_text(&out, options[i]);
        json_add_text(&out, json_bool(d, JSON_ROOT, keys[i], 0) ? "\":true" : "\":false");
    }
    json_add_text(&out, "}}\n");
    json_free(&in);
    return bpe_end_text(d, &out, size);
}
#endif
