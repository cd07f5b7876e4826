/* optimisers/muon.h - Muon (Jordan 2024) for matrices: the momentum, made orthogonal by five
 * Newton-Schulz steps; AdamW for other parameters. C99 or C++11; include gradckpt.h first and
 * compile with -ffp-contract=off.
 *
 *     muon m = { hidden, 2 }; // hidden(name, rows, columns): 1 for matrices of hidden layers
 *     gckpt_plan_desc d = { .optimiser = GCKPT_CUSTOM_OPTIMISER, .threads = 2,
 *                           .state_bytes = muon_bytes, .workspace_bytes = muon_workspace, .user = &m };
 *     gckpt_exec_desc e = { .custom_optimiser = muon_update, .user = &m };
 *
 * gckpt_hyper.lr is Muon's (0.02 is usual); give the other parameters theirs by gckpt_store_group.
 * hyper.momentum defaults to 0.95. The state takes 4 bytes per element of a matrix, and 8 of others.
 * The arena has the 8 bytes per element, and 8 r r, that an update computes in. A matrix of r x c elements, r <= c, costs 5 (2 r c + r r) r multiply-adds an update, in products
 * that run as fast as those of the ops: for r = c that is 5 r / N of the costs of its layer in a
 * step of N rows. Results are those of the author's code (muon.py, torch.optim.Muon) with float32
 * instead of bfloat16 in Newton-Schulz, up to rounding; the same bits on every machine and for
 * every number of threads. */
#ifndef MUON_H
#define MUON_H
#include "adamw.h"

typedef struct {
    /* Returns nonzero for a matrix that Muon updates; embeddings and heads should be left to AdamW.
     * NULL selects all parameters of two or more rows and columns. */
    int (*hidden)(const char *name, int64_t rows, int64_t columns);
    int threads; /* most threads of a product, as in the plan; 0 selects 1 */
} muon;

static inline int muon_is_hidden(const muon *m, const char *name, int64_t rows, int64_t columns)
{
    return rows > 1 && columns > 1 && (m->hidden == NULL || m->hidden(name, rows, columns));
}

/* A gckpt_plan_desc.state_bytes; user: a muon. */
static inline size_t muon_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    return muon_is_hidden((const muon *)user, name, rows, columns)
               ? sizeof(float) * (size_t)(rows * columns)
               : adamw_bytes(NULL, name, rows, columns);
}

/* A gckpt_plan_desc.workspace_bytes; user: a muon. */
static inline size_t muon_workspace(void *user, const char *name, int64_t rows, int64_t columns)
{
    const muon *m = (const muon *)user;
    const int64_t r = rows < columns ? rows : columns, c = rows + columns - r;
    gckpt_call call;
    memset(&call, 0, sizeof call);
    call.threads = m->threads > 1 ? m->threads : 1;
    return muon_is_hidden(m, name, rows, columns) ? sizeof(float) * 2 * (size_t)(r * c + r * r) +
                                                        gckpt_product_workspace(&call, r, c, c)
                                                  : 0;
}

/* Replaces X (r,c), r <= c, at the beginning of the workspace, by a matrix that has nearly its
 * singular vectors, and singular values near 1. Each step is X = a X + (b A + c A A) X, A = X X'. */
static inline void muon_orthogonalise(const muon *m, const gckpt_call *from, int64_t r, int64_t c)
{
    float *x = (float *)from->workspace, *y = x + r * c, *a = y + r * c, *b = a + r * r;
    gckpt_call call = *from;
    call.threads = call.threads > m->threads ? (m->threads > 1 ? m->threads : 1) : call.threads;
    const float norm = adamw_root(gckpt_dot(&call, x, x, r * c)) + 1e-7f;
    const gckpt_product_desc gram = { r, r, c, x, c, 1, x, 1, c, a, r, 1, 0, b + r * r };
    const gckpt_product_desc square = { r, r, r, a, r, 1, a, r, 1, b, r, 1, 0, b + r * r };
    const gckpt_product_desc product = { r, c, r, b, r, 1, x, c, 1, y, c, 1, 0, b + r * r };
    for (int64_t i = 0; i < r * c; i++)
        x[i] /= norm;
    for (int step = 0; step < 5; step++) {
        gckpt_product(&call, &gram);
        gckpt_product(&call, &square);
        for (int64_t i = 0; i < r * r; i++)
            b[i] = -4.7750f * a[i] + 2.0315f * b[i];
        gckpt_product(&call, &product);
        for (int64_t i = 0; i < r * c; i++)
            x[i] = 3.4445f * x[i] + y[i];
    }
}

/* A gckpt_exec_desc.custom_optimiser; user: the muon of the plan. Matrices are (in,out), as those of gckpt_linear and gckpt_conv2d: out / in, the ratio of the author's rows and columns,
 * is that of columns and rows. */
static inline void muon_update(void *user, const gckpt_update *u)
{
    const muon *m = (const muon *)user;
    if (!muon_is_hidden(m, u->name, u->rows, u->columns)) {
        adamw_update(NULL, u);
        return;
    }
    const float beta = u->options->momentum < 0   ? 0
                       : u->options->momentum > 0 ? u->options->momentum
                                                : 0.95f;
    const float lr = u->options->lr * u->lr_scale,
                kept = 1 - lr * (u->options->weight_decay * u->decay_scale);
    const float ratio = (float)u->columns / (float)u->rows;
    const float rate = lr * adamw_root(ratio > 1 ? ratio : 1);
    const int tall = u->rows > u->columns;
    float *momentum = u->state[0], *x = (float *)u->call->workspace;
    for (int64_t i = 0; i < u->rows; i++)
        for (int64_t j = 0; j < u->columns; j++) {
            const int64_t at = i * u->columns + j;
            const float g = u->clip_scale * u->gradient[at];
            momentum[at] += (1 - beta) * (g - momentum[at]);
            x[tall ? j * u->rows + i : at] = momentum[at] + (1 - beta) * (g - momentum[at]);
        }
    if (tall)
        muon_orthogonalise(m, u->call, u->columns, u->rows);
    else
        muon_orthogonalise(m, u->call, u->rows, u->columns);
    for (int64_t i = 0; i < u->rows; i++)
        for (int64_t j = 0; j < u->columns; j++) {
            const int64_t at = i * u->columns + j;
            u->values[at] = kept * u->values[at] - rate * x[tall ? j * u->rows + i : at];
        }
}
#endif
