/* ---- products: c (m,n) = a (m,k) b (k,n), added to the bias, to c's old value, or to 0 ---- Lines
 * of a matrix are contiguous: along k (rows of a, columns of b) or across k (columns of a, rows of
 * b: a line for each term). */

/* What the product stores: c (STORE); or for losses of rows the maximum and the sum of exponentials
 * of each row's 64 columns, the target's logit, and c in f32 unless it is empty (ROW_STATS). */
enum Epilogue { STORE, ROW_STATS };
struct RowLoss;
struct Loss {
    const int32_t *target;
    int first;        /* class of column 0 */
    float *parts;     /* (columns / 64, rows, 2) */
    RowLoss *state;   /* (rows) */
};
/* An elementwise op fused with the product. It is applied to c as stored (rounded), so that its
 * bits are those of the separate op. c is also written, unless the op's result replaces it. */
enum FusedOp { NO_OP, GELU, GELU_GRAD, PLUS };
struct Fusion {
    FusedOp op;
    uint16_t *out;
    Matrix<uint16_t> other; /* the op's other operand */
};
struct MmaProduct {
    int m, n, k;
    Matrix<uint16_t> a, b;
    Values bias;
    int accumulate;
    Results c;
    int c_row; /* elements from row to row of c */
    bool aligned; /* elements can be written 2 or 8 at a time */
    Loss loss;
    Fusion fusion;
};

MmaProduct mma_of(int64_t m, int64_t n, int64_t k, Matrix<uint16_t> a, Matrix<uint16_t> b,
                  const Values &bias, int accumulate, const Results &c)
{
    return { (int)m, (int)n, (int)k, a, b, bias, accumulate, c, (int)n, n % 2 == 0 && aligned(c),
             {},     {} };
}

enum { BK = 32 }; /* terms of a stage in shared memory */

/* Returns the distance of a thread's y-th row from its first. c[y] is ROWS rows after c[y - 1], and
 * has two rows: 16 in mma.sync, 64 in wgmma. */
template <int ROWS> __host__ __device__ constexpr int mma_offset(int y)
{
    return y / 2 * ROWS + y % 2 * 8;
}

/* Initialises a thread's elements: with c's old value, the bias, or 0. Code that runs once for each
 * tile is short, since its instructions come from the L2. */
template <int ROWS, int DOWN, int ACROSS>
__device__ inline void mma_start(const MmaProduct &p, bool accumulate, bool whole, int i, int j,
                                 float (&c)[DOWN][ACROSS][4])
{
    const bool bias = !accumulate && (p.bias.f32 || p.bias.bf16);
    UNROLLED(e, 2 * ACROSS) {
        const int column = j + e / 2 * 8 + e % 2;
        const float first = bias && column < p.n ? value_at(p.bias, column) : 0.0f;
        UNROLLED(y, 2 * DOWN) c[y / 2][e / 2][y % 2 * 2 + e % 2] = first;
    }
    UNROLL for (int y = 0; y < 2 * DOWN && accumulate; y++)
    {
        const int64_t at = (int64_t)(i + mma_offset<ROWS>(y)) * p.c_row + j;
        UNROLL for (int x = 0; x < ACROSS && whole; x++)
        {
            const Vec<float, 2> pair = load<2>(p.c, at + x * 8);
            c[y / 2][x][y % 2 * 2] = pair.v[0], c[y / 2][x][y % 2 * 2 + 1] = pair.v[1];
        }
        const int left = i + mma_offset<ROWS>(y) < p.m ? p.n - j : 0;
        UNROLL for (int e = 0; e < 2 * ACROSS && !whole; e++) if (e / 2 * 8 + e % 2 < left)
            c[y / 2][e / 2][y % 2 * 2 + e % 2] = value_at(p.c, at + e / 2 * 8 + e % 2);
    }
}

/* A row's maximum, sum of exponentials and target's logit, over the classes so far. */
struct RowLoss {
    float max, sum, logit;
};

/* Writes ROW_STATS of row i for this warp's columns, which merge_loss_row merges. This lane has
 * columns j, j+1, j+8, j+9, .. (c[x][which], c[x][which + 1]), three other lanes the rest. */
