#include "files/own.h"
#include "num/num.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
/* ---- what both need ---- */
GCKPTI_DATA const char gckpti_part_format[] = "gradckpt part";

/* What is asked for where no desc is given. */
GCKPTI_DATA const gckpt_file_desc gckpti_file_plain = {
    NULL, NULL, 0, 0, 0, GCKPT_STORAGE_F32, GCKPT_AXES_UNKNOWN, NULL
};

/* The other one of a parameter's two names: in the store and in the file. NULL: it is left out. */
GCKPTI_FN const char *gckpti_renamed(const gckpt_file_desc *d, const char *name)
{
    return d->rename ? d->rename(d->user, name) : name;
}

/* Of a tensor, whose name in the file is `name` and its slot's suffix: FNV-1a of that, then of the
 * FNV-1a of its bytes. A file has the sum of all its tensors': programs that write it anew may
 * order it anew. */
GCKPTI_FN uint64_t gckpti_data_sum(const char *name, int slot, uint64_t data)
{
    const char *suffix = slot < 0 ? "" : gckpti_suffixes[slot];
    const uint64_t sum = gckpti_fnv(GCKPTI_FNV_START, name, strlen(name));
    return gckpti_fnv_number(gckpti_fnv(sum, suffix, strlen(suffix)), data);
}

/* Shape of the scales of rows: all axes but the last. */
GCKPTI_FN gckpt_shape gckpti_scale_shape(const gckpt_shape *values)
{
    gckpt_shape shape = *values;
    shape.n -= shape.n > 0;
    return shape;
}

/* ---- write ---- */
/* A text with what JSON wants escaped. */
GCKPTI_FN void gckpti_sink_name(gckpti_sink *k, const char *name)
{
    for (const char *c = name; *c; c++) {
        unsigned u = (unsigned char)*c;
        char code[] = "\\u00??";
        code[4] = (char)('0' + (u >> 4));
        code[5] = "0123456789abcdef"[u & 15];
        int plain = u >= 0x20 && u != '"' && u != '\\';
        gckpti_sink_put(k, plain ? c : code, plain ? 1 : 6);
    }
}

/* ,"NAME and the suffix of a slot */
static void gckpti_sink_key(gckpti_sink *k, const char *name, int slot)
{
    gckpti_sink_put(k, ",\"", 2);
    gckpti_sink_name(k, name);
    gckpti_print(k, "%s", slot < 0 ? "" : gckpti_suffixes[slot]);
}

/* A tensor to be written: values of a parameter, their scales or a state. */
typedef struct {
    size_t next; /* to be looked at after it; 0: none was yet */
    const gckpti_param *q;
    const char *name; /* of q in the file */
    int slot, size;   /* size: bytes of an element */
    gckpt_storage type;
    gckpt_shape shape;
    gckpti_turn turn;     /* of q */
    int64_t first, count; /* its elements, as the file has them */
    uint64_t *sum;        /* where the FNV-1a of its data goes; NULL: nowhere */
} gckpti_outgoing;

/* Makes w the next one in the order of the header. 0: there is none. Of a part, those that it has
 * something of; what is not the whole tensor has one axis. */
static int gckpti_next_outgoing(const gckpti_saving *v, gckpti_outgoing *w)
{
    static const signed char slots[] = { GCKPTI_VALUES, GCKPTI_SCALE, 0, 1, 2, 3 };
    const gckpt_store *s = v->store;
    const gckpt_file_desc *d = v->desc;
    while (w->next < s->count * sizeof slots) {
        const gckpti_param *q = w->q = &s->params[w->next / sizeof slots];
        w->slot = slots[w->next++ % sizeof slots];
        if (w->slot == GCKPTI_VALUES) {
            w->name = gckpti_renamed(d, q->p.name);
            gckpti_turn_ask(&w->turn, d, q->p.name, &q->p.shape); /* what is wrong was refused */
        }
        const int scale = w->slot == GCKPTI_SCALE, state = w->slot >= 0 && !scale;
        if (!w->name || (scale && q->p.storage != GCKPT_STORAGE_I8) ||
            (state && (d->values_only || !q->p.state[w->slot])))
            continue;
        w->type = q->p.storage == GCKPT_STORAGE_F32 ? d->storage : q->p.storage;
        w->type = w->slot == GCKPTI_VALUES ? w->type : GCKPT_STORAGE_F32;
        w->shape = scale ? gckpti_scale_shape(&q->p.shape) : q->p.shape;
        if (!scale && gckpti_is_turned(&w->turn))
            w->shape = gckpti_turned_shape(&w->turn, q->p.shape, 1);
        w->size = gckpti_storages[w->type].bytes;
        const int64_t all = gckpti_elements(&w->shape);
        const gckpti_share share = gckpti_share_of(all, v->rank, v->ranks);
        w->first = gckpti_units((int)w->type, share.first);
        w->count = gckpti_units((int)w->type, share.count);
        if (share.count < all)
            w->shape = gckpt_shape1(w->count);
        else if (w->type == GCKPT_STORAGE_I4)
            w->shape.d[w->shape.n - 1] = gckpti_units(GCKPT_STORAGE_I4, w->shape.d[w->shape.n - 1]);
        if (w->count)
            return 1;
    }
    return 0;
}

