/* ---- >>fast ----------------------------------------------------------------------------------
 * Kernels of GCKPT_BF16_FAST (gradckpt.h, manual, 5m), for sm_80 and newer; -arch names one of
 * them. Products go through the one instruction mma.m16n8k16: bf16 factors, binary32 sums. What is
 * summed over tokens is summed in groups of TOKENS, one group after the other from what the
 * accumulator holds: so the bits are the same wherever a batch is cut between groups, and for any
 * tile. */
namespace fast
{
enum { TOKENS = 16 };

#ifndef GCKPT_CUDA_SHIM /* tests/cuda/cuda_shim.h says in full what these four do */
/* d (16,8) += a (16,16) b (16,8), by a warp. */
__device__ inline void gckpti_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 matrices; lane l brings the address of row l % 8 of matrix l / 8. */
__device__ inline void gckpti_ldmatrix_x4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void gckpti_ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* 16 bytes, of which those from `valid` on become 0. */
__device__ inline void gckpti_cp_async16(void *to, const void *from, int valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(valid)
                 : "memory");
}
#endif

/* Values, or where results go, as the plan keeps them: one of the two, or none. */
struct Values {
    const float *wide;
    const uint16_t *narrow;
};
struct Results {
    float *wide;
    uint16_t *narrow;
};

__device__ inline float get(const Values &x, int64_t i)
{
    return x.narrow ? gckpti_from_bf16(x.narrow[i]) : x.wide ? x.wide[i] : 0.0f;
}

__device__ inline float held(const Results &y, int64_t i)
{
    return y.narrow ? gckpti_from_bf16(y.narrow[i]) : y.wide[i];
}

__device__ inline void put(const Results &y, int64_t i, float v)
{
    if (y.narrow)
        y.narrow[i] = gckpti_to_bf16(v);
    else
        y.wide[i] = v;
}

/* Two elements as a word, the first one in the lower half. */
__device__ inline uint32_t pair(float first, float second)
{
    return gckpti_to_bf16(first) | (uint32_t)gckpti_to_bf16(second) << 16;
}

Values value_of(const gckpt_arg &arg) { return { arg.data, arg.bf16 }; }
Results grad_of(const gckpt_arg &arg) { return { arg.grad, arg.grad_bf16 }; }
bool wanted(const gckpt_arg &arg) { return arg.grad || arg.grad_bf16; }
Values grad_out_of(const gckpt_call *call) { return { call->grad_out, call->grad_out_bf16 }; }

/* 2^x; exponents are taken to base 2. */
__device__ inline float exp2_of(float x)
{
#ifdef GCKPT_CUDA_SHIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* pair, subnormals left as they are: for factors that go straight into an mma. */
__device__ inline uint32_t factors(float first, float second)
{
#ifdef GCKPT_CUDA_SHIM
    return pair(first, second);
#else
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
#endif
}

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* What a kernel's factors take of the workspace, piece by piece: the same when planning and when
 * running. */
struct Room {
    char *at; /* planning: NULL */
    size_t used;
};

void *take(Room &room, size_t bytes)
{
    void *piece = room.at ? room.at + room.used : NULL;
    room.used += (bytes + 255) / 256 * 256;
    return piece;
}

__global__ void narrow_kernel(const float *x, uint16_t *y, int64_t n)
{
    for (EACH(i, n))
        y[i] = gckpti_to_bf16(x[i]);
}

void narrow(const gckpt_call *call, const float *x, uint16_t *y, int64_t n)
{
    RUN(call, narrow_kernel, blocks_for(n, 256), 256, 0, x, y, n);
}

/* x as bf16: as it is, or a copy. Weights are binary32 and are converted by each instruction that
 * multiplies by them: 6 bytes moved an element, once for thousands of tokens, where copies that the
 * update refreshes would be memory of their own, beside the plan's. */
const uint16_t *factor(const gckpt_call *call, Room &room, Values x, int64_t n)
{
    if (x.narrow)
        return x.narrow;
    uint16_t *copy = (uint16_t *)take(room, (size_t)n * sizeof *copy);
    if (copy)
        narrow(call, x.wide, copy, n);
    return copy;
}
