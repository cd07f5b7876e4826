#include "attention/attention.h"
#include "graph/graph.h"
#include "ops/internal.h"

#ifndef GCKPT_NO_ATTENTION
/* ---- attention: q (B,T,C), k and v (B,S,C); head h is columns hD..hD+D-1, D = C / heads ----
 * With fewer key heads, k and v are (B,S,key_heads D), and head h reads columns gD..gD+D-1, g = h /
 * (heads / key_heads). With lengths, i32 (B), row b has only the keys 0..lengths[b]-1.
 * s_j = mul(chain q k_j from +0, scale), scale = 1 / sqrt(D). out = sum exp(s) v / sum exp(s). A
 * query takes its visible keys in tiles 64i..64i+63: gckpti_online over a tile's scores; out times
 * its factor (not in the first tile); out chains over the tile's keys, p_j v_j. At the end out /
 * sum. Masked keys are never read. saved (B,heads,T): max + log(sum). window: query i sees only the
 * last `window` of its causal keys, and begins with the tile that has the first of them (tiles stay
 * at multiples of 64). Keys may be a ring: key j is row j % S. cap: s_j = mul(cap, tanh(mul(chain,
 * scale / cap))).
 * Backward (Dao 2022): p = exp(s - saved), dp = chain g v_j from +0, delta = dot(g, out) by lanes,
 * ds = (p (dp - delta)) scale; with a cap (p ((dp - delta) (1 - y y))) scale, y = s (1 / cap).
 * Chains: dq += ds k_j over keys; dk_j += ds q and dv_j += p g over queries: first all queries of
 * the first head that reads k_j, then those of the next head.
 * In mixed plans these chains are elements of matrix products (manual, 5l; gckpti_mixed_plain) with
 * operands q, k, v, g, p and ds. Exponentials and sums are taken before p is rounded. */

GCKPTI_FN gckpti_visible gckpti_visible_keys(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    gckpti_visible visible = { call->in[1].shape.d[1], 0 };
    if (gckpti_uses_position(o)) /* if not, all S keys exist */
        visible.keys -= o->causal - 1 - call->position;
    visible.ahead = visible.keys - (o->causal ? call->shape.d[1] : 0);
    return visible;
}

GCKPTI_FN int64_t gckpti_attention_workspace(const gckpt_call *call, int64_t t, int64_t s,
                                             int64_t d, int backward)
{
    const int64_t tile = GCKPTI_KEY_TILE, along = tile * gckpti_ceil_to(d, 32);
    const int64_t across = tile * (d + 16), scores = tile * tile;
    const int64_t mask = gckpti_has_mask(call) ? tile * (tile + 16) : 0;
    if (gckpti_is_mixed(call) && !gckpti_has_mask(call)) /* with a mask it computes in f32 */
        return gckpti_mixed_attention_workspace(call, t, s, d, backward);
    (void)t, (void)s;
    if (gckpti_is_plain(call))
        return 0;
    return mask + (backward ? 2 * across + 3 * along + 2 * scores : across + along + scores);
}

static void gckpti_attention_set_workspace(gckpt_call *call, int shared)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    const gckpt_shape *q = &call->in[0].shape, *k = &call->in[1].shape;
    /* sizes are cut at `most`, so that nothing overflows; such a plan is refused later */
    int64_t bytes = (gckpti_is_plain(call) ? 1 : call->threads) * (int64_t)sizeof(float);
    int64_t most = INT64_MAX / 4096 / bytes;
    int64_t d = gckpti_min(q->d[2] / o->heads, most), t = gckpti_min(q->d[1], most / d);
    int64_t s = shared ? gckpti_min(k->d[1], most / d) : 0;
    call->workspace_forward = (size_t)(gckpti_attention_workspace(call, t, s, d, 0) * bytes);
    call->workspace_backward = (size_t)(gckpti_attention_workspace(call, t, s, d, 1) * bytes);
}

/* Shape rule: heads divide the columns; causal attention needs a key for each query; a mask
 * broadcasts to the scores. */
