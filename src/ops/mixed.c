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

GCKPTI_FN float gckpti_mixed_blocks(const gckpti_links *a, const gckpti_links *b, int64_t first,
                                    int64_t end, float element)
{
    for (int64_t p = first, next; p < end; p = next) {
        next = gckpti_min(p / GCKPTI_LINKS * GCKPTI_LINKS + GCKPTI_LINKS, end);
        element = gckpti_mixed_block(a, b, p, next, element);
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
        d = gckpti_mixed_blocks(&u, &v, 0, n, d);
    }
    return d;
}

static void gckpti_mixed_end_at(const gckpti_product *t, int64_t at, float d)
{
    if (t->c)
        t->c[at] = d;
    else
        t->c_bf16[at] = gckpti_to_bf16(d);
}

/* Column j of rows i.., at most GCKPTI_STRIP, where b is read as it is stored: a block of its links
 * at a time, which all these rows take. */
static void gckpti_mixed_column(const gckpti_product *t, int64_t i, int64_t j)
{
    float d[GCKPTI_STRIP], w[GCKPTI_LINKS];
    const gckpti_links y = { w, NULL, 1 };
    const int64_t rows = gckpti_min(t->m - i, GCKPTI_STRIP), step = t->b.step;
    for (int64_t r = 0; r < rows; r++)
        d[r] = gckpti_mixed_start(t, (i + r) * t->n + j, j);
    for (int64_t p = 0, n; p < t->k; p += n) {
        const int64_t at = j * t->b.row + p * step;
        n = gckpti_min(t->k - p, GCKPTI_LINKS);
        if (step == 1)
            gckpti_unpack(t->b.stored, at, n, w);
        for (int64_t l = 0; l < n && step != 1; l++)
            gckpti_unpack(t->b.stored, at + l * step, 1, w + l);
        for (int64_t r = 0; r < rows; r++) {
            const gckpti_links x =
                gckpti_links_of(&t->a, (i + r) * t->a.row + p * t->a.step, t->a.step);
            d[r] = gckpti_mixed_blocks(&x, &y, 0, n, d[r]);
        }
    }
    for (int64_t r = 0; r < rows; r++)
        gckpti_mixed_end_at(t, (i + r) * t->n + j, d[r]);
}

GCKPTI_FN void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t)
{
    const int stored = gckpti_is_stored(&t->b);
    (void)call;
    for (int64_t i = 0; stored && i < t->m; i += GCKPTI_STRIP)
        for (int64_t j = 0; j < t->n; j++)
            gckpti_mixed_column(t, i, j);
    for (int64_t i = 0; i < t->batch * t->m && !stored; i++)
        for (int64_t j = 0; j < t->n; j++) {
            const int64_t a = i / t->m * t->a.next + i % t->m * t->a.row, at = i * t->n + j;
            const int64_t b = i / t->m * t->b.next + j * t->b.row;
            const float d = gckpti_mixed_element(t, a, b, gckpti_mixed_start(t, at, j));
            gckpti_mixed_end_at(t, at, d);
        }
}

/* ---- attention (see ops/attention): places in a block count from the first key (query) on. What
 * ends as a zero becomes +0, since a backend may let links that are not seen take part as zeros. */
/* Element (i, j) of a b'. */
static float gckpti_mixed_score(const gckpti_factor *a, int64_t i, const gckpti_factor *b,
                                int64_t j, int64_t d)
{
    const gckpti_links x = gckpti_links_of(a, i * a->row, 1), y = gckpti_links_of(b, j * b->row, 1);
    return gckpti_mixed_blocks(&x, &y, 0, d, 0.0f);
}

GCKPTI_FN void gckpti_mixed_scores(const gckpti_heads *h, int64_t at, int64_t key, int64_t first,
                                   int64_t end, float *out)
{
    const gckpti_factor q = gckpti_factor_of(&h->call->in[0], at, h->c, 1, 0);
    const gckpti_factor k = gckpti_factor_of(&h->call->in[1], key, h->kc, 1, 0);
    for (int64_t j = first; j < end; j++)
        out[j] = gckpti_mixed_score(&q, 0, &k, j, h->d);
}

GCKPTI_FN void gckpti_mixed_values(const gckpti_heads *h, const float *p, int64_t key,
                                   int64_t first, int64_t end, float *out)
{
    const gckpti_factor v = gckpti_factor_of(&h->call->in[2], key, h->kc, 1, 0);
    const gckpti_links exps = { p, NULL, 1 };
    for (int64_t e = 0; e < h->d; e++) {
        const gckpti_links y = gckpti_links_of(&v, e, h->kc);
        out[e] = gckpti_mixed_blocks(&exps, &y, first, end, out[e]);
    }
}

