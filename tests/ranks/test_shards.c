/* test_shards.c - stores of several ranks (src/store) and their checkpoints (src/files): each rank holds exactly its
 * shard, and any number of ranks can load a checkpoint that any number of ranks has saved. */
#define _XOPEN_SOURCE     700
#define _FILE_OFFSET_BITS 64
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GCKPTI_NO_HOOKS /* this file defines the hooks itself, as macros over the system's functions */
#include "num/num.h"
#include "store/internal.h"
#include "run/internal.h"
#include "files/internal.h"
#include "base/test_hooks.h"

/* ---- faults of the system: call number n fails, or the process ends in it ---- */
static long calls_made, fails_at, ends_at; /* calls count from 1; a fails_at or ends_at of 0 means never */
static int counting;                       /* if 0, calls are not counted and none fails */
static int fails(void)
{
    if (!counting)
        return 0;
    if (++calls_made == ends_at)
        _exit(7);
    errno = calls_made == fails_at ? EIO : errno;
    return calls_made == fails_at;
}

static FILE *test_fopen(const char *path, const char *mode)
{
    return fails() ? NULL : fopen(path, mode);
}
static FILE *test_fdopen(int fd, const char *mode) { return fails() ? NULL : fdopen(fd, mode); }
static size_t test_fread(void *to, size_t size, size_t n, FILE *f)
{
    return fread(to, size, fails() ? n / 2 : n, f);
}
static size_t test_fwrite(const void *from, size_t size, size_t n, FILE *f)
{
    return fwrite(from, size, fails() ? n / 2 : n, f);
}
static int test_fflush(FILE *f) { return fails() ? EOF : fflush(f); }
static int test_fseek(FILE *f, long at, int whence) { return fails() ? -1 : fseek(f, at, whence); }
static int test_fclose(FILE *f)
{
    int failed = fails();
    return fclose(f) || failed ? EOF : 0;
}
/* replaces fsync, which need not do anything, since this file tests no power cuts */
static int test_fsync(int fd) { return fails() ? -1 : fd < 0; }
static int test_rename(const char *from, const char *to) { return fails() ? -1 : rename(from, to); }
static int test_remove(const char *path) { return fails() ? -1 : remove(path); }
static int opens, too_many; /* too_many: number of the open that fails with EMFILE, or 0 */
static int test_open(const char *path, int flags, unsigned mode)
{
    if (++opens == too_many) {
        errno = EMFILE;
        return -1;
    }
    return fails() ? -1 : open(path, flags, mode);
}
static int test_stat(const char *path, struct stat *s) { return fails() ? -1 : stat(path, s); }
static int test_fstat(int fd, struct stat *s) { return fails() ? -1 : fstat(fd, s); }
static int test_flock(int fd, int how) { return fails() ? -1 : flock(fd, how); }
static int no_list; /* if 1, folders cannot be opened; if 2, they can be opened but not read */
static DIR *test_opendir(const char *path)
{
    errno = no_list == 1 ? EACCES : errno;
    return fails() || no_list == 1 ? NULL : opendir(path);
}
static struct dirent *test_readdir(DIR *d)
{
    errno = no_list == 2 ? EIO : errno;
    return fails() || no_list == 2 ? NULL : readdir(d);
}
static void watch(void)
{
    gckpti_test_hooks here = gckpti_hooks;
    here.fopen = test_fopen;
    here.fdopen = test_fdopen;
    here.fread = test_fread;
    here.fwrite = test_fwrite;
    here.fflush = test_fflush;
    here.fseek = test_fseek;
    here.fclose = test_fclose;
    here.fsync = test_fsync;
    here.rename = test_rename;
    here.remove = test_remove;
    here.open = test_open;
    here.stat = test_stat;
    here.fstat = test_fstat;
    here.flock = test_flock;
    here.opendir = test_opendir;
    here.readdir = test_readdir;
    gckpti_hooks = here;
}
#include "rank_threads.h"
#include "util.h"

static heap mem;

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
                   { "bytes", 2, { 29, 565 }, 0, GCKPT_STORAGE_I8 },
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
    gckpt_store_desc desc = { .memory = heap_memory(&mem), .seed = 3 };
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

/* Returns the scale of the row that contains element `at` of int8 parameter i. */
static float scale_of(int i, int64_t at) { return 0.5f + (float)(at / model[i].d[1]); }

/* Returns the value that fill() gives to element `at` of the values (slot -1) or of a state slot of parameter i; `salt`
 * tells trainings apart. For an int8 parameter, the value is the stored integer; the row's scale multiplies it. */
static float value_of(int i, int slot, int64_t at, unsigned salt)
{
    uint64_t state = (uint64_t)at * 64 + (uint64_t)(i * 6 + slot + 1) + ((uint64_t)salt << 40);
    uint32_t u = (uint32_t)next_random(&state) & 0xff7fffffu; /* no NaN */
    /* values that the scale of an int4 block represents exactly */
    if (slot < 0 && model[i].storage == GCKPT_STORAGE_I4)
        return (at % 32 ? (float)(u % 16) - 8 : -8) * (at / 32 % 3 ? 1 : 0.25f);
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
                gckpti_array(q, slot)[k] =
                    value_of(i, slot, first + k, salt) *
                    (model[i].storage == GCKPT_STORAGE_I8 ? scale_of(i, first + k) : 1);
        }
        for (int64_t k = 0; k < p.elements && p.quantised; k++) {
            float x = value_of(i, -1, k, salt);
            void *to = gckpti_values_block(q);
            if (p.storage == GCKPT_STORAGE_I8)
                ((float *)to)[k / model[i].d[1]] = scale_of(i, k);
            float block[32];
            for (int j = 0; j < 32; j++)
                block[j] = value_of(i, -1, k + j, salt);
            if (p.storage == GCKPT_STORAGE_I4)
                CHECK(k % 32 || gckpti_quantise_row(q, k, 32, block));
            else
                CHECK(p.storage == GCKPT_STORAGE_I8 || gckpti_quantise_row(q, k, 1, &x));
            if (p.storage == GCKPT_STORAGE_I8)
                ((signed char *)to)[gckpti_scale_bytes(&q->p) + (size_t)k] = (signed char)x;
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
                float x = value_of(i, slot, first + k, salt), y;
                if (slot < 0 && model[i].storage == GCKPT_STORAGE_I8)
                    x *= scale_of(i, first + k);
                if (slot < 0)
                    gckpti_dequantise_at(q, k, 1, &y);
                else
                    y = q->p.state[slot][k];
                same = bits_of(x) == bits_of(y);
            }
        }
    }
    return same;
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
                CHECK(!n || (gckpti_shard_owner(sizes[i], first, ranks) == rank &&
                             gckpti_shard_owner(sizes[i], first + n - 1, ranks) == rank));
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
                        CHECK(!memcmp(p.quantised, all.quantised,
                                      gckpti_values_bytes(&p) - gckpti_scale_bytes(&p)));
                    for (int64_t k = n; values && k < most; k++)
                        CHECK(p.values[k] == 0);
                }
                CHECK(gckpt_store_bytes(s) == bytes);
                CHECK(gckpt_store_hash(s) ==
                      (shard == GCKPT_SHARD_VALUES ? 0 : gckpt_store_hash(whole)));
                fill(s, 1);
                CHECK(holds(s, 1) && gckpt_store_reset(s, "*") == GCKPT_OK && !holds(s, 1));
                for (int64_t k = 0; k < gckpti_array_shard(s, &s->params[1], 0).capacity; k++)
                    CHECK(s->params[1].p.state[1][k] == 0);
                gckpt_store_free(s);
            }
    init.normal = init.uniform = 0;
    gckpt_store_free(whole);
    CHECK(mem.live == 0 && mem.wrong_sizes == 0);
}

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
            CHECK(gckpti_bind(s, &binding, &b));
            for (size_t i = 0; i < s->count; i++) {
                gckpti_param *q = &s->params[i];
                CHECK(gckpti_push(s, q, &b));
                for (int slot = -1; slot < gckpti_state_slots(q); slot++)
                    memset(gckpti_array(q, slot), 0x55, gckpti_array_bytes(s, q, slot + 1));
                gckpti_mark_changed(s, q, GCKPTI_MIRROR);
            }
            CHECK(mirrored == gckpt_store_bytes(s) && !holds(s, 4));
            float space[GCKPTI_CHUNK];
            int64_t n, first = s->params[1].p.first;
            const float *x =
                gckpti_values_at(s, &s->params[1], first, space, &n); /* where the values are */
            CHECK(n > 0 && bits_of(x[n - 1]) == bits_of(value_of(1, -1, first + n - 1, 4)));
            CHECK(gckpt_store_pull(s, "*") == GCKPT_OK && holds(s, 4));
            gckpti_unbind(&binding);
            CHECK(mirrored == 0);
            gckpt_store_free(s);
        }
    CHECK(mem.live == 0);
}

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
        CHECK(strstr(gckpt_error_text(s), "power of two") && s->ranks == 1);
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
    CHECK(mem.live == 0);
}

