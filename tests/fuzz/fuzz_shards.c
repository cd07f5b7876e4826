/* fuzz_shards.c - reads any bytes as a checkpoint of several ranks: gckpt_ranks_load of an index and its files, into
 * stores of any rank of any number of ranks and any kind of shard.
 *
 * The first 8 bytes choose the number of files, the store, the damage and the allocation that fails. The rest is
 * the "tensors" of the index, a header in JSON. This target writes an index and files for the header in the
 * library's format (src/dist/load.c), with right data and checksums, so that as much as possible of any
 * header is read. For some inputs, the rest is the whole index instead, with a right or wrong checksum. The rules:
 * - No crash. An error is the call's result and the store's error, with a text without control characters. After an
 *   error the store is unchanged: parameters and their addresses, values, state, step.
 * - A load that reads a file which is damaged, cut off, missing or different from the index is refused. Loaded
 *   values have the bits of this rank's shard.
 * - All blocks are freed with the sizes with which they were allocated. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "input_hash.h"
#include "once.h"
#include "memfs.h"
#include "safetensors.h"

enum { OPTIONS = 8, RANKS = 8, DATA = 1 << 17 };
typedef enum { SOUND, BAD_CHECK, RAW, CUT, FLIPPED, MISSING, OTHER_SUM, ODD_NAME, DAMAGES } damage;

static uint8_t data[DATA]; /* data of all tensors */

/* ---- the format ---- */
static const uint64_t start = UINT64_C(0xcbf29ce484222325);
static uint64_t fnv(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* Finds a rank's shard of a tensor: blocks of 4096 elements are halved once for each bit of the rank's number, and
 * the larger half comes first. */
static void shard_of(uint64_t elements, int rank, int ranks, uint64_t *first, uint64_t *count)
{
    uint64_t low = 0, high = (elements + 4095) / 4096;
    for (int bit = 1; bit < ranks; bit *= 2) {
        const uint64_t middle = low + (high - low + 1) / 2;
        if (rank & bit)
            low = middle;
        else
            high = middle;
    }
    *first = 4096 * low < elements ? 4096 * low : elements;
    *count = (4096 * high < elements ? 4096 * high : elements) - *first;
}

static int by_offset(const void *a, const void *b)
{
    const st_tensor *x = (const st_tensor *)a, *y = (const st_tensor *)b;
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1)
                                : (x->end > y->end) - (x->end < y->end);
}

/* Returns the number of bytes of a rank's shard of a tensor, or 0 if the rank has none; stores their offset within
 * the data of all tensors in *begin. A block of int4 has 18 bytes for 32 elements. */
static uint64_t shard_bytes(const st_tensor *e, int rank, int ranks, uint64_t *begin)
{
    const int blocks = strcmp(e->type, "U8") == 0;
    const uint64_t bytes = e->end - e->begin;
    uint64_t elements = 1, first, count;
    for (int i = 0; i < e->axes; i++)
        elements *= e->shape[i];
    elements = blocks ? elements / 18 * 32 : elements;
    if (elements == 0 || bytes == 0)
        return 0;
    shard_of(elements, rank, ranks, &first, &count);
    *begin = e->begin + (blocks ? first / 32 * 18 : first * (bytes / elements));
    return blocks ? count / 32 * 18 : count * (bytes / elements);
}

typedef struct {
    uint64_t bytes, sum;
} part;

/* Writes the shard file of a rank. */
static part write_part(const st_file *f, int rank, int ranks, const char *name)
{
    char head[128];
    uint8_t little[8], sums[8 * ST_TENSORS];
    size_t n = 0;
    memfs_file *out = memfs_new(name);
    snprintf(head, sizeof head,
             "{\"__metadata__\":{\"format\":\"gradckpt part\",\"part\":\"%d of %d\"}}", rank,
             ranks);
    st_put_little(little, strlen(head));
    part made = { 8 + strlen(head), fnv(fnv(start, little, 8), head, strlen(head)) };
    memfs_write(out, little, 8);
    memfs_write(out, head, strlen(head));
    for (int i = 0; i < f->tensors; i++) {
        uint64_t begin = 0;
        const uint64_t count = shard_bytes(&f->tensor[i], rank, ranks, &begin);
        if (count == 0)
            continue;
        memfs_write(out, data + begin, (size_t)count);
        st_put_little(sums + n, fnv(start, data + begin, (size_t)count));
        n += 8;
        made.bytes += count;
    }
    memfs_write(out, sums, n);
    made.bytes += n;
    made.sum = fnv(made.sum, sums, n) & INT64_MAX;
    return made;
}

