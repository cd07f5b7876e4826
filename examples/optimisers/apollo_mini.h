/* optimisers/apollo_mini.h - APOLLO-Mini (Zhu 2025) for matrices: SGD whose rate for a matrix
 * follows AdamW's for a random projection of the gradient to one row or column; AdamW for other
 * parameters. C99 or C++11; include gradckpt.h first and compile with -ffp-contract=off.
 *
 *     apollo_mini a = { hidden, 1, 128, 200 }; // which matrices; seed, scale, steps of a projection
 *     gckpt_plan_desc d = { .optimiser = GCKPT_CUSTOM_OPTIMISER, .state_bytes = apollo_mini_bytes,
 *                           .user = &a };
 *     gckpt_exec_desc e = { .custom_optimiser = apollo_mini_update, .user = &a };
 *
 * The state of a matrix of r x c elements, r <= c, takes 4 (3 c + r + 1) bytes. hyper.eps defaults
 * to 1e-6, as in the authors' code (apollo_torch.APOLLOAdamW, rank 1, scale_type tensor), whose
 * results these are up to rounding, if the projection is the same: here it is a function of seed,
 * name and step. The same bits on every machine and for every number of threads. */
#ifndef APOLLO_MINI_H
#define APOLLO_MINI_H
#include "adamw.h"

typedef struct {
    /* Returns nonzero for a matrix that is projected; embeddings and heads should be left to AdamW.
     * NULL selects all parameters of two or more rows and columns. */
    int (*hidden)(const char *name, int64_t rows, int64_t columns);
    uint64_t seed;
    float scale;  /* the root of this multiplies the updates of matrices; 0 selects 128 */
    uint64_t gap; /* updates until the next projection; 0 selects 200 */
} apollo_mini;

static inline int apollo_mini_is_hidden(const apollo_mini *a, const char *name, int64_t rows,
                                        int64_t columns)
{
    return rows > 1 && columns > 1 && (a->hidden == NULL || a->hidden(name, rows, columns));
}

/* A gckpt_plan_desc.state_bytes; user: an apollo_mini. A matrix has the moments m and v of its
 * projection, the projection, the vector that projects it, and the norm of the last update. */
static inline size_t apollo_mini_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    const int64_t c = rows > columns ? rows : columns;
    if (!apollo_mini_is_hidden((const apollo_mini *)user, name, rows, columns))
        return adamw_bytes(NULL, name, rows, columns);
    return sizeof(float) * (size_t)(2 * c + rows + columns + 1);
}

/* Returns z scrambled by the finaliser of splitmix64 (Steele 2014). */
static inline uint64_t apollo_mini_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Fills x with n nearly normal numbers of mean 0 and variance 1, each of them a sum of 12 uniform numbers. */
static inline void apollo_mini_normal(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        int sum = -12 * 65535 / 2;
        for (uint64_t k = 0; k < 3; k++) { /* four numbers of 16 bits each */
            const uint64_t z = apollo_mini_mix(seed ^ apollo_mini_mix(3 * (uint64_t)i + k));
            sum += (int)((z & 65535) + (z >> 16 & 65535) + (z >> 32 & 65535) + (z >> 48));
        }
        x[i] = (float)sum / 65536;
    }
}

/* Updates the projection of a matrix and its moments. Returns the factor of the gradient. */
static inline float apollo_mini_factor(const apollo_mini *a, const gckpt_update *u,
                                       const adamw_rates *r)
{
    const uint64_t gap = a->gap > 0 ? a->gap : 200;
    const int wide = u->columns >= u->rows; /* the shorter axis is projected */
    const int64_t c = wide ? u->columns : u->rows;
    float *m = u->state[0], *v = m + c, *low = v + c, *vector = low + c,
          *last = vector + u->rows + u->columns - c;
    if ((u->step - 1) % gap == 0) {
        uint64_t seed = apollo_mini_mix(a->seed + (u->step - 1) / gap);
        for (const char *s = u->name; *s; s++)
            seed = apollo_mini_mix(seed ^ (unsigned char)*s);
        apollo_mini_normal(vector, u->rows + u->columns - c, seed);
    }
    for (int64_t j = 0; j < c; j++)
        low[j] = wide ? 0 : gckpt_dot(u->call, u->gradient + j * u->columns, vector, u->columns);
    for (int64_t i = 0; i < u->rows && wide; i++)
        for (int64_t j = 0; j < c; j++)
            low[j] += vector[i] * u->gradient[i * c + j];
    adamw_moments(r, low, m, v, c);
    const float norm = r->clip * adamw_root(gckpt_dot(u->call, low, low, c));
    for (int64_t j = 0; j < c; j++)
        low[j] = m[j] / (adamw_root(v[j]) + r->eps);
    float factor = adamw_root(gckpt_dot(u->call, low, low, c)) / (norm + 1e-8f);
    const float size =
        adamw_root(gckpt_dot(u->call, u->gradient, u->gradient, u->elements)) * r->clip;
    const float growth = u->step > 1 ? factor * size / (*last + 1e-8f) / 1.01f : 1;
    factor /= growth > 1 ? growth : 1; /* the limit of Fira (Chen 2024) */
    *last = factor * size;
    return factor * adamw_root(a->scale > 0 ? a->scale : 128);
}

/* A gckpt_exec_desc.custom_optimiser; user: an apollo_mini. The authors' AdamW adds eps before the
 * correction of v, and decays after the update. */
static inline void apollo_mini_update(void *user, const gckpt_update *u)
{
    const apollo_mini *a = (const apollo_mini *)user;
    const adamw_rates r = adamw_rates_of(u, 1e-6f);
    const float rate = (float)((double)r.lr * (double)adamw_root((float)r.correct2) / r.correct1);
    const int projects = apollo_mini_is_hidden(a, u->name, u->rows, u->columns);
    float *m = u->state[0], *v = projects ? NULL : m + u->elements, factor = 0;
    if (projects)
        factor = r.clip * apollo_mini_factor(a, u, &r);
    else
        adamw_moments(&r, u->gradient, m, v, u->elements);
    for (int64_t i = 0; i < u->elements; i++) {
        const float step = projects ? factor * u->gradient[i] : m[i] / (adamw_root(v[i]) + r.eps);
        u->values[i] -= rate * step;
        u->values[i] -= r.decay * u->values[i];
    }
}
#endif
