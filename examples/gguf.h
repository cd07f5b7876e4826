/* gguf.h - reads GGUF, the file format of llama.cpp: keys with values, and tensors. To copy,
 * with the file that includes it: gguf_model.h or gguf_adapter.h.
 *
 *     gguf g;
 *     if (gguf_open(&g, "model.gguf") != 0) // reads keys and list of tensors, no values
 *         fprintf(stderr, "%s\n", g.error);
 *     int64_t layers = gguf_int(&g, "llama.block_count", 0);
 *     const char *name = gguf_text(&g, "general.architecture", NULL);
 *     gguf_items all = gguf_array(&g, "tokenizer.ggml.tokens", GGUF_STRING);
 *     while (gguf_next(&all))
 *         ... all.text, all.size ...        // for numbers: all.integer, all.real
 *     if (g.error[0] != 0) ...              // getters keep the first error
 *     gguf_close(&g);
 *
 * Reads versions 2 and 3 (ggml's docs/gguf.md), little-endian. Files are not trusted: counts,
 * lengths, types, axes, offsets, alignment and sizes are checked before use, as are duplicate
 * names and overlapping tensors. Nothing is read or allocated for a size that exceeds the file.
 * gguf_read_floats reads a tensor's values and dequantises them to the same bits as ggml: F32,
 * F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K. Functions that may fail return
 * 0, or -1 after writing g->error. C99 or C++11. */
#ifndef GGUF_H
#define GGUF_H
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
} gguf_type; /* types of a key's value */

static const struct {
    const char *name;
    int bytes; /* bytes of a value, or 0 for strings and arrays, whose size varies */
} gguf_types[GGUF_TYPES] = { { "u8", 1 },     { "i8", 1 },    { "u16", 2 }, { "i16", 2 },
                             { "u32", 4 },    { "i32", 4 },   { "f32", 4 }, { "bool", 1 },
                             { "string", 0 }, { "array", 0 }, { "u64", 8 }, { "i64", 8 },
                             { "f64", 8 } };

/* GGUF_AXES: most axes of a tensor; GGUF_MAX_HEADER: most bytes of a file's header; GGUF_NAME:
 * longest name */
enum { GGUF_AXES = 4, GGUF_MAX_HEADER = 1 << 28, GGUF_NAME = 64 };

typedef struct {
    const char *name;
    gguf_type type, item_type; /* item_type: type of the items if the value is an array */
    uint64_t count;     /* number of items of an array, or bytes of a string */
    const unsigned char *value;
    /* while the header is being parsed, offsets of name and value in gguf.header, since realloc may
     * move it */
    size_t name_at, value_at;
} gguf_key;

typedef struct {
    const char *name;
    int type, axes;       /* type: index into gguf_tensor_types; axes: number of axes */
    /* size of each axis; elements along axis 0 are adjacent; unused axes have size 1 */
    int64_t d[GGUF_AXES];
    int64_t elements;
    uint64_t offset, bytes; /* place of the values in the file */
    size_t name_at;
} gguf_tensor;

/* The tensor types, indexed by ggml's number: a block of `values` elements takes `bytes` bytes. A
 * type with 0 bytes is no longer in use. */
static const struct {
    const char *name;
    int values, bytes;
} gguf_tensor_types[] = {
    { "F32", 1, 4 },        { "F16", 1, 2 },       { "Q4_0", 32, 18 },     { "Q4_1", 32, 20 },
    { "", 1, 0 },           { "", 1, 0 },          { "Q5_0", 32, 22 },     { "Q5_1", 32, 24 },
    { "Q8_0", 32, 34 },     { "Q8_1", 32, 36 },    { "Q2_K", 256, 84 },    { "Q3_K", 256, 110 },
    { "Q4_K", 256, 144 },   { "Q5_K", 256, 176 },  { "Q6_K", 256, 210 },   { "Q8_K", 256, 292 },
    { "IQ2_XXS", 256, 66 }, { "IQ2_XS", 256, 74 }, { "IQ3_XXS", 256, 98 }, { "IQ1_S", 256, 50 },
    { "IQ4_NL", 32, 18 },   { "IQ3_S", 256, 110 }, { "IQ2_S", 256, 82 },   { "IQ4_XS", 256, 136 },
    { "I8", 1, 1 },         { "I16", 1, 2 },       { "I32", 1, 4 },        { "I64", 1, 8 },
    { "F64", 1, 8 },        { "IQ1_M", 256, 56 },  { "BF16", 1, 2 },       { "", 1, 0 },
    { "", 1, 0 },           { "", 1, 0 },          { "TQ1_0", 256, 54 },   { "TQ2_0", 256, 66 },
    { "", 1, 0 },           { "", 1, 0 },          { "", 1, 0 },           { "MXFP4", 32, 17 },
    { "NVFP4", 64, 36 },    { "Q1_0", 128, 18 },   { "Q2_0", 64, 18 },
};
enum {
    GGUF_TENSOR_TYPES = sizeof gguf_tensor_types / sizeof gguf_tensor_types[0],
    GGUF_T_F32 = 0,
    GGUF_T_F16 = 1,
    GGUF_T_Q4_0 = 2,
    GGUF_T_Q4_1 = 3,
    GGUF_T_Q5_0 = 6,
    GGUF_T_Q5_1 = 7,
    GGUF_T_Q8_0 = 8,
    GGUF_T_Q4_K = 12,
    GGUF_T_Q5_K = 13,
    GGUF_T_Q6_K = 14,
    GGUF_T_F64 = 28,
    GGUF_T_BF16 = 30
};

