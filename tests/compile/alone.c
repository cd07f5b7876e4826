/* The header is complete by itself: it is the first and only include, and included twice. */
#include "gradckpt.h"
#include "gradckpt.h"
gckpt_shape alone_shape(void);
gckpt_shape alone_shape(void)
{
    return gckpt_shape1(GCKPT_VERSION_MINOR);
}
