#ifndef GCKPT_SMALL
#include "linear_loss/linear_loss.h"
#include "plan/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- the model: which tensors get gradients, bytes and cost of ops, nodes and their edges ---- */
/* Allocates the arrays of a planner of p->n tensors. Returns 0 if it is out of memory. */
static int gckpti_model_memory(gckpti_planner *p)
{
    gckpti_scratch *s = &p->scratch;
    size_t n = (size_t)p->n, nodes = 0;
    for (size_t i = 0; i < n; i++)
        nodes += p->g->tensors[i]->kind == GCKPTI_OP || gckpti_is_staged(p, p->g->tensors[i]);
    *s = gckpti_scratch_new(p->memory, &p->failed);
    p->tensors =
        (const gckpt_tensor **)gckpti_scratch_copy(s, p->g->tensors, n, sizeof *p->tensors);
    p->active = (unsigned char *)gckpti_scratch_alloc(s, n, 1);
    p->rounding = (unsigned char *)gckpti_scratch_alloc(s, n, 1);
    p->workspace_forward = (size_t *)gckpti_scratch_alloc(s, n, sizeof(size_t));
    p->workspace_backward = (size_t *)gckpti_scratch_alloc(s, n, sizeof(size_t));
    p->cost = (gckpt_cost *)gckpti_scratch_alloc(s, n, sizeof *p->cost);
    p->model_cost = (gckpt_cost *)gckpti_scratch_alloc(s, n, sizeof *p->model_cost);
    p->node = (gckpti_node *)gckpti_scratch_alloc(s, nodes, sizeof *p->node);
    p->node_of = (int *)gckpti_scratch_alloc(s, n, sizeof(int));
    p->backward = (int *)gckpti_scratch_alloc(s, nodes, sizeof(int));
    p->first_use = (int *)gckpti_scratch_alloc(s, n, sizeof(int));
    p->total = (int *)gckpti_scratch_alloc(s, n, sizeof(int));
    p->state = (gckpti_node_state *)gckpti_scratch_alloc(s, nodes, sizeof *p->state);
    p->queue = (int *)gckpti_scratch_alloc(s, nodes, sizeof(int));
    p->computed = (unsigned char *)gckpti_scratch_alloc(s, nodes, 1);
    return !p->failed;
}

/* Finds which tensors get a gradient: a loss depends on them, and they are, or depend on, a
 * trainable parameter or a tensor with a fetched gradient. A backward runs if an input gets one. */
GCKPTI_FN void gckpti_find_active(gckpti_planner *p)
{
    const gckpt_plan_desc *d = p->desc;
    unsigned char *reach = (unsigned char *)gckpti_scratch_alloc(&p->scratch, (size_t)p->n, 1);
    memset(p->active, 0, (size_t)p->n);
    for (int i = 0; i < p->term_count && reach; i++)
        reach[p->terms[i].loss->id] = 1;
    for (int i = p->n; i-- > 0 && reach;) {
        const gckpt_tensor *t = p->tensors[i];
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++)
            if (reach[i] && t->op->backward)
                reach[t->in[k]->base->id] = 1;
    }
    for (int i = 0; i < d->fetch.count && reach && !p->inference; i++) {
        const gckpt_tensor *t = d->fetch.specs[i].tensor;
        if (t && t->graph == p->g && d->fetch.specs[i].gradient && t->type == GCKPT_F32)
            p->active[t->base->id] = reach[t->base->id] ? GCKPTI_HAS_GRADIENT : 0;
    }
    for (int i = 0; i < p->n && reach; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind == GCKPTI_PARAM && !p->inference && !p->g->store->params[t->index].p.frozen)
            p->active[i] = reach[i] ? GCKPTI_HAS_GRADIENT : 0;
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++)
            if (reach[i] && t->op->backward && p->active[t->in[k]->base->id])
                p->active[i] = GCKPTI_HAS_GRADIENT | GCKPTI_HAS_BACKWARD;
    }
}

/* Returns the cost of op t by the roofline model (Williams 2009): the greater of flops and 10 x
 * bytes moved, plus the overhead of an instruction (about 100 ns where a flop is 7 ps). Costs are
 * integers, so that a plan is the same on every machine. A backward does the forward's flops once
 * or twice (as a matmul does), or as many as the op says, and moves its inputs and outputs. */
