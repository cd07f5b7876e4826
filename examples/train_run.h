/* train_run.h - the implementation of train.h: the state of a training, its plans, batches, steps,
 * validation and files. train.h includes it; to use it, copy it with train.h. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H
typedef struct { /* sums over the steps of an epoch, or over the validation rows */
    double loss, count;          /* sum and count of all losses together */
    double sum[TRAIN_LOSSES];    /* sum[i]: sum of loss i over its elements */
    double counts[TRAIN_LOSSES]; /* counts[i]: number of elements that loss i counted */
    /* correct: labels that were predicted; targets: labels that count */
    int64_t correct, targets;
} train_sums;

/* Plans for batches of one length, and their executors. */
typedef struct {
    int64_t length;                  /* width of the columns TRAIN_BY_LENGTH; 0 without such columns */
    int64_t width;                   /* number of floats in a row of the output */
    gckpt_plan *plan, *forward_plan; /* plan: for training; forward_plan: for validation */
    gckpt_exec *exec, *forward;      /* executors of plan and forward_plan */
} train_stage;

typedef struct { /* a row that is sorted by length */
    int64_t length, position, row;
} train_entry;
enum { TRAIN_WINDOW = 64 }; /* number of batches whose rows are sorted by length together */

typedef struct {
    gckpt_store *store;
    train_model model;
    train_data data;
    train_options o;
    train_report *r;              /* the report of the caller */
    train_report best;            /* the report of the best epoch so far */
    int columns;                  /* number of columns in the data */
    /* number of columns before the first one whose values are unknown */
    int known;
    /* if nonzero, validation batches are copied to `buffers`; if 0, they are fed from the caller's
     * arrays */
    int collated;
    int64_t train_rows;           /* number of rows for training, which are the first ones */
    int64_t valid_rows;           /* number of rows for validation */
    int64_t batch;                /* number of rows in a step */
    int64_t width;                /* number of floats in a row of the longest output */
    int64_t *order;               /* indices of the training rows in the order of this epoch */
    int64_t *rows;                /* indices of the rows in a validation batch */
    int ids[TRAIN_COLUMNS];       /* tensor ids of the inputs, one for each column */
    int output_id;                /* tensor id of the output */
    gckpt_tensor *result;         /* the output in the graph that was built last */
    /* the losses in the graph that was built last, with their weights */
    gckpt_term terms[TRAIN_LOSSES];
    train_stage stages[LENGTHS_MOST]; /* for each length, ascending */
    int stage_count;
    int64_t build_length; /* length of the graph that is built */
    /* for options.length: the rows for validation (or prediction) by length; scratch for sorting; and
     * the outputs of a batch */
    int64_t *sorted;
    train_entry *entries;
    float *batch_outputs;
    train_stage *stage;              /* the stage of the current step */
    gckpt_feed feeds[TRAIN_COLUMNS]; /* feeds of the current step */
    void *arena;                     /* memory in which all executors have their arena */
    void *buffers[TRAIN_COLUMNS];    /* for each column, space for a batch */
    float *outputs;                  /* outputs of the validation rows, or NULL */
    float *best_weights;             /* weights of the best epoch so far, or NULL */
    /* in_epoch: nonzero within an epoch; in_step: nonzero within a step */
    int in_epoch, in_step;
    /* 1 if there is nothing left to do, -1 after an error, else 0 */
    int ended;
    int64_t done;                    /* number of steps of the current epoch that are complete */
    int64_t validated;               /* number of validation rows evaluated in the current epoch */
    /* sums of losses over the steps, and over the validation rows, of the current epoch */
    train_sums sums, validation;
    int64_t resumed_steps;           /* number of steps that earlier processes have run */
    time_t start_time;               /* time at which this process began to train */
    time_t printed_at;               /* time at which the last line was printed on stderr */
    int line_length;                 /* length of the last line printed on stderr */
    /* nonzero after the note about a validation loss that is not finite */
    int nan_noted;
    char path[1024];                 /* path of the file with the best weights */
    char values_hash[20];            /* hash of the values of all rows, for a note in the file */
} train_run;

static inline int train_fail(train_run *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(t->r->error, sizeof t->r->error, format, list);
    va_end(list);
    return -1;
}

/* Appends a line to r->notes and prints the line on stderr. */
static inline void train_note(train_run *t, const char *format, ...)
{
    char *notes = t->r->notes;
    const size_t used = strlen(notes), left = sizeof t->r->notes - used;
    va_list list;
    va_start(list, format);
    vsnprintf(notes + used, left, format, list);
    va_end(list);
    if (t->line_length > 0)
        fprintf(stderr, "\r%*s\r", t->line_length, "");
    t->line_length = 0;
    fprintf(stderr, "note: %s\n", notes + used);
    if (strlen(notes) + 1 < sizeof t->r->notes)
        strcat(notes, "\n");
}

