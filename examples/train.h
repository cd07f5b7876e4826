/* train.h - a training loop: shuffled minibatches inside a byte budget, validation, accuracy,
 * schedules of the learning rate, early stopping, best weights, a log, resume; all at once or in
 * small pieces. To copy with train_run.h, train_data.h, train_log.h and schedule.h, and to change:
 * they use public calls only. C99 or C++11; include gradckpt.h first.
 *
 *     static void model(train_net *net, void *user)
 *     {
 *         gckpt_tensor *h = gckpt_relu(layers_dense(net->in[0], "fc1", 64)); // (rows,64)
 *         net->output = layers_dense(h, "fc2", 10);                          // (rows,10)
 *         net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
 *     }
 *     ...
 *     train_data data = { { { "pixels", GCKPT_F32, 64, pixels }, // 1797 x 64 floats
 *                           { "digit", GCKPT_I32, 0, digit } },  // 1797 int32_t
 *                         1797, 360 };         // rows; the last 360 are for validation
 *     train_options o = train_defaults(1e-3f); // AdamW's learning rate; 10 epochs, 32 rows a step
 *     train_report r;
 *     o.plan.budget = 200000;                  // bytes
 *     if (train_fit(store, model, &data, &o, &r) != 0)
 *         fprintf(stderr, "%s\n", r.error);
 *
 * A program with an event loop trains a piece at a time, to the same bits:
 *
 *     train_run t;
 *     int more = train_begin(&t, store, model, &data, &o, &r) == 0;
 *     while (more && !quit)                    // ... and whatever else the program does
 *         more = train_tick(&t, 0) > 0;        // a step, or a batch for validation
 *     if (train_end(&t) != 0)                  // with o.save: a later run resumes here
 *         fprintf(stderr, "%s\n", r.error);
 *
 * Rows are shuffled by seed and epoch alone, so weights have the same bits for every budget,
 * micro-batch, thread count and machine. Where a model compares rows (gckpt_plan_split_exact), a
 * batch is computed whole: the last rows of an epoch that do not fill a batch are left out. So are
 * those of validation, if the model compares rows in inference as well (batch norms do not).
 * A note names the op. */
#ifndef TRAIN_H
#define TRAIN_H
#include "schedule.h"
#include "train_data.h"
#include "train_log.h"
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#define TRAIN_IS_TERMINAL isatty(2) /* a line that is written over and over is for people only */
#else
#define TRAIN_IS_TERMINAL 1
#endif

enum { TRAIN_LOSSES = 9 };

/* What the model's function is given, and sets. */
typedef struct {
    gckpt_graph *graph;
    int64_t rows;                      /* of a micro-batch */
    gckpt_tensor *in[TRAIN_COLUMNS];   /* the columns */
    gckpt_tensor *loss;                /* set it: what is minimised */
    gckpt_tensor *output;              /* set it: the prediction (rows,..), or NULL */
    gckpt_term extra[TRAIN_LOSSES - 1]; /* further losses, */
    int extra_count;                         /* so many */
} train_net;
typedef void (*train_model)(train_net *net, void *user);

/* After a step, after an epoch, and in the end: of the epoch whose weights stay. */
typedef struct {
    int epoch, epochs;   /* from 1 */
    int64_t step, steps; /* of the epoch, from 1; step is 0 when the epoch is over */
    double loss;         /* of the step; of an epoch: the mean of its steps */
    double validation;   /* of the rows for validation: the mean of their batches; else as loss */
    int losses;          /* net->loss and so many more, each by itself and without its weight: */
    double term_loss[TRAIN_LOSSES], term_validation[TRAIN_LOSSES];
    /* 0 to 1: how often the greatest of an output (..,V) is the label in the last column (..), i32;
     * negative labels do not count. -1 if there are no such columns. */
    double accuracy;
    const float *output; /* of the rows for validation, in order; in `watch` after an epoch */
    int is_best;            /* whether no earlier epoch had less validation loss */
    float lr;
    size_t bytes;    /* parameters, optimiser state and the one arena of training and validation */
    int log_failed;    /* the first epoch whose line could not be written to the log, or 0 */
    char notes[768]; /* warnings, a line each, which are also printed on stderr; "" if none */
    char error[512]; /* what went wrong, and what helps; "" */
} train_report;

