#include "store/own.h"

GCKPTI_COLD

#ifndef GCKPT_NO_NOTES
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
    if (!*key || !gckpti_is_utf8(key))
        return gckpti_error(store, GCKPT_E_ARG, "note: the key is %s",
                            *key ? "not UTF-8" : "empty");
    const char *problem = gckpti_note_reserved(key)         ? "files mean something else by this; "
                                                              "choose another"
                          : value && !gckpti_is_utf8(value) ? "the value is not UTF-8"
                                                            : NULL;
    if (problem)
        return gckpti_error(store, GCKPT_E_ARG, "note \"%s\": %s", key, problem);
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
#endif

GCKPTI_WARM
