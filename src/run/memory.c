#include "run/own.h"
#include "graph/graph.h"

GCKPTI_COLD

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
    return gckpti_on(e)->memory_hint ? gckpti_on(e)->memory_hint(gckpti_on(e)->context) : "";
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
    return gckpti_node_bytes(p, q) / (size_t)p->rows;
}

/* Bytes of an executor's own copy of its plan; a constant of the program is not copied. */
static size_t gckpti_copied_bytes(const gckpt_plan *p)
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
        if (GCKPTI_RUNS_TRAINING && p->params[i].trained)
            n += ((size_t)p->params[i].elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
    }
    return n;
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
                    : p->params[i].storage != GCKPT_STORAGE_F32 ? GCKPTI_JOB
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
        size_t bytes = c.workspace_forward > c.workspace_backward ? c.workspace_forward : c.workspace_backward;
        bytes += node->aux_bytes + 8 * (size_t)gckpti_planned_elements(p, node);
        for (int i = 0; i < node->inputs; i++) /* values, gradient, low part */
            bytes += 12 * (size_t)gckpti_elements(&c.in[i].shape);
        bytes += GCKPTI_ALIGN * (size_t)(6 + 3 * node->inputs);
        most = bytes > most ? bytes : most;
    }
    return e->desc.offload && p->offloaded > most ? p->offloaded : most; /* no copy is larger */
}

/* The host's copy of the plan, and the tables. */
static void gckpti_exec_tables(gckpt_exec *e, gckpti_block *b)
{
    const gckpt_plan *p = e->plan;
    (void)gckpti_carve(b, gckpti_copied_bytes(p), 1);
    e->bound.nodes = (gckpti_exec_node *)gckpti_carve(b, p->node_count, sizeof *e->bound.nodes);
    e->bound.params = (gckpti_exec_param *)gckpti_carve(b, p->param_count, sizeof *e->bound.params);
    if (gckpti_plan_rounds(p) && p->bf16_weights)
        e->bound.copies = (gckpti_weight *)gckpti_carve(b, p->param_count, sizeof *e->bound.copies);
    e->feeds.inputs = (gckpti_exec_input *)gckpti_carve(b, p->inputs, sizeof *e->feeds.inputs);
    e->losses.terms = (gckpti_exec_term *)gckpti_carve(b, p->term_count, sizeof *e->losses.terms);
    gckpti_recording_tables(e, b);
    e->update.square_count = gckpti_exec_squares(e);
    gckpti_hash_tables(e, b);
    gckpti_picks_tables(e, b);
    gckpti_crew_tables(e, b);
}

/* What nodes are to a run: inputs that must be fed, with room for the batch (desc.copy_feeds), in
 * memory of the backend's own for a micro-batch; constants, which are copied there; kernels. */
static void gckpti_exec_nodes(gckpt_exec *e, gckpti_block *host, gckpti_block *on)
{
    const gckpt_plan *p = e->plan;
    const int own = gckpti_on(e)->own_memory;
    const int copies = GCKPTI_RUNS_BACKENDS && e->desc.copy_feeds && p->mode != GCKPT_INFERENCE;
    const size_t rows = (size_t)gckpt_plan_rank_rows(p, p->batch, 0, NULL);
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_node *q = &p->nodes[i];
        const int fed = gckpti_is_fed(p, i), constant = q->kind == GCKPTI_CONSTANT;
        const size_t bytes = gckpti_node_bytes(p, q);
        void *copy = copies && fed ? gckpti_carve(host, rows, gckpti_row_bytes(p, q)) : NULL;
        void *to = own && (fed || constant) ? gckpti_carve(on, bytes, 1) : NULL;
        if (!host->base)
            continue;
        if (q->kind == GCKPTI_INPUT) {
            const gckpti_exec_input in = { fed ? (int)i : -1, NULL, (unsigned char *)copy,
                                           (unsigned char *)to };
            e->feeds.inputs[q->index] = in;
        } else if (q->kind == GCKPTI_OP && q->index >= 0) {
            e->bound.nodes[i] = gckpti_bind_kernels(e, q);
        } else if (constant) {
            e->bound.nodes[i].data = to ? to : q->data;
            if (to)
                gckpti_to_backend(e, to, q->data, bytes);
        }
    }
}

