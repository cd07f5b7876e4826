#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

GCKPTI_COLD

#ifndef GCKPT_NO_BANDS
/* ---- bands: a run of ops that need no gradient, a few rows at a time ----
 * A run is ops one behind the other, of which all but the last are read by others of it alone. Of
 * the values between them there are the rows that their readers still need: the last ones made
 * move to the front when new ones come, so that nothing is computed twice. Rows of a padding are
 * there like others, and count as below 0 or as `height` and above. */
GCKPTI_FN void gckpti_bands_next(const gckpti_bands *b, const gckpti_band_step *step,
                                 const gckpti_band_link *links, gckpti_band_at *at, int32_t end)
{
    for (int i = 0; i < b->steps; i++)
        at[i].drop = INT32_MAX, at[i].need = i + 1 < b->steps ? at[i].high : end;
    for (int i = b->steps; i-- > 0;) {
        gckpti_band_at *q = &at[i];
        q->drop = q->drop == INT32_MAX ? q->high : q->drop;
        q->high = q->high < q->drop ? q->drop : q->high; /* nobody reads what is in between */
        q->need = q->need < q->high ? q->high : q->need;
        const int32_t first = gckpti_band_first(q), stop = gckpti_band_stop(&step[i], q);
        for (int k = step[i].link; k < step[i].link + step[i].links; k++) {
            const gckpti_band_link *in = &links[k];
            if (in->from < 0 || first >= step[i].height)
                continue;
            gckpti_band_at *from = &at[in->from];
            const int32_t drop = first * in->stride - in->before;
            const int32_t need = (stop - 1) * in->stride - in->before + in->reach;
            from->drop = drop < from->drop ? drop : from->drop;
            from->need = first < stop && need > from->need ? need : from->need;
        }
    }
}

GCKPTI_FN void gckpti_bands_begin(const gckpti_bands *b, gckpti_band_at *at)
{
    for (int i = 0; i < b->steps; i++)
        at[i].low = at[i].high = i + 1 < b->steps ? INT32_MIN : 0;
}

GCKPTI_DATA const gckpt_op gckpti_op_bands = {
    "bands", NULL, gckpti_bands_forward, NULL, NULL, NULL, { 0 },
    GCKPTI_OWN_ROW, NULL, NULL, NULL, NULL
};

/* ---- which runs there are ---- */
enum { GCKPTI_RUN = 64, GCKPTI_RUN_STEPS = GCKPTI_RUN + GCKPT_MAX_INPUTS };
enum { GCKPTI_RUN_LINKS = GCKPT_MAX_INPUTS * GCKPTI_RUN_STEPS };

/* What is known of an op: rows.inputs 0: it is in no run. */
typedef struct {
    gckpt_rows rows;
    void *attributes; /* for bands */
    int last;         /* the last op that reads it; p->n: the program or a backward does, too */
    int step;         /* in the run that is being made; -1: none */
    int64_t live;     /* bytes that are there before it and are read by it or later ops */
} gckpti_row_op;

typedef struct {
    gckpti_planner *p;
    gckpti_row_op *op; /* by id */
    /* of the run that is being made */
    gckpti_bands head;
    gckpti_band_step step[GCKPTI_RUN_STEPS];
    gckpti_band_link link[GCKPTI_RUN_LINKS];
    gckpti_band_at at[GCKPTI_RUN_STEPS];
    const gckpt_tensor *in[GCKPT_MAX_INPUTS], *of[GCKPTI_RUN_STEPS];
    int copy[GCKPT_MAX_INPUTS]; /* step that copies an input; -1: none */
    struct {
        int32_t room, most; /* rows that its buffer has; that are made at once */
        int keeps, padded, begin, last; /* steps that write there first, and read it last */
    } more[GCKPTI_RUN_STEPS];
    gckpt_buffer buffers[2 * GCKPTI_RUN_STEPS + 1];
    int owner[2 * GCKPTI_RUN_STEPS + 1], buffer_count;
    uint64_t flops, extra; /* extra: work that the ops run whole do not have */
    int64_t work;          /* bytes of the workspace */
} gckpti_run_maker;

