/* summary.h - tables of a model's layers with shapes, parameters and bytes, and of the time of its
 * steps. To use it, copy it with pictures.h and tune.h: it calls the public API of gradckpt.h only.
 *
 *     #include "gradckpt.h"
 *     #include "summary.h"
 *
 *     summary s;
 *     if (summary_open(&s, graph, store, plan) == GCKPT_OK)  plan may be NULL
 *         summary_print(&s, 80, write, user);                shapes, parameters, bytes kept
 *
 *     summary_time(&s, &profile, 80, write, user);           times of tune_step (tune.h)
 *     summary_close(&s);
 *
 * A layer is a tensor that has a name, or the first op that reads a parameter (it takes the
 * parameter's name without the part after the last dot). Other ops belong to the preceding layer.
 * Layers whose names differ in numbers only (h.0.fc, h.1.fc) share a line. summary.rows can be read
 * directly.
 *
 * The graph may be freed after summary_open; the plan must live on. Lines have at most `columns`
 * columns (at least 60; 0 selects 80). `write` is a gckpt_write_fn. Errors: E_ARG if an argument is
 * NULL or the plan belongs to another graph, E_MEMORY, and E_FILE if `write` failed. C99 or C++11,
 * independent of the locale. */
#ifndef SUMMARY_H
#define SUMMARY_H
#include <stdlib.h>

#include "pictures.h"
#include "tune.h"

typedef struct {
    /* name: name of the first of `count` similar layers; last: name of the last one */
    char name[72], last[72];
    char ops[56];            /* names of the layer's ops, such as "linear+gelu" */
    gckpt_shape shape;       /* shape of the layer's output for one micro-batch */
    int count;
    /* numbers of elements: trained parameters, frozen parameters, running statistics */
    int64_t trained, frozen, running_stats;
    size_t saved;                       /* bytes in memory when the backward begins */
    /* bytes of values that are recomputed for the backward */
    size_t recomputed;
    /* cost of the layer's instructions for one micro-batch (gckpt_usage) */
    uint64_t work;
    int input;                         /* nonzero if the row is an input or a constant */
    /* nonzero if the layer reads parameters that an earlier row counts */
    int shared;
} summary_row;

typedef struct {
    const gckpt_plan *plan;
    summary_row *rows;
    int count;
    int *row_of; /* for each tensor id, the index of its row, or -1 */
    int ids;
} summary;

static inline void summary_close(summary *s)
{
    free(s->rows);
    free(s->row_of);
    memset(s, 0, sizeof *s);
}

/* ---- rows ---- */
static inline void summary_copy(char *to, size_t size, const char *from, size_t n)
{
    n = n < size - 1 ? n : size - 1;
    memcpy(to, from, n);
    to[n] = 0;
}

/* Returns the number of leading digits of a name's part if the part is a number (2 for "11" in
 * "11.fc"), else 0. */
static inline size_t summary_digits(const char *part)
{
    const size_t n = strspn(part, "0123456789");
    return part[n] == 0 || part[n] == '.' ? n : 0;
}

/* Returns whether two names are equal except for parts that are numbers, as h.0.fc and h.1.fc
 * are. */
static inline int summary_alike(const char *a, const char *b)
{
    for (int begins = 1; *a && *b; begins = *a == '.', a++, b++) {
        const size_t n = begins ? summary_digits(a) : 0, m = begins ? summary_digits(b) : 0;
        a += n, b += m;
        if (!n != !m || *a != *b)
            return 0;
        if (*a == 0)
            break;
    }
    return *a == *b;
}

static inline int summary_is_op(const gckpt_node *n, const char *op) { return !strcmp(n->op, op); }

/* Returns the name of a parameter that op *n reads, if possible of one that no earlier op has read.
 * Returns NULL if the op reads no parameter. If row is not NULL, it is row number `at`, and
 * parameters that are read for the first time are counted in it. */
