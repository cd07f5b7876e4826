/* ---- the terms of a product, and the choice and order of launches ---- */
/* Copies BK terms of `size` rows or columns of x: `size` lines if along is 1, else BK lines. WHOLE:
 * all of them exist and begin at multiples of 16 bytes. */
template <bool WHOLE, int size, int along>
__device__ __forceinline__ void stage_terms(const Matrix<uint16_t> &x, int start, int end,
                                            int first, int k, uint16_t *tile)
{
    enum { COUNT = along ? size : BK, LENGTH = along ? BK : size };
    const int line = along ? start : first, at = along ? first : start;
    if (WHOLE)
        stage_full<COUNT, LENGTH, 128, Swizzled<LENGTH>>(x.x + line * x.stride + at, x.stride,
                                                         tile);
    else
        stage_tile<COUNT, LENGTH, 128, Swizzled<LENGTH>, false>(x, line, along ? end : k, at,
                                                                along ? k : end, tile);
}

/* Reads a warp's mma operands from a tile with lines of LINE elements: rows of a or (B) columns of
 * b, 16 from `line` on. `at`: where this thread begins. 16 terms or lines later is an addition or,
 * along a line of the tile, whose chunks are permuted, an exclusive or. */
template <int LINE, int along, bool B> struct Reader {
    int at;
    __device__ explicit Reader(int line)
    {
        int lane = threadIdx.x % 32, low = lane % 8, high = lane / 16, mid = lane / 8 % 2;
        if (along)
            at = Swizzled<LINE>::at(line + (B ? high : mid) * 8 + low, B ? mid : high);
        else
            at = Swizzled<LINE>::at((B ? mid : high) * 8 + low, line / 8 + (B ? high : mid));
    }
    /* Reads 16 terms from `term` on of 16 rows or columns that begin `line` further on. */
    __device__ void operator()(uint32_t x[4], const uint16_t *tile, int line, int term) const
    {
        if (along)
            gckpti_ldmatrix_x4(x, tile + (at ^ term) + line * LINE);
        else
            gckpti_ldmatrix_x4_trans(x, tile + (at ^ line) + term * LINE);
    }
};

/* A warp's operands for 16 terms: rows of a and columns of b. */
template <int DOWN, int ACROSS> struct Fragments {
    uint32_t a[DOWN][4], b[ACROSS / 2][4];
    template <class A, class B>
    __device__ __forceinline__ void load(const A &read_a, const B &read_b, const uint16_t *a_tile,
                                         const uint16_t *b_tile, int term)
    {
        UNROLLED(y, DOWN) read_a(a[y], a_tile, y * 16, term);
        UNROLL for (int x = 0; x < ACROSS; x += 2) read_b(b[x / 2], b_tile, x * 8, term);
    }
    __device__ __forceinline__ void multiply(float (&c)[DOWN][ACROSS][4]) const
    {
        UNROLLED(x, ACROSS) {
            UNROLLED(y, DOWN)
                gckpti_mma_bf16(c[y][x], a[y], b[x / 2] + x % 2 * 2);
        }
    }
};

/* Adds all terms to c. Tiles of BK terms are copied STEPS - 1 ahead; while 16 terms are
 * multiplied, the next 16 are read from shared memory. WHOLE: all tiles are complete, and the loop
 * is short, as instructions that it skips would have to come from the L2 again. */
template <int STEPS, bool WHOLE, int size, int a_along, int b_along, int DOWN, int ACROSS>
__device__ __forceinline__ void mma_terms(const MmaProduct &p, const MmaCoords<size> &at,
                                          uint16_t *tiles, float (&c)[DOWN][ACROSS][4])
{
    enum { A_LINE = a_along ? BK : size, B_LINE = b_along ? BK : size, TILE = size * BK };
    const Reader<A_LINE, a_along, false> read_a(at.row);
    const Reader<B_LINE, b_along, true> read_b(at.column);
    Fragments<DOWN, ACROSS> first, second; /* operands of 16 terms each */
    const int steps = (p.k + BK - 1) / BK, whole_steps = p.k / BK, left = p.k % BK;
    const auto issue = [&](int step) {
        uint16_t *to = tiles + step % STEPS * 2 * TILE;
        if (step < steps) {
            stage_terms<WHOLE, size, a_along>(p.a, at.i0, p.m, step * BK, p.k, to);
            stage_terms<WHOLE, size, b_along>(p.b, at.j0, p.n, step * BK, p.k, to + TILE);
        }
        gckpti_cp_async_commit();
    };
    const auto wait_tile = [&](int step) { /* first terms, once all copies are done */
        const uint16_t *from = tiles + step % STEPS * 2 * TILE;
        gckpti_cp_async_wait<STEPS - 2>();
        __syncthreads();
        first.load(read_a, read_b, from, from + TILE, 0);
        return from;
    };
#pragma unroll 1
    for (int s = 0; s < STEPS - 1; s++)
        issue(s);
    const uint16_t *now = wait_tile(0);
#pragma unroll 1
    for (int s = 0; s < whole_steps; s++) {
        second.load(read_a, read_b, now, now + TILE, 16);
        issue(s + STEPS - 1);
        first.multiply(c);
        now = wait_tile(s + 1);
        second.multiply(c);
    }
    if (!WHOLE && left > 0)
        first.multiply(c);
    if (!WHOLE && left > 16) {
        second.load(read_a, read_b, now, now + TILE, 16);
        second.multiply(c);
    }
}

