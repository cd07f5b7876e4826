#ifndef GCKPT_NO_CACHES
#include "attention/attention.h"
#include "cache/cache.h"
#include "graph/graph.h"
#include "ops/internal.h"

static void gckpti_fail_cached(gckpt_graph *g, const char *what, const gckpt_tensor *x)
{
    gckpti_fail(g, GCKPT_E_ARG,
                "%s: %T is a gckpt_cache, with rows that are not written yet; only causal "
                "attention, gckpt_slice (axis 1, up to the end) and, of a cache without a window, "
                "gckpt_concat (axis 1, as the last input) can read it",
                what, x);
}

/* Returns the rows of a cache. With a window, it also has space for rows that a call may add before
 * it overwrites any. */
enum { GCKPTI_CACHE_STEP = 64 };
static int64_t gckpti_cache_rows(const gckpti_cache *o)
{
    return o->window ? gckpti_ceil_to((int64_t)o->window + GCKPTI_CACHE_STEP - 1, GCKPTI_CACHE_STEP)
                     : o->capacity;
}

/* cache: writes T rows of x from row `position` on (with a window, position p is row p % rows). */
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
            gckpti_put_element(&call->in[0], i * c + j, call->out, call->out_bf16, row * c + j);
    }
}
GCKPTI_DESC_ALL(cache, NULL, gckpti_cache_shape, gckpti_flops_1, NULL, NULL, NULL,
                GCKPTI_VARIABLE | GCKPT_SIDE_EFFECT | GCKPT_TAKES_BF16, 0);

static const gckpti_cache *gckpti_cache_of(const gckpt_tensor *x)
{
    return (const gckpti_cache *)x->variable->attributes;
}

/* Checks attention of inputs with caches. Returns 0 after an error. */
static int gckpti_check_attention(gckpt_tensor *const *in, int n, const gckpti_attention *o)
{
    const gckpt_tensor *q = in[0], *k = in[1], *v = in[2];
    gckpt_graph *g = q->graph;
    const int64_t keys = k->shape.d[1], added = g->variable->in[0]->shape.d[1];
    const int window = k->variable ? gckpti_cache_of(k)->window : 0;
    if (!k->variable)
        gckpti_fail_cached(g, "attention: q is cached, or v without k", v->variable ? v : q);
    else if (window && (!o->window || o->window > window))
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: %T has a window of %i keys; attention on it needs a window of at "
                    "most that, not %i (0: all)",
                    k, window, o->window);
    else if (window && o->window - 1 + added > keys)
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: %T holds %I rows; with a window of %i a call can add %I of them, "
                    "not %I: feed fewer at a time, or give the cache a longer window",
                    k, keys, o->window, keys - o->window + 1, added);
    else if (n == 4 || !o->causal || !v->variable || q->variable || q->shape.d[1] != added)
        gckpti_fail(g, GCKPT_E_ARG,
                    "attention: keys of a gckpt_cache need causal attention without lengths, "
                    "values of a gckpt_cache, and the %I queries of the rows that a call adds; q "
                    "is %S",
                    added, &q->shape);
    return g->object.sticky == GCKPT_OK;
}

/* The check_op of a graph with caches: who may read them; lengths of tables of positions. */
static int gckpti_check_reader(const gckpt_op *op, gckpt_tensor *const *in, int n,
                               const void *attributes)
{
    gckpt_graph *g = in[0]->graph;
    const char *name = op ? op->name : "reshape";
    const char *listed = op && op->flags & GCKPTI_BUILTIN_OP ? name : "";
    const int64_t capacity = gckpti_cache_of(g->variable)->capacity;
    const gckpti_slice *slice = strcmp(listed, "slice") ? NULL : (const gckpti_slice *)attributes;
    const int axis = slice ? slice->axis : strcmp(listed, "concat") ? 0 : *(const int *)attributes;
    const int64_t begin = slice ? gckpti_join_words(slice->begin) : 0;
    const int64_t added = g->variable->in[0]->shape.d[1];
    if (slice && slice->relative && !axis && in[0]->shape.d[0] - begin < capacity)
        gckpti_fail(g, GCKPT_E_SHAPE,
                    "positions: caches have a capacity of %I rows, but the table has %I positions "
                    "from `first` on; make it larger",
                    capacity, in[0]->shape.d[0] - begin);
    for (int i = 0; i < n; i++) {
        const gckpt_tensor *x = in[i];
        if (!x->variable)
            continue;
        if (!strcmp(listed, "attention"))
            return gckpti_check_attention(in, n, (const gckpti_attention *)attributes);
        const int64_t held = x->shape.d[1], earlier = slice ? held - begin - added : 0;
        const int window = gckpti_cache_of(x)->window, on_1 = axis == 1 || axis == 1 - x->shape.n;
        if (strcmp(listed, "delta_rule") && strcmp(listed, "delta_state") &&
            (!on_1 || (slice ? x->variable != x || gckpti_join_words(slice->end) != held
                             : window || i < n - 1)))
            gckpti_fail_cached(g, name, x);
        else if (window && (2 * added > held || 2 * earlier > held))
            gckpti_fail(g, GCKPT_E_ARG,
                        "%s: %T holds %I rows; a call can add half of them, not %I, and read as "
                        "many earlier ones, not %I: add fewer, or give it a longer window",
                        name, x, held, added, earlier);
    }
    return g->object.sticky == GCKPT_OK;
}
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
    if (x->batch_invariant)
        return gckpti_fail(g, GCKPT_E_ARG,
                           "cache: %T depends on parameters only and needs no cache", x);
    o.window = window < capacity ? (int)window : 0;
    if (gckpti_cache_rows(&o) >= capacity)
        o.window = 0;
    gckpt_tensor *t = gckpt_apply(&gckpti_op_cache, &x, 1, &o,
                                  o.window ? sizeof o : offsetof(gckpti_cache, window));
    if (!t)
        return NULL;
    t->variable = t;
    const gckpt_tensor *first = g->variable ? g->variable : t;
    const int64_t its_capacity = gckpti_cache_of(first)->capacity, added = first->in[0]->shape.d[1];
    if (its_capacity != capacity || added != x->shape.d[1])
        return gckpti_fail(
            g, GCKPT_E_SHAPE,
            "cache: %T %S, capacity %I: all caches of a graph need one capacity and one T, here "
            "%I and T = %I",
            x, &x->shape, capacity, its_capacity, added);
    if (g->variable)
        return t;
    g->variable = t;
    g->check_op = gckpti_check_reader;
    for (size_t i = 0; i < g->count; i++) {
        const gckpt_tensor *u = g->tensors[i];
        if (u->op && !gckpti_check_reader(u->op, u->in, u->inputs, u->attributes))
            return NULL;
    }
    return t;
}
GCKPT_API gckpt_tensor *gckpt_cache(gckpt_tensor *x, int64_t capacity)
{
    return gckpt_cache_window(x, capacity, 0);
}

#endif
