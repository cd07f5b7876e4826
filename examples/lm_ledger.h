/* lm_ledger.h - the ledger of a training by lm.h (ledger.h), and its audit: the same training once
 * more, each record of which is compared. lm.h includes this file; to use it, copy it with lm.h,
 * ledger.h and ledger_file.h.
 *
 * A record costs the time to hash all weights and optimiser state. The number of steps between two
 * records is chosen by measuring, so that all of it takes at most LM_LEDGER_COST of the run. It
 * does not change the training, and an audit compares the records that are there. */
#ifndef LM_LEDGER_H
#define LM_LEDGER_H
#include "ledger_file.h"

#define LM_LEDGER_COST 0.02  /* greatest part of a run's time */
#define LM_LEDGER_AIM  0.016 /* part for which the number of steps is chosen */
enum {
    LM_LEDGER_TRIALS = 4,  /* steps before that */
    LM_LEDGER_MOST = 65535 /* most digests of a record */
};

/* A record to compare with. */
typedef struct {
    size_t at, run; /* of the record, and of the record that began its run, in the ledger's bytes */
    uint64_t step;
} lm_ledger_entry;

/* A run of the ledger, and whether its steps are those of the audit: the same options from the same
 * state. */
typedef struct {
    size_t at, parent; /* of its record, and of that of the run that it continues */
    int same;
} lm_ledger_run;

typedef struct {
    ledger_file file;
    ledger_state written; /* state of the last record */
    ledger_state before;  /* state before the current step, in case it is cancelled */
    int open;             /* nonzero if this process writes the ledger */
    uint64_t recorded;    /* step of the last record */
    /* the processes of the training if each has a shard of the optimiser state only, or NULL */
    const gckpt_transport *shards;
    int shards_values; /* nonzero if it also has a shard of the values only */
    /* every: steps between records; 0 until it is chosen */
    uint64_t every, records, steps;
    double record_seconds, rows_seconds, step_seconds; /* of all records, batches, steps so far */
    unsigned char *audited;                            /* the ledger to audit, or NULL */
    ledger_report report;
    lm_ledger_entry *entries;
    size_t count, compared; /* entries; those compared */
    size_t others;          /* records that are not compared: of runs with other options */
    ledger_record other;    /* the first of them */
    uint64_t first, last;   /* steps of the audit */
    size_t begin;           /* of the record of the run that it repeats, in the ledger's bytes */
    unsigned char *digests;
} lm_ledger;

/* Options that do not determine the weights, so that a ledger does not state them. */
static const char lm_ledger_omits[] =
    "micro-batch threads device peak-tflops offload-state checkpoint budget eval-iters "
    "save-every samples temperature top-k top-p timeline json help ledger ledger-every "
    "ledger-key audit audit-until save resume plan summary profile frontier sample prompt "
    "tune-seconds shard timeout new epochs eval generate merge export export-gguf gguf-type "
    "memory-svg keep retention-data map log patience interactive system accuracy";

/* Prints an error, whose text may have parts of a ledger, and returns 1. */
static int lm_ledger_refuse(const char *option, const char *text)
{
    fprintf(stderr, "%s: --%s ", session.program, option);
    ledger_print(stderr, text, strlen(text));
    fputc('\n', stderr);
    return 1;
}

/* Refuses an audit. */
static int lm_ledger_differs(const char *path, const char *text)
{
    char all[6144];
    snprintf(all, sizeof all, "%s: %s", path, text);
    return lm_ledger_refuse("audit", all);
}

/* ---- the text of a run --------------------------------------------------------------------------- */
/* Writes the line "NAME SHA-256 N bytes", and ends the hash. */
static void lm_ledger_end_hash(ledger_text *t, const char *name, ledger_sha *s)
{
    const uint64_t bytes = s->bytes;
    unsigned char hash[LEDGER_HASH];
    ledger_sha_end(s, hash);
    ledger_put(t, name);
    ledger_put(t, " ");
    ledger_put_hex(t, hash, sizeof hash);
    ledger_put(t, " ");
    ledger_put_number(t, bytes);
    ledger_put(t, " bytes\n");
}

