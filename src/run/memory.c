#include "run/own.h"
#include "graph/graph.h"

GCKPTI_FN void *gckpti_carve(gckpti_block *b, size_t n, size_t size)
{
    size_t at = b->used, most = (size_t)PTRDIFF_MAX / 2;
    size_t bytes = n < most / size ? n * size : most;
    b->used = bytes < most - at ? gckpti_round_up(at + bytes, GCKPTI_ALIGN) : most;
    return b->base ? b->base + at : NULL;
}

/* More about a lack of the backend's memory. */
GCKPTI_FN const char *gckpti_shortage(const gckpt_exec *e)
{
    return gckpti_on(e)->shortage ? gckpti_on(e)->shortage(gckpti_on(e)->context) : "";
}

/* Memory where the backend computes; NULL: there is none, or the size was too much to count.
 * alignment: of memory of its own; the host's is as its allocator has it. */
GCKPTI_FN void *gckpti_take(gckpt_exec *e, size_t bytes, size_t alignment)
{
    if (bytes >= (size_t)PTRDIFF_MAX / 2)
        return NULL;
    if (gckpti_on(e)->own_memory)
        return gckpti_on(e)->get(gckpti_on(e)->context, bytes, alignment);
    return gckpti_resize(&e->memory, NULL, 0, bytes);
}

/* Frees what gckpti_take took; NULL: nothing. */
GCKPTI_FN void gckpti_give(gckpt_exec *e, void *memory, size_t bytes)
{
    if (memory && gckpti_on(e)->own_memory)
        gckpti_on(e)->release(gckpti_on(e)->context, memory, bytes);
    else
        gckpti_delete(&e->memory, memory, bytes, 1);
}

/* Repeats a word over so many bytes, the last ones in part. */
GCKPTI_FN void gckpti_fill(const gckpt_exec *e, void *to, uint32_t word, size_t bytes)
{
    gckpt_call c;
    gckpti_call_between(e, &c);
    if (bytes / 4)
        gckpti_on(e)->fill(&c, to, word, (int64_t)(bytes / 4));
    if (bytes % 4)
        gckpti_to_backend(e, (unsigned char *)to + bytes / 4 * 4, &word, bytes % 4);
}

/* Is it an input that an instruction reads, so that it must be fed? */
static int gckpti_is_fed(const gckpt_plan *p, size_t id)
{
    for (size_t x = 0; x < p->length && p->nodes[id].kind == GCKPTI_INPUT; x++) {
        const gckpti_node *node = p->list[x].kind == GCKPT_UPDATE ? NULL : &p->nodes[p->list[x].id];
        for (int i = 0; node && node->op && i < node->inputs; i++)
            if (p->nodes[node->in[i]].base == (int)id)
                return 1;
    }
    return 0;
}

/* Bytes of one row of an input, as it is fed. */
GCKPTI_FN size_t gckpti_row_bytes(const gckpt_plan *p, const gckpti_node *q)
{
    return (size_t)gckpti_elements(&q->shape) / (size_t)p->rows * 4;
}

/* Bytes of an executor's own copy of its plan; a constant of the program is not copied. */
GCKPTI_FN size_t gckpti_copied_bytes(const gckpt_plan *p)
{
    return GCKPTI_RUNS_MADE && p->block ? gckpti_plan_copy(NULL, p) : 0;
}

/* Blocks of square sums; with tables, where each parameter's are. */
static size_t gckpti_exec_squares(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t n = 0;
    for (size_t i = 0; i < p->param_count; i++) {
        if (e->bound.params)
            e->bound.params[i].square = n;
        if (p->params[i].trained)
            n += ((size_t)p->params[i].elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
    }
    return n;
}

/* Bytes of what the backend has beside the arena, with `base` their places in it: what losses and
 * updates leave for the host; in memory of its own a micro-batch of the feeds and the constants,
 * which are then copied there. */
static size_t gckpti_exec_side(gckpt_exec *e, void *base)
{
    gckpti_block b = { (unsigned char *)base, 0 };
    const gckpt_plan *p = e->plan;
    const size_t leaves = (size_t)gckpti_own_leaves(p), squares = e->update.square_count;
    e->losses.totals =
        (gckpti_loss_total *)gckpti_carve(&b, p->term_count * leaves, sizeof *e->losses.totals);
    e->update.squares = (float *)gckpti_carve(&b, squares, sizeof *e->update.squares);
    if (e->desc.skip_nonfinite && gckpti_on(e)->nonfinite && p->optimiser != GCKPT_OWN_OPTIMISER)
        e->update.nonfinite = (uint32_t *)gckpti_carve(&b, 1, sizeof *e->update.nonfinite);
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_node *q = &p->nodes[i];
        size_t bytes = (size_t)gckpti_elements(&q->shape) * 4;
        void *to = NULL;
        if (gckpti_on(e)->own_memory && (q->kind == GCKPTI_CONSTANT || gckpti_is_fed(p, i)))
            to = gckpti_carve(&b, bytes, 1);
        if (base && q->kind == GCKPTI_INPUT)
            e->feeds.inputs[q->index].on_backend = (unsigned char *)to;
        if (base && q->kind == GCKPTI_CONSTANT)
            e->bound.nodes[i].data = to ? to : q->data;
        if (to && q->kind == GCKPTI_CONSTANT)
            gckpti_to_backend(e, to, q->data, bytes);
    }
    return b.used + !b.used; /* for a pointer that is not NULL */
}

