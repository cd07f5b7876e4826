#ifndef GCKPT_NO_CACHES
#include "attention/attention.h"
#include "graph/graph.h"
#include "ops/internal.h"

/* Fails if a table of gckpt_positions has fewer rows from `first` on than the caches can hold. */
static int gckpti_check_positions(gckpt_graph *g)
{
    if (g->cache_capacity && g->min_positions && g->min_positions < g->cache_capacity)
        gckpti_fail(
            g, GCKPT_E_SHAPE,
            "positions: caches have a capacity of %I rows, but the table has %I positions from "
            "`first` on; make it larger",
            g->cache_capacity, g->min_positions);
    return g->object.sticky == GCKPT_OK;
}

/* Returns the rows of a cache. With a window, it also has space for rows that a call may add before
 * it overwrites any. */
enum { GCKPTI_CACHE_STEP = 64 };
static int64_t gckpti_cache_rows(const gckpti_cache *o)
{
    return o->window ? gckpti_ceil_to((int64_t)o->window + GCKPTI_CACHE_STEP - 1, GCKPTI_CACHE_STEP)
                     : o->capacity;
}

/* cache: writes its T rows of x from row `position` on (with a window, position p is row p % rows).
 * The result is in the executor's caches, not in the arena. */
static gckpt_result gckpti_cache_shape(gckpt_call *call)
{
    const int64_t rows = gckpti_cache_rows((const gckpti_cache *)call->attributes);
    call->shape = call->in[0].shape;
    if (call->shape.n != 3 || call->shape.d[1] > rows)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "cache: x %S must be (B,T,C), T at most the capacity of %I rows",
                          &call->shape, rows);
    call->shape.d[1] = rows;
    return GCKPT_OK;
}
GCKPTI_FN void gckpti_cache_forward(const gckpt_call *call)
{
    const int64_t c = call->shape.d[2], t = call->in[0].shape.d[1], rows = call->shape.d[1];
    for (int64_t i = 0; i < call->shape.d[0] * t; i++) {
        const int64_t row = i / t * rows + (call->position + i % t) % rows;
        for (int64_t j = 0; j < c; j++)
            gckpti_cache_put(&call->in[0], i * c + j, call->out, call->out_bf16, row * c + j);
    }
}
GCKPTI_DESC_ALL(cache, NULL, gckpti_cache_shape, gckpti_flops_1, NULL, NULL, NULL,
                GCKPTI_CACHED | GCKPT_SIDE_EFFECT | GCKPT_TAKES_BF16, 0);
GCKPT_API gckpt_tensor *gckpt_cache_window(gckpt_tensor *x, int64_t capacity, int64_t window)
{
    gckpt_graph *g = x ? x->graph : NULL;
    gckpti_cache o = { (int)capacity, 0 };
    if (!x || capacity < 1 || capacity > INT32_MAX)
        return gckpti_fail(g, GCKPT_E_ARG, "cache: a capacity of %I rows must be 1 to %i", capacity,
                           INT32_MAX);
    if (window < 0)
        return gckpti_fail(g, GCKPT_E_ARG, "cache: a window of %I rows must be 1 or more (0: all)",
                           window);
    if (x->batch_invariant || x->cache_capacity)
        return gckpti_fail(g, GCKPT_E_ARG, "cache: %T %s", x,
                           x->cache_capacity ? "is a cache already"
                                             : "depends on parameters only and needs no cache");
    o.window = window < capacity ? (int)window : 0;
    if (gckpti_cache_rows(&o) >= capacity)
        o.window = 0;
    gckpt_tensor *t = gckpt_apply(&gckpti_op_cache, &x, 1, &o,
                                  o.window ? sizeof o : offsetof(gckpti_cache, window));
    if (t && g->cache_capacity &&
        (g->cache_capacity != capacity || g->new_positions != x->shape.d[1]))
        return gckpti_fail(
            g, GCKPT_E_SHAPE,
            "cache: %T %S, capacity %I: all caches of a graph need one capacity and one T, here "
            "%I and T = %I",
            x, &x->shape, capacity, g->cache_capacity, g->new_positions);
    if (!t)
        return NULL;
    g->cache_capacity = t->cache_capacity = capacity;
    t->cache_window = o.window;
    g->new_positions = x->shape.d[1];
    return gckpti_check_positions(g) ? t : NULL;
}
GCKPT_API gckpt_tensor *gckpt_cache(gckpt_tensor *x, int64_t capacity)
{
    return gckpt_cache_window(x, capacity, 0);
}

/* Checks in (q, k, v, lengths); if k is a cache, sets which keys are missing at position 0. Returns
 * 0 after an error. */
GCKPTI_FN int gckpti_attention_of_cache(gckpti_attention *o, gckpt_tensor *const *in)
{
    const gckpt_tensor *q = in[0], *k = in[1], *v = in[2];
    gckpt_graph *g = q->graph;
    if (!k->cache_capacity && !q->cache_capacity && !v->cache_capacity)
        return 1;
    const int64_t keys = k->shape.d[1], added = g->new_positions;
    if (!k->cache_capacity)
        gckpti_fail_cached(g, "attention: q is cached, or v without k", v->cache_capacity ? v : q);
    else if (k->cache_window && (!o->window || o->window > k->cache_window))
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: %T has a window of %I keys; attention on it needs a window of at "
                    "most that, not %i (0: all)",
                    k, k->cache_window, o->window);
    else if (k->cache_window && o->window - 1 + added > keys)
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: %T holds %I rows; with a window of %i a call can add %I of them, "
                    "not %I: feed fewer at a time, or give the cache a longer window",
                    k, keys, o->window, keys - o->window + 1, added);
    else if (in[3])
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: keys of a gckpt_cache allow no lengths, since all rows of a "
                    "cache have equally many keys; leave desc.lengths NULL");
    else if (!o->causal || !v->cache_capacity || q->cache_capacity || q->shape.d[1] != added)
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: keys of a gckpt_cache need causal attention, values of a "
                    "gckpt_cache, and the %I queries of the rows that a call adds; q is %S",
                    added, &q->shape);
    o->extras += k->cache_window && keys == added;
    o->causal += (int)((k->cache_window ? keys : g->cache_capacity) - added);
    return g->object.sticky == GCKPT_OK;
}
#endif
