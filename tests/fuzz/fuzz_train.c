/* fuzz_train.c - resumes a training of examples/train.h from a log of any bytes and a checkpoint with any notes. The
 * file of the best weights exists, is that of another training, or is missing.
 *
 * The input has parts: options, a log, and the notes "train", "train.each", "train.values" and "train.within". A
 * part "=" stands for the text that the training itself has written. The rules:
 * - A log is either refused, with an error text, and unchanged; or it is cut to its header and the complete lines of
 *   finished epochs, and new lines follow these.
 * - A checkpoint is either refused with an error text, or the training resumes at an epoch and a step that exist,
 *   and ends after at most as many calls as there are steps and validation batches.
 * - The notes that the training itself has written are accepted, and the training ends with the weights of an
 *   uninterrupted one. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "reader.h"
#include "train.h"

enum { ROWS = 10, CHECKED = 2, BATCH = 3, EPOCHS = 3, STEPS = 3, NOTES = 4 };
enum { OPTIONS, LOG, TRAIN, PARTS = TRAIN + NOTES };

static const char *const keys[NOTES] = { "train", "train.each", "train.values", "train.within" };
static float x[ROWS][2], y[ROWS];
static char *left[NOTES]; /* notes of a training that was interrupted in its second epoch */
static gckpt_store *base; /* the store of that training */
static char *base_best;   /* the file of its best weights */
static size_t base_size;
static uint64_t whole; /* hash of the weights of an uninterrupted training */
static int stop_at, steps_seen;

static void model(train_net *net, void *user)
{
    static const gckpt_init normal = { 0.5f, 0, 0 };
    (void)user;
    gckpt_tensor *w = gckpt_param(net->graph, "w", gckpt_shape2(2, 1), normal);
    net->output = gckpt_reshape(gckpt_linear(net->in[0], w, NULL), gckpt_shape1(net->rows));
    net->loss = gckpt_mean_squared_error(net->output, net->in[1], NULL);
}

static int watch(void *user, const train_report *now)
{
    (void)user;
    steps_seen += now->step > 0;
    return stop_at > 0 && steps_seen >= stop_at;
}

static train_options options_of(const char *save, const char *log)
{
    train_options o = train_defaults(0.01f);
    o.plan.batch = BATCH;
    o.epochs = EPOCHS;
    o.save = save;
    o.log = log;
    o.print_every = -1;
    o.watch = watch;
    return o;
}

static train_data data_of(void)
{
    train_data d;
    memset(&d, 0, sizeof d);
    d.column[0].name = "x", d.column[0].type = GCKPT_F32, d.column[0].width = 2;
    d.column[0].values = x;
    d.column[1].name = "y", d.column[1].type = GCKPT_F32, d.column[1].values = y;
    d.rows = ROWS, d.validation = CHECKED;
    return d;
}

/* Trains for `steps` steps (if 0, to the end) and returns the hash of the weights. */
static uint64_t begun(const char *save, int steps)
{
    const train_data d = data_of();
    const train_options o = options_of(save, NULL);
    train_report r;
    gckpt_store *s = gckpt_store_new(NULL);
    stop_at = steps, steps_seen = 0;
    must(train_fit(s, model, &d, &o, &r) == 0);
    stop_at = 0;
    const uint64_t hash = gckpt_store_hash(s);
    gckpt_store_free(s);
    return hash;
}

/* ---- a log ---- */
static void try_log(const char *bytes, size_t size, int epochs)
{
    static const char head[] = "epoch,loss,lr\n";
    const double epoch = epochs + 1, loss = 0.25;
    const double *const cells[] = { &epoch, &loss, NULL };
    char error[512] = "", path[256];
    size_t n, again;
    snprintf(path, sizeof path, "%s", reader_path("log"));
    reader_write_to(path, bytes, size);
    const int failed = train_log_open(path, head, epochs, error);
    char *text = reader_read(path, &n);
    if (failed) {
        must(error[0] != 0 && n == size && memcmp(text, bytes, n) == 0);
        free(text);
        remove(path);
        return;
    }
    must(n >= strlen(head) && memcmp(text, head, strlen(head)) == 0 && text[n - 1] == '\n');
    must(size == 0 || (n <= size && memcmp(text, bytes, n) == 0));
    for (size_t at = strlen(head); at < n;) {
        const long of = strtol(text + at, NULL, 10);
        must(of >= 1 && of <= epochs);
        const char *end = (const char *)memchr(text + at, '\n', n - at);
        must(end != NULL);
        at = (size_t)(end - text) + 1;
    }
    must(train_log_add(path, cells, 3) == 0);
    must(train_log_open(path, head, epochs + 1, error) == 0);
    char *more = reader_read(path, &again);
    must(again > n && memcmp(more, text, n) == 0 && more[again - 1] == '\n');
    free(more);
    free(text);
    remove(path);
}

/* ---- the checkpoint to resume from ---- */
static int note_of(const reader_parts *p, int i, char *to, size_t capacity)
{
    const int part = TRAIN + i;
    if (part >= p->count || (p->size[part] == 1 && p->at[part][0] == '=')) {
        snprintf(to, capacity, "%s", left[i] ? left[i] : "");
        return left[i] != NULL;
    }
    const size_t n = p->size[part] < capacity - 1 ? p->size[part] : capacity - 1;
    memcpy(to, p->at[part], n);
    to[n] = 0;
    return n > 0;
}

