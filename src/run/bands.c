#include "run/own.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_TILES
/* ---- a run of ops in bands of rows (plan/bands.c) ---- */
typedef struct {
    const gckpt_exec *e;
    const gckpt_call *call; /* the run's: its inputs, output, workspace */
    const gckpti_bands *head;
    const gckpti_band_step *step;
    const gckpti_band_link *links;
    gckpti_band_at *at;
    gckpt_kernel last; /* of the last op */
    int64_t sample;    /* of the batch, which is as many as the axis 0 of all its values has */
} gckpti_band_run;

/* Row `row` of a step's value, of which there may be none. */
static float *gckpti_band_row(const gckpti_band_run *r, int i, int32_t row)
{
    while (r->step[i].at < 0)
        i = ~r->step[i].at;
    const gckpti_band_step *q = &r->step[i];
    if (i == r->head->steps - 1)
        return r->call->out + (r->sample * q->height + row) * q->width;
    float *first = (float *)(void *)((unsigned char *)r->call->workspace + q->at);
    return first + (ptrdiff_t)(row - r->at[i].low) * q->width;
}

/* An input of the run, from a row on; `whole`: that is the same for all rows. */
static const void *gckpti_band_input(const gckpti_band_run *r, int m, int whole, int64_t row)
{
    const gckpt_arg *x = &r->call->in[m];
    const int64_t rows = r->sample * x->shape.d[1] + row;
    const int64_t at =
        whole ? 0 : rows * (gckpti_elements(&x->shape) / (x->shape.d[0] * x->shape.d[1]));
    return x->bytes   ? (const void *)(x->bytes + at)
           : x->index ? (const void *)(x->index + at)
                      : (const void *)(x->data + at);
}

/* Rows of a padding. */
static void gckpti_band_beyond(const gckpti_band_run *r, int i, int32_t first, int32_t end)
{
    const float beyond = gckpti_float(r->step[i].beyond);
    float *x = first < end ? gckpti_band_row(r, i, first) : NULL;
    for (int64_t k = 0; x && k < (int64_t)(end - first) * r->step[i].width; k++)
        x[k] = beyond;
}

/* What a step reads: leaves, rows of other steps, inputs of the run. */
static void gckpti_band_reads(const gckpti_band_run *r, const gckpti_node *node,
                              const gckpti_band_step *q, int32_t first, int32_t count,
                              gckpt_call *c)
{
    const gckpt_plan *p = r->e->plan;
    const void *from[GCKPT_MAX_INPUTS];
    for (int k = 0; k < node->inputs; k++)
        from[k] = r->e->bound.nodes[p->nodes[node->in[k]].base].data;
    for (int k = q->link; k < q->link + q->links; k++) {
        const gckpti_band_link *in = &r->links[k];
        gckpt_shape *shape = &c->in[in->input].shape;
        const int32_t row = first * in->stride - in->before;
        from[in->input] = in->from < 0 ? gckpti_band_input(r, ~in->from, !in->reach, row)
                                       : gckpti_band_row(r, in->from, row);
        if (in->reach)
            shape->d[0] = 1, shape->d[1] = (count - 1) * in->stride + in->reach;
    }
    for (int k = 0; k < node->inputs; k++) {
        const int type = p->nodes[p->nodes[node->in[k]].base].type;
        if (type == GCKPT_U8)
            c->in[k].bytes = (const uint8_t *)from[k];
        else if (type == GCKPT_I32)
            c->in[k].index = (const int32_t *)from[k];
        else
            c->in[k].data = (const float *)from[k];
    }
}

/* Makes a step's rows for the next band. */
static void gckpti_band_make(const gckpti_band_run *r, int i, gckpt_call *c)
{
    const gckpti_band_step *q = &r->step[i];
    const gckpti_band_at *at = &r->at[i];
    const int32_t first = gckpti_band_first(at), stop = gckpti_band_stop(q, at);
    const int own = i == r->head->steps - 1;
    gckpt_dequantisation stored;
    gckpti_band_beyond(r, i, at->high, at->need < 0 ? at->need : 0);
    gckpti_band_beyond(r, i, at->high > q->height ? at->high : q->height, at->need);
    if (first >= stop)
        return;
    if (q->id < 0) {
        memcpy(gckpti_band_row(r, i, first),
               gckpti_band_input(r, ~r->links[q->link].from, 0, first),
               sizeof(float) * (size_t)(stop - first) * (size_t)q->width);
        return;
    }
    gckpti_node node = r->e->plan->nodes[q->id];
    if (own) {
        node.op = (const gckpt_op *)node.data;
        node.inputs = (gckpti_byte)r->head->own_inputs;
        for (int k = 0; k < node.inputs; k++)
            node.in[k] = (gckpti_id)r->head->in[k];
        node.attributes = (gckpti_nth)(node.attributes + (uint32_t)r->head->own / 4);
    }
    gckpti_call_start(r->e, &node, q->id, gckpti_micro_rows(r->e), c);
    c->first_row += r->sample * c->rows / c->shape.d[0];
    c->rows = 1;
    c->shape.d[0] = 1, c->shape.d[1] = stop - first;
    c->out = gckpti_band_row(r, i, first);
    c->workspace = (unsigned char *)r->call->workspace + q->work;
    gckpti_band_reads(r, &node, q, first, stop - first, c);
    if (r->e->plan->packed)
        gckpti_call_stored(r->e, &node, GCKPT_FORWARD, c, &stored);
    (own ? r->last : r->e->bound.nodes[q->id].forward)(c);
}

GCKPTI_FN void gckpti_bands_forward(const gckpt_call *call)
{
    const gckpti_bands *b = (const gckpti_bands *)call->attributes;
    const gckpti_band_step *step = (const gckpti_band_step *)(const void *)(b + 1);
    unsigned char *room = (unsigned char *)call->workspace + b->at;
    const size_t past = (uintptr_t)room % GCKPTI_ALIGN;
    gckpt_call *c = (gckpt_call *)(void *)(room + (past ? GCKPTI_ALIGN - past : 0));
    gckpti_band_run r = { (const gckpt_exec *)call->graph,
                          call,
                          b,
                          step,
                          (const gckpti_band_link *)(const void *)(step + b->steps),
                          (gckpti_band_at *)(void *)(room + GCKPTI_BAND_CALL),
                          NULL,
                          0 };
    const int32_t height = step[b->steps - 1].height;
    gckpti_node own = r.e->plan->nodes[step[b->steps - 1].id];
    own.op = (const gckpt_op *)own.data;
    r.last = gckpti_bind_kernels(r.e, &own).forward;
    for (; r.sample < call->shape.d[0]; r.sample++) {
        for (int32_t end = 0; end < height;) {
            end = end < height - b->rows ? end + b->rows : height;
            gckpti_bands_next(b, step, r.links, r.at, end);
            for (int i = 0; i < b->steps; i++) { /* what is kept moves to the front */
                gckpti_band_at *at = &r.at[i];
                const int32_t kept = at->high - at->drop;
                const float *from = kept > 0 ? gckpti_band_row(&r, i, at->drop) : NULL;
                at->low = at->drop;
                float *to = kept > 0 ? gckpti_band_row(&r, i, at->drop) : NULL;
                if (from != to)
                    memmove(to, from, (size_t)kept * (size_t)step[i].width * sizeof(float));
            }
            for (int i = 0; i < b->steps; i++) {
                gckpti_band_make(&r, i, c);
                r.at[i].high = r.at[i].need;
            }
        }
    }
}
#endif
