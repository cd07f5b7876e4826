#include "bf16/cpu.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST
GCKPTI_FN gckpti_product_fn gckpti_fast_products(const gckpt_call *call)
{
    return !gckpti_is_mixed(call) ? gckpti_fp32_fast : gckpti_mixed_fast;
}

GCKPTI_OP_KERNELS(fast_matmul, (backward ? gckpti_linear_gradients
                                         : gckpti_linear_output)(call, gckpti_fast_products(call)))

/* Context of work items item(call, i) that need no scratch and no other state. */
typedef struct {
    const gckpt_call *call;
    void (*item)(const gckpt_call *call, int64_t i);
} gckpti_call_items;

static void gckpti_call_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_call_items *s = (const gckpti_call_items *)context;
    (void)worker;
    s->item(s->call, i);
}

GCKPTI_FN void gckpti_for_each(const gckpt_call *call, int64_t n, int64_t cost,
                               void (*item)(const gckpt_call *call, int64_t i))
{
    gckpti_call_items s = { call, item };
    gckpt_parallel(call, n, cost, gckpti_call_item, &s);
}

/* ---- elementwise ops: a work item is a chunk of 4096 elements, run as a call of that size ---- */

typedef struct {
    const gckpt_call *call;
    void (*kernel)(const gckpt_call *chunk, int kind);
    int kind;
} gckpti_chunks;

/* Runs the kernel for chunk i: a call of one axis with pointers to the chunk. */
static void gckpti_chunk_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_chunks *s = (const gckpti_chunks *)context;
    int64_t at = i * GCKPTI_ELEMENTS, n = gckpti_elements(&s->call->shape) - at;
    gckpt_call c = *s->call;
    (void)worker;
    c.shape = gckpt_shape1(gckpti_min(n, GCKPTI_ELEMENTS));
    c.out = c.out ? c.out + at : NULL;
    c.grad_out = c.grad_out ? c.grad_out + at : NULL;
    for (int k = 0; k < c.inputs; k++) {
        gckpt_arg *in = &c.in[k];
        in->shape = c.shape;
        in->data = in->data ? in->data + at : NULL;
        in->index = in->index ? in->index + at : NULL;
        in->grad = in->grad ? in->grad + at : NULL;
    }
    s->kernel(&c, s->kind);
}

/* Runs the kernels on chunks and returns 1; returns 0 if an input is repeated (broadcasting), or
 * its gradient is a compensated sum. */
static int gckpti_elementwise(const gckpt_call *call, int backward, int kind)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    gckpti_chunks s = { call, backward ? k->elementwise_backward : k->elementwise_forward, kind };
    int64_t n = gckpti_elements(&call->shape), cost = kind < GCKPTI_FIRST_BINARY ? 16 : 4;
    for (int i = 0; i < call->inputs; i++)
        if (gckpti_elements(&call->in[i].shape) != n || call->in[i].compensation)
            return 0;
    if (n <= GCKPTI_ELEMENTS) { /* only one chunk: the call itself */
        s.kernel(call, kind);
        return 1;
    }
    gckpt_parallel(call, (n + GCKPTI_ELEMENTS - 1) / GCKPTI_ELEMENTS, cost * GCKPTI_ELEMENTS,
                   gckpti_chunk_item, &s);
    return 1;
}

/* Computes gradients of a binary op by its plain kernel. But the gradient of an input that is
 * repeated as whole rows, as a table of positions, is like a bias's if it is the sum of g. */
static void gckpti_broadcast_gradients(const gckpt_call *call, unsigned flags,
                                       void (*backward)(const gckpt_call *call))
{
    gckpt_call plain = *call;
    for (int i = 0; i < 2; i++) {
        const gckpti_iter it =
            gckpti_iter_over(&call->shape, &call->in[0].shape, &call->in[1].shape);
        gckpt_call c = *call;
        int64_t n = gckpti_elements(&call->in[i].shape);
        if (!call->in[i].grad || !call->in[i].compensation || it.size[0] != n ||
            it.step[i][0] != 1 || !(flags & GCKPT_PASSES_GRAD(i)))
            continue;
        c.shape = gckpt_shape2(gckpti_elements(&call->shape) / n, n);
        c.in[1] = call->in[i];
        gckpti_run_column_sums(&c, 0, 1);
        plain.in[i].grad = NULL;
    }
    backward(&plain);
}

