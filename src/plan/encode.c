#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "num/num.h"
#include "graph/graph.h"
#include "ops/ops.h"

GCKPTI_COLD_BEGIN

/* ---- the hash of a graph: all that a plan's bytes and bits depend on, the same on all machines */

/* Returns a plan's node without the parts in other arrays: name, attributes, shape, index. */
static gckpti_plan_node gckpti_plan_node_of(const gckpt_tensor *t)
{
    gckpti_plan_node node;
    memset(&node, 0, sizeof node);
    node.op = t->op;
    node.data = t->data;
    node.attribute_bytes = (gckpti_offset)t->attribute_bytes;
    node.saved_bytes = t->saved_bytes;
    node.base = (gckpti_id)t->base->id;
    node.kind = (gckpti_byte)t->kind;
    node.inputs = (gckpti_byte)t->inputs;
    for (int k = 0; k < t->inputs; k++)
        node.in[k] = (gckpti_id)t->in[k]->id;
    node.type = (gckpti_byte)t->type;
    node.batch_invariant = (gckpti_byte)t->batch_invariant;
    return node;
}

static uint64_t gckpti_hash_tensor(uint64_t hash, const gckpt_tensor *t)
{
    const gckpt_store *s = t->graph->store;
    gckpti_plan_node node = gckpti_plan_node_of(t);
    return gckpti_hash_fields(hash, &node, &t->shape, t->attributes,
                              t->kind == GCKPTI_PARAM  ? s->params[t->index].p.name
                              : t->kind == GCKPTI_VIEW ? NULL
                                                       : t->name);
}

/* ---- from lowered plan to plan; a plan's block ---- */

/* Returns, without const, an array in the block of a plan that is being written. */
static void *gckpti_writable(gckpt_plan *plan, const void *part)
{
    return (unsigned char *)plan + ((const unsigned char *)part - (const unsigned char *)plan);
}

/* Appends a name to plan->names, or only counts it if the plan has no block. Returns its offset. */
static size_t gckpti_name_add(gckpt_plan *plan, const char *name)
{
    size_t offset = plan->name_bytes, size = strlen(name) + 1;
    if (plan->block)
        memcpy((char *)gckpti_writable(plan, plan->names) + offset, name, size);
    plan->name_bytes = offset + size;
    return offset;
}

/* Returns the id of one of the 256 tensors before i that has the same shape as i, else i. */
static int gckpti_shared_shape(const gckpti_planner *p, int i)
{
    for (int k = i - 1; k >= 0 && k >= i - 256; k--)
        if (gckpti_same_shape(&p->tensors[k]->shape, &p->tensors[i]->shape))
            return k;
    return i;
}

