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

/* A thread's part of a block. In shared memory: `rows` of q and, in a backward, g (if KEYS, k and
 * v); `columns` of k and v (if KEYS, q and g). */
template <bool KEYS, bool BACKWARD, int R, int WIDTH, bool MIXED> struct HeadBlock {
    enum { N = WIDTH / 16, LINE = WIDTH + 4, LONG = TILE * LINE, STEP = TILE / R };
    const Attention &a;
    const HeadRows<KEYS> at;
    int e0; /* first column of d in the result's slice */
    float *rows[2], *columns[2];

    __device__ __forceinline__ HeadBlock(const Attention &of, float *shared, int block)
        : a(of), at(of, block / of.slices),
          e0(block % of.slices * WIDTH), rows{ shared, shared + 3 * LONG }, columns{
              shared + LONG, shared + 2 * LONG
          }
    {
    }
    /* Return row r of this thread; its column c in a tile. */
    __device__ int row_of(int r) const { return at.first + (int)threadIdx.x / 16 + STEP * r; }
    __device__ static int column_in_tile(int c) { return (int)threadIdx.x % 16 + 16 * c; }

    __device__ __forceinline__ void stage_rows(int which, int e) const
    {
        const float *x = which ? (KEYS ? a.v : a.g) : KEYS ? a.k : a.q;
        at.template stage_rows<WIDTH, 16 * STEP, Padded<LINE>, MIXED>(x, e, rows[which]);
    }
    __device__ __forceinline__ void stage_columns(int which, int step, int e) const
    {
        const float *x = which ? (KEYS ? a.g : a.v) : KEYS ? a.q : a.k;
        at.template stage_columns<WIDTH, 16 * STEP, Padded<LINE>, MIXED>(x, step, e,
                                                                         columns[which]);
    }
    /* Computes the dots of q and k and, in a backward, of g and v. A forward only copies v. */
    __device__ __forceinline__ void all_dots(float (&x)[2][R][4], int step) const
    {
        UNROLLED(i, 8 * R)
        x[i / 4 / R][i / 4 % R][i % 4] = 0.0f;
        for (int e = 0; e < a.d; e += WIDTH) {
            __syncthreads();
            UNROLLED(which, 1 + BACKWARD)
            {
                if (step == 0 || a.d > WIDTH)
                    stage_rows(which, e);
                stage_columns(which, step, e);
            }
            if (!BACKWARD && e == 0 && a.out)
                stage_columns(1, step, e0);
            __syncthreads();
            dots<R, WIDTH, MIXED>(x[0], rows[0], columns[0], a.d - e);
            if (BACKWARD && (!KEYS || a.dk))
                dots<R, WIDTH, MIXED>(x[1], rows[1], columns[1], a.d - e);
        }
        __syncthreads();
    }

    /* Returns true if row r and column c exist and see each other. */
    __device__ bool sees(int r, int c, int step) const
    {
        const int more = (int)threadIdx.x / 16 + STEP * r - column_in_tile(c);
        return column_in_tile(c) < at.columns(step) && is_visible(at.lag(step) + more, a.window);
    }
    /* Return the mask of a step's head (its place is computed again, since registers are few); of
     * row r, from the first column on. */
    __device__ const float *mask_of_head(int step) const
    {
        const HeadRows<KEYS> here(a, gckpti_block_index() / a.slices);
        const int64_t *by = a.mask.step, head = here.query_head(step);
        return a.mask.x + here.batch_row * by[0] + head * by[1];
    }
    __device__ const float *mask_of_row(const float *mask, int r, int step) const
    {
        const int64_t *by = a.mask.step, row = row_of(r);
        return mask && row < at.count() ? mask + row * by[2 + KEYS] + at.column(step) * by[3 - KEYS]
                                        : NULL;
    }
    /* Returns the score of a dot product, which cap_scores may have capped. */
    __device__ float score(float x, const float *mask, int c, int step) const
    {
        x = gckpti_mul(x, a.after);
        if (mask && column_in_tile(c) < at.columns(step))
            x += mask[column_in_tile(c) * a.mask.step[3 - KEYS]];
        return x;
    }

    /* Adds p x to this thread's rows of o, in order over the columns that each row sees (CUT: some
     * rows do not see all of them). p, x: scores and lines of the columns, in shared memory. */
    template <bool CUT>
    __device__ __forceinline__ void add_tile(float (&o)[R][N], const float *p, const float *x,
                                             int step) const
    {
        const int n = at.columns(step), lag = at.lag(step), ty = (int)threadIdx.x / 16;
        Block<R, N, MIXED> sums;
        sums.begin();
#pragma unroll 1
        for (int j = 0; j < n; j += 4) {
            Vec<float, 4> scores[R];
            float y[N];
            sums.start_block(o, j);
            UNROLLED(r, R)
            scores[r] = load<4>(p + (ty + STEP * r) * SCORES + j);
            UNROLLED(k, 4)
            {
                if (CUT && j + k >= n)
                    break;
                load_columns(y, x + (j + k) * LINE);
                UNROLLED(r, R)
                {
                    const int more = KEYS ? j + k - ty - STEP * r : ty + STEP * r - j - k;
                    sums.term(o, k, r, scores[r].v[k], y, !CUT || is_visible(lag + more, a.window));
                }
            }
        }
        sums.end(o, true);
    }
    __device__ __forceinline__ void add_terms(float (&o)[R][N], const float *p, const float *x,
                                              int step) const
    {
        const int lag = at.lag(step);
        if (lag >= TILE - 1 && is_visible(lag + TILE - 1, a.window) && at.columns(step) % 4 == 0)
            add_tile<false>(o, p, x, step);
        else
            add_tile<true>(o, p, x, step);
    }

    /* Loads initial values of chains: this thread's elements of a result x, or zeros. */
    __device__ __forceinline__ void init(float (&o)[R][N], const float *x, int accumulate) const
    {
        UNROLLED(r, R) UNROLLED(n, N)
        {
            const int e = e0 + column_of(n);
            const bool here = accumulate && row_of(r) < at.count() && e < a.d;
            o[r][n] = here ? x[at.rows_at + row_of(r) * at.stride() + e] : 0.0f;
            o[r][n] = MIXED ? gckpti_flush_to_zero(o[r][n]) : o[r][n];
        }
    }
    /* Stores this thread's elements of a result x. If no query sees a key, its row is 0 or, if it
     * accumulates, stays; MIXED: it becomes x + 0, with subnormal x, if its window is over. */
    __device__ __forceinline__ void finish(float (&o)[R][N], float *x, int accumulate) const
    {
        const int count = accumulate && KEYS ? at.visible.count : at.count();
        UNROLLED(r, R) UNROLL for (int n = 0; n < N; n += 4)
        {
            const int e = e0 + column_of(n), row = row_of(r);
            const int64_t to = at.rows_at + row * at.stride() + e;
            if (row >= count || (accumulate && !at.tiles))
                continue;
            UNROLL for (int k = n; KEYS && k < n + 4; k++)
            {
                o[r][k] = row < at.visible.count ? o[r][k] : 0.0f;
                if (MIXED && accumulate && row < at.visible.ahead + 1 - a.window && e + k - n < a.d)
                    o[r][k] = x[to + k - n] + 0.0f;
            }
            write_vec<4>(Results{ x, NULL }, to, a.d - e, a.aligned, &o[r][n]);
        }
    }
};

