#include "attention/attention.h"
#include "ops/internal.h"

#if !defined(GCKPT_NO_BF16) && !defined(GCKPT_NO_ATTENTION)
GCKPTI_FN int64_t gckpti_mixed_attention_workspace(const gckpt_call *call, int64_t t, int64_t s,
                                                   int64_t d, int backward)
{
    const int64_t block = GCKPTI_K_BLOCK, tile = GCKPTI_KEY_TILE;
    const int64_t multiple = gckpti_is_plain(call) ? block : tile;
    const int64_t operand = tile / 2 * gckpti_ceil_to(d, GCKPTI_K_BLOCK); /* packed operands */
    const int64_t keys = s ? gckpti_ceil_to(s, multiple) : multiple; /* rows of dk and dv, in f32 */
    const int64_t d_vec = gckpti_ceil_to(d, 16), along = tile * d_vec, scores = tile * tile;
    if (gckpti_is_plain(call))
        return backward ? (t + 2 * keys + 2) * d : d;
    return backward ? 2 * keys * d_vec + along / 2 + 3 * operand + 5 * scores / 2 +
                          gckpti_ceil_to(t, GCKPTI_KEY_TILE) * (d_vec + 1)
                    : along + 2 * operand + scores;
}

/* ---- attention (see attention/ops.c). A result that is a zero becomes +0, since a backend may add
 * masked terms as zeros. ---- */
/* Returns the first of n keys that query r sees or, if `across` is 0, of n queries that see key r,
 * and sets *end. */
static int64_t gckpti_attn_terms(const gckpti_attn *h, int across, int64_t r, int64_t diagonal,
                                 int64_t n, int64_t *end)
{
    const int64_t first = across ? r + diagonal + 1 - h->window : r - diagonal;
    const int64_t last = first + h->window;
    *end = last < 0 ? 0 : gckpti_min(last, n);
    return first < 0 ? 0 : gckpti_min(first, n);
}

GCKPTI_FN void gckpti_mixed_masked(const gckpti_attn *h, const gckpti_product *t, int across,
                                   int64_t diagonal)
{
    for (int64_t r = 0; r < t->m; r++) {
        gckpti_product row = *t;
        int64_t end;
        const int64_t first = gckpti_attn_terms(h, across, r, diagonal, t->k, &end);
        row.m = 1, row.k = end - first, row.c += r * t->c_stride, row.accumulate = 1;
        row.k_period = GCKPTI_K_BLOCK, row.k_offset = first;
        row.a = gckpti_operand_at(&t->a, r * t->a.stride + first * t->a.k_stride);
        row.b = gckpti_operand_at(&t->b, first * t->b.k_stride);
        if (first < end)
            gckpti_mixed_plain(h->call, &row);
    }
}

GCKPTI_FN void gckpti_attn_load_grad(const gckpti_attn *h, int i, int64_t at, int64_t n, float *x,
                                     int64_t row)
{
    const gckpt_arg *arg = &h->call->in[i];
    for (int64_t r = 0; r < n; r++, at += arg->shape.d[2], x += row)
        if (!arg->accumulate)
            memset(x, 0, (size_t)row * sizeof *x);
        else if (arg->grad)
            memcpy(x, arg->grad + at, (size_t)h->d * sizeof *x);
        else
            gckpti_widen_row(h->call, arg->grad_bf16 + at, x, h->d);
}

GCKPTI_FN void gckpti_attn_store_grad(const gckpti_attn *h, int i, int64_t at, int64_t n, float *x,
                                      int64_t row)
{
    const gckpt_arg *arg = &h->call->in[i];
    for (int64_t r = 0; x && r < n; r++, at += arg->shape.d[2], x += row) {
        for (int64_t e = 0; e < h->d; e++)
            x[e] += 0.0f;
        gckpti_store(h->call, gckpti_arg_gradient(arg), at, h->d, x);
    }
}

GCKPTI_FN float gckpti_attn_delta(const gckpti_attn *h, int64_t at, float *rows)
{
    const gckpt_call *call = h->call;
    const float *g = gckpti_read(call, gckpti_grad_out_of(call), at, h->d, rows);
    const gckpti_source out = gckpti_source_of(gckpti_out_of(call));
    return GCKPTI_KERNEL_OF(call, dot, gckpti_dot)(g, gckpti_read(call, out, at, h->d, rows + h->d),
                                                   h->d);
}

/* ---- gradients of a query head: scratch has dk and dv, in f32, of a block of keys (or of all, if
 * heads share keys), two rows, and dq ---- */
/* A block of m queries from query i on and n keys from key j on: rows of the operands and, if they
 * are required, of dq, dk and dv. */
typedef struct {
    const gckpti_attn *h;
    gckpti_operand q, k, v, g;
    float *grad[3], *rows; /* rows: two rows of scratch */
    int64_t head, i, m, j, n, diagonal;
} gckpti_attn_block;

