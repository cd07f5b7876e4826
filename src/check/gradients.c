#include "check/check.h"
#include "num/num.h"
#include "ops/ops.h"
#include "run/run.h"

#ifndef GCKPT_NO_CHECK
/* The input of the steps. */
typedef struct {
    gckpt_exec *exec;
    const gckpt_feed *feeds;
    int count;
    int64_t rows;
} gckpti_batch;

/* Computes loss and gradients, and brings the gradients to the host. */
static gckpt_result gckpti_gradients(const gckpti_batch *batch, double *loss)
{
    gckpt_report report = { 0, 0, 0, 0 };
    gckpt_exec *e = batch->exec;
    const unsigned char writes_back = e->update.writes_back;
    e->update.writes_back = 1;
    const gckpt_result result =
        gckpt_gradients(e, batch->feeds, batch->count, batch->rows, &report);
    e->update.writes_back = writes_back;
    *loss = report.loss;
    return result != GCKPT_OK || gckpti_loss_count(e)
               ? result
               : gckpti_error(e, GCKPT_E_DATA, "check_gradients: no row has a target >= 0");
}

/* Returns a parameter's mean gradient on the host; valid until the next call. */
static const float *gckpti_gradient_of(const gckpt_exec *e, int param)
{
    gckpti_operands o;
    size_t x = 0;
    while (e->plan->ins[x].kind != GCKPT_UPDATE || e->plan->ins[x].id != param)
        x++;
    gckpti_operands_of(e->plan->operands, &e->plan->ins[x], 0, &o);
    return gckpti_host_floats(e, gckpti_arena_f32(e, o.gradient),
                              (size_t)e->plan->params[param].elements);
}

/* COARSE: rounding hides the answer. FLAT: no derivative shows, the gradient is only rounding. */
enum { GCKPTI_RIGHT, GCKPTI_WRONG, GCKPTI_COARSE, GCKPTI_FLAT };

/* A parameter, a direction in which it is moved, and the result of the check in this direction. */
typedef struct {
    int param, random;
    float *g, *w;        /* copies of the parameter's gradient and values */
    double loss;         /* loss at the values w */
    double width;        /* distance of the evaluations, relative to that of the first ones */
    double deriv, bound; /* derivative by finite differences, and its error bound */
    double error;        /* relative difference of derivative and gradient */
    double resolution;   /* least relative difference that would be noticed */
    double change;       /* change of the loss at width 1 that the gradient predicts */
    double noise;        /* rounding error of the loss */
    double rounding;     /* relative error of the derivative due to `noise` */
    int status;          /* GCKPTI_RIGHT to GCKPTI_FLAT */
} gckpti_probe;

static double gckpti_fmax(double a, double b) { return a > b ? a : b; }

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

/* Evaluations on both sides of the weights, at distance h (index 0) and at h/2 (index 1). */
typedef struct {
    double h, deriv[2], even[2]; /* even: loss on one side + loss on the other - 2 * loss at w */
    double expected, scale;      /* derivative by the gradient; its largest possible value */
    int reproduced;              /* nonzero if the mean gradient of both sides is near that at w */
} gckpti_sides;

/* Evaluates both sides of w along the direction, at distance h or (half) h/2, then restores w. */
static gckpt_result gckpti_eval_sides(const gckpti_batch *batch, const gckpti_probe *t, int half,
                                      double gg, gckpti_sides *sides)
{
    gckpti_param *q = gckpti_param_of(batch->exec, t->param);
    float *values = gckpti_array(q, -1);
    int64_t n = q->p.elements;
    double moved = 0, dot = 0, same = 0, loss[2] = { 0, 0 }, step = half ? sides->h : 2 * sides->h;
    double rms = gckpti_sqrt_double(gg / (double)n);
    gckpt_result result = GCKPT_OK;
    for (int side = 0; side < 2 && result == GCKPT_OK; side++) {
        double sign = side ? -1 : 1;
        for (int64_t i = 0; i < n; i++) {
            uint32_t word[4];
            gckpti_philox(0, (uint64_t)i, (uint32_t)t->param, 0, word);
            double d = t->random ? (word[0] & 1 ? 1 : -1) : rms > 0 ? (double)t->g[i] / rms : 0;
            values[i] = (float)((double)t->w[i] + sign * (half ? sides->h / 2 : sides->h) * d);
            dot += sign * (double)t->g[i] * (double)values[i];
            moved += d * d;
        }
        gckpti_mark_changed(batch->exec->store, q, GCKPTI_HOST);
        result = gckpti_gradients(batch, &loss[side]);
        const float *there = gckpti_gradient_of(batch->exec, t->param);
        for (int64_t i = 0; i < n && result == GCKPT_OK; i++)
            same += (double)t->g[i] * (double)there[i];
    }
    memcpy(values, t->w, (size_t)n * sizeof(float));
    gckpti_mark_changed(batch->exec->store, q, GCKPTI_HOST);
    sides->deriv[half] = (loss[0] - loss[1]) / step;
    sides->even[half] = loss[0] + loss[1] - 2 * t->loss;
    sides->expected = dot / step;
    sides->reproduced = sides->reproduced && gckpti_fabs(same / 2 - gg) < 0.25 * gg;
    sides->scale = gckpti_sqrt_double(gg * moved / 2 / (double)n);
    return result;
}

