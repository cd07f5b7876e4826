#ifndef GCKPT_NO_BF16
#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
/* ---- attention of bf16 plans: chains of words. bf16: else flushing subnormals as the instructions
 * do ---- */
#if GCKPTI_ISA == 3
#define GCKPTI_PAIRED 8
#define GCKPTI_EACH_PAIRED(X)                                                                      \
    X(0, a)                                                                                        \
    X(1, a + row)                                                                                  \
    X(2, a + 2 * row) X(3, a + row3) X(4, a4) X(5, a4 + row) X(6, a4 + 2 * row) X(7, a4 + row3)
#else
#define GCKPTI_PAIRED         4
#define GCKPTI_EACH_PAIRED(X) X(0, a) X(1, a + row) X(2, a + 2 * row) X(3, a + row3)
#endif

/* d[i * pairs + p]: links 2 p and 2 p + 1 of n rows of k. */
GCKPTI_INLINED void V(word_rows)(const gckpti_factor *x, int64_t at, int64_t n, int64_t k,
                                 uint32_t *d, int bf16)
{
    void *to = d;
    float *words = (float *)to;
    for (int64_t i = 0; i < n; i++, at += x->row, words += (k + 1) / 2)
        for (int64_t p = 0; p < k; p += 2 * W) {
            const int64_t left = k - p;
            uint16_t edge[2 * W];
            INTS a;
            if (x->f32 && left >= 2 * W) {
                const float *from = x->f32 + at + p;
                a = V(neighbours)(V(load)(from), V(load)(from + W), bf16);
                V(store)(words + p / 2, V(floats)(a));
                continue;
            }
            for (int64_t e = 0; e < 2 * W && left < 2 * W; e++)
                edge[e] = e < left ? gckpti_factor_at(x, at + p + e) : 0x8000;
            memcpy(&a, left < 2 * W ? edge : x->bf16 + at + p, sizeof a);
            V(store_n)(words + p / 2, V(floats)(a << 16 | a >> 16), (left + 1) / 2);
        }
}

/* The chains of GCKPTI_PAIRED rows and `vectors` (1 or 2) vectors go on: pairs from[1]..from[2]-1
 * of links by all rows; before and after them those to from[3]-1 by rows that have such links: row
 * i from `edge` + i on (LINKS_FROM), or those below (LINKS_TO). Half a pair goes with -0 x +0,
 * which changes no chain. */
