/* towers.c - two networks learn which halves of digits belong together: one reads the upper halves,
 * the other one the lower halves, and the two halves of a digit should get more similar outputs
 * than all other pairs (InfoNCE, van den Oord 2018; CLIP, Radford 2021). The loss compares rows, so
 * a batch cannot be split into micro-batches; gckpt_plan_split_exact reports that. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../digits.h"
#include "../layers.h"

enum { ROWS = 64, TRAINED = 1437 };

static float pixels[DIGITS][64], upper[ROWS][32], lower[ROWS][32];
static int32_t digit[DIGITS], same[ROWS];

/* Fills each row i of `upper` and `lower` with the halves of digit (from + i * stride) % count. */
static void put_halves(int from, int stride, int count)
{
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < 64; k++)
            (k < 32 ? upper[i] : lower[i])[k % 32] = pixels[(from + i * stride) % count][k];
}

static gckpt_tensor *tower(gckpt_tensor *x, const char *name)
{
    static const int64_t widths[] = { 64, 32 };
    return gckpt_rmsnorm(layers_mlp(x, name, widths, 2, 0), NULL, 0); /* rows of equal length */
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *up = gckpt_input(g, "upper", GCKPT_F32, gckpt_shape2(ROWS, 32));
    gckpt_tensor *low = gckpt_input(g, "lower", GCKPT_F32, gckpt_shape2(ROWS, 32));
    gckpt_tensor *labels = gckpt_input(g, "same", GCKPT_I32, gckpt_shape1(ROWS));
    gckpt_tensor *a = tower(up, "upper");
    gckpt_tensor *similarity = gckpt_matmul_transposed(a, tower(low, "lower")); /* shape (64,64) */
    similarity = gckpt_name(gckpt_scale(similarity, 0.2f), "alike");
    gckpt_term term = { gckpt_cross_entropy(similarity, labels, NULL, 0), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const gckpt_fetch_spec pick = { similarity, 0 };
    const gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch = { &pick, 1 } };
    gckpt_plan *eval_plan = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *eval_exec = gckpt_exec_new(eval_plan, s, NULL);
    const char *op = "";
    const int exact = gckpt_plan_split_exact(p, &op);
    printf("a batch may be split: %s (%s)\n", exact ? "yes" : "no", op);
    gckpt_feed feeds[3] = { { gckpt_id(up), upper },
                            { gckpt_id(low), lower },
                            { gckpt_id(labels), same } };
    gckpt_report report = { 0, 0, 0, 0 };
    int right = 0;
    digits_read(pixels, digit);
    for (int i = 0; i < ROWS; i++)
        same[i] = i; /* the upper half of row i belongs to the lower half of row i */
    for (int step = 0; step < 1000; step++) {
        put_halves(step * 97, 23, TRAINED); /* 64 different digits in each step */
        gckpt_hyper hyper = gckpt_hyper_lr(gckpt_lr_cosine((uint64_t)step, 20, 1000, 3e-3f, 0));
        if (gckpt_step(e, feeds, 3, ROWS, &hyper, &report) != GCKPT_OK)
            break;
        if (step % 250 == 249)
            printf("step %d: loss %.3f\n", step + 1, report.loss);
    }
    put_halves(TRAINED, 1, DIGITS); /* digits of people not seen in training */
    const int failed = gckpt_forward(eval_exec, feeds, 3, ROWS, &report) != GCKPT_OK;
    const float *logits = gckpt_fetch(eval_exec, gckpt_id(similarity), 0);
    for (int i = 0; i < ROWS && !failed; i++) {
        int best = 0;
        for (int k = 1; k < ROWS; k++)
            best = logits[i * ROWS + k] > logits[i * ROWS + best] ? k : best;
        right += best == i;
    }
    printf("new digits: loss %.3f (by chance 4.159), %d of 64 found; %s\n", report.loss, right,
           gckpt_error_text(e != NULL ? (const void *)e : s));
    gckpt_exec_free(e), gckpt_exec_free(eval_exec), gckpt_plan_free(p), gckpt_plan_free(eval_plan);
    gckpt_graph_free(g), gckpt_store_free(s);
    return failed || exact || report.loss > 2.5 || right < 16;
}
