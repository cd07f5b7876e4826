#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>check: gradients against finite differences; what ops cost here; races
 *
 * Public calls that run a user's graph to learn something of it: gckpt_check_gradients,
 * gckpt_calibrate, gckpt_fit_timed. They leave the store as it was.
 * ============================================================================================== */
GCKPTI_COLD_BEGIN /* to the end */
