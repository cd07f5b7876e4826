/* fuzz_safetensors.c - reads any bytes as a file of parameters: gckpt_store_read and _map with every
 * option, into stores of every kind.
 *
 * The first 8 bytes choose the store (empty; with or without values, trained, quantised, external, read by a
 * convolution), the call, its options, the allocation that fails and where the file ends. The rest is the file. The
 * rules:
 * - No crash. No byte beyond the file's end is read or requested.
 * - An error is the call's result and the store's error, with a text without control characters. After an error the
 *   store is unchanged: parameters and their addresses, values, state, step, seed, notes.
 * - Loaded values are those of the file, which this target reads without the library. Writing the store and reading
 *   the result, into this store and an empty one, gives the same bytes. Training can take a step with the loaded
 *   values (tested for a few inputs only, chosen by their bytes, since a step takes as long as hundreds of loads).
 * - A mapped file that is not writable is unchanged.
 * - All blocks are freed with the sizes with which they were allocated. */
#include "gradckpt.h"
#include "input_hash.h"
#include "once.h"
#include "safetensors.h"

enum { OPTIONS = 8, KINDS = 9, ROWS = 4 };
enum { EMPTY, UNINITIALISED, TRAINED, PACKED_I8, PACKED_I4, EXTERNAL, EXTERNAL_I8, CONVOLUTION, FROZEN };

/* trained: a file with optimiser state; before: for each kind of store, the file that the store writes */
static fuzz_file trained, before[KINDS];

/* ---- stores ---- */
typedef struct {
    fuzz_memory memory;
    gckpt_store *store;
    gckpt_graph *graph; /* the graph of CONVOLUTION, while it exists */
    float a[128], b[32];
    uint8_t packed[4 * 34]; /* int8 blocks */
} subject;

static const gckpt_init ones = { 0, 0, 1 }; /* ones, since random initial values would take long to draw */

static gckpt_shape shape_of(const char *name)
{
    return name[0] == 'a'   ? gckpt_shape2(4, 32)
           : name[0] == 'b' ? gckpt_shape1(32)
                            : gckpt_shape4(3, 3, 2, 4);
}

static gckpt_tensor *param(gckpt_graph *g, const char *name)
{
    return gckpt_param(g, name, shape_of(name), ones);
}

static void must(const subject *s, gckpt_result result)
{
    if (result != GCKPT_OK)
        fprintf(stderr, "%s\n", gckpt_error_text(s->store));
    MUST(result == GCKPT_OK);
}

static void subject_begin(subject *s, int kind)
{
    memset(s, 0, sizeof *s);
    gckpt_store_desc desc = { fuzz_memory_of(&s->memory), 7 };
    s->store = gckpt_store_new(&desc);
    for (int i = 0; i < 128; i++)
        s->a[i] = (float)(i % 17) / 8 - 1;
    for (int i = 0; i < 4 * 34; i++) /* scales of about 1 / 64 */
        s->packed[i] = (uint8_t)(i % 34 == 1 ? 0x24 : i % 16 == 0 ? 127 : i % 100);
    if (kind == EMPTY)
        return;
    if (kind == EXTERNAL) {
        must(s, gckpt_store_external(s->store, "a", shape_of("a"), s->a, 0));
        must(s, gckpt_store_external(s->store, "b", shape_of("b"), s->b, 1));
    }
    if (kind == EXTERNAL_I8)
        must(s, gckpt_store_external_quantised(s->store, "a", shape_of("a"), GCKPT_STORAGE_I8,
                                            s->packed));
    s->graph = gckpt_graph_new(s->store, NULL);
    MUST(param(s->graph, "a") && param(s->graph, "b") && param(s->graph, "c"));
    if (kind == CONVOLUTION) {
        gckpt_tensor *x = gckpt_input(s->graph, "x", GCKPT_F32, gckpt_shape4(1, 4, 4, 2));
        MUST(gckpt_conv2d(x, param(s->graph, "c"), NULL, NULL) != NULL);
        return;
    }
    gckpt_graph_free(s->graph);
    s->graph = NULL;
    if (kind == TRAINED || kind == FROZEN) {
        fuzz_file f = trained;
        must(s, gckpt_store_read(s->store, fuzz_read, &f, f.size, NULL));
    }
    if (kind == FROZEN)
        must(s, gckpt_store_freeze(s->store, "b", 1));
    if (kind == PACKED_I8 || kind == PACKED_I4) {
        must(s, gckpt_store_freeze(s->store, "*", 1));
        must(s, gckpt_store_quantise(s->store, "a",
                                 kind == PACKED_I8 ? GCKPT_STORAGE_I8 : GCKPT_STORAGE_I4));
        must(s, gckpt_store_quantise(s->store, "c",
                                 kind == PACKED_I8 ? GCKPT_STORAGE_BF16 : GCKPT_STORAGE_F16));
    }
}