/* What the host may borrow at once: a parameter's gradient, a piece of one that it unpacks, all
 * square sums, the operands of an op that the backend has no kernel for, or what a callback
 * offloads. */
static size_t gckpti_borrow_bytes(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t most = e->update.square_count * sizeof(float);
    for (size_t i = 0; i < p->param_count; i++) {
        int64_t n = p->params[i].trained                       ? p->params[i].elements
                    : p->params[i].storage != GCKPT_STORED_F32 ? GCKPTI_JOB
                                                               : 0;
        most = (size_t)n * sizeof(float) > most ? (size_t)n * sizeof(float) : most;
    }
    for (size_t id = 0; id < p->node_count; id++) {
        const gckpti_node *node = &p->nodes[id];
        gckpt_call c;
        if (node->kind != GCKPTI_OP || node->index < 0)
            continue;
        gckpti_exec_node n = gckpti_bind_kernels(e, node);
        if (n.forward && (n.backward || !node->op->backward))
            continue;
        gckpti_call_start(e, node, (int)id, p->rows, &c);
        c.plain = 1;
        (void)node->op->shape(&c);
        size_t bytes = c.work_forward > c.work_backward ? c.work_forward : c.work_backward;
        bytes += node->aux_bytes + 8 * (size_t)gckpti_elements(&node->shape);
        for (int i = 0; i < node->inputs; i++) /* values, gradient, low part */
            bytes += 12 * (size_t)gckpti_elements(&c.in[i].shape);
        bytes += GCKPTI_ALIGN * (size_t)(6 + 3 * node->inputs);
        most = bytes > most ? bytes : most;
    }
    return e->desc.offload && p->offloaded > most ? p->offloaded : most; /* no copy is larger */
}

/* As gckpti_exec_side, of what the host has: *tables bytes of tables; behind these, copies: with
 * desc.copy_feeds the whole batch of every input that is fed; beside memory of a backend's own what
 * gckpti_on_host and gckpti_borrow, and what gckpt_fetch returns, take; what is offloaded. */
static size_t gckpti_exec_host(gckpt_exec *e, void *base, size_t *tables)
{
    gckpti_block b = { (unsigned char *)base, 0 };
    const gckpt_plan *p = e->plan;
    const size_t terms = p->term_count, rows = (size_t)gckpt_plan_share(p, p->batch, 0, NULL);
    e->bound.nodes = (gckpti_exec_node *)gckpti_carve(&b, p->node_count, sizeof *e->bound.nodes);
    e->bound.params =
        (gckpti_exec_param *)gckpti_carve(&b, p->param_count, sizeof *e->bound.params);
    e->feeds.inputs = (gckpti_exec_input *)gckpti_carve(&b, p->inputs, sizeof *e->feeds.inputs);
    e->losses.terms = (gckpti_exec_term *)gckpti_carve(&b, terms, sizeof *e->losses.terms);
    e->recording.scales = (gckpt_loss_scale *)gckpti_carve(&b, terms, sizeof *e->recording.scales);
    gckpti_hash_tables(e, &b);
    gckpti_picks_tables(e, &b);
    gckpti_crew_tables(e, &b);
    *tables = b.used;
    if (!GCKPTI_RUNS_BACKENDS)
        return b.used;
    for (size_t i = 0; i < p->node_count && e->desc.copy_feeds && p->mode != GCKPT_INFERENCE; i++) {
        const gckpti_node *q = &p->nodes[i];
        void *to = gckpti_is_fed(p, i) ? gckpti_carve(&b, rows, gckpti_row_bytes(p, q)) : NULL;
        if (to)
            e->feeds.inputs[q->index].copy = (unsigned char *)to;
    }
    const size_t borrowed = gckpti_on(e)->own_memory ? gckpti_borrow_bytes(e) : 0;
    e->blocks.borrowed = (unsigned char *)gckpti_carve(&b, borrowed, 1);
    gckpti_picks_copies(e, &b);
    if (!e->offload.moves && !e->desc.offload)
        e->offload.far = (unsigned char *)gckpti_carve(&b, p->offloaded, 1);
    return b.used;
}

