/* Functions for instructions that CUDA C lacks. tests/cuda/cuda_shim.h defines most of them for the
 * processor and describes them fully. */
#ifndef GCKPT_CUDA_SHIM
/* cp.async: copies 16 bytes from global to shared memory, without registers. */
__device__ __forceinline__ void gckpti_cp_async16_full(void *to, const void *from)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
/* cp.async: copies the first `valid` of 16 bytes and sets the rest of the 16 to 0. */
__device__ __forceinline__ void gckpti_cp_async16(void *to, const void *from, int valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid)
                 : "memory");
}
/* Ends a group of cp.async copies. */
__device__ __forceinline__ void gckpti_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until all groups of copies except the last N are complete. */
template <int N> __device__ __forceinline__ void gckpti_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Computes d (16,8) += a (16,16) b (16,8) by a warp, whose threads share the matrices' elements. */
__device__ __forceinline__ void gckpti_mma_bf16(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Load four 8 x 8 matrices of bf16; lane l passes the address of row l % 8 of matrix l / 8. */
#define LDMATRIX(name, trans)                                                                      \
    __device__ __forceinline__ void name(uint32_t r[4], const void *row)                           \
    {                                                                                              \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0,%1,%2,%3}, [%4];"      \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                              \
                     : "r"((uint32_t)__cvta_generic_to_shared(row))                                \
                     : "memory");                                                                  \
    }
LDMATRIX(gckpti_ldmatrix_x4, "")
LDMATRIX(gckpti_ldmatrix_x4_trans, ".trans")
#undef LDMATRIX
/* gckpti_thread_index and gckpti_block_index read the registers again, so that values computed from
 * them are computed again after a long loop and occupy no registers during it. */
__device__ __forceinline__ int gckpti_thread_index(void)
{
    int i;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
    return i;
}
__device__ __forceinline__ int gckpti_block_index(void)
{
    int i;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(i));
    return i;
}
/* Packs two floats as bf16, the first in the lower half. NaNs differ from gckpti_to_bf16's. */
__device__ __forceinline__ uint32_t gckpti_to_bf16_pair(float first, float second)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    y = gckpti_bits(first) & 0x7f800000u ? y : y & 0xffff8000u; /* subnormals become zeros */
    return gckpti_bits(second) & 0x7f800000u ? y : y & 0x8000ffffu;
}
#define UNROLL _Pragma("unroll")
#else
uint32_t gckpti_to_bf16_pair(float first, float second)
{
    return gckpti_to_bf16(first) | (uint32_t)gckpti_to_bf16(second) << 16;
}
int gckpti_thread_index(void) { return (int)threadIdx.x; }
int gckpti_block_index(void) { return (int)blockIdx.x; }
#define UNROLL
void gckpti_cp_async16_full(void *to, const void *from) { gckpti_cp_async16(to, from, 16); }
#endif
#define UNROLLED(i, n) UNROLL for (int i = 0; i < (n); i++)
