/* ---- products by wgmma and TMA, on devices with sm_90a ---- As in mma_product_kernel, an element
 * is one chain of groups of 16 terms, in order, in one register, for any tile. A block is a
 * warpgroup with a tile of size x size; one of its threads lets TMA load stages of 64 terms, as
 * boxes of 64 x 64.
 *
 * Weight gradients have few tiles with many terms. If there are more tiles than multiprocessors, a
 * block on each takes an equal share of the terms of all tiles (McNaughton's rule of preemptive
 * scheduling): where a share ends within a tile, the block leaves its sums in c, and the block of
 * the next share continues the chain from there. A share has at least the terms of a tile, so a
 * block can begin with the tile that it hands on and end with the tile that it continues.
 *
 * Blocks cannot deadlock, in whatever order they run: a block draws its share when it begins, and
 * waits only for the block of the share before. That block has begun, and hands its tile on before
 * it waits for anything. */
enum { BOX = 64, BOX_SIZE = BOX * BOX };

struct WgmmaProduct {
    CUtensorMap a, b;
    MmaProduct p;
    /* NULL: each block computes a tile. Else [0]: number of shares drawn, 0 between launches;
     * [1 + i]: 1 if c has the sums of the tile that share i hands on. */
    unsigned *shares;
};

/* Returns the first place for a box in dynamic shared memory: at a multiple of 1024 bytes. */
__device__ inline uint16_t *first_box(uint4 *memory)
{
    return (uint16_t *)memory + (-gckpti_shared_address(memory) & 1023) / 2;
}

/* Shared memory: a ring of stages, each with a tile of a and one of b. */
template <int size, int a_along, int b_along> struct WgmmaStages {
    enum { COUNT = a_along ? 3 : size == 128 ? 6 : 8, TILE = size * BOX, BYTES = 4 * TILE };
    uint16_t *tiles;
    uint64_t *loaded; /* mbarriers of the stages */
    int now;          /* the stage that is multiplied next */
    uint32_t parity;  /* of the phase of its mbarrier */

    /* Loads a step (64 terms) of a tile into the stage that is `ahead` of the next one. */
    __device__ void load(const WgmmaProduct &q, const MmaCoords<size, 64> &at, int step,
                         int ahead) const
    {
        const int stage = now + ahead - (now + ahead < COUNT ? 0 : COUNT), term = step * BOX;
        uint16_t *to = tiles + stage * 2 * TILE;
        gckpti_mbarrier_expect(loaded + stage, BYTES);
        UNROLLED(x, size / BOX) {
            const int i = at.i0 + x * BOX, j = at.j0 + x * BOX;
            gckpti_tma_load(to + x * BOX_SIZE, q.a, a_along ? term : i, a_along ? i : term,
                            loaded + stage);
            gckpti_tma_load(to + TILE + x * BOX_SIZE, q.b, b_along ? term : j, b_along ? j : term,
                            loaded + stage);
        }
    }
    /* Waits for the stage and begins to add GROUPS groups of 16 of its terms to c. */
    template <int GROUPS>
    __device__ __forceinline__ void multiply(float (&c)[size / 64][size / 8][4], int first) const
    {
        const uint16_t *at = tiles + now * 2 * TILE;
        const uint64_t a = gckpti_wgmma_matrix<a_along>(at),
                       b = gckpti_wgmma_matrix<b_along>(at + TILE);
        gckpti_mbarrier_wait(loaded + now, parity);
        gckpti_wgmma_fence();
        UNROLLED(g, GROUPS) {
            UNROLLED(y, size / 64)
                gckpti_wgmma<a_along, b_along>(
                    c[y], a + (first + g) * gckpti_wgmma_16<a_along> + y * (BOX_SIZE * 2 >> 4),
                    b + (first + g) * gckpti_wgmma_16<b_along>);
        }
        gckpti_wgmma_commit();
    }
    __device__ void next()
    {
        now = now + 1 < COUNT ? now + 1 : 0;
        parity ^= now == 0;
    }
};

/* Adds the terms of steps first..end-1 of a tile to c. The first stages are loaded already. */
template <int size, int a_along, int b_along>
__device__ __forceinline__ void wgmma_terms(const WgmmaProduct &q, const MmaCoords<size, 64> &at,
                                            int first, int end,
                                            WgmmaStages<size, a_along, b_along> &stages,
                                            float (&c)[size / 64][size / 8][4])
{
    enum { AHEAD = WgmmaStages<size, a_along, b_along>::COUNT - 2 };
    const int whole = min(end, q.p.k / BOX), left = q.p.k - whole * BOX;
    if (first < whole) { /* one step before the loop, in which c belongs to wgmma */
        stages.template multiply<4>(c, 0);
        stages.next();
#pragma unroll 1
        for (int s = first + 1; s < whole; s++) {
            stages.template multiply<4>(c, 0);
            stages.next();
            gckpti_wgmma_wait<1>();
            __syncthreads(); /* nobody reads the stage of step s - 1 any more */
            if (threadIdx.x == 0 && s + 1 + AHEAD < end)
                stages.load(q, at, s + 1 + AHEAD, AHEAD);
        }
        gckpti_wgmma_wait<0>();
        UNROLLED(y, size / 64) gckpti_wgmma_settle(c[y]);
    }
    if (whole < end) {
#pragma unroll 1
        for (int g = 0; g * 16 < left; g++) {
            stages.template multiply<1>(c, g);
            gckpti_wgmma_wait<0>();
            UNROLLED(y, size / 64) gckpti_wgmma_settle(c[y]);
        }
        stages.next();
    }
    __syncthreads(); /* nor any other stage */
}

