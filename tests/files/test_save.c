/* test_save.c - tests that loading a file gives exactly the store that was saved.
 *
 * A refused load must leave the store unchanged, bit for bit, and leak no memory. An accepted load must have the file's
 * values. The test checks both after every load. */
#if defined(__unix__) || defined(__APPLE__)
#define _XOPEN_SOURCE 700
#define TEST_POSIX 1
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#define TEST_POSIX 0
#endif
#include "num/num.h"
#include "store/store.h"
#include "files/files.h"
#include "util.h"
#include <time.h>

/* ---- a heap that counts, and files in memory ---- */
static heap mem;

static file write_all(gckpt_store *s)
{
    file b = { 0 };
    CHECK_MSG(gckpt_store_write(s, file_write, &b, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
    return b;
}

static gckpt_result read_size(gckpt_store *s, const unsigned char *bytes, size_t have, size_t size)
{
    file b = { 0 };
    b.bytes = (unsigned char *)malloc(have ? have : 1);     /* no spare bytes: sanitizers detect overruns */
    memcpy(b.bytes, bytes, have);
    b.size = have;
    gckpt_result result = gckpt_store_read(s, file_read, &b, size, NULL);
    free(b.bytes);
    return result;
}

/* Reads a file of this header, whose length is computed and which is not padded, and `data` bytes of data: 0, 1, 2,
 * ... */
static gckpt_result read_text(gckpt_store *s, const char *header, size_t header_size, size_t data)
{
    size_t size = 8 + header_size + data;
    unsigned char *bytes = (unsigned char *)malloc(size);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)header_size >> (8 * i));
    memcpy(bytes + 8, header, header_size);
    for (size_t i = 0; i < data; i++)
        bytes[8 + header_size + i] = (unsigned char)i;
    gckpt_result result = read_size(s, bytes, size, size);
    free(bytes);
    return result;
}

/* ---- stores ---- */
static gckpt_store *store_new(void)
{
    gckpt_store_desc desc = { .memory = heap_memory(&mem), .seed = 3 };
    return gckpt_store_new(&desc);
}

static void done(file *f, gckpt_store *a, gckpt_store *b, gckpt_store *c)
{
    gckpt_store_free(a);
    gckpt_store_free(b);
    gckpt_store_free(c);
    free(f ? f->bytes : NULL);
}

static void add(gckpt_store *s, const char *name, gckpt_shape shape, int states, uint32_t fill)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init normal = { 1, 0, 0 };
    CHECK(gckpt_param(g, name, shape, normal) != NULL);
    gckpt_graph_free(g);
    gckpti_param *q = &s->params[gckpt_store_find(s, name)];
    gckpt_parameter made;
    CHECK(gckpti_ensure_state(s, q, states) && gckpt_store_get(s, gckpt_store_find(s, name), &made) == GCKPT_OK);
    for (int k = 0; k < states; k++)
        for (int64_t i = 0; i < q->p.elements; i++)
            q->p.state[k][i] = float_of(fill + (uint32_t)i * 977u + (uint32_t)k * 77777u);
}

/* Returns a store in which w and u have optimiser state, b and `extra` have none. Values include NaNs with payloads, -0
 * and subnormals. */
static gckpt_store *store_full(const char *extra)
{
    gckpt_store *s = store_new();
    add(s, "w", gckpt_shape2(3, 4), 2, 0x7fc12345u);
    add(s, "b", gckpt_shape1(4), 0, 0);
    add(s, extra, gckpt_shape4(1, 2, 1, 2), 1, 0xff800001u);
    gckpt_parameter p;
    CHECK(gckpt_store_get(s, 0, &p) == GCKPT_OK);
    p.values[0] = float_of(0x7f812345u);
    p.values[1] = float_of(0xffc00001u);
    p.values[2] = float_of(0x80000000u);
    p.values[3] = float_of(0x00000001u);
    s->step = UINT64_MAX;
    s->seed = UINT64_C(12345678901234567890);
    return s;
}

/* Returns a store with the parameters of `other`, but other values, step and seed, and no state. */
static gckpt_store *store_like(const gckpt_store *other)
{
    gckpt_store *s = store_new();
    s->step = 5;
    for (int i = gckpt_store_count(other); i-- > 0;) {      /* creates them in reverse order */
        gckpt_parameter p;
        gckpt_store_peek(other, i, &p);
        add(s, p.name, p.shape, 0, 0);
    }
    return s;
}

/* Returns a hash of everything in a store that a load could change. */
static uint64_t snapshot(const gckpt_store *s)
{
    uint64_t h = gckpti_fnv(UINT64_C(0xcbf29ce484222325), &s->step, 8);
    h = gckpti_fnv(h, &s->seed, 8);
    for (size_t i = 0; i < s->count; i++) {
        const gckpt_parameter *p = &s->params[i].p;
        h = gckpti_fnv(h, p->name, strlen(p->name) + 1);
        h = gckpti_fnv(h, &p->shape.n, sizeof p->shape.n);
        h = gckpti_fnv(h, p->shape.d, sizeof(int64_t) * (size_t)p->shape.n);
        h = gckpti_fnv(h, p->values, 4 * (size_t)p->elements);
        for (int k = 0; k < 4; k++)
            h = p->state[k] ? gckpti_fnv(h, p->state[k], 4 * (size_t)p->elements) : gckpti_fnv(h, "none", 4);
    }
    return h;
}

static void replace(char *text, const char *from, const char *to)       /* `from` and `to` have the same length */
{
    char *at = strstr(text, from);
    CHECK(at && strlen(from) == strlen(to));
    if (at)
        memcpy(at, to, strlen(to));
}

/* ---- tests ---- */
static void test_layout(void)
{
    static const char want[] =
        "{\"__metadata__\":{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"20\",\"seed\":\"3\","
        /* data_fnv1a: the sum, over all tensors, of FNV-1a(name, FNV-1a(data)) */
        "\"optimiser\":\"0\",\"data_fnv1a\":\"12810142865672414875\"},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"w#state0\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
        "\"q\\u0022\\u005c\\u000a\\u001f\303\251\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[16,20]}}";
    gckpt_store *s = store_new();
    gckpt_shape scalar = { 0 };
    add(s, "w", gckpt_shape1(2), 1, 0x04030201u);
    add(s, "q\"\\\n\037\303\251", scalar, 0, 0);
    s->params[0].p.values[0] = 1;
    s->params[0].p.values[1] = 2;
    s->params[1].p.values[0] = 3;
    s->step = 20;
    file b = write_all(s);
    size_t n = sizeof want - 1, padded = (n + 7) / 8 * 8;
    CHECK(b.size == 8 + padded + 20);
    CHECK(b.bytes[0] == (padded & 255) && b.bytes[1] == padded >> 8 && !b.bytes[2] && !b.bytes[7]);
    CHECK(!memcmp(b.bytes + 8, want, n));
    for (size_t i = n; i < padded; i++)
        CHECK(b.bytes[8 + i] == ' ');
    CHECK(!memcmp(b.bytes + 8 + padded, "\0\0\200\77", 4));                     /* 1.0f */
    CHECK(!memcmp(b.bytes + 8 + padded + 8, "\1\2\3\4", 4));
    gckpt_store *t = store_new();
    CHECK(read_size(t, b.bytes, b.size, b.size) == GCKPT_OK && snapshot(s) == snapshot(t));
    done(&b, t, s, NULL);
}

