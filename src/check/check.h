#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>check: gradients against finite differences; measured costs of ops; timed trials of plans
 *
 * Public calls that run a user's graph to measure it: gckpt_check_gradients, gckpt_calibrate,
 * gckpt_fit_timed. They leave parameters and optimiser state unchanged.
 * ============================================================================================== */
GCKPTI_COLD_BEGIN /* ends with the header */
