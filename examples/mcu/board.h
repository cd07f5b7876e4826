/* board.h - the functions that every example for microcontrollers ("job", see job.h) requires from
 * its board. They are implemented by cortex_m.c or riscv.c together with semihosting.c, for QEMU,
 * and by host.c. None of them needs a C library. */
#ifndef BOARD_H
#define BOARD_H
#include <stddef.h>
#include <stdint.h>

void board_print(const char *text);
void board_exit(int status);
/* Returns the number on the command line with which the run was started, or -1 without one. */
int board_argument(void);
/* Returns the number of instructions executed since the start; 0 on the host. On a Cortex-M it is
 * derived from a timer: in QEMU with -icount shift=0, an instruction takes a nanosecond. */
uint64_t board_instructions(void);
/* Three sizes in bytes, all 0 on the host: board_ram, the RAM in use including the stack;
 * board_flash, the flash in use including initial values of variables (both from the linker);
 * board_stack, the most stack used so far. */
size_t board_ram(void);
size_t board_flash(void);
size_t board_stack(void);
/* Starts the watchdog, which resets the board unless board_feed is called at least once in every
 * `milliseconds`. */
void board_watchdog(unsigned milliseconds);
void board_feed(void);
/* Returns the number of resets by the watchdog since power-on. */
int board_watchdog_resets(void);
/* Read or write bytes at offset `at` of the file that stands for the board's flash (chip.h). Return
 * the number of bytes transferred. */
size_t board_read(size_t at, void *bytes, size_t size);
size_t board_write(size_t at, const void *bytes, size_t size);
#endif