/* Where elements of n rows of a gradient are, d or (in place) a row of it apart: in place, or in
 * `rest`, in which they may have been opened, and from which gckpti_mixed_close rounds them to
 * bf16; NULL: not wanted. */
static float *gckpti_mixed_open(const gckpt_arg *arg, int64_t at, int64_t n, int64_t d, float *rest,
                                int opened)
{
    const int64_t row = arg->shape.d[2];
    if (arg->grad || !gckpti_is_narrow(arg->grad_bf16))
        return arg->grad ? arg->grad + at : NULL;
    for (int64_t i = 0; !opened && i < n; i++)
        if (arg->accumulate)
            gckpti_from_bf16s(arg->grad_bf16 + at + i * row, rest + i * d, d);
        else
            gckpti_start(rest + i * d, d, 0);
    return rest;
}

static void gckpti_mixed_close(const gckpt_arg *arg, int64_t at, int64_t n, int64_t d, float *x)
{
    const int64_t row = arg->shape.d[2], step = arg->grad ? row : d;
    for (int64_t i = 0; x && i < n; i++, x += step) {
        for (int64_t e = 0; e < d; e++)
            x[e] += 0.0f;
        if (!arg->grad)
            gckpti_to_bf16s(x, arg->grad_bf16 + at + i * row, d);
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

static int64_t gckpti_between(int64_t x, int64_t most)
{
    return x < 0 ? 0 : gckpti_min(x, most);
}

/* Keys of the block that query r of it sees begin here, and end. */
static int64_t gckpti_mixed_seen(const gckpti_mixed_square *s, int64_t r, int64_t *from)
{
    *from = gckpti_heads_unseen(s->h, s->i + r, s->j, s->n);
    return gckpti_between(s->i + r + 1 + s->h->sight.ahead - s->j, s->n);
}

/* The same of queries that key r is seen by. */
static int64_t gckpti_mixed_since(const gckpti_mixed_square *s, int64_t r, int64_t *end)
{
    const int64_t first = s->j + r - s->h->sight.ahead - s->i;
    *end = gckpti_between(first + s->h->window, s->m);
    return gckpti_between(first, s->m);
}

/* p and ds of the block, rounded, in rows of GCKPTI_LINKS; rest: two rows of a head. */
static void gckpti_mixed_slopes(const gckpti_mixed_square *s, uint16_t *p, uint16_t *ds,
                                float *rest)
{
    const gckpti_heads *h = s->h;
    const gckpt_call *call = h->call;
    const int64_t d = h->d;
    const int slopes = s->dq.x || s->dk.x;
    for (int64_t r = 0; r < s->m; r++, p += GCKPTI_LINKS, ds += GCKPTI_LINKS) {
        int64_t from;
        const int64_t n = gckpti_mixed_seen(s, r, &from), query = s->i + r;
        const int64_t at = (s->head / h->heads * h->t + query) * h->c + s->head % h->heads * d;
        const float lse = ((const float *)call->saved)[s->head * h->t + query];
        float delta = 0.0f;
        if (n && slopes) /* delta: sum(g out) */
            delta = gckpti_dot(gckpti_mixed_row(h, call->grad_out, call->grad_out_bf16, at, rest),
                               gckpti_mixed_row(h, call->out, call->out_bf16, at, rest + d), d);
        for (int64_t j = from; j < n; j++) {
            const float score = gckpti_heads_score(h, gckpti_mixed_score(&s->q, r, &s->k, j, d));
            const float x = gckpti_exp(score - lse);
            p[j] = gckpti_to_bf16(x);
            if (slopes) {
                const float dp = gckpti_mixed_score(&s->g, r, &s->v, j, d);
                ds[j] = gckpti_to_bf16(gckpti_heads_slope(h, x, dp - delta, score));
            }
        }
    }
}

/* Places first..end-1 of p times rows of x, added to a row of a gradient. */
static void gckpti_mixed_gradient(const gckpti_links *p, int64_t first, int64_t end,
                                  const gckpti_factor *x, const gckpti_mixed_result *to, int64_t d)
{
    for (int64_t e = 0; first < end && e < d; e++) {
        const gckpti_links y = gckpti_links_of(x, e, x->row);
        float *at = to->x + e * to->step;
        *at = gckpti_mixed_block(p, &y, first, end, *at);
    }
}

GCKPTI_FN void gckpti_mixed_add(const gckpti_mixed_square *s)
{
    const int64_t d = s->h->d;
    gckpti_mixed_result dq = s->dq, dk = s->dk, dv = s->dv;
    int64_t from, end;
    for (int64_t r = 0; dq.x && r < s->m; r++, dq.x += dq.row) {
        const gckpti_links ds = gckpti_links_of(&s->ds, r * s->ds.row, 1);
        end = gckpti_mixed_seen(s, r, &from);
        gckpti_mixed_gradient(&ds, from, end, &s->k, &dq, d);
    }
    for (int64_t r = 0; dk.x && r < s->n; r++, dk.x += dk.row) {
        const gckpti_links ds = gckpti_links_of(&s->ds, r, s->ds.row);
        from = gckpti_mixed_since(s, r, &end);
        gckpti_mixed_gradient(&ds, from, end, &s->q, &dk, d);
    }
    for (int64_t r = 0; dv.x && r < s->n; r++, dv.x += dv.row) {
        const gckpti_links p = gckpti_links_of(&s->p, r, s->p.row);
        from = gckpti_mixed_since(s, r, &end);
        gckpti_mixed_gradient(&p, from, end, &s->g, &dv, d);
    }
}

GCKPTI_FN void gckpti_mixed_gradients(const gckpti_heads *h, int64_t head, float *rest)
{
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const gckpt_arg grad = { call->grad_out,      NULL, NULL, 0, NULL, call->shape,
                             call->grad_out_bf16, NULL, NULL };
    const int64_t c = h->c, kc = h->kc, d = h->d, nth = head % h->group;
    const int64_t at_q = head / h->heads * h->t * c + head % h->heads * d;
    const int64_t at_k = head / h->heads * h->s * kc + head % h->heads / h->group * d;
    const int64_t each = h->shared ? d : 0;
    const int64_t all_keys = gckpti_multiple(h->shared ? h->s : 1, GCKPTI_LINKS) * d;
    float *two = rest + 2 * all_keys, *all = two + 2 * d;
    void *words = all;
    uint16_t *p = (uint16_t *)words, *ds = p + GCKPTI_LINKS * GCKPTI_LINKS;
    gckpti_mixed_square s;
    memset(&s, 0, sizeof s);
    s.h = h, s.head = head, s.dq.step = s.dk.step = s.dv.step = 1;
    s.dq.row = in[0].grad ? c : d, s.dk.row = in[1].grad ? kc : d, s.dv.row = in[2].grad ? kc : d;
    s.p.bf16 = p, s.ds.bf16 = ds, s.p.row = s.ds.row = GCKPTI_LINKS;
    float *dq = gckpti_mixed_open(&in[0], at_q, h->t, d, all + GCKPTI_LINKS * GCKPTI_LINKS, 0);
    for (s.j = gckpti_heads_tile(h, 0); s.j < h->sight.keys; s.j += GCKPTI_LINKS) {
        const int64_t key = at_k + s.j * kc;
        float *dk = rest + s.j * each, *dv = dk + all_keys;
        s.n = gckpti_min(h->sight.keys - s.j, GCKPTI_LINKS);
        s.k = gckpti_factor_of(&in[1], key, kc, 1, 0);
        s.v = gckpti_factor_of(&in[2], key, kc, 1, 0);
        s.dk.x = gckpti_mixed_open(&in[1], key, s.n, d, dk, nth > 0);
        s.dv.x = gckpti_mixed_open(&in[2], key, s.n, d, dv, nth > 0);
        for (s.i = 0; s.i < h->t; s.i += GCKPTI_LINKS) {
            const int64_t at = at_q + s.i * c;
            if (gckpti_heads_first(h, s.i) >= s.j + s.n)
                break;
            s.m = gckpti_min(h->t - s.i, GCKPTI_LINKS);
            s.q = gckpti_factor_of(&in[0], at, c, 1, 0), s.g = gckpti_factor_of(&grad, at, c, 1, 0);
            s.dq.x = dq ? dq + s.i * s.dq.row : NULL;
            gckpti_mixed_slopes(&s, p, ds, two);
            gckpti_mixed_add(&s);
        }
        if (nth + 1 < h->group)
            continue;
        gckpti_mixed_close(&in[1], key, s.n, d, s.dk.x);
        gckpti_mixed_close(&in[2], key, s.n, d, s.dv.x);
    }
    gckpti_mixed_close(&in[0], at_q, h->t, d, dq);
}
#endif
