#if !defined(GCKPT_NO_TILES) && !defined(GCKPT_SMALL)
#include "plan/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- which ops may be in a group ---- */
/* Returns whether input k of an op has rows, or is the same for all rows of the output. */
static int gckpti_has_rows(const gckpt_tensor *t, const gckpt_receptive_field *rows, int k)
{
    const gckpt_shape *q = &t->in[k]->shape;
    const int axis = q->n - t->shape.n + 1;
    if (t->in[k]->batch_invariant)
        return t->op->receptive_field || axis < 0 || q->d[axis] == 1;
    return k < rows->inputs && q->n == t->shape.n && q->d[0] == t->shape.d[0] &&
           (t->op->receptive_field || q->d[1] == t->shape.d[1]);
}

/* Finds which input rows an op reads (o->rows); leaves o->rows 0 if it cannot run in row tiles. */
static void gckpti_find_rows(gckpti_planner *p, const gckpt_tensor *t, gckpti_row_op *o)
{
    gckpt_receptive_field rows = { GCKPT_MAX_INPUTS, 1, 0, 1, 0.0f }; /* unless the op sets it */
    const unsigned same = GCKPTI_IS_ELEMENTWISE | GCKPTI_IS_ROWWISE;
    if (t->kind != GCKPTI_OP || t->batch_invariant || p->active[t->id] || t->must_recompute ||
        t->mixes_rows || gckpti_is_loss(t) || t->type != GCKPT_F32 || t->shape.n < 3 ||
        (!t->op->receptive_field && !(t->op->flags & GCKPTI_BUILTIN_OP && t->op->flags & same)))
        return;
    gckpt_call call = gckpti_shape_call(t->in, t->inputs, t->attributes);
    call.shape = t->shape;
    o->attributes = gckpti_scratch_copy(&p->scratch, t->attributes, t->attribute_bytes, 1);
    if (p->failed ||
        (t->op->receptive_field && !t->op->receptive_field(&call, o->attributes, &rows)))
        return;
    int64_t most = (t->shape.d[1] - 1) * rows.stride + rows.size;
    most = gckpti_elements(&t->shape) > most ? gckpti_elements(&t->shape) : most;
    for (int k = 0; k < t->inputs; k++) {
        const int64_t n = gckpti_elements(&t->in[k]->shape);
        most = n > most ? n : most;
        if (gckpti_is_staged(p, t->in[k]->base) || !gckpti_has_rows(t, &rows, k))
            return;
    }
    if (most <= INT32_MAX / 8)
        o->rows = rows;
}

/* Finds the ops that may be in a group, each op's last reader, and the bytes live before the op. */
GCKPTI_FN void gckpti_find_row_ops(gckpti_fused_builder *r)
{
    gckpti_planner *p = r->p;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        gckpti_find_rows(p, t, &r->op[i]);
        r->op[i].step = -1;
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++)
            r->op[t->in[k]->base->id].last_reader = i;
    }
    for (int i = 0; i < p->desc->fetch.count; i++)
        if (!p->desc->fetch.specs[i].gradient)
            r->op[p->desc->fetch.specs[i].tensor->base->id].last_reader = p->n;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        r->op[i].last_reader = t->must_save ? p->n : r->op[i].last_reader;
        if (t->kind == GCKPTI_OP && !t->batch_invariant)
            for (int k = i + 1; k <= r->op[i].last_reader && k < p->n; k++)
                r->op[k].live_bytes += (int64_t)gckpti_value_bytes(p, t);
    }
}

static int gckpti_fused_add_step(gckpti_fused_builder *r, const gckpt_tensor *t, int id)
{
    const int i = r->header.steps++;
    gckpti_fused_step *q = &r->step[i];
    memset(q, 0, sizeof *q);
    memset(&r->step_buffer[i], 0, sizeof r->step_buffer[i]);
    q->id = id;
    q->height = (int32_t)t->shape.d[1];
    q->width = (int32_t)(gckpti_elements(&t->shape) / (t->shape.d[0] * t->shape.d[1]));
    q->edge = r->header.edges;
    r->out[i] = t;
    return i;
}

static void gckpti_fused_add_edge(gckpti_fused_builder *r, int k, int from,
                                  const gckpt_receptive_field *rows)
{
    const gckpti_fused_edge edge = { k, from, rows->stride, rows->padding, rows->size };
    r->edge[r->header.edges++] = edge;
    r->step[r->header.steps - 1].edges++;
}

/* Returns the index of an input of the group, or -1 if there are too many. */
static int gckpti_fused_input(gckpti_fused_builder *r, const gckpt_tensor *t)
{
    int m = 0;
    while (m < r->header.inputs && r->header.last_in[m] != t->id)
        m++;
    if (m == GCKPT_MAX_INPUTS)
        return -1;
    r->header.last_in[m] = t->id;
    r->header.inputs += m == r->header.inputs;
    return m;
}

