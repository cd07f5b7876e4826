#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "num/num.h"
#include "graph/graph.h"
#include "ops/ops.h"

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

/* ---- from lowered plan to plan ---- */
/* Allocates the arrays of a plan. Those whose length is not known yet get the most that nodes need,
 * and length 0. */
static void gckpti_alloc_arrays(gckpti_planner *p, gckpti_encoder *e)
{
    gckpt_plan *plan = &e->plan;
    plan->node_count = plan->param_count = (size_t)p->n;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        plan->size_count += 1 + (size_t)t->shape.n;
        plan->word_count += gckpti_round_up((t->attribute_bytes + 3) / 4, 4);
        plan->name_bytes += t->name ? strlen(t->name) + 1 : 0;
        if (t->kind == GCKPTI_PARAM)
            plan->name_bytes += strlen(p->g->store->params[t->index].p.name) + 1;
    }
#define GCKPTI_ALLOC(type, name, count, optional)                                                  \
    plan->name = e->name = (type *)gckpti_scratch_alloc(&p->temp, plan->count, sizeof(type));
    GCKPTI_PLAN_ARRAYS(GCKPTI_ALLOC)
#undef GCKPTI_ALLOC
    plan->param_count = plan->size_count = plan->word_count = plan->name_bytes = 0;
}

/* Appends a name to a plan. Returns its offset. */
static gckpti_offset gckpti_add_name(gckpti_encoder *e, const char *name)
{
    const size_t offset = e->plan.name_bytes, size = strlen(name) + 1;
    memcpy(e->names + offset, name, size);
    e->plan.name_bytes += size;
    return (gckpti_offset)offset;
}

/* Returns the index of the sizes of tensor i: those of one of the 256 tensors before it that has
 * the same shape, else appended ones. */
static gckpti_offset gckpti_add_shape(const gckpti_planner *p, gckpti_encoder *e, int i)
{
    const gckpt_shape *shape = &p->tensors[i]->shape;
    const size_t first = e->plan.size_count;
    for (int k = i - 1; k >= 0 && k >= i - 256; k--)
        if (gckpti_same_shape(&p->tensors[k]->shape, shape))
            return e->nodes[k].shape;
    e->sizes[e->plan.size_count++] = shape->n;
    for (int k = 0; k < shape->n; k++)
        e->sizes[e->plan.size_count++] = shape->d[k];
    return (gckpti_offset)first;
}

/* Returns how many optimiser states t gets if it is trained, else 0. *bytes becomes the size of the
 * only one, or 0 if they are floats of its shape. */
static int gckpti_states_of(const gckpti_planner *p, const gckpt_tensor *t, size_t *bytes)
{
    const gckpt_plan_desc *d = p->desc;
    *bytes = 0;
    if (!gckpti_is_updated(p, t->id) || t->running)
        return 0;
    if (d->optimiser != GCKPT_CUSTOM_OPTIMISER)
        return (d->optimiser == GCKPT_MOMENTUM) + 2 * (d->optimiser == GCKPT_ADAMW);
    *bytes = gckpti_custom_bytes(p, t, d->state_bytes);
    return d->state_bytes ? *bytes > 0 : d->custom_state;
}

/* Appends parameter t. Returns its index. */
static size_t gckpti_add_param(const gckpti_planner *p, gckpti_encoder *e, const gckpt_tensor *t)
{
    const gckpti_param *param = &p->g->store->params[t->index]; /* its name may differ from t's */
    const int updated = gckpti_is_updated(p, t->id);
    gckpti_plan_param *q = &e->params[e->plan.param_count];
    q->elements = gckpti_elements(&t->shape);
    memcpy(q->init, &t->init, sizeof q->init);
    q->momentum = gckpti_bits(t->momentum);
    q->name = gckpti_add_name(e, param->p.name);
    q->node = (gckpti_id)t->id;
    q->store_index = (gckpti_id)t->index;
    for (int k = updated && t->running ? p->first_use[t->id] : -1; k >= 0; k = p->target[k].next)
        q->running++;
    q->trained = (gckpti_byte)(updated && !t->running);
    q->slots = (gckpti_byte)gckpti_states_of(p, t, &q->state_bytes);
    q->external = (gckpti_byte)param->external;
    q->storage = (gckpti_byte)param->p.storage;
    e->plan.compressed |= gckpti_is_compressed(q->storage);
    return e->plan.param_count++;
}

