#include "recurrent/recurrent.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: inputs p (B,T,G), which is x wx + bias of a linear op, wh (H,G), bias (G) or
 * none, h0 [, c0] (B,H) or none for 0; output of gru, G = 3H: h (B,T,H); of lstm, G = 4H: h, c
 * (B,T,2H).
 * For each row b, t ascending, h and c being those of t - 1, a = chains of h wh over H:
 *   gru   a from the bias, or +0;  r = sigmoid(p_r + a_r), z = sigmoid(p_z + a_z),
 *         n = tanh(fma(r, a_n, p_n)), h = fma(z, h - n, n)
 *   lstm  a from p;  i, f, o = sigmoid(a), g = tanh(a), c = fma(f, c, i g), h = o tanh(c)
 * saved (B,T,4H): r, z, n, a_n, or i, f, g, o. Backward, t descending; u [, e] is grad_out of h [,
 * c], D [, E] the gradient that t + 1 adds to u [, e], at first +0. "q: x by y" is da_q = x y,
 * rounded, dp_q = put(x, y). Derivatives: s' = fma(-s, s, s) of sigmoid, n' = fma(-n, n, 1) of
 * tanh.
 *   gru   U = u + D;  n: U (1 - z) by n';  r: da_n a_n by r';  z: U (h - n) by z';  then da_n times
 *         r, rounded;  D = chains of da wh over G, from U z
 *   lstm  U = u + D, t = tanh(c), C = fma(U o, t', E) + e;  i: C g by i';  f: C times c of t - 1 by
 *         f';  g: C i by g';  o: U t by o';  E = C f, D = chains of da wh over G, from +0
 * At the end dh0 = D, dc0 = E, put. Then, b and t ascending, dwh: chains of h da; dbias sums da,
 * compensated. Cho 2014; Hochreiter & Schmidhuber 1997, with the forget gate of Gers 2000. */

/* Returns the state of a call whose items have one row, or, if `fast`, several. */
static gckpti_sequence gckpti_sequence_of(const gckpt_call *call, int fast, int backward)
{
    const gckpti_recurrent *o = (const gckpti_recurrent *)call->attributes;
    const gckpt_arg *in = call->in;
    const int64_t *d = in[0].shape.d;
    gckpti_sequence s;
    memset(&s, 0, sizeof s);
    s.call = call;
    s.rows = d[0], s.steps = d[1], s.gates = d[2], s.units = d[2] / o->gates;
    s.state = o->gates == 4 ? 2 * s.units : s.units;
    s.p = in, s.wh = in + 1;
    s.bias = o->bias ? in + o->bias : NULL;
    s.h0 = o->state ? in + o->state : NULL;
    s.c0 = o->state && o->gates == 4 ? s.h0 + 1 : NULL;
    s.item_rows = s.block = 1, s.fast = fast, s.backward = backward;
    s.terms = backward ? s.gates : s.units, s.columns = backward ? s.units : s.gates;
    if (fast) {
        s.item_rows = gckpti_min((s.rows - 1) / call->threads + 1, GCKPTI_CELL_ROWS);
        s.block = s.item_rows * gckpti_min((s.rows - 1) / s.item_rows + 1, call->threads);
    }
    return s;
}

/* Returns the floats of all panels. */
static int64_t gckpti_sequence_panels(const gckpti_sequence *s)
{
    return s->fast ? s->terms * gckpti_ceil_to(s->columns, GCKPTI_PANEL) : 0;
}

/* Returns floats of workspace. A fast backward also keeps h before each step. */
static int64_t gckpti_sequence_workspace(const gckpt_call *call, int backward)
{
    const gckpti_sequence s = gckpti_sequence_of(call, !gckpti_is_plain(call), backward);
    const int64_t panels = gckpti_sequence_panels(&s);
    if (!backward)
        return panels + s.block * (s.state + s.gates);
    if (gckpti_is_plain(call))
        return s.steps * s.gates + s.state + s.units;
    return panels + s.block * (s.steps * (s.gates + s.units) + s.state) + s.units +
           call->threads * gckpti_product_workspace(s.units, s.gates, s.block * s.steps);
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
        const gckpt_shape *expected = i == o->bias ? &bias : &state;
        if (!gckpti_same_shape(&call->in[i].shape, expected))
            return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x wx %S and wh %S need %s %S, not %S", name,
                              p, wh, i == o->bias ? "a bias" : "a first state", expected,
                              &call->in[i].shape);
    }
    gckpti_sequence s = gckpti_sequence_of(call, 0, 0);
    call->shape = *p;
    call->shape.d[2] = s.state;
    call->saved_bytes = (size_t)(s.rows * s.steps) * (size_t)s.units * 4 * sizeof(float);
    call->workspace_forward = (size_t)gckpti_sequence_workspace(call, 0) * sizeof(float);
    call->workspace_backward = (size_t)gckpti_sequence_workspace(call, 1) * sizeof(float);
    return GCKPT_OK;
}

