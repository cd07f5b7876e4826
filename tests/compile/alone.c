/* alone.c - tests that the header compiles as the first and only include, and when it is included
 * twice. */
#include "gradckpt.h"
#include "gradckpt.h"
gckpt_shape alone_shape(void);
gckpt_shape alone_shape(void)
{
    return gckpt_shape1(GCKPT_VERSION_MINOR);
}