/* What other tools need to put parts together: where each share begins. */
static void gckpti_sink_shares(gckpti_sink *k, const gckpti_saving *v)
{
    gckpti_outgoing w;
    gckpti_print(k, "{\"__metadata__\":{\"format\":\"%s\",\"part\":\"%i of %i\"",
                 gckpti_part_format, v->rank, v->ranks);
    for (w.next = 0; gckpti_next_outgoing(v, &w);) {
        gckpti_sink_key(k, w.name, w.slot);
        gckpti_print(k, "#first\":\"%I\"", w.first);
    }
    gckpti_print(k, "}");
}

/* What the file says of the axes of weights that may be a convolution's, where it is not what the
 * format says: this library's has them as here, any other does not tell. */
static void gckpti_sink_axes(gckpti_sink *k, const gckpti_saving *v)
{
    const gckpt_store *s = v->store;
    int unsaid = 0, weights = 0;
    gckpti_turn turn;
    for (size_t i = 0; i < s->count; i++) {
        const gckpti_param *q = &s->params[i];
        if (!gckpti_renamed(v->desc, q->p.name))
            continue;
        gckpti_turn_ask(&turn, v->desc, q->p.name, &q->p.shape);
        unsaid |= turn.turned;
        if (!q->convolution && q->p.shape.n < 3)
            continue;
        weights |= q->convolution || q->p.shape.n > 3;
        unsaid |= q->unsaid;
    }
    if (v->desc->values_only ? weights && !unsaid : unsaid)
        gckpti_print(k, ",\"%s\":\"%s\"", gckpti_metadata_keys[GCKPTI_AXES],
                     unsaid ? "unsaid" : "HWIO");
}

static void gckpti_sink_metadata(gckpti_sink *k, const gckpti_saving *v)
{
    const gckpt_store *s = v->store;
    const gckpt_file_desc *d = v->desc;
    int optimiser = 0;
    for (size_t i = 0; i < s->count && !optimiser; i++)
        optimiser = s->params[i].optimiser;
    gckpti_print(k, "{\"__metadata__\":{\"format\":\"%s\"", d->values_only ? "pt" : "gradckpt");
    if (!d->values_only)
        gckpti_print(k, ",\"contract\":\"%i\",\"step\":\"%u\",\"seed\":\"%u\",\"optimiser\":\"%i\"",
                     GCKPT_CONTRACT, s->step, s->seed, optimiser);
    if (v->sum)
        gckpti_print(k, ",\"%s\":\"%u\"", gckpti_metadata_keys[GCKPTI_DATA_SUM], *v->sum);
    if (GCKPTI_ASKS_AXES)
        gckpti_sink_axes(k, v);
    for (size_t i = 0; i < s->count && !d->values_only; i++) {
        const gckpti_param *q = &s->params[i];
        int same = q->optimiser == optimiser && (q->updates == s->step || !optimiser);
        const char *name = !q->p.state[0] || same ? NULL : gckpti_renamed(d, q->p.name);
        if (!name)
            continue;
        gckpti_sink_key(k, name, GCKPTI_UPDATES);
        gckpti_print(k, "\":\"%i:%u\"", q->optimiser, q->updates);
    }
    for (size_t i = 0; i < s->note_count; i++) {
        gckpti_sink_key(k, s->notes[i], GCKPTI_VALUES);
        gckpti_print(k, "\":\"");
        gckpti_sink_name(k, s->notes[i] + strlen(s->notes[i]) + 1);
        gckpti_print(k, "\"");
    }
    gckpti_print(k, "}");
}