static gckpt_cost gckpti_model_cost(const gckpti_planner *p, const gckpt_tensor *t,
                                    gckpt_call *call)
{
    uint64_t flops = t->op->flops ? t->op->flops(call) : (uint64_t)gckpti_elements(&t->shape);
    uint64_t out = gckpti_value_bytes(p, t), forward = out, backward = out;
    unsigned needs = gckpti_backward_needs(p, t), gradients = 0;
    float marker;
    for (int k = 0; k < t->inputs; k++) {
        forward += gckpti_value_bytes(p, t->in[k]);
        backward += needs & GCKPT_IN(k) ? gckpti_value_bytes(p, t->in[k]) : 0;
        if (!p->active[t->in[k]->base->id])
            continue;
        gradients++;
        call->in[k].grad = &marker;
        backward += t->op->flags & GCKPT_PASSES_GRAD(k) ? 0 : gckpti_gradient_bytes(p, t->in[k]);
    }
    backward += needs & GCKPT_OUT ? out : 0;
    gckpt_cost cost = { flops > 10 * forward ? flops : 10 * forward, 0 };
    if (gckpti_is_loss(t) && t->op->flags & GCKPTI_BACKWARD_LOSS && gckpti_linear_loss_block(call))
        cost.forward = 0; /* this lowering computes all in the backward */
    cost.forward += GCKPTI_INSTRUCTION_COST;
    if (gradients == 0)
        return cost;
    flops =
        t->op->flops_backward ? t->op->flops_backward(call) : gckpti_gradients_flops(call, flops);
    cost.backward = (flops > 10 * backward ? flops : 10 * backward) + GCKPTI_INSTRUCTION_COST;
    return cost;
}

/* Queries op t for its workspace with p->threads threads, and for its cost. */
static gckpt_result gckpti_query_op(gckpti_planner *p, const gckpt_tensor *t)
{
    int i = t->id, mixes;
    gckpt_call call;
    gckpt_result result;
    gckpt_precision precision = gckpti_first_precision(p, t);
    do {
        call = gckpti_shape_call(t->in, t->inputs, t->attributes);
        call.threads = p->threads;
        call.plain = p->plain;
        call.precision = precision;
        result = t->op->shape(&call);
        mixes = call.mixes_rows;
        gckpti_mark_operands(p, t, &call);
        if (result == GCKPT_OK)
            result = gckpti_query_backend(p->desc->backend, t->op, &call);
    } while (result == GCKPT_OK && gckpti_falls_back(&call, &precision));
    if (result != GCKPT_OK && p->desc->backend)
        return gckpti_error(p->g, result, "plan: %T: backend %s cannot run this op or shape", t,
                            gckpti_backend_name(p->desc->backend));
    if (result != GCKPT_OK || call.workspace_forward > PTRDIFF_MAX / 4 ||
        call.workspace_backward > PTRDIFF_MAX / 4)
        return gckpti_error(p->g, GCKPT_E_SHAPE, "plan: %T cannot be planned for %i threads", t,
                            p->threads);
    if (!p->inference && gckpti_measures_one(t->op, &t->shape, 1))
        return gckpti_error(p->g, GCKPT_E_SHAPE,
                            "plan: %T normalises one value per channel in micro-batches of %I "
                            "rows; training needs 2 or more: build it with more rows",
                            t, p->g->rows);
    if (p->active[i] & GCKPTI_HAS_BACKWARD && call.mixes_rows > mixes)
        p->rounding[i] |= GCKPTI_MIXES;
    p->workspace_forward[i] = call.workspace_forward;
    p->workspace_backward[i] = call.workspace_backward;
    gckpti_mark_precision(p, t, precision);
    size_t forward = gckpti_f32_copy_bytes(p, t, 0);
    size_t backward = p->active[i] & GCKPTI_HAS_BACKWARD ? gckpti_f32_copy_bytes(p, t, 1) : 0;
    p->workspace_forward[i] += call.workspace_forward ? gckpti_round_up(forward, 64) : forward;
    p->workspace_backward[i] += call.workspace_backward ? gckpti_round_up(backward, 64) : backward;
    call.shape = t->shape;
    p->model_cost[i] = gckpti_model_cost(p, t, &call);
    p->cost[i] = p->desc->costs.by_id ? p->desc->costs.by_id[i] : p->model_cost[i];
    return GCKPT_OK;
}

GCKPTI_FN gckpt_result gckpti_model_ops(gckpti_planner *p)
{
    if (!gckpti_model_memory(p))
        return GCKPT_E_MEMORY;
    gckpt_result result = gckpti_pass(p, GCKPTI_PASS_START, NULL);
    if (result != GCKPT_OK)
        return result;
    gckpti_find_active(p);
    (void)gckpti_pass(p, GCKPTI_PASS_ACTIVE, NULL);
    for (int i = 0; i < p->n && !p->failed && !p->unused && result == GCKPT_OK; i++)
        if (p->tensors[i]->kind == GCKPTI_OP)
            result = gckpti_query_op(p, p->tensors[i]);
    if (!p->failed && !p->unused && result == GCKPT_OK)
        result = gckpti_pass(p, GCKPTI_PASS_OPS, NULL);
    return p->failed ? GCKPT_E_MEMORY : result;
}

