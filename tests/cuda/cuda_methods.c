/* cuda_methods.c - runs every fine-tuning method (test_methods.c) on the CUDA backend. After some steps, weights must
 * equal those of the processor in every plan and split, and so must the logits of each generated token. */
#define main methods_main
#include "examples/test_methods.c"
#undef main

int main(void)
{
    const char *why;
    const gckpt_backend *const cuda = gckpt_cuda_backend(0, &why);
    CHECK_MSG(cuda != NULL, "%s", why);
    for (int i = 0; i < ROWS * T; i++) {
        tokens_of[i] = i * 7 % V;
        targets_of[i] = i % 9 == 4 ? -1 : i * 11 % V;
    }
    for (int i = 0; i < CASES && cuda; i++) {
        tuned t, u;
        backend = NULL;
        begin(&t, &methods[i].o);
        train(&t, &t.a.hooks, GCKPT_STORE_ALL, ROWS, 3);
        backend = cuda;
        begin(&u, &methods[i].o);
        train(&u, &u.a.hooks, GCKPT_MEMORY_POOR, 1 + i % 3, 3);
        CHECK_MSG(gckpt_store_hash(t.store) == gckpt_store_hash(u.store), "case %d", i);
        end(&t);
        end(&u);
    }
    if (cuda)
        test_generation(5); /* every fifth case: methods FULL, LORA and PREFIX */
    return check_report("cuda methods");
}
