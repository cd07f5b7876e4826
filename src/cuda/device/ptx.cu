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
/* Packs two floats as bf16, the first in the lower half. Keeps subnormals. NaNs differ from
 * gckpti_to_bf16's. */
__device__ __forceinline__ uint32_t bf16_pair(float first, float second)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}
#define UNROLL _Pragma("unroll")
__device__ __forceinline__ uint32_t gckpti_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* ---- sm_90a: mbarriers, loads of boxes by TMA, wgmma ---- A phase of an mbarrier is complete when
 * all its arrivals and all expected bytes are there. */
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GCKPTI_NO_WGMMA /* kernels with wgmma are empty */
#endif
__device__ __forceinline__ bool gckpti_has_wgmma(void)
{
#ifdef GCKPTI_NO_WGMMA
    return false;
#else
    return true;
#endif
}
__device__ __forceinline__ void gckpti_mbarrier_init(uint64_t *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gckpti_shared_address(bar)),
                 "r"(arrivals)
                 : "memory");
}
/* Makes initialised mbarriers visible to TMA. */
__device__ __forceinline__ void gckpti_mbarrier_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
}
/* Arrives, and adds bytes that the phase expects. */
__device__ __forceinline__ void gckpti_mbarrier_expect(uint64_t *bar, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gckpti_shared_address(bar)),
        "r"(bytes)
        : "memory");
}
/* Waits until the phase of this parity is complete; of a new mbarrier, the phase of parity 1 is. */
__device__ __forceinline__ void gckpti_mbarrier_wait(uint64_t *bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred complete;\nwaits:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
                 "@!complete bra waits;\n}" ::"r"(gckpti_shared_address(bar)),
                 "r"(parity)
                 : "memory");
}
/* Loads a box of a tensor, from element x of line y on (of plane z, of volume w), as zeros where it
 * is outside of the tensor. */
#define TMA_LOAD(rank, coordinates, ...)                                                           \
    asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx"      \
                 "::bytes [%0], [%1, {" coordinates "}], [%2];" ::"r"(gckpti_shared_address(to)),  \
                 "l"(&map), "r"(gckpti_shared_address(bar)), __VA_ARGS__                           \
                 : "memory")
__device__ __forceinline__ void gckpti_tma_load(void *to, const CUtensorMap &map, int x, int y,
                                                uint64_t *bar)
{
    TMA_LOAD("2d", "%3, %4", "r"(x), "r"(y));
}
__device__ __forceinline__ void gckpti_tma_load(void *to, const CUtensorMap &map, int x, int y,
                                                int z, int w, uint64_t *bar)
{
    TMA_LOAD("4d", "%3, %4, %5, %6", "r"(x), "r"(y), "r"(z), "r"(w));
}
#undef TMA_LOAD
/* Between other uses of the registers of c or a, and a wgmma. */
__device__ __forceinline__ void gckpti_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void gckpti_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until all groups of wgmma except the last N are complete. */
template <int N> __device__ __forceinline__ void gckpti_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Keeps the compiler from reading c before the wait. */
template <int N> __device__ __forceinline__ void gckpti_wgmma_settle(float (&c)[N][4])
{
    UNROLL for (int i = 0; i < 4 * N; i++) asm volatile("" : "+f"(c[i / 4][i % 4])::"memory");
}
#define C4(x)  "+f"(c[x][0]), "+f"(c[x][1]), "+f"(c[x][2]), "+f"(c[x][3])
#define C32(x) C4(x), C4(x + 1), C4(x + 2), C4(x + 3), C4(x + 4), C4(x + 5), C4(x + 6), C4(x + 7)
#define R32                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define R64                                                                                        \
    R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"    \
        "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA(n, registers, operands, ...)                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" registers             \
                 "}, " operands ";"                                                                \
                 : __VA_ARGS__)
/* Computes c (64, 8 N) += a (64,16) b (16, 8 N) by a warpgroup, from descriptors. Warp w has rows
 * 16 w to 16 w + 15; c[x] is as mma.sync leaves columns 8 x to 8 x + 7. A_ALONG, B_ALONG: lines of
 * the operand are along k. Without ADD, c = a b. */
