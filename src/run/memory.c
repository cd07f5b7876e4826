#include "run/own.h"
#include "graph/graph.h"
#include "ask/ask.h"

/* The caches, one behind the other in graph order, so that other plans of a model have them in the
 * same places; or those of another executor. */
GCKPTI_FN gckpt_result gckpti_exec_caches(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan, *q = e->desc.caches_of ? e->desc.caches_of->plan : NULL;
    size_t bytes = p->kind_bytes[GCKPT_BYTES_CACHES], used = 0, k = 0;
    e->caches_of = e->desc.caches_of && bytes ? e->desc.caches_of->caches_of : e;
    int fit = !bytes || e->caches_of == e ||
              (e->desc.backend == e->caches_of->desc.backend && e->store == e->caches_of->store &&
               p->rows == q->rows && bytes == q->kind_bytes[GCKPT_BYTES_CACHES]);
    if (e->caches_of == e && bytes) {
        e->caches = (unsigned char *)gckpti_take(e, bytes, p->alignment);
        if (!e->caches)
            return gckpti_error(e->store, GCKPT_E_MEMORY,
                                "exec: no memory for %z bytes of caches%s", bytes,
                                gckpti_shortage(e));
        gckpti_fill(e, e->caches, gckpti_debug(e) & GCKPT_DEBUG_PAINT ? 0x7fc00000u : 0, bytes);
    }
    for (size_t i = 0; i < p->node_count && fit; i++) {
        const gckpti_node *node = &p->nodes[i];
        if (!gckpti_is_cache(node->op))
            continue;
        while (q && k < q->node_count && !gckpti_is_cache(q->nodes[k].op))
            k++;
        fit = !q || (k < q->node_count && gckpti_same_shape(&node->shape, &q->nodes[k++].shape));
        e->capacity = node->shape.d[1];
        e->news = p->nodes[node->in[0]].shape.d[1];
        e->nodes[i].data = gckpti_carve(e->caches_of->caches, &used, gckpti_node_bytes(node), 1);
    }
    return fit ? GCKPT_OK
               : gckpti_error(e->store, GCKPT_E_ARG,
                              "exec: desc.caches_of has other caches than this plan: both need the "
                              "same backend, store and rows, and caches of the same shapes in the "
                              "same order");
}

static gckpt_result gckpti_bind_caches(gckpt_exec *e)
{
    e->caches_of = e;
    return e->plan->caching ? e->plan->caching->make(e) : GCKPT_OK;
}

/* Blocks of square sums; with tables, where each parameter's are. */
static size_t gckpti_exec_squares(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t n = 0;
    for (size_t i = 0; i < p->param_count; i++) {
        if (e->params)
            e->params[i].square = n;
        if (p->params[i].trained)
            n += ((size_t)p->params[i].elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
    }
    return n;
}

/* What it will take, piece by piece; returns the bytes that a block has to have for those that the
 * host has, with structures counted so many times. Needs no tables. */
GCKPTI_FN size_t gckpti_exec_sizes(gckpt_exec *e, size_t times)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = gckpti_on(e);
    const size_t host = !b->own_memory;
    size_t used = 0;
    e->square_count = gckpti_exec_squares(e);
    e->moves = b->own_memory && b->move && !e->desc.offload && p->offloaded;
    e->tables_size = gckpti_exec_tables(e, NULL);
    e->side_size = gckpti_exec_side(e, NULL);
    e->copies_size = GCKPTI_LEAN ? 0 : gckpti_exec_copies(e, NULL);
    e->caches_size = e->desc.caches_of ? 0 : p->kind_bytes[GCKPT_BYTES_CACHES];
    e->owned_size = e->desc.arena ? 0 : p->arena + p->alignment + GCKPTI_CANARY;
    gckpti_count_piece(&used, times, sizeof *e);
    gckpti_count_piece(&used, 1, gckpti_copied_bytes(p));
    gckpti_count_piece(&used, times, e->tables_size);
    gckpti_count_piece(&used, host, e->side_size);
    gckpti_count_piece(&used, 1, e->copies_size);
    gckpti_count_piece(&used, host, e->caches_size);
    gckpti_count_piece(&used, host, e->owned_size);
    return gckpti_count_block(used);
}

/* Host memory for what is offloaded, and for copies. */
static gckpt_result gckpti_exec_host(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    if (e->moves)
        e->far = (unsigned char *)gckpti_on(e)->host_get(gckpti_on(e)->context, p->offloaded);
    if (e->moves && !e->far)
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: %s has no host memory for %z bytes",
                            gckpti_on(e)->name, p->offloaded);
    int large = e->copies_size >= (size_t)PTRDIFF_MAX / 2;
    if (e->copies_size && !large)
        e->copies = gckpti_new(&e->memory, e->copies_size, 1);
    if (e->copies_size && !e->copies)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            large ? "exec: copies of the feeds are too large"
                                  : "exec: no memory for %z bytes of copied feeds and operands",
                            e->copies_size);
    if (e->copies)
        gckpti_exec_copies(e, (unsigned char *)e->copies);
    return GCKPT_OK;
}