static void test_round_trip(void)
{
    gckpt_store *s = store_full("\360\237\230\200 \"\\\177/\001"), *like = store_like(s), *empty = store_new();
    uint64_t before = snapshot(s);
    file b = write_all(s), again;
    CHECK(snapshot(s) == before);
    /* A load into a store that is in use overwrites values in place, sets state that the file lacks to 0, and creates
     * state that only the file has. */
    CHECK(gckpti_ensure_state(like, &like->params[gckpt_store_find(like, "b")], 2));
    like->params[gckpt_store_find(like, "b")].p.state[1][2] = 9;
    gckpt_parameter p, q;
    CHECK(gckpt_store_get(like, gckpt_store_find(like, "w"), &p) == GCKPT_OK);
    CHECK_MSG(read_size(like, b.bytes, b.size, b.size) == GCKPT_OK, "%s", gckpt_error_text(like));
    CHECK(gckpt_store_step(like) == UINT64_MAX && like->seed == s->seed && gckpt_error(like) == GCKPT_OK);
    for (int i = 0; i < 3; i++) {
        gckpt_store_get(s, i, &p);
        gckpt_store_get(like, gckpt_store_find(like, p.name), &q);
        CHECK(!memcmp(p.values, q.values, 4 * (size_t)p.elements));
        for (int k = 0; k < 4; k++)
            CHECK(p.state[k] ? q.state[k] && !memcmp(p.state[k], q.state[k], 4 * (size_t)p.elements)
                             : !q.state[k] || (q.state[k][2] == 0 && q.state[k][3] == 0));
    }
    gckpt_store_get(like, gckpt_store_find(like, "w"), &q);
    CHECK(gckpt_store_read(like, NULL, NULL, 8, NULL) == GCKPT_E_ARG && gckpt_error(like) == GCKPT_E_ARG);
    float *values = q.values, *state = q.state[1];
    CHECK(read_size(like, b.bytes, b.size, b.size) == GCKPT_OK);
    gckpt_store_get(like, gckpt_store_find(like, "w"), &q);
    CHECK(values == q.values && state == q.state[1]);
    /* A load into an empty store gives the same order of parameters, the same hash and, saved again, the same file. */
    CHECK(read_size(empty, b.bytes, b.size, b.size) == GCKPT_OK);
    CHECK(snapshot(empty) == before && gckpt_store_hash(empty) == gckpt_store_hash(s));
    again = write_all(empty);
    CHECK(same_file(&again, &b));
    free(again.bytes);
    /* A store without parameters. */
    gckpt_store *none = store_new(), *none2 = store_new();
    none->step = 4;
    again = write_all(none);
    CHECK(read_size(none2, again.bytes, again.size, again.size) == GCKPT_OK && none2->step == 4);
    CHECK(read_size(s, again.bytes, again.size, again.size) == GCKPT_E_DATA && snapshot(s) == before);
    CHECK(strstr(gckpt_error_text(s), "\"w\"") && strstr(gckpt_error_text(s), "missing"));
    free(again.bytes);
    done(NULL, none, none2, s);
    done(&b, like, empty, NULL);
    CHECK(mem.live == 0);
}

static void test_truncation(void)
{
    gckpt_store *s = store_full("e"), *like = store_like(s), *empty = store_new();
    file b = write_all(s);
    uint64_t before = snapshot(like), nothing = snapshot(empty);
    CHECK(read_size(empty, b.bytes, 0, 0) == GCKPT_E_DATA);
    gckpt_store_free(empty);
    size_t live = mem.live;
    for (size_t cut = 0; cut < b.size; cut++) {
        CHECK(read_size(like, b.bytes, cut, cut) == GCKPT_E_DATA);              /* the file ends early */
        CHECK(read_size(like, b.bytes, cut, b.size) == GCKPT_E_FILE);           /* reading fails early */
        CHECK(snapshot(like) == before && mem.live == live && *gckpt_error_text(like));
        empty = store_new();
        CHECK(read_size(empty, b.bytes, cut, cut) == GCKPT_E_DATA);
        CHECK(read_size(empty, b.bytes, cut, b.size) == GCKPT_E_FILE);
        CHECK(snapshot(empty) == nothing && gckpt_store_count(empty) == 0);
        gckpt_store_free(empty);
        CHECK(mem.live == live);
    }
    CHECK(read_size(like, b.bytes, b.size, b.size + 1) == GCKPT_E_DATA);
    CHECK(read_size(like, b.bytes, b.size, SIZE_MAX) != GCKPT_OK);
    CHECK(read_size(like, b.bytes, b.size, b.size - 8) == GCKPT_E_DATA);
    CHECK(snapshot(like) == before);
    done(&b, like, s, NULL);
    CHECK(mem.live == 0);
}

/* If a damaged file is accepted, saving the store again must give the damaged file. The exception is damage in
 * __metadata__ that makes the file one of another program, whose step and seed are ignored, or a file without a
 * hash. */
static void check_accepted(gckpt_store *s, const file *f, uint64_t step, uint64_t seed)
{
    file b = write_all(s);
    if (!same_file(&b, f)) {
        const char *x = strstr((const char *)b.bytes + 8, ",\"w\":{"),
                   *y = strstr((const char *)f->bytes + 8, ",\"w\":{");
        const int hashed = strstr((const char *)f->bytes + 8, "\"data_fnv1a\"") != NULL;
        CHECK(((s->step == step && s->seed == seed) || !hashed) && b.size > 300 && f->size > 300);
        CHECK_MSG(x && y && strstr(x, "}}") && !strncmp(x, y, (size_t)(strstr(x, "}}") + 2 - x)) &&
                  !memcmp(b.bytes + b.size - 192, f->bytes + f->size - 192, 192),
                  "accepted, but not as it stands: %s", f->bytes + 8);
    }
    free(b.bytes);
}

static int loaded(gckpt_result result)
{
    return result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT;
}

