/* gradckpt_cuda.cu - a CUDA device as a backend of gradckpt.h.  MIT licence.
 *
 *     nvcc -O3 -std=c++17 -fmad=false -arch=sm_90 -c gradckpt_cuda.cu
 *
 * and link the object, the CUDA runtime and that of C++ (-lcudart -lstdc++) to the program; nothing
 * else is needed but CUDA 12 or newer. Then
 *
 *     const char *error;
 *     desc.backend = gckpt_cuda_backend(0, &error);      in gckpt_plan_desc and gckpt_exec_desc
 *
 * A plan is as on the processor, except for its workspace, and gives the same bits: kernels follow
 * the numeric specification (docs/numerics.md) step by step. This file includes gradckpt.h with its
 * implementation, and takes formulas, attributes and layouts from it, so that each exists once.
 * -fmad=false keeps the compiler from fusing a product and an addition where the source has no fma.
 *
 * Contents (grep -n '>>[a-z]' gradckpt_cuda.cu):                                             lines
 *     >>device    streams, memory, errors, launching, captures                                 607
 *     >>common    fill, add, convert, update, dequantise                                       715
 *     >>exact     kernels of the numeric contract: the bits of the processor                  3759
 *     >>fast      GCKPT_BF16_FAST: by tensor cores, reading and writing bf16                  1390
 *     >>backend   which kernels there are, the self-test, the table                            301
 */
#ifndef GCKPT_CUDA_SHIM /* tests include cuda_shim.h first, which runs kernels on the processor */
#include <cuda_runtime.h>
#define LAUNCH(kernel, grid, block, shared, stream, ...) \
    kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define SHARED(type, name, dims)   __shared__ type name dims
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#pragma nv_diag_suppress 1675, 177
#define GCKPTI_DEVICE __host__ __device__
#define GCKPTI_FMA    3
#define GCKPTI_SQRT   3
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "gradckpt_cuda.cu takes sm_80 or newer: nvcc -arch=sm_80 (native: a device that is here)"
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
#if defined(GCKPT_NO_ATTENTION) || defined(GCKPT_NO_LINEAR_LOSS)
#error "gradckpt_cuda.cu needs these parts: remove GCKPT_NO_ATTENTION and GCKPT_NO_LINEAR_LOSS"
#endif

namespace {

/* ---- >>device -------------------------------------------------------------------------------- */
/* Step parameters: the values that may differ when a captured micro-batch is replayed. Kernels that
 * need a call's row, seed, step, position or loss_scale do not get it as an argument, but read it
 * in device memory, at params_of(call); host code must not depend on it. All other data (shapes,
 * rows, addresses) are the same in each replay. Updates are not replayed: gckpt_update_pass has
 * their data. */
struct StepParams {
    int64_t first_row, position;
    uint64_t seed, step;
    float loss_scale;
};

#ifndef GCKPT_CUDA_SLOT_BYTES /* tests define small slots */
#define GCKPT_CUDA_SLOT_BYTES (1 << 19)
#endif
enum {
    TEXT = 256,  /* bytes of an error text */
    LOSSES = 14, /* a plan with more loss terms is not captured */
    RING = 64, /* events per queue */
    SLOTS = 64,  /* buffers for copies to the device: 32 MiB of host and of device memory */
    SLOT_BYTES = GCKPT_CUDA_SLOT_BYTES,
    CAPTURES = 4096 /* most captures of a device; one more replaces the oldest */
};

/* at[0]: of the micro-batch (outside captures: of the current call); at[1]: of batch-invariant ops,
 * whose first_row is 0; at[2 + i]: of loss term i. */
struct StepParamSet {
    StepParams at[2 + LOSSES];
};

/* A CUDA graph of a micro-batch of `rows` rows. A batch's first micro-batch, whose first row is 0,
 * has a separate capture. */
struct Capture {
    const void *owner; /* NULL if the entry is free */
    int64_t rows;
    int first, warmed_up;       /* first row is 0; ran once, so its kernels are loaded */
    cudaGraphExec_t graph; /* NULL until captured */
};

/* A block of pinned host memory and one of device memory, through which input is copied: to the
 * device on the stream `feeds` while kernels run, then to its destination on the main stream. */
struct Slot {
    cudaEvent_t arrived, taken; /* copied to the device block; copied to its destination */
    int used;                   /* used since the last wait_all */
};

/* A stream that overlaps the main one. Its launches wait for all earlier launches of both. */
struct Queue {
    cudaStream_t stream;
    cudaEvent_t done[RING]; /* ends of the latest launches, a ring */
    int next;                /* next event, modulo RING */
    int pending;                 /* nonzero: launches since a join of all */
};

/* A device. Calls of all threads and executors are serialised into one stream. */
struct Device {
    int number, ready;
    std::recursive_mutex lock;
    cudaStream_t main, feeds; /* computation; copies to the device */
    cudaStream_t stream;      /* current stream: main or comm.stream */
    Queue offload, graph, comm; /* offloads; offloads in captures; communication */
    Queue overlap;                /* products that overlap with later kernels */
    cudaEvent_t fork_event;       /* start of an overlapped launch */
    int busy;                   /* nonzero: kernels were launched since the last synchronisation */
    char problem[TEXT];         /* the first error */
    StepParamSet now, *params;      /* `params` gets a copy of `now` */
    Slot slots[SLOTS];
    char *pinned, *staged;
    Capture captures[CAPTURES], *capture; /* capture: the one in progress, or NULL */
    int capture_failed;                             /* the capture in progress failed */
    int ids[LOSSES], losses; /* of the losses of params->at[2], ..: op ids, number */
    int slot, oldest, next; /* next slot; capture to replace next; capture to compare first */
    gckpt_backend backend;
};
Device devices[16];
thread_local bool on_comm[16]; /* on_comm[i]: this thread's calls go to device i's queue comm */

Device *device_of(const gckpt_call *call) { return (Device *)call->backend; }

/* Returns advice about an error. The table has numbers, as toolkits lack names of some. */
const char *remedy(int error)
{
    static const struct {
        int errors[8];
        const char *what;
    } all[] = {
        { { 2 }, "plan with a smaller budget" }, /* cudaErrorMemoryAllocation */
        { { 3 }, "a device does not survive a fork: open it after the fork" }, /* initialisation */
        { { 35, 222, 804 }, "there is no driver, or one older than nvcc: install a newer one" },
        { { 803 }, "the running driver is not the installed one: restart" },
        { { 802 }, "is the fabric manager running? systemctl start nvidia-fabricmanager" },
        { { 46 }, "another process holds it exclusively" }, /* cudaErrorDevicesUnavailable */
        { { 98, 209 }, "compile gradckpt_cuda.cu for it: nvcc -arch=native" }, /* no kernel image */
        { { 100 }, "see nvidia-smi and CUDA_VISIBLE_DEVICES" },                /* no device */
        { { 701 }, "compile gradckpt_cuda.cu by nvcc -O3 -arch=native" },      /* registers, .. */
        { { 702 }, "a device with a display stops long kernels: take smaller micro-batches" },
        { { 700, 710, 714, 715, 716, 717, 718, 719 }, /* errors of a kernel */
          "restart from a checkpoint; with CUDA_LAUNCH_BLOCKING=1 this names the kernel" },
        { { 214, 220, 226, 721, 999 }, /* errors of the hardware or driver */
          "the device is lost (dmesg, nvidia-smi): restart from a checkpoint" },
    };
    for (const auto &one : all)
        for (int e : one.errors)
            if (e == error)
                return one.what;
    return "restart from a checkpoint";
}

void format_error(char *text, int number, cudaError_t error, const char *what)
{
    snprintf(text, TEXT, "CUDA device %d: %s: %s (%s); %s", number, what, cudaGetErrorString(error),
             cudaGetErrorName(error), remedy((int)error));
}

/* Keeps the first error. In a capture, an error only ends it: the micro-batch then just runs. */
void check(Device *d, cudaError_t error, const char *what)
{
    if (error != cudaSuccess && d->capture)
        d->capture_failed = 1;
    else if (error != cudaSuccess && !d->problem[0])
        format_error(d->problem, d->number, error, what);
}

/* Returns this function's name as the compiler writes it, which has the kernel's name in it: "...
 * KERNEL = fill_kernel<4>]". */
template <auto KERNEL> const char *name_of(void) { return __PRETTY_FUNCTION__; }

void check_kernel(Device *d, cudaError_t error, const char *name)
{
    const char *from = strstr(name, "KERNEL = ");
    char text[48]; /* short enough for the rest of a message */
    if (error == cudaSuccess)
        return;
    snprintf(text, sizeof text, "%s", from ? from + 9 : name);
    if (text[strlen(text) - 1] == ']')
        text[strlen(text) - 1] = 0;
    check(d, error, text);
}

void launch_pending(Device *d); /* common/update.cu */

/* Each function of the backend holds this lock: one thread at a time, with this device as CUDA's
 * current one. The device stays current, since restoring another would create a context there.
 * Unless keep_pending is true, launches what is pending. Converts to Device *. */
struct DeviceLock {
    Device *d;
    explicit DeviceLock(void *device, bool keep_pending = false) : d((Device *)device)
    {
        d->lock.lock();
        cudaSetDevice(d->number), cudaGetLastError();
        d->stream = d->main;
        if (!keep_pending)
            launch_pending(d);
        d->stream = on_comm[d->number] ? d->comm.stream : d->main;
    }
    ~DeviceLock() { d->lock.unlock(); }
    operator Device *() const { return d; }
    Device *operator->() const { return d; }
};

/* Returns a grid for n items, `threads` to a block: at most 16 blocks a processor of an H200. */
dim3 blocks_for(int64_t n, int threads)
{
    int64_t blocks = (n + threads - 1) / threads;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks < 2112 ? blocks : 2112));
}

/* for (EACH(i, n)): distributes n items over all threads of the grid. */
#define EACH(i, n)                                                                                 \
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                           \
    i += (int64_t)gridDim.x * blockDim.x

/* Runs a kernel on the current stream. shared: bytes of dynamic shared memory. */
template <auto KERNEL, class... A>
void launch(Device *d, dim3 grid, dim3 block, int shared, const A &...a)
{
    if (shared) /* more than the default limit */
        check_kernel(d,
                     cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          shared),
                     name_of<KERNEL>());
    LAUNCH(KERNEL, grid, block, (size_t)shared, d->stream, a...);
    check_kernel(d, cudaGetLastError(), name_of<KERNEL>());
    d->busy = 1;
}

/* Launches pending work and then runs a kernel. run_each starts a thread for each of n items. */
template <auto KERNEL, class... A>
void run(const gckpt_call *call, dim3 grid, dim3 block, int shared, const A &...a)
{
    launch_pending(device_of(call));
    launch<KERNEL>(device_of(call), grid, block, shared, a...);
}
template <auto KERNEL, class... A> void run_each(const gckpt_call *call, int64_t n, const A &...a)
{
    run<KERNEL>(call, blocks_for(n, 256), 256, 0, a...);
}

__global__ void params_kernel(StepParamSet *to, StepParamSet now, int n)
{
    if ((int)threadIdx.x < n)
        to->at[threadIdx.x] = now.at[threadIdx.x];
}

/* Returns the device address of the call's step parameters, valid until the next call. */
const StepParams *params_of(const gckpt_call *call)
{
    Device *d = device_of(call);
    StepParams m = { call->first_row, call->position, call->seed, call->step, call->loss_scale };
    StepParams *now = &d->now.at[0];
    for (int i = 0; i < d->losses && d->capture; i++)
        if (d->ids[i] == call->id)
            return &d->params->at[2 + i];
    if (d->capture)
        return &d->params->at[call->first_row ? 0 : 1];
    if (m.first_row != now->first_row || m.position != now->position || m.seed != now->seed ||
        m.step != now->step || gckpti_bits(m.loss_scale) != gckpti_bits(now->loss_scale)) {
        *now = m;
        launch_pending(d);
        launch<params_kernel>(d, 1, 1, 0, d->params, d->now, 1);
    }
    return &d->params->at[0];
}

/* If a capture is active, fails it, as it cannot contain work of the host, and returns 1. */
int reject_capture(Device *d)
{
    d->capture_failed = 1;
    return d->capture != NULL;
}

/* >>device/ptx */
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

/* >>device/memory */
/* ---- memory ---- */
thread_local char memory_text[TEXT + 2]; /* why this thread's last allocation failed */

/* Allocates device memory that is aligned to at least 256 bytes. */
void *allocate(void *context, size_t bytes, size_t)
{
    DeviceLock d(context);
    void *p = NULL;
    size_t unused = 0, all = 0;
    memory_text[0] = 0;
    if (reject_capture(d))
        return NULL;
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 1);
    if (error == cudaSuccess)
        return p;
    cudaGetLastError();
    if (error != cudaErrorMemoryAllocation) {
        check(d, error, "cudaMalloc");
        snprintf(memory_text, sizeof memory_text, ": %s", d->problem);
    } else if (cudaMemGetInfo(&unused, &all) == cudaSuccess) {
        snprintf(memory_text, sizeof memory_text,
                 ": CUDA device %d has %zu of its %zu bytes left, not %zu; plan with a smaller "
                 "budget, or end other programs on it",
                 d->number, unused, all, bytes);
    }
    return NULL;
}

const char *memory_hint(void *) { return memory_text; }

/* Launches between queue_begin and queue_end go to queue s and start after all earlier ones.
 * queue_begin returns false in a failed capture, where launches would run at once. */
bool queue_begin(Device *d, Queue *s)
{
    check(d, cudaEventRecord(d->fork_event, d->main), "a side stream");
    check(d, cudaStreamWaitEvent(s->stream, d->fork_event, 0), "a side stream");
    return !d->capture || !d->capture_failed;
}

void queue_end(Device *d, Queue *s)
{
    check(d, cudaEventRecord(s->done[s->next], s->stream), "a side stream");
    s->next = (s->next + 1) % RING;
    s->pending = d->busy = 1;
}

/* Makes the main stream wait for all launches of queue s except the last `keep_last`. */
void queue_join(Device *d, Queue *s, int keep_last)
{
    int last = keep_last < RING ? keep_last : 0;
    if (s->pending)
        check(d, cudaStreamWaitEvent(d->main, s->done[(s->next + RING - 1 - last) % RING], 0),
              "join");
    s->pending = s->pending && last > 0;
}

/* Waits for everything that was launched; then all slots are free. */
void wait_all(Device *d, const char *what)
{
    if (!d->busy || reject_capture(d))
        return;
    queue_join(d, &d->offload, 0);
    queue_join(d, &d->comm, 0);
    check(d, cudaStreamSynchronize(d->stream), what);
    if (d->stream != d->main) /* d->stream is the one of the queue comm */
        check(d, cudaStreamSynchronize(d->main), what);
    d->busy = 0;
    for (int i = 0; i < SLOTS; i++)
        d->slots[i].used = 0;
}

template <cudaError_t (*FREE)(void *)> void release(void *context, void *memory, size_t)
{
    DeviceLock d(context);
    wait_all(d, "release");
    check(d, FREE(memory), "release");
}

/* The backend's copy_in, through slots. The host waits only for a slot that is still read. */
void copy_in(void *context, void *to, const void *host, size_t bytes)
{
    DeviceLock d(context);
    for (size_t at = 0, n; at < bytes && !d->problem[0] && !reject_capture(d); at += n) {
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

/* The backend's copy_out. After an error, fills `host` with zeros. */
void copy_out(void *context, void *host, const void *from, size_t bytes)
{
    DeviceLock d(context);
    if (!reject_capture(d))
        check(d, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, d->stream), "copy out");
    d->busy = 1;
    wait_all(d, "copy out");
    if (d->problem[0] || d->capture)
        memset(host, 0, bytes);
}

void copy(void *context, void *to, const void *from, size_t bytes)
{
    DeviceLock d(context);
    check(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream), "copy");
    d->busy = 1;
}

const char *finish(void *context)
{
    DeviceLock d(context);
    wait_all(d, "a step");
    return d->problem[0] ? d->problem : NULL;
}

/* ---- offload: copies to and from pinned memory on a separate stream, also in a capture ---- */
void *host_get(void *context, size_t bytes)
{
    DeviceLock d(context);
    void *p = NULL;
    memory_text[0] = 0;
    cudaError_t error = cudaMallocHost(&p, bytes);
    if (error == cudaSuccess)
        return p;
    cudaGetLastError();
    snprintf(memory_text, sizeof memory_text,
             ": %zu bytes of host memory could not be pinned for offloads (%s); plan with a "
             "smaller desc.offload.bytes",
             bytes, cudaGetErrorString(error));
    return NULL;
}

/* Captures use a separate queue, so that they do not wait for copies that began before them. */
Queue *offload_queue(Device *d) { return d->capture ? &d->graph : &d->offload; }

void copy_async(void *context, void *to, const void *from, size_t bytes, int out)
{
    DeviceLock d(context);
    Queue *s = offload_queue(d);
    const cudaMemcpyKind kind = out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    if (queue_begin(d, s))
        check(d, cudaMemcpyAsync(to, from, bytes, kind, s->stream), "move");
    queue_end(d, s);
}

void wait_copies(void *context, int keep_last)
{
    DeviceLock d(context);
    queue_join(d, offload_queue(d), keep_last);
}

/* ---- the queue for communication ---- */
void *use_comm_queue(void *context, int on)
{
    DeviceLock d(context);
    on ? (void)queue_begin(d, &d->comm) : queue_end(d, &d->comm);
    on_comm[d->number] = on != 0;
    return d->comm.stream;
}

void wait_comm_queue(void *context, int keep_last)
{
    DeviceLock d(context);
    queue_join(d, &d->comm, keep_last);
}

/* >>device/replay */
/* ---- captures and replays of micro-batches ---- */
void destroy_capture(Device *d, Capture *r)
{
    if (r->graph) {
        wait_all(d, "a recorded micro-batch");
        check(d, cudaGraphExecDestroy(r->graph), "cudaGraphExecDestroy");
    }
    memset(r, 0, sizeof *r);
}

void discard_captures(void *context, const void *owner)
{
    DeviceLock d(context);
    for (int i = 0; i < CAPTURES; i++)
        if (d->captures[i].owner == owner)
            destroy_capture(d, &d->captures[i]);
}

/* Returns the capture of this micro-batch, or else a free entry, or else replaces the oldest. */
Capture *capture_of(Device *d, const gckpt_step_params *m)
{
    Capture *r = NULL;
    for (int i = 0; i < CAPTURES; i++) {
        const int at = (d->next + i) % CAPTURES;
        Capture *have = &d->captures[at];
        if (have->owner == m->owner && have->rows == m->rows && have->first == !m->first_row) {
            d->next = at; /* the search for the next one begins here: it is probably close */
            return have;
        }
        r = !r && !have->owner ? have : r;
    }
    if (!r) {
        r = &d->captures[d->oldest];
        d->oldest = (d->oldest + 1) % CAPTURES;
        destroy_capture(d, r);
    }
    *r = { m->owner, m->rows, !m->first_row };
    return r;
}

/* Copies a micro-batch's step parameters to the address at which its kernels read them. */
void send_step_params(Device *d, const gckpt_step_params *m)
{
    StepParams now = { m->first_row, m->position, m->seed, m->step, 0.0f };
    const StepParamSet before = d->now;
    d->now.at[0] = d->now.at[1] = now;
    d->now.at[1].first_row = 0;
    d->losses = m->losses;
    for (int i = 0; i < m->losses; i++) {
        d->now.at[2 + i] = now;
        d->now.at[2 + i].loss_scale = m->scales[i].scale;
        d->ids[i] = m->scales[i].id;
    }
    if (memcmp(&before, &d->now, sizeof before)) /* only changed parameters are copied */
        launch<params_kernel>(d, 1, 32, 0, d->params, d->now, 2 + m->losses);
}

/* The backend's replay. A micro-batch just runs the first time, and is captured the second time. A
 * capture holds the lock until end_capture, so that no other thread launches kernels in it. */
int replay(void *context, const gckpt_step_params *m)
{
    DeviceLock d(context);
    if (m->losses > LOSSES || d->problem[0])
        return 0;
    Capture *r = capture_of(d, m);
    if (!r->warmed_up) {
        r->warmed_up = 1;
        return 0;
    }
    send_step_params(d, m);
    if (r->graph) {
        check(d, cudaGraphLaunch(r->graph, d->stream), "a recorded micro-batch");
        d->busy = 1;
        return 1;
    }
    if (cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return 0;
    d->lock.lock();
    d->capture = r;
    d->capture_failed = 0;
    return 0;
}

int end_capture(void *context)
{
    DeviceLock d(context);
    Capture *r = d->capture;
    cudaGraph_t graph = NULL;
    if (!r)
        return 1;
    queue_join(d, &d->graph, 0);
    check(d, cudaStreamEndCapture(d->stream, &graph), "capture");
    if (!d->capture_failed)
        check(d, cudaGraphInstantiate(&r->graph, graph, 0), "capture");
    if (!d->capture_failed) /* uploads now: a launch that lacks the memory for it would fail */
        check(d, cudaGraphUpload(r->graph, d->stream), "capture");
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    d->capture = NULL;
    d->lock.unlock();
    if (d->capture_failed) {
        destroy_capture(d, r);
        return 0;
    }
    check(d, cudaGraphLaunch(r->graph, d->stream), "a recorded micro-batch");
    d->busy = 1;
    return 1;
}

/* ---- >>common -------------------------------------------------------------------------------
 * Kernels that only move memory have a thread for each part of it: 16 bytes at a time if all
 * addresses are multiples of 16, else one element. */
template <class T, int N>
struct alignas(N < 16 / (int)sizeof(T) ? (size_t)N * sizeof(T) : 16) Vec {
    T v[N];
};

template <int N, class T> __device__ Vec<T, N> load(const T *at)
{
    return *(const Vec<T, N> *)(const void *)at;
}

template <class T, int N> __device__ void store(T *at, const Vec<T, N> &vec)
{
    *(Vec<T, N> *)(void *)at = vec;
}

/* Most kernels are a function F(i, arguments..). for_each calls it for i = 0..n-1, each in a
 * thread, THREADS to a block; for_each_row calls it for each of n rows in the LANES = 32 threads of
 * a warp. */
template <auto F, int LANES, class... A> __global__ void each_kernel(int64_t n, A... a)
{
    for (EACH(i, n * LANES))
        F(i / LANES, a...);
}
template <auto F, int THREADS = 256, class... A>
void for_each(const gckpt_call *call, int64_t n, const A &...a)
{
    run<each_kernel<F, 1, A...>>(call, blocks_for(n, THREADS), THREADS, 0, n, a...);
}
template <auto F, class... A> void for_each_row(const gckpt_call *call, int64_t n, const A &...a)
{
    run_each<each_kernel<F, 32, A...>>(call, 32 * n, n, a...);
}

/* Calls f.at<N>(i) for elements i..i + N - 1 of n, and f.at<1>(i) for each of the last n % N. N is
 * more than 1 only if all addresses are aligned for vectors of N. */
template <int N, class F> __global__ void vecs_kernel(F f, int64_t n)
{
    for (EACH(i, n / N))
        f.template at<N>(i * N);
    for (EACH(i, n % N))
        f.template at<1>(n / N * N + i);
}

template <int N, class F> void for_each_vec(const gckpt_call *call, F f, int64_t n, bool aligned)
{
    if (aligned && n > 0)
        run_each<vecs_kernel<N, F>>(call, (n + N - 1) / N, f, n);
    else if (n > 0)
        run_each<vecs_kernel<1, F>>(call, n, f, n);
}

/* Adds the value of lane j ^ h to lane j for h = 16, 8, 4, 2, 1. All lanes end with the same sum,
 * as a + b = b + a. With h = 8, each 16 adjacent lanes have a sum. */
__device__ inline float warp_sum(float lane, int h = 16)
{
    for (; h; h /= 2)
        lane += __shfl_xor_sync(0xffffffffu, lane, h);
    return lane;
}

/* Returns the sum of n elements by a warp, in the 32 lanes of the manual's 5d: f(sum, i) returns
 * the lane's sum with element i. A lane loads AHEAD elements at a time. */
template <int AHEAD = 4, class F> __device__ inline float lanes_sum(int64_t n, F f)
{
    float sum = 0.0f;
#pragma unroll AHEAD
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        sum = f(sum, i);
    return warp_sum(sum);
}

/* Operands and results, in f32 or bf16: one pointer is set. Operands with none read as 0. */
struct Values {
    const float *f32;
    const uint16_t *bf16;
};
struct Results {
    float *f32;
    uint16_t *bf16;
    __host__ __device__ operator Values() const { return { f32, bf16 }; }
};

Values value_of(const gckpt_arg &arg) { return { arg.data, arg.bf16 }; }
Values grad_out_of(const gckpt_call *call) { return { call->grad_out, call->grad_out_bf16 }; }
Results grad_of(const gckpt_arg &arg) { return { arg.grad, arg.grad_bf16 }; }
Results out_of(const gckpt_call *call) { return { call->out, call->out_bf16 }; }
Values value_out_of(const gckpt_call *call) { return { call->out, call->out_bf16 }; }
const Values NONE = { NULL, NULL };

__device__ inline const Results &results_at(const Results &y) { return y; }
__device__ inline Results results_at(float *y) { return { y, NULL }; }
__host__ __device__ inline bool wanted(const Values &x) { return x.f32 || x.bf16; }
__host__ __device__ inline bool wanted(const float *x) { return x != NULL; }
bool wanted(const gckpt_arg &arg) { return wanted(grad_of(arg)); }

/* Returns true if the addresses of all arguments are multiples of 16. NULL counts as a multiple. */
bool is_aligned(const void *x) { return ((uintptr_t)x & 15) == 0; }
bool is_aligned(const Values &x) { return is_aligned(x.f32) && is_aligned(x.bf16); }
template <class... A> bool aligned(const A &...x) { return (is_aligned(x) && ...); }

__device__ inline float value_at(const Values &x, int64_t i)
{
    return x.bf16 ? gckpti_from_bf16(x.bf16[i]) : x.f32 ? x.f32[i] : 0.0f;
}

__device__ inline float value_at(const float *x, int64_t i) { return x[i]; }

__device__ inline float value_at(const Results &y, int64_t i)
{
    return y.bf16 ? gckpti_from_bf16(y.bf16[i]) : y.f32[i];
}

__device__ inline void put_at(const Results &y, int64_t i, float v)
{
    if (y.bf16)
        y.bf16[i] = gckpti_to_bf16(v);
    else
        y.f32[i] = v;
}

/* Loads N elements from index i on; their address must be aligned for a Vec of N. */
template <int N> __device__ inline Vec<float, N> load(const Values &x, int64_t i)
{
    Vec<float, N> v = {};
    if (x.bf16) {
        const Vec<uint16_t, N> half = load<N>(x.bf16 + i);
        UNROLLED(k, N) v.v[k] = gckpti_from_bf16(half.v[k]);
    } else if (x.f32) {
        v = load<N>(x.f32 + i);
    }
    return v;
}

template <int N> __device__ inline Vec<float, N> load(const float *x, int64_t i)
{
    return load<N>(x + i);
}

template <int N> __device__ inline void store(const Results &y, int64_t i, const Vec<float, N> &v)
{
    if (y.bf16) {
        Vec<uint16_t, N> half;
        UNROLL for (int k = 0; k + 1 < N; k += 2)
        {
            const uint32_t pair = gckpti_to_bf16_pair(v.v[k], v.v[k + 1]);
            half.v[k] = (uint16_t)pair, half.v[k + 1] = (uint16_t)(pair >> 16);
        }
        if (N % 2)
            half.v[N - 1] = gckpti_to_bf16(v.v[N - 1]);
        store(y.bf16 + i, half);
    } else {
        store(y.f32 + i, v);
    }
}

/* read_vec loads N elements from index i on, of which `left` exist, and sets the others to 0;
 * write_vec stores those that exist. aligned: the address is a multiple of 16. */
template <int N, class X>
__device__ inline void read_vec(const X &x, int64_t i, int64_t left, bool aligned, float *v)
{
    if (aligned && left >= N) {
        const Vec<float, N> vec = load<N>(x, i);
        UNROLLED(k, N) v[k] = vec.v[k];
        return;
    }
    UNROLLED(k, N) v[k] = k < left ? value_at(x, i + k) : 0.0f;
}

template <int N>
__device__ __forceinline__ void write_vec(const Results &y, int64_t i, int64_t left, bool aligned,
                                          const float *v, int accumulate = 0)
{
    if (aligned && left >= N) {
        Vec<float, N> vec = {};
        if (accumulate)
            vec = load<N>(y, i);
        UNROLLED(k, N) vec.v[k] = accumulate ? v[k] + vec.v[k] : v[k];
        store(y, i, vec);
        return;
    }
    UNROLLED(k, N) if (k < left)
        put_at(y, i + k, accumulate ? v[k] + value_at(y, i + k) : v[k]);
}

/* >>common/map */
/* ---- elementwise kernels: out = f(a, b, self), in the order of the result ---- */
/* The element of each tensor that belongs to an element of the result. */
struct Offsets {
    int64_t at0, at1, at2; /* of the result and `self`; of a; of b */
};

/* All tensors have the layout of the result, which has n elements. */
struct Dense {
    static constexpr bool ENDS_IN_VECS = false; /* n may be no multiple of N */
    int64_t n;
    __device__ Offsets at(int64_t i) const { return { i, i, i }; }
    __device__ int64_t step_of(int) const { return 1; }
    int64_t count() const { return n; }
    bool in_vecs(int) const { return true; }
};

/* A strided iterator over three tensors, innermost axis first: step[0] is the step in the result,
 * step[1] and step[2] are those in two operands (0 if the operand is repeated). Each axis except
 * the last costs a division, of 32 bits where the numbers are that small. */
struct Axes {
    static constexpr bool ENDS_IN_VECS = true;
    int n;
    int64_t size[GCKPT_MAX_DIMS], step[3][GCKPT_MAX_DIMS];

    __device__ Offsets at(int64_t i) const
    {
        Offsets p = { 0, 0, 0 };
        for (int k = 0; k < n; k++) {
            const int64_t next = k + 1 < n ? i / size[k] : 0, j = i - next * size[k];
            p.at0 += j * step[0][k], p.at1 += j * step[1][k], p.at2 += j * step[2][k];
            i = next;
        }
        return p;
    }
    __device__ int64_t step_of(int tensor) const { return step[tensor][0]; }
    int64_t count() const
    {
        int64_t all = 1;
        for (int k = 0; k < n; k++)
            all *= size[k];
        return all;
    }
    /* Returns true if the innermost axis can be read and written by whole vectors of N. */
    bool in_vecs(int N) const
    {
        bool vecs = n && size[0] % N == 0 && step[0][0] == 1;
        for (int t = 0; t < 3; t++) {
            const bool repeated = step[t][0] == 0;
            vecs = vecs && (repeated || step[t][0] == 1);
            for (int k = 1; k < n; k++)
                vecs = vecs && (repeated || step[t][k] % N == 0);
        }
        return vecs;
    }
};

/* A thread computes N elements of d; elements that are repeated come from caches. b and self, which
 * has the layout of d, may be NULL. If d is f32 and the result accumulates, f itself adds to d[i];
 * if D may be bf16, write_vec adds before rounding. A thread reads an element of d's layout before
 * it writes that element, and no other thread does, so d may be such an operand. */
template <int N, class X, class F, class A, class D>
__global__ void map_kernel(const __grid_constant__ X axes, F f, D d, A a, A b, A self, int64_t n,
                           int accumulate)
{
    constexpr bool ROUNDED = !std::is_pointer<D>::value;
    const auto read = [](const A &of, int64_t at, int64_t step, int64_t left, float *v) {
        if (step)
            return read_vec<N>(of, at, left, true, v);
        UNROLL for (int k = 0; k < N; k++) v[k] = value_at(of, at);
    };
    for (EACH(vec, (n + N - 1) / N)) {
        const int64_t left = X::ENDS_IN_VECS ? N : n - vec * N;
        const Offsets at = axes.at(vec * N);
        float x[N] = {}, y[N] = {}, w[N] = {}, z[N] = {};
        read(a, at.at1, axes.step_of(1), left, x);
        if (wanted(b))
            read(b, at.at2, axes.step_of(2), left, y);
        if (wanted(self))
            read_vec<N>(self, at.at0, left, true, w);
        if (!ROUNDED && accumulate)
            read_vec<N>(d, at.at0, left, true, z);
        UNROLL for (int k = 0; k < N; k++) f(&z[k], x[k], y[k], w[k], ROUNDED ? 0 : accumulate);
        write_vec<N>(results_at(d), at.at0, left, true, z, ROUNDED ? accumulate : 0);
    }
}

/* Runs map_kernel by vectors of N if all are aligned, else of 1. If d is NULL, does nothing. */
template <int N, class X, class F, class A, class D>
void map_vecs(const gckpt_call *call, const X &axes, F f, D d, A a, A b, A self, int accumulate)
{
    const int64_t n = axes.count();
    if (wanted(d) && n > 0 && axes.in_vecs(N) && aligned(a, b, self, d))
        run_each<map_kernel<N, X, F, A, D>>(call, (n + N - 1) / N, axes, f, d, a, b, self, n,
                                            accumulate);
    else if (wanted(d) && n > 0)
        run_each<map_kernel<1, X, F, A, D>>(call, n, axes, f, d, a, b, self, n, accumulate);
}

/* Runs map_kernel on operands of f32 or, if BF16, of f32 or bf16. axes: Dense or Axes. */
template <bool BF16 = false, class X, class F>
void map(const gckpt_call *call, const X &axes, F f, const Results &d, const Values &a,
         const Values &b, const Values &self, int accumulate)
{
    if constexpr (BF16)
        map_vecs<8>(call, axes, f, d, a, b, self, accumulate);
    else
        map_vecs<4>(call, axes, f, d.f32, a.f32, b.f32, self.f32, accumulate);
}

/* Compute out = f(a, b); the gradient of x, which has the layout of a and b. */
template <bool BF16 = false, class F>
void map_out(const gckpt_call *call, F f, const Values &a, const Values &b)
{
    map<BF16>(call, Dense{ gckpti_elements(&call->shape) }, f, out_of(call), a, b, NONE, 0);
}

template <bool BF16 = false, class F>
void map_gradient(const gckpt_call *call, const gckpt_arg &x, F f, const Values &a, const Values &b)
{
    map<BF16>(call, Dense{ gckpti_elements(&x.shape) }, f, grad_of(x), a, b, NONE, x.accumulate);
}

struct Copy {
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, a, accumulate);
    }
};

void add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    map(call, Dense{ n }, Copy(), { to, NULL }, { from, NULL }, NONE, NONE, 1);
}

/* >>common/tiles */
/* A matrix whose lines (rows or columns) are contiguous: line i begins at x + i * stride. */
template <class T> struct Matrix {
    const T *x;
    int64_t stride;
    bool aligned; /* the addresses of all lines are multiples of 16 */
};

template <class T> Matrix<T> matrix(const T *x, int64_t stride)
{
    return { x, stride, aligned(x) && stride % (16 / (int)sizeof(T)) == 0 };
}

template <bool MIXED> __device__ float rounded(float x)
{
    return MIXED ? gckpti_from_bf16(gckpti_to_bf16(x)) : x;
}

/* Copies 4 floats to shared memory, rounded to bf16 if MIXED; `valid` of them exist, the others
 * become 0. ALIGNED: `from` is a multiple of 16, and either all 4 exist or none. */
template <bool ALIGNED, bool MIXED>
__device__ inline void stage(const float *from, int valid, const float *, float *to)
{
    float f[4] = {};
    if (!ALIGNED || valid > 0)
        read_vec<4>(from, 0, ALIGNED ? 4 : valid, ALIGNED, f);
    *(float4 *)to = { rounded<MIXED>(f[0]), rounded<MIXED>(f[1]), rounded<MIXED>(f[2]),
                      rounded<MIXED>(f[3]) };
}

/* Copies 8 bf16; from element `valid` on, zeros. ALIGNED: by cp.async, complete after a wait; if
 * `valid` is 0, cp.async reads nothing, but gets the valid address `base`. */
template <bool ALIGNED, bool MIXED>
__device__ inline void stage(const uint16_t *from, int valid, const uint16_t *base, uint16_t *to)
{
    valid = valid < 0 ? 0 : valid < 8 ? valid : 8;
    if (ALIGNED)
        gckpti_cp_async16(to, valid ? from : base, valid * 2);
    for (int i = 0; i < 8 && !ALIGNED; i++)
        to[i] = i < valid ? from[i] : (uint16_t)0;
}

/* Layout of a tile whose lines begin PITCH floats apart; at() finds a line's 16-byte chunk. */
template <int PITCH> struct Padded {
    static __device__ inline int at(int line, int chunk) { return line * PITCH + 4 * chunk; }
};

/* Layout of a tile whose lines have LINE bf16 and whose chunks are permuted from line to line, so
 * that ldmatrix reads 8 lines from 8 different groups of banks. */
template <int LINE> struct Swizzled {
    static __device__ inline int at(int line, int chunk)
    {
        int swizzle = LINE == 32 ? line >> 1 & 3 : line & 7;
        return line * LINE + ((chunk ^ swizzle) << 3);
    }
};

/* The block's THREADS threads load COUNT lines of m (which has `lines`) from line `first` on, and
 * of each line (of `length` elements) LENGTH from element `at` on. Missing ones become 0. */
template <int COUNT, int LENGTH, int THREADS, class LAYOUT, bool ALIGNED, bool MIXED, class T>
__device__ __forceinline__ void stage_lines(const Matrix<T> &m, int first, int lines, int at,
                                            int length, T *tile)
{
    enum { ELEMENTS = 16 / sizeof(T), CHUNKS = LENGTH / ELEMENTS, STEP = THREADS / CHUNKS };
    const int chunk = (int)threadIdx.x % CHUNKS, line = (int)threadIdx.x / CHUNKS;
    const T *from = m.x + (int64_t)(first + line) * m.stride + at + chunk * ELEMENTS;
#pragma unroll(sizeof(T) == 4 ? 4 : 1)
    for (int k = 0; k < COUNT; k += STEP, from += STEP * m.stride)
        stage<ALIGNED, MIXED>(from, first + line + k < lines ? length - at - chunk * ELEMENTS : 0,
                              m.x, tile + LAYOUT::at(line + k, chunk));
}

