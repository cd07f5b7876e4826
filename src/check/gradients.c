#include "check/check.h"
#include "num/num.h"
#include "ops/ops.h"
#include "run/run.h"

#ifndef GCKPT_NO_CHECK
/* COARSE: rounding hides the answer. FLAT: no derivative shows, the gradient is only rounding. */
enum { GCKPTI_RIGHT, GCKPTI_WRONG, GCKPTI_COARSE, GCKPTI_FLAT };

/* The result of a check of one parameter in one direction. */
typedef struct {
    double width;        /* distance of the evaluations, relative to that of the first ones */
    double deriv, bound; /* derivative by finite differences, and its error bound */
    double error;        /* relative difference of derivative and gradient */
    double resolution;   /* least relative difference that would be noticed */
    double change;       /* change of the loss at width 1 that the gradient predicts */
    double noise;        /* rounding error of the loss */
    double rounding;     /* relative error of the derivative due to `noise` */
    int status;          /* GCKPTI_RIGHT to GCKPTI_FLAT */
} gckpti_probe;

/* A check: the input of its steps, the direction that is checked, and the results so far. */
typedef struct {
    gckpt_exec *exec;
    const gckpt_feed *feeds;
    int count;
    int64_t rows;

    int param, random; /* the parameter; nonzero for a random direction, 0 for the gradient's */
    int64_t n;         /* elements of the parameter */
    float *g, *w;      /* copies of its gradient and values */
    double gg, ww;     /* their sums of squares */
    double loss;       /* loss at the values w */

    gckpt_check sum;
    const char *coarse, *flat; /* parameters with the coarsest gradient; with the last flat one */
    double change, noise, coarsest;
    int wrong, flat_count;
} gckpti_checker;

static double gckpti_fmax(double a, double b) { return a > b ? a : b; }

/* Computes loss and gradients. *gradient: the parameter's mean gradient on the host, valid until
 * the next call. */
static gckpt_result gckpti_checked_step(const gckpti_checker *c, double *loss,
                                        const float **gradient)
{
    gckpt_report report = { 0, 0, 0, 0 };
    gckpt_exec *e = c->exec;
    const gckpt_plan *p = e->plan;
    const unsigned char writes_back = e->update.writes_back;
    e->update.writes_back = 1;
    const gckpt_result result = gckpt_gradients(e, c->feeds, c->count, c->rows, &report);
    e->update.writes_back = writes_back;
    *loss = report.loss;
    if (result == GCKPT_OK && !gckpti_loss_count(e))
        return gckpti_error(e, GCKPT_E_DATA, "check_gradients: no row has a target >= 0");
    if (result == GCKPT_OK) {
        const gckpti_ins *ins = p->ins;
        gckpti_operands o;
        while (ins->kind != GCKPT_UPDATE || ins->id != c->param)
            ins++;
        gckpti_operands_of(p->operands, ins, 0, &o);
        *gradient = gckpti_host_floats(e, gckpti_arena_f32(e, o.gradient), (size_t)c->n);
    }
    return result;
}

/* Returns the magnitude of the sums in the loss: its rounding error is relative to that. Losses
 * over classes (recognised by GCKPT_SAVED) are logarithms of sums of at least 1, and have an
 * error relative to 1 even if the loss is near 0. */
static double gckpti_loss_magnitude(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    double size = 0;
    for (size_t i = 0; i < p->term_count; i++) {
        const gckpti_loss_total *seen = &e->losses.terms[i].total;
        const gckpt_op *op = p->nodes[p->terms[i].id].op;
        int classes = op->flags & GCKPTI_BUILTIN_OP && op->needs[0] & GCKPT_SAVED;
        double n = p->terms[i].regulariser || !seen->count ? 1 : (double)seen->count;
        double sum = gckpti_fmax(gckpti_fabs(seen->sum), classes ? (double)seen->count : 0);
        size += gckpti_fabs((double)gckpti_float(p->terms[i].weight)) * sum / n;
    }
    return size;
}