GCKPTI_INLINED void V(words_tile)(const gckpti_band *s, int vectors, int bf16, const int64_t *from,
                                  int64_t edge, const uint32_t *a, const uint32_t *b, float *c)
{
    const int64_t row = s->a_row, row3 = 3 * row, a_step = s->a_step, b_step = s->b_step;
    const int to = s->edge == GCKPTI_LINKS_TO;
    const INTS kept = V(word)(to ? 0xffff0000u : 0xffffu), none = V(word)(to ? 0x8000u : 1u << 31);
    const uint32_t *a4 = a + 4 * row;
    int64_t p = from[0];
    a += p * a_step, a4 += p * a_step, b += p * b_step;
    (void)a4;
#define GCKPTI_PAIRED_START(i, at)                                                                 \
    FLOATS l##i = V(zero)(), h##i = l##i;                                                          \
    if (!s->fresh) {                                                                               \
        l##i = V(load)(c + (i)*s->c_row);                                                          \
        if (vectors > 1)                                                                           \
            h##i = V(load)(c + (i)*s->c_row + W);                                                  \
    }
#define GCKPTI_PAIRED_LINKS(i, at)                                                                 \
    x = V(word)(*(at));                                                                            \
    l##i = V(two_links)(x, b0, l##i, bf16);                                                        \
    if (vectors > 1)                                                                               \
        h##i = V(two_links)(x, b1, h##i, bf16);
#define GCKPTI_PAIRED_CORNER(i, at)                                                                \
    links = to ? edge + (i)-2 * p : 2 * p + 2 - edge - (i);                                        \
    if (links >= 2) {                                                                              \
        GCKPTI_PAIRED_LINKS(i, at)                                                                 \
    } else if (links == 1) {                                                                       \
        x = (V(word)(*(at)) & kept) | none;                                                        \
        l##i = V(two_links)(x, b0 & kept, l##i, bf16);                                             \
        if (vectors > 1)                                                                           \
            h##i = V(two_links)(x, b1 & kept, h##i, bf16);                                         \
    }
#define GCKPTI_PAIRED_STORE(i, at)                                                                 \
    V(store)(c + (i)*s->c_row, l##i);                                                              \
    if (vectors > 1)                                                                               \
        V(store)(c + (i)*s->c_row + W, h##i);
#define GCKPTI_PAIRED_OVER(end, ROW)                                                               \
    for (; p < (end); p++, a += a_step, a4 += a_step, b += b_step) {                               \
        const INTS b0 = V(words)(b), b1 = vectors > 1 ? V(words)(b + W) : b0;                      \
        INTS x;                                                                                    \
        GCKPTI_EACH_PAIRED(ROW)                                                                    \
    }
    int64_t links;
    GCKPTI_EACH_PAIRED(GCKPTI_PAIRED_START)
    GCKPTI_PAIRED_OVER(from[1], GCKPTI_PAIRED_CORNER)
    GCKPTI_PAIRED_OVER(from[2], GCKPTI_PAIRED_LINKS)
    GCKPTI_PAIRED_OVER(from[3], GCKPTI_PAIRED_CORNER)
    GCKPTI_EACH_PAIRED(GCKPTI_PAIRED_STORE)
#undef GCKPTI_PAIRED_START
#undef GCKPTI_PAIRED_LINKS
#undef GCKPTI_PAIRED_CORNER
#undef GCKPTI_PAIRED_STORE
#undef GCKPTI_PAIRED_OVER
}

/* What the diagonal leaves of c (m,n), k links; rows and columns are filled up to whole tiles. */
GCKPTI_INLINED void V(words_bands_of)(const gckpti_band *s, int bf16, int64_t m, int64_t n,
                                      int64_t k, const uint32_t *a, const uint32_t *b, float *c)
{
    const int64_t pairs = (k + 1) / 2;
    unsigned mode = 0;
    if (!bf16) {
        mode = _mm_getcsr();
        _mm_setcsr(mode | 0x8040u);
        __asm__ volatile("" ::: "memory"); /* nothing is computed on the wrong side */
    }
    for (int64_t i = 0; i < m; i += GCKPTI_PAIRED) {
        int64_t edge = 0, end = n, j = 0, from[4] = { 0, 0, pairs, pairs };
        if (s->edge == GCKPTI_COLUMNS_TO)
            end = gckpti_min(n, i + GCKPTI_PAIRED + s->diagonal);
        if (s->edge == GCKPTI_COLUMNS_FROM && i > s->diagonal)
            j = (i - s->diagonal) / W * W;
        if (s->edge == GCKPTI_LINKS_TO) {
            edge = i + s->diagonal + 1;
            from[2] = edge < 0 ? 0 : gckpti_min(edge / 2, pairs);
            from[3] = edge + GCKPTI_PAIRED < 0 ? 0 : gckpti_min((edge + GCKPTI_PAIRED) / 2, pairs);
        }
        if (s->edge == GCKPTI_LINKS_FROM) {
            edge = i - s->diagonal;
            from[0] = edge < 0 ? 0 : gckpti_min(edge / 2, pairs);
            from[1] = edge + GCKPTI_PAIRED < 0 ? 0 : gckpti_min((edge + GCKPTI_PAIRED) / 2, pairs);
        }
        for (; j < end; j += 2 * W)
            if (end - j > W)
                V(words_tile)
        (s, 2, bf16, from, edge, a + i * s->a_row, b + j, c + i * s->c_row + j);
        else V(words_tile)(s, 1, bf16, from, edge, a + i * s->a_row, b + j, c + i * s->c_row + j);
    }
    if (!bf16) {
        __asm__ volatile("" ::: "memory");
        _mm_setcsr(mode);
    }
}

/* It once for each way: attention has seven places that call it. */
static GCKPTI_TARGET void V(words_bands_soft)(const gckpti_band *s, int64_t m, int64_t n, int64_t k,
                                              const uint32_t *a, const uint32_t *b, float *c)
{
    V(words_bands_of)(s, 0, m, n, k, a, b, c);
}
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
static GCKPTI_TARGET void gckpti_words_bands_bf16(const gckpti_band *s, int64_t m, int64_t n,
                                                  int64_t k, const uint32_t *a, const uint32_t *b,
                                                  float *c)
{
    V(words_bands_of)(s, 1, m, n, k, a, b, c);
}
#endif

static GCKPTI_TARGET void V(words_bands)(const gckpti_band *s, int bf16, int64_t m, int64_t n,
                                         int64_t k, const uint32_t *a, const uint32_t *b, float *c)
{
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
    if (bf16) {
        gckpti_words_bands_bf16(s, m, n, k, a, b, c);
        return;
    }
#endif
    (void)bf16;
    V(words_bands_soft)(s, m, n, k, a, b, c);
}

/* sum(g out) of a query, as gckpti_dot adds up; another one, `ahead` elements on, is fetched */
GCKPTI_INLINED float V(head_delta)(const gckpti_heads *h, const gckpt_arg *g, const gckpt_arg *out,
                                   int64_t at, int64_t ahead)
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
            x = g->bf16 ? V(load_bf16)(g->bf16 + i, left) : V(load_n)(g->data + i, left);
            y = out->bf16 ? V(load_bf16)(out->bf16 + i, left) : V(load_n)(out->data + i, left);
            lane[p] = V(upto)(left, V(fma)(x, y, lane[p]), lane[p]);
        }
    }
    return V(fold)(lane, 0);
}

