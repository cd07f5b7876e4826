#ifndef GCKPT_NO_RECURRENT
typedef struct {
    gckpt_tensor *h0, *c0; /* first states (B,H); NULL selects zeros. c0: lstm only, with h0 */
    gckpt_tensor *lengths; /* i32 (B): number of steps of row b, 0..T (a step returns E_DATA for
                            * others); NULL selects T. Later steps of x must be finite; outputs and
                            * gradients there are 0. PyTorch's h_n: gckpt_gather(h, lengths - 1) */
    int reset_before;      /* gru: if nonzero, n = tanh(x wx + bx + (r h) wh + bh), as in ONNX with
                            * linear_before_reset = 0 and Keras with reset_after=False */
} gckpt_recurrent_desc;
/* ---- GRU over whole sequences of T steps: x (B,T,I), wx (I,3H), wh (H,3H), bx and bh (3H) or
 * NULL, desc may be NULL -> h (B,T,H). Gates r, z, n, as in PyTorch (Cho 2014):
 * r, z = sigmoid(x wx + bx + h wh + bh), n = tanh(x wx + bx + r (h wh + bh)), h = n + z (h - n). */
GCKPT_API gckpt_tensor *gckpt_gru(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *bx,
                                  gckpt_tensor *wh, gckpt_tensor *bh,
                                  const gckpt_recurrent_desc *desc);
/* x (B,T,I), wx (I,4H), wh (H,4H), one bias (4H) or NULL, desc may be NULL -> (B,T,2H): h, then the
 * cells c. Gates i, f, g, o: c = f c + i g, h = o tanh(c). (Hochreiter 1997) */
GCKPT_API gckpt_tensor *gckpt_lstm(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *wh,
                                   gckpt_tensor *bias, const gckpt_recurrent_desc *desc);
#endif
