/* Trains tiny.h's GPT by gradckpt.h; prints each step's loss and the hash of the weights:
 *
 *     scratch_header BLOCKS HEADS WIDTH CONTEXT ROWS MICRO UNEQUAL DECAY FAULT STEPS
 *
 * DECAY is the weight decay in hundredths. If FAULT is 1, it minimises the mean of the micro-batches'
 * means and prints only the hash. */
#include "gradckpt.h"
#include "../../docs/playground/heap.h"
#include "../../docs/playground/tiny.h"
#include <stdio.h>
#include <stdlib.h>

static const char verse[] = "Tyger Tyger, burning bright,\nIn the forests of the night;\n"
                            "What immortal hand or eye,\nCould frame thy fearful symmetry?\n";

/* Trains a step like tiny_step, with weight decay. */
static int step_with_decay(tiny *t, float decay, double *loss)
{
    gckpt_hyper hyper = gckpt_hyper_lr(t->o.lr);
    gckpt_report report;
    hyper.weight_decay = decay;
    for (int r = 0; r < t->o.rows; r++) {
        tiny_row(t, r);
        ((float *)t->room[2])[r] = 1;
    }
    t->step++;
    if (gckpt_step(t->exec, t->feeds, 3, t->o.rows, &hyper, &report) != GCKPT_OK)
        return tiny_fails(t, gckpt_error_text(t->exec));
    *loss = report.loss;
    return 1;
}

int main(int argc, char **argv)
{
    const gckpt_memory memory = { resize, NULL, NULL, 0 };
    int n[10];
    for (int i = 0; i < 10; i++)
        n[i] = i + 1 < argc ? atoi(argv[i + 1]) : 0;
    const tiny_options o = { .layers = n[0],
                             .heads = n[1],
                             .width = n[2],
                             .context = n[3],
                             .rows = n[4],
                             .micro = n[5],
                             .unequal = n[6],
                             .fault = n[8],
                             .lr = 0.01f,
                             .seed = 1 };
    tiny t;
    double loss = 0;
    int ok = tiny_open(&t, &o, &memory, (const unsigned char *)verse, sizeof verse - 1);
    for (int step = 0; ok && step < n[9]; step++) {
        ok = n[7] ? step_with_decay(&t, (float)n[7] / 100, &loss) : tiny_step(&t, &loss);
        if (ok && !o.fault)
            printf("loss %a\n", loss);
    }
    if (ok)
        printf("%016llx\n", (unsigned long long)gckpt_store_hash(t.store));
    else
        fprintf(stderr, "%s\n", t.error);
    tiny_close(&t);
    return !ok;
}
