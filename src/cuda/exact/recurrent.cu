#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: for each step a product of all rows' states with wh, then a thread for each unit
 * of each row. A step is two kernels in either direction; captured, they need no host. ---- */
struct Cells {
    int64_t rows, steps, units, t;
    const float *p, *g, *h0, *c0;
    float *h, *c, *a;           /* forward: states h, c (rows,units); chains a (rows,gates) */
    float *d, *e, *da, *before; /* gradients d of h, e of c, da of chains; h of step t - 1 */
    float *saved, *out, *dp;
    int accumulate;
};

/* Offsets of a unit of a row at step t in p (and da), saved, out and per-step buffers. */
template <int GATES> struct Unit {
    int64_t n, at, saved, out, before, chain;
    __device__ __forceinline__ Unit(const Cells &s, int64_t i) : n(s.units)
    {
        const int64_t row = i / n, j = i - row * n, step = row * s.steps + s.t;
        at = step * GATES * n + j, saved = step * 4 * n + j,
        out = step * (GATES == 4 ? 2 : 1) * n + j;
        before = step * n + j, chain = row * GATES * n + j;
    }
};

/* Runs a step of the forward; t < 0 sets initial states. lstm: chains a begin at p. */
template <int GATES> __global__ void cells_forward_kernel(const __grid_constant__ Cells s)
{
    for (EACH(i, s.rows * s.units)) {
        const Unit<GATES> u(s, i);
        const float *p = s.p + u.at;
        float *a = s.a + u.chain, v[4], h, c = 0.0f;
        const int64_t n = u.n;
        if (s.t < 0) {
            h = s.h0 ? s.h0[i] : 0.0f, c = s.c0 ? s.c0[i] : 0.0f;
        } else if (GATES == 3) {
            v[0] = gckpti_sigmoid(p[0] + a[0]), v[1] = gckpti_sigmoid(p[n] + a[n]);
            v[3] = a[2 * n];
            v[2] = gckpti_tanh(gckpti_fma(v[0], v[3], p[2 * n]));
            h = gckpti_fma(v[1], s.h[i] - v[2], v[2]);
        } else {
            v[0] = gckpti_sigmoid(a[0]), v[1] = gckpti_sigmoid(a[n]);
            v[2] = gckpti_tanh(a[2 * n]), v[3] = gckpti_sigmoid(a[3 * n]);
            c = gckpti_fma(v[1], s.c[i], v[0] * v[2]);
            h = v[3] * gckpti_tanh(c);
        }
        s.h[i] = h, s.c[i] = c;
        for (int k = 0; k < 4 && GATES == 4 && s.t + 1 < s.steps; k++) /* the next step's chains */
            a[k * n] = p[(4 + k) * n];
        for (int k = 0; k < 4 && s.saved && s.t >= 0; k++)
            s.saved[u.saved + k * n] = v[k];
        for (int k = 0; k < GATES - 2 && s.out && s.t >= 0; k++)
            s.out[u.out + k * n] = k ? c : h;
    }
}

/* Sets da = x * deriv, and dp. */
__device__ __forceinline__ float gate_backward(const Cells &s, int64_t at, float x, float deriv)
{
    if (s.dp)
        gckpti_put_product(&s.dp[at], x, deriv, s.accumulate);
    return s.da[at] = x * deriv;
}

template <int GATES> __global__ void cells_backward_kernel(const __grid_constant__ Cells s)
{
    for (EACH(i, s.rows * s.units)) {
        const Unit<GATES> u(s, i);
        const int64_t n = u.n, state = (GATES == 4 ? 2 : 1) * n;
        const bool last = s.t + 1 == s.steps;
        const float *v = s.saved + u.saved, r = v[0], z = v[n], new_gate = v[2 * n], o = v[3 * n];
        const float h = s.t ? s.out[u.out - state] : s.h0 ? s.h0[i] : 0.0f;
        const float top = s.g[u.out] + (last ? 0.0f : s.d[i]);
        s.before[u.before] = h;
        if (GATES == 3) {
            const float da =
                gate_backward(s, u.at + 2 * n, top * (1.0f - z), gckpti_tanh_deriv(new_gate));
            gate_backward(s, u.at, da * o, gckpti_sigmoid_deriv(r));
            gate_backward(s, u.at + n, top * (h - new_gate), gckpti_sigmoid_deriv(z));
            s.da[u.at + 2 * n] = da * r;
            s.d[i] = top * z;
        } else {
            const float before = s.t ? s.out[u.out + n - state] : s.c0 ? s.c0[i] : 0.0f;
            const float t = gckpti_tanh(s.out[u.out + n]), e = last ? 0.0f : s.e[i];
            const float c = gckpti_fma(top * o, gckpti_tanh_deriv(t), e) + s.g[u.out + n];
            gate_backward(s, u.at, c * new_gate, gckpti_sigmoid_deriv(r));
            gate_backward(s, u.at + n, c * before, gckpti_sigmoid_deriv(z));
            gate_backward(s, u.at + 2 * n, c * r, gckpti_tanh_deriv(new_gate));
            gate_backward(s, u.at + 3 * n, top * t, gckpti_sigmoid_deriv(o));
            s.e[i] = c * z;
        }
    }
}

