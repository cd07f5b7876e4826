/* test_shards.c - stores of several ranks (src/store) and their checkpoints (src/files): each rank holds exactly its
 * shard, and any number of ranks can load a checkpoint that any number of ranks has saved. */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "num/num.h"
#include "cpu/internal.h"
#include "store/store.h"
#include "run/internal.h"
#include "files/files.h"
GCKPTI_FN size_t gckpti_comm_buffer_bytes(const gckpt_exec *e); /* dist/group.c */
#include "rank_threads.h"
#include "util.h"

static heap mem[64]; /* by rank: threads as ranks allocate at the same time */

/* Returns 1 if all stores have freed their memory, with the right sizes. */
static int all_freed(void)
{
    int freed = 1;
    for (int k = 0; k < 64; k++)
        freed = freed && mem[k].live == 0 && mem[k].wrong_sizes == 0;
    return freed;
}

/* ---- a model with parameters of less than a block, of one block, of several blocks, and of several blocks and one
 * element; some are trained, some frozen, some quantised ---- */
enum { MODEL = 10, FIRST_FROZEN = 5 };
static int begin, end = MODEL; /* the store has only the parameters begin to end - 1 of the model */
static const struct {
    const char *name;
    int n;
    int64_t d[2];
    int states;
    gckpt_storage storage;
} model[MODEL] = { { "embed", 2, { 50, 300 }, 2, GCKPT_STORAGE_F32 },
                   { "w", 2, { 33, 1000 }, 2, GCKPT_STORAGE_F32 },
                   { "block", 1, { 4096, 0 }, 1, GCKPT_STORAGE_F32 },
                   { "b", 1, { 7, 0 }, 2, GCKPT_STORAGE_F32 },
                   { "odd", 1, { 4097, 0 }, 1, GCKPT_STORAGE_F32 },
                   { "frozen", 1, { 20481, 0 }, 0, GCKPT_STORAGE_F32 },
                   { "half", 2, { 7, 1500 }, 0, GCKPT_STORAGE_F16 },
                   { "brain", 2, { 9001, 1 }, 0, GCKPT_STORAGE_BF16 },
                   { "bytes", 2, { 29, 575 }, 0, GCKPT_STORAGE_I8 },
                   { "int4", 2, { 170, 96 }, 0, GCKPT_STORAGE_I4 } };

static gckpt_shape shape_of(int i)
{
    return model[i].n == 1 ? gckpt_shape1(model[i].d[0])
                           : gckpt_shape2(model[i].d[0], model[i].d[1]);
}

static gckpt_init init = { 0, 0, 1 }; /* initial values of parameters; only test_held changes it to random ones */

/* Returns a store with parameters begin to end - 1, without values. If packed is nonzero, the frozen parameters are
 * quantised as the table model[] says; if 0, all parameters are floats. */
static gckpt_store *store_new(int rank, int ranks, gckpt_shard shard, int packed)
{
    gckpt_store_desc desc = { .memory = heap_memory(&mem[rank]), .seed = 3 };
    gckpt_store *s = gckpt_store_new(&desc);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    if (rank % 2) /* tests both orders: gckpt_store_ranks may be called before or after parameters exist */
        CHECK(gckpt_store_ranks(s, rank, ranks, shard) == GCKPT_OK);
    for (int i = begin; i < end; i++)
        CHECK(gckpt_param(g, model[i].name, shape_of(i), init) != NULL);
    gckpt_graph_free(g);
    for (int i = FIRST_FROZEN; i < end; i++) {
        CHECK(gckpt_store_freeze(s, model[i].name, 1) == GCKPT_OK);
        if (packed)
            CHECK(gckpt_store_quantise(s, model[i].name, model[i].storage) == GCKPT_OK);
    }
    if (rank % 2 == 0)
        CHECK(gckpt_store_ranks(s, rank, ranks, shard) == GCKPT_OK);
    return s;
}

/* Returns the value that fill() gives to element `at` of the values (slot -1) or of a state slot of parameter i; `salt`
 * tells trainings apart. */
static float value_of(int i, int slot, int64_t at, unsigned salt)
{
    uint64_t state = (uint64_t)at * 64 + (uint64_t)(i * 6 + slot + 1) + ((uint64_t)salt << 40);
    uint32_t u = (uint32_t)next_random(&state) & 0xff7fffffu; /* no NaN */
    /* values that the scale of an int4 or int8 block represents exactly */
    if (slot < 0 && model[i].storage == GCKPT_STORAGE_I4)
        return (at % 32 ? (float)(u % 16) - 8 : -8) * (at / 32 % 3 ? 1 : 0.25f);
    if (slot < 0 && model[i].storage == GCKPT_STORAGE_I8) /* of rows of 575 */
        return (at % 575 % 32 ? (float)(u % 255) - 127 : 127) * (0.5f + (float)(at % 575 / 32));
    return slot < 0 && i >= FIRST_FROZEN ? (float)(int)(u % 255) - 127 : float_of(u);
}

