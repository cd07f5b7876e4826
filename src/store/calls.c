#include "store/own.h"
#include "num/num.h"

/* Whole-name match: '*' any run, '?' one character. */
static int gckpti_match(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++, name++;
        } else if (star) {
            pattern = star + 1;
            name = ++resume;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

/* The parameter after q (NULL: the first) that the pattern matches. NULL: none; then *result says
 * whether there was one at all. */
static gckpti_param *gckpti_next_match(gckpt_store *s, const char *pattern, const gckpti_param *q,
                                       gckpt_result *result)
{
    *result = GCKPT_E_ARG;
    for (size_t i = q ? (size_t)(q - s->params) + 1 : 0; s && pattern && i < s->count; i++)
        if (gckpti_match(pattern, s->params[i].p.name))
            return &s->params[i];
    if (s && q)
        *result = gckpti_ok(s);
    else if (s)
        gckpti_error(s, GCKPT_E_ARG,
                     "no parameter matches \"%s\" (of %z; patterns match whole names, '*' any run "
                     "of characters)",
                     pattern ? pattern : "", s->count);
    return NULL;
}

GCKPT_API gckpt_result gckpt_store_freeze(gckpt_store *store, const char *pattern, int frozen)
{
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;)
        q->p.frozen = frozen || q->locked || q->p.storage != GCKPT_STORED_F32;
    return result;
}

GCKPT_API gckpt_result gckpt_store_group(gckpt_store *store, const char *pattern, float lr_scale,
                                         float decay_scale)
{
    int bad = !(lr_scale >= 0 && lr_scale <= FLT_MAX); /* or NaN */
    if (bad || !(decay_scale >= 0 && decay_scale <= FLT_MAX))
        return gckpti_error(store, GCKPT_E_ARG,
                            "group \"%s\": %s is %g; it must be 0 or more and finite",
                            pattern ? pattern : "", bad ? "lr_scale" : "decay_scale",
                            (double)(bad ? lr_scale : decay_scale));
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;) {
        q->p.lr_scale = lr_scale;
        q->p.decay_scale = decay_scale;
    }
    return result;
}

GCKPT_API gckpt_result gckpt_store_reset(gckpt_store *store, const char *pattern)
{
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;) {
        gckpti_pull(store, q);
        gckpti_changed(store, q, GCKPTI_HOST);
        for (int k = 0; k < gckpti_state_slots(q); k++)
            memset(gckpti_array(q, k), 0, gckpti_array_bytes(store, q, 1));
        q->optimiser = 0;
        q->updates = 0;
    }
    return result;
}

GCKPT_API gckpt_result gckpt_store_pull(gckpt_store *store, const char *pattern)
{
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;)
        gckpti_pull(store, q);
    return result;
}

GCKPT_API gckpt_result gckpt_store_push(gckpt_store *store, const char *pattern)
{
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;)
        gckpti_changed(store, q, GCKPTI_HOST);
    return result;
}

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
    s->packing = &gckpti_packed;
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

/* A parameter whose values are the program's. */
static gckpt_result gckpti_external(gckpt_store *store, const char *name, const gckpt_shape *shape,
                                    const void *values, int writable, gckpti_param **q)
{
    if (!store || !name || !values)
        return gckpti_error(store, GCKPT_E_ARG,
                            "external parameter: store, name and values are needed");
    if (gckpti_name_problem(name))
        return gckpti_error(store, GCKPT_E_ARG, "external parameter: the name %s; choose another",
                            gckpti_name_problem(name));
    if (!gckpti_shape_fits(shape))
        return gckpti_error(store, GCKPT_E_SHAPE, "external parameter \"%s\": %S: %s", name, shape,
                            gckpti_shape_problem(shape));
    if (gckpti_find(store, name) >= 0)
        return gckpti_error(
            store, GCKPT_E_ARG,
            "external parameter \"%s\" exists already; bind it before any graph asks for it", name);
    gckpt_init none = { 0, 0, 0 };
    *q = gckpti_param_new(store, name, shape, 1, none);
    if (!*q) {
        gckpti_error(store, GCKPT_E_MEMORY, "external parameter \"%s\": no memory for its entry",
                     name);
        gckpti_tell_block(store, "store", &store->memory, 0);
        return GCKPT_E_MEMORY;
    }
    (*q)->locked = !writable;
    (*q)->p.frozen = (*q)->locked;
    return gckpti_ok(store);
}

GCKPT_API gckpt_result gckpt_store_external(gckpt_store *store, const char *name, gckpt_shape shape,
                                            float *values, int writable)
{
    gckpti_param *q = NULL;
    gckpt_result result = gckpti_external(store, name, &shape, values, writable, &q);
    if (result == GCKPT_OK)
        q->p.values = values;
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
    store->packing = &gckpti_packed;
    q->p.packed = values;
    q->p.scales = scales;
    return result;
}

GCKPT_API int gckpt_store_count(const gckpt_store *store) { return store ? (int)store->count : 0; }

GCKPT_API gckpt_result gckpt_store_peek(const gckpt_store *store, int index, gckpt_parameter *out)
{
    if (!store || !out || index < 0 || (size_t)index >= store->count)
        return GCKPT_E_ARG;
    *out = store->params[index].p;
    return GCKPT_OK;
}

GCKPT_API gckpt_result gckpt_store_get(gckpt_store *store, int index, gckpt_parameter *out)
{
    gckpt_result result = gckpt_store_peek(store, index, out);
    if (result == GCKPT_OK && out->storage == GCKPT_STORED_F32) { /* it may be written now */
        gckpti_pull(store, &store->params[index]);
        gckpti_changed(store, &store->params[index], GCKPTI_HOST);
    }
    if (result != GCKPT_OK || out->values || out->packed)
        return result;
    result = gckpti_values_new(store, &store->params[index], "get");
    if (result != GCKPT_OK)
        gckpti_tell_block(store, "store", &store->memory, 0);
    gckpti_values_draw(store);
    *out = store->params[index].p;
    return result;
}

GCKPT_API int gckpt_store_find(const gckpt_store *store, const char *name)
{
    return store && name ? gckpti_find(store, name) : -1;
}

GCKPTI_FN size_t gckpti_store_state(const gckpt_store *s)
{
    size_t floats = 0;
    for (size_t i = 0; i < s->count; i++)
        floats +=
            (size_t)gckpti_held(s, &s->params[i], 0) * (size_t)gckpti_state_slots(&s->params[i]);
    return floats * sizeof(float);
}

GCKPT_API size_t gckpt_store_bytes(const gckpt_store *store)
{
    size_t bytes = store ? gckpti_store_state(store) : 0;
    for (size_t i = 0; store && i < store->count; i++)
        if (!store->params[i].external)
            bytes += gckpti_array_bytes(store, &store->params[i], 0);
    return bytes;
}

GCKPT_API uint64_t gckpt_store_step(const gckpt_store *store) { return store ? store->step : 0; }

GCKPT_API uint64_t gckpt_store_hash(const gckpt_store *store)
{
    uint64_t hash = GCKPTI_FNV_START;
    float room[GCKPTI_DRAWN];
    for (size_t i = 0; store && i < store->count; i++) {
        const gckpti_param *q = &store->params[i];
        if (gckpti_array_cut(store, q, GCKPTI_VALUES))
            return 0;
        for (int64_t at = 0, n; at < q->p.elements; at += n) {
            const float *x = gckpti_values_at(store, q, at, room, &n);
            hash = gckpti_hash_floats(hash, x, n);
        }
    }
    return hash;
}
