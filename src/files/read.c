#include "files/internal.h"
#include "num/num.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
/* ---- reads a file: header, then data in the order of the file ---- */
static uint64_t gckpti_read_le64(const unsigned char bytes[8])
{
    uint64_t number = 0;
    for (int i = 8; i-- > 0;)
        number = number << 8 | bytes[i];
    return number;
}

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

/* Reads the next n elements as floats to x (I8 without scales), converted in place from its end. */
static int gckpti_load_floats(gckpti_loader *load, int type, float *x, int64_t n)
{
    const int size = gckpti_kind_of(type)->bytes;
    unsigned char *end = (unsigned char *)x + 4 * n - gckpti_storage_bytes(type, n);
    const gckpt_dequantisation u = { (gckpt_storage)type, end, NULL, n, n, x };
    if (!gckpti_load_elements(load, end, gckpti_file_count(type, n), size))
        return 0;
    if (type != GCKPT_STORAGE_F32)
        gckpti_dequantise(&u, 0, n, x);
    return 1;
}

/* Reads a tensor to e->dest, converted to the storage of its array: in one piece if possible, else
 * by chunks or rows. In a shard keeps only its elements. Without e->dest compares the values, which
 * the store may not change. */
static int gckpti_load_tensor(gckpti_loader *load, const gckpti_file_entry *e)
{
    gckpti_param to = load->store->params[e->param];
    const int compares = !e->dest, permuted = gckpti_is_permuted(&e->order);
    const gckpt_storage stored = e->slot < 0 ? to.p.storage : GCKPT_STORAGE_F32;
    const int same = e->type == (int)stored, size = gckpti_kind_of(e->type)->bytes;
    const int is_row = !same && gckpti_kind_of((int)stored)->scaled;
    const int64_t all = gckpti_elements(&e->shape), row = gckpti_row_length(&to.p);
    gckpti_shard_range shard = gckpti_shard_of(all, 0, 1);
    if (e->dest && e->slot != GCKPTI_SCALE)
        shard = gckpti_array_shard(load->store, &to, e->slot);
    if (e->dest && e->slot < 0)
        gckpti_set_block(&to, e->dest);
    const void *array = e->slot == GCKPTI_SCALE ? (compares ? to.p.scales : (void *)e->dest)
                        : e->slot >= 0          ? (void *)e->dest
                        : to.p.quantised        ? to.p.quantised
                                                : to.p.values;
    unsigned char *data;
    memcpy(&data, &array, sizeof data);
    float buf[GCKPTI_CHUNK], *x = is_row ? load->row_buf : buf;
    int64_t at = permuted ? 0 : shard.first;
    const int64_t end = permuted ? all : shard.first + shard.count;
    int fits = same || !compares;
    if (!gckpti_load_bytes(load, NULL, (size_t)gckpti_storage_bytes(e->type, at)))
        return 0;
    if (!compares && !permuted && same)
        return gckpti_load_elements(load, data, gckpti_file_count(e->type, end - at), size);
    if (!compares && !permuted && stored == GCKPT_STORAGE_F32)
        return gckpti_load_floats(load, e->type, (float *)(void *)data, end - at);
    for (int64_t n; at < end && fits; at += n) {
        n = gckpti_min(end - at, is_row ? row : (int64_t)GCKPTI_CHUNK);
        const int64_t run = permuted ? 1 : n;
        if (!(same ? gckpti_load_elements(load, x, gckpti_file_count(e->type, n), size)
                   : gckpti_load_floats(load, e->type, x, n)))
            return 0;
        for (int64_t i = 0; i < n; i += run) {
            const int64_t index =
                              permuted ? gckpti_permuted_index(&e->order, &to.p.shape, at + i) : at,
                          k = index - shard.first;
            const size_t bytes = (size_t)gckpti_storage_bytes((int)stored, run);
            const unsigned char *from = (const unsigned char *)x + (size_t)i * bytes;
            if (k < 0 || k >= shard.count)
                continue;
            if (compares)
                fits &= !memcmp(data + gckpti_storage_bytes((int)stored, k), from, bytes);
            else if (same || stored == GCKPT_STORAGE_F32)
                memcpy(data + gckpti_storage_bytes((int)stored, k), from, bytes);
            else
                fits &= gckpti_quantise_row(&to, k, run, x + i);
        }
    }
    if (fits || !compares)
        return fits ||
               gckpti_refuse(load, GCKPT_E_DATA, e, "has values that %s cannot hold: %s",
                             gckpti_storage_name(stored), gckpti_kind_of((int)stored)->beyond);
    return gckpti_refuse(load, GCKPT_E_DATA, e,
                         "is external and not writable, and the file has other values; bind it as "
                         "writable, or leave it out");
}

