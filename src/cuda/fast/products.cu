/* ---- products: c (m,n) = a (m,k) b (k,n), from bias, from what c holds, or from 0 ----
 * Lines of a matrix are along k (a: rows, b: columns), or across it (a: columns, b: rows; a line
 * for each link). */

/* Where c becomes something else, of the rows' losses: PARTS, a maximum and a sum of exponentials
 * of each row's 64 columns (and the target's element); SLOPES, gradients, by aux, loss_scale. */
enum Purpose { STORE, PARTS, SLOPES };
struct RowLoss;
struct Loss {
    const int32_t *target;
    int first;        /* the class that is column 0 */
    float *parts;     /* (columns / 64, rows, 2) */
    RowLoss *state;   /* (rows) */
    const float *aux; /* (rows,2): max, log(sum) */
    const Moment *now;
};
/* What the next op, elementwise, makes of c as c is kept, rounded; c is written, too, unless the
 * op's results go there. So bits are those of the op on its own. */
enum Then { NOTHING, GELU, GELU_SLOPE, PLUS };
struct Fold {
    Then then;
    uint16_t *out;
    Matrix<uint16_t> other; /* its other operand */
};
struct MmaProduct {
    int m, n, k;
    Matrix<uint16_t> a, b;
    Values bias;
    int accumulate;
    Results c;
    int c_row; /* elements of a row */
    bool wide; /* two of them are written at once, or 8 */
    Loss loss;
    Fold fold;
};

MmaProduct mma_of(int64_t m, int64_t n, int64_t k, Matrix<uint16_t> a, Matrix<uint16_t> b,
                  const Values &bias, int accumulate, const Results &c)
{
    return { (int)m, (int)n, (int)k, a, b, bias, accumulate, c, (int)n, n % 2 == 0 && wide(c),
             {},     {} };
}

enum { LINKS = 32 }; /* in shared memory at once, STAGES times */

/* A tile of `size` lines along k, or of as many elements across it, links first.. */
template <int size, int along>
__device__ inline void bring_links(const Matrix<uint16_t> &x, int start, int end, int first, int k,
                                   uint16_t *tile)
{
    if (along)
        bring_tile<size, LINKS, 128, Swizzled<LINKS>, false>(x, start, end, first, k, tile);
    else
        bring_tile<LINKS, size, 128, Swizzled<size>, false>(x, first, k, start, end, tile);
}

/* How a warp reads factors of an mma, from a tile in lines of LINE: of a its rows, of b (B) its
 * columns, 16 from `line` on. `at`: where this thread begins; 16 links or lines further are so many
 * elements further or, along a line of the tile, whose chunks change places, an exclusive or. */
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
    /* The factors of 16 lines, `line` further, and 16 links from `link` on. */
    __device__ void operator()(uint32_t x[4], const uint16_t *tile, int line, int link) const
    {
        if (along)
            gckpti_ldmatrix_x4(x, tile + (at ^ link) + line * LINE);
        else
            gckpti_ldmatrix_x4_trans(x, tile + (at ^ line) + link * LINE);
    }
};

/* Brings tiles that are all there, one after the other. */
template <int size, int along> struct Feed {
    enum { LENGTH = along ? LINKS : size, COUNT = along ? size : LINKS, CHUNKS = LENGTH / 8 };
    const uint16_t *from;
    int to;
    __device__ Feed(const Matrix<uint16_t> &x, int start)
    {
        int chunk = (int)threadIdx.x % CHUNKS, line = (int)threadIdx.x / CHUNKS;
        from = x.x + (line + (along ? start : 0)) * x.stride + (along ? 0 : start) + chunk * 8;
        to = Swizzled<LENGTH>::at(line, chunk);
    }
    __device__ void bring(const Matrix<uint16_t> &x, uint16_t *tile)
    {
        const uint16_t *at = from;
        UNROLL for (int k = 0; k < COUNT; k += 128 / CHUNKS, at += 128 / CHUNKS * x.stride)
            gckpti_cp_async16_whole(tile + to + k * LENGTH, at);
        from = along ? from + LINKS : at;
    }
};