/* Returns the number of elements of a rank's shard and stores the index of its first element in *first. */
static int64_t shard_of(int64_t elements, int rank, int ranks, int64_t *first)
{
    const gckpti_shard_range share = gckpti_shard_of(elements, rank, ranks);
    *first = share.first;
    CHECK(share.total == elements && share.capacity == gckpti_shard_of(elements, 0, ranks).count);
    return share.count;
}

static int64_t local_elements(const gckpt_store *s, const gckpti_param *q, int slot, int64_t *first)
{
    const gckpti_shard_range share = gckpti_array_shard(s, q, slot);
    *first = share.first;
    return share.count;
}

/* Sets values, state, step and notes of the store as a training would, to numbers that depend on `salt`. */
static void fill(gckpt_store *s, unsigned salt)
{
    char text[20];
    for (int i = begin; i < end; i++) {
        gckpti_param *q = &s->params[i - begin];
        gckpt_parameter p;
        int64_t first, n;
        CHECK(gckpt_store_get(s, i - begin, &p) == GCKPT_OK);
        CHECK(gckpti_ensure_state(s, q, model[i].states));
        for (int slot = -1; slot < model[i].states; slot++) {
            n = local_elements(s, q, slot, &first);
            for (int64_t k = 0; k < n && gckpti_array(q, slot); k++)
                gckpti_array(q, slot)[k] = value_of(i, slot, first + k, salt);
        }
        for (int64_t k = 0; k < p.elements && p.quantised; k++) {
            float x = value_of(i, -1, k, salt);
            const int64_t row = p.shape.d[p.shape.n - 1], rest = row - k % row;
            float block[32];
            for (int j = 0; j < 32; j++)
                block[j] = value_of(i, -1, k + j, salt);
            if (p.storage >= GCKPT_STORAGE_I8)
                CHECK(k % row % 32 || gckpti_compress_at(q, k, rest < 32 ? rest : 32, block));
            else
                CHECK(gckpti_compress_at(q, k, 1, &x));
        }
        q->optimiser = model[i].states ? GCKPT_ADAMW + 1 : 0;
        q->updates = model[i].states ? (i == 4 ? 5 : 20 + salt) : 0;
    }
    s->step = 20 + salt;
    snprintf(text, sizeof text, "salt %u \303\251\"\\", salt);
    CHECK(gckpt_store_set_note(s, "note", text) == GCKPT_OK);
}

/* Returns whether the store has all values, state, step and notes that fill() sets for this salt. The parameters may
 * be quantised otherwise than in the store that wrote the file. */
static int holds(const gckpt_store *s, unsigned salt)
{
    int same = s->step == 20 + salt && s->seed == 3 && (int)s->count == end - begin;
    const char *note = gckpt_store_note(s, "note");
    same = same && note && !strncmp(note, "salt ", 5) && (unsigned)atoi(note + 5) == salt;
    for (int i = begin; i < end && same; i++) {
        const gckpti_param *q = &s->params[i - begin];
        int64_t first, n;
        same = !strcmp(q->p.name, model[i].name) && gckpti_state_slots(q) == model[i].states &&
               q->updates == (model[i].states ? (i == 4 ? 5 : 20 + salt) : 0);
        for (int slot = -1; slot < model[i].states && same; slot++) {
            n = local_elements(s, q, slot, &first);
            for (int64_t k = 0; k < n && same; k++) {
                const float x = value_of(i, slot, first + k, salt);
                float y;
                if (slot < 0)
                    gckpti_decompress_at(q, k, 1, &y);
                else
                    y = q->p.state[slot][k];
                same = bits_of(x) == bits_of(y);
            }
        }
    }
    return same;
}

/* Returns the rank whose shard has element `index`. */
static int owner_of(int64_t elements, int64_t index, int ranks)
{
    int rank = 0;
    gckpti_shard_range shard = gckpti_shard_of(elements, 0, ranks);
    while (index < shard.first || index - shard.first >= shard.count)
        shard = gckpti_shard_of(elements, ++rank, ranks);
    return rank;
}

/* ---- shards ---- */
static void test_shard(void)
{
    static const int64_t sizes[] = { 1,     4095,  4096,   4097,   8192,    8193,
                                     40960, 53249, 100000, 524288, 1000003, 4096 * 1024 + 1 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int ranks = 1; ranks <= 64; ranks *= 2) {
            int64_t sum = 0, first, whole, most = shard_of(sizes[i], 0, ranks, &first);
            for (int rank = 0; rank < ranks; rank++) {
                int64_t n = shard_of(sizes[i], rank, ranks, &first), half;
                int64_t up = shard_of(sizes[i], rank % (ranks / 2 + !(ranks / 2)),
                                          ranks / 2 + !(ranks / 2), &half);
                sum += n;
                CHECK(n <= most && (first % 4096 == 0 || !n) && first + n <= sizes[i]);
                /* with half as many ranks, the shard of one rank must contain this whole shard */
                CHECK(!n || (first >= half &&
                             first + n <= half + up));
                CHECK(!n || (owner_of(sizes[i], first, ranks) == rank &&
                             owner_of(sizes[i], first + n - 1, ranks) == rank));
            }
            CHECK(sum == sizes[i]);
            whole = (sizes[i] + 4095) / 4096;
            CHECK(most <= (whole + ranks - 1) / ranks * 4096 || ranks > 2);
        }
}

