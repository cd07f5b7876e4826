#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: for each step a product of all rows' states with wh, then a thread for each unit
 * of each row. A step is two kernels in either direction, four in gru_reset_before, whose steps
 * have two parts; captured, they need no host. ---- */
enum { WHOLE_STEP, FIRST_PART, SECOND_PART };
struct Cells {
    gckpti_cell at; /* row 0 at step 0 */
    int64_t rows, steps, t;
    const int32_t *lengths;      /* steps of each row, or NULL */
    const float *h0, *c0, *zero; /* zero: H zeros */
    const float *part;           /* a part's product: chains (rows,2H) or (rows,H) */
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

/* Runs a step of the forward, or a part; t < 0 sets initial states. lstm: chains a begin at p. */
template <int GATES, int PART> __device__ void cells_forward_at(int64_t i, const Cells &s)
{
    const int64_t n = s.at.units;
    const int64_t row = i / n, j = i - row * n;
    const gckpti_cell c = cell_of<GATES>(s, row);
    float *a = s.a + row * GATES * n + j;
    const bool padded = s.t >= 0 && s.lengths && s.t >= s.lengths[row];
    for (int k = 0; k < 2 && PART == FIRST_PART; k++)
        a[k * n] = s.part[(row * 2 + k) * n + j];
    if (PART == SECOND_PART && s.t >= 0)
        a[2 * n] = s.part[i];
    for (int k = 0; k < 4 && padded && c.saved; k++)
        c.saved[k * n + j] = 0.0f;
    if (s.t < 0)
        c.state[0][j] = s.h0 ? s.h0[i] : 0.0f, c.state[1][j] = s.c0 ? s.c0[i] : 0.0f;
    else if (!padded && PART == WHOLE_STEP)
        GATES == 3 ? gckpti_gru_gates_at(&c, j) : gckpti_lstm_gates_at(&c, j);
    else if (!padded)
        PART == FIRST_PART ? gckpti_reset_gates_at(&c, j) : gckpti_new_gates_at(&c, j);
    if constexpr (PART != FIRST_PART) {
        for (int k = 0; k < 4 && GATES == 4 && s.t + 1 < s.steps; k++) /* the next step's chains */
            a[k * n] = c.p[(4 + k) * n + j];
        for (int k = 0; k < GATES - 2 && s.out && s.t >= 0; k++)
            s.out[((row * s.steps + s.t) * (GATES - 2) + k) * n + j] =
                padded ? 0.0f : c.state[k][j];
    }
}

/* Runs a step of the backward, or a part. A row's gradients of states begin with +0 after its last
 * step; t < 0 only sets those of rows without steps. */
template <int GATES, int PART> __device__ void cells_backward_at(int64_t i, const Cells &s)
{
    const int64_t n = s.at.units;
    const int64_t row = i / n, j = i - row * n;
    const gckpti_cell c = cell_of<GATES>(s, row);
    const bool padded = s.lengths && s.t >= s.lengths[row];
    for (int k = 0; k < 2 && PART != SECOND_PART && s.lengths && s.t + 1 >= s.lengths[row]; k++)
        c.d[k][j] = 0.0f;
    if (s.t < 0)
        return;
    for (int k = 0; k < GATES && padded; k++) {
        c.da[k * n + j] = 0.0f;
        if (c.dp && !c.accumulate)
            c.dp[k * n + j] = 0.0f;
    }
    if (PART != SECOND_PART)
        s.before[(row * s.steps + s.t) * n + j] = padded ? 0.0f : c.h[j];
    if (PART == SECOND_PART && !padded)
        c.da[j] = s.part[i];
    if (!padded && PART == WHOLE_STEP)
        GATES == 3 ? gckpti_gru_gate_grads_at(&c, j) : gckpti_lstm_gate_grads_at(&c, j);
    else if (!padded)
        PART == FIRST_PART ? gckpti_new_gate_grads_at(&c, j) : gckpti_reset_gate_grads_at(&c, j);
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

template <int GATES, bool BEFORE>
void cells_forward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    const int64_t n = s.rows * q.units;
    float *h_now = (float *)call->workspace;
    s.at.state[0] = h_now, s.at.state[1] = h_now + n, s.at.a = s.a = h_now + 2 * n;
    float *chains = BEFORE ? s.a + n * GATES : s.a;
    const float *bias = GATES == 3 && q.bias ? q.bias->data : NULL;
    const gckpti_operand h = { h_now, NULL, q.units, 1, 0, NULL };
    const gckpti_operand reset = { s.a, NULL, q.gates, 1, 0, NULL };
    const gckpti_operand wh = { q.wh->data, NULL, 1, q.gates, 0, NULL };
    const gckpti_operand wh_new = { q.wh->data + q.split, NULL, 1, q.gates, 0, NULL };
    for (s.t = -1; s.t < s.steps; s.t++) {
        if (s.t >= 0)
            cell_product(call, h, wh, { s.rows, q.split, q.units }, bias, chains, GATES == 4);
        s.part = chains;
        if (BEFORE && s.t >= 0) {
            for_each<cells_forward_at<GATES, FIRST_PART>, 128>(call, n, s);
            cell_product(call, reset, wh_new, { s.rows, q.units, q.units },
                         bias ? bias + q.split : NULL, chains, 0);
        }
        for_each<cells_forward_at<GATES, BEFORE ? SECOND_PART : WHOLE_STEP>, 128>(call, n, s);
    }
}

/* Copies rows of n floats. */
__device__ void cells_copy_at(int64_t i, int64_t n, const float *from, int64_t from_row, float *to,
                              int64_t to_row)
{
    to[i / n * to_row + i % n] = from[i / n * from_row + i % n];
}

/* Sets, or adds to, n columns of dwh from column `first` on by the chains of h and da; products
 * write whole matrices: `dense`. */
void cells_weights(const gckpt_call *call, const gckpti_sequence &q, const gckpti_operand &h,
                   const float *da, int64_t first, float *dense)
{
    const int64_t n = first ? q.units : q.split, all = q.units * n;
    const gckpti_operand b = { da + first, NULL, 1, q.gates, 0, NULL };
    float *columns = q.wh->grad + first;
    if (q.wh->accumulate)
        for_each<cells_copy_at>(call, all, n, columns, q.gates, dense, n);
    cell_product(call, h, b, { q.units, n, q.rows * q.steps }, NULL, dense, q.wh->accumulate);
    for_each<cells_copy_at>(call, all, n, dense, n, columns, q.gates);
}

template <int GATES, bool BEFORE>
void cells_backward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    const int64_t n = s.rows * q.units, terms = s.rows * s.steps;
    enum { PART = BEFORE ? FIRST_PART : WHOLE_STEP };
    float *d = (float *)call->workspace;
    s.at.d[0] = d, s.at.d[1] = d + n, s.zero = d + 2 * n;
    s.at.da = d + 2 * n + q.units, s.before = s.at.da + terms * q.gates;
    float *reset = s.before + terms * q.units; /* gradients of r h */
    fill(call, d, 0, 2 * n + q.units);
    const gckpti_operand wh = { q.wh->data, NULL, q.gates, 1, 0, NULL };
    const gckpti_operand wh_new = { q.wh->data + q.split, NULL, q.gates, 1, 0, NULL };
    for (s.t = s.steps; s.t-- > 0;) {
        for_each<cells_backward_at<GATES, PART>, 128>(call, n, s);
        const float *step = s.at.da + s.t * q.gates;
        const gckpti_operand da = { step, NULL, s.steps * q.gates, 1, 0, NULL };
        const gckpti_operand da_new = { step + q.split, NULL, s.steps * q.gates, 1, 0, NULL };
        if (BEFORE) {
            cell_product(call, da_new, wh_new, { s.rows, q.units, q.units }, NULL, reset, 0);
            s.part = reset;
            for_each<cells_backward_at<GATES, SECOND_PART>, 128>(call, n, s);
        }
        cell_product(call, da, wh, { s.rows, q.units, q.split }, NULL, d, 1);
    }
    if (s.lengths)
        for_each<cells_backward_at<GATES, PART>, 128>(call, n, s);
    for (int c = 0; c < 2; c++) {
        const gckpt_arg *start = c ? q.c0 : q.h0;
        if (start && start->grad)
            map_gradient(call, *start, Copy(), { s.at.d[c], NULL }, NONE);
    }
    const gckpti_operand before = { s.before, NULL, 1, q.units, 0, NULL };
    const gckpti_operand da = { s.at.da, NULL, 1, q.gates, 0, NULL };
    const gckpti_operand states = { s.at.saved + 3 * q.units, NULL, 1, 4 * q.units, 0, NULL };
    if (q.wh->grad && !BEFORE)
        cell_product(call, before, da, { q.units, q.gates, terms }, NULL, q.wh->grad,
                     q.wh->accumulate);
    if (q.wh->grad && BEFORE) {
        cells_weights(call, q, before, s.at.da, 0, reset);
        cells_weights(call, q, states, s.at.da, q.split, reset);
    }
    const RowTerms<> rows = { {}, { s.at.da, NULL }, NONE, q.gates };
    if (q.bias)
        column_sums(call, rows, sum_of(*q.bias), {}, terms, q.gates);
}

