#ifndef GCKPT_NO_TRAINING
#include "run/internal.h"
#include "num/num.h"

GCKPT_API gckpt_hyper gckpt_hyper_lr(float lr)
{
    const gckpt_hyper options = { lr, 0, 0, 0, 0, 0, 0 };
    return options;
}

GCKPT_API float gckpt_lr_cosine(uint64_t step, uint64_t warmup, uint64_t steps, float lr,
                                float min_lr)
{
    if (step < warmup)
        return lr * (float)(step + 1) / (float)warmup;
    if (step >= steps)
        return min_lr;
    float t = (float)(step - warmup) / (float)(steps - warmup), sine, cosine;
    gckpti_sincos(3.14159265f * t, &sine, &cosine);
    return gckpti_fma(0.5f * (lr - min_lr), 1 + cosine, min_lr);
}

/* Returns a setting of gckpt_hyper: `fallback` if `value` is 0, and 0 if it is negative. */
static float gckpti_hyper_value(float value, float fallback)
{
    return value < 0 ? 0 : value > 0 ? value : fallback;
}

/* Divides by the first loss's count; running statistics, sums weighted by rows, by the rows. */
GCKPTI_OWN_FRAME static void gckpti_init_pass(const gckpt_exec *e, const gckpti_ins *ins,
                                              gckpt_update_pass *pass)
{
    const gckpti_plan_param *q = &e->plan->params[ins->id];
    gckpti_operands o;
    gckpti_operands_of(e->plan->operands, ins, 0, &o);
    memset(pass, 0, sizeof *pass);
    pass->elements = q->elements;
    pass->gradient = gckpti_arena_f32(e, o.gradient);
    pass->base = e->blocks.arena;
    pass->more = o.addends;
    pass->adds = ins->uses - 1;
    pass->count = q->running ? (float)(q->running * e->step.rows) : (float)gckpti_loss_count(e);
    pass->write_back = e->update.writes_back;
    pass->squares = q->running ? NULL : e->update.squares + e->tables.params[ins->id].first_square;
    pass->values = gckpti_exec_array(e, gckpti_param_of(e, ins->id), -1);
    gckpti_restrict_pass(e, ins, pass);
}

