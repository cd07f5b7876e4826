#include "run/own.h"
#include "graph/graph.h"

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
        e->bound.params[i].index = index;
        size_t at = i;
        for (; at > 0 && e->bound.params[e->bound.params[at - 1].nth].index > index; at--)
            e->bound.params[at].nth = e->bound.params[at - 1].nth;
        e->bound.params[at].nth = (int)i;
    }
    return GCKPT_OK;
}

/* Which inputs must be fed, and the kernels that run. */
GCKPTI_FN void gckpti_bind_nodes(gckpt_exec *e)
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

/* Whether a parameter has state that the plan's optimiser would take for its own. */
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
        const gckpti_param *q = &s->params[e->bound.params[e->bound.params[i].nth].index];
        gckpti_count_piece(&used, !gckpti_is_made(q), gckpti_array_bytes(s, q, 0));
    }
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = &s->params[e->bound.params[i].index];
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
        const gckpti_param *q = &s->params[e->bound.params[i].index];
        int wanted = p->params[i].trained ? p->state_slots : 0, had = gckpti_state_slots(q);
        if (wanted && gckpti_others_state(p, q))
            return gckpti_error(s, GCKPT_E_ARG,
                                "exec: \"%s\" holds state of another optimiser; "
                                "gckpt_store_reset clears it",
                                q->p.name);
        bytes += gckpti_array_bytes(s, q, 1) * (size_t)(wanted > had ? wanted - had : 0);
        bytes += gckpti_is_made(q) ? 0 : gckpti_array_bytes(s, q, 0);
        e->bound.params[i].had = had;
    }
    if (bytes && !gckpti_has_room(&s->memory, bytes))
        result = gckpti_error(s, GCKPT_E_MEMORY,
                              "exec: no memory for the %z bytes of values and optimiser state that "
                              "the plan's %z parameters, \"%s\" first, still need",
                              bytes, p->param_count,
                              s->params[e->bound.params[e->bound.params[0].nth].index].p.name);
    for (size_t i = 0; i < p->param_count && result == GCKPT_OK; i++)
        result =
            gckpti_values_new(s, &s->params[e->bound.params[e->bound.params[i].nth].index], "exec");
    for (; states < p->param_count && result == GCKPT_OK; states++) {
        gckpti_param *q = &s->params[e->bound.params[states].index];
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
        gckpti_state_shrink(s, &s->params[e->bound.params[states].index],
                            e->bound.params[states].had);
    gckpti_values_undo(s);
    return result;
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
