/* ---- attention (Dao 2023), with tiles of D = 64 or 128 columns of a head, the rest zeros ---- A
 * block of four warps has 64 queries of a head (forward, dq) or 64 keys (dk, dv), a warp 16 of
 * them; tiles of the keys (queries) are copied while the previous tile is used. Scores and
 * exponentials stay in registers, since the result of an mma has the layout of an operand. Maxima
 * and sums are binary32, over tiles of 64 keys in order. Scores are computed again for dq, and for
 * dk and dv, so that one thread computes a sum, in one order. */
struct MmaAttention : Heads {
    const uint16_t *q, *k, *v, *g;
    Results out, dq, dk, dv;
};

/* Computes s (16, 8 n): products, along the head, of 16 lines of a from `row` on and 8 n of b. */
template <int D, int n>
__device__ inline void scores(const uint16_t *a, int row, const uint16_t *b, float s[n][4])
{
    UNROLLED(x, n)
        s[x][0] = s[x][1] = s[x][2] = s[x][3] = 0.0f;
    const Reader<D, 1, false> read_a(row);
    const Reader<D, 1, true> read_b(0);
#pragma unroll
    for (int term = 0; term < D; term += 16) {
        uint32_t left[4], right[4];
        read_a(left, a, 0, term);
#pragma unroll
        for (int x = 0; x < n; x += 2) {
            read_b(right, b, x * 8, term);
            gckpti_mma_bf16(s[x], left, right);
            gckpti_mma_bf16(s[x + 1], left, right + 2);
        }
    }
}

/* Returns true if one of these eight bf16 is infinite or NaN. */
__device__ inline bool any_nonfinite(const uint32_t x[4])
{
    bool some = false;
    UNROLLED(i, 4)
        some |= (x[i] & 0x7f80u) == 0x7f80u || (x[i] & 0x7f800000u) == 0x7f800000u;
    return some;
}

