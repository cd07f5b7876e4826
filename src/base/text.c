#include "base/base.h"

GCKPTI_COLD_BEGIN

/* ---- text without stdio ---- */

GCKPTI_FN void gckpti_text_put(gckpti_text *t, const char *s, size_t n)
{
    if (n > t->left)
        n = t->left;
    memcpy(t->end, s, n);
    t->end += n;
    t->left -= n;
    *t->end = 0;
}

static void gckpti_text_uint(gckpti_text *t, uint64_t value)
{
    char digits[20];
    int n = 20;
    do {
        digits[--n] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    gckpti_text_put(t, digits + n, (size_t)(20 - n));
}

static void gckpti_text_int(gckpti_text *t, int64_t value)
{
    if (value < 0)
        gckpti_text_put(t, "-", 1);
    gckpti_text_uint(t, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* Prints six significant digits (0.0123457, 12345.7, 1.5e-09), for people, not for parsing. */
static void gckpti_text_double(gckpti_text *t, double value)
{
    char d[8];
    gckpti_text number = { d, sizeof d - 1 };
    int exponent = value < 0 || value > 0 ? 5 : 0; /* of the first digit */
    if (value < 0)
        gckpti_text_put(t, "-", 1);
    value = value < 0 ? -value : value;
    if (!(value <= DBL_MAX)) {
        gckpti_text_put(t, value > DBL_MAX ? "inf" : "nan", 3);
        return;
    }
    for (; value >= 999999.5; exponent++)
        value /= 10;
    for (; value > 0 && value < 99999.5; exponent--)
        value *= 10;
    gckpti_text_uint(&number, (uint64_t)(value + 0.5));
    int n = (int)(number.end - d);
    while (n > 1 && d[n - 1] == '0')
        n--;
    const int plain = exponent >= -4 && exponent <= 8, point = plain ? exponent + 1 : 1;
    for (int i = point < 1 ? point - 1 : 0; i < n || i < point; i++) {
        if (i == point)
            gckpti_text_put(t, ".", 1);
        gckpti_text_put(t, i < 0 || i >= n ? "0" : d + i, 1);
    }
    if (!plain)
        gckpti_text_add(t, "e%i", exponent);
}

/* Prints a shape, the sizes of which are read only if their number is valid. */
static void gckpti_text_shape(gckpti_text *t, const gckpt_shape *s)
{
    const int valid = s->n >= 0 && s->n <= GCKPT_MAX_DIMS;
    gckpti_text_add(t, valid ? "[" : "[%i axes; 0 to %i are possible", s->n, GCKPT_MAX_DIMS);
    for (int i = 0; valid && i < s->n; i++)
        gckpti_text_add(t, i ? ",%I" : "%I", s->d[i]);
    gckpti_text_put(t, "]", 1);
}

GCKPTI_FN void gckpti_text_format(gckpti_text *t, const char *format, va_list args)
{
    for (const char *f = format; *f; f++) {
        if (*f != '%') {
            gckpti_text_put(t, f, 1);
            continue;
        }
        const char *s = NULL;
        switch (*++f) {
        case 's': s = va_arg(args, const char *); break;
        case 'i': gckpti_text_int(t, va_arg(args, int)); break;
        case 'I': gckpti_text_int(t, va_arg(args, int64_t)); break;
        case 'z': gckpti_text_uint(t, va_arg(args, size_t)); break;
        case 'u': gckpti_text_uint(t, va_arg(args, uint64_t)); break;
        case 'g': gckpti_text_double(t, va_arg(args, double)); break;
        case 'S': gckpti_text_shape(t, va_arg(args, const gckpt_shape *)); break;
        case 'T': gckpti_text_tensor(t, va_arg(args, const gckpt_tensor *)); break;
        case 0: return;
        default: gckpti_text_put(t, f, 1); break;
        }
        if (s)
            gckpti_text_put(t, s, strlen(s));
    }
}

GCKPTI_FN void gckpti_text_add(gckpti_text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    gckpti_text_format(t, format, args);
    va_end(args);
}

GCKPTI_FN void gckpti_set_error(void *object, gckpt_result result, int sticky, const char *format,
                                va_list args)
{
    gckpti_object *o = (gckpti_object *)object;
    if (!o || o->sticky != GCKPT_OK)
        return;
    *(sticky ? &o->sticky : &o->last) = result;
#ifdef GCKPT_NO_TEXT
    (void)format, (void)args;
#else
    gckpti_text t = { o->text, sizeof o->text - 1 };
    o->text[0] = 0;
    gckpti_text_format(&t, format, args);
#endif
}

GCKPTI_FN gckpti_text gckpti_append_text(gckpti_object *o)
{
    const size_t length = strlen(o->text);
    gckpti_text t = { o->text + length, sizeof o->text - 1 - length };
    return t;
}

#ifndef GCKPT_NO_TEXT
GCKPTI_FN gckpt_result gckpti_error(void *object, gckpt_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    gckpti_set_error(object, result, 0, format, args);
    va_end(args);
    return result;
}
#else
GCKPTI_FN gckpt_result gckpti_result(void *object, gckpt_result result)
{
    gckpti_object *o = (gckpti_object *)object;
    if (o && o->sticky == GCKPT_OK)
        o->last = result;
    return result;
}
#endif

GCKPTI_FN gckpt_result gckpti_ok(void *object)
{
    gckpti_object *o = (gckpti_object *)object;
    o->last = GCKPT_OK;
    if (o->sticky == GCKPT_OK)
        o->text[0] = 0;
    return GCKPT_OK;
}

GCKPTI_FN int gckpti_check_ranges(void *object, const char *who, const gckpti_range *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (r[i].value < r[i].min || r[i].value > r[i].max) {
            gckpti_error(object, GCKPT_E_ARG,
                         r[i].max < INT32_MAX ? "%s: desc.%s is %I; allowed is %I to %I"
                                              : "%s: desc.%s is %I; allowed is %I or more",
                         who, r[i].name, r[i].value, r[i].min, r[i].max);
            return 0;
        }
    return 1;
}

/* ---- errors ---- */
GCKPT_API gckpt_result gckpt_error(const void *object)
{
    const gckpti_object *o = (const gckpti_object *)object;
    if (!o)
        return GCKPT_E_MEMORY;
    if (o->magic != GCKPTI_MAGIC) /* for example a tensor */
        return GCKPT_E_ARG;
    return o->sticky != GCKPT_OK ? o->sticky : o->last;
}

GCKPT_API const char *gckpt_result_text(gckpt_result result)
{
#define GCKPTI_RESULT_TEXT(name, text) text,
    static const char *const texts[] = { GCKPT_RESULTS(GCKPTI_RESULT_TEXT) };
#undef GCKPTI_RESULT_TEXT
    return (unsigned)result < GCKPT_RESULT_COUNT ? texts[result] : "not a gckpt_result";
}

GCKPT_API const char *gckpt_error_text(const void *object)
{
    const gckpti_object *o = (const gckpti_object *)object;
    gckpt_result result = gckpt_error(object);
    if (!o)
        return "NULL: the call that should have made this object failed; call gckpt_error_text "
               "of its origin: the graph for a plan or a frontier, the store for an executor or a "
               "graph. A store is NULL if there is no memory; a block needs gckpt_store_need(NULL) "
               "bytes";
    return o->magic == GCKPTI_MAGIC && result != GCKPT_OK && o->text[0] ? o->text
                                                                        : gckpt_result_text(result);
}

/* ---- sinks: buffered writes to a callback, which stop after a failure ---- */
GCKPTI_FN gckpt_result gckpti_sink_flush(gckpti_sink *out)
{
    if (out->write && !out->failed && out->used &&
        out->write(out->user, out->buf, out->used) != out->used)
        out->failed = 1;
    out->used = 0;
    return out->failed ? GCKPT_E_FILE : GCKPT_OK;
}

GCKPTI_FN void gckpti_sink_put(gckpti_sink *out, const void *bytes, size_t n)
{
    const unsigned char *b = (const unsigned char *)bytes;
    out->total += n;
    while (n && !out->failed) {
        size_t space = sizeof out->buf - out->used, chunk = n < space ? n : space;
        memcpy(out->buf + out->used, b, chunk);
        out->used += chunk;
        b += chunk;
        n -= chunk;
        if (out->used == sizeof out->buf)
            gckpti_sink_flush(out);
    }
}

GCKPTI_FN void gckpti_print(gckpti_sink *out, const char *format, ...)
{
    char line[512];
    gckpti_text t = { line, sizeof line - 1 };
    va_list args;
    va_start(args, format);
    gckpti_text_format(&t, format, args);
    va_end(args);
    gckpti_sink_put(out, line, (size_t)(t.end - line));
}

GCKPTI_COLD_END
