/* The terms of sums over rows of x and of y (rows,n), which may be NONE. KEPT: see Terms::FRESH. */
template <bool KEPT = false> struct RowTerms : Terms {
    static constexpr bool FRESH = KEPT;
    Values x, y;
    int64_t n;
    __device__ void operator()(int64_t column, int64_t r, float *term) const
    {
        term[0] = value_at(x, r * n + column), term[1] = value_at(y, r * n + column);
    }
};

/* Computes the gradient of the third input: the sum of g over rows. */
void bias_gradient(const gckpt_call *call)
{
    const RowTerms<> of = { {}, grad_out_of(call), NONE, gckpti_last(&call->shape) };
    if (call->inputs == 3)
        column_sums(call, of, sum_of(call->in[2]), {}, gckpti_rows(&call->shape), of.n);
}

void linear_by(const gckpt_call *call, bool backward)
{
    gckpti_run_matmul(call, backward, products);
    if (backward)
        bias_gradient(call);
}

#ifndef GCKPT_NO_AXES
void broadcast_matmul_by(const gckpt_call *call, bool backward)
{
    gckpti_broadcast_matmul_run(call, backward, products);
}
#endif