static inline int train_init(train_run *t, gckpt_store *store, train_model model,
                              const train_data *data, const train_options *o, train_report *r)
{
    memset(t, 0, sizeof *t);
    memset(r, 0, sizeof *r);
    t->store = store;
    t->model = model;
    t->data = *data;
    t->o = *o;
    t->r = r;
    r->accuracy = -1;
    t->train_rows = data->rows - data->validation;
    if (data->validation < 0 || t->train_rows < 1)
        return train_fail(t, "data: %.0f rows, %.0f of them for validation, leave none for training",
                          (double)data->rows, (double)data->validation);
    if (o->save != NULL && snprintf(t->path, sizeof t->path, "%s.best", o->save) >= 1024)
        return train_fail(t, "options: save: allowed is a path of at most 1018 characters");
    if (o->epochs < 0 || o->patience < 0)
        return train_fail(t,
                          "options: epochs %i, patience %i: allowed is 0 or more (0 epochs selects 10, "
                          "patience 0 never stops)",
                          o->epochs, o->patience);
    t->collated = o->batch != NULL;
    for (; t->columns < TRAIN_COLUMNS && data->column[t->columns].name != NULL; t->columns++) {
        const int type = data->column[t->columns].type, narrow = type >= TRAIN_U8;
        if (type != GCKPT_F32 && type != GCKPT_I32 && type != TRAIN_U8 && type != TRAIN_F16)
            return train_fail(t,
                              "data: column %i has type %i; allowed is GCKPT_F32, GCKPT_I32, TRAIN_U8 or "
                              "TRAIN_F16",
                              t->columns, type);
        t->collated |= narrow;
    }
    while (t->known < t->columns && (o->batch != NULL || data->column[t->known].values != NULL))
        t->known++;
    t->batch = o->plan.batch > 0 ? o->plan.batch : 32;
    t->batch = t->batch < t->train_rows ? t->batch : t->train_rows;
    t->stage_count = 1;
    if (o->lengths < 0 || o->lengths > LENGTHS_MOST)
        return train_fail(t, "options: lengths %i: allowed is 0 to %i (0 selects 6)", o->lengths,
                          (int)LENGTHS_MOST);
    for (int i = 0; i < t->columns; i++)
        if (data->column[i].width == TRAIN_BY_LENGTH &&
            (o->length == NULL || o->batch == NULL || data->column[i].values != NULL))
            return train_fail(
                t,
                "data: \"%s\" has a width of TRAIN_BY_LENGTH: give options.length and "
                "options.batch, which fills it, and no values",
                data->column[i].name);
    return 0;
}

static inline void train_free(train_run *t)
{
    for (int i = 0; i < t->stage_count; i++) {
        gckpt_exec_free(t->stages[i].exec);
        gckpt_exec_free(t->stages[i].forward);
        gckpt_plan_free(t->stages[i].plan);
        gckpt_plan_free(t->stages[i].forward_plan);
    }
    for (int i = 0; i < t->columns; i++)
        free(t->buffers[i]);
    free(t->order);
    free(t->sorted);
    free(t->entries);
    free(t->batch_outputs);
    free(t->arena);
    free(t->outputs);
    free(t->best_weights);
    memset(t, 0, sizeof *t);
    t->ended = -1; /* later calls of train_tick and train_end return an error */
}

/* Reports that there is no plan, with the error of the model's function if it has set one, else
 * with that of `object`. */
static inline int train_fail_plan(train_run *t, const char *text)
{
    return t->r->error[0] != 0 ? -1 : train_fail(t, "%s", text);
}

/* Builds the graph: creates an input for each column, then calls the user's function. Returns the
 * number of losses. */
static inline int train_build_graph(train_run *t, gckpt_graph *graph, int64_t rows, gckpt_term *terms)
{
    train_net net;
    memset(&net, 0, sizeof net);
    net.graph = graph;
    net.rows = rows;
    for (int i = 0; i < t->columns; i++) {
        const train_column *c = &t->data.column[i];
        net.in[i] =
            gckpt_input(graph, c->name, c->type == GCKPT_I32 ? GCKPT_I32 : GCKPT_F32,
                        c->width != 0 ? gckpt_shape2(rows, train_column_width(c, t->build_length))
                                      : gckpt_shape1(rows));
        t->ids[i] = gckpt_id(net.in[i]);
    }
    t->model(&net, t->o.user);
    if (net.extra_count < 0 || net.extra_count >= TRAIN_LOSSES) {
        train_fail(t, "model: net->extra_count is %i; allowed is 0 to %i", net.extra_count, TRAIN_LOSSES - 1);
        net.loss = NULL; /* a graph without loss, so that planning returns an error */
        net.extra_count = 0;
    }
    const gckpt_shape s = gckpt_shape_of(net.output);
    t->result = net.output;
    t->output_id = gckpt_id(net.output);
    t->width = net.output != NULL;
    for (int i = 1; i < s.n; i++)
        t->width *= s.d[i];
    terms[0].loss = net.loss;
    terms[0].weight = 1;
    terms[0].regulariser = 0;
    memcpy(terms + 1, net.extra, (size_t)net.extra_count * sizeof *terms);
    t->r->losses = 1 + net.extra_count;
    memcpy(t->terms, terms, (size_t)t->r->losses * sizeof *terms);
    return t->r->losses;
}

/* Builds the graph for micro-batches of `rows` rows; a fit_build_fn. */
static inline int train_build(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *run)
{
    train_run *t = (train_run *)run;
    const int accepted = t->o.micro_batch <= 0 || rows == t->o.micro_batch;
    return accepted ? train_build_graph(t, graph, rows, terms) : -1;
}

/* Makes the plan of a stage that computes, for `rows` rows, the output and, if all columns are known,
 * the losses. */
static inline int train_plan_forward(train_run *t, train_stage *stage, int64_t rows)
{
    gckpt_plan_desc desc = t->o.plan;
    gckpt_term terms[FIT_MAX_TERMS];
    gckpt_graph *g = gckpt_graph_new(t->store, NULL);
    t->build_length = stage->length;
    const int count = train_build_graph(t, g, rows, terms);
    stage->width = t->width;
    const gckpt_fetch_spec pick = { t->result, 0 };
    desc.mode = GCKPT_INFERENCE;
    desc.batch = 0;
    desc.update_in_backward = 0;
    desc.fetch.specs = &pick;
    desc.fetch.count = t->result != NULL;
    /* the optimiser's state is in memory during validation as well */
    if (stage->plan != NULL && desc.budget > 0)
        desc.budget -= gckpt_plan_kind_bytes(stage->plan, GCKPT_BYTES_STATE);
    stage->forward_plan = gckpt_plan_new(g, terms, t->known == t->columns ? count : 0, &desc);
    const int failed = stage->forward_plan == NULL ? train_fail_plan(t, gckpt_error_text(g)) : 0;
    gckpt_graph_free(g);
    return failed;
}

