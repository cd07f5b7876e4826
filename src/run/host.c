#include "run/internal.h"
#include "graph/graph.h"

GCKPTI_FN const float *gckpti_host_floats(const gckpt_exec *e, const float *x, size_t n)
{
    if (!gckpti_backend(e)->own_memory)
        return x;
    gckpti_from_backend(e, e->blocks.host_scratch, x, n * sizeof *x);
    return (const float *)(const void *)e->blocks.host_scratch;
}

typedef struct {
    const gckpt_exec *e;
    gckpti_bump scratch;
    int count;
    struct {
        const void *from;
        void *back_to, *host; /* back_to: its destination after the kernel, or NULL */
        size_t bytes;
    } entry[4 * GCKPT_MAX_INPUTS + 8];
} gckpti_host_copies;

/* Returns the host copy of an operand, copied to `to` after the kernel unless that is NULL. */
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

/* Returns 1 if the data of input i are quantised or a shard, which no kernel reads on the host. */
static int gckpti_is_partial(const gckpt_exec *e, const gckpt_call *c, int i)
{
    const gckpti_plan_node *nodes = e->plan->nodes;
    const int base = nodes[nodes[c->id].in[i]].base;
    if (nodes[base].kind != GCKPTI_PARAM || c->in[i].data != e->tables.nodes[base].data)
        return 0;
    const gckpti_param *q = gckpti_param_of(e, nodes[base].index);
    return gckpti_is_quantised((int)q->p.storage) ||
           gckpti_is_sharded(gckpti_array_shard(e->store, q, GCKPTI_VALUES));
}

/* Runs an op's plain kernel on host copies of its operands. */
GCKPTI_FN void gckpti_run_on_host(const gckpt_exec *e, gckpt_kernel kernel, const gckpt_call *call)
{
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
    kernel(&c);
    for (int i = 0; i < copies.count; i++)
        if (copies.entry[i].back_to)
            gckpti_to_backend(e, copies.entry[i].back_to, copies.entry[i].host,
                              copies.entry[i].bytes);
}

/* Waits for pending copies that are due at instruction x or before, and for those started before
 * them. Returns `result` or, if that is OK or MORE, the error of a copy. */
GCKPTI_FN gckpt_result gckpti_wait_copies(gckpt_exec *e, int x, gckpt_result result)
{
    int *due = e->offload.due, n = GCKPTI_RUNS_BACKENDS ? e->offload.pending_count : 0, failed = 0;
    while (n > 0 && due[n - 1] > x)
        n--;
    if (n == 0)
        return result;
    int later = e->offload.pending_count - n;
    if (!e->offload.by_backend && (failed = e->desc.wait(e->desc.user, later)) != 0) {
        e->desc.wait(e->desc.user, later = 0); /* no callback may write any more */
    } else if (e->offload.by_backend && gckpti_backend(e)->wait_copies_until && later) {
        gckpti_backend(e)->wait_copies_until(gckpti_backend(e)->context, later);
    } else if (e->offload.by_backend) {
        gckpti_backend(e)->wait_copies(gckpti_backend(e)->context);
        later = 0;
    }
    memmove(due, due + e->offload.pending_count - later, (size_t)later * sizeof *due);
    e->offload.pending_count = later;
    return failed && (result == GCKPT_OK || result == GCKPT_MORE)
               ? gckpti_error(e, GCKPT_E_FILE,
                              "step: a copy to slower memory or back failed; nothing was changed")
               : result;
}

/* Returns 1 if instruction x has an operand at this offset of the arena. */
static int gckpti_has_operand(const gckpt_plan *p, int x, size_t offset)
{
    size_t k = p->ins[x].operands;
    size_t end = x + 1 < (int)p->length ? p->ins[x + 1].operands : p->operand_count;
    while (k < end && p->operands[k] != offset)
        k++;
    return k < end && p->ins[x].kind != GCKPT_OFFLOAD_DONE;
}

/* Records a pending copy and the first instruction that must wait for it: that reads a reloaded
 * value, or that overwrites (as POISON does) one that is being offloaded. */
