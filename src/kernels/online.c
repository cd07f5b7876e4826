#if !GCKPTI_OPTIMISED && !defined(__clang__) /* as in kernels/vectors */
#pragma GCC pop_options
#endif

/* gckpti_online down W columns of x, [64][64] scores of which n rows exist: they become their
 * exponentials. Column i sees the rows 0..i+diagonal only, of these `window` (they count from the
 * last one on), and has a zero in the others; if none of the W sees any, x stays: 0. (max, sum,
 * factor: W of three rows of the caller's, in no struct.) */
GCKPTI_INLINED int V(online_of)(float *x, int64_t n, int64_t diagonal, int64_t window, float scale,
                                int first, float *max, float *sum, float *factor)
{
    const int64_t since = diagonal + 1 - window; /* column 0's first row */

    const FLOATS zero = V(zero)(), least = V(set1)(-GCKPTI_INFINITY), times = V(set1)(scale);
    FLOATS top = least, other = least, shift, e[16], change = zero;
    n = diagonal + W < n ? diagonal + W : n;
    if (n <= 0 || since >= n) { /* none */
        V(store)(factor, V(set1)(1.0f));
        return 0;
    }
    for (int64_t j = since > 0 ? since : 0; j < n; j++) {
        FLOATS s = V(load)(x + j * GCKPTI_BLOCK);
        if (j > diagonal)
            s = V(upto)(j - diagonal, least, s);
        if (j < since + W - 1)
            s = V(upto)(j + 1 - since, s, least);
        if (j & 1)
            other = V(highest)(s, other);
        else
            top = V(highest)(s, top);
    }
    top = V(fma)(V(highest)(top, other), times, zero);
    if (!first) {
        other = V(load)(max);
        top = V(highest)(top, other);
    }
    shift = V(less)(least, top, top, zero);
    if (!first)
        change = V(exp_below)(other - shift);
    /* the 32 lanes of a column's sum: l has rows l and l + 32; the first fold adds lane l + 16 */
    for (int l = 0; l < 16; l += 2) {
        FLOATS s[8];
        for (int i = 0; i < 8; i++) {
            const int64_t j = l + i / 2 * 16 + i % 2;
            s[i] = V(set1)(-0.0f); /* none: changes no sum and, against a +0, no chain */
            if (j < n && j >= since)
                s[i] = V(exp_below)(V(fma)(V(load)(x + j * GCKPTI_BLOCK), times, zero) - shift);
            if (j < n && j > diagonal)
                s[i] = V(upto)(j - diagonal, zero, s[i]);
            if (j >= since && j < since + W - 1)
                s[i] = V(upto)(j + 1 - since, s[i], zero);
            V(store)(x + j * GCKPTI_BLOCK, s[i]);
        }
        e[l] = s[0] + s[4] + (s[2] + s[6]);
        e[l + 1] = s[1] + s[5] + (s[3] + s[7]);
    }
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++)
            e[l] = e[l] + e[l + half];
    if (!first)
        e[0] = V(fma)(V(load)(sum), change, e[0]);
    V(store)(max, top);
    V(store)(sum, e[0]);
    V(store)(factor, change);
    return 1;
}

/* out *= factor, of a query */
GCKPTI_INLINED void V(rescale)(float *out, float factor, int64_t d)
{
    for (int64_t e = 0; factor != 1.0f && e < d; e += W)
        V(store_n)(out + e, V(load_n)(out + e, d - e) * V(set1)(factor), d - e);
}