static inline void lm_ledger_put_hash(ledger_text *t, const char *name, const void *bytes,
                                      size_t size)
{
    ledger_sha s;
    ledger_sha_begin(&s);
    ledger_sha_add(&s, bytes, size);
    lm_ledger_end_hash(t, name, &s);
}

/* Does the same for a file, which must be readable twice. */
static inline void lm_ledger_put_file(ledger_text *t, const char *name, const char *path)
{
    char bytes[16384];
    ledger_sha s;
    FILE *f = fopen(path, "rb");
    ledger_sha_begin(&s);
    for (size_t n; f != NULL && (n = fread(bytes, 1, sizeof bytes, f)) > 0;)
        ledger_sha_add(&s, bytes, n);
    if (f != NULL)
        fclose(f);
    lm_ledger_end_hash(t, name, &s);
}

/* Writes the value of an option, such that options_set reads the same one. */
static void lm_ledger_put_option(ledger_text *t, const options_desc *p)
{
    char value[64] = "";
    const char *text = value;
    if (p->kind == OPTIONS_TEXT)
        text = *(const char *const *)p->variable;
    else if (p->kind == OPTIONS_CHOICE)
        text = p->choices[*(const int64_t *)p->variable];
    else if (p->kind != OPTIONS_REAL)
        snprintf(value, sizeof value, "%lld", (long long)*(const int64_t *)p->variable);
    for (int digits = 6; p->kind == OPTIONS_REAL && digits <= 17; digits++) {
        snprintf(value, sizeof value, "%.*g", digits, *(const double *)p->variable);
        if (strtod(value, NULL) == *(const double *)p->variable)
            break;
    }
    if (text == NULL || (p->kind == OPTIONS_FLAG && *(const int64_t *)p->variable == 0) ||
        (p->kind == OPTIONS_REAL && *(const double *)p->variable < p->min)) /* it has no value */
        return;
    ledger_put(t, p->kind == OPTIONS_FLAG ? "flag " : "option ");
    ledger_put(t, p->name);
    ledger_put(t, " ");
    for (; *text != 0; text++)
        ledger_put_bytes(t, *text == '\n' ? "\\n" : text, *text == '\n' ? 2 : 1);
    ledger_put(t, "\n");
}

/* Writes all that determines the weights: program, numeric specification, options, and what
 * `describe` adds. Lines of files begin with "file"; paths may differ from machine to machine. */
static void lm_ledger_put_run(ledger_text *t, const options_table *options,
                              void (*describe)(ledger_text *t))
{
    ledger_put(t, "program ");
    ledger_put(t, options->program);
    ledger_put(t, "\ncontract ");
    ledger_put_number(t, GCKPT_CONTRACT);
    ledger_put(t, "\n");
    describe(t);
    for (int i = 0; i < options_count(options); i++) {
        const options_desc *p = options_at(options, i);
        const int file = options_is_text(p->kind) && p->kind != OPTIONS_TEXT;
        if (session_is_in(lm_ledger_omits, p->name))
            continue;
        if (!file) {
            lm_ledger_put_option(t, p);
        } else if (*(const char *const *)p->variable != NULL) {
            ledger_put(t, "file ");
            ledger_put(t, p->name);
            ledger_put(t, " ");
            ledger_put(t, *(const char *const *)p->variable);
            ledger_put(t, "\n");
        }
    }
}

/* Returns the text of the run, with the lines of the tensors unless `store` is NULL, which the caller
 * frees; or NULL if there is no memory or the text without these lines has more than 65,535 bytes. */
static char *lm_ledger_text(const options_table *options, void (*describe)(ledger_text *t),
                            const gckpt_store *store, size_t *length)
{
    ledger_text text = { NULL, 65536, 0 }, tensors = { NULL, 0, 0 };
    if (store != NULL)
        ledger_put_tensors(&tensors, store);
    text.size += tensors.used;
    text.to = (char *)malloc(text.size);
    if (text.to != NULL)
        lm_ledger_put_run(&text, options, describe);
    if (text.to != NULL && store != NULL)
        ledger_put_tensors(&text, store);
    *length = text.used;
    if (text.used < text.size)
        return text.to;
    free(text.to);
    return NULL;
}

