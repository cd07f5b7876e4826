#include "files/files.h"
#include "num/num.h"

#ifndef GCKPT_NO_FILES
/* ---- the data, in the order of the file ---- */
/* Reads the next n bytes of the file to `out`, or skips them if `out` is NULL. */
static int gckpti_load_bytes(gckpti_loader *load, void *out, size_t n)
{
    unsigned char discard[256];
    int done = 1;
    if (load->file && out)
        memcpy(out, load->file + load->bytes_read, n);
    load->bytes_read += n;
    for (size_t chunk; n > 0 && !load->file && done; n -= chunk) {
        void *to = out ? out : discard;
        chunk = out || n < sizeof discard ? n : sizeof discard;
        done = load->read(load->user, to, chunk) == chunk;
        if (load->verify_sum)
            load->hash = gckpti_fnv(load->hash, to, chunk);
    }
    return done || gckpti_refuse(load, GCKPT_E_FILE, NULL, "it could not be read to byte %z",
                                 load->bytes_read);
}

/* Reads the next n elements of `size` bytes, in this machine's byte order. */
static int gckpti_load_elements(gckpti_loader *load, void *out, int64_t n, int size)
{
    if (!gckpti_load_bytes(load, out, (size_t)n * (size_t)size))
        return 0;
    unsigned char *b = (unsigned char *)out;
    for (size_t i = 0; i < (size_t)(n * size) && !gckpti_little_endian(); i++) {
        const size_t other = i ^ (size_t)(size - 1);
        const unsigned char low = b[i];
        if (i < other) {
            b[i] = b[other];
            b[other] = low;
        }
    }
    return 1;
}

/* Reads values to another storage, by parts of rows. Without a destination compares them with
 * values that cannot change. */
static int gckpti_convert_tensor(gckpti_loader *load, const gckpti_file_entry *e)
{
    gckpti_param to = load->store->params[e->param];
    const gckpti_storage_kind *kind = gckpti_kind_of(e->type);
    const gckpti_storage_kind *kept = gckpti_kind_of((int)to.p.storage);
    const int64_t elements = gckpti_elements(&e->shape);
    const int64_t row = kind->block + kept->block > 2 ? gckpti_last(&e->shape) : elements;
    float x[GCKPTI_CHUNK];
    int fits = kind == kept || e->dest;
    if (GCKPTI_HAS_COMPRESSED && e->dest)
        gckpti_set_stored(&to, e->dest);
    for (int64_t at = 0, n; at < elements && fits; at += n) {
        n = gckpti_values_chunk(row, at, elements);
        const int64_t bytes = gckpti_storage_bytes(e->type, n, n);
        unsigned char *part = (unsigned char *)x + 4 * n - bytes; /* to convert it in place */
        if (!gckpti_load_elements(load, part, bytes / kind->bytes, kind->bytes))
            return 0;
        if (!e->dest)
            fits = !memcmp((const unsigned char *)gckpti_stored(&to.p) +
                               gckpti_storage_bytes(e->type, row, at),
                           part, (size_t)bytes);
        if (GCKPTI_HAS_COMPRESSED && e->dest) {
            int64_t first;
            const int64_t count = gckpti_part_of(load->store, &to, e->slot, &first);
            const gckpti_compressed u = { (gckpt_storage)e->type, part, n, n, x };
            const int64_t begin = at > first ? at : first, end = gckpti_min(at + n, first + count);
            gckpti_decompress(&u, 0, n, x);
            fits =
                begin >= end || gckpti_compress_at(&to, begin - first, end - begin, x + begin - at);
        }
    }
    if (fits)
        return 1;
    return e->dest ? gckpti_refuse(load, GCKPT_E_DATA, e, "has values that %s cannot hold: %s",
                                   kept->name, kept->beyond)
                   : gckpti_refuse(load, GCKPT_E_DATA, e,
                                   "is external and not writable, and the file has other values; "
                                   "bind it as writable, or leave it out");
}