/* Tests that a store of any rank has the bytes of the formula, that `first` and `count` of its parameters are right,
 * and that its initial values are those of one process. */
static void test_held(void)
{
    init.normal = 0.5f, init.uniform = 0.25f;
    gckpt_store *whole = store_new(0, 1, GCKPT_SHARD_NONE, 1);
    gckpt_parameter all, p;
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int ranks = 2; ranks <= 8; ranks *= 2)
            for (int rank = 0; rank < ranks; rank++) {
                if (!check_sampled((unsigned)(3 * shard + ranks / 2 + rank), 5))
                    continue;
                gckpt_store *s = store_new(rank, ranks, (gckpt_shard)shard, 1);
                size_t bytes = 0;
                for (int i = 0; i < MODEL; i++) {
                    gckpti_param *q = &s->params[i];
                    CHECK(gckpti_ensure_state(s, q, model[i].states));
                    CHECK(gckpt_store_get(whole, i, &all) == GCKPT_OK &&
                          gckpt_store_get(s, i, &p) == GCKPT_OK);
                    int64_t first, n = shard_of(p.elements, rank, ranks, &first), most, none;
                    int cut = shard >= GCKPT_SHARD_STATE && p.elements > 4096;
                    int values =
                        shard == GCKPT_SHARD_VALUES && cut && p.storage == GCKPT_STORAGE_F32;
                    CHECK(p.first == (cut ? first : 0) && p.count == (cut ? n : p.elements));
                    most = cut ? shard_of(p.elements, 0, ranks, &none) : p.elements;
                    bytes += (size_t)(4 * most) * (size_t)model[i].states;
                    bytes += values ? (size_t)(4 * most) : gckpti_values_bytes(&p);
                    if (p.values)
                        CHECK(!memcmp(p.values, all.values + (values ? first : 0),
                                      4 * (size_t)(values ? n : p.elements)));
                    else
                        CHECK(!memcmp(p.quantised, all.quantised, gckpti_values_bytes(&p)));
                    for (int64_t k = n; values && k < most; k++)
                        CHECK(p.values[k] == 0);
                }
                CHECK(gckpt_store_bytes(s) == bytes);
                CHECK(gckpt_store_hash(s) ==
                      (shard == GCKPT_SHARD_VALUES ? 0 : gckpt_store_hash(whole)));
                fill(s, 1);
                CHECK(holds(s, 1) && gckpt_store_reset(s, "*") == GCKPT_OK && !holds(s, 1));
                CHECK(s->params[1].p.state[1] == NULL && gckpti_ensure_state(s, &s->params[1], 2));
                for (int64_t k = 0; k < gckpti_array_shard(s, &s->params[1], 0).capacity; k++)
                    CHECK(s->params[1].p.state[1][k] == 0);
                gckpt_store_free(s);
            }
    init.normal = init.uniform = 0;
    gckpt_store_free(whole);
    CHECK(all_freed());
}

#ifndef GCKPT_NO_DEVICES
/* ---- a store whose values are in the memory of a backend takes as many bytes there as in the host's memory ---- */
static size_t mirrored;
static void *mirror_get(void *context, size_t bytes, size_t alignment)
{
    (void)context, (void)alignment;
    mirrored += bytes;
    return malloc(bytes);
}

static void mirror_release(void *context, void *memory, size_t bytes)
{
    (void)context;
    mirrored -= bytes;
    free(memory);
}

static void mirror_copy(void *context, void *to, const void *from, size_t bytes)
{
    (void)context;
    memcpy(to, from, bytes);
}

static void test_mirrors(void)
{
    gckpt_backend b;
    memset(&b, 0, sizeof b);
    b.allocate = mirror_get;
    b.release = mirror_release;
    b.copy_in = b.copy_out = mirror_copy;
    for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
        for (int rank = 0; rank < 4; rank += 3) {
            gckpt_store *s = store_new(rank, 4, (gckpt_shard)shard, 0);
            gckpti_binding binding;
            fill(s, 4);
            gckpti_bind(s, &binding, &b);
            for (size_t i = 0; i < s->count; i++) {
                gckpti_param *q = &s->params[i];
                CHECK(gckpti_push(s, q, &b, gckpti_state_slots(q)));
                for (int slot = -1; slot < gckpti_state_slots(q); slot++)
                    memset(gckpti_array(q, slot), 0x55, gckpti_array_bytes(s, q, slot + 1));
                gckpti_mark_changed(q, GCKPTI_MIRROR);
            }
            CHECK(mirrored == gckpt_store_bytes(s) && !holds(s, 4));
            float space[GCKPTI_CHUNK];
            int64_t n, first = s->params[1].p.first;
            const float *x =
                gckpti_floats_at(s, &s->params[1], GCKPTI_VALUES, first, space, &n); /* where the values are */
            CHECK(n > 0 && bits_of(x[n - 1]) == bits_of(value_of(1, -1, first + n - 1, 4)));
            CHECK(gckpt_store_pull(s, "*") == GCKPT_OK && holds(s, 4));
            gckpti_unbind(&binding);
            CHECK(mirrored == 0);
            gckpt_store_free(s);
        }
    CHECK(all_freed());
}
#endif

