#include "store/own.h"
#include "num/num.h"

GCKPTI_FN int64_t gckpti_own(const gckpt_store *s, const gckpti_param *q, int slot, int64_t *first)
{
    const int cut = gckpti_array_cut(s, q, slot);
    *first = cut ? q->p.first : 0;
    return cut ? q->p.count : q->p.elements;
}

/* For how many of them there is memory. */
GCKPTI_FN int64_t gckpti_held(const gckpt_store *s, const gckpti_param *q, int slot)
{
    return gckpti_array_cut(s, q, slot)
               ? gckpti_in_memory(s->ranks, s->shard, GCKPT_SHARD_STATE, q->p.elements)
               : q->p.elements;
}

/* ---- names, as files can have them ---- */
GCKPTI_FN int gckpti_utf8_length(const char *s, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t c = left ? (unsigned char)*s : 0xff;
    int n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    if (n < 2 || (size_t)n > left)
        return n == 1;
    c &= 0x7fu >> n;
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return c < least[n] || c > 0x10ffff || c >> 11 == 0x1b ? 0 : n;
}

GCKPTI_FN const char *gckpti_ending(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && !strcmp(name + n - m, suffix) ? name + n - m : NULL;
}

GCKPTI_FN int gckpti_slot_of(const char *name, size_t *length)
{
    for (int slot = 0; slot < GCKPTI_UPDATES; slot++) {
        const char *end = gckpti_ending(name, gckpti_suffixes[slot]);
        *length = end ? (size_t)(end - name) : strlen(name);
        if (end)
            return slot;
    }
    return GCKPTI_VALUES;
}

GCKPTI_FN int gckpti_is_utf8(const char *text)
{
    int n = 1;
    for (size_t left = strlen(text); left && n; text += n, left -= (size_t)n)
        n = gckpti_utf8_length(text, left);
    return n > 0;
}

GCKPTI_FN const char *gckpti_name_problem(const char *name)
{
    size_t length;
    if (!*name || !strcmp(name, "__metadata__") || !strcmp(name, "__sums__"))
        return "is reserved";
    if (gckpti_slot_of(name, &length) != GCKPTI_VALUES)
        return "ends like the name of optimiser state or scales";
    return gckpti_is_utf8(name) ? NULL : "is not UTF-8";
}

GCKPTI_FN int gckpti_note_reserved(const char *key)
{
    int reserved = !*key || gckpti_ending(key, gckpti_suffixes[GCKPTI_UPDATES]) ||
                   (GCKPTI_ASKS_AXES && !strcmp(key, gckpti_axes_key));
    for (int i = 0; i < GCKPTI_METADATA_KEYS; i++)
        reserved |= !strcmp(key, gckpti_metadata_keys[i]);
    return reserved;
}

GCKPT_API gckpt_store *gckpt_store_new(const gckpt_store_desc *desc)
{
    gckpti_allocator memory = gckpti_allocator_of(desc ? &desc->memory : NULL);
    gckpt_store *s = (gckpt_store *)gckpti_new(&memory, 1, sizeof *s);
    if (!s)
        return NULL;
    s->object.magic = GCKPTI_MAGIC;
    s->memory = memory;
    s->seed = desc ? desc->seed : 0;
    s->ranks = 1;
    int broken = gckpti_self_test();
    if (broken) {
        gckpti_error(s, GCKPT_E_BACKEND,
                     "self-test %i failed: this build or processor does not keep the numeric "
                     "contract (flush-to-zero? -ffast-math at link time?)",
                     broken);
        s->object.sticky = s->object.last;
    }
    return s;
}

GCKPTI_FN float *gckpti_array(const gckpti_param *q, int slot)
{
    return slot < 0 ? q->p.values : q->p.state[slot];
}
