#include "run/own.h"
#include "graph/graph.h"
#include "ask/ask.h"

/* ---- making one ---- */
static void gckpti_give(gckpt_exec *e, void *memory, size_t bytes)
{
    if (memory && gckpti_on(e)->own_memory)
        gckpti_on(e)->release(gckpti_on(e)->context, memory, bytes);
    else
        gckpti_delete(&e->memory, memory, bytes, 1);
}

/* What the backend recorded holds no longer. */
GCKPTI_FN void gckpti_forget(const gckpt_exec *e)
{
    if (gckpti_on(e)->forget)
        gckpti_on(e)->forget(gckpti_on(e)->context, e);
}

/* More about a lack of the backend's memory. */
GCKPTI_FN const char *gckpti_shortage(const gckpt_exec *e)
{
    return gckpti_on(e)->shortage ? gckpti_on(e)->shortage(gckpti_on(e)->context) : "";
}

GCKPT_API void gckpt_exec_free(gckpt_exec *exec)
{
    if (!exec)
        return;
    gckpti_allocator a = exec->memory;
    const gckpt_plan *p = exec->plan;
    if (gckpti_ranking_of(p) && exec->crew)
        gckpti_ranking_of(p)->leave(exec);
    gckpti_forget(exec);
    gckpti_unbind(&exec->binding);
    if (!GCKPTI_LEAN && exec->moves && exec->far)
        gckpti_on(exec)->host_release(gckpti_on(exec)->context, exec->far, p->offloaded);
    gckpti_give(exec, exec->side, exec->side_size);
    gckpti_give(exec, exec->owned, exec->owned_size);
    gckpti_give(exec, exec->caches, exec->caches_size);
    gckpti_delete(&a, exec->copies, exec->copies_size, 1);
    gckpti_delete(&a, exec->tables, exec->tables_size, 1);
    gckpti_delete(&a, p->block, gckpti_copied_bytes(p), 1);
    gckpti_delete(&a, exec, 1, sizeof *exec);
}

GCKPTI_FN int gckpti_others_state(const gckpt_plan *p, const gckpti_param *q)
{
    return q->optimiser && q->optimiser != (int)p->optimiser + 1 && p->state_slots > 0;
}

/* Bytes of the store's block that would do for the values and states that are still missing. */
static size_t gckpti_bind_needs(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_store *s = e->store;
    size_t used = s->memory.used;
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = &s->params[e->params[e->params[i].nth].index];
        gckpti_count_piece(&used, !gckpti_is_made(q), gckpti_array_bytes(s, q, 0));
    }
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = &s->params[e->params[i].index];
        int slots = p->params[i].trained ? p->state_slots : 0;
        for (int slot = gckpti_state_slots(q); slot < slots; slot++)
            gckpti_count_piece(&used, gckpti_array_bytes(s, q, 1), 1);
    }
    return gckpti_count_block(used + s->memory.names);
}

/* Values, and optimiser state for what the plan trains: what is not there yet, all or none. State
 * of another optimiser is refused. Values are drawn when nothing can fail any more. */
GCKPTI_FN gckpt_result gckpti_bind_state(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpt_store *s = e->store;
    gckpt_result result = GCKPT_OK;
    size_t bytes = 0, states = 0;
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = &s->params[e->params[i].index];
        int wanted = p->params[i].trained ? p->state_slots : 0, had = gckpti_state_slots(q);
        if (wanted && gckpti_others_state(p, q))
            return gckpti_error(s, GCKPT_E_ARG,
                                "exec: \"%s\" holds state of another optimiser; "
                                "gckpt_store_reset clears it",
                                q->p.name);
        bytes += gckpti_array_bytes(s, q, 1) * (size_t)(wanted > had ? wanted - had : 0);
        bytes += gckpti_is_made(q) ? 0 : gckpti_array_bytes(s, q, 0);
        e->params[i].had = had;
    }
    if (bytes && !gckpti_has_room(&s->memory, bytes))
        result = gckpti_error(s, GCKPT_E_MEMORY,
                              "exec: no memory for the %z bytes of values and optimiser state that "
                              "the plan's %z parameters, \"%s\" first, still need",
                              bytes, p->param_count,
                              s->params[e->params[e->params[0].nth].index].p.name);
    for (size_t i = 0; i < p->param_count && result == GCKPT_OK; i++)
        result = gckpti_values_new(s, &s->params[e->params[e->params[i].nth].index], "exec");
    for (; states < p->param_count && result == GCKPT_OK; states++) {
        gckpti_param *q = &s->params[e->params[states].index];
        if (p->params[states].trained && !gckpti_param_state(s, q, p->state_slots))
            result = gckpti_error(s, GCKPT_E_MEMORY,
                                  "exec: no memory for the optimiser state "
                                  "of \"%s\": %i times %z bytes",
                                  q->p.name, p->state_slots, gckpti_array_bytes(s, q, 1));
    }
    if (result == GCKPT_OK) {
        gckpti_values_draw(s);
        return GCKPT_OK;
    }
    gckpti_tell_block(s, "store", &s->memory, gckpti_bind_needs(e));
    while (states-- > 0)
        gckpti_state_shrink(s, &s->params[e->params[states].index], e->params[states].had);
    gckpti_values_undo(s);
    return result;
}