static int64_t gckpti_row_floats(const gckpt_tensor *t)
{
    return gckpti_elements(&t->shape) / (t->shape.d[0] * t->shape.d[1]);
}

/* Whether an input's rows are those of a row op's: 1; whether it is the same for all rows: 0; -1:
 * neither. */
static int gckpti_has_rows(const gckpt_tensor *t, const gckpt_rows *rows, int k)
{
    const gckpt_tensor *q = t->in[k];
    const int same = !t->op->rows, at = q->shape.n - t->shape.n + 1;
    if (q->batchless)
        return same && at >= 0 && q->shape.d[at] != 1 ? -1 : 0;
    if (k >= rows->inputs || q->shape.n != t->shape.n || q->shape.d[0] != t->shape.d[0] ||
        (same && q->shape.d[1] != t->shape.d[1] && q->shape.d[1] != 1))
        return -1;
    return 1;
}

/* Finds what of an op bands are made by. */
static void gckpti_find_rows(gckpti_planner *p, const gckpt_tensor *t, gckpti_row_op *o)
{
    gckpt_rows rows = { GCKPT_MAX_INPUTS, 1, 0, 1, 0.0f };
    const unsigned same = GCKPTI_BY_ELEMENT | GCKPTI_BY_ROW;
    if (t->kind != GCKPTI_OP || t->batchless || p->active[t->id] || t->recompute || t->mixes ||
        gckpti_is_loss(t) || t->type != GCKPT_F32 || t->shape.n < 3 || t->shape.d[1] < 2 ||
        gckpti_elements(&t->shape) > INT32_MAX / 4 ||
        (!t->op->rows && !(t->op->flags & GCKPTI_OWN_ROW && t->op->flags & same)))
        return;
    void *attributes = gckpti_scratch_copy(&p->scratch, t->attributes, t->attribute_bytes, 1);
    gckpt_call call = gckpti_shape_call(t->in, t->inputs, t->attributes);
    call.shape = t->shape;
    if (p->failed || (t->op->rows && !t->op->rows(&call, attributes, &rows)))
        return;
    for (int k = 0; k < t->inputs; k++)
        if (gckpti_is_staged(p, t->in[k]->base) || gckpti_has_rows(t, &rows, k) < 0 ||
            gckpti_elements(&t->in[k]->shape) > INT32_MAX / 4)
            return;
    o->rows = rows;
    o->attributes = attributes;
}

/* What ops read when; what may be in runs. */
static void gckpti_find_row_ops(gckpti_run_maker *r)
{
    gckpti_planner *p = r->p;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        gckpti_find_rows(p, t, &r->op[i]);
        r->op[i].step = -1;
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++) {
            int *last = &r->op[t->in[k]->base->id].last;
            *last = *last < i ? i : *last;
        }
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
/* The number of an input of the run; -1: there are too many. */
static int gckpti_run_input(gckpti_run_maker *r, const gckpt_tensor *t)
{
    int m = 0;
    while (m < r->head.inputs && r->in[m] != t)
        m++;
    if (m == GCKPT_MAX_INPUTS)
        return -1;
    r->copy[m] = m == r->head.inputs ? -1 : r->copy[m];
    r->in[m] = t;
    r->head.inputs = m < r->head.inputs ? r->head.inputs : m + 1;
    return m;
}

static gckpti_band_link *gckpti_run_link(gckpti_run_maker *r, int k, int from,
                                         const gckpt_rows *rows)
{
    gckpti_band_link *in = &r->link[r->head.links++];
    in->input = k;
    in->from = from;
    in->stride = rows->stride, in->before = rows->before, in->reach = rows->reach;
    return in;
}

