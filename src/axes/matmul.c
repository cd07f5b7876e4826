#include "axes/axes.h"
#include "graph/graph.h"
#include "ops/internal.h"

#ifndef GCKPT_NO_AXES
/* ---- broadcast_matmul: out (..,M,N) = a (..,M,K) b (..,K,N), or b (..,N,K) transposed, where a
 * matrix of a or b serves several results: leading axes match from the last, and those of size 1
 * or missing are repeated ----
 * out: chains over K from +0. da = g b': chains over N. db = a' g: chains over M. The chains of a
 * matrix that serves several results continue through these in their row-major order. In mixed
 * plans a period is the rows of one result. Leading axes are walked as they are: no matrix is
 * copied. */
enum { GCKPTI_MATMUL_A, GCKPTI_MATMUL_B, GCKPTI_MATMUL_OUT };

typedef struct {
    gckpti_iter it;          /* over the leading axes of a, b and out, in matrices */
    int64_t elements[3];     /* of a matrix of a, b and out */
    int64_t m, n, k, period; /* period: rows of a result; m is a multiple of it if out's innermost
                              * matrices are one product, since they share b and a's are adjacent */
} gckpti_matmul_batches;

static gckpti_matmul_batches gckpti_matmul_batches_of(const gckpt_call *call)
{
    const gckpt_shape *a = &call->in[0].shape, *b = &call->in[1].shape, *out = &call->shape;
    gckpt_shape leads[3] = { *a, *b, *out };
    const gckpt_shape *const shapes[4] = { &leads[0], &leads[1], &leads[2], NULL };
    gckpti_matmul_batches z;
    for (int k = 0; k < 3; k++)
        leads[k].n -= 2;
    z.m = z.period = out->d[out->n - 2], z.n = gckpti_last(out), z.k = gckpti_last(a);
    z.elements[GCKPTI_MATMUL_A] = z.m * z.k, z.elements[GCKPTI_MATMUL_B] = z.k * z.n;
    z.elements[GCKPTI_MATMUL_OUT] = z.m * z.n;
    gckpti_iter_over(&z.it, &leads[2], shapes);
    if (z.it.n && !z.it.step[GCKPTI_MATMUL_B][0])
        z.m *= z.it.size[0];
    return z;
}

/* Shape rule: inner sizes agree, and leading sizes agree or one of them is 1. */
static gckpt_result gckpti_broadcast_matmul_shape(gckpt_call *call)
{
    const gckpt_shape a = call->in[0].shape, b = call->in[1].shape;
    gckpt_shape out = a.n > b.n ? a : b;
    if (a.n < 2 || b.n < 2)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "matmul: %S x %S: both need an axis or more, b two if transposed", &a,
                          &b);
    for (int k = 3; k <= a.n && k <= b.n; k++) {
        const int64_t da = a.d[a.n - k], db = b.d[b.n - k];
        if (da != db && da != 1 && db != 1)
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "matmul: %S x %S: leading sizes %I and %I differ (matched from the "
                              "last axis; only 1 is repeated)",
                              &a, &b, da, db);
        out.d[out.n - k] = da == 1 ? db : da;
    }
    out.d[out.n - 2] = a.d[a.n - 2];
    out.d[out.n - 1] = b.d[b.n - 1 - *(const int *)call->attributes];
    call->shape = out;
    const gckpt_result result =
        gckpti_product_shape(call, "matmul", gckpti_matmul_batches_of(call).m);
    call->shape = out;
    return result;
}

/* Runs product t, whose operands are those of the first matrices, for all matrices. of: the tensors
 * of its operands a and b and of c. */
static void gckpti_run_batches(const gckpt_call *call, gckpti_matmul_batches *z, gckpti_product t,
                               const int of[3], gckpti_product_fn run)
{
    gckpti_iter *it = &z->it;
    const int joined = z->m > z->period, batched = !joined && it->n && it->step[of[2]][0];
    const gckpti_product first = t;
    if (batched) {
        t.batch = it->size[0];
        t.a.batch_stride = it->step[of[0]][0] * z->elements[of[0]];
        t.b.batch_stride = it->step[of[1]][0] * z->elements[of[1]];
    }
    do {
        t.accumulate = first.accumulate;
        for (int k = 0; k < it->n; k++)
            t.accumulate |= !it->step[of[2]][k] && it->index[k];
        t.a.f32 = first.a.f32 + it->offset[of[0]] * z->elements[of[0]];
        t.b.f32 = first.b.f32 + it->offset[of[1]] * z->elements[of[1]];
        t.c = first.c + it->offset[of[2]] * z->elements[of[2]];
        run(call, &t);
    } while (gckpti_iter_next(it, joined || batched));
}

static void gckpti_broadcast_matmul_run(const gckpt_call *call, int backward, gckpti_product_fn run)
{
    enum { A = GCKPTI_MATMUL_A, B = GCKPTI_MATMUL_B, C = GCKPTI_MATMUL_OUT };
    static const int of[4][3] = { { A, B, C }, { C, B, A }, { A, C, B }, { C, A, B } };
    for (int i = backward; i <= 2 * backward; i++) {
        const gckpt_arg *to = &call->in[i ? i - 1 : 0];
        const gckpti_destination c = i ? gckpti_arg_gradient(to) : gckpti_out_of(call);
        gckpti_matmul_batches z = gckpti_matmul_batches_of(call);
        gckpti_factors f = gckpti_factors_of(call);
        f.m = z.m, f.batch = 1, f.period = z.period;
        if (gckpti_is_set(c))
            gckpti_run_batches(call, &z,
                               gckpti_factors_product(call, &f, i, c, i && to->accumulate),
                               of[i + (i == 2 && f.transposed)], run);
    }
}

GCKPTI_OP_KERNELS(broadcast_matmul, gckpti_broadcast_matmul_run(call, backward, gckpti_run_product))
GCKPTI_DESC(broadcast_matmul, gckpti_broadcast_matmul_shape, gckpti_matmul_flops, 0, GCKPT_IN(1),
            GCKPT_IN(0));

/* Returns x, or the row or column (`column` nonzero) that a vector x is as an operand. */
static gckpt_tensor *gckpti_as_matrix(gckpt_tensor *x, int column)
{
    if (!x || x->shape.n != 1)
        return x;
    return gckpt_reshape(x,
                         column ? gckpt_shape2(x->shape.d[0], 1) : gckpt_shape2(1, x->shape.d[0]));
}

GCKPTI_FN gckpt_tensor *gckpti_matmul_of(gckpt_tensor *a, gckpt_tensor *b, int transposed)
{
    gckpt_tensor *x = gckpti_as_matrix(a, 0), *y = transposed ? b : gckpti_as_matrix(b, 1);
    int equal = !x || !y || y->shape.n == 2 || y->shape.n == x->shape.n;
    for (int i = 0; equal && x && y && i + 2 < y->shape.n; i++)
        equal = y->shape.d[i] == x->shape.d[i];
    gckpt_tensor *t = gckpti_linear_new(equal ? &gckpti_op_matmul : &gckpti_op_broadcast_matmul, x,
                                        y, NULL, transposed);
    if (!t || (x == a && y == b))
        return t;
    gckpt_shape shape = t->shape; /* without the axes that the vectors lack */
    if (x != a)
        shape.d[shape.n - 2] = shape.d[shape.n - 1];
    shape.n -= (x != a) + (y != b);
    return gckpt_reshape(t, shape);
}
#endif
