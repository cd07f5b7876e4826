/* generate.h - generates texts with a model of model.h, token by token, with cached keys and
 * values. To copy, with model.h and sample.h.
 *
 *     generator p;
 *     if (generator_new(&p, &m, store, NULL) != 0)
 *         fprintf(stderr, "%s\n", m.error);
 *     sample_options how = { 0.8, 40, 0, 1 }; // temperature, top_k, top_p, seed
 *     int64_t made = generator_text(&p, prompt, n, &how, 100, m.config.eos, out, NULL, NULL);
 *     generator_free(&p);
 *
 * Can generate several texts from one prompt at once. The logits equal, to the bit, the logits
 * of one call with all tokens. A sampled token depends on seed, row and position only. C99 or
 * C++11. */
#ifndef GENERATE_H
#define GENERATE_H
#include "model.h"
#include "sample.h"

/* One of three inference plans, which share caches of keys and values: for the vectors that hooks
 * put before the text, for chunks of the prompt, and for one token at a time ("decode"). */
typedef struct {
    gckpt_plan *plan;
    gckpt_exec *exec;
    int tokens, result; /* tokens: tensor id of the input; result: tensor id of the output */
    int64_t length;     /* tokens per row in a call */
} generator_stage;

typedef struct {
    model_any *model;
    /* number of texts that are generated at once, which is the number of rows of each plan */
    int64_t samples;
    int64_t capacity;
    generator_stage decode, prefill, prefix;
    size_t bytes; /* bytes of parameters, caches and the arena that the three plans share */
    void *arena;
    size_t arena_bytes;
    const gckpt_backend *backend;
    int allow_initial; /* copied from generator_desc, as is progress */
    int (*progress)(void *user, const gckpt_progress *at);
    int32_t *tokens;
    sample_entry *heap;
} generator;

typedef struct {
    int64_t samples; /* number of texts to generate at once; 0 means 1 */
    /* tokens of the prompt computed in one call; 0 means 64, which caches with windows always
     * accept (gckpt_cache_window) */
    int64_t chunk;
    int threads;
    const model_hooks *hooks;
    const gckpt_backend *backend;
    /* most tokens of a text, including vectors that hooks put before it; 0 means the model's
     * context */
    int64_t capacity;
    /* if nonzero, parameters may have initial values (gckpt_exec_desc.allow_initial) */
    int allow_initial;
    /* gckpt_exec_desc.progress, on the processor; its `user` is NULL. If it returns nonzero, a call
     * fails and the caches keep the tokens before it. */
    int (*progress)(void *user, const gckpt_progress *at);
} generator_desc;

static inline void generator_free(generator *p)
{
    generator_stage *const stages[] = { &p->prefix, &p->prefill, &p->decode };
    for (int i = 0; i < 3; i++) {
        gckpt_exec_free(stages[i]->exec);
        gckpt_plan_free(stages[i]->plan);
    }
    if (p->backend != NULL && p->backend->release != NULL && p->arena != NULL)
        p->backend->release(p->backend->context, p->arena, p->arena_bytes);
    else
        free(p->arena);
    free(p->tokens);
    free(p->heap);
    memset(p, 0, sizeof *p);
}

/* Makes the plan of a stage for rows of stage->length tokens. Only the plan for single tokens
 * computes logits; the other two plans just fill the caches. */
static inline int generator_plan(generator *p, generator_stage *stage, gckpt_store *store,
                                 const generator_desc *desc)
{
    const model_options options = { 0, p->capacity, stage == &p->prefix, desc->hooks };
    gckpt_fetch_spec pick = { NULL, 0 };
    gckpt_plan_desc plan;
    gckpt_graph *g = gckpt_graph_new(store, NULL);
    gckpt_tensor *tokens =
        gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(p->samples, stage->length));
    memset(&plan, 0, sizeof plan);
    pick.tensor = model_hidden(p->model, tokens, &options);
    if (stage == &p->decode)
        pick.tensor = model_logits(p->model, pick.tensor);
    stage->tokens = gckpt_id(tokens);
    stage->result = gckpt_id(pick.tensor);
    plan.mode = GCKPT_INFERENCE;
    plan.threads = desc->threads;
    plan.backend = desc->backend;
    plan.fetch.specs = &pick;
    plan.fetch.count = 1;
    stage->plan = gckpt_plan_new(g, NULL, 0, &plan);
    const int failed = stage->plan == NULL ? model_fail(p->model, "%s", gckpt_error_text(g)) : 0;
    gckpt_graph_free(g);
    const size_t bytes = gckpt_plan_describe(stage->plan).arena;
    p->arena_bytes = bytes > p->arena_bytes ? bytes : p->arena_bytes;
    return failed;
}

/* Creates the executor of a stage, with the shared arena and the caches of the executor
 * p->decode. */
