/* host.c - runs the training of regression.h on this machine and prints the lines that every chip
 * must print. */
#define GCKPT_SMALL
#include <stdio.h>
#define REGRESSION_PRINTF printf
#include "regression.h"

int main(void) { return regression(); }
