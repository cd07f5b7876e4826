#include "run/internal.h"
#include "num/num.h"
#include "graph/graph.h"

/* Sets the call of an op's instruction: shapes, attributes, operands. */
static inline void gckpti_set_ins_call(const gckpt_exec *e, const gckpti_ins *ins,
                                       gckpti_operands *o, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    gckpti_operands_of(p->operands, ins, node->inputs, o);
    gckpti_set_op_call(e, node, ins->id, gckpti_micro_rows(e), c);
    c->out = gckpti_arena_f32(e, o->out);
    c->saved = gckpti_arena_f32(e, o->saved);
    c->workspace = gckpti_arena_f32(e, o->workspace);
    for (int i = 0; i < node->inputs; i++) {
        const int base = p->nodes[node->in[i]].base;
        const void *data = o->in[i].value != GCKPTI_NO_OFFSET ? gckpti_arena_ptr(e, o->in[i].value)
                                                              : e->tables.nodes[base].data;
        if (p->nodes[base].rounding & GCKPTI_BF16_VALUE)
            c->in[i].bf16 = (const uint16_t *)data;
        else if (p->nodes[base].type == GCKPT_I32)
            c->in[i].index = (const int32_t *)data;
        else if (p->nodes[base].type == GCKPT_U8)
            c->in[i].bytes = (const uint8_t *)data;
        else
            c->in[i].data = (const float *)data;
    }
}

static void gckpti_run_kernel(const gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *c)
{
    const gckpti_exec_node *kernels = &e->tables.nodes[ins->id];
    const gckpt_op *op = e->plan->nodes[ins->id].op;
    gckpt_kernel kernel = ins->kind == GCKPT_FORWARD ? kernels->forward : kernels->backward;
    if (e->plan->nodes[ins->id].rounding & GCKPTI_IN_STRIPS)
        gckpti_run_strips(e, ins, c, kernel);
    else if (!GCKPTI_RUNS_BACKENDS || kernel)
        kernel(c);
    else
        gckpti_run_on_host(e, ins->kind == GCKPT_FORWARD ? op->forward : op->backward, c);
}

/* Writes a parameter's values into the arena: gathered, dequantised or copied. */
static void gckpti_stage_param(gckpt_exec *e, const gckpti_plan_node *node, float *to,
                               gckpt_call *c)
{
    const gckpti_param *q = gckpti_param_of(e, node->index);
    const gckpt_backend *b = gckpti_backend(e);
    const float *values = gckpti_exec_array(e, q, -1);
    if (gckpti_run_gather(e, q, values, to))
        return;
    if (gckpti_is_quantised((int)q->p.storage))
        gckpti_run_dequantise(e, q, values, to, c);
    else
        b->copy(b->context, to, values, (size_t)q->p.elements * sizeof *to);
}

/* Stages a parameter in the arena, or computes an op. */
static gckpt_result gckpti_run_forward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpt_dequantisation quant;
    if (node->kind == GCKPTI_PARAM) {
        gckpti_stage_param(e, node, gckpti_arena_f32(e, p->operands[ins->operands]), c);
        return GCKPT_OK;
    }
    gckpti_set_ins_call(e, ins, &o, c);
    int repeated = ins < p->ins + p->body && e->step.prologue_done; /* a prologue, by inference */
    int first = ins->first && !repeated;
    int term = node->op->flags & GCKPT_LOSS && first ? gckpti_term_of(p, ins->id) : -1;
    if (gckpti_is_cache(node->op)) /* const for all other nodes */
        c->out = (float *)(uintptr_t)e->tables.nodes[ins->id].data;
    void *out = c->out;
    uint16_t *narrow = node->rounding & GCKPTI_BF16_VALUE ? (uint16_t *)out : NULL;
    if (p->quantised)
        gckpti_set_quant_operand(e, node, GCKPT_FORWARD, c, &quant);
    if (gckpti_is_bf16_plan(p))
        gckpti_mixed_operands(e, ins, &o, c);
    if (term >= 0) {
        c->loss_sum = &gckpti_running_loss(e, term)->sum;
        c->loss_count = &gckpti_running_loss(e, term)->count;
    }
    c->graph = e; /* for gckpti_fused_forward, which runs other nodes */
    gckpti_run_kernel(e, ins, c);
    if (c->out && node->rounding & GCKPTI_ROUNDED)
        gckpti_round_bf16(e, c, gckpti_rng_stream(ins->id, 0), c->out, narrow,
                          gckpti_elements(&c->shape));
    return gckpti_debug(e) & GCKPT_DEBUG_RECOMPUTE ? gckpti_check_recompute(e, ins, c, narrow)
                                                   : GCKPT_OK;
}

