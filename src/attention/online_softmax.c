#ifndef GCKPT_NO_ATTENTION
/* gckpti_online for W queries at once. x: scores, a row for each of n keys, a column for each
 * query; they become exponentials. Column i sees the last `window` of the rows 0..i+diagonal, and
 * gets zeros in its other rows; if no column sees a row, sets factor to 1. max, sum and factor: the
 * caller's values of W columns; at first max is -inf and sum 0. */
GCKPTI_INLINED void V(online_columns)(float *x, int64_t n, int64_t diagonal, int64_t window,
                                      float scale, float *max, float *sum, float *factor)
{
    const int64_t first_row = diagonal + 1 - window; /* first row that column 0 sees */
    const FLOATS zero = V(zero)(), lowest = V(set1)(-GCKPTI_INFINITY), times = V(set1)(scale);
    const FLOATS before = V(load)(max);
    FLOATS top = lowest, other = lowest, shift, e[16], correction;
    if (diagonal + W <= 0 || first_row >= gckpti_min(n, diagonal + W)) { /* no visible row */
        V(store)(factor, V(set1)(1.0f));
        for (int64_t j = 0; j < n; j++)
            V(store)(x + j * GCKPTI_QK_TILE, zero);
        return;
    }
    n = gckpti_min(n, diagonal + W);
    for (int64_t j = first_row > 0 ? first_row : 0; j < n; j++) {
        FLOATS s = V(load)(x + j * GCKPTI_QK_TILE);
        if (j > diagonal)
            s = V(blend_n)(j - diagonal, lowest, s);
        if (j < first_row + W - 1)
            s = V(blend_n)(j + 1 - first_row, s, lowest);
        if (j & 1)
            other = V(vmax)(s, other);
        else
            top = V(vmax)(s, top);
    }
    top = V(vmax)(V(fma)(V(vmax)(top, other), times, zero), before);
    shift = V(if_less)(lowest, top, top, zero);
    correction = V(exp)(before - shift);
    /* e[l] is lanes l and l + 16 of the 32 lanes of a column's sum; lane l has rows l and l + 32 */
    for (int l = 0; l < 16; l += 2) {
        FLOATS s[8];
        for (int i = 0; i < 8; i++) {
            const int64_t j = l + i / 2 * 16 + i % 2;
            s[i] = V(set1)(-0.0f); /* -0 for a missing row: adds nothing */
            if (j < n && j >= first_row)
                s[i] = V(exp)(V(fma)(V(load)(x + j * GCKPTI_QK_TILE), times, zero) - shift);
            if (j < n && j > diagonal)
                s[i] = V(blend_n)(j - diagonal, zero, s[i]);
            if (j >= first_row && j < first_row + W - 1)
                s[i] = V(blend_n)(j + 1 - first_row, s[i], zero);
            V(store)(x + j * GCKPTI_QK_TILE, s[i]);
        }
        e[l] = s[0] + s[4] + (s[2] + s[6]);
        e[l + 1] = s[1] + s[5] + (s[3] + s[7]);
    }
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++)
            e[l] = e[l] + e[l + half];
    V(store)(max, top);
    V(store)(sum, V(fma)(V(load)(sum), correction, e[0]));
    V(store)(factor, correction);
}

/* Copies the mask, if any, of queries from i0 and keys from j0 on to a tile (key,query). */
static GCKPTI_TARGET void V(mask_tile)(const gckpti_attn *h, int64_t head, int64_t i0, int64_t j0,
                                       float *to)
{
    const int64_t across = h->mask.step[2], along = h->mask.step[3];
    const int64_t m = gckpti_min(h->t - i0, GCKPTI_QK_TILE);
    const int64_t n = gckpti_min(h->s - j0, GCKPTI_QK_TILE);
    if (!h->mask.x)
        return;
    const float *x = h->mask.x + gckpti_attn_at_mask(h, head, i0, j0);
    if (across && along) {
        V(pack)(x, along, across, m, n, to, GCKPTI_QK_TILE);
        return;
    }
    for (int64_t j = 0; j < n; j++, x += along, to += GCKPTI_QK_TILE)
        for (int64_t i = 0; i < m; i += W)
            V(store)(to + i, across ? V(load_n)(x + i, m - i) : V(set1)(*x));
}

/* The online softmax of a tile's queries: running maximum and sum, factor of the output so far. */
typedef struct {
    float max[GCKPTI_QK_TILE], sum[GCKPTI_QK_TILE], factor[GCKPTI_QK_TILE];
} V(queries);