/* All it has beside itself, counted, or carved from two blocks: the host's, and where the backend
 * computes: the same one, but for memory of its own. There lie what losses and updates leave for
 * the host, the caches, the arena, unless one was given, and a canary, which a kernel changes that
 * writes too far. Returns the bytes of plan and tables, which come first. */
static size_t gckpti_exec_pieces(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *by = gckpti_on(e);
    const int apart = GCKPTI_RUNS_BACKENDS && by->own_memory;
    const size_t arena = e->desc.arena ? 0 : p->arena + GCKPTI_CANARY;
    const size_t cached = e->desc.caches_of ? 0 : p->kind_bytes[GCKPT_BYTES_CACHES];
    const size_t caches = gckpti_round_up(cached, p->alignment);
    const size_t copied = gckpti_round_up(p->kind_bytes[GCKPT_BYTES_COPIES], p->alignment);
    gckpti_block host = { e->blocks.host, 0 }, own = { e->blocks.own, 0 };
    gckpti_block *on = apart ? &own : &host;
    e->offload.moves = apart && by->copy_async && !e->desc.offload && p->offloaded;
    e->offload.begins = e->offload.moves || (!apart && e->desc.wait);
    size_t copies = 0; /* begun at once, at the most */
    for (size_t x = 0; x < p->length && e->offload.begins; x++)
        copies += p->list[x].kind == GCKPT_OFFLOAD || p->list[x].kind == GCKPT_RELOAD ? 2 : 0;
    gckpti_exec_tables(e, &host);
    e->offload.due = (int *)gckpti_carve(&host, copies, sizeof *e->offload.due);
    const size_t tables = host.used;
    gckpti_exec_nodes(e, &host, on);
    if (apart)
        e->blocks.borrowed = (unsigned char *)gckpti_carve(&host, gckpti_borrow_bytes(e), 1);
    if (GCKPTI_RUNS_BACKENDS && !e->offload.moves && !e->desc.offload)
        e->offload.far = (unsigned char *)gckpti_carve(&host, p->offloaded, 1);
    e->losses.totals = (gckpti_loss_total *)gckpti_carve(
        on, p->term_count * (size_t)gckpti_own_leaves(p), sizeof *e->losses.totals);
    e->update.squares =
        (float *)gckpti_carve(on, e->update.square_count, sizeof *e->update.squares);
    if (e->desc.skip_nonfinite && by->nonfinite && p->optimiser != GCKPT_CUSTOM_OPTIMISER)
        e->update.nonfinite = (uint32_t *)gckpti_carve(on, 1, sizeof *e->update.nonfinite);
    const size_t aligned = gckpti_add_bytes(gckpti_add_bytes(copied, caches), arena);
    unsigned char *at = (unsigned char *)gckpti_carve(on, aligned ? p->alignment : 0, 1);
    (void)gckpti_carve(on, aligned, 1);
    if (at)
        at += (p->alignment - (uintptr_t)at % p->alignment) % p->alignment;
    gckpti_mixed_copies(e, at);
    e->blocks.caches = at = at ? at + copied : NULL;
    e->blocks.arena = e->desc.arena ? (unsigned char *)e->desc.arena : at ? at + caches : NULL;
    e->blocks.host_size = host.used;
    e->blocks.own_size = own.used;
    return tables;
}

GCKPT_API size_t gckpt_exec_need(const gckpt_plan *plan, const gckpt_exec_desc *desc)
{
    gckpt_exec e;
    gckpt_store none; /* for errors that nobody reads */
    memset(&e, 0, sizeof e);
    memset(&none, 0, sizeof none);
    e.plan = plan;
    e.store = &none;
    if (desc)
        e.desc = *desc;
    if (!plan || gckpti_choose_backend(&e) != GCKPT_OK)
        return SIZE_MAX;
    (void)gckpti_exec_pieces(&e);
    size_t used = 0;
    gckpti_count_piece(&used, 1, sizeof e);
    gckpti_count_piece(&used, 1, e.blocks.host_size);
    return gckpti_count_block(used);
}

