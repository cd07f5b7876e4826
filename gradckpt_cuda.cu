/* gradckpt_cuda.cu - a CUDA device as a backend of gradckpt.h.  MIT licence.
 *
 *     nvcc -O3 -std=c++17 -fmad=false -arch=sm_90 -c gradckpt_cuda.cu
 *
 * and link the object and the CUDA runtime (-lcudart) to the program; nothing else is needed. Then
 *
 *     const char *error;
 *     desc.backend = gckpt_cuda_backend(0, &error);      in gckpt_plan_desc and gckpt_exec_desc
 *
 * The plan is the same as on the processor but for workspace, and so are the bits: kernels follow
 * the numeric contract (gradckpt.h, manual, 5) step for step. This file takes formulas, attributes
 * and layouts from gradckpt.h itself, which it includes with its bodies: each stands in one place.
 * A product never feeds an addition unless by fma, and -fmad=false keeps the compiler from it.
 *
 * Contents (grep -n '>>[a-z]' gradckpt_cuda.cu):
 *     >>device      streams, memory, errors, launching
 *     >>between     fill, add, convert, update
 *     >>elementwise curves, scale, dropout, broadcasting
 *     >>shapes      permute, slice, concat, sum, mean, rotary
 *     >>products    matmul, linear, embed
 *     >>rows        softmax, norms, losses
 *     >>attention
 *     >>backend     which kernels there are; the table
 */
#ifdef GCKPT_CUDA_SHIM /* tests/cuda_shim.h, included before, runs kernels on the processor */
#define GCKPTI_TABLE static const
#else
#include <cuda_runtime.h>
#define LAUNCH(kernel, grid, block, shared, stream, ...) \
    kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define SHARED(type, name, dims)   __shared__ type name dims
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#pragma nv_diag_suppress 1675, 177
#define GCKPTI_DEVICE __host__ __device__
#define GCKPTI_FMA    3
#define GCKPTI_SQRT   3
#ifdef __CUDA_ARCH__
#define GCKPTI_TABLE static __device__ const
#else
#define GCKPTI_TABLE static const
#endif
#endif
#ifndef GCKPTI_DEVICE
#define GCKPTI_DEVICE
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#define GCKPT_STATIC
#define GCKPT_NO_FAST
#define GCKPT_NO_STDIO
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

namespace {

/* ---- >>device -------------------------------------------------------------------------------- */
enum { TEXT = 256 }; /* bytes of an error */

struct Device {
    int number;
    cudaStream_t stream; /* what is computed, in the order of calls */
    char problem[TEXT];
    gckpt_backend backend;
};

Device *device_of(const gckpt_call *call) { return (Device *)call->backend; }

/* The first error stays. */
void check(Device *d, cudaError_t error, const char *what)
{
    if (error != cudaSuccess && !d->problem[0])
        snprintf(d->problem, sizeof d->problem, "CUDA device %d: %s: %s", d->number, what,
                 cudaGetErrorString(error));
}

/* Blocks of `threads` for n items, at most so many that each processor of a large chip has 16. */
dim3 blocks_for(int64_t n, int threads)
{
    int64_t blocks = (n + threads - 1) / threads;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks < 2112 ? blocks : 2112));
}

/* for (EACH(i, n)): all threads of the grid share the n items. */
#define EACH(i, n)                                                                                 \
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                           \
    i += (int64_t)gridDim.x * blockDim.x

#define RUN(call, kernel, grid, block, shared, ...)                                                \
    do {                                                                                           \
        LAUNCH(kernel, grid, block, shared, device_of(call)->stream, __VA_ARGS__);                 \
        check(device_of(call), cudaGetLastError(), #kernel);                                       \
    } while (0)

void *get(void *context, size_t bytes, size_t alignment)
{
    Device *d = (Device *)context;
    void *p = NULL;
    (void)alignment; /* 256 bytes at least */
    cudaSetDevice(d->number);
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return p;
}

void release(void *context, void *memory, size_t bytes)
{
    Device *d = (Device *)context;
    (void)bytes;
    cudaSetDevice(d->number);
    check(d, cudaStreamSynchronize(d->stream), "waiting");
    check(d, cudaFree(memory), "cudaFree");
}

void copy_in(void *context, void *to, const void *host, size_t bytes)
{
    Device *d = (Device *)context;
    check(d, cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, d->stream), "copy in");
    check(d, cudaStreamSynchronize(d->stream), "copy in");
}

void copy_out(void *context, void *host, const void *from, size_t bytes)
{
    Device *d = (Device *)context;
    check(d, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, d->stream), "copy out");
    check(d, cudaStreamSynchronize(d->stream), "copy out");
}

void copy(void *context, void *to, const void *from, size_t bytes)
{
    Device *d = (Device *)context;
    check(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream), "copy");
}

const char *finish(void *context)
{
    Device *d = (Device *)context;
    check(d, cudaStreamSynchronize(d->stream), "a step");
    return d->problem[0] ? d->problem : NULL;
}

/* ---- >>between ------------------------------------------------------------------------------- */
__global__ void fill_kernel(uint32_t *to, uint32_t word, int64_t n)
{
    for (EACH(i, n))
        to[i] = word;
}

void fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    if (n > 0)
        RUN(call, fill_kernel, blocks_for(n, 256), 256, 0, (uint32_t *)to, word, n);
}

