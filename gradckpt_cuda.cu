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
 *     >>fast        GCKPT_BF16_FAST: by tensor cores, reading and writing bf16
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

/* What may differ when a recorded micro-batch is repeated. So kernels that need a call's row, seed,
 * step or loss_scale do not get them as arguments: they get moment_of(call), an address in the
 * device's memory, and read them there. Host code must not depend on them. All else (shapes, rows,
 * addresses) is the same in each repetition. An update is never repeated: it takes its gckpt_pass. */
struct Moment {
    int64_t row;
    uint64_t seed, step;
    float loss_scale;
};

struct Device {
    int number;
    cudaStream_t stream; /* what is computed, in the order of calls */
    Moment now, *moment; /* the latter holds, or soon, the former */
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

__global__ void moment_kernel(Moment *to, Moment now) { *to = now; }

/* For a kernel of this call: its row, seed, step and loss_scale, until the next call. */
const Moment *moment_of(const gckpt_call *call)
{
    Device *d = device_of(call);
    Moment m = { call->row, call->seed, call->step, call->loss_scale }, *now = &d->now;
    if (m.row != now->row || m.seed != now->seed || m.step != now->step ||
        gckpti_bits(m.loss_scale) != gckpti_bits(now->loss_scale)) {
        RUN(call, moment_kernel, 1, 1, 0, d->moment, m);
        *now = m;
    }
    return d->moment;
}

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

__global__ void convert_kernel(gckpt_conversion c, int64_t rows, const Moment *now, int by_chance)
{
    for (EACH(i, c.n)) {
        if (c.kind == GCKPT_WIDEN || c.kind == GCKPT_WIDEN_ADD) {
            float wide = gckpti_from_bf16(c.from[i]);
            c.x[i] = c.kind == GCKPT_WIDEN ? wide : wide + c.x[i];
            continue;
        }
        uint16_t half = gckpti_to_bf16(c.x[i]);
        if (by_chance) {
            uint64_t at = (uint64_t)(i + (now->row ? now->row * (c.n / rows) : 0));
            uint32_t word[4];
            gckpti_philox(now->seed, at / 8, c.stream, (uint32_t)now->step, word);
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
    int by_chance = call->precision == GCKPT_BF16_STOCHASTIC;
    const Moment *now = by_chance ? moment_of(call) : NULL;
    if (c->n > 0)
        RUN(call, convert_kernel, blocks_for(c->n, 256), 256, 0, *c, call->rows, now, by_chance);
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

/* ---- >>products ------------------------------------------------------------------------------ */

/* ---- >>rows ---------------------------------------------------------------------------------- */

/* ---- >>attention ----------------------------------------------------------------------------- */

/* ---- >>fast ----------------------------------------------------------------------------------
 * Kernels of GCKPT_BF16_FAST (gradckpt.h, manual, 5m), for sm_80 and newer; names of all that runs
 * on the device begin with fast_. Products go through the one instruction mma.m16n8k16: bf16
 * factors, binary32 sums. What is summed over tokens is summed in groups of TOKENS, one group after
 * the other from what the accumulator holds: so the bits are the same wherever a batch is cut
 * between groups, and for any tile. */
enum { TOKENS = 16 };
#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

#ifndef GCKPT_CUDA_SHIM /* tests/cuda_shim.h says in full what these five do */
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

__device__ inline void gckpti_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most N groups of this thread are under way. */
template <int N> __device__ inline void gckpti_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
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

__device__ inline float fast_get(const Values &x, int64_t i)
{
    return x.narrow ? gckpti_from_bf16(x.narrow[i]) : x.wide ? x.wide[i] : 0.0f;
}

__device__ inline float fast_held(const Results &y, int64_t i)
{
    return y.narrow ? gckpti_from_bf16(y.narrow[i]) : y.wide[i];
}

__device__ inline void fast_put(const Results &y, int64_t i, float v)
{
    if (y.narrow)
        y.narrow[i] = gckpti_to_bf16(v);
    else
        y.wide[i] = v;
}

/* Two elements as a word, the first one in the lower half. */
__device__ inline uint32_t fast_pair(float first, float second)
{
    return gckpti_to_bf16(first) | (uint32_t)gckpti_to_bf16(second) << 16;
}

Values value_of(const gckpt_arg &arg) { return { arg.data, arg.bf16 }; }
Results grad_of(const gckpt_arg &arg) { return { arg.grad, arg.grad_bf16 }; }
bool wanted(const gckpt_arg &arg) { return arg.grad || arg.grad_bf16; }
Values grad_out_of(const gckpt_call *call) { return { call->grad_out, call->grad_out_bf16 }; }

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

__global__ void fast_narrow_kernel(const float *x, uint16_t *y, int64_t n)
{
    for (EACH(i, n))
        y[i] = gckpti_to_bf16(x[i]);
}

void narrow(const gckpt_call *call, const float *x, uint16_t *y, int64_t n)
{
    RUN(call, fast_narrow_kernel, blocks_for(n, 256), 256, 0, x, y, n);
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

/* ---- products: c (m,n) = a (m,k) b (k,n), from bias, from what c holds, or from 0 ----
 * Lines of a matrix are along k (a: rows, b: columns), or across it (a: columns, b: rows; a line
 * for each link), `stride` elements apart. */
struct Matrix {
    const uint16_t *x;
    int64_t stride;
    int aligned; /* 16 bytes can be copied at once */
};
struct Product {
    int m, n, k;
    Matrix a, b;
    Values bias; /* or none */
    int accumulate;
    Results c; /* rows of n */
};

Matrix matrix(const uint16_t *x, int64_t stride)
{
    return { x, stride, (uintptr_t)x % 16 == 0 && stride % 8 == 0 };
}

enum { LINKS = 32, STAGES = 4 }; /* links in shared memory at once; so many times */

/* Brings 8 elements x[at..] of line `line` to shared memory; outside the matrix there are zeros. */
__device__ inline void fast_bring(const Matrix &x, int64_t line, int lines, int at, int length,
                                  uint16_t *to)
{
    const uint16_t *from = x.x + line * x.stride + at;
    int there = line < lines ? length - at : 0;
    there = there < 0 ? 0 : there < 8 ? there : 8;
    if (x.aligned) {
        gckpti_cp_async16(to, there ? from : x.x, there * 2);
        return;
    }
    for (int i = 0; i < 8; i++)
        to[i] = i < there ? from[i] : (uint16_t)0;
}

/* Where 8 elements lie in a tile with lines of `wide` elements: their places are exchanged from line
 * to line, so that ldmatrix finds 8 lines in 8 different groups of banks. */
template <int wide> __device__ inline int fast_place(int line, int eight)
{
    int turn = wide == 32 ? line >> 1 & 3 : line & 7;
    return line * wide + ((eight ^ turn) << 3);
}

/* A tile of `size` lines along k, or of as many elements across it, links first.. */
template <int size, int along>
__device__ inline void fast_bring_tile(const Matrix &x, int start, int end, int first, int k,
                                       uint16_t *tile)
{
    enum { WIDE = along ? LINKS : size, EIGHTS = WIDE / 8, ALL = size * LINKS / 8 };
    for (int i = threadIdx.x; i < ALL; i += 128) {
        int line = i / EIGHTS, eight = i % EIGHTS;
        uint16_t *to = tile + fast_place<WIDE>(line, eight);
        if (along)
            fast_bring(x, start + line, end, first + eight * 8, k, to);
        else
            fast_bring(x, first + line, k, start + eight * 8, end, to);
    }
}

/* The factors a of 16 rows from `row` and 16 links from `link` of a tile with lines of `wide`. */
template <int wide, int along>
__device__ inline void fast_load_a(uint32_t a[4], const uint16_t *tile, int row, int link)
{
    int lane = threadIdx.x % 32;
    if (along)
        gckpti_ldmatrix_x4(a, tile + fast_place<wide>(row + lane % 16, link / 8 + lane / 16));
    else
        gckpti_ldmatrix_x4_trans(
            a, tile + fast_place<wide>(link + lane / 16 * 8 + lane % 8, row / 8 + lane / 8 % 2));
}

/* The factors b of 16 links and of columns column..column+7 (b[0], b[1]), +8..+15 (b[2], b[3]). */
template <int wide, int along>
__device__ inline void fast_load_b(uint32_t b[4], const uint16_t *tile, int column, int link)
{
    int lane = threadIdx.x % 32;
    if (along)
        gckpti_ldmatrix_x4(b, tile + fast_place<wide>(column + lane / 16 * 8 + lane % 8,
                                                      link / 8 + lane / 8 % 2));
    else
        gckpti_ldmatrix_x4_trans(
            b, tile + fast_place<wide>(link + lane / 8 % 2 * 8 + lane % 8, column / 8 + lane / 16));
}

/* What element (i,j) of c starts from. */
__device__ inline float fast_start(const Product &p, int i, int j)
{
    if (i >= p.m || j >= p.n)
        return 0.0f;
    return p.accumulate ? fast_held(p.c, (int64_t)i * p.n + j) : fast_get(p.bias, j);
}

/* Elements (i,j) and (i,j+1). */
__device__ inline void fast_finish(const Product &p, int i, int j, float first, float second)
{
    int64_t at = (int64_t)i * p.n + j;
    if (i >= p.m || j >= p.n)
        return;
    if (j + 1 < p.n && p.n % 2 == 0 && p.c.narrow) {
        *(uint32_t *)(void *)(p.c.narrow + at) = fast_pair(first, second);
        return;
    }
    fast_put(p.c, at, first);
    if (j + 1 < p.n)
        fast_put(p.c, at + 1, second);
}

/* A block of four warps computes size x size elements, a warp a quarter of them, from STAGES tiles
 * of LINKS links each that are on their way at once. A group of 16 links is one mma: an element's
 * sum is a chain of them, in order, in one register, whatever the tile. 128 x 128: 64 KiB, two
 * blocks an SM; where that leaves SMs idle, tiles are 64 x 64. Neighbouring blocks share rows of a,
 * which stay in the L2. */
template <int size, int a_along, int b_along>
__global__ void __launch_bounds__(128, 2) fast_product_kernel(Product p)
{
    enum { HALF = size / 2, DOWN = HALF / 16, ACROSS = HALF / 8, TILE = size * LINKS };
    enum { A_WIDE = a_along ? LINKS : size, B_WIDE = b_along ? LINKS : size };
    DYNAMIC_SHARED(uint4, product_tiles);
    uint16_t *tiles = (uint16_t *)product_tiles;
    int across = (p.n + size - 1) / size, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int i0 = (int)(blockIdx.x / across) * size, j0 = (int)(blockIdx.x % across) * size;
    int row = warp / 2 * HALF, column = warp % 2 * HALF;
    int i = i0 + row + lane / 4, j = j0 + column + lane % 4 * 2;
    int steps = (p.k + LINKS - 1) / LINKS;
    float c[DOWN][ACROSS][4];
UNROLL
    for (int y = 0; y < DOWN; y++)
UNROLL
        for (int x = 0; x < ACROSS; x++)
UNROLL
            for (int q = 0; q < 4; q++)
                c[y][x][q] = fast_start(p, i + y * 16 + q / 2 * 8, j + x * 8 + q % 2);
    for (int s = 0; s < steps + STAGES - 1; s++) {
        int now = s - (STAGES - 1); /* what is computed, once so many tiles are under way */
        if (now >= 0) {
            gckpti_cp_async_wait<STAGES - 2>();
            __syncthreads();
        }
        if (s < steps) {
            uint16_t *tile = tiles + s % STAGES * 2 * TILE;
            fast_bring_tile<size, a_along>(p.a, i0, p.m, s * LINKS, p.k, tile);
            fast_bring_tile<size, b_along>(p.b, j0, p.n, s * LINKS, p.k, tile + TILE);
        }
        gckpti_cp_async_commit();
        const uint16_t *tile = tiles + now % STAGES * 2 * TILE;
        for (int link = 0; now >= 0 && link < LINKS && now * LINKS + link < p.k; link += 16) {
            uint32_t a[DOWN][4], b[4];
UNROLL
            for (int y = 0; y < DOWN; y++)
                fast_load_a<A_WIDE, a_along>(a[y], tile, row + y * 16, link);
UNROLL
            for (int x = 0; x < ACROSS; x += 2) {
                fast_load_b<B_WIDE, b_along>(b, tile + TILE, column + x * 8, link);
UNROLL
                for (int y = 0; y < DOWN; y++) {
                    gckpti_mma_bf16(c[y][x], a[y], b);
                    gckpti_mma_bf16(c[y][x + 1], a[y], b + 2);
                }
            }
        }
    }
UNROLL
    for (int y = 0; y < DOWN; y++)
UNROLL
        for (int x = 0; x < ACROSS; x++) {
            fast_finish(p, i + y * 16, j + x * 8, c[y][x][0], c[y][x][1]);
            fast_finish(p, i + y * 16 + 8, j + x * 8, c[y][x][2], c[y][x][3]);
        }
}

template <int size, int a_along, int b_along>
void product_by(const gckpt_call *call, const Product &p)
{
    int64_t blocks = (int64_t)((p.m + size - 1) / size) * ((p.n + size - 1) / size);
    int bytes = STAGES * 2 * size * LINKS * (int)sizeof(uint16_t);
    check(device_of(call),
          cudaFuncSetAttribute(fast_product_kernel<size, a_along, b_along>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "shared memory");
    RUN(call, (fast_product_kernel<size, a_along, b_along>), dim3((unsigned)blocks), 128,
        (size_t)bytes, p);
}

template <int a_along, int b_along> void product_of(const gckpt_call *call, const Product &p)
{
    int64_t large = (int64_t)((p.m + 127) / 128) * ((p.n + 127) / 128);
    if (p.m < 1 || p.n < 1)
        return;
    if (large >= 132)
        product_by<128, a_along, b_along>(call, p);
    else
        product_by<64, a_along, b_along>(call, p);
}

/* b's lines are along k where its `stride` is that of columns. */
void product(const gckpt_call *call, const Product &p, int a_along, int b_along)
{
    if (a_along && b_along)
        product_of<1, 1>(call, p);
    else if (a_along)
        product_of<1, 0>(call, p);
    else
        product_of<0, 0>(call, p);
}

/* ---- sums over tokens: of a bias, a gain ---- */
/* A block has 32 columns, a warp TOKENS rows of them at a time; then the first warp adds the groups
 * to the sums in their order, with low parts. h NULL: sums g, else g (x - c - mean) rstd, with
 * `each` of these per row (a norm's aux). */
__global__ void fast_column_sums_kernel(Values g, int64_t rows, int64_t n, Values x,
                                        const float *aux, int each, int accumulate, Results sums,
                                        float *low)
{
    SHARED(float, group, [16][32]);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t j = (int64_t)blockIdx.x * 32 + lane;
    float sum = 0.0f, rest = 0.0f;
    if (warp == 0 && j < n) {
        sum = accumulate ? fast_held(sums, j) : 0.0f;
        rest = low ? low[j] : 0.0f;
    }
    for (int64_t first = 0; first < rows; first += 16 * TOKENS) {
        int64_t r = first + warp * TOKENS, end = r + TOKENS < rows ? r + TOKENS : rows;
        float part = 0.0f;
        for (; r < end && j < n; r++) {
            float v = fast_get(g, r * n + j);
            if (aux) {
                const float *a = aux + r * each;
                float c = each == 3 ? a[0] : 0.0f, mean = each == 3 ? a[1] : 0.0f;
                v *= gckpti_centered(fast_get(x, r * n + j), c, mean) * a[each - 1];
            }
            part += v;
        }
        group[warp][lane] = part;
        __syncthreads();
        for (int w = 0; warp == 0 && w < 16 && first + w * TOKENS < rows; w++)
            gckpti_sum_add(&sum, &rest, group[w][lane]);
        __syncthreads();
    }
    if (warp == 0 && j < n) {
        fast_put(sums, j, sum);
        if (low)
            low[j] = rest;
    }
}

void column_sums(const gckpt_call *call, const gckpt_arg &to, Values x, const float *aux, int each)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    RUN(call, fast_column_sums_kernel, dim3((unsigned)((n + 31) / 32)), 512, 0, grad_out_of(call),
        rows, n, x, aux, each, to.accumulate, grad_of(to), to.low);
}

/* ---- linear: out (rows,n) = x (rows,k) w + bias ---- */
void fast_linear_forward(const gckpt_call *call)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    int transposed = *(const int *)call->attributes;
    Room room = { (char *)call->work, 0 };
    const uint16_t *x = factor(call, room, value_of(call->in[0]), s.m * s.k);
    const uint16_t *w = factor(call, room, value_of(call->in[1]), s.n * s.k);
    Product p = { (int)s.m,
                  (int)s.n,
                  (int)s.k,
                  matrix(x, s.k),
                  matrix(w, transposed ? s.k : s.n),
                  value_of(call->in[2]),
                  0,
                  { call->out, call->out_bf16 } };
    product(call, p, 1, transposed);
}

void fast_linear_backward(const gckpt_call *call)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    const gckpt_arg *in = call->in;
    int transposed = *(const int *)call->attributes, m = (int)s.m, n = (int)s.n, k = (int)s.k;
    Room room = { (char *)call->work, 0 };
    const uint16_t *g = factor(call, room, grad_out_of(call), s.m * s.n);
    if (wanted(in[0])) {
        const uint16_t *w = factor(call, room, value_of(in[1]), s.n * s.k);
        Product p = { m,    k,    n, matrix(g, s.n), matrix(w, transposed ? s.k : s.n),
                      { NULL, NULL }, in[0].accumulate, grad_of(in[0]) };
        product(call, p, 1, !transposed);
    }
    if (wanted(in[1])) {
        const uint16_t *x = factor(call, room, value_of(in[0]), s.m * s.k);
        Product p = { k,    n,    m, matrix(x, s.k), matrix(g, s.n),
                      { NULL, NULL }, in[1].accumulate, grad_of(in[1]) };
        if (transposed)
            p.m = n, p.n = k, p.a = matrix(g, s.n), p.b = matrix(x, s.k);
        product(call, p, 0, 0);
    }
    if (call->inputs == 3 && wanted(in[2]))
        column_sums(call, in[2], { NULL, NULL }, NULL, 0);
}

gckpt_result fast_linear_room(gckpt_call *call)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    Values x = value_of(call->in[0]), w = value_of(call->in[1]), g = grad_out_of(call);
    Room forward = { NULL, 0 }, backward = { NULL, 0 };
    factor(call, forward, x, s.m * s.k);
    factor(call, forward, w, s.n * s.k);
    factor(call, backward, g, s.m * s.n);
    factor(call, backward, w, s.n * s.k);
    factor(call, backward, x, s.m * s.k);
    call->work_forward = forward.used;
    call->work_backward = backward.used;
    call->mixes_rows |= s.m % TOKENS != 0;
    return GCKPT_OK;
}

/* ---- attention (Dao 2023), for heads of up to D columns: 64 or 128, the rest zeros ----
 * A block of four warps has 64 queries of a head (forward, dq) or 64 keys (dk, dv), a warp 16 of
 * them; the other side comes in tiles that are brought while the one before is computed. Scores and
 * what they become stay in registers: as an mma leaves them they are the factors of the next one.
 * Maxima and sums are binary32, keys taken in tiles of 64 in order; the scores are computed again
 * for dq and for dk and dv, so that each sum has one owner and one order. */
struct Attention {
    const uint16_t *q, *k, *v, *g;
    int t, s, c, d, heads, causal, aligned;
    float scale;
    Results out, dq, dk, dv;
    int accumulate[3];
    float *aux;         /* (B,heads,T): max + log(sum) */
    const float *delta; /* (B,heads,T): dot(g, out) */
};

/* 2^x; exponents are taken to base 2. */
__device__ inline float fast_exp2(float x)
{
#ifdef GCKPT_CUDA_SHIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* fast_pair, subnormals left as they are: for factors that go straight into an mma. */
__device__ inline uint32_t fast_factors(float first, float second)
{
#ifdef GCKPT_CUDA_SHIM
    return fast_pair(first, second);
#else
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
#endif
}

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* n lines of a head, from line `first` of row b of a (B,lines,C) tensor. */
template <int D, int n>
__device__ inline void fast_bring_lines(const Attention &p, const uint16_t *x, int b, int h,
                                        int first, int lines, uint16_t *tile)
{
    Matrix m = { x + ((int64_t)b * lines) * p.c + (int64_t)h * p.d, p.c, p.aligned };
    for (int i = threadIdx.x; i < n * D / 8; i += 128) {
        int line = i / (D / 8), eight = i % (D / 8);
        fast_bring(m, first + line, lines, eight * 8, p.d, tile + fast_place<D>(line, eight));
    }
}

/* s (16 rows, 8 n columns) = lines row.. of a times lines 0.. of b, along the head. */
template <int D, int n>
__device__ inline void fast_scores(const uint16_t *a, int row, const uint16_t *b, float s[n][4])
{
UNROLL
    for (int x = 0; x < n; x++)
        s[x][0] = s[x][1] = s[x][2] = s[x][3] = 0.0f;
UNROLL
    for (int link = 0; link < D; link += 16) {
        uint32_t left[4], right[4];
        fast_load_a<D, 1>(left, a, row, link);
UNROLL
        for (int x = 0; x < n; x += 2) {
            fast_load_b<D, 1>(right, b, x * 8, link);
            gckpti_mma_bf16(s[x], left, right);
            gckpti_mma_bf16(s[x + 1], left, right + 2);
        }
    }
}

/* o (16,D) += s (16, 8 n) times lines 0.. of b. */
template <int D, int n>
__device__ inline void fast_add_lines(const float s[n][4], const uint16_t *b, float o[D / 8][4])
{
UNROLL
    for (int link = 0; link < n / 2; link++) {
        const float *s0 = s[2 * link], *s1 = s[2 * link + 1];
        uint32_t left[4] = { fast_factors(s0[0], s0[1]), fast_factors(s0[2], s0[3]),
                             fast_factors(s1[0], s1[1]), fast_factors(s1[2], s1[3]) };
        uint32_t right[4];
UNROLL
        for (int x = 0; x < D / 8; x += 2) {
            fast_load_b<D, 0>(right, b, x * 8, link * 16);
            gckpti_mma_bf16(o[x], left, right);
            gckpti_mma_bf16(o[x + 1], left, right + 2);
        }
    }
}

template <int D> __device__ inline void fast_clear(float o[D / 8][4])
{
UNROLL
    for (int x = 0; x < D / 8; x++)
        o[x][0] = o[x][1] = o[x][2] = o[x][3] = 0.0f;
}

/* Rows line + lane / 4 and 8 further of a head, times `times`. */
template <int D>
__device__ inline void fast_store_lines(const Attention &p, const Results &y, int accumulate, int b,
                                        int h, int line, int lines, const float o[D / 8][4],
                                        const float times[2])
{
    int lane = threadIdx.x % 32;
UNROLL
    for (int half = 0; half < 2; half++) {
        int i = line + lane / 4 + half * 8;
        int64_t at = ((int64_t)b * lines + i) * p.c + (int64_t)h * p.d;
UNROLL
        for (int x = 0; x < D / 8; x++) {
            int j = x * 8 + lane % 4 * 2;
            float v[2] = { o[x][2 * half] * times[half], o[x][2 * half + 1] * times[half] };
            if (i >= lines || j >= p.d)
                continue;
            if (accumulate)
                v[0] += fast_held(y, at + j), v[1] += j + 1 < p.d ? fast_held(y, at + j + 1) : 0.0f;
            if (y.narrow && p.aligned) {
                *(uint32_t *)(void *)(y.narrow + at + j) = fast_pair(v[0], v[1]);
                continue;
            }
            fast_put(y, at + j, v[0]);
            if (j + 1 < p.d)
                fast_put(y, at + j + 1, v[1]);
        }
    }
}

template <int D>
__global__ void __launch_bounds__(128) fast_attention_forward_kernel(Attention p)
{
    enum { TILE = 64 * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *q = (uint16_t *)attention_tiles, *k = q + TILE, *v = k + 2 * TILE;
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16, blocks = (p.t + 63) / 64;
    int head = (int)(blockIdx.x / blocks), b = head / p.heads, h = head % p.heads;
    int q0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * 64; /* the longest first */
    int seen = p.causal && q0 + 64 < p.s ? q0 + 64 : p.s, steps = (seen + 63) / 64;
    float o[D / 8][4], s[8][4], max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
    fast_clear<D>(o);
    fast_bring_lines<D, 64>(p, p.q, b, h, q0, p.t, q);
    for (int step = -1; step < steps; step++) {
        if (step + 1 < steps) {
            int to = (step + 1) % 2 * TILE;
            fast_bring_lines<D, 64>(p, p.k, b, h, (step + 1) * 64, p.s, k + to);
            fast_bring_lines<D, 64>(p, p.v, b, h, (step + 1) * 64, p.s, v + to);
        }
        gckpti_cp_async_commit();
        if (step < 0)
            continue;
        gckpti_cp_async_wait<1>();
        __syncthreads();
        fast_scores<D, 8>(q, row, k + step % 2 * TILE, s);
        int i = q0 + row + lane / 4, j = step * 64 + lane % 4 * 2;
UNROLL
        for (int half = 0; half < 2; half++, i += 8) {
            int end = p.causal && i + 1 < p.s ? i + 1 : p.s;
            float top = max[half], factor, shift;
UNROLL
            for (int x = 0; x < 16; x++) {
                float *at = &s[x / 2][2 * half + x % 2];
                *at = j + x / 2 * 8 + x % 2 < end ? *at * (p.scale * LOG2E) : -INFINITY;
                top = *at > top ? *at : top;
            }
            for (int with = 1; with < 4; with *= 2) {
                float other = __shfl_xor_sync(0xffffffffu, top, with);
                top = other > top ? other : top;
            }
            shift = gckpti_shift(top);
            factor = fast_exp2(max[half] - shift);
            max[half] = top;
            sum[half] *= factor;
UNROLL
            for (int x = 0; x < 16; x++) {
                float *at = &s[x / 2][2 * half + x % 2];
                *at = fast_exp2(*at - shift);
                sum[half] += *at;
            }
UNROLL
            for (int x = 0; x < D / 8; x++)
                o[x][2 * half] *= factor, o[x][2 * half + 1] *= factor;
        }
        fast_add_lines<D, 8>(s, v + step % 2 * TILE, o);
        __syncthreads();
    }
UNROLL
    for (int half = 0; half < 2; half++) {
        int i = q0 + row + lane / 4 + half * 8;
        for (int with = 1; with < 4; with *= 2)
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], with);
        gckpti_softmax_end(&max[half], &sum[half]);
        if (p.aux && i < p.t && lane % 4 == 0)
            p.aux[(int64_t)head * p.t + i] = max[half] * LN2 + gckpti_log(sum[half]);
        sum[half] = 1.0f / sum[half];
    }
    if (p.out.wide || p.out.narrow)
        fast_store_lines<D>(p, p.out, 0, b, h, q0 + row, p.t, o, sum);
}

/* A warp takes a query of a head. */
__global__ void fast_delta_kernel(Values g, Values out, int64_t queries, Attention p, float *delta)
{
    int64_t all = queries * p.heads, n = (int64_t)gridDim.x * (blockDim.x / 32);
    int lane = threadIdx.x % 32;
    for (int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < all; i += n) {
        int64_t head = i / p.t, b = head / p.heads, h = head % p.heads;
        int64_t at = (b * p.t + i % p.t) * p.c + h * p.d;
        float sum = 0.0f;
        for (int j = lane; j < p.d; j += 32)
            sum = gckpti_fma(fast_get(g, at + j), fast_get(out, at + j), sum);
        for (int half = 16; half; half /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, half);
        if (lane == 0)
            delta[i] = sum;
    }
}

/* s becomes p = exp(s scale - aux), d, which is dp, becomes p (dp - delta) scale, of one element. */
__device__ inline void fast_slope(const Attention &p, float aux, float delta, int here, float *s,
                                  float *d)
{
    *s = here ? fast_exp2((*s * p.scale - aux) * LOG2E) : 0.0f;
    *d = *s * (*d - delta) * p.scale;
}

/* dq, of 64 queries over all keys they see. */
template <int D> __global__ void __launch_bounds__(128) fast_attention_dq_kernel(Attention p)
{
    enum { TILE = 64 * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *q = (uint16_t *)attention_tiles, *g = q + TILE, *k = g + TILE, *v = k + 2 * TILE;
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16, blocks = (p.t + 63) / 64;
    int head = (int)(blockIdx.x / blocks), b = head / p.heads, h = head % p.heads;
    int q0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * 64, i = q0 + row + lane / 4;
    int seen = p.causal && q0 + 64 < p.s ? q0 + 64 : p.s, steps = (seen + 63) / 64;
    float o[D / 8][4], s[8][4], d[8][4], aux[2], delta[2];
    const float once[2] = { 1.0f, 1.0f };
UNROLL
    for (int half = 0; half < 2; half++) {
        int64_t at = (int64_t)head * p.t + i + half * 8;
        aux[half] = i + half * 8 < p.t ? p.aux[at] : INFINITY;
        delta[half] = i + half * 8 < p.t ? p.delta[at] : 0.0f;
    }
    fast_clear<D>(o);
    fast_bring_lines<D, 64>(p, p.q, b, h, q0, p.t, q);
    fast_bring_lines<D, 64>(p, p.g, b, h, q0, p.t, g);
    for (int step = -1; step < steps; step++) {
        if (step + 1 < steps) {
            int to = (step + 1) % 2 * TILE;
            fast_bring_lines<D, 64>(p, p.k, b, h, (step + 1) * 64, p.s, k + to);
            fast_bring_lines<D, 64>(p, p.v, b, h, (step + 1) * 64, p.s, v + to);
        }
        gckpti_cp_async_commit();
        if (step < 0)
            continue;
        gckpti_cp_async_wait<1>();
        __syncthreads();
        fast_scores<D, 8>(q, row, k + step % 2 * TILE, s);
        fast_scores<D, 8>(g, row, v + step % 2 * TILE, d);
UNROLL
        for (int x = 0; x < 32; x++) {
            int half = x / 2 % 2, j = step * 64 + x / 4 * 8 + lane % 4 * 2 + x % 2;
            int here = j < p.s && (!p.causal || j <= i + half * 8);
            fast_slope(p, aux[half], delta[half], here, &s[x / 4][x % 4], &d[x / 4][x % 4]);
        }
        fast_add_lines<D, 8>(d, k + step % 2 * TILE, o);
        __syncthreads();
    }
    fast_store_lines<D>(p, p.dq, p.accumulate[0], b, h, q0 + row, p.t, o, once);
}

/* dk and dv, of 64 keys over all queries that see them, n at a time. Scores stand on their side:
 * rows are keys. */
template <int D, int n> __global__ void __launch_bounds__(128) fast_attention_dkv_kernel(Attention p)
{
    enum { TILE = 64 * D, PART = n * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *k = (uint16_t *)attention_tiles, *v = k + TILE, *q = v + TILE, *g = q + 2 * PART;
    SHARED(float, aux, [2][n]);
    SHARED(float, delta, [2][n]);
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16, blocks = (p.s + 63) / 64;
    int head = (int)(blockIdx.x / blocks), b = head / p.heads, h = head % p.heads;
    int k0 = (int)(blockIdx.x % blocks) * 64, first = p.causal ? k0 / n : 0;
    int steps = (p.t + n - 1) / n;
    float dk[D / 8][4], dv[D / 8][4], s[n / 8][4], d[n / 8][4];
    const float once[2] = { 1.0f, 1.0f };
    fast_clear<D>(dk);
    fast_clear<D>(dv);
    fast_bring_lines<D, 64>(p, p.k, b, h, k0, p.s, k);
    fast_bring_lines<D, 64>(p, p.v, b, h, k0, p.s, v);
    for (int step = first - 1; step < steps; step++) {
        if (step + 1 < steps) {
            int to = (step + 1) % 2, i = (step + 1) * n + (int)threadIdx.x;
            fast_bring_lines<D, n>(p, p.q, b, h, (step + 1) * n, p.t, q + to * PART);
            fast_bring_lines<D, n>(p, p.g, b, h, (step + 1) * n, p.t, g + to * PART);
            if (threadIdx.x < n) {
                aux[to][threadIdx.x] = i < p.t ? p.aux[(int64_t)head * p.t + i] : INFINITY;
                delta[to][threadIdx.x] = i < p.t ? p.delta[(int64_t)head * p.t + i] : 0.0f;
            }
        }
        gckpti_cp_async_commit();
        if (step < first)
            continue;
        int now = step % 2;
        gckpti_cp_async_wait<1>();
        __syncthreads();
        fast_scores<D, n / 8>(k, row, q + now * PART, s);
        fast_scores<D, n / 8>(v, row, g + now * PART, d);
UNROLL
        for (int x = 0; x < n / 2; x++) {
            int j = k0 + row + lane / 4 + x / 2 % 2 * 8, i = x / 4 * 8 + lane % 4 * 2 + x % 2;
            fast_slope(p, aux[now][i], delta[now][i], !p.causal || j <= step * n + i,
                       &s[x / 4][x % 4], &d[x / 4][x % 4]);
        }
        fast_add_lines<D, n / 8>(s, g + now * PART, dv);
        fast_add_lines<D, n / 8>(d, q + now * PART, dk);
        __syncthreads();
    }
    if (p.dk.wide || p.dk.narrow)
        fast_store_lines<D>(p, p.dk, p.accumulate[1], b, h, k0 + row, p.s, dk, once);
    if (p.dv.wide || p.dv.narrow)
        fast_store_lines<D>(p, p.dv, p.accumulate[2], b, h, k0 + row, p.s, dv, once);
}

/* The factors, copied where they are not bf16; out: the output's gradient (backward), its values. */
Attention attention_of(const gckpt_call *call, Room &room, bool backward)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    const gckpt_arg *in = call->in;
    Attention p;
    memset(&p, 0, sizeof p);
    int64_t queries = gckpti_elements(&in[0].shape), keys = gckpti_elements(&in[1].shape);
    p.t = (int)in[0].shape.d[1], p.s = (int)in[1].shape.d[1], p.c = (int)in[0].shape.d[2];
    p.heads = o->heads, p.causal = o->causal, p.d = p.c / p.heads;
    p.scale = 1.0f / gckpti_sqrt((float)p.d);
    p.q = factor(call, room, value_of(in[0]), queries);
    p.k = factor(call, room, value_of(in[1]), keys);
    p.v = factor(call, room, value_of(in[2]), keys);
    if (backward)
        p.g = factor(call, room, grad_out_of(call), queries);
    p.aux = (float *)call->aux;
    p.aligned = p.d % 8 == 0 && ((uintptr_t)p.q | (uintptr_t)p.k | (uintptr_t)p.v |
                                 (uintptr_t)p.g) % 16 == 0;
    return p;
}

#define HEADS(call, kernel, tiles, shared, p)                                                      \
    do {                                                                                           \
        int64_t heads = (call)->in[0].shape.d[0] * (p).heads;                                      \
        check(device_of(call),                                                                     \
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,            \
                                   (int)(shared)),                                                 \
              "shared memory");                                                                    \
        RUN(call, (kernel), dim3((unsigned)(heads * (tiles))), 128, (size_t)(shared), p);          \
    } while (0)

template <int D> void attention_forward(const gckpt_call *call, const Attention &p)
{
    HEADS(call, fast_attention_forward_kernel<D>, (p.t + 63) / 64, 5 * 64 * D * 2, p);
}

template <int D> void attention_backward(const gckpt_call *call, const Attention &p)
{
    enum { QUERIES = D == 64 ? 64 : 32 }; /* what the registers have room for */
    if (wanted(call->in[0]))
        HEADS(call, fast_attention_dq_kernel<D>, (p.t + 63) / 64, 6 * 64 * D * 2, p);
    if (wanted(call->in[1]) || wanted(call->in[2]))
        HEADS(call, (fast_attention_dkv_kernel<D, QUERIES>), (p.s + 63) / 64,
              (2 * 64 + 4 * QUERIES) * D * 2, p);
}

void fast_attention_forward(const gckpt_call *call)
{
    Room room = { (char *)call->work, 0 };
    Attention p = attention_of(call, room, false);
    p.out = { call->out, call->out_bf16 };
    if (p.d <= 64)
        attention_forward<64>(call, p);
    else
        attention_forward<128>(call, p);
}

void fast_attention_backward(const gckpt_call *call)
{
    Room room = { (char *)call->work, 0 };
    Attention p = attention_of(call, room, true);
    int64_t queries = call->shape.d[0] * call->shape.d[1];
    float *delta = (float *)take(room, (size_t)(queries * p.heads) * sizeof *delta);
    const Values out = { call->out, call->out_bf16 };
    RUN(call, fast_delta_kernel, blocks_for(queries * p.heads, 8), 256, 0, grad_out_of(call), out,
        queries, p, delta);
    p.delta = delta;
    p.dq = grad_of(call->in[0]), p.dk = grad_of(call->in[1]), p.dv = grad_of(call->in[2]);
    for (int i = 0; i < 3; i++)
        p.accumulate[i] = call->in[i].accumulate;
    if (p.d <= 64)
        attention_backward<64>(call, p);
    else
        attention_backward<128>(call, p);
}

gckpt_result fast_attention_room(gckpt_call *call)
{
    Room forward = { NULL, 0 }, backward = { NULL, 0 };
    Attention p = attention_of(call, forward, false);
    if (p.d > 128)
        return GCKPT_E_SHAPE;
    attention_of(call, backward, true);
    take(backward, (size_t)(call->shape.d[0] * call->shape.d[1] * p.heads) * sizeof(float));
    call->work_forward = forward.used;
    call->work_backward = backward.used;
    return GCKPT_OK;
}

/* ---- >>backend ------------------------------------------------------------------------------- */
#define OPS(X) X(gelu) X(gelu_erf) X(silu) X(tanh) X(sigmoid)

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

/* Of GCKPT_BF16_FAST: those that need room; all. */
#define FAST_ROOMS(X) X(linear) X(attention)
#define FAST_OPS(X)   FAST_ROOMS(X)

gckpt_kernel find_fast(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context;
#define X(which)                                                                                   \
    if (!strcmp(op->name, #which) && (op->flags & GCKPTI_OWN_ROW))                                 \
        return kind == GCKPT_FORWARD ? fast_##which##_forward : fast_##which##_backward;
    FAST_OPS(X)
#undef X
    return NULL;
}

gckpt_result workspace(void *context, const gckpt_op *op, gckpt_call *call)
{
    (void)context;
#define X(which)                                                                                   \
    if (call->precision == GCKPT_BF16_FAST && !strcmp(op->name, #which))                           \
        return fast_##which##_room(call);
    FAST_ROOMS(X)
#undef X
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
    if (result == cudaSuccess)
        result = cudaMalloc(&d->moment, sizeof *d->moment);
    if (result == cudaSuccess)
        result = cudaMemsetAsync(d->moment, 0, sizeof *d->moment, d->stream);
    if (result != cudaSuccess) {
        snprintf(problem, sizeof problem, "CUDA device %d: %s", device,
                 cudaGetErrorString(result));
        return NULL;
    }
    gckpt_backend b = { "cuda", d,    1,         1,    get, release, copy_in, copy_out, copy,
                        workspace, find, fill, add, convert, update, finish, NULL, NULL, NULL, NULL,
                        find_fast };
    d->backend = b;
    return &d->backend;
}