static inline const char *summary_read_params(summary *s, const gckpt_graph *g, const gckpt_store *store,
                                       const gckpt_node *n, summary_row *row, int at)
{
    const char *first = NULL, *shared = NULL;
    gckpt_parameter q;
    gckpt_node p;
    for (int i = 0; i < n->inputs; i++) {
        int id = n->input[i];
        while (gckpt_graph_node(g, id, &p) == GCKPT_OK && p.inputs == 1 &&
               summary_is_op(&p, "reshape"))
            id = p.input[0];
        if (!summary_is_op(&p, "param") ||
            gckpt_store_peek(store, gckpt_store_find(store, p.name), &q) != GCKPT_OK)
            continue;
        const int is_new = s->row_of[id] < 0;
        first = is_new && first == NULL ? p.name : first;
        shared = !is_new && shared == NULL ? p.name : shared;
        if (row != NULL && is_new) {
            s->row_of[id] = at;
            *(summary_is_op(n, "batchnorm") && i > 2 ? &row->running_stats
              : q.frozen                          ? &row->frozen
                                                  : &row->trained) += q.elements;
        } else if (row != NULL) {
            row->shared = row->shared || s->row_of[id] != at;
        }
    }
    return first != NULL ? first : shared;
}

/* Adds a row for tensor `id`; or, if the tensor belongs to the layer of the previous row, adds its
 * op to that row. */
static inline void summary_add(summary *s, const gckpt_graph *g, const gckpt_store *store, int id,
                               const gckpt_node *n)
{
    const char *dot, *name = n->name, *read = summary_read_params(s, g, store, n, NULL, 0);
    const int is_input = summary_is_op(n, "input") || summary_is_op(n, "constant");
    summary_row *row = s->count > 0 ? &s->rows[s->count - 1] : NULL;
    if (is_input || *name || read != NULL || n->loss || row == NULL || row->input) {
        row = &s->rows[s->count++];
        if (!*name)
            name = n->loss ? "loss" : read != NULL ? read : n->op;
        dot = name == read ? strrchr(name, '.') : NULL;
        summary_copy(row->name, sizeof row->name, name,
                     dot != NULL ? (size_t)(dot - name) : strlen(name));
        memcpy(row->last, row->name, sizeof row->last);
        row->count = 1;
        row->input = is_input;
    } else if (strlen(row->ops) + 1 < sizeof row->ops) {
        strcat(row->ops, "+");
    }
    const size_t used = strlen(row->ops);
    summary_copy(row->ops + used, sizeof row->ops - used, n->op, strlen(n->op));
    row->shape = n->shape;
    s->row_of[id] = s->count - 1;
    summary_read_params(s, g, store, n, row, s->count - 1);
}

static inline int summary_same(const summary_row *a, const summary_row *b, int64_t count)
{
    int same = a->shape.n == b->shape.n && a->input == b->input && !strcmp(a->ops, b->ops);
    for (int i = 0; same && i < a->shape.n; i++)
        same = a->shape.d[i] == b->shape.d[i];
    return same && a->trained == b->trained * count && a->frozen == b->frozen * count &&
           a->running_stats == b->running_stats * count && summary_alike(a->name, b->name);
}

/* Merges rows of similar layers into one row. */
static inline void summary_merge(summary *s)
{
    int count = 0;
    for (int i = 0; i < s->count; i++) {
        const summary_row r = s->rows[i];
        int to = 0;
        while (to < count && (r.input || !summary_same(&s->rows[to], &r, s->rows[to].count)))
            to++;
        for (int id = 0; id < s->ids; id++)
            if (s->row_of[id] == i)
                s->row_of[id] = to;
        if (to == count) {
            s->rows[count++] = r;
            continue;
        }
        summary_row *row = &s->rows[to];
        memcpy(row->last, r.name, sizeof row->last);
        row->count++;
        row->trained += r.trained, row->frozen += r.frozen, row->running_stats += r.running_stats;
    }
    s->count = count;
}

/* Returns the index of a plan's first backward, or the plan's number of instructions if it has no
 * backward. */
static inline int summary_first_backward(const gckpt_plan *plan)
{
    gckpt_instruction in;
    int i = 0;
    while (gckpt_plan_get(plan, i, &in) == GCKPT_OK && in.kind != GCKPT_BACKWARD)
        i++;
    return i;
}

