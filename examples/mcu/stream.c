/* stream.c - trains a small convolutional net on digits that arrive one row at a time, each row
 * followed by its label. A step over new rows adds each row when it arrives (gckpt_step_add). A
 * second step repeats the same rows, a few instructions at a time (gckpt_run_some). Between these
 * calls, the program feeds the watchdog, which otherwise resets the board. If the program is
 * started with the number 1, it hangs once, and the watchdog's reset restarts it. */
#include "job.h"
#include "../digits.h"

/* ROWS: rows of a step; PIECE: instructions between two feedings of the watchdog, which resets the
 * board after WATCHDOG_MS milliseconds */
enum { ROWS = 8, ROUNDS = 24, PIXELS = 64, CLASSES = 10, PIECE = 4, WATCHDOG_MS = 100 };

#ifdef PLAN
static gckpt_tensor *param(gckpt_graph *g, const char *name, gckpt_shape shape, float deviation)
{
    const gckpt_init init = { deviation, 0, 0 };
    return gckpt_param(g, name, shape, init);
}

int main(void)
{
    const gckpt_window three = { .padding = { 1, 1 } }, two = { .size = { 2, 2 } };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "image", GCKPT_F32, gckpt_shape4(1, 8, 8, 1));
    gckpt_tensor *y = gckpt_input(g, "digit", GCKPT_I32, gckpt_shape1(1));
    gckpt_tensor *w = param(g, "w1", gckpt_shape4(3, 3, 1, 4), 0.4f);
    x = gckpt_relu(gckpt_conv2d(x, w, param(g, "b1", gckpt_shape1(4), 0), &three));
    x = gckpt_max_pool(x, &two);
    w = param(g, "w2", gckpt_shape4(3, 3, 4, 8), 0.2f);
    x = gckpt_relu(gckpt_conv2d(x, w, param(g, "b2", gckpt_shape1(8), 0), &three));
    x = gckpt_reshape(gckpt_max_pool(x, &two), gckpt_shape2(1, 32));
    w = param(g, "w3", gckpt_shape2(32, CLASSES), 0.2f);
    x = gckpt_linear(x, w, param(g, "b3", gckpt_shape1(CLASSES), 0));
    const gckpt_term term = { gckpt_cross_entropy(x, y, NULL, 0), 1, 0 };
    const gckpt_fetch_spec logits = { gckpt_name(x, "logits"), 0 };
    gckpt_plan_desc desc = { .batch = ROWS, .fetch.specs = &logits, .fetch.count = 1 };
    return job_print_plan(g, &term, &desc);
}
#else
#include "stream_plan.h"

static char store_block[plan_store_bytes], exec_block[plan_exec_bytes];
static float images[ROWS][PIXELS];
static int32_t digits[ROWS];
/* Number of rows classified correctly before the network was trained on them: right[0] in the first
 * half of the rows, right[1] in the second half. */
static int right[2];

static void sense(int row, int place)
{
    const char *from = digits_rows[row % DIGITS];
    for (int i = 0; i < PIXELS; i++)
        images[place][i] = (float)(from[i] - 'A') / 16;
    digits[place] = from[PIXELS] - '0';
}

static int guess(const float *logits)
{
    int best = 0;
    for (int i = 1; i < CLASSES; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Runs a step over new rows; each row is added as soon as it arrives. */
static int train_new(job *j, int round, const gckpt_hyper *hyper)
{
    const uint64_t began = board_instructions();
    gckpt_report report;
    if (job_failed(j, gckpt_step_begin(j->exec, hyper)))
        return 1;
    for (int i = 0; i < ROWS; i++) {
        const gckpt_feed feeds[2] = { { plan_image, images[i] }, { plan_digit, &digits[i] } };
        sense(round * ROWS + i, i);
        if (job_failed(j, gckpt_step_add(j->exec, feeds, 2, 1)))
            return 1;
        right[2 * round / ROUNDS] += guess(gckpt_fetch(j->exec, plan_logits, 0)) == digits[i];
        board_feed();
    }
    if (job_failed(j, gckpt_step_end(j->exec, &report)))
        return 1;
    job_add_step(j, report.loss, board_instructions() - began);
    return 0;
}

/* Runs another step over the rows of the last step, PIECE instructions at a time. */
static int train_repeat(job *j, const gckpt_hyper *hyper)
{
    const gckpt_feed feeds[2] = { { plan_image, images }, { plan_digit, digits } };
    gckpt_result result = gckpt_step_start(j->exec, feeds, 2, ROWS, hyper);
    result = result == GCKPT_OK ? GCKPT_MORE : result;
    while (result == GCKPT_MORE) {
        result = gckpt_run_some(j->exec, PIECE, NULL);
        board_feed();
    }
    return job_failed(j, result);
}

int main(void)
{
    const gckpt_hyper hyper = gckpt_hyper_lr(2e-2f);
    job j;
    job_new_store(&j, store_block, sizeof store_block);
    int failed = job_bind(&j, &plan, exec_block, sizeof exec_block);
    board_watchdog(WATCHDOG_MS);
    if (board_watchdog_resets() > 0)
        board_print("reset by the watchdog\n");
    for (int round = 0; round < ROUNDS && !failed; round++) {
        failed = train_new(&j, round, &hyper) || train_repeat(&j, &hyper);
        while (round == 2 && board_argument() == 1 && board_watchdog_resets() == 0)
            ; /* endless loop, to test the watchdog */
    }
    job_print_line("right of the first half ", (uint32_t)right[0]);
    job_print_line("right of the second half ", (uint32_t)right[1]);
    return failed || job_report(&j);
}
#endif