static inline int generator_bind(generator *p, generator_stage *stage, gckpt_store *store)
{
    gckpt_exec_desc exec;
    memset(&exec, 0, sizeof exec);
    exec.backend = p->backend;
    exec.allow_initial = p->allow_initial;
    exec.progress = p->backend == NULL ? p->progress : NULL;
    exec.arena_size = p->arena_bytes;
    exec.arena = p->arena;
    /* allocates by malloc and aligns to 64 bytes */
    if (p->backend == NULL || p->backend->allocate == NULL)
        exec.arena = (char *)p->arena + (64 - (uintptr_t)p->arena % 64) % 64;
    exec.caches_of = p->decode.exec;
    stage->exec = gckpt_exec_new(stage->plan, store, &exec);
    return stage->exec != NULL ? 0 : model_fail(p->model, "%s", gckpt_error_text(store));
}

/* Makes the plans and executors. If desc is NULL, all its fields are 0. Returns 0, or -1 with
 * m->error. Call generator_free before the store is freed. */
static inline int generator_new(generator *p, model_any *m, gckpt_store *store,
                                const generator_desc *desc)
{
    const generator_desc none = { 0, 0, 0, NULL, NULL, 0, 0, NULL };
    generator_stage *const stages[] = { &p->decode, &p->prefill, &p->prefix };
    int failed = desc != NULL && desc->hooks != NULL && desc->hooks->prepare != NULL &&
                 desc->hooks->prepare(desc->hooks->user) != 0;
    desc = desc != NULL ? desc : &none;
    memset(p, 0, sizeof *p);
    p->model = m;
    p->backend = desc->backend;
    p->allow_initial = desc->allow_initial;
    p->progress = desc->progress;
    p->samples = desc->samples > 0 ? desc->samples : 1;
    p->capacity = desc->capacity > 0 ? desc->capacity : m->config.context;
    p->decode.length = 1;
    p->prefill.length = desc->chunk > 0 ? desc->chunk : 64;
    p->prefill.length = p->prefill.length < p->capacity ? p->prefill.length : p->capacity;
    p->prefix.length = desc->hooks != NULL ? desc->hooks->prefix + desc->hooks->prompt : 0;
    const int64_t most = p->prefix.length > p->prefill.length ? p->prefix.length : p->prefill.length;
    for (int i = 0; i < 3 && !failed; i++)
        failed = stages[i]->length > 0 && generator_plan(p, stages[i], store, desc) != 0;
    p->tokens = (int32_t *)calloc((size_t)(p->samples * most), sizeof *p->tokens);
    p->heap = (sample_entry *)malloc((size_t)m->config.vocabulary * sizeof *p->heap);
    if (!failed && p->backend != NULL && p->backend->allocate != NULL)
        p->arena = p->backend->allocate(p->backend->context, p->arena_bytes, 64);
    else if (!failed)
        p->arena = malloc(p->arena_bytes + 64);
    if (!failed && (p->tokens == NULL || p->heap == NULL || p->arena == NULL))
        failed = model_fail(m, "out of memory: generation needs %.0f bytes in addition to the "
                               "model",
                            (double)p->arena_bytes);
    for (int i = 0; i < 3 && !failed; i++)
        failed = stages[i]->length > 0 && generator_bind(p, stages[i], store) != 0;
    if (!failed)
        p->bytes = gckpt_plan_bytes(p->decode.plan) - gckpt_plan_describe(p->decode.plan).arena + p->arena_bytes;
    else
        generator_free(p);
    return failed ? -1 : 0;
}

/* Runs a stage on p->tokens, the next stage->length tokens of each row. Returns the stage's output,
 * or NULL with m->error. */
static inline const float *generator_forward(generator *p, generator_stage *stage)
{
    const gckpt_feed feed = { stage->tokens, p->tokens };
    if (gckpt_forward(stage->exec, &feed, 1, p->samples, NULL) == GCKPT_OK)
        return gckpt_fetch(stage->exec, stage->result, 0);
    model_fail(p->model, "%s", gckpt_error_text(stage->exec));
    return NULL;
}

/* Returns the number of tokens of each text that the caches hold. */
static inline int64_t generator_length(const generator *p)
{
    const int64_t held = gckpt_position(p->decode.exec) - p->prefix.length;
    return held > 0 ? held : 0;
}

/* Forgets the tokens of all texts except the first `kept`. Forgets those as well where caches with
 * windows have overwritten keys that the next token would need. Returns the number of tokens that
 * the caches still hold, or -1 with m->error. */
static inline int64_t generator_rewind(generator *p, int64_t kept)
{
    gckpt_exec *decode = p->decode.exec;
    if (kept > 0 && gckpt_rewind(decode, p->prefix.length + kept) == GCKPT_OK)
        return kept;
    if (gckpt_rewind(decode, 0) != GCKPT_OK)
        return model_fail(p->model, "%s", gckpt_error_text(decode));
    return p->prefix.exec != NULL && generator_forward(p, &p->prefix) == NULL ? -1 : 0;
}

