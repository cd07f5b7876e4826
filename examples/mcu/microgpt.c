/* microgpt.c - trains the network of Karpathy's microgpt on names, as esp32gpt does on an ESP32,
 * with the same optimiser: one block of width 16 with 4 heads, 16 letters of a name, an alphabet of
 * 27 letters, 4,192 parameters, Adam, one name per step. docs/device.md compares both programs. */
#include "job.h"

enum { TIME = 16, C = 16, LETTERS = 27, STEPS = 16 };

#ifdef PLAN
static gckpt_tensor *param(gckpt_graph *g, const char *name, int64_t rows, int64_t columns)
{
    const gckpt_init normal = { 0.08f, 0, 0 };
    return gckpt_param(g, name, gckpt_shape2(rows, columns), normal);
}

static gckpt_tensor *dense(gckpt_tensor *x, const char *name, int64_t in, int64_t out)
{
    return gckpt_linear(x, param(gckpt_graph_of(x), name, in, out), NULL);
}

int main(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(1, TIME));
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(1, TIME));
    gckpt_tensor *x = gckpt_embed(param(g, "wte", LETTERS, C), tokens);
    x = gckpt_rmsnorm(gckpt_positions(x, param(g, "wpe", TIME, C), 0), NULL, 0);
    gckpt_tensor *n = gckpt_rmsnorm(x, NULL, 0);
    gckpt_tensor *q = dense(n, "wq", C, C), *k = dense(n, "wk", C, C);
    n = gckpt_attention(q, k, dense(n, "wv", C, C), &(gckpt_attention_desc){ .heads = 4, .causal = 1 });
    x = gckpt_add(x, dense(n, "wo", C, C));
    n = gckpt_relu(dense(gckpt_rmsnorm(x, NULL, 0), "up", C, 4 * C));
    x = gckpt_add(x, dense(n, "down", 4 * C, C));
    gckpt_tensor *head = param(g, "head", LETTERS, C);
    const gckpt_term term = { gckpt_linear_cross_entropy(x, head, targets, NULL), 1, 0 };
    gckpt_plan_desc desc = { .budget = 68000, .update_in_backward = 1 };
    return job_print_plan(g, &term, &desc);
}
#else
#include "microgpt_plan.h"

static char store_block[plan_store_bytes], exec_block[plan_exec_bytes];

static const char *const names[] = { "ada",   "alan",  "barbara", "claude",   "donald", "edsger",
                                     "emmy",  "grace", "hedy",    "john",     "kurt",   "leslie",
                                     "maria", "niels", "sofia",   "srinivasa" };

/* Fills a row with a name between two letters 0. Targets after the name's end are ignored. */
static void feed(const char *name, int32_t *tokens, int32_t *targets)
{
    int length = (int)strlen(name);
    for (int i = 0; i < TIME; i++) {
        tokens[i] = i > 0 && i <= length ? name[i - 1] - 'a' + 1 : 0;
        targets[i] = i < length ? name[i] - 'a' + 1 : i == length ? 0 : -1;
    }
}

int main(void)
{
    int32_t tokens[TIME], targets[TIME];
    const gckpt_feed feeds[2] = { { plan_tokens, tokens }, { plan_targets, targets } };
    job j;
    job_new_store(&j, store_block, sizeof store_block);
    int failed = job_bind(&j, &plan, exec_block, sizeof exec_block);
    for (int step = 0; step < STEPS && !failed; step++) {
        const gckpt_hyper hyper = { 0.01f, 0, 0.85f, 0.99f, 0, 0, 0 };
        gckpt_report report;
        feed(names[step % 16], tokens, targets);
        const uint64_t began = board_instructions();
        failed = job_failed(&j, gckpt_step(j.exec, feeds, 2, 1, &hyper, &report));
        job_add_step(&j, report.loss, board_instructions() - began);
    }
    return failed || job_report(&j);
}
#endif
