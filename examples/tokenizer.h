/* tokenizer.h - text to tokens with Hugging Face's files: byte pair encoding (GPT-2, Llama 2 and 3,
 * SmolLM, Qwen2 and 3, Mistral, Gemma), WordPiece (BERT, DistilBERT, MPNet) and Unigram (XLM-RoBERTa,
 * T5, multilingual embeddings). To copy, with
 * tokenizer_steps.h, tokenizer_regex.h, tokenizer_files.h, json.h and unicode.h; it needs only C99 and the C library.
 *
 *     bpe b;
 *     bpe_tokens t = { 0 };
 *     if (bpe_open(&b, "gpt2") != 0) // a folder with tokenizer.json, or other files: see bpe_open
 *         fprintf(stderr, "%s\n", b.error);
 *     else if (bpe_encode(&b, text, strlen(text), BPE_SPECIALS | BPE_TEMPLATE, &t) != 0)
 *         fprintf(stderr, "%s\n", t.error);
 *     for (size_t i = 0; i < t.count; i++) { // decodes, token by token
 *         size_t size;
 *         const char *bytes = i == 0 ? bpe_first_bytes(&b, t.ids[i], &size)
 *                                    : bpe_bytes(&b, t.ids[i], &size);
 *         fwrite(bytes, 1, size, stdout);
 *     }
 *     bpe_tokens_free(&t);
 *     bpe_free(&b);
 *
 * The tokens equal those of Hugging Face's fast tokenizers. Text that is not UTF-8 is first
 * converted like Python's bytes.decode("utf-8", errors="replace") (bpe_to_utf8). Encoding n
 * bytes takes O(n log n) time. Only one thread may use a tokenizer at a time, as it caches words.
 *
 * Reads these parts of a tokenizer.json, and refuses all others with an error that names them:
 *   model           BPE, with byte_fallback, fuse_unk, unk_token, ignore_merges; WordPiece; Unigram
 *                   with byte_fallback
 *   normalizer      NFC, NFD, Lowercase, Strip, Prepend, Replace, BertNormalizer,
 *                   Precompiled, or a Sequence of these
 *   pre_tokenizer   ByteLevel (as the last), Digits, Metaspace, Split, WhitespaceSplit, Punctuation
 *                   (isolated), BertPreTokenizer, or a Sequence of these
 *   decoder         ByteLevel with that pre_tokenizer, WordPiece with that model, or else Metaspace, or a
 *                   Sequence of Replace, ByteFallback, Fuse and Strip in this order
 *   post_processor  TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, or a Sequence of
 *                   these; of these, the tokens of a single text
 * As in Hugging Face, a character without a token becomes the tokens of its bytes
 * (byte_fallback), or else unk_token, or else nothing.
 *
 * Special tokens (<s>, <|im_end|>) that a text spells out are recognised with BPE_SPECIALS,
 * Hugging Face's default. Encode untrusted text without that flag: then they remain text, and
 * b.special_texts counts them. To insert a special token, append bpe_find_added(&b,
 * "<|im_end|>")->id. A text may be encoded in parts, with such tokens between them; all parts
 * after the first need BPE_NOT_FIRST to have the same tokens as in the whole text. */
#ifndef TOKENIZER_H
#define TOKENIZER_H
#include "tokenizer_files.h"
#include "tokenizer_steps.h"

#ifndef BPE_CACHE
#define BPE_CACHE 16384 /* number of words in the cache */
#endif
enum {
    BPE_CACHE_BYTES = 18, /* longest word that is cached, in bytes; a cache entry takes 64 bytes */
    BPE_CACHE_TOKENS = 11,
    BPE_TEMPLATE_SIZE = 8 /* most special tokens that a template adds before a text, and after it */
};

/* Flags of bpe_encode. */
enum {
    BPE_SPECIALS = 1, /* recognises special tokens that the text spells out */
    BPE_TEMPLATE = 2, /* adds the template's tokens before and after the text */
    /* the text continues an earlier text, so Metaspace's prepend_scheme "first" inserts nothing */
    BPE_NOT_FIRST = 4
};

typedef struct {
    int32_t *ids;
    size_t count, capacity;
    char error[512];
} bpe_tokens;

typedef struct {
    uint64_t pair; /* first token << 32 | second token, or BPE_NO_PAIR in an empty slot */
    uint32_t rank; /* the merge with the lowest rank is applied first */
    int32_t id;    /* the token that replaces the pair */
} bpe_merge;
#define BPE_NO_PAIR UINT64_MAX
enum { BPE_STRIP_TOKEN = 2 };

typedef struct {
    /* text that bpe_encode searches for; normalized if the token's "normalized" option is set */
    const char *text;
    size_t size;
    int32_t id;
    /* special, lstrip, rstrip of the file: the token is a special one; it absorbs white space
     * before it; after it */
    int special, lstrip, rstrip;
    const char *name; /* the token's text in the file, not normalized */
    size_t name_size;
    /* memory that holds `text` and `name` if they are not in the file's text, or NULL */
    char *owned;
} bpe_added;

typedef struct {
    uint8_t size, count;
    char bytes[BPE_CACHE_BYTES];
    int32_t ids[BPE_CACHE_TOKENS];
} bpe_word;

typedef enum {
    BPE_MERGES,   /* byte pair encoding */
    BPE_UNIGRAM,  /* a word becomes the tokens whose scores have the largest sum */
    BPE_WORDPIECE /* a word is the longest token that it begins with, then the same for the rest */
} bpe_model;

/* Token types of the template of two texts. */
typedef enum {
    BPE_TYPES_SPLIT,     /* 0 up to a token between the texts, then 1 */
    BPE_TYPES_ZERO,      /* all 0 */
    BPE_TYPES_OTHER,     /* other ones */
    BPE_NO_PAIR_TEMPLATE /* the tokenizer has no template of two texts */
} bpe_pair_types;

typedef struct {
    int32_t count; /* number of tokens, including added ones; ids are below it */
    char *bytes;   /* the bytes that tokens decode to, one token after the other */
    /* token i decodes to bytes[start[i]] up to, but not including, bytes[start[i + 1]] */
    uint32_t *start;
    char *names; /* names of all tokens: as bytes if byte_level is nonzero, else as text */
    uint32_t *name_start;
    int32_t *ids; /* hash table from names of vocabulary tokens to ids; -1 marks an empty slot */
    uint32_t ids_mask;
    bpe_model model;
    size_t longest; /* length of the longest name, in bytes */
    /* for WordPiece: the text before the name of a token that continues a word ("##"), and the number
     * of characters above which a word is unknown */
    char continuing[BPE_PATTERN];
    size_t continuing_size, most_characters;
    double *scores;              /* for Unigram: the score of each token of the vocabulary */
    double unknown_score;        /* for Unigram: the score of a character without a token */
    bpe_charsmap map;            /* for BPE_PRECOMPILED */
    int byte_level;              /* if nonzero, merging starts from bytes; if 0, from characters */
    int byte_fallback, fuse_unk; /* options byte_fallback and fuse_unk of the BPE model */
    /* if nonzero, a word that is in the vocabulary becomes that token without any merge */
    int ignore_merges;
    /* spaces that decoding removes from the start of a text: 1 removes one, BPE_STRIP_TOKEN all of the
     * first token that stand for U+2581 */
    int strip;
    int32_t unknown;   /* id of unk_token, or -1 */
    int32_t byte[256]; /* byte[b]: id of the token for the single byte b, or -1 */
    /* if byte_level is 0, ascii[c]: id of the token for the ASCII character c, or -1 */
    int32_t ascii[128];
    bpe_step steps[BPE_STEPS]; /* the normalizers in order, then the pre-tokenizers */
    int step_count, normalizers;
    /* tokens that BPE_TEMPLATE adds before and after a text */
    int32_t prefix[BPE_TEMPLATE_SIZE], suffix[BPE_TEMPLATE_SIZE];
    int prefix_count, suffix_count;
    /* tokens that bpe_encode_pair adds before the first text, between both, and after the second */
    int32_t pair[3][BPE_TEMPLATE_SIZE];
    int pair_count[3];
    int pair_types; /* token types of a pair, a bpe_pair_types */
    int pair_split; /* for BPE_TYPES_SPLIT: number of tokens between the texts that have type 0 */
    bpe_merge *merges; /* hash table from pairs of tokens to merges */
    uint32_t merge_mask;
    /* Two lists of added tokens: list 0 is searched for in the text before the normalizers, list 1
     * after them. A list is sorted by first byte, then longer tokens first; first_added[list][byte]
     * is the index of the first token that begins with that byte. */
    bpe_added *added[2];
    uint32_t added_count[2];
    uint32_t first_added[2][257];
    /* number of special tokens in encoded texts that stayed text; the caller may set it to 0 */
    size_t special_texts;
    /* cache of words: a hash table in which a new word replaces the word in its slot */
    bpe_word *words;
    /* for the word being merged: a heap of possible merges, each rank << 32 | position */
    uint64_t *heap;
    /* for each position of the word: the token that starts there, or -1 if it was merged into
     * another */
    int32_t *symbol;
    uint32_t *next, *prev;
    double *sums;    /* for Unigram: the largest sum of scores of tokens up to each position */
    size_t capacity; /* longest word, in bytes, for which these arrays have space */
    char error[512];
} bpe;

static inline void bpe_tokens_free(bpe_tokens *t)
{
    free(t->ids);
    memset(t, 0, sizeof *t);
}

static inline void bpe_free(bpe *b)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < b->added_count[k]; i++)
            free(b->added[k][i].owned);
    for (int i = 0; i < b->step_count; i++)
        free(b->steps[i].regex);
    free(b->names);
    free(b->name_start);
    free(b->bytes);
    free(b->start);
    free(b->ids);
    free(b->merges);
    free(b->added[0]);
    free(b->added[1]);
    free(b->words);
    free(b->heap);
    free(b->symbol);
    free(b->next);
    free(b->prev);
    free(b->sums);
    free(b->scores);
    free(b->map.units);
    free(b->map.texts);
    memset(b, 0, sizeof *b);
}

static inline uint32_t bpe_get32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- loading: tokens and merges -------------------------------------------------------------- */
/* Returns the byte that a character stands for in a byte-level name (see bpe_character_of), or
 * -1. */
static inline int bpe_byte_of(uint32_t character)
{
    if (character < 256)
        return bpe_character_of((int)character) == character ? (int)character : -1;
    return character < 289    ? (int)character - 256
           : character < 323  ? (int)character - 289 + 127
           : character == 323 ? 173
                              : -1;
}

/* Writes the bytes that a byte-level name stands for and returns their number. If a character
 * stands for no byte, copies the name and sets *visible to 0. */
static inline size_t bpe_name_bytes(const char *name, size_t size, char *to, int *visible)
{
    size_t n = 0;
    *visible = 1;
    for (size_t i = 0; i < size;) {
        uint32_t c = 0;
        i += (size_t)json_utf8(name + i, size - i, &c);
        int byte = bpe_byte_of(c);
        if (byte < 0) {
            memcpy(to, name, size);
            *visible = 0;
            return size;
        }
        to[n++] = (char)byte;
    }
    return n;
}

/* Returns the byte that a name like <0x0A> denotes, or -1 for other names. */
static inline int bpe_fallback_of(const char *name, size_t size)
{
    int byte = 0;
    if (size != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        int c = name[i], digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
        if (digit < 0 || digit > 15 || (digit > 9 && (c | 32) < 'a'))
            return -1;
        byte = 16 * byte + digit;
    }
    return byte;
}

typedef struct {
    uint32_t at; /* node in the JSON file of the name, a string or key; 0 in an empty slot */
    int32_t id;
    int added; /* nonzero for an added token that is not in the vocabulary */
} bpe_name;

/* State that only loading needs. */
typedef struct {
    bpe *b;
    json d;          /* the JSON file being loaded: vocab.json or tokenizer.json */
    bpe_name *names; /* hash table from names to ids of all tokens */
    uint32_t mask;
    char *joined; /* buffer in which the names of a merge's two tokens are joined */
    size_t joined_capacity;
    bpe_step replace; /* the decoder's Replace step, or from_size 0 without one */
    int cleanup; /* option cleanup of the WordPiece decoder: removes spaces before some marks */
    int byte_fallback; /* nonzero if the decoder has a ByteFallback step */
    int cross_merge;   /* nonzero if a merge joins text before a U+2581 with that U+2581 */
} bpe_loader;

/* Returns the hash table's slot that holds a name, or the empty slot where it would be put. */
static inline bpe_name *bpe_slot(const bpe_loader *l, const char *name, size_t size)
{
    uint32_t i = bpe_hash(name, size);
    for (;; i++) {
        bpe_name *p = &l->names[i & l->mask];
        if (p->at == 0 || (json_size(&l->d, p->at) == size &&
                           memcmp(l->d.text + l->d.nodes[p->at].at, name, size) == 0))
            return p;
    }
}