__global__ void add_kernel(float *to, const float *from, int64_t n)
{
    for (EACH(i, n))
        to[i] += from[i];
}

void add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    if (n > 0)
        RUN(call, add_kernel, blocks_for(n, 256), 256, 0, to, from, n);
}

__global__ void convert_kernel(gckpt_conversion c, int64_t row, int64_t rows, uint64_t seed,
                               uint64_t step, int by_chance)
{
    for (EACH(i, c.n)) {
        if (c.kind == GCKPT_WIDEN || c.kind == GCKPT_WIDEN_ADD) {
            float wide = gckpti_from_bf16(c.from[i]);
            c.x[i] = c.kind == GCKPT_WIDEN ? wide : wide + c.x[i];
            continue;
        }
        uint16_t half = gckpti_to_bf16(c.x[i]);
        if (by_chance) {
            uint64_t at = (uint64_t)(i + (row ? row * (c.n / rows) : 0));
            uint32_t word[4];
            gckpti_philox(seed, at / 8, c.stream, (uint32_t)step, word);
            half = gckpti_halve(gckpti_bits(c.x[i]), word[at / 2 % 4] >> 16 * (at % 2) & 0xffffu);
        }
        if (c.kind == GCKPT_NARROW)
            c.to[i] = half;
        else
            c.x[i] = gckpti_from_bf16(half);
    }
}

void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    if (c->n > 0)
        RUN(call, convert_kernel, blocks_for(c->n, 256), 256, 0, *c, call->row, call->rows,
            call->seed, call->step, call->precision == GCKPT_BF16_STOCHASTIC);
}

struct More { /* further accumulators of a pass */
    size_t at[8];
};

/* Adds accumulators first..first+n-1 to the first. */
__global__ void accumulate_kernel(float *gradient, const char *base, More more, int n,
                                  int64_t elements)
{
    for (EACH(i, elements)) {
        float g = gradient[i];
        for (int u = 0; u < n; u++)
            g += ((const float *)(base + more.at[u]))[i];
        gradient[i] = g;
    }
}

__global__ void divide_kernel(float *gradient, float count, int64_t elements)
{
    for (EACH(i, elements))
        gradient[i] /= count;
}

/* A warp takes a block of GCKPT_UPDATE_BLOCK elements; its lanes are those of the contract (5d). */
__global__ void squares_kernel(const float *g, float *squares, int64_t elements)
{
    int64_t b = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int64_t at = b * GCKPT_UPDATE_BLOCK, end = at + GCKPT_UPDATE_BLOCK;
    float sum = 0.0f;
    end = end < elements ? end : elements;
    for (int64_t i = at + threadIdx.x % 32; i < end; i += 32)
        sum = gckpti_fma(g[i], g[i], sum);
    for (int half = 16; half; half /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, half);
    if (threadIdx.x % 32 == 0 && at < elements)
        squares[b] = sum;
}

__global__ void update_kernel(gckpt_pass p)
{
    const gckpt_rates a = p.rates;
    for (EACH(i, p.elements)) {
        float w = p.values[i], g = p.gradient[i] * a.scale;
        if (p.optimiser == GCKPT_ADAMW) {
            float m = gckpti_fma(a.beta1, p.state[0][i], a.rest1 * g);
            float v = gckpti_fma(a.beta2, p.state[1][i], a.rest2 * (g * g));
            float step = m / (gckpti_sqrt(v * a.correct2) + a.eps);
            p.state[0][i] = m;
            p.state[1][i] = v;
            p.values[i] = gckpti_fma(-a.rate, step, gckpti_fma(-a.decay, w, w));
        } else {
            if (p.optimiser == GCKPT_MOMENTUM)
                p.state[0][i] = g = gckpti_fma(p.momentum, p.state[0][i], g);
            p.values[i] = gckpti_fma(-a.rate, g, gckpti_fma(-a.decay, w, w));
        }
    }
}

