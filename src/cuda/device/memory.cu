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
