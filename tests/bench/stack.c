/* stack.c - prints plans of every mode for LoRA on a stack of Llama 13B's shape with 512 tokens, and the bytes that a
 * model of Llama-3.2-1B's shape needs for each storage of its weights. Nothing runs and no weight is allocated;
 * recorded in docs/benchmarks/finetuning.tsv.
 *
 *     build/stack            (or: make lora-memory) */
#define GRADCKPT_IMPLEMENTATION
#include "graphs.h"

enum { TOKENS = 512, RANK = 8 };

typedef struct {
    const char *name;
    int layers, heads, key_heads, dim, inner, vocabulary, tied;
} shape_of_model;

static const shape_of_model llama_13b = { "Llama 13B", 40, 40, 40, 5120, 13824, 32000, 0 };
static const shape_of_model llama_1b = { "Llama-3.2-1B", 16, 32, 8, 2048, 8192, 128256, 1 };

/* A layer of a stack. */
typedef struct {
    place at;
    const shape_of_model *model;
} layer_place;

/* Returns a weight of shape (rows,columns). The name of a frozen weight begins with "frozen.". */
static gckpt_tensor *weight(const place *p, const char *part, int frozen, int64_t rows,
                            int64_t columns)
{
    const gckpt_init zero = { 0, 0, 0 };
    char name[40];
    snprintf(name, sizeof name, "%s%d.%s", frozen ? "frozen." : "", p->layer, part);
    return gckpt_param(p->n->graph, name, gckpt_shape2(rows, columns), zero);
}

/* Returns x W, plus the trained product (x A) B if `rank` is nonzero. */
static gckpt_tensor *dense(const place *p, const char *part, gckpt_tensor *x, int64_t in,
                           int64_t out, int rank)
{
    char name[32];
    gckpt_tensor *y = gckpt_linear(x, weight(p, part, 1, in, out), NULL);
    if (rank == 0)
        return y;
    snprintf(name, sizeof name, "%s.A", part);
    gckpt_tensor *a = gckpt_linear(x, weight(p, name, 0, in, rank), NULL);
    snprintf(name, sizeof name, "%s.B", part);
    return gckpt_add(y, gckpt_linear(a, weight(p, name, 0, rank, out), NULL));
}

/* Builds a block of a Llama: RMSNorm without a gain (which the next product includes), rotary attention, SwiGLU. */
static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const layer_place *s = (const layer_place *)user;
    const place *p = &s->at;
    const int heads = s->model->heads, dim = s->model->dim, inner = s->model->inner;
    const int keys = dim / heads * s->model->key_heads;
    gckpt_tensor *h = gckpt_rmsnorm(x, NULL, 0);
    gckpt_tensor *q = gckpt_rotary(dense(p, "q", h, dim, dim, RANK), &(gckpt_rotary_desc){ .heads = heads });
    gckpt_tensor *k =
        gckpt_rotary(dense(p, "k", h, dim, keys, 0), &(gckpt_rotary_desc){ .heads = s->model->key_heads });
    gckpt_tensor *v = dense(p, "v", h, dim, keys, RANK);
    const gckpt_attention_desc causal = { heads, s->model->key_heads, 1, NULL, 0, 0, 0, NULL, NULL, NULL };
    h = gckpt_attention(q, k, v, &causal);
    x = gckpt_add(x, dense(p, "o", h, dim, dim, 0));
    h = gckpt_rmsnorm(x, NULL, 0);
    gckpt_tensor *gate = gckpt_silu(dense(p, "gate", h, dim, inner, 0));
    h = gckpt_mul(gate, dense(p, "up", h, dim, inner, 0));
    return gckpt_add(x, dense(p, "down", h, inner, dim, 0));
}

static int open_stack(net *n, const shape_of_model *model, gckpt_storage storage)
{
    net_open(n, model->name, 1);
    layer_place s = { { n, "", 0, model->dim, model->heads, 1, NULL }, model };
    gckpt_shape shape = gckpt_shape2(1, TOKENS);
    gckpt_tensor *table = weight(&s.at, "table", 1, model->vocabulary, model->dim), *head = table;
    if (!model->tied)
        head = weight(&s.at, "head", 1, model->vocabulary, model->dim);
    gckpt_tensor *x = gckpt_embed(table, gckpt_input(n->graph, "tokens", GCKPT_I32, shape));
    for (; s.at.layer < model->layers; s.at.layer++)
        x = gckpt_checkpoint(block, x, &s);
    gckpt_tensor *target = gckpt_input(n->graph, "targets", GCKPT_I32, shape);
    gckpt_store_freeze(n->store, "frozen.*", 1);
    gckpt_store_quantise(n->store, "frozen.*", storage);
    return net_close(n, gckpt_linear_cross_entropy(gckpt_rmsnorm(x, NULL, 0), head, target, NULL));
}

