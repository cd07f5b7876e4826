#include "store/store.h"

GCKPTI_COLD_BEGIN /* ends in ops/ops.h */

GCKPTI_FN int gckpti_utf8_length(const char *s, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t c = (unsigned char)*s;
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

/* Compares names. strcmp can take more of a device's flash than this loop. */
static int gckpti_same_name(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

GCKPTI_FN const char *gckpti_find_suffix(const char *name, const char *suffix)
{
    size_t n = gckpti_strlen(name), m = gckpti_strlen(suffix);
    return n >= m && gckpti_same_name(name + n - m, suffix) ? name + n - m : NULL;
}

GCKPTI_FN int gckpti_slot_of(const char *name, size_t *length)
{
    for (int slot = 0; slot < GCKPTI_UPDATES; slot++) {
        const char *end = gckpti_find_suffix(name, gckpti_suffixes[slot]);
        *length = end ? (size_t)(end - name) : gckpti_strlen(name);
        if (end)
            return slot;
    }
    return GCKPTI_VALUES;
}

GCKPTI_FN int gckpti_is_utf8(const char *text)
{
    int n = 1;
    for (size_t left = gckpti_strlen(text); left && n; text += n, left -= (size_t)n)
        n = gckpti_utf8_length(text, left);
    return n > 0;
}

GCKPTI_FN const char *gckpti_name_problem(const char *name)
{
    size_t length;
    if (!*name || gckpti_same_name(name, "__metadata__"))
        return "is reserved";
    if (gckpti_slot_of(name, &length) != GCKPTI_VALUES)
        return "ends like the name of optimiser state";
    return gckpti_is_utf8(name) ? NULL : "is not UTF-8";
}
