/* test_files.c - tests loading and saving files with other programs' names and types, and files with a part of a store.
 *
 * As in test_save.c, a refused load must leave the store unchanged, bit for bit, and leak no memory. */
#include "num/num.h"
#include "store/store.h"
#include "files/files.h"
#include "util.h"

#include <time.h>

static heap mem;

/* ---- building a file tensor by tensor ---- */
typedef struct {
    char header[4000];
    size_t length;
    file data;
} file_builder;

static void add_header_text(file_builder *m, const char *text)
{
    strcpy(m->header + m->length, text);
    m->length += strlen(text);
}

/* Adds a tensor of n elements to the file. For types F32, F16 and BF16, its values are x, which the type must represent
 * exactly; for any other type, its data are n zero bytes. */
static void add_tensor(file_builder *m, const char *name, const char *type, const char *shape, const float *x,
                 size_t n)
{
    char text[300];
    size_t begin = m->data.size;
    for (size_t i = 0; i < n; i++) {
        unsigned char b[4] = { 0, 0, 0, 0 };
        uint32_t u = x ? bits_of(x[i]) : 0;
        uint32_t h = (u >> 16 & 0x8000u) | (((u >> 23 & 255) - 112) << 10) | (u >> 13 & 0x3ffu);
        h = u << 1 ? h : u >> 16;
        u = !strcmp(type, "BF16") ? u >> 16 : !strcmp(type, "F16") ? h : u;
        for (int k = 0; k < 4; k++)
            b[k] = (unsigned char)(u >> 8 * k);
        file_write(&m->data, b, !strcmp(type, "F32") ? 4 : strstr(type, "F16") ? 2 : 1);
    }
    snprintf(text, sizeof text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%u,%u]}",
             m->length == 0                    ? "{"
             : m->header[m->length - 1] == '{' ? ""
                                               : ",",
             name, type, shape, (unsigned)begin, (unsigned)m->data.size);
    add_header_text(m, text);
}

/* Returns the finished file. `pad` spaces in its header shift the address at which the data begin. */
static file build_file(file_builder *m, int pad)
{
    file f = { 0 };
    add_header_text(m, "}");
    while (pad-- > 0)
        add_header_text(m, " ");
    for (int i = 0; i < 8; i++) {
        unsigned char c = (unsigned char)((uint64_t)m->length >> (8 * i));
        file_write(&f, &c, 1);
    }
    file_write(&f, m->header, m->length);
    if (m->data.size)
        file_write(&f, m->data.bytes, m->data.size);
    free(m->data.bytes);
    memset(m, 0, sizeof *m);
    return f;
}

static gckpt_result read_as(gckpt_store *s, const file *f, const gckpt_file_desc *d)
{
    file copy = *f;
    copy.at = copy.calls = 0;
    return gckpt_store_read(s, file_read, &copy, f->size, d);
}

/* ---- stores ---- */
static gckpt_store *store_new(void)
{
    gckpt_store_desc desc = { .memory = heap_memory(&mem), .seed = 3 };
    return gckpt_store_new(&desc);
}

static void add(gckpt_store *s, const char *name, gckpt_shape shape)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init normal = { 1, 0, 0 };
    CHECK(gckpt_param(g, name, shape, normal) != NULL);
    gckpt_graph_free(g);
}

static const float *values(gckpt_store *s, const char *name)
{
    static const float none[64] = { 0 };
    gckpt_parameter p;
    return gckpt_store_get(s, gckpt_store_find(s, name), &p) == GCKPT_OK ? p.values : none;
}

/* A rename callback for models of Hugging Face: it removes the prefix "transformer." and skips the attention masks. */
static const char *of_hub(void *user, const char *name)
{
    ++*(int *)user;
    name += strncmp(name, "transformer.", 12) ? 0 : 12;
    size_t n = strlen(name);
    return n > 10 && !strcmp(name + n - 10, ".attn.bias") ? NULL : name;
}

static const float four[4] = { 1.5f, -2, 0.0078125f, 65504 }, two[2] = { -0.0f, 3 };

static file hub_file(int pad)
{
    file_builder m = { 0 };
    add_header_text(&m, "{\"__metadata__\":{\"format\":\"pt\"}");
    add_tensor(&m, "transformer.h.0.attn.bias", "BOOL", "1,1,3,3", NULL, 9);
    add_tensor(&m, "transformer.w", "F16", "2,2", four, 4);
    add_tensor(&m, "v", "BF16", "2", two, 2);
    add_tensor(&m, "transformer.h.1.attn.bias", "U8", "0", NULL, 0);
    add_tensor(&m, "u", "F32", "4", four, 4);
    add_tensor(&m, "transformer.h.2.attn.bias", "I64", "5", NULL, 5);
    return build_file(&m, pad);
}

static void test_hub(void)
{
    int calls = 0;
    gckpt_file_desc d = { .rename = of_hub, .user = &calls };
    for (int pad = 0; pad < 4; pad++)
        for (int kind = 0; kind < 3; kind++) { /* kind 0 is empty, 1 has uninitialised parameters, 2 has values */
            file f = hub_file(pad);
            gckpt_store *s = store_new();
            if (kind) {
                add(s, "v", gckpt_shape1(2));
                add(s, "u", gckpt_shape1(4));
                add(s, "w", gckpt_shape2(2, 2));
            }
            const float *u = kind == 2 ? values(s, "u") : NULL;
            CHECK_MSG(read_as(s, &f, &d) == GCKPT_OK, "%s", gckpt_error_text(s));
            CHECK(gckpt_store_count(s) == 3 && (kind < 2 || u == values(s, "u")));
            CHECK(!memcmp(values(s, "w"), four, 16) && !memcmp(values(s, "u"), four, 16));
            CHECK(!memcmp(values(s, "v"), two, 8));
            CHECK(kind || !strcmp(s->params[0].p.name, "w"));
            gckpt_store_free(s);
            free(f.bytes);
        }
    CHECK(calls > 0 && mem.live == 0);
}

/* ---- a hash of everything in a store that a load could change ---- */
static uint64_t snapshot(const gckpt_store *s)
{
    uint64_t h = gckpti_fnv_number(UINT64_C(0xcbf29ce484222325), s->step);
    h = gckpti_fnv_number(gckpti_fnv_number(h, s->seed), s->count);
    for (size_t i = 0; i < s->count; i++) {
        const gckpti_param *q = &s->params[i];
        h = gckpti_fnv(h, q->p.name, strlen(q->p.name) + 1);
        h = gckpti_fnv(h, q->p.shape.d, sizeof(int64_t) * (size_t)q->p.shape.n);
        h = gckpti_fnv_number(h, (uint64_t)q->p.storage * 8 + (uint64_t)q->p.frozen * 4 + q->uninitialised);
        h = gckpti_fnv_number(h, q->updates * 8 + q->optimiser);
        h = gckpti_has_values(q) && !q->external
                ? gckpti_fnv(h, gckpti_values_block(q), gckpti_values_bytes(&q->p))
                : gckpti_fnv_number(h, 1);
        for (int k = 0; k < 4; k++)
            h = q->p.state[k] ? gckpti_fnv(h, q->p.state[k], 4 * (size_t)q->p.elements)
                              : gckpti_fnv_number(h, 2);
    }
    for (size_t i = 0; i < s->note_count; i++) {
        h = gckpti_fnv(h, s->notes[i].text, strlen(s->notes[i].text) + 1);
        h = gckpti_fnv(h, gckpt_store_note(s, s->notes[i].text),
                       strlen(gckpt_store_note(s, s->notes[i].text)) + 1);
    }
    return h;
}

static file write_as(gckpt_store *s, const gckpt_file_desc *d)
{
    file f = { 0 };
    CHECK_MSG(gckpt_store_write(s, file_write, &f, d) == GCKPT_OK, "%s", gckpt_error_text(s));
    return f;
}

/* Renames the key of the data's hash, so that the file looks like one of version 0.1. Returns 0 if the file has no such
 * key. */
static int hide_hash(file *f)
{
    char *key = strstr((char *)f->bytes + 8, "\"data_fnv1a\"");
    if (key)
        memcpy(key, "\"data_fnv0", 10);
    return key != NULL;
}
static const char *header_of(const file *f) { return (const char *)f->bytes + 8; }

/* In each load, one read fails, from the first read on: the store must be unchanged. The load without a failure must
 * succeed. */
