/* test_cuda_shim.cpp - tests the shim (cuda_shim.h): it must run right kernels with right results, and
 * must find the mistakes of wrong kernels.
 *
 *     g++ -std=c++17 -O2 -mfma -ffp-contract=off -Itests tests/cuda/test_cuda_shim.cpp -lpthread
 *
 * Run it also with -fsanitize=address,undefined and with -DCUDA_SHIM_UCONTEXT. The template parameter BUG
 * of a kernel selects a mistake, which must change the kernel's results or end the process with a
 * message. */
#include "cuda_shim.h"
#include "check.h"
#include <string>
#include <sys/wait.h>
#include <unistd.h>

static const unsigned ALL = 0xFFFFFFFFu;

static void ok_(cudaError_t e, int line)
{
    CHECK_MSG(e == cudaSuccess, "line %d: %s: %s", line, cudaGetErrorName(e),
              cudaGetErrorString(e));
}
#define OK(call)         ok_(call, __LINE__)
#define GIVES(call, e)   CHECK_MSG((call) == (e), "line %d: " #call, __LINE__)
#define LAST_ERROR_IS(e) GIVES(cudaGetLastError(), e)

static void settings_reset(void)
{
    cuda_shim.schedule = CUDA_SHIM_FORWARD;
    cuda_shim.lazy = cuda_shim.protect = 0;
}

/* Runs f in a child process, which must end by a signal or a sanitizer and print the text `says`. */
template <class F> static void dies(const char *says, F f)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        f();
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char part[4096];
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
        said.append(part, (size_t)n);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_MSG(status != 0, "nothing noticed that: %s", says);
    CHECK_MSG(said.find(says) != std::string::npos, "expected \"%s\", got \"%s\"", says,
              said.c_str());
}
#ifdef CUDA_SHIM_ASAN
#define BY_ASAN(otherwise) "AddressSanitizer"
#else
#define BY_ASAN(otherwise) otherwise
#endif

/* Device memory with the given values; the destructor frees it. */
template <class V> struct on_device {
    V *at;
    explicit on_device(const std::vector<V> &host)
    {
        OK(cudaMalloc(&at, host.size() * sizeof(V)));
        OK(cudaMemcpy(at, host.data(), host.size() * sizeof(V), cudaMemcpyHostToDevice));
    }
    ~on_device() { cudaFree(at); }
    on_device(const on_device &) = delete;
    operator V *() const { return at; }
};
template <class V> static std::vector<V> fetched(const V *d, size_t n)
{
    std::vector<V> host(n);
    OK(cudaMemcpy(host.data(), d, n * sizeof(V), cudaMemcpyDeviceToHost));
    return host;
}
template <class V> static std::vector<V> fetched(const on_device<V> &d, size_t n)
{
    return fetched(d.at, n);
}
template <class V> static bool same_bits(const std::vector<V> &a, const std::vector<V> &b)
{
    return a.size() == b.size() && !memcmp(a.data(), b.data(), a.size() * sizeof(V));
}
static std::vector<float> numbers(size_t n)
{
    std::vector<float> x(n);
    unsigned state = 7;
    for (float &v : x)
        v = (float)((state = state * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
    return x;
}

/* -- kernels without and with mistakes ---------------------------------------------------------- */

__global__ static void where(unsigned *out)
{
    unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[b * blockDim.x * blockDim.y * blockDim.z + t] += b * 10000 + t;
}

/* Computes c (M,N) = a (M,K) b (K,N) in tiles of 16 x 16, with one thread for each element. */
template <int BUG>
__global__ static void matmul(const float *a, const float *b, float *c, int M, int N, int K)
{
    SHARED(float, as, [16][17]);
    SHARED(float, bs, [16][16]);
    int x = (int)threadIdx.x, y = (int)threadIdx.y;
    int row = (int)blockIdx.y * 16 + y, column = (int)blockIdx.x * 16 + x;
    float sum = 0;
    for (int k0 = 0; k0 < K; k0 += 16) {
        as[y][x] = row < M && k0 + x < K ? a[row * K + k0 + x] : 0.0f;
        bs[y][x] = column < N && k0 + y < K ? b[(k0 + y) * N + column] : 0.0f;
        if (BUG != 1)
            __syncthreads();
        for (int k = 0; k < 16 && k0 + k < K; k++)
            sum = fmaf(as[y][k], bs[k][x], sum);
        if (BUG == 4 && row >= M)
            return;
        if (BUG != 2)
            __syncthreads();
    }
    if (row < M && column < N)
        c[row * N + column] = sum;
}

/* Subtracts a row's mean, then divides by the sum of squares. The two sums over the block use the same
 * scratch memory. */
template <int BUG> __device__ static float block_sum(float v, float *scratch)
{
    for (int h = 16; h; h /= 2)
        v += __shfl_xor_sync(ALL, v, h);
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; w++)
        sum += scratch[w];
    if (BUG != 3)
        __syncthreads();
    return sum;
}
template <int BUG> __global__ static void center(const float *x, float *y, int n)
{
    SHARED(float, scratch, [32]);
    x += (size_t)blockIdx.x * (size_t)n;
    y += (size_t)blockIdx.x * (size_t)n;
    float sum = 0, square = 0;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        sum += x[i];
    float mean = block_sum<BUG>(sum, scratch) / (float)n;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        square = fmaf(x[i] - mean, x[i] - mean, square);
    float scale = block_sum<BUG>(square, scratch);
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        y[i] = (x[i] - mean) / scale;
}

/* Mistakes of a kernel with one block of 32 threads. The shim finds them at once, except UNSET, which
 * leaves a NaN in the result. */
enum {
    SHARED_BOUNDS = 5,
    GLOBAL_BOUNDS,
    UNSET,
    LANE_MISSING,
    SOURCE_OUTSIDE,
    NOT_IN_MASK,
    TWO_LINES,
    TOO_MUCH_SHARED,
    DEEP
};
__device__ static int deep(volatile int *left)
{
    volatile char page[2048];
    page[*left & 2047] = 1;
    int below = --*left ? deep(left) : 0;
    return below + page[*left & 2047];
}
template <int BUG> __global__ static void wrong(float *out, int far)
{
    SHARED(float, words, [32]);
    int t = (int)threadIdx.x;
    if (BUG == SHARED_BOUNDS)
        (&words[0])[far + t] = 1;
    if (BUG == GLOBAL_BOUNDS)
        out[far + t] = 1;
    if (BUG == UNSET) {
        if (t < 31)
            words[t] = 0;
        __syncthreads();
        out[t] = words[t];
    }
    if (BUG == LANE_MISSING)
        out[t] = t == 3 ? 0.0f : __shfl_xor_sync(ALL, 1.0f, 1);
    if (BUG == SOURCE_OUTSIDE)
        out[t] = t < 16 ? __shfl_sync(0xFFFFu, 1.0f, 20) : 0.0f;
    if (BUG == NOT_IN_MASK)
        out[t] = __shfl_sync(0xFFFFu, 1.0f, 2);
    if (BUG == TWO_LINES && t < 16)
        __syncthreads();
    else if (BUG == TWO_LINES)
        __syncthreads();
    if (BUG == TOO_MUCH_SHARED) {
        SHARED(float, big, [12300]);
        out[t] = big[t];
    }
    if (BUG == DEEP)
        out[t] = (float)deep(&far);
}

__global__ static void count_up(float *sums, const float *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        atomicAdd(&sums[i % 3], x[i]);
}
__global__ static void add(float *x, float what, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] += what;
}
__global__ static void times(float *x, float what, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        x[i] *= what;
}

