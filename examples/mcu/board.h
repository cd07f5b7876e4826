/* board.h - what a job asks of the board it runs on: cortex_m.c or riscv.c with semihosting.c, in
 * QEMU, and host.c. Nothing here needs a C library. */
#ifndef BOARD_H
#define BOARD_H
#include <stddef.h>
#include <stdint.h>

void board_print(const char *text);
void board_exit(int status);
/* The number that the run was started with; -1: none. */
int board_argument(void);
/* Instructions since the start, in QEMU with -icount shift=0 (each takes a nanosecond of the
 * board's time, which a timer counts); host: 0. */
uint64_t board_instructions(void);
/* Bytes, from the linker: RAM with the stack's, flash with what start-up copies from there; and the
 * deepest that the stack has been. Host: 0. */
size_t board_ram(void);
size_t board_flash(void);
size_t board_stack(void);
/* From now on the board is reset when board_feed is not called for so long. */
void board_watchdog(unsigned milliseconds);
void board_feed(void);
/* Resets that were the watchdog's, since power came. */
int board_watchdog_resets(void);
/* The medium behind the modelled flash (chip.h), a file: bytes read or written, from `at` on. */
size_t board_read(size_t at, void *bytes, size_t size);
size_t board_write(size_t at, const void *bytes, size_t size);
#endif