/* Loads COUNT lines of LENGTH bf16, all of which exist and begin at multiples of 16 bytes. */
template <int COUNT, int LENGTH, int THREADS, class LAYOUT>
__device__ __forceinline__ void stage_full(const uint16_t *from, int64_t stride, uint16_t *tile)
{
    enum { CHUNKS = LENGTH / 8, STEP = THREADS / CHUNKS };
    const int chunk = (int)threadIdx.x % CHUNKS, line = (int)threadIdx.x / CHUNKS;
    uint16_t *to = tile + LAYOUT::at(line, chunk);
    from += line * stride + chunk * 8;
    UNROLL for (int k = 0; k < COUNT; k += STEP, from += STEP * stride)
        gckpti_cp_async16_full(to + k * LENGTH, from);
}

template <int COUNT, int LENGTH, int THREADS, class LAYOUT, bool MIXED, class T>
__device__ __forceinline__ void stage_tile(const Matrix<T> &m, int first, int lines, int at,
                                           int length, T *tile)
{
    if (sizeof(T) == 2 && m.aligned && first + COUNT <= lines && at + LENGTH <= length)
        stage_full<COUNT, LENGTH, THREADS, LAYOUT>(
            (const uint16_t *)m.x + (int64_t)first * m.stride + at, m.stride, (uint16_t *)tile);
    else if (m.aligned)
        stage_lines<COUNT, LENGTH, THREADS, LAYOUT, true, MIXED>(m, first, lines, at, length, tile);
    else
        stage_lines<COUNT, LENGTH, THREADS, LAYOUT, false, MIXED>(m, first, lines, at, length,
                                                                  tile);
}

/* >>common/convert */
/* A conversion between f32 and bf16. */
struct Convert {
    gckpt_conversion c;
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<float, N> x = {};
        Vec<uint16_t, N> half;
        if (c.kind != GCKPT_WIDEN)
            x = load<N>(c.x + i);
        if (c.kind == GCKPT_WIDEN || c.kind == GCKPT_WIDEN_ADD)
            half = load<N>(c.from + i);
        for (int k = 0; k < N; k++) {
            if (c.kind == GCKPT_NARROW || c.kind == GCKPT_ROUND)
                half.v[k] = gckpti_to_bf16(x.v[k]);
            const float f = gckpti_from_bf16(half.v[k]);
            x.v[k] = c.kind == GCKPT_WIDEN_ADD ? f + x.v[k] : f;
        }
        if (c.kind == GCKPT_NARROW)
            store(c.to + i, half);
        else
            store(c.x + i, x);
    }
};

void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    for_each_vec<8>(call, Convert{ *c }, c->n, aligned(c->x, c->from, c->to));
}

void widen(const gckpt_call *call, const uint16_t *from, float *to, int64_t n)
{
    const gckpt_conversion c = { GCKPT_WIDEN, to, from, NULL, n };
    convert(call, &c);
}

void narrow(const gckpt_call *call, const float *from, uint16_t *to, int64_t n)
{
    const gckpt_conversion c = { GCKPT_NARROW, (float *)from, NULL, to, n };
    convert(call, &c);
}

/* >>common/update */
/* ---- calls of fill and update are collected until there are MOST, or another function is called;
 * then one launch runs all fills, and one all updates, each in separate blocks ---- */
struct Fills {
    enum { MOST = 64, WORDS = 8192 }; /* MOST: fills of a launch; WORDS: words that a block fills */
    struct Fill {
        uint32_t *to;
        int64_t n;
        uint32_t word;
        unsigned first; /* block */
    } at[MOST];
    int n;
};

/* Returns the index of the fill or pass to which this block belongs. */
template <class W> __device__ int entry_of(const W &all)
{
    int of = 0;
    while (of + 1 < all.n && blockIdx.x >= all.at[of + 1].first)
        of++;
    return of;
}

__global__ void fill_kernel(const __grid_constant__ Fills all)
{
    const Fills::Fill &f = all.at[entry_of(all)];
    const int64_t at = (int64_t)(blockIdx.x - f.first) * Fills::WORDS;
    const int n = (int)gckpti_min(f.n - at, Fills::WORDS), fours = (uintptr_t)f.to & 15 ? 0 : n / 4;
    const Vec<uint32_t, 4> vec = { { f.word, f.word, f.word, f.word } };
    for (int i = (int)threadIdx.x; i < fours; i += (int)blockDim.x)
        store(f.to + at + i * 4, vec);
    for (int i = fours * 4 + (int)threadIdx.x; i < n; i += (int)blockDim.x)
        f.to[at + i] = f.word;
}

struct AddOffsets { /* buffers that a pass adds to its gradient, as bytes from p.base */
    enum { MOST = 8 };
    size_t at[MOST];
};

/* Runs pass p on N elements from i on. `divided` gets the divided gradient, for its squares. */
template <int N>
__device__ void update_at(const gckpt_update_pass &p, const AddOffsets &more, int64_t i,
                          float *divided)
{
    Vec<float, N> g = load<N>(p.gradient + i), w, m = {}, v = {};
    for (int u = 0; u < p.adds; u++) {
        Vec<float, N> x = load<N>((const float *)((const char *)p.base + more.at[u]) + i);
        for (int k = 0; k < N; k++)
            g.v[k] += x.v[k];
    }
    if (p.adds && !(p.count > 0 && p.write_back))
        store(p.gradient + i, g);
    for (int k = 0; k < N && p.count > 0; k++)
        g.v[k] /= p.count;
    if (p.count > 0 && p.write_back)
        store(p.gradient + i, g);
    if (p.squares)
        store(divided, g);
    if (!p.update)
        return;
    w = load<N>(p.values + i);
    if (p.optimiser != GCKPT_SGD)
        m = load<N>(p.state[0] + i);
    if (p.optimiser == GCKPT_ADAMW)
        v = load<N>(p.state[1] + i);
    for (int k = 0; k < N; k++) {
        if (p.optimiser == GCKPT_ADAMW)
            gckpti_step_adamw(&p.rates, g.v[k], &w.v[k], &m.v[k], &v.v[k]);
        else if (p.optimiser == GCKPT_MOMENTUM)
            gckpti_step_momentum(&p.rates, p.momentum, g.v[k], &w.v[k], &m.v[k]);
        else
            gckpti_step_sgd(&p.rates, g.v[k], &w.v[k]);
    }
    store(p.values + i, w);
    if (p.optimiser != GCKPT_SGD)
        store(p.state[0] + i, m);
    if (p.optimiser == GCKPT_ADAMW)
        store(p.state[1] + i, v);
}

/* Update passes that one launch runs, each for another parameter. */
struct Passes {
    enum { MOST = 16 };
    struct Pass {
        gckpt_update_pass p;
        AddOffsets more;
        unsigned first; /* block */
        int four;       /* all addresses are multiples of 16 */
    } at[MOST];
    unsigned blocks;
    int n;
};
static_assert(sizeof(Passes) <= 4096 && sizeof(Fills) <= 4096, "arguments of a kernel");

/* A block runs a whole pass on GCKPT_UPDATE_BLOCK elements, so that gradient, values and state
 * cross memory once. Then its first warp adds up squares in the 32 lanes of the manual's 5d; it
 * reads the divided gradients from shared memory, while other blocks use the device memory. */
__global__ void update_kernel(const __grid_constant__ Passes all)
{
    typedef Vec<float, 4> Four;
    SHARED(Four, staging, [GCKPT_UPDATE_BLOCK / 4]);
    float *divided = (float *)(void *)staging;
    const int of = entry_of(all);
    const gckpt_update_pass &p = all.at[of].p;
    const AddOffsets &more = all.at[of].more;
    unsigned block = blockIdx.x - all.at[of].first;
    int64_t at = (int64_t)block * GCKPT_UPDATE_BLOCK;
    int n = p.elements - at < GCKPT_UPDATE_BLOCK ? (int)(p.elements - at) : GCKPT_UPDATE_BLOCK;
    int fours = all.at[of].four ? n / 4 * 4 : 0;
    for (int i = (int)threadIdx.x * 4; i < fours; i += (int)blockDim.x * 4)
        update_at<4>(p, more, at + i, divided + i);
    for (int i = fours + (int)threadIdx.x; i < n; i += (int)blockDim.x)
        update_at<1>(p, more, at + i, divided + i);
    if (!p.squares)
        return;
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    float sum = 0.0f;
#pragma unroll 16
    for (int i = (int)threadIdx.x; i < n; i += 32)
        sum = gckpti_fma(divided[i], divided[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        p.squares[block] = sum;
}

struct Deferred { /* a pending product, or fills followed by updates */
    void (*product)(Device *); /* launches the product (fast/products.cu), or NULL */
    Fills fills;
    Passes passes;
} deferred[sizeof devices / sizeof *devices];

void launch_pending(Device *d)
{
    Fills *f = &deferred[d->number].fills;
    Passes *p = &deferred[d->number].passes;
    unsigned blocks = 0;
    if (void (*product)(Device *) = deferred[d->number].product) {
        const int pending = d->overlap.pending; /* the product need not wait for this queue */
        deferred[d->number].product = NULL, d->overlap.pending = 0;
        product(d);
        d->overlap.pending = pending;
    }
    queue_join(d, &d->overlap, 0); /* kernels of this queue may read memory that is written next */
    for (int i = 0; i < f->n; i++) {
        f->at[i].first = blocks;
        blocks += (unsigned)((f->at[i].n + Fills::WORDS - 1) / Fills::WORDS);
    }
    if (f->n)
        launch<fill_kernel>(d, blocks, 256, 0, *f);
    if (p->n)
        launch<update_kernel>(d, p->blocks, 256, 0, *p);
    f->n = p->n = 0, p->blocks = 0;
}

/* The backend's fill. If it overlaps a collected fill, it launches the collected ones first. */
void fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    DeviceLock d(device_of(call), true);
    Fills *f = &deferred[d->number].fills;
    uint32_t *words = (uint32_t *)to;
    bool full = f->n == Fills::MOST || deferred[d->number].passes.n ||
                deferred[d->number].product;
    for (int i = 0; i < f->n; i++)
        full = full || (words < f->at[i].to + f->at[i].n && f->at[i].to < words + n);
    if (full)
        launch_pending(d);
    if (n > 0)
        f->at[f->n++] = { words, n, word, 0 };
}

/* If a collected fill sets exactly the n words from `at` on to 0, drops it and returns true. */
bool take_zero_fill(Device *d, const void *at, int64_t n)
{
    Fills *f = &deferred[d->number].fills;
    for (int i = 0; i < f->n; i++)
        if (f->at[i].to == at && f->at[i].n == n && f->at[i].word == 0) {
            f->at[i] = f->at[--f->n];
            return true;
        }
    return false;
}

/* The backend's update. */
void update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    if (pass->elements == 0) /* a rank's shard may be empty */
        return;
    DeviceLock d(device_of(call), true);
    Passes *w = &deferred[d->number].passes;
    gckpt_update_pass p = *pass;
    for (; p.adds > AddOffsets::MOST; p.adds--, p.more++) /* one more launch, in the same order */
        add(call, p.gradient, (const float *)((const char *)p.base + p.more[0]), p.elements);
    if (w->n == Passes::MOST || deferred[d->number].product)
        launch_pending(d);
    Passes::Pass *to = &w->at[w->n++];
    to->p = p;
    to->four = aligned(p.gradient, p.values, p.state[0], p.state[1]);
    for (int u = 0; u < p.adds; u++) {
        to->more.at[u] = p.more[u];
        to->four = to->four && aligned((const char *)p.base + p.more[u]);
    }
    to->first = w->blocks;
    w->blocks += (unsigned)((p.elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK);
}

/* >>common/dequantise */
/* A thread dequantises N values of BF16 or F16. */
struct Dequantise {
    gckpt_dequantisation u;
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<uint16_t, N> from = load<N>((const uint16_t *)u.quantised + i);
        Vec<float, N> x;
        for (int k = 0; k < N; k++)
            x.v[k] = u.storage == GCKPT_STORAGE_BF16 ? gckpti_from_bf16(from.v[k])
                                                     : gckpti_from_f16(from.v[k]);
        store(u.to + i, x);
    }
};

/* Dequantises blocks of I8 or I4; a thread converts values k and k + 16 of a block, if any. */
__device__ void dequantise_block(int64_t i, const gckpt_dequantisation &u)
{
    const int int8 = u.storage == GCKPT_STORAGE_I8;
    const int64_t blocks = (u.row + GCKPTI_QUANT_BLOCK - 1) / GCKPTI_QUANT_BLOCK; /* of a row */
    const int64_t row = i / 16 / blocks, block = i / 16 % blocks, k = i % 16;
    const int64_t at = block * GCKPTI_QUANT_BLOCK + k;
    const uint8_t *b = (const uint8_t *)u.quantised;
    b += int8 ? row * (2 * blocks + u.row) + block * GCKPTI_INT8_BYTES
              : (row * blocks + block) * GCKPTI_INT4_BYTES;
    const float scale = gckpti_from_f16((uint16_t)(b[0] | b[1] << 8)) / (int8 ? 1 : 16);
    const int zero = int8 ? 0 : b[GCKPTI_INT4_ZERO];
    float *to = u.to + row * u.row + at;
    if (at < u.row)
        to[0] = (float)(int8 ? (int8_t)b[2 + k] : (b[2 + k] & 15) * 16 - zero) * scale;
    if (at + 16 < u.row)
        to[16] = (float)(int8 ? (int8_t)b[18 + k] : (b[2 + k] >> 4) * 16 - zero) * scale;
}

void dequantise(const gckpt_call *call, const gckpt_dequantisation *request)
{
    const gckpt_dequantisation &u = *request;
    const int64_t blocks = (u.row + GCKPTI_QUANT_BLOCK - 1) / GCKPTI_QUANT_BLOCK;
    if (u.storage >= GCKPT_STORAGE_I8)
        for_each<dequantise_block>(call, u.n / u.row * blocks * 16, u);
    else
        for_each_vec<4>(call, Dequantise{ u }, u.n,
                        aligned(u.to) && (uintptr_t)u.quantised % 8 == 0);
}

/* >>exact/unary */
/* The N attributes of an op, which its formulas read. */
template <int N> struct Attributes {
    float o[N + 1] = {};
    explicit Attributes(const gckpt_call *call)
    {
        for (int i = 0; i < N; i++)
            o[i] = ((const float *)call->attributes)[i];
    }
};

/* Computes an element of y = F(x, o) as gradckpt.h does. */
template <auto F, int N = 0> struct Unary : Attributes<N> {
    using Attributes<N>::Attributes;
    __device__ void operator()(float *d, float x, float, float, int) const { *d = F(x, this->o); }
};

/* PUT stores or adds g * DERIV(at, o) in an element of dx. at: x, or y if DERIV takes y. */
template <auto DERIV, auto PUT, int N = 0> struct UnaryGrad : Attributes<N> {
    using Attributes<N>::Attributes;
    __device__ void operator()(float *d, float at, float g, float, int accumulate) const
    {
        PUT(d, g, DERIV(at, this->o), accumulate, 1);
    }
};

/* Runs an elementwise op of one input: a row of GCKPTI_UNARY_OPS or GCKPTI_UNARY_OPS_WITH. */
template <auto VALUE, auto DERIV, auto PUT, unsigned READS, int N, bool BF16>
void unary_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &x = call->in[0];
    const Values g = grad_out_of(call);
    const Values at = READS & GCKPT_IN(0) ? value_of(x) : READS ? value_out_of(call) : g;
    if (backward)
        map_gradient<BF16>(call, x, UnaryGrad<DERIV, PUT, N>(call), at, g);
    else
        map_out<BF16>(call, Unary<VALUE, N>(call), value_of(x), NONE);
}

#define UNARY_WITH(name, flops, reads, value, rule, deriv, n, ...)                                 \
    template <bool BF16> void name##_by(const gckpt_call *call, bool backward)                     \
    {                                                                                              \
        unary_by<gckpti_##name##_value, gckpti_##name##_slope, gckpti_put_##rule##_n, reads, n,    \
                 BF16>(call, backward);                                                            \
    }
#define UNARY(name, flops, reads, value, rule, deriv)                                              \
    UNARY_WITH(name, flops, reads, value, rule, deriv, 0, )
GCKPTI_UNARY_OPS(UNARY)
GCKPTI_UNARY_OPS_WITH(UNARY_WITH)
#undef UNARY
#undef UNARY_WITH

void detach_by(const gckpt_call *call, bool)
{
    const Values x = value_of(call->in[0]);
    const Results y = out_of(call);
    if (x.f32 != y.f32 || x.bf16 != y.bf16)
        map_out<true>(call, Copy(), x, NONE);
}

__device__ void from_u8_at(int64_t i, const uint8_t *x, float scale, float shift, float *out)
{
    out[i] = gckpti_fma((float)x[i], scale, shift);
}

void from_u8_by(const gckpt_call *call, bool)
{
    const float *o = (const float *)call->attributes;
    for_each<from_u8_at>(call, gckpti_elements(&call->shape), call->in[0].bytes, o[0], o[1],
                         call->out);
}

/* Returns word[i % 4]; indexing by a variable would put the array into local memory. */
__device__ inline uint32_t word_at(const uint32_t word[4], uint64_t i)
{
    return i & 2 ? (i & 1 ? word[3] : word[2]) : (i & 1 ? word[1] : word[0]);
}

/* Four elements of the batch share a block of random bits; a vector may begin within these four. */
struct DropoutMask {
    float p, factor;
    int64_t each; /* elements of a row */
    int id;
    const StepParams *params;
    Values x;
    Results y;
    int accumulate;
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<float, N> from = load<N>(x, i), to = {};
        uint64_t at = (uint64_t)(i + params->first_row * each);
        uint32_t word[4];
        if (accumulate)
            to = load<N>(y, i);
        for (int k = 0; k < N; k++, at++) {
            if (k == 0 || at % 4 == 0)
                gckpti_philox(params->seed, at / 4, (uint32_t)id, (uint32_t)params->step, word);
            if (gckpti_uniform(word_at(word, at)) >= p)
                gckpti_put_product(&to.v[k], factor, from.v[k], accumulate);
            else
                gckpti_put(&to.v[k], 0.0f, accumulate);
        }
        store(y, i, to);
    }
};

void dropout_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = backward ? grad_out_of(call) : value_of(in);
    const Results y = backward ? grad_of(in) : out_of(call);
    if (!backward && !call->training)
        return detach_by(call, false);
    const int64_t n = gckpti_elements(&call->shape), each = n / call->rows;
    const float p = *(const float *)call->attributes;
    const DropoutMask o = { p, 1.0f / (1.0f - p),        each, call->id, params_of(call), x,
                            y, backward && in.accumulate };
    for_each_vec<8>(call, o, wanted(y) ? n : 0, aligned(x, y));
}

/* >>exact/axes */
/* ---- broadcasting: axes, values and rules of gradients ---- */
/* Returns the axes of an iterator. Its tensors, number `first` before the other one, get the last
 * steps: step[1] and step[2] after those of a dense result, or step[0] and step[1] without one. */
Axes axes_of(const gckpti_iter &w, int first, bool dense)
{
    Axes x = {};
    x.n = w.n;
    for (int64_t k = 0, size = 1; k < w.n; size *= w.size[k++]) {
        x.size[k] = w.size[k];
        x.step[0][k] = size;
        x.step[dense][k] = w.step[first][k];
        x.step[dense + 1][k] = w.step[!first][k];
    }
    return x;
}

/* Iterates over `axes` of tensors of shapes a and b. */
Axes axes_over(const gckpt_shape &axes, const gckpt_shape &a, const gckpt_shape &b, bool dense)
{
    const gckpt_shape *const shapes[4] = { &a, &b, NULL, NULL };
    gckpti_iter it;
    gckpti_iter_over(&it, &axes, shapes);
    return axes_of(it, 0, dense);
}

struct Quotient { /* a / divisor */
    float divisor;
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, divisor != 1.0f ? a / divisor : a, accumulate);
    }
};

/* Returns true if an element of a condition, f32 or i32, is not 0; -0 counts as 0. */
__device__ inline bool holds(float word, bool is_i32)
{
    return (gckpti_bits(word) & (is_i32 ? 0xffffffffu : 0x7fffffffu)) != 0;
}

/* Rules of gradients: rows of GCKPTI_BINARY_GRADS, or those of op `where`, which pass g where the
 * condition `other` is true (WHERE) or false (ELSEWHERE). */
#define NAME(name, ...) GRAD_##name,
enum Rule { GCKPTI_BINARY_GRADS(NAME) WHERE, ELSEWHERE, WHERE_I32, ELSEWHERE_I32 };
#undef NAME
struct Gradient {
    Rule rule;
    __device__ void operator()(float *d, float g, float other, float self, int accumulate) const
    {
        switch (rule) {
#define PUT(name, ...)                                                                             \
    case GRAD_##name:                                                                              \
        gckpti_##name##_put(d, g, self, other, accumulate);                                        \
        break;
            GCKPTI_BINARY_GRADS(PUT)
#undef PUT
        default:
            if (holds(other, rule >= WHERE_I32) != ((rule - WHERE) % 2 == 0))
                g = 0.0f;
            gckpti_put(d, g, accumulate);
        }
    }
};

/* >>exact/sums */
/* Where the sum of a column over rows, in their order (manual, 5e), begins and is stored. */
struct Sum {
    Results at; /* empty: the sum is not required */
    float *comp; /* NULL if not compensated */
    int accumulate;
    float divisor = 1.0f;
};

Sum sum_to(float *at) { return { { at, NULL } }; }
Sum sum_of(const gckpt_arg &x) { return { grad_of(x), x.compensation, x.accumulate }; }

/* Returns the sum for input i's gradient, or an empty one if i is 0, which means no input. */
Sum sum_of(const gckpt_call *call, int i) { return i ? sum_of(call->in[i]) : Sum{}; }

/* sum_begin loads a sum, sum_end stores it. fresh: compensation is +0 unless it accumulates. */
__device__ inline float sum_begin(const Sum &s, int64_t i, bool fresh, float *comp)
{
    *comp = s.comp && (s.accumulate || !fresh) ? s.comp[i] : 0.0f;
    return s.accumulate ? value_at(s.at, i) : 0.0f;
}

__device__ inline void sum_end(const Sum &s, int64_t i, float sum, float comp)
{
    put_at(s.at, i, sum / s.divisor);
    if (s.comp)
        s.comp[i] = comp;
}

__device__ inline void add_term(bool compensated, float *sum, float *comp, float x)
{
    if (compensated) /* not ?:, which would take comp's address and put it in memory */
        gckpti_sum_add(sum, comp, x);
    else
        gckpti_sum_add(sum, NULL, x);
}

/* Base of terms of sums over rows, a sum a column. A thread reads NCOLS columns; Column: its state
 * for one. FRESH: sums are compensated, stored or not. along: rows are adjacent in memory. */
struct Terms {
    static constexpr bool FRESH = false, along = false;
    static constexpr int NCOLS = 1;
    typedef int64_t Column;
    __device__ static int64_t column_of(int64_t, int64_t column) { return column; }
};

/* A block adds up COLUMNS columns. Its threads copy 8 terms of each sum at a time to shared memory,
 * while warps 0 and 1 add the previous 8, a lane for each column of one of two sums. A column is a
 * chain of four additions per term (5e), about 16 cycles, which more threads do not shorten: few
 * columns of many rows do not fill the chip. Each image has separate sums. */
template <class T, int COLUMNS>
__global__ void column_sums_kernel(const __grid_constant__ T of, Sum first, Sum second,
                                   int64_t rows, int64_t n)
{
    enum { PER_STEP = 8, LINES = 256 / COLUMNS, STEP = PER_STEP * LINES, NCOLS = T::NCOLS };
    SHARED(float, tile, [2][2][STEP][COLUMNS + 1]);
    const int thread = (int)threadIdx.x, lane = thread % COLUMNS, line = thread / COLUMNS;
    const int64_t across = (n + COLUMNS - 1) / COLUMNS, image = blockIdx.x / across;
    const int64_t begin = (blockIdx.x - image * across) * COLUMNS, to = image * n + begin + lane;
    const int columns = (int)gckpti_min(n - begin, COLUMNS);
    const Sum mine = thread < 32 ? first : second;
    const bool adds = thread < 64 && thread % 32 < COLUMNS && lane < columns && wanted(mine.at);
    float sum = 0.0f, comp = 0.0f, term[PER_STEP][2];
    typename T::Column cols[NCOLS];
    if (adds)
        sum = sum_begin(mine, to, T::FRESH, &comp);
    UNROLLED(k, NCOLS) {
        const int column = of.along ? line + LINES * k : lane;
        cols[k] = of.column_of(image, begin + (column < columns ? column : 0));
    }
    for (int64_t from = -STEP; from < rows; from += STEP) {
        const int now = (int)(from / STEP & 1), which = thread / 32 % 2;
        UNROLLED(k, PER_STEP) { /* reads the next rows */
            const int column = of.along ? line + LINES * (k % NCOLS) : lane;
            const int row = of.along ? lane + COLUMNS * (k / NCOLS) : line + LINES * k;
            term[k][0] = term[k][1] = 0.0f;
            if (from + STEP + row < rows && column < columns)
                of(cols[k % NCOLS], from + STEP + row, term[k]);
        }
        const int count = (int)gckpti_min(rows - from, STEP);
#pragma unroll 8
        for (int k = 0; k < count && adds && from >= 0; k++)
            add_term(T::FRESH || mine.comp, &sum, &comp, tile[now][which][k][lane]);
        UNROLLED(k, PER_STEP) {
            const int column = of.along ? line + LINES * (k % NCOLS) : lane;
            const int row = of.along ? lane + COLUMNS * (k / NCOLS) : line + LINES * k;
            tile[!now][0][row][column] = term[k][0], tile[!now][1][row][column] = term[k][1];
        }
        __syncthreads();
    }
    if (adds)
        sum_end(mine, to, sum, comp);
}

template <int COLUMNS = 32, class T>
void column_sums(const gckpt_call *call, const T &of, const Sum &first, const Sum &second,
                 int64_t rows, int64_t n, int64_t images = 1)
{
    const int64_t blocks = (n + COLUMNS - 1) / COLUMNS * images;
    if (wanted(first.at) || wanted(second.at))
        run<column_sums_kernel<T, COLUMNS>>(call, dim3((unsigned)blocks), 256, 0, of, first,
            second, rows, n);
}

/* Terms of sums over rows of g, in order, by a rule of gradients. `self` is indexed like the sums;
 * it may be NONE, and so may `other`. step[0] is for g, step[1] for `other`. */
struct Sums {
    static constexpr bool FRESH = false;
    static constexpr int NCOLS = 4;
    struct Column {
        Offsets at;
        float self;
    };
    Gradient rule;
    Values g, other, self;
    Sum to;
    Axes column, row; /* sums() sets this and the fields below */
    int64_t columns, rows;
    bool along;

    __device__ Column column_of(int64_t, int64_t c) const
    {
        return { column.at(c), value_at(self, c) };
    }
    __device__ void operator()(const Column &c, int64_t r, float *term) const /* *term is +0 */
    {
        const Offsets more = row.at(r);
        rule(term, value_at(g, c.at.at0 + more.at0), value_at(other, c.at.at1 + more.at1), c.self,
             1);
    }
};

/* For many columns: each thread adds up one column, 8 loads at a time. */
__global__ void sums_by_thread_kernel(const __grid_constant__ Sums s)
{
    for (EACH(c, s.columns)) {
        const auto cols = s.column_of(0, c);
        float comp, sum = sum_begin(s.to, c, false, &comp);
        for (int64_t r = 0; r < s.rows; r += 8) {
            float x[8] = {};
            for (int k = 0; k < 8; k++)
                if (r + k < s.rows)
                    s(cols, r + k, &x[k]);
            for (int k = 0; k < 8 && r + k < s.rows; k++)
                add_term(s.to.comp, &sum, &comp, x[k]);
        }
        sum_end(s.to, c, sum, comp);
    }
}

/* Sums g over `axes`: step[0] is for g, step[1] for the sum (0 if summed), step[2] for `other`. */
void sums(const gckpt_call *call, const Axes &axes, Sums s)
{
    s.columns = s.rows = 1;
    for (int k = 0; k < axes.n; k++) {
        Axes *to = axes.step[1][k] ? &s.column : &s.row;
        to->size[to->n] = axes.size[k];
        to->step[0][to->n] = axes.step[0][k];
        to->step[1][to->n++] = axes.step[2][k];
        *(axes.step[1][k] ? &s.columns : &s.rows) *= axes.size[k];
    }
    s.along = s.row.n && s.row.step[0][0] == 1;
    if (!s.along && (s.rows <= 64 || s.columns >= 1 << 17)) /* enough threads to fill the chip */
        run_each<sums_by_thread_kernel>(call, s.columns, s);
    else
        column_sums(call, s, s.to, {}, s.rows, s.columns);
}

/* >>exact/broadcast */
/* Iterates over the result and inputs i and j. */
Axes broadcast_axes(const gckpt_call *call, int i, int j)
{
    return axes_over(call->shape, call->in[i].shape, call->in[j].shape, true);
}

/* Returns the values of an input, or the words of an i32 one. */
Values words_of(const gckpt_arg &x)
{
    return x.index ? Values{ (const float *)(const void *)x.index, NULL } : value_of(x);
}

/* Gives input i its gradient by a rule, which reads input i and another one as `reads` says. */
template <bool BF16 = false>
void broadcast_gradient(const gckpt_call *call, int i, int other, Rule rule, unsigned reads)
{
    const gckpt_arg *in = &call->in[i];
    const Values g = grad_out_of(call), x = reads & GCKPT_IN(i) ? value_of(*in) : NONE;
    const Values at = reads & GCKPT_IN(other) ? words_of(call->in[other]) : NONE;
    if (!wanted(*in) || (in->grad == g.f32 && in->grad_bf16 == g.bf16)) /* g is in place already */
        return;
    Axes axes = broadcast_axes(call, i, other);
    if (in->compensation)
        sums(call, axes, { { rule }, g, at, x, sum_of(*in) });
    else
        map<BF16>(call, axes, Gradient{ rule }, grad_of(*in), g, at, x, in->accumulate);
}

/* Computes a op b. */
template <auto F> struct Binary {
    __device__ void operator()(float *d, float a, float b, float, int) const { *d = F(a, b); }
};

/* Defines how an op of GCKPTI_BINARY_OPS runs. grad_a, reads_a: the rule of the first input's
 * gradient, and the inputs that this rule reads. */
#define BINARY(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)                        \
    template <bool BF16> void name##_by(const gckpt_call *call, bool backward)                     \
    {                                                                                              \
        const gckpt_arg *in = call->in;                                                            \
        if (!backward)                                                                             \
            return map<BF16>(call, broadcast_axes(call, 0, 1), Binary<gckpti_##name##_value>(),    \
                             out_of(call), value_of(in[0]), value_of(in[1]), NONE, 0);             \
        broadcast_gradient<BF16>(call, 0, 1, GRAD_##grad_a, reads_a);                              \
        broadcast_gradient<BF16>(call, 1, 0, GRAD_##grad_b, reads_b);                              \
    }
GCKPTI_BINARY_OPS(BINARY)
#undef BINARY

/* Computes a where the condition equals on_true, and `self` elsewhere. */
struct Where {
    bool is_i32, on_true;
    __device__ void operator()(float *d, float a, float condition, float self, int) const
    {
        *d = holds(condition, is_i32) == on_true ? a : self;
    }
};

/* Selects from input `taken`, else `rest`. If both are repeated, expands `rest` into out first. */
void where_forward(const gckpt_call *call)
{
    const int64_t n = gckpti_elements(&call->shape);
    const bool repeated = gckpti_elements(&call->in[1].shape) != n;
    const int taken = repeated || gckpti_elements(&call->in[2].shape) == n ? 1 : 2;
    const gckpt_arg *rest = &call->in[3 - taken];
    Values self = value_of(*rest);
    const Where f = { call->in[0].index != NULL, taken == 1 };
    if (gckpti_elements(&rest->shape) != n) {
        map(call, broadcast_axes(call, 3 - taken, 0), Copy(), out_of(call), self, NONE, NONE, 0);
        self = value_out_of(call);
    }
    map(call, broadcast_axes(call, taken, 0), f, out_of(call), value_of(call->in[taken]),
        words_of(call->in[0]), self, 0);
}

void where_by(const gckpt_call *call, bool backward)
{
    if (!backward)
        return where_forward(call);
    const bool is_i32 = call->in[0].index != NULL;
    const gckpt_arg *condition = &call->in[0];
    if (condition->grad && !condition->accumulate)
        fill(call, condition->grad, 0, gckpti_elements(&condition->shape));
    broadcast_gradient(call, 1, 0, is_i32 ? WHERE_I32 : WHERE, GCKPT_IN(0));
    broadcast_gradient(call, 2, 0, is_i32 ? ELSEWHERE_I32 : ELSEWHERE, GCKPT_IN(0));
}

/* >>exact/shapes */
/* ---- permute ---- s is contiguous along axis p, d along axis q: a block of 32 x 8 threads
 * transposes 32 x 32 in shared memory, so that warps read and write 128 contiguous bytes. */
struct Transpose {
    Axes rest;                    /* all axes, of which p and q have size 1 */
    int64_t p, q, p_step, q_step; /* sizes of p and q; step of p in d; step of q in s */
};

__global__ void transpose_kernel(const __grid_constant__ Transpose t, float *d, const float *s,
                                 int64_t tiles, int accumulate)
{
    SHARED(float, tile, [32][33]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t across = (t.p + 31) / 32, down = (t.q + 31) / 32;
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        const int64_t p = i % across * 32, q = i / across % down * 32;
        const Offsets at = t.rest.at(i / across / down);
        for (int k = warp; k < 32; k += 8)
            if (p + lane < t.p && q + k < t.q)
                tile[k][lane] = s[at.at1 + (q + k) * t.q_step + p + lane];
        __syncthreads();
        for (int k = warp; k < 32; k += 8)
            if (p + k < t.p && q + lane < t.q)
                gckpti_put(&d[at.at0 + (p + k) * t.p_step + q + lane], tile[lane][k], accumulate);
        __syncthreads();
    }
}

/* Copies s to d, or adds it; the contiguous axes of s and of d may differ. */
void transpose(const gckpt_call *call, const Axes &x, float *d, const float *s, int accumulate)
{
    int p = 0, q = 0;
    for (int k = 0; k < x.n; k++) {
        p = x.step[1][k] == 1 ? k : p;
        q = x.step[0][k] == 1 ? k : q;
    }
    if (p == q)
        return map(call, x, Copy(), { d, NULL }, { s, NULL }, NONE, NONE, accumulate);
    Transpose t = { x, x.size[p], x.size[q], x.step[0][p], x.step[1][q] };
    t.rest.size[p] = t.rest.size[q] = 1;
    const int64_t tiles = (t.p + 31) / 32 * ((t.q + 31) / 32) * t.rest.count();
    run<transpose_kernel>(call, blocks_for(tiles, 1), 256, 0, t, d, s, tiles, accumulate);
}

/* ---- slice, pad, concat: one tensor is a part of each block of another one ---- */
/* Copies or adds the elements of a part to the whole tensor, or back. fills: also sets the other
 * elements of the whole tensor to `rest`. */
struct PartMove {
    Values x;
    Results y;
    int64_t whole, begin, n; /* the part: n elements from `begin` on of each `whole` elements */
    float rest;
    bool to_whole, fills;
    int accumulate;
    template <int N> __device__ void at(int64_t i) const
    {
        const int64_t size = fills ? whole : n, block = i / size;
        const int64_t j = i - block * size - (fills ? begin : 0);
        const int64_t in_part = block * n + j, in_whole = block * whole + begin + j;
        Vec<float, N> v;
        UNROLLED(k, N) v.v[k] = rest;
        if (j >= 0 && j < n)
            v = load<N>(x, to_whole ? in_part : in_whole);
        write_vec<N>(y, to_whole ? in_whole : in_part, N, true, v.v, accumulate);
    }
};

/* Moves each input to the result or, backward, the result's gradient to that of the input.
 * of_result: inputs are parts of the result; else the result is a part of the input. A whole tensor
 * of one part is filled up by `rest`. */
void move_parts(const gckpt_call *call, bool backward, gckpti_move_fn *move, bool of_result,
                float rest = 0.0f)
{
    for (int i = 0; i < call->inputs; i++) {
        const gckpt_arg &in = call->in[i];
        gckpti_iter it;
        move(&it, call, i);
        const int64_t all[2] = { gckpti_elements(&in.shape), gckpti_elements(&call->shape) };
        const int64_t n = it.step[0][0] == it.step[1][0] ? it.size[0] : 1; /* adjacent elements */
        const int64_t whole = all[of_result] / (all[!of_result] / n), begin = it.offset[of_result];
        const Values x = backward ? grad_out_of(call) : value_of(in);
        const Results y = backward ? grad_of(in) : out_of(call);
        const bool to_whole = of_result != backward, accumulate = backward && in.accumulate;
        const bool fills = to_whole && call->inputs == 1 && !accumulate;
        const PartMove part = { x, y, whole, begin, n, rest, to_whole, fills, accumulate };
        const int64_t moved = wanted(y) ? all[fills ? of_result : !of_result] : 0;
        if ((whole | begin | n) % 8 == 0)
            for_each_vec<8>(call, part, moved, aligned(x, y));
        else
            for_each_vec<4>(call, part, moved, (whole | begin | n) % 4 == 0 && aligned(x, y));
    }
}

/* The latest n rows of a cache that holds `held`, some of them new; 0 before position 0. */
struct Latest {
    Values x;
    Results y;
    int64_t n, held, c, added;
};
__device__ void latest_at(int64_t i, const Latest &s, const StepParams *params)
{
    const int64_t row = i / s.c, at = params->position + s.added - s.n + row % s.n;
    Vec<float, 1> v = { { 0.0f } };
    if (at >= 0)
        v = load<1>(s.x, (row / s.n * s.held + at % s.held) * s.c + i % s.c);
    write_vec<1>(s.y, i, 1, true, v.v, 0);
}

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    const int64_t *x = call->in[0].shape.d, *y = call->shape.d;
    const Latest s = { value_of(call->in[0]), out_of(call), y[1], x[1], y[2], p->relative };
    if (p->relative && p->axis)
        return for_each<latest_at>(call, y[0] * y[1] * y[2], s, params_of(call));
    move_parts(call, backward, gckpti_slice_move, false);
}

/* >>exact/reduce */
/* Terms of a row's sum: add() adds the VALUES values that read() reads. +0 changes no sum. */
struct Plain { /* x */
    static constexpr int VALUES = 1;
    const float *x;
    __device__ void read(float *v, int64_t i) const { v[0] = x[i]; }
    __device__ float add(const float *v, float sum) const { return sum + v[0]; }
};

struct ElementLoss { /* w a b; if w is 0 or NaN, w */
    static constexpr int VALUES = 2;
    gckpti_element_loss e;
    __device__ void read(float *v, int64_t i) const
    {
        float w = gckpti_element_weight(&e, i);
        float a = gckpti_element_factors(e.kind, e.x[i], e.y ? e.y[i] : 0.0f, e.delta, &v[1]);
        bool counts = w > 0.0f || w < 0.0f;
        v[0] = counts ? w * a : w;
        v[1] = counts ? v[1] : 1.0f;
    }
    __device__ float add(const float *v, float sum) const { return gckpti_fma(v[0], v[1], sum); }
};

/* Sums rows of n elements, a warp a row, and divides each sum by `divisor`. */
template <class F>
__device__ void sum_of_row(int64_t r, const F &f, float *out, int64_t n, float divisor)
{
    const float sum = lanes_sum<8>(n, [&](float all, int64_t i) {
        float v[F::VALUES];
        f.read(v, r * n + i);
        return f.add(v, all);
    });
    if (threadIdx.x % 32 == 0)
        out[r] = sum / divisor;
}

/* Sums rows with a block for each row, if rows are few and long: its warps copy some thousand
 * elements to shared memory while the first warp adds the previous ones. 128 terms in each lane
 * take about as long as reading memory. */
enum { LONG = 4096, LONG_THREADS = 512, LONG_ROW = 2 * LONG };
template <class F>
__global__ void long_row_sums_kernel(F f, float *out, int64_t n, float divisor)
{
    enum { PER_STEP = LONG / F::VALUES };
    SHARED(float, tile, [2][PER_STEP][F::VALUES]);
    int64_t row = blockIdx.x * n;
    int thread = (int)threadIdx.x;
    float sum = 0.0f;
    for (int64_t i = -PER_STEP; i < n; i += PER_STEP) {
        int now = i / PER_STEP & 1 ? 1 : 0;
        float v[PER_STEP / LONG_THREADS][F::VALUES] = {};
        for (int k = 0; k < PER_STEP / LONG_THREADS; k++) {
            int64_t at = i + PER_STEP + k * LONG_THREADS + thread;
            if (at < n)
                f.read(v[k], row + at);
        }
#pragma unroll 16
        for (int k = thread; k < PER_STEP && thread < 32 && i >= 0; k += 32)
            sum = f.add(tile[now][k], sum);
        for (int k = 0; k < PER_STEP / LONG_THREADS; k++)
            for (int j = 0; j < F::VALUES; j++)
                tile[!now][k * LONG_THREADS + thread][j] = v[k][j];
        __syncthreads();
    }
    if (thread >= 32)
        return;
    sum = warp_sum(sum);
    if (thread == 0)
        out[blockIdx.x] = sum / divisor;
}

template <class F>
void row_sums(const gckpt_call *call, F f, float *out, int64_t rows, int64_t n, float divisor)
{
    if (n >= LONG_ROW && rows < 1024) /* with more rows, a warp per row fills the chip */
        run<long_row_sums_kernel<F>>(call, dim3((unsigned)rows), LONG_THREADS, 0, f, out, n,
                                     divisor);
    else
        for_each_row<sum_of_row<F>>(call, rows, f, out, n, divisor);
}

/* >>exact/axis_ops */
#ifndef GCKPT_NO_AXES
void permute_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    float *to = backward ? x->grad : call->out;
    gckpti_iter it;
    gckpti_permute_move(&it, call, 0);
    if (to)
        transpose(call, axes_of(it, !backward, false), to, backward ? call->grad_out : x->data,
                  backward && x->accumulate);
}

