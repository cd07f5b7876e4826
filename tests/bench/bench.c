/* bench.c - how fast this build trains, beside what the processor can do.
 *
 *     make bench
 *
 * The peak is measured: as many independent fused multiply-adds as the registers hold, on every
 * thread, in the widest vectors this processor has. A step's flops are the model's (2 per weight
 * and token forward, 4 backward, causal attention counted half); recomputation is not counted. The
 * best of several steps is shown; run it on an idle machine.
 */
#include "model.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* >>peak: 12 chains a thread hide the latency of 4 to 5 cycles of two units. */
#if defined(__GNUC__)
#define CHAINS(X)       X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(i)      vector a##i = zero + (float)i;
#define MULTIPLY_ADD(i) a##i = a##i * m + c;
#define ADD(i)          total += a##i;
#define PEAK(name, bytes, target_attribute)                                                        \
    target_attribute static float name(long rounds)                                                \
    {                                                                                              \
        typedef float vector __attribute__((vector_size(bytes)));                                  \
        volatile float near_one = 0.999f, little = 0.001f;                                         \
        const vector zero = { 0 };                                                                 \
        const vector m = zero + near_one, c = zero + little;                                       \
        CHAINS(DECLARE)                                                                            \
        for (long r = 0; r < rounds; r++) {                                                        \
            CHAINS(MULTIPLY_ADD)                                                                   \
        }                                                                                          \
        vector total = zero;                                                                       \
        CHAINS(ADD)                                                                                \
        return total[0];                                                                           \
    }
PEAK(peak_16, 16, )
#if defined(__x86_64__)
PEAK(peak_32, 32, __attribute__((target("avx2,fma"))))
PEAK(peak_64, 64, __attribute__((target("avx512f,fma"))))
#endif
#else
#error "the peak is written for gcc and clang"
#endif

static double measure_peak(int threads, int width)
{
    float (*kernel)(long) = peak_16;
#if defined(__x86_64__)
    kernel = width == 64 ? peak_64 : width == 32 ? peak_32 : peak_16;
#endif
    const long rounds = 20000000 / (width / 16);
    double best = 0;
    for (int repeat = 0; repeat < 4; repeat++) {
        volatile float sink = 0;
        double t = now();
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
        {
            float x = kernel(rounds);
#ifdef _OPENMP
#pragma omp critical
#endif
            sink += x;
        }
        t = now() - t;
        double rate = 2.0 * 12 * (width / 4) * (double)rounds * threads / t * 1e-9;
        best = rate > best ? rate : best;
    }
    return best;
}

/* A matrix product alone: forward of a linear layer, (M,K) x (K,N). */
static double measure_linear(int64_t M, int64_t K, int64_t N, int threads)
{
    gckpt_init init = { 0.02f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(M, K));
    gckpt_pick pick = { gckpt_linear(in, gckpt_param(g, "w", gckpt_shape2(K, N), init), NULL), 0 };
    gckpt_plan_desc desc = {
        .mode = GCKPT_INFERENCE, .threads = threads, .fetch = &pick, .fetches = 1
    };
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = p == NULL ? NULL : gckpt_exec_new(p, s, NULL);
    float *x = malloc((size_t)(M * K) * sizeof(float));
    double best = 1e30, start = now();
    for (int64_t i = 0; x != NULL && i < M * K; i++)
        x[i] = (float)(i % 17) - 8;
    gckpt_feed feed = { gckpt_id(in), x };
    for (int i = 0; e != NULL && x != NULL && (i < 3 || now() - start < 0.5); i++) {
        double t = now();
        if (gckpt_forward(e, &feed, 1, M, NULL) != GCKPT_OK)
            break;
        t = now() - t;
        best = t < best ? t : best;
    }
    free(x);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return 2e-9 * (double)(M * K * N) / best;
}

/* Flops of the matrices of one step. */
static double model_flops(const size *z)
{
    double tokens = (double)z->batch * z->context, C = z->dim;
    double weights = z->layers * 12.0 * C * C + z->vocabulary * C;
    double attention = z->layers * 4.0 * C * z->context / 2; /* a token, forward, causal */
    return 3 * tokens * (2 * weights + attention);
}

int main(void)
{
    static const size sizes[] = {
        { 4, 4, 128, 64, 12, 256 },
        { 6, 6, 192, 256, 4, 256 },
        { 6, 6, 384, 256, 4, 256 },
    };
    static const int64_t products[][3] = { { 768, 128, 512 },
                                           { 1024, 384, 1536 },
                                           { 512, 768, 3072 } };
    int threads = gckpt_threads(), width = 16;
#if defined(__x86_64__)
    width = __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx2") ? 32 : 16;
#endif
    double peak = measure_peak(threads, width);
    printf("%d thread%s; measured peak %.0f GFLOP/s in vectors of %d bytes", threads,
           threads == 1 ? "" : "s", peak, width);
    if (width == 64)
        printf(" (of 32 bytes: %.0f)", measure_peak(threads, 32));
    printf("\n\nlinear, forward (M,K) x (K,N)\n");
    for (int i = 0; i < 3; i++) {
        const int64_t *m = products[i];
        double rate = measure_linear(m[0], m[1], m[2], threads);
        printf("  (%lld,%lld) x (%lld,%lld)%*s %7.1f GFLOP/s  %5.1f %% of peak\n", (long long)m[0],
               (long long)m[1], (long long)m[1], (long long)m[2], i == 0 ? 2 : 0, "", rate,
               100 * rate / peak);
    }
    printf(
        "\nGPT, AdamW step\n  layers heads dim context batch parameters  plan           bytes  ms/step  tokens/s"
        "  %% of peak\n");
    for (int i = 0; i < 3; i++) {
        const size *z = &sizes[i];
        for (int m = 0; m < 2; m++) {
            bench b = { 0 };
            double t = -1;
            if (bench_new(&b, z, m == 0 ? GCKPT_STORE_ALL : GCKPT_SQRT, threads))
                t = bench_step(&b, z, 2);
            if (t > 0)
                printf("  %6d %5d %3d %7d %5d %10lld  %-9s %10zu %8.1f %9.0f %10.1f\n", z->layers,
                       z->heads, z->dim, z->context, z->batch, (long long)b.parameters,
                       m == 0 ? "store-all" : "sqrt", gckpt_plan_bytes(b.plan), 1e3 * t,
                       z->batch * z->context / t, 1e-9 * model_flops(z) / t / peak * 100);
            bench_free(&b);
            if (t < 0)
                return 1;
        }
    }
    return 0;
}