/* A gckpt_file_desc.axes: reverses the axes of a parameter, except those of parameters stored as int8 or int4. */
static int reverse_axes(void *user, const char *name, gckpt_shape shape, int *axes)
{
    (void)user;
    for (int i = begin; i < end; i++)
        if (!strcmp(model[i].name, name) && model[i].storage >= GCKPT_STORAGE_I8)
            return 0;
    for (int i = 0; i < shape.n; i++)
        axes[i] = shape.n - 1 - i;
    return shape.n;
}

/* Tests that each rank reads its shard from a file that one process wrote, from any type to any storage, also with
 * permuted axes. A rank's own write must be refused if the file would need a sharded array: values (values_only), or
 * values and state. */
static void test_whole_file(void)
{
    for (int from = 0; from < 2; from++) {
        gckpt_store *one = store_new(0, 1, GCKPT_SHARD_NONE, from);
        file f = { 0 }, again = { 0 }, reversed = { 0 };
        const gckpt_file_desc reversing = { .axes = reverse_axes };
        fill(one, 2);
        CHECK_MSG(gckpt_store_write_as(one, file_write, &reversed, &reversing) == GCKPT_OK, "%s",
                  gckpt_error_text(one));
        CHECK(holds(one, 2) && gckpt_store_write(one, file_write, &f) == GCKPT_OK);
        for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++)
            for (int rank = 0; rank < 4; rank++)
                for (int made = 0; made < 2 && check_sampled((unsigned)(4 * shard + rank), 3); made++) {
                    gckpt_store *s = store_new(rank, 4, (gckpt_shard)shard, from && rank > 1);
                    if (made)
                        fill(s, 1);
                    f.at = reversed.at = 0;
                    gckpt_result result =
                        gckpt_store_read_as(s, file_read, &reversed, reversed.size, &reversing);
                    CHECK_MSG(result == GCKPT_OK && holds(s, 2), "%s", gckpt_error_text(s));
                    if (made)
                        fill(s, 1);
                    CHECK_MSG(gckpt_store_read(s, file_read, &f, f.size) == GCKPT_OK && holds(s, 2),
                              "%s", gckpt_error_text(s));
                    result = gckpt_store_write(s, file_write, &again);
                    CHECK(shard ? result == GCKPT_E_ARG &&
                                      strstr(gckpt_error_text(s), "gckpt_ranks_save") && !again.size
                                : result == GCKPT_OK && (rank < 2 || same_file(&f, &again)));
                    again.size = f.at = 0;
                    CHECK(gckpt_store_read(s, file_read, &f, f.size - 1) == GCKPT_E_DATA &&
                          holds(s, 2));
                    gckpt_file_desc values = { .values_only = 1 };
                    CHECK(gckpt_store_write_as(s, file_write, &again, &values) ==
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
            result = gckpt_store_read(s, file_read, &copy, f.size);
            CHECK_MSG(result == GCKPT_OK || n % 7 || holds(s, 1), "read %d", (int)n);
        }
        CHECK(result == GCKPT_OK && holds(s, 2));
        gckpt_store_free(s);
        free(f.bytes);
        free(again.bytes), free(reversed.bytes);
        gckpt_store_free(one);
    }
    CHECK(mem.live == 0);
}

/* ---- checkpoints of several ranks ---- */
static char path[64], error_text[600];

/* Saves one checkpoint of all ranks in one thread: each step of gckpt_ranks_save for one rank after the other, then
 * the next step. */
static gckpt_result save_all(gckpt_store **s, int ranks)
{
    gckpti_rank_save x[8];
    gckpt_result result = GCKPT_OK, each;
    for (int k = 0; k < ranks; k++) {
        each = gckpti_rank_save_start(&x[k], s[k], path);
        result = result == GCKPT_OK ? each : result;
        x[k].number = x[0].number;
    }
    int parts = result == GCKPT_OK;
    for (int k = 0; k < ranks && parts; k++) {
        each = gckpti_rank_save_part(&x[k]);
        result = result == GCKPT_OK ? each : result;
    }
    if (result == GCKPT_OK)
        result = gckpti_rank_save_commit(&x[0]);
    else
        for (int k = 0; k < ranks && parts; k++)
            test_remove(gckpti_part_path(&x[k], x[k].number, k));
    for (int k = 0; k < ranks; k++)
        gckpti_rank_save_end(&x[k]);
    return result;
}

/* Makes stores for `ranks` ranks, fills them with this salt and saves them. */
static gckpt_result save_by(int ranks, gckpt_shard shard, unsigned salt)
{
    gckpt_store *s[8];
    for (int k = 0; k < ranks; k++)
        fill(s[k] = store_new(k, ranks, shard, 1), salt);
    gckpt_result result = save_all(s, ranks);
    *error_text = 0;
    for (int k = 0; k < ranks; k++) {
        if (gckpt_error(s[k]) == result && result != GCKPT_OK)
            snprintf(error_text, sizeof error_text, "%s", gckpt_error_text(s[k]));
        gckpt_store_free(s[k]);
    }
    return result;
}

/* Returns whether every step-th of `ranks` ranks can load the checkpoint and then has the values of this salt. */
static int loads_some(int ranks, gckpt_shard shard, unsigned salt, int step)
{
    int good = 1;
    for (int k = (int)salt % step; k < ranks; k += step) {
        gckpt_store *s = store_new(k, ranks, shard, 1);
        if (k % 2)
            fill(s, 99);
        good = good && gckpt_ranks_load(s, path) == GCKPT_OK && holds(s, salt);
        gckpt_store_free(s);
    }
    return good;
}

