#include "store/store.h"
#include "num/num.h"

/* ---- the executors of a store ---- */
GCKPTI_FN void gckpti_bind(gckpt_store *s, gckpti_binding *binding, const gckpt_backend *b)
{
    binding->store = s;
    binding->backend = b;
    binding->next = s->bindings;
    s->bindings = binding;
}

GCKPTI_FN void gckpti_unbind(gckpti_binding *binding)
{
    gckpt_store *s = binding->store;
    if (!s)
        return;
    gckpti_binding **link = &s->bindings;
    while (*link && *link != binding)
        link = &(*link)->next;
    if (*link)
        *link = binding->next;
    gckpti_close_mirrors(s, binding->backend);
}

/* ---- values: a parameter has none until a call needs them ---- */

GCKPTI_FN const float *gckpti_floats_at(const gckpt_store *s, const gckpti_param *q, int slot,
                                        int64_t at, float buf[GCKPTI_CHUNK], int64_t *n)
{
    int64_t first;
    const int compressed = slot < 0 && gckpti_is_compressed((int)q->p.storage);
    if (compressed || (slot < 0 && (!gckpti_has_values(q) || q->uninitialised))) {
        *n = gckpti_values_chunk(gckpti_last(&q->p.shape), at, q->p.elements);
        gckpti_host_values(s, q, at, *n, buf);
        if (compressed && !gckpti_has_values(q))
            GCKPTI_IF_COMPRESSED(gckpti_compress_initial(q, *n, buf));
        return buf;
    }
    *n = gckpti_part_of(s, q, slot, &first) + first - at;
    at -= first;
    if (GCKPTI_RUNS_DEVICES)
        gckpti_pull(s, q);
    return gckpti_array(q, slot) + at;
}

GCKPTI_FN gckpt_result gckpti_values_new(gckpt_store *s, gckpti_param *q, const char *who)
{
    size_t bytes = gckpti_array_bytes(s, q, 0);
    if (gckpti_has_values(q))
        return GCKPT_OK;
    const void *block = gckpti_resize(&s->memory, NULL, 0, bytes);
    gckpti_set_stored(q, block);
    if (!block)
        return gckpti_error(s, GCKPT_E_MEMORY, "%s: no memory for the values of \"%s\": %z bytes",
                            who, q->p.name, bytes);
    if (gckpti_is_part(s, q, GCKPTI_VALUES))
        memset(q->p.values, 0, bytes);
    q->uninitialised = 1;
    return GCKPT_OK;
}

GCKPTI_FN void gckpti_values_undo(gckpt_store *s)
{
    for (size_t i = s->count; i-- > 0;) {
        gckpti_param *q = &s->params[i];
        if (q->uninitialised)
            gckpti_values_free(s, q);
        q->uninitialised = 0;
    }
}