static void test_refused(void)
{
    static const int wrong[][3] = { { 0, 0, 0 }, { 0, 3, 0 }, { -1, 2, 0 },
                                    { 2, 2, 0 }, { 0, 2, 4 }, { 0, 2, -1 } };
    static float outside[5000];
    gckpt_store *s = store_new(0, 1, GCKPT_SHARD_NONE, 0);
    gckpt_parameter p;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(gckpt_store_ranks(s, wrong[i][0], wrong[i][1], (gckpt_shard)wrong[i][2]) ==
              GCKPT_E_ARG);
        CHECK(strstr(gckpt_error_text(s), "power of two") && s->peers == 0);
    }
    CHECK(gckpt_store_ranks(NULL, 0, 2, GCKPT_SHARD_NONE) == GCKPT_E_ARG);
    /* the values of an external parameter stay whole; only its optimiser state is sharded */
    CHECK(gckpt_store_external(s, "outside", gckpt_shape1(5000), outside, 1) == GCKPT_OK);
    CHECK(gckpt_store_ranks(s, 1, 2, GCKPT_SHARD_VALUES) == GCKPT_OK);
    CHECK(!gckpti_is_sharded(gckpti_array_shard(s, &s->params[MODEL], -1)) &&
          gckpti_is_sharded(gckpti_array_shard(s, &s->params[MODEL], 0)));
    CHECK(gckpt_store_peek(s, MODEL, &p) == GCKPT_OK && p.first == 4096 && p.count == 904);
    /* a parameter quantised before it has values stays whole; converted back to floats, it is sharded */
    CHECK(gckpt_store_quantise(s, "frozen", GCKPT_STORAGE_BF16) == GCKPT_OK &&
          !gckpti_is_sharded(gckpti_array_shard(s, &s->params[5], -1)));
    CHECK(gckpt_store_quantise(s, "frozen", GCKPT_STORAGE_F32) == GCKPT_OK &&
          gckpti_is_sharded(gckpti_array_shard(s, &s->params[5], -1)));
    CHECK(gckpt_store_quantise(s, "half", GCKPT_STORAGE_BF16) == GCKPT_OK);
    CHECK(gckpt_store_get(s, 5, &p) == GCKPT_OK && gckpt_store_get(s, 6, &p) == GCKPT_OK);
    CHECK(gckpt_store_quantise(s, "frozen", GCKPT_STORAGE_BF16) == GCKPT_E_ARG);
    CHECK_MSG(strstr(gckpt_error_text(s), "\"frozen\"") &&
                  strstr(gckpt_error_text(s), "GCKPT_SHARD_VALUES"),
              "%s", gckpt_error_text(s));
    CHECK(gckpt_store_quantise(s, "half", GCKPT_STORAGE_F32) == GCKPT_E_ARG &&
          s->params[6].p.storage == GCKPT_STORAGE_BF16);
    CHECK(gckpt_store_ranks(s, 0, 2, GCKPT_SHARD_STATE) == GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "\"frozen\""));
    CHECK(s->rank == 1 && s->shard == GCKPT_SHARD_VALUES);
    gckpt_store_free(s);
    /* only state is made */
    s = store_new(0, 1, GCKPT_SHARD_NONE, 0);
    CHECK(gckpti_ensure_state(s, &s->params[2], 1) &&
          gckpt_store_ranks(s, 0, 2, GCKPT_SHARD_NONE) == GCKPT_E_ARG);
    gckpt_store_free(s);
    CHECK(all_freed());
}

/* Tests that each rank reads its shard from a file that one process wrote, from any type to any storage. A
 * rank's own write must be refused if the file would need a sharded array: values (values_only), or
 * values and state. */
