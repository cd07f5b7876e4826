#include "base/own.h"

GCKPT_API gckpt_result gckpt_error(const void *object)
{
    const gckpti_object *o = (const gckpti_object *)object;
    if (!o)
        return GCKPT_E_MEMORY;
    if (o->magic != GCKPTI_MAGIC) /* a tensor, say */
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
        return "NULL: the call that should have made it failed. Why is the error of what it was "
               "made from: a plan's or a frontier's graph, the store of an executor, a graph or "
               "gckpt_fit. A store is NULL if there is no memory; a block needs "
               "gckpt_store_need(NULL) bytes";
    return o->magic == GCKPTI_MAGIC && result != GCKPT_OK && o->text[0] ? o->text
                                                                        : gckpt_result_text(result);
}
