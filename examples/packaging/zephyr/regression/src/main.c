/* main.c - a net learns on the chip; regression.h has all of it. */
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>
#define REGRESSION_PRINTF printk
#include "regression.h"

int main(void) { return regression(); }
