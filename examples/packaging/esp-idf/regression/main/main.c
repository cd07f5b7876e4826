/* main.c - a net learns on the chip; regression.h has all of it. */
#include <stdio.h>
#define REGRESSION_PRINTF printf
#include "regression.h"

void app_main(void) { regression(); }
