/* peak.h - samples the peaks of this processor in a few milliseconds, so that each repetition of a measurement can
 * have a sample: fused multiply-adds, bf16 dot products, memory. Each thread measures its rate itself, and the rates
 * are added, so that the time to wake threads does not count. */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H
#ifdef _OPENMP
#include <omp.h>
#endif
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__GNUC__)
#error "the peak is written for gcc and clang"
#endif

typedef enum { PEAK_FMA, PEAK_DOT, PEAK_READ, PEAK_TRIAD } peak_kind;

/* 12 independent chains of multiply-adds per thread hide the latency of two FMA units, which is 4 to 5 cycles. */
#define CHAINS(X)       X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i)      vector a##i = zero + (float)i;
#define MULTIPLY_ADD(i) a##i = a##i * m + c;
#define ADD(i)          total += a##i;
#define PEAK(name, bytes, target_attribute, step)                                                  \
    target_attribute static float name(long rounds)                                                \
    {                                                                                              \
        typedef float vector __attribute__((vector_size(bytes)));                                  \
        volatile float near_one = 0.999f, little = 0.001f;                                         \
        const vector zero = { 0 };                                                                 \
        const vector m = zero + near_one, c = zero + little;                                       \
        CHAINS(DECLARE)                                                                            \
        for (long r = 0; r < rounds; r++) {                                                        \
            CHAINS(step)                                                                           \
        }                                                                                          \
        vector total = c;                                                                          \
        CHAINS(ADD)                                                                                \
        return total[0];                                                                           \
    }
PEAK(peak_16, 16, , MULTIPLY_ADD)
#if defined(__x86_64__)
#define FUSED(i) __asm__("vfmadd231ps %1, %1, %0" : "+v"(a##i) : "v"(m));
#define DOT(i)   __asm__("vdpbf16ps %1, %1, %0" : "+v"(a##i) : "v"(m));
PEAK(peak_32, 32, __attribute__((target("avx2,fma"))), FUSED)
PEAK(peak_64, 64, __attribute__((target("avx512f,fma"))), FUSED)
PEAK(peak_dot, 64, __attribute__((target("avx512f,fma"))), DOT)
#endif

static int peak_width; /* bytes of the vectors with which arithmetic is sampled */

/* Returns the bytes of the widest vectors of this processor. */
static int peak_widest(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f")                                 ? 64
           : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 32
                                                                             : 16;
#else
    return 16;
#endif
}

static inline int peak_has_dot(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") != 0;
#else
    return 0;
#endif
}

static double peak_arithmetic(peak_kind kind)
{
    const long rounds = 1000000;
    double flops = 2.0 * 12 * (peak_width / 4) * (double)rounds;
    volatile float sink;
    double t = now();
#if defined(__x86_64__)
    if (kind == PEAK_DOT) {
        flops = 2.0 * 12 * 32 * (double)rounds; /* each of 32 elements is a pair, always in vectors of 64 bytes */
        sink = peak_dot(rounds);
    } else {
        sink = peak_width == 64   ? peak_64(rounds)
               : peak_width == 32 ? peak_32(rounds)
                                  : peak_16(rounds);
    }
#else
    (void)kind;
    sink = peak_16(rounds);
#endif
    (void)sink;
    return flops / (now() - t);
}

/* Three arrays, each of which is larger than the last cache; after a sample, the caches hold no data of the
 * benchmark. */
static struct {
    float *a, *b, *c;
    long n;
} arrays;

static int peak_open_memory(void)
{
    size_t bytes = (size_t)64 << 20;
#ifdef _SC_LEVEL3_CACHE_SIZE
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0 && 2 * (size_t)cache > bytes)
        bytes = 2 * (size_t)cache;
#endif
    void *memory = NULL;
    if (posix_memalign(&memory, (size_t)2 << 20, 3 * bytes) != 0)
        return 0;
    float *block = (float *)memory;
#ifdef MADV_HUGEPAGE
    madvise(block, 3 * bytes, MADV_HUGEPAGE);
#endif
    memset(block, 0, 3 * bytes);
    arrays.n = (long)(bytes / sizeof(float));
    arrays.a = block;
    arrays.b = block + arrays.n;
    arrays.c = block + 2 * arrays.n;
    return 1;
}

static double peak_memory(peak_kind kind, int thread, int threads)
{
    typedef float vector __attribute__((vector_size(64), aligned(4)));
    const long part = arrays.n / threads & ~63L, from = part * thread;
    const float *a = arrays.a + from, *b = arrays.b + from;
    float *c = arrays.c + from;
    double t = now();
    if (kind == PEAK_READ) {
        vector s[4] = { { 0 } };
        for (long i = 0; i < part; i += 64)
            for (int j = 0; j < 4; j++)
                s[j] += *(const vector *)(const void *)(a + i + 16 * j);
        volatile float sink = (s[0] + s[1] + s[2] + s[3])[0];
        (void)sink;
    } else {
        for (long i = 0; i < part; i += 16)
            *(vector *)(void *)(c + i) =
                *(const vector *)(const void *)(a + i) + 3 * *(const vector *)(const void *)(b + i);
    }
    return (kind == PEAK_READ ? 4.0 : 12.0) * (double)part / (now() - t);
}

/* Returns the flop/s, or the bytes/s, of all threads together. */
static double peak_sample(peak_kind kind, int threads)
{
    double rate = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) reduction(+ : rate)
#endif
    {
        int thread = 0;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#pragma omp barrier
#endif
        rate += kind == PEAK_FMA || kind == PEAK_DOT ? peak_arithmetic(kind)
                                                     : peak_memory(kind, thread, threads);
    }
    return rate;
}
#endif