/* Copies the element of which e of y is a copy. */
__device__ void pad_copy_at(int64_t e, const gckpti_pad &p, const gckpti_axis_split &v,
                            const float *x, float *y)
{
    const int64_t all = p.before + v.size + p.after, line = e / v.inner;
    const int64_t from = line / all * v.size + gckpti_pad_source(&p, v.size, line % all);
    y[e] = x[from * v.inner + e % v.inner];
}

/* Adds the gradients of the copies of element e of x, in the order of their places. */
__device__ void pad_add_at(int64_t e, const gckpti_pad &p, const gckpti_axis_split &v, float *dx,
                           const float *g)
{
    const int64_t all = p.before + v.size + p.after, line = e / v.inner, i = line % v.size;
    float d = dx[e];
    for (int64_t k = 0; k < all; k++)
        if ((k < p.before || k >= p.before + v.size) && gckpti_pad_source(&p, v.size, k) == i)
            d += g[(line / v.size * all + k) * v.inner + e % v.inner];
    dx[e] = d;
}

void pad_by(const gckpt_call *call, bool backward)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    const gckpt_arg *x = &call->in[0];
    const gckpti_axis_split v = gckpti_split_at(&x->shape, p->axis);
    if (p->mode != GCKPT_PAD_VALUE && !backward) {
        for_each<pad_copy_at>(call, gckpti_elements(&call->shape), *p, v, x->data, call->out);
        return;
    }
    move_parts(call, backward, gckpti_pad_move, true, p->value);
    if (p->mode != GCKPT_PAD_VALUE && x->grad)
        for_each<pad_add_at>(call, gckpti_elements(&x->shape), *p, v, x->grad, call->grad_out);
}

void concat_by(const gckpt_call *call, bool backward)
{
    move_parts(call, backward, gckpti_concat_move, true);
}

/* Reduces the last axis by lanes, any other axis row by row. Backward: gives each element the
 * gradient of its sum or mean. */
template <bool MEAN> void sum_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const int axis = *(const int *)call->attributes;
    const gckpti_axis_split v = gckpti_split_at(&x->shape, axis);
    const float divisor = MEAN ? (float)v.size : 1.0f;
    gckpt_shape each = x->shape;
    each.d[axis < 0 ? axis + each.n : axis] = 1;
    const Axes axes = axes_over(x->shape, x->shape, each, false);
    if (backward && x->grad)
        map(call, axes, Quotient{ divisor }, grad_of(*x), grad_out_of(call), NONE, NONE,
            x->accumulate);
    else if (!backward && (axis == -1 || axis == x->shape.n - 1))
        row_sums(call, Plain{ x->data }, call->out, v.outer, v.size, divisor);
    else if (!backward)
        sums(call, axes,
             { { GRAD_identity }, { x->data }, NONE, NONE, { out_of(call), NULL, 0, divisor } });
}

/* ---- max, argmax, top_k: the k elements that come first in the order of gckpti_precedes ---- */
/* A thread computes the results of a line; on the last axis, the LANES = 32 lanes of a warp do.
 * Each result is the first element of those after the one before it. */
template <int LANES>
__device__ void max_of(int64_t e, const gckpti_axis_split &v, const float *x, float *out,
                       int32_t *index, int k)
{
    const int64_t i = e / LANES;
    const float *from = x + i / v.inner * v.size * v.inner + i % v.inner;
    int64_t to = i / v.inner * k * v.inner + i % v.inner;
    float limit = 0.0f;
    int32_t last = -1;
    for (int result = 0; result < k; result++, to += v.inner) {
        float best = 0.0f;
        int32_t at = -1;
        for (int32_t n = (int32_t)(e % LANES); n < v.size; n += LANES) {
            const float value = from[n * v.inner];
            if ((last < 0 || gckpti_precedes(limit, last, value, n)) &&
                (at < 0 || gckpti_precedes(value, n, best, at)))
                best = value, at = n;
        }
        for (int h = LANES / 2; h; h /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, h);
            const int32_t n = __shfl_xor_sync(0xffffffffu, at, h);
            if (n >= 0 && (at < 0 || gckpti_precedes(other, n, best, at)))
                best = other, at = n;
        }
        limit = best, last = at;
        if (e % LANES == 0 && out)
            out[to] = best;
        if (e % LANES == 0 && index)
            index[to] = at;
    }
}

void max_with_index(const gckpt_call *call, float *out, void *index, int k)
{
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, *(const int *)call->attributes);
    if (v.inner == 1)
        for_each<max_of<32>>(call, v.outer * 32, v, call->in[0].data, out, (int32_t *)index, k);
    else
        for_each<max_of<1>>(call, v.outer * v.inner, v, call->in[0].data, out, (int32_t *)index, k);
}

/* Passes the gradient of result e, one of a line's k, to its element. */
__device__ void max_gradient_at(int64_t e, const gckpti_axis_split &v, const gckpt_arg &x,
                                const float *g, const int32_t *index, int k)
{
    const int64_t at = (e / v.inner / k * v.size + index[e]) * v.inner + e % v.inner;
    gckpti_put(&x.grad[at], g[e], x.accumulate);
}

void maxima_by(const gckpt_call *call, bool backward, int k)
{
    const gckpt_arg *x = &call->in[0];
    const gckpti_axis_split v = gckpti_split_at(&x->shape, *(const int *)call->attributes);
    if (!backward)
        return max_with_index(call, call->out, call->saved, k);
    if (x->grad && !x->accumulate)
        fill(call, x->grad, 0, gckpti_elements(&x->shape));
    if (x->grad)
        for_each<max_gradient_at>(call, v.outer * k * v.inner, v, *x, call->grad_out,
                                  (const int32_t *)call->saved, k);
}
int number_of(const gckpt_call *call) { return ((const int *)call->attributes)[1]; }
void max_by(const gckpt_call *call, bool backward) { maxima_by(call, backward, 1); }
void argmax_by(const gckpt_call *call, bool) { max_with_index(call, NULL, call->out, 1); }
void top_k_by(const gckpt_call *call, bool backward) { maxima_by(call, backward, number_of(call)); }
void top_k_indices_by(const gckpt_call *call, bool)
{
    max_with_index(call, NULL, call->out, number_of(call));
}
#endif

/* >>exact/upsample */
#ifndef GCKPT_NO_IMAGES
/* ---- upsample: a thread for each result (backward: each element of dx) ---- */
struct Image { /* sizes: rows and columns of x and of the result; channels */
    int64_t in[2], out[2], c;
    int mode;
};

__device__ void upsample_at(int64_t i, const Image &s, const float *x, float *out)
{
    const int64_t pixel = i / s.c, line = pixel / s.out[1], image = line / s.out[0];
    const gckpti_interp p = gckpti_interp_of(s.mode, s.in[0], s.out[0], line % s.out[0]);
    const gckpti_interp q = gckpti_interp_of(s.mode, s.in[1], s.out[1], pixel % s.out[1]);
    float y = 0.0f;
    for (int k = 0; k < p.n * q.n; k++) {
        const int a = k / q.n, b = k % q.n;
        const int64_t row = image * s.in[0] + p.index[a];
        const float v = x[(row * s.in[1] + q.index[b]) * s.c + i % s.c];
        y = s.mode == GCKPT_NEAREST ? v : gckpti_fma(p.weight[a] * q.weight[b], v, y);
    }
    out[i] = y;
}

/* Returns the first of n results that reads element `at` of `size`, or a later element. */
__device__ int64_t first_reader(int mode, int64_t size, int64_t n, int64_t at)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t i = (low + high) / 2;
        if (gckpti_interp_of(mode, size, n, i).index[0] < at)
            low = i + 1;
        else
            high = i;
    }
    return low;
}

/* Adds the gradients of the results that read an element, in the order of the results and taps. */
__device__ void upsample_gradient_at(int64_t i, const Image &s, float *dx, const float *g,
                                     int accumulate)
{
    const int64_t pixel = i / s.c, w = pixel % s.in[1], h = pixel / s.in[1] % s.in[0];
    const int64_t image = pixel / s.in[1] / s.in[0] * s.out[0];
    const int64_t left = first_reader(s.mode, s.in[1], s.out[1], w - 1);
    int64_t y = first_reader(s.mode, s.in[0], s.out[0], h - 1);
    float d = accumulate ? dx[i] : 0.0f;
    for (; y < s.out[0]; y++) {
        const gckpti_interp p = gckpti_interp_of(s.mode, s.in[0], s.out[0], y);
        if (p.index[0] > h)
            break;
        for (int64_t z = left; z < s.out[1]; z++) {
            const gckpti_interp q = gckpti_interp_of(s.mode, s.in[1], s.out[1], z);
            if (q.index[0] > w)
                break;
            for (int k = 0; k < p.n * q.n; k++)
                if (p.index[k / q.n] == h && q.index[k % q.n] == w)
                    d = gckpti_fma(p.weight[k / q.n] * q.weight[k % q.n],
                                   g[((image + y) * s.out[1] + z) * s.c + i % s.c], d);
        }
    }
    dx[i] = d;
}

void upsample_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const int64_t *in = x->shape.d, n = gckpti_elements(backward ? &x->shape : &call->shape);
    const gckpti_upsample *o = (const gckpti_upsample *)call->attributes;
    const Image s = { { in[1], in[2] }, { o->size[0], o->size[1] }, in[3], o->mode };
    if (!backward)
        for_each<upsample_at>(call, n, s, x->data, call->out);
    else if (x->grad)
        for_each<upsample_gradient_at>(call, n, s, x->grad, call->grad_out, x->accumulate);
}
#endif

/* >>exact/rotary */
/* Copies the positions of x into the cache, in each row; a windowed cache is a ring. */
__device__ void cache_at(int64_t i, const gckpt_arg &x, float *out, uint16_t *narrow, int64_t n,
                         int64_t c, int64_t each, const StepParams *params)
{
    gckpti_put_element(&x, i, out, narrow, i / n * each + (params->position * c + i % n) % each);
}

void cache_by(const gckpt_call *call, bool)
{
    int64_t c = call->shape.d[2], n = call->in[0].shape.d[1] * c, all = call->shape.d[0] * n;
    for_each<cache_at>(call, all, call->in[0], call->out, call->out_bf16, n, c,
                       call->shape.d[1] * c, params_of(call));
}

/* Frequencies of the angles: number i is ratio^i radians a position or, if listed, frequency[i]. */
struct Rotation {
    double ratio;
    int listed;
    float scale, direction, frequency[GCKPTI_ROTARY_MAX];
};

/* Computes rotary's table (T,R/2,2), T positions of R rotated columns, of cosines and sines, a
 * thread a pair, from position `first` (plus the current position, if params is not NULL) on. */
__device__ void rotary_table_at(int64_t at, float *table, uint64_t first, const StepParams *params,
                                const Rotation &rotation, int half)
{
    uint64_t begin = first + (params ? (uint64_t)params->position : 0);
    int64_t position = at / half;
    int pair = (int)(at - position * half);
    double count = GCKPTI_TICKS_PER_RADIAN;
    float sine, cosine;
    if (rotation.listed)
        count *= (double)rotation.frequency[pair];
    for (int i = rotation.listed ? 0 : pair; i > 0; i--)
        count *= rotation.ratio;
    uint64_t angle = (begin + (uint64_t)position) * gckpti_rotary_wrap(count);
    gckpti_sincos_of(gckpti_rotary_angle(angle), &sine, &cosine);
    table[2 * at] = gckpti_mul(cosine, rotation.scale);
    table[2 * at + 1] = gckpti_mul(rotation.direction < 0 ? -sine : sine, rotation.scale);
}

/* Rotates N pairs x_i, x_(i + half) of a head of d columns, whose first 2 half are rotated, or
 * copies N of the other columns. */
struct Rotate {
    Values x;
    Results y;
    const float *table;
    int64_t t;
    int heads, half, d, accumulate;
    template <int N> __device__ void at(int64_t pair) const
    {
        const int64_t head = pair / (d - half);
        const int i = (int)(pair - head * (d - half));
        const int64_t from = head * d + i, to = from + half, angle = head / heads % t * half + i;
        Vec<float, N> a, b = load<N>(x, to), c, e;
        if (i >= half)
            return write_vec<N>(y, to, N, true, b.v, accumulate);
        a = load<N>(x, from);
        Vec<float, N> rotation[2] = { load<N>(table + 2 * angle), load<N>(table + 2 * angle + N) };
        UNROLLED(k, N) {
            const float cosine = rotation[2 * k / N].v[2 * k % N];
            const float sine = rotation[(2 * k + 1) / N].v[(2 * k + 1) % N];
            c.v[k] = gckpti_fma(a.v[k], cosine, -(b.v[k] * sine));
            e.v[k] = gckpti_fma(b.v[k], cosine, a.v[k] * sine);
        }
        write_vec<N>(y, from, N, true, c.v, accumulate);
        write_vec<N>(y, to, N, true, e.v, accumulate);
    }
};

void rotary_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = backward ? grad_out_of(call) : value_of(in);
    const Results y = backward ? grad_of(in) : out_of(call);
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const float *listed = gckpti_rotary_frequencies(o);
    int64_t t = call->shape.d[1], d = call->shape.d[2] / o->heads;
    int64_t half = gckpti_rotary_columns(o, d) / 2;
    int64_t n = gckpti_elements(&call->shape) / d * (d - half);
    float *table = (float *)call->workspace;
    Rotation rotation = { listed ? 1.0 : gckpti_rotary_ratio(o->base, half), listed != NULL,
                 o->columns ? o->scale : 1.0f, backward ? -1.0f : 1.0f, { 0 } };
    if (!wanted(y))
        return;
    if (listed)
        memcpy(rotation.frequency, listed, (size_t)half * sizeof *listed);
    for_each<rotary_table_at>(call, t * half, table, (uint64_t)o->position,
                              call->training ? NULL : params_of(call), rotation, (int)half);
    const int add = backward && in.accumulate;
    const Rotate rotate = { x, y, table, t, o->heads, (int)half, (int)d, add };
    for_each_vec<8>(call, rotate, n, aligned(x, y, table) && half % 8 == 0 && d % 8 == 0);
}

/* >>exact/element_losses */
/* Sums losses as one binary64 chain over rows (5e). All lanes of the only warp add the same terms,
 * while they read the next rows. Adds `each` to *count for each row except those with an ignored
 * target. */
__global__ void loss_sum_kernel(const float *losses, const int32_t *target, int64_t rows,
                                int64_t each, double *sum, int64_t *count)
{
    enum { AHEAD = 8, STEP = 32 * AHEAD };
    double total = sum ? *sum : 0.0;
    int counted = 0;
    float x[AHEAD], next[AHEAD] = {};
    for (int64_t first = -STEP; first < rows; first += STEP) {
        UNROLLED(k, AHEAD) {
            const int64_t r = first + STEP + 32 * k + threadIdx.x;
            counted += r < rows && (!target || target[r] >= 0);
            x[k] = next[k], next[k] = r < rows ? losses[r] : -0.0f; /* which changes no sum */
        }
        UNROLL for (int k = 0; k < AHEAD && first >= 0; k++)
            for (int lane = 0; lane < 32; lane++)
                total += (double)__shfl_sync(0xffffffffu, x[k], lane);
    }
    for (int h = 16; h; h /= 2)
        counted += __shfl_xor_sync(0xffffffffu, counted, h);
    if (threadIdx.x == 0 && sum)
        *sum = total;
    if (threadIdx.x == 0 && count)
        *count += counted * each;
}

/* Adds `rows` losses in device memory to the call's sum and count, each of which may be NULL. */
void add_losses(const gckpt_call *call, const float *losses, const int32_t *target, int64_t rows,
                int64_t each)
{
    if (call->loss_sum || call->loss_count)
        run<loss_sum_kernel>(call, 1, 32, 0, losses, target, rows, each, call->loss_sum,
            call->loss_count);
}

/* Returns the number of a loss's rows: the size of axis 0. */
int64_t loss_rows(const gckpt_call *call)
{
    return call->in[0].shape.n ? call->in[0].shape.d[0] : 1;
}

/* d = loss_scale * x */
struct ByLossScale {
    const StepParams *params;
    __device__ void operator()(float *d, float x, float, float, int accumulate) const
    {
        gckpti_put_product(d, x, params->loss_scale, accumulate);
    }
};

/* ---- losses over elements, perhaps with targets y and weights; sum_loss backward has no x ---- */
__device__ void element_loss_gradients_at(int64_t i, const gckpti_element_loss &e, float *dx,
                                          float *dy, const StepParams *params, int x_accumulate,
                                          int y_accumulate)
{
    float w = gckpti_element_weight(&e, i), x = e.x ? e.x[i] : 0.0f;
    float d = gckpti_element_deriv(e.kind, x, e.y ? e.y[i] : 0.0f, e.delta);
    if (dx)
        gckpti_put_product(&dx[i], gckpti_weighted(w, d), params->loss_scale, x_accumulate);
    if (e.kind == GCKPTI_LOSS_BINARY)
        d = x;
    if (dy)
        gckpti_put_product(&dy[i], gckpti_weighted(w, -d), params->loss_scale, y_accumulate);
}

/* Computes the gradient of weights from the sums of the losses that each weight multiplies. */
void weights_gradient(const gckpt_call *call, const float *sums)
{
    map_gradient(call, call->in[2], ByLossScale{ params_of(call) }, { sums, NULL }, NONE);
}

/* Forward: a float for each row; backward: one for each weight. */
int64_t element_loss_workspace(const gckpt_call *call, bool backward)
{
    const gckpt_shape *weights = &call->in[2].shape;
    return !backward ? loss_rows(call) : call->inputs == 3 ? gckpti_elements(weights) : 0;
}

template <gckpti_loss_kind KIND> void element_loss_by(const gckpt_call *call, bool backward)
{
    ElementLoss f = { gckpti_element_loss_of(call, KIND) };
    const gckpt_arg *x = &call->in[0], *y = &call->in[1];
    int64_t n = gckpti_elements(&x->shape), per_weight = f.e.per_weight, rows = loss_rows(call);
    float *sums = (float *)call->workspace;
    if (!backward && call->loss_sum)
        row_sums(call, f, sums, rows, n / rows, 1.0f);
    if (!backward)
        return add_losses(call, sums, NULL, rows, n / rows);
    if (x->grad || y->grad)
        for_each<element_loss_gradients_at>(call, n, f.e, x->grad, y->grad, params_of(call),
                                            x->accumulate, y->accumulate);
    if (!call->in[2].grad)
        return;
    f.e.weights = NULL;
    row_sums(call, f, sums, n / per_weight, per_weight, 1.0f);
    weights_gradient(call, sums);
}

/* >>exact/panel */
/* Products C (m,n) = A (m,k) B (k,n) of a gckpti_product, with the bits of gckpti_fp32_plain and
 * gckpti_mixed_plain. All ops made of products get these from `products` (products.cu).
 *
 * A block computes a tile of C, a thread TM x TN elements of it, each as one chain over k in one
 * register (in bf16 plans by blocks of terms, in three registers). Rows and columns are divided
 * into tiles, k never is (manual, 5c). A and B come through shared memory: a stage has DEPTH terms,
 * and STAGES stages form a ring. While one stage is used, the others are being copied.
 *
 * For an H200, estimated, not measured: a term of 8 x 8 elements is 64 fma of some 73 issue slots.
 * Lanes are in Z-order, 4 x 8 of them, so that lanes i and i^1 share rows, i and i^2 columns: a
 * load takes 2 passes over shared memory instead of 4. Lines are 4 floats longer than a tile is
 * wide, so that data along k can be written across the lines without bank conflicts. A tile of
 * 128 x 128 needs 8 bytes per cycle from L2, which gives about 24. tests/bench/cuda.cu measures. */
enum { DEPTH = 8, STAGES = 4 };

/* Flags of how a thread reads 4 adjacent elements (a chunk) of an operand. */
enum {
    ALONG = 1,  /* chunks lie along k, else across k: along rows of C (B: columns) */
    ALIGNED = 2,   /* one load reads a chunk */
    NARROW = 4, /* bf16 */
    ASYNC = 8   /* read by cp.async */
};

/* A matrix operand: its address and its strides, in bytes. */
struct Operand {
    const char *base;
    int64_t row, step, matrix; /* to the next row, term, matrix */
    int64_t element, panel;    /* to the next element of a chunk; to the term DEPTH later */
    int flags;
};

struct Product {
    gckpti_product t;
    Operand a, b;
    bool aligned; /* rows of c can be written 16 bytes at a time */
};

/* Describes an operand. all: the number of rows of C for A, of columns for B. */
Operand operand_of(const gckpti_operand *x, int64_t all, int64_t k, int mixed)
{
    int64_t size = x->halves ? 2 : 4, along = x->k_stride < x->stride,
            stride = along ? x->k_stride : x->stride;
    int64_t pitch = along ? x->stride : x->k_stride, count = along ? k : all;
    const char *base = x->halves ? (const char *)x->halves : (const char *)x->f32;
    int flags = (along ? ALONG : 0) | (x->halves ? NARROW : 0);
    if (!mixed && stride == 1 && count % 4 == 0 && pitch % 4 == 0 && x->batch_stride % 4 == 0 &&
        aligned(base))
        flags |= ALIGNED | (along ? 0 : ASYNC);
    return { base,        x->stride * size,           x->k_stride * size, x->batch_stride * size,
             stride * size, DEPTH * x->k_stride * size, flags };
}

/* An operand's part of a stage: DEPTH lines of WIDTH elements; a thread reads CHUNKS chunks. */
template <int WIDTH, int THREADS, bool BY_ASYNC, bool MIXED> struct Panel {
    enum {
        LINE = WIDTH + 4,
        ALL = WIDTH * DEPTH / 4,
        CHUNKS = (ALL + THREADS - 1) / THREADS,
        FLOATS = DEPTH * LINE
    };
    const char *from[CHUNKS];
    int valid[CHUNKS]; /* elements of a chunk that exist, for single loads */
    float4 regs[CHUNKS];

    /* Return the position of chunk i of this thread: its first term; its row (column for B). */
    static __device__ __forceinline__ int k_of(int i, bool along)
    {
        int c = (int)threadIdx.x + i * THREADS;
        return along ? c % (DEPTH / 4) * 4 : c / (WIDTH / 4);
    }
    static __device__ __forceinline__ int row_of(int i, bool along)
    {
        int c = (int)threadIdx.x + i * THREADS;
        return along ? c / (DEPTH / 4) : c % (WIDTH / 4) * 4;
    }
    static __device__ __forceinline__ bool in_range(int i)
    {
        return ALL % THREADS == 0 || (int)threadIdx.x + i * THREADS < ALL;
    }
    /* Begins at row x0 of `all` rows (B: columns). In place of rows after the last, row 0 is read:
     * it belongs to elements of C that are not written. */
    __device__ __forceinline__ void begin(const Operand &f, int64_t matrix, int64_t x0, int64_t all)
    {
        bool along = !BY_ASYNC && f.flags & ALONG;
        UNROLLED(i, CHUNKS) {
            int64_t x = x0 + row_of(i, along), left = in_range(i) ? all - x : 0;
            x = left > 0 ? x : 0;
            left = left > 0 ? left : all;
            valid[i] = along || left > 4 ? 4 : (int)left;
            from[i] = f.base + matrix * f.matrix + x * f.row + k_of(i, along) * f.step;
        }
    }
    static __device__ __forceinline__ float element(const Operand &f, const char *at)
    {
        if (!MIXED)
            return *(const float *)at;
        if (f.flags & NARROW)
            return gckpti_flush_to_zero(gckpti_from_bf16(*(const uint16_t *)at));
        return gckpti_from_bf16(gckpti_to_bf16(*(const float *)at));
    }
    /* Reads the next panel, of `terms` terms, to shared memory or into registers. */
    __device__ __forceinline__ void fetch(const Operand &f, float *to, int terms)
    {
        bool along = !BY_ASYNC && f.flags & ALONG;
        UNROLLED(i, CHUNKS) {
            int p = k_of(i, along);
            if (in_range(i) && p < terms) {
                if (BY_ASYNC) {
                    gckpti_cp_async16_full(to + p * LINE + row_of(i, along), from[i]);
                } else if (!MIXED && f.flags & ALIGNED) {
                    regs[i] = *(const float4 *)from[i];
                } else {
                    int n = along && terms - p < 4 ? terms - p : valid[i];
                    regs[i].x = element(f, from[i]);
                    regs[i].y = n > 1 ? element(f, from[i] + f.element) : 0.0f;
                    regs[i].z = n > 2 ? element(f, from[i] + 2 * f.element) : 0.0f;
                    regs[i].w = n > 3 ? element(f, from[i] + 3 * f.element) : 0.0f;
                }
            }
            from[i] += f.panel;
        }
    }
    /* Writes the registers to shared memory. */
    __device__ __forceinline__ void put(const Operand &f, float *to)
    {
        bool along = f.flags & ALONG;
        UNROLL for (int i = 0; i < CHUNKS && !BY_ASYNC; i++)
        {
            float *at = to + k_of(i, along) * LINE + row_of(i, along);
            if (!in_range(i))
                continue;
            if (along) {
                at[0] = regs[i].x;
                at[LINE] = regs[i].y;
                at[2 * LINE] = regs[i].z;
                at[3 * LINE] = regs[i].w;
            } else {
                *(float4 *)at = regs[i];
            }
        }
    }
};

/* Returns the position of element i of lane `lane`. A lane has T elements in chunks of 4 (the last
 * may have 2); chunks of LANES lanes lie side by side. */
template <int T, int LANES> __device__ __forceinline__ int elem_of(int lane, int i)
{
    return i / 4 * 4 * LANES + lane * (T - i / 4 * 4 < 4 ? T % 4 : 4) + i % 4;
}

template <int T, int LANES>
__device__ __forceinline__ void fragment(const float *line, int lane, float *x)
{
    UNROLL for (int i = 0; i + 4 <= T; i += 4)
        read_vec<4>(line, elem_of<T, LANES>(lane, i), 4, true, x + i);
    if (T % 4)
        read_vec<2>(line, elem_of<T, LANES>(lane, T / 4 * 4), 2, true, x + T - 2);
}

/* Adds a term to N chains, if `wanted`: o[n] += x y[n]. MIXED: as gckpti_flushed_fma, with one
 * check for all N of the rare case (the least normal number, which may have been rounded up to). */
template <int N, bool MIXED>
__device__ __forceinline__ void terms(float *o, float x, const float *y, bool wanted = true)
{
    float d[N];
    bool least = false;
    UNROLLED(n, N) {
        d[n] = gckpti_fma(x, y[n], o[n]);
        least = least || fabsf(d[n]) == 0x1p-126f;
    }
    UNROLL for (int n = 0; n < N && MIXED; n++) d[n] = gckpti_flush_to_zero(d[n]);
    if (MIXED && least)
        UNROLLED(n, N) d[n] = gckpti_flushed_fma(x, y[n], o[n]);
    UNROLLED(n, N) o[n] = wanted ? d[n] : o[n];
}

/* Sums of a block of terms, for R x N elements (manual, 5l). MIXED: terms alternate between two
 * chains, whose sum is added to the element at the end of the block; else terms are added to it. */
template <int R, int N, bool MIXED> struct Block {
    float chain[2][R][N];

    __device__ __forceinline__ void begin()
    {
        UNROLL for (int r = 0; r < R && MIXED; r++) UNROLLED(n, N)
            chain[0][r][n] = chain[1][r][n] = 0.0f;
    }
    /* Adds a term to row r of the elements. Its index in the block (or just its parity) must be a
     * constant. */
    __device__ __forceinline__ void term(float (*element)[N], int index, int r, float x,
                                         const float *y, bool wanted = true)
    {
        terms<N, MIXED>(MIXED ? chain[index % 2][r] : element[r], x, y, wanted);
    }
    /* Must be called before each term: begins a new block at every 32nd index. */
    __device__ __forceinline__ void start_block(float (*element)[N], int index)
    {
        if (!MIXED || index % GCKPTI_K_BLOCK || !index)
            return;
        end(element);
        begin();
    }
    /* Ends the block. If `plus`, zeros become +0. */
    __device__ __forceinline__ void end(float (*element)[N], bool plus = false)
    {
        UNROLL for (int r = 0; r < R && MIXED; r++) UNROLLED(n, N) {
            float sum = gckpti_flush_to_zero(chain[0][r][n] + chain[1][r][n]);
            element[r][n] = gckpti_flush_to_zero(element[r][n] + sum);
            element[r][n] = plus ? element[r][n] + 0.0f : element[r][n];
        }
    }
};

/* >>exact/products */
/* The position of a thread's elements of C. Blocks take 8 rows of tiles at a time, column after
 * column, so that concurrent blocks read the same lines of A and B from L2. Bits 0, 2 and 4 of the
 * lane number its column, bits 1 and 3 its row: see panel.cu. */
template <int BM, int BN, int TM, int TN> struct TileCoords {
    enum { ROW_LANES = 4, COLUMN_LANES = 8, ACROSS = BN / (COLUMN_LANES * TN) };
    int matrix, tile_row, tile_column;
    int row0, column0; /* first row and column of the warp in the tile */
    int row, column;   /* of the lane */

    __device__ __forceinline__ TileCoords(const gckpti_product &t, int thread, int block)
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
    /* Return row and column, in the tile, of element (i,j) of the thread. */
    __device__ __forceinline__ int y(int i) const { return row0 + elem_of<TM, ROW_LANES>(row, i); }
    __device__ __forceinline__ int x(int j) const
    {
        return column0 + elem_of<TN, COLUMN_LANES>(column, j);
    }
    /* Returns the offset of the tile in C. */
    __device__ __forceinline__ int64_t corner(const gckpti_product &t) const
    {
        return (matrix * t.m + (int64_t)tile_row * BM) * t.c_stride + (int64_t)tile_column * BN;
    }
    __device__ __forceinline__ int rows(const gckpti_product &t) const
    {
        return (int)gckpti_min(t.m - (int64_t)tile_row * BM, BM);
    }
    __device__ __forceinline__ int columns(const gckpti_product &t) const
    {
        return (int)gckpti_min(t.n - (int64_t)tile_column * BN, BN);
    }
};

/* Initialises chains: with C's old value, the bias or +0 (as gckpti_mixed_start). */
template <int BM, int BN, int TM, int TN, bool MIXED>
__device__ __forceinline__ void product_start(const gckpti_product &t, float (*c)[TN])
{
    const TileCoords<BM, BN, TM, TN> here(t, gckpti_thread_index(), gckpti_block_index());
    int64_t corner = here.corner(t), pitch = t.accumulate ? t.c_stride : t.initial_stride;
    int rows = here.rows(t), columns = here.columns(t), narrow = MIXED && t.accumulate && !t.c;
    const float *from = t.accumulate ? t.c + corner
                        : t.initial  ? t.initial + (int64_t)here.tile_row * BM * pitch +
                                          (int64_t)here.tile_column * BN
                                     : NULL;
    UNROLLED(i, TM) UNROLLED(j, TN) {
        bool inside = here.y(i) < rows && here.x(j) < columns;
        int64_t at = here.y(i) * pitch + here.x(j);
        float d = from && !narrow && inside ? from[at] : 0.0f;
        if (narrow && inside)
            d = gckpti_from_bf16(t.c_halves[corner + at]);
        c[i][j] = MIXED ? gckpti_flush_to_zero(d) : d;
    }
}

template <int BM, int BN, int TM, int TN, bool MIXED>
__device__ __forceinline__ void product_end(const Product &q, const float (*c)[TN])
{
    const gckpti_product &t = q.t;
    const TileCoords<BM, BN, TM, TN> here(t, gckpti_thread_index(), gckpti_block_index());
    int64_t corner = here.corner(t);
    int rows = here.rows(t), columns = here.columns(t);
    UNROLLED(i, TM) UNROLL for (int j = 0; j < TN; j += 4)
    {
        int64_t at = corner + here.y(i) * t.c_stride + here.x(j);
        if (!MIXED && j + 4 <= TN) {
            if (here.y(i) < rows)
                write_vec<4>(Results{ t.c, NULL }, at, columns - here.x(j), q.aligned, &c[i][j]);
            continue;
        }
        UNROLL for (int l = 0; l < 4 && j + l < TN; l++) /* write_vec would take 7 more registers */
        {
            if (here.y(i) < rows && here.x(j) + l < columns && (!MIXED || t.c))
                t.c[at + l] = c[i][j + l];
            else if (here.y(i) < rows && here.x(j) + l < columns)
                t.c_halves[at + l] = gckpti_to_bf16(c[i][j + l]);
        }
    }
}

/* Returns blocks per multiprocessor: 16 warps with 128 registers a thread, or 12 with more. */
constexpr int blocks_per_sm(int bm, int bn, int elements, int asyncs)
{
    return 512 * elements / (bm * bn) - (bm > bn && elements == 64 && asyncs < 2);
}

/* Adds a product's terms to a thread's elements. MIXED: in blocks (manual, 5l). If all terms are
 * one chain that starts at the element, they fill the first chain of one block; the other chain and
 * the element are -0, which changes no sum. */
template <int TM, int TN, bool MIXED> struct Accumulators {
    float c[TM][TN];
    Block<TM, TN, MIXED> block;
    bool one, odd;  /* one: a single chain; odd: the second chain gets the next term */
    int rest, left; /* rest: terms left in the sample; left: in the block */

    __device__ __forceinline__ void begin(const gckpti_product &t)
    {
        one = MIXED && gckpti_is_chain(&t), odd = false;
        rest = (int)(t.k_period ? t.k_period - t.k_offset % t.k_period : t.k);
        left = one ? (int)t.k : min(rest, (int)GCKPTI_K_BLOCK);
        block.begin();
        UNROLL for (int i = 0; i < TM && one; i++) UNROLLED(j, TN) {
            block.chain[0][i][j] = c[i][j];
            block.chain[1][i][j] = c[i][j] = -0.0f;
        }
    }
    /* Adds a term to all elements. */
    __device__ __forceinline__ void add(bool second, const float *x, const float *y)
    {
        UNROLL for (int i = 0; i < TM && !second; i++) block.term(c, 0, i, x[i], y);
        UNROLL for (int i = 0; i < TM && second; i++) block.term(c, 1, i, x[i], y);
    }
    /* Counts n added terms. */
    __device__ __forceinline__ void advance(int n, const gckpti_product &t)
    {
        left -= n;
        odd = MIXED && odd != (n % 2 && !one);
        if (!MIXED || left)
            return;
        block.end(c);
        block.begin();
        odd = false;
        rest = rest > GCKPTI_K_BLOCK ? rest - GCKPTI_K_BLOCK : (int)t.k_period;
        left = min(rest, (int)GCKPTI_K_BLOCK);
    }
    /* Exchanges the chains, whose order does not matter: the next term goes to the first one. */
    __device__ __forceinline__ void swap_chains()
    {
        UNROLL for (int i = 0; i < TM && odd; i++) UNROLLED(j, TN) {
            float first = block.chain[0][i][j];
            block.chain[0][i][j] = block.chain[1][i][j];
            block.chain[1][i][j] = first;
        }
        odd = false;
    }
};