static uint64_t gckpti_recurrent_flops(const gckpt_call *call)
{
    uint64_t gates = (uint64_t)gckpti_elements(&call->in[0].shape);
    return gates * (2 * (uint64_t)call->in[1].shape.d[0] + 20);
}

/* The chains of D are always computed, those of dwh only if that gradient is required. */
static uint64_t gckpti_recurrent_flops_backward(const gckpt_call *call)
{
    return gckpti_recurrent_flops(call) * (call->in[1].grad ? 2 : 1);
}

/* Computes the chains of an item's rows; kernels read panels of b in place. */
static void gckpti_cells_product(const gckpti_sequence *s, const gckpti_product *t)
{
#if GCKPTI_HAS_FAST
    float pack[GCKPTI_STACK_FLOATS] GCKPTI_ALIGNED;
    for (int64_t j = 0; s->fast && j < t->n; j += GCKPTI_PANEL) {
        gckpti_product u = *t;
        const gckpti_c_block all = { 0, t->m, 0, gckpti_min(t->n - j, GCKPTI_PANEL), 0, 0 };
        u.b = gckpti_matrix(s->panels + j * t->k, 1, GCKPTI_PANEL);
        u.c += j, u.n = all.j1, u.initial = t->initial ? t->initial + j : NULL;
        gckpti_kernels_of(s->call)->product_block(&u, &all, pack, GCKPTI_STACK_FLOATS);
    }
    if (s->fast)
        return;
#endif
    gckpti_fp32_plain(s->call, t);
}

/* Sets a to chains of h wh for m rows; p points to the first of them, which are T steps apart. */
static void gckpti_cells_forward(const gckpti_sequence *s, const float *p, int64_t m,
                                 const float *state, float *a)
{
    gckpti_product t = gckpti_product_of(m, s->gates, s->units, gckpti_matrix(state, s->state, 1),
                                         gckpti_matrix(s->wh->data, 1, s->gates), a);
    t.initial = s->bias ? s->bias->data : NULL;
    if (s->state > s->units) /* lstm */
        t.initial = p, t.initial_stride = s->steps * s->gates;
    gckpti_cells_product(s, &t);
}

/* Adds chains of da wh to d for m rows; da points to the first of them, which are T steps apart. */
static void gckpti_cells_backward(const gckpti_sequence *s, const float *da, int64_t m, float *d)
{
    gckpti_product t =
        gckpti_product_of(m, s->units, s->gates, gckpti_matrix(da, s->steps * s->gates, 1),
                          gckpti_matrix(s->wh->data, s->gates, 1), d);
    t.accumulate = 1, t.c_stride = s->state;
    gckpti_cells_product(s, &t);
}

static int64_t gckpti_sequence_item_rows(const gckpti_sequence *s, int64_t i)
{
    return GCKPTI_HAS_FAST ? gckpti_min(s->block - i * s->item_rows, s->item_rows) : 1;
}

