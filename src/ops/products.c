#include "ops/internal.h"
#include "graph/graph.h"

/* =================================================================================================
 * layers: embed, matmul, linear, norms, losses
 *
 * The plain kernels of this folder define the numbers (manual, 5); faster kernels return the same
 * bits. Words used: "chain": d = fma(a, b, d), one term after the other, from d's present value;
 * "lanes": the 32 partial sums of gckpti_sum; "put(a, b)": gckpti_put_product, d = a b or d += a b;
 * "mixed": of plans whose products round operands to 16 bits and add in f32 (manual, 5l).
 * ============================================================================================== */

/* Sets shape and workspace of a product of x (..,k) and b, which is (..,k,n) or, if transposed,
 * (..,n,k). Fails if k differs. Each matrix of the result has m rows. */
static gckpt_result gckpti_product_shape(gckpt_call *call, const char *name, int64_t m)
{
    const gckpt_shape *x = &call->in[0].shape, *b = &call->in[1].shape;
    const int transposed = *(const int *)call->attributes;
    const int64_t k = gckpti_last(x), n = b->d[b->n - 1 - transposed];
    if (b->d[b->n - 2 + transposed] != k)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s%s: %S x %S: inner sizes %I and %I differ", name,
                          transposed ? "_transposed" : "", x, b, k, b->d[b->n - 2 + transposed]);
    const int db_transposed = gckpti_is_mixed(call) ? transposed : k > n;
    const int64_t da = gckpti_threads_workspace(call, m, k, n);
    const int64_t db = db_transposed ? gckpti_threads_workspace(call, n, k, m)
                                     : gckpti_threads_workspace(call, k, n, m);
    call->shape = *x;
    call->shape.d[x->n - 1] = n;
    call->workspace_forward = (size_t)gckpti_threads_workspace(call, m, n, k) * sizeof(float);
    call->workspace_backward = (size_t)(da > db ? da : db) * sizeof(float);
    return GCKPT_OK;
}

/* ---- matmul: out (M,N) = a (M,K) b (K,N), or b (N,K) transposed, for each leading index ----
 * out: chains over K from +0. da = g b': chains over N. db = a' g: chains over M and, if one b
 * serves all leading indices, over all their rows in order. */

typedef struct {
    int64_t matrices, m, n, k;
} gckpti_sizes;

static gckpti_sizes gckpti_matmul_sizes(const gckpt_call *call) /* linear: a is x, b is w */
{
    const gckpt_shape *b = &call->in[1].shape;
    int64_t rows = gckpti_rows(&call->in[0].shape), matrices = 1;
    for (int i = 0; i + 2 < b->n; i++)
        matrices *= b->d[i];
    gckpti_sizes s = { matrices, rows / matrices, gckpti_last(&call->shape),
                       gckpti_last(&call->in[0].shape) };
    return s;
}

/* Shape rule: inner sizes agree, and leading sizes agree unless one b serves all. */
static gckpt_result gckpti_matmul_shape(gckpt_call *call)
{
    const gckpt_shape *a = &call->in[0].shape, *b = &call->in[1].shape;
    int64_t matrices = 1;
    if (a->n < 2 || (b->n != 2 && b->n != a->n))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "matmul: %S x %S: a needs two axes or more, b two or as many as a", a, b);
    for (int i = 0; i + 2 < b->n; matrices *= b->d[i++])
        if (a->d[i] != b->d[i])
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "matmul: %S x %S: leading sizes %I and %I differ", a, b, a->d[i],
                              b->d[i]);
    return gckpti_product_shape(call, "matmul", gckpti_rows(a) / matrices);
}

/* Computes a product in the precision of the call's plan. */
static void gckpti_run_product(const gckpt_call *call, const gckpti_product *t)
{
    if (gckpti_run_mixed(call, t))
        return;
    GCKPTI_KERNEL_OF(call, product, gckpti_fp32_plain)(call, t);
}

