/* ---- attention (Dao 2023), with tiles of D = 64 or 128 columns of a head, the rest zeros ---- A
 * block of four warps has 64 queries of a head (forward, dq) or 64 keys (dk, dv), a warp 16 of
 * them; tiles of the keys (queries) are copied while the previous tile is used. Scores and
 * exponentials stay in registers, since the result of an mma has the layout of an operand. Maxima
 * and sums are binary32, over tiles of 64 keys in order. Scores are computed again for dq, and for
 * dk and dv, so that one thread computes a sum, in one order. */
struct MmaAttention : Heads {
    const uint16_t *q, *k, *v, *g;
    int c, kc; /* as in Attention */
    Results out, dq, dk, dv;
};

/* Copies n lines of head h from line `first` of row b of x (B,lines,C), 0 from line `end` on. */
template <int D, int n>
__device__ inline void stage_head(const MmaAttention &p, const uint16_t *x, int b, int h, int first,
                                  int lines, int end, uint16_t *tile)
{
    const Matrix<uint16_t> m = { x + ((int64_t)b * lines) * p.c + (int64_t)h * p.d, p.c,
                                 p.aligned };
    stage_tile<n, D, 128, Swizzled<D>, false>(m, first, end, 0, p.d, tile);
}

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

/* Stores o * times in lines line + lane / 4 and line + lane / 4 + 8 of y. */
template <int D>
__device__ inline void store_lines(const MmaAttention &p, const Results &y, int accumulate, int b,
                                   int h, int line, int lines, const float o[D / 8][4],
                                   const float (&times)[2])
{
    int lane = threadIdx.x % 32;
    UNROLLED(half, 2) {
        int i = line + lane / 4 + half * 8;
        int64_t at = ((int64_t)b * lines + i) * p.c + (int64_t)h * p.d;
        UNROLLED(x, D / 8) {
            int j = x * 8 + lane % 4 * 2;
            float v[2] = { o[x][2 * half] * times[half], o[x][2 * half + 1] * times[half] };
            if (i < lines)
                write_vec<2>(y, at + j, p.d - j, p.aligned, v, accumulate);
        }
    }
}

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

/* A block's 64 queries of a head. Blocks with most keys come first. */
struct MmaQueries {
    int lane, row, head, b, h, q0, ahead; /* row: the warp's first one of the 64 */
    Keys visible;
    __device__ __forceinline__ explicit MmaQueries(const MmaAttention &p)
    {
        const int blocks = (p.t + 63) / 64;
        lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
        head = (int)(blockIdx.x / blocks), b = head / p.heads, h = head % p.heads;
        q0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * 64;
        visible = keys_of_row(p.keys, p.lengths, b), ahead = q0 + visible.ahead;
    }
    /* Calls use(step, k, v) for each tile of 64 keys that a query sees. k, v: two tiles each. */
    template <int D, class U>
    __device__ __forceinline__ void each_tile(const MmaAttention &p, uint16_t *k, uint16_t *v,
                                              U use) const
    {
        const MmaAttention kv = as_keys(p);
        const auto stage = [&](int step) {
            const int to = step % 2 * 64 * D;
            stage_head<D, 64>(kv, p.k, b, h / p.group, step * 64, p.s, visible.count, k + to);
            stage_head<D, 64>(kv, p.v, b, h / p.group, step * 64, p.s, visible.count, v + to);
        };
        pipeline((min(visible.count, ahead + 64) + 63) / 64, stage, [&](int step) {
            use(step, k + step % 2 * 64 * D, v + step % 2 * 64 * D);
        });
    }
};

