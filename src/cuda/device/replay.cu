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
