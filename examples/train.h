/* train.h - a training loop: shuffled minibatches inside a byte budget, validation, accuracy, a
 * learning-rate schedule, early stopping, best weights, resume. To copy, and to change: it uses
 * public calls only. C99 or C++11; include gradckpt.h first.
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
 *                         1797, 360 };                           // the last 360 rows: validation
 *     train_options o = train_defaults(1e-3f); // the learning rate; 10 epochs, batches of 32 rows
 *     train_report r;
 *     o.plan.budget = 100000;                  // bytes
 *     if (train_fit(store, model, &data, &o, &r) != 0)
 *         fprintf(stderr, "%s\n", r.error);
 *
 * Batches are shuffled by seed and epoch alone, so that weights have the same bits for every budget,
 * micro-batch, thread count and machine. */
#ifndef TRAIN_H
#define TRAIN_H
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRAIN_COLUMNS = 8, TRAIN_LOSSES = 4 };

/* Arrays of rows. The last column is what is predicted. */
typedef struct {
    const char *name; /* of the graph's input */
    gckpt_type type;
    int64_t width;      /* values a row: (rows,width); 0: one, (rows) */
    const void *values; /* of all rows, one after the other; NULL (train_predict): not known */
} train_column;
typedef struct {
    train_column column[TRAIN_COLUMNS]; /* up to the first without a name */
    int64_t rows, validation;           /* all; of them the last ones, which are not trained on */
} train_data;

/* What the model's function makes from the columns. */
typedef struct {
    gckpt_graph *graph;
    int64_t rows;                    /* of a micro-batch */
    gckpt_tensor *in[TRAIN_COLUMNS]; /* the columns, as inputs */
    gckpt_tensor *loss;              /* to set: what is minimised */
    gckpt_tensor *output;            /* to set: (rows,..), what is predicted; NULL: nothing */
    gckpt_term more[TRAIN_LOSSES];   /* further losses, and how many */
    int mores;
} train_net;
typedef void (*train_model)(train_net *net, void *user);

/* What there is to say after a step, an epoch, and in the end (of the epoch whose weights stay). */
typedef struct {
    int epoch, epochs;   /* from 1 */
    int64_t step, steps; /* of the epoch, from 1; step 0: the epoch is done, validated */
    double loss;         /* of the step; mean of the epoch's */
    double validation;   /* loss of the rows for validation; without them that of the epoch */
    double accuracy;     /* 0 to 1: their outputs (rows,..,V) whose greatest is at the last column,
                            i32 and 0 or more; -1: not such an output */
    const float *output; /* of the rows for validation, in their order; only in `watch` */
    float lr;
    int best;     /* 1: the least validation so far */
    size_t bytes; /* gckpt_plan_bytes of training, validation and the arena's alignment included */
    char error[512]; /* what went wrong, and what helps; "" */
} train_report;

typedef struct {
    gckpt_hyper hyper;    /* lr, weight_decay, clip, ... */
    gckpt_plan_desc plan; /* budget, batch (0: 32 rows a step), threads, ...: as for gckpt_fit */
    int64_t micro_batch;  /* rows computed at once, a divisor of the batch; 0: gckpt_fit's choice */
    int epochs;           /* 0: 10 */
    int cosine;           /* 1: lr falls to min_lr by half a cosine; 0: it stays */
    float min_lr;
    int64_t warmup; /* steps in which lr rises */
    int patience;   /* epochs without a better validation, then it ends; 0: never */
    int last;       /* 1: the last weights stay, not the best */
    uint64_t seed;  /* of the order of rows (the store's is that of weights and dropout) */
    const char
        *save; /* a file: after each epoch all goes there; if it exists, it goes on from it */
    int print; /* lines on stdout every so many epochs; 0: 1; less: none */
    int (*watch)(void *user, train_report *now); /* after each step and epoch; 1: ends it */
    void *user;                                  /* for watch and the model's function */
} train_options;

static inline train_options train_defaults(float lr)
{
    train_options o;
    memset(&o, 0, sizeof o);
    o.hyper = gckpt_hyper_lr(lr);
    return o;
}

