/* train.h - a training loop: shuffled minibatches inside a byte budget, validation, accuracy, a
 * schedule of the learning rate, early stopping, best weights, resume. To copy, and to change: it
 * uses public calls only. C99 or C++11; include gradckpt.h first.
 *
 *     static void model(train_net *net, void *user)
 *     {
 *         gckpt_tensor *h = gckpt_relu(layers_dense(net->in[0], "fc1", 64)); // (rows,64)
 *         net->output = layers_dense(h, "fc2", 10);                          // (rows,10)
 *         net->loss = gckpt_cross_entropy(net->output, net->in[1]);
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
 * Rows are shuffled by seed and epoch alone, so weights have the same bits for every budget,
 * micro-batch, thread count and machine. Where a model compares rows (gckpt_plan_split_exact), a
 * batch is computed whole: the last rows of an epoch that fill none are left out, and of those for
 * validation, if it compares them there, too (batch norms do not). */
#ifndef TRAIN_H
#define TRAIN_H
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#define TRAIN_CLOCK isatty(2) /* a line that is written over and over is for people only */
#else
#define TRAIN_CLOCK 1
#endif

enum { TRAIN_COLUMNS = 8 };

/* Arrays of rows. The last column is what is to be predicted. */
typedef struct {
    const char *name; /* of the graph's input */
    gckpt_type type;
    int64_t width;      /* values a row, as (rows,width); 0: one, as (rows) */
    const void *values; /* of all rows, one after the other; NULL (train_predict): unknown */
} train_column;
typedef struct {
    train_column column[TRAIN_COLUMNS]; /* up to the first without a name */
    int64_t rows, validation;           /* all; of them the last ones, which are not trained on */
} train_data;

/* What the model's function is given, and sets. */
typedef struct {
    gckpt_graph *graph;
    int64_t rows;                    /* of a micro-batch */
    gckpt_tensor *in[TRAIN_COLUMNS]; /* the columns */
    gckpt_tensor *loss;              /* set it: what is minimised */
    gckpt_tensor *output;            /* set it: (rows,..), what is predicted; NULL: nothing */
    gckpt_term more[8];              /* further losses, */
    int mores;                       /* so many */
} train_net;
typedef void (*train_model)(train_net *net, void *user);

/* After a step, after an epoch, and in the end: of the epoch whose weights stay. */
typedef struct {
    int epoch, epochs;   /* from 1 */
    int64_t step, steps; /* of the epoch, from 1; 0: the epoch is over */
    double loss;         /* of the step; of an epoch: the mean of its steps */
    double validation;   /* loss of the rows for validation; without such: of the epoch */
    double accuracy;     /* 0 to 1: how often the greatest of an output (..,V) is at the last column
                            (..), i32; negative ones do not count. -1: no such columns */
    const float *output; /* of the rows for validation, in order; in `watch` after an epoch */
    int best;            /* 1: no epoch before had less validation loss */
    float lr;
    size_t bytes;    /* parameters, optimiser state and the one arena of training and validation */
    char error[512]; /* what went wrong, and what helps; "" */
} train_report;

typedef struct {
    gckpt_hyper hyper;    /* lr, weight_decay, clip, .. */
    gckpt_plan_desc plan; /* budget, batch (0: 32 rows a step), threads, ..: as for gckpt_fit */
    int64_t micro_batch;  /* rows computed at once, a divisor of the batch; 0: gckpt_fit chooses */
    int epochs;           /* 0: 10 */
    int64_t warmup;       /* steps in which lr rises */
    int cosine;           /* 1: then it falls to min_lr, by half a cosine */
    float min_lr;
    int patience;     /* ends after so many epochs without a better one; 0: never */
    uint64_t seed;    /* of the rows' order (the store's: of weights and dropout) */
    const char *save; /* a file for all that is needed to go on, after each epoch; if it is there,
                         training goes on from it. SAVE.best: the best weights so far */
    int every; /* epochs between lines on stdout, 0: 1; -1: no line, and no clock on stderr */
    int (*watch)(void *user, const train_report *now); /* after steps and epochs; 1: enough */
    void *user;                                        /* for watch and the model's function */
} train_options;

static inline train_options train_defaults(float lr)
{
    train_options o;
    memset(&o, 0, sizeof o);
    o.hyper = gckpt_hyper_lr(lr);
    return o;
}

