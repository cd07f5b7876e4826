#include "run/own.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_PACK
/* ---- packed parameters: unpacked into the arena, or read as they are stored ---- */
GCKPTI_FN void gckpti_run_unpack(const gckpt_exec *e, const gckpti_param *q, const float *here,
                                 float *to, gckpt_call *c)
{
    const gckpt_backend *b = gckpti_on(e);
    gckpt_unpacking u = gckpti_unpacking_of(q);
    u.to = to;
    if (b->own_memory && b->unpack) { /* the mirror of a block */
        u.scales = u.scales ? here : NULL;
        u.packed = (const unsigned char *)(const void *)here + gckpti_scale_bytes(&q->p);
    }
    gckpti_bare_call(e, c);
    if (!GCKPTI_RUNS_BACKENDS)
        gckpti_packed_unpack(c, &u);
    else if (b->unpack)
        b->unpack(c, &u);
    for (int64_t at = 0, n; GCKPTI_RUNS_BACKENDS && !b->unpack && at < u.n; at += n) {
        n = gckpti_min(u.n - at, GCKPTI_JOB);
        gckpti_unpack_piece(q, at, n, (float *)(void *)e->blocks.borrowed);
        b->copy_in(b->context, to + at, e->blocks.borrowed, (size_t)n * sizeof *to);
    }
}

/* Where it is in no arena: the packed parameter that this op reads. */
GCKPTI_FN void gckpti_call_stored(const gckpt_exec *e, const gckpti_node *node, gckpt_call *c,
                                  gckpt_unpacking *stored)
{
    for (int i = 0; i < node->inputs; i++) {
        const gckpti_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
        if (q->kind != GCKPTI_PARAM || c->in[i].data)
            continue;
        *stored = gckpti_unpacking_of(&e->store->params[e->bound.params[q->index].index]);
        c->packed = stored;
    }
}

/* 1: `id` is a packed parameter: it looks at all of it, as ops read it. */
GCKPTI_FN int gckpti_see_stored(const gckpt_exec *e, gckpti_look *s, int id)
{
    const gckpti_node *node = &e->plan->nodes[id];
    float x[64];
    if (!GCKPTI_RUNS_DEBUG || node->kind != GCKPTI_PARAM ||
        !gckpti_is_packed(e->plan->params[node->index].storage))
        return 0;
    const gckpti_param *q = &e->store->params[e->bound.params[node->index].index];
    for (int64_t at = 0, n; at < q->p.elements; at += n) {
        n = gckpti_min(q->p.elements - at, 64);
        gckpti_unpack_piece(q, at, n, x);
        for (int64_t i = 0; i < n; i++)
            gckpti_see(s, (double)x[i], id, 0, at + i);
    }
    return 1;
}
#endif