/* ---- what follows is train_fit's and train_predict's ---- */
typedef struct {
    gckpt_store *store;
    train_model model;
    const train_data *data;
    const train_options *o;
    train_report *r;
    int columns, known; /* known: of those before the first without values */
    int64_t batch;
    train_net net; /* of the graph that was built last */
    int ids[TRAIN_COLUMNS], output;
    int64_t width; /* of a row of the output; 0: none */
    gckpt_plan *plan, *forward_plan;
    gckpt_exec *exec, *forward;
    void *arena, *rows[TRAIN_COLUMNS]; /* rows: of a batch */
    float *out, *best;
    int64_t *order, checked; /* rows of training; how many are validated */
    time_t started, told;    /* the last line on stderr, */
    int shown;               /* and its length */
} train_run;

static inline int train_fail(train_run *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(t->r->error, sizeof t->r->error, format, list);
    va_end(list);
    return -1;
}

static inline void train_free(train_run *t)
{
    gckpt_exec_free(t->exec);
    gckpt_exec_free(t->forward);
    gckpt_plan_free(t->plan);
    gckpt_plan_free(t->forward_plan);
    for (int i = 0; i < TRAIN_COLUMNS; i++)
        free(t->rows[i]);
    free(t->arena);
    free(t->out);
    free(t->best);
    free(t->order);
}

static inline int64_t train_width(const train_column *c) { return c->width > 0 ? c->width : 1; }

static inline const void *train_values(const train_column *c, int64_t row)
{
    return (const char *)c->values + row * train_width(c) * 4;
}

/* gckpt_fit's gckpt_build: the columns as inputs, then the user's model. */
static inline int train_graph(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *run)
{
    train_run *t = (train_run *)run;
    train_net *net = &t->net;
    int64_t width = 1;
    if (t->o->micro_batch > 0 && rows != t->o->micro_batch)
        return -1;
    memset(net, 0, sizeof *net);
    net->graph = graph;
    net->rows = rows;
    for (int i = 0; i < t->columns; i++) {
        const train_column *c = &t->data->column[i];
        net->in[i] = gckpt_input(graph, c->name, c->type,
                                 c->width > 0 ? gckpt_shape2(rows, c->width) : gckpt_shape1(rows));
        t->ids[i] = gckpt_id(net->in[i]);
    }
    t->model(net, t->o->user);
    const gckpt_shape s = gckpt_shape_of(net->output);
    for (int i = 1; i < s.n; i++)
        width *= s.d[i];
    t->width = net->output != NULL ? width : 0;
    t->output = gckpt_id(net->output);
    terms[0].loss = net->loss;
    terms[0].weight = 1;
    terms[0].regulariser = 0;
    for (int i = 0; i < net->mores; i++)
        terms[1 + i] = net->more[i];
    return 1 + net->mores;
}

/* The plan that only computes the loss (where all columns are known) and the output. */
static inline int train_plan_forward(train_run *t, int64_t rows)
{
    gckpt_plan_desc desc = t->o->plan;
    gckpt_term terms[GCKPT_MAX_TERMS];
    gckpt_pick pick;
    gckpt_graph *g = gckpt_graph_new(t->store, NULL);
    const int count = train_graph(g, rows, terms, t);
    pick.tensor = t->net.output;
    pick.gradient = 0;
    desc.mode = GCKPT_INFERENCE;
    desc.budget = 0;
    desc.batch = 0;
    desc.update_in_backward = 0;
    desc.fetch = &pick;
    desc.fetches = pick.tensor != NULL;
    t->forward_plan = gckpt_plan_new(g, terms, t->known == t->columns ? count : 0, &desc);
    const int failed = t->forward_plan == NULL ? train_fail(t, "%s", gckpt_error_text(g)) : 0;
    gckpt_graph_free(g);
    return failed;
}

