#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

GCKPTI_COLD

#ifndef GCKPT_NO_TILES
/* ---- bands: a run of ops that need no gradient, a few rows at a time ----
 * A run is ops one behind the other, of which all but the last are read by others of it alone. Of a
 * value between them there are the rows that its readers still need: the last ones move to the
 * front when new ones are made, so that nothing is computed twice. Rows of a padding are there like
 * others; they count as below 0, or as `height` and above. */
GCKPTI_FN void gckpti_bands_next(const gckpti_bands *b, const gckpti_band_step *step,
                                 const gckpti_band_link *links, gckpti_band_at *at, int32_t end)
{
    for (int i = 0; i < b->steps; i++) {
        if (end <= b->rows) /* the first band: nothing is there; rows of the output begin at 0 */
            at[i].low = at[i].high = i + 1 < b->steps ? INT32_MIN : 0;
        at[i].drop = INT32_MAX, at[i].need = i + 1 < b->steps ? at[i].high : end;
    }
    for (int i = b->steps; i-- > 0;) {
        gckpti_band_at *q = &at[i];
        q->drop = q->drop == INT32_MAX ? q->high : q->drop; /* nobody reads it any more */
        q->high = q->high < q->drop ? q->drop : q->high;    /* nor what is in between */
        q->need = q->need < q->high ? q->high : q->need;
        const int32_t first = gckpti_band_first(q), stop = gckpti_band_stop(&step[i], q);
        for (int k = step[i].link; k < step[i].link + step[i].links && first < step[i].height;
             k++) {
            const gckpti_band_link *in = &links[k];
            if (in->from < 0)
                continue;
            const int32_t drop = first * in->stride - in->before;
            const int32_t need = (stop - 1) * in->stride - in->before + in->reach;
            gckpti_band_at *from = &at[in->from];
            from->drop = drop < from->drop ? drop : from->drop;
            from->need = first < stop && need > from->need ? need : from->need;
        }
    }
}

static uint64_t gckpti_bands_flops(const gckpt_call *call)
{
    return (uint64_t)((const gckpti_bands *)call->attributes)->kiloflops << 10;
}

GCKPTI_DATA const gckpt_op gckpti_op_bands = {
    "bands", NULL,  gckpti_bands_forward, NULL, gckpti_bands_flops,
    NULL,    { 0 }, GCKPTI_OWN_ROW,       NULL, NULL,
    NULL,    NULL
};

/* ---- which ops may be in runs ---- */
/* Whether input k of an op has rows, or is the same for all rows. */
static int gckpti_has_rows(const gckpt_tensor *t, const gckpt_receptive_field *rows, int k)
{
    const gckpt_shape *q = &t->in[k]->shape;
    const int at = q->n - t->shape.n + 1;
    if (t->in[k]->batchless)
        return t->op->receptive_field || at < 0 || q->d[at] == 1;
    return k < rows->inputs && q->n == t->shape.n && q->d[0] == t->shape.d[0] &&
           (t->op->receptive_field || q->d[1] == t->shape.d[1]);
}

/* Finds how bands of an op are made, if they are. */
static void gckpti_find_rows(gckpti_planner *p, const gckpt_tensor *t, gckpti_row_op *o)
{
    gckpt_receptive_field rows = { GCKPT_MAX_INPUTS, 1, 0, 1, 0.0f };
    const unsigned same = GCKPTI_BY_ELEMENT | GCKPTI_BY_ROW;
    if (t->kind != GCKPTI_OP || t->batchless || p->active[t->id] || t->recompute || t->mixes ||
        gckpti_is_loss(t) || t->type != GCKPT_F32 || t->shape.n < 3 ||
        (!t->op->receptive_field && !(t->op->flags & GCKPTI_OWN_ROW && t->op->flags & same)))
        return;
    gckpt_call call = gckpti_shape_call(t->in, t->inputs, t->attributes);
    call.shape = t->shape;
    o->attributes = gckpti_scratch_copy(&p->scratch, t->attributes, t->attribute_bytes, 1);
    if (p->failed || (t->op->receptive_field && !t->op->receptive_field(&call, o->attributes, &rows)))
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

/* What ops read when; what may be in runs. */
GCKPTI_FN void gckpti_find_row_ops(gckpti_run_maker *r)
{
    gckpti_planner *p = r->p;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        gckpti_find_rows(p, t, &r->op[i]);
        r->op[i].step = -1;
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++)
            r->op[t->in[k]->base->id].last = i;
    }
    for (int i = 0; i < p->desc->fetches; i++)
        if (p->desc->fetch[i].tensor && !p->desc->fetch[i].gradient)
            r->op[p->desc->fetch[i].tensor->base->id].last = p->n;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        r->op[i].last = t->keep ? p->n : r->op[i].last;
        if (t->kind == GCKPTI_OP && !t->batchless)
            for (int k = i + 1; k <= r->op[i].last && k < p->n; k++)
                r->op[k].live += (int64_t)gckpti_value_bytes(p, t);
    }
}