/* ---- digests of shards ------------------------------------------------------------------------ */
/* Exchanges buffers of the same size with another rank. Returns 1, or 0 if it does not answer. */
static int lm_exchange(const gckpt_transport *ranks, int peer, const void *send, void *receive,
                       size_t bytes)
{
    const double begin = ranks->clock(ranks->user);
    int done = ranks->exchange(ranks->user, peer, send, bytes, receive, bytes) ? 0 : -1;
    while (done == 0 && ranks->clock(ranks->user) - begin < ranks->timeout)
        done = ranks->done(ranks->user);
    if (done == 1)
        return 1;
    ranks->abort(ranks->user);
    session_fail(1, "rank %d does not answer: it has ended, or needs longer than the timeout",
                 peer);
    return 0;
}

/* Returns the number of blocks of a tensor. */
static size_t lm_ledger_blocks(const ledger_tensor *t)
{
    return ((size_t)t->p.elements * 4 + LEDGER_BLOCK - 1) / LEDGER_BLOCK;
}

/* Hashes the blocks that this rank has to hashes[0], hashes[1], .. of the tensor's blocks. */
static void lm_ledger_hash_shard(const lm_ledger *l, const ledger_tensor *t, unsigned char *hashes)
{
    enum { ELEMENTS = LEDGER_BLOCK / 4 };
    const int whole = t->part == 0 && !l->shards_values;
    const float *from = t->part > 0 ? t->p.state[t->part - 1] : t->p.values;
    const size_t first = whole ? 0 : (size_t)t->p.first,
                 count = whole ? (size_t)t->p.elements : (size_t)t->p.count;
    for (size_t at = 0; at < count; at += ELEMENTS)
        ledger_hash_block(from + at, count - at < ELEMENTS ? count - at : ELEMENTS, 4,
                          hashes + (first + at) / ELEMENTS * LEDGER_HASH);
}

/* Combines the hashes of all ranks, each of which has zeros in place of those that it lacks. */
static int lm_ledger_combine(const gckpt_transport *ranks, unsigned char *hashes,
                             unsigned char *other, size_t bytes)
{
    for (int bit = 1; bit < ranks->size; bit *= 2) {
        if (!lm_exchange(ranks, ranks->rank ^ bit, hashes, other, bytes))
            return 0;
        for (size_t i = 0; i < bytes; i++)
            hashes[i] |= other[i];
    }
    return 1;
}

/* Writes digests as ledger_digests does. If ranks have shards, each hashes its blocks, and all ranks
 * must call this. Returns the number of digests, or 0. */
static size_t lm_ledger_digests(lm_ledger *l, gckpt_store *store, int all, unsigned char *to,
                                size_t room)
{
    ledger_tensor t;
    size_t blocks = 0, at = 0, n = 0;
    if (l->shards == NULL)
        return ledger_digests(store, all, to, room);
    for (memset(&t, 0, sizeof t), t.index = -1; ledger_next_tensor(store, all, &t);)
        blocks += lm_ledger_blocks(&t);
    unsigned char *hashes = (unsigned char *)calloc(2 * blocks, LEDGER_HASH);
    const int ready = hashes != NULL && gckpt_store_pull(store, "*") == GCKPT_OK;
    for (memset(&t, 0, sizeof t), t.index = -1; ready && ledger_next_tensor(store, all, &t);) {
        lm_ledger_hash_shard(l, &t, hashes + at * LEDGER_HASH);
        at += lm_ledger_blocks(&t);
    }
    if (ready &&
        lm_ledger_combine(l->shards, hashes, hashes + blocks * LEDGER_HASH, blocks * LEDGER_HASH)) {
        at = 0;
        for (memset(&t, 0, sizeof t), t.index = -1; n < room && ledger_next_tensor(store, all, &t);
             n++) {
            const size_t own = lm_ledger_blocks(&t);
            ledger_hash_block(hashes + at * LEDGER_HASH, own * LEDGER_HASH, 1,
                              to + n * LEDGER_HASH);
            at += own;
        }
    }
    free(hashes);
    return n;
}

/* ---- writing --------------------------------------------------------------------------------- */
static int lm_ledger_append(lm_ledger *l, gckpt_store *store, ledger_kind kind)
{
    if (ledger_file_append(&l->file, kind, store) != 0)
        return lm_ledger_refuse("ledger", l->file.error);
    return 0;
}

/* Appends a record of the present state, unless the last one is of it. If ranks have shards, all
 * must call this. */