typedef struct {
    gckpt_hyper hyper;    /* lr, weight_decay, clip, .. */
    gckpt_plan_desc plan; /* budget, batch (0: 32 rows a step), threads, ..: as for gckpt_fit */
    int64_t micro_batch;  /* rows computed at once, a divisor of the batch; if 0, gckpt_fit chooses */
    int epochs;           /* 0 selects 10 */
    schedule_kind schedule; /* of lr, over all steps: SCHEDULE_COSINE, .. (schedule.h) */
    int64_t warmup;         /* steps in which lr rises */
    float min_lr;           /* and what it falls to */
    int patience;           /* stops after this many epochs without a better one; 0 for never */
    uint64_t seed; /* of the rows' order and train_random (the store's: of weights, dropout) */
    /* A file with all that is needed to resume, written after each epoch and where a training ends
     * within one. If it exists, training resumes from it. SAVE.best has the best weights so far. */
    const char *save;
    int64_t save_steps; /* also saves after this many steps of each epoch; 0 for never */
    /* A CSV file with a line per epoch. A training that resumes from SAVE appends to it, after
     * removing the lines of later epochs; else it is overwritten. A full disk ends the log, not the
     * training: see report.log_failed, and a line on stderr. */
    const char *log;
    int print_every; /* epochs between lines on stdout (0 means 1); -1 hides these and stderr's clock */
    int (*watch)(void *user, const train_report *now); /* called after steps and epochs; returns 1 to stop */
    /* Fills columns without values, or changes rows. Called once for the rows of a step, or of a
     * batch for validation (see train_data.h). Returns 0, or another value after an error. */
    int (*batch)(void *user, train_batch *batch);
    int known;  /* train_predict with `batch`: number of columns that are known; 0 for all */
    void *user; /* for watch, batch and the model's function */
} train_options;

static inline train_options train_defaults(float lr)
{
    train_options o;
    memset(&o, 0, sizeof o);
    o.hyper = gckpt_hyper_lr(lr);
    return o;
}

#include "train_run.h"

/* ---- the loop ---- */
/* Goes to the next epoch, or continues the one in which a file ended. Returns 0 if there is none. */
static inline int train_next_epoch(train_run *t)
{
    train_report *r = t->r;
    if (r->epoch >= r->epochs || (t->o.patience > 0 && r->epoch - t->best.epoch >= t->o.patience))
        return 0;
    r->epoch++;
    t->in_epoch = 1;
    t->validated = 0;
    memset(&t->validation, 0, sizeof t->validation);
    train_shuffle(t->order, t->train_rows, t->o.seed, r->epoch);
    return 1;
}

static inline int train_watch(train_run *t)
{
    return t->o.watch != NULL && t->o.watch(t->o.user, t->r) != 0;
}

/* All steps and validation are done. */
static inline int train_end_epoch(train_run *t)
{
    const int lines = t->o.print_every > 0 ? t->o.print_every : 1;
    train_report *r = t->r;
    r->step = 0;
    r->lr = train_lr(t, train_global_step(t) - 1); /* which another process may have taken */
    r->loss = r->validation = train_mean_loss(t, &t->sums, r->term_loss);
    memcpy(r->term_validation, r->term_loss, sizeof r->term_validation);
    if (t->valid_rows > 0) {
        r->validation = train_mean_loss(t, &t->validation, r->term_validation);
        r->accuracy = train_accuracy(t, &t->validation);
        train_check_validation(t);
    }
    r->is_best = t->best.epoch == 0 || t->valid_rows == 0 || r->validation < t->best.validation ||
              t->best.validation != t->best.validation;
    r->output = t->valid_rows > 0 && t->result != NULL ? t->outputs : NULL;
    t->ended = train_watch(t);
    r->output = NULL;
    t->in_epoch = 0;
    t->done = 0;
    memset(&t->sums, 0, sizeof t->sums);
    if (r->is_best) {
        t->best = *r;
        train_copy_best(t, 1);
    }
    if (t->o.print_every >= 0 && (r->epoch % lines == 0 || r->epoch == 1))
        train_print_epoch(t, "epoch", r);
    train_log(t);
    return t->o.save != NULL ? train_save(t) : 0;
}

/* Begins a training of the model's parameters in `store`. Existing parameters are used, and frozen
 * ones stay frozen. Plans, and reads a file to resume from. Store, report and what data and options
 * point to must live until train_end. Returns -1 with r->error on failure; train_end is then
 * optional. */
static inline int train_begin(train_run *t, gckpt_store *store, train_model model,
                              const train_data *data, const train_options *options, train_report *r)
{
    char header[512];
    const int started = train_init(t, store, model, data, options, r) == 0;
    r->epochs = options->epochs > 0 ? options->epochs : 10;
    if (!started || train_prepare(t) != 0 ||
        (options->log != NULL &&
         train_log_open(options->log, train_log_header(t, header), r->epoch, r->error) != 0)) {
        train_free(t);
        return -1;
    }
    t->resumed_steps = r->epoch * r->steps + t->done;
    t->start_time = t->printed_at = time(NULL);
    return 0;
}

