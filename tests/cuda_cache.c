/* cuda_cache.c - test_cache.c's model on the CUDA backend: the logits of calls that go on in caches are,
 * bit for bit, those of one call. From the second call on of one shape, recorded ones are repeated. */
#define main cache_main
#include "test_cache.c"
#undef main

int main(void)
{
    const char *why;
    const gckpt_backend *backend = gckpt_cuda_backend(0, &why);
    fill_words();
    CHECK_MSG(backend != NULL, "%s", why);
    for (int i = 0; i < 2 * STYLES && backend; i++) {
        gckpt_plan_desc d = { .precision = i % 2 ? GCKPT_BF16 : GCKPT_FP32, .backend = backend };
        gckpt_exec_desc x = { .backend = backend };
        same_logits(i / 2, &d, &x, "cuda");
    }
    return check_report("cuda cache");
}
