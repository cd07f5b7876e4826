#include "files/own.h"
#include "num/num.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
/* ---- read: the bytes, in the order of the file ---- */
GCKPTI_FN uint64_t gckpti_little(const unsigned char bytes[8])
{
    uint64_t number = 0;
    for (int i = 8; i-- > 0;)
        number = number << 8 | bytes[i];
    return number;
}

/* The next n bytes of the file, to `out` (NULL: nowhere). */
static int gckpti_load_bytes(gckpti_loader *l, void *out, size_t n)
{
    unsigned char nowhere[256];
    int done = 1;
    if (l->file && out)
        memcpy(out, l->file + l->taken, n);
    l->taken += n;
    for (size_t some; n > 0 && !l->file && done; n -= some) {
        const int whole = out || l->source; /* which passes over by itself */
        some = whole || n < sizeof nowhere ? n : sizeof nowhere;
        done = l->read(l->user, whole ? out : nowhere, some) == some;
        if (l->summed)
            l->sum = gckpti_fnv(l->sum, whole ? out : nowhere, some);
    }
    if (l->result != GCKPT_OK) /* the source has said why */
        return 0;
    return done ||
           gckpti_refuse(l, GCKPT_E_FILE, NULL, "it could not be read to byte %z", l->taken);
}

/* The next n elements of `size` bytes, in the order of bytes that this machine has. */
static int gckpti_load_elements(gckpti_loader *l, void *out, int64_t n, int size)
{
    if (!gckpti_load_bytes(l, out, (size_t)n * (size_t)size))
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

/* The next n elements as floats (those of I8 without their scales), unpacked where they are read:
 * at the end of x. */
static int gckpti_load_floats(gckpti_loader *l, int type, float *x, int64_t n)
{
    const int size = gckpti_storages[type].bytes;
    unsigned char *end = (unsigned char *)x + 4 * n - gckpti_stored_bytes(type, n);
    const gckpt_dequantisation u = { (gckpt_storage)type, end, NULL, n, n, x };
    if (!gckpti_load_elements(l, end, gckpti_units(type, n), size))
        return 0;
    if (type != GCKPT_STORAGE_F32)
        gckpti_unpack(&u, 0, n, x);
    return 1;
}

static int gckpti_load_unfit(gckpti_loader *l, const gckpti_saved *e, gckpt_storage storage)
{
    return gckpti_refuse(l, GCKPT_E_DATA, e, "has values that %s cannot hold: %s",
                         gckpti_storage_name(storage),
                         storage == GCKPT_STORAGE_I8   ? "not finite"
                         : storage == GCKPT_STORAGE_I4 ? "beyond 524032, or not finite"
                                                      : "beyond 65504");
}

/* An element at a time: of what has its axes in another order, to where it belongs, where a share
 * is held of that; of values that are not the store's to change, are they the file's? to: a copy of
 * the parameter. */
static int gckpti_load_apart(gckpti_loader *l, const gckpti_saved *e, gckpti_param *to,
                             float room[GCKPTI_DRAWN])
{
    const gckpt_storage stored = e->slot < 0 ? to->p.storage : GCKPT_STORAGE_F32;
    const size_t size = (size_t)gckpti_storages[stored].bytes;
    const int64_t count = gckpti_units(e->type, gckpti_elements(&e->shape));
    const int alike = e->type == (int)stored;
    const void *values = to->p.quantised ? to->p.quantised : to->p.values;
    const unsigned char *have = (const unsigned char *)(e->slot < 0 ? values : to->p.scales);
    gckpti_share own = gckpti_share_of(count, 0, 1);
    int fits = e->to || alike;
    if (e->to)
        own = gckpti_array_share(l->store, to, e->slot);
    if (e->to && e->slot < 0)
        gckpti_set_block(to, e->to);
    for (int64_t at = 0, n; at < count && fits; at += n) {
        n = gckpti_min(count - at, GCKPTI_DRAWN);
        if (alike ? !gckpti_load_elements(l, room, n, (int)size)
                  : !gckpti_load_floats(l, e->type, room, n))
            return 0;
        for (int64_t i = 0; i < n; i++) {
            const void *from = (const unsigned char *)room + (size_t)i * size;
            const int64_t k =
                (gckpti_is_turned(&e->turn) ? gckpti_turn_place(&e->turn, &to->p.shape, at + i)
                                            : at + i) -
                own.first;
            if (k < 0 || k >= own.count)
                continue;
            if (!e->to)
                fits &= !memcmp(have + (size_t)k * size, from, size);
            else if (alike || stored == GCKPT_STORAGE_F32)
                memcpy(e->to + (size_t)k * size, from, size);
            else
                fits &= gckpti_pack_row(to, k, 1, &room[i]);
        }
    }
    return fits || (e->to ? gckpti_load_unfit(l, e, stored)
                          : gckpti_refuse(l, GCKPT_E_DATA, e,
                                          "is external, not writable, and not what the file has; "
                                          "bind it as writable, or leave it out"));
}

static int gckpti_load_tensor(gckpti_loader *l, const gckpti_saved *e)
{
    const gckpti_param *q = &l->store->params[e->param];
    gckpti_share share = gckpti_share_of(gckpti_elements(&e->shape), 0, 1);
    gckpti_param to = *q;
    float room[GCKPTI_DRAWN];
    if (!e->to || gckpti_is_turned(&e->turn))
        return gckpti_load_apart(l, e, &to, room);
    if (e->slot != GCKPTI_SCALE)
        share = gckpti_array_share(l->store, q, e->slot);
    const int64_t count = share.count;
    if (!gckpti_load_bytes(l, NULL, (size_t)gckpti_stored_bytes(e->type, share.first)))
        return 0;
    if (e->slot >= 0)
        return gckpti_load_elements(l, e->to, count, 4);
    gckpti_set_block(&to, e->to);
    if ((int)to.p.storage == e->type)
        return gckpti_load_elements(l, e->to + gckpti_scale_bytes(&to.p),
                                    gckpti_units(e->type, count), gckpti_storages[e->type].bytes);
    if (to.p.storage == GCKPT_STORAGE_F32)
        return gckpti_load_floats(l, e->type, to.p.values, count);
    const int scaled = to.p.storage == GCKPT_STORAGE_I8;
    float *x = scaled ? l->row : room;
    for (int64_t at = 0, n; at < count; at += n) {
        n = gckpti_min(count - at, scaled ? gckpti_row_length(&to.p) : (int64_t)GCKPTI_DRAWN);
        if (!gckpti_load_floats(l, e->type, x, n))
            return 0;
        if (!gckpti_pack_row(&to, at, n, x))
            return gckpti_load_unfit(l, e, to.p.storage);
    }
    return 1;
}

/* Reads all data, in the order of the file. */
static int gckpti_load_data(gckpti_loader *l)
{
    const size_t start = l->taken, count = l->count;
    uint64_t sum = 0;
    l->count = l->all;
    gckpti_load_sort(l, 0);
    for (size_t i = 0; i < l->count; i++) {
        const gckpti_saved *e = &l->entries[i];
        l->sum = GCKPTI_FNV_START;
        if ((!e->ignored && !gckpti_load_tensor(l, e)) ||
            !gckpti_load_bytes(l, NULL, start + (size_t)e->offsets[1] - l->taken))
            return 0;
        sum += e->slot == GCKPTI_UPDATES ? 0 : gckpti_data_sum(e->name, e->slot, l->sum);
    }
    gckpti_load_sort(l, 1);
    l->count = count;
    return !l->summed || sum == l->data_sum ||
           gckpti_refuse(l, GCKPT_E_DATA, NULL,
                         "the tensors are not those that were saved (data_fnv1a): the file is "
                         "damaged; take a copy of it, or, if a program changed them on purpose and "
                         "kept the metadata, remove that key");
}

/* Nothing can fail any more: the store becomes what the file says. */
static void gckpti_load_commit(gckpti_loader *l)
{
    const int values_only = l->desc->values_only;
    for (size_t i = 0; i < l->count; i++) {
        const gckpti_saved *e = &l->entries[i];
        gckpti_param *q = &l->store->params[e->param];
        const size_t bytes = gckpti_array_bytes(l->store, q, 1); /* of a state */
        void *to = e->to;
        gckpti_pull(l->store, q);
        gckpti_changed(l->store, q, GCKPTI_HOST);
        if (e->slot == GCKPTI_SCALE) {
            const int64_t row = q->p.shape.d[q->p.shape.n - 1];
            const gckpti_share own = gckpti_array_share(l->store, q, GCKPTI_VALUES);
            for (int64_t k = 0; to && q->p.values && k < own.count; k++)
                q->p.values[k] *= ((const float *)to)[(own.first + k) / row];
            continue;
        }
        void *block = e->slot < 0 ? (void *)gckpti_values_block(q)
                      : to        ? gckpti_array(q, e->slot)
                                  : NULL; /* passed over */
        if (to && to != block)
            memcpy(block, to, gckpti_array_bytes(l->store, q, e->slot + 1));
        if (e->slot >= 0)
            continue;
        q->raw = 0;
        q->assigned = 1;
        if (GCKPTI_ASKS_AXES)
            q->unsaid = e->unsaid;
        for (int k = e->states; !values_only && k < gckpti_state_slots(q); k++)
            memset(gckpti_array(q, k), 0, bytes);
        if (!values_only) {
            q->optimiser = (unsigned char)(e->states && l->ours ? e->optimiser : 0);
            q->updates = q->optimiser ? e->updates : 0;
        }
    }
    gckpti_notes_settle(l->store, l->notes);
    if (l->ours && !values_only) {
        l->store->step = l->step;
        l->store->seed = l->seed;
    }
}

static void gckpti_load_undo(gckpti_loader *l)
{
    gckpt_store *s = l->store;
    for (size_t i = l->count; i-- > 0;)
        if (l->entries[i].slot < 0 && l->entries[i].param < s->count)
            gckpti_state_shrink(s, &s->params[l->entries[i].param], l->entries[i].had);
    if (l->desc->partial) /* else they came before the header, and go after it */
        gckpti_values_undo(s);
    gckpti_store_shrink(s, l->had);
    gckpti_notes_shrink(s, l->notes);
}

/* Loads what a header, or an index, of so many bytes says, which comes next. Then the store holds
 * the file's values, or is as it was. */
static gckpt_result gckpti_load_text(gckpti_loader *l, size_t bytes)
{
    const gckpti_source *source = l->source;
    gckpt_store *s = l->store;
    for (size_t i = 0; i < s->count && !l->desc->partial; i++)
        if (gckpti_values_new(s, &s->params[i], "load") != GCKPT_OK) {
            gckpti_values_undo(s); /* they come first, so that a block gets all the rest back */
            return GCKPT_E_MEMORY;
        }
    const size_t room = gckpti_round_up(bytes, GCKPTI_ALIGN); /* so that a block gets it back */
    char *text = (char *)gckpti_new(&s->memory, room, 1);
    l->at = l->header = text;
    l->end = text ? text + bytes : NULL;
    if (!text)
        gckpti_refuse(l, GCKPT_E_MEMORY, NULL, "no memory for a header of %z bytes", bytes);
    else if (gckpti_load_bytes(l, text, bytes) && (!source || source->index(l)) &&
             gckpti_load_header(l) && gckpti_load_check(l) && (!source || source->begin(l)) &&
             gckpti_load_create(l) && gckpti_load_data(l))
        gckpti_load_commit(l);
    gckpti_delete(&s->memory, l->spare, l->spare_bytes, 1);
    if (l->result != GCKPT_OK)
        gckpti_load_undo(l);
    else if (l->ours && !l->desc->values_only && l->contract != GCKPT_CONTRACT)
        gckpti_refuse(l, GCKPT_OTHER_CONTRACT, NULL,
                      "done, but the file is of numeric contract %u, this library of %i: training "
                      "goes on to other bits than it would have there",
                      l->contract, GCKPT_CONTRACT);
    gckpti_delete(&s->memory, l->entries, l->capacity, sizeof *l->entries);
    gckpti_delete(&s->memory, text, room, 1);
    gckpti_values_undo(s);
    return l->result == GCKPT_OK ? gckpti_ok(s) : l->result;
}

GCKPTI_FN gckpt_result gckpti_load(gckpt_store *store, gckpti_loader *l, size_t size,
                                   const gckpt_file_desc *desc)
{
    unsigned char first[9] = { 0 };
    if (store->object.sticky != GCKPT_OK)
        return store->object.sticky;
    l->store = store;
    l->desc = desc ? desc : &gckpti_file_plain;
    l->unsaid = GCKPTI_ASKS_AXES;
    l->had = store->count;
    l->notes = store->note_count;
    if (GCKPTI_ASKS_AXES && (unsigned)l->desc->convolutions > GCKPT_AXES_HWIO)
        return gckpti_error(store, GCKPT_E_ARG, "load: desc.convolutions %i is not a gckpt_axes",
                            (int)l->desc->convolutions);
    if (!GCKPTI_ASKS_AXES && l->desc->axes)
        return gckpti_error(store, GCKPT_E_ARG, GCKPTI_TURN_NONE);
    if (l->source)
        return gckpti_load_text(l, size);
    if (!gckpti_load_bytes(l, first, size < 8 ? size : 8))
        return l->result;
    const uint64_t length = gckpti_little(first);
    if (size >= 8 && length >= 2 && length <= GCKPTI_HEADER_MAX && length <= size - 8) {
        l->data_bytes = (int64_t)(size - 8 - (size_t)length);
        return gckpti_load_text(l, (size_t)length);
    }
    if (!size)
        return gckpti_error(store, GCKPT_E_DATA,
                            "load: the file is empty: a save or a copy of it failed; take another");
    for (int i = 0; i < 8; i++)
        first[i] = first[i] < 0x20 || first[i] > 0x7e ? '?' : first[i];
    return gckpti_error(store, GCKPT_E_DATA,
                        "load: no safetensors file, cut off or damaged: \"%s\" begins its %z "
                        "bytes, for a header of %u (PyTorch: save by safetensors; Git LFS: git lfs "
                        "pull; index of ranks: " GCKPTI_RANKS_LOAD ")",
                        (const char *)first, size, length);
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