typedef struct {
    char error[512];
    FILE *file;
    char *path;
    /* the file's bytes before the tensors' values; strings have been moved to end with a 0 */
    unsigned char *header;
    /* loaded: bytes in `header`; next: offset of the byte that is parsed next */
    size_t loaded, next;
    uint64_t size;        /* size of the file in bytes */
    uint64_t position;       /* offset in the file at which the next fread begins */
    gguf_key *keys;       /* sorted by name */
    gguf_tensor *tensors; /* sorted by name */
    size_t key_count, tensor_count, capacity;
    uint64_t alignment;
} gguf;

typedef struct {
    uint64_t count;   /* items that gguf_next has not returned yet */
    const char *text; /* if the item is a string, its `size` bytes, without a final 0 */
    size_t size;
    int64_t integer;           /* value of the item if it is an integer or bool */
    double real;             /* value of the item if it is a number of any type */
    const unsigned char *at; /* private: position of the next item */
    gguf_type item_type;
} gguf_items;

/* ---- errors, bytes --------------------------------------------------------------------------- */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
gguf_fail(gguf *g, const char *format, ...)
{
    va_list args;
    if (g->error[0] != 0)
        return -1;
    int n = snprintf(g->error, sizeof g->error / 2, "%s: ", g->path != NULL ? g->path : "");
    n = n < 0 ? 0 : n < (int)sizeof g->error / 2 ? n : (int)sizeof g->error / 2 - 1;
    va_start(args, format);
    vsnprintf(g->error + n, sizeof g->error - (size_t)n, format, args);
    va_end(args);
    return -1;
}

/* Returns the little-endian number that is stored in n bytes. */
static inline uint64_t gguf_read_le(const unsigned char *bytes, int n)
{
    uint64_t number = 0;
    while (n-- > 0)
        number = number << 8 | bytes[n];
    return number;
}

static inline int gguf_seek(gguf *g, uint64_t at)
{
    if (g->position == at)
        return 0;
    g->position = at;
#ifdef _WIN32
    const int failed = at > INT64_MAX || _fseeki64(g->file, (int64_t)at, SEEK_SET) != 0;
#else
    const int failed = (uint64_t)(long)at != at || fseek(g->file, (long)at, SEEK_SET) != 0;
#endif
    if (!failed)
        return 0;
    g->position = UINT64_MAX;
    return gguf_fail(g, "cannot be read at byte %llu", (unsigned long long)at);
}

/* Reads n bytes at offset `at` of the file. */
static inline int gguf_read_bytes(gguf *g, uint64_t at, void *to, size_t n)
{
    if (at > g->size || n > g->size - at)
        return gguf_fail(g, "cannot read %llu bytes at byte %llu: the file has only %llu bytes", (unsigned long long)n,
                         (unsigned long long)at, (unsigned long long)g->size);
    if (gguf_seek(g, at) != 0)
        return -1;
    g->position += n;
    if (fread(to, 1, n, g->file) == n)
        return 0;
    g->position = UINT64_MAX;
    return gguf_fail(g, "cannot be read at byte %llu: %s", (unsigned long long)at,
                     ferror(g->file) ? strerror(errno) : "it has become shorter");
}

/* Returns the file's size, or 0 with g->error. */
static inline uint64_t gguf_file_size(gguf *g)
{
    int64_t size = -1;
#ifdef _WIN32
    if (_fseeki64(g->file, 0, SEEK_END) == 0)
        size = _ftelli64(g->file);
#else
    if (fseek(g->file, 0, SEEK_END) == 0)
        size = (int64_t)ftell(g->file);
#endif
    g->position = UINT64_MAX;
    if (size < 0 || size == INT64_MAX)
        gguf_fail(g, "cannot be read: %s", size < 0 ? strerror(errno) : "it is a folder");
    return size < 0 || size == INT64_MAX ? 0 : (uint64_t)size;
}

/* ---- parsing --------------------------------------------------------------------------------- */
/* Returns a pointer to the next n bytes of the header, and advances g->next past them. Loads more
 * of the file into g->header if necessary. Returns NULL with g->error on failure. */
