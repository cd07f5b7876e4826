/* ---- >>fast ----------------------------------------------------------------------------------
 * Kernels of GCKPT_BF16_FAST (gradckpt.h, manual, 5m), for sm_80 and newer; -arch names one of
 * these. Products use only the instruction mma.m16n8k16 or, with sm_90a, wgmma.m64nNk16: bf16
 * operands, binary32 sums. Sums over tokens are computed in groups of TOKENS, one group after the
 * other, starting at the accumulator. So the bits do not depend on tiles, nor on where a batch is
 * divided between groups. */
namespace fast
{
enum { TOKENS = 16 };

#ifdef GCKPT_CUDA_SHIM
#define APPROXIMATE(name, instruction, value)                                                      \
    __device__ inline float name(float x) { return value; }
#else
#define APPROXIMATE(name, instruction, value)                                                      \
    __device__ inline float name(float x)                                                          \
    {                                                                                              \
        float y;                                                                                   \
        asm(instruction ".approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));                             \
        return y;                                                                                  \
    }
#endif
APPROXIMATE(exp2_of, "ex2", exp2f(x)) /* exponentials use base 2 */
APPROXIMATE(inverse_of, "rcp", 1.0f / x)
#undef APPROXIMATE

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* gelu: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), 2 u = x (C1 + C3 x^2). This takes a sixth of the
 * exact kernel's instructions. unary_by passes attributes, of which gelu has none. */
#define C1 1.59576912f   /* 2 sqrt(2/pi) */
#define C3 0.0713548163f /* 0.044715 C1 */
__device__ inline float gelu_gate(float x)
{
    return inverse_of(1.0f + exp2_of(x * gckpti_fma(x * x, -C3 * LOG2E, -C1 * LOG2E)));
}
__device__ inline float gelu_of(float x, const float * = NULL) { return x * gelu_gate(x); }
__device__ inline float gelu_deriv_of(float x, const float * = NULL)
{
    float y = gelu_gate(x);
    return gckpti_fma(x * y * (1.0f - y), gckpti_fma(x * x, 3.0f * C3, C1), y);
}
#undef C1
#undef C3

/* Allocates a kernel's operands in the workspace, in the same order for planning and running. */
struct Workspace {
    char *at; /* NULL when planning */
    size_t used;
};

void *bump_alloc(Workspace &workspace, size_t bytes)
{
    void *block = workspace.at ? workspace.at + workspace.used : NULL;
    workspace.used += (bytes + 255) / 256 * 256;
    return block;
}

/* Returns x as bf16: in place, or a copy. Each op that multiplies by binary32 weights converts
 * them: 6 bytes moved per element, once for thousands of tokens; copies refreshed by updates would
 * need memory in addition to the plan's. */
const uint16_t *operand(const gckpt_call *call, Workspace &workspace, Values x, int64_t n)
{
    if (x.bf16)
        return x.bf16;
    uint16_t *copy = (uint16_t *)bump_alloc(workspace, (size_t)n * sizeof *copy);
    if (copy)
        narrow(call, x.f32, copy, n);
    return copy;
}

/* Computes delta = dot(g, out) over a head's d columns; a thread has a head of a query. */
__global__ void fast_delta_kernel(Values g, Values out, float *delta, int64_t n, int64_t t,
                                  int heads, int d, bool aligned)
{
    for (EACH(i, n)) {
        const int64_t row = i / heads;
        float sum = 0.0f, x[8], y[8];
#pragma unroll 4
        for (int e = 0; e < d; e += 8) {
            read_vec<8>(g, i * d + e, d - e, aligned, x);
            read_vec<8>(out, i * d + e, d - e, aligned, y);
            UNROLLED(k, 8)
                sum = gckpti_fma(x[k], y[k], sum);
        }
        delta[(row / t * heads + i % heads) * t + row % t] = sum;
    }
}
