#include "ops/internal.h"

#ifndef GCKPT_NO_BF16
GCKPTI_FN int gckpti_has_builtin_flag(const gckpt_op *op, int flag)
{
    return op->flags & GCKPTI_BUILTIN_OP && op->flags & (unsigned)flag;
}

/* ---- elements of matrix products in bf16 plans (manual, 5l) ---- */
GCKPTI_FN gckpti_terms gckpti_terms_of(const gckpti_operand *x, int64_t at, int64_t step)
{
    const int narrow = gckpti_has_bf16(x->bf16);
    const gckpti_terms l = { narrow ? NULL : x->f32 + at, narrow ? x->bf16 + at : NULL, step };
    return l;
}

static gckpti_terms gckpti_terms_from(const gckpti_terms *x, int64_t p)
{
    const gckpti_terms l = { x->f32 ? x->f32 + p * x->step : NULL,
                             x->bf16 ? x->bf16 + p * x->step : NULL, x->step };
    return l;
}

static float gckpti_mixed_term(const gckpti_terms *a, const gckpti_terms *b, int64_t p, float d)
{
    const uint16_t x = a->bf16 ? a->bf16[p * a->step] : gckpti_to_bf16(a->f32[p * a->step]);
    const uint16_t y = b->bf16 ? b->bf16[p * b->step] : gckpti_to_bf16(b->f32[p * b->step]);
    return gckpti_flushed_fma(gckpti_flush_to_zero(gckpti_from_bf16(x)),
                              gckpti_flush_to_zero(gckpti_from_bf16(y)), d);
}

GCKPTI_FN float gckpti_mixed_block(const gckpti_terms *a, const gckpti_terms *b, int64_t first,
                                   int64_t end, float element)
{
    float chain[2] = { 0.0f, 0.0f };
    for (int64_t p = first; p < end; p++)
        chain[p & 1] = gckpti_mixed_term(a, b, p, chain[p & 1]);
    return gckpti_flush_to_zero(gckpti_flush_to_zero(element) +
                                gckpti_flush_to_zero(chain[0] + chain[1]));
}

GCKPTI_FN float gckpti_mixed_blocks(const gckpti_terms *a, const gckpti_terms *b, int64_t first,
                                    int64_t end, float element)
{
    for (int64_t p = first, next; p < end; p = next) {
        next = gckpti_min(p / GCKPTI_K_BLOCK * GCKPTI_K_BLOCK + GCKPTI_K_BLOCK, end);
        element = gckpti_mixed_block(a, b, p, next, element);
    }
    return element;
}

/* ---- matrix products, element by element (see ops/products.c) ---- */
static float gckpti_mixed_start(const gckpti_product *t, int64_t at, int64_t j)
{
    if (t->accumulate)
        return t->c ? t->c[at] : gckpti_from_bf16(t->c_bf16[at]);
    return t->initial ? t->initial[j] : 0.0f;
}

GCKPTI_FN float gckpti_mixed_element(const gckpti_product *t, int64_t a, int64_t b, float d)
{
    const gckpti_terms x = gckpti_terms_of(&t->a, a, t->a.k_stride);
    const gckpti_terms y = gckpti_terms_of(&t->b, b, t->b.k_stride);
    const int64_t period = t->k_period ? t->k_period : t->k;
    if (gckpti_is_chain(t)) {
        d = gckpti_flush_to_zero(d);
        for (int64_t p = 0; p < t->k; p++)
            d = gckpti_mixed_term(&x, &y, p, d);
        return d;
    }
    for (int64_t p = 0, n; p < t->k; p += n) {
        const gckpti_terms u = gckpti_terms_from(&x, p), v = gckpti_terms_from(&y, p);
        n = gckpti_min(period - (t->k_offset + p) % period, t->k - p);
        d = gckpti_mixed_blocks(&u, &v, 0, n, d);
    }
    return d;
}

static void gckpti_mixed_set(const gckpti_product *t, int64_t at, float d)
{
    if (t->c)
        t->c[at] = d;
    else
        t->c_bf16[at] = gckpti_to_bf16(d);
}

