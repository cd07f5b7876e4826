#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: for each step a product of all rows' states with wh, then a thread for each unit
 * of each row. A step is two kernels in either direction; captured, they need no host. ---- */
struct Cells {
    gckpti_cell at; /* row 0 at step 0 */
    int64_t rows, steps, t;
    const float *h0, *c0, *zero; /* zero: H zeros */
    float *a, *out, *before;     /* chains (rows,gates); before: h of step t - 1 (rows,T,H) */
};

/* Returns step t of a row. h and c of the previous step are in the output or initial. */
template <int GATES> __device__ __forceinline__ gckpti_cell cell_of(const Cells &s, int64_t row)
{
    const int64_t n = s.at.units, step = row * s.steps + s.t, state = (GATES - 2) * n;
    const auto move = [](auto *at, int64_t by) { return at ? at + by : at; };
    gckpti_cell c = s.at;
    c.p = move(c.p, step * GATES * n), c.a = move(c.a, row * GATES * n);
    c.g = move(c.g, step * state), c.out = move(c.out, step * state);
    c.da = move(c.da, step * GATES * n), c.dp = move(c.dp, step * GATES * n);
    c.saved = move(c.saved, step * 4 * n);
    for (int k = 0; k < 2; k++)
        c.state[k] = move(c.state[k], row * n), c.d[k] = move(c.d[k], row * n);
    c.h = s.t ? c.out - state : s.h0 ? s.h0 + row * n : s.zero;
    c.c = s.t ? c.out - n : s.c0 ? s.c0 + row * n : s.zero;
    return c;
}

/* Runs a step of the forward; t < 0 sets initial states. lstm: chains a begin at p. */
template <int GATES> __device__ void cells_forward_at(int64_t i, const Cells &s)
{
    const int64_t n = s.at.units;
    const int64_t row = i / n, j = i - row * n;
    const gckpti_cell c = cell_of<GATES>(s, row);
    float *a = s.a + row * GATES * n + j;
    if (s.t < 0)
        c.state[0][j] = s.h0 ? s.h0[i] : 0.0f, c.state[1][j] = s.c0 ? s.c0[i] : 0.0f;
    else
        GATES == 3 ? gckpti_gru_gates_at(&c, j) : gckpti_lstm_gates_at(&c, j);
    for (int k = 0; k < 4 && GATES == 4 && s.t + 1 < s.steps; k++) /* the next step's chains */
        a[k * n] = c.p[(4 + k) * n + j];
    for (int k = 0; k < GATES - 2 && s.out && s.t >= 0; k++)
        s.out[((row * s.steps + s.t) * (GATES - 2) + k) * n + j] = c.state[k][j];
}

template <int GATES> __device__ void cells_backward_at(int64_t i, const Cells &s)
{
    const int64_t n = s.at.units;
    const int64_t row = i / n, j = i - row * n;
    const gckpti_cell c = cell_of<GATES>(s, row);
    s.before[(row * s.steps + s.t) * n + j] = c.h[j];
    GATES == 3 ? gckpti_gru_gate_grads_at(&c, j) : gckpti_lstm_gate_grads_at(&c, j);
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
    const int64_t n = s.rows * q.units;
    float *h_now = (float *)call->workspace;
    s.at.state[0] = h_now, s.at.state[1] = h_now + n, s.at.a = s.a = h_now + 2 * n;
    const gckpti_operand h = { h_now, NULL, q.units, 1, 0, NULL };
    const gckpti_operand wh = { q.wh->data, NULL, 1, q.gates, 0, NULL };
    for (s.t = -1; s.t < s.steps; s.t++) {
        if (s.t >= 0)
            cell_product(call, h, wh, { s.rows, q.gates, q.units },
                         GATES == 3 && q.bias ? q.bias->data : NULL, s.a, GATES == 4);
        for_each<cells_forward_at<GATES>, 128>(call, n, s);
    }
}

template <int GATES> void cells_backward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    const int64_t n = s.rows * q.units, terms = s.rows * s.steps;
    float *d = (float *)call->workspace;
    s.at.d[0] = d, s.at.d[1] = d + n, s.zero = d + 2 * n;
    s.at.da = d + 2 * n + q.units, s.before = s.at.da + terms * q.gates;
    fill(call, d, 0, 2 * n + q.units);
    const gckpti_operand wh = { q.wh->data, NULL, q.gates, 1, 0, NULL };
    for (s.t = s.steps; s.t-- > 0;) {
        for_each<cells_backward_at<GATES>, 128>(call, n, s);
        const gckpti_operand da = { s.at.da + s.t * q.gates, NULL, s.steps * q.gates, 1, 0, NULL };
        cell_product(call, da, wh, { s.rows, q.units, q.gates }, NULL, d, 1);
    }
    for (int c = 0; c < 2; c++) {
        const gckpt_arg *start = c ? q.c0 : q.h0;
        if (start && start->grad)
            map_gradient(call, *start, Copy(), { s.at.d[c], NULL }, NONE);
    }
    const gckpti_operand before = { s.before, NULL, 1, q.units, 0, NULL };
    const gckpti_operand da = { s.at.da, NULL, 1, q.gates, 0, NULL };
    if (q.wh->grad)
        cell_product(call, before, da, { q.units, q.gates, terms }, NULL, q.wh->grad,
                     q.wh->accumulate);
    const RowTerms<> rows = { {}, { s.at.da, NULL }, NONE, q.gates };
    if (q.bias)
        column_sums(call, rows, sum_of(*q.bias), {}, terms, q.gates);
}

int64_t cells_workspace(const gckpt_call *call, bool backward)
{
    const gckpti_sequence q = gckpti_sequence_of(call, 0, backward);
    return 2 * q.rows * q.units +
           (backward ? q.units + q.rows * q.steps * (q.gates + q.units) : q.rows * q.gates);
}

template <int GATES> void cells_by(const gckpt_call *call, bool backward)
{
    const gckpti_sequence q = gckpti_sequence_of(call, 0, backward);
    Cells s = {};
    s.rows = q.rows, s.steps = q.steps, s.out = call->out;
    s.h0 = q.h0 ? q.h0->data : NULL, s.c0 = q.c0 ? q.c0->data : NULL;
    s.at.units = q.units, s.at.p = q.p->data, s.at.g = call->grad_out, s.at.out = call->out;
    s.at.saved = (float *)call->saved, s.at.dp = q.p->grad, s.at.accumulate = q.p->accumulate;
    backward ? cells_backward<GATES>(call, q, s) : cells_forward<GATES>(call, q, s);
}
#endif