/* Returns the id of a token that is in the vocabulary, or -1. Added tokens are not in it. */
static inline int32_t bpe_find(const bpe_loader *l, const char *name, size_t size)
{
    const bpe_name *p = bpe_slot(l, name, size);
    return p->at != 0 && !p->added ? p->id : -1;
}

/* Returns a hash table of at least 2 n entries of `size` bytes, all bytes set to `fill`, and sets
 * *mask to its number of entries minus 1. Returns NULL with d->error if out of memory. */
static inline void *bpe_table(json *d, size_t n, size_t size, int fill, uint32_t *mask)
{
    size_t slots = 64;
    while (slots < 2 * n && slots < SIZE_MAX / 2 / size)
        slots *= 2;
    void *p = slots < 2 * n ? NULL : malloc(slots * size);
    if (p == NULL)
        json_fail(d, 0, "out of memory for %.0f entries of %.0f bytes", 2.0 * (double)n,
                  (double)size);
    else
        memset(p, fill, slots * size);
    *mask = (uint32_t)(slots - 1);
    return p;
}

/* Returns a zeroed array with space for n + 1 elements of `size` bytes, or NULL with d->error if
 * out of memory. */
static inline void *bpe_array(json *d, size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (p == NULL)
        json_fail(d, 0, "out of memory for %.0f bytes", (double)n * (double)size);
    return p;
}

/* Stores an error if a file sets an option that this code does not support: `key` of `object` must
 * be absent, null, false or "". */
static inline void bpe_require_off(json *d, uint32_t object, const char *key)
{
    uint32_t at = json_find(d, object, key);
    if (json_kind_of(d, at) > JSON_FALSE && !json_is(d, at, ""))
        json_mismatch(d, at, "null, false or \"\": this option is not supported");
}

static inline int bpe_by_first(const void *a, const void *b)
{
    const bpe_added *p = (const bpe_added *)a, *q = (const bpe_added *)b;
    int m = (unsigned char)*p->text, n = (unsigned char)*q->text;
    return m != n               ? m - n
           : p->size != q->size ? (p->size < q->size ? 1 : -1)
                                : q->special - p->special; /* for equal texts, special tokens come
                                                            * first */
}

/* Adds a token of the vocabulary to l->names: `name` is its string or key. */
static inline int bpe_load_name(bpe_loader *l, uint32_t name, int32_t id)
{
    bpe_name *p = bpe_slot(l, json_text(&l->d, name), json_size(&l->d, name));
    if (p->at != 0)
        return json_fail(&l->d, l->d.nodes[name].line, "token \"%.80s\" occurs twice",
                         json_text(&l->d, name));
    p->at = name;
    p->id = id;
    return 0;
}

/* Adds the tokens of a Unigram vocabulary, an array of [token, score], to l->names and b->scores. */
static inline int bpe_load_scores(bpe_loader *l, uint32_t vocabulary)
{
    json *d = &l->d;
    bpe *b = l->b;
    int32_t id = 0;
    double least = 0;
    b->scores = (double *)bpe_array(d, json_size(d, vocabulary), sizeof *b->scores);
    for (uint32_t k = json_first(d, vocabulary); k != 0 && !d->error[0]; k = json_next(d, k)) {
        if (json_kind_of(d, k) != JSON_ARRAY || json_size(d, k) != 2 ||
            json_kind_of(d, k + 1) != JSON_STRING)
            return json_mismatch(d, k, "a token and its score");
        if (bpe_load_name(l, k + 1, id) != 0)
            return -1;
        const double score = json_real_of(d, k + 2);
        if (!(score > -1e30 && score < 1e30))
            json_mismatch(d, k + 2, "a score between -1e30 and 1e30");
        b->scores[id] = score;
        least = id == 0 || score < least ? score : least;
        id++;
    }
    b->unknown_score = least - 10; /* as in SentencePiece and Hugging Face */
    return d->error[0] ? -1 : 0;
}

/* Fills l->names from `vocabulary`, a JSON object or array, and from `added`, a JSON array of objects
 * or 0. */
static inline int bpe_load_names(bpe_loader *l, uint32_t vocabulary, uint32_t added)
{
    json *d = &l->d;
    size_t n = (size_t)json_size(d, vocabulary) + json_size(d, added);
    l->names = (bpe_name *)bpe_table(d, n, sizeof *l->names, 0, &l->mask);
    if (l->names == NULL)
        return -1;
    if (l->b->model == BPE_UNIGRAM && bpe_load_scores(l, vocabulary) != 0)
        return -1;
    for (uint32_t k = l->b->model == BPE_UNIGRAM ? 0 : json_first(d, vocabulary); k != 0;
         k = json_next(d, k)) {
        int64_t id = json_int_of(d, k + 1);
        if (bpe_load_name(l, k, id >= 0 && id < (int64_t)n ? (int32_t)id : -1) != 0)
            return -1;
        if (id < 0 || id >= (int64_t)n)
            return json_mismatch(d, k + 1, "ids without gaps, from 0 to the number of tokens");
    }
    l->b->count = (int32_t)json_size(d, vocabulary);
    for (uint32_t i = json_first(d, added); i != 0; i = json_next(d, i)) {
        uint32_t text = json_require(d, i, "content", JSON_STRING);
        int64_t id = json_int_of(d, json_require(d, i, "id", JSON_NUMBER));
        bpe_require_off(d, i, "single_word");
        if (d->error[0])
            return -1;
        bpe_name *p = bpe_slot(l, json_text(d, text), json_size(d, text));
        if (p->at != 0 ? p->id != id || p->added : id < 0 || id >= (int64_t)n)
            return json_fail(d, d->nodes[text].line,
                             "added token \"%.80s\" has id %.0f, which is not its id in the "
                             "vocabulary, or is over the number of tokens, or it occurs twice",
                             json_text(d, text), (double)id);
        if (p->at == 0) {
            p->at = text;
            p->id = (int32_t)id;
            p->added = 1;
            l->b->count++;
        }
    }
    return 0;
}

/* Writes the bytes that a WordPiece token decodes to after another token: its name without the mark
 * of continuing tokens, or a space and its name. With `cleanup`, removes the space before some
 * punctuation and contractions. Returns their number. `to` has space for n + 1 bytes. */
static inline size_t bpe_wordpiece_decoded(const bpe_loader *l, const char *name, size_t n,
                                           char *to)
{
    static const char *const cleaned[][2] = {
        { " .", "." },   { " ?", "?" },     { " !", "!" },    { " ,", "," },
        { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },  { " do not", " don't" },
        { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" }
    };
    const bpe *b = l->b;
    const size_t k = b->continuing_size;
    const int continues = n >= k && memcmp(name, b->continuing, k) == 0;
    size_t size = continues ? n - k : n + 1;
    to[0] = ' ';
    memcpy(to + !continues, name + n - (size - !continues), size - !continues);
    for (int i = 0; l->cleanup && i < 11; i++) {
        bpe_step p = { BPE_REPLACE,           "",        "",  strlen(cleaned[i][0]),
                       strlen(cleaned[i][1]), BPE_NEVER, NULL };
        memcpy(p.from, cleaned[i][0], p.from_size);
        memcpy(p.to, cleaned[i][1], p.to_size);
        size = bpe_put_replaced(&p, to, size, to);
    }
    return size;
}

/* Writes the bytes that the token called `name` decodes to and returns their number. If `to` is
 * NULL, writes nothing and returns an upper bound. */
static inline size_t bpe_load_decoded(const bpe_loader *l, const char *name, size_t n, char *to)
{
    int visible, byte;
    if (l->b->model == BPE_WORDPIECE)
        return to == NULL ? n + 1 : bpe_wordpiece_decoded(l, name, n, to);
    if (l->b->byte_level)
        return to == NULL ? n : bpe_name_bytes(name, n, to, &visible);
    size_t size = n;
    if (l->replace.from_size > 0)
        size = bpe_put_replaced(&l->replace, name, n, to);
    else if (to != NULL)
        memcpy(to, name, n);
    if (to != NULL && l->byte_fallback && (byte = bpe_fallback_of(to, size)) >= 0) {
        to[0] = (char)byte;
        return 1;
    }
    return size;
}

/* Returns the slot of b->ids that holds a name, or the empty slot where it would be put. */
static inline int32_t *bpe_id_slot(const bpe *b, const char *name, size_t size)
{
    uint32_t i = bpe_hash(name, size);
    for (;; i++) {
        int32_t *id = &b->ids[i & b->ids_mask];
        if (*id < 0 || (b->name_start[*id + 1] - b->name_start[*id] == size &&
                        memcmp(b->names + b->name_start[*id], name, size) == 0))
            return id;
    }
}

/* Stores the decoded bytes, names and ids of all tokens. token[i] is the entry of token i in
 * l->names. normal[i] is the added token i if it decodes to its normalized text, else NULL. */
static inline void bpe_load_bytes(bpe_loader *l, const bpe_name **token, const bpe_added **normal)
{
    bpe *b = l->b;
    json *d = &l->d;
    size_t n = (size_t)b->count, size = 0, names = 0, at = 0, end = 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = normal[i] ? normal[i]->text : json_text(d, token[i]->at);
        const size_t length = json_size(d, token[i]->at);
        names += length;
        size += bpe_load_decoded(l, name, normal[i] ? normal[i]->size : length, NULL);
    }
    if (size + names >= UINT32_MAX) {
        json_fail(d, 0, "%.0f bytes of tokens are too many", (double)size);
        return;
    }
    b->start = (uint32_t *)bpe_array(d, n + 1, sizeof *b->start);
    b->name_start = (uint32_t *)bpe_array(d, n + 1, sizeof *b->name_start);
    b->bytes = (char *)bpe_array(d, size, 1);
    b->names = (char *)bpe_array(d, names, 1);
    b->ids = (int32_t *)bpe_table(d, n, sizeof *b->ids, 255, &b->ids_mask);
    for (size_t i = 0; i < n && !d->error[0]; i++) {
        const char *name = json_text(d, token[i]->at);
        const size_t length = json_size(d, token[i]->at);
        int visible = 1;
        at += bpe_load_decoded(l, normal[i] ? normal[i]->text : name,
                               normal[i] ? normal[i]->size : length, b->bytes + at);
        b->start[i + 1] = (uint32_t)at;
        if (b->byte_level)
            end += bpe_name_bytes(name, length, b->names + end, &visible);
        else
            memcpy(b->names + end, name, length);
        end += b->byte_level ? 0 : length;
        b->name_start[i + 1] = (uint32_t)end;
        b->longest = length > b->longest ? length : b->longest;
        if (visible && !token[i]->added)
            *bpe_id_slot(b, b->names + b->name_start[i], b->name_start[i + 1] - b->name_start[i]) =
                (int32_t)i;
    }
}

/* Fills b->byte and b->ascii, the tokens of single bytes and of ASCII characters. */
static inline int bpe_load_single(bpe_loader *l)
{
    bpe *b = l->b;
    for (int i = 0; i < 256; i++) {
        char name[8];
        size_t size = b->byte_level ? (size_t)json_put_utf8(name, bpe_character_of(i))
                                    : (size_t)snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
        b->byte[i] = bpe_find(l, name, size);
        if (b->byte_level && b->byte_fallback && b->byte[i] < 0)
            return json_fail(&l->d, 0,
                             "byte 0x%02x has no token (\"%.*s\"): expected all 256 in a "
                             "byte-level vocabulary with byte_fallback",
                             (unsigned)i, (int)size, name);
    }
    for (int i = 0; i < 128; i++) {
        char name = (char)i;
        b->ascii[i] = bpe_find(l, &name, 1);
    }
    return 0;
}

/* Stores each added token in one of two lists: list 1 if the token matches normalized text, else
 * list 0. */
static inline int bpe_load_added(bpe_loader *l, uint32_t added)
{
    bpe *b = l->b;
    json *d = &l->d;
    for (int k = 0; k < 2; k++)
        b->added[k] = (bpe_added *)bpe_array(d, json_size(d, added), sizeof *b->added[k]);
    for (uint32_t i = json_first(d, added); !d->error[0] && i != 0; i = json_next(d, i)) {
        uint32_t name = json_find(d, i, "content");
        int list = json_bool(d, i, "normalized", 0);
        const char *text = json_text(d, name);
        size_t size = json_size(d, name), name_size = size;
        char *normal = NULL;
        bpe_added p;
        memset(&p, 0, sizeof p);
        if (list == 1 &&
            bpe_normalize(b->steps, b->normalizers, &b->map, &text, &size, &normal) != 0)
            return json_fail(d, 0, "out of memory for %.0f bytes", (double)size);
        if (size == 0 && name_size > 0)
            json_fail(d, d->nodes[name].line, "added token \"%.80s\" is empty once normalized",
                      json_text(d, name));
        p.id = (int32_t)json_int(d, i, "id", 0);
        p.special = json_bool(d, i, "special", 0);
        p.lstrip = json_bool(d, i, "lstrip", 0);
        p.rstrip = json_bool(d, i, "rstrip", 0);
        p.owned = size > 0 && !d->error[0] ? (char *)bpe_array(d, name_size + size, 1) : NULL;
        if (p.owned != NULL) {
            p.name = (const char *)memcpy(p.owned, json_text(d, name), name_size);
            p.text = (const char *)memcpy(p.owned + name_size, text, size);
            p.name_size = name_size;
            p.size = size;
            b->added[list][b->added_count[list]++] = p;
        }
        free(normal);
    }
    return d->error[0] ? -1 : 0;
}

