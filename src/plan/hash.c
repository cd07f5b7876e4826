#include "plan/own.h"
#include "num/num.h"
#include "graph/graph.h"

/* ---- the hash of a graph: of all that a plan's bytes and bits depend on, in an order and a size
 * that all machines share ---- */
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

/* A node without what lies elsewhere in its plan: name, attributes, index. */
GCKPTI_FN gckpti_node gckpti_node_of(const gckpt_tensor *t)
{
    gckpti_node node;
    memset(&node, 0, sizeof node);
    node.op = t->op;
    node.data = t->data;
    node.attribute_bytes = (gckpti_nth)t->attribute_bytes;
    node.aux_bytes = t->aux_bytes;
    node.shape = t->shape;
    node.base = (gckpti_id)t->base->id;
    node.kind = (gckpti_byte)t->kind;
    node.inputs = (gckpti_byte)t->inputs;
    for (int k = 0; k < t->inputs; k++)
        node.in[k] = (gckpti_id)t->in[k]->id;
    node.type = (gckpti_byte)t->type;
    node.batchless = (gckpti_byte)t->batchless;
    return node;
}

GCKPTI_FN uint64_t gckpti_hash_tensor(uint64_t hash, const gckpt_tensor *t)
{
    const gckpt_store *s = t->graph->store;
    gckpti_node node = gckpti_node_of(t);
    return gckpti_hash_node(hash, &node, t->attributes,
                            t->kind == GCKPTI_PARAM  ? s->params[t->index].p.name
                            : t->kind == GCKPTI_VIEW ? NULL
                                                     : t->name);
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
