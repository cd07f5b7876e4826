/* storage.c - measures how much a language model loses by the storage of its matrices: for each storage the bytes of
 * the values, the loss on a text, its rise compared with floats, and the share of positions whose likeliest next token
 * changes. "auto" stores each matrix of a GGUF file in the format that is nearest to its type there. Prints a table for
 * record.sh.
 *
 *     make build/storage
 *     build/storage --model FOLDER|FILE.gguf [--data TEXT] [--rows N] [--context N] [--threads N]
 *
 * The rows are the last ones of the text. Each begins with the tokens that the tokenizer puts before a text, if any. */
#define _DEFAULT_SOURCE /* mmap */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

#include "generate.h" /* model.h of examples, not of this folder */
#include "gguf_tokenizer.h"
#include "options.h"
#include "tokenizer.h"

static struct {
    const char *model, *data;
    int64_t rows, context, threads, help;
} o;
static const options_desc descs[] = {
    { "model", OPTIONS_PATH, &o.model, NULL, 0, 0, NULL, "a folder, or a GGUF file" },
    { "data", OPTIONS_FILE, &o.data, "examples/shakespeare.txt", 0, 0, NULL, "a text" },
    { "rows", OPTIONS_INT, &o.rows, "18", 1, 1 << 20, NULL, "rows that are read" },
    { "context", OPTIONS_INT, &o.context, "256", 1, 1 << 20, NULL, "tokens per row" },
    { "threads", OPTIONS_INT, &o.threads, "0", 0, 1024, NULL, "0: all" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
};
static const options_table options = {
    "storage", descs, sizeof descs / sizeof descs[0], 12, "NAME", NULL, 0, NULL
};

/* ---- rows ----------------------------------------------------------------------------------------------------- */
static int32_t *inputs, *targets, *floats; /* (rows,context); floats: the likeliest tokens of the weights as floats */

static char *read_text(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0 && (*size = (size_t)ftell(f), fseek(f, 0, SEEK_SET)) == 0 &&
        (text = (char *)malloc(*size + 1)) != NULL)
        *size = fread(text, 1, *size, f);
    if (f != NULL)
        fclose(f);
    return text;
}

/* Sets the rows to the text's last tokens. Returns 0, or 1 after a message. */
static int read_rows(void)
{
    bpe b;
    gguf g;
    bpe_tokens t = { 0 };
    size_t size = 0;
    const int64_t n = o.rows * o.context;
    char *text = read_text(o.data, &size);
    const int is_gguf = gguf_is_file(o.model);
    if (text == NULL)
        return fprintf(stderr, "storage: cannot read %s\n", o.data), 1;
    if (is_gguf ? gguf_open(&g, o.model) != 0 || gguf_tokenizer(&g, &b) != 0 : bpe_open(&b, o.model) != 0)
        return fprintf(stderr, "storage: %s\n", is_gguf && g.error[0] ? g.error : b.error), 1;
    /* only the end of the text is encoded: a token is shorter than 16 bytes on average */
    const size_t skipped = size > (size_t)n * 16 ? size - (size_t)n * 16 : 0;
    if (bpe_encode(&b, text + skipped, size - skipped, 0, &t) != 0 || (int64_t)t.count <= n)
        return fprintf(stderr, "storage: %s: %s\n", o.data, t.error[0] ? t.error : "too short"), 1;
    bpe_tokens start = { 0 };
    if (bpe_encode(&b, "", 0, BPE_TEMPLATE, &start) != 0)
        return fprintf(stderr, "storage: %s\n", start.error), 1;
    inputs = (int32_t *)malloc((size_t)n * sizeof *inputs);
    targets = (int32_t *)malloc((size_t)n * sizeof *targets);
    floats = (int32_t *)malloc((size_t)n * sizeof *floats);
    if (inputs == NULL || targets == NULL || floats == NULL)
        return fprintf(stderr, "storage: out of memory\n"), 1;
    const int32_t *last = t.ids + t.count - n;
    const int has_start = start.count > 0;
    for (int64_t i = 0; i < n; i++) {
        inputs[i] = has_start && i % o.context == 0 ? start.ids[0] : last[i - 1];
        targets[i] = last[i];
    }
    bpe_tokens_free(&t);
    bpe_tokens_free(&start);
    bpe_free(&b);
    if (is_gguf)
        gguf_close(&g);
    free(text);
    return 0;
}