static inline summary_row *summary_row_of(const summary *s, int id)
{
    return id >= 0 && id < s->ids && s->row_of[id] >= 0 ? &s->rows[s->row_of[id]] : NULL;
}

/* Adds numbers of the plan to the rows: bytes kept, bytes recomputed, cost. */
static inline void summary_add_plan(summary *s)
{
    const int backward = summary_first_backward(s->plan), length = gckpt_plan_describe(s->plan).instructions;
    gckpt_instruction in;
    gckpt_usage u;
    gckpt_buffer b;
    for (int i = 0; gckpt_plan_get(s->plan, i, &in) == GCKPT_OK; i++)
        if (gckpt_plan_usage(s->plan, i, &u) == GCKPT_OK && summary_row_of(s, in.id) != NULL)
            summary_row_of(s, in.id)->work += u.cost;
    for (int i = 0; gckpt_plan_buffer(s->plan, i, &b) == GCKPT_OK; i++) {
        summary_row *row = b.kind <= GCKPT_BUFFER_SAVED ? summary_row_of(s, b.id) : NULL;
        if (row == NULL)
            continue;
        if (b.start < backward && b.end >= backward && backward < length)
            row->saved += b.size;
        if (gckpt_plan_usage(s->plan, b.start, &u) == GCKPT_OK && u.recompute)
            row->recomputed += b.size;
    }
}

static inline gckpt_result summary_open(summary *s, const gckpt_graph *graph,
                                        const gckpt_store *store, const gckpt_plan *plan)
{
    gckpt_instruction in;
    gckpt_node n;
    memset(s, 0, sizeof *s);
    if (graph == NULL || store == NULL)
        return GCKPT_E_ARG;
    s->plan = plan;
    s->ids = gckpt_graph_size(graph);
    for (int i = 0; gckpt_plan_get(plan, i, &in) == GCKPT_OK; i++)
        if (in.id >= s->ids)
            return GCKPT_E_ARG;
    s->rows = (summary_row *)calloc((size_t)s->ids + 1, sizeof *s->rows);
    s->row_of = (int *)malloc(((size_t)s->ids + 1) * sizeof *s->row_of);
    if (s->rows == NULL || s->row_of == NULL) {
        summary_close(s);
        return GCKPT_E_MEMORY;
    }
    for (int id = 0; id < s->ids; id++)
        s->row_of[id] = -1;
    for (int id = 0; id < s->ids; id++)
        if (gckpt_graph_node(graph, id, &n) == GCKPT_OK && !summary_is_op(&n, "param"))
            summary_add(s, graph, store, id, &n);
    summary_merge(s);
    if (plan != NULL)
        summary_add_plan(s);
    return GCKPT_OK;
}

/* ---- cells of a table ---- */
enum { SUMMARY_COLUMNS = 10 };
typedef struct {
    char text[112];
} summary_cell;

