/* optimisers/adamw.h - AdamW as a custom optimiser (Loshchilov & Hutter 2019): the arithmetic that
 * the other files of this folder share, and a pattern for your own. C99 or C++11; include gradckpt.h
 * first and compile with -ffp-contract=off.
 *
 *     gckpt_plan_desc d = { .optimiser = GCKPT_CUSTOM_OPTIMISER, .state_bytes = adamw_bytes };
 *     gckpt_exec_desc e = { .custom_optimiser = adamw_update };
 *
 * Every operation is one that IEEE 754 rounds correctly, so results have the same bits on every
 * machine. They are those of torch.optim.AdamW up to rounding. */
#ifndef ADAMW_H
#define ADAMW_H
#include <float.h>
#include <string.h>

/* Options of an update. */
typedef struct {
    float clip, lr, decay; /* factors: of the gradient; learning rate; of the weight that is lost */
    float beta1, rest1, beta2, rest2, eps; /* rest: 1 - beta */
    double correct1, correct2;             /* 1 - beta^step */
} adamw_rates;

/* Returns the square root of x >= 0, correctly rounded: Newton's method in double from a guess that
 * halves the exponent. */
static inline float adamw_root(float x)
{
    double y = (double)x, root;
    uint64_t bits;
    if (!(x > 0 && x <= FLT_MAX)) /* 0, infinity, NaN */
        return x;
    memcpy(&bits, &y, sizeof bits);
    bits = (bits >> 1) + ((uint64_t)1023 << 51);
    memcpy(&root, &bits, sizeof root);
    for (int i = 0; i < 4; i++)
        root = (root + y / root) / 2;
    return (float)root;
}

/* Returns beta^step by squaring. */
static inline double adamw_power(double beta, uint64_t step)
{
    double power = 1;
    for (; step > 0; step >>= 1, beta *= beta)
        if (step & 1)
            power *= beta;
    return power;
}

/* Returns the options of an update, with the defaults of gckpt_hyper; `eps` is that of hyper.eps. */
static inline adamw_rates adamw_rates_of(const gckpt_update *u, float eps)
{
    const gckpt_hyper *h = u->options;
    adamw_rates r;
    r.clip = u->clip_scale;
    r.lr = h->lr * u->lr_scale;
    r.decay = r.lr * (h->weight_decay * u->decay_scale);
    r.beta1 = h->beta1 < 0 ? 0 : h->beta1 > 0 ? h->beta1 : 0.9f;
    r.beta2 = h->beta2 < 0 ? 0 : h->beta2 > 0 ? h->beta2 : 0.999f;
    r.rest1 = (float)(1 - (double)r.beta1);
    r.rest2 = (float)(1 - (double)r.beta2);
    r.eps = h->eps > 0 ? h->eps : eps;
    r.correct1 = 1 - adamw_power((double)r.beta1, u->step);
    r.correct2 = 1 - adamw_power((double)r.beta2, u->step);
    return r;
}

/* Updates the moments of n elements: m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g g. */
static inline void adamw_moments(const adamw_rates *r, const float *gradient, float *m, float *v,
                                 int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float g = r->clip * gradient[i];
        m[i] = r->beta1 * m[i] + r->rest1 * g;
        v[i] = r->beta2 * v[i] + r->rest2 * (g * g);
    }
}

/* Updates n weights by their moments:
 * w = (1 - decay) w - lr / correct1 * m / (sqrt(v) / sqrt(correct2) + eps). */
static inline void adamw_weights(const adamw_rates *r, float *w, const float *m, const float *v,
                                 int64_t n)
{
    const float rate = (float)((double)r->lr / r->correct1), root = adamw_root((float)r->correct2);
    for (int64_t i = 0; i < n; i++)
        w[i] = w[i] * (1 - r->decay) - rate * m[i] / (adamw_root(v[i]) / root + r->eps);
}

/* A gckpt_plan_desc.state_bytes: m, then v, a float each for an element. */
static inline size_t adamw_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    (void)user, (void)name;
    return 2 * sizeof(float) * (size_t)(rows * columns);
}

/* A gckpt_exec_desc.custom_optimiser. */
static inline void adamw_update(void *user, const gckpt_update *u)
{
    const adamw_rates r = adamw_rates_of(u, 1e-8f);
    float *m = u->state[0], *v = m + u->elements;
    (void)user;
    adamw_moments(&r, u->gradient, m, v, u->elements);
    adamw_weights(&r, u->values, m, v, u->elements);
}
#endif