template <int D> __global__ void __launch_bounds__(128) mma_attention_forward_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *q = (uint16_t *)attention_tiles;
    const MmaQueries at(p);
    const int lane = at.lane, row = at.row;
    float o[D / 8][4] = {}, s[8][4], max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
    stage_head<D, 64>(p, p.q, at.b, at.h, at.q0, p.t, p.t, q);
    const auto add_keys = [&](int step, const uint16_t *k, const uint16_t *v) {
        scores<D, 8>(q, row, k, s);
        int i = at.ahead + row + lane / 4, j = step * 64 + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++, i += 8) {
            int end = min(at.visible.count, i + 1);
            float top = max[half], rescale, shift;
            UNROLLED(x, 16) {
                float &score = s[x / 2][2 * half + x % 2];
                score = j + x / 2 * 8 + x % 2 < end ? score * (p.scale * LOG2E) : -INFINITY;
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
        add_product<D, 8, false>(s, v, o, at.ahead - step * 64, row);
    };
    at.each_tile<D>(p, q + SIZE, q + 3 * SIZE, add_keys);
    UNROLLED(half, 2) {
        int i = at.q0 + row + lane / 4 + half * 8;
        for (int with = 1; with < 4; with *= 2)
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], with);
        gckpti_softmax_end(&max[half], &sum[half]);
        if (p.saved && i < p.t && lane % 4 == 0)
            p.saved[(int64_t)at.head * p.t + i] = max[half] * LN2 + gckpti_log(sum[half]);
        sum[half] = 1.0f / sum[half];
    }
    if (wanted(p.out))
        store_lines<D>(p, p.out, 0, at.b, at.h, at.q0 + row, p.t, o, sum);
}

/* Converts scores s to p = exp(s scale - saved), d = dp to p (dp - delta) scale; !here: to 0. */
__device__ inline void softmax_grad(const MmaAttention &p, float saved, float delta, int here,
                                    float *s, float *d)
{
    *s = here ? exp2_of((*s * p.scale - saved) * LOG2E) : 0.0f;
    *d = here ? *s * (*d - delta) * p.scale : 0.0f;
}

/* Computes dq of 64 queries over all keys that they see. */
template <int D>
__global__ void __launch_bounds__(128, D == 64 ? 2 : 1) mma_attention_dq_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *q = (uint16_t *)attention_tiles, *g = q + SIZE;
    const MmaQueries at(p);
    const int row = at.row, i = at.q0 + row + at.lane / 4;
    float o[D / 8][4] = {}, s[8][4], d[8][4], saved[2], delta[2];
    UNROLLED(half, 2) {
        const int64_t query = (int64_t)at.head * p.t + i + half * 8;
        saved[half] = i + half * 8 < p.t ? p.saved[query] : INFINITY;
        delta[half] = i + half * 8 < p.t ? p.delta[query] : 0.0f;
    }
    stage_head<D, 64>(p, p.q, at.b, at.h, at.q0, p.t, p.t, q);
    stage_head<D, 64>(p, p.g, at.b, at.h, at.q0, p.t, p.t, g);
    const auto add_keys = [&](int step, const uint16_t *k, const uint16_t *v) {
        scores<D, 8>(q, row, k, s);
        scores<D, 8>(g, row, v, d);
        UNROLLED(x, 32) {
            int half = x / 2 % 2, j = step * 64 + x / 4 * 8 + at.lane % 4 * 2 + x % 2;
            int here = j < at.visible.count && j <= i + half * 8 + at.visible.ahead;
            softmax_grad(p, saved[half], delta[half], here, &s[x / 4][x % 4], &d[x / 4][x % 4]);
        }
        add_product<D, 8, false>(d, k, o, at.ahead - step * 64, row);
    };
    at.each_tile<D>(p, g + SIZE, g + 3 * SIZE, add_keys);
    store_lines<D>(p, p.dq, p.accumulate[0], at.b, at.h, at.q0 + row, p.t, o, { 1, 1 });
}

/* Sets rows (keys) line + lane / 4 and line + lane / 4 + 8 of o to 0 if no query sees them. */
template <int D> __device__ inline void clear_masked(float o[D / 8][4], int line, int count)
{
    UNROLLED(x, D / 2)
        if (line + (int)threadIdx.x % 32 / 4 + x / 2 % 2 * 8 >= count)
            o[x / 4][x % 4] = 0.0f;
}

/* Computes dk and dv of 64 keys over all queries that see them, n queries at a time, one head after
 * the other. Scores are transposed: rows are keys. */
