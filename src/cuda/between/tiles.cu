/* A matrix whose line i begins at x + i stride. */
template <class T> struct Matrix {
    const T *x;
    int64_t stride;
    bool wide; /* addresses of lines are multiples of 16 */
};

template <class T> Matrix<T> matrix(const T *x, int64_t stride)
{
    return { x, stride, wide(x) && stride % (16 / (int)sizeof(T)) == 0 };
}

/* A factor of a bf16 plan, MIXED, is rounded. */
template <bool MIXED> __device__ float rounded(float x)
{
    return MIXED ? gckpti_from_bf16(gckpti_to_bf16(x)) : x;
}

/* Brings 16 bytes to shared memory, elements from[0..], of which `there` are there; the others are
 * zeros. WIDE: `from` is a multiple of 16, and all are there, or none. */
template <bool WIDE, bool MIXED>
__device__ inline void bring(const float *from, int there, const float *, float *to)
{
    float4 f = { 0.0f, 0.0f, 0.0f, 0.0f };
    if (WIDE && there > 0) {
        f = *(const float4 *)from;
    } else if (!WIDE) {
        f.x = there > 0 ? from[0] : 0.0f;
        f.y = there > 1 ? from[1] : 0.0f;
        f.z = there > 2 ? from[2] : 0.0f;
        f.w = there > 3 ? from[3] : 0.0f;
    }
    *(float4 *)to = { rounded<MIXED>(f.x), rounded<MIXED>(f.y), rounded<MIXED>(f.z),
                      rounded<MIXED>(f.w) };
}

/* bf16 by cp.async: there when it is waited for; some of them may be. any: an address to name. */
template <bool WIDE, bool MIXED>
__device__ inline void bring(const uint16_t *from, int there, const uint16_t *any, uint16_t *to)
{
    there = there < 0 ? 0 : there < 8 ? there : 8;
    if (WIDE)
        gckpti_cp_async16(to, there ? from : any, there * 2);
    for (int i = 0; i < 8 && !WIDE; i++)
        to[i] = i < there ? from[i] : (uint16_t)0;
}

/* Where chunk `chunk`, of 16 bytes, of a line is in a tile: in lines PITCH elements apart; */
template <int PITCH> struct Apart {
    static __device__ inline int at(int line, int chunk) { return line * PITCH + 4 * chunk; }
};

/* in lines of LINE bf16, whose chunks change places from line to line, so that ldmatrix finds 8
 * lines in 8 different groups of banks. */
template <int LINE> struct Swizzled {
    static __device__ inline int at(int line, int chunk)
    {
        int turn = LINE == 32 ? line >> 1 & 3 : line & 7;
        return line * LINE + ((chunk ^ turn) << 3);
    }
};

/* A block of THREADS brings lines first.. of `lines`, COUNT of them, and LENGTH elements of each,
 * at.. of `length`. */
template <int COUNT, int LENGTH, int THREADS, class PLACES, bool WIDE, bool MIXED, class T>
__device__ __forceinline__ void bring_lines(const Matrix<T> &m, int first, int lines, int at,
                                            int length, T *tile)
{
    enum { ELEMENTS = 16 / sizeof(T), CHUNKS = LENGTH / ELEMENTS, STEP = THREADS / CHUNKS };
    const int chunk = (int)threadIdx.x % CHUNKS, line = (int)threadIdx.x / CHUNKS;
    const T *from = m.x + (int64_t)(first + line) * m.stride + at + chunk * ELEMENTS;
#pragma unroll(sizeof(T) == 4 ? 4 : 1)
    for (int k = 0; k < COUNT; k += STEP, from += STEP * m.stride)
        bring<WIDE, MIXED>(from, first + line + k < lines ? length - at - chunk * ELEMENTS : 0, m.x,
                           tile + PLACES::at(line + k, chunk));
}

/* The same of bf16 that is all there, its lines at multiples of 16. */
template <int COUNT, int LENGTH, int THREADS, class PLACES>
__device__ __forceinline__ void bring_whole(const uint16_t *from, int64_t stride, uint16_t *tile)
{
    enum { CHUNKS = LENGTH / 8, STEP = THREADS / CHUNKS };
    const int chunk = (int)threadIdx.x % CHUNKS, line = (int)threadIdx.x / CHUNKS;
    uint16_t *to = tile + PLACES::at(line, chunk);
    from += line * stride + chunk * 8;
    UNROLL for (int k = 0; k < COUNT; k += STEP, from += STEP * stride)
        gckpti_cp_async16_whole(to + k * LENGTH, from);
}

template <int COUNT, int LENGTH, int THREADS, class PLACES, bool MIXED, class T>
__device__ __forceinline__ void bring_tile(const Matrix<T> &m, int first, int lines, int at,
                                           int length, T *tile)
{
    if (sizeof(T) == 2 && m.wide && first + COUNT <= lines && at + LENGTH <= length)
        bring_whole<COUNT, LENGTH, THREADS, PLACES>(
            (const uint16_t *)m.x + (int64_t)first * m.stride + at, m.stride, (uint16_t *)tile);
    else if (m.wide)
        bring_lines<COUNT, LENGTH, THREADS, PLACES, true, MIXED>(m, first, lines, at, length, tile);
    else
        bring_lines<COUNT, LENGTH, THREADS, PLACES, false, MIXED>(m, first, lines, at, length,
                                                                  tile);
}