static void fail_reads(gckpt_store *s, const file *f, const gckpt_file_desc *d)
{
    const uint64_t before = snapshot(s);
    gckpt_result result = GCKPT_E_FILE;
    for (size_t n = 1; n < 300 && result != GCKPT_OK; n++) {
        file copy = { .bytes = f->bytes, .size = f->size, .fail_call = n };
        result = gckpt_store_read(s, file_read, &copy, f->size, d);
        CHECK_MSG(result == GCKPT_OK || (result == GCKPT_E_FILE && snapshot(s) == before), "%s",
                  gckpt_error_text(s));
    }
    CHECK(result == GCKPT_OK);
}

/* ---- types of tensors ---- */
static const char *const type_names[] = { "\"F32\"", "\"BF16\"", "\"F16\"", "\"I8\",\"shape\":[3,7]", "\"U8\",\"shape\":[2,19]" };
static int columns = 5; /* columns of the matrix; 32 for I4, which stores blocks of 32 */

/* Returns a store with a matrix (3,5) or (2,32) and a vector of 5, both in this storage if it allows their shapes. All
 * types except I8 and I4 represent the values exactly. */
static gckpt_store *store_of(gckpt_storage storage, int make_values)
{
    gckpt_store *s = store_new();
    add(s, "w", gckpt_shape2(columns == 5 ? 3 : 2, columns));
    add(s, "b", gckpt_shape1(5));
    for (int p = 0; p < 2 && make_values; p++) {
        gckpt_parameter q;
        CHECK(gckpt_store_get(s, p, &q) == GCKPT_OK);
        for (int i = 0; i < q.elements; i++)
            q.values[i] = (float)((i * 37 + 11 * p) % 128 - 64) / 32;
    }
    if (storage != GCKPT_STORAGE_F32)
        CHECK(gckpt_store_freeze(s, "*", 1) == GCKPT_OK &&
              gckpt_store_quantise(s, "*", storage) == GCKPT_OK);
    return s;
}

/* Returns whether s has the values of store `was`, converted to the storage of s. */
static int holds(gckpt_store *s, gckpt_store *was)
{
    int same = 1;
    for (size_t i = 0; i < was->count; i++) {
        const gckpti_param *q = &s->params[gckpt_store_find(s, was->params[i].p.name)];
        gckpti_param like = *q;
        float block[64], x[64], y[64];
        int64_t n = q->p.elements;
        CHECK(gckpti_has_values(q) && gckpti_has_values(&was->params[i]) && n <= 64);
        gckpti_decompress_at(&was->params[i], 0, n, x);
        if (q->p.storage != was->params[i].p.storage) {
            gckpti_set_stored(&like, block);
            CHECK(gckpti_values_copy(was, &was->params[i], &like));
            gckpti_decompress_at(&like, 0, n, x);
        }
        gckpti_decompress_at(q, 0, n, y);
        same = same && !memcmp(x, y, 4 * (size_t)n);
    }
    return same;
}

/* Loads files of each type into each storage: into a store with values, into one with uninitialised parameters, and
 * into an empty store. */
static void test_types(int types)
{
    for (int from = 0; from < types; from++) {
        gckpt_store *was = store_of((gckpt_storage)from, 1);
        file f = write_as(was, NULL);
        const int rows_of_32 = from == GCKPT_STORAGE_I8 && columns == 32;
        CHECK(strstr(header_of(&f), rows_of_32 ? "\"I8\",\"shape\":[2,34]" : type_names[from]));
        for (int to = 0; to < types; to++)
            for (int initialised = 0; initialised < 2; initialised++) {
                gckpt_store *s = store_of((gckpt_storage)to, initialised);
                const void *block = gckpti_values_block(&s->params[0]);
                CHECK_MSG(read_as(s, &f, NULL) == GCKPT_OK, "%d to %d: %s", from, to, gckpt_error_text(s));
                CHECK_MSG(holds(s, was), "%d to %d", from, to);
                CHECK(!initialised || block == gckpti_values_block(&s->params[0]));
                fail_reads(s, &f, NULL);
                gckpt_store_free(s);
            }
        gckpt_store *empty = store_new();
        CHECK(read_as(empty, &f, NULL) == GCKPT_OK && holds(empty, was));
        CHECK(!empty->params[0].p.storage && !empty->params[0].p.frozen);
        gckpt_store_free(empty);
        gckpt_store_free(was);
        free(f.bytes);
    }
    CHECK(mem.live == 0);
}

/* Values that the parameter's storage cannot represent must be refused: too large for F16 or I4, or not finite for
 * I8. */
static void test_unfit(void)
{
    for (int i8 = 0; i8 < 2; i8++) { /* F16, then I8; I4 has its own test below */
        file_builder m = { 0 };
        float x[32] = { 1, i8 ? float_of(0x7f800000u) : 65520 };
        add_tensor(&m, "w", "F32", "1,32", x, 32);
        file f = build_file(&m, 0);
        gckpt_store *s = store_new();
        add(s, "w", gckpt_shape2(1, 32));
        CHECK(gckpt_store_freeze(s, "w", 1) == GCKPT_OK &&
              gckpt_store_quantise(s, "w", i8 ? GCKPT_STORAGE_I8 : GCKPT_STORAGE_F16) == GCKPT_OK);
        uint64_t before = snapshot(s);
        CHECK(read_as(s, &f, NULL) == GCKPT_E_DATA && snapshot(s) == before);
        CHECK_MSG(strstr(gckpt_error_text(s), i8 ? "not finite" : "65504"), "%s",
                  gckpt_error_text(s));
        gckpt_store_free(s);
        free(f.bytes);
    }
    file_builder m = { 0 };
    float x[32] = { 1, 524064 };
    add_tensor(&m, "w", "F32", "1,32", x, 32);
    file f = build_file(&m, 0);
    gckpt_store *s = store_new();
    add(s, "w", gckpt_shape2(1, 32));
    CHECK(gckpt_store_freeze(s, "w", 1) == GCKPT_OK && gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_OK);
    const uint64_t before = snapshot(s);
    CHECK(read_as(s, &f, NULL) == GCKPT_E_DATA && snapshot(s) == before);
    CHECK_MSG(strstr(gckpt_error_text(s), "\"w\": has values that I4 cannot hold: beyond 524032"), "%s",
              gckpt_error_text(s));
    gckpt_store_free(s);
    free(f.bytes);
}

/* ---- writing with other names and types ---- */
static const char *with_prefix(void *user, const char *name)
{
    char *text = (char *)user;
    if (!strcmp(name, "b"))
        return NULL;
    snprintf(text, 40, "model.%s", name);
    return text;
}

static const char *all_one(void *user, const char *name)
{
    return *name == 'b' ? (const char *)user : "same";
}

static const char *no_name(void *user, const char *name)
{
    (void)name;
    return (const char *)user;
}

static const char *fickle(void *user, const char *name)
{
    return ++*(int *)user % 7 ? name : "another one";
}

/* Checks that each tensor's data are aligned to its elements, and that data begin at a multiple of 8. */
static void check_alignment(const file *f)
{
    size_t header = 8 + f->bytes[0] + 256u * f->bytes[1];
    CHECK(header % 8 == 0);
    for (const char *at = header_of(f); (at = strstr(at, "\"dtype\":\"")) != NULL; at++) {
        unsigned size = at[9] == 'I' || at[9] == 'U' ? 1 : at[10] == '3' ? 4 : 2;
        const char *begin = strstr(at, "offsets\":[");
        CHECK(begin && strtoul(begin + 10, NULL, 10) % size == 0);
    }
}

