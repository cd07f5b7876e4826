/* gradckpt_cuda.cu - a CUDA device as a backend of gradckpt.h.  MIT licence.
 *
 *     nvcc -O3 -std=c++17 -fmad=false -arch=sm_90 -c gradckpt_cuda.cu
 *
 * and link the object, the CUDA runtime and that of C++ (-lcudart -lstdc++) to the program; nothing
 * else is needed. Then
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
#include <mutex>
#define GCKPT_STATIC
#define GCKPT_NO_FAST
#define GCKPT_NO_STDIO
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

namespace {

/* ---- >>device -------------------------------------------------------------------------------- */
/* What may differ when a recorded micro-batch is repeated. So kernels that need a call's row, seed,
 * step or loss_scale do not get them as arguments: they get moment_of(call), an address in the
 * device's memory, and read them there. Host code must not depend on them. All else (shapes, rows,
 * addresses) is the same in each repetition. An update is never repeated: it takes its gckpt_pass. */
struct Moment {
    int64_t row;
    uint64_t seed, step;
    float loss_scale;
};

#ifndef GCKPT_CUDA_SLOT_BYTES /* tests have small ones */
#define GCKPT_CUDA_SLOT_BYTES (1 << 19)
#endif
enum {
    TEXT = 256,    /* bytes of an error */
    LOSSES = 14,   /* a plan with more is not recorded */
    SLOTS = 64,    /* by which copies come in: 32 MiB on either side */
    SLOT_BYTES = GCKPT_CUDA_SLOT_BYTES,
    RECORDINGS = 64 /* kept for all executors of a device; then the oldest goes */
};

/* The first: as the micro-batch has it (outside of recordings: as the present call has it); the
 * second: of what does not depend on the batch, with row 0; then one for each loss. */
struct Moments {
    Moment at[2 + LOSSES];
};

/* A micro-batch of `rows` rows as a CUDA graph; the first of a batch (row 0) has its own. */
struct Recording {
    const void *owner; /* NULL: none */
    int64_t rows;
    int first, seen;       /* seen: what loads at first use has been loaded */
    cudaGraphExec_t graph; /* NULL: not recorded yet */
};

/* A piece of pinned memory and one of the device. What comes in goes through both, on a stream of
 * its own while others compute, and from there to its place when these are done. */
struct Slot {
    cudaEvent_t arrived, taken; /* at the device; from there */
    int used;                   /* since all was last waited for */
};

/* Calls of several threads, for several executors, come one by one, into one stream. */
struct Device {
    int number, ready;
    std::recursive_mutex lock;
    cudaStream_t stream, feeds; /* what is computed; what comes in */
    int busy;                   /* work was asked for since all was last waited for */
    char problem[TEXT];         /* the first one */
    Moments now, *moments;      /* the latter hold, or soon, the former */
    Slot slots[SLOTS];
    int slot; /* the next one */
    char *pinned, *staged;
    Recording recordings[RECORDINGS], *recording; /* the one that is being made */
    int unrecordable;                             /* it failed */
    int ids[LOSSES], losses;                      /* whose moments->at[2], .. are */
    int oldest;
    gckpt_backend backend;
};
Device devices[16];

Device *device_of(const gckpt_call *call) { return (Device *)call->backend; }

/* What the program can do about an error. By number: toolkits differ in the names they know. */
const char *remedy(int error)
{
    switch (error) {
    case 2: /* cudaErrorMemoryAllocation */
        return "plan with a smaller budget";
    case 35:  /* cudaErrorInsufficientDriver */
    case 222: /* cudaErrorUnsupportedPtxVersion */
        return "the driver is older than nvcc: update it, or compile by an older toolkit";
    case 46: /* cudaErrorDevicesUnavailable */
        return "another process holds it exclusively";
    case 98:  /* cudaErrorInvalidDeviceFunction */
    case 209: /* cudaErrorNoKernelImageForDevice */
        return "compile gradckpt_cuda.cu for it: nvcc -arch=native";
    case 100: /* cudaErrorNoDevice */
        return "nvidia-smi and CUDA_VISIBLE_DEVICES show which there are";
    case 701: /* cudaErrorLaunchOutOfResources */
        return "compile gradckpt_cuda.cu by nvcc -O3 -arch=native";
    case 702: /* cudaErrorLaunchTimeout */
        return "a device with a display stops long kernels: take smaller micro-batches";
    case 700: /* cudaErrorIllegalAddress */
    case 710: /* cudaErrorAssert */
    case 714: /* cudaErrorHardwareStackError */
    case 715: /* cudaErrorIllegalInstruction */
    case 716: /* cudaErrorMisalignedAddress */
    case 717: /* cudaErrorInvalidAddressSpace */
    case 718: /* cudaErrorInvalidPc */
    case 719: /* cudaErrorLaunchFailure */
        return "with CUDA_LAUNCH_BLOCKING=1 this names the kernel; start again from what was saved";
    case 214: /* cudaErrorECCUncorrectable */
    case 220: /* cudaErrorNvlinkUncorrectable */
    case 226: /* cudaErrorExternalDevice, as below: the device is not there any more */
    case 721: /* cudaErrorContained */
    case 802: /* cudaErrorSystemNotReady */
    case 999: /* cudaErrorUnknown */
        return "the device is lost (dmesg, nvidia-smi): start again from what was saved";
    default: return "start again from what was saved";
    }
}