/* Calls every kind of shuffle and vote; each lane writes 12 words. */
__global__ static void exchange(int *out, int by, int width)
{
    int lane = (int)threadIdx.x % 32, *o = out + 12 * threadIdx.x;
    o[0] = __shfl_sync(ALL, lane, by, width);
    o[1] = __shfl_xor_sync(ALL, lane, by, width);
    o[2] = __shfl_up_sync(ALL, lane, (unsigned)by, width);
    o[3] = __shfl_down_sync(ALL, lane, (unsigned)by, width);
    o[4] = (int)__ballot_sync(ALL, lane > by);
    o[5] = __any_sync(ALL, lane == by);
    o[6] = __all_sync(ALL, lane >= by);
    unsigned half = lane < 16 ? 0xFFFFu : 0xFFFF0000u; /* two masks in one warp at the same time */
    o[7] = __shfl_xor_sync(half, lane, 8);
    o[8] = (int)(__shfl_sync(ALL, 1e9 * lane, 7) / 1e9);
    __syncwarp();
    o[9] = atomicMax(&o[10], lane), o[10] = atomicCAS(&o[10], lane, 5),
    o[11] = __float_as_int(1.0f);
}

/* Computes a product with tensor cores. Operands are placed element by element, by the rules of the PTX
 * manual for m16n8k16. */
__global__ static void mma_by_manual(const uint16_t *a, const uint16_t *b, float *d)
{
    int lane = (int)threadIdx.x, group = lane >> 2, in_group = lane & 3;
    uint32_t fa[4] = { 0 }, fb[2] = { 0 };
    float fd[4];
    for (int i = 0; i < 8; i++) {
        int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
        int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
        fa[i / 2] |= (uint32_t)a[row * 16 + column] << (i & 1) * 16;
    }
    for (int i = 0; i < 4; i++) {
        int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
        fb[i / 2] |= (uint32_t)b[row * 8 + group] << (i & 1) * 16;
        fd[i] = d[(group + (i < 2 ? 0 : 8)) * 8 + in_group * 2 + (i & 1)];
    }
    gckpti_mma_bf16(fd, fa, fb);
    for (int i = 0; i < 4; i++)
        d[(group + (i < 2 ? 0 : 8)) * 8 + in_group * 2 + (i & 1)] = fd[i];
}
/* Computes the same product with cp.async and ldmatrix. The operands a (16,16) and b (16,8) are stored by
 * rows, so b is read transposed. */
template <int BUG>
__global__ static void mma_by_tiles(const uint16_t *a, const uint16_t *b, float *d)
{
    SHARED(uint16_t, as, [16][16]);
    SHARED(uint16_t, bs, [16][8]);
    int lane = (int)threadIdx.x;
    gckpti_cp_async16(&as[lane / 2][lane % 2 * 8], a + lane * 8, 16);
    gckpti_cp_async_commit();
    if (lane < 16)
        gckpti_cp_async16(bs[lane], b + lane * 8, 16);
    gckpti_cp_async_commit();
    if (BUG == 2)
        gckpti_cp_async_wait<1>();
    else if (BUG != 1)
        gckpti_cp_async_wait<0>();
    __syncwarp();
    uint32_t fa[4], fb[4];
    gckpti_ldmatrix_x4(fa, &as[lane % 16][lane / 16 * 8]);
    gckpti_ldmatrix_x4_trans(fb, bs[lane % 16]);
    float fd[4];
    for (int i = 0; i < 4; i++)
        fd[i] = d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
    gckpti_mma_bf16(fd, fa, fb);
    for (int i = 0; i < 4; i++)
        d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = fd[i];
}
/* Matrix i has the elements 100 i + 8 row + column; it is read directly or transposed. */
__global__ static void matrices(uint32_t *out, int transposed, int astray)
{
    SHARED(uint16_t, tile, [4][8][8]);
    int lane = (int)threadIdx.x;
    for (int j = 0; j < 8; j++)
        tile[lane / 8][lane % 8][j] = (uint16_t)(100 * (lane / 8) + 8 * (lane % 8) + j);
    __syncwarp();
    uint32_t r[4];
    const uint16_t *row = &tile[lane / 8][lane % 8][astray];
    transposed ? gckpti_ldmatrix_x4_trans(r, row) : gckpti_ldmatrix_x4(r, row);
    for (int i = 0; i < 4; i++)
        out[4 * lane + i] = r[i];
}
__global__ static void tail_copy(uint4 *out, const uint4 *in, int valid)
{
    SHARED(uint4, word, [1]);
    gckpti_cp_async16(word, in, valid);
    gckpti_cp_async_commit();
    gckpti_cp_async_wait<0>();
    *out = word[0];
}
__global__ static void fill_dynamic(float *out, int n)
{
    DYNAMIC_SHARED(float, words);
    for (int i = 0; i < n; i++)
        words[i] = (float)i;
    *out = words[n - 1];
}
/* Reads shared memory while cp.async writes it: the old value is gone at once, and the new value is there
 * only after the wait. */
__global__ static void early_reads(float *out, const float *in)
{
    SHARED(float4, word, [1]);
    word[0] = make_float4(5, 5, 5, 5);
    gckpti_cp_async16(word, in, 16);
    gckpti_cp_async_commit();
    out[0] = word[0].x;
    gckpti_cp_async_wait<0>();
    out[1] = word[0].x;
}

