#ifndef GCKPT_NO_QUANT
#include "store/store.h"
#include "num/num.h"

static int gckpti_can_store(int storage, const gckpt_shape *shape)
{
    const gckpti_storage_kind *kind = gckpti_kind_of(storage);
    const int whole = kind->block_bytes < kind->block && gckpti_last(shape) % kind->block;
    return kind->block == 1 || (shape->n > 1 && !whole);
}

/* Returns q as it will be: with its new storage and block. */
static gckpti_param gckpti_quantised_param(const gckpti_param *q)
{
    gckpti_param to = *q;
    to.p.storage = (gckpt_storage)q->new_storage;
    gckpti_set_stored(&to, q->new_block);
    return to;
}

/* Quantises q's values, if it has any, into a new block. Otherwise checks that initial values fit
 * (those of N(0, 1) are below 6). */
static gckpt_result gckpti_quantise_param(gckpt_store *s, gckpti_param *q)
{
    const gckpti_storage_kind *kind = gckpti_kind_of(q->new_storage);
    gckpti_param to = gckpti_quantised_param(q);
    const size_t bytes = gckpti_values_bytes(&to.p);
    if (!q->p.frozen)
        return gckpti_error(s, GCKPT_E_ARG,
                            "quantise: \"%s\" is trainable: only frozen parameters can be stored "
                            "as %s (gckpt_store_freeze)",
                            q->p.name, kind->name);
    if (gckpti_has_values(q) &&
        gckpti_is_part(s, q, GCKPTI_VALUES) != gckpti_is_part(s, &to, GCKPTI_VALUES))
        return gckpti_error(s, GCKPT_E_ARG,
                            "quantise: \"%s\" is sharded as F32, and whole when quantised: with "
                            "GCKPT_SHARD_VALUES quantise it before its values are made",
                            q->p.name);
    if (!gckpti_has_values(q)) {
        const double peak = 6 * gckpti_fabs((double)q->init.normal) +
                            gckpti_fabs((double)q->init.uniform) +
                            gckpti_fabs((double)q->init.constant);
        if (peak <= kind->limit)
            return GCKPT_OK;
        return gckpti_error(s, GCKPT_E_DATA,
                            "quantise: initial values of \"%s\" may be %g; %s holds up to %g",
                            q->p.name, peak, kind->name, kind->limit);
    }
    if (!q->external || (size_t)q->p.elements <= SIZE_MAX / 24 - s->elements)
        q->new_block = (unsigned char *)gckpti_resize(&s->memory, NULL, 0, bytes);
    if (!q->new_block)
        return gckpti_error(s, GCKPT_E_MEMORY,
                            "quantise: no memory for the %z bytes of \"%s\" as %s next to its "
                            "present values; quantise before it has values, then no second copy "
                            "is needed",
                            bytes, q->p.name, kind->name);
    to = gckpti_quantised_param(q);
    gckpti_pull(s, q);
    if (gckpti_values_copy(s, q, &to))
        return GCKPT_OK;
    return gckpti_error(s, GCKPT_E_DATA,
                        "quantise: \"%s\" has values that %s cannot hold: %s; BF16 holds all",
                        q->p.name, kind->name, kind->beyond);
}

/* Replaces q's values by the new block and frees its optimiser state. Cannot fail. */
static void gckpti_quantise_commit(gckpt_store *s, gckpti_param *q)
{
    gckpti_free_mirror(s, q);
    gckpti_state_shrink(s, q, 0);
    gckpti_mark_changed(q, GCKPTI_HOST);
    if (!q->external)
        gckpti_values_free(s, q);
    s->elements += q->external ? (size_t)q->p.elements : 0;
    *q = gckpti_quantised_param(q);
    q->updates = q->optimiser = q->external = q->locked = 0;
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
            (unsigned char)(gckpti_can_store((int)storage, &q->p.shape) ? storage : fallback);
    }
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < store->count && result == GCKPT_OK; i++)
        if (store->params[i].new_storage != store->params[i].p.storage)
            result = gckpti_quantise_param(store, &store->params[i]);
    for (size_t i = store->count; i-- > 0;) { /* newest first, as a block needs it */
        gckpti_param *q = &store->params[i];
        const gckpti_param to = gckpti_quantised_param(q);
        if (result != GCKPT_OK)
            gckpti_delete(&store->memory, q->new_block, gckpti_values_bytes(&to.p), 1);
        else if (q->new_storage != q->p.storage)
            gckpti_quantise_commit(store, q);
        q->new_block = NULL;
    }
    store->storage_changes += result == GCKPT_OK;
    if (result == GCKPT_E_MEMORY)
        gckpti_hint_block(store, "store", &store->memory, 0);
    return result;
}

GCKPT_API gckpt_result gckpt_store_external_quantised(gckpt_store *store, const char *name,
                                                      gckpt_shape shape, gckpt_storage storage,
                                                      const void *values)
{
    const char *problem = NULL;
    if (storage <= GCKPT_STORAGE_F32 || storage > GCKPT_STORAGE_I4)
        problem = "storage must be BF16, F16, I8 or I4; for floats there is gckpt_store_external";
    else if (gckpti_shape_fits(&shape) && !gckpti_can_store((int)storage, &shape))
        problem =
            "I8 and I4 need two axes or more, and I4 a multiple of 32 as the last: take I8 or BF16";
    else if ((uintptr_t)values % (unsigned)gckpti_kind_of((int)storage)->bytes)
        problem = "values are not aligned to 2 bytes; copy them to memory that is";
    if (problem)
        return gckpti_error(store, GCKPT_E_ARG, "external parameter \"%s\": %s", name ? name : "",
                            problem);
    return gckpti_add_external(store, name, &shape, storage, values, 0);
}
#endif
