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
GCKPTI_FN void gckpti_mixed_scores(const gckpti_attn *h, int64_t at, int64_t key, int64_t first,
                                   int64_t end, float *out)
{
    const gckpti_product t = gckpti_product_of(
        1, end - first, h->d, gckpti_arg_operand(&h->call->in[0], at, 0, 1, 0),
        gckpti_arg_operand(&h->call->in[1], key + first * h->kv_c, h->kv_c, 1, 0), out + first);
    gckpti_mixed_plain(h->call, &t);
}

GCKPTI_FN void gckpti_mixed_values(const gckpti_attn *h, const float *p, int64_t key, int64_t first,
                                   int64_t end, float *out)
{
    const gckpti_operand v =
        gckpti_arg_operand(&h->call->in[2], key + first * h->kv_c, 1, h->kv_c, 0);
    gckpti_product t =
        gckpti_product_of(1, h->d, end - first, gckpti_matrix(p + first, 0, 1), v, out);
    t.accumulate = 1, t.k_period = GCKPTI_K_BLOCK, t.k_offset = first;
    gckpti_mixed_plain(h->call, &t);
    for (int64_t e = 0; e < h->d; e++)
        out[e] += 0.0f;
}

/* ---- gradients of a query head: scratch has dk and dv, in f32, of a block of keys (or of all, if
 * heads share keys), two rows, and dq ---- */
static int64_t gckpti_mixed_keys(const gckpti_attn *h)
{
    return gckpti_ceil_to(h->shared_keys ? h->s : 1, GCKPTI_K_BLOCK) * h->d;
}

/* Returns where a head's dq (i = 0) begins, or dk and dv of a block's keys. */
static int64_t gckpti_attn_grad_at(const gckpti_attn_tile *s, int i)
{
    return i ? gckpti_attn_at_k(s->h, s->head) + s->j * s->h->kv_c
             : gckpti_attn_at_q(s->h, s->head);
}

/* Returns the rows of input i's gradient to which block s adds: all queries (i = 0), or the keys of
 * the block. If it is bf16, they are in scratch until gckpti_mixed_put_grad rounds them. */
static gckpti_grad_rows gckpti_mixed_load_grad(const gckpti_attn_tile *s, int i, float *scratch)
{
    const gckpti_attn *h = s->h;
    const gckpt_arg *arg = &h->call->in[i];
    const int64_t d = h->d, n = i ? s->n : h->t, at = gckpti_attn_grad_at(s, i);
    const int64_t begin = i ? (i - 1) * gckpti_mixed_keys(h) + (h->shared_keys ? s->j * d : 0)
                            : 2 * gckpti_mixed_keys(h) + 2 * d;
    const int in_place = arg->grad || !arg->grad_bf16;
    const gckpti_grad_rows to = { !in_place   ? scratch + begin
                                  : arg->grad ? arg->grad + at
                                              : NULL,
                                  in_place ? arg->shape.d[2] : d };
    const int loaded = i && s->head % h->group; /* by the first head with these keys */
    for (int64_t r = 0; r < n && !in_place && !loaded; r++)
        if (arg->accumulate)
            gckpti_from_bf16s(arg->grad_bf16 + at + r * arg->shape.d[2], to.x + r * d, d);
        else
            gckpti_zero_unless(to.x + r * d, d, 0);
    return to;
}

static void gckpti_mixed_put_grad(const gckpti_attn_tile *s, int i, gckpti_grad_rows x)
{
    const gckpti_attn *h = s->h;
    const gckpt_arg *arg = &h->call->in[i];
    const int64_t n = i ? s->n : h->t, at = gckpti_attn_grad_at(s, i);
    const int last = !i || s->head % h->group + 1 == h->group;
    for (int64_t r = 0; x.x && last && r < n; r++, x.x += x.row) {
        for (int64_t e = 0; e < h->d; e++)
            x.x[e] += 0.0f;
        if (!arg->grad)
            gckpti_to_bf16s(x.x, arg->grad_bf16 + at + r * arg->shape.d[2], h->d);
    }
}

/* Returns sum(g out) of the query at element `at` of g and out. */
static float gckpti_mixed_delta(const gckpti_attn *h, int64_t at, float *scratch)
{
    const gckpt_call *call = h->call;
    float *g = scratch + 2 * gckpti_mixed_keys(h), *out = g + h->d;
    if (call->grad_out_bf16)
        gckpti_from_bf16s(call->grad_out_bf16 + at, g, h->d);
    if (call->out_bf16)
        gckpti_from_bf16s(call->out_bf16 + at, out, h->d);
    return gckpti_dot(call->grad_out_bf16 ? g : call->grad_out + at,
                      call->out_bf16 ? out : call->out + at, h->d);
}
static int64_t gckpti_clamp_count(int64_t x, int64_t most)
{
    return x < 0 ? 0 : gckpti_min(x, most);
}

/* Returns the first of a block's keys that query r sees or, if `across` is 0, of the queries that
 * see key r, and sets *end. */
static int64_t gckpti_tile_terms(const gckpti_attn_tile *s, int across, int64_t r, int64_t *end)
{
    const int64_t last = r + s->i + s->h->visible.ahead - s->j, window = s->h->window;
    const int64_t first = across ? last + 1 - window : 2 * r - last, n = across ? s->n : s->m;
    *end = gckpti_clamp_count(first + window, n);
    return gckpti_clamp_count(first, n);
}