/* Evaluations on both sides of the weights, at one distance along the direction. */
typedef struct {
    double deriv, even;     /* even: loss on one side + loss on the other - 2 * loss at w */
    double expected, scale; /* derivative by the gradient; its largest possible value */
    int reproduced;         /* nonzero if the mean gradient of both sides is near that at w */
} gckpti_sides;

/* Evaluates both sides of w, then restores w. */
static gckpt_result gckpti_eval_sides(const gckpti_checker *c, double distance, gckpti_sides *sides)
{
    gckpti_param *q = gckpti_param_of(c->exec, c->param);
    float *values = gckpti_array(q, -1);
    const float *there = NULL;
    double moved = 0, dot = 0, same = 0, loss[2] = { 0, 0 };
    double rms = gckpti_sqrt_double(c->gg / (double)c->n);
    gckpt_result result = GCKPT_OK;
    for (int side = 0; side < 2 && result == GCKPT_OK; side++) {
        double sign = side ? -1 : 1;
        for (int64_t i = 0; i < c->n; i++) {
            uint32_t word[4];
            gckpti_philox(0, (uint64_t)i, (uint32_t)c->param, 0, word);
            double d = c->random ? (word[0] & 1 ? 1 : -1) : rms > 0 ? (double)c->g[i] / rms : 0;
            values[i] = (float)((double)c->w[i] + sign * distance * d);
            dot += sign * (double)c->g[i] * (double)values[i];
            moved += d * d;
        }
        gckpti_mark_changed(q, GCKPTI_HOST);
        result = gckpti_checked_step(c, &loss[side], &there);
        for (int64_t i = 0; i < c->n && result == GCKPT_OK; i++)
            same += (double)c->g[i] * (double)there[i];
    }
    memcpy(values, c->w, (size_t)c->n * sizeof(float));
    gckpti_mark_changed(q, GCKPTI_HOST);
    sides->deriv = (loss[0] - loss[1]) / (2 * distance);
    sides->even = loss[0] + loss[1] - 2 * c->loss;
    sides->expected = dot / (2 * distance);
    sides->scale = gckpti_sqrt_double(c->gg * moved / 2 / (double)c->n);
    sides->reproduced = c->gg > 0 && gckpti_fabs(same / 2 - c->gg) < 0.25 * c->gg;
    return result;
}

/* Compares loss(w + h d) - loss(w - h d) with the gradient times the actual difference of the
 * weights, at h and h/2, extrapolated to h = 0 (Richardson). The error estimate is the difference
 * of the two derivatives, and of the even parts, which must scale as h^2. A gradient that is only
 * rounding errors differs at each point; a real one is the mean of both sides' gradients. */
static gckpt_result gckpti_eval_width(const gckpti_checker *c, double width, gckpti_probe *t)
{
    const double h = width * 0.02 * (gckpti_sqrt_double(c->ww / (double)c->n) + 0.05);
    gckpti_sides far, near;
    gckpt_result result = gckpti_eval_sides(c, h, &far);
    if (result == GCKPT_OK)
        result = gckpti_eval_sides(c, h / 2, &near);
    if (result != GCKPT_OK)
        return result;
    t->width = width;
    t->deriv = (4 * near.deriv - far.deriv) / 3;
    t->noise = 4e-7 * gckpti_loss_magnitude(c->exec);
    t->change = gckpti_fabs(near.expected) * h / width;
    const double error = gckpti_fabs(t->deriv - near.expected);
    double scale = gckpti_fmax(gckpti_fabs(t->deriv), gckpti_fabs(near.expected));
    scale = gckpti_fmax(gckpti_fmax(near.scale, scale), 1e-12);
    const double spread = gckpti_fmax(gckpti_fabs(near.deriv - far.deriv),
                                      gckpti_fabs(far.even - 4 * near.even) / (4 * h)) /
                          scale;
    t->error = error / scale;
    t->rounding = t->noise / h / scale;
    const double doubt = gckpti_fmax(spread, t->rounding), bound = (width > 1 ? 4 : 2) * doubt;
    t->bound = bound * scale;
    if (!(far.reproduced && near.reproduced) && error * h <= t->noise &&
        t->change * width <= t->noise)
        t->status = GCKPTI_FLAT;
    else if (t->error <= 0.01 && (t->rounding <= 0.005 || spread <= 0.01))
        t->status = GCKPTI_RIGHT;
    else
        t->status = t->error <= bound ? GCKPTI_COARSE : GCKPTI_WRONG;
    t->resolution = t->status != GCKPTI_RIGHT ? doubt : t->rounding <= 0.005 ? t->rounding : spread;
    return GCKPT_OK;
}

