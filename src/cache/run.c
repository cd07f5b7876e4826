#include "attention/attention.h"
#include "graph/graph.h"
#include "run/internal.h"

#ifndef GCKPT_NO_CACHES
/* Returns the window of a node that is a gckpt_cache_window, or 0. */
static int gckpti_cache_window(const gckpt_plan *p, const gckpti_plan_node *node)
{
    const gckpti_cache *cache = (const gckpti_cache *)(p->words + node->attributes);
    return gckpti_is_variable(node->op) ? cache->window : 0;
}

/* Checks that a call can resume at a position: windowed caches overwrite old rows. Readers other
 * than attention resume where the last call began, or later. */
static gckpt_result gckpti_check_resumable(gckpt_exec *e, const char *what, int64_t position)
{
    const gckpt_plan *p = e->plan;
    const int64_t written = e->caches.owner->caches.max_written;
    const int64_t begun = e->caches.owner->caches.begun;
    int64_t from = 0;
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_plan_node *node = &p->nodes[i];
        const int of = node->inputs ? p->nodes[node->in[node->inputs > 1]].base : (int)i;
        const gckpti_plan_node *read = &p->nodes[of];
        const gckpti_attention *o = (const gckpti_attention *)(p->words + node->attributes);
        const int64_t rows = gckpti_planned_shape(p, read).d[1];
        const int attends = node->inputs == 3;
        if (read == node || !gckpti_cache_window(p, read) || (attends && written <= rows))
            continue;
        const int64_t first = attends ? written - rows + o->window - 1 : begun;
        from = first > from ? first : from;
    }
    if (position == 0 || position >= from)
        return GCKPT_OK;
    return gckpti_error(e, GCKPT_E_ARG,
                        "%s: cannot continue at position %I. Calls reached %I; with the windows "
                        "used, calls can resume from %I on, or from 0",
                        what, position, written, from);
}

/* Places caches in graph order, or uses those of desc.caches_of. Without tables, only checks. */
static gckpt_result gckpti_bind_caches(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t bytes = p->kind_bytes[GCKPT_BYTES_CACHES], k = 0;
    gckpt_exec *other = e->desc.caches_of && bytes ? e->desc.caches_of->caches.owner : e;
    const gckpt_plan *owner = other->plan;
    int fit = e->desc.backend == other->desc.backend && e->store == other->store &&
              p->rows == owner->rows && bytes == owner->kind_bytes[GCKPT_BYTES_CACHES];
    const uint32_t word = gckpti_debug(e) & GCKPT_DEBUG_POISON ? 0x7fc00000u : 0;
    e->caches.owner = other;
    if (other == e && e->caches.values)
        gckpti_fill(e, e->caches.values, word, bytes);
    gckpti_bump caches = { other->caches.values, 0 };
    for (size_t i = 0; i < p->node_count && fit; i++) {
        const gckpti_plan_node *node = &p->nodes[i];
        if (!gckpti_is_variable(node->op))
            continue;
        while (k < owner->node_count && !gckpti_is_variable(owner->nodes[k].op))
            k++;
        const gckpti_plan_node *its = &owner->nodes[k < owner->node_count ? k++ : 0];
        const gckpt_shape s = gckpti_planned_shape(p, node), t = gckpti_planned_shape(owner, its);
        fit = gckpti_is_variable(its->op) && gckpti_same_shape(&s, &t) &&
              !gckpti_cache_window(p, node) == !gckpti_cache_window(owner, its);
        e->caches.capacity = ((const gckpti_cache *)(p->words + node->attributes))->capacity;
        e->caches.new_positions = gckpti_planned_shape(p, &p->nodes[node->in[0]]).d[1];
        e->tables.nodes[i].data = gckpti_bump_alloc(&caches, gckpti_planned_bytes(p, node), 1);
    }
    return fit ? GCKPT_OK
               : gckpti_error(e->store, GCKPT_E_ARG,
                              "exec: desc.caches_of has other caches than this plan: both need the "
                              "same backend, store and rows, and caches of the same kinds and "
                              "shapes in the same order");
}

/* Checks that the caches have space for the positions that a forward of `rows` rows adds. */
static gckpt_result gckpti_check_caches(gckpt_exec *e, int64_t rows)
{
    const gckpti_cache_state *caches = &e->caches.owner->caches;
    const int64_t position = caches->position, held = caches->rows;
    if (!e->plan->kind_bytes[GCKPT_BYTES_CACHES])
        return GCKPT_OK;
    if (e->plan->virtual_ranks > 1)
        return gckpti_error(e, GCKPT_E_ARG,
                            "forward: caches hold rows of a whole call, %i virtual ranks would "
                            "divide it: plan with desc.ranks.virtual_ranks 1",
                            e->plan->virtual_ranks);
    if (rows > e->plan->rows || (position > 0 && rows > held))
        return gckpti_error(e, GCKPT_E_ARG,
                            "forward: %I rows; the caches hold %I: give as many rows, or call "
                            "gckpt_rewind to 0 first (then 1 to %I rows fit)",
                            rows, position > 0 ? held : e->plan->rows, e->plan->rows);
    if (e->caches.new_positions > e->caches.capacity - position)
        return gckpti_error(e, GCKPT_E_ARG,
                            "forward: this adds %I positions to the %I that the caches hold; there "
                            "is room for %I in all (gckpt_rewind makes room)",
                            e->caches.new_positions, position, e->caches.capacity);
    return gckpti_check_resumable(e, "forward", position);
}

GCKPT_API int64_t gckpt_position(const gckpt_exec *exec)
{
    return exec ? exec->caches.owner->caches.position : 0;
}

GCKPT_API gckpt_result gckpt_rewind(gckpt_exec *exec, int64_t position)
{
    if (!exec)
        return GCKPT_E_ARG;
    gckpti_cache_state *caches = &exec->caches.owner->caches;
    if (position < 0 || position > caches->position)
        return gckpti_error(exec, GCKPT_E_ARG, "rewind: position %I; it must be from 0 to %I",
                            position, caches->position);
    if (gckpti_check_resumable(exec, "rewind", position) != GCKPT_OK)
        return GCKPT_E_ARG;
    caches->position = position;
    if (position == 0)
        caches->max_written = 0;
    return gckpti_ok(exec);
}

GCKPTI_MODULE(cache)
{
    const int64_t position = e->caches.owner ? e->caches.owner->caches.position : 0;
    const int64_t end = position + e->caches.new_positions;
    switch (event) {
    case GCKPTI_ON_LAYOUT:
        if (!e->desc.caches_of)
            e->caches.values = (unsigned char *)gckpti_bump_alloc(
                (gckpti_bump *)arg + (GCKPTI_OF(gckpti_backend(e), own_memory) != 0),
                e->plan->kind_bytes[GCKPT_BYTES_CACHES], 1);
        break;
    case GCKPTI_ON_BIND: return gckpti_bind_caches(e);
    case GCKPTI_ON_FED: return gckpti_check_caches(e, *(const int64_t *)arg);
    case GCKPTI_ON_BEGIN: /* beyond a cache's length, the oldest positions are overwritten */
        e->step.position = e->caches.owner->caches.begun = position;
        if (e->caches.owner->caches.max_written < end)
            e->caches.owner->caches.max_written = end;
        break;
    case GCKPTI_ON_SUCCESS:
        e->caches.owner->caches.position = end;
        e->caches.owner->caches.rows = e->step.row_end - e->step.first_row;
        break;
    default: break;
    }
    return GCKPT_OK;
}
#endif
