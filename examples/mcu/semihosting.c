/* semihosting.c - text output, exit and access to one file through a debugger (here QEMU), by the
 * semihosting calls of Arm (Semihosting for AArch32 and AArch64) and RISC-V. It also has the
 * start-up code that both kinds of core share. For a board without a debugger, replace this file by
 * code for its UART and its flash. */
#include "board.h"
#include "start.h"

enum { OPEN = 1, WRITE0 = 4, WRITE = 5, READ = 6, SEEK = 10, COMMAND_LINE = 21, EXIT = 32 };

/* the RISC-V semihosting call is three instructions, which must be adjacent, uncompressed and in
 * one page */
#if defined(__riscv)
__asm__(".text\n.option push\n.option norvc\n.balign 16\n"
        "semihosting:\n slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n ret\n.option pop\n");
#else
__asm__(".text\n.syntax unified\n.thumb\n.thumb_func\n"
        "semihosting:\n bkpt 0xab\n bx lr\n");
#endif
uintptr_t semihosting(uintptr_t operation, const void *arguments);

void board_print(const char *text) { semihosting(WRITE0, text); }

/* GUARD: number of bytes at the stack's lower end that must keep the value PAINT */
enum { PAINT = 0x5a, GUARD = 16 };

static int stack_overflowed(const char *sp)
{
    int touched = sp < board_ram_begin + GUARD;
    for (int i = 0; i < GUARD; i++)
        touched |= board_ram_begin[i] != PAINT;
    return touched;
}

void board_exit(int status)
{
    uintptr_t stop[2] = { 0x20026, 0 }; /* reason: exit requested by the application */
    if (status != OVERFLOWED && stack_overflowed(board_stack_top)) {
        board_print("the stack has run over\n");
        status = OVERFLOWED;
    }
    stop[1] = (uintptr_t)status;
    for (;;)
        semihosting(EXIT, stop);
}

int board_argument(void)
{
    char line[80];
    uintptr_t arguments[2] = { (uintptr_t)line, sizeof line };
    int n = -1, i = 0;
    if (semihosting(COMMAND_LINE, arguments))
        return -1;
    while (line[i] && line[i] != ' ')
        i++;
    for (i += line[i] == ' '; line[i] >= '0' && line[i] <= '9'; i++)
        n = (n < 0 ? 0 : n) * 10 + (line[i] - '0');
    return n;
}

/* Reads or writes flash.bin at offset `at`, depending on `operation`. The file must exist in the
 * folder where QEMU runs. Returns the number of bytes transferred. */
static size_t transfer(uintptr_t operation, size_t at, uintptr_t bytes, size_t size)
{
    static uintptr_t file; /* the file's handle + 1, or 0 before it is open */
    const uintptr_t name[3] = { (uintptr_t) "flash.bin", 3 /* file mode "r+b" */, 9 };
    if (!file)
        file = semihosting(OPEN, name) + 1;
    const uintptr_t seek[2] = { file - 1, at }, move[3] = { file - 1, bytes, size };
    if (!file || semihosting(SEEK, seek))
        return 0;
    return size - semihosting(operation, move);
}

size_t board_read(size_t at, void *bytes, size_t size)
{
    return transfer(READ, at, (uintptr_t)bytes, size);
}

size_t board_write(size_t at, const void *bytes, size_t size)
{
    return transfer(WRITE, at, (uintptr_t)bytes, size);
}

void start_fault(const char *sp)
{
    const int overflowed = stack_overflowed(sp);
    board_print(overflowed ? "fault: the stack has run over\n" : "fault\n");
    board_exit(overflowed ? OVERFLOWED : FAULT);
}

/* Fills the unused stack with PAINT, initialises .data and clears .bss. The start-up code calls it
 * as soon as there is a stack. */
void start_memory(void)
{
    /* the stack below this address is unused */
    char *here = (char *)__builtin_frame_address(0) - 64;
    for (char *p = board_ram_begin; p < here; p++)
        *p = PAINT;
    for (char *p = board_data_begin; p < board_data_end; p++)
        *p = board_data_load[p - board_data_begin];
    for (char *p = board_bss_begin; p < board_bss_end; p++)
        *p = 0;
}

size_t board_stack(void)
{
    const char *p = board_ram_begin;
    while (*p == PAINT)
        p++;
    return (size_t)(board_stack_top - p);
}

size_t board_ram(void) { return (size_t)(board_ram_end - board_ram_begin); }
size_t board_flash(void) { return (size_t)(board_flash_end - board_flash_begin); }

/* reset_count[0]: MARK if the count is valid; reset_count[1]: number of resets */
static uint32_t reset_count[2] __attribute__((section(".noinit")));
enum { MARK = 0x0b17e5 };
int board_watchdog_resets(void) { return reset_count[0] == MARK ? (int)reset_count[1] : 0; }
void start_watchdog_reset(void)
{
    reset_count[1] = (uint32_t)board_watchdog_resets() + 1;
    reset_count[0] = MARK;
}
