#include "ops/internal.h"
#include "graph/graph.h"

/* ---- the iterator of all ops that broadcast or move elements (ops.h) ---- */
typedef struct {
    int64_t outer, size, inner;
} gckpti_axis_split;

/* Returns the sizes before, at and after `axis` of s; a negative axis counts from the last. */
static gckpti_axis_split gckpti_split_at(const gckpt_shape *s, int axis)
{
    gckpti_axis_split v = { 1, 1, 1 };
    if (axis < 0)
        axis += s->n;
    for (int i = 0; i < s->n; i++)
        *(i < axis ? &v.outer : i == axis ? &v.size : &v.inner) *= s->d[i];
    return v;
}

/* Adds an axis, with the steps of the tensors; the caller adds the innermost axis first. */
static void gckpti_iter_add_axis(gckpti_iter *it, int64_t size, const int64_t step[4])
{
    int k = it->n - 1, t = 0;
    if (size == 1)
        return;
    while (k >= 0 && t < it->tensors && step[t] == it->size[k] * it->step[t][k])
        t++;
    if (t < it->tensors) {
        k = it->n++, it->size[k] = 1, it->index[k] = 0;
        for (t = 0; t < it->tensors; t++)
            it->step[t][k] = step[t];
    }
    it->size[k] *= size;
}

GCKPTI_FN void gckpti_iter_over(gckpti_iter *it, const gckpt_shape *axes,
                                const gckpt_shape *const shapes[4])
{
    int64_t stride[4], step[4];
    it->n = 0, it->size[0] = it->size[1] = 1; /* one element */
    for (it->tensors = 0; it->tensors < 4 && shapes[it->tensors]; it->tensors++) {
        it->step[it->tensors][0] = stride[it->tensors] = 1;
        it->step[it->tensors][1] = it->offset[it->tensors] = 0;
    }
    for (int k = 1; k <= axes->n; k++) {
        for (int t = 0; t < it->tensors; t++) {
            const gckpt_shape *s = shapes[t];
            const int64_t size = k <= s->n ? s->d[s->n - k] : 1;
            step[t] = size == 1 ? 0 : stride[t];
            stride[t] *= size;
        }
        gckpti_iter_add_axis(it, axes->d[axes->n - k], step);
    }
}

/* Advances along the axes from `axis` on; the caller walks those before. Returns 0 at the end. */
static int gckpti_iter_next(gckpti_iter *it, int axis)
{
    for (int k = axis; k < it->n; k++) {
        const int ends = ++it->index[k] == it->size[k];
        for (int t = 0; t < it->tensors; t++)
            it->offset[t] += it->step[t][k] * (ends ? 1 - it->size[k] : 1);
        if (!ends)
            return 1;
        it->index[k] = 0;
    }
    return 0;
}

static void gckpti_strided_item(void *context, int64_t i, int64_t worker)
{
    gckpti_strided *s = (gckpti_strided *)context, part;
    (void)worker;
    if (GCKPTI_HAS_FAST && s->each < s->it.size[s->axis]) { /* else this is the only item */
        part = *s, s = &part;
        s->it.size[s->axis] = gckpti_min(s->it.size[s->axis] - i * s->each, s->each);
        for (int t = 0; t < s->it.tensors; t++)
            s->it.offset[t] += i * s->each * s->it.step[t][s->axis];
    }
    do
        s->plane(s);
    while (gckpti_iter_next(&s->it, 2));
}

