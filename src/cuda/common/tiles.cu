enum { STAGES = 4 }; /* of a ring that cp.async fills */

/* A matrix whose lines (rows or columns) are contiguous: line i begins at x + i * stride. */
template <class T> struct Matrix {
    const T *x;
    int64_t stride;
    bool aligned; /* the addresses of all lines are multiples of 16 */
};

template <class T> Matrix<T> matrix(const T *x, int64_t stride)
{
    return { x, stride, aligned(x) && stride % (16 / (int)sizeof(T)) == 0 };
}

template <bool MIXED> __device__ float rounded(float x)
{
    return MIXED ? gckpti_from_bf16(gckpti_to_bf16(x)) : x;
}

/* Copies 4 floats to shared memory, rounded to bf16 if MIXED; `valid` of them exist, the others
 * become 0. ALIGNED: `from` is a multiple of 16, and either all 4 exist or none. */
template <bool ALIGNED, bool MIXED>
__device__ inline void stage(const float *from, int valid, const float *, float *to)
{
    float f[4] = {};
    if (!ALIGNED || valid > 0)
        read_vec<4>(from, 0, ALIGNED ? 4 : valid, ALIGNED, f);
    *(float4 *)to = { rounded<MIXED>(f[0]), rounded<MIXED>(f[1]), rounded<MIXED>(f[2]),
                      rounded<MIXED>(f[3]) };
}

/* Copies 8 bf16; from element `valid` on, zeros. ALIGNED: by cp.async, complete after a wait; if
 * `valid` is 0, cp.async reads nothing, but gets the valid address `base`. */
template <bool ALIGNED, bool MIXED>
__device__ inline void stage(const uint16_t *from, int valid, const uint16_t *base, uint16_t *to)
{
    valid = valid < 0 ? 0 : valid < 8 ? valid : 8;
    if (ALIGNED)
        gckpti_cp_async16(to, valid ? from : base, valid * 2);
    for (int i = 0; i < 8 && !ALIGNED; i++)
        to[i] = i < valid ? from[i] : (uint16_t)0;
}

/* Layout of a tile whose lines begin PITCH floats apart; at() finds a line's 16-byte chunk. */
template <int PITCH> struct Padded {
    static __device__ inline int at(int line, int chunk) { return line * PITCH + 4 * chunk; }
};

/* Layout of a tile whose lines have LINE bf16 and whose chunks are permuted from line to line, so
 * that ldmatrix reads 8 lines from 8 different groups of banks. */
template <int LINE> struct Swizzled {
    static __device__ inline int at(int line, int chunk)
    {
        int swizzle = LINE == 32 ? line >> 1 & 3 : line & 7;
        return line * LINE + ((chunk ^ swizzle) << 3);
    }
};

/* The block's THREADS threads load COUNT lines of m (which has `lines`) from line `first` on, and
 * of each line (of `length` elements) LENGTH from element `at` on. Missing ones become 0. */
template <int COUNT, int LENGTH, int THREADS, class LAYOUT, bool ALIGNED, bool MIXED, class T>
__device__ __forceinline__ void stage_lines(const Matrix<T> &m, int first, int lines, int at,
                                            int length, T *tile)
{
    enum { ELEMENTS = 16 / sizeof(T), CHUNKS = LENGTH / ELEMENTS, STEP = THREADS / CHUNKS };
    const int chunk = (int)threadIdx.x % CHUNKS, line = (int)threadIdx.x / CHUNKS;
    const T *from = m.x + (int64_t)(first + line) * m.stride + at + chunk * ELEMENTS;
#pragma unroll(sizeof(T) == 4 ? 4 : 1)
    for (int k = 0; k < COUNT; k += STEP, from += STEP * m.stride)
        stage<ALIGNED, MIXED>(from, first + line + k < lines ? length - at - chunk * ELEMENTS : 0,
                              m.x, tile + LAYOUT::at(line + k, chunk));
}

/* Loads COUNT lines of LENGTH bf16, all of which exist and begin at multiples of 16 bytes. */
template <int COUNT, int LENGTH, int THREADS, class LAYOUT>
__device__ __forceinline__ void stage_full(const uint16_t *from, int64_t stride, uint16_t *tile)
{
    enum { CHUNKS = LENGTH / 8, STEP = THREADS / CHUNKS };
    const int chunk = (int)threadIdx.x % CHUNKS, line = (int)threadIdx.x / CHUNKS;
    uint16_t *to = tile + LAYOUT::at(line, chunk);
    from += line * stride + chunk * 8;
    UNROLL for (int k = 0; k < COUNT; k += STEP, from += STEP * stride)
        gckpti_cp_async16_full(to + k * LENGTH, from);
}

template <int COUNT, int LENGTH, int THREADS, class LAYOUT, bool MIXED, class T>
__device__ __forceinline__ void stage_tile(const Matrix<T> &m, int first, int lines, int at,
                                           int length, T *tile)
{
    if (sizeof(T) == 2 && m.aligned && first + COUNT <= lines && at + LENGTH <= length)
        stage_full<COUNT, LENGTH, THREADS, LAYOUT>(
            (const uint16_t *)m.x + (int64_t)first * m.stride + at, m.stride, (uint16_t *)tile);
    else if (m.aligned)
        stage_lines<COUNT, LENGTH, THREADS, LAYOUT, true, MIXED>(m, first, lines, at, length, tile);
    else
        stage_lines<COUNT, LENGTH, THREADS, LAYOUT, false, MIXED>(m, first, lines, at, length,
                                                                  tile);
}