void update(const gckpt_call *call, const gckpt_pass *p)
{
    dim3 grid = blocks_for(p->elements, 256);
    for (int first = 0; first < p->adds; first += 8) {
        More more;
        int n = p->adds - first < 8 ? p->adds - first : 8;
        memcpy(more.at, p->more + first, (size_t)n * sizeof *more.at);
        RUN(call, accumulate_kernel, grid, 256, 0, p->gradient, (const char *)p->base, more, n,
            p->elements);
    }
    if (p->count > 0)
        RUN(call, divide_kernel, grid, 256, 0, p->gradient, p->count, p->elements);
    int64_t blocks = (p->elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
    if (p->squares)
        RUN(call, squares_kernel, dim3((unsigned)((blocks + 7) / 8)), 256, 0, p->gradient,
            p->squares, p->elements);
    if (p->update)
        RUN(call, update_kernel, grid, 256, 0, *p);
}

/* ---- >>elementwise --------------------------------------------------------------------------- */
/* y = f(x), and dx = g slope, for f and slope of gradckpt.h; `at`: x, or y where the slope needs
 * it. An element is one thread's, so that bytes may coincide. */
#define CURVE(name, needs)                                                                         \
    __global__ void name##_forward_kernel(const float *x, float *y, int64_t n)                     \
    {                                                                                              \
        for (EACH(i, n))                                                                           \
            y[i] = gckpti_##name(x[i]);                                                            \
    }                                                                                              \
    __global__ void name##_backward_kernel(const float *at, const float *g, float *d, int64_t n,   \
                                           int accumulate)                                         \
    {                                                                                              \
        for (EACH(i, n))                                                                           \
            gckpti_put_product(&d[i], g[i], gckpti_##name##_slope(at[i]), accumulate);             \
    }                                                                                              \
    void name##_forward(const gckpt_call *call)                                                    \
    {                                                                                              \
        int64_t n = gckpti_elements(&call->shape);                                                 \
        RUN(call, name##_forward_kernel, blocks_for(n, 256), 256, 0, call->in[0].data, call->out,  \
            n);                                                                                    \
    }                                                                                              \
    void name##_backward(const gckpt_call *call)                                                   \
    {                                                                                              \
        int64_t n = gckpti_elements(&call->shape);                                                 \
        const float *at = (needs) & GCKPT_OUT ? call->out : call->in[0].data;                      \
        RUN(call, name##_backward_kernel, blocks_for(n, 256), 256, 0, at, call->grad_out,          \
            call->in[0].grad, n, call->in[0].accumulate);                                          \
    }
CURVE(gelu, GCKPT_IN(0))
CURVE(gelu_erf, GCKPT_IN(0))
CURVE(silu, GCKPT_IN(0))
CURVE(tanh, GCKPT_OUT)
CURVE(sigmoid, GCKPT_OUT)
#undef CURVE

/* ---- >>shapes -------------------------------------------------------------------------------- */

/* ---- >>products ------------------------------------------------------------------------------
 * C (m,n) = A (m,k) B (k,n) of gckpti_factors: gckpti_fp32_plain and gckpti_mixed_plain for a
 * device, so that all ops that are made of products take them from there, by name `products`.
 *
 * A block computes a tile of C, a thread TM x TN elements of it: each one chain over k, in one
 * register, from its start to its end. Tiles go over rows and columns, never over k (manual, 5c).
 * A and B come through shared memory, DEPTH links at a time, STAGES of these in a ring: while one
 * is worked on, the others are on their way.
 *
 * What an H200 (132 processors of 4 x 32 lanes) should do with it; reasoned, not confirmed on a
 * device. A link of a warp is TM TN fma and TM/4 + TN/4 loads of 16 bytes a lane, in as many issue
 * slots; 8 x 8: 64 fma, 4 loads, and about 1 for all else: 92 % of the slots are fma. Lanes lie
 * in Z-order, 4 x 8 of them, so that neighbours (i, i^1) share rows and (i, i^2) columns: a load is
 * 2 passes over shared memory instead of 4, a link of 4 warps is 32 passes in 69 cycles. Lines are
 * WIDE + 4 floats long: 4 lines further is 16 banks further, so that what lies along k in memory is
 * written across without conflicts, too. 128 x 128 elements need 8 floats from L2 for 128 fma (a
 * cycle), 64 x 64 need 16: L2 gives some 24. 128 registers: two blocks of 256 on a processor. */
enum { DEPTH = 8, STAGES = 4 };

#ifndef GCKPT_CUDA_SHIM
/* cp.async: 16 bytes to shared memory past the registers; what is beyond `valid` becomes 0. */
__device__ __forceinline__ void gckpti_cp_async16(void *to, const void *from, int valid)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(valid)
                 : "memory");
}
/* All 16: ten instructions fewer. */
__device__ __forceinline__ void gckpti_cp_async16(void *to, const void *from)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
/* What was asked for since the last one is a group. */
__device__ __forceinline__ void gckpti_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until all but the last N groups are there. */
template <int N> __device__ __forceinline__ void gckpti_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* threadIdx.x and blockIdx.x, read again: what follows from them is then computed again after a long
 * loop, instead of being kept in registers throughout. */
__device__ __forceinline__ int gckpti_thread_again(void)
{
    int i;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
    return i;
}
__device__ __forceinline__ int gckpti_block_again(void)
{
    int i;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(i));
    return i;
}
#define UNROLL _Pragma("unroll")
#else
int gckpti_thread_again(void) { return (int)threadIdx.x; }
int gckpti_block_again(void) { return (int)blockIdx.x; }
#define UNROLL
#define __grid_constant__
void gckpti_cp_async16(void *to, const void *from) { gckpti_cp_async16(to, from, 16); }
#endif

/* How chunks of 4 elements of a factor are read. */
enum {
    ALONG = 1,  /* they lie along k, else along rows of C (columns for B) */
    WIDE = 2,   /* one load reads them */
    NARROW = 4, /* they are bf16 */
    ASYNC = 8   /* by cp.async */
};

/* A factor as a kernel reads it, from constant memory; in bytes. */
struct Factor {
    const char *base;
    int64_t row, step, matrix; /* to the next */
    int64_t element, panel;    /* to the next one of a chunk; DEPTH links on */
    int way;
};

struct Product {
    gckpti_factors t;
    Factor a, b;
    int wide; /* rows of c may be written 16 bytes at a time */
};

/* all: rows of C for A, columns for B. */
Factor factor_of(const gckpti_factor *x, int64_t all, int64_t k, int mixed)
{
    int64_t size = x->bf16 ? 2 : 4, along = x->step < x->row, unit = along ? x->step : x->row;
    int64_t pitch = along ? x->row : x->step, count = along ? k : all;
    const char *base = x->bf16 ? (const char *)x->bf16 : (const char *)x->f32;
    int way = (along ? ALONG : 0) | (x->bf16 ? NARROW : 0);
    if (!mixed && unit == 1 && count % 4 == 0 && pitch % 4 == 0 && x->next % 4 == 0 &&
        (uintptr_t)base % 16 == 0)
        way |= WIDE | (along ? 0 : ASYNC);
    Factor f = { base, x->row * size, x->step * size, x->next * size, 0, DEPTH * x->step * size, way };
    f.element = unit * size;
    return f;
}