static void gckpti_sequence_forward(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t at = i * s->item_rows, first = s->first + at, n = s->units;
    const int64_t m = gckpti_sequence_item_rows(s, i);
    const size_t bytes = (size_t)n * sizeof(float);
    float *state = s->scratch + worker * s->item_rows * (s->state + s->gates);
    float *a = state + s->item_rows * s->state;
    gckpti_zero_unless(state, m * s->state, 0);
    for (int64_t r = 0; s->h0 && r < m; r++) {
        memcpy(state + r * s->state, s->h0->data + (first + r) * n, bytes);
        if (s->c0)
            memcpy(state + r * s->state + n, s->c0->data + (first + r) * n, bytes);
    }
    for (int64_t t = 0; t < s->steps; t++) {
        gckpti_cells_forward(s, s->p->data + (first * s->steps + t) * s->gates, m, state, a);
        for (int64_t r = 0; r < m; r++) {
            const int64_t step = (first + r) * s->steps + t;
            gckpti_cell cell;
            memset(&cell, 0, sizeof cell);
            cell.units = n;
            cell.p = s->p->data + step * s->gates;
            cell.a = a + r * s->gates;
            cell.state[0] = state + r * s->state, cell.state[1] = cell.state[0] + n;
            cell.saved = s->call->saved ? (float *)s->call->saved + step * 4 * n : NULL;
            s->cell(&cell);
            if (s->call->out)
                memcpy(s->call->out + step * s->state, cell.state[0],
                       (size_t)s->state * sizeof(float));
        }
    }
}

/* Returns h (if c is 0) or c (if c is 1) of row b before step t. */
static const float *gckpti_sequence_previous(const gckpti_sequence *s, int c, int64_t b, int64_t t)
{
    const gckpt_arg *initial = c ? s->c0 : s->h0;
    if (t)
        return s->call->out + (b * s->steps + t - 1) * s->state + c * s->units;
    return initial ? initial->data + b * s->units : s->zero;
}

/* Computes the backward of item i, except dwh and dbias. */
static void gckpti_sequence_backward(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t at = i * s->item_rows, m = gckpti_sequence_item_rows(s, i), n = s->units;
    float *d = s->d + at * s->state;
    (void)worker;
    gckpti_zero_unless(d, m * s->state, 0);
    for (int64_t t = s->steps; t-- > 0;) {
        for (int64_t r = 0; r < m; r++) {
            const int64_t b = s->first + at + r, step = b * s->steps + t;
            gckpti_cell cell;
            memset(&cell, 0, sizeof cell);
            cell.units = n;
            cell.g = s->call->grad_out + step * s->state;
            cell.out = s->call->out + step * s->state;
            cell.h = gckpti_sequence_previous(s, 0, b, t);
            cell.c = gckpti_sequence_previous(s, 1, b, t);
            cell.saved = (float *)s->call->saved + step * 4 * n;
            cell.d[0] = d + r * s->state, cell.d[1] = cell.d[0] + n;
            cell.da = s->da + ((at + r) * s->steps + t) * s->gates;
            cell.dp = s->p->grad ? s->p->grad + step * s->gates : NULL;
            cell.accumulate = s->p->accumulate;
            s->cell(&cell);
            if (GCKPTI_HAS_FAST && s->fast)
                memcpy(s->h + ((at + r) * s->steps + t) * n, cell.h, (size_t)n * sizeof(float));
        }
        gckpti_cells_backward(s, s->da + (at * s->steps + t) * s->gates, m, d);
    }
    for (int64_t r = 0; r < m; r++, d += s->state)
        for (int c = 0; c < 2; c++) {
            const gckpt_arg *initial = c ? s->c0 : s->h0;
            for (int64_t j = 0; initial && initial->grad && j < n; j++)
                gckpti_put(&initial->grad[(s->first + at + r) * n + j], d[c * n + j],
                           initial->accumulate);
        }
}

/* Writes panel i. */
static void gckpti_sequence_panel(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t at = i * GCKPTI_PANEL, n = gckpti_min(s->columns - at, GCKPTI_PANEL);
    const int64_t row = s->backward ? 1 : s->gates, column = s->backward ? s->gates : 1;
    float *panel = s->panels + at * s->terms;
    (void)worker;
    for (int64_t k = 0; k < s->terms; k++)
        for (int64_t j = 0; j < n; j++)
            panel[k * GCKPTI_PANEL + j] = s->wh->data[k * row + (at + j) * column];
}

