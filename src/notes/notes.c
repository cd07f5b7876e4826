#include "store/internal.h"

GCKPTI_COLD_BEGIN

#ifndef GCKPT_NO_NOTES
/* Returns the position that gckpti_notes_merge stored at the begin of a note's allocation. */
static size_t gckpti_note_index(const char *note)
{
    size_t index;
    memcpy(&index, note - sizeof index, sizeof index);
    return index;
}

static void gckpti_note_free(gckpt_store *s, char *note)
{
    size_t key = strlen(note) + 1, prefix = sizeof(size_t);
    gckpti_delete(&s->memory, note - prefix, prefix + key + strlen(note + key) + 1, 1);
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

/* Returns the index of the note with this key, or s->note_count. */
static size_t gckpti_note_find(const gckpt_store *s, const char *key)
{
    size_t i = 0;
    while (i < s->note_count && strcmp(s->notes[i], key))
        i++;
    return i;
}

GCKPTI_FN int gckpti_note_add(gckpt_store *s, const char *key, const char *value)
{
    size_t n = strlen(key) + 1, m = strlen(value) + 1, prefix = sizeof(size_t);
    char *note = (char *)gckpti_new(&s->memory, prefix + n + m, 1);
    if (!note ||
        !gckpti_grow(&s->memory, &s->notes, &s->note_capacity, s->note_count, sizeof *s->notes)) {
        gckpti_delete(&s->memory, note, prefix + n + m, 1);
        return 0;
    }
    note += prefix;
    memcpy(note, key, n);
    memcpy(note + n, value, m);
    s->notes[s->note_count++] = note;
    return 1;
}

static int gckpti_is_note_before(const void *first, const void *second, const void *by_key)
{
    const char *a = *(char *const *)first, *b = *(char *const *)second;
    const int order = by_key ? strcmp(a, b) : 0;
    return order ? order < 0 : gckpti_note_index(a) < gckpti_note_index(b);
}

/* Sorts notes to find equal keys, since a file may have a million notes. */
GCKPTI_FN void gckpti_notes_merge(gckpt_store *s, size_t first)
{
    size_t count = first < s->note_count ? s->note_count : 0, kept = 0;
    for (size_t i = 0; i < count; i++)
        memcpy(s->notes[i] - sizeof i, &i, sizeof i);
    gckpti_sort(s->notes, count, sizeof *s->notes, gckpti_is_note_before, s);
    for (size_t i = 0; i < count; s->notes[kept++] = s->notes[i++])
        if (kept && !strcmp(s->notes[kept - 1], s->notes[i])) {
            memcpy(s->notes[i] - sizeof i, s->notes[kept - 1] - sizeof i, sizeof i);
            gckpti_note_free(s, s->notes[--kept]);
        }
    gckpti_sort(s->notes, kept, sizeof *s->notes, gckpti_is_note_before, NULL);
    s->note_count = count ? kept : s->note_count;
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
        return gckpti_error(store, GCKPT_E_ARG, *key ? "note: the key is not UTF-8"
                                                     : "note: the key is empty");
    const char *problem = gckpti_is_reserved_note(key)      ? "files mean something else by this; "
                                                              "choose another"
                          : value && !gckpti_is_utf8(value) ? "the value is not UTF-8"
                                                            : NULL;
    if (problem)
        return gckpti_error(store, GCKPT_E_ARG, "note \"%s\": %s", key, problem);
    size_t old = gckpti_note_find(store, key), count = store->note_count;
    if (value && !gckpti_note_add(store, key, value)) {
        gckpti_error(store, GCKPT_E_MEMORY, "note \"%s\": no memory for %z bytes", key,
                     strlen(key) + strlen(value) + 2);
        gckpti_hint_block(store, "store", &store->memory, 0);
        return GCKPT_E_MEMORY;
    }
    if (old < count)
        gckpti_note_free(store, store->notes[old]);
    if (old < count && value)
        store->notes[old] = store->notes[--store->note_count];
    else if (old < count)
        memmove(store->notes + old, store->notes + old + 1,
                (--store->note_count - old) * sizeof *store->notes);
    return gckpti_ok(store);
}
#endif

GCKPTI_COLD_END
