/* ---- elementwise ops ---- */
/* The loops of each op (ops/loops.h), by GCKPTI_KIND_... */
#define GCKPTI_LOOPS(values, grad_a, grad_b)                                                       \
    { V(values), { GCKPTI_IF_TRAINING(V(grad_a)), GCKPTI_IF_TRAINING(V(grad_b)) } },
#define GCKPTI_UNARY_LOOPS(name, ...)                                                              \
    GCKPTI_LOOPS(name##_values, name##_gradients, name##_gradients)
#define GCKPTI_BINARY_LOOPS(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)           \
    GCKPTI_LOOPS(name##_values, grad_a##_gradient, grad_b##_gradient)
static const gckpti_loops V(elementwise)[] = {
    GCKPTI_UNARY_OPS(GCKPTI_UNARY_LOOPS) GCKPTI_UNARY_OPS_WITH(GCKPTI_UNARY_LOOPS)
        GCKPTI_BINARY_OPS(GCKPTI_BINARY_LOOPS)
            GCKPTI_IF_ACTIVATIONS(GCKPTI_LOOPS(where_values, where_gradient, where_gradient))
};
#undef GCKPTI_LOOPS
#undef GCKPTI_UNARY_LOOPS
#undef GCKPTI_BINARY_LOOPS

/* Runs a loop of any length. Repeated operands are read from vectors of copies; elements after the
 * last whole vector are computed as one padded vector. */
static GCKPTI_TARGET void V(run_loop)(const gckpti_loop *s, gckpti_loop_fn loop)
{
    float copies[3][W], padded[3][W], last[W], *to;
    const int64_t left = s->n % W;
    gckpti_loop c = *s;
    for (int k = 0; k < 3; k++)
        if (!s->steps[k])
            V(store)(copies[k], V(set1)(*s->in[k])), c.in[k] = copies[k];
    c.n -= left;
    loop(&c);
    if (!left)
        return;
    for (int k = 0; k < 3; k++)
        c.in[k] += c.n * s->steps[k];
    c.to += c.n;
    for (int k = 0; k < 3; k++)
        V(store)(padded[k], V(load_n)(c.in[k], left)), c.in[k] = padded[k];
    V(store)(last, V(load_n)(s->accumulate ? c.to : padded[0], left));
    to = c.to, c.to = last, c.n = W;
    loop(&c);
    V(store_n)(to, V(load)(last), left);
}

/* ---- losses over few classes: a lane is a row ---- */
/* Folds n lanes of W rows in the order of V(fold). */
GCKPTI_INLINED FLOATS V(fold_rows)(FLOATS *lane, int64_t n, int largest)
{
    for (int64_t half = GCKPTI_FEW_CLASSES / 2; half > 0; half /= 2)
        for (int64_t j = 0; j < half && j + half < n; j++)
            lane[j] = (largest ? V(vmax) : V(add))(lane[j + half], lane[j]);
    return lane[0];
}

/* Sets maximum and log(sum) of rows of n <= GCKPTI_FEW_CLASSES logits, as V(online) would. */
static GCKPTI_TARGET void V(few_classes)(const float *x, int64_t rows, int64_t n, float *max,
                                         float *log_sum)
{
    const FLOATS least = V(set1)(-GCKPTI_INFINITY);
    float column[GCKPTI_FEW_CLASSES][W];
    FLOATS lane[GCKPTI_FEW_CLASSES];
    for (int64_t r = 0; r < rows; r += W, x += W * n) {
        const int64_t left = gckpti_min(rows - r, W);
        for (int64_t j = 0; j < n; j++) {
            for (int64_t i = 0; i < W; i++)
                column[j][i] = i < left ? x[i * n + j] : 0.0f;
            lane[j] = V(vmax)(V(load)(column[j]), least);
        }
        const FLOATS top = V(fold_rows)(lane, n, 1);
        const FLOATS shift = V(if_equal)(top, least, V(zero)(), top);
        for (int64_t j = 0; j < n; j++)
            lane[j] = V(exp)(V(load)(column[j]) - shift);
        V(store_n)(max + r, top, left), V(store_n)(log_sum + r, V(fold_rows)(lane, n, 0), left);
        for (int64_t i = r; i < r + left; i++)
            gckpti_softmax_end(&max[i], &log_sum[i]);
        V(store_n)(log_sum + r, V(log_noinline)(V(load_n)(log_sum + r, left)), left);
    }
}
