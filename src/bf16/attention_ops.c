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

/* Loads n rows of a head's gradient of input i, from element `at` on, to s->grad[i] (+0 unless it
 * accumulates) or, if `stores`, adds +0 to these rows and stores them. */
static void gckpti_attn_move_grad(const gckpti_attn_tile *s, int i, int64_t at, int64_t n,
                                  int stores)
{
    const int64_t d = s->h->d;
    const gckpt_call *call = s->h->call;
    const gckpt_arg *arg = &call->in[i];
    float *x = s->grad[i];
    for (int64_t r = 0; x && r < n; r++, at += arg->shape.d[2], x += s->row)
        if (stores) {
            for (int64_t e = 0; e < d; e++)
                x[e] += 0.0f;
            gckpti_store(call, gckpti_arg_gradient(arg), at, d, x);
        } else if (!arg->accumulate) {
            memset(x, 0, (size_t)s->row * sizeof *x);
        } else if (arg->grad) {
            memcpy(x, arg->grad + at, (size_t)d * sizeof *x);
        } else {
            gckpti_widen_row(call, arg->grad_bf16 + at, x, d);
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

GCKPTI_FN void gckpti_attn_tiles(gckpti_attn_tile *s, gckpti_attn_tile_fn keys,
                                 gckpti_attn_tile_fn add)
{
    const gckpti_attn *h = s->h;
    const gckpt_arg *in = h->call->in;
    const gckpti_source g = gckpti_grad_out_of(h->call);
    const int64_t at_q = gckpti_attn_at_q(h, s->head), member = s->head % h->group;
    float *all[3];
    for (int i = 0; i < 3; i++)
        all[i] = s->grad[i] = gckpti_is_set(gckpti_arg_gradient(&in[i])) ? s->grad[i] : NULL;
    gckpti_attn_move_grad(s, 0, at_q, h->t, 0);
    for (s->j = gckpti_attn_first_tile(h, 0); s->j < h->visible.keys; s->j += s->size) {
        const int64_t key = gckpti_attn_at_k(h, s->head) + s->j * h->kv_c;
        const int64_t query0 = s->j - h->visible.ahead; /* the first that sees key j */
        s->n = gckpti_min(h->visible.keys - s->j, s->size);
        const int64_t end = gckpti_min(h->t, query0 + s->n - 1 + h->window); /* they see a key */
        s->k = gckpti_operand_of(gckpti_arg_values(&in[1]), key, h->kv_c, 1, 0);
        s->v = gckpti_operand_of(gckpti_arg_values(&in[2]), key, h->kv_c, 1, 0);
        for (int i = 1; i < 3; i++) {
            s->grad[i] = all[i] && h->shared_keys ? all[i] + s->j * s->row : all[i];
            if (member == 0)
                gckpti_attn_move_grad(s, i, key, s->n, 0);
        }
        if (keys)
            keys(s);
        for (s->i = query0 > 0 ? query0 / s->size * s->size : 0; s->i < end; s->i += s->size) {
            s->m = gckpti_min(h->t - s->i, s->size), s->diagonal = s->i - query0;
            s->q = gckpti_operand_of(gckpti_arg_values(&in[0]), at_q + s->i * h->c, h->c, 1, 0);
            s->g = gckpti_operand_of(g, at_q + s->i * h->c, h->c, 1, 0);
            s->grad[0] = all[0] ? all[0] + s->i * s->row : NULL;
            add(s);
        }
        for (int i = 1; i < 3 && member + 1 == h->group; i++)
            gckpti_attn_move_grad(s, i, key, s->n, 1);
    }
    s->grad[0] = all[0];
    gckpti_attn_move_grad(s, 0, at_q, h->t, 1);
}

/* Computes p and ds of a tile. */
static void gckpti_attn_p_ds(const gckpti_attn_tile *s, float *p, float *ds)
{
    const gckpti_attn *h = s->h;
    const gckpt_call *call = h->call;
    const int needs_ds = s->grad[0] || s->grad[1];
    for (int64_t r = 0; r < s->m; r++, p += s->size, ds += s->size) {
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

static void gckpti_attn_add_tile(gckpti_attn_tile *s)
{
    float p[GCKPTI_K_BLOCK * GCKPTI_K_BLOCK], ds[GCKPTI_K_BLOCK * GCKPTI_K_BLOCK];
    gckpti_attn_p_ds(s, p, ds);
    for (int i = 0; i < 3; i++) {
        const gckpti_product t = gckpti_attn_terms_product(s, i, i < 2 ? ds : p);
        if (s->grad[i])
            gckpti_mixed_masked(s->h, &t, !i, s->diagonal);
    }
}

GCKPTI_FN void gckpti_mixed_gradients(const gckpti_attn *h, int64_t head, float *scratch)
{
    const int64_t keys = gckpti_ceil_to(h->shared_keys ? h->s : 1, GCKPTI_K_BLOCK) * h->d;
    gckpti_attn_tile s;
    memset(&s, 0, sizeof s);
    s.h = h, s.head = head, s.size = GCKPTI_K_BLOCK, s.row = h->d;
    s.grad[1] = scratch, s.grad[2] = scratch + keys, s.rows = scratch + 2 * keys;
    s.grad[0] = s.rows + 2 * h->d;
    gckpti_attn_tiles(&s, NULL, gckpti_attn_add_tile);
}
#endif
