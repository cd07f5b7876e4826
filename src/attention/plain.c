#include "attention/attention.h"
#include "ops/internal.h"

#ifndef GCKPT_NO_ATTENTION
/* ---- the plain kernels of attention (attention/ops.c) ---- */
static void gckpti_attention_product(const gckpt_call *call, const gckpti_product *t)
{
    (gckpti_is_mixed(call) ? gckpti_mixed_plain : gckpti_fp32_plain)(call, t);
}

/* Adds values from..n-1 of the tile at `tile`, weighted by p, to out. */
static void gckpti_attention_values(const gckpti_attn *h, const float *p, int64_t tile,
                                    int64_t from, int64_t n, float *out)
{
    const gckpti_operand v =
        gckpti_operand_of(gckpti_arg_values(&h->call->in[2]), tile + from * h->kv_c, 1, h->kv_c, 0);
    gckpti_product t = gckpti_product_of(1, h->d, n - from, gckpti_matrix(p + from, 0, 1), v, out);
    t.accumulate = 1, t.k_period = GCKPTI_K_BLOCK, t.k_offset = from;
    gckpti_attention_product(h->call, &t);
}

/* Computes up to 64 queries of a head. scratch: D floats if the output has 16 bits. */
static void gckpti_attention_output(const gckpti_attn *h, int64_t row, int64_t head, int64_t first,
                                    float *scratch)
{
    const gckpt_call *call = h->call;
    const int64_t d = h->d, end = gckpti_min(h->t, first + GCKPTI_KEY_TILE);
    const gckpti_destination to = gckpti_out_of(call);
    float p[GCKPTI_KEY_TILE];
    head += row * h->heads;
    for (int64_t i = first; i < end; i++) {
        const int64_t at = gckpti_attn_at_q(h, head) + i * h->c;
        const int64_t visible = gckpti_min(h->visible.keys, i + 1 + h->visible.ahead);
        const int64_t first_tile = gckpti_attn_first_tile(h, i);
        const gckpti_operand q = gckpti_operand_of(gckpti_arg_values(&call->in[0]), at, 0, 1, 0);
        float max = 0.0f, sum = 0.0f, *out = gckpti_open(call, to, at, d, 0, scratch);
        if (out)
            gckpti_zero_unless(out, d, 0);
        for (int64_t j0 = first_tile; j0 < visible; j0 += GCKPTI_KEY_TILE) {
            const int64_t n = gckpti_min(visible - j0, GCKPTI_KEY_TILE);
            const int64_t tile = gckpti_attn_at_k(h, head) + gckpti_attn_offset(h, j0);
            const int64_t from = gckpti_attn_masked(h, i, j0, n);
            const gckpti_operand k = gckpti_operand_of(gckpti_arg_values(&call->in[1]),
                                                       tile + from * h->kv_c, h->kv_c, 1, 0);
            const gckpti_product scores = gckpti_product_of(1, n - from, d, q, k, p + from);
            gckpti_attention_product(call, &scores);
            for (int64_t j = 0; j < n; j++)
                p[j] = j < from ? -GCKPTI_INFINITY : gckpti_attn_score(h, p[j]);
            float factor = gckpti_online(p, p, n, j0 == first_tile, &max, &sum);
            for (int64_t e = 0; out && j0 > first_tile && e < d; e++)
                out[e] *= factor;
            if (out)
                gckpti_attention_values(h, p, tile, from, n, out);
        }
        gckpti_softmax_end(&max, &sum);
        for (int64_t e = 0; gckpti_is_mixed(call) && out && e < d; e++)
            out[e] += 0.0f; /* a backend may add masked terms as zeros */
        if (out)
            gckpti_divide(out, sum, d);
        gckpti_close(call, to, at, d, out);
        if (call->saved)
            ((float *)call->saved)[head * h->t + i] = max + gckpti_log(sum);
    }
}

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

GCKPTI_FN void gckpti_attn_add_visible(const gckpti_attn *h, const gckpti_product *t, int across,
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
            gckpti_attention_product(h->call, &row);
    }
}

/* ---- gradients of a query head. f32 plans add them in place. In plans that round, scratch has dk
 * and dv, in f32, of a block of keys (or of all, if heads share keys), two rows, and dq ---- */
/* A block of m queries from query i on and n keys from key j on: rows of the operands and, if they
 * are required, of dq, dk and dv. */
typedef struct {
    const gckpti_attn *h;
    gckpti_operand q, k, v, g;
    float *grad[3], *wide[2]; /* wide: if the plan rounds, a row of g and of the output */
    int64_t grad_stride[3];   /* distance of two rows of each gradient */
    int64_t head, i, m, j, n, diagonal;
} gckpti_attn_block;

