/* tiny.c - the trainings of the playground's page as a native program, with the same bits.
 *
 *     cc -O2 -I. -Iexamples docs/playground/tiny.c -o tiny
 *     ./tiny --data text.txt --steps 200 --budget 700K
 */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "options.h"
#include "heap.h"
#include "tiny.h"

static struct {
    int64_t model, layers, heads, width, context, rows, micro, method, budget, steps, sample, seed;
    int64_t unequal, fault, help;
    double lr;
    const char *data;
} o;
static const char *const models[] = { "gpt", "points", NULL };
static const char *const methods[] = { "auto", "store-all", "memory-poor", "segments",
                                       "sqrt", "optimal",   NULL };
static const options_desc rows[] = {
    { "model", OPTIONS_CHOICE, &o.model, "gpt", 0, 0, models, "a GPT over bytes, or points" },
    { "data", OPTIONS_FILE, &o.data, NULL, 0, 0, NULL, "the text, or lines: x y class" },
    { "layers", OPTIONS_INT, &o.layers, "2", 1, 64, NULL, "blocks, or hidden layers" },
    { "heads", OPTIONS_INT, &o.heads, "2", 1, 16, NULL, "attention heads" },
    { "width", OPTIONS_INT, &o.width, "32", 2, 1024, NULL, "of the model" },
    { "context", OPTIONS_INT, &o.context, "32", 2, 1024, NULL, "bytes of a window" },
    { "rows", OPTIONS_INT, &o.rows, "8", 1, 4096, NULL, "windows, or points, of a step" },
    { "micro", OPTIONS_INT, &o.micro, "8", 1, 4096, NULL, "of them at once, a divisor" },
    { "method", OPTIONS_CHOICE, &o.method, "auto", 0, 0, methods, "what is computed again" },
    { "budget", OPTIONS_BYTES, &o.budget, "0", 0, 1e12, NULL, "bytes; 0: no limit" },
    { "steps", OPTIONS_INT, &o.steps, "100", 0, 1e9, NULL, "steps" },
    { "lr", OPTIONS_REAL, &o.lr, "0.003", 0, 1, NULL, "learning rate" },
    { "seed", OPTIONS_INT, &o.seed, "1", 0, 1e9, NULL, "of weights and of what a step learns" },
    { "unequal", OPTIONS_FLAG, &o.unequal, NULL, 0, 0, NULL, "windows of unequal lengths" },
    { "fault", OPTIONS_FLAG, &o.fault, NULL, 0, 0, NULL, "average the parts' means instead" },
    { "sample", OPTIONS_INT, &o.sample, "0", 0, 100000, NULL, "bytes to write in the end" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
};
static const options_table table = { "tiny", rows, sizeof rows / sizeof rows[0], 10, "NAME", NULL,
                                     0,      NULL };

static unsigned char *read_all(const char *path, size_t *length)
{
    FILE *f = path == NULL ? NULL : fopen(path, "rb");
    unsigned char *text = NULL;
    size_t room = 0, n = 1;
    for (*length = 0; f != NULL && n > 0; *length += n) {
        if (*length == room)
            text = realloc(text, room = 2 * room + 4096);
        n = text == NULL ? 0 : fread(text + *length, 1, room - *length, f);
    }
    if (f == NULL || text == NULL || fclose(f) != 0)
        fprintf(stderr, "tiny: --data %s cannot be read\n", path == NULL ? "FILE" : path);
    return text;
}

static int train(tiny *t)
{
    double loss = 0;
    for (int64_t i = 0; i < o.steps; i++) {
        if (!tiny_step(t, &loss))
            return 0;
        if (i == 0 || (i + 1) % 10 == 0 || i + 1 == o.steps)
            printf("step %lld  loss %.6f\n", (long long)i + 1, loss);
    }
    if (o.sample > 0 && !t->o.points) {
        const int begin = t->o.context / 2, n = begin + (int)o.sample;
        unsigned char *text = malloc((size_t)n);
        const int written = text != NULL && tiny_write(t, text, n, begin);
        printf("%.*s\n", written ? n : 0, (const char *)text);
        free(text);
    }
    printf("%zu bytes, weights %016llx\n", gckpt_plan_bytes(t->plan),
           (unsigned long long)gckpt_store_hash(t->store));
    return 1;
}

int main(int argc, char **argv)
{
    const gckpt_memory memory = { resize, NULL, NULL, 0 };
    tiny t;
    size_t length;
    if (options_parse(&table, argc, argv) != 0)
        return 2;
    if (o.help) {
        options_print(&table);
        return 0;
    }
    unsigned char *text = read_all(o.data, &length);
    const tiny_options how = { (int)o.model,     (int)o.layers,  (int)o.heads, (int)o.width,
                               (int)o.context,   (int)o.rows,    (int)o.micro, (gckpt_mode)o.method,
                               (size_t)o.budget, (int)o.unequal, (int)o.fault, (float)o.lr,
                               (uint64_t)o.seed,  1,                NULL,         NULL };
    const int done = text != NULL && tiny_open(&t, &how, &memory, text, length) && train(&t);
    if (text != NULL && !done)
        fprintf(stderr, "tiny: %s\n", t.error);
    if (text != NULL)
        tiny_close(&t);
    free(text);
    return done ? 0 : 1;
}