/* Writes nodes, parameters, names and attributes, or only counts them if the plan has no block. */
static void gckpti_encode_nodes(const gckpti_planner *p, gckpt_plan *plan)
{
    plan->node_count = (size_t)p->n;
    plan->param_count = plan->inputs = plan->word_count = plan->name_bytes = 0;
    plan->size_count = 0;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        size_t offset = gckpti_round_up(plan->word_count, 4); /* 16 bytes, as GCKPTI_ALIGN */
        size_t name = t->name ? gckpti_name_add(plan, t->name) : GCKPTI_NAMELESS;
        int fused = p->fused_into ? p->fused_into[i] : -1;
        int index = t->kind == GCKPTI_OP && p->node_of[fused < 0 ? i : fused] < 0 ? -1 : 0;
        const int shared = gckpti_shared_shape(p, i);
        const size_t shape = plan->size_count;
        plan->size_count += shared == i ? 1 + (size_t)t->shape.n : 0;
        plan->word_count = gckpti_round_up(offset + (t->attribute_bytes + 3) / 4, 4);
        if (t->kind == GCKPTI_INPUT)
            index = (int)plan->inputs++;
        if (t->kind == GCKPTI_PARAM) {
            const char *param_name =
                p->g->store->params[t->index].p.name; /* t's own name may have changed */
            int updated = gckpti_is_updated(p, i), uses = 0;
            for (int k = updated && t->running ? p->first_use[i] : -1; k >= 0; uses++)
                k = p->target[k].next;
            gckpti_plan_param q = { gckpti_elements(&t->shape),
                                    { gckpti_bits(t->init.normal), gckpti_bits(t->init.uniform),
                                      gckpti_bits(t->init.constant) },
                                    gckpti_bits(t->momentum),
                                    (gckpti_offset)gckpti_name_add(plan, param_name),
                                    (gckpti_id)i,
                                    (gckpti_id)t->index,
                                    (gckpti_id)uses,
                                    (gckpti_byte)(updated && !t->running),
                                    (gckpti_byte)p->g->store->params[t->index].external,
                                    (gckpti_byte)p->g->store->params[t->index].p.storage };
            index = (int)plan->param_count++;
            plan->quantised |= gckpti_is_quantised(q.storage);
            if (plan->block)
                ((gckpti_plan_param *)gckpti_writable(plan, plan->params))[index] = q;
        }
        if (!plan->block)
            continue;
        plan->hash = gckpti_hash_tensor(plan->hash, p->g->tensors[i]);
        gckpti_plan_node *node = (gckpti_plan_node *)gckpti_writable(plan, plan->nodes) + i;
        *node = gckpti_plan_node_of(t);
        node->shape = shared < i ? node[shared - i].shape : (gckpti_offset)shape;
        gckpti_extent *sizes = (gckpti_extent *)gckpti_writable(plan, plan->sizes) + shape;
        for (int k = 0; shared == i && k <= t->shape.n; k++)
            sizes[k] = k ? t->shape.d[k - 1] : t->shape.n;
        gckpti_node_info *info = (gckpti_node_info *)gckpti_writable(plan, plan->info) + i;
        node->attributes = (gckpti_offset)offset;
        node->name = (gckpti_offset)name;
        node->index = (gckpti_id)index;
        node->rounding = p->rounding[i];
        for (int k = 0; k < t->inputs && t->op; k++)
            node->compensated |= (gckpti_byte)((gckpti_sum_scope(p, t, k) != 0) << k);
        info->hash = plan->hash;
        info->cost = t->kind == GCKPTI_OP && p->node_of[i] < 0 && p->built_cost ? p->built_cost[i]
                                                                                : p->cost[i];
        info->host_value = info->host_saved = GCKPTI_NO_OFFSET;
        if (t->attribute_bytes)
            memcpy((uint32_t *)gckpti_writable(plan, plan->words) + offset, t->attributes,
                   t->attribute_bytes);
    }
    for (size_t i = 0; i < plan->node_count && plan->block; i++)
        plan->check = gckpti_hash_plan_node(plan->check, plan, i);
    if (plan->block) {
        plan->hash = gckpti_hash_vranks(plan->hash, plan->virtual_ranks);
        plan->check = gckpti_hash_vranks(plan->check, plan->virtual_ranks);
    }
}

/* Returns the first op that mixes rows (itself or in a view that it reads), or -1. Prefers an op
 * that always does to one that only batch norm's need of two rows makes mix. */
static int gckpti_find_mixer(const gckpti_planner *p, const gckpti_lowered *d)
{
    int measures = -1, single = 0;
    for (size_t x = 0; x < d->length; x++) {
        const gckpt_tensor *t = p->tensors[d->ins[x].id];
        if (t->mixes_rows & GCKPTI_MIXES_ALWAYS)
            return t->id;
        if (t->mixes_rows && !p->inference && !single) {
            single = gckpti_is_single_norm(t->op, &t->shape, p->g->rows);
            measures = measures < 0 || single ? t->id : measures;
        }
        for (int i = 0; i < t->inputs; i++)
            if (t->in[i]->kind == GCKPTI_VIEW && t->in[i]->mixes_rows & GCKPTI_MIXES_ALWAYS)
                return t->in[i]->id;
    }
    return measures;
}

static int gckpti_state_floats(const gckpt_plan_desc *d)
{
    return d->optimiser == GCKPT_ADAMW              ? 2
           : d->optimiser == GCKPT_MOMENTUM         ? 1
           : d->optimiser == GCKPT_CUSTOM_OPTIMISER ? d->custom_state
                                                    : 0;
}

/* Returns the padding bytes in a rank's shards of values and state. */
static size_t gckpti_resident_padding(const gckpti_planner *p)
{
    size_t sum = 0;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        int arrays = gckpti_is_gathered(p, t);
        if (t->kind != GCKPTI_PARAM || !gckpti_is_sharded(gckpti_update_shard(p, t)))
            continue;
        arrays += gckpti_is_updated(p, i) && !t->running ? gckpti_state_floats(p->desc) : 0;
        size_t part = gckpti_tensor_bytes(p, t, 0) / (size_t)p->g->store->ranks;
        sum += (size_t)arrays * (gckpti_shard_bytes(p, t) - part);
    }
    return sum;
}

