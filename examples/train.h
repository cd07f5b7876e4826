/* train.h - a training loop: shuffled minibatches within a byte budget, validation, accuracy,
 * learning-rate schedules, early stopping, best weights, a log and resuming, in one call or in
 * small pieces. To use it, copy it with fit.h, lengths.h, train_run.h, train_data.h, train_log.h and
 * schedule.h, and change them as you like: they call the public API only. C99 or C++11; include gradckpt.h first.
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
#include "fit.h"
#include "lengths.h"
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
#define TRAIN_IS_TERMINAL isatty(2) /* a line for terminals is rewritten in place */
#else
#define TRAIN_IS_TERMINAL 1
#endif

enum { TRAIN_LOSSES = 9 };

/* Arguments and results of the function that builds the user's model. */
typedef struct {
    gckpt_graph *graph;
    int64_t rows;                      /* number of rows in a micro-batch */
    /* the inputs of the graph, one for each column of the data */
    gckpt_tensor *in[TRAIN_COLUMNS];
    gckpt_tensor *loss;                /* result: the loss to minimise */
    gckpt_tensor *output;              /* result: the prediction (rows,..), or NULL */
    gckpt_term extra[TRAIN_LOSSES - 1]; /* result: further losses with their weights */
    int extra_count;                         /* result: number of elements in `extra` */
} train_net;
typedef void (*train_model)(train_net *net, void *user);

/* State of a training after a step, after an epoch, and at the end. At the end it describes the
 * epoch whose weights were kept. */
typedef struct {
    int epoch, epochs;   /* epoch: the current epoch, counted from 1; epochs: number of epochs */
    /* step: step of the epoch, counted from 1, or 0 after the epoch's end; steps: number of steps
     * in an epoch */
    int64_t step, steps;
    double loss;         /* loss of the step; after an epoch, the mean of its steps' losses */
    double validation;   /* mean loss of the validation rows, or `loss` without such rows */
    /* number of losses, 1 + net->extra_count; the array below has the mean of each one, without its
     * weight */
    int losses;
    double term_loss[TRAIN_LOSSES], term_validation[TRAIN_LOSSES];
    /* Fraction of rows in which the largest element of the output, over its last axis (..,V), is
     * the one that the label (..) says. Labels are the last column, of type i32; negative ones do
     * not count. -1 if output and label do not have this form. */
    double accuracy;
    /* outputs of the validation rows, in order; only set when `watch` is called after an epoch */
    const float *output;
    /* nonzero if the validation loss is below that of each earlier epoch, or if there are no
     * validation rows */
    int is_best;
    float lr;
    /* bytes of parameters, optimiser state, and the arena of training and validation */
    size_t bytes;
    int log_failed;    /* first epoch whose line could not be written to the log, or 0 */
    /* warnings, one per line, which were also printed on stderr; "" without warnings */
    char notes[768];
    char error[512]; /* what failed and what to do; "" without an error */
} train_report;

