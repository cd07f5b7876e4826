#include "ops/own.h"
#include "graph/graph.h"

/* ---- attention: q (B,T,C), k and v (B,S,C); head h is columns hD..hD+D-1, D = C / heads ----
 * s_j = mul(chain q k_j from +0, scale), scale = 1 / sqrt(D). out = sum exp(s) v / sum exp(s).
 * The keys a query sees are taken in tiles 64i..64i+63: gckpti_online over the tile's scores; out
 * times its factor (not in the first tile); out chains over the tile's keys, p_j v_j. At the end
 * out / sum. Keys out of sight are never touched. aux (B,heads,T): max + log(sum).
 * Backward (Dao 2022): p = exp(s - aux), dp = chain g v_j from +0, delta = dot(g, out) by lanes,
 * ds = (p (dp - delta)) scale. Chains: dq += ds k_j over keys; dk_j += ds q, dv_j += p g over
 * queries.
 * In bf16 plans these are elements of their matrix products (manual, 5l; ops/mixed): q, k, v, g, p
 * and ds are factors. Exponentials and sums are taken before p is rounded. */

GCKPTI_FN gckpti_sight gckpti_attention_keys(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    gckpti_sight sight = { call->in[1].shape.d[1], 0 };
    if (o->causal > 1) /* else they are all of this call, or the cache has room for one */
        sight.keys -= o->causal - 1 - call->position;
    sight.ahead = sight.keys - (o->causal ? call->shape.d[1] : 0);
    return sight;
}

static int64_t gckpti_attention_wide(const gckpt_call *call, int64_t d)
{
    return gckpti_multiple(d, gckpti_is_mixed(call) ? 16 : 32);
}

GCKPTI_FN int64_t gckpti_attention_room(const gckpt_call *call, int64_t t, int64_t d, int backward)
{
    int64_t wide = gckpti_attention_wide(call, d), along = GCKPTI_KEY_TILE * wide;
    int64_t across = GCKPTI_KEY_TILE * (d + 16), scores = GCKPTI_KEY_TILE * GCKPTI_KEY_TILE;
    int64_t factor = GCKPTI_KEY_TILE / 2 * gckpti_multiple(d, GCKPTI_LINKS); /* packed */
    if (gckpti_is_plain(call))
        return backward ? (t + 2 * GCKPTI_LINKS + 2) * d + GCKPTI_LINKS * GCKPTI_LINKS : d;
    if (gckpti_is_mixed(call))
        return backward ? 5 * along / 2 + 3 * factor + 5 * scores / 2 +
                              gckpti_multiple(t, GCKPTI_KEY_TILE) * (wide + 1)
                        : along + 2 * factor + scores;
    return backward ? 2 * across + 3 * along + 2 * scores : across + along + scores;
}

/* Whole heads; causal needs a key for each query. */
static gckpt_result gckpti_attention_shape(gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    const gckpt_shape *q = &call->in[0].shape, *k = &call->in[1].shape, *v = &call->in[2].shape;
    if (q->n != 3 || k->n != 3 || !gckpti_same_shape(k, v) || q->d[0] != k->d[0] ||
        q->d[2] != k->d[2])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "attention: q %S, k %S, v %S must be (B,T,C), (B,S,C), (B,S,C)", q, k, v);
    if (o->heads < 1 || q->d[2] % o->heads)
        return gckpt_fail(call, GCKPT_E_SHAPE, "attention: %I columns cannot be cut into %i heads",
                          q->d[2], o->heads);
    if (o->causal && k->d[1] - (o->causal - 1) < q->d[1])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "attention: causal needs a key for each of q's %I queries, but k has %I; "
                          "q %S, k %S",
                          q->d[1], k->d[1] - (o->causal - 1), q, k);
    call->shape = *q;
    call->aux_bytes = (size_t)(q->d[0] * q->d[1]) * (size_t)o->heads * sizeof(float);
    if (!gckpti_is_plain(call) || gckpti_is_mixed(call)) {
        /* beyond `most` what is needed is refused, too */
        int64_t unit = (gckpti_is_plain(call) ? 1 : call->threads) * (int64_t)sizeof(float);
        int64_t most = INT64_MAX / 4096 / unit;
        int64_t d = gckpti_min(q->d[2] / o->heads, most), t = gckpti_min(q->d[1], most / d);
        call->work_forward = (size_t)(gckpti_attention_room(call, t, d, 0) * unit);
        call->work_backward = (size_t)(gckpti_attention_room(call, t, d, 1) * unit);
    }
    return GCKPT_OK;
}

