/* ---- >>device -------------------------------------------------------------------------------- */
/* The values that may differ when a captured micro-batch is replayed. Kernels that need a call's
 * row, seed, step, position or loss_scale do not get them as arguments, but read them at
 * params_of(call), an address in device memory; host code must not depend on them. All else
 * (shapes, rows, addresses) is the same in each replay. Updates are never replayed: they have their
 * gckpt_update_pass. */
struct StepParams {
    int64_t first_row, position;
    uint64_t seed, step;
    float loss_scale;
};

#ifndef GCKPT_CUDA_SLOT_BYTES /* tests have small ones */
#define GCKPT_CUDA_SLOT_BYTES (1 << 19)
#endif
#ifndef GCKPT_CUDA_WIDE /* indexes from here on are of 64 bits; tests have a small one */
#define GCKPT_CUDA_WIDE (INT64_C(1) << 31)
#endif
enum {
    TEXT = 256,  /* bytes of an error */
    LOSSES = 14, /* a plan with more is not recorded */
    RING = 64, /* events per queue */
    SLOTS = 64,  /* by which copies come in: 32 MiB on either side */
    SLOT_BYTES = GCKPT_CUDA_SLOT_BYTES,
    CAPTURES = 4096 /* kept for all executors of a device; then the oldest goes */
};

/* at[0] is for the micro-batch (outside captures: the current call), at[1] for batch-invariant ops,
 * with row 0; then one for each loss. */
struct StepParamSet {
    StepParams at[2 + LOSSES];
};

/* A micro-batch of `rows` rows, or a part of one, as a CUDA graph; the first of a batch (row 0) has
 * its own. */
struct Capture {
    const void *owner; /* NULL means none */
    int64_t part, rows;
    int first, warmed_up;       /* warmed_up: kernels are loaded */
    cudaGraphExec_t graph; /* NULL until captured */
};

/* A block of pinned memory and one of the device. Input goes through both, on its own stream while
 * others compute, and from there to its destination after these. */
struct Slot {
    cudaEvent_t arrived, taken; /* copied to the device; copied from the slot */
    int used;                   /* since the last wait for everything */
};

/* Launches that overlap with the main stream; each starts after all launches before it. */
struct Queue {
    cudaStream_t stream;
    cudaEvent_t done[RING]; /* the ends of the latest launches, in a ring */
    int next;                /* modulo PIECES */
    int pending;                 /* launched since the last join of all */
};

/* A device. Calls of all threads and executors are serialised into one stream. */
struct Device {
    int number, ready;
    std::recursive_mutex lock;
    cudaStream_t main, feeds; /* computation; copies in */
    cudaStream_t stream;      /* current stream: main, or that of `comm` */
    Queue offload, graph, comm; /* offloads, offloads in captures, communication */
    Queue overlap;                /* a product that overlaps with the next ones */
    cudaEvent_t fork_event;       /* start of an overlapped launch */
    int busy;                   /* something was launched since the last synchronisation */
    char problem[TEXT];         /* the first error */
    StepParamSet now, *params;      /* *params is, or will soon be, a copy of `now` */
    Slot slots[SLOTS];
    char *pinned, *staged;
    Capture captures[CAPTURES], *capture; /* capture: the one in progress */
    int capture_failed;                             /* it failed */
    int ids[LOSSES], losses;                      /* the losses of params->at[2], .. */
    int slot, oldest, next; /* the next slot; captures: which to replace, where to look first */
    gckpt_backend backend;
};
Device devices[16];
thread_local bool on_comm[16]; /* whether this thread's calls go to the device's comm queue */

Device *device_of(const gckpt_call *call) { return (Device *)call->backend; }

