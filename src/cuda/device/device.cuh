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
