#include "store/own.h"
#include "num/num.h"

#ifndef GCKPT_NO_PACK
/* Takes memory for q's values as they will be stored. Values that are not made will fit (the
 * magnitude of a normal value is below 6). */
static gckpt_result gckpti_pack_start(gckpt_store *s, gckpti_param *q)
{
    gckpt_parameter as = q->p;
    as.storage = q->next_storage;
    const char *name = gckpti_storage_name(as.storage);
    if (!q->p.frozen)
        return gckpti_error(s, GCKPT_E_ARG,
                            "pack: \"%s\" is trainable: only frozen parameters can be stored as "
                            "%s (gckpt_store_freeze)",
                            q->p.name, name);
    if (gckpti_is_made(q) && s->shard == GCKPT_SHARD_VALUES && gckpti_is_cut(s, q->p.elements))
        return gckpti_error(
            s, GCKPT_E_ARG,
            "pack: \"%s\" is cut into shares of ranks as F32, and whole when packed: "
            "with GCKPT_SHARD_VALUES pack it before its values are made",
            q->p.name);
    if (!gckpti_is_made(q)) {
        const double most = as.storage == GCKPT_STORED_F16 ? 65504 : 3e38;
        const double peak = 6 * gckpti_size((double)q->init.normal) +
                            gckpti_size((double)q->init.uniform) +
                            gckpti_size((double)q->init.constant);
        if (peak <= most || as.storage <= GCKPT_STORED_BF16)
            return GCKPT_OK;
        return gckpti_error(s, GCKPT_E_DATA,
                            "pack: initial values of \"%s\" may be %g; %s holds up to %g",
                            q->p.name, peak, name, most);
    }
    size_t bytes = gckpti_values_bytes(&as);
    if (!q->external || (size_t)as.elements <= SIZE_MAX / 24 - s->elements)
        q->next_block = (unsigned char *)gckpti_resize(&s->memory, NULL, 0, bytes);
    if (q->next_block)
        return GCKPT_OK;
    return gckpti_error(s, GCKPT_E_MEMORY,
                        "pack: no memory for the %z bytes of \"%s\" as %s, beside what it has "
                        "(what is packed before its values are made needs no more)",
                        bytes, q->p.name, name);
}

/* Its values to that memory, if they are made. */
static gckpt_result gckpti_pack_values(gckpt_store *s, const gckpti_param *q)
{
    gckpti_param to = *q;
    to.p.storage = q->next_storage;
    gckpti_set_block(&to, q->next_block);
    if (!q->next_block || gckpti_values_copy(s, q, &to))
        return GCKPT_OK;
    return gckpti_error(s, GCKPT_E_DATA, "pack: \"%s\" has values %s", q->p.name,
                        to.p.storage == GCKPT_STORED_F16
                            ? "beyond 65504, the greatest of F16; BF16 holds them"
                            : "that are not finite; I8 has no scale for their row");
}

/* Nothing can fail any more: stored otherwise, and without optimiser state. */
static void gckpti_pack_end(gckpt_store *s, gckpti_param *q)
{
    gckpti_unmirror(s, q);
    gckpti_state_shrink(s, q, 0);
    q->optimiser = 0;
    q->updates = 0;
    if (gckpti_is_made(q) && !q->external)
        gckpti_values_free(s, q);
    s->elements += q->external ? (size_t)q->p.elements : 0;
    q->external = q->locked = 0;
    q->p.storage = q->next_storage;
    gckpti_set_block(q, q->next_block);
    q->next_block = NULL;
}

/* What was taken for it is given back. */
static void gckpti_pack_undo(gckpt_store *s, gckpti_param *q)
{
    gckpt_parameter as = q->p;
    as.storage = q->next_storage;
    gckpti_delete(&s->memory, q->next_block, gckpti_values_bytes(&as), 1);
    q->next_block = NULL;
}

GCKPT_API gckpt_result gckpt_store_pack(gckpt_store *store, const char *pattern,
                                        gckpt_storage storage)
{
    gckpt_result result;
    if ((unsigned)storage > GCKPT_STORED_I8)
        return gckpti_error(store, GCKPT_E_ARG, "pack: %i is not a gckpt_storage", (int)storage);
    for (size_t i = 0; store && i < store->count; i++)
        store->params[i].next_storage = store->params[i].p.storage;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;)
        q->next_storage =
            storage == GCKPT_STORED_I8 && q->p.shape.n < 2 ? GCKPT_STORED_F32 : storage;
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < store->count && result == GCKPT_OK; i++)
        if (store->params[i].next_storage != store->params[i].p.storage)
            result = gckpti_pack_start(store, &store->params[i]);
    for (size_t i = 0; i < store->count && result == GCKPT_OK; i++)
        result = gckpti_pack_values(store, &store->params[i]);
    for (size_t i = store->count; i-- > 0;) { /* newest first, as a block wants it */
        gckpti_param *q = &store->params[i];
        if (result != GCKPT_OK)
            gckpti_pack_undo(store, q);
        else if (q->next_storage != q->p.storage)
            gckpti_pack_end(store, q);
    }
    store->packs += result == GCKPT_OK;
    if (result == GCKPT_E_MEMORY)
        gckpti_tell_block(store, "store", &store->memory, 0);
    return result;
}

GCKPT_API gckpt_result gckpt_store_external_packed(gckpt_store *store, const char *name,
                                                   gckpt_shape shape, gckpt_storage storage,
                                                   const void *values, const float *scales)
{
    gckpti_param *q = NULL;
    const char *problem = NULL;
    if (storage <= GCKPT_STORED_F32 || storage > GCKPT_STORED_I8)
        problem = "storage must be BF16, F16 or I8; for floats there is gckpt_store_external";
    else if (storage == GCKPT_STORED_I8 && (!scales || shape.n < 2))
        problem = "I8 needs two axes or more, and a scale for each row";
    else if ((uintptr_t)values % (unsigned)gckpti_storages[storage].bytes ||
             (uintptr_t)scales % sizeof(float))
        problem = "values or scales are not aligned to their size; copy them to memory that is";
    if (problem)
        return gckpti_error(store, GCKPT_E_ARG, "external parameter \"%s\": %s", name ? name : "",
                            problem);
    gckpt_result result = gckpti_external(store, name, &shape, values, 0, &q);
    if (result != GCKPT_OK)
        return result;
    q->p.storage = storage;
    q->p.packed = values;
    q->p.scales = scales;
    return result;
}
#endif
