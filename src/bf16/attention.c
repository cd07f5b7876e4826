#if !defined(GCKPT_NO_BF16) && !defined(GCKPT_NO_ATTENTION)
/* ---- attention of bf16 plans: tiles of 64 queries by 64 keys, by products of packed operands.
 * Masked keys take part with p = 0 and ds = 0; if an operand has an infinity or NaN, which times 0
 * would be NaN, the product is computed element by element (bf16/attention_ops.c). ---- */

/* Packs lanes of x, k terms each, as rows of an operand a or, if that is NULL, as a panel of b. */
static GCKPTI_TARGET void V(head_pack)(const gckpti_mixed_kernels *kernels, const gckpti_operand *x,
                                       int64_t lanes, int64_t k, uint16_t *a, uint32_t *b)
{
    gckpti_product t;
    memset(&t, 0, sizeof t);
    t.k = k;
    const int64_t blocks = (k + GCKPTI_K_BLOCK - 1) / GCKPTI_K_BLOCK;
    const gckpti_pack_lanes s = { kernels, &t, x, 0, lanes, 0, blocks };
    void *to = a ? (void *)a : (void *)b;
    kernels->pack(&s, a != NULL, (uint32_t *)to,
                  a ? gckpti_ceil_to(k, GCKPTI_K_BLOCK) / 2 : gckpti_ceil_to(lanes, 16));
}

/* Returns a product that has no a yet: b is a packed panel of n lanes, c has rows of `row`. */
GCKPTI_INLINED gckpti_packed_product V(head_product)(const gckpti_mixed_kernels *kernels,
                                                     const uint32_t *b, int64_t n, float *c,
                                                     int64_t row)
{
    gckpti_packed_product s;
    memset(&s, 0, sizeof s);
    s.kernels = kernels, s.n = gckpti_ceil_to(n, 16);
    s.tile.b = b, s.tile.b_row = s.n, s.tile.c = c, s.tile.c_row = row;
    return s;
}

/* Sets operand a of s to m rows of x: in place if possible, else packed. */
static GCKPTI_TARGET void V(head_set_a)(const gckpti_attn *h, gckpti_packed_product *s,
                                        const gckpti_operand *x, int64_t m, uint16_t *scratch)
{
    const int in_place = gckpti_is_in_place(s->kernels, x, m) && h->d == h->d_block;
    s->tile.m = in_place ? m : gckpti_ceil_to(m, 16);
    s->tile.a = in_place ? x->halves : scratch, s->tile.a_row = in_place ? x->stride : h->d_block;
    if (!in_place)
        V(head_pack)(s->kernels, x, m, h->d, scratch, NULL);
}

/* Returns whether n bf16 (whole vectors of them) have no infinity and no NaN. */
static GCKPTI_TARGET int V(all_finite)(const void *x, int64_t n)
{
    const unsigned char *at = (const unsigned char *)x;
    uint32_t lane[W], all = 0;
    INTS exponents = V(bits)(V(zero)()), two;
    for (int64_t i = 0; i < n; i += 2 * W, at += sizeof two) {
        memcpy(&two, at, sizeof two);
        exponents |= (two & 0x7f807f80u) + 0x00800080u;
    }
    memcpy(lane, &exponents, sizeof lane);
    for (int i = 0; i < W; i++)
        all |= lane[i];
    return !(all & 0x80008000u);
}

/* Computes the needed part of product `all` (k terms), in whole vectors and blocks; query i sees
 * keys to i + diagonal (edge: see cpu/cpu.h). cut: the diagonal masks part of the tile. */