static int gckpti_reads_padding(const gckpt_tensor *t, const gckpt_receptive_field *rows, int k)
{
    const int64_t end = (t->shape.d[1] - 1) * rows->stride - rows->padding + rows->size;
    return rows->padding > 0 || end > t->in[k]->shape.d[1];
}

/* Adds an op to the group, after steps that copy inputs it pads. Returns 0 if it does not fit. */
static int gckpti_fused_add_op(gckpti_fused_builder *r, const gckpt_tensor *t)
{
    static const gckpt_receptive_field whole = { 0, 0, 0, 0, 0.0f }, same = { 0, 1, 0, 1, 0.0f };
    const gckpt_receptive_field *rows = &r->op[t->id].rows;
    int from[GCKPT_MAX_INPUTS];
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k];
        const int leaf = q->batch_invariant && q->base->kind != GCKPTI_OP;
        from[k] = r->op[q->base->id].step;
        if (from[k] >= 0 ? q->kind == GCKPTI_VIEW
                         : !leaf && (from[k] = ~gckpti_fused_input(r, q)) == 0)
            return 0;
        if (from[k] >= 0 || q->batch_invariant || !gckpti_reads_padding(t, rows, k))
            continue;
        if (q->type == GCKPT_U8) /* copy steps copy 4-byte words */
            return 0;
        const int m = from[k];
        for (int i = 0; i < r->header.steps; i++)
            from[k] = r->step[i].id < 0 && r->out[i] == q ? i : from[k];
        if (from[k] < 0) {
            from[k] = gckpti_fused_add_step(r, q, -1);
            gckpti_fused_add_edge(r, 0, m, &same);
        }
    }
    const int step = gckpti_fused_add_step(r, t, t->id);
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k];
        if (!q->batch_invariant || q->base->kind == GCKPTI_OP)
            gckpti_fused_add_edge(r, k, from[k], q->batch_invariant ? &whole : rows);
        if (q->batch_invariant || from[k] < 0)
            continue;
        gckpti_step_buffer *buf = &r->step_buffer[from[k]];
        gckpti_fused_step *of = &r->step[from[k]];
        buf->last_reader = step;
        buf->readers++;
        if (!gckpti_reads_padding(t, rows, k))
            continue;
        if (buf->has_padding++ && of->padding != gckpti_bits(rows->fill))
            return 0;
        of->padding = gckpti_bits(rows->fill);
    }
    r->op[t->id].step = step;
    return 1;
}

/* Lets a step write over its input's rows if it is their only reader and works row by row. */
static void gckpti_fused_in_place(gckpti_fused_builder *r)
{
    for (int i = 0; i < r->header.steps; i++) {
        const gckpti_fused_step *q = &r->step[i];
        for (int k = q->edge;
             k < q->edge + q->edges && q->id >= 0 && !r->out[i]->op->receptive_field; k++) {
            const gckpti_fused_edge *in = &r->edge[k];
            if (in->from < 0 || r->step_buffer[in->from].readers != 1 ||
                r->step[in->from].width != q->width ||
                !(r->out[i]->op->flags & GCKPT_INPLACE(in->input)))
                continue;
            r->step[in->from].offset = ~i;
            break;
        }
    }
}

/* Simulates all tiles of one batch row: finds rows of buffers and the cost of moves and calls. */
static void gckpti_fused_simulate(gckpti_fused_builder *r)
{
    const gckpti_fused *group = &r->header;
    const int32_t height = r->step[group->steps - 1].height;
    r->extra_cost = 0;
    for (int32_t end = 0; end < height;) {
        end = end < height - group->tile_rows ? end + group->tile_rows : height;
        gckpti_next_tile(group, r->step, r->edge, r->range, end);
        for (int i = 0; i < group->steps; i++) {
            gckpti_row_range *range = &r->range[i];
            gckpti_step_buffer *buf = &r->step_buffer[i];
            const int32_t new_rows = gckpti_tile_end(&r->step[i], range) - gckpti_tile_first(range);
            const int32_t rows = range->need - range->drop, kept = range->high - range->drop;
            const int32_t copied = r->step[i].id < 0 && new_rows > 0 ? new_rows : 0;
            buf->keeps_rows |= kept > 0;
            buf->new_rows = new_rows > buf->new_rows ? new_rows : buf->new_rows;
            buf->rows = rows > buf->rows ? rows : buf->rows;
            r->extra_cost += new_rows > 0 ? GCKPTI_INSTRUCTION_COST : 0;
            const int32_t moved = (range->drop > range->low ? kept : 0) + copied;
            r->extra_cost += 80 * (uint64_t)moved * (uint64_t)r->step[i].width;
            range->low = range->drop, range->high = range->need;
        }
    }
    r->extra_cost *= (uint64_t)r->out[group->steps - 1]->shape.d[0];
}

