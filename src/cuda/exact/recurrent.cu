#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: for each part of a step (gru_reset_before has two), gckpti_cells_forward or
 * _backward multiplies all rows by wh, and a thread for each unit of each row runs the cell. So a
 * part is two kernels; captured, they need no host. ---- */
struct Cells {
    gckpti_cell at; /* row 0 at step 0 */
    int64_t steps, gates, state, t; /* state: columns of the output */
    int part;
    const int32_t *lengths;      /* steps of each row, or NULL */
    const float *h0, *c0, *zero; /* zero: H zeros */
    float *out, *before;         /* out: set in the last part; before: h of step t - 1 (rows,T,H) */
};

/* Returns step t of a row. h and c of the previous step are in the output or initial. */
__device__ __forceinline__ gckpti_cell cell_of(const Cells &s, int64_t row)
{
    const int64_t n = s.at.units, step = row * s.steps + s.t;
    const auto move = [](auto *at, int64_t by) { return at ? at + by : at; };
    gckpti_cell c = s.at;
    c.p = move(c.p, step * s.gates), c.a = move(c.a, row * s.gates);
    c.g = move(c.g, step * s.state), c.out = move(c.out, step * s.state);
    c.da = move(c.da, step * s.gates), c.dp = move(c.dp, step * s.gates);
    c.saved = move(c.saved, step * 4 * n);
    for (int k = 0; k < 2; k++)
        c.state[k] = move(c.state[k], row * s.state), c.d[k] = move(c.d[k], row * s.state);
    c.h = s.t ? c.out - s.state : s.h0 ? s.h0 + row * n : s.zero;
    c.c = s.t ? c.out - n : s.c0 ? s.c0 + row * n : s.zero;
    return c;
}

/* Runs a part of a step of the forward: AT computes unit j of a row. */
template <auto AT> __device__ void cells_forward_at(int64_t i, const Cells &s)
{
    const int64_t n = s.at.units, row = i / n, j = i - row * n;
    const gckpti_cell c = cell_of(s, row);
    const bool padded = s.lengths && s.t >= s.lengths[row];
    if (!padded)
        AT(&c, j);
    for (int k = 0; k < 4 && padded && c.saved; k++)
        c.saved[k * n + j] = 0.0f;
    for (int64_t k = j; s.out && k < s.state; k += n)
        s.out[(row * s.steps + s.t) * s.state + k] = padded ? 0.0f : c.state[0][k];
}

/* Runs a part of a step of the backward. A row's gradients of states begin with +0 after its last
 * step; t < 0 only sets those of rows without steps. */
template <auto AT> __device__ void cells_backward_at(int64_t i, const Cells &s)
{
    const int64_t n = s.at.units, row = i / n, j = i - row * n;
    const int64_t length = s.lengths ? s.lengths[row] : s.steps;
    const gckpti_cell c = cell_of(s, row);
    for (int64_t k = j; k < s.state && s.part == 0 && s.t + 1 >= length; k += n)
        c.d[0][k] = 0.0f;
    if (s.t < 0)
        return;
    s.before[(row * s.steps + s.t) * n + j] = s.t < length ? c.h[j] : 0.0f;
    if (s.t < length)
        AT(&c, j);
    for (int64_t k = j; k < s.gates && s.t >= length; k += n) {
        c.da[k] = 0.0f;
        if (c.dp && !c.accumulate)
            c.dp[k] = 0.0f;
    }
}

/* Iterates over rows of n elements which begin `to` and `from` elements apart. */
gckpti_iter matrix_axes(int64_t rows, int64_t n, int64_t to, int64_t from)
{
    const int64_t inner[4] = { 1, 1, 1, 1 }, outer[4] = { to, from, from, from };
    gckpti_iter it = { 0, 4 };
    gckpti_iter_add_axis(&it, n, inner);
    gckpti_iter_add_axis(&it, rows, outer);
    return it;
}

