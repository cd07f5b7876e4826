/* safetensors.h - the header of a safetensors file as a table, for targets that mutate such files or read them
 * without the library: functions that read the table from bytes, mutate it so that more than the reader's first check
 * is reached, and write it with right length and offsets. */
#ifndef TESTS_FUZZ_SAFETENSORS_H
#define TESTS_FUZZ_SAFETENSORS_H
#include "fuzz.h"

enum { ST_TENSORS = 24, ST_KEYS = 16, ST_NAME = 40, ST_AXES = 8, ST_HEADER = 6000 };

typedef struct {
    char name[ST_NAME], type[8];
    int axes;
    uint64_t shape[ST_AXES], begin, end;
} st_tensor;

typedef struct {
    int keys, tensors;
    char key[ST_KEYS][ST_NAME], value[ST_KEYS][ST_NAME];
    st_tensor tensor[ST_TENSORS];
    const uint8_t *data;
    size_t data_bytes;
} st_file;

/* ---- reading a header into the table, as far as the table has space; strings stay as they are written ---- */
typedef struct {
    const char *at, *end;
} st_text;

static inline int st_take(st_text *t, char c)
{
    while (t->at < t->end && strchr(" \n\r\t", *t->at) != NULL && *t->at != 0)
        t->at++;
    return t->at < t->end && *t->at == c ? (t->at++, 1) : 0;
}

static inline int st_string(st_text *t, char *out, size_t capacity)
{
    size_t n = 0;
    if (!st_take(t, '"'))
        return 0;
    for (; t->at < t->end && *t->at != '"'; t->at++) {
        if (*t->at == 0 || n + 3 > capacity)
            return 0;
        if (*t->at == '\\' && t->end - t->at > 1)
            out[n++] = *t->at++;
        out[n++] = *t->at;
    }
    out[n] = 0;
    return st_take(t, '"');
}

