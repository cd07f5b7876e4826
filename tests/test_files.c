/* test_files.c - section >>files: files of other programs, other types, parts of a store.
 *
 * As in test_save.c, a load that is refused must leave the store as it was, bit for bit, and leak
 * nothing. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "rig.h"

static heap mem;

/* ---- files made by hand ---- */
typedef struct {
    char header[4000];
    size_t length;
    file data;
} maker;

static void make_text(maker *m, const char *text)
{
    strcpy(m->header + m->length, text);
    m->length += strlen(text);
}

/* A tensor of n values x (type F32, F16, BF16: made of floats that these hold exactly) or of n
 * bytes 0 (any other type). */
static void make(maker *m, const char *name, const char *type, const char *shape, const float *x,
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
    snprintf(text, sizeof text,
             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%u,%u]}",
             m->length ? "," : "{", name, type, shape, (unsigned)begin, (unsigned)m->data.size);
    make_text(m, text);
}

/* The whole file; the header is padded by `pad` spaces, so the data may begin anywhere. */
static file made(maker *m, int pad)
{
    file f = { 0 };
    make_text(m, "}");
    while (pad-- > 0)
        make_text(m, " ");
    for (int i = 0; i < 8; i++) {
        unsigned char c = (unsigned char)((uint64_t)m->length >> (8 * i));
        file_write(&f, &c, 1);
    }
    file_write(&f, m->header, m->length);
    file_write(&f, m->data.bytes, m->data.size);
    free(m->data.bytes);
    memset(m, 0, sizeof *m);
    return f;
}

static gckpt_result read_as(gckpt_store *s, const file *f, const gckpt_file_desc *d)
{
    file copy = *f;
    copy.at = copy.calls = 0;
    return gckpt_store_read_as(s, file_read, &copy, f->size, d);
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

/* As the models of Hugging Face: "transformer." may stand before names; masks are left out. */
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
    maker m = { 0 };
    make_text(&m, "{\"__metadata__\":{\"format\":\"pt\"}");
    make(&m, "transformer.h.0.attn.bias", "BOOL", "1,1,3,3", NULL, 9);
    make(&m, "transformer.w", "F16", "2,2", four, 4);
    make(&m, "v", "BF16", "2", two, 2);
    make(&m, "transformer.h.1.attn.bias", "U8", "0", NULL, 0);
    make(&m, "u", "F32", "4", four, 4);
    make(&m, "transformer.h.2.attn.bias", "I64", "5", NULL, 5);
    return made(&m, pad);
}

static void test_hub(void)
{
    int calls = 0;
    gckpt_file_desc d = { .rename = of_hub, .user = &calls };
    for (int pad = 0; pad < 4; pad++)
        for (int kind = 0; kind < 3; kind++) { /* an empty store, one without values, one with */
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

int main(void)
{
    test_hub();
    return check_report("test_files");
}