/* One factor's part of a stage: DEPTH lines of WIDTH elements, of which a thread reads CHUNKS. */
template <int WIDTH, int THREADS, bool BY_ASYNC, bool MIXED> struct Panel {
    enum {
        LINE = WIDTH + 4,
        ALL = WIDTH * DEPTH / 4,
        CHUNKS = (ALL + THREADS - 1) / THREADS,
        FLOATS = DEPTH * LINE
    };
    const char *from[CHUNKS];
    int valid[CHUNKS]; /* elements that the factor has there: for loads one by one */
    float4 held[CHUNKS];

    /* Where chunk i of this thread is: its first link, and row (column for B). */
    static __device__ __forceinline__ int link_of(int i, bool along)
    {
        int c = (int)threadIdx.x + i * THREADS;
        return along ? c % (DEPTH / 4) * 4 : c / (WIDTH / 4);
    }
    static __device__ __forceinline__ int row_of(int i, bool along)
    {
        int c = (int)threadIdx.x + i * THREADS;
        return along ? c / (DEPTH / 4) : c % (WIDTH / 4) * 4;
    }
    static __device__ __forceinline__ bool is_there(int i)
    {
        return ALL % THREADS == 0 || (int)threadIdx.x + i * THREADS < ALL;
    }
    /* Begins at rows x0.. of `all`. Behind the last one the first is read: into elements of C that
     * are not written. */
    __device__ __forceinline__ void begin(const Factor &f, int64_t matrix, int64_t x0, int64_t all)
    {
        bool along = !BY_ASYNC && f.way & ALONG;
        UNROLL for (int i = 0; i < CHUNKS; i++)
        {
            int64_t x = x0 + row_of(i, along), left = is_there(i) ? all - x : 0;
            valid[i] = along || left <= 0 || left > 4 ? 4 : (int)left;
            x = left > 0 ? x : 0;
            from[i] = f.base + matrix * f.matrix + x * f.row + link_of(i, along) * f.step;
        }
    }
    static __device__ __forceinline__ float element(const Factor &f, const char *at)
    {
        if (!MIXED)
            return *(const float *)at;
        if (f.way & NARROW)
            return gckpti_flush(gckpti_from_bf16(*(const uint16_t *)at));
        return gckpti_from_bf16(gckpti_to_bf16(*(const float *)at));
    }
    /* Reads the next panel, of so many links: to where it belongs, or into registers. */
    __device__ __forceinline__ void fetch(const Factor &f, float *to, int links)
    {
        bool along = !BY_ASYNC && f.way & ALONG;
        UNROLL for (int i = 0; i < CHUNKS; i++)
        {
            int p = link_of(i, along);
            if (is_there(i) && p < links) {
                if (BY_ASYNC) {
                    gckpti_cp_async16(to + p * LINE + row_of(i, along), from[i]);
                } else if (!MIXED && f.way & WIDE) {
                    held[i] = *(const float4 *)from[i];
                } else {
                    int n = along && links - p < 4 ? links - p : valid[i];
                    held[i].x = element(f, from[i]);
                    held[i].y = n > 1 ? element(f, from[i] + f.element) : 0.0f;
                    held[i].z = n > 2 ? element(f, from[i] + 2 * f.element) : 0.0f;
                    held[i].w = n > 3 ? element(f, from[i] + 3 * f.element) : 0.0f;
                }
            }
            from[i] += f.panel;
        }
    }
    /* Writes what is held in registers. */
    __device__ __forceinline__ void put(const Factor &f, float *to)
    {
        bool along = f.way & ALONG;
        UNROLL for (int i = 0; i < CHUNKS && !BY_ASYNC; i++)
        {
            float *at = to + link_of(i, along) * LINE + row_of(i, along);
            if (!is_there(i))
                continue;
            if (along) {
                at[0] = held[i].x;
                at[LINE] = held[i].y;
                at[2 * LINE] = held[i].z;
                at[3 * LINE] = held[i].w;
            } else {
                *(float4 *)at = held[i];
            }
        }
    }
};

/* Element i of lane `lane` of LANES: T elements a lane, in chunks of 4 (the last may be 2), the
 * lanes' chunks side by side. */
template <int T, int LANES> __device__ __forceinline__ int place(int lane, int i)
{
    return i / 4 * 4 * LANES + lane * (T - i / 4 * 4 < 4 ? T % 4 : 4) + i % 4;
}

template <int T, int LANES>
__device__ __forceinline__ void fragment(const float *line, int lane, float *x)
{
    UNROLL for (int i = 0; i + 4 <= T; i += 4)
    {
        float4 v = *(const float4 *)(line + place<T, LANES>(lane, i));
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
    if (T % 4) {
        float2 v = *(const float2 *)(line + place<T, LANES>(lane, T / 4 * 4));
        x[T - 2] = v.x, x[T - 1] = v.y;
    }
}

/* One link of all chains of a thread: the column a times the row b. */
template <int TM, int TN, bool MIXED>
__device__ __forceinline__ void link(const float *a, const float *b, float (*c)[TN])
{
    UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN; j++)
    {
        float d = gckpti_fma(a[i], b[j], c[i][j]);
        c[i][j] = MIXED ? gckpti_flush(d) : d;
    }
}