/* What it will take, piece by piece; returns the bytes that a block has to have for those that the
 * host has, with structures counted so many times. Needs no tables. */
static size_t gckpti_exec_sizes(gckpt_exec *e, size_t times)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = gckpti_on(e);
    const size_t host = !b->own_memory;
    size_t used = 0, tables;
    e->update.square_count = gckpti_exec_squares(e);
    e->offload.moves = b->own_memory && b->move && !e->desc.offload && p->offloaded;
    e->blocks.host_size = gckpti_exec_host(e, NULL, &tables);
    e->blocks.side_size = gckpti_exec_side(e, NULL);
    e->blocks.owned_size = e->desc.arena ? 0 : p->arena + p->alignment + GCKPTI_CANARY;
    gckpti_count_piece(&used, times, sizeof *e);
    gckpti_count_piece(&used, 1, gckpti_copied_bytes(p));
    gckpti_count_piece(&used, times, tables);
    gckpti_count_piece(&used, 1, e->blocks.host_size - tables);
    gckpti_count_piece(&used, host, e->blocks.side_size);
    gckpti_count_piece(&used, host, e->desc.caches_of ? 0 : p->kind_bytes[GCKPT_BYTES_CACHES]);
    gckpti_count_piece(&used, host, e->blocks.owned_size);
    return gckpti_count_block(used);
}

GCKPTI_FN size_t gckpti_exec_need(const gckpt_plan *plan, const gckpt_exec_desc *desc, size_t times)
{
    gckpt_exec e;
    gckpt_store none; /* for errors that nobody reads */
    memset(&e, 0, sizeof e);
    memset(&none, 0, sizeof none);
    e.plan = plan;
    e.store = &none;
    if (desc)
        e.desc = *desc;
    if (!plan || gckpti_check_backend(&none, plan, e.desc.backend) != GCKPT_OK ||
        gckpti_choose_backend(&e) != GCKPT_OK)
        return SIZE_MAX;
    return gckpti_exec_sizes(&e, times);
}

GCKPT_API size_t gckpt_exec_need(const gckpt_plan *plan, const gckpt_exec_desc *desc)
{
    return gckpti_exec_need(plan, desc, 1);
}

GCKPTI_FN size_t gckpti_store_need(const gckpt_plan *plan, size_t times)
{
    gckpt_parameter q;
    size_t used = 0, names = 0, n = plan ? plan->param_count : 0, last = 0, capacity = 0;
    while (capacity < n)
        capacity = gckpti_larger(capacity, 1);
    gckpti_count_piece(&used, times, sizeof(gckpt_store));
    gckpti_count_piece(&used, times * capacity, sizeof(gckpti_param));
    for (size_t i = 0; i < n; i++) {
        last = plan->params[i].place > plan->params[last].place ? i : last;
        names += strlen(plan->names + plan->params[i].name) + 1;
    }
    for (size_t k = 0; k < n; k++) { /* values, in the end those that are made last */
        size_t i = k + 1 == n ? last : k == last ? n - 1 : k;
        q.shape = plan->nodes[plan->params[i].node].shape;
        q.elements = plan->params[i].elements;
        q.storage = (gckpt_storage)plan->params[i].storage;
        if (q.storage == GCKPT_STORED_F32)
            q.elements = gckpti_shared(q.elements, 0, plan->ranks, plan->shard,
                                       GCKPT_SHARD_VALUES).room;
        gckpti_count_piece(&used, !plan->params[i].external, gckpti_values_bytes(&q));
    }
    for (size_t i = 0; i < n; i++)
        for (int slot = 0; slot < plan->state_slots && plan->params[i].trained; slot++)
            gckpti_count_piece(&used,
                               (size_t)gckpti_shared(plan->params[i].elements, 0, plan->ranks,
                                                     plan->shard, GCKPT_SHARD_STATE).room,
                               sizeof(float));
    if (plan && plan->made_for > GCKPTI_FOR_PLAIN) /* its backend may have memory of its own */
        gckpti_count_piece(&used, n, sizeof(gckpti_mirror));
    return gckpti_count_block(used + names);
}

