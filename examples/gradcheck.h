/* gradcheck.h - compares the gradients of a graph's parameters with finite differences of its loss.
 * To use it, copy it, and include gradckpt.h first: it calls the public API only.
 *
 *     gradcheck_result r;
 *     if (gradcheck(store, &loss, 1, &desc, feeds, n, rows, &r) != GCKPT_OK)
 *         puts(r.text);
 *
 * The check makes a plan and an executor from the terms and the desc. In that plan all updates run
 * at the end, in fp32, without optimiser state; all plans have the same gradients. Weights are
 * restored to the bit. C99 or C++11. */
#ifndef GRADCHECK_H
#define GRADCHECK_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double worst; /* greatest relative difference among resolved directions; HUGE_VAL if a gradient
                   * or the loss is not finite */
    double resolution; /* coarsest resolution: smaller relative differences may be missed */
    int directions;    /* two for each trained parameter */
    int unresolved;    /* directions whose differences are lost in the loss's rounding */
    const char *name;  /* parameter of `worst` (UNRESOLVED: of `resolution`); the store's text */
    char text[320];    /* the result in words */
} gradcheck_result;

/* COARSE: rounding hides the answer. FLAT: no derivative shows, the gradient is only rounding. */
enum { GRADCHECK_RIGHT, GRADCHECK_WRONG, GRADCHECK_COARSE, GRADCHECK_FLAT };

/* The result of a check of one parameter in one direction. */
typedef struct {
    double width;        /* distance of the evaluations, relative to that of the first ones */
    double deriv, bound; /* derivative by finite differences, and its error bound */
    double error;        /* relative difference of derivative and gradient */
    double resolution;   /* least relative difference that would be noticed */
    double change;       /* change of the loss at width 1 that the gradient predicts */
    double noise;        /* rounding error of the loss */
    double rounding;     /* relative error of the derivative due to `noise` */
    int status;          /* GRADCHECK_RIGHT to GRADCHECK_FLAT */
} gradcheck_probe;

/* A check: the input of its steps, the direction that is checked, and the results so far. */
typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_exec *exec;
    const gckpt_term *terms;
    int count; /* number of terms */
    const gckpt_feed *feeds;
    int feed_count;
    int64_t rows;

    gckpt_fetch_spec *params; /* the gradients of the trained parameters */
    int param_count;
    int index, id; /* the parameter: its number in the store, its tensor */
    int random;    /* nonzero for a random direction, 0 for the gradient's */
    int64_t n;     /* elements of the parameter */
    float *g, *w;  /* copies of its gradient and values */
    double gg, ww; /* their sums of squares */
    double loss;   /* loss at the values w */

    gradcheck_result *sum;
    const char *coarse, *flat; /* parameters with the coarsest gradient; with the last flat one */
    double change, noise, coarsest;
    int wrong, flat_count;
} gradcheck_state;

/* ---- the trained parameters ---- */
/* Returns 1 if a tensor has running statistics, which a batch norm reads as its inputs 1 and 2. */
static inline int gradcheck_is_running(const gckpt_graph *graph, int id)
{
    gckpt_node node;
    for (int i = id + 1; gckpt_graph_node(graph, i, &node) == GCKPT_OK; i++)
        if (!strcmp(node.op, "batchnorm") && (node.input[1] == id || node.input[2] == id))
            return 1;
    return 0;
}

/* Lists the parameters that a plan updates, except running statistics. */
static inline gckpt_result gradcheck_list(gradcheck_state *c, const gckpt_plan_desc *desc)
{
    const gckpt_init any = { 0, 0, 0 };
    gckpt_plan_desc plain = *desc;
    gckpt_instruction ins;
    gckpt_node node;
    plain.mode = desc->mode == GCKPT_INFERENCE ? GCKPT_INFERENCE : GCKPT_STORE_ALL;
    plain.budget = 0;
    gckpt_plan *p = gckpt_plan_new(c->graph, c->terms, c->count, &plain);
    if (!p) {
        snprintf(c->sum->text, sizeof c->sum->text, "%s", gckpt_error_text(c->graph));
        return gckpt_error(c->graph);
    }
    const size_t most = (size_t)gckpt_plan_describe(p).instructions + 1;
    gckpt_result result = GCKPT_OK;
    c->params = (gckpt_fetch_spec *)calloc(most, sizeof *c->params);
    if (!c->params)
        result = GCKPT_E_MEMORY;
    for (int i = 0; result == GCKPT_OK && gckpt_plan_get(p, i, &ins) == GCKPT_OK; i++) {
        if (ins.kind != GCKPT_UPDATE || gradcheck_is_running(c->graph, ins.id) ||
            gckpt_graph_node(c->graph, ins.id, &node) != GCKPT_OK)
            continue;
        gckpt_tensor *t = gckpt_store_find(c->store, node.name) < 0
                              ? NULL
                              : gckpt_param(c->graph, node.name, node.shape, any);
        if (gckpt_id(t) != ins.id) {
            snprintf(c->sum->text, sizeof c->sum->text,
                     "gradcheck: \"%s\" is no name of a parameter: do not rename parameters by "
                     "gckpt_name",
                     node.name);
            result = GCKPT_E_ARG;
        }
        c->params[c->param_count].tensor = t;
        c->params[c->param_count++].gradient = 1;
    }
    gckpt_plan_free(p);
    if (result == GCKPT_OK && !c->param_count) {
        snprintf(c->sum->text, sizeof c->sum->text, "gradcheck: this plan trains no parameter");
        result = GCKPT_E_ARG;
    }
    return result;
}