/* Executors of both plans over one arena, which a backend with memory of its own sees to itself. */
static inline int train_bind(train_run *t)
{
    gckpt_exec_desc desc;
    const gckpt_backend *b = t->o->plan.backend;
    const size_t align = t->o->plan.alignment > 64 ? t->o->plan.alignment : 64;
    memset(&desc, 0, sizeof desc);
    desc.backend = b;
    desc.arena_size = gckpt_plan_arena(t->forward_plan);
    if (t->plan != NULL && gckpt_plan_arena(t->plan) > desc.arena_size)
        desc.arena_size = gckpt_plan_arena(t->plan);
    if (b == NULL || !b->own_memory) {
        t->arena = malloc(desc.arena_size + align);
        if (t->arena == NULL)
            return train_fail(t, "out of memory: the arena takes %.0f bytes; give a budget",
                              (double)desc.arena_size);
        desc.arena = (char *)t->arena + (align - (uintptr_t)t->arena % align) % align;
    }
    t->forward = gckpt_exec_new(t->forward_plan, t->store, &desc);
    if (t->plan != NULL) {
        desc.skip_nonfinite = !gckpt_plan_in_backward(t->plan);
        t->exec = gckpt_exec_new(t->plan, t->store, &desc);
        t->r->bytes = gckpt_plan_bytes(t->plan) - gckpt_plan_arena(t->plan) + desc.arena_size;
    }
    return t->forward == NULL || (t->plan != NULL && t->exec == NULL)
               ? train_fail(t, "%s", gckpt_error_text(t->store))
               : 0;
}

/* Starts a run; what the data lacks is an error here. */
static inline int train_begin(train_run *t, gckpt_store *store, train_model model,
                              const train_data *data, const train_options *o, train_report *r)
{
    const int64_t trained = data->rows - data->validation;
    memset(t, 0, sizeof *t);
    memset(r, 0, sizeof *r);
    t->store = store;
    t->model = model;
    t->data = data;
    t->o = o;
    t->r = r;
    if (data->rows < 1 || data->validation < 0 || data->validation >= data->rows)
        return train_fail(t, "data: %.0f rows, %.0f of them for validation: leave some to train on",
                          (double)data->rows, (double)data->validation);
    while (t->columns < TRAIN_COLUMNS && data->column[t->columns].name != NULL)
        t->columns++;
    while (t->known < t->columns && data->column[t->known].values != NULL)
        t->known++;
    t->batch = o->plan.batch > 0 ? o->plan.batch : 32;
    t->batch = t->batch < trained ? t->batch : trained;
    return 0;
}

/* Loss, output and accuracy of rows first .. first + n - 1, in their order. */
static inline int train_evaluate(train_run *t, int64_t first, int64_t n, double *loss,
                                 double *accuracy)
{
    const train_column *target = &t->data->column[t->columns - 1];
    const int64_t places = train_width(target), classes = t->width / places;
    int64_t right = 0, all = 0;
    gckpt_feed feeds[TRAIN_COLUMNS];
    gckpt_report report = { 0, 0, 0, 0 };
    for (int i = 0; i < t->known; i++) {
        feeds[i].input = t->ids[i];
        feeds[i].data = train_values(&t->data->column[i], first);
    }
    if (t->width > 0 &&
        gckpt_collect(t->forward, t->output, 0, t->out, (size_t)(n * t->width)) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->forward));
    if (gckpt_forward(t->forward, feeds, t->known, n, &report) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->forward));
    *loss = report.loss;
    *accuracy = -1;
    if (classes < 2 || t->width % places != 0 || target->type != GCKPT_I32 || t->known < t->columns)
        return 0;
    const int32_t *want = (const int32_t *)train_values(target, first);
    for (int64_t i = 0; i < n * places; i++) {
        const float *row = t->out + i * classes;
        int64_t greatest = 0;
        for (int64_t k = 1; k < classes; k++)
            greatest = row[k] > row[greatest] ? k : greatest;
        right += greatest == want[i];
        all += want[i] >= 0;
    }
    *accuracy = (double)right / (double)(all > 0 ? all : 1);
    return 0;
}

/* Rows 0 .. n-1 in the order of an epoch: Fisher & Yates 1938 by splitmix64 (Steele 2014). */
static inline void train_shuffle(int64_t *order, int64_t n, uint64_t seed, int epoch)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + (uint64_t)epoch;
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = state += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        const int64_t k = (int64_t)((x ^ x >> 31) % (uint64_t)(i + 1));
        order[i] = order[k];
        order[k] = i;
    }
}