GCKPTI_FN gckpti_heads gckpti_heads_of(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    int64_t t = call->shape.d[1], c = call->shape.d[2], d = c / o->heads;
    gckpti_heads h = { call,
                       t,
                       call->in[1].shape.d[1],
                       c,
                       d,
                       o->heads,
                       (t + GCKPTI_KEY_TILE - 1) / GCKPTI_KEY_TILE,
                       gckpti_attention_wide(call, d),
                       gckpti_multiple(d, GCKPTI_LINKS),
                       gckpti_attention_keys(call),
                       gckpti_is_mixed(call),
                       1.0f / gckpti_sqrt((float)d) };
    return h;
}

/* D products of a row of the head, of f32 plans: out[j] = chain of a and row j of b from +0, for n
 * rows. */
static void gckpti_attention_dots(const gckpti_heads *h, const float *a, const float *b, int64_t n,
                                  float *out)
{
    gckpti_start(out, n, 0);
    gckpti_chains(a, 1, b, h->c, n, h->d, out);
}

GCKPTI_FN void gckpti_attention_queries(const gckpti_heads *h, int64_t first, int64_t end,
                                        float *rest)
{
    const gckpt_call *call = h->call;
    const int64_t t = h->t, c = h->c, d = h->d;
    float p[GCKPTI_KEY_TILE];
    if (h->mixed) {
        gckpti_mixed_queries(h, first, end, rest);
        return;
    }
    for (int64_t i = first; i < end; i++) { /* query i % t of head i / t % heads */
        int64_t row = i / t / h->heads, column = i / t % h->heads * d;
        int64_t at = (row * t + i % t) * c + column, key = row * h->s * c + column;
        float max = 0.0f, sum = 0.0f, *out = call->out ? call->out + at : NULL;
        int64_t seen = gckpti_min(h->sight.keys, i % t + 1 + h->sight.ahead);
        if (out)
            gckpti_start(out, d, 0);
        for (int64_t j0 = 0; j0 < seen; j0 += GCKPTI_KEY_TILE) {
            int64_t n = gckpti_min(seen - j0, GCKPTI_KEY_TILE), tile = key + j0 * c;
            gckpti_attention_dots(h, call->in[0].data + at, call->in[1].data + tile, n, p);
            for (int64_t j = 0; j < n; j++)
                p[j] = gckpti_mul(p[j], h->scale);
            float factor = gckpti_online(p, p, n, j0 == 0, &max, &sum);
            for (int64_t e = 0; out && j0 && e < d; e++)
                out[e] *= factor;
            for (int64_t j = 0; out && j < n; j++)
                gckpti_link(p[j], call->in[2].data + tile + j * c, d, out);
        }
        gckpti_softmax_end(&max, &sum);
        for (int64_t e = 0; out && e < d; e++)
            out[e] /= sum;
        if (call->aux)
            ((float *)call->aux)[i] = max + gckpti_log(sum);
    }
}