/* Which part of C a thread has. Blocks take 8 rows of tiles at a time, column after column, so that
 * those that run together share lines of A and B in L2. Lane bits 0, 2, 4 number columns, 1 and 3
 * rows: see above. */
template <int BM, int BN, int TM, int TN> struct Spot {
    enum { ROW_LANES = 4, COLUMN_LANES = 8, ACROSS = BN / (COLUMN_LANES * TN) };
    int matrix, tile_row, tile_column;
    int row0, column0; /* of the warp, in the tile */
    int row, column;   /* of the lane */

    __device__ __forceinline__ Spot(const gckpti_factors &t, int thread, int block)
    {
        int down = (int)((t.m + BM - 1) / BM), across = (int)((t.n + BN - 1) / BN);
        int tile = block % (down * across), first = tile / (8 * across) * 8;
        int high = down - first < 8 ? down - first : 8, lane = thread % 32, warp = thread / 32;
        matrix = block / (down * across);
        tile_row = first + (tile - first * across) % high;
        tile_column = (tile - first * across) / high;
        row0 = warp / ACROSS * (ROW_LANES * TM);
        column0 = warp % ACROSS * (COLUMN_LANES * TN);
        row = (lane >> 1 & 1) | (lane >> 2 & 2);
        column = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4);
    }
    /* Element (i,j) of the thread, in the tile. */
    __device__ __forceinline__ int y(int i) const { return row0 + place<TM, ROW_LANES>(row, i); }
    __device__ __forceinline__ int x(int j) const
    {
        return column0 + place<TN, COLUMN_LANES>(column, j);
    }
    /* Where the tile begins in C, and what C has from there on. */
    __device__ __forceinline__ int64_t corner(const gckpti_factors &t) const
    {
        return (matrix * t.m + (int64_t)tile_row * BM) * t.n + (int64_t)tile_column * BN;
    }
    __device__ __forceinline__ int rows(const gckpti_factors &t) const
    {
        return (int)gckpti_min(t.m - (int64_t)tile_row * BM, BM);
    }
    __device__ __forceinline__ int columns(const gckpti_factors &t) const
    {
        return (int)gckpti_min(t.n - (int64_t)tile_column * BN, BN);
    }
};

/* Where chains begin: at what C holds, at the bias, or at +0 (gckpti_mixed_start). */
template <int BM, int BN, int TM, int TN, bool MIXED>
__device__ __forceinline__ void product_start(const gckpti_factors &t, float (*c)[TN])
{
    const Spot<BM, BN, TM, TN> here(t, gckpti_thread_again(), gckpti_block_again());
    int64_t corner = here.corner(t), pitch = t.accumulate ? t.n : 0;
    int rows = here.rows(t), columns = here.columns(t), narrow = MIXED && t.accumulate && !t.c;
    const float *from = t.accumulate ? t.c + corner
                        : t.start    ? t.start + (int64_t)here.tile_column * BN
                                     : NULL;
    UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN; j++)
    {
        bool inside = here.y(i) < rows && here.x(j) < columns;
        int64_t at = here.y(i) * pitch + here.x(j);
        float d = from && !narrow && inside ? from[at] : 0.0f;
        if (narrow && inside)
            d = gckpti_from_bf16(t.c_bf16[corner + at]);
        c[i][j] = MIXED ? gckpti_flush(d) : d;
    }
}

template <int BM, int BN, int TM, int TN, bool MIXED>
__device__ __forceinline__ void product_end(const Product &q, const float (*c)[TN])
{
    const gckpti_factors &t = q.t;
    const Spot<BM, BN, TM, TN> here(t, gckpti_thread_again(), gckpti_block_again());
    int64_t corner = here.corner(t);
    int rows = here.rows(t), columns = here.columns(t);
    UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN; j += 4)
    {
        int64_t at = corner + here.y(i) * t.n + here.x(j);
        if (!MIXED && q.wide && j + 4 <= TN && here.y(i) < rows && here.x(j) + 4 <= columns) {
            *(float4 *)(t.c + at) = make_float4(c[i][j], c[i][j + 1], c[i][j + 2], c[i][j + 3]);
            continue;
        }
        UNROLL for (int l = 0; l < 4 && j + l < TN; l++)
        {
            if (here.y(i) < rows && here.x(j) + l < columns && (!MIXED || t.c))
                t.c[at + l] = c[i][j + l];
            else if (here.y(i) < rows && here.x(j) + l < columns)
                t.c_bf16[at + l] = gckpti_to_bf16(c[i][j + l]);
        }
    }
}

/* On a processor together: 16 warps of 128 registers, but for those that would not do with these. */
constexpr int blocks_wanted(int bm, int bn, int elements, int asyncs)
{
    return 512 * elements / (bm * bn) - (bm > bn && elements == 64 && asyncs < 2);
}

/* A tile of BM x BN. The last links of a chain, when they do not fill a stage, go one by one: a link
 * of zeros more would make a +0 of a -0. */
