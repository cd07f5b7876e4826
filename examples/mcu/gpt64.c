/* gpt64.c - trains a causal transformer in 64 KB of RAM, which hold weights, AdamW's state,
 * gradients, activations, tables and stack. mcu.ld declares only these 64 KB, so the linker refuses
 * a program that needs more. */
#include "job.h"
#include "transformer.h"

enum { TIME = 12, ROWS = 4, STEPS = 16 };

#ifdef PLAN
int main(void)
{
    const transformer_size size = { TIME, 16, 2, 32, 1, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_term term = transformer_build(g, &size, 1);
    gckpt_plan_desc desc = { .batch = ROWS, .budget = 57000 };
    return job_print_plan(g, &term, &desc);
}
#else
#include "gpt64_plan.h"

static char store_block[plan_store_bytes], exec_block[plan_exec_bytes];
static int32_t tokens[ROWS * TIME], targets[ROWS * TIME];

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
    int failed = job_bind(&j, &plan, exec_block, sizeof exec_block);
    for (uint64_t step = 0; step < STEPS && !failed; step++)
        failed = transformer_step(&j, &task, step);
    return failed || job_report(&j);
}
#endif
