#include "base/own.h"

/* ---- what goes out through a callback: gathered, and nothing more of it after a failure ---- */

GCKPTI_FN gckpt_result gckpti_sink_flush(gckpti_sink *k)
{
    if (k->write && !k->failed && k->used && k->write(k->user, k->block, k->used) != k->used)
        k->failed = 1;
    k->used = 0;
    return k->failed ? GCKPT_E_FILE : GCKPT_OK;
}

GCKPTI_FN void gckpti_sink_put(gckpti_sink *k, const void *bytes, size_t n)
{
    const unsigned char *b = (const unsigned char *)bytes;
    k->total += n;
    while (n && !k->failed) {
        size_t room = sizeof k->block - k->used, some = n < room ? n : room;
        memcpy(k->block + k->used, b, some);
        k->used += some;
        b += some;
        n -= some;
        if (k->used == sizeof k->block)
            gckpti_sink_flush(k);
    }
}

GCKPTI_FN void gckpti_sink_number(gckpti_sink *k, uint64_t value, int bytes)
{
    unsigned char little[8];
    for (int i = 0; i < bytes; i++)
        little[i] = (unsigned char)(value >> (8 * i));
    gckpti_sink_put(k, little, (size_t)bytes);
}

GCKPTI_FN void gckpti_print(gckpti_sink *k, const char *format, ...)
{
    char line[512];
    gckpti_text t = { line, sizeof line - 1 };
    va_list args;
    va_start(args, format);
    gckpti_text_format(&t, NULL, format, args);
    va_end(args);
    gckpti_sink_put(k, line, (size_t)(t.at - line));
}