static inline void bpe_sort_added(bpe *b)
{
    for (int k = 0; k < 2; k++) {
        qsort(b->added[k], b->added_count[k], sizeof *b->added[k], bpe_by_first);
        memset(b->first_added[k], 0, sizeof b->first_added[k]);
        for (uint32_t i = 0; i < b->added_count[k]; i++)
            b->first_added[k][(unsigned char)b->added[k][i].text[0] + 1]++;
        for (int c = 0; c < 256; c++)
            b->first_added[k][c + 1] += b->first_added[k][c];
    }
}

/* Stores all tokens: vocabulary and added ones. Requires that bpe_load_names was called. */
static inline int bpe_load_tokens(bpe_loader *l, uint32_t added)
{
    json *d = &l->d;
    size_t n = (size_t)l->b->count;
    const bpe_name **token = (const bpe_name **)bpe_array(d, n, sizeof *token);
    const bpe_added **normal = (const bpe_added **)bpe_array(d, n, sizeof *normal);
    for (uint32_t i = 0; token != NULL && i <= l->mask; i++) {
        const bpe_name *p = &l->names[i];
        if (p->at == 0)
            continue;
        if ((size_t)p->id >= n || token[p->id] != NULL) {
            json_fail(d, d->nodes[p->at].line,
                      "token \"%.80s\": id %d occurs twice, or leaves a gap among %d tokens",
                      json_text(d, p->at), (int)p->id, (int)n);
            break;
        }
        token[p->id] = p;
    }
    if (!d->error[0] && bpe_load_added(l, added) == 0) {
        for (uint32_t i = 0; i < l->b->added_count[1]; i++)
            normal[l->b->added[1][i].id] = &l->b->added[1][i];
        bpe_load_bytes(l, token, normal);
    }
    free(token);
    free(normal);
    if (d->error[0] || bpe_load_single(l) != 0)
        return -1;
    bpe_sort_added(l->b);
    l->b->words = (bpe_word *)bpe_array(d, BPE_CACHE, sizeof *l->b->words);
    return d->error[0] ? -1 : 0;
}

static inline bpe_merge *bpe_merge_slot(const bpe *b, int32_t first, int32_t second)
{
    uint64_t pair = (uint64_t)(uint32_t)first << 32 | (uint32_t)second;
    uint32_t i = (uint32_t)(pair * 0x9e3779b97f4a7c15u >> 32);
    while (b->merges[i & b->merge_mask].pair != pair &&
           b->merges[i & b->merge_mask].pair != BPE_NO_PAIR)
        i++;
    return &b->merges[i & b->merge_mask];
}

/* Stores the merge of two names with the given rank. `in` and `line` say where it was read, for
 * error texts. */
static inline int bpe_load_merge(bpe_loader *l, json *in, uint32_t line, uint32_t rank,
                                 const char *first, size_t n, const char *second, size_t m)
{
    if (n + m >= l->joined_capacity) {
        size_t capacity = 2 * (n + m) + 64;
        char *joined = (char *)realloc(l->joined, capacity);
        if (joined == NULL)
            return json_fail(in, line, "out of memory for %.0f bytes", (double)capacity);
        l->joined = joined;
        l->joined_capacity = capacity;
    }
    memcpy(l->joined, first, n);
    memcpy(l->joined + n, second, m);
    int32_t a = bpe_find(l, first, n), b = bpe_find(l, second, m),
            id = bpe_find(l, l->joined, n + m);
    if (a < 0 || b < 0 || id < 0) {
        size_t size = a < 0 ? n : b < 0 ? m : n + m;
        return json_fail(in, line, "a merge has \"%.*s\", which is not in the vocabulary",
                         (int)(size < 80 ? size : 80), l->joined + (a >= 0 && b < 0 ? n : 0));
    }
    if (m >= 3 && memcmp(second, BPE_SPACE, 3) == 0 &&
        (n < 3 || memcmp(first + n - 3, BPE_SPACE, 3) != 0))
        l->cross_merge = 1;
    bpe_merge *p = bpe_merge_slot(l->b, a, b);
    p->pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    p->rank = rank; /* if a pair occurs twice, its last rank counts, as in Hugging Face */
    p->id = id;
    return 0;
}

static inline void bpe_load_merge_table(bpe_loader *l, json *in, size_t n)
{
    l->b->merges = (bpe_merge *)bpe_table(in, n, sizeof(bpe_merge), 255, &l->b->merge_mask);
}

/* Reads merges.txt: a line "first second" for each merge; lines that begin with #version are
 * skipped. */
static inline int bpe_load_merges_text(bpe_loader *l, const char *path)
{
    json in;
    size_t size = 0, count = 1;
    uint32_t rank = 0, line = 0;
    const char *s = json_read_text(&in, path, &size), *end = s != NULL ? s + size : s;
    const int bom = s != NULL ? json_bom_size(&in, s, size) : 0;
    if (bom > 0)
        s += bom;
    for (const char *p = s; p != NULL && p < end; p++)
        count += *p == '\n';
    if (s != NULL)
        bpe_load_merge_table(l, &in, count);
    while (!in.error[0] && s < end) {
        size_t n = strcspn(s, "\n"), length = n - (n > 0 && s[n - 1] == '\r');
        line++;
        if (strncmp(s, "#version", 8) != 0 && length > 0) {
            const char *space = (const char *)memchr(s, ' ', length);
            size_t first = space != NULL ? (size_t)(space - s) : 0, second = length - first - 1;
            if (space == NULL || memchr(space + 1, ' ', second) != NULL)
                json_fail(&in, line, "expected two tokens with a space between them");
            else
                bpe_load_merge(l, &in, line, rank++, s, first, space + 1, second);
        }
        s += n + 1;
    }
    if (in.error[0])
        memcpy(l->d.error, in.error, sizeof in.error);
    json_free(&in);
    return l->d.error[0] ? -1 : 0;
}

/* Reads merges from tokenizer.json: an array of ["first", "second"] or, in older files, of "first
 * second". */
static inline int bpe_load_merges_array(bpe_loader *l, uint32_t model)
{
    json *d = &l->d;
    uint32_t rank = 0, merges = json_require(d, model, "merges", JSON_ARRAY);
    if (d->error[0])
        return -1;
    bpe_load_merge_table(l, d, json_size(d, merges));
    for (uint32_t i = json_first(d, merges); !d->error[0] && i != 0; i = json_next(d, i)) {
        const char *first = "", *second = NULL;
        size_t n = 0, m = 0;
        if (json_kind_of(d, i) == JSON_STRING) {
            first = json_text(d, i);
            second = strchr(first, ' ');
            n = second != NULL ? (size_t)(second++ - first) : 0;
            m = json_size(d, i) - n - 1;
        } else if (json_kind_of(d, i) == JSON_ARRAY && json_size(d, i) == 2 &&
                   json_kind_of(d, i + 1) == JSON_STRING && json_kind_of(d, i + 2) == JSON_STRING) {
            first = json_text(d, i + 1);
            second = json_text(d, i + 2);
            n = json_size(d, i + 1);
            m = json_size(d, i + 2);
        }
        if (second == NULL)
            json_mismatch(d, i, "a merge: two tokens in an array, or with a space between them");
        else
            bpe_load_merge(l, d, d->nodes[i].line, rank++, first, n, second, m);
    }
    return d->error[0] ? -1 : 0;
}

static inline int bpe_load_end(bpe_loader *l)
{
    char error[sizeof l->d.error];
    memcpy(error, l->d.error, sizeof error);
    json_free(&l->d);
    free(l->names);
    free(l->joined);
    if (error[0])
        bpe_free(l->b);
    memcpy(l->b->error, error, sizeof error);
    return error[0] ? -1 : 0;
}

/* ---- loading: the rest of tokenizer.json ----------------------------------------------------- */
/* GPT-2's regular expression, which ByteLevel splits by. */
#define BPE_REGEX_GPT2                                                                             \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Stores the error that `part` has an unsupported type, such as: part: expected .., found "type".
 * Returns -1. */
static inline int bpe_fail_type(json *d, uint32_t object, const char *part, const char *known)
{
    uint32_t at = json_find(d, object, "type");
    if (json_kind_of(d, object) != JSON_OBJECT)
        return json_fail(d, json_kind_of(d, object) ? d->nodes[object].line : 0,
                         "%s: expected %s, found %s", part, known,
                         json_kind_name(json_kind_of(d, object)));
    return json_fail(d, d->nodes[object].line, "%s: expected the type %s, found \"%.80s\"", part,
                     known, json_kind_of(d, at) == JSON_STRING ? json_text(d, at) : "");
}

static inline int bpe_is_type(json *d, uint32_t object, const char *type)
{
    return json_is(d, json_find(d, object, "type"), type);
}

/* Copies a text of the file, at least `least` and below BPE_PATTERN bytes, to a field of a step. */
static inline int bpe_load_pattern(json *d, uint32_t at, size_t least, char *to, size_t *size)
{
    const char *s = json_text(d, at);
    const size_t n = json_size(d, at);
    *size = 0; /* set after an error as well, since callers continue */
    if (d->error[0])
        return -1;
    if (n < least || n >= BPE_PATTERN)
        return json_mismatch(d, at, least ? "a text of 1 to 31 bytes" : "a text of 0 to 31 bytes");
    memcpy(to, s, *size = n);
    return 0;
}

/* Appends a step; the tokenizer owns its regular expression from then on. */
static inline void bpe_load_step(bpe_loader *l, const bpe_step *p)
{
    bpe *b = l->b;
    if (b->step_count == BPE_STEPS)
        json_fail(&l->d, 0, "more than %d normalizers and pre-tokenizers", (int)BPE_STEPS);
    if (l->d.error[0])
        free(p->regex);
    else
        b->steps[b->step_count++] = *p;
}

/* Compiles a regular expression of n bytes for a step. `line` says where it is, for error texts. */
static inline bpe_regex *bpe_load_regex(json *d, uint32_t line, const char *part, const char *regex,
                                        size_t n)
{
    const char *error = NULL;
    if (d->error[0])
        return NULL;
    bpe_regex *r = bpe_regex_new(regex, n, &error);
    if (r == NULL && error == NULL)
        json_fail(d, 0, "out of memory for %.0f bytes", (double)sizeof *r);
    else if (r == NULL)
        json_fail(
            d, line,
            "%s: the regular expression \"%.200s\" is not supported: it has %s; what is supported "
            "is in tokenizer_regex.h",
            part, regex, error);
    else if (r->anchored && strcmp(part, "normalizer") != 0)
        json_fail(d, line, "%s: the regular expression \"%.200s\" is not supported: it has \\A",
                  part, regex);
    return r;
}

/* Reads a Replace step; `part` is "normalizer" or "decoder", which has no regular expression. */
static inline void bpe_load_replace(json *d, uint32_t object, const char *part, bpe_step *p)
{
    uint32_t pattern = json_require(d, object, "pattern", JSON_OBJECT);
    uint32_t regex = json_find(d, pattern, "Regex");
    p->kind = BPE_REPLACE;
    if (regex && strcmp(part, "normalizer") == 0) {
        const char *text = json_text(d, regex);
        p->regex = bpe_load_regex(d, d->nodes[regex].line, part, text, json_size(d, regex));
        bpe_load_pattern(d, json_require(d, object, "content", JSON_STRING), 0, p->to, &p->to_size);
        return;
    }
    if (regex) {
        json_fail(d, d->nodes[regex].line,
                  "%s: expected a Replace of a text (String), found the regular expression "
                  "\"%.160s\"",
                  part, json_text(d, regex));
        return;
    }
    bpe_load_pattern(d, json_require(d, pattern, "String", JSON_STRING), 1, p->from, &p->from_size);
    bpe_load_pattern(d, json_require(d, object, "content", JSON_STRING), 0, p->to, &p->to_size);
}

/* Reads a BertNormalizer, which is a step for each of its options. */
static inline void bpe_load_bert_normalizer(bpe_loader *l, uint32_t object)
{
    json *d = &l->d;
    const int lower = json_bool(d, object, "lowercase", 1);
    const int accents = json_bool(d, object, "strip_accents", lower);
    const struct {
        bpe_kind kind;
        int on;
    } steps[] = { { BPE_CLEAN, json_bool(d, object, "clean_text", 1) },
                  { BPE_IDEOGRAPHS, json_bool(d, object, "handle_chinese_chars", 1) },
                  { BPE_NFD, accents },
                  { BPE_ACCENTS, accents },
                  { BPE_LOWER, lower } };
    for (int i = 0; i < 5; i++) {
        const bpe_step p = { steps[i].kind, "", "", 0, 0, BPE_NEVER, NULL };
        if (steps[i].on)
            bpe_load_step(l, &p);
    }
    l->b->normalizers = l->b->step_count;
}