static gckpt_result gckpti_attention_shape(gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    const gckpt_shape *q = &call->in[0].shape, *k = &call->in[1].shape, *v = &call->in[2].shape;
    const gckpt_shape *last = &call->in[3].shape; /* of the mask or the lengths */
    const gckpt_shape scores = gckpt_shape4(q->d[0], o->heads, q->d[1], k->d[1]);
    const int key_heads = o->key_heads ? o->key_heads : o->heads;
    if (q->n != 3 || k->n != 3 || !gckpti_same_shape(k, v) || q->d[0] != k->d[0] || o->heads < 1 ||
        key_heads < 1 || o->heads % key_heads || q->d[2] % o->heads ||
        k->d[2] != q->d[2] / o->heads * key_heads)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "attention, %i heads, key_heads %i, which must divide them: q %S must be "
                          "(B,T,heads D), k %S and v %S (B,S,key_heads D)",
                          o->heads, key_heads, q, k, v);
    const int has_mask = gckpti_has_mask(call);
    for (int i = 1; has_mask && i <= last->n; i++)
        if (i > 4 || (last->d[last->n - i] != 1 && last->d[last->n - i] != scores.d[4 - i]))
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "attention: the mask %S must broadcast to the scores (B,heads,T,S) = "
                              "%S: each of its last axes has that size or 1",
                              last, &scores);
    if (call->inputs == 4 && !has_mask && (last->n != 1 || last->d[0] != q->d[0]))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "attention: lengths %S must be (B), one for each row of q %S", last, q);
    if (o->causal && k->d[1] - (o->causal - 1) < q->d[1])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "attention: causal needs a key for each of q's %I queries, but k has %I; "
                          "q %S, k %S",
                          q->d[1], k->d[1] - (o->causal - 1), q, k);
    call->shape = *q;
    call->saved_bytes = (size_t)(q->d[0] * q->d[1]) * (size_t)o->heads * sizeof(float);
    gckpti_attention_set_workspace(call, o->key_heads && o->key_heads < o->heads);
    return GCKPT_OK;
}

static void gckpti_set_mask(gckpti_attn *h)
{
    const gckpt_arg *mask = &h->call->in[3];
    const gckpt_shape *shape = &mask->shape;
    memset(&h->mask, 0, sizeof h->mask);
    if (!gckpti_has_mask(h->call))
        return;
    h->mask.x = mask->data;
    for (int64_t k = 1, stride = 1; k <= shape->n; stride *= shape->d[shape->n - k++])
        h->mask.step[4 - k] = shape->d[shape->n - k] > 1 ? stride : 0;
}

GCKPTI_FN gckpti_attn gckpti_attn_of(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    int64_t t = call->shape.d[1], c = call->shape.d[2], d = c / o->heads;
    int64_t s = call->in[1].shape.d[1], kv_c = call->in[1].shape.d[2], group = c / kv_c;
    const float cap = o->extras ? o->cap : 0.0f; /* no copy of *o: firmware has small stacks */
    const float scale = o->extras && o->scale > 0.0f ? o->scale : 1.0f / gckpti_sqrt((float)d);
    gckpti_attn h;
    h.call = call, h.visible = gckpti_visible_keys(call);
    h.t = t, h.s = s, h.c = c, h.d = d, h.heads = o->heads, h.kv_c = kv_c, h.group = group;
    h.blocks = (t + GCKPTI_KEY_TILE - 1) / GCKPTI_KEY_TILE;
    h.d_vec = gckpti_ceil_to(d, gckpti_is_mixed(call) ? 16 : 32);
    h.d_block = gckpti_ceil_to(d, GCKPTI_K_BLOCK);
    h.scale = scale, h.dot_scale = cap > 0.0f ? scale / cap : scale, h.cap = cap;
    h.shared_keys = group > 1 ? s : 0;
    h.window = o->extras && o->window ? o->window : INT64_MAX / 4;
    gckpti_set_mask(&h);
    return h;
}

/* Selects a row of the batch; returns the number of its keys (if 0, nothing is computed). */
static int64_t gckpti_attn_set_row(gckpti_attn *h, int64_t row)
{
    if (h->call->inputs == 4)
        h->visible.keys = h->call->in[3].index[row];
    return h->visible.keys;
}

/* Zeroes a row's results (gradients, unless they accumulate) if some of them are not written: dk
 * and dv of masked keys, or outputs and dq of queries that see no key. */