/* Returns the number of columns that a UTF-8 text takes when printed, one for each character. */
static inline int summary_width(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static inline summary_cell summary_text(const char *text)
{
    summary_cell c;
    summary_copy(c.text, sizeof c.text, text, strlen(text));
    for (char *p = c.text; *p; p++) /* replaces control characters */
        *p = (*p > 0 && *p < 32) || *p == 127 ? '?' : *p;
    return c;
}

/* Joins the names of the first and the last of several similar layers: h.0.fc and h.11.fc become
 * h.0-11.fc. */
static inline summary_cell summary_range(const char *a, const char *b)
{
    summary_cell c;
    size_t used = 0;
    for (int begins = 1; *a && used + 48 < sizeof c.text; begins = a[-1] == '.') {
        const size_t n = begins ? summary_digits(a) : 0, m = begins ? summary_digits(b) : 0;
        if (n > 0 && n < 20 && m < 20 && (n != m || strncmp(a, b, n) != 0))
            used += (size_t)snprintf(c.text + used, 48, "%.*s-%.*s", (int)n, a, (int)m, b);
        else
            for (size_t i = 0; i < n && used + 48 < sizeof c.text; i++)
                c.text[used++] = a[i];
        a += n, b += m;
        if (*a == 0)
            break;
        c.text[used++] = *a++;
        b += *b != 0;
    }
    c.text[used] = 0;
    return summary_text(c.text);
}

/* Formats a whole number with separators: 1,234,567. */
static inline summary_cell summary_number(int64_t number)
{
    char digits[24];
    summary_cell c;
    size_t n = 0;
    snprintf(digits, sizeof digits, "%lld", (long long)number);
    for (size_t i = 0, all = strlen(digits); i < all; i++) {
        c.text[n++] = digits[i];
        if ((all - i) % 3 == 1 && i + 1 < all && digits[i] != '-')
            c.text[n++] = ',';
    }
    c.text[n] = 0;
    return c;
}

static inline summary_cell summary_fixed(double v, int decimals)
{
    summary_cell c;
    unsigned long long one = 1;
    for (int i = 0; i < decimals; i++)
        one *= 10;
    v = v > 0 ? v * (double)one + 0.5 : 0;
    decimals &= 7;
    const unsigned long long all = v < 1e18 ? (unsigned long long)v : 1000000000000000000u;
    if (decimals > 0)
        snprintf(c.text, sizeof c.text, "%llu.%0*llu", all / one, decimals, all % one);
    else
        snprintf(c.text, sizeof c.text, "%llu", all);
    return c;
}

/* Formats bytes with three digits and units that are powers of 1024, as --budget has them: 384K,
 * 12.8M. */
static inline summary_cell summary_bytes(size_t bytes)
{
    const char *name;
    const double unit = pictures_unit((double)bytes, &name), v = (double)bytes / unit;
    if (unit <= 1)
        return summary_fixed(v, 0);
    summary_cell c = summary_fixed(v, v < 9.995 ? 2 : v < 99.95 ? 1 : 0);
    const size_t n = strlen(c.text);
    c.text[n] = name[0];
    c.text[n + 1] = 0;
    return c;
}

static inline summary_cell summary_shape(const gckpt_shape *shape)
{
    summary_cell c;
    size_t n = 0;
    for (int i = 0; i < shape->n && n + 24 < sizeof c.text; i++)
        n += (size_t)snprintf(c.text + n, sizeof c.text - n, "%s%lld", i ? "," : "(",
                              (long long)shape->d[i]);
    summary_copy(c.text + n, sizeof c.text - n, shape->n > 0 ? ")" : "", 1);
    return c;
}

/* A table of texts. The first row has the headings, and the last one the totals. */
typedef struct {
    const char *heads[SUMMARY_COLUMNS];
    /* number of left-aligned columns, which are the first ones; the other columns have numbers */
    int texts;
    int columns; /* number of columns */
    int rows;
    summary_cell *cells; /* texts of all cells, row by row */
    int width[SUMMARY_COLUMNS];
} summary_table;

static inline int summary_add_row(summary_table *t)
{
    const size_t size = (size_t)(t->rows + 1) * (size_t)t->columns * sizeof *t->cells;
    summary_cell *cells = (summary_cell *)realloc(t->cells, size);
    if (cells == NULL)
        return 0;
    t->cells = cells;
    memset(cells + (size_t)t->rows * (size_t)t->columns, 0, (size_t)t->columns * sizeof *cells);
    return ++t->rows;
}

/* Sets the text of a cell in the last row. */
static inline void summary_set(summary_table *t, int column, summary_cell cell)
{
    t->cells[(size_t)(t->rows - 1) * (size_t)t->columns + (size_t)column] = cell;
}

static inline void summary_pad(pictures_out *o, const char *fill, int n)
{
    for (; n > 0; n--)
        pictures_put(o, fill, 1);
}

/* Prints a text in a column of `width` columns, aligned to the right if `right` is nonzero; cuts
 * off the rest. */
static inline void summary_put(pictures_out *o, const char *text, int width, int right)
{
    const int wide = summary_width(text), cut = wide > width;
    summary_pad(o, " ", right ? width - wide : 0);
    for (int n = 0; *text; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
        if (cut && n >= width)
            break;
        pictures_put(o, text, 1);
    }
    pictures_printf(o, cut ? "\xe2\x80\xa6" : "");
    summary_pad(o, " ", right ? 0 : width - wide);
}

static inline void summary_line(pictures_out *o, const summary_table *t, int row)
{
    int last = t->columns - 1; /* omits blanks at the end of a line */
    const summary_cell *cells = row < 0 ? NULL : t->cells + (size_t)row * (size_t)t->columns;
    while (cells != NULL && last > 0 && cells[last].text[0] == 0)
        last--;
    for (int i = 0; i <= last; i++) {
        const char *text = cells == NULL ? t->heads[i] : cells[i].text;
        const int ends = i == last && i < t->texts;
        summary_put(o, text,
                    ends ? summary_width(text) < t->width[i] ? summary_width(text) : t->width[i]
                         : t->width[i],
                    i >= t->texts);
        pictures_put(o, i == last ? "\n" : "  ", i < t->texts && i < last ? 2 : 1);
    }
}

/* Prints a table in lines of at most `columns` columns, then frees it. If necessary, shortens texts
 * in the widest column first. */
static inline void summary_draw(pictures_out *o, summary_table *t, int columns)
{
    /* number of blanks between columns: two after a text, else one */
    int all = t->columns - 1 + t->texts;
    for (int i = 0; i < t->columns; i++) {
        t->width[i] = summary_width(t->heads[i]);
        for (int row = 0; row < t->rows; row++) {
            const int n =
                summary_width(t->cells[(size_t)row * (size_t)t->columns + (size_t)i].text);
            t->width[i] = n > t->width[i] ? n : t->width[i];
        }
        all += t->width[i];
    }
    for (columns = columns < 60 ? 60 : columns; all > columns; all--) {
        int widest = 0;
        for (int i = 1; i < t->texts; i++)
            widest = t->width[i] > t->width[widest] ? i : widest;
        if (t->width[widest] <= 8)
            break;
        t->width[widest]--;
    }
    summary_line(o, t, -1);
    for (int row = 0; row < t->rows; row++) {
        if (row == 0 || row == t->rows - 1) {
            summary_pad(o, "-", all);
            pictures_put(o, "\n", 1);
        }
        summary_line(o, t, row);
    }
    free(t->cells);
    t->cells = NULL;
}

/* ---- the model ---- */
static inline gckpt_result summary_print(const summary *s, int columns, gckpt_write_fn write,
                                         void *user)
{
    const gckpt_plan_info info = gckpt_plan_describe(s->plan);
    pictures_out o = { write, user, 0, 0, { 0 } };
    summary_table t = {
        { "layer", "op", "output", "x", "parameters", NULL }, 3, 5, 0, NULL, { 0 }
    };
    summary_row all;
    int frozen = 0, planned = s != NULL && s->plan != NULL, at;
    if (s == NULL || s->rows == NULL || write == NULL)
        return GCKPT_E_ARG;
    memset(&all, 0, sizeof all);
    for (int i = 0; i < s->count; i++) {
        const summary_row *r = &s->rows[i];
        all.trained += r->trained, all.frozen += r->frozen, all.running_stats += r->running_stats;
        all.saved += r->saved, all.recomputed += r->recomputed, all.work += r->work;
    }
    frozen = all.frozen > 0;
    t.heads[4] = frozen ? "trained" : "parameters";
    if (frozen)
        t.heads[t.columns++] = "frozen";
    static const char *const plans[] = { "kept", "again", "work %" };
    for (int i = 0; i < 3 && planned; i++)
        t.heads[t.columns++] = plans[i];
    for (int i = 0; i <= s->count; i++) {
        const summary_row *r = i < s->count ? &s->rows[i] : &all;
        if (!summary_add_row(&t)) {
            free(t.cells);
            return GCKPT_E_MEMORY;
        }
        if (r == &all)
            summary_set(&t, 0, summary_text("all"));
        else
            summary_set(&t, 0, summary_range(r->name, r->last));
        summary_set(&t, 1, summary_text(r->ops));
        summary_set(&t, 2, summary_shape(&r->shape));
        if (r->count > 1)
            summary_set(&t, 3, summary_number(r->count));
        at = 4;
        if (r->trained > 0 || r == &all)
            summary_set(&t, at, summary_number(r->trained));
        else if (r->shared && r->frozen == 0)
            summary_set(&t, at, summary_text("shared"));
        if (frozen && (r->frozen > 0 || r == &all))
            summary_set(&t, at + 1, summary_number(r->frozen));
        at += 1 + frozen;
        if (planned && !r->input) {
            summary_set(&t, at, summary_bytes(r->saved));
            summary_set(&t, at + 1, summary_bytes(r->recomputed));
            summary_set(&t, at + 2,
                        summary_fixed(100 * (double)r->work / (double)(all.work + !all.work), 1));
        }
    }
    summary_draw(&o, &t, columns > 0 ? columns : 80);
    if (all.running_stats > 0)
        pictures_printf(&o, "besides: %I measured values (running statistics)\n", all.running_stats);
    if (planned) {
        const summary_cell bytes = summary_number((int64_t)gckpt_plan_bytes(s->plan));
        const summary_cell arena = summary_number((int64_t)info.arena);
        pictures_printf(&o,
                      "micro-batch of %I row%s: bytes kept for its backward, made again in it\n"
                      "plan: %s, %s bytes, of them %s in the arena\n",
                      info.rows, info.rows == 1 ? "" : "s",
                      info.mode_name, bytes.text, arena.text);
    }
    return pictures_close(&o);
}

/* ---- time ---- */
enum { SUMMARY_FORWARD, SUMMARY_RECOMPUTE, SUMMARY_BACKWARD, SUMMARY_OTHER, SUMMARY_PHASES };

typedef struct {
    char name[72], last[72];
    /* seconds: time of each kind of instruction; all: their sum. seconds[SUMMARY_OTHER] is the
     * time of updates, copies, and sums over virtual ranks and ranks */
    double seconds[SUMMARY_PHASES], all;
    int64_t runs;
} summary_timing;

static inline int summary_by_time(const void *a, const void *b)
{
    const double x = ((const summary_timing *)a)->all, y = ((const summary_timing *)b)->all;
    return (x < y) - (x > y);
}

/* Adds the measured time of instruction i to a line of the table. */
static inline void summary_add_time(summary_timing *to, const gckpt_plan *plan, int i,
                                 const tune_entry *from)
{
    gckpt_instruction in;
    gckpt_usage u;
    if (gckpt_plan_get(plan, i, &in) != GCKPT_OK || gckpt_plan_usage(plan, i, &u) != GCKPT_OK ||
        in.id < 0) /* BEGIN, NEXT and BARRIER belong to the row for feeds and norm */
        return;
    to->seconds[u.recompute                     ? SUMMARY_RECOMPUTE
                : in.kind == GCKPT_FORWARD  ? SUMMARY_FORWARD
                : in.kind == GCKPT_BACKWARD ? SUMMARY_BACKWARD
                                            : SUMMARY_OTHER] += from->seconds;
    to->all += from->seconds;
    to->runs += from->runs;
}

/* Returns the name of the line for an instruction in the table of times by op. */
static inline const char *summary_op(const gckpt_plan *plan, const gckpt_instruction *in)
{
    static const char *const others[] = { "", "", "(update)", "(offload)", "(reload)", "(reduce)",
                                          "(offload done)" };
    const char *op = gckpt_plan_op(plan, in->id);
    return in->kind > GCKPT_BACKWARD ? others[in->kind] : *op ? op : "(staging)";
}

/* Fills `lines` with the times by op (by_op nonzero) or by layer, and returns the number of lines.
 * `lines` must have space for as many lines as the plan has instructions (by op) or *s has rows. */
static inline int summary_lines(const summary *s, const tune_profile *p, int by_op,
                                summary_timing *lines)
{
    gckpt_instruction in;
    int count = by_op ? 0 : s->count;
    for (int i = 0; i < count; i++) {
        memcpy(lines[i].name, s->rows[i].name, sizeof lines[i].name);
        memcpy(lines[i].last, s->rows[i].last, sizeof lines[i].last);
    }
    for (int i = 0; i < p->count && gckpt_plan_get(s->plan, i, &in) == GCKPT_OK; i++) {
        if (in.id < 0)
            continue;
        const char *name = summary_op(s->plan, &in);
        const summary_row *row = summary_row_of(s, in.id);
        int at = by_op ? 0 : row != NULL ? (int)(row - s->rows) : -1;
        while (by_op && at < count && strcmp(lines[at].name, name) != 0)
            at++;
        if (at < 0)
            continue;
        if (by_op && at == count) {
            summary_copy(lines[count].name, sizeof lines[count].name, name, strlen(name));
            memcpy(lines[count].last, lines[count].name, sizeof lines[count].last);
            count++;
        }
        summary_add_time(&lines[at], s->plan, i, &p->entries[i]);
    }
    qsort(lines, (size_t)count, sizeof *lines, summary_by_time);
    while (count > 0 && lines[count - 1].runs == 0)
        count--;
    return count;
}

/* Adds a row to the table: milliseconds per step. */
static inline int summary_time_row(summary_table *t, const summary_timing *l, const tune_profile *p)
{
    const double steps = p->steps > 0 ? (double)p->steps : 1, ms = 1e3 / steps;
    if (!summary_add_row(t))
        return 0;
    summary_set(t, 0, summary_range(l->name, l->last));
    if (l->runs > 0)
        summary_set(t, 1, summary_number((int64_t)((double)l->runs / steps + 0.5)));
    for (int i = 0; i < SUMMARY_PHASES; i++)
        if (l->seconds[i] > 0)
            summary_set(t, 2 + i, summary_fixed(ms * l->seconds[i], 2));
    summary_set(t, 6, summary_fixed(ms * l->all, 2));
    summary_set(t, 7, summary_fixed(p->total_seconds > 0 ? 100 * l->all / p->total_seconds : 0, 1));
    return 1;
}

/* Prints two tables of the milliseconds of a step, one by op and one by layer. The sum of each
 * table is the whole step. */
static inline gckpt_result summary_time(const summary *s, const tune_profile *p, int columns,
                                        gckpt_write_fn write, void *user)
{
    pictures_out o = { write, user, 0, 0, { 0 } };
    if (s == NULL || s->plan == NULL || p == NULL || p->entries == NULL || write == NULL ||
        p->count != gckpt_plan_describe(s->plan).instructions)
        return GCKPT_E_ARG;
    const size_t capacity = (size_t)(p->count > s->count ? p->count : s->count) + 1;
    for (int by_op = 1; by_op >= 0; by_op--) {
        summary_table t = { { by_op ? "op" : "layer", "runs", "forward", "again", "backward",
                              "other", "ms a step", "%", NULL },
                            1,
                            8,
                            0,
                            NULL,
                            { 0 } };
        summary_timing rest, all, *lines = (summary_timing *)calloc(capacity, sizeof *lines);
        int count = lines != NULL ? summary_lines(s, p, by_op, lines) : 0, good = lines != NULL;
        memset(&rest, 0, sizeof rest);
        memset(&all, 0, sizeof all);
        for (int i = 0; i < p->count; i++)
            summary_add_time(&all, s->plan, i, &p->entries[i]);
        rest.all = p->total_seconds - all.all;
        all.all = p->total_seconds;
        memcpy(rest.name, "(feeds, norm)", 14);
        memcpy(all.name, "all", 4);
        all.runs = 0;
        for (int i = 0; i < count && good; i++)
            good = summary_time_row(&t, &lines[i], p);
        good = good && summary_time_row(&t, &rest, p) && summary_time_row(&t, &all, p);
        free(lines);
        if (!good) {
            free(t.cells);
            return GCKPT_E_MEMORY;
        }
        summary_draw(&o, &t, columns > 0 ? columns : 80);
        if (by_op)
            pictures_put(&o, "\n", 1);
    }
    return pictures_close(&o);
}
#endif