static int lm_ledger_record(lm_ledger *l, gckpt_store *store)
{
    const double begin = session_now();
    int failed = 0;
    if (l->recorded == gckpt_store_step(store))
        return 0;
    if (l->shards != NULL && lm_ledger_digests(l, store, 0, l->digests, LM_LEDGER_MOST) == 0)
        failed = session_fail(1, "--ledger: the digests of the shards are not complete");
    if (!failed && l->open)
        failed = lm_ledger_append(l, store, LEDGER_STEP);
    if (!failed)
        l->written = l->file.now;
    l->record_seconds += session_now() - begin;
    l->records++;
    return failed;
}

/* Returns the part of the time that a ledger takes with a record every `every` steps. */
static double lm_ledger_cost(const lm_ledger *l, uint64_t every)
{
    const double steps = (double)l->steps, records = (double)(l->records > 0 ? l->records : 1);
    return (l->rows_seconds / steps + l->record_seconds / records / (double)every) /
           (l->step_seconds / steps);
}

/* Chooses the number of steps between two records by the times so far. */
static uint64_t lm_ledger_interval(const lm_ledger *l)
{
    const double steps = (double)l->steps, records = (double)(l->records > 0 ? l->records : 1);
    const double spare = LM_LEDGER_AIM * l->step_seconds / steps - l->rows_seconds / steps;
    const double every = spare > 0 ? l->record_seconds / records / spare : 1e6;
    return every < 1 ? 1 : every < 1e6 ? (uint64_t)every + 1 : 1000000;
}

/* Counts a step that took `seconds`, the `done`-th of this run, and returns whether a record is due.
 * The first step has one, by which its time is measured. The time of the first step is not typical
 * and does not count. */
static int lm_ledger_is_due(lm_ledger *l, int64_t fixed, double seconds, uint64_t done)
{
    if (fixed > 0)
        l->every = (uint64_t)fixed;
    if (done == 1) {
        l->rows_seconds = 0;
        return fixed == 0 || l->file.now.step % l->every == 0;
    }
    l->steps++;
    l->step_seconds += seconds;
    if (l->every == 0 && l->steps == LM_LEDGER_TRIALS) {
        l->every = lm_ledger_interval(l);
        session_print_line("ledger a record every %llu step%s: %.1f %% of the time",
                           (unsigned long long)l->every, session_plural((int64_t)l->every),
                           100 * lm_ledger_cost(l, l->every));
    } else if (fixed == 0 && l->every > 0) {
        l->every = lm_ledger_interval(l);
    }
    return fixed > 0 ? l->file.now.step % l->every == 0
                     : l->every > 0 && l->file.now.step - l->recorded >= l->every;
}

/* ---- auditing -------------------------------------------------------------------------------- */
/* Reads the next line of a run's text from *at on, and advances *at. Leaves out lines of files, whose
 * paths may differ. Returns 1, or 0 at the end, where the line is empty. */
static int lm_ledger_line(const char *text, size_t length, size_t *at, const char **line, size_t *n)
{
    for (*line = text + length, *n = 0; *at < length; *at += *n + 1) {
        char name[32] = "";
        *line = text + *at;
        const char *end = (const char *)memchr(*line, '\n', length - *at), *blank = NULL;
        *n = end != NULL ? (size_t)(end - *line) : length - *at;
        if (*n > 5 && memcmp(*line, "file ", 5) == 0)
            blank = (const char *)memchr(*line + 5, ' ', *n - 5);
        if (blank != NULL && blank - *line - 5 < (ptrdiff_t)sizeof name)
            snprintf(name, sizeof name, "%.*s", (int)(blank - *line - 5), *line + 5);
        if (name[0] != 0 && session_is_in(LEDGER_FILES, name))
            continue;
        *at += *n + 1;
        return 1;
    }
    *line = text + length;
    *n = 0;
    return 0;
}

/* Compares the texts of two runs, except paths. Returns 1 if they are equal; or 0 with the first
 * lines that differ, of which one is empty if its text ends before. */