static void test_whole_file(void)
{
    for (int from = 0; from < 2; from++) {
        gckpt_store *one = store_new(0, 1, GCKPT_SHARD_NONE, from);
        file f = { 0 }, again = { 0 };
        fill(one, 2);
        CHECK(holds(one, 2) && gckpt_store_write(one, file_write, &f, NULL) == GCKPT_OK);
        for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
            for (int rank = 0; rank < 4; rank++)
                for (int made = 0; made < 2 && check_sampled((unsigned)(4 * shard + rank), 3); made++) {
                    gckpt_store *s = store_new(rank, 4, (gckpt_shard)shard, from && rank > 1);
                    if (made)
                        fill(s, 1);
                    f.at = 0;
                    CHECK_MSG(gckpt_store_read(s, file_read, &f, f.size, NULL) == GCKPT_OK && holds(s, 2),
                              "%s", gckpt_error_text(s));
                    gckpt_result result = gckpt_store_write(s, file_write, &again, NULL);
                    CHECK(shard ? result == GCKPT_E_ARG &&
                                      strstr(gckpt_error_text(s), "gckpt_ranks_save") && !again.size
                                : result == GCKPT_OK && (rank < 2 || same_file(&f, &again)));
                    again.size = f.at = 0;
                    CHECK(gckpt_store_read(s, file_read, &f, f.size - 1, NULL) == GCKPT_E_DATA &&
                          holds(s, 2));
                    gckpt_file_desc values = { .values_only = 1 };
                    CHECK(gckpt_store_write(s, file_write, &again, &values) ==
                          (shard == GCKPT_SHARD_VALUES ? GCKPT_E_ARG : GCKPT_OK));
                    again.size = 0;
                    gckpt_store_free(s);
                }
        /* lets each read fail, also reads that only skip bytes */
        gckpt_store *s = store_new(2, 4, GCKPT_SHARD_VALUES, from);
        gckpt_result result = GCKPT_E_FILE;
        fill(s, 1);
        for (size_t n = 1; result == GCKPT_E_FILE && n < 10000; n++) {
            file copy = { .bytes = f.bytes, .size = f.size, .fail_call = n };
            result = gckpt_store_read(s, file_read, &copy, f.size, NULL);
            CHECK_MSG(result == GCKPT_OK || n % 7 || holds(s, 1), "read %d", (int)n);
        }
        CHECK(result == GCKPT_OK && holds(s, 2));
        gckpt_store_free(s);
        free(f.bytes);
        free(again.bytes);
        gckpt_store_free(one);
    }
    CHECK(all_freed());
}

/* ---- one file of several ranks ---- */
static char path[64];

/* Returns the number of files in the folder, except temporary ones: the thread of a rank that a fault ends keeps such
 * a file open. */
static int files(void)
{
    int n = 0;
    struct dirent *e;
    DIR *d = opendir("shards");
    while (d && (e = readdir(d)) != NULL)
        n += e->d_name[0] != '.' && !strstr(e->d_name, ".gckpt-tmp");
    if (d)
        closedir(d);
    return n;
}

static void clear(void)
{
    struct dirent *e;
    char name[400];
    DIR *d = opendir("shards");
    while (d && (e = readdir(d)) != NULL) {
        snprintf(name, sizeof name, "shards/%s", e->d_name);
        remove(name);
    }
    if (d)
        closedir(d);
}

#if RANKS_THREADS
/* ---- threads as ranks train, save, are killed and resume ---- */
enum { BATCH = 8, WIDE = 400, BLOCK = 1 << 20 };
typedef struct { /* the state of one rank; not on the stack of the rank's thread, which may end anywhere */
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    void *block;
    gckpt_result loaded, saved, stepped, agreed;
    char text[400], differs[400];
    uint64_t hash;
    long first, last; /* first, last: numbers of the transport's first and last call in a save */
    int alone;        /* nonzero for one process with one virtual rank, which has no status barrier */
} member;
typedef struct {
    gckpt_shard shard;
    const char *note;
    /* loads: nonzero if the rank loads a checkpoint first; before, after: numbers of steps before and after the rank
     * saves */
    int loads, before, after;
    int lost;                 /* the rank whose path cannot be written, or -1 */
    member m[RANKS_MOST];
} training;

static void train(member *m, int64_t first, int64_t rows, int steps)
{
    float x[BATCH * 30], y[BATCH * 3];
    gckpt_hyper hyper = gckpt_hyper_lr(1e-3f);
    for (int i = 0; i < steps && m->stepped == GCKPT_OK; i++) {
        uint64_t state = gckpt_store_step(m->s) * 1000;
        for (int k = 0; k < BATCH * 30; k++)
            x[k] = (float)(next_random(&state) % 1000) / 500 - 1;
        for (int k = 0; k < BATCH * 3; k++)
            y[k] = x[k * 7] * x[k];
        gckpt_feed feeds[2] = { { 0, x + first * 30 }, { 1, y + first * 3 } };
        (void)rows;
        m->stepped = gckpt_step(m->e, feeds, 2, BATCH, &hyper, NULL);
    }
}

/* Makes a rank's store and the plan of a small network, in `block` or, if block is NULL, on the heap. */
static void make_plan(member *m, void *block, int rank, int ranks, gckpt_shard shard)
{
    gckpt_store_desc desc = { .memory.memory = block, .memory.size = block ? BLOCK : 0, .seed = 5 };
    gckpt_init uniform = { 0, 0.1f, 0 };
    m->s = gckpt_store_new(&desc);
    gckpt_store_ranks(m->s, rank, ranks, shard);
    m->g = gckpt_graph_new(m->s, NULL);
    gckpt_tensor *x = gckpt_input(m->g, "x", GCKPT_F32, gckpt_shape2(1, 30));
    gckpt_tensor *y = gckpt_input(m->g, "y", GCKPT_F32, gckpt_shape2(1, 3));
    gckpt_tensor *a = gckpt_param(m->g, "a", gckpt_shape2(30, WIDE), uniform);
    gckpt_tensor *b = gckpt_param(m->g, "b", gckpt_shape2(WIDE, 3), uniform);
    gckpt_term loss = { gckpt_mean_squared_error(
                            gckpt_linear(gckpt_relu(gckpt_linear(x, a, NULL)), b, NULL), y, NULL),
                        1, 0 };
    gckpt_plan_desc plan = { .batch = BATCH, .ranks.virtual_ranks = m->alone ? 1 : 8 };
    m->p = gckpt_plan_new(m->g, &loss, 1, &plan);
}

