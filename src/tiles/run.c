#include "run/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_TILES
/* ---- a fused group of ops in row tiles (tiles/op.c) ---- */
typedef struct {
    const gckpt_exec *e;
    const gckpt_call *call; /* the group's call: inputs, output, workspace */
    const gckpti_fused *fused;
    const gckpti_fused_step *step;
    const gckpti_fused_edge *edges;
    gckpti_row_range *ranges;
    int64_t sample; /* current index along axis 0 of all values */
} gckpti_tile_run;

/* Returns the address of row `row` of the value that step i computes. */
static float *gckpti_tile_row(const gckpti_tile_run *run, int i, int32_t row)
{
    while (run->step[i].offset < 0)
        i = ~run->step[i].offset;
    const gckpti_fused_step *q = &run->step[i];
    if (i == run->fused->steps - 1)
        return run->call->out + (run->sample * q->height + row) * q->width;
    float *first = (float *)(void *)((unsigned char *)run->call->workspace + q->offset);
    return first + (ptrdiff_t)(row - run->ranges[i].low) * q->width;
}

/* Returns the address of a row in an input of the group; if broadcast is nonzero, of its start. */
static const void *gckpti_tile_input(const gckpti_tile_run *run, int input, int broadcast,
                                     int64_t row)
{
    const gckpt_arg *x = &run->call->in[input];
    const int64_t rows = run->sample * x->shape.d[1] + row;
    const int64_t offset =
        broadcast ? 0 : rows * (gckpti_elements(&x->shape) / (x->shape.d[0] * x->shape.d[1]));
    return x->bytes   ? (const void *)(x->bytes + offset)
           : x->index ? (const void *)(x->index + offset)
                      : (const void *)(x->data + offset);
}

/* Fills rows first to end - 1 of step i with its padding. */
static void gckpti_fill_padding_rows(const gckpti_tile_run *run, int i, int32_t first, int32_t end)
{
    const float padding = gckpti_float(run->step[i].padding);
    float *x = first < end ? gckpti_tile_row(run, i, first) : NULL;
    for (int64_t k = 0; x && k < (int64_t)(end - first) * run->step[i].width; k++)
        x[k] = padding;
}

/* Sets a step's inputs: parameters and constants, rows of other steps, inputs of the group. */
static void gckpti_set_tile_inputs(const gckpti_tile_run *run, const gckpti_plan_node *node,
                                   const gckpti_fused_step *q, int32_t first, int32_t count,
                                   gckpt_call *c)
{
    const gckpt_plan *p = run->e->plan;
    const void *from[GCKPT_MAX_INPUTS];
    for (int k = 0; k < node->inputs; k++)
        from[k] = run->e->tables.nodes[p->nodes[node->in[k]].base].data;
    for (int k = q->edge; k < q->edge + q->edges; k++) {
        const gckpti_fused_edge *in = &run->edges[k];
        gckpt_shape *shape = &c->in[in->input].shape;
        const int32_t row = first * in->stride - in->before;
        from[in->input] = in->from < 0 ? gckpti_tile_input(run, ~in->from, !in->reach, row)
                                       : gckpti_tile_row(run, in->from, row);
        if (in->reach)
            shape->d[0] = 1, shape->d[1] = (count - 1) * in->stride + in->reach;
    }
    for (int k = 0; k < node->inputs; k++)
        gckpti_set_data(&p->nodes[p->nodes[node->in[k]].base], from[k], &c->in[k]);
}

/* Computes step i's rows for the next tile. */
static void gckpti_compute_tile(const gckpti_tile_run *run, int i, gckpt_call *c)
{
    const gckpti_fused_step *q = &run->step[i];
    const gckpti_row_range *range = &run->ranges[i];
    const int32_t first = gckpti_tile_first(range), stop = gckpti_tile_end(q, range);
    const int32_t after = range->high > q->height ? range->high : q->height;
    GCKPTI_UNUSED gckpti_compressed param;
    gckpti_fill_padding_rows(run, i, range->high, range->need < 0 ? range->need : 0);
    gckpti_fill_padding_rows(run, i, after, range->need);
    if (first >= stop)
        return;
    if (q->id < 0) {
        memcpy(gckpti_tile_row(run, i, first),
               gckpti_tile_input(run, ~run->edges[q->edge].from, 0, first),
               sizeof(float) * (size_t)(stop - first) * (size_t)q->width);
        return;
    }
    gckpti_plan_node node = run->e->plan->nodes[q->id];
    if (i == run->fused->steps - 1) { /* the last op as it was built */
        node.op = (const gckpt_op *)node.data;
        node.inputs = (gckpti_byte)run->fused->last_inputs;
        for (int k = 0; k < node.inputs; k++)
            node.in[k] = (gckpti_id)run->fused->last_in[k];
        node.attributes = (gckpti_offset)(node.attributes + (uint32_t)run->fused->last_offset / 4);
    }
    gckpti_init_op_call(run->e, &node, q->id, gckpti_micro_rows(run->e), c);
    c->first_row += run->sample * c->rows / c->shape.d[0];
    c->rows = 1;
    c->shape.d[0] = 1, c->shape.d[1] = stop - first;
    c->out = gckpti_tile_row(run, i, first);
    c->workspace = (unsigned char *)run->call->workspace + q->workspace;
    gckpti_set_tile_inputs(run, &node, q, first, stop - first, c);
    if (run->e->plan->compressed)
        GCKPTI_IF_COMPRESSED(gckpti_set_compressed(run->e, &node, GCKPT_FORWARD, c, &param));
    node.op->forward(c);
}

GCKPTI_FN void gckpti_fused_forward(const gckpt_call *call)
{
    const gckpti_fused *fused = (const gckpti_fused *)call->attributes;
    const gckpti_fused_step *step = (const gckpti_fused_step *)(const void *)(fused + 1);
    unsigned char *scratch = (unsigned char *)call->workspace + fused->ranges_offset;
    const size_t misaligned = (uintptr_t)scratch % GCKPTI_ALIGN;
    gckpt_call *c = (gckpt_call *)(void *)(scratch + (misaligned ? GCKPTI_ALIGN - misaligned : 0));
    const gckpt_exec *e = (const gckpt_exec *)call->graph;
    const gckpti_fused_edge *edges = (const gckpti_fused_edge *)(const void *)(step + fused->steps);
    gckpti_row_range *ranges = (gckpti_row_range *)(void *)(scratch + GCKPTI_FUSED_CALL);
    gckpti_tile_run run = { e, call, fused, step, edges, ranges, 0 };
    const int32_t height = step[fused->steps - 1].height;
    for (; run.sample < call->shape.d[0]; run.sample++) {
        for (int32_t end = 0; end < height;) {
            end = end < height - fused->tile_rows ? end + fused->tile_rows : height;
            gckpti_next_tile(fused, step, run.edges, run.ranges, end);
            for (int i = 0; i < fused->steps; i++) { /* moves rows that are kept to the front */
                gckpti_row_range *range = &run.ranges[i];
                const int32_t kept = range->high - range->drop;
                const float *from = kept > 0 ? gckpti_tile_row(&run, i, range->drop) : NULL;
                range->low = range->drop;
                float *to = kept > 0 ? gckpti_tile_row(&run, i, range->drop) : NULL;
                if (from != to)
                    memmove(to, from, (size_t)kept * (size_t)step[i].width * sizeof(float));
            }
            for (int i = 0; i < fused->steps; i++) {
                gckpti_compute_tile(&run, i, c);
                run.ranges[i].high = run.ranges[i].need;
            }
        }
    }
}
#endif