/* What a thread's elements start from: what c holds, the bias, or 0. What a tile needs once is kept
 * short: its instructions come from the L2. */
template <int DOWN, int ACROSS>
__device__ inline void mma_start(const MmaProduct &p, bool whole, int i, int j,
                                 float (&c)[DOWN][ACROSS][4])
{
    const bool bias = !p.accumulate && (p.bias.f32 || p.bias.bf16);
    UNROLL for (int e = 0; e < 2 * ACROSS; e++)
    {
        const int column = j + e / 2 * 8 + e % 2;
        const float first = bias && column < p.n ? value_at(p.bias, column) : 0.0f;
        UNROLL for (int y = 0; y < 2 * DOWN; y++) c[y / 2][e / 2][y % 2 * 2 + e % 2] = first;
    }
    UNROLL for (int y = 0; y < 2 * DOWN && p.accumulate; y++)
    {
        const int64_t at = (int64_t)(i + y * 8) * p.c_row + j;
        UNROLL for (int x = 0; x < ACROSS && whole; x++)
        {
            const Pack<float, 2> pair = load<2>(p.c, at + x * 8);
            c[y / 2][x][y % 2 * 2] = pair.v[0], c[y / 2][x][y % 2 * 2 + 1] = pair.v[1];
        }
        const int left = i + y * 8 < p.m ? p.n - j : 0;
        UNROLL for (int e = 0; e < 2 * ACROSS && !whole; e++) if (e / 2 * 8 + e % 2 < left)
            c[y / 2][e / 2][y % 2 * 2 + e % 2] = value_at(p.c, at + e / 2 * 8 + e % 2);
    }
}

/* So far, of a row: the maximum, the sum, the target's logit. */
struct RowLoss {
    float max, sum, hit;
};

/* Columns j, j+1, j+8, .. of row i, in two of the four elements of each c[x]; four lanes have one
 * row's. */
template <int across>
__device__ inline void finish_part(const MmaProduct &p, int i, int j, const float c[across][4],
                                   int which)
{
    int at = i < p.m ? p.loss.target[i] - p.loss.first : -1, group = j / (8 * across);
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int x = 0; x < 2 * across; x++) {
        int column = j + x / 2 * 8 + x % 2;
        float v = c[x / 2][which + x % 2];
        top = column < p.n && v > top ? v : top;
        if (column == at && column < p.n)
            p.loss.state[i].hit = v;
    }
    for (int with = 1; with < 4; with *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, top, with);
        top = other > top ? other : top;
    }
    float shift = gckpti_shift(top);
#pragma unroll
    for (int x = 0; x < 2 * across; x++)
        if (j + x / 2 * 8 + x % 2 < p.n)
            sum += exp2_of((c[x / 2][which + x % 2] - shift) * LOG2E);
    for (int with = 1; with < 4; with *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, with);
    if (i < p.m && j % 8 == 0) {
        float *part = p.loss.parts + 2 * ((int64_t)group * p.m + i);
        part[0] = top, part[1] = sum;
    }
}

/* The same elements become gradients. */
template <int across>
__device__ inline void finish_slopes(const MmaProduct &p, int i, int j, float c[across][4],
                                     int which)
{
    int target = i < p.m ? p.loss.target[i] : -1, at = target - p.loss.first;
    float max = target < 0 ? 0.0f : p.loss.aux[2 * i];
    float log_sum = target < 0 ? 0.0f : p.loss.aux[2 * i + 1], scale = p.loss.now->loss_scale;
#pragma unroll
    for (int x = 0; x < 2 * across; x++) {
        float *v = &c[x / 2][which + x % 2];
        float slope = exp2_of(((*v - max) - log_sum) * LOG2E);
        slope = j + x / 2 * 8 + x % 2 == at ? slope - 1.0f : slope;
        *v = target < 0 ? 0.0f : slope * scale;
    }
}