static GCKPTI_TARGET void V(head_multiply)(const gckpti_packed_product *all, int edge, int cut,
                                           int64_t diagonal, int64_t k)
{
    const int64_t size = all->tile.m, unit = all->kernels->tiles[0].row_step;
    const int64_t step = !cut ? size : unit > 16 ? unit : 16;
    for (int64_t i = 0; i < size; i += step) {
        const int64_t m = gckpti_min(step, size - i), to = i + m + diagonal;
        const int64_t from = i > diagonal ? i - diagonal : 0;
        int64_t j = 0, first = 0, end = k;
        gckpti_packed_product s = *all;
        gckpti_mixed_tile *tile = &s.tile;
        if (edge == GCKPTI_COLUMNS_FROM)
            j = from / 16 * 16, s.n -= j;
        else if (edge == GCKPTI_COLUMNS_TO)
            s.n = gckpti_min(s.n, to < 0 ? 0 : gckpti_ceil_to(to, 16));
        else if (edge == GCKPTI_TERMS_FROM)
            first = from / GCKPTI_K_BLOCK * GCKPTI_K_BLOCK;
        else
            end = gckpti_min(k, to);
        if (s.n <= 0 || first >= end)
            continue;
        tile->m = m, tile->a += i * tile->a_row + first;
        tile->b += first / 2 * tile->b_row + j, tile->c += i * tile->c_row + j;
        tile->from = tile->from ? tile->c : NULL, tile->from_row = tile->c_row;
        tile->blocks = (end - first + GCKPTI_K_BLOCK - 1) / GCKPTI_K_BLOCK;
        tile->last = end - first - (tile->blocks - 1) * GCKPTI_K_BLOCK;
        gckpti_mixed_multiply(&s);
    }
}

/* Returns whether any of m queries misses one of n keys; query i sees keys to diagonal + i. */
GCKPTI_INLINED int V(head_cut)(const gckpti_attn *h, int64_t diagonal, int64_t m, int64_t n)
{
    return diagonal + 1 < n || diagonal + m > h->window;
}

/* Adds the terms of product t that are not masked (gckpti_mixed_masked) to its c: p or ds by
 * rows that are packed in b. packed: space for a tile's p or ds. */
static GCKPTI_TARGET void V(head_add)(const gckpti_attn *h, const gckpti_product *t,
                                      const uint32_t *b, uint16_t *packed, int across, int cut,
                                      int64_t diagonal)
{
    const gckpti_mixed_kernels *kernels = gckpti_kernels_of(h->call)->mixed;
    const int64_t row = gckpti_ceil_to(t->k, GCKPTI_K_BLOCK);
    gckpti_packed_product s = V(head_product)(kernels, b, t->n, t->c, t->c_stride);
    if (cut && !V(all_finite)(b, row * t->c_stride)) {
        gckpti_mixed_masked(h, t, across, diagonal);
        return;
    }
    V(head_pack)(kernels, &t->a, t->m, t->k, packed, NULL);
    s.tile.m = gckpti_ceil_to(t->m, 16), s.tile.a = packed, s.tile.a_row = row;
    s.tile.from = t->c;
    V(head_multiply)(&s, across ? GCKPTI_TERMS_TO : GCKPTI_TERMS_FROM, cut, diagonal, t->k);
}

/* ---- forward ---- */
/* V(attention_forward) of bf16 plans: p, first scores, then exponentials, is (key,query). */
static GCKPTI_TARGET void V(mixed_forward)(const gckpti_attn *h, int64_t head, int64_t first,
                                           float *scratch)
{
    enum { TILE = GCKPTI_QK_TILE };
    const gckpt_call *call = h->call;
    const gckpti_mixed_kernels *kernels = gckpti_kernels_of(call)->mixed;
    const gckpti_destination to = gckpti_out_of(call);
    const int64_t c = h->c, kc = h->kv_c, d = h->d, width = h->d_vec;
    const int64_t m = gckpti_min(h->t - first, TILE), ahead = first + h->visible.ahead;
    const int64_t at = gckpti_attn_at_q(h, head) + first * c, keys = gckpti_attn_at_k(h, head);
    const int64_t visible = gckpti_min(h->visible.keys, ahead + m);
    const int64_t j0 = gckpti_attn_first_tile(h, first);
    const gckpti_operand x = gckpti_operand_of(gckpti_arg_values(&call->in[0]), at, c, 1, 0);
    float *p = scratch, *out = p + TILE * TILE;
    V(queries) online;
    uint16_t packed[TILE * TILE] GCKPTI_ALIGNED;
    void *rest = out + TILE * width;
    uint32_t *q = (uint32_t *)rest, *b = q + TILE / 2 * h->d_block;
    if (j0 >= visible) /* these see no key: zeros */
        return;
    V(queries_init)(&online);
    memset(out, 0, (size_t)(TILE * width) * sizeof *out);
    gckpti_mixed_configure(kernels, 1);
    V(head_pack)(kernels, &x, m, d, NULL, q);
    for (int64_t j = j0; j < visible; j += TILE) {
        const int64_t n = gckpti_min(visible - j, TILE), diagonal = ahead - j;
        const int64_t at_j = keys + gckpti_attn_offset(h, j);
        const gckpti_operand k = gckpti_operand_of(gckpti_arg_values(&call->in[1]), at_j, kc, 1, 0);
        const gckpti_operand v = gckpti_operand_of(gckpti_arg_values(&call->in[2]), at_j, 1, kc, 0);
        gckpti_product values = gckpti_product_of(m, d, n, gckpti_matrix(p, 1, TILE), v, out);
        gckpti_packed_product scores = V(head_product)(kernels, q, m, p, TILE);
        rest = b;
        V(head_set_a)(h, &scores, &k, n, (uint16_t *)rest);
        V(head_multiply)(&scores, GCKPTI_COLUMNS_FROM, diagonal + 1 < n, diagonal, d);
        V(heads_online)(h, p, m, n, diagonal, &online);
        if (!gckpti_is_set(to))
            continue;
        for (int64_t r = 0; j > j0 && r < m; r++)
            V(rescale)(out + r * width, online.factor[r], d);
        values.c_stride = width;
        V(head_pack)(kernels, &v, d, n, NULL, b);
        V(head_add)(h, &values, b, packed, 1, V(head_cut)(h, diagonal, m, n), diagonal);
    }
    gckpti_mixed_configure(kernels, 0);
    V(head_end)(h, head, first, m, &online);
    for (int64_t r = 0; gckpti_is_set(to) && r < m; r++, out += width) {
        const FLOATS divisor = V(set1)(online.sum[r]);
        for (int64_t e = 0; e < d; e += W)
            V(store)(out + e, (V(load)(out + e) + V(zero)()) / divisor);
        gckpti_store(call, to, at + r * c, d, out);
    }
}

