/* riscv.c - start-up, clock and watchdog of a bare 32-bit RISC-V core on QEMU's virt board. The
 * board has no watchdog: the machine timer's interrupt replaces it, and the board's test device
 * resets the board. */
#include "board.h"
#include "start.h"

#define MTIMECMP ((volatile uint32_t *)0x02004000u)
#define MTIME    ((volatile uint32_t *)0x0200bff8u) /* 10 MHz */
#define FINISHER (*(volatile uint32_t *)0x00100000u)

__asm__(".section .vectors, \"ax\"\n.global board_reset\n"
        "board_reset:\n la sp, board_stack_top\n"
        " li t0, 0x2000\n csrs mstatus, t0\n" /* the FPU is off after a reset */
        " la t0, board_ram_begin\n srli t0, t0, 2\n csrw pmpaddr1, t0\n"
        " addi t0, t0, -1024\n csrw pmpaddr0, t0\n" /* no access to the 4 KB below RAM */
        " li t0, 0x8800\n csrw pmpcfg0, t0\n"       /* between the two addresses, locked */
        " la t0, on_trap\n csrw mtvec, t0\n j start\n"
        ".balign 4\non_trap:\n mv a0, sp\n la sp, board_stack_top\n j trapped\n.text\n");

void start(void)
{
    start_memory();
    board_exit(main());
}

void trapped(const char *sp) /* saves no registers, since it does not return */
{
    uint32_t cause;
    __asm__ volatile("csrr %0, mcause" : "=r"(cause));
    if (cause == 0x80000007u) { /* timer interrupt */
        start_watchdog_reset();
        FINISHER = 0x7777; /* reset */
    }
    start_fault(sp);
}

#define COUNTER(name)                                                                              \
    __extension__({                                                                                \
        uint32_t value;                                                                            \
        __asm__ volatile("csrr %0, " name : "=r"(value));                                          \
        value;                                                                                     \
    })
uint64_t board_instructions(void)
{
    uint32_t high, low;
    do {
        high = COUNTER("minstreth");
        low = COUNTER("minstret");
    } while (high != COUNTER("minstreth"));
    return ((uint64_t)high << 32) + low;
}

static uint32_t timeout; /* timeout in ticks of mtime */

void board_feed(void)
{
    uint32_t high, low;
    do {
        high = MTIME[1];
        low = MTIME[0];
    } while (high != MTIME[1]);
    const uint64_t at = ((uint64_t)high << 32) + low + timeout;
    MTIMECMP[1] = 0xffffffffu; /* never below both the old and the new value */
    MTIMECMP[0] = (uint32_t)at;
    MTIMECMP[1] = (uint32_t)(at >> 32);
}

void board_watchdog(unsigned milliseconds)
{
    timeout = milliseconds * 10000u;
    board_feed();
    __asm__ volatile("csrs mie, %0\n csrs mstatus, %1" ::"r"(0x80), "r"(8));
}
