#include "run/own.h"
#include "num/num.h"
#include "graph/graph.h"

/* ---- an op, forward and backward ---- */
/* The call of an op's instruction: shapes and attributes, its operands, and where they are; values
 * in the arena, where they have been brought there, else a leaf's. */
static inline void gckpti_call_of(const gckpt_exec *e, const gckpti_ins *ins, gckpti_operands *o,
                                  gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    gckpti_operands_of(p->operands, ins, node->inputs, o);
    gckpti_call_next(e, node, ins->id, gckpti_micro_rows(e), c);
    c->out = gckpti_at(e, o->out);
    c->saved = gckpti_at(e, o->aux);
    c->workspace = gckpti_at(e, o->work);
    for (int i = 0; i < node->inputs; i++) {
        const int base = p->nodes[node->in[i]].base;
        const void *data = o->in[i].value != GCKPTI_NONE ? gckpti_at_any(e, o->in[i].value)
                                                         : e->bound.nodes[base].data;
        if (p->nodes[base].rounding & GCKPTI_NARROW_VALUE)
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
    const gckpti_exec_node *n = &e->bound.nodes[ins->id];
    const gckpt_op *op = e->plan->nodes[ins->id].op;
    gckpt_kernel kernel = ins->kind == GCKPT_FORWARD ? n->forward : n->backward;
    if (e->plan->nodes[ins->id].rounding & GCKPTI_PORTIONS)
        gckpti_run_portions(e, ins, c, kernel);
    else if (!GCKPTI_RUNS_BACKENDS || kernel)
        kernel(c);
    else
        gckpti_run_on_host(e, ins->kind == GCKPT_FORWARD ? op->forward : op->backward, c);
}

/* A parameter's version in the arena: a copy, or what packed values stand for. */
static void gckpti_run_stage(gckpt_exec *e, const gckpti_node *node, float *to, gckpt_call *c)
{
    const gckpti_param *q = gckpti_param_of(e, node->index);
    const gckpt_backend *b = gckpti_on(e);
    const float *here = gckpti_values_here(e, q, -1);
    if (gckpti_run_gather(e, q, here, to))
        return;
    if (gckpti_is_packed((int)q->p.storage))
        gckpti_run_unpack(e, q, here, to, c);
    else
        b->copy(b->context, to, here, (size_t)q->p.elements * sizeof *to);
}

/* A parameter comes into the arena, or an op is computed. */
static gckpt_result gckpti_run_forward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpt_dequantisation stored;
    if (node->kind == GCKPTI_PARAM) {
        gckpti_run_stage(e, node, gckpti_at(e, p->operands[ins->operands]), c);
        return GCKPT_OK;
    }
    gckpti_call_of(e, ins, &o, c);
    int prologue = ins < p->list + p->body; /* which inference repeats */
    int first = ins->first && !(prologue && e->step.again);
    int term = node->op->flags & GCKPT_LOSS && first ? gckpti_term_of(p, ins->id) : -1;
    if (gckpti_is_cache(node->op)) /* data are const, since leaves' are */
        c->out = (float *)(uintptr_t)e->bound.nodes[ins->id].data;
    void *out = c->out;
    uint16_t *narrow = node->rounding & GCKPTI_NARROW_VALUE ? (uint16_t *)out : NULL;
    if (p->packed)
        gckpti_call_stored(e, node, GCKPT_FORWARD, c, &stored);
    if (gckpti_plan_rounds(p))
        gckpti_mixed_operands(e, ins, &o, c);
    if (term >= 0) {
        c->loss_sum = &gckpti_loss_at(e, term)->sum;
        c->loss_count = &gckpti_loss_at(e, term)->count;
    }
    c->graph = e; /* of bands, which run others */
    gckpti_run_kernel(e, ins, c);
    if (c->out && node->rounding & GCKPTI_ROUNDED)
        gckpti_round(e, c, gckpti_stream(ins->id, 0), c->out, narrow, gckpti_elements(&c->shape));
    return gckpti_debug(e) & GCKPT_DEBUG_RECOMPUTE ? gckpti_compare(e, ins, c, narrow) : GCKPT_OK;
}

