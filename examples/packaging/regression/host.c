/* host.c - runs the same training on this machine and prints the same lines as every chip. */
#define GCKPT_SMALL
#include <stdio.h>
#define REGRESSION_PRINTF printf
#include "regression.h"

int main(void) { return regression(); }