/* Reads a tensor, or the part of it that the store has, to its destination. */
static int gckpti_load_tensor(gckpti_loader *load, const gckpti_file_entry *e)
{
    const gckpti_param *q = &load->store->params[e->param];
    const int size = gckpti_kind_of(e->type)->bytes;
    int64_t first, count = gckpti_part_of(load->store, q, e->slot, &first);
    if (e->bytes)
        return gckpti_load_bytes(load, e->dest, (size_t)gckpti_elements(&e->shape));
    if (!(e->dest && (e->slot >= 0 || e->type == (int)q->p.storage)))
        return gckpti_convert_tensor(load, e);
    count = gckpti_storage_bytes(e->type, gckpti_last(&e->shape), count) / size;
    return gckpti_load_bytes(load, NULL, (size_t)(first * size)) &&
           gckpti_load_elements(load, e->dest, count, size);
}

/* Reads all data, in the order of the file. */
static int gckpti_load_data(gckpti_loader *load)
{
    const size_t start = load->bytes_read;
    uint64_t total = 0;
    gckpti_sort_entries(load, NULL);
    for (size_t i = 0; i < load->count; i++) {
        const gckpti_file_entry *e = &load->entries[i];
        load->hash = GCKPTI_FNV_START;
        if ((!e->ignored && !gckpti_load_tensor(load, e)) ||
            !gckpti_load_bytes(load, NULL, start + (size_t)e->offsets[1] - load->bytes_read))
            return 0;
        total += e->slot == GCKPTI_UPDATES ? 0 : gckpti_data_hash(e->name, e->slot, load->hash);
    }
    return !load->verify_sum || total == load->numbers[GCKPTI_KEY_HASH] ||
           gckpti_refuse(load, GCKPT_E_DATA, NULL,
                         "the tensors are not those that were saved (data_fnv1a): the file is "
                         "damaged; take a copy of it, or, if a program changed them on purpose and "
                         "kept the metadata, remove that key");
}

/* ---- the result: everything or nothing ---- */
/* Applies the file's data to the store; cannot fail. State that the file lacks becomes zero. The
 * entries are in the order of their data, which ends with the updates. */
static void gckpti_commit(gckpti_loader *load)
{
    gckpt_store *s = load->store;
    for (gckpti_file_entry *e = load->entries; e < load->entries + load->count; e++) {
        if (e->param == SIZE_MAX)
            continue;
        gckpti_param *q = &s->params[e->param];
        if (e->slot < 0) {
            gckpti_mark_changed(q, GCKPTI_HOST);
            q->uninitialised = 0;
            q->assigned = 1;
        }
        if (e->slot < 0 && !load->desc->values_only) {
            for (int k = e->states; k < gckpti_state_slots(q); k++)
                memset(q->p.state[k], 0, gckpti_array_bytes(s, q, 1));
            q->optimiser = (unsigned char)(e->states ? load->numbers[GCKPTI_KEY_OPTIMISER] : 0);
            q->updates = q->optimiser ? load->numbers[GCKPTI_KEY_STEP] : 0;
        }
        if (e->spare_bytes)
            memcpy(e->slot < 0 ? (void *)gckpti_values_block(q) : q->p.state[e->slot], e->dest,
                   e->spare_bytes);
        if (e->slot == GCKPTI_UPDATES && q->p.state[0]) {
            q->optimiser = (unsigned char)e->optimiser;
            q->updates = e->updates;
        }
    }
    gckpti_notes_merge(s);
    if (load->resumes) {
        s->step = load->numbers[GCKPTI_KEY_STEP];
        s->seed = load->numbers[GCKPTI_KEY_SEED];
    }
}

static void gckpti_load_undo(gckpti_loader *load)
{
    gckpt_store *s = load->store;
    gckpti_sort_entries(load, s);
    for (size_t i = load->count; i-- > 0;) {
        const gckpti_file_entry *e = &load->entries[i];
        if (e->slot < 0 && e->param != SIZE_MAX)
            gckpti_state_shrink(s, &s->params[e->param], e->old_states);
    }
    if (load->desc->partial) /* without it, gckpti_load_text frees the values after the header */
        gckpti_values_undo(s);
    gckpti_store_shrink(s, load->old_params);
    gckpti_notes_shrink(s, load->old_notes);
}

