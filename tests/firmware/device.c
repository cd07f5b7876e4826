/* device.c - trains the model of model.h with the plan that host.c printed as C (PLAN, in file TABLE): no graph, no
 * planner, no heap. All memory is two blocks, whose sizes the printed plan defines; if QUANTISED is 1, some weights
 * stay in flash. It compiles as C99 and as C++11; several_plans.c includes it several times. */
#ifndef GCKPT_SMALL /* GCKPT_SMALL implies these switches */
#define GCKPT_NO_HEAP
#define GCKPT_NO_STDIO
#ifndef FAST
#define GCKPT_NO_FAST
#endif
#endif
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "model.h"
#include TABLE
#include <stdio.h> /* for printf in this program; the library uses no stdio */

#ifndef PLAN
#define PLAN small
#endif
#ifndef QUANTISED
#define QUANTISED 0
#endif
#define JOINED(plan, what) plan##_##what
#define JOIN(plan, what)   JOINED(plan, what)
#define OF(what)           JOIN(PLAN, what)

int main(void)
{
    static char store_block[OF(store_bytes)], exec_block[OF(exec_bytes)];
    gckpt_store_desc store = { { NULL, NULL, store_block, sizeof store_block }, SEED };
    gckpt_store *s = gckpt_store_new(&store);
    if ((QUANTISED && model_flash(s) != GCKPT_OK) || gckpt_plan_params(&PLAN, s) != GCKPT_OK) {
        puts(gckpt_error_text(s));
        return 2;
    }
    static gckpt_exec_desc bind;
    bind.memory.memory = exec_block;
    bind.memory.size = sizeof exec_block;
#ifdef GCKPT_SMALL
    bind.debug = GCKPT_DEBUG_MEASURE; /* GCKPT_SMALL has no debugging modes: gckpt_exec_new must fail */
    if (gckpt_exec_new(&PLAN, s, &bind) || gckpt_error(s) != GCKPT_E_ARG ||
        gckpt_error_text(s) != gckpt_result_text(GCKPT_E_ARG))
        return 7;
#ifndef GCKPT_EDITION /* edition mcu has no such function */
    if (gckpt_graph_new(s, NULL) || gckpt_error(s) != GCKPT_E_ARG)
        return 7;
#endif
    bind.debug = 0;
#else
    bind.debug = GCKPT_DEBUG_MEASURE;
#endif
    gckpt_exec *e = gckpt_exec_new(&PLAN, s, &bind);
    if (!e) {
        puts(gckpt_error_text(s));
        return 3;
    }
    if (gckpt_store_need(&PLAN) > OF(store_bytes) || gckpt_exec_need(&PLAN, NULL) > OF(exec_bytes))
        return 6;
    gckpt_feed feeds[2] = { { OF(tokens), model_tokens }, { OF(to_say), model_targets } };
    gckpt_hyper hyper = { 0.01f, 0.1f, 0, 0, 0, 0, 1.0f };
    gckpt_report report;
    printf("%lu bytes\n", (unsigned long)gckpt_plan_bytes(&PLAN));
    for (int step = 0; step < STEPS; step++) {
        uint64_t bits;
        model_data(step);
        if (gckpt_step(e, feeds, 2, BATCH, &hyper, &report) != GCKPT_OK)
            return 4;
        memcpy(&bits, &report.loss, 8);
        printf("%016llx %g\n", (unsigned long long)bits, (double)*gckpt_fetch(e, OF(bent), 1));
    }
    printf("%016llx\n", (unsigned long long)gckpt_store_hash(s));
#ifndef GCKPT_NO_DEBUG
    if (gckpt_bytes_measured(e) != gckpt_plan_bytes(&PLAN))
        return 5;
#endif
    gckpt_exec_free(e);
    gckpt_plan_free(&PLAN); /* does nothing for a compiled plan, and must be harmless */
    gckpt_store_free(s);
    return 0;
}
