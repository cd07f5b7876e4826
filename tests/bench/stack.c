/* stack.c - what one switch costs and saves, and what a plan does: LoRA on a stack of the shape of
 * Llama 13B at 512 tokens, planned, not run. No weight is made: all are at the same few bytes.
 *
 *     build/stack            the table of docs/finetuning.md        (make stack)
 */
#define GRADCKPT_IMPLEMENTATION
#include "graphs.h"

enum { LAYERS = 40, HEADS = 40, DIM = 5120, INNER = 13824, VOCABULARY = 32000 };
enum { TOKENS = 512, RANK = 8 };

/* Frozen (rows,columns): floats, or int8 with a scale for each row, which a plan brings into the
 * arena as floats. */
static gckpt_tensor *frozen(const place *p, const char *part, int64_t rows, int64_t columns)
{
    static float nothing;
    const gckpt_init zero = { 0, 0, 0 };
    const gckpt_shape shape = gckpt_shape2(rows, columns);
    char name[32];
    snprintf(name, sizeof name, "%d.%s", p->layer, part);
    if (*p->part != 0)
        gckpt_store_external_packed(p->n->store, name, shape, GCKPT_STORED_I8, &nothing, &nothing);
    else
        gckpt_store_external(p->n->store, name, shape, &nothing, 0);
    return gckpt_param(p->n->graph, name, shape, zero);
}

/* x W; with `rank` also + (x A) B, which is trained. */
static gckpt_tensor *dense(const place *p, const char *part, gckpt_tensor *x, int64_t in,
                           int64_t out, int rank)
{
    char name[32];
    gckpt_tensor *y = gckpt_linear(x, frozen(p, part, in, out), NULL);
    if (rank == 0)
        return y;
    snprintf(name, sizeof name, "%s.A", part);
    gckpt_tensor *a = gckpt_linear(x, net_weight(p, name, in, rank), NULL);
    snprintf(name, sizeof name, "%s.B", part);
    return gckpt_add(y, gckpt_linear(a, net_weight(p, name, rank, out), NULL));
}

/* A block of Llama: RMSNorm (its gain is in the next product), rotary attention, SwiGLU. */
static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const place *p = (const place *)user;
    gckpt_tensor *h = gckpt_rmsnorm(x, NULL);
    gckpt_tensor *q = gckpt_rotary(dense(p, "q", h, DIM, DIM, RANK), HEADS, 0);
    gckpt_tensor *k = gckpt_rotary(dense(p, "k", h, DIM, DIM, 0), HEADS, 0);
    gckpt_tensor *v = dense(p, "v", h, DIM, DIM, RANK);
    x = gckpt_add(x, dense(p, "o", gckpt_attention(q, k, v, HEADS, 1), DIM, DIM, 0));
    h = gckpt_rmsnorm(x, NULL);
    gckpt_tensor *gate = gckpt_silu(dense(p, "gate", h, DIM, INNER, 0));
    h = gckpt_mul(gate, dense(p, "up", h, DIM, INNER, 0));
    return gckpt_add(x, dense(p, "down", h, INNER, DIM, 0));
}

static int open_stack(net *n, int int8)
{
    net_open(n, "Llama 13B", 1);
    place p = { n, int8 ? "int8 " : "", 0, DIM, HEADS, 1, NULL };
    gckpt_shape shape = gckpt_shape2(1, TOKENS);
    gckpt_tensor *table = frozen(&p, "table", VOCABULARY, DIM);
    gckpt_tensor *head = frozen(&p, "head", VOCABULARY, DIM);
    gckpt_tensor *x = gckpt_embed(table, gckpt_input(n->graph, "tokens", GCKPT_I32, shape));
    for (; p.layer < LAYERS; p.layer++)
        x = gckpt_checkpoint(block, x, &p);
    gckpt_tensor *target = gckpt_input(n->graph, "targets", GCKPT_I32, shape);
    return net_close(n, gckpt_linear_cross_entropy(gckpt_rmsnorm(x, NULL), head, target));
}