/* Packs a thread's elements of 16 terms as the left operand of a product. */
__device__ __forceinline__ void left_operand(const float s[2][4], uint32_t left[4])
{
    UNROLLED(i, 4) left[i] = bf16_pair(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
}

/* Computes o (16,D) += s (16, 8 n) times lines 0.. of b. */
template <int D, int n>
__device__ inline void add_product(const float s[n][4], const uint16_t *b, float o[D / 8][4])
{
    const Reader<D, 0, true> read_b(0);
    UNROLLED(term, n / 2) {
        uint32_t left[4], right[4];
        left_operand(s + 2 * term, left);
#pragma unroll
        for (int x = 0; x < D / 8; x += 2) {
            read_b(right, b, x * 8, term * 16);
            gckpti_mma_bf16(o[x], left, right);
            gckpti_mma_bf16(o[x + 1], left, right + 2);
        }
    }
}

/* A warp has 16 of a block's rows; a thread has rows `row` and `row` + 8 of the block and, of each
 * 8 columns of a tile, `pair` and `pair` + 1. */
struct MmaPlace {
    int warp_row, row, pair;
    __device__ __forceinline__ explicit MmaPlace(int thread)
        : warp_row(thread / 32 * 16), row(warp_row + thread % 32 / 4), pair(thread % 4 * 2)
    {
    }
};

/* Returns a word of 32 bits, of which those from first to last are set. */
__device__ inline unsigned bits_of(int64_t first, int64_t last)
{
    const int begin = (int)max(first, (int64_t)0), end = (int)min(last, (int64_t)31);
    return begin > end ? 0 : ~0u << begin & ~0u >> (31 - end);
}

template <bool KEYS, int D, int n> struct MmaBlock : HeadRows<KEYS, n>, MmaPlace {
    typedef HeadRows<KEYS, n> Base;
    __device__ __forceinline__ MmaBlock(const MmaAttention &p, int block)
        : Base(p, block), MmaPlace((int)threadIdx.x)
    {
    }
    __device__ __forceinline__ void copy_rows(const uint16_t *x, uint16_t *tile) const
    {
        Base::template stage_rows<D, 128, Swizzled<D>, false>(x, 0, tile);
    }
    __device__ __forceinline__ void copy_columns(const uint16_t *x, int step, uint16_t *tile) const
    {
        Base::template stage_columns<D, 128, Swizzled<D>, false>(x, step, 0, tile);
    }
    /* Returns true if some query does not see some key of a step's tile. */
    __device__ __forceinline__ bool cut(int step) const
    {
        const int lag = this->lag(step);
        return lag < (KEYS ? 63 : n - 1) || lag + (KEYS ? n - 1 : 63) >= this->h.window ||
               (!KEYS && this->columns(step) < n);
    }
    /* Sets the thread's elements of s to `value` where the query does not see the key. */
    __device__ __forceinline__ void mask(int step, float (&s)[n / 8][4], float value) const
    {
        const MmaPlace here(gckpti_thread_index());
        const int lag = this->lag(step), count = KEYS ? n : this->columns(step);
        UNROLLED(e, n / 2) {
            const int r = here.row + e / 2 % 2 * 8, c = here.pair + e / 4 * 8 + e % 2;
            if (c >= count || !is_visible(lag + (KEYS ? c - r : r - c), this->h.window))
                s[e / 4][e % 4] = value;
        }
    }
    /* Replaces values of a step's tile that are not finite by 0, since 0 times these is NaN. For
     * each column, `cleaned` gets a bit for each row that had one. Rows after the last key, which
     * may have any values, do not count. The caller lets the block wait. */
    template <class LAYOUT> __device__ void clean(int step, uint16_t *tile,
                                              unsigned (*cleaned)[2]) const
    {
        const int thread = gckpti_thread_index(), count = this->columns(step);
        if (thread < D)
            cleaned[thread][0] = cleaned[thread][1] = 0;
        __syncthreads(); /* nor does a product read the tile any more */
#pragma unroll 1
        for (int i = thread; i < n * D / 8; i += 128) {
            const int r = i / (D / 8), chunk = i % (D / 8);
            uint16_t *x = tile + LAYOUT::at(r, chunk);
            if (!any_nonfinite(load<4>((const uint32_t *)(const void *)x).v))
                continue;
            for (int e = 0; e < 8; e++) {
                const bool nonfinite = (x[e] & 0x7f80) == 0x7f80;
                if (nonfinite && r < count)
                    atomicOr(&cleaned[chunk * 8 + e][r / 32], 1u << r % 32);
                x[e] = nonfinite ? 0 : x[e];
            }
        }
    }
    /* Sets sums over a cleaned tile to NaN if they include a value that was not finite. */
    __device__ void spoil(int step, const unsigned (*cleaned)[2], float (&o)[D / 8][4]) const
    {
        const MmaPlace here(gckpti_thread_index());
        const int64_t more = this->h.window - 1;
        UNROLLED(half, 2) {
            const int r = here.row + half * 8, same = r + this->lag(step) * (KEYS ? -1 : 1);
            const int64_t first = KEYS ? same : same - more, last = KEYS ? same + more : same;
            const unsigned low = bits_of(first, last), high = bits_of(first - 32, last - 32);
            UNROLLED(e, D / 4) {
                const unsigned *word = cleaned[e / 2 * 8 + here.pair + e % 2];
                if ((word[0] & low) | (word[1] & high))
                    o[e / 2][2 * half + e % 2] = NAN;
            }
        }
    }
    /* Returns a value of query i of a step's head: max + log(sum), in base 2, or delta. */
    __device__ __forceinline__ float query_value(const MmaAttention &p, int step, int i,
                                                 bool delta) const
    {
        const int64_t at = this->first_query(step) + i;
        if (delta)
            return i < p.t ? p.delta[at] : 0.0f;
        return i < p.t ? p.saved[at] * LOG2E : INFINITY;
    }
    /* Returns the index of the query of element e of s: a column if KEYS, else one of two rows. */
    __device__ __forceinline__ int query_of(int e) const
    {
        return KEYS ? pair + e / 4 * 8 + e % 2 : e / 2 % 2;
    }
    /* Converts scores s to p = exp(s scale - saved). */
    __device__ __forceinline__ void probabilities(const MmaAttention &p, const float *saved,
                                                  float (&s)[n / 8][4]) const
    {
        UNROLLED(e, n / 2)
            s[e / 4][e % 4] = exp2_of(
                gckpti_fma(s[e / 4][e % 4], p.scale * LOG2E, -saved[query_of(e)]));
    }
    /* Converts d = dp to p (dp - delta), the gradients of scores / scale. */
    __device__ __forceinline__ void score_grads(const float *delta, const float (&p)[n / 8][4],
                                                float (&d)[n / 8][4]) const
    {
        UNROLLED(e, n / 2)
            d[e / 4][e % 4] = p[e / 4][e % 4] * (d[e / 4][e % 4] - delta[query_of(e)]);
    }
    /* Stores o * times; keys that no query sees get 0. */
    __device__ __forceinline__ void store(const MmaAttention &p, const Results &y, int accumulate,
                                          const float o[D / 8][4], const float (&times)[2]) const
    {
        UNROLLED(half, 2) {
            const int i = this->first + row + half * 8;
            const bool zero = KEYS && i >= this->visible.count;
            UNROLLED(x, D / 8) {
                const int e = x * 8 + pair;
                const float v[2] = { zero ? 0.0f : o[x][2 * half] * times[half],
                                     zero ? 0.0f : o[x][2 * half + 1] * times[half] };
                if (i < this->count())
                    write_vec<2>(y, this->rows_at + i * this->stride() + e, p.d - e, p.aligned, v,
                                 accumulate);
            }
        }
    }
};

/* The online softmax of a thread's two queries: `max` is in base 2, `sum` of this thread's keys. */
template <int D> struct Softmax {
    float max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };

    /* Converts a tile's scores s to exponentials, and rescales `sum` and o to the new maxima. */
    __device__ __forceinline__ void add(float factor, float (&s)[8][4], float (&o)[D / 8][4])
    {
        UNROLLED(half, 2) {
            float top = -INFINITY;
            UNROLLED(x, 16) top = fmaxf(top, s[x / 2][2 * half + x % 2]);
            top = fmaxf(max[half], row_max(top, 2) * factor);
            const float shift = gckpti_shift(top), rescale = exp2_of(max[half] - shift);
            max[half] = top;
            sum[half] *= rescale;
            UNROLLED(x, 16) {
                float &score = s[x / 2][2 * half + x % 2];
                score = exp2_of(gckpti_fma(score, factor, -shift));
                sum[half] += score;
            }
            UNROLLED(x, D / 8)
                o[x][2 * half] *= rescale, o[x][2 * half + 1] *= rescale;
        }
    }
    /* Stores max + log(sum) and o / sum. */
    __device__ __forceinline__ void finish(const MmaAttention &p, const float o[D / 8][4])
    {
        const MmaBlock<false, D, 64> to(p, gckpti_block_index());
        UNROLLED(half, 2) {
            const int i = to.first + to.row + half * 8;
            for (int with = 1; with < 4; with *= 2)
                sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], with);
            gckpti_softmax_end(&max[half], &sum[half]);
            if (p.saved && i < p.t && to.pair == 0)
                p.saved[to.first_query(0) + i] = max[half] * LN2 + gckpti_log(sum[half]);
            sum[half] = 1.0f / sum[half];
        }
        if (wanted(p.out))
            to.store(p, p.out, 0, o, sum);
    }
};

