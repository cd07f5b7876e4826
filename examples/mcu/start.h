/* start.h - symbols and functions shared by mcu.ld, cortex_m.c, riscv.c and semihosting.c. */
#ifndef START_H
#define START_H
extern char board_ram_begin[], board_ram_end[], board_stack_top[]; /* from mcu.ld */
extern char board_data_begin[], board_data_end[], board_bss_begin[], board_bss_end[];
extern const char board_data_load[], board_flash_begin[], board_flash_end[];
void start_memory(void); /* in semihosting.c */
void start_watchdog_reset(void); /* called before the watchdog resets the board */
/* Reports a fault and exits. Runs on the stack from its top, because the old stack pointer may be
 * outside the RAM. */
void start_fault(const char *sp);
enum { OVERFLOWED = 98, FAULT = 99 }; /* exit statuses */
int main(void);
#endif