int64_t cells_workspace_of(const gckpt_call *call, bool backward, bool before)
{
    const gckpti_sequence q = gckpti_sequence_of(call, 0, backward);
    const int64_t n = q.rows * q.units, forward = q.rows * q.gates * (before ? 2 : 1);
    const int64_t reset = before ? (n > 2 * q.units * q.units ? n : 2 * q.units * q.units) : 0;
    return 2 * n + (backward ? q.units + q.rows * q.steps * (q.gates + q.units) + reset : forward);
}
int64_t cells_workspace(const gckpt_call *call, bool backward)
{
    return cells_workspace_of(call, backward, false);
}
int64_t reset_before_workspace(const gckpt_call *call, bool backward)
{
    return cells_workspace_of(call, backward, true);
}

template <int GATES, bool BEFORE> void cells_by(const gckpt_call *call, bool backward)
{
    gckpti_sequence q = gckpti_sequence_of(call, 0, backward);
    Cells s = {};
    q.split = BEFORE ? 2 * q.units : q.gates;
    s.rows = q.rows, s.steps = q.steps, s.out = call->out, s.lengths = q.lengths;
    s.h0 = q.h0 ? q.h0->data : NULL, s.c0 = q.c0 ? q.c0->data : NULL;
    s.at.units = q.units, s.at.p = q.p->data, s.at.g = call->grad_out, s.at.out = call->out;
    s.at.saved = (float *)call->saved, s.at.dp = q.p->grad, s.at.accumulate = q.p->accumulate;
    backward ? cells_backward<GATES, BEFORE>(call, q, s) : cells_forward<GATES, BEFORE>(call, q, s);
}
#endif
