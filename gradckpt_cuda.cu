/* gradckpt_cuda.cu - a CUDA device as a backend of gradckpt.h.  MIT licence.
 *
 *     nvcc -O3 -std=c++17 -fmad=false -arch=native -c gradckpt_cuda.cu (H100, H200: -arch=sm_90a)
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
 *     >>device    streams, memory, errors, launching, captures                                 779
 *     >>common    fill, add, convert, update, dequantise                                       667
 *     >>exact     kernels of the numeric contract: the bits of the processor                  2915
 *     >>fast      GCKPT_BF16_FAST: by tensor cores, reading and writing bf16                  2007
 *     >>backend   which kernels there are, the self-test, the table                            375
 */
#ifdef _MSC_VER
#error "gradckpt_cuda.cu needs gcc or clang as nvcc's host compiler, not MSVC: use Linux or WSL2"
#endif
#ifndef GCKPT_CUDA_SHIM /* tests include cuda_shim.h first, which runs kernels on the processor */
#include <cuda.h> /* types of tensor maps; libcuda is not linked */
#include <cuda_runtime.h>
/* Launches a kernel and returns this launch's own error, unlike <<< >>> and cudaGetLastError. */
template <class... P, class... A>
cudaError_t gckpti_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                          cudaStream_t stream, const A &...a)
{
    const cudaLaunchConfig_t config = { grid, block, shared, stream, NULL, 0 };
    return cudaLaunchKernelEx(&config, kernel, a...);
}
#define LAUNCH                     gckpti_launch
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
#include <map>
#include <mutex>
#include <tuple>
#include <vector>
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
    SHARES = 256, /* more than the multiprocessors of a device with sm_90a */
    SLOTS = 64,  /* buffers for copies to the device: 32 MiB of host memory */
    SLOT_BYTES = GCKPT_CUDA_SLOT_BYTES,
    CAPTURES = 4096 /* most captures of a device */
};

/* at[0]: of the micro-batch (outside captures: of the current call); at[1]: of batch-invariant ops,
 * whose first_row is 0; at[2 + i]: of loss term i. */
struct StepParamSet {
    StepParams at[2 + LOSSES];
};
enum { PARAM_BYTES = sizeof(StepParamSet) + SHARES * sizeof(unsigned) };

/* A CUDA graph of a micro-batch. */
struct Capture {
    int warmed_up;         /* ran once, so its kernels are loaded */
    cudaGraphExec_t graph; /* NULL until captured */
};

/* A block of pinned host memory, from which input is copied to the device. */
struct Slot {
    cudaEvent_t copied;
    int used; /* used since the last wait_all */
};

/* A stream that overlaps the main one. Its launches wait for all earlier launches of both. */
struct Queue {
    cudaStream_t stream;
    cudaEvent_t done[RING]; /* ends of the latest launches, a ring */
    int next;                /* next event, modulo RING */
    int pending;                 /* nonzero: launches since a join of all */
};

/* A device. Calls of all threads and executors are serialised by locks[number] into one stream. */
struct Device {
    int number, ready;
    cudaStream_t main, stream; /* stream: the current one, main or comm.stream */
    Queue offload, graph, comm; /* offloads; offloads in captures; communication */
    cudaEvent_t fork_event;     /* start of a launch in a queue */
    int busy;                   /* nonzero: kernels were launched since the last synchronisation */
    long blocks;                /* allocated blocks, of device and of pinned memory */
    char problem[TEXT];         /* the first error of the executors that have these blocks */
    StepParamSet now, *params;      /* `params` gets a copy of `now` */
    bool wgmma;                     /* products use wgmma (fast/wgmma.cu) */
    unsigned *shares;               /* [SHARES] of WgmmaProduct, after params */
    decltype(&cuTensorMapEncodeTiled) encode;
    Slot slots[SLOTS];
    char *pinned;               /* memory of the slots; NULL before the first block */
    /* Captures by executor, rows and whether the first row is 0, since a batch's first micro-batch
     * has a separate capture. capture is the one in progress, or NULL. */
    std::map<std::tuple<const void *, int64_t, bool>, Capture> captures;
    Capture *capture;
    int capture_failed;                             /* the capture in progress failed */
    int ids[LOSSES], losses; /* of the losses of params->at[2], ..: op ids, number */
    int slot;                /* the next one */
    int graphs;              /* number of captures that have a graph */
    gckpt_backend backend;
};
Device devices[16];
std::recursive_mutex locks[16];
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

/* Keeps the first error. In a capture, an error only ends it: the micro-batch then just runs. Only
 * errors of this file are cleared, not those of the program's own calls. */
void check(Device *d, cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        cudaGetLastError();
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
void discard_captures(void *context, const void *owner); /* device/replay.cu */

/* Each function of the backend holds this lock: one thread at a time, with this device as CUDA's
 * current one. The device stays current, since restoring another would create a context there.
 * Unless keep_pending is true, launches what is pending. Converts to Device *. */
struct DeviceLock {
    Device *d;
    explicit DeviceLock(void *device, bool keep_pending = false) : d((Device *)device)
    {
        locks[d->number].lock();
        if (cudaSetDevice(d->number) != cudaSuccess)
            cudaGetLastError();
        d->stream = d->main;
        if (!keep_pending)
            launch_pending(d);
        d->stream = on_comm[d->number] ? d->comm.stream : d->main;
    }
    ~DeviceLock() { locks[d->number].unlock(); }
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
    check_kernel(d, LAUNCH(KERNEL, grid, block, (size_t)shared, d->stream, a...),
                 name_of<KERNEL>());
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

/* >>device/memory */
/* ---- memory ---- */
thread_local char memory_text[TEXT + 2]; /* why this thread's last allocation failed */

/* Allocates memory of the slots at the first call, and a block of the device. */
cudaError_t take_block(Device *d, size_t bytes, void **block)
{
    cudaError_t error = cudaSuccess;
    if (!d->pinned)
        error = cudaMallocHost(&d->pinned, (size_t)SLOTS * SLOT_BYTES);
    return error != cudaSuccess ? error : cudaMalloc(block, bytes ? bytes : 1);
}

/* Allocates device memory that is aligned to at least 256 bytes. Captures give theirs back first.
 * An error ends with the blocks of the executors that had it. */
void *allocate(void *context, size_t bytes, size_t)
{
    DeviceLock d(context);
    void *p = NULL;
    size_t unused = 0, all = 0;
    memory_text[0] = 0;
    if (reject_capture(d))
        return NULL;
    if (!d->blocks)
        d->problem[0] = 0;
    cudaError_t error = take_block(d, bytes, &p);
    if (error == cudaErrorMemoryAllocation && d->graphs) {
        discard_captures(context, NULL);
        error = take_block(d, bytes, &p);
    }
    if (error == cudaSuccess)
        return d->blocks++, p;
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
    d->blocks -= memory != NULL;
}

/* The backend's copy_in, through slots. The host waits only for a slot that is still read. */
void copy_in(void *context, void *to, const void *host, size_t bytes)
{
    DeviceLock d(context);
    for (size_t at = 0, n; at < bytes && !d->problem[0] && !reject_capture(d); at += n) {
        Slot *s = &d->slots[d->slot];
        char *pinned = d->pinned + (size_t)d->slot * SLOT_BYTES;
        d->slot = (d->slot + 1) % SLOTS;
        n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        if (s->used)
            check(d, cudaEventSynchronize(s->copied), "copy in");
        s->used = d->busy = 1;
        memcpy(pinned, (const char *)host + at, n);
        check(d, cudaMemcpyAsync((char *)to + at, pinned, n, cudaMemcpyHostToDevice, d->stream),
              "copy in");
        check(d, cudaEventRecord(s->copied, d->stream), "copy in");
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
        return d->blocks++, p;
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
        d->graphs--;
    }
    *r = Capture();
}

/* Destroys the captures of `owner`, or all if it is NULL. */
void discard_captures(void *context, const void *owner)
{
    DeviceLock d(context);
    for (auto at = d->captures.begin(); at != d->captures.end();) {
        const bool discards = !owner || std::get<0>(at->first) == owner;
        if (discards)
            destroy_capture(d, &at->second);
        at = discards ? d->captures.erase(at) : std::next(at);
    }
}

/* Returns the capture of this micro-batch, or a new one, for which another one may have to end. */
Capture *capture_of(Device *d, const gckpt_step_params *m)
{
    const auto key = std::make_tuple(m->owner, m->rows, !m->first_row);
    if (!d->captures.count(key) && d->captures.size() == CAPTURES) {
        destroy_capture(d, &d->captures.begin()->second);
        d->captures.erase(d->captures.begin());
    }
    return &d->captures[key];
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
        return cudaGetLastError(), 0;
    locks[d->number].lock();
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
    d->graphs += r->graph != NULL;
    if (!d->capture_failed) /* uploads now: a launch that lacks the memory for it would fail */
        check(d, cudaGraphUpload(r->graph, d->stream), "capture");
    if (graph)
        cudaGraphDestroy(graph);
    d->capture = NULL;
    locks[d->number].unlock();
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
template <auto F, int THREADS = 256, class... A>
void for_each_row(const gckpt_call *call, int64_t n, const A &...a)
{
    run<each_kernel<F, 32, A...>>(call, blocks_for(32 * n, THREADS), THREADS, 0, n, a...);
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
const Values NONE = { NULL, NULL };

__host__ __device__ inline bool wanted(const Values &x) { return x.f32 || x.bf16; }
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

/* Returns an element of values whose type is known, without a branch. */
template <bool BF16> __device__ inline float value_as(const Values &x, int64_t i)
{
    return BF16 ? gckpti_from_bf16(x.bf16[i]) : x.f32[i];
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
/* ---- elementwise kernels: d = f(a, b, c), in the order of d; these are tensors 0 to 3 of an
 * iterator of gradckpt.h ---- */
/* Iterates over `axes` of four tensors of these shapes. */
gckpti_iter iterate(const gckpt_shape &axes, const gckpt_shape &d, const gckpt_shape &a,
                    const gckpt_shape &b, const gckpt_shape &c)
{
    const gckpt_shape *const shapes[4] = { &d, &a, &b, &c };
    gckpti_iter it;
    gckpti_iter_over(&it, &axes, shapes);
    return it;
}

/* Iterates over n elements, which all tensors have in the same order. */
gckpti_iter dense(int64_t n)
{
    const gckpt_shape s = gckpt_shape1(n);
    return iterate(s, s, s, s, s);
}

int64_t count_of(const gckpti_iter &it)
{
    int64_t all = 1;
    for (int k = 0; k < it.n; k++)
        all *= it.size[k];
    return all;
}

/* Returns each tensor's element number i. Each axis except the last costs a division, of 32 bits
 * where the numbers are that small. */
struct Places {
    int64_t at[4];
};
__device__ inline Places places_of(const gckpti_iter &it, int64_t i)
{
    Places p;
    UNROLLED(t, 4) p.at[t] = it.offset[t];
    for (int k = 0; k < it.n; k++) {
        const int64_t next = k + 1 < it.n ? i / it.size[k] : 0, j = i - next * it.size[k];
        UNROLLED(t, 4) p.at[t] += j * it.step[t][k];
        i = next;
    }
    return p;
}

/* Returns true if the innermost axis can be read and written by whole vectors of N. Only if it is
 * the only axis may the last vector be shorter. */
bool in_vecs(const gckpti_iter &it, int N)
{
    bool vecs = it.n && it.step[0][0] == 1 && (it.n == 1 || it.size[0] % N == 0);
    for (int t = 0; t < 4; t++) {
        const bool repeated = it.step[t][0] == 0;
        vecs = vecs && (repeated || (it.step[t][0] == 1 && it.offset[t] % N == 0));
        for (int k = 1; k < it.n; k++)
            vecs = vecs && (repeated || it.step[t][k] % N == 0);
    }
    return vecs;
}

/* A thread computes N elements of d; elements that are repeated come from caches. b and c may be
 * NONE. A thread reads an element of d's layout before it writes that element, and no other thread
 * does, so d may be such an operand. */
template <int N, class F>
__global__ void map_kernel(const __grid_constant__ gckpti_iter it, F f, Results d, Values a,
                           Values b, Values c, int64_t n, int accumulate)
{
    for (EACH(vec, (n + N - 1) / N)) {
        const int64_t left = n - vec * N;
        const Places p = places_of(it, vec * N);
        float x[N], y[N], w[N], z[N] = {};
        const auto read = [&](const Values &of, int t, float *v) {
            if (it.step[t][0])
                return read_vec<N>(of, p.at[t], left, true, v);
            UNROLLED(k, N) v[k] = value_at(of, p.at[t]);
        };
        read(a, 1, x), read(b, 2, y), read(c, 3, w);
        if (accumulate)
            read(d, 0, z);
        UNROLLED(k, N) f(&z[k], x[k], y[k], w[k], accumulate);
        write_vec<N>(d, p.at[0], left, true, z);
    }
}

/* Runs map_kernel, by vectors of N if all tensors are aligned. */
template <int N, class F>
void map_vecs(const gckpt_call *call, const gckpti_iter &it, F f, const Results &d, const Values &a,
              const Values &b, const Values &c, int accumulate)
{
    const int64_t n = count_of(it);
    if (N > 1 && !(in_vecs(it, N) && aligned(a, b, c, d)))
        return map_vecs<1>(call, it, f, d, a, b, c, accumulate);
    run_each<map_kernel<N, F>>(call, (n + N - 1) / N, it, f, d, a, b, c, n, accumulate);
}

/* Computes d, or nothing if d is NULL. */
template <class F>
void map(const gckpt_call *call, const gckpti_iter &it, F f, const Results &d, const Values &a,
         const Values &b = NONE, const Values &c = NONE, int accumulate = 0)
{
    if (!wanted(d) || count_of(it) == 0)
        return;
    map_vecs<8>(call, it, f, d, a, b, c, accumulate);
}

struct Copy {
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, a, accumulate);
    }
};

void add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    map(call, dense(n), Copy(), { to, NULL }, { from, NULL }, NONE, NONE, 1);
}

struct Round { /* to bf16 */
    __device__ void operator()(float *d, float a, float, float, int) const
    {
        *d = gckpti_from_bf16(gckpti_to_bf16(a));
    }
};

/* The backend's conversion between f32 and bf16. */
void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    const Results f32 = { c->x, NULL }, bf16 = { NULL, c->to };
    const Values from = { NULL, c->from };
    if (c->kind == GCKPT_ROUND)
        map(call, dense(c->n), Round(), f32, f32);
    else if (c->kind == GCKPT_NARROW)
        map(call, dense(c->n), Copy(), bf16, f32);
    else
        map(call, dense(c->n), Copy(), f32, from, NONE, NONE, c->kind == GCKPT_WIDEN_ADD);
}

void widen(const gckpt_call *call, const uint16_t *from, float *to, int64_t n)
{
    map(call, dense(n), Copy(), { to, NULL }, { NULL, from });
}

void narrow(const gckpt_call *call, const float *from, uint16_t *to, int64_t n)
{
    map(call, dense(n), Copy(), { NULL, to }, { from, NULL });
}

struct FromF16 { /* a: a word of an f16, read as a bf16 */
    __device__ void operator()(float *d, float a, float, float, int) const
    {
        *d = gckpti_from_f16((uint16_t)(gckpti_bits(a) >> 16));
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
    const Values from = { NULL, (const uint16_t *)u.quantised };
    if (u.storage >= GCKPT_STORAGE_I8)
        for_each<dequantise_block>(call, u.n / u.row * blocks * 16, u);
    else if (u.storage == GCKPT_STORAGE_BF16)
        map(call, dense(u.n), Copy(), { u.to, NULL }, from);
    else
        map(call, dense(u.n), FromF16(), { u.to, NULL }, from);
}

/* >>common/tiles */
enum { STAGES = 4 }; /* of a ring that cp.async fills */

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

/* >>common/warp */
/* ---- a warp as an instruction set ---- gradckpt.h's loops over a row once more, as functions of a
 * warp, gckpti_.._warp (num/isa.h). Lane i % 32 has element i of a row; no other lane reads or
 * writes it. Functions return the same sums and maxima (manual, 5d) in all lanes. */
__device__ inline int lane_index(void) { return (int)threadIdx.x % 32; }

__device__ inline float gckpti_load_n_warp(const float *x, int64_t n)
{
    return lane_index() < n ? x[lane_index()] : 0.0f;
}
__device__ inline void gckpti_store_n_warp(float *x, float a, int64_t n)
{
    if (lane_index() < n)
        x[lane_index()] = a;
}
__device__ inline float gckpti_blend_n_warp(int64_t n, float a, float b)
{
    return lane_index() < n ? a : b;
}
__device__ inline float gckpti_lanes_sum_warp(const float *lane)
{
    return warp_sum(lane[lane_index()]);
}
__device__ inline float gckpti_fold_sum_warp(float lane) { return warp_sum(lane); }
__device__ inline float gckpti_fold_max_warp(float lane)
{
    for (int h = 16; h; h /= 2) { /* of +0 and -0, the first lane's */
        const float other = __shfl_down_sync(0xffffffffu, lane, h);
        lane = other > lane ? other : lane;
    }
    return __shfl_sync(0xffffffffu, lane, 0);
}
__device__ inline float gckpti_fma_warp(float a, float b, float c) { return gckpti_fma(a, b, c); }
__device__ inline float gckpti_sqrt_warp(float a) { return gckpti_sqrt(a); }
__device__ inline uint32_t gckpti_bits_warp(float a) { return gckpti_bits(a); }
__device__ inline void gckpti_sum_add_warp(float *sum, float *comp, float x)
{
    gckpti_sum_add(sum, comp, x);
}

#undef GCKPTI_DEVICE
#define GCKPTI_DEVICE    __device__
#define gckpti_lanes_sum gckpti_lanes_sum_warp
#define GCKPTI_ISA       (-2)
#include "gradckpt.h"
#undef GCKPTI_ISA
#undef gckpti_lanes_sum
#undef GCKPTI_DEVICE
#define GCKPTI_DEVICE __host__ __device__

/* Runs an op whose rows are those of its result: ROW(call, r) by a warp for each row. Each block
 * has the call, whose attributes are in host memory, in shared memory. */
template <auto ROW, class O>
__global__ void row_kernel(const __grid_constant__ gckpt_call of,
                           const __grid_constant__ O attributes, int64_t rows)
{
    SHARED(gckpt_call, call, [1]);
    if (threadIdx.x == 0)
        call[0] = of, call[0].attributes = &attributes;
    __syncthreads();
    for (EACH(i, 32 * rows))
        ROW(call, i / 32);
}
template <auto FORWARD, auto BACKWARD, class O = int>
void rows_by(const gckpt_call *call, bool backward, const O &attributes = {})
{
    const int64_t rows = gckpti_rows(&call->shape);
    if (!backward)
        run_each<row_kernel<FORWARD, O>>(call, 32 * rows, *call, attributes, rows);
    else if (call->in[0].grad)
        run_each<row_kernel<BACKWARD, O>>(call, 32 * rows, *call, attributes, rows);
}

/* >>common/update */
/* ---- calls of fill and update are collected until there are MOST, or another function is called;
 * then one launch runs all fills, and one all updates, each in separate blocks ---- */
template <class T, int COUNT> struct Collected { /* of a launch: a row of blocks for each */
    enum { MOST = COUNT };
    T at[MOST];
    int n;
};
struct Fill {
    uint32_t *to;
    int64_t n;
    uint32_t word;
};
typedef Collected<Fill, 64> Fills;
typedef Collected<gckpt_update_pass, 16> Passes; /* each for another parameter */
static_assert(sizeof(Passes) <= 4096 && sizeof(Fills) <= 4096, "arguments of a kernel");

__global__ void fill_kernel(const __grid_constant__ Fills all)
{
    const Fill &f = all.at[blockIdx.y];
    for (EACH(i, f.n))
        f.to[i] = f.word;
}

/* A block runs a pass on GCKPT_UPDATE_BLOCK elements, each of its 8 warps on a part, then on more.
 * So values and state cross memory once. Then its first warp adds up squares in the 32 lanes of the
 * manual's 5d; it reads the gradient from caches. */
__global__ void update_kernel(const __grid_constant__ Passes all)
{
    const gckpt_update_pass &p = all.at[blockIdx.y];
    const int64_t blocks = (p.elements - 1) / GCKPT_UPDATE_BLOCK + 1;
    const int64_t part = GCKPT_UPDATE_BLOCK / 8, first = threadIdx.x / 32 * part;
    const float count = p.count > 0 && !p.write_back ? p.count : 1.0f;
    for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const int64_t at = block * GCKPT_UPDATE_BLOCK;
        const int64_t n = gckpti_min(p.elements - at, GCKPT_UPDATE_BLOCK);
        const float *g = p.gradient + at;
        gckpti_update_block_warp(&p, NULL, at + first, gckpti_min(n - first, part), p.update);
        __syncthreads();
        if (!p.squares || threadIdx.x >= 32)
            continue;
        const float sum = lanes_sum<16>(n, [&](float lane, int64_t i) {
            const float divided = g[i] / count;
            return gckpti_fma(divided, divided, lane);
        });
        gckpti_store_n_warp(p.squares + block, sum, 1);
    }
}

/* Returns a grid for collected work, the largest of which takes this many blocks. */
dim3 grid_for(int64_t blocks, int n)
{
    return dim3((unsigned)gckpti_min(blocks, 528), (unsigned)n);
}

struct Deferred {              /* a pending product, or fills followed by updates */
    void (*product)(Device *); /* launches the product (fast/products.cu), or NULL */
    Fills fills;
    Passes passes;
} deferred[sizeof devices / sizeof *devices];

void launch_pending(Device *d)
{
    Fills *f = &deferred[d->number].fills;
    Passes *p = &deferred[d->number].passes;
    int64_t words = 0, elements = 0;
    if (void (*product)(Device *) = deferred[d->number].product) {
        deferred[d->number].product = NULL;
        product(d);
    }
    for (int i = 0; i < f->n; i++)
        words = f->at[i].n > words ? f->at[i].n : words;
    for (int i = 0; i < p->n; i++)
        elements = p->at[i].elements > elements ? p->at[i].elements : elements;
    if (f->n)
        launch<fill_kernel>(d, grid_for((words + 8191) / 8192, f->n), 256, 0, *f);
    if (p->n)
        launch<update_kernel>(d, grid_for((elements - 1) / GCKPT_UPDATE_BLOCK + 1, p->n), 256, 0,
                              *p);
    f->n = p->n = 0;
}

/* The backend's fill. If it overlaps a collected fill, it launches the collected ones first. */
void fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    DeviceLock d(device_of(call), true);
    Fills *f = &deferred[d->number].fills;
    uint32_t *words = (uint32_t *)to;
    bool full = f->n == Fills::MOST || deferred[d->number].passes.n || deferred[d->number].product;
    for (int i = 0; i < f->n; i++)
        full = full || (words < f->at[i].to + f->at[i].n && f->at[i].to < words + n);
    if (full)
        launch_pending(d);
    if (n > 0)
        f->at[f->n++] = { words, n, word };
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
    for (int u = 0; u < pass->adds; u++)
        add(call, pass->gradient, (const float *)((const char *)pass->base + pass->more[u]),
            pass->elements);
    if (w->n == Passes::MOST || deferred[d->number].product)
        launch_pending(d);
    w->at[w->n++] = *pass;
}

/* >>exact/unary */
/* Computes y = F(x, o), with the op's attributes o. */
template <auto F> struct Unary {
    float o[2];
    __device__ void operator()(float *d, float x, float, float, int) const { *d = F(x, o); }
};

/* PUT stores or adds g * DERIV(at, o) in an element of dx. at: x, or y if DERIV takes y. */
template <auto DERIV, auto PUT> struct UnaryGrad {
    float o[2];
    __device__ void operator()(float *d, float at, float g, float, int accumulate) const
    {
        PUT(d, g, DERIV(at, o), accumulate, 1);
    }
};

/* Runs an elementwise op of one input: a row of GCKPTI_UNARY_OPS or GCKPTI_UNARY_OPS_WITH, with n
 * attributes, whose gradient reads what `reads` says. */
template <auto VALUE, auto DERIV, auto PUT>
void unary_by(const gckpt_call *call, bool backward, unsigned reads, int n)
{
    const gckpt_arg &x = call->in[0];
    const Values g = grad_out_of(call);
    const Values at = reads & GCKPT_IN(0) ? value_of(x) : reads ? out_of(call) : g;
    const gckpti_iter it = dense(gckpti_elements(&call->shape));
    const float *o = (const float *)call->attributes;
    const float first = n > 0 ? o[0] : 0.0f, second = n > 1 ? o[1] : 0.0f;
    if (backward)
        map(call, it, UnaryGrad<DERIV, PUT>{ { first, second } }, grad_of(x), at, g, NONE,
            x.accumulate);
    else
        map(call, it, Unary<VALUE>{ { first, second } }, out_of(call), value_of(x));
}