/* A step on n rows from `first` of the epoch's order on; its (loss, count). */
static inline int train_step(train_run *t, int64_t first, int64_t n, float lr, gckpt_report *report)
{
    gckpt_feed feeds[TRAIN_COLUMNS];
    gckpt_hyper hyper = t->o->hyper;
    double loss, accuracy;
    for (int i = 0; i < t->columns; i++) {
        const train_column *c = &t->data->column[i];
        const size_t bytes = (size_t)train_width(c) * 4;
        for (int64_t k = 0; k < n; k++)
            memcpy((char *)t->rows[i] + (size_t)k * bytes, train_values(c, t->order[first + k]),
                   bytes);
        feeds[i].input = t->ids[i];
        feeds[i].data = t->rows[i];
    }
    hyper.lr = lr;
    const gckpt_result result = gckpt_step(t->exec, feeds, t->columns, n, &hyper, report);
    if (result == GCKPT_E_DATA) /* says which row of the batch; this says which of the data */
        if (train_evaluate(t, 0, t->data->rows, &loss, &accuracy) != 0)
            return -1;
    if (result == GCKPT_SKIPPED || report->loss - report->loss != 0)
        return train_fail(t,
                          "epoch %i, step %.0f: loss %g: lower hyper.lr, set hyper.clip, or "
                          "look for NaN in the data (%s)",
                          t->r->epoch, (double)t->r->step, report->loss, gckpt_error_text(t->exec));
    return result == GCKPT_OK ? 0 : train_fail(t, "%s", gckpt_error_text(t->exec));
}

/* Copies what is trained to t->best (keep: 1), or back (0); -1: only counts it. */
static inline int64_t train_best(train_run *t, int keep)
{
    gckpt_parameter p;
    int64_t at = 0;
    for (int i = 0; gckpt_store_peek(t->store, i, &p) == GCKPT_OK; i++)
        if (!p.frozen) {
            if (keep >= 0 && gckpt_store_get(t->store, i, &p) == GCKPT_OK)
                memcpy(keep ? t->best + at : p.values, keep ? p.values : t->best + at,
                       (size_t)p.elements * 4);
            at += p.elements;
        }
    return at;
}

/* The file to resume from, options.save, notes what was trained how, and what the best epoch was;
 * its weights are in SAVE.best. */
static inline void train_recipe(const train_run *t, char *text, size_t size)
{
    snprintf(text, size, "%.0f rows, %.0f for validation, batch %.0f, seed %.0f",
             (double)t->data->rows, (double)t->data->validation, (double)t->batch,
             (double)t->o->seed);
}

static inline int train_save(train_run *t, const train_report *best)
{
    const gckpt_file_desc values = { NULL, NULL, 1, 0, 0, GCKPT_STORED_F32 };
    char recipe[256], text[256], path[1024];
    train_recipe(t, recipe, sizeof recipe);
    gckpt_store_set_note(t->store, "train", recipe);
    snprintf(text, sizeof text, "%i %i %.17g %.17g %.17g", t->r->epoch, best->epoch, best->loss,
             best->validation, best->accuracy);
    gckpt_store_set_note(t->store, "train.best", text);
    snprintf(path, sizeof path, "%s.best", t->o->save);
    if ((t->r->best && !t->o->last && gckpt_store_save_as(t->store, path, &values) != GCKPT_OK) ||
        gckpt_store_save(t->store, t->o->save) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->store));
    return 0;
}

/* If the file is there. The epochs that are done go to t->r->epoch. */
static inline int train_load(train_run *t, train_report *best)
{
    const gckpt_file_desc values = { NULL, NULL, 1, 0, 0, GCKPT_STORED_F32 };
    char recipe[256], path[1024];
    FILE *f = fopen(t->o->save, "rb");
    if (f == NULL)
        return 0;
    fclose(f);
    snprintf(path, sizeof path, "%s.best", t->o->save);
    if (!t->o->last) {
        if (gckpt_store_load_as(t->store, path, &values) != GCKPT_OK)
            return train_fail(t, "%s", gckpt_error_text(t->store));
        train_best(t, 1);
    }
    if (gckpt_store_load(t->store, t->o->save) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->store));
    train_recipe(t, recipe, sizeof recipe);
    const char *was = gckpt_store_note(t->store, "train");
    const char *text = gckpt_store_note(t->store, "train.best");
    if (was == NULL || strcmp(was, recipe) != 0)
        return train_fail(t,
                          "%s is of other data or options (%s; now %s): take another path, or "
                          "remove it",
                          t->o->save, was != NULL ? was : "not train.h's", recipe);
    if (text == NULL || sscanf(text, "%i %i %lf %lf %lf", &t->r->epoch, &best->epoch, &best->loss,
                               &best->validation, &best->accuracy) != 5)
        return train_fail(t, "%s: note \"train.best\" cannot be read", t->o->save);
    return 0;
}

