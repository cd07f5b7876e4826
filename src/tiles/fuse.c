#if !defined(GCKPT_NO_TILES) && !defined(GCKPT_SMALL)
#include "plan/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* Replaces the last op of a group by gckpti_op_fused; gives the others attributes for row tiles. */
static void gckpti_put_fused(gckpti_fused_builder *r, gckpti_scratch *temp, const int *id, int n)
{
    gckpti_planner *p = r->p;
    const gckpt_tensor *t = p->tensors[id[n - 1]];
    gckpt_tensor fused = *t;
    uint64_t unfused = 0;
    gckpti_build_fused(r, id, n);
    const int count = r->header.steps;
    const size_t workspace =
        gckpti_assign_offsets(temp, r->buffers, (size_t)r->buffer_count, p->alignment, 0);
    const size_t steps = sizeof *r->step * (size_t)count, header = sizeof r->header;
    const size_t edges = sizeof *r->edge * (size_t)r->header.edges;
    for (int k = 0; k < r->buffer_count; k++) {
        const int i = r->buffers[k].id;
        *(i < count       ? &r->step[i].offset
          : i < 2 * count ? &r->step[i - count].workspace
                          : &r->header.ranges_offset) = (int32_t)r->buffers[k].offset;
    }
    for (int i = 0; i < n; i++) {
        gckpt_tensor inner = *p->tensors[id[i]];
        unfused = gckpti_add_cost(unfused, p->model_cost[id[i]].forward);
        inner.attributes = r->op[id[i]].attributes;
        inner.index = t->id;
        p->tensors[id[i]] =
            (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &inner, 1, sizeof inner);
    }
    r->header.last_offset = (int32_t)gckpti_round_up(header + steps + edges, GCKPTI_ALIGN);
    r->header.last_inputs = t->inputs;
    fused.op = &gckpti_op_fused, fused.data = t->op, fused.saved_bytes = 0;
    fused.inputs = r->header.inputs;
    fused.attribute_bytes = (size_t)r->header.last_offset + t->attribute_bytes;
    unsigned char *to =
        (unsigned char *)gckpti_scratch_alloc(&p->scratch, fused.attribute_bytes, 1);
    for (int k = 0; k < GCKPT_MAX_INPUTS; k++) {
        fused.in[k] = k < fused.inputs ? p->g->tensors[r->header.last_in[k]] : NULL;
        r->header.last_in[k] = k < t->inputs ? t->in[k]->id : 0;
    }
    fused.attributes = to;
    p->tensors[t->id] =
        (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &fused, 1, sizeof fused);
    p->failed = p->failed || workspace == SIZE_MAX;
    if (p->failed)
        return;
    memcpy(to, &r->header, header);
    memcpy(to + header, r->step, steps);
    memcpy(to + header + steps, r->edge, edges);
    if (t->attribute_bytes)
        memcpy(to + r->header.last_offset, r->op[t->id].attributes, t->attribute_bytes);
    p->workspace_forward[t->id] = workspace;
    p->model_cost[t->id].forward = gckpti_add_cost(unfused, r->extra_cost);
    p->cost[t->id] = gckpti_replacement_cost(p, p->model_cost[t->id], id, n);
    p->unused = 0;
}

/* ---- which groups to fuse: the cheapest split of a stretch of ops within some bytes ---- */
typedef struct {
    int64_t live_bytes; /* most live bytes */
    uint64_t extra_cost;
    int from; /* of the best split of the first j ops: index at which its last op or group begins */
} gckpti_split;

/* Sets best[n] to the cheapest split. split[i * GCKPTI_FUSED_OPS + k] groups ops i to i + k. */
static void gckpti_split_stretch(const gckpti_split *split, int n, int64_t cap, gckpti_split *best)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int j = 1; j <= n; j++) {
            gckpti_split *b = &best[j];
            b->live_bytes = INT64_MAX, b->extra_cost = UINT64_MAX;
            for (int i = j - 1; i >= 0 && i >= j - GCKPTI_FUSED_OPS; i--) {
                const gckpti_split *c = &split[i * GCKPTI_FUSED_OPS + j - 1 - i];
                const int64_t live =
                    c->live_bytes > best[i].live_bytes ? c->live_bytes : best[i].live_bytes;
                const uint64_t extra = c->extra_cost + best[i].extra_cost;
                if (live < INT64_MAX &&
                    (pass ? live <= cap && extra < b->extra_cost : live < b->live_bytes))
                    b->live_bytes = live, b->extra_cost = extra, b->from = i;
            }
        }
        cap = cap > best[n].live_bytes ? cap : best[n].live_bytes;
    }
}