/* Reads the map of a Precompiled normalizer: in base64, the number of bytes of the trie (32 bits), its
 * units, and the texts. */
static inline void bpe_load_charsmap(bpe_loader *l, uint32_t at)
{
    json *d = &l->d;
    bpe_charsmap *m = &l->b->map;
    const char *s = json_text(d, at);
    const size_t n = json_size(d, at);
    unsigned char *bytes = d->error[0] ? NULL : (unsigned char *)bpe_array(d, n, 1);
    if (bytes == NULL)
        return;
    size_t size = bpe_base64(s, n, bytes);
    const size_t trie = size == SIZE_MAX || size < 4 ? SIZE_MAX : bpe_get32(bytes);
    uint32_t c;
    if (m->units != NULL)
        json_fail(d, d->nodes[at].line, "normalizer: expected one Precompiled");
    else if (trie == SIZE_MAX || trie > size - 4 || trie % 4 != 0)
        json_mismatch(d, at, "a map of SentencePiece in base64");
    if (!d->error[0]) {
        m->count = trie / 4;
        m->size = size - 4 - trie;
        m->units = (uint32_t *)bpe_array(d, m->count, sizeof *m->units);
        m->texts = (char *)bpe_array(d, m->size, 1);
    }
    for (size_t i = 0; !d->error[0] && i < m->count; i++)
        m->units[i] = bpe_get32(bytes + 4 + 4 * i);
    if (!d->error[0])
        memcpy(m->texts, bytes + 4 + trie, m->size);
    free(bytes);
    for (size_t i = 0, start = 0; !d->error[0] && i < m->size;) {
        const int length = json_utf8(m->texts + i, m->size - i, &c);
        if (length < 0) {
            json_mismatch(d, at, "texts in UTF-8 in a map of SentencePiece");
            return;
        }
        i += (size_t)length;
        start = c == 0 ? i : start;
        m->longest = i - start > m->longest ? i - start : m->longest;
    }
}

static inline void bpe_load_normalizer(bpe_loader *l, uint32_t object)
{
    json *d = &l->d;
    bpe_step p = { BPE_NFC, "", "", 0, 0, BPE_NEVER, NULL };
    if (bpe_is_type(d, object, "Sequence")) {
        uint32_t all = json_require(d, object, "normalizers", JSON_ARRAY);
        for (uint32_t i = json_first(d, all); i != 0 && !d->error[0]; i = json_next(d, i))
            bpe_load_normalizer(l, i);
        return;
    }
    if (bpe_is_type(d, object, "Prepend")) {
        p.kind = BPE_PREPEND;
        bpe_load_pattern(d, json_require(d, object, "prepend", JSON_STRING), 0, p.to, &p.to_size);
    } else if (bpe_is_type(d, object, "Replace")) {
        bpe_load_replace(d, object, "normalizer", &p);
    } else if (bpe_is_type(d, object, "BertNormalizer")) {
        bpe_load_bert_normalizer(l, object);
        return;
    } else if (bpe_is_type(d, object, "Precompiled")) {
        p.kind = BPE_PRECOMPILED;
        bpe_load_charsmap(l, json_require(d, object, "precompiled_charsmap", JSON_STRING));
    } else if (bpe_is_type(d, object, "Strip")) {
        p.kind = BPE_STRIP_LEFT;
        if (json_bool(d, object, "strip_left", 1))
            bpe_load_step(l, &p);
        p.kind = BPE_STRIP_RIGHT;
        if (!json_bool(d, object, "strip_right", 1)) {
            l->b->normalizers = l->b->step_count;
            return;
        }
    } else if (bpe_is_type(d, object, "NFD")) {
        p.kind = BPE_NFD;
    } else if (bpe_is_type(d, object, "Lowercase")) {
        p.kind = BPE_LOWER;
    } else if (!bpe_is_type(d, object, "NFC")) {
        bpe_fail_type(
            d, object, "normalizer",
            "NFC, NFD, Lowercase, Strip, Prepend, Replace, BertNormalizer, Precompiled or "
            "Sequence");
    }
    bpe_load_step(l, &p);
    l->b->normalizers = l->b->step_count;
}

/* Stores an error if all normalizers together lengthen a text more than BPE_GROWTH times. Without
 * this check, a file with 16 Replace steps, each of a space by 30 spaces, would exhaust memory. */
static inline void bpe_check_growth(bpe_loader *l)
{
    double times = 1;
    for (int i = 0; i < l->b->normalizers; i++) {
        const bpe_step *p = &l->b->steps[i];
        if (p->kind == BPE_NFC || p->kind == BPE_NFD)
            times *= 3;
        else if (p->kind == BPE_IDEOGRAPHS || p->kind == BPE_LOWER)
            times *= 5.0 / 3; /* a character of 3 bytes and 2 spaces; 2 bytes become 3 */
        else if (p->kind == BPE_PRECOMPILED && l->b->map.longest > 0)
            times *= (double)l->b->map.longest; /* a key has at least one byte */
        else if (p->kind == BPE_REPLACE && p->regex != NULL)
            times *= p->to_size > 0 ? (double)p->to_size : 1; /* a match has at least one byte */
        else if (p->kind == BPE_REPLACE && p->to_size > p->from_size)
            times *= (double)p->to_size / (double)p->from_size;
    }
    if (times > (double)BPE_GROWTH)
        json_fail(&l->d, 0,
                  "normalizer: these lengthen a text up to %.0f times; at most %d times is allowed",
                  times, (int)BPE_GROWTH);
}

/* Adds the step that splits by GPT-2's regular expression. */
static inline void bpe_load_gpt2(bpe_loader *l)
{
    bpe_step p = { BPE_REGEX, "", "", 0, 0, BPE_NEVER, NULL };
    p.regex = bpe_load_regex(&l->d, 0, "pre_tokenizer", BPE_REGEX_GPT2, sizeof BPE_REGEX_GPT2 - 1);
    bpe_load_step(l, &p);
}

static inline void bpe_load_split(bpe_loader *l, uint32_t object)
{
    static const char *const behaviours[] = { "Isolated", "MergedWithPrevious", "MergedWithNext" };
    json *d = &l->d;
    uint32_t pattern = json_require(d, object, "pattern", JSON_OBJECT);
    uint32_t regex = json_find(d, pattern, "Regex");
    uint32_t behaviour = json_require(d, object, "behavior", JSON_STRING);
    const int matches =
        regex && json_is(d, behaviour, "Removed") && json_bool(d, object, "invert", 0);
    bpe_step p = { BPE_REGEX, "", "", 0, 0, BPE_NEVER, NULL };
    int i = 0;
    if (!matches)
        bpe_require_off(d, object, "invert");
    while (i < 3 && !json_is(d, behaviour, behaviours[i]))
        i++;
    if (matches)
        p.kind = BPE_MATCHES;
    else if (!regex)
        p.kind = (bpe_kind)(BPE_ISOLATED + i);
    if (regex && !matches && i != 0)
        json_mismatch(d, behaviour, "Isolated, or Removed with \"invert\"");
    else if (!regex && i == 3)
        json_mismatch(d, behaviour, "Isolated, MergedWithPrevious or MergedWithNext");
    else if (!regex)
        bpe_load_pattern(d, json_require(d, pattern, "String", JSON_STRING), 1, p.from,
                         &p.from_size);
    else
        p.regex = bpe_load_regex(d, d->nodes[regex].line, "pre_tokenizer", json_text(d, regex),
                                 json_size(d, regex));
    bpe_load_step(l, &p);
}

/* Returns when a Metaspace puts its replacement before a piece. */
static inline bpe_when bpe_load_scheme(json *d, uint32_t object)
{
    uint32_t scheme = json_find_nonnull(d, object, "prepend_scheme");
    const bpe_when when = json_is(d, scheme, "first")   ? BPE_FIRST
                          : json_is(d, scheme, "never") ? BPE_NEVER
                                                        : BPE_ALWAYS;
    if (scheme && when == BPE_ALWAYS && !json_is(d, scheme, "always"))
        json_mismatch(d, scheme, "always, first or never");
    if (!json_bool(d, object, "add_prefix_space", 1) && when != BPE_NEVER)
        json_mismatch(d, json_find(d, object, "add_prefix_space"),
                      "true, or \"never\" as prepend_scheme");
    return when;
}

static inline void bpe_load_metaspace(bpe_loader *l, uint32_t object)
{
    json *d = &l->d;
    uint32_t scheme = json_find_nonnull(d, object, "prepend_scheme"), c = 0;
    uint32_t replacement = json_require(d, object, "replacement", JSON_STRING);
    bpe_step p = { BPE_METASPACE, "", "", 0, 0, BPE_ALWAYS, NULL };
    bpe_load_pattern(d, replacement, 1, p.to, &p.to_size);
    if (!d->error[0] && (size_t)json_utf8(p.to, p.to_size, &c) != p.to_size)
        json_mismatch(d, replacement, "one character");
    p.when = bpe_load_scheme(d, object);
    /* After a normalizer and another step, several pieces could count as the first one. If a
     * normalizer removed the start of the text, none would. */
    int removes = l->b->normalizers > 0 && l->b->step_count > l->b->normalizers;
    for (const bpe_step *q = l->b->steps; q < l->b->steps + l->b->normalizers; q++)
        removes |= q->kind == BPE_STRIP_LEFT || q->kind == BPE_CLEAN || q->kind == BPE_ACCENTS ||
                   (q->kind == BPE_REPLACE && q->to_size == 0);
    if (p.when == BPE_FIRST && removes)
        json_mismatch(d, scheme,
                      "always or never, with an earlier pre_tokenizer and a normalizer, or "
                      "with a normalizer that removes text");
    bpe_load_step(l, &p);
    if (json_bool(d, object, "split", 1)) {
        bpe_step split = { BPE_SPLIT_BEFORE, "", "", p.to_size, 0, BPE_NEVER, NULL };
        memcpy(split.from, p.to, p.to_size);
        bpe_load_step(l, &split);
    }
}

static inline void bpe_load_pre_tokenizer(bpe_loader *l, uint32_t object)
{
    json *d = &l->d;
    bpe_step p = { BPE_PREFIX, "", "", 0, 0, BPE_NEVER, NULL };
    if (l->b->byte_level) {
        json_fail(d, d->nodes[object].line, "pre_tokenizer: expected ByteLevel to be the last");
    } else if (bpe_is_type(d, object, "Sequence")) {
        uint32_t all = json_require(d, object, "pretokenizers", JSON_ARRAY);
        for (uint32_t i = json_first(d, all); i != 0 && !d->error[0]; i = json_next(d, i))
            bpe_load_pre_tokenizer(l, i);
    } else if (bpe_is_type(d, object, "ByteLevel")) {
        if (json_bool(d, object, "add_prefix_space", 0))
            bpe_load_step(l, &p);
        if (json_bool(d, object, "use_regex", 1))
            bpe_load_gpt2(l);
        l->b->byte_level = 1;
    } else if (bpe_is_type(d, object, "Digits")) {
        p.kind = json_bool(d, object, "individual_digits", 0) ? BPE_DIGIT : BPE_DIGITS;
        bpe_load_step(l, &p);
    } else if (bpe_is_type(d, object, "BertPreTokenizer")) {
        p.kind = BPE_WHITESPACE;
        bpe_load_step(l, &p);
        p.kind = BPE_PUNCTUATION;
        bpe_load_step(l, &p);
    } else if (bpe_is_type(d, object, "WhitespaceSplit")) {
        p.kind = BPE_WHITESPACE;
        bpe_load_step(l, &p);
    } else if (bpe_is_type(d, object, "Punctuation")) {
        uint32_t behaviour = json_find_nonnull(d, object, "behavior");
        if (behaviour && !json_is(d, behaviour, "Isolated"))
            json_mismatch(d, behaviour, "Isolated");
        p.kind = BPE_PUNCTUATION;
        bpe_load_step(l, &p);
    } else if (bpe_is_type(d, object, "Metaspace")) {
        bpe_load_metaspace(l, object);
    } else if (bpe_is_type(d, object, "Split")) {
        bpe_load_split(l, object);
    } else {
        bpe_fail_type(d, object, "pre_tokenizer",
                      "ByteLevel, Digits, Metaspace, Split, WhitespaceSplit, Punctuation, "
                      "BertPreTokenizer or Sequence");
    }
}

/* Reads a decoder. The steps of a Sequence must be in the order Replace, ByteFallback, Fuse, Strip;
 * *before is the number of leading steps of this order that must not follow any more. */