static inline unsigned char *gguf_take(gguf *g, uint64_t n)
{
    const uint64_t left = g->size - g->next;
    if (n > left || n > GGUF_MAX_HEADER - g->next) {
        gguf_fail(g,
                  n > left ? "cut off or damaged: byte %llu says that %llu bytes follow, but the "
                             "file ends at %llu"
                           : "damaged: at byte %llu keys of %llu bytes follow; %llu at most are "
                             "read",
                  (unsigned long long)g->next, (unsigned long long)n,
                  (unsigned long long)(n > left ? g->size : (uint64_t)GGUF_MAX_HEADER));
        return NULL;
    }
    if (g->loaded - g->next < n) {
        uint64_t wanted = 2 * (uint64_t)g->loaded + 65536;
        wanted = wanted > g->next + n ? wanted : g->next + n;
        wanted = wanted < g->size ? wanted : g->size;
        unsigned char *header = (unsigned char *)realloc(g->header, (size_t)wanted);
        if (header == NULL) {
            gguf_fail(g, "out of memory for %llu bytes of keys", (unsigned long long)wanted);
            return NULL;
        }
        g->header = header;
        if (gguf_read_bytes(g, g->loaded, header + g->loaded, (size_t)wanted - g->loaded) != 0)
            return NULL;
        g->loaded = (size_t)wanted;
    }
    g->next += (size_t)n;
    return g->header + (g->next - (size_t)n);
}

/* Parses the next n bytes of the header as a number. Returns it, or 0 with g->error at the file's
 * end. */
static inline uint64_t gguf_take_number(gguf *g, int n)
{
    const unsigned char *at = gguf_take(g, (uint64_t)n);
    return at != NULL ? gguf_read_le(at, n) : 0;
}

/* Parses the next string of the header. Moves its bytes down by one, over its length field, so that
 * a 0 fits after them. Returns the string's offset in g->header. */
static inline size_t gguf_take_string(gguf *g, uint64_t *size)
{
    *size = gguf_take_number(g, 8);
    unsigned char *at = g->error[0] == 0 ? gguf_take(g, *size) : NULL;
    if (at == NULL)
        return 0;
    memmove(at - 1, at, (size_t)*size);
    (at - 1)[*size] = 0;
    return (size_t)(at - g->header) - 1;
}

/* Parses the next string, which must be a name of 1 to `most` bytes without control characters.
 * `what` and `number` are for error texts. */
static inline size_t gguf_take_name(gguf *g, const char *what, uint64_t number, uint64_t most)
{
    uint64_t size;
    const size_t at = gguf_take_string(g, &size);
    const char *name = (const char *)g->header + at;
    int good = size > 0 && size <= most;
    for (uint64_t i = 0; g->error[0] == 0 && good && i < size; i++)
        good = (unsigned char)name[i] >= 32 && name[i] != 127;
    if (g->error[0] == 0 && !good)
        gguf_fail(g,
                  "damaged: the name of %s %llu has %llu bytes, or control characters; 1 to "
                  "%llu bytes of text are expected",
                  what, (unsigned long long)number, (unsigned long long)size,
                  (unsigned long long)most);
    return at;
}

/* Makes space for one more element in an array of `count` elements of `size` bytes. Returns the
 * array, which may have moved, or NULL with g->error. */
static inline void *gguf_grow(gguf *g, void *array, size_t count, size_t size)
{
    if (count < g->capacity)
        return array;
    const size_t capacity = g->capacity > 0 ? 2 * g->capacity : 64;
    void *more = realloc(array, capacity * size);
    if (more == NULL)
        gguf_fail(g, "out of memory for %llu tensors or keys", (unsigned long long)capacity);
    else
        g->capacity = capacity;
    return more;
}

/* Parses the type of a key's value; sets g->error if the type is unknown. */
static inline gguf_type gguf_take_type(gguf *g, const char *name)
{
    const uint64_t type = gguf_take_number(g, 4);
    if (type < GGUF_TYPES)
        return (gguf_type)type;
    gguf_fail(g, "key %.64s: type %llu of a value is unknown", name,
              (unsigned long long)type);
    return GGUF_U8;
}

/* Parses the type and number of an array's items, and skips the items without decoding them. */
static inline void gguf_skip_items(gguf *g, gguf_key *k)
{
    k->item_type = gguf_take_type(g, (const char *)g->header + k->name_at);
    k->count = gguf_take_number(g, 8);
    k->value_at = g->next;
    if (g->error[0] != 0)
        return;
    const char *name = (const char *)g->header + k->name_at;
    const uint64_t left = g->size - g->next;
    const uint64_t each = k->item_type == GGUF_STRING ? 8 : (uint64_t)gguf_types[k->item_type].bytes;
    if (k->item_type == GGUF_ARRAY)
        gguf_fail(g, "key %.64s: arrays of arrays are not supported", name);
    else if (k->count > left / each)
        gguf_fail(
            g,
            "key %.64s: %llu items of %llu bytes or more, but only %llu bytes are left: cut off or "
            "damaged",
            name, (unsigned long long)k->count, (unsigned long long)each, (unsigned long long)left);
    else if (k->item_type != GGUF_STRING)
        gguf_take(g, k->count * each);
    else
        for (uint64_t i = 0; i < k->count && g->error[0] == 0; i++) {
            const uint64_t size = gguf_take_number(g, 8);
            if (g->error[0] == 0)
                gguf_take(g, size);
        }
}

/* Sets g->error if the key has a bool that is neither 0 nor 1. */
static inline void gguf_check_bools(gguf *g, const gguf_key *k)
{
    const unsigned char *at = g->header + k->value_at;
    const int bools = k->type == GGUF_ARRAY && k->item_type == GGUF_BOOL;
    for (uint64_t n = bools ? k->count : k->type == GGUF_BOOL; n > 0 && g->error[0] == 0; n--)
        if (*at++ > 1)
            gguf_fail(g, "key %.64s: a bool is 0 or 1, not %d", (const char *)g->header + k->name_at,
                      at[-1]);
}

