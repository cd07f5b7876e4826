#if !defined(GCKPT_NO_BF16) && !defined(GCKPT_NO_ATTENTION)
/* ---- attention of bf16 plans, backward ---- */
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

static GCKPTI_TARGET void V(key_block_begin)(V(key_block) * s, const gckpti_attn *h, int64_t head,
                                             float *scratch)
{
    const int64_t all = gckpti_ceil_to(h->t, GCKPTI_QK_TILE),
                  half = GCKPTI_QK_TILE / 2 * h->d_block;
    const int64_t key_floats = gckpti_ceil_to(h->shared_keys ? h->s : 1, GCKPTI_QK_TILE) * h->d_vec;
    gckpti_attn_tile *t = &s->tile;
    t->h = h, t->head = head, t->size = GCKPTI_QK_TILE, t->row = h->d_vec;
    s->kernels = gckpti_kernels_of(h->call)->mixed;
    s->lse = (const float *)h->call->saved + head * h->t;
    s->p = scratch, s->ds = s->p + GCKPTI_QK_TILE * GCKPTI_QK_TILE;
    t->grad[1] = s->ds + GCKPTI_QK_TILE * GCKPTI_QK_TILE;
    t->grad[2] = t->grad[1] + key_floats, t->grad[0] = t->grad[2] + key_floats;
    s->delta = t->grad[0] + all * h->d_vec;
    t->rows = s->delta - 2 * h->d_vec; /* of dq, which is not read yet */
    void *rest = s->delta + all;
    s->k_b = (uint32_t *)rest, s->v_b = s->k_b + half, s->kt_b = s->v_b + half;
    s->a = s->kt_b + GCKPTI_QK_TILE / 2 * h->d_vec, rest = s->a + half;
    s->packed = (uint16_t *)rest;
}

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
            x = V(exp_below)(score - lse);
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
    V(head_set_a)(h, &scores, &t->q, t->i, t->m, (uint16_t *)a);
    V(head_multiply)(&scores, GCKPTI_COLUMNS_TO, cut, t->diagonal, h->d);
    if (t->grad[0] || t->grad[1]) {
        V(head_set_a)(h, &dp, &t->g, t->i, t->m, (uint16_t *)a);
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
    const gckpt_arg *in = h->call->in;
    const int needs_ds =
        gckpti_is_set(gckpti_arg_gradient(&in[0])) || gckpti_is_set(gckpti_arg_gradient(&in[1]));
    const int64_t at_q = gckpti_attn_at_q(h, head);
    V(key_block) s;
    V(key_block_begin)(&s, h, head, scratch);
    for (int64_t i = 0; needs_ds && i < h->t; i++)
        s.delta[i] = gckpti_attn_delta(h, at_q + i * h->c, s.tile.rows);
    gckpti_mixed_configure(s.kernels, 1);
    gckpti_attn_tiles(&s.tile, V(pack_keys), V(add_tile));
    gckpti_mixed_configure(s.kernels, 0);
}
#endif
