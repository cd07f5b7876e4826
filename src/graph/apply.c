#include "graph/graph.h"

GCKPTI_FN gckpt_call gckpti_shape_call(gckpt_tensor *const *in, int n, const void *attributes)
{
    gckpt_call call;
    memset(&call, 0, sizeof call);
    call.threads = 1;
    call.inputs = n;
    call.attributes = attributes;
    for (int i = 0; i < n; i++)
        call.in[i].shape = in[i]->shape;
    return call;
}

/* Returns 1 if the inputs (not NULL) suit the op; else sets the graph's error and returns 0. (A
 * graph keeps only its first error.) */
static int gckpti_check_inputs(gckpt_graph *g, const gckpt_op *op, gckpt_tensor *const *in, int n)
{
    static const char *const types[] = { "f32", "i32", "u8" };
    static const char *const advice[] = { "floats", "int32_t", "uint8_t" };
    for (int i = 0; i < n && g->object.sticky == GCKPT_OK; i++) {
        const gckpt_type type = in[i]->type, needed = op->needs[i] & GCKPT_IS_U8   ? GCKPT_U8
                                                      : op->flags & GCKPT_INDEX(i) ? GCKPT_I32
                                                                                   : GCKPT_F32;
        const int any = needed == GCKPT_F32 && type == GCKPT_I32 && op->needs[i] & GCKPTI_ANY_TYPE;
        if (in[i]->graph != g)
            gckpti_fail(g, GCKPT_E_ARG, "%s: %T belongs to another graph", op->name, in[i]);
        if (in[i]->op && in[i]->op->flags & GCKPT_LOSS)
            gckpti_fail(g, GCKPT_E_ARG, "%s: %T is a loss; only a gckpt_term can use it", op->name,
                        in[i]);
        if (op->needs[i] & GCKPT_UPDATES_RUNNING && !in[i]->base->running)
            gckpti_fail(g, GCKPT_E_ARG, "%s: input %i, %T, must be a gckpt_running", op->name, i,
                        in[i]);
        if (in[i]->base->running && op->backward && !(op->needs[i] & GCKPT_UPDATES_RUNNING))
            gckpti_fail(g, GCKPT_E_ARG,
                        "%s: input %i, %T, is measured, not trained: only ops that measure and "
                        "gckpt_detach can read it",
                        op->name, i, in[i]);
        if (type != needed && !any)
            gckpti_fail(g, GCKPT_E_ARG,
                        type == GCKPT_U8 && needed == GCKPT_F32
                            ? "%T is %s, %s needs %s: gckpt_from_u8 makes floats of it"
                            : "%T is %s, %s needs %s: declare and feed it as %s",
                        in[i], types[type], op->name, types[needed], advice[needed]);
    }
    return g->object.sticky == GCKPT_OK;
}

/* Returns whether all indices that other ops compute for this op are valid; no step checks them. */
static int gckpti_check_classes(const gckpt_op *op, gckpt_tensor *const *in, const gckpt_call *call)
{
    for (int i = 0; op->classes && i < call->inputs; i++) {
        const gckpt_tensor *base = in[i]->base;
        const gckpt_call c = gckpti_shape_call(base->in, base->inputs, base->attributes);
        const int64_t limit = base->type == GCKPT_I32 && base->op ? op->classes(call, i) : 0;
        const int64_t below = limit ? base->op->classes(&c, 0) : 0;
        if (below > limit)
            return !!gckpti_fail(base->graph, GCKPT_E_SHAPE,
                                 "%s: input %i, %T, is up to %I: %s takes 0 to %I", op->name, i,
                                 in[i], below - 1, op->name, limit - 1);
    }
    return 1;
}

/* Adds the inputs to the error of an op's shape(), or sets one if it has no text; returns NULL. */
static gckpt_tensor *gckpti_fail_shapes(gckpt_graph *g, gckpt_result result, const gckpt_op *op,
                                        gckpt_tensor *const *in, int n)
{
    gckpti_fail(g, result, "%s: shapes do not fit", op->name);
    gckpti_text t = gckpti_append_text(&g->object);
    for (int i = 0; i < n; i++)
        gckpti_text_add(&t, i ? ", %T" : " (inputs %T", in[i]);
    gckpti_text_add(&t, ")");
    return NULL;
}

GCKPTI_FN int gckpti_has_running(const gckpt_op *op)
{
    unsigned needs = 0;
    for (int i = 0; i < GCKPT_MAX_INPUTS; i++)
        needs |= op->needs[i];
    return (needs & GCKPT_UPDATES_RUNNING) != 0;
}