/* ---- a storage ------------------------------------------------------------------------------------------------- */
static int measure(const char *name, const model_source *source, double *base)
{
    model_any m;
    gckpt_store *s = gckpt_store_new(NULL);
    if (model_load(&m, s, o.model, source) != 0)
        return fprintf(stderr, "storage: %s\n", m.error), 1;
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_shape shape = gckpt_shape2(1, o.context);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *next = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_tensor *logits = model_logits(&m, model_hidden(&m, tokens, NULL));
    const gckpt_fetch_spec likeliest = { gckpt_argmax(logits, 2), 0 };
    const gckpt_term term = { gckpt_cross_entropy(logits, next, NULL, 0), 1, 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .threads = (int)o.threads };
    desc.fetch.specs = &likeliest;
    desc.fetch.count = 1;
    gckpt_plan *plan = gckpt_plan_new(g, &term, 1, &desc);
    gckpt_exec *exec = gckpt_exec_new(plan, s, NULL);
    if (exec == NULL)
        return fprintf(stderr, "storage: %s\n", gckpt_error_text(plan == NULL ? (void *)g : (void *)s)), 1;
    double sum = 0;
    int64_t changed = 0;
    for (int64_t row = 0; row < o.rows; row++) {
        gckpt_report report;
        const gckpt_feed feeds[2] = { { gckpt_id(tokens), inputs + row * o.context },
                                      { gckpt_id(next), targets + row * o.context } };
        int32_t *at = floats + row * o.context;
        if (gckpt_forward(exec, feeds, 2, 1, &report) != GCKPT_OK)
            return fprintf(stderr, "storage: %s\n", gckpt_error_text(exec)), 1;
        const int32_t *found = (const int32_t *)(const void *)gckpt_fetch(exec, gckpt_id(likeliest.tensor), 0);
        sum += report.loss;
        if (source == NULL)
            memcpy(at, found, (size_t)o.context * sizeof *at);
        for (int64_t i = 0; i < o.context; i++)
            changed += at[i] != found[i];
    }
    const double loss = sum / (double)o.rows;
    *base = source == NULL ? loss : *base;
    printf("| %s | %.1f | %.4f | %+.4f | %.2f |\n", name,
           1e-6 * (double)gckpt_plan_kind_bytes(plan, GCKPT_BYTES_PARAMETERS), loss, loss - *base,
           100 * (double)changed / (double)(o.rows * o.context));
    fflush(stdout);
    gckpt_exec_free(exec);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    model_close(&m);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "f32", "bf16", "f16", "int8", "int4" };
    double base = 0;
    if (options_parse(&options, argc, argv) != 0)
        return 2;
    if (o.help || o.model == NULL) {
        options_print(&options);
        return o.help ? 0 : 2;
    }
    int failed = read_rows();
    if (!failed)
        printf("| storage | values, MB | loss, nats | rise, nats | likeliest tokens changed, %% |\n"
               "|---|--:|--:|--:|--:|\n");
    for (int i = 0; i < 5 && !failed; i++) {
        const model_source source = { .storage = (gckpt_storage)i };
        failed = measure(names[i], i > 0 ? &source : NULL, &base);
    }
    const model_source source = { .as_file = 1 };
    if (!failed && gguf_is_file(o.model))
        failed = measure("auto", &source, &base);
    free(inputs);
    free(targets);
    free(floats);
    return failed;
}
