/* Sets *broken to 0 if the device obeys the numeric specification, else to an index of wrong[]
 * below, and broken[1] to 1 if kernels with wgmma were compiled. Runs the header's self-test and
 * detects compilation without -fmad=false (products and sums are fused) or with -use_fast_math
 * (divisions and roots are not correctly rounded). */
__global__ void self_test_kernel(float base, float squared, int *broken)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    *broken = gckpti_self_test();
    if (!*broken && base * base - squared != 0.0f) /* nonzero as an fma: squared is rounded */
        *broken = 5;
    for (int i = 0; i < 512; i++) {
        float a = base + (float)(i * 37 % 101), b = squared + (float)(i * 61 % 89);
        float y[3] = { a / b, gckpti_sqrt(a * b), 1e-38f / b };
        hash = gckpti_hash_floats(hash, y, 3);
    }
    if (!*broken && hash != UINT64_C(0xcb0e40c9dd6231a9))
        *broken = 6;
    /* 2^-126 - 1.5 * 2^-151 in 24 bits is below 2^-126: terms() must flush it to zero */
    float c[2] = { 0x1p-126f, 0x1p-126f }, y[2] = { -0x1p-76f, 0.0f };
    terms<2, true>(c, base * 0x1.8p-75f, y);
    if (!*broken && (gckpti_bits(c[0]) || c[1] != 0x1p-126f))
        *broken = 7;
    broken[1] = gckpti_has_wgmma();
}

/* Multiplies small integers by wgmma in tiles of this size and this layout. Returns true if the
 * product is exact. Its rows, columns and terms do not fill a tile; some blocks share terms. */
template <int size, int a_along, int b_along> bool wgmma_is_exact(const gckpt_call *call)
{
    enum { M = 72, N = 136, K = 80, BLOCKS = 5 };
    Device *d = device_of(call);
    uint16_t terms[N * K], *x = NULL;
    float got[M * N];
    for (int i = 0; i < N * K; i++)
        terms[i] = gckpti_to_bf16((float)(i * 37 % 11 % 7 - 3));
    check(d, cudaMalloc(&x, sizeof terms + sizeof got), "cudaMalloc");
    if (!x)
        return false;
    float *c = (float *)(void *)(x + N * K);
    check(d, cudaMemcpyAsync(x, terms, sizeof terms, cudaMemcpyHostToDevice, d->stream),
          "self-test");
    const fast::MmaProduct p = fast::mma_of(M, N, K, matrix(x, a_along ? K : M),
                                            matrix(x, b_along ? K : N), NONE, 0, { c, NULL });
    fast::wgmma_product<size, a_along, b_along, fast::STORE>(call, p, BLOCKS);
    copy_out(d, got, c, sizeof got);
    check(d, cudaFree(x), "cudaFree");
    for (int at = 0; at < M * N; at++) {
        const int i = at / N, j = at % N;
        float sum = 0.0f;
        for (int k = 0; k < K; k++)
            sum += gckpti_from_bf16(terms[a_along ? i * K + k : k * M + i]) *
                   gckpti_from_bf16(terms[b_along ? j * K + k : k * N + j]);
        if (got[at] != sum)
            return false;
    }
    return true;
}

/* Lets kernels use wgmma if the device has it, it was compiled, and its results are exact. Else
 * says why not on stderr; an error that CUDA survives is no error of the device. */
void choose_wgmma(Device *d, bool compiled)
{
    gckpt_call call = {};
    call.backend = d;
    if (attribute_of(&call, cudaDevAttrComputeCapabilityMajor) != 9 ||
        attribute_of(&call, cudaDevAttrComputeCapabilityMinor) != 0)
        return;
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    const char *name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
    check(d, cudaGetDriverEntryPointByVersion(name, &encode, 12000, cudaEnableDefault, &found),
          name);
#else
    check(d, cudaGetDriverEntryPoint(name, &encode, cudaEnableDefault, &found), name);
#endif
    d->encode = (decltype(d->encode))encode;
    d->wgmma = compiled && encode && wgmma_is_exact<128, 1, 0>(&call) &&
               wgmma_is_exact<128, 1, 1>(&call) && wgmma_is_exact<128, 0, 0>(&call) &&
               wgmma_is_exact<64, 0, 0>(&call) && !d->problem[0];
    if (d->wgmma)
        return;
    fprintf(stderr, "CUDA device %d: GCKPT_BF16_FAST is slower than possible: %s\n", d->number,
            !compiled       ? "compile gradckpt_cuda.cu by nvcc -arch=sm_90a"
            : d->problem[0] ? d->problem
                            : "wgmma gave wrong results, mma.sync is used");
    d->problem[0] = 0;
    check(d, cudaStreamSynchronize(d->main), "self-test"); /* has any error that lasts */
}

/* Runs self_test_kernel, whose results go to params for a moment. */
void self_test(Device *d)
{
    static const char *const wrong[] = { "",
                                         "subnormals are flushed to zero",
                                         "fma is wrong",
                                         "sums are re-associated",
                                         "exp, log, .. have other bits",
                                         "products and sums are contracted",
                                         "division or root are not rounded correctly",
                                         "products of bf16 plans do not flush to zero" };
    int broken[2], *result = (int *)(void *)d->params;
    launch<self_test_kernel>(d, 1, 1, 0, 1.000244140625f, 1.00048828125f, result);
    copy_out(d, broken, result, sizeof broken);
    check(d, cudaMemsetAsync(d->params, 0, PARAM_BYTES, d->stream), "self-test");
    if (broken[0] && !d->problem[0])
        snprintf(d->problem, TEXT,
                 "CUDA device %d: self-test: %s; compile gradckpt_cuda.cu by nvcc -fmad=false and "
                 "without -use_fast_math",
                 d->number, wrong[broken[0]]);
    if (!d->problem[0])
        choose_wgmma(d, broken[1]);
}