/* Of the gradient of input i: GCKPTI_SUM_HERE, _ON or 0. */
static int gckpti_sums_of(const gckpt_plan *p, const gckpti_node *node, int i)
{
    int on = p->looped && !node->batchless && p->nodes[node->in[i]].batchless;
    return !(node->sums >> i & 1) ? 0 : on ? GCKPTI_SUM_ON : GCKPTI_SUM_HERE;
}

/* Where the gradient of input i goes, and its low part: the next of the workspace, or behind it. */
static void gckpti_gradient_start(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                  gckpt_call *c, int i)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    gckpt_arg *arg = &c->in[i];
    int64_t n = gckpti_elements(&arg->shape);
    arg->accumulate = (ins->accumulate >> i) & 1;
    arg->grad = gckpti_at(e, o->in[i].gradient);
    int sums = o->in[i].gradient != GCKPTI_NONE ? gckpti_sums_of(e->plan, node, i) : 0;
    if ((ins->zero >> i) & 1)
        gckpti_on(e)->fill(c, arg->grad, 0, n);
    if (sums == GCKPTI_SUM_HERE) {
        arg->compensation = (float *)c->workspace;
        c->workspace = (unsigned char *)c->workspace + gckpti_round_up((size_t)n * sizeof(float), 64);
        gckpti_on(e)->fill(c, arg->compensation, 0, n);
    } else if (arg->grad && sums == GCKPTI_SUM_ON)
        arg->compensation = arg->grad + n;
}

/* What remains to do with it: rounding, and adding what was computed apart. */
static void gckpti_gradient_end(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                gckpt_call *c, int i)
{
    if (!gckpti_plan_rounds(e->plan) && o->in[i].total == GCKPTI_NONE)
        return;
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const gckpti_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
    int64_t n = gckpti_elements(&c->in[i].shape);
    float *x = c->in[i].grad;
    size_t to = o->in[i].total != GCKPTI_NONE ? o->in[i].total : o->in[i].gradient;
    uint16_t *narrow = q->rounding & GCKPTI_NARROW_GRADIENT ? gckpti_at_bf16(e, to) : NULL;
    if (o->in[i].total != GCKPTI_NONE && narrow) {
        gckpti_widen(e, c, GCKPT_WIDEN_ADD, narrow, x, n);
    } else if (o->in[i].total != GCKPTI_NONE) {
        gckpti_on(e)->add(c, gckpti_at(e, to), x, n);
        x = gckpti_at(e, to);
    }
    if (x && q->rounding & GCKPTI_ROUNDED && (x != c->grad_out || o->in[i].gradient != o->gradient))
        gckpti_round(e, c, gckpti_stream(ins->id, 1 + i), x, narrow, n);
}

/* Sends the gradient of an op's output, its accumulators added up, on to its inputs. */
static void gckpti_run_backward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpt_dequantisation stored;
    gckpti_call_of(e, ins, &o, c);
    float *grad_out = gckpti_at(e, o.gradient);
    for (int u = 1; u < ins->uses; u++)
        gckpti_on(e)->add(c, grad_out, gckpti_at(e, o.more[u - 1]),
                          gckpti_planned_elements(p, node));
    c->grad_out = grad_out;
    GCKPT_ASSERT(grad_out || node->op->flags & GCKPT_LOSS);
    for (int i = 0; i < node->inputs; i++)
        gckpti_gradient_start(e, ins, &o, c, i);
    if (p->packed)
        gckpti_call_stored(e, node, GCKPT_BACKWARD, c, &stored);
    if (gckpti_plan_rounds(p))
        gckpti_mixed_operands(e, ins, &o, c);
    if (node->op->flags & GCKPT_LOSS) {
        int term = gckpti_term_of(p, ins->id);
        c->loss_scale = gckpti_loss_scale(e, term);
        c->loss_sum = node->op->flags & GCKPTI_LATE ? &gckpti_loss_at(e, term)->sum : NULL;
    }
    gckpti_run_kernel(e, ins, c);
    for (int i = 0; i < node->inputs; i++)
        gckpti_gradient_end(e, ins, &o, c, i);
}