/* Returns whether an op mixes rows: 2 or 3 times the rows change more than the shape's axis 0. */
static int gckpti_mixes_rows(const gckpt_op *op, gckpt_tensor *const *in, int n,
                             const gckpt_call *call, int64_t rows)
{
    const gckpt_shape *s = &call->shape;
    int loss = (op->flags & GCKPT_LOSS) != 0;
    int mixes = call->mixes_rows || (!loss && (s->n == 0 || s->d[0] % rows));
    for (int factor = 2; factor <= 3 && !mixes; factor++) {
        gckpt_call scaled = gckpti_shape_call(in, n, call->attributes);
        for (int i = 0; i < n; i++)
            if (!in[i]->batch_invariant && in[i]->shape.n)
                scaled.in[i].shape.d[0] *= factor;
        mixes = op->shape(&scaled) != GCKPT_OK;
        for (int i = 0; i < s->n && !loss && !mixes; i++)
            mixes = scaled.shape.n != s->n || scaled.shape.d[i] != s->d[i] * (i ? 1 : factor);
    }
    return mixes;
}

GCKPT_API gckpt_tensor *gckpt_apply(const gckpt_op *op, gckpt_tensor *const *in, int n,
                                    const void *attributes, size_t attribute_bytes)
{
    gckpt_graph *g = NULL;
    int missing = -1;
    for (int i = n < GCKPT_MAX_INPUTS ? n : GCKPT_MAX_INPUTS; in && i > 0;) {
        if (in[--i])
            g = in[i]->graph;
        else
            missing = i;
    }
    if (!g || g->object.sticky != GCKPT_OK)
        return NULL;
    if (!op || !op->name || !op->shape || !op->forward || n < 1 || n > GCKPT_MAX_INPUTS)
        return gckpti_fail(g, GCKPT_E_ARG,
                           "gckpt_apply: an op needs a name, shape(), forward() and 1 to %i inputs",
                           GCKPT_MAX_INPUTS);
    if (missing >= 0)
        return gckpti_fail(g, GCKPT_E_ARG, "%s: input %i is NULL", op->name, missing);
    if (attribute_bytes && !attributes)
        return gckpti_fail(g, GCKPT_E_ARG, "%s: attributes is NULL, but attribute_bytes is %z",
                           op->name, attribute_bytes);
    if (!gckpti_check_inputs(g, op, in, n))
        return NULL;
    if (g->check_op && !g->check_op(op, in, n, attributes))
        return NULL;
    gckpt_call call = gckpti_shape_call(in, n, attributes);
    call.graph = g;
    gckpt_result result = op->shape(&call);
    if (result != GCKPT_OK)
        return gckpti_fail_shapes(g, result, op, in, n);
    if (op->flags & GCKPT_LOSS)
        call.shape.n = 0;
    if (!gckpti_shape_fits(&call.shape) || call.saved_bytes > PTRDIFF_MAX / 4)
        return gckpti_fail(g, GCKPT_E_SHAPE, "%s: the result %S does not fit; at most %z elements",
                           op->name, &call.shape, SIZE_MAX / 64);
    if (!gckpti_check_classes(op, in, &call))
        return NULL;
    const int indices = op->flags & GCKPTI_INDICES && !(op->flags & GCKPT_LOSS);
    gckpt_tensor *t = gckpti_tensor_new(g, GCKPTI_OP, &call.shape, indices ? GCKPT_I32 : GCKPT_F32);
    if (!t)
        return NULL;
    t->op = op;
    t->inputs = n;
    t->batch_invariant = 1;
    for (int i = 0; i < n; i++) {
        t->in[i] = in[i];
        t->batch_invariant = t->batch_invariant && in[i]->batch_invariant;
        in[i]->base->f32_uses++;
    }
    t->mixes_rows = !t->batch_invariant && gckpti_mixes_rows(op, in, n, &call, g->rows);
    if (gckpti_has_running(op)) {
        if (t->batch_invariant)
            return gckpti_fail(g, GCKPT_E_ARG,
                               "%s: %T depends on no input: there is nothing to measure", op->name,
                               in[0]);
        t->mixes_rows = GCKPTI_MIXES_IN_TRAINING;
    }
    t->saved_bytes = call.saved_bytes;
    t->attribute_bytes = attribute_bytes;
    if (attribute_bytes)
        t->attributes = gckpti_graph_copy(g, attributes, attribute_bytes);
    return attribute_bytes && !t->attributes ? NULL : t;
}
