#pragma once
#include "plan/plan.h"

/* The training of parameters: updates, gradients, steps. Plans for inference have no updates. */
#ifdef GCKPT_NO_TRAINING
#define gckpti_run_barrier             ((gckpti_handler)0)
#define gckpti_run_update              ((gckpti_handler)0)
#define gckpti_count_step(e)           ((const gckpti_plan_param *)0)
#define gckpti_init_pass(e, ins, pass) memset(pass, 0, sizeof *(pass))
#endif
