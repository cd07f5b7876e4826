/* schedule.h - learning-rate schedules: constant, linear, cosine and one-cycle, with warm-up. To
 * use it, copy it and change it as you like: it calls the public API only. C99 or C++11; include
 * gradckpt.h first.
 *
 *     hyper.lr = schedule_lr(SCHEDULE_LINEAR, step, 100, 5000, 1e-3f, 0); // step: from 0
 *
 * Results have the same bits on every machine. Equivalents in PyTorch and transformers:
 *
 *     SCHEDULE_CONSTANT   get_constant_schedule_with_warmup
 *     SCHEDULE_LINEAR     get_linear_schedule_with_warmup; with min_lr: get_polynomial_decay_..
 *                         of power 1; without warm-up LinearLR from 1
 *     SCHEDULE_COSINE     get_cosine_schedule_with_warmup; without warm-up CosineAnnealingLR
 *     SCHEDULE_ONE_CYCLE  OneCycleLR (cycle_momentum=False)
 *
 * After the warm-up the rates equal those of the equivalents. During the warm-up they are one step
 * ahead: step 0 has the rate lr / warmup here, but 0 in PyTorch, where it trains nothing. */
#ifndef SCHEDULE_H
#define SCHEDULE_H
#include <stdint.h>

typedef enum {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,   /* falls linearly to min_lr at step `steps` */
    SCHEDULE_COSINE,   /* falls by half a cosine (Loshchilov & Hutter 2017) */
    /* rises from lr / 25 and falls to min_lr (lr / 250000 if min_lr is 0), both by half a cosine
     * (Smith & Topin 2019) */
    SCHEDULE_ONE_CYCLE
} schedule_kind;

/* Returns the one-cycle rate. It is greatest at step warmup - 1 or, without warm-up, at step
 * 0.3 * steps - 1; it reaches its end value at the last step. */
static inline float schedule_one_cycle(uint64_t step, uint64_t warmup, uint64_t steps, float lr,
                                       float min_lr)
{
    /* without warm-up, counts in tenths of a step, so that 0.3 of the steps is an integer */
    const uint64_t scale = warmup > 0 ? 1 : 10;
    const uint64_t up = warmup > 0 ? warmup : 3 * steps, top = up > scale ? up - scale : 0;
    const uint64_t end = steps > 1 ? scale * (steps - 1) : 0, at = scale * step;
    const float least = min_lr > 0 ? min_lr : lr / 250000;
    if (at < top)
        return gckpt_lr_cosine(at, 0, top, lr / 25, lr);
    return gckpt_lr_cosine(at - top, 0, end > top ? end - top : 0, lr, least);
}

/* Returns the learning rate of a step, counted from 0, of `steps` steps. The rate rises during the
 * first `warmup` steps, then follows `kind` down to min_lr. */
static inline float schedule_lr(schedule_kind kind, int64_t step, int64_t warmup, int64_t steps,
                                float lr, float min_lr)
{
    const uint64_t at = (uint64_t)step, w = (uint64_t)warmup, n = (uint64_t)steps;
    if (kind == SCHEDULE_ONE_CYCLE)
        return schedule_one_cycle(at, w, n, lr, min_lr);
    if (kind == SCHEDULE_COSINE || at < w)
        return gckpt_lr_cosine(at, w, n, lr, min_lr);
    if (kind == SCHEDULE_CONSTANT)
        return lr;
    return at < n ? gckpt_fma(lr - min_lr, (float)(n - at) / (float)(n - w), min_lr) : min_lr;
}
#endif