/* Creates the executors of all plans, in one arena if they run on the processor. On another
 * backend, each executor has a separate arena. */
static inline int train_bind(train_run *t)
{
    gckpt_exec_desc desc;
    size_t size = 0, bytes = 0;
    memset(&desc, 0, sizeof desc);
    desc.backend = t->o.plan.backend;
    for (int i = 0; i < t->stage_count; i++) {
        const gckpt_plan *const plans[2] = { t->stages[i].plan, t->stages[i].forward_plan };
        for (int k = 0; k < 2; k++) {
            const size_t arena = gckpt_plan_describe(plans[k]).arena;
            size = arena > size ? arena : size;
        }
        if (plans[0] != NULL)
            bytes = gckpt_plan_bytes(plans[0]) - gckpt_plan_describe(plans[0]).arena;
    }
    if (desc.backend == NULL) {
        t->arena = malloc(size + 64);
        if (t->arena == NULL)
            return train_fail(t, "out of memory: an arena of %.0f bytes", (double)size);
        desc.arena = (char *)t->arena + (64 - (uintptr_t)t->arena % 64) % 64;
        desc.arena_size = size;
    }
    for (int i = 0; i < t->stage_count; i++) {
        train_stage *s = &t->stages[i];
        desc.allow_initial = s->plan != NULL; /* validation may come before the first step */
        desc.skip_nonfinite = 0;
        desc.custom_optimiser = NULL;
        desc.user = NULL;
        s->forward = gckpt_exec_new(s->forward_plan, t->store, &desc);
        if (s->plan != NULL && s->forward != NULL) {
            desc.skip_nonfinite = !gckpt_plan_describe(s->plan).update_in_backward;
            desc.custom_optimiser = t->o.custom_optimiser;
            desc.user = t->o.plan.user;
            s->exec = gckpt_exec_new(s->plan, t->store, &desc);
            t->r->bytes = bytes + size;
        }
        if (s->forward == NULL || (s->plan != NULL && s->exec == NULL))
            return train_fail(t, "%s", gckpt_error_text(t->store));
    }
    return 0;
}

/* ---- batches ---- */
static inline int64_t train_longest(const train_run *t)
{
    return t->stages[t->stage_count - 1].length;
}

/* Allocates space for a batch of the first `columns` columns, for `reserved` row indices (the order
 * of an epoch), for the row indices of a batch and, if rows have lengths, for sorting; and finds the
 * longest row. */
static inline int train_alloc_rows(train_run *t, int64_t reserved, int columns)
{
    const int64_t window = TRAIN_WINDOW * t->batch, rest = t->data.rows - reserved;
    const int64_t most = reserved < window ? reserved : window;
    t->order = (int64_t *)malloc((size_t)(reserved + t->batch) * sizeof *t->order);
    int failed = t->order == NULL;
    t->rows = failed ? NULL : t->order + reserved;
    if (t->o.length != NULL) {
        t->sorted = (int64_t *)malloc((size_t)(rest + 1) * sizeof *t->sorted);
        t->entries =
            (train_entry *)malloc((size_t)((most > rest ? most : rest) + 1) * sizeof *t->entries);
        failed = failed || t->sorted == NULL || t->entries == NULL;
        for (int64_t i = 0; i < rest && !failed; i++)
            t->sorted[i] = reserved + i;
        for (int64_t i = 0; i < t->data.rows; i++) {
            const int64_t length = t->o.length(t->o.user, i);
            if (length < 1)
                return train_fail(t, "row %.0f: options.length returned %.0f; allowed is 1 or more",
                                  (double)i, (double)length);
            if (length > t->stages[0].length)
                t->stages[0].length = length;
        }
    }
    for (int i = 0; i < columns; i++) {
        const int64_t width = train_column_width(&t->data.column[i], train_longest(t));
        t->buffers[i] = malloc((size_t)(t->batch * width) * 4);
        failed = failed || t->buffers[i] == NULL;
    }
    return failed ? train_fail(t, "out of memory for a batch") : 0;
}

static inline int train_compare_entries(const void *a, const void *b)
{
    const train_entry *x = (const train_entry *)a, *y = (const train_entry *)b;
    return x->length != y->length ? (x->length > y->length) - (x->length < y->length)
                                  : (x->position > y->position) - (x->position < y->position);
}

/* Allocates space for the outputs of a batch, if rows have lengths. Returns nonzero if out of
 * memory. */
static inline int train_alloc_outputs(train_run *t)
{
    if (t->o.length != NULL)
        t->batch_outputs =
            (float *)malloc((size_t)(t->batch * t->width + 1) * sizeof *t->batch_outputs);
    return t->o.length != NULL && t->batch_outputs == NULL;
}

/* Sorts n row indices by length; rows of one length stay in their order. Returns 0. */
static inline int train_sort(train_run *t, int64_t *rows, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        t->entries[i].length = t->o.length(t->o.user, rows[i]);
        t->entries[i].position = i;
        t->entries[i].row = rows[i];
    }
    qsort(t->entries, (size_t)n, sizeof *t->entries, train_compare_entries);
    for (int64_t i = 0; i < n; i++)
        rows[i] = t->entries[i].row;
    return 0;
}

