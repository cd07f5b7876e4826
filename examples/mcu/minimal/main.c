/* main.c - a network learns on a microcontroller to convert a sensor's readings to temperatures,
 * from 16 calibrated readings. The four files of this folder are a complete firmware to copy and
 * change.
 *
 *     make plan     prints plan.h, the training's instructions and bytes, on this machine. Repeat it
 *                   after changing the network, a constant or gradckpt.h (make reports that)
 *     make          builds build/minimal.elf for the chip; chip.ld has the chip's RAM and flash,
 *                   Makefile the core's type
 *     make qemu     runs the firmware on a board with a Cortex-M4F that QEMU emulates
 *     make host     runs the training on this machine, which gives the same weights, bit for bit */
#ifndef PLAN
#define GCKPT_SMALL  /* omits error texts and functions that firmware does not need: less flash */
/* makes all functions static: less flash; no other file may call the library */
#define GCKPT_STATIC
#endif
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

enum { ROWS = 16, HIDDEN = 12, STEPS = 500 };

/* ---- The network: `make plan` runs this on the host ---- */
#ifdef PLAN
#include <stdio.h>

static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_init normal = { 3, 0, 0 }, small = { 0.1f, 0, 0 }, zero = { 0, 0, 0 };
    gckpt_tensor *reading = gckpt_input(g, "reading", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *degrees = gckpt_input(g, "degrees", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *w1 = gckpt_param(g, "w1", gckpt_shape2(1, HIDDEN), normal);
    gckpt_tensor *b1 = gckpt_param(g, "b1", gckpt_shape1(HIDDEN), normal);
    gckpt_tensor *w2 = gckpt_param(g, "w2", gckpt_shape2(HIDDEN, 1), small);
    gckpt_tensor *b2 = gckpt_param(g, "b2", gckpt_shape1(1), zero);
    gckpt_tensor *out = gckpt_linear(gckpt_tanh(gckpt_linear(reading, w1, b1)), w2, b2);
    const gckpt_term loss = { gckpt_mean_squared_error(out, degrees, NULL), 1, 0 };
    const gckpt_plan_desc desc = { .batch = ROWS, .kernels.plain = 1, .kernels.alignment = 8 };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    if (p && gckpt_plan_c(p, "plan", to_stdout, NULL) == GCKPT_OK)
        return 0;
    fprintf(stderr, "%s\n", gckpt_error_text(g));
    return 1;
}
#else
#include "plan.h"

/* ---- The training: chip and host alike ---- */

/* reading: a thermistor's voltage, scaled to -1 .. 1; degrees: the target, which is the temperature
 * in hundreds of degrees */
static const float reading[ROWS] = {
    0.94f, 0.90f,  0.84f,  0.76f,  0.66f,  0.54f,  0.40f,  0.24f,
    0.08f, -0.08f, -0.22f, -0.36f, -0.48f, -0.58f, -0.66f, -0.72f
};
static const float degrees[ROWS] = { -0.40f, -0.32f, -0.24f, -0.16f, -0.08f, 0.00f, 0.08f, 0.16f,
                                     0.23f,  0.31f,  0.38f,  0.46f,  0.54f,  0.62f, 0.70f, 0.77f };
static char store_block[plan_store_bytes], exec_block[plan_exec_bytes];

static void text(const char *s);

/* Prints the text `what` and the number n in base 10 or 16. */
static void print_number(const char *what, uint64_t n, unsigned base)
{
    char digits[21];
    int i = 20;
    digits[i] = 0;
    do
        digits[--i] = "0123456789abcdef"[n % base];
    while (n /= base);
    text(what), text(digits + i);
}

static int failed(gckpt_result result)
{
    /* gradckpt.h has the name of this number (gckpt_result) */
    print_number("gckpt_result ", (uint64_t)result, 10);
    text("; with texts, without GCKPT_SMALL, gckpt_error_text says why\n");
    return 1;
}

/* Trains the network, and prints the losses and a hash of the weights. Returns 0 after success. */
static int train(void)
{
    gckpt_result result;
    static gckpt_exec_desc in_exec;
    const gckpt_store_desc in_store = { { NULL, NULL, store_block, sizeof store_block }, 0 };
    const gckpt_feed feeds[] = { { plan_reading, reading }, { plan_degrees, degrees } };
    const gckpt_hyper adamw = gckpt_hyper_lr(0.05f);
    gckpt_report report = { 0, 0, 0, 0 };
    in_exec.memory.memory = exec_block;
    in_exec.memory.size = sizeof exec_block;
    gckpt_store *s = gckpt_store_new(&in_store);
    if ((result = gckpt_plan_params(&plan, s)) != GCKPT_OK)
        return failed(result);
    gckpt_exec *e = gckpt_exec_new(&plan, s, &in_exec);
    for (int step = 0; step < STEPS; step++) {
        if ((result = gckpt_step(e, feeds, 2, ROWS, &adamw, &report)) != GCKPT_OK)
            return failed(result);
        if (step == 0 || step == STEPS - 1)
            print_number("squared error, in millionths: ", (uint64_t)(report.loss * 1e6), 10), text("\n");
    }
    print_number("weights ", gckpt_store_hash(s), 16), text("\n");
    if (report.loss < 1e-4)
        return 0;
    text("not learned well: more than 100 millionths\n");
    return 1;
}

/* ---- The chip's start-up code and output: omit the parts that your program has already ---- */
#ifdef __arm__
extern char stack_top[], data_begin[], data_end[], bss_begin[], bss_end[]; /* defined in chip.ld */
extern const char data_load[];
int main(void);

/* Calls the debugger (here QEMU) to print a text or to exit with a status. A program can print to a
 * UART instead. */
static unsigned debugger(unsigned what, const void *argument)
{
    register unsigned r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void text(const char *s) { debugger(4, s); }

static void stop(int status)
{
    const unsigned end[2] = { 0x20026, (unsigned)status };
    for (;;)
        debugger(32, end);
}

void reset(void)
{
    /* switches on the FPU, which is off after a reset */
    *(volatile unsigned *)0xe000ed88u |= 0xfu << 20;
    __asm__ volatile("dsb\n isb" ::: "memory");
    for (char *p = data_begin; p < data_end; p++)
        *p = data_load[p - data_begin];
    for (char *p = bss_begin; p < bss_end; p++)
        *p = 0;
    stop(main());
}

static void fault(void) { text("fault: has the stack run over? (chip.ld)\n"), stop(99); }

typedef union {
    char *stack;
    void (*handler)(void);
} vector;
static const vector vectors[7] __attribute__((section(".vectors"), used)) = {
    { .stack = stack_top }, { .handler = reset }, { .handler = fault }, { .handler = fault },
    { .handler = fault },   { .handler = fault }, { .handler = fault }
};
#else
#include <stdio.h>
static void text(const char *s) { fputs(s, stdout); }
#endif

int main(void) { return train(); }
#endif
