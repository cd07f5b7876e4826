/* cortex_m.c - start-up code, clock and watchdog for Cortex-M cores (M0 to M55, with or without an
 * FPU) on Arm's MPS2 and MPS3 boards. The build defines BOARD_HZ, the core's clock, and WATCHDOG
 * and WATCHDOG_HZ, the address and clock of the CMSDK APB watchdog. */
#include "board.h"
#include "start.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define SYST_CSR          REGISTER(0xe000e010u)
#define SYST_RVR          REGISTER(0xe000e014u)
#define SYST_CVR          REGISTER(0xe000e018u)
#define SCB_CPACR         REGISTER(0xe000ed88u)
#define SCB_CFSR          REGISTER(0xe000ed28u)
#define MPU_TYPE          REGISTER(0xe000ed90u)
#define MPU_CTRL          REGISTER(0xe000ed94u)
#define MPU_RBAR          REGISTER(0xe000ed9cu)
#define MPU_RASR          REGISTER(0xe000eda0u)
#define WDOG_LOAD         REGISTER(WATCHDOG)
#define WDOG_CONTROL      REGISTER(WATCHDOG + 8u)
#define WDOG_INTCLR       REGISTER(WATCHDOG + 12u)

static volatile uint32_t wraps; /* how often SysTick's 24-bit counter has wrapped */

/* Makes the core fault when the stack overflows: by the core's stack limit register, or by its MPU,
 * which denies access to the 4 KB below RAM. A core without either faults only if the board has no
 * memory at these addresses. */
static void guard_stack(void)
{
#if defined(__ARM_ARCH_8M_MAIN__) || defined(__ARM_ARCH_8_1M_MAIN__)
    __asm__ volatile("msr msplim, %0" ::"r"(board_ram_begin));
#else
    if (MPU_TYPE >> 8 & 0xff) {
        /* region 0 begins 4 KB below RAM */
        MPU_RBAR = ((uint32_t)board_ram_begin - 4096) | 1u << 4;
        MPU_RASR = 11u << 1 | 1;                                 /* size 2^12 bytes, no access */
        /* enables the MPU; addresses outside the region keep their default access rights */
        MPU_CTRL = 5;
        __asm__ volatile("dsb\n isb" ::: "memory");
    }
#endif
}

void board_reset(void)
{
#ifdef __ARM_FP
    SCB_CPACR |= 0xfu << 20; /* switches on the FPU, which is off after a reset */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
    guard_stack();
    start_memory();
    SYST_RVR = 0xffffff;
    SYST_CVR = 0;
    SYST_CSR = 7; /* counts the core's clock; interrupts when the count reaches 0 */
    board_exit(main());
}

static void on_systick(void) { wraps++; }

void faulted(const char *sp)
{
    /* NULL after a fault of the stack limit, because sp is then invalid */
    start_fault(SCB_CFSR & 1u << 20 ? NULL : sp);
}

__attribute__((naked)) static void on_fault(void)
{
    __asm__("mov r0, sp\n ldr r1, =board_stack_top\n mov sp, r1\n bl faulted\n.ltorg");
}

/* handles the watchdog's first timeout; the watchdog resets the board at the second one */
static void on_nmi(void)
{
    start_watchdog_reset();
    for (;;)
        ;
}

typedef union {
    char *stack;
    void (*handler)(void);
} vector;
static const vector vectors[16] __attribute__((section(".vectors"), used)) = {
    { .stack = board_stack_top }, { .handler = board_reset },      { .handler = on_nmi },
    { .handler = on_fault },      { .handler = on_fault },         { .handler = on_fault },
    { .handler = on_fault },      [15] = { .handler = on_systick }
};

uint64_t board_instructions(void)
{
    uint32_t before, ticks;
    do {
        before = wraps;
        ticks = 0xffffff - SYST_CVR;
    } while (before != wraps);
    /* total ticks, computed without division if the clock is 25 MHz */
    const uint64_t all = ((uint64_t)before << 24) + ticks;
    return all * (1000000000u / BOARD_HZ) + all * (1000000000u % BOARD_HZ) / BOARD_HZ;
}

void board_watchdog(unsigned milliseconds)
{
    WDOG_LOAD = milliseconds * (WATCHDOG_HZ / 1000u);
    WDOG_CONTROL = 3; /* interrupts at the first timeout and resets the board at the second one */
}

void board_feed(void) { WDOG_INTCLR = 1; }
