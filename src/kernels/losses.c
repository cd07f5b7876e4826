/* ---- losses over classes: a row of n logits ---- */
static GCKPTI_TARGET void V(classes_backward)(const float *x, float *d, int64_t n,
                                              const gckpti_classes *c)
{
    const FLOATS top = V(set1)(c->max), rest = V(set1)(c->log_sum), mass = V(set1)(c->mass);
    for (int64_t j = 0; j < n; j += W) {
        FLOATS p = V(exp)(V(load_n)(x + j, n - j) - top - rest);
        FLOATS t = c->targets ? V(load_n)(c->targets + j, n - j) : V(set1)(c->other);
        p = V(fma)(p, mass, V(differ)(t, V(set1)(-0.0f)));
        V(put)(d + j, p, V(set1)(c->scale), c->accumulate, n - j);
    }
}

/* sum + w x by gckpti_fma, but sum + w where w is 0 or NaN */
GCKPTI_INLINED FLOATS V(weigh)(FLOATS w, FLOATS x, FLOATS sum)
{
    FLOATS size = V(floats)(V(bits)(w) & 0x7fffffff);
    return V(less)(V(zero)(), size, V(fma)(w, x, sum), sum + w);
}

static GCKPTI_TARGET float V(surprisal)(const float *x, int64_t n, const gckpti_classes *c)
{
    const FLOATS top = V(set1)(c->max), rest = V(set1)(c->log_sum);
    float lane[32] = { 0.0f };
    for (int64_t j = 0; j < n; j += W) {
        FLOATS s = rest - (V(load_n)(x + j, n - j) - top), sum = V(load)(lane + j % 32);
        FLOATS t = c->targets ? V(load_n)(c->targets + j, n - j) : V(set1)(1.0f);
        V(store_n)(lane + j % 32, V(weigh)(t, s, sum), n - j);
    }
    return gckpti_lanes_sum(lane);
}

/* ---- losses of elements: an entry of axis 0, by the steps of gckpti_errors_forward ---- */
GCKPTI_INLINED FLOATS V(error_weights)(const gckpti_errors *e, int64_t at, int64_t n)
{
    float w[W];
    if (!e->weights)
        return V(set1)(1.0f);
    if (e->share == 1)
        return V(load_n)(e->weights + at, n);
    if ((at + n - 1) / e->share == at / e->share)
        return V(set1)(e->weights[at / e->share]);
    for (int64_t i = 0; i < W; i++)
        w[i] = e->weights[(at + (i < n ? i : 0)) / e->share];
    return V(load)(w);
}

/* The loss of W elements of which n exist, added to `sum`. */
GCKPTI_INLINED FLOATS V(error_add)(const gckpti_errors *e, gckpti_error_kind kind, int64_t at,
                                   int64_t n, FLOATS sum)
{
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f), delta = V(set1)(e->delta);
    FLOATS x = V(load_n)(e->x + at, n), y = kind == GCKPTI_SUMMED ? zero : V(load_n)(e->y + at, n);
    FLOATS w = V(error_weights)(e, at, n), a = x - y, b = a, u, size;
    if (kind == GCKPTI_HUBER) {
        size = V(floats)(V(bits)(a) & 0x7fffffff);
        b = V(less)(size, delta, a, size - V(set1)(0.5f * e->delta));
        a = V(less)(size, delta, V(set1)(0.5f) * a, delta);
    }
    if (kind == GCKPTI_BINARY) {
        size = V(floats)(V(bits)(x) | 0x80000000);
        size = V(exp)(size);
        u = one + size;
        u = V(less)(one, u, V(fma)(V(log)(u), size / (u - one), zero), size);
        b = V(fma)(V(differ)(x, V(set1)(-0.0f)), y, V(max)(x, zero)) + u;
    }
    if (kind == GCKPTI_SUMMED || kind == GCKPTI_BINARY)
        a = one;
    size = V(floats)(V(bits)(w) & 0x7fffffff);
    return V(less)(zero, size, V(fma)(w * a, b, sum), sum + w);
}

GCKPTI_INLINED float V(errors_sum)(const gckpti_errors *e, gckpti_error_kind kind, int64_t row)
{
    float lane[32] = { 0.0f };
    for (int64_t i = 0; i < e->n; i += W) {
        int64_t left = gckpti_min(e->n - i, W);
        float *to = lane + i % 32;
        V(store_n)(to, V(error_add)(e, kind, row * e->n + i, left, V(load)(to)), left);
    }
    return gckpti_lanes_sum(lane);
}

