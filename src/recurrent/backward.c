#include "recurrent/recurrent.h"
#include "ops/internal.h"

#ifndef GCKPT_NO_RECURRENT
/* ---- the backward of recurrent/ops.c ---- */
/* Adds chains of da wh over the gates before `split` to d for m rows; da points to the first of
 * them, which are T steps apart. If `first`, sets da_r to chains over the other gates. */
static void gckpti_cells_backward(const gckpti_sequence *s, int first, float *da, int64_t m,
                                  float *d)
{
    const int64_t row = s->steps * s->gates, at = first ? s->split : 0;
    gckpti_product t = gckpti_product_of(
        m, s->units, first ? s->gates - at : s->split, gckpti_matrix(da + at, row, 1),
        gckpti_matrix(s->wh->data + at, s->gates, 1), first ? da : d);
    t.accumulate = !first, t.c_stride = first ? row : s->state;
    gckpti_cells_product(s, &t, s->panels + at * GCKPTI_PANEL);
}

/* Returns h (if c is 0) or c (if c is 1) of row b before step t; zeros from its length on. */
static const float *gckpti_sequence_previous(const gckpti_sequence *s, int c, int64_t b, int64_t t)
{
    const gckpt_arg *initial = c ? s->c0 : s->h0;
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
    cell.c = gckpti_sequence_previous(s, 1, b, t);
    cell.saved = (float *)s->call->saved + step * 4 * n;
    cell.d[0] = s->d + at * s->state, cell.d[1] = cell.d[0] + n;
    cell.da = s->da + here * s->gates;
    cell.dp = s->p->grad ? s->p->grad + step * s->gates : NULL;
    cell.accumulate = s->p->accumulate;
    s->cell[part](&cell);
    if (GCKPTI_HAS_FAST && s->fast && !part)
        memcpy(s->h + here * n, cell.h, (size_t)n * sizeof(float));
}

/* Zeroes h, da and dp of row `at` of the block from its length on. */
static void gckpti_sequence_pad_grads(const gckpti_sequence *s, int64_t at)
{
    const int64_t b = s->first + at, length = gckpti_sequence_length(s, b), n = s->steps - length;
    const int64_t here = at * s->steps + length;
    gckpti_zero_unless(s->da + here * s->gates, n * s->gates, 0);
    if (s->fast)
        gckpti_zero_unless(s->h + here * s->units, n * s->units, 0);
    if (s->p->grad)
        gckpti_zero_unless(s->p->grad + (b * s->steps + length) * s->gates, n * s->gates,
                           s->p->accumulate);
}

/* Computes the gradients of the steps of rows at..at+m-1 of the block, from the last one on. */
static void gckpti_sequence_steps_back(const gckpti_sequence *s, int64_t at, int64_t m)
{
    float *d = s->d + at * s->state;
    for (int64_t t = gckpti_sequence_longest(s, s->first + at, m); t-- > 0;) {
        float *da = s->da + (at * s->steps + t) * s->gates;
        for (int part = 0; part <= s->before; part++) {
            for (int64_t r = 0; r < m; r++)
                if (t < gckpti_sequence_length(s, s->first + at + r))
                    gckpti_cell_backward(s, part, at + r, t);
            gckpti_cells_backward(s, part < s->before, da, m, d);
        }
        for (int64_t r = 0; r < m; r++) /* not even NaN of wh reach the padding */
            if (t >= gckpti_sequence_length(s, s->first + at + r)) {
                gckpti_zero_unless(d + r * s->state, s->state, 0);
                gckpti_zero_unless(da + r * s->steps * s->gates, s->gates, 0);
            }
    }
}

GCKPTI_FN void gckpti_sequence_backward(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    const int64_t at = i * s->item_rows, m = gckpti_sequence_item_rows(s, i), n = s->units;
    float *d = s->d + at * s->state;
    (void)worker;
    gckpti_zero_unless(d, m * s->state, 0);
    for (int64_t r = 0; s->lengths && r < m; r++)
        gckpti_sequence_pad_grads(s, at + r);
    gckpti_sequence_steps_back(s, at, m);
    for (int64_t r = 0; r < m; r++, d += s->state)
        for (int c = 0; c < 2; c++) {
            const gckpt_arg *initial = c ? s->c0 : s->h0;
            for (int64_t j = 0; initial && initial->grad && j < n; j++)
                gckpti_put(&initial->grad[(s->first + at + r) * n + j], d[c * n + j],
                           initial->accumulate);
        }
}

#if GCKPTI_HAS_FAST
/* Adds the gradients of the block's rows to dwh and dbias, by kernels for all of them. */
static void gckpti_cells_add_block(const gckpti_sequence *s)
{
    const int64_t terms = s->block * s->steps, n = s->units;
    const float *reset = (const float *)s->call->saved + s->first * s->steps * 4 * n + 3 * n;
    for (int part = 0; part <= s->before && s->wh->grad; part++) {
        const int64_t first = part ? s->split : 0;
        gckpti_product product =
            gckpti_product_of(n, part ? s->gates - first : s->split, terms,
                              part ? gckpti_matrix(reset, 1, 4 * n) : gckpti_matrix(s->h, 1, n),
                              gckpti_matrix(s->da + first, 1, s->gates), s->wh->grad + first);
        product.c_stride = s->gates;
        product.accumulate = 1, product.workspace = s->pack;
        gckpti_kernels_of(s->call)->product(s->call, &product);
    }
    gckpt_call sums = *s->call;
    sums.shape = gckpt_shape2(terms, s->gates);
    sums.grad_out = s->da;
    if (s->bias) {
        sums.in[0] = *s->bias;
        sums.in[0].accumulate = 1;
        sums.in[1] = sums.in[0];
        gckpti_run_column_sums(&sums, 0, 1);
    }
}
#endif

/* Adds the gradients of the block, which is one row, to dwh and dbias. */
static void gckpti_cells_add_row(const gckpti_sequence *s)
{
    const int64_t n = s->units;
    const float *da = s->da;
    for (int64_t t = 0; t < s->steps; t++, da += s->gates) {
        const float *h = gckpti_sequence_previous(s, 0, s->first, t);
        const float *reset = (const float *)s->call->saved + (s->first * s->steps + t) * 4 * n;
        for (int64_t k = 0; s->wh->grad && k < n; k++) {
            float *to = s->wh->grad + k * s->gates;
            gckpti_axpy(h[k], da, s->split, to);
            if (s->before)
                gckpti_axpy(reset[3 * n + k], da + s->split, n, to + s->split);
        }
        for (int64_t j = 0; s->bias && s->bias->grad && j < s->gates; j++)
            gckpti_add_to_grad(s->bias, j, da[j]);
    }
}

GCKPTI_FN void gckpti_sequence_add_grads(const gckpti_sequence *s)
{
#if GCKPTI_HAS_FAST
    if (s->fast) {
        gckpti_cells_add_block(s);
        return;
    }
#endif
    gckpti_cells_add_row(s);
}
#endif