/* Computes column j of up to GCKPTI_STRIP rows; a quantised b is dequantised once for them. */
static void gckpti_mixed_column(const gckpti_product *t, int64_t i, int64_t j)
{
    float d[GCKPTI_STRIP], w[GCKPTI_K_BLOCK];
    const gckpti_terms y = { w, NULL, 1 };
    const int64_t rows = gckpti_min(t->m - i, GCKPTI_STRIP), step = t->b.k_stride;
    for (int64_t r = 0; r < rows; r++)
        d[r] = gckpti_mixed_start(t, (i + r) * t->n + j, j);
    for (int64_t p = 0, n; p < t->k; p += n) {
        const int64_t at = j * t->b.stride + p * step;
        n = gckpti_min(t->k - p, GCKPTI_K_BLOCK);
        if (step == 1)
            gckpti_dequantise(t->b.quant, at, n, w);
        for (int64_t l = 0; l < n && step != 1; l++)
            gckpti_dequantise(t->b.quant, at + l * step, 1, w + l);
        for (int64_t r = 0; r < rows; r++) {
            const gckpti_terms x =
                gckpti_terms_of(&t->a, (i + r) * t->a.stride + p * t->a.k_stride, t->a.k_stride);
            d[r] = gckpti_mixed_blocks(&x, &y, 0, n, d[r]);
        }
    }
    for (int64_t r = 0; r < rows; r++)
        gckpti_mixed_set(t, (i + r) * t->n + j, d[r]);
}

GCKPTI_FN void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t)
{
    const int quant = gckpti_has_quant(&t->b);
    (void)call;
    for (int64_t i = 0; quant && i < t->m; i += GCKPTI_STRIP)
        for (int64_t j = 0; j < t->n; j++)
            gckpti_mixed_column(t, i, j);
    for (int64_t i = 0; i < t->batch * t->m && !quant; i++)
        for (int64_t j = 0; j < t->n; j++) {
            const int64_t a = i / t->m * t->a.batch_stride + i % t->m * t->a.stride,
                          at = i * t->n + j;
            const int64_t b = i / t->m * t->b.batch_stride + j * t->b.stride;
            const float d = gckpti_mixed_element(t, a, b, gckpti_mixed_start(t, at, j));
            gckpti_mixed_set(t, at, d);
        }
}

GCKPTI_FN int64_t gckpti_mixed_attention_workspace(const gckpt_call *call, int64_t t, int64_t s,
                                                   int64_t d, int backward)
{
    const int64_t block = GCKPTI_K_BLOCK, tile = GCKPTI_KEY_TILE;
    const int64_t multiple = gckpti_is_plain(call) ? block : tile;
    const int64_t operand = tile / 2 * gckpti_ceil_to(d, GCKPTI_K_BLOCK); /* packed operands */
    const int64_t keys = s ? gckpti_ceil_to(s, multiple) : multiple; /* rows of dk and dv, in f32 */
    const int64_t d_vec = gckpti_ceil_to(d, 16), along = tile * d_vec, scores = tile * tile;
    if (gckpti_is_plain(call))
        return backward ? (t + 2 * keys + 2) * d + GCKPTI_K_BLOCK * GCKPTI_K_BLOCK : d;
    return backward ? 2 * keys * d_vec + along / 2 + 3 * operand + 5 * scores / 2 +
                          gckpti_ceil_to(t, GCKPTI_KEY_TILE) * (d_vec + 1)
                    : along + 2 * operand + scores;
}

/* ---- attention (see ops/attention.c). A result that is a zero becomes +0, since a backend may add
 * masked terms as zeros. */
static float gckpti_mixed_score(const gckpti_operand *a, int64_t i, const gckpti_operand *b,
                                int64_t j, int64_t d)
{
    const gckpti_terms x = gckpti_terms_of(a, i * a->stride, 1),
                       y = gckpti_terms_of(b, j * b->stride, 1);
    return gckpti_mixed_blocks(&x, &y, 0, d, 0.0f);
}

GCKPTI_FN void gckpti_mixed_scores(const gckpti_attn *h, int64_t at, int64_t key, int64_t first,
                                   int64_t end, float *out)
{
    const gckpti_operand q = gckpti_arg_operand(&h->call->in[0], at, h->c, 1, 0);
    const gckpti_operand k = gckpti_arg_operand(&h->call->in[1], key, h->kv_c, 1, 0);
    for (int64_t j = first; j < end; j++)
        out[j] = gckpti_mixed_score(&q, 0, &k, j, h->d);
}

GCKPTI_FN void gckpti_mixed_values(const gckpti_attn *h, const float *p, int64_t key, int64_t first,
                                   int64_t end, float *out)
{
    const gckpti_operand v = gckpti_arg_operand(&h->call->in[2], key, h->kv_c, 1, 0);
    const gckpti_terms exps = { p, NULL, 1 };
    for (int64_t e = 0; e < h->d; e++) {
        const gckpti_terms y = gckpti_terms_of(&v, e, h->kv_c);
        out[e] = gckpti_mixed_blocks(&exps, &y, first, end, out[e]) + 0.0f;
    }
}

/* Returns n rows of a gradient in f32, or NULL if it is not required: in place or, if it is bf16,
 * in `scratch`, d apart, filled unless `loaded`. gckpti_mixed_put_grad rounds them to bf16. */