/* Calls use(i) for i = 0..n-1, each while the copies to shared memory by stage(i + 1) run. */
template <class S, class U> __device__ __forceinline__ void pipeline(int n, S stage, U use)
{
    for (int i = -1; i < n; i++) {
        if (i + 1 < n)
            stage(i + 1);
        gckpti_cp_async_commit();
        if (i < 0)
            continue;
        gckpti_cp_async_wait<1>();
        __syncthreads();
        use(i);
        __syncthreads();
    }
}

template <int D>
__global__ void __launch_bounds__(128, D == 64 ? 4 : 2)
    mma_attention_forward_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *q = (uint16_t *)attention_tiles, *k = q + SIZE, *v = k + 2 * SIZE;
    SHARED(unsigned, cleaned, [D][2]);
    const MmaBlock<false, D, 64> at(p, (int)blockIdx.x);
    Softmax<D> softmax;
    float o[D / 8][4] = {}, s[8][4];
    at.copy_rows(p.q, q);
    const auto stage = [&](int step) {
        at.copy_columns(p.k, step, k + step % 2 * SIZE);
        at.copy_columns(p.v, step, v + step % 2 * SIZE);
    };
    pipeline(at.tiles, stage, [&](int step) {
        scores<D, 8>(q, at.warp_row, k + step % 2 * SIZE, s);
        if (at.cut(step)) {
            at.mask(step, s, -INFINITY);
            at.template clean<Swizzled<D>>(step, v + step % 2 * SIZE, cleaned);
            __syncthreads();
        }
        softmax.add(p.scale * LOG2E, s, o);
        add_product<D, 8>(s, v + step % 2 * SIZE, o);
        if (at.cut(step))
            at.spoil(step, cleaned, o);
    });
    softmax.finish(p, o);
}