/* The tile of a block, the quarter of its warp, and where this thread's elements begin. */
template <int size> struct MmaPlace {
    int i0, j0, row, column, i, j;
    __device__ MmaPlace(const MmaProduct &p, int block, int thread)
    {
        int across = (p.n + size - 1) / size, lane = thread % 32, warp = thread / 32;
        i0 = block / across * size, j0 = block % across * size;
        row = warp / 2 * (size / 2), column = warp % 2 * (size / 2);
        i = i0 + row + lane / 4, j = j0 + column + lane % 4 * 2;
    }
};

template <Then then> __device__ inline float folded_of(float v, float other)
{
    return then == GELU ? gelu_of(v) : then == GELU_SLOPE ? v * gelu_slope_of(other) : v + other;
}

/* A tile of bf16 leaves shared memory in runs of 8, four at once where all is there (WHOLE); behind
 * it lies that of the other operand. */
template <int size, bool WHOLE, Then then>
__device__ inline void mma_leave(const MmaProduct &p, int i0, int j0, const uint16_t *tile)
{
    enum { CHUNKS = size / 8, STEP = 128 / CHUNKS, ONCE = WHOLE ? 4 : 1 };
    const int chunk = (int)threadIdx.x % CHUNKS, j = j0 + chunk * 8, left = p.n - j;
    const auto put = [&](uint16_t *to, int k, const Pack<uint32_t, 4> &run) {
        to += (int64_t)(i0 + k) * p.c_row + j;
        if (WHOLE)
            store((uint32_t *)(void *)to, run);
        UNROLL for (int e = 0; e < 8; e++) if (!WHOLE && e < left) to[e] =
            (uint16_t)(run.v[e / 2] >> e % 2 * 16);
    };
#pragma unroll 1
    for (int k = (int)threadIdx.x / CHUNKS; k < size && i0 + k < p.m; k += ONCE * STEP) {
        Pack<uint32_t, 4> run[ONCE], other[ONCE];
        UNROLL for (int q = 0; q < ONCE; q++)
        {
            const int at = Swizzled<size>::at(k + q * STEP, chunk);
            run[q] = load<4>((const uint32_t *)(const void *)(tile + at));
            if (then > GELU)
                other[q] = load<4>((const uint32_t *)(const void *)(tile + size * size + at));
        }
        if (p.c.bf16 != p.fold.out)
            UNROLL for (int q = 0; q < ONCE; q++) put(p.c.bf16, k + q * STEP, run[q]);
        UNROLL for (int q = 0; q < ONCE && then != NOTHING; q++)
        {
            UNROLL for (int e = 0; e < 4; e++)
            {
                const uint32_t v = run[q].v[e], u = then > GELU ? other[q].v[e] : 0,
                               high = 0xffff0000u;
                run[q].v[e] = gckpti_to_bf16_pair(
                    folded_of<then>(gckpti_float(v << 16), gckpti_float(u << 16)),
                    folded_of<then>(gckpti_float(v & high), gckpti_float(u & high)));
            }
            put(p.fold.out, k + q * STEP, run[q]);
        }
    }
}

template <int size, bool WHOLE>
__device__ inline void mma_leave_by(const MmaProduct &p, int i0, int j0, const uint16_t *tile)
{
    switch (p.fold.then) {
    case NOTHING: return mma_leave<size, WHOLE, NOTHING>(p, i0, j0, tile);
    case GELU: return mma_leave<size, WHOLE, GELU>(p, i0, j0, tile);
    case GELU_SLOPE: return mma_leave<size, WHOLE, GELU_SLOPE>(p, i0, j0, tile);
    default: return mma_leave<size, WHOLE, PLUS>(p, i0, j0, tile);
    }
}