GCKPT_API size_t gckpt_store_need(const gckpt_plan *plan) { return gckpti_store_need(plan, 1); }

/* The arena: the one given, or one of its own with a canary behind, which a kernel that writes too
 * far changes. */
static gckpt_result gckpti_exec_arena(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    unsigned char canary[GCKPTI_CANARY];
    e->blocks.arena = (unsigned char *)e->desc.arena;
    if (e->desc.arena)
        return e->desc.arena_size >= p->arena && (uintptr_t)e->desc.arena % p->alignment == 0
                   ? GCKPT_OK
                   : gckpti_error(
                         e->store, GCKPT_E_ARG,
                         "exec: the arena given has %z bytes; the plan needs %z, aligned to %z",
                         e->desc.arena_size, p->arena, p->alignment);
    e->blocks.owned =
        p->arena < PTRDIFF_MAX / 2 ? gckpti_take(e, e->blocks.owned_size, p->alignment) : NULL;
    if (!e->blocks.owned)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for the step arena of %z bytes%s", p->arena,
                            gckpti_shortage(e));
    size_t past = (size_t)((uintptr_t)e->blocks.owned % p->alignment);
    e->blocks.arena = (unsigned char *)e->blocks.owned + (past ? p->alignment - past : 0);
    memset(canary, GCKPTI_CANARY_BYTE, sizeof canary);
    gckpti_to_backend(e, e->blocks.arena + p->arena, canary, sizeof canary);
    return GCKPT_OK;
}

/* What nodes are to a run: inputs that must be fed, the kernels of ops. */
static void gckpti_bind_nodes(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_node *node = &p->nodes[i];
        if (node->kind == GCKPTI_INPUT)
            e->feeds.inputs[node->index].node = gckpti_is_fed(p, i) ? (int)i : -1;
        else if (node->kind == GCKPTI_OP && node->index >= 0)
            e->bound.nodes[i] = gckpti_bind_kernels(e, node);
    }
}

/* All memory a run will need, and what is known of nodes. */
GCKPTI_FN gckpt_result gckpti_exec_memory(gckpt_exec *e)
{
    (void)gckpti_exec_sizes(e, 1);
    size_t size = e->blocks.host_size, moved = e->offload.moves ? e->plan->offloaded : 0, tables;
    const int large = size >= (size_t)PTRDIFF_MAX / 2;
    e->blocks.host = large ? NULL : gckpti_new(&e->memory, size, 1);
    if (!e->blocks.host)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            large ? "exec: copies of the feeds are too large"
                                  : "exec: no memory for %z bytes of copied feeds and operands, "
                                    "and of tables",
                            size);
    (void)gckpti_exec_host(e, e->blocks.host, &tables);
    gckpti_bind_nodes(e);
    (void)gckpti_exec_squares(e);
    if (moved)
        e->offload.far = (unsigned char *)gckpti_on(e)->host_get(gckpti_on(e)->context, moved);
    if (moved && !e->offload.far)
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: %s has no host memory for %z bytes",
                            gckpti_on(e)->name, moved);
    e->blocks.side = gckpti_take(e, e->blocks.side_size, GCKPTI_ALIGN);
    if (!e->blocks.side)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for %z bytes of sums, feeds and constants%s",
                            e->blocks.side_size, gckpti_shortage(e));
    (void)gckpti_exec_side(e, e->blocks.side);
    gckpt_result result = gckpti_bind_caches(e);
    return result == GCKPT_OK ? gckpti_exec_arena(e) : result;
}

/* That nothing was written behind it. */
GCKPTI_FN gckpt_result gckpti_check_canary(gckpt_exec *e)
{
    unsigned char canary[GCKPTI_CANARY];
    if (e->blocks.owned)
        gckpti_from_backend(e, canary, e->blocks.arena + e->plan->arena, sizeof canary);
    for (size_t i = 0; e->blocks.owned && i < sizeof canary; i++)
        if (canary[i] != GCKPTI_CANARY_BYTE)
            return gckpti_error(e, GCKPT_E_DATA,
                                "step: a kernel wrote behind the arena of %z bytes",
                                e->plan->arena);
    return GCKPT_OK;
}
