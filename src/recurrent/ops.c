#include "recurrent/recurrent.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: inputs p (B,T,G), which is x wx + bias of a linear op, wh (H,G), bias (G) or
 * none, h0 [, c0] (B,H) or none for 0, lengths (B) or none; output of gru, G = 3H: h (B,T,H); of
 * lstm, G = 4H: h, c (B,T,2H).
 * For each row b, t ascending, h and c being those of t - 1, a = chains of h wh over H:
 *   gru   a from the bias, or +0;  r = sigmoid(p_r + a_r), z = sigmoid(p_z + a_z),
 *         n = tanh(fma(r, a_n, p_n)), h = fma(z, h - n, n)
 *   gru_reset_before  the same, but a_n = chains of (r h) wh, n = tanh(p_n + a_n)
 *   lstm  a from p;  i, f, o = sigmoid(a), g = tanh(a), c = fma(f, c, i g), h = o tanh(c)
 * saved (B,T,4H): r, z, n, a_n (r h in gru_reset_before), or i, f, g, o. Backward, t descending; u
 * [, e] is grad_out of h [, c], D [, E] the gradient that t + 1 adds to u [, e], at first +0. "q: x
 * by y" is da_q = x y, rounded, dp_q = put(x, y). Derivatives: s' = fma(-s, s, s) of sigmoid, n' =
 * fma(-n, n, 1) of tanh.
 *   gru   U = u + D;  n: U (1 - z) by n';  r: da_n a_n by r';  z: U (h - n) by z';  then da_n times
 *         r, rounded;  D = chains of da wh over G, from U z
 *   gru_reset_before  U = u + D;  n: U (1 - z) by n';  z: U (h - n) by z';  e = chains of da_n wh
 *         over H from +0;  r: e h by r';  D = chains of da_r, da_z and wh over 2H, from fma(e, r, U
 *         z);  dwh_n: chains of r h and da_n
 *   lstm  U = u + D, t = tanh(c), C = fma(U o, t', E) + e;  i: C g by i';  f: C times c of t - 1 by
 *         f';  g: C i by g';  o: U t by o';  E = C f, D = chains of da wh over G, from +0
 * At the end dh0 = D, dc0 = E, put. Then, b and t ascending, dwh: chains of h da; dbias sums da,
 * compensated. Steps from a row's length on give +0: the output, saved, what is put to dp, D and E;
 * dwh and dbias add their h and da, +0. Cho 2014; Hochreiter & Schmidhuber 1997, with the forget
 * gate of Gers 2000. */

/* Returns the state of a call whose items have one row, or, if `fast`, several. before: nonzero for
 * gru_reset_before. */
static gckpti_sequence gckpti_sequence_of(const gckpt_call *call, int fast, int backward,
                                          int before)
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
    s.lengths = o->lengths ? in[o->lengths].index : NULL;
    s.before = before, s.split = before ? 2 * s.units : s.gates;
    s.item_rows = s.block = 1, s.fast = fast, s.backward = backward;
    s.terms = backward ? s.gates : s.units, s.columns = backward ? s.units : s.gates;
    if (fast) {
        s.item_rows = gckpti_min((s.rows - 1) / call->threads + 1, GCKPTI_CELL_ROWS);
        s.block = s.item_rows * gckpti_min((s.rows - 1) / s.item_rows + 1, call->threads);
    }
    return s;
}

/* Returns the columns of all panels; forward, the gates from `split` on begin a panel. */
static int64_t gckpti_sequence_columns(const gckpti_sequence *s)
{
    const int64_t first = s->backward ? s->columns : s->split;
    return gckpti_ceil_to(first, GCKPTI_PANEL) + gckpti_ceil_to(s->columns - first, GCKPTI_PANEL);
}
static int64_t gckpti_sequence_panels(const gckpti_sequence *s)
{
    return s->fast ? s->terms * gckpti_sequence_columns(s) : 0;
}

/* Returns floats of workspace. A fast backward also keeps h before each step. */
static int64_t gckpti_sequence_workspace(const gckpt_call *call, int backward, int before)
{
    const gckpti_sequence s = gckpti_sequence_of(call, !gckpti_is_plain(call), backward, before);
    const int64_t panels = gckpti_sequence_panels(&s);
    if (!backward)
        return panels + s.block * (s.state + s.gates);
    if (gckpti_is_plain(call))
        return s.steps * s.gates + s.state + s.units;
    return panels + s.block * (s.steps * (s.gates + s.units) + s.state) + s.units +
           call->threads * gckpti_product_workspace(s.units, s.gates, s.block * s.steps);
}