template <bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void gckpti_wgmma(float (&c)[16][4], uint64_t a, uint64_t b)
{
    WGMMA("128", R64, "%64, %65, 1, 1, 1, %66, %67", C32(0), C32(8)
          : "l"(a), "l"(b), "n"(!A_ALONG), "n"(!B_ALONG));
}
template <bool A_ALONG, bool B_ALONG, bool ADD = true>
__device__ __forceinline__ void gckpti_wgmma(float (&c)[8][4], uint64_t a, uint64_t b)
{
    WGMMA("64", R32, "%32, %33, %36, 1, 1, %34, %35", C32(0)
          : "l"(a), "l"(b), "n"(!A_ALONG), "n"(!B_ALONG), "n"((int)ADD));
}
/* The same with a in registers, as mma.sync has it. */
template <bool B_ALONG>
__device__ __forceinline__ void gckpti_wgmma_registers(float (&c)[16][4], const uint32_t a[4],
                                                       uint64_t b)
{
    WGMMA("128", R64, "{%64,%65,%66,%67}, %68, 1, 1, 1, %69", C32(0), C32(8)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(!B_ALONG));
}
template <bool B_ALONG>
__device__ __forceinline__ void gckpti_wgmma_registers(float (&c)[8][4], const uint32_t a[4],
                                                       uint64_t b)
{
    WGMMA("64", R32, "{%32,%33,%34,%35}, %36, 1, 1, 1, %37", C32(0)
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(!B_ALONG));
}
#undef WGMMA
#undef R64
#undef R32
#undef C32
#undef C4
/* What a thread stored before gckpti_release, another block reads after gckpti_acquire, which waits
 * until the flag is 1. */
__device__ __forceinline__ void gckpti_release(unsigned *flag)
{
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
__device__ __forceinline__ void gckpti_acquire(const unsigned *flag)
{
    unsigned set = 0;
    while (!set)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(set) : "l"(flag) : "memory");
}
#else
uint32_t bf16_pair(float first, float second)
{
    return gckpti_to_bf16(first) | (uint32_t)gckpti_to_bf16(second) << 16;
}
int gckpti_thread_index(void) { return (int)threadIdx.x; }
int gckpti_block_index(void) { return (int)blockIdx.x; }
#define UNROLL
void gckpti_cp_async16_full(void *to, const void *from) { gckpti_cp_async16(to, from, 16); }
#endif
/* Packs two floats as bf16, the first in the lower half; subnormals become zeros. */
__device__ __forceinline__ uint32_t gckpti_to_bf16_pair(float first, float second)
{
    const uint32_t y = bf16_pair(first, second),
                   low = gckpti_bits(first) & 0x7f800000u ? y : y & 0xffff8000u;
    return gckpti_bits(second) & 0x7f800000u ? low : low & 0x8000ffffu;
}
/* Describes an operand of wgmma in shared memory: boxes of 64 lines of 64 bf16 that TMA loaded,
 * each at a multiple of 1024. ALONG: a line is along k, 8 lines further is 1024 bytes further, and
 * the boxes of rows follow each other. Else a line is a term of 64 rows, 8 terms are 1024 bytes,
 * and the next 64 rows are a box further. gckpti_wgmma_16 moves a descriptor 16 terms further. */
template <bool ALONG> __device__ inline uint64_t gckpti_wgmma_matrix(const void *boxes)
{
    const uint64_t stride = 1024 >> 4, box = ALONG ? 1 : 64 * 128 >> 4, swizzle_128 = 1;
    return swizzle_128 << 62 | stride << 32 | box << 16 | gckpti_shared_address(boxes) >> 4;
}
template <bool ALONG> constexpr uint64_t gckpti_wgmma_16 = (ALONG ? 16 * 2 : 16 * 128) >> 4;
#define UNROLLED(i, n) UNROLL for (int i = 0; i < (n); i++)
