#ifndef GCKPT_NO_DEVICES
#include "run/internal.h"
#include "graph/graph.h"

GCKPTI_FN float *gckpti_exec_array(const gckpt_exec *e, const gckpti_param *q, int slot)
{
    return gckpti_backend(e)->own_memory ? q->mirror.array[1 + slot] : gckpti_array(q, slot);
}

GCKPTI_FN const float *gckpti_host_floats(const gckpt_exec *e, const float *x, size_t n)
{
    if (!gckpti_backend(e)->own_memory)
        return x;
    gckpti_from_backend(e, e->blocks.host_scratch, x, n * sizeof *x);
    return (const float *)(const void *)e->blocks.host_scratch;
}

/* Returns 1 if feeds determine all counts, so that a backend's need not be read. */
GCKPTI_FN int gckpti_has_known_counts(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int known = gckpti_backend(e)->own_memory && !gckpti_is_inference(p);
    for (size_t i = 0; i < p->term_count; i++)
        known = known && (p->terms[i].regulariser ||
                          p->nodes[p->terms[i].id].op->flags & GCKPT_COUNT_FROM_FEEDS);
    return known;
}

typedef struct {
    const gckpt_exec *e;
    gckpti_bump scratch;
    int count;
    struct {
        const void *from;
        void *back_to, *host; /* back_to: where `host` is copied after the kernel, or NULL */
        size_t bytes;
    } entry[4 * GCKPT_MAX_INPUTS + 8];
} gckpti_host_copies;

/* Returns a host copy of an operand. After the kernel it is copied to `to`, if that is not NULL. */
static void *gckpti_host_copy(gckpti_host_copies *copies, const void *from, void *to, size_t bytes)
{
    int i = 0;
    if (!from)
        return NULL;
    while (i < copies->count && copies->entry[i].from != from)
        i++;
    if (i == copies->count) {
        copies->entry[i].host = gckpti_bump_alloc(&copies->scratch, bytes, 1);
        copies->entry[i].from = from;
        copies->entry[copies->count++].bytes = bytes;
        gckpti_from_backend(copies->e, copies->entry[i].host, from, bytes);
    }
    if (to)
        copies->entry[i].back_to = to;
    return copies->entry[i].host;
}

/* Returns 1 if the data of input i are compressed or a part, which no kernel reads on the host. */
static int gckpti_is_partial(const gckpt_exec *e, const gckpt_call *c, int i)
{
    const gckpti_plan_node *nodes = e->plan->nodes;
    const int base = nodes[nodes[c->id].in[i]].base;
    if (nodes[base].kind != GCKPTI_PARAM || c->in[i].data != e->tables.nodes[base].data)
        return 0;
    const gckpti_param *q = gckpti_param_of(e, nodes[base].index);
    return gckpti_is_compressed((int)q->p.storage) || gckpti_is_part(e->store, q, GCKPTI_VALUES);
}

/* Runs an op's plain kernel on host copies of its operands. */
GCKPTI_FN void gckpti_run_on_host(const gckpt_exec *e, const gckpti_ins *ins,
                                  const gckpt_call *call)
{
    const gckpt_op *op = e->plan->nodes[ins->id].op;
    gckpt_call c = *call;
    gckpti_host_copies copies;
    size_t n = (size_t)gckpti_elements(&c.shape);
    memset(&copies, 0, sizeof copies);
    copies.e = e;
    copies.scratch.base = e->blocks.host_scratch;
    for (int i = 0; i < c.inputs; i++) {
        gckpt_arg *arg = &c.in[i];
        size_t size = (size_t)gckpti_elements(&arg->shape);
        if (arg->data && gckpti_is_partial(e, &c, i))
            arg->data = NULL;
        arg->data = (const float *)gckpti_host_copy(&copies, arg->data, NULL, size * 4);
        arg->index = (const int32_t *)gckpti_host_copy(&copies, arg->index, NULL, size * 4);
        arg->bf16 = (const uint16_t *)gckpti_host_copy(&copies, arg->bf16, NULL, size * 2);
        arg->bytes = (const uint8_t *)gckpti_host_copy(&copies, arg->bytes, NULL, size);
        arg->grad = (float *)gckpti_host_copy(&copies, arg->grad, arg->grad, size * 4);
        void *comp = arg->compensation, *narrow = arg->grad_bf16;
        arg->compensation = (float *)gckpti_host_copy(&copies, comp, comp, size * 4);
        arg->grad_bf16 = (uint16_t *)gckpti_host_copy(&copies, narrow, narrow, size * 2);
    }
    c.grad_out = (const float *)gckpti_host_copy(&copies, c.grad_out, NULL, n * 4);
    c.grad_out_bf16 = (const uint16_t *)gckpti_host_copy(&copies, c.grad_out_bf16, NULL, n * 2);
    c.out = (float *)gckpti_host_copy(&copies, c.out, c.out, n * 4);
    c.out_bf16 = (uint16_t *)gckpti_host_copy(&copies, c.out_bf16, c.out_bf16, n * 2);
    c.saved = gckpti_host_copy(&copies, c.saved, c.saved, e->plan->nodes[c.id].saved_bytes);
    c.loss_sum = (double *)gckpti_host_copy(&copies, c.loss_sum, c.loss_sum, sizeof(double));
    c.loss_count = (int64_t *)gckpti_host_copy(&copies, c.loss_count, c.loss_count, 8);
    c.workspace = c.workspace ? copies.scratch.base + copies.scratch.used : NULL; /* the rest */
    c.plain = 1;
    c.kernels = NULL;
    c.backend = NULL;
    (ins->kind == GCKPT_FORWARD ? op->forward : op->backward)(&c);
    for (int i = 0; i < copies.count; i++)
        if (copies.entry[i].back_to)
            gckpti_to_backend(e, copies.entry[i].back_to, copies.entry[i].host,
                              copies.entry[i].bytes);
}