static inline void bpe_load_decoder(bpe_loader *l, uint32_t object, int *before)
{
    static const char *const order[] = { "Replace", "ByteFallback", "Fuse", "Strip" };
    json *d = &l->d;
    int i = 0;
    if (bpe_is_type(d, object, "Sequence")) {
        uint32_t all = json_require(d, object, "decoders", JSON_ARRAY);
        for (i = 0, all = json_first(d, all); all != 0 && !d->error[0]; all = json_next(d, all))
            bpe_load_decoder(l, all, before);
        return;
    }
    if (l->b->model == BPE_WORDPIECE) {
        uint32_t prefix = json_find_nonnull(d, object, "prefix");
        if (!bpe_is_type(d, object, "WordPiece"))
            bpe_fail_type(d, object, "decoder", "WordPiece, as the model is");
        else if (prefix &&
                 (json_size(d, prefix) != l->b->continuing_size ||
                  memcmp(json_text(d, prefix), l->b->continuing, json_size(d, prefix)) != 0))
            json_mismatch(d, prefix, "the model's continuing_subword_prefix");
        l->cleanup = json_bool(d, object, "cleanup", 1);
        return;
    }
    if (l->b->byte_level) {
        if (!bpe_is_type(d, object, "ByteLevel"))
            bpe_fail_type(d, object, "decoder", "ByteLevel, as the pre_tokenizer is");
        return;
    }
    if (bpe_is_type(d, object, "Metaspace") && *before == 0) {
        bpe_load_pattern(d, json_require(d, object, "replacement", JSON_STRING), 1, l->replace.from,
                         &l->replace.from_size);
        l->replace.kind = BPE_REPLACE;
        l->replace.to[0] = ' ';
        l->replace.to_size = 1;
        l->b->strip = bpe_load_scheme(d, object) != BPE_NEVER ? BPE_STRIP_TOKEN : 0;
        *before = 4;
        return;
    }
    while (i < 4 && !bpe_is_type(d, object, order[i]))
        i++;
    if (i == 4 || i < *before || (i == 3 && *before != 3)) {
        bpe_fail_type(
            d, object, "decoder",
            "Metaspace, or Replace, ByteFallback, Fuse or Strip in a Sequence of this order "
            "(with ByteLevel as pre_tokenizer: ByteLevel)");
        return;
    }
    *before = i + 1;
    if (i == 0)
        bpe_load_replace(d, object, "decoder", &l->replace);
    l->byte_fallback |= i == 1;
    if (i == 3) {
        uint32_t content = json_require(d, object, "content", JSON_STRING);
        int64_t start = json_int(d, object, "start", 0), stop = json_int(d, object, "stop", 0);
        if (!d->error[0] && (!json_is(d, content, " ") || start < 0 || start > 1 || stop != 0))
            json_fail(d, d->nodes[object].line,
                      "decoder: expected a Strip of at most one space at the start");
        l->b->strip = (int)start;
    }
}

/* Reads the special tokens that a TemplateProcessing adds to one text or, if `pair` is nonzero, to
 * two. */
static inline void bpe_load_parts(bpe_loader *l, uint32_t object, int pair)
{
    bpe *b = l->b;
    json *d = &l->d;
    int32_t *const to[2][3] = { { b->prefix, b->suffix, NULL },
                                { b->pair[0], b->pair[1], b->pair[2] } };
    int *const counts[2][3] = { { &b->prefix_count, &b->suffix_count, NULL },
                                { &b->pair_count[0], &b->pair_count[1], &b->pair_count[2] } };
    uint32_t parts = json_require(d, object, pair ? "pair" : "single", JSON_ARRAY);
    uint32_t known = json_find(d, object, "special_tokens");
    int texts = 0, ones = 0, odd = 0; /* ones: number of parts so far with type 1 */
    for (uint32_t i = json_first(d, parts); i != 0 && !d->error[0]; i = json_next(d, i)) {
        uint32_t text = json_find(d, i, "Sequence"), special = json_find(d, i, "SpecialToken");
        uint32_t id = json_require(d, text ? text : special, "id", JSON_STRING);
        const int64_t type = json_int(d, text ? text : special, "type_id", 0);
        if (text && !d->error[0] && (texts > pair || !json_is(d, id, texts == 0 ? "A" : "B")))
            json_mismatch(d, id,
                          pair ? "the texts A and then B in the template \"pair\""
                               : "one text, A, in the template \"single\"");
        odd |= type != 0 && type != 1;
        odd |= type == 0 ? ones > 0 : texts == 0;
        if (pair && type == 1 && ones++ == 0)
            b->pair_split = b->pair_count[1];
        if (text)
            texts++;
        if (text || d->error[0])
            continue;
        uint32_t token = json_require(d, known, json_text(d, id), JSON_OBJECT);
        uint32_t ids = json_require(d, token, "ids", JSON_ARRAY);
        for (uint32_t k = json_first(d, ids); k != 0 && !d->error[0]; k = json_next(d, k)) {
            int64_t value = json_int_of(d, k);
            int *count = counts[pair][texts];
            if (value < 0 || value >= b->count)
                json_mismatch(d, k, "the id of a token");
            else if (*count == BPE_TEMPLATE_SIZE)
                json_fail(d, d->nodes[k].line, "post_processor: more than %d special tokens",
                          (int)BPE_TEMPLATE_SIZE);
            else
                to[pair][texts][(*count)++] = (int32_t)value;
        }
    }
    if (!d->error[0] && texts == 0 && !pair)
        json_fail(
            d, d->nodes[object].line,
            "post_processor: expected the text, {\"Sequence\": {\"id\": \"A\"}}, in \"single\"");
    if (pair)
        b->pair_types = texts < 2   ? BPE_NO_PAIR_TEMPLATE
                        : odd       ? BPE_TYPES_OTHER
                        : ones == 0 ? BPE_TYPES_ZERO
                                    : BPE_TYPES_SPLIT;
}

/* Reads a token that BertProcessing or RobertaProcessing adds: ["[CLS]", 101]. */
static inline void bpe_load_special(bpe_loader *l, uint32_t object, const char *key, int32_t *to,
                                    int *count)
{
    json *d = &l->d;
    uint32_t pair = json_require(d, object, key, JSON_ARRAY), first = json_first(d, pair);
    int64_t id = json_int_of(d, json_next(d, first));
    if (!d->error[0] && (id < 0 || id >= l->b->count))
        json_mismatch(d, json_next(d, first), "the id of a token");
    to[(*count)++] = d->error[0] ? 0 : (int32_t)id;
}

/* Sets the template of two texts: BERT's [CLS] A [SEP] B [SEP], or RoBERTa's with two separators
 * and without token types. */
static inline void bpe_join_pair(bpe *b, int roberta)
{
    b->pair[0][0] = b->prefix[0];
    b->pair[1][0] = b->pair[1][1] = b->pair[2][0] = b->suffix[0];
    b->pair_count[0] = b->pair_count[2] = b->pair_split = 1;
    b->pair_count[1] = roberta ? 2 : 1;
    b->pair_types = roberta ? BPE_TYPES_ZERO : BPE_TYPES_SPLIT;
}

static inline void bpe_load_post(bpe_loader *l, uint32_t object, int *templates)
{
    json *d = &l->d;
    if (bpe_is_type(d, object, "Sequence")) {
        uint32_t all = json_require(d, object, "processors", JSON_ARRAY);
        for (uint32_t i = json_first(d, all); i != 0 && !d->error[0]; i = json_next(d, i))
            bpe_load_post(l, i, templates);
    } else if (bpe_is_type(d, object, "TemplateProcessing") ||
               bpe_is_type(d, object, "BertProcessing") ||
               bpe_is_type(d, object, "RobertaProcessing")) {
        if ((*templates)++ > 0) {
            json_fail(d, d->nodes[object].line, "post_processor: expected one template");
        } else if (bpe_is_type(d, object, "TemplateProcessing")) {
            bpe_load_parts(l, object, 0);
            if (json_find_nonnull(d, object, "pair") != 0)
                bpe_load_parts(l, object, 1);
            else
                l->b->pair_types = BPE_NO_PAIR_TEMPLATE;
        } else {
            bpe_load_special(l, object, "cls", l->b->prefix, &l->b->prefix_count);
            bpe_load_special(l, object, "sep", l->b->suffix, &l->b->suffix_count);
            bpe_join_pair(l->b, bpe_is_type(d, object, "RobertaProcessing"));
        }
    } else if (!bpe_is_type(d, object, "ByteLevel")) { /* ByteLevel as post-processor changes no
                                                        * tokens */
        bpe_fail_type(
            d, object, "post_processor",
            "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel or Sequence");
    }
}

/* Reads the model's type and options. */
static inline void bpe_load_model(bpe_loader *l, uint32_t model)
{
    bpe *b = l->b;
    json *d = &l->d;
    if (bpe_is_type(d, model, "WordPiece")) {
        uint32_t prefix = json_find_nonnull(d, model, "continuing_subword_prefix");
        int64_t most = json_int(d, model, "max_input_chars_per_word", 100);
        b->model = BPE_WORDPIECE;
        memcpy(b->continuing, "##", b->continuing_size = 2);
        if (prefix)
            bpe_load_pattern(d, prefix, 0, b->continuing, &b->continuing_size);
        json_require(d, model, "unk_token", JSON_STRING);
        if (!d->error[0] && most < 0)
            json_mismatch(d, json_find(d, model, "max_input_chars_per_word"), "0 or more");
        b->most_characters = (size_t)most;
        return;
    }
    b->byte_fallback = json_bool(d, model, "byte_fallback", 0);
    if (bpe_is_type(d, model, "Unigram")) {
        b->model = BPE_UNIGRAM;
        return;
    }
    if (json_find(d, model, "type") && !bpe_is_type(d, model, "BPE")) /* GPT-2's file has no type */
        bpe_fail_type(d, model, "model", "BPE, WordPiece or Unigram");
    bpe_require_off(d, model, "dropout");
    bpe_require_off(d, model, "continuing_subword_prefix");
    bpe_require_off(d, model, "end_of_word_suffix");
    b->fuse_unk = json_bool(d, model, "fuse_unk", 0);
    b->ignore_merges = json_bool(d, model, "ignore_merges", 0);
}

/* Reads the id of the unknown token of a Unigram model. */
static inline void bpe_load_unknown(bpe_loader *l, uint32_t model)
{
    json *d = &l->d;
    uint32_t unknown = json_require(d, model, "unk_id", JSON_NUMBER);
    const int64_t id = json_int_of(d, unknown);
    if (!d->error[0] && (id < 0 || id >= json_size(d, json_find(d, model, "vocab"))))
        json_mismatch(d, unknown, "the id of a token of the vocabulary");
    l->b->unknown = (int32_t)id;
}

/* Looks up the id of unk_token. Then adds a step that splits text before each U+2581 (a space), so
 * that words stay short, if U+2581 is a token and no merge joins it with text before it. */
static inline void bpe_finish_load(bpe_loader *l, uint32_t model)
{
    bpe *b = l->b;
    json *d = &l->d;
    uint32_t unknown = json_find_nonnull(d, model, "unk_token");
    const char *name = unknown ? json_text(d, unknown) : "";
    size_t size = json_size(d, unknown);
    int all_bytes = b->byte_level; /* 1 if each byte has a token, so that unk_token is never used */
    for (int i = 0; i < 256; i++)
        all_bytes &= b->byte[i] >= 0;
    b->unknown = unknown && !d->error[0] ? bpe_find(l, name, size) : -1;
    if (unknown && b->unknown < 0 && (!all_bytes || b->model != BPE_MERGES))
        json_mismatch(d, unknown, "a token of the vocabulary");
    if (d->error[0])
        return;
    if (b->model != BPE_MERGES && b->byte_level)
        json_fail(d, 0, "pre_tokenizer: ByteLevel is expected only with the model BPE");
    if (b->model == BPE_UNIGRAM)
        bpe_load_unknown(l, model);
    if (b->model != BPE_MERGES || b->byte_level || b->ignore_merges || l->cross_merge ||
        bpe_find(l, BPE_SPACE, 3) < 0 ||
        (size >= 3 && memcmp(name + size - 3, BPE_SPACE, 3) == 0) || b->step_count == BPE_STEPS)
        return;
    bpe_step p = { BPE_SPACES, BPE_SPACE, "", 3, 0, BPE_NEVER, NULL };
    bpe_load_step(l, &p);
}

/* Reads a tokenizer.json that l->d has parsed. */
static inline int bpe_load_json(bpe_loader *l)
{
    json *d = &l->d;
    int decoders = 0, templates = 0;
    uint32_t model = json_require(d, JSON_ROOT, "model", JSON_OBJECT);
    uint32_t normalizer = json_find_nonnull(d, JSON_ROOT, "normalizer");
    uint32_t splitter = json_find_nonnull(d, JSON_ROOT, "pre_tokenizer");
    uint32_t after = json_find_nonnull(d, JSON_ROOT, "post_processor");
    uint32_t added = json_find_nonnull(d, JSON_ROOT, "added_tokens");
    bpe_load_model(l, model);
    if (normalizer)
        bpe_load_normalizer(l, normalizer);
    bpe_check_growth(l);
    if (splitter)
        bpe_load_pre_tokenizer(l, splitter);
    bpe_load_decoder(l, json_require(d, JSON_ROOT, "decoder", JSON_OBJECT), &decoders);
    if (added && json_kind_of(d, added) != JSON_ARRAY)
        json_mismatch(d, added, "an array");
    uint32_t vocabulary =
        json_require(d, model, "vocab", l->b->model == BPE_UNIGRAM ? JSON_ARRAY : JSON_OBJECT);
    if (!d->error[0] && bpe_load_names(l, vocabulary, added) == 0 &&
        bpe_load_tokens(l, added) == 0 &&
        (l->b->model != BPE_MERGES || bpe_load_merges_array(l, model) == 0)) {
        bpe_finish_load(l, model);
        if (after)
            bpe_load_post(l, after, &templates);
    }
    return bpe_load_end(l);
}

