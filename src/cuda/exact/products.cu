/* The position of a thread's elements of C. Blocks take 8 rows of tiles at a time, column after
 * column, so that concurrent blocks read the same lines of A and B from L2. Bits 0, 2 and 4 of the
 * lane number its column, bits 1 and 3 its row: see panel.cu. */
enum { ROW_LANES = 4, COLUMN_LANES = 8 };
template <int BM, int BN, int TM, int TN> struct TileCoords {
    enum { ACROSS = BN / (COLUMN_LANES * TN) };
    int matrix, tile_row, tile_column;
    int row0, column0; /* first row and column of the warp in the tile */
    int row, column;   /* of the lane */

    __device__ __forceinline__ TileCoords(const gckpti_product &t, int thread, int block)
    {
        int down = (int)((t.m + BM - 1) / BM), across = (int)((t.n + BN - 1) / BN);
        int tile = block % (down * across), first = tile / (8 * across) * 8;
        int high = down - first < 8 ? down - first : 8, lane = thread % 32, warp = thread / 32;
        matrix = block / (down * across);
        tile_row = first + (tile - first * across) % high;
        tile_column = (tile - first * across) / high;
        row0 = warp / ACROSS * (ROW_LANES * TM);
        column0 = warp % ACROSS * (COLUMN_LANES * TN);
        row = (lane >> 1 & 1) | (lane >> 2 & 2);
        column = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4);
    }
    /* Return row and column, in the tile, of element (i,j) of the thread. */
    __device__ __forceinline__ int y(int i) const { return row0 + elem_of<TM, ROW_LANES>(row, i); }
    __device__ __forceinline__ int x(int j) const
    {
        return column0 + elem_of<TN, COLUMN_LANES>(column, j);
    }
    /* Return row and column of such an element in C. */
    __device__ __forceinline__ int64_t c_row(int i) const { return (int64_t)tile_row * BM + y(i); }
    __device__ __forceinline__ int64_t c_column(int j) const
    {
        return (int64_t)tile_column * BN + x(j);
    }
};

/* Loads a thread's elements: C's old value, the bias or +0 (as gckpti_mixed_start). END: stores. */
template <int BM, int BN, int TM, int TN, bool MIXED, bool END, class Q>
__device__ __forceinline__ void init_or_store(const Q &q, float (*c)[TN])
{
    enum { N = TN % 4 ? 2 : 4 }; /* elements at a time */
    const gckpti_product &t = q.t;
    const TileCoords<BM, BN, TM, TN> here(t, gckpti_thread_index(), gckpti_block_index());
    const bool of_c = END || t.accumulate;
    const Results out = { t.c, MIXED && !t.c ? t.c_halves : NULL };
    const Values from = of_c ? Values(out) : Values{ t.initial, NULL };
    UNROLLED(i, TM) {
        const int64_t row = here.c_row(i);
        const int64_t line = of_c ? q.c_row(here.matrix, row)
                                  : here.matrix * t.n + row * t.initial_stride;
        UNROLL for (int j = 0; j < TN; j += N)
        {
            const int64_t column = here.c_column(j), left = row < t.m ? t.n - column : 0;
            if (END)
                write_vec<N>(out, line + column, left, q.aligned, &c[i][j]);
            else
                read_vec<N>(from, line + column, left, of_c && q.aligned, &c[i][j]);
        }
        UNROLL for (int j = 0; j < TN && MIXED && !END; j++) c[i][j] =
            gckpti_flush_to_zero(c[i][j]);
    }
}

/* Returns blocks per multiprocessor: 16 warps with 128 registers a thread, or 12 with more. */
constexpr int blocks_per_sm(int bm, int bn, int elements)
{
    return 512 * elements / (bm * bn) - (bm > bn && elements == 64);
}

/* Adds a product's terms to a thread's elements. MIXED: in blocks (manual, 5l). If all terms are
 * one chain that starts at the element, they fill the first chain of one block; the other chain and
 * the element are -0, which changes no sum. */
