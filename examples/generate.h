/* generate.h - texts by a model of model.h, token by token, with keys and values cached: to
 * copy.
 *
 *     generator p;
 *     if (generator_new(&p, &m, store, NULL) != 0)
 *         fprintf(stderr, "%s\n", m.error);
 *     sample_options how = { 0.8, 40, 0, 1 }; // temperature, top_k, top_p, seed
 *     int64_t made = generator_text(&p, prompt, n, &how, 100, m.config.eos, out, NULL, NULL);
 *     generator_free(&p);
 *
 * Several texts that begin alike are made at once. The logits are, to the bit, those of one call
 * with all tokens, and what is drawn depends on seed, row and position only. C99 or C++11. */
#ifndef GENERATE_H
#define GENERATE_H
#include "model.h"
#include "sample.h"

/* Inference plans that share their caches of keys and values: what hooks put before the text,
 * chunks of the prompt, and one token at a time. */
typedef struct {
    gckpt_plan *plan;
    gckpt_exec *exec;
    int tokens, result; /* ids */
    int64_t length;     /* of a row */
} generator_run;

typedef struct {
    model_any *model;
    int64_t samples; /* rows of all of them */
    int64_t capacity;
    generator_run one, chunk, before;
    size_t bytes; /* of parameters, caches and the step arena, which the three share */
    void *arena;
    size_t arena_bytes;
    const gckpt_backend *backend;
    int initial; /* as in generator_desc */
    int32_t *fed;
    sample_place *places;
} generator;

typedef struct {
    int64_t samples; /* texts that are made at once; 0: 1 */
    int64_t chunk;   /* tokens of a prompt that are computed at once; 0: 64, as many as caches of a
                      * window always take (gckpt_cache_window) */
    int threads;
    const model_hooks *hooks;
    const gckpt_backend *backend;
    int64_t capacity; /* tokens of a text, with what hooks put before it; 0: the context */
    int initial; /* as gckpt_exec_desc.allow_initial: before the first step of a training */
} generator_desc;

static inline void generator_free(generator *p)
{
    generator_run *const runs[] = { &p->before, &p->chunk, &p->one };
    for (int i = 0; i < 3; i++) {
        gckpt_exec_free(runs[i]->exec);
        gckpt_plan_free(runs[i]->plan);
    }
    if (p->backend != NULL && p->backend->release != NULL && p->arena != NULL)
        p->backend->release(p->backend->context, p->arena, p->arena_bytes);
    else
        free(p->arena);
    free(p->fed);
    free(p->places);
    memset(p, 0, sizeof *p);
}

/* The plan for rows of run->length tokens; what a chunk computes is only cached. */
static inline int generator_plan(generator *p, generator_run *run, gckpt_store *store,
                                 const generator_desc *desc)
{
    const model_options options = { 0, p->capacity, run == &p->before, desc->hooks };
    gckpt_fetch_spec pick = { NULL, 0 };
    gckpt_plan_desc plan;
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    gckpt_tensor *tokens =
        gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(p->samples, run->length));
    memset(&plan, 0, sizeof plan);
    pick.tensor = model_hidden(p->model, tokens, &options);
    if (run == &p->one)
        pick.tensor = model_logits(p->model, pick.tensor);
    run->tokens = gckpt_id(tokens);
    run->result = gckpt_id(pick.tensor);
    plan.mode = GCKPT_INFERENCE;
    plan.threads = desc->threads;
    plan.backend = desc->backend;
    plan.fetch = &pick;
    plan.fetches = 1;
    run->plan = gckpt_plan_new(g, NULL, 0, &plan);
    const int failed = run->plan == NULL ? model_fail(p->model, "%s", gckpt_error_text(g)) : 0;
    gckpt_graph_free(g);
    if (!failed && gckpt_plan_arena(run->plan) > p->arena_bytes)
        p->arena_bytes = gckpt_plan_arena(run->plan);
    return failed;
}

/* Binds it to the arena, and to the caches of p->one. */
static inline int generator_bind(generator *p, generator_run *run, gckpt_store *store)
{
    gckpt_exec_desc exec;
    memset(&exec, 0, sizeof exec);
    exec.backend = p->backend;
    exec.allow_initial = p->initial;
    exec.arena_size = p->arena_bytes;
    exec.arena = p->arena;
    if (p->backend == NULL || p->backend->allocate == NULL) /* malloc's, up to the next 64 bytes */
        exec.arena = (char *)p->arena + (64 - (uintptr_t)p->arena % 64) % 64;
    exec.caches_of = p->one.exec;
    run->exec = gckpt_exec_new(run->plan, store, &exec);
    return run->exec != NULL ? 0 : model_fail(p->model, "%s", gckpt_error_text(store));
}