/* Draws the number of a share, once for each block. */
__device__ inline unsigned draw_share(unsigned *shares)
{
    const unsigned share = atomicAdd(shares, 1u);
    if (share + 1 == gridDim.x)
        *shares = 0;
    return share;
}

template <int size, int a_along, int b_along, Epilogue epilogue>
__global__ void __launch_bounds__(128, a_along ? 2 : 1)
    wgmma_product_kernel(const __grid_constant__ WgmmaProduct q)
{
#ifndef GCKPTI_NO_WGMMA
    typedef WgmmaStages<size, a_along, b_along> Stages;
    DYNAMIC_SHARED(uint4, product_tiles);
    SHARED(uint64_t, loaded, [Stages::COUNT]);
    SHARED(unsigned, drawn, [1]);
    uint16_t *tiles = first_box(product_tiles);
    Stages stages = { tiles, loaded, 0, 0 };
    if (threadIdx.x == 0) {
        for (int s = 0; s < Stages::COUNT; s++)
            gckpti_mbarrier_init(loaded + s, 1);
        gckpti_mbarrier_fence();
        drawn[0] = q.shares ? draw_share(q.shares) : blockIdx.x;
    }
    __syncthreads();
    const int steps = (q.p.k + BOX - 1) / BOX, share = (int)drawn[0];
    const int64_t all = (int64_t)tile_count(q.p, size) * steps;
    const int from = (int)(all * share / gridDim.x), to = (int)(all * (share + 1) / gridDim.x);
    for (int tile = (to - 1) / steps; (tile + 1) * steps > from; tile--) {
        const int first = max(from - tile * steps, 0), end = min(to - tile * steps, steps);
        const MmaCoords<size, 64> at(q.p, tile, (int)threadIdx.x);
        float c[size / 64][size / 8][4];
#pragma unroll 1
        for (int s = 0; s < Stages::COUNT && threadIdx.x == 0 && first + s < end; s++)
            stages.load(q, at, first + s, s);
        if (first > 0) {
            if (threadIdx.x == 0) {
                gckpti_acquire(q.shares + share);
                q.shares[share] = 0;
            }
            __syncthreads();
        }
        const bool whole = at.i0 + size <= q.p.m && at.j0 + size <= q.p.n;
        mma_start<64>(q.p, q.p.accumulate || first > 0, whole && q.p.aligned, at.i, at.j, c);
        wgmma_terms<size, a_along, b_along>(q, at, first, end, stages, c);
        mma_epilogue<size, true, epilogue>(q.p, c, tiles, tile);
        if (end < steps) {
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0)
                gckpti_release(q.shares + 1 + share);
        }
    }
#endif
}

/* Describes bf16 values for TMA, in boxes of 64 x 64: size[i] elements along axis i, of which the
 * first is contiguous; stride[i] elements, a multiple of 8, from index to index of axis i + 1. */
template <int RANK>
CUtensorMap tensor_map(const gckpt_call *call, const uint16_t *x, const int64_t (&size)[RANK],
                       const int64_t (&stride)[RANK - 1])
{
    CUtensorMap map;
    cuuint64_t sizes[RANK], strides[RANK];
    cuuint32_t box[RANK], steps[RANK];
    for (int i = 0; i < RANK; i++) {
        sizes[i] = (cuuint64_t)size[i], strides[i] = 2 * (cuuint64_t)stride[i < RANK - 1 ? i : 0];
        box[i] = i < 2 ? 64 : 1, steps[i] = 1;
    }
    Device *d = device_of(call);
    const CUresult result =
        d->encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, RANK, (void *)(uintptr_t)x, sizes,
                  strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    check(d, result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "a tensor map");
    return map;
}

/* Returns true if wgmma computes p. This must not depend on the number of tokens, as mma.sync may
 * round otherwise. */
bool takes_wgmma(const gckpt_call *call, const MmaProduct &p)
{
    return device_of(call)->wgmma && p.a.aligned && p.b.aligned;
}

/* Runs a product; at most `sms` blocks share the terms of a weight gradient. */
template <int size, int a_along, int b_along, Epilogue epilogue>
void wgmma_product(const gckpt_call *call, const MmaProduct &p, int sms)
{
    typedef WgmmaStages<size, a_along, b_along> Stages;
    const auto map = [&](const Matrix<uint16_t> &x, int64_t lines, bool along) {
        return tensor_map<2>(call, x.x, { along ? p.k : lines, along ? lines : p.k }, { x.stride });
    };
    const int tiles = tile_count(p, size);
    const bool share = !a_along && p.c.f32 && tiles > sms;
    const WgmmaProduct q = { map(p.a, p.m, a_along), map(p.b, p.n, b_along), p,
                             share ? device_of(call)->shares : NULL };
    run<wgmma_product_kernel<size, a_along, b_along, epilogue>>(
        call, dim3((unsigned)(share ? sms : tiles)), 128, Stages::COUNT * Stages::BYTES + 1024, q);
}