/* Updates *max by the maximum `top` of more scores, as a step of gckpti_online does, and returns
 * the factor of the sum so far. */
__device__ __forceinline__ float online_factor(float top, bool first, float *max)
{
    float factor = 0.0f;
    if (!first) {
        top = top > *max ? top : *max;
        factor = gckpti_exp(*max - gckpti_shift(top));
    }
    *max = top;
    return factor;
}

/* Takes this thread's next four scores x of a row into the row's max and sum, replaces them by
 * exponentials, and returns the factor for earlier terms. Keys that are not seen have the score
 * -inf, whose exponential, +0, changes no sum. Of +0 and -0, fmaxf may return either. */
__device__ __forceinline__ float online_row(float (&x)[4], bool first, float *max, float *sum)
{
    const float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    const float factor = online_factor(row_max(top), first, max);
    const float shift = gckpti_shift(*max);
    UNROLLED(c, 4)
    x[c] = gckpti_exp(x[c] - shift);
    const float added = warp_sum((x[0] + x[2]) + (x[1] + x[3]), 8);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    return factor;
}

/* Masked keys add no terms (their v may be inf). Exponentials overwrite k. On an H200, a processor
 * runs 3 blocks at once; 2 if heads are wide or bf16 is used, 1 if both. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 3 : 2 - (MIXED && WIDTH > 64))
    attention_forward_kernel(Attention a)
{
    constexpr int N = WIDTH / 16;
    DYNAMIC_SHARED(float4, scratch);
    typedef HeadBlock<false, false, R, WIDTH, MIXED> Queries;
    const Queries block(a, (float *)scratch, (int)blockIdx.x);
    float o[R][N] = {}, x[2][R][4], max[R] = {}, sum[R] = {}, *p = block.columns[0];
    for (int step = 0; block.at.column(step) < block.at.end; step++) {
        block.all_dots(x, step);
        if (a.cap > 0.0f)
            cap_scores<R>(x[0], a, p);
        const float *head_mask = R == 4 && !MIXED && a.mask.x ? block.mask_of_head(step) : NULL;
        UNROLLED(r, R)
        {
            const float *mask = block.mask_of_row(head_mask, r, step);
            UNROLLED(c, 4)
            x[0][r][c] =
                block.sees(r, c, step) ? block.score(x[0][r][c], mask, c, step) : -INFINITY;
            const float factor = online_row(x[0][r], step == 0, &max[r], &sum[r]);
            UNROLLED(n, N)
            if (step > 0)
                o[r][n] = MIXED ? gckpti_flush_to_zero(o[r][n] * factor) : o[r][n] * factor;
        }
        store_scores<R, MIXED>(p, x[0]);
        __syncwarp(); /* each warp reads only rows of p that it wrote */
        if (a.out)
            block.add_terms(o, p, block.columns[1], step);
    }
    const Queries end(a, (float *)scratch, gckpti_block_index());
    UNROLLED(r, R)
    {
        gckpti_softmax_end(&max[r], &sum[r]);
        if (a.saved && end.e0 == 0 && threadIdx.x % 16 == 0 && end.row_of(r) < a.t)
            a.saved[end.at.first_query(0) + end.row_of(r)] = max[r] + gckpti_log(sum[r]);
        UNROLLED(n, N)
        o[r][n] /= sum[r];
    }
    if (a.out)
        end.finish(o, a.out, 0);
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