/* ---- the damage ---- */
static void part_name(char out[64], int rank, damage how)
{
    snprintf(out, 64, how == ODD_NAME && rank == 0 ? "../ckpt.1-%d" : "ckpt.1-%d.safetensors",
             rank);
}

static void damage_part(const char *name, uint64_t bytes, damage how, uint8_t where)
{
    memfs_file *f = memfs_find(name);
    const size_t at = (size_t)(bytes * where / 256);
    MUST(f && at < f->size);
    if (how == MISSING)
        memfs_remove(f);
    else if (how == CUT)
        f->size = at;
    else
        f->bytes[at] ^= 16;
}

/* Writes the index and the shard files for the header in `text` into the folder. Returns whether they are like files
 * that the library writes, as far as this target can tell. */
static int compose(const char *text, size_t size, int ranks, damage how, const uint8_t *o)
{
    static char index[ST_HEADER + 4096];
    static st_file f;
    int n = 0, known = how != RAW && size < ST_HEADER && st_read_header(&f, text, size);
    uint64_t all = 0;
    for (int i = 0; known && i < f.tensors; i++) {
        st_tensor *e = &f.tensor[i];
        known = e->begin <= e->end && e->end <= DATA &&
                (e->end - e->begin == st_bytes(e) || e->end == e->begin);
        all = e->end > all ? e->end : all;
    }
    if (known)
        qsort(f.tensor, (size_t)f.tensors, sizeof *f.tensor, by_offset);
    if (!known)
        f.tensors = 0;
    if (how != RAW)
        n = sprintf(index, "{\"gckpt\":[1,%d,%llu],\"files\":{", 1 + o[6] % 3,
                    (unsigned long long)(all + (o[7] >= 240 ? o[7] - 248u : 0)));
    for (int i = 0; i < ranks && how != RAW; i++) {
        char name[64];
        part_name(name, i, how);
        part made = write_part(&f, i, ranks, strrchr(name, '/') ? "ckpt.1-0" : name);
        if ((how == CUT || how == FLIPPED || how == MISSING) && i == o[4] % ranks)
            damage_part(name, made.bytes, how, o[5]);
        if (how == OTHER_SUM && i == o[4] % ranks)
            *(o[5] & 1 ? &made.bytes : &made.sum) ^= 1;
        n += sprintf(index + n, "%s\"%s\":[%llu,%llu]", i > 0 ? "," : "", name,
                     (unsigned long long)made.bytes, (unsigned long long)made.sum);
    }
    if (how != RAW)
        n += sprintf(index + n, "},\"tensors\":");
    size = size < ST_HEADER ? size : ST_HEADER;
    memcpy(index + n, text, size);
    n += (int)size;
    if (how != RAW || (o[4] & 1))
        n += sprintf(index + n, ",\"check\":\"%llu\"}\n",
                     (unsigned long long)(fnv(start, index, (size_t)n) ^ (how == BAD_CHECK)));
    memfs_put("ckpt", index, (size_t)n);
    return known;
}

/* ---- stores ---- */
static const gckpt_init ones = { 0, 0, 1 }; /* ones, since random initial values would take long to draw */
static const struct {
    const char *name;
    int n;
    int64_t d[2];
} model[] = { { "a", 2, { 4, 32 } }, { "b", 1, { 32, 0 } }, { "c", 2, { 41, 128 } } };
enum { MODEL = sizeof model / sizeof *model };
enum { EMPTY, UNINITIALISED, INITIALISED, PACKED, KINDS };

static gckpt_store *store_new(fuzz_memory *memory, const uint8_t *o)
{
    const gckpt_store_desc desc = { fuzz_memory_of(memory), 7 };
    const int ranks = 1 << o[1] % 4, rank = (o[1] >> 2) % ranks, kind = o[2] % KINDS;
    gckpt_store *s = gckpt_store_new(&desc);
    MUST(gckpt_store_ranks(s, rank, ranks, (gckpt_shard)(o[1] >> 6)) == GCKPT_OK);
    if (kind == EMPTY)
        return s;
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    for (int i = 0; i < MODEL; i++) {
        const gckpt_shape shape = { model[i].n, { model[i].d[0], model[i].d[1], 0, 0, 0, 0 } };
        MUST(gckpt_param(g, model[i].name, shape, ones) != NULL);
    }
    gckpt_graph_free(g);
    gckpt_parameter p;
    for (int i = 0; i < MODEL && kind == INITIALISED; i++)
        MUST(gckpt_store_get(s, i, &p) == GCKPT_OK);
    if (kind == PACKED)
        MUST(gckpt_store_freeze(s, "*", 1) == GCKPT_OK &&
             gckpt_store_quantise(s, "c", o[2] & 64 ? GCKPT_STORAGE_I8 : GCKPT_STORAGE_I4) == GCKPT_OK);
    return s;
}

