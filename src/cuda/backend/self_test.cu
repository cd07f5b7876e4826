/* Sets *broken to 0 if the device obeys the numeric specification, else to an index of wrong[]
 * below. Runs the header's self-test and detects compilation without -fmad=false (products and sums
 * are fused) or with -use_fast_math (divisions and roots are not correctly rounded). */
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
}

/* Runs self_test_kernel, whose result goes to params for a moment. */
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
    int broken = -1, *result = (int *)(void *)d->params;
    launch<self_test_kernel>(d, 1, 1, 0, 1.000244140625f, 1.00048828125f, result);
    check(d, cudaMemcpyAsync(&broken, result, sizeof broken, cudaMemcpyDeviceToHost, d->stream),
          "self-test");
    check(d, cudaMemsetAsync(d->params, 0, sizeof *d->params, d->stream), "self-test");
    wait_all(d, "self-test");
    if (broken && !d->problem[0])
        snprintf(d->problem, TEXT,
                 "CUDA device %d: self-test: %s; compile gradckpt_cuda.cu by nvcc -fmad=false and "
                 "without -use_fast_math",
                 d->number, wrong[broken < 0 || broken > 7 ? 0 : broken]);
}
