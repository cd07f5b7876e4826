/* plan_check.c - compiles the plan checker once for all tests that are linked with it. */
#define PLAN_CHECK_BODY
#include "gradckpt.h"

#include "../plan_check.h"
