#if !defined(GCKPT_NO_BF16) && !defined(GCKPT_NO_ATTENTION)
/* ---- attention of bf16 plans, backward ---- */
/* The backward of a head, for a tile of m queries and a tile of n keys. p (scores, then
 * exponentials) and ds are (query,key); dk and dv are (key,d) of the tile or, if heads share keys,
 * of all keys, kept from the first head to the last; dq is (query,d) of all queries. Packed: k_b,
 * v_b: k and v of the tile (terms: d); kt_b: k (terms: keys); a: q or g; packed: p or ds. */
typedef struct {
    const gckpti_attn *h;
    const gckpti_mixed_kernels *kernels;
    gckpti_operand q, k, v, g; /* rows of the current tiles */
    const float *lse;
    float *p, *ds, *dk, *dv, *dq, *delta;
    uint32_t *k_b, *v_b, *kt_b, *a;
    uint16_t *packed;
    int64_t head, i, m, j, n, diagonal;
    int cut;
} V(key_block);

static GCKPTI_TARGET void V(key_block_begin)(V(key_block) * s, const gckpti_attn *h, int64_t head,
                                             float *scratch)
{
    const gckpt_arg *in = h->call->in;
    const int64_t all = gckpti_ceil_to(h->t, GCKPTI_QK_TILE),
                  half = GCKPTI_QK_TILE / 2 * h->d_block;
    s->h = h, s->kernels = gckpti_kernels_of(h->call)->mixed, s->head = head;
    s->lse = (const float *)h->call->saved + head * h->t;
    s->p = scratch, s->ds = s->p + GCKPTI_QK_TILE * GCKPTI_QK_TILE;
    const int64_t key_floats = gckpti_ceil_to(h->shared_keys ? h->s : 1, GCKPTI_QK_TILE) * h->d_vec;
    float *dk = s->ds + GCKPTI_QK_TILE * GCKPTI_QK_TILE, *dv = dk + key_floats,
          *dq = dv + key_floats;
    s->delta = dq + all * h->d_vec;
    s->dq = in[0].grad || in[0].grad_bf16 ? dq : NULL;
    s->dk = in[1].grad || in[1].grad_bf16 ? dk : NULL;
    s->dv = in[2].grad || in[2].grad_bf16 ? dv : NULL;
    void *rest = s->delta + all;
    s->k_b = (uint32_t *)rest, s->v_b = s->k_b + half, s->kt_b = s->v_b + half;
    s->a = s->kt_b + GCKPTI_QK_TILE / 2 * h->d_vec, rest = s->a + half;
    s->packed = (uint16_t *)rest;
}

/* Turns the scores s of query r into p = exp(s - lse), and dp into ds = p (dp - delta) scale; p and
 * ds of masked keys are +0. */
