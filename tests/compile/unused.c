/* unused.c - the implementation together with calls of the functions that nothing in the library calls. It is compiled
 * with GCKPTI_FULL_BUILD, where an unused static function is a warning. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

/* gckpti_bind_exported is called only by code that examples/weights.h prints */
gckpt_result gckpti_all_bind(gckpt_store *s, const gckpti_exported *all, size_t n);
gckpt_result gckpti_all_bind(gckpt_store *s, const gckpti_exported *all, size_t n)
{
    return gckpti_bind_exported(s, all, n);
}