/* Returns whether a tensor is in the arena, as the result of a node. */
static int gckpti_is_in_arena(const gckpti_planner *p, const gckpt_tensor *t)
{
    return t->kind == GCKPTI_OP ? !gckpti_is_variable(t->op) : gckpti_is_staged(p, t);
}

/* Marks the tensors that backwards, losses, side effects and fetches read, directly or not. */
static void gckpti_find_needed(const gckpti_planner *p, unsigned char *needed)
{
    for (int i = 0; i < p->term_count; i++)
        needed[p->terms[i].loss->id] = 1;
    for (int i = 0; i < p->desc->fetch.count; i++)
        if (!p->desc->fetch.specs[i].gradient)
            needed[p->desc->fetch.specs[i].tensor->base->id] = 1;
    for (int i = p->n; i-- > 0;) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind != GCKPTI_OP)
            continue;
        unsigned mask = p->active[i] & GCKPTI_HAS_BACKWARD ? gckpti_backward_needs(p, t) : 0;
        if (t->op->flags & GCKPT_SIDE_EFFECT && !gckpti_is_loss(t))
            needed[i] = 1;
        needed[i] |= mask & GCKPT_OUT || (mask & GCKPT_SAVED && t->saved_bytes > 0);
        for (int k = 0; k < t->inputs; k++)
            needed[t->in[k]->base->id] |= needed[i] || mask & GCKPT_IN(k);
    }
}

/* Adds an edge to `node` unless there is one from index `first` on. Returns its index - first. */
static int gckpti_add_edge(gckpti_planner *p, int first, int node)
{
    int index = first;
    while (index < p->edge_count && p->edges[index] != node)
        index++;
    if (index == p->edge_count)
        p->edges[p->edge_count++] = node;
    return index - first;
}

/* Adds the edges of node u, an op: nodes that its forward and backward read; sets u->in_place. */
static void gckpti_add_edges(gckpti_planner *p, gckpti_node *u, const gckpt_tensor *t)
{
    unsigned mask = p->active[u->id] & GCKPTI_HAS_BACKWARD ? gckpti_backward_needs(p, t) : 0;
    u->in = p->edge_count;
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k]->base;
        if (!gckpti_is_in_arena(p, q))
            continue;
        int index = gckpti_add_edge(p, u->in, p->node_of[q->id]);
        if (t->op->flags & GCKPT_INPLACE(k) &&
            gckpti_value_bytes(p, q) == gckpti_value_bytes(p, t) &&
            gckpti_elements(&q->shape) == gckpti_elements(&t->shape))
            u->in_place |= (unsigned char)(1u << index);
    }
    u->inputs = p->edge_count - u->in;
    u->read = p->edge_count;
    for (int k = 0; k < t->inputs; k++)
        if (mask & GCKPT_IN(k) && gckpti_is_in_arena(p, t->in[k]->base))
            gckpti_add_edge(p, u->read, p->node_of[t->in[k]->base->id]);
    if (mask & GCKPT_OUT)
        gckpti_add_edge(p, u->read, p->node_of[u->id]);
    u->reads = p->edge_count - u->read;
    u->reads_saved = mask & GCKPT_SAVED && t->saved_bytes > 0;
}

/* Appends a node for tensor t, an op or a staged parameter. */
static void gckpti_add_node(gckpti_planner *p, const gckpt_tensor *t, int prologue)
{
    gckpti_node *u = &p->node[p->nodes];
    int side_effect = t->op && t->op->flags & GCKPT_SIDE_EFFECT;
    u->id = t->id;
    u->backward_index = p->active[t->id] & GCKPTI_HAS_BACKWARD ? INT32_MAX : -1;
    u->out = gckpti_is_loss(t) || gckpti_is_variable(t->op)
                 ? 0
                 : gckpti_model_size(p, gckpti_value_bytes(p, t));
    u->saved = gckpti_model_size(p, t->saved_bytes);
    u->workspace = gckpti_model_size(p, p->workspace_forward[t->id]);
    u->cost = p->cost[t->id].forward;
    u->runs_once = prologue || t->must_save || side_effect;
    u->side_effect = (unsigned char)side_effect;
    (void)gckpti_pass(p, GCKPTI_PASS_NODE, u);
    p->state[p->nodes].out = u->out;
    p->state[p->nodes].saved = u->saved;
    p->node_of[t->id] = p->nodes++;
    if (t->kind == GCKPTI_OP)
        gckpti_add_edges(p, u, t);
}