/* Makes the executor, whose plan fetches the gradients of all trained parameters. */
static inline gckpt_result gradcheck_open(gradcheck_state *c, const gckpt_plan_desc *wanted)
{
    gckpt_plan_desc desc;
    gckpt_exec_desc how;
    memset(&desc, 0, sizeof desc);
    memset(&how, 0, sizeof how);
    if (wanted)
        desc = *wanted;
    memset(&desc.bf16, 0, sizeof desc.bf16);
    desc.optimiser = GCKPT_SGD;
    desc.custom_state = 0;
    desc.state_bytes = NULL;
    desc.update_in_backward = 0;
    desc.fetch.count = 0;
    gckpt_result result = gradcheck_list(c, &desc);
    if (result != GCKPT_OK)
        return result;
    desc.fetch.specs = c->params;
    desc.fetch.count = c->param_count;
    how.backend = desc.backend;
    gckpt_plan *p = gckpt_plan_new(c->graph, c->terms, c->count, &desc);
    c->exec = p ? gckpt_exec_new(p, c->store, &how) : NULL;
    gckpt_plan_free(p);
    const void *object = p ? (const void *)c->store : c->graph;
    if (!c->exec) {
        snprintf(c->sum->text, sizeof c->sum->text, "%s", gckpt_error_text(object));
        return gckpt_error(object);
    }
    return GCKPT_OK;
}

/* ---- one derivative ---- */
static inline double gradcheck_max(double a, double b) { return a > b ? a : b; }

/* Computes loss and gradients. *gradient: the parameter's mean gradient, valid until the next call.
 */
static inline gckpt_result gradcheck_step(const gradcheck_state *c, double *loss,
                                          const float **gradient)
{
    gckpt_report report = { 0, 0, 0, 0 };
    gckpt_result result = gckpt_gradients(c->exec, c->feeds, c->feed_count, c->rows, &report);
    *loss = report.loss;
    if (result != GCKPT_OK) {
        snprintf(c->sum->text, sizeof c->sum->text, "%s", gckpt_error_text(c->exec));
    } else if (!report.count) {
        snprintf(c->sum->text, sizeof c->sum->text, "gradcheck: no row has a target >= 0");
        result = GCKPT_E_DATA;
    } else {
        *gradient = gckpt_fetch(c->exec, c->id, 1);
    }
    return result;
}

/* Returns the magnitude of the sums in the loss: its rounding error is relative to that. Losses
 * over classes are logarithms of sums of at least 1, and have an error relative to 1 even if the
 * loss is near 0. */
static inline double gradcheck_magnitude(const gradcheck_state *c)
{
    double size = 0;
    for (int i = 0; i < c->count; i++) {
        gckpt_node node;
        double sum = 0;
        int64_t count = 0;
        gckpt_graph_node(c->graph, gckpt_id(c->terms[i].loss), &node);
        gckpt_term_loss(c->exec, i, &sum, &count);
        const int classes =
            strstr(node.op, "cross_entropy") && strcmp(node.op, "binary_cross_entropy");
        sum = gradcheck_max(fabs(sum), classes ? (double)count : 0);
        sum /= c->terms[i].regulariser || !count ? 1 : (double)count;
        size += fabs((double)c->terms[i].weight) * sum;
    }
    return size;
}

/* Returns 1 or -1, a random function of the parameter and the index of an element (Philox 4x32-10,
 * Salmon et al. 2011, with key 0). */