/* Writes the order of the rows in an epoch. If rows have lengths, those of each window form batches of
 * similar lengths; rows that fill no batch are the last ones, whatever their lengths. */
static inline void train_order(train_run *t, int epoch)
{
    const int64_t full = t->train_rows / t->batch;
    int64_t batches[TRAIN_WINDOW];
    train_shuffle(t->order, t->train_rows, t->o.seed, epoch);
    for (int64_t first = 0; first < full && t->o.length != NULL; first += TRAIN_WINDOW) {
        const int64_t n = full - first < TRAIN_WINDOW ? full - first : (int64_t)TRAIN_WINDOW;
        int64_t *rows = t->order + first * t->batch;
        train_sort(t, rows, n * t->batch);
        train_shuffle(batches, n, t->o.seed + 1 + (uint64_t)first, epoch);
        for (int64_t i = 0; i < n * t->batch; i++)
            rows[i] = t->entries[batches[i / t->batch] * t->batch + i % t->batch].row;
    }
}

/* Returns the length that a batch needs. */
static inline int64_t train_batch_length(const train_run *t, const int64_t *rows, int64_t n)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n && t->o.length != NULL; i++) {
        const int64_t length = t->o.length(t->o.user, rows[i]);
        most = length > most ? length : most;
    }
    return most;
}

/* Returns the stage of a batch: that of the least length that its rows need. */
static inline train_stage *train_stage_for(train_run *t, const int64_t *rows, int64_t n)
{
    const int64_t length = train_batch_length(t, rows, n);
    int i = 0;
    while (t->stages[i].length < length)
        i++;
    return &t->stages[i];
}

/* Chooses the lengths that pad the batches of these rows, in their order, least; the last one is that
 * of the longest row of the data. */
static inline int train_choose_lengths(train_run *t, const int64_t *rows, int64_t n)
{
    const int64_t longest = train_longest(t), finest = lengths_interval(longest);
    const int64_t interval =
        finest > 8 ? finest : 8; /* most processors compute 8 numbers at a time */
    int64_t lengths[LENGTHS_MOST];
    uint64_t *weights = (uint64_t *)calloc((size_t)(longest / interval) + 2, sizeof *weights);
    for (int64_t at = 0; weights != NULL && at < n; at += t->batch) {
        const int64_t here = n - at < t->batch ? n - at : t->batch;
        const int64_t length = train_batch_length(t, rows + at, here);
        weights[(length + interval - 1) / interval] += (uint64_t)here;
    }
    const int count = weights == NULL
                          ? 0
                          : lengths_choose(weights, interval, longest,
                                           t->o.lengths > 0 ? t->o.lengths : 6, lengths);
    free(weights);
    if (count == 0)
        return train_fail(t, "out of memory for the lengths of %.0f rows", (double)n);
    for (t->stage_count = 0; t->stage_count < count; t->stage_count++)
        t->stages[t->stage_count].length = lengths[t->stage_count];
    return 0;
}

/* Copies n rows of the columns whose values are known to the buffers, then calls options.batch. */
static inline int train_collate(train_run *t, const int64_t *rows, int64_t n, int epoch,
                                int64_t length, gckpt_feed *feeds)
{
    train_batch b;
    memset(&b, 0, sizeof b);
    b.epoch = epoch;
    b.seed = t->o.seed;
    b.n = n;
    b.rows = rows;
    b.length = length;
    for (int i = 0; i < t->known; i++) {
        const train_column *c = &t->data.column[i];
        for (int64_t k = 0; c->values != NULL && k < n; k++)
            train_convert_row(c, rows[k], (char *)t->buffers[i] + k * train_width(c) * 4);
        feeds[i].input = t->ids[i];
        feeds[i].data = b.values[i] = t->buffers[i];
    }
    const int result = t->o.batch != NULL ? t->o.batch(t->o.user, &b) : 0;
    b.error[sizeof b.error - 1] = 0;
    if (result == 0)
        return 0;
    return train_fail(t, "rows %.0f ..: options.batch returned %i%s%s", (double)rows[0], result,
                      b.error[0] != 0 ? ": " : "", b.error);
}

/* Reports an error of an executor. Where the error names a row of the batch, replaces its number by
 * that of the row in the data. */
static inline int train_fail_row(train_run *t, const gckpt_exec *e, const int64_t *rows, int64_t n)
{
    const char *text = gckpt_error_text(e), *at = strstr(text, "at row ");
    if (gckpt_error(e) != GCKPT_E_DATA || at == NULL)
        return train_fail(t, "%s", text);
    char *end;
    const long row = strtol(at += strlen("at row "), &end, 10);
    return row < 0 || row >= n
               ? train_fail(t, "%s", text)
               : train_fail(t, "%.*s%.0f%s", (int)(at - text), text, (double)rows[row], end);
}

/* Adds the losses of a call to *sums. Sets means[i] to the mean of loss i in this call, unless
 * means is NULL. */
static inline void train_add_loss(const train_run *t, gckpt_exec *e, const gckpt_report *report,
                             train_sums *to, double *means)
{
    to->loss += report->count > 0 ? report->loss * (double)report->count : 0;
    to->count += (double)report->count;
    for (int i = 0; report->count > 0 && i < t->r->losses; i++) {
        double sum = 0;
        int64_t count = 0;
        gckpt_term_loss(e, i, &sum, &count);
        count = t->terms[i].regulariser ? 1 : count;
        to->sum[i] += sum;
        to->counts[i] += (double)count;
        if (means != NULL)
            means[i] = count > 0 ? sum / (double)count : 0;
    }
}

