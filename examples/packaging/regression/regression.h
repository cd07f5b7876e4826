/* regression.h - trains a net to fit a curve on a chip, without heap, files and printed floats. Its
 * plan was printed on the host (plan.c). A printed plan must be compiled in the file with
 * gradckpt's implementation, so exactly one file of the program includes this header. That file
 * first defines REGRESSION_PRINTF, the name of a printf. The build defines which parts of
 * gradckpt.h are omitted. */
#ifndef REGRESSION_H
#define REGRESSION_H
/* makes all functions static: less flash; no other file may call the library */
#define GCKPT_STATIC
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "regression_plan.h"
#include <inttypes.h>

enum { POINTS = 16, STEPS = 200 };

/* Creates the store with the plan's parameters in one block of memory, and the executor with its
 * arena in another block. Returns NULL after an error. */
static gckpt_exec *regression_new(gckpt_store **store)
{
    static char store_block[regression_plan_store_bytes], exec_block[regression_plan_exec_bytes];
    static gckpt_exec_desc bind;
    const gckpt_store_desc in = { { NULL, NULL, store_block, sizeof store_block }, 1 /* seed */ };
    bind.memory.memory = exec_block;
    bind.memory.size = sizeof exec_block;
    *store = gckpt_store_new(&in);
    if (gckpt_plan_params(&regression_plan, *store) != GCKPT_OK)
        return NULL;
    return gckpt_exec_new(&regression_plan, *store, &bind);
}

/* Trains the net and prints its losses. The last line is the same on every machine. Returns 0 after
 * success, else 1. */
static int regression(void)
{
    static float x[POINTS], y[POINTS];
    gckpt_store *store;
    gckpt_exec *exec = regression_new(&store);
    gckpt_result result = gckpt_error(exec ? (const void *)exec : (const void *)store);
    for (int i = 0; i < POINTS; i++) { /* a product would use readings of its sensor here */
        x[i] = (float)(i - POINTS / 2) / 8;
        y[i] = x[i] * x[i];
    }
    for (int step = 0; step < STEPS && result == GCKPT_OK; step++) {
        const gckpt_feed feeds[2] = { { regression_plan_x, x }, { regression_plan_y, y } };
        const gckpt_hyper adamw = gckpt_hyper_lr(0.02f);
        gckpt_report report = { 0, 0, 0, 0 };
        result = gckpt_step(exec, feeds, 2, POINTS, &adamw, &report);
        if (step % 50 == 0 || step == STEPS - 1)
            REGRESSION_PRINTF("step %d: loss %" PRIu32 " millionths\n", step, (uint32_t)(report.loss * 1e6));
    }
    if (result != GCKPT_OK) {
        REGRESSION_PRINTF("%s\n", gckpt_result_text(result));
        return 1;
    }
    const uint64_t hash = gckpt_store_hash(store);
    REGRESSION_PRINTF("weights %08" PRIx32 "%08" PRIx32 "\n", (uint32_t)(hash >> 32), (uint32_t)hash);
    return 0;
}
#endif
