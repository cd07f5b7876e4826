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

/* ---- >>products ------------------------------------------------------------------------------ */

/* ---- >>rows ----------------------------------------------------------------------------------
 * A row is a warp's, whose lanes are the contract's 32 (5d): they read 128 bytes in a row at a time,
 * and what a row is read for again lies in the L1. 8,000 rows are 60 warps for each of 132 SMs. */

/* for (EACH_ROW(r, rows)): the warps of the grid share the rows. A grid: blocks_for(32 * rows). */
#define EACH_ROW(r, rows)                                                                          \
    int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; r < (rows);                 \
    r += (int64_t)gridDim.x * blockDim.x / 32

/* Lane j += lane j + h for h = 16, 8, 4, 2, 1; as a + b = b + a, each lane ends with the sum. */
__device__ float warp_sum(float lane)
{
    for (int h = 16; h; h /= 2)
        lane += __shfl_xor_sync(0xffffffffu, lane, h);
    return lane;
}

/* gckpti_max's tree (of +0 and -0 it takes the first), for all lanes. */
__device__ float warp_max(float lane)
{
    for (int h = 16; h; h /= 2) {
        float other = __shfl_down_sync(0xffffffffu, lane, h);
        lane = other > lane ? other : lane;
    }
    return __shfl_sync(0xffffffffu, lane, 0);
}

/* Exponentials are computed twice rather than stored and read. y may be x. */
__global__ void softmax_forward_kernel(const float *x, float *y, int64_t rows, int64_t n)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        const float *from = x + r * n;
        float max = -INFINITY, sum = 0.0f;
        for (int64_t i = lane; i < n; i += 32)
            max = from[i] > max ? from[i] : max;
        max = gckpti_shift(warp_max(max));
        for (int64_t i = lane; i < n; i += 32)
            sum += gckpti_exp(from[i] - max);
        sum = warp_sum(sum);
        float by = sum == 0.0f ? 1.0f : sum; /* gckpti_softmax_end */
        for (int64_t i = lane; i < n; i += 32)
            y[r * n + i] = gckpti_exp(from[i] - max) / by;
    }
}

void softmax_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    RUN(call, softmax_forward_kernel, blocks_for(32 * rows, 256), 256, 0, call->in[0].data,
        call->out, rows, n);
}

/* d may be g: an element is read last by the lane that writes it. */
__global__ void softmax_backward_kernel(const float *y, const float *g, float *d, int64_t rows,
                                        int64_t n, int accumulate)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        float dot = 0.0f;
        for (int64_t i = r * n + lane; i < r * n + n; i += 32)
            dot = gckpti_fma(g[i], y[i], dot);
        dot = warp_sum(dot);
        for (int64_t i = r * n + lane; i < r * n + n; i += 32)
            gckpti_put_product(&d[i], y[i], g[i] - dot, accumulate);
    }
}

void softmax_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    if (call->in[0].grad)
        RUN(call, softmax_backward_kernel, blocks_for(32 * rows, 256), 256, 0, call->out,
            call->grad_out, call->in[0].grad, rows, n, call->in[0].accumulate);
}

/* The mean of x - c over a row. */
__device__ float mean_from(const float *x, int64_t n, float c)
{
    float sum = 0.0f;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        sum += x[i] - c;
    return warp_sum(sum) / (float)n;
}

__global__ void norm_forward_kernel(int center, const float *x, const float *gain,
                                    const float *bias, float *out, float *aux, int64_t rows,
                                    int64_t n)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        const float *from = x + r * n;
        float c = 0.0f, mean = 0.0f, squares = 0.0f;
        if (center) {
            c = from[0] + mean_from(from, n, from[0]);
            mean = mean_from(from, n, c);
        }
        for (int64_t i = lane; i < n; i += 32) {
            float d = gckpti_centered(from[i], c, mean);
            squares = gckpti_fma(d, d, squares);
        }
        float rstd = gckpti_rsqrt(warp_sum(squares) / (float)n + 1e-5f);
        for (int64_t i = lane; out && i < n; i += 32) {
            float d = gckpti_centered(from[i], c, mean), h = d * rstd;
            out[r * n + i] = gain && bias ? gckpti_fma(h, gain[i], bias[i])
                             : gain       ? h * gain[i]
                             : bias       ? gckpti_fma(d, rstd, bias[i])
                                          : h;
        }
        if (aux && center && lane < 3)
            aux[3 * r + lane] = lane == 0 ? c : lane == 1 ? mean : rstd;
        if (aux && !center && lane == 0)
            aux[r] = rstd;
    }
}

void layernorm_forward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    RUN(call, norm_forward_kernel, blocks_for(32 * rows, 256), 256, 0, o->center, call->in[0].data,
        o->gain ? call->in[o->gain].data : NULL, o->bias ? call->in[o->bias].data : NULL, call->out,
        (float *)call->aux, rows, n);
}

/* What the forward left of a row. */
struct Normed {
    float c, mean, rstd;
};

__device__ Normed normed(const float *aux, int64_t r, int center)
{
    if (center)
        return { aux[3 * r], aux[3 * r + 1], aux[3 * r + 2] };
    return { 0.0f, 0.0f, aux[r] };
}