static GCKPTI_TARGET void V(queries_init)(V(queries) * s)
{
    for (int64_t i = 0; i < GCKPTI_QK_TILE; i++)
        s->max[i] = -GCKPTI_INFINITY, s->sum[i] = 0.0f;
}

/* Turns scores p of n keys and m queries, of which query i sees keys up to i + diagonal, into
 * exponentials. A tile of the mask, if there is one, follows p. */
static GCKPTI_TARGET void V(heads_online)(const gckpti_attn *h, float *p, int64_t m, int64_t n,
                                          int64_t diagonal, V(queries) * s)
{
    if (h->cap > 0.0f)
        V(softcaps)(p, n * GCKPTI_QK_TILE, h->dot_scale, h->cap);
    const float scale = gckpti_attn_post_scale(h), *mask = p + GCKPTI_QK_TILE * GCKPTI_QK_TILE;
    for (int64_t i = 0; h->mask.x && i < n * GCKPTI_QK_TILE; i += W)
        V(store)(p + i, V(fma)(V(load)(p + i), V(set1)(scale), V(zero)()) + V(load)(mask + i));
    for (int64_t i = 0; i < m; i += W)
        V(online_columns)
    (p + i, n, diagonal + i, h->window, h->mask.x ? 1.0f : scale, s->max + i, s->sum + i,
     s->factor + i);
}

/* Completes m queries from `first` on: their softmax sums, and saved = max + log(sum). */
static GCKPTI_TARGET void V(head_end)(const gckpti_attn *h, int64_t head, int64_t first, int64_t m,
                                      V(queries) * s)
{
    float *saved = (float *)h->call->saved;
    for (int64_t r = 0; r < m; r++)
        gckpti_softmax_end(&s->max[r], &s->sum[r]);
    if (!saved)
        return;
    saved += head * h->t + first;
    for (int64_t i = 0; i < m; i += W)
        V(store_n)(saved + i, V(load)(s->max + i) + V(log_noinline)(V(load)(s->sum + i)), m - i);
}

/* Computes up to 64 queries of a head, from query `first` on. */
static GCKPTI_TARGET void V(attention_forward)(const gckpti_attn *h, int64_t head, int64_t first,
                                               float *scratch)
{
    enum { TILE = GCKPTI_QK_TILE };
    const gckpt_call *call = h->call;
    gckpti_attn_gemm scores = { h->kv_c, 1, TILE, TILE, GCKPTI_COLUMNS_FROM, 1, 0, h };
    const int64_t row = gckpti_ceil_to(h->d, W); /* of v */
    gckpti_attn_gemm values = { 1, TILE, row, h->c, GCKPTI_TERMS_TO, 0, 0, h };
    int64_t m = gckpti_min(h->t - first, TILE), ahead = first + h->visible.ahead;
    int64_t visible = gckpti_min(h->visible.keys, ahead + m), j0 = gckpti_attn_first_tile(h, first);
    int64_t at = gckpti_attn_at_q(h, head) + first * h->c, keys = gckpti_attn_at_k(h, head);
    float *q = scratch, *v = q + TILE * (h->d + W), *p = v + TILE * h->d_vec;
    V(queries) online;
    float *out = call->out ? call->out + at : NULL;
    for (int64_t r = 0; m <= 3 && r < m; r++) /* too few queries to fill vectors */
        V(attention_query)(h, head, first + r);
    if (m <= 3)
        return;
    if (j0 >= visible) /* no key is visible: out is zeros */
        return;
    V(queries_init)(&online);
    V(pack)(call->in[0].data + at, 1, h->c, m, h->d, q, TILE);
    for (int64_t j = j0; j < visible; j += TILE) {
        const int64_t n = gckpti_min(visible - j, TILE), at_j = keys + gckpti_attn_offset(h, j);
        scores.diagonal = values.diagonal = ahead - j;
        V(attn_gemm)(&scores, n, m, h->d, call->in[1].data + at_j, q, p);
        V(mask_tile)(h, head, first, j, p + TILE * TILE);
        V(heads_online)(h, p, m, n, ahead - j, &online);
        if (!out)
            continue;
        V(pack)(call->in[2].data + at_j, h->kv_c, 1, h->d, n, v, row);
        values.from_zero = j == j0;
        for (int64_t r = 0; j > j0 && r < m; r++)
            V(rescale)(out + r * h->c, online.factor[r], h->d);
        V(attn_gemm)(&values, m, h->d, n, p, v, out);
    }
    V(head_end)(h, head, first, m, &online);
    for (int64_t r = 0; out && r < m; r++)
        V(divide)(out + r * h->c, online.sum[r], h->d);
}

