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
    for (auto &r : d->captures)
        destroy_capture(d, &r.second);
    d->captures.clear();
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
