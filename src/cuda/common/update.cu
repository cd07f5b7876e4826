/* ---- calls of fill and update are collected until there are MOST, or another function is called;
 * then one launch runs all fills, and one all updates, each in separate blocks ---- */
struct Fills {
    enum { MOST = 64, WORDS = 8192 }; /* MOST: fills of a launch; WORDS: words that a block fills */
    struct Fill {
        uint32_t *to;
        int64_t n;
        uint32_t word;
        unsigned first; /* block */
    } at[MOST];
    int n;
};

/* Returns the index of the fill or pass to which this block belongs. */
template <class W> __device__ int entry_of(const W &all)
{
    int of = 0;
    while (of + 1 < all.n && blockIdx.x >= all.at[of + 1].first)
        of++;
    return of;
}

__global__ void fill_kernel(const __grid_constant__ Fills all)
{
    const Fills::Fill &f = all.at[entry_of(all)];
    const int64_t at = (int64_t)(blockIdx.x - f.first) * Fills::WORDS;
    const int n = (int)gckpti_min(f.n - at, Fills::WORDS), fours = (uintptr_t)f.to & 15 ? 0 : n / 4;
    const Vec<uint32_t, 4> vec = { { f.word, f.word, f.word, f.word } };
    for (int i = (int)threadIdx.x; i < fours; i += (int)blockDim.x)
        store(f.to + at + i * 4, vec);
    for (int i = fours * 4 + (int)threadIdx.x; i < n; i += (int)blockDim.x)
        f.to[at + i] = f.word;
}

struct AddOffsets { /* buffers that a pass adds to its gradient, as bytes from p.base */
    enum { MOST = 8 };
    size_t at[MOST];
};

/* Runs pass p on N elements from i on. `divided` gets the divided gradient, for its squares. */
template <int N>
__device__ void update_at(const gckpt_update_pass &p, const AddOffsets &more, int64_t i,
                          float *divided)
{
    Vec<float, N> g = load<N>(p.gradient + i), w, m = {}, v = {};
    for (int u = 0; u < p.adds; u++) {
        Vec<float, N> x = load<N>((const float *)((const char *)p.base + more.at[u]) + i);
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
    if (!p.update)
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

/* Update passes that one launch runs, each for another parameter. */
struct Passes {
    enum { MOST = 16 };
    struct Pass {
        gckpt_update_pass p;
        AddOffsets more;
        unsigned first; /* block */
        int four;       /* all addresses are multiples of 16 */
    } at[MOST];
    unsigned blocks;
    int n;
};
static_assert(sizeof(Passes) <= 4096 && sizeof(Fills) <= 4096, "arguments of a kernel");

/* A block runs a whole pass on GCKPT_UPDATE_BLOCK elements, so that gradient, values and state
 * cross memory once. Then its first warp adds up squares in the 32 lanes of the manual's 5d; it
 * reads the divided gradients from shared memory, while other blocks use the device memory. */
__global__ void update_kernel(const __grid_constant__ Passes all)
{
    typedef Vec<float, 4> Four;
    SHARED(Four, staging, [GCKPT_UPDATE_BLOCK / 4]);
    float *divided = (float *)(void *)staging;
    const int of = entry_of(all);
    const gckpt_update_pass &p = all.at[of].p;
    const AddOffsets &more = all.at[of].more;
    unsigned block = blockIdx.x - all.at[of].first;
    int64_t at = (int64_t)block * GCKPT_UPDATE_BLOCK;
    int n = p.elements - at < GCKPT_UPDATE_BLOCK ? (int)(p.elements - at) : GCKPT_UPDATE_BLOCK;
    int fours = all.at[of].four ? n / 4 * 4 : 0;
    for (int i = (int)threadIdx.x * 4; i < fours; i += (int)blockDim.x * 4)
        update_at<4>(p, more, at + i, divided + i);
    for (int i = fours + (int)threadIdx.x; i < n; i += (int)blockDim.x)
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
        p.squares[block] = sum;
}

struct Deferred { /* a pending product, or fills followed by updates */
    void (*product)(Device *); /* launches the product (fast/products.cu), or NULL */
    Fills fills;
    Passes passes;
} deferred[sizeof devices / sizeof *devices];

void launch_pending(Device *d)
{
    Fills *f = &deferred[d->number].fills;
    Passes *p = &deferred[d->number].passes;
    unsigned blocks = 0;
    if (void (*product)(Device *) = deferred[d->number].product) {
        const int pending = d->overlap.pending; /* the product need not wait for this queue */
        deferred[d->number].product = NULL, d->overlap.pending = 0;
        product(d);
        d->overlap.pending = pending;
    }
    queue_join(d, &d->overlap, 0); /* kernels of this queue may read memory that is written next */
    for (int i = 0; i < f->n; i++) {
        f->at[i].first = blocks;
        blocks += (unsigned)((f->at[i].n + Fills::WORDS - 1) / Fills::WORDS);
    }
    if (f->n)
        launch<fill_kernel>(d, blocks, 256, 0, *f);
    if (p->n)
        launch<update_kernel>(d, p->blocks, 256, 0, *p);
    f->n = p->n = 0, p->blocks = 0;
}

/* The backend's fill. If it overlaps a collected fill, it launches the collected ones first. */
void fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    DeviceLock d(device_of(call), true);
    Fills *f = &deferred[d->number].fills;
    uint32_t *words = (uint32_t *)to;
    bool full = f->n == Fills::MOST || deferred[d->number].passes.n ||
                deferred[d->number].product;
    for (int i = 0; i < f->n; i++)
        full = full || (words < f->at[i].to + f->at[i].n && f->at[i].to < words + n);
    if (full)
        launch_pending(d);
    if (n > 0)
        f->at[f->n++] = { words, n, word, 0 };
}

/* If a collected fill sets exactly the n words from `at` on to 0, drops it and returns true. */
bool take_zero_fill(Device *d, const void *at, int64_t n)
{
    Fills *f = &deferred[d->number].fills;
    for (int i = 0; i < f->n; i++)
        if (f->at[i].to == at && f->at[i].n == n && f->at[i].word == 0) {
            f->at[i] = f->at[--f->n];
            return true;
        }
    return false;
}

/* The backend's update. */
void update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    if (pass->elements == 0) /* a rank's shard may be empty */
        return;
    DeviceLock d(device_of(call), true);
    Passes *w = &deferred[d->number].passes;
    gckpt_update_pass p = *pass;
    for (; p.adds > AddOffsets::MOST; p.adds--, p.more++) /* one more launch, in the same order */
        add(call, p.gradient, (const float *)((const char *)p.base + p.more[0]), p.elements);
    if (w->n == Passes::MOST || deferred[d->number].product)
        launch_pending(d);
    Passes::Pass *to = &w->at[w->n++];
    to->p = p;
    to->four = aligned(p.gradient, p.values, p.state[0], p.state[1]);
    for (int u = 0; u < p.adds; u++) {
        to->more.at[u] = p.more[u];
        to->four = to->four && aligned((const char *)p.base + p.more[u]);
    }
    to->first = w->blocks;
    w->blocks += (unsigned)((p.elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK);
}
