/* saves.c - the program that saves and loads on a device whose power blocks.py cuts.
 *
 *     saves save KIND FOLDER N     saves a training after N steps
 *     saves load KIND FOLDER       prints the number of the state in the folder if the state is complete and exact,
 *                                  0 if nothing is saved, "empty" for a file of no bytes, or in other cases a
 *                                  description of the files
 *
 * KIND is one (gckpt_store_save), ranks (gckpt_ranks_save by 1, 2 or 4 threads as ranks, with another kind of shard
 * each time), train (options.save of examples/train.h, which resumes from the saved state) or folder (config.json and
 * weights, saved by examples/model.h as finetune.c does). If the environment variable POWER_BREAK is file, folder or
 * all, the fsync of files, of folders or of both is omitted, which the test must notice.
 *
 * The number of a state is found by comparing the bytes that gckpt_store_write writes from it with those of an
 * uninterrupted training. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gradckpt.h"

#include "model.h"
#include "dist/rank_threads.h"
#include "util.h"
#include "train.h"

enum { BATCH = 8, IN = 30, WIDE = 400, OUT = 3, MOST = 64 };

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* Replaces the fsync of libc, which the library calls. */
int fsync(int fd)
{
    const char *broken = getenv("POWER_BREAK");
    struct stat s;
    if (broken && !fstat(fd, &s) &&
        (!strcmp(broken, "all") || !strcmp(broken, S_ISDIR(s.st_mode) ? "folder" : "file")))
        return 0;
    const char *device = getenv("POWER_DEVICE");
    if (device) /* the kernel would merge the flushes of two threads and mix their writes */
        pthread_mutex_lock(&one_at_a_time);
    const int failed = (int)syscall(SYS_fsync, fd), error = errno;
    const int disk = device ? open(device, O_WRONLY) : -1;
    /* also synchronises the file that contains the loop device, since a flush of the kernel does not reach the file
     * (blocks.py) */
    if (disk >= 0) {
        syscall(SYS_fsync, disk);
        close(disk);
    }
    if (device)
        pthread_mutex_unlock(&one_at_a_time);
    errno = error;
    return failed;
}

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "saves: %s: %s\n", what, why);
    return 1;
}

/* ---- a training of N steps, in one process or on threads as ranks ---- */
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    int failed;
} training;

static int open_training(training *t, int rank, int ranks, gckpt_shard shard,
                         const gckpt_transport *transport)
{
    const gckpt_store_desc seed = { .seed = 5 };
    const gckpt_init uniform = { 0, 0.1f, 0 };
    const gckpt_plan_desc plan = { .batch = BATCH, .ranks.virtual_ranks = 4 };
    const gckpt_exec_desc exec = { .transport = transport };
    t->s = gckpt_store_new(&seed);
    gckpt_store_ranks(t->s, rank, ranks, shard);
    t->g = gckpt_graph_new(t->s, NULL);
    gckpt_tensor *x = gckpt_input(t->g, "x", GCKPT_F32, gckpt_shape2(1, IN));
    gckpt_tensor *y = gckpt_input(t->g, "y", GCKPT_F32, gckpt_shape2(1, OUT));
    gckpt_tensor *a = gckpt_param(t->g, "a", gckpt_shape2(IN, WIDE), uniform);
    gckpt_tensor *b = gckpt_param(t->g, "b", gckpt_shape2(WIDE, OUT), uniform);
    gckpt_tensor *h = gckpt_linear(gckpt_relu(gckpt_linear(x, a, NULL)), b, NULL);
    gckpt_term loss = { gckpt_mean_squared_error(h, y, NULL), 1, 0 };
    t->p = gckpt_plan_new(t->g, &loss, 1, &plan);
    t->e = t->p ? gckpt_exec_new(t->p, t->s, &exec) : NULL;
    t->failed = !t->e && fail("open", gckpt_error_text(t->p ? (void *)t->s : (void *)t->g));
    return !t->failed;
}

/* Trains until n steps are complete (state n), then sets a note whose length differs for each n. */
static void train_to(training *t, int rank, int n)
{
    float x[BATCH * IN], y[BATCH * OUT];
    char note[2 * MOST + 1];
    int64_t first;
    gckpt_plan_rank_rows(t->p, BATCH, rank, &first);
    for (int step = (int)gckpt_store_step(t->s); step < n && !t->failed; step++) {
        uint64_t state = (uint64_t)step * 1000;
        gckpt_hyper hyper = gckpt_hyper_lr(1e-3f);
        for (int k = 0; k < BATCH * IN; k++)
            x[k] = (float)(next_random(&state) % 1000) / 500 - 1;
        for (int k = 0; k < BATCH * OUT; k++)
            y[k] = x[k * 7] * x[k];
        gckpt_feed feeds[2] = { { 0, x + first * IN }, { 1, y + first * OUT } };
        if (gckpt_step(t->e, feeds, 2, BATCH, &hyper, NULL) != GCKPT_OK)
            t->failed = fail("step", gckpt_error_text(t->e));
    }
    memset(note, 'n', sizeof note);
    note[n * 37 % (2 * MOST)] = 0;
    if (gckpt_store_set_note(t->s, "note", note) != GCKPT_OK)
        t->failed = fail("note", gckpt_error_text(t->s));
}

