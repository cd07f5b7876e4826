#pragma once
#include "num/sums.h"

/* With decayed = fma(-d, w, w), d = (lr weight_decay) decay_scale; lr is hyper.lr times lr_scale:
 *   SGD       w = fma(-lr, g, decayed)
 *   momentum  m = fma(momentum, m, g), w = fma(-lr, m, decayed)
 *   AdamW     m = fma(b1, m, (1 - b1) g), v = fma(b2, v, (1 - b2) (g g)),
 *             w = fma(-lr / (1 - b1^t), m / (sqrt(v c) + eps), decayed), c = 1 / (1 - b2^t)
 *             (Loshchilov & Hutter 2019)
 * t counts the parameter's updates from 1. 1 - b1, 1 - b2, lr / (1 - b1^t) and c are computed in
 * binary64 from the floats b1, b2, lr, powers by squaring (gckpti_powi), and rounded once. */
GCKPTI_INLINE void gckpti_step_sgd(const gckpt_rates *a, float g, float *w)
{
    *w = gckpti_fma(-a->rate, g * a->scale, gckpti_fma(-a->decay, *w, *w));
}

GCKPTI_INLINE void gckpti_step_momentum(const gckpt_rates *a, float momentum, float g, float *w,
                                        float *m)
{
    *m = gckpti_fma(momentum, *m, g * a->scale);
    *w = gckpti_fma(-a->rate, *m, gckpti_fma(-a->decay, *w, *w));
}

GCKPTI_INLINE void gckpti_step_adamw(const gckpt_rates *a, float g, float *w, float *m, float *v)
{
    float d = g * a->scale;
    *m = gckpti_fma(a->beta1, *m, a->rest1 * d);
    *v = gckpti_fma(a->beta2, *v, a->rest2 * (d * d));
    d = *m / (gckpti_sqrt(*v * a->correct2) + a->eps);
    *w = gckpti_fma(-a->rate, d, gckpti_fma(-a->decay, *w, *w));
}
