/* Products C (m,n) = A (m,k) B (k,n) of a gckpti_product, with the bits of gckpti_fp32_plain and
 * gckpti_mixed_plain. All ops made of products get these from `products` (products.cu).
 *
 * A block computes a tile of C, a thread TM x TN elements of it, each as one chain over k in one
 * register (in bf16 plans by blocks of terms, in three registers). Rows and columns are divided
 * into tiles, k never is (manual, 5c). A and B come through shared memory in stages of DEPTH terms:
 * while a stage is used, each thread loads its part of the next one into registers.
 * Lanes are in Z-order, 4 x 8 of them, so that lanes i and i^1 share rows, i and i^2 columns: a
 * load takes 2 passes over shared memory instead of 4. Lines are 4 floats longer than a tile is
 * wide, so that data along k can be written across the lines without bank conflicts. */
enum { DEPTH = 8 };

/* Flags of how a thread reads 4 adjacent elements (a chunk) of an operand. */
enum {
    ALONG = 1,  /* chunks lie along k, else across k: along rows of C (B: columns) */
    ALIGNED = 2, /* one load reads a chunk */
    NARROW = 4 /* bf16 */
};

/* A matrix operand: its address and its strides, in bytes. Like Gather (conv.cu), it tells where a
 * chunk begins, moves to the one DEPTH terms later, and reads it. */
struct Operand {
    typedef const char *Cursor;
    const char *base;
    int64_t row, step, matrix; /* to the next row, term, matrix */
    int64_t element, panel;    /* to the next element of a chunk; to the term DEPTH later */
    int flags;

    __device__ __forceinline__ Cursor cursor(int64_t of_matrix, int64_t x, int64_t k) const
    {
        return base + of_matrix * matrix + x * row + k * step;
    }
    __device__ __forceinline__ void advance(Cursor *at) const { *at += panel; }
    template <bool MIXED> __device__ __forceinline__ float element_at(Cursor at) const
    {
        if (!MIXED)
            return *(const float *)at;
        if (flags & NARROW)
            return gckpti_flush_to_zero(gckpti_from_bf16(*(const uint16_t *)at));
        return gckpti_from_bf16(gckpti_to_bf16(*(const float *)at));
    }
    /* Reads the first n elements of a chunk. */
    template <bool MIXED> __device__ __forceinline__ float4 read(Cursor at, int n) const
    {
        if (!MIXED && flags & ALIGNED)
            return *(const float4 *)at;
        return { element_at<MIXED>(at), n > 1 ? element_at<MIXED>(at + element) : 0.0f,
                 n > 2 ? element_at<MIXED>(at + 2 * element) : 0.0f,
                 n > 3 ? element_at<MIXED>(at + 3 * element) : 0.0f };
    }
};

/* An index that counts columns of lines of images, and steps from each to the next, in elements. */
struct Place {
    int image, line, column;
};
struct Grid {
    int lines, columns;
    int64_t steps[3]; /* images, lines, columns */

    __device__ Place at(int64_t i) const
    {
        const int64_t above = i / columns, before = above / lines;
        return { (int)before, (int)(above - before * lines), (int)(i - above * columns) };
    }
    __device__ void advance(Place *p, int n) const
    {
        for (p->column += n; p->column >= columns; p->column -= columns)
            if (++p->line == lines)
                p->line = 0, p->image++;
    }
    __device__ int64_t offset(int64_t image, int64_t line, int64_t column) const
    {
        return image * steps[0] + line * steps[1] + column * steps[2];
    }
};

/* A product. Operands are Operand or, for convolutions, Gather. */
template <class A, class B> struct Product {
    static constexpr bool SCATTERED = !std::is_same<B, Operand>::value; /* rows of c, by `rows` */
    gckpti_product t;
    A a;
    B b;
    bool aligned;     /* rows of c can be written 16 bytes at a time */
    int64_t c_matrix; /* elements from a matrix of c to the next */
    Grid rows;

    /* Returns the offset of a row of c. */
    __device__ __forceinline__ int64_t c_row(int matrix, int64_t row) const
    {
        const Place to = SCATTERED ? rows.at(row) : Place{};
        return matrix * c_matrix +
               (SCATTERED ? rows.offset(to.image, to.line, to.column) : row * t.c_stride);
    }
};

/* Describes an operand. all: the number of rows of C for A, of columns for B. */
Operand operand_of(const gckpti_operand *x, int64_t all, int64_t k, int mixed)
{
    int64_t size = x->halves ? 2 : 4, along = x->k_stride < x->stride,
            stride = along ? x->k_stride : x->stride;
    int64_t pitch = along ? x->stride : x->k_stride, count = along ? k : all;
    const char *base = x->halves ? (const char *)x->halves : (const char *)x->f32;
    int flags = (along ? ALONG : 0) | (x->halves ? NARROW : 0);
    if (!mixed && stride == 1 && count % 4 == 0 && pitch % 4 == 0 && x->batch_stride % 4 == 0 &&
        aligned(base))
        flags |= ALIGNED;
    return { base,        x->stride * size,           x->k_stride * size, x->batch_stride * size,
             stride * size, DEPTH * x->k_stride * size, flags };
}

