#include "store/own.h"
#include "num/num.h"

/* Where the list of the names begins that this one is or would be in. */
GCKPTI_FN int *gckpti_names_like(const gckpt_store *s, const char *name)
{
    uint64_t hash = gckpti_fnv(GCKPTI_FNV_START, name, strlen(name));
    return &s->params[(size_t)hash % s->capacity].first;
}

GCKPTI_FN int gckpti_find(const gckpt_store *s, const char *name)
{
    int i = s->count ? *gckpti_names_like(s, name) : -1;
    for (; i >= 0; i = s->params[i].next) { /* strcmp can take more of a device's flash than this */
        const char *a = s->params[i].p.name, *b = name;
        while (*a && *a == *b)
            a++, b++;
        if (*a == *b)
            break;
    }
    return i;
}

/* Gives back the memory of values that the store owns. */
GCKPTI_FN void gckpti_values_free(gckpt_store *s, gckpti_param *q)
{
    gckpti_delete(&s->memory, gckpti_values_block(q), gckpti_array_bytes(s, q, 0), 1);
    gckpti_set_block(q, NULL);
}

GCKPTI_FN void gckpti_store_shrink(gckpt_store *s, size_t count)
{
    while (s->count > count) {
        gckpti_param *q = &s->params[--s->count];
        size_t n = (size_t)q->p.elements;
        char *name;
        *gckpti_names_like(s, q->p.name) = q->next;
        gckpti_unmirror(s, q);
        gckpti_state_shrink(s, q, 0);
        if (!q->external) {
            gckpti_values_free(s, q);
            s->elements -= n;
        }
        memcpy(&name, &q->p.name, sizeof name); /* ours, shown to users as const */
        gckpti_name_delete(&s->memory, name);
    }
}
