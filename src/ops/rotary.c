#include "ops/own.h"
#include "graph/graph.h"

/* ---- rotary: x (B,T,C), D = C / heads; pairs x_i, x_j, j = i + D/2, of each head are turned ----
 * At position t by t base^(-2i/D): y_i = fma(x_i, cos, -(x_j sin)), y_j = fma(x_j, cos, x_i sin).
 * The backward does so to g, with -sin. work (T,D/2,2): cos, sin.
 * Angles are counted in 2^-64 of a turn: t times a frequency modulo 2^64 is exact, so that far
 * positions are as good as near ones (base 1 and more). Frequency 0 is 2^64 / 2 pi, the next is
 * always the last times base^(-2/D), in binary64; then each is cut to a whole number and taken
 * modulo 2^64. */

GCKPTI_FN double gckpti_rotary_ratio(float base, int64_t n)
{
    double r = (double)gckpti_pow(base, -1.0f / (float)n), target = 1.0 / (double)base;
    for (int i = 0; i < 3; i++) {
        double power = gckpti_powi(r, (uint64_t)n);
        r = r - r * (power - target) / ((double)n * power);
    }
    return r;
}

/* Whole heads of an even size; work is the table of cosines and sines. */
static gckpt_result gckpti_rotary_shape(gckpt_call *call)
{
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    if (x->n != 3 || o->heads < 1 || x->d[2] % o->heads || x->d[2] / o->heads % 2)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "rotary: x %S must be (B,T,C), C = %i heads of even "
                          "size",
                          x, o->heads);
    if (!(o->base > 0.0f) || o->base > FLT_MAX)
        return gckpt_fail(call, GCKPT_E_ARG, "rotary: base %g must be positive", (double)o->base);
    call->shape = *x;
    call->work_forward = (size_t)(x->d[1] * (x->d[2] / o->heads)) * sizeof(float);
    call->work_backward = call->work_forward;
    return GCKPT_OK;
}

/* Turns x by the angles of its positions, or g back. */
static void gckpti_rotary_by(const gckpt_call *call, int backward)
{
    gckpti_passage p = gckpti_passage_of(call, backward);
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    int64_t t = call->shape.d[1], d = call->shape.d[2] / o->heads, half = d / 2;
    float *table = (float *)call->work;
    double ratio = gckpti_rotary_ratio(o->base, half), count = GCKPTI_ROTARY_FIRST;
    uint64_t first = (uint64_t)o->first + (uint64_t)call->position;
    for (int64_t i = 0; i < half; i++, count *= ratio) {
        uint64_t frequency = gckpti_rotary_frequency(count);
        float sine, cosine;
        for (int64_t position = 0; position < t; position++) {
            gckpti_sincos_of(gckpti_rotary_angle((first + (uint64_t)position) * frequency), &sine,
                             &cosine);
            table[position * d + 2 * i] = cosine;
            table[position * d + 2 * i + 1] = backward ? -sine : sine;
        }
    }
    for (int64_t at = 0, row = 0; at < p.n; row++)
        for (int64_t head = 0; head < o->heads; head++, at += d) {
            const float *turn = table + row % t * d, *from = p.from + at;
            float *to = p.to + at; /* may be `from` */
            for (int64_t i = 0; i < half; i++, turn += 2) {
                float a = from[i], b = from[i + half];
                gckpti_put(&to[i], gckpti_fma(a, turn[0], -(b * turn[1])), p.accumulate);
                gckpti_put(&to[i + half], gckpti_fma(b, turn[0], a * turn[1]), p.accumulate);
            }
        }
}

GCKPTI_BOTH_WAYS(rotary, gckpti_rotary_by(call, backward))
GCKPTI_ROW(rotary, GCKPTI_PLAIN, gckpti_rotary_shape, gckpti_flops_3,
           GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD, 0);

GCKPT_API gckpt_tensor *gckpt_rotary_at(gckpt_tensor *x, int heads, float base, int64_t first)
{
    gckpti_rotary o = { heads, base == 0.0f ? 10000.0f : base, (int)gckpti_min(first, INT32_MAX) };
    if (x && (first < 0 || first > INT32_MAX))
        return gckpti_fail(x->graph, GCKPT_E_ARG, "rotary: first position %I; 0 to %i are possible",
                           first, INT32_MAX);
    return gckpt_apply(&gckpti_op_rotary, &x, 1, &o,
                       first ? sizeof o : offsetof(gckpti_rotary, first));
}

GCKPT_API gckpt_tensor *gckpt_rotary(gckpt_tensor *x, int heads, float base)
{
    return gckpt_rotary_at(x, heads, base, 0);
}

/* ---- positions: x + table[first..first+T-1], by slice and gckpt_add: dtable has low parts ---- */
static gckpt_tensor *gckpti_positions(gckpt_tensor *x, gckpt_tensor *table, int64_t first,
                                      int moves)
{
    if (!x || !table)
        return NULL;
    if (moves && !table->batchless)
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "positions: %T depends on inputs; the table may not", table);
    if (first < 0 || x->shape.n != 3 || table->shape.n != 2 ||
        table->shape.d[0] - x->shape.d[1] < first || table->shape.d[1] != x->shape.d[2])
        return gckpti_fail(x->graph, GCKPT_E_SHAPE,
                           "positions: %T %S must be (B,T,C) and %T %S "
                           "(Tmax,C) with Tmax >= T + first, which is %I",
                           x, &x->shape, table, &table->shape, first);
    return gckpt_add(x, gckpti_slice_of(table, 0, first, first + x->shape.d[1], moves));
}

GCKPT_API gckpt_tensor *gckpt_positions(gckpt_tensor *x, gckpt_tensor *table)
{
    gckpt_tensor *t = gckpti_positions(x, table, 0, 0);
    if (t)
        t->graph->unmoved = 1;
    return t && gckpti_moves_fit(t->graph) ? t : NULL;
}

GCKPT_API gckpt_tensor *gckpt_positions_at(gckpt_tensor *x, gckpt_tensor *table, int64_t first)
{
    gckpt_tensor *t = gckpti_positions(x, table, first, 1);
    gckpt_graph *g = t ? t->graph : NULL;
    int64_t room = t ? table->shape.d[0] - first : 0;
    if (t && (!g->positions || g->positions > room))
        g->positions = room;
    return t && gckpti_moves_fit(g) ? t : NULL;
}
