#pragma once
#include "plan/plan.h"

/* The training of parameters: updates, gradients, steps. */
/* State of a gradient when its UPDATE runs: sums to be added up, or added up and divided. */
typedef enum { GCKPTI_GRAD_SUMS, GCKPTI_GRAD_DIVIDED } gckpti_grad_state;

#ifndef GCKPT_NO_TRAINING
/* Updates a parameter. GCKPTI_GRAD_SUMS: first adds up the addends of its gradient and divides. */
GCKPTI_OWN_FRAME GCKPTI_FN void gckpti_run_update(gckpt_exec *e, const gckpti_ins *ins,
                                                  gckpti_grad_state grad_state);

/* Ends a run of gckpt_gradients: divides gradients and computes their norm. */
GCKPTI_FN gckpt_result gckpti_finish_grad_step(gckpt_exec *e, gckpt_report *report);
#else /* plans for inference have no updates */
#define gckpti_run_checked_update      ((gckpti_handler)0)
#define gckpti_count_step(e)           ((const gckpti_plan_param *)0)
#define gckpti_init_pass(e, ins, pass) memset(pass, 0, sizeof *(pass))
#endif
