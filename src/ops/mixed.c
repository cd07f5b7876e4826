#include "ops/own.h"

#ifndef GCKPT_NO_BF16
GCKPTI_FN int gckpti_own_flag(const gckpt_op *op, int flag)
{
    return op->flags & GCKPTI_OWN_ROW && op->flags & (unsigned)flag;
}

/* ---- elements of the matrix products of bf16 plans (manual, 5l) ---- */
GCKPTI_FN gckpti_links gckpti_links_of(const gckpti_factor *x, int64_t at, int64_t step)
{
    const int narrow = gckpti_is_narrow(x->bf16);
    const gckpti_links l = { narrow ? NULL : x->f32 + at, narrow ? x->bf16 + at : NULL, step };
    return l;
}

static gckpti_links gckpti_links_from(const gckpti_links *x, int64_t p)
{
    const gckpti_links l = { x->f32 ? x->f32 + p * x->step : NULL,
                             x->bf16 ? x->bf16 + p * x->step : NULL, x->step };
    return l;
}

/* Link p of these two goes to d. */
static float gckpti_mixed_link(const gckpti_links *a, const gckpti_links *b, int64_t p, float d)
{
    const uint16_t x = a->bf16 ? a->bf16[p * a->step] : gckpti_to_bf16(a->f32[p * a->step]);
    const uint16_t y = b->bf16 ? b->bf16[p * b->step] : gckpti_to_bf16(b->f32[p * b->step]);
    return gckpti_flushed_fma(gckpti_flush(gckpti_from_bf16(x)), gckpti_flush(gckpti_from_bf16(y)),
                              d);
}

GCKPTI_FN float gckpti_mixed_block(const gckpti_links *a, const gckpti_links *b, int64_t first,
                                   int64_t end, float element)
{
    float chain[2] = { 0.0f, 0.0f };
    for (int64_t p = first; p < end; p++)
        chain[p & 1] = gckpti_mixed_link(a, b, p, chain[p & 1]);
    return gckpti_flush(gckpti_flush(element) + gckpti_flush(chain[0] + chain[1]));
}

GCKPTI_FN float gckpti_mixed_blocks(const gckpti_links *a, const gckpti_links *b, int64_t n,
                                    float element)
{
    for (int64_t p = 0; p < n; p += GCKPTI_LINKS) {
        const gckpti_links x = gckpti_links_from(a, p), y = gckpti_links_from(b, p);
        element = gckpti_mixed_block(&x, &y, 0, gckpti_min(n - p, GCKPTI_LINKS), element);
    }
    return element;
}

/* ---- products, one element after the other (see ops/products) ---- */
/* Where an element starts. */
static float gckpti_mixed_start(const gckpti_product *t, int64_t at, int64_t j)
{
    if (t->accumulate)
        return t->c ? t->c[at] : gckpti_from_bf16(t->c_bf16[at]);
    return t->start ? t->start[j] : 0.0f;
}

GCKPTI_FN float gckpti_mixed_element(const gckpti_product *t, int64_t a, int64_t b, float d)
{
    const gckpti_links x = gckpti_links_of(&t->a, a, t->a.step);
    const gckpti_links y = gckpti_links_of(&t->b, b, t->b.step);
    const int64_t run = t->run ? t->run : t->k;
    if (gckpti_is_chain(t)) {
        d = gckpti_flush(d);
        for (int64_t p = 0; p < t->k; p++)
            d = gckpti_mixed_link(&x, &y, p, d);
        return d;
    }
    for (int64_t p = 0, n; p < t->k; p += n) {
        const gckpti_links u = gckpti_links_from(&x, p), v = gckpti_links_from(&y, p);
        n = gckpti_min(run - (t->before + p) % run, t->k - p);
        d = gckpti_mixed_blocks(&u, &v, n, d);
    }
    return d;
}