/* Computes norm and clipping scale. Returns the first parameter that is not finite, else NULL. */
static const gckpti_plan_param *gckpti_total_norm(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const float *squares = gckpti_host_floats(e, e->update.squares, e->update.square_count);
    const gckpti_plan_param *bad = NULL;
    double sum = 0;
    for (size_t i = 0; i < p->param_count; i++) {
        size_t x = (size_t)e->tables.params[i].store_order,
               first = e->tables.params[x].first_square;
        size_t n = ((size_t)p->params[x].elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
        double param_sum = 0;
        for (size_t b = 0; b < n && p->params[x].trained; b++)
            param_sum += (double)squares[first + b];
        bad = bad || gckpti_is_finite(param_sum) ? bad : &p->params[x];
        sum += param_sum;
    }
    e->update.grad_norm = gckpti_sqrt_double(sum);
    e->update.clip_scale =
        e->update.options.clip > 0 && e->update.grad_norm > (double)e->update.options.clip
            ? (float)((double)e->update.options.clip / e->update.grad_norm)
            : 1;
    return bad;
}

/* Sets the optimiser's constants for update number `step` of parameter q. Running statistics use
 * SGD: w + momentum (g - w) = fma(momentum, g, fma(-momentum, w, w)). */
static void gckpti_set_pass_constants(const gckpt_exec *e, const gckpti_plan_param *param,
                                      const gckpti_param *q, uint64_t step, gckpt_update_pass *pass)
{
    const gckpt_hyper *h = &e->update.options;
    gckpt_update_constants *constants = &pass->rates;
    float lr = h->lr * q->p.lr_scale, beta1 = gckpti_hyper_value(h->beta1, 0.9f),
          beta2 = gckpti_hyper_value(h->beta2, 0.999f);
    pass->optimiser = param->running ? GCKPT_SGD : e->plan->optimiser;
    pass->momentum = gckpti_hyper_value(h->momentum, 0.9f);
    constants->scale = param->running ? 1 : e->update.clip_scale;
    constants->decay =
        param->running ? gckpti_float(param->momentum) : lr * h->weight_decay * q->p.decay_scale;
    constants->rate = param->running ? -constants->decay : lr;
    if (pass->optimiser != GCKPT_ADAMW)
        return;
    constants->beta1 = beta1;
    constants->rest1 = (float)(1 - (double)beta1);
    constants->beta2 = beta2;
    constants->rest2 = (float)(1 - (double)beta2);
    constants->eps = gckpti_hyper_value(h->eps, 1e-8f);
    constants->rate = (float)((double)lr / (1 - gckpti_powi((double)beta1, step)));
    constants->correct2 = (float)(1 / (1 - gckpti_powi((double)beta2, step)));
}

/* Parts of a pass over a parameter. DIVIDES adds up the accumulators of its gradient, divides the
 * sum and computes its square sums; APPLIES passes the quotient to the optimiser. */
enum { GCKPTI_DIVIDES = 1, GCKPTI_APPLIES = 2 };

/* Calls desc.custom_optimiser on the host; if the backend has own memory, with host copies. */
static void gckpti_custom_update(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *call,
                                 const gckpt_update_pass *pass, uint64_t step)
{
    gckpti_param *q = gckpti_param_of(e, ins->id);
    gckpt_update u;
    gckpti_wait_in_flight(e, 0);
    gckpti_pull(e->store, q);
    u.name = q->p.name;
    u.elements = pass->elements;
    u.first = q->p.count < q->p.elements ? q->p.first : 0;
    u.columns = gckpti_last(&q->p.shape);
    u.rows = gckpti_rows(&q->p.shape);
    u.call = call;
    call->workspace =
        GCKPTI_OF(gckpti_backend(e), own_memory)
            ? (float *)(void *)e->blocks.host_scratch + gckpti_round_up((size_t)u.elements, 16)
            : gckpti_arena_f32(e, pass->more[ins->uses - 1]);
    u.values = gckpti_array(q, -1) + (pass->values - gckpti_exec_array(e, q, -1));
    u.gradient = gckpti_host_floats(e, pass->gradient, (size_t)pass->elements);
    memcpy(u.state, q->p.state, sizeof u.state);
    u.clip_scale = e->update.clip_scale;
    u.lr_scale = q->p.lr_scale;
    u.decay_scale = q->p.decay_scale;
    u.step = step;
    u.options = &e->update.options;
    e->desc.custom_optimiser(e->desc.user, &u);
    gckpti_mark_changed(q, GCKPTI_HOST);
    (void)gckpti_sync_param(e, q, 1); /* cannot fail: q has a mirror */
}

/* Runs these parts of a pass over a parameter; `step` is the number of its update. */
GCKPTI_OWN_FRAME static void gckpti_pass_over(gckpt_exec *e, const gckpti_ins *ins, int parts,
                                              uint64_t step)
{
    const gckpti_plan_param *param = &e->plan->params[ins->id];
    gckpti_param *q = gckpti_param_of(e, ins->id);
    int custom =
        GCKPTI_RUNS_BACKENDS && param->trained && e->plan->optimiser == GCKPT_CUSTOM_OPTIMISER;
    gckpt_call c;
    gckpt_update_pass pass;
    gckpti_init_call(e, &c);
    gckpti_init_pass(e, ins, &pass);
    if (!(parts & GCKPTI_DIVIDES)) { /* a quotient that is not written back is computed again */
        pass.adds = 0;
        pass.squares = NULL;
        pass.count = e->update.writes_back ? 0 : pass.count;
    }
    if (parts & GCKPTI_APPLIES && !custom) {
        pass.update = 1;
        for (int i = 0; i < param->slots; i++)
            pass.state[i] = gckpti_exec_array(e, q, i);
        gckpti_set_pass_constants(e, param, q, step, &pass);
        gckpti_mark_changed(q,
                            GCKPTI_OF(gckpti_backend(e), own_memory) ? GCKPTI_MIRROR : GCKPTI_HOST);
    }
    if (!(custom && parts == GCKPTI_APPLIES) && !gckpti_update_in_parts(e, ins, &c, &pass))
        GCKPTI_OF(gckpti_backend(e), update)(&c, &pass);
    if (GCKPTI_RUNS_BACKENDS && custom && parts & GCKPTI_APPLIES)
        gckpti_custom_update(e, ins, &c, &pass, step);
}

/* Returns 1 if the barrier divides all gradients, 0 if each update divides its own. */
static int gckpti_divides_first(const gckpt_exec *e)
{
    return e->update.options.clip > 0 || e->update.all_first ||
           e->step.goal == GCKPTI_GOAL_GRADIENTS;
}

/* Runs an UPDATE. A step without counts, one that only wants gradients, and one that skips since a
 * gradient is not finite, change nothing. */
GCKPTI_FN gckpt_result gckpti_run_update(gckpt_exec *e, const gckpti_ins *ins)
{
    gckpti_param *q = gckpti_param_of(e, ins->id);
    uint64_t step = e->step.number + 1;
    if (!e->update.begun || (e->desc.skip_nonfinite && !gckpti_is_finite(e->update.grad_norm)))
        return GCKPT_OK;
    if (e->plan->params[ins->id].slots) { /* state not used so far begins at 1 */
        step = q->optimiser ? q->updates + 1 : 1;
        q->optimiser = (unsigned char)(e->plan->optimiser + 1);
        q->updates = step;
    }
    gckpti_pass_over(e, ins, GCKPTI_APPLIES | (gckpti_divides_first(e) ? 0 : GCKPTI_DIVIDES), step);
    gckpti_gather_updated(e, q);
    return GCKPT_OK;
}

/* Divides all gradients, then computes norm and clipping scale. */
static gckpt_result gckpti_finish_gradients(gckpt_exec *e)
{
    for (size_t x = 0; x < e->plan->length; x++)
        if (e->plan->ins[x].kind == GCKPT_UPDATE)
            gckpti_pass_over(e, &e->plan->ins[x], GCKPTI_DIVIDES, 0);
    const gckpt_result result = gckpti_notify(e, GCKPTI_ON_GRADIENTS, NULL);
    if (result != GCKPT_OK)
        return result;
    gckpti_total_norm(e); /* waits for the backend */
    return gckpti_wait_backend(e);
}

/* Runs the BARRIER: checks the losses' counts (unless all are known from the feeds), divides all
 * gradients if something needs them, and lets all processes agree. */
GCKPTI_FN gckpt_result gckpti_run_barrier(gckpt_exec *e, const gckpti_ins *ins)
{
    gckpt_result result = gckpti_has_known_counts(e) ? GCKPT_OK : gckpti_check_counts(e);
    (void)ins;
    result = gckpti_defer_error(e, result);
    if (result != GCKPT_OK || !gckpti_loss_count(e))
        return result;
    result = gckpti_agree(e, gckpti_divides_first(e) ? gckpti_finish_gradients(e) : GCKPT_OK);
    e->update.begun = result == GCKPT_OK && e->step.goal != GCKPTI_GOAL_GRADIENTS;
    return result;
}

/* Counts the step. If it was skipped, returns a parameter whose gradient is not finite. */
GCKPTI_FN const gckpti_plan_param *gckpti_count_step(gckpt_exec *e)
{
    const gckpti_plan_param *bad = gckpti_total_norm(e);
    if (e->desc.skip_nonfinite && e->update.begun && bad)
        return bad;
    for (size_t i = 0; i < e->plan->param_count && e->update.begun && GCKPTI_CHECKS_INITIAL; i++)
        gckpti_param_of(e, (int)i)->assigned = 1; /* also frozen parameters */
    e->store->step += e->update.begun;
    return NULL;
}
#endif