static inline double gradcheck_sign(int param, int64_t i)
{
    uint32_t k0 = 0, k1 = 0, c[4] = { (uint32_t)i, (uint32_t)((uint64_t)i >> 32), 0, 0 };
    c[2] = (uint32_t)param;
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)b;
        c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c[0] & 1 ? 1 : -1;
}

/* Evaluations on both sides of the weights, at one distance along the direction. */
typedef struct {
    double deriv, even;     /* even: loss on one side + loss on the other - 2 * loss at w */
    double expected, scale; /* derivative by the gradient; its largest possible value */
    int reproduced;         /* nonzero if the mean gradient of both sides is near that at w */
} gradcheck_sides;

/* Evaluates both sides of w, then restores w. */
static inline gckpt_result gradcheck_evaluate(const gradcheck_state *c, double distance,
                                              gradcheck_sides *sides)
{
    gckpt_parameter q;
    const float *there = NULL;
    double moved = 0, dot = 0, same = 0, loss[2] = { 0, 0 };
    const double rms = sqrt(c->gg / (double)c->n);
    gckpt_result result = GCKPT_OK;
    for (int side = 0; side < 2 && result == GCKPT_OK; side++) {
        const double sign = side ? -1 : 1;
        gckpt_store_get(c->store, c->index, &q);
        for (int64_t i = 0; i < c->n; i++) {
            const double along = rms > 0 ? (double)c->g[i] / rms : 0;
            const double d = c->random ? gradcheck_sign(c->index, i) : along;
            q.values[i] = (float)((double)c->w[i] + sign * distance * d);
            dot += sign * (double)c->g[i] * (double)q.values[i];
            moved += d * d;
        }
        result = gradcheck_step(c, &loss[side], &there);
        for (int64_t i = 0; i < c->n && result == GCKPT_OK; i++)
            same += (double)c->g[i] * (double)there[i];
    }
    gckpt_store_get(c->store, c->index, &q);
    memcpy(q.values, c->w, (size_t)c->n * sizeof(float));
    sides->deriv = (loss[0] - loss[1]) / (2 * distance);
    sides->even = loss[0] + loss[1] - 2 * c->loss;
    sides->expected = dot / (2 * distance);
    sides->scale = sqrt(c->gg * moved / 2 / (double)c->n);
    sides->reproduced = c->gg > 0 && fabs(same / 2 - c->gg) < 0.25 * c->gg;
    return result;
}

/* Compares loss(w + h d) - loss(w - h d) with the gradient times the actual difference of the
 * weights, at h and h/2, extrapolated to h = 0 (Richardson). The error estimate is the difference
 * of the two derivatives, and of the even parts, which must scale as h^2. The error is at most 4
 * times that (2.7 times, if the loss has a kink at 0.2 h, by relu). A gradient that is only rounding
 * errors differs at each point; a real one is the mean of both sides' gradients. */
static inline gckpt_result gradcheck_width(const gradcheck_state *c, double width,
                                           gradcheck_probe *t)
{
    const double h = width * 0.02 * (sqrt(c->ww / (double)c->n) + 0.05);
    gradcheck_sides far, near;
    gckpt_result result = gradcheck_evaluate(c, h, &far);
    if (result == GCKPT_OK)
        result = gradcheck_evaluate(c, h / 2, &near);
    if (result != GCKPT_OK)
        return result;
    t->width = width;
    t->deriv = (4 * near.deriv - far.deriv) / 3;
    if (!(t->deriv - t->deriv == 0)) { /* beyond the numbers for which the loss is finite */
        t->bound = t->error = t->resolution = HUGE_VAL;
        t->change = t->noise = t->rounding = 0;
        t->status = GRADCHECK_COARSE;
        return GCKPT_OK;
    }
    t->noise = 4e-7 * gradcheck_magnitude(c);
    t->change = fabs(near.expected) * h / width;
    const double error = fabs(t->deriv - near.expected);
    double scale = gradcheck_max(fabs(t->deriv), fabs(near.expected));
    scale = gradcheck_max(gradcheck_max(near.scale, scale), 1e-12);
    const double spread =
        gradcheck_max(fabs(near.deriv - far.deriv), fabs(far.even - 4 * near.even) / (4 * h)) /
        scale;
    t->error = error / scale;
    t->rounding = t->noise / h / scale;
    const double doubt = gradcheck_max(spread, t->rounding), bound = 4 * doubt;
    t->bound = bound * scale;
    if (!(far.reproduced && near.reproduced) && error * h <= t->noise &&
        t->change * width <= t->noise)
        t->status = GRADCHECK_FLAT;
    else if (t->error <= 0.01 && (t->rounding <= 0.005 || spread <= 0.01))
        t->status = GRADCHECK_RIGHT;
    else
        t->status = t->error <= bound ? GRADCHECK_COARSE : GRADCHECK_WRONG;
    t->resolution = t->status != GRADCHECK_RIGHT ? doubt
                    : t->rounding <= 0.005       ? t->rounding
                                                 : spread;
    return GCKPT_OK;
}

