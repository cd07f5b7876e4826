/* cuda.cu - measures the kernels of gradckpt_cuda.cu on a device: products of GPT-2 124M are compared with the fp32
 * peak of fma and with cuBLAS, and their bits with a sequential FMA accumulation for each element; memory-bound
 * kernels are compared with a copy.
 *
 *     make build/bench-cuda
 *     build/bench-cuda            prints the tables (60 lines, about a minute)
 *     build/bench-cuda tiles      measures every tile on every product: the choices of best_tile
 *     build/bench-cuda large      tests arrays of over 2^31 elements, which need 64-bit indexes
 *     build/bench-shim small [tiles | large]      runs everything once in small sizes on the CPU, to test the program
 *
 * The results of cuBLAS are compared with those of the library, to ensure that both compute the same products. */
#include "gradckpt_cuda.cu"
#include <algorithm>
#include <cublas_v2.h>

namespace
{

Device *gpu;
cudaEvent_t began, ended;
int failed; /* number of products with wrong bits, or with values that differ from those of cuBLAS */
int tiny;   /* if nonzero, sizes are small and each kernel runs once */

void must(int ok, const char *what)
{
    const char *problem = gpu ? gpu->backend.finish(gpu) : NULL;
    if (ok && !problem)
        return;
    fprintf(stderr, "bench-cuda: %s%s%s\n", what, problem ? ": " : "", problem ? problem : "");
    exit(1);
}

/* Returns the seconds of one run(): the median of three measurements of about 20 ms each. */
template <class F> double seconds(F run)
{
    double time[3];
    int repeats = 1;
    run();
    for (int i = tiny ? 2 : -1; i < 3; i++) {
        float ms = 0;
        cudaEventRecord(began, gpu->stream);
        for (int k = 0; k < repeats; k++)
            run();
        launch_pending(gpu); /* launches the last product, which waits because a later op may be fused with it */
        cudaEventRecord(ended, gpu->stream);
        must(cudaEventSynchronize(ended) == cudaSuccess, "an event");
        cudaEventElapsedTime(&ms, began, ended);
        if (i < 0)
            repeats = ms > 20 ? 1 : (int)(20 / (ms > 1e-3f ? ms : 1e-3f)) + 1;
        else
            time[i] = 1e-3 * ms / repeats;
    }
    if (tiny)
        return time[2];
    std::sort(time, time + 3);
    return time[1];
}

/* Fills x or bf16 with n random values between -1 and 1. */
__global__ void random_kernel(float *x, uint16_t *bf16, int64_t n)
{
    for (EACH(i, n)) {
        uint32_t u = (uint32_t)i * 2654435761u;
        float v = (float)(int32_t)((u ^ u >> 15) * 2246822519u) * 4.656612873077393e-10f;
        if (x)
            x[i] = v;
        if (bf16)
            bf16[i] = gckpti_to_bf16(v);
    }
}

__global__ void index_kernel(int32_t *index, int64_t n, uint32_t below)
{
    for (EACH(i, n))
        index[i] = (int32_t)((uint32_t)i * 2654435761u % below);
}

/* An array in device memory, freed at the end of its scope; its pointer is NULL if there is not enough memory. */
struct Array {
    void *at;
    explicit Array(int64_t bytes) : at(NULL)
    {
        if (cudaMalloc(&at, (size_t)bytes) != cudaSuccess) {
            cudaGetLastError();
            at = NULL;
        }
    }
    ~Array() { cudaFree(at); }
    Array(const Array &) = delete;
    float *f() const { return (float *)at; }
    uint16_t *h() const { return (uint16_t *)at; }
};

void fill_random(const Array &x, int64_t n, int bf16)
{
    LAUNCH(random_kernel, tiny ? 4 : 4096, 256, 0, gpu->stream, bf16 ? NULL : x.f(),
           bf16 ? x.h() : NULL, n);
}

/* ---- peaks of the device ---- */
__global__ void peak_kernel(float *out, float a, float b, int rounds)
{
    float x[16];
    UNROLL for (int i = 0; i < 16; i++) x[i] = (float)(threadIdx.x + i);
    for (int r = 0; r < rounds; r++) {
        UNROLL for (int k = 0; k < 16; k++)
        {
            UNROLL for (int i = 0; i < 16; i++) x[i] = gckpti_fma(x[i], a, b);
        }
    }
    float sum = 0;
    UNROLL for (int i = 0; i < 16; i++) sum += x[i];
    if (sum == 1.2345f)
        out[0] = sum;
}

double fma_peak(int processors)
{
    Array out(4);
    int rounds = tiny ? 1 : 4096, blocks = processors * 8;
    double s = seconds(
        [&] { LAUNCH(peak_kernel, blocks, 256, 0, gpu->stream, out.f(), 0.999f, 0.001f, rounds); });
    return 2.0 * 256 * rounds * 256 * blocks / s;
}

double copy_peak(void)
{
    int64_t bytes = INT64_C(1) << (tiny ? 16 : 29);
    Array a(bytes), b(bytes);
    must(a.at && b.at, "no memory for a copy");
    double s = seconds(
        [&] { cudaMemcpyAsync(b.at, a.at, (size_t)bytes, cudaMemcpyDeviceToDevice, gpu->stream); });
    return 2.0 * (double)bytes / s;
}

/* ---- calls of the library's kernels ---- */
gckpt_call new_call(gckpt_precision precision, const void *attributes, int inputs)
{
    gckpt_call c;
    memset(&c, 0, sizeof c);
    c.precision = precision;
    c.attributes = attributes;
    c.inputs = inputs;
    c.plain = c.training = c.threads = 1;
    c.rows = 1;
    c.backend = gpu;
    return c;
}

/* Runs the kernel of call c, whose shapes and pointers are set, and returns its seconds; returns -1 if the op has no
 * kernel or its workspace does not fit into memory. */
double time_op(const gckpt_op *op, gckpt_kind kind, gckpt_call c)
{
    gckpt_kernel kernel = c.precision == GCKPT_BF16_FAST ? find<FAST_OPS>(gpu, op, kind)
                                                         : find<EXACT_OPS>(gpu, op, kind);
    gckpt_call planned = c;
    if (!kernel || op->shape(&planned) != GCKPT_OK || workspace(gpu, op, &planned) != GCKPT_OK)
        return -1;
    c.shape = planned.shape;
    size_t bytes = kind == GCKPT_FORWARD ? planned.workspace_forward : planned.workspace_backward;
    Array work((int64_t)bytes + 1);
    c.workspace = work.at;
    double s = work.at ? seconds([&] { kernel(&c); }) : -1;
    must(1, op->name);
    return s;
}

/* ---- products y (m,n) = x (m,k) w, where w is (k,n) or transposed; a kind is the result that is computed: y, dx or
 * dw ---- */
enum { Y, DX, DW, KINDS };
const char *const kind_name[KINDS] = { "y", "dx", "dw" };
struct Layer {
    int64_t m, k, n;
    int transposed;
    void *x, *w, *y, *d; /* d: the result, if dx or dw is computed */
    int bf16;            /* nonzero if all arrays except w and dw are bf16 */
};

gckpt_call layer_call(const Layer *l, int kind)
{
    gckpt_call c = new_call(l->bf16 ? GCKPT_BF16_FAST : GCKPT_FP32, &l->transposed, 2);
    c.in[0].shape = gckpt_shape2(l->m, l->k);
    c.in[1].shape = l->transposed ? gckpt_shape2(l->n, l->k) : gckpt_shape2(l->k, l->n);
    c.shape = gckpt_shape2(l->m, l->n);
    c.in[1].data = (const float *)l->w;
    if (l->bf16)
        c.in[0].bf16 = (const uint16_t *)l->x;
    else
        c.in[0].data = (const float *)l->x;
    if (kind == Y && l->bf16)
        c.out_bf16 = (uint16_t *)l->y;
    else if (kind == Y)
        c.out = (float *)l->y;
    else if (l->bf16)
        c.grad_out_bf16 = (const uint16_t *)l->y;
    else
        c.grad_out = (const float *)l->y;
    if (kind == DX && l->bf16)
        c.in[0].grad_bf16 = (uint16_t *)l->d;
    else if (kind != Y)
        c.in[kind - DX].grad = (float *)l->d;
    return c;
}

/* The operands of the product that the linear op passes to its kernel for this layer and kind. */
gckpti_product captured;
void capture(const gckpt_call *, const gckpti_product *t) { captured = *t; }
gckpti_product layer_operands(const Layer *l, int kind)
{
    gckpt_call c = layer_call(l, kind);
    gckpti_run_matmul(&c, kind != Y, capture);
    return captured;
}

/* Runs the product by cuBLAS. It stores matrices by columns, so the transposed product is computed. w_bf16: the bf16
 * weights of a network that keeps a bf16 copy of its weights. */
void by_cublas(cublasHandle_t handle, const Layer *l, int kind, const void *w_bf16)
{
    int m = (int)l->m, k = (int)l->k, n = (int)l->n, t = l->transposed, rows, columns, links;
    float one = 1, zero = 0;
    cudaDataType in = l->bf16 ? CUDA_R_16BF : CUDA_R_32F, out = kind == DW ? CUDA_R_32F : in;
    const void *w = l->bf16 ? w_bf16 : l->w, *a, *b;
    cublasOperation_t a_as = CUBLAS_OP_N, b_as = CUBLAS_OP_N;
    int a_line, b_line;
    if (kind == Y) { /* the transposed product y' = w' x' */
        rows = n, columns = m, links = k, a = w, b = l->x, a_line = t ? k : n, b_line = k;
        a_as = t ? CUBLAS_OP_T : CUBLAS_OP_N;
    } else if (kind == DX) { /* the transposed product dx' = w y' */
        rows = k, columns = m, links = n, a = w, b = l->y, a_line = t ? k : n, b_line = n;
        a_as = t ? CUBLAS_OP_N : CUBLAS_OP_T;
    } else { /* the transposed product dw' = y' x, or if w is transposed, x' y */
        rows = t ? k : n, columns = t ? n : k, links = m, b_as = CUBLAS_OP_T;
        a = t ? l->x : l->y, b = t ? l->y : l->x, a_line = rows, b_line = columns;
    }
    cublasStatus_t status = cublasGemmEx(handle, a_as, b_as, rows, columns, links, &one, a, in,
                                         a_line, b, in, b_line, &zero, kind == Y ? l->y : l->d, out,
                                         rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    must(status == CUBLAS_STATUS_SUCCESS, "cublasGemmEx");
}

/* Computes each element in one thread by a sequential FMA accumulation, as the numeric specification defines it. */
__global__ void chain_kernel(gckpti_product t, unsigned long long *wrong)
{
    unsigned long long mine = 0;
    for (EACH(e, t.m * t.n)) {
        const float *a = t.a.f32 + e / t.n * t.a.stride, *b = t.b.f32 + e % t.n * t.b.stride;
        float sum = 0;
        for (int64_t p = 0; p < t.k; p++)
            sum = gckpti_fma(a[p * t.a.k_stride], b[p * t.b.k_stride], sum);
        mine += gckpti_bits(sum) != gckpti_bits(t.c[e]);
    }
    if (mine)
        atomicAdd(wrong, mine);
}

const char *compare_bits(const gckpti_product *t)
{
    Array wrong(8);
    unsigned long long n = 1;
    cudaMemsetAsync(wrong.at, 0, 8, gpu->stream);
    LAUNCH(chain_kernel, tiny ? 4 : 4096, 256, 0, gpu->stream, *t, (unsigned long long *)wrong.at);
    cudaMemcpyAsync(&n, wrong.at, 8, cudaMemcpyDeviceToHost, gpu->stream);
    must(1, "comparing bits");
    failed += n != 0;
    return n ? "DIFFER" : "equal";
}

/* Computes the largest |a - b| and the largest |b| as the bits of floats; farthest() returns their quotient, where
 * the divisor is at least 1. */
__global__ void farthest_kernel(const float *a, const float *b, int64_t n, unsigned *out)
{
    unsigned most = 0, apart = 0; /* the bits of nonnegative floats, read as integers, have the order of the floats */
    for (EACH(i, n)) {
        apart = max(apart, gckpti_bits(fabsf(a[i] - b[i])));
        most = max(most, gckpti_bits(fabsf(b[i])));
    }
    atomicMax(out, apart);
    atomicMax(out + 1, most);
}

float farthest(const Array &a, const Array &b, int64_t n)
{
    Array out(8);
    unsigned at[2] = { 0x7f800000u, 0 };
    cudaMemsetAsync(out.at, 0, 8, gpu->stream);
    LAUNCH(farthest_kernel, tiny ? 4 : 4096, 256, 0, gpu->stream, a.f(), b.f(), n,
           (unsigned *)out.at);
    cudaMemcpyAsync(at, out.at, 8, cudaMemcpyDeviceToHost, gpu->stream);
    must(1, "comparing products");
    return gckpti_float(at[0]) / fmaxf(gckpti_float(at[1]), 1.0f);
}

void test_layer(cublasHandle_t handle, int64_t m, int64_t k, int64_t n, int transposed, double peak)
{
    int64_t most = (m > n ? m : n) * k;
    Array x(4 * m * k), w(4 * n * k), y(4 * m * n), d(4 * most), narrow(2 * n * k),
        theirs(4 * (most > m * n ? most : m * n));
    if (!x.at || !w.at || !y.at || !d.at || !narrow.at || !theirs.at) {
        printf("%6ld %4ld %5ld  left out: no memory\n", (long)m, (long)k, (long)n);
        return;
    }
    for (int kind = Y; kind < KINDS; kind++) {
        Layer l = { m, k, n, transposed, x.at, w.at, y.at, d.at, 0 };
        double work = 2e-12 * (double)m * (double)k * (double)n, ours[2], blas[2];
        const char *bits = "";
        fill_random(w, n * k, 0);
        fill_random(narrow, n * k, 1);
        for (l.bf16 = 0; l.bf16 < 2; l.bf16++) {
            fill_random(x, m * k, l.bf16);
            fill_random(y, m * n, l.bf16);
            blas[l.bf16] = seconds([&] { by_cublas(handle, &l, kind, narrow.at); });
            const Array &out = kind == Y ? y : d;
            const int64_t size = kind == DX ? m * k : kind == DW ? n * k : m * n;
            cudaMemcpyAsync(theirs.at, out.at, (size_t)size * (l.bf16 ? 2 : 4),
                            cudaMemcpyDeviceToDevice, gpu->stream);
            fill_random(y, m * n, l.bf16);
            ours[l.bf16] = time_op(&gckpti_op_linear, kind ? GCKPT_BACKWARD : GCKPT_FORWARD,
                                   layer_call(&l, kind));
            /* the results are sums of up to 65536 products of numbers between -1 and 1 */
            if (!l.bf16 && !(farthest(out, theirs, size) <= 1e-3f))
                must(0, "cuBLAS has another product");
            if (!l.bf16 && m < 10000) { /* comparing the bits of longer sums would take long and test nothing more */
                gckpti_product t = layer_operands(&l, kind);
                bits = compare_bits(&t);
            }
        }
        l.bf16 = 0;
        gckpti_product t = layer_operands(&l, kind);
        gckpt_call c = layer_call(&l, kind);
        const Tile *tile = best_tile(EXACT_TILES, 6, &t, sm_count(&c));
        printf("%6ld %4ld %5ld %-2s %3d x %-3d %6.1f %6.1f %5.0f %5.0f  %-6s", (long)m, (long)k,
               (long)n, kind_name[kind], tile->m, tile->n, work / ours[0], work / blas[0],
               100e12 * work / ours[0] / peak, 100 * blas[0] / ours[0], bits);
        if (ours[1] > 0)
            printf(" %6.0f %6.0f %5.0f", work / ours[1], work / blas[1], 100 * blas[1] / ours[1]);
        printf("\n");
        fflush(stdout);
    }
}

void test_tiles(int64_t m, int64_t k, int64_t n, int transposed)
{
    int64_t most = (m > n ? m : n) * k;
    Array x(4 * m * k), w(4 * n * k), y(4 * m * n), d(4 * most);
    if (!x.at || !w.at || !y.at || !d.at)
        return;
    Layer l = { m, k, n, transposed, x.at, w.at, y.at, d.at, 0 };
    fill_random(x, m * k, 0);
    fill_random(w, n * k, 0);
    for (int kind = Y; kind < KINDS; kind++) {
        fill_random(y, m * n, 0);
        gckpt_call c = layer_call(&l, kind);
        gckpti_product t = layer_operands(&l, kind);
        const Tile *best = best_tile(EXACT_TILES, 6, &t, sm_count(&c));
        printf("%6ld %4ld %5ld %-2s", (long)m, (long)k, (long)n, kind_name[kind]);
        for (const Tile &tile : EXACT_TILES) {
            Gemm q = gemm_of(&t, 0);
            double s = seconds([&] { tile.run(&c, &q); });
            printf(" %6.1f%c", 2e-12 * (double)m * (double)k * (double)n / s,
                   &tile == best ? '*' : ' ');
        }
        printf("  %s\n", compare_bits(&t));
    }
}

/* ---- memory-bound kernels ---- */
void print_bandwidth(const char *name, double bytes, double s, double peak)
{
    if (s > 0)
        printf("%-28s %8.1f %6.0f %5.0f\n", name, 1e6 * s, 1e-9 * bytes / s,
               100 * bytes / s / peak);
    else
        printf("%-28s no kernel\n", name);
}

void test_bandwidth(double peak)
{
    const int64_t m = tiny ? 48 : 65536, n = tiny ? 24 : 768, v = tiny ? 101 : 50257;
    const double each = 4.0 * (double)m * (double)n, table = 4.0 * (double)v * (double)n;
    Array x(4 * m * n), y(4 * m * n), g(4 * m * n), d(4 * m * n), saved(12 * m), vectors(4 * 16 * n),
        w(4 * v * n), dw(4 * v * n), more(8 * v * n), index(4 * m);
    if (!x.at || !y.at || !g.at || !d.at || !saved.at || !vectors.at || !w.at || !dw.at || !more.at ||
        !index.at)
        return (void)printf("left out: no memory\n");
    const Array *all[] = { &x, &y, &g, &d };
    for (const Array *a : all)
        fill_random(*a, m * n, 0);
    fill_random(w, v * n, 0);
    fill_random(vectors, 16 * n, 0);
    cudaMemsetAsync(more.at, 0, (size_t)(8 * v * n), gpu->stream);
    LAUNCH(index_kernel, tiny ? 4 : 256, 256, 0, gpu->stream, (int32_t *)index.at, m, (uint32_t)v);
    printf("\n%5ld x %3ld floats                 us   GB/s  %% of a copy\n", (long)m, (long)n);

    gckpt_call c = new_call(GCKPT_FP32, NULL, 1);
    c.in[0].shape = c.shape = gckpt_shape2(m, n);
    c.in[0].data = x.f(), c.out = y.f(), c.grad_out = g.f(), c.in[0].grad = d.f();
    print_bandwidth("gelu", 2 * each, time_op(&gckpti_op_gelu, GCKPT_FORWARD, c), peak);
    print_bandwidth("gelu, dx", 3 * each, time_op(&gckpti_op_gelu, GCKPT_BACKWARD, c), peak);
    print_bandwidth("softmax", 2 * each, time_op(&gckpti_op_softmax, GCKPT_FORWARD, c), peak);
    print_bandwidth("softmax, dx", 3 * each, time_op(&gckpti_op_softmax, GCKPT_BACKWARD, c), peak);

    c = new_call(GCKPT_FP32, NULL, 2);
    c.in[0].shape = c.in[1].shape = c.shape = gckpt_shape2(m, n);
    c.in[0].data = x.f(), c.in[1].data = g.f(), c.out = y.f();
    print_bandwidth("add", 3 * each, time_op(&gckpti_op_add, GCKPT_FORWARD, c), peak);
    c.in[1].shape = gckpt_shape1(n), c.in[1].data = vectors.f();
    print_bandwidth("add, a row to all", 2 * each, time_op(&gckpti_op_add, GCKPT_FORWARD, c), peak);

    gckpti_norm norm = { 1, 1, 2 };
    c = new_call(GCKPT_FP32, &norm, 3);
    c.in[0].shape = c.shape = gckpt_shape2(m, n);
    c.in[1].shape = c.in[2].shape = gckpt_shape1(n);
    c.in[0].data = x.f(), c.in[1].data = vectors.f(), c.in[2].data = vectors.f() + n;
    c.out = y.f(), c.saved = saved.at, c.grad_out = g.f(), c.in[0].grad = d.f();
    print_bandwidth("layernorm", 2 * each, time_op(&gckpti_op_layernorm, GCKPT_FORWARD, c), peak);
    print_bandwidth("layernorm, dx", 3 * each, time_op(&gckpti_op_layernorm, GCKPT_BACKWARD, c),
                    peak);
    for (int i = 1; i < 3; i++)
        c.in[i].grad = vectors.f() + 2 * i * n, c.in[i].compensation = vectors.f() + (2 * i + 1) * n;
    print_bandwidth("layernorm, dx, dgain, dbias", 3 * each,
                    time_op(&gckpti_op_layernorm, GCKPT_BACKWARD, c), peak);
    const RowTerms<> rows = { {}, grad_out_of(&c), NONE, n };
    print_bandwidth("linear's dbias (Kahan)", each,
                    seconds([&] { column_sums(&c, rows, sum_of(c.in[2]), {}, m, n); }), peak);

    c = new_call(GCKPT_FP32, NULL, 2);
    c.in[0].shape = gckpt_shape2(v, n), c.in[1].shape = gckpt_shape1(m);
    c.in[0].data = w.f(), c.in[1].index = (const int32_t *)index.at;
    c.out = y.f(), c.grad_out = g.f(), c.in[0].grad = dw.f();
    print_bandwidth("embed", 2 * each, time_op(&gckpti_op_embed, GCKPT_FORWARD, c), peak);
    print_bandwidth("embed, dtable", each + table, time_op(&gckpti_op_embed, GCKPT_BACKWARD, c),
                    peak);
    c.in[0].accumulate = 1;
    print_bandwidth("embed, dtable, added", 3 * each, time_op(&gckpti_op_embed, GCKPT_BACKWARD, c),
                    peak);

    gckpt_update_pass p;
    memset(&p, 0, sizeof p);
    p.elements = v * n, p.gradient = dw.f(), p.values = w.f(), p.optimiser = GCKPT_ADAMW,
    p.update = 1;
    p.state[0] = more.f(), p.state[1] = more.f() + v * n;
    p.rates.scale = p.rates.correct2 = 1, p.rates.beta1 = p.rates.beta2 = 0.9f;
    p.rates.rest1 = p.rates.rest2 = 0.1f, p.rates.eps = 1e-8f, p.rates.rate = 1e-6f;
    c = new_call(GCKPT_FP32, NULL, 0);
    print_bandwidth("AdamW (the table)", 7 * table, seconds([&] { gpu->backend.update(&c, &p); }),
                    peak);
}

/* ---- arrays of over 2^31 elements ---- */
enum { LARGE_ADD, LARGE_SUM, LARGE_PERMUTE, LARGE_PAD, LARGE_OPS };
const char *const large_name[LARGE_OPS] = { "add, a row to all", "sum over rows", "permute",
                                            "pad" };

__global__ void whole_kernel(float *x, int64_t n) /* Fills x with small whole numbers, whose sums are exact. */
{
    for (EACH(i, n))
        x[i] = (float)((uint32_t)(i % 1000003) * 2654435761u % 17u) - 8.0f;
}

/* Counts the wrong elements of `out`, the result of op `what` for x (m,n) and a row (n). */
__global__ void large_kernel(int what, const float *x, const float *row, const float *out,
                             int64_t m, int64_t n, unsigned long long *wrong)
{
    unsigned long long mine = 0;
    for (EACH(e, what == LARGE_SUM ? n : m * n)) {
        const int64_t i = e / n, j = e % n;
        float want = x[e];
        if (what == LARGE_ADD)
            want += row[j];
        for (int64_t k = 1; k < m && what == LARGE_SUM; k++)
            want += x[k * n + j];
        mine += want != out[what == LARGE_PERMUTE ? j * m + i
                            : what == LARGE_PAD   ? i * (n + 3) + 1 + j
                                                  : e];
    }
    if (mine)
        atomicAdd(wrong, mine);
}

void test_large(void)
{
    const int64_t m = tiny ? 40 : 16392, n = tiny ? 72 : 131072;
    Array x(4 * m * n), row(4 * n), low(4 * n), out(4 * m * (n + 3)), wrong(8);
    if (!x.at || !row.at || !low.at || !out.at || !wrong.at)
        return (void)printf("left out: %.1f GB are not there\n", 8e-9 * (double)m * (double)n);
    LAUNCH(whole_kernel, tiny ? 4 : 4096, 256, 0, gpu->stream, x.f(), m * n);
    cudaMemsetAsync(low.at, 0, (size_t)(4 * n), gpu->stream);
    printf("\n%ld x %ld floats                  ms  wrong values\n", (long)m, (long)n);
    for (int what = 0; what < LARGE_OPS; what++) {
        const gckpti_permute axes = { 2, { 1, 0 } };
        const gckpti_pad ends = { 1, 1, 2, 0, 0 };
        const void *attributes = what == LARGE_PERMUTE ? (const void *)&axes
                                 : what == LARGE_PAD   ? &ends
                                                       : NULL;
        gckpt_call c = new_call(GCKPT_FP32, attributes, what < LARGE_PERMUTE ? 2 : 1);
        unsigned long long bad = 1;
        c.in[0].shape = c.shape = gckpt_shape2(m, n);
        c.in[1].shape = gckpt_shape1(n);
        c.in[0].data = x.f(), c.in[1].data = row.f(), c.out = out.f();
        LAUNCH(whole_kernel, tiny ? 4 : 256, 256, 0, gpu->stream, row.f(), n);
        if (what == LARGE_SUM)
            c.grad_out = x.f(), c.in[1].grad = out.f(), c.in[1].compensation = low.f();
        const gckpt_op *op = what < LARGE_PERMUTE    ? &gckpti_op_add
                             : what == LARGE_PERMUTE ? &gckpti_op_permute
                                                     : &gckpti_op_pad;
        const double s = time_op(op, what == LARGE_SUM ? GCKPT_BACKWARD : GCKPT_FORWARD, c);
        cudaMemsetAsync(wrong.at, 0, 8, gpu->stream);
        LAUNCH(large_kernel, tiny ? 4 : 4096, 256, 0, gpu->stream, what, x.f(), row.f(), out.f(), m,
               n, (unsigned long long *)wrong.at);
        cudaMemcpyAsync(&bad, wrong.at, 8, cudaMemcpyDeviceToHost, gpu->stream);
        must(s >= 0, large_name[what]);
        printf("%-28s %8.2f  %llu\n", large_name[what], 1e3 * s, bad);
        failed += bad != 0;
    }
}

} // namespace

int main(int argc, char **argv)
{
    static const int64_t all_shapes[2][5][3] = {
        { { 768, 2304, 0 },
          { 768, 768, 0 },
          { 768, 3072, 0 },
          { 3072, 768, 0 },
          { 768, 50257, 1 } },
        { { 24, 72, 0 }, { 24, 24, 0 }, { 24, 96, 0 }, { 96, 24, 0 }, { 24, 101, 1 } }
    };
    static const int64_t rows[2][2] = { { 4096, 65536 }, { 48, 72 } };
    tiny = argc > 1 && !strcmp(argv[1], "small");
    const auto &shapes = all_shapes[tiny];
    const char *error;
    const gckpt_backend *backend = gckpt_cuda_backend(0, &error);
    if (!backend) {
        fprintf(stderr, "bench-cuda: %s\n", error);
        return 1;
    }
    gpu = (Device *)backend->context;
    cudaDeviceProp properties;
    cublasHandle_t handle;
    cudaEventCreate(&began);
    cudaEventCreate(&ended);
    must(cudaGetDeviceProperties(&properties, 0) == cudaSuccess, "cudaGetDeviceProperties");
    must(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS, "cublasCreate");
    must(cublasSetStream(handle, gpu->stream) == CUBLAS_STATUS_SUCCESS, "cublasSetStream");
    double peak = fma_peak(properties.multiProcessorCount), copies = copy_peak();
    printf("%s, %d processors: fma %.1f TFLOP/s, a copy %.0f GB/s (both measured)\n",
           properties.name, properties.multiProcessorCount, 1e-12 * peak, 1e-9 * copies);
    if (argc > 1 && !strcmp(argv[argc - 1], "tiles")) {
        printf(
            "fp32 TFLOP/s; *: best_tile's\n     m    k     n    128x128  128x64   96x48   64x64   32x64   32x32\n");
        for (int big = 0; big < 2; big++)
            for (const int64_t *s : shapes)
                test_tiles(rows[tiny][big], s[0], s[1], (int)s[2]);
        return failed != 0;
    }
    if (argc > 1 && !strcmp(argv[argc - 1], "large")) {
        test_large();
        return failed != 0;
    }
    printf(
        "y (m,n) = x (m,k) w, TFLOP/s; %% of the fma peak, of cuBLAS; bits beside plain chains\n"
        "     m    k     n      tile      fp32 cuBLAS peak%% blas%%  bits     bf16 cuBLAS blas%%\n");
    for (int big = 0; big < 2; big++)
        for (const int64_t *s : shapes)
            test_layer(handle, rows[tiny][big], s[0], s[1], (int)s[2], peak);
    test_bandwidth(copies);
    cublasDestroy(handle);
    return failed != 0;
}