static void gckpti_run_add_step(gckpti_run_maker *r, const gckpt_tensor *t, int id)
{
    const int i = r->head.steps++;
    gckpti_band_step *q = &r->step[i];
    memset(q, 0, sizeof *q);
    memset(&r->more[i], 0, sizeof r->more[i]);
    r->of[i] = t;
    q->id = id;
    q->height = (int32_t)t->shape.d[1];
    q->width = (int32_t)gckpti_row_floats(t);
    q->link = r->head.links;
}

/* Links input k of op t, the next step. 0: it cannot be in this run. */
static int gckpti_run_reads(gckpti_run_maker *r, const gckpt_tensor *t, int k, int copies)
{
    static const gckpt_rows whole = { 0, 0, 0, 0, 0.0f }, one = { 0, 0, 0, 1, 0.0f },
                            same = { 0, 1, 0, 1, 0.0f };
    const gckpt_tensor *q = t->in[k];
    const gckpti_row_op *o = &r->op[t->id];
    const gckpt_rows *rows = &o->rows;
    int from = r->op[q->base->id].step, m = 0;
    if (q->batchless && q->base->kind != GCKPTI_OP)
        return 1;
    if (from >= 0 ? q->kind == GCKPTI_VIEW : (m = gckpti_run_input(r, q)) < 0)
        return 0;
    if (!q->batchless && !t->op->rows && q->shape.d[1] != t->shape.d[1])
        rows = &one;
    const int64_t last = (t->shape.d[1] - 1) * rows->stride - rows->before + rows->reach;
    const int padded = !q->batchless && (rows->before > 0 || last > q->shape.d[1]);
    if (from < 0 && padded && copies && r->copy[m] < 0) {
        r->copy[m] = r->head.steps;
        gckpti_run_add_step(r, q, -1);
        gckpti_run_link(r, 0, ~m, &same);
        r->step[r->copy[m]].links = 1;
    }
    if (copies)
        return 1;
    from = from >= 0 ? from : padded ? r->copy[m] : ~m;
    gckpti_run_link(r, k, from, q->batchless ? &whole : rows);
    if (from >= 0) {
        r->more[from].last = r->head.steps - 1;
        if (padded && r->more[from].padded && r->step[from].beyond != gckpti_bits(rows->beyond))
            return 0;
        r->step[from].beyond = padded ? gckpti_bits(rows->beyond) : r->step[from].beyond;
        r->more[from].padded |= padded;
    }
    return 1;
}

/* Where step i is the only reader of another one, row by row, and may be in its place, it is. */
static void gckpti_run_in_place(gckpti_run_maker *r, const int *readers)
{
    for (int i = 0; i < r->head.steps; i++) {
        const gckpti_band_step *q = &r->step[i];
        int taken = 0;
        for (int k = q->link; k < q->link + q->links && q->id >= 0 && !r->of[i]->op->rows; k++) {
            const gckpti_band_link *in = &r->link[k];
            if (taken || in->from < 0 || readers[in->from] != 1 || in->stride != 1 ||
                !(r->of[i]->op->flags & GCKPT_INPLACE(in->input)) ||
                r->step[in->from].width != q->width || r->step[in->from].id < 0)
                continue;
            r->step[in->from].at = ~i;
            taken = 1;
        }
    }
}