/* ---- How it is done ---- */
typedef struct {
    gckpt_store *store;
    train_model model;
    const train_data *data;
    const train_options *o;
    train_report *r, best;
    int columns, known;             /* known: before the first without values */
    int64_t trained, checked;       /* rows: the first ones; those for validation */
    int64_t batch, width, *order;   /* width: of an output; order: of the rows trained on */
    int ids[TRAIN_COLUMNS], output; /* ids of tensors */
    gckpt_tensor *result;           /* the output in the graph that was built last */
    gckpt_plan *plan, *forward_plan;
    gckpt_exec *exec, *forward;
    void *arena, *fed[TRAIN_COLUMNS]; /* fed: a batch of each column */
    float *outputs, *weights;         /* weights: the best */
    time_t began, told;               /* told: when the clock on stderr was last written, */
    int shown;                        /* and its length */
    char path[1024];                  /* of the best weights */
    char values[20];                  /* a hash of all rows' values, for the file's note */
} train_run;

static inline int train_fail(train_run *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(t->r->error, sizeof t->r->error, format, list);
    va_end(list);
    return -1;
}

static inline int64_t train_width(const train_column *c) { return c->width > 0 ? c->width : 1; }

static inline const void *train_row(const train_column *c, int64_t row)
{
    return (const char *)c->values + row * train_width(c) * 4;
}

static inline int train_begin(train_run *t, gckpt_store *store, train_model model,
                              const train_data *data, const train_options *o, train_report *r)
{
    memset(t, 0, sizeof *t);
    memset(r, 0, sizeof *r);
    t->store = store;
    t->model = model;
    t->data = data;
    t->o = o;
    t->r = r;
    r->accuracy = -1;
    t->trained = data->rows - data->validation;
    if (data->validation < 0 || t->trained < 1)
        return train_fail(t, "data: %.0f rows, %.0f of them for validation: none to train on",
                          (double)data->rows, (double)data->validation);
    if (o->save != NULL && snprintf(t->path, sizeof t->path, "%s.best", o->save) >= 1024)
        return train_fail(t, "options: save: a path of 1018 characters at most");
    while (t->columns < TRAIN_COLUMNS && data->column[t->columns].name != NULL)
        t->columns++;
    while (t->known < t->columns && data->column[t->known].values != NULL)
        t->known++;
    t->batch = o->plan.batch > 0 ? o->plan.batch : 32;
    t->batch = t->batch < t->trained ? t->batch : t->trained;
    return 0;
}

static inline void train_free(train_run *t)
{
    gckpt_exec_free(t->exec);
    gckpt_exec_free(t->forward);
    gckpt_plan_free(t->plan);
    gckpt_plan_free(t->forward_plan);
    for (int i = 0; i < t->columns; i++)
        free(t->fed[i]);
    free(t->order);
    free(t->arena);
    free(t->outputs);
    free(t->weights);
}

/* The columns as inputs, then the user's model. */
static inline int train_graph(train_run *t, gckpt_graph *graph, int64_t rows, gckpt_term *terms)
{
    train_net net;
    memset(&net, 0, sizeof net);
    net.graph = graph;
    net.rows = rows;
    for (int i = 0; i < t->columns; i++) {
        const train_column *c = &t->data->column[i];
        net.in[i] = gckpt_input(graph, c->name, c->type,
                                c->width > 0 ? gckpt_shape2(rows, c->width) : gckpt_shape1(rows));
        t->ids[i] = gckpt_id(net.in[i]);
    }
    t->model(&net, t->o->user);
    const gckpt_shape s = gckpt_shape_of(net.output);
    t->result = net.output;
    t->output = gckpt_id(net.output);
    t->width = net.output != NULL;
    for (int i = 1; i < s.n; i++)
        t->width *= s.d[i];
    terms[0].loss = net.loss;
    terms[0].weight = 1;
    terms[0].regulariser = 0;
    memcpy(terms + 1, net.more, (size_t)net.mores * sizeof *terms);
    return 1 + net.mores;
}

/* gckpt_fit's gckpt_build */
static inline int train_build(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *run)
{
    train_run *t = (train_run *)run;
    const int wanted = t->o->micro_batch <= 0 || rows == t->o->micro_batch;
    return wanted ? train_graph(t, graph, rows, terms) : -1;
}

