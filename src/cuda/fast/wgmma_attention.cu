/* ---- attention by wgmma and TMA, for sm_90a ---- A block is a warpgroup and has 64 queries or 64
 * keys, as in attention.cu; a thread has the same elements of scores and results as there. A tile
 * consists of boxes of 64 rows and 64 columns of a head, as TMA loads them, so that it is both the
 * K-major operand of scores and the MN-major operand of sums over its rows. */
struct WgmmaAttention : MmaAttention {
    CUtensorMap rows[2], columns[2]; /* q, g and k, v; for dk and dv exchanged */
};

/* Layout of a tile that consists of boxes. */
struct Boxes {
    static __device__ inline int at(int line, int chunk)
    {
        return chunk / 8 * BOX_SIZE + Swizzled<BOX>::at(line, chunk % 8);
    }
};

/* Tiles in shared memory: ROWS of the block's rows, then two stages of two tiles of columns. */
template <bool KEYS, int D, int ROWS> struct WgmmaTiles {
    enum { SIZE = 64 * D };
    const WgmmaAttention &p;
    const MmaBlock<KEYS, D, 64> &at;
    uint16_t *rows;
    uint64_t *full;         /* barriers of the stages and of the rows */
    float (*values)[2][64]; /* KEYS: `saved` and `delta` of the queries of two tiles */

    __device__ __forceinline__ uint16_t *columns(int step, int i) const
    {
        return rows + (ROWS + step % 2 * 2 + i) * SIZE;
    }
    /* Loads 64 tokens of a head; columns and tokens that do not exist become 0. */
    __device__ __forceinline__ void load_tile(const CUtensorMap &map, int head, int token,
                                              uint16_t *to, uint64_t *bar) const
    {
        UNROLLED(x, D / 64)
            gckpti_tma_load(to + x * BOX_SIZE, map, x * BOX, token, head, at.batch_row, bar);
    }
    /* Stores a step's value of query_value, and begins to load its tiles. */
    __device__ __forceinline__ void stage(int step, float value) const
    {
        const int thread = (int)threadIdx.x;
        if (step >= at.steps())
            return;
        if (KEYS)
            values[step % 2][thread / 64][thread % 64] = value;
        if (thread)
            return;
        gckpti_mbarrier_expect(full + step % 2, 2 * SIZE * (int)sizeof(uint16_t));
        UNROLLED(i, 2)
            load_tile(p.columns[i], KEYS ? at.query_head(step) : at.head / p.group, at.column(step),
                      columns(step, i), full + step % 2);
    }
    __device__ __forceinline__ float value(int step) const
    {
        const int thread = (int)threadIdx.x;
        return KEYS && step < at.steps()
                   ? at.query_value(p, step, at.column(step) + thread % 64, thread / 64)
                   : 0.0f;
    }
    /* Calls use(step) for each step, while the next step's tiles are loaded. */
    template <class U> __device__ __forceinline__ void each_step(U use) const
    {
        if (threadIdx.x == 0) {
            UNROLLED(i, 3) gckpti_mbarrier_init(full + i, 1);
            gckpti_mbarrier_fence();
            gckpti_mbarrier_expect(full + 2, ROWS * SIZE * (int)sizeof(uint16_t));
            UNROLLED(i, ROWS)
                load_tile(p.rows[i], at.head, at.first, rows + i * SIZE, full + 2);
        }
        UNROLLED(step, 2) stage(step, value(step));
        __syncthreads();
        gckpti_mbarrier_wait(full + 2, 0);
#pragma unroll 1
        for (int step = 0; step < at.steps(); step++) {
            const float next = value(step + 2);
            gckpti_mbarrier_wait(full + step % 2, step / 2 & 1);
            use(step);
            __syncthreads();
            stage(step + 2, next);
        }
    }
    /* Calls clean for a tile, which only wgmma reads then. */
    __device__ __forceinline__ void clean(int step, uint16_t *tile,
                                          unsigned (*cleaned)[2]) const
    {
        at.template clean<Boxes>(step, tile, cleaned);
        gckpti_mbarrier_fence(); /* wgmma sees the stores */
        __syncthreads();
    }
};

/* Begins to compute s (64,64): products, along the head, of the rows of a and of b. */
template <int D>
__device__ __forceinline__ void wgmma_scores(const uint16_t *a, const uint16_t *b, float (&s)[8][4])
{
    const uint64_t rows = gckpti_wgmma_matrix<true>(a), columns = gckpti_wgmma_matrix<true>(b);
    gckpti_wgmma<true, true, false>(s, rows, columns);
    UNROLL for (int k = 1; k < D / 16; k++)
    {
        const uint64_t at = k / 4 * (BOX_SIZE * 2 >> 4) + k % 4 * gckpti_wgmma_16<true>;
        gckpti_wgmma<true, true>(s, rows + at, columns + at);
    }
    gckpti_wgmma_commit();
}

/* s (64,64) as the left operand of products. */
struct WgmmaLeft {
    uint32_t terms[4][4];
    __device__ __forceinline__ explicit WgmmaLeft(const float (&s)[8][4])
    {
        UNROLLED(term, 4) left_operand(s + 2 * term, terms[term]);
    }
    /* Begins to compute o (64,D) += s times the rows of a tile. */
    template <int D>
    __device__ __forceinline__ void multiply(const uint16_t *tile, float (&o)[D][4]) const
    {
        const uint64_t rows = gckpti_wgmma_matrix<false>(tile);
        UNROLLED(k, 4)
            gckpti_wgmma_registers<false>(o, terms[k], rows + k * gckpti_wgmma_16<false>);
        gckpti_wgmma_commit();
    }
};

