/* The implementation, and what calls what nothing of the whole calls: compiled with GCKPTI_FULL_BUILD, a
 * static function that nobody uses is a warning. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

/* what weights that gckpt_store_c printed call */
gckpt_result gckpti_all_bind(gckpt_store *s, const gckpti_exported *all, size_t n);
gckpt_result gckpti_all_bind(gckpt_store *s, const gckpti_exported *all, size_t n)
{
    return gckpti_bind_exported(s, all, n);
}