GCKPTI_FN void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t)
{
    (void)call;
    for (int64_t i = 0; i < t->batch * t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            const int64_t a = i / t->m * t->a.next + i % t->m * t->a.row, at = i * t->n + j;
            const int64_t b = i / t->m * t->b.next + j * t->b.row;
            const float d = gckpti_mixed_element(t, a, b, gckpti_mixed_start(t, at, j));
            if (t->c)
                t->c[at] = d;
            else
                t->c_bf16[at] = gckpti_to_bf16(d);
        }
}

/* ---- attention (see ops/attention): places in a block count from the first key (query) on. What
 * ends as a zero becomes +0, since a backend may let links that are not seen take part as zeros. */
/* Rows of a tensor, `row` apart from `at` on. */
typedef struct {
    gckpti_factor x;
    int64_t at, row;
} gckpti_head_rows;

static gckpti_head_rows gckpti_head_rows_of(const gckpti_heads *h, const gckpt_arg *arg,
                                              int64_t at)
{
    const gckpti_head_rows r = { gckpti_factor_of(arg, 0, h->c, 1, 0), at, h->c };
    return r;
}

/* Element (i, j) of a b'. */
static float gckpti_mixed_score(const gckpti_head_rows *a, int64_t i, const gckpti_head_rows *b,
                                int64_t j, int64_t d)
{
    const gckpti_links x = gckpti_links_of(&a->x, a->at + i * a->row, 1);
    const gckpti_links y = gckpti_links_of(&b->x, b->at + j * b->row, 1);
    return gckpti_mixed_blocks(&x, &y, d, 0.0f);
}

GCKPTI_FN void gckpti_mixed_queries(const gckpti_heads *h, int64_t first, int64_t end, float *rest)
{
    const gckpt_call *call = h->call;
    const int64_t t = h->t, c = h->c, d = h->d;
    const int narrow = gckpti_is_narrow(call->out_bf16);
    float p[GCKPTI_KEY_TILE];
    const gckpti_links exps = { p, NULL, 1 };
    for (int64_t i = first; i < end; i++) { /* query i % t of head i / t % heads */
        const int64_t row = i / t / h->heads, column = i / t % h->heads * d;
        const int64_t at = (row * t + i % t) * c + column, key = row * h->s * c + column;
        const int64_t seen = gckpti_min(h->sight.keys, i % t + 1 + h->sight.ahead);
        const gckpti_head_rows q = gckpti_head_rows_of(h, &call->in[0], at);
        const gckpti_head_rows k = gckpti_head_rows_of(h, &call->in[1], key);
        const gckpti_head_rows v = gckpti_head_rows_of(h, &call->in[2], key);
        float max = 0.0f, sum = 0.0f, *out = narrow ? rest : call->out ? call->out + at : NULL;
        for (int64_t j0 = 0; j0 < seen; j0 += GCKPTI_KEY_TILE) {
            const int64_t n = gckpti_min(seen - j0, GCKPTI_KEY_TILE);
            for (int64_t j = 0; j < n; j++)
                p[j] = gckpti_mul(gckpti_mixed_score(&q, 0, &k, j0 + j, d), h->scale);
            const float factor = gckpti_online(p, p, n, j0 == 0, &max, &sum);
            for (int64_t e = 0; out && e < d; e++) {
                const gckpti_links y = gckpti_links_of(&v.x, v.at + j0 * c + e, c);
                out[e] = gckpti_mixed_blocks(&exps, &y, n, j0 ? out[e] * factor : 0.0f);
            }
        }
        gckpti_softmax_end(&max, &sum);
        for (int64_t e = 0; out && e < d; e++)
            out[e] = (out[e] + 0.0f) / sum;
        if (narrow)
            gckpti_to_bf16s(out, call->out_bf16 + at, d);
        if (call->aux)
            ((float *)call->aux)[i] = max + gckpti_log(sum);
    }
}

/* Where elements of n rows of a gradient are, *row apart: in place, or in `rest`, D apart, from
 * which gckpti_mixed_close rounds them to bf16; NULL: not wanted. */
