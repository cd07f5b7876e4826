#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

GCKPTI_COLD

#ifndef GCKPT_NO_TILES
/* Puts a run in place of its last op; those inside run as bands have it. */
static void gckpti_put_run(gckpti_run_maker *r, gckpti_scratch *pass, const int *id, int n)
{
    gckpti_planner *p = r->p;
    const gckpt_tensor *t = p->tensors[id[n - 1]];
    gckpt_tensor as = *t;
    uint64_t given = 0, whole = 0, flops = 0;
    gckpti_run_make(r, id, n); /* as when it was chosen */
    const int count = r->head.steps;
    const size_t work = gckpti_place(pass, r->buffers, (size_t)r->buffer_count, p->alignment);
    const size_t steps = sizeof *r->step * (size_t)count, head = sizeof r->head;
    const size_t links = sizeof *r->link * (size_t)r->head.links;
    for (int k = 0; k < r->buffer_count; k++) {
        const int i = r->buffers[k].id;
        *(i < count       ? &r->step[i].at
          : i < 2 * count ? &r->step[i - count].work
                          : &r->head.at) = (int32_t)r->buffers[k].offset;
    }
    for (int i = 0; i < n; i++) {
        gckpt_tensor inner = *p->tensors[id[i]];
        gckpt_call call = gckpti_shape_call(inner.in, inner.inputs, inner.attributes);
        call.shape = inner.shape;
        flops += inner.op->flops ? inner.op->flops(&call) : 0;
        whole = gckpti_add_work(whole, p->model[id[i]].forward);
        given = gckpti_add_work(given, p->desc->costs ? p->desc->costs[id[i]].forward : 0);
        inner.attributes = r->op[id[i]].attributes;
        p->run_of[id[i]] = t->id;
        p->tensors[id[i]] =
            (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &inner, 1, sizeof inner);
    }
    r->head.kiloflops = (uint32_t)(flops >> 10 < UINT32_MAX ? flops >> 10 : UINT32_MAX);
    r->head.own = (int32_t)gckpti_round_up(head + steps + links, GCKPTI_ALIGN);
    r->head.own_inputs = t->inputs;
    as.op = &gckpti_op_bands;
    as.data = t->op;
    as.aux_bytes = 0;
    as.inputs = r->head.inputs;
    as.attribute_bytes = (size_t)r->head.own + t->attribute_bytes;
    unsigned char *to = (unsigned char *)gckpti_scratch_take(&p->scratch, as.attribute_bytes, 1);
    for (int k = 0; k < GCKPT_MAX_INPUTS; k++) {
        as.in[k] = k < as.inputs ? p->g->tensors[r->head.in[k]] : NULL;
        r->head.in[k] = k < t->inputs ? t->in[k]->id : 0;
    }
    as.attributes = to;
    p->tensors[t->id] = (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &as, 1, sizeof as);
    p->failed = p->failed || work == SIZE_MAX;
    if (p->failed)
        return;
    memcpy(to, &r->head, head);
    memcpy(to + head, r->step, steps);
    memcpy(to + head + steps, r->link, links);
    if (t->attribute_bytes)
        memcpy(to + r->head.own, r->op[t->id].attributes, t->attribute_bytes);
    p->work_forward[t->id] = work;
    p->model[t->id].forward = gckpti_add_work(whole, r->extra);
    if (!p->desc->costs)
        p->cost[t->id] = p->model[t->id];
    else if (p->built_model)
        p->cost[t->id].forward = gckpti_in_proportion(given, p->model[t->id].forward, whole);
    p->banded = 1;
}

/* ---- which are chosen: of the ways to cut a stretch into ops and runs that need no more bytes
 * than the best of them, or `least`, the one with the least work ---- */
typedef struct {
    int64_t live; /* bytes at the most */
    uint64_t extra;
    int from; /* of the first so many ops: where the last one, or run, begins */
} gckpti_run_cut;