template <int across>
__device__ inline void finish_row_stats(const MmaProduct &p, int i, int j, const float c[across][4],
                                   int which)
{
    int at = i < p.m ? p.loss.target[i] - p.loss.first : -1, group = j / (8 * across);
    float top = -INFINITY, sum = 0.0f;
    UNROLLED(x, 2 * across) {
        int column = j + x / 2 * 8 + x % 2;
        float v = c[x / 2][which + x % 2];
        top = column < p.n && v > top ? v : top;
        if (column == at && column < p.n)
            p.loss.state[i].logit = v;
    }
    top = row_max(top, 2);
    float shift = gckpti_shift(top);
    UNROLLED(x, 2 * across)
        if (j + x / 2 * 8 + x % 2 < p.n)
            sum += exp2_of((c[x / 2][which + x % 2] - shift) * LOG2E);
    for (int with = 1; with < 4; with *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, with);
    if (i < p.m && j % 8 == 0) {
        float *part = p.loss.parts + 2 * ((int64_t)group * p.m + i);
        part[0] = top, part[1] = sum;
    }
}

/* Returns the number of size x size tiles. */
__host__ __device__ inline int tile_count(const MmaProduct &p, int size)
{
    return (p.m + size - 1) / size * ((p.n + size - 1) / size);
}

/* Positions of a tile, of a warp's part of it (a quarter or, in wgmma, 16 of each 64 rows), and of
 * a thread's first element in c. */
template <int size, int ROWS = 16> struct MmaCoords {
    int i0, j0, row, column, i, j;
    __device__ MmaCoords(const MmaProduct &p, int tile, int thread)
    {
        int across = (p.n + size - 1) / size, lane = thread % 32, warp = thread / 32;
        i0 = tile / across * size, j0 = tile % across * size;
        row = ROWS == 64 ? warp * 16 : warp / 2 * (size / 2);
        column = ROWS == 64 ? 0 : warp % 2 * (size / 2);
        i = i0 + row + lane / 4, j = j0 + column + lane % 4 * 2;
    }
};

template <FusedOp op> __device__ inline float fused_value(float v, float other)
{
    return op == GELU ? gelu_of(v) : op == GELU_GRAD ? v * gelu_deriv_of(other) : v + other;
}

/* Writes a tile of bf16 in runs of 8, four runs at once if all elements exist (WHOLE). STAGED: the
 * tile of `other` follows it in shared memory. */
template <int size, bool STAGED, bool WHOLE, FusedOp op>
__device__ inline void mma_write(const MmaProduct &p, int i0, int j0, const uint16_t *tile)
{
    enum { CHUNKS = size / 8, STEP = 128 / CHUNKS, ONCE = WHOLE ? 4 : 1 };
    const int chunk = (int)threadIdx.x % CHUNKS, j = j0 + chunk * 8, left = p.n - j;
    const auto put = [&](uint16_t *to, int k, const Vec<uint32_t, 4> &vec) {
        to += (int64_t)(i0 + k) * p.c_row + j;
        if (WHOLE)
            store((uint32_t *)(void *)to, vec);
        UNROLLED(e, 8) if (!WHOLE && e < left) to[e] =
            (uint16_t)(vec.v[e / 2] >> e % 2 * 16);
    };
#pragma unroll 1
    for (int k = (int)threadIdx.x / CHUNKS; k < size && i0 + k < p.m; k += ONCE * STEP) {
        Vec<uint32_t, 4> vec[ONCE], other[ONCE];
        UNROLLED(q, ONCE) {
            const int at = Swizzled<size>::at(k + q * STEP, chunk);
            vec[q] = load<4>((const uint32_t *)(const void *)(tile + at));
            if (op > GELU && STAGED)
                other[q] = load<4>((const uint32_t *)(const void *)(tile + size * size + at));
            if (op > GELU && !STAGED) {
                const Matrix<uint16_t> &m = p.fusion.other;
                float u[8];
                read_vec<8>(Values{ NULL, m.x }, (i0 + k + q * STEP) * m.stride + j, left,
                            m.aligned, u);
                UNROLLED(e, 4) other[q].v[e] = bf16_pair(u[2 * e], u[2 * e + 1]);
            }
        }
        if (p.c.bf16 != p.fusion.out)
            UNROLLED(q, ONCE) put(p.c.bf16, k + q * STEP, vec[q]);
        UNROLL for (int q = 0; q < ONCE && op != NO_OP; q++)
        {
            UNROLLED(e, 4) {
                const uint32_t v = vec[q].v[e], u = op > GELU ? other[q].v[e] : 0,
                               high = 0xffff0000u;
                vec[q].v[e] = gckpti_to_bf16_pair(
                    fused_value<op>(gckpti_float(v << 16), gckpti_float(u << 16)),
                    fused_value<op>(gckpti_float(v & high), gckpti_float(u & high)));
            }
            put(p.fusion.out, k + q * STEP, vec[q]);
        }
    }
}

