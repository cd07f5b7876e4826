#ifndef GCKPT_NO_CACHES
#include "ops/own.h"
#include "graph/graph.h"

/* cache: its T rows of x after the `position` that are there. An instruction with a result that
 * lies in the executor's caches, not in the arena. */
static gckpt_result gckpti_cache_shape(gckpt_call *call)
{
    int capacity = *(const int *)call->attributes;
    call->shape = call->in[0].shape;
    if (call->shape.n != 3 || call->shape.d[1] > capacity)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "cache: x %S must be (B,T,C), T at most the capacity of %i rows",
                          &call->shape, capacity);
    call->shape.d[1] = capacity;
    return GCKPT_OK;
}
GCKPTI_FN void gckpti_cache_forward(const gckpt_call *call)
{
    int64_t c = call->shape.d[2], n = call->in[0].shape.d[1] * c, each = call->shape.d[1] * c;
    int64_t from = 0, to = call->position * c;
    for (int64_t b = 0; b < call->shape.d[0]; b++, from += n, to += each)
        for (int64_t i = 0; i < n; i++)
            gckpti_cache_put(&call->in[0], from + i, call->out, call->out_bf16, to + i);
}
GCKPTI_ROW_ALL(cache, NULL, GCKPTI_PLAIN, gckpti_cache_shape, gckpti_flops_1, NULL, NULL,
               GCKPTI_CACHED | GCKPT_SIDE_EFFECT | GCKPT_TAKES_BF16, 0);
GCKPT_API gckpt_tensor *gckpt_cache(gckpt_tensor *x, int64_t capacity)
{
    gckpt_graph *g = x ? x->graph : NULL;
    int rows = (int)capacity;
    if (!x || capacity < 1 || capacity > INT32_MAX)
        return gckpti_fail(g, GCKPT_E_ARG, "cache: a capacity of %I rows; 1 to %i are possible",
                           capacity, INT32_MAX);
    if (x->batchless || x->capacity)
        return gckpti_fail(g, GCKPT_E_ARG, "cache: %T %s", x,
                           x->capacity ? "is one already"
                                       : "depends on parameters only; it needs none");
    gckpt_tensor *t = gckpt_apply(&gckpti_op_cache, &x, 1, &rows, sizeof rows);
    if (t && g->cached && (g->cached != capacity || g->news != x->shape.d[1]))
        return gckpti_fail(
            g, GCKPT_E_SHAPE,
            "cache: %T %S, capacity %I: all caches of a graph have the same, and the "
            "same T; here %I, T = %I",
            x, &x->shape, capacity, g->cached, g->news);
    if (!t)
        return NULL;
    g->cached = t->capacity = capacity;
    g->news = x->shape.d[1];
    return gckpti_moves_fit(g) ? t : NULL;
}
#endif