/* Adds a node for each staged parameter that t, which gets the next node, is the first to read. */
static void gckpti_add_staged_inputs(gckpti_planner *p, const gckpt_tensor *t, int prologue)
{
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k]->base;
        int id = q->id;
        if (!gckpti_is_staged(p, q) || p->node_of[id] >= 0)
            continue;
        const gckpt_parameter *param = &p->g->store->params[q->index].p;
        const uint64_t moved = (uint64_t)gckpti_values_bytes(param) + gckpti_value_bytes(p, q);
        const gckpt_cost copy = { 10 * moved + GCKPTI_INSTRUCTION_COST, 0 };
        p->cost[id] = p->desc->costs.by_id ? p->desc->costs.by_id[id] : copy;
        p->cost[id].forward = gckpti_add_cost(p->cost[id].forward, gckpti_gather_transfer(p, q));
        gckpti_add_node(p, q, prologue);
    }
}

/* Adds the nodes of the prologue or of the body. A staged parameter comes right before its first
 * reader, and belongs to the prologue if that does. */
static void gckpti_add_part(gckpti_planner *p, int prologue, const unsigned char *needed)
{
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind != GCKPTI_OP || t->batch_invariant != prologue || !needed[i])
            continue;
        if (GCKPTI_HAS_STAGED)
            gckpti_add_staged_inputs(p, t, prologue);
        gckpti_add_node(p, t, prologue);
    }
}

/* Sums the costs of all nodes. Checks that the costs of all ops add up to less than 2^64, even if a
 * forward is repeated for every backward. */
static gckpt_result gckpti_sum_costs(gckpti_planner *p)
{
    uint64_t most = UINT64_MAX / 2 / ((uint64_t)p->n + 1), sum = 0;
    most = most < UINT64_C(1) << 53 ? most : UINT64_C(1) << 53;
    for (int i = 0; i < p->n; i++) { /* costs are 0 for tensors that are no ops */
        const gckpt_cost *cost = &p->cost[i];
        const gckpti_node *u = p->node_of[i] < 0 ? NULL : &p->node[p->node_of[i]];
        sum = gckpti_add_cost(gckpti_add_cost(sum, cost->forward), cost->backward);
        if (u && u->can_copy)
            sum = gckpti_add_cost(
                sum, 2 * gckpti_parts_cost(p, p->node_of[i], GCKPTI_VALUE | GCKPTI_SAVED));
        p->forward_cost = gckpti_add_cost(p->forward_cost, u ? cost->forward : 0);
        p->base_cost =
            gckpti_add_cost(p->base_cost, u && u->backward_index >= 0 ? cost->backward : 0);
    }
    p->least_cost = p->base_cost = gckpti_add_cost(p->base_cost, p->forward_cost);
    return sum <= most
               ? GCKPT_OK
               : gckpti_error(p->g, GCKPT_E_ARG,
                              "plan: the cost of all ops adds up to more than %u; %s", most,
                              p->desc->costs.by_id || p->can_copy || p->g->rows < 2
                                  ? "give costs in a larger unit (desc.costs, and costs of copies)"
                                  : "use fewer rows, or desc.costs in a larger unit");
}

GCKPTI_FN gckpt_result gckpti_model_nodes(gckpti_planner *p)
{
    unsigned char *needed = (unsigned char *)gckpti_scratch_alloc(&p->scratch, (size_t)p->n, 1);
    size_t edges = 0;
    for (int i = 0; i < p->n; i++)
        edges += p->tensors[i]->kind == GCKPTI_OP ? 2 * (size_t)p->tensors[i]->inputs + 1 : 0;
    p->edges = (int *)gckpti_scratch_alloc(&p->scratch, edges, sizeof(int));
    if (p->failed)
        return GCKPT_E_MEMORY;
    gckpti_find_needed(p, needed);
    memset(p->node_of, 0xff, (size_t)p->n * sizeof(int));
    gckpti_add_part(p, 1, needed);
    p->prologue = p->nodes;
    int body = p->edge_count;
    gckpti_add_part(p, 0, needed);
    for (int k = body; k < p->edge_count && p->accumulates; k++)
        p->state[p->edges[k]].persistent = p->edges[k] < p->prologue;
    for (int i = 0; i < p->term_count; i++)
        p->node[p->node_of[p->terms[i].loss->id]].side_effect = 1;
    for (int i = 0; i < p->desc->fetch.count; i++)
        if (!p->desc->fetch.specs[i].gradient)
            p->node[p->node_of[p->desc->fetch.specs[i].tensor->base->id]].fetched = 1;
    gckpti_list_uses(p);
    gckpt_result result = p->failed ? GCKPT_E_MEMORY : gckpti_order_backwards(p);
    if (result != GCKPT_OK)
        return result;
    (void)gckpti_pass(p, GCKPTI_PASS_BACKWARDS, NULL);
    gckpti_model_gradients(p);
    gckpti_find_late(p);
    return p->failed ? GCKPT_E_MEMORY : gckpti_sum_costs(p);
}
#endif