__global__ void norm_backward_kernel(int center, const float *x, const float *gain,
                                     const float *aux, const float *g, float *dx, int64_t rows,
                                     int64_t n, int accumulate)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, rows)) {
        const float *from = x + r * n, *given = g + r * n;
        const Normed o = normed(aux, r, center);
        float a = 0.0f, b = 0.0f;
        for (int64_t i = lane; i < n; i += 32) {
            float u = gain ? gckpti_mul(given[i], gain[i]) : given[i];
            a += u;
            b = gckpti_fma(u, gckpti_centered(from[i], o.c, o.mean) * o.rstd, b);
        }
        a = center ? warp_sum(a) / (float)n : 0.0f;
        b = warp_sum(b) / (float)n;
        for (int64_t i = lane; i < n; i += 32) {
            float h = gckpti_centered(from[i], o.c, o.mean) * o.rstd;
            float u = gain ? gckpti_mul(given[i], gain[i]) : given[i];
            gckpti_put_product(&dx[r * n + i], o.rstd, gckpti_fma(-h, b, u - a), accumulate);
        }
    }
}

/* A sum over rows in their order (5e), as a thread keeps it. */
struct Sum {
    float *at, *low; /* at NULL: not wanted; low NULL: without */
    int accumulate;
};

enum { SUM_COLUMNS = 32, SUM_ROWS = 64 };

/* dgain (sums of g h) and dbias (of g). The additions of a column wait for each other, so that time
 * is rows times the latency of four additions. To wait for nothing else, warps 0 and 1 add up 32
 * columns of one of the two from shared memory, while all eight have the next 64 rows under way. */
__global__ void norm_sums_kernel(int center, const float *x, const float *aux, const float *g,
                                 Sum gain, Sum bias, int64_t rows, int64_t n)
{
    SHARED(float, tile, [2][2][SUM_ROWS][SUM_COLUMNS]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.x * SUM_COLUMNS + lane;
    const Sum mine = warp == 0 ? gain : bias;
    const bool adds = warp < 2 && mine.at && column < n;
    float sum = adds && mine.accumulate ? mine.at[column] : 0.0f;
    float low = adds && mine.low ? mine.low[column] : 0.0f, term[2][SUM_ROWS / 8];
    for (int64_t first = -SUM_ROWS; first < rows; first += SUM_ROWS) {
        int now = (int)(first / SUM_ROWS & 1);
        for (int k = 0; k < SUM_ROWS / 8; k++) { /* of the next rows */
            int64_t r = first + SUM_ROWS + 8 * k + warp;
            bool here = r < rows && column < n;
            term[1][k] = here ? g[r * n + column] : 0.0f;
            term[0][k] = 0.0f;
            if (here && gain.at) {
                const Normed o = normed(aux, r, center);
                float h = gckpti_centered(x[r * n + column], o.c, o.mean) * o.rstd;
                term[0][k] = gckpti_mul(term[1][k], h);
            }
        }
        if (adds && first >= 0) {
            const float(*from)[SUM_COLUMNS] = tile[now][warp];
            int count = (int)(rows - first < SUM_ROWS ? rows - first : SUM_ROWS);
#pragma unroll 8
            for (int k = 0; k < count; k++)
                gckpti_sum_add(&sum, mine.low ? &low : NULL, from[k][lane]);
        }
        for (int k = 0; k < SUM_ROWS / 8; k++)
            for (int of = 0; of < 2; of++)
                tile[!now][of][8 * k + warp][lane] = term[of][k];
        __syncthreads();
    }
    if (adds) {
        mine.at[column] = sum;
        if (mine.low)
            mine.low[column] = low;
    }
}

void layernorm_backward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const gckpt_arg *x = &call->in[0], *of_gain = &call->in[o->gain], *of_bias = &call->in[o->bias];
    const float *aux = (const float *)call->aux;
    Sum gain = { o->gain ? of_gain->grad : NULL, of_gain->low, of_gain->accumulate };
    Sum bias = { o->bias ? of_bias->grad : NULL, of_bias->low, of_bias->accumulate };
    if (gain.at || bias.at)
        RUN(call, norm_sums_kernel, dim3((unsigned)((n + SUM_COLUMNS - 1) / SUM_COLUMNS)), 256, 0,
            o->center, x->data, aux, call->grad_out, gain, bias, rows, n);
    if (x->grad)
        RUN(call, norm_backward_kernel, blocks_for(32 * rows, 256), 256, 0, o->center, x->data,
            o->gain ? of_gain->data : NULL, aux, call->grad_out, x->grad, rows, n, x->accumulate);
}

void rmsnorm_forward(const gckpt_call *call) { layernorm_forward(call); }
void rmsnorm_backward(const gckpt_call *call) { layernorm_backward(call); }

/* The next chunk of a row's classes, n <= 1024 of them, as gckpti_online without p; they stay in
 * registers. Places behind the last hold -inf, whose exponential, +0, adds nothing. */
