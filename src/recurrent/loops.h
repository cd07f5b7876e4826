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
    if (!s->saved)
        return;
    V(gate_store)(s->saved, 0, s, j, a);
    V(gate_store)(s->saved, 1, s, j, b);
    V(gate_store)(s->saved, 2, s, j, c);
    V(gate_store)(s->saved, 3, s, j, d);
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

/* Computes the gradients of gates n and z; returns that of n's pre-activation. After it, in
 * gru_reset_before, da_r is replaced by the gradient of r h, which reset_gate_grads reads. */
GCKPTI_INLINED FLOATS V(new_gate_grads_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS z = V(gate)(s->saved, 1, s, j), new_gate = V(gate)(s->saved, 2, s, j);
    FLOATS g = V(gate)(s->g, 0, s, j) + V(gate)(s->d[0], 0, s, j), d;
    d = V(gate_backward)(s, 2, j, g * (V(set1)(1.0f) - z), V(tanh_deriv)(new_gate));
    V(gate_backward)(s, 1, j, g * (V(gate)(s->h, 0, s, j) - new_gate), V(sigmoid_deriv)(z));
    V(gate_store)(s->d[0], 0, s, j, g * z);
    return d;
}

GCKPTI_INLINED void V(gru_gate_grads_at)(const gckpti_cell *s, int64_t j)
{
    FLOATS r = V(gate)(s->saved, 0, s, j), d = V(new_gate_grads_at)(s, j);
    V(gate_backward)(s, 0, j, d * V(gate)(s->saved, 3, s, j), V(sigmoid_deriv)(r));
    V(gate_store)(s->da, 2, s, j, d * r);
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

/* ---- delta_rule: one head at one step, by the formulas of recurrent/delta.c ---- */
/* Computes columns j..j+W*vectors-1; several vectors at once hide the latency of the chains. */
GCKPTI_INLINED void V(delta_columns)(const gckpti_delta_step *s, int64_t j, const int vectors)
{
    const int64_t n = s->values;
    const FLOATS decay = V(set1)(s->decay);
    FLOATS a[4] = { V(zero)(), V(zero)(), V(zero)(), V(zero)() }, b[4] = { a[0], a[0], a[0], a[0] };
    for (int64_t i = 0; i < s->keys; i++) {
        const float *from = s->from + i * n;
        GCKPTI_UNROLL
        for (int64_t v = 0, at = j; v < vectors; v++, at += W)
            a[v] = V(fma)(V(set1)(s->k[i]), decay * V(load_n)(from + at, n - at), a[v]);
    }
    for (int64_t v = 0, at = j; v < vectors; v++, at += W) {
        a[v] = V(load_n)(s->v + at, n - at) - a[v];
        if (s->r)
            V(store_n)(s->r + at, a[v], n - at);
        a[v] = V(set1)(s->beta) * a[v];
    }
    for (int64_t i = 0; i < s->keys; i++) {
        const FLOATS k = V(set1)(s->k[i]), q = V(set1)(s->out ? s->q[i] : 0.0f);
        GCKPTI_UNROLL
        for (int64_t v = 0, at = j; v < vectors; v++, at += W) {
            const FLOATS x = V(fma)(k, a[v], decay * V(load_n)(s->from + i * n + at, n - at));
            V(store_n)(s->to + i * n + at, x, n - at);
            b[v] = V(fma)(q, x, b[v]);
        }
    }
    for (int64_t v = 0, at = j; v < vectors && s->out; v++, at += W)
        V(store_n)(s->out + at, V(set1)(s->scale) * b[v], n - at);
}

GCKPTI_KERNEL void V(delta_update)(const gckpti_delta_step *s)
{
    int64_t j = 0;
    for (; j + 4 * W <= s->values; j += 4 * W)
        V(delta_columns)(s, j, 4);
    for (; j < s->values; j += W)
        V(delta_columns)(s, j, 1);
}

GCKPTI_KERNEL void V(delta_grads)(const gckpti_delta_step *s)
{
    const int64_t n = s->values;
    const FLOATS scale = V(set1)(s->scale), beta = V(set1)(s->beta), decay = V(set1)(s->decay);
    float *u = s->scratch, *w = u + n, *x = w + n, *p = x + n, total = 0.0f;
    for (int64_t j = 0; j < n; j += W) {
        V(store_n)(u + j, scale * V(load_n)(s->g + j, n - j), n - j);
        V(store_n)(w + j, beta * V(load_n)(s->r + j, n - j), n - j);
        V(store_n)(x + j, V(zero)(), n - j);
    }
    for (int64_t i = 0; i < s->keys; i++) {
        const FLOATS q = V(set1)(s->q[i]), k = V(set1)(s->k[i]);
        float *d = s->d + i * n;
        for (int64_t j = 0; j < n; j += W) {
            const FLOATS y = V(fma)(q, V(load_n)(u + j, n - j), V(load_n)(d + j, n - j));
            V(store_n)(d + j, y, n - j);
            V(store_n)(x + j, V(fma)(k, y, V(load_n)(x + j, n - j)), n - j);
        }
        if (s->dq)
            V(put_n)(s->dq + i, V(set1)(V(dot)(s->to + i * n, u, n)), s->add[0], 1);
        if (s->dk)
            V(put_n)(s->dk + i, V(set1)(V(dot)(d, w, n)), s->add[1], 1);
    }
    if (s->dbeta)
        V(put_n)(s->dbeta, V(set1)(V(dot)(x, s->r, n)), s->add[4], 1);
    for (int64_t j = 0; j < n; j += W) {
        const FLOATS y = V(load_n)(x + j, n - j);
        if (s->dv)
            V(put_product_n)(s->dv + j, y, beta, s->add[2], n - j);
        V(store_n)(w + j, -beta * y, n - j);
    }
    for (int64_t i = 0; i < s->keys; i++) {
        const FLOATS k = V(set1)(s->k[i]);
        float *d = s->d + i * n;
        for (int64_t j = 0; j < n; j += W) {
            V(store_n)(p + j, decay * V(load_n)(s->from + i * n + j, n - j), n - j);
            V(store_n)(d + j, V(fma)(k, V(load_n)(w + j, n - j), V(load_n)(d + j, n - j)), n - j);
        }
        if (s->dk)
            V(put_n)(s->dk + i, V(set1)(V(dot)(p, w, n)), 1, 1);
        if (s->ddecay)
            total += V(dot)(d, p, n);
        for (int64_t j = 0; j < n; j += W)
            V(store_n)(d + j, decay * V(load_n)(d + j, n - j), n - j);
    }
    if (s->ddecay)
        V(put_n)(s->ddecay, V(set1)(total), s->add[3], 1);
}
#endif