static int loads(int ranks, gckpt_shard shard, unsigned salt)
{
    return loads_some(ranks, shard, salt, 1);
}

/* Returns the number of files in the folder. */
static int files(void)
{
    int n = -2; /* does not count . and .. */
    DIR *d = opendir("shards");
    while (d && readdir(d))
        n++;
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

/* Tests that any number of ranks with any kind of shard can load what any number of ranks with any kind of shard
 * saved. */
static void test_any_number(void)
{
    gckpt_store *one = store_new(0, 1, GCKPT_SHARD_NONE, 1), *empty = gckpt_store_new(NULL);
    file whole = { 0 }, again = { 0 };
    unsigned salt = 10, saves = 1; /* saves: number of the last save, which its file names contain */
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int shard = GCKPT_SHARD_NONE; shard <= GCKPT_SHARD_VALUES; shard++) {
            /* each save gets another salt, from 11 to 26; the last checkpoint is loaded once more after the loop */
            salt++;
            if (!check_sampled(salt, 3) && salt < 26)
                continue;
            saves++;
            CHECK(save_by(ranks, (gckpt_shard)shard, salt) == GCKPT_OK && files() == ranks + 1);
            for (int by = 2; by <= 8; by *= 2) {
                gckpt_shard as = (gckpt_shard)((shard + by) % 4);
                CHECK_MSG(loads_some(by, as, salt, by / 2), "%d of shard %d to %d of %d", ranks,
                          shard, by, (int)as);
            }
            /* a process that has loaded the checkpoint writes a plain file equal to that of a training in one
             * process */
            fill(one, salt);
            whole.size = again.size = 0;
            CHECK(gckpt_store_write(one, file_write, &whole) == GCKPT_OK);
            fill(one, 99);
            CHECK(gckpt_ranks_load(one, path) == GCKPT_OK && holds(one, salt));
            CHECK(gckpt_store_write(one, file_write, &again) == GCKPT_OK &&
                  same_file(&whole, &again));
        }
    /* new files must have the permissions of the existing index */
    struct stat like;
    CHECK(!chmod(path, 0640) && save_by(2, GCKPT_SHARD_NONE, salt) == GCKPT_OK);
    CHECK(!stat(path, &like) && (like.st_mode & 0777) == 0640);
    char name[48];
    snprintf(name, sizeof name, "shards/ckpt.%u-1.safetensors", saves);
    CHECK(!stat(name, &like) && (like.st_mode & 0777) == 0640);
    CHECK_MSG(gckpt_ranks_load(empty, path) == GCKPT_OK, "%s", gckpt_error_text(empty));
    again.size = 0;
    CHECK(gckpt_store_write(empty, file_write, &again) == GCKPT_OK &&
          again.size > whole.size); /* all tensors as F32 */
    CHECK(gckpt_store_hash(empty) == gckpt_store_hash(one));
    gckpt_store_free(empty);
    gckpt_store_free(one);
    free(whole.bytes);
    free(again.bytes);
    CHECK(mem.live == 0 && mem.wrong_sizes == 0);
}

/* Lets every system call of a save fail, or end the process, on any rank. Afterwards the old checkpoint or the new
 * one can be loaded, and a failed save leaves only files of these two checkpoints. */
static void test_every_call(int ranks)
{
    const int fewer = ranks > 1 ? ranks / 2 : 1;
    int n = 0, was_new = 0, status, ended = 0;
    begin = 3, end = 5;
    for (; !ended && n < 2000; n++) {
        clear();
        CHECK(save_by(2, GCKPT_SHARD_STATE, 1) == GCKPT_OK);
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            calls_made = 0;
            ends_at = n + 1;
            counting = 1;
            const gckpt_result result = save_by(ranks, GCKPT_SHARD_VALUES, 2);
            counting = 0;
            exit(result != GCKPT_OK);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
        ended = WEXITSTATUS(status) != 7;
        CHECK(!ended || !WEXITSTATUS(status));
        int is_new = loads(1, GCKPT_SHARD_NONE, 2);
        CHECK_MSG(is_new || (!was_new && loads(1, GCKPT_SHARD_NONE, 1)), "killed at %d", n + 1);
        CHECK_MSG(is_new >= was_new && loads(4, GCKPT_SHARD_GRADIENTS, 1 + (unsigned)is_new),
                  "killed at %d", n + 1);
        was_new = is_new;
        /* the next save, by at most as many ranks, must remove all files of the interrupted save */
        CHECK(save_by(fewer, GCKPT_SHARD_GRADIENTS, 3) == GCKPT_OK &&
              loads(2, GCKPT_SHARD_VALUES, 3));
        CHECK_MSG(files() == fewer + 1, "killed at %d: %d files", n + 1, files());
    }
    CHECK(ended && was_new && n > 30);
    for (int i = 0, done = 0; !done && i < 2000; i++) {
        clear();
        CHECK(save_by(2, GCKPT_SHARD_STATE, 1) == GCKPT_OK);
        calls_made = 0;
        fails_at = i + 1;
        counting = 1;
        gckpt_result result = save_by(ranks, GCKPT_SHARD_VALUES, 2);
        counting = 0;
        done = calls_made < fails_at;
        fails_at = 0;
        int is_new =
            result == GCKPT_OK || strstr(error_text, "but it is in place: \"shards/ckpt\"");
        CHECK(result == (done ? GCKPT_OK : result == GCKPT_OK ? GCKPT_OK : GCKPT_E_FILE));
        CHECK_MSG(loads(1, GCKPT_SHARD_NONE, 1 + (unsigned)is_new), "failed at %d: %s", i + 1,
                  error_text);
        /* the 2 old shard files stay if the new index is in place but may not survive a power cut */
        int left = files() - (is_new ? ranks : 2) - 1;
        CHECK_MSG(result == GCKPT_OK ? left >= 0 && left <= 2 : left == (is_new ? 2 : 0),
                  "failed at %d: %d too many", i + 1, left);
        CHECK(save_by(fewer, GCKPT_SHARD_GRADIENTS, 3) == GCKPT_OK);
        CHECK_MSG(files() == fewer + 1, "failed at %d: %d files", i + 1, files());
    }
    begin = 0, end = MODEL;
    CHECK(mem.live == 0);
}

/* ---- damaged files ---- */
static file file_of(const char *name)
{
    file f = { 0 };
    unsigned char block[512];
    char full[300];
    snprintf(full, sizeof full, "shards/%s", name);
    FILE *from = fopen(full, "rb");
    CHECK_MSG(from != NULL, "%s", full);
    for (size_t n = 1; from && n > 0;) {
        n = fread(block, 1, sizeof block, from);
        file_write(&f, block, n);
    }
    if (from)
        fclose(from);
    return f;
}

static void put_file(const char *name, const file *f, size_t size)
{
    char full[300];
    snprintf(full, sizeof full, "shards/%s", name);
    FILE *to = fopen(full, "wb");
    CHECK(to && fwrite(f->bytes, 1, size, to) == size && !fclose(to));
}

