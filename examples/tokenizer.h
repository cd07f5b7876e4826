/* tokenizer.h - GPT-2's byte-level BPE from Hugging Face's files. To copy, with json.h and unicode.h;
 * C99 and the C library suffice.
 *
 *     bpe b;
 *     bpe_tokens t = { 0 };
 *     if (bpe_open(&b, "gpt2") != 0) // a directory: tokenizer.json, or vocab.json and merges.txt
 *         fprintf(stderr, "%s\n", b.error);
 *     else if (bpe_encode(&b, text, strlen(text), 1, &t) != 0)
 *         fprintf(stderr, "%s\n", t.error);
 *     for (size_t i = 0; i < t.count; i++) { // decoding: the bytes of one token after another
 *         size_t size;
 *         const char *bytes = bpe_bytes(&b, t.ids[i], &size);
 *         fwrite(bytes, 1, size, stdout);
 *     }
 *     bpe_tokens_free(&t);
 *     bpe_free(&b);
 *
 * The same tokens as Hugging Face's fast tokenizer gives, also for text that is not UTF-8, of which
 * that one takes what Python's bytes.decode("utf-8", errors="replace") makes (bpe_replace). A
 * tokenizer.json of another design is refused, and the message says what was expected. Time is
 * O(n log n) at worst. One tokenizer serves one thread at a time, for it remembers words. */
#ifndef TOKENIZER_H
#define TOKENIZER_H
#include "json.h"
#include "unicode.h"

enum {
    BPE_CACHE = 16384,    /* words remembered, of the sizes below */
    BPE_CACHE_BYTES = 18, /* 64 bytes each */
    BPE_CACHE_TOKENS = 11
};

typedef struct {
    int32_t *ids;
    size_t count, room;
    char error[512];
} bpe_tokens;

typedef struct {
    uint64_t pair; /* first << 32 | second token; BPE_NO_PAIR: an empty slot */
    uint32_t rank; /* the lowest is merged first */
    int32_t id;    /* of the token that the two make */
} bpe_merge;
#define BPE_NO_PAIR UINT64_MAX

typedef struct {
    const char *text; /* as it stands in text */
    size_t size;
    int32_t id;
    int special;
} bpe_added;

typedef struct {
    uint8_t size, count;
    char bytes[BPE_CACHE_BYTES];
    int32_t ids[BPE_CACHE_TOKENS];
} bpe_word;

typedef struct {
    int32_t count;     /* of the vocabulary with added tokens: ids are below it */
    char *bytes;       /* of all tokens, and the text of added ones */
    uint32_t *start;   /* token i is bytes[start[i]] up to start[i + 1] */
    int32_t byte[256]; /* the token of one byte */
    bpe_merge *merges; /* a hash table */
    uint32_t merge_mask;
    bpe_added *added[2]; /* looked for in text in two passes, the longest first */
    uint32_t added_count[2];
    bpe_word *words; /* a hash table that forgets */
    uint64_t *heap;  /* of one word that is being merged, rank << 32 | place: */
    int32_t *symbol; /* the token that starts at a place, -1: none, */
    uint32_t *next, *before;
    size_t room; /* of the four, in bytes of the word */
    char error[512];
} bpe;

static inline void bpe_tokens_free(bpe_tokens *t)
{
    free(t->ids);
    memset(t, 0, sizeof *t);
}

static inline void bpe_free(bpe *b)
{
    free(b->bytes);
    free(b->start);
    free(b->merges);
    free(b->added[0]);
    free(b->added[1]);
    free(b->words);
    free(b->heap);
    free(b->symbol);
    free(b->next);
    free(b->before);
    memset(b, 0, sizeof *b);
}

/* ---- loading --------------------------------------------------------------------------------- */
/* A token's name in the vocabulary is text: each of its bytes is a visible character. The 68 bytes
 * that are none by themselves, 0 to 32, 127 to 160 and 173, are the characters from 256 on. */
