#include "recurrent/recurrent.h"
#include "ops/internal.h"

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
 * compensated. Steps from a row's length on give +0: the output, saved, the put to dp, D and E;
 * dwh and dbias add their h and da, +0. Cho 2014; Hochreiter & Schmidhuber 1997, with the forget
 * gate of Gers 2000. */

/* Returns the state of a call whose items have one row, or, if `fast`, several. */
static gckpti_sequence gckpti_sequence_of(const gckpt_call *call, int fast, int backward)
{
    const gckpti_recurrent *o = (const gckpti_recurrent *)call->attributes;
    const gckpt_arg *in = call->in;
    const int64_t *d = in[0].shape.d;
    gckpti_sequence s;
    memset(&s, 0, sizeof s);
    s.call = call, s.product = gckpti_fp32_plain;
    s.rows = d[0], s.steps = d[1], s.gates = d[2], s.units = d[2] / o->gates;
    s.state = o->gates == 4 ? 2 * s.units : s.units;
    s.p = in, s.wh = in + 1;
    s.bias = o->bias ? in + o->bias : NULL;
    for (int c = 0; o->state && c * s.units < s.state; c++)
        s.initial[c] = in + o->state + c;
    s.lengths = o->lengths ? in[o->lengths].index : NULL;
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

/* Return how many steps row b, or the longest of m rows, has. */
static int64_t gckpti_sequence_length(const gckpti_sequence *s, int64_t b)
{
    return s->lengths ? s->lengths[b] : s->steps;
}
static int64_t gckpti_sequence_longest(const gckpti_sequence *s, int64_t first, int64_t m)
{
    int64_t most = s->lengths ? 0 : s->steps;
    for (int64_t b = first; s->lengths && b < first + m; b++)
        most = s->lengths[b] > most ? s->lengths[b] : most;
    return most;
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
    const gckpti_sequence s = gckpti_sequence_of(call, 0, 0);
    call->shape = *p;
    call->shape.d[2] = s.state;
    call->saved_bytes = (size_t)(s.rows * s.steps) * (size_t)s.units * 4 * sizeof(float);
    call->workspace_forward = (size_t)gckpti_sequence_workspace(call, 0) * sizeof(float);
    call->workspace_backward = (size_t)gckpti_sequence_workspace(call, 1) * sizeof(float);
    return GCKPT_OK;
}

/* Returns 1 + T, if input i is the lengths. */
static int64_t gckpti_recurrent_lengths(const gckpt_call *call, int i)
{
    return (void)i, call->in[0].shape.d[1] + 1;
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

/* Computes chains of an item; kernels read panels of b in place, from a column and a term on. */
static void gckpti_cells_product(const gckpti_sequence *s, gckpti_product *t, int64_t column,
                                 int64_t term)
{
#if GCKPTI_HAS_FAST
    float pack[GCKPTI_STACK_FLOATS] GCKPTI_ALIGNED;
    for (int64_t end = column + t->n, at; s->fast && column < end; column += t->n) {
        at = column % GCKPTI_PANEL, t->n = gckpti_min(end - column, GCKPTI_PANEL - at);
        const gckpti_c_block all = { 0, t->m, 0, t->n, 0 };
        t->b.f32 = s->panels + (column - at) * s->terms + term * GCKPTI_PANEL + at;
        t->b.stride = 1, t->b.k_stride = GCKPTI_PANEL;
        gckpti_kernels_of(s->call)->product_block(t, &all, pack, GCKPTI_STACK_FLOATS);
        t->c += t->n, t->initial += t->initial ? t->n : 0;
    }
    if (s->fast)
        return;
#endif
    (void)column, (void)term;
    s->product(s->call, t);
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
    gckpti_cells_product(s, &t, first, 0);
}

/* Adds chains of da wh over the gates before `split` to d for m rows; da points to the first of
 * them, which are T steps apart. If `reset`, sets da_r to chains over the other gates. */
static void gckpti_cells_backward(const gckpti_sequence *s, int reset, float *da, int64_t m,
                                  float *d)
{
    const int64_t row = s->steps * s->gates, at = reset ? s->split : 0;
    gckpti_product t = gckpti_product_of(
        m, s->units, reset ? s->gates - at : s->split, gckpti_matrix(da + at, row, 1),
        gckpti_matrix(s->wh->data + at, s->gates, 1), reset ? da : d);
    t.accumulate = !reset, t.c_stride = reset ? row : s->state;
    gckpti_cells_product(s, &t, 0, at);
}

static int64_t gckpti_sequence_item_rows(const gckpti_sequence *s, int64_t i)
{
    return GCKPTI_HAS_FAST ? gckpti_min(s->block - i * s->item_rows, s->item_rows) : 1;
}

/* Zeroes row `row` of x (..,T,n), if x is not NULL, from the length of row b of the batch on. */
static void gckpti_sequence_pad(const gckpti_sequence *s, int64_t b, float *x, int64_t row,
                                int64_t n)
{
    const int64_t length = gckpti_sequence_length(s, b);
    if (x && s->lengths)
        gckpti_zero_unless(x + (row * s->steps + length) * n, (s->steps - length) * n, 0);
}

static void gckpti_sequence_forward(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t first = s->first + i * s->item_rows, m = gckpti_sequence_item_rows(s, i);
    const int64_t longest = gckpti_sequence_longest(s, first, m), n = s->units;
    float *state = s->scratch + worker * s->item_rows * (s->state + s->gates);
    float *a = state + s->item_rows * s->state, *saved = (float *)s->call->saved;
    gckpti_zero_unless(state, m * s->state, 0);
    for (int64_t r = 0; r < m; r++)
        for (int c = 0; c < 2 && s->initial[c]; c++)
            memcpy(state + r * s->state + c * n, s->initial[c]->data + (first + r) * n,
                   (size_t)n * sizeof(float));
    gckpti_cell cell;
    memset(&cell, 0, sizeof cell);
    cell.units = n;
    for (int64_t t = 0, part = 0; t < longest; t += part == s->before, part = part < s->before) {
        gckpti_cells_forward(s, (int)part, s->p->data + (first * s->steps + t) * s->gates, m, state,
                             a);
        for (int64_t r = 0; r < m; r++) {
            const int64_t step = (first + r) * s->steps + t;
            if (t >= gckpti_sequence_length(s, first + r))
                continue;
            cell.p = s->p->data + step * s->gates, cell.a = a + r * s->gates;
            cell.state[0] = state + r * s->state, cell.state[1] = cell.state[0] + n;
            cell.saved = saved ? saved + step * 4 * n : NULL;
            s->cell[part](&cell);
            if (s->call->out && part == s->before)
                memcpy(s->call->out + step * s->state, cell.state[0],
                       (size_t)s->state * sizeof(float));
        }
    }
    for (int64_t b = first; b < first + m; b++) {
        gckpti_sequence_pad(s, b, s->call->out, b, s->state);
        gckpti_sequence_pad(s, b, saved, b, 4 * n);
    }
}

/* Returns h (if c is 0) or c (if c is 1) of row b before step t; zeros from its length on. */
static const float *gckpti_sequence_previous(const gckpti_sequence *s, int c, int64_t b, int64_t t)
{
    const gckpt_arg *initial = s->initial[c];
    if (t >= gckpti_sequence_length(s, b))
        return s->zero;
    if (t)
        return s->call->out + (b * s->steps + t - 1) * s->state + c * s->units;
    return initial ? initial->data + b * s->units : s->zero;
}

/* Runs a part of the backward of step t of row `at` of the block. */
static void gckpti_cell_backward(const gckpti_sequence *s, int part, int64_t at, int64_t t)
{
    const int64_t b = s->first + at, step = b * s->steps + t, here = at * s->steps + t;
    const int64_t n = s->units;
    gckpti_cell cell;
    memset(&cell, 0, sizeof cell);
    cell.units = n;
    cell.g = s->call->grad_out + step * s->state;
    cell.out = s->call->out + step * s->state;
    cell.h = gckpti_sequence_previous(s, 0, b, t);
    cell.c = s->state > n ? gckpti_sequence_previous(s, 1, b, t) : NULL; /* lstm */
    cell.saved = (float *)s->call->saved + step * 4 * n;
    cell.d[0] = s->d + at * s->state, cell.d[1] = cell.d[0] + n;
    cell.da = s->da + here * s->gates;
    cell.dp = s->p->grad ? s->p->grad + step * s->gates : NULL;
    cell.accumulate = s->p->accumulate;
    s->cell[part](&cell);
    if (GCKPTI_HAS_FAST && s->fast)
        memcpy(s->h + here * n, cell.h, (size_t)n * sizeof(float));
}

/* Computes the backward of item i, except dwh and dbias. */
static void gckpti_sequence_backward(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t at = i * s->item_rows, first = s->first + at, n = s->units;
    const int64_t m = gckpti_sequence_item_rows(s, i);
    float *d = s->d + at * s->state;
    (void)worker;
    gckpti_zero_unless(d, m * s->state, 0);
    for (int64_t r = 0; r < m; r++) {
        gckpti_sequence_pad(s, first + r, s->da, at + r, s->gates);
        gckpti_sequence_pad(s, first + r, s->fast ? s->h : NULL, at + r, n);
        gckpti_sequence_pad(s, first + r, s->p->accumulate ? NULL : s->p->grad, first + r,
                            s->gates);
    }
    for (int64_t t = gckpti_sequence_longest(s, first, m); t-- > 0;) {
        float *da = s->da + (at * s->steps + t) * s->gates;
        for (int part = 0; part <= s->before; part++) {
            for (int64_t r = 0; r < m; r++)
                if (t < gckpti_sequence_length(s, first + r))
                    gckpti_cell_backward(s, part, at + r, t);
            gckpti_cells_backward(s, part < s->before, da, m, d);
        }
        for (int64_t r = 0; r < m; r++) /* not even NaN of wh reach the padding */
            if (t >= gckpti_sequence_length(s, first + r)) {
                gckpti_zero_unless(d + r * s->state, s->state, 0);
                gckpti_zero_unless(da + r * s->steps * s->gates, s->gates, 0);
            }
    }
    for (int64_t r = 0; r < m; r++, d += s->state)
        for (int c = 0; c < 2; c++) {
            const gckpt_arg *initial = s->initial[c];
            for (int64_t j = 0; initial && initial->grad && j < n; j++)
                gckpti_put(&initial->grad[(first + r) * n + j], d[c * n + j], initial->accumulate);
        }
}

static void gckpti_sequence_panel(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t at = i * GCKPTI_PANEL, n = gckpti_min(s->columns - at, GCKPTI_PANEL);
    const int64_t row = s->backward ? 1 : s->gates, column = s->backward ? s->gates : 1;
    float *panel = s->panels + at * s->terms;
    (void)worker;
    for (int64_t k = 0; k < s->terms; k++, panel += GCKPTI_PANEL) {
        const float *from = s->wh->data + k * row + at * column;
        if (column == 1)
            memcpy(panel, from, (size_t)n * sizeof *panel);
        for (int64_t j = 0; column != 1 && j < n; j++, from += column)
            panel[j] = *from;
    }
}

/* Adds the gradients of a block's rows to dwh and dbias. Plain kernels, whose block is one row,
 * read h where it is: in h0, in the output and, from the row's length on, in s->zero. */
static void gckpti_cells_add_grads(const gckpti_sequence *s)
{
    const int64_t n = s->units, all = s->block * s->steps;
    const int64_t length = gckpti_sequence_length(s, s->first);
    const int64_t reset = s->first * s->steps * 4 * n + 3 * n; /* r h, in saved */
    const float *da = s->da, *saved = (const float *)s->call->saved;
    for (int64_t t = 0, end; s->wh->grad && t < all; t = end) {
        const float *h = s->fast ? s->h : gckpti_sequence_previous(s, 0, s->first, t);
        const int64_t step = s->fast ? n : t < length ? s->state : 0;
        end = s->fast || (t && t >= length) ? all : t ? length : 1;
        for (int part = 0; part <= s->before; part++) {
            const int64_t first = part ? s->split : 0;
            gckpti_product product = gckpti_product_of(
                n, part ? n : s->split, end - t,
                part ? gckpti_matrix(saved + reset + 4 * n * t, 1, 4 * n)
                     : gckpti_matrix(h, 1, step),
                gckpti_matrix(da + t * s->gates + first, 1, s->gates), s->wh->grad + first);
            product.c_stride = s->gates, product.accumulate = 1, product.workspace = s->pack;
            GCKPTI_KERNEL_OF(s->call, product, gckpti_fp32_plain)(s->call, &product);
        }
    }
    if (GCKPTI_HAS_FAST && s->fast && s->bias) {
        gckpt_call sums = *s->call;
        sums.shape = gckpt_shape2(all, s->gates), sums.grad_out = da;
        sums.in[1] = *s->bias, sums.in[1].accumulate = 1;
        gckpti_run_column_sums(&sums, 0, 1);
    }
    for (int64_t t = 0; !s->fast && s->bias && s->bias->grad && t < all; t++, da += s->gates)
        for (int64_t j = 0; j < s->gates; j++)
            gckpti_add_to_grad(s->bias, j, da[j]);
}

/* Runs a call by `cell` and, for gru_reset_before, `second`. */
static void gckpti_run_sequence(const gckpt_call *call, int backward, gckpti_cell_fn cell,
                                gckpti_cell_fn second)
{
    const int fast = GCKPTI_HAS_FAST && call->kernels;
    gckpti_sequence s = gckpti_sequence_of(call, fast, backward);
    const int64_t most = backward || !fast ? s.block : s.rows;
    void (*item)(void *context, int64_t i, int64_t worker) =
        backward ? gckpti_sequence_backward : gckpti_sequence_forward;
    s.cell[0] = cell, s.cell[1] = second;
    s.before = second != NULL, s.split = s.before ? 2 * s.units : s.gates;
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
        gckpti_clear_grads(call, 1, s.bias ? 3 : 2);
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

#define GCKPTI_CELL(a, b)                                                                          \
    (backward ? GCKPTI_KERNEL_OF(call, recurrent->b, gckpti_##b)                                   \
              : GCKPTI_KERNEL_OF(call, recurrent->a, gckpti_##a))
#define GCKPTI_CELLS(name, first, second)                                                          \
    GCKPTI_OP_KERNELS(name, gckpti_run_sequence(call, backward, first, second))
GCKPTI_CELLS(gru, GCKPTI_CELL(gru_gates, gru_gate_grads), NULL)
GCKPTI_CELLS(lstm, GCKPTI_CELL(lstm_gates, lstm_gate_grads), NULL)
GCKPTI_CELLS(gru_reset_before, GCKPTI_CELL(reset_gates, new_gate_grads),
             GCKPTI_CELL(new_gates, reset_gate_grads))
#undef GCKPTI_CELLS
#undef GCKPTI_CELL

/* The data that each gradient reads. gru's in[2] is bh, h0 or the lengths; only bh's gradient has
 * GCKPT_SUMS. Lengths are i32 and the last input. */
#define GCKPTI_READS GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_IN(3) | GCKPT_OUT | GCKPT_SAVED
#define GCKPTI_RECURRENT_DESC(name, bias)                                                          \
    GCKPTI_DESC_WITH(name, gckpti_recurrent_shape, gckpti_recurrent_flops,                         \
                     gckpti_recurrent_flops_backward, gckpti_recurrent_lengths, 0, GCKPTI_READS,   \
                     GCKPTI_READS, GCKPTI_READS | GCKPTI_ANY_TYPE | (bias),                        \
                     GCKPTI_READS | GCKPTI_ANY_TYPE, GCKPTI_ANY_TYPE)
GCKPTI_RECURRENT_DESC(gru, GCKPT_SUMS);
GCKPTI_RECURRENT_DESC(gru_reset_before, GCKPT_SUMS);
GCKPTI_RECURRENT_DESC(lstm, 0);
#undef GCKPTI_RECURRENT_DESC
#undef GCKPTI_READS
#endif
