/* cuda_golden.c - the golden hash (test_hash.c) on the CUDA backend: for every mode and split, and with updates in
 * the backward. Steps after the first two repeat recorded micro-batches. */
#define main hash_main
#include "test_hash.c"
#undef main

int main(void)
{
    static const gckpt_mode modes[5] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS, GCKPT_SQRT,
                                         GCKPT_OPTIMAL };
    const char *why;
    double loss, first, early;
    uint64_t in_backward = train(GCKPT_STORE_ALL, BATCH, 1, 1, &early);
    CHECK(train(GCKPT_STORE_ALL, BATCH, 1, 0, &first) == GOLDEN);
    backend = gckpt_cuda_backend(0, &why);
    CHECK_MSG(backend != NULL, "%s", why);
    for (int i = 0; i < 5 && backend; i++)
        for (int64_t rows = 1; rows <= BATCH; rows++) {
            uint64_t hash = train(modes[i], rows, 1, 0, &loss);
            CHECK_MSG(hash == GOLDEN && loss == first, "mode %d, %d rows at a time: %016llx, loss %.17g", (int)modes[i],
                      (int)rows, (unsigned long long)hash, loss);
        }
    CHECK(train(GCKPT_SQRT, BATCH, 1, 1, &loss) == in_backward && loss == early);
    return check_report("cuda golden");
}