/* Compares loss(w + h d) - loss(w - h d) with the gradient times the actual difference of the
 * weights, at h and h/2, extrapolated to h = 0 (Richardson). The error estimate is the difference
 * of the two derivatives, and of the even parts, which must scale as h^2. A gradient that is only
 * rounding errors differs at each point; a real one is the mean of both sides' gradients. */
static gckpt_result gckpti_eval_direction(const gckpti_batch *batch, double width, gckpti_probe *t)
{
    int64_t n = batch->exec->plan->params[t->param].elements;
    double gg = 0, ww = 0;
    for (int64_t i = 0; i < n; i++) {
        gg += (double)t->g[i] * (double)t->g[i];
        ww += (double)t->w[i] * (double)t->w[i];
    }
    double h = width * 0.02 * (gckpti_sqrt_double(ww / (double)n) + 0.05);
    gckpti_sides sides = { h, { 0, 0 }, { 0, 0 }, 0, 0, gg > 0 };
    gckpt_result result = gckpti_eval_sides(batch, t, 0, gg, &sides);
    if (result == GCKPT_OK)
        result = gckpti_eval_sides(batch, t, 1, gg, &sides);
    double deriv = (4 * sides.deriv[1] - sides.deriv[0]) / 3;
    t->noise = 4e-7 * gckpti_loss_magnitude(batch->exec);
    t->change = gckpti_fabs(sides.expected) * h / width;
    t->error = gckpti_fabs(deriv - sides.expected);
    t->width = width;
    t->deriv = deriv;
    int flat = !sides.reproduced && t->error * h <= t->noise && t->change * width <= t->noise;
    double spread = gckpti_fmax(gckpti_fabs(sides.deriv[1] - sides.deriv[0]),
                                gckpti_fabs(sides.even[0] - 4 * sides.even[1]) / (4 * h));
    double scale = gckpti_fmax(gckpti_fabs(deriv), gckpti_fabs(sides.expected));
    scale = gckpti_fmax(gckpti_fmax(sides.scale, scale), 1e-12);
    t->error /= scale;
    spread /= scale;
    t->rounding = t->noise / h / scale;
    double doubt = gckpti_fmax(spread, t->rounding), bound = (width > 1 ? 4 : 2) * doubt;
    t->bound = bound * scale;
    t->status = flat                                                           ? GCKPTI_FLAT
                : t->error <= 0.01 && (t->rounding <= 0.005 || spread <= 0.01) ? GCKPTI_RIGHT
                : t->error <= bound                                            ? GCKPTI_COARSE
                                                                               : GCKPTI_WRONG;
    t->resolution = t->status != GCKPTI_RIGHT ? doubt : t->rounding <= 0.005 ? t->rounding : spread;
    return result;
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
static gckpt_result gckpti_eval_widths(const gckpti_batch *batch, gckpti_probe *t)
{
    static const double widths[] = { 1, 4, 1.0 / 8, 16, 1.0 / 64, 1.0 / 512, 1.0 / 4096 };
    gckpt_result result = GCKPT_OK;
    gckpti_probe at = *t;
    for (int i = 0; i < 7 && (i < 5 || 8 * at.rounding <= 0.005) && result == GCKPT_OK; i++) {
        result = gckpti_eval_direction(batch, widths[i], &at);
        int found = at.status == GCKPTI_RIGHT || at.status == GCKPTI_FLAT;
        if (i == 0 || found || gckpti_is_clearer(&at, t))
            *t = at;
        if (found)
            break;
    }
    return result;
}

/* Results of all directions checked so far. */
typedef struct {
    gckpt_check check;
    const char *coarse, *flat; /* parameters with the coarsest gradient; with the last flat one */
    double change, noise, coarsest;
    int wrong, flat_count;
} gckpti_tally;

/* Adds the result of a direction; only directions that rounding does not hide count for `worst`. */
static void gckpti_tally_add(gckpti_tally *tally, const gckpti_probe *t, const char *name)
{
    gckpt_check *c = &tally->check;
    c->directions++;
    tally->change = gckpti_fmax(tally->change, t->change);
    tally->noise = gckpti_fmax(tally->noise, t->noise);
    tally->wrong += t->status == GCKPTI_WRONG;
    c->unresolved += t->status == GCKPTI_COARSE;
    if (t->status == GCKPTI_FLAT) {
        tally->flat_count++;
        tally->flat = name;
        return;
    }
    c->resolution = gckpti_fmax(c->resolution, t->resolution);
    if (t->status == GCKPTI_COARSE) {
        tally->coarse = t->resolution > tally->coarsest ? name : tally->coarse;
        tally->coarsest = gckpti_fmax(tally->coarsest, t->resolution);
    } else if (t->error > c->worst || t->error != t->error || !c->name) {
        c->worst = t->error;
        c->name = name;
    }
}

/* Ends a check: adds the resolution of flat directions, and sets the error of the executor. */
static gckpt_result gckpti_tally_end(gckpti_tally *tally, gckpt_exec *e)
{
    gckpt_check *c = &tally->check;
    gckpt_result result = GCKPT_OK;
    if (tally->flat_count) {
        double seen = tally->noise > 0 && tally->change > 0
                          ? tally->noise / tally->change
                          : (double)(tally->noise > 0 ? GCKPTI_INFINITY : 0);
        c->resolution = gckpti_fmax(c->resolution, seen);
        c->unresolved += seen > 0.01 ? tally->flat_count : 0;
        tally->coarse = seen > 0.01 && seen > tally->coarsest ? tally->flat : tally->coarse;
    }
    if (tally->wrong)
        result = gckpti_error(e, GCKPT_E_DATA,
                              "check_gradients: the gradient of \"%s\" differs from finite "
                              "differences by %g (relative)",
                              c->name, c->worst);
    else if (c->unresolved)
        result = gckpti_error(
            e, GCKPT_UNRESOLVED,
            "check_gradients: rounding hides %i of %i directions (\"%s\": differences below %g "
            "of its gradient): the loss, or a nearly certain class, is large compared with its "
            "changes. Bring targets and outputs near each other, or check fewer rows",
            c->unresolved, c->directions, tally->coarse, c->resolution);
    c->name = result == GCKPT_UNRESOLVED ? tally->coarse : c->name;
    return result;
}

/* Checks parameter i along its gradient and along a random direction. */
static gckpt_result gckpti_check_param(const gckpti_batch *batch, int i, gckpti_tally *tally)
{
    gckpt_exec *e = batch->exec;
    const gckpt_plan *p = e->plan;
    const gckpti_param *q = gckpti_param_of(e, i);
    const size_t n = (size_t)p->params[i].elements, bytes = n * sizeof(float);
    float *copy = (float *)gckpti_new(&e->memory, 2 * n, sizeof(float));
    if (!copy)
        return gckpti_error(e, GCKPT_E_MEMORY, "check_gradients: no memory for %z floats", 2 * n);
    gckpti_probe start;
    memset(&start, 0, sizeof start);
    start.param = i;
    start.g = copy;
    start.w = copy + n;
    gckpt_result result = gckpti_gradients(batch, &start.loss);
    if (result == GCKPT_OK) {
        memcpy(start.g, gckpti_gradient_of(e, i), bytes);
        gckpti_pull(e->store, q);
        memcpy(start.w, gckpti_array(q, -1), bytes);
    }
    for (int random = 0; random < 2 && result == GCKPT_OK; random++) {
        gckpti_probe t = start;
        t.random = random;
        result = gckpti_eval_widths(batch, &t);
        gckpti_tally_add(tally, &t, p->names + p->params[i].name);
    }
    gckpti_delete(&e->memory, copy, 2 * n, sizeof(float));
    return result;
}

GCKPT_API gckpt_result gckpt_check_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                             int64_t rows, gckpt_check *check)
{
    gckpti_tally tally;
    gckpt_result result = GCKPT_OK;
    memset(&tally, 0, sizeof tally);
    if (check)
        *check = tally.check;
    if (!exec)
        return GCKPT_E_ARG;
    const gckpt_plan *p = exec->plan;
    const gckpti_batch batch = { exec, feeds, count, rows };
    const char *problem = NULL;
    if (p->update_in_backward || p->mode == GCKPT_INFERENCE)
        problem = "check_gradients: needs a training plan without update_in_backward";
    else if (p->ranks > 1)
        problem = "check_gradients: not for %i ranks: check a plan of one process with as many "
                  "virtual ranks, which has the same gradients";
    else if (p->precision != GCKPT_FP32)
        problem = "check_gradients: rounding to bf16 is coarser than the differences; check a "
                  "plan of GCKPT_FP32";
    unsigned debug = exec->desc.debug;
    /* gradients are read after the call; poison at its end would overwrite them */
    exec->desc.debug &= ~(GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_POISON);
    for (size_t i = 0; i < p->param_count && result == GCKPT_OK && !problem; i++)
        if (p->params[i].trained)
            result = gckpti_check_param(&batch, (int)i, &tally);
    exec->desc.debug = debug;
    if (result != GCKPT_OK)
        return result;
    if (!problem && !tally.check.directions)
        problem = "check_gradients: this plan trains no parameter";
    if (problem)
        return gckpti_error(exec, GCKPT_E_ARG, problem, p->ranks);
    result = gckpti_tally_end(&tally, exec);
    if (check)
        *check = tally.check;
    return result;
}
#endif
