/* main.c - trains a net on the chip by the code in regression.h. */
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>
#define REGRESSION_PRINTF printk
#include "regression.h"

int main(void) { return regression(); }