static inline void gguf_parse_key(gguf *g, uint64_t number)
{
    gguf_key *k, *keys = (gguf_key *)gguf_grow(g, g->keys, g->key_count, sizeof *keys);
    if (keys == NULL)
        return;
    g->keys = keys;
    k = &keys[g->key_count++];
    memset(k, 0, sizeof *k);
    k->name_at = gguf_take_name(g, "key", number, 65535);
    if (g->error[0] == 0)
        k->type = gguf_take_type(g, (const char *)g->header + k->name_at);
    if (g->error[0] != 0)
        return;
    k->value_at = g->next;
    if (k->type == GGUF_ARRAY)
        gguf_skip_items(g, k);
    else if (k->type == GGUF_STRING)
        k->value_at = gguf_take_string(g, &k->count);
    else
        gguf_take(g, (uint64_t)gguf_types[k->type].bytes);
    if (g->error[0] == 0)
        gguf_check_bools(g, k);
}

/* Parses a tensor's axes, type and offset, and computes the size of its values in bytes. */
static inline void gguf_parse_axes(gguf *g, gguf_tensor *t)
{
    const uint64_t axes = gguf_take_number(g, 4);
    if (g->error[0] == 0 && axes > GGUF_AXES)
        gguf_fail(g, "tensor %s: %llu axes; %d at most are allowed",
                  (const char *)g->header + t->name_at, (unsigned long long)axes, GGUF_AXES);
    t->axes = g->error[0] == 0 ? (int)axes : 0;
    t->elements = 1;
    for (int i = 0; i < GGUF_AXES; i++) {
        const uint64_t d = i < t->axes ? gguf_take_number(g, 8) : 1;
        /* an axis of size 0 is legal; the check for overflow then counts the other axes */
        const int64_t so_far = t->elements > 0 ? t->elements : 1;
        if (g->error[0] == 0 && d > (uint64_t)(INT64_MAX / so_far))
            gguf_fail(g, "tensor %s: an axis of %llu, more than 2^63 elements: damaged",
                      (const char *)g->header + t->name_at, (unsigned long long)d);
        t->d[i] = g->error[0] == 0 ? (int64_t)d : 1;
        t->elements *= t->d[i];
    }
    const uint64_t type = gguf_take_number(g, 4);
    /* in the file, this offset is counted from the end of the header */
    t->offset = gguf_take_number(g, 8);
    if (g->error[0] != 0)
        return;
    const char *name = (const char *)g->header + t->name_at;
    t->type = type < GGUF_TENSOR_TYPES ? (int)type : 0;
    const int values = gguf_tensor_types[t->type].values, bytes = gguf_tensor_types[t->type].bytes;
    if (type >= GGUF_TENSOR_TYPES || bytes == 0)
        gguf_fail(g, "tensor %s: type %llu of a tensor is unknown", name,
                  (unsigned long long)type);
    else if (t->d[0] % values != 0)
        gguf_fail(g, "tensor %s: its rows have %lld values, which is not a multiple of %d, the "
                     "block size of %s", name,
                  (long long)t->d[0], values, gguf_tensor_types[t->type].name);
    else if ((uint64_t)(t->elements / values) > g->size / (uint64_t)bytes)
        gguf_fail(g,
                  "tensor %s: %lld values of %s, more than the file's %llu bytes hold: cut off "
                  "or damaged",
                  name, (long long)t->elements, gguf_tensor_types[t->type].name,
                  (unsigned long long)g->size);
    else
        t->bytes = (uint64_t)(t->elements / values) * (uint64_t)bytes;
}

static inline void gguf_parse_tensor(gguf *g, uint64_t number)
{
    gguf_tensor *t, *all = (gguf_tensor *)gguf_grow(g, g->tensors, g->tensor_count, sizeof *all);
    if (all == NULL)
        return;
    g->tensors = all;
    t = &all[g->tensor_count++];
    memset(t, 0, sizeof *t);
    t->name_at = gguf_take_name(g, "tensor", number, GGUF_NAME);
    if (g->error[0] == 0)
        gguf_parse_axes(g, t);
}

/* ---- keys ------------------------------------------------------------------------------------ */
static inline int gguf_key_order(const void *a, const void *b)
{
    return strcmp(((const gguf_key *)a)->name, ((const gguf_key *)b)->name);
}

static inline int gguf_tensor_order(const void *a, const void *b)
{
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

/* Returns the key called `name`, or NULL if the file lacks it. */
static inline const gguf_key *gguf_find(const gguf *g, const char *name)
{
    gguf_key k;
    k.name = name;
    return g->key_count == 0
               ? NULL
               : (const gguf_key *)bsearch(&k, g->keys, g->key_count, sizeof k, gguf_key_order);
}

static inline const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name)
{
    gguf_tensor t;
    t.name = name;
    return g->tensor_count == 0 ? NULL
                                : (const gguf_tensor *)bsearch(&t, g->tensors, g->tensor_count,
                                                               sizeof t, gguf_tensor_order);
}