static void try_notes(const reader_parts *p, unsigned how)
{
    static const gckpt_init ones = { 0, 0, 1 };
    char save[256], best[300], note[1024];
    snprintf(save, sizeof save, "%s", reader_path("save"));
    snprintf(best, sizeof best, "%s.best", save);
    int unchanged = 1;
    gckpt_store *s;
    for (int i = 0; i < NOTES; i++) {
        const int there = note_of(p, i, note, sizeof note);
        unchanged &= there ? left[i] != NULL && strcmp(left[i], note) == 0 : left[i] == NULL;
        if (gckpt_store_set_note(base, keys[i], there ? note : NULL) != GCKPT_OK)
            gckpt_store_set_note(base, keys[i], NULL); /* not UTF-8 */
    }
    must(gckpt_store_save(base, save, NULL) == GCKPT_OK);
    reader_write_to(best, base_best, base_size);
    if (how & 8)
        remove(best), unchanged = 0;
    if (how & 16) { /* best weights of another training than that of the checkpoint */
        s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_param(g, "v", gckpt_shape1(3), ones);
        gckpt_graph_free(g);
        must(gckpt_store_save(s, best, NULL) == GCKPT_OK);
        gckpt_store_free(s);
        unchanged = 0;
    }
    const train_data d = data_of();
    train_options o = options_of(save, NULL);
    o.patience = how >> 5 & 1;
    o.epochs = how & 64 ? 1 : EPOCHS;
    train_report r;
    train_run t;
    s = gckpt_store_new(NULL);
    steps_seen = 0;
    if (train_begin(&t, s, model, &d, &o, &r) != 0) {
        must(r.error[0] != 0 && !unchanged);
    } else {
        must(r.epoch >= 0 && t.done >= 0 && t.done <= STEPS && t.best.epoch >= 0 &&
             t.best.epoch <= r.epoch);
        int more = 1, pieces = 0;
        for (; more > 0 && pieces <= EPOCHS * (STEPS + CHECKED) + 2; pieces++)
            more = train_tick(&t, how & 128 ? 5000 : 0);
        must(more <= 0);
        const int failed = train_end(&t) != 0;
        must(failed == (r.error[0] != 0));
        if (unchanged && o.epochs == EPOCHS && o.patience == 0)
            must(!failed && gckpt_store_hash(s) == whole);
    }
    gckpt_store_free(s);
    remove(save);
    remove(best);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const reader_parts p = reader_split(bytes, size);
    const unsigned how = p.size[OPTIONS] > 0 ? (unsigned char)p.at[OPTIONS][0] : 0;
    if (p.count > LOG && p.size[LOG] > 0)
        try_log(p.at[LOG], p.size[LOG], (int)(how % 7));
    if (p.count > TRAIN)
        try_notes(&p, how);
    return 0;
}

/* A mutator. Changes a number of a note or of the log, or lets libFuzzer change bytes. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    static const char *const numbers[] = { "0",
                                           "1",
                                           "-1",
                                           "2",
                                           "3",
                                           "4",
                                           "2147483647",
                                           "-2147483648",
                                           "1e300",
                                           "nan",
                                           "-inf",
                                           "0x7",
                                           "9223372036854775807",
                                           "",
                                           "0.5",
                                           "1e-320" };
    reader_state = seed;
    size_t from[64], to[64], n = 0;
    for (size_t i = 0; i < size && n < 64; i++) {
        const size_t at = i;
        while (i < size && strchr("+-.0123456789e", bytes[i]) != NULL && bytes[i] != 0)
            i++;
        if (i > at && (bytes[at] == '-' || (bytes[at] >= '0' && bytes[at] <= '9')))
            from[n] = at, to[n++] = i;
    }
    if (n == 0 || reader_draw(3) == 0)
        return reader_mutate_bytes(bytes, size, most);
    const size_t at = reader_draw(n);
    const char *number = numbers[reader_draw(sizeof numbers / sizeof *numbers)];
    return reader_splice(bytes, size, most, from[at], to[at], number, strlen(number));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    for (int i = 0; i < ROWS; i++) {
        x[i][0] = (float)(i % 5) / 4, x[i][1] = (float)(i * 3 % 7) / 8;
        y[i] = x[i][0] - x[i][1];
    }
    char save[256], best[300];
    snprintf(save, sizeof save, "%s", reader_path("seed"));
    snprintf(best, sizeof best, "%s.best", save);
    whole = begun(save, 0);
    remove(save);
    begun(save, STEPS + 1);
    base = gckpt_store_new(NULL);
    must(gckpt_store_load(base, save, NULL) == GCKPT_OK);
    for (int i = 0; i < NOTES; i++) {
        const char *note = gckpt_store_note(base, keys[i]);
        must(note != NULL && (left[i] = strdup(note)) != NULL);
    }
    base_best = reader_read(best, &base_size);
    remove(save);
    remove(best);
    if (reader_seeds() == NULL)
        return 0;
    for (int i = 0; i < 24; i++) {
        static const char *const logs[] = {
            "epoch,loss,lr\n1,0.5,0.01\n2,0.25,0.01\n3,0.125,0.01\n",
            "epoch,loss,lr\n1,0.5,0.01\n2,0.2", "", "epoch,loss\n1,2\n"
        };
        reader_seed seed = { NULL, 0 };
        const char option = (char)("02468@AH"[i % 8]);
        char name[16];
        reader_add_part(&seed, &option, 1);
        reader_add_part(&seed, logs[i % 4], strlen(logs[i % 4]));
        for (int k = 0; k < NOTES && i >= 4; k++) {
            const char *note = i % 3 == 0 || left[k] == NULL ? "=" : left[k];
            reader_add_part(&seed, note, strlen(note));
        }
        snprintf(name, sizeof name, "%02d", i);
        reader_end_seed(&seed, name);
    }
    exit(0);
}