typedef struct { /* stores of the model, which their ranks save */
    gckpt_store *s[RANKS_MOST];
    gckpt_result saved[RANKS_MOST];
} savers;

/* Saves a store of the model; the plan, which the save needs for its executor, reads no parameter. */
static void save_filled(ranks_world *w, int rank, void *context)
{
    savers *all = (savers *)context;
    gckpt_store *s = all->s[rank];
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_fetch_spec fetch = { gckpt_relu(gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 3))), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &fetch, .fetch.count = 1 };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec_desc desc_exec = { .transport = &w->rank[rank].transport };
    gckpt_exec *e = gckpt_exec_new(p, s, &desc_exec);
    all->saved[rank] = e ? gckpt_ranks_save(e, path) : GCKPT_E_ARG;
    util_free(e, p, g, NULL);
}

/* Tests that any number of ranks with any kind of shard write the bytes of one process. */
static void test_any_number(void)
{
    gckpt_store *one = store_new(0, 1, GCKPT_SHARD_NONE, 1);
    file whole = { 0 };
    fill(one, 5);
    CHECK(gckpt_store_write(one, file_write, &whole, NULL) == GCKPT_OK);
    gckpt_store_free(one);
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++) {
            ranks_world w;
            savers all = { 0 };
            char bytes[4096];
            size_t n;
            file f = { 0 };
            clear();
            for (int k = 0; k < ranks; k++)
                fill(all.s[k] = store_new(k, ranks, (gckpt_shard)shard, 1), 5);
            ranks_open(&w, ranks);
            ranks_run(&w, save_filled, &all);
            ranks_close(&w);
            FILE *written = fopen(path, "rb");
            while (written && (n = fread(bytes, 1, sizeof bytes, written)) > 0)
                file_write(&f, bytes, n);
            if (written)
                fclose(written);
            for (int k = 0; k < ranks; k++) {
                CHECK_MSG(all.saved[k] == GCKPT_OK && same_file(&f, &whole), "%d of shard %d: %s", ranks, shard,
                          gckpt_error_text(all.s[k]));
                gckpt_store_free(all.s[k]);
            }
            free(f.bytes);
        }
    free(whole.bytes);
    CHECK(all_freed());
}

/* The program that each rank runs. */
static void rank_body(ranks_world *w, int rank, void *context)
{
    training *t = (training *)context;
    member *m = &t->m[rank];
    int64_t first;
    make_plan(m, m->block, rank, w->size, t->shard);
    if (t->loads)
        m->loaded = gckpt_store_load(m->s, path, NULL);
    gckpt_exec_desc desc_exec = { .transport = &w->rank[rank].transport };
    m->e = gckpt_exec_new(m->p, m->s, &desc_exec);
    if (!m->e) {
        snprintf(m->text, sizeof m->text, "%s",
                 gckpt_error_text(m->p ? (void *)m->s : (void *)m->g));
        m->saved = GCKPT_E_ARG;
        return;
    }
    int64_t rows = gckpt_plan_rank_rows(m->p, BATCH, rank, &first);
    train(m, first, rows, t->before);
    gckpt_store_set_note(m->s, "note", t->note);
    m->first = w->rank[rank].calls[RANKS_EXCHANGE] + 1;
    m->saved = gckpt_ranks_save(m->e, rank == t->lost ? "shards/no folder/x" : path);
    m->last = w->rank[rank].calls[RANKS_EXCHANGE];
    snprintf(m->text, sizeof m->text, "%s", m->saved == GCKPT_OK ? "" : gckpt_error_text(m->e));
    if (m->saved != GCKPT_OK && t->lost < 0)
        return;
    train(m, first, rows, t->after);
    gckpt_gather_values(m->e, -1, NULL, &m->hash);
}

static void run(ranks_world *w, training *t)
{
    memset(t->m, 0, sizeof t->m);
    for (int k = 0; k < w->size; k++)
        CHECK((t->m[k].block = malloc(BLOCK)) != NULL);
    ranks_run(w, rank_body, t);
    for (int k = 0; k < w->size; k++) {
        util_free(t->m[k].e, t->m[k].p, t->m[k].g, t->m[k].s);
        free(t->m[k].block);
    }
}

/* Tests that a save during a step is refused and that the step can go on; and that a save is refused while another
 * rank makes a different call. */