/* ---- through the list ---- */
GCKPTI_FN void gckpti_clear_accumulators(gckpt_exec *e, size_t end)
{
    const gckpt_plan *p = e->plan;
    for (size_t x = 0; x < end && p->looped; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_node *node = &p->nodes[gckpti_ins_tensor(p, ins)];
        gckpti_operands o;
        gckpti_operands_of(p->operands, ins, node->inputs, &o);
        for (int i = 0; ins->kind == GCKPT_BACKWARD && i < node->inputs; i++) {
            const gckpti_node *q = &p->nodes[node->in[i]];
            float *sum = gckpti_at(e, o.in[i].gradient);
            int64_t n = gckpti_planned_elements(p, q);
            if (sum && q->batchless)
                gckpti_fill(e, sum, 0,
                            4 * (size_t)(gckpti_sums_of(p, node, i) == GCKPTI_SUM_ON ? 2 * n : n));
        }
    }
}

GCKPTI_FN gckpt_result gckpti_next_rows(gckpt_exec *e)
{
    if (e->step.row == e->step.row_end)
        return GCKPT_OK;
    e->step.row += gckpti_micro_rows(e);
    e->step.again = 1;
    if (e->step.row == e->step.row_end)
        return e->step.state == GCKPTI_STREAMING ? GCKPT_MORE : GCKPT_OK;
    e->step.pc = gckpti_infers(e->plan) ? 0 : e->plan->body;
    gckpti_feed_rows(e);
    return GCKPT_OK;
}

/* The user's callback may cancel the step. */
static gckpt_result gckpti_ask(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    if (!e->desc.progress)
        return GCKPT_OK;
    gckpt_progress progress = {
        e->step.pc,      (int)p->length,        e->step.row,
        e->step.row_end, (gckpt_kind)ins->kind, gckpti_node_name(p, gckpti_ins_tensor(p, ins))
    };
    if (!e->desc.progress(e->desc.user, &progress) || e->update.begun)
        return GCKPT_OK;
    return gckpti_drain(e, gckpti_error(e, GCKPT_CANCELLED,
                                        "cancelled by the progress callback before instruction "
                                        "%i; nothing was changed",
                                        e->step.pc));
}

/* GCKPT_SMALL: a call is on the stack only while an op runs (c is NULL), not beneath an update,
 * which has one of its own. */
GCKPTI_APART static gckpt_result gckpti_run_op(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    gckpt_call own;
    c = GCKPTI_LEAN ? &own : c;
    if (!GCKPTI_RUNS_TRAINING || ins->kind == GCKPT_FORWARD)
        return gckpti_run_forward(e, ins, c);
    gckpti_run_backward(e, ins, c);
    return GCKPT_OK;
}

static gckpt_result gckpti_run_instruction(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const unsigned read = gckpti_kinds_read(e, ins);
    gckpt_result result = GCKPT_OK;
    if (ins->kind <= GCKPT_BACKWARD)
        result = gckpti_run_op(e, ins, GCKPTI_LEAN ? NULL : c);
    else if (ins->kind == GCKPT_UPDATE)
        result = gckpti_run_one_update(e, ins);
    else if (ins->kind == GCKPT_REDUCE)
        gckpti_run_reduce(e, ins);
    else if (GCKPTI_RUNS_BACKENDS)
        result = gckpti_run_copies(e, ins);
    return result == GCKPT_OK ? gckpti_check_finite(e, ins, read) : result;
}

/* What a run does next. */
typedef enum {
    GCKPTI_THEN_STOPS, /* at its goal, at the end of the rows at hand, cancelled, or by an error */
    GCKPTI_THEN_REPEATED, /* a micro-batch, which the backend has done by now */
    GCKPTI_THEN_PASSES,   /* an instruction that is not to be run here, or not any more */
    GCKPTI_THEN_RUNS      /* the instruction */
} gckpti_then;