/* The plan that only computes: losses (where all columns are known) and the output. */
static inline int train_plan_forward(train_run *t, int64_t rows)
{
    gckpt_plan_desc desc = t->o->plan;
    gckpt_term terms[GCKPT_MAX_TERMS];
    gckpt_graph *g = gckpt_graph_new(t->store, NULL);
    const int count = train_graph(t, g, rows, terms);
    const gckpt_pick pick = { t->result, 0 };
    desc.mode = GCKPT_INFERENCE;
    desc.batch = 0;
    desc.update_in_backward = 0;
    desc.fetch = &pick;
    desc.fetches = t->result != NULL;
    if (t->plan != NULL && desc.budget > 0) /* beside the optimiser's state */
        desc.budget -= gckpt_plan_kind_bytes(t->plan, GCKPT_BYTES_STATE);
    t->forward_plan = gckpt_plan_new(g, terms, t->known == t->columns ? count : 0, &desc);
    const int failed = t->forward_plan == NULL ? train_fail(t, "%s", gckpt_error_text(g)) : 0;
    gckpt_graph_free(g);
    return failed;
}

/* Executors of both plans in one arena (on a backend each has its own). */
static inline int train_bind(train_run *t)
{
    gckpt_exec_desc desc;
    size_t size = gckpt_plan_arena(t->forward_plan);
    memset(&desc, 0, sizeof desc);
    desc.backend = t->o->plan.backend;
    if (t->plan != NULL && gckpt_plan_arena(t->plan) > size)
        size = gckpt_plan_arena(t->plan);
    if (desc.backend == NULL) {
        t->arena = malloc(size + 64);
        if (t->arena == NULL)
            return train_fail(t, "out of memory: an arena of %.0f bytes", (double)size);
        desc.arena = (char *)t->arena + (64 - (uintptr_t)t->arena % 64) % 64;
        desc.arena_size = size;
    }
    t->forward = gckpt_exec_new(t->forward_plan, t->store, &desc);
    if (t->plan != NULL && t->forward != NULL) {
        desc.skip_nonfinite = !gckpt_plan_in_backward(t->plan);
        t->exec = gckpt_exec_new(t->plan, t->store, &desc);
        t->r->bytes = gckpt_plan_bytes(t->plan) - gckpt_plan_arena(t->plan) + size;
    }
    if (t->forward == NULL || (t->plan != NULL && t->exec == NULL))
        return train_fail(t, "%s", gckpt_error_text(t->store));
    return 0;
}

/* Loss, outputs (unless NULL) and accuracy of n rows, which are as they come. */
static inline int train_evaluate(train_run *t, int64_t first, int64_t n, float *outputs,
                                 double *loss, double *accuracy)
{
    const train_column *target = &t->data->column[t->columns - 1];
    const int64_t places = train_width(target), classes = t->width / places;
    int64_t right = 0, all = 0;
    gckpt_feed feeds[TRAIN_COLUMNS];
    gckpt_report report = { 0, 0, 0, 0 };
    for (int i = 0; i < t->known; i++) {
        feeds[i].input = t->ids[i];
        feeds[i].data = train_row(&t->data->column[i], first);
    }
    if (t->result != NULL)
        gckpt_collect(t->forward, t->output, 0, outputs, (size_t)(n * t->width));
    if (gckpt_forward(t->forward, feeds, t->known, n, &report) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->forward));
    *loss = report.loss;
    *accuracy = -1;
    if (t->result == NULL || outputs == NULL || t->known < t->columns || classes < 2 ||
        t->width % places != 0 || target->type != GCKPT_I32)
        return 0;
    const int32_t *want = (const int32_t *)train_row(target, first);
    for (int64_t i = 0; i < n * places; i++, outputs += classes) {
        int64_t greatest = 0;
        for (int64_t k = 1; k < classes; k++)
            greatest = outputs[k] > outputs[greatest] ? k : greatest;
        right += greatest == want[i];
        all += want[i] >= 0;
    }
    *accuracy = (double)right / (double)(all > 0 ? all : 1);
    return 0;
}