template <int BM, int BN, int TM, int TN, int ASYNCS, bool MIXED>
__global__ void __launch_bounds__(BM *BN / (TM * TN), blocks_wanted(BM, BN, TM * TN, ASYNCS))
    product_kernel(const __grid_constant__ Product q)
{
    typedef Spot<BM, BN, TM, TN> Here;
    enum { THREADS = BM * BN / (TM * TN), ROWS = Here::ROW_LANES, COLUMNS = Here::COLUMN_LANES };
    typedef Panel<BM, THREADS, ASYNCS == 2, MIXED> PanelA;
    typedef Panel<BN, THREADS, ASYNCS >= 1, MIXED> PanelB;
    enum { B = PanelA::FLOATS, STAGE = B + PanelB::FLOATS };
    SHARED(float4, stages, [STAGES * STAGE / 4]);
    float *ring = (float *)stages;
    const gckpti_factors &t = q.t;
    Here here(t, (int)threadIdx.x, (int)blockIdx.x);
    float c[TM][TN];
    product_start<BM, BN, TM, TN, MIXED>(t, c);

    PanelA a;
    PanelB b;
    a.begin(q.a, here.matrix, (int64_t)here.tile_row * BM, t.m);
    b.begin(q.b, here.matrix, (int64_t)here.tile_column * BN, t.n);
    int left = (int)t.k; /* links not done */
    for (int s = 0; s < STAGES - 1; s++) {
        if (left > s * DEPTH) {
            a.fetch(q.a, ring + s * STAGE, left - s * DEPTH);
            b.fetch(q.b, ring + s * STAGE + B, left - s * DEPTH);
            a.put(q.a, ring + s * STAGE);
            b.put(q.b, ring + s * STAGE + B);
        }
        gckpti_cp_async_commit();
    }
    for (unsigned now = 0; left > 0; left -= DEPTH, now++) {
        const float *line = ring + now % STAGES * STAGE;
        float *free = ring + (now + STAGES - 1) % STAGES * STAGE, x[2][TM], y[2][TN];
        int unread = left - (STAGES - 1) * DEPTH;
        gckpti_cp_async_wait<STAGES - 2>();
        __syncthreads(); /* this stage is there, and nobody reads the one before any more */
        fragment<TM, ROWS>(line + here.row0, here.row, x[0]);
        fragment<TN, COLUMNS>(line + B + here.column0, here.column, y[0]);
        if (unread > 0) {
            a.fetch(q.a, free, unread);
            b.fetch(q.b, free + B, unread);
        }
        gckpti_cp_async_commit();
        if (left >= DEPTH) {
            UNROLL for (int p = 0; p < DEPTH; p++)
            {
                if (p + 1 < DEPTH) {
                    const float *below = line + (p + 1) * PanelA::LINE;
                    fragment<TM, ROWS>(below + here.row0, here.row, x[(p + 1) % 2]);
                    below = line + B + (p + 1) * PanelB::LINE;
                    fragment<TN, COLUMNS>(below + here.column0, here.column, y[(p + 1) % 2]);
                }
                link<TM, TN, MIXED>(x[p % 2], y[p % 2], c);
            }
        }
        for (int p = 0; p < left && left < DEPTH; p++) {
            fragment<TM, ROWS>(line + p * PanelA::LINE + here.row0, here.row, x[0]);
            fragment<TN, COLUMNS>(line + B + p * PanelB::LINE + here.column0, here.column, y[0]);
            link<TM, TN, MIXED>(x[0], y[0], c);
        }
        if (unread > 0) {
            a.put(q.a, free);
            b.put(q.b, free + B);
        }
    }
    gckpti_cp_async_wait<0>();
    product_end<BM, BN, TM, TN, MIXED>(q, c);
}

/* ASYNCS: of both factors, of b, or of none. */
template <int BM, int BN, int TM, int TN, bool MIXED>
void run_tile(const gckpt_call *call, const Product *q)
{
    int64_t tiles = (q->t.m + BM - 1) / BM * ((q->t.n + BN - 1) / BN) * q->t.batch;
    dim3 grid((unsigned)tiles), block(BM * BN / (TM * TN));
    if constexpr (MIXED)
        RUN(call, (product_kernel<BM, BN, TM, TN, 0, true>), grid, block, 0, *q);
    else if (q->a.way & q->b.way & ASYNC)
        RUN(call, (product_kernel<BM, BN, TM, TN, 2, false>), grid, block, 0, *q);
    else if (q->b.way & ASYNC)
        RUN(call, (product_kernel<BM, BN, TM, TN, 1, false>), grid, block, 0, *q);
    else
        RUN(call, (product_kernel<BM, BN, TM, TN, 0, false>), grid, block, 0, *q);
}

struct Tile {
    int m, n;
    double speed; /* fma of a hundred slots, as it should be; small ones wait for L2 */
    void (*run)(const gckpt_call *call, const Product *q);
};
const Tile EXACT_TILES[] = {
    { 128, 128, 92, run_tile<128, 128, 8, 8, false> },
    { 128, 64, 90, run_tile<128, 64, 8, 8, false> },
    { 96, 48, 84, run_tile<96, 48, 6, 6, false> },
    { 64, 64, 82, run_tile<64, 64, 4, 8, false> },
    { 32, 64, 65, run_tile<32, 64, 4, 4, false> },
    { 32, 32, 50, run_tile<32, 32, 4, 4, false> },
};
/* Flushing takes two slots more for each fma, beside which the rest does not count. */
const Tile MIXED_TILES[] = {
    { 64, 64, 30, run_tile<64, 64, 4, 8, true> },
    { 32, 32, 25, run_tile<32, 32, 4, 4, true> },
};