static inline uint32_t bpe_character_of(int byte)
{
    if ((byte > 32 && byte < 127) || (byte > 160 && byte != 173))
        return (uint32_t)byte;
    return (uint32_t)(byte < 33 ? 256 + byte : byte < 161 ? 256 + byte - 127 + 33 : 323);
}

/* The other way round; -1: no byte. */
static inline int bpe_byte_of(uint32_t character)
{
    if (character < 256)
        return bpe_character_of((int)character) == character ? (int)character : -1;
    return character < 289    ? (int)character - 256
           : character < 323  ? (int)character - 289 + 127
           : character == 323 ? 173
                              : -1;
}

/* The bytes that a name stands for: its own where a character of it stands for none. */
static inline size_t bpe_name_bytes(const char *name, size_t size, char *to)
{
    size_t n = 0;
    for (size_t i = 0; i < size;) {
        uint32_t c = 0;
        i += (size_t)json_utf8(name + i, size - i, &c);
        int byte = bpe_byte_of(c);
        if (byte < 0) {
            memcpy(to, name, size);
            return size;
        }
        to[n++] = (char)byte;
    }
    return n;
}

typedef struct {
    uint32_t at; /* the string or key in the file; 0: an empty slot */
    int32_t id;
} bpe_name;

/* What only loading needs. */
typedef struct {
    bpe *b;
    json d;          /* vocab.json or tokenizer.json */
    bpe_name *names; /* a hash table of all tokens */
    uint32_t mask;
    char *joined; /* two names, one behind the other */
    size_t joined_room;
} bpe_loader;

static inline uint32_t bpe_hash(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ^ h >> 15;
}

/* The slot of a name, or the empty one where it belongs. */
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

/* The id of a token of the vocabulary, without added ones; -1: none. */
static inline int32_t bpe_find(const bpe_loader *l, const char *name, size_t size)
{
    const bpe_name *p = bpe_slot(l, name, size);
    return json_kind_of(&l->d, p->at) == JSON_KEY ? p->id : -1;
}

/* A table of at least twice n entries of `size` bytes, all of them `fill`; its mask. */
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

/* An array of n elements; never of no bytes. */
static inline void *bpe_array(json *d, size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (p == NULL)
        json_fail(d, 0, "out of memory for %.0f bytes", (double)n * (double)size);
    return p;
}

/* An option that this tokenizer has not: absent, null, false or "". */
static inline void bpe_load_off(json *d, uint32_t object, const char *key)
{
    uint32_t at = json_find(d, object, key);
    if (json_kind_of(d, at) > JSON_FALSE && !json_is(d, at, ""))
        json_wrong(d, at, "null, false or \"\", as in GPT-2's byte-level BPE");
}

static inline int bpe_longer_first(const void *a, const void *b)
{
    size_t m = ((const bpe_added *)a)->size, n = ((const bpe_added *)b)->size;
    return m < n ? 1 : m > n ? -1 : 0;
}

