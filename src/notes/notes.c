#include "store/store.h"

#ifndef GCKPT_NO_NOTES
static void gckpti_note_free(gckpt_store *s, gckpti_note note)
{
    const char *value = note.text + strlen(note.text) + 1;
    gckpti_delete(&s->memory, note.text, (size_t)(value + strlen(value) + 1 - note.text), 1);
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
    while (i < s->note_count && strcmp(s->notes[i].text, key))
        i++;
    return i;
}

GCKPTI_FN int gckpti_note_add(gckpt_store *s, const char *key, const char *value)
{
    const size_t n = strlen(key) + 1, m = strlen(value) + 1;
    gckpti_note note = { (char *)gckpti_new(&s->memory, n + m, 1), 0 };
    if (!note.text ||
        !gckpti_grow(&s->memory, &s->notes, &s->note_capacity, s->note_count, sizeof note)) {
        gckpti_delete(&s->memory, note.text, n + m, 1);
        return 0;
    }
    memcpy(note.text, key, n);
    memcpy(note.text + n, value, m);
    s->notes[s->note_count++] = note;
    return 1;
}

static int gckpti_is_note_before(const void *first, const void *second, const void *by_key)
{
    const gckpti_note *a = (const gckpti_note *)first, *b = (const gckpti_note *)second;
    const int order = by_key ? strcmp(a->text, b->text) : 0;
    return order ? order < 0 : a->index < b->index;
}

/* Sorts notes to find equal keys, since a file may have a million notes. */
GCKPTI_FN void gckpti_notes_merge(gckpt_store *s)
{
    gckpti_note *notes = s->notes;
    size_t kept = 0;
    for (size_t i = 0; i < s->note_count; i++)
        notes[i].index = i;
    gckpti_sort(notes, s->note_count, sizeof *notes, gckpti_is_note_before, s);
    for (size_t i = 0; i < s->note_count; notes[kept++] = notes[i++])
        if (kept && !strcmp(notes[kept - 1].text, notes[i].text)) {
            notes[i].index = notes[--kept].index;
            gckpti_note_free(s, notes[kept]);
        }
    gckpti_sort(notes, kept, sizeof *notes, gckpti_is_note_before, NULL);
    s->note_count = kept;
}

GCKPT_API const char *gckpt_store_note(const gckpt_store *store, const char *key)
{
    size_t i = store && key ? gckpti_note_find(store, key) : 0;
    return store && key && i < store->note_count ? store->notes[i].text + strlen(key) + 1 : NULL;
}

GCKPT_API gckpt_result gckpt_store_set_note(gckpt_store *store, const char *key, const char *value)
{
    if (!store || !key)
        return gckpti_error(store, GCKPT_E_ARG, "note: a store and a key are needed");
    if (!*key || !gckpti_is_utf8(key))
        return gckpti_error(store, GCKPT_E_ARG,
                            *key ? "note: the key is not UTF-8" : "note: the key is empty");
    int reserved = gckpti_find_suffix(key, gckpti_suffixes[GCKPTI_UPDATES]) != NULL;
    for (int i = 0; i < GCKPTI_METADATA_KEYS; i++)
        reserved |= gckpti_same_name(key, gckpti_metadata_keys[i]);
    const char *problem = reserved ? "files mean something else by this; choose another"
                          : value && !gckpti_is_utf8(value) ? "the value is not UTF-8"
                                                            : NULL;
    if (problem)
        return gckpti_error(store, GCKPT_E_ARG, "note \"%s\": %s", key, problem);
    const size_t i = gckpti_note_find(store, key);
    if (value && !gckpti_note_add(store, key, value)) {
        gckpti_error(store, GCKPT_E_MEMORY, "note \"%s\": no memory for %z bytes", key,
                     strlen(key) + strlen(value) + 2);
        gckpti_hint_block(store, "store", &store->memory, 0);
        return GCKPT_E_MEMORY;
    }
    if (!value && i < store->note_count) {
        gckpti_note_free(store, store->notes[i]);
        memmove(store->notes + i, store->notes + i + 1,
                (--store->note_count - i) * sizeof *store->notes);
    }
    gckpti_notes_merge(store);
    return gckpti_ok(store);
}
#endif
