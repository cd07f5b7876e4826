/* towers.c - two towers find out which halves belong together: one reads the upper halves of 64
 * digits, the other the lower halves; each pair is to be more alike than all mixed pairs (InfoNCE,
 * van den Oord 2018; CLIP, Radford 2021). Here rows are compared with each other, so a batch cannot
 * be split: gckpt_plan_split_exact says so, and names the op. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "digits.h"
#include "layers.h"

enum { ROWS = 64, TRAINED = 1437 };

static float pixels[DIGITS][64], upper[ROWS][32], lower[ROWS][32];
static int32_t digit[DIGITS], same[ROWS];

/* Row i is digit from + i * stride (of the first `of`), cut in two. */
static void halves(int from, int stride, int of)
{
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < 64; k++)
            (k < 32 ? upper[i] : lower[i])[k % 32] = pixels[(from + i * stride) % of][k];
}

static gckpt_tensor *tower(gckpt_tensor *x, const char *name)
{
    static const int64_t widths[] = { 64, 32 };
    return gckpt_rmsnorm(layers_mlp(x, name, widths, 2, 0), NULL); /* all of one length */
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *up = gckpt_input(g, "upper", GCKPT_F32, gckpt_shape2(ROWS, 32));
    gckpt_tensor *low = gckpt_input(g, "lower", GCKPT_F32, gckpt_shape2(ROWS, 32));
    gckpt_tensor *which = gckpt_input(g, "same", GCKPT_I32, gckpt_shape1(ROWS));
    gckpt_tensor *a = tower(up, "upper");
    gckpt_tensor *alike = gckpt_matmul_transposed(a, tower(low, "lower")); /* (64,64) */
    alike = gckpt_name(gckpt_scale(alike, 0.2f), "alike");
    gckpt_term term = { gckpt_cross_entropy(alike, which), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const char *op = "";
    const int exact = gckpt_plan_split_exact(p, &op);
    printf("splits of the batch are %s (%s)\n", exact ? "exact" : "not the same training", op);
    if (e == NULL)
        printf("%s\n", gckpt_error_text(p == NULL ? (const void *)g : s));
    gckpt_feed feeds[3] = { { gckpt_id(up), upper },
                            { gckpt_id(low), lower },
                            { gckpt_id(which), same } };
    gckpt_hyper hyper = gckpt_hyper_lr(3e-3f);
    gckpt_report report = { 0, 0, 0, 0 };
    digits_read(pixels, digit);
    for (int i = 0; i < ROWS; i++)
        same[i] = i; /* the upper half of row i belongs to the lower half of row i */
    for (int step = 0; e != NULL && step < 1000; step++) {
        halves(step * 97, 23, TRAINED); /* 64 different digits, others each time */
        hyper.lr = gckpt_lr_cosine((uint64_t)step, 20, 1000, 3e-3f, 0);
        if (gckpt_step(e, feeds, 3, ROWS, &hyper, &report) != GCKPT_OK)
            printf("%s\n", gckpt_error_text(e));
        if (step % 200 == 199)
            printf("step %d: loss %.3f\n", step + 1, report.loss);
    }
    hyper.lr = 0; /* 64 digits of people whom it has not seen */
    halves(TRAINED, 1, DIGITS);
    double loss = 9;
    if (e != NULL && gckpt_step(e, feeds, 3, ROWS, &hyper, &report) == GCKPT_OK)
        loss = report.loss;
    printf("new digits: loss %.3f (by chance %.3f)\n", loss, 4.159);
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    return exact || !(loss < 2.5);
}