static void test_flips(void)
{
    gckpt_store *s = store_full("e"), *like = store_like(s);
    s->step = 21;
    file b = write_all(s);
    b.bytes = (unsigned char *)realloc(b.bytes, b.size + 1);
    b.bytes[b.size] = 0;
    size_t header = 8 + b.bytes[0] + 256u * b.bytes[1];
    long accepted = 0, accepted_empty = 0;
    size_t live = mem.live;
    uint64_t before = snapshot(like);
    for (size_t i = 0; i < 8 * header; i++) {
        b.bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        if (loaded(read_size(like, b.bytes, b.size, b.size))) {
            /* names must match the store, so only a bit in __metadata__ can have changed */
            accepted++;
            CHECK(i / 8 < 166 && gckpt_store_hash(like) != 0);
            int ours = strstr((char *)b.bytes + 8, "\"format\":\"gradckpt\"") != NULL;
            CHECK(ours ? like->step != 5 : like->step == 5 && like->seed == 3);
            gckpt_store_free(like);
            like = store_like(s);
        } else {
            CHECK(*gckpt_error_text(like));
        }
        CHECK(snapshot(like) == before && mem.live == live);
        gckpt_store *empty = store_new();
        uint64_t nothing = snapshot(empty);
        gckpt_result result = read_size(empty, b.bytes, b.size, b.size);
        if (loaded(result)) {
            accepted_empty++;
            if (result == GCKPT_OK)
                check_accepted(empty, &b, 0, 3);
        } else {
            CHECK(snapshot(empty) == nothing);
        }
        gckpt_store_free(empty);
        CHECK(mem.live == live);
        b.bytes[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    /* The hash covers names, so an empty store does not accept more damaged files than `like`. */
    CHECK_MSG(accepted > 10 && accepted < 300 && accepted_empty == accepted,
              "accepted %ld flips of %ld, %ld into an empty store", accepted, (long)(8 * header), accepted_empty);
    done(&b, like, s, NULL);
    CHECK(mem.live == 0);
}

static void test_garbage(void)
{
    static const char letters[] = "{}[]\",:\\u0123456789 wbdtypeshF32#ate\n\0\200\377";
    gckpt_store *s = store_full("e"), *like = store_like(s);
    file b = write_all(s);
    size_t header = 8 + b.bytes[0] + 256u * b.bytes[1];
    uint64_t before = snapshot(like);
    size_t live = mem.live;
    for (int round = 0; round < 30000; round++) {
        unsigned char bytes[1200];
        size_t size = b.size < sizeof bytes ? b.size : sizeof bytes;
        memcpy(bytes, b.bytes, size);
        if (round % 3 == 0) {                           /* random bytes only */
            size = below(1 << 24) % 100;
            for (size_t i = 0; i < size; i++)
                bytes[i] = (unsigned char)(i < 8 ? 0 : below(1 << 24));
            bytes[0] = (unsigned char)(size > 8 ? below(1 << 24) % (size - 7) : 0);
        } else {
            for (uint32_t n = 1 + below(1 << 24) % 4; n > 0; n--) {
                size_t at = 8 + below(1 << 24) % (header - 8), from = 8 + below(1 << 24) % (header - 8);
                size_t length = 1 + below(1 << 24) % 20;
                length = at + length > header ? header - at : length;
                length = from + length > header ? header - from : length;
                if (round % 3 == 1)                     /* a byte is replaced by a character with a meaning in JSON */
                    bytes[at] = (unsigned char)letters[below(1 << 24) % (sizeof letters - 1)];
                else                                    /* a part of the header is copied over another part */
                    memmove(bytes + at, bytes + from, length);
            }
        }
        gckpt_store *empty = store_new();
        uint64_t nothing = snapshot(empty);
        if (!loaded(read_size(empty, bytes, size, size)))
            CHECK(snapshot(empty) == nothing);
        gckpt_store_free(empty);
        if (loaded(read_size(like, bytes, size, size))) {
            gckpt_store_free(like);
            like = store_like(s);
        }
        CHECK(snapshot(like) == before && mem.live == live);
    }
    done(&b, like, s, NULL);
    CHECK(mem.live == 0);
}

#define META "\"__metadata__\":"
#define OURS META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"7\",\"seed\":\"8\",\"optimiser\":\"0\"},"
#define T(shape, from, to) "{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"
#define W "\"w\":" T("2", 0, 8)
#define B "\"b\":" T("1", 8, 12)

static const struct { const char *header; int data; gckpt_result want; const char *text;
} evil[] = {
    /* valid headers: any order of tensors and keys, any spaces, escapes, unknown metadata */
    { "{" W "," B "}", 12, GCKPT_OK, "" },
    { "{" OURS W "," B "}", 12, GCKPT_OK, "" },
    { "{" B "," W "}  \n ", 12, GCKPT_OK, "" },
    { "{ \"w\" :\t{ \"shape\" : [ 2 ] , \"data_offsets\":[0 , 8],\r\n\"dtype\":\"F32\" } ," B "}", 12, GCKPT_OK, "" },
    { "{\"\\u0077\":" T("2", 4, 12) ",\"\\u0062\":" T("1", 0, 4) "}", 12, GCKPT_OK, "" },
    { "{" META "{}," W "," B "}", 12, GCKPT_OK, "" },
    { "{" W "," META "{\"format\":\"pt\",\"step\":\"x\",\"a\":\"\\b\\f\\n\\r\\t\\/\\\"\\\\\\ud83d\\ude00\"}," B "}", 12,
      GCKPT_OK, "" },
    { "{" W "," B ",\"b#state0\":" T("1", 12, 16) ",\"b#state1\":" T("1", 16, 20) "}", 20, GCKPT_OK, "" },
    { "{\"w#state0\":" T("2", 0, 8) ",\"b\":" T("1", 8, 12) ",\"w\":" T("2", 12, 20) "}", 20, GCKPT_OK, "" },
    /* invalid JSON, or JSON that the format excludes */
    { "", 0, GCKPT_E_DATA, "safetensors" },
    { "{", 0, GCKPT_E_DATA, "safetensors" },
    { "[]", 0, GCKPT_E_DATA, "'{'" },
    { " {" W "," B "}", 12, GCKPT_E_DATA, "'{'" },
    { "\357\273\277{" W "," B "}", 12, GCKPT_E_DATA, "'{'" },
    { "{" W "," B, 12, GCKPT_E_DATA, "','" },
    { "{" W "," B ",}", 12, GCKPT_E_DATA, "'\"'" },
    { "{," W "," B "}", 12, GCKPT_E_DATA, "'\"'" },
    { "{" W " " B "}", 12, GCKPT_E_DATA, "','" },
    { "{" W "," B "}x", 12, GCKPT_E_DATA, "only spaces" },
    { "{" W "," B "}}", 12, GCKPT_E_DATA, "only spaces" },
    { "{" W "," B "}{}", 12, GCKPT_E_DATA, "only spaces" },
    { "{\"w", 0, GCKPT_E_DATA, "byte 3: a string with a wrong" },
    { "{\"w\\\"", 0, GCKPT_E_DATA, "byte 5: a string with a wrong" },
    { "{\"w\\", 0, GCKPT_E_DATA, "byte 3: a string with a wrong" },
    { "{\"w\\u00", 0, GCKPT_E_DATA, "byte 7: a string with a wrong" },
    { "{\"w\\x\":1}", 0, GCKPT_E_DATA, "byte 5: a string with a wrong" },
    { "{\"w\\u00g0\":1}", 0, GCKPT_E_DATA, "byte 7: a string with a wrong" },
    { "{\"w\\u0000\":1}", 0, GCKPT_E_DATA, "byte 9: a string with a wrong" },
    { "{\"w\\ud800\":1}", 0, GCKPT_E_DATA, "byte 9: a string with a wrong" },
    { "{\"w\\ud800\\u0041\":1}", 0, GCKPT_E_DATA, "byte 15: a string with a wrong" },
    { "{\"w\\ud800\\ud800\":1}", 0, GCKPT_E_DATA, "byte 15: a string with a wrong" },
    { "{\"w\\udc00\":1}", 0, GCKPT_E_DATA, "byte 9: a string with a wrong" },
    { "{\"w\\ud83d", 0, GCKPT_E_DATA, "byte 9: a string with a wrong" },
    { "{\"w\\ud83d\\n\":1}", 0, GCKPT_E_DATA, "byte 9: a string with a wrong" },
    { "{\"w\n\":1}", 0, GCKPT_E_DATA, "byte 3: a string with a wrong" },
    { "{\"w\200\":1}", 0, GCKPT_E_DATA, "byte 3: a string with a wrong" },
    { "{\"\300\200\":1}", 0, GCKPT_E_DATA, "byte 2: a string with a wrong" },
    { "{\"\340\200\200\":1}", 0, GCKPT_E_DATA, "byte 2: a string with a wrong" },
    { "{\"\355\240\200\":1}", 0, GCKPT_E_DATA, "byte 2: a string with a wrong" },
    { "{\"\364\220\200\200\":1}", 0, GCKPT_E_DATA, "byte 2: a string with a wrong" },
    { "{\"\370\210\200\200\200\":1}", 0, GCKPT_E_DATA, "byte 2: a string with a wrong" },
    { "{\"\342\202", 0, GCKPT_E_DATA, "byte 2: a string with a wrong" },
    { "{\"\342\202\":1}", 0, GCKPT_E_DATA, "byte 2: a string with a wrong" },
    { "{\"w\"}", 0, GCKPT_E_DATA, "':'" },
    { "{\"w\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, GCKPT_E_DATA, "'{'" },
    { "{\"w\":null}", 0, GCKPT_E_DATA, "'{'" },
    { "{w:1}", 0, GCKPT_E_DATA, "'\"'" },
    /* fields of a tensor that are missing, doubled or invalid */
    { "{\"w\":{}}", 0, GCKPT_E_DATA, "dtype, shape" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}," B "}", 12, GCKPT_E_DATA, "data_offsets" },
    { "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}," B "}", 12, GCKPT_E_DATA, "shape" },
    { "{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}," B "}", 12, GCKPT_E_DATA, "dtype" },
    { "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}," B "}", 12, GCKPT_E_DATA,
      "once" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}," B "}", 12, GCKPT_E_DATA,
      "once" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}," B "}", 12, GCKPT_E_DATA, "once each" },
    { "{\"w\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}," B "}", 12, GCKPT_E_DATA, "F64" },
    { "{\"w\":{\"dtype\":\"\",\"shape\":[2],\"data_offsets\":[0,8]}," B "}", 12, GCKPT_E_DATA, "F32" },
    { "{\"w\":{\"dtype\":32,\"shape\":[2],\"data_offsets\":[0,8]}," B "}", 12, GCKPT_E_DATA, "'\"'" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}," B "}", 12, GCKPT_E_DATA, "'['" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}," B "}", 12, GCKPT_E_DATA,
      "byte 51: a tensor has dtype, shape and two" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[]}," B "}", 12, GCKPT_E_DATA,
      "byte 50: a tensor has dtype, shape and two" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}," B "}", 12, GCKPT_E_DATA,
      "byte 55: a tensor has dtype, shape and two" },
    { "{\"w\":" T("1,1,1,1,1,1,2", 0, 8) "," B "}", 12, GCKPT_E_DATA, "[7 axes; 0 to 6 are possible]" },
    { "{\"w\":" T("-2", 0, 8) "," B "}", 12, GCKPT_E_DATA, "byte 29: a list of whole numbers < 2^63" },
    { "{\"w\":" T("02", 0, 8) "," B "}", 12, GCKPT_E_DATA, "byte 29: a list of whole numbers < 2^63" },
    { "{\"w\":" T("2.0", 0, 8) "," B "}", 12, GCKPT_E_DATA, "byte 30: a list of whole numbers < 2^63" },
    { "{\"w\":" T("2e0", 0, 8) "," B "}", 12, GCKPT_E_DATA, "byte 30: a list of whole numbers < 2^63" },
    { "{\"w\":" T("2,", 0, 8) "," B "}", 12, GCKPT_E_DATA, "byte 31: a list of whole numbers < 2^63" },
    { "{\"w\":" T(",2", 0, 8) "," B "}", 12, GCKPT_E_DATA, "byte 29: a list of whole numbers < 2^63" },
    { "{\"w\":" T("\"2\"", 0, 8) "," B "}", 12, GCKPT_E_DATA, "byte 29: a list of whole numbers < 2^63" },
    { "{\"w\":" T("18446744073709551618", 0, 8) "," B "}", 12, GCKPT_E_DATA,
      "byte 29: a list of whole numbers < 2^63" },
    { "{\"w\":" T("9223372036854775808", 0, 8) "," B "}", 12, GCKPT_E_DATA, "byte 29: a list of whole numbers < 2^63" },
    { "{\"w\":" T("9223372036854775807", 0, 8) "," B "}", 12, GCKPT_E_DATA, "elements for this machine" },
    { "{\"w\":" T("4611686018427387905,4,2", 0, 8) "," B "}", 12, GCKPT_E_DATA, "elements for this machine" },
    { "{\"w\":" T("4294967296,4294967296", 0, 8) "," B "}", 12, GCKPT_E_DATA, "elements for this machine" },
    { "{\"w\":" T("2,0", 0, 8) "," B "}", 12, GCKPT_E_DATA, "must hold the 0 bytes" },
    { "{\"w\":" T("0", 0, 0) ",\"b\":" T("1", 0, 4) "}", 4, GCKPT_E_DATA, "is missing in the file" },
    /* data_offsets that are invalid */
    { "{\"w\":" T("2", 8, 0) "," B "}", 12, GCKPT_E_DATA, "data_offsets" },
    { "{\"w\":" T("2", 0, 12) "," B "}", 12, GCKPT_E_DATA, "data_offsets" },
    { "{\"w\":" T("3", 0, 8) "," B "}", 12, GCKPT_E_DATA, "data_offsets" },
    { "{\"w\":" T("2", 8, 16) "," B "}", 12, GCKPT_E_DATA, "data_offsets" },
    { "{\"w\":" T("2", 9223372036854775800, 9223372036854775807) "," B "}", 12, GCKPT_E_DATA, "data_offsets" },
    { "{\"w\":" T("2", 4, 12) "," B "}", 12, GCKPT_E_DATA, "not at 0: a hole" },
    { "{" W ",\"b\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "not at 8: a hole" },
    { "{" W ",\"b\":" T("1", 4, 8) "}", 12, GCKPT_E_DATA, "overlap" },
    { "{" W ",\"b\":" T("1", 0, 4) "}", 8, GCKPT_E_DATA, "overlap" },
    { "{" W "," B "}", 13, GCKPT_E_DATA, "need 12 bytes of data, the file has 13" },
    { "{" W "," B "}", 16, GCKPT_E_DATA, "need 12" },
    { "{" W "," B "}", 11, GCKPT_E_DATA, "data_offsets" },
    { "{}", 12, GCKPT_E_DATA, "need 0" },
    /* names that are doubled, missing or unknown */
    { "{" W "," W "}", 8, GCKPT_E_DATA, "overlap" },
    { "{" W ",\"w\":" T("1", 8, 12) "}", 12, GCKPT_E_DATA, "twice" },
    { "{" W "," B ",\"\\u0077\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "twice" },
    { "{" W "}", 8, GCKPT_E_DATA, "\"b\": is missing" },
    { "{}", 0, GCKPT_E_DATA, "\"w\": is missing" },
    { "{" W "," B ",\"c\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "\"c\": is none of the store's" },
    { "{" W "," B ",\"\\u00e9\\u20ac\\ud83d\\ude00\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA,
      "\"\303\251\342\202\254\360\237\230\200\": is none of the store's" },
    { "{" W "," B ",\"\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "reserved" },
    { "{\"w\":" T("1", 0, 4) ",\"b\":" T("2", 4, 12) "}", 12, GCKPT_E_SHAPE,
      "\"w\": the file has it as [1], the store as [2]" },
    { "{\"w\":" T("1,2", 0, 8) "," B "}", 12, GCKPT_E_SHAPE, "[1,2]" },
    { "{" W "," B ",\"b#state1\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "gap" },
    { "{" W "," B ",\"b#state0\":" T("1", 12, 16) ",\"b#state2\":" T("1", 16, 20) "}", 20, GCKPT_E_DATA, "gap" },
    { "{" W "," B ",\"b#state0\":" T("1", 12, 16) ",\"b#state0\":" T("1", 16, 20) "}", 20, GCKPT_E_DATA, "twice" },
    { "{" W "," B ",\"b#state9\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "gap" },
    { "{" W "," B ",\"b#state0\":" T("1", 12, 16) ",\"b#state1\":" T("1", 16, 20) ",\"b#state2\":" T(
          "1", 20, 24) ",\"b#state3\":" T("1", 24, 28) ",\"b#state4\":" T("1", 28, 32) "}",
      32, GCKPT_E_DATA, "without a gap" },
    { "{" W "," B ",\"c#state0\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "without its parameter" },
    { "{" W "," B ",\"#state0\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "reserved" },
    { "{" W "," B ",\"b#state0#state0\":" T("1", 12, 16) "}", 16, GCKPT_E_DATA, "ends like" },
    { "{" W "," B ",\"b#state0\":" T("2", 12, 20) "}", 20, GCKPT_E_SHAPE, "its parameter is [1]" },
    /* __metadata__ that is invalid */
    { "{" META "1," W "," B "}", 12, GCKPT_E_DATA, "'{'" },
    { "{" META "{\"a\":1}," W "," B "}", 12, GCKPT_E_DATA, "'\"'" },
    { "{" META "{\"a\":{\"b\":\"c\"}}," W "," B "}", 12, GCKPT_E_DATA, "'\"'" },
    { "{" META "{}," META "{}," W "," B "}", 12, GCKPT_E_DATA, "twice" },
    { "{" META "{\"step\":\"1\",\"step\":\"2\"}," W "," B "}", 12, GCKPT_E_DATA, "twice" },
    { "{" META "{\"format\":\"gradckpt\"}," W "," B "}", 12, GCKPT_E_DATA, "contract" },
    { "{" META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"seed\":\"1\"}," W "," B "}", 12, GCKPT_E_DATA, "step" },
    { "{" META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"1\"}," W "," B "}", 12, GCKPT_E_DATA, "seed" },
    { "{" META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"NaN\",\"seed\":\"1\"}," W "," B "}", 12,
      GCKPT_E_DATA, "step must be a whole number" },
    { "{" META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"-1\",\"seed\":\"1\"}," W "," B "}", 12,
      GCKPT_E_DATA, "step" },
    { "{" META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"\",\"seed\":\"1\"}," W "," B "}", 12,
      GCKPT_E_DATA, "step" },
    { "{" META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"01\",\"seed\":\"1\"}," W "," B "}", 12,
      GCKPT_E_DATA, "step" },
    { "{" META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"1 \",\"seed\":\"1\"}," W "," B "}", 12,
      GCKPT_E_DATA, "step" },
    { "{" META "{\"format\":\"gradckpt\",\"contract\":\"5\",\"step\":\"1\",\"seed\":\"18446744073709551616\"}," W "," B
      "}",
      12, GCKPT_E_DATA, "seed" },
};

static void test_evil(void)
{
    gckpt_store *s = store_new();
    add(s, "w", gckpt_shape1(2), 0, 0);
    add(s, "b", gckpt_shape1(1), 2, 0x11111111u);
    s->step = 5;
    uint64_t before = snapshot(s);
    size_t live = mem.live;
    for (size_t i = 0; i < sizeof evil / sizeof *evil; i++) {
        gckpt_result result = read_text(s, evil[i].header, strlen(evil[i].header), (size_t)evil[i].data);
        CHECK_MSG(result == evil[i].want && gckpt_error(s) == result, "%s: %s", evil[i].header, gckpt_error_text(s));
        CHECK_MSG(result == GCKPT_OK || strstr(gckpt_error_text(s), evil[i].text), "%s\n  %s\n  wanted: %s",
                  evil[i].header, gckpt_error_text(s), evil[i].text);
        if (result == GCKPT_OK) {
            int ours = strstr(evil[i].header, "gradckpt") != NULL;
            int with_state = strstr(evil[i].header, "b#state1") != NULL;
            unsigned char w[8], first = strstr(evil[i].header, T("2", 12, 20)) ? 12
                                        : strstr(evil[i].header, "[4,12]")     ? 4
                                                                               : 0;
            for (int k = 0; k < 8; k++) { /* the data are the bytes 0, 1, 2, .., read as little-endian floats */
                uint32_t word;
                memcpy(&word, &s->params[0].p.values[k / 4], 4);
                w[k] = (unsigned char)(word >> 8 * (k % 4));
            }
            CHECK_MSG(w[0] == first && w[7] == first + 7, "%s", evil[i].header);
            CHECK(s->step == (ours ? 7 : 5) && s->seed == (ours ? 8u : 3u));
            CHECK(with_state ? s->params[1].p.state[1][0] != 0 : s->params[1].p.state[1][0] == 0);
            gckpt_store_free(s);
            s = store_new();
            add(s, "w", gckpt_shape1(2), 0, 0);
            add(s, "b", gckpt_shape1(1), 2, 0x11111111u);
            s->step = 5;
        }
        CHECK_MSG(snapshot(s) == before && mem.live == live, "%s", evil[i].header);
    }
    /* Headers with NUL bytes or with wrong lengths must be refused. */
    static const char nul_inside[] = "{" W "," B "}\0 ", nul_escaped[] = "{\"w\\\0\":1}";
    CHECK(read_text(s, nul_inside, sizeof nul_inside - 1, 12) == GCKPT_E_DATA);
    CHECK(read_text(s, nul_escaped, sizeof nul_escaped - 1, 0) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "byte 5: a string with a wrong"));
    /* A long name in an error text is cut off after a whole UTF-8 character. */
    char text[300];
    snprintf(text, sizeof text, "{" W "," B ",\"%059d\303\251tail\":" T("1", 12, 16) "}", 0);
    CHECK(read_text(s, text, strlen(text), 16) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "00\303\251...\": is none of"));
    unsigned char bytes[16] = { 0 };
    static const unsigned char lengths[][8] = { { 0 },
                                                { 1 },
                                                { 9 },
                                                { 0, 0, 0, 0, 0, 0, 0, 0x80 },
                                                { 1, 0xe1, 0xf5, 5 },
                                                { 255, 255, 255, 255, 255, 255, 255, 255 },
                                                { 8, 0, 0, 0, 1 },
                                                { 248, 255, 255, 255, 255, 255, 255, 255 } };
    for (size_t i = 0; i < sizeof lengths / 8; i++) {
        memcpy(bytes, lengths[i], 8);
        CHECK(read_size(s, bytes, 16, i == 4 ? (size_t)1 << 30 : 16) == GCKPT_E_DATA);
        CHECK(strstr(gckpt_error_text(s), "header of"));
    }
    CHECK(snapshot(s) == before && mem.live == live);
    /* \u escapes of characters with two, three and four bytes in UTF-8, with hex digits in either case */
    static const char numbers[] = "{" META "{\"a\":\"\\u00e9\\u20AC\\uD83d\\uDe00\"}," W "," B "}";
    CHECK(read_text(s, numbers, sizeof numbers - 1, 12) == GCKPT_OK &&
          !strcmp(gckpt_store_note(s, "a"), "\303\251\342\202\254\360\237\230\200"));
    gckpt_store_free(s);
    CHECK(mem.live == 0);
}

/* The n-th allocation fails, for every n. The load must return GCKPT_E_MEMORY, leave the store unchanged and leak
 * nothing. */
static void test_memory(void)
{
    gckpt_store *s = store_full("e");
    file b = write_all(s);
    for (int kind = 0; kind < 3; kind++) {
        int done = 0;
        for (long n = 1; !done && n < 100; n++) {
            gckpt_store *t = kind == 0 ? store_new() : kind == 1 ? store_like(s) : store_full("e");
            uint64_t before = snapshot(t);
            size_t count = t->count;
            mem.fail_at = mem.calls + n;
            size_t live = mem.live;
            if (read_size(t, b.bytes, b.size, b.size) == GCKPT_OK) {
                done = 1;
                CHECK(n > 3);
            } else {
                CHECK_MSG(gckpt_error(t) == GCKPT_E_MEMORY, "%s", gckpt_error_text(t));
                CHECK(snapshot(t) == before && t->count == count);
                CHECK(mem.live == live || (kind == 0 && t->capacity > 0));    /* an empty store may keep its table */
            }
            mem.fail_at = 0;
            CHECK(done || read_size(t, b.bytes, b.size, b.size) == GCKPT_OK);   /* the store must still be usable */
            CHECK(kind || snapshot(t) == snapshot(s));
            gckpt_store_free(t);
        }
        CHECK(done);
    }
    gckpt_store_free(s);
    CHECK(mem.live == 0);
    /* With a fixed block of memory, a load that creates no parameter must return all memory that it takes. */
    static double memory[1280];
    gckpt_store_desc desc = { .memory.memory = memory, .memory.size = sizeof memory };
    s = gckpt_store_new(&desc);
    gckpt_init zero = { 0, 0, 0 };
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    CHECK(g && gckpt_param(g, "w", gckpt_shape2(3, 4), zero) && gckpt_param(g, "b", gckpt_shape1(4), zero) &&
          gckpt_param(g, "e", gckpt_shape4(1, 2, 1, 2), zero));
    gckpt_graph_free(g);
    CHECK_MSG(read_size(s, b.bytes, b.size, b.size) == GCKPT_OK, "%s", gckpt_error_text(s));
    size_t used = s->memory.used;
    for (int i = 0; i < 100; i++)
        CHECK_MSG(read_size(s, b.bytes, b.size, b.size) == GCKPT_OK &&
                  read_size(s, b.bytes, b.size - 1, b.size) == GCKPT_E_FILE, "%s", gckpt_error_text(s));
    CHECK(s->memory.used == used);
    file again = write_all(s);
    CHECK(same_file(&b, &again));
    free(again.bytes);
    free(b.bytes);
    gckpt_store_free(s);
}

static void test_write_fails(void)
{
    gckpt_store *s = store_full("e");
    add(s, "large", gckpt_shape1(3000), 0, 0);
    uint64_t before = snapshot(s);
    file b = write_all(s);
    CHECK(b.calls > 10);
    for (size_t n = 1; n <= b.calls; n++) {
        file broken = { 0 };
        broken.fail_call = n;
        long before_calls = mem.calls;
        CHECK(gckpt_store_write(s, file_write, &broken, NULL) == GCKPT_E_FILE && gckpt_error(s) == GCKPT_E_FILE);
        CHECK(broken.calls == n && mem.calls == before_calls && snapshot(s) == before);
        CHECK(broken.size < b.size && !memcmp(broken.bytes, b.bytes, broken.size));
        free(broken.bytes);
    }
    CHECK(gckpt_store_write(s, NULL, NULL, NULL) == GCKPT_E_ARG && gckpt_store_write(NULL, file_write, &b, NULL) == GCKPT_E_ARG);
    CHECK(gckpt_store_read(NULL, file_read, &b, 8, NULL) == GCKPT_E_ARG);
    done(&b, s, NULL, NULL);
}

static void test_names(void)
{
    static const char *const wrong[] = { "w#state0", "#state9", "__metadata__",
                                         "\200",     "a\303",   "\355\260\200" };
    static const char *const right[] = {
        "w#state", "w#state10", "w#State0", "#state0.", "__metadata", "a b\t\"\303\251"
    };
    file b = { 0 };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gckpt_store *s = store_new();
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_init zero = { 0, 0, 0 };
        float one = 1;
        CHECK(!gckpt_param(g, wrong[i], gckpt_shape1(1), zero) && gckpt_error(g) == GCKPT_E_ARG);
        CHECK_MSG(strstr(gckpt_error_text(g), wrong[i]), "%s", gckpt_error_text(g));
        CHECK(gckpt_store_external(s, wrong[i], gckpt_shape1(1), &one, 0) == GCKPT_E_ARG);
        CHECK(gckpt_store_count(s) == 0);
        util_free(NULL, NULL, g, s);
    }
    char *big = (char *)malloc(100001);
    memset(big, '\n', 100000);
    big[100000] = 0;
    gckpt_store *s = store_new(), *t = store_new(), *u = store_new();
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        add(s, right[i], gckpt_shape1(1), 1, 0x40000000u);
    add(s, big, gckpt_shape1(2), 2, 0x40400000u);
    big[99999] = 'x';
    add(s, big, gckpt_shape1(2), 2, 0x40500000u);
    b = write_all(s);
    CHECK(read_size(t, b.bytes, b.size, b.size) == GCKPT_OK && snapshot(s) != 0);
    t->seed = s->seed;
    CHECK(snapshot(s) == snapshot(t));
    big[99998] = 'y';
    add(u, big, gckpt_shape1(2), 0, 0);
    CHECK(read_size(u, b.bytes, b.size, b.size) == GCKPT_E_DATA);
    add(t, big, gckpt_shape1(2), 0, 0);
    CHECK(read_size(t, b.bytes, b.size, b.size) == GCKPT_E_DATA && strstr(gckpt_error_text(t), "...\": is missing"));
    CHECK(!strchr(gckpt_error_text(t), '\n'));
    done(NULL, s, t, u);
    free(big);
    free(b.bytes);
    /* With 20,000 tensors, sorting and finding doubled names must not take quadratic time. */
    size_t n = 20000;
    char *text = (char *)malloc(n * 96), *at = text;
    *at++ = '{';
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%s\"t%lu\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%lu,%lu]}", i ? "," : "",
                      (unsigned long)(i * 7919 % n), (unsigned long)(4 * i), (unsigned long)(4 * i + 4));
    *at++ = '}';
    s = store_new();
    CHECK(read_text(s, text, (size_t)(at - text), 4 * n) == GCKPT_OK && gckpt_store_count(s) == (int)n);
    gckpt_store_free(s);
    s = store_new();
    *at = 0;
    replace(text, "\"t10\":", "\"t11\":");
    CHECK(read_text(s, text, (size_t)(at - text), 4 * n) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "\"t11\": comes twice"));
    gckpt_store_free(s);
    free(text);
    CHECK(mem.live == 0);
}

static void test_external(void)
{
    static float flash[4] = { 1, 2, 3, 4 }, ram[2] = { 5, 6 }, other[2] = { 7, 8 };
    gckpt_store *s = store_new(), *t = store_new();
    CHECK(gckpt_store_external(s, "flash", gckpt_shape1(4), flash, 0) == GCKPT_OK);
    CHECK(gckpt_store_external(s, "ram", gckpt_shape1(2), ram, 1) == GCKPT_OK);
    CHECK(gckpt_store_external(t, "flash", gckpt_shape1(4), flash, 0) == GCKPT_OK);
    CHECK(gckpt_store_external(t, "ram", gckpt_shape1(2), other, 1) == GCKPT_OK);
    file b = write_all(s);
    CHECK(read_size(t, b.bytes, b.size, b.size) == GCKPT_OK);
    CHECK(other[0] == 5 && other[1] == 6 && t->params[1].p.values == other);
    other[0] = 9;
    b.bytes[b.size - 4 * 6 + 3] ^= 0x80;                    /* the file has -1 where the program's memory has 1 */
    uint64_t before = snapshot(t);
    CHECK(read_size(t, b.bytes, b.size, b.size) == GCKPT_E_DATA && snapshot(t) == before && other[0] == 9);
    CHECK(strstr(gckpt_error_text(t), "\"flash\": is external"));
    CHECK(flash[0] == 1);
    done(&b, s, t, NULL);
    CHECK(mem.live == 0);
}

/* A file that Python's safetensors 0.8.0 wrote with save({"layer.weight": .., "layer.bias": .., "größe": 7},
 * metadata=..). */
static const char python_file[] =
    "\000\001\000\000\000\000\000\000"
    "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"tab\\there \\\"q\\\" \303\251\"},"
    "\"gr\303\266\303\237e\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},\"l"
    "ayer.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]}"
    ",\"layer.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":"
    "[16,40]}}       "
    "\000\000\340@\000\000\300?\000\000\000\200\000\000\200\177\000\000 \300\000\000\300\277\000\000\000\277\000\000\000?"
    "\000\000\300?\000\000 @";

static void test_python(void)
{
    gckpt_store *s = store_new();
    s->step = 11;
    CHECK_MSG(read_size(s, (const unsigned char *)python_file, sizeof python_file - 1, sizeof python_file - 1) ==
                  GCKPT_OK,
              "%s", gckpt_error_text(s));
    CHECK(gckpt_store_count(s) == 3 && gckpt_store_step(s) == 11 && s->seed == 3);
    CHECK(gckpt_store_find(s, "gr\303\266\303\237e") == 0 && gckpt_store_find(s, "layer.weight") == 2);
    gckpt_parameter p;
    gckpt_store_get(s, 0, &p);
    CHECK(p.shape.n == 0 && p.elements == 1 && p.values[0] == 7);
    gckpt_store_get(s, 1, &p);
    CHECK(p.values[0] == 1.5f && p.values[1] == 0 && p.values[2] > 3e38f);
    gckpt_store_get(s, 2, &p);
    CHECK(p.shape.n == 2 && p.shape.d[0] == 2 && p.shape.d[1] == 3 && p.values[0] == -2.5f && p.values[5] == 2.5f);
    gckpt_store_free(s);
}

#ifndef GCKPT_NO_STDIO
static int file_exists(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f)
        fclose(f);
    return f != NULL;
}