void explain(char *text, int number, cudaError_t error, const char *what)
{
    snprintf(text, TEXT, "CUDA device %d: %s: %s (%s); %s", number, what, cudaGetErrorString(error),
             cudaGetErrorName(error), remedy((int)error));
}

/* The first error stays. In a recording it only ends that: run plainly, it comes again, or not. */
void check(Device *d, cudaError_t error, const char *what)
{
    if (error != cudaSuccess && d->recording)
        d->unrecordable = 1;
    else if (error != cudaSuccess && !d->problem[0])
        explain(d->problem, d->number, error, what);
}

/* In each of the table's functions: one thread at a time, with this device as CUDA's current one.
 * The program may have another, and an error of its own; the former is put back. */
struct Hold {
    Device *d;
    int before;
    explicit Hold(Device *device) : d(device), before(device->number)
    {
        d->lock.lock();
        cudaGetDevice(&before);
        if (before != d->number)
            cudaSetDevice(d->number);
        cudaGetLastError();
    }
    ~Hold()
    {
        if (before != d->number)
            cudaSetDevice(before);
        d->lock.unlock();
    }
};

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

#define RUN_ON(device, kernel, grid, block, shared, ...)                                           \
    do {                                                                                           \
        LAUNCH(kernel, grid, block, shared, (device)->stream, __VA_ARGS__);                        \
        check(device, cudaGetLastError(), #kernel);                                                \
        (device)->busy = 1;                                                                        \
    } while (0)
#define RUN(call, kernel, grid, block, shared, ...)                                                \
    RUN_ON(device_of(call), kernel, grid, block, shared, __VA_ARGS__)

__global__ void moments_kernel(Moments *to, Moments now, int n)
{
    if ((int)threadIdx.x < n)
        to->at[threadIdx.x] = now.at[threadIdx.x];
}

/* For a kernel of this call: its row, seed, step and loss_scale, until the next call. */
const Moment *moment_of(const gckpt_call *call)
{
    Device *d = device_of(call);
    Moment m = { call->row, call->seed, call->step, call->loss_scale }, *now = &d->now.at[0];
    for (int i = 0; i < d->losses && d->recording; i++)
        if (d->ids[i] == call->id)
            return &d->moments->at[2 + i];
    if (d->recording)
        return &d->moments->at[call->row ? 0 : 1];
    if (m.row != now->row || m.seed != now->seed || m.step != now->step ||
        gckpti_bits(m.loss_scale) != gckpti_bits(now->loss_scale)) {
        *now = m;
        RUN_ON(d, moments_kernel, 1, 1, 0, d->moments, d->now, 1);
    }
    return &d->moments->at[0];
}

/* 1: within a recording, which cannot have what the host takes part in. */
int unrecordable(Device *d)
{
    d->unrecordable = 1;
    return d->recording != NULL;
}

/* ---- memory ---- */
thread_local char no_room[TEXT]; /* why the thread's last `get` found none */

void *get(void *context, size_t bytes, size_t alignment)
{
    Device *d = (Device *)context;
    Hold hold(d);
    void *p = NULL;
    size_t unused = 0, all = 0;
    (void)alignment; /* 256 bytes at least */
    no_room[0] = 0;
    if (unrecordable(d))
        return NULL;
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 1);
    if (error == cudaSuccess)
        return p;
    cudaGetLastError();
    if (error != cudaErrorMemoryAllocation) {
        check(d, error, "cudaMalloc");
        snprintf(no_room, sizeof no_room, ": %s", d->problem);
    } else if (cudaMemGetInfo(&unused, &all) == cudaSuccess) {
        snprintf(no_room, sizeof no_room,
                 ": CUDA device %d has %zu of its %zu bytes left, not %zu; plan with a smaller "
                 "budget, or end what else uses it",
                 d->number, unused, all, bytes);
    }
    return NULL;
}