/* Returns the weighted sum of the mean losses, and sets means[i] to the mean of loss i. Each loss
 * has a mean of its count, since losses may count different numbers of elements. */
static inline double train_mean_loss(const train_run *t, const train_sums *sums, double *means)
{
    double all = 0;
    for (int i = 0; i < t->r->losses; i++) {
        means[i] = sums->counts[i] > 0 ? sums->sum[i] / sums->counts[i] : 0;
        all += (double)t->terms[i].weight * means[i];
    }
    return t->r->losses > 1 ? all : sums->count > 0 ? sums->loss / sums->count : 0;
}

/* Returns the number of classes if the output has several numbers for each label in the last
 * column, else 0. */
static inline int64_t train_classes(const train_run *t)
{
    const train_column *c = &t->data.column[t->columns > 0 ? t->columns - 1 : 0];
    const int64_t positions = train_column_width(c, train_longest(t));
    const int64_t classes = t->width / positions;
    const int counted = t->result != NULL && t->known == t->columns && classes > 1;
    return counted && t->width % positions == 0 && c->type == GCKPT_I32 ? classes : 0;
}

/* Counts how many of n labels are the class whose output is largest. */
static inline void train_count_correct(const train_run *t, int64_t n, const float *outputs,
                                       const int32_t *labels, train_sums *to)
{
    const int64_t classes = train_classes(t);
    for (int64_t i = 0; i < n; i++, outputs += classes) {
        int64_t greatest = 0;
        for (int64_t k = 1; k < classes; k++)
            greatest = outputs[k] > outputs[greatest] ? k : greatest;
        to->correct += greatest == labels[i];
        to->targets += labels[i] >= 0;
    }
}

static inline double train_accuracy(const train_run *t, const train_sums *sums)
{
    const int64_t targets = sums->targets > 0 ? sums->targets : 1;
    return train_classes(t) > 0 ? (double)sums->correct / (double)targets : -1;
}

/* Evaluates n rows, at most a batch, beginning with row `first`: loss, accuracy and, unless outputs
 * is NULL, the outputs. outputs has space for all rows from row `base` on. If rows have lengths, row
 * first + i is that with the i-th least length from row `base` on. */
static inline int train_evaluate(train_run *t, int64_t first, int64_t n, float *outputs,
                                 int64_t base, train_sums *to)
{
    gckpt_feed *feeds = t->feeds;
    gckpt_report report;
    for (int64_t k = 0; k < n; k++)
        t->rows[k] = t->sorted != NULL ? t->sorted[first - base + k] : first + k;
    train_stage *s = train_stage_for(t, t->rows, n);
    const train_column *labels = &t->data.column[t->columns - 1];
    float *result = outputs == NULL     ? NULL
                    : t->sorted != NULL ? t->batch_outputs
                                        : outputs + (first - base) * t->width;
    if (t->collated && train_collate(t, t->rows, n, 0, s->length, feeds) != 0)
        return -1;
    for (int i = 0; i < t->known && !t->collated; i++) {
        feeds[i].input = t->ids[i];
        feeds[i].data = train_row(&t->data.column[i], first);
    }
    if (t->result != NULL)
        gckpt_collect(s->forward, t->output_id, 0, result, (size_t)(n * s->width));
    if (gckpt_forward(s->forward, feeds, t->known, n, &report) != GCKPT_OK)
        return train_fail_row(t, s->forward, t->rows, n);
    train_add_loss(t, s->forward, &report, to, NULL);
    if (result != NULL && train_classes(t) > 0)
        train_count_correct(t, n * train_column_width(labels, s->length), result,
                            (const int32_t *)feeds[t->columns - 1].data, to);
    for (int64_t k = 0; k < n && result != NULL && t->sorted != NULL; k++) {
        float *row = outputs + (t->rows[k] - base) * t->width;
        memset(row, 0, (size_t)t->width * sizeof *row);
        memcpy(row, result + k * s->width, (size_t)s->width * sizeof *row);
    }
    return 0;
}

/* Returns the number of the current or next step, counted from 0 over all epochs. */
static inline int64_t train_global_step(const train_run *t)
{
    return (t->r->epoch - 1) * t->r->steps + t->done;
}

/* Returns the learning rate of a step, counted from 0 over all epochs. */
static inline float train_lr(const train_run *t, int64_t step)
{
    return schedule_lr(t->o.schedule, step, t->o.warmup, t->r->epochs * t->r->steps, t->o.hyper.lr,
                       t->o.min_lr);
}

/* Prints the remaining time on stderr, at most once per second. */
static inline void train_print_eta(train_run *t)
{
    const train_report *r = t->r;
    const time_t now = time(NULL);
    char loss[32];
    if (t->o.print_every < 0 || now == t->printed_at || !TRAIN_IS_TERMINAL)
        return;
    const int64_t done = train_global_step(t), all = r->epochs * r->steps;
    t->printed_at = now;
    t->line_length =
        fprintf(stderr, "\repoch %i of %i, step %.0f of %.0f: loss %s; %.0f s left ", r->epoch,
                r->epochs, (double)r->step, (double)r->steps, train_format(r->loss, loss),
                difftime(now, t->start_time) * (double)(all - done) / (double)(done - t->resumed_steps));
    fflush(stderr);
}

