#pragma once
#include "ops/ops.h"
#include "attention/rotary.h"

/* Attention and rotary embeddings (GCKPT_NO_ATTENTION). */
#ifndef GCKPT_NO_ATTENTION
enum { GCKPTI_KEY_TILE = 64 }; /* keys per step of attention; part of the specification */

/* ---- attention/ops.c ---- */
typedef struct {
    int heads;
    int causal;    /* 0, or 1 + how many of the S keys are missing at position 0 */
    int key_heads; /* 0 means as many as heads; then the fields below are omitted */
    int extras;    /* 0 if fields below are omitted; else 1, 2 if a call fills a ring, or -1 if the
                    * op is masked_attention */
    int window;    /* largest number of keys that a query sees; 0 means all */
    float cap, scale;
} gckpti_attention;

/* Keys 0..keys-1 exist; query t sees the keys with an index below t + 1 + ahead. */
typedef struct {
    int64_t keys, ahead;
} gckpti_visible;

static inline int gckpti_uses_position(const gckpti_attention *o)
{
    return o->causal > 1 || o->extras > 1;
}

/* Returns which keys exist and are visible (all if not causal); kernels read no other keys. */
GCKPTI_FN gckpti_visible gckpti_visible_keys(const gckpt_call *call);

/* The mask of masked_attention; x is NULL for other ops. */
typedef struct {
    const float *x;
    int64_t step[4]; /* from one row of the batch, head, query and key to the next; 0 to repeat */
} gckpti_attn_mask;

static inline int gckpti_has_mask(const gckpt_call *call)
{
    return ((const gckpti_attention *)call->attributes)->extras < 0;
}

struct gckpti_attn;
/* Kernels for a head (head 0 is that of row 0): up to 64 queries, from query `first` on, or all. */
typedef struct gckpti_attention_kernels {
    void (*forward)(const struct gckpti_attn *h, int64_t head, int64_t first, float *scratch);
    void (*backward)(const struct gckpti_attn *h, int64_t head, float *scratch);
} gckpti_attention_kernels;

/* The kernels of an instruction set. */
typedef struct gckpti_attention_loops {
    void (*rotary)(const gckpt_call *call, int64_t row); /* forward and backward */
    gckpti_attention_kernels heads[2];                   /* of f32 plans; of mixed plans */
    /* Adds the terms of up to 64 queries from i on and 64 keys from j on to the mask's gradient. */
    void (*mask)(const struct gckpti_attn *h, int64_t head, int64_t i, int64_t j, float *scratch);
} gckpti_attention_loops;

typedef struct gckpti_attn { /* the state of an attention call */
    const gckpt_call *call;
    const gckpti_attention_kernels *kernels;
    int64_t t, s, c, d, heads, blocks; /* blocks: number of blocks of 64 queries */
    int64_t d_vec, d_block;            /* D rounded up to whole vectors; to whole blocks of terms */
    gckpti_visible visible;            /* keys of the current row, from gckpti_attn_set_row */
    float scale, dot_scale, cap; /* factors of gradients, of dots; cap of scores, 0 means none */
    int64_t kv_c;                /* columns of k and v */
    int64_t group;               /* query heads per key head */
    int64_t shared_keys;         /* S if heads share keys, else 0 */
    int64_t window;              /* largest number of keys that a query sees */
    gckpti_attn_mask mask;
} gckpti_attn;

/* Return the first key of query i's window; the first key of that key's tile; how many of n keys
 * from j on are before the window; the offset of key j (rows may be a ring). */
static inline int64_t gckpti_attn_first_key(const gckpti_attn *h, int64_t i)
{
    const int64_t first = i + 1 + h->visible.ahead - h->window;
    return first < 0 ? 0 : first;
}
static inline int64_t gckpti_attn_first_tile(const gckpti_attn *h, int64_t i)
{
    return gckpti_attn_first_key(h, i) / GCKPTI_KEY_TILE * GCKPTI_KEY_TILE;
}
static inline int64_t gckpti_attn_masked(const gckpti_attn *h, int64_t i, int64_t j, int64_t n)
{
    const int64_t first = gckpti_attn_first_key(h, i) - j;
    return first < 0 ? 0 : gckpti_min(first, n);
}
static inline int64_t gckpti_attn_offset(const gckpti_attn *h, int64_t j)
{
    return (j % h->s) * h->kv_c;
}

/* Returns the factor from dots to scores: 1 if gckpti_softcap scaled the dots. */
static inline float gckpti_attn_post_scale(const gckpti_attn *h)
{
    return h->cap > 0.0f ? 1.0f : h->scale;
}

/* Returns the offset of a head's first query in q, or first key in k; head 0 is that of row 0. */
static inline int64_t gckpti_attn_at_q(const gckpti_attn *h, int64_t head)
{
    return head / h->heads * h->t * h->c + head % h->heads * h->d;
}
static inline int64_t gckpti_attn_at_k(const gckpti_attn *h, int64_t head)
{
    return head / h->heads * h->s * h->kv_c + head % h->heads / h->group * h->d;
}

GCKPTI_FN gckpti_attn gckpti_attn_of(const gckpt_call *call);

/* Returns the offset of the mask's element of query i and key j; head 0 is that of row 0. */
static inline int64_t gckpti_attn_at_mask(const gckpti_attn *h, int64_t head, int64_t i, int64_t j)
{
    const int64_t *step = h->mask.step;
    return head / h->heads * step[0] + head % h->heads * step[1] + i * step[2] + j * step[3];
}

/* Returns score s of query i and key j of a head, plus the mask, if there is one. */
static inline float gckpti_attn_plus_mask(const gckpti_attn *h, float s, int64_t head, int64_t i,
                                          int64_t j)
{
    return h->mask.x ? s + h->mask.x[gckpti_attn_at_mask(h, head, i, j)] : s;
}

/* Returns floats of workspace of attention, heads of d columns, t queries: blocks of 64 queries or
 * keys, rows of whole vectors. In mixed plans: packed operands, dq, and, if heads share keys (s >
 * 0), dk and dv of s keys. Plain kernels need it only for f32 copies of narrow rows. */
GCKPTI_FN int64_t gckpti_attention_workspace(const gckpt_call *call, int64_t t, int64_t s,
                                             int64_t d, int backward);

/* Return the score of a dot product x; ds from dp - delta. */
static inline float gckpti_attn_score(const gckpti_attn *h, float x)
{
    return h->cap > 0.0f ? gckpti_softcap(x, h->dot_scale, h->cap) : gckpti_mul(x, h->dot_scale);
}
static inline float gckpti_attn_ds(const gckpti_attn *h, float p, float dp, float score)
{
    return p * (h->cap > 0.0f ? dp * gckpti_softcap_deriv(score, 1.0f / h->cap) : dp) * h->scale;
}

#define GCKPTI_IF_ATTENTION(x) x
#else
#define GCKPTI_IF_ATTENTION(x) NULL
#endif
#include "bf16/attention.h"