/* Returns 1 if probe a, not b, decides: if the probes contradict each other, the nearer one, since
 * the loss then bends within the larger width; else the more precise one. */
static inline int gradcheck_is_clearer(const gradcheck_probe *a, const gradcheck_probe *b)
{
    return fabs(a->deriv - b->deriv) > a->bound + b->bound
               ? a->width < b->width
               : a->error + a->resolution < b->error + b->resolution;
}

/* Evaluates several widths, smaller for a loss that bends, larger for one hidden by rounding, until
 * one shows that the gradient is right; else *t is the clearest. Even the fifth width may span a
 * whole bend of the loss and hide it, so two smaller ones follow if rounding, 8-fold, allows. */
static inline gckpt_result gradcheck_widths(const gradcheck_state *c, gradcheck_probe *t)
{
    static const double widths[] = { 1, 4, 1.0 / 8, 16, 1.0 / 64, 1.0 / 512, 1.0 / 4096 };
    gradcheck_probe at = *t;
    for (int i = 0; i < 7 && (i < 5 || 8 * at.rounding <= 0.005); i++) {
        const gckpt_result result = gradcheck_width(c, widths[i], &at);
        if (result != GCKPT_OK)
            return result;
        const int found = at.status == GRADCHECK_RIGHT || at.status == GRADCHECK_FLAT;
        if (i == 0 || found || gradcheck_is_clearer(&at, t))
            *t = at;
        if (found)
            break;
    }
    return GCKPT_OK;
}

/* ---- all derivatives ---- */
/* Adds the result of a direction; only directions that rounding does not hide count for `worst`. */
static inline void gradcheck_add(gradcheck_state *c, const gradcheck_probe *t, const char *name)
{
    gradcheck_result *sum = c->sum;
    sum->directions++;
    c->change = gradcheck_max(c->change, t->change);
    c->noise = gradcheck_max(c->noise, t->noise);
    c->wrong += t->status == GRADCHECK_WRONG;
    if (t->status == GRADCHECK_FLAT) {
        c->flat_count++;
        c->flat = name;
        return;
    }
    sum->resolution = gradcheck_max(sum->resolution, t->resolution);
    if (t->status == GRADCHECK_COARSE) {
        sum->unresolved++;
        c->coarse = t->resolution > c->coarsest ? name : c->coarse;
        c->coarsest = gradcheck_max(c->coarsest, t->resolution);
    } else if (t->error > sum->worst || isnan(t->error) || !sum->name) {
        sum->worst = t->error;
        sum->name = name;
    }
}

/* Checks a parameter along its gradient and along a random direction. */
static inline gckpt_result gradcheck_param(gradcheck_state *c, const gckpt_tensor *t)
{
    gckpt_parameter q;
    gckpt_node node;
    const float *gradient = NULL;
    c->id = gckpt_id(t);
    gckpt_graph_node(c->graph, c->id, &node);
    c->index = gckpt_store_find(c->store, node.name);
    gckpt_result result = gckpt_store_get(c->store, c->index, &q);
    if (result != GCKPT_OK)
        return result;
    const size_t n = (size_t)q.elements;
    c->n = q.elements;
    c->g = (float *)malloc(2 * n * sizeof(float));
    if (!c->g)
        return GCKPT_E_MEMORY;
    c->w = c->g + n;
    memcpy(c->w, q.values, n * sizeof(float));
    result = gradcheck_step(c, &c->loss, &gradient);
    if (result == GCKPT_OK)
        memcpy(c->g, gradient, n * sizeof(float));
    c->gg = c->ww = 0;
    for (size_t k = 0; k < n && result == GCKPT_OK; k++) {
        c->gg += (double)c->g[k] * (double)c->g[k];
        c->ww += (double)c->w[k] * (double)c->w[k];
    }
    if (result == GCKPT_OK && !(c->loss - c->loss == 0 && c->gg - c->gg == 0)) {
        const int of_loss = !(c->loss - c->loss == 0);
        c->sum->worst = HUGE_VAL;
        c->sum->name = q.name;
        snprintf(c->sum->text, sizeof c->sum->text,
                 "gradcheck: the %s%.100s%s not finite; GCKPT_DEBUG_FINITE names the op",
                 of_loss ? "loss" : "gradient of \"", of_loss ? "" : q.name,
                 of_loss ? " is" : "\" is");
        result = GCKPT_E_DATA;
    }
    for (c->random = 0; c->random < 2 && result == GCKPT_OK; c->random++) {
        gradcheck_probe probe;
        memset(&probe, 0, sizeof probe);
        result = gradcheck_widths(c, &probe);
        if (result == GCKPT_OK)
            gradcheck_add(c, &probe, q.name);
    }
    free(c->g);
    return result;
}

