/* stack.c - what one switch costs and saves, and what a plan does: LoRA on a stack of the shape of
 * Llama 13B at 512 tokens, planned, not run. No weight is made: all are at the same few bytes.
 *
 *     build/stack            the table of docs/finetuning.md        (make stack)
 */
#define GRADCKPT_IMPLEMENTATION
#include "graphs.h"

enum { LAYERS = 40, HEADS = 40, DIM = 5120, INNER = 13824, VOCABULARY = 32000 };
enum { TOKENS = 512, RANK = 8 };

/* x W, frozen; with `rank` also + (x A) B, trained. */
static gckpt_tensor *dense(const place *p, const char *part, gckpt_tensor *x, int64_t in,
                           int64_t out, int rank)
{
    char name[32];
    snprintf(name, sizeof name, "%s%d.%s", p->part, p->layer, part);
    gckpt_tensor *w = net_weight(p, part, in, out);
    if (gckpt_store_freeze(p->n->store, name, 1) != GCKPT_OK)
        return NULL;
    gckpt_tensor *y = gckpt_linear(x, w, NULL);
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

static int open_stack(net *n)
{
    net_open(n, "Llama 13B", 1);
    place p = { n, "", 0, DIM, HEADS, 1, NULL };
    gckpt_shape shape = gckpt_shape2(1, TOKENS);
    gckpt_tensor *table = net_weight(&p, "table", VOCABULARY, DIM);
    gckpt_tensor *head = net_weight(&p, "head", VOCABULARY, DIM);
    gckpt_store_freeze(n->store, "*", 1);
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

/* Frees the plan. whole: the arena of store-all. */
static int print_row(const char *name, gckpt_plan *p, double whole)
{
    if (p == NULL)
        return 0;
    printf("| %s | %.0f | %.0f %% | %.1f | %.0f %% | +%.1f %% | +%.1f %% |\n", name,
           1e-6 * (double)gckpt_plan_arena(p), 100 * (double)gckpt_plan_arena(p) / whole,
           1e-9 * (double)gckpt_plan_bytes(p), 100 * gckpt_plan_recompute(p),
           100 * gckpt_plan_overhead(p), 100 * (gckpt_plan_overhead(p) - gckpt_plan_gap(p)));
    gckpt_plan_free(p);
    return 1;
}

static int print_rows(const net *n, const char *kept, gckpt_precision precision)
{
    static const double extras[] = { 0.10, 0.20 };
    char name[64];
    gckpt_plan *all = plan_of(n, precision, GCKPT_STORE_ALL, 0);
    gckpt_plan *block_by_block = plan_of(n, precision, GCKPT_SEGMENTS, 0);
    gckpt_plan_desc desc = { .precision = precision };
    gckpt_frontier *f = gckpt_frontier_new(n->graph, &n->loss, 1, &desc);
    gckpt_point least = { 0 };
    int good =
        all != NULL && block_by_block != NULL && gckpt_frontier_get(f, 0, &least) == GCKPT_OK;
    if (good) {
        const size_t arena = gckpt_plan_arena(all), others = gckpt_plan_bytes(all) - arena;
        const size_t same = gckpt_plan_bytes(block_by_block);
        snprintf(name, sizeof name, "store-all, %s", kept);
        good = print_row(name, all, (double)arena) &&
               print_row("one checkpoint a block", block_by_block, (double)arena);
        for (int i = 0; i < 2 && good; i++) {
            gckpt_point at = { 0 };
            for (int k = 0; gckpt_frontier_get(f, k, &at) == GCKPT_OK; k++)
                if (at.overhead <= extras[i])
                    break;
            snprintf(name, sizeof name, "**optimal**, +%.0f %%", 100 * extras[i]);
            good = print_row(name, plan_of(n, precision, GCKPT_OPTIMAL, at.bytes), (double)arena);
        }
        good = good &&
               print_row("**optimal**, half the bytes",
                         plan_of(n, precision, GCKPT_OPTIMAL, others + arena / 2), (double)arena) &&
               print_row("**optimal**, a block's bytes", plan_of(n, precision, GCKPT_OPTIMAL, same),
                         (double)arena) &&
               print_row("**optimal**, the least",
                         plan_of(n, precision, GCKPT_OPTIMAL, least.bytes), (double)arena);
    }
    gckpt_frontier_free(f);
    return good;
}

int main(void)
{
    net n;
    int good = open_stack(&n);
    printf("| plan | MB | of store-all | GB with weights | forwards again | extra time | no "
           "schedule below |\n|---|---|---|---|---|---|---|\n");
    good = good && print_rows(&n, "fp32", GCKPT_FP32) && print_rows(&n, "bf16", GCKPT_BF16);
    net_free(&n);
    return !good || fflush(stdout) != 0;
}
