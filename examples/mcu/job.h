/* job.h - code common to all examples for microcontrollers. Each example is one file, a "job", that
 * can be compiled in three ways. If PLAN is defined, it is a program for the host that prints the
 * job's plan as C (JOB_plan.h). With cortex_m.c or riscv.c, it is firmware. With host.c, it runs
 * the firmware's training on this machine, and prints the same losses and the same hash of the
 * weights. */
#ifndef JOB_H
#define JOB_H
/* Parts of gradckpt.h that firmware, and its run on the host, do not need. (GCKPT_SMALL would omit
 * error texts as well.) */
#ifndef PLAN
#define GCKPT_NO_HEAP
#define GCKPT_NO_STDIO
#define GCKPT_NO_FAST
/* A job defines JOB_QUANTISED if some of its weights are quantised. */
#if !defined(JOB_QUANTISED) && !defined(GCKPT_NO_QUANT)
#define GCKPT_NO_QUANT
#endif
#endif
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "board.h"
#include <string.h>

#ifdef PLAN
#include "../weights.h"
#include <stdio.h>
static size_t job_to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

/* Prints a plan of this name and the bytes of its arena. If `term` is NULL, the plan is for
 * inference. Returns an exit status. */
static inline int job_print_plan_as(gckpt_graph *g, const gckpt_term *term, gckpt_plan_desc *desc,
                               const char *name)
{
    desc->kernels.plain = 1;
    desc->kernels.alignment = 8;
    gckpt_plan *p = gckpt_plan_new(g, term, term != NULL, desc);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    if (!p || gckpt_plan_c(p, name, job_to_stdout, NULL) != GCKPT_OK) {
        fprintf(stderr, "%s\n", gckpt_error_text(g));
        return 1;
    }
    printf("#define %s_arena_bytes %lu\n", name, (unsigned long)info.arena);
    printf("/* %s, %lu bytes, %d %% computed again */\n", info.mode_name,
           (unsigned long)gckpt_plan_bytes(p), (int)(100 * info.recompute + 0.5));
    return 0;
}

/* Prints the plan named "plan", for jobs with a single plan. Returns an exit status. */
static inline int job_print_plan(gckpt_graph *g, const gckpt_term *term, gckpt_plan_desc *desc)
{
    return job_print_plan_as(g, term, desc, "plan");
}
#else

/* Prints n. The type has 32 bits because dividing 64-bit numbers takes 700 bytes of flash. */
static void job_print_number(uint32_t n)
{
    char text[11];
    int i = 10;
    text[10] = 0;
    do
        text[--i] = (char)('0' + n % 10);
    while (n /= 10);
    board_print(text + i);
}

static void job_print_real(double x) /* prints x >= 0 with four digits after the point */
{
    const uint64_t n = (uint64_t)(x * 10000 + 0.5);
    char digits[6] = { '.', 0, 0, 0, 0, 0 };
    uint64_t rest = n % 10000;
    for (int i = 4; i > 0; rest /= 10)
        digits[i--] = (char)('0' + rest % 10);
    job_print_number((uint32_t)(n / 10000));
    board_print(digits);
}

static void job_print_hash(uint64_t hash)
{
    char text[18];
    for (int i = 0; i < 16; i++)
        text[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
    text[16] = '\n', text[17] = 0;
    board_print(text);
}

/* A training in progress, and the values that are printed at its end. */
typedef struct {
    gckpt_store *store;
    gckpt_exec *exec;
    double first_loss, last_loss;    /* losses of the first and the last step */
    uint64_t instructions; /* instructions that all steps took */
    int steps;
} job;

/* Prints the error of a failed call. Returns 1 if `result` is an error, else 0. */
static int job_failed(const job *j, gckpt_result result)
{
    if (result == GCKPT_OK)
        return 0;
    board_print(gckpt_error_text(j->exec ? (const void *)j->exec : (const void *)j->store));
    board_print("\n");
    return 1;
}

/* Creates an empty store in a block of memory. */
static void job_new_store(job *j, void *block, size_t size)
{
    const gckpt_store_desc desc = { { NULL, NULL, block, size }, 1 };
    memset(j, 0, sizeof *j);
    j->store = gckpt_store_new(&desc);
}

/* Adds the plan's parameters to the store and creates the executor in the memory of `desc`. Returns
 * 1 after an error, else 0. */
static int job_bind_as(job *j, const gckpt_plan *plan, const gckpt_exec_desc *desc)
{
    if (job_failed(j, gckpt_plan_params(plan, j->store)))
        return 1;
    j->exec = gckpt_exec_new(plan, j->store, desc);
    return job_failed(j, j->exec ? GCKPT_OK : gckpt_error(j->store));
}

/* Like job_bind_as, with the executor and its arena in one block of memory. */
static inline int job_bind(job *j, const gckpt_plan *plan, void *block, size_t size)
{
    static gckpt_exec_desc desc;
    desc.memory.memory = block;
    desc.memory.size = size;
    return job_bind_as(j, plan, &desc);
}

static void job_add_step(job *j, double loss, uint64_t instructions)
{
    j->first_loss = j->steps ? j->first_loss : loss;
    j->last_loss = loss;
    j->instructions += instructions;
    j->steps++;
}

static void job_print_line(const char *what, uint32_t n)
{
    board_print(what);
    job_print_number(n);
    board_print("\n");
}

/* Prints the board's RAM, flash and stack in bytes, and the instructions per step or call. */
static void job_print_board(uint64_t instructions)
{
    if (board_ram() == 0)
        return;
    job_print_line("ram ", (uint32_t)board_ram());
    job_print_line("stack ", (uint32_t)board_stack());
    job_print_line("flash ", (uint32_t)board_flash());
    job_print_line("instructions ", (uint32_t)instructions);
}

/* Prints two lines that are equal on all boards, then the board's own figures (job_print_board).
 * Returns 0, the program's exit status. */
static int job_report(const job *j)
{
    board_print("loss ");
    job_print_real(j->first_loss);
    board_print(" ");
    job_print_real(j->last_loss);
    board_print("\nweights ");
    job_print_hash(gckpt_store_hash(j->store));
    job_print_board(j->steps ? j->instructions / (uint64_t)j->steps : 0);
    return 0;
}
#endif
#endif
