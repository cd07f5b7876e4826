#define GCKPT_STATIC
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
const char *name_b(void);
const char *name_b(void)
{
    return gckpt_result_text(GCKPT_E_SHAPE);
}
