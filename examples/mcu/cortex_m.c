/* cortex_m.c - start-up, clock and watchdog of a Cortex-M: M0 to M55, with an FPU or without, on
 * Arm's MPS2 and MPS3 boards. BOARD_HZ is the core's clock; WATCHDOG and WATCHDOG_HZ are the CMSDK
 * APB watchdog's address and clock. */
#include "board.h"
#include "start.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define SYST_CSR          REGISTER(0xe000e010u)
#define SYST_RVR          REGISTER(0xe000e014u)
#define SYST_CVR          REGISTER(0xe000e018u)
#define SCB_CPACR         REGISTER(0xe000ed88u)
#define WDOG_LOAD         REGISTER(WATCHDOG)
#define WDOG_CONTROL      REGISTER(WATCHDOG + 8u)
#define WDOG_INTCLR       REGISTER(WATCHDOG + 12u)

static volatile uint32_t wraps; /* of SysTick's 24 bits */

void board_reset(void)
{
#ifdef __ARM_FP
    SCB_CPACR |= 0xfu << 20; /* the FPU is off at first */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
    start_memory();
    SYST_RVR = 0xffffff;
    SYST_CVR = 0;
    SYST_CSR = 7; /* counts the core's clock, interrupts at 0 */
    board_exit(main());
}

static void on_systick(void) { wraps++; }

static void on_fault(void)
{
    board_text("fault\n");
    board_exit(99);
}

static void on_nmi(void) /* the watchdog's first call; at the second it resets */
{
    start_bitten();
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
    return (((uint64_t)before << 24) + ticks) * (1000000000u / 1000u) / (BOARD_HZ / 1000u);
}

void board_watchdog(unsigned milliseconds)
{
    WDOG_LOAD = milliseconds * (WATCHDOG_HZ / 1000u);
    WDOG_CONTROL = 3; /* counts; resets when it comes to 0 a second time */
}

void board_feed(void) { WDOG_INTCLR = 1; }