/* Mistakes of a product by TMA and wgmma. The first ones change its result, the others end the process. */
enum {
    NO_WAIT_FOR_LOADS = 1,
    WRONG_LINES,    /* coordinates of a box exchanged */
    WRONG_SWIZZLE,  /* an operand that begins at the wrong 8 lines */
    WRONG_LAYOUT,   /* lines of b taken as along k if they are across */
    EARLY_RESULT,   /* c read before the wait */
    ONE_MORE_GROUP, /* the last group not waited for */
    OLD_PHASE,      /* waits for the phase before */
    FEW_BYTES,
    MANY_BYTES,
    NO_FENCE,
    NO_BARRIER_FENCE,
    TWICE_ARMED,
    ASTRAY,    /* a box at a multiple of 512 bytes */
    WGMMA_LEFT /* not waited for at all */
};
struct tma_operands {
    CUtensorMap a, b;
};
/* Begins where TMA can load a box. */
static char *boxes_of(uint4 *memory)
{
    return (char *)memory + (-gckpti_shared_address(memory) & 1023);
}
/* Describes boxes of 64 lines of 128 bytes, by the PTX manual. */
static uint64_t described(const char *boxes, bool along)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 / 16) << 32 |
           (uint64_t)(along ? 1 : 8192 / 16) << 16 | gckpti_shared_address(boxes) / 16;
}
/* Adds a (64,k) b (k, 8 N) to d, 64 terms after the other. REGISTERS: a goes through registers. */
template <bool A_ALONG, bool B_ALONG, int N, bool REGISTERS, int BUG>
__global__ static void wgmma_by_tma(const __grid_constant__ tma_operands of, float *d, int k)
{
    DYNAMIC_SHARED(uint4, memory);
    SHARED(uint64_t, bar, [2]);
    char *as = boxes_of(memory), *bs = as + 8192;
    const int thread = (int)threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4,
              lane = thread % 4 * 2;
    float c[N][4];
    for (int i = 0; i < 4 * N; i++)
        c[i / 4][i % 4] = d[(row + i / 2 % 2 * 8) * 8 * N + i / 4 * 8 + lane + i % 2];
    if (thread == 0) {
        gckpti_mbarrier_init(bar, 1);
        if (BUG != NO_BARRIER_FENCE)
            gckpti_mbarrier_fence();
    }
    __syncthreads();
    for (int step = 0; step * 64 < k; step++) {
        const int term = step * 64, boxes = 1 + N / 8;
        for (int x = 0; x < boxes && thread == 0; x++) {
            const bool along = x ? B_ALONG : A_ALONG;
            const int line = x > 1 ? 64 : 0, exchanged = along != (BUG == WRONG_LINES);
            if (x == 0 || (BUG == TWICE_ARMED && x == 1))
                gckpti_mbarrier_expect(bar,
                                       boxes * 8192 + (BUG == MANY_BYTES) - (BUG == FEW_BYTES));
            gckpti_tma_load(as + x * 8192 + (BUG == ASTRAY ? 512 : 0), x ? of.b : of.a,
                            exchanged ? term : line, exchanged ? line : term, bar);
        }
        if (BUG != NO_WAIT_FOR_LOADS)
            gckpti_mbarrier_wait(bar, (unsigned)(step + (BUG == OLD_PHASE)) & 1);
        const uint64_t a = described(as + (BUG == WRONG_SWIZZLE ? 128 : 0), A_ALONG),
                       b = described(bs, BUG == WRONG_LAYOUT ? !B_ALONG : B_ALONG);
        for (int g = 0; g < 4 && term + g * 16 < k; g++) {
            if (BUG != NO_FENCE)
                gckpti_wgmma_fence();
            const uint64_t far = (uint64_t)g * (B_ALONG ? 2 : 128);
            if (REGISTERS) {
                uint32_t fragment[4];
                for (int i = 0; i < 4; i++) {
                    const int line = row + i % 2 * 8, e = g * 16 + lane + i / 2 * 8;
                    memcpy(&fragment[i], as + line * 128 + ((e / 8) ^ (line % 8)) * 16 + e % 8 * 2,
                           4);
                }
                gckpti_wgmma_registers<B_ALONG>(c, fragment, b + far);
            } else if (BUG == WRONG_LAYOUT) {
                gckpti_wgmma<A_ALONG, !B_ALONG>(c, a + (uint64_t)g * (A_ALONG ? 2 : 128), b + far);
            } else {
                gckpti_wgmma<A_ALONG, B_ALONG>(c, a + (uint64_t)g * (A_ALONG ? 2 : 128), b + far);
            }
            gckpti_wgmma_commit();
            if (BUG == ONE_MORE_GROUP)
                gckpti_wgmma_wait<1>();
            else if (BUG != EARLY_RESULT && BUG != WGMMA_LEFT)
                gckpti_wgmma_wait<0>();
        }
        if (BUG != ONE_MORE_GROUP && BUG != WGMMA_LEFT && BUG != EARLY_RESULT)
            gckpti_wgmma_settle(c);
        __syncthreads();
    }
    for (int i = 0; i < 4 * N; i++)
        d[(row + i / 2 % 2 * 8) * 8 * N + i / 4 * 8 + lane + i % 2] = c[i / 4][i % 4];
    if (BUG == EARLY_RESULT || BUG == ONE_MORE_GROUP)
        gckpti_wgmma_wait<0>();
}

/* Loads a box of a tensor of four axes, and stores it without its swizzle. */
__global__ static void one_box(const __grid_constant__ tma_operands of, uint16_t *out, int x, int y,
                               int z, int w)
{
    DYNAMIC_SHARED(uint4, memory);
    SHARED(uint64_t, bar, [1]);
    gckpti_mbarrier_init(bar, 1);
    gckpti_mbarrier_fence();
    gckpti_mbarrier_expect(bar, 8192);
    gckpti_tma_load(boxes_of(memory), of.a, x, y, z, w, bar);
    out[0] = *(uint16_t *)(void *)boxes_of(memory);
    gckpti_mbarrier_wait(bar, 0);
    for (int i = 0; i < 4096; i++)
        memcpy(out + 1 + i,
               boxes_of(memory) + i / 64 * 128 + ((i % 64 / 8) ^ (i / 64 % 8)) * 16 + i % 8 * 2, 2);
}

/* Blocks wait for the block before them: by the number of the block (BUG), or in the order in which they
 * begin. */
template <int BUG> __global__ static void in_turn(unsigned *flags, int *sum)
{
    const unsigned turn = BUG ? blockIdx.x : atomicAdd(flags, 1u);
    if (turn)
        gckpti_acquire(flags + turn);
    *sum = *sum * 3 + (int)turn;
    if (BUG != 2)
        gckpti_release(flags + 1 + turn);
}

struct hidden {
    float *p;
};
__global__ static void store_through(hidden h) { *h.p = 1; }
__global__ static void write_order(int *blocks, int *next)
{
    blocks[atomicAdd(next, 1)] = (int)blockIdx.x;
}
__global__ static void nothing(void) {}

/* -- tests ---------------------------------------------------------------------------------------- */

template <int BUG> static std::vector<float> run_matmul(int M, int N, int K)
{
    std::vector<float> a = numbers((size_t)(M * K)), b = numbers((size_t)(K * N));
    on_device<float> da(a), db(b), dc(a);
    LAUNCH(matmul<BUG>, dim3((unsigned)(N + 15) / 16, (unsigned)(M + 15) / 16), dim3(16, 16), 0, 0,
           da, db, dc, M, N, K);
    std::vector<float> c = fetched(dc, (size_t)(M * N));
    return c;
}
template <int BUG> static std::vector<float> run_center(void)
{
    const int n = 200, rows = 3;
    std::vector<float> x = numbers((size_t)(rows * n));
    on_device<float> dx(x), dy(x);
    LAUNCH(center<BUG>, rows, 128, 0, 0, dx, dy, n);
    std::vector<float> y = fetched(dy, x.size());
    return y;
}

