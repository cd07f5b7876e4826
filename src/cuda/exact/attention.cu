/* Takes this thread's next four scores x of a row into the row's max and sum, replaces them by
 * exponentials, and returns the factor for earlier terms. Masked keys have the score -inf, whose
 * exponential, +0, changes no sum. Of +0 and -0, fmaxf may return either. seen: the first key that
 * is not masked, and the end of those keys. */
__device__ __forceinline__ float online_row(float (&x)[4], const Attention &a, const float *mask,
                                            int2 seen, bool first, float *max, float *sum)
{
    float top = -INFINITY;
    UNROLLED(c, 4)
    {
        const int j = (int)threadIdx.x % 16 + 16 * c;
        x[c] = j >= seen.x && j < seen.y ? gckpti_mul(x[c], a.after) : -INFINITY;
        if (mask && j < seen.y)
            x[c] += mask[j * a.mask.step[3]];
        top = fmaxf(top, x[c]);
    }
    const float factor = online_factor(row_max(top), first, max);
    const float shift = gckpti_shift(*max);
    UNROLLED(c, 4)
    x[c] = gckpti_exp(x[c] - shift);
    const float added = warp_sum((x[0] + x[2]) + (x[1] + x[3]), 8);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    return factor;
}

/* With a cap: turns raw products x into scores cap * tanh(x * times), one by one, in `scratch`,
 * where each thread has separate elements. */
template <int R> __device__ void cap_scores(float (&x)[R][4], const Attention &a, float *scratch)
{
    store_scores<R, false>(scratch, x);
    scratch += threadIdx.x / 16 * SCORES + threadIdx.x % 16;
#pragma unroll 1
    for (int i = 0; i < 4 * R; i++) {
        float *s = scratch + TILE / R * (i / 4) * SCORES + 16 * (i % 4);
        *s = gckpti_softcap(*s, a.times, a.cap);
    }
    UNROLLED(r, R) UNROLLED(c, 4) x[r][c] = scratch[TILE / R * r * SCORES + 16 * c];
}

/* Masked keys add no terms (their v may be inf). Exponentials overwrite k. On an H200, a processor
 * runs 3 blocks at once; 2 if heads are wide or bf16 is used, 1 if both. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 3 : 2 - (MIXED && WIDTH > 64))
    attention_forward_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, STEP = TILE / R;
    DYNAMIC_SHARED(float4, scratch);
    float *q = (float *)scratch, *k = q + TILE * ROW, *v = k + TILE * ROW, *p = k;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    const Attention kv = as_keys(a);
    const HeadTile at = head_tile_of(a, (a.t + TILE - 1) / TILE, true);
    const int first = at.tile * TILE;
    const int64_t column = (int64_t)at.head * a.d;
    const int64_t key = at.row * a.s * a.kc + (int64_t)(at.head / a.group) * a.d;
    const float *qs = a.q + at.row * a.t * a.c + column, *ks = a.k + key, *vs = a.v + key;
    const Keys visible = keys_of_row(a.keys, a.lengths, at.row);
    const int key_end = min(visible.count, first + visible.ahead + TILE);
    const int begin = max(first + visible.ahead + 1 - a.window, 0) / TILE * TILE;
    float o[R][N] = {}, max[R] = {}, sum[R] = {};
    for (int j0 = begin; j0 < key_end; j0 += TILE) {
        const int keys = min(key_end - j0, (int)TILE);
        float x[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            if (j0 == begin || a.d > WIDTH)
                fetch_tile<R, WIDTH, MIXED>(q, qs, a, first, a.t, e0);
            fetch_tile<R, WIDTH, MIXED>(k, ks, kv, j0 % a.s, j0 % a.s + keys, e0);
            if (e0 == 0 && a.out)
                fetch_tile<R, WIDTH, MIXED>(v, vs, kv, j0 % a.s, j0 % a.s + keys, at.slice * WIDTH);
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
        }
        __syncthreads();
        const int ahead = first + at_position(a.keys).ahead - j0;
        if (a.cap > 0.0f)
            cap_scores<R>(x, a, p);
        UNROLLED(r, R)
        {
            const int i = ty + STEP * r, end = i + 1 + ahead;
            const int2 seen = make_int2((end > 0 ? end : 0) - a.window, min(keys, end));
            const float *mask = R == 4 ? mask_row(a, at.row, at.head, first + i, j0) : NULL;
            const float factor = online_row(x[r], a, mask, seen, j0 == begin, &max[r], &sum[r]);
            UNROLLED(n, N)
            if (j0 > begin)
                o[r][n] = MIXED ? gckpti_flush_to_zero(o[r][n] * factor) : o[r][n] * factor;
        }
        store_scores<R, MIXED>(p, x);
        __syncwarp(); /* each warp reads only rows of p that it wrote */
        if (a.out)
            sum_over_keys<R, N, MIXED>(o, p, v, keys, ahead, a.window);
    }
    UNROLLED(r, R)
    {
        const int row = first + ty + STEP * r;
        gckpti_softmax_end(&max[r], &sum[r]);
        if (a.saved && at.slice == 0 && tx == 0 && row < a.t)
            a.saved[(at.row * a.heads + at.head) * a.t + row] = max[r] + gckpti_log(sum[r]);
        UNROLLED(n, N)
        o[r][n] /= sum[r];
    }
    if (a.out)
        store_rows<R, N, STEP>(o, a.out + at.row * a.t * a.c + column, a, first + ty, a.t,
                               at.slice * WIDTH);
}

