#include "ops/own.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: p (B,T,G), which is x wx + bias by a linear layer, wh (H,G), bias (G) or none,
 * h0 [, c0] (B,H) or none, which is 0 -> gru, G = 3H: h (B,T,H); lstm, G = 4H: h, c (B,T,2H).
 * For each row b, t ascending, h and c being those of t - 1, a = chains of h wh over H:
 *   gru   a from the bias, or +0;  r = sigmoid(p_r + a_r), z = sigmoid(p_z + a_z),
 *         n = tanh(fma(r, a_n, p_n)), h = fma(z, h - n, n)
 *   lstm  a from p;  i, f, o = sigmoid(a), g = tanh(a), c = fma(f, c, i g), h = o tanh(c)
 * aux (B,T,4H): r, z, n, a_n, or i, f, g, o. Backward, t descending, D [and E] being what t + 1
 * hands to h [and c], +0 at first, and u [and e] grad_out's. x by y means da = x y, rounded, and dp
 * = put(x, y); s' = fma(-s, s, s) is sigmoid's slope, n' = fma(-n, n, 1) tanh's:
 *   gru   U = u + D;  n: U (1 - z) by n';  r: da_n a_n by r';  z: U (h - n) by z';  then da_n times
 *         r, rounded;  D = chains of da wh over G, from U z
 *   lstm  U = u + D, t = tanh(c), C = fma(U o, t', E) + e;  i: C g by i';  f: C times c of t - 1 by
 *         f';  g: C i by g';  o: U t by o';  E = C f, D = chains of da wh over G, from +0
 * At the end dh0 = D, dc0 = E, put. Then, b and t ascending, dwh: chains of h da; dbias sums da,
 * with low parts. Cho 2014; Hochreiter & Schmidhuber 1997, with the forget gate of Gers 2000. */

GCKPTI_FN gckpti_sequence gckpti_sequence_of(const gckpt_call *call)
{
    const gckpti_recurrent *o = (const gckpti_recurrent *)call->attributes;
    const gckpt_arg *in = call->in;
    const int64_t *d = in[0].shape.d;
    gckpti_sequence s = { d[0], d[1], d[2] / o->gates, d[2], d[2] / o->gates, in, in + 1, NULL,
                          NULL, NULL };
    if (o->gates == 4)
        s.state *= 2;
    if (o->bias)
        s.bias = in + o->bias;
    if (o->start)
        s.h0 = in + o->start;
    if (o->start && o->gates == 4)
        s.c0 = s.h0 + 1;
    return s;
}

GCKPTI_FN int64_t gckpti_sequence_each(const gckpt_call *call, int64_t rows)
{
    return gckpti_min((rows - 1) / call->threads + 1, GCKPTI_CELL_ROWS);
}
GCKPTI_FN int64_t gckpti_sequence_rows(const gckpt_call *call, int64_t rows)
{
    int64_t each = gckpti_sequence_each(call, rows);
    return gckpti_is_plain(call) ? 1 : each * gckpti_min((rows - 1) / each + 1, call->threads);
}

/* Floats of scratch. The fast backward has wh transposed, and h of before beside da. */
static int64_t gckpti_sequence_room(const gckpt_call *call, int backward)
{
    gckpti_sequence s = gckpti_sequence_of(call);
    int64_t rows = gckpti_sequence_rows(call, s.rows);
    if (!backward)
        return rows * (s.state + s.gates);
    if (gckpti_is_plain(call))
        return s.steps * s.gates + s.state + s.units;
    return rows * (s.steps * (s.gates + s.units) + s.state) + s.units * (1 + s.gates) +
           call->threads * gckpti_product_room(s.units, s.gates, rows * s.steps);
}

static gckpt_result gckpti_recurrent_shape(gckpt_call *call)
{
    const gckpti_recurrent *o = (const gckpti_recurrent *)call->attributes;
    const gckpt_shape *p = &call->in[0].shape, *wh = &call->in[1].shape;
    const char *name = o->gates == 3 ? "gru" : "lstm";
    if (p->n != 3 || wh->n != 2 || wh->d[1] != p->d[2] || wh->d[1] / o->gates != wh->d[0] ||
        wh->d[1] % o->gates)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: x wx %S and wh %S must be (B,T,%iH) and (H,%iH)", name, p, wh,
                          o->gates, o->gates);
    gckpt_shape state = gckpt_shape2(p->d[0], wh->d[0]), bias = gckpt_shape1(p->d[2]);
    for (int i = 2; i < call->inputs; i++) {
        const gckpt_shape *want = i == o->bias ? &bias : &state;
        if (!gckpti_same_shape(&call->in[i].shape, want))
            return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x wx %S and wh %S need %s %S, not %S", name,
                              p, wh, i == o->bias ? "a bias" : "a first state", want,
                              &call->in[i].shape);
    }
    gckpti_sequence s = gckpti_sequence_of(call);
    call->shape = *p;
    call->shape.d[2] = s.state;
    call->aux_bytes = (size_t)(s.rows * s.steps) * (size_t)s.units * 4 * sizeof(float);
    call->work_forward = (size_t)gckpti_sequence_room(call, 0) * sizeof(float);
    call->work_backward = (size_t)gckpti_sequence_room(call, 1) * sizeof(float);
    return GCKPT_OK;
}