static void test_write(void)
{
    char text[40];
    gckpt_store *s = store_of(GCKPT_STORAGE_F32, 1), *t = store_new();
    gckpt_file_desc d = { .rename = with_prefix, .user = text, .values_only = 1 };
    s->step = 9;
    CHECK(gckpti_ensure_state(s, &s->params[0], 2));
    for (int type = 0; type < 3; type++) {
        d.storage = (gckpt_storage)type;
        file f = write_as(s, &d);
        CHECK(strstr(header_of(&f),
                     "{\"__metadata__\":{\"format\":\"pt\",\"data_fnv1a\":\"") == header_of(&f));
        CHECK(strstr(header_of(&f), "\"},\"model.w\":{\"dtype\":\""));
        CHECK(strstr(header_of(&f), type_names[type]) && !strstr(header_of(&f), "state"));
        check_alignment(&f);
        gckpt_store *u = store_new();
        CHECK(read_as(u, &f, NULL) == GCKPT_OK && u->count == 1 && u->step == 0);
        CHECK(!memcmp(u->params[0].p.values, s->params[0].p.values, 60));
        gckpt_store_free(u);
        free(f.bytes);
    }
    file f = { 0 };
    for (int i = 0; i < 2; i++) {
        d.storage = i ? GCKPT_STORAGE_I4 : GCKPT_STORAGE_I8;
        CHECK(gckpt_store_write(s, file_write, &f, &d) == GCKPT_E_ARG && f.size == 0);
    }
    d.storage = GCKPT_STORAGE_F16;
    s->params[0].p.values[3] = -65520;
    CHECK(gckpt_store_write(s, file_write, &f, &d) == GCKPT_E_DATA);
    CHECK(strstr(gckpt_error_text(s), "\"w\" has values beyond 65504"));
    /* The rename callback gives two tensors the same name, gives invalid names, or answers differently from call to
     * call. */
    d.storage = GCKPT_STORAGE_F32;
    d.rename = all_one;
    d.user = (void *)text;
    strcpy(text, "same");
    CHECK(gckpt_store_write(s, file_write, &f, &d) == GCKPT_E_ARG);
    CHECK(strstr(gckpt_error_text(s), "\"w\" and \"b\" were given the same name"));
    strcpy(text, "b#state9");
    CHECK(gckpt_store_write(s, file_write, &f, &d) == GCKPT_E_ARG);
    CHECK(strstr(gckpt_error_text(s), "\"b\" was given a name that ends like"));
    int calls = 0, failed = 0;
    d.rename = fickle;
    d.user = &calls;
    for (int start = 0; start < 7; calls = ++start)
        failed += gckpt_store_write(s, file_write, &f, &d) == GCKPT_E_ARG &&
                  strstr(gckpt_error_text(s), "the same name each time") != NULL;
    CHECK(failed > 0);
    CHECK(gckpt_store_write(NULL, file_write, &f, &d) == GCKPT_E_ARG &&
          gckpt_store_write(s, NULL, &f, &d) == GCKPT_E_ARG);
    gckpt_store_free(s);
    gckpt_store_free(t);
    free(f.bytes);
    CHECK(mem.live == 0);
}

/* ---- a store with parameters of all kinds, and every failure while it is loaded ---- */
static gckpt_store *store_mixed(int initialised)
{
    static const char *const names[] = { "i", "h", "k", "f", "v", "late", "n" };
    gckpt_store *s = store_new();
    for (int i = 0; i < 7; i++)
        add(s, names[i], i % 6 == 0 ? gckpt_shape2(2, 32) : i < 4 ? gckpt_shape2(3, 3 + i) : gckpt_shape1(7));
    for (int i = 0; i < 7; i += i == 2 ? 4 : 1)
        CHECK(gckpt_store_freeze(s, names[i], 1) == GCKPT_OK);
    for (int i = 0; i < 7 && initialised; i++) {
        gckpt_parameter p;
        CHECK(gckpt_store_get(s, i, &p) == GCKPT_OK);
        for (int64_t k = 0; k < p.elements; k++)
            p.values[k] += (float)initialised;
    }
    CHECK(gckpt_store_quantise(s, "i", GCKPT_STORAGE_I8) == GCKPT_OK &&
          gckpt_store_quantise(s, "h", GCKPT_STORAGE_BF16) == GCKPT_OK &&
          gckpt_store_quantise(s, "k", GCKPT_STORAGE_F16) == GCKPT_OK &&
          gckpt_store_quantise(s, "n", GCKPT_STORAGE_I4) == GCKPT_OK);
    if (initialised > 1) {
        for (int i = 3; i < 5; i++) {
            gckpti_param *q = &s->params[i];
            CHECK(gckpti_ensure_state(s, q, 2));
            q->optimiser = 1;
            q->updates = 12;
            for (int64_t k = 0; k < q->p.elements; k++)
                q->p.state[1][k] = (float)(k + i);
        }
        s->step = 12;
    }
    return s;
}

static void test_mixed(void)
{
    gckpt_store *s = store_mixed(2), *unmade = store_mixed(0), *empty = store_new();
    file f = write_as(s, NULL);
    check_alignment(&f);
    /* Parameters quantised in the same way get the bits of the file, and saving them again gives the same file. */
    CHECK_MSG(read_as(unmade, &f, NULL) == GCKPT_OK, "%s", gckpt_error_text(unmade));
    CHECK(snapshot(unmade) == snapshot(s));
    file again = write_as(unmade, NULL);
    CHECK(same_file(&f, &again));
    /* An empty store gets the parameters in the same order, all as floats. */
    CHECK(read_as(empty, &f, NULL) == GCKPT_OK && empty->count == 7 && empty->step == 12);
    CHECK(gckpt_store_hash(empty) == gckpt_store_hash(s) && empty->params[4].p.state[1][0] == 4);
    gckpt_store_free(unmade);
    /* With values_only, a load leaves state, step and the state's optimiser unchanged. */
    gckpt_file_desc d = { .values_only = 1 };
    gckpti_param *v = &s->params[4];
    v->p.state[1][0] = 99;
    v->p.values[0] = 5;
    v->updates = s->step = 13;
    CHECK(read_as(s, &f, &d) == GCKPT_OK && v->p.values[0] != 5 && v->p.state[1][0] == 99);
    CHECK(s->step == 13 && v->updates == 13 && v->optimiser == 1);
    /* Parameters that are not initialised are saved with their initial values. */
    unmade = store_mixed(0);
    file early = write_as(unmade, NULL);
    gckpt_store_free(empty);
    empty = store_new();
    CHECK(read_as(empty, &early, NULL) == GCKPT_OK);
    CHECK(gckpt_store_hash(empty) == gckpt_store_hash(unmade));
    gckpt_store_free(s);
    gckpt_store_free(unmade);
    gckpt_store_free(empty);
    free(f.bytes);
    free(again.bytes);
    free(early.bytes);
    CHECK(mem.live == 0);
}

/* Returns a store. Kind 0 is empty; kind 1 has uninitialised parameters; kind 2 has values but no state; kind 3 has
 * values and state. */
static gckpt_store *store_kind(int kind)
{
    gckpt_store *s = kind ? store_mixed(kind - 1) : store_new();
    CHECK(gckpt_store_set_note(s, "old", "is kept") == GCKPT_OK);
    if (kind == 2)
        CHECK(gckpt_store_set_note(s, "key", "is replaced") == GCKPT_OK);
    return s;
}

/* While a file is loaded or mapped, each allocation and each read fails in turn; the store must be unchanged and remain
 * usable. */
static void test_failures(void)
{
    gckpt_store *s = store_mixed(2);
    s->params[3].p.values[0] = 1234;
    CHECK(gckpt_store_set_note(s, "key", "value") == GCKPT_OK);
    file f = write_as(s, NULL);
    for (int kind = 0; kind < 4; kind++)
        /* what: 0 for reading with failing allocations, 1 for failing reads, 2 for mapping with failing allocations */
        for (int what = 0; what < 3; what++) {
            int done = 0;
            for (long n = 1; !done && n < 300; n++) {
                gckpt_store *t = store_kind(kind);
                uint64_t before = snapshot(t);
                size_t capacity = t->capacity, notes = t->note_capacity;
                size_t live = mem.live - capacity * sizeof *t->params - notes * sizeof *t->notes;
                file copy = { .bytes = f.bytes, .size = f.size };
                copy.fail_call = what == 1 ? (size_t)n : 0;
                mem.fail_at = what == 1 ? 0 : mem.calls + n;
                gckpt_result result = what == 2 ? gckpt_store_map(t, f.bytes, f.size, NULL)
                                                : gckpt_store_read(t, file_read, &copy, f.size, NULL);
                mem.fail_at = 0;
                done = result == GCKPT_OK;
                CHECK_MSG(done ? n > 3 : result == (what == 1 ? GCKPT_E_FILE : GCKPT_E_MEMORY),
                          "%d %d %ld: %s", kind, what, n, gckpt_error_text(t));
                CHECK_MSG(done || snapshot(t) == before, "%d %d %ld", kind, what, n);
                CHECK(done || gckpt_error(t) == result);
                live = mem.live - live;
                CHECK(done || live == t->capacity * sizeof *t->params +
                                          t->note_capacity * sizeof *t->notes);
                CHECK(done || read_as(t, &f, NULL) == GCKPT_OK); /* the store can still be used */
                CHECK(!kind || what == 2 || gckpt_store_hash(t) == gckpt_store_hash(s));
                CHECK(gckpt_store_note(t, "old") && !strcmp(gckpt_store_note(t, "key"), "value"));
                gckpt_store_free(t);
            }
            CHECK(done);
        }
    gckpt_store_free(s);
    free(f.bytes);
    CHECK(mem.live == 0);
}

