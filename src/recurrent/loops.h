#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: one row at one step, by the formulas of recurrent/ops.c. gru_reset_before has two
 * parts: reset_gates and new_gates; backward new_gate_grads and reset_gate_grads ---- */
/* Loads units j..j+W-1 of gate `gate` from x, an array of all gates. */
GCKPTI_INLINED FLOATS V(gate)(const float *x, int gate, const gckpti_cell *s, int64_t j)
{
    return V(load_n)(x + gate * s->units + j, s->units - j);
}
GCKPTI_INLINED void V(gate_store)(float *x, int gate, const gckpti_cell *s, int64_t j, FLOATS y)
{
    V(store_n)(x + gate * s->units + j, y, s->units - j);
}

GCKPTI_INLINED void V(gates_save)(const gckpti_cell *s, int64_t j, FLOATS a, FLOATS b, FLOATS c,
                                  FLOATS d)
{
    const FLOATS v[4] = { a, b, c, d };
    for (int k = 0; k < 4 && s->saved; k++)
        V(gate_store)(s->saved, k, s, j, v[k]);
}

/* Functions _at compute units j..j+W-1 of a row. */
GCKPTI_INLINED void V(gru_gates_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS r = V(sigmoid)(V(gate)(s->p, 0, s, j) + V(gate)(s->a, 0, s, j));
    FLOATS z = V(sigmoid)(V(gate)(s->p, 1, s, j) + V(gate)(s->a, 1, s, j));
    FLOATS a = V(gate)(s->a, 2, s, j), h = V(gate)(s->state[0], 0, s, j);
    FLOATS new_gate = V(tanh_noinline)(V(fma)(r, a, V(gate)(s->p, 2, s, j)));
    V(gate_store)(s->state[0], 0, s, j, V(fma)(z, h - new_gate, new_gate));
    V(gates_save)(s, j, r, z, new_gate, a);
}

/* Replaces a_r by r h and a_z by z, which new_gates reads. */
GCKPTI_INLINED void V(reset_gates_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS r = V(sigmoid)(V(gate)(s->p, 0, s, j) + V(gate)(s->a, 0, s, j));
    FLOATS z = V(sigmoid)(V(gate)(s->p, 1, s, j) + V(gate)(s->a, 1, s, j));
    FLOATS reset = r * V(gate)(s->state[0], 0, s, j);
    V(gate_store)(s->a, 0, s, j, reset);
    V(gate_store)(s->a, 1, s, j, z);
    V(gates_save)(s, j, r, z, z, reset); /* new_gates replaces the third */
}

GCKPTI_INLINED void V(new_gates_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS z = V(gate)(s->a, 1, s, j), h = V(gate)(s->state[0], 0, s, j);
    FLOATS new_gate = V(tanh_noinline)(V(gate)(s->p, 2, s, j) + V(gate)(s->a, 2, s, j));
    V(gate_store)(s->state[0], 0, s, j, V(fma)(z, h - new_gate, new_gate));
    if (s->saved)
        V(gate_store)(s->saved, 2, s, j, new_gate);
}

GCKPTI_INLINED void V(lstm_gates_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS i = V(sigmoid)(V(gate)(s->a, 0, s, j)), f = V(sigmoid)(V(gate)(s->a, 1, s, j));
    FLOATS g = V(tanh_noinline)(V(gate)(s->a, 2, s, j)), o = V(sigmoid)(V(gate)(s->a, 3, s, j));
    FLOATS c = V(fma)(f, V(gate)(s->state[1], 0, s, j), i * g);
    V(gate_store)(s->state[0], 0, s, j, o * V(tanh_noinline)(c));
    V(gate_store)(s->state[1], 0, s, j, c);
    V(gates_save)(s, j, i, f, g, o);
}

/* Sets da and adds to dp x times deriv; returns the gradient of the gate's pre-activation. */
GCKPTI_INLINED FLOATS V(gate_backward)(const gckpti_cell *s, int gate, int64_t j, FLOATS x,
                                       FLOATS deriv)
{
    V(gate_store)(s->da, gate, s, j, x * deriv);
    if (s->dp)
        V(put_product_n)(s->dp + gate * s->units + j, x, deriv, s->accumulate, s->units - j);
    return x * deriv;
}