/* Computes p and ds of a block, in rows of GCKPTI_K_BLOCK. */
static void gckpti_block_p_ds(const gckpti_attn_block *s, float *p, float *ds)
{
    const gckpti_attn *h = s->h;
    const gckpt_call *call = h->call;
    const int needs_ds = s->grad[0] || s->grad[1];
    for (int64_t r = 0; r < s->m; r++, p += GCKPTI_K_BLOCK, ds += GCKPTI_K_BLOCK) {
        int64_t end;
        const int64_t from = gckpti_attn_terms(h, 1, r, s->diagonal, s->n, &end), n = end - from;
        const float lse = ((const float *)call->saved)[s->head * h->t + s->i + r];
        float delta = 0.0f; /* sum(g out) of the query */
        if (n <= 0)
            continue;
        gckpti_product t = gckpti_product_of(1, n, h->d, gckpti_operand_at(&s->q, r * h->c),
                                             gckpti_operand_at(&s->k, from * h->kv_c), p + from);
        gckpti_mixed_plain(call, &t);
        if (needs_ds) {
            t.a = gckpti_operand_at(&s->g, r * h->c), t.c = ds + from;
            t.b = gckpti_operand_at(&s->v, from * h->kv_c);
            gckpti_mixed_plain(call, &t);
            delta = gckpti_attn_delta(h, gckpti_attn_at_q(h, s->head) + (s->i + r) * h->c, s->rows);
        }
        for (int64_t j = from; j < end; j++) {
            const float score = gckpti_attn_score(h, p[j]);
            p[j] = gckpti_exp(score - lse);
            if (needs_ds)
                ds[j] = gckpti_attn_ds(h, p[j], ds[j] - delta, score);
        }
    }
}

/* Adds a block's terms: dq += ds k, dk += ds' q, dv += p' g. */
static void gckpti_block_add(const gckpti_attn_block *s, const float *p, const float *ds)
{
    const gckpti_operand *const rows[3] = { &s->k, &s->q, &s->g };
    for (int i = 0; i < 3; i++) {
        const gckpti_operand terms = gckpti_matrix(i < 2 ? ds : p, GCKPTI_K_BLOCK, 1);
        const gckpti_product t = gckpti_product_of(i ? s->n : s->m, s->h->d, i ? s->m : s->n,
                                                   i ? gckpti_transpose(&terms) : terms,
                                                   gckpti_transpose(rows[i]), s->grad[i]);
        if (s->grad[i])
            gckpti_mixed_masked(s->h, &t, !i, s->diagonal);
    }
}

GCKPTI_FN void gckpti_mixed_gradients(const gckpti_attn *h, int64_t row, int64_t head,
                                      float *scratch)
{
    enum { BLOCK = GCKPTI_K_BLOCK };
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const gckpti_source g = gckpti_grad_out_of(call);
    const int64_t keys = gckpti_ceil_to(h->shared_keys ? h->s : 1, BLOCK) * h->d;
    const int64_t at_q = gckpti_attn_at_q(h, row * h->heads + head);
    float p[BLOCK * BLOCK], ds[BLOCK * BLOCK];
    gckpti_attn_block s;
    memset(&s, 0, sizeof s);
    s.h = h, s.head = row * h->heads + head, s.rows = scratch + 2 * keys;
    float *dq = gckpti_is_set(gckpti_arg_gradient(&in[0])) ? s.rows + 2 * h->d : NULL;
    if (dq)
        gckpti_attn_load_grad(h, 0, at_q, h->t, dq, h->d);
    for (s.j = gckpti_attn_first_tile(h, 0); s.j < h->visible.keys; s.j += BLOCK) {
        const int64_t key = gckpti_attn_at_k(h, s.head) + s.j * h->kv_c;
        s.n = gckpti_min(h->visible.keys - s.j, BLOCK);
        s.k = gckpti_operand_of(gckpti_arg_values(&in[1]), key, h->kv_c, 1, 0);
        s.v = gckpti_operand_of(gckpti_arg_values(&in[2]), key, h->kv_c, 1, 0);
        for (int i = 1; i < 3; i++) {
            float *x = scratch + (i - 1) * keys + (h->shared_keys ? s.j * h->d : 0);
            s.grad[i] = gckpti_is_set(gckpti_arg_gradient(&in[i])) ? x : NULL;
            if (s.grad[i] && head % h->group == 0)
                gckpti_attn_load_grad(h, i, key, s.n, x, h->d);
        }
        for (s.i = 0; s.i < h->t && gckpti_attn_first_key(h, s.i) < s.j + s.n; s.i += BLOCK) {
            s.m = gckpti_min(h->t - s.i, BLOCK), s.diagonal = s.i + h->visible.ahead - s.j;
            s.q = gckpti_operand_of(gckpti_arg_values(&in[0]), at_q + s.i * h->c, h->c, 1, 0);
            s.g = gckpti_operand_of(g, at_q + s.i * h->c, h->c, 1, 0);
            s.grad[0] = dq ? dq + s.i * h->d : NULL;
            gckpti_block_p_ds(&s, p, ds);
            gckpti_block_add(&s, p, ds);
        }
        for (int i = 1; i < 3 && head % h->group + 1 == h->group; i++)
            gckpti_attn_store_grad(h, i, key, s.n, s.grad[i], h->d);
    }
    gckpti_attn_store_grad(h, 0, at_q, h->t, dq, h->d);
}
#endif