/* While uninitialised values are saved under other names, each allocation and each write fails in turn. */
static void test_save_failures(void)
{
    for (int what = 0; what < 2; what++) {
        int calls = 0;
        gckpt_file_desc d = { .rename = of_hub, .user = &calls, .storage = GCKPT_STORAGE_BF16 };
        gckpt_result result = GCKPT_E_MEMORY;
        long n = 0;
        while (result != GCKPT_OK && n++ < 300) {
            gckpt_store *s = store_mixed(0);
            uint64_t before = snapshot(s);
            size_t live = mem.live;
            file f = { .fail_call = what ? (size_t)n : 0 };
            mem.fail_at = what ? 0 : mem.calls + n;
            result = gckpt_store_write(s, file_write, &f, &d);
            mem.fail_at = 0;
            CHECK_MSG(result == GCKPT_OK || result == (what ? GCKPT_E_FILE : GCKPT_E_MEMORY), "%s",
                      gckpt_error_text(s));
            CHECK(result == GCKPT_OK || what || (snapshot(s) == before && mem.live == live));
            gckpt_store_free(s);
            free(f.bytes);
        }
        CHECK(result == GCKPT_OK && n > 1);
    }
    CHECK(mem.live == 0);
}

/* A file with a flipped bit in its header, or one that is cut off, must be refused with the store unchanged, or be
 * loaded completely. */
static void test_damage(void)
{
    gckpt_store *s = store_mixed(2), *like = store_kind(3);
    gckpt_file_desc d = { .partial = 1 };
    CHECK(gckpt_store_set_note(s, "key", "value") == GCKPT_OK);
    file f = write_as(s, NULL);
    size_t header = 8 + f.bytes[0] + 256u * f.bytes[1], live = mem.live;
    uint64_t before = snapshot(like);
    int loaded = 0;
    for (size_t i = 0; i < 8 * header + f.size; i++) {
        size_t size = i < 8 * header ? f.size : i - 8 * header;
        /* allocated without spare bytes, so that sanitizers detect overruns */
        unsigned char *bytes = (unsigned char *)malloc(size ? size : 1);
        memcpy(bytes, f.bytes, size);
        if (size == f.size)
            bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        file copy = { .bytes = bytes, .size = size };
        gckpt_result result = gckpt_store_read(like, file_read, &copy, size, i % 2 ? &d : NULL);
        if (result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT) {
            loaded++;
            gckpt_store_free(like);
            like = store_kind(3);
        }
        CHECK_MSG(snapshot(like) == before && mem.live == live, "bit %d", (int)i);
        gckpt_store *mapped = store_new();
        result = gckpt_store_map(mapped, bytes, size, NULL);
        if (result != GCKPT_OK && result != GCKPT_OTHER_CONTRACT)
            CHECK(mapped->count == 0 && mapped->note_count == 0 && *gckpt_error_text(mapped));
        else
            CHECK(size == f.size);
        gckpt_store_free(mapped);
        free(bytes);
        CHECK(mem.live == live);
    }
    CHECK(loaded > 10 && loaded < 800);
    gckpt_store_free(s);
    gckpt_store_free(like);
    free(f.bytes);
    CHECK(mem.live == 0);
}

static const char *first_half(void *user, const char *name)
{
    (void)user;
    return *name < 'i' ? name : NULL; /* skips all names from 'i' on: only f, h and base remain */
}

static const char *second_half(void *user, const char *name)
{
    return first_half(user, name) ? NULL : name;
}

/* A flipped bit of the data must be detected, in whichever way and whichever part of the file is read. A file without a
 * hash, or with its tensors in another order, must still load. */