/* The tile with which the processor that has most of them is done first. Small gradients need small
 * ones: of a weight of 768 x 768, 36 blocks of 128 x 128 leave 96 processors idle; 128 of 96 x 48
 * use 132 to 97 %, as they do for 768 x 2304 and 768 x 3072. */
const Tile *best_tile(const Tile *tiles, int count, const gckpti_factors *t, int processors)
{
    const Tile *best = NULL;
    double least = 0;
    for (const Tile *i = tiles; i < tiles + count; i++) {
        int64_t n = (t->m + i->m - 1) / i->m * ((t->n + i->n - 1) / i->n) * t->batch;
        double rounds = (double)((n + processors - 1) / processors);
        double time = rounds * i->m * i->n / i->speed;
        if (!best || time < least)
            best = i, least = time;
    }
    return best;
}

int processors_of(const gckpt_call *call)
{
    int n = 1;
    check(device_of(call),
          cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device_of(call)->number),
          "the number of processors");
    return n;
}

/* A gckpti_product_run. */
void products(const gckpt_call *call, const gckpti_factors *t)
{
    int mixed = call->precision != GCKPT_FP32;
    Product q = { *t, factor_of(&t->a, t->m, t->k, mixed), factor_of(&t->b, t->n, t->k, mixed),
                  t->n % 4 == 0 && (uintptr_t)t->c % 16 == 0 };
    const Tile *tile = mixed ? best_tile(MIXED_TILES, 2, t, processors_of(call))
                             : best_tile(EXACT_TILES, 6, t, processors_of(call));
    tile->run(call, &q);
}

void matmul_forward(const gckpt_call *call) { gckpti_linear_out(call, products); }
void matmul_backward(const gckpt_call *call) { gckpti_linear_gradients(call, products); }

/* Sums of rows of x (rows,n), f32 or bf16, in the order of rows (manual, 5e); a thread has a column.
 * It waits for its own four additions a row, not for memory: the next rows are read meanwhile. Warps
 * are blocks, to be spread over all processors. */
__global__ void sum_rows_kernel(const float *x, const uint16_t *bf16, int64_t rows, int64_t n,
                                float *sum, float *low, int accumulate)
{
    enum { AHEAD = 32 };
    int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float next[AHEAD], s, l;
    if (j >= n)
        return;
    s = accumulate ? sum[j] : 0.0f;
    l = low ? low[j] : 0.0f;
    for (int64_t r = -AHEAD; r < rows; r += AHEAD) {
        float here[AHEAD];
        UNROLL for (int i = 0; i < AHEAD; i++)
        {
            int64_t at = r + AHEAD + i < rows ? (r + AHEAD + i) * n + j : j;
            here[i] = next[i];
            next[i] = x ? x[at] : gckpti_from_bf16(bf16[at]);
        }
        UNROLL for (int i = 0; i < AHEAD; i++) if (r + i >= 0 && r + i < rows)
            gckpti_sum_add(&s, low ? &l : NULL, here[i]);
    }
    sum[j] = s;
    if (low)
        low[j] = l;
}

void linear_forward(const gckpt_call *call) { gckpti_linear_out(call, products); }

void linear_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const gckpt_arg *bias = &call->in[2];
    gckpti_linear_gradients(call, products);
    if (call->inputs == 3 && bias->grad)
        RUN(call, sum_rows_kernel, dim3((unsigned)((n + 31) / 32)), 32, 0, call->grad_out,
            call->grad_out_bf16, rows, n, bias->grad, bias->low, bias->accumulate);
}

/* embed: a warp copies a row. */
__global__ void embed_forward_kernel(const float *table, const int32_t *index, float *out,
                                     uint16_t *out_bf16, int64_t rows, int64_t n)
{
    int64_t warps = (int64_t)gridDim.x * blockDim.x / 32, lane = threadIdx.x % 32;
    int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (; r < rows; r += warps) {
        const float *from = table + index[r] * n;
        for (int64_t i = lane; i < n; i += 32) {
            if (out)
                out[r * n + i] = from[i];
            else
                out_bf16[r * n + i] = gckpti_to_bf16(from[i]);
        }
    }
}

void embed_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    RUN(call, embed_forward_kernel, blocks_for(32 * rows, 256), 256, 0, call->in[0].data,
        call->in[1].index, call->out, call->out_bf16, rows, n);
}

/* The gradient of a row of the table adds up rows of g in their order. So these are first listed by
 * the row of the table that they go to, each list sorted. Where a list lies, and in which order it
 * is filled, is by chance (integer atomics); what comes out of sorting is not. */
struct Lists {
    unsigned *count, *used;  /* of each row of the table; elements of `list` given away */
    unsigned *begin;         /* of each list */
    unsigned *place;         /* of each row of g in its list; later the lists, sorted */
    unsigned *list;          /* one list after the other */
};

int64_t lists_words(int64_t table, int64_t rows) { return 2 * table + 1 + 2 * rows; }

Lists lists_of(const gckpt_call *call, int64_t table, int64_t rows)
{
    unsigned *work = (unsigned *)call->work;
    Lists l = { work, work + table, work + table + 1, work + 2 * table + 1,
                work + 2 * table + 1 + rows };
    return l;
}