static float *gckpti_mixed_load_grad(const gckpt_arg *arg, int64_t at, int64_t n, int64_t d,
                                     float *scratch, int loaded)
{
    const int64_t row = arg->shape.d[2];
    if (arg->grad || !gckpti_has_bf16(arg->grad_bf16))
        return arg->grad ? arg->grad + at : NULL;
    for (int64_t i = 0; !loaded && i < n; i++)
        if (arg->accumulate)
            gckpti_from_bf16s(arg->grad_bf16 + at + i * row, scratch + i * d, d);
        else
            gckpti_zero_unless(scratch + i * d, d, 0);
    return scratch;
}

static void gckpti_mixed_put_grad(const gckpt_arg *arg, int64_t at, int64_t n, int64_t d, float *x)
{
    const int64_t row = arg->shape.d[2], step = arg->grad ? row : d;
    for (int64_t i = 0; x && i < n; i++, x += step) {
        for (int64_t e = 0; e < d; e++)
            x[e] += 0.0f;
        if (!arg->grad)
            gckpti_to_bf16s(x, arg->grad_bf16 + at + i * row, d);
    }
}

/* Returns D elements from `at` on: of x or, widened into `scratch`, of x_bf16. */
static const float *gckpti_mixed_f32_row(const gckpti_attn *h, const float *x,
                                         const uint16_t *x_bf16, int64_t at, float *scratch)
{
    if (gckpti_has_f32(x))
        return x + at;
    gckpti_from_bf16s(x_bf16 + at, scratch, h->d);
    return scratch;
}

static int64_t gckpti_clamp_count(int64_t x, int64_t most)
{
    return x < 0 ? 0 : gckpti_min(x, most);
}

/* Return ranges of a block: the keys that its query r sees, the queries that see its key r. */
static int64_t gckpti_tile_visible_keys(const gckpti_attn_tile *s, int64_t r, int64_t *from)
{
    *from = gckpti_attn_masked(s->h, s->i + r, s->j, s->n);
    return gckpti_clamp_count(s->i + r + 1 + s->h->visible.ahead - s->j, s->n);
}

static int64_t gckpti_tile_visible_queries(const gckpti_attn_tile *s, int64_t r, int64_t *end)
{
    const int64_t first = s->j + r - s->h->visible.ahead - s->i;
    *end = gckpti_clamp_count(first + s->h->window, s->m);
    return gckpti_clamp_count(first, s->m);
}

/* Computes p and ds of a block in bf16, in rows of GCKPTI_K_BLOCK; scratch: two rows of a head. */
static void gckpti_tile_p_ds(const gckpti_attn_tile *s, uint16_t *p, uint16_t *ds, float *scratch)
{
    const gckpti_attn *h = s->h;
    const gckpt_call *call = h->call;
    const int64_t d = h->d;
    const int needs_ds = s->dq.x || s->dk.x;
    for (int64_t r = 0; r < s->m; r++, p += GCKPTI_K_BLOCK, ds += GCKPTI_K_BLOCK) {
        int64_t from;
        const int64_t n = gckpti_tile_visible_keys(s, r, &from), query = s->i + r;
        const int64_t at = gckpti_attn_at_q(h, s->head) + query * h->c;
        const float lse = ((const float *)call->saved)[s->head * h->t + query];
        float delta = 0.0f;
        if (n && needs_ds) /* delta: sum(g out) */
            delta = gckpti_dot(
                gckpti_mixed_f32_row(h, call->grad_out, call->grad_out_bf16, at, scratch),
                gckpti_mixed_f32_row(h, call->out, call->out_bf16, at, scratch + d), d);
        for (int64_t j = from; j < n; j++) {
            const float score = gckpti_attn_score(h, gckpti_mixed_score(&s->q, r, &s->k, j, d));
            const float x = gckpti_exp(score - lse);
            p[j] = gckpti_to_bf16(x);
            if (needs_ds) {
                const float dp = gckpti_mixed_score(&s->g, r, &s->v, j, d);
                ds[j] = gckpti_to_bf16(gckpti_attn_ds(h, x, dp - delta, score));
            }
        }
    }
}

/* Adds terms first..end-1 of p, times rows of x, to one row (d elements) of a gradient. */
static void gckpti_tile_gradient(const gckpti_terms *p, int64_t first, int64_t end,
                                 const gckpti_operand *x, const gckpti_grad_rows *to, int64_t d)
{
    for (int64_t e = 0; first < end && e < d; e++) {
        const gckpti_terms y = gckpti_terms_of(x, e, x->stride);
        float *at = to->x + e * to->step;
        *at = gckpti_mixed_block(p, &y, first, end, *at);
    }
}

