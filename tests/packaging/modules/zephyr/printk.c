/* Zephyr's printk, on a board of examples/mcu. */
#include "board.h"
#include <stdarg.h>
#include <stdio.h>
#include <zephyr/sys/printk.h>

void printk(const char *format, ...)
{
    char text[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    board_print(text);
}
