/* ---- repeated micro-batches ---- */
void drop(Device *d, Recording *r)
{
    if (r->graph) {
        settle(d, "a recorded micro-batch");
        check(d, cudaGraphExecDestroy(r->graph), "cudaGraphExecDestroy");
    }
    memset(r, 0, sizeof *r);
}

void forget(void *context, const void *owner)
{
    Hold d(context);
    for (int i = 0; i < RECORDINGS; i++)
        if (d->recordings[i].owner == owner)
            drop(d, &d->recordings[i]);
}

/* The one of this micro-batch, or a new one. */
Recording *recording_of(Device *d, const gckpt_step_params *m)
{
    Recording *r = NULL;
    for (int i = 0; i < RECORDINGS; i++) {
        const int at = (d->next + i) % RECORDINGS;
        Recording *have = &d->recordings[at];
        if (have->owner == m->owner && have->part == m->part && have->rows == m->rows &&
            have->first == !m->first_row) {
            d->next = at; /* the part behind it is near */
            return have;
        }
        r = !r && !have->owner ? have : r;
    }
    if (!r) {
        r = &d->recordings[d->oldest];
        d->oldest = (d->oldest + 1) % RECORDINGS;
        drop(d, r);
    }
    *r = { m->owner, m->part, m->rows, !m->first_row };
    return r;
}

/* Puts a micro-batch's moments where its kernels read them. */
void tell(Device *d, const gckpt_step_params *m)
{
    Moment now = { m->first_row, m->position, m->seed, m->step, 0.0f };
    const Moments before = d->now;
    d->now.at[0] = d->now.at[1] = now;
    d->now.at[1].row = 0;
    d->losses = m->losses;
    for (int i = 0; i < m->losses; i++) {
        d->now.at[2 + i] = now;
        d->now.at[2 + i].loss_scale = m->scales[i].scale;
        d->ids[i] = m->scales[i].id;
    }
    if (memcmp(&before, &d->now, sizeof before)) /* another part has not told it */
        RUN_ON(d, moments_kernel, 1, 32, 0, d->moments, d->now, 2 + m->losses);
}

/* At first sight a micro-batch only runs; the second time it is recorded, with the lock kept until
 * `recorded`, so that nothing of another thread comes between. */
int repeat(void *context, const gckpt_step_params *m)
{
    Hold d(context);
    if (m->losses > LOSSES || d->problem[0])
        return 0;
    Recording *r = recording_of(d, m);
    if (!r->seen) {
        r->seen = 1;
        return 0;
    }
    tell(d, m);
    if (r->graph) {
        check(d, cudaGraphLaunch(r->graph, d->stream), "a recorded micro-batch");
        d->busy = 1;
        return 1;
    }
    if (cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return 0;
    d->lock.lock();
    d->recording = r;
    d->unrecordable = 0;
    return 0;
}

int recorded(void *context)
{
    Hold d(context);
    Recording *r = d->recording;
    cudaGraph_t graph = NULL;
    if (!r)
        return 1;
    side_join(d, &d->forks, 0);
    check(d, cudaStreamEndCapture(d->stream, &graph), "recording");
    if (!d->unrecordable)
        check(d, cudaGraphInstantiate(&r->graph, graph, 0), "recording");
    if (!d->unrecordable) /* its memory: a launch that found none would end the step */
        check(d, cudaGraphUpload(r->graph, d->stream), "recording");
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    d->recording = NULL;
    d->lock.unlock();
    if (d->unrecordable) {
        drop(d, r);
        return 0;
    }
    check(d, cudaGraphLaunch(r->graph, d->stream), "a recorded micro-batch");
    d->busy = 1;
    return 1;
}
