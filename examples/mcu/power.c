/* power.c - a training that survives a power failure at any instant. After every third step it
 * saves its state to flash (flash.h). At the start it loads the newest complete state and
 * continues; the final weights have the same bits as those of an undisturbed run. The number that
 * the run is started with selects when power fails (chip.h); without a number, power does not fail.
 * tests/examples/test_power_cut.c tries every instant. */
#include "job.h"
#include "transformer.h"

enum { TIME = 8, ROWS = 4, STEPS = 12, EVERY = 3 };

#ifdef PLAN
int main(void)
{
    const transformer_size size = { TIME, 8, 2, 16, 1, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_term term = transformer_build(g, &size, 1);
    gckpt_plan_desc desc = { .batch = ROWS };
    return job_print_plan(g, &term, &desc);
}
#else
#include "power_plan.h"
#include "flash.h"
#include "chip.h"

/* bytes for the header of the state's file, needed only while the state is loaded */
enum { HEADER = 6000 };
static char store_block[plan_store_bytes + HEADER], exec_block[plan_exec_bytes];
static int32_t tokens[ROWS * TIME], targets[ROWS * TIME];

static void chip_power_fails(void)
{
    board_print("the power fails\n");
    board_exit(75);
}

int main(void)
{
    const transformer_task task = { .text = transformer_jack,
                                        .lr = 0.02f,
                                        .rows = ROWS,
                                        .time = TIME,
                                        .tokens = tokens,
                                        .targets = targets,
                                        .feeds = { { plan_tokens, tokens },
                                                   { plan_targets, targets } } };
    job j;
    job_new_store(&j, store_block, sizeof store_block);
    chip_fail_at = board_argument();
    int failed = job_failed(&j, gckpt_plan_params(&plan, j.store));
    if (flash_load(&chip, j.store))
        board_print("goes on\n");
    else
        failed = failed || job_failed(&j, gckpt_error(j.store));
    failed = failed || job_bind(&j, &plan, exec_block, sizeof exec_block);
    while (!failed && gckpt_store_step(j.store) < STEPS) {
        failed = transformer_step(&j, &task, gckpt_store_step(j.store));
        if (!failed && gckpt_store_step(j.store) % EVERY == 0)
            failed = !flash_save(&chip, j.store);
    }
    job_print_line("operations ", (uint32_t)chip_operations);
    return failed || job_report(&j);
}
#endif