/* Returns the operand b of a matmul, w of a linear op. */
static gckpti_operand gckpti_linear_b(const gckpt_call *call, const gckpti_sizes *s)
{
    gckpti_operand b = gckpti_operand_of(gckpti_arg_values(&call->in[1]), 0, 1, s->n, s->n * s->k);
    if (*(const int *)call->attributes) /* transposed */
        b.stride = s->k, b.k_stride = 1;
    GCKPTI_IF_COMPRESSED(gckpti_use_compressed(call, gckpti_call_compressed(call), &b));
    return b;
}

static void gckpti_linear_output(const gckpt_call *call, gckpti_product_fn run)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    gckpti_product t;
    t.k_period = t.k_offset = 0;
    gckpti_set_product(call, &t, s.matrices, s.m, s.n, s.k, gckpti_out_of(call));
    t.a = gckpti_operand_of(gckpti_arg_values(&call->in[0]), 0, s.k, 1, s.m * s.k);
    t.b = gckpti_linear_b(call, &s);
    t.initial = call->inputs == 3 ? call->in[2].data : NULL;
    run(call, &t);
}

/* Computes da = g b' and db = a' g, or db = g' a if b is transposed (' is the transpose). */
static void gckpti_linear_gradients(const gckpt_call *call, gckpti_product_fn run)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    const gckpt_arg *in = call->in;
    const gckpti_operand g = gckpti_operand_of(gckpti_grad_out_of(call), 0, s.n, 1, s.m * s.n);
    gckpti_product t;
    t.k_period = t.k_offset = 0;
    gckpti_set_product(call, &t, s.matrices, s.m, s.k, s.n, gckpti_arg_gradient(&in[0]));
    t.b = gckpti_linear_b(call, &s);
    t.a = g, t.b = gckpti_transpose(&t.b);
    t.accumulate = in[0].accumulate;
    if (gckpti_is_set(gckpti_arg_gradient(&in[0])))
        run(call, &t);
    gckpti_set_product(call, &t, s.matrices, s.k, s.n, s.m, gckpti_arg_gradient(&in[1]));
    t.a = gckpti_operand_of(gckpti_arg_values(&in[0]), 0, s.k, 1, s.m * s.k);
    t.a = gckpti_transpose(&t.a), t.b = gckpti_transpose(&g);
    if (*(const int *)call->attributes)
        t.m = s.n, t.n = t.c_stride = s.k, t.b = t.a, t.a = gckpti_transpose(&g);
    t.accumulate = in[1].accumulate;
    t.k_period = in[1].shape.n > 2 ? s.m : gckpti_sample_rows(&in[0].shape);
    if (gckpti_is_set(gckpti_arg_gradient(&in[1])))
        run(call, &t);
}

#if GCKPTI_HAS_FAST
static void gckpti_column_sums_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_column_sums *s = (const gckpti_column_sums *)context;
    const int64_t first = i * GCKPTI_COLUMNS, left = gckpti_last(&s->call->shape) - first;
    (void)worker;
    gckpti_kernels_of(s->call)->column_sums(s, first, first + gckpti_min(left, GCKPTI_COLUMNS));
}
#endif

GCKPTI_FN void gckpti_run_column_sums(const gckpt_call *call, int gain, int bias)
{
    const gckpt_arg *g = &call->in[gain], *b = &call->in[bias];
    const gckpti_source g_out = gckpti_grad_out_of(call);
    float *to_gain = gain ? g->grad : NULL, *to_bias = bias ? b->grad : NULL, wide;
    const int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    if (to_gain)
        gckpti_zero_unless(to_gain, n, g->accumulate);
    if (to_bias)
        gckpti_zero_unless(to_bias, n, b->accumulate);
#if GCKPTI_HAS_FAST
    if (call->kernels && (to_gain || to_bias)) {
        gckpti_column_sums s = { call, to_gain, to_bias, gain ? g->compensation : NULL,
                                 b->compensation };
        gckpt_parallel(call, (n + GCKPTI_COLUMNS - 1) / GCKPTI_COLUMNS, rows * GCKPTI_COLUMNS,
                       gckpti_column_sums_item, &s);
        return;
    }
#endif
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; to_bias && i < n; i++)
            gckpti_add_to_grad(b, i, *gckpti_read(call, g_out, r * n + i, 1, &wide));
        if (!to_gain)
            continue;
        const gckpti_row_args row = gckpti_norm_row_args(call, r);
        for (int64_t i = 0; i < n; i++) {
            const float d = (row.x[i] - row.first) - row.mean;
            gckpti_add_to_grad(g, i, gckpti_mul(row.y[i], d * row.rstd));
        }
    }
}