static void close_training(training *t) { util_free(t->e, t->p, t->g, t->s); }

static int save_one(const char *path, int n)
{
    training t = { 0 };
    if (open_training(&t, 0, 1, GCKPT_SHARD_NONE, NULL)) {
        train_to(&t, 0, n);
        if (gckpt_store_save(t.s, path, NULL) != GCKPT_OK)
            t.failed = fail("save", gckpt_error_text(t.s));
    }
    close_training(&t);
    return t.failed;
}

typedef struct {
    const char *path;
    int n, failed[RANKS_MOST];
} saving;

static void save_rank(ranks_world *w, int rank, void *context)
{
    saving *v = (saving *)context;
    training t = { 0 };
    if (open_training(&t, rank, w->size, (gckpt_shard)(v->n % 4), &w->rank[rank].transport)) {
        train_to(&t, rank, v->n);
        if (gckpt_ranks_save(t.e, v->path) != GCKPT_OK)
            t.failed = fail("ranks_save", gckpt_error_text(t.e));
    }
    close_training(&t);
    v->failed[rank] = t.failed;
}

static int save_ranks(const char *path, int n)
{
    static const int ranks[] = { 4, 2, 1, 4 };
    saving v = { path, n, { 0 } };
    ranks_world w;
    int failed = 0;
    ranks_open(&w, ranks[n % 4]);
    ranks_run(&w, save_rank, &v);
    for (int k = 0; k < w.size; k++)
        failed |= v.failed[k];
    ranks_close(&w);
    return failed || check_failed;
}

/* ---- a training of examples/train.h, which continues for one epoch after the saved state ---- */
enum { ROWS = 40 };

static void net(train_net *n, void *user)
{
    const gckpt_init uniform = { 0, 0.1f, 0 };
    (void)user;
    gckpt_graph *g = gckpt_graph_of(n->in[0]);
    gckpt_tensor *a = gckpt_param(g, "a", gckpt_shape2(IN, WIDE), uniform);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape2(WIDE, OUT), uniform);
    n->output = gckpt_linear(gckpt_relu(gckpt_linear(n->in[0], a, NULL)), b, NULL);
    n->loss = gckpt_mean_squared_error(n->output, n->in[1], NULL);
}

/* Resumes from the state at `path`, if there is one, and trains until `epochs` epochs are complete. */
static int train_epochs(gckpt_store *s, const char *path, int epochs)
{
    static float x[ROWS][IN], y[ROWS][OUT];
    uint64_t state = 7;
    train_data data = { { { "x", GCKPT_F32, IN, x }, { "y", GCKPT_F32, OUT, y } }, ROWS, 8 };
    train_options o = train_defaults(1e-3f);
    train_report r;
    for (int k = 0; k < ROWS * IN; k++)
        x[k / IN][k % IN] = (float)(next_random(&state) % 1000) / 500 - 1;
    for (int k = 0; k < ROWS * OUT; k++)
        y[k / OUT][k % OUT] = x[k / OUT][k % OUT] * x[k / OUT][k % OUT + 7];
    o.plan.batch = BATCH;
    o.epochs = epochs;
    o.save = path;
    o.print_every = -1;
    const int failed = train_fit(s, net, &data, &o, &r) != 0;
    return failed && fail("train_fit", r.error);
}

static int save_train(const char *path, int n)
{
    const gckpt_store_desc seed = { .seed = 5 };
    gckpt_store *s = gckpt_store_new(&seed);
    const int failed = train_epochs(s, path, n);
    gckpt_store_free(s);
    return failed;
}

/* ---- a folder of examples/model.h: config.json and weights ---- */
static int save_folder(const char *folder, int n)
{
    static model_any m;
    char config[MODEL_PATH];
    training t = { 0 };
    FILE *f = model_begin_file(&m, config, folder, "config.json");
    t.failed = !f || !open_training(&t, 0, 1, GCKPT_SHARD_NONE, NULL);
    if (!t.failed) {
        train_to(&t, 0, n);
        for (int i = 0; i < 500; i++)
            fprintf(f, "%d: config of %d\n", i, n);
        if (model_close_file(&m, f, config) != 0 ||
            model_save_weights(&m, t.s, folder, "training", &(gckpt_file_desc){ 0 }, config) != 0)
            t.failed = fail("folder", m.error);
    }
    close_training(&t);
    return t.failed;
}