/* Runs the next `instructions` instructions of a step or, if that is 0, the rest of the step. */
static inline int train_step(train_run *t, int instructions)
{
    const int64_t first = t->done * t->batch, left = t->train_rows - first;
    const int64_t n = left < t->batch ? left : t->batch, *rows = t->order + first;
    train_report *r = t->r;
    gckpt_hyper hyper = t->o.hyper;
    gckpt_report report;
    gckpt_result result = GCKPT_OK;
    memset(&report, 0, sizeof report);
    r->step = t->done + 1;
    hyper.lr = r->lr = train_lr(t, train_global_step(t));
    if (!t->in_step)
        t->stage = train_stage_for(t, rows, n);
    gckpt_exec *e = t->stage->exec;
    if (!t->in_step && train_collate(t, rows, n, r->epoch, t->stage->length, t->feeds) != 0)
        return -1;
    if (!t->in_step && instructions <= 0)
        result = gckpt_step(e, t->feeds, t->columns, n, &hyper, &report);
    else if (!t->in_step)
        result = gckpt_step_start(e, t->feeds, t->columns, n, &hyper);
    if (result == GCKPT_OK && (t->in_step || instructions > 0))
        result = gckpt_run_some(e, instructions > 0 ? instructions : INT_MAX, &report);
    t->in_step = result == GCKPT_MORE;
    if (t->in_step)
        return 0;
    r->loss = report.loss;
    if (result == GCKPT_SKIPPED)
        return train_fail(t, "epoch %i, step %.0f: %s; or the data contains NaN", r->epoch,
                          (double)r->step, gckpt_error_text(e));
    if (result != GCKPT_OK)
        return train_fail_row(t, e, rows, n);
    train_add_loss(t, e, &report, &t->sums, r->term_loss);
    t->done++;
    train_print_eta(t);
    return 0;
}

/* ---- files ---- */
/* Copies all parameters that are not frozen to t->best_weights (direction 1), or from there
 * (direction -1). Returns the number of floats. */
static inline int64_t train_copy_best(train_run *t, int direction)
{
    gckpt_parameter p;
    int64_t at = 0;
    for (int i = 0; gckpt_store_peek(t->store, i, &p) == GCKPT_OK; i++)
        if (!p.frozen) {
            if (direction != 0 && p.values != NULL && gckpt_store_get(t->store, i, &p) == GCKPT_OK)
                memcpy(direction > 0 ? t->best_weights + at : p.values, direction > 0 ? p.values : t->best_weights + at,
                       (size_t)p.elements * 4);
            at += p.elements;
        }
    return at;
}

/* Writes a description of a training. The file has it as a note, so that the file of another
 * training can be refused. */
static inline void train_signature(const train_run *t, char text[256])
{
    snprintf(text, 256, "%.0f rows, %.0f for validation, batch %.0f, seed %.0f",
             (double)t->data.rows, (double)t->valid_rows, (double)t->batch, (double)t->o.seed);
}

/* Saves the training: after an epoch or, if t->in_epoch is nonzero, within one. */
static inline int train_save(train_run *t)
{
    const train_report *b = &t->best;
    gckpt_file_desc values;
    char signature[256], note[512], within[600], each[600] = "";
    memset(&values, 0, sizeof values);
    values.values_only = 1;
    train_signature(t, signature);
    snprintf(note, sizeof note, "%i %i %.17g %.17g %.17g of %s", t->r->epoch - t->in_epoch, b->epoch,
             b->loss, b->validation, b->accuracy, signature);
    int at = snprintf(within, sizeof within, "%.0f %.17g %.17g", (double)t->done, t->sums.loss,
                      t->sums.count);
    for (int i = 0; i < t->r->losses; i++)
        at += snprintf(within + at, sizeof within - (size_t)at, " %.17g %.17g", t->sums.sum[i],
                       t->sums.counts[i]);
    at = 0;
    for (int i = 0; i < b->losses; i++)
        at += snprintf(each + at, sizeof each - (size_t)at, " %.17g %.17g", b->term_loss[i],
                       b->term_validation[i]);
    if (gckpt_store_set_note(t->store, "train", note) != GCKPT_OK ||
        gckpt_store_set_note(t->store, "train.each", each) != GCKPT_OK ||
        gckpt_store_set_note(t->store, "train.values", t->values_hash) != GCKPT_OK ||
        gckpt_store_set_note(t->store, "train.within", t->in_epoch ? within : NULL) != GCKPT_OK ||
        (!t->in_epoch && t->r->is_best && gckpt_store_save(t->store, t->path, &values) != GCKPT_OK) ||
        gckpt_store_save(t->store, t->o.save, NULL) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->store));
    return 0;
}

/* Restores the state of a training from the notes in the loaded file. */
static inline int train_read_notes(train_run *t)
{
    train_report *b = &t->best;
    const char *note = gckpt_store_note(t->store, "train");
    const char *within = gckpt_store_note(t->store, "train.within");
    char signature[256];
    double done = 0;
    int at = 0, read = 0, malformed = 0;
    train_signature(t, signature);
    if (within != NULL) {
        malformed = sscanf(within, "%lf %lf %lf%n", &done, &t->sums.loss, &t->sums.count, &read) != 3;
        for (int i = 0; i < t->r->losses && !malformed; i++) {
            within += read;
            malformed = sscanf(within, "%lf %lf%n", &t->sums.sum[i], &t->sums.counts[i], &read) != 2;
        }
    }
    if (note == NULL ||
        sscanf(note, "%i %i %lf %lf %lf of %n", &t->r->epoch, &b->epoch, &b->loss, &b->validation,
               &b->accuracy, &at) != 5 ||
        strcmp(note + at, signature) != 0 || malformed)
        return train_fail(t, "%s belongs to another training (%s; this one: %s); remove it or give another",
                          t->o.save, note != NULL ? note + at : "no note", signature);
    if (t->r->epoch < 0 || b->epoch < 0 || b->epoch > t->r->epoch ||
        !(done >= 0 && done <= (double)t->r->steps))
        return train_fail(
            t,
            "%s is damaged: its notes say epoch %i, best %i, step %.0f of %.0f; remove "
            "it or give another",
            t->o.save, t->r->epoch, b->epoch, done, (double)t->r->steps);
    t->done = (int64_t)done;
    b->losses = t->r->losses;
    /* files of older versions do not have this note */
    note = gckpt_store_note(t->store, "train.each");
    for (int i = 0, n = 0; note != NULL && i < t->r->losses; i++, note += n)
        if (sscanf(note, "%lf %lf%n", &b->term_loss[i], &b->term_validation[i], &n) != 2)
            break;
    if (b->epoch > 0) { /* the best weights are not in this file */
        b->is_best = 1;
        b->lr = train_lr(t, b->epoch * t->r->steps - 1);
    }
    /* files of older versions do not have this note */
    note = gckpt_store_note(t->store, "train.values");
    if (note != NULL && strcmp(note, t->values_hash) != 0)
        return train_fail(t,
                          "%s belongs to a training on other values; remove it or give another",
                          t->o.save);
    return 0;
}