/* d[i * wide + e]: n rows of a gradient, where chains start; at `end` they go back. */
static GCKPTI_TARGET void V(head_gradient)(const gckpti_heads *h, const gckpt_arg *arg, int64_t at,
                                           int64_t n, float *d, int end)
{
    const gckpti_mixed_kernels *by = gckpti_kernels_of(h->call)->mixed;
    const size_t bytes = (size_t)h->d * sizeof *d;
    for (int64_t i = 0; (end || arg->accumulate) && i < n; i++, at += h->c, d += h->wide)
        if (end && arg->grad)
            memcpy(arg->grad + at, d, bytes);
        else if (end)
            by->narrow(d, arg->grad_bf16 + at, h->d);
        else if (arg->grad)
            memcpy(d, arg->grad + at, bytes);
        else
            by->widen(arg->grad_bf16 + at, d, h->d);
}

/* As V(attention_forward). */
GCKPTI_INLINED void V(words_forward)(const gckpti_heads *h, int64_t row, int64_t head,
                                     int64_t first, float *room, int bf16)
{
    const gckpt_call *call = h->call;
    const gckpti_mixed_kernels *by = gckpti_kernels_of(call)->mixed;
    const gckpti_factor q = gckpti_factor_of(&call->in[0], 0, h->c, 1, 0);
    const gckpti_factor k = gckpti_factor_of(&call->in[1], 0, h->c, 1, 0);
    const gckpti_factor v = gckpti_factor_of(&call->in[2], 0, 1, h->c, 0);
    gckpti_band scores = { (h->d + 1) / 2, 1, GCKPTI_BLOCK, GCKPTI_BLOCK, GCKPTI_COLUMNS_FROM, 1, 0,
                           NULL,           h, NULL };
    gckpti_band values = { 1,   2 * GCKPTI_BLOCK, h->wide, h->wide, GCKPTI_LINKS_TO, 0, 0, NULL, h,
                           NULL };
    int64_t m = gckpti_min(h->t - first, GCKPTI_BLOCK), ahead = first + h->sight.ahead;
    int64_t seen = gckpti_min(h->sight.keys, ahead + m), half = GCKPTI_BLOCK / 2 * h->wide;
    int64_t at = (row * h->t + first) * h->c + head * h->d, keys = row * h->s * h->c + head * h->d;
    float *p = room, *out = p + GCKPTI_BLOCK * GCKPTI_BLOCK;
    void *rest = out + GCKPTI_BLOCK * h->wide, *words = p;
    uint32_t *across = (uint32_t *)rest, *rows = across + half;
    float max[GCKPTI_BLOCK], sum[GCKPTI_BLOCK], factor[GCKPTI_BLOCK];
    by->pack(&q, at, m, h->d, 0, across, GCKPTI_BLOCK);
    for (int64_t j = 0; j < seen; j += GCKPTI_BLOCK) {
        int64_t n = gckpti_min(seen - j, GCKPTI_BLOCK);
        scores.diagonal = values.diagonal = ahead - j;
        V(word_rows)(&k, keys + j * h->c, n, h->d, rows, bf16);
        V(words_bands)(&scores, bf16, n, m, h->d, rows, across, p);
        for (int64_t i = 0; i < m; i += W)
            V(online_of)
        (p + i, n, ahead - j + i, h->scale, j == 0, max + i, sum + i, factor + i, 1, bf16);
        if (!call->out && !call->out_bf16)
            continue;
        for (int64_t r = 0; j && r < m; r++)
            V(rescale)(out + r * h->wide, factor[r], h->d);
        by->pack(&v, keys + j * h->c, h->d, n, 0, rows, h->wide);
        values.fresh = j == 0;
        V(words_bands)(&values, bf16, m, h->d, n, (const uint32_t *)words, rows, out);
    }
    V(head_end)(h, row, head, first, m, max, sum);
    for (int64_t r = 0; r < m; r++, at += h->c, out += h->wide) {
        if (call->out || call->out_bf16)
            V(divide)(out, sum[r], h->d);
        if (call->out)
            memcpy(call->out + at, out, (size_t)h->d * sizeof *out);
        else if (call->out_bf16)
            by->narrow(out, call->out_bf16 + at, h->d);
    }
}