/* Elements go where they are wanted; bf16 by way of the room of the factors, `tiles`. */
template <int size, Purpose purpose, int DOWN, int ACROSS>
__device__ inline void mma_end(const MmaProduct &p, float (&c)[DOWN][ACROSS][4], uint16_t *tiles)
{
    static_assert(size <= STAGES * LINKS, "room for two tiles of c");
    const MmaPlace<size> at(p, gckpti_block_again(), gckpti_thread_again());
    const bool leaves = purpose != PARTS && p.c.bf16,
               whole = p.wide && at.i0 + size <= p.m && at.j0 + size <= p.n;
    if (leaves) {
        __syncthreads(); /* nobody reads factors any more */
        if (p.fold.then > GELU)
            bring_tile<size, size, 128, Swizzled<size>, false>(p.fold.other, at.i0, p.m, at.j0, p.n,
                                                               tiles + size * size);
    }
    UNROLL for (int y = 0; y < 2 * DOWN; y++)
    {
        if (purpose == PARTS)
            finish_part<ACROSS>(p, at.i + y * 8, at.j, c[y / 2], y % 2 * 2);
        else if (purpose == SLOPES)
            finish_slopes<ACROSS>(p, at.i + y * 8, at.j, c[y / 2], y % 2 * 2);
    }
    if (leaves) {
        UNROLL for (int x = 0; x < ACROSS; x++)
        {
            uint16_t *to = tiles + at.j % 8 +
                           Swizzled<size>::at(at.i - at.i0, (at.j - at.j0) / 8 + x);
            UNROLL for (int y = 0; y < 2 * DOWN; y++) /* 8 lines further chunks lie as here */
                *(uint32_t *)(void *)(to + y * 8 * size) =
                    gckpti_to_bf16_pair(c[y / 2][x][y % 2 * 2], c[y / 2][x][y % 2 * 2 + 1]);
        }
        gckpti_cp_async_commit();
        gckpti_cp_async_wait<0>();
        __syncthreads();
        if (whole && p.c_row % 8 == 0)
            mma_leave_by<size, true>(p, at.i0, at.j0, tiles);
        else
            mma_leave_by<size, false>(p, at.i0, at.j0, tiles);
    } else if (purpose != PARTS) {
        UNROLL for (int y = 0; y < 2 * DOWN; y++)
        {
            float *to = p.c.f32 + (int64_t)(at.i + y * 8) * p.c_row + at.j;
            const int left = at.i + y * 8 < p.m ? p.n - at.j : 0;
            UNROLL for (int x = 0; x < ACROSS && whole; x++)
                store(to + x * 8, load<2>(c[y / 2][x] + y % 2 * 2));
            UNROLL for (int e = 0; e < 2 * ACROSS && !whole; e++) if (e / 2 * 8 + e % 2 < left)
                to[e / 2 * 8 + e % 2] = c[y / 2][e / 2][y % 2 * 2 + e % 2];
        }
    }
}

/* What a warp multiplies of 16 links: rows of a, columns of b. */
template <int DOWN, int ACROSS> struct Taken {
    uint32_t a[DOWN][4], b[ACROSS / 2][4];
    template <class A, class B>
    __device__ __forceinline__ void take(const A &read_a, const B &read_b, const uint16_t *a_tile,
                                         const uint16_t *b_tile, int link)
    {
        UNROLL for (int y = 0; y < DOWN; y++) read_a(a[y], a_tile, y * 16, link);
        UNROLL for (int x = 0; x < ACROSS; x += 2) read_b(b[x / 2], b_tile, x * 8, link);
    }
    __device__ __forceinline__ void multiply(float (&c)[DOWN][ACROSS][4]) const
    {
        UNROLL for (int x = 0; x < ACROSS; x++)
        {
            UNROLL for (int y = 0; y < DOWN; y++)
                gckpti_mma_bf16(c[y][x], a[y], b[x / 2] + x % 2 * 2);
        }
    }
};

/* c += a tile's links, in STAGES pieces of LINKS that are on their way at once; while 16 links are
 * multiplied, the next are taken from shared memory. WHOLE: all pieces are all there, and the loop
 * is short: instructions that it jumps over would come from the L2 again, too. */