/* desc NULL: all zero. Freed before the store. */
static inline int generator_new(generator *p, model_any *m, gckpt_store *store,
                                const generator_desc *desc)
{
    const generator_desc none = { 0, 0, 0, NULL, NULL, 0, 0 };
    generator_run *const runs[] = { &p->one, &p->chunk, &p->before };
    int failed = desc != NULL && desc->hooks != NULL && desc->hooks->prepare != NULL &&
                 desc->hooks->prepare(desc->hooks->user) != 0;
    desc = desc != NULL ? desc : &none;
    memset(p, 0, sizeof *p);
    p->model = m;
    p->backend = desc->backend;
    p->initial = desc->initial;
    p->samples = desc->samples > 0 ? desc->samples : 1;
    p->capacity = desc->capacity > 0 ? desc->capacity : m->config.context;
    p->one.length = 1;
    p->chunk.length = desc->chunk > 0 ? desc->chunk : 64;
    p->chunk.length = p->chunk.length < p->capacity ? p->chunk.length : p->capacity;
    p->before.length = desc->hooks != NULL ? desc->hooks->prefix + desc->hooks->prompt : 0;
    const int64_t most = p->before.length > p->chunk.length ? p->before.length : p->chunk.length;
    for (int i = 0; i < 3 && !failed; i++)
        failed = runs[i]->length > 0 && generator_plan(p, runs[i], store, desc) != 0;
    p->fed = (int32_t *)calloc((size_t)(p->samples * most), sizeof *p->fed);
    p->places = (sample_place *)malloc((size_t)m->config.vocabulary * sizeof *p->places);
    if (!failed && p->backend != NULL && p->backend->allocate != NULL)
        p->arena = p->backend->allocate(p->backend->context, p->arena_bytes, 64);
    else if (!failed)
        p->arena = malloc(p->arena_bytes + 64);
    if (!failed && (p->fed == NULL || p->places == NULL || p->arena == NULL))
        failed = model_fail(m, "out of memory: generation needs %.0f bytes beside the model",
                            (double)p->arena_bytes);
    for (int i = 0; i < 3 && !failed; i++)
        failed = runs[i]->length > 0 && generator_bind(p, runs[i], store) != 0;
    if (!failed)
        p->bytes = gckpt_plan_bytes(p->one.plan) - gckpt_plan_arena(p->one.plan) + p->arena_bytes;
    else
        generator_free(p);
    return failed ? -1 : 0;
}

/* The next tokens of all rows, p->fed. */
static inline const float *generator_forward(generator *p, generator_run *run)
{
    const gckpt_feed feed = { run->tokens, p->fed };
    if (gckpt_forward(run->exec, &feed, 1, p->samples, NULL) == GCKPT_OK)
        return gckpt_fetch(run->exec, run->result, 0);
    model_fail(p->model, "%s", gckpt_error_text(run->exec));
    return NULL;
}

/* Begins texts with n tokens, the same for all, at least one. The logits (samples,V) of what comes
 * next; NULL: m->error. */
static inline const float *generator_prompt(generator *p, const int32_t *tokens, int64_t n)
{
    gckpt_exec *one = p->one.exec;
    const int64_t most = p->capacity - p->before.length;
    if (n < 1 || n > most) {
        model_fail(p->model, "a prompt of %lld tokens: allowed is 1 to %lld", (long long)n,
                   (long long)most);
        return NULL;
    }
    if (gckpt_rewind(one, 0) != GCKPT_OK ||
        (p->before.exec && generator_forward(p, &p->before) == NULL))
        return NULL;
    for (int64_t at = 0, some; at < n - 1; at += some) {
        generator_run *run = &p->chunk;
        const int64_t position = gckpt_position(one);
        if (position + run->length > p->capacity)
            run = &p->one;
        some = n - 1 - at < run->length ? n - 1 - at : run->length;
        for (int64_t i = 0; i < p->samples * run->length; i++) /* behind the last: any token */
            p->fed[i] = i % run->length < some ? tokens[at + i % run->length] : 0;
        if (generator_forward(p, run) == NULL || gckpt_rewind(one, position + some) != GCKPT_OK)
            return NULL;
    }
    for (int64_t i = 0; i < p->samples; i++)
        p->fed[i] = tokens[n - 1];
    return generator_forward(p, &p->one);
}

/* Continues each text with its own token; as generator_prompt. */
static inline const float *generator_next(generator *p, const int32_t *tokens)
{
    memcpy(p->fed, tokens, (size_t)p->samples * sizeof *tokens);
    return generator_forward(p, &p->one);
}

static inline int generator_stops(const int32_t *stops, int32_t token)
{
    while (stops != NULL && *stops >= 0 && *stops != token)
        stops++;
    return stops != NULL && *stops >= 0;
}

/* Generates up to `most` tokens after a prompt in each row of out (samples,most), until it is one of
 * `stops` (which end with -1; NULL: never), with which it is filled then; text(user, position,
 * tokens (samples)), which may be NULL, sees them as they come and ends it by returning 1. The
 * number of tokens of the longest row: fewer where its capacity is full; -1: m->error. */
static inline int64_t generator_text(generator *p, const int32_t *prompt, int64_t n,
                                     const sample_options *how, int64_t most, const int32_t *stops,
                                     int32_t *out,
                                     int (*text)(void *user, int64_t at, const int32_t *tokens),
                                     void *user)
{
    const int64_t V = p->model->config.vocabulary;
    const float *logits = generator_prompt(p, prompt, n);
    int64_t made = 0;
    for (int going = 1; going && logits != NULL && made < most; made++) {
        if (made > 0 && gckpt_position(p->one.exec) == p->capacity)
            break;
        logits = made > 0 ? generator_forward(p, &p->one) : logits;
        if (logits == NULL)
            break;
        going = 0;
        for (int64_t i = 0; i < p->samples; i++) {
            int32_t *row = out + i * most;
            const int ended = made > 0 && generator_stops(stops, row[made - 1]);
            row[made] = ended ? row[made - 1]
                              : sample_token(logits + i * V, V, how, (uint64_t)i, (uint64_t)made,
                                             p->places);
            going |= !generator_stops(stops, row[made]);
            p->fed[i] = row[made];
        }
        if (text != NULL && text(user, made, p->fed) != 0)
            going = 0;
    }
    return logits == NULL ? -1 : made;
}
#endif