/* Scores of a query and the next one (b: gradients of probabilities, or NULL) over n keys become
 * words of both queries' probabilities and ds; `along` and, of the second one, along +
 * GCKPTI_BLOCK / 2 get ds as words of two keys. `second`: there is one; lse, delta: of both. */
GCKPTI_INLINED void V(words_slopes)(const gckpti_heads *h, int64_t n, int second, const float *lse,
                                    const float *delta, float *a, float *b, uint32_t *along,
                                    int bf16)
{
    const FLOATS scale = V(set1)(h->scale), zero = V(zero)(), none = V(set1)(-0.0f);
    void *p = a, *ds = b;
    for (int64_t j = 0; j < n; j += 2 * W) {
        FLOATS x[4], y[4]; /* this query's keys, then the next one's */
        for (int i = 0; i < 4; i++) {
            const int64_t to = i / 2 * GCKPTI_BLOCK + j + i % 2 * W;
            x[i] = y[i] = none;
            if (i > 1 && !second)
                continue;
            x[i] = V(fma)(V(load)(a + to), scale, zero) - V(set1)(lse[i / 2]);
            x[i] = V(exp_below)(x[i]);
            if (b)
                y[i] = x[i] * (V(load)(b + to) - V(set1)(delta[i / 2])) * scale;
        }
        for (int i = 0; i < 2; i++) {
            V(store_words)((uint32_t *)p + j + i * W, V(pair)(x[i], x[i + 2], bf16));
            if (b)
                V(store_words)((uint32_t *)ds + j + i * W, V(pair)(y[i], y[i + 2], bf16));
        }
        if (b) {
            V(store_words)(along + j / 2, V(neighbours)(y[0], y[1], bf16));
            V(store_words)
            (along + (GCKPTI_BLOCK + j) / 2, V(neighbours)(y[2], y[3], bf16));
        }
    }
}