static gckpt_result gckpti_sequence_shape(gckpt_call *call, int before)
{
    const gckpti_recurrent *o = (const gckpti_recurrent *)call->attributes;
    const gckpt_shape *p = &call->in[0].shape, *wh = &call->in[1].shape;
    const char *name = o->gates == 3 ? "gru" : "lstm";
    if (p->n != 3 || wh->n != 2 || wh->d[1] != p->d[2] || wh->d[1] / o->gates != wh->d[0] ||
        wh->d[1] % o->gates)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "%s: x wx %S and wh %S must be (B,T,%iH) and (H,%iH)", name, p, wh,
                          o->gates, o->gates);
    const gckpt_shape state = gckpt_shape2(p->d[0], wh->d[0]), bias = gckpt_shape1(p->d[2]),
                      rows = gckpt_shape1(p->d[0]);
    for (int i = 2; i < call->inputs; i++) {
        const gckpt_shape *expected = i == o->bias ? &bias : i == o->lengths ? &rows : &state;
        if (!gckpti_same_shape(&call->in[i].shape, expected))
            return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x wx %S and wh %S need %s %S, not %S", name,
                              p, wh,
                              i == o->bias      ? "a bias"
                              : i == o->lengths ? "lengths"
                                                : "a first state",
                              expected, &call->in[i].shape);
    }
    const gckpti_sequence s = gckpti_sequence_of(call, 0, 0, before);
    call->shape = *p;
    call->shape.d[2] = s.state;
    call->saved_bytes = (size_t)(s.rows * s.steps) * (size_t)s.units * 4 * sizeof(float);
    call->workspace_forward = (size_t)gckpti_sequence_workspace(call, 0, before) * sizeof(float);
    call->workspace_backward = (size_t)gckpti_sequence_workspace(call, 1, before) * sizeof(float);
    return GCKPT_OK;
}
static gckpt_result gckpti_recurrent_shape(gckpt_call *call)
{
    return gckpti_sequence_shape(call, 0);
}
static gckpt_result gckpti_reset_before_shape(gckpt_call *call)
{
    return gckpti_sequence_shape(call, 1);
}

