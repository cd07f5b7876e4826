/* The terms of sums over rows of x (rows,n), f32 or bf16. */
struct RowTerms : Terms {
    Values x;
    int64_t n;
    __device__ void operator()(int64_t column, int64_t r, float *term) const
    {
        *term = value_at(x, r * n + column);
    }
};

/* Computes the gradient of the third input: the sum of g over rows. */
void bias_gradient(const gckpt_call *call)
{
    const RowTerms of = { {}, grad_out_of(call), gckpti_last(&call->shape) };
    if (call->inputs == 3)
        column_sums(call, of, sum_of(call->in[2]), {}, gckpti_rows(&call->shape), of.n);
}

void linear_by(const gckpt_call *call, bool backward)
{
    if (!backward)
        return gckpti_linear_output(call, products);
    gckpti_linear_gradients(call, products);
    bias_gradient(call);
}
BOTH_PASSES(linear, linear_by)
