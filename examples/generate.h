/* generate.h - texts by a GPT-2 of gpt2.h, token by token, with keys and values cached: to copy.
 *
 *     gpt2_generator p;
 *     if (gpt2_generator_new(&p, &model, store, NULL) != 0)
 *         fprintf(stderr, "%s\n", model.error);
 *     sample_options how = { 0.8, 40, 0, 1 }; // temperature, top_k, top_p, seed
 *     int64_t made = gpt2_generate(&p, prompt, n, &how, 100, model.config.eos, out, NULL, NULL);
 *     gpt2_generator_free(&p);
 *
 * Several texts that begin alike are made at once. The logits are, to the bit, those of one call
 * with all tokens, and what is drawn depends on seed, row and position only. C99 or C++11. */
#ifndef GENERATE_H
#define GENERATE_H
#include "gpt2.h"
#include "sample.h"

/* Inference plans that share their caches of keys and values: what hooks put before the text, chunks
 * of the prompt, and one token at a time. */
typedef struct {
    gckpt_graph *graph;
    gckpt_plan *plan;
    gckpt_exec *exec;
    int tokens, result; /* ids */
    int64_t length;     /* of a row */
} gpt2_run;

typedef struct {
    gpt2_model *model;
    int64_t samples; /* rows of all of them */
    gpt2_run one, chunk, before;
    int32_t *fed;
    sample_place *places;
} gpt2_generator;

typedef struct {
    int64_t samples; /* texts that are made at once; 0: 1 */
    int64_t chunk;   /* tokens of a prompt that are computed at once; 0: 32 */
    int threads;
    const gpt2_hooks *hooks;
    const gckpt_backend *backend;
} gpt2_generator_desc;

static inline void gpt2_generator_free(gpt2_generator *p)
{
    gpt2_run *const runs[] = { &p->before, &p->chunk, &p->one };
    for (int i = 0; i < 3; i++) {
        gckpt_exec_free(runs[i]->exec);
        gckpt_plan_free(runs[i]->plan);
        gckpt_graph_free(runs[i]->graph);
    }
    free(p->fed);
    free(p->places);
    memset(p, 0, sizeof *p);
}

/* One of the plans, for rows of `length` tokens; what a chunk computes is only cached. */
static inline int gpt2_run_new(gpt2_generator *p, gpt2_run *run, gckpt_store *store, int64_t length,
                               const gpt2_options *options, const gpt2_generator_desc *desc)
{
    gckpt_pick pick = { NULL, 0 };
    gckpt_plan_desc plan;
    gckpt_exec_desc exec;
    memset(&plan, 0, sizeof plan);
    memset(&exec, 0, sizeof exec);
    run->length = length;
    run->graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *tokens =
        gckpt_input(run->graph, "tokens", GCKPT_I32, gckpt_shape2(p->samples, length));
    pick.tensor = gpt2_hidden(p->model, tokens, options);
    if (run == &p->one)
        pick.tensor = gpt2_logits(p->model, pick.tensor);
    run->tokens = gckpt_id(tokens);
    run->result = gckpt_id(pick.tensor);
    plan.mode = GCKPT_INFERENCE;
    plan.threads = desc->threads;
    plan.backend = exec.backend = desc->backend;
    plan.fetch = &pick;
    plan.fetches = 1;
    exec.caches_of = run == &p->one ? NULL : p->one.exec;
    run->plan = gckpt_plan_new(run->graph, NULL, 0, &plan);
    if (run->plan == NULL)
        return gpt2_fail(p->model, "%s", gckpt_error_text(run->graph));
    run->exec = gckpt_exec_new(run->plan, store, &exec);
    return run->exec != NULL ? 0 : gpt2_fail(p->model, "%s", gckpt_error_text(store));
}