template <int size, bool STAGED, bool WHOLE>
__device__ inline void mma_write_fused(const MmaProduct &p, int i0, int j0, const uint16_t *tile)
{
    switch (p.fusion.op) {
    case NO_OP: return mma_write<size, STAGED, WHOLE, NO_OP>(p, i0, j0, tile);
    case GELU: return mma_write<size, STAGED, WHOLE, GELU>(p, i0, j0, tile);
    case GELU_GRAD: return mma_write<size, STAGED, WHOLE, GELU_GRAD>(p, i0, j0, tile);
    default: return mma_write<size, STAGED, WHOLE, PLUS>(p, i0, j0, tile);
    }
}

/* Stores a thread's elements; bf16 goes through `tiles`, the operands' shared memory. STAGED: that
 * has space for two tiles of c. In wgmma, a thread has columns of the whole tile. */
template <int size, bool STAGED, Epilogue epilogue, int DOWN, int ACROSS>
__device__ inline void mma_epilogue(const MmaProduct &p, float (&c)[DOWN][ACROSS][4],
                                    uint16_t *tiles, int tile = gckpti_block_index())
{
    enum { ROWS = ACROSS * 8 == size ? 64 : 16, STATS = size / 16 /* of 64 columns of 128 */ };
    const MmaCoords<size, ROWS> at(p, tile, gckpti_thread_index());
    const bool writes_bf16 = epilogue != ROW_STATS && p.c.bf16,
               whole = p.aligned && at.i0 + size <= p.m && at.j0 + size <= p.n;
    if (writes_bf16) {
        __syncthreads(); /* all operands have been read */
        if (p.fusion.op > GELU && STAGED)
            stage_tile<size, size, 128, Swizzled<size>, false>(p.fusion.other, at.i0, p.m, at.j0,
                                                               p.n, tiles + size * size);
    }
    UNROLLED(y, 2 * DOWN) {
        const int i = at.i + mma_offset<ROWS>(y);
        UNROLL for (int x = 0; x < ACROSS && epilogue == ROW_STATS; x += STATS)
            finish_row_stats<STATS>(p, i, at.j + x * 8, c[y / 2] + x, y % 2 * 2);
    }
    if (writes_bf16) {
        UNROLLED(x, ACROSS) {
            uint16_t *to = tiles + at.j % 8 +
                           Swizzled<size>::at(at.i - at.i0, (at.j - at.j0) / 8 + x);
            UNROLLED(y, 2 * DOWN) /* chunks repeat after 8 lines */
                *(uint32_t *)(void *)(to + mma_offset<ROWS>(y) * size) =
                    gckpti_to_bf16_pair(c[y / 2][x][y % 2 * 2], c[y / 2][x][y % 2 * 2 + 1]);
        }
        gckpti_cp_async_commit();
        gckpti_cp_async_wait<0>();
        __syncthreads();
        if (whole && p.c_row % 8 == 0)
            mma_write_fused<size, STAGED, true>(p, at.i0, at.j0, tiles);
        else
            mma_write_fused<size, STAGED, false>(p, at.i0, at.j0, tiles);
    } else if (epilogue != ROW_STATS || p.c.f32) {
        UNROLLED(y, 2 * DOWN) {
            const int i = at.i + mma_offset<ROWS>(y), left = i < p.m ? p.n - at.j : 0;
            float *to = p.c.f32 + (int64_t)i * p.c_row + at.j;
            UNROLL for (int x = 0; x < ACROSS && whole; x++)
                store(to + x * 8, load<2>(c[y / 2][x] + y % 2 * 2));
            UNROLL for (int e = 0; e < 2 * ACROSS && !whole; e++) if (e / 2 * 8 + e % 2 < left)
                to[e / 2 * 8 + e % 2] = c[y / 2][e / 2][y % 2 * 2 + e % 2];
        }
    }
}

