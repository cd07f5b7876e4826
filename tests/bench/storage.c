/* storage.c - measures how much a language model loses by the storage of its matrices: for each storage the bytes of
 * the values, the bits a weight of the matrices except embeddings and head, the loss on a text, its rise compared with
 * floats, and the share of positions whose likeliest next token changes. Prints a table for record.sh.
 *
 *     make build/storage
 *     build/storage --model FOLDER|FILE.gguf [--data TEXT] [--storages f32,int4] [--rows N] [--context N] [--threads N]
 *
 * The storages are f32 (always measured), bf16, f16, int8, int4 one by one (each block is rounded for itself), int4 (as
 * `finetune --store int4` chooses its numbers: calibrate.h) and, for a GGUF file, auto (each matrix in the format that
 * is nearest to its type there). The evaluated rows are the last ones of the text, those that choose int4's numbers the
 * first ones. Each begins with the tokens that the tokenizer puts before a text, if any. */
#define _DEFAULT_SOURCE /* mmap */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

#include "calibrate.h"
#include "generate.h" /* model.h of examples, not of this folder */
#include "gguf_tokenizer.h"
#include "options.h"
#include "tokenizer.h"

static struct {
    const char *model, *data, *storages;
    int64_t rows, calibration, context, threads, help;
} o;
static const options_desc descs[] = {
    { "model", OPTIONS_PATH, &o.model, NULL, 0, 0, NULL, "a folder, or a GGUF file" },
    { "data", OPTIONS_FILE, &o.data, "examples/shakespeare.txt", 0, 0, NULL, "a text" },
    { "rows", OPTIONS_INT, &o.rows, "18", 1, 1 << 20, NULL, "rows that are read" },
    { "calibration", OPTIONS_INT, &o.calibration, "16", 1, 1 << 20, NULL,
      "rows that choose the numbers of int4" },
    { "storages", OPTIONS_TEXT, &o.storages, NULL, 0, 0, NULL,
      "names to measure, such as f32,int8,int4; default: all" },
    { "context", OPTIONS_INT, &o.context, "256", 1, 1 << 20, NULL, "tokens per row" },
    { "threads", OPTIONS_INT, &o.threads, "0", 0, 1024, NULL, "0: all" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
};
static const options_table options = { "storage", descs,  sizeof descs / sizeof descs[0],
                                       12,        "NAME", NULL,
                                       0,         NULL };

/* ---- rows ----------------------------------------------------------------------------------------------------- */
static int32_t *inputs, *targets; /* (rows,context), of the evaluated rows */
static int32_t *chosen; /* (calibration,context), inputs of the rows that choose int4's numbers */
static int32_t *floats; /* (rows,context), the likeliest tokens of the weights as floats */

static char *read_text(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f != NULL && fseek(f, 0, SEEK_END) == 0 &&
        (*size = (size_t)ftell(f), fseek(f, 0, SEEK_SET)) == 0 &&
        (text = (char *)malloc(*size + 1)) != NULL)
        *size = fread(text, 1, *size, f);
    if (f != NULL)
        fclose(f);
    return text;
}

/* Fills the rows from consecutive tokens, of which the first precedes those of the first row. */
static void fill_rows(int64_t rows, const int32_t *tokens, const bpe_tokens *start, int32_t *in,
                      int32_t *next)
{
    for (int64_t i = 0; i < rows * o.context; i++) {
        in[i] = start->count > 0 && i % o.context == 0 ? start->ids[0] : tokens[i];
        if (next != NULL)
            next[i] = tokens[i + 1];
    }
}

/* Sets the rows to the text's last tokens, and those that choose int4's numbers to its first ones. Returns 0, or 1
 * after a message. */