static void gckpti_run_strided(gckpti_strided *s)
{
#if GCKPTI_HAS_FAST
    const int64_t *size = s->it.size, *step = s->it.step[s->to];
    int64_t n = 1;
    int axis = 0;
    for (int k = s->it.n; k-- > 0; n *= size[k]) /* the outermost of 16 or more, or the longest */
        if (step[k] && (!axis || (size[axis] < 16 && size[k] > size[axis])))
            axis = k;
    s->axis = axis, s->each = size[axis];
    if (step[axis] && n * s->cost > 1 << 16) {
        s->each = 1 + ((size[axis] << 16) - 1) / (n * s->cost);
        s->each = axis < 2 ? gckpti_ceil_to(s->each, 64) : s->each;
        gckpt_parallel(s->call, (size[axis] + s->each - 1) / s->each,
                       s->cost * s->each * (n / size[axis]), gckpti_strided_item, s);
        return;
    }
#endif
    gckpti_strided_item(s, 0, 0); /* few elements and plain loops run on one thread */
}

/* ---- elementwise ops: loops along the innermost axis ---- */
/* Adds a loop of values (input -1) or of an input's gradient, along rows of n elements. */
static void gckpti_add_loop(gckpti_strided *s, int kind, int input, gckpti_loop_fn plain, int64_t n)
{
    gckpti_loop_fn *run = &s->run[GCKPTI_HAS_FAST ? s->count++ : 0];
    *run = plain, (void)kind, (void)input, (void)n;
#if GCKPTI_HAS_FAST
    const gckpti_kernels *kernels = gckpti_kernels_of(s->call);
    s->vectors = NULL;
    if (kernels && n >= GCKPTI_LONG_ROW && !s->loops->comp) {
        const gckpti_loops *loops = &kernels->elementwise[kind];
        *run = input < 0 ? loops->values : loops->gradients[input], s->vectors = kernels->run_loop;
    }
#endif
}

static void gckpti_run_loop(const gckpti_strided *s, const gckpti_loop *loop, gckpti_loop_fn run)
{
    GCKPTI_HAS_FAST && s->vectors ? s->vectors(loop, run) : run(loop);
}

/* Runs the first loop on n elements of rows, from element j on; stores into `to` if not NULL. */
static void gckpti_loop_part(const gckpti_strided *s, int64_t row, int64_t rows, int64_t j,
                             int64_t n, float *to)
{
    const gckpti_iter *it = &s->it;
    const int64_t line = to ? n : it->step[3][1];
    gckpti_loop c = *s->loops;
    for (int t = 0; t < 3; t++) {
        c.steps[t] = it->step[t][0];
        c.in[t] += it->offset[t] + row * it->step[t][1] + j * c.steps[t];
    }
    c.to = to ? to : c.to + it->offset[3], c.n = n;
    c.comp = c.comp ? c.comp + it->offset[3] : NULL, c.steps[3] = it->step[3][0];
    for (; rows > 0; rows--, c.to += line, c.comp = c.comp ? c.comp + line : NULL) {
        gckpti_run_loop(s, &c, *s->run);
        c.in[0] += it->step[0][1], c.in[1] += it->step[1][1], c.in[2] += it->step[2][1];
    }
}
static void gckpti_loop_plane(const gckpti_strided *s)
{
    gckpti_loop_part(s, 0, s->it.size[1], 0, s->it.size[0], NULL);
}

#if GCKPTI_HAS_FAST
static void gckpti_flat_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_strided *s = (const gckpti_strided *)context;
    (void)worker;
    for (int k = 0; k < s->count; k++) {
        gckpti_loop c = s->loops[k];
        c.n = gckpti_min(c.n - i * s->each, s->each), c.to += i * s->each;
        c.in[0] += i * s->each, c.in[1] += i * s->each, c.in[2] += i * s->each;
        gckpti_run_loop(s, &c, s->run[k]);
    }
}

/* Adds the terms of a plane to compensated sums, in order, by vectors: g if `run` is NULL, else
 * tiles of terms, summed over rows or, transposed, over columns. Products are added to +0 first, so
 * that no compiler contracts them with the sum. */