typedef struct {
    gckpt_hyper hyper;    /* learning rate, weight decay, clipping, .. */
    /* options of the plan: budget, batch (0 selects 32 rows per step), threads, .. */
    gckpt_plan_desc plan;
    /* the update of GCKPT_CUSTOM_OPTIMISER; plan.user is passed to it */
    void (*custom_optimiser)(void *user, const gckpt_update *);
    /* rows in a micro-batch, a divisor of the batch; if 0, fit_plan chooses it */
    int64_t micro_batch;
    int epochs;           /* number of epochs; 0 selects 10 */
    schedule_kind schedule; /* course of the learning rate over all steps (schedule.h) */
    /* number of steps at the beginning during which the learning rate rises */
    int64_t warmup;
    float min_lr;           /* learning rate at the last step */
    /* training stops after this number of epochs without improvement; 0 for never */
    int patience;
    /* seed for the order of rows and for train_random; the store's seed is for weights and
     * dropout */
    uint64_t seed;
    /* File from which training can be resumed, or NULL. It is written after each epoch, and if
     * training ends within one. If the file exists at the start, training resumes from it.
     * SAVE.best has the weights of the best epoch so far. */
    const char *save;
    int64_t save_steps; /* number of steps between additional saves within an epoch; 0 for none */
    /* CSV file with one line per epoch, or NULL. A training that resumes from `save` appends to it,
     * after removing lines of later epochs; any other training overwrites it. If the disk is full,
     * only the log ends: report.log_failed and a line on stderr tell it. */
    const char *log;
    /* number of epochs between lines on stdout; 0 means 1; -1 prints neither these lines nor the
     * remaining time */
    int print_every;
    /* called after each step and epoch; returns 1 to stop the training */
    int (*watch)(void *user, const train_report *now);
    /* Fills columns that have no values, or changes the rows of a batch (see train_data.h). Called
     * once per step and once per validation batch. Returns 0, or another value after an error. */
    int (*batch)(void *user, train_batch *batch);
    /* For rows of different lengths, such as texts: returns the length of a row, 1 or more; NULL for
     * rows of one length. There are plans for a few lengths, each within the budget, and a batch has
     * the least of them that its rows need: then that is the width of the columns of width
     * TRAIN_BY_LENGTH, which `batch` fills. Rows of similar lengths form a batch: the rows of 64
     * shuffled batches are sorted by length, and their batches are shuffled. The order depends on
     * lengths, seed and epoch alone. The row of an output has the width that the longest row needs:
     * the rest is 0. */
    int64_t (*length)(void *user, int64_t row);
    int lengths; /* most lengths that have plans; 0 selects 6; at most LENGTHS_MOST */
    /* for train_predict with `batch`: number of columns whose values are known; 0 for all */
    int known;
    void *user; /* passed to watch, batch, length, and to the model's function */
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
/* Begins the next epoch, or continues the epoch within which the saved training ended. Returns 0 if
 * no epoch is left. */
static inline int train_next_epoch(train_run *t)
{
    train_report *r = t->r;
    if (r->epoch >= r->epochs || (t->o.patience > 0 && r->epoch - t->best.epoch >= t->o.patience))
        return 0;
    r->epoch++;
    t->in_epoch = 1;
    t->validated = 0;
    memset(&t->validation, 0, sizeof t->validation);
    train_order(t, r->epoch);
    return 1;
}

static inline int train_watch(train_run *t)
{
    return t->o.watch != NULL && t->o.watch(t->o.user, t->r) != 0;
}

/* Ends an epoch, after its last step and validation batch: calls `watch`, saves, and writes the
 * log. */
static inline int train_end_epoch(train_run *t)
{
    const int lines = t->o.print_every > 0 ? t->o.print_every : 1;
    train_report *r = t->r;
    r->step = 0;
    /* computed again, because an earlier process may have run the epoch's last step */
    r->lr = train_lr(t, train_global_step(t) - 1);
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

/* Begins a training of the model's parameters in `store`: makes plans, and loads the file to resume
 * from. Parameters that exist keep their values, and frozen ones stay frozen. The store, the
 * report, and the arrays that data and options point to must live until train_end. Returns 0, or -1
 * with r->error; then train_end need not be called. */
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
 * step if `instructions` is 0. After the last step of an epoch, each piece is one validation batch;
 * the last piece of an epoch also prints, logs and saves. Returns 1 if there is more to do, 0 if training is over
 * or `watch` has stopped it, -1 with r->error after an error. */
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
        failed = train_evaluate(t, t->train_rows + t->validated, n, t->outputs, t->train_rows,
                                &t->validation) != 0;
        t->validated += n;
    }
    if (!failed && t->ended == 0 && t->done == r->steps && t->validated == t->valid_rows)
        failed = train_end_epoch(t) != 0;
    if (failed)
        t->ended = -1;
    return failed ? -1 : t->ended == 0;
}

/* Ends the training, which is possible at any time. Completes a step in progress, so that no
 * weights are half updated. Then saves to options.save, from where training can resume to the same
 * bits. With validation rows, restores the weights of the best epoch, which r then describes.
 * Without them, or if no epoch has ended, keeps the weights of the last step (r->step > 0 if that
 * was within an epoch). Returns 0, or -1 after an error, also one of train_tick. */
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

/* Trains completely: calls train_begin, then train_tick until nothing is left to do, then
 * train_end. */
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

/* Computes the outputs of all rows, and writes them to `out` (rows times the output's width) unless
 * it is NULL. If the values of all columns are known, also sets the mean loss of the batches (also
 * as r->validation) and, unless `out` is NULL, the accuracy. Only these options are used: `user`,
 * `batch`, `known`, `seed`, and in `plan` batch (rows in a call), threads, precision and backend.
 * Returns -1 if a parameter of the model was neither loaded, nor set, nor trained. */
static inline int train_predict(gckpt_store *store, train_model model, const train_data *data,
                                const train_options *options, float *out, train_report *r)
{
    train_run t;
    train_data all = *data;
    all.validation = 0;
    int failed = train_init(&t, store, model, &all, options, r) != 0;
    if (options->known > 0 && options->known < t.known)
        t.known = options->known;
    failed = failed || train_alloc_rows(&t, 0, t.collated ? t.columns : 0) != 0;
    if (!failed && t.o.length != NULL)
        failed = train_sort(&t, t.sorted, all.rows) != 0 ||
                 train_choose_lengths(&t, t.sorted, all.rows) != 0;
    for (int i = 0; i < t.stage_count && !failed; i++)
        failed = train_plan_forward(&t, &t.stages[i], t.batch) != 0;
    failed = failed || train_bind(&t) != 0;
    if (!failed && train_alloc_outputs(&t) != 0)
        failed = train_fail(&t, "out of memory for the outputs of a batch") != 0;
    for (int64_t at = 0; !failed && at < all.rows; at += t.batch)
        failed = train_evaluate(&t, at, all.rows - at < t.batch ? all.rows - at : t.batch, out, 0,
                                &t.sums) != 0;
    r->loss = r->validation = train_mean_loss(&t, &t.sums, r->term_loss);
    memcpy(r->term_validation, r->term_loss, sizeof r->term_validation);
    r->accuracy = out != NULL ? train_accuracy(&t, &t.sums) : -1;
    train_free(&t);
    return failed ? -1 : 0;
}
#endif