/* ---- a run ---- */
static int gckpti_run_add(gckpti_run_maker *r, const gckpt_tensor *t, int id)
{
    const int i = r->head.steps++;
    gckpti_band_step *q = &r->step[i];
    memset(q, 0, sizeof *q);
    memset(&r->room[i], 0, sizeof r->room[i]);
    q->id = id;
    q->height = (int32_t)t->shape.d[1];
    q->width = (int32_t)(gckpti_elements(&t->shape) / (t->shape.d[0] * t->shape.d[1]));
    q->link = r->head.links;
    r->of[i] = t;
    return i;
}

static void gckpti_run_link(gckpti_run_maker *r, int k, int from, const gckpt_receptive_field *rows)
{
    const gckpti_band_link link = { k, from, rows->stride, rows->padding, rows->size };
    r->link[r->head.links++] = link;
    r->step[r->head.steps - 1].links++;
}

/* The number of an input of the run; -1: there are too many. */
static int gckpti_run_input(gckpti_run_maker *r, const gckpt_tensor *t)
{
    int m = 0;
    while (m < r->head.inputs && r->head.in[m] != t->id)
        m++;
    if (m == GCKPT_MAX_INPUTS)
        return -1;
    r->head.in[m] = t->id;
    r->head.inputs += m == r->head.inputs;
    return m;
}

/* Whether an op reads rows beyond those of input k. */
static int gckpti_reads_beyond(const gckpt_tensor *t, const gckpt_receptive_field *rows, int k)
{
    const int64_t end = (t->shape.d[1] - 1) * rows->stride - rows->padding + rows->size;
    return rows->padding > 0 || end > t->in[k]->shape.d[1];
}

/* Adds an op; in front of it steps that copy inputs of the run of which it reads rows beyond. 0: it
 * cannot be in the run. */
static int gckpti_run_add_op(gckpti_run_maker *r, const gckpt_tensor *t)
{
    static const gckpt_receptive_field whole = { 0, 0, 0, 0, 0.0f }, same = { 0, 1, 0, 1, 0.0f };
    const gckpt_receptive_field *rows = &r->op[t->id].rows;
    int from[GCKPT_MAX_INPUTS];
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k];
        const int leaf = q->batchless && q->base->kind != GCKPTI_OP;
        from[k] = r->op[q->base->id].step;
        if (from[k] >= 0 ? q->kind == GCKPTI_VIEW
                         : !leaf && (from[k] = ~gckpti_run_input(r, q)) == 0)
            return 0;
        if (from[k] >= 0 || q->batchless || !gckpti_reads_beyond(t, rows, k))
            continue;
        if (q->type == GCKPT_U8) /* copies are words */
            return 0;
        const int m = from[k];
        for (int i = 0; i < r->head.steps; i++)
            from[k] = r->step[i].id < 0 && r->of[i] == q ? i : from[k];
        if (from[k] < 0) {
            from[k] = gckpti_run_add(r, q, -1);
            gckpti_run_link(r, 0, m, &same);
        }
    }
    const int step = gckpti_run_add(r, t, t->id);
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k];
        if (!q->batchless || q->base->kind == GCKPTI_OP)
            gckpti_run_link(r, k, from[k], q->batchless ? &whole : rows);
        if (q->batchless || from[k] < 0)
            continue;
        gckpti_band_room *room = &r->room[from[k]];
        gckpti_band_step *of = &r->step[from[k]];
        room->last = step;
        room->readers++;
        if (!gckpti_reads_beyond(t, rows, k))
            continue;
        if (room->padded++ && of->beyond != gckpti_bits(rows->fill))
            return 0;
        of->beyond = gckpti_bits(rows->fill);
    }
    r->op[t->id].step = step;
    return 1;
}

/* Where a step is the only reader of another one, row by row, and may be in its place, it is. */
static void gckpti_run_in_place(gckpti_run_maker *r)
{
    for (int i = 0; i < r->head.steps; i++) {
        const gckpti_band_step *q = &r->step[i];
        for (int k = q->link; k < q->link + q->links && q->id >= 0 && !r->of[i]->op->receptive_field; k++) {
            const gckpti_band_link *in = &r->link[k];
            if (in->from < 0 || r->room[in->from].readers != 1 ||
                r->step[in->from].width != q->width ||
                !(r->of[i]->op->flags & GCKPT_INPLACE(in->input)))
                continue;
            r->step[in->from].at = ~i;
            break;
        }
    }
}