/* Plans, executors, memory; and what a file has to go on from. */
static inline int train_ready(train_run *t, train_report *best)
{
    const int64_t n = t->data->rows - t->data->validation;
    gckpt_plan_desc desc = t->o->plan;
    const char *mixes = NULL;
    if (t->known < t->columns || t->columns == 0)
        return train_fail(t, "data: column %i, \"%s\", has no values", t->known,
                          t->columns > 0 ? t->data->column[t->known].name : "");
    t->plan = gckpt_fit(t->store, train_graph, t, t->batch, &desc, NULL);
    if (t->plan == NULL)
        return train_fail(t, "%s", gckpt_error_text(t->store));
    if (train_plan_forward(t, gckpt_plan_rows(t->plan)) != 0)
        return -1;
    const int whole = !gckpt_plan_split_exact(t->plan, &mixes);
    t->r->steps = (n + (whole ? 0 : t->batch - 1)) / t->batch; /* no short batch where rows mix */
    t->checked = t->data->validation - (whole ? t->data->validation % t->batch : 0);
    t->order = (int64_t *)malloc((size_t)n * sizeof *t->order);
    t->best = (float *)malloc((size_t)(1 + (t->o->last ? 0 : train_best(t, -1))) * 4);
    t->out = (float *)malloc((size_t)(1 + t->checked * t->width) * 4);
    int failed = t->order == NULL || t->best == NULL || t->out == NULL;
    for (int i = 0; i < t->columns; i++) {
        t->rows[i] = malloc((size_t)(t->batch * train_width(&t->data->column[i])) * 4);
        failed = failed || t->rows[i] == NULL;
    }
    if (failed)
        return train_fail(t,
                          "out of memory: a batch of rows, the best weights (options.last: none) "
                          "and outputs of %.0f rows for validation",
                          (double)t->checked);
    if (t->o->save != NULL && train_load(t, best) != 0)
        return -1;
    return train_bind(t);
}

/* How long it still takes, on stderr, at most once a second. */
static inline void train_clock(train_run *t, int64_t done, int64_t all)
{
    const time_t now = time(NULL);
    if (t->o->print < 0 || now == t->told)
        return;
    t->told = now;
    t->shown = fprintf(stderr, "\repoch %i of %i, step %.0f of %.0f, loss %.4f; %.0f s left ",
                       t->r->epoch, t->r->epochs, (double)t->r->step, (double)t->r->steps,
                       t->r->loss, difftime(now, t->started) * (double)(all - done) / (double)done);
    fflush(stderr);
}

static inline void train_print(train_run *t, const char *before, const train_report *r)
{
    if (t->shown > 0)
        fprintf(stderr, "\r%*s\r", t->shown, "");
    t->shown = 0;
    printf("%s %i: loss %.4f", before, r->epoch, r->loss);
    if (t->checked > 0)
        printf(", validation %.4f", r->validation);
    if (r->accuracy >= 0)
        printf(", %.1f %% right", 100 * r->accuracy);
    printf("\n");
}