static void gckpti_attention_zero_row(const gckpti_attn *h, int64_t row, int backward)
{
    const gckpt_call *call = h->call;
    const int64_t queries = h->t * h->c, keys = h->visible.keys;
    const int64_t seen = keys + h->window - 1 - h->visible.ahead; /* queries before see a key */
    if (keys == h->s && seen >= h->t && gckpti_attn_first_tile(h, 0) == 0)
        return;
    if (!backward) {
        gckpti_clear(gckpti_out_of(call), row * queries, queries);
        gckpti_clear(gckpti_f32_destination((float *)call->saved), row * h->heads * h->t,
                     h->heads * h->t);
    }
    for (int i = 0; backward && i < 3; i++) {
        const gckpt_arg *in = &call->in[i];
        const int64_t n = i ? h->s * h->kv_c : queries;
        if (!in->accumulate)
            gckpti_clear(gckpti_arg_gradient(in), row * n, n);
    }
}

/* Runs a work item: 64 queries of a head (forward), or the heads that share keys (backward). */
static void gckpti_attention_item(void *context, int64_t i, int64_t worker)
{
    gckpti_attn h = *(const gckpti_attn *)context;
    const gckpt_call *call = h.call;
    const int backward = gckpti_is_set(gckpti_grad_out_of(call));
    const int64_t block = h.blocks - 1 - i % h.blocks; /* causal: the last queries cost most */
    float *scratch = (float *)call->workspace;
    if (worker)
        scratch += worker * gckpti_attention_workspace(call, h.t, h.shared_keys, h.d, backward);
    i = backward ? i * h.group : i / h.blocks;
    if (!gckpti_attn_set_row(&h, i / h.heads))
        return;
    for (int64_t end = i + h.group; backward && i < end; i++)
        h.kernels->backward(&h, i, scratch);
    if (!backward)
        h.kernels->forward(&h, i, block * GCKPTI_KEY_TILE, scratch);
}

/* Runs the kernels for all heads. Zeroes results that no query writes, unless they accumulate. */
static void gckpti_run_heads(const gckpt_call *call, int backward,
                             const gckpti_attention_kernels *kernels)
{
    gckpti_attn h = gckpti_attn_of(call), row_state = h;
    const int windows = backward && h.window < h.s; /* forward: every query sees a key */
    const int64_t queries = gckpti_min(h.t, GCKPTI_KEY_TILE) + 8; /* 8: costs of loads */
    int64_t items = call->shape.d[0] * h.heads / h.group, cost = h.group * h.t * h.s * h.d;
    if (!backward) {
        items *= h.group * h.blocks;
        cost = queries * gckpti_min(h.visible.keys, h.window) * h.d;
    }
    h.kernels = kernels;
    for (int64_t row = 0; (call->inputs == 4 || windows) && row < call->shape.d[0]; row++) {
        gckpti_attn_set_row(&row_state, row);
        gckpti_attention_zero_row(&row_state, row, backward);
    }
    /* plain kernels: the workspace is that of one thread */
    gckpt_parallel(call->kernels ? call : NULL, items, cost, gckpti_attention_item, &h);
}

/* Sets out[j], j < n, to the chain of a and row j of b from +0, in f32 plans. */
static void gckpti_attention_dots(const gckpti_attn *h, const float *a, const float *b, int64_t n,
                                  float *out)
{
    gckpti_zero_unless(out, n, 0);
    gckpti_chains(a, 1, b, h->kv_c, n, h->d, out);
}

/* Computes scores p[from..n-1] of the query at `at` with keys of the tile at `tile`. */
static void gckpti_attention_scores(const gckpti_attn *h, int64_t at, int64_t tile, int64_t from,
                                    int64_t n, float *p)
{
    const gckpt_arg *in = h->call->in;
    if (!gckpti_is_mixed(h->call)) {
        gckpti_attention_dots(h, in[0].data + at, in[1].data + tile, n, p);
        return;
    }
    const gckpti_product t = gckpti_product_of(
        1, n - from, h->d, gckpti_operand_of(gckpti_arg_values(&in[0]), at, 0, 1, 0),
        gckpti_operand_of(gckpti_arg_values(&in[1]), tile + from * h->kv_c, h->kv_c, 1, 0),
        p + from);
    gckpti_mixed_plain(h->call, &t);
}