/* Checks, before the first epoch, that a file can be created next to options.save. */
static inline int train_check_save(train_run *t)
{
    FILE *f = fopen(t->path, "rb"), *probe = f == NULL ? fopen(t->path, "wb") : f;
    if (probe == NULL)
        return train_fail(t, "save: %s: %s", t->path, strerror(errno));
    fclose(probe);
    if (f == NULL)
        remove(t->path);
    return 0;
}

/* Loads the best weights, then the training's state from options.save. A training that ended within
 * its first epoch has no best weights: then there may be no file of best weights, or one of another
 * training. */
static inline int train_load(train_run *t)
{
    gckpt_file_desc values;
    char error[512];
    FILE *f = fopen(t->o.save, "rb");
    if (f == NULL)
        return train_check_save(t);
    fclose(f);
    memset(&values, 0, sizeof values);
    values.values_only = 1;
    const int no_best = gckpt_store_load(t->store, t->path, &values) != GCKPT_OK;
    snprintf(error, sizeof error, "%s", no_best ? gckpt_error_text(t->store) : "");
    if (!no_best)
        train_copy_best(t, 1);
    if (gckpt_store_load(t->store, t->o.save, NULL) != GCKPT_OK)
        return train_fail(t, "%s", gckpt_error_text(t->store));
    if (train_read_notes(t) != 0)
        return -1;
    return t->best.epoch > 0 && no_best ? train_fail(t, "%s", error) : 0;
}

/* Prints a note if the rows seem to be sorted: no target of a validation row lies in the range of
 * the training rows' targets. */
static inline void train_check_order(train_run *t)
{
    const train_column *c = &t->data.column[t->columns - 1];
    double least[2] = { 0, 0 }, most[2] = { 0, 0 };
    int64_t seen[2] = { 0, 0 };
    if (c->values == NULL || train_width(c) != 1 || t->data.validation < 10)
        return;
    for (int64_t i = 0; i < t->data.rows; i++) {
        const int is_valid = i >= t->train_rows;
        int32_t integer;
        float real;
        train_convert_row(c, i, c->type == GCKPT_I32 ? (void *)&integer : (void *)&real);
        const double value = c->type == GCKPT_I32 ? (double)integer : (double)real;
        if (c->type == GCKPT_I32 && value < 0)
            continue;
        least[is_valid] = seen[is_valid] == 0 || value < least[is_valid] ? value : least[is_valid];
        most[is_valid] = seen[is_valid] == 0 || value > most[is_valid] ? value : most[is_valid];
        seen[is_valid]++;
    }
    if (seen[0] > 0 && seen[1] > 0 && least[0] < most[0] &&
        (least[1] >= most[0] || most[1] <= least[0]))
        train_note(
            t,
            "\"%s\" is %g to %g in the rows for validation, which are the last, and %g to %g "
            "in the others; if the rows are sorted, mix them with train_shuffle_rows(&data, 1)",
            c->name, least[1], most[1], least[0], most[0]);
}

/* Prints a note when the validation loss is not finite for the first time. */
static inline void train_check_validation(train_run *t)
{
    const train_report *r = t->r;
    if (r->validation - r->validation == 0 || t->nan_noted)
        return;
    t->nan_noted = 1;
    train_note(t,
               "the validation loss of epoch %i is not finite: rows %.0f to %.0f of the data contain NaN "
               "or infinity, or the weights have diverged (give a smaller lr)",
               r->epoch, (double)t->train_rows, (double)(t->train_rows + t->valid_rows) - 1);
}

