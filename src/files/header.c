#include "files/own.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
/* ---- read: the header's JSON, decoded where it stands ---- */

/* A name in quotes, cut if long, control characters replaced. */
GCKPTI_FN void gckpti_text_name(gckpti_text *t, const char *name, const char *suffix)
{
    const char *c = name;
    gckpti_text_put(t, "\"", 1);
    for (; *c && (c < name + 60 || ((unsigned char)*c & 0xc0) == 0x80); c++)
        gckpti_text_put(t, (unsigned char)*c < 0x20 || *c == 0x7f ? "?" : c, 1);
    gckpti_text_add(t, "%s%s\"", *c ? "..." : "", suffix);
}

/* Records `load: tensor "name": ...` and which parameter it is for if that is called otherwise.
 * Returns 0. */
GCKPTI_FN int gckpti_refuse(gckpti_loader *l, gckpt_result result, const gckpti_saved *e,
                            const char *format, ...)
{
    va_list args;
    l->result = gckpti_error(l->store, result, "load: ");
    gckpti_text t = gckpti_said(&l->store->object);
    if (e) {
        gckpti_text_add(&t, "tensor ");
        gckpti_text_name(&t, e->name, e->slot < 0 ? "" : gckpti_suffixes[e->slot]);
        if (e->param != SIZE_MAX && strcmp(e->name, l->store->params[e->param].p.name)) {
            gckpti_text_add(&t, " for parameter ");
            gckpti_text_name(&t, l->store->params[e->param].p.name, "");
        }
        gckpti_text_add(&t, ": ");
    }
    va_start(args, format);
    gckpti_text_format(&t, format, args);
    va_end(args);
    if (result == GCKPT_E_MEMORY)
        gckpti_tell_block(l->store, "store", &l->store->memory, 0);
    return 0;
}

GCKPTI_FN int gckpti_json_fail(gckpti_loader *l, const char *what)
{
    return gckpti_refuse(l, GCKPT_E_DATA, NULL,
                         "header, byte %z: %s; the file is damaged or not safetensors",
                         (size_t)(l->at - l->header), what);
}

static void gckpti_json_space(gckpti_loader *l)
{
    while (l->at < l->end && (*l->at == ' ' || *l->at == '\n' || *l->at == '\r' || *l->at == '\t'))
        l->at++;
}

static int gckpti_json_take(gckpti_loader *l, char c)
{
    gckpti_json_space(l);
    return l->at < l->end && *l->at == c && ++l->at;
}

static int gckpti_json_need(gckpti_loader *l, char c)
{
    char what[] = "'?' expected";
    what[1] = c;
    return gckpti_json_take(l, c) || gckpti_json_fail(l, what);
}

/* Four digits; 0, which is refused, when wrong. */
static uint32_t gckpti_json_hex(gckpti_loader *l)
{
    uint32_t u = 0;
    for (int i = 0; i < 4; i++, l->at++) {
        uint32_t c = l->at < l->end ? (unsigned char)*l->at : 0, letter = c | 32;
        if (!(c >= '0' && c <= '9') && !(letter >= 'a' && letter <= 'f'))
            return 0;
        u = u << 4 | (c <= '9' ? c - '0' : letter - 'a' + 10);
    }
    return u;
}

/* The character written as \n, \u00e9, \ud83d\ude00 (surrogates); 0: none a string can hold. */
static uint32_t gckpti_json_escape(gckpti_loader *l)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (l->end - l->at < 2)
        return 0;
    char c = l->at[1];
    const char *found = c ? strchr(from, c) : NULL;
    l->at += 2;
    if (c != 'u')
        return found ? (unsigned char)to[found - from] : 0;
    uint32_t u = gckpti_json_hex(l);
    if (u >> 10 != 0x36)
        return u >> 10 == 0x37 ? 0 : u;
    if (l->end - l->at < 2 || l->at[0] != '\\' || l->at[1] != 'u')
        return 0;
    l->at += 2;
    uint32_t low = gckpti_json_hex(l);
    return low >> 10 == 0x37 ? 0x10000 + ((u & 0x3ff) << 10 | (low & 0x3ff)) : 0;
}

/* Writes a character as UTF-8; its bytes, 0 for the character 0. */
static int gckpti_utf8_put(uint32_t c, char *out)
{
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    out[0] = (char)(unsigned char)(more ? (0xf80u >> more & 0xff) | c >> (6 * more) : c);
    for (int i = 1; i <= more; i++)
        out[i] = (char)(unsigned char)(0x80 | (c >> (6 * (more - i)) & 0x3f));
    return c ? 1 + more : 0;
}