GCKPTI_FN void gckpti_attn_tile_add(const gckpti_attn_tile *s)
{
    const int64_t d = s->h->d;
    gckpti_grad_rows dq = s->dq, dk = s->dk, dv = s->dv;
    int64_t from, end;
    for (int64_t r = 0; dq.x && r < s->m; r++, dq.x += dq.row) {
        const gckpti_terms ds = gckpti_terms_of(&s->ds, r * s->ds.stride, 1);
        end = gckpti_tile_visible_keys(s, r, &from);
        gckpti_tile_gradient(&ds, from, end, &s->k, &dq, d);
    }
    for (int64_t r = 0; dk.x && r < s->n; r++, dk.x += dk.row) {
        const gckpti_terms ds = gckpti_terms_of(&s->ds, r, s->ds.stride);
        from = gckpti_tile_visible_queries(s, r, &end);
        gckpti_tile_gradient(&ds, from, end, &s->q, &dk, d);
    }
    for (int64_t r = 0; dv.x && r < s->n; r++, dv.x += dv.row) {
        const gckpti_terms p = gckpti_terms_of(&s->p, r, s->p.stride);
        from = gckpti_tile_visible_queries(s, r, &end);
        gckpti_tile_gradient(&p, from, end, &s->g, &dv, d);
    }
}

GCKPTI_FN void gckpti_mixed_gradients(const gckpti_attn *h, int64_t head, float *scratch)
{
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const gckpt_arg grad = { call->grad_out,      NULL, NULL, 0, NULL, call->shape,
                             call->grad_out_bf16, NULL, NULL };
    const int64_t c = h->c, kv_c = h->kv_c, d = h->d, index = head % h->group;
    const int64_t at_q = gckpti_attn_at_q(h, head), at_k = gckpti_attn_at_k(h, head);
    const int64_t key_step = h->shared_keys ? d : 0;
    const int64_t all_keys = gckpti_ceil_to(h->shared_keys ? h->s : 1, GCKPTI_K_BLOCK) * d;
    float *row_pair = scratch + 2 * all_keys, *p_ds = row_pair + 2 * d;
    void *words = p_ds;
    uint16_t *p = (uint16_t *)words, *ds = p + GCKPTI_K_BLOCK * GCKPTI_K_BLOCK;
    gckpti_attn_tile s;
    memset(&s, 0, sizeof s);
    s.h = h, s.head = head, s.dq.step = s.dk.step = s.dv.step = 1;
    s.dq.row = in[0].grad ? c : d, s.dk.row = in[1].grad ? kv_c : d,
    s.dv.row = in[2].grad ? kv_c : d;
    s.p.bf16 = p, s.ds.bf16 = ds, s.p.stride = s.ds.stride = GCKPTI_K_BLOCK;
    float *dq =
        gckpti_mixed_load_grad(&in[0], at_q, h->t, d, p_ds + GCKPTI_K_BLOCK * GCKPTI_K_BLOCK, 0);
    for (s.j = gckpti_attn_first_tile(h, 0); s.j < h->visible.keys; s.j += GCKPTI_K_BLOCK) {
        const int64_t key = at_k + s.j * kv_c;
        float *dk = scratch + s.j * key_step, *dv = dk + all_keys;
        s.n = gckpti_min(h->visible.keys - s.j, GCKPTI_K_BLOCK);
        s.k = gckpti_arg_operand(&in[1], key, kv_c, 1, 0);
        s.v = gckpti_arg_operand(&in[2], key, kv_c, 1, 0);
        s.dk.x = gckpti_mixed_load_grad(&in[1], key, s.n, d, dk, index > 0);
        s.dv.x = gckpti_mixed_load_grad(&in[2], key, s.n, d, dv, index > 0);
        for (s.i = 0; s.i < h->t; s.i += GCKPTI_K_BLOCK) {
            const int64_t at = at_q + s.i * c;
            if (gckpti_attn_first_key(h, s.i) >= s.j + s.n)
                break;
            s.m = gckpti_min(h->t - s.i, GCKPTI_K_BLOCK);
            s.q = gckpti_arg_operand(&in[0], at, c, 1, 0),
            s.g = gckpti_arg_operand(&grad, at, c, 1, 0);
            s.dq.x = dq ? dq + s.i * s.dq.row : NULL;
            gckpti_tile_p_ds(&s, p, ds, row_pair);
            gckpti_attn_tile_add(&s);
        }
        if (index + 1 < h->group)
            continue;
        gckpti_mixed_put_grad(&in[1], key, s.n, d, s.dk.x);
        gckpti_mixed_put_grad(&in[2], key, s.n, d, s.dv.x);
    }
    gckpti_mixed_put_grad(&in[0], at_q, h->t, d, dq);
}
#endif
