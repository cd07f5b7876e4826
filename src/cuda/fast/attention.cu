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

/* Adds two products of a, which is 0 at masked terms, with b, which is not finite everywhere. Skips
 * masked terms (0 times infinity is NaN); other infinities or NaNs of b make the sum NaN. */
__device__ inline void add_masked(float o[2][4], const uint32_t a[4], uint32_t b[4],
                                const uint32_t mask[4])
{
    uint32_t nonfinite[4];
    float count[2][4] = {};
    UNROLLED(i, 4) {
        uint32_t low = (b[i] & 0x7f80u) == 0x7f80u, high = (b[i] & 0x7f800000u) == 0x7f800000u;
        b[i] &= (low ? 0 : 0xffffu) | (high ? 0 : 0xffff0000u);
        nonfinite[i] = (low ? 0x3f80u : 0) | (high ? 0x3f800000u : 0); /* 1 as bf16 */
    }
    UNROLLED(x, 2) {
        gckpti_mma_bf16(o[x], a, b + 2 * x);
        gckpti_mma_bf16(count[x], mask, nonfinite + 2 * x);
        UNROLLED(i, 4)
            o[x][i] = count[x][i] > 0.0f ? NAN : o[x][i];
    }
}

/* Computes o (16,D) += s (16, 8 n) times lines 0.. of b. Row i has terms up to i + visible or, with
 * FROM, from i - visible on; at others, s is 0. CUT: some row may lack terms. */
template <int D, int n, bool FROM, bool CUT>
__device__ inline void add_terms(const float s[n][4], const uint16_t *b, float o[D / 8][4],
                                 int visible)
{
    const int lane = threadIdx.x % 32, row = lane / 4;
    const Reader<D, 0, true> read_b(0);
    UNROLLED(term, n / 2) {
        const float *s0 = s[2 * term], *s1 = s[2 * term + 1];
        /* last term (FROM: first term) of row 0, counted from this block of 16 terms */
        const int edge = (FROM ? -visible : visible) - 16 * term;
        if (CUT && (FROM ? edge > 15 : edge < -15))
            continue;
        const bool cut = CUT && (FROM ? edge > -15 : edge < 15);
        uint32_t left[4] = { bf16_pair(s0[0], s0[1]), bf16_pair(s0[2], s0[3]),
                             bf16_pair(s1[0], s1[1]), bf16_pair(s1[2], s1[3]) };
        uint32_t right[4];
#pragma unroll
        for (int x = 0; x < D / 8; x += 2) {
            read_b(right, b, x * 8, term * 16);
            if (cut && __any_sync(0xffffffffu, any_nonfinite(right))) {
                uint32_t mask[4];
                UNROLLED(i, 4) {
                    int at = lane % 4 * 2 + i / 2 * 8 - row - i % 2 * 8 - edge;
                    mask[i] = FROM ? (at >= 0 ? 0x3f80u : 0) | (at >= -1 ? 0x3f800000u : 0)
                                   : (at <= 0 ? 0x3f80u : 0) | (at < 0 ? 0x3f800000u : 0);
                }
                add_masked(o + x, left, right, mask);
                continue;
            }
            gckpti_mma_bf16(o[x], left, right);
            gckpti_mma_bf16(o[x + 1], left, right + 2);
        }
    }
}

/* Calls add_terms for the warp's rows, which begin at `row` of the block's 64; visible: that of row
 * 0. In most tiles all rows have all terms: these take a short path without checks. */
template <int D, int n, bool FROM>
__device__ inline void add_product(const float s[n][4], const uint16_t *b, float o[D / 8][4],
                                   int visible, int row)
{
    if (visible >= (FROM ? 63 : 8 * n - 1))
        add_terms<D, n, FROM, false>(s, b, o, 0);
    else
        add_terms<D, n, FROM, true>(s, b, o, FROM ? visible - row : visible + row);
}

/* A warp has 16 of the rows; a thread has rows `row` and `row` + 8 of the block and, of each 8
 * columns of a tile, `pair` and `pair` + 1. */