static inline void bpe_init_loader(bpe_loader *l, bpe *b)
{
    memset(b, 0, sizeof *b);
    memset(l, 0, sizeof *l);
    l->b = b;
}

/* Reads the tokenizer.json at `path`. Returns 0, or -1 with b->error and nothing to free. */
static inline int bpe_read_json(bpe *b, const char *path)
{
    bpe_loader l;
    bpe_init_loader(&l, b);
    return json_read_file(&l.d, path) == 0 ? bpe_load_json(&l) : bpe_load_end(&l);
}

/* Reads the tokenizer from `text`, a tokenizer.json of n bytes followed by a 0, and frees `text`.
 * `name` is the file's name for error texts. */
static inline int bpe_read_text(bpe *b, const char *name, char *text, size_t n)
{
    bpe_loader l;
    bpe_init_loader(&l, b);
    json_init(&l.d, name);
    l.d.owned = text;
    return json_parse(&l.d, text, n) == 0 ? bpe_load_json(&l) : bpe_load_end(&l);
}

/* Adds the special tokens of vocab.json, which that file does not name: GPT-2's <|endoftext|>, or, if
 * there is a <mask>, RoBERTa's, of which <s> and </s> are added before and after a text. */
static inline void bpe_load_specials(bpe_loader *l)
{
    static const char *const names[] = {
        "<|endoftext|>", "<mask>", "<s>", "<pad>", "</s>", "<unk>"
    };
    bpe *b = l->b;
    const int roberta =
        bpe_find(l, "<mask>", 6) >= 0 && bpe_find(l, "<s>", 3) >= 0 && bpe_find(l, "</s>", 4) >= 0;
    free(b->added[0]);
    b->added[0] = (bpe_added *)bpe_array(&l->d, 6, sizeof *b->added[0]);
    for (int i = roberta; i < (roberta ? 6 : 1) && !l->d.error[0]; i++) {
        const size_t n = strlen(names[i]);
        const bpe_added special = {
            names[i], n, bpe_find(l, names[i], n), 1, roberta && i == 1, 0, names[i], n, NULL
        };
        if (special.id >= 0)
            b->added[0][b->added_count[0]++] = special;
    }
    if (roberta) {
        b->prefix[b->prefix_count++] = bpe_find(l, "<s>", 3);
        b->suffix[b->suffix_count++] = bpe_find(l, "</s>", 4);
        bpe_join_pair(b, 1);
    }
    if (!l->d.error[0])
        bpe_sort_added(b);
}

/* Reads a tokenizer from vocab.json and merges.txt, the older format of GPT-2 and RoBERTa. Returns 0, or
 * -1 with b->error and nothing to free. */
static inline int bpe_read_files(bpe *b, const char *vocabulary, const char *merges)
{
    bpe_loader l;
    bpe_init_loader(&l, b);
    b->byte_level = 1;
    b->unknown = -1;
    if (json_read_file(&l.d, vocabulary) == 0)
        bpe_load_gpt2(&l);
    if (!l.d.error[0] && json_kind_of(&l.d, JSON_ROOT) != JSON_OBJECT)
        json_mismatch(&l.d, JSON_ROOT, "an object of tokens and their ids");
    if (!l.d.error[0] && bpe_load_names(&l, JSON_ROOT, 0) == 0 && bpe_load_tokens(&l, 0) == 0 &&
        bpe_load_merges_text(&l, merges) == 0)
        bpe_load_specials(&l);
    return bpe_load_end(&l);
}

/* Reads a tokenizer from a text that bpe_vocab_json, bpe_spm_json or bpe_tekken_json returned, with
 * their d. */
static inline int bpe_read_converted(bpe *b, const json *d, const char *path, char *text,
                                     size_t size)
{
    if (text != NULL)
        return bpe_read_text(b, path, text, size);
    memset(b, 0, sizeof *b);
    memcpy(b->error, d->error, sizeof b->error);
    return -1;
}

/* Reads a tokenizer from vocab.txt, the older format of BERT, and the tokenizer_config.json next to
 * it, or NULL without one (bpe_vocab_json). Returns 0, or -1 with b->error and nothing to free. */
static inline int bpe_read_vocab(bpe *b, const char *vocabulary, const char *config)
{
    json d;
    size_t size = 0;
    char *text = bpe_vocab_json(&d, vocabulary, config, &size);
    return bpe_read_converted(b, &d, vocabulary, text, size);
}

/* Reads a tokenizer from SentencePiece's tokenizer.model, like bpe_read_vocab (bpe_spm_json). */
static inline int bpe_read_spm(bpe *b, const char *path, const char *config)
{
    json d;
    size_t size = 0;
    char *text = bpe_spm_json(&d, path, config, &size);
    return bpe_read_converted(b, &d, path, text, size);
}

/* Reads a tokenizer from Mistral's tekken.json (bpe_tekken_json). As in tiktoken, pairs that merge
 * into the same token have the same rank. */
static inline int bpe_read_tekken(bpe *b, const char *path)
{
    json d;
    size_t size = 0;
    char *text = bpe_tekken_json(&d, path, &size);
    const int status = bpe_read_converted(b, &d, path, text, size);
    for (uint32_t i = 0; status == 0 && i <= b->merge_mask; i++)
        b->merges[i].rank = (uint32_t)b->merges[i].id;
    return status;
}

/* Reads the tokenizer of a folder: tokenizer.json, or else vocab.json and merges.txt, or else
 * vocab.txt or tokenizer.model, with tokenizer_config.json if it exists, or else tekken.json. */
static inline int bpe_open(bpe *b, const char *directory)
{
    static const char *const files[] = { "tokenizer.json",       "vocab.json",
                                         "merges.txt",           "vocab.txt",
                                         "tokenizer.model",      "tekken.json",
                                         "tokenizer_config.json" };
    char path[7][1024];
    int exists[7];
    for (int i = 0; i < 7; i++) {
        int n = snprintf(path[i], sizeof path[i], "%s/%s", directory, files[i]);
        exists[i] = n > 0 && (size_t)n < sizeof path[i] && json_file_exists(path[i]);
    }
    if (exists[0])
        return bpe_read_json(b, path[0]);
    if (exists[1] && exists[2])
        return bpe_read_files(b, path[1], path[2]);
    if (exists[3])
        return bpe_read_vocab(b, path[3], exists[6] ? path[6] : NULL);
    if (exists[4])
        return bpe_read_spm(b, path[4], exists[6] ? path[6] : NULL);
    if (exists[5])
        return bpe_read_tekken(b, path[5]);
    memset(b, 0, sizeof *b);
    snprintf(b->error, sizeof b->error,
             "%.200s: expected a directory with tokenizer.json, with vocab.json and merges.txt, "
             "with vocab.txt, with tokenizer.model, or with tekken.json",
             directory);
    return -1;
}

/* ---- text to tokens -------------------------------------------------------------------------- */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
bpe_fail(bpe_tokens *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(t->error, sizeof t->error, format, args);
    va_end(args);
    return -1;
}

/* Makes space for n more tokens in t->ids. Returns 0, or -1 with t->error. */
static inline int bpe_reserve(bpe_tokens *t, size_t n)
{
    if (n <= t->capacity - t->count)
        return 0;
    size_t capacity = t->count + n + t->capacity / 2 + 64;
    int32_t *ids = capacity < SIZE_MAX / sizeof *ids
                       ? (int32_t *)realloc(t->ids, capacity * sizeof *ids)
                       : NULL;
    if (ids == NULL)
        return bpe_fail(t, "out of memory for %.0f tokens", (double)capacity);
    t->ids = ids;
    t->capacity = capacity;
    return 0;
}

/* Converts n bytes to valid UTF-8 like Python's decode("utf-8", errors="replace"). Returns a text
 * that the caller must free and that ends with a 0, which *size does not count; NULL if out of
 * memory. */
static inline char *bpe_to_utf8(const char *s, size_t n, size_t *size)
{
    char *to = n < SIZE_MAX / 3 ? (char *)malloc(3 * n + 1) : NULL;
    *size = 0;
    for (size_t i = 0; to != NULL && i < n;) {
        uint32_t c = 0xfffd;
        int length = json_utf8(s + i, n - i, &c);
        *size += (size_t)json_put_utf8(to + *size, c);
        i += (size_t)(length < 0 ? -length : length);
    }
    if (to != NULL)
        to[*size] = 0;
    return to;
}

/* Allocates the arrays that merging a word of n bytes needs. Returns 0, or -1 with t->error. */
static inline int bpe_reserve_word(bpe *b, size_t n, bpe_tokens *t)
{
    size_t capacity = n + n / 2 + 64;
    if (n <= b->capacity)
        return 0;
    free(b->heap);
    free(b->symbol);
    free(b->next);
    free(b->prev);
    free(b->sums);
    b->sums = (double *)malloc((b->model == BPE_UNIGRAM ? capacity : 1) * sizeof *b->sums);
    b->heap = (uint64_t *)malloc(2 * capacity * sizeof *b->heap);
    b->symbol = (int32_t *)malloc(capacity * sizeof *b->symbol);
    b->next = (uint32_t *)malloc(capacity * sizeof *b->next);
    b->prev = (uint32_t *)malloc(capacity * sizeof *b->prev);
    int allocated = b->heap != NULL && b->symbol != NULL && b->next != NULL && b->prev != NULL &&
                    b->sums != NULL;
    b->capacity = allocated ? capacity : 0;
    return allocated ? 0 : bpe_fail(t, "out of memory for a word of %.0f bytes", (double)n);
}

/* Adds the merge of the tokens at the positions `position` and `next` to the heap of `count`
 * entries, if there is such a merge. Returns the heap's new number of entries. */