/* Computes delta = dot(g, out) over a head's d columns; a warp has a query of a head. */
__device__ void attention_delta_of(int64_t r, Values g, Values out, float *delta, int64_t t,
                                   int heads, int d, int64_t c)
{
    int64_t head = r / t % heads, row = r / t / heads, at = (row * t + r % t) * c + head * d;
    const float dot = lanes_sum(d, [&](float lane, int64_t e) {
        return gckpti_fma(value_at(g, at + e), value_at(out, at + e), lane);
    });
    if (threadIdx.x % 32 == 0)
        delta[r] = dot;
}

/* With a cap: y = (y - delta) * derivative of the cap at x; y: gradients of probabilities. */
template <int R>
__device__ void cap_gradients(float (&y)[R][4], const float (&x)[R][4], const Attention &a,
                              int64_t of_head, int first)
{
    UNROLLED(r, R)
    {
        const int row = first + TILE / R * r;
        const float delta = row < a.t ? a.delta[of_head + row] : 0.0f;
        UNROLLED(c, 4)
        y[r][c] = (y[r][c] - delta) * gckpti_softcap_deriv(x[r][c], 1.0f / a.cap);
    }
}

/* Multiplies scores x of a row's head by their factor and adds the mask, one by one, in `scratch`,
 * as cap_scores does. */
template <int R>
__device__ void mask_scores(float (&x)[R][4], const Attention &a, int64_t of_head, int2 first,
                            float *scratch)
{
    const int plane = (int)(of_head / a.t);
    store_scores<R, false>(scratch, x);
    first.y += (int)threadIdx.x % 16;
    scratch += threadIdx.x / 16 * SCORES + threadIdx.x % 16;
#pragma unroll 1
    for (int i = 0; i < 4 * R; i++) {
        const int row = first.x + TILE / R * (i / 4), key = first.y + 16 * (i % 4);
        float *s = scratch + TILE / R * (i / 4) * SCORES + 16 * (i % 4);
        *s = gckpti_mul(*s, a.after);
        if (row < a.t && key < a.s)
            *s += *mask_row(a, plane / a.heads, plane % a.heads, row, key);
    }
    UNROLLED(r, R) UNROLLED(c, 4) x[r][c] = scratch[TILE / R * r * SCORES + 16 * c];
}

/* Turns scores x into probabilities from query first.x on, of keys from first.y on. With a cap,
 * converts y, too. */
