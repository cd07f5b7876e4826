#include "recurrent/recurrent.h"
#include "graph/graph.h"
#include "ops/internal.h"

#ifndef GCKPT_NO_RECURRENT
/* Adds an op to the graph. in: x wx + bias, wh and, if `bias`, a bias; then come desc's tensors. */
static gckpt_tensor *gckpti_recurrent_new(const gckpt_op *op, int gates, gckpt_tensor **in,
                                          int bias, const gckpt_recurrent_desc *desc)
{
    const gckpt_recurrent_desc none = { NULL, NULL, NULL, 0 }, *d = desc ? desc : &none;
    gckpt_tensor *const more[3] = { d->h0, d->c0, d->lengths };
    gckpti_recurrent o = { gates, bias ? 2 : 0, d->h0 ? 2 + bias : 0, 0 };
    const char *wrong = gates == 3        ? "gru: c0 must be NULL: only an lstm has cells"
                        : d->reset_before ? "lstm: reset_before must be 0: only a gru has that gate"
                        : d->h0           ? "lstm: h0 without c0: give both, or none for zeros"
                                          : "lstm: c0 without h0: give both, or none for zeros";
    int n = 2 + bias;
    if (in[0] && (gates == 3 ? d->c0 != NULL : d->reset_before || !d->h0 != !d->c0))
        return gckpti_fail(in[0]->graph, GCKPT_E_ARG, wrong);
    for (int i = 0; i < 3; i++)
        if (more[i])
            in[n++] = more[i];
    o.lengths = d->lengths ? n - 1 : 0;
    for (int i = 2; in[0] && i < n; i++)
        if ((in[i]->type == GCKPT_I32) != (i == o.lengths))
            return gckpti_fail(in[0]->graph, GCKPT_E_ARG,
                               "%s: %T must be %s: declare and feed it so", op->name, in[i],
                               i == o.lengths ? "i32, as lengths are" : "f32");
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
