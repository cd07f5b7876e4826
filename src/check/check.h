#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>check: gradients against finite differences
 *
 * gckpt_check_gradients runs a user's plan and leaves parameters and optimiser state unchanged.
 * ============================================================================================== */
GCKPTI_COLD_BEGIN /* ends with the header */