/* The order of rows in an epoch: Fisher & Yates 1938, by splitmix64 (Steele 2014). */
static inline void train_shuffle(int64_t *order, int64_t n, uint64_t seed, int epoch)
{
    uint64_t state = seed * 0xd1342543de82ef95u + (uint64_t)epoch;
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = state += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        const int64_t k = (int64_t)((x ^ x >> 31) % (uint64_t)(i + 1));
        order[i] = order[k];
        order[k] = i;
    }
}

/* A step on rows from `first` of the epoch's order on. */
static inline int train_step(train_run *t, int64_t first, gckpt_report *report)
{
    const int64_t n = t->trained - first < t->batch ? t->trained - first : t->batch;
    gckpt_feed feeds[TRAIN_COLUMNS];
    gckpt_hyper hyper = t->o->hyper;
    double loss, accuracy;
    for (int i = 0; i < t->columns; i++) {
        const train_column *c = &t->data->column[i];
        const size_t size = (size_t)train_width(c) * 4;
        for (int64_t k = 0; k < n; k++)
            memcpy((char *)t->fed[i] + (size_t)k * size, train_row(c, t->order[first + k]), size);
        feeds[i].input = t->ids[i];
        feeds[i].data = t->fed[i];
    }
    hyper.lr = t->r->lr;
    const gckpt_result result = gckpt_step(t->exec, feeds, t->columns, n, &hyper, report);
    t->r->loss = report->loss;
    if (result == GCKPT_SKIPPED)
        return train_fail(t, "epoch %i, step %.0f: %s; or there is NaN in the data", t->r->epoch,
                          (double)t->r->step, gckpt_error_text(t->exec));
    /* The step's text names a row of the batch; a forward over all data names the row of the data.
     */
    if (result == GCKPT_E_DATA &&
        train_evaluate(t, 0, t->data->rows, NULL, &loss, &accuracy) != 0 &&
        gckpt_error(t->forward) == GCKPT_E_DATA)
        return -1;
    return result == GCKPT_OK ? 0 : train_fail(t, "%s", gckpt_error_text(t->exec));
}

/* Copies what is not frozen to t->weights (1), or back (-1), or only counts its floats (0). */
static inline int64_t train_keep(train_run *t, int way)
{
    gckpt_parameter p;
    int64_t at = 0;
    for (int i = 0; gckpt_store_peek(t->store, i, &p) == GCKPT_OK; i++)
        if (!p.frozen) {
            if (way != 0 && p.values != NULL && gckpt_store_get(t->store, i, &p) == GCKPT_OK)
                memcpy(way > 0 ? t->weights + at : p.values, way > 0 ? p.values : t->weights + at,
                       (size_t)p.elements * 4);
            at += p.elements;
        }
    return at;
}

static const gckpt_file_desc train_values = {
    NULL, NULL, 1, 0, 0, GCKPT_STORED_F32, GCKPT_AXES_NOT_SAID, NULL
};

/* A note in the file says how far the training is, what the best epoch was, and of what it is. */
static inline void train_recipe(const train_run *t, char text[256])
{
    snprintf(text, 256, "%.0f rows, %.0f for validation, batch %.0f, seed %.0f",
             (double)t->data->rows, (double)t->checked, (double)t->batch, (double)t->o->seed);
}

/* So that the best epoch of other rows is not compared with: FNV-1a of words, on any machine. */
static inline void train_hash(train_run *t)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < t->columns; i++)
        for (int64_t k = 0; k < t->data->rows * train_width(&t->data->column[i]); k++) {
            uint32_t word;
            memcpy(&word, (const char *)t->data->column[i].values + 4 * k, sizeof word);
            hash = (hash ^ word) * 1099511628211u;
        }
    snprintf(t->values, sizeof t->values, "%016llx", (unsigned long long)hash);
}

static inline int train_save(train_run *t)
{
    const train_report *b = &t->best;
    char recipe[256], note[512];
    train_recipe(t, recipe);
    snprintf(note, sizeof note, "%i %i %.17g %.17g %.17g of %s", t->r->epoch, b->epoch, b->loss,
             b->validation, b->accuracy, recipe);
    gckpt_store_set_note(t->store, "train", note);
    gckpt_store_set_note(t->store, "train.values", t->values);
    if ((t->r->best && gckpt_store_save_as(t->store, t->path, &train_values) != GCKPT_OK) ||
        gckpt_store_save(t->store, t->o->save) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->store));
    return 0;
}

