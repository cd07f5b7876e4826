/* feed.c - compiles GCKPT_FEED as C11, C++11 and C99 with arrays of every element type that inputs can have. With WRONG
 * defined as another type, C11 and C++11 must report an error, which C99 cannot (examples/test_small.sh). */
#include "gradckpt.h"
#ifndef WRONG
#define WRONG int32_t
#endif

gckpt_feed feed_of(gckpt_tensor *x, int which);
gckpt_feed feed_of(gckpt_tensor *x, int which)
{
    static float f[4];
    static const int32_t i[4] = { 0 };
    static uint8_t b[2][4];
    static WRONG w[4];
    const float *at = f;
    const gckpt_feed feeds[5] = { GCKPT_FEED(x, f), GCKPT_FEED(x, at + 1), GCKPT_FEED(x, i), GCKPT_FEED(x, b[1]),
                                  GCKPT_FEED(x, w) };
    return feeds[which];
}