const char *shortage(void *context)
{
    (void)context;
    return no_room;
}

/* Until all that was asked for is done; then all slots are free. */
void settle(Device *d, const char *what)
{
    if (!d->busy || unrecordable(d))
        return;
    check(d, cudaStreamSynchronize(d->stream), what);
    d->busy = 0;
    for (int i = 0; i < SLOTS; i++)
        d->slots[i].used = 0;
}

void release(void *context, void *memory, size_t bytes)
{
    Device *d = (Device *)context;
    Hold hold(d);
    (void)bytes;
    settle(d, "release");
    check(d, cudaFree(memory), "cudaFree");
}

/* By slots. The host waits only where its bytes go to a pinned piece that is not read yet. */
void copy_in(void *context, void *to, const void *host, size_t bytes)
{
    Device *d = (Device *)context;
    Hold hold(d);
    for (size_t at = 0, n; at < bytes && !d->problem[0] && !unrecordable(d); at += n) {
        Slot *s = &d->slots[d->slot];
        char *pinned = d->pinned + (size_t)d->slot * SLOT_BYTES;
        char *staged = d->staged + (size_t)d->slot * SLOT_BYTES;
        d->slot = (d->slot + 1) % SLOTS;
        n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        if (s->used) {
            check(d, cudaEventSynchronize(s->arrived), "copy in");
            check(d, cudaStreamWaitEvent(d->feeds, s->taken, 0), "copy in");
        }
        s->used = d->busy = 1;
        memcpy(pinned, (const char *)host + at, n);
        check(d, cudaMemcpyAsync(staged, pinned, n, cudaMemcpyHostToDevice, d->feeds), "copy in");
        check(d, cudaEventRecord(s->arrived, d->feeds), "copy in");
        check(d, cudaStreamWaitEvent(d->stream, s->arrived, 0), "copy in");
        check(d, cudaMemcpyAsync((char *)to + at, staged, n, cudaMemcpyDeviceToDevice, d->stream),
              "copy in");
        check(d, cudaEventRecord(s->taken, d->stream), "copy in");
    }
}

/* After an error zeros come out. */
void copy_out(void *context, void *host, const void *from, size_t bytes)
{
    Device *d = (Device *)context;
    Hold hold(d);
    if (!unrecordable(d))
        check(d, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, d->stream), "copy out");
    d->busy = 1;
    settle(d, "copy out");
    if (d->problem[0] || d->recording)
        memset(host, 0, bytes);
}

void copy(void *context, void *to, const void *from, size_t bytes)
{
    Device *d = (Device *)context;
    Hold hold(d);
    check(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream), "copy");
    d->busy = 1;
}

const char *finish(void *context)
{
    Device *d = (Device *)context;
    Hold hold(d);
    settle(d, "a step");
    return d->problem[0] ? d->problem : NULL;
}

/* ---- repeated micro-batches ---- */
void drop(Device *d, Recording *r)
{
    if (r->graph) {
        settle(d, "a recorded micro-batch");
        check(d, cudaGraphExecDestroy(r->graph), "cudaGraphExecDestroy");
    }
    memset(r, 0, sizeof *r);
}

void forget(void *context, const void *owner)
{
    Device *d = (Device *)context;
    Hold hold(d);
    for (int i = 0; i < RECORDINGS; i++)
        if (d->recordings[i].owner == owner)
            drop(d, &d->recordings[i]);
}

/* The one of this micro-batch, or a new one. */
Recording *recording_of(Device *d, const gckpt_moment *m)
{
    Recording *r = NULL;
    for (int i = 0; i < RECORDINGS; i++) {
        Recording *have = &d->recordings[i];
        if (have->owner == m->owner && have->rows == m->rows && have->first == !m->row)
            return have;
        r = !r && !have->owner ? have : r;
    }
    if (!r) {
        r = &d->recordings[d->oldest];
        d->oldest = (d->oldest + 1) % RECORDINGS;
        drop(d, r);
    }
    r->owner = m->owner;
    r->rows = m->rows;
    r->first = !m->row;
    return r;
}

