#include "store/own.h"

/* ---- notes ---- */
static void gckpti_note_free(gckpt_store *s, char *note)
{
    size_t key = strlen(note) + 1;
    gckpti_delete(&s->memory, note, key + strlen(note + key) + 1, 1);
}

GCKPTI_FN void gckpti_notes_shrink(gckpt_store *s, size_t count)
{
    while (s->note_count > count)
        gckpti_note_free(s, s->notes[--s->note_count]);
    if (!count) {
        gckpti_delete(&s->memory, s->notes, s->note_capacity, sizeof *s->notes);
        s->notes = NULL;
        s->note_capacity = 0;
    }
}

/* The one with this key; s->note_count: there is none. */
static size_t gckpti_note_find(const gckpt_store *s, const char *key)
{
    size_t i = 0;
    while (i < s->note_count && strcmp(s->notes[i], key))
        i++;
    return i;
}

GCKPTI_FN int gckpti_note_add(gckpt_store *s, const char *key, const char *value)
{
    size_t n = strlen(key) + 1, m = strlen(value) + 1;
    char *note = (char *)gckpti_new(&s->memory, n + m, 1);
    if (!note ||
        !gckpti_grow(&s->memory, &s->notes, &s->note_capacity, s->note_count, sizeof *s->notes)) {
        gckpti_delete(&s->memory, note, n + m, 1);
        return 0;
    }
    memcpy(note, key, n);
    memcpy(note + n, value, m);
    s->notes[s->note_count++] = note;
    return 1;
}

GCKPTI_FN void gckpti_notes_settle(gckpt_store *s, size_t first)
{
    size_t count = s->note_count;
    for (size_t i = s->note_count = first; i < count; i++) {
        size_t old = gckpti_note_find(s, s->notes[i]);
        if (old < s->note_count)
            gckpti_note_free(s, s->notes[old]);
        else
            s->note_count++;
        s->notes[old] = s->notes[i];
    }
}

GCKPT_API const char *gckpt_store_note(const gckpt_store *store, const char *key)
{
    size_t i = store && key ? gckpti_note_find(store, key) : 0;
    return store && key && i < store->note_count ? store->notes[i] + strlen(key) + 1 : NULL;
}

GCKPT_API gckpt_result gckpt_store_set_note(gckpt_store *store, const char *key, const char *value)
{
    if (!store || !key)
        return gckpti_error(store, GCKPT_E_ARG, "note: a store and a key are needed");
    if (!gckpti_is_utf8(key))
        return gckpti_error(store, GCKPT_E_ARG, "note: the key is not UTF-8");
    if (gckpti_note_reserved(key) || (value && !gckpti_is_utf8(value)))
        return gckpti_error(store, GCKPT_E_ARG,
                            !*key ? "note: the key is empty%s"
                            : gckpti_note_reserved(key)
                                ? "note \"%s\": files mean something else by this; choose another"
                                : "note \"%s\": the value is not UTF-8",
                            key);
    size_t old = gckpti_note_find(store, key), count = store->note_count;
    if (value && !gckpti_note_add(store, key, value)) {
        gckpti_error(store, GCKPT_E_MEMORY, "note \"%s\": no memory for %z bytes", key,
                     strlen(key) + strlen(value) + 2);
        gckpti_tell_block(store, "store", &store->memory, 0);
        return GCKPT_E_MEMORY;
    }
    if (value) {
        gckpti_notes_settle(store, count);
    } else if (old < count) {
        gckpti_note_free(store, store->notes[old]);
        memmove(store->notes + old, store->notes + old + 1,
                (--store->note_count - old) * sizeof *store->notes);
    }
    return gckpti_ok(store);
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
    gckpti_delete(&memory, store->mirrors, store->mirror_count, sizeof *store->mirrors);
    gckpti_delete(&memory, store->params, store->capacity, sizeof *store->params);
    gckpti_delete(&memory, store, 1, sizeof *store);
}

/* Lets the newest parameter be found, or all, in new lists, when the capacity is a new one. */
static void gckpti_link_names(gckpt_store *s, int all)
{
    for (size_t i = 0; all && i < s->capacity; i++)
        s->params[i].first = -1;
    for (size_t i = all ? 0 : s->count - 1; i < s->count; i++) {
        int *first = gckpti_names_like(s, s->params[i].p.name);
        s->params[i].next = *first;
        *first = (int)i;
    }
}

/* What this rank updates of a parameter. */
static void gckpti_param_share(const gckpt_store *s, gckpt_parameter *p)
{
    p->first = 0;
    p->count = p->elements;
    if (gckpti_is_cut(s, p->elements))
        p->count = gckpti_share(p->elements, s->rank, s->ranks, &p->first);
}

GCKPTI_FN gckpti_param *gckpti_param_new(gckpt_store *s, const char *name, const gckpt_shape *shape,
                                         int external, gckpt_init init)
{
    gckpti_param q;
    size_t n = (size_t)gckpti_elements(shape), had = s->capacity;
    memset(&q, 0, sizeof q);
    if (s->count >= INT32_MAX || (!external && n > SIZE_MAX / 24 - s->elements))
        return NULL;
    char *copy = gckpti_name_new(&s->memory, name);
    if (!copy || !gckpti_grow(&s->memory, &s->params, &s->capacity, s->count, sizeof q)) {
        gckpti_name_delete(&s->memory, copy);
        return NULL;
    }
    q.p.elements = (int64_t)n;
    q.p.name = copy;
    q.external = external != 0;
    q.init = init;
    q.p.shape = *shape;
    q.p.lr_scale = 1;
    q.p.decay_scale = shape->n >= 2 ? 1.0f : 0.0f;
    gckpti_param_share(s, &q.p);
    q.first = had < s->capacity ? -1 : s->params[s->count].first;
    s->params[s->count++] = q;
    gckpti_link_names(s, had < s->capacity);
    s->elements += external ? 0 : n;
    return &s->params[s->count - 1];
}

GCKPT_API gckpt_result gckpt_store_ranks(gckpt_store *store, int rank, int ranks, gckpt_shard shard)
{
    if (ranks < 1 || (ranks & (ranks - 1)) || rank < 0 || rank >= ranks ||
        (unsigned)shard > GCKPT_SHARD_VALUES || (GCKPTI_LEAN && ranks > 1))
        return gckpti_error(
            store, GCKPT_E_ARG,
            "rank %i of %i, shard %i: ranks must be a power of two, rank 0 to ranks - "
            "1, shard a gckpt_shard",
            rank, ranks, (int)shard);
    for (size_t i = 0; store && i < store->count; i++) {
        const gckpti_param *q = &store->params[i];
        if ((gckpti_is_made(q) && !q->external) || gckpti_state_slots(q))
            return gckpti_error(store, GCKPT_E_ARG,
                                "ranks: \"%s\" has values or state already; say which rank this is "
                                "before gckpt_exec_new, gckpt_store_get and loading make them",
                                q->p.name);
    }
    if (!store)
        return GCKPT_E_ARG;
    store->rank = rank;
    store->ranks = ranks;
    store->shard = shard;
    for (size_t i = 0; i < store->count; i++)
        gckpti_param_share(store, &store->params[i].p);
    return gckpti_ok(store);
}