GCKPTI_FN void gckpti_attention_gradients(const gckpti_heads *h, int64_t head, float *rest)
{
    enum { KEYS = GCKPTI_KEY_TILE >> GCKPTI_LEAN }; /* here any number gives the same bits */
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const int64_t t = h->t, c = h->c, d = h->d, column = head % h->heads * d;
    const int64_t at_q = head / h->heads * t * c + column,
                  at_k = head / h->heads * h->s * c + column;
    float score[KEYS], dp[KEYS];
    if (h->mixed) {
        gckpti_mixed_gradients(h, head, rest);
        return;
    }
    for (int64_t j0 = 0; j0 < h->sight.keys; j0 += KEYS)
        for (int64_t i = 0; i < t; i++) {
            int64_t at = at_q + i * c, key = at_k + j0 * c, n = h->sight.keys - j0;
            const float *q = in[0].data + at, *g = call->grad_out + at;
            float lse = ((const float *)call->aux)[head * t + i], delta = 0.0f;
            n = gckpti_min(gckpti_min(n, KEYS), i + 1 + h->sight.ahead - j0);
            if (n <= 0)
                continue;
            gckpti_attention_dots(h, q, in[1].data + key, n, score);
            if (in[0].grad || in[1].grad) { /* delta: sum(g out) */
                delta = gckpti_dot(g, call->out + at, d);
                gckpti_attention_dots(h, g, in[2].data + key, n, dp);
            }
            for (int64_t j = 0; j < n; j++, key += c) {
                float p = gckpti_exp(gckpti_mul(score[j], h->scale) - lse);
                if (in[2].grad)
                    gckpti_link(p, g, d, in[2].grad + key);
                if (!in[0].grad && !in[1].grad)
                    continue;
                float ds = p * (dp[j] - delta) * h->scale;
                if (in[0].grad)
                    gckpti_link(ds, in[1].data + key, d, in[0].grad + at);
                if (in[1].grad)
                    gckpti_link(ds, q, d, in[1].grad + key);
            }
        }
}

static void gckpti_attention_by(const gckpt_call *call, int backward)
{
    const gckpti_heads h = gckpti_heads_of(call);
    const int64_t all = call->shape.d[0] * h.heads;
    float *rest = (float *)call->work;
    if (!backward) {
        gckpti_attention_queries(&h, 0, all * h.t, rest);
        return;
    }
    gckpti_start_gradients(call, 0, 3);
    for (int64_t i = 0; i < all; i++)
        gckpti_attention_gradients(&h, i, rest);
}
GCKPTI_BOTH_WAYS(attention, gckpti_attention_by(call, backward))

/* Causal: queries see one key more each, the last one all (of a cache: when it is full). */
static uint64_t gckpti_attention_flops(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    uint64_t rows = (uint64_t)call->shape.d[0], t = (uint64_t)call->shape.d[1];
    uint64_t c = (uint64_t)call->shape.d[2];
    uint64_t pairs = t * (uint64_t)call->in[1].shape.d[1] - (o->causal ? t * (t - 1) / 2 : 0);
    return rows * pairs * (4 * c + 14 * (uint64_t)o->heads);
}

/* The scores are computed again. */
static uint64_t gckpti_attention_flops_backward(const gckpt_call *call)
{
    uint64_t forward = gckpti_attention_flops(call);
    return gckpti_gradients_flops(call, forward) + forward / 2;
}

GCKPTI_ROW_WITH(attention, GCKPTI_FAST, gckpti_attention_shape, gckpti_attention_flops,
                gckpti_attention_flops_backward, NULL, (unsigned)GCKPTI_CACHED | GCKPTI_NARROW,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_OUT | GCKPT_AUX,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_OUT | GCKPT_AUX,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_AUX);

GCKPT_API gckpt_tensor *gckpt_attention(gckpt_tensor *q, gckpt_tensor *k, gckpt_tensor *v,
                                        int heads, int causal)
{
    gckpt_tensor *in[3] = { q, k, v };
    gckpti_attention o = { heads, causal != 0 };
    gckpt_graph *g = q && k && v ? q->graph : NULL;
    if (g && k->capacity && (!causal || !v->capacity || q->capacity || q->shape.d[1] != g->news))
        return gckpti_fail(g, GCKPT_E_ARG,
                           "attention: keys of a gckpt_cache need causal attention, values of one, "
                           "and queries for the %I rows that a call adds; q %S",
                           g->news, &q->shape);
    if (g && !k->capacity && (q->capacity || v->capacity))
        return gckpti_cached_fail(g, "attention: q, or v where k is not of one",
                                  v->capacity ? v : q);
    if (g && k->capacity)
        o.causal += (int)(g->cached - g->news);
    return gckpt_apply(&gckpti_op_attention, in, 3, &o, sizeof o);
}