/* An operand's part of a stage: DEPTH lines of WIDTH elements; a thread reads CHUNKS chunks. */
template <class OF, int WIDTH, int THREADS, bool MIXED> struct Panel {
    enum {
        LINE = WIDTH + 4,
        ALL = WIDTH * DEPTH / 4,
        CHUNKS = (ALL + THREADS - 1) / THREADS,
        FLOATS = DEPTH * LINE
    };
    typename OF::Cursor from[CHUNKS];
    int valid[CHUNKS]; /* elements of a chunk that exist, for single loads */
    float4 regs[CHUNKS];

    /* Return the position of chunk i of this thread: its first term; its row (column for B). */
    static __device__ __forceinline__ int k_of(int i, bool along)
    {
        int c = (int)threadIdx.x + i * THREADS;
        return along ? c % (DEPTH / 4) * 4 : c / (WIDTH / 4);
    }
    static __device__ __forceinline__ int row_of(int i, bool along)
    {
        int c = (int)threadIdx.x + i * THREADS;
        return along ? c / (DEPTH / 4) : c % (WIDTH / 4) * 4;
    }
    static __device__ __forceinline__ bool in_range(int i)
    {
        return ALL % THREADS == 0 || (int)threadIdx.x + i * THREADS < ALL;
    }
    /* Begins at row x0 of `all` rows (B: columns). In place of rows after the last, row 0 is read:
     * it belongs to elements of C that are not written. */
    __device__ __forceinline__ void begin(const OF &f, int64_t matrix, int64_t x0, int64_t all)
    {
        bool along = f.flags & ALONG;
        UNROLLED(i, CHUNKS) {
            int64_t x = x0 + row_of(i, along), left = in_range(i) ? all - x : 0;
            x = left > 0 ? x : 0;
            left = left > 0 ? left : all;
            valid[i] = along || left > 4 ? 4 : (int)left;
            from[i] = f.cursor(matrix, x, k_of(i, along));
        }
    }
    /* Reads the next panel, of `terms` terms, into registers. */
    __device__ __forceinline__ void fetch(const OF &f, int terms)
    {
        bool along = f.flags & ALONG;
        UNROLLED(i, CHUNKS) {
            int p = k_of(i, along);
            if (in_range(i) && p < terms)
                regs[i] = f.template read<MIXED>(from[i],
                                                 along && terms - p < 4 ? terms - p : valid[i]);
            f.advance(&from[i]);
        }
    }
    /* Writes the registers to shared memory. */
    __device__ __forceinline__ void put(const OF &f, float *to)
    {
        bool along = f.flags & ALONG;
        UNROLLED(i, CHUNKS) {
            float *at = to + k_of(i, along) * LINE + row_of(i, along);
            if (!in_range(i))
                continue;
            if (along) {
                at[0] = regs[i].x;
                at[LINE] = regs[i].y;
                at[2 * LINE] = regs[i].z;
                at[3 * LINE] = regs[i].w;
            } else {
                *(float4 *)at = regs[i];
            }
        }
    }
};

/* Returns the position of element i of lane `lane`. A lane has T elements in chunks of 4 (the last
 * may have 2); chunks of LANES lanes lie side by side. */
template <int T, int LANES> __device__ __forceinline__ int elem_of(int lane, int i)
{
    return i / 4 * 4 * LANES + lane * (T - i / 4 * 4 < 4 ? T % 4 : 4) + i % 4;
}

template <int T, int LANES>
__device__ __forceinline__ void fragment(const float *line, int lane, float *x)
{
    UNROLL for (int i = 0; i + 4 <= T; i += 4)
        read_vec<4>(line, elem_of<T, LANES>(lane, i), 4, true, x + i);
    if (T % 4)
        read_vec<2>(line, elem_of<T, LANES>(lane, T / 4 * 4), 2, true, x + T - 2);
}

/* Adds a term to N chains, if `wanted`: o[n] += x y[n]. MIXED: as gckpti_flushed_fma, with one
 * check for all N of the rare case (the least normal number, which may have been rounded up to). */
template <int N, bool MIXED>
__device__ __forceinline__ void terms(float *o, float x, const float *y, bool wanted = true)
{
    float d[N];
    bool least = false;
    UNROLLED(n, N) {
        d[n] = gckpti_fma(x, y[n], o[n]);
        least = least || fabsf(d[n]) == 0x1p-126f;
    }
    UNROLL for (int n = 0; n < N && MIXED; n++) d[n] = gckpti_flush_to_zero(d[n]);
    if (MIXED && least)
        UNROLLED(n, N) d[n] = gckpti_flushed_fma(x, y[n], o[n]);
    UNROLLED(n, N) o[n] = wanted ? d[n] : o[n];
}

/* Sums of a block of terms, for R x N elements (manual, 5l). MIXED: terms alternate between two
 * chains, whose sum is added to the element at the end of the block; else terms are added to it. */
template <int R, int N, bool MIXED> struct Block {
    float chain[2][R][N];

    __device__ __forceinline__ void begin()
    {
        UNROLL for (int r = 0; r < R && MIXED; r++) UNROLLED(n, N)
            chain[0][r][n] = chain[1][r][n] = 0.0f;
    }
    /* Adds a term to row r of the elements. Its index in the block (or just its parity) must be a
     * constant. */
    __device__ __forceinline__ void term(float (*element)[N], int index, int r, float x,
                                         const float *y, bool wanted = true)
    {
        terms<N, MIXED>(MIXED ? chain[index % 2][r] : element[r], x, y, wanted);
    }
    /* Must be called before each term: begins a new block at every 32nd index. */
    __device__ __forceinline__ void start_block(float (*element)[N], int index)
    {
        if (!MIXED || index % GCKPTI_K_BLOCK || !index)
            return;
        end(element);
        begin();
    }
    /* Ends the block. If `plus`, zeros become +0. */
    __device__ __forceinline__ void end(float (*element)[N], bool plus = false)
    {
        UNROLL for (int r = 0; r < R && MIXED; r++) UNROLLED(n, N) {
            float sum = gckpti_flush_to_zero(chain[0][r][n] + chain[1][r][n]);
            element[r][n] = gckpti_flush_to_zero(element[r][n] + sum);
            element[r][n] = plus ? element[r][n] + 0.0f : element[r][n];
        }
    }
};