static inline int st_numbers(st_text *t, uint64_t *out, int most)
{
    int n = 0;
    if (!st_take(t, '['))
        return -1;
    if (st_take(t, ']'))
        return 0;
    do {
        if (n == most || (st_take(t, ' '), t->at == t->end) || *t->at < '0' || *t->at > '9')
            return -1;
        for (out[n] = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
            out[n] = 10 * out[n] + (uint64_t)(*t->at - '0');
        n++;
    } while (st_take(t, ','));
    return st_take(t, ']') ? n : -1;
}

static inline int st_entry(st_text *t, st_tensor *e)
{
    char key[ST_NAME];
    int seen = 0;
    if (!st_take(t, '{'))
        return 0;
    do {
        uint64_t offsets[2];
        if (!st_string(t, key, sizeof key) || !st_take(t, ':'))
            return 0;
        if (!strcmp(key, "dtype"))
            seen |= st_string(t, e->type, sizeof e->type) ? 1 : 8;
        else if (!strcmp(key, "shape"))
            seen |= (e->axes = st_numbers(t, e->shape, ST_AXES)) >= 0 ? 2 : 8;
        else if (!strcmp(key, "data_offsets") && st_numbers(t, offsets, 2) == 2) {
            e->begin = offsets[0];
            e->end = offsets[1];
            seen |= 4;
        } else
            return 0;
    } while (st_take(t, ','));
    return seen == 7 && st_take(t, '}');
}

/* Reads the header's tensors and keys into the table. Returns 0 if the header is invalid or does not fit the table. */
static inline int st_read_header(st_file *f, const char *text, size_t size)
{
    st_text t = { text, text + size };
    char name[ST_NAME];
    f->keys = f->tensors = 0;
    if (!st_take(&t, '{'))
        return 0;
    if (st_take(&t, '}'))
        return 1;
    do {
        if (!st_string(&t, name, sizeof name) || !st_take(&t, ':'))
            return 0;
        if (strcmp(name, "__metadata__") != 0) {
            if (f->tensors == ST_TENSORS || !st_entry(&t, &f->tensor[f->tensors]))
                return 0;
            memcpy(f->tensor[f->tensors++].name, name, sizeof name);
            continue;
        }
        if (!st_take(&t, '{'))
            return 0;
        if (st_take(&t, '}'))
            continue;
        do {
            if (f->keys == ST_KEYS || !st_string(&t, f->key[f->keys], ST_NAME) ||
                !st_take(&t, ':') || !st_string(&t, f->value[f->keys], ST_NAME))
                return 0;
            f->keys++;
        } while (st_take(&t, ','));
        if (!st_take(&t, '}'))
            return 0;
    } while (st_take(&t, ','));
    return st_take(&t, '}');
}

static inline uint64_t st_little(const uint8_t *bytes)
{
    uint64_t n = 0;
    for (int i = 8; i-- > 0;)
        n = n << 8 | bytes[i];
    return n;
}

static inline void st_put_little(uint8_t *bytes, uint64_t n)
{
    for (int i = 0; i < 8; i++, n >>= 8)
        bytes[i] = (uint8_t)n;
}

static inline int st_read(st_file *f, const uint8_t *bytes, size_t size)
{
    const uint64_t length = size < 8 ? 0 : st_little(bytes);
    if (size < 10 || length > size - 8)
        return 0;
    f->data = bytes + 8 + length;
    f->data_bytes = size - 8 - (size_t)length;
    return st_read_header(f, (const char *)bytes + 8, (size_t)length);
}

/* ---- writing ---- */
/* Returns the number of bytes of the tensor, or UINT64_MAX if it exceeds the limits of this target. */
static inline uint64_t st_bytes(const st_tensor *e)
{
    const char *types = "F64 8 I64 8 F32 4 I32 4 BF16 2 F16 2 ", *found = strstr(types, e->type);
    uint64_t n =
        e->type[0] != 0 && found != NULL ? (uint64_t)(found[strlen(e->type) + 1] - '0') % 10 : 1;
    for (int i = 0; i < e->axes; i++) {
        if (e->shape[i] > 1u << 20 || n * e->shape[i] > 1u << 24)
            return UINT64_MAX;
        n *= e->shape[i];
    }
    return n;
}

/* Assigns the tensors offsets one after the other, in the order of the table. */
static inline void st_place(st_file *f)
{
    uint64_t at = 0;
    for (int i = 0; i < f->tensors; i++) {
        st_tensor *e = &f->tensor[i];
        const uint64_t n = st_bytes(e);
        e->begin = at;
        e->end = at += n == UINT64_MAX ? 0 : n;
    }
}

static inline size_t st_put(char *out, size_t n, const char *text)
{
    const size_t more = strlen(text);
    if (n + more < ST_HEADER)
        memcpy(out + n, text, more);
    return n + more;
}

static inline size_t st_put_numbers(char *out, size_t n, const uint64_t *v, int count)
{
    char text[32];
    for (int i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s%llu", i > 0 ? "," : "", (unsigned long long)v[i]);
        n = st_put(out, n, text);
    }
    return n;
}

/* Writes the table as a JSON header without padding. Returns the header's length, or 0 if it is too long. */
static inline size_t st_write_header(const st_file *f, char out[ST_HEADER])
{
    size_t n = st_put(out, 0, "{");
    if (f->keys > 0) {
        for (int i = 0; i < f->keys; i++) {
            /* "data_fnv1a" is a checksum of the data before the mutation, so it is written as an ordinary note */
            const int hash = !strcmp(f->key[i], "data_fnv1a");
            n = st_put(out, n, i > 0 ? ",\"" : "\"__metadata__\":{\"");
            n = st_put(out, n, hash ? "data_fnv1b" : f->key[i]);
            n = st_put(out, st_put(out, st_put(out, n, "\":\""), f->value[i]), "\"");
        }
        n = st_put(out, n, "}");
    }
    for (int i = 0; i < f->tensors; i++) {
        const st_tensor *e = &f->tensor[i];
        const uint64_t offsets[2] = { e->begin, e->end };
        n = st_put(out, st_put(out, n, i > 0 || f->keys > 0 ? ",\"" : "\""), e->name);
        n = st_put(out, st_put(out, st_put(out, n, "\":{\"dtype\":\""), e->type), "\",\"shape\":[");
        n = st_put(out, st_put_numbers(out, n, e->shape, e->axes), "],\"data_offsets\":[");
        n = st_put(out, st_put_numbers(out, n, offsets, 2), "]}");
    }
    n = st_put(out, n, "}");
    return n < ST_HEADER ? n : 0;
}

/* Writes the file: the header's length, the header, and the data, cut off or extended with zeros to the size that the
 * offsets need. Returns the file's size, or 0 if it does not fit. */
static inline size_t st_write(const st_file *f, uint8_t *out, size_t capacity)
{
    static char text[ST_HEADER];
    size_t n = st_write_header(f, text), all = 0;
    for (int i = 0; i < f->tensors; i++)
        if (f->tensor[i].end <= capacity && f->tensor[i].end > all)
            all = (size_t)f->tensor[i].end;
    for (; n > 0 && n % 8 > 0 && n < ST_HEADER; n++)
        text[n] = ' ';
    if (n == 0 || 8 + n + all > capacity)
        return 0;
    const size_t have = f->data_bytes < all ? f->data_bytes : all;
    memmove(out + 8 + n, f->data, have); /* the source may overlap the destination */
    memset(out + 8 + n + have, 0, all - have);
    memcpy(out + 8, text, n);
    st_put_little(out, n);
    return 8 + n + all;
}

/* ---- mutations ---- */
#define ST_ONE_OF(d, list) (list)[fuzz_draw(d, sizeof(list) / sizeof *(list))]

static inline uint64_t st_number(fuzz_draws *d, uint64_t like)
{
    static const uint64_t odd[] = { 0,          1,         2,         3,    4,          18,
                                    31,         32,        33,        36,   64,         4095,
                                    4096,       4097,      100,       4100, 0x7fffffff, 0x80000000,
                                    0xffffffff, INT64_MAX, UINT64_MAX };
    switch (fuzz_draw(d, 4)) {
    case 0: return like + 1;
    case 1: return like - 1;
    case 2: return fuzz_draw(d, 2) ? 2 * like : like / 2;
    default: return ST_ONE_OF(d, odd);
    }
}

static inline void st_change_name(st_tensor *e, fuzz_draws *d)
{
    static const char *const names[] = { "a", "b", "c", "d", "m.a", "n", "h.0.w", "" };
    static const char *const ends[] = { "",        "#state9", "#state0", "#state1",
                                        "#state2", "#state3", "#state4", ".num_batches_tracked" };
    if (fuzz_draw(d, 2)) /* another name with the same beginning and another suffix */
        e->name[strcspn(e->name, "#")] = 0;
    else
        strcpy(e->name, ST_ONE_OF(d, names));
    if (strlen(e->name) + 24 < ST_NAME)
        strcat(e->name, ST_ONE_OF(d, ends));
}

static inline void st_change_key(st_file *f, fuzz_draws *d)
{
    static const char *const keys[] = {
        "format",    "contract",  "step", "seed", "optimiser",
        "a#updates", "b#updates", "note", "",     "convolution_axes"
    };
    static const char *const values[] = { "gradckpt", "pt",     "0",
                                          "1",        "2",      "3",
                                          "4",        "5",      "3:15",
                                          "1:2",      "0:0",    "HWIO",
                                          "yes",      "unsaid", "18446744073709551615" };
    const int i = (int)fuzz_draw(d, (uint64_t)f->keys + 1);
    if (i == f->keys) {
        if (f->keys == ST_KEYS)
            return;
        strcpy(f->key[f->keys], ST_ONE_OF(d, keys));
        f->value[f->keys++][0] = 0;
    }
    switch (fuzz_draw(d, 6)) {
    case 0:
        f->keys--;
        memcpy(f->key[i], f->key[f->keys], ST_NAME);
        memcpy(f->value[i], f->value[f->keys], ST_NAME);
        break;
    case 1: strcpy(f->key[i], ST_ONE_OF(d, keys)); break;
    default: strcpy(f->value[i], ST_ONE_OF(d, values));
    }
}

static inline void st_change(st_file *f, fuzz_draws *d)
{
    static const char *const types[] = { "F32", "BF16", "F16", "I8", "U8", "I64", "F64" };
    const uint64_t kind = fuzz_draw(d, 9);
    if (f->tensors == 0 || kind == 0) {
        st_change_key(f, d);
        return;
    }
    st_tensor *e = &f->tensor[fuzz_draw(d, (uint64_t)f->tensors)];
    st_tensor *other = &f->tensor[fuzz_draw(d, (uint64_t)f->tensors)], held = *e;
    switch (kind) {
    case 1: strcpy(e->type, ST_ONE_OF(d, types)); break;
    case 2:
        if (e->axes > 0) {
            uint64_t *axis = &e->shape[fuzz_draw(d, (uint64_t)e->axes)];
            *axis = st_number(d, *axis);
        }
        break;
    case 3:
        if (e->axes < ST_AXES && fuzz_draw(d, 2))
            e->shape[e->axes++] = 1;
        else if (e->axes > 0)
            e->axes--;
        break;
    case 4: st_change_name(e, d); break;
    case 5: *e = f->tensor[--f->tensors]; break;
    case 6:
        if (f->tensors < ST_TENSORS) {
            f->tensor[f->tensors++] = *e;
            st_change_name(e, d);
        }
        break;
    case 7:
        *e = *other;
        *other = held;
        break;
    default: /* the shape of another tensor, with its axes permuted */
        memcpy(e->shape, other->shape, sizeof e->shape);
        e->axes = other->axes;
        for (int i = 0; i < e->axes / 2 && fuzz_draw(d, 2); i++) {
            const uint64_t axis = e->shape[i];
            e->shape[i] = e->shape[e->axes - 1 - i];
            e->shape[e->axes - 1 - i] = axis;
        }
    }
}

/* Mutates the file in bytes[0..size): the table of its header; the bytes of the header or of the data, with the
 * header's length corrected; or any bytes. */
static inline size_t st_mutate(uint8_t *bytes, size_t size, size_t most, fuzz_draws *d)
{
    static st_file f;
    const uint64_t kind = fuzz_draw(d, 8);
    const uint64_t length = size < 8 ? 0 : st_little(bytes);
    if (kind < 5 && st_read(&f, bytes, size)) {
        for (uint64_t n = 1 + fuzz_draw(d, 3); n > 0; n--)
            st_change(&f, d);
        st_place(&f);
        if (fuzz_draw(d, 8) == 0 && f.tensors > 0) {
            st_tensor *e = &f.tensor[fuzz_draw(d, (uint64_t)f.tensors)];
            uint64_t *offset = fuzz_draw(d, 2) ? &e->begin : &e->end;
            *offset = st_number(d, *offset);
        }
        const size_t n = st_write(&f, bytes, most);
        if (n > 0)
            return n;
    }
    if (kind < 6 && size >= 10 && length <= size - 8) { /* bytes of the header */
        static uint8_t text[1 << 16];
        const size_t behind = size - 8 - (size_t)length;
        const size_t capacity = most - 8 - behind < sizeof text ? most - 8 - behind : sizeof text;
        if (most >= 8 + behind && length <= capacity && capacity > 0) {
            memcpy(text, bytes + 8, (size_t)length);
            const size_t n = LLVMFuzzerMutate(text, (size_t)length, capacity);
            memmove(bytes + 8 + n, bytes + 8 + length, behind);
            memcpy(bytes + 8, text, n);
            st_put_little(bytes, n);
            return 8 + n + behind;
        }
    }
    /* mutates the data without changing their number of bytes */
    if (kind == 6 && size >= 10 && length < size - 8) {
        LLVMFuzzerMutate(bytes + 8 + length, size - 8 - (size_t)length, size - 8 - (size_t)length);
        return size;
    }
    return LLVMFuzzerMutate(bytes, size, most);
}
#endif