/* The move from where e stands; in *result what the run has come to. */
static gckpti_then gckpti_what_next(gckpt_exec *e, gckpt_result *result)
{
    const gckpt_plan *p = e->plan;
    if (GCKPTI_RUNS_TRAINING && !e->update.cleared) /* here, where a team can do it */
        gckpti_clear_accumulators(e, p->length);
    e->update.cleared = 1;
    const int anew = e->step.pc == p->body || e->step.pc == p->epilogue; /* what comes next */
    *result = gckpti_drain(e, gckpti_join(e, anew ? INT32_MAX : e->step.pc, GCKPT_OK));
    if (e->step.pc == p->epilogue && *result == GCKPT_OK)
        *result = gckpti_next_round(e);
    if (e->step.pc >= (int)p->length || *result != GCKPT_OK) {
        *result = *result == GCKPT_MORE ? GCKPT_OK : *result;
        return GCKPTI_THEN_STOPS;
    }
    const gckpti_ins *ins = &p->list[e->step.pc];
    if (gckpti_repeat(e))
        return GCKPTI_THEN_REPEATED;
    const int skipped = gckpti_skips(e, ins);
    if (GCKPTI_RUNS_TRAINING && ins->kind == GCKPT_UPDATE) {
        *result = gckpti_drain(e, gckpti_settle_counts(e));
        const int counts = *result == GCKPT_OK && gckpti_count(e) != 0;
        if (counts && e->step.goal == GCKPTI_GRADIENTS) {
            e->step.pc++;
            return GCKPTI_THEN_STOPS;
        }
        if (!counts || e->step.goal == GCKPTI_NO_UPDATES)
            return GCKPTI_THEN_PASSES;
    }
    if (skipped)
        return GCKPTI_THEN_PASSES;
    *result = gckpti_ask(e, ins);
    return *result != GCKPT_OK    ? GCKPTI_THEN_STOPS
           : gckpti_skips(e, ins) ? GCKPTI_THEN_PASSES
                                  : GCKPTI_THEN_RUNS;
}

GCKPTI_FN gckpt_result gckpti_advance(gckpt_exec *e, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    gckpt_result result = GCKPT_OK;
    switch (gckpti_what_next(e, &result)) {
    case GCKPTI_THEN_STOPS:
        e->step.state = result == GCKPT_OK ? e->step.state : GCKPTI_IDLE;
        return result;
    case GCKPTI_THEN_REPEATED: gckpti_collect_rows(e); return GCKPT_MORE;
    case GCKPTI_THEN_RUNS: result = gckpti_run_instruction(e, &p->list[e->step.pc], c); break;
    case GCKPTI_THEN_PASSES: break;
    }
    if (gckpti_debug(e) & GCKPT_DEBUG_POISON)
        result = gckpti_join(e, e->step.pc + 1, result);
    gckpti_paint_dead(e);
    e->step.pc++;
    if (gckpti_recording_ends(e) || result != GCKPT_OK)
        gckpti_recorded(e);
    if (result == GCKPT_OK)
        gckpti_collect_rows(e);
    result = gckpti_drain(e, result);
    if (result != GCKPT_OK)
        e->step.state = GCKPTI_IDLE;
    return result == GCKPT_OK ? GCKPT_MORE : result;
}

typedef struct {
    gckpt_exec *e;
    int64_t instructions; /* at most */
    gckpt_result result;
} gckpti_running;

static void gckpti_run_here(void *context)
{
    gckpti_running *r = (gckpti_running *)context;
    gckpt_call c;
    if (!GCKPTI_LEAN)
        gckpti_bare_call(r->e, &c);
    for (int64_t i = 0; i < r->instructions && r->result == GCKPT_MORE; i++)
        r->result = gckpti_advance(r->e, &c);
}

GCKPTI_FN gckpt_result gckpti_run_in_team(gckpt_exec *e, void (*job)(void *context), void *context,
                                          gckpt_result *result)
{
    gckpti_with_team(&e->on.runner, e->on.team, job, context);
    gckpti_recording_ask(e, 0);
    /* what comes next may be another executor's, in the same arena */
    gckpt_result joined = gckpti_join(e, INT32_MAX, *result);
    joined = joined == *result ? GCKPT_OK : gckpti_drain(e, joined);
    if (joined == GCKPT_OK)
        return *result;
    e->step.state = GCKPTI_IDLE;
    return *result = joined;
}

GCKPTI_FN gckpt_result gckpti_run(gckpt_exec *e, int64_t instructions)
{
    gckpti_running r = { e, instructions, GCKPT_MORE };
    if (gckpti_claim(e) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (e->step.packs != e->store->packs) {
        gckpt_result result = gckpti_drain(
            e, gckpti_error(e, GCKPT_E_ARG,
                            "step: parameters were packed within it; it is over, begin it anew"));
        if (result != GCKPT_OK) {
            e->step.state = GCKPTI_IDLE;
            e->on.entered = 0;
            return result;
        }
    }
    gckpti_recording_ask(e, instructions == INT64_MAX);
    gckpti_run_in_team(e, gckpti_run_here, &r, &r.result);
    e->on.entered = 0;
    return r.result;
}