static int lm_ledger_same_text(const char *a, size_t a_length, const char *b, size_t b_length,
                               const char *line[2], size_t n[2])
{
    size_t at[2] = { 0, 0 };
    for (;;) {
        const int more = lm_ledger_line(a, a_length, &at[0], &line[0], &n[0]);
        if (lm_ledger_line(b, b_length, &at[1], &line[1], &n[1]) != more || n[0] != n[1] ||
            memcmp(line[0], line[1], n[0]) != 0)
            return 0;
        if (!more)
            return 1;
    }
}

static int lm_ledger_same_run(const ledger_record *a, const ledger_record *b)
{
    const char *line[2];
    size_t n[2];
    return lm_ledger_same_text(a->text, a->length, b->text, b->length, line, n);
}

/* Checks that this run and the one of the ledger state the same, and have the same tensors. */
static int lm_ledger_check_run(const char *path, const ledger_record *run, const char *text,
                               size_t length)
{
    const char *line[2];
    char why[1024];
    size_t n[2];
    if (lm_ledger_same_text(run->text, run->length, text, length, line, n))
        return 0;
    const int data = n[0] > 5 && strncmp(line[0], "data ", 5) == 0;
    snprintf(why, sizeof why, "record %llu states \"%.*s\", but this run has \"%.*s\": %s",
             (unsigned long long)run->index, n[0] < 300 ? (int)n[0] : 300, line[0],
             n[1] < 300 ? (int)n[1] : 300, line[1],
             data ? "give the data of the training with --data FILE"
                  : "an audit needs what the record states");
    return lm_ledger_differs(path, why);
}

/* Returns the number of the run, of `count`, that has the record at bytes[at]. */
static size_t lm_ledger_run_of(const lm_ledger_run *runs, size_t count, size_t at)
{
    while (count > 1 && runs[count - 1].at > at)
        count--;
    return count - 1;
}

/* Lists all runs in `runs`, with those that they continue. */
static void lm_ledger_list_runs(const lm_ledger *l, lm_ledger_run *runs)
{
    ledger_record r, parent;
    size_t count = 0;
    for (size_t at = 0; at < l->report.bytes; at += r.bytes) {
        ledger_parse(l->audited + at, &r);
        if (r.kind != LEDGER_RUN)
            continue;
        lm_ledger_run *const run = &runs[count];
        memset(run, 0, sizeof *run);
        run->at = at;
        run->parent = count++;
        if (ledger_find(l->audited, at, r.state.step, &parent))
            run->parent = lm_ledger_run_of(runs, count - 1,
                                           (size_t)(parent.digests - l->audited) - LEDGER_HEAD);
    }
}

/* Marks the runs whose steps are those of run `first`: it, those before it with the same options,
 * those that continue one of them with these options, and those that begin where they do. */
static void lm_ledger_mark_runs(const lm_ledger *l, lm_ledger_run *runs, size_t first)
{
    ledger_record like, begin, r;
    size_t top = first;
    ledger_parse(l->audited + runs[first].at, &like);
    for (begin = like; runs[top].parent != top; begin = r, top = runs[top].parent) {
        runs[top].same = 1;
        ledger_parse(l->audited + runs[runs[top].parent].at, &r);
        if (!lm_ledger_same_run(&like, &r))
            break;
    }
    runs[top].same = 1;
    for (size_t i = 0; i < (size_t)l->report.runs; i++) {
        ledger_parse(l->audited + runs[i].at, &r);
        const int continues = runs[i].parent != i && runs[runs[i].parent].same;
        const int begins = r.state.step == begin.state.step &&
                           ledger_same_state(&r, &begin, ledger_trained(&begin));
        if (!runs[i].same && (continues || begins) && lm_ledger_same_run(&like, &r))
            runs[i].same = 1;
    }
}

/* Lists the records of all runs from the step of `from` up to step `until`: those to compare, and
 * the first one that cannot be compared. */
static void lm_ledger_list_records(lm_ledger *l, const lm_ledger_run *runs,
                                   const ledger_record *from, uint64_t until)
{
    ledger_record r;
    size_t run = 0;
    l->first = l->last = from->state.step;
    for (size_t at = 0; at < l->report.bytes; at += r.bytes) {
        ledger_parse(l->audited + at, &r);
        if (run + 1 < (size_t)l->report.runs && runs[run + 1].at <= at)
            run++;
        if (r.kind == LEDGER_END || r.state.step > until || r.state.step < from->state.step)
            continue;
        if (runs[run].same) {
            const lm_ledger_entry e = { at, runs[run].at, r.state.step };
            l->entries[l->count++] = e;
            l->last = e.step > l->last ? e.step : l->last;
        } else if (r.state.step > from->state.step) {
            l->other = l->others++ == 0 ? r : l->other;
        }
    }
}

