/* start.h - what mcu.ld, cortex_m.c, riscv.c and semihosting.c know of each other. */
#ifndef START_H
#define START_H
extern char board_ram_begin[], board_ram_end[], board_stack_top[]; /* mcu.ld */
extern char board_data_begin[], board_data_end[], board_bss_begin[], board_bss_end[];
extern const char board_data_load[], board_flash_begin[], board_flash_end[];
void start_memory(void); /* semihosting.c */
void start_watchdog_reset(void); /* the watchdog is about to reset the board */
/* The end of a fault, on the stack from its top again: where sp was there may be none. */
void start_fault(const char *sp);
enum { OVERFLOWED = 98, FAULT = 99 }; /* exit statuses */
int main(void);
#endif
