#include "run/own.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_QUANT
/* ---- packed parameters: unpacked into the arena, or read as they are stored ---- */
GCKPTI_FN void gckpti_run_unpack(const gckpt_exec *e, const gckpti_param *q, const float *here,
                                 float *to, gckpt_call *c)
{
    const gckpt_backend *b = gckpti_on(e);
    gckpt_dequantisation u = gckpti_unpacking_of(q);
    u.to = to;
    if (b->own_memory && b->dequantise) { /* the mirror of a block */
        u.scales = u.scales ? here : NULL;
        u.quantised = (const unsigned char *)(const void *)here + gckpti_scale_bytes(&q->p);
    }
    gckpti_bare_call(e, c);
    if (!GCKPTI_RUNS_BACKENDS)
        gckpti_packed_unpack(c, &u);
    else if (b->dequantise)
        b->dequantise(c, &u);
    for (int64_t at = 0, n; GCKPTI_RUNS_BACKENDS && !b->dequantise && at < u.n; at += n) {
        n = gckpti_min(u.n - at, GCKPTI_JOB);
        gckpti_unpack_piece(q, at, n, (float *)(void *)e->blocks.borrowed);
        gckpti_to_backend(e, to + at, e->blocks.borrowed, (size_t)n * sizeof *to);
    }
}

/* Where it is in no arena: the packed parameter that this op reads. (What a backward does not read
 * is in no arena, either: so only what the gradients at hand need, of linear's x not x.) */
GCKPTI_FN void gckpti_call_stored(const gckpt_exec *e, const gckpti_node *node, int kind,
                                  gckpt_call *c, gckpt_dequantisation *stored)
{
    unsigned reads = kind == GCKPT_FORWARD ? UINT32_MAX : 0;
    for (int i = 0; i < node->inputs; i++)
        reads |= c->in[i].grad ? node->op->needs[i] : 0;
    for (int i = 0; i < node->inputs; i++) {
        const gckpti_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
        if (q->kind != GCKPTI_PARAM || c->in[i].data || !(reads & GCKPT_IN(i)))
            continue;
        *stored = gckpti_unpacking_of(gckpti_param_of(e, q->index));
        c->quantised = stored;
    }
}
#endif