#define UNARY_WITH(name, flops, reads, value, rule, deriv, n, ...)                                 \
    void name##_by(const gckpt_call *call, bool backward)                                          \
    {                                                                                              \
        unary_by<gckpti_##name##_value, gckpti_##name##_slope, gckpti_put_##rule##_n>(             \
            call, backward, reads, n);                                                             \
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
        map(call, dense(gckpti_elements(&call->shape)), Copy(), y, x);
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

/* A sum in registers, which begins where its Sum does. fresh: it is compensated, stored or not, and
 * its compensation is +0 unless it accumulates. */
struct RunningSum {
    const Sum &to;
    int64_t column;
    bool compensated;
    float sum, comp;
    __device__ RunningSum(const Sum &s, int64_t c, bool fresh) : to(s), column(c)
    {
        compensated = fresh || s.comp;
        sum = wanted(s.at) && s.accumulate ? value_at(s.at, c) : 0.0f;
        comp = s.comp && (s.accumulate || !fresh) ? s.comp[c] : 0.0f;
    }
    __device__ void add(float x)
    {
        float next = comp;
        gckpti_sum_add(&sum, &next, x);
        comp = compensated ? next : comp; /* +0 changes no term */
    }
    __device__ void end(void) const
    {
        if (wanted(to.at))
            put_at(to.at, column, sum / to.divisor);
        if (wanted(to.at) && to.comp)
            to.comp[column] = comp;
    }
};

/* Base of the terms of sums over rows, a sum a column. Column is a thread's data about a column.
 * FRESH: see RunningSum. MIXED: terms may be read from bf16. AHEAD: see add_terms. */
struct Terms {
    static constexpr bool FRESH = false, MIXED = false;
    static constexpr int AHEAD = 32;
    typedef int64_t Column;
    __device__ static int64_t column_of(int64_t column, int64_t) { return column; }
};

/* Calls add(terms) for terms 0 to n - 1, in order, of which read(i, terms) sets up to two. Reads
 * AHEAD of them while it adds the previous ones, as a sum is a chain. If read() has no branch, all
 * its loads begin before the first one is complete. */
template <int AHEAD = 32, class READ, class ADD>
__device__ __forceinline__ void add_terms(int64_t n, const READ &read, const ADD &add)
{
    float term[AHEAD][2], next[AHEAD][2];
    const auto fetch = [&](int64_t i) {
        UNROLLED(k, AHEAD) next[k][0] = next[k][1] = 0.0f;
        UNROLLED(k, AHEAD) read(gckpti_min(i + k, n - 1), next[k]);
    };
    if (n > 0)
        fetch(0);
    for (int64_t i = 0; i < n; i += AHEAD) {
        UNROLLED(k, AHEAD) term[k][0] = next[k][0], term[k][1] = next[k][1];
        if (i + AHEAD < n)
            fetch(i + AHEAD);
        UNROLLED(k, AHEAD) if (i + k < n) add(term[k]);
    }
}

/* Computes one or two sums of each column over the rows of planes: of.read(column, row, terms) sets
 * their terms. A thread has a column. Four additions per term (5e) are about 16 cycles, so few
 * columns of many rows do not fill the chip. */
template <class T, bool BF16>
__global__ void column_sums_kernel(const __grid_constant__ T of, const __grid_constant__ Sum first,
                                   const __grid_constant__ Sum second, int64_t planes,
                                   int64_t rows, int64_t n)
{
    for (EACH(c, n)) {
        RunningSum a(first, c, T::FRESH), b(second, c, T::FRESH);
        for (int64_t plane = 0; plane < planes; plane++) {
            const typename T::Column column = of.column_of(c, plane);
            add_terms<T::AHEAD>(
                rows, [&](int64_t r, float *term) { of.template read<BF16>(column, r, term); },
                [&](const float *term) { a.add(term[0]), b.add(term[1]); });
        }
        a.end(), b.end();
    }
}

template <class T>
void column_sums(const gckpt_call *call, const T &of, const Sum &first, const Sum &second,
                 int64_t rows, int64_t n, int64_t planes = 1)
{
    if (!wanted(first.at) && !wanted(second.at))
        return;
    if constexpr (T::MIXED) {
        if (of.is_bf16())
            return run<column_sums_kernel<T, true>>(call, blocks_for(n, 32), 32, 0, of, first,
                                                    second, planes, rows, n);
    }
    run<column_sums_kernel<T, false>>(call, blocks_for(n, 32), 32, 0, of, first, second, planes,
                                      rows, n);
}

/* The terms of sums over rows of x and of y (rows,n), which have one type. One of them may be NONE;
 * then its terms are those of the other one, and are not used. KEPT: fp32, and see Terms::FRESH. */
template <bool KEPT = false> struct RowTerms : Terms {
    static constexpr bool FRESH = KEPT, MIXED = !KEPT;
    Values x, y;
    int64_t n;
    bool is_bf16(void) const { return x.bf16 || y.bf16; }
    template <bool BF16> __device__ void read(int64_t column, int64_t r, float *term) const
    {
        term[0] = value_as<BF16>(wanted(x) ? x : y, r * n + column);
        term[1] = value_as<BF16>(wanted(y) ? y : x, r * n + column);
    }
};

/* >>exact/broadcast */
/* ---- broadcasting: rules of gradients ---- */
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

/* Terms of sums of g, by a rule of gradients. `self` is indexed like the sums; it may be NONE, and
 * so may `other`. sums() sets the last fields: axes of the sums; axes over which they sum, of which
 * the innermost has these steps in g and `other`. */
struct Sums : Terms {
    static constexpr bool MIXED = true;
    static constexpr int AHEAD = 16; /* its terms are long */
    struct Column {
        int64_t g, other;
        float self;
    };
    Gradient rule;
    Values g, other, self;
    gckpti_iter column, plane;
    int64_t step[2];

    __device__ Column column_of(int64_t c, int64_t p) const
    {
        const Places at = places_of(column, c), first = places_of(plane, p);
        return { at.at[1] + first.at[1], at.at[2] + first.at[2], value_at(self, c) };
    }
    bool is_bf16(void) const { return g.bf16; }
    template <bool BF16> __device__ void read(const Column &c, int64_t r, float *term) const
    {
        const float x = value_as<BF16>(g, c.g + r * step[0]);
        rule(term, x, value_at(other, c.other + r * step[1]), c.self, 1); /* *term was +0 */
    }
};

/* Sums g, tensor 1 of the iterator, to tensor 0; `other` is tensor 2. */
void sums(const gckpt_call *call, const gckpti_iter &it, Sums s, const Sum &to)
{
    int64_t rows = 1;
    s.column.n = s.plane.n = 0, s.column.tensors = s.plane.tensors = 4;
    s.step[0] = s.step[1] = 0;
    for (int k = 0; k < it.n; k++) {
        const int64_t step[4] = { it.step[0][k], it.step[1][k], it.step[2][k], 0 };
        if (!step[0] && rows == 1)
            rows = it.size[k], s.step[0] = step[1], s.step[1] = step[2];
        else
            gckpti_iter_add_axis(step[0] ? &s.column : &s.plane, it.size[k], step);
    }
    column_sums(call, s, to, {}, rows, count_of(s.column), count_of(s.plane));
}

/* Returns the values of an input, or the words of an i32 one. */
Values words_of(const gckpt_arg &x)
{
    return x.index ? Values{ (const float *)(const void *)x.index, NULL } : value_of(x);
}

/* Gives input i its gradient by a rule, which reads input i and another one as `reads` says. */
void broadcast_gradient(const gckpt_call *call, int i, int other, Rule rule, unsigned reads)
{
    const gckpt_arg *in = &call->in[i], *from = &call->in[other];
    const Values g = grad_out_of(call), x = reads & GCKPT_IN(i) ? value_of(*in) : NONE;
    const Values y = reads & GCKPT_IN(other) ? words_of(*from) : NONE;
    if (!wanted(*in) || (in->grad == g.f32 && in->grad_bf16 == g.bf16)) /* g is in place already */
        return;
    const gckpti_iter it = iterate(call->shape, in->shape, call->shape, from->shape, in->shape);
    if (in->compensation)
        sums(call, it, { {}, { rule }, g, y, x }, sum_of(*in));
    else
        map(call, it, Gradient{ rule }, grad_of(*in), g, y, x, in->accumulate);
}

/* Computes a op b. */
template <auto F> struct Binary {
    __device__ void operator()(float *d, float a, float b, float, int) const { *d = F(a, b); }
};

/* Defines how an op of GCKPTI_BINARY_OPS runs. grad_a, reads_a: the rule of the first input's
 * gradient, and the inputs that this rule reads. */
#define BINARY(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)                        \
    void name##_by(const gckpt_call *call, bool backward)                                          \
    {                                                                                              \
        const gckpt_arg &a = call->in[0], &b = call->in[1];                                        \
        if (!backward)                                                                             \
            return map(call, iterate(call->shape, call->shape, a.shape, b.shape, b.shape),         \
                       Binary<gckpti_##name##_value>(), out_of(call), value_of(a), value_of(b));   \
        broadcast_gradient(call, 0, 1, GRAD_##grad_a, reads_a);                                    \
        broadcast_gradient(call, 1, 0, GRAD_##grad_b, reads_b);                                    \
    }
GCKPTI_BINARY_OPS(BINARY)
#undef BINARY

struct Where { /* a where the condition is true, else b */
    bool is_i32;
    __device__ void operator()(float *d, float condition, float a, float b, int) const
    {
        *d = holds(condition, is_i32) ? a : b;
    }
};

void where_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *in = call->in;
    const bool is_i32 = in[0].index != NULL;
    if (!backward)
        return map(call, iterate(call->shape, call->shape, in[0].shape, in[1].shape, in[2].shape),
                   Where{ is_i32 }, out_of(call), words_of(in[0]), value_of(in[1]),
                   value_of(in[2]));
    if (in[0].grad && !in[0].accumulate)
        fill(call, in[0].grad, 0, gckpti_elements(&in[0].shape));
    broadcast_gradient(call, 1, 0, is_i32 ? WHERE_I32 : WHERE, GCKPT_IN(0));
    broadcast_gradient(call, 2, 0, is_i32 ? ELSEWHERE_I32 : ELSEWHERE, GCKPT_IN(0));
}

/* >>exact/shapes */
/* ---- ops that move elements ---- */
/* Moves elements in n parts, like gckpti_run_moves. Where several places of a part go to the same
 * element (the gradient of a repeated edge), each place is added by its own launch, in order. */
void run_moves(const gckpt_call *call, bool backward, int n, gckpti_move_fn *axes)
{
    for (int i = 0; i < n; i++) {
        const bool more = i >= call->inputs;
        const gckpt_arg &in = call->in[more ? 0 : i];
        const Values from = backward ? grad_out_of(call) : value_of(in);
        const Results to = backward ? grad_of(in) : out_of(call);
        const int accumulate = backward && (in.accumulate || more);
        int64_t places = 1, next = 0;
        gckpti_iter move, it;
        axes(&move, call, i); /* tensor 0 is the input, tensor 1 the result */
        it = move;
        for (int t = 0; t < 4; t++) {
            const int as = t ? backward : !backward;
            memcpy(it.step[t], move.step[as], sizeof *it.step);
            it.offset[t] = move.offset[as];
        }
        for (int k = 0; k < it.n; k++)
            if (it.step[0][k] == 0)
                places = it.size[k], next = it.step[1][k], it.size[k] = 1;
        for (int64_t place = 0; place < places; place++, it.offset[1] += next)
            map(call, it, Copy(), to, from, NONE, NONE, accumulate);
    }
}

#ifndef GCKPT_NO_AXES
template <gckpti_move_fn *AXES> void moves_by(const gckpt_call *call, bool backward)
{
    run_moves(call, backward, call->inputs, AXES);
}

void pad_by(const gckpt_call *call, bool backward)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    const bool by_value = p->mode == GCKPT_PAD_VALUE;
    if (!backward && by_value)
        fill(call, call->out, gckpti_bits(p->value), gckpti_elements(&call->shape));
    run_moves(call, backward, by_value ? 1 : 3, gckpti_pad_move);
}
#endif

/* Copies n rows between a cache of `held` rows of c elements, where position p is row p % held, and
 * a tensor of the positions from the current one plus `first` on; positions below 0 are 0. */
struct Ring {
    gckpt_arg x;
    Results y;
    int64_t n, held, c, first;
    bool writes; /* y is the cache, else x is */
};
__device__ void ring_at(int64_t i, const Ring &s, const StepParams *params)
{
    const int64_t row = i / s.c, position = params->position + s.first + row % s.n;
    const int64_t cached = (row / s.n * s.held + position % s.held) * s.c + i % s.c;
    if (position < 0)
        put_at(s.y, i, 0.0f);
    else
        gckpti_put_element(&s.x, s.writes ? i : cached, s.y.f32, s.y.bf16, s.writes ? cached : i);
}

void cache_by(const gckpt_call *call, bool)
{
    const int64_t *x = call->in[0].shape.d, *y = call->shape.d;
    const Ring s = { call->in[0], out_of(call), x[1], y[1], y[2], 0, true };
    for_each<ring_at>(call, x[0] * x[1] * x[2], s, params_of(call));
}

/* The gradient of a slice: that of the result in n of each `whole` elements, from `begin` on, and 0
 * in the others. */
struct SliceGradient {
    Values g;
    Results dx;
    int64_t whole, begin, n;
    template <int N> __device__ void at(int64_t i) const
    {
        const int64_t block = i / whole, j = i - block * whole - begin;
        store(dx, i, j >= 0 && j < n ? load<N>(g, block * n + j) : Vec<float, N>{});
    }
};

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    const gckpt_arg &in = call->in[0];
    const int64_t *x = in.shape.d, *y = call->shape.d;
    const Ring latest = { in, out_of(call), y[1], x[1], y[2], p->relative - y[1], false };
    if (p->relative && p->axis)
        return for_each<ring_at>(call, y[0] * y[1] * y[2], latest, params_of(call));
    if (!backward || in.accumulate || !wanted(in))
        return run_moves(call, backward, 1, gckpti_slice_move);
    const gckpti_axis_split axes = gckpti_split_at(&in.shape, p->axis);
    const int64_t begin = gckpti_join_words(p->begin), whole = axes.size * axes.inner;
    const SliceGradient part = { grad_out_of(call), grad_of(in), whole, begin * axes.inner,
                                 gckpti_elements(&call->shape) / axes.outer };
    for_each_vec<8>(call, part, axes.outer * whole,
                    (whole | part.begin | part.n) % 8 == 0 && aligned(part.g, part.dx));
}

/* ---- embed, gather ---- */
/* Table rows that are read. gather: a sample has `each` indices and a table of `table` rows. */
struct RowIndex {
    const int32_t *index;
    int64_t each, table;
    __device__ __forceinline__ int64_t operator[](int64_t r) const
    {
        return index[r] + (each ? r / each * table : 0);
    }
};

/* Copies the table row of each index; rows have n elements. */
struct TableLines {
    const float *table;
    RowIndex index;
    Results out;
    int64_t n;
    template <int N> __device__ void at(int64_t i) const
    {
        store(out, i, load<N>(table, index[i / n] * n + i % n));
    }
};

/* A table row's gradient adds the rows of g with its index, in order: rows first to end - 1 of
 * `order`, in which g's rows are sorted by index. */
struct Sorted {
    unsigned *order, *first, *end; /* end is 0 for table rows without rows of g */
};

int64_t embed_workspace(const gckpt_call *call, bool backward)
{
    return backward ? 2 * gckpti_rows(&call->in[0].shape) + gckpti_rows(&call->shape) : 0;
}

/* Finds the place of row r among the rows of its table, by reading all of its indices. */
__device__ void embed_sort(int64_t r, const RowIndex &index, const Sorted &s, int64_t rows)
{
    const int64_t each = index.each ? index.each : rows, first = r / each * each;
    const int32_t *all = index.index + first, mine = index.index[r];
    unsigned less = 0, same = 0, before = 0;
#pragma unroll 8
    for (int i = 0; i < (int)each; i++) {
        less += all[i] < mine, same += all[i] == mine;
        before += all[i] == mine && i < (int)(r - first);
    }
    s.order[first + less + before] = (unsigned)r;
    s.first[index[r]] = (unsigned)first + less;
    s.end[index[r]] = (unsigned)first + less + same;
}

/* A block loops over table rows; a thread adds up a column. */
__global__ void embed_backward_kernel(Sorted s, Values g, float *d, int64_t table, int64_t n,
                                      int accumulate)
{
    const int64_t j = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    for (int64_t v = blockIdx.x; v < table && j < n; v += gridDim.x) {
        const int64_t first = s.end[v] ? s.first[v] : 0, count = s.end[v] - first;
        float sum = accumulate ? d[v * n + j] : 0.0f;
        add_terms<8>(
            count,
            [&](int64_t i, float *term) { term[0] = value_at(g, s.order[first + i] * n + j); },
            [&](const float *term) { sum += term[0]; });
        if (count || !accumulate)
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
    const TableLines copy = { x->data, index, out_of(call), n };
    if (!backward)
        for_each_vec<8>(call, copy, rows * n, n % 8 == 0 && aligned(copy.table, copy.out));
    if (!backward || !x->grad)
        return;
    unsigned *workspace = (unsigned *)call->workspace;
    const Sorted sorted = { workspace + 2 * table, workspace, workspace + table };
    fill(call, sorted.end, 0, table);
    for_each<embed_sort>(call, rows, index, sorted, rows);
    const dim3 grid(blocks_for(table, 1).x, (unsigned)((n + 255) / 256));
    run<embed_backward_kernel>(call, grid, 256, 0, sorted, grad_out_of(call), x->grad, table, n,
                               x->accumulate);
}

/* >>exact/axis_ops */
#ifndef GCKPT_NO_AXES
struct Quotient { /* a / divisor */
    float divisor;
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, divisor != 1.0f ? a / divisor : a, accumulate);
    }
};

__device__ void sum_of_row(int64_t r, const float *x, float *out, int64_t n, float divisor)
{
    gckpti_store_n_warp(out + r, gckpti_sum_from_warp(x + r * n, n, 0.0f) / divisor, 1);
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
    if (backward)
        map(call, iterate(x->shape, x->shape, each, each, each), Quotient{ divisor }, grad_of(*x),
            grad_out_of(call), NONE, NONE, x->accumulate);
    else if (axis == -1 || axis == x->shape.n - 1)
        for_each_row<sum_of_row>(call, v.outer, x->data, call->out, v.size, divisor);
    else
        sums(call, iterate(x->shape, each, x->shape, x->shape, x->shape),
             { {}, { GRAD_identity }, value_of(*x), NONE, NONE },
             { out_of(call), NULL, 0, divisor });
}

/* ---- max, argmax, top_k: the k elements that come first in the order of gckpti_precedes ---- */
/* Computes the results of line i. Each is the first element of those after the one before it. */
__device__ void max_of(int64_t i, const gckpti_axis_split &v, const float *x, float *out,
                       int32_t *index, int k)
{
    const float *from = x + i / v.inner * v.size * v.inner + i % v.inner;
    int64_t to = i / v.inner * k * v.inner + i % v.inner;
    float limit = 0.0f;
    int32_t last = -1;
    for (int result = 0; result < k; result++, to += v.inner) {
        float best = 0.0f;
        int32_t at = -1;
        for (int32_t n = lane_index(); n < v.size; n += 32) {
            const float value = from[n * v.inner];
            if ((last < 0 || gckpti_precedes(limit, last, value, n)) &&
                (at < 0 || gckpti_precedes(value, n, best, at)))
                best = value, at = n;
        }
        for (int h = 16; h; h /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, h);
            const int32_t n = __shfl_xor_sync(0xffffffffu, at, h);
            if (n >= 0 && (at < 0 || gckpti_precedes(other, n, best, at)))
                best = other, at = n;
        }
        limit = best, last = at;
        if (lane_index() == 0 && out)
            out[to] = best;
        if (lane_index() == 0 && index)
            index[to] = at;
    }
}

/* Passes the gradient of result e, one of a line's k, to its element. */
__device__ void max_gradient_at(int64_t e, const gckpti_axis_split &v, const gckpt_arg &x,
                                const float *g, const int32_t *index, int k)
{
    const int64_t at = (e / v.inner / k * v.size + index[e]) * v.inner + e % v.inner;
    gckpti_put(&x.grad[at], g[e], x.accumulate);
}

/* Computes values and their indices or, backward, the gradient; without VALUES, only indices. A
 * line has one result or, if MANY, as many as the second attribute. */
template <bool VALUES, bool MANY> void max_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const int *o = (const int *)call->attributes, k = MANY ? o[1] : 1;
    const gckpti_axis_split v = gckpti_split_at(&x->shape, o[0]);
    const int64_t lines = v.outer * v.inner;
    float *out = VALUES ? call->out : NULL;
    int32_t *index = (int32_t *)(VALUES ? call->saved : call->out);
    if (!backward)
        return for_each_row<max_of>(call, lines, v, x->data, out, index, k);
    if (x->grad && !x->accumulate)
        fill(call, x->grad, 0, gckpti_elements(&x->shape));
    if (x->grad)
        for_each<max_gradient_at>(call, lines * k, v, *x, call->grad_out, index, k);
}
#endif

/* >>exact/rotary */
/* Angles of `count` pairs of columns, in 2^-64 turns for each position. */
struct Angles {
    enum { MOST = 256 };
    uint64_t at[MOST];
    int count;
    float scale, direction;
};

/* Computes the pairs' columns of rotary's table (T,2,half) of cosines and sines, for positions from
 * `first` (plus the current position, if params is not NULL) on. */