static int read_rows(void)
{
    bpe b;
    gguf g;
    bpe_tokens first = { 0 }, last = { 0 }, start = { 0 };
    size_t size = 0;
    const int64_t n = o.rows * o.context, c = o.calibration * o.context;
    char *text = read_text(o.data, &size);
    const int is_gguf = gguf_is_file(o.model);
    if (text == NULL)
        return fprintf(stderr, "storage: cannot read %s\n", o.data), 1;
    if (is_gguf ? gguf_open(&g, o.model) != 0 || gguf_tokenizer(&g, &b) != 0
                : bpe_open(&b, o.model) != 0)
        return fprintf(stderr, "storage: %s\n", is_gguf && g.error[0] ? g.error : b.error), 1;
    /* only parts of the text are encoded: a token is shorter than 16 bytes on average; the parts do not overlap */
    const size_t half = size / 2, end = (size_t)n * 16 < half ? (size_t)n * 16 : half,
                 begin = (size_t)c * 16 < half ? (size_t)c * 16 : half;
    if (bpe_encode(&b, "", 0, BPE_TEMPLATE, &start) != 0)
        return fprintf(stderr, "storage: %s\n", start.error), 1;
    if (bpe_encode(&b, text + size - end, end, 0, &last) != 0 || (int64_t)last.count <= n ||
        bpe_encode(&b, text, begin, 0, &first) != 0 || (int64_t)first.count <= c)
        return fprintf(stderr, "storage: %s: %s\n", o.data,
                       last.error[0]    ? last.error
                       : first.error[0] ? first.error
                                        : "too short"),
               1;
    inputs = (int32_t *)malloc((size_t)n * sizeof *inputs);
    targets = (int32_t *)malloc((size_t)n * sizeof *targets);
    floats = (int32_t *)malloc((size_t)n * sizeof *floats);
    chosen = (int32_t *)malloc((size_t)c * sizeof *chosen);
    if (inputs == NULL || targets == NULL || floats == NULL || chosen == NULL)
        return fprintf(stderr, "storage: out of memory\n"), 1;
    fill_rows(o.rows, last.ids + last.count - (size_t)n - 1, &start, inputs, targets);
    fill_rows(o.calibration, first.ids, &start, chosen, NULL);
    bpe_tokens_free(&first);
    bpe_tokens_free(&last);
    bpe_tokens_free(&start);
    bpe_free(&b);
    if (is_gguf)
        gguf_close(&g);
    free(text);
    return 0;
}

/* Stores the matrices of a model, which are I8, as I4. Returns 0, or 1 after a message. */
static int calibrate(model_any *m, gckpt_store *s)
{
    calibration c = { .threads = (int)o.threads };
    const int failed = calibrate_measure(&c, m, s, chosen, o.calibration, o.context) != 0 ||
                       calibrate_store(&c, s, m) != 0 ||
                       model_quantise(m, s, GCKPT_STORAGE_I4) != 0;
    calibrate_end(&c);
    return failed ? fprintf(stderr, "storage: %s\n", m->error), 1 : 0;
}

/* ---- a storage ------------------------------------------------------------------------------------------------- */
/* Returns the bits a weight of the matrices, scales included, except those of embeddings and head. */
static double bits_of(const model_any *m, gckpt_store *s)
{
    double bits = 0, weights = 0;
    for (int64_t i = 0; i < model_param_count(&m->config); i++) {
        const model_parameter p = model_get_param(&m->config, i);
        char name[MODEL_NAME];
        gckpt_parameter stored;
        model_store_name(&m->config, name, p.name);
        if (p.shape.n != 2 ||
            model_storage_of(&m->config, p.name, GCKPT_STORAGE_I4) != GCKPT_STORAGE_I4 ||
            gckpt_store_peek(s, gckpt_store_find(s, name), &stored) != GCKPT_OK)
            continue;
        const double rows = (double)p.shape.d[0], width = (double)p.shape.d[1];
        const double blocks = rows * (double)((p.shape.d[1] + 31) / 32);
        weights += rows * width;
        bits += stored.storage == GCKPT_STORAGE_I4 ? 8 * 19 * blocks
                : stored.storage == GCKPT_STORAGE_I8
                    ? 8 * rows * width + 16 * blocks
                    : (stored.storage == GCKPT_STORAGE_F32 ? 32 : 16) * rows * width;
    }
    return bits / weights;
}

