#ifndef GCKPT_NO_BF16
/* ---- attention of bf16 plans, backward ---- */
/* sum(g out) of a query, as gckpti_dot adds up; another one, `ahead` elements on, is fetched */
GCKPTI_INLINED float V(head_delta)(const gckpti_heads *h, const gckpti_factor *g,
                                   const gckpti_factor *out, int64_t at, int64_t ahead)
{
    FLOATS lane[32 / W];
    for (int p = 0; p < 32 / W; p++)
        lane[p] = V(zero)();
    for (int64_t e = 0; e < h->d; e += 32) {
        if (g->bf16)
            __builtin_prefetch(g->bf16 + at + e + ahead, 0, 3);
        if (out->bf16)
            __builtin_prefetch(out->bf16 + at + e + ahead, 0, 3);
        for (int p = 0; p < 32 / W; p++) {
            const int64_t i = at + e + W * p, left = h->d - e - W * p;
            FLOATS x, y;
            if (left <= 0)
                break;
            x = g->bf16 ? V(load_bf16)(g->bf16 + i, left) : V(load_n)(g->f32 + i, left);
            y = out->bf16 ? V(load_bf16)(out->bf16 + i, left) : V(load_n)(out->f32 + i, left);
            lane[p] = V(upto)(left, V(fma)(x, y, lane[p]), lane[p]);
        }
    }
    return V(fold)(lane, 0);
}

/* n rows of a gradient, `wide` apart in x: what it holds, or +0; in the end they go back. */
static GCKPTI_TARGET void V(head_open)(const gckpti_heads *h, const gckpt_arg *arg, int64_t at,
                                       int64_t n, float *x)
{
    const gckpti_mixed_kernels *by = gckpti_kernels_of(h->call)->mixed;
    if (!arg->accumulate)
        memset(x, 0, (size_t)(n * h->wide) * sizeof *x);
    for (int64_t i = 0; arg->accumulate && i < n; i++, at += arg->shape.d[2], x += h->wide)
        if (arg->grad)
            memcpy(x, arg->grad + at, (size_t)h->d * sizeof *x);
        else
            by->widen(arg->grad_bf16 + at, x, h->d);
}

static GCKPTI_TARGET void V(head_close)(const gckpti_heads *h, const gckpt_arg *arg, int64_t at,
                                        int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++, at += arg->shape.d[2], x += h->wide) {
        for (int64_t e = 0; e < h->d; e += W)
            V(store)(x + e, V(load)(x + e) + V(zero)());
        V(head_row)
        (h, x, arg->grad ? arg->grad + at : NULL, arg->grad ? NULL : arg->grad_bf16 + at);
    }
}

/* A head: p, then exponentials, and ds are [query][key], dk and dv [key][d] of a block of keys, dq
 * [query][d] of all queries (NULL: not wanted); where heads share keys, dk and dv of all keys rest
 * in the room, too: the first of them opens these, the last one closes them. Packed are k and v of
 * the block (links: d), k once more (links: keys), q or g of queries, and in `links` what a product
 * has of p or ds. */
typedef struct {
    const gckpti_heads *h;
    const gckpti_mixed_kernels *by;
    gckpti_factor q, k, v, g; /* from the block's first row on */
    const float *lse;
    float *p, *ds, *dk, *dv, *dq, *delta;
    uint32_t *k_b, *v_b, *kt_b, *a;
    uint16_t *links;
    int64_t head, i, m, j, n, diagonal;
    int cut, fresh[3]; /* these blocks of dq, dk and dv start at +0 */
} V(keys);