/* cut[i * GCKPTI_RUN + k]: of the run from op i to i + k; best: of the first so many ops. */
static void gckpti_cut_stretch(const gckpti_run_cut *cut, int n, int64_t least,
                               gckpti_run_cut *best)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int j = 1; j <= n; j++) {
            best[j].live = INT64_MAX, best[j].extra = UINT64_MAX;
            for (int i = j - 1; i >= 0 && i >= j - GCKPTI_RUN; i--) {
                const gckpti_run_cut *c = &cut[i * GCKPTI_RUN + j - 1 - i];
                const int64_t live = c->live > best[i].live ? c->live : best[i].live;
                if (live == INT64_MAX ||
                    (pass ? live > least || c->extra + best[i].extra >= best[j].extra
                          : live >= best[j].live))
                    continue;
                best[j].live = live, best[j].extra = c->extra + best[i].extra, best[j].from = i;
            }
        }
        least = least > best[n].live ? least : best[n].live;
    }
}

/* Bytes that are live while an op runs whole. */
static int64_t gckpti_op_live(const gckpti_run_maker *r, const gckpt_tensor *t)
{
    const gckpti_planner *p = r->p;
    size_t out = gckpti_value_bytes(p, t);
    for (int k = 0; k < t->inputs; k++)
        if (t->op->flags & GCKPT_INPLACE(k) && r->op[t->in[k]->base->id].last == t->id &&
            t->in[k]->base->kind == GCKPTI_OP && gckpti_value_bytes(p, t->in[k]->base) == out)
            out = 0;
    return r->op[t->id].live + (int64_t)(out + p->work_forward[t->id]);
}

/* A stretch of n ops, one behind the other, that may all be in runs. */
static void gckpti_take_stretch(gckpti_run_maker *r, const int *id, int n, int64_t least,
                                gckpti_scratch *pass)
{
    const size_t room = (size_t)n + 1;
    gckpti_run_cut *cut =
        (gckpti_run_cut *)gckpti_scratch_take(pass, room * GCKPTI_RUN, sizeof *cut);
    gckpti_run_cut *best = (gckpti_run_cut *)gckpti_scratch_take(pass, room, sizeof *best);
    for (int at = 0; at < n * GCKPTI_RUN && !r->p->failed; at++) {
        const int i = at / GCKPTI_RUN, k = at % GCKPTI_RUN;
        cut[at].live = k ? INT64_MAX : gckpti_op_live(r, r->p->tensors[id[i]]);
        if (k == 0 || i + k >= n || !gckpti_run_make(r, id + i, k + 1))
            continue;
        cut[at].live = r->op[id[i]].live + r->work +
                       (int64_t)gckpti_value_bytes(r->p, r->p->tensors[id[i + k]]);
        cut[at].extra = r->extra;
    }
    if (!r->p->failed)
        gckpti_cut_stretch(cut, n, least, best);
    for (int j = n; j > 0 && !r->p->failed; j = best[j].from)
        if (j - best[j].from > 1)
            gckpti_put_run(r, pass, id + best[j].from, j - best[j].from);
}

GCKPTI_FN void gckpti_take_bands(gckpti_planner *p)
{
    gckpti_scratch pass = gckpti_scratch_new(p->memory, &p->failed);
    const size_t n = (size_t)p->n;
    gckpti_run_maker *r = (gckpti_run_maker *)gckpti_scratch_take(&pass, 1, sizeof *r);
    int *id = (int *)gckpti_scratch_take(&pass, n, sizeof *id), count = 0;
    gckpti_row_op *op = (gckpti_row_op *)gckpti_scratch_take(&pass, n, sizeof *op);
    int64_t least = 0; /* no op can do with fewer bytes, in whatever schedule */
    p->run_of = (int *)gckpti_scratch_take(&p->scratch, n, sizeof *p->run_of);
    if (!p->failed) {
        memset(p->run_of, 0xff, n * sizeof *p->run_of);
        r->p = p, r->op = op;
        gckpti_find_row_ops(r);
    }
    for (int i = 0; i < p->n && !p->failed; i++) {
        const int64_t own = (int64_t)(gckpti_value_bytes(p, p->tensors[i]) + p->work_forward[i]);
        if (p->tensors[i]->kind == GCKPTI_OP && !op[i].rows.inputs && own > least)
            least = own;
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
