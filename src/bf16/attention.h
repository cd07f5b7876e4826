#pragma once
#include "attention/attention.h"

#ifndef GCKPT_NO_ATTENTION
#ifndef GCKPT_NO_BF16
GCKPTI_FN int64_t gckpti_mixed_attention_workspace(const gckpt_call *call, int64_t t, int64_t s,
                                                   int64_t d, int backward);
/* Adds product t, rows of p or ds by d columns, element by element, with the terms that are not
 * masked: if `across`, rows are queries and terms are keys, else the reverse. Query i sees keys up
 * to i + diagonal. t begins at a multiple of GCKPTI_K_BLOCK terms. */
GCKPTI_FN void gckpti_mixed_masked(const gckpti_attn *h, const gckpti_product *t, int across,
                                   int64_t diagonal);
/* Returns sum(g out) of the query at `at`; rows: scratch, two rows of a head. */
GCKPTI_FN float gckpti_attn_delta(const gckpti_attn *h, int64_t at, float *rows);

/* A tile of the backward of a query head: m <= size queries from query i on and n <= size keys from
 * key j on; query r of the tile sees keys up to r + diagonal. q, k, v and g are the tile's rows.
 * grad: dq, dk and dv in f32, in rows of `row` floats, or NULL if not required; at first of all
 * queries and of a tile's keys or, if heads share keys, of all keys, whose gradients stay there
 * until the last query head that reads them. */
typedef struct gckpti_attn_tile {
    const gckpti_attn *h;
    gckpti_operand q, k, v, g;
    float *grad[3], *rows; /* rows: two rows of scratch */
    int64_t head, size, row, i, m, j, n, diagonal;
} gckpti_attn_tile;
typedef void (*gckpti_attn_tile_fn)(gckpti_attn_tile *s);

/* Calls `keys` (unless NULL) for each tile of keys, and `add` for each tile of queries that sees
 * one of them; loads and stores the gradients. */
GCKPTI_FN void gckpti_attn_tiles(gckpti_attn_tile *s, gckpti_attn_tile_fn keys,
                                 gckpti_attn_tile_fn add);

/* Returns the product that adds a tile's terms to gradient i: dq += ds k, dk += ds' q, dv += p' g.
 * terms: ds or p, in rows of s->size. */
static inline gckpti_product gckpti_attn_terms_product(const gckpti_attn_tile *s, int i,
                                                       const float *terms)
{
    const gckpti_operand *const rows[3] = { &s->k, &s->q, &s->g };
    const gckpti_operand x = gckpti_matrix(terms, s->size, 1);
    gckpti_product t =
        gckpti_product_of(i ? s->n : s->m, s->h->d, i ? s->m : s->n, i ? gckpti_transpose(&x) : x,
                          gckpti_transpose(rows[i]), s->grad[i]);
    t.c_stride = s->row;
    return t;
}

/* Adds the gradients of a query head, by plain kernels. */
GCKPTI_FN void gckpti_mixed_gradients(const gckpti_attn *h, int64_t head, float *scratch);
#else
#define gckpti_mixed_gradients                                    NULL
#define gckpti_mixed_attention_workspace(call, t, s, d, backward) 0
#endif
#endif