/* For one key and queries from..m-1: scores s become p = exp(s - lse), and dp become ds = p (dp -
 * delta) scale, where delta = sum(g out) of the query. mask: added to s, unless NULL. (Inlined:
 * it has one caller.) */
static GCKPTI_TARGET void V(head_grads)(const gckpti_attn *h, int64_t from, int64_t m,
                                        const float *lse, const float *delta, const float *mask,
                                        float *p, float *ds)
{
    const FLOATS scale = V(set1)(h->scale), zero = V(zero)();
    const FLOATS times = V(set1)(gckpti_attn_post_scale(h));
    const FLOATS inverse = V(set1)(h->cap > 0.0f ? 1.0f / h->cap : 0.0f);
    for (int64_t i = from; i < m; i += W) {
        const FLOATS s = V(fma)(V(load)(p + i), times, zero);
        FLOATS x = s, y;
        if (mask)
            x = s + V(load)(mask + i);
        x = V(exp)(x - V(load)(lse + i));
        V(store)(p + i, x);
        if (!ds)
            continue;
        y = V(load)(ds + i) - V(load)(delta + i);
        if (h->cap > 0.0f)
            y = y * V(softcap_deriv)(s, inverse);
        V(store)(ds + i, x * y * scale);
    }
}

/* Backward of a head: for each tile of 64 queries and each tile of keys that they see, the scores
 * and the gradients of p, both (key,query), then their terms of dv, dq and dk (of shared keys head
 * after head). (More than 60 lines: two loops over the same tiles.) */
static GCKPTI_TARGET void V(attention_backward)(const gckpti_attn *h, int64_t head, float *scratch)
{
    enum { TILE = GCKPTI_QK_TILE };
    const gckpt_call *call = h->call;
    gckpti_attn_gemm scores = { h->kv_c, 1, TILE, TILE, GCKPTI_COLUMNS_FROM, 1, 0, h };
    const int64_t row = gckpti_ceil_to(h->d, W); /* of q, g and k */
    gckpti_attn_gemm dkv_tile = { TILE, 1, row, h->kv_c, GCKPTI_TERMS_FROM, 0, 0, h };
    gckpti_attn_gemm dq_tile = { 1, TILE, row, h->c, GCKPTI_TERMS_TO, 0, 0, h };
    int64_t c = h->c, kc = h->kv_c, packed = TILE * (h->d + W), rows = TILE * h->d_vec;
    int64_t at_q = gckpti_attn_at_q(h, head), at_k = gckpti_attn_at_k(h, head);
    float *qt = scratch, *gt = qt + packed, *q = gt + packed, *g = q + rows, *k = g + rows;
    float *p = k + rows, *ds = p + TILE * TILE, *mask = h->mask.x ? ds + TILE * TILE : NULL;
    float lse[TILE] = { 0.0f }, delta[TILE] = { 0.0f };
    float *dq = call->in[0].grad, *dk = call->in[1].grad, *dv = call->in[2].grad;
    for (int64_t first = 0; first < h->t; first += TILE) {
        int64_t m = gckpti_min(h->t - first, TILE), at = at_q + first * c;
        int64_t ahead = first + h->visible.ahead, visible = gckpti_min(h->visible.keys, ahead + m);
        const int64_t j0 = gckpti_attn_first_tile(h, first);
        const float *grad = call->grad_out + at;
        memcpy(lse, (const float *)call->saved + head * h->t + first, (size_t)m * sizeof *lse);
        V(pack)(call->in[0].data + at, 1, c, m, h->d, qt, TILE);
        V(pack)(grad, c, 1, h->d, m, g, row);
        if (dk)
            V(pack)(call->in[0].data + at, c, 1, h->d, m, q, row);
        if (dq || dk)
            V(pack)(grad, 1, c, m, h->d, gt, TILE);
        for (int64_t r = 0; (dq || dk) && r < m; r++)
            delta[r] = V(dot)(grad + r * c, call->out + at + r * c, h->d);
        for (int64_t j = j0; j < visible; j += TILE) {
            int64_t n = gckpti_min(h->visible.keys - j, TILE), key = at_k + j * kc;
            scores.diagonal = dkv_tile.diagonal = dq_tile.diagonal = ahead - j;
            V(attn_gemm)(&scores, n, m, h->d, call->in[1].data + key, qt, p);
            if (dq || dk)
                V(attn_gemm)(&scores, n, m, h->d, call->in[2].data + key, gt, ds);
            if (h->cap > 0.0f)
                V(softcaps)(p, n * TILE, h->dot_scale, h->cap);
            V(mask_tile)(h, head, first, j, mask);
            for (int64_t r = 0; r < n; r++) {
                float *pr = p + r * TILE, *dr = dq || dk ? ds + r * TILE : NULL;
                int64_t from = r > ahead - j ? r - (ahead - j) : 0;
                V(head_grads)
                (h, from - from % W, m, lse, delta, mask ? mask + r * TILE : NULL, pr, dr);
            }
            /* dq starts at +0 in its first tile of keys; dk and dv in the first tile of queries
             * that sees the key (a key that no query sees yet gets +0) */
            int first_use = head % h->group == 0 && (first == 0 || j >= ahead);
            dkv_tile.from_zero = first_use && !call->in[2].accumulate;
            if (dv)
                V(attn_gemm)(&dkv_tile, n, h->d, m, p, g, dv + key);
            dq_tile.from_zero = j == j0 && !call->in[0].accumulate;
            if (dq) {
                V(pack)(call->in[1].data + key, kc, 1, h->d, n, k, row);
                V(attn_gemm)(&dq_tile, m, h->d, n, ds, k, dq + at);
            }
            dkv_tile.from_zero = first_use && !call->in[1].accumulate;
            if (dk)
                V(attn_gemm)(&dkv_tile, n, h->d, m, ds, q, dk + key);
        }
    }
}