static uint64_t gckpti_recurrent_flops(const gckpt_call *call)
{
    uint64_t gates = (uint64_t)gckpti_elements(&call->in[0].shape);
    return gates * (2 * (uint64_t)call->in[1].shape.d[0] + 20);
}

/* Chains to the step before in any case. */
static uint64_t gckpti_recurrent_flops_backward(const gckpt_call *call)
{
    return gckpti_recurrent_flops(call) * (call->in[1].grad ? 2 : 1);
}

GCKPTI_FN void gckpti_sequence_start(const gckpti_sequence *s, int64_t b, float *state)
{
    size_t bytes = (size_t)s->units * sizeof *state;
    memset(state, 0, (size_t)s->state * sizeof *state);
    if (s->h0)
        memcpy(state, s->h0->data + b * s->units, bytes);
    if (s->c0)
        memcpy(state + s->units, s->c0->data + b * s->units, bytes);
}

GCKPTI_FN gckpti_cell gckpti_cell_of(const gckpt_call *call, const gckpti_sequence *s, int64_t b,
                                     int64_t t, float *state, const float *a)
{
    gckpti_cell c;
    int64_t at = b * s->steps + t;
    memset(&c, 0, sizeof c);
    c.units = s->units;
    c.p = s->p->data + at * s->gates;
    c.a = a;
    c.state = state;
    c.aux = call->aux ? (float *)call->aux + at * 4 * s->units : NULL;
    return c;
}

GCKPTI_FN gckpti_cell gckpti_cell_back(const gckpt_call *call, const gckpti_sequence *s, int64_t b,
                                       int64_t t, const float *zero, float *d, float *da)
{
    gckpti_cell c;
    int64_t at = b * s->steps + t;
    memset(&c, 0, sizeof c);
    c.units = s->units;
    c.g = call->grad_out + at * s->state;
    c.out = call->out + at * s->state;
    c.h = t ? c.out - s->state : s->h0 ? s->h0->data + b * s->units : zero;
    c.c = t ? c.h + s->units : s->c0 ? s->c0->data + b * s->units : zero;
    c.aux = (float *)call->aux + at * 4 * s->units;
    c.d = d;
    c.da = da;
    c.dp = s->p->grad ? s->p->grad + at * s->gates : NULL;
    c.accumulate = s->p->accumulate;
    return c;
}

static void gckpti_gru_gates(const gckpti_cell *s)
{
    int64_t n = s->units;
    for (int64_t j = 0; j < n; j++) {
        float r = gckpti_sigmoid(s->p[j] + s->a[j]), a = s->a[2 * n + j];
        float z = gckpti_sigmoid(s->p[n + j] + s->a[n + j]);
        float fresh = gckpti_tanh(gckpti_fma(r, a, s->p[2 * n + j]));
        s->state[j] = gckpti_fma(z, s->state[j] - fresh, fresh);
        if (s->aux)
            s->aux[j] = r, s->aux[n + j] = z, s->aux[2 * n + j] = fresh, s->aux[3 * n + j] = a;
    }
}

static void gckpti_lstm_gates(const gckpti_cell *s)
{
    int64_t n = s->units;
    for (int64_t j = 0; j < n; j++) {
        float i = gckpti_sigmoid(s->a[j]), f = gckpti_sigmoid(s->a[n + j]);
        float g = gckpti_tanh(s->a[2 * n + j]), o = gckpti_sigmoid(s->a[3 * n + j]);
        float c = gckpti_fma(f, s->state[n + j], i * g);
        s->state[j] = o * gckpti_tanh(c);
        s->state[n + j] = c;
        if (s->aux)
            s->aux[j] = i, s->aux[n + j] = f, s->aux[2 * n + j] = g, s->aux[3 * n + j] = o;
    }
}