/* Lists the records after `from` up to step `until`, of which the last must be of these options. */
static int lm_ledger_list(lm_ledger *l, const char *path, const ledger_record *from, uint64_t until)
{
    ledger_record last;
    const size_t runs_count = (size_t)l->report.runs;
    lm_ledger_run *runs = (lm_ledger_run *)malloc(runs_count * sizeof *runs);
    l->entries = (lm_ledger_entry *)malloc((size_t)l->report.end.index * sizeof *l->entries);
    int failed = runs == NULL || l->entries == NULL
                     ? session_fail(1, "out of memory for %llu records",
                                    (unsigned long long)l->report.end.index)
                     : 0;
    if (!failed) {
        lm_ledger_list_runs(l, runs);
        const size_t first =
            lm_ledger_run_of(runs, runs_count, (size_t)(from->digests - l->audited) - LEDGER_HEAD);
        lm_ledger_mark_runs(l, runs, first);
        lm_ledger_list_records(l, runs, from, until > 0 ? until : UINT64_MAX);
        l->begin = runs[first].at;
    }
    if (!failed && until > 0 && !ledger_find(l->audited, l->report.bytes, until, &last))
        failed = session_fail(1, "--audit-until %llu: no record of %s is of that step",
                              (unsigned long long)until, path);
    if (!failed && until > 0 &&
        !runs[lm_ledger_run_of(runs, runs_count, (size_t)(last.digests - l->audited) - LEDGER_HEAD)]
             .same)
        failed = session_fail(1,
                              "--audit %s: step %llu is of a run with other options, record %llu; "
                              "begin at a checkpoint of that run",
                              path, (unsigned long long)until, (unsigned long long)last.index);
    free(runs);
    return failed;
}

/* Compares the present state with all records of its step. Returns 0, or 1 after naming the record
 * and the first tensor that differ. */
static int lm_ledger_compare(lm_ledger *l, gckpt_store *store, const char *path)
{
    size_t digests[2] = { 0, 0 };
    for (size_t i = 0; i < l->count; i++) {
        ledger_record r, run;
        char text[256];
        if (l->entries[i].step != l->file.now.step)
            continue;
        ledger_read(l->audited, l->report.bytes, l->entries[i].at, &r);
        ledger_read(l->audited, l->report.bytes, l->entries[i].run, &run);
        const int all = r.kind == LEDGER_RUN;
        if (digests[all] == 0) {
            digests[all] = lm_ledger_digests(l, store, all, l->digests, LM_LEDGER_MOST);
            digests[!all] = 0;
        }
        if (digests[all] == 0)
            return session_fail(1, "--audit %s: the weights cannot be read", path);
        if (!ledger_compare(&run, &r, &l->file.now, l->digests, digests[all], text, sizeof text))
            return lm_ledger_differs(path, text);
        l->compared++;
    }
    return 0;
}

/* Reads the ledger `path` and checks it. */
static int lm_ledger_load(lm_ledger *l, const char *path)
{
    size_t size = 0;
    const int fd = open(path, O_RDONLY | O_NONBLOCK);
    l->audited = fd >= 0 ? ledger_read_file(fd, &size) : NULL;
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (l->audited == NULL)
        return session_fail(1, "--audit %s: %s", path, ledger_error(error));
    if (!ledger_verify(l->audited, size, NULL, NULL, &l->report))
        return lm_ledger_differs(path, l->report.error);
    return 0;
}

/* Checks that the frozen tensors are those of the run that is repeated: its steps do not have them. */
static int lm_ledger_check_frozen(lm_ledger *l, gckpt_store *store, const char *path)
{
    ledger_record run;
    char text[256];
    ledger_parse(l->audited + l->begin, &run);
    const size_t n = lm_ledger_digests(l, store, 1, l->digests, LM_LEDGER_MOST);
    ledger_state same = run.state;
    if (n == 0)
        return session_fail(1, "--audit %s: the weights cannot be read", path);
    const size_t trained = ledger_trained(&run);
    memcpy(l->digests, run.digests, LEDGER_HASH * (trained < n ? trained : n));
    if (!ledger_compare(&run, &run, &same, l->digests, n, text, sizeof text))
        return lm_ledger_differs(path, text);
    return 0;
}