/* A block of four warps computes size x size elements, each warp a quarter. 16 terms are one mma:
 * an element's sum is a chain of these groups, in order, in one register, for any tile. 128 x 128
 * takes 64 KiB, two blocks per SM; if that leaves SMs idle, tiles are 64 x 64. Adjacent blocks read
 * the same rows of a, which stay in the L2. STEPS: stages in shared memory. */
template <int size, int STEPS, int a_along, int b_along, Epilogue epilogue>
__global__ void __launch_bounds__(128, size == 128 ? 2 : 5)
    mma_product_kernel(const __grid_constant__ MmaProduct p)
{
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
    if (STEPS < STAGES) /* not chosen for these devices: see run_mma_tile */
        return;
#endif
    DYNAMIC_SHARED(uint4, product_tiles);
    uint16_t *tiles = (uint16_t *)product_tiles;
    const MmaCoords<size> at(p, (int)blockIdx.x, (int)threadIdx.x);
    float c[size / 32][size / 16][4];
    const bool whole = at.i0 + size <= p.m && at.j0 + size <= p.n;
    mma_start<16>(p, p.accumulate, whole && p.aligned, at.i, at.j, c);
    if (whole && p.a.aligned && p.b.aligned && p.k % BK == 0)
        mma_terms<STEPS, true, size, a_along, b_along>(p, at, tiles, c);
    else
        mma_terms<STEPS, false, size, a_along, b_along>(p, at, tiles, c);
    mma_epilogue<size, size <= STEPS * BK, epilogue>(p, c, tiles);
}

/* Runs a product, by wgmma if the device has it. Of mma.sync, an SM with 100 KiB (sm_86, sm_89,
 * sm_120) holds two blocks of 128 x 128 with 3 stages. */
template <int size, int a_along, int b_along, Epilogue epilogue>
void run_mma_tile(const gckpt_call *call, const MmaProduct &p)
{
    enum { STAGE_BYTES = 2 * size * BK * (int)sizeof(uint16_t), LESS = size == 128 ? 3 : STAGES };
    const int blocks = tile_count(p, size);
    if constexpr (size == 128 || !a_along) {
        if (takes_wgmma(call, p))
            return wgmma_product<size, a_along, b_along, epilogue>(call, p, sm_count(call));
    }
    if (attribute_of(call, cudaDevAttrMaxSharedMemoryPerMultiprocessor) < 2 * STAGES * STAGE_BYTES)
        run<mma_product_kernel<size, LESS, a_along, b_along, epilogue>>(
            call, dim3((unsigned)blocks), 128, LESS * STAGE_BYTES, p);
    else
        run<mma_product_kernel<size, STAGES, a_along, b_along, epilogue>>(
            call, dim3((unsigned)blocks), 128, STAGES * STAGE_BYTES, p);
}

/* Returns the number of size x size tiles on the busiest processor. */
int tiles_per_sm(const gckpt_call *call, const MmaProduct &p, int size)
{
    return (tile_count(p, size) + sm_count(call) - 1) / sm_count(call);
}

/* Three 64 x 64 tiles take as long as one of 128 x 128 (four: 1.24 to 1.51 times, on an H200). With
 * wgmma, only weight gradients have small tiles; they are shared evenly among all processors. */
template <int a_along, int b_along> void run_mma(const gckpt_call *call, const MmaProduct &p)
{
    const int sms = sm_count(call), large = tile_count(p, 128), small = tile_count(p, 64);
    if (takes_wgmma(call, p) ? a_along || 3 * (large > sms ? large : sms) <= small
                             : 3 * tiles_per_sm(call, p, 128) <= tiles_per_sm(call, p, 64))
        run_mma_tile<128, a_along, b_along, STORE>(call, p);
    else
        run_mma_tile<64, a_along, b_along, STORE>(call, p);
}