/* Goes through all bands of a row of the batch: rows of buffers, what moves, how often ops run. */
static void gckpti_run_walk(gckpti_run_maker *r)
{
    const gckpti_bands *b = &r->head;
    const int32_t height = r->step[b->steps - 1].height;
    r->extra = 0;
    for (int32_t end = 0; end < height;) {
        end = end < height - b->rows ? end + b->rows : height;
        gckpti_bands_next(b, r->step, r->link, r->at, end);
        for (int i = 0; i < b->steps; i++) {
            gckpti_band_at *at = &r->at[i];
            gckpti_band_room *room = &r->room[i];
            const int32_t made = gckpti_band_stop(&r->step[i], at) - gckpti_band_first(at);
            const int32_t kept = at->high - at->drop;
            room->keeps |= kept > 0;
            room->most = made > room->most ? made : room->most;
            room->rows = at->need - at->drop > room->rows ? at->need - at->drop : room->rows;
            r->extra += made > 0 ? GCKPTI_INSTRUCTION_WORK : 0;
            r->extra += 80 *
                        (uint64_t)((at->drop > at->low ? kept : 0) +
                                   (r->step[i].id < 0 && made > 0 ? made : 0)) *
                        (uint64_t)r->step[i].width;
            at->low = at->drop, at->high = at->need;
        }
    }
    r->extra *= (uint64_t)r->of[b->steps - 1]->shape.d[0];
}

/* Workspace of a step's op, of as many rows as it makes at once. */
static size_t gckpti_run_scratch(const gckpti_run_maker *r, int i)
{
    const gckpt_tensor *t = r->of[i];
    const gckpti_row_op *o = &r->op[t->id];
    if (r->step[i].id < 0 || r->room[i].most == 0)
        return 0;
    gckpt_call call = gckpti_shape_call(t->in, t->inputs, o->attributes);
    for (int k = 0; k < t->inputs; k++)
        if (!t->in[k]->batchless) {
            call.in[k].shape.d[0] = 1;
            call.in[k].shape.d[1] = (int64_t)(r->room[i].most - 1) * o->rows.stride + o->rows.size;
        }
    call.threads = r->p->threads;
    call.plain = r->p->plain;
    return t->op->shape(&call) == GCKPT_OK ? call.workspace_forward : SIZE_MAX;
}

/* Adds a buffer; id: the step whose rows (i) or whose op's workspace (i + steps) it has. */
static void gckpti_run_buffer(gckpti_run_maker *r, int id, size_t size, int start, int end)
{
    gckpt_buffer *b = &r->buffers[r->buffer_count];
    memset(b, 0, sizeof *b);
    b->id = id, b->size = size, b->start = start, b->end = end;
    r->buffer_count += size > 0;
}

/* Buffers of the run; r->work: their live bytes at the most. */
static int gckpti_run_room(gckpti_run_maker *r)
{
    const int n = r->head.steps;
    r->buffer_count = 0;
    gckpti_run_buffer(r, 2 * n, GCKPTI_BAND_CALL + sizeof *r->at * (size_t)n, 0, n - 1);
    for (int i = 0; i < n; i++)
        r->room[i].begin = i;
    for (int i = 0; i < n; i++) {
        const gckpti_band_step *q = &r->step[i];
        const gckpti_band_room *room = &r->room[i];
        const size_t scratch = gckpti_run_scratch(r, i);
        const double bytes = sizeof(float) * (double)room->rows * (double)q->width;
        if (scratch > INT32_MAX || bytes > INT32_MAX)
            return 0;
        gckpti_run_buffer(r, i + n, scratch, i, i);
        if (q->at < 0 && room->begin < r->room[~q->at].begin)
            r->room[~q->at].begin = room->begin;
        if (q->at >= 0 && i + 1 < n)
            gckpti_run_buffer(r, i, (size_t)bytes, room->keeps ? 0 : room->begin,
                              room->keeps ? n - 1 : room->last);
    }
    r->work = 0;
    for (int i = 0; i < n; i++) {
        int64_t live = 0;
        for (int k = 0; k < r->buffer_count; k++)
            if (r->buffers[k].start <= i && i <= r->buffers[k].end)
                live += (int64_t)gckpti_round_up(r->buffers[k].size, r->p->alignment);
        r->work = live > r->work ? live : r->work;
    }
    return r->work <= INT32_MAX;
}

/* Makes the run of so many ops. 0: it is none. Fast kernels want some places at once: 64, or a
 * quarter of the rows. */
GCKPTI_FN int gckpti_run_make(gckpti_run_maker *r, const int *id, int n)
{
    const gckpt_tensor *out = r->p->tensors[id[n - 1]];
    const int64_t height = out->shape.d[1];
    const int64_t wide =
        gckpti_elements(&out->shape) / (out->shape.d[0] * height * gckpti_last(&out->shape));
    int fits = 1;
    memset(&r->head, 0, sizeof r->head);
    r->head.rows = r->p->plain ? 1 : (int32_t)gckpti_min((63 + wide) / wide, (height + 3) / 4);
    for (int i = 0; i < n && fits; i++)
        fits = r->p->tensors[id[i]]->shape.d[0] == out->shape.d[0] && height > r->head.rows &&
               (i == n - 1 || r->op[id[i]].last <= id[n - 1]) &&
               gckpti_run_add_op(r, r->p->tensors[id[i]]);
    for (int i = 0; i < n; i++)
        r->op[id[i]].step = -1;
    for (int i = 0; i + 1 < r->head.steps && fits; i++)
        fits = r->room[i].readers > 0;
    if (!fits)
        return 0;
    gckpti_run_in_place(r);
    gckpti_run_walk(r);
    return gckpti_run_room(r);
}
#endif

GCKPTI_WARM
