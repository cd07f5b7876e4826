/* device.c - a device without heap, files, planner and operating system learns to predict the next
 * value of its sensor. The host plans the training and prints the plan as C. The device runs that
 * plan in two static blocks of memory, whose sizes the printed plan contains. It adds each row to
 * the current step as soon as the row has been measured.
 *
 *     cc -DHOST device.c -o host && ./host > device_plan.h && cc device.c -o device */
#define GRADCKPT_IMPLEMENTATION
#ifndef HOST
#define GCKPT_NO_HEAP
#define GCKPT_NO_STDIO
#define GCKPT_NO_FAST /* no vector kernels: less code, slower */
#endif
#include "gradckpt.h"
#include <stdio.h> /* only for printing the result */

enum { PAST = 8, BATCH = 16 }; /* PAST: sensor values in a row; BATCH: rows of a step */

#ifdef HOST
static size_t to_stdout(void *user, const void *bytes, size_t size)
{
    (void)user;
    return fwrite(bytes, 1, size, stdout);
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *past =
        gckpt_input(g, "past", GCKPT_F32, gckpt_shape2(1, PAST)); /* a micro-batch is one row */
    gckpt_tensor *next = gckpt_input(g, "next", GCKPT_F32, gckpt_shape2(1, 1));
    const gckpt_init normal = { 0.3f, 0, 0 }, zero = { 0, 0, 0 };
    gckpt_tensor *w1 = gckpt_param(g, "w1", gckpt_shape2(PAST, 12), normal);
    gckpt_tensor *b1 = gckpt_param(g, "b1", gckpt_shape1(12), zero);
    gckpt_tensor *h = gckpt_tanh(gckpt_linear(past, w1, b1));
    h = gckpt_linear(h, gckpt_param(g, "w2", gckpt_shape2(12, 1), normal), NULL);
    const gckpt_term term = { gckpt_mean_squared_error(h, next, NULL), 1, 0 };
    const gckpt_plan_desc desc = { .batch = BATCH, .kernels.plain = 1 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
    const int failed = gckpt_plan_c(p, "plan", to_stdout, NULL) != GCKPT_OK;
    if (failed)
        fprintf(stderr, "%s\n", gckpt_error_text(g));
    gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return failed;
}
#else
#include "device_plan.h"

static char store_block[plan_store_bytes], exec_block[plan_exec_bytes];

int main(void)
{
    const gckpt_store_desc in = { { NULL, NULL, store_block, sizeof store_block }, 0 };
    const gckpt_exec_desc bind = { .memory = { .memory = exec_block, .size = sizeof exec_block } };
    gckpt_store *s = gckpt_store_new(&in);
    int failed = gckpt_plan_params(&plan, s) != GCKPT_OK;
    gckpt_exec *e = gckpt_exec_new(&plan, s, &bind);
    const gckpt_hyper hyper = gckpt_hyper_lr(1e-2f);
    gckpt_report report = { 0, 0, 0, 0 };
    float past[PAST + 1] = { 0 }, a = 1, b = 0.9f, c = 0, d = 1; /* a, c: two sine waves */
    for (int step = 0; step < 300 && !failed; step++) {
        failed = gckpt_step_begin(e, &hyper) != GCKPT_OK;
        for (int row = 0; row < BATCH && !failed; row++) {
            const float e1 = 1.8f * a - b, e2 = 1.2f * c - d; /* next values of the waves */
            const gckpt_feed feeds[] = { { plan_past, past }, { plan_next, &past[PAST] } };
            b = a, a = e1, d = c, c = e2;
            memmove(past, past + 1, PAST * sizeof past[0]);
            past[PAST] = a / 4 + c / 2;
            failed = gckpt_step_add(e, feeds, 2, 1) != GCKPT_OK;
        }
        failed = failed || gckpt_step_end(e, &report) != GCKPT_OK;
        if (step % 100 == 0 || step == 299)
            printf("step %d: mean squared error %g\n", step, report.loss);
    }
    printf("%lu bytes in two blocks; %s\n", (unsigned long)(sizeof store_block + sizeof exec_block),
           gckpt_error_text(e != NULL ? (const void *)e : s));
    return failed || !(report.loss < 1e-3);
}
#endif