/* Runs a product. a_along, b_along: 1 if the lines of a, b are along k, 0 if across k. */
void mma_product(const gckpt_call *call, const MmaProduct &p, int a_along, int b_along)
{
    if (a_along && b_along)
        run_mma<1, 1>(call, p);
    else if (a_along)
        run_mma<1, 0>(call, p);
    else
        run_mma<0, 0>(call, p);
}

/* ---- each device's pending product: the next op may fuse with it; other calls launch it ---- */
struct DeferredMma {
    MmaProduct p;
    int a_along, b_along;
} deferred_mma[sizeof devices / sizeof *devices];

void mma_defer(const gckpt_call *call, const MmaProduct &p, int a_along, int b_along)
{
    Device *d = device_of(call);
    launch_pending(d);
    deferred_mma[d->number] = { p, a_along, b_along };
    deferred[d->number].product = [](Device *of) {
        const DeferredMma &l = deferred_mma[of->number];
        gckpt_call bare = {};
        bare.backend = of;
        mma_product(&bare, l.p, l.a_along, l.b_along);
    };
}

bool alias(const void *a, int64_t bytes, const void *b, int64_t other_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + (size_t)other_bytes &&
           (uintptr_t)b < (uintptr_t)a + (size_t)bytes;
}

/* Launches the pending product with `op` fused and returns true, if the product's result is `of`,
 * and `out` overlaps neither operands that blocks may still read nor the rest of c. */
bool try_fuse(const gckpt_call *call, FusedOp op, const Values &of, const Values &other,
            const Results &out)
{
    Device *d = device_of(call);
    MmaProduct &p = deferred_mma[d->number].p;
    const int64_t m = p.m, n = p.n, k = p.k, bytes = 2 * m * n;
    if (!deferred[d->number].product || !of.bf16 || of.bf16 != p.c.bf16 || !out.bf16 ||
        bytes != 2 * gckpti_elements(&call->shape) || (op > GELU && !other.bf16) ||
        alias(other.bf16, bytes, of.bf16, bytes) || alias(out.bf16, bytes, p.a.x, 2 * m * k) ||
        alias(out.bf16, bytes, p.b.x, 2 * k * n) || alias(out.bf16, bytes, p.bias.f32, 4 * n) ||
        alias(out.bf16, bytes, p.bias.bf16, 2 * n))
        return false;
    for (const uint16_t *x : { of.bf16, other.bf16 })
        if (x != out.bf16 && alias(out.bf16, bytes, x, bytes))
            return false;
    p.fusion = { op, out.bf16, matrix(other.bf16, n) };
    p.aligned = p.aligned && aligned(out);
    launch_pending(d);
    return true;
}

/* ---- elementwise ---- */
void gelu_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = value_of(in), g = grad_out_of(call);
    if (backward ? !in.accumulate && try_fuse(call, GELU_GRAD, g, x, grad_of(in))
                 : try_fuse(call, GELU, x, NONE, out_of(call)))
        return;
    unary_by<gelu_of, gelu_deriv_of, gckpti_put_product_n>(call, backward, GCKPT_IN(0), 0);
}

/* ---- add, sub and mul of two bf16 tensors of the same shape (add: or the second one has just the
 * last axes of the first one); exact kernels run other shapes ---- */
void fused_add_by(const gckpt_call *call, bool backward)
{
    const Values a = value_of(call->in[0]), b = value_of(call->in[1]);
    if (backward || call->in[1].shape.n < call->shape.n ||
        (!try_fuse(call, PLUS, a, b, out_of(call)) && !try_fuse(call, PLUS, b, a, out_of(call))))
        add_by(call, backward);
}

/* Exact kernels (GCKPT_BF16) run all but two bf16 inputs of the result's shape. With micro-batches
 * of one row a batch-invariant input may have that shape, but its gradient is a compensated sum. */
gckpt_result same_shape_workspace(gckpt_call *call)
{
    for (int i = 0; i < 2; i++)
        if (!gckpti_same_shape(&call->in[i].shape, &call->shape) || !call->in[i].bf16)
            call->precision = GCKPT_BF16;
    return GCKPT_OK;
}

/* Input 1 may have just the last axes of input 0. */
gckpt_result add_workspace(gckpt_call *call)
{
    const gckpt_shape *a = &call->shape, *b = &call->in[1].shape;
    bool last = b->n < a->n && gckpti_same_shape(&call->in[0].shape, a) &&
                (gckpti_elements(b) < gckpti_elements(a) || !call->in[1].bf16);
    for (int k = 1; k <= b->n; k++)
        last = last && b->d[b->n - k] == a->d[a->n - k];
    return last ? GCKPT_OK : same_shape_workspace(call);
}