__global__ void lists_count_kernel(Lists l, const int32_t *index, int64_t rows)
{
    for (EACH(r, rows))
        l.place[r] = atomicAdd(&l.count[index[r]], 1u);
}

__global__ void lists_begin_kernel(Lists l, int64_t table)
{
    for (EACH(v, table))
        l.begin[v] = l.count[v] ? atomicAdd(l.used, l.count[v]) : 0;
}

__global__ void lists_fill_kernel(Lists l, const int32_t *index, int64_t rows)
{
    for (EACH(r, rows))
        l.list[l.begin[index[r]] + l.place[r]] = (unsigned)r;
}

/* A row's place is the number of those before it. Quadratic in a list's length, but all rows work
 * at once: 65536 rows of one token take about a millisecond (not confirmed on a device). */
__global__ void lists_sort_kernel(Lists l, const int32_t *index, int64_t rows)
{
    for (EACH(r, rows)) {
        unsigned begin = l.begin[index[r]], count = l.count[index[r]], before = 0;
        for (unsigned i = 0; i < count; i++)
            before += l.list[begin + i] < (unsigned)r;
        l.place[begin + before] = (unsigned)r;
    }
}

/* A block goes over rows of the table, a thread has a column and reads some rows of g ahead. */
__global__ void embed_backward_kernel(Lists l, const float *g, const uint16_t *bf16, float *d,
                                      int64_t table, int64_t n, int accumulate)
{
    enum { AHEAD = 8 };
    int64_t j = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (j >= n)
        return;
    for (int64_t v = blockIdx.x; v < table; v += gridDim.x) {
        unsigned count = l.count[v];
        if (!count && accumulate)
            continue;
        const unsigned *row = l.place + l.begin[v];
        float sum = accumulate ? d[v * n + j] : 0.0f;
        for (unsigned r = 0; r < count; r += AHEAD) {
            float x[AHEAD];
            UNROLL for (unsigned i = 0; i < AHEAD; i++) if (r + i < count)
            {
                int64_t at = row[r + i] * n + j;
                x[i] = g ? g[at] : gckpti_from_bf16(bf16[at]);
            }
            UNROLL for (unsigned i = 0; i < AHEAD; i++) if (r + i < count) sum += x[i];
        }
        d[v * n + j] = sum;
    }
}

void embed_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    int64_t table = call->in[0].shape.d[0];
    const int32_t *index = call->in[1].index;
    float *d = call->in[0].grad;
    if (!d)
        return;
    Lists l = lists_of(call, table, rows);
    dim3 grid = blocks_for(rows, 256);
    fill(call, l.count, 0, table + 1);
    RUN(call, lists_count_kernel, grid, 256, 0, l, index, rows);
    RUN(call, lists_begin_kernel, blocks_for(table, 256), 256, 0, l, table);
    RUN(call, lists_fill_kernel, grid, 256, 0, l, index, rows);
    RUN(call, lists_sort_kernel, grid, 256, 0, l, index, rows);
    grid = blocks_for(table, 1);
    grid.y = (unsigned)((n + 255) / 256);
    RUN(call, embed_backward_kernel, grid, 256, 0, l, call->grad_out, call->grad_out_bf16, d, table,
        n, call->in[0].accumulate);
}

/* ---- >>rows ---------------------------------------------------------------------------------- */

/* ---- >>attention ----------------------------------------------------------------------------- */

/* ---- >>backend ------------------------------------------------------------------------------- */
#define OPS(X) X(gelu) X(gelu_erf) X(silu) X(tanh) X(sigmoid) X(embed) X(matmul) X(linear)

gckpt_kernel find(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context;
#define X(which)                                                                                   \
    if (!strcmp(op->name, #which) && (op->flags & GCKPTI_OWN_ROW))                                 \
        return kind == GCKPT_FORWARD ? which##_forward : which##_backward;
    OPS(X)
#undef X
    return NULL;
}

gckpt_result workspace(void *context, const gckpt_op *op, gckpt_call *call)
{
    (void)context;
    if (!strcmp(op->name, "embed") && (op->flags & GCKPTI_OWN_ROW))
        call->work_backward = (size_t)lists_words(call->in[0].shape.d[0], gckpti_rows(&call->shape)) *
                              sizeof(unsigned);
    return GCKPT_OK;
}

} // namespace

extern "C" const gckpt_backend *gckpt_cuda_backend(int device, const char **error)
{
    static Device devices[16];
    static char problem[TEXT];
    int count = 0;
    cudaError_t result = cudaGetDeviceCount(&count);
    *error = problem;
    if (result != cudaSuccess || device < 0 || device >= count || device >= 16) {
        snprintf(problem, sizeof problem, "CUDA device %d of %d: %s", device, count,
                 result != cudaSuccess ? cudaGetErrorString(result)
                                       : "there is none; devices count from 0");
        return NULL;
    }
    Device *d = &devices[device];
    if (d->stream)
        return &d->backend;
    d->number = device;
    result = cudaSetDevice(device);
    if (result == cudaSuccess)
        result = cudaStreamCreate(&d->stream);
    if (result != cudaSuccess) {
        snprintf(problem, sizeof problem, "CUDA device %d: %s", device,
                 cudaGetErrorString(result));
        return NULL;
    }
    gckpt_backend b = { "cuda", d,    1,         1,    get, release, copy_in, copy_out, copy,
                        workspace, find, fill, add, convert, update, finish };
    d->backend = b;
    return &d->backend;
}
