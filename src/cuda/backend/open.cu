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