template <bool WHOLE, int size, int a_along, int b_along, int DOWN, int ACROSS>
__device__ __forceinline__ void mma_links(const MmaProduct &p, const MmaPlace<size> &at,
                                          uint16_t *tiles, float (&c)[DOWN][ACROSS][4])
{
    enum { A_LINE = a_along ? LINKS : size, B_LINE = b_along ? LINKS : size, TILE = size * LINKS };
    const Reader<A_LINE, a_along, false> read_a(at.row);
    const Reader<B_LINE, b_along, true> read_b(at.column);
    Feed<size, a_along> feed_a(p.a, at.i0);
    Feed<size, b_along> feed_b(p.b, at.j0);
    Taken<DOWN, ACROSS> first, second; /* 16 links each */
    const int steps = (p.k + LINKS - 1) / LINKS, whole_steps = p.k / LINKS, left = p.k % LINKS;
    const auto ask = [&](int step) {
        uint16_t *to = tiles + step % STAGES * 2 * TILE;
        if (WHOLE && step < steps) {
            feed_a.bring(p.a, to);
            feed_b.bring(p.b, to + TILE);
        } else if (!WHOLE && step < steps) {
            bring_links<size, a_along>(p.a, at.i0, p.m, step * LINKS, p.k, to);
            bring_links<size, b_along>(p.b, at.j0, p.n, step * LINKS, p.k, to + TILE);
        }
        gckpti_cp_async_commit();
    };
    const auto arrive = [&](int step) { /* its first links, when all have theirs */
        const uint16_t *from = tiles + step % STAGES * 2 * TILE;
        gckpti_cp_async_wait<STAGES - 2>();
        __syncthreads();
        first.take(read_a, read_b, from, from + TILE, 0);
        return from;
    };
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++)
        ask(s);
    const uint16_t *now = arrive(0);
#pragma unroll 1
    for (int s = 0; s < whole_steps; s++) {
        second.take(read_a, read_b, now, now + TILE, 16);
        ask(s + STAGES - 1);
        first.multiply(c);
        now = arrive(s + 1);
        second.multiply(c);
    }
    if (!WHOLE && left > 0)
        first.multiply(c);
    if (!WHOLE && left > 16) {
        second.take(read_a, read_b, now, now + TILE, 16);
        second.multiply(c);
    }
}

/* A block of four warps computes size x size elements, a warp a quarter of them. A group of 16
 * links is one mma: an element's sum is a chain of them, in order, in one register, whatever the
 * tile. 128 x 128: 64 KiB, two blocks an SM; where that leaves SMs idle, tiles are 64 x 64.
 * Neighbouring blocks share rows of a, which stay in the L2. */
template <int size, int a_along, int b_along, Purpose purpose>
__global__ void __launch_bounds__(128, size == 128 ? 2 : 5)
    mma_product_kernel(const __grid_constant__ MmaProduct p)
{
    DYNAMIC_SHARED(uint4, product_tiles);
    uint16_t *tiles = (uint16_t *)product_tiles;
    const MmaPlace<size> at(p, (int)blockIdx.x, (int)threadIdx.x);
    float c[size / 32][size / 16][4];
    const bool whole = at.i0 + size <= p.m && at.j0 + size <= p.n;
    mma_start(p, whole && p.wide, at.i, at.j, c);
    if (whole && p.a.wide && p.b.wide && p.k % LINKS == 0)
        mma_links<true, size, a_along, b_along>(p, at, tiles, c);
    else
        mma_links<false, size, a_along, b_along>(p, at, tiles, c);
    mma_end<size, purpose>(p, c, tiles);
}

template <int size, int a_along, int b_along, Purpose purpose>
void run_mma_tile(const gckpt_call *call, const MmaProduct &p)
{
    int64_t blocks = (int64_t)((p.m + size - 1) / size) * ((p.n + size - 1) / size);
    int bytes = STAGES * 2 * size * LINKS * (int)sizeof(uint16_t);
    RUN_SHARING(call, (mma_product_kernel<size, a_along, b_along, purpose>), dim3((unsigned)blocks),
                128, bytes, p);
}