/* Goes through all bands: rows of buffers, what moves, how often ops run. */
static void gckpti_run_walk(gckpti_run_maker *r)
{
    const gckpti_bands *b = &r->head;
    uint64_t calls = 0, moved = 0;
    const gckpti_band_step *last = &r->step[b->steps - 1];
    gckpti_bands_begin(b, r->at);
    for (int32_t end = 0; end < last->height;) {
        end = end < last->height - b->rows ? end + b->rows : last->height;
        gckpti_bands_next(b, r->step, r->link, r->at, end);
        for (int i = 0; i < b->steps; i++) {
            gckpti_band_at *at = &r->at[i];
            const int32_t made = gckpti_band_stop(&r->step[i], at) - gckpti_band_first(at);
            const int32_t room = at->need - at->drop, kept = at->high - at->drop;
            r->more[i].keeps |= kept > 0;
            r->more[i].most = made > r->more[i].most ? made : r->more[i].most;
            r->more[i].room = room > r->more[i].room ? room : r->more[i].room;
            calls += made > 0;
            moved += 8 * (uint64_t)((at->drop > at->low && kept > 0 ? kept : 0) +
                                    (r->step[i].id < 0 && made > 0 ? made : 0)) *
                     (uint64_t)r->step[i].width;
            at->low = at->drop;
            at->high = at->need;
        }
    }
    r->extra = (uint64_t)r->of[b->steps - 1]->shape.d[0] *
               (calls * GCKPTI_INSTRUCTION_WORK + 10 * moved);
}

/* Adds one of its buffers. */
static void gckpti_run_buffer(gckpti_run_maker *r, int owner, int64_t size, int start, int end)
{
    gckpt_buffer *b = &r->buffers[r->buffer_count];
    memset(b, 0, sizeof *b);
    b->size = (size_t)size;
    b->start = start, b->end = end;
    if (size > 0)
        r->owner[r->buffer_count++] = owner;
}

/* Workspace of a step's op, of as many rows as it makes at once. */
static size_t gckpti_run_scratch(gckpti_run_maker *r, int i)
{
    const gckpt_tensor *t = r->of[i];
    const gckpti_row_op *o = &r->op[t->id];
    gckpt_call call = gckpti_shape_call(t->in, t->inputs, o->attributes);
    if (r->more[i].most == 0)
        return 0;
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_rows *rows = &o->rows;
        if (gckpti_has_rows(t, rows, k) <= 0)
            continue;
        call.in[k].shape.d[0] = 1;
        if (t->op->rows || t->in[k]->shape.d[1] == t->shape.d[1])
            call.in[k].shape.d[1] = (int64_t)(r->more[i].most - 1) * rows->stride + rows->reach;
    }
    call.threads = r->p->threads;
    call.plain = r->p->plain;
    if (t->op->shape(&call) != GCKPT_OK)
        return SIZE_MAX;
    r->flops += t->op->flops ? (uint64_t)(t->shape.d[1] * t->shape.d[0] / r->more[i].most + 1) *
                                   t->op->flops(&call)
                             : (uint64_t)gckpti_elements(&t->shape);
    return call.work_forward;
}