/* Writes the index `f` with the first occurrence of `from` replaced by `to`, and with a correct checksum. */
static void put_index(const file *f, const char *from, const char *to)
{
    file out = { 0 };
    char check[40];
    const char *text = (const char *)f->bytes, *at = strstr(text, from);
    const char *last = strstr(text, ",\"check\"");
    CHECK_MSG(at && last && at < last, "%s", from);
    if (at && last) {
        file_write(&out, text, (size_t)(at - text));
        file_write(&out, to, strlen(to));
        at += strlen(from);
        file_write(&out, at, (size_t)(last - at));
        snprintf(check, sizeof check, ",\"check\":\"%llu\"}\n",
                 (unsigned long long)gckpti_fnv(UINT64_C(0xcbf29ce484222325), out.bytes, out.size));
        file_write(&out, check, strlen(check));
        put_file("ckpt", &out, out.size);
    }
    free(out.bytes);
}

/* Returns whether a load into this store, which holds the values of salt 9, and into an empty one is refused with
 * this result and error text, and leaves the store as it was. */
static int refused(gckpt_store *s, gckpt_result why, const char *text)
{
    gckpt_store_desc desc = { .memory = heap_memory(&mem), .seed = 1 };
    gckpt_store *empty = gckpt_store_new(&desc);
    gckpt_result a = gckpt_ranks_load(s, path), b = gckpt_ranks_load(empty, path);
    int good = a == why && b == why && holds(s, 9) && !gckpt_store_count(empty) &&
               !gckpt_store_note(empty, "note") && strstr(gckpt_error_text(s), text) &&
               strstr(gckpt_error_text(s), path);
    if (!good)
        printf("%d %d: %s (\"%s\" expected)\n", a, b, gckpt_error_text(s), text);
    gckpt_store_free(empty);
    return good;
}

static void test_damage(void)
{
    gckpt_store *s = store_new(0, 1, GCKPT_SHARD_NONE, 1);
    static const char *const names[] = { "ckpt", "ckpt.2-0.safetensors", "ckpt.2-1.safetensors" };
    file f[3];
    size_t live;
    begin = 3, end = 5;
    gckpt_store_free(s);
    fill(s = store_new(0, 1, GCKPT_SHARD_NONE, 1), 9);
    clear();
    CHECK(save_by(2, GCKPT_SHARD_VALUES, 7) == GCKPT_OK &&
          save_by(2, GCKPT_SHARD_NONE, 8) == GCKPT_OK);
    for (int i = 0; i < 3; i++)
        f[i] = file_of(names[i]);
    live = mem.live;
    for (int i = 0; i < 3; i++) {
        size_t header = i ? 8 + f[i].bytes[0] + 256u * f[i].bytes[1] : f[i].size;
        for (size_t k = 0; k < f[i].size; k += k < header || k + 70 > f[i].size ? 1 : 1009) {
            f[i].bytes[k] ^= (unsigned char)(1u << k % 8);
            put_file(names[i], &f[i], f[i].size);
            CHECK_MSG(gckpt_ranks_load(s, path) == GCKPT_E_DATA && holds(s, 9) && mem.live == live,
                      "%s, byte %d: %s", names[i], (int)k, gckpt_error_text(s));
            f[i].bytes[k] ^= (unsigned char)(1u << k % 8);
        }
        /* cuts the file off at several places, then makes it one byte too long */
        for (size_t k = 0; k < f[i].size; k += f[i].size / 9) {
            put_file(names[i], &f[i], k);
            CHECK(refused(s, GCKPT_E_DATA, i ? "cut off" : "not the index"));
        }
        if (i) { /* a shard file without a header, and one without space for all checksums */
            put_file(names[i], &f[i], 8 + f[i].size - header - 1);
            CHECK(refused(s, GCKPT_E_DATA, "cut off"));
        }
        file_write(&f[i], "\n", 1);
        put_file(names[i], &f[i], f[i].size);
        CHECK(refused(s, GCKPT_E_DATA, i ? "damaged" : "not the index"));
        put_file(names[i], &f[i], --f[i].size);
    }
    /* replaces a rank's file by another rank's, by a file of another save with the same size, and by no file */
    put_file(names[1], &f[2], f[2].size);
    CHECK(refused(s, GCKPT_E_DATA, "\"ckpt.2-0.safetensors\" is not what was saved with it"));
    CHECK(save_by(2, GCKPT_SHARD_VALUES, 6) == GCKPT_OK);
    file other = file_of("ckpt.3-1.safetensors");
    CHECK(other.size == f[2].size);
    put_file("ckpt", &f[0], f[0].size);
    put_file(names[1], &f[1], f[1].size);
    put_file(names[2], &other, other.size);
    CHECK(refused(s, GCKPT_E_DATA, "\"ckpt.2-1.safetensors\" is not what was saved with it"));
    remove("shards/ckpt.2-1.safetensors");
    CHECK(refused(s, GCKPT_E_FILE,
                  "No such file or directory: could not read \"ckpt.2-1.safetensors\""));
    put_file(names[2], &f[2], f[2].size);
    CHECK(gckpt_ranks_load(s, path) == GCKPT_OK && holds(s, 8));
    fill(s, 9);
    /* indexes with wrong contents but a correct checksum */
    static const struct {
        const char *from, *to, *text;
    } wrong[] = {
        { "{\"gckpt\":[1,", "{\"gckpt\":[2,", "version 2" },
        { "{\"gckpt\":[1,2,", "{\"gckpt\":[1,", "a list of whole numbers" },
        { "{\"gckpt\":[1,2,", "{\"gckpt\":[1,2,9", "of data" },
        { "\"files\"", "\"filed\"", "another key" },
        { "{\"gckpt\":", "{\"gckpt\";", "':' expected" },
        { "},\"tensors\"", "]},\"tensors\"", "',' expected" },
        { "\"tensors\":{", "\"tensor\":{", "another key" },
        { "\"ckpt.2-0.safetensors\":", "\"../shards/ckpt.2-0.safetensors\":",
          "too long or contains a folder" },
        { "\"ckpt.2-0.safetensors\":", "\"\":", "too long or contains a folder" },
        { "\"files\":{", "\"files\":{\"x\":[1,2],", "power of two" },
        { "\"files\":{", "\"files\":{\"x\":[1,2],\"y\":[9,2],", "\"x\"" },
        { "\"files\":{\"ckpt.2-0.safetensors\":[", "\"files\":{\"ckpt.2-0.safetensors\":[9",
          "expected" },
        { "\"files\":{\"ckpt.2-0.safetensors\":[", "\"files\":{\"ckpt.2-0.safetensors\":[1,",
          "a list of whole numbers" },
        { "\"b\":{\"dtype\":\"F32\",\"shape\":[7]", "\"b\":{\"dtype\":\"F32\",\"shape\":[8]",
          "data_offsets" },
        { "\"odd\":{", "\"even\":{", "even" },
        { "\"odd\":{", "\"b\":{", "b" },
        { "[4097],\"data_offsets\":[", "[1,4097],\"data_offsets\":[", "" },
        { "\"tensors\":{", "\"tensors\":[", "'{' expected" },
        { "\"step\":\"28\"", "\"step\":\"x\"", "step must be a whole number" },
        { "}}", "}} x", "only spaces" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put_index(&f[0], wrong[i].from, wrong[i].to);
        gckpt_result result = gckpt_ranks_load(s, path);
        CHECK_MSG(result != GCKPT_OK && holds(s, 9) && strstr(gckpt_error_text(s), wrong[i].text),
                  "%s: %s", wrong[i].to, gckpt_error_text(s));
    }
    /* an index that names no files, a name longer than any path, and an end that cannot be a checksum */
    char listed[200] = "", long_name[1200];
    const char *from = strstr((const char *)f[0].bytes, "\"files\":{");
    memcpy(listed, from, (size_t)(strchr(from, '}') - from) + 1);
    put_index(&f[0], listed, "\"files\":{}");
    CHECK(refused(s, GCKPT_E_DATA, "power of two"));
    snprintf(long_name, sizeof long_name, "\"files\":{\"%01100d\":[1,2],", 0);
    put_index(&f[0], "\"files\":{", long_name);
    CHECK(refused(s, GCKPT_E_DATA, "too long or contains a folder"));
    file endless = { 0 };
    file_write(&endless, "{\"gckpt\":[1,2,3]", 16);
    for (int i = 0; i < 100; i++)
        file_write(&endless, " ", 1);
    put_file("ckpt", &endless, endless.size);
    CHECK(refused(s, GCKPT_E_DATA, "not the index"));
    free(endless.bytes);
    /* an invalid index with a correct checksum: the next save must not take the files that the index names for its
     * own */
    put_index(&f[0], "\"tensors\":{", "\"tensor\":{");
    CHECK(save_by(2, GCKPT_SHARD_VALUES, 8) == GCKPT_OK && loads(1, GCKPT_SHARD_NONE, 8) && files() == 3);
    clear();
    for (int i = 0; i < 3; i++)
        put_file(names[i], &f[i], f[i].size);
    /* the size of data that an index claims is compared with the file before memory is allocated */
    static const char large[] =
        "{\"gckpt\":[1,2,67108864],\"files\":{\"ckpt.2-0.safetensors\":[1,2]},\"tensors\":{\"large\":{"
        "\"dtype\":\"F32\",\"shape\":[16777216],\"data_offsets\":[0,67108864]}},\"check\":\"0\"}\n";
    file claim = { 0 };
    file_write(&claim, large, sizeof large - 1);
    put_index(&claim, "large", "large");
    mem.peak = mem.live;
    CHECK(refused(s, GCKPT_E_DATA, "\"large\"") && mem.peak < live + 100000);
    free(claim.bytes);
    put_file("ckpt", &f[0], f[0].size);
    /* an index cannot be loaded as a plain file, nor a plain file as an index */
    CHECK(gckpt_store_load(s, path) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "gckpt_ranks_load"));
    CHECK(gckpt_store_load(s, "shards/ckpt.2-0.safetensors") == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "gckpt_ranks_load") && holds(s, 9));
    CHECK(gckpt_store_save(s, "shards/plain") == GCKPT_OK &&
          gckpt_ranks_load(s, "shards/plain") == GCKPT_E_DATA);
    CHECK(strstr(gckpt_error_text(s), "gckpt_store_load"));
    CHECK(gckpt_ranks_load(s, "shards/none") == GCKPT_E_FILE &&
          gckpt_ranks_load(s, NULL) == GCKPT_E_ARG && gckpt_ranks_load(NULL, path) == GCKPT_E_ARG);
    gckpti_rank_save none; /* paths to which a save is refused */
    CHECK(gckpti_rank_save_start(&none, s, NULL) == GCKPT_E_ARG);
    gckpti_rank_save_end(&none);
    CHECK(gckpti_rank_save_start(&none, s, "shards/\xff") == GCKPT_E_ARG &&
          strstr(gckpt_error_text(s), "must be UTF-8"));
    gckpti_rank_save_end(&none);
    CHECK(!symlink("loop", "shards/loop"));
    CHECK(gckpti_rank_save_start(&none, s, "shards/loop") == GCKPT_E_FILE &&
          strstr(gckpt_error_text(s), "save: ") && strstr(gckpt_error_text(s), "shards/loop"));
    gckpti_rank_save_end(&none);
    CHECK(gckpt_ranks_load(s, "shards/loop") == GCKPT_E_FILE && holds(s, 9) && !unlink("shards/loop"));
    CHECK(gckpt_ranks_save(NULL, path) == GCKPT_E_ARG);
    for (int i = 0; i < 3; i++)
        free(f[i].bytes);
    free(other.bytes);
    gckpt_store_free(s);
    begin = 0, end = MODEL;
    CHECK(mem.live == 0);
}

