/* schedule.h - the learning rate over a training: constant, linear, cosine, one-cycle, behind a
 * warm-up. To copy, and to change: it uses public calls only. C99 or C++11; include gradckpt.h
 * first.
 *
 *     hyper.lr = schedule_lr(SCHEDULE_LINEAR, step, 100, 5000, 1e-3f, 0); // step: from 0
 *
 * The same bits on every machine. Beside PyTorch and transformers:
 *
 *     SCHEDULE_CONSTANT   get_constant_schedule_with_warmup
 *     SCHEDULE_LINEAR     get_linear_schedule_with_warmup; with min_lr: get_polynomial_decay_..
 *                         of power 1; without warm-up LinearLR from 1
 *     SCHEDULE_COSINE     get_cosine_schedule_with_warmup; without warm-up CosineAnnealingLR
 *     SCHEDULE_ONE_CYCLE  OneCycleLR (cycle_momentum=False)
 *
 * Behind the warm-up a step has the rate that it has there. In it ours is one step ahead: step 0 of
 * theirs has a rate of 0 and learns nothing, ours has lr / warmup. */
#ifndef SCHEDULE_H
#define SCHEDULE_H
#include <stdint.h>

typedef enum {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,   /* falls to min_lr at `steps` */
    SCHEDULE_COSINE,   /* the same, by half a cosine (Loshchilov & Hutter 2017) */
    SCHEDULE_ONE_CYCLE /* rises from lr / 25 and falls to min_lr (0: lr / 250000) by half cosines
                          (Smith & Topin 2019) */
} schedule_kind;

/* The top is at step warmup - 1, or where 0.3 of the steps are over; the end at the last step. */
static inline float schedule_one_cycle(uint64_t step, uint64_t warmup, uint64_t steps, float lr,
                                       float min_lr)
{
    const uint64_t scale = warmup > 0 ? 1 : 10; /* of a step: a tenth, so that 0.3 of them count */
    const uint64_t up = warmup > 0 ? warmup : 3 * steps, top = up > scale ? up - scale : 0;
    const uint64_t end = steps > 1 ? scale * (steps - 1) : 0, at = scale * step;
    const float least = min_lr > 0 ? min_lr : lr / 250000;
    if (at < top)
        return gckpt_lr_cosine(at, 0, top, lr / 25, lr);
    return gckpt_lr_cosine(at - top, 0, end > top ? end - top : 0, lr, least);
}

/* Of `step`, from 0, of so many steps. warmup: steps in which lr rises; min_lr: see above. */
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
