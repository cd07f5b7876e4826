#include "graph/own.h"

static gckpt_tensor *gckpti_pin(gckpt_tensor *x, int keep)
{
    if (x) {
        x->base->keep = keep;
        x->base->recompute = !keep;
    }
    return x;
}
GCKPT_API gckpt_tensor *gckpt_keep(gckpt_tensor *x) { return gckpti_pin(x, 1); }
GCKPT_API gckpt_tensor *gckpt_recompute(gckpt_tensor *x) { return gckpti_pin(x, 0); }

GCKPT_API void gckpt_segment_begin(gckpt_graph *graph)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return;
    if (!gckpti_grow(&graph->memory, &graph->segments, &graph->segment_capacity,
                     graph->segment_count, sizeof *graph->segments)) {
        gckpti_graph_full(graph, "graph: no memory for segment %z", graph->segment_count);
        return;
    }
    gckpti_segment *s = &graph->segments[graph->segment_count];
    s->parent = graph->segment;
    s->depth = s->parent < 0 ? 1 : graph->segments[s->parent].depth + 1;
    s->ordinal = s->parent < 0 ? graph->outermost++ : -1;
    graph->deepest = s->depth > graph->deepest ? s->depth : graph->deepest;
    graph->segment = (int)graph->segment_count++;
}

GCKPT_API void gckpt_segment_end(gckpt_graph *graph)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return;
    if (graph->segment < 0)
        gckpti_fail(graph, GCKPT_E_ARG, "gckpt_segment_end without gckpt_segment_begin");
    else
        graph->segment = graph->segments[graph->segment].parent;
}

GCKPT_API gckpt_tensor *gckpt_checkpoint(gckpt_block block, gckpt_tensor *x, void *user)
{
    if (!block || !x)
        return NULL;
    gckpt_graph *g = x->graph;
    gckpt_segment_begin(g);
    gckpt_tensor *y = block(x, user);
    gckpt_segment_end(g);
    return y;
}

GCKPTI_FN gckpt_tensor *gckpti_cached_fail(gckpt_graph *g, const char *what, const gckpt_tensor *x)
{
    return gckpti_fail(
        g, GCKPT_E_ARG,
        "%s: %T has rows of a gckpt_cache, of which some may not be there yet; causal "
        "attention can read it, and gckpt_concat (axis 1, as the last input)",
        what, x);
}

GCKPT_API gckpt_tensor *gckpt_reshape(gckpt_tensor *x, gckpt_shape shape)
{
    if (!x)
        return NULL;
    gckpt_graph *g = x->graph;
    gckpt_shape asked = shape;
    int64_t have = gckpti_elements(&x->shape), known = 1;
    int open = -1, fits = !x->op || !(x->op->flags & GCKPT_LOSS);
    for (int i = 0; i < shape.n && i < GCKPT_MAX_DIMS && fits; i++) {
        if (shape.d[i] == -1 && open < 0) {
            open = i;
        } else {
            fits = shape.d[i] > 0 && known <= have / shape.d[i];
            known *= fits ? shape.d[i] : 1;
        }
    }
    if (open >= 0)
        shape.d[open] = have / known;
    if (x->capacity && !gckpti_same_shape(&shape, &x->shape))
        return gckpti_cached_fail(g, "reshape", x);
    if (!fits || !gckpti_shape_fits(&shape) || gckpti_elements(&shape) != have)
        return gckpti_fail(g, GCKPT_E_SHAPE, "reshape: %S to %S: the sizes do not multiply to %I",
                           &x->shape, &asked, have);
    gckpt_tensor *t = gckpti_tensor_new(g, GCKPTI_VIEW, &shape, x->type);
    if (!t)
        return NULL;
    t->base = x->base;
    t->in[0] = x;
    t->inputs = 1;
    t->batchless = x->batchless;
    t->capacity = x->capacity;
    t->mixes = x->mixes;
    if (!t->batchless && (shape.n == 0 || shape.d[0] % g->rows))
        t->mixes |= GCKPTI_ALWAYS;
    return t;
}