/* Checks that no step is after the last one that the options state, at which a training ends. */
static int lm_ledger_check_last(const lm_ledger *l, const char *path, uint64_t steps)
{
    ledger_record r;
    for (size_t i = 0; i < l->count; i++) {
        ledger_parse(l->audited + l->entries[i].at, &r);
        if (r.kind == LEDGER_STEP && r.state.step > steps)
            return session_fail(
                1, "--audit %s: record %llu is after step %llu, the last that its run states", path,
                (unsigned long long)r.index, (unsigned long long)steps);
    }
    return 0;
}

/* Begins an audit of the ledger `path` with the store's state, whose step must have a record. `text`
 * states this run, which ends at step `steps`. `fed` is the number of batches that the checkpoint
 * has, or UINT64_MAX if it does not determine that. */
static int lm_ledger_audit(lm_ledger *l, gckpt_store *store, const char *path, uint64_t until,
                           const char *text, size_t length, uint64_t steps, uint64_t fed)
{
    ledger_record from;
    const uint64_t step = gckpt_store_step(store);
    if (lm_ledger_load(l, path) != 0)
        return 1;
    if (!ledger_find(l->audited, l->report.bytes, step, &from))
        return session_fail(1,
                            "--audit %s: no record is of step %llu, at which this run begins; "
                            "begin at a checkpoint of a step that has a record",
                            path, (unsigned long long)step);
    if (fed != UINT64_MAX && fed != from.state.batches)
        return session_fail(1,
                            "--audit %s: record %llu has %llu batches, but the checkpoint was "
                            "saved after %llu",
                            path, (unsigned long long)from.index,
                            (unsigned long long)from.state.batches, (unsigned long long)fed);
    l->file.now = from.state;
    if (lm_ledger_list(l, path, &from, until) != 0)
        return 1;
    for (size_t i = 0; i < l->count; i++) {
        ledger_record run;
        if (i > 0 && l->entries[i].run == l->entries[i - 1].run)
            continue;
        ledger_parse(l->audited + l->entries[i].run, &run);
        if (lm_ledger_check_run(path, &run, text, length) != 0)
            return 1;
    }
    return lm_ledger_check_last(l, path, steps) || lm_ledger_check_frozen(l, store, path) ||
           lm_ledger_compare(l, store, path);
}

/* Reports the result of an audit up to `until`, 0 for all records. Returns 0; or 1 if all were to be
 * compared and some were not. */
static int lm_ledger_report(const lm_ledger *l, const char *path, uint64_t until)
{
    ledger_record now;
    fprintf(session.out, "audit  equal: %zu record%s, steps %llu to %llu\n", l->compared,
            session_plural((int64_t)l->compared), (unsigned long long)l->first,
            (unsigned long long)l->last);
    if (l->report.has_key)
        fprintf(session.out, "note   %s does not check signatures; build/audit does\n",
                session.program);
    if (l->others == 0)
        return 0;
    const int replaced = !ledger_find(l->audited, l->report.bytes, l->other.state.step, &now) ||
                         now.index != l->other.index;
    char text[400];
    snprintf(text, sizeof text,
             "%zu record%s of runs with other options %s not compared, first record %llu of step "
             "%llu; %s",
             l->others, session_plural((int64_t)l->others), l->others == 1 ? "was" : "were",
             (unsigned long long)l->other.index, (unsigned long long)l->other.state.step,
             replaced ? "a later run replaced it, so that only an audit of a range of steps can "
                        "be equal"
                      : "audit them from a checkpoint of the step at which their run begins");
    if (until > 0)
        return fprintf(session.out, "note   %s\n", text) < 0;
    return lm_ledger_differs(path, text);
}

static void lm_ledger_free(lm_ledger *l)
{
    if (l->open)
        ledger_file_close(&l->file);
    free(l->audited);
    free(l->entries);
    free(l->digests);
    memset(l, 0, sizeof *l);
}
#endif