static gckpt_plan *plan_of(const net *n, gckpt_precision precision, gckpt_mode mode, size_t budget)
{
    gckpt_plan_desc desc = { .mode = mode, .budget = budget, .bf16.precision = precision };
    gckpt_plan *p = gckpt_plan_new(n->graph, &n->loss, 1, &desc);
    if (p == NULL)
        fprintf(stderr, "stack: %s\n", gckpt_error_text(n->graph));
    return p;
}

/* Prints the plan's row of the table and frees the plan. whole: bytes of a store-all plan's arena. */
static int print_row(const char *name, gckpt_plan *p, size_t whole)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    if (p == NULL)
        return 0;
    printf("| %s | %.0f | %.0f %% | %.0f %% | +%.1f %% | +%.1f %% |\n", name,
           1e-6 * (double)info.arena, 100 * (double)info.arena / (double)whole,
           100 * info.recompute, 100 * info.overhead,
           100 * (info.overhead - info.gap));
    gckpt_plan_free(p);
    return 1;
}

/* Prints the rows of a precision. The row of store-all is printed only if *whole is 0, which is then set to the bytes
 * of that plan's arena. */
static int print_rows(const net *n, const char *what, gckpt_precision precision, size_t *whole)
{
    static const double extras[] = { 0.10, 0.20 };
    const gckpt_plan_desc desc = { .bf16.precision = precision };
    gckpt_frontier *f = gckpt_frontier_new(n->graph, &n->loss, 1, &desc);
    gckpt_plan *blocks = plan_of(n, precision, GCKPT_SEGMENTS, 0);
    gckpt_point least = { 0, 0, 0, 0, 0 };
    int good = blocks != NULL && gckpt_frontier_get(f, 0, &least) == GCKPT_OK;
    printf("| *%s* | | | | | |\n", what);
    if (good && *whole == 0) {
        gckpt_plan *all = plan_of(n, precision, GCKPT_STORE_ALL, 0);
        *whole = all != NULL ? gckpt_plan_describe(all).arena : 0;
        good = print_row("store-all", all, *whole);
    }
    const size_t block_bytes = good ? gckpt_plan_bytes(blocks) : 0;
    const size_t others = good ? block_bytes - gckpt_plan_describe(blocks).arena : 0;
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

/* Prints the bytes of weights in this storage, and the least bytes of a plan with them for each precision. */
static int print_quantised(const char *name, gckpt_storage storage)
{
    size_t least[2] = { 0, 0 }, weights = 0;
    net n;
    int good = open_stack(&n, &llama_1b, storage);
    for (int bf16 = 0; bf16 < 2 && good; bf16++) {
        const gckpt_plan_desc desc = { .bf16.precision = bf16 ? GCKPT_BF16 : GCKPT_FP32 };
        gckpt_frontier *f = gckpt_frontier_new(n.graph, &n.loss, 1, &desc);
        gckpt_point at = { 0, 0, 0, 0, 0 };
        good = gckpt_frontier_get(f, 0, &at) == GCKPT_OK;
        least[bf16] = at.bytes;
        weights = gckpt_store_bytes(n.store);
        gckpt_frontier_free(f);
    }
    if (good)
        printf("| %s | %.0f | %.0f | %.0f |\n", name, 1e-6 * (double)weights,
               1e-6 * (double)least[0], 1e-6 * (double)least[1]);
    net_free(&n);
    return good;
}

int main(void)
{
    static const char *const names[] = { "floats", "bf16", "f16", "int8", "int4" };
    size_t fp32 = 0, bf16 = 0, int8 = 0;
    net n;
    printf("| plan | MB | of store-all | forwards again | extra time | no schedule below |\n"
           "|---|---|---|---|---|---|\n");
    int good = open_stack(&n, &llama_13b, GCKPT_STORAGE_F32) &&
               print_rows(&n, "activations fp32", GCKPT_FP32, &fp32) &&
               print_rows(&n, "activations bf16", GCKPT_BF16, &bf16);
    net_free(&n);
    good = good && open_stack(&n, &llama_13b, GCKPT_STORAGE_I8);
    gckpt_plan *all = good ? plan_of(&n, GCKPT_BF16, GCKPT_STORE_ALL, 0) : NULL;
    int8 = all != NULL ? gckpt_plan_describe(all).arena : 0;
    gckpt_plan_free(all);
    net_free(&n);
    printf("\n| %s, weights as | weights, MB | least, fp32, MB | least, bf16, MB |\n|---|---|---|---|\n",
           llama_1b.name);
    for (int k = 0; k < 5 && good; k++)
        good = k == GCKPT_STORAGE_F16 || print_quantised(names[k], (gckpt_storage)k);
    return !good || int8 != bf16 || fflush(stdout) != 0;
}
