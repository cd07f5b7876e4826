#include "recurrent/recurrent.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_RECURRENT)
/* ---- gru, lstm: chains of an item's rows are products; the backward transposes wh first ---- */

static void gckpti_cells_product(const gckpt_call *call, const gckpti_product *t)
{
    float pack[GCKPTI_STACK_FLOATS] GCKPTI_ALIGNED;
    const gckpti_c_block all = { 0, t->m, 0, t->n, 0, 0 };
    gckpti_kernels_of(call)->product_block(t, &all, pack, GCKPTI_STACK_FLOATS);
}

static void gckpti_cells_add_grads(const gckpti_sequence *s)
{
    int64_t terms = s->block * s->steps;
    float *dwh = s->wh->grad;
    gckpti_product product =
        gckpti_product_of(s->units, s->gates, terms, gckpti_matrix(s->h, 1, s->units),
                          gckpti_matrix(s->da, 1, s->gates), dwh);
    product.accumulate = 1, product.workspace = s->pack;
    gckpt_call sums = *s->call;
    sums.shape = gckpt_shape2(terms, s->gates);
    sums.grad_out = s->da;
    if (dwh)
        gckpti_fp32_fast(s->call, &product);
    if (s->bias) {
        sums.in[0] = *s->bias;
        sums.in[0].accumulate = 1;
        sums.in[1] = sums.in[0];
        gckpti_run_column_sums(&sums, 0, 1);
    }
}

static void gckpti_run_cells(const gckpt_call *call, int backward, gckpti_cell_fn gates,
                             gckpti_cell_fn gate_grads)
{
    const gckpti_cell_kernels kernels = { gates, gate_grads, gckpti_cells_product, 1,
                                          gckpti_cells_add_grads };
    gckpti_run_sequence(call, backward, &kernels);
}

GCKPTI_OP_KERNELS(fast_gru,
                  gckpti_run_cells(call, backward, gckpti_kernels_of(call)->recurrent->gru_gates,
                                   gckpti_kernels_of(call)->recurrent->gru_gate_grads))
GCKPTI_OP_KERNELS(fast_lstm,
                  gckpti_run_cells(call, backward, gckpti_kernels_of(call)->recurrent->lstm_gates,
                                   gckpti_kernels_of(call)->recurrent->lstm_gate_grads))
#endif
