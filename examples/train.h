/* train.h - a training loop: shuffled minibatches within a byte budget, validation, accuracy,
 * learning-rate schedules, early stopping, best weights, a log and resuming, in one call or in
 * small pieces. To use it, copy it with train_run.h, train_data.h, train_log.h and schedule.h, and
 * change them as you like: they call the public API only. C99 or C++11; include gradckpt.h first.
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
 * A program with an event loop trains one piece at a time, to the same bits:
 *
 *     train_run t;
 *     int more = train_begin(&t, store, model, &data, &o, &r) == 0;
 *     while (more && !quit)                    // ... and whatever else the program does
 *         more = train_tick(&t, 0) > 0;        // a step, or a batch for validation
 *     if (train_end(&t) != 0)                  // with o.save: a later run resumes here
 *         fprintf(stderr, "%s\n", r.error);
 *
 * The seed and the epoch alone determine the order of rows, so the weights have the same bits for
 * every budget, micro-batch, thread count and machine. If an op mixes the rows of a batch
 * (gckpt_plan_split_exact), a batch is computed whole: rows at the end of an epoch that do not fill
 * a batch are skipped. If an op mixes rows in inference as well (batch norms do not), the same
 * holds for validation, and a note names the op. */
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
#define TRAIN_IS_TERMINAL isatty(2) /* the line for terminals, rewritten in place */
#else
#define TRAIN_IS_TERMINAL 1
#endif

enum { TRAIN_LOSSES = 9 };

/* Input and result of the model's function. */
typedef struct {
    gckpt_graph *graph;
    int64_t rows;                      /* rows of a micro-batch */
    gckpt_tensor *in[TRAIN_COLUMNS];   /* the data's columns as graph inputs */
    gckpt_tensor *loss;                /* set by the function: the loss to minimise */
    gckpt_tensor *output;              /* set by the function: the prediction (rows,..), or NULL */
    gckpt_term extra[TRAIN_LOSSES - 1]; /* set by the function: further losses */
    int extra_count;                         /* number of `extra` */
} train_net;
typedef void (*train_model)(train_net *net, void *user);

/* State after a step, after an epoch, and at the end, where it describes the epoch whose weights
 * were kept. */
typedef struct {
    int epoch, epochs;   /* epoch, counted from 1; number of epochs */
    /* step of the epoch, counted from 1, or 0 after its end; steps per epoch */
    int64_t step, steps;
    double loss;         /* loss of the step; after an epoch, the mean over its steps */
    double validation;   /* mean loss of the validation batches; without validation rows, `loss` */
    int losses;          /* 1 + net->extra_count; below, the mean of each loss without its weight */
    double term_loss[TRAIN_LOSSES], term_validation[TRAIN_LOSSES];
    /* Fraction of rows whose largest output, over the last axis of output (..,V), is at the label
     * in the last column (..), an i32. Negative labels do not count. -1 if the output is not of
     * that kind. */
    double accuracy;
    /* outputs of the validation rows, in order; set for `watch` after an epoch only */
    const float *output;
    int is_best;            /* nonzero if no earlier epoch had a smaller validation loss */
    float lr;
    /* bytes of parameters, optimiser state and the arena shared by training and validation */
    size_t bytes;
    int log_failed;    /* first epoch whose line could not be written to the log, or 0 */
    char notes[768]; /* warnings, one per line, also printed on stderr; "" if none */
    char error[512]; /* error and remedy; "" if none */
} train_report;

typedef struct {
    gckpt_hyper hyper;    /* learning rate, weight decay, clipping, .. */
    /* options for gckpt_fit: budget, batch (0 selects 32 rows per step), threads, .. */
    gckpt_plan_desc plan;
    int64_t micro_batch;  /* rows per pass, a divisor of the batch; if 0, gckpt_fit chooses */
    int epochs;           /* 0 selects 10 */
    schedule_kind schedule; /* shape of the learning rate over all steps (schedule.h) */
    int64_t warmup;         /* steps in which the learning rate rises */
    float min_lr;           /* learning rate at the end */
    int patience;           /* epochs without improvement after which training stops; 0 for never */
    /* seed of the order of rows and of train_random (the store's seed: weights, dropout) */
    uint64_t seed;
    /* File with all that is needed to resume, written after each epoch and when training ends
     * within one. If it exists, training resumes from it. SAVE.best holds the best weights so
     * far. */
    const char *save;
    int64_t save_steps; /* steps between additional saves within an epoch; 0 for none */
    /* CSV file with one line per epoch. A training that resumes from `save` appends to it, after
     * removing the lines of later epochs; otherwise the file is overwritten. A full disk ends the
     * log, not the training: report.log_failed and a line on stderr say so. */
    const char *log;
    /* epochs between lines on stdout (0 means 1); -1 prints neither these nor the time left */
    int print_every;
    int (*watch)(void *user, const train_report *now); /* called after steps and epochs; returns 1 to stop */
    /* Fills columns without values, or changes rows. Called once per step and once per validation
     * batch (see train_data.h). Returns 0, or another value after an error. */
    int (*batch)(void *user, train_batch *batch);
    int known;  /* for train_predict with `batch`: number of known columns; 0 for all */
    void *user; /* passed to watch, batch and the model's function */
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
/* Begins the next epoch, or continues the one in which the saved training ended. Returns 0 if there
 * is none. */
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

/* Ends an epoch after its last step and validation batch: reports, saves, logs. */
static inline int train_end_epoch(train_run *t)
{
    const int lines = t->o.print_every > 0 ? t->o.print_every : 1;
    train_report *r = t->r;
    r->step = 0;
    r->lr = train_lr(t, train_global_step(t) - 1); /* another process may have run that step */
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

/* Begins a training of the model's parameters in `store`: plans, and loads the file to resume from.
 * Existing parameters are kept, and frozen ones stay frozen. The store, the report and the arrays
 * that data and options point to must live until train_end. Returns -1 with r->error on failure;
 * train_end is then optional. */
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

/* Runs a piece of the training: `instructions` instructions of a step (gckpt_run_some), or a whole
 * step if it is 0; after the last step of an epoch, one validation batch. The last piece of an
 * epoch also prints, logs and saves. Returns 1 if there is more to do, 0 if training is over or
 * `watch` stopped it, -1 with r->error after an error. */
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

/* Ends the training at any time. First completes a step in progress, so that no weights are half
 * updated, then saves to options.save all that is needed to resume to the same bits. With
 * validation rows, restores the weights of the best epoch, and r describes that epoch. Otherwise
 * keeps the last step's weights, even if no epoch ended (then r describes that step: r->step > 0).
 * Returns -1 after an error, also one of train_tick. */
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

/* Trains completely: train_begin, train_tick until nothing is left, train_end. */
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

/* Writes the outputs of all rows to `out` (rows times the output's width) unless it is NULL. If all
 * columns are known, also computes the loss, the mean of the batches (also r->validation), and the
 * accuracy. Uses these options: `user`, `batch`, `known`, `seed`, and of `plan` the rows per pass
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