__device__ void online_chunk(const float *x, int64_t n, bool first, float *max, float *sum)
{
    const int lane = (int)threadIdx.x % 32;
    float held[GCKPTI_LOSS_CHUNK / 32], top = -INFINITY, added = 0.0f, factor = 0.0f;
#pragma unroll
    for (int k = 0; k < GCKPTI_LOSS_CHUNK / 32; k++) {
        held[k] = lane + 32 * k < n ? x[lane + 32 * k] : -INFINITY;
        top = held[k] > top ? held[k] : top;
    }
    top = warp_max(top);
    if (!first) {
        top = top > *max ? top : *max;
        factor = gckpti_exp(*max - gckpti_shift(top));
    }
    float shift = gckpti_shift(top);
#pragma unroll
    for (int k = 0; k < GCKPTI_LOSS_CHUNK / 32; k++)
        added += gckpti_exp(held[k] - shift);
    added = warp_sum(added);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    *max = top;
}

/* Rows of a loss over classes, some of their classes. */
struct LossPart {
    const float *x;        /* (rows,n): logits of classes first..first+n-1 of `classes` */
    const int32_t *target; /* (rows) */
    float *aux;            /* (rows,2): max, log(sum); forward: NULL when not wanted */
    float *state, *losses; /* forward: (rows,3): max, sum, logit of the target, so far; (rows) */
    int64_t rows, first, n, classes;
};

/* A row left out adds -0 to the sum of losses, which changes no sum. */
__global__ void loss_forward_kernel(LossPart l)
{
    const int lane = (int)threadIdx.x % 32;
    for (EACH_ROW(r, l.rows)) {
        const float *x = l.x + r * l.n;
        const int64_t target = l.target[r], at = target - l.first;
        float *state = l.state + 3 * r, max = 0.0f, sum = 1.0f, hit = 0.0f;
        if (l.first > 0)
            max = state[0], sum = state[1], hit = state[2];
        __syncwarp();
        for (int64_t j = 0; target >= 0 && j < l.n; j += GCKPTI_LOSS_CHUNK)
            online_chunk(x + j, gckpti_min(l.n - j, GCKPTI_LOSS_CHUNK), l.first + j == 0, &max,
                         &sum);
        if (target >= 0 && at >= 0 && at < l.n)
            hit = x[at];
        if (l.first + l.n < l.classes) {
            if (lane < 3)
                state[lane] = lane == 0 ? max : lane == 1 ? sum : hit;
            continue;
        }
        gckpti_softmax_end(&max, &sum);
        float log_sum = gckpti_log(sum);
        if (lane == 0)
            l.losses[r] = target >= 0 ? log_sum - (hit - max) : -0.0f;
        if (l.aux && lane < 2)
            l.aux[2 * r + lane] = lane == 0 ? max : log_sum;
    }
}

/* d may be x. */
__global__ void loss_backward_kernel(LossPart l, float *d, float scale, int accumulate)
{
    enum { AT_ONCE = 4 };
    for (EACH_ROW(r, l.rows)) {
        const int64_t target = l.target[r] - l.first, end = r * l.n + l.n;
        const bool out = l.target[r] < 0;
        const float max = l.aux[2 * r], log_sum = l.aux[2 * r + 1];
        for (int64_t i = r * l.n + threadIdx.x % 32; i < end; i += 32 * AT_ONCE) {
            float x[AT_ONCE];
            for (int k = 0; k < AT_ONCE; k++)
                x[k] = !out && i + 32 * k < end ? l.x[i + 32 * k] : 0.0f;
            for (int k = 0; k < AT_ONCE && i + 32 * k < end; k++) {
                int64_t at = i + 32 * k;
                float p = gckpti_exp((x[k] - max) - log_sum);
                if (out && !accumulate)
                    d[at] = 0.0f;
                if (!out)
                    gckpti_put_product(&d[at], at - r * l.n == target ? p - 1.0f : p, scale,
                                       accumulate);
            }
        }
    }
}

enum { CHAIN_ROWS = 1024 }; /* of rows at a time */

/* The sum of losses is one binary64 chain over rows (5e): thread 0 adds, the other warps fetch what
 * comes next. Targets that are not left out are counted. One block. */
__global__ void loss_sum_kernel(const float *losses, const int32_t *target, int64_t rows,
                                double *sum, int64_t *count)
{
    SHARED(float, part, [2][CHAIN_ROWS]);
    SHARED(int, counted, [1]);
    double total = sum && threadIdx.x == 0 ? *sum : 0.0;
    int mine = 0;
    if (threadIdx.x == 0)
        counted[0] = 0;
    for (int64_t first = -CHAIN_ROWS; first < rows; first += CHAIN_ROWS) {
        int now = (int)(first / CHAIN_ROWS & 1);
        if (threadIdx.x == 0 && first >= 0) {
            int n = (int)(rows - first < CHAIN_ROWS ? rows - first : CHAIN_ROWS);
#pragma unroll 16
            for (int k = 0; k < n; k++)
                total += (double)part[now][k];
        }
        for (int k = (int)threadIdx.x - 32; k >= 0 && k < CHAIN_ROWS; k += (int)blockDim.x - 32) {
            int64_t r = first + CHAIN_ROWS + k;
            part[!now][k] = r < rows ? losses[r] : 0.0f;
            mine += r < rows && target[r] >= 0;
        }
        __syncthreads();
    }
    atomicAdd(&counted[0], mine);
    __syncthreads();
    if (threadIdx.x == 0 && sum)
        *sum = total;
    if (threadIdx.x == 0 && count)
        *count += counted[0];
}