GCKPTI_INLINED void V(errors_slopes)(const gckpti_errors *e, gckpti_error_kind kind, int64_t row)
{
    const gckpt_arg *to = e->call->in;
    const FLOATS minus = V(set1)(-0.0f), delta = V(set1)(e->delta), below = V(differ)(delta, minus);
    const FLOATS scale = V(set1)(e->call->loss_scale), zero = V(zero)(), one = V(set1)(1.0f);
    for (int64_t at = row * e->n, end = at + e->n; at < end; at += W) {
        int64_t n = gckpti_min(end - at, W);
        FLOATS x = kind == GCKPTI_SUMMED ? zero : V(load_n)(e->x + at, n);
        FLOATS y = kind == GCKPTI_SUMMED ? zero : V(load_n)(e->y + at, n), d = x - y, back;
        FLOATS w = V(error_weights)(e, at, n), size = V(floats)(V(bits)(w) & 0x7fffffff);
        if (kind == GCKPTI_SUMMED)
            d = one;
        if (kind == GCKPTI_SQUARED)
            d = V(set1)(2.0f) * d;
        if (kind == GCKPTI_HUBER)
            d = V(less)(d, below, below, V(less)(delta, d, delta, d));
        if (kind == GCKPTI_BINARY)
            d = one / V(one_and_exp)(x) - y;
        back = V(differ)(kind == GCKPTI_BINARY ? x : d, minus);
        if (to[0].grad)
            V(put)(to[0].grad + at, V(less)(zero, size, w * d, w), scale, to[0].accumulate, n);
        if (to[1].grad)
            V(put)(to[1].grad + at, V(less)(zero, size, w * back, w), scale, to[1].accumulate, n);
    }
}

static GCKPTI_TARGET float V(errors_forward)(const gckpti_errors *e, int64_t row)
{
    switch (e->kind) {
    case GCKPTI_SUMMED: return V(errors_sum)(e, GCKPTI_SUMMED, row);
    case GCKPTI_SQUARED: return V(errors_sum)(e, GCKPTI_SQUARED, row);
    case GCKPTI_HUBER: return V(errors_sum)(e, GCKPTI_HUBER, row);
    default: return V(errors_sum)(e, GCKPTI_BINARY, row);
    }
}

static GCKPTI_TARGET void V(errors_backward)(const gckpti_errors *e, int64_t row)
{
    switch (e->kind) {
    case GCKPTI_SUMMED: V(errors_slopes)(e, GCKPTI_SUMMED, row); break;
    case GCKPTI_SQUARED: V(errors_slopes)(e, GCKPTI_SQUARED, row); break;
    case GCKPTI_HUBER: V(errors_slopes)(e, GCKPTI_HUBER, row); break;
    default: V(errors_slopes)(e, GCKPTI_BINARY, row); break;
    }
}

/* ---- gru, lstm: a row at a step, by the steps of gckpti_gru_gates and the others ---- */
GCKPTI_INLINED FLOATS V(sigmoid)(FLOATS x) { return V(set1)(1.0f) / V(one_and_exp)(x); }
GCKPTI_INLINED FLOATS V(sigmoid_slope)(FLOATS y) { return V(fnma)(y, y, y); }
GCKPTI_INLINED FLOATS V(tanh_slope)(FLOATS y) { return V(fnma)(y, y, V(set1)(1.0f)); }

/* Gate `gate` of n at x, of W units from j on. */
GCKPTI_INLINED FLOATS V(gate)(const float *x, int gate, const gckpti_cell *s, int64_t j)
{
    return V(load_n)(x + gate * s->units + j, s->units - j);
}
GCKPTI_INLINED void V(gate_keep)(float *x, int gate, const gckpti_cell *s, int64_t j, FLOATS y)
{
    V(store_n)(x + gate * s->units + j, y, s->units - j);
}