static void test_schedules(void)
{
    const int M = 40, N = 33, K = 50;
    std::vector<float> a = numbers((size_t)(M * K)), b = numbers((size_t)(K * N)),
                       c((size_t)(M * N));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < K; k++)
                c[(size_t)(i * N + j)] =
                    fmaf(a[(size_t)(i * K + k)], b[(size_t)(k * N + j)], c[(size_t)(i * N + j)]);
    std::vector<float> centered = run_center<0>();
    int seen1 = 0, seen2 = 0, seen3 = 0;
    for (int s = 0; s < 8; s++) {
        cuda_shim.schedule = s % 4;
        cuda_shim.lazy = s / 4;
        on_device<unsigned> out(std::vector<unsigned>(24 * 70));
        LAUNCH(where, dim3(2, 3, 4), dim3(7, 5, 2), 0, 0, out);
        std::vector<unsigned> w = fetched(out, 24 * 70);
        for (unsigned i = 0; i < w.size(); i++)
            CHECK(w[i] == i / 70 * 10000 + i % 70);
        CHECK(same_bits(run_matmul<0>(M, N, K), c));
        CHECK(same_bits(run_center<0>(), centered));
        seen1 += !same_bits(run_matmul<1>(M, N, K), c);
        seen2 += !same_bits(run_matmul<2>(M, N, K), c);
        seen3 += !same_bits(run_center<3>(), centered);
    }
    CHECK_MSG(seen1 == 8 && seen2 == 8, "missing barriers: %d and %d of 8", seen1, seen2);
    /* at least the schedules FORWARD and REVERSE, which run a warp as far as possible, find this mistake */
    CHECK_MSG(seen3 >= 4, "the barrier after a sum: %d of 8", seen3);
    settings_reset();
    for (int s = 0; s < 4; s++) {
        cuda_shim.schedule = s;
        dies("have exited", [] { run_matmul<4>(40, 33, 50); });
    }
    settings_reset();
}

template <int BUG> static std::vector<float> run_wrong(int far)
{
    on_device<float> d(numbers(64)), neighbour(numbers(64));
    LAUNCH(wrong<BUG>, 1, 32, 0, 0, d, far);
    std::vector<float> out = fetched(d, 32);
    return out;
}

static void test_bugs(void)
{
    std::vector<float> unset = run_wrong<UNSET>(0);
    CHECK(unset[30] == 0 && std::isnan(unset[31]));
    for (int s = 0; s < 4; s++) {
        cuda_shim.schedule = s;
#ifdef CUDA_SHIM_ASAN /* without AddressSanitizer, the memory between two variables is ordinary memory */
        dies("use-after-poison", [] { run_wrong<SHARED_BOUNDS>(32); });
#endif
        dies(BY_ASAN("past the end"), [] { run_wrong<GLOBAL_BOUNDS>(64); });
        dies("lanes that have exited", [] { run_wrong<LANE_MISSING>(0); });
        dies("not in mask 0000ffff", [] { run_wrong<SOURCE_OUTSIDE>(0); });
        dies("not in its own mask", [] { run_wrong<NOT_IN_MASK>(0); });
        dies("barriers at lines", [] { run_wrong<TWO_LINES>(0); });
    }
    settings_reset();
    dies("bytes of static shared memory", [] { run_wrong<TOO_MUCH_SHARED>(0); });
    dies(BY_ASAN("stack overflow"), [] { run_wrong<DEEP>(1000); });
    dies("a host pointer", [] {
        float x[1];
        LAUNCH(add, 1, 1, 0, 0, x, 1.0f, 1);
    });
    dies("freed", [] {
        on_device<float> d(numbers(8));
        float *p = d;
        cudaFree(p);
        LAUNCH(add, 1, 1, 0, 0, p, 1.0f, 1);
    });
    dies(BY_ASAN("freed"), [] {
        on_device<float> d(numbers(8));
        hidden h = { d };
        cudaFree(h.p);
        LAUNCH(store_through, 1, 1, 0, 0, h);
    });
    dies(BY_ASAN("host code"), [] {
        cuda_shim.protect = 1;
        on_device<float> d(numbers(8));
        d[0] = 1;
    });
    dies("memory of another device", [] {
        on_device<float> d(numbers(8));
        cudaSetDevice(1);
        LAUNCH(add, 1, 1, 0, 0, d, 1.0f, 1);
    });
    dies("ldmatrix: address", [] {
        on_device<uint32_t> out(std::vector<uint32_t>(128));
        LAUNCH(matrices, 1, 32, 0, 0, out, 0, 1);
    });
}

/* Blocks must run forward, backward, or in a random order that visits each block once. */
static void test_blocks(void)
{
    for (int s = 0; s < 4; s++) {
        cuda_shim.schedule = s;
        on_device<int> d(std::vector<int>(31));
        int rising = 0, falling = 0, sum = 0;
        LAUNCH(write_order, 30, 1, 0, 0, d, d + 30);
        std::vector<int> order = fetched(d, 30);
        for (size_t i = 0; i < 30; i++) {
            sum += 1 << order[i] % 30 & 0x3fffffff;
            rising += order[i] == (int)i;
            falling += order[i] == 29 - (int)i;
        }
        CHECK(sum == 0x3fffffff && (falling == 30) == (s == CUDA_SHIM_REVERSE));
        CHECK((rising == 30) == (s == CUDA_SHIM_FORWARD || s == CUDA_SHIM_STEP));
    }
    settings_reset();
}

static void test_warp(void)
{
    on_device<int> out(std::vector<int>(64 * 12));
    for (int round = 0; round < 4 * 9; round++) {
        int width = 8 << round % 3, by = 1 + 3 * (round / 3 % 3);
        cuda_shim.schedule = round / 9;
        OK(cudaMemset(out, 0, 64 * 12 * 4));
        LAUNCH(exchange, 1, 64, 0, 0, out, by, width);
        std::vector<int> o = fetched(out, 64 * 12);
        for (int t = 0; t < 64; t++) {
            int lane = t % 32, begin = lane / width * width, end = begin + width, up = lane - by;
            const int *r = &o[(size_t)(12 * t)];
            CHECK(r[0] == begin + by % width);
            CHECK(r[1] == ((lane ^ by) < end ? lane ^ by : lane));
            CHECK(r[2] == (up >= begin ? up : lane) &&
                  r[3] == (lane + by < end ? lane + by : lane));
            CHECK(r[4] == (int)(ALL << (by + 1)) && r[5] == 1 && r[6] == 0 && r[7] == (lane ^ 8));
            CHECK(r[8] == 7 && r[9] == 0 && r[10] == (lane == 0 ? 0 : lane) && r[11] == 0x3f800000);
        }
    }
    settings_reset();
    /* A sum by floating-point atomics depends on their order, so the shim counts these atomics. */
    std::vector<float> x = numbers(600), sums[2];
    for (int s = 0; s < 2; s++) {
        cuda_shim.schedule = s;
        cuda_shim.float_atomics = 0;
        on_device<float> dx(x), d(std::vector<float>(3));
        LAUNCH(count_up, 5, 128, 0, 0, d, dx, 600);
        sums[s] = fetched(d, 3);
        CHECK(cuda_shim.float_atomics == 600);
    }
    CHECK(!same_bits(sums[0], sums[1]) && fabsf(sums[0][0] - sums[1][0]) < 1e-4f);
    settings_reset();
}

static float from_bf16(uint16_t h) { return __uint_as_float((unsigned)h << 16); }

