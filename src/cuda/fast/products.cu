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

/* What a thread's elements start from: what c holds, the bias, or 0. */
template <int DOWN, int ACROSS>
__device__ inline void mma_start(const MmaProduct &p, int i, int j, float (&c)[DOWN][ACROSS][4])
{
#pragma unroll
    for (int x = 0; x < ACROSS; x++) {
        float pair[2] = { 0.0f, 0.0f };
        int left = p.n - j - x * 8;
        if (!p.accumulate)
            read_run<2>(p.bias, j + x * 8, left, false, pair);
#pragma unroll
        for (int y = 0; y < 2 * DOWN; y++) {
            int row = i + y * 8;
            if (p.accumulate && row < p.m)
                read_run<2>(p.c, (int64_t)row * p.c_row + j + x * 8, left, p.wide, pair);
            c[y / 2][x][y % 2 * 2] = pair[0], c[y / 2][x][y % 2 * 2 + 1] = pair[1];
        }
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

/* A tile of bf16 leaves shared memory in runs of 8; behind it lies that of the other operand. */
template <int size>
__device__ inline void mma_leave(const MmaProduct &p, int i0, int j0, const uint16_t *tile)
{
    enum { CHUNKS = size / 8 };
    const Fold &fold = p.fold;
    const int chunk = (int)threadIdx.x % CHUNKS, j = j0 + chunk * 8;
    const bool wide = p.wide && p.c_row % 8 == 0;
#pragma unroll 1
    for (int k = (int)threadIdx.x / CHUNKS; k < size && i0 + k < p.m; k += 128 / CHUNKS) {
        const int64_t at = (int64_t)(i0 + k) * p.c_row + j;
        const int there = Swizzled<size>::at(k, chunk);
        Pack<float, 8> v = load<8>(Values{ NULL, tile }, there), u = {};
        if (p.c.bf16 != fold.out)
            write_run<8>(p.c, at, p.n - j, wide, v.v);
        if (fold.then == NOTHING)
            continue;
        if (fold.then != GELU)
            u = load<8>(Values{ NULL, tile + size * size }, there);
#pragma unroll
        for (int e = 0; e < 8; e++)
            v.v[e] = fold.then == GELU         ? gelu_of(v.v[e])
                     : fold.then == GELU_SLOPE ? v.v[e] * gelu_slope_of(u.v[e])
                                               : v.v[e] + u.v[e];
        write_run<8>(Results{ NULL, fold.out }, at, p.n - j, wide, v.v);
    }
}

/* Elements go where they are wanted; bf16 by way of the room of the factors, `tiles`. */
template <int size, Purpose purpose, int DOWN, int ACROSS>
__device__ inline void mma_end(const MmaProduct &p, float (&c)[DOWN][ACROSS][4], uint16_t *tiles)
{
    static_assert(size <= STAGES * LINKS, "room for two tiles of c");
    const MmaPlace<size> at(p, gckpti_block_again(), gckpti_thread_again());
    const bool leaves = purpose != PARTS && p.c.bf16;
    if (leaves) {
        __syncthreads(); /* nobody reads factors any more */
        if (p.fold.then > GELU)
            bring_tile<size, size, 128, Swizzled<size>, false>(p.fold.other, at.i0, p.m, at.j0, p.n,
                                                               tiles + size * size);
    }
#pragma unroll
    for (int y = 0; y < 2 * DOWN; y++) {
        int i = at.i + y * 8;
        if (purpose == PARTS)
            finish_part<ACROSS>(p, i, at.j, c[y / 2], y % 2 * 2);
        else if (purpose == SLOPES)
            finish_slopes<ACROSS>(p, i, at.j, c[y / 2], y % 2 * 2);
#pragma unroll
        for (int x = 0; x < ACROSS && purpose != PARTS; x++) {
            const float *pair = c[y / 2][x] + y % 2 * 2;
            int j = at.j + x * 8, chunk = at.column / 8 + x;
            if (leaves)
                write_run<2>(Results{ NULL, tiles }, Swizzled<size>::at(i - at.i0, chunk) + j % 8,
                             2, true, pair);
            else if (i < p.m)
                write_run<2>(p.c, (int64_t)i * p.c_row + j, p.n - j, p.wide, pair);
        }
    }
    if (leaves) {
        gckpti_cp_async_commit();
        gckpti_cp_async_wait<0>();
        __syncthreads();
        mma_leave<size>(p, at.i0, at.j0, tiles);
    }
}

/* c += the links of a tile, of which `left` are there, by mma of 16. */
template <int DOWN, int ACROSS, class A, class B>
__device__ __forceinline__ void multiply(float (&c)[DOWN][ACROSS][4], const A &read_a,
                                         const B &read_b, const uint16_t *a_tile,
                                         const uint16_t *b_tile, int left)
{
#pragma unroll
    for (int link = 0; link < LINKS; link += 16) {
        uint32_t a[DOWN][4], b[4];
        if (link >= left)
            break;
#pragma unroll
        for (int y = 0; y < DOWN; y++)
            read_a(a[y], a_tile, y * 16, link);
#pragma unroll
        for (int x = 0; x < ACROSS; x += 2) {
            read_b(b, b_tile, x * 8, link);
#pragma unroll
            for (int y = 0; y < DOWN; y++) {
                gckpti_mma_bf16(c[y][x], a[y], b);
                gckpti_mma_bf16(c[y][x + 1], a[y], b + 2);
            }
        }
    }
}

/* A block of four warps computes size x size elements, a warp a quarter of them, from STAGES tiles
 * of LINKS links each that are on their way at once. A group of 16 links is one mma: an element's
 * sum is a chain of them, in order, in one register, whatever the tile. 128 x 128: 64 KiB, two
 * blocks an SM; where that leaves SMs idle, tiles are 64 x 64. Neighbouring blocks share rows of a,
 * which stay in the L2. */
template <int size, int a_along, int b_along, Purpose purpose>
__global__ void __launch_bounds__(128, 2) mma_product_kernel(const __grid_constant__ MmaProduct p)
{
    enum { HALF = size / 2, DOWN = HALF / 16, ACROSS = HALF / 8, TILE = size * LINKS };
    enum { A_LINE = a_along ? LINKS : size, B_LINE = b_along ? LINKS : size };
    DYNAMIC_SHARED(uint4, product_tiles);
    uint16_t *tiles = (uint16_t *)product_tiles;
    const MmaPlace<size> at(p, (int)blockIdx.x, (int)threadIdx.x);
    const int i0 = at.i0, j0 = at.j0, row = at.row, column = at.column;
    int steps = (p.k + LINKS - 1) / LINKS;
    const bool whole = p.a.wide && p.b.wide && i0 + size <= p.m && j0 + size <= p.n;
    const Reader<A_LINE, a_along, false> read_a(row);
    const Reader<B_LINE, b_along, true> read_b(column);
    Feed<size, a_along> feed_a(p.a, i0);
    Feed<size, b_along> feed_b(p.b, j0);
    float c[DOWN][ACROSS][4];
    mma_start<DOWN, ACROSS>(p, at.i, at.j, c);
    for (int s = 1 - STAGES; s < steps; s++) {
        int next = s + STAGES - 1; /* what is asked for while s is computed */
        if (s >= 0) {
            gckpti_cp_async_wait<STAGES - 2>();
            __syncthreads();
        }
        uint16_t *tile = tiles + next % STAGES * 2 * TILE;
        if (whole && next * LINKS + LINKS <= p.k) {
            feed_a.bring(p.a, tile);
            feed_b.bring(p.b, tile + TILE);
        } else if (next < steps) {
            bring_links<size, a_along>(p.a, i0, p.m, next * LINKS, p.k, tile);
            bring_links<size, b_along>(p.b, j0, p.n, next * LINKS, p.k, tile + TILE);
        }
        gckpti_cp_async_commit();
        tile = tiles + (s + STAGES) % STAGES * 2 * TILE;
        if (s >= 0)
            multiply<DOWN, ACROSS>(c, read_a, read_b, tile, tile + TILE, p.k - s * LINKS);
    }
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

/* Of small tiles four take a quarter longer than a large one. */
template <int a_along, int b_along> void run_mma(const gckpt_call *call, const MmaProduct &p)
{
    if (16 * tiles_each(call, p, 128) <= 5 * tiles_each(call, p, 64))
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
    side_begin(d, &d->twin);
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
