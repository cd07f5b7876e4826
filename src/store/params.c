#include "store/store.h"
#include "num/num.h"

GCKPT_API gckpt_store *gckpt_store_new(const gckpt_store_desc *desc)
{
    gckpti_allocator memory = gckpti_allocator_of(desc ? &desc->memory : NULL);
    gckpt_store *s = (gckpt_store *)gckpti_new(&memory, 1, sizeof *s);
    if (!s)
        return NULL;
    s->object.magic = GCKPTI_MAGIC;
    s->memory = memory;
    s->seed = desc ? desc->seed : 0;
    int broken = gckpti_self_test();
    if (broken) {
        gckpti_error(s, GCKPT_E_BACKEND,
                     "self-test %i failed: this build or processor does not keep the numeric "
                     "contract (flush-to-zero? -ffast-math at link time?)",
                     broken);
        s->object.sticky = s->object.last;
    }
    return s;
}

/* ---- the list of parameters ---- */

/* Returns the head of the hash list for this name. */
static int *gckpti_name_bucket(const gckpt_store *s, const char *name)
{
    uint64_t hash = gckpti_fnv_number(GCKPTI_FNV_START, (uintptr_t)s); /* files cannot know s */
    hash = gckpti_fnv(hash, name, gckpti_strlen(name));
    return &s->params[(size_t)hash % s->capacity].bucket;
}

GCKPTI_FN int gckpti_find_param(const gckpt_store *s, const char *name)
{
    int i = s->count ? *gckpti_name_bucket(s, name) : -1;
    while (i >= 0 && !gckpti_same_name(s->params[i].p.name, name))
        i = s->params[i].hash_next;
    return i;
}

GCKPTI_FN void gckpti_store_shrink(gckpt_store *s, size_t count)
{
    while (s->count > count) {
        gckpti_param *q = &s->params[--s->count];
        char *name;
        *gckpti_name_bucket(s, q->p.name) = q->hash_next;
        gckpti_free_mirror(s, q);
        gckpti_state_shrink(s, q, 0);
        if (!q->external) {
            gckpti_values_free(s, q);
            s->elements -= (size_t)q->p.elements;
        }
        memcpy(&name, &q->p.name, sizeof name); /* owned; const only for users */
        gckpti_name_delete(&s->memory, name);
    }
}

/* Adds the newest parameter to its hash list; if `all`, rebuilds all lists for a new capacity. */
static void gckpti_index_names(gckpt_store *s, int all)
{
    for (size_t i = 0; all && i < s->capacity; i++)
        s->params[i].bucket = -1;
    for (size_t i = all ? 0 : s->count - 1; i < s->count; i++) {
        int *first = gckpti_name_bucket(s, s->params[i].p.name);
        s->params[i].hash_next = *first;
        *first = (int)i;
    }
}

GCKPTI_FN gckpti_param *gckpti_param_new(gckpt_store *s, const char *name, const gckpt_shape *shape,
                                         gckpt_init init)
{
    gckpti_param q;
    size_t n = (size_t)gckpti_elements(shape), old_capacity = s->capacity;
    memset(&q, 0, sizeof q);
    if (s->count >= INT32_MAX || n > SIZE_MAX / 24 - s->elements)
        return NULL;
    char *copy = gckpti_name_new(&s->memory, name);
    if (!copy || !gckpti_grow(&s->memory, &s->params, &s->capacity, s->count, sizeof q)) {
        gckpti_name_delete(&s->memory, copy);
        return NULL;
    }
    q.p.elements = (int64_t)n;
    q.p.name = copy;
    q.init = init;
    q.p.shape = *shape;
    q.p.lr_scale = 1;
    q.p.decay_scale = shape->n >= 2 ? 1.0f : 0.0f;
    q.p.count = gckpti_part_of(s, &q, 0, &q.p.first);
    q.bucket = old_capacity < s->capacity ? -1 : s->params[s->count].bucket;
    s->params[s->count++] = q;
    gckpti_index_names(s, old_capacity < s->capacity);
    s->elements += n;
    return &s->params[s->count - 1];
}

GCKPTI_FN void gckpti_set_external(gckpt_store *s, gckpti_param *q, gckpt_storage storage,
                                   const void *values, int writable)
{
    s->elements -= (size_t)q->p.elements;
    q->p.storage = storage;
    gckpti_set_stored(q, values);
    q->p.frozen = q->locked = !writable;
    q->external = q->assigned = 1;
}

GCKPT_API void gckpt_store_free(gckpt_store *store)
{
    if (!store)
        return;
    gckpti_store_shrink(store, 0);
    for (gckpti_binding *b = store->bindings; b; b = b->next)
        b->store = NULL;
    gckpti_notes_shrink(store, 0);
    gckpti_allocator memory = store->memory;
    gckpti_delete(&memory, store->params, store->capacity, sizeof *store->params);
    gckpti_delete(&memory, store, 1, sizeof *store);
}

GCKPTI_FN void gckpti_init_all_values(gckpt_store *s)
{
    for (size_t i = 0; i < s->count; i++) {
        gckpti_param *q = &s->params[i];
        int64_t first;
        const int64_t count = gckpti_part_of(s, q, GCKPTI_VALUES, &first);
        if (q->uninitialised && !gckpti_is_compressed((int)q->p.storage))
            gckpti_init_values(s, q, first, count, q->p.values);
        if (q->uninitialised && gckpti_is_compressed((int)q->p.storage))
            /* the change of storage checked that they fit */
            GCKPTI_IF_COMPRESSED((void)gckpti_values_copy(s, q, q));
        q->uninitialised = 0;
    }
}