/* Computes a tile of BM x BN. ASYNCS: how many operands are read by cp.async (if one: B). Terms of
 * a last stage that is not full are added one by one, since padding by zeros would turn -0 into +0.
 * So are the terms of a stage within which a block ends. */
template <int BM, int BN, int TM, int TN, int ASYNCS, bool MIXED>
__global__ void __launch_bounds__(BM *BN / (TM * TN), blocks_per_sm(BM, BN, TM *TN, ASYNCS))
    product_kernel(const __grid_constant__ Product q)
{
    typedef TileCoords<BM, BN, TM, TN> Pos;
    enum { THREADS = BM * BN / (TM * TN), ROWS = Pos::ROW_LANES, COLUMNS = Pos::COLUMN_LANES };
    typedef Panel<BM, THREADS, ASYNCS == 2, MIXED> PanelA;
    typedef Panel<BN, THREADS, ASYNCS >= 1, MIXED> PanelB;
    enum { B = PanelA::FLOATS, STAGE = B + PanelB::FLOATS };
    SHARED(float4, stages, [STAGES * STAGE / 4]);
    float *ring = (float *)stages;
    const gckpti_product &t = q.t;
    Pos here(t, (int)threadIdx.x, (int)blockIdx.x);
    Accumulators<TM, TN, MIXED> l;
    product_start<BM, BN, TM, TN, MIXED>(t, l.c);
    l.begin(t);

    PanelA a;
    PanelB b;
    a.begin(q.a, here.matrix, (int64_t)here.tile_row * BM, t.m);
    b.begin(q.b, here.matrix, (int64_t)here.tile_column * BN, t.n);
    int left = (int)t.k; /* terms left */
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
        __syncthreads(); /* this stage is complete; the previous one is free */
        fragment<TM, ROWS>(line + here.row0, here.row, x[0]);
        fragment<TN, COLUMNS>(line + B + here.column0, here.column, y[0]);
        if (unread > 0) {
            a.fetch(q.a, free, unread);
            b.fetch(q.b, free + B, unread);
        }
        gckpti_cp_async_commit();
        const bool whole = left >= DEPTH && (!MIXED || l.left >= DEPTH);
        if (whole) {
            UNROLLED(p, DEPTH) {
                if (p + 1 < DEPTH) {
                    const float *below = line + (p + 1) * PanelA::LINE;
                    fragment<TM, ROWS>(below + here.row0, here.row, x[(p + 1) % 2]);
                    below = line + B + (p + 1) * PanelB::LINE;
                    fragment<TN, COLUMNS>(below + here.column0, here.column, y[(p + 1) % 2]);
                }
                l.add(MIXED && p % 2 && !l.one, x[p % 2], y[p % 2]);
            }
            l.advance(DEPTH, t);
        }
        for (int p = 0; !whole && p < left && p < DEPTH; p++) {
            fragment<TM, ROWS>(line + p * PanelA::LINE + here.row0, here.row, x[0]);
            fragment<TN, COLUMNS>(line + B + p * PanelB::LINE + here.column0, here.column, y[0]);
            l.add(l.odd, x[0], y[0]);
            l.advance(1, t);
        }
        l.swap_chains();
        if (unread > 0) {
            a.put(q.a, free);
            b.put(q.b, free + B);
        }
    }
    gckpti_cp_async_wait<0>();
    product_end<BM, BN, TM, TN, MIXED>(q, l.c);
}

template <int BM, int BN, int TM, int TN, bool MIXED>
void run_tile(const gckpt_call *call, const Product *q)
{
    int64_t tiles = (q->t.m + BM - 1) / BM * ((q->t.n + BN - 1) / BN) * q->t.batch;
    dim3 grid((unsigned)tiles), block(BM * BN / (TM * TN));
    if constexpr (MIXED)
        run<product_kernel<BM, BN, TM, TN, 0, true>>(call, grid, block, 0, *q);
    else if (q->a.flags & q->b.flags & ASYNC)
        run<product_kernel<BM, BN, TM, TN, 2, false>>(call, grid, block, 0, *q);
    else if (q->b.flags & ASYNC)
        run<product_kernel<BM, BN, TM, TN, 1, false>>(call, grid, block, 0, *q);
    else
        run<product_kernel<BM, BN, TM, TN, 0, false>>(call, grid, block, 0, *q);
}

struct Tile {
    int m, n;
    double speed; /* estimated fma per 100 issue slots; small tiles wait for L2 */
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
/* bf16 plans: flushing takes three more issue slots for each fma, so other instructions hardly
 * count; an element takes three registers. */
const Tile MIXED_TILES[] = {
    { 64, 64, 22, run_tile<64, 64, 4, 4, true> },
    { 32, 32, 19, run_tile<32, 32, 4, 4, true> },
};

/* Returns the tile with which the busiest multiprocessor ends first. Small gradients need small
 * tiles: of a weight of 768 x 768, 36 blocks of 128 x 128 leave 96 multiprocessors idle; 128 blocks
 * of 96 x 48 use 97 % of 132, as they do for 768 x 2304 and 768 x 3072. */
const Tile *best_tile(const Tile *tiles, int count, const gckpti_product *t, int sms)
{
    const Tile *best = NULL;
    double least = 0;
    for (const Tile *i = tiles; i < tiles + count; i++) {
        int64_t n = (t->m + i->m - 1) / i->m * ((t->n + i->n - 1) / i->n) * t->batch;
        double waves = (double)((n + sms - 1) / sms);
        double time = waves * i->m * i->n / i->speed;
        if (!best || time < least)
            best = i, least = time;
    }
    return best;
}

int attribute_of(const gckpt_call *call, cudaDeviceAttr which)
{
    int value = 1;
    Device *d = device_of(call);
    check(d, cudaDeviceGetAttribute(&value, which, d->number), "an attribute of the device");
    return value;
}

int sm_count(const gckpt_call *call) { return attribute_of(call, cudaDevAttrMultiProcessorCount); }

/* Runs a product (a gckpti_product_fn). */
void products(const gckpt_call *call, const gckpti_product *t)
{
    int mixed = call->precision != GCKPT_FP32;
    const Product q = { *t, operand_of(&t->a, t->m, t->k, mixed),
                        operand_of(&t->b, t->n, t->k, mixed),
                        t->c_stride % 4 == 0 && aligned(t->c) };
    const Tile *tile = mixed ? best_tile(MIXED_TILES, 2, t, sm_count(call))
                             : best_tile(EXACT_TILES, 6, t, sm_count(call));
    tile->run(call, &q);
}

/* >>exact/linear */
/* The terms of sums over rows of x and of y (rows,n), which may be NONE. KEPT: see Terms::FRESH. */
template <bool KEPT = false> struct RowTerms : Terms {
    static constexpr bool FRESH = KEPT;
    Values x, y;
    int64_t n;
    __device__ void operator()(int64_t column, int64_t r, float *term) const
    {
        term[0] = value_at(x, r * n + column), term[1] = value_at(y, r * n + column);
    }
};

/* Computes the gradient of the third input: the sum of g over rows. */
void bias_gradient(const gckpt_call *call)
{
    const RowTerms<> of = { {}, grad_out_of(call), NONE, gckpti_last(&call->shape) };
    if (call->inputs == 3)
        column_sums(call, of, sum_of(call->in[2]), {}, gckpti_rows(&call->shape), of.n);
}

void linear_by(const gckpt_call *call, bool backward)
{
    gckpti_run_matmul(call, backward, products);
    if (backward)
        bias_gradient(call);
}

#ifndef GCKPT_NO_AXES
void broadcast_matmul_by(const gckpt_call *call, bool backward)
{
    gckpti_broadcast_matmul_run(call, backward, products);
}
#endif

/* >>exact/conv */
#ifndef GCKPT_NO_IMAGES
/* ---- conv2d and its transpose: products with a matrix that is not stored ---- m results (windows
 * of all rows; for dw: taps x channels) of some columns are chains of k terms (taps x channels; for
 * dw: windows), with 0 outside the image. UP, the transpose, runs in phases (gckpti_run_conv), each
 * such a product. Axes are shorter than 2^31; addresses have 64 bits. */
struct ConvGemm {
    gckpti_conv_sizes z;
    gckpti_axis_map r[2];
    const float *from, *w, *start;
    float *out;
    int64_t m, k;
    int source, all;            /* channels of a pixel; channels of a result */
    int depth, columns;         /* channels of a group: in the terms; in the results */
    int term_step, column_step; /* steps in w */
    int accumulate;
    bool up, aligned; /* aligned: results can be written 16 bytes at a time */
};

ConvGemm conv_gemm_of(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const int c = (int)z->c, o = (int)z->o, gc = (int)z->group_c, go = (int)z->group_o;
    const bool up = s->kind == GCKPTI_CONV_UP, dw = s->kind == GCKPTI_CONV_DW;
    const int64_t places = z->rows * s->r[0].results * s->r[1].results;
    const int64_t terms = s->r[0].taps * s->r[1].taps * (up ? go : gc);
    ConvGemm q = { *z, { s->r[0], s->r[1] }, s->from, s->w, s->start, s->out };
    q.m = dw ? terms : places, q.k = dw ? places : terms;
    q.source = up ? o : c, q.all = up ? c : o;
    q.depth = up ? go : gc, q.columns = up ? gc : go;
    q.term_step = up ? 1 : o, q.column_step = up ? o : 1;
    q.accumulate = s->accumulate, q.up = up;
    q.aligned = q.all % 4 == 0 && q.columns % 4 == 0 && aligned(q.out);
    if (terms == 0) /* no tap contributes to this phase */
        q.r[0].taps = 0, q.r[1].taps = 1;
    return q;
}

/* Coordinates of a result: row of the batch, position (i, j) in the image; out() is its offset. */
struct ConvCoords {
    int64_t row;
    int i, j;
    __device__ __forceinline__ ConvCoords(const ConvGemm &s, int64_t place)
    {
        const int64_t line = place / s.r[1].results;
        row = line / s.r[0].results;
        i = (int)(line - row * s.r[0].results), j = (int)(place - line * s.r[1].results);
    }
    __device__ __forceinline__ int64_t out(const ConvGemm &s) const
    {
        const int64_t *side = s.up ? s.z.image : s.z.windows;
        const int64_t line = row * side[0] + i * s.r[0].out_step + s.r[0].out_first;
        return (line * side[1] + j * s.r[1].out_step + s.r[1].out_first) * s.all;
    }
};

/* Returns the position in the image, along an axis, that tap k of result i reads. */
__device__ __forceinline__ int src_pos(const gckpti_axis_map &r, int i, int k)
{
    return i * (int)r.stride + k * (int)r.dilation + (int)r.first;
}

__device__ __forceinline__ int64_t pixel(const ConvGemm &s, int64_t row, int y, int x)
{
    return ((row * s.r[0].size + y) * s.r[1].size + x) * s.source;
}

/* Returns element `at`, a channel of pixel (y, x), or 0 if the pixel is outside the image. */
__device__ __forceinline__ float src(const ConvGemm &s, int y, int x, int64_t at)
{
    const bool inside = y >= 0 && y < (int)s.r[0].size && x >= 0 && x < (int)s.r[1].size;
    return inside ? s.from[at] : 0.0f;
}

__device__ __forceinline__ int64_t tap_of(const ConvGemm &s, int ky, int kx)
{
    const int64_t y = s.r[0].tap_first + ky * s.r[0].tap_step;
    return (y * s.z.taps[1] + s.r[1].tap_first + kx * s.r[1].tap_step) * s.z.group_c * s.z.o;
}

__device__ __forceinline__ float chain_start(const ConvGemm &s, int64_t at, int channel)
{
    return s.accumulate ? s.out[at] : s.start ? s.start[channel] : 0.0f;
}

/* For groups of few columns: a thread computes a result, adjacent threads adjacent channels. */
__global__ void conv_direct_kernel(const __grid_constant__ ConvGemm s)
{
    for (EACH(e, s.m * s.all)) {
        const int64_t place = e / s.all;
        const int channel = (int)(e - place * s.all), group = channel / s.columns;
        const ConvCoords here(s, place);
        const float *w =
            s.w + group * s.z.group_o + (int64_t)(channel % s.columns) * s.column_step;
        float d = chain_start(s, here.out(s) + channel, channel);
        for (int ky = 0; ky < (int)s.r[0].taps; ky++)
            for (int kx = 0; kx < (int)s.r[1].taps; kx++) {
                const int y = src_pos(s.r[0], here.i, ky), x = src_pos(s.r[1], here.j, kx);
                const int64_t at = pixel(s, here.row, y, x) + (int64_t)group * s.depth;
                const float *tap_w = w + tap_of(s, ky, kx);
                for (int c = 0; c < s.depth; c++)
                    d = gckpti_fma(src(s, y, x, at + c), tap_w[(int64_t)c * s.term_step], d);
            }
        s.out[here.out(s) + channel] = d;
    }
}

/* For all other groups: a block computes a tile of BM x BN, a thread TM x TN elements of it, each
 * as one chain in a register. CONV_K terms at a time go through registers to shared memory while
 * the previous CONV_K are computed. Lanes that read the image have adjacent channels of one tap or
 * window, and advance to later taps or windows as they read. */
enum { CONV_K = 16 };

template <bool DW, int BM, int THREADS> struct PatchLoader {
    enum { EACH = BM * CONV_K / THREADS, ROWS = DW ? 1 : EACH };
    float v[EACH];
    int p, r; /* reads term p of rows r, r + THREADS / CONV_K, ..; DW: terms p, .. of row r */
    int channel, ky, kx; /* channel and tap of the term */
    int64_t at[ROWS];    /* offset of channel 0 at tap 0 */
    int y[ROWS], x[ROWS];
    ConvCoords place;

    __device__ __forceinline__ PatchLoader(const ConvGemm &s, int thread, int group, int64_t m0)
        : p(DW ? thread / BM : thread % CONV_K), r(DW ? thread % BM : thread / CONV_K),
          place(s, DW ? p : 0)
    {
        const int64_t term = !DW ? p : m0 + r < s.m ? m0 + r : 0; /* 0 if the row is not written */
        const int tap = (int)(term / s.depth);
        channel = group * s.depth + (int)(term - (int64_t)tap * s.depth);
        ky = tap / (int)s.r[1].taps, kx = tap - ky * (int)s.r[1].taps;
        UNROLL for (int i = 0; i < ROWS && !DW; i++)
        {
            const int64_t m = m0 + r + i * (THREADS / CONV_K);
            const ConvCoords coords(s, m < s.m ? m : 0);
            y[i] = src_pos(s.r[0], coords.i, 0), x[i] = src_pos(s.r[1], coords.j, 0);
            at[i] = pixel(s, coords.row, y[i], x[i]);
        }
    }
    /* Reads this thread's part of the next CONV_K terms, of which `left` exist. */
    __device__ __forceinline__ void read(const ConvGemm &s, int64_t left)
    {
        const int down = ky * (int)s.r[0].dilation, across = kx * (int)s.r[1].dilation;
        const int64_t off = pixel(s, 0, down, across) + channel;
        UNROLLED(i, EACH) {
            v[i] = 0.0f;
            if (!DW && p < left)
                v[i] = src(s, y[DW ? 0 : i] + down, x[DW ? 0 : i] + across, at[DW ? 0 : i] + off);
            if (DW && p + i * (THREADS / BM) < left) {
                const int y1 = src_pos(s.r[0], place.i, ky), x1 = src_pos(s.r[1], place.j, kx);
                v[i] = src(s, y1, x1, pixel(s, place.row, y1, x1) + channel);
            }
            for (place.j += DW ? THREADS / BM : 0; DW && place.j >= (int)s.r[1].results;) {
                place.j -= (int)s.r[1].results;
                if (++place.i == (int)s.r[0].results)
                    place.i = 0, place.row++;
            }
        }
    }
    __device__ __forceinline__ void next(const ConvGemm &s, int end)
    {
        for (channel += DW ? 0 : CONV_K; !DW && channel >= end; channel -= s.depth)
            if (++kx == (int)s.r[1].taps)
                kx = 0, ky++;
    }
    __device__ __forceinline__ void put(float *to) const
    {
        UNROLLED(i, EACH) to[(DW ? p + i * (THREADS / BM) : p) * (BM + 4) +
                                                 (DW ? r : r + i * (THREADS / CONV_K))] = v[i];
    }
};

template <int TM, int TN>
__device__ __forceinline__ void outer_product(const float *x, const float *y, float (*c)[TN])
{
    const Vec<float, TM> a = load<TM>(x);
    const Vec<float, TN> b = load<TN>(y);
    UNROLLED(i, TM) UNROLLED(j, TN) c[i][j] =
        gckpti_fma(a.v[i], b.v[j], c[i][j]);
}

/* Initialises the chains of rows m.., columns n.. of a group or (END) writes their results. */
template <bool DW, bool END, int TM, int TN>
__device__ __forceinline__ void init_or_store(const ConvGemm &s, int64_t m, int group, int n,
                                       float (*c)[TN])
{
    UNROLLED(i, TM) {
        const bool some = m + i < s.m && (END || s.accumulate || s.start);
        const int64_t row = !some ? 0 : DW ? (m + i) * s.all : ConvCoords(s, m + i).out(s);
        const int channel = group * s.columns + n;
        UNROLL for (int j = 0; j < TN && !END; j++) c[i][j] =
            some && n + j < s.columns ? chain_start(s, row + channel + j, channel + j) : 0.0f;
        if (END && some)
            write_vec<TN>(Results{ s.out, NULL }, row + channel, s.columns - n, s.aligned, c[i]);
    }
}

template <int KIND, int BM, int BN, int TM, int TN>
__global__ void __launch_bounds__(BM *BN / (TM * TN), TM * TN > 1 ? 2 : 3)
    conv_gemm_kernel(const __grid_constant__ ConvGemm s)
{
    enum {
        THREADS = BM * BN / (TM * TN),
        DW = KIND == GCKPTI_CONV_DW,
        UP = KIND == GCKPTI_CONV_UP,
        EACH = BN * CONV_K / THREADS,
        STAGE = CONV_K * (BM + BN + 8)
    };
    SHARED(float4, ring, [2 * STAGE / 4]);
    const int thread = (int)threadIdx.x, across = (s.columns + BN - 1) / BN;
    const int tile = (int)blockIdx.x / across, n0 = ((int)blockIdx.x - tile * across) * BN;
    const int down = (int)((s.m + BM - 1) / BM), group = tile / down;
    const int mine = thread / (BN / TN) * TM, column = thread % (BN / TN) * TN;
    const int64_t m0 = (int64_t)(tile % down) * BM;
    float c[TM][TN], b[EACH];
    init_or_store<DW, false, TM, TN>(s, m0 + mine, group, n0 + column, c);

    PatchLoader<DW, BM, THREADS> a(s, thread, group, m0);
    const int n = UP ? thread / CONV_K : thread % BN, p = UP ? thread % CONV_K : thread / BN;
    const float *w = s.w + group * s.z.group_o + (int64_t)(n0 + n) * s.column_step -
                     (UP ? (int64_t)group * s.depth : 0);
    float *now = (float *)ring, *next = now + STAGE;
    for (int64_t left = s.k + CONV_K; left > 0; left -= CONV_K) {
        const int64_t unread = left - CONV_K;
        if (unread > 0) {
            a.read(s, unread);
            const int64_t at =
                UP ? tap_of(s, a.ky, a.kx) + a.channel : (s.k - unread + p) * s.z.o;
            UNROLLED(j, EACH) {
                const int term = UP ? p : p + j * (THREADS / BN),
                          off = UP ? j * (THREADS / CONV_K) : 0;
                const bool inside = term < unread && n0 + n + off < s.columns;
                b[j] = inside ? w[at + (UP ? off : term - p) * s.z.o] : 0.0f;
            }
            a.next(s, (group + 1) * s.depth);
        }
        const float *rows = now + mine, *columns = now + CONV_K * (BM + 4) + column;
        if (left <= s.k && left >= CONV_K)
            UNROLLED(l, CONV_K)
                outer_product<TM, TN>(rows + l * (BM + 4), columns + l * (BN + 4), c);
        for (int l = 0; left <= s.k && left < CONV_K && l < left; l++)
            outer_product<TM, TN>(rows + l * (BM + 4), columns + l * (BN + 4), c);
        if (unread > 0)
            a.put(next);
        UNROLL for (int j = 0; j < EACH && unread > 0; j++)
            next[CONV_K * (BM + 4) + (UP ? p : p + j * (THREADS / BN)) * (BN + 4) +
                 (UP ? n + j * (THREADS / CONV_K) : n)] = b[j];
        __syncthreads();
        float *other = now;
        now = next, next = other;
    }
    init_or_store<DW, true, TM, TN>(s, m0 + mine, group, n0 + column, c);
}

/* Uses large tiles if they fill the chip, small ones for few results of long chains. */
template <int KIND> void conv_gemm_by(const gckpt_call *call, const ConvGemm &s)
{
    const int64_t groups = s.z.window.groups;
    const auto tiles = [&](int m, int n) {
        return (unsigned)((s.m + m - 1) / m * ((s.columns + n - 1) / n) * groups);
    };
    if (tiles(64, 64) * 2 < (unsigned)sm_count(call))
        run<conv_gemm_kernel<KIND, 16, 16, 1, 1>>(call, tiles(16, 16), 256, 0, s);
    else if (s.columns <= 32)
        run<conv_gemm_kernel<KIND, 64, 16, 4, 1>>(call, tiles(64, 16), 256, 0, s);
    else
        run<conv_gemm_kernel<KIND, 64, 64, 4, 4>>(call, tiles(64, 64), 256, 0, s);
}

/* Runs a convolution (a gckpti_conv_fn). */
void conv_gemm(const gckpt_call *call, gckpti_conv *conv)
{
    const ConvGemm s = conv_gemm_of(conv);
    if (conv->kind == GCKPTI_CONV_DW)
        conv_gemm_by<GCKPTI_CONV_DW>(call, s);
    else if (s.columns < 8)
        run_each<conv_direct_kernel>(call, s.m * s.all, s);
    else
        s.up ? conv_gemm_by<GCKPTI_CONV_UP>(call, s) : conv_gemm_by<GCKPTI_CONV_DOWN>(call, s);
}

void conv2d_by(const gckpt_call *call, bool backward)
{
    gckpti_run_conv(call, backward, conv_gemm);
    if (backward)
        bias_gradient(call);
}

/* >>exact/pools */
/* ---- max_pool, average_pool: a thread for each result (backward: each element of dx) ---- */
template <bool MAX>
__device__ void pool_at(int64_t e, const gckpti_pool_state &s, const float *x, float *y,
                        uint16_t *tap)
{
    const int64_t place = e / s.channels, line = place / s.out[1], image = line / s.out[0];
    const int64_t h = (line - image * s.out[0]) * s.o.stride[0] - s.o.padding[0];
    const int64_t w = (place - line * s.out[1]) * s.o.stride[1] - s.o.padding[1];
    const float *from = x + image * s.in[0] * s.in[1] * s.channels + (e - place * s.channels);
    const gckpti_pool_taps rows = gckpti_pool_taps_of(&s, 0, h);
    const gckpti_pool_taps columns = gckpti_pool_taps_of(&s, 1, w);
    float best = 0.0f;
    int64_t at = -1;
    for (int64_t a = rows.begin; a < rows.end; a++)
        for (int64_t b = columns.begin; b < columns.end; b++) {
            const int64_t in = (h + a * s.o.dilation[0]) * s.in[1] + w + b * s.o.dilation[1];
            const float v = from[in * s.channels];
            if (!MAX)
                best += v;
            else if (at < 0 || (best == best && !(v <= best)))
                best = v, at = a * s.o.size[1] + b;
        }
    if (y)
        y[e] = MAX ? best : best / ((float)rows.counted * (float)columns.counted);
    if (MAX && tap)
        tap[e] = (uint16_t)at;
}

/* Returns the first window along an axis that covers position `at`, counted with the padding. */
__device__ int64_t first_window(const gckpti_pool_state &s, int axis, int64_t at)
{
    const int64_t last = at - (s.o.size[axis] - 1) * (int64_t)s.o.dilation[axis];
    return last <= 0 ? 0 : (last - 1) / s.o.stride[axis] + 1;
}

/* Adds the gradients of the windows that cover an element, in the order of the windows. */
template <bool MAX>
__device__ void pool_gradient_at(int64_t e, const gckpti_pool_state &s, float *dx, const float *g,
                                 const uint16_t *tap, int accumulate)
{
    const int64_t place = e / s.channels, line = place / s.in[1], image = line / s.in[0];
    const int64_t h = line - image * s.in[0] + s.o.padding[0];
    const int64_t w = place - line * s.in[1] + s.o.padding[1];
    const int64_t left = first_window(s, 1, w);
    float d = accumulate ? dx[e] : 0.0f;
    for (int64_t p = first_window(s, 0, h); p < s.out[0] && p * s.o.stride[0] <= h; p++)
        for (int64_t q = left; q < s.out[1] && q * s.o.stride[1] <= w; q++) {
            const int64_t y = h - p * s.o.stride[0], x = w - q * s.o.stride[1];
            const int64_t number = y / s.o.dilation[0] * s.o.size[1] + x / s.o.dilation[1];
            const int64_t at =
                ((image * s.out[0] + p) * s.out[1] + q) * s.channels + e - place * s.channels;
            if (y % s.o.dilation[0] || x % s.o.dilation[1] || (MAX && tap[at] != number))
                continue;
            const int64_t rows = gckpti_pool_taps_of(&s, 0, h - y - s.o.padding[0]).counted;
            const int64_t columns = gckpti_pool_taps_of(&s, 1, w - x - s.o.padding[1]).counted;
            d += MAX ? g[at] : g[at] / ((float)rows * (float)columns);
        }
    dx[e] = d;
}

template <bool MAX> void pool_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const int64_t n = gckpti_elements(backward ? &x->shape : &call->shape);
    if (!backward)
        for_each<pool_at<MAX>>(call, n, gckpti_pool_state_of(call), x->data, call->out,
                               (uint16_t *)call->saved);
    else if (x->grad)
        for_each<pool_gradient_at<MAX>>(call, n, gckpti_pool_state_of(call), x->grad,
                                        call->grad_out, (const uint16_t *)call->saved,
                                        x->accumulate);
}

#endif

/* >>exact/embed */
/* Table rows that are read. gather: a sample has `each` indices and a table of `table` rows. */
struct RowIndex {
    const int32_t *index;
    int64_t each, table;
    __device__ __forceinline__ int64_t operator[](int64_t r) const
    {
        return index[r] + (each ? r / each * table : 0);
    }
};

/* Copies n elements of a table row for each index (embed, gather). */
struct EmbedRows {
    const float *table;
    RowIndex index;
    Results out;
    int64_t n;
    template <int N> __device__ void at(int64_t i) const
    {
        const int64_t r = i / n;
        store(out, i, load<N>(table + index[r] * n + (i - r * n)));
    }
};

/* A table row's gradient adds the rows of g with its index, in order. These are first listed by
 * table row, and each list is sorted. Integer atomics make a list's place and initial order
 * arbitrary, but not its sorted content. */
struct Lists {
    unsigned *count, *used; /* count[v]: rows of g for table row v; *used: sum of counts */
    unsigned *begin;        /* begin of each list */
    unsigned *place;        /* place[r]: of row r of g in its list; later the sorted lists */
    unsigned *list;         /* all lists, one after the other */
};

int64_t embed_workspace(const gckpt_call *call, bool backward)
{
    return backward ? 2 * gckpti_rows(&call->in[0].shape) + 1 + 2 * gckpti_rows(&call->shape) : 0;
}

__device__ void lists_count(int64_t r, const Lists &l, const RowIndex &index)
{
    l.place[r] = atomicAdd(&l.count[index[r]], 1u);
}

__device__ void lists_begin(int64_t v, const Lists &l)
{
    l.begin[v] = l.count[v] ? atomicAdd(l.used, l.count[v]) : 0;
}

__device__ void lists_fill(int64_t r, const Lists &l, const RowIndex &index)
{
    l.list[l.begin[index[r]] + l.place[r]] = (unsigned)r;
}

/* A row's position in its sorted list is the number of smaller rows in it: quadratic, but parallel.
 * 65536 rows of one token take about a millisecond (not confirmed on a device). */
__device__ void lists_sort(int64_t r, const Lists &l, const RowIndex &index)
{
    unsigned begin = l.begin[index[r]], count = l.count[index[r]], before = 0;
    for (unsigned i = 0; i < count; i++)
        before += l.list[begin + i] < (unsigned)r;
    l.place[begin + before] = (unsigned)r;
}

/* A block loops over table rows; a thread adds up a column and prefetches AHEAD rows of g. */
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

void embed_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    int64_t table = gckpti_rows(&x->shape);
    const RowIndex index = { call->in[1].index, x->shape.n == 3 ? call->shape.d[1] : 0,
                          x->shape.d[1] };
    if (!backward)
        for_each_vec<8>(call, EmbedRows{ x->data, index, out_of(call), n }, rows * n,
                 n % 8 == 0 && aligned(x->data, out_of(call)));
    if (!backward || !x->grad)
        return;
    unsigned *workspace = (unsigned *)call->workspace, *place = workspace + 2 * table + 1;
    const Lists l = { workspace, workspace + table, workspace + table + 1, place, place + rows };
    fill(call, l.count, 0, table + 1);
    for_each<lists_count>(call, rows, l, index);
    for_each<lists_begin>(call, table, l);
    for_each<lists_fill>(call, rows, l, index);
    for_each<lists_sort>(call, rows, l, index);
    dim3 grid = blocks_for(table, 1);
    grid.y = (unsigned)((n + 255) / 256);
    run<embed_backward_kernel>(call, grid, 256, 0, l, call->grad_out, call->grad_out_bf16, x->grad,
        table, n, x->accumulate);
}

/* >>exact/softmax */
/* A warp has a row; its lanes are the 32 of the manual's 5d. They read 128 bytes at a time, and a
 * row that is read again is in the L1. 8,000 rows are 60 warps for each of 132 multiprocessors. */

/* Returns the maximum by gckpti_max's tree (of +0 and -0 it takes the first), in all lanes. */
__device__ float warp_max(float lane)
{
    for (int h = 16; h; h /= 2) {
        float other = __shfl_down_sync(0xffffffffu, lane, h);
        lane = other > lane ? other : lane;
    }
    return __shfl_sync(0xffffffffu, lane, 0);
}

/* Computes exponentials twice instead of storing and reading them. LOG (log_softmax) takes classes
 * in one pass, as gckpti_online does. y may be x. */
template <bool LOG> __device__ void softmax_of_row(int64_t r, const float *x, float *y, int64_t n)
{
    const int lane = (int)threadIdx.x % 32;
    const float *from = x + r * n;
    float max = -INFINITY;
    for (int64_t i = lane; i < n; i += 32)
        max = from[i] > max ? from[i] : max;
    max = warp_max(max);
    const float shift = gckpti_shift(max);
    float sum =
        lanes_sum(n, [&](float all, int64_t i) { return all + gckpti_exp(from[i] - shift); });
    max = LOG ? max : shift;
    gckpti_softmax_end(&max, &sum);
    sum = LOG ? gckpti_log(sum) : sum;
    for (int64_t i = lane; i < n; i += 32)
        y[r * n + i] = LOG ? from[i] - max - sum : gckpti_exp(from[i] - max) / sum;
}

/* Computes d, the gradient of x. d may be g: the last lane that reads an element also writes it. */
template <bool LOG>
__device__ void softmax_gradient_of_row(int64_t r, const float *y, const float *g, float *d,
                                        int64_t n, int accumulate)
{
    y += r * n, g += r * n, d += r * n;
    const float sum = lanes_sum(
        n, [&](float all, int64_t i) { return LOG ? all + g[i] : gckpti_fma(g[i], y[i], all); });
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        if (LOG)
            gckpti_put(&d[i], gckpti_fma(-gckpti_exp(y[i]), sum, g[i]), accumulate);
        else
            gckpti_put_product(&d[i], y[i], g[i] - sum, accumulate);
}

template <bool LOG> void softmax_by(const gckpt_call *call, bool backward)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const gckpt_arg *x = &call->in[0];
    if (!backward)
        for_each_row<softmax_of_row<LOG>>(call, rows, x->data, call->out, n);
    else if (x->grad)
        for_each_row<softmax_gradient_of_row<LOG>>(call, rows, call->out, call->grad_out, x->grad,
                                                   n, x->accumulate);
}

/* >>exact/norms */
/* What the forward saves for a row: c, close to the mean; the mean of x - c; 1 / deviation. In an
 * rmsnorm c and mean are 0, and only rstd is saved. */
struct Normed {
    float c, mean, rstd;
    __device__ float centered(float x) const { return (x - c) - mean; }
    __device__ float normalised(float x) const { return centered(x) * rstd; }
};

__device__ Normed normed(const float *saved, int64_t r, int center)
{
    if (center)
        return { saved[3 * r], saved[3 * r + 1], saved[3 * r + 2] };
    return { 0.0f, 0.0f, saved[r] };
}

/* Returns y = d rstd gain + bias at element i of a row; gain and bias may be NULL. */
__device__ float norm_out(float d, float rstd, const float *gain, const float *bias, int64_t i)
{
    float y = gain ? d * rstd : d, factor = gain ? gain[i] : rstd;
    return bias ? gckpti_fma(y, factor, bias[i]) : y * factor;
}

struct Norm { /* a layernorm or, if center is 0, an rmsnorm; gain and bias may be empty */
    int center;
    int64_t n; /* elements of a row */
    Values x, gain, bias, g;
    float *saved;
    bool aligned; /* rows begin at multiples of 16 bytes */
};

Norm norm_of(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_arg *in = call->in;
    Norm s = { o->center, gckpti_last(&call->shape), value_of(in[0]) };
    s.gain = o->gain ? value_of(in[o->gain]) : NONE;
    s.bias = o->bias ? value_of(in[o->bias]) : NONE;
    s.g = grad_out_of(call), s.saved = (float *)call->saved;
    s.aligned = s.n % 8 == 0 && aligned(s.x, s.g, out_of(call), grad_of(in[0]));
    return s;
}

/* Returns s, with operands that are known to be in f32 if N is 1 (exact kernels). */
template <int N> __device__ __forceinline__ Norm typed(Norm s)
{
    if (N == 1)
        s.x.bf16 = s.gain.bf16 = s.bias.bf16 = s.g.bf16 = NULL;
    return s;
}

/* Returns the sum over a row by a warp: f(sum, x) returns the sum with x. A lane has N adjacent
 * elements at a time; with N = 1, lanes are the 32 of the manual's 5d. */
template <int N, class F> __device__ __forceinline__ float norm_sum(const Norm &s, int64_t r, F f)
{
    float sum = 0.0f, x[N];
    for (int64_t i = threadIdx.x % 32 * N; i < s.n; i += 32 * N) {
        read_vec<N>(s.x, r * s.n + i, s.n - i, s.aligned, x);
        UNROLLED(k, N) sum = i + k < s.n ? f(sum, x[k]) : sum;
    }
    return warp_sum(sum);
}

/* N = 8: of GCKPT_BF16_FAST, where the mean is uncorrected: x has 8 bits. */
template <int N>
__device__ void norm_row(int64_t r, const Norm &norm, float epsilon, const Results &out)
{
    const Norm s = typed<N>(norm);
    const int lane = (int)threadIdx.x % 32;
    Normed o = {};
    const auto mean_from = [&](float c) {
        return norm_sum<N>(s, r, [&](float sum, float x) { return sum + (x - c); }) / (float)s.n;
    };
    if (s.center) {
        const float first = value_at(s.x, r * s.n);
        o.c = first + mean_from(first);
        o.mean = N == 1 ? mean_from(o.c) : 0.0f;
    }
    const float squares = norm_sum<N>(s, r, [&](float sum, float x) {
        const float d = o.centered(x);
        return gckpti_fma(d, d, sum);
    });
    o.rstd = gckpti_rsqrt(squares / (float)s.n + epsilon);
    for (int64_t i = lane * N; wanted(out) && i < s.n; i += 32 * N) {
        float x[N], gain[N], bias[N];
        read_vec<N>(s.x, r * s.n + i, s.n - i, s.aligned, x);
        read_vec<N>(s.gain, i, s.n - i, false, gain);
        read_vec<N>(s.bias, i, s.n - i, false, bias);
        UNROLLED(k, N) x[k] = norm_out(o.centered(x[k]), o.rstd, wanted(s.gain) ? gain : NULL,
                                       wanted(s.bias) ? bias : NULL, k);
        write_vec<N>(out, r * s.n + i, s.n - i, s.aligned, x);
    }
    if (s.saved && s.center && lane < 3)
        s.saved[3 * r + lane] = lane == 0 ? o.c : lane == 1 ? o.mean : o.rstd;
    if (s.saved && !s.center && lane == 0)
        s.saved[r] = o.rstd;
}

