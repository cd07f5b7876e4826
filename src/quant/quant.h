#pragma once
#include "plan/plan.h"

#ifdef GCKPT_NO_QUANT
#define gckpti_run_dequantise(e, q, values, to)           ((void)(to))
#define gckpti_set_quant_operand(e, node, kind, c, quant) ((void)(quant))
#endif
