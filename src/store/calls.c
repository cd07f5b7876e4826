#include "store/store.h"
#include "num/num.h"

/* Returns 1 if the pattern matches the whole name: '*' matches any characters, '?' one. */
static int gckpti_match(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;
    while (*name || *pattern == '*') {
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
    return !*pattern;
}

/* Returns the next parameter after q (if NULL, the first) that matches the pattern. After the last
 * one returns NULL, with the error in *result if no parameter matched. */
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
        q->p.frozen = frozen || q->locked || gckpti_is_compressed((int)q->p.storage);
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
        gckpti_mark_changed(q, GCKPTI_HOST);
        for (int k = 0; k < gckpti_state_slots(q); k++)
            memset(gckpti_array(q, k), 0, gckpti_array_bytes(store, q, 1));
        if (!store->bindings && !store->memory.desc.memory)
            gckpti_state_shrink(store, q, 0);
        q->updates = q->optimiser = 0;
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
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;) {
        gckpti_mark_changed(q, GCKPTI_HOST);
        q->assigned = 1;
    }
    return result;
}

/* Adds a parameter whose values are in the caller's memory. */
static gckpt_result gckpti_add_external(gckpt_store *store, const char *name,
                                        const gckpt_shape *shape, gckpt_storage storage,
                                        const void *values, int writable)
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
    if (gckpti_find_param(store, name) >= 0)
        return gckpti_error(
            store, GCKPT_E_ARG,
            "external parameter \"%s\" exists already; bind it before a graph uses it", name);
    gckpt_init none = { 0, 0, 0 };
    gckpti_param *q = gckpti_param_new(store, name, shape, none);
    if (!q) {
        gckpti_error(store, GCKPT_E_MEMORY, "external parameter \"%s\": no memory for its entry",
                     name);
        gckpti_hint_block(store, "store", &store->memory, 0);
        return GCKPT_E_MEMORY;
    }
    gckpti_set_external(store, q, storage, values, writable);
    return gckpti_ok(store);
}

GCKPT_API gckpt_result gckpt_store_external(gckpt_store *store, const char *name, gckpt_shape shape,
                                            float *values, int writable)
{
    return gckpti_add_external(store, name, &shape, GCKPT_STORAGE_F32, values, writable);
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
    if (result != GCKPT_OK)
        return gckpti_error(store, result,
                            "get: index %i is not one of the store's %z parameters (from 0 on), or "
                            "out is NULL",
                            index, store ? store->count : 0);
    if (!gckpti_is_compressed((int)out->storage)) { /* the caller may write to it now */
        gckpti_pull(store, &store->params[index]);
        gckpti_mark_changed(&store->params[index], GCKPTI_HOST);
        store->params[index].assigned = 1;
    }
    if (gckpti_has_values(&store->params[index]))
        return GCKPT_OK;
    result = gckpti_values_new(store, &store->params[index], "get");
    if (result != GCKPT_OK)
        gckpti_hint_block(store, "store", &store->memory, 0);
    gckpti_init_all_values(store);
    *out = store->params[index].p;
    return result;
}

GCKPT_API int gckpt_store_find(const gckpt_store *store, const char *name)
{
    return store && name ? gckpti_find_param(store, name) : -1;
}

GCKPTI_FN size_t gckpti_state_bytes(const gckpt_store *s)
{
    size_t bytes = 0;
    for (size_t i = 0; i < s->count; i++)
        for (int k = gckpti_state_slots(&s->params[i]); k > 0; k--)
            bytes = gckpti_add_bytes(bytes, gckpti_array_bytes(s, &s->params[i], 1));
    return bytes;
}

GCKPT_API size_t gckpt_store_bytes(const gckpt_store *store)
{
    size_t bytes = store ? gckpti_state_bytes(store) : 0;
    for (size_t i = 0; store && i < store->count; i++)
        if (!store->params[i].external)
            bytes = gckpti_add_bytes(bytes, gckpti_array_bytes(store, &store->params[i], 0));
    return bytes;
}

GCKPT_API uint64_t gckpt_store_step(const gckpt_store *store) { return store ? store->step : 0; }

GCKPT_API uint64_t gckpt_store_hash(const gckpt_store *store)
{
    uint64_t hash = GCKPTI_FNV_START;
    float buf[GCKPTI_CHUNK];
    for (size_t i = 0; store && i < store->count; i++) {
        const gckpti_param *q = &store->params[i];
        if (gckpti_is_part(store, q, GCKPTI_VALUES))
            return 0;
        for (int64_t at = 0, n; at < q->p.elements; at += n) {
            const float *x = gckpti_floats_at(store, q, GCKPTI_VALUES, at, buf, &n);
            hash = gckpti_hash_floats(hash, x, n);
        }
    }
    return hash;
}