static void test_tensor_cores(void)
{
    std::vector<uint16_t> a(256), b(128);
    std::vector<float> x = numbers(512), d(x.begin() + 384, x.end()), product = d;
    for (size_t i = 0; i < 384; i++)
        (i < 256 ? a[i] : b[i - 256]) = (uint16_t)(__float_as_uint(x[i]) >> 16);
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 8; j++)
            for (size_t k = 0; k < 16; k++)
                product[i * 8 + j] =
                    fmaf(from_bf16(a[i * 16 + k]), from_bf16(b[k * 8 + j]), product[i * 8 + j]);
    on_device<uint16_t> da(a), db(b);
    for (int way = 0; way < 4; way++) {
        on_device<float> dd(d);
        if (way == 0)
            LAUNCH(mma_by_manual, 1, 32, 0, 0, da, db, dd);
        else if (way == 1)
            LAUNCH(mma_by_tiles<0>, 1, 32, 0, 0, da, db, dd);
        else if (way == 2)
            LAUNCH(mma_by_tiles<1>, 1, 32, 0, 0, da, db, dd);
        else
            LAUNCH(mma_by_tiles<2>, 1, 32, 0, 0, da, db, dd);
        CHECK_MSG(same_bits(fetched(dd, 128), product) == (way < 2), "mma, way %d", way);
    }
    on_device<uint32_t> out(std::vector<uint32_t>(128, 7));
    for (int transposed = 0; transposed < 2; transposed++) {
        LAUNCH(matrices, 1, 32, 0, 0, out, transposed, 0);
        std::vector<uint32_t> r = fetched(out, 128);
        for (uint32_t l = 0; l < 32; l++)
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t row = l / 4, column = l % 4 * 2, first = 8 * row + column, step = 1;
                if (transposed) {
                    first = 8 * column + row;
                    step = 8;
                }
                CHECK(r[4 * l + i] == (100 * i + first + ((100 * i + first + step) << 16)));
            }
    }
    on_device<uint4> words(std::vector<uint4>(2, make_uint4(1, 2, 3, 4)));
    for (int valid = 0; valid <= 16; valid += 4) {
        LAUNCH(tail_copy, 1, 1, 0, 0, words + 1, words, valid);
        uint4 r = fetched(words, 2)[1];
        CHECK(r.x == (valid > 0 ? 1u : 0) && r.y == (valid > 4 ? 2u : 0));
        CHECK(r.z == (valid > 8 ? 3u : 0) && r.w == (valid > 12 ? 4u : 0));
    }
    on_device<float> reads(x);
    LAUNCH(early_reads, 1, 1, 0, 0, reads, reads + 4);
    std::vector<float> seen = fetched(reads, 2);
    CHECK(std::isnan(seen[0]) && seen[1] == x[4]);
}

/* Returns a tensor map of `lines` lines of `length` bf16. */
static CUtensorMap map_of(uint16_t *x, uint64_t length, uint64_t lines, uint64_t stride)
{
    CUtensorMap map;
    const cuuint64_t size[2] = { length, lines }, strides[1] = { 2 * stride };
    const cuuint32_t box[2] = { 64, 64 }, step[2] = { 1, 1 };
    CHECK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x, size, strides, box,
                                 step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    return map;
}

/* Returns true if a product of 60 rows, 8 N - 4 columns and k terms has the right bits, and 0 outside. */
template <bool A_ALONG, bool B_ALONG, int N, bool REGISTERS, int BUG>
static bool wgmma_is_right(int k)
{
    const int m = 60, n = 8 * N - 4, a_row = A_ALONG ? 200 : 64, b_row = B_ALONG ? 200 : 8 * N;
    std::vector<uint16_t> a((size_t)(A_ALONG ? 64 : k) * (size_t)a_row),
        b((size_t)(B_ALONG ? 8 * N : k) * (size_t)b_row);
    std::vector<float> x = numbers(a.size() + b.size() + 512 * N), d(x.end() - 512 * N, x.end()),
                       want = d;
    for (size_t i = 0; i < a.size() + b.size(); i++)
        (i < a.size() ? a[i] : b[i - a.size()]) = (uint16_t)(__float_as_uint(x[i]) >> 16);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            for (int t = 0; t < k; t++)
                want[(size_t)(i * 8 * N + j)] =
                    fmaf(from_bf16(a[(size_t)(A_ALONG ? i * a_row + t : t * a_row + i)]),
                         from_bf16(b[(size_t)(B_ALONG ? j * b_row + t : t * b_row + j)]),
                         want[(size_t)(i * 8 * N + j)]);
    on_device<uint16_t> da(a), db(b);
    on_device<float> dd(d);
    const uint64_t terms = (uint64_t)k;
    const tma_operands of = {
        map_of(da, A_ALONG ? terms : 60, A_ALONG ? 60 : terms, (uint64_t)a_row),
        map_of(db, B_ALONG ? terms : 8 * N - 4, B_ALONG ? 8 * N - 4 : terms, (uint64_t)b_row)
    };
    OK(cudaFuncSetAttribute(wgmma_by_tma<A_ALONG, B_ALONG, N, REGISTERS, BUG>,
                            cudaFuncAttributeMaxDynamicSharedMemorySize, 4 << 13));
    OK(LAUNCH((wgmma_by_tma<A_ALONG, B_ALONG, N, REGISTERS, BUG>), 1, 128, 4 << 13, 0, of, dd, k));
    return same_bits(fetched(dd, d.size()), want);
}