static void within_a_step(ranks_world *w, int rank, void *context)
{
    member *m = &((training *)context)->m[rank];
    float x[BATCH * 30] = { 0 }, y[BATCH * 3] = { 0 };
    const gckpt_feed feeds[2] = { { 0, x }, { 1, y } };
    const gckpt_hyper hyper = gckpt_hyper_lr(1e-3f);
    const gckpt_exec_desc desc = { .transport = &w->rank[rank].transport };
    make_plan(m, NULL, rank, w->size, GCKPT_SHARD_NONE);
    m->e = gckpt_exec_new(m->p, m->s, &desc);
    m->loaded = m->e ? gckpt_step_start(m->e, feeds, 2, BATCH, &hyper) : GCKPT_E_ARG;
    m->saved = gckpt_ranks_save(m->e, path);
    snprintf(m->text, sizeof m->text, "%s", gckpt_error_text(m->e));
    m->stepped = gckpt_run_some(m->e, INT32_MAX, NULL);
    m->agreed = rank ? gckpt_step(m->e, feeds, 2, BATCH, &hyper, NULL) : gckpt_ranks_save(m->e, path);
    snprintf(m->differs, sizeof m->differs, "%s", gckpt_error_text(m->e));
}

static void test_within_a_step(void)
{
    ranks_world w;
    training t = { .lost = -1 };
    ranks_open(&w, 2);
    clear();
    ranks_run(&w, within_a_step, &t);
    for (int k = 0; k < 2; k++) {
        member *m = &t.m[k];
        CHECK_MSG(m->loaded == GCKPT_OK && m->saved == GCKPT_E_ARG && strstr(m->text, "step: one is under way"), "%s",
                  m->text);
        CHECK(m->stepped == GCKPT_OK && gckpt_store_step(m->s) == 1 && files() == 0);
        CHECK_MSG(m->agreed == GCKPT_E_ARG && strstr(m->differs, "ranks 0 and 1 differ in the call they make"), "%s",
                  m->differs);
        util_free(m->e, m->p, m->g, m->s);
    }
    ranks_close(&w);
}

/* Tests that one process with one virtual rank, which has no status barrier, saves like several ranks. */
static void test_alone(void)
{
    member m = { .alone = 1 };
    gckpt_store *s = gckpt_store_new(NULL);
    clear();
    make_plan(&m, NULL, 0, 1, GCKPT_SHARD_NONE);
    m.e = gckpt_exec_new(m.p, m.s, NULL);
    train(&m, 0, BATCH, 2);
    CHECK_MSG(m.stepped == GCKPT_OK && gckpt_ranks_save(m.e, path) == GCKPT_OK && files() == 1, "%s",
              gckpt_error_text(m.e));
    CHECK_MSG(gckpt_store_load(s, path, NULL) == GCKPT_OK && gckpt_store_step(s) == 2, "%s", gckpt_error_text(s));
    CHECK(gckpt_store_hash(s) == gckpt_store_hash(m.s));
    gckpt_store_free(s);
    util_free(m.e, m.p, m.g, m.s);
}

/* Tests that gckpt_store_need returns exactly the bytes of a rank's store, and that the plan reports the bytes of its
 * parameters and state. */
static void test_need(void)
{
    ranks_world w;
    ranks_open(&w, 4);
    for (int i = 0; i < 8; i++) {
        training t = { .shard = (gckpt_shard)(i % 4), .lost = -1 };
        member *m = &t.m[0];
        int rank = i < 4 ? 0 : 3;
        make_plan(m, NULL, rank, 4, t.shard);
        size_t need = gckpt_store_need(m->p);
        char *block = (char *)malloc(need + 17);
        char *odd = block + (17 - (uintptr_t)block % 16) % 16;
        gckpt_exec_desc desc = { .transport = &w.rank[rank].transport };
        for (size_t less = 0; less < 2; less++) {
            gckpt_store_desc in = { .memory.memory = odd, .memory.size = need - less, .seed = 5 };
            gckpt_store *s = gckpt_store_new(&in);
            CHECK(gckpt_store_ranks(s, rank, 4, t.shard) == GCKPT_OK &&
                  gckpt_plan_params(m->p, s) == GCKPT_OK);
            gckpt_exec *e = gckpt_exec_new(m->p, s, &desc);
            CHECK_MSG((e != NULL) == !less, "shard %d, %d bytes: %s", i % 4, (int)(need - less),
                      gckpt_error_text(s));
            CHECK(!e ||
                  gckpt_store_bytes(s) == gckpt_plan_kind_bytes(m->p, GCKPT_BYTES_PARAMETERS) +
                                              gckpt_plan_kind_bytes(m->p, GCKPT_BYTES_STATE));
            util_free(e, NULL, NULL, s);
        }
        free(block);
        util_free(NULL, m->p, m->g, m->s);
    }
    ranks_close(&w);
}

/* Tests that any number of ranks can resume after any number of ranks was killed, with the bits of one process that
 * was never interrupted. */