/* Adds terms to the mask's gradient: see gckpti_mask_tile. Scores and dp are (query,key). */
static GCKPTI_TARGET void V(mask_gradient)(const gckpti_attn *h, int64_t head, int64_t i0,
                                           int64_t j0, float *scratch)
{
    enum { TILE = GCKPTI_QK_TILE };
    const gckpt_call *call = h->call;
    const gckpti_attn_gemm rows = { h->c, 1, TILE, TILE, GCKPTI_COLUMNS_FROM, 1, TILE, h };
    const int64_t m = gckpti_min(h->t - i0, TILE), n = gckpti_min(h->s - j0, TILE), d = h->d;
    const int64_t at = gckpti_attn_at_q(h, head) + i0 * h->c, along = h->mask.step[3];
    const int64_t key = gckpti_attn_at_k(h, head) + j0 * h->kv_c;
    const float *g = call->grad_out + at, scale = gckpti_attn_post_scale(h);
    float *k = scratch, *v = k + TILE * (d + W), *p = v + TILE * (d + W), *dp = p + TILE * TILE;
    V(pack)(call->in[1].data + key, 1, h->kv_c, n, d, k, TILE);
    V(pack)(call->in[2].data + key, 1, h->kv_c, n, d, v, TILE);
    V(attn_gemm)(&rows, m, n, d, call->in[0].data + at, k, p);
    V(attn_gemm)(&rows, m, n, d, g, v, dp);
    if (h->cap > 0.0f)
        V(softcaps)(p, m * TILE, h->dot_scale, h->cap);
    for (int64_t i = 0; i < m; i++, p += TILE, dp += TILE) {
        const int64_t first = gckpti_attn_at_mask(h, head, i0 + i, j0);
        const float *mask = h->mask.x + first;
        float *to = call->in[3].grad + first;
        const FLOATS lse = V(set1)(((const float *)call->saved)[head * h->t + i0 + i]);
        const FLOATS delta = V(set1)(V(dot)(g + i * h->c, call->out + at + i * h->c, d));
        for (int64_t j = 0; j < n; j += W) {
            const FLOATS s = V(fma)(V(load)(p + j), V(set1)(scale), V(zero)());
            const FLOATS a = along ? V(load_n)(mask + j, n - j) : V(set1)(*mask);
            const FLOATS x = V(exp)(s + a - lse), y = V(load)(dp + j) - delta;
            if (along)
                V(store_n)(to + j, V(fma)(x, y, V(load_n)(to + j, n - j)), n - j);
            V(store)(p + j, x);
            V(store)(dp + j, y);
        }
        for (int64_t j = 0; !along && j < n; j++)
            *to = gckpti_fma(p[j], dp[j], *to);
    }
}
#endif
