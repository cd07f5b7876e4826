#include "files/files.h"

#ifndef GCKPT_NO_FILES
/* Adds a name in quotes, truncated if long, with control characters replaced. */
static void gckpti_text_name(gckpti_text *t, const char *name, const char *suffix)
{
    const char *c = name;
    gckpti_text_put(t, "\"", 1);
    for (; *c && (c < name + 60 || ((unsigned char)*c & 0xc0) == 0x80); c++)
        gckpti_text_put(t, (unsigned char)*c < 0x20 || *c == 0x7f ? "?" : c, 1);
    gckpti_text_add(t, "%s%s\"", *c ? "..." : "", suffix);
}

/* Sets the error `load: tensor "NAME" for parameter "NAME": ` and the formatted text. Returns 0. */
static int gckpti_refuse(gckpti_loader *load, gckpt_result result, const gckpti_file_entry *e,
                         const char *format, ...)
{
    va_list args;
    load->result = gckpti_error(load->store, result, "load: ");
    gckpti_text t = gckpti_append_text(&load->store->object);
    if (e) {
        gckpti_text_add(&t, "tensor ");
        gckpti_text_name(&t, e->name, e->slot < 0 ? "" : gckpti_suffixes[e->slot]);
        if (e->param != SIZE_MAX && strcmp(e->name, load->store->params[e->param].p.name)) {
            gckpti_text_add(&t, " for parameter ");
            gckpti_text_name(&t, load->store->params[e->param].p.name, "");
        }
        gckpti_text_add(&t, ": ");
    }
    va_start(args, format);
    gckpti_text_format(&t, format, args);
    va_end(args);
    if (result == GCKPT_E_MEMORY)
        gckpti_hint_block(load->store, "store", &load->store->memory, 0);
    return 0;
}

static int gckpti_json_fail(gckpti_loader *load, const char *what)
{
    return gckpti_refuse(load, GCKPT_E_DATA, NULL,
                         "header, byte %z: %s; the file is damaged or not safetensors",
                         (size_t)(load->pos - load->header), what);
}

static void gckpti_json_space(gckpti_loader *load)
{
    while (*load->pos == ' ' || *load->pos == '\n' || *load->pos == '\r' || *load->pos == '\t')
        load->pos++;
}

static int gckpti_json_accept(gckpti_loader *load, char c)
{
    gckpti_json_space(load);
    return *load->pos == c && ++load->pos;
}

static int gckpti_json_expect(gckpti_loader *load, char c)
{
    char what[] = "'?' expected";
    what[1] = c;
    return gckpti_json_accept(load, c) || gckpti_json_fail(load, what);
}

/* Reads four hexadecimal digits; returns 0 on errors. Callers refuse 0, also if it was read. */
static uint32_t gckpti_json_hex(gckpti_loader *load)
{
    uint32_t u = 0;
    for (int i = 0; i < 4; i++, load->pos++) {
        uint32_t c = (unsigned char)*load->pos, letter = c | 32;
        if (!(c >= '0' && c <= '9') && !(letter >= 'a' && letter <= 'f'))
            return 0;
        u = u << 4 | (c <= '9' ? c - '0' : letter - 'a' + 10);
    }
    return u;
}

/* Decodes \n, \u00e9, \ud83d\ude00 (surrogates) to UTF-8. Returns the number of bytes, or 0 if it
 * encodes no string character. */
static int gckpti_json_escape(gckpti_loader *load, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = load->pos[1], *found = c ? strchr(from, c) : NULL;
    load->pos += load->end - load->pos < 2 ? 0 : 2;
    uint32_t u = found ? (unsigned char)to[found - from] : c == 'u' ? gckpti_json_hex(load) : 0;
    if (u >> 10 == 0x36 && load->pos[0] == '\\' && load->pos[1] == 'u') {
        load->pos += 2;
        const uint32_t low = gckpti_json_hex(load);
        u = low >> 10 == 0x37 ? 0x10000 + ((u & 0x3ff) << 10 | (low & 0x3ff)) : 0;
    }
    if (u >> 11 == 0x1b)
        return 0;
    const int more = u < 0x80 ? 0 : u < 0x800 ? 1 : u < 0x10000 ? 2 : 3;
    out[0] = (char)(unsigned char)(more ? (0xf80u >> more & 0xff) | u >> (6 * more) : u);
    for (int i = 1; i <= more; i++)
        out[i] = (char)(unsigned char)(0x80 | (u >> (6 * (more - i)) & 0x3f));
    return u ? 1 + more : 0;
}

