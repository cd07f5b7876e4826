/* will_it_fit.h - the bytes that fine-tuning a language model takes, from its config.json alone:
 * by method, storage of the frozen weights, and length of the rows. No weight is read or allocated,
 * so any machine can plan any model. To copy, with adapters.h and what that needs.
 *
 *     model_any m;
 *     if (model_read_config(&m, "llama-8b.json") == 0) {
 *         will_it_fit_case lora = { { ADAPTERS_LORA }, GCKPT_STORAGE_I8, 2048, { 0 } };
 *         will_it_fit_bytes bytes;
 *         if (will_it_fit(&m, &lora, &bytes) == 0)
 *             printf("at least %zu bytes\n", bytes.least);
 *     }
 *
 * The bytes are those of gckpt_plan_bytes: weights, gradients, optimiser state and the step arena.
 * They are exact for a pass of one row, which needs the fewest. The process takes up to 30 MB
 * more, and the bytes of its data. C99 or C++11. */
#ifndef WILL_IT_FIT_H
#define WILL_IT_FIT_H
#include "adapters.h"

typedef struct {
    adapters_options adapter; /* the method and its options */
    gckpt_storage storage;    /* of the frozen matrices; F32 for methods that train matrices */
    int64_t length;           /* tokens of a row */
    /* batch, budget, precision, threads and backend of the training; zeros select defaults */
    gckpt_plan_desc desc;
} will_it_fit_case;

typedef struct {
    size_t least;    /* the fewest bytes of a plan */
    size_t most;     /* the bytes of the plan that recomputes nothing */
    int fits;        /* 1 if a plan fits the budget */
    size_t bytes;    /* the bytes of that plan; 0 if none fits */
    double overhead; /* the share by which recomputing makes its step costlier */
} will_it_fit_bytes;

/* Returns whether a method leaves all matrices of the model frozen, so that they can have any
 * storage. */
static inline int will_it_fit_freezes(adapters_method method)
{
    return method != ADAPTERS_FULL && method != ADAPTERS_LAST;
}

/* Plans the graph with a mode and a budget. Returns the plan, or NULL with m->error; if the budget
 * is too small, *least becomes the bytes that the message of the planner names, and m->error "". */
static inline gckpt_plan *will_it_fit_plan(model_any *m, gckpt_graph *g, const gckpt_term *loss,
                                           gckpt_plan_desc desc, gckpt_mode mode, size_t budget,
                                           size_t *least)
{
    desc.mode = mode;
    desc.budget = budget;
    desc.batch = desc.batch > 0 ? desc.batch : 1;
    gckpt_plan *plan = gckpt_plan_new(g, loss, 1, &desc);
    const char *text = plan == NULL ? gckpt_error_text(g) : "", *named = strstr(text, "at least ");
    m->error[0] = 0;
    if (plan == NULL && gckpt_error(g) == GCKPT_E_BUDGET && named != NULL)
        *least = (size_t)strtoull(named + strlen("at least "), NULL, 10);
    else if (plan == NULL)
        model_fail(m, "%s", text);
    return plan;
}

/* Fills `out` from the plans of a graph. */
static inline int will_it_fit_measure(model_any *m, gckpt_graph *g, const gckpt_term *loss,
                                      const gckpt_plan_desc *desc, will_it_fit_bytes *out)
{
    gckpt_plan *all = will_it_fit_plan(m, g, loss, *desc, GCKPT_STORE_ALL, 0, &out->least);
    out->most = gckpt_plan_bytes(all);
    gckpt_plan_free(all);
    /* no plan fits in one byte: the planner names the least */
    gckpt_plan_free(m->error[0] == 0
                        ? will_it_fit_plan(m, g, loss, *desc, GCKPT_OPTIMAL, 1, &out->least)
                        : NULL);
    if (m->error[0] == 0 && desc->budget >= out->least) {
        gckpt_plan *p = will_it_fit_plan(m, g, loss, *desc, GCKPT_AUTO, desc->budget, &out->least);
        out->fits = p != NULL;
        out->bytes = gckpt_plan_bytes(p);
        out->overhead = gckpt_plan_describe(p).overhead;
        gckpt_plan_free(p);
    }
    return m->error[0] == 0 ? 0 : -1;
}

/* Plans the training of one case. Returns 0, or -1 with m->error. m has what model_read_config
 * read, and is as before afterwards. */
static inline int will_it_fit(model_any *m, const will_it_fit_case *of, will_it_fit_bytes *out)
{
    const model_config config = m->config; /* a method may untie the LM head */
    adapters_options options = of->adapter;
    adapters a;
    options.plan_only = 1;
    memset(out, 0, sizeof *out);
    gckpt_store *store = gckpt_store_new(NULL);
    int failed = model_declare(m, store) != 0 ||
                 (of->storage != GCKPT_STORAGE_F32 &&
                  model_quantise_except(m, store, of->storage,
                                        options.method == ADAPTERS_HEAD ? "lm_head" : NULL) != 0);
    if (!failed) {
        failed = adapters_begin(&a, m, store, &options);
        model_options how;
        memset(&how, 0, sizeof how);
        how.hooks = &a.hooks;
        gckpt_graph *g = gckpt_graph_new(store, NULL);
        const gckpt_shape shape = gckpt_shape2(1, of->length);
        gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
        gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
        const gckpt_term loss = { failed ? NULL
                                         : model_loss(m, model_hidden(m, tokens, &how), targets),
                                  1, 0 };
        failed = failed || will_it_fit_measure(m, g, &loss, &of->desc, out) != 0;
        gckpt_graph_free(g);
        adapters_end(&a);
    }
    gckpt_store_free(store);
    m->config = config;
    return failed ? -1 : 0;
}