/* Computes dq of 64 queries over all keys that they see or, if KEYS, dk and dv of 64 keys over all
 * queries that see them, n queries at a time, one head after the other. */
template <bool KEYS, int D, int n>
__global__ void __launch_bounds__(128, D == 64 ? 2 : 1)
    mma_attention_backward_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D, PART = n * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *rows[2] = { (uint16_t *)attention_tiles, (uint16_t *)attention_tiles + SIZE };
    uint16_t *columns[2] = { rows[1] + SIZE, rows[1] + SIZE + 2 * PART };
    SHARED(float, values, [2][2][n]); /* KEYS: `saved` and `delta` of the queries of two tiles */
    SHARED(unsigned, cleaned, [2][D][2]);
    const MmaBlock<KEYS, D, n> at(p, (int)blockIdx.x);
    const int thread = (int)threadIdx.x;
    float o[D / 8][4] = {}, dv[D / 8][4] = {}, s[n / 8][4], d[n / 8][4], mine[2][2];
    UNROLL for (int e = 0; e < 4 && !KEYS; e++)
        mine[e / 2][e % 2] = at.query_value(p, 0, at.first + at.row + e % 2 * 8, e / 2);
    at.copy_rows(KEYS ? p.k : p.q, rows[0]);
    at.copy_rows(KEYS ? p.v : p.g, rows[1]);
    const auto stage = [&](int step) {
        at.copy_columns(KEYS ? p.q : p.k, step, columns[0] + step % 2 * PART);
        at.copy_columns(KEYS ? p.g : p.v, step, columns[1] + step % 2 * PART);
        if (KEYS && thread < 2 * n)
            values[step % 2][thread / n][thread % n] =
                at.query_value(p, step, at.column(step) + thread % n, thread / n);
    };
    pipeline(at.steps(), stage, [&](int step) {
        const int now = step % 2;
        const bool cut = at.cut(step);
        uint16_t *x = columns[0] + now * PART, *y = columns[1] + now * PART;
        scores<D, n / 8>(rows[0], at.warp_row, x, s);
        scores<D, n / 8>(rows[1], at.warp_row, y, d);
        at.probabilities(p, KEYS ? values[now][0] : mine[0], s);
        at.score_grads(KEYS ? values[now][1] : mine[1], s, d);
        if (cut) {
            at.mask(step, s, 0.0f), at.mask(step, d, 0.0f);
            at.template clean<Swizzled<D>>(step, x, cleaned[0]);
            if (KEYS)
                at.template clean<Swizzled<D>>(step, y, cleaned[1]);
            __syncthreads();
        }
        if (KEYS)
            add_product<D, n / 8>(s, y, dv);
        add_product<D, n / 8>(d, x, o);
        if (cut)
            at.spoil(step, cleaned[0], o);
        if (cut && KEYS)
            at.spoil(step, cleaned[1], dv);
    });
    const Results &to = KEYS ? p.dk : p.dq;
    if (wanted(to))
        at.store(p, to, p.accumulate[KEYS], o, { p.scale, p.scale });
    if (KEYS && wanted(p.dv))
        at.store(p, p.dv, p.accumulate[2], dv, { 1, 1 });
}

