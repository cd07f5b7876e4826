#ifndef GCKPT_NO_ATTENTION
/* Computes query i of a head by itself, as of a text that is generated token by token: its scores
 * are a row, not a column. */
static GCKPTI_TARGET void V(attention_query)(const gckpti_attn *h, int64_t head, int64_t i)
{
    const gckpt_call *call = h->call;
    int64_t at = gckpti_attn_at_q(h, head) + i * h->c, keys = gckpti_attn_at_k(h, head);
    const float *q = call->in[0].data + at, scale = gckpti_attn_post_scale(h);
    float p[GCKPTI_QK_TILE] = { 0.0f }, max = 0.0f, sum = 0.0f;
    float *out = call->out ? call->out + at : NULL, *saved = (float *)call->saved;
    int64_t visible = gckpti_min(h->visible.keys, i + 1 + h->visible.ahead);
    const int64_t first = gckpti_attn_first_tile(h, i);
    if (out)
        memset(out, 0, (size_t)h->d * sizeof *out);
    for (int64_t j = first; j < visible; j += GCKPTI_QK_TILE) {
        const int64_t n = gckpti_min(visible - j, GCKPTI_QK_TILE),
                      at_j = keys + gckpti_attn_offset(h, j);
        const int64_t from = gckpti_attn_masked(h, i, j, n);
        const float *k = call->in[1].data + at_j, *v = call->in[2].data + at_j;
        const V(gemv) scores = { h->d, n, q, 1, k, h->kv_c, NULL, p, v };
        const V(gemv)
            values = { n - from, h->d, p + from, 1, v + from * h->kv_c, h->kv_c, NULL, out, NULL };
        V(gemv_dot)(&scores);
        if (h->cap > 0.0f)
            V(softcaps)(p, n, h->dot_scale, h->cap);
        for (int64_t e = 0; e < n; e += W)
            V(store)(p + e, V(fma)(V(load)(p + e), V(set1)(scale), V(zero)()));
        for (int64_t e = 0; h->mask.x && e < n; e++)
            p[e] = gckpti_attn_plus_mask(h, &h->mask, p[e], head, i, j + e);
        for (int64_t e = 0; e < from; e++)
            p[e] = -GCKPTI_INFINITY;
        float factor = V(online)(p, p, n, j == first, &max, &sum);
        if (!out)
            continue;
        if (j > first)
            V(rescale)(out, factor, h->d);
        V(gemv_axpy)(&values);
    }
    gckpti_softmax_end(&max, &sum);
    if (out)
        V(divide)(out, sum, h->d);
    if (saved)
        saved[head * h->t + i] = max + V(log_scalar)(sum);
}
#endif