template <int N>
__device__ void norm_gradient_of_row(int64_t r, const Norm &norm, const Results &dx, int accumulate)
{
    const Norm s = typed<N>(norm);
    const Normed o = normed(s.saved, r, s.center);
    float h[N], u[N], gain[N], a = 0.0f, b = 0.0f; /* h: normalised x; u: g gain */
    const auto read = [&](int64_t i) {
        read_vec<N>(s.x, r * s.n + i, s.n - i, s.aligned, h);
        read_vec<N>(s.g, r * s.n + i, s.n - i, s.aligned, u);
        read_vec<N>(s.gain, i, s.n - i, false, gain);
        UNROLLED(k, N) h[k] = o.normalised(h[k]);
        UNROLLED(k, N) u[k] = wanted(s.gain) ? gckpti_mul(u[k], gain[k]) : u[k];
    };
    for (int64_t i = threadIdx.x % 32 * N; i < s.n; i += 32 * N) {
        read(i);
        UNROLLED(k, N) if (i + k < s.n)
            a += u[k], b = gckpti_fma(u[k], h[k], b);
    }
    a = s.center ? warp_sum(a) / (float)s.n : 0.0f;
    b = warp_sum(b) / (float)s.n;
    for (int64_t i = threadIdx.x % 32 * N; i < s.n; i += 32 * N) {
        float d[N] = {};
        read(i);
        if (accumulate)
            read_vec<N>(dx, r * s.n + i, s.n - i, s.aligned, d);
        UNROLLED(k, N)
            gckpti_put_product(&d[k], o.rstd, gckpti_fma(-h[k], b, u[k] - a), accumulate);
        write_vec<N>(dx, r * s.n + i, s.n - i, s.aligned, d);
    }
}

/* Terms of dgain (sums of g h, with h the normalised x) and of dbias (sums of g). */
struct NormTerms : Terms {
    Norm s;
    bool gain;
    __device__ void operator()(int64_t column, int64_t r, float *term) const
    {
        const int64_t at = r * s.n + column;
        term[1] = value_at(s.g, at);
        if (gain)
            term[0] = gckpti_mul(term[1],
                                 normed(s.saved, r, s.center).normalised(value_at(s.x, at)));
    }
};

void layernorm_by(const gckpt_call *call, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int64_t rows = gckpti_rows(&call->shape);
    const gckpt_arg *x = &call->in[0];
    const Sum gain = sum_of(call, o->gain);
    const Norm s = norm_of(call);
    if (!backward)
        return for_each_row<norm_row<1>>(call, rows, s, gckpti_norm_epsilon(o), out_of(call));
    column_sums(call, NormTerms{ {}, s, wanted(gain.at) }, gain, sum_of(call, o->bias), rows, s.n);
    if (x->grad)
        for_each_row<norm_gradient_of_row<1>>(call, rows, s, grad_of(*x), x->accumulate);
}

/* >>exact/channels */
#ifndef GCKPT_NO_IMAGES
/* ---- groupnorm, batchnorm ---- One thread adds up a channel of an image, pixels in order (manual,
 * 5e), so few channels of many pixels do not fill the chip. A warp computes a group's mean. */
struct Channels {
    const float *x, *g;
    int64_t images, places, channels, groups, m;
    float n; /* values of a group in an image: m channels of `places` pixels */
    const float *mean, *variance, *gain, *bias, *a, *b;
    float *to;
    int accumulate;
    float epsilon;
};

Channels channels_of(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_arg *x = &call->in[0];
    Channels s = { x->data, call->grad_out, o->center ? x->shape.d[0] : 1, 0,
                   gckpti_last(&x->shape) };
    s.places = gckpti_rows(&x->shape) / s.images;
    s.groups = o->center ? o->center : s.channels, s.m = s.channels / s.groups;
    s.n = (float)(s.places * s.m);
    s.gain = o->gain ? call->in[o->gain].data : NULL;
    s.bias = o->bias ? call->in[o->bias].data : NULL;
    s.to = call->grad_out ? x->grad : call->out, s.accumulate = x->accumulate;
    s.epsilon = gckpti_norm_epsilon(o);
    return s;
}

/* Terms of a channel's sum: x - mean (no mean yet: x - first x) or its square; BACK: g, g h. */
template <bool BACK> struct ChannelTerms : Terms {
    static constexpr bool FRESH = true;
    struct Column {
        float center, rstd;
        int64_t at;
    };
    Channels s;
    int squares;
    __device__ Column column_of(int64_t image, int64_t channel) const
    {
        const int64_t group = channel / s.m, first = image * s.places * s.channels;
        const int64_t of = image * s.groups + group;
        return { s.mean ? s.mean[of] : BACK ? 0.0f : s.x[first + group * s.m],
                 BACK && s.mean ? gckpti_rsqrt(s.variance[of] + s.epsilon) : 0.0f,
                 first + channel };
    }
    __device__ void operator()(const Column &c, int64_t place, float *term) const
    {
        const int64_t i = c.at + place * s.channels;
        const float d = !BACK || s.mean ? s.x[i] - c.center : 0.0f;
        term[0] = BACK ? s.g[i] : squares ? gckpti_mul(d, d) : d;
        term[1] = BACK ? gckpti_mul(term[0], d * c.rstd) : 0.0f;
    }
};

/* Computes means of `sums` or gain * sums by image and group, plus the first `from`, if set. */
__device__ void channel_mean(int64_t r, const Channels &s, const float *sums, const float *gain,
                             const float *from, float *to)
{
    const int64_t image = r / s.groups, channel = (r - image * s.groups) * s.m;
    const float *sum = sums + image * s.channels + channel;
    float mean = lanes_sum(s.m, [&](float lane, int64_t k) {
        return gain ? gckpti_fma(sum[k], gain[channel + k], lane) : lane + sum[k];
    });
    mean /= s.n;
    if (threadIdx.x % 32 == 0)
        to[r] = from ? from[image * s.places * s.channels + channel] + mean : mean;
}

/* Computes the output or, if BACK, dx (a, b: means of g, g h). A lane has a channel. */
template <bool BACK>
__global__ void channel_each_kernel(const __grid_constant__ Channels s, int64_t splits)
{
    const int64_t strip = blockIdx.x / splits, across = (s.channels + 31) / 32,
                  image = strip / across;
    const int64_t c = (strip - image * across) * 32 + threadIdx.x % 32;
    if (c >= s.channels)
        return;
    const int64_t group = image * s.groups + c / s.m;
    const float center = s.mean[group], rstd = gckpti_rsqrt(s.variance[group] + s.epsilon);
    const float mean_g = BACK ? s.a[group] : 0.0f, mean_gh = BACK ? s.b[group] : 0.0f;
    int64_t r = (blockIdx.x - strip * splits) * 8 + threadIdx.x / 32;
    for (; r < s.places; r += splits * 8) {
        const int64_t at = (image * s.places + r) * s.channels + c;
        const float d = s.x[at] - center;
        if (!BACK) {
            s.to[at] = norm_out(d, rstd, s.gain, s.bias, c);
        } else {
            const float u = s.gain ? gckpti_mul(s.g[at], s.gain[c]) : s.g[at];
            gckpti_put_product(&s.to[at], rstd, gckpti_fma(-(d * rstd), mean_gh, u - mean_g),
                               s.accumulate);
        }
    }
}

/* Splits the pixels so that there are about 16 blocks for each processor of a large chip. */
template <bool BACK> void channel_each(const gckpt_call *call, const Channels &s)
{
    const int64_t strips = (s.channels + 31) / 32 * s.images, most = (s.places + 7) / 8;
    const int64_t splits = strips > 2112 ? 1 : gckpti_min(most, 2112 / strips + 1);
    if (s.to)
        run<channel_each_kernel<BACK>>(call, dim3((unsigned)(strips * splits)), 256, 0, s, splits);
}

void channel_means(const gckpt_call *call, const Channels &s, const float *sums, const float *gain,
                   const float *from, float *to)
{
    for_each_row<channel_mean>(call, s.images * s.groups, s, sums, gain, from, to);
}

/* The terms that batchnorm adds to its running mean and variance: measured ones, times rows. */
struct RunningTerms : Terms {
    const float *mean, *variance;
    float unbiased, rows;
    __device__ void operator()(int64_t channel, int64_t, float *term) const
    {
        term[0] = gckpti_mul(rows, mean[channel]);
        term[1] = gckpti_mul(rows, variance[channel] * unbiased);
    }
};

void groupnorm_forward(const gckpt_call *call)
{
    Channels s = channels_of(call);
    const bool given = !*(const int *)call->attributes && !gckpti_is_training(call);
    float *sums = (float *)call->workspace;
    float *stats[2] = { call->saved ? (float *)call->saved : sums + s.images * s.channels };
    stats[1] = stats[0] + s.images * s.groups;
    for (int i = 0; i < 2 && !given; i++) {
        column_sums(call, ChannelTerms<false>{ {}, s, i }, sum_to(sums), {}, s.places, s.channels,
                    s.images);
        channel_means(call, s, sums, NULL, i ? NULL : s.x, stats[i]);
        s.mean = stats[0];
    }
    s.mean = given ? call->in[1].data : stats[0], s.variance = given ? call->in[2].data : stats[1];
    channel_each<false>(call, s);
}

void groupnorm_backward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    Channels s = channels_of(call);
    const float *saved = (const float *)call->saved;
    float *sums = (float *)call->workspace, *more = sums + s.images * s.channels;
    float *a = more + s.images * s.channels, *b = a + s.images * s.groups;
    const float unbiased = s.n > 1 ? s.n / (s.n - 1) : 1.0f;
    const RunningTerms stats = { {}, saved, saved + s.channels, unbiased, (float)call->rows };
    if (!o->center)
        column_sums(call, stats, sum_of(call, 1), sum_of(call, 2), 1, s.channels);
    if (s.to || (o->gain && call->in[o->gain].grad)) /* only then are x and saved read */
        s.mean = saved, s.variance = saved + s.images * s.groups;
    column_sums(call, ChannelTerms<true>{ {}, s }, sum_to(sums), sum_to(s.mean ? more : NULL),
                s.places, s.channels, s.images);
    const RowTerms<> images = { {}, { sums, NULL }, { s.mean ? more : NULL, NULL }, s.channels };
    column_sums(call, images, sum_of(call, o->bias), sum_of(call, o->gain), s.images, s.channels);
    if (!s.to)
        return;
    channel_means(call, s, sums, s.gain, NULL, a);
    channel_means(call, s, more, s.gain, NULL, b);
    s.a = a, s.b = b;
    channel_each<true>(call, s);
}

int64_t groupnorm_workspace(const gckpt_call *call, bool)
{
    const Channels s = channels_of(call);
    return 2 * s.images * (s.channels + s.groups);
}
#endif

/* >>exact/recurrent */
#ifndef GCKPT_NO_RECURRENT
/* ---- gru, lstm: for each part of a step (gru_reset_before has two), gckpti_cells_forward or
 * _backward multiplies all rows by wh, and a thread for each unit of each row runs the cell. So a
 * part is two kernels; captured, they need no host. ---- */
struct Cells {
    gckpti_cell at; /* row 0 at step 0 */
    int64_t steps, gates, state, t; /* state: columns of the output */
    int part;
    const int32_t *lengths;      /* steps of each row, or NULL */
    const float *h0, *c0, *zero; /* zero: H zeros */
    float *out, *before;         /* out: set in the last part; before: h of step t - 1 (rows,T,H) */
};

/* Returns step t of a row. h and c of the previous step are in the output or initial. */
__device__ __forceinline__ gckpti_cell cell_of(const Cells &s, int64_t row)
{
    const int64_t n = s.at.units, step = row * s.steps + s.t;
    const auto move = [](auto *at, int64_t by) { return at ? at + by : at; };
    gckpti_cell c = s.at;
    c.p = move(c.p, step * s.gates), c.a = move(c.a, row * s.gates);
    c.g = move(c.g, step * s.state), c.out = move(c.out, step * s.state);
    c.da = move(c.da, step * s.gates), c.dp = move(c.dp, step * s.gates);
    c.saved = move(c.saved, step * 4 * n);
    for (int k = 0; k < 2; k++)
        c.state[k] = move(c.state[k], row * s.state), c.d[k] = move(c.d[k], row * s.state);
    c.h = s.t ? c.out - s.state : s.h0 ? s.h0 + row * n : s.zero;
    c.c = s.t ? c.out - n : s.c0 ? s.c0 + row * n : s.zero;
    return c;
}

/* Runs a part of a step of the forward: AT computes unit j of a row. */
template <auto AT> __device__ void cells_forward_at(int64_t i, const Cells &s)
{
    const int64_t n = s.at.units, row = i / n, j = i - row * n;
    const gckpti_cell c = cell_of(s, row);
    const bool padded = s.lengths && s.t >= s.lengths[row];
    if (!padded)
        AT(&c, j);
    for (int k = 0; k < 4 && padded && c.saved; k++)
        c.saved[k * n + j] = 0.0f;
    for (int64_t k = j; s.out && k < s.state; k += n)
        s.out[(row * s.steps + s.t) * s.state + k] = padded ? 0.0f : c.state[0][k];
}

/* Runs a part of a step of the backward. A row's gradients of states begin with +0 after its last
 * step; t < 0 only sets those of rows without steps. */
template <auto AT> __device__ void cells_backward_at(int64_t i, const Cells &s)
{
    const int64_t n = s.at.units, row = i / n, j = i - row * n;
    const int64_t length = s.lengths ? s.lengths[row] : s.steps;
    const gckpti_cell c = cell_of(s, row);
    for (int64_t k = j; k < s.state && s.part == 0 && s.t + 1 >= length; k += n)
        c.d[0][k] = 0.0f;
    if (s.t < 0)
        return;
    s.before[(row * s.steps + s.t) * n + j] = s.t < length ? c.h[j] : 0.0f;
    if (s.t < length)
        AT(&c, j);
    for (int64_t k = j; k < s.gates && s.t >= length; k += n) {
        c.da[k] = 0.0f;
        if (c.dp && !c.accumulate)
            c.dp[k] = 0.0f;
    }
}

/* Returns the axes that copy rows of n elements which begin `to` and `from` elements apart. */
Axes matrix_axes(int64_t rows, int64_t n, int64_t to, int64_t from)
{
    return { 2, { n, rows }, { { 1, to }, { 1, from } } };
}

template <auto FIRST, auto SECOND>
void cells_forward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    float *state = (float *)call->workspace;
    s.at.state[0] = state, s.at.state[1] = state + q.units, s.at.a = state + q.rows * q.state;
    if (!q.initial[0])
        fill(call, state, 0, q.rows * q.state);
    for (int64_t k = 0; q.initial[0] && k < q.state; k += q.units)
        map(call, matrix_axes(q.rows, q.units, q.state, q.units), Copy(), { state + k, NULL },
            value_of(*q.initial[k > 0]), NONE, NONE, 0);
    for (; s.t < s.steps; s.t++)
        for (s.part = 0; s.part <= q.before; s.part++) {
            gckpti_cells_forward(&q, s.part, q.p->data + s.t * q.gates, q.rows, state, s.at.a);
            s.out = s.part == q.before ? call->out : NULL;
            s.part ? for_each<cells_forward_at<SECOND>, 128>(call, q.rows * q.units, s)
                   : for_each<cells_forward_at<FIRST>, 128>(call, q.rows * q.units, s);
        }
}

/* Computes the gradients of the initial states, wh and the bias, when all steps have run. */
void cells_gradients(const gckpt_call *call, const gckpti_sequence &q, const Cells &s)
{
    const int64_t n = q.units, terms = q.rows * q.steps;
    for (int64_t k = 0; k < q.state; k += n) {
        const gckpt_arg *start = q.initial[k > 0];
        if (start && start->grad)
            map(call, matrix_axes(q.rows, n, n, q.state), Copy(), grad_of(*start),
                { s.at.d[0] + k, NULL }, NONE, NONE, start->accumulate);
    }
    for (int part = 0; part <= q.before && q.wh->grad; part++) {
        const int64_t first = part ? q.split : 0;
        gckpti_product t = gckpti_product_of(
            n, part ? n : q.split, terms,
            part ? gckpti_matrix(s.at.saved + 3 * n, 1, 4 * n) : gckpti_matrix(s.before, 1, n),
            gckpti_matrix(s.at.da + first, 1, q.gates), q.wh->grad + first);
        t.c_stride = q.gates, t.accumulate = q.wh->accumulate;
        products(q.call, &t);
    }
    const RowTerms<> rows = { {}, { s.at.da, NULL }, NONE, q.gates };
    if (q.bias)
        column_sums(call, rows, sum_of(*q.bias), {}, terms, q.gates);
}

template <auto FIRST, auto SECOND>
void cells_backward(const gckpt_call *call, const gckpti_sequence &q, Cells s)
{
    const int64_t n = q.rows * q.units;
    float *d = (float *)call->workspace, *zero = d + q.rows * q.state;
    s.at.d[0] = d, s.at.d[1] = d + q.units, s.zero = zero;
    s.at.da = zero + q.units, s.before = s.at.da + q.rows * q.steps * q.gates;
    fill(call, zero, 0, q.units);
    for (s.t = s.steps; s.t-- > 0;)
        for (s.part = 0; s.part <= q.before; s.part++) {
            s.part ? for_each<cells_backward_at<SECOND>, 128>(call, n, s)
                   : for_each<cells_backward_at<FIRST>, 128>(call, n, s);
            gckpti_cells_backward(&q, s.part < q.before, s.at.da + s.t * q.gates, q.rows, d);
        }
    s.part = 0;
    if (s.lengths)
        for_each<cells_backward_at<FIRST>, 128>(call, n, s);
    cells_gradients(call, q, s);
}

int64_t cells_workspace(const gckpt_call *call, bool backward)
{
    const gckpti_sequence q = gckpti_sequence_of(call, 0, backward);
    return backward ? q.units + q.rows * (q.state + q.steps * (q.gates + q.units))
                    : q.rows * (q.state + q.gates);
}

/* Runs a cell whose first part (and second one, if another) computes units by these functions. */
template <auto FORWARD, auto BACKWARD, auto FORWARD2 = FORWARD, auto BACKWARD2 = BACKWARD>
void cells_by(const gckpt_call *call, bool backward)
{
    gckpti_sequence q = gckpti_sequence_of(call, 0, backward);
    gckpt_call f32 = *call; /* chains are in f32 in any plan */
    Cells s = {};
    f32.precision = GCKPT_FP32;
    q.call = &f32, q.product = products;
    q.before = FORWARD != FORWARD2, q.split = q.before ? 2 * q.units : q.gates;
    s.steps = q.steps, s.gates = q.gates, s.state = q.state, s.lengths = q.lengths;
    s.h0 = q.initial[0] ? q.initial[0]->data : NULL;
    s.c0 = q.initial[1] ? q.initial[1]->data : NULL;
    s.at.units = q.units, s.at.p = q.p->data, s.at.g = call->grad_out, s.at.out = call->out;
    s.at.saved = (float *)call->saved, s.at.dp = q.p->grad, s.at.accumulate = q.p->accumulate;
    backward ? cells_backward<BACKWARD, BACKWARD2>(call, q, s)
             : cells_forward<FORWARD, FORWARD2>(call, q, s);
}

/* >>exact/delta */
/* ---- delta_rule: in the forward, a thread for each column of the state of each head; in the
 * backward, a block for the heads that share a key head: a column is a thread's, a row a warp's. */
enum { DELTA_THREADS = 256 };

/* Computes columns of a state and outputs; the position is that of the call, in a capture too. */
__device__ void delta_forward_at(int64_t i, const gckpti_delta_call &run, const StepParams *params)
{
    gckpti_delta_call s = run;
    const int64_t item = i / s.values, j = i - item * s.values, n = s.keys * s.values;
    const int64_t position = s.o.capacity ? params->position : 0, at = item * (n + s.values);
    float *state = s.state ? s.state + at : s.workspace + item * n;
    const float *from = s.before ? s.before + at : state;
    s.first = position;
    if (s.state)
        s.first = gckpti_delta_resume(state + n + j, position), s.steps = position - s.first;
    for (int64_t k = j; k < n && !s.before && !s.first; k += s.values)
        state[k] = 0.0f;
    for (int64_t t = 0; t < s.steps; t++, from = state) {
        const gckpti_delta_step x =
            gckpti_delta_step_of(&s, item / s.o.heads, item % s.o.heads, t, from, state);
        gckpti_delta_columns(&x, j, 1);
    }
}

/* Computes what threads have of a step: the columns of d, and u, w = beta r, x and y. */
__device__ void delta_thread_gradients(const gckpti_delta_step &s, int64_t j)
{
    const int64_t n = s.values;
    float *u = s.scratch, *w = u + n, *sum = w + n, *y = sum + n, x = 0.0f;
    u[j] = s.scale * s.g[j], w[j] = s.beta * s.r[j];
    for (int64_t i = 0; i < s.keys; i++) {
        float *d = s.d + i * n + j;
        *d = gckpti_fma(s.q[i], u[j], *d);
        x = gckpti_fma(s.k[i], *d, x);
    }
    sum[j] = x, y[j] = -s.beta * x;
    if (s.dv)
        gckpti_put_product(s.dv + j, x, s.beta, s.add[2]);
}

/* Computes what warps have of a step: the dots of row i, and the row of d; at the end *total is the
 * row's part of ddecay. */
__device__ void delta_warp_gradients(const gckpti_delta_step &s, int64_t i, float *total)
{
    const int64_t n = s.values;
    const float *u = s.scratch, *w = u + n, *y = w + 2 * n;
    float dq = 0.0f, first = 0.0f, second = 0.0f, part = 0.0f;
    for (int64_t j = threadIdx.x % 32; j < n; j += 32) {
        float *d = s.d + i * n + j;
        const float p = gckpti_mul(s.decay, s.from[i * n + j]);
        dq = gckpti_fma(s.to[i * n + j], u[j], dq);
        first = gckpti_fma(*d, w[j], first);
        second = gckpti_fma(p, y[j], second);
        const float next = gckpti_fma(s.k[i], y[j], *d);
        part = gckpti_fma(next, p, part);
        *d = s.decay * next;
    }
    dq = warp_sum(dq), first = warp_sum(first), second = warp_sum(second), *total = warp_sum(part);
    if (s.dq && threadIdx.x % 32 == 0)
        gckpti_put(s.dq + i, dq, s.add[0]);
    if (s.dk && threadIdx.x % 32 == 0)
        gckpti_put(s.dk + i, first, s.add[1]), s.dk[i] += second;
}

__device__ void delta_gradients(const gckpti_delta_step &s, float *totals)
{
    const int thread = (int)threadIdx.x;
    for (int64_t j = thread; j < s.values; j += DELTA_THREADS)
        delta_thread_gradients(s, j);
    __syncthreads();
    for (int64_t i = thread / 32; i < s.keys; i += DELTA_THREADS / 32)
        delta_warp_gradients(s, i, totals + i);
    if (s.dbeta && thread < 32) {
        const float *x = s.scratch + 2 * s.values, *r = s.r;
        const float dot =
            lanes_sum(s.values, [&](float all, int64_t j) { return gckpti_fma(x[j], r[j], all); });
        if (thread == 0)
            gckpti_put(s.dbeta, dot, s.add[4]);
    }
    __syncthreads();
    float total = 0.0f;
    for (int64_t i = 0; s.ddecay && thread == 0 && i < s.keys; i++)
        total += totals[i];
    if (s.ddecay && thread == 0)
        gckpti_put(s.ddecay, total, s.add[3]);
}

__global__ void delta_backward_kernel(gckpti_delta_call s, int64_t floats)
{
    SHARED(float, totals, [GCKPTI_DELTA_COLUMNS]);
    const int64_t n = s.keys * s.values, row = blockIdx.x / s.o.key_heads, each = s.group;
    const int64_t shared = blockIdx.x % s.o.key_heads;
    float *starts = s.workspace + blockIdx.x * floats, *states = starts + s.chunks * n;
    float *d = states + s.chunk * n, *r = d + n;
    const auto forward = [&](const gckpti_delta_step &x) {
        for (int64_t j = threadIdx.x; j < s.values; j += DELTA_THREADS)
            gckpti_delta_columns(&x, j, 1);
    };
    for (int64_t head = shared * each; head < (shared + 1) * each; head++) {
        for (int64_t k = threadIdx.x; k < n; k += DELTA_THREADS)
            starts[k] = d[k] = 0.0f;
        __syncthreads();
        for (int64_t t = 0; t < (s.chunks - 1) * s.chunk; t++) {
            float *to = starts + (t / s.chunk + 1) * n;
            forward(gckpti_delta_step_of(&s, row, head, t, t % s.chunk ? to : to - n, to));
        }
        for (int64_t c = s.chunks; c-- > 0;) {
            const int64_t first = c * s.chunk, count = gckpti_min(s.steps - first, s.chunk);
            for (int64_t i = 0; i < 2 * count; i++) {
                const int64_t k = i < count ? i : 2 * count - 1 - i;
                float *to = states + k * n;
                gckpti_delta_step x =
                    gckpti_delta_step_of(&s, row, head, first + k, k ? to - n : starts + c * n, to);
                x.r = r + k * s.values, x.d = d, x.scratch = r + s.chunk * s.values;
                if (i < count) {
                    forward(x);
                    continue;
                }
                __syncthreads();
                delta_gradients(x, totals);
            }
        }
    }
}

int64_t delta_workspace(const gckpt_call *call, bool backward)
{
    const gckpti_delta_call s = gckpti_delta_of(call);
    const int64_t items = call->shape.d[0] * (backward ? s.o.key_heads : s.o.heads);
    return items * gckpti_delta_workspace(&s, backward);
}

void delta_rule_by(const gckpt_call *call, bool backward)
{
    gckpti_delta_call s = gckpti_delta_of(call);
    const int64_t rows = call->shape.d[0];
    s.out = backward ? NULL : s.out;
    if (!backward)
        for_each<delta_forward_at, 128>(call, rows * s.o.heads * s.values, s, params_of(call));
    else
        run<delta_backward_kernel>(call, dim3((unsigned)(rows * s.o.key_heads)), DELTA_THREADS, 0,
                                   s, gckpti_delta_workspace(&s, 1));
}
#endif

/* >>exact/losses */
/* Updates *max by the maximum `top` of more scores, as a step of gckpti_online does, and returns
 * the factor of the sum so far. */
__device__ __forceinline__ float online_factor(float top, bool first, float *max)
{
    float factor = 0.0f;
    if (!first) {
        top = top > *max ? top : *max;
        factor = gckpti_exp(*max - gckpti_shift(top));
    }
    *max = top;
    return factor;
}

/* Takes the next n <= 1024 logits of a row into max and sum, as gckpti_online does, but stores no
 * exponentials. Lanes keep the logits in registers; missing ones are -inf, which adds +0. */
__device__ void online_chunk(const float *x, int64_t n, bool first, float *max, float *sum)
{
    const int lane = (int)threadIdx.x % 32;
    float regs[GCKPTI_LOSS_CHUNK / 32], top = -INFINITY, added = 0.0f;
    UNROLLED(k, GCKPTI_LOSS_CHUNK / 32) {
        regs[k] = lane + 32 * k < n ? x[lane + 32 * k] : -INFINITY;
        top = regs[k] > top ? regs[k] : top;
    }
    const float factor = online_factor(warp_max(top), first, max);
    const float shift = gckpti_shift(*max);
    UNROLLED(k, GCKPTI_LOSS_CHUNK / 32)
        added += gckpti_exp(regs[k] - shift);
    added = warp_sum(added);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
}

/* Some rows and classes of a loss over classes, such as cross-entropy. */
struct Classes {
    const float *x;              /* (rows,n): logits of classes first..first+n-1 of `classes` */
    const int32_t *target;       /* (rows); NULL for soft targets */
    const float *soft, *weights; /* targets (rows,n) or NULL; weights, one for per_weight rows */
    float *saved;                  /* (rows,2): max, log(sum); NULL in a forward: not required */
    float *losses, *state; /* loss of each row; (rows,3): max, sum, target's logit so far */
    int64_t rows, first, n, classes, per_weight;
    float smoothing, cap; /* cap: the soft cap applied to the logits, or 0 */
    float *dx, *dt;       /* gradients of x, which may be x, and of soft targets, or NULL */
    int x_accumulate, t_accumulate;
};

Classes classes_of(const gckpt_call *call)
{
    const gckpt_arg *x = &call->in[0], *targets = &call->in[1], *w = &call->in[2];
    Classes l = { x->data, targets->index, targets->data, w->data };
    l.saved = (float *)call->saved, l.losses = (float *)call->workspace;
    l.rows = gckpti_rows(&x->shape), l.n = l.classes = gckpti_last(&x->shape);
    l.per_weight = call->inputs == 3 ? l.rows / gckpti_elements(&w->shape) : 1;
    l.smoothing = call->attributes ? *(const float *)call->attributes : 0.0f;
    l.dx = x->grad, l.dt = targets->grad;
    l.x_accumulate = x->accumulate, l.t_accumulate = targets->accumulate;
    return l;
}

__device__ float weight_of(const Classes &l, int64_t r)
{
    return l.weights ? l.weights[r / l.per_weight] : 1.0f;
}

/* Returns the loss of row r before weighting, as gckpti_loss_of_row; logit: the target's logit. A
 * row with an ignored target gives -0, which changes no sum. */
__device__ float class_loss(const Classes &l, int64_t r, float max, float log_sum, float logit)
{
    const float *x = l.x + r * l.n, *soft = l.soft ? l.soft + r * l.n : NULL;
    const float loss = log_sum - (logit - max);
    if (!soft && l.target[r] < 0)
        return -0.0f;
    if (!soft && !(l.smoothing > 0.0f))
        return loss;
    const float sum = lanes_sum(l.n, [&](float all, int64_t i) {
        const float s = log_sum - (x[i] - max), t = soft ? soft[i] : 1.0f;
        return t > 0.0f || t < 0.0f ? gckpti_fma(t, s, all) : all + t;
    });
    return soft ? sum
                : gckpti_fma(l.smoothing / (float)l.n, sum, gckpti_mul(1.0f - l.smoothing, loss));
}

__device__ void loss_of_row(int64_t r, const Classes &l)
{
    const int lane = (int)threadIdx.x % 32;
    const float *x = l.x + r * l.n;
    const int64_t target = l.target ? l.target[r] : 0, at = target - l.first;
    float *state = l.state + 3 * r, max = 0.0f, sum = 1.0f, logit = 0.0f;
    if (l.first > 0)
        max = state[0], sum = state[1], logit = state[2];
    __syncwarp();
    for (int64_t j = 0; target >= 0 && j < l.n; j += GCKPTI_LOSS_CHUNK)
        online_chunk(x + j, gckpti_min(l.n - j, GCKPTI_LOSS_CHUNK), l.first + j == 0, &max, &sum);
    if (target >= 0 && at >= 0 && at < l.n)
        logit = x[at];
    if (l.first + l.n < l.classes) {
        if (lane < 3)
            state[lane] = lane == 0 ? max : lane == 1 ? sum : logit;
        return;
    }
    gckpti_softmax_end(&max, &sum);
    const float log_sum = gckpti_log(sum), loss = class_loss(l, r, max, log_sum, logit);
    if (lane == 0)
        l.losses[r] = target < 0 ? loss : gckpti_weighted(weight_of(l, r), loss);
    if (l.saved && lane < 2)
        l.saved[2 * r + lane] = lane == 0 ? max : log_sum;
}

/* Computes the unweighted loss of row r from its saved maximum and sum. */
__device__ void saved_loss_of_row(int64_t r, const Classes &l)
{
    const int64_t target = l.target ? l.target[r] : 0;
    const float logit = target < 0 ? 0.0f : l.x[r * l.n + target];
    const float loss = class_loss(l, r, l.saved[2 * r], l.saved[2 * r + 1], logit);
    if (threadIdx.x % 32 == 0)
        l.losses[r] = loss;
}

/* Computes dx or, if SOFT, dx and dt, of which one may be NULL. */
template <bool SOFT>
__device__ void loss_gradients_of_row(int64_t r, const Classes &l, const StepParams *params)
{
    enum { AT_ONCE = 4 };
    const int lane = (int)threadIdx.x % 32;
    const float p_off = l.smoothing / (float)l.n, p_on = 1.0f - l.smoothing + p_off;
    const bool to_x = !SOFT || l.dx, to_t = SOFT && l.dt;
    const float w = weight_of(l, r), scale = w * params->loss_scale;
    const int64_t begin = r * l.n, end = begin + l.n;
    const int64_t target = SOFT ? 0 : begin + l.target[r] - l.first;
    const bool out = (!SOFT && l.target[r] < 0) || w == 0.0f;
    const float max = l.saved[2 * r], log_sum = l.saved[2 * r + 1];
    float mass = 1.0f;
    if (SOFT && !out)
        mass = lanes_sum(l.n, [&](float sum, int64_t i) { return sum + l.soft[begin + i]; });
    for (int64_t i = begin + lane; i < end; i += 32 * AT_ONCE) {
        float x[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++)
            x[k] = !out && i + 32 * k < end ? l.x[i + 32 * k] : 0.0f;
        for (int k = 0; k < AT_ONCE && i + 32 * k < end; k++) {
            const int64_t at = i + 32 * k;
            const float t = SOFT ? l.soft[at] : at == target ? p_on : p_off, y = x[k] - max;
            float p = gckpti_fma(gckpti_exp(y - log_sum), mass, -t);
            if (l.cap > 0.0f)
                p *= gckpti_softcap_deriv(x[k], 1.0f / l.cap);
            if (out && to_x && !l.x_accumulate)
                l.dx[at] = 0.0f;
            if (out && to_t && !l.t_accumulate)
                l.dt[at] = 0.0f;
            if (!out && to_x)
                gckpti_put_product(&l.dx[at], p, scale, l.x_accumulate);
            if (!out && to_t)
                gckpti_put_product(&l.dt[at], log_sum - y, scale, l.t_accumulate);
        }
    }
}

/* A float for each row; in the backward, also one for each weight, or nothing without weights. */
int64_t cross_entropy_workspace(const gckpt_call *call, bool backward)
{
    const int64_t rows = gckpti_rows(&call->in[0].shape);
    return !backward ? rows : call->inputs == 3 ? rows + gckpti_elements(&call->in[2].shape) : 0;
}

void cross_entropy_by(const gckpt_call *call, bool backward)
{
    Classes l = classes_of(call);
    if (!backward) {
        for_each_row<loss_of_row>(call, l.rows, l);
        return add_losses(call, l.losses, l.target, l.rows, 1);
    }
    if (l.soft && (l.dx || l.dt))
        for_each_row<loss_gradients_of_row<true>>(call, l.rows, l, params_of(call));
    else if (l.dx)
        for_each_row<loss_gradients_of_row<false>>(call, l.rows, l, params_of(call));
    if (!call->in[2].grad)
        return;
    for_each_row<saved_loss_of_row>(call, l.rows, l);
    row_sums(call, Plain{ l.losses }, l.losses + l.rows, l.rows / l.per_weight, l.per_weight, 1.0f);
    weights_gradient(call, l.losses + l.rows);
}

/* >>exact/linear_loss */
/* ---- linear_cross_entropy, in blocks of 2048 x 4096 logits: 32 MiB, most of which stays in an
 * H200's L2, and 512 tiles of 128 x 128 for its 132 multiprocessors. ---- */
enum { LOGIT_ROWS = 2048, LOGIT_CLASSES = 4 * GCKPTI_LOSS_CHUNK };

/* In the workspace: logits; `dx`: in a forward the states of rows, then `saved`: the losses. */
gckpti_loss_layout logit_layout(const gckpt_call *call, bool backward)
{
    const int64_t c = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    gckpti_loss_layout p = { gckpti_min(rows, LOGIT_ROWS),
                             gckpti_min(call->in[1].shape.d[0], LOGIT_CLASSES), 0, 0, 0, 0 };
    p.dx = gckpti_ceil_to(p.block * p.chunk, 4), p.saved = p.dx + 3 * p.block;
    p.size = !backward ? p.saved + rows : p.dx + (call->precision != GCKPT_FP32 ? p.block * c : 0);
    return p;
}

int64_t linear_cross_entropy_workspace(const gckpt_call *call, bool backward)
{
    return logit_layout(call, backward).size;
}

__device__ void cap_at(int64_t i, float *x, float times, float cap)
{
    x[i] = gckpti_softcap(x[i], times, cap);
}

/* Runs a block of rows from `row` on; returns their number. Computes logits = x w' and the rows'
 * losses; backward: d, the logits' gradient, dx += d w, dw += d' x. In bf16 plans dx is in the
 * workspace, since it is rounded once, after the last class. */
int64_t logit_block(const gckpt_call *call, const gckpti_loss_layout &layout, int64_t row,
                    int backward)
{
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    const int64_t c = gckpti_last(&x->shape), v = w->shape.d[0], at = row * c;
    const int64_t sample = gckpti_sample_rows(&x->shape);
    const int64_t rows = gckpti_loss_block_rows(call, row, layout.block);
    float *workspace = (float *)call->workspace, *saved = (float *)call->saved;
    float *dw = backward ? w->grad : NULL, *dx = backward && x->grad ? x->grad + at : NULL;
    uint16_t *grad = backward && x->grad_bf16 ? x->grad_bf16 + at : NULL;
    Classes l = { workspace, call->in[2].index + row };
    l.saved = saved ? saved + 2 * row : NULL;
    l.losses = workspace + layout.saved + row, l.state = workspace + layout.dx; /* forward */
    l.rows = rows, l.classes = v, l.cap = gckpti_linear_loss_cap(call), l.dx = workspace;
    if (grad)
        dx = workspace + layout.dx;
    if (grad && x->accumulate)
        widen(call, grad, dx, rows * c);
    for (l.first = 0; l.first < v; l.first += l.n) {
        l.n = gckpti_min(v - l.first, layout.chunk);
        const gckpti_factors f = { rows, l.n, c,
                                   gckpti_operand_of(gckpti_arg_values(x), at, c, 1, 0),
                                   gckpti_operand_of(gckpti_arg_values(w), l.first * c, c, 1, 0),
                                   gckpti_matrix(workspace, l.n, 1), 1, 1, sample, row % sample,
                                   NULL };
        gckpti_run_factors(call, products, &f, 0, gckpti_f32_destination(workspace), 0);
        if (l.cap > 0.0f)
            for_each<cap_at>(call, rows * l.n, workspace, 1.0f / l.cap, l.cap);
        if (!backward)
            for_each_row<loss_of_row>(call, rows, l);
        else
            for_each_row<loss_gradients_of_row<false>>(call, rows, l, params_of(call));
        gckpti_run_factors(call, products, &f, 1, gckpti_f32_destination(dx),
                           x->accumulate || l.first > 0);
        if (dw)
            gckpti_run_factors(call, products, &f, 2, gckpti_f32_destination(dw + l.first * c),
                               w->accumulate || row > 0);
    }
    if (grad)
        narrow(call, dx, grad, rows * c);
    return rows;
}