/* ---- backward ---- */
/* p (scores, then exponentials) and ds are (query,key). Packed: k_b, v_b: k and v of the tile
 * (terms: d); kt_b: k (terms: keys); a: q or g; packed: p or ds. */
typedef struct {
    gckpti_attn_tile tile; /* first */
    const gckpti_mixed_kernels *kernels;
    const float *lse;
    float *p, *ds, *delta;
    uint32_t *k_b, *v_b, *kt_b, *a;
    uint16_t *packed;
} V(key_block);

/* Turns the scores s of query r into p = exp(s - lse), and dp into ds = p (dp - delta) scale; p and
 * ds of masked keys are +0. */
GCKPTI_INLINED void V(keys_gradients)(const V(key_block) * s, int64_t r)
{
    const gckpti_attn_tile *t = &s->tile;
    const float cap = t->h->cap;
    const FLOATS scale = V(set1)(t->h->scale), lse = V(set1)(s->lse[t->i + r]), zero = V(zero)();
    const FLOATS delta = V(set1)(s->delta[t->i + r]), times = V(set1)(gckpti_attn_post_scale(t->h));
    const FLOATS inverse = V(set1)(cap > 0.0f ? 1.0f / cap : 0.0f);
    const int64_t end = r + 1 + t->diagonal, visible = gckpti_min(t->n, end);
    const int64_t from = end - t->h->window;
    float *p = s->p + r * GCKPTI_QK_TILE, *ds = s->ds + r * GCKPTI_QK_TILE;
    for (int64_t j = 0; j < t->n; j += W) {
        FLOATS x = zero, y = zero;
        if (j < visible && j + W > from) {
            const FLOATS score = V(fma)(V(load)(p + j), times, zero);
            x = V(exp)(score - lse);
            y = V(load)(ds + j) - delta;
            if (cap > 0.0f)
                y = y * V(softcap_deriv)(score, inverse);
            y = V(blend_n)(visible - j, x * y * scale, zero);
            x = V(blend_n)(visible - j, x, zero);
            if (j < from)
                x = V(blend_n)(from - j, zero, x), y = V(blend_n)(from - j, zero, y);
        }
        V(store)(p + j, x);
        V(store)(ds + j, y);
    }
}