template <int TM, int TN, bool MIXED> struct Accumulators {
    float c[TM][TN];
    Block<TM, TN, MIXED> block;
    bool one, odd;  /* one: a single chain; odd: the second chain gets the next term */
    int rest, left; /* rest: terms left in the sample; left: in the block */

    __device__ __forceinline__ void begin(const gckpti_product &t)
    {
        one = MIXED && gckpti_is_chain(&t), odd = false;
        rest = (int)(t.k_period ? t.k_period - t.k_offset % t.k_period : t.k);
        left = one ? (int)t.k : min(rest, (int)GCKPTI_K_BLOCK);
        block.begin();
        UNROLL for (int i = 0; i < TM && one; i++) UNROLLED(j, TN) {
            block.chain[0][i][j] = c[i][j];
            block.chain[1][i][j] = c[i][j] = -0.0f;
        }
    }
    /* Adds a term to all elements. */
    __device__ __forceinline__ void add(bool second, const float *x, const float *y)
    {
        UNROLL for (int i = 0; i < TM && !second; i++) block.term(c, 0, i, x[i], y);
        UNROLL for (int i = 0; i < TM && second; i++) block.term(c, 1, i, x[i], y);
    }
    /* Counts n added terms. */
    __device__ __forceinline__ void advance(int n, const gckpti_product &t)
    {
        left -= n;
        odd = MIXED && odd != (n % 2 && !one);
        if (!MIXED || left)
            return;
        block.end(c);
        block.begin();
        odd = false;
        rest = rest > GCKPTI_K_BLOCK ? rest - GCKPTI_K_BLOCK : (int)t.k_period;
        left = min(rest, (int)GCKPTI_K_BLOCK);
    }
    /* Exchanges the chains, whose order does not matter: the next term goes to the first one. */
    __device__ __forceinline__ void swap_chains()
    {
        UNROLL for (int i = 0; i < TM && odd; i++) UNROLLED(j, TN) {
            float first = block.chain[0][i][j];
            block.chain[0][i][j] = block.chain[1][i][j];
            block.chain[1][i][j] = first;
        }
        odd = false;
    }
};

/* Computes a tile of BM x BN. Terms of a last stage that is not full are added one by one, since
 * padding by zeros would turn -0 into +0. So are the terms of a stage within which a block ends. */
template <int BM, int BN, int TM, int TN, bool MIXED, class A, class B>
__global__ void __launch_bounds__(BM *BN / (TM * TN), blocks_per_sm(BM, BN, TM *TN))
    product_kernel(const __grid_constant__ Product<A, B> q)
{
    enum { THREADS = BM * BN / (TM * TN) };
    typedef Panel<A, BM, THREADS, MIXED> PanelA;
    typedef Panel<B, BN, THREADS, MIXED> PanelB;
    enum { AFTER_A = PanelA::FLOATS, STAGE = AFTER_A + PanelB::FLOATS };
    SHARED(float4, stages, [2 * STAGE / 4]);
    const TileCoords<BM, BN, TM, TN> here(q.t, (int)threadIdx.x, (int)blockIdx.x);
    Accumulators<TM, TN, MIXED> l;
    init_or_store<BM, BN, TM, TN, MIXED, false>(q, l.c);
    l.begin(q.t);

    PanelA a;
    PanelB b;
    a.begin(q.a, here.matrix, (int64_t)here.tile_row * BM, q.t.m);
    b.begin(q.b, here.matrix, (int64_t)here.tile_column * BN, q.t.n);
    float x[2][TM], y[2][TN];
    const auto load_term = [&](const float *line, int p, int to) {
        const float *columns = line + AFTER_A + p * PanelB::LINE + here.column0;
        fragment<TM, ROW_LANES>(line + p * PanelA::LINE + here.row0, here.row, x[to]);
        fragment<TN, COLUMN_LANES>(columns, here.column, y[to]);
    };
    const auto fetch = [&](int left) {
        a.fetch(q.a, min(left, (int)DEPTH)), b.fetch(q.b, min(left, (int)DEPTH));
    };
    const auto put = [&](float *stage) { a.put(q.a, stage), b.put(q.b, stage + AFTER_A); };
    float *line = (float *)stages, *next = line + STAGE;
    fetch((int)q.t.k), put(line);
    for (int left = (int)q.t.k; left > 0; left -= DEPTH) {
        __syncthreads(); /* this stage is complete; the next one's memory is free */
        load_term(line, 0, 0);
        if (left > DEPTH)
            fetch(left - DEPTH);
        const bool whole = left >= DEPTH && (!MIXED || l.left >= DEPTH);
        if (whole) {
            UNROLLED(p, DEPTH) {
                if (p + 1 < DEPTH)
                    load_term(line, p + 1, (p + 1) % 2);
                l.add(MIXED && p % 2 && !l.one, x[p % 2], y[p % 2]);
            }
            l.advance(DEPTH, q.t);
        }
        for (int p = 0; !whole && p < min(left, (int)DEPTH); p++) {
            load_term(line, p, 0);
            l.add(l.odd, x[0], y[0]);
            l.advance(1, q.t);
        }
        l.swap_chains();
        if (left > DEPTH)
            put(next);
        float *const used = line;
        line = next, next = used;
    }
    init_or_store<BM, BN, TM, TN, MIXED, true>(q, l.c);
}