/* Buffers of the run: where each step is, which rows lie there; r->work: live bytes at the most. */
static int gckpti_run_room(gckpti_run_maker *r)
{
    const int n = r->head.steps;
    r->buffer_count = 0;
    r->flops = 0;
    gckpti_run_buffer(r, -1, (int64_t)sizeof(gckpti_band_at) * n, 0, n - 1);
    for (int i = 0; i < n; i++)
        r->more[i].begin = i;
    for (int i = 0; i < n; i++) {
        const size_t scratch = r->step[i].id < 0 ? 0 : gckpti_run_scratch(r, i);
        const int keeps = r->more[i].keeps;
        if (scratch > INT32_MAX)
            return 0;
        gckpti_run_buffer(r, i + n, (int64_t)scratch, i, i);
        if (r->step[i].at < 0 && r->more[i].begin < r->more[~r->step[i].at].begin)
            r->more[~r->step[i].at].begin = r->more[i].begin;
        else if (r->step[i].at >= 0 && i + 1 < n)
            gckpti_run_buffer(r, i, 4 * (int64_t)r->more[i].room * r->step[i].width,
                              keeps ? 0 : r->more[i].begin, keeps ? n - 1 : r->more[i].last);
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

/* Makes the run of so many ops. 0: it is none. */
static int gckpti_run_make(gckpti_run_maker *r, const int *id, int n)
{
    gckpti_planner *p = r->p;
    const gckpt_tensor *out = p->tensors[id[n - 1]];
    const int64_t wide = gckpti_elements(&out->shape) / out->shape.d[0] / out->shape.d[1] /
                         gckpti_last(&out->shape);
    int readers[GCKPTI_RUN_STEPS] = { 0 }, fits = 1;
    memset(&r->head, 0, sizeof r->head);
    /* fast kernels want some places at a time */
    const int64_t rows = p->plain ? 1 : gckpti_min((64 + wide - 1) / wide, out->shape.d[1]);
    r->head.rows = (int32_t)rows;
    fits = rows < out->shape.d[1];
    for (int i = 0; i < n && fits; i++) {
        const gckpt_tensor *t = p->tensors[id[i]];
        fits = t->shape.d[0] == out->shape.d[0] && (i == n - 1 || r->op[id[i]].last <= id[n - 1]);
        for (int k = 0; k < t->inputs && fits; k++)
            fits = gckpti_run_reads(r, t, k, 1);
        gckpti_run_add_step(r, t, id[i]);
        for (int k = 0; k < t->inputs && fits; k++)
            fits = gckpti_run_reads(r, t, k, 0);
        gckpti_band_step *q = &r->step[r->head.steps - 1];
        q->links = r->head.links - q->link;
        for (int k = q->link; k < q->link + q->links; k++)
            if (r->link[k].from >= 0)
                readers[r->link[k].from]++;
        r->op[id[i]].step = r->head.steps - 1;
    }
    for (int i = 0; i < n; i++)
        r->op[id[i]].step = -1;
    for (int i = 0; i + 1 < r->head.steps && fits; i++)
        fits = readers[i] > 0;
    if (!fits)
        return 0;
    gckpti_run_in_place(r, readers);
    gckpti_run_walk(r);
    return gckpti_run_room(r);
}

/* ---- which are chosen ---- */
/* Bytes that are live while an op runs forward, whole; with its backward, if it has one. */
static int64_t gckpti_op_live(const gckpti_run_maker *r, const gckpt_tensor *t)
{
    const gckpti_planner *p = r->p;
    int64_t out = (int64_t)gckpti_value_bytes(p, t), live = r->op[t->id].live;
    for (int k = 0; k < t->inputs; k++)
        if (t->op->flags & GCKPT_INPLACE(k) && r->op[t->in[k]->base->id].last == t->id &&
            t->in[k]->base->kind == GCKPTI_OP &&
            gckpti_value_bytes(p, t->in[k]->base) == gckpti_value_bytes(p, t))
            return live + (int64_t)p->work_forward[t->id];
    return live + out + (int64_t)p->work_forward[t->id];
}

/* Bytes that nothing can do without where an op runs that is in no run. */
static int64_t gckpti_op_least(const gckpti_run_maker *r, const gckpt_tensor *t)
{
    const gckpti_planner *p = r->p;
    int64_t forward = (int64_t)p->work_forward[t->id], backward = (int64_t)p->work_backward[t->id];
    const unsigned needs = gckpti_needs(p, t);
    backward += gckpti_is_loss(t) ? 0 : (int64_t)gckpti_gradient_bytes(p, t);
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k];
        const int64_t bytes = q->base->kind == GCKPTI_OP ? (int64_t)gckpti_value_bytes(p, q) : 0;
        forward += bytes;
        backward += needs & GCKPT_IN(k) ? bytes : 0;
    }
    return p->active[t->id] & GCKPTI_RUNS && backward > forward ? backward : forward;
}

/* The table of a stretch of n ops: bytes of op i whole; of the run of i to i + k, k > 0. */
typedef struct {
    int64_t live;
    uint64_t extra;
} gckpti_run_cost;

/* Cuts a stretch into ops and runs with the least extra work of those that need no more than
 * `most` bytes, or, of those with least bytes, what that is: *most. from[j]: where the last of the
 * first j ops begins. */