/* Turns dots x[0] of q and k into probabilities, and x[1] of g and v into gradients of scores. */
template <bool KEYS, int R, int WIDTH, bool MIXED>
__device__ __forceinline__ void score_gradients(float (&x)[2][R][4], const Attention &a,
                                                const HeadBlock<KEYS, true, R, WIDTH, MIXED> &block,
                                                int step, float *scratch)
{
    const int64_t of_head = block.at.first_query(step);
    if (a.cap > 0.0f)
        cap_scores<R>(x[0], a, scratch);
    const float *head_mask = R == 4 && !MIXED && a.mask.x ? block.mask_of_head(step) : NULL;
    UNROLLED(r, R)
    {
        const float *mask = block.mask_of_row(head_mask, r, step);
        UNROLLED(c, 4)
        {
            const int column = block.at.column(step) + block.column_in_tile(c);
            const int query = KEYS ? column : block.row_of(r);
            const float saved = query < a.t ? a.saved[of_head + query] : 0.0f;
            float d = x[1][r][c] - (query < a.t ? a.delta[of_head + query] : 0.0f);
            if (a.cap > 0.0f)
                d *= gckpti_softcap_deriv(x[0][r][c], 1.0f / a.cap);
            x[0][r][c] = gckpti_exp(block.score(x[0][r][c], mask, c, step) - saved);
            x[1][r][c] = x[0][r][c] * d * a.scale;
        }
    }
}

/* Computes dq of 64 queries by chains over ascending keys or, if KEYS, dk and dv of 64 keys by
 * chains over ascending queries, one head after the other. Scores of dq overwrite v. */