/* Runs a piece of the training: that many instructions of a step (gckpt_run_some), or for 0 a step;
 * or a batch of rows for validation. The last one of an epoch also writes lines, log and files.
 * Returns 1 if there is more, 0 if it is over or `watch` stopped it, -1 with r->error after an
 * error. */
static inline int train_tick(train_run *t, int instructions)
{
    train_report *r = t->r;
    int failed = 0;
    if (t->ended == 0 && !t->in_epoch)
        t->ended = !train_next_epoch(t);
    if (t->ended != 0)
        return t->ended < 0 ? -1 : 0;
    const int64_t done = t->done;
    if (done < r->steps) {
        failed = train_step(t, instructions) != 0;
        t->ended = !failed && t->done > done && train_watch(t);
        if (!failed && t->done > done && t->o.save != NULL && t->o.save_steps > 0 &&
            t->done % t->o.save_steps == 0 && t->done < r->steps)
            failed = train_save(t) != 0;
    } else if (t->validated < t->valid_rows) {
        const int64_t left = t->valid_rows - t->validated, n = left < t->batch ? left : t->batch;
        failed = train_evaluate(t, t->train_rows + t->validated, n,
                                t->outputs + t->validated * t->width, &t->validation) != 0;
        t->validated += n;
    }
    if (!failed && t->ended == 0 && t->done == r->steps && t->validated == t->valid_rows)
        failed = train_end_epoch(t) != 0;
    if (failed)
        t->ended = -1;
    return failed ? -1 : t->ended == 0;
}

/* Ends the training, over or not. A step in progress is completed first, so that no weights are
 * half updated; then options.save receives all that is needed to resume to the same bits. With rows
 * for validation the weights of the best epoch stay, and r describes it. Otherwise the last step's
 * weights stay, also where no epoch ended (then r describes that step: r->step > 0). Returns -1
 * after an error, or with that of train_tick. */
static inline int train_end(train_run *t)
{
    train_report *r = t->r;
    int failed = t->ended < 0;
    if (!failed && t->in_step)
        failed = train_step(t, 0) != 0;
    if (!failed && t->in_epoch && t->done > 0 && t->o.save != NULL)
        failed = train_save(t) != 0;
    if (!failed && t->best.epoch > 0 && (t->valid_rows > 0 || t->done == 0)) {
        train_copy_best(t, -1);
        t->best.epochs = r->epochs;
        t->best.steps = r->steps;
        t->best.bytes = r->bytes;
        t->best.log_failed = r->log_failed;
        memcpy(t->best.notes, r->notes, sizeof r->notes);
        t->best.losses = r->losses;
        *r = t->best;
        if (t->o.print_every >= 0)
            train_print_epoch(t, "kept: epoch", r);
    }
    train_free(t);
    return failed ? -1 : 0;
}

/* All of it: train_begin, train_tick until there is no more, train_end. */
static inline int train_fit(gckpt_store *store, train_model model, const train_data *data,
                            const train_options *options, train_report *r)
{
    train_run t;
    if (train_begin(&t, store, model, data, options, r) != 0)
        return -1;
    while (train_tick(&t, 0) > 0) {
    }
    return train_end(&t);
}

/* Writes the outputs of all rows to `out` (rows times the output's width), which may be NULL. Where
 * all columns are known, also computes the loss, the mean of the batches (also r->validation), and
 * the accuracy. Used options: `user`, `batch`, `known`, `seed`, and of `plan` the rows at once
 * (batch), threads, precision and backend. Fails if a parameter of the model was neither loaded,
 * set nor trained. */
static inline int train_predict(gckpt_store *store, train_model model, const train_data *data,
                                const train_options *options, float *out, train_report *r)
{
    train_run t;
    train_data all = *data;
    all.validation = 0;
    int failed = train_init(&t, store, model, &all, options, r) != 0;
    if (options->known > 0 && options->known < t.known)
        t.known = options->known;
    failed = failed || train_plan_forward(&t, t.batch) != 0;
    if (!failed && train_alloc_rows(&t, 0, t.collated ? t.columns : 0) != 0)
        failed = train_fail(&t, "out of memory for a batch") != 0;
    failed = failed || train_bind(&t) != 0;
    for (int64_t at = 0; !failed && at < all.rows; at += t.batch)
        failed = train_evaluate(&t, at, all.rows - at < t.batch ? all.rows - at : t.batch,
                                out != NULL ? out + at * t.width : NULL, &t.sums) != 0;
    r->loss = r->validation = train_mean_loss(&t, &t.sums, r->term_loss);
    memcpy(r->term_validation, r->term_loss, sizeof r->term_validation);
    r->accuracy = out != NULL ? train_accuracy(&t, &t.sums) : -1;
    train_free(&t);
    return failed ? -1 : 0;
}
#endif