/* Makes plans, allocates memory, loads the file to resume from, and creates executors. */
static inline int train_prepare(train_run *t)
{
    const char *op;
    fit_error error;
    if (t->known < t->columns || t->columns == 0)
        return train_fail(
            t, "data: column %i has no name, or no values (options.batch can fill it)", t->known);
    if (t->o.micro_batch > 0 && t->batch % t->o.micro_batch != 0)
        return train_fail(t, "options: a batch of %.0f rows is not a multiple of micro_batch %.0f",
                          (double)t->batch, (double)t->o.micro_batch);
    if (t->o.warmup < 0 || t->o.save_steps < 0 || !(t->o.min_lr >= 0) || (int)t->o.schedule < 0 ||
        (int)t->o.schedule > SCHEDULE_ONE_CYCLE)
        return train_fail(t,
                          "options: schedule %i, warmup %.0f, min_lr %g, save_steps %.0f: allowed is a "
                          "schedule of 0 to %i, and 0 or more for the others",
                          (int)t->o.schedule, (double)t->o.warmup, (double)t->o.min_lr,
                          (double)t->o.save_steps, (int)SCHEDULE_ONE_CYCLE);
    if (train_alloc_rows(t, t->train_rows, t->columns) != 0)
        return -1;
    train_order(t, 1);
    if (t->o.length != NULL && train_choose_lengths(t, t->order, t->train_rows) != 0)
        return -1;
    for (int i = t->stage_count;
         i-- > 0;) { /* the longest first, whose error names the least budget */
        train_stage *s = &t->stages[i];
        t->build_length = s->length;
        s->plan = fit_plan(t->store, train_build, t, t->batch, &t->o.plan, NULL, &error);
        const gckpt_plan_info info = gckpt_plan_describe(s->plan);
        if (s->plan == NULL)
            return train_fail_plan(t, error.text);
        if (info.overhead > 2 && i == t->stage_count - 1)
            train_note(
                t,
                "a step costs %.1f times the least cost; a slightly larger budget costs much less",
                1 + info.overhead);
        if (train_plan_forward(t, s, info.rows) != 0)
            return -1;
    }
    t->width = t->stages[t->stage_count - 1].width;
    int unsplit = !gckpt_plan_split_exact(t->stages[0].plan, &op);
    t->r->steps = (t->train_rows + (unsplit ? 0 : t->batch - 1)) / t->batch;
    unsplit = !gckpt_plan_split_exact(t->stages[0].forward_plan, &op);
    t->valid_rows = t->data.validation - (unsplit ? t->data.validation % t->batch : 0);
    if (unsplit) /* not for batch norms, which combine rows in training only */
        train_note(t,
                   "%s mixes the rows of a batch, so that each row's output depends on the others; "
                   "if unintended, look for shapes that broadcast, such as (B,1) with (B)",
                   op);
    train_check_order(t);
    t->best_weights = (float *)malloc((size_t)train_copy_best(t, 0) * sizeof *t->best_weights);
    t->outputs = (float *)malloc((size_t)(1 + t->valid_rows * t->width) * sizeof *t->outputs);
    if (t->o.length != NULL)
        train_sort(t, t->sorted, t->valid_rows);
    if (t->best_weights == NULL || t->outputs == NULL || train_alloc_outputs(t) != 0)
        return train_fail(t, "out of memory for a batch, the best weights and %.0f outputs",
                          (double)(t->valid_rows * t->width));
    if (t->o.save == NULL)
        return train_bind(t);
    snprintf(t->values_hash, sizeof t->values_hash, "%016llx",
             (unsigned long long)train_hash(&t->data, t->columns));
    return train_load(t) != 0 ? -1 : train_bind(t);
}

/* ---- printing and logging ---- */
/* Writes the first line of the log to `text` and returns it. If there are several losses, each one
 * has a column for training and one for validation. */
static inline const char *train_log_header(const train_run *t, char text[512])
{
    int at = snprintf(text, 512, "epoch,step,lr,loss,validation,accuracy,best");
    for (int i = 0; t->r->losses > 1 && i < 2 * t->r->losses; i++)
        at += snprintf(text + at, 512 - (size_t)at, ",%s.%i", i % 2 ? "validation" : "loss", i / 2);
    snprintf(text + at, 512 - (size_t)at, "\n");
    return text;
}

/* Writes a line about the epoch that has ended to the log. */
static inline void train_log(train_run *t)
{
    train_report *r = t->r;
    const double epoch = r->epoch, step = epoch * (double)r->steps, lr = (double)r->lr, best = r->is_best;
    const double *cells[7 + 2 * TRAIN_LOSSES] = { &epoch,
                                                  &step,
                                                  &lr,
                                                  &r->loss,
                                                  t->valid_rows > 0 ? &r->validation : NULL,
                                                  r->accuracy >= 0 ? &r->accuracy : NULL,
                                                  &best };
    int n = 7;
    for (int i = 0; r->losses > 1 && i < r->losses; i++) {
        cells[n++] = &r->term_loss[i];
        cells[n++] = t->valid_rows > 0 ? &r->term_validation[i] : NULL;
    }
    if (t->o.log == NULL || r->log_failed != 0 || train_log_add(t->o.log, cells, n) == 0)
        return;
    r->log_failed = r->epoch;
    if (t->o.print_every >= 0)
        fprintf(stderr, "log: %s ends before epoch %i: %s; training continues\n", t->o.log,
                r->epoch, strerror(errno));
}

/* Prints the losses one by one if there are several: " (0.1234, 0.0056)". */
static inline void train_print_terms(const train_report *r, const double *losses)
{
    char text[32];
    for (int i = 0; r->losses > 1 && i < r->losses; i++)
        printf("%s%s%s", i == 0 ? " (" : ", ", train_format(losses[i], text),
               i == r->losses - 1 ? ")" : "");
}

static inline void train_print_epoch(train_run *t, const char *what, const train_report *r)
{
    char text[32];
    if (t->line_length > 0)
        fprintf(stderr, "\r%*s\r", t->line_length, "");
    t->line_length = 0;
    printf("%s %i: loss %s", what, r->epoch, train_format(r->loss, text));
    train_print_terms(r, r->term_loss);
    if (t->valid_rows > 0) {
        printf(", validation %s", train_format(r->validation, text));
        train_print_terms(r, r->term_validation);
    }
    if (r->accuracy >= 0)
        printf(", %.1f %% right", 100 * r->accuracy);
    printf("\n");
    fflush(stdout);
}
#endif