/* The steps of an epoch, then its validation; 1: `watch` ends it. */
static inline int train_epoch(train_run *t, int64_t before, int64_t steps)
{
    const train_options *o = t->o;
    const int64_t n = t->data->rows - t->data->validation;
    train_report *r = t->r;
    double sum = 0, count = 0;
    int ended = 0;
    train_shuffle(t->order, n, o->seed, r->epoch);
    for (r->step = 1; r->step <= r->steps && !ended; r->step++) {
        gckpt_report report = { 0, 0, 0, 0 };
        const int64_t at = (int64_t)(r->epoch - 1) * r->steps + r->step - 1;
        const int64_t first = (r->step - 1) * t->batch;
        r->lr = gckpt_lr_cosine((uint64_t)at, (uint64_t)o->warmup, (uint64_t)(r->steps * r->epochs),
                                o->hyper.lr, o->cosine ? o->min_lr : o->hyper.lr);
        if (train_step(t, first, n - first < t->batch ? n - first : t->batch, r->lr, &report) != 0)
            return -1;
        sum += report.loss * (double)report.count;
        count += (double)report.count;
        r->loss = report.loss;
        train_clock(t, at + 1 - before, steps - before);
        ended = o->watch != NULL && o->watch(o->user, r) != 0;
    }
    r->step = 0;
    r->loss = r->validation = count > 0 ? sum / count : 0;
    if (t->checked > 0 && train_evaluate(t, n, t->checked, &r->validation, &r->accuracy) != 0)
        return -1;
    return ended;
}

/* Trains `store` on the data. 0; -1: r->error says why, and what helps. Parameters are the model's;
 * what is in the store before is taken, frozen ones stay as they are. */
static inline int train_fit(gckpt_store *store, train_model model, const train_data *data,
                            const train_options *options, train_report *r)
{
    train_run t;
    train_report best;
    memset(&best, 0, sizeof best);
    int failed =
        train_begin(&t, store, model, data, options, r) != 0 || train_ready(&t, &best) != 0;
    const int print = options->print;
    r->epochs = options->epochs > 0 ? options->epochs : 10;
    const int64_t before = r->epoch * r->steps, steps = r->epochs * r->steps;
    int ended = 0;
    t.started = t.told = time(NULL);
    while (!failed && !ended && r->epoch < r->epochs) {
        r->epoch++;
        const int state = train_epoch(&t, before, steps);
        failed = state < 0;
        if (failed)
            break;
        r->best = best.epoch == 0 || r->validation < best.validation;
        r->output = t.out;
        ended = (options->watch != NULL && options->watch(options->user, r) != 0) || state > 0 ||
                (options->patience > 0 && r->epoch - best.epoch >= options->patience && !r->best);
        r->output = NULL;
        if (r->best || options->last)
            best = *r;
        if (r->best && !options->last)
            train_best(&t, 1);
        if (print >= 0 && (r->epoch % (print > 0 ? print : 1) == 0 || r->epoch == 1))
            train_print(&t, "epoch", r);
        failed = options->save != NULL && train_save(&t, &best) != 0;
    }
    if (!failed && best.epoch > 0) {
        if (!options->last)
            train_best(&t, 0);
        best.epochs = r->epochs;
        best.bytes = r->bytes;
        *r = best;
        if (print >= 0)
            train_print(&t, "kept: epoch", r);
    }
    train_free(&t);
    return failed ? -1 : 0;
}

/* Outputs of all rows into `out` (rows times the output's width; NULL: not wanted), and, where the
 * last column is known, their loss and accuracy into r (as of validation). Options: user, and of
 * plan those that say how (precision, threads, backend); batch: rows at once. */
static inline int train_predict(gckpt_store *store, train_model model, const train_data *data,
                                const train_options *options, float *out, train_report *r)
{
    train_run t;
    train_data all = *data;
    all.validation = 0;
    int failed = train_begin(&t, store, model, &all, options, r) != 0 ||
                 train_plan_forward(&t, t.batch) != 0 || train_bind(&t) != 0;
    const size_t size = (size_t)(data->rows * t.width);
    if (!failed) {
        t.out = (float *)malloc((size + 1) * sizeof *t.out);
        failed = t.out == NULL
                     ? train_fail(&t, "out of memory: outputs of %.0f rows", (double)data->rows)
                     : train_evaluate(&t, 0, data->rows, &r->loss, &r->accuracy) != 0;
    }
    r->validation = r->loss;
    if (!failed && out != NULL)
        memcpy(out, t.out, size * sizeof *out);
    train_free(&t);
    return failed ? -1 : 0;
}
#endif
