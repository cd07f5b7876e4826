/* lora.c - fine-tuning: a transformer that has learned one text on the host learns another one
 * here, by low-rank adapters (Hu 2021) over frozen weights that stay in flash as bytes with a scale
 * for each row. Only the adapters have gradients and optimiser state; weights come into RAM as
 * floats one after the other, when they are read. PLAN trains on the first text, and prints weights
 * and plan. */
#define JOB_PACKS
#include "job.h"
#include "transformer.h"

enum { TIME = 16, ROWS = 2, STEPS = 12 };

/* A frozen parameter in flash. */
typedef struct {
    const char *name;
    int rows, columns;
    const int8_t *values;
    const float *scales;
} weight;

/* They are the store's first parameters, here and on the host. */
static gckpt_result bind_weights(gckpt_store *s, const weight *w, int count)
{
    gckpt_result result = GCKPT_OK;
    for (int i = 0; i < count && result == GCKPT_OK; i++)
        result = gckpt_store_external_packed(s, w[i].name, gckpt_shape2(w[i].rows, w[i].columns),
                                             GCKPT_STORED_I8, w[i].values, w[i].scales);
    return result;
}

#ifdef PLAN
enum { LEARNED_ROWS = 16, LEARNED_STEPS = 120, MOST = 32 };

static gckpt_store *learned(transformer_size size)
{
    static int32_t tokens[LEARNED_ROWS * TIME], targets[LEARNED_ROWS * TIME];
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    size.rank = 0;
    const gckpt_term term = transformer_build(g, &size, LEARNED_ROWS);
    gckpt_exec *e = gckpt_exec_new(gckpt_plan_new(g, &term, 1, NULL), s, NULL);
    const gckpt_feed feeds[2] = { { 0, tokens }, { 1, targets } };
    const gckpt_hyper hyper = { .lr = 0.01f, .clip = 1 };
    for (int step = 0; step < LEARNED_STEPS; step++) {
        transformer_pieces(transformer_jack, (uint64_t)step, LEARNED_ROWS, TIME, tokens, targets);
        if (gckpt_step(e, feeds, 2, LEARNED_ROWS, &hyper, NULL) != GCKPT_OK)
            return NULL;
    }
    return gckpt_store_freeze(s, "*", 1) == GCKPT_OK &&
                   gckpt_store_pack(s, "*", GCKPT_STORED_I8) == GCKPT_OK
               ? s
               : NULL;
}

static void print_weight(int i, const gckpt_parameter *p)
{
    printf("static const int8_t weight_%d[] = {", i);
    for (int64_t k = 0; k < p->elements; k++)
        printf("%s%d,", k % 24 ? "" : "\n    ", ((const int8_t *)p->packed)[k]);
    printf("\n};\nstatic const float scale_%d[] = {", i);
    for (int64_t k = 0; k < p->shape.d[0]; k++)
        printf("%s%.9gf,", k % 6 ? " " : "\n    ", (double)p->scales[k]);
    printf("\n};\n");
}

int main(void)
{
    const transformer_size size = { TIME, 32, 2, 64, 1, 2 };
    gckpt_store *first = learned(size), *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_plan_desc desc = { .budget = 31500, .batch = ROWS };
    const int count = gckpt_store_count(first);
    weight weights[MOST];
    gckpt_parameter p[MOST];
    if (!first || count > MOST)
        return 1;
    for (int i = 0; i < count; i++) {
        const weight none = { NULL, 0, 0, NULL, NULL };
        weights[i] = none;
        if (gckpt_store_get(first, i, &p[i]) != GCKPT_OK)
            return 1;
        weights[i].name = p[i].name;
        weights[i].rows = (int)p[i].shape.d[0], weights[i].columns = (int)p[i].shape.d[1];
        weights[i].values = (const int8_t *)p[i].packed, weights[i].scales = p[i].scales;
        print_weight(i, &p[i]);
    }
    printf("static const weight weights[] = {\n");
    for (int i = 0; i < count; i++)
        printf("    { \"%s\", %d, %d, weight_%d, scale_%d },\n", weights[i].name, weights[i].rows,
               weights[i].columns, i, i);
    printf("};\n");
    if (bind_weights(s, weights, count) != GCKPT_OK)
        return 1;
    const gckpt_term term = transformer_build(g, &size, 1);
    return job_print(g, &term, &desc);
}
#else
#include "lora_plan.h"

static char store_block[plan_store_bytes], exec_block[plan_exec_bytes];
static int32_t tokens[ROWS * TIME], targets[ROWS * TIME];

int main(void)
{
    const transformer_lesson lesson = { .text = transformer_star,
                                        .lr = 0.1f,
                                        .rows = ROWS,
                                        .time = TIME,
                                        .tokens = tokens,
                                        .targets = targets,
                                        .feeds = { { plan_tokens, tokens },
                                                   { plan_targets, targets } } };
    job j;
    job_store(&j, store_block, sizeof store_block);
    int failed = job_failed(&j, bind_weights(j.store, weights, sizeof weights / sizeof *weights)) ||
                 job_bind(&j, &plan, exec_block, sizeof exec_block);
    for (uint64_t step = 0; step < STEPS && !failed; step++)
        failed = transformer_step(&j, &lesson, step);
    return failed || job_report(&j);
}
#endif
