/* ---- a warp as an instruction set ---- gradckpt.h's loops over a row once more, as functions of a
 * warp, gckpti_.._warp (num/isa.h). Lane i % 32 has element i of a row; no other lane reads or
 * writes it. Functions return the same sums and maxima (manual, 5d) in all lanes. */
__device__ inline int lane_index(void) { return (int)threadIdx.x % 32; }

__device__ inline float gckpti_load_n_warp(const float *x, int64_t n)
{
    return lane_index() < n ? x[lane_index()] : 0.0f;
}
__device__ inline void gckpti_store_n_warp(float *x, float a, int64_t n)
{
    if (lane_index() < n)
        x[lane_index()] = a;
}
__device__ inline float gckpti_blend_n_warp(int64_t n, float a, float b)
{
    return lane_index() < n ? a : b;
}
__device__ inline float gckpti_lanes_sum_warp(const float *lane)
{
    return warp_sum(lane[lane_index()]);
}
__device__ inline float gckpti_fold_sum_warp(float lane) { return warp_sum(lane); }
__device__ inline float gckpti_fold_max_warp(float lane)
{
    for (int h = 16; h; h /= 2) { /* of +0 and -0, the first lane's */
        const float other = __shfl_down_sync(0xffffffffu, lane, h);
        lane = other > lane ? other : lane;
    }
    return __shfl_sync(0xffffffffu, lane, 0);
}
__device__ inline float gckpti_fma_warp(float a, float b, float c) { return gckpti_fma(a, b, c); }
__device__ inline float gckpti_sqrt_warp(float a) { return gckpti_sqrt(a); }
__device__ inline uint32_t gckpti_bits_warp(float a) { return gckpti_bits(a); }
__device__ inline void gckpti_sum_add_warp(float *sum, float *comp, float x)
{
    gckpti_sum_add(sum, comp, x);
}

#undef GCKPTI_DEVICE
#define GCKPTI_DEVICE    __device__
#define gckpti_lanes_sum gckpti_lanes_sum_warp
#define GCKPTI_ISA       (-2)
#include "gradckpt.h"
#undef GCKPTI_ISA
#undef gckpti_lanes_sum
#undef GCKPTI_DEVICE
#define GCKPTI_DEVICE __host__ __device__

/* Runs an op whose rows are those of its result: ROW(call, r) by a warp for each row. Each block
 * has the call, whose attributes are in host memory, in shared memory. */
template <auto ROW, class O>
__global__ void row_kernel(const __grid_constant__ gckpt_call of,
                           const __grid_constant__ O attributes, int64_t rows)
{
    SHARED(gckpt_call, call, [1]);
    if (threadIdx.x == 0)
        call[0] = of, call[0].attributes = &attributes;
    __syncthreads();
    for (EACH(i, 32 * rows))
        ROW(call, i / 32);
}
template <auto FORWARD, auto BACKWARD, class O = int>
void rows_by(const gckpt_call *call, bool backward, const O &attributes = {})
{
    const int64_t rows = gckpti_rows(&call->shape);
    if (!backward)
        run_each<row_kernel<FORWARD, O>>(call, 32 * rows, *call, attributes, rows);
    else if (call->in[0].grad)
        run_each<row_kernel<BACKWARD, O>>(call, 32 * rows, *call, attributes, rows);
}