/* Lets each system call and each allocation of a load fail, and each opened file be one too many for the process.
 * Afterwards the store is unchanged, or has the saved values. */
static void test_load_fails(void)
{
    begin = 3, end = 5;
    clear();
    CHECK(save_by(2, GCKPT_SHARD_VALUES, 8) == GCKPT_OK);
    for (int what = 0; what < 3; what++)
        /* kinds of store: of one rank, of one of four ranks, and without parameters */
        for (int kind = 0; kind < 3; kind++) {
            int done = 0;
            for (int n = 1; !done && n < 300; n++) {
                gckpt_store_desc desc = { .memory = heap_memory(&mem), .seed = 1 };
                gckpt_store *s = kind == 2 ? gckpt_store_new(&desc)
                                           : store_new(2 * kind, kind ? 4 : 1, GCKPT_SHARD_VALUES, 1);
                if (kind < 2)
                    fill(s, 9);
                calls_made = opens = 0;
                fails_at = what == 0 ? n : 0;
                mem.fail_at = what == 1 ? mem.calls + n : 0;
                too_many = what == 2 ? n : 0;
                counting = 1;
                const gckpt_result result = gckpt_ranks_load(s, path);
                counting = 0;
                done = what == 0 ? calls_made < n : what == 1 ? mem.calls < mem.fail_at : opens < n;
                mem.fail_at = fails_at = too_many = 0;
                const int as_was = kind < 2 ? holds(s, 9) : !gckpt_store_count(s);
                const int loaded = kind < 2 ? holds(s, 8) : gckpt_store_count(s) == 2;
                CHECK_MSG(result == GCKPT_OK ? loaded : as_was && !strncmp(gckpt_error_text(s), "load: ", 6),
                          "%d %d %d: %s", what, kind, n, gckpt_error_text(s));
                CHECK_MSG(what == 0   ? result == GCKPT_OK || result == GCKPT_E_FILE || result == GCKPT_E_DATA
                          : what == 1 ? result == (done ? GCKPT_OK : GCKPT_E_MEMORY)
                                      : result == (n == 1 ? GCKPT_E_FILE : GCKPT_OK),
                          "%d %d %d: %s", what, kind, n, gckpt_error_text(s));
                gckpt_store_free(s);
            }
            CHECK(done);
        }
    begin = 0, end = MODEL;
    CHECK(mem.live == 0);
}

