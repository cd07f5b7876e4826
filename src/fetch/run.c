#include "run/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_FETCH
static size_t gckpti_fetch_bytes(const gckpt_plan *p, const gckpti_plan_fetch *fetch)
{
    return (size_t)gckpti_planned_elements(p, &p->nodes[fetch->id]) * sizeof(float);
}

/* Returns 1 if an instruction computes node id's value or (gradient 1) adds to its gradient. */
static int gckpti_computes(const gckpt_plan *p, const gckpti_ins *ins, int id, int gradient)
{
    int tensor = gckpti_ins_node(p, ins);
    int backward = ins->kind == GCKPT_BACKWARD || ins->kind == GCKPT_UPDATE;
    if (!gradient)
        return tensor == id && gckpti_defines(ins->kind) &&
               p->operands[ins->operands] != GCKPTI_NO_OFFSET;
    return backward &&
           (p->nodes[id].batch_invariant ? tensor == id : gckpti_reads_node(p, tensor, id));
}

/* Returns the instruction that completes a fetch, or p->length if the step's end does. */
static int gckpti_fetch_ready_at(const gckpt_plan *p, const gckpti_plan_fetch *fetch)
{
    int x = (int)p->length;
    while (x-- > 0 && !gckpti_computes(p, &p->ins[x], p->nodes[fetch->id].base, fetch->gradient))
        continue;
    return x < 0 ? (int)p->length : x;
}

/* Allocates the table of fetches and, if the backend has own memory, gckpt_fetch's host copies. */
static void gckpti_alloc_fetches(gckpt_exec *e, gckpti_bump *bump)
{
    e->fetches =
        (gckpti_exec_fetch *)gckpti_bump_alloc(bump, e->plan->fetch_count, sizeof *e->fetches);
    for (size_t k = 0; k < e->plan->fetch_count && GCKPTI_OF(gckpti_backend(e), own_memory); k++) {
        void *copy = gckpti_bump_alloc(bump, gckpti_fetch_bytes(e->plan, &e->plan->fetches[k]), 1);
        if (copy)
            e->fetches[k].copy = (float *)copy;
    }
}

/* If a parameter's gradient is fetched, lets updates store divided gradients. */
static void gckpti_note_gradient_fetches(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->fetch_count; i++)
        if (p->fetches[i].gradient &&
            p->nodes[p->nodes[p->fetches[i].id].base].kind == GCKPTI_PARAM)
            e->update.writes_back = 1;
}

/* Returns the index of a fetch; -1, with an error, if the plan does not have it. */
static int gckpti_fetch_index(gckpt_exec *e, const char *who, int id, int gradient)
{
    const gckpt_plan *p = e->plan;
    for (size_t k = 0; k < p->fetch_count; k++)
        if (p->fetches[k].id == id && !p->fetches[k].gradient == !gradient)
            return (int)k;
    gckpti_error(e, GCKPT_E_ARG,
                 "%s: %s %i, \"%s\", is not fetched: name it in gckpt_plan_desc.fetch", who,
                 gradient ? "the gradient of tensor" : "tensor", id, gckpt_plan_name(p, id));
    return -1;
}

GCKPT_API const float *gckpt_fetch(gckpt_exec *exec, int id, int gradient)
{
    int k = exec ? gckpti_fetch_index(exec, "fetch", id, gradient) : -1;
    if (k < 0)
        return NULL;
    const gckpti_plan_fetch *fetch = &exec->plan->fetches[k];
    const int ready = exec->step.finished ? -1 : gckpti_fetch_ready_at(exec->plan, fetch);
    if (exec->step.pc <= ready) {
        gckpti_error(exec, GCKPT_E_ARG, "fetch: %s \"%s\" #%i is not computed yet: %s",
                     gradient ? "the gradient of" : "the value of", gckpt_plan_name(exec->plan, id),
                     id,
                     ready < (int)exec->plan->length ? "the step has not reached it"
                                                     : "it is complete at the end of the step");
        return NULL;
    }
    const float *here = gckpti_arena_f32(exec, fetch->offset);
    if (GCKPTI_RUNS_DEVICES && exec->fetches[k].copy) {
        gckpti_from_backend(exec, exec->fetches[k].copy, here,
                            gckpti_fetch_bytes(exec->plan, fetch));
        return exec->fetches[k].copy;
    }
    return here;
}