/* Returns the operands (copied if they are not bf16), for the backward also the output's gradient,
 * and the results. */
MmaAttention attention_of(const gckpt_call *call, Workspace &workspace, bool backward)
{
    const gckpt_arg *in = call->in;
    MmaAttention p = { heads_of(call) };
    int64_t queries = gckpti_elements(&in[0].shape), keys = gckpti_elements(&in[1].shape);
    p.q = operand(call, workspace, value_of(in[0]), queries);
    p.k = operand(call, workspace, value_of(in[1]), keys);
    p.v = operand(call, workspace, value_of(in[2]), keys);
    if (backward)
        p.g = operand(call, workspace, grad_out_of(call), queries);
    p.out = out_of(call);
    p.dq = grad_of(in[0]), p.dk = grad_of(in[1]), p.dv = grad_of(in[2]);
    p.aligned = p.d % 8 == 0 && aligned(p.q, p.k, p.v, p.g, p.out, p.dq, p.dk, p.dv);
    return p;
}

template <int D> /* fast/wgmma_attention.cu */
void wgmma_attention(const gckpt_call *call, const MmaAttention &p, dim3 queries, dim3 keys);

/* Chooses kernels by the device, the columns of a head and addresses, never by the number of
 * tokens, so that the bits do not depend on the split of a batch. */
template <int D> void run_attention(const gckpt_call *call, const MmaAttention &p)
{
    enum { QUERIES = D == 64 ? 64 : 32 }; /* registers do not suffice for more */
    const int rows = (int)call->shape.d[0];
    const dim3 queries((unsigned)(rows * p.heads * ((p.t + 63) / 64)));
    const dim3 keys((unsigned)(rows * (p.heads / p.group) * ((p.s + 63) / 64)));
    if (p.aligned && device_of(call)->wgmma)
        return wgmma_attention<D>(call, p, queries, keys);
    if (!p.g)
        run<mma_attention_forward_kernel<D>>(call, queries, 128, 5 * 64 * D * 2, p);
    if (p.g && wanted(p.dq))
        run<mma_attention_backward_kernel<false, D, 64>>(call, queries, 128, 6 * 64 * D * 2, p);
    if (p.g && (wanted(p.dk) || wanted(p.dv)))
        run<mma_attention_backward_kernel<true, D, QUERIES>>(call, keys, 128,
                                                             (2 * 64 + 4 * QUERIES) * D * 2, p);
}

void attention_by(const gckpt_call *call, bool backward)
{
    Workspace workspace = { (char *)call->workspace, 0 };
    MmaAttention p = attention_of(call, workspace, backward);
    p.keys = keys_of(call);
    if (backward) {
        const int64_t n = call->shape.d[0] * call->shape.d[1] * p.heads;
        const Values g = grad_out_of(call), out = out_of(call);
        float *delta = (float *)bump_alloc(workspace, (size_t)n * sizeof *delta);
        run<fast_delta_kernel>(call, blocks_for(n, 128), 128, 0, g, out, delta, n, call->shape.d[1],
                               p.heads, p.d, p.d % 8 == 0 && aligned(g, out));
        p.delta = delta;
    }
    p.d <= 64 ? run_attention<64>(call, p) : run_attention<128>(call, p);
}

gckpt_result attention_workspace(gckpt_call *call)
{
    Workspace forward = { NULL, 0 }, backward = { NULL, 0 };
    MmaAttention p = attention_of(call, forward, false);
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    /* registers suffice for up to 128 columns and without a cap; a ring (extras 2) is not read */
    if (p.d > 128 || o->extras > 1 || (o->extras && o->cap > 0.0f)) {
        call->precision = GCKPT_BF16;
        return GCKPT_OK;
    }
    attention_of(call, backward, true);
    bump_alloc(backward, (size_t)(call->shape.d[0] * call->shape.d[1] * p.heads) * sizeof(float));
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used;
    return GCKPT_OK;
}