GCKPTI_FN size_t gckpti_host_scratch_bytes(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t most = e->update.square_count * sizeof(float), workspace = 0; /* of an update */
    for (size_t i = 0; i < p->buffer_count; i++) {
        const gckpt_buffer *b = &p->buffers[i];
        if (b->kind == GCKPT_BUFFER_WORKSPACE && p->ins[b->end].kind == GCKPT_UPDATE)
            workspace = b->size > workspace ? b->size : workspace;
    }
    for (size_t i = 0; i < p->param_count; i++) {
        const int64_t grain = gckpti_is_compressed(p->params[i].storage) ? GCKPTI_GRAIN_SIZE : 0;
        int64_t n = p->params[i].trained ? p->params[i].elements : grain;
        const size_t bytes = gckpti_round_up((size_t)n, 16) * sizeof(float) + workspace;
        most = bytes > most ? bytes : most;
    }
    for (size_t id = 0; id < p->node_count; id++) {
        const gckpti_plan_node *node = &p->nodes[id];
        gckpt_call c;
        if (node->kind != GCKPTI_OP || node->index < 0)
            continue;
        gckpti_exec_node n;
        gckpti_find_kernels(e, node, &n);
        if (n.forward && (n.backward || !node->op->backward))
            continue;
        gckpti_init_op_call(e, node, (int)id, p->rows, &c);
        c.plain = 1;
        (void)node->op->shape(&c);
        size_t bytes = c.workspace_forward;
        bytes = bytes > c.workspace_backward ? bytes : c.workspace_backward;
        bytes += node->saved_bytes + 8 * (size_t)gckpti_planned_elements(p, node);
        for (int i = 0; i < node->inputs; i++) /* values, gradient, compensation */
            bytes += 12 * (size_t)gckpti_elements(&c.in[i].shape);
        bytes += GCKPTI_ALIGN * (size_t)(6 + 3 * node->inputs);
        most = bytes > most ? bytes : most;
    }
    return e->desc.offload && p->host_bytes > most ? p->host_bytes : most; /* no copy is larger */
}

/* Runs an update whose state is on the host, part by part, and returns 1; else returns 0. */
GCKPTI_FN int gckpti_update_in_parts(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpt_call *call, const gckpt_update_pass *pass)
{
    const gckpti_plan_param *param = &e->plan->params[ins->id];
    const gckpti_param *q = gckpti_param_of(e, ins->id);
    if (!pass->update || !param->slots || !e->plan->kind_bytes[GCKPT_BYTES_HOST_STATE])
        return 0;
    const int64_t n = (int64_t)gckpti_round_up((size_t)param->elements, 16);
    const int64_t most = gckpti_min(n, GCKPTI_STREAMED);
    gckpt_update_pass part = *pass;
    gckpti_operands o;
    gckpti_operands_of(e->plan->operands, ins, 0, &o);
    for (int i = 0; i < param->slots; i++)
        part.state[i] = gckpti_arena_f32(e, o.addends[ins->uses - 1]) + i * most;
    for (int64_t at = 0; at < pass->elements; at += most) {
        part.elements = gckpti_min(most, pass->elements - at);
        const size_t bytes = (size_t)part.elements * sizeof(float);
        for (int i = 0; i < param->slots; i++)
            gckpti_to_backend(e, part.state[i], q->p.state[i] + at, bytes);
        GCKPTI_OF(gckpti_backend(e), update)(call, &part);
        for (int i = 0; i < param->slots; i++)
            gckpti_from_backend(e, q->p.state[i] + at, part.state[i], bytes);
        part.gradient += most;
        part.values += most;
        part.base = (const unsigned char *)part.base + bytes;
        part.squares = part.squares ? part.squares + most / GCKPT_UPDATE_BLOCK : NULL;
    }
    return 1;
}
#endif