static inline size_t bpe_push(bpe *b, size_t count, uint32_t position, uint32_t next)
{
    const bpe_merge *m = bpe_merge_slot(b, b->symbol[position], b->symbol[next]);
    if (m->pair == BPE_NO_PAIR)
        return count;
    uint64_t key = (uint64_t)m->rank << 32 | position;
    size_t i = count;
    for (; i > 0 && b->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = key;
    return count + 1;
}

/* Removes the least entry from the heap of `count` > 0 entries and returns it. */
static inline uint64_t bpe_pop(bpe *b, size_t count)
{
    uint64_t least = b->heap[0], last = b->heap[count - 1];
    size_t i = 0, k;
    while ((k = 2 * i + 1) < count - 1) {
        k += k + 1 < count - 1 && b->heap[k + 1] < b->heap[k];
        if (b->heap[k] >= last)
            break;
        b->heap[i] = b->heap[k];
        i = k;
    }
    b->heap[i] = last;
    return least;
}

/* Returns the id of the vocabulary token with this name, or -1. */
static inline int32_t bpe_id_of(const bpe *b, const char *name, size_t n)
{
    return *bpe_id_slot(b, name, n);
}

/* Fills b->symbol with the tokens of a word's bytes or characters, before any merge. Returns their
 * number, at most n. A character without a token becomes unk_token, unless byte_fallback gives the
 * tokens of its bytes. Like Hugging Face, this writes an unk_token late, before the next character
 * that has a token, so tokens of byte_fallback may come before it. */
static inline uint32_t bpe_symbols(bpe *b, const char *s, size_t n)
{
    uint32_t count = 0, c;
    int pending = 0;
    for (size_t i = 0, size = 1; i < n; i += size) {
        int32_t id;
        if (b->byte_level) {
            id = b->byte[(unsigned char)s[i]];
        } else if ((unsigned char)s[i] < 128) {
            size = 1;
            id = b->ascii[(unsigned char)s[i]];
        } else {
            size = (size_t)json_utf8(s + i, n - i, &c);
            id = bpe_id_of(b, s + i, size);
        }
        int fallback = b->byte_fallback && id < 0;
        for (size_t k = 0; fallback && k < size; k++)
            fallback = b->byte[(unsigned char)s[i + k]] >= 0;
        if (fallback) {
            for (size_t k = 0; k < size; k++)
                b->symbol[count++] = b->byte[(unsigned char)s[i + k]];
        } else if (id >= 0) {
            if (pending)
                b->symbol[count++] = b->unknown;
            b->symbol[count++] = id;
            pending = 0;
        } else if (b->unknown >= 0) {
            if (pending && !b->fuse_unk)
                b->symbol[count++] = b->unknown;
            pending = 1;
        }
    }
    if (pending)
        b->symbol[count++] = b->unknown;
    return count;
}

/* Appends the tokens of a word of n > 0 bytes. Repeatedly applies the merge of the lowest rank, and
 * of equal ranks the leftmost one. Each merge removes one entry from the heap and adds at most two,
 * so a heap of 2 n entries is large enough. */
static inline int bpe_merge_word(bpe *b, const char *s, size_t n, bpe_tokens *t)
{
    size_t count = 0;
    /* for each byte of the word, the heap takes 16 bytes and the other arrays 12 */
    if (n > INT32_MAX || n > SIZE_MAX / 32)
        return bpe_fail(t, "a word of %.0f bytes is too long", (double)n);
    if (bpe_reserve(t, n) != 0 || bpe_reserve_word(b, n, t) != 0)
        return -1;
    int32_t whole = b->ignore_merges ? bpe_id_of(b, s, n) : -1;
    if (whole >= 0) {
        t->ids[t->count++] = whole;
        return 0;
    }
    uint32_t end = bpe_symbols(b, s, n);
    for (uint32_t i = 0; i < end; i++) {
        b->next[i] = i + 1;
        b->prev[i] = i - 1; /* prev[0] is UINT32_MAX, which is never below `end` */
    }
    for (uint32_t i = 0; i + 1 < end; i++)
        count = bpe_push(b, count, i, i + 1);
    while (count > 0) {
        uint64_t least = bpe_pop(b, count--);
        uint32_t i = (uint32_t)least, next = b->next[i];
        if (next == end)
            continue;
        const bpe_merge *m = bpe_merge_slot(b, b->symbol[i], b->symbol[next]);
        if (m->pair == BPE_NO_PAIR || m->rank != least >> 32)
            /* a stale entry: one of its tokens has been merged since; a symbol of -1 has no
             * merge */
            continue;
        b->symbol[i] = m->id;
        b->symbol[next] = -1;
        b->next[i] = b->next[next];
        if (b->next[i] < end) {
            b->prev[b->next[i]] = i;
            count = bpe_push(b, count, i, b->next[i]);
        }
        if (b->prev[i] < end)
            count = bpe_push(b, count, b->prev[i], i);
    }
    for (uint32_t i = 0; i < end; i = b->next[i])
        t->ids[t->count++] = b->symbol[i];
    return 0;
}

/* Returns the id of the vocabulary token whose name is `first` followed by s, or -1. */
static inline int32_t bpe_id_of_joined(const bpe *b, const char *first, size_t m, const char *s,
                                       size_t n)
{
    for (uint32_t i = bpe_hash_end(bpe_hash_more(bpe_hash_more(BPE_HASH, first, m), s, n));; i++) {
        const int32_t id = b->ids[i & b->ids_mask];
        const char *name = id < 0 ? "" : b->names + b->name_start[id];
        if (id < 0 || (b->name_start[id + 1] - b->name_start[id] == m + n &&
                       memcmp(name, first, m) == 0 && memcmp(name + m, s, n) == 0))
            return id;
    }
}

/* Appends the WordPiece tokens of a word of n > 0 bytes: the longest token that the word begins with,
 * then the same for the rest, whose tokens have names that begin with b->continuing. A word that is
 * too long, or in which no token fits somewhere, is one unknown token. */
static inline int bpe_wordpiece_word(bpe *b, const char *s, size_t n, bpe_tokens *t)
{
    const size_t count = t->count;
    size_t characters = 0, start = 0;
    for (size_t i = 0; i < n; i++)
        characters += ((unsigned char)s[i] & 0xc0) != 0x80;
    if (bpe_reserve(t, n) != 0)
        return -1;
    while (characters <= b->most_characters && start < n) {
        const size_t m = start > 0 ? b->continuing_size : 0;
        size_t end = n - start > b->longest ? start + b->longest : n;
        int32_t id = -1;
        for (; end > start && id < 0; end -= id < 0)
            if (end == n || ((unsigned char)s[end] & 0xc0) != 0x80)
                id = bpe_id_of_joined(b, b->continuing, m, s + start, end - start);
        if (id < 0)
            break;
        t->ids[t->count++] = id;
        start = end;
    }
    if (start < n) {
        t->count = count;
        t->ids[t->count++] = b->unknown;
    }
    return 0;
}

/* Considers the token `id` between the positions `start` and `end` of a word: stores it if the sum of
 * scores up to `end` is larger with it than with the tokens that were considered before. */
static inline void bpe_consider(bpe *b, size_t start, size_t end, int32_t id, double score)
{
    const double sum = score + b->sums[start];
    if (b->symbol[end] >= 0 && sum <= b->sums[end])
        return;
    b->sums[end] = sum;
    b->symbol[end] = id;
    b->prev[end] = (uint32_t)start;
}

/* Finds the tokens of a word with the largest sum of scores (Viterbi's algorithm). A character that is
 * no token may be an unknown token. Then b->next[p] is the end of the token that starts at position p,
 * and b->symbol[q] the token that ends at q. */
static inline void bpe_best_tokens(bpe *b, const char *s, size_t n)
{
    memset(b->symbol, 255, (n + 1) * sizeof *b->symbol);
    b->sums[0] = 0;
    for (size_t i = 0, character; i < n; i += character) {
        uint32_t h = BPE_HASH;
        int single = 0; /* whether the character at i is a token */
        character = 0;
        for (size_t end = i + 1; end <= n && (end - i <= b->longest || character == 0); end++) {
            h = bpe_hash_more(h, s + end - 1, 1);
            if (end < n && ((unsigned char)s[end] & 0xc0) == 0x80)
                continue;
            character = character == 0 ? end - i : character;
            for (uint32_t k = bpe_hash_end(h);; k++) {
                const int32_t id = b->ids[k & b->ids_mask];
                if (id < 0)
                    break;
                if (b->name_start[id + 1] - b->name_start[id] != end - i ||
                    memcmp(b->names + b->name_start[id], s + i, end - i) != 0)
                    continue;
                bpe_consider(b, i, end, id, b->scores[id]);
                single |= end - i == character;
                break;
            }
        }
        if (!single)
            bpe_consider(b, i, i + character, b->unknown, b->unknown_score);
    }
    for (size_t end = n; end > 0; end = b->prev[end])
        b->next[b->prev[end]] = (uint32_t)end;
}

/* Appends the Unigram tokens of a word of n > 0 bytes. Consecutive unknown tokens become one, or with
 * byte_fallback the tokens of their bytes. */
static inline int bpe_unigram_word(bpe *b, const char *s, size_t n, bpe_tokens *t)
{
    if (n >= INT32_MAX || n > SIZE_MAX / 64)
        return bpe_fail(t, "a word of %.0f bytes is too long", (double)n);
    if (bpe_reserve(t, n) != 0 || bpe_reserve_word(b, n + 1, t) != 0)
        return -1;
    bpe_best_tokens(b, s, n);
    for (size_t start = 0, end; start < n; start = end) {
        end = b->next[start];
        int32_t id = b->symbol[end];
        while (id == b->unknown && end < n && b->symbol[b->next[end]] == id)
            end = b->next[end];
        if (id == b->unknown)
            id = bpe_id_of(b, s + start, end - start);
        int fallback = id < 0 && b->byte_fallback;
        for (size_t k = start; fallback && k < end; k++)
            fallback = b->byte[(unsigned char)s[k]] >= 0;
        for (size_t k = start; fallback && k < end; k++)
            t->ids[t->count++] = b->byte[(unsigned char)s[k]];
        if (!fallback)
            t->ids[t->count++] = id >= 0 ? id : b->unknown;
    }
    return 0;
}

/* Appends the tokens of a word by the tokenizer's model. */
static inline int bpe_model_word(bpe *b, const char *s, size_t n, bpe_tokens *t)
{
    return b->model == BPE_WORDPIECE ? bpe_wordpiece_word(b, s, n, t)
           : b->model == BPE_UNIGRAM ? bpe_unigram_word(b, s, n, t)
                                     : bpe_merge_word(b, s, n, t);
}

/* Appends a word's tokens, taken from the cache if the word is in it. */
static inline int bpe_encode_word(bpe *b, const char *s, size_t n, bpe_tokens *t)
{
    if (n > BPE_CACHE_BYTES)
        return bpe_model_word(b, s, n, t);
    bpe_word *w = &b->words[bpe_hash(s, n) % BPE_CACHE];
    if (w->size != n || memcmp(w->bytes, s, n) != 0) {
        size_t first = t->count;
        if (bpe_model_word(b, s, n, t) != 0)
            return -1;
        if (t->count - first <= BPE_CACHE_TOKENS) {
            w->size = (uint8_t)n;
            w->count = (uint8_t)(t->count - first);
            memcpy(w->bytes, s, n);
            memcpy(w->ids, t->ids + first, w->count * sizeof *w->ids);
        }
        return 0;
    }
    if (bpe_reserve(t, w->count) != 0)
        return -1;
    memcpy(t->ids + t->count, w->ids, w->count * sizeof *w->ids);
    t->count += w->count;
    return 0;
}

/* Appends the tokens of a piece, to which pre-tokenizers before number `step` have been applied. */
static inline int bpe_encode_steps(bpe *b, bpe_piece piece, int step, bpe_tokens *t)
{
    const bpe_step *p = &b->steps[step];
    if (step == b->step_count)
        return bpe_encode_word(b, piece.s, (size_t)(piece.end - piece.s), t);
    if (p->kind == BPE_PREFIX || p->kind == BPE_METASPACE) {
        char *owned = NULL;
        size_t size = 0;
        if (bpe_add_spaces(p, &piece, &owned, &size) != 0)
            return bpe_fail(t, "out of memory for a copy of %.0f bytes of text", (double)size);
        if (owned != NULL) {
            piece.s = owned;
            piece.end = owned + size;
        }
        int status = bpe_encode_steps(b, piece, step + 1, t);
        free(owned);
        return status;
    }
    bpe_begin_pieces(p);
    while (piece.s < piece.end) {
        const char *s = bpe_piece_start(p, piece.s, piece.end);
        if (s == piece.end)
            return 0;
        bpe_piece part = { s, bpe_piece_end(p, s, piece.end), piece.first && s == piece.s };
        if (bpe_encode_steps(b, part, step + 1, t) != 0)
            return -1;
        piece.s = part.end;
        piece.first = 0;
    }
    return 0;
}

/* Returns the longest added token of list 0 or 1 that the text at p begins with, or NULL. */
static inline const bpe_added *bpe_added_at(const bpe *b, int list, const char *p, const char *end)
{
    const uint32_t *begins = &b->first_added[list][(unsigned char)*p];
    for (uint32_t i = begins[0]; i < begins[1]; i++) {
        const bpe_added *a = &b->added[list][i];
        if ((size_t)(end - p) >= a->size && memcmp(p, a->text, a->size) == 0)
            return a;
    }
    return NULL;
}

static inline int bpe_encode_part(bpe *b, bpe_piece piece, int specials, int list, bpe_tokens *t);

/* Encodes a piece without added tokens of list 0. Applies the normalizers, then splits the
 * result at added tokens of list 1. */
static inline int bpe_encode_normal(bpe *b, bpe_piece piece, int specials, bpe_tokens *t)
{
    size_t n = (size_t)(piece.end - piece.s);
    char *owned = NULL;
    if (bpe_normalize(b->steps, b->normalizers, &b->map, &piece.s, &n, &owned) != 0)
        return bpe_fail(t, "out of memory for %.0f bytes of text, normalized", (double)n);
    piece.end = piece.s + n;
    int status = bpe_encode_part(b, piece, specials, 1, t);
    free(owned);
    return status;
}

/* Encodes a piece: splits it at the added tokens of the given list and encodes the parts between
 * these tokens. */
static inline int bpe_encode_part(bpe *b, bpe_piece piece, int specials, int list, bpe_tokens *t)
{
    const bpe_added *found;
    /* spaces: end of the last run of white space that was searched */
    const char *p = piece.s, *end = piece.end, *spaces = p;
    int status = 0;
    bpe_piece part = piece; /* part: the text since the last added token */
    while (status == 0) {
        for (found = NULL; p < end && found == NULL && b->added_count[list] > 0;) {
            found = bpe_added_at(b, list, p, end);
            if (found == NULL) {
                p++;
            } else if (found->special && !specials) { /* without BPE_SPECIALS a special token stays
                                                       * text; continues after it */
                b->special_texts++;
                p += found->size;
                found = NULL;
            }
        }
        part.end = found == NULL ? end : found->lstrip ? bpe_space_start(part.s, p) : p;
        part.first = piece.first && part.s == piece.s;
        if (part.s < part.end)
            status = list == 0 ? bpe_encode_normal(b, part, specials, t)
                               : bpe_encode_steps(b, part, b->normalizers, t);
        if (found == NULL || status != 0)
            return status;
        if (bpe_reserve(t, 1) != 0)
            return -1;
        p += found->size;
        const char *after = p;
        if (found->rstrip)
            after = spaces = p < spaces ? spaces : bpe_run_end(p, end, UNICODE_SPACE);
        /* else lstrip of this token would absorb white space that the previous token has
         * absorbed */
        if (after > part.s || !found->lstrip)
            t->ids[t->count++] = found->id;
        part.s = after;
    }
    return status;
}

/* Appends the tokens of n bytes of text. flags: BPE_SPECIALS, BPE_TEMPLATE, BPE_NOT_FIRST, or 0.
 * Without BPE_SPECIALS, special tokens that the text spells out, such as <|endoftext|>, stay text,
 * and b->special_texts counts them; use this for untrusted text (Hugging Face's
 * split_special_tokens). Returns 0, or -1 with t->error and unchanged tokens. */
static inline int bpe_encode(bpe *b, const char *text, size_t n, int flags, bpe_tokens *t)
{
    size_t i = 0, count = t->count;
    char *valid = NULL;
    int length = 1;
    uint32_t c;
    for (; i < n && length > 0; i += (size_t)length)
        length = (unsigned char)text[i] < 128 ? 1 : json_utf8(text + i, n - i, &c);
    if (length < 0) {
        valid = bpe_to_utf8(text, n, &i);
        if (valid == NULL)
            return bpe_fail(t, "out of memory for a copy of %.0f bytes of text", (double)n);
        text = valid;
        n = i;
    }
    bpe_piece piece = { text, text + n, (flags & BPE_NOT_FIRST) == 0 };
    int status = bpe_reserve(t, 2 * BPE_TEMPLATE_SIZE);
    for (int k = 0; status == 0 && (flags & BPE_TEMPLATE) != 0 && k < b->prefix_count; k++)
        t->ids[t->count++] = b->prefix[k];
    if (status == 0 && n > 0)
        status = bpe_encode_part(b, piece, (flags & BPE_SPECIALS) != 0, 0, t);
    if (status == 0)
        status = bpe_reserve(t, BPE_TEMPLATE_SIZE);
    for (int k = 0; status == 0 && (flags & BPE_TEMPLATE) != 0 && k < b->suffix_count; k++)
        t->ids[t->count++] = b->suffix[k];
    free(valid);
    if (status != 0)
        t->count = count;
    return status;
}

/* Shortens two texts of n[0] and n[1] tokens to at most `most` tokens together: only the longer one,
 * if it stays the longer one; else both, to halves. This is Hugging Face's longest_first. */
static inline void bpe_shorten_pair(size_t n[2], size_t most)
{
    const int longer = n[0] > n[1] ? 0 : 1;
    const size_t least = n[1 - longer];
    if (n[0] + n[1] <= most)
        return;
    n[longer] = least > most || most - least < least ? least : most - least;
    if (n[0] + n[1] > most) {
        n[1 - longer] = most / 2;
        n[longer] = most / 2 + most % 2;
    }
}

/* Appends the tokens of two texts with those of their template, at most `most` tokens: of longer
 * texts the ends are cut off (bpe_shorten_pair). flags: BPE_SPECIALS, or 0. *second becomes the index
 * in t->ids of the first token of type 1, or t->count if all tokens have type 0 or the types are
 * BPE_TYPES_OTHER. Returns 0, or -1 with t->error and unchanged tokens. */
static inline int bpe_encode_pair(bpe *b, const char *const texts[2], const size_t sizes[2],
                                  int flags, size_t most, bpe_tokens *t, size_t *second)
{
    const size_t begin = t->count;
    const size_t around = (size_t)(b->pair_count[0] + b->pair_count[1] + b->pair_count[2]);
    size_t n[2], all[2];
    if (b->pair_types == BPE_NO_PAIR_TEMPLATE)
        return bpe_fail(t,
                        "the tokenizer's post_processor has no template of two texts (\"pair\")");
    if (most < around)
        return bpe_fail(t, "the template of two texts has %.0f tokens: expected no fewer",
                        (double)around);
    for (int i = 0; i < 2; i++) {
        if (bpe_encode(b, texts[i], sizes[i], flags & BPE_SPECIALS, t) != 0) {
            t->count = begin;
            return -1;
        }
        n[i] = all[i] = t->count - begin - (i > 0 ? all[0] : 0);
    }
    if (bpe_reserve(t, around) != 0) {
        t->count = begin;
        return -1;
    }
    bpe_shorten_pair(n, most - around);
    int32_t *ids = t->ids + begin;
    const size_t first = (size_t)b->pair_count[0], gap = first + n[0];
    const size_t after = gap + (size_t)b->pair_count[1];
    /* first the second text moves out of the way */
    memmove(ids + all[0] + around, ids + all[0], n[1] * sizeof *ids);
    memmove(ids + first, ids, n[0] * sizeof *ids);
    memmove(ids + after, ids + all[0] + around, n[1] * sizeof *ids);
    memcpy(ids, b->pair[0], first * sizeof *ids);
    memcpy(ids + gap, b->pair[1], (size_t)b->pair_count[1] * sizeof *ids);
    memcpy(ids + after + n[1], b->pair[2], (size_t)b->pair_count[2] * sizeof *ids);
    t->count = begin + n[0] + n[1] + around;
    *second = b->pair_types == BPE_TYPES_SPLIT ? begin + gap + (size_t)b->pair_split : t->count;
    return 0;
}

/* Returns the added token with this text, such as <|endoftext|>, or NULL. */
static inline const bpe_added *bpe_find_added(const bpe *b, const char *text)
{
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < b->added_count[list]; i++)
            if (b->added[list][i].name_size == strlen(text) &&
                memcmp(b->added[list][i].name, text, strlen(text)) == 0)
                return &b->added[list][i];
    return NULL;
}