/* Reads all data, in the order of the file. */
static int gckpti_load_data(gckpti_loader *load)
{
    const size_t start = load->bytes_read, count = load->count;
    uint64_t total = 0;
    load->count = load->total;
    gckpti_load_sort(load, 0);
    for (size_t i = 0; i < load->count; i++) {
        const gckpti_file_entry *e = &load->entries[i];
        load->hash = GCKPTI_FNV_START;
        if ((!e->ignored && !gckpti_load_tensor(load, e)) ||
            !gckpti_load_bytes(load, NULL, start + (size_t)e->offsets[1] - load->bytes_read))
            return 0;
        total += e->slot == GCKPTI_UPDATES ? 0 : gckpti_data_hash(e->name, e->slot, load->hash);
    }
    gckpti_load_sort(load, 1);
    load->count = count;
    return !load->verify_sum || total == load->file_hash ||
           gckpti_refuse(load, GCKPT_E_DATA, NULL,
                         "the tensors are not those that were saved (data_fnv1a): the file is "
                         "damaged; take a copy of it, or, if a program changed them on purpose and "
                         "kept the metadata, remove that key");
}

/* Applies the file's data to the store; cannot fail. */
static void gckpti_load_commit(gckpti_loader *load)
{
    const int values_only = load->desc->values_only;
    for (size_t i = 0; i < load->count; i++) {
        const gckpti_file_entry *e = &load->entries[i];
        gckpti_param *q = &load->store->params[e->param];
        const size_t bytes = gckpti_array_bytes(load->store, q, 1); /* bytes of one state */
        void *to = e->dest;
        gckpti_pull(load->store, q);
        gckpti_mark_changed(load->store, q, GCKPTI_HOST);
        if (e->slot == GCKPTI_SCALE) {
            const int64_t row = q->p.shape.d[q->p.shape.n - 1];
            const gckpti_shard_range shard = gckpti_array_shard(load->store, q, GCKPTI_VALUES);
            for (int64_t k = 0; to && q->p.values && k < shard.count; k++)
                q->p.values[k] *= ((const float *)to)[(shard.first + k) / row];
            continue;
        }
        void *block = e->slot < 0 ? (void *)gckpti_values_block(q)
                      : to        ? gckpti_array(q, e->slot)
                                  : NULL; /* ignored state */
        if (to && to != block)
            memcpy(block, to, gckpti_array_bytes(load->store, q, e->slot + 1));
        if (e->slot >= 0)
            continue;
        q->uninitialised = 0;
        q->assigned = 1;
        if (GCKPTI_USES_AXES)
            q->axes_unknown = e->axes_unknown;
        for (int k = e->states; !values_only && k < gckpti_state_slots(q); k++)
            memset(gckpti_array(q, k), 0, bytes);
        if (!values_only) {
            q->optimiser = (unsigned char)(e->states && load->own_format ? e->optimiser : 0);
            q->updates = q->optimiser ? e->updates : 0;
        }
    }
    gckpti_notes_merge(load->store, load->old_notes);
    if (load->own_format && !values_only) {
        load->store->step = load->step;
        load->store->seed = load->seed;
    }
}