static GCKPTI_TARGET void V(keys_begin)(V(keys) * s, const gckpti_heads *h, int64_t head,
                                        float *room)
{
    const gckpt_arg *in = h->call->in;
    const int64_t all = gckpti_multiple(h->t, GCKPTI_BLOCK), half = GCKPTI_BLOCK / 2 * h->deep;
    s->h = h, s->by = gckpti_kernels_of(h->call)->mixed, s->head = head;
    s->lse = (const float *)h->call->saved + head * h->t;
    s->p = room, s->ds = s->p + GCKPTI_BLOCK * GCKPTI_BLOCK;
    const int64_t keys = gckpti_multiple(h->shared ? h->s : 1, GCKPTI_BLOCK) * h->wide;
    float *dk = s->ds + GCKPTI_BLOCK * GCKPTI_BLOCK, *dv = dk + keys, *dq = dv + keys;
    s->delta = dq + all * h->wide;
    s->dq = in[0].grad || in[0].grad_bf16 ? dq : NULL;
    s->dk = in[1].grad || in[1].grad_bf16 ? dk : NULL;
    s->dv = in[2].grad || in[2].grad_bf16 ? dv : NULL;
    void *rest = s->delta + all;
    s->k_b = (uint32_t *)rest, s->v_b = s->k_b + half, s->kt_b = s->v_b + half;
    s->a = s->kt_b + GCKPTI_BLOCK / 2 * h->wide, rest = s->a + half;
    s->links = (uint16_t *)rest;
}

/* Scores of query r of the block become p = exp(s - lse), its dp ds = p (dp - delta) scale; +0
 * where it does not see the key. */
GCKPTI_INLINED void V(keys_slopes)(const V(keys) * s, int64_t r)
{
    const float cap = s->h->cap;
    const FLOATS scale = V(set1)(s->h->scale), lse = V(set1)(s->lse[s->i + r]), zero = V(zero)();
    const FLOATS delta = V(set1)(s->delta[s->i + r]), times = V(set1)(gckpti_heads_after(s->h));
    const FLOATS inverse = V(set1)(cap > 0.0f ? 1.0f / cap : 0.0f);
    const int64_t end = r + 1 + s->diagonal, seen = gckpti_min(s->n, end);
    const int64_t from = end - s->h->window;
    float *p = s->p + r * GCKPTI_BLOCK, *ds = s->ds + r * GCKPTI_BLOCK;
    for (int64_t j = 0; j < s->n; j += W) {
        FLOATS x = zero, y = zero;
        if (j < seen && j + W > from) {
            const FLOATS score = V(fma)(V(load)(p + j), times, zero);
            x = V(exp_below)(score - lse);
            y = V(load)(ds + j) - delta;
            if (cap > 0.0f)
                y = V(cap_slope)(y, score, inverse);
            y = V(upto)(seen - j, x * y * scale, zero);
            x = V(upto)(seen - j, x, zero);
            if (j < from)
                x = V(upto)(from - j, zero, x), y = V(upto)(from - j, zero, y);
        }
        V(store)(p + j, x);
        V(store)(ds + j, y);
    }
}

/* The block goes to one gradient, element by element. */
static GCKPTI_TARGET void V(keys_careful)(const V(keys) * s, float *dq, float *dk, float *dv)
{
    const int64_t c = s->h->c;
    gckpti_mixed_square t;
    memset(&t, 0, sizeof t);
    t.h = s->h, t.head = s->head;
    for (int64_t j = 0; j < s->n; j += GCKPTI_LINKS)
        for (int64_t i = 0; i < s->m; i += GCKPTI_LINKS) {
            const int64_t at = i * GCKPTI_BLOCK + j;
            const gckpti_mixed_result rows = { dq ? dq + i * s->h->wide : NULL, s->h->wide, 1 };
            const gckpti_mixed_result keys = { dk ? dk + j * s->h->wide : NULL, s->h->wide, 1 };
            const gckpti_mixed_result values = { dv ? dv + j * s->h->wide : NULL, s->h->wide, 1 };
            t.i = s->i + i, t.j = s->j + j;
            t.m = gckpti_min(s->m - i, GCKPTI_LINKS), t.n = gckpti_min(s->n - j, GCKPTI_LINKS);
            t.q = gckpti_factor_from(&s->q, i * c), t.k = gckpti_factor_from(&s->k, j * s->h->kc);
            t.g = gckpti_factor_from(&s->g, i * c);
            t.p = gckpti_matrix(s->p + at, GCKPTI_BLOCK, 1);
            t.ds = gckpti_matrix(s->ds + at, GCKPTI_BLOCK, 1);
            t.dq = rows, t.dk = keys, t.dv = values;
            gckpti_mixed_add(&t);
        }
}