/* Returns whether config.json is complete and equal to that of some state. */
static int config_is_whole(const char *folder)
{
    char path[600];
    int i = 0, line, n, first = 0;
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "r");
    while (f && i < 500 && fscanf(f, "%d: config of %d\n", &line, &n) == 2 && line == i) {
        first = i++ ? first : n;
        if (n != first)
            break;
    }
    const int whole = f && i == 500 && fgetc(f) == EOF;
    if (f)
        fclose(f);
    return whole;
}

/* ---- the saved state ---- */
static file bytes_of(gckpt_store *s)
{
    file f = { 0 };
    if (gckpt_store_write(s, file_write, &f, NULL) != GCKPT_OK)
        fail("write", gckpt_error_text(s));
    return f;
}

/* Trains n epochs without interruption, with saves to memory, which no power cut affects. */
static int train_from_start(training *t, int n)
{
    char folder[] = "/tmp/saves-XXXXXX", path[64], values[80];
    const gckpt_store_desc seed = { .seed = 5 };
    if (!mkdtemp(folder))
        return fail(folder, strerror(errno));
    snprintf(path, sizeof path, "%s/training", folder);
    snprintf(values, sizeof values, "%s.best", path);
    gckpt_store *s = gckpt_store_new(&seed);
    t->s = gckpt_store_new(NULL);
    int failed = train_epochs(s, path, n);
    if (!failed && gckpt_store_load(t->s, path, NULL) != GCKPT_OK)
        failed = fail("load", gckpt_error_text(t->s));
    gckpt_store_free(s);
    remove(path), remove(values), rmdir(folder);
    return failed;
}

/* Makes state n in one process, without a power cut, and returns whether `found` equals it. */
static int is_state(const file *found, const char *kind, int n)
{
    training t = { 0 };
    file made = { 0 };
    if (!strcmp(kind, "train")) {
        t.failed = train_from_start(&t, n);
    } else if (open_training(&t, 0, 1, GCKPT_SHARD_NONE, NULL)) {
        train_to(&t, 0, n);
    }
    if (!t.failed)
        made = bytes_of(t.s);
    const int same = !t.failed && same_file(found, &made);
    free(made.bytes);
    close_training(&t);
    return same;
}

static int load(const char *kind, const char *folder, const char *path, const char *values)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_result result = gckpt_store_load(s, path, NULL);
    struct stat is;
    if (result != GCKPT_OK) {
        if (stat(path, &is) && errno == ENOENT)
            puts("0");
        else if (!stat(path, &is) && is.st_size == 0)
            puts("empty");
        else
            puts(gckpt_error_text(s));
        gckpt_store_free(s);
        return 0;
    }
    int n = (int)gckpt_store_step(s);
    if (!strcmp(kind, "train")) {
        const char *note = gckpt_store_note(s, "train");
        gckpt_store *best = gckpt_store_new(NULL);
        n = note ? atoi(note) : -1;
        if (gckpt_store_load(best, values, NULL) != GCKPT_OK)
            printf("without its best values: %s; ", gckpt_error_text(best));
        gckpt_store_free(best);
    }
    if (!strcmp(kind, "folder") && !config_is_whole(folder))
        printf("without a whole config.json; ");
    file found = bytes_of(s);
    if (n > 0 && n < MOST && is_state(&found, kind, n))
        printf("%d\n", n);
    else
        printf("no state, of step %d\n", n);
    free(found.bytes);
    gckpt_store_free(s);
    return 0;
}

int main(int argc, char **argv)
{
    char path[512], values[600];
    if (argc < 4 || (!strcmp(argv[1], "save") && argc < 5))
        return fail("usage", "save KIND FOLDER N, load KIND FOLDER");
    const char *kind = argv[2];
    const int n = argc > 4 ? atoi(argv[4]) : 0;
    snprintf(path, sizeof path, "%s/training", argv[3]);
    snprintf(values, sizeof values, "%s.best", path);
    if (!strcmp(argv[1], "load"))
        return load(kind, argv[3], path, values);
    return !strcmp(kind, "one")      ? save_one(path, n)
           : !strcmp(kind, "ranks")  ? save_ranks(path, n)
           : !strcmp(kind, "train")  ? save_train(path, n)
           : !strcmp(kind, "folder") ? save_folder(argv[3], n)
                                     : fail(kind, "no such kind");
}
