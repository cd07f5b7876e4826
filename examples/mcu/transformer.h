/* transformer.h - a small causal transformer for the jobs of this folder, and the text that it is
 * trained to continue letter by letter. */
#ifndef TRANSFORMER_H
#define TRANSFORMER_H
#include <string.h>

typedef struct {
    /* sizes of the network; hidden: width of the feed-forward layer */
    int time, width, heads, hidden, blocks;
    /* rank of the LoRA adapters on queries and values; 0 for no adapters */
    int rank;
} transformer_size;

enum { TRANSFORMER_LETTERS = 28 }; /* size of the alphabet: a to z, space and full stop */

#ifdef PLAN
static gckpt_tensor *transformer_param(gckpt_graph *g, int block, const char *what, int rows,
                                       int columns, float deviation)
{
    char name[32] = { 'h', (char)('0' + block), '.', 0 };
    const gckpt_init init = { deviation, 0, 0 };
    strcat(name, what);
    return gckpt_param(g, block < 0 ? what : name, gckpt_shape2(rows, columns), init);
}

/* Appends x w or, if z->rank is above 0, x w + (x a) b, a LoRA adapter (Hu 2021) whose b starts at
 * 0. */
static gckpt_tensor *transformer_linear(gckpt_tensor *x, const transformer_size *z, int block,
                                        const char *what, int has_adapter)
{
    gckpt_graph *g = gckpt_graph_of(x);
    const int c = z->width;
    gckpt_tensor *y = gckpt_linear(x, transformer_param(g, block, what, c, c, 0.2f), NULL);
    if (has_adapter && z->rank > 0) {
        char a[8] = { what[0], '.', 'a', 0 }, b[8] = { what[0], '.', 'b', 0 };
        x = gckpt_linear(x, transformer_param(g, block, a, c, z->rank, 0.2f), NULL);
        x = gckpt_linear(x, transformer_param(g, block, b, z->rank, c, 0), NULL);
        y = gckpt_add(y, x);
    }
    return y;
}

static gckpt_tensor *transformer_block(gckpt_tensor *x, const transformer_size *z, int block)
{
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_tensor *n = gckpt_rmsnorm(x, NULL, 0);
    gckpt_tensor *q = transformer_linear(n, z, block, "q", 1);
    gckpt_tensor *k = transformer_linear(n, z, block, "k", 0);
    gckpt_tensor *v = transformer_linear(n, z, block, "v", 1);
    gckpt_tensor *a = gckpt_attention(q, k, v, &(gckpt_attention_desc){ .heads = z->heads, .causal = 1 });
    x = gckpt_add(x, transformer_linear(a, z, block, "o", 0));
    n = gckpt_rmsnorm(x, NULL, 0);
    n = gckpt_linear(n, transformer_param(g, block, "up", z->width, z->hidden, 0.2f), NULL);
    n = gckpt_gelu(n);
    n = gckpt_linear(n, transformer_param(g, block, "down", z->hidden, z->width, 0.1f), NULL);
    return gckpt_add(x, n);
}

/* Builds the graph, with inputs "tokens" and "targets", for micro-batches of `rows` rows. */
static gckpt_term transformer_build(gckpt_graph *g, const transformer_size *z, int rows)
{
    gckpt_term term = { NULL, 1, 0 };
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(rows, z->time));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(rows, z->time));
    gckpt_tensor *letters =
        transformer_param(g, -1, "letters", TRANSFORMER_LETTERS, z->width, 0.3f);
    gckpt_tensor *x = gckpt_embed(letters, tokens);
    x = gckpt_positions(x, transformer_param(g, -1, "places", z->time, z->width, 0.1f), 0);
    for (int i = 0; i < z->blocks; i++)
        x = transformer_block(x, z, i);
    term.loss = gckpt_linear_cross_entropy(gckpt_rmsnorm(x, NULL, 0), letters, targets, NULL);
    return term;
}
#endif

/* Text of Mother Goose, in the versions of 1755 and 1806. */
static const char transformer_jack[] =
    "this is the house that jack built. this is the malt that lay in the house that jack built. "
    "this is the rat that ate the malt that lay in the house that jack built. this is the cat "
    "that killed the rat that ate the malt that lay in the house that jack built. this is the dog "
    "that worried the cat that killed the rat that ate the malt that lay in the house that jack "
    "built. this is the cow with the crumpled horn that tossed the dog that worried the cat. ";
static const char transformer_star[] =
    "twinkle twinkle little star how i wonder what you are. up above the world so high like a "
    "diamond in the sky. when the blazing sun is gone when he nothing shines upon then you show "
    "your little light twinkle twinkle all the night. ";

static int32_t transformer_letter(char c) { return c == ' ' ? 26 : c == '.' ? 27 : c - 'a'; }

/* Fills the rows of a step with pieces of the text. Where a piece begins depends on step and row
 * only. */
static void transformer_rows(const char *text, uint64_t step, int rows, int time, int32_t *tokens,
                               int32_t *targets)
{
    const size_t places = strlen(text) - 1 - (size_t)time;
    for (int i = 0; i < rows * time; i++) {
        const uint32_t row = (uint32_t)step * 64 + (uint32_t)(i / time) + 1;
        const char *letter = text + (row * 2654435761u >> 16) % places + i % time;
        tokens[i] = transformer_letter(letter[0]);
        targets[i] = transformer_letter(letter[1]);
    }
}

#ifndef PLAN
/* A training task: its text, learning rate and step size, and the feeds of a step. */
typedef struct {
    const char *text;
    float lr;
    int rows, time;
    int32_t *tokens, *targets;
    gckpt_feed feeds[2];
} transformer_task;

/* Runs one step of the task `l`. Returns 1 after an error, else 0. */
static int transformer_step(job *j, const transformer_task *l, uint64_t step)
{
    gckpt_hyper hyper = gckpt_hyper_lr(l->lr);
    gckpt_report report;
    hyper.clip = 1;
    transformer_rows(l->text, step, l->rows, l->time, l->tokens, l->targets);
    const uint64_t began = board_instructions();
    if (job_failed(j, gckpt_step(j->exec, l->feeds, 2, l->rows, &hyper, &report)))
        return 1;
    job_add_step(j, report.loss, board_instructions() - began);
    return 0;
}
#endif
#endif
