#include "store/own.h"

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
GCKPTI_FN void gckpti_param_share(const gckpt_store *s, gckpt_parameter *p)
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