static float *gckpti_mixed_open(const gckpti_heads *h, const gckpt_arg *arg, int64_t at, int64_t n,
                                float *rest, int64_t *row)
{
    const int64_t d = h->d;
    *row = arg->grad ? h->c : d;
    if (arg->grad || !gckpti_is_narrow(arg->grad_bf16))
        return arg->grad ? arg->grad + at : NULL;
    for (int64_t i = 0; i < n; i++)
        if (arg->accumulate)
            gckpti_from_bf16s(arg->grad_bf16 + at + i * h->c, rest + i * d, d);
        else
            gckpti_start(rest + i * d, d, 0);
    return rest;
}

static void gckpti_mixed_close(const gckpti_heads *h, const gckpt_arg *arg, int64_t at, int64_t n,
                               float *x)
{
    const int64_t row = arg->grad ? h->c : h->d;
    for (int64_t i = 0; x && i < n; i++, x += row) {
        for (int64_t e = 0; e < h->d; e++)
            x[e] += 0.0f;
        if (!arg->grad)
            gckpti_to_bf16s(x, arg->grad_bf16 + at + i * h->c, h->d);
    }
}

/* D elements of either of the two; of bf16 as a copy in `rest`. */
static const float *gckpti_mixed_row(const gckpti_heads *h, const float *x, const uint16_t *x_bf16,
                                     int64_t at, float *rest)
{
    if (gckpti_is_wide(x))
        return x + at;
    gckpti_from_bf16s(x_bf16 + at, rest, h->d);
    return rest;
}

/* A block of queries (from i on, m) and one of keys (from j on, n) of a head. */
typedef struct {
    const gckpti_heads *h;
    gckpti_head_rows q, k, v, g;
    float *dq, *dk, *dv, *delta_rows;
    int64_t head, i, m, j, n, q_row, k_row, v_row;
    uint16_t *p, *ds; /* [query][key] */
} gckpti_mixed_square;

/* Keys of the block that query r of it sees; queries that key r is seen by begin here. */
static int64_t gckpti_mixed_seen(const gckpti_mixed_square *s, int64_t r)
{
    const int64_t seen = s->i + r + 1 + s->h->sight.ahead - s->j;
    return seen < 0 ? 0 : gckpti_min(seen, s->n);
}
static int64_t gckpti_mixed_since(const gckpti_mixed_square *s, int64_t r)
{
    const int64_t first = s->j + r - s->h->sight.ahead - s->i;
    return first < 0 ? 0 : gckpti_min(first, s->m);
}

/* p and ds of the block, rounded. */
static void gckpti_mixed_slopes(const gckpti_mixed_square *s)
{
    const gckpti_heads *h = s->h;
    const gckpt_call *call = h->call;
    const int64_t d = h->d;
    for (int64_t r = 0; r < s->m; r++) {
        const int64_t n = gckpti_mixed_seen(s, r), at = s->q.at + (s->i + r) * h->c;
        const float lse = ((const float *)call->aux)[s->head * h->t + s->i + r];
        float delta = 0.0f, *rest = s->delta_rows;
        if (n && (s->dq || s->dk)) /* delta: sum(g out) */
            delta = gckpti_dot(
                gckpti_mixed_row(h, call->grad_out, call->grad_out_bf16, at, rest),
                gckpti_mixed_row(h, call->out, call->out_bf16, at, rest + d), d);
        for (int64_t j = 0; j < n; j++) {
            const float score = gckpti_mixed_score(&s->q, s->i + r, &s->k, s->j + j, d);
            const float p = gckpti_exp(gckpti_mul(score, h->scale) - lse);
            s->p[r * GCKPTI_LINKS + j] = gckpti_to_bf16(p);
            if (s->dq || s->dk) {
                const float dp = gckpti_mixed_score(&s->g, s->i + r, &s->v, s->j + j, d);
                s->ds[r * GCKPTI_LINKS + j] = gckpti_to_bf16(p * (dp - delta) * h->scale);
            }
        }
    }
}