/* The JSON of all tensors. Their data lie in this order, too, but those of 4 bytes an element come
 * first, those of 1 last: so all are aligned. Returns the bytes of data; *tensors: how many. */
GCKPTI_FN int64_t gckpti_sink_header(gckpti_sink *k, const gckpti_saving *v, size_t *tensors)
{
    int64_t bytes[5] = { 0, 0, 0, 0, 0 }; /* by bytes an element */
    gckpti_outgoing w;
    *tensors = 0;
    if (v->sums)
        gckpti_sink_shares(k, v);
    else
        gckpti_sink_metadata(k, v);
    for (w.next = 0; gckpti_next_outgoing(v, &w); ++*tensors)
        bytes[w.size] += w.count * w.size;
    int64_t at[] = { 0, bytes[4] + bytes[2], bytes[4], 0, 0 };
    for (w.next = 0; gckpti_next_outgoing(v, &w);) {
        const int64_t begin = at[w.size];
        at[w.size] += w.count * w.size;
        gckpti_sink_key(k, w.name, w.slot);
        gckpti_print(k, "\":{\"dtype\":\"%s\",\"shape\":%S,\"data_offsets\":[%I,%I]}",
                     gckpti_storages[w.type].type, &w.shape, begin, at[w.size]);
    }
    const int64_t sums = v->sums ? 8 * (int64_t)*tensors : 0;
    if (v->sums)
        gckpti_print(k, ",\"__sums__\":{\"dtype\":\"U8\",\"shape\":[%I],\"data_offsets\":[%I,%I]}",
                     sums, at[1], at[1] + sums);
    gckpti_print(k, "}");
    return at[1] + sums;
}

/* n of its elements, little-endian: all at once, or each byte from where it stands. */
static void gckpti_sink_elements(gckpti_sink *k, const gckpti_outgoing *w, const void *x, int64_t n)
{
    const size_t size = (size_t)w->size, all = (size_t)n * size;
    const int little = gckpti_little_endian();
    for (size_t i = 0, some = little ? all : 1; i < all && !k->failed; i += some) {
        const unsigned char *b = (const unsigned char *)x + (little ? i : i ^ (size - 1));
        gckpti_sink_put(k, b, some);
        if (w->sum)
            *w->sum = gckpti_fnv(*w->sum, b, some);
    }
}

/* The data of a tensor, in another order only where that can be read, whatever desc.axes says by
 * now. 0: F16 cannot hold a value. */
static int gckpti_sink_tensor(gckpti_sink *k, const gckpt_store *s, const gckpti_outgoing *w)
{
    float room[GCKPTI_DRAWN];
    uint16_t half[GCKPTI_DRAWN];
    const int64_t end = w->first + w->count;
    const void *as_it_is = w->slot == GCKPTI_VALUES  ? w->q->p.quantised
                           : w->slot == GCKPTI_SCALE ? w->q->p.scales
                                                     : gckpti_array(w->q, w->slot);
    const int64_t first = w->slot == GCKPTI_SCALE ? 0 : gckpti_array_share(s, w->q, w->slot).first;
    const char *all = (const char *)(as_it_is ? as_it_is : w->q->p.values);
    const size_t size = as_it_is ? (size_t)w->size : sizeof(float);
    const int turned = all && w->q->p.storage < GCKPT_STORAGE_I8 && gckpti_is_turned(&w->turn);
    int fits = 1;
    if (w->sum)
        *w->sum = GCKPTI_FNV_START;
    for (int64_t at = w->first, n; at < end && !k->failed; at += n) {
        const void *x = as_it_is ? all + (size_t)(at - first) * size : NULL;
        n = turned ? gckpti_min(end - at, GCKPTI_DRAWN) : end - at;
        for (int64_t i = 0; turned && i < n; i++, x = room)
            memcpy((char *)room + (size_t)i * size,
                   all + (size_t)gckpti_turn_place(&w->turn, &w->q->p.shape, at + i) * size, size);
        if (!x)
            x = gckpti_values_at(s, w->q, at, room, &n);
        n = gckpti_min(end - at, n);
        if (!as_it_is && w->type != GCKPT_STORAGE_F32) {
            n = gckpti_min(n, GCKPTI_DRAWN);
            fits &= gckpti_to_halves(w->type, (const float *)x, n, half);
            x = half;
        }
        gckpti_sink_elements(k, w, x, n);
    }
    return fits;
}

