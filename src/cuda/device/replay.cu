/* ---- captures and replays of micro-batches ---- */
void destroy_capture(Device *d, Capture *r)
{
    if (r->graph) {
        wait_all(d, "a recorded micro-batch");
        check(d, cudaGraphExecDestroy(r->graph), "cudaGraphExecDestroy");
        d->graphs--;
    }
    memset(r, 0, sizeof *r);
}

/* Destroys the captures of `owner`, or all if it is NULL. */
void discard_captures(void *context, const void *owner)
{
    DeviceLock d(context);
    for (Capture &r : d->captures)
        if (!owner || r.owner == owner)
            destroy_capture(d, &r);
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
