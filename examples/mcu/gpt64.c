/* gpt64.c - a causal transformer trains in 64 KB: weights, AdamW's state, gradients, activations,
 * tables and stack. mcu.ld is given no more RAM, so the linker would refuse it otherwise. */
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
    return job_print(g, &term, &desc);
}
#else
#include "gpt64_plan.h"

static char store_block[plan_store_bytes], exec_block[plan_exec_bytes];
static int32_t tokens[ROWS * TIME], targets[ROWS * TIME];

int main(void)
{
    const gckpt_feed feeds[2] = { { plan_tokens, tokens }, { plan_targets, targets } };
    const gckpt_hyper hyper = { .lr = 0.02f, .clip = 1 };
    gckpt_report report;
    job j;
    if (job_store(&j, &plan, store_block, sizeof store_block) ||
        job_bind(&j, &plan, exec_block, sizeof exec_block))
        return 1;
    for (int step = 0; step < STEPS; step++) {
        transformer_rows(transformer_jack, sizeof transformer_jack - 1, (uint64_t)step, ROWS, TIME,
                         tokens, targets);
        const uint64_t began = board_instructions();
        if (job_failed(&j, gckpt_step(j.exec, feeds, 2, ROWS, &hyper, &report)))
            return 2;
        job_count(&j, report.loss, board_instructions() - began);
    }
    return job_report(&j);
}
#endif
