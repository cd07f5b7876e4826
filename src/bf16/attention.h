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
/* Load n rows of a head's gradient of input i, from element `at` on, to x, in rows of `row` floats
 * (+0 unless it accumulates), and add +0 and store them, if x is not NULL. */
GCKPTI_FN void gckpti_attn_load_grad(const gckpti_attn *h, int i, int64_t at, int64_t n, float *x,
                                     int64_t row);
GCKPTI_FN void gckpti_attn_store_grad(const gckpti_attn *h, int i, int64_t at, int64_t n, float *x,
                                      int64_t row);
/* Returns sum(g out) of the query at `at`; rows: scratch, two rows of a head. */
GCKPTI_FN float gckpti_attn_delta(const gckpti_attn *h, int64_t at, float *rows);
/* Adds the gradients of a query head. The gradients of keys and values stay in scratch until the
 * last query head that reads the same keys. */
GCKPTI_FN void gckpti_mixed_gradients(const gckpti_attn *h, int64_t row, int64_t head,
                                      float *scratch);
#else
#define gckpti_mixed_gradients                                    NULL
#define gckpti_mixed_attention_workspace(call, t, s, d, backward) 0
#endif
#endif