static void gckpti_add_pending_copy(gckpt_exec *e, int out, size_t offset, size_t bytes)
{
    const gckpt_plan *p = e->plan;
    const int poisons = gckpti_debug(e) & GCKPT_DEBUG_POISON;
    int due = (int)p->length, pc = e->step.pc;
    for (size_t i = 0; i < p->buffer_count; i++) {
        const gckpt_buffer *buffer = &p->buffers[i];
        if (buffer->offset >= offset + bytes || buffer->offset + buffer->size <= offset)
            continue;
        if (buffer->start > pc || (poisons && buffer->end >= pc))
            gckpti_set_min(&due, buffer->start > pc ? buffer->start : buffer->end + 1);
    }
    for (int x = pc + 1; x < due; x++)
        if (out ? p->ins[x].kind == GCKPT_FORWARD && p->operands[p->ins[x].operands] == offset
                : gckpti_has_operand(p, x, offset))
            gckpti_set_min(&due, x);
    e->offload.due[e->offload.pending_count++] = due;
}

/* Offloads or reloads `bytes` bytes at an offset of the arena. */
static gckpt_result gckpti_copy_offloaded(gckpt_exec *e, const gckpti_ins *ins, size_t host_offset,
                                          size_t offset, size_t bytes)
{
    const gckpt_exec_desc *d = &e->desc;
    size_t done = bytes;
    void *here = gckpti_arena_ptr(e, offset);
    void *host = !d->offload                     ? e->offload.host + host_offset
                 : gckpti_backend(e)->own_memory ? e->blocks.host_scratch
                                                 : here;
    const int out = ins->kind == GCKPT_OFFLOAD;
    const gckpt_backend *b = gckpti_backend(e);
    if (e->offload.by_backend) {
        b->copy_async(b->context, out ? host : here, out ? here : host, bytes, out);
    } else {
        if (out && host != here)
            gckpti_from_backend(e, host, here, bytes);
        done = !d->offload ? bytes
               : out       ? d->offload(d->user, host_offset, host, bytes)
                           : d->reload(d->user, host_offset, host, bytes);
        if (d->wait && host != here && done == bytes)
            done = d->wait(d->user, 0) ? 0 : bytes;
        if (!out && host != here && done == bytes)
            gckpti_to_backend(e, here, host, bytes);
    }
    if (done == bytes && e->offload.async)
        gckpti_add_pending_copy(e, out, offset, bytes);
    return done == bytes ? GCKPT_OK
                         : gckpti_error(e, GCKPT_E_FILE,
                                        "step: %s of \"%s\" copied %z of %z bytes; nothing was "
                                        "changed",
                                        out ? "offload" : "reload",
                                        gckpti_planned_name(e->plan, ins->id), done, bytes);
}

/* Offloads or reloads a node's value and saved data; of a short micro-batch, the rows it has. */
GCKPTI_FN gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    int64_t rows = gckpti_micro_rows(e);
    size_t value = gckpti_planned_bytes(p, node);
    gckpt_result result = GCKPT_OK;
    gckpti_operands o;
    if (ins->kind == GCKPT_OFFLOAD_DONE)
        return GCKPT_OK; /* it only extends the live range of the buffer */
    const gckpti_node_info *info = &p->info[ins->id];
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    if (!node->batch_invariant)
        value = value / (size_t)p->rows * (size_t)rows;
    if (o.out != GCKPTI_NO_OFFSET)
        result = gckpti_copy_offloaded(e, ins, info->host_value, o.out, value);
    if (o.saved != GCKPTI_NO_OFFSET && result == GCKPT_OK)
        result = gckpti_copy_offloaded(e, ins, info->host_saved, o.saved, node->saved_bytes);
    if (ins->kind == GCKPT_OFFLOAD || !(gckpti_debug(e) & GCKPT_DEBUG_RECOMPUTE) ||
        (result = gckpti_wait_copies(e, INT32_MAX, result)) != GCKPT_OK)
        return result;
    gckpt_call c;
    gckpti_init_op_call(e, node, ins->id, rows, &c);
    c.out = gckpti_arena_f32(e, o.out);
    c.saved = gckpti_arena_f32(e, o.saved);
    return gckpti_check_recompute(
        e, ins, &c, node->rounding & GCKPTI_BF16_VALUE ? gckpti_arena_bf16(e, o.out) : NULL);
}