/* Returns the bytes that are live while an op runs outside a group. */
static int64_t gckpti_op_live_bytes(const gckpti_fused_builder *r, const gckpt_tensor *t)
{
    const gckpti_planner *p = r->p;
    size_t out = gckpti_value_bytes(p, t);
    for (int k = 0; k < t->inputs; k++)
        if (t->op->flags & GCKPT_INPLACE(k) && r->op[t->in[k]->base->id].last_reader == t->id &&
            t->in[k]->base->kind == GCKPTI_OP && gckpti_value_bytes(p, t->in[k]->base) == out)
            out = 0;
    return r->op[t->id].live_bytes + (int64_t)(out + p->workspace_forward[t->id]);
}

/* Fuses groups within a stretch: n consecutive ops that may all be in a group. */
static void gckpti_fuse_stretch(gckpti_fused_builder *r, const int *id, int n, int64_t least,
                                gckpti_scratch *temp)
{
    const size_t slots = (size_t)n + 1;
    gckpti_split *split =
        (gckpti_split *)gckpti_scratch_alloc(temp, slots * GCKPTI_FUSED_OPS, sizeof *split);
    gckpti_split *best = (gckpti_split *)gckpti_scratch_alloc(temp, slots, sizeof *best);
    for (int index = 0; index < n * GCKPTI_FUSED_OPS && !r->p->failed; index++) {
        const int i = index / GCKPTI_FUSED_OPS, k = index % GCKPTI_FUSED_OPS;
        split[index].live_bytes = k ? INT64_MAX : gckpti_op_live_bytes(r, r->p->tensors[id[i]]);
        if (k == 0 || i + k >= n || !gckpti_build_fused(r, id + i, k + 1))
            continue;
        split[index].live_bytes = r->op[id[i]].live_bytes + r->workspace +
                                  (int64_t)gckpti_value_bytes(r->p, r->p->tensors[id[i + k]]);
        split[index].extra_cost = r->extra_cost;
    }
    if (!r->p->failed)
        gckpti_split_stretch(split, n, least, best);
    for (int j = n; j > 0 && !r->p->failed; j = best[j].from)
        if (j - best[j].from > 1)
            gckpti_put_fused(r, temp, id + best[j].from, j - best[j].from);
}

/* Replaces ops, whose bytes and cost are known, by fused groups; clears p->unused. */
static void gckpti_fuse_ops(gckpti_planner *p)
{
    gckpti_scratch temp = gckpti_scratch_new(p->memory, &p->failed);
    const size_t n = (size_t)p->n;
    gckpti_fused_builder *r = (gckpti_fused_builder *)gckpti_scratch_alloc(&temp, 1, sizeof *r);
    int *id = (int *)gckpti_scratch_alloc(&temp, n, sizeof *id), count = 0;
    gckpti_row_op *op = (gckpti_row_op *)gckpti_scratch_alloc(&temp, n, sizeof *op);
    int64_t least = 0; /* most bytes of an op outside groups; no plan's peak is lower */
    if (!p->failed) {
        r->p = p, r->op = op;
        gckpti_find_row_ops(r);
    }
    for (int i = 0; i < p->n && !p->failed; i++) {
        const size_t bytes = gckpti_value_bytes(p, p->tensors[i]) + p->workspace_forward[i];
        if (p->tensors[i]->kind == GCKPTI_OP && !op[i].rows.inputs && (int64_t)bytes > least)
            least = (int64_t)bytes;
    }
    for (int i = 0; i <= p->n && !p->failed; i++) {
        const gckpt_tensor *t = i < p->n ? p->tensors[i] : NULL;
        if (t && (t->kind != GCKPTI_OP || t->batch_invariant))
            continue;
        if (t && op[i].rows.inputs) {
            id[count++] = i;
            continue;
        }
        if (count > 1)
            gckpti_fuse_stretch(r, id, count, least, &temp);
        count = 0;
    }
    gckpti_scratch_free(&temp);
}

GCKPTI_PASSES(tiles)
{
    (void)arg;
    if (stage == GCKPTI_PASS_OPS && p->variant.fused) {
        p->unused = 1;
        if (!gckpti_is_rounded(p->desc))
            gckpti_fuse_ops(p);
    }
    return GCKPT_OK;
}
#endif