void loss_add(const gckpt_call *call, const float *losses, int64_t rows)
{
    if (call->loss_sum || call->loss_count)
        RUN(call, loss_sum_kernel, 1, 288, 0, losses, call->in[call->inputs - 1].index, rows,
            call->loss_sum, call->loss_count);
}

void cross_entropy_forward(const gckpt_call *call)
{
    int64_t v = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    float *losses = (float *)call->work;
    LossPart l = { call->in[0].data, call->in[1].index, (float *)call->aux, NULL, losses, rows, 0, v,
                   v };
    RUN(call, loss_forward_kernel, blocks_for(32 * rows, 256), 256, 0, l);
    loss_add(call, losses, rows);
}

void cross_entropy_backward(const gckpt_call *call)
{
    int64_t v = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    LossPart l = { call->in[0].data, call->in[1].index, (float *)call->aux, NULL, NULL, rows, 0, v,
                   v };
    if (call->in[0].grad)
        RUN(call, loss_backward_kernel, blocks_for(32 * rows, 256), 256, 0, l, call->in[0].grad,
            call->loss_scale, call->in[0].accumulate);
}

/* ---- >>attention -----------------------------------------------------------------------------
 * A block takes 64 queries of a head (dk and dv: 64 keys) through tiles of 64 keys (queries) in
 * ascending order, all in shared memory, rows WIDTH + 4 floats apart, so that a float4 of each of
 * eight rows lies in other banks. Thread (ty, tx) has R of the 64 rows, ty, ty + 64 / R, .., and
 * 4 of 64 scores each, tx, tx + 16, ..: the sum of a row of exponentials (5d) has lanes tx and tx +
 * 16 in one thread, and goes on among the 16 threads of the row. Of WIDTH columns of a result it
 * has N = WIDTH / 16 (of the R rows R ty.. where rows are keys).
 * A float4 of R rows and one of 4 give 16 R links: with R = 8, 12 loads for 128.
 * Head sizes up to 64 run with WIDTH 64, R 8 (128 threads), others with 128, 4 (256 threads); beyond
 * 128 a block has a slice of 128 columns of the result, and computes all scores for it.
 * MIXED: bf16 plans (5l); factors are rounded as they enter shared memory, links flush. */
enum { TILE = GCKPTI_KEY_TILE, SCORES = TILE + 4 /* floats from row to row of scores */ };

struct Attention {
    const float *q, *k, *v, *g;
    float *out, *aux; /* backward: lse */
    const float *delta;
    float *dq, *dk, *dv;
    int accumulate[3];
    int64_t c; /* columns of all heads */
    int t, s, heads, d, slices, causal;
    int vector; /* rows of a head begin at multiples of 16 bytes */
    float scale;
};

/* What a block has: tile `tile` of head `column / d` of row `row`, columns from `slice` on. */
struct Place {
    int64_t row;
    int tile, head, slice;
};

/* Blocks count slices, tiles, heads, rows; queries that see most keys come first. */
__device__ Place place_of(const Attention &a, int tiles, bool backwards)
{
    int i = (int)blockIdx.x;
    Place p;
    p.slice = i % a.slices;
    i /= a.slices;
    p.tile = backwards ? tiles - 1 - i % tiles : i % tiles;
    i /= tiles;
    p.head = i % a.heads;
    p.row = i / a.heads;
    return p;
}

template <bool MIXED> __device__ float rounded(float x)
{
    return MIXED ? gckpti_from_bf16(gckpti_to_bf16(x)) : x;
}

template <bool MIXED> __device__ float chain(float a, float b, float c)
{
    return MIXED ? gckpti_flush(gckpti_fma(a, b, c)) : gckpti_fma(a, b, c);
}

/* Rows first..first+63 of x, of which there are `rows`, and columns e0..e0+WIDTH-1 of the head's d;
 * +0 where there are none. */
