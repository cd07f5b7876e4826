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
    gckpti_init_op_call(e, node, ins->id, gckpti_micro_rows(e), c);
    c->out = gckpti_arena_f32(e, o->out);
    c->saved = gckpti_arena_f32(e, o->saved);
    c->workspace = gckpti_arena_f32(e, o->workspace);
    for (int i = 0; i < node->inputs; i++) {
        const int base = p->nodes[node->in[i]].base;
        gckpti_set_data(&p->nodes[base],
                        o->in[i].value != GCKPTI_NO_OFFSET ? gckpti_arena_ptr(e, o->in[i].value)
                                                           : e->tables.nodes[base].data,
                        &c->in[i]);
    }
}

static void gckpti_run_kernel(const gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *c)
{
    const gckpti_exec_node *kernels = &e->tables.nodes[ins->id];
    gckpt_kernel kernel = ins->kind == GCKPT_FORWARD ? kernels->forward : kernels->backward;
    if (gckpti_run_strips(e, ins, c, kernel))
        return;
    if (GCKPTI_RUNS_DEVICES && !kernel) {
        gckpti_run_on_host(e, ins, c);
        return;
    }
    kernel(c);
}

/* Writes a parameter's values into the arena at `offset`: gathered, decompressed or copied. */
static void gckpti_stage_param(gckpt_exec *e, const gckpti_plan_node *node, size_t offset)
{
    float *to = gckpti_arena_f32(e, offset);
    const gckpti_param *q = gckpti_param_of(e, node->index);
    const gckpt_backend *b = gckpti_backend(e);
    const float *values = gckpti_exec_array(e, q, -1);
    if (gckpti_group_of(e) && gckpti_run_gather(e, q, values, offset))
        return;
    if (gckpti_is_compressed((int)q->p.storage)) {
        GCKPTI_IF_COMPRESSED(gckpti_run_decompress(e, q, values, to));
        return;
    }
    gckpti_copy(b, to, values, (size_t)q->p.elements * sizeof *to);
}

/* Sets the gradient of input i; compensation is in the workspace (IN_OP) or after the gradient. */
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
        GCKPTI_OF(gckpti_backend(e), fill)(c, arg->grad, 0, n);
    if (sums == GCKPTI_SUM_IN_OP) {
        arg->compensation = (float *)c->workspace;
        const size_t bytes = gckpti_round_up((size_t)n * sizeof(float), 64);
        c->workspace = (unsigned char *)c->workspace + bytes;
        GCKPTI_OF(gckpti_backend(e), fill)(c, arg->compensation, 0, n);
    } else if (arg->grad && sums == GCKPTI_SUM_IN_STEP)
        arg->compensation = arg->grad + n;
}

/* Adds up the accumulators of the output's gradient, and sets the gradients of a backward. */
static void gckpti_begin_backward(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                  gckpt_call *c)
{
    const gckpti_plan_node *node = &e->plan->nodes[ins->id];
    float *grad_out = gckpti_arena_f32(e, o->gradient);
    for (int u = 1; u < ins->uses; u++)
        GCKPTI_OF(gckpti_backend(e), add)
    (c, grad_out, gckpti_arena_f32(e, o->addends[u - 1]), gckpti_planned_elements(e->plan, node));
    c->grad_out = grad_out;
    GCKPT_ASSERT(grad_out || node->op->flags & GCKPT_LOSS);
    for (int i = 0; i < node->inputs; i++)
        gckpti_begin_input_grad(e, ins, o, c, i);
}

/* Sets the sum and count to which a loss adds, and the scale of its gradient. */
static void gckpti_set_loss(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    const int term = gckpti_term_of(p, ins->id);
    const int repeated = ins < p->ins + p->body && e->step.prologue_done; /* only in inference */
    if (GCKPTI_RUNS_TRAINING && ins->kind == GCKPT_BACKWARD) {
        c->loss_scale = gckpti_loss_scale(e, term);
        if (p->nodes[ins->id].op->flags & GCKPTI_BACKWARD_LOSS)
            c->loss_sum = &e->losses.totals[term].sum;
    } else if (ins->first && !repeated) {
        c->loss_sum = &e->losses.totals[term].sum;
        c->loss_count = &e->losses.totals[term].count;
    }
}

/* Stages a parameter in the arena, or runs the forward or backward of an op. Its gckpt_call is on
 * the stack only while the op runs. */
GCKPTI_OWN_FRAME static gckpt_result gckpti_run_op(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    const int backward = GCKPTI_RUNS_TRAINING && ins->kind == GCKPT_BACKWARD;
    gckpti_operands o;
    GCKPTI_UNUSED gckpti_compressed param;
    gckpt_call c;
    (void)param;
    if (node->kind == GCKPTI_PARAM) {
        gckpti_stage_param(e, node, p->operands[ins->operands]);
        return GCKPT_OK;
    }
    gckpti_set_ins_call(e, ins, &o, &c);
    if (backward)
        gckpti_begin_backward(e, ins, &o, &c);
    if (gckpti_is_variable(node->op)) /* it has no backward; all other nodes only read `data` */
        c.out = (float *)(uintptr_t)e->tables.nodes[ins->id].data;
    if (p->compressed)
        GCKPTI_IF_COMPRESSED(gckpti_set_compressed(e, node, ins->kind, &c, &param));
    gckpti_mixed_operands(e, ins, &o, &c);
    if (node->op->flags & GCKPT_LOSS)
        gckpti_set_loss(e, ins, &c);
    c.graph = e; /* for gckpti_fused_forward, which runs other nodes */
    gckpti_run_kernel(e, ins, &c);
    for (int i = 0; i < node->inputs && backward; i++) {
        float *total = gckpti_arena_f32(e, o.in[i].total); /* NULL if the gradient is in place */
        const int64_t n = gckpti_elements(&c.in[i].shape);
        if (gckpti_end_mixed_gradient(e, ins, &o, &c, i))
            continue;
        if (total)
            GCKPTI_OF(gckpti_backend(e), add)(&c, total, c.in[i].grad, n);
    }
    gckpti_end_mixed_output(e, ins, &o, &c);
    return GCKPT_OK;
}