/* Decodes a string in place (it never grows), with a final zero; returns NULL on errors. */
static char *gckpti_json_string(gckpti_loader *load)
{
    if (!gckpti_json_expect(load, '"'))
        return NULL;
    char *s = load->pos, *out = s;
    int n = 1; /* bytes of the last character, or 0 if it is invalid */
    for (; n && *load->pos != '"'; out += n) {
        if (*load->pos == '\\') {
            n = gckpti_json_escape(load, out);
            continue;
        }
        n = (unsigned char)*load->pos < 0x20 ? 0 : gckpti_utf8_length(load->pos, 4);
        memmove(out, load->pos, (size_t)n);
        load->pos += n;
    }
    if (!n) {
        gckpti_json_fail(load, "a string with a wrong character, or without an end");
        return NULL;
    }
    load->pos++;
    *out = 0;
    return s;
}

/* Reads an object's next key and ':' (first call: *count is 0); returns NULL at end or error. */
static char *gckpti_json_key(gckpti_loader *load, int *count)
{
    if (*count == 0 && !gckpti_json_expect(load, '{'))
        return NULL;
    if (gckpti_json_accept(load, '}') || (*count > 0 && !gckpti_json_expect(load, ',')))
        return NULL;
    *count = 1;
    char *key = gckpti_json_string(load);
    return key && gckpti_json_expect(load, ':') ? key : NULL;
}

/* Parses an integer < 2^64 without sign or leading zeros; returns its end, or NULL on errors. */
static char *gckpti_digits(char *s, uint64_t *value)
{
    const char *start = s;
    for (*value = 0; *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t)(*s - '0');
        if (*value > (UINT64_MAX - digit) / 10 || (s > start && *start == '0'))
            return NULL;
        *value = *value * 10 + digit;
    }
    return s > start ? s : NULL;
}

/* Reads [a,b,..] into v, which has room for `max` numbers. Returns how many the list has. */
static int gckpti_json_numbers(gckpti_loader *load, int64_t *v, int max)
{
    int n = 0, more = gckpti_json_expect(load, '[') && !gckpti_json_accept(load, ']');
    for (uint64_t value = 0; more; more = gckpti_json_accept(load, ',')) {
        gckpti_json_space(load);
        char *end = gckpti_digits(load->pos, &value);
        if (!end || value > INT64_MAX)
            break;
        load->pos = end;
        if (n < max)
            v[n] = (int64_t)value;
        n++;
    }
    if (load->result == GCKPT_OK && (more || (n && !gckpti_json_accept(load, ']'))))
        gckpti_json_fail(load, "a list of whole numbers < 2^63 expected");
    return n;
}

/* Adds an entry whose name is the first `length` bytes of `name`; returns NULL without memory. */
static gckpti_file_entry *gckpti_add_entry(gckpti_loader *load, char *name, size_t length, int slot)
{
    gckpti_file_entry *e;
    if (!gckpti_grow(&load->store->memory, &load->entries, &load->capacity, load->count,
                     sizeof *e)) {
        gckpti_refuse(load, GCKPT_E_MEMORY, NULL, "no memory for over %z tensors", load->count);
        return NULL;
    }
    e = (gckpti_file_entry *)memset(&load->entries[load->count++], 0, sizeof *e);
    name[length] = 0;
    e->name = name;
    e->slot = (signed char)slot;
    e->param = SIZE_MAX;
    e->old_states = 4; /* no state is freed before this number is known */
    e->ignored = (load->desc->values_only && slot >= 0) || !gckpti_renamed(load->desc, name);
    return e;
}

