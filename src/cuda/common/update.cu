/* ---- calls of fill and update are collected until there are MOST, or another function is called;
 * then one launch runs all fills, and one all updates, each in separate blocks ---- */
template <class T, int COUNT> struct Collected { /* of a launch: a row of blocks for each */
    enum { MOST = COUNT };
    T at[MOST];
    int n;
};
struct Fill {
    uint32_t *to;
    int64_t n;
    uint32_t word;
};
typedef Collected<Fill, 64> Fills;
typedef Collected<gckpt_update_pass, 16> Passes; /* each for another parameter */
static_assert(sizeof(Passes) <= 4096 && sizeof(Fills) <= 4096, "arguments of a kernel");

__global__ void fill_kernel(const __grid_constant__ Fills all)
{
    const Fill &f = all.at[blockIdx.y];
    for (EACH(i, f.n))
        f.to[i] = f.word;
}

/* A block runs a pass on GCKPT_UPDATE_BLOCK elements, each of its 8 warps on a part, then on more.
 * So values and state cross memory once. Then its first warp adds up squares in the 32 lanes of the
 * manual's 5d; it reads the gradient from caches. */
__global__ void update_kernel(const __grid_constant__ Passes all)
{
    const gckpt_update_pass &p = all.at[blockIdx.y];
    const int64_t blocks = (p.elements - 1) / GCKPT_UPDATE_BLOCK + 1;
    const int64_t part = GCKPT_UPDATE_BLOCK / 8, first = threadIdx.x / 32 * part;
    const float count = p.count > 0 && !p.write_back ? p.count : 1.0f;
    for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const int64_t at = block * GCKPT_UPDATE_BLOCK;
        const int64_t n = gckpti_min(p.elements - at, GCKPT_UPDATE_BLOCK);
        const float *g = p.gradient + at;
        gckpti_update_block_warp(&p, NULL, at + first, gckpti_min(n - first, part), p.update);
        __syncthreads();
        if (!p.squares || threadIdx.x >= 32)
            continue;
        const float sum = lanes_sum<16>(n, [&](float lane, int64_t i) {
            const float divided = g[i] / count;
            return gckpti_fma(divided, divided, lane);
        });
        gckpti_store_n_warp(p.squares + block, sum, 1);
    }
}

/* Returns a grid for collected work, the largest of which takes this many blocks. */
dim3 grid_for(int64_t blocks, int n)
{
    return dim3((unsigned)gckpti_min(blocks, 528), (unsigned)n);
}

struct Deferred {              /* a pending product, or fills followed by updates */
    void (*product)(Device *); /* launches the product (fast/products.cu), or NULL */
    Fills fills;
    Passes passes;
} deferred[sizeof devices / sizeof *devices];

void launch_pending(Device *d)
{
    Fills *f = &deferred[d->number].fills;
    Passes *p = &deferred[d->number].passes;
    int64_t words = 0, elements = 0;
    if (void (*product)(Device *) = deferred[d->number].product) {
        deferred[d->number].product = NULL;
        product(d);
    }
    for (int i = 0; i < f->n; i++)
        words = f->at[i].n > words ? f->at[i].n : words;
    for (int i = 0; i < p->n; i++)
        elements = p->at[i].elements > elements ? p->at[i].elements : elements;
    if (f->n)
        launch<fill_kernel>(d, grid_for((words + 8191) / 8192, f->n), 256, 0, *f);
    if (p->n)
        launch<update_kernel>(d, grid_for((elements - 1) / GCKPT_UPDATE_BLOCK + 1, p->n), 256, 0,
                              *p);
    f->n = p->n = 0;
}

/* The backend's fill. If it overlaps a collected fill, it launches the collected ones first. */
void fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    DeviceLock d(device_of(call), true);
    Fills *f = &deferred[d->number].fills;
    uint32_t *words = (uint32_t *)to;
    bool full = f->n == Fills::MOST || deferred[d->number].passes.n || deferred[d->number].product;
    for (int i = 0; i < f->n; i++)
        full = full || (words < f->at[i].to + f->at[i].n && f->at[i].to < words + n);
    if (full)
        launch_pending(d);
    if (n > 0)
        f->at[f->n++] = { words, n, word };
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
    for (int u = 0; u < pass->adds; u++)
        add(call, pass->gradient, (const float *)((const char *)pass->base + pass->more[u]),
            pass->elements);
    if (w->n == Passes::MOST || deferred[d->number].product)
        launch_pending(d);
    w->at[w->n++] = *pass;
}