/* Computes p and ds of a block, in rows of GCKPTI_K_BLOCK. */
static void gckpti_tile_p_ds(const gckpti_attn_tile *s, float *p, float *ds, float *scratch)
{
    const gckpti_attn *h = s->h;
    const gckpt_call *call = h->call;
    const int needs_ds = s->grad[0].x || s->grad[1].x;
    for (int64_t r = 0; r < s->m; r++, p += GCKPTI_K_BLOCK, ds += GCKPTI_K_BLOCK) {
        int64_t end;
        const int64_t from = gckpti_tile_terms(s, 1, r, &end), n = end - from, query = s->i + r;
        const float lse = ((const float *)call->saved)[s->head * h->t + query];
        float delta = 0.0f;
        if (n <= 0)
            continue;
        gckpti_product t = gckpti_product_of(1, n, h->d, gckpti_operand_at(&s->q, r * h->c),
                                             gckpti_operand_at(&s->k, from * h->kv_c), p + from);
        gckpti_mixed_plain(call, &t);
        if (needs_ds) {
            t.a = gckpti_operand_at(&s->g, r * h->c), t.c = ds + from;
            t.b = gckpti_operand_at(&s->v, from * h->kv_c);
            gckpti_mixed_plain(call, &t);
            const int64_t at = gckpti_attn_at_q(h, s->head) + query * h->c;
            delta = gckpti_mixed_delta(h, at, scratch);
        }
        for (int64_t j = from; j < end; j++) {
            const float score = gckpti_attn_score(h, p[j]);
            p[j] = gckpti_exp(score - lse);
            if (needs_ds)
                ds[j] = gckpti_attn_ds(h, p[j], ds[j] - delta, score);
        }
    }
}

GCKPTI_FN void gckpti_attn_tile_add(const gckpti_attn_tile *s)
{
    const gckpti_operand *const rows[3] = { &s->k, &s->q, &s->g };
    for (int i = 0; i < 3; i++) {
        const gckpti_operand terms = i < 2 ? s->ds : s->p;
        const gckpti_operand p = i ? gckpti_transpose(&terms) : terms;
        float *to = s->grad[i].x;
        for (int64_t r = 0, end; to && r < (i ? s->n : s->m); r++, to += s->grad[i].row) {
            const int64_t first = gckpti_tile_terms(s, i == 0, r, &end);
            const gckpti_operand x = gckpti_operand_at(rows[i], first * rows[i]->stride);
            gckpti_product t = gckpti_product_of(
                1, s->h->d, end - first, gckpti_operand_at(&p, r * p.stride + first * p.k_stride),
                gckpti_transpose(&x), to);
            t.accumulate = 1;
            if (first < end)
                gckpti_mixed_plain(s->h->call, &t);
        }
    }
}

GCKPTI_FN void gckpti_mixed_gradients(const gckpti_attn *h, int64_t row, int64_t head,
                                      float *scratch)
{
    enum { BLOCK = GCKPTI_K_BLOCK };
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const gckpti_operand g = { call->grad_out, call->grad_out_bf16, h->c, 1, 0, NULL };
    float p[BLOCK * BLOCK], ds[BLOCK * BLOCK];
    gckpti_attn_tile s;
    memset(&s, 0, sizeof s);
    s.h = h, s.head = row * h->heads + head;
    s.p.f32 = p, s.ds.f32 = ds;
    s.p.stride = s.ds.stride = BLOCK, s.p.k_stride = s.ds.k_stride = 1;
    const gckpti_grad_rows dq = gckpti_mixed_load_grad(&s, 0, scratch);
    for (s.j = gckpti_attn_first_tile(h, 0); s.j < h->visible.keys; s.j += BLOCK) {
        const int64_t key = gckpti_attn_grad_at(&s, 1);
        s.n = gckpti_min(h->visible.keys - s.j, BLOCK);
        s.k = gckpti_arg_operand(&in[1], key, h->kv_c, 1, 0);
        s.v = gckpti_arg_operand(&in[2], key, h->kv_c, 1, 0);
        for (int i = 1; i < 3; i++)
            s.grad[i] = gckpti_mixed_load_grad(&s, i, scratch);
        for (s.i = 0; s.i < h->t && gckpti_attn_first_key(h, s.i) < s.j + s.n; s.i += BLOCK) {
            const int64_t at = gckpti_attn_at_q(h, s.head) + s.i * h->c;
            s.m = gckpti_min(h->t - s.i, BLOCK);
            s.q = gckpti_arg_operand(&in[0], at, h->c, 1, 0), s.g = gckpti_operand_at(&g, at);
            s.grad[0] = dq, s.grad[0].x = dq.x ? dq.x + s.i * dq.row : NULL;
            gckpti_tile_p_ds(&s, p, ds, scratch);
            gckpti_attn_tile_add(&s);
        }
        for (int i = 1; i < 3; i++)
            gckpti_mixed_put_grad(&s, i, s.grad[i]);
    }
    gckpti_mixed_put_grad(&s, 0, dq);
}
#endif