/* Query i of a head by itself, with its scores side by side. */
static GCKPTI_TARGET void V(attention_query)(const gckpti_heads *h, int64_t row, int64_t head,
                                             int64_t i)
{
    const gckpt_call *call = h->call;
    int64_t at = (row * h->t + i) * h->c + head * h->d;
    int64_t keys = row * h->s * h->kc + head / h->group * h->d;
    const float *q = call->in[0].data + at, scale = gckpti_heads_after(h);
    float p[GCKPTI_BLOCK] = { 0.0f }, max = 0.0f, sum = 0.0f;
    float *out = call->out ? call->out + at : NULL, *aux = (float *)call->saved;
    int64_t seen = gckpti_min(h->sight.keys, i + 1 + h->sight.ahead);
    const int64_t first = gckpti_heads_tile(h, i);
    if (out)
        memset(out, 0, (size_t)h->d * sizeof *out);
    for (int64_t j = first; j < seen; j += GCKPTI_BLOCK) {
        const int64_t n = gckpti_min(seen - j, GCKPTI_BLOCK), at_j = keys + gckpti_heads_row(h, j);
        const int64_t from = gckpti_heads_unseen(h, i, j, n);
        const float *k = call->in[1].data + at_j, *v = call->in[2].data + at_j;
        const V(lone) scores = { h->d, n, q, 1, k, h->kc, NULL, NULL, p, v };
        const V(lone) values = { n - from, h->d, p + from, 1, v + from * h->kc, h->kc,
                                 NULL,     NULL, out,      NULL };
        V(dots)(&scores);
        if (h->cap > 0.0f)
            V(cap)(p, n, h->times, h->cap);
        for (int64_t e = 0; e < n; e += W)
            V(store)(p + e, V(fma)(V(load)(p + e), V(set1)(scale), V(zero)()));
        for (int64_t e = 0; e < from; e++)
            p[e] = -GCKPTI_INFINITY;
        float factor = V(online)(p, p, n, j == first, &max, &sum);
        if (!out)
            continue;
        if (j > first)
            V(rescale)(out, factor, h->d);
        V(sweep)(&values);
    }
    gckpti_softmax_end(&max, &sum);
    if (out)
        V(divide)(out, sum, h->d);
    if (aux)
        aux[(row * h->heads + head) * h->t + i] = max + V(log_of)(sum);
}

/* m queries from `first` on have seen all: their sums, and aux. (Seven parameters: which, and two
 * rows of the caller's.) */
static GCKPTI_TARGET void V(head_end)(const gckpti_heads *h, int64_t row, int64_t head,
                                      int64_t first, int64_t m, float *max, float *sum)
{
    float *aux = (float *)h->call->saved;
    for (int64_t r = 0; r < m; r++)
        gckpti_softmax_end(&max[r], &sum[r]);
    if (!aux)
        return;
    aux += (row * h->heads + head) * h->t + first;
    for (int64_t i = 0; i < m; i += W)
        V(store_n)(aux + i, V(load)(max + i) + V(log_called)(V(load)(sum + i)), m - i);
}

/* Maximum and sum of what sees nothing in its block's first tile of keys. */
static GCKPTI_TARGET void V(heads_start)(const gckpti_heads *h, float *max, float *sum)
{
    for (int64_t i = 0; h->window < h->s && i < GCKPTI_BLOCK; i++)
        max[i] = -GCKPTI_INFINITY, sum[i] = 0.0f;
}