GCKPTI_FN size_t gckpti_resident_bytes(const gckpti_planner *p, size_t *kind_bytes)
{
    const gckpt_store *s = p->g->store;
    size_t caches = 0, state = gckpti_state_bytes(s), parameters = gckpt_store_bytes(s) - state;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (gckpti_is_cache(t->op))
            caches =
                gckpti_add_bytes(caches, gckpti_round_up(gckpti_value_bytes(p, t), GCKPTI_ALIGN));
        if (!gckpti_is_updated(p, i) || t->running)
            continue;
        const gckpti_param *q = &s->params[t->index];
        for (int more = gckpti_state_floats(p->desc) - gckpti_state_slots(q); more > 0; more--)
            state = gckpti_add_bytes(state, gckpti_array_bytes(s, q, 1));
    }
    if (kind_bytes) {
        kind_bytes[GCKPT_BYTES_PADDING] += gckpti_resident_padding(p);
        kind_bytes[GCKPT_BYTES_PARAMETERS] = parameters;
        kind_bytes[GCKPT_BYTES_STATE] = state;
        kind_bytes[GCKPT_BYTES_CACHES] = caches;
    }
    return gckpti_add_bytes(gckpti_add_bytes(parameters, state), caches);
}

GCKPTI_FN gckpt_plan *gckpti_plan_compact(gckpt_plan *plan)
{
    if (!plan || !plan->memory.desc.memory)
        return plan;
    size_t size = gckpti_plan_copy(NULL, plan);
    plan->memory.used = 0;
    void *first = gckpti_resize(&plan->memory, NULL, 0, size); /* fits: the plan is above it */
    gckpti_plan_copy(first, plan);
    return (gckpt_plan *)first;
}

/* Returns buffer indices by end, then size, then the youngest first; NULL if out of memory. */
static int *gckpti_buffers_by_end(gckpti_planner *p, const gckpti_lowered *d)
{
    size_t n = d->buffer_count;
    int *order = (int *)gckpti_scratch_alloc(&p->temp, n, sizeof *order);
    gckpti_keyed *key = (gckpti_keyed *)gckpti_scratch_alloc(&p->temp, 2 * n, sizeof *key);
    if (p->failed)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        key[i].value = (int)(n - 1 - i);
        key[i].key = d->buffers[n - 1 - i].size;
    }
    gckpti_sort_keys(key, key + n, n);
    for (size_t i = 0; i < n; i++)
        key[i].key = (uint64_t)d->buffers[key[i].value].end;
    gckpti_sort_keys(key, key + n, n);
    for (size_t i = 0; i < n; i++)
        order[i] = key[i].value;
    return order;
}

/* Sets the scalars of the plan that is made from a lowered plan. */
static void gckpti_encode_numbers(gckpti_planner *p, const gckpti_lowered *d, gckpt_plan *plan)
{
    const gckpt_plan_desc *desc = p->desc;
    memset(plan, 0, sizeof *plan);
    plan->object.magic = GCKPTI_MAGIC;
    plan->format = GCKPT_PLAN_FORMAT;
    plan->contract = GCKPT_CONTRACT;
    plan->hash = plan->check = GCKPTI_FNV_START;
    plan->lowering = p->variant.lowering;
    plan->fused = p->variant.fused;
    plan->optimiser = desc->optimiser;
    plan->state_slots = gckpti_state_floats(desc);
    plan->accumulates = p->accumulates;
    plan->update_in_backward = desc->update_in_backward;
    plan->threads = p->threads;
    plan->backend_id = gckpti_backend_id(desc->backend, p->plain);
    plan->precision = desc->bf16.precision;
    plan->rows = p->g->rows > 0 ? p->g->rows : 1; /* a graph without inputs counts as one row */
    plan->batch = desc->batch > 0 ? desc->batch : plan->rows;
    plan->alignment = p->alignment;
    plan->arena = d->arena;
    plan->peak = d->peak;
    if (p->forward_cost)
        plan->recompute = (double)d->sched.recompute_cost / (double)p->forward_cost;
    plan->cost = d->cost;
    plan->hidden = d->hidden;
    plan->least_cost = p->least_cost;
    plan->offload_cost = desc->offload.cost;
    plan->overlap_offload = desc->offload.overlap != 0;
    plan->offloaded = d->offloaded;
    plan->virtual_ranks = p->virtual_ranks;
    plan->ranks = p->g->store->ranks;
    plan->shard = p->g->store->shard;
    plan->comm_cost = desc->ranks.link_cost;
    plan->body = (int)d->body, plan->epilogue = (int)d->epilogue;
    plan->mixer = gckpti_find_mixer(p, d);
    plan->length = d->length;
    plan->ins = d->ins; /* gckpti_plan_copy copies it into the block */
    plan->live_bytes = d->live_bytes;
    plan->operand_count = d->operand_count;
    plan->term_count = (size_t)p->term_count;
    plan->fetch_count = (size_t)desc->fetch.count;
    plan->buffer_count = d->buffer_count;
    memcpy(plan->kind_bytes, d->kind_bytes, sizeof plan->kind_bytes);
    gckpti_resident_bytes(p, plan->kind_bytes);
}

