#include "attention/attention.h"
#include "graph/graph.h"
#include "ops/internal.h"

#ifndef GCKPT_NO_ATTENTION
/* ---- rotary: x (B,T,C), D = C / heads; in each head the first R columns (R <= D) are rotated, as
 * pairs x_i, x_j with j = i + R/2; the other columns pass unchanged ----
 * Pair i at position t turns by the angle t f_i, f_i = base^(-2i/R) or as given: y_i = fma(x_i,
 * cos, -(x_j sin)), y_j = fma(x_j, cos, x_i sin). A given scale multiplies cos and sin, rounded.
 * The backward turns g by the negative angle. workspace (T,2,R/2): cos, sin.
 * Angles are integers in units of 2^-64 turn: t times a frequency modulo 2^64 is exact (base >= 1).
 * Frequency 0 is 2^64 / 2 pi, each next one is the last times base^(-2/R), in binary64; a given f_i
 * is multiplied by 2^64 / 2 pi in binary64. Each is then cut to an integer, modulo 2^64. */

GCKPTI_FN double gckpti_rotary_ratio(float base, int64_t n)
{
    double r = (double)gckpti_pow(base, -1.0f / (float)n), target = 1.0 / (double)base;
    for (int i = 0; i < 3; i++) {
        double power = gckpti_powi(r, (uint64_t)n);
        r = r - r * (power - target) / ((double)n * power);
    }
    return r;
}

/* Shape rule: whole heads, an even number of rotated columns. Workspace: table of cos and sin. */
static gckpt_result gckpti_rotary_shape(gckpt_call *call)
{
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    const int64_t d = x->n == 3 && o->heads > 0 ? x->d[2] / o->heads : 0;
    const int64_t columns = gckpti_rotary_columns(o, d);
    if (!d || x->d[2] % o->heads || columns < 0 || columns > d || columns % 2)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "rotary: x %S must be (B,T,C) with C = %i heads, and columns %I even and "
                          "at most a head's %I (0: all)",
                          x, o->heads, columns, d);
    if (!(o->base > 0.0f) || o->base > FLT_MAX)
        return gckpt_fail(call, GCKPT_E_ARG, "rotary: base %g must be positive", (double)o->base);
    call->shape = *x;
    call->workspace_forward = (size_t)(x->d[1] * columns) * sizeof(float);
    call->workspace_backward = call->workspace_forward;
    return GCKPT_OK;
}

GCKPTI_FN void gckpti_rotary_table(const gckpt_call *call, int64_t begin, int64_t end)
{
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const float *given = gckpti_rotary_frequencies(o), scale = o->columns ? o->scale : 1.0f;
    const int64_t cols = gckpti_rotary_columns(o, call->shape.d[2] / o->heads), half = cols / 2;
    double step = given ? 1.0 : gckpti_rotary_ratio(o->base, half), ticks = GCKPTI_TICKS_PER_RADIAN;
    uint64_t first = (uint64_t)o->position + (uint64_t)call->position;
    for (int64_t i = 0; i < half; i++, ticks *= step) {
        uint64_t frequency =
            gckpti_rotary_wrap(given ? GCKPTI_TICKS_PER_RADIAN * (double)given[i] : ticks);
        float sine, cosine, *to = (float *)call->workspace + begin * cols + i;
        for (int64_t position = begin; position < end; position++, to += cols) {
            gckpti_sincos_of(gckpti_rotary_angle((first + (uint64_t)position) * frequency), &sine,
                             &cosine);
            to[0] = gckpti_mul(cosine, scale);
            to[half] = gckpti_mul(call->grad_out ? -sine : sine, scale);
        }
    }
}

/* Work items: 16 positions of the table of cos and sin; then rows. */
enum { GCKPTI_POSITIONS = 16 };

static void gckpti_rotary_positions(const gckpt_call *call, int64_t i)
{
    const int64_t t = call->shape.d[1], first = i * GCKPTI_POSITIONS;
    gckpti_rotary_table(call, first, gckpti_min(first + GCKPTI_POSITIONS, t));
}