GCKPTI_INLINED void V(gru_gate_grads_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS r = V(gate)(s->saved, 0, s, j), z = V(gate)(s->saved, 1, s, j);
    FLOATS new_gate = V(gate)(s->saved, 2, s, j), a = V(gate)(s->saved, 3, s, j);
    FLOATS g = V(gate)(s->g, 0, s, j) + V(gate)(s->d[0], 0, s, j), d;
    d = V(gate_backward)(s, 2, j, g * (V(set1)(1.0f) - z), V(tanh_deriv)(new_gate));
    V(gate_backward)(s, 0, j, d * a, V(sigmoid_deriv)(r));
    V(gate_backward)(s, 1, j, g * (V(gate)(s->h, 0, s, j) - new_gate), V(sigmoid_deriv)(z));
    V(gate_store)(s->da, 2, s, j, d * r);
    V(gate_store)(s->d[0], 0, s, j, g * z);
}

/* Then da_r is replaced by the gradient of r h, which reset_gate_grads reads. */
GCKPTI_INLINED void V(new_gate_grads_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS z = V(gate)(s->saved, 1, s, j), new_gate = V(gate)(s->saved, 2, s, j);
    FLOATS g = V(gate)(s->g, 0, s, j) + V(gate)(s->d[0], 0, s, j);
    V(gate_backward)(s, 2, j, g * (V(set1)(1.0f) - z), V(tanh_deriv)(new_gate));
    V(gate_backward)(s, 1, j, g * (V(gate)(s->h, 0, s, j) - new_gate), V(sigmoid_deriv)(z));
    V(gate_store)(s->d[0], 0, s, j, g * z);
}

GCKPTI_INLINED void V(reset_gate_grads_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS r = V(gate)(s->saved, 0, s, j), e = V(gate)(s->da, 0, s, j);
    V(gate_backward)(s, 0, j, e * V(gate)(s->h, 0, s, j), V(sigmoid_deriv)(r));
    V(gate_store)(s->d[0], 0, s, j, V(fma)(e, r, V(gate)(s->d[0], 0, s, j)));
}

GCKPTI_INLINED void V(lstm_gate_grads_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS i = V(gate)(s->saved, 0, s, j), f = V(gate)(s->saved, 1, s, j);
    FLOATS g = V(gate)(s->saved, 2, s, j), o = V(gate)(s->saved, 3, s, j);
    FLOATS top = V(gate)(s->g, 0, s, j) + V(gate)(s->d[0], 0, s, j);
    FLOATS t = V(tanh_noinline)(V(gate)(s->out, 1, s, j));
    FLOATS c = V(fma)(top * o, V(tanh_deriv)(t), V(gate)(s->d[1], 0, s, j));
    c = c + V(gate)(s->g, 1, s, j);
    V(gate_backward)(s, 0, j, c * g, V(sigmoid_deriv)(i));
    V(gate_backward)(s, 1, j, c * V(gate)(s->c, 0, s, j), V(sigmoid_deriv)(f));
    V(gate_backward)(s, 2, j, c * i, V(tanh_deriv)(g));
    V(gate_backward)(s, 3, j, top * t, V(sigmoid_deriv)(o));
    V(gate_store)(s->d[0], 0, s, j, V(zero)());
    V(gate_store)(s->d[1], 0, s, j, c * f);
}

#define GCKPTI_CELL_LOOP(name, at)                                                                 \
    GCKPTI_KERNEL void V(name)(const gckpti_cell *s)                                               \
    {                                                                                              \
        for (int64_t j = 0; j < s->units; j += W)                                                  \
            V(at)(s, j);                                                                           \
    }
GCKPTI_CELL_LOOP(gru_gates, gru_gates_at)
GCKPTI_CELL_LOOP(lstm_gates, lstm_gates_at)
GCKPTI_CELL_LOOP(reset_gates, reset_gates_at)
GCKPTI_CELL_LOOP(new_gates, new_gates_at)
GCKPTI_CELL_LOOP(gru_gate_grads, gru_gate_grads_at)
GCKPTI_CELL_LOOP(new_gate_grads, new_gate_grads_at)
GCKPTI_CELL_LOOP(reset_gate_grads, reset_gate_grads_at)
GCKPTI_CELL_LOOP(lstm_gate_grads, lstm_gate_grads_at)
#undef GCKPTI_CELL_LOOP
#endif