static void test_resume(void)
{
    ranks_world w;
    training t = { .note = "resumed", .before = 4, .after = 2, .lost = -1 };
    ranks_open(&w, 1);
    run(&w, &t);
    ranks_close(&w);
    uint64_t whole = t.m[0].hash;
    CHECK_MSG(t.m[0].saved == GCKPT_OK && t.m[0].stepped == GCKPT_OK && whole, "%s", t.m[0].text);
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++) {
            clear();
            for (int part = 0; part < 2; part++) {
                t = (training){ .shard = (gckpt_shard)(part ? 3 - shard : shard),
                                .note = "part",
                                .loads = part,
                                .before = part ? 1 : 3,
                                .after = part ? 2 : 0,
                                .lost = -1 };
                ranks_open(&w, part ? 8 / ranks : ranks);
                run(&w, &t);
                ranks_close(&w);
                for (int k = 0; k < w.size; k++)
                    CHECK_MSG(t.m[k].loaded == GCKPT_OK && t.m[k].saved == GCKPT_OK &&
                                  t.m[k].stepped == GCKPT_OK && (!part || t.m[k].hash == whole),
                              "%d of shard %d: rank %d: %s", ranks, shard, k, t.m[k].text);
                CHECK(files() == 1);
            }
        }
}

/* Tests a transport that fails, hangs or ends the thread at any exchange of a save, and rank 0 not being able to
 * write the file. The paths of other ranks are ignored. */
static void test_faults(void)
{
    static const char *const notes[] = { "old", "new" };
    gckpt_store_desc desc = { .seed = 1 };
    ranks_world w;
    training t = { .shard = GCKPT_SHARD_STATE, .note = "old", .lost = -1 };
    clear();
    ranks_open(&w, 4);
    run(&w, &t);
    ranks_close(&w);
    const long first = t.m[1].first, last = t.m[1].last;
    CHECK(t.m[0].saved == GCKPT_OK && last >= first + 5 && files() == 1);
    for (int how = RANKS_FAILS; how <= RANKS_VANISHES; how++)
        for (int rank = 0; rank < 2; rank++)
            for (long at = first; at <= last; at++) {
                int survivors = 0;
                char temporary[80];
                ranks_open(&w, 4);
                w.fault = (ranks_fault){
                    .rank = rank, .call = RANKS_EXCHANGE, .how = (ranks_how)how, .at = at
                };
                t.note = "new";
                run(&w, &t);
                ranks_close(&w);
                for (int k = 0; k < 4; k++)
                    survivors += t.m[k].saved == GCKPT_OK;
                gckpt_store *s = gckpt_store_new(&desc);
                CHECK_MSG(gckpt_store_load(s, path, NULL) == GCKPT_OK, "%s", gckpt_error_text(s));
                const char *note = gckpt_store_note(s, "note");
                CHECK(note && (!strcmp(note, notes[0]) || !strcmp(note, notes[1])));
                CHECK_MSG(!note || !strcmp(note, "new") || !survivors || how >= RANKS_DIES,
                          "%d %d %ld: %d", how, rank, at, survivors);
                gckpt_store_free(s);
                snprintf(temporary, sizeof temporary, "%s.gckpt-tmp", path);
                remove(temporary); /* locked if a thread vanished while it wrote the file */
                ranks_open(&w, 4); /* so that the next fault begins from "old" */
                t.note = "old";
                run(&w, &t);
                ranks_close(&w);
                CHECK(t.m[3].saved == GCKPT_OK && files() == 1);
            }
    for (int rank = 0; rank < 4; rank++) {
        ranks_open(&w, 4);
        t = (training){
            .shard = GCKPT_SHARD_VALUES, .note = "new", .before = 1, .after = 1, .lost = rank
        };
        run(&w, &t);
        ranks_close(&w);
        for (int k = 0; k < 4; k++) {
            CHECK_MSG(rank ? t.m[k].saved == GCKPT_OK
                           : t.m[k].saved == GCKPT_E_FILE && strstr(t.m[k].text, "rank 0: ") &&
                                 strstr(t.m[k].text, "no folder"),
                      "%s", t.m[k].text);
            CHECK(t.m[k].stepped == GCKPT_OK && t.m[k].hash == t.m[0].hash); /* training goes on */
        }
        CHECK(files() == 1);
    }
}
#endif

/* Tests the exchange buffers of a plan with more than 67 million parameters (16,384 blocks). The buffers must hold
 * the sums of squares of all blocks at once, which are larger here than any other small message. */
static void test_space_for_squares(void)
{
    static const size_t blocks[5] = { 0, 16384, 16385, 20000, 1 << 20 };
    static gckpt_plan plan; /* a plan that has nothing except parameters */
    static gckpt_exec exec;
    exec.plan = &plan;
    for (int i = 0; i < 5; i++) {
        exec.update.square_count = blocks[i];
        const size_t space = gckpti_comm_buffer_bytes(&exec), need = blocks[i] * sizeof(float);
        CHECK_MSG(space == (need > 65536 ? need : 65536), "%lu blocks: buffers of %lu bytes",
                  (unsigned long)blocks[i], (unsigned long)space);
    }
}

int main(void)
{
    test_shard();
    test_space_for_squares();
    test_held();
#ifndef GCKPT_NO_DEVICES
    test_mirrors();
#endif
    test_refused();
    test_whole_file();
    CHECK(!mkdir("shards", 0777) || errno == EEXIST);
    strcpy(path, "shards/ckpt");
    clear();
#if RANKS_THREADS
    test_need();
    test_any_number();
    test_within_a_step();
    test_alone();
    test_resume();
    test_faults();
#endif
    clear();
    CHECK(!rmdir("shards"));
    return check_report("test_shards");
}