template <int R>
__device__ void probabilities(float (&x)[R][4], float (&y)[R][4], const Attention &a,
                              int64_t of_head, int2 first, float *scratch)
{
    if (a.cap > 0.0f) {
        cap_scores<R>(x, a, scratch);
        cap_gradients<R>(y, x, a, of_head, first.x);
    }
    if (R == 4 && a.mask.x)
        mask_scores<R>(x, a, of_head, first, scratch);
    else
        UNROLLED(r, R) UNROLLED(c, 4) x[r][c] = gckpti_mul(x[r][c], a.after);
    UNROLLED(r, R)
    {
        const int row = first.x + TILE / R * r;
        const float lse = row < a.t ? a.saved[of_head + row] : 0.0f;
        UNROLLED(c, 4)
        x[r][c] = gckpti_exp(x[r][c] - lse);
    }
}

/* Turns y, gradients of the probabilities p, into ds, the gradients of scores. */
template <int R>
__device__ void score_gradients(float (&y)[R][4], const float (&p)[R][4], const Attention &a,
                                int64_t of_head, int first)
{
    UNROLLED(r, R)
    {
        const int row = first + TILE / R * r;
        const float delta = row < a.t && !(a.cap > 0.0f) ? a.delta[of_head + row] : 0.0f;
        UNROLLED(c, 4)
        y[r][c] = p[r][c] * (y[r][c] - delta) * a.scale;
    }
}

/* Loads a tile of q and one of g. */
template <int R, int WIDTH, bool MIXED>
__device__ void fetch_queries(float *q, float *g, const Attention &a, int64_t at, int first, int e0)
{
    fetch_tile<R, WIDTH, MIXED>(q, a.q + at, a, first, a.t, e0);
    fetch_tile<R, WIDTH, MIXED>(g, a.g + at, a, first, a.t, e0);
}

/* Computes dq of 64 queries by chains over ascending keys; ds overwrites v. No key: dq is kept. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 3 : 1) attention_dq_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, STEP = TILE / R;
    DYNAMIC_SHARED(float4, scratch);
    float *q = (float *)scratch, *k = q + TILE * ROW, *g = k + TILE * ROW, *v = g + TILE * ROW;
    float *ds = v;
    const int ty = (int)threadIdx.x / 16;
    const Attention kv = as_keys(a);
    const HeadTile at = head_tile_of(a, (a.t + TILE - 1) / TILE, true);
    const int first = at.tile * TILE;
    const int64_t queries = at.row * a.t * a.c + (int64_t)at.head * a.d;
    const int64_t keys = at.row * a.s * a.kc + (int64_t)(at.head / a.group) * a.d;
    const Keys visible = keys_of_row(a.keys, a.lengths, at.row);
    const int ahead = first + visible.ahead, key_end = min(visible.count, ahead + TILE);
    const int64_t of_head = (at.row * a.heads + at.head) * a.t;
    const int begin = max(ahead + 1 - a.window, 0) / TILE * TILE;
    float o[R][N];
    init_rows<R, N, STEP, MIXED>(o, a.dq + queries, a, first + ty, a.t, at.slice * WIDTH,
                                 a.accumulate[0]);
    for (int j0 = begin; j0 < key_end; j0 += TILE) {
        float x[R][4] = {}, y[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            if (j0 == begin || a.d > WIDTH)
                fetch_queries<R, WIDTH, MIXED>(q, g, a, queries, first, e0);
            fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, kv, j0, key_end, e0);
            fetch_tile<R, WIDTH, MIXED>(v, a.v + keys, kv, j0, key_end, e0);
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
            dots<R, WIDTH, MIXED>(y, g, v, a.d - e0);
        }
        __syncthreads();
        probabilities<R>(x, y, a, of_head, make_int2(first + ty, j0), ds);
        if (a.d > WIDTH)
            fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, kv, j0, key_end, at.slice * WIDTH);
        score_gradients<R>(y, x, a, of_head, first + ty);
        store_scores<R, MIXED>(ds, y);
        __syncthreads();
        sum_over_keys<R, N, MIXED>(o, ds, k, min(key_end - j0, (int)TILE), ahead - j0, a.window);
    }
    store_rows<R, N, STEP>(o, a.dq + queries, a, first + ty,
                           key_end > begin || !a.accumulate[0] ? a.t : 0, at.slice * WIDTH);
}

/* Sets rows of o to 0 whose keys no query may see. If MIXED, rows of keys before all windows become
 * x + 0 instead, where x has the gradients that they add to (if not NULL): subnormal x stays. */
