struct More { /* further accumulators of a pass, bytes from its base */
    enum { MOST = 8 };
    size_t at[MOST];
};

/* All that a pass has for N elements; the divided gradient goes to `divided`, too. */
template <int N>
__device__ void update_at(const gckpt_pass &p, const More &more, int64_t i, float *divided)
{
    Pack<float, N> g = load<N>(p.gradient + i), w, m = {}, v = {};
    for (int u = 0; u < p.adds; u++) {
        Pack<float, N> x = load<N>((const float *)((const char *)p.base + more.at[u]) + i);
        for (int k = 0; k < N; k++)
            g.v[k] += x.v[k];
    }
    if (p.adds && !(p.count > 0 && p.write_back))
        store(p.gradient + i, g);
    for (int k = 0; k < N && p.count > 0; k++)
        g.v[k] /= p.count;
    if (p.count > 0 && p.write_back)
        store(p.gradient + i, g);
    if (p.squares)
        store(divided, g);
    if (!p.update || (p.unless && *p.unless))
        return;
    w = load<N>(p.values + i);
    if (p.optimiser != GCKPT_SGD)
        m = load<N>(p.state[0] + i);
    if (p.optimiser == GCKPT_ADAMW)
        v = load<N>(p.state[1] + i);
    for (int k = 0; k < N; k++) {
        if (p.optimiser == GCKPT_ADAMW)
            gckpti_step_adamw(&p.rates, g.v[k], &w.v[k], &m.v[k], &v.v[k]);
        else if (p.optimiser == GCKPT_MOMENTUM)
            gckpti_step_momentum(&p.rates, p.momentum, g.v[k], &w.v[k], &m.v[k]);
        else
            gckpti_step_sgd(&p.rates, g.v[k], &w.v[k]);
    }
    store(p.values + i, w);
    if (p.optimiser != GCKPT_SGD)
        store(p.state[0] + i, m);
    if (p.optimiser == GCKPT_ADAMW)
        store(p.state[1] + i, v);
}

/* The threads of a block take GCKPT_UPDATE_BLOCK elements through everything, so that gradient,
 * values and state cross memory once. The square sum's lanes (5d) are the first warp's, which
 * finds the divided gradient in shared memory, while others of the chip's blocks use the memory. */
template <int N> __global__ void update_kernel(gckpt_pass p, const __grid_constant__ More more)
{
    typedef Pack<float, 4> Four;
    SHARED(Four, room, [GCKPT_UPDATE_BLOCK / 4]);
    float *divided = (float *)(void *)room;
    int64_t at = (int64_t)blockIdx.x * GCKPT_UPDATE_BLOCK;
    int n = p.elements - at < GCKPT_UPDATE_BLOCK ? (int)(p.elements - at) : GCKPT_UPDATE_BLOCK;
    for (int i = (int)threadIdx.x * N; i + N <= n; i += (int)blockDim.x * N)
        update_at<N>(p, more, at + i, divided + i);
    for (int i = n / N * N + (int)threadIdx.x; i < n; i += (int)blockDim.x)
        update_at<1>(p, more, at + i, divided + i);
    if (!p.squares)
        return;
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    float sum = 0.0f;
#pragma unroll 16
    for (int i = (int)threadIdx.x; i < n; i += 32)
        sum = gckpti_fma(divided[i], divided[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        p.squares[blockIdx.x] = sum;
}

void update(const gckpt_call *call, const gckpt_pass *pass)
{
    gckpt_pass p = *pass;
    More more = { { 0 } };
    bool four = wide(p.gradient, p.values, p.state[0]) && wide(p.state[1]);
    if (p.elements == 0) /* a rank's share may be */
        return;
    for (; p.adds > More::MOST; p.adds--, p.more++) /* in the same order, but on their own */
        add(call, p.gradient, (const float *)((const char *)p.base + p.more[0]), p.elements);
    for (int u = 0; u < p.adds; u++) {
        more.at[u] = p.more[u];
        four = four && wide((const char *)p.base + p.more[u]);
    }
    dim3 blocks((unsigned)((p.elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK));
    if (four)
        RUN(call, update_kernel<4>, blocks, 256, 0, p, more);
    else
        RUN(call, update_kernel<1>, blocks, 256, 0, p, more);
}