/* A string, decoded in place (it never grows) and ended by 0; NULL when wrong. */
static char *gckpti_json_string(gckpti_loader *l)
{
    if (!gckpti_json_need(l, '"'))
        return NULL;
    char *s = l->at, *out = s;
    int n = 1; /* bytes of the last character; 0: it was none */
    for (; n && l->at < l->end && *l->at != '"'; out += n) {
        if (*l->at == '\\') {
            n = gckpti_utf8_put(gckpti_json_escape(l), out);
            continue;
        }
        n = (unsigned char)*l->at < 0x20 ? 0
                                         : gckpti_utf8_length(l->at, (size_t)(l->end - l->at));
        memmove(out, l->at, (size_t)n);
        l->at += n;
    }
    if (!n || l->at == l->end) {
        gckpti_json_fail(l, "a string with a wrong character, or without an end");
        return NULL;
    }
    l->at++;
    *out = 0;
    return s;
}

/* The next key of an object and its ':' (*count: 0 before the first); NULL: it ends or is wrong. */
GCKPTI_FN char *gckpti_json_key(gckpti_loader *l, int *count)
{
    if (*count == 0 && !gckpti_json_need(l, '{'))
        return NULL;
    if (gckpti_json_take(l, '}') || (*count > 0 && !gckpti_json_need(l, ',')))
        return NULL;
    *count = 1;
    char *key = gckpti_json_string(l);
    return key && gckpti_json_need(l, ':') ? key : NULL;
}

/* A whole number < 2^64 without sign or leading zeros: returns where it ends, NULL when wrong. */
GCKPTI_FN char *gckpti_digits(char *s, const char *end, uint64_t *value)
{
    const char *start = s;
    for (*value = 0; s < end && *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t)(*s - '0');
        if (*value > (UINT64_MAX - digit) / 10 || (s > start && *start == '0'))
            return NULL;
        *value = *value * 10 + digit;
    }
    return s > start ? s : NULL;
}

/* Returns how many numbers [a,b,...] has, or -1 if it is wrong. v gets the first `room` of them; if
 * any is 0, there must be exactly as many. */
GCKPTI_FN int gckpti_json_numbers(gckpti_loader *l, int64_t *v, int room, int any)
{
    int n = 0, more = gckpti_json_need(l, '[') && !gckpti_json_take(l, ']');
    for (uint64_t value = 0; more; more = gckpti_json_take(l, ',')) {
        gckpti_json_space(l);
        char *end = gckpti_digits(l->at, l->end, &value);
        if (!end || value > INT64_MAX)
            break;
        l->at = end;
        if (n++ < room)
            v[n - 1] = (int64_t)value;
    }
    const int wrong = more || (n != room && !any);
    if (l->result == GCKPT_OK && (wrong || (n && !gckpti_json_take(l, ']'))))
        gckpti_json_fail(l, "a list of whole numbers < 2^63, of the right length, expected");
    return l->result == GCKPT_OK ? n : -1;
}

/* Passes over an unknown key's value, to ',' or '}'. Where none begins, c is '"', which fails. */
static void gckpti_json_pass(gckpti_loader *l)
{
    int depth = 0;
    do {
        gckpti_json_space(l);
        const char c = l->at < l->end && (depth || !strchr(",]}:", *l->at)) ? *l->at : '"';
        if (c == '"' && !gckpti_json_string(l))
            return;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        l->at += c != '"';
        gckpti_json_space(l);
    } while (depth > 0 || (l->at < l->end && *l->at != ',' && *l->at != '}'));
}

/* A new entry; its name ends where the suffix of its slot begins. NULL: no memory. */
static gckpti_saved *gckpti_load_add(gckpti_loader *l, char *name, size_t length, int slot)
{
    const int state = slot >= 0 && slot != GCKPTI_SCALE;
    gckpti_saved *e;
    if (!gckpti_grow(&l->store->memory, &l->entries, &l->capacity, l->count, sizeof *e)) {
        gckpti_refuse(l, GCKPT_E_MEMORY, NULL, "no memory for over %z tensors", l->count);
        return NULL;
    }
    e = (gckpti_saved *)memset(&l->entries[l->count++], 0, sizeof *e);
    name[length] = 0;
    e->name = name;
    e->slot = (signed char)slot;
    e->param = SIZE_MAX;
    e->ignored = (l->desc->values_only && state) || !gckpti_renamed(l->desc, name);
    return e;
}

