#include "check/internal.h"

#ifndef GCKPT_NO_CHECK
/* ---- measured costs of ops ---- */
enum { GCKPTI_MIN_RUNS = 6, GCKPTI_MAX_RUNS = 32 };

/* The timing of a step, instruction by instruction. */
typedef struct {
    gckpti_batch batch;
    double (*seconds)(void *user);
    void *user;
    double last_time; /* last reading of the clock */
    float *copy;      /* copy of a parameter and its state */
    double *spent;    /* seconds of MAX_RUNS runs of each instruction, then of the step's rest */
    int run;
    gckpt_result result;
} gckpti_timing;

static double gckpti_lap(gckpti_timing *t)
{
    double now = t->seconds(t->user), lap = now - t->last_time;
    t->last_time = now;
    return lap > 0 && lap < 1e9 ? lap : 0;
}

/* Returns where the seconds of instruction x in the present run are stored. */
static double *gckpti_time_spent(const gckpti_timing *t, size_t x)
{
    return &t->spent[x * GCKPTI_MAX_RUNS + (size_t)t->run];
}

/* Copies a parameter's values and state to `copy` before an update; if `restore`, copies back. */
static void gckpti_backup_param(gckpt_store *s, gckpti_param *q, float *copy, int slots,
                                int restore)
{
    size_t n = (size_t)q->p.elements;
    gckpti_pull(s, q);
    for (int i = -1; i < slots; i++, copy += n) {
        float *mine = gckpti_array(q, i);
        memcpy(restore ? mine : copy, restore ? copy : mine, n * sizeof *copy);
    }
    if (restore)
        gckpti_mark_changed(s, q, GCKPTI_HOST);
}

/* Runs a timed step and undoes its changes (on the executor's threads). */
static void gckpti_time_step(void *context)
{
    gckpti_timing *t = (gckpti_timing *)context;
    gckpt_exec *e = t->batch.exec;
    const gckpt_plan *p = e->plan;
    double *rest = gckpti_time_spent(t, p->length), micro;
    gckpt_call c;
    gckpti_lap(t);
    gckpt_result result = gckpti_batch_begin(&t->batch, GCKPTI_GOAL_GRADIENTS);
    gckpti_init_call(e, &c);
    micro = (double)gckpti_count_micro_batches(e, t->batch.rows);
    for (*rest = gckpti_lap(t); result == GCKPT_OK || result == GCKPT_MORE;) {
        result = gckpti_advance(e, &c);
        gckpti_backend(e)->finish(gckpti_backend(e)->context);
        double lap = gckpti_lap(t);
        if (result != GCKPT_MORE)
            break;
        *gckpti_time_spent(t, (size_t)e->step.pc - 1) +=
            e->step.pc > p->body && e->step.pc <= p->epilogue ? lap / micro : lap;
    }
    t->result = result == GCKPT_OK ? gckpti_batch_end(&t->batch, "calibrate", NULL) : result;
    if (t->result != GCKPT_OK)
        return;
    *rest += gckpti_lap(t);
    for (size_t x = 0; x < p->length && p->optimiser != GCKPT_CUSTOM_OPTIMISER; x++) {
        if (p->ins[x].kind != GCKPT_UPDATE)
            continue;
        gckpti_param *q = gckpti_param_of(e, p->ins[x].id);
        int slots = p->params[p->ins[x].id].trained ? p->state_slots : 0;
        unsigned char optimiser = q->optimiser;
        uint64_t updates = q->updates;
        gckpti_backup_param(e->store, q, t->copy, slots, 0);
        gckpti_lap(t);
        gckpti_run_update(e, &p->ins[x], GCKPTI_GRAD_DIVIDED);
        gckpti_backend(e)->finish(gckpti_backend(e)->context);
        *rest += gckpti_lap(t);
        gckpti_backup_param(e->store, q, t->copy, slots, 1);
        q->optimiser = optimiser;
        q->updates = updates;
    }
}

static int gckpti_is_shorter(const void *a, const void *b, const void *context)
{
    (void)context;
    return *(const double *)a < *(const double *)b;
}

static uint64_t gckpti_nanoseconds(double seconds)
{
    double ns = seconds * 1e9 + 0.5;
    return ns < 1 ? 1 : ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}