template <int R, int WIDTH, bool MIXED>
__device__ void fetch_tile(float *to, const float *x, const Attention &a, int first, int rows,
                           int e0)
{
    constexpr int THREADS = 16 * TILE / R;
    const int d = a.d - e0, here = rows - first;
    x += first * a.c + e0;
    if (a.vector) {
        constexpr int STEP = THREADS / (WIDTH / 4); /* rows at a time */
        const int e = (int)threadIdx.x % (WIDTH / 4) * 4, at = (int)threadIdx.x / (WIDTH / 4);
        const float *from = x + at * a.c + e;
        to += at * (WIDTH + 4) + e;
#pragma unroll 4
        for (int row = 0; row < TILE; row += STEP, from += STEP * a.c) {
            float4 f = { 0.0f, 0.0f, 0.0f, 0.0f };
            if (at + row < here && e < d)
                f = *(const float4 *)from;
            *(float4 *)(to + row * (WIDTH + 4)) = { rounded<MIXED>(f.x), rounded<MIXED>(f.y),
                                                    rounded<MIXED>(f.z), rounded<MIXED>(f.w) };
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < TILE * WIDTH; i += THREADS) {
        int row = i / WIDTH, e = i % WIDTH;
        to[row * (WIDTH + 4) + e] = row < here && e < d ? rounded<MIXED>(x[row * a.c + e]) : 0.0f;
    }
}

/* s: chains over n columns, from what it holds, of this thread's R rows of a and 4 of b. */
template <int R, int WIDTH, bool MIXED>
__device__ void dots(float (&s)[R][4], const float *a, const float *b, int n)
{
    constexpr int ROW = WIDTH + 4;
    constexpr int STEP = TILE / R;
    a += threadIdx.x / 16 * ROW;
    b += threadIdx.x % 16 * ROW;
    n = n < WIDTH ? n : WIDTH;
    int e = 0;
#pragma unroll 1
    for (; e + 4 <= n; e += 4) {
        float4 y[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            y[c] = *(const float4 *)(b + 16 * c * ROW + e);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 x = *(const float4 *)(a + STEP * r * ROW + e);
#pragma unroll
            for (int c = 0; c < 4; c++)
                s[r][c] = chain<MIXED>(x.x, y[c].x, s[r][c]);
#pragma unroll
            for (int c = 0; c < 4; c++)
                s[r][c] = chain<MIXED>(x.y, y[c].y, s[r][c]);
#pragma unroll
            for (int c = 0; c < 4; c++)
                s[r][c] = chain<MIXED>(x.z, y[c].z, s[r][c]);
#pragma unroll
            for (int c = 0; c < 4; c++)
                s[r][c] = chain<MIXED>(x.w, y[c].w, s[r][c]);
        }
    }
    for (; e < n; e++)
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int r = 0; r < R; r++)
                s[r][c] = chain<MIXED>(a[STEP * r * ROW + e], b[16 * c * ROW + e], s[r][c]);
}

/* Column n of a thread: four in a row, the next four 64 further on. */
__device__ int column_of(int n) { return (int)threadIdx.x % 16 * 4 + n % 4 + n / 4 * 64; }

/* A row of x, its columns of this thread. */
template <int N> __device__ void columns(float (&y)[N], const float *x)
{
#pragma unroll
    for (int n = 0; n < N; n += 4) {
        float4 f = *(const float4 *)(x + column_of(n));
        y[n] = f.x, y[n + 1] = f.y, y[n + 2] = f.z, y[n + 3] = f.w;
    }
}

/* o: the next links of chains over keys, of this thread's rows: p_j v_j, j = 0..keys-1; diagonal:
 * row i has none of keys beyond i. */
template <int R, int N, bool MIXED>
__device__ void links_of_keys(float (&o)[R][N], const float *p, const float *v, int keys,
                              bool diagonal)
{
    constexpr int ROW = 16 * N + 4;
    constexpr int STEP = TILE / R;
    const int row = (int)threadIdx.x / 16;
    float y[N];
    int j = 0;
    p += row * SCORES;
#pragma unroll 1
    for (; !diagonal && j + 4 <= keys; j += 4) {
        float4 x[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            x[r] = *(const float4 *)(p + STEP * r * SCORES + j);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            columns(y, v + (j + k) * ROW);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    o[r][n] = chain<MIXED>(k == 0   ? x[r].x
                                          : k == 1 ? x[r].y
                                          : k == 2 ? x[r].z
                                                   : x[r].w,
                                          y[n], o[r][n]);
        }
    }
    for (; j < keys; j++) {
        columns(y, v + j * ROW);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float x = p[STEP * r * SCORES + j];
            bool sees = !diagonal || j <= row + STEP * r;
#pragma unroll
            for (int n = 0; n < N; n++)
                o[r][n] = sees ? chain<MIXED>(x, y[n], o[r][n]) : o[r][n];
        }
    }
}

/* o: the next links of chains over queries, of this thread's rows, which are keys: p_i g_i, i =
 * 0..queries-1; diagonal: key j has none of queries before j. */
template <int R, int N, bool MIXED>
__device__ void links_of_queries(float (&o)[R][N], const float *p, const float *g, int queries,
                                 bool diagonal)
{
    constexpr int ROW = 16 * N + 4;
    const int row = (int)threadIdx.x / 16 * R;
    p += row;
#pragma unroll 4
    for (int i = 0; i < queries; i++) {
        float x[R], y[N];
#pragma unroll
        for (int r = 0; r < R; r += 4) {
            float4 f = *(const float4 *)(p + i * SCORES + r);
            x[r] = f.x, x[r + 1] = f.y, x[r + 2] = f.z, x[r + 3] = f.w;
        }
        columns(y, g + i * ROW);
#pragma unroll
        for (int r = 0; r < R; r++) {
            bool seen = !diagonal || i >= row + r;
#pragma unroll
            for (int n = 0; n < N; n++)
                o[r][n] = seen ? chain<MIXED>(x[r], y[n], o[r][n]) : o[r][n];
        }
    }
}

/* What chains start from: this thread's part of a result x of `rows` rows, first, first + STEP, ..,
 * columns e0.. of the head. */
template <int R, int N, int STEP, bool MIXED>
__device__ void begin_rows(float (&o)[R][N], const float *x, const Attention &a, int first,
                           int rows, int e0, int accumulate)
{
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            int e = e0 + column_of(n);
            int row = first + STEP * r;
            o[r][n] = accumulate && row < rows && e < a.d ? x[row * a.c + e] : 0.0f;
            o[r][n] = MIXED ? gckpti_flush(o[r][n]) : o[r][n];
        }
}