static void gckpti_load_undo(gckpti_loader *load)
{
    gckpt_store *s = load->store;
    for (size_t i = load->count; i-- > 0;)
        if (load->entries[i].slot < 0 && load->entries[i].param < s->count)
            gckpti_state_shrink(s, &s->params[load->entries[i].param], load->entries[i].old_states);
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
    const size_t capacity = gckpti_round_up(bytes, GCKPTI_ALIGN); /* to free all of it */
    char *text = (char *)gckpti_new(&s->memory, capacity, 1);
    load->pos = load->header = text;
    load->end = text ? text + bytes : NULL;
    if (!text)
        gckpti_refuse(load, GCKPT_E_MEMORY, NULL, "no memory for a header of %z bytes", bytes);
    else if (gckpti_load_bytes(load, text, bytes) && gckpti_parse_header(load) &&
             gckpti_load_check(load) && gckpti_load_create(load) && gckpti_load_data(load))
        gckpti_load_commit(load);
    gckpti_delete(&s->memory, load->spare, load->spare_bytes, 1);
    if (load->result != GCKPT_OK)
        gckpti_load_undo(load);
    else if (load->own_format && !load->desc->values_only && load->contract != GCKPT_CONTRACT)
        gckpti_refuse(load, GCKPT_OTHER_CONTRACT, NULL,
                      "done, but the file is of numeric contract %u, this library of %i: training "
                      "goes on to other bits than it would have there",
                      load->contract, GCKPT_CONTRACT);
    gckpti_delete(&s->memory, load->entries, load->capacity, sizeof *load->entries);
    gckpti_delete(&s->memory, text, capacity, 1);
    gckpti_values_undo(s);
    return load->result == GCKPT_OK ? gckpti_ok(s) : load->result;
}

GCKPTI_FN gckpt_result gckpti_load(gckpt_store *store, gckpti_loader *load, size_t size,
                                   const gckpt_file_desc *desc)
{
    unsigned char first[9] = { 0 };
    if (store->object.sticky != GCKPT_OK)
        return store->object.sticky;
    load->store = store;
    load->desc = desc ? desc : &gckpti_file_plain;
    load->axes_unknown = GCKPTI_USES_AXES;
    load->old_params = store->count;
    load->old_notes = store->note_count;
    if (GCKPTI_USES_AXES && (unsigned)load->desc->convolutions > GCKPT_AXES_HWIO)
        return gckpti_error(store, GCKPT_E_ARG, "load: desc.convolutions %i is not a gckpt_axes",
                            (int)load->desc->convolutions);
    if (!GCKPTI_USES_AXES && load->desc->axes)
        return gckpti_error(store, GCKPT_E_ARG, GCKPTI_PERMUTE_NONE);
    if (!gckpti_load_bytes(load, first, size < 8 ? size : 8))
        return load->result;
    const uint64_t length = gckpti_read_le64(first);
    if (size >= 8 && length >= 2 && length <= GCKPTI_HEADER_MAX && length <= size - 8) {
        load->data_bytes = (int64_t)(size - 8 - (size_t)length);
        return gckpti_load_text(load, (size_t)length);
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
    gckpti_loader load;
    if (!store || !read)
        return gckpti_error(store, GCKPT_E_ARG, "load: a store and a callback are needed");
    memset(&load, 0, sizeof load);
    load.read = read;
    load.user = user;
    return gckpti_load(store, &load, size, desc);
}

GCKPT_API gckpt_result gckpt_store_map(gckpt_store *store, const void *file, size_t size,
                                       const gckpt_file_desc *desc)
{
    gckpti_loader load;
    if (!store || !file)
        return gckpti_error(store, GCKPT_E_ARG, "load: map needs a store and a file in memory");
    memset(&load, 0, sizeof load);
    load.file = (const unsigned char *)file;
    return gckpti_load(store, &load, size, desc);
}
#endif