static void subject_end(subject *s)
{
    gckpt_graph_free(s->graph);
    gckpt_store_free(s->store);
    MUST(s->memory.live == 0);
}

/* Takes a step with AdamW or momentum of a linear layer with the parameters a and b. Returns 0 if these cannot be
 * trained. */
static int step(gckpt_store *s, gckpt_optimiser optimiser)
{
    float x[ROWS][4], y[ROWS][32];
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(ROWS, 4));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(ROWS, 32));
    gckpt_tensor *out = gckpt_linear(in, param(g, "a"), param(g, "b"));
    gckpt_term loss = { gckpt_mean_squared_error(out, target, NULL), 1, 0 };
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.mode = GCKPT_STORE_ALL;
    desc.optimiser = optimiser;
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    for (int i = 0; i < ROWS * 4; i++)
        x[i / 4][i % 4] = (float)i / 8;
    for (int i = 0; i < ROWS * 32; i++)
        y[i / 32][i % 32] = (float)(i % 5);
    const gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), y } };
    const gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    gckpt_report report;
    const int done = e && gckpt_step(e, feeds, 2, ROWS, &hyper, &report) == GCKPT_OK;
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    return done;
}

/* ---- options ---- */
static int rename_mode;

static const char *renamed(void *user, const char *name)
{
    (void)user;
    switch (rename_mode) {
    case 1: return strncmp(name, "m.", 2) == 0 ? name + 2 : name;
    case 2: return name[0] == 'n' || name[0] == 'd' ? NULL : name;
    case 3: return "a";
    default: return strcmp(name, "a") == 0 ? "b" : strcmp(name, "b") == 0 ? "a" : name;
    }
}

/* ---- the rules ---- */
static fuzz_file written(gckpt_store *s)
{
    fuzz_file f = { NULL, 0, 0, 0, 0 };
    const gckpt_result result = gckpt_store_write(s, fuzz_write, &f, NULL);
    if (result != GCKPT_OK)
        fprintf(stderr, "%s\n", gckpt_error_text(s));
    MUST(result == GCKPT_OK);
    return f;
}

