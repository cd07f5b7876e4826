#include "plan/own.h"
#include "num/num.h"
#include "graph/graph.h"

/* ---- leaves: equal parts of a step's rows, as far as they go ---- */
GCKPTI_FN int64_t gckpti_leaf_row(int64_t batch, int leaves, int64_t leaf)
{
    return batch / leaves * leaf + (batch % leaves * leaf + leaves - 1) / leaves;
}

GCKPTI_FN int64_t gckpti_leaf_batch(const gckpt_plan *p, int64_t rows)
{
    return p->mode == GCKPT_INFERENCE ? rows : p->batch;
}

GCKPTI_FN int64_t gckpti_leaf_rows(const gckpt_plan *p, int64_t rows, int64_t leaf)
{
    int64_t batch = gckpti_leaf_batch(p, rows);
    return gckpti_min(gckpti_leaf_row(batch, p->leaves, leaf + 1), rows) -
           gckpti_min(gckpti_leaf_row(batch, p->leaves, leaf), rows);
}

GCKPT_API int64_t gckpt_plan_share(const gckpt_plan *plan, int64_t rows, int rank, int64_t *first)
{
    int64_t begin = 0, end = rows > 0 ? rows : 0;
    if (plan && plan->ranks > 1 && plan->leaves >= plan->ranks && rank >= 0 && rank < plan->ranks) {
        int64_t own = plan->leaves / plan->ranks, batch = gckpti_leaf_batch(plan, end);
        begin = gckpti_min(gckpti_leaf_row(batch, plan->leaves, rank * own), end);
        end = gckpti_min(gckpti_leaf_row(batch, plan->leaves, (rank + 1) * own), end);
    }
    if (first)
        *first = begin;
    return plan ? end - begin : 0;
}

GCKPTI_FN int gckpti_made_for(const gckpt_backend *backend, int plain)
{
    const char *name = backend ? backend->name : NULL;
    if (!backend)
        return plain ? GCKPTI_FOR_PLAIN : GCKPTI_FOR_CPU;
    uint64_t hash = name ? gckpti_fnv(GCKPTI_FNV_START, name, strlen(name)) : 0;
    return 2 + (int)(hash & 0x3fffffff);
}

/* ---- a graph's hash: of all that a plan's bytes and bits depend on, in an order and a size that
 * all machines share ---- */
/* name: of leaves (a parameter's is the store's); others have none that matters. */
GCKPTI_FN uint64_t gckpti_hash_node(uint64_t hash, const gckpti_node *q, const void *attributes,
                                    const char *name)
{
    const int numbers[6] = { q->kind, (int)q->type, q->batchless, q->base, q->inputs, q->shape.n };
    for (int i = 0; i < 6; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)numbers[i]);
    for (int i = 0; i < q->inputs; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)q->in[i]);
    for (int i = 0; i < q->shape.n; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)q->shape.d[i]);
    hash = gckpti_fnv_number(hash, q->aux_bytes);
    hash = gckpti_fnv_number(hash, q->attribute_bytes);
    for (size_t i = 0; i < q->attribute_bytes; i += 4) {
        size_t n = q->attribute_bytes - i;
        uint32_t word = 0;
        memcpy(&word, (const char *)attributes + i, n < 4 ? n : 4);
        hash = gckpti_fnv_number(hash, word);
    }
    for (int i = 0; q->op && i < GCKPT_MAX_INPUTS; i++)
        hash = gckpti_fnv_number(hash, q->op->needs[i]);
    if (q->op) /* private flags, above the public ones, are for the work model */
        hash = gckpti_fnv_number(hash, q->op->flags & (2 * GCKPT_SIDE_EFFECT - 1));
    name = q->op ? q->op->name : name;
    return name ? gckpti_fnv(hash, name, strlen(name) + 1) : hash;
}

GCKPTI_FN uint64_t gckpti_hash_leaves(uint64_t hash, int leaves)
{
    return leaves > 1 ? gckpti_fnv_number(hash, (uint64_t)leaves) : hash;
}

GCKPTI_FN uint64_t gckpti_hash_planned(uint64_t hash, const gckpt_plan *p, size_t i)
{
    gckpti_node node = p->nodes[i], *q = &node;
    const char *name = q->name == GCKPTI_NAMELESS ? NULL : p->names + q->name;
    if (q->kind == GCKPTI_PARAM)
        name = p->names + p->params[q->index].name;
    if (q->index < 0)
        q->op = NULL;
    return gckpti_hash_node(hash, q, q->attribute_bytes ? p->words + q->attributes : NULL,
                            q->kind == GCKPTI_VIEW ? NULL : name);
}
