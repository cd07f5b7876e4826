/* gpt256.c - trains a transformer of four blocks in 256 KB of RAM. A STORE_ALL plan, which keeps
 * all activations, does not fit: the linker refuses the program ("region RAM overflowed by ..
 * bytes"). This plan recomputes some activations; its weights are the same as those of the
 * STORE_ALL plan. */
#include "job.h"
#include "transformer.h"

enum { TIME = 40, ROWS = 2, STEPS = 3 };

#ifdef PLAN
int main(void)
{
    const transformer_size size = { TIME, 16, 2, 32, 4, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_term term = transformer_build(g, &size, 1);
#ifdef STORE_ALL
    gckpt_plan_desc desc = { .mode = GCKPT_STORE_ALL, .batch = ROWS };
#else
    gckpt_plan_desc desc = { .budget = 246000, .batch = ROWS };
#endif
    return job_print_plan(g, &term, &desc);
}
#else
#ifdef STORE_ALL
#include "gpt256_all_plan.h"
#else
#include "gpt256_plan.h"
#endif

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