static void test_wgmma(void)
{
    for (int s = 0; s < 4; s++) {
        cuda_shim.schedule = s;
        for (int k = 16; k <= 144; k += 64) {
            CHECK((wgmma_is_right<true, true, 16, false, 0>(k)));
            CHECK((wgmma_is_right<true, false, 16, false, 0>(k)));
            CHECK((wgmma_is_right<false, false, 16, false, 0>(k)));
            CHECK((wgmma_is_right<false, true, 8, false, 0>(k)));
            CHECK((wgmma_is_right<true, true, 8, true, 0>(k)));
            CHECK((wgmma_is_right<true, false, 16, true, 0>(k)));
        }
        CHECK((!wgmma_is_right<true, false, 16, false, NO_WAIT_FOR_LOADS>(64)));
        CHECK((!wgmma_is_right<true, true, 16, false, WRONG_LINES>(144)));
        CHECK((!wgmma_is_right<true, false, 16, false, WRONG_SWIZZLE>(64)));
        CHECK((!wgmma_is_right<true, false, 8, false, WRONG_LAYOUT>(64)));
        CHECK((!wgmma_is_right<true, false, 16, false, EARLY_RESULT>(16)));
        CHECK((!wgmma_is_right<true, false, 16, false, ONE_MORE_GROUP>(64)));
        CHECK((!wgmma_is_right<true, false, 16, false, OLD_PHASE>(64)));
        dies("expects 24575 bytes, but",
             [] { wgmma_is_right<true, false, 16, false, FEW_BYTES>(64); });
        dies("waits for an mbarrier",
             [] { wgmma_is_right<true, false, 16, false, MANY_BYTES>(64); });
        dies("without a wgmma.fence", [] { wgmma_is_right<true, false, 16, false, NO_FENCE>(64); });
        dies("initialised without a fence",
             [] { wgmma_is_right<true, false, 16, false, NO_BARRIER_FENCE>(64); });
        dies("used again before",
             [] { wgmma_is_right<true, false, 16, false, NO_WAIT_FOR_LOADS>(128); });
        dies("used again before", [] { wgmma_is_right<true, false, 16, false, TWICE_ARMED>(64); });
        dies("at a multiple of 1024", [] { wgmma_is_right<true, false, 16, false, ASTRAY>(64); });
        dies("a wgmma for which it has not waited",
             [] { wgmma_is_right<true, false, 16, false, WGMMA_LEFT>(64); });
        on_device<unsigned> flags(std::vector<unsigned>(10));
        on_device<int> sum(std::vector<int>(1));
        LAUNCH(in_turn<0>, 8, 1, 0, 0, flags, sum);
        CHECK(fetched(sum, 1)[0] == 1636);
        dies("is 1 already", [&] {
            OK(cudaMemset(flags, 0, 4));
            LAUNCH(in_turn<0>, 8, 1, 0, 0, flags, sum);
        });
        OK(cudaMemset(flags, 0, 40));
        if (s == CUDA_SHIM_REVERSE)
            dies("waits for a block that has not run",
                 [&] { LAUNCH(in_turn<1>, 8, 1, 0, 0, flags, sum); });
        dies("waits for a block that has not run",
             [&] { LAUNCH(in_turn<2>, 8, 1, 0, 0, flags, sum); });
    }
    settings_reset();
    const cuuint64_t size[4] = { 70, 3, 2, 2 }, strides[3] = { 160, 640, 2560 };
    const cuuint32_t box[4] = { 64, 64, 1, 1 }, step[4] = { 1, 1, 1, 1 };
    std::vector<uint16_t> x(4096);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = (uint16_t)(i + 1);
    on_device<uint16_t> dx(x), out(std::vector<uint16_t>(4097, 0));
    tma_operands of;
    const auto encode = [&](void *at, const cuuint64_t *stride) {
        return cuTensorMapEncodeTiled(
            &of.a, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, at, size, stride, box, step,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    const cuuint64_t odd[3] = { 160, 648, 2560 };
    CHECK(encode(dx + 4, strides) == CUDA_ERROR_INVALID_VALUE &&
          encode(dx, odd) == CUDA_ERROR_INVALID_VALUE);
    dies("that are not allocated", [&] { encode(dx + 3000, strides); });
    CHECK(encode(dx, strides) == CUDA_SUCCESS);
    OK(cudaFuncSetAttribute(one_box, cudaFuncAttributeMaxDynamicSharedMemorySize, 9 << 10));
    for (int way = 0; way < 5;
         way++) { /* inside, over an edge of each axis, before the first element */
        const int at[5][4] = {
            { 0, 0, 1, 1 }, { 64, 1, 0, 1 }, { 8, 2, 1, 2 }, { 0, -1, 2, 0 }, { -3, -2, 1, 0 }
        };
        const int *o = at[way];
        OK(LAUNCH(one_box, 1, 1, 9 << 10, 0, of, out, o[0], o[1], o[2], o[3]));
        std::vector<uint16_t> got = fetched(out, 4097);
        CHECK(got[0] == 0xFFFF);
        for (int i = 0; i < 4096; i++) {
            const int e = o[0] + i % 64, y = o[1] + i / 64;
            const bool inside = e >= 0 && e < 70 && y >= 0 && y < 3 && o[2] < 2 && o[3] < 2;
            CHECK(got[(size_t)i + 1] == (inside ? 1 + e + 80 * y + 320 * o[2] + 1280 * o[3] : 0));
        }
    }
}

static void test_limits(void)
{
    struct {
        dim3 grid, block;
        cudaError_t error;
    } cases[] = { { 1, 1024, cudaSuccess },
                  { 1, 1025, cudaErrorInvalidConfiguration },
                  { 1, dim3(32, 33), cudaErrorInvalidConfiguration },
                  { 1, dim3(1, 1, 65), cudaErrorInvalidConfiguration },
                  { 0, 1, cudaErrorInvalidConfiguration },
                  { 1, 0, cudaErrorInvalidConfiguration },
                  { dim3(1, 65535), 1, cudaSuccess },
                  { dim3(1, 65536), 1, cudaErrorInvalidConfiguration },
                  { dim3(1, 1, 65536), 1, cudaErrorInvalidConfiguration },
                  { 1u << 31, 1, cudaErrorInvalidConfiguration } };
    for (const auto &c : cases) {
        LAUNCH(nothing, c.grid, c.block, 0, 0);
        LAST_ERROR_IS(c.error);
    }
    on_device<float> d(numbers(1));
    const int most = 227 << 10;
    LAUNCH(fill_dynamic, 1, 1, 48 << 10, 0, d, 12288);
    LAST_ERROR_IS(cudaSuccess);
    LAUNCH(fill_dynamic, 1, 1, most, 0, d, most / 4);
    LAST_ERROR_IS(cudaErrorInvalidValue);
    GIVES(cudaFuncSetAttribute(fill_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
          cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(fill_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    LAST_ERROR_IS(cudaErrorInvalidValue);
    LAUNCH(fill_dynamic, 1, 1, most, 0, d, most / 4);
    LAST_ERROR_IS(cudaSuccess);
    CHECK(fetched(d, 1)[0] == (float)(most / 4 - 1));
    dies(BY_ASAN(""), [&] {
        LAUNCH(fill_dynamic, 1, 1, 64, 0, d, 17);
        if (fetched(d, 1)[0] == 16.0f)
            abort();
    });
}

static void test_memory(void)
{
    int n = 0;
    float *p[3], host[4] = { 1, 2, 3, 4 };
    cudaDeviceProp prop;
    OK(cudaGetDeviceCount(&n));
    OK(cudaGetDeviceProperties(&prop, 1));
    CHECK(n == 4 && prop.major == 9 && prop.sharedMemPerBlockOptin == 227 << 10);
    GIVES(cudaSetDevice(4), cudaErrorInvalidDevice);
    GIVES(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    LAST_ERROR_IS(cudaErrorInvalidDevice);
    LAST_ERROR_IS(cudaSuccess);
    CHECK(!strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation"));
    CHECK(!strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));

    cuda_shim.fail_malloc = 2;
    OK(cudaMalloc(&p[0], 100));
    GIVES(cudaMalloc(&p[1], 100), cudaErrorMemoryAllocation);
    CHECK(p[1] == NULL);
    OK(cudaMalloc(&p[1], 100));
    cuda_shim.fail_always = 1;
    cuda_shim.fail_pinned = 1;
    GIVES(cudaMallocHost(&p[2], 100), cudaErrorMemoryAllocation);
    GIVES(cudaHostRegister(host, sizeof host), cudaErrorMemoryAllocation);
    cuda_shim.fail_pinned = cuda_shim.fail_always = 0;
    size_t left, all;
    OK(cudaMemGetInfo(&left, &all));
    CHECK(left == all - 200);
    GIVES(cudaMalloc(&p[2], all - 199), cudaErrorMemoryAllocation);
    CHECK(std::isnan(fetched(p[0], 1)[0]));

    GIVES(cudaMemcpy(p[0], p[1], 100, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    GIVES(cudaMemcpy(p[0], host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    GIVES(cudaMemcpy(p[0], p[1], 101, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    GIVES(cudaMemset(host, 0, 16), cudaErrorInvalidValue);
    OK(cudaHostRegister(host, sizeof host));
    GIVES(cudaHostRegister(host, sizeof host), cudaErrorHostMemoryAlreadyRegistered);
    GIVES(cudaFreeHost(host), cudaErrorInvalidValue);
    OK(cudaHostUnregister(host));
    GIVES(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
    GIVES(cudaFree(host), cudaErrorInvalidValue);
    GIVES(cudaFreeHost(p[0]), cudaErrorInvalidValue);
    OK(cudaMemcpy(p[0], host, 16, cudaMemcpyDefault));
    OK(cudaMemcpy(p[1], p[0], 16, cudaMemcpyDefault));
    CHECK(fetched(p[1], 4)[3] == 4);
    OK(cudaFree(p[0]));
    GIVES(cudaFree(p[0]), cudaErrorInvalidValue);
    OK(cudaFree(p[1]));
    OK(cudaFree(NULL));
    cudaGetLastError();
}

static void test_streams(void)
{
    cudaStream_t s, t, dead;
    cudaEvent_t begin, end;
    float *pinned, pageable[4] = { 1, 1, 1, 1 }, seen[4] = { 0 }, ms = -1;
    OK(cudaStreamCreate(&s));
    OK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    OK(cudaStreamCreate(&dead));
    OK(cudaStreamDestroy(dead));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaMallocHost(&pinned, 16));
    on_device<float> d(numbers(8));
    for (int lazy = 0; lazy < 2; lazy++) {
        cuda_shim.lazy = lazy;
        /* Pinned memory is read when the copy runs, pageable memory at the call. */
        pinned[0] = 5;
        pageable[1] = 1;
        OK(cudaEventRecord(begin, s));
        OK(cudaMemcpyAsync(d, pinned, 4, cudaMemcpyHostToDevice, s));
        OK(cudaMemcpyAsync(d + 1, pageable + 1, 4, cudaMemcpyHostToDevice, s));
        pinned[0] = pageable[1] = 6;
        OK(cudaEventRecord(end, s));
        /* Another stream waits for the event; without the wait, its kernel would run too early or too
         * late. */
        OK(cudaStreamWaitEvent(t, end));
        LAUNCH(times, 1, 4, 0, t, d, 2.0f, 2);
        seen[0] = 0;
        OK(cudaMemcpyAsync(seen, d, 8, cudaMemcpyDeviceToHost, t));
        /* Without a wait of the host, a lazy stream has not run yet. */
        CHECK(seen[0] == (lazy ? 0.0f : 10.0f));

        GIVES(cudaEventElapsedTime(&ms, begin, end), lazy ? cudaErrorNotReady : cudaSuccess);
        OK(cudaStreamSynchronize(t));
        CHECK(seen[0] == (lazy ? 12.0f : 10.0f) && seen[1] == 2);
        OK(cudaEventSynchronize(end));
        OK(cudaEventElapsedTime(&ms, begin, end));
        CHECK(ms >= 0);

        /* The null stream waits for blocking streams, and blocking streams wait for the null stream;
         * non-blocking streams do neither. */
        LAUNCH(add, 1, 4, 0, s, d, 1.0f, 1);
        LAUNCH(times, 1, 4, 0, 0, d, 2.0f, 1);
        LAUNCH(add, 1, 4, 0, s, d, 1.0f, 1);
        OK(cudaMemcpyAsync(seen, d, 4, cudaMemcpyDeviceToHost, s));
        OK(cudaStreamSynchronize(s));
        CHECK(seen[0] == (lazy ? 27.0f : 23.0f));
        LAUNCH(add, 1, 4, 0, t, d, 1.0f, 1);
        CHECK(fetched(d, 1)[0] == seen[0] + (lazy ? 0 : 1));
        OK(cudaStreamSynchronize(t));
        /* The work of a destroyed stream must still run. */
        OK(cudaStreamCreate(&dead));
        LAUNCH(add, 1, 4, 0, dead, d, 1.0f, 1);
        OK(cudaStreamDestroy(dead));
        OK(cudaDeviceSynchronize());
        CHECK(fetched(d, 1)[0] == seen[0] + 2);
    }
    GIVES(cudaStreamSynchronize(dead), cudaErrorInvalidResourceHandle);
    LAST_ERROR_IS(cudaErrorInvalidResourceHandle);
    cudaSetDevice(1);
    LAUNCH(nothing, 1, 1, 0, s);
    cudaSetDevice(0);
    LAST_ERROR_IS(cudaErrorInvalidResourceHandle);
    settings_reset();
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
    OK(cudaFreeHost(pinned));
}

/* An asynchronous error must stay until its device is reset. */
static void test_sticky(void)
{
    for (int lazy = 0; lazy < 2; lazy++) {
        cuda_shim.lazy = lazy;
        float *d[2], x = 0;
        for (int i = 0; i < 2; i++) {
            cudaSetDevice(i);
            OK(cudaMalloc(&d[i], 4));
        }
        cuda_shim.fail_copy = 1;
        cudaMemcpy(d[1], &x, 4, cudaMemcpyHostToDevice);
        GIVES(cudaDeviceSynchronize(), cudaErrorECCUncorrectable);
        cudaSetDevice(0);
        cudaGetLastError();
        OK(cudaMemcpy(d[0], &x, 4, cudaMemcpyHostToDevice));
        cuda_shim.fail_launch = 2;
        cuda_shim.launches = 0;
        for (int i = 0; i < 3; i++)
            LAUNCH(add, 1, 1, 0, 0, d[0], 1.0f, 1);
        GIVES(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
        CHECK(cuda_shim.launches == 2);
        LAST_ERROR_IS(cudaErrorIllegalAddress);
        LAST_ERROR_IS(cudaErrorIllegalAddress);
        GIVES(cudaMemcpy(&x, d[0], 4, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
        GIVES(cudaMalloc(&d[0], 4), cudaErrorIllegalAddress);
        cudaSetDevice(1);
        GIVES(cudaFree(d[1]), cudaErrorECCUncorrectable);
        for (int i = 2; i-- > 0;) {
            cudaSetDevice(i);
            OK(cudaDeviceReset());
            LAST_ERROR_IS(cudaSuccess);
        }
        CHECK(cuda_shim.live_device == 0);
    }
    settings_reset();
}

struct capture_fixture {
    cudaStream_t s, t, u;
    cudaEvent_t fork, join;
    on_device<float> d, e;
    float *pinned;
    capture_fixture() : d(std::vector<float>(4)), e(std::vector<float>(4))
    {
        for (cudaStream_t *each : { &s, &t, &u })
            OK(cudaStreamCreate(each));
        for (cudaEvent_t *each : { &fork, &join })
            OK(cudaEventCreateWithFlags(each, cudaEventDisableTiming));
        OK(cudaMallocHost(&pinned, 16));
    }
    ~capture_fixture()
    {
        for (cudaStream_t each : { s, t, u })
            OK(cudaStreamDestroy(each));
        for (cudaEvent_t each : { fork, join })
            OK(cudaEventDestroy(each));
        OK(cudaFreeHost(pinned));
    }
    void follow(cudaStream_t to, cudaStream_t from) /* lets `to` continue after the work of `from` */
    {
        OK(cudaEventRecord(fork, from));
        OK(cudaStreamWaitEvent(to, fork));
    }
};

static void test_graphs(void)
{
    capture_fixture r;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    /* Captures d = 3 * (pinned + 1) + 1 on stream s, where pinned is a float of the host that each replay copies
     * again, and e = 0 + 1 on stream t. With the bug, t multiplies d by 3 without waiting for the first addition
     * on s; at least one order of the nodes must show it. */
    for (int round = 0; round < 16; round++) {
        int bug = round / 8;
        float by = 1;
        cuda_shim.schedule = round % 4;
        cuda_shim.lazy = round / 4 % 2;
        OK(cudaStreamBeginCapture(r.s, cudaStreamCaptureModeThreadLocal));
        OK(cudaMemcpyAsync(r.d, r.pinned, 4, cudaMemcpyHostToDevice, r.s));
        OK(cudaMemsetAsync(r.e, 0, 4, r.s));
        r.follow(r.t, r.s);
        LAUNCH(add, 1, 1, 0, r.s, r.d, by, 1);
        LAUNCH(add, 1, 1, 0, r.t, r.e, by, 1);
        by = 100; /* must have no effect, since a launch copies its arguments */
        LAUNCH(times, 1, 1, 0, bug ? r.t : r.s, r.d, 3.0f, 1);
        r.follow(r.s, r.t);
        LAUNCH(add, 1, 1, 0, r.s, r.d, 1.0f, 1);
        OK(cudaStreamEndCapture(r.s, &graph));
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphDestroy(graph));
        int right = 0;
        for (int replay = 0; replay < 4; replay++) {
            r.pinned[0] = (float)replay; /* read at every replay */
            OK(cudaGraphLaunch(exec, r.s));
            OK(cudaStreamSynchronize(r.s));
            right += fetched(r.d, 1)[0] == 3 * (float)(replay + 1) + 1 && fetched(r.e, 1)[0] == 1;
        }
        if (!bug)
            CHECK(right == 4);
        else if (cuda_shim.schedule == CUDA_SHIM_REVERSE)
            CHECK(right == 0);
        OK(cudaGraphExecDestroy(exec));
    }
    settings_reset();
}

/* Tests calls that a capture makes invalid, and the state of the capture after them. */
static void test_captures(void)
{
    capture_fixture r;
    cudaGraph_t graph;
    float *p;
    const cudaError_t unsupported = cudaErrorStreamCaptureUnsupported,
                      broken = cudaErrorStreamCaptureInvalidated;
    auto refuses = [&](int line, cudaError_t error, cudaError_t ends, auto call) {
        OK(cudaStreamBeginCapture(r.s, cudaStreamCaptureModeGlobal));
        LAUNCH(add, 1, 1, 0, r.s, r.d, 1.0f, 1);
        CHECK_MSG(call() == error, "line %d", line);
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        OK(cudaStreamIsCapturing(r.s, &status));
        CHECK_MSG((status == cudaStreamCaptureStatusInvalidated) == (ends == broken), "line %d",
                  line);
        CHECK_MSG(cudaStreamEndCapture(r.s, &graph) == ends && !graph == !!ends, "line %d", line);
        if (graph)
            OK(cudaGraphDestroy(graph));
    };
#define REFUSES(error, ends, ...)                                                                  \
    refuses(__LINE__, error, ends, [&]() -> cudaError_t { __VA_ARGS__ })
    REFUSES(unsupported, broken, return cudaStreamSynchronize(r.s););
    REFUSES(unsupported, broken, return cudaDeviceSynchronize(););
    REFUSES(unsupported, broken, return cudaMalloc(&p, 4););
    REFUSES(unsupported, broken, return cudaFree(r.d););
    REFUSES(unsupported, broken, return cudaMemcpy(r.d, r.pinned, 4, cudaMemcpyHostToDevice););
    float pageable = 1;
    REFUSES(unsupported, broken,
            return cudaMemcpyAsync(r.d, &pageable, 4, cudaMemcpyHostToDevice, r.s););
    REFUSES(cudaErrorStreamCaptureImplicit, broken, return cudaMemsetAsync(r.d, 0, 4, 0););
    REFUSES(cudaErrorStreamCaptureIsolation, broken, cudaEventRecord(r.join, r.u);
            return cudaStreamWaitEvent(r.s, r.join););
    REFUSES(cudaErrorIllegalState, cudaSuccess,
            return cudaStreamBeginCapture(r.s, cudaStreamCaptureModeGlobal););
    REFUSES(cudaSuccess, cudaErrorStreamCaptureUnjoined, r.follow(r.t, r.s);
            LAUNCH(add, 1, 1, 0, r.t, r.d, 1.0f, 1); return cudaSuccess;);
    REFUSES(cudaErrorStreamCaptureUnmatched, broken, r.follow(r.t, r.s);
            return cudaStreamEndCapture(r.t, &graph););
    REFUSES(cudaErrorStreamCaptureMerge, broken,
            OK(cudaStreamBeginCapture(r.t, cudaStreamCaptureModeGlobal));
            OK(cudaEventRecord(r.fork, r.s)); cudaError_t met = cudaStreamWaitEvent(r.t, r.fork);
            GIVES(cudaStreamEndCapture(r.t, &graph), broken); return met;);
    /* A global capture also restricts other threads, and other threads cannot end it. */
    cudaError_t there = cudaSuccess;
    REFUSES(unsupported, broken, std::thread([&] { there = cudaMalloc(&p, 4); }).join();
            return there;);
    REFUSES(cudaErrorStreamCaptureWrongThread, broken,
            std::thread([&] { there = cudaStreamEndCapture(r.s, &graph); }).join();
            return there;);
#undef REFUSES
    GIVES(cudaEventSynchronize(r.fork), cudaErrorCapturedEvent);
    OK(cudaStreamBeginCapture(r.s, cudaStreamCaptureModeRelaxed));
    OK(cudaMalloc(&p, 4));
    OK(cudaFree(p));
    OK(cudaStreamEndCapture(r.s, &graph));
    OK(cudaGraphDestroy(graph));
    cudaGetLastError();
}

/* Two host threads, each with its own device, must not disturb each other. */
static void test_host_threads(void)
{
    std::vector<float> sum[2];
    std::thread threads[2];
    for (int i = 0; i < 2; i++)
        threads[i] = std::thread([i, &sum] {
            cudaSetDevice(i);
            cudaStream_t s;
            cudaStreamCreate(&s);
            float *d;
            cudaMalloc(&d, 400);
            cudaMemsetAsync(d, 0, 400, s);
            for (int round = 0; round < 200; round++)
                LAUNCH(add, 4, 32, 0, s, d, (float)(i + 1), 100);
            sum[i].resize(100);
            cudaMemcpyAsync(sum[i].data(), d, 400, cudaMemcpyDeviceToHost, s);
            cudaStreamSynchronize(s);
            cudaStreamDestroy(s);
            cudaFree(d);
        });
    for (std::thread &each : threads)
        each.join();
    CHECK(sum[0] == std::vector<float>(100, 200) && sum[1] == std::vector<float>(100, 400));
}

int main(void)
{
    cuda_shim.device_bytes = 64 << 20;
    settings_reset();
    for (int protect = 0; protect < 2; protect++) {
        cuda_shim.protect = protect;
        test_memory();
        test_host_threads();
        test_tensor_cores();
    }
    settings_reset();
    test_schedules();
    test_blocks();
    test_warp();
    test_bugs();
    test_wgmma();
    test_limits();
    test_streams();
    test_sticky();
    test_graphs();
    test_captures();
    CHECK(!cuda_shim.live_device && !cuda_shim.live_pinned && !cuda_shim.live_streams);
    CHECK(!cuda_shim.live_events && !cuda_shim.live_graphs);
    return check_report("test_cuda_shim");
}