/* Ends a check: adds the resolution of flat directions, and writes the result in words. */
static inline gckpt_result gradcheck_end(gradcheck_state *c)
{
    gradcheck_result *sum = c->sum;
    if (c->flat_count) {
        const double most = c->noise > 0 ? HUGE_VAL : 0;
        const double seen = c->noise > 0 && c->change > 0 ? c->noise / c->change : most;
        sum->resolution = gradcheck_max(sum->resolution, seen);
        sum->unresolved += seen > 0.01 ? c->flat_count : 0;
        c->coarse = seen > 0.01 && seen > c->coarsest ? c->flat : c->coarse;
    }
    if (c->wrong) {
        snprintf(sum->text, sizeof sum->text,
                 "gradcheck: the gradient of \"%s\" differs from finite differences by %g "
                 "(relative)",
                 sum->name, sum->worst);
        return GCKPT_E_DATA;
    }
    if (!sum->unresolved) {
        snprintf(sum->text, sizeof sum->text, "ok");
        return GCKPT_OK;
    }
    sum->name = c->coarse;
    if (c->coarsest >= HUGE_VAL)
        snprintf(sum->text, sizeof sum->text,
                 "gradcheck: the loss is not finite at all values near those of \"%.100s\", which "
                 "hides %d of %d directions. Check the graph with other values of the parameter",
                 sum->name, sum->unresolved, sum->directions);
    else
        snprintf(
            sum->text, sizeof sum->text,
            "gradcheck: rounding hides %d of %d directions (\"%.60s\": differences below %g of its "
            "gradient): the loss, or a nearly certain class, is large compared with its changes. "
            "Bring targets and outputs near each other, or check fewer rows",
            sum->unresolved, sum->directions, sum->name, sum->resolution);
    return GCKPT_UNRESOLVED;
}

/* Compares the gradient of every trained parameter with central differences of the loss, along the
 * gradient and along a random direction. desc describes a plan whose batch has `rows` rows; NULL
 * selects the defaults. Returns GCKPT_E_DATA if one differs by more than 0.01, if the loss or a
 * gradient is not finite, or if the first loss counts nothing in these rows; GCKPT_UNRESOLVED if none
 * does but some directions are lost in rounding: a loss in f32 that is large compared with its changes
 * is too coarse, and even twice or half the right gradient could pass. A gradient that is 0 except for
 * rounding (cancelled by a norm or softmax) is right if the loss shows no slope there and is fine
 * enough. Several kinks (relu) within a difference can look like a wrong gradient of up to about 0.1:
 * then check few rows, or another random point. *to gets numbers and text, also after an error; NULL
 * if neither is needed. */
static inline gckpt_result gradcheck(gckpt_store *store, const gckpt_term *terms, int count,
                                     const gckpt_plan_desc *desc, const gckpt_feed *feeds,
                                     int feed_count, int64_t rows, gradcheck_result *to)
{
    gradcheck_state c;
    gradcheck_result unseen, *sum = to ? to : &unseen;
    memset(&c, 0, sizeof c);
    memset(sum, 0, sizeof *sum);
    if (!store || !terms || count < 1 || !terms[0].loss) {
        snprintf(sum->text, sizeof sum->text, "gradcheck: a store and a loss are needed");
        return GCKPT_E_ARG;
    }
    c.store = store;
    c.graph = gckpt_graph_of(terms[0].loss);
    c.terms = terms;
    c.count = count;
    c.feeds = feeds;
    c.feed_count = feed_count;
    c.rows = rows;
    c.sum = sum;
    gckpt_result result = gradcheck_open(&c, desc);
    for (int i = 0; i < c.param_count && result == GCKPT_OK; i++)
        result = gradcheck_param(&c, c.params[i].tensor);
    if (result == GCKPT_OK)
        result = gradcheck_end(&c);
    else if (!*sum->text)
        snprintf(sum->text, sizeof sum->text, "gradcheck: %s", gckpt_result_text(result));
    gckpt_exec_free(c.exec);
    free(c.params);
    return result;
}
#endif