static inline int gguf_is_integer(gguf_type t)
{
    return t <= GGUF_I32 || t == GGUF_U64 || t == GGUF_I64;
}

/* Converts a number of the given type at `at` to *integer and *real. Integers above INT64_MAX
 * become INT64_MAX. */
static inline void gguf_decode(gguf_type type, const unsigned char *at, int64_t *integer,
                               double *real)
{
    const int bits = 8 * gguf_types[type].bytes;
    const uint64_t u = gguf_read_le(at, bits / 8);
    const int has_sign =
        type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    const uint64_t sign = (uint64_t)1 << (bits - 1);
    *integer = 0;
    if (type == GGUF_F32) {
        const uint32_t low = (uint32_t)u;
        float f;
        memcpy(&f, &low, sizeof f);
        *real = (double)f;
    } else if (type == GGUF_F64) {
        memcpy(real, &u, sizeof *real);
    } else {
        *integer = has_sign && (u & sign) != 0 ? -(int64_t)(sign - 1 - (u & (sign - 1))) - 1
                 : u > INT64_MAX             ? INT64_MAX
                                             : (int64_t)u;
        *real = (double)*integer;
    }
}

/* Returns the key called `name`, or NULL if the file lacks it. If `matches` is 0, the caller
 * found that the key's value is not a `kind`: then sets g->error and returns NULL. */
static inline const gguf_key *gguf_expect_key(gguf *g, const char *name, const char *kind, int matches)
{
    const gguf_key *k = gguf_find(g, name);
    if (k == NULL || matches)
        return k;
    gguf_fail(g, "key %s: %s expected, found %s%s%s", name, kind, gguf_types[k->type].name,
              k->type == GGUF_ARRAY ? " of " : "",
              k->type == GGUF_ARRAY ? gguf_types[k->item_type].name : "");
    return NULL;
}

static inline gguf_type gguf_type_of(const gguf *g, const char *name)
{
    const gguf_key *k = gguf_find(g, name);
    return k != NULL ? k->type : GGUF_TYPES;
}

/* Getters: each returns the value of a key, or `fallback` if there is no such key. If the key has
 * another type, it sets g->error and returns `fallback`. */
static inline int64_t gguf_int(gguf *g, const char *name, int64_t fallback)
{
    const gguf_key *k =
        gguf_expect_key(g, name, "a whole number", gguf_is_integer(gguf_type_of(g, name)));
    double real;
    if (k != NULL)
        gguf_decode(k->type, k->value, &fallback, &real);
    return fallback;
}

static inline double gguf_real(gguf *g, const char *name, double fallback)
{
    const gguf_type type = gguf_type_of(g, name);
    const gguf_key *k = gguf_expect_key(g, name, "f32 or f64", type == GGUF_F32 || type == GGUF_F64);
    int64_t integer;
    if (k != NULL)
        gguf_decode(k->type, k->value, &integer, &fallback);
    return fallback;
}

static inline int gguf_bool(gguf *g, const char *name, int fallback)
{
    const gguf_key *k = gguf_expect_key(g, name, "bool", gguf_type_of(g, name) == GGUF_BOOL);
    return k != NULL ? k->value[0] : fallback;
}

/* Returns the string of a key, followed by a 0 and valid until gguf_close; NULL if there is no such
 * key. If size is not NULL, *size becomes the string's length, since the string may contain
 * zeros. */
static inline const char *gguf_text(gguf *g, const char *name, size_t *size)
{
    const gguf_key *k = gguf_expect_key(g, name, "string", gguf_type_of(g, name) == GGUF_STRING);
    if (size != NULL)
        *size = k != NULL ? (size_t)k->count : 0;
    return k != NULL ? (const char *)k->value : NULL;
}

/* Starts an iteration over an array with items of this type. GGUF_I32 accepts all integer types,
 * GGUF_F32 also f64. There are no items if there is no such key, or if the key has another type,
 * which is an error, in g->error. */
static inline gguf_items gguf_array(gguf *g, const char *name, gguf_type type)
{
    gguf_items items;
    const gguf_key *k = gguf_find(g, name);
    const int same = k != NULL && k->type == GGUF_ARRAY &&
                     (k->item_type == type || (type == GGUF_I32 && gguf_is_integer(k->item_type)) ||
                      (type == GGUF_F32 && k->item_type == GGUF_F64));
    memset(&items, 0, sizeof items);
    k = gguf_expect_key(g, name,
                    type == GGUF_STRING ? "an array of strings"
                    : type == GGUF_F32  ? "an array of f32 or f64"
                    : type == GGUF_I32  ? "an array of whole numbers"
                                      : "another array",
                    same);
    if (k != NULL) {
        items.count = k->count;
        items.at = k->value;
        items.item_type = k->item_type;
    }
    return items;
}