void linear_cross_entropy_by(const gckpt_call *call, bool backward)
{
    const gckpti_loss_layout layout = logit_layout(call, backward);
    const int64_t rows = gckpti_rows(&call->in[0].shape);
    for (int64_t row = 0; row < rows;)
        row += logit_block(call, layout, row, backward);
    if (!backward)
        add_losses(call, (float *)call->workspace + layout.saved, call->in[2].index, rows, 1);
}

/* >>exact/scores */
/* A block takes 64 queries of a head (for dk and dv: 64 keys) through tiles of 64 keys (queries) in
 * ascending order. Both are in shared memory, in rows that are WIDTH + 4 floats apart, so that the
 * float4 of eight rows are in different banks. Thread (ty, tx) has R of the 64 rows, ty, ty + 64 /
 * R, .., and 4 of the 64 scores of each row, tx, tx + 16, ..: for the sum of a row's exponentials
 * (5d), lanes tx and tx + 16 are in one thread, and the 16 threads of the row add their sums. A
 * thread has N = WIDTH / 16 of the WIDTH columns of a result (if rows are keys, of rows R ty..).
 * A float4 of R rows and of 4 rows give 16 R terms: with R = 8, 12 loads for 128 terms.
 * Heads up to 64 use WIDTH 64 and R 8 (128 threads), larger ones WIDTH 128 and R 4 (256 threads).
 * Beyond 128, a block has a slice of 128 columns of the result and computes all scores for it.
 * MIXED: bf16 plans (5l). Operands are rounded when they enter shared memory; terms are flushed and
 * added in blocks, which a tile never divides. As an element has three registers, R is 4. */
enum { TILE = GCKPTI_KEY_TILE, SCORES = TILE + 4 /* floats from row to row of scores */ };

/* Visible keys (gckpti_visible_keys) at position 0 of a cache; at_position adds the position. */
struct Keys {
    int count, ahead;
    const StepParams *params; /* NULL adds nothing */
};

Keys keys_of(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    gckpt_call start = *call;
    start.position = 0;
    gckpti_visible visible = gckpti_visible_keys(&start);
    const StepParams *now = gckpti_uses_position(o) ? params_of(call) : NULL;
    return { (int)visible.keys, (int)visible.ahead, now };
}

__device__ inline Keys at_position(const Keys &k)
{
    int more = k.params ? (int)k.params->position : 0;
    return { k.count + more, k.ahead + more, NULL };
}

/* What exact and fast kernels of attention read. */
struct Heads {
    int t, s, heads, d, group; /* group: heads per key head */
    float scale;               /* of gradients */
    const int32_t *lengths;    /* NULL if all keys count */
    bool aligned;              /* rows of a head begin at multiples of 16 bytes */
    int accumulate[3];
    float *saved;       /* (B,heads,T): max + log(sum) */
    const float *delta; /* (B,heads,T): dot(g, out) */
    Keys keys;
};

Heads heads_of(const gckpt_call *call)
{
    const gckpti_attn h = gckpti_attn_of(call);
    Heads a = { (int)h.t, (int)h.s, (int)h.heads, (int)h.d, (int)h.group, h.scale };
    a.lengths = call->inputs == 4 ? call->in[3].index : NULL;
    a.saved = (float *)call->saved;
    for (int i = 0; i < 3; i++)
        a.accumulate[i] = wanted(call->in[i]) && call->in[i].accumulate;
    return a;
}

struct Attention : Heads {
    const float *q, *k, *v, *g;
    float *out, *dq, *dk, *dv;
    int64_t c, kc; /* columns of all heads; columns of all key heads */
    int slices, window;
    float after, times, cap; /* factors after, before the cap */
    gckpti_attn_mask mask;
    float *dmask;
};

/* Returns the mask of query i from key j on, or NULL if there is no mask or no such query. */
__device__ inline const float *mask_row(const Attention &a, int64_t row, int head, int i, int j)
{
    const int64_t *step = a.mask.step;
    return a.mask.x && i < a.t
               ? a.mask.x + row * step[0] + head * step[1] + i * step[2] + j * step[3]
               : NULL;
}

/* Returns a copy of `a` whose row length c and number of heads are those of the keys. */
template <class A> __device__ inline A as_keys(const A &a)
{
    A k = a;
    k.c = a.kc;
    k.heads = a.heads / a.group;
    return k;
}

__device__ inline Keys keys_of_row(const Keys &k, const int32_t *lengths, int64_t row)
{
    Keys now = at_position(k);
    now.count = lengths ? lengths[row] : now.count;
    return now;
}

/* A block's part: a tile of a head in a row of the batch, columns from slice * WIDTH on. */
struct HeadTile {
    int64_t row;
    int tile, head, slice;
};

/* Returns this block's part. Queries run backwards, so that those with most keys come first. */
__device__ HeadTile head_tile_of(const Attention &a, int tiles, bool backwards)
{
    const int i = (int)blockIdx.x / a.slices, tile = i % tiles, head = i / tiles;
    return { head / a.heads, backwards ? tiles - 1 - tile : tile, head % a.heads,
             (int)blockIdx.x % a.slices };
}

/* Loads rows first..first+63 of x (which has `rows` rows), columns e0..e0+WIDTH-1 of the head's d;
 * elements that do not exist become +0. */
template <int R, int WIDTH, bool MIXED>
__device__ void fetch_tile(float *to, const float *x, const Attention &a, int first, int rows,
                           int e0)
{
    const Matrix<float> m = { x, a.c, a.aligned };
    stage_tile<TILE, WIDTH, 16 * TILE / R, Padded<WIDTH + 4>, MIXED>(m, first, rows, e0, a.d, to);
}

/* Continues the chains s over n columns: this thread's R rows of a times 4 rows of b. MIXED: up to
 * 3 more terms, which are zeros: they change only signs of zeros, on which nothing depends. */
template <int R, int WIDTH, bool MIXED>
__device__ void dots(float (&s)[R][4], const float *a, const float *b, int n)
{
    constexpr int ROW = WIDTH + 4, STEP = TILE / R;
    Block<R, 4, MIXED> block;
    a += threadIdx.x / 16 * ROW;
    b += threadIdx.x % 16 * ROW;
    n = min(MIXED ? (n + 3) / 4 * 4 : n, WIDTH);
    block.begin();
    int e = 0;
#pragma unroll 1
    for (; e + 4 <= n; e += 4) {
        block.start_block(s, e);
        Vec<float, 4> y[4];
        UNROLLED(c, 4)
        y[c] = load<4>(b + 16 * c * ROW + e);
        UNROLLED(r, R)
        {
            const Vec<float, 4> x = load<4>(a + STEP * r * ROW + e);
            UNROLLED(k, 4)
            {
                const float z[4] = { y[0].v[k], y[1].v[k], y[2].v[k], y[3].v[k] };
                block.term(s, k, r, x.v[k], z);
            }
        }
    }
    for (; !MIXED && e < n; e++) {
        const float *z = b + e, w[4] = { z[0], z[16 * ROW], z[32 * ROW], z[48 * ROW] };
        UNROLLED(r, R)
        block.term(s, 0, r, a[STEP * r * ROW + e], w);
    }
    block.end(s);
}

/* Returns the column of a thread's element n: four are adjacent, the next four are 64 further. */
__device__ int column_of(int n) { return (int)threadIdx.x % 16 * 4 + n % 4 + n / 4 * 64; }

/* Loads this thread's columns of a row of x. */
template <int N> __device__ void load_columns(float (&y)[N], const float *x)
{
    UNROLL for (int n = 0; n < N; n += 4) read_vec<4>(x, column_of(n), 4, true, y + n);
}

/* Returns true if a query that is `lag` rows after a key sees it. */
__device__ bool is_visible(int lag, int window) { return (unsigned)lag < (unsigned)window; }

/* Adds terms to chains over keys in o, for this thread's rows: p_j v_j, j = 0..keys-1. Row i has no
 * terms of keys after i + visible, or before the window that ends there. */
template <int R, int N, bool MIXED>
__device__ void sum_over_keys(float (&o)[R][N], const float *p, const float *v, int keys,
                              int visible, int window)
{
    constexpr int ROW = 16 * N + 4, STEP = TILE / R, PAIR = 1 + MIXED; /* even, odd terms */
    const int row = (int)threadIdx.x / 16;
    Block<R, N, MIXED> block;
    float y[N];
    int j = 0;
    p += row * SCORES;
    block.begin();
#pragma unroll 1
    for (const int common = is_visible(visible + TILE - 1, window) ? min(keys, visible + 1) : 0;
         j + 4 <= common; j += 4) {
        block.start_block(o, j);
        Vec<float, 4> x[R];
        UNROLLED(r, R)
        x[r] = load<4>(p + STEP * r * SCORES + j);
        UNROLLED(k, 4)
        {
            load_columns(y, v + (j + k) * ROW);
            UNROLLED(r, R)
            block.term(o, k, r, x[r].v[k], y);
        }
    }
#pragma unroll 1
    for (; j < keys; j += PAIR) {
        block.start_block(o, j);
        UNROLLED(k, PAIR)
        {
            if (j + k >= keys)
                break;
            load_columns(y, v + (j + k) * ROW);
            UNROLLED(r, R)
            {
                float x = p[STEP * r * SCORES + j + k];
                block.term(o, k, r, x, y, is_visible(row + STEP * r + visible - j - k, window));
            }
        }
    }
    block.end(o, true);
}

/* Adds terms to chains over queries in o, for this thread's rows, which are keys: p_i g_i, i =
 * 0..queries-1. Key j has terms of `window` queries (or all later ones) from j - visible on. */
template <int R, int N, bool MIXED>
__device__ void sum_over_queries(float (&o)[R][N], const float *p, const float *g, int queries,
                                 int visible, int window)
{
    constexpr int ROW = 16 * N + 4, PAIR = 1 + MIXED;
    const int row = (int)threadIdx.x / 16 * R;
    const bool all = visible >= TILE - 1 && is_visible(visible + TILE - 1, window);
    Block<R, N, MIXED> block;
    p += row;
    block.begin();
#pragma unroll(MIXED ? 1 : 4)
    for (int i0 = 0; i0 < queries; i0 += PAIR) {
        block.start_block(o, i0);
#pragma unroll
        for (int k = 0, i = i0; k < PAIR; k++, i++) {
            if (i >= queries)
                break;
            float x[R], y[N];
            UNROLL for (int r = 0; r < R; r += 4) read_vec<4>(p + i * SCORES, r, 4, true, x + r);
            load_columns(y, g + i * ROW);
            UNROLLED(r, R)
            block.term(o, k, r, x[r], y, all || is_visible(i + visible - row - r, window));
        }
    }
    block.end(o, true);
}

/* Loads initial values of chains: this thread's rows first, first + STEP, .. of a result x of
 * `rows` rows, columns from e0 on of the head. */
template <int R, int N, int STEP, bool MIXED>
__device__ void init_rows(float (&o)[R][N], const float *x, const Attention &a, int first, int rows,
                          int e0, int accumulate)
{
    UNROLLED(r, R) UNROLLED(n, N)
    {
        const int e = e0 + column_of(n), row = first + STEP * r;
        o[r][n] = accumulate && row < rows && e < a.d ? x[row * a.c + e] : 0.0f;
        o[r][n] = MIXED ? gckpti_flush_to_zero(o[r][n]) : o[r][n];
    }
}

/* Stores the elements that init_rows loads. */
template <int R, int N, int STEP>
__device__ void store_rows(const float (&o)[R][N], float *x, const Attention &a, int first,
                           int rows, int e0)
{
    UNROLLED(r, R) UNROLL for (int n = 0; n < N; n += 4)
    {
        const int e = e0 + column_of(n), row = first + STEP * r;
        if (row < rows)
            write_vec<4>(Results{ x, NULL }, row * a.c + e, a.d - e, a.aligned, &o[r][n]);
    }
}

template <int R, bool MIXED> __device__ void store_scores(float *to, const float (&x)[R][4])
{
    to += threadIdx.x / 16 * SCORES + threadIdx.x % 16;
    UNROLLED(r, R) UNROLLED(c, 4) to[TILE / R * r * SCORES + 16 * c] = rounded<MIXED>(x[r][c]);
}

/* Returns the maximum of x over 2 h adjacent lanes, which share a row. */
__device__ inline float row_max(float x, int h = 8)
{
    for (; h; h /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, h));
    return x;
}

/* >>exact/attention */
/* Takes this thread's next four scores x of a row into the row's max and sum, replaces them by
 * exponentials, and returns the factor for earlier terms. Masked keys have the score -inf, whose
 * exponential, +0, changes no sum. Of +0 and -0, fmaxf may return either. seen: the first key that
 * is not masked, and the end of those keys. */
__device__ __forceinline__ float online_row(float (&x)[4], const Attention &a, const float *mask,
                                            int2 seen, bool first, float *max, float *sum)
{
    float top = -INFINITY;
    UNROLLED(c, 4)
    {
        const int j = (int)threadIdx.x % 16 + 16 * c;
        x[c] = j >= seen.x && j < seen.y ? gckpti_mul(x[c], a.after) : -INFINITY;
        if (mask && j < seen.y)
            x[c] += mask[j * a.mask.step[3]];
        top = fmaxf(top, x[c]);
    }
    const float factor = online_factor(row_max(top), first, max);
    const float shift = gckpti_shift(*max);
    UNROLLED(c, 4)
    x[c] = gckpti_exp(x[c] - shift);
    const float added = warp_sum((x[0] + x[2]) + (x[1] + x[3]), 8);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    return factor;
}

/* With a cap: turns raw products x into scores cap * tanh(x * times), one by one, in `scratch`,
 * where each thread has separate elements. */
template <int R> __device__ void cap_scores(float (&x)[R][4], const Attention &a, float *scratch)
{
    store_scores<R, false>(scratch, x);
    scratch += threadIdx.x / 16 * SCORES + threadIdx.x % 16;
#pragma unroll 1
    for (int i = 0; i < 4 * R; i++) {
        float *s = scratch + TILE / R * (i / 4) * SCORES + 16 * (i % 4);
        *s = gckpti_softcap(*s, a.times, a.cap);
    }
    UNROLLED(r, R) UNROLLED(c, 4) x[r][c] = scratch[TILE / R * r * SCORES + 16 * c];
}

/* Masked keys add no terms (their v may be inf). Exponentials overwrite k. On an H200, a processor
 * runs 3 blocks at once; 2 if heads are wide or bf16 is used, 1 if both. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 3 : 2 - (MIXED && WIDTH > 64))
    attention_forward_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, STEP = TILE / R;
    DYNAMIC_SHARED(float4, scratch);
    float *q = (float *)scratch, *k = q + TILE * ROW, *v = k + TILE * ROW, *p = k;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    const Attention kv = as_keys(a);
    const HeadTile at = head_tile_of(a, (a.t + TILE - 1) / TILE, true);
    const int first = at.tile * TILE;
    const int64_t column = (int64_t)at.head * a.d;
    const int64_t key = at.row * a.s * a.kc + (int64_t)(at.head / a.group) * a.d;
    const float *qs = a.q + at.row * a.t * a.c + column, *ks = a.k + key, *vs = a.v + key;
    const Keys visible = keys_of_row(a.keys, a.lengths, at.row);
    const int key_end = min(visible.count, first + visible.ahead + TILE);
    const int begin = max(first + visible.ahead + 1 - a.window, 0) / TILE * TILE;
    float o[R][N] = {}, max[R] = {}, sum[R] = {};
    for (int j0 = begin; j0 < key_end; j0 += TILE) {
        const int keys = min(key_end - j0, (int)TILE);
        float x[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            if (j0 == begin || a.d > WIDTH)
                fetch_tile<R, WIDTH, MIXED>(q, qs, a, first, a.t, e0);
            fetch_tile<R, WIDTH, MIXED>(k, ks, kv, j0 % a.s, j0 % a.s + keys, e0);
            if (e0 == 0 && a.out)
                fetch_tile<R, WIDTH, MIXED>(v, vs, kv, j0 % a.s, j0 % a.s + keys, at.slice * WIDTH);
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
        }
        __syncthreads();
        const int ahead = first + at_position(a.keys).ahead - j0;
        if (a.cap > 0.0f)
            cap_scores<R>(x, a, p);
        UNROLLED(r, R)
        {
            const int i = ty + STEP * r, end = i + 1 + ahead;
            const int2 seen = make_int2((end > 0 ? end : 0) - a.window, min(keys, end));
            const float *mask = R == 4 ? mask_row(a, at.row, at.head, first + i, j0) : NULL;
            const float factor = online_row(x[r], a, mask, seen, j0 == begin, &max[r], &sum[r]);
            UNROLLED(n, N)
            if (j0 > begin)
                o[r][n] = MIXED ? gckpti_flush_to_zero(o[r][n] * factor) : o[r][n] * factor;
        }
        store_scores<R, MIXED>(p, x);
        __syncwarp(); /* each warp reads only rows of p that it wrote */
        if (a.out)
            sum_over_keys<R, N, MIXED>(o, p, v, keys, ahead, a.window);
    }
    UNROLLED(r, R)
    {
        const int row = first + ty + STEP * r;
        gckpti_softmax_end(&max[r], &sum[r]);
        if (a.saved && at.slice == 0 && tx == 0 && row < a.t)
            a.saved[(at.row * a.heads + at.head) * a.t + row] = max[r] + gckpti_log(sum[r]);
        UNROLLED(n, N)
        o[r][n] /= sum[r];
    }
    if (a.out)
        store_rows<R, N, STEP>(o, a.out + at.row * a.t * a.c + column, a, first + ty, a.t,
                               at.slice * WIDTH);
}

/* Computes delta = dot(g, out) over a head's d columns; a warp has a query of a head. */
__device__ void attention_delta_of(int64_t r, Values g, Values out, float *delta, int64_t t,
                                   int heads, int d, int64_t c)
{
    int64_t head = r / t % heads, row = r / t / heads, at = (row * t + r % t) * c + head * d;
    const float dot = lanes_sum(d, [&](float lane, int64_t e) {
        return gckpti_fma(value_at(g, at + e), value_at(out, at + e), lane);
    });
    if (threadIdx.x % 32 == 0)
        delta[r] = dot;
}

/* With a cap: y = (y - delta) * derivative of the cap at x; y: gradients of probabilities. */
template <int R>
__device__ void cap_gradients(float (&y)[R][4], const float (&x)[R][4], const Attention &a,
                              int64_t of_head, int first)
{
    UNROLLED(r, R)
    {
        const int row = first + TILE / R * r;
        const float delta = row < a.t ? a.delta[of_head + row] : 0.0f;
        UNROLLED(c, 4)
        y[r][c] = (y[r][c] - delta) * gckpti_softcap_deriv(x[r][c], 1.0f / a.cap);
    }
}

/* Multiplies scores x of a row's head by their factor and adds the mask, one by one, in `scratch`,
 * as cap_scores does. */
template <int R>
__device__ void mask_scores(float (&x)[R][4], const Attention &a, int64_t of_head, int2 first,
                            float *scratch)
{
    const int plane = (int)(of_head / a.t);
    store_scores<R, false>(scratch, x);
    first.y += (int)threadIdx.x % 16;
    scratch += threadIdx.x / 16 * SCORES + threadIdx.x % 16;
#pragma unroll 1
    for (int i = 0; i < 4 * R; i++) {
        const int row = first.x + TILE / R * (i / 4), key = first.y + 16 * (i % 4);
        float *s = scratch + TILE / R * (i / 4) * SCORES + 16 * (i % 4);
        *s = gckpti_mul(*s, a.after);
        if (row < a.t && key < a.s)
            *s += *mask_row(a, plane / a.heads, plane % a.heads, row, key);
    }
    UNROLLED(r, R) UNROLLED(c, 4) x[r][c] = scratch[TILE / R * r * SCORES + 16 * c];
}

/* Turns scores x into probabilities from query first.x on, of keys from first.y on. With a cap,
 * converts y, too. */
template <int R>
__device__ void probabilities(float (&x)[R][4], float (&y)[R][4], const Attention &a,
                              int64_t of_head, int2 first, float *scratch)
{
    if (a.cap > 0.0f) {
        cap_scores<R>(x, a, scratch);
        cap_gradients<R>(y, x, a, of_head, first.x);
    }
    if (R == 4 && a.mask.x)
        mask_scores<R>(x, a, of_head, first, scratch);
    else
        UNROLLED(r, R) UNROLLED(c, 4) x[r][c] = gckpti_mul(x[r][c], a.after);
    UNROLLED(r, R)
    {
        const int row = first.x + TILE / R * r;
        const float lse = row < a.t ? a.saved[of_head + row] : 0.0f;
        UNROLLED(c, 4)
        x[r][c] = gckpti_exp(x[r][c] - lse);
    }
}

/* Turns y, gradients of the probabilities p, into ds, the gradients of scores. */
template <int R>
__device__ void score_gradients(float (&y)[R][4], const float (&p)[R][4], const Attention &a,
                                int64_t of_head, int first)
{
    UNROLLED(r, R)
    {
        const int row = first + TILE / R * r;
        const float delta = row < a.t && !(a.cap > 0.0f) ? a.delta[of_head + row] : 0.0f;
        UNROLLED(c, 4)
        y[r][c] = p[r][c] * (y[r][c] - delta) * a.scale;
    }
}

/* Loads a tile of q and one of g. */
template <int R, int WIDTH, bool MIXED>
__device__ void fetch_queries(float *q, float *g, const Attention &a, int64_t at, int first, int e0)
{
    fetch_tile<R, WIDTH, MIXED>(q, a.q + at, a, first, a.t, e0);
    fetch_tile<R, WIDTH, MIXED>(g, a.g + at, a, first, a.t, e0);
}

/* Computes dq of 64 queries by chains over ascending keys; ds overwrites v. No key: dq is kept. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 3 : 1) attention_dq_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, STEP = TILE / R;
    DYNAMIC_SHARED(float4, scratch);
    float *q = (float *)scratch, *k = q + TILE * ROW, *g = k + TILE * ROW, *v = g + TILE * ROW;
    float *ds = v;
    const int ty = (int)threadIdx.x / 16;
    const Attention kv = as_keys(a);
    const HeadTile at = head_tile_of(a, (a.t + TILE - 1) / TILE, true);
    const int first = at.tile * TILE;
    const int64_t queries = at.row * a.t * a.c + (int64_t)at.head * a.d;
    const int64_t keys = at.row * a.s * a.kc + (int64_t)(at.head / a.group) * a.d;
    const Keys visible = keys_of_row(a.keys, a.lengths, at.row);
    const int ahead = first + visible.ahead, key_end = min(visible.count, ahead + TILE);
    const int64_t of_head = (at.row * a.heads + at.head) * a.t;
    const int begin = max(ahead + 1 - a.window, 0) / TILE * TILE;
    float o[R][N];
    init_rows<R, N, STEP, MIXED>(o, a.dq + queries, a, first + ty, a.t, at.slice * WIDTH,
                                 a.accumulate[0]);
    for (int j0 = begin; j0 < key_end; j0 += TILE) {
        float x[R][4] = {}, y[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            if (j0 == begin || a.d > WIDTH)
                fetch_queries<R, WIDTH, MIXED>(q, g, a, queries, first, e0);
            fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, kv, j0, key_end, e0);
            fetch_tile<R, WIDTH, MIXED>(v, a.v + keys, kv, j0, key_end, e0);
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
            dots<R, WIDTH, MIXED>(y, g, v, a.d - e0);
        }
        __syncthreads();
        probabilities<R>(x, y, a, of_head, make_int2(first + ty, j0), ds);
        if (a.d > WIDTH)
            fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, kv, j0, key_end, at.slice * WIDTH);
        score_gradients<R>(y, x, a, of_head, first + ty);
        store_scores<R, MIXED>(ds, y);
        __syncthreads();
        sum_over_keys<R, N, MIXED>(o, ds, k, min(key_end - j0, (int)TILE), ahead - j0, a.window);
    }
    store_rows<R, N, STEP>(o, a.dq + queries, a, first + ty,
                           key_end > begin || !a.accumulate[0] ? a.t : 0, at.slice * WIDTH);
}

/* Sets rows of o to 0 whose keys no query may see. If MIXED, rows of keys before all windows become
 * x + 0 instead, where x has the gradients that they add to (if not NULL): subnormal x stays. */
template <int R, int N, bool MIXED>
__device__ void clear_masked(float (&o)[R][N], const float *x, const Attention &a, int first,
                             Keys visible, int e0)
{
    UNROLLED(r, R) UNROLLED(n, N)
    {
        const int e = e0 + column_of(n), row = first + r;
        o[r][n] = row < visible.count ? o[r][n] : 0.0f;
        if (MIXED && x && row < visible.ahead + 1 - a.window && e < a.d)
            o[r][n] = x[row * a.c + e] + 0.0f;
    }
}

/* Computes dk and dv of 64 keys by chains over ascending queries, one head after the other. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 2 : 1) attention_dk_kernel(Attention a)
{
    constexpr int N = WIDTH / 16, ROW = WIDTH + 4, LONG = TILE * ROW;
    DYNAMIC_SHARED(float4, scratch);
    float *q = (float *)scratch, *k = q + LONG, *g = k + LONG, *v = g + LONG, *scores = v + LONG;
    const Attention kv = as_keys(a);
    const HeadTile at = head_tile_of(kv, (a.s + TILE - 1) / TILE, false);
    const int first = at.tile * TILE, slice = at.slice * WIDTH;
    const int ty = (int)threadIdx.x / 16, first_row = first + R * ty; /* first row of the thread */
    const int64_t keys = at.row * a.s * a.kc + (int64_t)at.head * a.d;
    const Keys visible = keys_of_row(a.keys, a.lengths, at.row);
    float dk[R][N], dv[R][N];
    float *const to_k = a.dk ? a.dk + keys : NULL, *const to_v = a.dv ? a.dv + keys : NULL;
    init_rows<R, N, 1, MIXED>(dk, to_k, kv, first_row, a.s, slice, a.accumulate[1]);
    init_rows<R, N, 1, MIXED>(dv, to_v, kv, first_row, a.s, slice, a.accumulate[2]);
    const int begin = max(first - visible.ahead, 0) / TILE * TILE; /* first query that sees one */
    const int end = (int)gckpti_min(a.t, (int64_t)first + TILE - 1 - visible.ahead + a.window);
    const int tiles = first < visible.count ? (max(end - begin, 0) + TILE - 1) / TILE : 0;
    for (int step = 0; step < tiles * a.group; step++) {
        const int i0 = begin + step % tiles * TILE, head = at.head * a.group + step / tiles;
        const int n = min(a.t - i0, (int)TILE), ahead = i0 + visible.ahead - first;
        const int64_t queries = at.row * a.t * a.c + (int64_t)head * a.d;
        const int64_t of_head = (at.row * a.heads + head) * a.t;
        float x[R][4] = {}, y[R][4] = {};
        for (int e0 = 0; e0 < a.d; e0 += WIDTH) {
            __syncthreads();
            fetch_queries<R, WIDTH, MIXED>(q, g, a, queries, i0, e0);
            if (step == 0 || a.d > WIDTH) {
                fetch_tile<R, WIDTH, MIXED>(k, a.k + keys, kv, first, visible.count, e0);
                fetch_tile<R, WIDTH, MIXED>(v, a.v + keys, kv, first, visible.count, e0);
            }
            __syncthreads();
            dots<R, WIDTH, MIXED>(x, q, k, a.d - e0);
            if (a.dk)
                dots<R, WIDTH, MIXED>(y, g, v, a.d - e0);
        }
        probabilities<R>(x, y, a, of_head, make_int2(i0 + ty, first), scores);
        if (a.d > WIDTH) {
            __syncthreads();
            fetch_queries<R, WIDTH, MIXED>(q, g, a, queries, i0, slice);
        }
        store_scores<R, MIXED>(scores, x);
        __syncthreads();
        if (a.dv)
            sum_over_queries<R, N, MIXED>(dv, scores, g, n, ahead, a.window);
        if (!a.dk)
            continue;
        __syncthreads();
        score_gradients<R>(y, x, a, of_head, i0 + ty);
        store_scores<R, MIXED>(scores, y);
        __syncthreads();
        sum_over_queries<R, N, MIXED>(dk, scores, q, n, ahead, a.window);
    }
    const int attended = tiles ? visible.count : 0;
    clear_masked<R, N, MIXED>(dk, a.accumulate[1] ? to_k : NULL, kv, first_row, visible, slice);
    clear_masked<R, N, MIXED>(dv, a.accumulate[2] ? to_v : NULL, kv, first_row, visible, slice);
    if (a.dk)
        store_rows<R, N, 1>(dk, to_k, kv, first_row, a.accumulate[1] ? attended : a.s, slice);
    if (a.dv)
        store_rows<R, N, 1>(dv, to_v, kv, first_row, a.accumulate[2] ? attended : a.s, slice);
}

/* Adds the term p (dp - delta) of a score of query i and key j, of which `mask` is a part. head 0
 * is that of row 0. */
__device__ void mask_term(const Attention &a, int64_t head, int64_t i, int64_t j, float mask,
                          float *sum)
{
    const int64_t b = head / a.heads, h = head % a.heads, lse = head * a.t + i;
    const int64_t query = (b * a.t + i) * a.c + h * a.d;
    const int64_t key = (b * a.s + j) * a.kc + h / a.group * a.d;
    float s = 0.0f, dp = 0.0f;
    for (int e = 0; e < a.d; e++) {
        s = gckpti_fma(a.q[query + e], a.k[key + e], s);
        dp = gckpti_fma(a.g[query + e], a.v[key + e], dp);
    }
    s = gckpti_mul(a.cap > 0.0f ? gckpti_softcap(s, a.times, a.cap) : s, a.after) + mask;
    *sum = gckpti_fma(gckpti_exp(s - a.saved[lse]), dp - a.delta[lse], *sum);
}

/* Computes the mask's gradient: a thread has an element, and adds the terms of the scores that it
 * is added to, in the order of gckpti_mask_tile. n: the mask's sizes; all: those of the scores. */
struct MaskAxes {
    int64_t n[4], all[4];
    int accumulate;
};
__global__ void __launch_bounds__(256) mask_gradient_kernel(Attention a, MaskAxes m)
{
    for (EACH(e, m.n[0] * m.n[1] * m.n[2] * m.n[3])) {
        const int64_t at[4] = { e / m.n[3] / m.n[2] / m.n[1], e / m.n[3] / m.n[2] % m.n[1],
                                e / m.n[3] % m.n[2], e % m.n[3] };
        const int64_t end_i = m.n[2] > 1 ? at[2] + 1 : a.t, end_j = m.n[3] > 1 ? at[3] + 1 : a.s;
        float sum = m.accumulate ? a.dmask[e] : 0.0f;
        for (int64_t b = at[0]; b < m.all[0]; b += m.n[0])
            for (int64_t h = at[1]; h < a.heads; h += m.n[1])
                for (int64_t i0 = at[2]; i0 < end_i; i0 += TILE)
                    for (int64_t j0 = at[3]; j0 < end_j; j0 += TILE)
                        for (int64_t i = i0; i < gckpti_min(i0 + TILE, end_i); i++)
                            for (int64_t j = j0; j < gckpti_min(j0 + TILE, end_j); j++)
                                mask_term(a, b * a.heads + h, i, j, a.mask.x[e], &sum);
        a.dmask[e] = sum;
    }
}

/* Launches a block for each 64 of `rows` queries or keys of each head, with shared memory for
 * `tiles` tiles of WIDTH columns and `more` floats. */
template <int R, int WIDTH, auto KERNEL>
void run_tiles(const gckpt_call *call, Attention a, int rows, int heads, int tiles, int more = 0)
{
    a.slices = (a.d + WIDTH - 1) / WIDTH;
    const int64_t blocks = call->shape.d[0] * ((rows + TILE - 1) / TILE) * heads * a.slices;
    run<KERNEL>(call, dim3((unsigned)blocks), 16 * TILE / R,
                (int)sizeof(float) * (TILE * (WIDTH + 4) * tiles + more), a);
}

/* In bf16 plans dk and dv take 64 columns at a time: registers are few. With a mask, R is 4. */
template <int R, int WIDTH, bool MIXED> void attention_run(const gckpt_call *call, Attention a)
{
    constexpr int OF_KEYS = MIXED ? 64 : WIDTH;
    if (!a.g)
        run_tiles<R, WIDTH, attention_forward_kernel<R, WIDTH, MIXED>>(call, a, a.t, a.heads, 3);
    if (a.g && a.dq)
        run_tiles<R, WIDTH, attention_dq_kernel<R, WIDTH, MIXED>>(call, a, a.t, a.heads, 4);
    if (a.g && (a.dk || a.dv))
        run_tiles<R, OF_KEYS, attention_dk_kernel<R, OF_KEYS, MIXED>>(
            call, a, a.s, a.heads / a.group, 4, TILE * SCORES);
}

void mask_gradient(const gckpt_call *call, const Attention &a)
{
    const gckpt_arg &mask = call->in[3];
    MaskAxes m = { { 1, 1, 1, 1 }, { call->shape.d[0], a.heads, a.t, a.s }, mask.accumulate };
    for (int k = 1; k <= mask.shape.n; k++)
        m.n[4 - k] = mask.shape.d[mask.shape.n - k];
    run_each<mask_gradient_kernel>(call, gckpti_elements(&mask.shape), a, m);
}

void attention_by(const gckpt_call *call, bool)
{
    const gckpti_attn h = gckpti_attn_of(call);
    const gckpt_arg *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    Attention a = { heads_of(call), q->data, k->data, v->data, call->grad_out, call->out };
    a.delta = (const float *)call->workspace, a.keys = keys_of(call);
    a.c = h.c, a.kc = h.kv_c, a.window = (int)gckpti_min(h.window, INT32_MAX);
    a.cap = h.cap, a.times = h.cap > 0.0f ? h.dot_scale : 0.0f;
    a.after = gckpti_attn_post_scale(&h);
    if (a.g)
        a.dq = q->grad, a.dk = k->grad, a.dv = v->grad;
    a.mask = h.mask, a.dmask = a.g && a.mask.x ? call->in[3].grad : NULL;
    a.aligned = a.d % 4 == 0 && aligned(a.q, a.k, a.v, a.g, a.out, a.dq, a.dk, a.dv);
    const int64_t queries = call->shape.d[0] * a.heads * a.t;
    if (a.dq || a.dk || a.dmask)
        for_each_row<attention_delta_of>(call, queries, grad_out_of(call), value_out_of(call),
                                         (float *)call->workspace, (int64_t)a.t, a.heads, a.d, a.c);
    const bool mixed = call->precision != GCKPT_FP32;
    const int wide = (int)sizeof(float) * (4 * TILE * (128 + 4) + TILE * SCORES);
    /* where a block has 99 KiB of shared memory, heads are split into 64 columns */
    if (a.d <= 64 || wide > attribute_of(call, cudaDevAttrMaxSharedMemoryPerBlockOptin))
        mixed      ? attention_run<4, 64, true>(call, a)
        : a.mask.x ? attention_run<4, 64, false>(call, a)
                   : attention_run<8, 64, false>(call, a);
    else
        mixed ? attention_run<4, 128, true>(call, a) : attention_run<4, 128, false>(call, a);
    if (a.dmask)
        mask_gradient(call, a);
}

void masked_attention_by(const gckpt_call *call, bool backward)
{
    gckpt_call f32 = *call; /* as one of attention, whose input 3 would be lengths */
    f32.precision = GCKPT_FP32, f32.inputs = 3;
    attention_by(&f32, backward);
}

/* Backward: delta, a float for each query of each head. */
int64_t attention_workspace(const gckpt_call *call, bool backward)
{
    return backward ? (int64_t)(call->saved_bytes / sizeof(float)) : 0;
}

/* ---- >>fast ----------------------------------------------------------------------------------
 * Kernels of GCKPT_BF16_FAST (gradckpt.h, manual, 5m), for sm_80 and newer; -arch names one of
 * these. Products use only the instruction mma.m16n8k16: bf16 operands, binary32 sums. Sums over
 * tokens are computed in groups of TOKENS, one group after the other, starting at the accumulator.
 * So the bits do not depend on tiles, nor on where a batch is divided between groups. */
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

/* Packs two operands for an mma into a word, the first in the lower half. Keeps subnormals. */
__device__ inline uint32_t bf16_pair(float first, float second)
{
#ifdef GCKPT_CUDA_SHIM
    return gckpti_to_bf16(first) | (uint32_t)gckpti_to_bf16(second) << 16;
#else
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
#endif
}

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* gelu: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), 2 u = x (C1 + C3 x^2). This takes a sixth of the
 * exact kernel's instructions. */
#define C1 1.59576912f   /* 2 sqrt(2/pi) */
#define C3 0.0713548163f /* 0.044715 C1 */
__device__ inline float gelu_gate(float x)
{
    return inverse_of(1.0f + exp2_of(x * gckpti_fma(x * x, -C3 * LOG2E, -C1 * LOG2E)));
}
__device__ inline float gelu_of(float x) { return x * gelu_gate(x); }
__device__ inline float gelu_deriv_of(float x)
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

/* >>fast/epilogue */
/* ---- products: c (m,n) = a (m,k) b (k,n), added to the bias, to c's old value, or to 0 ---- Lines
 * of a matrix are contiguous: along k (rows of a, columns of b) or across k (columns of a, rows of
 * b: a line for each term). */

/* What the product stores: c (STORE), or for losses of rows: the maximum and the sum of
 * exponentials of each row's 64 columns, and the target's logit (ROW_STATS); or gradients of
 * logits, computed from saved and loss_scale (GRADIENTS). */
enum Epilogue { STORE, ROW_STATS, GRADIENTS };
struct RowLoss;
struct Loss {
    const int32_t *target;
    int first;        /* class of column 0 */
    float *parts;     /* (columns / 64, rows, 2) */
    RowLoss *state;   /* (rows) */
    const float *saved; /* (rows,2): max, log(sum) */
    const StepParams *params;
};
/* An elementwise op fused with the product. It is applied to c as stored (rounded), so that its
 * bits are those of the separate op. c is also written, unless the op's result replaces it. */