/* Returns 1 if probe a, not b, decides: if the probes contradict each other, the nearer one, since
 * the loss then bends within the larger width; else the more precise one. */
static int gckpti_is_clearer(const gckpti_probe *a, const gckpti_probe *b)
{
    return gckpti_fabs(a->deriv - b->deriv) > a->bound + b->bound
               ? a->width < b->width
               : a->error + a->resolution < b->error + b->resolution;
}

/* Evaluates several widths, smaller for a loss that bends, larger for one hidden by rounding, until
 * one shows that the gradient is right; else *t is the clearest. Even the fifth width may span a
 * whole bend of the loss and hide it, so two smaller ones follow if rounding, 8-fold, allows. */
static gckpt_result gckpti_eval_widths(const gckpti_checker *c, gckpti_probe *t)
{
    static const double widths[] = { 1, 4, 1.0 / 8, 16, 1.0 / 64, 1.0 / 512, 1.0 / 4096 };
    gckpti_probe at = *t;
    for (int i = 0; i < 7 && (i < 5 || 8 * at.rounding <= 0.005); i++) {
        gckpt_result result = gckpti_eval_width(c, widths[i], &at);
        if (result != GCKPT_OK)
            return result;
        int found = at.status == GCKPTI_RIGHT || at.status == GCKPTI_FLAT;
        if (i == 0 || found || gckpti_is_clearer(&at, t))
            *t = at;
        if (found)
            break;
    }
    return GCKPT_OK;
}

/* Adds the result of a direction; only directions that rounding does not hide count for `worst`. */
static void gckpti_add_probe(gckpti_checker *c, const gckpti_probe *t, const char *name)
{
    gckpt_check *sum = &c->sum;
    sum->directions++;
    c->change = gckpti_fmax(c->change, t->change);
    c->noise = gckpti_fmax(c->noise, t->noise);
    c->wrong += t->status == GCKPTI_WRONG;
    if (t->status == GCKPTI_FLAT) {
        c->flat_count++;
        c->flat = name;
        return;
    }
    sum->resolution = gckpti_fmax(sum->resolution, t->resolution);
    if (t->status == GCKPTI_COARSE) {
        sum->unresolved++;
        c->coarse = t->resolution > c->coarsest ? name : c->coarse;
        c->coarsest = gckpti_fmax(c->coarsest, t->resolution);
    } else if (t->error > sum->worst || t->error != t->error || !sum->name) {
        sum->worst = t->error;
        sum->name = name;
    }
}

