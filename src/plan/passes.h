#pragma once
#include "plan/internal.h"

GCKPTI_COLD_END /* begun in plan/builders.c */

#if !defined(GCKPT_SMALL) && GCKPTI_HAS_PASSES

/* Calls the passes of the features of this build, in this order, until one returns an error. */
GCKPTI_FN gckpt_result gckpti_pass(gckpti_planner *p, gckpti_plan_stage stage, void *arg)
{
    static gckpt_result (*const passes[])(gckpti_planner *, gckpti_plan_stage, void *) = {
#ifndef GCKPT_NO_RANKS
        gckpti_dist_passes,
#endif
#ifndef GCKPT_NO_BF16
        gckpti_bf16_passes,
#endif
#ifndef GCKPT_NO_CACHES
        gckpti_cache_passes,
#endif
#ifndef GCKPT_NO_SCHEDULES
        gckpti_schedules_passes,
#endif
#ifndef GCKPT_NO_LINEAR_LOSS
        gckpti_linear_loss_passes,
#endif
#ifndef GCKPT_NO_TILES
        gckpti_tiles_passes,
#endif
#ifndef GCKPT_NO_OFFLOAD
        gckpti_offload_passes,
#endif
        NULL
    };
    gckpt_result result = GCKPT_OK;
    for (int i = 0; passes[i] && result == GCKPT_OK; i++)
        result = passes[i](p, stage, arg);
    return result;
}
#endif