static void gckpti_cut_stretch(const gckpti_run_cost *cost, int n, int64_t *most, int *from,
                               gckpti_run_cost *best)
{
    for (int least = 1; least >= 0; least--) {
        best[0].live = 0, best[0].extra = 0;
        for (int j = 1; j <= n; j++) {
            best[j].live = INT64_MAX, best[j].extra = UINT64_MAX;
            for (int i = j - 1; i >= 0 && i >= j - GCKPTI_RUN; i--) {
                const gckpti_run_cost *c = &cost[i * GCKPTI_RUN + j - 1 - i], *b = &best[i];
                const int64_t live = c->live > b->live ? c->live : b->live;
                const uint64_t extra = c->extra + b->extra;
                if (live == INT64_MAX ||
                    (least ? live >= best[j].live : live > *most || extra >= best[j].extra))
                    continue;
                best[j].live = live, best[j].extra = extra;
                from[j] = i;
            }
        }
        *most = *most > best[n].live ? *most : best[n].live;
    }
}

/* Offsets of its buffers in the workspace. 0: no memory. */
static int gckpti_place_run(gckpti_run_maker *r)
{
    const int n = r->head.steps;
    gckpti_scratch pass = gckpti_scratch_new(r->p->memory, &r->p->failed);
    const size_t bytes =
        gckpti_place(&pass, r->buffers, (size_t)r->buffer_count, r->p->alignment);
    gckpti_scratch_free(&pass);
    r->work = (int64_t)bytes;
    for (int k = 0; k < r->buffer_count; k++) {
        const int32_t at = (int32_t)r->buffers[k].offset;
        if (r->owner[k] < 0)
            r->head.at = at;
        else if (r->owner[k] < n)
            r->step[r->owner[k]].at = at;
        else
            r->step[r->owner[k] - n].work = at;
    }
    return !r->p->failed && bytes <= INT32_MAX;
}

/* Puts a run in place of its last op; those inside run as bands have it. */
static void gckpti_put_run(gckpti_run_maker *r, const int *id, int n)
{
    gckpti_planner *p = r->p;
    const gckpt_tensor *t = p->tensors[id[n - 1]];
    gckpt_tensor as = *t;
    uint64_t given = 0, whole = 0;
    if (!gckpti_run_make(r, id, n) || !gckpti_place_run(r))
        return;
    const size_t steps = sizeof *r->step * (size_t)r->head.steps, head = sizeof r->head;
    const size_t own = head + steps + sizeof *r->link * (size_t)r->head.links;
    r->head.own = (int32_t)gckpti_round_up(own, GCKPTI_ALIGN);
    r->head.own_inputs = t->inputs;
    for (int k = 0; k < t->inputs; k++)
        r->head.own_in[k] = t->in[k]->id;
    r->head.flops[0] = (uint32_t)r->flops;
    r->head.flops[1] = (uint32_t)(r->flops >> 32);
    as.op = &gckpti_op_bands;
    as.data = t->op;
    as.aux_bytes = 0;
    as.inputs = r->head.inputs;
    as.attribute_bytes = (size_t)r->head.own + t->attribute_bytes;
    unsigned char *to = (unsigned char *)gckpti_scratch_take(&p->scratch, as.attribute_bytes, 1);
    for (int i = 0; i < n && to; i++) {
        gckpt_tensor inner = *p->tensors[id[i]];
        whole = gckpti_add_work(whole, p->model[id[i]].forward);
        given = gckpti_add_work(given, p->desc->costs ? p->desc->costs[id[i]].forward : 0);
        inner.attributes = r->op[id[i]].attributes;
        p->run_of[id[i]] = id[n - 1];
        p->tensors[id[i]] =
            (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &inner, 1, sizeof inner);
    }
    if (p->failed)
        return;
    memcpy(to, &r->head, head);
    memcpy(to + head, r->step, steps);
    memcpy(to + head + steps, r->link, own - head - steps);
    if (t->attribute_bytes)
        memcpy(to + r->head.own, r->op[t->id].attributes, t->attribute_bytes);
    as.attributes = to;
    for (int m = 0; m < as.inputs; m++)
        as.in[m] = p->g->tensors[r->in[m]->id];
    p->tensors[t->id] = (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &as, 1, sizeof as);
    p->work_forward[t->id] = (size_t)r->work;
    p->model[t->id].forward = gckpti_add_work(whole, r->extra);
    if (p->built_model && p->desc->costs)
        p->cost[t->id].forward = gckpti_in_proportion(given, p->model[t->id].forward, whole);
    else if (!p->desc->costs)
        p->cost[t->id] = p->model[t->id];
    p->banded = 1;
}

