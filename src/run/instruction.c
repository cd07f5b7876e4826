#include "run/own.h"
#include "num/num.h"
#include "graph/graph.h"

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
GCKPTI_FN gckpt_result gckpti_run_forward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpt_unpacking stored;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    if (node->kind == GCKPTI_PARAM) {
        gckpti_run_stage(e, node, gckpti_at(e, o.out), c);
        return GCKPT_OK;
    }
    int prologue = ins < p->list + p->body; /* which inference repeats */
    const gckpti_crew *g = gckpti_crew_of(e);
    int first = ins->first && !(prologue && (g ? g->again : e->step.row > 0));
    int term = node->op->flags & GCKPT_LOSS && first ? gckpti_term_of(p, ins->id) : -1;
    void *out = gckpti_is_cache(node->op) ? gckpti_cache_at(e, ins->id) : gckpti_at_any(e, o.out);
    uint16_t *narrow = node->rounding & GCKPTI_NARROW_VALUE ? (uint16_t *)out : NULL;
    gckpti_call_next(e, node, ins->id, gckpti_micro_rows(e), c);
    c->out = (float *)out;
    c->aux = gckpti_at(e, o.aux);
    c->work = gckpti_at(e, o.work);
    for (int i = 0; i < node->inputs; i++)
        gckpti_call_value(e, node, i, o.in[i].value, &c->in[i]);
    if (p->packed)
        gckpti_call_stored(e, node, c, &stored);
    if (gckpti_plan_rounds(p))
        gckpti_mixed_operands(e, ins, &o, c);
    if (term >= 0) {
        c->loss_sum = &gckpti_loss_at(e, term)->sum;
        c->loss_count = &gckpti_loss_at(e, term)->count;
    }
    gckpti_run_kernel(e, ins, c);
    if (c->out && node->rounding & GCKPTI_ROUNDED)
        gckpti_round(e, c, gckpti_stream(ins->id, 0), c->out, narrow, gckpti_elements(&c->shape));
    return gckpti_debug(e) & GCKPT_DEBUG_RECOMPUTE ? gckpti_compare(e, ins, c, narrow) : GCKPT_OK;
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
        arg->low = (float *)c->work;
        c->work = (unsigned char *)c->work + gckpti_round_up((size_t)n * sizeof(float), 64);
        gckpti_on(e)->fill(c, arg->low, 0, n);
    } else if (arg->grad && sums == GCKPTI_SUM_ON)
        arg->low = arg->grad + n;
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
GCKPTI_FN void gckpti_run_backward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpti_call_next(e, node, ins->id, gckpti_micro_rows(e), c);
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    c->out = gckpti_at(e, o.out);
    c->aux = gckpti_at(e, o.aux);
    c->work = gckpti_at(e, o.work);
    float *grad_out = gckpti_at(e, o.gradient);
    for (int u = 1; u < ins->uses; u++)
        gckpti_on(e)->add(c, grad_out, gckpti_at(e, o.more[u - 1]), gckpti_elements(&node->shape));
    c->grad_out = grad_out;
    GCKPT_ASSERT(grad_out || node->op->flags & GCKPT_LOSS);
    for (int i = 0; i < node->inputs; i++) {
        gckpti_call_value(e, node, i, o.in[i].value, &c->in[i]);
        gckpti_gradient_start(e, ins, &o, c, i);
    }
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