/* Reads the next item into *items. Returns 1, or 0 if there are no more items. */
static inline int gguf_next(gguf_items *items)
{
    if (items->count == 0)
        return 0;
    items->count--;
    if (items->item_type == GGUF_STRING) {
        items->size = (size_t)gguf_read_le(items->at, 8);
        items->text = (const char *)items->at + 8;
        items->at += 8 + items->size;
    } else {
        gguf_decode(items->item_type, items->at, &items->integer, &items->real);
        items->at += gguf_types[items->item_type].bytes;
    }
    return 1;
}

/* ---- opening --------------------------------------------------------------------------------- */
static inline void gguf_close(gguf *g)
{
    if (g->file != NULL)
        fclose(g->file);
    free(g->path);
    free(g->header);
    free(g->keys);
    free(g->tensors);
    g->file = NULL;
    g->path = NULL;
    g->header = NULL;
    g->keys = NULL;
    g->tensors = NULL;
    g->key_count = g->tensor_count = 0;
}

/* Parses the fixed part of the header: magic number, version, numbers of tensors and keys. */
static inline void gguf_parse_begin(gguf *g, uint64_t *tensors, uint64_t *keys)
{
    static const char magic[] = "GGUF";
    const unsigned char *at = g->size < 24 ? NULL : gguf_take(g, 4);
    if (at == NULL || memcmp(at, magic, 4) != 0) {
        gguf_fail(g, "is no GGUF file: it must begin with GGUF and have at least 24 bytes");
        return;
    }
    const uint64_t version = gguf_take_number(g, 4);
    *tensors = gguf_take_number(g, 8);
    *keys = gguf_take_number(g, 8);
    if ((version & 0xffff) == 0)
        gguf_fail(g, "is big-endian, or damaged (version %llu): convert it without --bigendian",
                  (unsigned long long)version);
    else if (version != 2 && version != 3)
        gguf_fail(g, "has GGUF version %llu; 2 and 3 are supported%s", (unsigned long long)version,
                  version == 1 ? ": convert the model anew" : "");
    else if (*keys > g->size / 13 || *tensors > g->size / 25)
        gguf_fail(g, "%llu keys and %llu tensors in %llu bytes: cut off or damaged",
                  (unsigned long long)*keys, (unsigned long long)*tensors,
                  (unsigned long long)g->size);
}

/* Ends parsing: replaces offsets of names and values by pointers, because g->header no longer
 * moves, and sorts keys and tensors by name. Duplicate names are an error. */
static inline void gguf_sort(gguf *g)
{
    for (size_t i = 0; i < g->key_count; i++) {
        g->keys[i].name = (const char *)g->header + g->keys[i].name_at;
        g->keys[i].value = g->header + g->keys[i].value_at;
    }
    for (size_t i = 0; i < g->tensor_count; i++)
        g->tensors[i].name = (const char *)g->header + g->tensors[i].name_at;
    if (g->key_count > 0)
        qsort(g->keys, g->key_count, sizeof *g->keys, gguf_key_order);
    if (g->tensor_count > 0)
        qsort(g->tensors, g->tensor_count, sizeof *g->tensors, gguf_tensor_order);
    for (size_t i = 1; i < g->key_count; i++)
        if (gguf_key_order(&g->keys[i - 1], &g->keys[i]) == 0)
            gguf_fail(g, "key %.64s comes twice", g->keys[i].name);
    for (size_t i = 1; i < g->tensor_count; i++)
        if (gguf_tensor_order(&g->tensors[i - 1], &g->tensors[i]) == 0)
            gguf_fail(g, "tensor %s comes twice", g->tensors[i].name);
}

