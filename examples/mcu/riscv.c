/* riscv.c - start-up code, clock and watchdog for a bare 32-bit RISC-V core on QEMU's virt board.
 * The board has no watchdog: an interrupt of the machine timer takes its place and resets the board
 * through QEMU's test device. */
#include "board.h"
#include "start.h"

#define MTIMECMP ((volatile uint32_t *)0x02004000u)
/* the machine timer's counter, which runs at 10 MHz */
#define MTIME    ((volatile uint32_t *)0x0200bff8u)
#define FINISHER (*(volatile uint32_t *)0x00100000u)

__asm__(".section .vectors, \"ax\"\n.global board_reset\n"
        "board_reset:\n la sp, board_stack_top\n"
        " li t0, 0x2000\n csrs mstatus, t0\n" /* switches on the FPU, which is off after a reset */
        " la t0, board_ram_begin\n srli t0, t0, 2\n csrw pmpaddr1, t0\n"
        " addi t0, t0, -1024\n csrw pmpaddr0, t0\n" /* region of the PMP: the 4 KB below RAM */
        /* denies access to that region and locks the setting */
        " li t0, 0x8800\n csrw pmpcfg0, t0\n"
        " la t0, on_trap\n csrw mtvec, t0\n j start\n"
        ".balign 4\non_trap:\n mv a0, sp\n la sp, board_stack_top\n j trapped\n.text\n");

void start(void)
{
    start_memory();
    board_exit(main());
}

void trapped(const char *sp) /* does not save registers, because it never returns */
{
    uint32_t cause;
    __asm__ volatile("csrr %0, mcause" : "=r"(cause));
    if (cause == 0x80000007u) { /* interrupt of the machine timer, which serves as watchdog */
        start_watchdog_reset();
        FINISHER = 0x7777; /* resets the board through the test device */
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

static uint32_t timeout; /* timeout of the watchdog, in ticks of the machine timer */

void board_feed(void)
{
    uint32_t high, low;
    do {
        high = MTIME[1];
        low = MTIME[0];
    } while (high != MTIME[1]);
    const uint64_t at = ((uint64_t)high << 32) + low + timeout;
    /* while the two halves are written, the comparison value is never below both the old and the
     * new value */
    MTIMECMP[1] = 0xffffffffu;
    MTIMECMP[0] = (uint32_t)at;
    MTIMECMP[1] = (uint32_t)(at >> 32);
}

void board_watchdog(unsigned milliseconds)
{
    timeout = milliseconds * 10000u;
    board_feed();
    __asm__ volatile("csrs mie, %0\n csrs mstatus, %1" ::"r"(0x80), "r"(8));
}