/* All memory a run will need. */
GCKPTI_FN gckpt_result gckpti_exec_memory(gckpt_exec *e)
{
    (void)gckpti_exec_sizes(e, 1);
    e->tables = gckpti_new(&e->memory, e->tables_size, 1);
    if (!e->tables)
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: no memory for its tables");
    gckpti_exec_tables(e, (unsigned char *)e->tables);
    gckpt_result result = gckpti_bind_params(e);
    if (result != GCKPT_OK)
        return result;
    if (gckpti_ranking_of(e->plan))
        result = gckpti_ranking_of(e->plan)->bind(e);
    if (result != GCKPT_OK)
        return result;
    gckpti_bind_nodes(e);
    if (e->plan->picking)
        e->plan->picking->bind(e);
    (void)gckpti_exec_squares(e);
    e->side = gckpti_take(e, e->side_size, GCKPTI_ALIGN);
    if (!e->side)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for %z bytes of sums, feeds and constants%s",
                            e->side_size, gckpti_shortage(e));
    gckpti_exec_side(e, (unsigned char *)e->side);
    e->due = INT32_MAX;
    result = GCKPTI_LEAN ? GCKPT_OK : gckpti_exec_host(e);
    if (result == GCKPT_OK)
        result = gckpti_bind_caches(e);
    return result == GCKPT_OK ? gckpti_exec_arena(e) : result;
}

/* Brings a parameter's newest values and state to where this executor has them. */
GCKPTI_FN gckpt_result gckpti_bring(gckpt_exec *e, gckpti_param *q)
{
    if (!gckpti_on(e)->own_memory)
        gckpti_pull(e->store, q);
    else if (!gckpti_push(e->store, q, e->desc.backend))
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: %s has no memory for \"%s\"%s",
                            gckpti_on(e)->name, q->p.name, gckpti_shortage(e));
    return GCKPT_OK;
}

/* What can be refused before there is an executor. */
GCKPTI_FN gckpt_result gckpti_check_binding(gckpt_store *s, const gckpt_plan *p,
                                            const gckpt_exec_desc *desc)
{
    if (!p)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan is NULL (see gckpt_error_text of its graph)");
    const gckpti_range ranges[] = { { "isa", desc ? (int)desc->isa : 0, 0, GCKPT_ISA_COUNT - 1 },
                                    { "debug", desc ? (int64_t)desc->debug : 0, 0,
                                      GCKPTI_LEAN ? 0 : 2 * GCKPT_DEBUG_FINITE - 1 } };
    if (!gckpti_in_range(s, "exec", ranges, sizeof ranges / sizeof *ranges))
        return GCKPT_E_ARG;
    gckpt_result result = gckpti_check_plan(s, p);
    if (result == GCKPT_OK && (p->ranks != s->ranks || (p->ranks > 1 && p->shard != s->shard)))
        result = gckpti_error(s, GCKPT_E_ARG,
                              "exec: the plan was made for %i ranks and shard %i, the store is for "
                              "%i and %i (gckpt_store_ranks): make a new plan",
                              p->ranks, (int)p->shard, s->ranks, (int)s->shard);
    if (result == GCKPT_OK)
        result = gckpti_check_backend(s, p, desc ? desc->backend : NULL);
    if (result == GCKPT_OK && p->optimiser == GCKPT_OWN_OPTIMISER && p->mode != GCKPT_INFERENCE &&
        (!desc || !desc->own_optimiser))
        result =
            gckpti_error(s, GCKPT_E_ARG,
                         "exec: the plan has GCKPT_OWN_OPTIMISER; desc.own_optimiser is missing");
    if (result == GCKPT_OK && desc && desc->skip_nonfinite && p->update_in_backward)
        result = gckpti_error(
            s, GCKPT_E_ARG,
            "exec: skip_nonfinite needs all gradients before the first update; this plan updates "
            "in the backward (desc.update_in_backward)");
    if (result == GCKPT_OK && GCKPTI_LEAN && desc &&
        (desc->copy_feeds || desc->own_optimiser || desc->parallel_for))
        result = gckpti_error(s, GCKPT_E_ARG,
                              "exec: GCKPT_SMALL has no copy_feeds, own_optimiser, parallel_for");
    if (result == GCKPT_OK && desc && !desc->offload != !desc->reload)
        result = gckpti_error(s, GCKPT_E_ARG,
                              "exec: desc.offload and desc.reload come together, or not at all");
    return result;
}
