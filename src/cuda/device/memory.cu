/* ---- memory ---- */
thread_local char no_room[TEXT + 2]; /* why the thread's last `get` found none */

/* Its alignment: 256 bytes at least. */
void *get(void *context, size_t bytes, size_t)
{
    Hold d(context);
    void *p = NULL;
    size_t unused = 0, all = 0;
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

const char *shortage(void *) { return no_room; }

/* A piece begins behind what was asked for up to now; it ends. False: of a recording that failed,
 * whose piece would not be recorded but run. */
bool side_begin(Device *d, Side *s)
{
    check(d, cudaEventRecord(d->before, d->main), "a queue beside");
    check(d, cudaStreamWaitEvent(s->stream, d->before, 0), "a queue beside");
    return !d->recording || !d->unrecordable;
}

void side_end(Device *d, Side *s)
{
    check(d, cudaEventRecord(s->ends[s->begun], s->stream), "a queue beside");
    s->begun = (s->begun + 1) % PIECES;
    s->away = d->busy = 1;
}

/* What is asked for from now on waits for all pieces but the last `later`. */
void side_join(Device *d, Side *s, int later)
{
    int last = later < PIECES ? later : 0;
    if (s->away)
        check(d, cudaStreamWaitEvent(d->main, s->ends[(s->begun + PIECES - 1 - last) % PIECES], 0),
              "join");
    s->away = s->away && last > 0;
}

/* Until all that was asked for is done; then all slots are free. */
void settle(Device *d, const char *what)
{
    if (!d->busy || unrecordable(d))
        return;
    side_join(d, &d->moves, 0);
    side_join(d, &d->ranks, 0);
    check(d, cudaStreamSynchronize(d->stream), what);
    if (d->stream != d->main) /* other threads' */
        check(d, cudaStreamSynchronize(d->main), what);
    d->busy = 0;
    for (int i = 0; i < SLOTS; i++)
        d->slots[i].used = 0;
}

template <cudaError_t (*FREE)(void *)> void release(void *context, void *memory, size_t)
{
    Hold d(context);
    settle(d, "release");
    check(d, FREE(memory), "release");
}

/* By slots. The host waits only where its bytes go to a pinned piece that is not read yet. */
void copy_in(void *context, void *to, const void *host, size_t bytes)
{
    Hold d(context);
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
    Hold d(context);
    if (!unrecordable(d))
        check(d, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, d->stream), "copy out");
    d->busy = 1;
    settle(d, "copy out");
    if (d->problem[0] || d->recording)
        memset(host, 0, bytes);
}

void copy(void *context, void *to, const void *from, size_t bytes)
{
    Hold d(context);
    check(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream), "copy");
    d->busy = 1;
}

const char *finish(void *context)
{
    Hold d(context);
    settle(d, "a step");
    return d->problem[0] ? d->problem : NULL;
}

/* ---- what is offloaded: to pinned memory, on a stream of its own, also within a recording ---- */
void *host_get(void *context, size_t bytes)
{
    Hold d(context);
    void *p = NULL;
    no_room[0] = 0;
    cudaError_t error = cudaMallocHost(&p, bytes);
    if (error == cudaSuccess)
        return p;
    cudaGetLastError();
    snprintf(no_room, sizeof no_room,
             ": %zu bytes of host memory could not be pinned for offloads (%s); plan with a "
             "smaller offload_bytes",
             bytes, cudaGetErrorString(error));
    return NULL;
}

/* A recording has a queue of its own, so that copies begun before it go on beside it. */
Side *moving(Device *d) { return d->recording ? &d->forks : &d->moves; }

void move(void *context, void *to, const void *from, size_t bytes, int out)
{
    Hold d(context);
    Side *s = moving(d);
    const cudaMemcpyKind kind = out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    if (side_begin(d, s))
        check(d, cudaMemcpyAsync(to, from, bytes, kind, s->stream), "move");
    side_end(d, s);
}

void join_but(void *context, int later)
{
    Hold d(context);
    side_join(d, moving(d), later);
}

void join(void *context) { join_but(context, 0); }

/* ---- what goes from rank to rank ---- */
void *beside(void *context, int on)
{
    Hold d(context);
    on ? (void)side_begin(d, &d->ranks) : side_end(d, &d->ranks);
    apart[d->number] = on != 0;
    return d->ranks.stream;
}

void rejoin(void *context, int later)
{
    Hold d(context);
    side_join(d, &d->ranks, later);
}