/* Enters the names of `vocabulary` (an object) and `added` (an array of objects, or 0). */
static inline int bpe_load_names(bpe_loader *l, uint32_t vocabulary, uint32_t added)
{
    json *d = &l->d;
    size_t n = (size_t)json_size(d, vocabulary) + json_size(d, added);
    l->names = (bpe_name *)bpe_table(d, n, sizeof *l->names, 0, &l->mask);
    if (l->names == NULL)
        return -1;
    for (uint32_t k = json_first(d, vocabulary); k != 0; k = json_next(d, k)) {
        bpe_name *p = bpe_slot(l, json_text(d, k), json_size(d, k));
        if (p->at != 0)
            return json_fail(d, d->nodes[k].line, "token \"%.80s\" stands twice", json_text(d, k));
        int64_t id = json_int_of(d, k + 1);
        p->at = k;
        p->id = id >= 0 && id < (int64_t)n ? (int32_t)id : -1;
        if (p->id < 0)
            return json_wrong(d, k + 1, "ids without holes, from 0 to the number of tokens");
    }
    l->b->count = (int32_t)json_size(d, vocabulary);
    for (uint32_t i = json_first(d, added); i != 0; i = json_next(d, i)) {
        uint32_t text = json_need(d, i, "content", JSON_STRING);
        int64_t id = json_int_of(d, json_need(d, i, "id", JSON_NUMBER));
        bpe_load_off(d, i, "single_word");
        bpe_load_off(d, i, "lstrip");
        bpe_load_off(d, i, "rstrip");
        if (d->error[0])
            return -1;
        bpe_name *p = bpe_slot(l, json_text(d, text), json_size(d, text));
        if (p->at != 0 ? p->id != id || json_kind_of(d, p->at) != JSON_KEY
                       : id < 0 || id >= (int64_t)n)
            return json_fail(d, d->nodes[text].line,
                             "added token \"%.80s\" has id %.0f, which is not its id in the "
                             "vocabulary, or is over the number of tokens, or it stands twice",
                             json_text(d, text), (double)id);
        if (p->at == 0) {
            p->at = text;
            p->id = (int32_t)id;
            l->b->count++;
        }
    }
    return 0;
}