template <int D>
__global__ void __launch_bounds__(128, D == 64 ? 4 : 2)
    wgmma_attention_forward_kernel(const __grid_constant__ WgmmaAttention p)
{
#ifndef GCKPTI_NO_WGMMA
    DYNAMIC_SHARED(uint4, attention_tiles);
    SHARED(uint64_t, full, [3]);
    SHARED(unsigned, cleaned, [D][2]);
    const MmaBlock<false, D, 64> at(p, (int)blockIdx.x);
    const WgmmaTiles<false, D, 1> tiles = { p, at, first_box(attention_tiles), full, NULL };
    Softmax<D> softmax;
    float o[D / 8][4] = {}, s[8][4];
    tiles.each_step([&](int step) {
        uint16_t *k = tiles.columns(step, 0), *v = tiles.columns(step, 1);
        const bool cut = at.cut(step);
        gckpti_wgmma_fence();
        wgmma_scores<D>(tiles.rows, k, s);
        gckpti_wgmma_wait<0>();
        gckpti_wgmma_settle(s);
        if (cut)
            at.mask(step, s, -INFINITY), tiles.clean(step, v, cleaned);
        softmax.add(p.scale * LOG2E, s, o);
        const WgmmaLeft left(s);
        gckpti_wgmma_fence();
        left.multiply(v, o);
        gckpti_wgmma_wait<0>();
        gckpti_wgmma_settle(o);
        if (cut)
            at.spoil(step, cleaned, o);
    });
    softmax.finish(p, o);
#endif
}

/* Computes dq or, if KEYS, dk and dv, as mma_attention_backward_kernel does. Exponentials overlap
 * with the product of g and v, and the gradients of scores with dv. */
template <bool KEYS, int D>
__global__ void __launch_bounds__(128, D == 64 && !KEYS ? 4 : 2)
    wgmma_attention_backward_kernel(const __grid_constant__ WgmmaAttention p)
{
#ifndef GCKPTI_NO_WGMMA
    DYNAMIC_SHARED(uint4, attention_tiles);
    SHARED(uint64_t, full, [3]);
    SHARED(float, values, [2][2][64]);
    SHARED(unsigned, cleaned, [2][D][2]);
    const MmaBlock<KEYS, D, 64> at(p, (int)blockIdx.x);
    const WgmmaTiles<KEYS, D, 2> tiles = { p, at, first_box(attention_tiles), full, values };
    float o[D / 8][4] = {}, dv[D / 8][4] = {}, s[8][4], d[8][4], mine[2][2];
    UNROLL for (int e = 0; e < 4 && !KEYS; e++) mine[e / 2][e % 2] =
        at.query_value(p, 0, at.first + at.row + e % 2 * 8, e / 2);
    tiles.each_step([&](int step) {
        uint16_t *x = tiles.columns(step, 0), *y = tiles.columns(step, 1);
        const bool cut = at.cut(step);
        gckpti_wgmma_fence();
        wgmma_scores<D>(tiles.rows, x, s);
        wgmma_scores<D>(tiles.rows + tiles.SIZE, y, d);
        gckpti_wgmma_wait<1>();
        gckpti_wgmma_settle(s);
        at.probabilities(p, KEYS ? values[step % 2][0] : mine[0], s);
        gckpti_wgmma_wait<0>();
        gckpti_wgmma_settle(d);
        if (cut)
            at.mask(step, s, 0.0f), tiles.clean(step, x, cleaned[0]);
        if (cut && KEYS)
            tiles.clean(step, y, cleaned[1]);
        if (KEYS) {
            const WgmmaLeft left(s);
            gckpti_wgmma_fence();
            left.multiply(y, dv);
        }
        at.score_grads(KEYS ? values[step % 2][1] : mine[1], s, d);
        if (cut)
            at.mask(step, d, 0.0f);
        const WgmmaLeft left(d);
        gckpti_wgmma_fence();
        left.multiply(x, o);
        gckpti_wgmma_wait<0>();
        gckpti_wgmma_settle(o);
        gckpti_wgmma_settle(dv);
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
#endif
}

/* Launches the kernels for `queries` blocks of queries, `keys` of keys. */
template <int D>
void wgmma_attention(const gckpt_call *call, const MmaAttention &p, dim3 queries, dim3 keys)
{
    enum { TILE_BYTES = 64 * D * 2, ALIGN = 1024 };
    const auto map = [&](const uint16_t *x, int64_t tokens, int64_t heads) {
        return tensor_map<4>(call, x, { p.d, tokens, heads, call->shape.d[0] },
                             { heads * p.d, p.d, tokens * heads * p.d });
    };
    const CUtensorMap q = map(p.q, p.t, p.heads), k = map(p.k, p.s, p.heads / p.group),
                      v = map(p.v, p.s, p.heads / p.group), g = p.g ? map(p.g, p.t, p.heads) : q;
    const WgmmaAttention of_queries = { p, { q, g }, { k, v } },
                         of_keys = { p, { k, v }, { q, g } };
    if (!p.g)
        run<wgmma_attention_forward_kernel<D>>(call, queries, 128, 5 * TILE_BYTES + ALIGN,
                                               of_queries);
    if (p.g && wanted(p.dq))
        run<wgmma_attention_backward_kernel<false, D>>(call, queries, 128, 6 * TILE_BYTES + ALIGN,
                                                       of_queries);
    if (p.g && (wanted(p.dk) || wanted(p.dv)))
        run<wgmma_attention_backward_kernel<true, D>>(call, keys, 128, 6 * TILE_BYTES + ALIGN,
                                                      of_keys);
}