/* Stores it. */
template <int R, int N, int STEP>
__device__ void end_rows(const float (&o)[R][N], float *x, const Attention &a, int first, int rows,
                         int e0)
{
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            int e = e0 + column_of(n);
            int row = first + STEP * r;
            float *to = x + row * a.c + e;
            if (a.vector && row < rows && e < a.d) {
                *(float4 *)to = { o[r][n], o[r][n + 1], o[r][n + 2], o[r][n + 3] };
                continue;
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (row < rows && e + k < a.d)
                    to[k] = o[r][n + k];
        }
}

/* To shared memory, as factors. */
template <int R, bool MIXED> __device__ void put_scores(float *to, const float (&x)[R][4])
{
    to += threadIdx.x / 16 * SCORES + threadIdx.x % 16;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            to[TILE / R * r * SCORES + 16 * c] = rounded<MIXED>(x[r][c]);
}

/* Sum and greatest among the 16 threads of a row, by halves 8, 4, 2, 1 of the contract's tree. */
__device__ float row_sum(float x)
{
    for (int h = 8; h; h /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, h);
    return x;
}

__device__ float row_max(float x)
{
    for (int h = 8; h; h /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, h));
    return x;
}

/* Which of two zeros of either sign is the greatest matters to no result: fmaxf. Keys out of sight
 * have the score -inf, whose exponential, +0, changes no sum; they are no links (v may be inf).
 * Exponentials take the place of k. On an H200 three blocks share a multiprocessor. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, (R == 8 ? 3 : 2) - MIXED)
    attention_forward_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, STEP = TILE / R;
    DYNAMIC_SHARED(float4, room);
    float *q = (float *)room, *k = q + TILE * ROW, *v = k + TILE * ROW, *p = k;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    const Place at = place_of(a, (a.t + TILE - 1) / TILE, true);
    const int first = at.tile * TILE;
    const int64_t column = (int64_t)at.head * a.d;
    const float *qs = a.q + at.row * a.t * a.c + column;
    const float *ks = a.k + at.row * a.s * a.c + column, *vs = a.v + at.row * a.s * a.c + column;
    const int seen = a.causal ? min(a.s, first + TILE) : a.s;
    float o[R][N] = {}, max[R], sum[R];
    for (int j0 = 0; j0 < seen; j0 += TILE) {
        const int keys = min(seen - j0, (int)TILE);
        const bool diagonal = a.causal && j0 == first;
        float x[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            if (j0 == 0 || a.d > WIDTH)
                fetch_tile<R, WIDTH, MIXED>(q, qs, a, first, a.t, e0);
            fetch_tile<R, WIDTH, MIXED>(k, ks, a, j0, a.s, e0);
            if (e0 == 0 && a.out)
                fetch_tile<R, WIDTH, MIXED>(v, vs, a, j0, a.s, at.slice * WIDTH);
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int row = ty + STEP * r, sees = diagonal && row < keys ? row + 1 : keys;
            float top = -INFINITY, factor = 0.0f;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                x[r][c] = tx + 16 * c < sees ? gckpti_mul(x[r][c], a.scale) : -INFINITY;
                top = fmaxf(top, x[r][c]);
            }
            top = row_max(top);
            if (j0 > 0) {
                top = fmaxf(top, max[r]);
                factor = gckpti_exp(max[r] - gckpti_shift(top));
            }
            const float shift = gckpti_shift(top);
#pragma unroll
            for (int c = 0; c < 4; c++)
                x[r][c] = gckpti_exp(x[r][c] - shift);
            const float added = row_sum((x[r][0] + x[r][2]) + (x[r][1] + x[r][3]));
            sum[r] = j0 > 0 ? gckpti_fma(sum[r], factor, added) : added;
            max[r] = top;
#pragma unroll
            for (int n = 0; n < N; n++)
                if (j0 > 0)
                    o[r][n] = MIXED ? gckpti_flush(o[r][n] * factor) : o[r][n] * factor;
        }
        put_scores<R, MIXED>(p, x);
        __syncwarp(); /* a warp's rows of p are its own */
        if (a.out)
            links_of_keys<R, N, MIXED>(o, p, v, keys, diagonal);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int row = first + ty + STEP * r;
        gckpti_softmax_end(&max[r], &sum[r]);
        if (a.aux && at.slice == 0 && tx == 0 && row < a.t)
            a.aux[(at.row * a.heads + at.head) * a.t + row] = max[r] + gckpti_log(sum[r]);
#pragma unroll
        for (int n = 0; n < N; n++)
            o[r][n] /= sum[r];
    }
    if (a.out)
        end_rows<R, N, STEP>(o, a.out + at.row * a.t * a.c + column, a, first + ty, a.t,
                             at.slice * WIDTH);
}

/* delta = dot(g, out) over a head's columns, for each query of each head: a warp each. */
__global__ void attention_delta_kernel(Attention a, float *delta, int64_t queries)
{
    for (EACH_ROW(r, queries)) {
        int64_t head = r / a.t % a.heads, row = r / a.t / a.heads;
        int64_t at = (row * a.t + r % a.t) * a.c + head * a.d;
        float lane = 0.0f;
        for (int e = (int)threadIdx.x % 32; e < a.d; e += 32)
            lane = gckpti_fma(a.g[at + e], a.out[at + e], lane);
        lane = warp_sum(lane);
        if (threadIdx.x % 32 == 0)
            delta[r] = lane;
    }
}

