/* evaluate.h - share of right answers of a language model: multiple choice by log-probability, and
 * answers that are generated. To copy, with generate.h, dataset.h and chat.h.
 *
 *     evaluation e = { &g, &tokenizer, NULL, stops, 256 };
 *     if (evaluate_choices(&e, "arc.jsonl") != 0)   // or evaluate_answers(&e, &dataset)
 *         fprintf(stderr, "%s\n", e.error);
 *     printf("%g\n", e.right[EVALUATE_SUM] / e.count);
 *     evaluate_free(&e);
 *
 * A line of a multiple-choice file is {"question": "..", "choices": ["..", ..], "answer": index or
 * text}, or as in ARC {.., "choices": {"text": ["..", ..], "label": ["A", ..]}, "answerKey": "A"}. As in lm-evaluation-harness, a choice follows the question after a blank, and its
 * log-probability is the sum over its tokens; acc counts the questions whose choice of the greatest
 * sum is the answer, and acc_norm those by the greatest sum per character. With a chat template,
 * the question is a message of the user, and the choice begins the answer.
 *
 * The other method generates an answer greedily after the last prompt of each row of a dataset, and
 * compares it with the row's answer, without white space around both. C99 or C++11. */
#ifndef EVALUATE_H
#define EVALUATE_H
#include "dataset.h"
#include "generate.h"

/* EVALUATE_SUM: by the sum of log-probabilities (acc); EVALUATE_CHARACTER: by the sum divided by the
 * choice's characters (acc_norm); EVALUATE_TOKEN: divided by its tokens */
enum { EVALUATE_SUM, EVALUATE_CHARACTER, EVALUATE_TOKEN, EVALUATE_RULES };

typedef struct {
    double logp; /* sum of the log-probabilities of the choice's tokens */
    int64_t tokens, characters;
} evaluate_choice;

typedef struct evaluation evaluation;
struct evaluation {
    /* The caller sets these: a generator of one sample, and what belongs to its model. */
    generator *g;
    bpe *tokenizer;
    chat *format; /* chat template for questions, or NULL */
    const int32_t *stops;
    int64_t most;         /* most tokens of a generated answer */
    int (*stopped)(void); /* NULL, or a function that returns nonzero to stop */
    /* NULL, or functions that are called after each question or answer, with the line's number from
     * 1 on */
    void (*on_choices)(int64_t line, int64_t answer, const evaluate_choice *all, int64_t count);
    void (*on_answer)(int64_t line, int right);

    int64_t count;                 /* number of questions or answers so far */
    int64_t right[EVALUATE_RULES]; /* number of right ones; of answers only the first counts */
    int64_t cut;                   /* number of prompts that lost their beginning */
    char error[640];
    /* private */
    bpe_tokens prompt, choice;
    evaluate_choice *choices;
    float *logits;
    int64_t capacity;
};

static inline void evaluate_free(evaluation *e)
{
    bpe_tokens_free(&e->prompt);
    bpe_tokens_free(&e->choice);
    free(e->choices);
    free(e->logits);
    e->choices = NULL;
    e->logits = NULL;
}

static inline int evaluate_fail(evaluation *e, const char *text)
{
    snprintf(e->error, sizeof e->error, "%s", text);
    return -1;
}

