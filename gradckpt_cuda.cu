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

gckpt_result workspace(void *context, const gckpt_op *op, gckpt_call *call)
{
    (void)context, (void)op, (void)call;
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
                        workspace, find, fill, add, convert, update, finish, NULL, NULL, NULL, NULL };
    d->backend = b;
    return &d->backend;
}