/* Finds the plan's parameters in the store; they must be what the plan was made for. */
GCKPTI_FN gckpt_result gckpti_bind_params(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->param_count; i++) {
        const char *name = p->names + p->params[i].name;
        int index = gckpti_find(e->store, name);
        if (index < 0 || e->store->params[index].p.elements != p->params[i].elements)
            return gckpti_error(
                e->store, GCKPT_E_ARG,
                "exec: the store has no parameter \"%s\" of %I elements; the plan was "
                "made for another store (gckpt_plan_params creates what is missing)",
                name, p->params[i].elements);
        const gckpt_parameter *q = &e->store->params[index].p;
        if (p->params[i].storage != (gckpti_byte)q->storage)
            return gckpti_error(e->store, GCKPT_E_ARG,
                                "exec: \"%s\" is stored as %s, the plan was made for %s: pack it "
                                "so (gckpt_store_pack), or make a new plan",
                                name, gckpti_storage_name(q->storage),
                                gckpti_storage_name((gckpt_storage)p->params[i].storage));
        if (gckpti_updates(&p->params[i]) && q->frozen)
            return gckpti_error(e->store, GCKPT_E_ARG,
                                "exec: \"%s\" was frozen after planning; make a new plan", name);
        e->params[i].index = index;
        size_t at = i;
        for (; at > 0 && e->params[e->params[at - 1].nth].index > index; at--)
            e->params[at].nth = e->params[at - 1].nth;
        e->params[at].nth = (int)i;
    }
    return GCKPT_OK;
}

/* Is it an input that an instruction reads, so that it must be fed? */
GCKPTI_FN int gckpti_is_fed(const gckpt_plan *p, size_t id)
{
    for (size_t x = 0; x < p->length && p->nodes[id].kind == GCKPTI_INPUT; x++) {
        const gckpti_node *node = p->list[x].kind == GCKPT_UPDATE ? NULL : &p->nodes[p->list[x].id];
        for (int i = 0; node && node->op && i < node->inputs; i++)
            if (p->nodes[node->in[i]].base == (int)id)
                return 1;
    }
    return 0;
}

/* The kernels of an op. */
GCKPTI_FN gckpti_exec_node gckpti_bind_kernels(const gckpt_exec *e, const gckpti_node *node)
{
    const gckpt_backend *b = gckpti_on(e);
    int none = gckpti_debug(e) & GCKPT_DEBUG_PLAIN || !b->find;
    gckpti_exec_node n = { NULL, NULL, GCKPT_FP32, NULL };
    n.precision = gckpti_op_precision(node->rounding, node->batchless, e->plan->precision);
    if (n.precision == GCKPT_BF16_FAST) {
        n.forward = b->find_fast(b->context, node->op, GCKPT_FORWARD);
        n.backward = b->find_fast(b->context, node->op, GCKPT_BACKWARD);
    } else if (!none) {
        n.forward = b->find(b->context, node->op, GCKPT_FORWARD);
        n.backward = b->find(b->context, node->op, GCKPT_BACKWARD);
    }
    if (!n.forward && !b->own_memory)
        n.forward = node->op->forward;
    if (!n.backward && !b->own_memory)
        n.backward = node->op->backward;
    return n;
}

/* Which inputs must be fed, and the kernels that run. */
GCKPTI_FN void gckpti_bind_nodes(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_node *node = &p->nodes[i];
        if (node->kind == GCKPTI_INPUT)
            e->inputs[node->index].node = gckpti_is_fed(p, i) ? (int)i : -1;
        else if (node->kind == GCKPTI_OP && node->index >= 0)
            e->nodes[i] = gckpti_bind_kernels(e, node);
    }
}