static int same(const fuzz_file *a, const fuzz_file *b)
{
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

static void check_text(gckpt_store *s, gckpt_result result)
{
    const char *text = gckpt_error_text(s);
    MUST(gckpt_error(s) == result && text[0] != 0);
    for (; *text; text++)
        MUST((unsigned char)*text >= 0x20 && *text != 0x7f);
}

enum { LIST = 64 };
typedef struct {
    int count;
    gckpt_parameter of[LIST];
} listed;

static void list(const gckpt_store *s, listed *l)
{
    l->count = gckpt_store_count(s);
    for (int i = 0; i < l->count && i < LIST; i++)
        MUST(gckpt_store_peek(s, i, &l->of[i]) == GCKPT_OK);
}

/* Checks that the parameters that existed before the load still have their names, sizes, storage and addresses. After a
 * failed load, also checks that no parameter was added and no state allocated or moved. */
static void check_places(const listed *was, const gckpt_store *s, int failed)
{
    listed now;
    list(s, &now);
    MUST(failed ? now.count == was->count : now.count >= was->count);
    for (int i = 0; i < was->count && i < LIST; i++) {
        const gckpt_parameter *p = &was->of[i], *q = &now.of[i];
        MUST(p->name == q->name && p->elements == q->elements && p->storage == q->storage);
        MUST(p->frozen == q->frozen && p->lr_scale == q->lr_scale);
        MUST(!p->values || p->values == q->values);
        MUST(!p->quantised || p->quantised == q->quantised);
        for (int k = 0; k < 4; k++)
            MUST(!(p->state[k] || failed) || p->state[k] == q->state[k]);
    }
}

/* Checks a file that was loaded without options: each name occurs once, the data of tensors are disjoint and within
 * the file, and floats that are stored as floats have the file's bits. */
static void check_values(gckpt_store *s, const uint8_t *bytes, size_t size, int values_only)
{
    static st_file f;
    gckpt_parameter p;
    if (!st_read(&f, bytes, size))
        return;
    for (int i = 0; i < f.tensors; i++) {
        const st_tensor *e = &f.tensor[i];
        if (strchr(e->name, '\\'))
            return;
        if (values_only && strstr(e->name, "#state"))
            continue;
        MUST(e->begin <= e->end && e->end <= f.data_bytes);
        for (int k = 0; k < i; k++) {
            const st_tensor *other = &f.tensor[k];
            MUST(strcmp(e->name, other->name) != 0);
            MUST((values_only && strstr(other->name, "#state")) || e->begin >= other->end ||
                 other->begin >= e->end);
        }
        const int at = gckpt_store_find(s, e->name);
        MUST(at >= 0 || strchr(e->name, '#') || e->begin == e->end); /* without elements */
        if (at < 0 || strcmp(e->type, "F32") != 0)
            continue;
        MUST(gckpt_store_get(s, at, &p) == GCKPT_OK);
        MUST(p.shape.n == e->axes && 4 * (uint64_t)p.elements == e->end - e->begin);
        for (int k = 0; k < e->axes; k++)
            MUST((uint64_t)p.shape.d[k] == e->shape[k]);
        if (p.storage == GCKPT_STORAGE_F32 && p.elements > 0)
            MUST(memcmp(p.values, f.data + e->begin, (size_t)(e->end - e->begin)) == 0);
    }
}

/* Writes the loaded store, reads the file into the same store and writes it again, which must give the same bytes. If
 * into_empty is nonzero, an empty store must get the same parameters from the file. */
static void check_again(subject *s, int into_empty)
{
    fuzz_file f = written(s->store), again, g = f;
    MUST(gckpt_store_read(s->store, fuzz_read, &g, g.size, NULL) == GCKPT_OK);
    again = written(s->store);
    MUST(same(&f, &again));
    if (into_empty) {
        subject empty;
        listed a, b;
        subject_begin(&empty, EMPTY);
        g = f;
        must(&empty, gckpt_store_read(empty.store, fuzz_read, &g, g.size, NULL));
        list(s->store, &a);
        list(empty.store, &b);
        MUST(a.count == b.count);
        for (int i = 0; i < a.count && i < LIST; i++)
            MUST(strcmp(a.of[i].name, b.of[i].name) == 0 && a.of[i].elements == b.of[i].elements);
        subject_end(&empty);
    }
    fuzz_file_end(&f);
    fuzz_file_end(&again);
}

/* ---- one input ---- */
static gckpt_result load(subject *s, const uint8_t *o, const uint8_t *bytes, size_t size,
                         const gckpt_file_desc *desc, uint8_t *mapped)
{
    fuzz_file f = { NULL, size, size, 0, 0 };
    size_t said = size;
    gckpt_result result;
    s->memory.fail = o[5] >= 128 ? s->memory.calls + o[5] - 127 : 0;
    if (mapped) {
        memcpy(mapped, bytes, size);
        result = gckpt_store_map(s->store, mapped, size, desc);
    } else {
        /* a block of exactly the file's size, so that sanitizers find reads beyond its end */
        f.bytes = (uint8_t *)malloc(size + 1);
        memcpy(f.bytes, bytes, size);
        if (o[6] >= 192)
            f.fail_at = 1 + (size_t)(o[6] - 192) * size / 64;
        if (o[7] >= 224)
            said = size + o[7] > 240 ? size + o[7] - 240 : 0;
        result = o[1] % 4 == 0 ? gckpt_store_read(s->store, fuzz_read, &f, said, NULL)
                               : gckpt_store_read(s->store, fuzz_read, &f, said, desc);
        MUST(f.at <= said);
        MUST(result > GCKPT_SKIPPED || f.fail_at == 0 || f.fail_at >= said);
        free(f.bytes);
    }
    s->memory.fail = 0;
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *o, size_t size)
{
    subject s;
    listed was;
    if (size < OPTIONS)
        return 0;
    const uint64_t chosen = input_hash(o, size);
    const uint8_t *bytes = o + OPTIONS;
    size -= OPTIONS;
    const int kind = o[0] % KINDS, how = o[1] % 4, map = how >= 2;
    gckpt_file_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.values_only = o[2] & 1;
    desc.partial = o[2] >> 1 & 1;
    desc.writable = o[2] >> 2 & 1;
    rename_mode = o[3] % 5;
    desc.rename = rename_mode ? renamed : NULL;
    const int plain = how == 0;
    const gckpt_file_desc *d = how == 1 && o[2] == 0xef ? NULL : &desc;
    uint8_t *block = map ? (uint8_t *)malloc(size + (how == 3)) : NULL; /* 3: misaligned */
    MUST(block || !map || size == 0);
    if (map && !block)
        return 0;
    subject_begin(&s, kind);
    fuzz_file now = { NULL, 0, 0, 0, 0 };
    for (int round = 0; round < 1 + (o[1] >> 4 & 1); round++) {
        fuzz_file held = round > 0 ? written(s.store) : before[kind];
        list(s.store, &was);
        const gckpt_result result = load(&s, o, bytes, size, d, map ? block + (how == 3) : NULL);
        const int failed = result > GCKPT_SKIPPED;
        MUST(!failed || result == GCKPT_E_ARG || result == GCKPT_E_DATA || result == GCKPT_E_FILE ||
             result == GCKPT_E_MEMORY || result == GCKPT_E_SHAPE);
        MUST(failed || result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT);
        if (result != GCKPT_OK)
            check_text(s.store, result);
        check_places(&was, s.store, failed);
        if (failed) {
            now = written(s.store);
            MUST(same(&now, &held));
            fuzz_file_end(&now);
        } else {
            if (plain || !rename_mode)
                check_values(s.store, bytes, size, !plain && d && desc.values_only);
            gckpt_store_hash(s.store);
            if (chosen % 4 == 0)
                check_again(&s, o[1] >> 6 & 1);
        }
        if (round > 0)
            fuzz_file_end(&held);
        if (map && (failed || !desc.writable))
            MUST(memcmp(block + (how == 3), bytes, size) == 0);
    }
    if (o[1] >= 0xe0 && kind != CONVOLUTION && chosen / 4 % 64 == 0) {
        step(s.store, o[1] & 16 ? GCKPT_MOMENTUM : GCKPT_ADAMW);
        now = written(s.store);
        fuzz_file_end(&now);
    }
    subject_end(&s);
    free(block);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned int seed)
{
    fuzz_draws d = { seed };
    if (size < OPTIONS || most < OPTIONS + 8)
        return LLVMFuzzerMutate(bytes, size, most);
    if (fuzz_draw(&d, 6) == 0) {
        const uint64_t at = fuzz_draw(&d, OPTIONS);
        bytes[at] = (uint8_t)(at >= 5 && fuzz_draw(&d, 2) ? 0 : fuzz_draw(&d, 256));
        return size;
    }
    return OPTIONS + st_mutate(bytes + OPTIONS, size - OPTIONS, most - OPTIONS, &d);
}

/* ---- seeds ---- */
static void seed(const char *folder, int *number, int kind, int how, int flags, const fuzz_file *f)
{
    uint8_t bytes[1 << 14] = { (uint8_t)kind, (uint8_t)how, (uint8_t)flags, 0, 0, 0, 0, 0 };
    MUST(OPTIONS + f->size <= sizeof bytes);
    memcpy(bytes + OPTIONS, f->bytes, f->size);
    fuzz_seed(folder, (*number)++, bytes, OPTIONS + f->size);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *folder = getenv("FUZZ_SEEDS");
    subject s;
    (void)argc;
    (void)argv;
    subject_begin(&s, UNINITIALISED);
    MUST(step(s.store, GCKPT_ADAMW));
    must(&s, gckpt_store_set_note(s.store, "note", "7"));
    trained = written(s.store);
    int number = 0;
    for (int storage = 0; folder && storage <= GCKPT_STORAGE_F16; storage++) {
        gckpt_file_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.values_only = storage != GCKPT_STORAGE_F32;
        desc.storage = (gckpt_storage)storage;
        fuzz_file f = { NULL, 0, 0, 0, 0 };
        must(&s, gckpt_store_write(s.store, fuzz_write, &f, &desc));
        for (int kind = 0; kind < KINDS; kind++)
            for (int how = 0; how < 4; how++)
                seed(folder, &number, kind, how, how == 0 ? 0 : 8 | storage, &f);
        fuzz_file_end(&f);
    }
    subject_end(&s);
    for (int kind = 0; kind < KINDS; kind++) {
        subject_begin(&s, kind);
        before[kind] = written(s.store);
        if (folder) {
            seed(folder, &number, kind, 0xe1, 0, &before[kind]);
            seed(folder, &number, EMPTY, 0x72, 4, &before[kind]);
        }
        subject_end(&s);
    }
    subject_begin(&s, UNINITIALISED); /* with optimiser state of momentum for some parameters */
    MUST(step(s.store, GCKPT_MOMENTUM));
    fuzz_file f = written(s.store);
    if (folder) {
        seed(folder, &number, TRAINED, 0xf1, 2, &f);
        exit(0);
    }
    fuzz_file_end(&f);
    subject_end(&s);
    return 0;
}
