#include "store/own.h"

/* ---- the arrays of a parameter: values, however they are stored, and state ---- */
GCKPTI_FN const char *gckpti_storage_name(gckpt_storage storage)
{
    return (unsigned)storage <= GCKPT_STORED_I8 ? gckpti_storages[storage].name
                                                : "not a gckpt_storage";
}

GCKPTI_FN int64_t gckpti_row_length(const gckpt_parameter *p)
{
    return p->storage == GCKPT_STORED_I8 ? p->shape.d[p->shape.n - 1] : p->elements;
}

GCKPTI_FN size_t gckpti_scale_bytes(const gckpt_parameter *p)
{
    if (p->storage != GCKPT_STORED_I8)
        return 0;
    return (size_t)(p->elements / gckpti_row_length(p)) * sizeof(float);
}

GCKPTI_FN size_t gckpti_values_bytes(const gckpt_parameter *p)
{
    return (size_t)(p->elements * gckpti_storages[p->storage].bytes) + gckpti_scale_bytes(p);
}

GCKPTI_FN size_t gckpti_array_bytes(const gckpt_store *s, const gckpti_param *q, int i)
{
    return i || gckpti_array_cut(s, q, i - 1) ? (size_t)gckpti_held(s, q, i - 1) * sizeof(float)
                                              : gckpti_values_bytes(&q->p);
}

GCKPTI_FN int gckpti_is_made(const gckpti_param *q) { return q->p.values || q->p.packed; }

GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q)
{
    const void *first = q->p.scales ? (const void *)q->p.scales : q->p.packed;
    void *block = q->p.values;
    if (first)
        memcpy(&block, &first, sizeof block); /* ours, shown to users as const */
    return (unsigned char *)block;
}

GCKPTI_FN void gckpti_set_block(gckpti_param *q, unsigned char *block)
{
    void *at = block;
    int floats = q->p.storage == GCKPT_STORED_F32;
    q->p.values = floats ? (float *)at : NULL;
    q->p.packed = floats || !block ? NULL : block + gckpti_scale_bytes(&q->p);
    q->p.scales = q->p.storage == GCKPT_STORED_I8 ? (float *)at : NULL;
}

GCKPTI_FN int gckpti_state_slots(const gckpti_param *q)
{
    int n = 0;
    while (n < 4 && q->p.state[n])
        n++;
    return n;
}

GCKPTI_FN void gckpti_state_shrink(gckpt_store *s, gckpti_param *q, int slots)
{
    for (int i = gckpti_state_slots(q); i-- > slots; q->p.state[i] = NULL)
        gckpti_delete(&s->memory, q->p.state[i], gckpti_array_bytes(s, q, 1), 1);
}

GCKPTI_FN int gckpti_param_state(gckpt_store *s, gckpti_param *q, int slots)
{
    int had = gckpti_state_slots(q);
    for (int i = had; i < slots; i++) {
        q->p.state[i] = (float *)gckpti_new(&s->memory, gckpti_array_bytes(s, q, 1), 1);
        if (!q->p.state[i]) {
            gckpti_state_shrink(s, q, had);
            return 0;
        }
    }
    return 1;
}