static gckpt_plan *plan_of(const net *n, gckpt_precision precision, gckpt_mode mode, size_t budget)
{
    gckpt_plan_desc desc = { .mode = mode, .budget = budget, .precision = precision };
    gckpt_plan *p = gckpt_plan_new(n->graph, &n->loss, 1, &desc);
    if (p == NULL)
        fprintf(stderr, "stack: %s\n", gckpt_error_text(n->graph));
    return p;
}

/* Frees the plan. whole: bytes of store-all's arena. */
static int print_row(const char *name, gckpt_plan *p, size_t whole)
{
    if (p == NULL)
        return 0;
    printf("| %s | %.0f | %.0f %% | %.0f %% | +%.1f %% | +%.1f %% |\n", name,
           1e-6 * (double)gckpt_plan_arena(p), 100 * (double)gckpt_plan_arena(p) / (double)whole,
           100 * gckpt_plan_recompute(p), 100 * gckpt_plan_overhead(p),
           100 * (gckpt_plan_overhead(p) - gckpt_plan_gap(p)));
    gckpt_plan_free(p);
    return 1;
}

/* *whole: bytes of store-all's arena, 0: not known yet. */
static int print_rows(const net *n, const char *what, gckpt_precision precision, size_t *whole)
{
    static const double extras[] = { 0.10, 0.20 };
    const gckpt_plan_desc desc = { .precision = precision };
    gckpt_frontier *f = gckpt_frontier_new(n->graph, &n->loss, 1, &desc);
    gckpt_plan *blocks = plan_of(n, precision, GCKPT_SEGMENTS, 0);
    gckpt_point least = { 0, 0, 0, 0, 0 };
    int good = blocks != NULL && gckpt_frontier_get(f, 0, &least) == GCKPT_OK;
    printf("| *%s* | | | | | |\n", what);
    if (good && *whole == 0) {
        gckpt_plan *all = plan_of(n, precision, GCKPT_STORE_ALL, 0);
        *whole = all != NULL ? gckpt_plan_arena(all) : 0;
        good = print_row("store-all", all, *whole);
    }
    const size_t block_bytes = good ? gckpt_plan_bytes(blocks) : 0;
    const size_t others = good ? block_bytes - gckpt_plan_arena(blocks) : 0;
    good = good && print_row("one checkpoint a block", blocks, *whole) &&
           print_row("**optimal**, half of store-all",
                     plan_of(n, precision, GCKPT_OPTIMAL, others + *whole / 2), *whole);
    for (int i = 0; i < 2 && good; i++) {
        char name[64];
        gckpt_point at = least;
        for (int k = 0; gckpt_frontier_get(f, k, &at) == GCKPT_OK && at.overhead > extras[i];)
            k++;
        snprintf(name, sizeof name, "**optimal**, at most +%.0f %%", 100 * extras[i]);
        good = print_row(name, plan_of(n, precision, GCKPT_OPTIMAL, at.bytes), *whole);
    }
    good = good &&
           print_row("**optimal**, in a checkpoint a block's bytes",
                     plan_of(n, precision, GCKPT_OPTIMAL, block_bytes), *whole) &&
           print_row("**optimal**, the least", plan_of(n, precision, GCKPT_OPTIMAL, least.bytes),
                     *whole);
    gckpt_frontier_free(f);
    return good;
}

int main(void)
{
    int good = 1;
    size_t fp32 = 0, bf16 = 0;
    printf("| plan | MB | of store-all | forwards again | extra time | no schedule below |\n"
           "|---|---|---|---|---|---|\n");
    for (int int8 = 0; int8 < 2 && good; int8++) {
        net n;
        good = open_stack(&n, int8) &&
               (int8 || print_rows(&n, "activations fp32", GCKPT_FP32, &fp32)) &&
               print_rows(&n, int8 ? "bf16, weights int8" : "activations bf16", GCKPT_BF16, &bf16);
        net_free(&n);
    }
    return !good || fflush(stdout) != 0;
}