/* Returns how many elements `rows` rows of a tensor have, if a whole micro-batch has n elements. */
static int64_t gckpti_row_elements(const gckpt_plan *p, int64_t n, int64_t rows)
{
    return rows / p->rows * n + n / p->rows * (rows % p->rows);
}

/* Checks that gckpt_collect's arrays have space for the executor's rows and `more` further ones. */
static gckpt_result gckpti_check_collected(gckpt_exec *e, int64_t more)
{
    const gckpt_plan *p = e->plan;
    const int64_t rows = e->step.row_end - e->step.first_row + more;
    for (size_t k = 0; k < p->fetch_count; k++) {
        const gckpti_exec_fetch *fetch = &e->fetches[k];
        int64_t n = gckpti_planned_elements(p, &p->nodes[p->fetches[k].id]);
        const int64_t room = (int64_t)fetch->size; /* PTRDIFF_MAX / 4 at most */
        if (fetch->to && (rows / p->rows > room / n || gckpti_row_elements(p, n, rows) > room))
            return gckpti_error(e, GCKPT_E_ARG,
                                "collect: %I rows of \"%s\" #%i do not fit into the %z floats of "
                                "the array (%I floats for each micro-batch of %I rows)",
                                rows, gckpti_planned_name(p, p->fetches[k].id), p->fetches[k].id,
                                fetch->size, n, p->rows);
    }
    return GCKPT_OK;
}

GCKPT_API gckpt_result gckpt_collect(gckpt_exec *exec, int id, int gradient, float *to, size_t size)
{
    int k = exec ? gckpti_fetch_index(exec, "collect", id, gradient) : -1;
    if (k < 0)
        return GCKPT_E_ARG;
    if (exec->plan->nodes[id].batch_invariant)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "collect: \"%s\" #%i has no batch axis, thus no rows: use gckpt_fetch",
                            gckpt_plan_name(exec->plan, id), id);
    gckpti_exec_fetch before = exec->fetches[k];
    exec->fetches[k].to = to;
    exec->fetches[k].size = size < PTRDIFF_MAX / 4 ? size : PTRDIFF_MAX / 4;
    if (exec->step.state == GCKPTI_IDLE || gckpti_check_collected(exec, 0) == GCKPT_OK)
        return gckpti_ok(exec);
    exec->fetches[k] = before;
    return GCKPT_E_ARG;
}

/* After the body's last instruction, copies the micro-batch's rows to gckpt_collect's arrays. */
static void gckpti_collect_rows(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t k = 0; k < p->fetch_count; k++) {
        int64_t n = gckpti_planned_elements(p, &p->nodes[p->fetches[k].id]);
        int64_t at = gckpti_row_elements(p, n, e->step.row - e->step.first_row);
        size_t count = (size_t)gckpti_row_elements(p, n, gckpti_micro_rows(e));
        if (e->fetches[k].to)
            gckpti_from_backend(e, e->fetches[k].to + at, e->blocks.arena + p->fetches[k].offset,
                                count * sizeof(float));
    }
}

GCKPTI_MODULE(fetch)
{
    if (event == GCKPTI_ON_LAYOUT)
        gckpti_alloc_fetches(e, (gckpti_bump *)arg);
    else if (event == GCKPTI_ON_BIND && !gckpti_is_inference(e->plan))
        gckpti_note_gradient_fetches(e);
    else if (event == GCKPTI_ON_FED)
        return gckpti_check_collected(e, *(const int64_t *)arg);
    else if (event == GCKPTI_ON_BODY_END)
        gckpti_collect_rows(e);
    return GCKPT_OK;
}
#endif