static inline int gguf_offset_order(const void *a, const void *b)
{
    const gguf_tensor *const *x = (const gguf_tensor *const *)a, *const *y =
                                                                     (const gguf_tensor *const *)b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

/* Returns an array of the tensors, sorted by offset, which the caller must free; NULL with
 * g->error. */
static inline const gguf_tensor **gguf_sort_by_offset(gguf *g)
{
    const gguf_tensor **all = (const gguf_tensor **)malloc((g->tensor_count + 1) * sizeof *all);
    if (all == NULL) {
        gguf_fail(g, "out of memory for %llu tensors", (unsigned long long)g->tensor_count);
        return NULL;
    }
    for (size_t i = 0; i < g->tensor_count; i++)
        all[i] = &g->tensors[i];
    qsort(all, g->tensor_count, sizeof *all, gguf_offset_order);
    return all;
}

/* Checks that the values of all tensors come after the header, are aligned, lie within the file and
 * do not overlap. Converts the offsets to offsets from the start of the file. */
static inline void gguf_check_offsets(gguf *g)
{
    const int64_t align = gguf_int(g, "general.alignment", 32);
    g->alignment = align > 0 ? (uint64_t)align : 0;
    if (g->error[0] == 0 && (align < 1 || align > (int64_t)1 << 31 || (align & (align - 1)) != 0))
        gguf_fail(g, "key general.alignment is %lld: a power of 2 is expected", (long long)align);
    if (g->error[0] != 0)
        return;
    const uint64_t begin = (g->next + g->alignment - 1) / g->alignment * g->alignment;
    for (size_t i = 0; i < g->tensor_count && g->error[0] == 0; i++) {
        gguf_tensor *t = &g->tensors[i];
        if (t->offset % g->alignment != 0)
            gguf_fail(g, "tensor %s: begins at byte %llu, which is not a multiple of the "
                         "alignment %llu", t->name,
                      (unsigned long long)t->offset, (unsigned long long)g->alignment);
        else if (begin > g->size || t->offset > g->size - begin || t->bytes > g->size - begin - t->offset)
            gguf_fail(
                g,
                "tensor %s: %llu bytes at %llu after the header of %llu, but the file has %llu: "
                "cut off or damaged",
                t->name, (unsigned long long)t->bytes, (unsigned long long)t->offset,
                (unsigned long long)begin, (unsigned long long)g->size);
        t->offset += begin;
    }
    const gguf_tensor **all = g->error[0] == 0 ? gguf_sort_by_offset(g) : NULL;
    for (size_t i = 1; i < g->tensor_count && all != NULL; i++)
        if (all[i]->offset < all[i - 1]->offset + all[i - 1]->bytes)
            gguf_fail(g, "tensors %s and %s overlap", all[i - 1]->name, all[i]->name);
    free(all);
}

/* Opens a file: reads all keys, and name, type, shape and offset of each tensor. Always call
 * gguf_close afterwards; after an error, only g->error may be read before that. */
static inline int gguf_open(gguf *g, const char *path)
{
    uint64_t tensors = 0, keys = 0;
    const size_t length = strlen(path) + 1;
    memset(g, 0, sizeof *g);
    g->path = (char *)malloc(length);
    if (g->path == NULL)
        return gguf_fail(g, "out of memory");
    memcpy(g->path, path, length);
    g->file = fopen(path, "rb");
    if (g->file == NULL)
        return gguf_fail(g, "cannot open it: %s", strerror(errno));
    g->size = gguf_file_size(g);
    if (g->error[0] == 0)
        gguf_parse_begin(g, &tensors, &keys);
    for (uint64_t i = 0; i < keys && g->error[0] == 0; i++)
        gguf_parse_key(g, i);
    g->capacity = 0;
    for (uint64_t i = 0; i < tensors && g->error[0] == 0; i++)
        gguf_parse_tensor(g, i);
    if (g->error[0] == 0)
        gguf_sort(g);
    if (g->error[0] == 0)
        gguf_check_offsets(g);
    return g->error[0] == 0 ? 0 : -1;
}

/* ---- values of tensors ----------------------------------------------------------------------- */
static inline float gguf_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Returns the float of a binary16 number of two little-endian bytes. */
static inline float gguf_from_f16(const unsigned char *at)
{
    const uint32_t h = (uint32_t)gguf_read_le(at, 2), sign = (h & 0x8000) << 16;
    const uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31)
        return gguf_from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent > 0)
        return gguf_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    /* a subnormal number is fraction times 2^-24 */
    const float subnormal = (float)fraction * (1.0f / 16777216);
    return sign != 0 ? -subnormal : subnormal;
}

/* Dequantises a block of 32 values of 4 bits (Q4_0, Q4_1: `high` is NULL) or 5 bits (Q5_0, Q5_1).
 * Byte i of `low` has the low four bits of values i and i + 16, and bit i of `high` is bit 4 of
 * value i. `at` begins with the block's scale. If offset is 0, the block's minimum follows and is
 * added. */
static inline void gguf_int4_block(const unsigned char *at, const unsigned char *high,
                                const unsigned char *low, int offset, float *to)
{
    const uint32_t fifth_bit = high != NULL ? (uint32_t)gguf_read_le(high, 4) : 0;
    const float scale = gguf_from_f16(at);
    for (int i = 0; i < 32; i++) {
        const int q = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
        to[i] = (float)((q | (int)(fifth_bit >> i & 1) << 4) - offset) * scale;
        to[i] = offset == 0 ? to[i] + gguf_from_f16(at + 2) : to[i];
    }
}

/* Unpacks number i of the 8 pairs (scale, minimum) of a Q4_K or Q5_K block. The block stores these
 * 16 numbers of 6 bits in 12 bytes. */
static inline void gguf_k_scale(const unsigned char *at, int i, int *scale, int *minimum)
{
    if (i < 4) {
        *scale = at[i] & 63;
        *minimum = at[i + 4] & 63;
    } else {
        *scale = (at[i + 4] & 15) | (at[i - 4] >> 6) << 4;
        *minimum = at[i + 4] >> 4 | (at[i] >> 6) << 4;
    }
}

/* Dequantises a block of 256 values of Q4_K (`high` is NULL) or Q5_K. It consists of 8 groups of 32
 * values, each with a scale and a minimum. */
static inline void gguf_k_block(const unsigned char *at, const unsigned char *high,
                                const unsigned char *low, float *to)
{
    const float d = gguf_from_f16(at), least = gguf_from_f16(at + 2);
    for (int i = 0; i < 8; i++) {
        int scale, minimum;
        gguf_k_scale(at + 4, i, &scale, &minimum);
        const float block_scale = d * (float)scale, minus = least * (float)minimum;
        for (int k = 0; k < 32; k++) {
            const int q = i % 2 == 0 ? low[i / 2 * 32 + k] & 15 : low[i / 2 * 32 + k] >> 4;
            const int fifth_bit = high != NULL ? high[k] >> i & 1 : 0;
            to[32 * i + k] = block_scale * (float)(q | fifth_bit << 4) - minus;
        }
    }
}