/* Queries `first`.. of a head. */
static GCKPTI_TARGET void V(attention_forward)(const gckpti_heads *h, int64_t row, int64_t head,
                                               int64_t first, float *room)
{
    const gckpt_call *call = h->call;
    gckpti_band scores = { h->kc, 1, GCKPTI_BLOCK, GCKPTI_BLOCK, GCKPTI_COLUMNS_FROM, 1, 0,
                           NULL,  h, NULL };
    gckpti_band values = { 1, GCKPTI_BLOCK, h->wide, h->c, GCKPTI_LINKS_TO, 0, 0, NULL, h, NULL };
    int64_t m = gckpti_min(h->t - first, GCKPTI_BLOCK), ahead = first + h->sight.ahead;
    int64_t seen = gckpti_min(h->sight.keys, ahead + m), j0 = gckpti_heads_tile(h, first);
    int64_t at = (row * h->t + first) * h->c + head * h->d;
    int64_t keys = row * h->s * h->kc + head / h->group * h->d;
    float *q = room, *v = q + GCKPTI_BLOCK * (h->d + W), *p = v + GCKPTI_BLOCK * h->wide;
    float max[GCKPTI_BLOCK], sum[GCKPTI_BLOCK], factor[GCKPTI_BLOCK];
    float *out = call->out ? call->out + at : NULL;
    if (m <= 3) { /* more fill vectors */
        for (int64_t r = 0; r < m; r++)
            V(attention_query)(h, row, head, first + r);
        return;
    }
    if (j0 >= seen) /* they see none; what is theirs is zeros */
        return;
    const float *k = call->in[1].data + keys + gckpti_heads_row(h, j0);
    const float after = gckpti_heads_after(h);
    V(heads_start)(h, max, sum);
    V(fetch_rows)(h, k, gckpti_min(seen - j0, GCKPTI_BLOCK), 0, h->d);
    V(pack)(call->in[0].data + at, 1, h->c, m, h->d, q, GCKPTI_BLOCK);
    for (int64_t j = j0; j < seen; j += GCKPTI_BLOCK) {
        const int64_t n = gckpti_min(seen - j, GCKPTI_BLOCK), at_j = keys + gckpti_heads_row(h, j);
        k = call->in[1].data + at_j;
        scores.diagonal = values.diagonal = ahead - j;
        scores.next = out ? call->in[2].data + at_j : NULL;
        V(bands)(&scores, n, m, h->d, k, q, p);
        if (h->cap > 0.0f)
            V(cap)(p, n * GCKPTI_BLOCK, h->times, h->cap);
        for (int64_t i = 0; i < m; i += W)
            (void)V(online_of)(p + i, n, ahead - j + i, h->window, after, j == j0, max + i,
                               sum + i, factor + i);
        if (!out)
            continue;
        V(gather)(h, call->in[2].data + at_j, h->kc, n, v);
        values.fresh = j == j0, values.factor = factor;
        values.next = seen - j - GCKPTI_BLOCK >= m
                          ? call->in[1].data + keys + gckpti_heads_row(h, j + GCKPTI_BLOCK)
                          : NULL;
        V(bands)(&values, m, h->d, n, p, v, out);
    }
    V(head_end)(h, row, head, first, m, max, sum);
    for (int64_t r = 0; out && r < m; r++)
        V(divide)(out + r * h->c, sum[r], h->d);
}

/* A key's scores of queries from..m-1 become probabilities p = exp(s - lse), its dp become ds = p
 * (dp - delta) scale, where delta = sum(g out) of the query. (Its only caller opens it.) */
static GCKPTI_TARGET void V(head_slopes)(const gckpti_heads *h, int64_t from, int64_t m,
                                         const float *lse, const float *delta, float *p, float *ds)
{
    const FLOATS scale = V(set1)(h->scale), zero = V(zero)();
    const FLOATS times = V(set1)(gckpti_heads_after(h));
    const FLOATS inverse = V(set1)(h->cap > 0.0f ? 1.0f / h->cap : 0.0f);
    for (int64_t i = from; i < m; i += W) {
        const FLOATS s = V(fma)(V(load)(p + i), times, zero);
        FLOATS x = V(exp_below)(s - V(load)(lse + i)), y;
        V(store)(p + i, x);
        if (!ds)
            continue;
        y = V(load)(ds + i) - V(load)(delta + i);
        if (h->cap > 0.0f)
            y = V(cap_slope)(y, s, inverse);
        V(store)(ds + i, x * y * scale);
    }
}

/* A head: for each block of 64 queries, over all blocks of keys that it sees, the scores and the
 * gradients of probabilities (both transposed), and from these what they add to dv, dq and dk (of
 * shared keys after the head before). (More than 60 lines: two loops over the same blocks.) */
