/* lora.c - fine-tunes a transformer on the chip. The host trained the network on one text; the chip
 * trains low-rank adapters (LoRA, Hu 2021) over its frozen weights on another text. The frozen
 * weights stay in flash as bytes with a scale per row, and one weight at a time is converted to
 * floats in RAM when it is read. Only the adapters have gradients and optimiser state. If PLAN is
 * defined, the program trains on the first text on the host and prints weights and plan. */
#define JOB_QUANTISED
#include "job.h"
#include "transformer.h"

enum { TIME = 16, ROWS = 2, STEPS = 12 };

#ifdef PLAN
enum { TRAIN_ROWS = 16, TRAIN_STEPS = 120 };

static gckpt_store *trained(transformer_size size)
{
    static int32_t tokens[TRAIN_ROWS * TIME], targets[TRAIN_ROWS * TIME];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    size.rank = 0;
    const gckpt_term term = transformer_build(g, &size, TRAIN_ROWS);
    gckpt_exec *e = gckpt_exec_new(gckpt_plan_new(g, &term, 1, NULL), s, NULL);
    const gckpt_feed feeds[2] = { { 0, tokens }, { 1, targets } };
    const gckpt_hyper hyper = { .lr = 0.01f, .clip = 1 };
    for (int step = 0; step < TRAIN_STEPS; step++) {
        transformer_rows(transformer_jack, (uint64_t)step, TRAIN_ROWS, TIME, tokens, targets);
        if (gckpt_step(e, feeds, 2, TRAIN_ROWS, &hyper, NULL) != GCKPT_OK)
            return NULL;
    }
    return gckpt_store_freeze(s, "*", 1) == GCKPT_OK &&
                   gckpt_store_quantise(s, "*", GCKPT_STORAGE_I8) == GCKPT_OK
               ? s
               : NULL;
}

int main(void)
{
    const transformer_size size = { TIME, 32, 2, 64, 1, 2 };
    gckpt_store *s = trained(size);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_plan_desc desc = { .budget = 31500 + gckpt_store_bytes(s), .batch = ROWS };
    if (weights_print(s, "weights", job_to_stdout, NULL) != GCKPT_OK)
        return 1;
    /* this graph has the adapters, whose values are initial ones */
    const gckpt_term term = transformer_build(g, &size, 1);
    return job_print_plan(g, &term, &desc);
}
#else
#include "lora_plan.h"

static char store_block[plan_store_bytes - weights_bytes], exec_block[plan_exec_bytes];
static int32_t tokens[ROWS * TIME], targets[ROWS * TIME];

int main(void)
{
    const transformer_task task = { .text = transformer_star,
                                        .lr = 0.1f,
                                        .rows = ROWS,
                                        .time = TIME,
                                        .tokens = tokens,
                                        .targets = targets,
                                        .feeds = { { plan_tokens, tokens },
                                                   { plan_targets, targets } } };
    job j;
    job_new_store(&j, store_block, sizeof store_block);
    int failed = job_failed(&j, weights_bind(j.store)) ||
                 job_bind(&j, &plan, exec_block, sizeof exec_block);
    for (uint64_t step = 0; step < STEPS && !failed; step++)
        failed = transformer_step(&j, &task, step);
    return failed || job_report(&j);
}
#endif
