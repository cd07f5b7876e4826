/* exchange.c - checks that training can resume from a file that was written on a machine with another byte order
 * (check_all.sh, cross-*).
 *
 *     exchange STEPS FROM TO   trains STEPS further steps, starting from file FROM (or from the beginning if
 *                              FROM is -), and saves weights, optimiser state and notes to file TO
 *
 * The net has a table quantised as I8, layers quantised as I4 and F16, and a layer trained by AdamW.
 */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 5, WORDS = 19, C = 32 };

int main(int argc, char **argv)
{
    static const char *const quantised[] = { "words", "first", "second" };
    static const gckpt_storage as[] = { GCKPT_STORAGE_I8, GCKPT_STORAGE_I4, GCKPT_STORAGE_F16 };
    const gckpt_init normal = { 0.4f, 0, 0 };
    if (argc != 4)
        return 2;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *word = gckpt_input(g, "word", GCKPT_I32, gckpt_shape1(ROWS));
    gckpt_tensor *x = gckpt_embed(gckpt_param(g, quantised[0], gckpt_shape2(WORDS, C), normal), word);
    for (int i = 1; i < 3; i++)
        x = gckpt_linear(x, gckpt_param(g, quantised[i], gckpt_shape2(C, C), normal), NULL);
    x = gckpt_linear(gckpt_gelu(x), gckpt_param(g, "head", gckpt_shape2(C, WORDS), normal), NULL);
    gckpt_term loss = { gckpt_cross_entropy(x, word, NULL, 0), 1, 0 };
    int wrong = 0;
    for (int i = 0; i < 3; i++)
        wrong |= gckpt_store_freeze(s, quantised[i], 1) || gckpt_store_quantise(s, quantised[i], as[i]);
    wrong |= *argv[2] != '-' && gckpt_store_load(s, argv[2], NULL);
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    const gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    gckpt_report report = { 0, 0, 0, 0 };
    for (int n = atoi(argv[1]); n > 0 && !wrong; n--) {
        int32_t words[ROWS];
        const gckpt_feed feed = { gckpt_id(word), words };
        for (int i = 0; i < ROWS; i++)
            words[i] = (int32_t)((gckpt_store_step(s) * 7 + (uint64_t)(i * 5)) % WORDS);
        wrong = gckpt_step(e, &feed, 1, ROWS, &hyper, &report) != GCKPT_OK;
    }
    wrong = wrong || gckpt_store_set_note(s, "who", "größe \"q\"") || gckpt_store_save(s, argv[3], NULL);
    printf("step %d, loss %g: %s\n", (int)gckpt_store_step(s), report.loss, gckpt_error_text(s));
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return wrong;
}
