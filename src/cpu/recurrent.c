#include "cpu/own.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_RECURRENT)
/* ---- gru, lstm: chains of an item's rows are products; wh is transposed for the backward ---- */

/* On the calling thread. */
static void gckpti_cells_product(const gckpti_sequence *s, const gckpti_product *t)
{
    float pack[GCKPTI_SMALL_ROOM] GCKPTI_ALIGNED;
    const gckpti_rectangle all = { 0, t->m, 0, t->n, 0, 0 };
    gckpti_kernels_of(s->call)->product_piece(t, &all, pack, GCKPTI_SMALL_ROOM);
}

static void gckpti_cells_forward(const gckpti_sequence *s, const float *p, int64_t m,
                                 const float *state, float *a)
{
    gckpti_product product =
        gckpti_product_of(m, s->gates, s->units, gckpti_matrix(state, s->state, 1),
                          gckpti_matrix(s->wh->data, 1, s->gates), a);
    product.start = s->bias ? s->bias->data : NULL;
    if (s->state > s->units) /* lstm */
        product.start = p, product.start_row = s->steps * s->gates;
    gckpti_cells_product(s, &product);
}

static void gckpti_cells_backward(const gckpti_sequence *s, const float *da, int64_t m, float *d)
{
    gckpti_product product =
        gckpti_product_of(m, s->units, s->gates, gckpti_matrix(da, s->steps * s->gates, 1),
                          gckpti_matrix(s->turned, 1, s->units), d);
    product.accumulate = 1, product.c_row = s->state;
    gckpti_cells_product(s, &product);
}

/* Rows of wh': 16 gates. */
static void gckpti_cells_turn_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_sequence *s = (const gckpti_sequence *)context;
    int64_t j0 = 16 * i, end = j0 + gckpti_min(s->gates - j0, 16), h = s->units;
    (void)worker;
    for (int64_t k0 = 0; k0 < h; k0 += 16)
        for (int64_t j = j0; j < end; j++)
            for (int64_t k = k0; k < h && k < k0 + 16; k++)
                s->turned[j * h + k] = s->wh->data[k * s->gates + j];
}

static void gckpti_cells_turn(gckpti_sequence *s)
{
    gckpt_parallel(s->call, (s->gates - 1) / 16 + 1, 64 * s->units, gckpti_cells_turn_item, s);
}

static void gckpti_cells_add(const gckpti_sequence *s)
{
    int64_t links = s->block * s->steps;
    float *dwh = s->wh->grad;
    gckpti_product product =
        gckpti_product_of(s->units, s->gates, links, gckpti_matrix(s->h, 1, s->units),
                          gckpti_matrix(s->da, 1, s->gates), dwh);
    product.accumulate = 1, product.room = s->pack;
    gckpt_call sums = *s->call;
    sums.shape = gckpt_shape2(links, s->gates);
    sums.grad_out = s->da;
    if (dwh)
        gckpti_fp32_fast(s->call, &product);
    if (s->bias) {
        sums.in[0] = *s->bias;
        sums.in[0].accumulate = 1;
        sums.in[1] = sums.in[0];
        gckpti_columns_run(&sums, 0, 1);
    }
}

static void gckpti_cells_by(const gckpt_call *call, int backward, gckpti_cell_run gates,
                            gckpti_cell_run slopes)
{
    const gckpti_cell_kernels by = { gates,
                                     slopes,
                                     gckpti_cells_turn,
                                     gckpti_cells_forward,
                                     gckpti_cells_backward,
                                     gckpti_cells_add };
    gckpti_sequence_by(call, backward, &by);
}

GCKPTI_BOTH_WAYS(fast_gru, gckpti_cells_by(call, backward, gckpti_kernels_of(call)->gru_gates,
                                           gckpti_kernels_of(call)->gru_slopes))
GCKPTI_BOTH_WAYS(fast_lstm, gckpti_cells_by(call, backward, gckpti_kernels_of(call)->lstm_gates,
                                            gckpti_kernels_of(call)->lstm_slopes))
#endif