static void test_path(void)
{
    char path[64], temporary[80];
    sprintf(path, "test_save_%lx.safetensors", (unsigned long)time(NULL) * 1000003u + (unsigned long)(uintptr_t)path);
    sprintf(temporary, "%s.gckpt-tmp", path);
    gckpt_store *s = store_full("e"), *t = store_new();
    CHECK_MSG(gckpt_store_save(s, path, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
    CHECK(!file_exists(temporary));
    CHECK_MSG(gckpt_store_load(t, path, NULL) == GCKPT_OK, "%s", gckpt_error_text(t));
    CHECK(snapshot(s) == snapshot(t));
    t->step = 99;
    CHECK(gckpt_store_save(t, path, NULL) == GCKPT_OK && gckpt_store_load(s, path, NULL) == GCKPT_OK && gckpt_store_step(s) == 99);
#if !TEST_POSIX
    /* Without file locks, a save overwrites an existing temporary file. */
    FILE *other = fopen(temporary, "wb");
    CHECK(other && fputc('x', other) == 'x' && !fclose(other) && gckpt_store_save(t, path, NULL) == GCKPT_OK);
    CHECK(!file_exists(temporary) && gckpt_store_load(s, path, NULL) == GCKPT_OK);
#endif
    const gckpt_file_desc values = { .values_only = 1 };
    CHECK(gckpt_store_save(t, path, &values) == GCKPT_OK && gckpt_store_load(s, path, NULL) == GCKPT_OK &&
          gckpt_store_save(t, path, NULL) == GCKPT_OK && gckpt_store_load(s, path, NULL) == GCKPT_OK);
    /* A store with a permanent error, as after a failed self-test: every call reports that error and does nothing
     * else. */
    gckpti_error(t, GCKPT_E_BACKEND, "self-test");
    t->object.sticky = GCKPT_E_BACKEND;
    CHECK(gckpt_store_load(t, path, NULL) == GCKPT_E_BACKEND && !strcmp(gckpt_error_text(t), "self-test"));
    t->object.sticky = GCKPT_OK;
    /* The following calls must fail: loading a missing file, saving into a missing folder, and calls with an empty
     * path, a NULL path or no memory. */
    uint64_t before = snapshot(s);
    CHECK(gckpt_store_load(s, temporary, NULL) == GCKPT_E_FILE && strstr(gckpt_error_text(s), temporary));
    CHECK(gckpt_store_save(s, "no such folder/x", NULL) == GCKPT_E_FILE && strstr(gckpt_error_text(s), "no such folder/x"));
    CHECK(gckpt_store_save(s, "", NULL) != GCKPT_OK && gckpt_store_load(s, "", NULL) == GCKPT_E_FILE);
    CHECK(gckpt_store_save(s, NULL, NULL) == GCKPT_E_ARG && gckpt_store_save(NULL, path, NULL) == GCKPT_E_ARG);
    CHECK(gckpt_store_load(s, NULL, NULL) == GCKPT_E_ARG && gckpt_store_load(NULL, path, NULL) == GCKPT_E_ARG);
    mem.fail_at = mem.calls + 1;
    CHECK(gckpt_store_save(s, path, NULL) == GCKPT_E_MEMORY);
    mem.fail_at = 0;
    CHECK(!file_exists(temporary) && gckpt_store_load(s, path, NULL) == GCKPT_OK && snapshot(s) == before);
    /* If a file is damaged, the error text has the reason and the path. */
    FILE *f = fopen(path, "ab");
    CHECK(f && fputc(0, f) == 0 && !fclose(f));
    CHECK(gckpt_store_load(s, path, NULL) == GCKPT_E_DATA && strstr(gckpt_error_text(s), path) &&
          strstr(gckpt_error_text(s), "bytes of data"));
    CHECK(snapshot(s) == before);
    CHECK(gckpt_store_save(s, path, NULL) == GCKPT_OK && gckpt_store_load(s, path, NULL) == GCKPT_OK);
#if TEST_POSIX
    /* The disk is full after n bytes: the old file must stay complete, and the temporary file must be removed. */
    struct rlimit old, small;
    CHECK(!getrlimit(RLIMIT_FSIZE, &old));
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    add(s, "large", gckpt_shape1(30000), 0, 0);
    uint64_t now = snapshot(s);
    for (size_t n = 0; n < 120000; n += 7993) {
        small = old;
        small.rlim_cur = (rlim_t)n;
        CHECK(!setrlimit(RLIMIT_FSIZE, &small));
        gckpt_result result = gckpt_store_save(s, path, NULL);
        CHECK(!setrlimit(RLIMIT_FSIZE, &old));
        CHECK(result == GCKPT_E_FILE && gckpt_error(s) == result && snapshot(s) == now);
        CHECK_MSG(strstr(gckpt_error_text(s), path) && strstr(gckpt_error_text(s), "disk full"), "%s",
                  gckpt_error_text(s));
        CHECK(!file_exists(temporary));
        gckpt_store *u = store_new();
        CHECK(gckpt_store_load(u, path, NULL) == GCKPT_OK && snapshot(u) == before);
        gckpt_store_free(u);
    }
    signal(SIGXFSZ, handler);
    /* Saving to a path that is a folder must fail. So must saving into a read-only folder, except for root, which may
     * write there. */
    remove(path);
    CHECK(!mkdir(path, 0700));
    CHECK(gckpt_store_save(s, path, NULL) == GCKPT_E_FILE && !file_exists(temporary));
    CHECK_MSG(strstr(gckpt_error_text(s), "a folder"), "%s", gckpt_error_text(s));
    CHECK_MSG(gckpt_store_load(s, path, NULL) == GCKPT_E_FILE && strstr(gckpt_error_text(s), path), "%s",
              gckpt_error_text(s));
    char inside[80];
    sprintf(inside, "%s/x", path);
    CHECK(gckpt_store_save(s, inside, NULL) == GCKPT_OK && gckpt_store_load(t, inside, NULL) != GCKPT_OK);
    remove(inside);
    CHECK(!chmod(path, 0500));
    if (geteuid() != 0)
        CHECK(gckpt_store_save(s, inside, NULL) == GCKPT_E_FILE && !file_exists(inside));
    CHECK(!chmod(path, 0700) && !rmdir(path));
    CHECK(snapshot(s) == now);
#endif
    remove(path);
    done(NULL, s, t, NULL);
    CHECK(mem.live == 0);
}
#endif

int main(void)
{
    test_layout();
    test_round_trip();
    test_truncation();
    test_flips();
    test_garbage();
    test_evil();
    test_memory();
    test_write_fails();
    test_names();
    test_external();
    test_python();
#ifndef GCKPT_NO_STDIO
    test_path();
#endif
    return check_report("test_save");
}