/* Returns advice about an error. By number, since toolkits differ in the names that they define. */
const char *remedy(int error)
{
    static const struct {
        int errors[8];
        const char *what;
    } all[] = {
        { { 2 }, "plan with a smaller budget" }, /* cudaErrorMemoryAllocation */
        { { 3 }, "a device does not survive a fork: open it after the fork" }, /* not initialised */
        { { 35, 222, 804 }, "there is no driver, or one older than nvcc: install a newer one" },
        { { 803 }, "the running driver is not the installed one: restart" },
        { { 802 }, "is the fabric manager running? systemctl start nvidia-fabricmanager" },
        { { 46 }, "another process holds it exclusively" }, /* cudaErrorDevicesUnavailable */
        { { 98, 209 }, "compile gradckpt_cuda.cu for it: nvcc -arch=native" }, /* no kernel */
        { { 100 }, "see nvidia-smi and CUDA_VISIBLE_DEVICES" },                /* no device */
        { { 701 }, "compile gradckpt_cuda.cu by nvcc -O3 -arch=native" },      /* registers, .. */
        { { 702 }, "a device with a display stops long kernels: take smaller micro-batches" },
        { { 700, 710, 714, 715, 716, 717, 718, 719 }, /* a kernel's address, instruction, .. */
          "with CUDA_LAUNCH_BLOCKING=1 this names the kernel; restart from a checkpoint" },
        { { 214, 220, 226, 721, 999 }, /* uncorrectable, external, contained, not ready, .. */
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

/* Keeps the first error. In a capture it only ends that: the micro-batch then runs without one. */
void check(Device *d, cudaError_t error, const char *what)
{
    if (error != cudaSuccess && d->capture)
        d->capture_failed = 1;
    else if (error != cudaSuccess && !d->problem[0])
        format_error(d->problem, d->number, error, what);
}

/* Returns the compiler's name of this function, which ends in the kernel's name and arguments:
 * "... KERNEL = fill_kernel<4>]". */
template <auto KERNEL> const char *name_of(void) { return __PRETTY_FUNCTION__; }

void check_kernel(Device *d, cudaError_t error, const char *name)
{
    const char *from = strstr(name, "KERNEL = ");
    char text[72]; /* fits into the rest of a message */
    if (error == cudaSuccess)
        return;
    snprintf(text, sizeof text, "%s", from ? from + 9 : name);
    if (text[strlen(text) - 1] == ']')
        text[strlen(text) - 1] = 0;
    check(d, error, text);
}

void launch_pending(Device *d); /* common/update.cu */

/* Held by each function of the table: one thread at a time, with this device as CUDA's current one.
 * The device stays current, since restoring the previous one would create a context there. more:
 * pending launches may stay pending. Converts to the Device. */
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

/* Blocks of `threads` for n items, at most 16 for each processor of a large chip. */
dim3 blocks_for(int64_t n, int threads)
{
    int64_t blocks = (n + threads - 1) / threads;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks < 2112 ? blocks : 2112));
}

/* for (EACH(i, n)): the n items go to all threads of the grid. */
#define EACH(i, n)                                                                                 \
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                           \
    i += (int64_t)gridDim.x * blockDim.x

#define CHECKED_LAUNCH(device, kernel, grid, block, shared, ...)                                   \
    do {                                                                                           \
        LAUNCH(kernel, grid, block, shared, (device)->stream, __VA_ARGS__);                        \
        check_kernel(device, cudaGetLastError(), name_of<(kernel)>());                             \
        (device)->busy = 1;                                                                        \
    } while (0)
#define RUN_ON(device, ...)                                                                        \
    do {                                                                                           \
        launch_pending(device);                                                                    \
        CHECKED_LAUNCH(device, __VA_ARGS__);                                                       \
    } while (0)
#define RUN(call, kernel, grid, block, shared, ...)                                                \
    RUN_ON(device_of(call), kernel, grid, block, shared, __VA_ARGS__)
/* Defines an op's two functions by one function F(call, backward). */
#define BOTH_PASSES(name, ...)                                                                     \
    void name##_forward(const gckpt_call *call) { __VA_ARGS__(call, false); }                      \
    void name##_backward(const gckpt_call *call) { __VA_ARGS__(call, true); }
/* A thread for each of n items, or a warp for each row. */
#define RUN_EACH(call, kernel, n, ...) RUN(call, kernel, blocks_for(n, 256), 256, 0, __VA_ARGS__)
#define RUN_ROWS(call, kernel, rows, ...) RUN_EACH(call, kernel, 32 * (rows), __VA_ARGS__)
/* Runs a kernel with more shared memory than the default limit. */
#define RUN_SHARED(call, kernel, grid, block, shared, ...)                                        \
    do {                                                                                           \
        check_kernel(device_of(call),                                                              \
                     cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,     \
                                          (int)(shared)),                                          \
                     name_of<(kernel)>());                                                         \
        RUN(call, kernel, grid, block, (size_t)(shared), __VA_ARGS__);                             \
    } while (0)

__global__ void params_kernel(StepParamSet *to, StepParamSet now, int n)
{
    if ((int)threadIdx.x < n)
        to->at[threadIdx.x] = now.at[threadIdx.x];
}

/* Returns the call's row, position, seed, step and loss_scale for a kernel, until the next call. */
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
        RUN_ON(d, params_kernel, 1, 1, 0, d->params, d->now, 1);
    }
    return &d->params->at[0];
}

/* Returns whether a capture is active, in which the host cannot take part. */
int reject_capture(Device *d)
{
    d->capture_failed = 1;
    return d->capture != NULL;
}