/* Returns the workspace of a step's op for the most rows that it computes at once. */
static size_t gckpti_step_workspace(const gckpti_fused_builder *r, int i)
{
    const gckpt_tensor *t = r->out[i];
    const gckpti_row_op *o = &r->op[t->id];
    if (r->step[i].id < 0 || r->step_buffer[i].new_rows == 0)
        return 0;
    gckpt_call call = gckpti_shape_call(t->in, t->inputs, o->attributes);
    for (int k = 0; k < t->inputs; k++)
        if (!t->in[k]->batch_invariant) {
            call.in[k].shape.d[0] = 1;
            call.in[k].shape.d[1] =
                (int64_t)(r->step_buffer[i].new_rows - 1) * o->rows.stride + o->rows.size;
        }
    call.threads = r->p->threads, call.plain = r->p->plain;
    return t->op->shape(&call) == GCKPT_OK ? call.workspace_forward : SIZE_MAX;
}

/* Adds a buffer: rows (id i) or workspace (id i + steps) of step i, or r->range (id 2 * steps). */
static void gckpti_put_buffer(gckpti_fused_builder *r, int id, size_t size, int start, int end)
{
    const gckpt_buffer b = { start, end, 0, size, id, GCKPT_BUFFER_WORKSPACE };
    r->buffers[r->buffer_count] = b;
    r->buffer_count += size > 0;
}

/* Adds a group's buffers; sets r->workspace to their peak. Returns 0 if that is too large. */
static int gckpti_fused_add_buffers(gckpti_fused_builder *r)
{
    const int n = r->header.steps;
    r->buffer_count = 0, r->workspace = 0;
    gckpti_put_buffer(r, 2 * n, GCKPTI_FUSED_CALL + sizeof *r->range * (size_t)n, 0, n - 1);
    for (int i = 0; i < n; i++)
        r->step_buffer[i].first_writer = i;
    for (int i = 0; i < n; i++) {
        const gckpti_fused_step *q = &r->step[i];
        const gckpti_step_buffer *buf = &r->step_buffer[i];
        const size_t workspace = gckpti_step_workspace(r, i);
        const double bytes = sizeof(float) * (double)buf->rows * (double)q->width;
        if (workspace > INT32_MAX || bytes > INT32_MAX)
            return 0;
        gckpti_put_buffer(r, i + n, workspace, i, i);
        if (q->offset < 0 && buf->first_writer < r->step_buffer[~q->offset].first_writer)
            r->step_buffer[~q->offset].first_writer = buf->first_writer;
        if (q->offset >= 0 && i + 1 < n)
            gckpti_put_buffer(r, i, (size_t)bytes, buf->keeps_rows ? 0 : buf->first_writer,
                              buf->keeps_rows ? n - 1 : buf->last_reader);
    }
    for (int i = 0; i < n; i++) {
        int64_t live = 0;
        for (int k = 0; k < r->buffer_count; k++)
            if (r->buffers[k].start <= i && i <= r->buffers[k].end)
                live += (int64_t)gckpti_round_up(r->buffers[k].size, r->p->alignment);
        r->workspace = live > r->workspace ? live : r->workspace;
    }
    return r->workspace <= INT32_MAX;
}

/* Builds a group of n ops, or returns 0. Fast kernels get 64 positions or a quarter of all rows. */
GCKPTI_FN int gckpti_build_fused(gckpti_fused_builder *r, const int *id, int n)
{
    const gckpt_tensor *out = r->p->tensors[id[n - 1]];
    const int64_t height = out->shape.d[1];
    const int64_t wide =
        gckpti_elements(&out->shape) / (out->shape.d[0] * height * gckpti_last(&out->shape));
    int fits = 1;
    memset(&r->header, 0, sizeof r->header);
    r->header.tile_rows =
        r->p->plain ? 1 : (int32_t)gckpti_min((63 + wide) / wide, (height + 3) / 4);
    for (int i = 0; i < n && fits; i++)
        fits = r->p->tensors[id[i]]->shape.d[0] == out->shape.d[0] &&
               height > r->header.tile_rows &&
               (i == n - 1 || r->op[id[i]].last_reader <= id[n - 1]) &&
               gckpti_fused_add_op(r, r->p->tensors[id[i]]);
    for (int i = 0; i < n; i++)
        r->op[id[i]].step = -1;
    for (int i = 0; i + 1 < r->header.steps && fits; i++)
        fits = r->step_buffer[i].readers > 0;
    if (!fits)
        return 0;
    gckpti_fused_in_place(r);
    gckpti_fused_simulate(r);
    return gckpti_fused_add_buffers(r);
}
#endif