/* Returns the logarithm of the probability that n logits give to a token. */
static inline double evaluate_logp(const float *logits, int64_t n, int32_t token)
{
    double greatest = (double)logits[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        greatest = (double)logits[i] > greatest ? (double)logits[i] : greatest;
    for (int64_t i = 0; i < n; i++)
        sum += sample_exp((double)logits[i] - greatest);
    return (double)logits[token] - greatest - llama_log(sum);
}

/* ---- multiple choice ------------------------------------------------------------------------- */
/* Sets e->prompt to the tokens of a question and, if `choice` is not NULL, e->choice to those of the
 * choice after it. All that depends on the chat template is here. */
static inline int evaluate_encode(evaluation *e, const char *question, size_t n, const char *choice,
                                  size_t m)
{
    e->prompt.count = e->choice.count = 0;
    if (e->format != NULL) {
        const chat_turn turn = { CHAT_USER, question, n };
        if (chat_encode(e->format, e->tokenizer, &turn, 1, 1, 0, &e->prompt, NULL) != 0)
            return evaluate_fail(e, e->format->error);
        return bpe_encode(e->tokenizer, choice, m, BPE_NOT_FIRST, &e->choice) == 0
                   ? 0
                   : evaluate_fail(e, e->choice.error);
    }
    /* both as one text, which is cut before the white space at the question's end */
    char *text = (char *)malloc(n + m + 2);
    size_t stripped = n, prefix = 0;
    if (text == NULL || bpe_reserve(&e->prompt, BPE_TEMPLATE_SIZE) != 0) {
        free(text);
        return evaluate_fail(e, "out of memory for a question");
    }
    while (stripped > 0 && strchr(" \t\r\n", question[stripped - 1]) != NULL)
        stripped--;
    memcpy(text, question, n);
    text[n] = ' ';
    memcpy(text + n + 1, choice, m);
    for (int i = 0; i < e->tokenizer->prefix_count; i++)
        e->prompt.ids[e->prompt.count++] = e->tokenizer->prefix[i];
    prefix = e->prompt.count;
    int failed = bpe_encode(e->tokenizer, text, stripped, 0, &e->prompt) != 0 ||
                 bpe_encode(e->tokenizer, text, n + 1 + m, 0, &e->choice) != 0;
    free(text);
    if (failed)
        return evaluate_fail(e, e->prompt.error[0] != 0 ? e->prompt.error : e->choice.error);
    const size_t before = e->prompt.count - prefix;
    e->choice.count -= before < e->choice.count ? before : e->choice.count;
    memmove(e->choice.ids, e->choice.ids + before, e->choice.count * sizeof *e->choice.ids);
    return 0;
}

/* Computes the log-probability of e->choice after e->prompt, of which the generator keeps what it
 * holds from the question's other choices. */
static inline int evaluate_sum(evaluation *e, int first, evaluate_choice *to)
{
    generator *g = e->g;
    const int64_t V = g->model->config.vocabulary, k = (int64_t)e->choice.count;
    const int64_t room = g->capacity - g->prefix.length;
    int64_t n = (int64_t)e->prompt.count;
    const int32_t *prompt = e->prompt.ids;
    if (n == 0 || k == 0)
        return evaluate_fail(e, "a question or a choice has no tokens");
    if (k >= room)
        return evaluate_fail(e, "a choice is longer than the context; give a larger --context");
    if (n + k > room) { /* only the end of the prompt fits; other choices may leave more of it */
        prompt += n + k - room;
        n = room - k;
        e->cut++;
        first = 1;
    }
    const int64_t kept = generator_rewind(g, first ? 0 : n);
    const float *logits = e->logits;
    if (kept >= 0 && kept < n) {
        logits = generator_append(g, prompt + kept, n - kept);
        if (logits != NULL)
            memcpy(e->logits, logits, (size_t)V * sizeof *logits);
    }
    to->logp = 0;
    to->tokens = k;
    for (int64_t i = 0; i < k && kept >= 0 && logits != NULL; i++) {
        to->logp += evaluate_logp(logits, V, e->choice.ids[i]);
        logits = i + 1 < k ? generator_append(g, e->choice.ids + i, 1) : logits;
    }
    return kept < 0 || logits == NULL ? evaluate_fail(e, g->model->error) : 0;
}

/* Returns the index of the greatest choice by a rule; of equal ones, the first. */
static inline int64_t evaluate_best(const evaluate_choice *all, int64_t count, int rule)
{
    int64_t best = 0;
    double greatest = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t length = rule == EVALUATE_CHARACTER ? all[i].characters
                               : rule == EVALUATE_TOKEN   ? all[i].tokens
                                                          : 1;
        const double value = all[i].logp / (double)(length > 0 ? length : 1);
        best = i == 0 || value > greatest ? i : best;
        greatest = i == 0 || value > greatest ? value : greatest;
    }
    return best;
}

/* Returns the index of the right choice, or -1 with d->error. If `labels` is not 0, they are the
 * choices' names, one of which is the answerKey. */
