#include "cpu/internal.h"

GCKPTI_FN void gckpti_cpu_copy(void *context, void *to, const void *from, size_t bytes)
{
    (void)context;
    memcpy(to, from, bytes);
}

/* ---- work between ops, by vector kernels if the call has any ---- */
typedef void (*gckpti_adder)(float *to, const float *from, int64_t n);

static gckpti_adder gckpti_adder_of(const gckpt_call *call)
{
#if GCKPTI_HAS_FAST
    if (call->kernels)
        return gckpti_kernels_of(call)->add;
#endif
    (void)call;
    return gckpti_add_into;
}

typedef struct { /* to += from or, if from is NULL, to = word */
    unsigned char *to;
    const float *from;
    uint32_t word;
    int64_t n;
    gckpti_adder add;
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
    gckpti_fill_state f = { (unsigned char *)at, from, 0, n, gckpti_adder_of(call) };
    gckpt_parallel(call, GCKPTI_GRAINS(n), gckpti_cpu_fill_item, &f);
}

typedef struct { /* context of the work items of an update pass */
    const gckpt_call *call;
    const gckpt_update_pass *pass;
    gckpti_adder add;
    float (*block)(const gckpt_update_pass *p, const float *addend, int64_t at, int64_t n,
                   int update);
} gckpti_update_state;

static void gckpti_cpu_update_item(void *context, int64_t b, int64_t worker)
{
    const gckpti_update_state *s = (const gckpti_update_state *)context;
    const gckpt_update_pass *p = s->pass;
    const int64_t size = GCKPT_UPDATE_BLOCK, at = b * size, n = gckpti_min(p->elements - at, size);
    const float *last = NULL;
    (void)worker;
    for (int u = 0; u < p->adds; u++) {
        const void *addend = (const char *)p->base + p->more[u];
        if (last)
            s->add(p->gradient + at, last, n);
        last = (const float *)addend + at;
    }
    float squares = s->block(p, last, at, n, p->update);
    if (p->update && p->bf16) {
        const gckpt_conversion copy = { GCKPT_NARROW, p->values + at, NULL, p->bf16 + at, n, 0 };
        gckpti_cpu_convert(s->call, &copy); /* n is one work item: runs here */
    }
    if (p->squares)
        p->squares[b] = squares;
}

GCKPTI_FN void gckpti_cpu_update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    gckpti_update_state s = { call, pass, gckpti_adder_of(call), gckpti_update_block };
#if GCKPTI_HAS_FAST
    if (call->kernels)
        s.block = gckpti_kernels_of(call)->update;
#endif
    gckpt_parallel(call, (pass->elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK,
                   4 * GCKPT_UPDATE_BLOCK, gckpti_cpu_update_item, &s);
}