/* "NAME#updates":"OPTIMISER:COUNT" becomes an entry, to be checked when all parameters are known */
static int gckpti_load_updates(gckpti_loader *l, char *key, char *value)
{
    const char *suffix = gckpti_ending(key, gckpti_suffixes[GCKPTI_UPDATES]);
    const char *end = value + strlen(value);
    uint64_t optimiser = 0;
    if (!suffix)
        return 1;
    gckpti_saved *e = gckpti_load_add(l, key, (size_t)(suffix - key), GCKPTI_UPDATES);
    if (!e)
        return 0;
    char *colon = gckpti_digits(value, end, &optimiser);
    int good = colon && *colon == ':' && gckpti_digits(colon + 1, end, &e->updates) == end &&
               optimiser <= GCKPT_CUSTOM_OPTIMISER + 1 && (optimiser || !e->updates);
    e->optimiser = (signed char)(good ? (int)optimiser : -1);
    e->offsets[0] = e->offsets[1] = l->data_bytes;
    return 1;
}

/* What the file says of itself; keys that mean nothing here are notes. */
static int gckpti_load_metadata(gckpti_loader *l)
{
    const char *const *keys = gckpti_metadata_keys;
    const size_t tensors = l->count;
    uint64_t *const numbers[] = { NULL, &l->contract, &l->step, &l->seed, &l->optimiser,
                                  &l->data_sum };
    char *key, *value, *found[] = { NULL, NULL, NULL, NULL, NULL, NULL, NULL };
    gckpti_json_space(l);
    const int none = l->end - l->at >= 4 && !memcmp(l->at, "null", 4);
    l->at += none ? 4 : 0;
    for (int n = 0; !none && (key = gckpti_json_key(l, &n)) && (value = gckpti_json_string(l));) {
        for (int i = 0; i < GCKPTI_METADATA_KEYS; i++) {
            if (strcmp(key, keys[i]))
                continue;
            if (found[i])
                return gckpti_json_fail(l, "a key of __metadata__ comes twice");
            found[i] = value;
        }
        if (!gckpti_note_reserved(key) && !gckpti_note_add(l->store, key, value))
            return gckpti_refuse(l, GCKPT_E_MEMORY, NULL, "no memory for notes");
        if (!gckpti_load_updates(l, key, value))
            return 0;
    }
    if (l->result != GCKPT_OK)
        return 0;
    l->ours = found[0] && !strcmp(found[0], "gradckpt");
    l->count = l->ours ? l->count : tensors;
    const char *axes = found[GCKPTI_AXES];
    l->unsaid = GCKPTI_ASKS_AXES && (axes ? strcmp(axes, "HWIO") != 0 : !l->ours);
    if (found[0] && !strcmp(found[0], gckpti_part_format))
        return gckpti_refuse(l, GCKPT_E_DATA, NULL,
                             "one rank's part of a checkpoint: its index is read by "
                             GCKPTI_RANKS_LOAD);
    l->summed = GCKPTI_ASKS_AXES && found[GCKPTI_DATA_SUM] && !l->file && !l->source;
    for (int i = l->ours ? 1 : GCKPTI_DATA_SUM; i < GCKPTI_DATA_SUM + l->summed; i++) {
        const char *end = found[i] ? found[i] + strlen(found[i]) : NULL;
        if (!end || gckpti_digits(found[i], end, numbers[i]) != end ||
            l->optimiser > GCKPT_CUSTOM_OPTIMISER + 1)
            return gckpti_refuse(l, GCKPT_E_DATA, NULL,
                                 "__metadata__: %s must be a whole number < %s, in quotes", keys[i],
                                 numbers[i] == &l->optimiser ? "5" : "2^64");
    }
    return 1;
}

/* U8: the shape of the values whose blocks of I4 it may be. 0: it cannot. */
static int gckpti_load_blocks(gckpti_saved *e)
{
    int64_t *last = &e->shape.d[e->shape.n - (e->shape.n > 0)];
    if (e->ignored || e->shape.n < 2 || *last % GCKPTI_NIBBLE_BYTES ||
        *last > INT64_MAX / GCKPTI_NIBBLES)
        return 0;
    *last = *last / GCKPTI_NIBBLE_BYTES * GCKPTI_NIBBLES;
    return 1;
}

#define GCKPTI_LEAVE_OUT "or leave it out (desc.rename returns NULL for it)"

/* What an entry says of its tensor: can it be read, are its bytes there? One without elements has
 * nothing for a parameter, so it is left out. */