template <auto FIRST, auto SECOND>
void cells_forward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    float *state = (float *)call->workspace;
    s.at.state[0] = state, s.at.state[1] = state + q.units, s.at.a = state + q.rows * q.state;
    if (!q.initial[0])
        fill(call, state, 0, q.rows * q.state);
    for (int64_t k = 0; q.initial[0] && k < q.state; k += q.units)
        map(call, matrix_axes(q.rows, q.units, q.state, q.units), Copy(), { state + k, NULL },
            value_of(*q.initial[k > 0]), NONE, NONE, 0);
    for (; s.t < s.steps; s.t++)
        for (s.part = 0; s.part <= q.before; s.part++) {
            gckpti_cells_forward(&q, s.part, q.p->data + s.t * q.gates, q.rows, state, s.at.a);
            s.out = s.part == q.before ? call->out : NULL;
            s.part ? for_each<cells_forward_at<SECOND>, 128>(call, q.rows * q.units, s)
                   : for_each<cells_forward_at<FIRST>, 128>(call, q.rows * q.units, s);
        }
}

/* Computes the gradients of the initial states, wh and the bias, when all steps have run. */
void cells_gradients(const gckpt_call *call, const gckpti_sequence &q, const Cells &s)
{
    const int64_t n = q.units, terms = q.rows * q.steps;
    for (int64_t k = 0; k < q.state; k += n) {
        const gckpt_arg *start = q.initial[k > 0];
        if (start && start->grad)
            map(call, matrix_axes(q.rows, n, n, q.state), Copy(), grad_of(*start),
                { s.at.d[0] + k, NULL }, NONE, NONE, start->accumulate);
    }
    for (int part = 0; part <= q.before && q.wh->grad; part++) {
        const int64_t first = part ? q.split : 0;
        gckpti_product t = gckpti_product_of(
            n, part ? n : q.split, terms,
            part ? gckpti_matrix(s.at.saved + 3 * n, 1, 4 * n) : gckpti_matrix(s.before, 1, n),
            gckpti_matrix(s.at.da + first, 1, q.gates), q.wh->grad + first);
        t.c_stride = q.gates, t.accumulate = q.wh->accumulate;
        products(q.call, &t);
    }
    const RowTerms<> rows = { {}, { s.at.da, NULL }, NONE, q.gates };
    if (q.bias)
        column_sums(call, rows, sum_of(*q.bias), {}, terms, q.gates);
}

template <auto FIRST, auto SECOND>
void cells_backward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    const int64_t n = q.rows * q.units;
    float *d = (float *)call->workspace, *zero = d + q.rows * q.state;
    s.at.d[0] = d, s.at.d[1] = d + q.units, s.zero = zero;
    s.at.da = zero + q.units, s.before = s.at.da + q.rows * q.steps * q.gates;
    fill(call, zero, 0, q.units);
    for (s.t = s.steps; s.t-- > 0;)
        for (s.part = 0; s.part <= q.before; s.part++) {
            s.part ? for_each<cells_backward_at<SECOND>, 128>(call, n, s)
                   : for_each<cells_backward_at<FIRST>, 128>(call, n, s);
            gckpti_cells_backward(&q, s.part < q.before, s.at.da + s.t * q.gates, q.rows, d);
        }
    s.part = 0;
    if (s.lengths)
        for_each<cells_backward_at<FIRST>, 128>(call, n, s);
    cells_gradients(call, q, s);
}

int64_t cells_workspace(const gckpt_call *call, bool backward)
{
    const gckpti_sequence q = gckpti_sequence_of(call, 0, backward);
    return backward ? q.units + q.rows * (q.state + q.steps * (q.gates + q.units))
                    : q.rows * (q.state + q.gates);
}