/* Puts a micro-batch's moments where its kernels read them. */
void tell(Device *d, const gckpt_moment *m)
{
    Moment now = { m->row, m->seed, m->step, 0.0f };
    d->now.at[0] = d->now.at[1] = now;
    d->now.at[1].row = 0;
    d->losses = m->losses;
    for (int i = 0; i < m->losses; i++) {
        d->now.at[2 + i] = now;
        d->now.at[2 + i].loss_scale = m->scales[i].scale;
        d->ids[i] = m->scales[i].id;
    }
    RUN_ON(d, moments_kernel, 1, 32, 0, d->moments, d->now, 2 + m->losses);
}

/* At first sight a micro-batch only runs; the second time it is recorded, with the lock kept until
 * `recorded`, so that nothing of another thread comes between. */
int repeat(void *context, const gckpt_moment *m)
{
    Device *d = (Device *)context;
    Hold hold(d);
    if (m->losses > LOSSES || d->problem[0])
        return 0;
    Recording *r = recording_of(d, m);
    if (!r->seen) {
        r->seen = 1;
        return 0;
    }
    tell(d, m);
    if (r->graph) {
        check(d, cudaGraphLaunch(r->graph, d->stream), "a recorded micro-batch");
        return 1;
    }
    if (cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return 0;
    d->lock.lock();
    d->recording = r;
    d->unrecordable = 0;
    return 0;
}

int recorded(void *context)
{
    Device *d = (Device *)context;
    Hold hold(d);
    Recording *r = d->recording;
    cudaGraph_t graph = NULL;
    if (!r)
        return 1;
    check(d, cudaStreamEndCapture(d->stream, &graph), "recording");
    if (!d->unrecordable)
        check(d, cudaGraphInstantiate(&r->graph, graph, 0), "recording");
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    d->recording = NULL;
    d->lock.unlock();
    if (d->unrecordable) {
        r->graph = NULL;
        return 0;
    }
    check(d, cudaGraphLaunch(r->graph, d->stream), "a recorded micro-batch");
    d->busy = 1;
    return 1;
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

/* A function of the table, held. */
template <auto F> struct Held;
template <class... A, void (*F)(const gckpt_call *, A...)> struct Held<F> {
    static void run(const gckpt_call *call, A... arguments)
    {
        Hold hold(device_of(call));
        F(call, arguments...);
    }
};

gckpt_kernel find(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context;
#define X(which)                                                                                   \
    if (!strcmp(op->name, #which) && (op->flags & GCKPTI_OWN_ROW))                                 \
        return kind == GCKPT_FORWARD ? Held<which##_forward>::run : Held<which##_backward>::run;
    OPS(X)
#undef X
    return NULL;
}

gckpt_result workspace(void *context, const gckpt_op *op, gckpt_call *call)
{
    (void)context, (void)op, (void)call;
    return GCKPT_OK;
}

/* Does the device keep the contract? 0, or what is wrong. The header's own test, and what a compiler
 * without -fmad=false or with -use_fast_math does otherwise: a product and a sum that become one,
 * division and root that are not rounded correctly. */
__global__ void self_test_kernel(float near, float far, int *broken)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    *broken = gckpti_self_test();
    if (!*broken && near * near - far != 0.0f) /* far is the square, rounded */
        *broken = 5;
    for (int i = 0; i < 512; i++) {
        float a = near + (float)(i * 37 % 101), b = far + (float)(i * 61 % 89);
        float y[3] = { a / b, gckpti_sqrt(a * b), 1e-38f / b };
        hash = gckpti_hash_floats(hash, y, 3);
    }
    if (!*broken && hash != UINT64_C(0xcb0e40c9dd6231a9))
        *broken = 6;
}

/* The reason in `text` (TEXT bytes) if the device does not keep the contract. */
void self_test(Device *d, char *text)
{
    static const char *const wrong[] = { "",
                                         "subnormals are flushed to zero",
                                         "fma is wrong",
                                         "sums are re-associated",
                                         "exp, log, .. have other bits",
                                         "products and sums are contracted",
                                         "division or root are not rounded correctly" };
    int broken = -1, *there = NULL;
    cudaError_t error = cudaMalloc(&there, sizeof *there);
    if (error == cudaSuccess) {
        LAUNCH(self_test_kernel, 1, 1, 0, d->stream, 1.000244140625f, 1.00048828125f, there);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&broken, there, sizeof broken, cudaMemcpyDeviceToHost, d->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(d->stream);
    cudaFree(there);
    if (error != cudaSuccess)
        explain(text, d->number, error, "self-test");
    else if (broken)
        snprintf(text, TEXT,
                 "CUDA device %d: self-test: %s; compile gradckpt_cuda.cu by nvcc -fmad=false and "
                 "without -use_fast_math",
                 d->number, wrong[broken < 0 || broken > 6 ? 0 : broken]);
}

void device_close(Device *d)
{
    for (int i = 0; i < RECORDINGS; i++)
        drop(d, &d->recordings[i]);
    for (int i = 0; i < SLOTS; i++) {
        if (d->slots[i].arrived)
            cudaEventDestroy(d->slots[i].arrived);
        if (d->slots[i].taken)
            cudaEventDestroy(d->slots[i].taken);
        memset(&d->slots[i], 0, sizeof d->slots[i]);
    }
    cudaFreeHost(d->pinned);
    cudaFree(d->staged);
    cudaFree(d->moments);
    if (d->feeds)
        cudaStreamDestroy(d->feeds);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    d->pinned = d->staged = NULL;
    d->moments = NULL;
    d->feeds = d->stream = NULL;
    d->ready = 0;
}

/* At exit; what executors still have goes with the process. */
void close_all(void)
{
    for (Device &d : devices)
        if (d.ready && cudaSetDevice(d.number) == cudaSuccess)
            device_close(&d);
}

/* Streams, slots and moments; none of them left if anything fails. */
cudaError_t device_open(Device *d, int number)
{
    d->number = number;
    cudaError_t error = cudaSetDevice(number);
    /* not held up by what the program has in the default stream */
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&d->feeds, cudaStreamNonBlocking);
    for (int i = 0; i < 2 * SLOTS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(i % 2 ? &d->slots[i / 2].taken : &d->slots[i / 2].arrived,
                                         cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaMallocHost(&d->pinned, (size_t)SLOTS * SLOT_BYTES);
    if (error == cudaSuccess)
        error = cudaMalloc(&d->staged, (size_t)SLOTS * SLOT_BYTES);
    if (error == cudaSuccess)
        error = cudaMalloc(&d->moments, sizeof *d->moments);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(d->moments, 0, sizeof *d->moments, d->stream);
    memset(&d->now, 0, sizeof d->now);
    return error;
}

} // namespace

extern "C" const gckpt_backend *gckpt_cuda_backend(int device, const char **error)
{
    static std::mutex making;
    static thread_local char problem[TEXT];
    std::lock_guard<std::mutex> alone(making);
    int count = 0, before = 0, most = (int)(sizeof devices / sizeof *devices);
    const char *ignored;
    *(error ? error : &ignored) = problem;
    problem[0] = 0;
    cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess) {
        explain(problem, device, result, "looking for devices");
        cudaGetLastError();
        return NULL;
    }
    if (device < 0 || device >= count || device >= most) {
        snprintf(problem, sizeof problem, "CUDA device %d: there are %d, from 0 on%s", device, count,
                 device >= most ? ", and 16 are known here" : "");
        return NULL;
    }
    Device *d = &devices[device];
    if (d->ready)
        return &d->backend;
    cudaGetDevice(&before);
    result = device_open(d, device);
    if (result != cudaSuccess)
        explain(problem, device, result, "making streams and buffers");
    else
        self_test(d, problem);
    if (problem[0])
        device_close(d);
    cudaGetLastError();
    if (before != device)
        cudaSetDevice(before);
    if (problem[0])
        return NULL;
    static int at_exit = atexit(close_all);
    (void)at_exit;
    gckpt_backend b = { "cuda",
                        d,
                        1,
                        1,
                        get,
                        release,
                        copy_in,
                        copy_out,
                        copy,
                        workspace,
                        find,
                        Held<fill>::run,
                        Held<add>::run,
                        Held<convert>::run,
                        Held<update>::run,
                        finish,
                        repeat,
                        recorded,
                        forget,
                        shortage };
    d->backend = b;
    d->ready = 1;
    return &d->backend;
}