template <bool KEYS, int D, int n> struct MmaBlock : HeadRows<KEYS, n> {
    typedef HeadRows<KEYS, n> Base;
    int warp_row, row, pair;

    __device__ __forceinline__ MmaBlock(const MmaAttention &p, int block)
        : Base(p, block), warp_row((int)threadIdx.x / 32 * 16),
          row(warp_row + (int)threadIdx.x % 32 / 4), pair((int)threadIdx.x % 4 * 2)
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
    const MmaBlock<false, D, 64> at(p, (int)blockIdx.x);
    float o[D / 8][4] = {}, s[8][4], max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
    at.copy_rows(p.q, q);
    const auto stage = [&](int step) {
        at.copy_columns(p.k, step, k + step % 2 * SIZE);
        at.copy_columns(p.v, step, v + step % 2 * SIZE);
    };
    pipeline(at.tiles, stage, [&](int step) {
        scores<D, 8>(q, at.warp_row, k + step % 2 * SIZE, s);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int end = min(at.columns(step), at.lag(step) + at.row + half * 8 + 1);
            float top = max[half], rescale, shift;
            UNROLLED(x, 16) {
                float &score = s[x / 2][2 * half + x % 2];
                score = at.pair + x / 2 * 8 + x % 2 < end ? score * (p.scale * LOG2E) : -INFINITY;
                top = score > top ? score : top;
            }
            top = row_max(top, 2);
            shift = gckpti_shift(top);
            rescale = exp2_of(max[half] - shift);
            max[half] = top;
            sum[half] *= rescale;
            UNROLLED(x, 16) {
                float &score = s[x / 2][2 * half + x % 2];
                score = exp2_of(score - shift);
                sum[half] += score;
            }
            UNROLLED(x, D / 8)
                o[x][2 * half] *= rescale, o[x][2 * half + 1] *= rescale;
        }
        add_product<D, 8, false>(s, v + step % 2 * SIZE, o, at.lag(step), at.warp_row);
    });
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

/* Converts scores s to p = exp(s scale - saved), d = dp to p (dp - delta) scale; !here: to 0. */
__device__ inline void softmax_grad(const MmaAttention &p, float saved, float delta, int here,
                                    float *s, float *d)
{
    *s = here ? exp2_of((*s * p.scale - saved) * LOG2E) : 0.0f;
    *d = here ? *s * (*d - delta) * p.scale : 0.0f;
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
    SHARED(float, saved, [2][n]); /* KEYS: of the queries of two tiles */
    SHARED(float, delta, [2][n]);
    const MmaBlock<KEYS, D, n> at(p, (int)blockIdx.x);
    float o[D / 8][4] = {}, dv[D / 8][4] = {}, s[n / 8][4], d[n / 8][4], mine[2][2];
    const auto load_saved = [&](int step, int i, float *saved_of, float *delta_of) {
        *saved_of = i < p.t ? p.saved[at.first_query(step) + i] : INFINITY;
        *delta_of = i < p.t ? p.delta[at.first_query(step) + i] : 0.0f;
    };
    UNROLL for (int half = 0; half < 2 && !KEYS; half++)
        load_saved(0, at.first + at.row + half * 8, &mine[0][half], &mine[1][half]);
    at.copy_rows(KEYS ? p.k : p.q, rows[0]);
    at.copy_rows(KEYS ? p.v : p.g, rows[1]);
    const auto stage = [&](int step) {
        const int to = step % 2, thread = (int)threadIdx.x;
        at.copy_columns(KEYS ? p.q : p.k, step, columns[0] + to * PART);
        at.copy_columns(KEYS ? p.g : p.v, step, columns[1] + to * PART);
        if (KEYS && thread < n)
            load_saved(step, at.column(step) + thread, &saved[to][thread],
                       &delta[to][thread]);
    };
    pipeline(at.steps(), stage, [&](int step) {
        const int now = step % 2, lag = at.lag(step), count = at.columns(step);
        const uint16_t *x = columns[0] + now * PART, *y = columns[1] + now * PART;
        scores<D, n / 8>(rows[0], at.warp_row, x, s);
        scores<D, n / 8>(rows[1], at.warp_row, y, d);
        UNROLLED(e, n / 2) {
            const int half = e / 2 % 2, r = at.row + half * 8, c = at.pair + e / 4 * 8 + e % 2;
            const bool here = KEYS ? c >= r - lag : c < min(count, lag + r + 1);
            softmax_grad(p, KEYS ? saved[now][c] : mine[0][half],
                         KEYS ? delta[now][c] : mine[1][half], here, &s[e / 4][e % 4],
                         &d[e / 4][e % 4]);
        }
        if (KEYS)
            add_product<D, n / 8, true>(s, y, dv, lag, at.warp_row);
        add_product<D, n / 8, KEYS>(d, x, o, lag, at.warp_row);
    });
    const Results &to = KEYS ? p.dk : p.dq;
    if (wanted(to))
        at.store(p, to, p.accumulate[KEYS], o, { 1, 1 });
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

template <int D> void run_attention(const gckpt_call *call, const MmaAttention &p)
{
    enum { QUERIES = D == 64 ? 64 : 32 }; /* registers do not suffice for more */
    const int rows = (int)call->shape.d[0];
    const dim3 queries((unsigned)(rows * p.heads * ((p.t + 63) / 64)));
    const dim3 keys((unsigned)(rows * (p.heads / p.group) * ((p.s + 63) / 64)));
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
        const Values g = grad_out_of(call), out = value_out_of(call);
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
    /* registers suffice for up to 128 columns and without extras */
    if (p.d > 128 || ((const gckpti_attention *)call->attributes)->extras) {
        call->precision = GCKPT_BF16;
        return GCKPT_OK;
    }
    attention_of(call, backward, true);
    bump_alloc(backward, (size_t)(call->shape.d[0] * call->shape.d[1] * p.heads) * sizeof(float));
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used;
    return GCKPT_OK;
}