/* Checks parameter i along its gradient and along a random direction. */
static gckpt_result gckpti_check_param(gckpti_checker *c, int i)
{
    gckpt_exec *e = c->exec;
    const float *gradient = NULL;
    c->param = i;
    c->n = e->plan->params[i].elements;
    const size_t n = (size_t)c->n;
    float *copy = (float *)gckpti_new(&e->memory, 2 * n, sizeof(float));
    if (!copy)
        return gckpti_error(e, GCKPT_E_MEMORY, "check_gradients: no memory for %z floats", 2 * n);
    c->g = copy;
    c->w = copy + n;
    gckpt_result result = gckpti_checked_step(c, &c->loss, &gradient);
    if (result == GCKPT_OK) {
        memcpy(c->g, gradient, n * sizeof(float));
        gckpti_pull(e->store, gckpti_param_of(e, i));
        memcpy(c->w, gckpti_array(gckpti_param_of(e, i), -1), n * sizeof(float));
    }
    c->gg = c->ww = 0;
    for (size_t k = 0; k < n; k++) {
        c->gg += (double)c->g[k] * (double)c->g[k];
        c->ww += (double)c->w[k] * (double)c->w[k];
    }
    for (c->random = 0; c->random < 2 && result == GCKPT_OK; c->random++) {
        gckpti_probe t;
        memset(&t, 0, sizeof t);
        result = gckpti_eval_widths(c, &t);
        if (result == GCKPT_OK)
            gckpti_add_probe(c, &t, e->plan->names + e->plan->params[i].name);
    }
    gckpti_delete(&e->memory, copy, 2 * n, sizeof(float));
    return result;
}

/* Ends a check: adds the resolution of flat directions, and sets the error of the executor. */
static gckpt_result gckpti_check_end(gckpti_checker *c)
{
    gckpt_check *sum = &c->sum;
    if (c->flat_count) {
        double seen = c->noise > 0 && c->change > 0 ? c->noise / c->change
                                                    : (double)(c->noise > 0 ? GCKPTI_INFINITY : 0);
        sum->resolution = gckpti_fmax(sum->resolution, seen);
        sum->unresolved += seen > 0.01 ? c->flat_count : 0;
        c->coarse = seen > 0.01 && seen > c->coarsest ? c->flat : c->coarse;
    }
    if (c->wrong)
        return gckpti_error(c->exec, GCKPT_E_DATA,
                            "check_gradients: the gradient of \"%s\" differs from finite "
                            "differences by %g (relative)",
                            sum->name, sum->worst);
    if (!sum->unresolved)
        return GCKPT_OK;
    sum->name = c->coarse;
    return gckpti_error(
        c->exec, GCKPT_UNRESOLVED,
        "check_gradients: rounding hides %i of %i directions (\"%s\": differences below %g "
        "of its gradient): the loss, or a nearly certain class, is large compared with its "
        "changes. Bring targets and outputs near each other, or check fewer rows",
        sum->unresolved, sum->directions, sum->name, sum->resolution);
}

GCKPT_API gckpt_result gckpt_check_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                             int64_t rows, gckpt_check *check)
{
    gckpti_checker c;
    gckpt_result result = GCKPT_OK;
    memset(&c, 0, sizeof c);
    if (check)
        *check = c.sum;
    if (!exec)
        return GCKPT_E_ARG;
    const gckpt_plan *p = exec->plan;
    c.exec = exec, c.feeds = feeds, c.count = count, c.rows = rows;
    if (p->update_in_backward || p->mode == GCKPT_INFERENCE)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "check_gradients: needs a training plan without update_in_backward");
    if (gckpti_needs_peers(p))
        return gckpti_error(exec, GCKPT_E_ARG,
                            "check_gradients: the plan " GCKPTI_IS_OF_SEVERAL ": check one of the "
                            "same desc in one process, which has the same gradients");
    if (p->precision != GCKPT_FP32)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "check_gradients: rounding to bf16 is coarser than the differences; "
                            "check a plan of GCKPT_FP32");
    unsigned debug = exec->desc.debug;
    /* gradients are read after the call; poison at its end would overwrite them */
    exec->desc.debug &= ~(GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_POISON);
    for (size_t i = 0; i < p->param_count && result == GCKPT_OK; i++)
        if (p->params[i].trained)
            result = gckpti_check_param(&c, (int)i);
    exec->desc.debug = debug;
    if (result != GCKPT_OK)
        return result;
    if (!c.sum.directions)
        return gckpti_error(exec, GCKPT_E_ARG, "check_gradients: this plan trains no parameter");
    result = gckpti_check_end(&c);
    if (check)
        *check = c.sum;
    return result;
}
#endif
