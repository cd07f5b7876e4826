/* cuda_golden.c - the golden hashes (test_hash.c) must also come from the CUDA backend, for all modes, splits and
 * updates in the backward. After the first two steps, micro-batches are replayed from captured graphs. */
#define main hash_main
#include "integration/test_hash.c"
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
    for (int i = 0; i < 7 && backend; i++) {
        const int64_t rows = 1 + i % BATCH;
        uint64_t hash = train(modes[i % 5], rows, 1, 0, &loss);
        CHECK_MSG(hash == GOLDEN && loss == first, "mode %d, %d rows at a time: %016llx, loss %.17g", (int)modes[i % 5],
                  (int)rows, (unsigned long long)hash, loss);
    }
    CHECK(train(GCKPT_SQRT, BATCH, 1, 1, &loss) == in_backward && loss == early);
    /* part 1 also offloads values while kernels run, and within captures */
    for (int part = 0; part < 2 && backend; part++) {
        budget = 1250000 + (size_t)part * 100000;
        CHECK(train(GCKPT_OPTIMAL, 2, 1, 0, &loss) == GOLDEN && loss == first);
        CHECK(offloaded > 0);
    }
    budget = 0, precision = GCKPT_BF16;
    for (int i = 0; i < 2 && backend; i++) {
        uint64_t hash = train(modes[i], BATCH - i, 1, 0, &loss);
        CHECK_MSG(hash == GOLDEN_BF16, "bf16, %d rows at a time: %016llx", BATCH - i, (unsigned long long)hash);
    }
    return check_report("cuda golden");
}
