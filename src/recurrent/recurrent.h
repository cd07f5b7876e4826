#pragma once
#include "ops/ops.h"

/* gru, gru_reset_before, lstm, the gated delta rule: attributes, states, the kernels of a step. */
#ifndef GCKPT_NO_RECURRENT
enum { GCKPTI_CELL_ROWS = 32 }; /* rows of a work item of the fast kernels; affects speed only */

typedef struct {
    int gates;       /* 3 in a gru, 4 in an lstm */
    int bias, state; /* index of the bias, and of h0 (c0 is the next input); 0 means none */
    int lengths;     /* index of the lengths; omitted if 0, which means none */
} gckpti_recurrent;

/* A row at step t. Pointers that are not required are NULL.
 * forward   reads p, a; updates state, h [and c], from step t - 1 to step t; writes saved
 * backward  reads saved, g, out, and h, c of step t - 1; updates d, D [and E], from step t + 1 to
 * t, except for the chains of da wh; writes da and dp */
typedef struct gckpti_cell {
    int64_t units;
    const float *p, *g, *out, *h, *c;
    float *a, *state[2], *d[2], *saved, *da, *dp;
    int accumulate;
} gckpti_cell;
typedef void (*gckpti_cell_fn)(const gckpti_cell *cell);

/* An item is some rows. A block: all rows (forward); one item per thread, or one row (backward). */
typedef struct gckpti_sequence {
    const gckpt_call *call;
    gckpti_product_fn product; /* computes products of one row, or (CUDA) of all rows */
    gckpti_cell_fn cell[2]; /* compute a row at a step, forward or backward, in 1 + before parts */
    int before;         /* gru_reset_before: the chains of n begin after r; a step has two parts */
    int fast, backward; /* fast: items of several rows multiply panels, not wh */
    int64_t rows, steps, units, gates, state; /* B, T, H, G, columns of the output */
    const gckpt_arg *p, *wh, *bias, *initial[2]; /* initial: h0, c0; it and bias may be NULL */
    const int32_t *lengths;                   /* steps of each row, or NULL if all have T */
    int64_t split; /* gates whose chains read h: G, or 2H in gru_reset_before: n's read r h */
    int64_t first, block, item_rows; /* first row and rows of a block; rows of an item */
    int64_t terms, columns; /* of wh: H, G; of its transpose, which the backward multiplies: G, H */
    float *panels;   /* fast: panels of GCKPTI_PANEL columns of that matrix, (terms,GCKPTI_PANEL) */
    float *scratch;  /* forward: state and sums of the rows of each worker */
    float *zero, *d; /* H zeros; gradient of a block's state */
    float *h, *da, *pack; /* h of step t - 1 (rows,T,H); da (rows,T,G) */
} gckpti_sequence;

/* ---- recurrent/delta.c ---- */
enum { GCKPTI_DELTA_COLUMNS = 1024 }; /* most columns of a head */
typedef struct {
    int capacity, window; /* attributes of the caches that are read; 0 without caches */
    int heads, key_heads; /* of v, decay and beta; of q and k */
    float scale;          /* 0 selects 1 / sqrt(columns of a key) */
} gckpti_delta;

/* A step of a head, with a state of (keys,values) floats. Pointers not required are NULL.
 * forward   reads from, k, v, q; writes to (which may be from), r, out
 * backward  reads from, to, q, k, r, g; updates d, the gradient of the state; writes dq (or adds to
 *           it, as to dk, dv, ddecay, dbeta); scratch: 4 rows of values */
typedef struct gckpti_delta_step {
    int64_t keys, values;
    const float *q, *k, *v, *g, *from;
    float *to, *r, *out, *d, *scratch;
    float decay, beta, scale; /* decay: the factor exp(decay) */
    float *dq, *dk, *dv, *ddecay, *dbeta;
    int add[5]; /* nonzero if the gradients in this order are added to */
} gckpti_delta_step;
typedef void (*gckpti_delta_fn)(const gckpti_delta_step *step);

#ifndef GCKPT_NO_ATTENTION
/* Adds the gated delta rule of desc to the graph. in: q, k and v. */
GCKPTI_FN gckpt_tensor *gckpti_delta_rule(gckpt_tensor *const *in,
                                          const gckpt_attention_desc *desc);
#endif

/* The kernels of a step in an instruction set. */
typedef struct gckpti_cell_loops {
    gckpti_cell_fn gru_gates, gru_gate_grads, lstm_gates, lstm_gate_grads;
    gckpti_cell_fn reset_gates, new_gates, new_gate_grads, reset_gate_grads;
    gckpti_delta_fn delta_update, delta_grads;
} gckpti_cell_loops;
#define GCKPTI_IF_RECURRENT(x) x
#include "num/plain_begin.h"
#include "recurrent/loops.h"
#include "num/plain_end.h"
#else
#define GCKPTI_IF_RECURRENT(x) NULL
#define gckpti_delta_rule(in, desc)                                                                \
    gckpti_fail((in)[0]->graph, GCKPT_E_ARG,                                                       \
                "attention: this build leaves the gated delta rule out (GCKPT_NO_RECURRENT)")
#endif