/* Writes the other arrays: instructions, operands, loss terms, fetches, buffers by `order`. */
static void gckpti_encode_arrays(const gckpti_planner *p, const gckpti_lowered *d, const int *order,
                                 gckpt_plan *plan)
{
    gckpti_ins *ins = (gckpti_ins *)gckpti_writable(plan, plan->ins);
    size_t *operand = (size_t *)gckpti_writable(plan, plan->operands);
    gckpti_plan_term *term = (gckpti_plan_term *)gckpti_writable(plan, plan->terms);
    gckpti_plan_fetch *fetch = (gckpti_plan_fetch *)gckpti_writable(plan, plan->fetches);
    gckpt_buffer *buffers = (gckpt_buffer *)gckpti_writable(plan, plan->buffers);
    gckpti_node_info *info = (gckpti_node_info *)gckpti_writable(plan, plan->info);
    for (int u = 0; u < p->nodes; u++) {
        info[p->node[u].id].host_value = d->host_offset[2 * u];
        info[p->node[u].id].host_saved = d->host_offset[2 * u + 1];
    }
    for (size_t x = 0; x < d->length; x++)
        if (ins[x].kind == GCKPT_UPDATE)
            ins[x].id = plan->nodes[ins[x].id].index;
    for (size_t i = 0; i < d->operand_count; i++)
        operand[i] = d->operands[i] == GCKPTI_NO_OFFSET ? GCKPTI_NO_OFFSET
                                                        : d->buffers[d->operands[i]].offset;
    for (size_t x = 0; x < d->length; x++)
        gckpti_encode_copies(p, &d->ins[x], operand);
    for (size_t i = 0; i < plan->term_count; i++) {
        int id = p->terms[i].loss->id;
        const gckpt_tensor *t = p->tensors[id];
        gckpt_call call = gckpti_shape_call(t->in, t->inputs, t->attributes);
        call.plain = 1;
        (void)t->op->shape(&call); /* cannot fail: it succeeded when the graph was built */
        gckpti_plan_term q = { id, gckpti_bits(p->terms[i].weight), p->terms[i].regulariser,
                               !gckpti_counted_input(t->op) && call.elements_per_count > 1
                                   ? call.elements_per_count
                                   : 1,
                               p->built_cost ? p->built_cost[id] : p->cost[id] };
        term[i] = q;
    }
    for (size_t i = 0; i < plan->fetch_count; i++) {
        const gckpt_fetch_spec *q = &p->desc->fetch.specs[i];
        int id = q->tensor->base->id;
        fetch[i].id = q->tensor->id;
        fetch[i].gradient = q->gradient;
        int b = q->gradient ? d->gradient[p->total[id]] : d->value[d->latest_def[p->node_of[id]]];
        fetch[i].offset = d->buffers[b].offset;
    }
    for (size_t i = 0; i < d->buffer_count; i++)
        buffers[i] = d->buffers[order[i]];
}

GCKPTI_FN gckpt_plan *gckpti_encode_plan(gckpti_planner *p, const gckpti_lowered *d,
                                         gckpt_mode mode)
{
    gckpt_plan header, *plan = NULL;
    gckpti_scratch_clear(&p->temp);
    const int *order = gckpti_buffers_by_end(p, d);
    gckpti_encode_numbers(p, d, &header);
    header.mode = mode;
    gckpti_encode_nodes(p, &header);
    if (order)
        plan = (gckpt_plan *)gckpti_new(p->memory, gckpti_plan_copy(NULL, &header), 1);
    p->failed = !plan;
    if (!plan)
        return NULL;
    header.memory = *p->memory;
    gckpti_plan_copy(plan, &header);
    gckpti_encode_nodes(p, plan);
    gckpti_encode_arrays(p, d, order, plan);
    gckpti_encode_weights(p, plan);
    return plan;
}

GCKPTI_COLD_END
#endif