/* A row of a gradient, `to`: places first..end-1 of p, `step` apart, times rows of x from `at` on. */
static void gckpti_mixed_gradient(const gckpti_head_rows *x, int64_t at, const gckpti_links *p,
                                  int64_t first, int64_t end, float *to, int64_t d)
{
    for (int64_t e = 0; first < end && e < d; e++) {
        const gckpti_links y = gckpti_links_of(&x->x, x->at + at * x->row + e, x->row);
        to[e] = gckpti_mixed_block(p, &y, first, end, to[e]);
    }
}

static void gckpti_mixed_add(const gckpti_mixed_square *s)
{
    const int64_t d = s->h->d;
    for (int64_t r = 0; s->dq && r < s->m; r++) {
        const gckpti_links ds = { NULL, s->ds + r * GCKPTI_LINKS, 1 };
        gckpti_mixed_gradient(&s->k, s->j, &ds, 0, gckpti_mixed_seen(s, r),
                              s->dq + (s->i + r) * s->q_row, d);
    }
    for (int64_t r = 0; r < s->n; r++) {
        const gckpti_links ds = { NULL, s->ds + r, GCKPTI_LINKS }, p = { NULL, s->p + r, GCKPTI_LINKS };
        if (s->dk)
            gckpti_mixed_gradient(&s->q, s->i, &ds, gckpti_mixed_since(s, r), s->m,
                                  s->dk + r * s->k_row, d);
        if (s->dv)
            gckpti_mixed_gradient(&s->g, s->i, &p, gckpti_mixed_since(s, r), s->m,
                                  s->dv + r * s->v_row, d);
    }
}

GCKPTI_FN void gckpti_mixed_gradients(const gckpti_heads *h, int64_t head, float *rest)
{
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const gckpt_arg grad = { call->grad_out,      NULL, NULL, 0, NULL, call->shape,
                             call->grad_out_bf16, NULL };
    const int64_t c = h->c, column = head % h->heads * h->d;
    const int64_t at_q = head / h->heads * h->t * c + column;
    const int64_t at_k = head / h->heads * h->s * c + column, tile = GCKPTI_LINKS * h->d;
    void *words = rest + 2 * tile + 2 * h->d;
    gckpti_mixed_square s;
    memset(&s, 0, sizeof s);
    s.h = h, s.head = head, s.p = (uint16_t *)words, s.ds = s.p + GCKPTI_LINKS * GCKPTI_LINKS;
    s.q = gckpti_head_rows_of(h, &in[0], at_q), s.k = gckpti_head_rows_of(h, &in[1], at_k);
    s.v = gckpti_head_rows_of(h, &in[2], at_k), s.g = gckpti_head_rows_of(h, &grad, at_q);
    s.delta_rows = rest + 2 * tile;
    s.dq = gckpti_mixed_open(h, &in[0], at_q, h->t, s.delta_rows + 2 * h->d + GCKPTI_LINKS * GCKPTI_LINKS,
                             &s.q_row);
    for (s.j = 0; s.j < h->sight.keys; s.j += GCKPTI_LINKS) {
        const int64_t key = at_k + s.j * c;
        s.n = gckpti_min(h->sight.keys - s.j, GCKPTI_LINKS);
        s.dk = gckpti_mixed_open(h, &in[1], key, s.n, rest, &s.k_row);
        s.dv = gckpti_mixed_open(h, &in[2], key, s.n, rest + tile, &s.v_row);
        for (s.i = 0; s.i < h->t; s.i += GCKPTI_LINKS) {
            s.m = gckpti_min(h->t - s.i, GCKPTI_LINKS);
            gckpti_mixed_slopes(&s);
            gckpti_mixed_add(&s);
        }
        gckpti_mixed_close(h, &in[1], key, s.n, s.dk);
        gckpti_mixed_close(h, &in[2], key, s.n, s.dv);
    }
    gckpti_mixed_close(h, &in[0], at_q, h->t, s.dq);
}
#endif