static void gckpti_sum_plane(const gckpti_strided *s)
{
    enum { ROWS = GCKPTI_TERM_ROWS, COLUMNS = 4 * GCKPTI_COLUMNS, BLOCK = GCKPTI_COLUMNS };
    const int64_t *size = s->it.size, *step = s->it.step[3], line = s->it.step[2][1];
    const int64_t most = !step[1] == !step[0] ? 1 : s->run[0] || !step[0] ? (int64_t)ROWS : size[1];
    float terms[ROWS * COLUMNS], transposed[ROWS * (BLOCK + 16)];
    gckpt_call call;
    memset(&call, 0, sizeof call);
    for (int64_t r = 0; r < size[1]; r += most)
        for (int64_t j = 0; j < size[0]; j += COLUMNS) {
            const int64_t rows = gckpti_min(size[1] - r, most),
                          n = gckpti_min(size[0] - j, COLUMNS), row = s->run[0] ? n : line;
            const int64_t at = s->it.offset[3] + r * step[1] + j * step[0];
            const gckpti_column_sums sums = { &call, NULL, s->loops->to + at, NULL, s->comp + at };
            const float *g = s->run[0] ? terms : s->loops->in[2] + s->it.offset[2] + r * line + j;
            if (s->run[0])
                memset(terms, 0, (size_t)(rows * n) * sizeof *terms),
                    gckpti_loop_part(s, r, rows, j, n, terms);
            call.grad_out = g, call.shape = gckpt_shape2(rows, row);
            for (int64_t k = 0, columns; !step[0] && k < n; k += columns) {
                columns = gckpti_min(n - k, BLOCK);
                gckpti_kernels_of(s->call)->pack(g + k, 1, row, rows, columns, transposed, ROWS);
                call.grad_out = transposed, call.shape = gckpt_shape2(columns, ROWS);
                gckpti_kernels_of(s->call)->column_sums(&sums, 0, rows);
            }
            if (step[0])
                gckpti_kernels_of(s->call)->column_sums(&sums, 0, n);
        }
}
#endif

/* Runs loops over contiguous arrays, which need no iterator. */
static void gckpti_run_flat(gckpti_strided *s)
{
#if GCKPTI_HAS_FAST
    if (s->loops->n * s->cost > 1 << 16) {
        s->each = (1 << 16) / s->cost;
        gckpt_parallel(s->call, (s->loops->n - 1) / s->each + 1, 1 << 16, gckpti_flat_item, s);
        return;
    }
#endif
    for (int k = 0; k < (GCKPTI_HAS_FAST ? s->count : 1); k++)
        gckpti_run_loop(s, &s->loops[k], s->run[k]);
}

/* ---- binary ops with broadcasting: axes match from the last; a size of 1 or a missing axis is
 * repeated. The gradient of a repeated input sums over the repetitions, in the row-major order of
 * the output, compensated; the next micro-batch continues this sum (manual, 5e). */
static gckpt_result gckpti_broadcast_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    for (int i = 1; i < call->inputs; i++) {
        const gckpt_shape a = call->shape, *b = &call->in[i].shape;
        call->shape = a.n >= b->n ? a : *b;
        for (int k = 1; k <= a.n && k <= b->n; k++) {
            int64_t da = a.d[a.n - k], db = b->d[b->n - k];
            if (da != db && da != 1 && db != 1)
                return gckpt_fail(call, GCKPT_E_SHAPE,
                                  "broadcast: %S with %S: sizes %I and %I differ "
                                  "(matched from the last axis; only 1 is repeated)",
                                  &a, b, da, db);
            call->shape.d[call->shape.n - k] = da == 1 ? db : da;
        }
    }
    return GCKPT_OK;
}

/* Computes values by the loop `first` or, if `backward`, the gradients of two inputs (of `where`,
 * those after the condition), the second by `second`. Replaces operands that a loop does not read
 * by one that exists. */