/* Computes the costs of all tensors from the median seconds of all instructions. */
static void gckpti_fill_costs(const gckpt_plan *p, const double *median, gckpt_cost *costs)
{
    double measured = 0, planned = 0, scale;
    for (size_t x = 0; x < p->length; x++)
        if (p->ins[x].kind < GCKPT_UPDATE) {
            const gckpt_cost *c = &p->info[p->ins[x].id].cost;
            measured += median[x];
            planned += (double)(p->ins[x].kind == GCKPT_FORWARD ? c->forward : c->backward);
        }
    scale = planned > 0 ? measured / planned : 0;
    for (size_t i = 0; i < p->node_count; i++) {
        costs[i].forward = gckpti_nanoseconds((double)p->info[i].cost.forward * scale);
        costs[i].backward = gckpti_nanoseconds((double)p->info[i].cost.backward * scale);
    }
    for (size_t x = 0; x < p->length; x++) {
        const gckpti_ins *ins = &p->ins[x];
        if (ins->kind == GCKPT_FORWARD && ins->first)
            costs[ins->id].forward = gckpti_nanoseconds(median[x]);
        else if (ins->kind == GCKPT_BACKWARD)
            costs[ins->id].backward = gckpti_nanoseconds(median[x]);
    }
    for (size_t i = 0; i < p->node_count && p->fused; i++) { /* divided among ops */
        const gckpti_plan_node *node = &p->nodes[i];
        if (!node->op || !node->data)
            continue;
        const gckpti_fused *b = (const gckpti_fused *)(const void *)(p->words + node->attributes);
        const gckpti_fused_step *step = (const gckpti_fused_step *)(b + 1);
        scale = 1e-9 * (double)costs[i].forward / (double)p->info[i].cost.forward;
        for (int k = 0; k + 1 < b->steps; k++) {
            if (step[k].id < 0)
                continue;
            gckpt_cost *c = &costs[step[k].id];
            c->forward = gckpti_nanoseconds((double)p->info[step[k].id].cost.forward * scale);
            costs[i].forward -= c->forward < costs[i].forward ? c->forward : costs[i].forward;
        }
    }
    for (size_t i = 0; i < p->term_count && p->lowering; i++) { /* for the lowering in the graph */
        const gckpt_cost *built = &p->terms[i].built_cost, *ran = &p->info[p->terms[i].id].cost;
        gckpt_cost *c = &costs[p->terms[i].id];
        if (built->forward == ran->forward && built->backward == ran->backward)
            continue;
        scale = 1e-9 * (double)(c->forward + c->backward) / (double)(ran->forward + ran->backward);
        c->forward = gckpti_nanoseconds((double)built->forward * scale);
        c->backward = gckpti_nanoseconds((double)built->backward * scale);
    }
}

GCKPT_API gckpt_result gckpt_calibrate(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                       int64_t rows, double (*seconds)(void *user), void *user,
                                       gckpt_cost *costs, int cost_count, uint64_t *update)
{
    if (!exec)
        return GCKPT_E_ARG;
    const gckpt_plan *p = exec->plan;
    if (!seconds || !costs || cost_count < 0 || (size_t)cost_count != p->node_count)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "calibrate: needs a clock, and an array for the costs of %z tensors",
                            p->node_count);
    if (p->update_in_backward || p->mode == GCKPT_INFERENCE || rows < 1 || rows % p->rows)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "calibrate: needs a training plan without update_in_backward, and as "
                            "`rows` a multiple of its %I rows",
                            p->rows);
    if (p->ranks > 1)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "calibrate: not for %i ranks: measure a plan of one process, and give "
                            "all ranks the same costs",
                            p->ranks);
    size_t copy_floats = (size_t)gckpti_max_elements(p, 1) * (size_t)(1 + p->state_slots) + 1;
    const size_t steps = p->length + 1, most = GCKPTI_MAX_RUNS;
    gckpti_timing t = { { exec, feeds, count, rows }, seconds, user, 0, NULL, NULL, 0, GCKPT_OK };
    t.copy = (float *)gckpti_new(&exec->memory, copy_floats, sizeof(float));
    t.spent = (double *)gckpti_new(&exec->memory, steps, most * sizeof *t.spent);
    if (!t.copy || !t.spent)
        t.result = gckpti_error(exec, GCKPT_E_MEMORY, "calibrate: no memory for %z floats",
                                copy_floats);
    unsigned debug = exec->desc.debug;
    exec->desc.debug &= ~GCKPT_DEBUG_MEASURE;
    double start = seconds(user);
    for (; t.result == GCKPT_OK && t.run < GCKPTI_MAX_RUNS; t.run++) {
        if (t.run >= GCKPTI_MIN_RUNS && t.last_time - start >= 0.25)
            break;
        gckpti_run_in_team(exec, gckpti_time_step, &t, &t.result);
    }
    exec->desc.debug = debug;
    if (t.result == GCKPT_OK && !(t.last_time > start))
        t.result = gckpti_error(exec, GCKPT_E_DATA, "calibrate: the clock does not advance");
    for (size_t x = 0; x < steps && t.result == GCKPT_OK; x++) { /* run 0 warms up */
        double *runs = &t.spent[x * most + 1];
        gckpti_sort(runs, (size_t)t.run - 1, sizeof *runs, gckpti_is_shorter, NULL);
        t.spent[x] = runs[(t.run - 1) / 2];
    }
    if (t.result == GCKPT_OK) {
        gckpti_fill_costs(p, t.spent, costs);
        if (update)
            *update = gckpti_nanoseconds(t.spent[p->length]);
        gckpti_ok(exec);
    }
    gckpti_delete(&exec->memory, t.spent, steps, most * sizeof *t.spent);
    gckpti_delete(&exec->memory, t.copy, copy_floats, sizeof(float));
    return t.result;
}
#endif