template <int D, int n>
__global__ void __launch_bounds__(128, D == 64 ? 2 : 1) mma_attention_dkv_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D, PART = n * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *k = (uint16_t *)attention_tiles, *v = k + SIZE, *q = v + SIZE, *g = q + 2 * PART;
    SHARED(float, saved, [2][n]);
    SHARED(float, delta, [2][n]);
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16, blocks = (p.s + 63) / 64;
    int shared = (int)(blockIdx.x / blocks), all = p.heads / p.group, b = shared / all;
    int k0 = (int)(blockIdx.x % blocks) * 64;
    const MmaAttention kv = as_keys(p);
    const Keys visible = keys_of_row(p.keys, p.lengths, b);
    int first = max(k0 - visible.ahead, 0) / n, tiles = (p.t + n - 1) / n - first;
    int steps = k0 < visible.count ? tiles * p.group : 0;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {}, s[n / 8][4], d[n / 8][4];
    stage_head<D, 64>(kv, p.k, b, shared % all, k0, p.s, visible.count, k);
    stage_head<D, 64>(kv, p.v, b, shared % all, k0, p.s, visible.count, v);
    const auto stage = [&](int step) {
        int to = step % 2, i0 = (first + step % tiles) * n;
        int i = i0 + (int)threadIdx.x, h = shared % all * p.group + step / tiles;
        int64_t at = ((int64_t)b * p.heads + h) * p.t + i;
        stage_head<D, n>(p, p.q, b, h, i0, p.t, p.t, q + to * PART);
        stage_head<D, n>(p, p.g, b, h, i0, p.t, p.t, g + to * PART);
        if (threadIdx.x < n) {
            saved[to][threadIdx.x] = i < p.t ? p.saved[at] : INFINITY;
            delta[to][threadIdx.x] = i < p.t ? p.delta[at] : 0.0f;
        }
    };
    pipeline(steps, stage, [&](int step) {
        int now = step % 2, ahead = (first + step % tiles) * n + visible.ahead;
        scores<D, n / 8>(k, row, q + now * PART, s);
        scores<D, n / 8>(v, row, g + now * PART, d);
        UNROLLED(x, n / 2) {
            int j = k0 + row + lane / 4 + x / 2 % 2 * 8, i = x / 4 * 8 + lane % 4 * 2 + x % 2;
            softmax_grad(p, saved[now][i], delta[now][i], j <= ahead + i, &s[x / 4][x % 4],
                  &d[x / 4][x % 4]);
        }
        add_product<D, n / 8, true>(s, g + now * PART, dv, ahead - k0, row);
        add_product<D, n / 8, true>(d, q + now * PART, dk, ahead - k0, row);
    });
    clear_masked<D>(dk, k0 + row, visible.count);
    clear_masked<D>(dv, k0 + row, visible.count);
    if (wanted(p.dk))
        store_lines<D>(kv, p.dk, p.accumulate[1], b, shared % all, k0 + row, p.s, dk, { 1, 1 });
    if (wanted(p.dv))
        store_lines<D>(kv, p.dv, p.accumulate[2], b, shared % all, k0 + row, p.s, dv, { 1, 1 });
}

/* Returns the operands (copied if they are not bf16), for the backward also the output's gradient,
 * and the results. */
MmaAttention attention_of(const gckpt_call *call, Workspace &workspace, bool backward)
{
    const gckpt_arg *in = call->in;
    MmaAttention p = { heads_of(call) };
    int64_t queries = gckpti_elements(&in[0].shape), keys = gckpti_elements(&in[1].shape);
    p.c = (int)in[0].shape.d[2], p.kc = (int)in[1].shape.d[2];
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
        run<mma_attention_dq_kernel<D>>(call, queries, 128, 6 * 64 * D * 2, p);
    if (p.g && (wanted(p.dk) || wanted(p.dv)))
        run<mma_attention_dkv_kernel<D, QUERIES>>(call, keys, 128, (2 * 64 + 4 * QUERIES) * D * 2,
                                                  p);
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