static GCKPTI_TARGET void V(words_begin)(gckpti_words *s, const gckpti_heads *h, int64_t row,
                                         int64_t head, float *room)
{
    enum { BLOCK = GCKPTI_BLOCK };
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const gckpt_arg out = { call->out, NULL, NULL, 0, NULL, call->shape, call->out_bf16, NULL };
    const gckpt_arg grad = { call->grad_out,      NULL, NULL, 0, NULL, call->shape,
                             call->grad_out_bf16, NULL };
    const gckpti_band scores = { (h->d + 1) / 2, 1, BLOCK, BLOCK, GCKPTI_COLUMNS_TO, 1, 0,
                                 NULL,           h, NULL };
    const gckpti_band over_queries = { 1, 2 * BLOCK, h->wide, h->wide, GCKPTI_LINKS_FROM,
                                       0, 0,         NULL,    h,       NULL };
    const gckpti_band over_keys = { BLOCK / 2, 1, h->wide, h->wide, GCKPTI_LINKS_TO,
                                    0,         0, NULL,    h,       NULL };
    const int64_t c = h->c, half = BLOCK / 2 * h->wide, queries = gckpti_multiple(h->t, BLOCK);
    s->h = h, s->at_q = row * h->t * c + head * h->d;
    s->q = gckpti_factor_of(&in[0], 0, c, 1, 0), s->pairs_q = gckpti_turned(&s->q);
    s->k = gckpti_factor_of(&in[1], 0, c, 1, 0), s->pairs_k = gckpti_turned(&s->k);
    s->v = gckpti_factor_of(&in[2], 0, c, 1, 0);
    s->g = gckpti_factor_of(&grad, 0, c, 1, 0), s->pairs_g = gckpti_turned(&s->g);
    s->scores = scores, s->over_queries = over_queries, s->over_keys = over_keys;
    s->to_q = in[0].grad || in[0].grad_bf16, s->to_k = in[1].grad || in[1].grad_bf16;
    s->to_v = in[2].grad || in[2].grad_bf16;
    s->lse = (const float *)call->aux + (row * h->heads + head) * h->t;
    s->p = room, s->ds = s->p + BLOCK * BLOCK, s->dk = s->ds + BLOCK * BLOCK;
    s->dv = s->dk + BLOCK * h->wide, s->dq = s->dv + BLOCK * h->wide;
    s->delta = s->dq + queries * h->wide;
    void *rest = s->delta + queries;
    s->along = (uint32_t *)rest, s->kt = s->along + BLOCK / 2 * BLOCK, s->vt = s->kt + half;
    s->k_words = s->vt + half, s->rows = s->k_words + half;
    for (int64_t i = 0; (s->to_q || s->to_k) && i < h->t; i++)
        s->delta[i] = V(head_delta)(h, &grad, &out, s->at_q + i * c, i + 8 < h->t ? 8 * c : 0);
}

/* Queries i.. (up to a block) and keys j.. (n of them), the first such block of queries or not. */
GCKPTI_INLINED void V(words_block)(gckpti_words *s, int64_t i, int64_t j, int64_t n, int first,
                                   int bf16)
{
    enum { BLOCK = GCKPTI_BLOCK };
    const gckpti_heads *h = s->h;
    const gckpt_arg *in = h->call->in;
    const gckpti_mixed_kernels *by = gckpti_kernels_of(h->call)->mixed;
    const int64_t m = gckpti_min(h->t - i, BLOCK), at = s->at_q + i * h->c;
    const int64_t diagonal = i + h->sight.ahead - j;
    const int slopes = s->to_q || s->to_k;
    const void *p = s->p, *ds = s->ds;
    uint32_t *along = s->along;
    s->scores.diagonal = s->over_queries.diagonal = s->over_keys.diagonal = diagonal;
    V(word_rows)(&s->q, at, m, h->d, s->rows, bf16);
    V(words_bands)(&s->scores, bf16, m, n, h->d, s->rows, s->kt, s->p);
    if (slopes) {
        V(word_rows)(&s->g, at, m, h->d, s->rows, bf16);
        V(words_bands)(&s->scores, bf16, m, n, h->d, s->rows, s->vt, s->ds);
    }
    for (int64_t r = 0; r < m; r += 2)
        V(words_slopes)
    (h, gckpti_min(n, r + 2 + diagonal), r + 1 < m, s->lse + i + r, s->delta + i + r,
     s->p + r * BLOCK, slopes ? s->ds + r * BLOCK : NULL, along + r * (BLOCK / 2), bf16);
    for (int64_t r = 0; n % 2 && r < m; r++)
        along[r * (BLOCK / 2) + n / 2] = (along[r * (BLOCK / 2) + n / 2] & ~0xffffu) | 0x8000;
    s->over_queries.fresh = first && !in[2].accumulate;
    if (s->to_v) {
        by->pack(&s->pairs_g, at, h->d, m, 0, s->rows, h->wide);
        V(words_bands)(&s->over_queries, bf16, n, h->d, m, (const uint32_t *)p, s->rows, s->dv);
    }
    s->over_queries.fresh = first && !in[1].accumulate;
    if (s->to_k) {
        by->pack(&s->pairs_q, at, h->d, m, 0, s->rows, h->wide);
        V(words_bands)(&s->over_queries, bf16, n, h->d, m, (const uint32_t *)ds, s->rows, s->dk);
    }
    s->over_keys.fresh = j == 0 && !in[0].accumulate;
    if (s->to_q)
        V(words_bands)(&s->over_keys, bf16, m, h->d, n, along, s->k_words, s->dq + i * h->wide);
}

