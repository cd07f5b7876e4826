#include "files/own.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
GCKPTI_FN uint64_t gckpti_little(const unsigned char bytes[8])
{
    uint64_t number = 0;
    for (int i = 8; i-- > 0;)
        number = number << 8 | bytes[i];
    return number;
}

/* What other files begin with. */
static const struct {
    const char *begin, *is;
} gckpti_others[] = {
    { "version ", "a pointer of Git LFS: fetch what it stands for with `git lfs pull`" },
    { "PK\3\4", "a ZIP archive, as torch.save writes: save it by safetensors.torch" },
    { "\x80\2", "a Python pickle: save it by safetensors.torch" },
    { "\x80\3", "a Python pickle: save it by safetensors.torch" },
    { "\x80\4", "a Python pickle: save it by safetensors.torch" },
    { "\x93NUMPY", "a NumPy array" },
    { "\x89HDF", "HDF5" },
    { "GGUF", "GGUF" },
    { "\x1f\x8b", "compressed by gzip: unpack it" },
    { "<", "HTML or XML: the page that was downloaded instead?" },
    { "gckptpln", "a plan: gckpt_plan_read" },
    { "{\"gckpt\"", "the index of a checkpoint by several ranks: " GCKPTI_RANKS_LOAD },
};

/* The error of a file whose first 8 bytes cannot be the length of its header. */
static gckpt_result gckpti_not_safetensors(gckpti_loader *l, const unsigned char *first,
                                           uint64_t length, size_t size)
{
    char next = 0, begin[9] = { 0 };
    int text = 1;
    for (int i = 0; i < 8; i++) {
        begin[i] = (char)first[i];
        text = text && ((first[i] >= 0x20 && first[i] < 0x7f) || (first[i] >= 9 && first[i] <= 13));
    }
    for (size_t i = 0; i < sizeof gckpti_others / sizeof *gckpti_others; i++)
        if (!memcmp(begin, gckpti_others[i].begin, strlen(gckpti_others[i].begin)))
            return gckpti_error(l->store, GCKPT_E_DATA, "load: not a safetensors file but %s",
                                gckpti_others[i].is);
    for (int i = 0; i < 8; i++)
        begin[i] = first[i] < 0x20 ? ' ' : begin[i];
    if (text)
        return gckpti_error(l->store, GCKPT_E_DATA,
                            "load: not a safetensors file but text: it begins with \"%s\"", begin);
    if (size > 8 && gckpti_load_bytes(l, &next, 1) && next == '{' && length >= 2)
        return gckpti_error(l->store, GCKPT_E_DATA,
                            length > GCKPTI_HEADER_MAX
                                ? "load: damaged: a header of %I bytes; %z are allowed"
                                : "load: cut off: a header of %I bytes in a file of %z",
                            (int64_t)(length & INT64_MAX),
                            length > GCKPTI_HEADER_MAX ? (size_t)GCKPTI_HEADER_MAX : size);
    return gckpti_error(l->store, GCKPT_E_DATA,
                        "load: not a safetensors file: by its first 8 bytes it would have a header "
                        "of %I bytes, in a file of %z",
                        (int64_t)(length & INT64_MAX), size);
}

/* Loads what a header, or an index, of so many bytes says, which comes next. */
static gckpt_result gckpti_load_text(gckpt_store *store, gckpti_loader *l, size_t header_bytes)
{
    for (size_t i = 0; i < store->count && !l->desc->partial; i++)
        if (gckpti_values_new(store, &store->params[i], "load") != GCKPT_OK) {
            gckpti_values_undo(store); /* they come first, so that a block gets all the rest back */
            return GCKPT_E_MEMORY;
        }
    size_t room = gckpti_round_up(header_bytes, GCKPTI_ALIGN); /* so that a block gets it back */
    char *text = (char *)gckpti_new(&store->memory, room, 1);
    l->at = l->header = text;
    l->end = l->header ? l->header + header_bytes : NULL;
    if (!l->header)
        gckpti_refuse(l, GCKPT_E_MEMORY, NULL, "no memory for a header of %z bytes", header_bytes);
    else if (!gckpti_load_bytes(l, l->header, header_bytes))
        gckpti_refuse(l, GCKPT_E_FILE, NULL, "the header's %z bytes cannot be read", header_bytes);
    else
        gckpti_load_rest(l);
    gckpti_delete(&store->memory, l->entries, l->capacity, sizeof *l->entries);
    gckpti_delete(&store->memory, text, room, 1);
    gckpti_values_undo(store);
    return l->result == GCKPT_OK ? gckpti_ok(store) : l->result;
}

/* Loads a file of `size` bytes from l->read or l->file. */
GCKPTI_FN gckpt_result gckpti_load(gckpt_store *store, gckpti_loader *l, size_t size,
                                   const gckpt_file_desc *desc)
{
    unsigned char little[8] = { 0 };
    uint64_t length = 0;
    if (store->object.sticky != GCKPT_OK)
        return store->object.sticky;
    l->store = store;
    l->desc = desc ? desc : &gckpti_file_plain;
    if (GCKPTI_ASKS_AXES)
        l->unsaid = l->desc->convolutions == GCKPT_AXES_NOT_SAID;
    l->had = store->count;
    l->notes = store->note_count;
    if (GCKPTI_ASKS_AXES && (unsigned)l->desc->convolutions > GCKPT_AXES_HWIO)
        return gckpti_error(store, GCKPT_E_ARG, "load: desc.convolutions %i is not a gckpt_axes",
                            (int)l->desc->convolutions);
    if (l->source)
        return gckpti_load_text(store, l, size);
    if (size < 8)
        return gckpti_error(store, GCKPT_E_DATA, "load: %z bytes are not a safetensors file", size);
    if (!gckpti_load_bytes(l, little, 8))
        return gckpti_error(store, GCKPT_E_FILE, "load: the first 8 bytes could not be read");
    length = gckpti_little(little);
    if (length < 2 || length > GCKPTI_HEADER_MAX || length > size - 8)
        return gckpti_not_safetensors(l, little, length, size);
    l->data_bytes = (int64_t)(size - 8 - (size_t)length);
    return gckpti_load_text(store, l, (size_t)length);
}

GCKPT_API gckpt_result gckpt_store_read_as(gckpt_store *store, gckpt_read_fn read, void *user,
                                           size_t size, const gckpt_file_desc *desc)
{
    gckpti_loader l;
    if (!store || !read)
        return gckpti_error(store, GCKPT_E_ARG, "load: a store and a callback are needed");
    memset(&l, 0, sizeof l);
    l.read = read;
    l.user = user;
    return gckpti_load(store, &l, size, desc);
}

GCKPT_API gckpt_result gckpt_store_read(gckpt_store *store, gckpt_read_fn read, void *user,
                                        size_t size)
{
    return gckpt_store_read_as(store, read, user, size, NULL);
}

GCKPT_API gckpt_result gckpt_store_map(gckpt_store *store, const void *file, size_t size,
                                       const gckpt_file_desc *desc)
{
    gckpti_loader l;
    if (!store || !file)
        return gckpti_error(store, GCKPT_E_ARG, "load: map needs a store and a file in memory");
    memset(&l, 0, sizeof l);
    l.file = (const unsigned char *)file;
    return gckpti_load(store, &l, size, desc);
}
#endif
