#ifndef GCKPT_NO_LINEAR_LOSS
typedef struct {
    float cap; /* logits z become cap * tanh(z / cap) (Gemma 2), 1e-30 to 1e30; 0 disables it */
} gckpt_linear_loss_desc;
/* Cross-entropy of the logits x w': x (..,C), w (V,C) (e.g. a tied embedding table), targets i32
 * (..). Only the logits of some rows or classes exist at a time. desc NULL selects all defaults. */
GCKPT_API gckpt_tensor *gckpt_linear_cross_entropy(gckpt_tensor *x, gckpt_tensor *w,
                                                   gckpt_tensor *targets,
                                                   const gckpt_linear_loss_desc *desc);
#endif