/* Measures a storage and prints its line. source is NULL for floats; if calibrates is nonzero, the matrices that it
 * stores as I8 become I4 by the inputs of the layers. */
static int measure(const char *name, const model_source *source, int calibrates, double *base)
{
    model_any m;
    gckpt_store *s = gckpt_store_new(NULL);
    if (model_load(&m, s, o.model, source) != 0)
        return fprintf(stderr, "storage: %s\n", m.error), 1;
    if (calibrates && calibrate(&m, s) != 0)
        return 1;
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
        return fprintf(stderr, "storage: %s\n",
                       gckpt_error_text(plan == NULL ? (void *)g : (void *)s)),
               1;
    double sum = 0;
    int64_t changed = 0;
    for (int64_t row = 0; row < o.rows; row++) {
        gckpt_report report;
        const gckpt_feed feeds[2] = { { gckpt_id(tokens), inputs + row * o.context },
                                      { gckpt_id(next), targets + row * o.context } };
        int32_t *at = floats + row * o.context;
        if (gckpt_forward(exec, feeds, 2, 1, &report) != GCKPT_OK)
            return fprintf(stderr, "storage: %s\n", gckpt_error_text(exec)), 1;
        const int32_t *found =
            (const int32_t *)(const void *)gckpt_fetch(exec, gckpt_id(likeliest.tensor), 0);
        sum += report.loss;
        if (source == NULL)
            memcpy(at, found, (size_t)o.context * sizeof *at);
        for (int64_t i = 0; i < o.context; i++)
            changed += at[i] != found[i];
    }
    const double loss = sum / (double)o.rows;
    *base = source == NULL ? loss : *base;
    printf("| %s | %.1f | %.2f | %.4f | %+.4f | %.2f |\n", name,
           1e-6 * (double)gckpt_plan_kind_bytes(plan, GCKPT_BYTES_PARAMETERS), bits_of(&m, s), loss,
           loss - *base, 100 * (double)changed / (double)(o.rows * o.context));
    fflush(stdout);
    gckpt_exec_free(exec);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    model_close(&m);
    return 0;
}

/* Returns whether `name` is to be measured: it is one of --storages, or there is no such option. */
static int is_wanted(const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = o.storages; at != NULL;
         at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == 0))
            return 1;
    return o.storages == NULL;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        model_source source;
        int calibrates;
    } all[] = {
        { "bf16", { .storage = GCKPT_STORAGE_BF16 }, 0 },
        { "f16", { .storage = GCKPT_STORAGE_F16 }, 0 },
        { "int8", { .storage = GCKPT_STORAGE_I8 }, 0 },
        { "int4 one by one", { .storage = GCKPT_STORAGE_I4 }, 0 },
        { "int4", { .storage = GCKPT_STORAGE_I8 }, 1 },
        { "auto", { .as_file = 1 }, 0 },
    };
    double base = 0;
    if (options_parse(&options, argc, argv) != 0)
        return 2;
    if (o.help || o.model == NULL) {
        options_print(&options);
        return o.help ? 0 : 2;
    }
    int failed = read_rows();
    if (!failed) {
        printf(
            "| storage | values, MB | bits a weight | loss, nats | rise, nats | likeliest tokens changed, %% |\n"
            "|---|--:|--:|--:|--:|--:|\n");
        failed = measure("f32", NULL, 0, &base);
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0] && !failed; i++)
        if (is_wanted(all[i].name) && (!all[i].source.as_file || gguf_is_file(o.model)))
            failed = measure(all[i].name, &all[i].source, all[i].calibrates, &base);
    free(inputs);
    free(targets);
    free(floats);
    free(chosen);
    return failed;
}