/* Cuts a stretch of n ops, one behind the other, that may all be in runs. */
static void gckpti_take_stretch(gckpti_run_maker *r, const int *id, int n, int64_t least,
                                gckpti_scratch *pass)
{
    const gckpti_planner *p = r->p;
    const size_t room = (size_t)n + 1;
    gckpti_run_cost *cost =
        (gckpti_run_cost *)gckpti_scratch_take(pass, room * GCKPTI_RUN, sizeof *cost);
    gckpti_run_cost *best = (gckpti_run_cost *)gckpti_scratch_take(pass, room, sizeof *best);
    int *from = (int *)gckpti_scratch_take(pass, room, sizeof *from);
    if (p->failed)
        return;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < GCKPTI_RUN; k++) {
            gckpti_run_cost *c = &cost[i * GCKPTI_RUN + k];
            c->live = INT64_MAX;
            if (k == 0)
                c->live = gckpti_op_live(r, p->tensors[id[i]]);
            else if (i + k < n && gckpti_run_make(r, id + i, k + 1)) {
                c->live = r->op[id[i]].live + r->work +
                          (int64_t)gckpti_value_bytes(p, p->tensors[id[i + k]]);
                c->extra = r->extra;
            }
        }
    gckpti_cut_stretch(cost, n, &least, from, best);
    for (int j = n; j > 0; j = from[j])
        if (j - from[j] > 1)
            gckpti_put_run(r, id + from[j], j - from[j]);
}

GCKPTI_FN void gckpti_take_bands(gckpti_planner *p)
{
    gckpti_scratch pass = gckpti_scratch_new(p->memory, &p->failed);
    const size_t n = (size_t)p->n;
    gckpti_run_maker *r = (gckpti_run_maker *)gckpti_scratch_take(&pass, 1, sizeof *r);
    int *id = (int *)gckpti_scratch_take(&pass, n, sizeof *id), count = 0;
    gckpti_row_op *op = (gckpti_row_op *)gckpti_scratch_take(&pass, n, sizeof *op);
    int64_t least = 0;
    p->run_of = (int *)gckpti_scratch_take(&p->scratch, n, sizeof *p->run_of);
    if (p->failed) {
        gckpti_scratch_free(&pass);
        return;
    }
    memset(p->run_of, 0xff, n * sizeof *p->run_of);
    r->p = p;
    r->op = op;
    gckpti_find_row_ops(r);
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        const int64_t own = t->kind == GCKPTI_OP && !op[i].rows.inputs ? gckpti_op_least(r, t) : 0;
        least = own > least ? own : least;
    }
    for (int i = 0; i <= p->n && !p->failed; i++) {
        const gckpt_tensor *t = i < p->n ? p->tensors[i] : NULL;
        if (t && (t->kind != GCKPTI_OP || t->batchless))
            continue;
        if (t && op[i].rows.inputs) {
            id[count++] = i;
            continue;
        }
        if (count > 1)
            gckpti_take_stretch(r, id, count, least, &pass);
        count = 0;
    }
    gckpti_scratch_free(&pass);
}
#endif

GCKPTI_WARM