GCKPT_API size_t gckpt_store_need(const gckpt_plan *plan)
{
    gckpt_parameter q;
    size_t used = 0, names = 0, n = plan ? plan->param_count : 0, last = 0, capacity = 0;
    while (capacity < n)
        capacity = gckpti_larger(capacity, 1);
    gckpti_count_piece(&used, 1, sizeof(gckpt_store));
    gckpti_count_piece(&used, capacity, sizeof(gckpti_param));
    used = gckpti_round_up(used, GCKPTI_ALIGN); /* as gckpti_c_needs has it */
    for (size_t i = 0; i < n; i++) {
        last = plan->params[i].place > plan->params[last].place ? i : last;
        names += gckpti_length(plan->names + plan->params[i].name) + 1;
    }
    for (size_t k = 0; k < n; k++) { /* values, in the end those that are made last */
        size_t i = k + 1 == n ? last : k == last ? n - 1 : k;
        q.shape = gckpti_planned_shape(plan, &plan->nodes[plan->params[i].node]);
        q.elements = plan->params[i].elements;
        q.storage = (gckpt_storage)plan->params[i].storage;
        if (q.storage == GCKPT_STORAGE_F32)
            q.elements =
                gckpti_shared(q.elements, 0, plan->ranks, plan->shard, GCKPT_SHARD_VALUES).room;
        gckpti_count_piece(&used, !plan->params[i].external, gckpti_values_bytes(&q));
    }
    for (size_t i = 0; i < n; i++) {
        const gckpti_share share = gckpti_shared(plan->params[i].elements, 0, plan->ranks,
                                                 plan->shard, GCKPT_SHARD_STATE);
        for (int slot = 0; slot < plan->state_slots && plan->params[i].trained; slot++)
            gckpti_count_piece(&used, (size_t)share.room, sizeof(float));
    }
    if (plan && plan->made_for > GCKPTI_FOR_PLAIN) /* its backend may have memory of its own */
        gckpti_count_piece(&used, n, sizeof(gckpti_mirror));
    return gckpti_count_block(used + names);
}

/* All memory a run will need, and what is known of nodes. */
GCKPTI_FN gckpt_result gckpti_exec_memory(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = gckpti_on(e);
    const size_t most = (size_t)PTRDIFF_MAX / 2, tables = gckpti_exec_pieces(e);
    const size_t host = e->blocks.host_size, own = e->blocks.own_size;
    unsigned char canary[GCKPTI_CANARY];
    if (e->desc.arena && (e->desc.arena_size < p->arena || (uintptr_t)e->desc.arena % p->alignment))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: the arena given has %z bytes; the plan needs %z, aligned to %z",
                            e->desc.arena_size, p->arena, p->alignment);
    if (host < most)
        e->blocks.host = (unsigned char *)gckpti_resize(&e->memory, NULL, 0, host);
    if (!e->blocks.host)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for %z bytes of tables, copied feeds and operands%s",
                            host, own ? "" : ", and the step arena");
    if (own && own < most)
        e->blocks.own = (unsigned char *)b->allocate(b->context, own, p->alignment);
    if (own && !e->blocks.own)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for %z bytes of arena, sums, feeds, caches%s", own,
                            gckpti_shortage(e));
    if (e->offload.moves)
        e->offload.far = (unsigned char *)b->host_get(b->context, p->offloaded);
    if (e->offload.moves && !e->offload.far)
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: %s has no host memory for %z bytes",
                            b->name, p->offloaded);
    memset(e->blocks.host, 0, tables);
    if (gckpti_copied_bytes(p)) {
        gckpti_plan_copy(e->blocks.host, p);
        e->plan = (const gckpt_plan *)(const void *)e->blocks.host;
    }
    (void)gckpti_exec_pieces(e);
    memset(canary, GCKPTI_CANARY_BYTE, sizeof canary);
    if (!e->desc.arena)
        gckpti_to_backend(e, e->blocks.arena + p->arena, canary, sizeof canary);
    return GCKPT_OK;
}

/* That nothing was written behind the arena. */
GCKPTI_FN gckpt_result gckpti_check_canary(gckpt_exec *e)
{
    unsigned char canary[GCKPTI_CANARY];
    if (!e->desc.arena)
        gckpti_from_backend(e, canary, e->blocks.arena + e->plan->arena, sizeof canary);
    for (size_t i = 0; !e->desc.arena && i < sizeof canary; i++)
        if (canary[i] != GCKPTI_CANARY_BYTE)
            return gckpti_error(e, GCKPT_E_DATA,
                                "step: a kernel wrote behind the arena of %z bytes",
                                e->plan->arena);
    return GCKPT_OK;
}

GCKPTI_WARM
