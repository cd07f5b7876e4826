#include "run/internal.h"
#include "graph/graph.h"

/* Allocates n * size aligned bytes; NULL if base is NULL. `used` stops at PTRDIFF_MAX / 2. */
GCKPTI_FN void *gckpti_bump_alloc(gckpti_bump *bump, size_t n, size_t size)
{
    size_t offset = bump->used, most = (size_t)PTRDIFF_MAX / 2;
    size_t bytes = n < most / size ? n * size : most;
    bump->used = bytes < most - offset ? gckpti_round_up(offset + bytes, GCKPTI_ALIGN) : most;
    return bump->base ? bump->base + offset : NULL;
}

/* Fills `bytes` bytes of backend memory with a repeated word; of the last one, perhaps a part. */
GCKPTI_FN void gckpti_fill(const gckpt_exec *e, void *to, uint32_t word, size_t bytes)
{
    gckpt_call c;
    gckpti_init_call(e, &c);
    if (bytes / 4)
        GCKPTI_OF(gckpti_backend(e), fill)(&c, to, word, (int64_t)(bytes / 4));
    if (bytes % 4)
        gckpti_to_backend(e, (unsigned char *)to + bytes / 4 * 4, &word, bytes % 4);
}

/* If gradients accumulate over micro-batches, sets to +0 the accumulators (and compensations) of
 * batch-invariant nodes to which instructions before `end` add. */
GCKPTI_FN void gckpti_clear_accumulators(gckpt_exec *e, size_t end)
{
    const gckpt_plan *p = e->plan;
    for (size_t x = 0; x < end && p->accumulates; x++) {
        const gckpti_ins *ins = &p->ins[x];
        const gckpti_plan_node *node = &p->nodes[ins->id];
        gckpti_operands o;
        gckpti_operands_of(p->operands, ins, node->inputs, &o);
        for (int i = 0; ins->kind == GCKPT_BACKWARD && i < node->inputs; i++) {
            const gckpti_plan_node *q = &p->nodes[node->in[i]];
            float *sum = gckpti_arena_f32(e, o.in[i].gradient);
            size_t bytes = 4 * (size_t)gckpti_planned_elements(p, q);
            bytes *= gckpti_sum_mode(p, node, i) == GCKPTI_SUM_IN_STEP ? 2u : 1u;
            if (sum && q->batch_invariant)
                gckpti_fill(e, sum, 0, bytes);
        }
    }
}
