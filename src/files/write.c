#include "files/files.h"
#include "run/run.h"
#include "num/num.h"

#ifndef GCKPT_NO_FILES
/* Converts a name between store and file by desc.rename; returns NULL to leave it out. */
static const char *gckpti_renamed(const gckpt_file_desc *d, const char *name)
{
    return d->rename ? d->rename(d->user, name) : name;
}

/* Returns the FNV-1a of a tensor's name in the file (`name`, the slot's suffix) and of `data`, the
 * FNV-1a of its bytes. A file has the sum of these hashes: other programs may reorder it. */
static uint64_t gckpti_data_hash(const char *name, int slot, uint64_t data)
{
    const char *suffix = slot < 0 ? "" : gckpti_suffixes[slot];
    const uint64_t hash = gckpti_fnv(GCKPTI_FNV_START, name, strlen(name));
    return gckpti_fnv_number(gckpti_fnv(hash, suffix, strlen(suffix)), data);
}

/* ---- write ---- */
/* Writes a name with JSON's escapes. */
static void gckpti_sink_name(gckpti_sink *out, const char *name)
{
    for (const char *c = name; *c; c++) {
        unsigned u = (unsigned char)*c;
        char code[] = "\\u00??";
        code[4] = (char)('0' + (u >> 4));
        code[5] = "0123456789abcdef"[u & 15];
        int plain = u >= 0x20 && u != '"' && u != '\\';
        gckpti_sink_put(out, plain ? c : code, plain ? 1 : 6);
    }
}

/* Writes a comma, a quote, the name, and the suffix of the slot (without the closing quote). */
static void gckpti_sink_key(gckpti_sink *out, const char *name, int slot)
{
    gckpti_sink_put(out, ",\"", 2);
    gckpti_sink_name(out, name);
    gckpti_print(out, "%s", slot < 0 ? "" : gckpti_suffixes[slot]);
}

/* A tensor to write: values of a parameter or a state. */
typedef struct {
    size_t next; /* where the search for the next tensor begins; 0 at first */
    const gckpti_param *q;
    const char *name; /* name of q in the file */
    int slot, size;   /* suffix; bytes of an element */
    gckpt_storage type;
    gckpt_shape shape;
    int64_t count; /* number of elements in the file */
    uint64_t hash; /* FNV-1a of the data, if the sink only counts bytes */
} gckpti_out_tensor;

/* Advances w to the next tensor, with elements of `size` bytes unless 0; returns 0 at the end. */
static int gckpti_next_out_tensor(const gckpti_save_spec *spec, gckpti_out_tensor *w, int size)
{
    static const signed char slots[] = { GCKPTI_VALUES, 0, 1, 2, 3 };
    const gckpt_store *s = spec->store;
    const gckpt_file_desc *d = spec->desc;
    while (w->next < s->count * sizeof slots) {
        const gckpti_param *q = w->q = &s->params[w->next / sizeof slots];
        w->slot = slots[w->next++ % sizeof slots];
        if (w->slot == GCKPTI_VALUES)
            w->name = gckpti_renamed(d, q->p.name);
        if (!w->name || (w->slot >= 0 && (d->values_only || !q->p.state[w->slot])))
            continue;
        w->type = w->slot != GCKPTI_VALUES            ? GCKPT_STORAGE_F32
                  : q->p.storage == GCKPT_STORAGE_F32 ? d->storage
                                                      : q->p.storage;
        const int sized = w->slot == 0 && q->p.state_bytes;
        w->shape = sized ? gckpt_shape1((int64_t)q->p.state_bytes) : q->p.shape;
        w->size = sized ? 1 : gckpti_kind_of((int)w->type)->bytes;
        w->count = gckpti_pack_shape((int)w->type, &w->shape);
        if (!size || size == w->size)
            return 1;
    }
    return 0;
}

static void gckpti_sink_notes(gckpti_sink *out, const gckpt_store *s)
{
    for (size_t i = 0; i < s->note_count; i++) {
        const char *key = s->notes[i].text;
        gckpti_sink_key(out, key, GCKPTI_VALUES);
        gckpti_print(out, "\":\"");
        gckpti_sink_name(out, key + strlen(key) + 1);
        gckpti_print(out, "\"");
    }
}

static void gckpti_sink_metadata(gckpti_sink *out, const gckpti_save_spec *spec, uint64_t hash)
{
    const gckpt_store *s = spec->store;
    const gckpt_file_desc *d = spec->desc;
    int optimiser = 0;
    for (size_t i = 0; i < s->count && !optimiser; i++)
        optimiser = s->params[i].optimiser;
    const uint64_t numbers[] = { 0, GCKPT_CONTRACT, s->step, s->seed, (uint64_t)optimiser, hash };
    gckpti_print(out, "{\"__metadata__\":{\"format\":\"%s\"", d->values_only ? "pt" : "gradckpt");
    for (int i = 1; i <= GCKPTI_KEY_HASH; i++)
        if (i == GCKPTI_KEY_HASH || !d->values_only)
            gckpti_print(out, ",\"%s\":\"%u\"", gckpti_metadata_keys[i], numbers[i]);
    for (size_t i = 0; i < s->count && !d->values_only; i++) {
        const gckpti_param *q = &s->params[i];
        int same = q->optimiser == optimiser && (q->updates == s->step || !optimiser);
        const char *name = !q->p.state[0] || same ? NULL : gckpti_renamed(d, q->p.name);
        if (!name)
            continue;
        gckpti_sink_key(out, name, GCKPTI_UPDATES);
        gckpti_print(out, "\":\"%i:%u\"", q->optimiser, q->updates);
    }
    if (GCKPTI_RUNS_NOTES)
        gckpti_sink_notes(out, s);
    gckpti_print(out, "}");
}