/* Sums the rows of g into the bias's gradient (input 2). */
static void gckpti_bias_backward(const gckpt_call *call)
{
    gckpti_run_column_sums(call, 0, call->inputs == 3 ? 2 : 0);
}

GCKPTI_OP_KERNELS(matmul, (backward ? gckpti_linear_gradients
                                    : gckpti_linear_output)(call, gckpti_run_product))
GCKPTI_OP_KERNELS(linear, (backward ? gckpti_matmul_backward : gckpti_matmul_forward)(call);
                  if (backward) gckpti_bias_backward(call))

static uint64_t gckpti_matmul_flops(const gckpt_call *call)
{
    return 2 * (uint64_t)gckpti_elements(&call->shape) * (uint64_t)gckpti_last(&call->in[0].shape);
}

/* A row of the result needs the same row of x, if one w serves all. */
static int gckpti_matmul_field(const gckpt_call *call, void *attr, gckpt_receptive_field *field)
{
    (void)attr;
    field->inputs = 1;
    return call->in[1].shape.n == 2;
}

GCKPTI_DESC_FIELD(matmul, gckpti_matmul_shape, gckpti_matmul_flops,
                  gckpti_matmul_field, GCKPT_TAKES_BF16, GCKPT_IN(1), GCKPT_IN(0));

static gckpt_tensor *gckpti_linear_new(const gckpt_op *op, gckpt_tensor *a, gckpt_tensor *b,
                                       gckpt_tensor *bias, int transposed)
{
    gckpt_tensor *t = gckpti_apply_to(op, a, b, bias, &transposed, sizeof transposed);
    if (t && b->shape.n == 2)
        b->f32_uses--;
    return t;
}

/* ---- linear: out (..,O) = x (..,I) w (I,O) + bias, or w (O,I) transposed ---- Like matmul, but
 * chains of out start at the bias; dbias sums g, row by row, compensated. */
static gckpt_result gckpti_linear_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *w = &call->in[1].shape, *bias = &call->in[2].shape;
    const int transposed = *(const int *)call->attributes;
    if (x->n < 1 || w->n != 2)
        return gckpt_fail(call, GCKPT_E_SHAPE, "linear: x %S needs an axis, w %S two axes", x, w);
    if (call->inputs == 3 && (bias->n != 1 || bias->d[0] != w->d[1 - transposed]))
        return gckpt_fail(call, GCKPT_E_SHAPE, "linear: w %S needs a bias of shape [%I], not %S", w,
                          w->d[1 - transposed], bias);
    call->mixes_rows = x->n < 2;
    return gckpti_product_shape(call, "linear", gckpti_rows(x));
}

GCKPTI_DESC_FIELD(linear, gckpti_linear_shape, gckpti_matmul_flops,
                  gckpti_matmul_field, GCKPT_TAKES_BF16, GCKPT_IN(1), GCKPT_IN(0), GCKPT_SUMS);

GCKPT_API gckpt_tensor *gckpt_linear(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias)
{
    return gckpti_linear_new(&gckpti_op_linear, x, w, bias, 0);
}

GCKPT_API gckpt_tensor *gckpt_linear_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias)
{
    return gckpti_linear_new(&gckpti_op_linear, x, w, bias, 1);
}