/* Returns how the gradient of input i is compensated: GCKPTI_SUM_IN_OP, _IN_STEP or 0. */
static int gckpti_sum_mode(const gckpt_plan *p, const gckpti_plan_node *node, int i)
{
    int in_step = p->accumulates && !node->batch_invariant && p->nodes[node->in[i]].batch_invariant;
    return !(node->compensated >> i & 1) ? 0 : in_step ? GCKPTI_SUM_IN_STEP : GCKPTI_SUM_IN_OP;
}

/* Sets the gradient of input i and its compensation: from the workspace, or after the gradient. */
static void gckpti_begin_input_grad(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                    gckpt_call *c, int i)
{
    const gckpti_plan_node *node = &e->plan->nodes[ins->id];
    gckpt_arg *arg = &c->in[i];
    int64_t n = gckpti_elements(&arg->shape);
    arg->accumulate = (ins->accumulate >> i) & 1;
    arg->grad = gckpti_arena_f32(e, o->in[i].gradient);
    int sums = o->in[i].gradient != GCKPTI_NO_OFFSET ? gckpti_sum_mode(e->plan, node, i) : 0;
    if ((ins->zero >> i) & 1)
        gckpti_backend(e)->fill(c, arg->grad, 0, n);
    if (sums == GCKPTI_SUM_IN_OP) {
        arg->compensation = (float *)c->workspace;
        const size_t bytes = gckpti_round_up((size_t)n * sizeof(float), 64);
        c->workspace = (unsigned char *)c->workspace + bytes;
        gckpti_backend(e)->fill(c, arg->compensation, 0, n);
    } else if (arg->grad && sums == GCKPTI_SUM_IN_STEP)
        arg->compensation = arg->grad + n;
}

/* Finishes the gradient of input i: rounds it, or adds it to the total if it was separate. */
static void gckpti_end_input_grad(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                  gckpt_call *c, int i)
{
    if (!gckpti_is_bf16_plan(e->plan) && o->in[i].total == GCKPTI_NO_OFFSET)
        return;
    const gckpti_plan_node *node = &e->plan->nodes[ins->id];
    const gckpti_plan_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
    int64_t n = gckpti_elements(&c->in[i].shape);
    float *x = c->in[i].grad;
    size_t to = o->in[i].total != GCKPTI_NO_OFFSET ? o->in[i].total : o->in[i].gradient;
    uint16_t *narrow = q->rounding & GCKPTI_BF16_GRADIENT ? gckpti_arena_bf16(e, to) : NULL;
    if (o->in[i].total != GCKPTI_NO_OFFSET && narrow) {
        gckpti_widen(e, c, GCKPT_WIDEN_ADD, narrow, x, n);
    } else if (o->in[i].total != GCKPTI_NO_OFFSET) {
        gckpti_backend(e)->add(c, gckpti_arena_f32(e, to), x, n);
        x = gckpti_arena_f32(e, to);
    }
    if (x && q->rounding & GCKPTI_ROUNDED && (x != c->grad_out || o->in[i].gradient != o->gradient))
        gckpti_round_bf16(e, c, gckpti_rng_stream(ins->id, 1 + i), x, narrow, n);
}

/* Adds up the accumulators of the output's gradient and runs the op's backward. */
static void gckpti_run_backward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpt_dequantisation quant;
    gckpti_set_ins_call(e, ins, &o, c);
    float *grad_out = gckpti_arena_f32(e, o.gradient);
    for (int u = 1; u < ins->uses; u++)
        gckpti_backend(e)->add(c, grad_out, gckpti_arena_f32(e, o.addends[u - 1]),
                               gckpti_planned_elements(p, node));
    c->grad_out = grad_out;
    GCKPT_ASSERT(grad_out || node->op->flags & GCKPT_LOSS);
    for (int i = 0; i < node->inputs; i++)
        gckpti_begin_input_grad(e, ins, &o, c, i);
    if (p->quantised)
        gckpti_set_quant_operand(e, node, GCKPT_BACKWARD, c, &quant);
    if (gckpti_is_bf16_plan(p))
        gckpti_mixed_operands(e, ins, &o, c);
    if (node->op->flags & GCKPT_LOSS) {
        int term = gckpti_term_of(p, ins->id);
        c->loss_scale = gckpti_loss_scale(e, term);
        const int sums = node->op->flags & GCKPTI_BACKWARD_LOSS;
        c->loss_sum = sums ? &gckpti_running_loss(e, term)->sum : NULL;
    }
    gckpti_run_kernel(e, ins, c);
    for (int i = 0; i < node->inputs; i++)
        gckpti_end_input_grad(e, ins, &o, c, i);
}