/* Runs a cell whose first part (and second one, if another) computes units by these functions. */
template <auto FORWARD, auto BACKWARD, auto FORWARD2 = FORWARD, auto BACKWARD2 = BACKWARD>
void cells_by(const gckpt_call *call, bool backward)
{
    gckpti_sequence q = gckpti_sequence_of(call, 0, backward);
    gckpt_call f32 = *call; /* chains are in f32 in any plan */
    Cells s = {};
    f32.precision = GCKPT_FP32;
    q.call = &f32, q.product = products;
    q.before = FORWARD != FORWARD2, q.split = q.before ? 2 * q.units : q.gates;
    s.steps = q.steps, s.gates = q.gates, s.state = q.state, s.lengths = q.lengths;
    s.h0 = q.initial[0] ? q.initial[0]->data : NULL;
    s.c0 = q.initial[1] ? q.initial[1]->data : NULL;
    s.at.units = q.units, s.at.p = q.p->data, s.at.g = call->grad_out, s.at.out = call->out;
    s.at.saved = (float *)call->saved, s.at.dp = q.p->grad, s.at.accumulate = q.p->accumulate;
    backward ? cells_backward<BACKWARD, BACKWARD2>(call, q, s)
             : cells_forward<FORWARD, FORWARD2>(call, q, s);
}

/* ---- delta_rule: in the forward, a thread for each column of the state of each head; in the
 * backward, a warp for the heads that share a key head ---- */
/* Computes columns of a state and outputs; the position is that of the call, in a capture too. */
__device__ void delta_forward_at(int64_t i, const gckpti_delta_call &run, const StepParams *params)
{
    gckpti_delta_call s = run;
    const int64_t item = i / s.values, j = i - item * s.values, n = s.keys * s.values;
    const int64_t position = s.o.capacity ? params->position : 0, at = item * (n + s.values);
    float *state = s.state ? s.state + at : s.workspace + item * n;
    const float *from = s.before ? s.before + at : state;
    s.first = position;
    if (s.state)
        s.first = gckpti_delta_resume(state + n + j, position), s.steps = position - s.first;
    for (int64_t k = j; k < n && !s.before && !s.first; k += s.values)
        state[k] = 0.0f;
    for (int64_t t = 0; t < s.steps; t++, from = state) {
        const gckpti_delta_step x =
            gckpti_delta_step_of(&s, item / s.o.heads, item % s.o.heads, t, from, state);
        gckpti_delta_columns(&x, j, 1);
    }
}

/* Computes the gradients of the heads that share key head `item`, one after the other. */
__device__ void delta_backward_of(int64_t item, const gckpti_delta_call &run, int64_t floats)
{
    gckpti_delta_call s = run;
    const int64_t row = item / s.o.key_heads, first = item % s.o.key_heads * s.group;
    float *workspace = s.workspace + item * floats;
    s.step = gckpti_delta_update_warp, s.grads = gckpti_delta_grads_warp;
    for (int64_t head = first; head < first + s.group; head++) {
        __syncwarp();
        for (int64_t k = lane_index(); k < floats; k += 32)
            workspace[k] = 0.0f;
        __syncwarp();
        gckpti_delta_backward_steps(&s, row, head, workspace);
    }
}

int64_t delta_workspace(const gckpt_call *call, bool backward)
{
    const gckpti_delta_call s = gckpti_delta_of(call);
    const int64_t items = call->shape.d[0] * (backward ? s.o.key_heads : s.o.heads);
    return items * gckpti_delta_workspace(&s, backward);
}

void delta_rule_by(const gckpt_call *call, bool backward)
{
    gckpti_delta_call s = gckpti_delta_of(call);
    const int64_t rows = call->shape.d[0];
    s.out = backward ? NULL : s.out;
    if (!backward)
        for_each<delta_forward_at, 128>(call, rows * s.o.heads * s.values, s, params_of(call));
    else
        for_each_row<delta_backward_of, 32>(call, rows * s.o.key_heads, s,
                                            gckpti_delta_workspace(&s, 1));
}
#endif