static void test_flipped(void)
{
    int asked = 0;
    const gckpt_file_desc only = { .values_only = 1 }, half = { .partial = 1, .rename = first_half },
                          as[] = { { .values_only = 1, .storage = GCKPT_STORAGE_BF16 }, { 0 } },
                          hub = { .rename = of_hub, .user = &asked };
    const gckpt_file_desc *const how[] = { NULL, &only, &half };
    for (int written = 0; written < 2; written++) {
        gckpt_store *s = store_kind(3);
        file f = write_as(s, &as[written]);
        const size_t header = 8 + f.bytes[0] + 256u * f.bytes[1];
        for (size_t i = 8 * header; i < 8 * f.size; i += 13) {
            gckpt_store *t = store_new();
            f.bytes[i / 8] ^= (unsigned char)(1u << i % 8);
            CHECK_MSG(read_as(t, &f, how[i % 3]) == GCKPT_E_DATA && t->count == 0 &&
                          strstr(gckpt_error_text(t), "damaged") &&
                          strstr(gckpt_error_text(t), "data_fnv1a"),
                      "bit %d: %s", (int)i, gckpt_error_text(t));
            f.bytes[i / 8] ^= (unsigned char)(1u << i % 8);
            CHECK_MSG(read_as(t, &f, how[i % 3]) == GCKPT_OK, "%s", gckpt_error_text(t));
            gckpt_store_free(t);
        }
        CHECK(hide_hash(&f)); /* in a file without a hash, the flipped bit cannot be detected */
        f.bytes[f.size - 1] ^= 1;
        gckpt_store *t = store_new();
        CHECK_MSG(read_as(t, &f, NULL) == GCKPT_OK, "%s", gckpt_error_text(t));
        gckpt_store_free(t);
        gckpt_store_free(s);
        free(f.bytes);
    }
    /* The names of two tensors of equal size are exchanged in the header; the file loads only after their data are
     * exchanged as well. */
    gckpt_store *s = store_new();
    add(s, "p", gckpt_shape1(2));
    add(s, "q", gckpt_shape1(2));
    file f = write_as(s, &only);
    char *header = (char *)f.bytes + 8, *p = strstr(header, "\"p\""), *q = strstr(header, "\"q\"");
    unsigned char *data = f.bytes + f.size - 16, was[8];
    CHECK(p && q);
    p[1] = 'q', q[1] = 'p';
    CHECK(read_as(s, &f, NULL) == GCKPT_E_DATA);
    memcpy(was, data, 8);
    memcpy(data, data + 8, 8);
    memcpy(data + 8, was, 8);
    CHECK_MSG(read_as(s, &f, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
    CHECK(gckpt_store_set_note(s, "data_fnv1a", "1") == GCKPT_E_ARG);
    CHECK(read_as(s, &f, &hub) == GCKPT_OK);
    gckpt_store_free(s);
    free(f.bytes);
    CHECK(mem.live == 0);
}

/* Tests valid but unusual safetensors files: tensors without elements, unknown keys, no metadata, any number of
 * axes. */
static const char *no_extras(void *user, const char *name)
{
    (void)user;
    return !strncmp(name, "extra", 5) ? NULL : name;
}

static void test_legal(void)
{
    static const struct {
        const char *head, *extra; /* head: first entries of the header; extra: the entry of one more tensor */
        int left_out;             /* nonzero if the file loads only with a rename callback that skips `extra` */
        const char *says;
    } cases[] = {
        { "", "\"dtype\":\"F32\",\"shape\":[0,3]", 0, "" },
        { "", "\"dtype\":\"F8_E4M3\",\"shape\":[2,0,3]", 0, "" },
        { "", "\"dtype\":\"I64\",\"shape\":[0]", 0, "" },
        { "", "\"dtype\":\"I64\",\"shape\":[1]", 8,
          "load: tensor \"extra\": F32, F16 or BF16 is needed; convert it from dtype I64, or leave it out "
          "(desc.rename returns NULL for it)" },
        { "", "\"dtype\":\"BOOL\",\"shape\":[8]", 8, "convert it from dtype BOOL, or leave it out" },
        { "", "\"dtype\":\"F64\",\"shape\":[1]", 8, "desc.rename returns NULL" },
        { "", "\"dtype\":\"U8\",\"shape\":[8]", 8, "convert it from dtype U8, or leave it out" },
        { "", "\"dtype\":\"F32\",\"shape\":[1,1,1,2,1,1,1]", 8,
          "load: tensor \"extra\": [7 axes; 0 to 6 are possible]: too many axes or elements for this "
          "machine; reshape it, or leave it out (desc.rename returns NULL for it)" },
    };
    static const char *const wrong[] = { "1", "[1,2", "{\"a\":1", "\"\\x\"", "\"", "", "]" };
    const gckpt_file_desc without = { .rename = no_extras };
    for (size_t i = 0; i < sizeof cases / sizeof *cases + sizeof wrong / sizeof *wrong; i++) {
        const size_t bad = i - sizeof cases / sizeof *cases;
        const int good = i < sizeof cases / sizeof *cases, bytes = good ? cases[i].left_out : 0;
        file_builder m = { 0 };
        char text[600];
        snprintf(text, sizeof text, "{%s", good ? cases[i].head : "");
        add_header_text(&m, text);
        if (good)
            snprintf(text, sizeof text, "\"extra\":{%s,\"data_offsets\":[0,%d]}", cases[i].extra, bytes);
        else
            snprintf(text, sizeof text,
                     "\"extra\":{\"more\":%s,\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", wrong[bad]);
        add_header_text(&m, text);
        if (bytes)
            file_write(&m.data, "01234567", 8);
        add_tensor(&m, "w", "F32", "2", two, 2);
        file f = build_file(&m, 0);
        for (int old = 0; old < 2; old++) {
            gckpt_store *s = store_new();
            if (old)
                add(s, "w", gckpt_shape1(2));
            gckpt_result result = read_as(s, &f, NULL);
            CHECK_MSG(result == (bytes || !good ? GCKPT_E_DATA : GCKPT_OK), "%d: %s", (int)i, gckpt_error_text(s));
            CHECK_MSG(strstr(gckpt_error_text(s), good ? cases[i].says : "damaged") != NULL, "%d: %s", (int)i,
                      gckpt_error_text(s));
            result = read_as(s, &f, &without);
            CHECK_MSG(result == (good ? GCKPT_OK : GCKPT_E_DATA), "%d: %s", (int)i, gckpt_error_text(s));
            CHECK(!good || (s->count == 1 && !memcmp(values(s, "w"), two, sizeof two)));
            gckpt_store_free(s);
        }
        free(f.bytes);
    }
    /* A parameter of the store that has no elements in the file counts as missing from the file. A file of 0 bytes is
     * refused. */
    file_builder m = { 0 };
    add_tensor(&m, "w", "F32", "0", NULL, 0);
    file f = build_file(&m, 0);
    gckpt_store *s = store_new();
    CHECK(read_as(s, &f, NULL) == GCKPT_OK && s->count == 0);
    add(s, "w", gckpt_shape1(2));
    CHECK(read_as(s, &f, NULL) == GCKPT_E_DATA && strstr(gckpt_error_text(s), "missing"));
    f.size = 0;
    CHECK_MSG(read_as(s, &f, NULL) == GCKPT_E_DATA && strstr(gckpt_error_text(s), "load: the file is empty"), "%s",
              gckpt_error_text(s));
    gckpt_store_free(s);
    free(f.bytes);
    CHECK(mem.live == 0);
}

/* ---- files and arguments that must be refused ---- */
static const char *to_one(void *user, const char *name)
{
    (void)user;
    return !strcmp(name, "skip")  ? NULL
           : !strcmp(name, "bad") ? "x#state0"
           : *name == 'n'         ? name
                                  : "w";
}

#define T(name, type, shape, from, to)                                                             \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to  \
    "]}"
#define OF_CONTRACT(n)                                                                             \
    "\"__metadata__\":{\"format\":\"gradckpt\",\"contract\":\"" n                                    \
    "\",\"step\":\"0\",\"seed\":\"0\",\"optimiser\":\"0\"},"
static const struct {
    const char *header;
    int data, partial;
    gckpt_result want;
    const char *text;
} refused[] = {
    { T("a", "F32", "2,2", 0, 16), 16, 0, GCKPT_OK, "" },
    { T("skip", "F64", "9", 0, 3) "," T("a", "F16", "2,2", 3, 11), 11, 0, GCKPT_OK, "" },
    { T("skip", "BOOL", "0", 0, 0) "," T("skip", "BOOL", "0", 0, 0), 0, 1, GCKPT_OK, "" },
    { T("a", "F16", "4", 0, 8), 8, 0, GCKPT_E_SHAPE,
      "\"a\" for parameter \"w\": the file has it as [4], the store as [2,2]" },
    { T("a", "F64", "2,2", 0, 32), 32, 0, GCKPT_E_DATA,
      "\"a\": F32, F16 or BF16 is needed; convert it from dtype F64" },
    { T("a", "I8", "2,2", 0, 4), 4, 0, GCKPT_E_DATA, "needed; convert it from dtype I8" },
    { T("a", "I8", "34", 0, 34), 34, 0, GCKPT_E_DATA, "needed; convert it from dtype I8" },
    { T("a", "I8", "2,34", 0, 68), 68, 0, GCKPT_E_SHAPE, "the file has it as [2,32], the store as [2,2]" },
    { T("a", "I8", "2,34", 0, 64), 64, 0, GCKPT_E_DATA, "must hold the 68 bytes of [2,32]" },
    { OF_CONTRACT("3") T("a", "I8", "2,34", 0, 68), 68, 0, GCKPT_E_DATA, "I8 of numeric contract 3 has" },
    { OF_CONTRACT("4") T("a", "I8", "2,34", 0, 68), 68, 0, GCKPT_E_SHAPE, "the file has it as [2,32]" },
    { OF_CONTRACT("4") T("a", "U8", "2,19", 0, 38), 38, 0, GCKPT_E_DATA, "I4 of numeric contract 4 has" },
    { T("a", "U8", "2,19", 0, 38), 38, 0, GCKPT_E_SHAPE, "the file has it as [2,32], the store as [2,2]" },
    { T("a", "U8", "2,19", 0, 64), 64, 0, GCKPT_E_DATA, "must hold the 38 bytes of [2,32]" },
    { T("a", "U8", "2,18", 0, 36), 36, 0, GCKPT_E_DATA, "needed; convert it from dtype U8" },
    { T("a", "U8", "18", 0, 18), 18, 0, GCKPT_E_DATA, "needed; convert it from dtype U8" },
    { T("a", "U8", "2,9223372036854775800", 0, 0), 0, 0, GCKPT_E_DATA, "too many axes or elements for this machine" },
    { T("a", "U8", "2,0", 0, 0), 0, 0, GCKPT_E_DATA, "\"w\": is missing in the file" },
    { T("a", "I4", "2,18", 0, 36), 36, 0, GCKPT_E_DATA, "convert it from dtype I4" },
    { T("a", "F32", "2,2", 0, 16) "," T("b", "F32", "2,2", 16, 32), 32, 0, GCKPT_E_DATA,
      "\"a\" for parameter \"w\": two tensors are renamed to it" },
    { T("a", "F32", "2,2", 0, 16) "," T("b#state0", "F32", "2,2", 16, 32), 32, 0, GCKPT_OK, "" },
    { T("n", "F32", "2,2", 0, 16), 16, 1, GCKPT_E_DATA,
      "\"n\": is none of the store's 1 parameters, also when renamed" },
    { T("bad", "F32", "2,2", 0, 16), 16, 0, GCKPT_E_DATA, "\"bad\": the name ends like" },
    { "\"skip\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}", 8, 1, GCKPT_E_DATA,
      "data_offsets" },
    { T("skip", "X", "1", 0, 12) "," T("a", "F32", "2,2", 8, 24), 24, 0, GCKPT_E_DATA, "overlap" },
    { T("skip", "X", "1", 0, 4) "," T("a", "F32", "2,2", 8, 24), 24, 0, GCKPT_E_DATA, "a hole" },
    { T("skip", "X", "1", 0, 4), 4, 0, GCKPT_E_DATA, "\"w\": is missing in the file; the store has " },
    { T("skip", "X", "1", 0, 4), 8, 1, GCKPT_E_DATA, "need 4 bytes of data, the file has 8" },
};

static void test_refused(void)
{
    gckpt_file_desc d = { .rename = to_one };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        file_builder m = { 0 };
        gckpt_store *s = store_new();
        add(s, "w", gckpt_shape2(2, 2));
        uint64_t before = snapshot(s);
        add_header_text(&m, "{");
        add_header_text(&m, refused[i].header);
        for (int k = 0; k < refused[i].data; k++)
            file_write(&m.data, "\1", 1);
        file f = build_file(&m, 0);
        d.partial = refused[i].partial;
        gckpt_result result = read_as(s, &f, &d);
        CHECK_MSG(result == refused[i].want && strstr(gckpt_error_text(s), refused[i].text),
                  "%s: %s", refused[i].header, gckpt_error_text(s));
        CHECK(result == GCKPT_OK || snapshot(s) == before);
        gckpt_store_free(s);
        free(f.bytes);
    }
    CHECK(mem.live == 0);
}

/* A rename callback that returns the name at its first call and NULL later. */
static const char *once(void *user, const char *name) { return ++*(int *)user > 1 ? NULL : name; }

/* Tests further refused files for an empty store, reads that fail within skipped tensors, and quantised matrices of
 * several lengths. */
static void test_refused_more(void)
{
    file_builder m = { 0 };
    float x[192];
    int calls = 0;
    gckpt_store *s = store_new();
    gckpt_file_desc d = { .rename = once, .user = &calls };
    add_tensor(&m, "w", "F32", "4", four, 4);
    file f = build_file(&m, 0);
    CHECK(read_as(s, &f, &d) == GCKPT_E_DATA && calls == 2 &&
          strstr(gckpt_error_text(s), "\"w\": is none of the store's 0"));
    CHECK(s->count == 0 && read_as(s, &f, NULL) == GCKPT_OK && values(s, "w")[3] == four[3]);
    free(f.bytes);
    add_tensor(&m, "a.attn.bias", "BOOL", "700", NULL, 700); /* large enough to be skipped in three reads */
    add_tensor(&m, "w", "F32", "4", four, 4);
    add_tensor(&m, "b.attn.bias", "BOOL", "300", NULL, 300);
    f = build_file(&m, 0);
    d.rename = of_hub;
    fail_reads(s, &f, &d);
    free(f.bytes);
    gckpt_store_free(s);
    s = store_new();
    add(s, "w", gckpt_shape2(2, 2));
    add_tensor(&m, "w", "F32", "2,2", four, 4);
    add_tensor(&m, "w#state0", "F32", "4", four, 4);
    f = build_file(&m, 0);
    CHECK(read_as(s, &f, NULL) == GCKPT_E_SHAPE &&
          strstr(gckpt_error_text(s), "\"w#state0\": [4], but its parameter is [2,2]"));
    free(f.bytes);
    gckpt_store_free(s);
    s = store_new();
    add(s, "u", gckpt_shape2(2, 96));
    add(s, "v", gckpt_shape2(6, 32));
    CHECK(gckpt_store_freeze(s, "*", 1) == GCKPT_OK && gckpt_store_quantise(s, "*", GCKPT_STORAGE_I8) == GCKPT_OK);
    for (int i = 0; i < 192; i++)
        x[i] = (float)(i % 32 ? i % 100 : 127);
    add_tensor(&m, "u", "F32", "2,96", x, 192);
    add_tensor(&m, "v", "F32", "6,32", x, 192);
    f = build_file(&m, 0);
    CHECK_MSG(read_as(s, &f, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
    for (int p = 0; p < 2; p++) {
        float back[192];
        gckpti_decompress_at(&s->params[p], 0, 192, back);
        CHECK(!memcmp(back, x, sizeof x));
    }
    free(f.bytes);
    gckpt_store_free(s);
    CHECK(mem.live == 0);
}

/* A header above the size that the format allows must be refused before anything is written. */
static void test_large_header(void)
{
    enum { N = 16700000 }; /* number of characters, each of which takes six characters in JSON */
    gckpt_store *s = store_new();
    char *text = (char *)malloc(N + 1);
    file f = { 0 };
    memset(text, 1, N);
    text[N] = 0;
    CHECK(gckpt_store_set_note(s, "n", text) == GCKPT_OK);
    CHECK(gckpt_store_write(s, file_write, &f, NULL) == GCKPT_E_DATA && f.calls == 0 &&
          strstr(gckpt_error_text(s), "bytes, but 100000000 are the most"));
    free(text);
    gckpt_store_free(s);
    CHECK(mem.live == 0);
}

/* ---- mapping: parameters whose values stay in the file's memory ---- */
static int inside(const file *f, const void *at)
{
    return (uintptr_t)at - (uintptr_t)f->bytes < f->size;
}

static void test_map(void)
{
    const int little = gckpti_little_endian();
    gckpt_store *s = store_mixed(2);
    gckpt_file_desc d = { .values_only = 1 };
    file f = write_as(s, &d);
    for (int shift = 0; shift < 4; shift++)
        for (d.writable = 0; d.writable < 2; d.writable++) {
            file at = { 0 };
            at.bytes = (unsigned char *)malloc(f.size + 8);
            memcpy(at.bytes + shift, f.bytes, f.size);
            at.size = f.size + 8;
            gckpt_store *t = store_new();
            add(t, "h", gckpt_shape2(3, 4)); /* "h" exists before, so its values are read, not mapped */
            CHECK_MSG(gckpt_store_map(t, at.bytes + shift, f.size, &d) == GCKPT_OK, "%s",
                      gckpt_error_text(t));
            CHECK(holds(t, s) && gckpt_store_count(t) == 7);
            CHECK(!little || shift || t->elements == 12); /* only the elements of "h" take memory of the store */
            for (int i = 0; i < 7; i++) {
                gckpt_parameter p, was;
                CHECK(gckpt_store_peek(t, i, &p) == GCKPT_OK);
                CHECK(gckpt_store_peek(s, gckpt_store_find(s, p.name), &was) == GCKPT_OK);
                int there = strcmp(p.name, "h") && little;
                there = there && shift % gckpti_kind_of((int)was.storage)->bytes == 0;
                CHECK_MSG(inside(&at, p.quantised ? p.quantised : p.values) == there, "%s at %d", p.name,
                          shift);
                CHECK(p.frozen == (there && (was.storage || !d.writable)));
                CHECK(p.storage == (there ? was.storage : GCKPT_STORAGE_F32));
            }
            /* The file is loaded again into the store that maps it: equal values are accepted, other values are
             * refused. */
            uint64_t before = snapshot(t);
            fail_reads(t, &f, &d);
            CHECK(d.writable || snapshot(t) == before);
            hide_hash(&f);
            for (size_t i4 = 0; i4 < 2; i4++) { /* mapped at any address */
                unsigned char *last = f.bytes + f.size - 1 - (i4 ? 0 : 2 * 19);
                *last ^= 1;
                CHECK(read_as(t, &f, &d) == (little ? GCKPT_E_DATA : GCKPT_OK));
                CHECK(!little || strstr(gckpt_error_text(t),
                                        i4 ? "\"n\": is external and not" : "\"i\": is external and not"));
                *last ^= 1;
            }
            gckpt_store_free(t);
            free(at.bytes);
        }
    CHECK(gckpt_store_map(NULL, f.bytes, f.size, NULL) == GCKPT_E_ARG &&
          gckpt_store_map(s, NULL, f.size, NULL) == GCKPT_E_ARG);
    gckpt_store_free(s);
    free(f.bytes);
    CHECK(mem.live == 0);
}

/* Tests a model in two files, which are mapped into an empty store or read into the parameters of a built graph. */
static void test_shards(void)
{
    gckpt_store *s = store_mixed(2), *mapped = store_new(), *built = store_mixed(0);
    gckpt_file_desc first = { .rename = first_half }, second = { .rename = second_half };
    gckpt_file_desc part = { .partial = 1 };
    file a = write_as(s, &first), b = write_as(s, &second);
    CHECK(gckpt_store_map(mapped, a.bytes, a.size, &part) == GCKPT_OK && mapped->count == 2);
    CHECK(gckpt_store_map(mapped, b.bytes, b.size, &part) == GCKPT_OK && holds(mapped, s));
    CHECK(read_as(built, &a, NULL) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(built), "\"i\": is missing"));
    CHECK(read_as(built, &a, &part) == GCKPT_OK && !gckpti_has_values(&built->params[0]));
    CHECK(read_as(built, &b, &part) == GCKPT_OK && snapshot(built) == snapshot(s));
    gckpt_store_free(s);
    gckpt_store_free(mapped);
    gckpt_store_free(built);
    free(a.bytes);
    free(b.bytes);
    CHECK(mem.live == 0);
}

/* Loading into an empty store, or into a parameter that exists or is quantised, must allocate only the parameters and
 * the header, but not the data a second time. */
static void test_memory(void)
{
    file_builder m = { 0 };
    enum { N = 61440 };
    float *x = (float *)calloc(N, sizeof *x);
    add_tensor(&m, "w", "BF16", "6,10240", x, N);
    file f = build_file(&m, 0);
    for (int kind = 0; kind < 3; kind++) {
        gckpt_store *s = store_new();
        if (kind)
            add(s, "w", gckpt_shape2(6, 10240));
        if (kind == 2)
            CHECK(gckpt_store_freeze(s, "w", 1) == GCKPT_OK &&
                  gckpt_store_quantise(s, "w", GCKPT_STORAGE_I8) == GCKPT_OK);
        mem.peak = mem.live;
        size_t before = mem.live;
        CHECK(read_as(s, &f, NULL) == GCKPT_OK);
        CHECK_MSG(mem.peak - before < (kind < 2 ? 4 * N : N / 32 * 34) + 8000, "%d: %d bytes", kind,
                  (int)(mem.peak - before));
        gckpt_store_free(s);
    }
    free(x);
    free(f.bytes);
    CHECK(mem.live == 0);
}

/* ---- notes ---- */
static void test_notes(void)
{
    static const char *const wrong[] = { "",     "format",    "contract",  "step",
                                         "seed", "optimiser", "w#updates", "\200" };
    gckpt_store *s = store_new(), *t = store_new();
    CHECK(!gckpt_store_note(s, "a") && !gckpt_store_note(NULL, "a") && !gckpt_store_note(s, NULL));
    CHECK(gckpt_store_set_note(s, "a", "1") == GCKPT_OK &&
          gckpt_store_set_note(s, "b", "") == GCKPT_OK);
    CHECK(gckpt_store_set_note(s, "\303\251 \"q\"\n", "tab\t\\ \360\237\230\200") == GCKPT_OK);
    CHECK(gckpt_store_set_note(s, "a", "two") == GCKPT_OK && s->note_count == 3);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_MSG(gckpt_store_set_note(s, wrong[i], "x") == GCKPT_E_ARG, "%s", wrong[i]);
    CHECK(gckpt_store_set_note(s, "c", "\377") == GCKPT_E_ARG && s->note_count == 3);
    for (int utf8 = 0; utf8 < 2; utf8++) /* the key is empty or no UTF-8, so the error text does not quote it */
        CHECK_MSG(gckpt_store_set_note(s, utf8 ? "" : "\200", "x") == GCKPT_E_ARG &&
                      !strcmp(gckpt_error_text(s), utf8 ? "note: the key is empty"
                                                        : "note: the key is not UTF-8"),
                  "%s", gckpt_error_text(s));
    CHECK(gckpt_store_set_note(NULL, "c", "") == GCKPT_E_ARG &&
          gckpt_store_set_note(s, NULL, "") == GCKPT_E_ARG);
    gckpt_file_desc d = { .values_only = 1 };
    CHECK(gckpt_store_set_note(t, "a", "old") == GCKPT_OK);
    CHECK(gckpt_store_set_note(t, "mine", "kept") == GCKPT_OK);
    for (int only = 0; only < 4; only++) { /* notes are written and read with and without values_only */
        file f = write_as(s, only & 1 ? &d : NULL);
        CHECK(gckpt_store_set_note(t, "a", "old") == GCKPT_OK);
        CHECK(read_as(t, &f, only & 2 ? &d : NULL) == GCKPT_OK && t->note_count == 4);
        CHECK(!strcmp(gckpt_store_note(t, "a"), "two") && !strcmp(gckpt_store_note(t, "b"), ""));
        CHECK(!strcmp(gckpt_store_note(t, "\303\251 \"q\"\n"), "tab\t\\ \360\237\230\200"));
        CHECK(!strcmp(gckpt_store_note(t, "mine"), "kept"));
        free(f.bytes);
    }
    /* Loads into an empty store: if two tensors get the same name, nothing is read; if all tensors are skipped, the
     * notes are read. */
    gckpt_store *mixed = store_mixed(2), *none = store_new();
    CHECK(gckpt_store_set_note(mixed, "options", "--lr 1e-3") == GCKPT_OK);
    file f = write_as(mixed, NULL);
    gckpt_file_desc nothing = { .rename = all_one };
    CHECK_MSG(read_as(none, &f, &nothing) == GCKPT_E_DATA, "%s", gckpt_error_text(none));
    CHECK(!gckpt_store_note(none, "options"));
    nothing.rename = no_name;
    CHECK_MSG(read_as(none, &f, &nothing) == GCKPT_OK, "%s", gckpt_error_text(none));
    CHECK(!strcmp(gckpt_store_note(none, "options"), "--lr 1e-3") && none->count == 0);
    gckpt_store_free(mixed);
    gckpt_store_free(none);
    free(f.bytes);
    CHECK(gckpt_store_set_note(s, "a", NULL) == GCKPT_OK && !gckpt_store_note(s, "a"));
    CHECK(gckpt_store_set_note(s, "a", NULL) == GCKPT_OK && s->note_count == 2);
    mem.fail_at = mem.calls + 1;
    CHECK(gckpt_store_set_note(s, "b", "more") == GCKPT_E_MEMORY);
    mem.fail_at = 0;
    CHECK(!strcmp(gckpt_store_note(s, "b"), ""));
    gckpt_store_free(s);
    gckpt_store_free(t);
    CHECK(mem.live == 0);
}

/* State of a parameter that cannot have state must be skipped: the parameter is quantised in the store or in the mapped
 * file. All other parameters must get their state. */
static void test_state_of_packed(void)
{
    static const float x[2 * 32] = { 1, -2, 3 };
    for (int k = GCKPT_STORAGE_BF16; k <= GCKPT_STORAGE_I4; k++) {
        gckpt_store *s = store_new(), *t = store_new();
        add(s, "w", gckpt_shape2(2, 32));
        add(s, "v", gckpt_shape2(2, 32));
        for (int i = 0; i < 2; i++) {
            gckpt_parameter p;
            CHECK(gckpt_store_get(s, i, &p) == GCKPT_OK && gckpti_ensure_state(s, &s->params[i], 2));
            memcpy(p.values, x, sizeof x);
            memcpy(s->params[i].p.state[1], x, sizeof x);
            s->params[i].optimiser = 1 + GCKPT_ADAMW;
            s->params[i].updates = (uint64_t)(7 + i); /* state is saved only if its parameter was updated */
        }
        file f = write_as(s, NULL);
        add(t, "w", gckpt_shape2(2, 32));
        CHECK(gckpt_store_freeze(t, "w", 1) == GCKPT_OK && gckpt_store_quantise(t, "w", (gckpt_storage)k) == GCKPT_OK);
        add(t, "v", gckpt_shape2(2, 32));
        const size_t bytes = gckpt_store_bytes(t);
        CHECK_MSG(read_as(t, &f, NULL) == GCKPT_OK, "%s", gckpt_error_text(t));
        CHECK_MSG(gckpt_store_bytes(t) == bytes + 2 * sizeof x, "%d: %zu bytes, %zu before", k, gckpt_store_bytes(t),
                  bytes);
        CHECK(!t->params[0].p.state[0] && !t->params[0].optimiser && !t->params[0].updates);
        CHECK(t->params[1].p.state[1] && !memcmp(t->params[1].p.state[1], x, sizeof x) && t->params[1].updates == 8);
        file g = write_as(t, NULL);
        CHECK_MSG(read_as(t, &g, NULL) == GCKPT_OK && gckpt_store_bytes(t) == bytes + 2 * sizeof x, "%s",
                  gckpt_error_text(t));
        free(f.bytes);
        free(g.bytes);
        gckpt_store_free(s);
        gckpt_store_free(t);
    }
    int some = 0;
    /* w is F32 in the file if k is odd, else BF16, which is mapped as BF16, or copied as F32 if its data are
     * misaligned */
    for (int k = 0; k < 8; k++) {
        file_builder m = { 0 };
        gckpt_store *s = store_new();
        add_tensor(&m, "w", k % 2 ? "F32" : "BF16", "2,2", four, 4);
        add_tensor(&m, "w#state0", "F32", "2,2", four, 4);
        file f = build_file(&m, k / 2);
        CHECK_MSG(gckpt_store_map(s, f.bytes, f.size, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
        const int packed = s->params[0].p.storage != GCKPT_STORAGE_F32;
        some += packed;
        CHECK_MSG(packed == (s->params[0].p.state[0] == NULL), "%d: its state is wrong", k);
        CHECK(gckpt_store_bytes(s) == (s->params[0].external ? 0 : sizeof four) + (packed ? 0 : sizeof four));
        gckpt_store_free(s);
        free(f.bytes);
    }
    CHECK(some > 0 && mem.live == 0);
}

/* Returns a file without tensors whose __metadata__ are these notes. */
static file file_of_notes(const char *notes)
{
    file f = { 0 };
    const size_t n = strlen(notes) + strlen("{\"__metadata__\":{}}");
    for (int i = 0; i < 8; i++) {
        unsigned char c = (unsigned char)((uint64_t)n >> (8 * i));
        file_write(&f, &c, 1);
    }
    file_write(&f, "{\"__metadata__\":{", 17);
    file_write(&f, notes, strlen(notes));
    file_write(&f, "}}", 2);
    return f;
}

/* If a key occurs twice, the value of the last occurrence counts, at the position of the first. */
static void test_order_of_notes(void)
{
    static const char *const want[] = { "c", "4", "z", "0", "b", "3", "a", "2", "bb", "5" };
    gckpt_store *s = store_new();
    CHECK(gckpt_store_set_note(s, "c", "1") == GCKPT_OK && gckpt_store_set_note(s, "z", "0") == GCKPT_OK);
    file f = file_of_notes("\"b\":\"1\",\"a\":\"2\",\"c\":\"1\",\"b\":\"3\",\"bb\":\"5\",\"c\":\"4\"");
    for (int again = 0; again < 2; again++) {
        CHECK_MSG(read_as(s, &f, NULL) == GCKPT_OK && s->note_count == 5, "%s", gckpt_error_text(s));
        for (size_t i = 0; i < s->note_count && i < 5; i++)
            CHECK_MSG(!strcmp(s->notes[i].text, want[2 * i]) && !strcmp(gckpt_store_note(s, want[2 * i]), want[2 * i + 1]),
                      "%d: %s", (int)i, s->notes[i].text);
    }
    free(f.bytes);
    gckpt_store_free(s);
    CHECK(mem.live == 0);
}

/* Loading notes must take time nearly proportional to their bytes: four times as many notes take less than ten times as
 * long. */
static void test_many_notes(void)
{
    enum { FEW = 5000 };
    static char text[2 * 4 * FEW * 16];
    double least[2] = { 1e9, 1e9 };
    for (int try = 0; try < 6; try++) {
        const int n = try % 2 ? 4 * FEW : FEW;
        size_t length = 0;
        for (int i = 0; i < n; i++)
            length += (size_t)snprintf(text + length, 32, "%s\"key %d\":\"\"", i ? "," : "", i * 7 % n);
        file f = file_of_notes(text);
        gckpt_store *s = store_new();
        const clock_t start = clock();
        CHECK(read_as(s, &f, NULL) == GCKPT_OK && s->note_count == (size_t)n);
        const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        least[try % 2] = seconds < least[try % 2] ? seconds : least[try % 2];
        gckpt_store_free(s);
        free(f.bytes);
    }
    CHECK_MSG(least[1] < 10 * least[0] + 0.05, "%d notes: %g s, four times as many: %g s", FEW, least[0], least[1]);
}

/* ---- training resumed from a file with the trained parameters only ---- */
static const char *only_trained(void *user, const char *name)
{
    const gckpt_store *s = (const gckpt_store *)user;
    gckpt_parameter p;
    CHECK(gckpt_store_peek(s, gckpt_store_find(s, name), &p) == GCKPT_OK);
    return p.frozen ? NULL : name;
}

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    int x, y;
} training;

static training training_new(gckpt_store *s)
{
    training t;
    t.s = s;
    t.g = gckpt_graph_new(s, NULL);
    gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_tensor *x = gckpt_input(t.g, "x", GCKPT_F32, gckpt_shape2(4, 6));
    gckpt_tensor *y = gckpt_input(t.g, "y", GCKPT_F32, gckpt_shape2(4, 3));
    gckpt_tensor *h = gckpt_linear(x, gckpt_param(t.g, "base", gckpt_shape2(6, 5), normal), NULL);
    h = gckpt_linear(gckpt_tanh(h), gckpt_param(t.g, "top", gckpt_shape2(5, 3), normal), NULL);
    gckpt_term loss = { gckpt_mean_squared_error(h, y, NULL), 1, 0 };
    CHECK(gckpt_store_freeze(s, "base", 1) == GCKPT_OK);
    t.x = gckpt_id(x);
    t.y = gckpt_id(y);
    t.p = gckpt_plan_new(t.g, &loss, 1, NULL);
    t.e = gckpt_exec_new(t.p, s, NULL);
    CHECK_MSG(t.e != NULL, "%s; %s", gckpt_error_text(t.g), gckpt_error_text(s));
    return t;
}

static void train(const training *t, int from, int to)
{
    for (int step = from; step < to; step++) {
        float x[24], y[12];
        for (int i = 0; i < 24; i++)
            x[i] = (float)((i * 7 + step * 5) % 13 - 6) / 8;
        for (int i = 0; i < 12; i++)
            y[i] = (float)((i * 5 + step * 3) % 11 - 5) / 8;
        gckpt_feed feeds[2] = { { t->x, x }, { t->y, y } };
        gckpt_hyper adamw = gckpt_hyper_lr(1e-2f);
        CHECK(gckpt_step(t->e, feeds, 2, 4, &adamw, NULL) == GCKPT_OK);
    }
}

/* A file in another format is refused; the error text quotes its first bytes and says what to do. */
static void test_untrusted(void)
{
    static const struct {
        const char *bytes, *begin;
    } all[] = {
        { "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "version " },
        { "PK\3\4\24\b\b\b......................", "PK??????" },
        { "\x80\2}q.......................", "??}q...." },
        { "\x80\4\x95\1............................", "????...." },
        { "\x93NUMPY\1\1v..............", "?NUMPY??" },
        { "GGUF\3.......................", "GGUF?..." },
        { "\x89HDF\r\n\x1a\n.................", "?HDF????" },
        { "\x1f\x8b\b..............................", "???....." },
        { "<!DOCTYPE html><html>............", "<!DOCTYP" },
        { "gckptpln..........", "gckptpln" },
        { "\n1\r\n2\t3,.......", "?1??2?3," },
        { "\1\xff\2\3\4\5\6\1.........", "????????" },
        { " ~\x1f\x7f}}..........", " ~??}}.." }, /* ' ' and '~' are the first and the last printable character */
        { "\1\1\1\1\1\1\1\1{\"a\":0}......", "????????" },
        { "\310\0\0\0\0\0\0\0{\"w\":", "????????" }, /* the header would have 200 bytes, but the file has 13 */
        { "12345", "12345???" },
    };
    gckpt_store *s = store_new();
    file f = { 0 };
    char says[200];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const size_t n = strlen(all[i].bytes);
        f.size = f.at = 0;
        file_write(&f, all[i].bytes, n == 1 ? 13 : n);
        snprintf(says, sizeof says, "no safetensors file, cut off or damaged: \"%s\" begins its %d bytes",
                 all[i].begin, (int)f.size);
        CHECK_MSG(read_as(s, &f, NULL) == GCKPT_E_DATA && strstr(gckpt_error_text(s), says) &&
                      strstr(gckpt_error_text(s), "git lfs pull)"),
                  "%s", gckpt_error_text(s));
        CHECK(gckpt_store_count(s) == 0);
    }
    free(f.bytes);
    gckpt_store_free(s);
}

static void test_resume(void)
{
    gckpt_store *base = store_new(), *s = store_new(), *t = store_new();
    training b = training_new(base); /* creating it initialises the values of `base` */
    gckpt_file_desc values = { .values_only = 1 };
    file weights = write_as(base, &values);
    for (int i = 0; i < 2; i++) /* mapped parameters are external memory, which no call can write */
        CHECK(gckpt_store_map(i ? t : s, weights.bytes, weights.size,
                              &(gckpt_file_desc){ .rename = first_half, .partial = 1 }) ==
              GCKPT_OK);
    training whole = training_new(s);
    train(&whole, 0, 4);
    gckpt_file_desc trained = { .rename = only_trained, .user = s };
    file f = write_as(s, &trained);
    CHECK(!strstr(header_of(&f), "base") && strstr(header_of(&f), "top#state1"));
    train(&whole, 4, 9);
    gckpt_file_desc part = { .partial = 1 };
    training rest = training_new(t);
    CHECK_MSG(read_as(t, &f, &part) == GCKPT_OK && gckpt_store_step(t) == 4, "%s",
              gckpt_error_text(t));
    train(&rest, 4, 9);
    CHECK(gckpt_store_hash(s) == gckpt_store_hash(t) &&
          gckpt_store_hash(s) != gckpt_store_hash(base));
    util_free(b.e, b.p, b.g, base);
    util_free(whole.e, whole.p, whole.g, s);
    util_free(rest.e, rest.p, rest.g, t);
    free(weights.bytes);
    free(f.bytes);
    CHECK(mem.live == 0);
}

int main(void)
{
    test_hub();
    test_types(4);
    columns = 32;
    test_types(5);
    columns = 5;
    test_unfit();
    test_write();
    test_mixed();
    test_failures();
    test_save_failures();
    test_damage();
    test_flipped();
    test_legal();
    test_refused();
    test_refused_more();
    test_large_header();
    test_map();
    test_shards();
    test_memory();
    test_notes();
    test_state_of_packed();
    test_order_of_notes();
    test_many_notes();
    test_untrusted();
    test_resume();
    return check_report("test_files");
}