GCKPTI_FN void gckpti_clear_accumulators(gckpt_exec *e, size_t end)
{
    const gckpt_plan *p = e->plan;
    for (size_t x = 0; x < end && p->accumulates; x++) {
        const gckpti_ins *ins = &p->ins[x];
        const gckpti_plan_node *node = &p->nodes[gckpti_ins_node(p, ins)];
        gckpti_operands o;
        gckpti_operands_of(p->operands, ins, node->inputs, &o);
        for (int i = 0; ins->kind == GCKPT_BACKWARD && i < node->inputs; i++) {
            const gckpti_plan_node *q = &p->nodes[node->in[i]];
            float *sum = gckpti_arena_f32(e, o.in[i].gradient);
            size_t bytes = 4 * (size_t)gckpti_planned_elements(p, q);
            bytes *= gckpti_sum_mode(p, node, i) == GCKPTI_SUM_IN_STEP ? 2u : 1u;
            if (sum && q->batch_invariant)
                gckpti_fill(e, sum, 0, bytes);
        }
    }
}

GCKPTI_FN gckpt_result gckpti_next_rows(gckpt_exec *e)
{
    if (e->step.row == e->step.row_end)
        return GCKPT_OK;
    e->step.row += gckpti_micro_rows(e);
    e->step.prologue_done = 1;
    if (e->step.row == e->step.row_end)
        return e->step.state == GCKPTI_STREAMING ? GCKPT_MORE : GCKPT_OK;
    e->step.pc = gckpti_is_inference(e->plan) ? 0 : e->plan->body;
    gckpti_feed_rows(e);
    return GCKPT_OK;
}

static gckpt_result gckpti_report_progress(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    if (!e->desc.progress)
        return GCKPT_OK;
    gckpt_progress progress = {
        e->step.pc,      (int)p->length,        e->step.row,
        e->step.row_end, (gckpt_kind)ins->kind, gckpti_planned_name(p, gckpti_ins_node(p, ins))
    };
    if (!e->desc.progress(e->desc.user, &progress) || e->update.begun)
        return GCKPT_OK;
    gckpti_error(e, GCKPT_CANCELLED,
                 "cancelled by the progress callback before instruction %i; nothing was changed",
                 e->step.pc);
    return gckpti_defer_error(e, GCKPT_CANCELLED);
}

/* With GCKPT_SMALL c is NULL, and a call is on the stack only while an op runs. */
GCKPTI_OWN_FRAME static gckpt_result gckpti_run_op(gckpt_exec *e, const gckpti_ins *ins,
                                                   gckpt_call *c)
{
    gckpt_call local_call;
    c = GCKPTI_IS_SMALL ? &local_call : c;
    if (!GCKPTI_RUNS_TRAINING || ins->kind == GCKPT_FORWARD)
        return gckpti_run_forward(e, ins, c);
    gckpti_run_backward(e, ins, c);
    return GCKPT_OK;
}

static gckpt_result gckpti_run_instruction(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const unsigned read = gckpti_nonfinite_kinds(e, ins);
    gckpt_result result = GCKPT_OK;
    if (ins->kind <= GCKPT_BACKWARD)
        result = gckpti_run_op(e, ins, GCKPTI_IS_SMALL ? NULL : c);
    else if (ins->kind == GCKPT_UPDATE)
        result = gckpti_run_checked_update(e, ins);
    else if (ins->kind == GCKPT_REDUCE)
        gckpti_run_reduce(e, ins);
    else if (GCKPTI_RUNS_BACKENDS)
        result = gckpti_run_copies(e, ins);
    return result == GCKPT_OK ? gckpti_check_finite(e, ins, read) : result;
}

/* What a run does next. */
typedef enum {
    GCKPTI_ACTION_STOP,     /* at the goal or the end of the rows so far; cancelled; an error */
    GCKPTI_ACTION_REPLAYED, /* the backend has replayed a micro-batch, or a part */
    GCKPTI_ACTION_SKIP,     /* an instruction that must not run here, or no more */
    GCKPTI_ACTION_RUN       /* an instruction */
} gckpti_action;

