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

/* Shape rule: inner sizes agree, and leading sizes agree unless one b serves all. */
static gckpt_result gckpti_matmul_shape(gckpt_call *call)
{
    const gckpt_shape *a = &call->in[0].shape, *b = &call->in[1].shape;
    if (a->n < 2 || (b->n != 2 && b->n != a->n))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "matmul: %S x %S: a needs two axes or more, b two or as many as a", a, b);
    for (int i = 0; i + 2 < b->n; i++)
        if (a->d[i] != b->d[i])
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "matmul: %S x %S: leading sizes %I and %I differ", a, b, a->d[i],
                              b->d[i]);
    return gckpti_product_shape(call, "matmul", gckpti_rows(a) / gckpti_axes_product(b, b->n - 2));
}

/* Computes a product in the precision of the call's plan. */
static void gckpti_run_product(const gckpt_call *call, const gckpti_product *t)
{
    if (gckpti_run_mixed(call, t))
        return;
    GCKPTI_KERNEL_OF(call, product, gckpti_fp32_plain)(call, t);
}

/* Matrices out = a b, with a (m,k) and b (k,n) or, if transposed, stored as (n,k). */
typedef struct {
    int64_t m, n, k;
    gckpti_operand a, b, g; /* g: the gradient of out */
    int transposed;
    int64_t batch, period, offset; /* period, offset: k_period and k_offset of db's chains */
    const float *initial;          /* where the chains of out start, or NULL for +0 */
} gckpti_factors;

/* Returns the product that is out (`of` is 0), da = g b' (1) or db = a' g or, if b is transposed,
 * g' a (2), stored in c or added to it; ' is the transpose. */
static gckpti_product gckpti_factors_product(const gckpt_call *call, const gckpti_factors *f,
                                             int of, gckpti_destination c, int accumulate)
{
    int64_t m = f->m, n = f->n, k = f->k;
    gckpti_operand a = f->a, b = f->b;
    if (of == 1)
        n = f->k, k = f->n, a = f->g, b = gckpti_transpose(&f->b);
    else if (of == 2 && f->transposed)
        m = f->n, n = f->k, k = f->m, a = gckpti_transpose(&f->g), b = gckpti_transpose(&f->a);
    else if (of == 2)
        m = f->k, k = f->m, a = gckpti_transpose(&f->a), b = gckpti_transpose(&f->g);
    gckpti_product t = gckpti_product_of(m, n, k, a, b, gckpti_f32(c));
    t.c_halves = gckpti_halves(c), t.accumulate = accumulate;
    t.batch = f->batch, t.workspace = call->workspace;
    t.initial = of ? NULL : f->initial;
    if (gckpti_is_mixed(call) && of == 2)
        t.k_period = f->period, t.k_offset = f->offset;
    return t;
}

/* Computes product `of`, if it is required (c is set). */
static void gckpti_run_factors(const gckpt_call *call, gckpti_product_fn run,
                               const gckpti_factors *f, int of, gckpti_destination c,
                               int accumulate)
{
    const gckpti_product t = gckpti_factors_product(call, f, of, c, accumulate);
    if (gckpti_is_set(c))
        run(call, &t);
}

/* Returns the factors of a linear op (a is x, b is w) or a matmul. */
static gckpti_factors gckpti_factors_of(const gckpt_call *call)
{
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    const int transposed = *(const int *)call->attributes;
    const int64_t batch = gckpti_axes_product(&w->shape, w->shape.n - 2);
    const int64_t m = gckpti_rows(&x->shape) / batch;
    const int64_t n = gckpti_last(&call->shape), k = gckpti_last(&x->shape);
    const gckpti_operand a = gckpti_operand_of(gckpti_arg_values(x), 0, k, 1, m * k);
    const gckpti_operand b =
        gckpti_operand_of(gckpti_arg_values(w), 0, transposed ? k : 1, transposed ? 1 : n, n * k);
    const gckpti_operand g = gckpti_operand_of(gckpti_grad_out_of(call), 0, n, 1, m * n);
    gckpti_factors f = { m, n, k, a, b, g, transposed, batch, 0, 0, NULL };
    if (call->inputs == 3)
        f.initial = call->in[2].data;
    if (gckpti_is_mixed(call))
        f.period = w->shape.n > 2 ? m : gckpti_sample_rows(&x->shape);
    GCKPTI_IF_COMPRESSED(gckpti_use_compressed(call, gckpti_call_compressed(call), &f.b));
    return f;
}

/* Computes the result of a linear op or a matmul or, backward, the gradients da and db. */
static void gckpti_run_matmul(const gckpt_call *call, int backward, gckpti_product_fn run)
{
    const gckpti_factors f = gckpti_factors_of(call);
    for (int of = backward; of <= 2 * backward; of++) {
        const gckpt_arg *to = &call->in[of ? of - 1 : 0];
        gckpti_run_factors(call, run, &f, of, of ? gckpti_arg_gradient(to) : gckpti_out_of(call),
                           of && to->accumulate);
    }
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

GCKPTI_OP_KERNELS(matmul, gckpti_run_matmul(call, backward, gckpti_run_product))
GCKPTI_OP_KERNELS(linear, gckpti_run_matmul(call, backward, gckpti_run_product);
                  if (backward) gckpti_run_column_sums(call, 0, call->inputs == 3 ? 2 : 0))

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