/* ---- tokens to text -------------------------------------------------------------------------- */
/* Returns the bytes of a token. The text of a list of tokens is the concatenation of their bytes.
 * The bytes of one token need not be valid UTF-8, and the whole text may end in the middle of a
 * character if generation stopped there (then use bpe_to_utf8 or bpe_decode). */
static inline const char *bpe_bytes(const bpe *b, int32_t id, size_t *size)
{
    int known = id >= 0 && id < b->count;
    *size = known ? b->start[id + 1] - b->start[id] : 0;
    return known ? b->bytes + b->start[id] : "";
}

/* Returns the bytes of a token that begins a text: without the space that some tokenizers (Llama 2)
 * put before a text; for WordPiece, the token's name. Do not use it for a token that continues a text, such as a generated one. */
static inline const char *bpe_first_bytes(const bpe *b, int32_t id, size_t *size)
{
    const char *bytes = bpe_bytes(b, id, size);
    if (b->model == BPE_WORDPIECE && id >= 0 && id < b->count) {
        *size = b->name_start[id + 1] - b->name_start[id];
        return b->names + b->name_start[id];
    }
    size_t strip = 0;
    while (strip < *size && bytes[strip] == ' ' &&
           (strip == 0 ? b->strip > 0
                       : b->strip == BPE_STRIP_TOKEN && b->names[b->name_start[id]] != ' '))
        strip++;
    *size -= strip;
    return bytes + strip;
}

/* Decodes n tokens like Hugging Face's decode with skip_special_tokens=False. Returns a text that
 * the caller must free and that ends with a 0, which *size does not count; NULL if out of memory.
 * Invalid UTF-8 becomes U+FFFD. With byte_fallback, if a run of byte tokens is invalid as a whole,
 * each byte of the run becomes one U+FFFD. */
static inline char *bpe_decode(const bpe *b, const int32_t *ids, size_t n, size_t *size)
{
    /* run: where the current run of byte tokens starts, or SIZE_MAX outside a run */
    size_t capacity = 1, at = 0, run = SIZE_MAX, length;
    int begun = 0;
    uint32_t c;
    for (size_t i = 0; i < n; i++) {
        bpe_bytes(b, ids[i], &length);
        capacity += 3 * (length + b->continuing_size); /* more only for the first token */
    }
    char *to = (char *)malloc(capacity);
    for (size_t i = 0; to != NULL && i <= n; i++) {
        const int32_t id = i < n ? ids[i] : -1;
        const char *bytes = !begun && (b->model == BPE_WORDPIECE || b->strip == BPE_STRIP_TOKEN)
                                ? bpe_first_bytes(b, id, &length)
                                : bpe_bytes(b, id, &length);
        if (i < n && (id < 0 || id >= b->count))
            continue;
        begun = 1;
        int single = length == 1 && !b->byte_level &&
                     bpe_fallback_of(b->names + b->name_start[id],
                                     b->name_start[id + 1] - b->name_start[id]) >= 0;
        if (run != SIZE_MAX && !single) {
            size_t end = at;
            int valid = 1;
            for (size_t k = run; k < end && valid > 0; k += (size_t)valid)
                valid = json_utf8(to + k, end - k, &c);
            for (at = valid > 0 ? end : run; at < run + 3 * (end - run) && valid < 0; at += 3)
                memcpy(to + at, "\xef\xbf\xbd", 3);
        }
        run = !single ? SIZE_MAX : run == SIZE_MAX ? at : run;
        memcpy(to + at, bytes, length);
        at += length;
    }
    if (to != NULL && b->byte_level) {
        char *valid = bpe_to_utf8(to, at, size);
        free(to);
        return valid;
    }
    if (to == NULL)
        return NULL;
    if (b->strip == 1 && at > 0 && *to == ' ')
        memmove(to, to + 1, --at);
    to[at] = 0;
    *size = at;
    return to;
}

/* ---- token files ----------------------------------------------------------------------------- */
enum { BPE_BIN_HEADER = 1024, BPE_BIN_MAGIC = 20240520, BPE_BIN_VERSION = 1 };

/* Appends the tokens of a .bin file. The file is nanoGPT's (16-bit little-endian numbers only) or
 * llm.c's (the same after a header of 256 32-bit numbers: 20240520, version 1, the number of
 * tokens, zeros). An id that is not below `vocabulary` is an error. Returns 0, or -1 with t->error
 * and unchanged tokens. */
static inline int bpe_read_bin(const char *path, int32_t vocabulary, bpe_tokens *t)
{
    json d;
    size_t size = 0, at = 0, n = 0;
    const unsigned char *p = (const unsigned char *)json_read_text(&d, path, &size);
    if (p != NULL && size >= BPE_BIN_HEADER && bpe_get32(p) == BPE_BIN_MAGIC) {
        at = BPE_BIN_HEADER;
        if (bpe_get32(p + 4) != BPE_BIN_VERSION)
            json_fail(&d, 0, "version %.0f: expected 1, which has 16-bit tokens of GPT-2",
                      (double)bpe_get32(p + 4));
        else if (size != at + 2 * (size_t)bpe_get32(p + 8))
            json_fail(&d, 0,
                      "the header says %.0f tokens, but the file has %.0f bytes: expected "
                      "1024 bytes and 2 per token",
                      (double)bpe_get32(p + 8), (double)size);
    } else if (p != NULL && size % 2 != 0) {
        json_fail(&d, 0, "%.0f bytes: expected an even number, since a token takes 2 bytes",
                  (double)size);
    }
    if (!d.error[0] && bpe_reserve(t, n = (size - at) / 2) != 0)
        json_fail(&d, 0, "%s", t->error);
    for (size_t i = 0; i < n && !d.error[0]; i++) {
        int32_t id = p[at + 2 * i] | p[at + 2 * i + 1] << 8;
        t->ids[t->count + i] = id;
        if (id >= vocabulary)
            json_fail(&d, 0,
                      "token %.0f is %d, but the vocabulary has %d: is the file for another model?",
                      (double)i, (int)id, (int)vocabulary);
    }
    int failed = d.error[0] != 0;
    if (failed)
        memcpy(t->error, d.error, sizeof t->error);
    else
        t->count += n;
    json_free(&d);
    return failed ? -1 : 0;
}

/* Writes all tokens to a .bin file (see bpe_read_bin): in llm.c's format if `header` is nonzero,
 * else in nanoGPT's. Returns 0, or -1 with t->error after removing the file. */
static inline int bpe_write_bin(const char *path, int header, bpe_tokens *t)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->ids[i] < 0 || t->ids[i] > 65535)
            return bpe_fail(t, "%.200s: token %.0f is %d, which does not fit into 16 bits", path,
                            (double)i, (int)t->ids[i]);
    if (header && t->count > INT32_MAX)
        return bpe_fail(t, "%.200s: %.0f tokens: expected fewer than 2^31", path, (double)t->count);
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        return bpe_fail(t, "%.200s: cannot open it: %s", path, strerror(errno));
    uint32_t fields[3] = { BPE_BIN_MAGIC, BPE_BIN_VERSION, (uint32_t)t->count };
    for (int i = 0; header && i < BPE_BIN_HEADER; i++)
        putc(i < 12 ? (int)(fields[i / 4] >> i % 4 * 8 & 255) : 0, f);
    for (size_t i = 0; i < t->count; i++) {
        putc(t->ids[i] & 255, f);
        putc(t->ids[i] >> 8, f);
    }
    int failed = ferror(f) != 0;
    failed |= fclose(f) != 0;
    if (!failed)
        return 0;
    remove(path);
    return bpe_fail(t, "%.200s: cannot write it: is the disk full?", path);
}
#endif