/* Dequantises a block of 256 values of Q6_K: the low 4 bits of all values (128 bytes), their high 2
 * bits (64 bytes), 16 scales of 1 byte, and a factor for the scales. */
static inline void gguf_k6_block(const unsigned char *at, float *to)
{
    const float d = gguf_from_f16(at + 208);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, quarter = i % 128 / 32, k = i % 32;
        const unsigned char low = at[64 * half + quarter % 2 * 32 + k];
        const int two = at[128 + 32 * half + k] >> 2 * quarter & 3;
        const int scale = (at[192 + i / 16] ^ 128) - 128;
        const int q = (quarter < 2 ? low & 15 : low >> 4) | two << 4;
        to[i] = d * (float)scale * (float)(q - 32);
    }
}

/* Dequantises one block of any supported type except F32, F16 and BF16. The products of scales and
 * values are exact in a float, so at most one rounding happens per value, whether or not a compiler
 * contracts to FMA. */
static inline void gguf_block(int type, const unsigned char *at, float *to)
{
    if (type == GGUF_T_Q4_K)
        gguf_k_block(at, NULL, at + 16, to);
    else if (type == GGUF_T_Q5_K)
        gguf_k_block(at, at + 16, at + 48, to);
    else if (type == GGUF_T_Q6_K)
        gguf_k6_block(at, to);
    else if (type == GGUF_T_Q4_0)
        gguf_int4_block(at, NULL, at + 2, 8, to);
    else if (type == GGUF_T_Q4_1)
        gguf_int4_block(at, NULL, at + 4, 0, to);
    else if (type == GGUF_T_Q5_0)
        gguf_int4_block(at, at + 2, at + 6, 16, to);
    else if (type == GGUF_T_Q5_1)
        gguf_int4_block(at, at + 4, at + 8, 0, to);
    else
        for (int i = 0; i < 32; i++)
            to[i] = (float)((at[2 + i] ^ 128) - 128) * gguf_from_f16(at);
}

/* Returns whether gguf_read_floats can read tensors of this type. */
static inline int gguf_is_supported(int type)
{
    static const int read[] = { GGUF_T_F32,  GGUF_T_F16,  GGUF_T_BF16, GGUF_T_Q8_0,
                                GGUF_T_Q4_0, GGUF_T_Q4_1, GGUF_T_Q5_0, GGUF_T_Q5_1,
                                GGUF_T_Q4_K, GGUF_T_Q5_K, GGUF_T_Q6_K };
    int i = 0;
    while (i < (int)(sizeof read / sizeof read[0]) && read[i] != type)
        i++;
    return i < (int)(sizeof read / sizeof read[0]);
}

/* Returns the bytes that n values of a type take in the file; n must be a multiple of the block
 * size. */
static inline size_t gguf_bytes(int type, int64_t n)
{
    return (size_t)(n / gguf_tensor_types[type].values) * (size_t)gguf_tensor_types[type].bytes;
}

/* Converts n values of a supported type to floats; n must be a multiple of the block size. */
static inline void gguf_to_floats(int type, const unsigned char *from, int64_t n, float *to)
{
    const int values = gguf_tensor_types[type].values, bytes = gguf_tensor_types[type].bytes;
    for (int64_t i = 0; i < n; i += values, from += bytes, to += values)
        if (type == GGUF_T_F16)
            *to = gguf_from_f16(from);
        else if (bytes <= 4)
            *to = gguf_from_bits((uint32_t)gguf_read_le(from, bytes) << (32 - 8 * bytes));
        else
            gguf_block(type, from, to);
}

/* Reads values first to first + n - 1 of a tensor as floats, in the file's order. `first` and n
 * must be multiples of the block size. */
static inline int gguf_read_floats(gguf *g, const gguf_tensor *t, int64_t first, int64_t n,
                                   float *to)
{
    unsigned char buffer[4096];
    const int64_t values = gguf_tensor_types[t->type].values;
    const int64_t most = (int64_t)sizeof buffer / gguf_tensor_types[t->type].bytes * values;
    if (!gguf_is_supported(t->type))
        return gguf_fail(g,
                         "tensor %s is of type %s; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                         "Q4_K, Q5_K and Q6_K are read: quantise the model as one of them",
                         t->name, gguf_tensor_types[t->type].name);
    if (first < 0 || n < 0 || first % values != 0 || n % values != 0 || first > t->elements ||
        n > t->elements - first)
        return gguf_fail(g, "tensor %s: has no values %lld to %lld", t->name, (long long)first,
                         (long long)(first + n));
    for (int64_t count; n > 0; n -= count, first += count, to += count) {
        count = n < most ? n : most;
        if (gguf_read_bytes(g, t->offset + gguf_bytes(t->type, first), buffer,
                            gguf_bytes(t->type, count)) != 0)
            return -1;
        gguf_to_floats(t->type, buffer, count, to);
    }
    return 0;
}
#endif