static void gckpti_run_rotary(const gckpt_call *call, int backward)
{
    const int64_t n = gckpti_last(&call->shape), t = call->shape.d[1];
    if (!(backward ? call->in[0].grad : call->out))
        return;
    gckpti_for_each(call, (t + GCKPTI_POSITIONS - 1) / GCKPTI_POSITIONS,
                    16 * GCKPTI_POSITIONS * n / ((const gckpti_rotary *)call->attributes)->heads,
                    gckpti_rotary_positions);
    gckpti_for_each(call, gckpti_rows(&call->shape), 2 * n,
                    GCKPTI_KERNEL_OF(call, attention->rotary, gckpti_rotary_row));
}
GCKPTI_OP_KERNELS(rotary, gckpti_run_rotary(call, backward))
GCKPTI_DESC(rotary, gckpti_rotary_shape, gckpti_flops_3, GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD, 0);

GCKPT_API gckpt_tensor *gckpt_rotary(gckpt_tensor *x, const gckpt_rotary_desc *desc)
{
    struct {
        gckpti_rotary o;
        float frequency[GCKPTI_ROTARY_MAX];
    } a;
    if (!x || !desc)
        return gckpti_fail(x ? x->graph : NULL, GCKPT_E_ARG, "rotary: x or desc is NULL");
    const int64_t d = desc->heads > 0 && x->shape.n == 3 ? x->shape.d[2] / desc->heads : 0;
    const int64_t columns = desc->columns ? desc->columns : d;
    const float *f = desc->frequencies, scale = desc->scale == 0.0f ? 1.0f : desc->scale;
    const float base = desc->base == 0.0f ? 10000.0f : desc->base;
    const int position = (int)gckpti_min(desc->position, INT32_MAX);
    gckpti_rotary o = { desc->heads, base, position, 0, scale, f != NULL };
    size_t bytes = position ? offsetof(gckpti_rotary, columns) : offsetof(gckpti_rotary, position);
    if (f || columns != d || scale < 1.0f || scale > 1.0f)
        o.columns = (int)gckpti_min(columns < 0 ? -1 : columns, INT32_MAX), bytes = sizeof o;
    if (desc->position < 0 || desc->position > INT32_MAX)
        return gckpti_fail(x->graph, GCKPT_E_ARG, "rotary: first position %I; it must be 0 to %i",
                           desc->position, INT32_MAX);
    if (!(scale > 0.0f && scale <= FLT_MAX) || (f && columns > 2 * GCKPTI_ROTARY_MAX))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "rotary: scale %g must be positive, and frequencies at most %i, not %I",
                           (double)scale, GCKPTI_ROTARY_MAX, f ? columns / 2 : 0);
    a.o = o;
    for (int64_t i = 0; f && i < columns / 2; i++) {
        if (!(f[i] >= 0.0f && f[i] <= FLT_MAX))
            return gckpti_fail(x->graph, GCKPT_E_ARG,
                               "rotary: frequency %I is %g; it must be finite and >= 0", i,
                               (double)f[i]);
        a.frequency[i] = f[i];
        bytes += sizeof *f;
    }
    return gckpt_apply(&gckpti_op_rotary, &x, 1, &a, bytes);
}

/* ---- positions: y = x + table[first..first+T-1], made of a slice and gckpt_add ---- */
GCKPT_API gckpt_tensor *gckpt_positions(gckpt_tensor *x, gckpt_tensor *table, int64_t first)
{
    if (!x || !table)
        return NULL;
    gckpt_graph *g = x->graph;
    if (!table->batch_invariant)
        return gckpti_fail(g, GCKPT_E_ARG, "positions: the table %T must not depend on inputs",
                           table);
    if (first < 0 || x->shape.n != 3 || table->shape.n != 2 ||
        table->shape.d[0] - x->shape.d[1] < first || table->shape.d[1] != x->shape.d[2])
        return gckpti_fail(g, GCKPT_E_SHAPE,
                           "positions: %T %S must be (B,T,C) and %T %S "
                           "(Tmax,C) with Tmax >= T + first and first >= 0; first is %I",
                           x, &x->shape, table, &table->shape, first);
    return gckpt_add(x, gckpti_slice_of(table, 0, first, first + x->shape.d[1], 1));
}
#endif