/* Tiles of size x size that the processor has which has most. */
int64_t tiles_each(const gckpt_call *call, const MmaProduct &p, int size)
{
    int64_t tiles = (int64_t)((p.m + size - 1) / size) * ((p.n + size - 1) / size);
    return (tiles + processors_of(call) - 1) / processors_of(call);
}

/* Of small tiles three take as long as a large one (1.24 to 1.51 times for four, on an H200). */
template <int a_along, int b_along> void run_mma(const gckpt_call *call, const MmaProduct &p)
{
    if (3 * tiles_each(call, p, 128) <= tiles_each(call, p, 64))
        run_mma_tile<128, a_along, b_along, STORE>(call, p);
    else
        run_mma_tile<64, a_along, b_along, STORE>(call, p);
}

/* b's lines are along k where its `stride` is that of columns. */
void mma_product(const gckpt_call *call, const MmaProduct &p, int a_along, int b_along)
{
    if (a_along && b_along)
        run_mma<1, 1>(call, p);
    else if (a_along)
        run_mma<1, 0>(call, p);
    else
        run_mma<0, 0>(call, p);
}

/* ---- by device, a product waits: the next op may be folded into it; all else launches it ---- */
struct Late {
    MmaProduct p;
    int a_along, b_along;
    const uint16_t *beside; /* a factor of the twin, with as many elements as c has; NULL: none */
} late[sizeof devices / sizeof *devices];

/* With factors of lines without gaps. */
void mma_late(const gckpt_call *call, const MmaProduct &p, int a_along, int b_along,
              const uint16_t *beside = NULL)
{
    Device *d = device_of(call);
    flush(d);
    late[d->number] = { p, a_along, b_along, beside };
    waiting[d->number].product = [](Device *of) {
        const Late &l = late[of->number];
        gckpt_call bare = {};
        bare.backend = of;
        mma_product(&bare, l.p, l.a_along, l.b_along);
    };
}

/* A product beside what is asked for until side_end, mma_late's, too; all else waits (flush). */
void mma_beside(const gckpt_call *call, const MmaProduct &p)
{
    Device *d = device_of(call);
    flush(d);
    if (!side_begin(d, &d->twin))
        return;
    d->stream = d->twin.stream;
    mma_product(call, p, 0, 0);
    d->stream = d->main;
}

bool meet(const void *a, int64_t bytes, const void *b, int64_t more)
{
    return (uintptr_t)a < (uintptr_t)b + (size_t)more &&
           (uintptr_t)b < (uintptr_t)a + (size_t)bytes;
}

/* Is the product that waits `of`, and may `then` be done as it ends? Then it is launched. What its
 * other blocks still read may not be written, nor c's other elements. */
bool folded(const gckpt_call *call, Then then, const Values &of, const Values &other,
            const Results &out)
{
    Device *d = device_of(call);
    MmaProduct &p = late[d->number].p;
    const int64_t m = p.m, n = p.n, k = p.k, bytes = 2 * m * n;
    if (!waiting[d->number].product || !of.bf16 || of.bf16 != p.c.bf16 || !out.bf16 ||
        bytes != 2 * gckpti_elements(&call->shape) || (then > GELU && !other.bf16) ||
        meet(other.bf16, bytes, of.bf16, bytes) || meet(out.bf16, bytes, p.a.x, 2 * m * k) ||
        meet(out.bf16, bytes, p.b.x, 2 * k * n) || meet(out.bf16, bytes, p.bias.f32, 4 * n) ||
        meet(out.bf16, bytes, p.bias.bf16, 2 * n) ||
        meet(out.bf16, bytes, late[d->number].beside, bytes))
        return false;
    for (const uint16_t *x : { of.bf16, other.bf16 })
        if (x != out.bf16 && meet(out.bf16, bytes, x, bytes))
            return false;
    p.fold = { then, out.bf16, matrix(other.bf16, n) };
    p.wide = p.wide && wide(out);
    flush(d);
    return true;
}