static inline int train_load(train_run *t)
{
    train_report *b = &t->best;
    char recipe[256];
    int at = 0;
    FILE *f = fopen(t->o->save, "rb");
    if (f == NULL)
        return 0; /* not begun yet */
    fclose(f);
    int failed = gckpt_store_load_as(t->store, t->path, &train_values) != GCKPT_OK;
    train_keep(t, 1);
    if (failed || gckpt_store_load(t->store, t->o->save) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->store));
    const char *note = gckpt_store_note(t->store, "train");
    train_recipe(t, recipe);
    if (note == NULL ||
        sscanf(note, "%i %i %lf %lf %lf of %n", &t->r->epoch, &b->epoch, &b->loss, &b->validation,
               &b->accuracy, &at) != 5 ||
        strcmp(note + at, recipe) != 0)
        return train_fail(t, "%s is of another training (%s; this: %s): remove it, or take another",
                          t->o->save, note != NULL ? note + at : "no note", recipe);
    note = gckpt_store_note(t->store, "train.values"); /* older files have none */
    if (note != NULL && strcmp(note, t->values) != 0)
        return train_fail(t,
                          "%s is of a training with other values in its rows: remove it, or take "
                          "another",
                          t->o->save);
    return 0;
}

/* Plans, memory, what a file has to go on from, executors. */
static inline int train_ready(train_run *t)
{
    const char *op;
    if (t->known < t->columns || t->columns == 0)
        return train_fail(t, "data: column %i has no name, or no values", t->known);
    if (t->o->micro_batch > 0 && t->batch % t->o->micro_batch != 0)
        return train_fail(t, "options: a batch of %.0f rows is no multiple of micro_batch %.0f",
                          (double)t->batch, (double)t->o->micro_batch);
    t->plan = gckpt_fit(t->store, train_build, t, t->batch, &t->o->plan, NULL);
    if (t->plan == NULL)
        return train_fail(t, "%s", gckpt_error_text(t->store));
    int whole = !gckpt_plan_split_exact(t->plan, &op);
    t->r->steps = (t->trained + (whole ? 0 : t->batch - 1)) / t->batch;
    if (train_plan_forward(t, gckpt_plan_rows(t->plan)) != 0)
        return -1;
    whole = !gckpt_plan_split_exact(t->forward_plan, &op);
    t->checked = t->data->validation - (whole ? t->data->validation % t->batch : 0);
    t->order = (int64_t *)malloc((size_t)t->trained * sizeof *t->order);
    t->weights = (float *)malloc((size_t)train_keep(t, 0) * sizeof *t->weights);
    t->outputs = (float *)malloc((size_t)(1 + t->checked * t->width) * sizeof *t->outputs);
    int failed = t->order == NULL || t->weights == NULL || t->outputs == NULL;
    for (int i = 0; i < t->columns; i++) {
        t->fed[i] = malloc((size_t)(t->batch * train_width(&t->data->column[i])) * 4);
        failed = failed || t->fed[i] == NULL;
    }
    if (failed)
        return train_fail(t, "out of memory for a batch, the best weights and %.0f outputs",
                          (double)(t->checked * t->width));
    if (t->o->save != NULL)
        train_hash(t);
    return t->o->save != NULL && train_load(t) != 0 ? -1 : train_bind(t);
}

/* How long it still takes, on stderr, at most once a second. */
static inline void train_clock(train_run *t, int64_t done, int64_t all)
{
    const train_report *r = t->r;
    const time_t now = time(NULL);
    if (t->o->every < 0 || now == t->told || !TRAIN_CLOCK)
        return;
    t->told = now;
    t->shown = fprintf(stderr, "\repoch %i of %i, step %.0f of %.0f: loss %.4f; %.0f s left ",
                       r->epoch, r->epochs, (double)r->step, (double)r->steps, r->loss,
                       difftime(now, t->began) * (double)(all - done) / (double)done);
    fflush(stderr);
}

static inline void train_print(train_run *t, const char *what, const train_report *r)
{
    if (t->shown > 0)
        fprintf(stderr, "\r%*s\r", t->shown, "");
    t->shown = 0;
    printf("%s %i: loss %.4f", what, r->epoch, r->loss);
    if (t->checked > 0)
        printf(", validation %.4f", r->validation);
    if (r->accuracy >= 0)
        printf(", %.1f %% right", 100 * r->accuracy);
    printf("\n");
    fflush(stdout);
}