template <int R, int N, bool MIXED>
__device__ void clear_masked(float (&o)[R][N], const float *x, const Attention &a, int first,
                             Keys visible, int e0)
{
    UNROLLED(r, R) UNROLLED(n, N)
    {
        const int e = e0 + column_of(n), row = first + r;
        o[r][n] = row < visible.count ? o[r][n] : 0.0f;
        if (MIXED && x && row < visible.ahead + 1 - a.window && e < a.d)
            o[r][n] = x[row * a.c + e] + 0.0f;
    }
}

/* Computes dk and dv of 64 keys by chains over ascending queries, one head after the other. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 2 : 1) attention_dk_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, LONG = TILE * ROW;
    DYNAMIC_SHARED(float4, scratch);
    float *q = (float *)scratch, *k = q + LONG, *g = k + LONG, *v = g + LONG, *scores = v + LONG;
    const Attention kv = as_keys(a);
    const HeadTile at = head_tile_of(kv, (a.s + TILE - 1) / TILE, false);
    const int first = at.tile * TILE, slice = at.slice * WIDTH;
    const int ty = (int)threadIdx.x / 16, first_row = first + R * ty; /* first row of the thread */
    const int64_t keys = at.row * a.s * a.kc + (int64_t)at.head * a.d;
    const Keys visible = keys_of_row(a.keys, a.lengths, at.row);
    float dk[R][N], dv[R][N];
    float *const to_k = a.dk ? a.dk + keys : NULL, *const to_v = a.dv ? a.dv + keys : NULL;
    init_rows<R, N, 1, MIXED>(dk, to_k, kv, first_row, a.s, slice, a.accumulate[1]);
    init_rows<R, N, 1, MIXED>(dv, to_v, kv, first_row, a.s, slice, a.accumulate[2]);
    const int begin = max(first - visible.ahead, 0) / TILE * TILE; /* first query that sees one */
    const int end = (int)gckpti_min(a.t, (int64_t)first + TILE - 1 - visible.ahead + a.window);
    const int tiles = first < visible.count ? (max(end - begin, 0) + TILE - 1) / TILE : 0;
    for (int step = 0; step < tiles * a.group; step++) {
        const int i0 = begin + step % tiles * TILE, head = at.head * a.group + step / tiles;
        const int n = min(a.t - i0, (int)TILE), ahead = i0 + visible.ahead - first;
        const int64_t queries = at.row * a.t * a.c + (int64_t)head * a.d;
        const int64_t of_head = (at.row * a.heads + head) * a.t;
        float x[R][4] = {}, y[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            fetch_queries<R, WIDTH, MIXED>(q, g, a, queries, i0, e0);
            if (step == 0 || a.d > WIDTH) {
                fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, kv, first, visible.count, e0);
                fetch_tile<R, WIDTH, MIXED>(v, a.v + keys, kv, first, visible.count, e0);
            }
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
            if (a.dk)
                dots<R, WIDTH, MIXED>(y, g, v, a.d - e0);
        }
        probabilities<R>(x, y, a, of_head, make_int2(i0 + ty, first), scores);
        if (a.d > WIDTH) {
            __syncthreads();
            fetch_queries<R, WIDTH, MIXED>(q, g, a, queries, i0, slice);
        }
        store_scores<R, MIXED>(scores, x);
        __syncthreads();
        if (a.dv)
            sum_over_queries<R, N, MIXED>(dv, scores, g, n, ahead, a.window);
        if (!a.dk)
            continue;
        __syncthreads();
        score_gradients<R>(y, x, a, of_head, i0 + ty);
        store_scores<R, MIXED>(scores, y);
        __syncthreads();
        sum_over_queries<R, N, MIXED>(dk, scores, q, n, ahead, a.window);
    }
    const int attended = tiles ? visible.count : 0;
    clear_masked<R, N, MIXED>(dk, a.accumulate[1] ? to_k : NULL, kv, first_row, visible, slice);
    clear_masked<R, N, MIXED>(dv, a.accumulate[2] ? to_v : NULL, kv, first_row, visible, slice);
    if (a.dk)
        store_rows<R, N, 1>(dk, to_k, kv, first_row, a.accumulate[1] ? attended : a.s, slice);
    if (a.dv)
        store_rows<R, N, 1>(dv, to_v, kv, first_row, a.accumulate[2] ? attended : a.s, slice);
}

