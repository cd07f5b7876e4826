/* start.h - symbols and functions shared by mcu.ld, cortex_m.c, riscv.c and semihosting.c. */
#ifndef START_H
#define START_H
extern char board_ram_begin[], board_ram_end[], board_stack_top[]; /* defined in mcu.ld */
extern char board_data_begin[], board_data_end[], board_bss_begin[], board_bss_end[];
extern const char board_data_load[], board_flash_begin[], board_flash_end[];
void start_memory(void); /* defined in semihosting.c */
void start_watchdog_reset(void); /* must be called right before the watchdog resets the board */
/* Reports a fault and exits. `sp` is the stack pointer at the fault. Callers first reset the stack
 * pointer to the stack's top, because `sp` may be outside the RAM. */
void start_fault(const char *sp);
enum { OVERFLOWED = 98, FAULT = 99 }; /* exit statuses: stack overflow, other fault */
int main(void);
#endif
