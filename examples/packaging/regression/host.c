/* host.c - the same training on this machine: what it says, every chip says. */
#define GCKPT_SMALL
#include <stdio.h>
#define REGRESSION_PRINTF printf
#include "regression.h"

int main(void) { return regression(); }
