#include "ops/internal.h"

/* ---- fills and additions, by threads and by vector kernels if the call has any ---- */
typedef struct { /* to += from or, if from is NULL, to = word */
    unsigned char *to;
    const float *from;
    uint32_t word;
    int64_t n;
    void (*add)(float *to, const float *from, int64_t n);
} gckpti_fill_state;

/* Zeroes n floats; if no cache can hold them (`uncached`), without loading their cache lines. */
static void gckpti_cpu_clear(void *to, int64_t n, int uncached)
{
    float *x = (float *)to;
#if GCKPTI_X86
    if (uncached && (uintptr_t)x % 16 == 0) {
        for (; n >= 4; n -= 4, x += 4)
            _mm_stream_ps(x, _mm_setzero_ps());
        _mm_sfence();
    }
#endif
    (void)uncached;
    memset(x, 0, (size_t)n * sizeof *x);
}

static void gckpti_cpu_fill_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_fill_state *f = (const gckpti_fill_state *)context;
    int64_t at = i * GCKPTI_GRAIN_SIZE, n = gckpti_min(f->n - at, GCKPTI_GRAIN_SIZE);
    void *to = f->to + 4 * at;
    (void)worker;
    if (f->from)
        f->add((float *)to, f->from + at, n);
    else if (!f->word)
        gckpti_cpu_clear(to, n, f->n >= GCKPTI_UNCACHED);
    for (int64_t k = 0; f->word && k < n; k++)
        memcpy(f->to + 4 * (at + k), &f->word, 4);
}

GCKPTI_FN void gckpti_cpu_fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    gckpti_fill_state f = { (unsigned char *)to, NULL, word, n, NULL };
    gckpt_parallel(call, GCKPTI_GRAINS(n), gckpti_cpu_fill_item, &f);
}

GCKPTI_FN void gckpti_cpu_add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    void *at = to;
    gckpti_fill_state f = { (unsigned char *)at, from, 0, n, NULL };
    f.add = GCKPTI_KERNEL_OF(call, add, gckpti_add_into);
    gckpt_parallel(call, GCKPTI_GRAINS(n), gckpti_cpu_fill_item, &f);
}