/* Whether an instruction makes the value of node `id`, or a part of its gradient; of what has no
 * batch axis, whether it adds all parts up. */
static int gckpti_makes(const gckpt_plan *p, const gckpti_ins *ins, int id, int gradient)
{
    int own = gckpti_ins_tensor(p, ins), reads = 0;
    int backward = ins->kind == GCKPT_BACKWARD || ins->kind == GCKPT_UPDATE;
    if (!gradient)
        return own == id && (ins->kind == GCKPT_FORWARD || ins->kind == GCKPT_RELOAD) &&
               p->operands[ins->operands] != GCKPTI_NONE;
    for (int i = 0; i < p->nodes[own].inputs; i++)
        reads = reads || p->nodes[p->nodes[own].in[i]].base == id;
    return backward && (p->nodes[id].batchless ? own == id : reads);
}

/* Finds the instruction that each pick is complete with. */
GCKPTI_FN void gckpti_bind_picks(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t k = 0; k < p->pick_count; k++) {
        const gckpti_plan_pick *pick = &p->picks[k];
        int x = (int)p->length, id = p->nodes[pick->id].base;
        while (x-- > 0 && !gckpti_makes(p, &p->list[x], id, pick->gradient))
            continue;
        e->picked[k].ready = x < 0 ? (int)p->length : x;
    }
}

GCKPTI_FN void *gckpti_carve(unsigned char *base, size_t *used, size_t n, size_t size)
{
    size_t at = *used, most = (size_t)PTRDIFF_MAX / 2;
    size_t bytes = n < most / size ? n * size : most;
    *used = bytes < most - at ? gckpti_round_up(at + bytes, GCKPTI_ALIGN) : most;
    return base ? base + at : NULL;
}

/* Bytes of the tables; with `base` their places in it. */
GCKPTI_FN size_t gckpti_exec_tables(gckpt_exec *e, unsigned char *base)
{
    const gckpt_plan *p = e->plan;
    size_t used = 0, hashes = gckpti_debug(e) & GCKPT_DEBUG_RECOMPUTE ? 2 * p->node_count : 0;
    e->nodes = (gckpti_exec_node *)gckpti_carve(base, &used, p->node_count, sizeof *e->nodes);
    e->params = (gckpti_exec_param *)gckpti_carve(base, &used, p->param_count, sizeof *e->params);
    e->inputs = (gckpti_exec_input *)gckpti_carve(base, &used, p->inputs, sizeof *e->inputs);
    e->terms = (gckpti_exec_term *)gckpti_carve(base, &used, p->term_count, sizeof *e->terms);
    e->scales = (gckpt_loss_scale *)gckpti_carve(base, &used, p->term_count, sizeof *e->scales);
    e->picked = (gckpti_exec_pick *)gckpti_carve(base, &used, p->pick_count, sizeof *e->picked);
    void *at = gckpti_carve(base, &used, hashes, sizeof *e->hashes);
    e->hashes = hashes ? (uint64_t *)at : NULL;
    if (gckpti_ranking_of(p))
        gckpti_ranking_of(p)->tables(e, base, &used);
    return used;
}

GCKPTI_FN int gckpti_own_leaves(const gckpt_plan *p)
{
    return GCKPTI_LEAN ? 1 : p->leaves < p->ranks ? p->leaves : p->leaves / p->ranks;
}

/* Bytes of one row of an input, as it is fed. */
GCKPTI_FN size_t gckpti_row_bytes(const gckpt_plan *p, const gckpti_node *q)
{
    return (size_t)gckpti_elements(&q->shape) / (size_t)p->rows * 4;
}

/* Bytes of what the backend has beside the arena, with `base` their places in it: what losses and
 * updates leave for the host; in memory of its own a micro-batch of the feeds and the constants,
 * which are then copied there. */