/* Loads a file whose header is the next to be read. On errors the store is unchanged. */
static gckpt_result gckpti_load_text(gckpti_loader *load, size_t bytes)
{
    gckpt_store *s = load->store;
    /* values first: then a store in a block of memory gets the temporary memory back */
    for (size_t i = 0; i < s->count && !load->desc->partial; i++)
        if (gckpti_values_new(s, &s->params[i], "load") != GCKPT_OK) {
            gckpti_values_undo(s);
            return GCKPT_E_MEMORY;
        }
    const size_t capacity = gckpti_round_up(bytes + 1, GCKPTI_ALIGN); /* with a 0 at its end */
    char *text = (char *)gckpti_new(&s->memory, capacity, 1);
    load->pos = load->header = text;
    load->end = text ? text + bytes : NULL;
    if (!text)
        gckpti_refuse(load, GCKPT_E_MEMORY, NULL, "no memory for a header of %z bytes", bytes);
    else if (gckpti_load_bytes(load, text, bytes) && gckpti_parse_header(load) &&
             gckpti_resolve(load) && gckpti_load_data(load))
        gckpti_commit(load);
    gckpti_delete(&s->memory, load->spare, load->spare_bytes, 1);
    if (load->result != GCKPT_OK)
        gckpti_load_undo(load);
    else if (load->resumes && load->numbers[GCKPTI_KEY_CONTRACT] != GCKPT_CONTRACT)
        gckpti_refuse(load, GCKPT_OTHER_CONTRACT, NULL,
                      "done, but the file is of numeric contract %u, this library of %i: training "
                      "goes on to other bits than it would have there",
                      load->numbers[GCKPTI_KEY_CONTRACT], GCKPT_CONTRACT);
    gckpti_delete(&s->memory, load->entries, load->capacity, sizeof *load->entries);
    gckpti_delete(&s->memory, text, capacity, 1);
    gckpti_values_undo(s);
    return load->result == GCKPT_OK ? gckpti_ok(s) : load->result;
}

/* Loads a file of `size` bytes through a callback or, if `file` is not NULL, from memory. */
static gckpt_result gckpti_load(gckpt_store *store, gckpt_read_fn read, void *user,
                                const void *file, size_t size, const gckpt_file_desc *desc)
{
    gckpti_loader load;
    unsigned char first[9] = { 0 };
    if (!store || (!read && !file))
        return gckpti_error(store, GCKPT_E_ARG,
                            "load: a store is needed, and a callback or a file in memory");
    if (store->object.sticky != GCKPT_OK)
        return store->object.sticky;
    memset(&load, 0, sizeof load);
    load.store = store;
    load.desc = desc ? desc : &gckpti_file_plain;
    load.read = read;
    load.user = user;
    load.file = (const unsigned char *)file;
    load.old_params = store->count;
    load.old_notes = store->note_count;
    if (!gckpti_load_bytes(&load, first, size < 8 ? size : 8))
        return load.result;
    uint64_t length = 0;
    for (int i = 8; i-- > 0;)
        length = length << 8 | first[i];
    if (size >= 8 && length >= 2 && length <= GCKPTI_HEADER_MAX && length <= size - 8) {
        load.data_bytes = (int64_t)(size - 8 - (size_t)length);
        return gckpti_load_text(&load, (size_t)length);
    }
    if (!size)
        return gckpti_error(store, GCKPT_E_DATA,
                            "load: the file is empty: a save or a copy of it failed; take another");
    for (int i = 0; i < 8; i++)
        first[i] = first[i] < 0x20 || first[i] > 0x7e ? '?' : first[i];
    return gckpti_error(store, GCKPT_E_DATA,
                        "load: no safetensors file, cut off or damaged: \"%s\" begins its %z "
                        "bytes, for a header of %u (PyTorch: save by safetensors; Git LFS: git lfs "
                        "pull)",
                        (const char *)first, size, length);
}

GCKPT_API gckpt_result gckpt_store_read(gckpt_store *store, gckpt_read_fn read, void *user,
                                        size_t size, const gckpt_file_desc *desc)
{
    return gckpti_load(store, read, user, NULL, size, desc);
}

GCKPT_API gckpt_result gckpt_store_map(gckpt_store *store, const void *file, size_t size,
                                       const gckpt_file_desc *desc)
{
    return gckpti_load(store, NULL, NULL, file, size, desc);
}
#endif