/* Adds the term p (dp - delta) of a score of query i and key j, of which `mask` is a part. head 0
 * is that of row 0. */
__device__ void mask_term(const Attention &a, int64_t head, int64_t i, int64_t j, float mask,
                          float *sum)
{
    const int64_t b = head / a.heads, h = head % a.heads, lse = head * a.t + i;
    const int64_t query = (b * a.t + i) * a.c + h * a.d;
    const int64_t key = (b * a.s + j) * a.kc + h / a.group * a.d;
    float s = 0.0f, dp = 0.0f;
    for (int e = 0; e < a.d; e++) {
        s = gckpti_fma(a.q[query + e], a.k[key + e], s);
        dp = gckpti_fma(a.g[query + e], a.v[key + e], dp);
    }
    s = gckpti_mul(a.cap > 0.0f ? gckpti_softcap(s, a.times, a.cap) : s, a.after) + mask;
    *sum = gckpti_fma(gckpti_exp(s - a.saved[lse]), dp - a.delta[lse], *sum);
}

/* Computes the mask's gradient: a thread has an element, and adds the terms of the scores that it
 * is added to, in the order of gckpti_mask_tile. n: the mask's sizes; all: those of the scores. */
struct MaskAxes {
    int64_t n[4], all[4];
    int accumulate;
};
__global__ void __launch_bounds__(256) mask_gradient_kernel(Attention a, MaskAxes m)
{
    for (EACH(e, m.n[0] * m.n[1] * m.n[2] * m.n[3])) {
        const int64_t at[4] = { e / m.n[3] / m.n[2] / m.n[1], e / m.n[3] / m.n[2] % m.n[1],
                                e / m.n[3] % m.n[2], e % m.n[3] };
        const int64_t end_i = m.n[2] > 1 ? at[2] + 1 : a.t, end_j = m.n[3] > 1 ? at[3] + 1 : a.s;
        float sum = m.accumulate ? a.dmask[e] : 0.0f;
        for (int64_t b = at[0]; b < m.all[0]; b += m.n[0])
            for (int64_t h = at[1]; h < a.heads; h += m.n[1])
                for (int64_t i0 = at[2]; i0 < end_i; i0 += TILE)
                    for (int64_t j0 = at[3]; j0 < end_j; j0 += TILE)
                        for (int64_t i = i0; i < gckpti_min(i0 + TILE, end_i); i++)
                            for (int64_t j = j0; j < gckpti_min(j0 + TILE, end_j); j++)
                                mask_term(a, b * a.heads + h, i, j, a.mask.x[e], &sum);
        a.dmask[e] = sum;
    }
}

/* Launches a block for each 64 of `rows` queries or keys of each head, with shared memory for
 * `tiles` tiles of WIDTH columns and `more` floats. */
template <int R, int WIDTH, auto KERNEL>
void run_tiles(const gckpt_call *call, Attention a, int rows, int heads, int tiles, int more = 0)
{
    a.slices = (a.d + WIDTH - 1) / WIDTH;
    const int64_t blocks = call->shape.d[0] * ((rows + TILE - 1) / TILE) * heads * a.slices;
    run<KERNEL>(call, dim3((unsigned)blocks), 16 * TILE / R,
                (int)sizeof(float) * (TILE * (WIDTH + 4) * tiles + more), a);
}

