#ifndef GCKPT_NO_QUANT
#include "store/internal.h"
#include "num/num.h"

GCKPTI_COLD_BEGIN

/* Allocates q's new block. Checks that initial values fit (those of N(0, 1) are below 6). */
static gckpt_result gckpti_quantise_begin(gckpt_store *s, gckpti_param *q)
{
    gckpt_parameter target = q->p;
    target.storage = (gckpt_storage)q->new_storage;
    const char *name = gckpti_storage_name(target.storage);
    if (!q->p.frozen)
        return gckpti_error(s, GCKPT_E_ARG,
                            "quantise: \"%s\" is trainable: only frozen parameters can be stored "
                            "as %s (gckpt_store_freeze)",
                            q->p.name, name);
    if (gckpti_has_values(q) && s->shard == GCKPT_SHARD_VALUES &&
        gckpti_is_sharded(gckpti_array_shard(s, q, 0)))
        return gckpti_error(
            s, GCKPT_E_ARG,
            "quantise: \"%s\" is sharded as F32, and whole when quantised: with "
            "GCKPT_SHARD_VALUES quantise it before its values are made",
            q->p.name);
    if (!gckpti_has_values(q)) {
        const double limit = target.storage == GCKPT_STORAGE_F16  ? 65504
                             : target.storage == GCKPT_STORAGE_I4 ? (double)GCKPTI_INT4_MAX
                                                                  : 3e38;
        const double peak = 6 * gckpti_fabs((double)q->init.normal) +
                            gckpti_fabs((double)q->init.uniform) +
                            gckpti_fabs((double)q->init.constant);
        if (peak <= limit || target.storage <= GCKPT_STORAGE_BF16)
            return GCKPT_OK;
        return gckpti_error(s, GCKPT_E_DATA,
                            "quantise: initial values of \"%s\" may be %g; %s holds up to %g",
                            q->p.name, peak, name, limit);
    }
    size_t bytes = gckpti_values_bytes(&target);
    if (!q->external || (size_t)target.elements <= SIZE_MAX / 24 - s->elements)
        q->new_block = (unsigned char *)gckpti_resize(&s->memory, NULL, 0, bytes);
    if (q->new_block)
        return GCKPT_OK;
    return gckpti_error(s, GCKPT_E_MEMORY,
                        "quantise: no memory for the %z bytes of \"%s\" as %s next to its present "
                        "values; quantise before it has values, then no second copy is needed",
                        bytes, q->p.name, name);
}

/* Quantises the values, if q has any, into the new block. */
static gckpt_result gckpti_quantise_values(gckpt_store *s, const gckpti_param *q)
{
    gckpti_param to = *q;
    to.p.storage = (gckpt_storage)q->new_storage;
    gckpti_set_block(&to, q->new_block);
    if (!q->new_block || gckpti_values_copy(s, q, &to))
        return GCKPT_OK;
    return gckpti_error(s, GCKPT_E_DATA, "quantise: \"%s\" has values %s", q->p.name,
                        to.p.storage == GCKPT_STORAGE_F16
                            ? "beyond 65504, the greatest of F16; BF16 holds them"
                        : to.p.storage == GCKPT_STORAGE_I4
                            ? "beyond 524032, or not finite; I4 has no scale for their block, "
                              "BF16 holds them"
                            : "that are not finite; I8 has no scale for their row");
}

/* Replaces q's values by the new block and frees its optimiser state. Cannot fail. */
static void gckpti_quantise_commit(gckpt_store *s, gckpti_param *q)
{
    gckpti_free_mirror(s, q);
    gckpti_state_shrink(s, q, 0);
    gckpti_mark_changed(s, q, GCKPTI_HOST);
    q->optimiser = 0;
    q->updates = 0;
    if (gckpti_has_values(q) && !q->external)
        gckpti_values_free(s, q);
    s->elements += q->external ? (size_t)q->p.elements : 0;
    q->external = q->locked = 0;
    q->p.storage = (gckpt_storage)q->new_storage;
    gckpti_set_block(q, q->new_block);
    q->new_block = NULL;
}

/* Frees the new block after an error. */
static void gckpti_quantise_undo(gckpt_store *s, gckpti_param *q)
{
    gckpt_parameter target = q->p;
    target.storage = (gckpt_storage)q->new_storage;
    gckpti_delete(&s->memory, q->new_block, gckpti_values_bytes(&target), 1);
    q->new_block = NULL;
}

GCKPT_API gckpt_result gckpt_store_quantise(gckpt_store *store, const char *pattern,
                                            gckpt_storage storage)
{
    gckpt_result result;
    if ((unsigned)storage > GCKPT_STORAGE_I4)
        return gckpti_error(store, GCKPT_E_ARG, "quantise: %i is no gckpt_storage", (int)storage);
    for (size_t i = 0; store && i < store->count; i++)
        store->params[i].new_storage = (unsigned char)store->params[i].p.storage;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;) {
        const gckpt_storage fallback = q->p.shape.n < 2 ? GCKPT_STORAGE_F32 : GCKPT_STORAGE_I8;
        q->new_storage =
            (unsigned char)(gckpti_can_store(storage, &q->p.shape) ? storage : fallback);
    }
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < store->count && result == GCKPT_OK; i++)
        if (store->params[i].new_storage != store->params[i].p.storage)
            result = gckpti_quantise_begin(store, &store->params[i]);
    for (size_t i = 0; i < store->count && result == GCKPT_OK; i++)
        result = gckpti_quantise_values(store, &store->params[i]);
    for (size_t i = store->count; i-- > 0;) { /* newest first, as a block needs it */
        gckpti_param *q = &store->params[i];
        if (result != GCKPT_OK)
            gckpti_quantise_undo(store, q);
        else if (q->new_storage != q->p.storage)
            gckpti_quantise_commit(store, q);
    }
    store->quantise_count += result == GCKPT_OK;
    if (result == GCKPT_E_MEMORY)
        gckpti_hint_block(store, "store", &store->memory, 0);
    return result;
}

GCKPT_API gckpt_result gckpt_store_external_quantised(gckpt_store *store, const char *name,
                                                      gckpt_shape shape, gckpt_storage storage,
                                                      const void *values, const float *scales)
{
    gckpti_param *q = NULL;
    const char *problem = NULL;
    if (storage <= GCKPT_STORAGE_F32 || storage > GCKPT_STORAGE_I4)
        problem = "storage must be BF16, F16, I8 or I4; for floats there is gckpt_store_external";
    else if (storage == GCKPT_STORAGE_I8 && (!scales || shape.n < 2))
        problem = "I8 needs two axes or more, and a scale for each row";
    else if (storage == GCKPT_STORAGE_I4 &&
             (scales || (gckpti_shape_fits(&shape) && !gckpti_can_store(storage, &shape))))
        problem = "I4 needs two axes or more, the last a multiple of 32, and no scales except "
                  "those of its blocks";
    else if ((uintptr_t)values % (unsigned)gckpti_storages[storage].bytes ||
             (uintptr_t)scales % sizeof(float))
        problem = "values or scales are not aligned to their size; copy them to memory that is";
    if (problem)
        return gckpti_error(store, GCKPT_E_ARG, "external parameter \"%s\": %s", name ? name : "",
                            problem);
    gckpt_result result = gckpti_add_external(store, name, &shape, values, 0, &q);
    if (result != GCKPT_OK)
        return result;
    q->p.storage = storage;
    q->p.quantised = values;
    q->p.scales = scales;
    return result;
}

GCKPTI_COLD_END
#endif