/* Packs keys and, for ds, values of a tile. */
static GCKPTI_TARGET void V(pack_keys)(gckpti_attn_tile *t)
{
    const V(key_block) *s = (const V(key_block) *)(const void *)t;
    const gckpti_operand transposed = gckpti_transpose(&t->k);
    V(head_pack)(s->kernels, &t->k, t->n, t->h->d, NULL, s->k_b);
    if (t->grad[0] || t->grad[1])
        V(head_pack)(s->kernels, &t->v, t->n, t->h->d, NULL, s->v_b);
    V(head_pack)(s->kernels, &transposed, t->h->d, t->n, NULL, s->kt_b);
}

/* Computes p and ds of a tile, and adds its gradients. */
static GCKPTI_TARGET void V(add_tile)(gckpti_attn_tile *t)
{
    const V(key_block) *s = (const V(key_block) *)(const void *)t;
    const gckpti_attn *h = t->h;
    const int cut = V(head_cut)(h, t->diagonal, t->m, t->n);
    gckpti_packed_product scores = V(head_product)(s->kernels, s->k_b, t->n, s->p, GCKPTI_QK_TILE);
    gckpti_packed_product dp = V(head_product)(s->kernels, s->v_b, t->n, s->ds, GCKPTI_QK_TILE);
    void *a = s->a;
    V(head_set_a)(h, &scores, &t->q, t->m, (uint16_t *)a);
    V(head_multiply)(&scores, GCKPTI_COLUMNS_TO, cut, t->diagonal, h->d);
    if (t->grad[0] || t->grad[1]) {
        V(head_set_a)(h, &dp, &t->g, t->m, (uint16_t *)a);
        V(head_multiply)(&dp, GCKPTI_COLUMNS_TO, cut, t->diagonal, h->d);
    }
    if (h->cap > 0.0f)
        V(softcaps)(s->p, t->m * GCKPTI_QK_TILE, h->dot_scale, h->cap);
    for (int64_t r = 0; r < t->m; r++)
        V(keys_gradients)(s, r);
    for (int i = 0; i < 3; i++) {
        const gckpti_product terms = gckpti_attn_terms_product(t, i, i < 2 ? s->ds : s->p);
        if (i && t->grad[i]) /* for dq, k is packed */
            V(head_pack)(s->kernels, &terms.b, terms.n, terms.k, NULL, s->a);
        if (t->grad[i])
            V(head_add)(h, &terms, i ? s->a : s->kt_b, s->packed, !i, cut, t->diagonal);
    }
}

/* V(attention_backward) of bf16 plans. */
static GCKPTI_TARGET void V(mixed_backward)(const gckpti_attn *h, int64_t head, float *scratch)
{
    enum { TILE = GCKPTI_QK_TILE };
    const gckpt_arg *in = h->call->in;
    const int needs_ds =
        gckpti_is_set(gckpti_arg_gradient(&in[0])) || gckpti_is_set(gckpti_arg_gradient(&in[1]));
    const int64_t at_q = gckpti_attn_at_q(h, head), queries = gckpti_ceil_to(h->t, TILE);
    const int64_t keys = gckpti_ceil_to(h->shared_keys ? h->s : 1, TILE) * h->d_vec;
    const int64_t half = TILE / 2 * h->d_block;
    V(key_block) s;
    gckpti_attn_tile *t = &s.tile;
    t->h = h, t->head = head, t->size = TILE, t->row = h->d_vec;
    s.kernels = gckpti_kernels_of(h->call)->mixed;
    s.lse = (const float *)h->call->saved + head * h->t;
    s.p = scratch, s.ds = s.p + TILE * TILE, t->grad[1] = s.ds + TILE * TILE;
    t->grad[2] = t->grad[1] + keys, t->grad[0] = t->grad[2] + keys;
    s.delta = t->grad[0] + queries * h->d_vec;
    t->rows = s.delta - 2 * h->d_vec; /* of dq, which is not read yet */
    void *rest = s.delta + queries;
    s.k_b = (uint32_t *)rest, s.v_b = s.k_b + half, s.kt_b = s.v_b + half;
    s.a = s.kt_b + TILE / 2 * h->d_vec, rest = s.a + half;
    s.packed = (uint16_t *)rest;
    for (int64_t i = 0; needs_ds && i < h->t; i++)
        s.delta[i] = gckpti_attn_delta(h, at_q + i * h->c, t->rows);
    gckpti_mixed_configure(s.kernels, 1);
    gckpti_attn_tiles(t, V(pack_keys), V(add_tile));
    gckpti_mixed_configure(s.kernels, 0);
}
#endif