/* The bytes of every token by its id, and the added ones in two lists. */
static inline int bpe_load_tokens(bpe_loader *l, uint32_t added)
{
    bpe *b = l->b;
    json *d = &l->d;
    size_t n = (size_t)b->count, size = 0, at = 0;
    uint32_t *node = (uint32_t *)bpe_array(d, n, sizeof *node);
    b->start = (uint32_t *)bpe_array(d, n + 1, sizeof *b->start);
    for (uint32_t i = 0; node != NULL && i <= l->mask; i++) {
        const bpe_name *p = &l->names[i];
        if (p->at == 0)
            continue;
        if ((size_t)p->id >= n || node[p->id] != 0) {
            json_fail(d, d->nodes[p->at].line,
                      "token \"%.80s\": id %d stands twice, or leaves a hole among %d tokens",
                      json_text(d, p->at), (int)p->id, (int)n);
            break;
        }
        node[p->id] = p->at;
        size += json_size(d, p->at);
    }
    for (uint32_t i = json_first(d, added); i != 0; i = json_next(d, i))
        size += json_size(d, json_find(d, i, "content"));
    b->bytes = d->error[0] ? NULL : (char *)bpe_array(d, size, 1);
    for (int k = 0; k < 2; k++)
        b->added[k] = (bpe_added *)bpe_array(d, json_size(d, added), sizeof *b->added[k]);
    if (d->error[0]) {
        free(node);
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        b->start[i] = (uint32_t)at;
        at += bpe_name_bytes(json_text(d, node[i]), json_size(d, node[i]), b->bytes + at);
    }
    b->start[n] = (uint32_t)at;
    free(node);
    for (uint32_t i = json_first(d, added); i != 0; i = json_next(d, i)) {
        uint32_t text = json_find(d, i, "content");
        int list = json_bool(d, i, "normalized", 0);
        if (json_size(d, text) == 0)
            continue;
        bpe_added *p = &b->added[list][b->added_count[list]++];
        p->text = (const char *)memcpy(b->bytes + at, json_text(d, text), json_size(d, text));
        p->size = json_size(d, text);
        p->id = (int32_t)json_int(d, i, "id", 0);
        p->special = json_bool(d, i, "special", 0);
        at += p->size;
    }
    for (int k = 0; k < 2; k++)
        qsort(b->added[k], b->added_count[k], sizeof *b->added[k], bpe_longer_first);
    for (int i = 0; i < 256; i++) {
        char name[4];
        size_t bytes = (size_t)json_put_utf8(name, bpe_character_of(i));
        b->byte[i] = bpe_find(l, name, bytes);
        if (b->byte[i] < 0)
            return json_fail(d, 0,
                             "byte 0x%02x has no token (\"%.*s\"): expected all 256 in a "
                             "byte-level vocabulary",
                             (unsigned)i, (int)bytes, name);
    }
    b->words = (bpe_word *)bpe_array(d, BPE_CACHE, sizeof *b->words);
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

/* Enters the merge of two names, which stands in this line of `in`. */
static inline int bpe_load_merge(bpe_loader *l, json *in, uint32_t line, uint32_t rank,
                                 const char *first, size_t n, const char *second, size_t m)
{
    if (n + m >= l->joined_room) {
        size_t room = 2 * (n + m) + 64;
        char *joined = (char *)realloc(l->joined, room);
        if (joined == NULL)
            return json_fail(in, line, "out of memory for %.0f bytes", (double)room);
        l->joined = joined;
        l->joined_room = room;
    }
    memcpy(l->joined, first, n);
    memcpy(l->joined + n, second, m);
    int32_t a = bpe_find(l, first, n), b = bpe_find(l, second, m),
            id = bpe_find(l, l->joined, n + m);
    if (a < 0 || b < 0 || id < 0) {
        size_t size = a < 0 ? n : b < 0 ? m : n + m;
        return json_fail(in, line, "a merge has \"%.*s\", which is no token of the vocabulary",
                         (int)(size < 80 ? size : 80), l->joined + (a >= 0 && b < 0 ? n : 0));
    }
    bpe_merge *p = bpe_merge_slot(l->b, a, b);
    p->pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    p->rank = rank; /* of a pair that stands twice the last counts, as for Hugging Face */
    p->id = id;
    return 0;
}

static inline void bpe_load_merge_table(bpe_loader *l, json *in, size_t n)
{
    l->b->merges = (bpe_merge *)bpe_table(in, n, sizeof(bpe_merge), 255, &l->b->merge_mask);
}

/* From merges.txt: a line "first second" each, apart from lines that start with #version. */
static inline int bpe_load_merges_text(bpe_loader *l, const char *path)
{
    json in;
    size_t size = 0, count = 1;
    uint32_t rank = 0, line = 0;
    const char *s = json_read_text(&in, path, &size), *end = s != NULL ? s + size : s;
    const int mark = s != NULL ? json_mark(&in, s, size) : 0;
    s += mark > 0 ? mark : 0;
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

/* From tokenizer.json: ["first", "second"] each, or "first second" in older files. */
static inline int bpe_load_merges_array(bpe_loader *l, uint32_t merges)
{
    json *d = &l->d;
    uint32_t rank = 0;
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
            json_wrong(d, i, "a merge: two tokens in an array, or with a space between them");
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

/* Reads vocab.json and merges.txt, where <|endoftext|> is the one special token; 0, or -1 with
 * b->error set and nothing to free. */
static inline int bpe_read_files(bpe *b, const char *vocabulary, const char *merges)
{
    static const char end[] = "<|endoftext|>";
    bpe_loader l;
    memset(b, 0, sizeof *b);
    memset(&l, 0, sizeof l);
    l.b = b;
    if (json_read_file(&l.d, vocabulary) == 0 && json_kind_of(&l.d, JSON_ROOT) != JSON_OBJECT)
        json_wrong(&l.d, JSON_ROOT, "an object of tokens and their ids");
    if (!l.d.error[0] && bpe_load_names(&l, JSON_ROOT, 0) == 0 && bpe_load_tokens(&l, 0) == 0 &&
        bpe_load_merges_text(&l, merges) == 0) {
        bpe_added special = { end, sizeof end - 1, bpe_find(&l, end, sizeof end - 1), 1 };
        if (special.id >= 0)
            b->added[0][b->added_count[0]++] = special; /* bpe_array leaves room for one */
    }
    return bpe_load_end(&l);
}

static inline void bpe_load_type(json *d, uint32_t object, const char *part, const char *type)
{
    uint32_t at = json_find(d, object, "type");
    if (!json_is(d, at, type))
        json_fail(d, json_kind_of(d, object) ? d->nodes[object].line : 0,
                  "%s: expected the type %s, as in GPT-2's byte-level BPE, found \"%.80s\"", part,
                  type, json_kind_of(d, at) == JSON_STRING ? json_text(d, at) : "");
}

/* Reads tokenizer.json; 0, or -1 with b->error set and nothing to free. */
static inline int bpe_read_json(bpe *b, const char *path)
{
    bpe_loader l;
    json *d = &l.d;
    memset(b, 0, sizeof *b);
    memset(&l, 0, sizeof l);
    l.b = b;
    if (json_read_file(d, path) == 0) {
        uint32_t model = json_need(d, JSON_ROOT, "model", JSON_OBJECT);
        uint32_t split = json_need(d, JSON_ROOT, "pre_tokenizer", JSON_OBJECT);
        uint32_t decoder = json_need(d, JSON_ROOT, "decoder", JSON_OBJECT);
        uint32_t after = json_find_set(d, JSON_ROOT, "post_processor");
        uint32_t added = json_find_set(d, JSON_ROOT, "added_tokens");
        if (json_find(d, model, "type")) /* GPT-2's own file has none */
            bpe_load_type(d, model, "model", "BPE");
        bpe_load_type(d, split, "pre_tokenizer", "ByteLevel");
        bpe_load_type(d, decoder, "decoder", "ByteLevel");
        /* a template, as newer files have, may stand for the text alone */
        if (json_is(d, json_find(d, after, "type"), "TemplateProcessing")) {
            uint32_t parts = json_need(d, after, "single", JSON_ARRAY);
            for (uint32_t i = json_first(d, parts); i != 0; i = json_next(d, i))
                if (!json_is(d, json_first(d, i), "Sequence"))
                    json_wrong(d, i, "nothing but the text's Sequence in post_processor");
        } else if (after) {
            bpe_load_type(d, after, "post_processor", "ByteLevel");
        }
        bpe_load_off(d, JSON_ROOT, "normalizer");
        bpe_load_off(d, split, "add_prefix_space");
        bpe_load_off(d, model, "dropout");
        bpe_load_off(d, model, "continuing_subword_prefix");
        bpe_load_off(d, model, "end_of_word_suffix");
        bpe_load_off(d, model, "ignore_merges");
        if (!json_bool(d, split, "use_regex", 1))
            json_wrong(d, json_find(d, split, "use_regex"), "true: GPT-2's pre-split");
        if (added && json_kind_of(d, added) != JSON_ARRAY)
            json_wrong(d, added, "an array");
        uint32_t vocabulary = json_need(d, model, "vocab", JSON_OBJECT);
        uint32_t merges = json_need(d, model, "merges", JSON_ARRAY);
        if (!d->error[0] && bpe_load_names(&l, vocabulary, added) == 0 &&
            bpe_load_tokens(&l, added) == 0)
            bpe_load_merges_array(&l, merges);
    }
    return bpe_load_end(&l);
}

/* Reads a directory's tokenizer.json, or else its vocab.json and merges.txt. */
static inline int bpe_open(bpe *b, const char *directory)
{
    static const char *const files[] = { "tokenizer.json", "vocab.json", "merges.txt" };
    char path[3][1024];
    int there[3];
    for (int i = 0; i < 3; i++) {
        int n = snprintf(path[i], sizeof path[i], "%s/%s", directory, files[i]);
        FILE *f = n > 0 && (size_t)n < sizeof path[i] ? fopen(path[i], "rb") : NULL;
        there[i] = f != NULL;
        if (f != NULL)
            fclose(f);
    }
    if (there[0])
        return bpe_read_json(b, path[0]);
    if (there[1] && there[2])
        return bpe_read_files(b, path[1], path[2]);
    memset(b, 0, sizeof *b);
    snprintf(b->error, sizeof b->error,
             "%.200s: expected a directory with tokenizer.json, or with vocab.json and merges.txt",
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

/* Room for n more tokens; 0 or -1. */
static inline int bpe_reserve(bpe_tokens *t, size_t n)
{
    if (n <= t->room - t->count)
        return 0;
    size_t room = t->count + n + t->room / 2 + 64;
    int32_t *ids =
        room < SIZE_MAX / sizeof *ids ? (int32_t *)realloc(t->ids, room * sizeof *ids) : NULL;
    if (ids == NULL)
        return bpe_fail(t, "out of memory for %.0f tokens", (double)room);
    t->ids = ids;
    t->room = room;
    return 0;
}

/* Of bytes that may be no UTF-8 the text that Python's decode("utf-8", errors="replace") gives, to
 * be freed; NULL: out of memory. It ends in a 0 that *size does not count. */
static inline char *bpe_replace(const char *s, size_t n, size_t *size)
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

/* Room for a word of n bytes; 0 or -1. */
static inline int bpe_reserve_word(bpe *b, size_t n, bpe_tokens *t)
{
    size_t room = n + n / 2 + 64;
    if (n <= b->room)
        return 0;
    free(b->heap);
    free(b->symbol);
    free(b->next);
    free(b->before);
    b->heap = (uint64_t *)malloc(2 * room * sizeof *b->heap);
    b->symbol = (int32_t *)malloc(room * sizeof *b->symbol);
    b->next = (uint32_t *)malloc(room * sizeof *b->next);
    b->before = (uint32_t *)malloc(room * sizeof *b->before);
    int got = b->heap != NULL && b->symbol != NULL && b->next != NULL && b->before != NULL;
    b->room = got ? room : 0;
    return got ? 0 : bpe_fail(t, "out of memory for a word of %.0f bytes", (double)n);
}

/* Puts the merge at a place into a heap of `count`, if there is one; the new count. */
static inline size_t bpe_push(bpe *b, size_t count, uint32_t place, uint32_t next)
{
    const bpe_merge *m = bpe_merge_slot(b, b->symbol[place], b->symbol[next]);
    if (m->pair == BPE_NO_PAIR)
        return count;
    uint64_t key = (uint64_t)m->rank << 32 | place;
    size_t i = count;
    for (; i > 0 && b->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = key;
    return count + 1;
}

/* Takes the least out of a heap of `count` > 0. */
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

/* The tokens of a word of n > 0 bytes: always the merge of the lowest rank, the leftmost of those.
 * Each merge takes one entry out of the heap and puts at most two in: room for 2 n is enough. */
static inline int bpe_merge_word(bpe *b, const char *s, size_t n, bpe_tokens *t)
{
    size_t count = 0;
    uint32_t end = (uint32_t)n;
    if (n > INT32_MAX || n > SIZE_MAX / 32) /* 24 bytes each in the heap */
        return bpe_fail(t, "a word of %.0f bytes is too long", (double)n);
    if (bpe_reserve(t, n) != 0 || bpe_reserve_word(b, n, t) != 0)
        return -1;
    for (uint32_t i = 0; i < end; i++) {
        b->symbol[i] = b->byte[(unsigned char)s[i]];
        b->next[i] = i + 1;
        b->before[i] = i - 1; /* before the first: over all places */
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
            continue; /* another merge has taken one of the two: no pair has a -1 */
        b->symbol[i] = m->id;
        b->symbol[next] = -1;
        b->next[i] = b->next[next];
        if (b->next[i] < end) {
            b->before[b->next[i]] = i;
            count = bpe_push(b, count, i, b->next[i]);
        }
        if (b->before[i] < end)
            count = bpe_push(b, count, b->before[i], i);
    }
    for (uint32_t i = 0; i < end; i = b->next[i])
        t->ids[t->count++] = b->symbol[i];
    return 0;
}

/* The same, out of the words remembered where possible. */
static inline int bpe_encode_word(bpe *b, const char *s, size_t n, bpe_tokens *t)
{
    if (n > BPE_CACHE_BYTES)
        return bpe_merge_word(b, s, n, t);
    bpe_word *w = &b->words[bpe_hash(s, n) % BPE_CACHE];
    if (w->size != n || memcmp(w->bytes, s, n) != 0) {
        size_t first = t->count;
        if (bpe_merge_word(b, s, n, t) != 0)
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

/* The class of the character at s, and its length. */
static inline int bpe_class(const char *s, const char *end, size_t *size)
{
    uint32_t c = (unsigned char)*s;
    *size = 1;
    if (c < 128) /* fast */
        return (c | 32) - 'a' < 26u        ? UNICODE_LETTER
               : c - '0' < 10u             ? UNICODE_NUMBER
               : c == ' ' || c - '\t' < 5u ? UNICODE_SPACE
                                           : UNICODE_OTHER;
    *size = (size_t)json_utf8(s, (size_t)(end - s), &c);
    return unicode_class(c);
}

/* Behind the word that starts at s, by the regular expression
 * 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static inline const char *bpe_word_end(const char *s, const char *end)
{
    static const char *const endings[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };
    size_t size, length;
    for (int i = 0; *s == '\'' && i < 7; i++) {
        length = strlen(endings[i]);
        if ((size_t)(end - s) >= length && memcmp(s, endings[i], length) == 0)
            return s + length;
    }
    int kind = bpe_class(s, end, &size), next;
    const char *p = s + size, *last = s; /* behind the run, and at its last character */
    if (*s == ' ' && p < end && (next = bpe_class(p, end, &length)) != UNICODE_SPACE) {
        kind = next;
        p += length;
    }
    for (; p < end && bpe_class(p, end, &size) == kind; p += size)
        last = p;
    /* of several spaces before a word the last is left to that */
    return kind == UNICODE_SPACE && p < end && last > s ? last : p;
}

/* Text in which the added tokens of list 0, then of list 1, and then words are to be found. */
static inline int bpe_encode_part(bpe *b, const char *s, const char *end, int specials, int list,
                                  bpe_tokens *t)
{
    const bpe_added *found;
    if (list == 2) {
        while (s < end) {
            const char *next = bpe_word_end(s, end);
            if (bpe_encode_word(b, s, (size_t)(next - s), t) != 0)
                return -1;
            s = next;
        }
        return 0;
    }
    for (const char *p = s; b->added_count[list] > 0 && p < end; p += found ? found->size : 1) {
        found = NULL;
        for (uint32_t i = 0; found == NULL && i < b->added_count[list]; i++) {
            const bpe_added *a = &b->added[list][i];
            if (*p == *a->text && (size_t)(end - p) >= a->size && !memcmp(p, a->text, a->size))
                found = a;
        }
        if (found == NULL || (found->special && !specials))
            continue; /* a special token that is taken for text is passed over as a whole */
        if (bpe_encode_part(b, s, p, specials, list + 1, t) != 0 || bpe_reserve(t, 1) != 0)
            return -1;
        t->ids[t->count++] = found->id;
        s = p + found->size;
    }
    return bpe_encode_part(b, s, end, specials, list + 1, t);
}

/* Appends the tokens of n bytes of text. specials: whether special tokens such as <|endoftext|> are
 * recognised in it, as Hugging Face does by default; else they are text (its split_special_tokens),
 * as they should be in what others wrote. 0, or -1 with t->error set and its tokens as before. */
static inline int bpe_encode(bpe *b, const char *text, size_t n, int specials, bpe_tokens *t)
{
    size_t i = 0, count = t->count;
    char *valid = NULL;
    int length = 1;
    uint32_t c;
    for (; i < n && length > 0; i += (size_t)length)
        length = (unsigned char)text[i] < 128 ? 1 : json_utf8(text + i, n - i, &c);
    if (length < 0) {
        valid = bpe_replace(text, n, &i);
        if (valid == NULL)
            return bpe_fail(t, "out of memory for a copy of %.0f bytes of text", (double)n);
        text = valid;
        n = i;
    }
    int status = bpe_encode_part(b, text, text + n, specials, 0, t);
    free(valid);
    if (status != 0)
        t->count = count;
    return status;
}

/* ---- tokens to text -------------------------------------------------------------------------- */
/* The bytes of a token. Those of several, one behind the other, are the text; it is UTF-8 only as a
 * whole, and not even that where a model ends in the middle of a character (then bpe_replace). */
static inline const char *bpe_bytes(const bpe *b, int32_t id, size_t *size)
{
    int known = id >= 0 && id < b->count;
    *size = known ? b->start[id + 1] - b->start[id] : 0;
    return known ? b->bytes + b->start[id] : "";
}

/* The added token with this text, such as <|endoftext|>, or NULL. */
static inline const bpe_added *bpe_find_added(const bpe *b, const char *text)
{
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < b->added_count[list]; i++)
            if (b->added[list][i].size == strlen(text) &&
                memcmp(b->added[list][i].text, text, strlen(text)) == 0)
                return &b->added[list][i];
    return NULL;
}

/* ---- token files ----------------------------------------------------------------------------- */
enum { BPE_BIN_HEADER = 1024, BPE_BIN_MAGIC = 20240520, BPE_BIN_VERSION = 1 };

static inline uint32_t bpe_get32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Appends the tokens of a .bin file: nanoGPT's (nothing but 16-bit numbers, little-endian) or
 * llm.c's (256 32-bit numbers before them: 20240520, version 1, how many tokens, zeros). An id of
 * at least `vocabulary` is refused. 0, or -1 with t->error set and the tokens as they were. */
static inline int bpe_read_bin(const char *path, int32_t vocabulary, bpe_tokens *t)
{
    json d;
    size_t size = 0, at = 0, n = 0;
    const unsigned char *p = (const unsigned char *)json_read_text(&d, path, &size);
    if (p != NULL && size >= BPE_BIN_HEADER && bpe_get32(p) == BPE_BIN_MAGIC) {
        at = BPE_BIN_HEADER;
        if (bpe_get32(p + 4) != BPE_BIN_VERSION)
            json_fail(&d, 0, "version %.0f: expected 1, 16-bit tokens of GPT-2",
                      (double)bpe_get32(p + 4));
        else if (size != at + 2 * (size_t)bpe_get32(p + 8))
            json_fail(&d, 0, "%.0f tokens in %.0f bytes: expected 1024 bytes and 2 a token",
                      (double)bpe_get32(p + 8), (double)size);
    } else if (p != NULL && size % 2 != 0) {
        json_fail(&d, 0, "%.0f bytes: expected 2 a token", (double)size);
    }
    if (!d.error[0] && bpe_reserve(t, n = (size - at) / 2) != 0)
        json_fail(&d, 0, "%s", t->error);
    for (size_t i = 0; i < n && !d.error[0]; i++) {
        int32_t id = p[at + 2 * i] | p[at + 2 * i + 1] << 8;
        t->ids[t->count + i] = id;
        if (id >= vocabulary)
            json_fail(&d, 0, "token %.0f is %d, but the vocabulary has %d: is it another's file?",
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

/* Writes such a file, llm.c's if `header`, from the tokens on to the end; 0, or -1 with t->error
 * set and no file left. */
static inline int bpe_write_bin(const char *path, int header, bpe_tokens *t)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->ids[i] < 0 || t->ids[i] > 65535)
            return bpe_fail(t, "%.200s: token %.0f is %d: expected 16 bits", path, (double)i,
                            (int)t->ids[i]);
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
