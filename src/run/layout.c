#include "run/internal.h"
#include "graph/graph.h"

GCKPTI_COLD_BEGIN /* ends with the header */

/* Allocates the copy of the plan (a constant of the program is not copied) and the tables. */
static void gckpti_alloc_tables(gckpt_exec *e, gckpti_bump *bump)
{
    const gckpt_plan *p = e->plan;
    const size_t node_size = sizeof *e->tables.nodes, param_size = sizeof *e->tables.params;
    const size_t input_size = sizeof *e->feeds.inputs, term_size = sizeof *e->losses.terms;
    if (GCKPTI_RUNS_BUILT && p->block) {
        const size_t bytes = gckpti_plan_copy(bump->base, p);
        const void *copy = gckpti_bump_alloc(bump, bytes, 1);
        e->plan = copy ? (const gckpt_plan *)copy : p;
    }
    e->tables.nodes = (gckpti_exec_node *)gckpti_bump_alloc(bump, p->node_count, node_size);
    e->tables.params = (gckpti_exec_param *)gckpti_bump_alloc(bump, p->param_count, param_size);
    e->feeds.inputs = (gckpti_exec_input *)gckpti_bump_alloc(bump, p->inputs, input_size);
    e->losses.terms = (gckpti_exec_term *)gckpti_bump_alloc(bump, p->term_count, term_size);
    e->update.square_count = 0;
    e->losses.total_count = p->term_count;
    for (size_t i = 0; i < p->param_count && GCKPTI_RUNS_TRAINING; i++) {
        if (e->tables.params)
            e->tables.params[i].first_square = e->update.square_count;
        if (p->params[i].trained)
            e->update.square_count +=
                ((size_t)p->params[i].elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
    }
    (void)gckpti_notify(e, GCKPTI_ON_LAYOUT, bump);
}

/* Allocates the backend's copies of inputs and constants. Sets inputs, values of constants, and
 * kernels of ops. */
static void gckpti_bind_nodes(gckpt_exec *e, gckpti_bump *bump)
{
    const gckpt_plan *p = e->plan;
    const int own_memory = GCKPTI_OF(gckpti_backend(e), own_memory);
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_plan_node *q = &p->nodes[i];
        const int constant = q->kind == GCKPTI_CONSTANT;
        const size_t bytes = gckpti_planned_bytes(p, q);
        int fed = 0; /* an instruction reads this input */
        for (size_t x = 0; x < p->length && q->kind == GCKPTI_INPUT && !fed; x++)
            fed = p->ins[x].kind != GCKPT_UPDATE && gckpti_reads_node(p, p->ins[x].id, (int)i);
        void *to = own_memory && (fed || constant) ? gckpti_bump_alloc(bump, bytes, 1) : NULL;
        if (!e->blocks.host)
            continue;
        if (q->kind == GCKPTI_INPUT) {
            const gckpti_exec_input in = { fed ? (int)i : -1, NULL, (unsigned char *)to };
            e->feeds.inputs[q->index] = in;
        } else if (q->kind == GCKPTI_OP && q->index >= 0) {
            gckpti_find_kernels(e, q, &e->tables.nodes[i]);
            if (GCKPTI_RUNS_TILES && gckpti_is_fused_op(q->op))
                e->tables.nodes[i].forward = gckpti_fused_forward;
        } else if (constant) {
            e->tables.nodes[i].data = to ? to : q->data;
            if (to)
                gckpti_to_backend(e, to, q->data, bytes);
        }
    }
}

/* Places all memory, or counts it without blocks. Host block: plan, tables, host copies. Backend
 * block (or host block): states, feeds, sums, arena. Returns bytes of plan and tables. */
static size_t gckpti_exec_layout(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const int own_memory = GCKPTI_OF(gckpti_backend(e), own_memory);
    const size_t arena = e->desc.arena ? 0 : p->arena + p->alignment;
    gckpti_bump bumps[2] = { { e->blocks.host, 0 }, { e->blocks.backend, 0 } };
    gckpti_bump *bump = &bumps[own_memory != 0];
    gckpti_alloc_tables(e, bumps);
    const size_t tables = bumps[0].used;
    gckpti_bind_nodes(e, bump);
    if (GCKPTI_RUNS_DEVICES && own_memory != 0)
        e->blocks.host_scratch =
            (unsigned char *)gckpti_bump_alloc(bumps, gckpti_host_scratch_bytes(e), 1);
    e->losses.totals = (gckpti_loss_total *)gckpti_bump_alloc(bump, e->losses.total_count,
                                                              sizeof *e->losses.totals);
    e->update.squares = (float *)gckpti_bump_alloc(bump, e->update.square_count, sizeof(float));
    unsigned char *base = (unsigned char *)gckpti_bump_alloc(bump, arena, 1);
    if (base)
        base += (p->alignment - (uintptr_t)base % p->alignment) % p->alignment;
    e->blocks.arena = e->desc.arena ? (unsigned char *)e->desc.arena : base;
    e->blocks.host_size = bumps[0].used;
    e->blocks.backend_size = bumps[1].used;
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
    (void)gckpti_exec_layout(&e);
    size_t used = 0;
    gckpti_count_alloc(&used, 1, sizeof e);
    gckpti_count_alloc(&used, 1, e.blocks.host_size);
    return gckpti_count_block(used);
}

/* Allocates all memory of the executor, copies the plan, and binds the nodes. */
GCKPTI_FN gckpt_result gckpti_alloc_exec(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const size_t most = (size_t)PTRDIFF_MAX / 2, tables = gckpti_exec_layout(e);
    const size_t host_size = e->blocks.host_size, backend_size = e->blocks.backend_size;
    if (e->desc.arena && (e->desc.arena_size < p->arena || (uintptr_t)e->desc.arena % p->alignment))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: the arena given has %z bytes; the plan needs %z, aligned to %z",
                            e->desc.arena_size, p->arena, p->alignment);
    if (host_size < most)
        e->blocks.host = (unsigned char *)gckpti_resize(&e->memory, NULL, 0, host_size);
    if (!e->blocks.host)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for %z bytes of tables and copied operands%s",
                            host_size, backend_size ? "" : ", and the step arena");
    if (GCKPTI_RUNS_DEVICES && backend_size && gckpti_alloc_backend(e) != GCKPT_OK)
        return GCKPT_E_MEMORY;
    memset(e->blocks.host, 0, tables);
    (void)gckpti_exec_layout(e);
    return GCKPT_OK;
}