/* Writes nodes, parameters, shapes, names and attributes. */
static void gckpti_encode_nodes(const gckpti_planner *p, gckpti_encoder *e)
{
    gckpt_plan *plan = &e->plan;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        const gckpt_tensor *built = p->g->tensors[i];
        const gckpti_plan_node built_node = gckpti_plan_node_of(built);
        const int is_op = t->kind == GCKPTI_OP, group = is_op ? t->index : -1;
        gckpti_plan_node *node = &e->nodes[i];
        *node = gckpti_plan_node_of(t);
        node->attributes = (gckpti_offset)plan->word_count;
        if (t->attribute_bytes)
            memcpy(e->words + plan->word_count, t->attributes, t->attribute_bytes);
        plan->word_count += gckpti_round_up((t->attribute_bytes + 3) / 4, 4); /* GCKPTI_ALIGN */
        node->shape = gckpti_add_shape(p, e, i);
        node->name = t->name ? gckpti_add_name(e, t->name) : GCKPTI_NAMELESS;
        node->index = is_op && p->node_of[group < 0 ? i : group] < 0 ? -1 : 0;
        if (t->kind == GCKPTI_INPUT)
            node->index = (gckpti_id)plan->inputs++;
        if (t->kind == GCKPTI_PARAM)
            node->index = (gckpti_id)gckpti_add_param(p, e, t);
        node->rounding = p->rounding[i];
        for (int k = 0; k < t->inputs && t->op; k++)
            node->compensated |= (gckpti_byte)((gckpti_sum_scope(p, t, k) != 0) << k);
        plan->hash =
            gckpti_hash_fields(plan->hash, &built_node, &built->shape, built->attributes,
                               t->kind == GCKPTI_PARAM  ? p->g->store->params[t->index].p.name
                               : t->kind == GCKPTI_VIEW ? NULL
                                                        : built->name);
        e->info[i].cost = p->cost[i];
        e->info[i].host_value = e->info[i].host_saved = GCKPTI_NO_OFFSET;
        plan->check = gckpti_hash_plan_node(plan->check, plan, (size_t)i);
    }
}

/* Returns the first op that mixes rows (itself or in a view that it reads), or -1. Prefers an op
 * that always does to one that does in training, and of these one that needs two rows. */
static int gckpti_find_mixer(const gckpti_planner *p, const gckpti_lowered *d)
{
    int mixer = -1;
    for (size_t x = 0; x < d->length; x++) {
        const gckpt_tensor *t = p->tensors[d->ins[x].id];
        if (t->mixes_rows & GCKPTI_MIXES_ALWAYS)
            return t->id;
        if (t->mixes_rows == GCKPTI_MIXES_IN_TRAINING && !p->inference &&
            (mixer < 0 || gckpti_measures_one(t->op, &t->shape, p->g->rows)))
            mixer = t->id;
        for (int i = 0; i < t->inputs; i++)
            if (t->in[i]->kind == GCKPTI_VIEW && t->in[i]->mixes_rows & GCKPTI_MIXES_ALWAYS)
                return t->in[i]->id;
    }
    return mixer;
}

GCKPTI_FN size_t gckpti_resident_bytes(const gckpti_planner *p, size_t *kind_bytes)
{
    const gckpt_store *s = p->g->store;
    size_t kept = 0, state = gckpti_state_bytes(s), parameters = gckpt_store_bytes(s) - state;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (gckpti_is_variable(t->op))
            kept = gckpti_add_bytes(kept, gckpti_round_up(gckpti_value_bytes(p, t), GCKPTI_ALIGN));
        if (t->kind != GCKPTI_PARAM)
            continue;
        const gckpti_param *q = &s->params[t->index];
        size_t bytes;
        int more = gckpti_states_of(p, t, &bytes) - gckpti_state_slots(q);
        for (bytes = bytes ? bytes : gckpti_array_bytes(s, q, 1); more > 0; more--)
            state = gckpti_add_bytes(state, bytes);
    }
    const size_t on_host = gckpti_streams_state(p->desc) ? state : 0;
    if (kind_bytes) {
        kind_bytes[GCKPT_BYTES_PARAMETERS] = parameters;
        kind_bytes[GCKPT_BYTES_STATE] = state - on_host;
        kind_bytes[GCKPT_BYTES_HOST_STATE] = on_host;
    }
    return gckpti_add_bytes(gckpti_add_bytes(parameters, state - on_host), kept);
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