/* Returns the next action; *result is that of the run so far. */
static gckpti_action gckpti_next_action(gckpt_exec *e, gckpt_result *result)
{
    const gckpt_plan *p = e->plan;
    if (GCKPTI_RUNS_TRAINING && !e->update.grads_cleared) /* here a team does it */
        gckpti_clear_accumulators(e, p->length);
    e->update.grads_cleared = 1;
    const int all = e->step.pc == p->body || e->step.pc == p->epilogue; /* may go back */
    *result = gckpti_defer_error(e, gckpti_wait_copies(e, all ? INT32_MAX : e->step.pc, GCKPT_OK));
    if (e->step.pc == p->epilogue && *result == GCKPT_OK)
        *result = gckpti_end_micro_batch(e);
    if (e->step.pc >= (int)p->length || *result != GCKPT_OK) {
        *result = *result == GCKPT_MORE ? GCKPT_OK : *result;
        return GCKPTI_ACTION_STOP;
    }
    const gckpti_ins *ins = &p->ins[e->step.pc];
    if (gckpti_replay(e))
        return GCKPTI_ACTION_REPLAYED;
    const int skipped = gckpti_sync_then_skips(e, ins);
    if (GCKPTI_RUNS_TRAINING && ins->kind == GCKPT_UPDATE) {
        *result = gckpti_defer_error(e, gckpti_finalize_counts(e));
        const int counts = *result == GCKPT_OK && gckpti_loss_count(e) != 0;
        if (counts && e->step.goal == GCKPTI_GOAL_GRADIENTS) {
            e->step.pc++;
            return GCKPTI_ACTION_STOP;
        }
        if (!counts || e->step.goal == GCKPTI_GOAL_NO_UPDATES)
            return GCKPTI_ACTION_SKIP;
    }
    if (skipped)
        return GCKPTI_ACTION_SKIP;
    *result = gckpti_report_progress(e, ins);
    return *result != GCKPT_OK    ? GCKPTI_ACTION_STOP
           : gckpti_sync_then_skips(e, ins) ? GCKPTI_ACTION_SKIP
                                  : GCKPTI_ACTION_RUN;
}

GCKPTI_FN gckpt_result gckpti_advance(gckpt_exec *e, gckpt_call *c)
{
    gckpt_result result = GCKPT_OK;
    switch (gckpti_next_action(e, &result)) {
    case GCKPTI_ACTION_STOP:
        e->step.state = result == GCKPT_OK ? e->step.state : GCKPTI_IDLE;
        return result;
    case GCKPTI_ACTION_REPLAYED: gckpti_collect_rows(e); return GCKPT_MORE;
    case GCKPTI_ACTION_RUN: result = gckpti_run_instruction(e, &e->plan->ins[e->step.pc], c); break;
    case GCKPTI_ACTION_SKIP: break;
    }
    if (gckpti_debug(e) & GCKPT_DEBUG_POISON)
        result = gckpti_wait_copies(e, e->step.pc + 1, result);
    gckpti_poison_dead(e);
    e->step.pc++;
    if (gckpti_is_capture_end(e) || result != GCKPT_OK)
        gckpti_end_capture(e);
    if (result == GCKPT_OK)
        gckpti_collect_rows(e);
    result = gckpti_defer_error(e, result);
    if (result != GCKPT_OK)
        e->step.state = GCKPTI_IDLE;
    return result == GCKPT_OK ? GCKPT_MORE : result;
}

typedef struct {
    gckpt_exec *e;
    int64_t instructions; /* at most */
    gckpt_result result;
} gckpti_run_context;

static void gckpti_run_instructions(void *context)
{
    gckpti_run_context *run = (gckpti_run_context *)context;
    gckpt_call c;
    if (!GCKPTI_IS_SMALL)
        gckpti_init_call(run->e, &c);
    for (int64_t i = 0; i < run->instructions && run->result == GCKPT_MORE; i++)
        run->result = gckpti_advance(run->e, &c);
}

GCKPTI_FN gckpt_result gckpti_run_in_team(gckpt_exec *e, void (*job)(void *context), void *context,
                                          gckpt_result *result)
{
    gckpti_with_team(&e->device.runner, e->device.team, job, context);
    gckpti_enable_capture(e, 0);
    gckpt_result waited = gckpti_wait_copies(e, INT32_MAX, *result);
    waited = waited == *result ? GCKPT_OK : gckpti_defer_error(e, waited);
    if (waited == GCKPT_OK)
        return *result;
    e->step.state = GCKPTI_IDLE;
    return *result = waited;
}

GCKPTI_FN gckpt_result gckpti_run(gckpt_exec *e, int64_t instructions)
{
    gckpti_run_context run = { e, instructions, GCKPT_MORE };
    if (gckpti_enter_call(e) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (e->step.quantise_count != e->store->quantise_count) {
        gckpti_error(e, GCKPT_E_ARG,
                     "step: parameters were quantised during it, which ended it; begin it again");
        gckpt_result result = gckpti_defer_error(e, GCKPT_E_ARG);
        if (result != GCKPT_OK) {
            e->step.state = GCKPTI_IDLE;
            e->device.in_call = 0;
            return result;
        }
    }
    gckpti_enable_capture(e, instructions == INT64_MAX);
    gckpti_run_in_team(e, gckpti_run_instructions, &run, &run.result);
    e->device.in_call = 0;
    return run.result;
}