/* Returns 1 + T, if input i is the lengths. */
static int64_t gckpti_recurrent_lengths(const gckpt_call *call, int i)
{
    (void)i;
    return call->in[0].shape.d[1] + 1;
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

GCKPTI_FN void gckpti_cells_product(const gckpti_sequence *s, const gckpti_product *t,
                                    const float *panels)
{
#if GCKPTI_HAS_FAST
    float pack[GCKPTI_STACK_FLOATS] GCKPTI_ALIGNED;
    for (int64_t j = 0; s->fast && j < t->n; j += GCKPTI_PANEL) {
        gckpti_product u = *t;
        const gckpti_c_block all = { 0, t->m, 0, gckpti_min(t->n - j, GCKPTI_PANEL), 0, 0 };
        u.b = gckpti_matrix(panels + j * s->terms, 1, GCKPTI_PANEL);
        u.c += j, u.n = all.j1, u.initial = t->initial ? t->initial + j : NULL;
        gckpti_kernels_of(s->call)->product_block(&u, &all, pack, GCKPTI_STACK_FLOATS);
    }
    if (s->fast)
        return;
#endif
    gckpti_fp32_plain(s->call, t);
}

/* Sets a part's gates of a to chains of h wh, or of (r h) wh, for m rows; p points to the first of
 * them, which are T steps apart. */
static void gckpti_cells_forward(const gckpti_sequence *s, int part, const float *p, int64_t m,
                                 const float *state, float *a)
{
    const int64_t first = part ? s->split : 0, n = part ? s->gates - first : s->split;
    gckpti_product t = gckpti_product_of(
        m, n, s->units, part ? gckpti_matrix(a, s->gates, 1) : gckpti_matrix(state, s->state, 1),
        gckpti_matrix(s->wh->data + first, 1, s->gates), a + first);
    t.c_stride = s->gates;
    t.initial = s->bias ? s->bias->data + first : NULL;
    if (s->state > s->units) /* lstm */
        t.initial = p, t.initial_stride = s->steps * s->gates;
    gckpti_cells_product(s, &t, s->panels + gckpti_ceil_to(first, GCKPTI_PANEL) * s->terms);
}

/* Runs a part of the forward of step t of row b, whose state and chains are given. */
static void gckpti_cell_forward(const gckpti_sequence *s, int part, int64_t b, int64_t t,
                                float *state, float *a)
{
    const int64_t step = b * s->steps + t, n = s->units;
    gckpti_cell cell;
    memset(&cell, 0, sizeof cell);
    cell.units = n;
    cell.p = s->p->data + step * s->gates;
    cell.a = a;
    cell.state[0] = state, cell.state[1] = state + n;
    cell.saved = s->call->saved ? (float *)s->call->saved + step * 4 * n : NULL;
    s->cell[part](&cell);
    if (s->call->out && part == s->before)
        memcpy(s->call->out + step * s->state, state, (size_t)s->state * sizeof(float));
}

/* Zeroes the results of row b from its length on. */
static void gckpti_sequence_pad(const gckpti_sequence *s, int64_t b)
{
    const int64_t length = gckpti_sequence_length(s, b), n = s->steps - length;
    float *saved = (float *)s->call->saved;
    if (s->call->out)
        gckpti_zero_unless(s->call->out + (b * s->steps + length) * s->state, n * s->state, 0);
    if (saved)
        gckpti_zero_unless(saved + (b * s->steps + length) * 4 * s->units, n * 4 * s->units, 0);
}

static void gckpti_sequence_forward(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t at = i * s->item_rows, first = s->first + at, n = s->units;
    const int64_t m = gckpti_sequence_item_rows(s, i);
    const int64_t longest = gckpti_sequence_longest(s, first, m);
    const size_t bytes = (size_t)n * sizeof(float);
    float *state = s->scratch + worker * s->item_rows * (s->state + s->gates);
    float *a = state + s->item_rows * s->state;
    gckpti_zero_unless(state, m * s->state, 0);
    for (int64_t r = 0; s->h0 && r < m; r++) {
        memcpy(state + r * s->state, s->h0->data + (first + r) * n, bytes);
        if (s->c0)
            memcpy(state + r * s->state + n, s->c0->data + (first + r) * n, bytes);
    }
    for (int64_t t = 0; t < longest; t++)
        for (int part = 0; part <= s->before; part++) {
            gckpti_cells_forward(s, part, s->p->data + (first * s->steps + t) * s->gates, m, state,
                                 a);
            for (int64_t r = 0; r < m; r++)
                if (t < gckpti_sequence_length(s, first + r))
                    gckpti_cell_forward(s, part, first + r, t, state + r * s->state,
                                        a + r * s->gates);
        }
    for (int64_t r = 0; s->lengths && r < m; r++)
        gckpti_sequence_pad(s, first + r);
}

/* Writes panel i. */
static void gckpti_sequence_panel(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t first = s->backward ? s->columns : s->split, place = i * GCKPTI_PANEL;
    const int64_t at = place < first ? place : place - gckpti_ceil_to(first, GCKPTI_PANEL) + first;
    const int64_t n = gckpti_min((place < first ? first : s->columns) - at, GCKPTI_PANEL);
    const int64_t row = s->backward ? 1 : s->gates, column = s->backward ? s->gates : 1;
    float *panel = s->panels + place * s->terms;
    (void)worker;
    for (int64_t k = 0; k < s->terms; k++)
        for (int64_t j = 0; j < n; j++)
            panel[k * GCKPTI_PANEL + j] = s->wh->data[k * row + (at + j) * column];
}

/* Runs a call by `cell` and, for gru_reset_before, `second`. */
static void gckpti_run_sequence(const gckpt_call *call, int backward, gckpti_cell_fn cell,
                                gckpti_cell_fn second)
{
    const int fast = GCKPTI_HAS_FAST && call->kernels;
    gckpti_sequence s = gckpti_sequence_of(call, fast, backward, second != NULL);
    const int64_t most = backward || !fast ? s.block : s.rows;
    void (*item)(void *context, int64_t i, int64_t worker) =
        backward ? gckpti_sequence_backward : gckpti_sequence_forward;
    s.cell[0] = cell, s.cell[1] = second;
    s.panels = (float *)call->workspace;
    s.zero = s.scratch = s.panels + gckpti_sequence_panels(&s);
    if (fast)
        gckpt_parallel(call, gckpti_sequence_columns(&s) / GCKPTI_PANEL, s.terms * GCKPTI_PANEL,
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
            gckpti_sequence_add_grads(&s);
    }
}

#define GCKPTI_CELL(name) GCKPTI_KERNEL_OF(call, recurrent->name, gckpti_##name)
GCKPTI_OP_KERNELS(gru, gckpti_run_sequence(call, backward,
                                           backward ? GCKPTI_CELL(gru_gate_grads)
                                                    : GCKPTI_CELL(gru_gates),
                                           NULL))
GCKPTI_OP_KERNELS(gru_reset_before, gckpti_run_sequence(call, backward,
                                                        backward ? GCKPTI_CELL(new_gate_grads)
                                                                 : GCKPTI_CELL(reset_gates),
                                                        backward ? GCKPTI_CELL(reset_gate_grads)
                                                                 : GCKPTI_CELL(new_gates)))
GCKPTI_OP_KERNELS(lstm, gckpti_run_sequence(call, backward,
                                            backward ? GCKPTI_CELL(lstm_gate_grads)
                                                     : GCKPTI_CELL(lstm_gates),
                                            NULL))
#undef GCKPTI_CELL

/* The data that each gradient reads. gru's in[2] is bh, h0 or the lengths; only bh's gradient has
 * GCKPT_SUMS. Lengths are i32 and the last input. */
#define GCKPTI_READS GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_IN(3) | GCKPT_OUT | GCKPT_SAVED
#define GCKPTI_RECURRENT_DESC(name, shape, bias)                                                   \
    GCKPTI_DESC_WITH(name, shape, gckpti_recurrent_flops, gckpti_recurrent_flops_backward,         \
                     gckpti_recurrent_lengths, 0, GCKPTI_READS, GCKPTI_READS,                      \
                     GCKPTI_READS | GCKPTI_ANY_TYPE | (bias), GCKPTI_READS | GCKPTI_ANY_TYPE,      \
                     GCKPTI_ANY_TYPE)
GCKPTI_RECURRENT_DESC(gru, gckpti_recurrent_shape, GCKPT_SUMS);
GCKPTI_RECURRENT_DESC(gru_reset_before, gckpti_reset_before_shape, GCKPT_SUMS);
GCKPTI_RECURRENT_DESC(lstm, gckpti_recurrent_shape, 0);
#undef GCKPTI_RECURRENT_DESC
#undef GCKPTI_READS

/* Adds an op to the graph. in: x wx + bias, wh and, if `bias`, a bias; then come desc's tensors. */
static gckpt_tensor *gckpti_recurrent_new(const gckpt_op *op, int gates, gckpt_tensor **in,
                                          int bias, const gckpt_recurrent_desc *desc)
{
    const gckpt_recurrent_desc none = { NULL, NULL, NULL, 0 }, *d = desc ? desc : &none;
    gckpti_recurrent o = { gates, bias ? 2 : 0, 0, 0 };
    int n = bias ? 3 : 2;
    if (!in[0])
        return NULL;
    if (gates == 3 ? d->c0 != NULL : !d->h0 != !d->c0)
        return gckpti_fail(in[0]->graph, GCKPT_E_ARG,
                           gates == 3 ? "gru: c0 must be NULL: only an lstm has cells"
                                      : "lstm: %s without %s: give both, or none for zeros",
                           d->h0 ? "h0" : "c0", d->h0 ? "c0" : "h0");
    if (gates == 4 && d->reset_before)
        return gckpti_fail(in[0]->graph, GCKPT_E_ARG,
                           "lstm: reset_before is %i, but only a gru has a reset gate: leave it 0",
                           d->reset_before);
    if (d->h0)
        o.state = n, in[n++] = d->h0;
    if (d->c0)
        in[n++] = d->c0;
    for (int i = 2; i < n; i++)
        if (in[i]->type != GCKPT_F32)
            return gckpti_fail(in[0]->graph, GCKPT_E_ARG,
                               "%s: %T must be f32: declare and feed it as floats", op->name,
                               in[i]);
    if (d->lengths && d->lengths->type != GCKPT_I32)
        return gckpti_fail(in[0]->graph, GCKPT_E_ARG,
                           "%s: the lengths %T must be i32: declare and feed them as int32_t",
                           op->name, d->lengths);
    if (d->lengths)
        o.lengths = n, in[n++] = d->lengths;
    return gckpt_apply(op, in, n, &o, o.lengths ? sizeof o : offsetof(gckpti_recurrent, lengths));
}

GCKPT_API gckpt_tensor *gckpt_gru(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *bx,
                                  gckpt_tensor *wh, gckpt_tensor *bh,
                                  const gckpt_recurrent_desc *desc)
{
    gckpt_tensor *in[5] = { gckpt_linear(x, wx, bx), wh, bh };
    return gckpti_recurrent_new(desc && desc->reset_before ? &gckpti_op_gru_reset_before
                                                           : &gckpti_op_gru,
                                3, in, bh != NULL, desc);
}

GCKPT_API gckpt_tensor *gckpt_lstm(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *wh,
                                   gckpt_tensor *bias, const gckpt_recurrent_desc *desc)
{
    gckpt_tensor *in[5] = { gckpt_linear(x, wx, bias), wh };
    return gckpti_recurrent_new(&gckpti_op_lstm, 4, in, 0, desc);
}
#endif