/* How a table is printed: its file, columns, and the unit of bytes, 1e3 or 1e6. */
typedef struct {
    FILE *out;
    const int64_t *lengths; /* of rows, in tokens */
    int columns;
    size_t unit;
} will_it_fit_table;

/* Writes a number of bytes in the table's unit, with commas between thousands: "1,339". Rounds up,
 * so that the printed number suffices as a budget. */
static inline const char *will_it_fit_number(const will_it_fit_table *t, char *text, size_t bytes)
{
    const unsigned long long n = (bytes + t->unit - 1) / t->unit;
    if (n < 1000)
        snprintf(text, 32, "%llu", n);
    else if (n < 1000000)
        snprintf(text, 32, "%llu,%03llu", n / 1000, n % 1000);
    else
        snprintf(text, 32, "%llu,%03llu,%03llu", n / 1000000, n / 1000 % 1000, n % 1000);
    return text;
}

/* Prints a row of the table: the cells of one method and storage, or why this model cannot be
 * trained by it; then returns -1 with m->error. */
static inline int will_it_fit_row(const will_it_fit_table *t, model_any *m,
                                  const will_it_fit_case *row)
{
    static const char *const storages[] = { "f32", "bf16", "f16", "int8", "int4" };
    will_it_fit_case of = *row;
    const int64_t tokens = of.adapter.method < ADAPTERS_PREFIX ? 0
                           : of.adapter.size > 0               ? of.adapter.size
                                                               : 10;
    fprintf(t->out, "%-11s %-5s", adapters_names[of.adapter.method], storages[of.storage]);
    for (int i = 0; i < t->columns; i++) {
        char least[32], most[32], cell[80];
        will_it_fit_bytes bytes;
        of.length = t->lengths[i];
        if (of.length + tokens > m->config.context) { /* no room for the method's own tokens */
            fprintf(t->out, " %17s", "-");
            continue;
        }
        if (will_it_fit(m, &of, &bytes) != 0) {
            fprintf(t->out, " %s\n", m->error);
            return -1;
        }
        will_it_fit_number(t, least, bytes.least);
        will_it_fit_number(t, most, bytes.most);
        if (of.desc.budget == 0)
            snprintf(cell, sizeof cell, "%s-%s", least, most);
        else if (bytes.fits)
            snprintf(cell, sizeof cell, "yes, +%.0f %%", 100 * bytes.overhead);
        else
            snprintf(cell, sizeof cell, "no: %s", least);
        fprintf(t->out, " %17s", cell);
        fflush(t->out);
    }
    fputc('\n', t->out);
    return 0;
}

/* Prints the table of a model: a row for each method (or only of->adapter.method, if one is
 * nonzero) with the storages that it may have (or only of->storage, if as_stored is nonzero), a
 * column for each length. Returns 0, or -1 with m->error if the only method is not possible. */
static inline int will_it_fit_print(const will_it_fit_table *t, model_any *m,
                                    const will_it_fit_case *of, int one, int as_stored)
{
    static const gckpt_storage storages[] = { GCKPT_STORAGE_F32, GCKPT_STORAGE_I8,
                                              GCKPT_STORAGE_I4 };
    const char *unit = t->unit == 1000 ? "KB" : "MB";
    char number[32];
    if (of->desc.budget == 0)
        fprintf(t->out, "\n%s to train it on one row at a time, the least - without recomputing:\n",
                unit);
    else
        fprintf(
            t->out,
            "\nDoes it fit %s %s, on one row at a time? yes, and how much longer a step takes by\n"
            "recomputing; or no, and the %s that it needs at least:\n",
            will_it_fit_number(t, number, of->desc.budget), unit, unit);
    fprintf(t->out, "%-11s %-5s", "method", "store");
    for (int i = 0; i < t->columns; i++)
        fprintf(t->out, " %11s %5lld", "context", (long long)t->lengths[i]);
    fputc('\n', t->out);
    for (int method = 0; method < ADAPTERS_METHODS; method++)
        for (int k = 0; k < (as_stored ? 1 : 3); k++) {
            will_it_fit_case next = *of;
            next.adapter.method = (adapters_method)method;
            next.storage = as_stored ? of->storage : storages[k];
            if ((one && method != (int)of->adapter.method) ||
                (next.storage != GCKPT_STORAGE_F32 && !will_it_fit_freezes(next.adapter.method)))
                continue;
            if (will_it_fit_row(t, m, &next) != 0) {
                if (one)
                    return -1;
                break; /* other storages change nothing about it */
            }
        }
    return 0;
}
#endif /* WILL_IT_FIT_H */
