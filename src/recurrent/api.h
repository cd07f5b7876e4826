#ifndef GCKPT_NO_RECURRENT
/* ---- GRU over whole sequences of T steps: x (B,T,I), wx (I,3H), wh (H,3H), bx and bh (3H) or
 * NULL, h0 (B,H) or NULL (zeros) -> h (B,T,H). Gates r, z, n, as in PyTorch (Cho 2014):
 * r, z = sigmoid(x wx + bx + h wh + bh), n = tanh(x wx + bx + r (h wh + bh)), h = n + z (h - n). */
GCKPT_API gckpt_tensor *gckpt_gru(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *bx,
                                  gckpt_tensor *wh, gckpt_tensor *bh, gckpt_tensor *h0);
/* x (B,T,I), wx (I,4H), wh (H,4H), one bias (4H) or NULL, h0 and c0 (B,H) or both NULL -> (B,T,2H):
 * h, then the cells c. Gates i, f, g, o: c = f c + i g, h = o tanh(c). (Hochreiter 1997) */
GCKPT_API gckpt_tensor *gckpt_lstm(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *wh,
                                   gckpt_tensor *bias, gckpt_tensor *h0, gckpt_tensor *c0);
#endif
