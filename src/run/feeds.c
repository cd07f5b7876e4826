#include "run/internal.h"
#include "graph/graph.h"
#include "num/num.h"

/* Returns the values of an i32 constant, or of an i32 input in all rows of the latest feeds. */
GCKPTI_FN const int32_t *gckpti_indices(const gckpt_exec *e, const gckpti_plan_node *q)
{
    const void *data = q->kind == GCKPTI_CONSTANT ? q->data : e->feeds.inputs[q->index].feed;
    return (const int32_t *)data;
}

/* Checks that the op accepts all indices of i32 input i of a node, in the `rows` rows fed. */
GCKPTI_FN gckpt_result gckpti_check_indices(gckpt_exec *e, const gckpti_plan_node *node, int id,
                                            int i, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *q = &p->nodes[p->nodes[node->in[i]].base];
    if (q->kind == GCKPTI_OP || q->type != GCKPT_I32) /* ops' indices: when the graph was built */
        return GCKPT_OK;
    const int32_t *index = gckpti_indices(e, q);
    int ignores = node->op->flags & GCKPT_LOSS && i == gckpti_counted_input(node->op);
    gckpt_call c;
    gckpti_init_op_call(e, node, id, p->rows, &c);
    int64_t limit = node->op->classes(&c, i), per_row = gckpti_planned_elements(p, q), n = per_row;
    if (q->kind != GCKPTI_CONSTANT) {
        per_row /= p->rows;
        n = per_row * rows;
    }
    for (int64_t k = 0; k < n && limit; k++)
        if (index[k] >= limit || (index[k] < 0 && !ignores))
            return gckpti_error(e, GCKPT_E_DATA,
                                "\"%s\": index %i at row %I, position %I: %s #%i takes 0 to %I",
                                p->names + q->name, (int)index[k], k / per_row, k % per_row,
                                node->op->name, id, limit - 1);
    return GCKPT_OK;
}

/* Assigns each feed to its input; every input that is read must have one. */
GCKPTI_FN gckpt_result gckpti_match_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count)
{
    const gckpt_plan *p = e->plan;
    if (count < 0 || (count > 0 && !feeds))
        return gckpti_error(e, GCKPT_E_ARG, "feeds: NULL or a negative count");
    for (size_t i = 0; i < p->inputs; i++)
        e->feeds.inputs[i].feed = NULL;
    for (int i = 0; i < count; i++) {
        const gckpti_plan_node *q = NULL;
        if (feeds[i].input >= 0 && (size_t)feeds[i].input < p->node_count)
            q = &p->nodes[p->nodes[feeds[i].input].base];
        if (!q || q->kind != GCKPTI_INPUT || !feeds[i].data)
            return gckpti_error(
                e, GCKPT_E_ARG, "feed %i: %s", i,
                !feeds[i].data
                    ? "its data is NULL"
                    : "its id is not that of an input (gckpt_id of a gckpt_input tensor)");
        if (e->feeds.inputs[q->index].feed)
            return gckpti_error(e, GCKPT_E_ARG, "feed %i: input \"%s\" is fed twice", i,
                                p->names + q->name);
        e->feeds.inputs[q->index].feed = (const unsigned char *)feeds[i].data;
    }
    for (size_t i = 0; i < p->inputs; i++)
        if (e->feeds.inputs[i].node >= 0 && !e->feeds.inputs[i].feed)
            return gckpti_error(e, GCKPT_E_ARG, "input \"%s\" is not fed",
                                p->names + p->nodes[e->feeds.inputs[i].node].name);
    return GCKPT_OK;
}

/* Points the plan's inputs to the rows of this micro-batch, or copies these rows to the backend. */
GCKPTI_FN void gckpti_feed_rows(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->inputs; i++) {
        const gckpti_exec_input *in = &e->feeds.inputs[i];
        if (in->node < 0)
            continue;
        size_t row = gckpti_planned_bytes(p, &p->nodes[in->node]) / (size_t)p->rows;
        const unsigned char *rows = in->feed + (size_t)(e->step.row - e->feeds.first_row) * row;
        if (in->backend_copy)
            gckpti_to_backend(e, in->backend_copy, rows, row * (size_t)gckpti_micro_rows(e));
        e->tables.nodes[in->node].data = in->backend_copy ? in->backend_copy : rows;
    }
}

/* Ends a micro-batch, if there is no process group; step.pc then is where the next one begins, if
 * there is one. Returns MORE if the rows so far are done and more may stream in. */
GCKPTI_FN gckpt_result gckpti_next_rows(gckpt_exec *e)
{
    e->step.row += gckpti_micro_rows(e);
    e->step.prologue_done = 1;
    if (e->step.row == e->step.row_end)
        return e->step.state == GCKPTI_STREAMING ? GCKPT_MORE : GCKPT_OK;
    e->step.pc = gckpti_is_inference(e->plan) ? 0 : e->plan->body;
    return GCKPT_OK;
}