/* Adds values from..n-1 of the tile at `tile`, weighted by p, to out. */
static void gckpti_attention_values(const gckpti_attn *h, const float *p, int64_t tile,
                                    int64_t from, int64_t n, float *out)
{
    const gckpt_arg *in = h->call->in;
    const int64_t at = tile + from * h->kv_c;
    if (!gckpti_is_mixed(h->call)) {
        gckpti_axpy_rows(p + from, 1, in[2].data + at, h->kv_c, h->d, n - from, out);
        return;
    }
    gckpti_product t =
        gckpti_product_of(1, h->d, n - from, gckpti_matrix(p + from, 0, 1),
                          gckpti_operand_of(gckpti_arg_values(&in[2]), at, 1, h->kv_c, 0), out);
    t.accumulate = 1, t.k_period = GCKPTI_K_BLOCK, t.k_offset = from;
    gckpti_mixed_plain(h->call, &t);
}

/* Computes up to 64 queries of a head. scratch: D floats if the output has 16 bits. */
static void gckpti_attention_output(const gckpti_attn *h, int64_t head, int64_t first,
                                    float *scratch)
{
    const gckpt_call *call = h->call;
    const int64_t d = h->d, end = gckpti_min(h->t, first + GCKPTI_KEY_TILE);
    const gckpti_destination to = gckpti_out_of(call);
    float p[GCKPTI_KEY_TILE];
    for (int64_t i = first; i < end; i++) {
        const int64_t at = gckpti_attn_at_q(h, head) + i * h->c;
        const int64_t visible = gckpti_min(h->visible.keys, i + 1 + h->visible.ahead);
        const int64_t first_tile = gckpti_attn_first_tile(h, i);
        float max = 0.0f, sum = 0.0f, *out = gckpti_open(call, to, at, d, 0, scratch);
        if (out)
            gckpti_zero_unless(out, d, 0);
        for (int64_t j0 = first_tile; j0 < visible; j0 += GCKPTI_KEY_TILE) {
            const int64_t n = gckpti_min(visible - j0, GCKPTI_KEY_TILE);
            const int64_t tile = gckpti_attn_at_k(h, head) + gckpti_attn_offset(h, j0);
            const int64_t from = gckpti_attn_masked(h, i, j0, n);
            gckpti_attention_scores(h, at, tile, from, n, p);
            for (int64_t j = 0; j < n; j++)
                p[j] = j < from
                           ? -GCKPTI_INFINITY
                           : gckpti_attn_plus_mask(h, gckpti_attn_score(h, p[j]), head, i, j0 + j);
            float factor = gckpti_online(p, p, n, j0 == first_tile, &max, &sum);
            for (int64_t e = 0; out && j0 > first_tile && e < d; e++)
                out[e] *= factor;
            if (out)
                gckpti_attention_values(h, p, tile, from, n, out);
        }
        gckpti_softmax_end(&max, &sum);
        for (int64_t e = 0; gckpti_is_mixed(call) && out && e < d; e++)
            out[e] += 0.0f; /* a backend may add masked terms as zeros */
        if (out)
            gckpti_divide(out, sum, d);
        gckpti_close(call, to, at, d, out);
        if (call->saved)
            ((float *)call->saved)[head * h->t + i] = max + gckpti_log(sum);
    }
}