static GCKPTI_TARGET void V(gru_gates)(const gckpti_cell *s)
{
    for (int64_t j = 0; j < s->units; j += W) {
        FLOATS r = V(sigmoid)(V(gate)(s->p, 0, s, j) + V(gate)(s->a, 0, s, j));
        FLOATS z = V(sigmoid)(V(gate)(s->p, 1, s, j) + V(gate)(s->a, 1, s, j));
        FLOATS a = V(gate)(s->a, 2, s, j), h = V(gate)(s->state, 0, s, j);
        FLOATS fresh = V(tanh)(V(fma)(r, a, V(gate)(s->p, 2, s, j)));
        V(gate_keep)(s->state, 0, s, j, V(fma)(z, h - fresh, fresh));
        if (s->aux) {
            V(gate_keep)(s->aux, 0, s, j, r);
            V(gate_keep)(s->aux, 1, s, j, z);
            V(gate_keep)(s->aux, 2, s, j, fresh);
            V(gate_keep)(s->aux, 3, s, j, a);
        }
    }
}

static GCKPTI_TARGET void V(lstm_gates)(const gckpti_cell *s)
{
    for (int64_t j = 0; j < s->units; j += W) {
        FLOATS i = V(sigmoid)(V(gate)(s->a, 0, s, j)), f = V(sigmoid)(V(gate)(s->a, 1, s, j));
        FLOATS g = V(tanh)(V(gate)(s->a, 2, s, j)), o = V(sigmoid)(V(gate)(s->a, 3, s, j));
        FLOATS c = V(fma)(f, V(gate)(s->state, 1, s, j), i * g);
        V(gate_keep)(s->state, 0, s, j, o * V(tanh)(c));
        V(gate_keep)(s->state, 1, s, j, c);
        if (s->aux) {
            V(gate_keep)(s->aux, 0, s, j, i);
            V(gate_keep)(s->aux, 1, s, j, f);
            V(gate_keep)(s->aux, 2, s, j, g);
            V(gate_keep)(s->aux, 3, s, j, o);
        }
    }
}

/* gckpti_gate_back; what da is. */
GCKPTI_INLINED FLOATS V(gate_back)(const gckpti_cell *s, int gate, int64_t j, FLOATS x,
                                   FLOATS slope)
{
    V(gate_keep)(s->da, gate, s, j, x * slope);
    if (s->dp)
        V(put)(s->dp + gate * s->units + j, x, slope, s->accumulate, s->units - j);
    return x * slope;
}

static GCKPTI_TARGET void V(gru_slopes)(const gckpti_cell *s)
{
    for (int64_t j = 0; j < s->units; j += W) {
        FLOATS r = V(gate)(s->aux, 0, s, j), z = V(gate)(s->aux, 1, s, j);
        FLOATS fresh = V(gate)(s->aux, 2, s, j), a = V(gate)(s->aux, 3, s, j);
        FLOATS g = V(gate)(s->g, 0, s, j) + V(gate)(s->d, 0, s, j), d;
        d = V(gate_back)(s, 2, j, g * (V(set1)(1.0f) - z), V(tanh_slope)(fresh));
        V(gate_back)(s, 0, j, d * a, V(sigmoid_slope)(r));
        V(gate_back)(s, 1, j, g * (V(gate)(s->h, 0, s, j) - fresh), V(sigmoid_slope)(z));
        V(gate_keep)(s->da, 2, s, j, d * r);
        V(gate_keep)(s->d, 0, s, j, g * z);
    }
}

static GCKPTI_TARGET void V(lstm_slopes)(const gckpti_cell *s)
{
    for (int64_t j = 0; j < s->units; j += W) {
        FLOATS i = V(gate)(s->aux, 0, s, j), f = V(gate)(s->aux, 1, s, j);
        FLOATS g = V(gate)(s->aux, 2, s, j), o = V(gate)(s->aux, 3, s, j);
        FLOATS top = V(gate)(s->g, 0, s, j) + V(gate)(s->d, 0, s, j);
        FLOATS t = V(tanh)(V(gate)(s->out, 1, s, j));
        FLOATS c = V(fma)(top * o, V(tanh_slope)(t), V(gate)(s->d, 1, s, j));
        c = c + V(gate)(s->g, 1, s, j);
        V(gate_back)(s, 0, j, c * g, V(sigmoid_slope)(i));
        V(gate_back)(s, 1, j, c * V(gate)(s->c, 0, s, j), V(sigmoid_slope)(f));
        V(gate_back)(s, 2, j, c * i, V(tanh_slope)(g));
        V(gate_back)(s, 3, j, top * t, V(sigmoid_slope)(o));
        V(gate_keep)(s->d, 0, s, j, V(zero)());
        V(gate_keep)(s->d, 1, s, j, c * f);
    }
}
