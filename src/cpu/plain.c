#include "cpu/internal.h"

GCKPTI_FN void gckpti_cpu_copy(void *context, void *to, const void *from, size_t bytes)
{
    (void)context;
    memcpy(to, from, bytes);
}

typedef struct { /* context of the work items of an update pass */
    const gckpt_call *call;
    const gckpt_update_pass *pass;
    void (*add)(float *to, const float *from, int64_t n);
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
    if (p->squares)
        p->squares[b] = squares;
}

GCKPTI_FN void gckpti_cpu_update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    gckpti_update_state s = { call, pass, GCKPTI_KERNEL_OF(call, add, gckpti_add_into),
                              GCKPTI_KERNEL_OF(call, update, gckpti_update_block) };
    gckpt_parallel(call, (pass->elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK,
                   4 * GCKPT_UPDATE_BLOCK, gckpti_cpu_update_item, &s);
}