static inline int64_t evaluate_key(json *d, uint32_t choices, uint32_t labels)
{
    const uint32_t answer = json_find(d, JSON_ROOT, labels != 0 ? "answerKey" : "answer");
    int64_t index = 0;
    if (labels != 0 && json_size(d, labels) != json_size(d, choices))
        json_mismatch(d, labels, "as many labels as texts");
    for (uint32_t i = json_first(d, labels); i != 0 && d->error[0] == 0;
         i = json_next(d, i), index++)
        if (json_kind_of(d, answer) == JSON_STRING && json_is(d, i, json_text(d, answer)))
            return index;
    if (labels != 0 && d->error[0] == 0)
        json_fail(d, d->line, "\"answerKey\" must be one of the choices' labels");
    if (labels != 0)
        return -1;
    if (json_kind_of(d, answer) == JSON_NUMBER) {
        index = json_int_of(d, answer);
        if (d->error[0] == 0 && (index < 0 || index >= (int64_t)json_size(d, choices)))
            json_mismatch(d, answer, "the index of a choice, from 0 on");
        return d->error[0] == 0 ? index : -1;
    }
    for (uint32_t i = json_first(d, choices); i != 0; i = json_next(d, i), index++)
        if (json_kind_of(d, answer) == JSON_STRING && json_kind_of(d, i) == JSON_STRING &&
            json_is(d, i, json_text(d, answer)))
            return index;
    json_fail(d, d->line, "\"answer\" must be the index or the text of a choice");
    return -1;
}

/* Evaluates the question of a line. */
static inline int evaluate_line(evaluation *e, json *d)
{
    const uint32_t question = json_require(d, JSON_ROOT, "question", JSON_STRING);
    uint32_t choices = json_find(d, JSON_ROOT, "choices"), labels = 0;
    if (json_kind_of(d, choices) == JSON_OBJECT) { /* as in ARC */
        labels = json_require(d, choices, "label", JSON_ARRAY);
        choices = json_require(d, choices, "text", JSON_ARRAY);
    } else {
        choices = json_require(d, JSON_ROOT, "choices", JSON_ARRAY);
    }
    const int64_t count = d->error[0] == 0 ? (int64_t)json_size(d, choices) : 0;
    if (d->error[0] == 0 && count < 2)
        json_mismatch(d, choices, "two choices or more");
    const int64_t answer = d->error[0] == 0 ? evaluate_key(d, choices, labels) : -1;
    if (d->error[0] == 0 && count > e->capacity) {
        free(e->choices);
        e->choices = (evaluate_choice *)malloc((size_t)count * sizeof *e->choices);
        e->capacity = e->choices != NULL ? count : 0;
        if (e->choices == NULL)
            json_fail(d, d->line, "out of memory for %.0f choices", (double)count);
    }
    int64_t n = 0;
    for (uint32_t i = json_first(d, choices); i != 0 && d->error[0] == 0;
         i = json_next(d, i), n++) {
        if (json_kind_of(d, i) != JSON_STRING) {
            json_mismatch(d, i, "a text");
            break;
        }
        const char *text = json_text(d, i);
        const size_t size = json_size(d, i);
        evaluate_choice *to = &e->choices[n];
        to->characters = 0;
        for (size_t k = 0; k < size; k++)
            to->characters += ((unsigned char)text[k] & 0xc0) != 0x80;
        if (evaluate_encode(e, json_text(d, question), json_size(d, question), text, size) != 0 ||
            evaluate_sum(e, n == 0, to) != 0) {
            if (e->stopped == NULL || !e->stopped())
                json_fail(d, d->line, "%s", e->error);
            return -1;
        }
    }
    if (d->error[0] != 0)
        return -1;
    for (int rule = 0; rule < EVALUATE_RULES; rule++)
        e->right[rule] += evaluate_best(e->choices, count, rule) == answer;
    e->count++;
    if (e->on_choices != NULL)
        e->on_choices(d->line, answer, e->choices, count);
    return 0;
}

/* Evaluates all questions of a file. Returns 0, also if e->stopped has returned nonzero; -1 with
 * e->error. */
static inline int evaluate_choices(evaluation *e, const char *path)
{
    json line;
    FILE *f = fopen(path, "rb");
    json_init(&line, path);
    e->logits = (float *)malloc((size_t)e->g->model->config.vocabulary * sizeof *e->logits);
    if (f == NULL)
        json_fail(&line, 0, "%s", strerror(errno));
    else if (e->logits == NULL)
        json_fail(&line, 0, "out of memory for logits");
    while (line.error[0] == 0 && (e->stopped == NULL || !e->stopped()) &&
           json_read_line(&line, f) == 1)
        if (evaluate_line(e, &line) != 0)
            break;
    if (f != NULL)
        fclose(f);
    const int failed = line.error[0] != 0 ? evaluate_fail(e, line.error) : 0;
    json_free(&line);
    return failed;
}