/* For texts up to the model's context. desc NULL: all zero. Freed before the store. */
static inline int gpt2_generator_new(gpt2_generator *p, gpt2_model *m, gckpt_store *store,
                                     const gpt2_generator_desc *desc)
{
    const gpt2_generator_desc none = { 0, 0, 0, NULL, NULL };
    const gpt2_hooks *hooks = desc != NULL ? desc->hooks : NULL;
    const int64_t before = hooks != NULL ? hooks->prefix + hooks->prompt : 0;
    gpt2_options options = { 0, m->config.context, 0, hooks };
    desc = desc != NULL ? desc : &none;
    memset(p, 0, sizeof *p);
    p->model = m;
    p->samples = desc->samples > 0 ? desc->samples : 1;
    int64_t chunk = desc->chunk > 0 ? desc->chunk : 32, most = m->config.context;
    chunk = chunk < most ? chunk : most;
    most = before > chunk ? before : chunk;
    p->fed = (int32_t *)calloc((size_t)(p->samples * most), sizeof *p->fed);
    p->places = (sample_place *)malloc((size_t)m->config.vocabulary * sizeof *p->places);
    int failed = p->fed == NULL || p->places == NULL ? gpt2_fail(m, "out of memory") : 0;
    failed = failed || gpt2_run_new(p, &p->one, store, 1, &options, desc) != 0 ||
             gpt2_run_new(p, &p->chunk, store, chunk, &options, desc) != 0;
    options.prime = 1;
    failed =
        failed || (before > 0 && gpt2_run_new(p, &p->before, store, before, &options, desc) != 0);
    if (failed)
        gpt2_generator_free(p);
    return failed ? -1 : 0;
}

/* The next tokens of all rows, p->fed. */
static inline const float *gpt2_forward(gpt2_generator *p, gpt2_run *run)
{
    const gckpt_feed feed = { run->tokens, p->fed };
    if (gckpt_forward(run->exec, &feed, 1, p->samples, NULL) == GCKPT_OK)
        return gckpt_fetch(run->exec, run->result, 0);
    gpt2_fail(p->model, "%s", gckpt_error_text(run->exec));
    return NULL;
}

/* Begins texts with n tokens, the same for all, at least one. The logits (samples,V) of what comes next;
 * NULL: m->error. */
static inline const float *gpt2_prompt(gpt2_generator *p, const int32_t *tokens, int64_t n)
{
    gckpt_exec *one = p->one.exec;
    if (n < 1)
        return gpt2_fail(p->model, "a prompt has at least one token"), (const float *)NULL;
    if (gckpt_rewind(one, 0) != GCKPT_OK || (p->before.exec && gpt2_forward(p, &p->before) == NULL))
        return NULL;
    for (int64_t at = 0, some; at < n - 1; at += some) {
        gpt2_run *run = &p->chunk;
        const int64_t position = gckpt_position(one);
        if (position + run->length > p->model->config.context)
            run = &p->one;
        some = n - 1 - at < run->length ? n - 1 - at : run->length;
        for (int64_t i = 0; i < p->samples * run->length; i++) /* behind the last: any token */
            p->fed[i] = i % run->length < some ? tokens[at + i % run->length] : 0;
        if (gpt2_forward(p, run) == NULL || gckpt_rewind(one, position + some) != GCKPT_OK)
            return NULL;
    }
    for (int64_t i = 0; i < p->samples; i++)
        p->fed[i] = tokens[n - 1];
    return gpt2_forward(p, &p->one);
}

/* Continues each text with its own token; as gpt2_prompt. */
static inline const float *gpt2_next(gpt2_generator *p, const int32_t *tokens)
{
    memcpy(p->fed, tokens, (size_t)p->samples * sizeof *tokens);
    return gpt2_forward(p, &p->one);
}

/* Generates up to `most` tokens after a prompt in each row of out (samples,most), until it is `stop`
 * (-1: never), with which it is filled then; text(user, position, tokens (samples)), which may be
 * NULL, sees them as they come and ends it by returning 1. The number of tokens of the longest row:
 * fewer where the context is full; -1: m->error. */
static inline int64_t gpt2_generate(gpt2_generator *p, const int32_t *prompt, int64_t n,
                                    const sample_options *how, int64_t most, int32_t stop,
                                    int32_t *out,
                                    int (*text)(void *user, int64_t at, const int32_t *tokens),
                                    void *user)
{
    const int64_t V = p->model->config.vocabulary;
    const float *logits = gpt2_prompt(p, prompt, n);
    int64_t made = 0;
    for (int going = 1; going && logits != NULL && made < most; made++) {
        if (made > 0 && gckpt_position(p->one.exec) == p->model->config.context)
            break;
        logits = made > 0 ? gpt2_forward(p, &p->one) : logits;
        if (logits == NULL)
            break;
        going = 0;
        for (int64_t i = 0; i < p->samples; i++) {
            int32_t *row = out + i * most;
            const int ended = made > 0 && stop >= 0 && row[made - 1] == stop;
            row[made] = ended ? stop
                              : sample_token(logits + i * V, V, how, (uint64_t)i, (uint64_t)made,
                                             p->places);
            going |= stop < 0 || row[made] != stop;
            p->fed[i] = row[made];
        }
        if (text != NULL && text(user, made, p->fed) != 0)
            going = 0;
    }
    return logits == NULL ? -1 : made;
}
#endif