static int gckpti_load_tensor_of(gckpti_loader *l, gckpti_saved *e, const char *type, int axes)
{
    const int64_t begin = e->offsets[0], end = e->offsets[1];
    int empty = 0;
    for (int i = e->shape.n = (int)gckpti_min(axes, GCKPT_MAX_DIMS); i-- > 0;)
        empty |= !e->shape.d[i];
    e->ignored = e->ignored || empty;
    for (e->type = GCKPT_STORAGE_I4; e->type >= 0; e->type--)
        if (!strcmp(type, gckpti_storages[e->type].type))
            break;
    if (e->type == GCKPT_STORAGE_I4 && !gckpti_load_blocks(e))
        e->type = -1;
    if (GCKPTI_ASKS_AXES && !e->ignored && !strcmp(type, "I64") &&
        gckpti_ending(e->name, "num_batches_tracked")) {
        e->ignored = 1; /* PyTorch's batch norms count what nothing here reads */
        if (!gckpti_note_add(l->store, e->name, "I64, left out"))
            return gckpti_refuse(l, GCKPT_E_MEMORY, NULL, "no memory for notes");
    }
    if (!e->ignored && axes > GCKPT_MAX_DIMS)
        return gckpti_refuse(l, GCKPT_E_DATA, e,
                             "%i axes, and %i is the most: reshape it, " GCKPTI_LEAVE_OUT, axes,
                             GCKPT_MAX_DIMS);
    if (!e->ignored && (e->type < 0 || (e->slot >= 0 && e->type)))
        return gckpti_refuse(l, GCKPT_E_DATA, e,
                             "F32%s is needed; convert it from dtype %s, " GCKPTI_LEAVE_OUT,
                             e->slot < 0 ? ", F16 or BF16" : "", type);
    if (!e->ignored && !gckpti_shape_fits(&e->shape))
        return gckpti_refuse(l, GCKPT_E_DATA, e, "%S: %s", &e->shape,
                             gckpti_shape_problem(&e->shape));
    int64_t bytes = empty ? 0 : end - begin;
    if (!e->ignored)
        bytes = gckpti_stored_bytes(e->type, gckpti_elements(&e->shape));
    if (begin > end || end > l->data_bytes || end - begin != bytes)
        return gckpti_refuse(
            l, GCKPT_E_DATA, e,
            "data_offsets [%I,%I] must hold the %I bytes of %S within the %I bytes of data%s",
            begin, end, bytes, &e->shape, l->data_bytes,
            end > l->data_bytes ? ": is the file cut off?" : "");
    return 1;
}

/* {"dtype":"F32","shape":[..],"data_offsets":[begin,end]}, keys in any order, and any others. */
static int gckpti_load_entry(gckpti_loader *l, gckpti_saved *e)
{
    const char *key = NULL;
    char *type = NULL;
    int axes = -1, offsets = -1;
    for (int n = 0; l->result == GCKPT_OK && (key = gckpti_json_key(l, &n)) != NULL;) {
        if (!type && !strcmp(key, "dtype"))
            type = gckpti_json_string(l);
        else if (axes < 0 && !strcmp(key, "shape"))
            axes = gckpti_json_numbers(l, e->shape.d, GCKPT_MAX_DIMS, 1);
        else if (offsets < 0 && !strcmp(key, "data_offsets"))
            offsets = gckpti_json_numbers(l, e->offsets, 2, 0);
        else if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"))
            gckpti_json_pass(l);
        else
            break;
    }
    if (l->result == GCKPT_OK && (key || !type || axes < 0 || offsets < 0))
        gckpti_json_fail(l, "a tensor has dtype, shape and data_offsets, once each");
    if (l->result != GCKPT_OK)
        return 0;
    for (char *c = type; *c; c++) /* it may be printed */
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    return gckpti_load_tensor_of(l, e, type, axes);
}

/* The whole header: an entry for each tensor, whose name is cut where a state's number begins. */
GCKPTI_FN int gckpti_load_header(gckpti_loader *l)
{
    char *name;
    int metadata = 0;
    if (*l->header != '{')
        return gckpti_json_fail(l, "'{' expected");
    for (int n = 0; (name = gckpti_json_key(l, &n)) != NULL;) {
        if (!strcmp(name, "__metadata__")) {
            if (metadata++)
                return gckpti_json_fail(l, "__metadata__ comes twice");
            if (!gckpti_load_metadata(l))
                return 0;
            continue;
        }
        size_t length;
        const int slot = gckpti_slot_of(name, &length);
        gckpti_saved *e = gckpti_load_add(l, name, length, slot);
        if (!e || !gckpti_load_entry(l, e))
            return 0;
    }
    gckpti_json_space(l); /* the padding */
    if (l->result == GCKPT_OK && l->at != l->end)
        gckpti_json_fail(l, "only spaces may follow the last '}'");
    return l->result == GCKPT_OK;
}
#endif
