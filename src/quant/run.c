#include "run/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_QUANT
/* ---- quantised parameters: dequantised into the arena, or read by kernels as they are ---- */
GCKPTI_FN void gckpti_run_decompress(const gckpt_exec *e, const gckpti_param *q,
                                     const float *values, float *to)
{
    gckpt_call c;
    const gckpt_backend *b = gckpti_backend(e);
    gckpti_compressed u = gckpti_compressed_param(q);
    u.to = to;
    if (GCKPTI_OF(b, own_memory) && GCKPTI_OF(b, dequantise))
        u.quantised = values; /* in the backend's mirror */
    gckpti_init_call(e, &c);
    if (GCKPTI_OF(b, dequantise))
        GCKPTI_OF(b, dequantise)(&c, &u);
    for (int64_t at = 0, n; !GCKPTI_OF(b, dequantise) && at < u.n; at += n) {
        n = gckpti_min(u.n - at, GCKPTI_GRAIN_SIZE);
        gckpti_decompress_at(q, at, n, (float *)(void *)e->blocks.host_scratch);
        gckpti_to_backend(e, to + at, e->blocks.host_scratch, (size_t)n * sizeof *to);
    }
}

/* Sets the quantised parameter that an op's kernel reads directly, if there is one. */
GCKPTI_FN void gckpti_set_compressed(const gckpt_exec *e, const gckpti_plan_node *node, int kind,
                                     gckpt_call *c, gckpti_compressed *param)
{
    unsigned reads = kind == GCKPT_FORWARD ? UINT32_MAX : 0;
    for (int i = 0; i < node->inputs; i++)
        reads |= c->in[i].grad ? node->op->needs[i] : 0;
    for (int i = 0; i < node->inputs; i++) {
        const gckpti_plan_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
        if (q->kind != GCKPTI_PARAM || c->in[i].data || !(reads & GCKPT_IN(i)))
            continue;
        *param = gckpti_compressed_param(gckpti_param_of(e, q->index));
        c->compressed = param;
    }
}
#endif