/* da = x slope, and dp. */
GCKPTI_INLINE void gckpti_gate_back(const gckpti_cell *s, int64_t at, float x, float slope)
{
    s->da[at] = x * slope;
    if (s->dp)
        gckpti_put_product(&s->dp[at], x, slope, s->accumulate);
}

static void gckpti_gru_slopes(const gckpti_cell *s)
{
    int64_t n = s->units;
    for (int64_t j = 0; j < n; j++) {
        float r = s->aux[j], z = s->aux[n + j], fresh = s->aux[2 * n + j];
        float g = s->g[j] + s->d[j];
        gckpti_gate_back(s, 2 * n + j, g * (1.0f - z), gckpti_tanh_slope(fresh));
        gckpti_gate_back(s, j, s->da[2 * n + j] * s->aux[3 * n + j], gckpti_sigmoid_slope(r));
        gckpti_gate_back(s, n + j, g * (s->h[j] - fresh), gckpti_sigmoid_slope(z));
        s->da[2 * n + j] *= r;
        s->d[j] = g * z;
    }
}

static void gckpti_lstm_slopes(const gckpti_cell *s)
{
    int64_t n = s->units;
    for (int64_t j = 0; j < n; j++) {
        float i = s->aux[j], f = s->aux[n + j], g = s->aux[2 * n + j], o = s->aux[3 * n + j];
        float top = s->g[j] + s->d[j], t = gckpti_tanh(s->out[n + j]);
        float c = gckpti_fma(top * o, gckpti_tanh_slope(t), s->d[n + j]) + s->g[n + j];
        gckpti_gate_back(s, j, c * g, gckpti_sigmoid_slope(i));
        gckpti_gate_back(s, n + j, c * s->c[j], gckpti_sigmoid_slope(f));
        gckpti_gate_back(s, 2 * n + j, c * i, gckpti_tanh_slope(g));
        gckpti_gate_back(s, 3 * n + j, top * t, gckpti_sigmoid_slope(o));
        s->d[j] = 0.0f;
        s->d[n + j] = c * f;
    }
}

static void gckpti_sequence_forward(const gckpt_call *call, void (*gates)(const gckpti_cell *cell))
{
    gckpti_sequence s = gckpti_sequence_of(call);
    float *state = (float *)call->work, *a = state + s.state;
    size_t bytes = (size_t)s.gates * sizeof *a;
    for (int64_t b = 0; b < s.rows; b++) {
        gckpti_sequence_start(&s, b, state);
        for (int64_t t = 0; t < s.steps; t++) {
            gckpti_cell cell = gckpti_cell_of(call, &s, b, t, state, a);
            gckpti_start(a, s.gates, 0);
            if (s.state > s.units) /* lstm */
                memcpy(a, cell.p, bytes);
            else if (s.bias)
                memcpy(a, s.bias->data, bytes);
            for (int64_t k = 0; k < s.units; k++)
                gckpti_link(state[k], s.wh->data + k * s.gates, s.gates, a);
            gates(&cell);
            if (call->out)
                memcpy(call->out + (b * s.steps + t) * s.state, state,
                       (size_t)s.state * sizeof *state);
        }
    }
}

GCKPTI_FN void gckpti_sequence_begin(const gckpti_sequence *s)
{
    if (s->wh->grad)
        gckpti_start(s->wh->grad, s->units * s->gates, s->wh->accumulate);
    if (s->bias && s->bias->grad)
        gckpti_start(s->bias->grad, s->gates, s->bias->accumulate);
}

GCKPTI_FN void gckpti_sequence_end(const gckpti_sequence *s, int64_t b, const float *d)
{
    const gckpt_arg *start[2] = { s->h0, s->c0 };
    for (int i = 0; i < 2; i++)
        for (int64_t j = 0; start[i] && start[i]->grad && j < s->units; j++)
            gckpti_put(&start[i]->grad[b * s->units + j], d[i * s->units + j],
                       start[i]->accumulate);
}