/* Adds an entry for "NAME#updates":"OPTIMISER:COUNT"; gckpti_resolve checks it later. */
static int gckpti_parse_updates(gckpti_loader *load, char *key, size_t length, char *value)
{
    uint64_t optimiser = 0;
    gckpti_file_entry *e = gckpti_add_entry(load, key, length, GCKPTI_UPDATES);
    if (!e)
        return 0;
    char *colon = gckpti_digits(value, &optimiser);
    const char *end = colon && *colon == ':' ? gckpti_digits(colon + 1, &e->updates) : NULL;
    int good =
        end && !*end && optimiser <= GCKPT_CUSTOM_OPTIMISER + 1 && (optimiser || !e->updates);
    e->optimiser = (signed char)(good ? (int)optimiser : -1);
    e->offsets[0] = e->offsets[1] = load->data_bytes;
    return 1;
}

/* Reads __metadata__; unknown keys are notes. */
static int gckpti_parse_metadata(gckpti_loader *load)
{
    const char *const *keys = gckpti_metadata_keys;
    const size_t tensors = load->count;
    char *key, *value, *found[GCKPTI_METADATA_KEYS + 1] = { NULL }; /* the last: other keys */
    for (int n = 0; (key = gckpti_json_key(load, &n)) && (value = gckpti_json_string(load));) {
        const char *suffix = gckpti_find_suffix(key, gckpti_suffixes[GCKPTI_UPDATES]);
        int i = 0;
        while (i < GCKPTI_METADATA_KEYS && strcmp(key, keys[i]))
            i++;
        if (i < GCKPTI_METADATA_KEYS && found[i])
            return gckpti_json_fail(load, "a key of __metadata__ comes twice");
        found[i] = value;
        if (suffix && !gckpti_parse_updates(load, key, (size_t)(suffix - key), value))
            return 0;
        if (GCKPTI_RUNS_NOTES && i == GCKPTI_METADATA_KEYS && *key && !suffix &&
            !gckpti_note_add(load->store, key, value))
            return gckpti_refuse(load, GCKPT_E_MEMORY, NULL, "no memory for notes");
    }
    if (load->result != GCKPT_OK)
        return 0;
    const int own_format = found[0] && !strcmp(found[0], "gradckpt");
    load->resumes = own_format && !load->desc->values_only;
    load->count = own_format ? load->count : tensors;
    load->verify_sum = found[GCKPTI_KEY_HASH] && !load->file;
    for (int i = 1; i <= GCKPTI_KEY_HASH; i++) {
        if (i == GCKPTI_KEY_HASH ? !load->verify_sum : !own_format)
            continue;
        const char *end = found[i] ? gckpti_digits(found[i], &load->numbers[i]) : NULL;
        if (!end || *end || load->numbers[GCKPTI_KEY_OPTIMISER] > GCKPT_CUSTOM_OPTIMISER + 1)
            return gckpti_refuse(load, GCKPT_E_DATA, NULL,
                                 "__metadata__: %s must be a whole number < %s, in quotes", keys[i],
                                 i == GCKPTI_KEY_OPTIMISER ? "5" : "2^64");
    }
    return 1;
}

#define GCKPTI_LEAVE_OUT "or leave it out (desc.rename returns NULL for it)"

