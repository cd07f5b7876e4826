/* main.c - trains a net on the chip by the code in regression.h. */
#include <stdio.h>
#define REGRESSION_PRINTF printf
#include "regression.h"

void app_main(void) { regression(); }