#define GCKPTI_FAST_UNARY(name, ...)                                                               \
    GCKPTI_OP_KERNELS(fast_##name,                                                                 \
                      if (!gckpti_elementwise(call, backward, GCKPTI_KIND_##name))(                \
                          backward ? gckpti_##name##_backward : gckpti_##name##_forward)(call))
#define GCKPTI_FAST_BINARY(name, flops, flags, ...)                                                \
    GCKPTI_OP_KERNELS(                                                                             \
        fast_##name, if (gckpti_elementwise(call, backward, GCKPTI_KIND_##name)) return;           \
        else if (backward) gckpti_broadcast_gradients(call, flags, gckpti_##name##_backward);      \
        else gckpti_##name##_forward(call))
GCKPTI_UNARY_OPS(GCKPTI_FAST_UNARY)
GCKPTI_UNARY_OPS_WITH(GCKPTI_FAST_UNARY)
GCKPTI_FAST_UNARY(where, )
GCKPTI_BINARY_OPS(GCKPTI_FAST_BINARY)
#undef GCKPTI_FAST_UNARY
#undef GCKPTI_FAST_BINARY

/* ---- dropout: a work item is 4096 elements ---- */
static void gckpti_dropout_item(const gckpt_call *call, int64_t i)
{
    const gckpti_dropout d = gckpti_dropout_of(call, call->grad_out != NULL);
    const int64_t at = i * GCKPTI_ELEMENTS, end = gckpti_min(at + GCKPTI_ELEMENTS, d.loop.n);
    gckpti_kernels_of(call)->dropout(&d, at, end);
}

static void gckpti_fast_dropout(const gckpt_call *call)
{
    const int64_t each = GCKPTI_ELEMENTS, n = gckpti_elements(&call->shape);
    gckpti_for_each(call, (n + each - 1) / each, 16 * each, gckpti_dropout_item);
}
GCKPTI_OP_KERNELS(fast_dropout,
                  (backward || gckpti_is_training(call) ? gckpti_fast_dropout
                                                        : gckpti_dropout_forward)(call))

/* ---- embed, gather: a work item is a row (forward), or 64 columns of all rows of a sample
 * (backward), so that each element's sum keeps its order ---- */
enum { GCKPTI_TAKE_ITEM = 64 };

static void gckpti_fast_take_row(const gckpt_call *call, int64_t r)
{
    const int64_t n = gckpti_last(&call->shape);
    (void)n; /* unused without bf16 */
    if (gckpti_has_f32(call->out) || gckpti_call_quant(call))
        gckpti_take_row(call, r);
    else
        (void)GCKPTI_IF_BF16(gckpti_kernels_of(call)->mixed->narrow(
            call->in[0].data + gckpti_source_row(call, r) * n, call->out_bf16 + r * n, n));
}

static int64_t gckpti_take_samples(const gckpt_call *call)
{
    return call->in[0].shape.n == 3 ? call->shape.d[0] : 1;
}

static void gckpti_take_columns(const gckpt_call *call, int64_t i)
{
    int64_t n = gckpti_last(&call->shape), items = (n + GCKPTI_TAKE_ITEM - 1) / GCKPTI_TAKE_ITEM;
    int64_t rows = gckpti_rows(&call->shape) / gckpti_take_samples(call), first = i / items * rows;
    int64_t j = i % items * GCKPTI_TAKE_ITEM, width = gckpti_min(n - j, GCKPTI_TAKE_ITEM);
    const gckpti_kernels *k = gckpti_kernels_of(call);
    float wide[GCKPTI_TAKE_ITEM];
    for (int64_t r = first; r < first + rows; r++) {
        const int is_wide = gckpti_has_f32(call->grad_out);
        const float *g = is_wide ? call->grad_out + r * n + j : wide;
        if (!is_wide)
            (void)GCKPTI_IF_BF16(k->mixed->widen(call->grad_out_bf16 + r * n + j, wide, width));
        k->add(call->in[0].grad + gckpti_source_row(call, r) * n + j, g, width);
    }
}

/* Runs embed or gather; the backward first zeroes a table's gradient, unless it accumulates. */
static void gckpti_fast_take(const gckpt_call *call, int backward)
{
    const gckpt_arg *table = &call->in[0];
    const int64_t size = GCKPTI_TAKE_ITEM, n = gckpti_last(&call->shape);
    int64_t rows = gckpti_rows(&call->shape), samples = gckpti_take_samples(call);
    if (!backward)
        gckpti_for_each(call, rows, n, gckpti_fast_take_row);
    if (!backward || !table->grad)
        return;
    if (!table->accumulate)
        gckpti_cpu_fill(call, table->grad, 0, gckpti_elements(&table->shape));
    gckpti_for_each(call, samples * ((n + size - 1) / size), 4 * rows / samples * size,
                    gckpti_take_columns);
}
GCKPTI_OP_KERNELS(fast_embed, gckpti_fast_take(call, backward))
GCKPTI_OP_KERNELS(fast_gather, gckpti_fast_take(call, backward))

/* ---- softmax and log_softmax: a work item is a row ---- */
static void gckpti_fast_rows(const gckpt_call *call, int backward,
                             void (*forward)(const gckpt_call *call, int64_t row),
                             void (*gradients)(const gckpt_call *call, int64_t row))
{
    if (!backward || call->in[0].grad)
        gckpti_for_each(call, gckpti_rows(&call->shape), 16 * gckpti_last(&call->shape),
                        backward ? gradients : forward);
}
GCKPTI_OP_KERNELS(fast_softmax,
                  gckpti_fast_rows(call, backward, gckpti_kernels_of(call)->softmax_forward,
                                   gckpti_kernels_of(call)->softmax_backward))
GCKPTI_OP_KERNELS(fast_log_softmax,
                  gckpti_fast_rows(call, backward, gckpti_kernels_of(call)->log_softmax_forward,
                                   gckpti_kernels_of(call)->log_softmax_backward))

/* ---- sums over rows: bias += g, gain += g * normalised x; a work item is 64 columns ---- */

static void gckpti_column_sums_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_column_sums *s = (const gckpti_column_sums *)context;
    int64_t n = gckpti_last(&s->call->shape), first = i * GCKPTI_COLUMNS;
    (void)worker;
    gckpti_kernels_of(s->call)->column_sums(s, first,
                                            first + gckpti_min(n - first, GCKPTI_COLUMNS));
}

/* gain, bias: indices of inputs, 0 for none. With a single row, `compensation` may be NULL. */
GCKPTI_FN void gckpti_run_column_sums(const gckpt_call *call, int gain, int bias)
{
    const gckpt_arg *g = &call->in[gain], *b = &call->in[bias];
    gckpti_column_sums s = { call, NULL, NULL, NULL, NULL };
    if (gain)
        s.gain = g->grad, s.gain_comp = g->compensation;
    if (bias)
        s.bias = b->grad, s.bias_comp = b->compensation;
    int64_t n = gckpti_last(&call->shape), items = (n + GCKPTI_COLUMNS - 1) / GCKPTI_COLUMNS;
    if (s.gain)
        gckpti_zero_unless(s.gain, n, g->accumulate);
    if (s.bias)
        gckpti_zero_unless(s.bias, n, b->accumulate);
    if (s.gain || s.bias)
        gckpt_parallel(call, items, gckpti_rows(&call->shape) * GCKPTI_COLUMNS,
                       gckpti_column_sums_item, &s);
}

GCKPTI_OP_KERNELS(fast_linear,
                  (backward ? gckpti_fast_matmul_backward : gckpti_fast_matmul_forward)(call);
                  if (backward) gckpti_run_column_sums(call, 0, call->inputs == 3 ? 2 : 0))

/* ---- layernorm, rmsnorm: a work item is a row; then, for dgain and dbias, 64 columns ---- */
static void gckpti_fast_norm(const gckpt_call *call, int backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    gckpti_fast_rows(call, backward, gckpti_kernels_of(call)->norm_forward,
                     gckpti_kernels_of(call)->norm_backward);
    if (backward)
        gckpti_run_column_sums(call, o->gain, o->bias);
}
GCKPTI_OP_KERNELS(fast_layernorm, gckpti_fast_norm(call, backward))
GCKPTI_OP_KERNELS(fast_rmsnorm, gckpti_fast_norm(call, backward))
#endif