enum FusedOp { NO_OP, GELU, GELU_GRAD, PLUS };
struct Fusion {
    FusedOp op;
    uint16_t *out;
    Matrix<uint16_t> other; /* the op's other operand */
};
struct MmaProduct {
    int m, n, k;
    Matrix<uint16_t> a, b;
    Values bias;
    int accumulate;
    Results c;
    int c_row; /* elements from row to row of c */
    bool aligned; /* elements can be written 2 or 8 at a time */
    Loss loss;
    Fusion fusion;
};

MmaProduct mma_of(int64_t m, int64_t n, int64_t k, Matrix<uint16_t> a, Matrix<uint16_t> b,
                  const Values &bias, int accumulate, const Results &c)
{
    return { (int)m, (int)n, (int)k, a, b, bias, accumulate, c, (int)n, n % 2 == 0 && aligned(c),
             {},     {} };
}

enum { BK = 32 }; /* terms of a stage in shared memory */

/* Initialises a thread's elements: with c's old value, the bias, or 0. Code that runs once for each
 * tile is short, since its instructions come from the L2. */
template <int DOWN, int ACROSS>
__device__ inline void mma_start(const MmaProduct &p, bool whole, int i, int j,
                                 float (&c)[DOWN][ACROSS][4])
{
    const bool bias = !p.accumulate && (p.bias.f32 || p.bias.bf16);
    UNROLLED(e, 2 * ACROSS) {
        const int column = j + e / 2 * 8 + e % 2;
        const float first = bias && column < p.n ? value_at(p.bias, column) : 0.0f;
        UNROLLED(y, 2 * DOWN) c[y / 2][e / 2][y % 2 * 2 + e % 2] = first;
    }
    UNROLL for (int y = 0; y < 2 * DOWN && p.accumulate; y++)
    {
        const int64_t at = (int64_t)(i + y * 8) * p.c_row + j;
        UNROLL for (int x = 0; x < ACROSS && whole; x++)
        {
            const Vec<float, 2> pair = load<2>(p.c, at + x * 8);
            c[y / 2][x][y % 2 * 2] = pair.v[0], c[y / 2][x][y % 2 * 2 + 1] = pair.v[1];
        }
        const int left = i + y * 8 < p.m ? p.n - j : 0;
        UNROLL for (int e = 0; e < 2 * ACROSS && !whole; e++) if (e / 2 * 8 + e % 2 < left)
            c[y / 2][e / 2][y % 2 * 2 + e % 2] = value_at(p.c, at + e / 2 * 8 + e % 2);
    }
}

/* A row's maximum, sum of exponentials and target's logit, over the classes so far. */
struct RowLoss {
    float max, sum, logit;
};

/* Writes ROW_STATS of row i for this warp's columns, which merge_loss_row merges. This lane has
 * columns j, j+1, j+8, j+9, .. (c[x][which], c[x][which + 1]), three other lanes the rest. */
template <int across>
__device__ inline void finish_row_stats(const MmaProduct &p, int i, int j, const float c[across][4],
                                   int which)
{
    int at = i < p.m ? p.loss.target[i] - p.loss.first : -1, group = j / (8 * across);
    float top = -INFINITY, sum = 0.0f;
    UNROLLED(x, 2 * across) {
        int column = j + x / 2 * 8 + x % 2;
        float v = c[x / 2][which + x % 2];
        top = column < p.n && v > top ? v : top;
        if (column == at && column < p.n)
            p.loss.state[i].logit = v;
    }
    top = row_max(top, 2);
    float shift = gckpti_shift(top);
    UNROLLED(x, 2 * across)
        if (j + x / 2 * 8 + x % 2 < p.n)
            sum += exp2_of((c[x / 2][which + x % 2] - shift) * LOG2E);
    for (int with = 1; with < 4; with *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, with);
    if (i < p.m && j % 8 == 0) {
        float *part = p.loss.parts + 2 * ((int64_t)group * p.m + i);
        part[0] = top, part[1] = sum;
    }
}

/* Converts such elements (logits) to gradients. */
template <int across>
__device__ inline void finish_gradients(const MmaProduct &p, int i, int j, float c[across][4],
                                     int which)
{
    int target = i < p.m ? p.loss.target[i] : -1, at = target - p.loss.first;
    float max = target < 0 ? 0.0f : p.loss.saved[2 * i];
    float log_sum = target < 0 ? 0.0f : p.loss.saved[2 * i + 1], scale = p.loss.params->loss_scale;
    UNROLLED(x, 2 * across) {
        float *v = &c[x / 2][which + x % 2];
        float grad = exp2_of(((*v - max) - log_sum) * LOG2E);
        grad = j + x / 2 * 8 + x % 2 == at ? grad - 1.0f : grad;
        *v = target < 0 ? 0.0f : grad * scale;
    }
}

/* Positions of a block's tile, of the warp's quarter in it, and of this thread's elements in c. */
template <int size> struct MmaCoords {
    int i0, j0, row, column, i, j;
    __device__ MmaCoords(const MmaProduct &p, int block, int thread)
    {
        int across = (p.n + size - 1) / size, lane = thread % 32, warp = thread / 32;
        i0 = block / across * size, j0 = block % across * size;
        row = warp / 2 * (size / 2), column = warp % 2 * (size / 2);
        i = i0 + row + lane / 4, j = j0 + column + lane % 4 * 2;
    }
};

template <FusedOp op> __device__ inline float fused_value(float v, float other)
{
    return op == GELU ? gelu_of(v) : op == GELU_GRAD ? v * gelu_deriv_of(other) : v + other;
}

/* Writes a tile of bf16 in runs of 8, four runs at once if all elements exist (WHOLE). The tile of
 * `other` follows it in shared memory. */
template <int size, bool WHOLE, FusedOp op>
__device__ inline void mma_write(const MmaProduct &p, int i0, int j0, const uint16_t *tile)
{
    enum { CHUNKS = size / 8, STEP = 128 / CHUNKS, ONCE = WHOLE ? 4 : 1 };
    const int chunk = (int)threadIdx.x % CHUNKS, j = j0 + chunk * 8, left = p.n - j;
    const auto put = [&](uint16_t *to, int k, const Vec<uint32_t, 4> &vec) {
        to += (int64_t)(i0 + k) * p.c_row + j;
        if (WHOLE)
            store((uint32_t *)(void *)to, vec);
        UNROLLED(e, 8) if (!WHOLE && e < left) to[e] =
            (uint16_t)(vec.v[e / 2] >> e % 2 * 16);
    };
#pragma unroll 1
    for (int k = (int)threadIdx.x / CHUNKS; k < size && i0 + k < p.m; k += ONCE * STEP) {
        Vec<uint32_t, 4> vec[ONCE], other[ONCE];
        UNROLLED(q, ONCE) {
            const int at = Swizzled<size>::at(k + q * STEP, chunk);
            vec[q] = load<4>((const uint32_t *)(const void *)(tile + at));
            if (op > GELU)
                other[q] = load<4>((const uint32_t *)(const void *)(tile + size * size + at));
        }
        if (p.c.bf16 != p.fusion.out)
            UNROLLED(q, ONCE) put(p.c.bf16, k + q * STEP, vec[q]);
        UNROLL for (int q = 0; q < ONCE && op != NO_OP; q++)
        {
            UNROLLED(e, 4) {
                const uint32_t v = vec[q].v[e], u = op > GELU ? other[q].v[e] : 0,
                               high = 0xffff0000u;
                vec[q].v[e] = gckpti_to_bf16_pair(
                    fused_value<op>(gckpti_float(v << 16), gckpti_float(u << 16)),
                    fused_value<op>(gckpti_float(v & high), gckpti_float(u & high)));
            }
            put(p.fusion.out, k + q * STEP, vec[q]);
        }
    }
}

template <int size, bool WHOLE>
__device__ inline void mma_write_fused(const MmaProduct &p, int i0, int j0, const uint16_t *tile)
{
    switch (p.fusion.op) {
    case NO_OP: return mma_write<size, WHOLE, NO_OP>(p, i0, j0, tile);
    case GELU: return mma_write<size, WHOLE, GELU>(p, i0, j0, tile);
    case GELU_GRAD: return mma_write<size, WHOLE, GELU_GRAD>(p, i0, j0, tile);
    default: return mma_write<size, WHOLE, PLUS>(p, i0, j0, tile);
    }
}

/* Stores a thread's elements; bf16 goes through `tiles`, the operands' shared memory. */
template <int size, Epilogue epilogue, int DOWN, int ACROSS>
__device__ inline void mma_epilogue(const MmaProduct &p, float (&c)[DOWN][ACROSS][4],
                                    uint16_t *tiles)
{
    static_assert(size <= STAGES * BK, "room for two tiles of c");
    const MmaCoords<size> at(p, gckpti_block_index(), gckpti_thread_index());
    const bool writes_bf16 = epilogue != ROW_STATS && p.c.bf16,
               whole = p.aligned && at.i0 + size <= p.m && at.j0 + size <= p.n;
    if (writes_bf16) {
        __syncthreads(); /* all operands have been read */
        if (p.fusion.op > GELU)
            stage_tile<size, size, 128, Swizzled<size>, false>(p.fusion.other, at.i0, p.m, at.j0,
                                                               p.n, tiles + size * size);
    }
    UNROLLED(y, 2 * DOWN) {
        if (epilogue == ROW_STATS)
            finish_row_stats<ACROSS>(p, at.i + y * 8, at.j, c[y / 2], y % 2 * 2);
        else if (epilogue == GRADIENTS)
            finish_gradients<ACROSS>(p, at.i + y * 8, at.j, c[y / 2], y % 2 * 2);
    }
    if (writes_bf16) {
        UNROLLED(x, ACROSS) {
            uint16_t *to = tiles + at.j % 8 +
                           Swizzled<size>::at(at.i - at.i0, (at.j - at.j0) / 8 + x);
            UNROLLED(y, 2 * DOWN) /* chunks repeat after 8 lines */
                *(uint32_t *)(void *)(to + y * 8 * size) =
                    gckpti_to_bf16_pair(c[y / 2][x][y % 2 * 2], c[y / 2][x][y % 2 * 2 + 1]);
        }
        gckpti_cp_async_commit();
        gckpti_cp_async_wait<0>();
        __syncthreads();
        if (whole && p.c_row % 8 == 0)
            mma_write_fused<size, true>(p, at.i0, at.j0, tiles);
        else
            mma_write_fused<size, false>(p, at.i0, at.j0, tiles);
    } else if (epilogue != ROW_STATS) {
        UNROLLED(y, 2 * DOWN) {
            float *to = p.c.f32 + (int64_t)(at.i + y * 8) * p.c_row + at.j;
            const int left = at.i + y * 8 < p.m ? p.n - at.j : 0;
            UNROLL for (int x = 0; x < ACROSS && whole; x++)
                store(to + x * 8, load<2>(c[y / 2][x] + y % 2 * 2));
            UNROLL for (int e = 0; e < 2 * ACROSS && !whole; e++) if (e / 2 * 8 + e % 2 < left)
                to[e / 2 * 8 + e % 2] = c[y / 2][e / 2][y % 2 * 2 + e % 2];
        }
    }
}

/* >>fast/products */
/* ---- the terms of a product, and the choice and order of launches ---- */
/* Copies BK terms of `size` rows or columns of x: `size` lines if along is 1, else BK lines. WHOLE:
 * all of them exist and begin at multiples of 16 bytes. */
template <bool WHOLE, int size, int along>
__device__ __forceinline__ void stage_terms(const Matrix<uint16_t> &x, int start, int end,
                                            int first, int k, uint16_t *tile)
{
    enum { COUNT = along ? size : BK, LENGTH = along ? BK : size };
    const int line = along ? start : first, at = along ? first : start;
    if (WHOLE)
        stage_full<COUNT, LENGTH, 128, Swizzled<LENGTH>>(x.x + line * x.stride + at, x.stride,
                                                         tile);
    else
        stage_tile<COUNT, LENGTH, 128, Swizzled<LENGTH>, false>(x, line, along ? end : k, at,
                                                                along ? k : end, tile);
}

/* Reads a warp's mma operands from a tile with lines of LINE elements: rows of a or (B) columns of
 * b, 16 from `line` on. `at`: where this thread begins. 16 terms or lines later is an addition or,
 * along a line of the tile, whose chunks are permuted, an exclusive or. */
template <int LINE, int along, bool B> struct Reader {
    int at;
    __device__ explicit Reader(int line)
    {
        int lane = threadIdx.x % 32, low = lane % 8, high = lane / 16, mid = lane / 8 % 2;
        if (along)
            at = Swizzled<LINE>::at(line + (B ? high : mid) * 8 + low, B ? mid : high);
        else
            at = Swizzled<LINE>::at((B ? mid : high) * 8 + low, line / 8 + (B ? high : mid));
    }
    /* Reads 16 terms from `term` on of 16 rows or columns that begin `line` further on. */
    __device__ void operator()(uint32_t x[4], const uint16_t *tile, int line, int term) const
    {
        if (along)
            gckpti_ldmatrix_x4(x, tile + (at ^ term) + line * LINE);
        else
            gckpti_ldmatrix_x4_trans(x, tile + (at ^ line) + term * LINE);
    }
};

/* A warp's operands for 16 terms: rows of a and columns of b. */
template <int DOWN, int ACROSS> struct Fragments {
    uint32_t a[DOWN][4], b[ACROSS / 2][4];
    template <class A, class B>
    __device__ __forceinline__ void load(const A &read_a, const B &read_b, const uint16_t *a_tile,
                                         const uint16_t *b_tile, int term)
    {
        UNROLLED(y, DOWN) read_a(a[y], a_tile, y * 16, term);
        UNROLL for (int x = 0; x < ACROSS; x += 2) read_b(b[x / 2], b_tile, x * 8, term);
    }
    __device__ __forceinline__ void multiply(float (&c)[DOWN][ACROSS][4]) const
    {
        UNROLLED(x, ACROSS) {
            UNROLLED(y, DOWN)
                gckpti_mma_bf16(c[y][x], a[y], b[x / 2] + x % 2 * 2);
        }
    }
};

/* Adds all terms to c. Tiles of BK terms are copied STAGES - 1 ahead; while 16 terms are
 * multiplied, the next 16 are read from shared memory. WHOLE: all tiles are complete, and the loop
 * is short, as instructions that it skips would have to come from the L2 again. */
template <bool WHOLE, int size, int a_along, int b_along, int DOWN, int ACROSS>
__device__ __forceinline__ void mma_terms(const MmaProduct &p, const MmaCoords<size> &at,
                                          uint16_t *tiles, float (&c)[DOWN][ACROSS][4])
{
    enum { A_LINE = a_along ? BK : size, B_LINE = b_along ? BK : size, TILE = size * BK };
    const Reader<A_LINE, a_along, false> read_a(at.row);
    const Reader<B_LINE, b_along, true> read_b(at.column);
    Fragments<DOWN, ACROSS> first, second; /* operands of 16 terms each */
    const int steps = (p.k + BK - 1) / BK, whole_steps = p.k / BK, left = p.k % BK;
    const auto issue = [&](int step) {
        uint16_t *to = tiles + step % STAGES * 2 * TILE;
        if (step < steps) {
            stage_terms<WHOLE, size, a_along>(p.a, at.i0, p.m, step * BK, p.k, to);
            stage_terms<WHOLE, size, b_along>(p.b, at.j0, p.n, step * BK, p.k, to + TILE);
        }
        gckpti_cp_async_commit();
    };
    const auto wait_tile = [&](int step) { /* first terms, once all copies are done */
        const uint16_t *from = tiles + step % STAGES * 2 * TILE;
        gckpti_cp_async_wait<STAGES - 2>();
        __syncthreads();
        first.load(read_a, read_b, from, from + TILE, 0);
        return from;
    };
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++)
        issue(s);
    const uint16_t *now = wait_tile(0);
#pragma unroll 1
    for (int s = 0; s < whole_steps; s++) {
        second.load(read_a, read_b, now, now + TILE, 16);
        issue(s + STAGES - 1);
        first.multiply(c);
        now = wait_tile(s + 1);
        second.multiply(c);
    }
    if (!WHOLE && left > 0)
        first.multiply(c);
    if (!WHOLE && left > 16) {
        second.load(read_a, read_b, now, now + TILE, 16);
        second.multiply(c);
    }
}

/* A block of four warps computes size x size elements, each warp a quarter. 16 terms are one mma:
 * an element's sum is a chain of these groups, in order, in one register, for any tile. 128 x 128
 * takes 64 KiB, two blocks per SM; if that leaves SMs idle, tiles are 64 x 64. Adjacent blocks read
 * the same rows of a, which stay in the L2. */
template <int size, int a_along, int b_along, Epilogue epilogue>
__global__ void __launch_bounds__(128, size == 128 ? 2 : 5)
    mma_product_kernel(const __grid_constant__ MmaProduct p)
{
    DYNAMIC_SHARED(uint4, product_tiles);
    uint16_t *tiles = (uint16_t *)product_tiles;
    const MmaCoords<size> at(p, (int)blockIdx.x, (int)threadIdx.x);
    float c[size / 32][size / 16][4];
    const bool whole = at.i0 + size <= p.m && at.j0 + size <= p.n;
    mma_start(p, whole && p.aligned, at.i, at.j, c);
    if (whole && p.a.aligned && p.b.aligned && p.k % BK == 0)
        mma_terms<true, size, a_along, b_along>(p, at, tiles, c);
    else
        mma_terms<false, size, a_along, b_along>(p, at, tiles, c);
    mma_epilogue<size, epilogue>(p, c, tiles);
}

template <int size, int a_along, int b_along, Epilogue epilogue>
void run_mma_tile(const gckpt_call *call, const MmaProduct &p)
{
    int64_t blocks = (int64_t)((p.m + size - 1) / size) * ((p.n + size - 1) / size);
    int bytes = STAGES * 2 * size * BK * (int)sizeof(uint16_t);
    run<mma_product_kernel<size, a_along, b_along, epilogue>>(call, dim3((unsigned)blocks),
                128, bytes, p);
}

/* Returns the number of size x size tiles on the busiest processor. */
int64_t tiles_per_sm(const gckpt_call *call, const MmaProduct &p, int size)
{
    int64_t tiles = (int64_t)((p.m + size - 1) / size) * ((p.n + size - 1) / size);
    return (tiles + sm_count(call) - 1) / sm_count(call);
}

/* Three 64 x 64 tiles take as long as one of 128 x 128 (four: 1.24 to 1.51 times, on an H200). */
template <int a_along, int b_along> void run_mma(const gckpt_call *call, const MmaProduct &p)
{
    if (3 * tiles_per_sm(call, p, 128) <= tiles_per_sm(call, p, 64))
        run_mma_tile<128, a_along, b_along, STORE>(call, p);
    else
        run_mma_tile<64, a_along, b_along, STORE>(call, p);
}

/* Runs a product. a_along, b_along: 1 if the lines of a, b are along k, 0 if across k. */
void mma_product(const gckpt_call *call, const MmaProduct &p, int a_along, int b_along)
{
    if (a_along && b_along)
        run_mma<1, 1>(call, p);
    else if (a_along)
        run_mma<1, 0>(call, p);
    else
        run_mma<0, 0>(call, p);
}

/* ---- each device's pending product: the next op may fuse with it; other calls launch it ---- */
struct DeferredMma {
    MmaProduct p;
    int a_along, b_along;
    const uint16_t
        *overlap_x; /* x of an overlapped product that may still run, as large as c; or NULL */
} deferred_mma[sizeof devices / sizeof *devices];

void mma_defer(const gckpt_call *call, const MmaProduct &p, int a_along, int b_along,
              const uint16_t *overlap_x = NULL)
{
    Device *d = device_of(call);
    launch_pending(d);
    deferred_mma[d->number] = { p, a_along, b_along, overlap_x };
    deferred[d->number].product = [](Device *of) {
        const DeferredMma &l = deferred_mma[of->number];
        gckpt_call bare = {};
        bare.backend = of;
        mma_product(&bare, l.p, l.a_along, l.b_along);
    };
}

/* Launches a product that overlaps the calls until queue_end and a product deferred by then. */
void mma_overlap(const gckpt_call *call, const MmaProduct &p)
{
    Device *d = device_of(call);
    launch_pending(d);
    if (!queue_begin(d, &d->overlap))
        return;
    d->stream = d->overlap.stream;
    mma_product(call, p, 0, 0);
    d->stream = d->main;
}

bool alias(const void *a, int64_t bytes, const void *b, int64_t other_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + (size_t)other_bytes &&
           (uintptr_t)b < (uintptr_t)a + (size_t)bytes;
}

/* Launches the pending product with `op` fused and returns true, if the product's result is `of`,
 * and `out` overlaps neither operands that blocks may still read nor the rest of c. */
bool try_fuse(const gckpt_call *call, FusedOp op, const Values &of, const Values &other,
            const Results &out)
{
    Device *d = device_of(call);
    MmaProduct &p = deferred_mma[d->number].p;
    const int64_t m = p.m, n = p.n, k = p.k, bytes = 2 * m * n;
    if (!deferred[d->number].product || !of.bf16 || of.bf16 != p.c.bf16 || !out.bf16 ||
        bytes != 2 * gckpti_elements(&call->shape) || (op > GELU && !other.bf16) ||
        alias(other.bf16, bytes, of.bf16, bytes) || alias(out.bf16, bytes, p.a.x, 2 * m * k) ||
        alias(out.bf16, bytes, p.b.x, 2 * k * n) || alias(out.bf16, bytes, p.bias.f32, 4 * n) ||
        alias(out.bf16, bytes, p.bias.bf16, 2 * n) ||
        alias(out.bf16, bytes, deferred_mma[d->number].overlap_x, bytes))
        return false;
    for (const uint16_t *x : { of.bf16, other.bf16 })
        if (x != out.bf16 && alias(out.bf16, bytes, x, bytes))
            return false;
    p.fusion = { op, out.bf16, matrix(other.bf16, n) };
    p.aligned = p.aligned && aligned(out);
    launch_pending(d);
    return true;
}

/* >>fast/linear */
/* ---- sums over tokens, for gradients of bias and gain ---- In two stages: all processors sum
 * groups of TOKENS rows; then a column's groups are added one after the other, compensated. */
struct ColSum {
    float *parts; /* (groups,n): sums of groups; or NULL */
    Sum to;
};

/* Sums g and, for a norm (h: normalised x), g h over the rows of a group, for N columns from j on.
 * N > 1 only for bf16, of which AHEAD rows are loaded at a time. */
template <int N, bool NORM>
__device__ inline void group_sums(const Values &g, const Values &x, const float *saved, int center,
                                  int64_t first, int64_t rows, int64_t n, int64_t j, float *sum,
                                  float *gh)
{
    enum { AHEAD = NORM ? 4 : 8 };
#pragma unroll 1
    for (int64_t r = first; r < first + TOKENS; r += AHEAD) {
        Vec<uint16_t, N> u[AHEAD], v[AHEAD];
        UNROLL for (int k = 0; k < AHEAD && N > 1; k++)
        {
            const int64_t at = gckpti_min(r + k, rows - 1) * n + j;
            u[k] = load<N>(g.bf16 + at);
            if (NORM)
                v[k] = load<N>(x.bf16 + at);
        }
        UNROLLED(k, AHEAD) {
            const int64_t row = r + k, at = row * n + j;
            if (row >= rows)
                continue;
            const Normed o = NORM ? normed(saved, row, center) : Normed();
            UNROLLED(e, N) {
                const float a = N > 1 ? gckpti_from_bf16(u[k].v[e]) : value_at(g, at);
                sum[e] += a;
                if (NORM)
                    gh[e] += a * (((N > 1 ? gckpti_from_bf16(v[k].v[e]) : value_at(x, at)) - o.c) *
                                  o.rstd);
            }
        }
    }
}

template <int N>
__global__ void __launch_bounds__(256)
    group_sums_kernel(Values g, int64_t rows, int64_t n, float *parts)
{
    int64_t vecs = n / N, groups = (rows + TOKENS - 1) / TOKENS;
    for (EACH(i, groups * vecs)) {
        int64_t group = i / vecs, j = i % vecs * N;
        float sum[N] = {};
        group_sums<N, false>(g, {}, NULL, 0, group * TOKENS, rows, n, j, sum, NULL);
        write_vec<N>({ parts, NULL }, group * n + j, N, true, sum);
    }
}

/* If a parameter's gradient and its compensation are yet to be filled with zeros, drops these
 * fills: the returned call starts from 0 instead of accumulating. */
gckpt_call drop_zero_fills(const gckpt_call *call)
{
    gckpt_call c = *call;
    for (int i = 1; i < c.inputs; i++) {
        gckpt_arg *arg = &c.in[i];
        int64_t n = gckpti_elements(&arg->shape), unshared = arg->grad != NULL;
        for (int k = 0; k < c.inputs; k++)
            unshared = unshared && (k == i || c.in[k].grad != arg->grad);
        if (unshared && arg->accumulate && take_zero_fill(device_of(call), arg->grad, n))
            arg->accumulate = 0;
        if (unshared && !arg->accumulate)
            take_zero_fill(device_of(call), arg->compensation, n);
    }
    return c;
}

/* Allocates workspace for the sum that is arg's gradient, if that is required. */
ColSum column_of(Workspace &workspace, int64_t rows, int64_t n, const gckpt_arg &arg)
{
    size_t bytes = (size_t)((rows + TOKENS - 1) / TOKENS * n) * sizeof(float);
    return { (float *)bump_alloc(workspace, bytes), sum_of(arg) };
}

/* Adds the sums of groups to one or two gradients; the parts of a or b may be NULL. */
void add_groups(const gckpt_call *call, const ColSum &a, const ColSum &b, int64_t rows, int64_t n)
{
    const RowTerms<true> of = { {}, { a.parts, NULL }, { b.parts, NULL }, n };
    ::column_sums<8>(call, of, a.to, b.to, (rows + TOKENS - 1) / TOKENS, n);
}

void column_sums(const gckpt_call *call, const ColSum &sum, const Values &g, int64_t rows,
                 int64_t n)
{
    int64_t groups = (rows + TOKENS - 1) / TOKENS;
    if (g.bf16 && n % 8 == 0 && aligned(g))
        run_each<group_sums_kernel<8>>(call, groups * n / 8, g, rows, n, sum.parts);
    else
        run_each<group_sums_kernel<1>>(call, groups * n, g, rows, n, sum.parts);
    add_groups(call, sum, {}, rows, n);
}

/* ---- linear: out (rows,n) = x (rows,k) w + bias ---- */
void linear_forward(const gckpt_call *call)
{
    const gckpti_factors s = gckpti_factors_of(call);
    int transposed = *(const int *)call->attributes;
    Workspace workspace = { (char *)call->workspace, 0 };
    const uint16_t *x = operand(call, workspace, value_of(call->in[0]), s.m * s.k);
    const uint16_t *w = operand(call, workspace, value_of(call->in[1]), s.n * s.k);
    mma_defer(call,
             mma_of(s.m, s.n, s.k, matrix(x, s.k), matrix(w, transposed ? s.k : s.n),
                    value_of(call->in[2]), 0, out_of(call)),
             1, transposed);
}

/* dw is launched so that it overlaps with the bias's sums and dx, which also read g, if dw has so
 * few tiles that many processors would be idle at its end. */
void linear_backward(const gckpt_call *original)
{
    const gckpt_call adjusted = drop_zero_fills(original), *call = &adjusted;
    const gckpti_factors s = gckpti_factors_of(call);
    const gckpt_arg *in = call->in;
    int transposed = *(const int *)call->attributes;
    Workspace workspace = { (char *)call->workspace, 0 };
    const Matrix<uint16_t> g = matrix(operand(call, workspace, grad_out_of(call), s.m * s.n), s.n);
    const uint16_t *overlap_x = NULL;
    if (wanted(in[1])) {
        const Matrix<uint16_t> x =
            matrix(operand(call, workspace, value_of(in[0]), s.m * s.k), s.k);
        const MmaProduct dw =
            transposed ? mma_of(s.n, s.k, s.m, g, x, NONE, in[1].accumulate, grad_of(in[1]))
                       : mma_of(s.k, s.n, s.m, x, g, NONE, in[1].accumulate, grad_of(in[1]));
        const bool other = in[0].grad != in[1].grad || in[0].grad_bf16 != in[1].grad_bf16;
        if (other && tiles_per_sm(call, dw, 64) < 8)
            overlap_x = x.x, mma_overlap(call, dw);
        else
            mma_product(call, dw, 0, 0);
    }
    Workspace sums = workspace; /* w reuses this memory after the sums */
    if (call->inputs == 3 && wanted(in[2]))
        column_sums(call, column_of(sums, s.m, s.n, in[2]), grad_out_of(call), s.m, s.n);
    if (wanted(in[0])) {
        const uint16_t *w = operand(call, workspace, value_of(in[1]), s.n * s.k);
        mma_defer(call,
                 mma_of(s.m, s.k, s.n, g, matrix(w, transposed ? s.k : s.n), NONE,
                        in[0].accumulate, grad_of(in[0])),
                 1, !transposed, overlap_x);
    }
    if (overlap_x)
        queue_end(device_of(call), &device_of(call)->overlap);
}

gckpt_result linear_workspace(gckpt_call *call)
{
    const gckpti_factors s = gckpti_factors_of(call);
    Values x = value_of(call->in[0]), w = value_of(call->in[1]), g = grad_out_of(call);
    Workspace forward = { NULL, 0 }, backward = { NULL, 0 };
    operand(call, forward, x, s.m * s.k);
    operand(call, forward, w, s.n * s.k);
    operand(call, backward, g, s.m * s.n);
    operand(call, backward, x, s.m * s.k);
    Workspace sums = backward;
    if (call->inputs == 3)
        column_of(sums, s.m, s.n, call->in[2]);
    operand(call, backward, w, s.n * s.k);
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used > sums.used ? backward.used : sums.used;
    call->mixes_rows |= s.m % TOKENS != 0;
    return GCKPT_OK;
}

/* >>fast/attention */
/* ---- attention (Dao 2023), with tiles of D = 64 or 128 columns of a head, the rest zeros ---- A
 * block of four warps has 64 queries of a head (forward, dq) or 64 keys (dk, dv), a warp 16 of
 * them; tiles of the keys (queries) are copied while the previous tile is used. Scores and
 * exponentials stay in registers, since the result of an mma has the layout of an operand. Maxima
 * and sums are binary32, over tiles of 64 keys in order. Scores are computed again for dq, and for
 * dk and dv, so that one thread computes a sum, in one order. */
struct MmaAttention : Heads {
    const uint16_t *q, *k, *v, *g;
    int c, kc; /* as in Attention */
    Results out, dq, dk, dv;
};

/* Copies n lines of head h from line `first` of row b of x (B,lines,C), 0 from line `end` on. */
template <int D, int n>
__device__ inline void stage_head(const MmaAttention &p, const uint16_t *x, int b, int h, int first,
                                  int lines, int end, uint16_t *tile)
{
    const Matrix<uint16_t> m = { x + ((int64_t)b * lines) * p.c + (int64_t)h * p.d, p.c,
                                 p.aligned };
    stage_tile<n, D, 128, Swizzled<D>, false>(m, first, end, 0, p.d, tile);
}

/* Computes s (16, 8 n): products, along the head, of 16 lines of a from `row` on and 8 n of b. */
template <int D, int n>
__device__ inline void scores(const uint16_t *a, int row, const uint16_t *b, float s[n][4])
{
    UNROLLED(x, n)
        s[x][0] = s[x][1] = s[x][2] = s[x][3] = 0.0f;
    const Reader<D, 1, false> read_a(row);
    const Reader<D, 1, true> read_b(0);
#pragma unroll
    for (int term = 0; term < D; term += 16) {
        uint32_t left[4], right[4];
        read_a(left, a, 0, term);
#pragma unroll
        for (int x = 0; x < n; x += 2) {
            read_b(right, b, x * 8, term);
            gckpti_mma_bf16(s[x], left, right);
            gckpti_mma_bf16(s[x + 1], left, right + 2);
        }
    }
}

/* Returns true if one of these eight bf16 is infinite or NaN. */
__device__ inline bool any_nonfinite(const uint32_t x[4])
{
    bool some = false;
    UNROLLED(i, 4)
        some |= (x[i] & 0x7f80u) == 0x7f80u || (x[i] & 0x7f800000u) == 0x7f800000u;
    return some;
}

/* Adds two products of a, which is 0 at masked terms, with b, which is not finite everywhere. Skips
 * masked terms (0 times infinity is NaN); other infinities or NaNs of b make the sum NaN. */
__device__ inline void add_masked(float o[2][4], const uint32_t a[4], uint32_t b[4],
                                const uint32_t mask[4])
{
    uint32_t nonfinite[4];
    float count[2][4] = {};
    UNROLLED(i, 4) {
        uint32_t low = (b[i] & 0x7f80u) == 0x7f80u, high = (b[i] & 0x7f800000u) == 0x7f800000u;
        b[i] &= (low ? 0 : 0xffffu) | (high ? 0 : 0xffff0000u);
        nonfinite[i] = (low ? 0x3f80u : 0) | (high ? 0x3f800000u : 0); /* 1 as bf16 */
    }
    UNROLLED(x, 2) {
        gckpti_mma_bf16(o[x], a, b + 2 * x);
        gckpti_mma_bf16(count[x], mask, nonfinite + 2 * x);
        UNROLLED(i, 4)
            o[x][i] = count[x][i] > 0.0f ? NAN : o[x][i];
    }
}

/* Computes o (16,D) += s (16, 8 n) times lines 0.. of b. Row i has terms up to i + visible or, with
 * FROM, from i - visible on; at others, s is 0. CUT: some row may lack terms. */
template <int D, int n, bool FROM, bool CUT>
__device__ inline void add_terms(const float s[n][4], const uint16_t *b, float o[D / 8][4],
                                 int visible)
{
    const int lane = threadIdx.x % 32, row = lane / 4;
    const Reader<D, 0, true> read_b(0);
    UNROLLED(term, n / 2) {
        const float *s0 = s[2 * term], *s1 = s[2 * term + 1];
        /* last term (FROM: first term) of row 0, counted from this block of 16 terms */
        const int edge = (FROM ? -visible : visible) - 16 * term;
        if (CUT && (FROM ? edge > 15 : edge < -15))
            continue;
        const bool cut = CUT && (FROM ? edge > -15 : edge < 15);
        uint32_t left[4] = { bf16_pair(s0[0], s0[1]), bf16_pair(s0[2], s0[3]),
                             bf16_pair(s1[0], s1[1]), bf16_pair(s1[2], s1[3]) };
        uint32_t right[4];
#pragma unroll
        for (int x = 0; x < D / 8; x += 2) {
            read_b(right, b, x * 8, term * 16);
            if (cut && __any_sync(0xffffffffu, any_nonfinite(right))) {
                uint32_t mask[4];
                UNROLLED(i, 4) {
                    int at = lane % 4 * 2 + i / 2 * 8 - row - i % 2 * 8 - edge;
                    mask[i] = FROM ? (at >= 0 ? 0x3f80u : 0) | (at >= -1 ? 0x3f800000u : 0)
                                   : (at <= 0 ? 0x3f80u : 0) | (at < 0 ? 0x3f800000u : 0);
                }
                add_masked(o + x, left, right, mask);
                continue;
            }
            gckpti_mma_bf16(o[x], left, right);
            gckpti_mma_bf16(o[x + 1], left, right + 2);
        }
    }
}

/* Calls add_terms for the warp's rows, which begin at `row` of the block's 64; visible: that of row
 * 0. In most tiles all rows have all terms: these take a short path without checks. */
template <int D, int n, bool FROM>
__device__ inline void add_product(const float s[n][4], const uint16_t *b, float o[D / 8][4],
                                   int visible, int row)
{
    if (visible >= (FROM ? 63 : 8 * n - 1))
        add_terms<D, n, FROM, false>(s, b, o, 0);
    else
        add_terms<D, n, FROM, true>(s, b, o, FROM ? visible - row : visible + row);
}

/* Stores o * times in lines line + lane / 4 and line + lane / 4 + 8 of y. */
template <int D>
__device__ inline void store_lines(const MmaAttention &p, const Results &y, int accumulate, int b,
                                   int h, int line, int lines, const float o[D / 8][4],
                                   const float (&times)[2])
{
    int lane = threadIdx.x % 32;
    UNROLLED(half, 2) {
        int i = line + lane / 4 + half * 8;
        int64_t at = ((int64_t)b * lines + i) * p.c + (int64_t)h * p.d;
        UNROLLED(x, D / 8) {
            int j = x * 8 + lane % 4 * 2;
            float v[2] = { o[x][2 * half] * times[half], o[x][2 * half + 1] * times[half] };
            if (i < lines)
                write_vec<2>(y, at + j, p.d - j, p.aligned, v, accumulate);
        }
    }
}

/* Calls use(i) for i = 0..n-1, each while the copies to shared memory by stage(i + 1) run. */
template <class S, class U> __device__ __forceinline__ void pipeline(int n, S stage, U use)
{
    for (int i = -1; i < n; i++) {
        if (i + 1 < n)
            stage(i + 1);
        gckpti_cp_async_commit();
        if (i < 0)
            continue;
        gckpti_cp_async_wait<1>();
        __syncthreads();
        use(i);
        __syncthreads();
    }
}

/* A block's 64 queries of a head. Blocks with most keys come first. */
struct MmaQueries {
    int lane, row, head, b, h, q0, ahead; /* row: the warp's first one of the 64 */
    Keys visible;
    __device__ __forceinline__ explicit MmaQueries(const MmaAttention &p)
    {
        const int blocks = (p.t + 63) / 64;
        lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
        head = (int)(blockIdx.x / blocks), b = head / p.heads, h = head % p.heads;
        q0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * 64;
        visible = keys_of_row(p.keys, p.lengths, b), ahead = q0 + visible.ahead;
    }
    /* Calls use(step, k, v) for each tile of 64 keys that a query sees. k, v: two tiles each. */
    template <int D, class U>
    __device__ __forceinline__ void each_tile(const MmaAttention &p, uint16_t *k, uint16_t *v,
                                              U use) const
    {
        const MmaAttention kv = as_keys(p);
        const auto stage = [&](int step) {
            const int to = step % 2 * 64 * D;
            stage_head<D, 64>(kv, p.k, b, h / p.group, step * 64, p.s, visible.count, k + to);
            stage_head<D, 64>(kv, p.v, b, h / p.group, step * 64, p.s, visible.count, v + to);
        };
        pipeline((min(visible.count, ahead + 64) + 63) / 64, stage, [&](int step) {
            use(step, k + step % 2 * 64 * D, v + step % 2 * 64 * D);
        });
    }
};

