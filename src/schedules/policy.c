#ifndef GCKPT_NO_SCHEDULES
#include "graph/graph.h"

GCKPT_API gckpt_tensor *gckpt_recompute(gckpt_tensor *x)
{
    if (x)
        x->base->must_save = 0, x->base->must_recompute = 1;
    return x;
}
#endif
