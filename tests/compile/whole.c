/* The implementation, and what calls what nothing of the whole calls: compiled with GCKPTI_WHOLE, a
 * static function that nobody uses is a warning. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

/* what weights that gckpt_store_c printed call */
gckpt_result gckpti_all_bind(gckpt_store *s, const gckpti_printed *all, size_t n);
gckpt_result gckpti_all_bind(gckpt_store *s, const gckpti_printed *all, size_t n)
{
    return gckpti_store_printed(s, all, n);
}