/* As V(attention_backward), but for each block of 64 keys over all blocks of queries that see it:
 * dq's chains rest in `dq`, those of dk and dv in blocks. */
GCKPTI_INLINED void V(words_backward)(const gckpti_heads *h, int64_t row, int64_t head, float *room,
                                      int bf16)
{
    enum { BLOCK = GCKPTI_BLOCK };
    const gckpt_arg *in = h->call->in;
    const gckpti_mixed_kernels *by = gckpti_kernels_of(h->call)->mixed;
    const int64_t at_k = row * h->s * h->c + head * h->d;
    gckpti_words s;
    V(words_begin)(&s, h, row, head, room);
    if (s.to_q)
        V(head_gradient)(h, &in[0], s.at_q, h->t, s.dq, 0);
    for (int64_t j = 0; j < h->sight.keys; j += BLOCK) {
        int64_t n = gckpti_min(h->sight.keys - j, BLOCK), key = at_k + j * h->c;
        int64_t start = j > h->sight.ahead ? (j - h->sight.ahead) / BLOCK * BLOCK : 0;
        by->pack(&s.k, key, n, h->d, 0, s.kt, BLOCK);
        if (s.to_q || s.to_k)
            by->pack(&s.v, key, n, h->d, 0, s.vt, BLOCK);
        if (s.to_q)
            by->pack(&s.pairs_k, key, h->d, n, 0, s.k_words, h->wide);
        if (s.to_k)
            V(head_gradient)(h, &in[1], key, n, s.dk, 0);
        if (s.to_v)
            V(head_gradient)(h, &in[2], key, n, s.dv, 0);
        for (int64_t i = start; i < h->t; i += BLOCK)
            V(words_block)(&s, i, j, n, i == start, bf16);
        if (s.to_k)
            V(head_gradient)(h, &in[1], key, n, s.dk, 1);
        if (s.to_v)
            V(head_gradient)(h, &in[2], key, n, s.dv, 1);
    }
    if (s.to_q)
        V(head_gradient)(h, &in[0], s.at_q, h->t, s.dq, 1);
}

static GCKPTI_TARGET void V(mixed_forward)(const gckpti_heads *h, int64_t row, int64_t head,
                                           int64_t first, float *room)
{
    V(words_forward)(h, row, head, first, room, 0);
}
static GCKPTI_TARGET void V(mixed_backward)(const gckpti_heads *h, int64_t row, int64_t head,
                                            float *room)
{
    V(words_backward)(h, row, head, room, 0);
}
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
static GCKPTI_TARGET void gckpti_forward_bf16(const gckpti_heads *h, int64_t row, int64_t head,
                                              int64_t first, float *room)
{
    V(words_forward)(h, row, head, first, room, 1);
}
static GCKPTI_TARGET void gckpti_backward_bf16(const gckpti_heads *h, int64_t row, int64_t head,
                                               float *room)
{
    V(words_backward)(h, row, head, room, 1);
}
#endif
#undef GCKPTI_PAIRED
#undef GCKPTI_EACH_PAIRED
#endif

/* What gckpti_kernels has for bf16 plans. */
static const gckpti_mixed_kernels V(mixed_kernels) = {
#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
    V(mixed_tile), V(mixed_pack), V(widen), V(narrow), V(mixed_forward), V(mixed_backward)
#else
    NULL, NULL, V(widen), V(narrow), NULL, NULL
#endif
};
#if GCKPTI_ISA == 3 && GCKPTI_AVX512_BF16
static const gckpti_mixed_kernels gckpti_mixed_kernels_bf16 = {
    gckpti_mixed_tile_bf16,   gckpti_mixed_pack_bf16, V(widen),
    gckpti_mixed_narrow_bf16, gckpti_forward_bf16,    gckpti_backward_bf16
};
#endif
#endif