/* Scores become probabilities; the first row is query `first` of the head. */
template <int R>
__device__ void probabilities(float (&x)[R][4], const Attention &a, int64_t of_head, int first)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int row = first + TILE / R * r;
        const float lse = row < a.t ? a.aux[of_head + row] : 0.0f;
#pragma unroll
        for (int c = 0; c < 4; c++)
            x[r][c] = gckpti_exp(gckpti_mul(x[r][c], a.scale) - lse);
    }
}

/* y, their gradients, becomes ds. */
template <int R>
__device__ void score_gradients(float (&y)[R][4], const float (&p)[R][4], const Attention &a,
                                int64_t of_head, int first)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int row = first + TILE / R * r;
        const float delta = row < a.t ? a.delta[of_head + row] : 0.0f;
#pragma unroll
        for (int c = 0; c < 4; c++)
            y[r][c] = p[r][c] * (y[r][c] - delta) * a.scale;
    }
}

/* dq of 64 queries: chains over keys ascending; ds takes the place of v. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 3 - MIXED : 1)
    attention_dq_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, STEP = TILE / R;
    DYNAMIC_SHARED(float4, room);
    float *q = (float *)room, *k = q + TILE * ROW, *g = k + TILE * ROW, *v = g + TILE * ROW, *ds = v;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    const Place at = place_of(a, (a.t + TILE - 1) / TILE, true);
    const int first = at.tile * TILE;
    const int64_t column = (int64_t)at.head * a.d;
    const int64_t queries = at.row * a.t * a.c + column, keys = at.row * a.s * a.c + column;
    const int seen = a.causal ? min(a.s, first + TILE) : a.s;
    const int64_t of_head = (at.row * a.heads + at.head) * a.t;
    float o[R][N];
    begin_rows<R, N, STEP, MIXED>(o, a.dq + queries, a, first + ty, a.t, at.slice * WIDTH,
                                  a.accumulate[0]);
    for (int j0 = 0; j0 < seen; j0 += TILE) {
        float x[R][4] = {}, y[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            if (j0 == 0 || a.d > WIDTH) {
                fetch_tile<R, WIDTH, MIXED>(q, a.q + queries, a, first, a.t, e0);
                fetch_tile<R, WIDTH, MIXED>(g, a.g + queries, a, first, a.t, e0);
            }
            fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, a, j0, a.s, e0);
            fetch_tile<R, WIDTH, MIXED>(v, a.v + keys, a, j0, a.s, e0);
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
            if (e0 + WIDTH >= a.d)
                probabilities<R>(x, a, of_head, first + ty);
            dots<R, WIDTH, MIXED>(y, g, v, a.d - e0);
        }
        __syncthreads();
        if (a.d > WIDTH)
            fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, a, j0, a.s, at.slice * WIDTH);
        score_gradients<R>(y, x, a, of_head, first + ty);
        put_scores<R, MIXED>(ds, y);
        __syncthreads();
        links_of_keys<R, N, MIXED>(o, ds, k, min(seen - j0, (int)TILE),
                                   a.causal && j0 == first);
    }
    end_rows<R, N, STEP>(o, a.dq + queries, a, first + ty, a.t, at.slice * WIDTH);
}

/* dk and dv of 64 keys: chains over queries ascending. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 2 : 1) attention_dk_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, STEP = TILE / R;
    DYNAMIC_SHARED(float4, room);
    float *q = (float *)room, *k = q + TILE * ROW, *g = k + TILE * ROW, *v = g + TILE * ROW;
    float *scores = v + TILE * ROW;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    const Place at = place_of(a, (a.s + TILE - 1) / TILE, false);
    const int first = at.tile * TILE;
    const int64_t column = (int64_t)at.head * a.d;
    const int64_t queries = at.row * a.t * a.c + column, keys = at.row * a.s * a.c + column;
    const int64_t of_head = (at.row * a.heads + at.head) * a.t;
    const int slice = at.slice * WIDTH;
    float dk[R][N], dv[R][N];
    float *const to_k = a.dk ? a.dk + keys : NULL, *const to_v = a.dv ? a.dv + keys : NULL;
    begin_rows<R, N, 1, MIXED>(dk, to_k, a, first + R * ty, a.s, slice, a.accumulate[1]);
    begin_rows<R, N, 1, MIXED>(dv, to_v, a, first + R * ty, a.s, slice, a.accumulate[2]);
    for (int i0 = a.causal ? first : 0; i0 < a.t; i0 += TILE) {
        const int n = min(a.t - i0, (int)TILE);
        const bool diagonal = a.causal && i0 == first;
        float x[R][4] = {}, y[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            fetch_tile<R, WIDTH, MIXED>(q, a.q + queries, a, i0, a.t, e0);
            fetch_tile<R, WIDTH, MIXED>(g, a.g + queries, a, i0, a.t, e0);
            if (i0 == (a.causal ? first : 0) || a.d > WIDTH) {
                fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, a, first, a.s, e0);
                fetch_tile<R, WIDTH, MIXED>(v, a.v + keys, a, first, a.s, e0);
            }
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
            if (e0 + WIDTH >= a.d)
                probabilities<R>(x, a, of_head, i0 + ty);
            if (a.dk)
                dots<R, WIDTH, MIXED>(y, g, v, a.d - e0);
        }
        if (a.d > WIDTH) {
            __syncthreads();
            fetch_tile<R, WIDTH, MIXED>(q, a.q + queries, a, i0, a.t, slice);
            fetch_tile<R, WIDTH, MIXED>(g, a.g + queries, a, i0, a.t, slice);
        }
        put_scores<R, MIXED>(scores, x);
        __syncthreads();
        if (a.dv)
            links_of_queries<R, N, MIXED>(dv, scores, g, n, diagonal);
        if (!a.dk)
            continue;
        __syncthreads();
        score_gradients<R>(y, x, a, of_head, i0 + ty);
        put_scores<R, MIXED>(scores, y);
        __syncthreads();
        links_of_queries<R, N, MIXED>(dk, scores, q, n, diagonal);
    }
    if (a.dk)
        end_rows<R, N, 1>(dk, to_k, a, first + R * ty, a.s, slice);
    if (a.dv)
        end_rows<R, N, 1>(dv, to_v, a, first + R * ty, a.s, slice);
}

/* Blocks for `rows` queries or keys a head, with `tiles` tiles of WIDTH columns and `more` floats in
 * shared memory. */
