/* A stand-in for Zephyr's. */
#ifndef PRINTK_H
#define PRINTK_H
void printk(const char *format, ...);
#endif