/* Writes the JSON of all tensors. Data are in the order of the header, but first those of 4-byte,
 * last those of 1-byte elements, so that all are aligned. Returns the bytes of data. */
static int64_t gckpti_sink_header(gckpti_sink *out, const gckpti_save_spec *spec, uint64_t hash)
{
    int64_t at[] = { 0, 0, 0, 0, 0 }; /* where the next data of elements of this size begin */
    gckpti_out_tensor w;
    gckpti_sink_metadata(out, spec, hash);
    for (w.next = 0; gckpti_next_out_tensor(spec, &w, 0);)
        for (int size = w.size / 2; size > 0; size /= 2)
            at[size] += w.count * w.size;
    for (w.next = 0; gckpti_next_out_tensor(spec, &w, 0);) {
        const int64_t begin = at[w.size];
        at[w.size] += w.count * w.size;
        gckpti_sink_key(out, w.name, w.slot);
        gckpti_print(out, "\":{\"dtype\":\"%s\",\"shape\":%S,\"data_offsets\":[%I,%I]}",
                     w.slot == 0 && w.size == 1 ? "U8" : gckpti_kind_of((int)w.type)->type,
                     &w.shape, begin, at[w.size]);
    }
    gckpti_print(out, "}");
    return at[1];
}

/* Writes n elements, little-endian: all at once or, on other machines, byte by byte. */
static void gckpti_sink_elements(gckpti_sink *out, gckpti_out_tensor *w, const void *x, int64_t n)
{
    const size_t size = (size_t)w->size, all = (size_t)n * size;
    const int little = gckpti_little_endian();
    for (size_t i = 0, chunk = little ? all : 1; i < all && !out->failed; i += chunk) {
        const unsigned char *b = (const unsigned char *)x + (little ? i : i ^ (size - 1));
        gckpti_sink_put(out, b, chunk);
        if (!out->write)
            w->hash = gckpti_fnv(w->hash, b, chunk);
    }
}

/* Writes the data of a tensor, unless this store has only a part of it. */
static gckpt_result gckpti_sink_tensor(gckpti_sink *out, const gckpti_save_spec *spec,
                                       gckpti_out_tensor *w)
{
    float buf[GCKPTI_CHUNK];
    const gckpti_param *q = w->q;
    const int compressed = w->slot < 0 && gckpti_is_compressed((int)q->p.storage);
    const void *raw = compressed                       ? gckpti_stored(&q->p)
                      : w->slot == 0 && q->p.state_bytes ? q->p.state[0]
                                                       : NULL;
    if (raw)
        gckpti_sink_elements(out, w, raw, w->count);
    for (int64_t at = 0, n; at < w->count && !raw && (spec->exec || !out->failed); at += n) {
        const void *x = gckpti_gather_chunk(spec->exec, spec->store, q, w->slot, at, buf, &n);
        if (!x)
            return spec->exec ? GCKPT_E_PEER : GCKPT_E_ARG;
        n = gckpti_min(w->count - at, n);
        if (gckpti_is_compressed((int)w->type)) {
            uint16_t half[GCKPTI_CHUNK];
            n = gckpti_min(n, GCKPTI_CHUNK);
            if (!gckpti_kind_of((int)w->type)->write((const float *)x, n, half))
                return gckpti_error(spec->store, GCKPT_E_DATA,
                                    "save: \"%s\" has values beyond 65504, the greatest of F16 "
                                    "(BF16 holds them); what was written is no complete file",
                                    q->p.name);
            gckpti_sink_elements(out, w, half, n);
            continue;
        }
        gckpti_sink_elements(out, w, x, n);
    }
    return GCKPT_OK;
}

/* Checks the name that desc.rename gives parameter i, also against names of parameters before. */
static gckpt_result gckpti_save_name(const gckpti_save_spec *spec, size_t i)
{
    gckpt_store *s = spec->store;
    const char *own = s->params[i].p.name, *name = gckpti_renamed(spec->desc, own);
    const char *problem = name ? gckpti_name_problem(name) : NULL;
    if (problem)
        return gckpti_error(s, GCKPT_E_ARG, "save: parameter \"%s\" was given a name that %s", own,
                            problem);
    /* the text of `name` may not outlive the next call of rename */
    const uint64_t hash = name ? gckpti_fnv(GCKPTI_FNV_START, name, strlen(name)) : 0;
    for (size_t k = 0; name && spec->desc->rename && k < i; k++) {
        const char *other = gckpti_renamed(spec->desc, s->params[k].p.name);
        if (other && gckpti_fnv(GCKPTI_FNV_START, other, strlen(other)) == hash)
            return gckpti_error(s, GCKPT_E_ARG,
                                "save: parameters \"%s\" and \"%s\" were given the same name",
                                s->params[k].p.name, own);
    }
    return GCKPT_OK;
}