static GCKPTI_TARGET void V(attention_backward)(const gckpti_heads *h, int64_t row, int64_t head,
                                                float *room)
{
    const gckpt_call *call = h->call;
    gckpti_band scores = { h->kc, 1, GCKPTI_BLOCK, GCKPTI_BLOCK, GCKPTI_COLUMNS_FROM, 1, 0,
                           NULL,  h, NULL };
    gckpti_band over_queries = { GCKPTI_BLOCK, 1, h->wide, h->kc, GCKPTI_LINKS_FROM, 0, 0,
                                 NULL,         h, NULL };
    gckpti_band over_keys = {
        1, GCKPTI_BLOCK, h->wide, h->c, GCKPTI_LINKS_TO, 0, 0, NULL, h, NULL
    };
    int64_t c = h->c, kc = h->kc, packed = GCKPTI_BLOCK * (h->d + W), rows = GCKPTI_BLOCK * h->wide;
    int64_t at_q = row * h->t * c + head * h->d, at_k = row * h->s * kc + head / h->group * h->d;
    float *qt = room, *gt = qt + packed, *q = gt + packed, *g = q + rows, *k = g + rows;
    float *p = k + rows, *ds = p + GCKPTI_BLOCK * GCKPTI_BLOCK;
    float lse[GCKPTI_BLOCK] = { 0.0f }, delta[GCKPTI_BLOCK] = { 0.0f };
    float *dq = call->in[0].grad, *dk = call->in[1].grad, *dv = call->in[2].grad;
    for (int64_t first = 0; first < h->t; first += GCKPTI_BLOCK) {
        int64_t m = gckpti_min(h->t - first, GCKPTI_BLOCK), at = at_q + first * c;
        int64_t ahead = first + h->sight.ahead, seen = gckpti_min(h->sight.keys, ahead + m);
        const int64_t j0 = gckpti_heads_tile(h, first);
        const float *grad = call->grad_out + at;
        memcpy(lse, (const float *)call->saved + (row * h->heads + head) * h->t + first,
               (size_t)m * sizeof *lse);
        V(pack)(call->in[0].data + at, 1, c, m, h->d, qt, GCKPTI_BLOCK);
        V(gather)(h, grad, c, m, g);
        if (dk)
            V(gather)(h, call->in[0].data + at, c, m, q);
        if (dq || dk)
            V(pack)(grad, 1, c, m, h->d, gt, GCKPTI_BLOCK);
        for (int64_t r = 0; (dq || dk) && r < m; r++)
            delta[r] = V(dot)(grad + r * c, call->out + at + r * c, h->d);
        for (int64_t j = j0; j < seen; j += GCKPTI_BLOCK) {
            int64_t n = gckpti_min(h->sight.keys - j, GCKPTI_BLOCK), key = at_k + j * kc;
            int whole = h->sight.keys - j >= 2 * GCKPTI_BLOCK; /* the next one, too */
            scores.diagonal = over_queries.diagonal = over_keys.diagonal = ahead - j;
            scores.next = dq || dk ? call->in[2].data + key : NULL;
            V(bands)(&scores, n, m, h->d, call->in[1].data + key, qt, p);
            scores.next = dv ? dv + key : NULL;
            if (dq || dk)
                V(bands)(&scores, n, m, h->d, call->in[2].data + key, gt, ds);
            if (h->cap > 0.0f)
                V(cap)(p, n * GCKPTI_BLOCK, h->times, h->cap);
            for (int64_t r = 0; r < n; r++) {
                float *pr = p + r * GCKPTI_BLOCK, *dr = dq || dk ? ds + r * GCKPTI_BLOCK : NULL;
                int64_t from = r > ahead - j ? r - (ahead - j) : 0;
                V(head_slopes)(h, from - from % W, m, lse, delta, pr, dr);
            }
            /* chains start with the first block a query meets, and with the first one of queries
             * that meets a block of keys (those of it that meet none yet get +0) */
            int first_met = head % h->group == 0 && (first == 0 || j >= ahead);
            over_queries.fresh = first_met && !call->in[2].accumulate;
            over_queries.next = dk ? dk + key : NULL;
            if (dv)
                V(bands)(&over_queries, n, h->d, m, p, g, dv + key);
            over_keys.fresh = j == j0 && !call->in[0].accumulate;
            if (dq) {
                V(gather)(h, call->in[1].data + key, kc, n, k);
                V(bands)(&over_keys, m, h->d, n, ds, k, dq + at);
            }
            over_queries.fresh = first_met && !call->in[1].accumulate;
            over_queries.next = whole ? call->in[1].data + key + GCKPTI_BLOCK * kc : NULL;
            if (dk)
                V(bands)(&over_queries, n, h->d, m, ds, q, dk + key);
        }
    }
}