/* Sets the scalars of the plan that is made from a lowered plan. */
static void gckpti_encode_numbers(const gckpti_planner *p, const gckpti_lowered *d,
                                  gckpt_plan *plan)
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
    plan->accumulates = p->accumulates;
    plan->update_in_backward = desc->update_in_backward;
    plan->threads = p->threads;
    plan->backend_id = gckpti_backend_id(desc->backend, p->plain);
    plan->rows = p->g->rows > 0 ? p->g->rows : 1; /* a graph without inputs counts as one row */
    plan->batch = desc->batch > 0 ? desc->batch : plan->rows;
    plan->alignment = p->alignment;
    plan->arena = d->arena;
    plan->peak = d->peak;
    plan->cost = d->cost;
    plan->least_cost = p->least_cost;
    gckpti_set_single_process(plan);
    plan->body = d->body, plan->epilogue = d->epilogue;
    plan->mixer = gckpti_find_mixer(p, d);
    plan->length = d->length;
    plan->operand_count = d->operand_count;
    plan->term_count = (size_t)p->term_count;
    plan->fetch_count = (size_t)desc->fetch.count;
    plan->buffer_count = d->buffer_count;
    memcpy(plan->kind_bytes, d->kind_bytes, sizeof plan->kind_bytes);
    gckpti_resident_bytes(p, plan->kind_bytes);
}

/* Writes the other arrays: instructions, operands, loss terms, fetches, buffers. */
static void gckpti_encode_arrays(const gckpti_planner *p, const gckpti_lowered *d,
                                 gckpti_encoder *e)
{
    memcpy(e->live_bytes, d->live_bytes, d->length * sizeof *e->live_bytes);
    memcpy(e->buffers, d->buffers, d->buffer_count * sizeof *e->buffers);
    for (size_t x = 0; x < d->length; x++) {
        e->ins[x] = d->ins[x];
        if (d->ins[x].kind == GCKPT_UPDATE)
            e->ins[x].id = e->nodes[d->ins[x].id].index;
    }
    for (size_t i = 0; i < d->operand_count; i++)
        e->operands[i] = d->operands[i] == GCKPTI_NO_OFFSET ? GCKPTI_NO_OFFSET
                                                            : d->buffers[d->operands[i]].offset;
    for (int i = 0; i < p->term_count; i++) {
        int id = p->terms[i].loss->id;
        const gckpt_tensor *t = p->tensors[id];
        gckpt_call call = gckpti_shape_call(t->in, t->inputs, t->attributes);
        call.plain = 1;
        (void)t->op->shape(&call); /* cannot fail: it succeeded when the graph was built */
        gckpti_plan_term q = { id, gckpti_bits(p->terms[i].weight), p->terms[i].regulariser,
                               !gckpti_counted_input(t->op) && call.elements_per_count > 1
                                   ? call.elements_per_count
                                   : 1 };
        e->terms[i] = q;
    }
    for (int i = 0; i < p->desc->fetch.count; i++) {
        const gckpt_fetch_spec *q = &p->desc->fetch.specs[i];
        int id = q->tensor->base->id;
        int b = q->gradient ? d->gradient[p->total[id]] : d->value[d->latest_def[p->node_of[id]]];
        const gckpti_plan_fetch fetch = { q->tensor->id, q->gradient, d->buffers[b].offset };
        e->fetches[i] = fetch;
    }
}

GCKPTI_FN gckpt_plan *gckpti_encode_plan(gckpti_planner *p, gckpt_mode mode)
{
    const gckpti_lowered *d = &p->best;
    gckpti_encoder e;
    gckpt_plan *plan = NULL;
    (void)gckpti_pass(p, GCKPTI_PASS_CHOSEN, NULL);
    gckpti_scratch_clear(&p->temp);
    gckpti_encode_numbers(p, d, &e.plan);
    e.plan.mode = mode;
    gckpti_alloc_arrays(p, &e);
    if (!p->failed) {
        gckpti_encode_nodes(p, &e);
        gckpti_encode_arrays(p, d, &e);
        (void)gckpti_pass(p, GCKPTI_PASS_ENCODED, &e);
        e.plan.check = gckpti_fnv_number(e.plan.check, e.plan.hash);
        plan = (gckpt_plan *)gckpti_new(p->memory, gckpti_plan_copy(NULL, &e.plan), 1);
    }
    p->failed = !plan;
    if (plan) {
        e.plan.memory = *p->memory;
        gckpti_plan_copy(plan, &e.plan);
    }
    return plan;
}
#endif
