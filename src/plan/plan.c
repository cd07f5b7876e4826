#include "plan/internal.h"
#include "graph/graph.h"
#include "num/num.h"
#include "ops/ops.h"

#define GCKPTI_OPERANDS(kind, handler, operands) operands,
static const unsigned char gckpti_kind_operands[] = { GCKPTI_KINDS(GCKPTI_OPERANDS) };
#undef GCKPTI_OPERANDS

GCKPTI_FN int gckpti_defines(int kind) { return gckpti_kind_operands[kind] & GCKPTI_DEFINES; }

GCKPTI_FN void gckpti_operands_of(const size_t *stored, const gckpti_ins *ins, int inputs,
                                  gckpti_operands *o)
{
    const unsigned has = gckpti_kind_operands[ins->kind];
    stored += ins->operands;
    o->out = has & GCKPTI_TAKES_OUT ? *stored++ : GCKPTI_NO_OFFSET;
    o->saved = has & GCKPTI_TAKES_SAVED ? *stored++ : GCKPTI_NO_OFFSET;
    o->workspace = has & GCKPTI_TAKES_WORKSPACE ? *stored++ : GCKPTI_NO_OFFSET;
    o->gradient = has & GCKPTI_TAKES_GRADIENT ? *stored++ : GCKPTI_NO_OFFSET;
    o->part = has & GCKPTI_TAKES_PART ? *stored++ : GCKPTI_NO_OFFSET;
    for (int i = 0; i < inputs; i++) {
        o->in[i].value = has & GCKPTI_TAKES_VALUES ? *stored++ : GCKPTI_NO_OFFSET;
        o->in[i].gradient = has & GCKPTI_TAKES_GRADIENTS ? *stored++ : GCKPTI_NO_OFFSET;
        o->in[i].total = has & GCKPTI_TAKES_GRADIENTS ? *stored++ : GCKPTI_NO_OFFSET;
    }
    o->addends = stored;
}

GCKPTI_FN int gckpti_ins_node(const gckpt_plan *plan, const gckpti_ins *ins)
{
    return !gckpti_kind_operands[ins->kind] ? -1
           : ins->kind == GCKPT_UPDATE      ? plan->params[ins->id].node
                                            : ins->id;
}

GCKPTI_FN gckpt_shape gckpti_planned_shape(const gckpt_plan *p, const gckpti_plan_node *q)
{
    const gckpti_extent *sizes = p->sizes + q->shape;
    gckpt_shape s;
    s.n = (int)*sizes;
    for (int i = 0; i < GCKPT_MAX_DIMS; i++)
        s.d[i] = i < s.n ? *++sizes : 0;
    return s;
}

GCKPTI_FN int64_t gckpti_planned_elements(const gckpt_plan *p, const gckpti_plan_node *q)
{
    const gckpt_shape shape = gckpti_planned_shape(p, q);
    return gckpti_elements(&shape);
}

GCKPTI_FN size_t gckpti_planned_bytes(const gckpt_plan *p, const gckpti_plan_node *q)
{
    const size_t size = q->type == GCKPT_U8 ? 1 : gckpti_value_size(q->rounding);
    return (size_t)gckpti_planned_elements(p, q) * size;
}

GCKPTI_FN const char *gckpti_planned_name(const gckpt_plan *plan, int id)
{
    const gckpti_plan_node *node = &plan->nodes[id];
    return node->name != GCKPTI_NAMELESS ? plan->names + node->name
           : node->op                    ? node->op->name
                                         : "";
}

/* Returns whether op measures running statistics of one value per channel in each of `rows`. */
GCKPTI_FN int gckpti_measures_one(const gckpt_op *op, const gckpt_shape *shape, int64_t rows)
{
    return op && op->flags & GCKPTI_BUILTIN_OP && gckpti_has_running(op) &&
           gckpti_rows(shape) == rows;
}

GCKPTI_FN int gckpti_mixer_measures_one(const gckpt_plan *p)
{
    if (p->mixer < 0)
        return 0;
    const gckpt_shape shape = gckpti_planned_shape(p, &p->nodes[p->mixer]);
    return gckpti_measures_one(p->nodes[p->mixer].op, &shape, p->rows);
}