/* Returns whether the first line of a file has choices. */
static inline int evaluate_has_choices(const char *path)
{
    json line;
    FILE *f = fopen(path, "rb");
    json_init(&line, path);
    const int has =
        f != NULL && json_read_line(&line, f) == 1 && json_find(&line, JSON_ROOT, "choices") != 0;
    if (f != NULL)
        fclose(f);
    json_free(&line);
    return has;
}

/* ---- generated answers ----------------------------------------------------------------------- */
static inline int evaluate_on_token(void *user, int64_t at, const int32_t *tokens)
{
    const evaluation *e = (const evaluation *)user;
    return (void)at, (void)tokens, e->stopped != NULL && e->stopped();
}

/* Returns whether tokens decode to the same text as those of the row's answer, without white space
 * around both. If `begins` is nonzero, it suffices that the text begins like that. -1 if out of
 * memory. */
static inline int evaluate_same(evaluation *e, const int32_t *tokens, size_t n,
                                const int32_t *answer, size_t m, int begins)
{
    size_t sizes[2] = { 0, 0 };
    char *text = bpe_decode(e->tokenizer, tokens, n, &sizes[0]);
    char *right = bpe_decode(e->tokenizer, answer, m, &sizes[1]);
    int same = -1;
    if (text != NULL && right != NULL) {
        const jinja_value a = jinja_strip(jinja_string(text, sizes[0], 0), 1, 1, NULL),
                          b = jinja_strip(jinja_string(right, sizes[1], 0), 1, 1, NULL);
        same =
            (begins ? a.size >= b.size : a.size == b.size) && memcmp(a.text, b.text, b.size) == 0;
    }
    free(text);
    free(right);
    return same;
}

/* Evaluates the last answer of each row of a dataset of prompts and answers or of chats. Returns as
 * evaluate_choices. */
static inline int evaluate_answers(evaluation *e, const dataset *d)
{
    generator *g = e->g;
    const sample_options greedy = { 0, 0, 0, 0 };
    const int64_t room = g->capacity - g->prefix.length;
    int32_t *out = (int32_t *)malloc((size_t)e->most * sizeof *out);
    int failed = out == NULL ? evaluate_fail(e, "out of memory for an answer") : 0;
    if (d->examples == NULL || d->pairs)
        failed = evaluate_fail(e, "rows of prompts and answers, or of chats, are expected");
    for (size_t i = 0; i < d->count && !failed && (e->stopped == NULL || !e->stopped()); i++) {
        const dataset_example row = d->examples[i];
        const int32_t *ids = d->tokens.ids;
        size_t end = row.end, begin;
        while (end > row.begin && !d->targets.flags[end - 1])
            end--;
        for (begin = end; begin > row.begin && d->targets.flags[begin - 1];)
            begin--;
        /* an end that is no token is a part of the text that is compared */
        const int ends = end > begin && generator_is_stop(e->stops, ids[end - 1]);
        int64_t n = (int64_t)(begin - row.begin);
        const int64_t most = e->most < room / 2 ? e->most : room / 2;
        if (n == 0) {
            failed = evaluate_fail(e, "a row has no prompt: lines with answers are expected, not "
                                      "{\"text\": ..}");
            break;
        }
        if (n > room - most) {
            n = room - most;
            e->cut++;
        }
        const float *logits = generator_prompt(g, ids + (begin - (size_t)n), n);
        const int64_t made =
            generator_sample(g, logits, 0, &greedy, most, e->stops, out, evaluate_on_token, e);
        if (made < 0 || (e->stopped != NULL && e->stopped())) {
            failed = e->stopped != NULL && e->stopped() ? 0 : evaluate_fail(e, g->model->error);
            break;
        }
        const size_t text =
            (size_t)(made - (made > 0 && generator_is_stop(e->stops, out[made - 1])));
        const int right =
            evaluate_same(e, out, text, ids + begin, end - begin - (size_t)ends, !ends);
        if (right < 0)
            failed = evaluate_fail(e, "out of memory for a text");
        e->right[0] += right > 0;
        e->count++;
        if (!failed && e->on_answer != NULL)
            e->on_answer((int64_t)i + 1, right);
    }
    free(out);
    return failed;
}
#endif