GCKPTI_INLINED void V(keys_gradients)(const V(key_block) * s, int64_t r)
{
    const float cap = s->h->cap;
    const FLOATS scale = V(set1)(s->h->scale), lse = V(set1)(s->lse[s->i + r]), zero = V(zero)();
    const FLOATS delta = V(set1)(s->delta[s->i + r]), times = V(set1)(gckpti_attn_post_scale(s->h));
    const FLOATS inverse = V(set1)(cap > 0.0f ? 1.0f / cap : 0.0f);
    const int64_t end = r + 1 + s->diagonal, visible = gckpti_min(s->n, end);
    const int64_t from = end - s->h->window;
    float *p = s->p + r * GCKPTI_QK_TILE, *ds = s->ds + r * GCKPTI_QK_TILE;
    for (int64_t j = 0; j < s->n; j += W) {
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

/* Adds the tile's terms to one gradient: dv += p' g, dk += ds' q, dq += ds k (packed earlier). */
static GCKPTI_TARGET void V(keys_add)(V(key_block) * s, const gckpti_operand *x, const float *p,
                                      float *to)
{
    const int across = x == &s->k;
    gckpti_product t = gckpti_product_of(
        across ? s->m : s->n, s->h->d, across ? s->n : s->m,
        gckpti_matrix(p, across ? GCKPTI_QK_TILE : 1, across ? 1 : GCKPTI_QK_TILE),
        gckpti_transpose(x), to);
    t.c_stride = s->h->d_vec;
    if (!across)
        V(head_pack)(s->kernels, &t.b, t.n, t.k, NULL, s->a);
    V(head_add)(s->h, &t, across ? s->kt_b : s->a, s->packed, across, s->cut, s->diagonal);
}

/* Computes the tile of the queries from s->i on and the current keys, and adds its gradients. */
static GCKPTI_TARGET void V(keys_add_queries)(V(key_block) * s)
{
    const gckpti_attn *h = s->h;
    gckpti_packed_product scores = V(head_product)(s->kernels, s->k_b, s->n, s->p, GCKPTI_QK_TILE);
    gckpti_packed_product dp = V(head_product)(s->kernels, s->v_b, s->n, s->ds, GCKPTI_QK_TILE);
    void *a = s->a;
    V(head_set_a)(h, &scores, &s->q, s->i, s->m, (uint16_t *)a);
    V(head_multiply)(&scores, GCKPTI_COLUMNS_TO, s->cut, s->diagonal, h->d);
    if (s->dq || s->dk) {
        V(head_set_a)(h, &dp, &s->g, s->i, s->m, (uint16_t *)a);
        V(head_multiply)(&dp, GCKPTI_COLUMNS_TO, s->cut, s->diagonal, h->d);
    }
    if (h->cap > 0.0f)
        V(softcaps)(s->p, s->m * GCKPTI_QK_TILE, h->dot_scale, h->cap);
    for (int64_t r = 0; r < s->m; r++)
        V(keys_gradients)(s, r);
    if (s->dv)
        V(keys_add)(s, &s->g, s->p, s->dv);
    if (s->dk)
        V(keys_add)(s, &s->q, s->ds, s->dk);
    if (s->dq)
        V(keys_add)(s, &s->k, s->ds, s->dq + s->i * h->d_vec);
}

/* V(attention_backward) of bf16 plans: for each tile of 64 keys, all tiles of queries that see it;
 * dq of all queries is in scratch. */
static GCKPTI_TARGET void V(mixed_backward)(const gckpti_attn *h, int64_t row, int64_t head,
                                            float *scratch)
{
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const int64_t c = h->c, kc = h->kv_c, member = head % h->group;
    const int64_t at_q = row * h->t * c + head * h->d;
    const int64_t at_k = row * h->s * kc + head / h->group * h->d;
    const int64_t each = h->shared_keys ? h->d_vec : 0;
    const gckpti_operand g = { call->grad_out, call->grad_out_bf16, c, 1, 0, NULL };
    V(key_block) s;
    V(key_block_begin)(&s, h, row * h->heads + head, scratch);
    for (int64_t i = 0; (s.dq || s.dk) && i < h->t; i++) /* dq is not read yet */
        s.delta[i] = gckpti_attn_delta(h, at_q + i * c, s.delta - 2 * h->d_vec);
    float *const dk = s.dk, *const dv = s.dv;
    gckpti_mixed_configure(s.kernels, 1);
    if (s.dq)
        gckpti_attn_load_grad(h, 0, at_q, h->t, s.dq, h->d_vec);
    for (s.j = gckpti_attn_first_tile(h, 0); s.j < h->visible.keys; s.j += GCKPTI_QK_TILE) {
        const int64_t key = at_k + s.j * kc, query0 = s.j - h->visible.ahead;
        float *const to[2] = { dk ? dk + s.j * each : NULL, dv ? dv + s.j * each : NULL };
        s.dk = to[0], s.dv = to[1];
        s.n = gckpti_min(h->visible.keys - s.j, GCKPTI_QK_TILE);
        s.i = query0 > 0 ? query0 / GCKPTI_QK_TILE * GCKPTI_QK_TILE : 0;
        const int64_t end = gckpti_min(h->t, query0 + s.n - 1 + h->window); /* they see a key */
        for (int i = 0; i < 2; i++)
            if (to[i] && member == 0)
                gckpti_attn_load_grad(h, 1 + i, key, s.n, to[i], h->d_vec);
        s.k = gckpti_operand_of(gckpti_arg_values(&in[1]), key, kc, 1, 0);
        s.v = gckpti_operand_of(gckpti_arg_values(&in[2]), key, kc, 1, 0);
        const gckpti_operand transposed = gckpti_transpose(&s.k);
        V(head_pack)(s.kernels, &s.k, s.n, h->d, NULL, s.k_b);
        if (s.dq || s.dk)
            V(head_pack)(s.kernels, &s.v, s.n, h->d, NULL, s.v_b);
        if (s.dq)
            V(head_pack)(s.kernels, &transposed, h->d, s.n, NULL, s.kt_b);
        for (; s.i < end; s.i += GCKPTI_QK_TILE) {
            const int64_t at = at_q + s.i * c;
            s.m = gckpti_min(h->t - s.i, GCKPTI_QK_TILE), s.diagonal = s.i - query0;
            s.cut = V(head_cut)(h, s.diagonal, s.m, s.n);
            s.q = gckpti_operand_of(gckpti_arg_values(&in[0]), at, c, 1, 0),
            s.g = gckpti_operand_at(&g, at);
            V(keys_add_queries)(&s);
        }
        for (int i = 0; i < 2; i++)
            if (to[i] && member + 1 == h->group)
                gckpti_attn_store_grad(h, 1 + i, key, s.n, to[i], h->d_vec);
    }
    gckpti_mixed_configure(s.kernels, 0);
    if (s.dq)
        gckpti_attn_store_grad(h, 0, at_q, h->t, s.dq, h->d_vec);
}
#endif
