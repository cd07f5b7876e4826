/* A stand-in for Zephyr's. */
#include <zephyr/sys/printk.h>