/* Tests that an index larger than readers accept is not written, and that the existing checkpoint stays. */
static void test_large_index(void)
{
    enum { N = 16700000 }; /* number of elements that each take six characters in JSON */
    begin = 3, end = 5;
    clear();
    CHECK(save_by(1, GCKPT_SHARD_NONE, 8) == GCKPT_OK);
    gckpt_store *s = store_new(0, 1, GCKPT_SHARD_NONE, 1);
    char *text = (char *)malloc(N + 1);
    memset(text, 1, N);
    text[N] = 0;
    fill(s, 9);
    CHECK(gckpt_store_set_note(s, "n", text) == GCKPT_OK && save_all(&s, 1) == GCKPT_E_DATA);
    CHECK_MSG(strstr(gckpt_error_text(s), "save: the index would take "), "%s", gckpt_error_text(s));
    CHECK(loads(1, GCKPT_SHARD_NONE, 8) && files() == 2);
    free(text);
    gckpt_store_free(s);
    begin = 0, end = MODEL;
    CHECK(mem.live == 0);
}

/* Tests an index that fits into memory but names a huge number of tensors and files, which would take hours to load:
 * the load must be refused at once. */
static void test_many_pieces(void)
{
    enum { FILES = 1 << 15, TENSORS = (1 << 13) + 1 };
    gckpt_store_desc desc = { .memory = heap_memory(&mem), .seed = 1 };
    gckpt_store *s = gckpt_store_new(&desc);
    file f = { 0 };
    char text[120];
    snprintf(text, sizeof text, "{\"gckpt\":[1,2,%d],\"files\":{", 4 * TENSORS);
    file_write(&f, text, strlen(text));
    for (int i = 0; i < FILES; i++) {
        snprintf(text, sizeof text, "%s\"%d\":[1,2]", i ? "," : "", i);
        file_write(&f, text, strlen(text));
    }
    file_write(&f, "},\"tensors\":{", 13);
    for (int i = 0; i < TENSORS; i++) {
        snprintf(text, sizeof text, "%s\"t%d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                 i ? "," : "", i, 4 * i, 4 * i + 4);
        file_write(&f, text, strlen(text));
    }
    file_write(&f, "},\"check\":\"0\"}\n", 15);
    put_index(&f, "{\"gckpt\"", "{\"gckpt\"");
    CHECK_MSG(gckpt_ranks_load(s, path) == GCKPT_E_DATA && strstr(gckpt_error_text(s), "8193 tensors in 32768 files"),
              "%s", gckpt_error_text(s));
    CHECK(gckpt_store_count(s) == 0);
    free(f.bytes);
    gckpt_store_free(s);
    clear();
}

/* ---- which files a save removes: those of earlier saves, but no files of other programs ---- */
static void put_text(const char *name, const char *text)
{
    file f = { 0 };
    file_write(&f, text, strlen(text));
    put_file(name, &f, f.size);
    free(f.bytes);
}

static int is_there(const char *name)
{
    char full[300];
    struct stat s;
    snprintf(full, sizeof full, "shards/%s", name);
    return !lstat(full, &s);
}

/* Starts a save by `ranks` ranks that is killed before the index is written; only the ranks whose bit in `which` is
 * set have written their files. */
static void break_save(int ranks, unsigned which, unsigned salt)
{
    gckpti_rank_save x[8];
    gckpt_store *s[8];
    for (int k = 0; k < ranks; k++) {
        fill(s[k] = store_new(k, ranks, GCKPT_SHARD_VALUES, 1), salt);
        CHECK(gckpti_rank_save_start(&x[k], s[k], path) == GCKPT_OK);
        x[k].number = x[0].number;
        CHECK(!(which >> k & 1) || gckpti_rank_save_part(&x[k]) == GCKPT_OK);
    }
    for (int k = 0; k < ranks; k++) {
        gckpti_rank_save_end(&x[k]);
        gckpt_store_free(s[k]);
    }
}

/* Tests that one save removes all files that interrupted saves have left, even if files of some ranks or some save
 * numbers are missing. */
static void test_left(void)
{
    static const char *const left[] = { "ckpt.gckpt-tmp0", "ckpt.gckpt-tmp7",
                                        "ckpt.2-6.safetensors.gckpt-tmp0",
                                        "ckpt.2-300.safetensors.gckpt-tmp2",
                                        "ckpt.40-0.safetensors.gckpt-tmp0" };
    begin = 3, end = 5;
    for (int old = 0; old < 2; old++) {
        clear();
        if (old)
            CHECK(save_by(2, GCKPT_SHARD_STATE, 1) == GCKPT_OK);
        break_save(8, 0xaf, 2); /* all ranks except 4 and 6 */
        for (size_t i = 0; i < sizeof left / sizeof *left; i++)
            put_text(left[i], "half");
        for (int number = 9; number < 90; number += 40) { /* further leftovers, with gaps between the save numbers */
            char name[60];
            file f = file_of(old ? "ckpt.2-7.safetensors" : "ckpt.1-7.safetensors");
            snprintf(name, sizeof name, "ckpt.%d-7.safetensors", number);
            put_file(name, &f, f.size);
            free(f.bytes);
        }
        CHECK(files() == 6 + 3 * old + 5 + 3);
        if (old)
            CHECK(loads(1, GCKPT_SHARD_NONE, 1));
        CHECK(save_by(2, GCKPT_SHARD_STATE, 3) == GCKPT_OK && loads(2, GCKPT_SHARD_NONE, 3));
        CHECK_MSG(files() == 3, "%d files", files());
    }
    begin = 0, end = MODEL;
}

/* Tests that files of other programs with names like those of shard files are neither overwritten nor removed,
 * whatever number the save gets. */
static void test_others(void)
{
    static const char *const texts[] = {
        "ckpt.3-1.safetensors",     "ckpt.4-0.safetensors",
        "ckpt.4-2.safetensors",     "ckpt.05-0.safetensors",
        "ckpt.5-0.safetensors.bak", "ckpt.5-00.safetensors",
        "ckpt.5-0.safetensor",      "ckpt.x-0.safetensors",
        "my.ckpt.5-0.safetensors",  "ckpt.gckpt-tmp",
        "ckpt.gckpt-tmp0.old",      "ckpt.5.gckpt-tmp0",
        "ckpt.5-0.safetensors.gz",  "ckptgckpt-tmp0",
        "ckpt5-0.safetensors",      "ckpt.5-.safetensors",
        "ckpt.-0.safetensors",      "ckpt.5-0.safetensors2",
        "ckpt.9-0.safetensors",     "ckpt.5-0.safetensors.gckpt-tmp0.safetensors",
        "ckpt.9-1.safetensors",
        "ckpt.5-0.safetensors.gckpt-tmp0000000000000000000000000000000000000000"
    };
    enum { TEXTS = sizeof texts / sizeof *texts };
    gckpt_store *s;
    begin = 3, end = 5;
    clear();
    fill(s = store_new(0, 1, GCKPT_SHARD_NONE, 1), 9);
    for (int i = 0; i < TEXTS; i++)
        put_text(texts[i], texts[i]);
    /* further files that a save must keep: a plain file of one process, files of another checkpoint, a file that a save
     * in progress in another process has locked, a pipe and a folder */
    CHECK(gckpt_store_save(s, "shards/ckpt.7-0.safetensors") == GCKPT_OK);
    strcpy(path, "shards/ckpt.8");
    CHECK(save_by(2, GCKPT_SHARD_VALUES, 5) == GCKPT_OK);
    strcpy(path, "shards/ckpt");
    file f = file_of("ckpt.8.1-0.safetensors"); /* a copy of a shard file whose name belongs to another rank */
    put_file("ckpt.10-1.safetensors", &f, f.size);
    free(f.bytes);
    put_text("ckpt.5-0.safetensors.gckpt-tmp0", "half");
    int fd = open("shards/ckpt.5-0.safetensors.gckpt-tmp0", O_WRONLY);
    CHECK(fd >= 0 && !flock(fd, LOCK_EX) && !mkdir("shards/ckpt.6-0.safetensors", 0700) &&
          !mkfifo("shards/ckpt.6-1.safetensors", 0600));
    const int all = files();
    alarm(300); /* ends the process if a call waits for the pipe */
    for (unsigned salt = 1; salt < 12; salt++) {
        CHECK_MSG(save_by(4, GCKPT_SHARD_VALUES, salt) == GCKPT_OK, "%s", error_text);
        CHECK_MSG(loads(2, GCKPT_SHARD_STATE, salt) && files() == all + 5, "save %u: %d files",
                  salt, files() - all);
    }
    alarm(0);
    CHECK(is_there("ckpt.17-3.safetensors")); /* numbers 3, 4, 6, 7, 9 and 10 were skipped */
    for (int i = 0; i < TEXTS; i++) {
        f = file_of(texts[i]);
        CHECK(f.size == strlen(texts[i]) && !memcmp(f.bytes, texts[i], f.size));
        free(f.bytes);
    }
    CHECK(gckpt_store_load(s, "shards/ckpt.7-0.safetensors") == GCKPT_OK && holds(s, 9));
    strcpy(path, "shards/ckpt.8");
    CHECK(loads(1, GCKPT_SHARD_NONE, 5));
    strcpy(path, "shards/ckpt");
    close(fd); /* releases the lock of the temporary file, as if the save in progress were killed */
    CHECK(save_by(1, GCKPT_SHARD_NONE, 13) == GCKPT_OK && files() == all + 1);
    CHECK(!is_there("ckpt.5-0.safetensors.gckpt-tmp0") && !rmdir("shards/ckpt.6-0.safetensors"));
    gckpt_store_free(s);
    begin = 0, end = MODEL;
    CHECK(mem.live == 0);
}

/* Tests a save over a damaged index: whichever call fails, no file that the index may name is harmed until the new
 * index is in place. */
static void test_damaged_index(void)
{
    begin = 3, end = 5;
    for (int i = 0, done = 0; !done && i < 2000; i++) {
        clear();
        CHECK(save_by(2, GCKPT_SHARD_STATE, 1) == GCKPT_OK);
        file index = file_of("ckpt");
        index.bytes[20] ^= 1;
        put_file("ckpt", &index, index.size);
        index.bytes[20] ^= 1;
        CHECK(!loads(1, GCKPT_SHARD_NONE, 1));
        calls_made = 0;
        fails_at = i + 1;
        counting = 1;
        gckpt_result result = save_by(4, GCKPT_SHARD_VALUES, 2);
        counting = 0;
        done = calls_made < fails_at;
        fails_at = 0;
        int is_new =
            result == GCKPT_OK || strstr(error_text, "but it is in place: \"shards/ckpt\"");
        CHECK(!done || result == GCKPT_OK);
        if (!is_new) {
            put_file("ckpt", &index, index.size);
            CHECK_MSG(files() == 3, "failed at %d: %d files", i + 1, files());
        }
        CHECK_MSG(loads(1, GCKPT_SHARD_NONE, 1 + (unsigned)is_new), "failed at %d: %s", i + 1,
                  error_text);
        CHECK(!done || files() == 5);
        free(index.bytes);
    }
    /* a save that is killed half-way over the damaged index */
    clear();
    CHECK(save_by(4, GCKPT_SHARD_STATE, 1) == GCKPT_OK);
    file index = file_of("ckpt");
    put_file("ckpt", &index, index.size - 1);
    break_save(4, 5, 2);
    put_file("ckpt", &index, index.size);
    CHECK(loads(1, GCKPT_SHARD_NONE, 1));
    /* the folder cannot be listed: the save is refused if the existing index is damaged, and succeeds if it is not */
    for (no_list = 1; no_list <= 2; no_list++) {
        clear();
        CHECK(save_by(4, GCKPT_SHARD_STATE, 1) == GCKPT_OK);
        put_file("ckpt", &index, index.size - 1);
        CHECK(save_by(4, GCKPT_SHARD_STATE, 2) == GCKPT_E_FILE && files() == 5);
        CHECK_MSG(strstr(error_text, no_list == 1 ? strerror(EACCES) : strerror(EIO)) &&
                      strstr(error_text, "could not list the folder, and it has a damaged index"),
                  "%s", error_text);
        put_file("ckpt", &index, index.size);
        CHECK(loads(1, GCKPT_SHARD_NONE, 1) && save_by(2, GCKPT_SHARD_STATE, 2) == GCKPT_OK);
        CHECK(loads(1, GCKPT_SHARD_NONE, 2) && files() == 3);
    }
    no_list = 0;
    free(index.bytes);
    begin = 0, end = MODEL;
    CHECK(mem.live == 0);
}

/* The calls that fails_at_once() can run in a child process. fails_at_once() returns whether the call ends within 20
 * seconds with this result and an error text that contains `text`, and allocates less than 1 MB. */
typedef enum { RANKS_SAVE, RANKS_LOAD, STORE_LOAD } call;
static int fails_at_once(call which, const char *where, gckpt_result want, const char *text)
{
    fflush(stdout);
    pid_t child = fork();
    int status = 1;
    if (!child) {
        strcpy(path, where);
        alarm(20);
        gckpt_store *s = store_new(0, 1, GCKPT_SHARD_NONE, 1);
        mem.peak = mem.live;
        gckpt_result result = which == RANKS_SAVE   ? save_all(&s, 1)
                              : which == RANKS_LOAD ? gckpt_ranks_load(s, path)
                                                    : gckpt_store_load(s, path);
        int good =
            result == want && strstr(gckpt_error_text(s), text) && mem.peak < mem.live + 1000000;
        if (!good)
            printf("%d, %d bytes: %s\n", result, (int)(mem.peak - mem.live), gckpt_error_text(s));
        exit(!good);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

/* Tests pipes, folders and large files in place of the index: the errors are those of the calls for a single process,
 * and no call waits for these files or reads them whole. */
static void test_no_index(void)
{
    static const char *const begins[] = { "", "version ", "{\"gckpt\"" };
    static const off_t sizes[] = { 150000000, (off_t)1 << 30 };
    static const char pipe[] = "shards/pipe", folder[] = "shards/folder", large[] = "shards/large";
    static const char device[] = "shards/device";
    gckpt_store *s = store_new(0, 1, GCKPT_SHARD_NONE, 1);
    char text[600];
    clear();
    CHECK(!mkfifo(pipe, 0600) && !mkdir(folder, 0700));
    for (int i = 0; i < 2; i++) {
        const char *where = i ? folder : pipe;
        CHECK(gckpt_store_save(s, where) == GCKPT_E_FILE);
        snprintf(text, sizeof text, "%s", gckpt_error_text(s));
        CHECK_MSG(strstr(text, "could not replace a folder, device or pipe"), "%s", text);
        CHECK(fails_at_once(RANKS_SAVE, where, GCKPT_E_FILE, text));
        snprintf(text, sizeof text,
                 "load: %s: could not read a folder, device or pipe; is the path right? \"%s\"",
                 strerror(i ? EISDIR : ESPIPE), where);
        CHECK(fails_at_once(RANKS_LOAD, where, GCKPT_E_FILE, text));
        CHECK(fails_at_once(STORE_LOAD, where, GCKPT_E_FILE, text));
    }
    for (size_t i = 0; i < 6; i++) {
        put_text("large", begins[i % 3]);
        CHECK(!truncate(large, sizes[i / 3]));
        if (i == 2) /* this file begins like an index, so a load reads it whole before refusing it */
            continue;
        CHECK(fails_at_once(RANKS_LOAD, large, GCKPT_E_DATA,
                   "load: empty, damaged, or not the index of a checkpoint by ranks; "
                   "gckpt_store_load reads files of one process (\"shards/large\")"));
        CHECK(fails_at_once(STORE_LOAD, large, GCKPT_E_DATA, "load: no safetensors file"));
        /* a save replaces a file that is no index, as gckpt_store_save does */
        CHECK(fails_at_once(RANKS_SAVE, large, GCKPT_OK, ""));
        CHECK(fails_at_once(RANKS_LOAD, large, GCKPT_OK, ""));
    }
    CHECK(!rmdir(folder));
    /* only root can create a device; the save is refused before any rank writes */
    if (!mknod(device, S_IFCHR | 0600, 0)) {
        CHECK(gckpt_store_save(s, device) == GCKPT_E_FILE);
        snprintf(text, sizeof text, "%s", gckpt_error_text(s));
        CHECK_MSG(strstr(text, "could not replace a folder, device or pipe"), "%s", text);
        const int before = files();
        CHECK(fails_at_once(RANKS_SAVE, device, GCKPT_E_FILE, text) && files() == before);
    }
    /* lets each allocation of a save fail, in turn, also those for reading the existing index */
    gckpt_result result = GCKPT_E_MEMORY;
    strcpy(path, "shards/ckpt");
    CHECK(save_by(2, GCKPT_SHARD_STATE, 1) == GCKPT_OK);
    for (long at = 1; result == GCKPT_E_MEMORY && at < 100; at++) {
        mem.fail_at = mem.calls + at;
        result = save_all(&s, 1);
        mem.fail_at = 0;
        CHECK_MSG(result == GCKPT_OK ? at > 5 : !strncmp(gckpt_error_text(s), "save: no memory", 15), "%s",
                  gckpt_error_text(s));
    }
    CHECK(result == GCKPT_OK);
    gckpt_store_free(s);
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

/* The program that each rank runs. */
static void rank_body(ranks_world *w, int rank, void *context)
{
    training *t = (training *)context;
    member *m = &t->m[rank];
    int64_t first;
    make_plan(m, m->block, rank, w->size, t->shard);
    if (t->loads)
        m->loaded = gckpt_ranks_load(m->s, path);
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
    gckpt_gather_hash(m->e, &m->hash);
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
    CHECK_MSG(m.stepped == GCKPT_OK && gckpt_ranks_save(m.e, path) == GCKPT_OK && files() == 2, "%s",
              gckpt_error_text(m.e));
    CHECK_MSG(gckpt_ranks_load(s, path) == GCKPT_OK && gckpt_store_step(s) == 2, "%s", gckpt_error_text(s));
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
                CHECK(files() == w.size + 1);
            }
        }
}

/* Tests a transport that fails, hangs or ends the thread at any exchange of a save, and a rank that cannot write its
 * file. */
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
    CHECK(t.m[0].saved == GCKPT_OK && last >= first + 5 && files() == 5);
    for (int how = RANKS_FAILS; how <= RANKS_VANISHES; how++)
        for (int rank = 0; rank < 2; rank++)
            for (long at = first; at <= last; at++) {
                int survivors = 0;
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
                CHECK_MSG(gckpt_ranks_load(s, path) == GCKPT_OK, "%s", gckpt_error_text(s));
                const char *note = gckpt_store_note(s, "note");
                CHECK(note && (!strcmp(note, notes[0]) || !strcmp(note, notes[1])));
                CHECK_MSG(!note || !strcmp(note, "new") || !survivors || how >= RANKS_DIES,
                          "%d %d %ld: %d", how, rank, at, survivors);
                gckpt_store_free(s);
                /* 2 ranks save, which removes the leftover files of 4; then 4 ranks save, so the next round starts from "old" */
                for (int ranks = 2; ranks <= 4; ranks += 2) {
                    ranks_open(&w, ranks);
                    t.note = "old";
                    run(&w, &t);
                    ranks_close(&w);
                    CHECK(t.m[ranks - 1].saved == GCKPT_OK);
                    CHECK_MSG(files() == ranks + 1, "%d %d %ld: %d files", how, rank, at, files());
                }
            }
    for (int rank = 0; rank < 4; rank++) {
        ranks_open(&w, 4);
        t = (training){
            .shard = GCKPT_SHARD_VALUES, .note = "new", .before = 1, .after = 1, .lost = rank
        };
        run(&w, &t);
        ranks_close(&w);
        for (int k = 0; k < 4; k++) {
            char who[20];
            snprintf(who, sizeof who, "rank %d: ", rank);
            CHECK_MSG(t.m[k].saved == GCKPT_E_FILE && strstr(t.m[k].text, who) &&
                          strstr(t.m[k].text, "no folder"),
                      "%s", t.m[k].text);
            CHECK(t.m[k].stepped == GCKPT_OK && t.m[k].hash == t.m[0].hash); /* training goes on */
        }
        CHECK(files() == 5);
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

/* Returns the descriptor that the next opened file gets, by which main() finds out whether a test left a file open. */
static int next_number(void)
{
    const int fd = open(".", O_RDONLY);
    CHECK(fd >= 0 && !close(fd));
    return fd;
}

int main(void)
{
    watch();
    test_shard();
    test_space_for_squares();
    test_held();
    test_mirrors();
    test_refused();
    test_whole_file();
    CHECK(!mkdir("shards", 0777) || errno == EEXIST);
    strcpy(path, "shards/ckpt");
    clear();
    test_any_number();
    test_every_call(1);
    test_every_call(4);
    test_damage();
    test_load_fails();
    test_large_index();
    test_many_pieces();
    test_left();
    test_others();
    const int next = next_number();
    test_damaged_index();
    const int then = next_number();
    CHECK_MSG(then == next, "%d files or folders stay open, or more", then - next);
    test_no_index();
#if RANKS_THREADS
    test_need();
    test_within_a_step();
    test_alone();
    test_resume();
    test_faults();
#endif
    clear();
    CHECK(!rmdir("shards"));
    return check_report("test_shards");
}
