/* ---- sums over tokens, for gradients of bias and gain ---- In two stages: all processors sum
 * groups of TOKENS rows; then a column's groups are added one after the other, compensated. */
struct ColSum {
    float *parts; /* (groups,n): sums of groups; or NULL */
    Sum to;
};

/* Sums g and, for a norm (h: normalised x), g h over the rows of a group, for N columns from j on.
 * N > 1 only for bf16, of which AHEAD rows are loaded at a time. */
template <int N, bool NORM>
__device__ inline void group_sums(const Values &g, const Values &x, const float *saved, int center,
                                  int64_t first, int64_t rows, int64_t n, int64_t j, float *sum,
                                  float *gh)
{
    enum { AHEAD = NORM ? 4 : 8 };
#pragma unroll 1
    for (int64_t r = first; r < first + TOKENS; r += AHEAD) {
        Vec<uint16_t, N> u[AHEAD], v[AHEAD];
        UNROLL for (int k = 0; k < AHEAD && N > 1; k++)
        {
            const int64_t at = gckpti_min(r + k, rows - 1) * n + j;
            u[k] = load<N>(g.bf16 + at);
            if (NORM)
                v[k] = load<N>(x.bf16 + at);
        }
        UNROLLED(k, AHEAD) {
            const int64_t row = r + k, at = row * n + j;
            if (row >= rows)
                continue;
            const Normed o = NORM ? normed(saved, row, center) : Normed();
            UNROLLED(e, N) {
                const float a = N > 1 ? gckpti_from_bf16(u[k].v[e]) : value_at(g, at);
                sum[e] += a;
                if (NORM)
                    gh[e] += a * (((N > 1 ? gckpti_from_bf16(v[k].v[e]) : value_at(x, at)) - o.c) *
                                  o.rstd);
            }
        }
    }
}

template <int N>
__global__ void __launch_bounds__(256)
    group_sums_kernel(Values g, int64_t rows, int64_t n, float *parts)
{
    int64_t vecs = n / N, groups = (rows + TOKENS - 1) / TOKENS;
    for (EACH(i, groups * vecs)) {
        int64_t group = i / vecs, j = i % vecs * N;
        float sum[N] = {};
        group_sums<N, false>(g, {}, NULL, 0, group * TOKENS, rows, n, j, sum, NULL);
        write_vec<N>({ parts, NULL }, group * n + j, N, true, sum);
    }
}

/* If a parameter's gradient and its compensation are yet to be filled with zeros, drops these
 * fills: the returned call starts from 0 instead of accumulating. */
gckpt_call drop_zero_fills(const gckpt_call *call)
{
    gckpt_call c = *call;
    for (int i = 1; i < c.inputs; i++) {
        gckpt_arg *arg = &c.in[i];
        int64_t n = gckpti_elements(&arg->shape), unshared = arg->grad != NULL;
        for (int k = 0; k < c.inputs; k++)
            unshared = unshared && (k == i || c.in[k].grad != arg->grad);
        if (unshared && arg->accumulate && take_zero_fill(device_of(call), arg->grad, n))
            arg->accumulate = 0;
        if (unshared && !arg->accumulate)
            take_zero_fill(device_of(call), arg->compensation, n);
    }
    return c;
}

/* Allocates workspace for the sum that is arg's gradient, if that is required. */
ColSum column_of(Workspace &workspace, int64_t rows, int64_t n, const gckpt_arg &arg)
{
    size_t bytes = (size_t)((rows + TOKENS - 1) / TOKENS * n) * sizeof(float);
    return { (float *)bump_alloc(workspace, bytes), sum_of(arg) };
}

/* Adds the sums of groups to one or two gradients; the parts of a or b may be NULL. */
void add_groups(const gckpt_call *call, const ColSum &a, const ColSum &b, int64_t rows, int64_t n)
{
    const RowTerms<true> of = { {}, { a.parts, NULL }, { b.parts, NULL }, n };
    ::column_sums(call, of, a.to, b.to, (rows + TOKENS - 1) / TOKENS, n);
}

void column_sums(const gckpt_call *call, const ColSum &sum, const Values &g, int64_t rows,
                 int64_t n)
{
    int64_t groups = (rows + TOKENS - 1) / TOKENS;
    if (g.bf16 && n % 8 == 0 && aligned(g))
        run_each<group_sums_kernel<8>>(call, groups * n / 8, g, rows, n, sum.parts);
    else
        run_each<group_sums_kernel<1>>(call, groups * n, g, rows, n, sum.parts);
    add_groups(call, sum, {}, rows, n);
}

/* ---- linear: out (rows,n) = x (rows,k) w + bias ---- */
void linear_forward(const gckpt_call *call)
{
    const gckpti_factors s = gckpti_factors_of(call);
    int transposed = *(const int *)call->attributes;
    Workspace workspace = { (char *)call->workspace, 0 };
    const uint16_t *x = operand(call, workspace, value_of(call->in[0]), s.m * s.k);
    const uint16_t *w = operand(call, workspace, value_of(call->in[1]), s.n * s.k);
    mma_defer(call,
             mma_of(s.m, s.n, s.k, matrix(x, s.k), matrix(w, transposed ? s.k : s.n),
                    value_of(call->in[2]), 0, out_of(call)),
             1, transposed);
}

void linear_backward(const gckpt_call *original)
{
    const gckpt_call adjusted = drop_zero_fills(original), *call = &adjusted;
    const gckpti_factors s = gckpti_factors_of(call);
    const gckpt_arg *in = call->in;
    int transposed = *(const int *)call->attributes;
    Workspace workspace = { (char *)call->workspace, 0 };
    const Matrix<uint16_t> g = matrix(operand(call, workspace, grad_out_of(call), s.m * s.n), s.n);
    if (wanted(in[1])) {
        const Matrix<uint16_t> x =
            matrix(operand(call, workspace, value_of(in[0]), s.m * s.k), s.k);
        const MmaProduct dw =
            transposed ? mma_of(s.n, s.k, s.m, g, x, NONE, in[1].accumulate, grad_of(in[1]))
                       : mma_of(s.k, s.n, s.m, x, g, NONE, in[1].accumulate, grad_of(in[1]));
        mma_product(call, dw, 0, 0);
    }
    Workspace sums = workspace; /* w reuses this memory after the sums */
    if (call->inputs == 3 && wanted(in[2]))
        column_sums(call, column_of(sums, s.m, s.n, in[2]), grad_out_of(call), s.m, s.n);
    if (wanted(in[0])) {
        const uint16_t *w = operand(call, workspace, value_of(in[1]), s.n * s.k);
        mma_defer(call,
                 mma_of(s.m, s.k, s.n, g, matrix(w, transposed ? s.k : s.n), NONE,
                        in[0].accumulate, grad_of(in[0])),
                 1, !transposed);
    }
}

gckpt_result linear_workspace(gckpt_call *call)
{
    const gckpti_factors s = gckpti_factors_of(call);
    Values x = value_of(call->in[0]), w = value_of(call->in[1]), g = grad_out_of(call);
    Workspace forward = { NULL, 0 }, backward = { NULL, 0 };
    operand(call, forward, x, s.m * s.k);
    operand(call, forward, w, s.n * s.k);
    operand(call, backward, g, s.m * s.n);
    operand(call, backward, x, s.m * s.k);
    Workspace sums = backward;
    if (call->inputs == 3)
        column_of(sums, s.m, s.n, call->in[2]);
    operand(call, backward, w, s.n * s.k);
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used > sums.used ? backward.used : sums.used;
    call->mixes_rows |= s.m % TOKENS != 0;
    return GCKPT_OK;
}