/* An epoch and its validation. 1: `watch` ends the training; 2: within the epoch, which then does
 * not count; -1: an error. */
static inline int train_epoch(train_run *t, int64_t resumed)
{
    const train_options *o = t->o;
    train_report *r = t->r;
    const int64_t all = r->epochs * r->steps;
    double sum = 0, count = 0;
    train_shuffle(t->order, t->trained, o->seed, r->epoch);
    for (r->step = 1; r->step <= r->steps; r->step++) {
        gckpt_report report = { 0, 0, 0, 0 };
        const int64_t done = (r->epoch - 1) * r->steps + r->step - 1;
        r->lr = gckpt_lr_cosine((uint64_t)done, (uint64_t)o->warmup, (uint64_t)all, o->hyper.lr,
                                o->cosine ? o->min_lr : o->hyper.lr);
        if (train_step(t, (r->step - 1) * t->batch, &report) != 0)
            return -1;
        sum += report.loss * (double)report.count;
        count += (double)report.count;
        train_clock(t, done + 1 - resumed, all - resumed);
        if (o->watch != NULL && o->watch(o->user, r) != 0)
            return 2;
    }
    r->step = 0;
    r->loss = r->validation = count > 0 ? sum / count : 0;
    if (t->checked > 0 &&
        train_evaluate(t, t->trained, t->checked, t->outputs, &r->validation, &r->accuracy) != 0)
        return -1;
    r->best = t->best.epoch == 0 || t->checked == 0 || r->validation < t->best.validation ||
              t->best.validation != t->best.validation;
    r->output = t->checked > 0 && t->result != NULL ? t->outputs : NULL;
    const int enough = o->watch != NULL && o->watch(o->user, r) != 0;
    r->output = NULL;
    return enough;
}

/* Trains the model's parameters in `store`; those that are there are taken, and frozen ones stay.
 * With rows for validation those of the best epoch stay, else the last. -1: r->error says why. */
static inline int train_fit(gckpt_store *store, train_model model, const train_data *data,
                            const train_options *options, train_report *r)
{
    train_run t;
    const int lines = options->every > 0 ? options->every : 1;
    int state = train_begin(&t, store, model, data, options, r) != 0 ? -1 : train_ready(&t);
    r->epochs = options->epochs > 0 ? options->epochs : 10;
    const int64_t resumed = r->epoch * r->steps;
    t.began = t.told = time(NULL);
    while (state == 0 && r->epoch < r->epochs &&
           (options->patience <= 0 || r->epoch - t.best.epoch < options->patience)) {
        r->epoch++;
        state = train_epoch(&t, resumed);
        if (state < 0 || state == 2)
            break;
        if (r->best) {
            t.best = *r;
            train_keep(&t, 1);
        }
        if (options->every >= 0 && (r->epoch % lines == 0 || r->epoch == 1))
            train_print(&t, "epoch", r);
        if (options->save != NULL && train_save(&t) != 0)
            state = -1;
    }
    if (state >= 0 && t.best.epoch > 0) {
        train_keep(&t, -1);
        t.best.epochs = r->epochs;
        t.best.steps = r->steps;
        t.best.bytes = r->bytes;
        *r = t.best;
        if (options->every >= 0)
            train_print(&t, "kept: epoch", r);
    }
    train_free(&t);
    return state < 0 ? -1 : 0;
}

/* Outputs of all rows, to `out` (rows times the output's width; NULL: not wanted); where all
 * columns are known also loss, which is r->validation, too, and accuracy. Of the options count
 * `user` and `plan`: rows at once (batch), threads, precision, backend. */
static inline int train_predict(gckpt_store *store, train_model model, const train_data *data,
                                const train_options *options, float *out, train_report *r)
{
    train_run t;
    train_data all = *data;
    all.validation = 0;
    int failed = train_begin(&t, store, model, &all, options, r) != 0 ||
                 train_plan_forward(&t, t.batch) != 0 || train_bind(&t) != 0 ||
                 train_evaluate(&t, 0, all.rows, out, &r->loss, &r->accuracy) != 0;
    r->validation = r->loss;
    train_free(&t);
    return failed ? -1 : 0;
}
#endif