/* The block's part of a gradient: dv += p' g, dk += ds' q, dq += ds k, which is packed already. */
static GCKPTI_TARGET void V(keys_add)(V(keys) * s, const gckpti_factor *x, const float *p,
                                      float *to, int fresh)
{
    const int across = x == &s->k;
    const gckpti_factor turned = gckpti_turned(x);
    const gckpti_factor links =
        gckpti_matrix(p, across ? GCKPTI_BLOCK : 1, across ? 1 : GCKPTI_BLOCK);
    const int64_t lanes = across ? s->m : s->n, k = across ? s->n : s->m, wide = s->h->wide;
    const int64_t row = gckpti_multiple(k, GCKPTI_LINKS);
    const uint32_t *b = across ? s->kt_b : s->a;
    gckpti_mixed_part t = V(head_part)(s->by, b, s->h->d, to, wide);
    if (!across)
        V(head_pack)(s->by, &turned, s->h->d, k, NULL, s->a);
    if (s->cut && !V(finite)(b, row * wide)) {
        if (fresh)
            memset(to, 0, (size_t)(lanes * wide) * sizeof *to);
        V(keys_careful)(s, across ? to : NULL, to == s->dk ? to : NULL, to == s->dv ? to : NULL);
        return;
    }
    V(head_pack)(s->by, &links, lanes, k, s->links, NULL);
    t.tile.m = gckpti_multiple(lanes, 16), t.tile.a = s->links, t.tile.a_row = row;
    t.tile.from = fresh ? NULL : to;
    V(head_multiply)(&t, across ? GCKPTI_LINKS_TO : GCKPTI_LINKS_FROM, s->cut, s->diagonal, k);
}

/* The block of queries from i on meets that of keys. */
static GCKPTI_TARGET void V(keys_meet)(V(keys) * s)
{
    const gckpti_heads *h = s->h;
    gckpti_mixed_part scores = V(head_part)(s->by, s->k_b, s->n, s->p, GCKPTI_BLOCK);
    gckpti_mixed_part slopes = V(head_part)(s->by, s->v_b, s->n, s->ds, GCKPTI_BLOCK);
    void *a = s->a;
    V(head_rows)(h, &scores, &s->q, s->i, s->m, (uint16_t *)a);
    V(head_multiply)(&scores, GCKPTI_COLUMNS_TO, s->cut, s->diagonal, h->d);
    if (s->dq || s->dk) {
        V(head_rows)(h, &slopes, &s->g, s->i, s->m, (uint16_t *)a);
        V(head_multiply)(&slopes, GCKPTI_COLUMNS_TO, s->cut, s->diagonal, h->d);
    }
    if (h->cap > 0.0f)
        V(cap)(s->p, s->m * GCKPTI_BLOCK, h->times, h->cap);
    for (int64_t r = 0; r < s->m; r++)
        V(keys_slopes)(s, r);
    if (s->dv)
        V(keys_add)(s, &s->g, s->p, s->dv, s->fresh[2]);
    if (s->dk)
        V(keys_add)(s, &s->q, s->ds, s->dk, s->fresh[1]);
    if (s->dq)
        V(keys_add)(s, &s->k, s->ds, s->dq + s->i * h->wide, s->fresh[0]);
}

/* As V(attention_backward), but for each block of 64 keys over all blocks of queries that see it:
 * dq of all queries rests in the room. */