/* Whether parameters keep names that a file can have, and that differ, when they are renamed. */
static gckpt_result gckpti_save_names(gckpt_store *s, const gckpt_file_desc *d)
{
    size_t n = 0;
    gckpti_keyed *names; /* by hash; and room to sort them */
    gckpt_result result = GCKPT_OK;
    if (!d->rename)
        return GCKPT_OK;
    names = (gckpti_keyed *)gckpti_new(&s->memory, s->count, 2 * sizeof *names);
    if (!names)
        return gckpti_error(s, GCKPT_E_MEMORY, "save: no memory to compare %z names", s->count);
    for (size_t i = 0; i < s->count && result == GCKPT_OK; i++) {
        const char *name = gckpti_renamed(d, s->params[i].p.name);
        const char *problem = name ? gckpti_name_problem(name) : NULL;
        if (problem)
            result = gckpti_error(s, GCKPT_E_ARG, "save: parameter \"%s\" was given a name that %s",
                                  s->params[i].p.name, problem);
        else if (name) {
            names[n].key = gckpti_fnv(GCKPTI_FNV_START, name, strlen(name));
            names[n++].item = (int)i;
        }
    }
    gckpti_sort_keys(names, names + s->count, n);
    for (size_t i = 1; i < n && result == GCKPT_OK; i++)
        if (names[i].key == names[i - 1].key)
            result = gckpti_error(
                s, GCKPT_E_ARG, "save: parameters \"%s\" and \"%s\" were given the same name",
                s->params[names[i - 1].item].p.name, s->params[names[i].item].p.name);
    gckpti_delete(&s->memory, names, s->count, 2 * sizeof *names);
    return result;
}

/* Packed values that are not made yet have scales only when they are made; permuted ones are taken
 * from all over them. */
static gckpt_result gckpti_save_start(const gckpti_saving *v)
{
    gckpt_store *s = v->store;
    const gckpt_file_desc *d = v->desc;
    gckpti_outgoing w;
    gckpti_turn turn;
    if (!GCKPTI_ASKS_AXES && d->axes)
        return gckpti_error(s, GCKPT_E_ARG, GCKPTI_TURN_NONE);
    if ((unsigned)d->storage >= GCKPT_STORAGE_I8)
        return gckpti_error(s, GCKPT_E_ARG,
                            "save: storage must be F32, BF16 or F16; I8 and I4 are written of "
                            "what gckpt_store_quantise made so");
    gckpt_result result = gckpti_save_names(s, d);
    for (w.next = 0; result == GCKPT_OK && !v->sums && gckpti_next_outgoing(v, &w);)
        if (w.slot != GCKPTI_SCALE && gckpti_is_sharded(gckpti_array_share(s, w.q, w.slot)))
            result = gckpti_error(s, GCKPT_E_ARG,
                                  "save: of \"%s\"%s this rank has a share only; gckpt_ranks_save "
                                  "writes those of all ranks",
                                  w.q->p.name, w.slot < 0 ? "" : gckpti_suffixes[w.slot]);
    for (size_t i = 0; i < s->count && result == GCKPT_OK; i++) {
        gckpti_param *q = &s->params[i];
        gckpti_pull(s, q);
        if (!gckpti_renamed(d, q->p.name))
            continue;
        if (!gckpti_turn_ask(&turn, d, q->p.name, &q->p.shape))
            result = gckpti_error(s, GCKPT_E_ARG, "save: \"%s\": " GCKPTI_TURN_PROBLEM, q->p.name,
                                  turn.given, &q->p.shape);
        else if (gckpti_is_turned(&turn) && q->p.storage >= GCKPT_STORAGE_I8)
            result = gckpti_error(s, GCKPT_E_DATA, "save: \"%s\": " GCKPTI_TURN_ROWS, q->p.name);
        else if (gckpti_is_turned(&turn) || q->p.storage != GCKPT_STORAGE_F32)
            result = gckpti_values_new(s, q, "save");
    }
    if (result == GCKPT_OK)
        gckpti_values_draw(s, NULL);
    gckpti_values_undo(s);
    return result;
}