/* Computes c (m,n) = a b, added to c (accumulate) or to `start`, in f32 in any plan. */
void cell_product(const gckpt_call *call, const gckpti_operand &a, const gckpti_operand &b,
                  const int64_t (&size)[3], const float *start, float *c, int accumulate)
{
    gckpt_call plain = *call;
    gckpti_product t = {};
    plain.precision = GCKPT_FP32;
    t.batch = 1, t.m = size[0], t.n = size[1], t.k = size[2];
    t.a = a, t.b = b, t.initial = start, t.c = c, t.accumulate = accumulate;
    products(&plain, &t);
}

template <int GATES> void cells_forward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    const int64_t n = s.rows * s.units;
    s.h = (float *)call->workspace, s.c = s.h + n, s.a = s.c + n;
    const gckpti_operand h = { s.h, NULL, s.units, 1, 0, NULL };
    const gckpti_operand wh = { q.wh->data, NULL, 1, q.gates, 0, NULL };
    for (s.t = -1; s.t < s.steps; s.t++) {
        if (s.t >= 0)
            cell_product(call, h, wh, { s.rows, q.gates, s.units },
                         GATES == 3 && q.bias ? q.bias->data : NULL, s.a, GATES == 4);
        RUN(call, cells_forward_kernel<GATES>, blocks_for(n, 128), 128, 0, s);
    }
}

template <int GATES> void cells_backward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    const int64_t n = s.rows * s.units, terms = s.rows * s.steps;
    s.d = (float *)call->workspace, s.e = s.d + n, s.da = s.e + n,
    s.before = s.da + terms * q.gates;
    const gckpti_operand wh = { q.wh->data, NULL, q.gates, 1, 0, NULL };
    for (s.t = s.steps; s.t-- > 0;) {
        RUN(call, cells_backward_kernel<GATES>, blocks_for(n, 128), 128, 0, s);
        const gckpti_operand da = { s.da + s.t * q.gates, NULL, s.steps * q.gates, 1, 0, NULL };
        cell_product(call, da, wh, { s.rows, s.units, q.gates }, NULL, s.d, GATES == 3);
    }
    for (int c = 0; c < 2; c++) {
        const gckpt_arg *start = c ? q.c0 : q.h0;
        if (start && start->grad)
            map_gradient(call, *start, Copy(), c ? s.e : s.d, NULL);
    }
    const gckpti_operand before = { s.before, NULL, 1, s.units, 0, NULL };
    const gckpti_operand da = { s.da, NULL, 1, q.gates, 0, NULL };
    if (q.wh->grad)
        cell_product(call, before, da, { s.units, q.gates, terms }, NULL, q.wh->grad,
                     q.wh->accumulate);
    if (q.bias)
        column_sums(call, RowTerms{ {}, { s.da, NULL }, q.gates }, sum_of(*q.bias), {}, terms,
                    q.gates);
}

/* Returns the floats of workspace. */
int64_t cells_workspace(const gckpt_call *call, int backward)
{
    const gckpti_sequence q = gckpti_sequence_of(call, 0);
    return 2 * q.rows * q.units + q.rows * (backward ? q.steps * (q.gates + q.units) : q.gates);
}

template <int GATES> void cells(const gckpt_call *call, bool backward)
{
    const gckpti_sequence q = gckpti_sequence_of(call, 0);
    Cells s = {};
    s.rows = q.rows, s.steps = q.steps, s.units = q.units;
    s.p = q.p->data, s.g = call->grad_out;
    s.h0 = q.h0 ? q.h0->data : NULL, s.c0 = q.c0 ? q.c0->data : NULL;
    s.saved = (float *)call->saved, s.out = call->out;
    s.dp = q.p->grad, s.accumulate = q.p->accumulate;
    backward ? cells_backward<GATES>(call, q, s) : cells_forward<GATES>(call, q, s);
}
BOTH_PASSES(gru, cells<3>)
BOTH_PASSES(lstm, cells<4>)
#endif