static void gckpti_attention_gradients(const gckpti_attn *h, int64_t head, float *scratch)
{
    enum { KEYS = GCKPTI_KEY_TILE >> GCKPTI_IS_SMALL }; /* any block size gives the same bits */
    const gckpt_call *call = h->call;
    const gckpt_arg *in = call->in;
    const int64_t t = h->t, d = h->d;
    float score[KEYS], dp[KEYS];
    (void)scratch;
    for (int64_t j0 = 0; j0 < h->visible.keys; j0 += KEYS)
        for (int64_t i = 0; i < t; i++) {
            const int64_t at = gckpti_attn_at_q(h, head) + i * h->c;
            const int64_t left = gckpti_min(h->visible.keys, i + 1 + h->visible.ahead) - j0;
            const int64_t n = gckpti_min(left, KEYS);
            int64_t key = gckpti_attn_at_k(h, head) + j0 * h->kv_c;
            const float *q = in[0].data + at, *g = call->grad_out + at;
            float lse = ((const float *)call->saved)[head * t + i], delta = 0.0f;
            const int64_t from = n > 0 ? gckpti_attn_masked(h, i, j0, n) : 0;
            if (n <= from)
                continue;
            gckpti_attention_dots(h, q, in[1].data + key, n, score);
            if (in[0].grad || in[1].grad) { /* delta: sum(g out) */
                delta = gckpti_dot(g, call->out + at, d);
                gckpti_attention_dots(h, g, in[2].data + key, n, dp);
            }
            key += from * h->kv_c;
            for (int64_t j = from; j < n; j++, key += h->kv_c) {
                const float s = gckpti_attn_score(h, score[j]);
                float p = gckpti_exp(gckpti_attn_plus_mask(h, s, head, i, j0 + j) - lse);
                if (in[2].grad)
                    gckpti_axpy(p, g, d, in[2].grad + key);
                if (!in[0].grad && !in[1].grad)
                    continue;
                float ds = gckpti_attn_ds(h, p, dp[j] - delta, s);
                if (in[0].grad)
                    gckpti_axpy(ds, in[1].data + key, d, in[0].grad + at);
                if (in[1].grad)
                    gckpti_axpy(ds, q, d, in[1].grad + key);
            }
        }
}

static void gckpti_run_attention(const gckpt_call *call, int backward)
{
    gckpti_attention_kernels plain = { gckpti_attention_output,
                                       GCKPTI_IF_TRAINING(gckpti_attention_gradients) };
    if (gckpti_is_mixed(call))
        plain.backward = gckpti_mixed_gradients;
    if (backward && !call->kernels)
        gckpti_clear_grads(call, 0, 3);
    gckpti_run_heads(call, backward,
                     GCKPTI_KERNEL_OF(call, attention->heads + gckpti_is_mixed(call), &plain));
}
GCKPTI_OP_KERNELS(attention, gckpti_run_attention(call, backward))

/* Causal: query i + 1 sees one key more than query i, but at most `window` of them; the last query
 * sees all others. */
static uint64_t gckpti_attention_flops(const gckpt_call *call)
{
    const gckpti_attn h = gckpti_attn_of(call);
    const uint64_t t = (uint64_t)h.t, keys = (uint64_t)h.s, window = (uint64_t)h.window;
    uint64_t rows = (uint64_t)call->shape.d[0], pairs = t * keys;
    if (((const gckpti_attention *)call->attributes)->causal) {
        uint64_t least = keys - t + 1, fewer = window > least ? window - least : 0;
        fewer = fewer < t ? fewer : t; /* from query `fewer` on, each sees `window` keys */
        pairs = fewer * least + fewer * (fewer + 1) / 2 - fewer + (t - fewer) * window;
    }
    return rows * pairs * (4 * (uint64_t)h.c + (h.cap > 0.0f ? 34 : 14) * (uint64_t)h.heads);
}

static uint64_t gckpti_attention_flops_backward(const gckpt_call *call)
{
    const uint64_t forward = gckpti_attention_flops(call);
    gckpt_call others = *call;
    others.inputs = 3;
    return gckpti_gradients_flops(&others, forward) + forward / 2 +
           (gckpti_has_mask(call) && call->in[3].grad ? forward : 0);
}

static int64_t gckpti_attention_lengths(const gckpt_call *call, int i)
{
    (void)i;
    return call->in[1].shape.d[1] + 1;
}

/* No flag says that gradients read lengths: they are outside the arena, and hashes would change. */
GCKPTI_DESC_WITH(attention, gckpti_attention_shape, gckpti_attention_flops,
                 gckpti_attention_flops_backward, gckpti_attention_lengths,
                 (unsigned)GCKPTI_TAKES_ALL_BF16 | GCKPT_INDEX(3),
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_OUT | GCKPT_SAVED,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_OUT | GCKPT_SAVED,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_SAVED);
#endif