/* Extends a hash by a node; name is that of an input, constant or parameter (in the store). */
GCKPTI_FN uint64_t gckpti_hash_fields(uint64_t hash, const gckpti_plan_node *q,
                                      const gckpt_shape *shape, const void *attributes,
                                      const char *name)
{
    const int field[6] = { q->kind, q->type, q->batch_invariant, q->base, q->inputs, shape->n };
    for (int i = 0; i < 6; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)field[i]);
    for (int i = 0; i < q->inputs; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)q->in[i]);
    for (int i = 0; i < shape->n; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)shape->d[i]);
    hash = gckpti_fnv_number(hash, q->saved_bytes);
    hash = gckpti_fnv_number(hash, q->attribute_bytes);
    for (size_t i = 0; i < q->attribute_bytes; i += 4) {
        size_t n = q->attribute_bytes - i;
        uint32_t word = 0;
        memcpy(&word, (const char *)attributes + i, n < 4 ? n : 4);
        hash = gckpti_fnv_number(hash, word);
    }
    for (int i = 0; q->op && i < GCKPT_MAX_INPUTS; i++)
        hash = gckpti_fnv_number(hash, q->op->needs[i]);
    if (q->op) /* private flags (above the public ones) only serve the cost model */
        hash = gckpti_fnv_number(hash, q->op->flags & (2 * GCKPT_SIDE_EFFECT - 1));
    name = q->op ? q->op->name : name;
    return name ? gckpti_fnv(hash, name, strlen(name) + 1) : hash;
}

GCKPTI_FN uint64_t gckpti_hash_plan_node(uint64_t hash, const gckpt_plan *p, size_t i)
{
    gckpti_plan_node node = p->nodes[i], *q = &node;
    const char *name = q->name == GCKPTI_NAMELESS ? NULL : p->names + q->name;
    if (q->kind == GCKPTI_PARAM)
        name = p->names + p->params[q->index].name;
    if (q->index < 0)
        q->op = NULL;
    const gckpt_shape shape = gckpti_planned_shape(p, q);
    return gckpti_hash_fields(hash, q, &shape, q->attribute_bytes ? p->words + q->attributes : NULL,
                              q->kind == GCKPTI_VIEW ? NULL : name);
}

/* Copies n elements to a plan's block after its first *used bytes, and adds their bytes to *used.
 * If `from` is NULL, only reserves the bytes; if block is NULL, only counts them. */
static void *gckpti_copy_array(void *block, size_t *used, const void *from, size_t n, size_t size)
{
    size_t offset = gckpti_round_up(*used, GCKPTI_ALIGN);
    void *to = block ? (unsigned char *)block + offset : NULL;
    *used = offset + n * size;
    return to && from && n > 0 ? memmove(to, from, n * size) : to;
}

GCKPTI_FN size_t gckpti_plan_copy(void *block, const gckpt_plan *from)
{
    gckpt_plan p = *from;
    size_t n = sizeof p;
    p.block = block;
#define GCKPTI_COPY(type, name, count, optional)                                                   \
    p.name = (type *)gckpti_copy_array(block, &n, p.name, p.count, sizeof *p.name);
    GCKPTI_PLAN_ARRAYS(GCKPTI_COPY)
#undef GCKPTI_COPY
    if (block)
        memcpy(block, &p, sizeof p);
    return n;
}

GCKPTI_FN int gckpti_counted_input(const gckpt_op *op)
{
    int i = (op->flags & GCKPTI_BUILTIN_OP ? 4 : GCKPT_MAX_INPUTS) - 1; /* GCKPTI_IS_ROWWISE .. */
    while (i > 0 && !(op->flags & GCKPT_INDEX(i)))
        i--;
    return i;
}

GCKPT_API void gckpt_plan_free(const gckpt_plan *plan)
{
    if (!GCKPTI_RUNS_BUILT || !plan || !plan->block)
        return;
    gckpti_allocator a = plan->memory;
    gckpti_delete(&a, plan->block, gckpti_plan_copy(NULL, plan), 1);
}

GCKPTI_FN uint64_t gckpti_transfer_cost(uint64_t cost_per_mib, int64_t bytes)
{
    uint64_t most = UINT64_MAX / 4, n = (uint64_t)bytes, mib = n >> 20, rest = n & 0xfffff;
    if (n && (cost_per_mib > most >> 20 || (mib && cost_per_mib > most / mib)))
        return most;
    return mib * cost_per_mib + ((rest * cost_per_mib + 0xfffff) >> 20);
}

GCKPT_API size_t gckpt_plan_bytes(const gckpt_plan *plan)
{
#define GCKPTI_KIND_BYTES(kind) plan->kind_bytes[GCKPT_BYTES_##kind] +
#define GCKPTI_KINDS_OUTSIDE(X) X(PARAMETERS) X(STATE) X(CACHES) /* outside the arena */
    return plan ? GCKPTI_KINDS_OUTSIDE(GCKPTI_KIND_BYTES) plan->arena : 0;
}