GCKPTI_FN size_t gckpti_exec_side(gckpt_exec *e, unsigned char *base)
{
    const gckpt_plan *p = e->plan;
    size_t used = 0;
    e->losses = (gckpti_loss_total *)gckpti_carve(
        base, &used, p->term_count * (size_t)gckpti_own_leaves(p), sizeof *e->losses);
    e->squares = (float *)gckpti_carve(base, &used, e->square_count, sizeof *e->squares);
    if (e->desc.skip_nonfinite && gckpti_on(e)->nonfinite && p->optimiser != GCKPT_OWN_OPTIMISER)
        e->nonfinite = (uint32_t *)gckpti_carve(base, &used, 1, sizeof *e->nonfinite);
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_node *q = &p->nodes[i];
        size_t bytes = (size_t)gckpti_elements(&q->shape) * 4;
        void *to = NULL;
        if (gckpti_on(e)->own_memory && (q->kind == GCKPTI_CONSTANT || gckpti_is_fed(p, i)))
            to = gckpti_carve(base, &used, bytes, 1);
        if (base && q->kind == GCKPTI_INPUT)
            e->inputs[q->index].on_backend = (unsigned char *)to;
        if (base && q->kind == GCKPTI_CONSTANT)
            e->nodes[i].data = to ? to : q->data;
        if (to && q->kind == GCKPTI_CONSTANT)
            gckpti_on(e)->copy_in(gckpti_on(e)->context, to, q->data, bytes);
    }
    return used + !used; /* for a pointer that is not NULL */
}

/* n bytes of the backend's memory. */
GCKPTI_FN void *gckpti_take(gckpt_exec *e, size_t bytes, size_t alignment)
{
    if (bytes >= (size_t)PTRDIFF_MAX / 2)
        return NULL;
    if (gckpti_on(e)->own_memory)
        return gckpti_on(e)->get(gckpti_on(e)->context, bytes, alignment);
    return gckpti_resize(&e->memory, NULL, 0, bytes);
}

/* A call without op or inputs, for what is done between ops. Of inputs only that there are none is
 * set: to clear them all would take longer than a small update. */
GCKPTI_FN void gckpti_call_between(const gckpt_exec *e, gckpt_call *c)
{
    const size_t rest = offsetof(gckpt_call, shape);
    c->inputs = 0;
    memset((unsigned char *)c + rest, 0, sizeof *c - rest);
    c->seed = e->store->seed;
    c->step = e->step;
    c->threads = e->plan->threads;
    c->plain = e->plan->made_for != GCKPTI_FOR_CPU;
    c->training = e->plan->mode != GCKPT_INFERENCE;
    c->runner = &e->runner;
    c->kernels = e->kernels;
    c->backend = gckpti_on(e)->context;
}

GCKPTI_FN void gckpti_bare_call(const gckpt_exec *e, gckpt_call *c)
{
    memset(c->in, 0, sizeof c->in);
    gckpti_call_between(e, c);
}

/* Repeats a word over so many bytes, the last ones in part. */
GCKPTI_FN void gckpti_fill(const gckpt_exec *e, void *to, uint32_t word, size_t bytes)
{
    gckpt_call c;
    gckpti_call_between(e, &c);
    if (bytes / 4)
        gckpti_on(e)->fill(&c, to, word, (int64_t)(bytes / 4));
    if (bytes % 4)
        gckpti_on(e)->copy_in(c.backend, (unsigned char *)to + bytes / 4 * 4, &word, bytes % 4);
}

/* The arena: the one given, or one of its own with a canary behind, which a kernel that writes too
 * far changes. */
GCKPTI_FN gckpt_result gckpti_exec_arena(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    unsigned char canary[GCKPTI_CANARY];
    if (e->desc.arena) {
        if (e->desc.arena_size < p->arena || (uintptr_t)e->desc.arena % p->alignment)
            return gckpti_error(
                e->store, GCKPT_E_ARG,
                "exec: the arena given has %z bytes; the plan needs %z, aligned to %z",
                e->desc.arena_size, p->arena, p->alignment);
        e->arena = (unsigned char *)e->desc.arena;
        return GCKPT_OK;
    }
    e->owned = p->arena < PTRDIFF_MAX / 2 ? gckpti_take(e, e->owned_size, p->alignment) : NULL;
    if (!e->owned)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for the step arena of %z bytes%s", p->arena,
                            gckpti_shortage(e));
    size_t past = (size_t)((uintptr_t)e->owned % p->alignment);
    e->arena = (unsigned char *)e->owned + (past ? p->alignment - past : 0);
    memset(canary, GCKPTI_CANARY_BYTE, sizeof canary);
    gckpti_on(e)->copy_in(gckpti_on(e)->context, e->arena + p->arena, canary, sizeof canary);
    return GCKPT_OK;
}