/* In bf16 plans dk and dv take 64 columns at a time: registers are few. With a mask, R is 4. */
template <int R, int WIDTH, bool MIXED> void attention_run(const gckpt_call *call, Attention a)
{
    constexpr int OF_KEYS = MIXED ? 64 : WIDTH;
    if (!a.g)
        run_tiles<R, WIDTH, attention_forward_kernel<R, WIDTH, MIXED>>(call, a, a.t, a.heads, 3);
    if (a.g && a.dq)
        run_tiles<R, WIDTH, attention_dq_kernel<R, WIDTH, MIXED>>(call, a, a.t, a.heads, 4);
    if (a.g && (a.dk || a.dv))
        run_tiles<R, OF_KEYS, attention_dk_kernel<R, OF_KEYS, MIXED>>(
            call, a, a.s, a.heads / a.group, 4, TILE * SCORES);
}

void mask_gradient(const gckpt_call *call, const Attention &a)
{
    const gckpt_arg &mask = call->in[3];
    MaskAxes m = { { 1, 1, 1, 1 }, { call->shape.d[0], a.heads, a.t, a.s }, mask.accumulate };
    for (int k = 1; k <= mask.shape.n; k++)
        m.n[4 - k] = mask.shape.d[mask.shape.n - k];
    run_each<mask_gradient_kernel>(call, gckpti_elements(&mask.shape), a, m);
}

void attention_by(const gckpt_call *call, bool)
{
    const gckpti_attn h = gckpti_attn_of(call);
    const gckpt_arg *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    Attention a = { heads_of(call), q->data, k->data, v->data, call->grad_out, call->out };
    a.delta = (const float *)call->workspace, a.keys = keys_of(call);
    a.c = h.c, a.kc = h.kv_c, a.window = (int)gckpti_min(h.window, INT32_MAX);
    a.cap = h.cap, a.times = h.cap > 0.0f ? h.dot_scale : 0.0f;
    a.after = gckpti_attn_post_scale(&h);
    if (a.g)
        a.dq = q->grad, a.dk = k->grad, a.dv = v->grad;
    a.mask = h.mask, a.dmask = a.g && a.mask.x ? call->in[3].grad : NULL;
    a.aligned = a.d % 4 == 0 && aligned(a.q, a.k, a.v, a.g, a.out, a.dq, a.dk, a.dv);
    const int64_t queries = call->shape.d[0] * a.heads * a.t;
    if (a.dq || a.dk || a.dmask)
        for_each_row<attention_delta_of>(call, queries, grad_out_of(call), value_out_of(call),
                                         (float *)call->workspace, (int64_t)a.t, a.heads, a.d, a.c);
    const bool mixed = call->precision != GCKPT_FP32;
    const int wide = (int)sizeof(float) * (4 * TILE * (128 + 4) + TILE * SCORES);
    /* where a block has 99 KiB of shared memory, heads are split into 64 columns */
    if (a.d <= 64 || wide > attribute_of(call, cudaDevAttrMaxSharedMemoryPerBlockOptin))
        mixed      ? attention_run<4, 64, true>(call, a)
        : a.mask.x ? attention_run<4, 64, false>(call, a)
                   : attention_run<8, 64, false>(call, a);
    else
        mixed ? attention_run<4, 128, true>(call, a) : attention_run<4, 128, false>(call, a);
    if (a.dmask)
        mask_gradient(call, a);
}

void masked_attention_by(const gckpt_call *call, bool backward)
{
    gckpt_call f32 = *call; /* as one of attention, whose input 3 would be lengths */
    f32.precision = GCKPT_FP32, f32.inputs = 3;
    attention_by(&f32, backward);
}

/* Backward: delta, a float for each query of each head. */
int64_t attention_workspace(const gckpt_call *call, bool backward)
{
    return backward ? (int64_t)(call->saved_bytes / sizeof(float)) : 0;
}
