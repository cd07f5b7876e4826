/* alone.c - gradckpt.h must compile as a file's only include, and when it is included twice. */
#include "gradckpt.h"
#include "gradckpt.h"
gckpt_shape alone_shape(void);
gckpt_shape alone_shape(void)
{
    return gckpt_shape1(GCKPT_VERSION_MINOR);
}