template <int D> __global__ void __launch_bounds__(128) mma_attention_forward_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *q = (uint16_t *)attention_tiles;
    const MmaQueries at(p);
    const int lane = at.lane, row = at.row;
    float o[D / 8][4] = {}, s[8][4], max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
    stage_head<D, 64>(p, p.q, at.b, at.h, at.q0, p.t, p.t, q);
    const auto add_keys = [&](int step, const uint16_t *k, const uint16_t *v) {
        scores<D, 8>(q, row, k, s);
        int i = at.ahead + row + lane / 4, j = step * 64 + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++, i += 8) {
            int end = min(at.visible.count, i + 1);
            float top = max[half], rescale, shift;
            UNROLLED(x, 16) {
                float &score = s[x / 2][2 * half + x % 2];
                score = j + x / 2 * 8 + x % 2 < end ? score * (p.scale * LOG2E) : -INFINITY;
                top = score > top ? score : top;
            }
            top = row_max(top, 2);
            shift = gckpti_shift(top);
            rescale = exp2_of(max[half] - shift);
            max[half] = top;
            sum[half] *= rescale;
            UNROLLED(x, 16) {
                float &score = s[x / 2][2 * half + x % 2];
                score = exp2_of(score - shift);
                sum[half] += score;
            }
            UNROLLED(x, D / 8)
                o[x][2 * half] *= rescale, o[x][2 * half + 1] *= rescale;
        }
        add_product<D, 8, false>(s, v, o, at.ahead - step * 64, row);
    };
    at.each_tile<D>(p, q + SIZE, q + 3 * SIZE, add_keys);
    UNROLLED(half, 2) {
        int i = at.q0 + row + lane / 4 + half * 8;
        for (int with = 1; with < 4; with *= 2)
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], with);
        gckpti_softmax_end(&max[half], &sum[half]);
        if (p.saved && i < p.t && lane % 4 == 0)
            p.saved[(int64_t)at.head * p.t + i] = max[half] * LN2 + gckpti_log(sum[half]);
        sum[half] = 1.0f / sum[half];
    }
    if (wanted(p.out))
        store_lines<D>(p, p.out, 0, at.b, at.h, at.q0 + row, p.t, o, sum);
}

/* Converts scores s to p = exp(s scale - saved), d = dp to p (dp - delta) scale; !here: to 0. */
__device__ inline void softmax_grad(const MmaAttention &p, float saved, float delta, int here,
                                    float *s, float *d)
{
    *s = here ? exp2_of((*s * p.scale - saved) * LOG2E) : 0.0f;
    *d = here ? *s * (*d - delta) * p.scale : 0.0f;
}

/* Computes dq of 64 queries over all keys that they see. */
template <int D>
__global__ void __launch_bounds__(128, D == 64 ? 2 : 1) mma_attention_dq_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *q = (uint16_t *)attention_tiles, *g = q + SIZE;
    const MmaQueries at(p);
    const int row = at.row, i = at.q0 + row + at.lane / 4;
    float o[D / 8][4] = {}, s[8][4], d[8][4], saved[2], delta[2];
    UNROLLED(half, 2) {
        const int64_t query = (int64_t)at.head * p.t + i + half * 8;
        saved[half] = i + half * 8 < p.t ? p.saved[query] : INFINITY;
        delta[half] = i + half * 8 < p.t ? p.delta[query] : 0.0f;
    }
    stage_head<D, 64>(p, p.q, at.b, at.h, at.q0, p.t, p.t, q);
    stage_head<D, 64>(p, p.g, at.b, at.h, at.q0, p.t, p.t, g);
    const auto add_keys = [&](int step, const uint16_t *k, const uint16_t *v) {
        scores<D, 8>(q, row, k, s);
        scores<D, 8>(g, row, v, d);
        UNROLLED(x, 32) {
            int half = x / 2 % 2, j = step * 64 + x / 4 * 8 + at.lane % 4 * 2 + x % 2;
            int here = j < at.visible.count && j <= i + half * 8 + at.visible.ahead;
            softmax_grad(p, saved[half], delta[half], here, &s[x / 4][x % 4], &d[x / 4][x % 4]);
        }
        add_product<D, 8, false>(d, k, o, at.ahead - step * 64, row);
    };
    at.each_tile<D>(p, g + SIZE, g + 3 * SIZE, add_keys);
    store_lines<D>(p, p.dq, p.accumulate[0], at.b, at.h, at.q0 + row, p.t, o, { 1, 1 });
}

/* Sets rows (keys) line + lane / 4 and line + lane / 4 + 8 of o to 0 if no query sees them. */
template <int D> __device__ inline void clear_masked(float o[D / 8][4], int line, int count)
{
    UNROLLED(x, D / 2)
        if (line + (int)threadIdx.x % 32 / 4 + x / 2 % 2 * 8 >= count)
            o[x / 4][x % 4] = 0.0f;
}

/* Computes dk and dv of 64 keys over all queries that see them, n queries at a time, one head after
 * the other. Scores are transposed: rows are keys. */
template <int D, int n>
__global__ void __launch_bounds__(128, D == 64 ? 2 : 1) mma_attention_dkv_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D, PART = n * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *k = (uint16_t *)attention_tiles, *v = k + SIZE, *q = v + SIZE, *g = q + 2 * PART;
    SHARED(float, saved, [2][n]);
    SHARED(float, delta, [2][n]);
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16, blocks = (p.s + 63) / 64;
    int shared = (int)(blockIdx.x / blocks), all = p.heads / p.group, b = shared / all;
    int k0 = (int)(blockIdx.x % blocks) * 64;
    const MmaAttention kv = as_keys(p);
    const Keys visible = keys_of_row(p.keys, p.lengths, b);
    int first = max(k0 - visible.ahead, 0) / n, tiles = (p.t + n - 1) / n - first;
    int steps = k0 < visible.count ? tiles * p.group : 0;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {}, s[n / 8][4], d[n / 8][4];
    stage_head<D, 64>(kv, p.k, b, shared % all, k0, p.s, visible.count, k);
    stage_head<D, 64>(kv, p.v, b, shared % all, k0, p.s, visible.count, v);
    const auto stage = [&](int step) {
        int to = step % 2, i0 = (first + step % tiles) * n;
        int i = i0 + (int)threadIdx.x, h = shared % all * p.group + step / tiles;
        int64_t at = ((int64_t)b * p.heads + h) * p.t + i;
        stage_head<D, n>(p, p.q, b, h, i0, p.t, p.t, q + to * PART);
        stage_head<D, n>(p, p.g, b, h, i0, p.t, p.t, g + to * PART);
        if (threadIdx.x < n) {
            saved[to][threadIdx.x] = i < p.t ? p.saved[at] : INFINITY;
            delta[to][threadIdx.x] = i < p.t ? p.delta[at] : 0.0f;
        }
    };
    pipeline(steps, stage, [&](int step) {
        int now = step % 2, ahead = (first + step % tiles) * n + visible.ahead;
        scores<D, n / 8>(k, row, q + now * PART, s);
        scores<D, n / 8>(v, row, g + now * PART, d);
        UNROLLED(x, n / 2) {
            int j = k0 + row + lane / 4 + x / 2 % 2 * 8, i = x / 4 * 8 + lane % 4 * 2 + x % 2;
            softmax_grad(p, saved[now][i], delta[now][i], j <= ahead + i, &s[x / 4][x % 4],
                  &d[x / 4][x % 4]);
        }
        add_product<D, n / 8, true>(s, g + now * PART, dv, ahead - k0, row);
        add_product<D, n / 8, true>(d, q + now * PART, dk, ahead - k0, row);
    });
    clear_masked<D>(dk, k0 + row, visible.count);
    clear_masked<D>(dv, k0 + row, visible.count);
    if (wanted(p.dk))
        store_lines<D>(kv, p.dk, p.accumulate[1], b, shared % all, k0 + row, p.s, dk, { 1, 1 });
    if (wanted(p.dv))
        store_lines<D>(kv, p.dv, p.accumulate[2], b, shared % all, k0 + row, p.s, dv, { 1, 1 });
}

/* Returns the operands (copied if they are not bf16), for the backward also the output's gradient,
 * and the results. */
MmaAttention attention_of(const gckpt_call *call, Workspace &workspace, bool backward)
{
    const gckpt_arg *in = call->in;
    MmaAttention p = { heads_of(call) };
    int64_t queries = gckpti_elements(&in[0].shape), keys = gckpti_elements(&in[1].shape);
    p.c = (int)in[0].shape.d[2], p.kc = (int)in[1].shape.d[2];
    p.q = operand(call, workspace, value_of(in[0]), queries);
    p.k = operand(call, workspace, value_of(in[1]), keys);
    p.v = operand(call, workspace, value_of(in[2]), keys);
    if (backward)
        p.g = operand(call, workspace, grad_out_of(call), queries);
    p.out = out_of(call);
    p.dq = grad_of(in[0]), p.dk = grad_of(in[1]), p.dv = grad_of(in[2]);
    p.aligned = p.d % 8 == 0 && aligned(p.q, p.k, p.v, p.g, p.out, p.dq, p.dk, p.dv);
    return p;
}

template <int D> void run_attention(const gckpt_call *call, const MmaAttention &p)
{
    enum { QUERIES = D == 64 ? 64 : 32 }; /* registers do not suffice for more */
    const int rows = (int)call->shape.d[0];
    const dim3 queries((unsigned)(rows * p.heads * ((p.t + 63) / 64)));
    const dim3 keys((unsigned)(rows * (p.heads / p.group) * ((p.s + 63) / 64)));
    if (!p.g)
        run<mma_attention_forward_kernel<D>>(call, queries, 128, 5 * 64 * D * 2, p);
    if (p.g && wanted(p.dq))
        run<mma_attention_dq_kernel<D>>(call, queries, 128, 6 * 64 * D * 2, p);
    if (p.g && (wanted(p.dk) || wanted(p.dv)))
        run<mma_attention_dkv_kernel<D, QUERIES>>(call, keys, 128, (2 * 64 + 4 * QUERIES) * D * 2,
                                                  p);
}

void attention_by(const gckpt_call *call, bool backward)
{
    Workspace workspace = { (char *)call->workspace, 0 };
    MmaAttention p = attention_of(call, workspace, backward);
    p.keys = keys_of(call);
    if (backward) {
        const int64_t n = call->shape.d[0] * call->shape.d[1] * p.heads;
        const Values g = grad_out_of(call), out = value_out_of(call);
        float *delta = (float *)bump_alloc(workspace, (size_t)n * sizeof *delta);
        run<fast_delta_kernel>(call, blocks_for(n, 128), 128, 0, g, out, delta, n, call->shape.d[1],
                               p.heads, p.d, p.d % 8 == 0 && aligned(g, out));
        p.delta = delta;
    }
    p.d <= 64 ? run_attention<64>(call, p) : run_attention<128>(call, p);
}

gckpt_result attention_workspace(gckpt_call *call)
{
    Workspace forward = { NULL, 0 }, backward = { NULL, 0 };
    MmaAttention p = attention_of(call, forward, false);
    /* registers suffice for up to 128 columns and without extras */
    if (p.d > 128 || ((const gckpti_attention *)call->attributes)->extras) {
        call->precision = GCKPT_BF16;
        return GCKPT_OK;
    }
    attention_of(call, backward, true);
    bump_alloc(backward, (size_t)(call->shape.d[0] * call->shape.d[1] * p.heads) * sizeof(float));
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used;
    return GCKPT_OK;
}

/* >>fast/losses */
/* ---- linear_cross_entropy: logits (rows,V) = x w', which never exist whole ---- LOSS_CLASSES
 * classes of LOSS_ROWS rows at a time. The forward stores no logits: where a tile is computed, it
 * becomes a maximum and a sum for each row's 64 classes. In the backward, a tile becomes the
 * gradient of its logits as bf16, an operand of the products dx and dw. */
enum { LOSS_ROWS = 4096, LOSS_CLASSES = 4096 }; /* the forward takes 4 * LOSS_ROWS rows */

/* Merges maxima and sums of a chunk's groups of 64 classes, in order; a thread has a row. */
__device__ void merge_loss_row(int64_t r, const Loss &l, int groups, float *saved, float *losses,
                               int64_t rows, bool end)
{
    RowLoss *state = l.state;
    float max = l.first ? state[r].max : -INFINITY, sum = l.first ? state[r].sum : 0.0f;
    for (int k = 0; k < groups; k++) {
        const float *part = l.parts + 2 * (k * rows + r);
        float top = part[0] > max ? part[0] : max, shift = gckpti_shift(top);
        sum = gckpti_fma(sum, exp2_of((max - shift) * LOG2E),
                         part[1] * exp2_of((part[0] - shift) * LOG2E));
        max = top;
    }
    if (end) {
        gckpti_softmax_end(&max, &sum);
        float log_sum = gckpti_log(sum);
        losses[r] = l.target[r] >= 0 ? log_sum - (state[r].logit - max) : 0.0f;
        if (saved)
            saved[2 * r] = max, saved[2 * r + 1] = log_sum;
    } else {
        state[r].max = max, state[r].sum = sum;
    }
}

struct LossSizes {
    int64_t rows, c, v;
    int64_t block, chunk; /* most rows, most classes at a time */
    int64_t row; /* elements between rows of the logits' gradient: chunk, rounded up to 8 */
};

LossSizes loss_sizes(const gckpt_call *call, bool backward)
{
    int64_t rows = gckpti_rows(&call->in[0].shape), v = call->in[1].shape.d[0];
    int64_t chunk = gckpti_min(v, LOSS_CLASSES);
    int64_t block = gckpti_min(rows, backward ? LOSS_ROWS : 4 * LOSS_ROWS);
    return { rows, gckpti_last(&call->in[0].shape), v, block, chunk, (chunk + 7) / 8 * 8 };
}

/* The arrays in the workspace. */
struct LossBuffers {
    const uint16_t *x;
    uint16_t *w, *d; /* w: f32 weights of a chunk as bf16; d: logits' gradient (block x chunk) */
    float *parts, *losses, *dx;
    RowLoss *state;
};

LossBuffers loss_buffers(const gckpt_call *call, Workspace &workspace, bool backward)
{
    LossSizes s = loss_sizes(call, backward);
    LossBuffers r;
    memset(&r, 0, sizeof r);
    r.x = operand(call, workspace, value_of(call->in[0]), s.rows * s.c);
    r.w = call->in[1].bf16 ? NULL : (uint16_t *)bump_alloc(workspace, (size_t)(s.chunk * s.c) * 2);
    if (backward) {
        r.d = (uint16_t *)bump_alloc(workspace, (size_t)(s.block * s.row) * 2);
        r.dx = (float *)bump_alloc(workspace, (size_t)(s.block * s.c) * sizeof *r.dx);
    } else {
        r.parts = (float *)bump_alloc(workspace, (size_t)((s.chunk + 127) / 128 * 2 * s.block) * 8);
        r.state = (RowLoss *)bump_alloc(workspace, (size_t)s.block * sizeof *r.state);
        r.losses = (float *)bump_alloc(workspace, (size_t)s.rows * sizeof *r.losses);
    }
    return r;
}

const uint16_t *loss_weights(const gckpt_call *call, const LossBuffers &r, int64_t first, int64_t n)
{
    int64_t c = gckpti_last(&call->in[0].shape);
    const Values w = value_of(call->in[1]);
    if (w.bf16)
        return w.bf16 + first * c;
    narrow(call, w.f32 + first * c, r.w, n * c);
    return r.w;
}

/* Runs a block of rows after the other; of each, a chunk of classes after the other. */
void linear_cross_entropy_by(const gckpt_call *original, bool backward)
{
    const gckpt_call adjusted = backward ? drop_zero_fills(original) : *original;
    const gckpt_call *call = &adjusted;
    const LossSizes s = loss_sizes(call, backward);
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    Workspace workspace = { (char *)call->workspace, 0 };
    const LossBuffers r = loss_buffers(call, workspace, backward);
    const bool narrows = backward && x->grad_bf16;
    const StepParams *params = backward ? params_of(call) : NULL;
    for (int64_t row = 0, rows; row < s.rows; row += rows) {
        rows = gckpti_min(s.rows - row, s.block);
        const Matrix<uint16_t> inputs = matrix(r.x + row * s.c, s.c);
        float *saved = call->saved ? (float *)call->saved + 2 * row : NULL;
        float *dw = w->grad, *dx = narrows ? r.dx : x->grad ? x->grad + row * s.c : NULL;
        if (narrows && x->accumulate)
            widen(call, x->grad_bf16 + row * s.c, r.dx, rows * s.c);
        for (int64_t first = 0, n; first < s.v; first += n) {
            n = gckpti_min(s.v - first, s.chunk);
            const Matrix<uint16_t> some = matrix(loss_weights(call, r, first, n), s.c);
            MmaProduct p = mma_of(rows, n, s.c, inputs, some, NONE, 0, { NULL, r.d }); /* logits */
            p.loss = { call->in[2].index + row, (int)first, r.parts, r.state, saved, params };
            p.c_row = (int)s.row;
            if (!backward) {
                run_mma_tile<128, 1, 1, ROW_STATS>(call, p);
                for_each<merge_loss_row, 64>(call, rows, p.loss, (int)((n + 127) / 128 * 2), saved,
                                             r.losses + row, rows, first + n == s.v);
                continue;
            }
            run_mma_tile<128, 1, 1, GRADIENTS>(call, p);
            const Matrix<uint16_t> d = matrix((const uint16_t *)r.d, s.row);
            if (dx)
                mma_product(call,
                            mma_of(rows, s.c, n, d, some, NONE, x->accumulate || first > 0,
                                   { dx, NULL }),
                            1, 0);
            if (dw)
                mma_product(call,
                            mma_of(n, s.c, rows, d, inputs, NONE, w->accumulate || row > 0,
                                   { dw + first * s.c, NULL }),
                            0, 0);
        }
        if (narrows)
            narrow(call, r.dx, x->grad_bf16 + row * s.c, rows * s.c);
    }
    if (!backward)
        add_losses(call, r.losses, call->in[2].index, s.rows, 1);
}

gckpt_result linear_cross_entropy_workspace(gckpt_call *call)
{
    Workspace forward = { NULL, 0 }, backward = { NULL, 0 };
    if (gckpti_linear_loss_cap(call) > 0.0f) {
        call->precision = GCKPT_BF16;
        return GCKPT_OK;
    }
    loss_buffers(call, forward, false);
    loss_buffers(call, backward, true);
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used;
    call->mixes_rows |= gckpti_rows(&call->in[0].shape) % TOKENS != 0;
    return GCKPT_OK;
}

/* >>fast/elementwise */
/* ---- elementwise ---- */
__device__ inline float gelu_value(float x, const float *) { return gelu_of(x); }
__device__ inline float gelu_deriv(float x, const float *) { return gelu_deriv_of(x); }

void gelu_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = value_of(in), g = grad_out_of(call);
    if (backward ? !in.accumulate && try_fuse(call, GELU_GRAD, g, x, grad_of(in))
                 : try_fuse(call, GELU, x, NONE, out_of(call)))
        return;
    unary_by<gelu_value, gelu_deriv, gckpti_put_product_n, GCKPT_IN(0), 0, true>(call, backward);
}

/* ---- add, sub and mul of two bf16 tensors of the same shape (add: or the second one has just the
 * last axes of the first one); exact kernels run other shapes ---- */
void fused_add_by(const gckpt_call *call, bool backward)
{
    const Values a = value_of(call->in[0]), b = value_of(call->in[1]);
    if (backward || call->in[1].shape.n < call->shape.n ||
        (!try_fuse(call, PLUS, a, b, out_of(call)) && !try_fuse(call, PLUS, b, a, out_of(call))))
        add_by<true>(call, backward);
}

/* Exact kernels (GCKPT_BF16) run all but two bf16 inputs of the result's shape. With micro-batches
 * of one row a batch-invariant input may have that shape, but its gradient is a compensated sum. */
gckpt_result same_shape_workspace(gckpt_call *call)
{
    for (int i = 0; i < 2; i++)
        if (!gckpti_same_shape(&call->in[i].shape, &call->shape) || !call->in[i].bf16)
            call->precision = GCKPT_BF16;
    return GCKPT_OK;
}

/* Input 1 may have just the last axes of input 0. */
gckpt_result add_workspace(gckpt_call *call)
{
    const gckpt_shape *a = &call->shape, *b = &call->in[1].shape;
    bool last = b->n < a->n && gckpti_same_shape(&call->in[0].shape, a) &&
                (gckpti_elements(b) < gckpti_elements(a) || !call->in[1].bf16);
    for (int k = 1; k <= b->n; k++)
        last = last && b->d[b->n - k] == a->d[a->n - k];
    return last ? GCKPT_OK : same_shape_workspace(call);
}

/* >>fast/norms */
/* ---- layernorm, rmsnorm: a warp has a row, a lane eight adjacent elements at a time ---- */
/* A block has TOKENS rows at a time, which stay in caches while they are read twice: for columns'
 * sums, i.e. gradients of bias and gain (four columns a thread), and for dx (a row a warp). */
__global__ void __launch_bounds__(32 * TOKENS, 2)
    fast_norm_backward_kernel(const __grid_constant__ Norm s, Results dx, float *g_sums,
                              float *gh_sums, int64_t rows, int accumulate)
{
    const int64_t n = s.n;
    const int64_t each = s.aligned && s.x.bf16 && s.g.bf16 ? 4 : 1;
    for (int64_t group = blockIdx.x; group * TOKENS < rows; group += gridDim.x) {
        const int64_t first = group * TOKENS, r = first + threadIdx.x / 32;
        for (int64_t j = threadIdx.x * each; (g_sums || gh_sums) && j < n; j += each * blockDim.x) {
            float sum[4] = {}, gh[4] = {};
            if (each == 4)
                group_sums<4, true>(s.g, s.x, s.saved, s.center, first, rows, n, j, sum, gh);
            else
                group_sums<1, true>(s.g, s.x, s.saved, s.center, first, rows, n, j, sum, gh);
            if (g_sums)
                write_vec<4>({ g_sums, NULL }, group * n + j, each, each == 4, sum);
            if (gh_sums)
                write_vec<4>({ gh_sums, NULL }, group * n + j, each, each == 4, gh);
        }
        if (r < rows && wanted(dx))
            norm_gradient_of_row<8>(r, s, dx, accumulate);
    }
}

void layernorm_by(const gckpt_call *original, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)original->attributes;
    const Norm s = norm_of(original);
    const int64_t n = s.n, rows = gckpti_rows(&original->shape);
    if (!backward)
        return for_each_row<norm_row<8>>(original, rows, s, gckpti_norm_epsilon(o),
                                         out_of(original));
    const gckpt_call adjusted = drop_zero_fills(original), *call = &adjusted;
    Workspace workspace = { (char *)call->workspace, 0 };
    ColSum normed = {}, g_sums = {};
    if (o->gain && wanted(call->in[o->gain]))
        normed = column_of(workspace, rows, n, call->in[o->gain]);
    if (o->bias && wanted(call->in[o->bias]))
        g_sums = column_of(workspace, rows, n, call->in[o->bias]);
    run<fast_norm_backward_kernel>(call, blocks_for(rows, TOKENS), 32 * TOKENS, 0, s,
                                   grad_of(call->in[0]), g_sums.parts, normed.parts, rows,
                                   call->in[0].accumulate);
    add_groups(call, g_sums, normed, rows, n);
}

gckpt_result layernorm_workspace(gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    Workspace backward = { NULL, 0 };
    for (int i : { o->gain, o->bias })
        if (i)
            column_of(backward, gckpti_rows(x), gckpti_last(x), call->in[i]);
    call->workspace_backward = backward.used;
    call->mixes_rows |= (o->gain || o->bias) && gckpti_rows(x) % TOKENS != 0;
    return GCKPT_OK;
}

} // namespace fast

/* >>backend/find */
/* Runs F under the device's lock. PENDING: F may fuse its op with, or overlap, pending launches. */
template <auto F, bool PENDING, auto... MORE> void locked(const gckpt_call *call)
{
    DeviceLock lock(device_of(call), PENDING);
    F(call, MORE...);
}
template <auto FORWARD, auto BACKWARD> void either(const gckpt_call *call, bool backward)
{
    backward ? BACKWARD(call) : FORWARD(call);
}
template <auto F, class... A> void locked_with(const gckpt_call *call, A... arguments)
{
    DeviceLock lock(device_of(call));
    F(call, arguments...);
}

/* Sets the workspace: COUNT words of 4 bytes. */
template <int64_t COUNT(const gckpt_call *, bool)> gckpt_result set_words(gckpt_call *call)
{
    call->workspace_forward = 4 * (size_t)COUNT(call, false);
    call->workspace_backward = 4 * (size_t)COUNT(call, true);
    return GCKPT_OK;
}
int64_t no_workspace(const gckpt_call *, bool) { return 0; }

struct OpKernels {
    const char *op;
    gckpt_kernel forward, backward;
    gckpt_result (*workspace)(gckpt_call *); /* NULL: that of the processor */
};

/* clang-format off */
/* Rows: an op that runs F(call, backward), by default NAME_by. OP_WORDS: AS_workspace returns the
 * number of words of its workspace. */
#define ROW(name, workspace, ...)                                                                  \
    { #name, locked<__VA_ARGS__, false, false>, locked<__VA_ARGS__, false, true>, workspace },
#define OP(name)                  ROW(name, NULL, name##_by)
#define OP_AS(name, ...)          ROW(name, NULL, __VA_ARGS__)
#define OP_WORDS(name, as, ...)   ROW(name, set_words<as##_workspace>, __VA_ARGS__)
#define OP_LOSS(name, kind)       OP_WORDS(name, element_loss, element_loss_by<GCKPTI_LOSS_##kind>)
#define OP_TYPED(name, ...)       OP_AS(name, name##_by<false>)
const OpKernels EXACT_OPS[] = {
    GCKPTI_UNARY_OPS(OP_TYPED) GCKPTI_UNARY_OPS_WITH(OP_TYPED) GCKPTI_BINARY_OPS(OP_TYPED)
    OP(where) OP(dropout) OP(detach) OP(from_u8) OP(slice) OP(rotary) OP(cache)
    OP(linear) OP_AS(matmul, linear_by) OP(layernorm) OP_AS(rmsnorm, layernorm_by)
    OP_AS(softmax, softmax_by<false>) OP_AS(log_softmax, softmax_by<true>)
    OP_WORDS(embed, embed, embed_by) OP_WORDS(gather, embed, embed_by)
    OP_WORDS(attention, attention, attention_by)
    OP_WORDS(masked_attention, attention, masked_attention_by)
    OP_LOSS(sum_loss, SUM) OP_LOSS(huber, HUBER) OP_LOSS(binary_cross_entropy, BINARY)
    OP_LOSS(mean_squared_error, SQUARED) OP_LOSS(mean_squared_error_with, SQUARED)
    OP_WORDS(cross_entropy, cross_entropy, cross_entropy_by)
    OP_WORDS(cross_entropy_with, cross_entropy, cross_entropy_by)
    OP_WORDS(soft_cross_entropy, cross_entropy, cross_entropy_by)
    OP_WORDS(linear_cross_entropy, linear_cross_entropy, linear_cross_entropy_by)
#ifndef GCKPT_NO_AXES
    OP(permute) OP(concat) OP(pad) OP_AS(sum, sum_by<false>) OP_AS(mean, sum_by<true>) OP(max)
    OP(argmax) OP(top_k) OP(top_k_indices) OP(broadcast_matmul)
#endif
#ifndef GCKPT_NO_IMAGES
    OP(upsample) OP_AS(max_pool, pool_by<true>) OP_WORDS(average_pool, no, pool_by<false>)
    OP_WORDS(conv2d, no, conv2d_by)
    OP_WORDS(groupnorm, groupnorm, either<groupnorm_forward, groupnorm_backward>)
    OP_WORDS(batchnorm, groupnorm, either<groupnorm_forward, groupnorm_backward>)
#endif
#ifndef GCKPT_NO_RECURRENT
    OP_WORDS(gru, cells, cells_by<gckpti_gru_gates_at, gckpti_gru_gate_grads_at>)
    OP_WORDS(lstm, cells, cells_by<gckpti_lstm_gates_at, gckpti_lstm_gate_grads_at>)
    OP_WORDS(gru_reset_before, cells, cells_by<gckpti_reset_gates_at, gckpti_new_gate_grads_at,
                                               gckpti_new_gates_at, gckpti_reset_gate_grads_at>)
    OP_WORDS(delta_rule, delta, delta_rule_by) OP_AS(delta_state, delta_rule_by)
#endif
};
#undef ROW

/* Ops of GCKPT_BF16_FAST, like ROW. FAST: ops with a file in fast/. */
#define FAST(name, of) FAST_BY(name, fast::of##_workspace, fast::of##_by)
#define FAST_BY(name, workspace, ...)                                                              \
    { #name, locked<__VA_ARGS__, true, false>, locked<__VA_ARGS__, true, true>, workspace },
const OpKernels FAST_OPS[] = {
    FAST_BY(linear, fast::linear_workspace, either<fast::linear_forward, fast::linear_backward>)
    FAST(linear_cross_entropy, linear_cross_entropy)
    FAST(layernorm, layernorm) FAST(rmsnorm, layernorm)
    FAST(attention, attention) FAST_BY(add, fast::add_workspace, fast::fused_add_by)
    FAST_BY(sub, fast::same_shape_workspace, sub_by<true>)
    FAST_BY(mul, fast::same_shape_workspace, mul_by<true>)
    FAST_BY(gelu, NULL, fast::gelu_by) FAST_BY(gelu_erf, NULL, gelu_erf_by<true>)
    FAST_BY(silu, NULL, silu_by<true>) FAST_BY(tanh, NULL, tanh_by<true>)
    FAST_BY(sigmoid, NULL, sigmoid_by<true>) FAST_BY(relu, NULL, relu_by<true>)
    FAST_BY(scale, NULL, scale_by<true>) FAST_BY(slice, NULL, slice_by)
    FAST_BY(rotary, NULL, rotary_by) FAST_BY(dropout, NULL, dropout_by)
};
/* clang-format on */

template <size_t N> const OpKernels *row_of(const OpKernels (&ops)[N], const gckpt_op *op)
{
    for (const OpKernels &row : ops)
        if (op->flags & GCKPTI_BUILTIN_OP && !strcmp(op->name, row.op))
            return &row;
    return NULL;
}

gckpt_kernel kernel_of(const OpKernels *row, gckpt_kind kind)
{
    return !row ? NULL : kind == GCKPT_FORWARD ? row->forward : row->backward;
}
gckpt_kernel find(void *, const gckpt_op *op, gckpt_kind kind)
{
    return kernel_of(row_of(EXACT_OPS, op), kind);
}
gckpt_kernel find_fast(void *, const gckpt_op *op, gckpt_kind kind)
{
    return kernel_of(row_of(FAST_OPS, op), kind);
}

gckpt_result workspace(void *, const gckpt_op *op, gckpt_call *call)
{
    const OpKernels *row = call->precision == GCKPT_BF16_FAST ? row_of(FAST_OPS, op) : NULL;
    if (!row || !row->workspace)
        row = row_of(EXACT_OPS, op);
    return row && row->workspace ? row->workspace(call) : GCKPT_OK;
}

/* >>backend/self_test */
/* Sets *broken to 0 if the device obeys the numeric specification, else to an index of wrong[]
 * below. Runs the header's self-test and detects compilation without -fmad=false (products and sums
 * are fused) or with -use_fast_math (divisions and roots are not correctly rounded). */
__global__ void self_test_kernel(float base, float squared, int *broken)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    *broken = gckpti_self_test();
    if (!*broken && base * base - squared != 0.0f) /* nonzero as an fma: squared is rounded */
        *broken = 5;
    for (int i = 0; i < 512; i++) {
        float a = base + (float)(i * 37 % 101), b = squared + (float)(i * 61 % 89);
        float y[3] = { a / b, gckpti_sqrt(a * b), 1e-38f / b };
        hash = gckpti_hash_floats(hash, y, 3);
    }
    if (!*broken && hash != UINT64_C(0xcb0e40c9dd6231a9))
        *broken = 6;
    /* 2^-126 - 1.5 * 2^-151 in 24 bits is below 2^-126: terms() must flush it to zero */
    float c[2] = { 0x1p-126f, 0x1p-126f }, y[2] = { -0x1p-76f, 0.0f };
    terms<2, true>(c, base * 0x1.8p-75f, y);
    if (!*broken && (gckpti_bits(c[0]) || c[1] != 0x1p-126f))
        *broken = 7;
}

/* Runs self_test_kernel. If it fails, writes the error to `text`, which has TEXT bytes. */
void self_test(Device *d, char *text)
{
    static const char *const wrong[] = { "",
                                         "subnormals are flushed to zero",
                                         "fma is wrong",
                                         "sums are re-associated",
                                         "exp, log, .. have other bits",
                                         "products and sums are contracted",
                                         "division or root are not rounded correctly",
                                         "products of bf16 plans do not flush to zero" };
    int broken = -1, *result = NULL;
    cudaError_t error = cudaMalloc(&result, sizeof *result);
    if (error == cudaSuccess) {
        LAUNCH(self_test_kernel, 1, 1, 0, d->stream, 1.000244140625f, 1.00048828125f, result);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&broken, result, sizeof broken, cudaMemcpyDeviceToHost, d->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(d->stream);
    cudaFree(result);
    if (error != cudaSuccess)
        format_error(text, d->number, error, "self-test");
    else if (broken)
        snprintf(text, TEXT,
                 "CUDA device %d: self-test: %s; compile gradckpt_cuda.cu by nvcc -fmad=false and "
                 "without -use_fast_math",
                 d->number, wrong[broken < 0 || broken > 7 ? 0 : broken]);
}

/* >>backend/open */
template <class F> void each_stream(Device *d, F f)
{
    f(&d->main), f(&d->feeds), f(&d->offload.stream), f(&d->graph.stream), f(&d->comm.stream);
    f(&d->overlap.stream);
}

template <class F> void each_event(Device *d, F f)
{
    f(&d->fork_event);
    for (Queue *s : { &d->offload, &d->graph, &d->comm, &d->overlap })
        for (cudaEvent_t &e : s->done)
            f(&e);
    for (Slot &s : d->slots)
        f(&s.arrived), f(&s.taken);
}

void device_close(Device *d)
{
    for (Capture &r : d->captures)
        destroy_capture(d, &r);
    each_event(d, [](cudaEvent_t *e) {
        if (*e)
            cudaEventDestroy(*e);
    });
    cudaFreeHost(d->pinned);
    cudaFree(d->staged);
    cudaFree(d->params);
    each_stream(d, [](cudaStream_t *s) {
        if (*s)
            cudaStreamDestroy(*s);
        *s = NULL;
    });
    memset(d->slots, 0, sizeof d->slots);
    d->offload = d->graph = d->comm = d->overlap = Queue();
    d->pinned = d->staged = NULL;
    d->params = NULL;
    d->fork_event = NULL;
    d->ready = 0;
}

/* Closes all devices when the program exits; memory of executors that still exist ends then. */
void close_all(void)
{
    for (Device &d : devices)
        if (d.ready && cudaSetDevice(d.number) == cudaSuccess)
            device_close(&d);
}

/* Creates streams, slots and step parameters. After an error, the caller calls device_close. */
cudaError_t device_open(Device *d, int number)
{
    d->number = number;
    cudaError_t error = cudaSetDevice(number);
    /* cudaStreamNonBlocking: no stream waits for the program's default stream */
    each_stream(d, [&error](cudaStream_t *s) {
        if (error == cudaSuccess)
            error = cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
    });
    d->stream = d->main;
    each_event(d, [&error](cudaEvent_t *e) {
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(e, cudaEventDisableTiming);
    });
    if (error == cudaSuccess)
        error = cudaMallocHost(&d->pinned, (size_t)SLOTS * SLOT_BYTES);
    if (error == cudaSuccess)
        error = cudaMalloc(&d->staged, (size_t)SLOTS * SLOT_BYTES);
    if (error == cudaSuccess)
        error = cudaMalloc(&d->params, sizeof *d->params);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(d->params, 0, sizeof *d->params, d->stream);
    memset(&d->now, 0, sizeof d->now);
    return error;
}

} // namespace

extern "C" const gckpt_backend *gckpt_cuda_backend(int device, const char **error)
{
    static std::mutex init_mutex;
    static thread_local char problem[TEXT];
    std::lock_guard<std::mutex> guard(init_mutex);
    int count = 0, most = (int)(sizeof devices / sizeof *devices);
    const char *ignored;
    *(error ? error : &ignored) = problem;
    problem[0] = 0;
    cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess) {
        format_error(problem, device, result, "looking for devices");
        cudaGetLastError();
        return NULL;
    }
    if (device < 0 || device >= count || device >= most) {
        snprintf(problem, sizeof problem, "CUDA device %d: this machine has %d, numbered from 0%s",
                 device, count, device >= most ? ", of which 16 can be used" : "");
        return NULL;
    }
    Device *d = &devices[device];
    if (d->ready)
        return &d->backend;
    result = device_open(d, device);
    if (result != cudaSuccess)
        format_error(problem, device, result, "making streams and buffers");
    else
        self_test(d, problem);
    if (problem[0])
        device_close(d);
    cudaGetLastError();
    if (problem[0])
        return NULL;
    static int at_exit = atexit(close_all);
    (void)at_exit;
    d->backend = { "cuda", d, 1, 0, allocate, release<cudaFree>, copy_in, copy_out, copy, workspace,
                   find, fill, locked_with<add>, locked_with<convert>, update, finish, replay,
                   end_capture, discard_captures, memory_hint, find_fast, host_get,
                   release<cudaFreeHost>, copy_async, wait_copies, locked_with<dequantise>,
                   use_comm_queue, wait_comm_queue };
    d->ready = 1;
    return &d->backend;
}
