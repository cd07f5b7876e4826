/* board.h - the functions that a job requires from its board: cortex_m.c or riscv.c with
 * semihosting.c, in QEMU, or host.c. None needs a C library. */
#ifndef BOARD_H
#define BOARD_H
#include <stddef.h>
#include <stdint.h>

void board_print(const char *text);
void board_exit(int status);
/* Returns the number that the run was started with, or -1 without one. */
int board_argument(void);
/* Returns the instructions since the start, in QEMU with -icount shift=0 (each takes a nanosecond
 * of the board's time, which a timer counts); 0 on the host. */
uint64_t board_instructions(void);
/* Return bytes: of RAM including the stack and of flash including initial values of RAM, both from
 * the linker, and of the deepest stack so far. 0 on the host. */
size_t board_ram(void);
size_t board_flash(void);
size_t board_stack(void);
/* Starts the watchdog, which resets the board unless board_feed is called at least once in every
 * `milliseconds`. */
void board_watchdog(unsigned milliseconds);
void board_feed(void);
/* Returns the number of resets by the watchdog since power-on. */
int board_watchdog_resets(void);
/* Read or write bytes from offset `at` of the file that models the flash (chip.h). Return the
 * bytes moved. */
size_t board_read(size_t at, void *bytes, size_t size);
size_t board_write(size_t at, const void *bytes, size_t size);
#endif