__device__ void rotary_table_at(int64_t i, const Angles &a, float *table, int64_t half,
                                uint64_t first, const StepParams *params)
{
    const int64_t position = i / a.count, pair = i - position * a.count;
    float sine, cosine;
    first += (uint64_t)position + (params ? (uint64_t)params->position : 0);
    gckpti_sincos_of(gckpti_rotary_angle(first * a.at[pair]), &sine, &cosine);
    table += position * 2 * half + pair;
    table[0] = gckpti_mul(cosine, a.scale);
    table[half] = gckpti_mul(a.direction * sine, a.scale);
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
        const int64_t from = head * d + i, to = from + half;
        const float *angle = table + head / heads % t * 2 * half + i;
        Vec<float, N> a, b = load<N>(x, to), c, e;
        if (i >= half)
            return write_vec<N>(y, to, N, true, b.v, accumulate);
        a = load<N>(x, from);
        const Vec<float, N> cosine = load<N>(angle), sine = load<N>(angle + half);
        UNROLLED(k, N) {
            c.v[k] = gckpti_fma(a.v[k], cosine.v[k], -(b.v[k] * sine.v[k]));
            e.v[k] = gckpti_fma(b.v[k], cosine.v[k], a.v[k] * sine.v[k]);
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
    const double ratio = listed ? 1.0 : gckpti_rotary_ratio(o->base, half);
    double ticks = GCKPTI_TICKS_PER_RADIAN;
    Angles a = { {}, 0, o->columns ? o->scale : 1.0f, backward ? -1.0f : 1.0f };
    if (!wanted(y))
        return;
    for (int64_t pair = 1; pair <= half; pair++, ticks *= ratio) {
        a.at[a.count++] = gckpti_rotary_wrap(listed ? ticks * (double)listed[pair - 1] : ticks);
        if (a.count < Angles::MOST && pair < half)
            continue;
        for_each<rotary_table_at>(call, t * a.count, a, table + pair - a.count, half,
                                  (uint64_t)o->position, call->training ? NULL : params_of(call));
        a.count = 0;
    }
    const int add = backward && in.accumulate;
    const Rotate rotate = { x, y, table, t, o->heads, (int)half, (int)d, add };
    for_each_vec<8>(call, rotate, n, aligned(x, y, table) && half % 8 == 0 && d % 8 == 0);
}

/* >>exact/panel */
/* Products C (m,n) = A (m,k) B (k,n) of a gckpti_product, with the bits of gckpti_fp32_plain and
 * gckpti_mixed_plain. All ops made of products get these from `products` (products.cu).
 *
 * A block computes a tile of C, a thread TM x TN elements of it, each as one chain over k in one
 * register (in bf16 plans by blocks of terms, in three registers). Rows and columns are divided
 * into tiles, k never is (manual, 5c). A and B come through shared memory in stages of DEPTH terms:
 * while a stage is used, each thread loads its part of the next one into registers.
 * Lanes are in Z-order, 4 x 8 of them, so that lanes i and i^1 share rows, i and i^2 columns: a
 * load takes 2 passes over shared memory instead of 4. Lines are 4 floats longer than a tile is
 * wide, so that data along k can be written across the lines without bank conflicts. */
enum { DEPTH = 8 };

/* Flags of how a thread reads 4 adjacent elements (a chunk) of an operand. */
enum {
    ALONG = 1,  /* chunks lie along k, else across k: along rows of C (B: columns) */
    ALIGNED = 2, /* one load reads a chunk */
    NARROW = 4 /* bf16 */
};

/* A matrix operand: its address and its strides, in bytes. Like Gather (conv.cu), it tells where a
 * chunk begins, moves to the one DEPTH terms later, and reads it. */
struct Operand {
    typedef const char *Cursor;
    const char *base;
    int64_t row, step, matrix; /* to the next row, term, matrix */
    int64_t element, panel;    /* to the next element of a chunk; to the term DEPTH later */
    int flags;

    __device__ __forceinline__ Cursor cursor(int64_t of_matrix, int64_t x, int64_t k) const
    {
        return base + of_matrix * matrix + x * row + k * step;
    }
    __device__ __forceinline__ void advance(Cursor *at) const { *at += panel; }
    template <bool MIXED> __device__ __forceinline__ float element_at(Cursor at) const
    {
        if (!MIXED)
            return *(const float *)at;
        if (flags & NARROW)
            return gckpti_flush_to_zero(gckpti_from_bf16(*(const uint16_t *)at));
        return gckpti_from_bf16(gckpti_to_bf16(*(const float *)at));
    }
    /* Reads the first n elements of a chunk. */
    template <bool MIXED> __device__ __forceinline__ float4 read(Cursor at, int n) const
    {
        if (!MIXED && flags & ALIGNED)
            return *(const float4 *)at;
        return { element_at<MIXED>(at), n > 1 ? element_at<MIXED>(at + element) : 0.0f,
                 n > 2 ? element_at<MIXED>(at + 2 * element) : 0.0f,
                 n > 3 ? element_at<MIXED>(at + 3 * element) : 0.0f };
    }
};

/* An index that counts columns of lines of images, and steps from each to the next, in elements. */
struct Place {
    int image, line, column;
};
struct Grid {
    int lines, columns;
    int64_t steps[3]; /* images, lines, columns */

    __device__ Place at(int64_t i) const
    {
        const int64_t above = i / columns, before = above / lines;
        return { (int)before, (int)(above - before * lines), (int)(i - above * columns) };
    }
    __device__ void advance(Place *p, int n) const
    {
        for (p->column += n; p->column >= columns; p->column -= columns)
            if (++p->line == lines)
                p->line = 0, p->image++;
    }
    __device__ int64_t offset(int64_t image, int64_t line, int64_t column) const
    {
        return image * steps[0] + line * steps[1] + column * steps[2];
    }
};

/* A product. Operands are Operand or, for convolutions, Gather. */
template <class A, class B> struct Product {
    static constexpr bool SCATTERED = !std::is_same<B, Operand>::value; /* rows of c, by `rows` */
    gckpti_product t;
    A a;
    B b;
    bool aligned;     /* rows of c can be written 16 bytes at a time */
    int64_t c_matrix; /* elements from a matrix of c to the next */
    Grid rows;

    /* Returns the offset of a row of c. */
    __device__ __forceinline__ int64_t c_row(int matrix, int64_t row) const
    {
        const Place to = SCATTERED ? rows.at(row) : Place{};
        return matrix * c_matrix +
               (SCATTERED ? rows.offset(to.image, to.line, to.column) : row * t.c_stride);
    }
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
        flags |= ALIGNED;
    return { base,        x->stride * size,           x->k_stride * size, x->batch_stride * size,
             stride * size, DEPTH * x->k_stride * size, flags };
}

/* An operand's part of a stage: DEPTH lines of WIDTH elements; a thread reads CHUNKS chunks. */
template <class OF, int WIDTH, int THREADS, bool MIXED> struct Panel {
    enum {
        LINE = WIDTH + 4,
        ALL = WIDTH * DEPTH / 4,
        CHUNKS = (ALL + THREADS - 1) / THREADS,
        FLOATS = DEPTH * LINE
    };
    typename OF::Cursor from[CHUNKS];
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
    __device__ __forceinline__ void begin(const OF &f, int64_t matrix, int64_t x0, int64_t all)
    {
        bool along = f.flags & ALONG;
        UNROLLED(i, CHUNKS) {
            int64_t x = x0 + row_of(i, along), left = in_range(i) ? all - x : 0;
            x = left > 0 ? x : 0;
            left = left > 0 ? left : all;
            valid[i] = along || left > 4 ? 4 : (int)left;
            from[i] = f.cursor(matrix, x, k_of(i, along));
        }
    }
    /* Reads the next panel, of `terms` terms, into registers. */
    __device__ __forceinline__ void fetch(const OF &f, int terms)
    {
        bool along = f.flags & ALONG;
        UNROLLED(i, CHUNKS) {
            int p = k_of(i, along);
            if (in_range(i) && p < terms)
                regs[i] = f.template read<MIXED>(from[i],
                                                 along && terms - p < 4 ? terms - p : valid[i]);
            f.advance(&from[i]);
        }
    }
    /* Writes the registers to shared memory. */
    __device__ __forceinline__ void put(const OF &f, float *to)
    {
        bool along = f.flags & ALONG;
        UNROLLED(i, CHUNKS) {
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
enum { ROW_LANES = 4, COLUMN_LANES = 8 };
template <int BM, int BN, int TM, int TN> struct TileCoords {
    enum { ACROSS = BN / (COLUMN_LANES * TN) };
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
    /* Return row and column of such an element in C. */
    __device__ __forceinline__ int64_t c_row(int i) const { return (int64_t)tile_row * BM + y(i); }
    __device__ __forceinline__ int64_t c_column(int j) const
    {
        return (int64_t)tile_column * BN + x(j);
    }
};

/* Loads a thread's elements: C's old value, the bias or +0 (as gckpti_mixed_start). END: stores. */
template <int BM, int BN, int TM, int TN, bool MIXED, bool END, class Q>
__device__ __forceinline__ void init_or_store(const Q &q, float (*c)[TN])
{
    enum { N = TN % 4 ? 2 : 4 }; /* elements at a time */
    const gckpti_product &t = q.t;
    const TileCoords<BM, BN, TM, TN> here(t, gckpti_thread_index(), gckpti_block_index());
    const bool of_c = END || t.accumulate;
    const Results out = { t.c, MIXED && !t.c ? t.c_halves : NULL };
    const Values from = of_c ? Values(out) : Values{ t.initial, NULL };
    UNROLLED(i, TM) {
        const int64_t row = here.c_row(i);
        const int64_t line = of_c ? q.c_row(here.matrix, row)
                                  : here.matrix * t.n + row * t.initial_stride;
        UNROLL for (int j = 0; j < TN; j += N)
        {
            const int64_t column = here.c_column(j), left = row < t.m ? t.n - column : 0;
            if (END)
                write_vec<N>(out, line + column, left, q.aligned, &c[i][j]);
            else
                read_vec<N>(from, line + column, left, of_c && q.aligned, &c[i][j]);
        }
        UNROLL for (int j = 0; j < TN && MIXED && !END; j++) c[i][j] =
            gckpti_flush_to_zero(c[i][j]);
    }
}

/* Returns blocks per multiprocessor: 16 warps with 128 registers a thread, or 12 with more. */
constexpr int blocks_per_sm(int bm, int bn, int elements)
{
    return 512 * elements / (bm * bn) - (bm > bn && elements == 64);
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

/* Computes a tile of BM x BN. Terms of a last stage that is not full are added one by one, since
 * padding by zeros would turn -0 into +0. So are the terms of a stage within which a block ends. */
template <int BM, int BN, int TM, int TN, bool MIXED, class A, class B>
__global__ void __launch_bounds__(BM *BN / (TM * TN), blocks_per_sm(BM, BN, TM *TN))
    product_kernel(const __grid_constant__ Product<A, B> q)
{
    enum { THREADS = BM * BN / (TM * TN) };
    typedef Panel<A, BM, THREADS, MIXED> PanelA;
    typedef Panel<B, BN, THREADS, MIXED> PanelB;
    enum { AFTER_A = PanelA::FLOATS, STAGE = AFTER_A + PanelB::FLOATS };
    SHARED(float4, stages, [2 * STAGE / 4]);
    const TileCoords<BM, BN, TM, TN> here(q.t, (int)threadIdx.x, (int)blockIdx.x);
    Accumulators<TM, TN, MIXED> l;
    init_or_store<BM, BN, TM, TN, MIXED, false>(q, l.c);
    l.begin(q.t);

    PanelA a;
    PanelB b;
    a.begin(q.a, here.matrix, (int64_t)here.tile_row * BM, q.t.m);
    b.begin(q.b, here.matrix, (int64_t)here.tile_column * BN, q.t.n);
    float x[2][TM], y[2][TN];
    const auto load_term = [&](const float *line, int p, int to) {
        const float *columns = line + AFTER_A + p * PanelB::LINE + here.column0;
        fragment<TM, ROW_LANES>(line + p * PanelA::LINE + here.row0, here.row, x[to]);
        fragment<TN, COLUMN_LANES>(columns, here.column, y[to]);
    };
    const auto fetch = [&](int left) {
        a.fetch(q.a, min(left, (int)DEPTH)), b.fetch(q.b, min(left, (int)DEPTH));
    };
    const auto put = [&](float *stage) { a.put(q.a, stage), b.put(q.b, stage + AFTER_A); };
    float *line = (float *)stages, *next = line + STAGE;
    fetch((int)q.t.k), put(line);
    for (int left = (int)q.t.k; left > 0; left -= DEPTH) {
        __syncthreads(); /* this stage is complete; the next one's memory is free */
        load_term(line, 0, 0);
        if (left > DEPTH)
            fetch(left - DEPTH);
        const bool whole = left >= DEPTH && (!MIXED || l.left >= DEPTH);
        if (whole) {
            UNROLLED(p, DEPTH) {
                if (p + 1 < DEPTH)
                    load_term(line, p + 1, (p + 1) % 2);
                l.add(MIXED && p % 2 && !l.one, x[p % 2], y[p % 2]);
            }
            l.advance(DEPTH, q.t);
        }
        for (int p = 0; !whole && p < min(left, (int)DEPTH); p++) {
            load_term(line, p, 0);
            l.add(l.odd, x[0], y[0]);
            l.advance(1, q.t);
        }
        l.swap_chains();
        if (left > DEPTH)
            put(next);
        float *const used = line;
        line = next, next = used;
    }
    init_or_store<BM, BN, TM, TN, MIXED, true>(q, l.c);
}

template <int BM, int BN, int TM, int TN, bool MIXED, class A, class B>
void run_tile(const gckpt_call *call, const Product<A, B> *q)
{
    int64_t tiles = (q->t.m + BM - 1) / BM * ((q->t.n + BN - 1) / BN) * q->t.batch;
    dim3 grid((unsigned)tiles), block(BM * BN / (TM * TN));
    run<product_kernel<BM, BN, TM, TN, MIXED, A, B>>(call, grid, block, 0, *q);
}

template <class Q> struct TileOf {
    int m, n;
    double speed; /* estimated fma per 100 issue slots; small tiles wait for L2 */
    void (*run)(const gckpt_call *call, const Q *q);
};
typedef Product<Operand, Operand> Gemm;
typedef TileOf<Gemm> Tile;
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
template <class Q>
const TileOf<Q> *best_tile(const TileOf<Q> *tiles, int count, const gckpti_product *t, int sms)
{
    const TileOf<Q> *best = NULL;
    double least = 0;
    for (const TileOf<Q> *i = tiles; i < tiles + count; i++) {
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

Gemm gemm_of(const gckpti_product *t, int mixed)
{
    return { *t,
             operand_of(&t->a, t->m, t->k, mixed),
             operand_of(&t->b, t->n, t->k, mixed),
             t->c_stride % 4 == 0 && aligned(t->c, t->c_halves),
             t->m * t->c_stride,
             {} };
}

/* Runs a product (a gckpti_product_fn). */
void products(const gckpt_call *call, const gckpti_product *t)
{
    const int mixed = call->precision != GCKPT_FP32;
    const Gemm q = gemm_of(t, mixed);
    const Tile *tile = mixed ? best_tile(MIXED_TILES, 2, t, sm_count(call))
                             : best_tile(EXACT_TILES, 6, t, sm_count(call));
    tile->run(call, &q);
}

/* Runs an op by F(.., PRODUCTS). A third input is a bias: its gradient is the sum of rows of g. */
template <auto F, auto PRODUCTS> void products_by(const gckpt_call *call, bool backward)
{
    const RowTerms<> of = { {}, grad_out_of(call), NONE, gckpti_last(&call->shape) };
    F(call, backward, PRODUCTS);
    if (backward && call->inputs == 3)
        column_sums(call, of, sum_of(call->in[2]), {}, gckpti_rows(&call->shape), of.n);
}

/* >>exact/conv */
#ifndef GCKPT_NO_IMAGES
/* ---- conv2d and its transpose: products with a matrix that is not stored. It has a row for each
 * place (windows of all images or, for UP, which runs in phases, pixels) and a column for each
 * channel of each tap, which is 0 outside the image. DW multiplies its transpose. ---- */
struct Gather {
    struct Cursor {
        int group;
        Place place, tap;
    };
    const float *base;
    Grid places, taps; /* steps of the latter, by line, pixel and channel, are those in w */
    int stride[2], dilation[2], first[2], size[2]; /* of lines and pixels: see gckpti_axis_map */
    int flags;                                     /* ALONG: rows are places, else terms are */

    __device__ __forceinline__ Cursor cursor(int64_t group, int64_t x, int64_t k) const
    {
        const bool along = flags & ALONG;
        return { (int)group, places.at(along ? x : k), taps.at(along ? k : x) };
    }
    __device__ __forceinline__ void advance(Cursor *at) const
    {
        flags & ALONG ? taps.advance(&at->tap, DEPTH) : places.advance(&at->place, DEPTH);
    }
    /* Returns the address of a channel of a tap, or NULL outside the image. */
    __device__ __forceinline__ const float *address(const Cursor &at) const
    {
        const int y = at.place.line * stride[0] + at.tap.image * dilation[0] + first[0];
        const int x = at.place.column * stride[1] + at.tap.line * dilation[1] + first[1];
        const bool inside = y >= 0 && y < size[0] && x >= 0 && x < size[1];
        const int64_t channel = (int64_t)at.group * taps.columns + at.tap.column;
        return inside ? base + places.offset(at.place.image, y, x) + channel : NULL;
    }
    __device__ __forceinline__ float value(const Cursor &at) const
    {
        const float *x = address(at);
        return x ? *x : 0.0f;
    }
    template <bool> __device__ __forceinline__ float4 read(Cursor at, int n) const
    {
        float v[4] = {};
        const float *x = address(at);
        if (flags & ALIGNED)
            return x ? *(const float4 *)x : float4{ 0.0f, 0.0f, 0.0f, 0.0f };
        UNROLL for (int e = 0; e < 4; e++, taps.advance(&at.tap, 1)) v[e] =
            e < n ? value(at) : 0.0f;
        return { v[0], v[1], v[2], v[3] };
    }
};

Gather gather_of(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const gckpti_axis_map *r = s->r;
    const bool up = s->kind == GCKPTI_CONV_UP;
    const int64_t channels = up ? z->o : z->c, line = r[1].size * channels, tap = z->group_c * z->o;
    Gather g = { s->from,
                 { (int)r[0].results, (int)r[1].results, { r[0].size * line, line, channels } },
                 { (int)r[1].taps, (int)(up ? z->group_o : z->group_c),
                   { r[0].tap_step * z->taps[1] * tap, r[1].tap_step * tap, up ? 1 : z->o } } };
    for (int i = 0; i < 2; i++) {
        g.stride[i] = (int)r[i].stride, g.dilation[i] = (int)r[i].dilation;
        g.first[i] = (int)r[i].first, g.size[i] = (int)r[i].size;
    }
    if (!g.taps.lines) /* no tap contributes to this phase */
        g.taps.lines = 1;
    const bool vecs = g.taps.columns % 4 == 0 && channels % 4 == 0 && aligned(g.base);
    g.flags = (s->kind == GCKPTI_CONV_DW ? 0 : ALONG) | (vecs ? ALIGNED : 0);
    return g;
}

/* Returns the w of UP as an operand: its places are columns, its lines and pixels are taps. */
Gather gather_taps(const Gather &image, const gckpti_conv *s, const float *w)
{
    Gather g = { w, { 1, 1, { s->z->o, image.taps.steps[0], image.taps.steps[1] } },
                 image.taps, {}, { 1, 1 } };
    for (int i = 0; i < 2; i++)
        g.size[i] = (int)s->r[i].taps;
    g.flags = ALONG | (g.taps.columns % 4 == 0 && s->z->o % 4 == 0 && aligned(w) ? ALIGNED : 0);
    return g;
}

/* For groups of few columns: a thread computes a result, adjacent threads adjacent channels. */
typedef Product<Gather, Gather> Scattered;
__global__ void conv_direct_kernel(const __grid_constant__ Scattered q, const float *w,
                                   int64_t w_group, int64_t w_column)
{
    const gckpti_product &t = q.t;
    const int64_t channels = t.n * t.batch;
    for (EACH(e, t.m * channels)) {
        const int64_t row = e / channels, channel = e - row * channels;
        const int group = (int)(channel / t.n);
        const float *weights = w + group * w_group + (channel - group * t.n) * w_column;
        Gather::Cursor at = q.a.cursor(group, row, 0);
        float *c = t.c + q.c_row(0, row) + channel;
        float d = t.accumulate ? *c : t.initial ? t.initial[channel] : 0.0f;
        for (int64_t k = 0; k < t.k; k++, q.a.taps.advance(&at.tap, 1)) {
            const int64_t term = q.a.taps.offset(at.tap.image, at.tap.line, at.tap.column);
            d = gckpti_fma(q.a.value(at), weights[term], d);
        }
        *c = d;
    }
}

/* Tiles of 64 x 16 are for few columns, of 16 x 16 for few results of long chains. */
template <class A, class B> void conv_by(const gckpt_call *call, const Product<A, B> &q)
{
    static const TileOf<Product<A, B>> TILES[] = {
        { 64, 64, 82, run_tile<64, 64, 4, 8, false, A, B> },
        { 64, 16, 60, run_tile<64, 16, 4, 2, false, A, B> },
        { 16, 16, 40, run_tile<16, 16, 2, 2, false, A, B> },
    };
    best_tile(TILES, 3, &q.t, sm_count(call))->run(call, &q);
}

/* Runs a convolution (a gckpti_conv_fn). */
void conv(const gckpt_call *call, gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const gckpti_axis_map *r = s->r;
    const bool up = s->kind == GCKPTI_CONV_UP, dw = s->kind == GCKPTI_CONV_DW;
    const int64_t places = z->rows * r[0].results * r[1].results, all = up ? z->c : z->o;
    const int64_t terms = r[0].taps * r[1].taps * (up ? z->group_o : z->group_c);
    const float *w = s->w + (dw ? 0 : gckpti_conv_tap(z, r, 0, 0) * z->group_c * z->o);
    const gckpti_operand columns = { w, NULL, 1, z->o, z->group_o, NULL };
    gckpti_product t = gckpti_product_of(dw ? terms : places, up ? z->group_c : z->group_o,
                                         dw ? places : terms, {}, columns, s->out);
    t.batch = z->window.groups, t.c_stride = all;
    t.initial = s->start, t.accumulate = s->accumulate;
    t.c += up ? gckpti_conv_place_of(s, 0, 0, 0) * all : 0;
    const bool vecs = t.n % 4 == 0 && all % 4 == 0 && aligned(t.c);
    const int64_t *side = up ? z->image : z->windows;
    const Grid to = { (int)r[0].results, (int)r[1].results,
                      { side[0] * side[1] * all, r[0].out_step * side[1] * all,
                        r[1].out_step * all } };
    const Gather image = gather_of(s);
    const Scattered q = { t, image, gather_taps(image, s, w), vecs, t.n, to };
    if (t.n < 8 && !dw)
        run_each<conv_direct_kernel>(call, t.m * all, q, w, z->group_o, up ? z->o : 1);
    else if (up)
        conv_by(call, q);
    else
        conv_by(call, Product<Gather, Operand>{ t, image, operand_of(&columns, t.n, t.k, 0), vecs,
                                                t.n, {} });
}

/* >>exact/windows */
/* ---- pools, upsample ---- A result reads a window of an image: taps of lines times taps of
 * columns. A thread computes a result or, backward, an element of dx, to which it adds the
 * gradients of the windows and taps that read it, in their order. */
enum WindowKind { MAX_POOL, AVERAGE_POOL, UPSAMPLE };
struct Windows { /* sizes: rows and columns of x and of the result; channels */
    int64_t in[2], out[2], c;
    int mode; /* of an upsample */
    gckpti_pool_state pool;
};

/* Taps begin to end - 1 of a result along an axis read elements first + tap * apart. */
struct Taps {
    int64_t begin, end, first, apart, last, counted; /* last: of the last tap, perhaps outside x */
    float weight[2];
    __device__ int64_t at(int64_t tap) const { return first + tap * apart; }
};

template <WindowKind KIND> __device__ Taps taps_of(const Windows &s, int axis, int64_t result)
{
    if (KIND == UPSAMPLE) {
        const gckpti_interp p = gckpti_interp_of(s.mode, s.in[axis], s.out[axis], result);
        const int64_t apart = p.index[1] - p.index[0];
        return { 0, p.n, p.index[0], apart, p.index[p.n - 1], 0, { p.weight[0], p.weight[1] } };
    }
    const gckpti_pool &o = s.pool.o;
    const int64_t first = result * o.stride[axis] - o.padding[axis], apart = o.dilation[axis];
    const gckpti_pool_taps taps = gckpti_pool_taps_of(&s.pool, axis, first);
    return { taps.begin, taps.end, first, apart, first + (o.size[axis] - 1) * apart, taps.counted };
}

template <WindowKind KIND>
__device__ void window_at(int64_t e, const Windows &s, const float *x, float *y, uint16_t *saved)
{
    const int64_t pixel = e / s.c, line = pixel / s.out[1], image = line / s.out[0];
    const Taps rows = taps_of<KIND>(s, 0, line % s.out[0]);
    const Taps columns = taps_of<KIND>(s, 1, pixel % s.out[1]);
    float sum = 0.0f;
    int64_t best = -1;
    for (int64_t a = rows.begin; a < rows.end; a++)
        for (int64_t b = columns.begin; b < columns.end; b++) {
            const int64_t from = (image * s.in[0] + rows.at(a)) * s.in[1] + columns.at(b);
            const float v = x[from * s.c + e % s.c];
            if (KIND == UPSAMPLE)
                sum = s.mode == GCKPT_NEAREST
                          ? v
                          : gckpti_fma(rows.weight[a] * columns.weight[b], v, sum);
            else if (KIND == AVERAGE_POOL)
                sum += v;
            else if (best < 0 || (sum == sum && !(v <= sum)))
                sum = v, best = a * s.pool.o.size[1] + b;
        }
    if (KIND == AVERAGE_POOL)
        sum /= (float)rows.counted * (float)columns.counted;
    if (y)
        y[e] = sum;
    if (KIND == MAX_POOL && saved)
        saved[e] = (uint16_t)best;
}

/* Returns the first result along an axis that may read element `at`. */
template <WindowKind KIND> __device__ int64_t first_reader(const Windows &s, int axis, int64_t at)
{
    int64_t low = 0, high = s.out[axis];
    while (low < high) {
        const int64_t i = (low + high) / 2;
        if (taps_of<KIND>(s, axis, i).last < at)
            low = i + 1;
        else
            high = i;
    }
    return low;
}

template <WindowKind KIND>
__device__ void window_gradient_at(int64_t e, const Windows &s, const gckpt_arg &x, const float *g,
                                   const uint16_t *saved)
{
    const int64_t pixel = e / s.c, w = pixel % s.in[1], h = pixel / s.in[1] % s.in[0];
    const int64_t image = pixel / s.in[1] / s.in[0], left = first_reader<KIND>(s, 1, w);
    float d = x.accumulate ? x.grad[e] : 0.0f;
    for (int64_t i = first_reader<KIND>(s, 0, h); i < s.out[0]; i++) {
        const Taps rows = taps_of<KIND>(s, 0, i);
        for (int64_t j = left; j < s.out[1] && rows.first <= h; j++) {
            const Taps columns = taps_of<KIND>(s, 1, j);
            const int64_t at = ((image * s.out[0] + i) * s.out[1] + j) * s.c + e % s.c;
            if (columns.first > w)
                break;
            for (int64_t a = rows.begin; a < rows.end; a++)
                for (int64_t b = columns.begin; b < columns.end && rows.at(a) == h; b++) {
                    if (columns.at(b) != w ||
                        (KIND == MAX_POOL && saved[at] != a * s.pool.o.size[1] + b))
                        continue;
                    if (KIND == UPSAMPLE)
                        d = gckpti_fma(rows.weight[a] * columns.weight[b], g[at], d);
                    else
                        d += KIND == MAX_POOL
                                 ? g[at]
                                 : g[at] / ((float)rows.counted * (float)columns.counted);
                }
        }
        if (rows.first > h)
            break;
    }
    x.grad[e] = d;
}

template <WindowKind KIND> void windows_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &x = call->in[0];
    const int64_t *in = x.shape.d, *out = call->shape.d;
    Windows s = { { in[1], in[2] }, { out[1], out[2] }, in[3] };
    if (KIND == UPSAMPLE) {
        s.mode = ((const gckpti_upsample *)call->attributes)->mode;
    } else { /* of images or of lines (B,T,C) */
        const gckpti_pool_state p = gckpti_pool_state_of(call);
        s = { { p.in[0], p.in[1] }, { p.out[0], p.out[1] }, p.channels, 0, p };
    }
    if (!backward)
        for_each<window_at<KIND>>(call, gckpti_elements(&call->shape), s, x.data, call->out,
                                  (uint16_t *)call->saved);
    else if (x.grad)
        for_each<window_gradient_at<KIND>>(call, gckpti_elements(&x.shape), s, x, call->grad_out,
                                           (const uint16_t *)call->saved);
}
#endif

/* >>exact/norms */
template <bool LOG> void softmax_by(const gckpt_call *call, bool backward)
{
    GCKPTI_IF_ACTIVATIONS(
        if (LOG) return rows_by<gckpti_log_softmax_row_warp, gckpti_log_softmax_row_grad_warp>(
            call, backward));
    rows_by<gckpti_softmax_row_warp, gckpti_softmax_row_grad_warp>(call, backward);
}

/* What the forward saves for a row: c, close to the mean; the mean of x - c; 1 / deviation. In an
 * rmsnorm c and mean are 0, and only rstd is saved. */
struct Normed {
    float c, mean, rstd;
    __device__ float normalised(float x) const { return ((x - c) - mean) * rstd; }
};

__device__ Normed normed(const float *saved, int64_t r, int center)
{
    const float *row = saved + (center ? 3 * r : r);
    const float c = row[0], mean = row[center ? 1 : 0], rstd = row[center ? 2 : 0];
    return { center ? c : 0.0f, center ? mean : 0.0f, rstd };
}

/* Returns y = d rstd gain + bias at element i of a row; gain and bias may be NULL. */
__device__ float norm_out(float d, float rstd, const float *gain, const float *bias, int64_t i)
{
    float y = gain ? d * rstd : d, factor = gain ? gain[i] : rstd;
    return bias ? gckpti_fma(y, factor, bias[i]) : y * factor;
}

/* Terms of dgain (sums of g h, with h the normalised x) and of dbias (sums of g). */
struct NormTerms : Terms {
    const float *x, *g, *saved;
    int64_t n;
    int center;
    template <bool> __device__ void read(int64_t column, int64_t r, float *term) const
    {
        const int64_t at = r * n + column;
        term[1] = g[at];
        term[0] = gckpti_mul(term[1], normed(saved, r, center).normalised(x[at]));
    }
};

void layernorm_by(const gckpt_call *call, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const int64_t rows = gckpti_rows(&call->shape), n = gckpti_last(&call->shape);
    const float *x = call->in[0].data, *g = call->grad_out, *saved = (const float *)call->saved;
    const Sum gain = sum_of(call, o->gain), bias = sum_of(call, o->bias);
    if (backward && wanted(gain.at)) /* else x and saved may be gone */
        column_sums(call, NormTerms{ {}, x, g, saved, n, o->center }, gain, bias, rows, n);
    else if (backward)
        column_sums(call, RowTerms<>{ {}, NONE, { g, NULL }, n }, {}, bias, rows, n);
    rows_by<gckpti_norm_row_warp, gckpti_norm_row_grad_warp>(call, backward, *o);
}

/* >>exact/channels */
#ifndef GCKPT_NO_IMAGES
/* ---- groupnorm, batchnorm ---- One thread adds up a channel of an image, pixels in order (manual,
 * 5e), so few channels of many pixels do not fill the chip. A warp computes a group's mean. */
struct Channels {
    const float *x, *g;
    int64_t images, places, channels, groups, m;
    float n; /* values of a group in an image: m channels of `places` pixels */
    const float *mean, *variance, *gain, *bias, *a, *b; /* a, b: means of g, g h (with gain) */
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
    __device__ Column column_of(int64_t c, int64_t) const
    {
        const int64_t image = c / s.channels, channel = c - image * s.channels;
        const int64_t group = channel / s.m, first = image * s.places * s.channels;
        const int64_t of = image * s.groups + group;
        return { s.mean ? s.mean[of] : BACK ? 0.0f : s.x[first + group * s.m],
                 BACK && s.mean ? gckpti_rsqrt(s.variance[of] + s.epsilon) : 0.0f,
                 first + channel };
    }
    template <bool> __device__ void read(const Column &c, int64_t place, float *term) const
    {
        const int64_t i = c.at + place * s.channels;
        const float d = (BACK && !s.mean ? s.g : s.x)[i] - c.center; /* without mean: not used */
        term[0] = BACK ? s.g[i] : squares ? gckpti_mul(d, d) : d;
        term[1] = BACK ? gckpti_mul(term[0], d * c.rstd) : 0.0f;
    }
};

template <bool BACK>
void channel_sums(const gckpt_call *call, const Channels &s, int squares, float *first,
                  float *second)
{
    column_sums(call, ChannelTerms<BACK>{ {}, s, squares }, sum_to(first), sum_to(second), s.places,
                s.images * s.channels);
}

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

void channel_means(const gckpt_call *call, const Channels &s, const float *sums, const float *gain,
                   const float *from, float *to)
{
    for_each_row<channel_mean>(call, s.images * s.groups, s, sums, gain, from, to);
}

/* Computes element i of the output or, if BACK, of dx. */
template <bool BACK> __device__ void channel_at(int64_t i, const Channels &s)
{
    const int64_t pixel = i / s.channels, c = i - pixel * s.channels;
    const int64_t group = pixel / s.places * s.groups + c / s.m;
    const float d = s.x[i] - s.mean[group], rstd = gckpti_rsqrt(s.variance[group] + s.epsilon);
    if (!BACK) {
        s.to[i] = norm_out(d, rstd, s.gain, s.bias, c);
        return;
    }
    const float u = s.gain ? gckpti_mul(s.g[i], s.gain[c]) : s.g[i];
    gckpti_put_product(&s.to[i], rstd, gckpti_fma(-(d * rstd), s.b[group], u - s.a[group]),
                       s.accumulate);
}

/* The terms that batchnorm adds to its running mean and variance: measured ones, times rows. */
struct RunningTerms : Terms {
    const float *mean, *variance;
    float unbiased, rows;
    template <bool> __device__ void read(int64_t channel, int64_t, float *term) const
    {
        term[0] = gckpti_mul(rows, mean[channel]);
        term[1] = gckpti_mul(rows, variance[channel] * unbiased);
    }
};

void groupnorm_forward(const gckpt_call *call)
{
    Channels s = channels_of(call);
    float *sums = (float *)call->workspace;
    float *stats[2] = { call->saved ? (float *)call->saved : sums + s.images * s.channels };
    stats[1] = stats[0] + s.images * s.groups;
    if (!*(const int *)call->attributes && !gckpti_is_training(call)) {
        s.mean = call->in[1].data, s.variance = call->in[2].data;
    } else {
        channel_sums<false>(call, s, 0, sums, NULL);
        channel_means(call, s, sums, NULL, s.x, stats[0]);
        s.mean = stats[0], s.variance = stats[1];
        channel_sums<false>(call, s, 1, sums, NULL);
        channel_means(call, s, sums, NULL, NULL, stats[1]);
    }
    if (s.to)
        for_each<channel_at<false>>(call, gckpti_elements(&call->shape), s);
}

void groupnorm_backward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    Channels s = channels_of(call);
    const int64_t n = s.images * s.channels, groups = s.images * s.groups;
    const float *saved = (const float *)call->saved;
    float *sums = (float *)call->workspace, *more = NULL, *a = sums + 2 * n, *b = a + groups;
    const float unbiased = s.n > 1 ? s.n / (s.n - 1) : 1.0f;
    const RunningTerms stats = { {}, saved, saved + s.channels, unbiased, (float)call->rows };
    if (!o->center)
        column_sums(call, stats, sum_of(call, 1), sum_of(call, 2), 1, s.channels);
    if (s.to || (o->gain && call->in[o->gain].grad)) /* only then are x and saved read */
        s.mean = saved, s.variance = saved + groups, more = sums + n;
    channel_sums<true>(call, s, 0, sums, more);
    const RowTerms<> images = { {}, { sums, NULL }, { more, NULL }, s.channels };
    column_sums(call, images, sum_of(call, o->bias), sum_of(call, o->gain), s.images, s.channels);
    if (!s.to)
        return;
    channel_means(call, s, sums, s.gain, NULL, a);
    channel_means(call, s, more, s.gain, NULL, b);
    s.a = a, s.b = b;
    for_each<channel_at<true>>(call, gckpti_elements(&call->shape), s);
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

/* Iterates over rows of n elements which begin `to` and `from` elements apart. */
gckpti_iter matrix_axes(int64_t rows, int64_t n, int64_t to, int64_t from)
{
    const int64_t inner[4] = { 1, 1, 1, 1 }, outer[4] = { to, from, from, from };
    gckpti_iter it = { 0, 4 };
    gckpti_iter_add_axis(&it, n, inner);
    gckpti_iter_add_axis(&it, rows, outer);
    return it;
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

/* ---- delta_rule: in the forward, a thread for each column of the state of each head; in the
 * backward, a warp for the heads that share a key head ---- */
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

/* Computes the gradients of the heads that share key head `item`, one after the other. */
__device__ void delta_backward_of(int64_t item, const gckpti_delta_call &run, int64_t floats)
{
    gckpti_delta_call s = run;
    const int64_t row = item / s.o.key_heads, first = item % s.o.key_heads * s.group;
    float *workspace = s.workspace + item * floats;
    s.step = gckpti_delta_update_warp, s.grads = gckpti_delta_grads_warp;
    for (int64_t head = first; head < first + s.group; head++) {
        __syncwarp();
        for (int64_t k = lane_index(); k < floats; k += 32)
            workspace[k] = 0.0f;
        __syncwarp();
        gckpti_delta_backward_steps(&s, row, head, workspace);
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
        for_each_row<delta_backward_of, 32>(call, rows * s.o.key_heads, s,
                                            gckpti_delta_workspace(&s, 1));
}
#endif

/* >>exact/losses */
/* Sums losses as one binary64 chain over rows (5e), by a thread. Adds `each` to *count for each row
 * except those with an ignored target. */
__global__ void loss_sum_kernel(const float *losses, const int32_t *target, int64_t rows,
                                int64_t each, double *sum, int64_t *count)
{
    double total = sum ? *sum : 0.0;
    int64_t counted = 0;
    const auto read = [&](int64_t r, float *v) {
        v[0] = losses[r], v[1] = target ? gckpti_float((uint32_t)target[r]) : 0.0f;
    };
    add_terms(rows, read, [&](const float *v) {
        total += (double)v[0], counted += (int32_t)gckpti_bits(v[1]) >= 0;
    });
    if (sum)
        *sum = total;
    if (count)
        *count += counted * each;
}

/* Adds `rows` losses in device memory to the call's sum and count, each of which may be NULL. */
void add_losses(const gckpt_call *call, const float *losses, const int32_t *target, int64_t rows,
                int64_t each)
{
    if (call->loss_sum || call->loss_count)
        run<loss_sum_kernel>(call, 1, 1, 0, losses, target, rows, each, call->loss_sum,
                             call->loss_count);
}

/* Returns the number of a loss's rows: the size of axis 0. */
int64_t loss_rows(const gckpt_call *call)
{
    return call->in[0].shape.n ? call->in[0].shape.d[0] : 1;
}

/* ---- losses over elements, perhaps with targets y and weights; sum_loss backward has no x ---- */
template <gckpti_loss_kind KIND>
__device__ void element_loss_of_row(int64_t r, const gckpti_element_loss &e, float *losses)
{
    gckpti_store_n_warp(losses + r, gckpti_element_loss_forward_of_warp(&e, KIND, r), 1);
}

/* Computes the gradient of weight k from the sum of the losses that it multiplies. */
template <gckpti_loss_kind KIND>
__device__ void weight_gradient(int64_t k, const gckpti_element_loss &losses,
                                const gckpt_arg &weights, const StepParams *params)
{
    const float sum = gckpti_element_loss_forward_of_warp(&losses, KIND, k);
    gckpti_put_product_n_warp(weights.grad + k, sum, params->loss_scale, weights.accumulate, 1);
}

__device__ void element_loss_gradients_at(int64_t i, const gckpti_element_loss &e,
                                          const gckpt_arg &x, const gckpt_arg &y,
                                          const StepParams *params)
{
    const float w = gckpti_element_weight(&e, i), value = e.x ? e.x[i] : 0.0f;
    float d = gckpti_element_deriv(e.kind, value, e.y ? e.y[i] : 0.0f, e.delta);
    if (x.grad)
        gckpti_put_product(&x.grad[i], gckpti_weighted(w, d), params->loss_scale, x.accumulate);
    if (e.kind == GCKPTI_LOSS_BINARY)
        d = value;
    if (y.grad)
        gckpti_put_product(&y.grad[i], gckpti_weighted(w, -d), params->loss_scale, y.accumulate);
}

int64_t element_loss_workspace(const gckpt_call *call, bool backward)
{
    return backward ? 0 : loss_rows(call);
}

template <gckpti_loss_kind KIND> void element_loss_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &x = call->in[0], &y = call->in[1], &weights = call->in[2];
    const int64_t n = gckpti_elements(&x.shape), rows = loss_rows(call);
    float *losses = (float *)call->workspace;
    gckpti_element_loss e = gckpti_element_loss_of(call, KIND);
    if (!backward && call->loss_sum)
        for_each_row<element_loss_of_row<KIND>>(call, rows, e, losses);
    if (!backward)
        return add_losses(call, losses, NULL, rows, n / rows);
    if (x.grad || y.grad)
        for_each<element_loss_gradients_at>(call, n, e, x, y, params_of(call));
    e.n = e.per_weight, e.weights = NULL;
    if (weights.grad)
        for_each_row<weight_gradient<KIND>>(call, n / e.n, e, weights, params_of(call));
}

/* ---- losses over classes ---- */
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
    const gckpti_class_row row = { max, log_sum, l.soft ? l.soft + r * l.n : NULL };
    const float loss = log_sum - (logit - max);
    if (!l.soft && l.target[r] < 0)
        return -0.0f;
    if (!l.soft && !(l.smoothing > 0.0f))
        return loss;
    const float sum = gckpti_surprisal_warp(l.x + r * l.n, l.n, &row);
    return l.soft ? sum
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
        gckpti_online_warp(x + j, NULL, gckpti_min(l.n - j, GCKPTI_LOSS_CHUNK), l.first + j == 0,
                           &max, &sum);
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
    gckpti_store_n_warp(l.losses + r, loss, 1);
}

/* Computes dx or, if SOFT, dx and dt, of which one may be NULL. Rows that do not count have 0. */
template <bool SOFT>
__device__ void loss_gradients_of_row(int64_t r, const Classes &l, const StepParams *params)
{
    enum { AT_ONCE = 4 };
    const float p_off = l.smoothing / (float)l.n, p_on = 1.0f - l.smoothing + p_off;
    const float w = weight_of(l, r), scale = w * params->loss_scale;
    const int64_t begin = r * l.n, end = begin + l.n, first = begin + threadIdx.x % 32;
    const int64_t target = SOFT ? 0 : begin + l.target[r] - l.first;
    if (w == 0.0f || (!SOFT && l.target[r] < 0)) {
        for (int64_t i = first; i < end && l.dx && !l.x_accumulate; i += 32)
            l.dx[i] = 0.0f;
        for (int64_t i = first; SOFT && i < end && l.dt && !l.t_accumulate; i += 32)
            l.dt[i] = 0.0f;
        return;
    }
    const float max = l.saved[2 * r], log_sum = l.saved[2 * r + 1];
    float mass = 1.0f;
    if (SOFT)
        mass = gckpti_sum_from_warp(l.soft + begin, l.n, 0.0f);
    for (int64_t i = first; i < end; i += 32 * AT_ONCE) {
        float x[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) /* dx may be x */
            x[k] = i + 32 * k < end ? l.x[i + 32 * k] : 0.0f;
        for (int k = 0; k < AT_ONCE && i + 32 * k < end; k++) {
            const int64_t at = i + 32 * k;
            const float t = SOFT ? l.soft[at] : at == target ? p_on : p_off, y = x[k] - max;
            float p = gckpti_fma(gckpti_exp(y - log_sum), mass, -t);
            if (l.cap > 0.0f)
                p *= gckpti_softcap_deriv(x[k], 1.0f / l.cap);
            if (!SOFT || l.dx)
                gckpti_put_product(&l.dx[at], p, scale, l.x_accumulate);
            if (SOFT && l.dt)
                gckpti_put_product(&l.dt[at], log_sum - y, scale, l.t_accumulate);
        }
    }
}

int64_t cross_entropy_workspace(const gckpt_call *call, bool backward)
{
    return !backward || call->inputs == 3 ? gckpti_rows(&call->in[0].shape) : 0;
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
    const gckpti_element_loss sums = { NULL, GCKPTI_LOSS_SUM, l.per_weight, 1, l.losses };
    for_each_row<weight_gradient<GCKPTI_LOSS_SUM>>(call, l.rows / l.per_weight, sums, call->in[2],
                                                   params_of(call));
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
/* A block takes 64 rows of a head (queries or, for dk and dv, keys) through tiles of 64 columns
 * (keys, queries) in ascending order. Both are in shared memory, in lines that are WIDTH + 4 floats
 * apart, so that the float4 of eight lines are in different banks. Thread (ty, tx) has R of the 64
 * rows, ty, ty + 64 / R, .., and 4 of the 64 scores of each row, tx, tx + 16, ..: for the sum of a
 * row's exponentials (5d), lanes tx and tx + 16 are in one thread, and the 16 threads of the row
 * add their sums. A thread has N = WIDTH / 16 of the WIDTH columns of a result.
 * A float4 of R rows and of 4 columns give 16 R terms: with R = 8, 12 loads for 128 terms.
 * Heads up to 64 use WIDTH 64 and R 8 (128 threads), larger ones WIDTH 128 and R 4 (256 threads).
 * Beyond 128, a block has a slice of 128 columns of the result and computes all scores for it.
 * MIXED: bf16 plans (5l). Operands are rounded when they enter shared memory; terms are flushed and
 * added in blocks, which a tile never divides. As an element has three registers, R is 4. */
enum { TILE = GCKPTI_KEY_TILE, SCORES = TILE + 4 /* floats from row to row of scores */ };

/* Visible keys (gckpti_visible_keys) at position 0 of a cache; keys_of_row adds the position. */
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

__device__ inline Keys keys_of_row(const Keys &k, const int32_t *lengths, int64_t row)
{
    const int more = k.params ? (int)k.params->position : 0;
    return { lengths ? lengths[row] : k.count + more, k.ahead + more, NULL };
}

/* What exact and fast kernels of attention read. */
struct Heads {
    int t, s, heads, d, group; /* group: heads per key head */
    int64_t c, kc;             /* columns of all heads; columns of all key heads */
    int window;                /* most keys that a query sees */
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
    const int window = (int)gckpti_min(h.window, INT32_MAX);
    Heads a = { (int)h.t, (int)h.s, (int)h.heads, (int)h.d, (int)h.group,
                h.c,      h.kv_c,   window,       h.scale };
    a.lengths = call->inputs == 4 ? call->in[3].index : NULL;
    a.saved = (float *)call->saved;
    for (int i = 0; i < 3; i++)
        a.accumulate[i] = wanted(call->in[i]) && call->in[i].accumulate;
    return a;
}

struct Attention : Heads {
    const float *q, *k, *v, *g;
    float *out, *dq, *dk, *dv;
    int slices;
    float after, times, cap; /* factors after, before the cap */
    gckpti_attn_mask mask;
};

/* Returns true if a query that is `lag` rows after a key sees it. */
__device__ bool is_visible(int lag, int window) { return (unsigned)lag < (unsigned)window; }

/* A block's part: 64 rows of a head (queries or, if KEYS, keys of a key head), and tiles of N
 * columns (keys; queries of each head of the group) that one of the rows sees. */
template <bool KEYS, int N = TILE> struct HeadRows {
    const Heads &h;
    int64_t rows_at, columns_at; /* offsets of row 0 and column 0 of the heads */
    int batch_row, head, first;  /* first row */
    Keys visible;
    int begin, end, tiles; /* first column, in whole tiles; after the last one; number of tiles */

    __device__ __forceinline__ HeadRows(const Heads &of, int block) : h(of)
    {
        const int down = (count() + TILE - 1) / TILE, tile = block % down;
        const int heads = KEYS ? h.heads / h.group : h.heads;
        batch_row = block / down / heads, head = block / down % heads;
        const int64_t all = batch_row, group = h.group;
        const int64_t queries = all * h.t * h.c + head * (KEYS ? group : 1) * h.d;
        const int64_t keys = all * h.s * h.kc + (KEYS ? head : head / group) * h.d;
        rows_at = KEYS ? keys : queries, columns_at = KEYS ? queries : keys;
        first = TILE * (KEYS ? tile : down - 1 - tile); /* queries with most keys come first */
        visible = keys_of_row(h.keys, h.lengths, batch_row);
        begin = KEYS ? first - visible.ahead : first + visible.ahead + 1 - h.window;
        begin = max(begin, 0) / N * N;
        end = KEYS ? (int)gckpti_min(h.t, (int64_t)first - visible.ahead + TILE - 1 + h.window)
                   : min(visible.count, first + visible.ahead + TILE);
        tiles = KEYS && first >= visible.count ? 0 : (max(end - begin, 0) + N - 1) / N;
    }
    /* Return the number of all rows; elements from row to row; how many tiles to compute. */
    __device__ int count() const { return KEYS ? h.s : h.t; }
    __device__ int64_t stride() const { return KEYS ? h.kc : h.c; }
    __device__ int steps() const { return tiles * (KEYS ? h.group : 1); }
    /* Return the first column of a step; the number of its columns; the head of its queries. */
    __device__ int column(int step) const { return begin + (KEYS ? step % tiles : step) * N; }
    __device__ int columns(int step) const { return min(end - column(step), N); }
    __device__ int query_head(int step) const
    {
        return KEYS ? head * h.group + step / tiles : head;
    }
    /* Returns the index, in (B,heads,T), of that head's first query. */
    __device__ int64_t first_query(int step) const
    {
        return ((int64_t)batch_row * h.heads + query_head(step)) * h.t;
    }
    /* Returns how many rows after its key the query of (row 0, column 0) is. */
    __device__ int lag(int step) const
    {
        return KEYS ? column(step) + visible.ahead - first : first + visible.ahead - column(step);
    }
    /* Copy columns e.. of the heads' d to shared memory; elements outside become 0. Keys may be
     * a ring. */
    template <int WIDTH, int THREADS, class LAYOUT, bool MIXED, class T>
    __device__ __forceinline__ void stage_rows(const T *x, int e, T *tile) const
    {
        const Matrix<T> m = { x + rows_at, stride(), h.aligned };
        stage_tile<TILE, WIDTH, THREADS, LAYOUT, MIXED>(m, first, KEYS ? visible.count : h.t, e,
                                                        h.d, tile);
    }
    template <int WIDTH, int THREADS, class LAYOUT, bool MIXED, class T>
    __device__ __forceinline__ void stage_columns(const T *x, int step, int e, T *tile) const
    {
        const int64_t at = columns_at + (KEYS ? (int64_t)(step / tiles) * h.d : 0);
        const Matrix<T> m = { x + at, KEYS ? h.c : h.kc, h.aligned };
        const int line = KEYS ? column(step) : column(step) % h.s;
        stage_tile<N, WIDTH, THREADS, LAYOUT, MIXED>(m, line, line + columns(step), e, h.d, tile);
    }
};

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

/* A thread's part of a block. In shared memory: `rows` of q and, in a backward, g (if KEYS, k and
 * v); `columns` of k and v (if KEYS, q and g). */
template <bool KEYS, bool BACKWARD, int R, int WIDTH, bool MIXED> struct HeadBlock {
    enum { N = WIDTH / 16, LINE = WIDTH + 4, LONG = TILE * LINE, STEP = TILE / R };
    const Attention &a;
    const HeadRows<KEYS> at;
    int e0; /* first column of d in the result's slice */
    float *rows[2], *columns[2];

    __device__ __forceinline__ HeadBlock(const Attention &of, float *shared, int block)
        : a(of), at(of, block / of.slices),
          e0(block % of.slices * WIDTH), rows{ shared, shared + 3 * LONG }, columns{
              shared + LONG, shared + 2 * LONG
          }
    {
    }
    /* Return row r of this thread; its column c in a tile. */
    __device__ int row_of(int r) const { return at.first + (int)threadIdx.x / 16 + STEP * r; }
    __device__ static int column_in_tile(int c) { return (int)threadIdx.x % 16 + 16 * c; }

    __device__ __forceinline__ void stage_rows(int which, int e) const
    {
        const float *x = which ? (KEYS ? a.v : a.g) : KEYS ? a.k : a.q;
        at.template stage_rows<WIDTH, 16 * STEP, Padded<LINE>, MIXED>(x, e, rows[which]);
    }
    __device__ __forceinline__ void stage_columns(int which, int step, int e) const
    {
        const float *x = which ? (KEYS ? a.g : a.v) : KEYS ? a.q : a.k;
        at.template stage_columns<WIDTH, 16 * STEP, Padded<LINE>, MIXED>(x, step, e,
                                                                         columns[which]);
    }
    /* Computes the dots of q and k and, in a backward, of g and v. A forward only copies v. */
    __device__ __forceinline__ void all_dots(float (&x)[2][R][4], int step) const
    {
        UNROLLED(i, 8 * R)
        x[i / 4 / R][i / 4 % R][i % 4] = 0.0f;
        for (int e = 0; e < a.d; e += WIDTH) {
            __syncthreads();
            UNROLLED(which, 1 + BACKWARD)
            {
                if (step == 0 || a.d > WIDTH)
                    stage_rows(which, e);
                stage_columns(which, step, e);
            }
            if (!BACKWARD && e == 0 && a.out)
                stage_columns(1, step, e0);
            __syncthreads();
            dots<R, WIDTH, MIXED>(x[0], rows[0], columns[0], a.d - e);
            if (BACKWARD && (!KEYS || a.dk))
                dots<R, WIDTH, MIXED>(x[1], rows[1], columns[1], a.d - e);
        }
        __syncthreads();
    }

    /* Returns true if row r and column c exist and see each other. */
    __device__ bool sees(int r, int c, int step) const
    {
        const int more = (int)threadIdx.x / 16 + STEP * r - column_in_tile(c);
        return column_in_tile(c) < at.columns(step) && is_visible(at.lag(step) + more, a.window);
    }
    /* Return the mask of a step's head (its place is computed again, since registers are few); of
     * row r, from the first column on. */
    __device__ const float *mask_of_head(int step) const
    {
        const HeadRows<KEYS> here(a, gckpti_block_index() / a.slices);
        const int64_t *by = a.mask.step, head = here.query_head(step);
        return a.mask.x + here.batch_row * by[0] + head * by[1];
    }
    __device__ const float *mask_of_row(const float *mask, int r, int step) const
    {
        const int64_t *by = a.mask.step, row = row_of(r);
        return mask && row < at.count() ? mask + row * by[2 + KEYS] + at.column(step) * by[3 - KEYS]
                                        : NULL;
    }
    /* Returns the score of a dot product, which cap_scores may have capped. */
    __device__ float score(float x, const float *mask, int c, int step) const
    {
        x = gckpti_mul(x, a.after);
        if (mask && column_in_tile(c) < at.columns(step))
            x += mask[column_in_tile(c) * a.mask.step[3 - KEYS]];
        return x;
    }

    /* Adds p x to this thread's rows of o, in order over the columns that each row sees (CUT: some
     * rows do not see all of them). p, x: scores and lines of the columns, in shared memory. */
    template <bool CUT>
    __device__ __forceinline__ void add_tile(float (&o)[R][N], const float *p, const float *x,
                                             int step) const
    {
        const int n = at.columns(step), lag = at.lag(step), ty = (int)threadIdx.x / 16;
        Block<R, N, MIXED> sums;
        sums.begin();
#pragma unroll 1
        for (int j = 0; j < n; j += 4) {
            Vec<float, 4> scores[R];
            float y[N];
            sums.start_block(o, j);
            UNROLLED(r, R)
            scores[r] = load<4>(p + (ty + STEP * r) * SCORES + j);
            UNROLLED(k, 4)
            {
                if (CUT && j + k >= n)
                    break;
                load_columns(y, x + (j + k) * LINE);
                UNROLLED(r, R)
                {
                    const int more = KEYS ? j + k - ty - STEP * r : ty + STEP * r - j - k;
                    sums.term(o, k, r, scores[r].v[k], y, !CUT || is_visible(lag + more, a.window));
                }
            }
        }
        sums.end(o, true);
    }
    __device__ __forceinline__ void add_terms(float (&o)[R][N], const float *p, const float *x,
                                              int step) const
    {
        const int lag = at.lag(step);
        if (lag >= TILE - 1 && is_visible(lag + TILE - 1, a.window) && at.columns(step) % 4 == 0)
            add_tile<false>(o, p, x, step);
        else
            add_tile<true>(o, p, x, step);
    }

    /* Loads initial values of chains: this thread's elements of a result x, or zeros. */
    __device__ __forceinline__ void init(float (&o)[R][N], const float *x, int accumulate) const
    {
        UNROLLED(r, R) UNROLLED(n, N)
        {
            const int e = e0 + column_of(n);
            const bool here = accumulate && row_of(r) < at.count() && e < a.d;
            o[r][n] = here ? x[at.rows_at + row_of(r) * at.stride() + e] : 0.0f;
            o[r][n] = MIXED ? gckpti_flush_to_zero(o[r][n]) : o[r][n];
        }
    }
    /* Stores this thread's elements of a result x. If no query sees a key, its row is 0 or, if it
     * accumulates, stays; MIXED: it becomes x + 0, with subnormal x, if its window is over. */
    __device__ __forceinline__ void finish(float (&o)[R][N], float *x, int accumulate) const
    {
        const int count = accumulate && KEYS ? at.visible.count : at.count();
        UNROLLED(r, R) UNROLL for (int n = 0; n < N; n += 4)
        {
            const int e = e0 + column_of(n), row = row_of(r);
            const int64_t to = at.rows_at + row * at.stride() + e;
            if (row >= count || (accumulate && !at.tiles))
                continue;
            UNROLL for (int k = n; KEYS && k < n + 4; k++)
            {
                o[r][k] = row < at.visible.count ? o[r][k] : 0.0f;
                if (MIXED && accumulate && row < at.visible.ahead + 1 - a.window && e + k - n < a.d)
                    o[r][k] = x[to + k - n] + 0.0f;
            }
            write_vec<4>(Results{ x, NULL }, to, a.d - e, a.aligned, &o[r][n]);
        }
    }
};

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

/* Takes this thread's next four scores x of a row into the row's max and sum, replaces them by
 * exponentials, and returns the factor for earlier terms. Keys that are not seen have the score
 * -inf, whose exponential, +0, changes no sum. Of +0 and -0, fmaxf may return either. */
__device__ __forceinline__ float online_row(float (&x)[4], bool first, float *max, float *sum)
{
    const float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    const float factor = online_factor(row_max(top), first, max);
    const float shift = gckpti_shift(*max);
    UNROLLED(c, 4)
    x[c] = gckpti_exp(x[c] - shift);
    const float added = warp_sum((x[0] + x[2]) + (x[1] + x[3]), 8);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    return factor;
}

/* Masked keys add no terms (their v may be inf). Exponentials overwrite k. On an H200, a processor
 * runs 3 blocks at once; 2 if heads are wide or bf16 is used, 1 if both. */
template <int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 3 : 2 - (MIXED && WIDTH > 64))
    attention_forward_kernel(Attention a)
{
    constexpr int N = WIDTH / 16;
    DYNAMIC_SHARED(float4, scratch);
    typedef HeadBlock<false, false, R, WIDTH, MIXED> Queries;
    const Queries block(a, (float *)scratch, (int)blockIdx.x);
    float o[R][N] = {}, x[2][R][4], max[R] = {}, sum[R] = {}, *p = block.columns[0];
    for (int step = 0; block.at.column(step) < block.at.end; step++) {
        block.all_dots(x, step);
        if (a.cap > 0.0f)
            cap_scores<R>(x[0], a, p);
        const float *head_mask = R == 4 && !MIXED && a.mask.x ? block.mask_of_head(step) : NULL;
        UNROLLED(r, R)
        {
            const float *mask = block.mask_of_row(head_mask, r, step);
            UNROLLED(c, 4)
            x[0][r][c] =
                block.sees(r, c, step) ? block.score(x[0][r][c], mask, c, step) : -INFINITY;
            const float factor = online_row(x[0][r], step == 0, &max[r], &sum[r]);
            UNROLLED(n, N)
            if (step > 0)
                o[r][n] = MIXED ? gckpti_flush_to_zero(o[r][n] * factor) : o[r][n] * factor;
        }
        store_scores<R, MIXED>(p, x[0]);
        __syncwarp(); /* each warp reads only rows of p that it wrote */
        if (a.out)
            block.add_terms(o, p, block.columns[1], step);
    }
    const Queries end(a, (float *)scratch, gckpti_block_index());
    UNROLLED(r, R)
    {
        gckpti_softmax_end(&max[r], &sum[r]);
        if (a.saved && end.e0 == 0 && threadIdx.x % 16 == 0 && end.row_of(r) < a.t)
            a.saved[end.at.first_query(0) + end.row_of(r)] = max[r] + gckpti_log(sum[r]);
        UNROLLED(n, N)
        o[r][n] /= sum[r];
    }
    if (a.out)
        end.finish(o, a.out, 0);
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

/* Turns dots x[0] of q and k into probabilities, and x[1] of g and v into gradients of scores. */
template <bool KEYS, int R, int WIDTH, bool MIXED>
__device__ __forceinline__ void score_gradients(float (&x)[2][R][4], const Attention &a,
                                                const HeadBlock<KEYS, true, R, WIDTH, MIXED> &block,
                                                int step, float *scratch)
{
    const int64_t of_head = block.at.first_query(step);
    if (a.cap > 0.0f)
        cap_scores<R>(x[0], a, scratch);
    const float *head_mask = R == 4 && !MIXED && a.mask.x ? block.mask_of_head(step) : NULL;
    UNROLLED(r, R)
    {
        const float *mask = block.mask_of_row(head_mask, r, step);
        UNROLLED(c, 4)
        {
            const int column = block.at.column(step) + block.column_in_tile(c);
            const int query = KEYS ? column : block.row_of(r);
            const float saved = query < a.t ? a.saved[of_head + query] : 0.0f;
            float d = x[1][r][c] - (query < a.t ? a.delta[of_head + query] : 0.0f);
            if (a.cap > 0.0f)
                d *= gckpti_softcap_deriv(x[0][r][c], 1.0f / a.cap);
            x[0][r][c] = gckpti_exp(block.score(x[0][r][c], mask, c, step) - saved);
            x[1][r][c] = x[0][r][c] * d * a.scale;
        }
    }
}

/* Computes dq of 64 queries by chains over ascending keys or, if KEYS, dk and dv of 64 keys by
 * chains over ascending queries, one head after the other. Scores of dq overwrite v. */
template <bool KEYS, int R, int WIDTH, bool MIXED>
__global__ void __launch_bounds__(16 * TILE / R, R == 8 ? 2 : 1)
    attention_backward_kernel(Attention a)
{
    constexpr int N = WIDTH / 16;
    DYNAMIC_SHARED(float4, scratch);
    const HeadBlock<KEYS, true, R, WIDTH, MIXED> block(a, (float *)scratch, (int)blockIdx.x);
    float d[R][N], dv[R][N], x[2][R][4], *const to = KEYS ? a.dk : a.dq;
    float *const scores = KEYS ? block.rows[1] + block.LONG : block.columns[1];
    block.init(d, to, a.accumulate[KEYS]);
    if (KEYS)
        block.init(dv, a.dv, a.accumulate[2]);
    for (int step = 0; step < block.at.steps(); step++) {
        block.all_dots(x, step);
        score_gradients(x, a, block, step, scores);
        UNROLL for (int which = 0; which <= KEYS && a.d > WIDTH; which++)
            block.stage_columns(which, step, block.e0);
        if (a.d > WIDTH)
            __syncthreads();
        if (KEYS && a.dv) {
            store_scores<R, MIXED>(scores, x[0]);
            __syncwarp(); /* each warp reads only rows of scores that it wrote */
            block.add_terms(dv, scores, block.columns[1], step);
            __syncwarp();
        }
        if (to) {
            store_scores<R, MIXED>(scores, x[1]);
            __syncwarp();
            block.add_terms(d, scores, block.columns[0], step);
        }
    }
    if (to)
        block.finish(d, to, a.accumulate[KEYS]);
    if (KEYS && a.dv)
        block.finish(dv, a.dv, a.accumulate[2]);
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
 * is added to, in the order of gckpti_mask_tile. */
__device__ void mask_gradient_at(int64_t e, const Attention &a, const gckpt_arg &mask, int64_t rows)
{
    int64_t n[4] = { 1, 1, 1, 1 }; /* sizes of the mask, 1 or those of the scores */
    for (int k = 1; k <= mask.shape.n; k++)
        n[4 - k] = mask.shape.d[mask.shape.n - k];
    const int64_t first_i = e / n[3] % n[2], end_i = n[2] > 1 ? first_i + 1 : a.t;
    const int64_t first_j = e % n[3], end_j = n[3] > 1 ? first_j + 1 : a.s;
    float sum = mask.accumulate ? mask.grad[e] : 0.0f;
    for (int64_t b = e / n[3] / n[2] / n[1]; b < rows; b += n[0])
        for (int64_t h = e / n[3] / n[2] % n[1]; h < a.heads; h += n[1])
            for (int64_t i0 = first_i; i0 < end_i; i0 += TILE)
                for (int64_t j0 = first_j; j0 < end_j; j0 += TILE)
                    for (int64_t i = i0; i < gckpti_min(i0 + TILE, end_i); i++)
                        for (int64_t j = j0; j < gckpti_min(j0 + TILE, end_j); j++)
                            mask_term(a, b * a.heads + h, i, j, a.mask.x[e], &sum);
    mask.grad[e] = sum;
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
    if (a.dq)
        run_tiles<R, WIDTH, attention_backward_kernel<false, R, WIDTH, MIXED>>(call, a, a.t,
                                                                               a.heads, 4);
    if (a.dk || a.dv)
        run_tiles<R, OF_KEYS, attention_backward_kernel<true, R, OF_KEYS, MIXED>>(
            call, a, a.s, a.heads / a.group, 4, TILE * SCORES);
}

void attention_by(const gckpt_call *call, bool)
{
    const gckpti_attn h = gckpti_attn_of(call);
    const gckpt_arg *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    Attention a = { heads_of(call), q->data, k->data, v->data, call->grad_out, call->out };
    a.delta = (const float *)call->workspace, a.keys = keys_of(call);
    a.cap = h.cap, a.times = h.cap > 0.0f ? h.dot_scale : 0.0f;
    a.after = gckpti_attn_post_scale(&h);
    if (a.g)
        a.dq = q->grad, a.dk = k->grad, a.dv = v->grad;
    a.mask = h.mask;
    a.aligned = a.d % 4 == 0 && aligned(a.q, a.k, a.v, a.g, a.out, a.dq, a.dk, a.dv);
    const int64_t queries = call->shape.d[0] * a.heads * a.t;
    if (a.g)
        for_each_row<attention_delta_of>(call, queries, grad_out_of(call), Values(out_of(call)),
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
    const gckpt_arg &mask = call->in[3];
    if (a.g && a.mask.x && mask.grad)
        for_each<mask_gradient_at>(call, gckpti_elements(&mask.shape), a, mask, call->shape.d[0]);
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

/* >>fast/epilogue */
/* ---- products: c (m,n) = a (m,k) b (k,n), added to the bias, to c's old value, or to 0 ---- Lines
 * of a matrix are contiguous: along k (rows of a, columns of b) or across k (columns of a, rows of
 * b: a line for each term). */

/* What the product stores: c (STORE); or for losses of rows the maximum and the sum of exponentials
 * of each row's 64 columns, the target's logit, and c in f32 unless it is empty (ROW_STATS). */
enum Epilogue { STORE, ROW_STATS };
struct RowLoss;
struct Loss {
    const int32_t *target;
    int first;        /* class of column 0 */
    float *parts;     /* (columns / 64, rows, 2) */
    RowLoss *state;   /* (rows) */
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

/* Returns the distance of a thread's y-th row from its first. c[y] is ROWS rows after c[y - 1], and
 * has two rows: 16 in mma.sync, 64 in wgmma. */
template <int ROWS> __host__ __device__ constexpr int mma_offset(int y)
{
    return y / 2 * ROWS + y % 2 * 8;
}

/* Initialises a thread's elements: with c's old value, the bias, or 0. Code that runs once for each
 * tile is short, since its instructions come from the L2. */
template <int ROWS, int DOWN, int ACROSS>
__device__ inline void mma_start(const MmaProduct &p, bool accumulate, bool whole, int i, int j,
                                 float (&c)[DOWN][ACROSS][4])
{
    const bool bias = !accumulate && (p.bias.f32 || p.bias.bf16);
    UNROLLED(e, 2 * ACROSS) {
        const int column = j + e / 2 * 8 + e % 2;
        const float first = bias && column < p.n ? value_at(p.bias, column) : 0.0f;
        UNROLLED(y, 2 * DOWN) c[y / 2][e / 2][y % 2 * 2 + e % 2] = first;
    }
    UNROLL for (int y = 0; y < 2 * DOWN && accumulate; y++)
    {
        const int64_t at = (int64_t)(i + mma_offset<ROWS>(y)) * p.c_row + j;
        UNROLL for (int x = 0; x < ACROSS && whole; x++)
        {
            const Vec<float, 2> pair = load<2>(p.c, at + x * 8);
            c[y / 2][x][y % 2 * 2] = pair.v[0], c[y / 2][x][y % 2 * 2 + 1] = pair.v[1];
        }
        const int left = i + mma_offset<ROWS>(y) < p.m ? p.n - j : 0;
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

/* Returns the number of size x size tiles. */
__host__ __device__ inline int tile_count(const MmaProduct &p, int size)
{
    return (p.m + size - 1) / size * ((p.n + size - 1) / size);
}

/* Positions of a tile, of a warp's part of it (a quarter or, in wgmma, 16 of each 64 rows), and of
 * a thread's first element in c. */
template <int size, int ROWS = 16> struct MmaCoords {
    int i0, j0, row, column, i, j;
    __device__ MmaCoords(const MmaProduct &p, int tile, int thread)
    {
        int across = (p.n + size - 1) / size, lane = thread % 32, warp = thread / 32;
        i0 = tile / across * size, j0 = tile % across * size;
        row = ROWS == 64 ? warp * 16 : warp / 2 * (size / 2);
        column = ROWS == 64 ? 0 : warp % 2 * (size / 2);
        i = i0 + row + lane / 4, j = j0 + column + lane % 4 * 2;
    }
};

template <FusedOp op> __device__ inline float fused_value(float v, float other)
{
    return op == GELU ? gelu_of(v) : op == GELU_GRAD ? v * gelu_deriv_of(other) : v + other;
}

/* Writes a tile of bf16 in runs of 8, four runs at once if all elements exist (WHOLE). STAGED: the
 * tile of `other` follows it in shared memory. */
template <int size, bool STAGED, bool WHOLE, FusedOp op>
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
            if (op > GELU && STAGED)
                other[q] = load<4>((const uint32_t *)(const void *)(tile + size * size + at));
            if (op > GELU && !STAGED) {
                const Matrix<uint16_t> &m = p.fusion.other;
                float u[8];
                read_vec<8>(Values{ NULL, m.x }, (i0 + k + q * STEP) * m.stride + j, left,
                            m.aligned, u);
                UNROLLED(e, 4) other[q].v[e] = bf16_pair(u[2 * e], u[2 * e + 1]);
            }
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

template <int size, bool STAGED, bool WHOLE>
__device__ inline void mma_write_fused(const MmaProduct &p, int i0, int j0, const uint16_t *tile)
{
    switch (p.fusion.op) {
    case NO_OP: return mma_write<size, STAGED, WHOLE, NO_OP>(p, i0, j0, tile);
    case GELU: return mma_write<size, STAGED, WHOLE, GELU>(p, i0, j0, tile);
    case GELU_GRAD: return mma_write<size, STAGED, WHOLE, GELU_GRAD>(p, i0, j0, tile);
    default: return mma_write<size, STAGED, WHOLE, PLUS>(p, i0, j0, tile);
    }
}

/* Stores a thread's elements; bf16 goes through `tiles`, the operands' shared memory. STAGED: that
 * has space for two tiles of c. In wgmma, a thread has columns of the whole tile. */
template <int size, bool STAGED, Epilogue epilogue, int DOWN, int ACROSS>
__device__ inline void mma_epilogue(const MmaProduct &p, float (&c)[DOWN][ACROSS][4],
                                    uint16_t *tiles, int tile = gckpti_block_index())
{
    enum { ROWS = ACROSS * 8 == size ? 64 : 16, STATS = size / 16 /* of 64 columns of 128 */ };
    const MmaCoords<size, ROWS> at(p, tile, gckpti_thread_index());
    const bool writes_bf16 = epilogue != ROW_STATS && p.c.bf16,
               whole = p.aligned && at.i0 + size <= p.m && at.j0 + size <= p.n;
    if (writes_bf16) {
        __syncthreads(); /* all operands have been read */
        if (p.fusion.op > GELU && STAGED)
            stage_tile<size, size, 128, Swizzled<size>, false>(p.fusion.other, at.i0, p.m, at.j0,
                                                               p.n, tiles + size * size);
    }
    UNROLLED(y, 2 * DOWN) {
        const int i = at.i + mma_offset<ROWS>(y);
        UNROLL for (int x = 0; x < ACROSS && epilogue == ROW_STATS; x += STATS)
            finish_row_stats<STATS>(p, i, at.j + x * 8, c[y / 2] + x, y % 2 * 2);
    }
    if (writes_bf16) {
        UNROLLED(x, ACROSS) {
            uint16_t *to = tiles + at.j % 8 +
                           Swizzled<size>::at(at.i - at.i0, (at.j - at.j0) / 8 + x);
            UNROLLED(y, 2 * DOWN) /* chunks repeat after 8 lines */
                *(uint32_t *)(void *)(to + mma_offset<ROWS>(y) * size) =
                    gckpti_to_bf16_pair(c[y / 2][x][y % 2 * 2], c[y / 2][x][y % 2 * 2 + 1]);
        }
        gckpti_cp_async_commit();
        gckpti_cp_async_wait<0>();
        __syncthreads();
        if (whole && p.c_row % 8 == 0)
            mma_write_fused<size, STAGED, true>(p, at.i0, at.j0, tiles);
        else
            mma_write_fused<size, STAGED, false>(p, at.i0, at.j0, tiles);
    } else if (epilogue != ROW_STATS || p.c.f32) {
        UNROLLED(y, 2 * DOWN) {
            const int i = at.i + mma_offset<ROWS>(y), left = i < p.m ? p.n - at.j : 0;
            float *to = p.c.f32 + (int64_t)i * p.c_row + at.j;
            UNROLL for (int x = 0; x < ACROSS && whole; x++)
                store(to + x * 8, load<2>(c[y / 2][x] + y % 2 * 2));
            UNROLL for (int e = 0; e < 2 * ACROSS && !whole; e++) if (e / 2 * 8 + e % 2 < left)
                to[e / 2 * 8 + e % 2] = c[y / 2][e / 2][y % 2 * 2 + e % 2];
        }
    }
}

/* >>fast/wgmma */
/* ---- products by wgmma and TMA, on devices with sm_90a ---- As in mma_product_kernel, an element
 * is one chain of groups of 16 terms, in order, in one register, for any tile. A block is a
 * warpgroup with a tile of size x size; one of its threads lets TMA load stages of 64 terms, as
 * boxes of 64 x 64.
 *
 * Weight gradients have few tiles with many terms. If there are more tiles than multiprocessors, a
 * block on each takes an equal share of the terms of all tiles (McNaughton's rule of preemptive
 * scheduling): where a share ends within a tile, the block leaves its sums in c, and the block of
 * the next share continues the chain from there. A share has at least the terms of a tile, so a
 * block can begin with the tile that it hands on and end with the tile that it continues.
 *
 * Blocks cannot deadlock, in whatever order they run: a block draws its share when it begins, and
 * waits only for the block of the share before. That block has begun, and hands its tile on before
 * it waits for anything. */
enum { BOX = 64, BOX_SIZE = BOX * BOX };

struct WgmmaProduct {
    CUtensorMap a, b;
    MmaProduct p;
    /* NULL: each block computes a tile. Else [0]: number of shares drawn, 0 between launches;
     * [1 + i]: 1 if c has the sums of the tile that share i hands on. */
    unsigned *shares;
};

/* Returns the first place for a box in dynamic shared memory: at a multiple of 1024 bytes. */
__device__ inline uint16_t *first_box(uint4 *memory)
{
    return (uint16_t *)memory + (-gckpti_shared_address(memory) & 1023) / 2;
}

/* Shared memory: a ring of stages, each with a tile of a and one of b. */
template <int size, int a_along, int b_along> struct WgmmaStages {
    enum { COUNT = a_along ? 3 : size == 128 ? 6 : 8, TILE = size * BOX, BYTES = 4 * TILE };
    uint16_t *tiles;
    uint64_t *loaded; /* mbarriers of the stages */
    int now;          /* the stage that is multiplied next */
    uint32_t parity;  /* of the phase of its mbarrier */

    /* Loads a step (64 terms) of a tile into the stage that is `ahead` of the next one. */
    __device__ void load(const WgmmaProduct &q, const MmaCoords<size, 64> &at, int step,
                         int ahead) const
    {
        const int stage = now + ahead - (now + ahead < COUNT ? 0 : COUNT), term = step * BOX;
        uint16_t *to = tiles + stage * 2 * TILE;
        gckpti_mbarrier_expect(loaded + stage, BYTES);
        UNROLLED(x, size / BOX) {
            const int i = at.i0 + x * BOX, j = at.j0 + x * BOX;
            gckpti_tma_load(to + x * BOX_SIZE, q.a, a_along ? term : i, a_along ? i : term,
                            loaded + stage);
            gckpti_tma_load(to + TILE + x * BOX_SIZE, q.b, b_along ? term : j, b_along ? j : term,
                            loaded + stage);
        }
    }
    /* Waits for the stage and begins to add GROUPS groups of 16 of its terms to c. */
    template <int GROUPS>
    __device__ __forceinline__ void multiply(float (&c)[size / 64][size / 8][4], int first) const
    {
        const uint16_t *at = tiles + now * 2 * TILE;
        const uint64_t a = gckpti_wgmma_matrix<a_along>(at),
                       b = gckpti_wgmma_matrix<b_along>(at + TILE);
        gckpti_mbarrier_wait(loaded + now, parity);
        gckpti_wgmma_fence();
        UNROLLED(g, GROUPS) {
            UNROLLED(y, size / 64)
                gckpti_wgmma<a_along, b_along>(
                    c[y], a + (first + g) * gckpti_wgmma_16<a_along> + y * (BOX_SIZE * 2 >> 4),
                    b + (first + g) * gckpti_wgmma_16<b_along>);
        }
        gckpti_wgmma_commit();
    }
    __device__ void next()
    {
        now = now + 1 < COUNT ? now + 1 : 0;
        parity ^= now == 0;
    }
};

/* Adds the terms of steps first..end-1 of a tile to c. The first stages are loaded already. */
template <int size, int a_along, int b_along>
__device__ __forceinline__ void wgmma_terms(const WgmmaProduct &q, const MmaCoords<size, 64> &at,
                                            int first, int end,
                                            WgmmaStages<size, a_along, b_along> &stages,
                                            float (&c)[size / 64][size / 8][4])
{
    enum { AHEAD = WgmmaStages<size, a_along, b_along>::COUNT - 2 };
    const int whole = min(end, q.p.k / BOX), left = q.p.k - whole * BOX;
    if (first < whole) { /* one step before the loop, in which c belongs to wgmma */
        stages.template multiply<4>(c, 0);
        stages.next();
#pragma unroll 1
        for (int s = first + 1; s < whole; s++) {
            stages.template multiply<4>(c, 0);
            stages.next();
            gckpti_wgmma_wait<1>();
            __syncthreads(); /* nobody reads the stage of step s - 1 any more */
            if (threadIdx.x == 0 && s + 1 + AHEAD < end)
                stages.load(q, at, s + 1 + AHEAD, AHEAD);
        }
        gckpti_wgmma_wait<0>();
        UNROLLED(y, size / 64) gckpti_wgmma_settle(c[y]);
    }
    if (whole < end) {
#pragma unroll 1
        for (int g = 0; g * 16 < left; g++) {
            stages.template multiply<1>(c, g);
            gckpti_wgmma_wait<0>();
            UNROLLED(y, size / 64) gckpti_wgmma_settle(c[y]);
        }
        stages.next();
    }
    __syncthreads(); /* nor any other stage */
}

/* Draws the number of a share, once for each block. */
__device__ inline unsigned draw_share(unsigned *shares)
{
    const unsigned share = atomicAdd(shares, 1u);
    if (share + 1 == gridDim.x)
        *shares = 0;
    return share;
}

template <int size, int a_along, int b_along, Epilogue epilogue>
__global__ void __launch_bounds__(128, a_along ? 2 : 1)
    wgmma_product_kernel(const __grid_constant__ WgmmaProduct q)
{
#ifndef GCKPTI_NO_WGMMA
    typedef WgmmaStages<size, a_along, b_along> Stages;
    DYNAMIC_SHARED(uint4, product_tiles);
    SHARED(uint64_t, loaded, [Stages::COUNT]);
    SHARED(unsigned, drawn, [1]);
    uint16_t *tiles = first_box(product_tiles);
    Stages stages = { tiles, loaded, 0, 0 };
    if (threadIdx.x == 0) {
        for (int s = 0; s < Stages::COUNT; s++)
            gckpti_mbarrier_init(loaded + s, 1);
        gckpti_mbarrier_fence();
        drawn[0] = q.shares ? draw_share(q.shares) : blockIdx.x;
    }
    __syncthreads();
    const int steps = (q.p.k + BOX - 1) / BOX, share = (int)drawn[0];
    const int64_t all = (int64_t)tile_count(q.p, size) * steps;
    const int from = (int)(all * share / gridDim.x), to = (int)(all * (share + 1) / gridDim.x);
    for (int tile = (to - 1) / steps; (tile + 1) * steps > from; tile--) {
        const int first = max(from - tile * steps, 0), end = min(to - tile * steps, steps);
        const MmaCoords<size, 64> at(q.p, tile, (int)threadIdx.x);
        float c[size / 64][size / 8][4];
#pragma unroll 1
        for (int s = 0; s < Stages::COUNT && threadIdx.x == 0 && first + s < end; s++)
            stages.load(q, at, first + s, s);
        if (first > 0) {
            if (threadIdx.x == 0) {
                gckpti_acquire(q.shares + share);
                q.shares[share] = 0;
            }
            __syncthreads();
        }
        const bool whole = at.i0 + size <= q.p.m && at.j0 + size <= q.p.n;
        mma_start<64>(q.p, q.p.accumulate || first > 0, whole && q.p.aligned, at.i, at.j, c);
        wgmma_terms<size, a_along, b_along>(q, at, first, end, stages, c);
        mma_epilogue<size, true, epilogue>(q.p, c, tiles, tile);
        if (end < steps) {
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0)
                gckpti_release(q.shares + 1 + share);
        }
    }
#endif
}

/* Describes bf16 values for TMA, in boxes of 64 x 64: size[i] elements along axis i, of which the
 * first is contiguous; stride[i] elements, a multiple of 8, from index to index of axis i + 1. */
template <int RANK>
CUtensorMap tensor_map(const gckpt_call *call, const uint16_t *x, const int64_t (&size)[RANK],
                       const int64_t (&stride)[RANK - 1])
{
    CUtensorMap map;
    cuuint64_t sizes[RANK], strides[RANK];
    cuuint32_t box[RANK], steps[RANK];
    for (int i = 0; i < RANK; i++) {
        sizes[i] = (cuuint64_t)size[i], strides[i] = 2 * (cuuint64_t)stride[i < RANK - 1 ? i : 0];
        box[i] = i < 2 ? 64 : 1, steps[i] = 1;
    }
    Device *d = device_of(call);
    const CUresult result =
        d->encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, RANK, (void *)(uintptr_t)x, sizes,
                  strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    check(d, result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "a tensor map");
    return map;
}

/* Returns true if wgmma computes p. This must not depend on the number of tokens, as mma.sync may
 * round otherwise. */
bool takes_wgmma(const gckpt_call *call, const MmaProduct &p)
{
    return device_of(call)->wgmma && p.a.aligned && p.b.aligned;
}

/* Runs a product; at most `sms` blocks share the terms of a weight gradient. */
template <int size, int a_along, int b_along, Epilogue epilogue>
void wgmma_product(const gckpt_call *call, const MmaProduct &p, int sms)
{
    typedef WgmmaStages<size, a_along, b_along> Stages;
    const auto map = [&](const Matrix<uint16_t> &x, int64_t lines, bool along) {
        return tensor_map<2>(call, x.x, { along ? p.k : lines, along ? lines : p.k }, { x.stride });
    };
    const int tiles = tile_count(p, size);
    const bool share = !a_along && p.c.f32 && tiles > sms;
    const WgmmaProduct q = { map(p.a, p.m, a_along), map(p.b, p.n, b_along), p,
                             share ? device_of(call)->shares : NULL };
    run<wgmma_product_kernel<size, a_along, b_along, epilogue>>(
        call, dim3((unsigned)(share ? sms : tiles)), 128, Stages::COUNT * Stages::BYTES + 1024, q);
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

/* Adds all terms to c. Tiles of BK terms are copied STEPS - 1 ahead; while 16 terms are
 * multiplied, the next 16 are read from shared memory. WHOLE: all tiles are complete, and the loop
 * is short, as instructions that it skips would have to come from the L2 again. */
template <int STEPS, bool WHOLE, int size, int a_along, int b_along, int DOWN, int ACROSS>
__device__ __forceinline__ void mma_terms(const MmaProduct &p, const MmaCoords<size> &at,
                                          uint16_t *tiles, float (&c)[DOWN][ACROSS][4])
{
    enum { A_LINE = a_along ? BK : size, B_LINE = b_along ? BK : size, TILE = size * BK };
    const Reader<A_LINE, a_along, false> read_a(at.row);
    const Reader<B_LINE, b_along, true> read_b(at.column);
    Fragments<DOWN, ACROSS> first, second; /* operands of 16 terms each */
    const int steps = (p.k + BK - 1) / BK, whole_steps = p.k / BK, left = p.k % BK;
    const auto issue = [&](int step) {
        uint16_t *to = tiles + step % STEPS * 2 * TILE;
        if (step < steps) {
            stage_terms<WHOLE, size, a_along>(p.a, at.i0, p.m, step * BK, p.k, to);
            stage_terms<WHOLE, size, b_along>(p.b, at.j0, p.n, step * BK, p.k, to + TILE);
        }
        gckpti_cp_async_commit();
    };
    const auto wait_tile = [&](int step) { /* first terms, once all copies are done */
        const uint16_t *from = tiles + step % STEPS * 2 * TILE;
        gckpti_cp_async_wait<STEPS - 2>();
        __syncthreads();
        first.load(read_a, read_b, from, from + TILE, 0);
        return from;
    };
#pragma unroll 1
    for (int s = 0; s < STEPS - 1; s++)
        issue(s);
    const uint16_t *now = wait_tile(0);
#pragma unroll 1
    for (int s = 0; s < whole_steps; s++) {
        second.load(read_a, read_b, now, now + TILE, 16);
        issue(s + STEPS - 1);
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
 * the same rows of a, which stay in the L2. STEPS: stages in shared memory. */
template <int size, int STEPS, int a_along, int b_along, Epilogue epilogue>
__global__ void __launch_bounds__(128, size == 128 ? 2 : 5)
    mma_product_kernel(const __grid_constant__ MmaProduct p)
{
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
    if (STEPS < STAGES) /* not chosen for these devices: see run_mma_tile */
        return;
#endif
    DYNAMIC_SHARED(uint4, product_tiles);
    uint16_t *tiles = (uint16_t *)product_tiles;
    const MmaCoords<size> at(p, (int)blockIdx.x, (int)threadIdx.x);
    float c[size / 32][size / 16][4];
    const bool whole = at.i0 + size <= p.m && at.j0 + size <= p.n;
    mma_start<16>(p, p.accumulate, whole && p.aligned, at.i, at.j, c);
    if (whole && p.a.aligned && p.b.aligned && p.k % BK == 0)
        mma_terms<STEPS, true, size, a_along, b_along>(p, at, tiles, c);
    else
        mma_terms<STEPS, false, size, a_along, b_along>(p, at, tiles, c);
    mma_epilogue<size, size <= STEPS * BK, epilogue>(p, c, tiles);
}

/* Runs a product, by wgmma if the device has it. Of mma.sync, an SM with 100 KiB (sm_86, sm_89,
 * sm_120) holds two blocks of 128 x 128 with 3 stages. */
template <int size, int a_along, int b_along, Epilogue epilogue>
void run_mma_tile(const gckpt_call *call, const MmaProduct &p)
{
    enum { STAGE_BYTES = 2 * size * BK * (int)sizeof(uint16_t), LESS = size == 128 ? 3 : STAGES };
    const int blocks = tile_count(p, size);
    if constexpr (size == 128 || !a_along) {
        if (takes_wgmma(call, p))
            return wgmma_product<size, a_along, b_along, epilogue>(call, p, sm_count(call));
    }
    if (attribute_of(call, cudaDevAttrMaxSharedMemoryPerMultiprocessor) < 2 * STAGES * STAGE_BYTES)
        run<mma_product_kernel<size, LESS, a_along, b_along, epilogue>>(
            call, dim3((unsigned)blocks), 128, LESS * STAGE_BYTES, p);
    else
        run<mma_product_kernel<size, STAGES, a_along, b_along, epilogue>>(
            call, dim3((unsigned)blocks), 128, STAGES * STAGE_BYTES, p);
}

/* Returns the number of size x size tiles on the busiest processor. */
int tiles_per_sm(const gckpt_call *call, const MmaProduct &p, int size)
{
    return (tile_count(p, size) + sm_count(call) - 1) / sm_count(call);
}

/* Three 64 x 64 tiles take as long as one of 128 x 128 (four: 1.24 to 1.51 times, on an H200). With
 * wgmma, only weight gradients have small tiles; they are shared evenly among all processors. */
template <int a_along, int b_along> void run_mma(const gckpt_call *call, const MmaProduct &p)
{
    const int sms = sm_count(call), large = tile_count(p, 128), small = tile_count(p, 64);
    if (takes_wgmma(call, p) ? a_along || 3 * (large > sms ? large : sms) <= small
                             : 3 * tiles_per_sm(call, p, 128) <= tiles_per_sm(call, p, 64))
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
} deferred_mma[sizeof devices / sizeof *devices];

void mma_defer(const gckpt_call *call, const MmaProduct &p, int a_along, int b_along)
{
    Device *d = device_of(call);
    launch_pending(d);
    deferred_mma[d->number] = { p, a_along, b_along };
    deferred[d->number].product = [](Device *of) {
        const DeferredMma &l = deferred_mma[of->number];
        gckpt_call bare = {};
        bare.backend = of;
        mma_product(&bare, l.p, l.a_along, l.b_along);
    };
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
        alias(out.bf16, bytes, p.bias.bf16, 2 * n))
        return false;
    for (const uint16_t *x : { of.bf16, other.bf16 })
        if (x != out.bf16 && alias(out.bf16, bytes, x, bytes))
            return false;
    p.fusion = { op, out.bf16, matrix(other.bf16, n) };
    p.aligned = p.aligned && aligned(out);
    launch_pending(d);
    return true;
}

/* ---- elementwise ---- */
void gelu_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = value_of(in), g = grad_out_of(call);
    if (backward ? !in.accumulate && try_fuse(call, GELU_GRAD, g, x, grad_of(in))
                 : try_fuse(call, GELU, x, NONE, out_of(call)))
        return;
    unary_by<gelu_of, gelu_deriv_of, gckpti_put_product_n>(call, backward, GCKPT_IN(0), 0);
}

/* ---- add, sub and mul of two bf16 tensors of the same shape (add: or the second one has just the
 * last axes of the first one); exact kernels run other shapes ---- */
void fused_add_by(const gckpt_call *call, bool backward)
{
    const Values a = value_of(call->in[0]), b = value_of(call->in[1]);
    if (backward || call->in[1].shape.n < call->shape.n ||
        (!try_fuse(call, PLUS, a, b, out_of(call)) && !try_fuse(call, PLUS, b, a, out_of(call))))
        add_by(call, backward);
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
    ::column_sums(call, of, a.to, b.to, (rows + TOKENS - 1) / TOKENS, n);
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

void linear_backward(const gckpt_call *original)
{
    const gckpt_call adjusted = drop_zero_fills(original), *call = &adjusted;
    const gckpti_factors s = gckpti_factors_of(call);
    const gckpt_arg *in = call->in;
    int transposed = *(const int *)call->attributes;
    Workspace workspace = { (char *)call->workspace, 0 };
    const Matrix<uint16_t> g = matrix(operand(call, workspace, grad_out_of(call), s.m * s.n), s.n);
    if (wanted(in[1])) {
        const Matrix<uint16_t> x =
            matrix(operand(call, workspace, value_of(in[0]), s.m * s.k), s.k);
        const MmaProduct dw =
            transposed ? mma_of(s.n, s.k, s.m, g, x, NONE, in[1].accumulate, grad_of(in[1]))
                       : mma_of(s.k, s.n, s.m, x, g, NONE, in[1].accumulate, grad_of(in[1]));
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
                 1, !transposed);
    }
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
    Results out, dq, dk, dv;
};

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

/* Packs a thread's elements of 16 terms as the left operand of a product. */
__device__ __forceinline__ void left_operand(const float s[2][4], uint32_t left[4])
{
    UNROLLED(i, 4) left[i] = bf16_pair(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
}

/* Computes o (16,D) += s (16, 8 n) times lines 0.. of b. */
template <int D, int n>
__device__ inline void add_product(const float s[n][4], const uint16_t *b, float o[D / 8][4])
{
    const Reader<D, 0, true> read_b(0);
    UNROLLED(term, n / 2) {
        uint32_t left[4], right[4];
        left_operand(s + 2 * term, left);
#pragma unroll
        for (int x = 0; x < D / 8; x += 2) {
            read_b(right, b, x * 8, term * 16);
            gckpti_mma_bf16(o[x], left, right);
            gckpti_mma_bf16(o[x + 1], left, right + 2);
        }
    }
}

/* A warp has 16 of a block's rows; a thread has rows `row` and `row` + 8 of the block and, of each
 * 8 columns of a tile, `pair` and `pair` + 1. */
struct MmaPlace {
    int warp_row, row, pair;
    __device__ __forceinline__ explicit MmaPlace(int thread)
        : warp_row(thread / 32 * 16), row(warp_row + thread % 32 / 4), pair(thread % 4 * 2)
    {
    }
};

/* Returns a word of 32 bits, of which those from first to last are set. */
__device__ inline unsigned bits_of(int64_t first, int64_t last)
{
    const int begin = (int)max(first, (int64_t)0), end = (int)min(last, (int64_t)31);
    return begin > end ? 0 : ~0u << begin & ~0u >> (31 - end);
}

template <bool KEYS, int D, int n> struct MmaBlock : HeadRows<KEYS, n>, MmaPlace {
    typedef HeadRows<KEYS, n> Base;
    __device__ __forceinline__ MmaBlock(const MmaAttention &p, int block)
        : Base(p, block), MmaPlace((int)threadIdx.x)
    {
    }
    __device__ __forceinline__ void copy_rows(const uint16_t *x, uint16_t *tile) const
    {
        Base::template stage_rows<D, 128, Swizzled<D>, false>(x, 0, tile);
    }
    __device__ __forceinline__ void copy_columns(const uint16_t *x, int step, uint16_t *tile) const
    {
        Base::template stage_columns<D, 128, Swizzled<D>, false>(x, step, 0, tile);
    }
    /* Returns true if some query does not see some key of a step's tile. */
    __device__ __forceinline__ bool cut(int step) const
    {
        const int lag = this->lag(step);
        return lag < (KEYS ? 63 : n - 1) || lag + (KEYS ? n - 1 : 63) >= this->h.window ||
               (!KEYS && this->columns(step) < n);
    }
    /* Sets the thread's elements of s to `value` where the query does not see the key. */
    __device__ __forceinline__ void mask(int step, float (&s)[n / 8][4], float value) const
    {
        const MmaPlace here(gckpti_thread_index());
        const int lag = this->lag(step), count = KEYS ? n : this->columns(step);
        UNROLLED(e, n / 2) {
            const int r = here.row + e / 2 % 2 * 8, c = here.pair + e / 4 * 8 + e % 2;
            if (c >= count || !is_visible(lag + (KEYS ? c - r : r - c), this->h.window))
                s[e / 4][e % 4] = value;
        }
    }
    /* Replaces values of a step's tile that are not finite by 0, since 0 times these is NaN. For
     * each column, `cleaned` gets a bit for each row that had one. Rows after the last key, which
     * may have any values, do not count. The caller lets the block wait. */
    template <class LAYOUT> __device__ void clean(int step, uint16_t *tile,
                                              unsigned (*cleaned)[2]) const
    {
        const int thread = gckpti_thread_index(), count = this->columns(step);
        if (thread < D)
            cleaned[thread][0] = cleaned[thread][1] = 0;
        __syncthreads(); /* nor does a product read the tile any more */
#pragma unroll 1
        for (int i = thread; i < n * D / 8; i += 128) {
            const int r = i / (D / 8), chunk = i % (D / 8);
            uint16_t *x = tile + LAYOUT::at(r, chunk);
            if (!any_nonfinite(load<4>((const uint32_t *)(const void *)x).v))
                continue;
            for (int e = 0; e < 8; e++) {
                const bool nonfinite = (x[e] & 0x7f80) == 0x7f80;
                if (nonfinite && r < count)
                    atomicOr(&cleaned[chunk * 8 + e][r / 32], 1u << r % 32);
                x[e] = nonfinite ? 0 : x[e];
            }
        }
    }
    /* Sets sums over a cleaned tile to NaN if they include a value that was not finite. */
    __device__ void spoil(int step, const unsigned (*cleaned)[2], float (&o)[D / 8][4]) const
    {
        const MmaPlace here(gckpti_thread_index());
        const int64_t more = this->h.window - 1;
        UNROLLED(half, 2) {
            const int r = here.row + half * 8, same = r + this->lag(step) * (KEYS ? -1 : 1);
            const int64_t first = KEYS ? same : same - more, last = KEYS ? same + more : same;
            const unsigned low = bits_of(first, last), high = bits_of(first - 32, last - 32);
            UNROLLED(e, D / 4) {
                const unsigned *word = cleaned[e / 2 * 8 + here.pair + e % 2];
                if ((word[0] & low) | (word[1] & high))
                    o[e / 2][2 * half + e % 2] = NAN;
            }
        }
    }
    /* Returns a value of query i of a step's head: max + log(sum), in base 2, or delta. */
    __device__ __forceinline__ float query_value(const MmaAttention &p, int step, int i,
                                                 bool delta) const
    {
        const int64_t at = this->first_query(step) + i;
        if (delta)
            return i < p.t ? p.delta[at] : 0.0f;
        return i < p.t ? p.saved[at] * LOG2E : INFINITY;
    }
    /* Returns the index of the query of element e of s: a column if KEYS, else one of two rows. */
    __device__ __forceinline__ int query_of(int e) const
    {
        return KEYS ? pair + e / 4 * 8 + e % 2 : e / 2 % 2;
    }
    /* Converts scores s to p = exp(s scale - saved). */
    __device__ __forceinline__ void probabilities(const MmaAttention &p, const float *saved,
                                                  float (&s)[n / 8][4]) const
    {
        UNROLLED(e, n / 2)
            s[e / 4][e % 4] = exp2_of(
                gckpti_fma(s[e / 4][e % 4], p.scale * LOG2E, -saved[query_of(e)]));
    }
    /* Converts d = dp to p (dp - delta), the gradients of scores / scale. */
    __device__ __forceinline__ void score_grads(const float *delta, const float (&p)[n / 8][4],
                                                float (&d)[n / 8][4]) const
    {
        UNROLLED(e, n / 2)
            d[e / 4][e % 4] = p[e / 4][e % 4] * (d[e / 4][e % 4] - delta[query_of(e)]);
    }
    /* Stores o * times; keys that no query sees get 0. */
    __device__ __forceinline__ void store(const MmaAttention &p, const Results &y, int accumulate,
                                          const float o[D / 8][4], const float (&times)[2]) const
    {
        UNROLLED(half, 2) {
            const int i = this->first + row + half * 8;
            const bool zero = KEYS && i >= this->visible.count;
            UNROLLED(x, D / 8) {
                const int e = x * 8 + pair;
                const float v[2] = { zero ? 0.0f : o[x][2 * half] * times[half],
                                     zero ? 0.0f : o[x][2 * half + 1] * times[half] };
                if (i < this->count())
                    write_vec<2>(y, this->rows_at + i * this->stride() + e, p.d - e, p.aligned, v,
                                 accumulate);
            }
        }
    }
};

/* The online softmax of a thread's two queries: `max` is in base 2, `sum` of this thread's keys. */
template <int D> struct Softmax {
    float max[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };

    /* Converts a tile's scores s to exponentials, and rescales `sum` and o to the new maxima. */
    __device__ __forceinline__ void add(float factor, float (&s)[8][4], float (&o)[D / 8][4])
    {
        UNROLLED(half, 2) {
            float top = -INFINITY;
            UNROLLED(x, 16) top = fmaxf(top, s[x / 2][2 * half + x % 2]);
            top = fmaxf(max[half], row_max(top, 2) * factor);
            const float shift = gckpti_shift(top), rescale = exp2_of(max[half] - shift);
            max[half] = top;
            sum[half] *= rescale;
            UNROLLED(x, 16) {
                float &score = s[x / 2][2 * half + x % 2];
                score = exp2_of(gckpti_fma(score, factor, -shift));
                sum[half] += score;
            }
            UNROLLED(x, D / 8)
                o[x][2 * half] *= rescale, o[x][2 * half + 1] *= rescale;
        }
    }
    /* Stores max + log(sum) and o / sum. */
    __device__ __forceinline__ void finish(const MmaAttention &p, const float o[D / 8][4])
    {
        const MmaBlock<false, D, 64> to(p, gckpti_block_index());
        UNROLLED(half, 2) {
            const int i = to.first + to.row + half * 8;
            for (int with = 1; with < 4; with *= 2)
                sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], with);
            gckpti_softmax_end(&max[half], &sum[half]);
            if (p.saved && i < p.t && to.pair == 0)
                p.saved[to.first_query(0) + i] = max[half] * LN2 + gckpti_log(sum[half]);
            sum[half] = 1.0f / sum[half];
        }
        if (wanted(p.out))
            to.store(p, p.out, 0, o, sum);
    }
};

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

template <int D>
__global__ void __launch_bounds__(128, D == 64 ? 4 : 2)
    mma_attention_forward_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *q = (uint16_t *)attention_tiles, *k = q + SIZE, *v = k + 2 * SIZE;
    SHARED(unsigned, cleaned, [D][2]);
    const MmaBlock<false, D, 64> at(p, (int)blockIdx.x);
    Softmax<D> softmax;
    float o[D / 8][4] = {}, s[8][4];
    at.copy_rows(p.q, q);
    const auto stage = [&](int step) {
        at.copy_columns(p.k, step, k + step % 2 * SIZE);
        at.copy_columns(p.v, step, v + step % 2 * SIZE);
    };
    pipeline(at.tiles, stage, [&](int step) {
        scores<D, 8>(q, at.warp_row, k + step % 2 * SIZE, s);
        if (at.cut(step)) {
            at.mask(step, s, -INFINITY);
            at.template clean<Swizzled<D>>(step, v + step % 2 * SIZE, cleaned);
            __syncthreads();
        }
        softmax.add(p.scale * LOG2E, s, o);
        add_product<D, 8>(s, v + step % 2 * SIZE, o);
        if (at.cut(step))
            at.spoil(step, cleaned, o);
    });
    softmax.finish(p, o);
}

/* Computes dq of 64 queries over all keys that they see or, if KEYS, dk and dv of 64 keys over all
 * queries that see them, n queries at a time, one head after the other. */
template <bool KEYS, int D, int n>
__global__ void __launch_bounds__(128, D == 64 ? 2 : 1)
    mma_attention_backward_kernel(MmaAttention p)
{
    enum { SIZE = 64 * D, PART = n * D };
    DYNAMIC_SHARED(uint4, attention_tiles);
    uint16_t *rows[2] = { (uint16_t *)attention_tiles, (uint16_t *)attention_tiles + SIZE };
    uint16_t *columns[2] = { rows[1] + SIZE, rows[1] + SIZE + 2 * PART };
    SHARED(float, values, [2][2][n]); /* KEYS: `saved` and `delta` of the queries of two tiles */
    SHARED(unsigned, cleaned, [2][D][2]);
    const MmaBlock<KEYS, D, n> at(p, (int)blockIdx.x);
    const int thread = (int)threadIdx.x;
    float o[D / 8][4] = {}, dv[D / 8][4] = {}, s[n / 8][4], d[n / 8][4], mine[2][2];
    UNROLL for (int e = 0; e < 4 && !KEYS; e++)
        mine[e / 2][e % 2] = at.query_value(p, 0, at.first + at.row + e % 2 * 8, e / 2);
    at.copy_rows(KEYS ? p.k : p.q, rows[0]);
    at.copy_rows(KEYS ? p.v : p.g, rows[1]);
    const auto stage = [&](int step) {
        at.copy_columns(KEYS ? p.q : p.k, step, columns[0] + step % 2 * PART);
        at.copy_columns(KEYS ? p.g : p.v, step, columns[1] + step % 2 * PART);
        if (KEYS && thread < 2 * n)
            values[step % 2][thread / n][thread % n] =
                at.query_value(p, step, at.column(step) + thread % n, thread / n);
    };
    pipeline(at.steps(), stage, [&](int step) {
        const int now = step % 2;
        const bool cut = at.cut(step);
        uint16_t *x = columns[0] + now * PART, *y = columns[1] + now * PART;
        scores<D, n / 8>(rows[0], at.warp_row, x, s);
        scores<D, n / 8>(rows[1], at.warp_row, y, d);
        at.probabilities(p, KEYS ? values[now][0] : mine[0], s);
        at.score_grads(KEYS ? values[now][1] : mine[1], s, d);
        if (cut) {
            at.mask(step, s, 0.0f), at.mask(step, d, 0.0f);
            at.template clean<Swizzled<D>>(step, x, cleaned[0]);
            if (KEYS)
                at.template clean<Swizzled<D>>(step, y, cleaned[1]);
            __syncthreads();
        }
        if (KEYS)
            add_product<D, n / 8>(s, y, dv);
        add_product<D, n / 8>(d, x, o);
        if (cut)
            at.spoil(step, cleaned[0], o);
        if (cut && KEYS)
            at.spoil(step, cleaned[1], dv);
    });
    const Results &to = KEYS ? p.dk : p.dq;
    if (wanted(to))
        at.store(p, to, p.accumulate[KEYS], o, { p.scale, p.scale });
    if (KEYS && wanted(p.dv))
        at.store(p, p.dv, p.accumulate[2], dv, { 1, 1 });
}

/* Returns the operands (copied if they are not bf16), for the backward also the output's gradient,
 * and the results. */
MmaAttention attention_of(const gckpt_call *call, Workspace &workspace, bool backward)
{
    const gckpt_arg *in = call->in;
    MmaAttention p = { heads_of(call) };
    int64_t queries = gckpti_elements(&in[0].shape), keys = gckpti_elements(&in[1].shape);
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

template <int D> /* fast/wgmma_attention.cu */
void wgmma_attention(const gckpt_call *call, const MmaAttention &p, dim3 queries, dim3 keys);

/* Chooses kernels by the device, the columns of a head and addresses, never by the number of
 * tokens, so that the bits do not depend on the split of a batch. */
template <int D> void run_attention(const gckpt_call *call, const MmaAttention &p)
{
    enum { QUERIES = D == 64 ? 64 : 32 }; /* registers do not suffice for more */
    const int rows = (int)call->shape.d[0];
    const dim3 queries((unsigned)(rows * p.heads * ((p.t + 63) / 64)));
    const dim3 keys((unsigned)(rows * (p.heads / p.group) * ((p.s + 63) / 64)));
    if (p.aligned && device_of(call)->wgmma)
        return wgmma_attention<D>(call, p, queries, keys);
    if (!p.g)
        run<mma_attention_forward_kernel<D>>(call, queries, 128, 5 * 64 * D * 2, p);
    if (p.g && wanted(p.dq))
        run<mma_attention_backward_kernel<false, D, 64>>(call, queries, 128, 6 * 64 * D * 2, p);
    if (p.g && (wanted(p.dk) || wanted(p.dv)))
        run<mma_attention_backward_kernel<true, D, QUERIES>>(call, keys, 128,
                                                             (2 * 64 + 4 * QUERIES) * D * 2, p);
}

void attention_by(const gckpt_call *call, bool backward)
{
    Workspace workspace = { (char *)call->workspace, 0 };
    MmaAttention p = attention_of(call, workspace, backward);
    p.keys = keys_of(call);
    if (backward) {
        const int64_t n = call->shape.d[0] * call->shape.d[1] * p.heads;
        const Values g = grad_out_of(call), out = out_of(call);
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
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    /* registers suffice for up to 128 columns and without a cap; a ring (extras 2) is not read */
    if (p.d > 128 || o->extras > 1 || (o->extras && o->cap > 0.0f)) {
        call->precision = GCKPT_BF16;
        return GCKPT_OK;
    }
    attention_of(call, backward, true);
    bump_alloc(backward, (size_t)(call->shape.d[0] * call->shape.d[1] * p.heads) * sizeof(float));
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used;
    return GCKPT_OK;
}

/* >>fast/wgmma_attention */
/* ---- attention by wgmma and TMA, for sm_90a ---- A block is a warpgroup and has 64 queries or 64
 * keys, as in attention.cu; a thread has the same elements of scores and results as there. A tile
 * consists of boxes of 64 rows and 64 columns of a head, as TMA loads them, so that it is both the
 * K-major operand of scores and the MN-major operand of sums over its rows. */
struct WgmmaAttention : MmaAttention {
    CUtensorMap rows[2], columns[2]; /* q, g and k, v; for dk and dv exchanged */
};

/* Layout of a tile that consists of boxes. */
struct Boxes {
    static __device__ inline int at(int line, int chunk)
    {
        return chunk / 8 * BOX_SIZE + Swizzled<BOX>::at(line, chunk % 8);
    }
};

/* Tiles in shared memory: ROWS of the block's rows, then two stages of two tiles of columns. */
template <bool KEYS, int D, int ROWS> struct WgmmaTiles {
    enum { SIZE = 64 * D };
    const WgmmaAttention &p;
    const MmaBlock<KEYS, D, 64> &at;
    uint16_t *rows;
    uint64_t *full;         /* barriers of the stages and of the rows */
    float (*values)[2][64]; /* KEYS: `saved` and `delta` of the queries of two tiles */

    __device__ __forceinline__ uint16_t *columns(int step, int i) const
    {
        return rows + (ROWS + step % 2 * 2 + i) * SIZE;
    }
    /* Loads 64 tokens of a head; columns and tokens that do not exist become 0. */
    __device__ __forceinline__ void load_tile(const CUtensorMap &map, int head, int token,
                                              uint16_t *to, uint64_t *bar) const
    {
        UNROLLED(x, D / 64)
            gckpti_tma_load(to + x * BOX_SIZE, map, x * BOX, token, head, at.batch_row, bar);
    }
    /* Stores a step's value of query_value, and begins to load its tiles. */
    __device__ __forceinline__ void stage(int step, float value) const
    {
        const int thread = (int)threadIdx.x;
        if (step >= at.steps())
            return;
        if (KEYS)
            values[step % 2][thread / 64][thread % 64] = value;
        if (thread)
            return;
        gckpti_mbarrier_expect(full + step % 2, 2 * SIZE * (int)sizeof(uint16_t));
        UNROLLED(i, 2)
            load_tile(p.columns[i], KEYS ? at.query_head(step) : at.head / p.group, at.column(step),
                      columns(step, i), full + step % 2);
    }
    __device__ __forceinline__ float value(int step) const
    {
        const int thread = (int)threadIdx.x;
        return KEYS && step < at.steps()
                   ? at.query_value(p, step, at.column(step) + thread % 64, thread / 64)
                   : 0.0f;
    }
    /* Calls use(step) for each step, while the next step's tiles are loaded. */
    template <class U> __device__ __forceinline__ void each_step(U use) const
    {
        if (threadIdx.x == 0) {
            UNROLLED(i, 3) gckpti_mbarrier_init(full + i, 1);
            gckpti_mbarrier_fence();
            gckpti_mbarrier_expect(full + 2, ROWS * SIZE * (int)sizeof(uint16_t));
            UNROLLED(i, ROWS)
                load_tile(p.rows[i], at.head, at.first, rows + i * SIZE, full + 2);
        }
        UNROLLED(step, 2) stage(step, value(step));
        __syncthreads();
        gckpti_mbarrier_wait(full + 2, 0);
#pragma unroll 1
        for (int step = 0; step < at.steps(); step++) {
            const float next = value(step + 2);
            gckpti_mbarrier_wait(full + step % 2, step / 2 & 1);
            use(step);
            __syncthreads();
            stage(step + 2, next);
        }
    }
    /* Calls clean for a tile, which only wgmma reads then. */
    __device__ __forceinline__ void clean(int step, uint16_t *tile,
                                          unsigned (*cleaned)[2]) const
    {
        at.template clean<Boxes>(step, tile, cleaned);
        gckpti_mbarrier_fence(); /* wgmma sees the stores */
        __syncthreads();
    }
};

/* Begins to compute s (64,64): products, along the head, of the rows of a and of b. */
template <int D>
__device__ __forceinline__ void wgmma_scores(const uint16_t *a, const uint16_t *b, float (&s)[8][4])
{
    const uint64_t rows = gckpti_wgmma_matrix<true>(a), columns = gckpti_wgmma_matrix<true>(b);
    gckpti_wgmma<true, true, false>(s, rows, columns);
    UNROLL for (int k = 1; k < D / 16; k++)
    {
        const uint64_t at = k / 4 * (BOX_SIZE * 2 >> 4) + k % 4 * gckpti_wgmma_16<true>;
        gckpti_wgmma<true, true>(s, rows + at, columns + at);
    }
    gckpti_wgmma_commit();
}

/* s (64,64) as the left operand of products. */
struct WgmmaLeft {
    uint32_t terms[4][4];
    __device__ __forceinline__ explicit WgmmaLeft(const float (&s)[8][4])
    {
        UNROLLED(term, 4) left_operand(s + 2 * term, terms[term]);
    }
    /* Begins to compute o (64,D) += s times the rows of a tile. */
    template <int D>
    __device__ __forceinline__ void multiply(const uint16_t *tile, float (&o)[D][4]) const
    {
        const uint64_t rows = gckpti_wgmma_matrix<false>(tile);
        UNROLLED(k, 4)
            gckpti_wgmma_registers<false>(o, terms[k], rows + k * gckpti_wgmma_16<false>);
        gckpti_wgmma_commit();
    }
};

template <int D>
__global__ void __launch_bounds__(128, D == 64 ? 4 : 2)
    wgmma_attention_forward_kernel(const __grid_constant__ WgmmaAttention p)
{
#ifndef GCKPTI_NO_WGMMA
    DYNAMIC_SHARED(uint4, attention_tiles);
    SHARED(uint64_t, full, [3]);
    SHARED(unsigned, cleaned, [D][2]);
    const MmaBlock<false, D, 64> at(p, (int)blockIdx.x);
    const WgmmaTiles<false, D, 1> tiles = { p, at, first_box(attention_tiles), full, NULL };
    Softmax<D> softmax;
    float o[D / 8][4] = {}, s[8][4];
    tiles.each_step([&](int step) {
        uint16_t *k = tiles.columns(step, 0), *v = tiles.columns(step, 1);
        const bool cut = at.cut(step);
        gckpti_wgmma_fence();
        wgmma_scores<D>(tiles.rows, k, s);
        gckpti_wgmma_wait<0>();
        gckpti_wgmma_settle(s);
        if (cut)
            at.mask(step, s, -INFINITY), tiles.clean(step, v, cleaned);
        softmax.add(p.scale * LOG2E, s, o);
        const WgmmaLeft left(s);
        gckpti_wgmma_fence();
        left.multiply(v, o);
        gckpti_wgmma_wait<0>();
        gckpti_wgmma_settle(o);
        if (cut)
            at.spoil(step, cleaned, o);
    });
    softmax.finish(p, o);
#endif
}

/* Computes dq or, if KEYS, dk and dv, as mma_attention_backward_kernel does. Exponentials overlap
 * with the product of g and v, and the gradients of scores with dv. */
template <bool KEYS, int D>
__global__ void __launch_bounds__(128, D == 64 && !KEYS ? 4 : 2)
    wgmma_attention_backward_kernel(const __grid_constant__ WgmmaAttention p)
{
#ifndef GCKPTI_NO_WGMMA
    DYNAMIC_SHARED(uint4, attention_tiles);
    SHARED(uint64_t, full, [3]);
    SHARED(float, values, [2][2][64]);
    SHARED(unsigned, cleaned, [2][D][2]);
    const MmaBlock<KEYS, D, 64> at(p, (int)blockIdx.x);
    const WgmmaTiles<KEYS, D, 2> tiles = { p, at, first_box(attention_tiles), full, values };
    float o[D / 8][4] = {}, dv[D / 8][4] = {}, s[8][4], d[8][4], mine[2][2];
    UNROLL for (int e = 0; e < 4 && !KEYS; e++) mine[e / 2][e % 2] =
        at.query_value(p, 0, at.first + at.row + e % 2 * 8, e / 2);
    tiles.each_step([&](int step) {
        uint16_t *x = tiles.columns(step, 0), *y = tiles.columns(step, 1);
        const bool cut = at.cut(step);
        gckpti_wgmma_fence();
        wgmma_scores<D>(tiles.rows, x, s);
        wgmma_scores<D>(tiles.rows + tiles.SIZE, y, d);
        gckpti_wgmma_wait<1>();
        gckpti_wgmma_settle(s);
        at.probabilities(p, KEYS ? values[step % 2][0] : mine[0], s);
        gckpti_wgmma_wait<0>();
        gckpti_wgmma_settle(d);
        if (cut)
            at.mask(step, s, 0.0f), tiles.clean(step, x, cleaned[0]);
        if (cut && KEYS)
            tiles.clean(step, y, cleaned[1]);
        if (KEYS) {
            const WgmmaLeft left(s);
            gckpti_wgmma_fence();
            left.multiply(y, dv);
        }
        at.score_grads(KEYS ? values[step % 2][1] : mine[1], s, d);
        if (cut)
            at.mask(step, d, 0.0f);
        const WgmmaLeft left(d);
        gckpti_wgmma_fence();
        left.multiply(x, o);
        gckpti_wgmma_wait<0>();
        gckpti_wgmma_settle(o);
        gckpti_wgmma_settle(dv);
        if (cut)
            at.spoil(step, cleaned[0], o);
        if (cut && KEYS)
            at.spoil(step, cleaned[1], dv);
    });
    const Results &to = KEYS ? p.dk : p.dq;
    if (wanted(to))
        at.store(p, to, p.accumulate[KEYS], o, { p.scale, p.scale });
    if (KEYS && wanted(p.dv))
        at.store(p, p.dv, p.accumulate[2], dv, { 1, 1 });
#endif
}

/* Launches the kernels for `queries` blocks of queries, `keys` of keys. */
template <int D>
void wgmma_attention(const gckpt_call *call, const MmaAttention &p, dim3 queries, dim3 keys)
{
    enum { TILE_BYTES = 64 * D * 2, ALIGN = 1024 };
    const auto map = [&](const uint16_t *x, int64_t tokens, int64_t heads) {
        return tensor_map<4>(call, x, { p.d, tokens, heads, call->shape.d[0] },
                             { heads * p.d, p.d, tokens * heads * p.d });
    };
    const CUtensorMap q = map(p.q, p.t, p.heads), k = map(p.k, p.s, p.heads / p.group),
                      v = map(p.v, p.s, p.heads / p.group), g = p.g ? map(p.g, p.t, p.heads) : q;
    const WgmmaAttention of_queries = { p, { q, g }, { k, v } },
                         of_keys = { p, { k, v }, { q, g } };
    if (!p.g)
        run<wgmma_attention_forward_kernel<D>>(call, queries, 128, 5 * TILE_BYTES + ALIGN,
                                               of_queries);
    if (p.g && wanted(p.dq))
        run<wgmma_attention_backward_kernel<false, D>>(call, queries, 128, 6 * TILE_BYTES + ALIGN,
                                                       of_queries);
    if (p.g && (wanted(p.dk) || wanted(p.dv)))
        run<wgmma_attention_backward_kernel<true, D>>(call, keys, 128, 6 * TILE_BYTES + ALIGN,
                                                      of_keys);
}

/* >>fast/losses */
/* ---- linear_cross_entropy: logits (rows,V) = x w' ---- LOSS_CLASSES classes of a block of rows at
 * a time. As built, the forward stores no logits, and the backward computes them again. In the
 * lowering (linear_loss/plan.c) the forward only counts rows; the backward computes all logits of a
 * block once and stores them, then the losses, then the gradients. Bits are equal, as one kernel
 * computes all logits and stores them as f32. Then they become their gradients in place, as bf16:
 * an operand of the products dx and dw. */
enum { LOSS_ROWS = 4096, LOSS_CLASSES = 4096 }; /* the forward takes 4 * LOSS_ROWS rows */

/* Merges maxima and sums of a chunk's groups of 64 classes, in order; a thread has a row. */
__device__ void merge_loss_row(int64_t r, const Loss &l, int groups, float *saved, float *losses,
                               int64_t rows, bool end)
{
    RowLoss *state = l.state;
    float max = l.first ? state[r].max : -INFINITY, sum = l.first ? state[r].sum : 0.0f;
#pragma unroll 8
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

/* Adds the number of rows whose targets are not ignored to *count; a warp counts. */
__device__ void count_targets(int64_t, const int32_t *target, int64_t rows, int64_t *count)
{
    int64_t counted = 0;
#pragma unroll 8
    for (int64_t r = threadIdx.x; r < rows; r += 32)
        counted += target[r] >= 0;
    for (int with = 16; with; with /= 2)
        counted += __shfl_xor_sync(0xffffffffu, counted, with);
    if (threadIdx.x == 0)
        *count += counted;
}

/* Replaces n logits of a row, classes l.first.., by their gradients in bf16, which begin where the
 * logits do. A block has a row, a thread 8 classes. */
__global__ void __launch_bounds__(LOSS_CLASSES / 8)
    logit_gradients_kernel(float *logits, int64_t row, int64_t n, Loss l, const float *saved,
                           const StepParams *params)
{
    const int64_t r = blockIdx.x, j = (int64_t)threadIdx.x * 8, target = l.target[r];
    const float max = saved[2 * r], log_sum = saved[2 * r + 1], scale = params->loss_scale;
    float v[8];
    read_vec<8>(Values{ logits, NULL }, r * row + j, n - j, true, v);
    __syncthreads(); /* all logits of the row have been read */
    UNROLLED(k, 8) {
        float grad = exp2_of(((v[k] - max) - log_sum) * LOG2E);
        grad = j + k == target - l.first ? grad - 1.0f : grad;
        v[k] = target < 0 ? 0.0f : grad * scale;
    }
    write_vec<8>({ NULL, (uint16_t *)(void *)logits }, 2 * r * row + j, n - j, true, v);
}

struct LossSizes {
    bool once; /* the lowering: each logit is computed once */
    int64_t rows, c, v;
    int64_t block, chunk; /* most rows, most classes at a time */
    int64_t row;          /* elements between rows of stored logits: a multiple of 8 */
};

LossSizes loss_sizes(const gckpt_call *call, bool backward)
{
    const int64_t rows = gckpti_rows(&call->in[0].shape), v = call->in[1].shape.d[0];
    const int64_t once = gckpti_linear_loss_block(call), chunk = gckpti_min(v, LOSS_CLASSES);
    const int64_t block = once ? once : backward ? LOSS_ROWS : 4 * LOSS_ROWS;
    return { once > 0, rows, gckpti_last(&call->in[0].shape), v, gckpti_min(rows, block), chunk,
             gckpti_ceil_to(once ? v : chunk, 8) };
}

/* The arrays in the workspace. */
struct LossBuffers {
    const uint16_t *x, *w; /* w: all weights as bf16, or NULL */
    uint16_t *some;        /* weights of a chunk as bf16 */
    float *logits, *dx;    /* of a block; logits of a chunk or, in the lowering, of all classes */
    float *parts, *losses, *saved;
    RowLoss *state;
};

LossBuffers loss_buffers(const gckpt_call *call, Workspace &workspace, bool backward)
{
    const LossSizes s = loss_sizes(call, backward);
    const auto floats = [&](int64_t n) { return (float *)bump_alloc(workspace, (size_t)n * 4); };
    LossBuffers r = {};
    r.x = operand(call, workspace, value_of(call->in[0]), s.rows * s.c);
    if (s.once || call->in[1].bf16)
        r.w = operand(call, workspace, value_of(call->in[1]), s.v * s.c);
    else
        r.some = (uint16_t *)bump_alloc(workspace, (size_t)(s.chunk * s.c) * 2);
    r.parts = floats((s.chunk + 127) / 128 * 4 * s.block);
    r.state = (RowLoss *)(void *)floats(3 * s.block);
    if (s.once || !backward)
        r.losses = floats(s.block);
    if (s.once)
        r.saved = floats(2 * s.block);
    if (backward)
        r.logits = floats(s.block * s.row), r.dx = floats(s.block * s.c);
    return r;
}

/* A block of rows. */
struct LossBlock {
    const gckpt_call *call;
    const LossSizes &s;
    const LossBuffers &r;
    int64_t row, rows; /* the first one, their number */
    float *saved;
    Matrix<uint16_t> x;

    Loss loss(int64_t first) const
    {
        return { call->in[2].index + row, (int)first, r.parts, r.state };
    }
    Matrix<uint16_t> weights(int64_t first, int64_t n) const
    {
        if (r.some)
            narrow(call, call->in[1].data + first * s.c, r.some, n * s.c);
        return matrix(r.some ? r.some : r.w + first * s.c, s.c);
    }
    /* Computes logits, and maxima and sums of 64 classes. Stores the logits unless `to` is NULL. */
    void logits(const Matrix<uint16_t> &some, int64_t first, int64_t n, float *to) const
    {
        MmaProduct p = mma_of(rows, n, s.c, x, some, NONE, 0, { to, NULL });
        p.loss = loss(first), p.c_row = (int)s.row, p.aligned = true;
        run_mma_tile<128, 1, 1, ROW_STATS>(call, p);
    }
    void losses(void) const /* in the lowering, also stores the logits */
    {
        for (int64_t first = 0, n; first < s.v; first += n) {
            n = gckpti_min(s.v - first, s.chunk);
            logits(weights(first, n), first, n, s.once ? r.logits + first : NULL);
            for_each<merge_loss_row, 64>(call, rows, loss(first), (int)((n + 127) / 128 * 2), saved,
                                         r.losses, rows, first + n == s.v);
        }
        add_losses(call, r.losses, call->in[2].index + row, rows, 1);
    }
    void gradients(const StepParams *params) const
    {
        const gckpt_arg *in = &call->in[0], *w = &call->in[1];
        const int64_t at = row * s.c, size = rows * s.c;
        float *dx = in->grad_bf16 ? r.dx : in->grad ? in->grad + at : NULL;
        if (in->grad_bf16 && in->accumulate)
            widen(call, in->grad_bf16 + at, dx, size);
        for (int64_t first = 0, n; first < s.v; first += n) {
            n = gckpti_min(s.v - first, s.chunk);
            float *z = r.logits + (s.once ? first : 0);
            const Matrix<uint16_t> some = weights(first, n);
            const Matrix<uint16_t> d = matrix((const uint16_t *)(void *)z, 2 * s.row);
            if (!s.once)
                logits(some, first, n, z);
            run<logit_gradients_kernel>(call, dim3((unsigned)rows), (int)((n + 255) / 256 * 32), 0,
                                        z, s.row, n, loss(first), saved, params);
            if (dx)
                mma_product(call,
                            mma_of(rows, s.c, n, d, some, NONE, in->accumulate || first > 0,
                                   { dx, NULL }),
                            1, 0);
            if (w->grad)
                mma_product(call,
                            mma_of(n, s.c, rows, d, x, NONE, w->accumulate || row > 0,
                                   { w->grad + first * s.c, NULL }),
                            0, 0);
        }
        if (in->grad_bf16)
            narrow(call, dx, in->grad_bf16 + at, size);
    }
};

void linear_cross_entropy_by(const gckpt_call *original, bool backward)
{
    const gckpt_call adjusted = backward ? drop_zero_fills(original) : *original;
    const gckpt_call *call = &adjusted;
    const LossSizes s = loss_sizes(call, backward);
    Workspace workspace = { (char *)call->workspace, 0 };
    if (s.once && !backward) {
        if (call->loss_count)
            for_each_row<count_targets>(call, 1, call->in[2].index, s.rows, call->loss_count);
        return;
    }
    const LossBuffers r = loss_buffers(call, workspace, backward);
    const StepParams *params = backward ? params_of(call) : NULL;
    for (int64_t row = 0; row < s.rows; row += s.block) {
        float *saved = call->saved ? (float *)call->saved + 2 * row : r.saved;
        const LossBlock b = { call, s, r, row, gckpti_min(s.rows - row, s.block), saved,
                              matrix(r.x + row * s.c, s.c) };
        if (s.once || !backward)
            b.losses();
        if (backward)
            b.gradients(params);
    }
}

gckpt_result linear_cross_entropy_workspace(gckpt_call *call)
{
    Workspace forward = { NULL, 0 }, backward = { NULL, 0 };
    if (gckpti_linear_loss_cap(call) > 0.0f) {
        call->precision = GCKPT_BF16;
        return GCKPT_OK;
    }
    if (!gckpti_linear_loss_block(call))
        loss_buffers(call, forward, false);
    loss_buffers(call, backward, true);
    call->workspace_forward = forward.used;
    call->workspace_backward = backward.used;
    call->mixes_rows |= gckpti_rows(&call->in[0].shape) % TOKENS != 0;
    return GCKPT_OK;
}

/* >>fast/norms */
/* ---- layernorm, rmsnorm: a warp has a row, a lane eight adjacent elements at a time ---- */
struct Norm { /* a layernorm or, if center is 0, an rmsnorm; gain and bias may be empty */
    int center;
    int64_t n; /* elements of a row */
    Values x, gain, bias, g;
    float *saved;
    bool aligned; /* rows, gain and bias begin at multiples of 16 bytes */
};

Norm norm_of(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_arg *in = call->in;
    Norm s = { o->center, gckpti_last(&call->shape), value_of(in[0]) };
    s.gain = o->gain ? value_of(in[o->gain]) : NONE;
    s.bias = o->bias ? value_of(in[o->bias]) : NONE;
    s.g = grad_out_of(call), s.saved = (float *)call->saved;
    s.aligned = s.n % 8 == 0 && aligned(s.x, s.gain, s.bias, s.g, out_of(call), grad_of(in[0]));
    return s;
}

enum { AT_ONCE = 8 }; /* adjacent elements that a lane has */

/* Returns the sum over a row by a warp: f(sum, x) returns the sum with x. */
template <class F> __device__ __forceinline__ float norm_sum(const Norm &s, int64_t r, F f)
{
    float sum = 0.0f, x[AT_ONCE];
    for (int64_t i = threadIdx.x % 32 * AT_ONCE; i < s.n; i += 32 * AT_ONCE) {
        read_vec<AT_ONCE>(s.x, r * s.n + i, s.n - i, s.aligned, x);
        UNROLLED(k, AT_ONCE) sum = i + k < s.n ? f(sum, x[k]) : sum;
    }
    return warp_sum(sum);
}

/* The mean is uncorrected: x has 8 bits. */
__device__ void norm_row(int64_t r, const Norm &s, float epsilon, const Results &out)
{
    const int lane = (int)threadIdx.x % 32;
    Normed o = {};
    if (s.center) {
        o.c = value_at(s.x, r * s.n);
        o.c += norm_sum(s, r, [&](float sum, float x) { return sum + (x - o.c); }) / (float)s.n;
    }
    const float squares = norm_sum(
        s, r, [&](float sum, float x) { return gckpti_fma(x - o.c, x - o.c, sum); });
    o.rstd = gckpti_rsqrt(squares / (float)s.n + epsilon);
    for (int64_t i = lane * AT_ONCE; wanted(out) && i < s.n; i += 32 * AT_ONCE) {
        float x[AT_ONCE], gain[AT_ONCE], bias[AT_ONCE];
        read_vec<AT_ONCE>(s.x, r * s.n + i, s.n - i, s.aligned, x);
        read_vec<AT_ONCE>(s.gain, i, s.n - i, s.aligned, gain);
        read_vec<AT_ONCE>(s.bias, i, s.n - i, s.aligned, bias);
        UNROLLED(k, AT_ONCE) x[k] = norm_out(x[k] - o.c, o.rstd, wanted(s.gain) ? gain : NULL,
                                       wanted(s.bias) ? bias : NULL, k);
        write_vec<AT_ONCE>(out, r * s.n + i, s.n - i, s.aligned, x);
    }
    if (s.saved && s.center && lane < 3)
        s.saved[3 * r + lane] = lane == 0 ? o.c : lane == 1 ? o.mean : o.rstd;
    if (s.saved && !s.center && lane == 0)
        s.saved[r] = o.rstd;
}

__device__ void norm_gradient_of_row(int64_t r, const Norm &s, const Results &dx, int accumulate)
{
    const Normed o = normed(s.saved, r, s.center);
    float h[AT_ONCE], u[AT_ONCE]; /* h: normalised x; u: g gain */
    float gain[AT_ONCE], a = 0.0f, b = 0.0f;
    const auto read = [&](int64_t i) {
        read_vec<AT_ONCE>(s.x, r * s.n + i, s.n - i, s.aligned, h);
        read_vec<AT_ONCE>(s.g, r * s.n + i, s.n - i, s.aligned, u);
        read_vec<AT_ONCE>(s.gain, i, s.n - i, s.aligned, gain);
        UNROLLED(k, AT_ONCE) h[k] = o.normalised(h[k]);
        UNROLLED(k, AT_ONCE) u[k] = wanted(s.gain) ? gckpti_mul(u[k], gain[k]) : u[k];
    };
    for (int64_t i = threadIdx.x % 32 * AT_ONCE; i < s.n; i += 32 * AT_ONCE) {
        read(i);
        UNROLLED(k, AT_ONCE) if (i + k < s.n)
            a += u[k], b = gckpti_fma(u[k], h[k], b);
    }
    a = s.center ? warp_sum(a) / (float)s.n : 0.0f;
    b = warp_sum(b) / (float)s.n;
    for (int64_t i = threadIdx.x % 32 * AT_ONCE; i < s.n; i += 32 * AT_ONCE) {
        float d[AT_ONCE] = {};
        read(i);
        if (accumulate)
            read_vec<AT_ONCE>(dx, r * s.n + i, s.n - i, s.aligned, d);
        UNROLLED(k, AT_ONCE)
            gckpti_put_product(&d[k], o.rstd, gckpti_fma(-h[k], b, u[k] - a), accumulate);
        write_vec<AT_ONCE>(dx, r * s.n + i, s.n - i, s.aligned, d);
    }
}

/* A block has TOKENS rows at a time, which stay in caches while they are read twice: for columns'
 * sums, i.e. gradients of bias and gain (four columns a thread), and for dx (a row a warp). */
__global__ void __launch_bounds__(32 * TOKENS, 2)
    fast_norm_backward_kernel(const __grid_constant__ Norm s, Results dx, float *g_sums,
                              float *gh_sums, int64_t rows, int accumulate)
{
    const int64_t n = s.n, each = s.aligned && s.x.bf16 && s.g.bf16 ? 4 : 1;
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
            norm_gradient_of_row(r, s, dx, accumulate);
    }
}

void layernorm_by(const gckpt_call *original, bool backward)
{
    const gckpti_norm *o = (const gckpti_norm *)original->attributes;
    const Norm s = norm_of(original);
    const int64_t n = s.n, rows = gckpti_rows(&original->shape);
    if (!backward)
        return for_each_row<norm_row>(original, rows, s, gckpti_norm_epsilon(o),
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
/* Runs F under the device's lock. PENDING: F may fuse its op with pending launches. */
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
#define OP_OF(name, ...)          OP(name)
const OpKernels EXACT_OPS[] = {
    GCKPTI_UNARY_OPS(OP_OF) GCKPTI_UNARY_OPS_WITH(OP_OF) GCKPTI_BINARY_OPS(OP_OF)
    GCKPTI_IF_ACTIVATIONS(OP(where)) OP(dropout) OP(detach) OP(from_u8) OP(slice) OP(rotary)
    OP(cache) OP_AS(linear, products_by<gckpti_run_matmul, products>)
    OP_AS(matmul, products_by<gckpti_run_matmul, products>)
    OP(layernorm) OP_AS(rmsnorm, layernorm_by)
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
    OP_AS(permute, moves_by<gckpti_permute_move>) OP_AS(concat, moves_by<gckpti_concat_move>)
    OP(pad) OP_AS(sum, sum_by<false>) OP_AS(mean, sum_by<true>)
    OP_AS(broadcast_matmul, products_by<gckpti_broadcast_matmul_run, products>)
    OP_AS(max, max_by<true, false>) OP_AS(argmax, max_by<false, false>)
    OP_AS(top_k, max_by<true, true>) OP_AS(top_k_indices, max_by<false, true>)
#endif
#ifndef GCKPT_NO_IMAGES
    OP_AS(upsample, windows_by<UPSAMPLE>) OP_AS(max_pool, windows_by<MAX_POOL>)
    OP_WORDS(average_pool, no, windows_by<AVERAGE_POOL>)
    OP_WORDS(conv2d, no, products_by<gckpti_run_conv, conv>)
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
    FAST_BY(sub, fast::same_shape_workspace, sub_by)
    FAST_BY(mul, fast::same_shape_workspace, mul_by)
    FAST_BY(gelu, NULL, fast::gelu_by) GCKPTI_IF_ACTIVATIONS(FAST_BY(gelu_erf, NULL, gelu_erf_by))
    FAST_BY(silu, NULL, silu_by) FAST_BY(tanh, NULL, tanh_by)
    FAST_BY(sigmoid, NULL, sigmoid_by) FAST_BY(relu, NULL, relu_by)
    FAST_BY(scale, NULL, scale_by) FAST_BY(slice, NULL, slice_by)
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

template <const auto &OPS> gckpt_kernel find(void *, const gckpt_op *op, gckpt_kind kind)
{
    const OpKernels *row = row_of(OPS, op);
    return !row ? NULL : kind == GCKPT_FORWARD ? row->forward : row->backward;
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
 * below, and broken[1] to 1 if kernels with wgmma were compiled. Runs the header's self-test and
 * detects compilation without -fmad=false (products and sums are fused) or with -use_fast_math
 * (divisions and roots are not correctly rounded). */
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
    broken[1] = gckpti_has_wgmma();
}

/* Multiplies small integers by wgmma in tiles of this size and this layout. Returns true if the
 * product is exact. Its rows, columns and terms do not fill a tile; some blocks share terms. */
template <int size, int a_along, int b_along> bool wgmma_is_exact(const gckpt_call *call)
{
    enum { M = 72, N = 136, K = 80, BLOCKS = 5 };
    Device *d = device_of(call);
    uint16_t terms[N * K], *x = NULL;
    float got[M * N];
    for (int i = 0; i < N * K; i++)
        terms[i] = gckpti_to_bf16((float)(i * 37 % 11 % 7 - 3));
    check(d, cudaMalloc(&x, sizeof terms + sizeof got), "cudaMalloc");
    if (!x)
        return false;
    float *c = (float *)(void *)(x + N * K);
    check(d, cudaMemcpyAsync(x, terms, sizeof terms, cudaMemcpyHostToDevice, d->stream),
          "self-test");
    const fast::MmaProduct p = fast::mma_of(M, N, K, matrix(x, a_along ? K : M),
                                            matrix(x, b_along ? K : N), NONE, 0, { c, NULL });
    fast::wgmma_product<size, a_along, b_along, fast::STORE>(call, p, BLOCKS);
    copy_out(d, got, c, sizeof got);
    check(d, cudaFree(x), "cudaFree");
    for (int at = 0; at < M * N; at++) {
        const int i = at / N, j = at % N;
        float sum = 0.0f;
        for (int k = 0; k < K; k++)
            sum += gckpti_from_bf16(terms[a_along ? i * K + k : k * M + i]) *
                   gckpti_from_bf16(terms[b_along ? j * K + k : k * N + j]);
        if (got[at] != sum)
            return false;
    }
    return true;
}

/* Lets kernels use wgmma if the device has it, it was compiled, and its results are exact. Else
 * says why not on stderr; an error that CUDA survives is no error of the device. */
void choose_wgmma(Device *d, bool compiled)
{
    gckpt_call call = {};
    call.backend = d;
    if (attribute_of(&call, cudaDevAttrComputeCapabilityMajor) != 9 ||
        attribute_of(&call, cudaDevAttrComputeCapabilityMinor) != 0)
        return;
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    const char *name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
    check(d, cudaGetDriverEntryPointByVersion(name, &encode, 12000, cudaEnableDefault, &found),
          name);
#else
    check(d, cudaGetDriverEntryPoint(name, &encode, cudaEnableDefault, &found), name);
#endif
    d->encode = (decltype(d->encode))encode;
    d->wgmma = compiled && encode && wgmma_is_exact<128, 1, 0>(&call) &&
               wgmma_is_exact<128, 1, 1>(&call) && wgmma_is_exact<128, 0, 0>(&call) &&
               wgmma_is_exact<64, 0, 0>(&call) && !d->problem[0];
    if (d->wgmma)
        return;
    fprintf(stderr, "CUDA device %d: GCKPT_BF16_FAST is slower than possible: %s\n", d->number,
            !compiled       ? "compile gradckpt_cuda.cu by nvcc -arch=sm_90a"
            : d->problem[0] ? d->problem
                            : "wgmma gave wrong results, mma.sync is used");
    d->problem[0] = 0;
    check(d, cudaStreamSynchronize(d->main), "self-test"); /* has any error that lasts */
}

/* Runs self_test_kernel, whose results go to params for a moment. */
void self_test(Device *d)
{
    static const char *const wrong[] = { "",
                                         "subnormals are flushed to zero",
                                         "fma is wrong",
                                         "sums are re-associated",
                                         "exp, log, .. have other bits",
                                         "products and sums are contracted",
                                         "division or root are not rounded correctly",
                                         "products of bf16 plans do not flush to zero" };
    int broken[2], *result = (int *)(void *)d->params;
    launch<self_test_kernel>(d, 1, 1, 0, 1.000244140625f, 1.00048828125f, result);
    copy_out(d, broken, result, sizeof broken);
    check(d, cudaMemsetAsync(d->params, 0, PARAM_BYTES, d->stream), "self-test");
    if (broken[0] && !d->problem[0])
        snprintf(d->problem, TEXT,
                 "CUDA device %d: self-test: %s; compile gradckpt_cuda.cu by nvcc -fmad=false and "
                 "without -use_fast_math",
                 d->number, wrong[broken[0]]);
    if (!d->problem[0])
        choose_wgmma(d, broken[1]);
}

/* >>backend/open */
template <class F> void each_stream(Device *d, F f)
{
    f(&d->main), f(&d->offload.stream), f(&d->graph.stream), f(&d->comm.stream);
}

template <class F> void each_event(Device *d, F f)
{
    f(&d->fork_event);
    for (Queue *s : { &d->offload, &d->graph, &d->comm })
        for (cudaEvent_t &e : s->done)
            f(&e);
    for (Slot &s : d->slots)
        f(&s.copied);
}

void device_close(Device *d)
{
    for (auto &r : d->captures)
        destroy_capture(d, &r.second);
    d->captures.clear();
    each_event(d, [](cudaEvent_t *e) {
        if (*e)
            cudaEventDestroy(*e);
    });
    cudaFreeHost(d->pinned);
    cudaFree(d->params);
    each_stream(d, [](cudaStream_t *s) {
        if (*s)
            cudaStreamDestroy(*s);
    });
    *d = Device();
}

/* Closes all devices when the program exits; memory of executors that still exist ends then. */
void close_all(void)
{
    for (Device &d : devices)
        if (d.ready && cudaSetDevice(d.number) == cudaSuccess)
            device_close(&d);
}

/* Warns if this program has no machine code for the device, so that CUDA compiles its PTX. */
void warn_of_ptx(int number)
{
    cudaDeviceProp p = {};
    cudaGetDeviceProperties(&p, number);
    for (int arch : { __CUDA_ARCH_LIST__ }) /* 900: compute capability 9.0 */
        if (arch / 100 == p.major && arch / 10 % 10 <= p.minor)
            return;
    fprintf(stderr, "CUDA device %d: compiling PTX takes minutes; nvcc -arch=native avoids it\n",
            number);
}

/* Creates streams, events and step parameters. After an error, the caller calls device_close. */
void device_open(Device *d, int number)
{
    d->number = number;
    check(d, cudaSetDevice(number), "cudaSetDevice");
    if (d->problem[0])
        return;
    /* cudaStreamNonBlocking: no stream waits for the program's default stream */
    each_stream(d, [d](cudaStream_t *s) {
        check(d, cudaStreamCreateWithFlags(s, cudaStreamNonBlocking), "making streams");
    });
    d->stream = d->main;
    each_event(d, [d](cudaEvent_t *e) {
        check(d, cudaEventCreateWithFlags(e, cudaEventDisableTiming), "making events");
    });
    check(d, cudaMalloc((char **)&d->params, PARAM_BYTES), "cudaMalloc");
    d->shares = (unsigned *)(void *)(d->params + 1);
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
    if (device >= 0 && device < most && devices[device].ready)
        return &devices[device].backend;
    cudaError_t result = cudaPeekAtLastError();
    if (result != cudaSuccess) {
        snprintf(problem, sizeof problem,
                 "CUDA device %d: this program's error %s is pending: clear it (cudaGetLastError)",
                 device, cudaGetErrorName(result));
        return NULL;
    }
    result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess) {
        format_error(problem, device, result, "looking for devices");
        cudaGetLastError();
        return NULL;
    }
    if (device < 0 || device >= count || device >= most) {
        snprintf(problem, sizeof problem, "CUDA device %d: there are %d, numbered from 0", device,
                 count < most ? count : most);
        return NULL;
    }
    Device *d = &devices[device];
    device_open(d, device);
    if (!d->problem[0])
        warn_of_ptx(device), self_test(d);
    if (d->problem[0]) {
        memcpy(problem, d->problem, sizeof problem);
        device_close(d);
        cudaGetLastError();
        return NULL;
    }
    static int at_exit = atexit(close_all);
    (void)at_exit;
    d->backend = { "cuda", d, 1, 0, allocate, release<cudaFree>, copy_in, copy_out, copy, workspace,
                   find<EXACT_OPS>, fill, locked_with<add>, locked_with<convert>, update, finish,
                   replay, end_capture, discard_captures, memory_hint, find<FAST_OPS>, host_get,
                   release<cudaFreeHost>, copy_async, wait_copies, locked_with<dequantise>,
                   use_comm_queue, wait_comm_queue };
    d->ready = 1;
    return &d->backend;
}

extern "C" const char *gckpt_cuda_memory(int device, size_t *left, size_t *total)
{
    const char *error;
    const gckpt_backend *b = gckpt_cuda_backend(device, &error);
    *left = *total = 0;
    if (!b)
        return error;
    DeviceLock d(b->context);
    check(d, cudaMemGetInfo(left, total), "cudaMemGetInfo");
    return d->problem[0] ? d->problem : NULL;
}