/* Appends the same n >= 1 tokens to all texts. Returns the logits (samples,V) for the next token of
 * each text, or NULL with m->error. Call generator_prompt or generator_rewind first. */
static inline const float *generator_append(generator *p, const int32_t *tokens, int64_t n)
{
    gckpt_exec *decode = p->decode.exec;
    const int64_t most = p->capacity - p->prefix.length - generator_length(p);
    if (n < 1 || n > most) {
        model_fail(p->model, "a prompt of %lld tokens: allowed is 1 to %lld; shorten it",
                   (long long)n, (long long)most);
        return NULL;
    }
    for (int64_t at = 0, count; at < n - 1; at += count) {
        generator_stage *stage = &p->prefill;
        const int64_t position = gckpt_position(decode);
        if (position + stage->length > p->capacity)
            stage = &p->decode;
        count = n - 1 - at < stage->length ? n - 1 - at : stage->length;
        /* the last chunk is padded; the padding tokens can be any tokens */
        for (int64_t i = 0; i < p->samples * stage->length; i++)
            p->tokens[i] = i % stage->length < count ? tokens[at + i % stage->length] : 0;
        if (generator_forward(p, stage) == NULL || gckpt_rewind(decode, position + count) != GCKPT_OK)
            return NULL;
    }
    for (int64_t i = 0; i < p->samples; i++)
        p->tokens[i] = tokens[n - 1];
    return generator_forward(p, &p->decode);
}

/* Starts all texts with the same n >= 1 tokens. Returns as generator_append. */
static inline const float *generator_prompt(generator *p, const int32_t *tokens, int64_t n)
{
    return generator_rewind(p, 0) < 0 ? NULL : generator_append(p, tokens, n);
}

/* Appends tokens[i] to text i, for all texts. Returns the logits for the next tokens, as
 * generator_prompt. */
static inline const float *generator_next(generator *p, const int32_t *tokens)
{
    memcpy(p->tokens, tokens, (size_t)p->samples * sizeof *tokens);
    return generator_forward(p, &p->decode);
}

static inline int generator_is_stop(const int32_t *stops, int32_t token)
{
    while (stops != NULL && *stops >= 0 && *stops != token)
        stops++;
    return stops != NULL && *stops >= 0;
}

/* Generates up to `most` tokens for each row of out (samples,most), the first one from `logits`,
 * which generator_append has returned. Row i samples as text number first + i. A row ends at a token
 * in `stops` (a list that ends with -1, or NULL); the rest of the row is filled with that token. If
 * on_token is not NULL, it is called with the tokens (samples) of each position, and generation
 * stops when it returns nonzero. Returns the number of tokens of the longest row, which is below
 * `most` if the capacity is used up, or -1 with m->error. The caches hold all of these tokens except
 * the last. */
static inline int64_t generator_sample(
    generator *p, const float *logits, uint64_t first, const sample_options *options, int64_t most,
    const int32_t *stops, int32_t *out,
    int (*on_token)(void *user, int64_t at, const int32_t *tokens), void *user)
{
    const int64_t V = p->model->config.vocabulary;
    int64_t generated = 0;
    for (int active = 1; active && logits != NULL && generated < most; generated++) {
        if (generated > 0 && gckpt_position(p->decode.exec) == p->capacity)
            break;
        logits = generated > 0 ? generator_forward(p, &p->decode) : logits;
        if (logits == NULL)
            break;
        active = 0;
        for (int64_t i = 0; i < p->samples; i++) {
            int32_t *row = out + i * most;
            const int ended = generated > 0 && generator_is_stop(stops, row[generated - 1]);
            row[generated] = ended ? row[generated - 1]
                                   : sample_token(logits + i * V, V, options, first + (uint64_t)i,
                                                  (uint64_t)generated, p->heap);
            active |= !generator_is_stop(stops, row[generated]);
            p->tokens[i] = row[generated];
        }
        if (on_token != NULL && on_token(user, generated, p->tokens) != 0)
            active = 0;
    }
    return logits == NULL ? -1 : generated;
}

/* Generates texts after a prompt of n tokens, as generator_sample does. */
static inline int64_t generator_text(generator *p, const int32_t *prompt, int64_t n,
                                     const sample_options *options, int64_t most,
                                     const int32_t *stops, int32_t *out,
                                     int (*on_token)(void *user, int64_t at, const int32_t *tokens),
                                     void *user)
{
    const float *logits = generator_prompt(p, prompt, n);
    return generator_sample(p, logits, 0, options, most, stops, out, on_token, user);
}
#endif