/* Adds the gradients of a block's rows to dwh and dbias. */
static void gckpti_cells_add_grads(const gckpti_sequence *s)
{
    const float *da = s->da;
#if GCKPTI_HAS_FAST
    if (s->fast) {
        const int64_t terms = s->block * s->steps;
        gckpti_product product =
            gckpti_product_of(s->units, s->gates, terms, gckpti_matrix(s->h, 1, s->units),
                              gckpti_matrix(da, 1, s->gates), s->wh->grad);
        product.accumulate = 1, product.workspace = s->pack;
        gckpt_call sums = *s->call;
        sums.shape = gckpt_shape2(terms, s->gates);
        sums.grad_out = da;
        if (product.c)
            gckpti_kernels_of(s->call)->product(s->call, &product);
        if (s->bias) {
            sums.in[0] = *s->bias;
            sums.in[0].accumulate = 1;
            sums.in[1] = sums.in[0];
            gckpti_run_column_sums(&sums, 0, 1);
        }
        return;
    }
#endif
    for (int64_t t = 0; t < s->steps; t++, da += s->gates) {
        const float *h = gckpti_sequence_previous(s, 0, s->first, t);
        for (int64_t k = 0; s->wh->grad && k < s->units; k++)
            gckpti_axpy(h[k], da, s->gates, s->wh->grad + k * s->gates);
        for (int64_t j = 0; s->bias && s->bias->grad && j < s->gates; j++)
            gckpti_add_to_grad(s->bias, j, da[j]);
    }
}

static void gckpti_run_sequence(const gckpt_call *call, int backward, gckpti_cell_fn cell)
{
    const int fast = GCKPTI_HAS_FAST && call->kernels;
    gckpti_sequence s = gckpti_sequence_of(call, fast, backward);
    const int64_t most = backward || !fast ? s.block : s.rows;
    void (*item)(void *context, int64_t i, int64_t worker) =
        backward ? gckpti_sequence_backward : gckpti_sequence_forward;
    s.cell = cell;
    s.panels = (float *)call->workspace;
    s.zero = s.scratch = s.panels + gckpti_sequence_panels(&s);
    if (fast)
        gckpt_parallel(call, (s.columns - 1) / GCKPTI_PANEL + 1, s.terms * GCKPTI_PANEL,
                       gckpti_sequence_panel, &s);
    if (backward) {
        s.d = s.zero + s.units;
        s.h = s.d + most * s.state;
        s.da = s.h + fast * most * s.steps * s.units;
        s.pack = s.da + most * s.steps * s.gates;
        gckpti_zero_unless(s.zero, s.units, 0);
        gckpti_zero_gradients(call, 1, s.bias ? 3 : 2);
    }
    for (; s.first < s.rows; s.first += s.block) {
        s.block = gckpti_min(s.rows - s.first, most);
        if (fast)
            gckpt_parallel(call, (s.block - 1) / s.item_rows + 1,
                           s.item_rows * s.steps * s.units * s.gates, item, &s);
        else
            item(&s, 0, 0);
        if (backward)
            gckpti_cells_add_grads(&s);
    }
}

#define GCKPTI_CELLS(name)                                                                         \
    GCKPTI_OP_KERNELS(                                                                             \
        name, gckpti_run_sequence(call, backward,                                                  \
                                  backward ? GCKPTI_KERNEL_OF(call, recurrent->name##_gate_grads,  \
                                                              gckpti_##name##_gate_grads)          \
                                           : GCKPTI_KERNEL_OF(call, recurrent->name##_gates,       \
                                                              gckpti_##name##_gates)))
GCKPTI_CELLS(gru)
GCKPTI_CELLS(lstm)
#undef GCKPTI_CELLS

/* The data that each gradient reads. gru's in[2] is bh or h0; only bh's gradient has GCKPT_SUMS. */
#define GCKPTI_READS GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_IN(3) | GCKPT_OUT | GCKPT_SAVED
GCKPTI_DESC_WITH(gru, gckpti_recurrent_shape, gckpti_recurrent_flops,
                 gckpti_recurrent_flops_backward, NULL, 0, GCKPTI_READS, GCKPTI_READS,
                 GCKPTI_READS | GCKPT_SUMS, GCKPTI_READS);
GCKPTI_DESC_WITH(lstm, gckpti_recurrent_shape, gckpti_recurrent_flops,
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
                           "lstm: %s %T without %s: give both, or none for zeros", h0 ? "h0" : "c0",
                           in[2], h0 ? "c0" : "h0");
    return gckpt_apply(&gckpti_op_lstm, in, h0 ? 4 : 2, &o, sizeof o);
}
#endif