#define RUN_TILES(call, kernel, rows, tiles, more)                                                 \
    do {                                                                                           \
        int bytes = (int)sizeof(float) * ((tiles) * TILE * (WIDTH + 4) + (more));                  \
        int64_t blocks = call->shape.d[0] * (((rows) + TILE - 1) / TILE) * a.heads * a.slices;    \
        check(device_of(call),                                                                     \
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),    \
              #kernel);                                                                            \
        RUN(call, kernel, dim3((unsigned)blocks), dim3(16 * TILE / R), (size_t)bytes, a);          \
    } while (0)

template <int R, int WIDTH, bool MIXED> void attention_run(const gckpt_call *call, Attention a)
{
    a.slices = (a.d + WIDTH - 1) / WIDTH;
    if (!a.g)
        RUN_TILES(call, (attention_forward_kernel<R, WIDTH, MIXED>), a.t, 3, 0);
    if (a.g && a.dq)
        RUN_TILES(call, (attention_dq_kernel<R, WIDTH, MIXED>), a.t, 4, 0);
    if (a.g && (a.dk || a.dv))
        RUN_TILES(call, (attention_dk_kernel<R, WIDTH, MIXED>), a.s, 4, TILE * SCORES);
}

bool by_16(const void *p) { return (uintptr_t)p % 16 == 0; }

/* Forward and, with grad_out, backward. */
void attention_both(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    const gckpt_arg *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    const gckpt_shape *shape = &call->shape;
    Attention a = { q->data, k->data, v->data, call->grad_out, call->out, (float *)call->aux,
                    (const float *)call->work, NULL, NULL, NULL, { 0, 0, 0 },
                    shape->d[2], (int)shape->d[1], (int)k->shape.d[1],
                    o->heads, (int)(shape->d[2] / o->heads), 1, o->causal, 0, 0.0f };
    a.scale = 1.0f / gckpti_sqrt((float)a.d);
    if (a.g) {
        a.dq = q->grad, a.dk = k->grad, a.dv = v->grad;
        for (int i = 0; i < 3; i++)
            a.accumulate[i] = call->in[i].grad && call->in[i].accumulate;
    }
    a.vector = a.d % 4 == 0 && by_16(a.q) && by_16(a.k) && by_16(a.v) && by_16(a.g) &&
               by_16(a.out) && by_16(a.dq) && by_16(a.dk) && by_16(a.dv);
    int64_t queries = shape->d[0] * a.heads * shape->d[1];
    if (a.dq || a.dk)
        RUN(call, attention_delta_kernel, blocks_for(32 * queries, 256), 256, 0, a,
            (float *)call->work, queries);
    const bool mixed = call->precision != GCKPT_FP32;
    if (a.d <= 64)
        mixed ? attention_run<8, 64, true>(call, a) : attention_run<8, 64, false>(call, a);
    else
        mixed ? attention_run<4, 128, true>(call, a) : attention_run<4, 128, false>(call, a);
}

void attention_forward(const gckpt_call *call) { attention_both(call); }
void attention_backward(const gckpt_call *call) { attention_both(call); }

/* ---- >>backend ------------------------------------------------------------------------------- */
#define OPS(X)                                                                                     \
    X(gelu) X(gelu_erf) X(silu) X(tanh) X(sigmoid)                                                 \
    X(softmax) X(layernorm) X(rmsnorm) X(cross_entropy) X(attention)

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
    if (!(op->flags & GCKPTI_OWN_ROW))
        return GCKPT_OK;
    if (!strcmp(op->name, "cross_entropy")) /* a loss of each row */
        call->work_forward = (size_t)gckpti_rows(&call->in[0].shape) * sizeof(float);
    if (!strcmp(op->name, "attention")) /* delta of each query of each head */
        call->work_backward = call->aux_bytes;
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
