/* Lesson 5: trains a GPT on a verse in four budgets; docs/playground/tiny.h has the training. */
#include "gradckpt.h"
#include "../playground/heap.h"
#include "../playground/tiny.h"
#include <stdio.h>

static const char verse[] = "Tyger Tyger, burning bright,\nIn the forests of the night;\n"
                            "What immortal hand or eye,\nCould frame thy fearful symmetry?\n";

int main(void)
{
    static const size_t budgets[] = { 0, 1200000, 900000, 500000 };
    const gckpt_memory memory = { resize, NULL, NULL, 0 };
    for (int i = 0; i < 4; i++) {
        const tiny_options o = { .layers = 2,
                                 .heads = 2,
                                 .width = 32,
                                 .context = 32,
                                 .rows = 8,
                                 .micro = 4,
                                 .lr = 0.01f,
                                 .budget = budgets[i],
                                 .seed = 1 };
        tiny t;
        double loss = 0;
        if (tiny_open(&t, &o, &memory, (const unsigned char *)verse, sizeof verse - 1)) {
            while (t.step < 150 && tiny_step(&t, &loss))
                continue;
            printf("%7zu bytes, %4.1f %% longer, loss %.4f, weights %016llx\n",
                   gckpt_plan_bytes(t.plan), 100 * gckpt_plan_describe(t.plan).overhead, loss,
                   (unsigned long long)gckpt_store_hash(t.store));
            unsigned char says[64];
            if (i == 0 && tiny_write(&t, says, 64, 16))
                printf("it writes: %.64s\n", (const char *)says);
        } else {
            printf("%s\n", t.error);
        }
        tiny_close(&t);
    }
    return 0;
}