template <bool KEYS, int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 2 : 1)
    attention_backward_kernel(Attention a)
{
    constexpr int N = WIDTH / 16;
    DYNAMIC_SHARED(float4, scratch);
    const HeadBlock<KEYS, true, R, WIDTH, MIXED> block(a, (float *)scratch, (int)blockIdx.x);
    float d[R][N], dv[R][N], x[2][R][4], *const to = KEYS ? a.dk : a.dq;
    float *const scores = KEYS ? block.rows[1] + block.LONG : block.columns[1];
    block.init(d, to, a.accumulate[KEYS]);
    if (KEYS)
        block.init(dv, a.dv, a.accumulate[2]);
    for (int step = 0; step < block.at.steps(); step++) {
        block.all_dots(x, step);
        score_gradients(x, a, block, step, scores);
        UNROLL for (int which = 0; which <= KEYS && a.d > WIDTH; which++)
            block.stage_columns(which, step, block.e0);
        if (a.d > WIDTH)
            __syncthreads();
        if (KEYS && a.dv) {
            store_scores<R, MIXED>(scores, x[0]);
            __syncwarp(); /* each warp reads only rows of scores that it wrote */
            block.add_terms(dv, scores, block.columns[1], step);
            __syncwarp();
        }
        if (to) {
            store_scores<R, MIXED>(scores, x[1]);
            __syncwarp();
            block.add_terms(d, scores, block.columns[0], step);
        }
    }
    if (to)
        block.finish(d, to, a.accumulate[KEYS]);
    if (KEYS && a.dv)
        block.finish(dv, a.dv, a.accumulate[2]);
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
 * is added to, in the order of gckpti_mask_tile. */
__device__ void mask_gradient_at(int64_t e, const Attention &a, const gckpt_arg &mask, int64_t rows)
{
    int64_t n[4] = { 1, 1, 1, 1 }; /* sizes of the mask, 1 or those of the scores */
    for (int k = 1; k <= mask.shape.n; k++)
        n[4 - k] = mask.shape.d[mask.shape.n - k];
    const int64_t first_i = e / n[3] % n[2], end_i = n[2] > 1 ? first_i + 1 : a.t;
    const int64_t first_j = e % n[3], end_j = n[3] > 1 ? first_j + 1 : a.s;
    float sum = mask.accumulate ? mask.grad[e] : 0.0f;
    for (int64_t b = e / n[3] / n[2] / n[1]; b < rows; b += n[0])
        for (int64_t h = e / n[3] / n[2] % n[1]; h < a.heads; h += n[1])
            for (int64_t i0 = first_i; i0 < end_i; i0 += TILE)
                for (int64_t j0 = first_j; j0 < end_j; j0 += TILE)
                    for (int64_t i = i0; i < gckpti_min(i0 + TILE, end_i); i++)
                        for (int64_t j = j0; j < gckpti_min(j0 + TILE, end_j); j++)
                            mask_term(a, b * a.heads + h, i, j, a.mask.x[e], &sum);
    mask.grad[e] = sum;
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
    if (a.dq)
        run_tiles<R, WIDTH, attention_backward_kernel<false, R, WIDTH, MIXED>>(call, a, a.t,
                                                                               a.heads, 4);
    if (a.dk || a.dv)
        run_tiles<R, OF_KEYS, attention_backward_kernel<true, R, OF_KEYS, MIXED>>(
            call, a, a.s, a.heads / a.group, 4, TILE * SCORES);
}

void attention_by(const gckpt_call *call, bool)
{
    const gckpti_attn h = gckpti_attn_of(call);
    const gckpt_arg *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    Attention a = { heads_of(call), q->data, k->data, v->data, call->grad_out, call->out };
    a.delta = (const float *)call->workspace, a.keys = keys_of(call);
    a.cap = h.cap, a.times = h.cap > 0.0f ? h.dot_scale : 0.0f;
    a.after = gckpti_attn_post_scale(&h);
    if (a.g)
        a.dq = q->grad, a.dk = k->grad, a.dv = v->grad;
    a.mask = h.mask;
    a.aligned = a.d % 4 == 0 && aligned(a.q, a.k, a.v, a.g, a.out, a.dq, a.dk, a.dv);
    const int64_t queries = call->shape.d[0] * a.heads * a.t;
    if (a.g)
        for_each_row<attention_delta_of>(call, queries, grad_out_of(call), Values(out_of(call)),
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
    const gckpt_arg &mask = call->in[3];
    if (a.g && a.mask.x && mask.grad)
        for_each<mask_gradient_at>(call, gckpti_elements(&mask.shape), a, mask, call->shape.d[0]);
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