/* What step t of a row adds to dwh and dbias. */
static void gckpti_sequence_add(const gckpti_sequence *s, const float *h, const float *da)
{
    float *low = s->bias ? s->bias->low : NULL;
    for (int64_t k = 0; s->wh->grad && k < s->units; k++)
        gckpti_link(h[k], da, s->gates, s->wh->grad + k * s->gates);
    for (int64_t j = 0; s->bias && s->bias->grad && j < s->gates; j++)
        gckpti_sum_add(&s->bias->grad[j], low ? low + j : NULL, da[j]);
}

static void gckpti_sequence_backward(const gckpt_call *call,
                                     void (*slopes)(const gckpti_cell *cell))
{
    gckpti_sequence s = gckpti_sequence_of(call);
    float *da = (float *)call->work, *d = da + s.steps * s.gates, *zero = d + s.state;
    memset(zero, 0, (size_t)s.units * sizeof *zero);
    gckpti_sequence_begin(&s);
    for (int64_t b = 0; b < s.rows; b++) {
        memset(d, 0, (size_t)s.state * sizeof *d);
        for (int64_t t = s.steps; t-- > 0;) {
            gckpti_cell cell = gckpti_cell_back(call, &s, b, t, zero, d, da + t * s.gates);
            slopes(&cell);
            gckpti_chains(cell.da, 1, s.wh->data, s.gates, s.units, s.gates, d);
        }
        gckpti_sequence_end(&s, b, d);
        for (int64_t t = 0; t < s.steps; t++) {
            gckpti_cell cell = gckpti_cell_back(call, &s, b, t, zero, d, da + t * s.gates);
            gckpti_sequence_add(&s, cell.h, cell.da);
        }
    }
}

GCKPTI_FN void gckpti_gru_forward(const gckpt_call *call)
{
    gckpti_sequence_forward(call, gckpti_gru_gates);
}
GCKPTI_FN void gckpti_gru_backward(const gckpt_call *call)
{
    gckpti_sequence_backward(call, gckpti_gru_slopes);
}
GCKPTI_FN void gckpti_lstm_forward(const gckpt_call *call)
{
    gckpti_sequence_forward(call, gckpti_lstm_gates);
}
GCKPTI_FN void gckpti_lstm_backward(const gckpt_call *call)
{
    gckpti_sequence_backward(call, gckpti_lstm_slopes);
}

/* in[2] may be the bias or h0: then it needs less than this says. */
#define GCKPTI_READS GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_IN(3) | GCKPT_OUT | GCKPT_AUX
GCKPTI_ROW_WITH(gru, GCKPTI_FAST, gckpti_recurrent_shape, gckpti_recurrent_flops,
                gckpti_recurrent_flops_backward, NULL, 0, GCKPTI_READS, GCKPTI_READS,
                GCKPTI_READS | GCKPT_SUMS, GCKPTI_READS);
GCKPTI_ROW_WITH(lstm, GCKPTI_FAST, gckpti_recurrent_shape, gckpti_recurrent_flops,
                gckpti_recurrent_flops_backward, NULL, 0, GCKPTI_READS, GCKPTI_READS, GCKPTI_READS,
                GCKPTI_READS);
#undef GCKPTI_READS

GCKPT_API gckpt_tensor *gckpt_gru(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *bx,
                                  gckpt_tensor *wh, gckpt_tensor *bh, gckpt_tensor *h0)
{
    gckpt_tensor *in[4] = { gckpt_linear(x, wx, bx), wh, bh ? bh : h0, h0 };
    gckpti_recurrent o = { 3, bh ? 2 : 0, !h0 ? 0 : bh ? 3 : 2 };
    return gckpt_apply(&gckpti_op_gru, in, 2 + (bh != NULL) + (h0 != NULL), &o, sizeof o);
}

GCKPT_API gckpt_tensor *gckpt_lstm(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *wh,
                                   gckpt_tensor *bias, gckpt_tensor *h0, gckpt_tensor *c0)
{
    gckpt_tensor *in[4] = { gckpt_linear(x, wx, bias), wh, h0 ? h0 : c0, c0 };
    gckpti_recurrent o = { 4, 0, h0 ? 2 : 0 };
    if (in[2] && in[0] && !(h0 && c0))
        return gckpti_fail(in[0]->graph, GCKPT_E_ARG,
                           "lstm: %s %T without %s: give both, or none, where they are 0",
                           h0 ? "h0" : "c0", in[2], h0 ? "c0" : "h0");
    return gckpt_apply(&gckpti_op_lstm, in, h0 ? 4 : 2, &o, sizeof o);
}
#endif