static void gckpti_run_broadcast(const gckpt_call *call, int backward, int kind,
                                 gckpti_loop_fn first, gckpti_loop_fn second)
{
    const int where = kind == GCKPTI_KIND_where;
    int flat = GCKPTI_HAS_FAST; /* no input is repeated, and no gradient is a compensated sum */
    const int64_t n = gckpti_elements(&call->shape);
    const float *whole = backward ? call->grad_out : call->out;
    gckpti_strided s;
    s.call = call, s.plane = gckpti_loop_plane, s.to = 3, s.count = 0, s.cost = 4;
    for (int k = 0; k < call->inputs && flat; k++)
        flat = !call->in[k].compensation && gckpti_elements(&call->in[k].shape) == n;
    for (int i = 0; i <= backward; i++) {
        const gckpt_arg *in = call->in, *d = &in[where + i];
        const gckpt_arg *x = &in[where ? 0 : i], *y = &in[where ? 1 : 1 - i];
        const gckpt_shape *shape[4] = { &x->shape, &y->shape, &call->shape, NULL };
        gckpti_loop *loop = &s.loops[flat ? s.count : 0];
        loop->to = backward ? d->grad : call->out, loop->accumulate = backward && d->accumulate;
        if (!loop->to || loop->to == call->grad_out) /* not required, or g itself (PASSES_GRAD) */
            continue;
        loop->in[0] = where && x->index ? (const float *)(const void *)x->index : x->data;
        loop->in[1] = y->data, loop->in[2] = whole;
        loop->steps[0] = loop->steps[1] = loop->steps[2] = 1;
        if (where && !backward)
            loop->in[2] = in[2].data, shape[2] = &in[2].shape;
        for (int t = 0; t < 2; t++)
            if (!loop->in[t])
                loop->in[t] = whole, shape[t] = &call->shape;
        shape[3] = backward ? &d->shape : &call->shape;
        loop->comp = s.comp = backward ? d->compensation : NULL, loop->n = n;
        loop->shift = where && !in->index, loop->second = i;
        if (!flat)
            gckpti_iter_over(&s.it, &call->shape, shape);
        if (s.comp)
            gckpti_zero_unless(loop->to, gckpti_elements(&d->shape), d->accumulate);
#if GCKPTI_HAS_FAST
        const int64_t *size = s.it.size, *step = s.it.step[3];
        if (s.comp && call->kernels && step[!step[0]] && size[!step[0]] >= GCKPTI_FEW_SUMS) {
            s.plane = gckpti_sum_plane, loop->accumulate = kind >= GCKPTI_KIND_mul && !where;
            loop->comp = NULL; /* otherwise a plain loop adds to the sums */
        }
#endif
        gckpti_add_loop(&s, kind, backward ? i : -1, i ? second : first, flat ? n : s.it.size[0]);
        if (s.plane != gckpti_loop_plane && kind == GCKPTI_KIND_add)
            s.run[0] = NULL; /* the terms are g */
        if (!flat)
            gckpti_run_strided(&s), s.count = 0, s.plane = gckpti_loop_plane;
    }
    if (GCKPTI_HAS_FAST && s.count)
        gckpti_run_flat(&s);
}

#define GCKPTI_BINARY_OP(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)              \
    GCKPTI_OP_KERNELS(                                                                             \
        name, gckpti_run_broadcast(call, backward, GCKPTI_KIND_##name,                             \
                                   backward ? gckpti_##grad_a##_gradient : gckpti_##name##_values, \
                                   backward ? gckpti_##grad_b##_gradient : NULL))                  \
    GCKPTI_DESC(name, gckpti_broadcast_shape, flops,                                               \
                GCKPT_INPLACE(0) | GCKPT_INPLACE(1) | GCKPTI_IS_ELEMENTWISE | (flags),             \
                (reads_a) | GCKPT_SUMS, (reads_b) | GCKPT_SUMS);                                   \
    GCKPTI_BINARY_BUILDER(name)
GCKPTI_BINARY_OPS(GCKPTI_BINARY_OP)
#undef GCKPTI_BINARY_OP