/* Computes p and ds of a block, in rows of GCKPTI_K_BLOCK. */
static void gckpti_block_p_ds(const gckpti_attn_block *s, float *p, float *ds)
{
    const gckpti_attn *h = s->h;
    const gckpt_call *call = h->call;
    const gckpti_source out = gckpti_source_of(gckpti_out_of(call));
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
        gckpti_attention_product(call, &t);
        if (needs_ds) {
            t.a = gckpti_operand_at(&s->g, r * h->c), t.c = ds + from;
            t.b = gckpti_operand_at(&s->v, from * h->kv_c);
            gckpti_attention_product(call, &t);
            const int64_t at = gckpti_attn_at_q(h, s->head) + (s->i + r) * h->c;
            delta = gckpti_dot(gckpti_read(call, gckpti_grad_out_of(call), at, h->d, s->wide[0]),
                               gckpti_read(call, out, at, h->d, s->wide[1]), h->d);
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
        gckpti_product t = gckpti_product_of(i ? s->n : s->m, s->h->d, i ? s->m : s->n,
                                             i ? gckpti_transpose(&terms) : terms,
                                             gckpti_transpose(rows[i]), s->grad[i]);
        t.c_stride = s->grad_stride[i];
        if (s->grad[i])
            gckpti_attn_add_visible(s->h, &t, !i, s->diagonal);
    }
}

/* Returns where n rows of a head's gradient of input i, from element `at` on, are added: NULL if
 * nowhere; in plans that round scratch[offset], where the present values are written if `load`. */
static float *gckpti_attn_gradient(const gckpti_attn *h, int i, int64_t at, int64_t n, int load,
                                   float *scratch, int64_t offset)
{
    const gckpti_destination to = gckpti_arg_gradient(&h->call->in[i]);
    if (!gckpti_is_mixed(h->call) || !gckpti_is_set(to))
        return gckpti_f32(to) ? gckpti_f32(to) + at : NULL;
    if (load)
        gckpti_attn_load_grad(h, i, at, n, scratch + offset, h->d);
    return scratch + offset;
}

static void gckpti_attention_gradients(const gckpti_attn *h, int64_t row, int64_t head,
                                       float *scratch)
{
    enum { QUERIES = GCKPTI_MIXED_ROWS, KEYS = GCKPTI_K_BLOCK }; /* any sizes give the f32 bits */
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const gckpti_source g = gckpti_grad_out_of(call);
    const int mixed = gckpti_is_mixed(call), first = head % h->group == 0;
    const int last = mixed && (head + 1) % h->group == 0;
    const int64_t keys = mixed ? gckpti_ceil_to(h->shared_keys ? h->s : 1, KEYS) * h->d : 0;
    const int64_t at_q = gckpti_attn_at_q(h, row * h->heads + head);
    float p[QUERIES * KEYS], ds[QUERIES * KEYS];
    gckpti_attn_block s;
    memset(&s, 0, sizeof s);
    s.h = h, s.head = row * h->heads + head;
    for (int i = 0; i < 2 && mixed; i++)
        s.wide[i] = scratch + 2 * keys + i * h->d;
    s.grad_stride[0] = mixed ? h->d : h->c,
    s.grad_stride[1] = s.grad_stride[2] = mixed ? h->d : h->kv_c;
    float *dq = gckpti_attn_gradient(h, 0, at_q, h->t, 1, scratch, 2 * keys + 2 * h->d);
    for (s.j = gckpti_attn_first_tile(h, 0); s.j < h->visible.keys; s.j += KEYS) {
        const int64_t key = gckpti_attn_at_k(h, s.head) + s.j * h->kv_c;
        s.n = gckpti_min(h->visible.keys - s.j, KEYS);
        s.k = gckpti_operand_of(gckpti_arg_values(&in[1]), key, h->kv_c, 1, 0);
        s.v = gckpti_operand_of(gckpti_arg_values(&in[2]), key, h->kv_c, 1, 0);
        for (int i = 1; i < 3; i++)
            s.grad[i] = gckpti_attn_gradient(h, i, key, s.n, first, scratch,
                                             (i - 1) * keys + (h->shared_keys ? s.j * h->d : 0));
        for (s.i = 0; s.i < h->t && gckpti_attn_first_key(h, s.i) < s.j + s.n; s.i += QUERIES) {
            s.m = gckpti_min(h->t - s.i, QUERIES), s.diagonal = s.i + h->visible.ahead - s.j;
            s.q = gckpti_operand_of(gckpti_arg_values(&in[0]), at_q + s.i * h->c, h->c, 1, 0);
            s.g = gckpti_operand_of(g, at_q + s.i * h->c, h->c, 1, 0);
            s.grad[0] = dq ? dq + s.i * s.grad_stride[0] : NULL;
            gckpti_block_p_ds(&s, p, ds);
            gckpti_block_add(&s, p, ds);
        }
        for (int i = 1; i < 3 && last; i++)
            gckpti_attn_end_grad(h, i, key, s.n, s.grad[i]);
    }
    if (mixed)
        gckpti_attn_end_grad(h, 0, at_q, h->t, dq);
}
#endif