static GCKPTI_TARGET void V(mixed_backward)(const gckpti_heads *h, int64_t row, int64_t head,
                                            float *room)
{
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const int64_t c = h->c, kc = h->kc, nth = head % h->group;
    const int64_t at_q = row * h->t * c + head * h->d;
    const int64_t at_k = row * h->s * kc + head / h->group * h->d;
    const int64_t each = h->shared ? h->wide : 0;
    const int windows = h->window < h->s; /* then a block may meet none: all is opened */
    const gckpti_factor g = { call->grad_out, call->grad_out_bf16, c, 1, 0, NULL };
    const gckpti_factor o = { call->out, call->out_bf16, c, 1, 0, NULL };
    V(keys) s;
    V(keys_begin)(&s, h, row * h->heads + head, room);
    for (int64_t i = 0; (s.dq || s.dk) && i < h->t; i++)
        s.delta[i] = V(head_delta)(h, &g, &o, at_q + i * c, i + 8 < h->t ? 8 * c : 0);
    float *const dk = s.dk, *const dv = s.dv;
    if (s.dq && (in[0].accumulate || windows))
        V(head_open)(h, &in[0], at_q, h->t, s.dq);
    for (s.j = gckpti_heads_tile(h, 0); s.j < h->sight.keys; s.j += GCKPTI_BLOCK) {
        const int64_t key = at_k + s.j * kc, late = s.j - h->sight.ahead;
        float *const to[2] = { dk ? dk + s.j * each : NULL, dv ? dv + s.j * each : NULL };
        s.dk = to[0], s.dv = to[1];
        s.n = gckpti_min(h->sight.keys - s.j, GCKPTI_BLOCK);
        s.i = late > 0 ? late / GCKPTI_BLOCK * GCKPTI_BLOCK : 0;
        const int64_t met = gckpti_min(s.i + GCKPTI_BLOCK, h->t) - late; /* by the first block */
        const int64_t end = gckpti_min(h->t, late + s.n - 1 + h->window); /* queries that see one */
        s.fresh[0] = s.j == 0 && !in[0].accumulate && !windows;
        for (int i = 0; i < 2; i++) {
            s.fresh[1 + i] = nth == 0 && met >= s.n && !in[1 + i].accumulate && !windows;
            if (to[i] && nth == 0 && !s.fresh[1 + i])
                V(head_open)(h, &in[1 + i], key, s.n, to[i]);
        }
        s.k = gckpti_factor_of(&in[1], key, kc, 1, 0);
        s.v = gckpti_factor_of(&in[2], key, kc, 1, 0);
        const gckpti_factor turned = gckpti_turned(&s.k);
        V(head_pack)(s.by, &s.k, s.n, h->d, NULL, s.k_b);
        if (s.dq || s.dk)
            V(head_pack)(s.by, &s.v, s.n, h->d, NULL, s.v_b);
        if (s.dq)
            V(head_pack)(s.by, &turned, h->d, s.n, NULL, s.kt_b);
        for (; s.i < end; s.i += GCKPTI_BLOCK) {
            const int64_t at = at_q + s.i * c;
            s.m = gckpti_min(h->t - s.i, GCKPTI_BLOCK), s.diagonal = s.i - late;
            s.cut = V(head_cut)(h, s.diagonal, s.m, s.n);
            s.q = gckpti_factor_of(&in[0], at, c, 1, 0), s.g = gckpti_factor_from(&g, at);
            V(keys_meet)(&s);
            s.fresh[1] = s.fresh[2] = 0;
        }
        for (int i = 0; i < 2; i++)
            if (to[i] && nth + 1 == h->group)
                V(head_close)(h, &in[1 + i], key, s.n, to[i]);
    }
    if (s.dq)
        V(head_close)(h, &in[0], at_q, h->t, s.dq);
}

/* What gckpti_kernels has for bf16 plans. */
static const gckpti_mixed_kernels V(mixed_kernels) = {
    { { 32, GCKPTI_PANEL, GCKPTI_TILE_ROWS, GCKPTI_WORDS_PAIRS, V(mixed_tile) },
      { 32, GCKPTI_PANEL, 1, GCKPTI_WORDS_PAIRS, V(mixed_chain) } },
    NULL,
    2,
    V(mixed_pack_a),
    V(mixed_pack_b),
    V(widen),
    V(narrow),
    V(mixed_forward),
    GCKPTI_IF_TRAINING(V(mixed_backward))
};
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
static const gckpti_mixed_kernels gckpti_mixed_kernels_bf16 = {
    { { 32, 32, 4, GCKPTI_WORDS_APART, gckpti_mixed_tile_bf16 },
      { 32, 32, 8, GCKPTI_WORDS_TURNED, gckpti_mixed_chain_bf16 } },
    NULL,
    0,
    gckpti_mixed_pack_a_bf16,
    gckpti_mixed_pack_b_bf16,
    V(widen),
    gckpti_mixed_narrow_bf16,
    V(mixed_forward),
    GCKPTI_IF_TRAINING(V(mixed_backward))
};
#endif
#endif
