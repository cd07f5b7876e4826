/* generate.c - measures text generation with caches of keys and values, for GPT-2 124M or the model of --model, with
 * weights stored as f32, bf16, f16, int8 and int4. Prints the milliseconds per generated token, compared with the
 * time to read each weight once at the measured rate of memory; and the milliseconds per token of a prompt, in
 * chunks, compared with the peak of multiply-adds. Peaks are sampled with each repetition; the results are medians.
 *
 *     make build/generate
 *     build/generate [--model FOLDER] [--threads N] [--only f32|bf16|f16|int8|int4] [--profile] */
#define _DEFAULT_SOURCE /* clock_gettime, madvise */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include <time.h>

static clockid_t bench_clock = CLOCK_MONOTONIC;
static double now(void)
{
    struct timespec t;
    clock_gettime(bench_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#include "generate.h"
#include "options.h"
#include "peak.h"

enum { MOST = 4096 };
static struct {
    const char *model;
    int64_t threads, tokens, prompt, chunk, only, profile, help;
} o;
static const char *const storages[] = { "f32", "bf16", "f16", "int8", "int4", "all", NULL };
enum { STORAGES = 5 };
static const options_desc rows[] = {
    { "only", OPTIONS_CHOICE, &o.only, "all", 0, 0, storages, "how weights are stored" },
    { "model", OPTIONS_TEXT, &o.model, NULL, 0, 0, NULL,
      "a folder, or a GGUF file; not given: GPT-2 124M, all constants" },
    { "threads", OPTIONS_INT, &o.threads, "0", 0, 1024, NULL, "0: all" },
    { "tokens", OPTIONS_INT, &o.tokens, "24", 1, 512, NULL, "that are generated" },
    { "prompt", OPTIONS_INT, &o.prompt, "257", 2, 512, NULL, "tokens of the prompt" },
    { "chunk", OPTIONS_INT, &o.chunk, "64", 1, 512, NULL, "of them, computed at once" },
    { "profile", OPTIONS_FLAG, &o.profile, NULL, 0, 0, NULL, "where a token's time goes, by op" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
};
static const options_table options = { "generate", rows, sizeof rows / sizeof rows[0], 12, "NAME", NULL, 0, NULL };

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

/* Time by op. The time between two calls of the progress callback belongs to the instruction of the first call. */
static struct {
    const gckpt_plan *plan;
    const char *op[64];
    double seconds[64], since;
    int times[64], n, running;
} profile = { .running = -1 };

static void profile_stop(void)
{
    if (profile.running >= 0)
        profile.seconds[profile.running] += now() - profile.since;
    profile.running = -1;
}

static int profile_step(void *user, const gckpt_progress *progress)
{
    gckpt_instruction i = { GCKPT_FORWARD, -1 };
    int at = 0;
    (void)user;
    profile_stop();
    gckpt_plan_get(profile.plan, progress->instruction, &i);
    const char *op = gckpt_plan_op(profile.plan, i.id);
    if (*op == 0)
        op = i.id < 0 ? "step" : "parameter";
    while (at < profile.n && strcmp(profile.op[at], op) != 0)
        at++;
    if (at == profile.n && profile.n < 63)
        profile.op[profile.n++] = op;
    profile.times[at]++;
    profile.running = at;
    profile.since = now();
    return 0;
}

static void profile_print(int64_t tokens)
{
    double all = 0;
    for (int i = 0; i < profile.n; i++)
        all += profile.seconds[i];
    for (int i = 0; i < profile.n; i++)
        printf("    %-20s %4d  %8.3f ms  %5.1f %%\n", profile.op[i], (int)(profile.times[i] / tokens),
               1e3 * profile.seconds[i] / (double)tokens, 100 * profile.seconds[i] / all);
}

/* Returns the bytes of a parameter's values in the storage that it has. */
static double bytes_of(const gckpt_parameter *p)
{
    static const double each[] = { 4, 2, 2, 34.0 / 32, 19.0 / 32 };
    return (double)p->elements * each[p->storage];
}

/* Returns the bytes of all weights except the table of positions, of which a token reads only one row. *count becomes
 * the number of elements of the matrices among them. */
static double weights_of(gckpt_store *s, double *count)
{
    double bytes = *count = 0;
    gckpt_parameter p;
    for (int i = 0; gckpt_store_get(s, i, &p) == GCKPT_OK; i++)
        if (strcmp(p.name, "wpe.weight") != 0) {
            bytes += bytes_of(&p);
            *count += p.shape.n == 2 ? (double)p.elements : 0;
        }
    return bytes;
}

static int measure(gckpt_storage storage)
{
    static double token[MOST], read[MOST], prompt[8], fma[8];
    model_any m;
    generator p;
    gckpt_store *s = gckpt_store_new(NULL);
    generator_desc desc = { .chunk = o.chunk, .threads = (int)o.threads, .allow_initial = 1 };
    int32_t tokens[512];
    const model_source source = { .storage = storage };
    int failed = 0;
    if (o.model != NULL) {
        failed = model_load(&m, s, o.model, &source) != 0;
    } else {
        gpt2_new(&m, 12, 12, 768, 1024, 50257);
        m.config.init_range = 0; /* constant weights, since these are initialised faster than random ones */
        failed = model_declare(&m, s) != 0 || (storage != GCKPT_STORAGE_F32 && model_quantise(&m, s, storage) != 0);
    }
    desc.capacity = m.config.context < 1024 ? m.config.context : 1024;
    if (failed || generator_new(&p, &m, s, &desc) != 0) {
        fprintf(stderr, "generate: %s\n", m.error);
        return 1;
    }
    double weights, bytes = weights_of(s, &weights);
    for (int i = 0; i < 512; i++)
        tokens[i] = (int32_t)(i * 7919 % m.config.vocabulary);
    for (int i = -1; i < 3; i++) { /* the first repetition warms up pages and is not counted */
        if (i >= 0)
            fma[i] = peak_sample(PEAK_FMA, (int)o.threads);
        double t = now();
        if (generator_prompt(&p, tokens, o.prompt) == NULL)
            return fprintf(stderr, "generate: %s\n", m.error), 1;
        if (i >= 0)
            prompt[i] = now() - t;
    }
    gckpt_exec *const unwatched = p.decode.exec;
    if (o.profile) { /* runs the same plan once more with the same caches, by an executor with a progress callback */
        profile.n = 0;
        profile.plan = p.decode.plan;
        const gckpt_exec_desc watched = { .progress = profile_step, .caches_of = unwatched, .allow_initial = 1 };
        p.decode.exec = gckpt_exec_new(p.decode.plan, s, &watched);
        if (p.decode.exec == NULL)
            return fprintf(stderr, "generate: %s\n", gckpt_error_text(s)), 1;
    }
    for (int64_t i = 0; i < o.tokens; i++) {
        read[i] = peak_sample(PEAK_READ, (int)o.threads);
        double t = now();
        if (generator_next(&p, tokens + i) == NULL)
            return fprintf(stderr, "generate: %s\n", m.error), 1;
        token[i] = now() - t;
        profile_stop();
    }
    const double one = median(token, (int)o.tokens), all = median(prompt, 3), rate = median(read, (int)o.tokens);
    const double flops = 2 * (weights - (double)(m.config.vocabulary * m.config.width)) * (double)(o.prompt - 1);
    /* seconds of all tokens of the prompt except the last one, which is computed alone */
    const double many = all - one;
    printf("%-5s %8.2f ms/token, %6.1f GB/s of %5.1f read: %5.1f %%; prompt %7.3f ms/token, %6.1f GFLOP/s of %6.1f: "
           "%5.1f %%; arenas %.1f %.1f MB\n",
           storages[storage], 1e3 * one, 1e-9 * bytes / one, 1e-9 * rate, 100 * bytes / one / rate,
           1e3 * many / (double)(o.prompt - 1), 1e-9 * flops / many, 1e-9 * median(fma, 3),
           100 * flops / many / median(fma, 3), 1e-6 * (double)gckpt_plan_describe(p.decode.plan).arena,
           1e-6 * (double)gckpt_plan_describe(p.prefill.plan).arena);
    if (o.profile) {
        profile_print(o.tokens);
        gckpt_exec_free(p.decode.exec);
        p.decode.exec = unwatched;
    }
    fflush(stdout);
    generator_free(&p);
    gckpt_store_free(s);
    return 0;
}

int main(int argc, char **argv)
{
    if (options_parse(&options, argc, argv) != 0)
        return 2;
    if (o.help) {
        options_print(&options);
        return 0;
    }
    if (o.threads == 0)
        o.threads = gckpt_threads();
    if (o.threads == 1)
        bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    peak_width = peak_widest();
    if (!peak_open_memory())
        return 1;
    int failed = 0;
    for (int i = 0; i < STORAGES; i++)
        if (o.only == STORAGES || o.only == i)
            failed |= measure((gckpt_storage)i);
    return failed;
}
