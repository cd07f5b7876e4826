/* The implementation in a translation unit of its own, as an embedding project has it. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#ifdef GCKPTI_WHOLE /* nothing of the whole calls what printed weights (gckpt_store_c) call */
gckpt_result gckpti_all_bind(gckpt_store *s, const gckpti_printed *all, size_t n);
gckpt_result gckpti_all_bind(gckpt_store *s, const gckpti_printed *all, size_t n)
{
    return gckpti_store_printed(s, all, n);
}
#endif
