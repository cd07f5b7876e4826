#pragma once
#include "run/internal.h"

/* Calls the modules of this build, in this order, until one does not return GCKPT_OK. */
GCKPTI_FN gckpt_result gckpti_notify_all(gckpt_exec *e, gckpti_event event, void *arg)
{
    static gckpt_result (*const modules[])(gckpt_exec *, gckpti_event, void *) = {
#ifndef GCKPT_NO_RANKS
        gckpti_dist_module,
#endif
#ifndef GCKPT_NO_OFFLOAD
        gckpti_offload_module,
#endif
#ifndef GCKPT_NO_DEVICES
        gckpti_devices_module,
#endif
#ifndef GCKPT_NO_FETCH
        gckpti_fetch_module,
#endif
#ifndef GCKPT_NO_CACHES
        gckpti_cache_module,
#endif
#ifndef GCKPT_NO_DEBUG
        gckpti_debug_module,
#endif
        NULL
    };
    gckpt_result result = GCKPT_OK;
    for (int i = 0; modules[i] && result == GCKPT_OK; i++)
        result = modules[i](e, event, arg);
    return result;
}