template <int BM, int BN, int TM, int TN, bool MIXED, class A, class B>
void run_tile(const gckpt_call *call, const Product<A, B> *q)
{
    int64_t tiles = (q->t.m + BM - 1) / BM * ((q->t.n + BN - 1) / BN) * q->t.batch;
    dim3 grid((unsigned)tiles), block(BM * BN / (TM * TN));
    run<product_kernel<BM, BN, TM, TN, MIXED, A, B>>(call, grid, block, 0, *q);
}

template <class Q> struct TileOf {
    int m, n;
    double speed; /* estimated fma per 100 issue slots; small tiles wait for L2 */
    void (*run)(const gckpt_call *call, const Q *q);
};
typedef Product<Operand, Operand> Gemm;
typedef TileOf<Gemm> Tile;
const Tile EXACT_TILES[] = {
    { 128, 128, 92, run_tile<128, 128, 8, 8, false> },
    { 128, 64, 90, run_tile<128, 64, 8, 8, false> },
    { 96, 48, 84, run_tile<96, 48, 6, 6, false> },
    { 64, 64, 82, run_tile<64, 64, 4, 8, false> },
    { 32, 64, 65, run_tile<32, 64, 4, 4, false> },
    { 32, 32, 50, run_tile<32, 32, 4, 4, false> },
};
/* bf16 plans: flushing takes three more issue slots for each fma, so other instructions hardly
 * count; an element takes three registers. */
const Tile MIXED_TILES[] = {
    { 64, 64, 22, run_tile<64, 64, 4, 4, true> },
    { 32, 32, 19, run_tile<32, 32, 4, 4, true> },
};

/* Returns the tile with which the busiest multiprocessor ends first. Small gradients need small
 * tiles: of a weight of 768 x 768, 36 blocks of 128 x 128 leave 96 multiprocessors idle; 128 blocks
 * of 96 x 48 use 97 % of 132, as they do for 768 x 2304 and 768 x 3072. */
template <class Q>
const TileOf<Q> *best_tile(const TileOf<Q> *tiles, int count, const gckpti_product *t, int sms)
{
    const TileOf<Q> *best = NULL;
    double least = 0;
    for (const TileOf<Q> *i = tiles; i < tiles + count; i++) {
        int64_t n = (t->m + i->m - 1) / i->m * ((t->n + i->n - 1) / i->n) * t->batch;
        double waves = (double)((n + sms - 1) / sms);
        double time = waves * i->m * i->n / i->speed;
        if (!best || time < least)
            best = i, least = time;
    }
    return best;
}

int attribute_of(const gckpt_call *call, cudaDeviceAttr which)
{
    int value = 1;
    Device *d = device_of(call);
    check(d, cudaDeviceGetAttribute(&value, which, d->number), "an attribute of the device");
    return value;
}

int sm_count(const gckpt_call *call) { return attribute_of(call, cudaDevAttrMultiProcessorCount); }

Gemm gemm_of(const gckpti_product *t, int mixed)
{
    return { *t,
             operand_of(&t->a, t->m, t->k, mixed),
             operand_of(&t->b, t->n, t->k, mixed),
             t->c_stride % 4 == 0 && aligned(t->c, t->c_halves),
             t->m * t->c_stride,
             {} };
}

/* Runs a product (a gckpti_product_fn). */
void products(const gckpt_call *call, const gckpti_product *t)
{
    const int mixed = call->precision != GCKPT_FP32;
    const Gemm q = gemm_of(t, mixed);
    const Tile *tile = mixed ? best_tile(MIXED_TILES, 2, t, sm_count(call))
                             : best_tile(EXACT_TILES, 6, t, sm_count(call));
    tile->run(call, &q);
}

/* Runs an op by F(.., PRODUCTS). A third input is a bias: its gradient is the sum of rows of g. */
template <auto F, auto PRODUCTS> void products_by(const gckpt_call *call, bool backward)
{
    const RowTerms<> of = { {}, grad_out_of(call), NONE, gckpti_last(&call->shape) };
    F(call, backward, PRODUCTS);
    if (backward && call->inputs == 3)
        column_sums(call, of, sum_of(call->in[2]), {}, gckpti_rows(&call->shape), of.n);
}