/* Returns a hash of everything in the store that a load could change; values that do not exist yet are skipped. */
static uint64_t snapshot(const gckpt_store *s)
{
    const uint64_t step = gckpt_store_step(s);
    uint64_t h = fnv(start, &step, sizeof step);
    for (int i = 0; i < gckpt_store_count(s); i++) {
        gckpt_parameter p;
        MUST(gckpt_store_peek(s, i, &p) == GCKPT_OK);
        h = fnv(h, p.name, strlen(p.name));
        h = fnv(h, &p.values, sizeof p.values);
        h = fnv(h, &p.quantised, sizeof p.quantised);
        h = fnv(h, p.state, sizeof p.state);
        if (p.values)
            h = fnv(h, p.values, sizeof *p.values * (size_t)p.count);
        for (int k = 0; k < 4 && p.state[k]; k++)
            h = fnv(h, p.state[k], sizeof *p.state[k] * (size_t)p.count);
    }
    return h;
}

static int held_by(const gckpt_parameter *p, gckpt_shard shard)
{
    return p->elements <= 4096 || shard != GCKPT_SHARD_VALUES;
}

/* Checks the float values of this rank's shard against those tensors of the header whose type is float. */
static void check_values(gckpt_store *s, const char *text, size_t size, gckpt_shard shard)
{
    static st_file f;
    gckpt_parameter p;
    MUST(st_read_header(&f, text, size));
    for (int i = 0; i < f.tensors; i++) {
        const st_tensor *e = &f.tensor[i];
        const int at = gckpt_store_find(s, e->name);
        if (at < 0 || strcmp(e->type, "F32") != 0)
            continue;
        MUST(gckpt_store_get(s, at, &p) == GCKPT_OK);
        MUST(4 * (uint64_t)p.elements == e->end - e->begin);
        if (p.storage != GCKPT_STORAGE_F32 || p.elements == 0)
            continue;
        const int64_t first = held_by(&p, shard) ? 0 : p.first;
        const int64_t count = held_by(&p, shard) ? p.elements : p.count;
        MUST(memcmp(p.values, data + e->begin + 4 * (uint64_t)first, 4 * (size_t)count) == 0);
    }
}