/* Checks that the store can be saved; initialises compressed values. */
static gckpt_result gckpti_save_start(const gckpti_save_spec *spec)
{
    gckpt_store *s = spec->store;
    const gckpt_file_desc *d = spec->desc;
    const gckpti_storage_kind *kind = gckpti_kind_of((int)d->storage);
    if (!kind || kind->block > 1)
        return gckpti_error(s, GCKPT_E_ARG,
                            "save: desc.storage must be F32, BF16 or F16; parameters quantised to "
                            "I8 or I4 by gckpt_store_quantise are saved so anyway");
    gckpt_result result = GCKPT_OK;
    for (size_t i = 0; i < s->count && result == GCKPT_OK; i++) {
        gckpti_param *q = &s->params[i];
        gckpti_pull(s, q);
        result = gckpti_save_name(spec, i);
        if (gckpti_is_compressed((int)q->p.storage) && result == GCKPT_OK &&
            gckpti_renamed(d, q->p.name))
            result = gckpti_values_new(s, q, "save");
    }
    if (GCKPTI_HAS_COMPRESSED && result == GCKPT_OK)
        gckpti_init_all_values(s);
    if (GCKPTI_HAS_COMPRESSED)
        gckpti_values_undo(s);
    return result;
}

/* Writes all tensors' data. If `out` only counts bytes, *total becomes the sum of their hashes. */
static gckpt_result gckpti_sink_data(gckpti_sink *out, const gckpti_save_spec *spec,
                                     uint64_t *total)
{
    gckpt_result result = GCKPT_OK;
    gckpti_out_tensor w;
    *total = 0;
    for (int size = 4; size > 0; size /= 2)
        for (w.next = 0; result == GCKPT_OK && gckpti_next_out_tensor(spec, &w, size);) {
            w.hash = GCKPTI_FNV_START;
            result = gckpti_sink_tensor(out, spec, &w);
            *total += gckpti_data_hash(w.name, w.slot, w.hash);
        }
    return result;
}

GCKPTI_FN gckpt_result gckpti_write(const gckpti_save_spec *spec, gckpt_write_fn write, void *user)
{
    gckpt_store *store = spec->store;
    gckpti_sink out, count;
    uint64_t total;
    gckpt_result result = gckpti_save_start(spec);
    memset(&count, 0, sizeof count); /* a sink that only counts bytes */
    out = count;
    result = gckpti_agree_on_save(spec->exec, result);
    if (result == GCKPT_OK)
        result = gckpti_sink_data(&out, spec, &total);
    if (result != GCKPT_OK)
        return result;
    out = count;
    const size_t data = (size_t)gckpti_sink_header(&count, spec, total);
    const size_t padding = (8 - count.total % 8) % 8, length = count.total + padding;
    if (length > GCKPTI_HEADER_MAX)
        result = gckpti_error(store, GCKPT_E_DATA,
                              "save: the header would take %z bytes, but %z are the most: use "
                              "shorter names or notes",
                              length, (size_t)GCKPTI_HEADER_MAX);
    result = gckpti_agree_on_save(spec->exec, result);
    if (result != GCKPT_OK)
        return result;
    out.write = write;
    out.user = user;
    unsigned char little[8];
    for (int i = 0; i < 8; i++)
        little[i] = (unsigned char)((uint64_t)length >> (8 * i));
    gckpti_sink_put(&out, little, sizeof little);
    gckpti_sink_header(&out, spec, total);
    gckpti_sink_put(&out, "       ", padding);
    result = gckpti_sink_data(&out, spec, &total);
    if (gckpti_sink_flush(&out) != GCKPT_OK)
        return gckpti_error(store, GCKPT_E_FILE,
                            "save: the write callback failed before byte %z; "
                            "what it wrote is no complete file",
                            out.total);
    if (result == GCKPT_OK && out.total != 8 + length + data)
        result = gckpti_error(store, GCKPT_E_ARG,
                              "save: rename must give a parameter the same name each time; what "
                              "was written is no complete file");
    return result == GCKPT_OK ? gckpti_ok(store) : result;
}

GCKPT_API gckpt_result gckpt_store_write(gckpt_store *store, gckpt_write_fn write, void *user,
                                         const gckpt_file_desc *desc)
{
    const gckpti_save_spec spec = { store, desc ? desc : &gckpti_file_plain, NULL };
    if (!store || !write)
        return gckpti_error(store, GCKPT_E_ARG, "save: the store or the callback is NULL");
    return gckpti_write(&spec, write, user);
}
#endif