/* Checks an entry's type, shape and offsets. Ignores an entry without elements. */
static int gckpti_check_entry(gckpti_loader *load, gckpti_file_entry *e, const char *type, int axes)
{
    const int64_t begin = e->offsets[0], end = e->offsets[1];
    const gckpti_storage_kind *kind = gckpti_kind_of(e->type);
    int64_t bytes = end - begin;
    e->shape.n = axes;
    for (int i = 0; i < axes && i < GCKPT_MAX_DIMS; i++)
        if (!e->shape.d[i]) {
            bytes = 0;
            e->ignored = 1;
        }
    if (!e->ignored) {
        while (kind && strcmp(type, kind->type))
            kind = gckpti_kind_of(++e->type);
        if (!gckpti_shape_fits(&e->shape))
            return gckpti_refuse(load, GCKPT_E_DATA, e, "%S: %s; reshape it, " GCKPTI_LEAVE_OUT,
                                 &e->shape, gckpti_shape_problem(&e->shape));
        e->bytes = !e->slot && axes == 1 && !strcmp(type, "U8"); /* of desc.state_bytes */
        kind = e->bytes ? gckpti_kind_of(e->type = 0) : kind;
        if (GCKPTI_HAS_COMPRESSED && kind && kind->block > 1 &&
            load->numbers[GCKPTI_KEY_CONTRACT] &&
            load->numbers[GCKPTI_KEY_CONTRACT] < (e->type == GCKPT_STORAGE_I8 ? 4u : 5u))
            return gckpti_refuse(load, GCKPT_E_DATA, e,
                                 "%s of numeric contract %u has other blocks: load the weights "
                                 "that it was made from, and store them so again",
                                 kind->name, load->numbers[GCKPTI_KEY_CONTRACT]);
        const int unpacked = kind && gckpti_unpack_shape(kind, &e->shape);
        if (!unpacked || (e->slot >= 0 && e->type))
            return gckpti_refuse(load, GCKPT_E_DATA, e,
                                 "F32%s is needed; convert it from dtype %s, " GCKPTI_LEAVE_OUT,
                                 e->slot < 0 && gckpti_kind_of(1) ? ", F16 or BF16" : "", type);
        bytes = e->bytes ? e->shape.d[0]
                         : gckpti_storage_bytes(e->type, gckpti_last(&e->shape),
                                                gckpti_elements(&e->shape));
    }
    return (begin <= end && end <= load->data_bytes && end - begin == bytes) ||
           gckpti_refuse(
               load, GCKPT_E_DATA, e,
               "data_offsets [%I,%I] must hold the %I bytes of %S within the %I bytes of data%s",
               begin, end, bytes, &e->shape, load->data_bytes,
               end > load->data_bytes ? ": is the file cut off?" : "");
}

/* Parses a tensor's object: {"dtype":..,"shape":[..],"data_offsets":[begin,end]} in any order. */
static int gckpti_parse_entry(gckpti_loader *load, gckpti_file_entry *e)
{
    const char *key = NULL;
    char *type = NULL;
    int axes = -1, offsets = -1;
    for (int n = 0; load->result == GCKPT_OK && (key = gckpti_json_key(load, &n)) != NULL;) {
        if (!type && !strcmp(key, "dtype"))
            type = gckpti_json_string(load);
        else if (axes < 0 && !strcmp(key, "shape"))
            axes = gckpti_json_numbers(load, e->shape.d, GCKPT_MAX_DIMS);
        else if (offsets < 0 && !strcmp(key, "data_offsets"))
            offsets = gckpti_json_numbers(load, e->offsets, 2);
        else
            break;
    }
    if (load->result == GCKPT_OK && (key || !type || axes < 0 || offsets != 2))
        gckpti_json_fail(
            load, "a tensor has dtype, shape and two data_offsets, once each, and nothing else");
    if (load->result != GCKPT_OK)
        return 0;
    for (char *c = type; *c; c++) /* errors print the type */
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    return gckpti_check_entry(load, e, type, axes);
}

/* Parses the header into an entry for each tensor. */
static int gckpti_parse_header(gckpti_loader *load)
{
    char *name;
    int metadata = 0;
    if (*load->header != '{')
        return gckpti_json_fail(load, "'{' expected");
    for (int n = 0; (name = gckpti_json_key(load, &n)) != NULL;) {
        if (!strcmp(name, "__metadata__")) {
            if (metadata++)
                return gckpti_json_fail(load, "__metadata__ comes twice");
            if (!gckpti_parse_metadata(load))
                return 0;
            continue;
        }
        size_t length;
        const int slot = gckpti_slot_of(name, &length);
        gckpti_file_entry *e = gckpti_add_entry(load, name, length, slot);
        if (!e || !gckpti_parse_entry(load, e))
            return 0;
    }
    gckpti_json_space(load); /* skips the padding */
    if (load->result == GCKPT_OK && load->pos != load->end)
        gckpti_json_fail(load, "only spaces may follow the last '}'");
    return load->result == GCKPT_OK;
}
#endif