/* ---- one input ---- */
int LLVMFuzzerTestOneInput(const uint8_t *o, size_t size)
{
    fuzz_memory memory = { 0, 0, 0, 0 };
    if (size < OPTIONS)
        return 0;
    const uint64_t chosen = input_hash(o, size);
    const char *text = (const char *)o + OPTIONS;
    size -= OPTIONS;
    const int ranks = (o[0] & 15) == 15 ? 3 : 1 << o[0] % 4;
    const damage how = o[3] < 128 ? SOUND : (damage)(o[3] % DAMAGES);
    const gckpt_shard shard = (gckpt_shard)(o[1] >> 6);
    const int known = compose(text, size, ranks, how, o);
    gckpt_store *s = store_new(&memory, o);
    char index[96];
    snprintf(index, sizeof index, "%s/ckpt", memfs_folder(chosen / 4));
    const uint64_t was = snapshot(s);
    memory.fail = how == SOUND && o[5] >= 128 ? memory.calls + o[5] - 127 : 0;
    const gckpt_result result = gckpt_ranks_load(s, index);
    memory.fail = 0;
    MUST(gckpt_error(s) == result || result == GCKPT_OK);
    if (result > GCKPT_SKIPPED) {
        const char *said = gckpt_error_text(s);
        MUST(said[0] != 0 && snapshot(s) == was);
        for (; *said; said++)
            MUST((unsigned char)*said >= 0x20 && *said != 0x7f);
    } else {
        MUST(result == GCKPT_OK || result == GCKPT_OTHER_CONTRACT);
        MUST(how != BAD_CHECK && how != ODD_NAME && ranks != 3);
        /* a load into an empty store must have detected such damage: it checks size and checksum of every file, and
         * reads all files of one rank */
        MUST(o[2] % KINDS != EMPTY || (how != CUT && how != MISSING && how != OTHER_SUM));
        MUST(o[2] % KINDS != EMPTY || o[1] % 4 > 0 || how != FLIPPED ||
             memmem(text, size, "num_batches_tracked", 19));
        if (known)
            check_values(s, text, size, shard);
        MUST(chosen % 4 > 0 || gckpt_ranks_load(s, index) == result);
    }
    gckpt_store_free(s);
    MUST(memory.live == 0);
    memfs_end();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned int seed)
{
    static st_file f;
    static char text[ST_HEADER];
    fuzz_draws d = { seed };
    if (size < OPTIONS || most < OPTIONS + 8)
        return LLVMFuzzerMutate(bytes, size, most);
    const uint64_t kind = fuzz_draw(&d, 8);
    if (kind < 2) {
        const uint64_t at = fuzz_draw(&d, OPTIONS);
        bytes[at] = (uint8_t)(at >= 3 && fuzz_draw(&d, 2) ? 0 : fuzz_draw(&d, 256));
        return size;
    }
    if (kind < 7 && st_read_header(&f, (const char *)bytes + OPTIONS, size - OPTIONS)) {
        for (uint64_t n = 1 + fuzz_draw(&d, 3); n > 0; n--)
            st_change(&f, &d);
        st_place(&f);
        const size_t n = st_write_header(&f, text);
        if (n > 0 && OPTIONS + n <= most) {
            memcpy(bytes + OPTIONS, text, n);
            return OPTIONS + n;
        }
    }
    return OPTIONS + LLVMFuzzerMutate(bytes + OPTIONS, size - OPTIONS, most - OPTIONS);
}

/* ---- seeds: headers as a store writes them, with shards or without ---- */
static int try_seed(const char *to, int number, const uint8_t o[OPTIONS], const char *text)
{
    uint8_t bytes[OPTIONS + ST_HEADER];
    const size_t n = strlen(text);
    memcpy(bytes, o, OPTIONS);
    memcpy(bytes + OPTIONS, text, n);
    fuzz_seed(to, number, bytes, OPTIONS + n);
    fuzz_memory memory = { 0, 0, 0, 0 };
    compose(text, n, 1 << o[0] % 4, SOUND, o);
    gckpt_store *s = store_new(&memory, o);
    const gckpt_result result = gckpt_ranks_load(s, MEMFS "/ckpt");
    memfs_end();
    if (result != GCKPT_OK)
        fprintf(stderr, "%s\n", gckpt_error_text(s));
    gckpt_store_free(s);
    return result == GCKPT_OK;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *to = getenv("FUZZ_SEEDS");
    (void)argc;
    (void)argv;
    fuzz_draws d = { 1 };
    /* bytes that are finite, small numbers whether they are read as floats, as f16 or as scales */
    for (size_t i = 0; i < DATA; i++)
        data[i] = (uint8_t)(i % 2 ? 0x3c : fuzz_draw(&d, 256));
    if (!to)
        return 0;
    uint8_t o[OPTIONS] = { 0, 0, UNINITIALISED, 0, 0, 0, 0, 0 };
    fuzz_memory memory = { 0, 0, 0, 0 };
    for (int kind = UNINITIALISED; kind <= PACKED + 1; kind++) {
        o[1] = 0;
        o[2] = (uint8_t)(kind > PACKED ? 64 | PACKED : kind);
        gckpt_store *s = store_new(&memory, o);
        fuzz_file file = { NULL, 0, 0, 0, 0 };
        static char text[ST_HEADER];
        MUST(gckpt_store_write(s, fuzz_write, &file) == GCKPT_OK);
        const size_t length = (size_t)st_little(file.bytes);
        MUST(length < sizeof text);
        memcpy(text, file.bytes + 8, length);
        text[length] = 0;
        for (int ranks = 0; ranks < 4; ranks++)
            for (int shard = 0; shard < 4; shard++) {
                o[0] = (uint8_t)ranks;
                o[1] = (uint8_t)(shard << 6 | (3 - ranks) << 2 | ranks);
                MUST(try_seed(to, kind * 16 + ranks * 4 + shard, o, text));
            }
        o[1] = 0xc1;
        o[2] = EMPTY;
        MUST(try_seed(to, 100 + kind, o, text));
        fuzz_file_end(&file);
        gckpt_store_free(s);
    }
    exit(0);
}