/* The data of all tensors; of a part, their sums after them. If not NULL, *sum grows by theirs. */
static gckpt_result gckpti_sink_data(gckpti_sink *k, const gckpti_saving *v, uint64_t *sum)
{
    gckpt_result result = GCKPT_OK;
    gckpti_outgoing w;
    uint64_t own;
    size_t done = 0;
    for (int size = 4; size > 0; size /= 2)
        for (w.next = 0; result == GCKPT_OK && gckpti_next_outgoing(v, &w);) {
            if (w.size != size)
                continue;
            w.sum = v->sums ? &v->sums[done++] : sum ? &own : NULL;
            if (!gckpti_sink_tensor(k, v->store, &w))
                result = gckpti_error(v->store, GCKPT_E_DATA,
                                      "save: \"%s\" has values beyond 65504, the greatest of F16 "
                                      "(BF16 holds them); what was written is no complete file",
                                      w.q->p.name);
            if (sum)
                *sum += gckpti_data_sum(w.name, w.slot, own);
        }
    for (size_t i = 0; i < done; i++)
        gckpti_sink_number(k, v->sums[i], 8);
    return result;
}

/* Writes a gckpti_saving. */
GCKPTI_FN gckpt_result gckpti_write(const void *what, gckpt_write_fn write, void *user)
{
    gckpti_saving saving = *(const gckpti_saving *)what, *const v = &saving;
    gckpt_store *store = v->store;
    gckpti_sink k;
    size_t tensors;
    uint64_t sum = 0;
    gckpt_result result = gckpti_save_start(v);
    memset(&k, 0, sizeof k); /* it only counts */
    if (result == GCKPT_OK && GCKPTI_ASKS_AXES && !v->sums) {
        result = gckpti_sink_data(&k, v, &sum);
        v->sum = &sum;
    }
    if (result != GCKPT_OK)
        return result;
    memset(&k, 0, sizeof k);
    const size_t data = (size_t)gckpti_sink_header(&k, v, &tensors);
    const size_t padding = (8 - k.total % 8) % 8, length = k.total + padding;
    if (length > GCKPTI_HEADER_MAX)
        return gckpti_error(store, GCKPT_E_DATA,
                            "save: the header takes %z bytes, %z are allowed; use shorter names "
                            "or notes",
                            length, (size_t)GCKPTI_HEADER_MAX);
    memset(&k, 0, sizeof k);
    k.write = write;
    k.user = user;
    gckpti_sink_number(&k, length, 8);
    gckpti_sink_header(&k, v, &tensors);
    gckpti_sink_put(&k, "       ", padding);
    result = gckpti_sink_data(&k, v, NULL);
    if (gckpti_sink_flush(&k) != GCKPT_OK)
        return gckpti_error(
            store, GCKPT_E_FILE,
            "save: the write callback failed before byte %z; what it wrote is no complete file",
            k.total);
    if (result == GCKPT_OK && k.total != 8 + length + data)
        result = gckpti_error(store, GCKPT_E_ARG,
                              "save: rename must give a parameter the same name each time; what "
                              "was written is no file");
    return result == GCKPT_OK ? gckpti_ok(store) : result;
}

GCKPT_API gckpt_result gckpt_store_write_as(gckpt_store *store, gckpt_write_fn write, void *user,
                                            const gckpt_file_desc *desc)
{
    const gckpti_saving saving = { store, desc ? desc : &gckpti_file_plain, 0, 1, NULL, NULL };
    if (!store || !write)
        return gckpti_error(store, GCKPT_E_ARG, "save: a store and a callback are needed");
    return gckpti_write(&saving, write, user);
}

GCKPT_API gckpt_result gckpt_store_write(gckpt_store *store, gckpt_write_fn write, void *user)
{
    return gckpt_store_write_as(store, write, user, NULL);
}
#endif
