/* talk.h - a chat with a model on a terminal or through a pipe: the model is loaded once, and the
 * chat so far stays in the cache of keys and values. To copy, with generate.h, chat.h and
 * tokenizer.h.
 *
 *     talk t = { &g, &tokenizer, &template };
 *     t.in = stdin, t.out = stdout, t.notes = stderr;
 *     t.most = 500; // tokens of an answer
 *     if (talk_set_system(&t, "Answer briefly.", 15) != 0 || talk_run(&t) != 0)
 *         fprintf(stderr, "%s\n", t.error);
 *     talk_free(&t);
 *
 * Each turn renders the whole chat by the model's template, and computes only the tokens after
 * those that the cache already holds, which usually are those of the new message. So an answer has
 * the same bits as if the whole chat were one prompt. If a chat no longer fits into the cache, its
 * oldest messages are forgotten, with a note. C99 or C++11. */
#ifndef TALK_H
#define TALK_H
#include "chat.h"
#include "generate.h"

#include <signal.h>

/* ---- printing tokens in whole characters ----------------------------------------------------- */
typedef struct {
    FILE *out;
    char bytes[4]; /* the first bytes of a character that is not complete yet */
    size_t count;
} talk_printer;

/* Prints n bytes of text, which may end inside a character: its bytes wait for the next call.
 * Prints U+FFFD for bytes that are not UTF-8, and ? for control characters. */
static inline void talk_print(talk_printer *p, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p->bytes[p->count++] = text[i];
        while (p->count > 0) {
            const unsigned char lead = (unsigned char)p->bytes[0];
            uint32_t c = 0;
            const int size = json_utf8(p->bytes, p->count, &c);
            const size_t used = (size_t)(size < 0 ? -size : size);
            if (size < 0 && used == p->count && lead >= 0xc2 && lead < 0xf5)
                break; /* more bytes are needed */
            if (size < 0)
                fputs("\xef\xbf\xbd", p->out);
            else if ((c < 32 && c != '\n' && c != '\t') || c == 127)
                fputc('?', p->out);
            else
                fwrite(p->bytes, 1, used, p->out);
            p->count -= used;
            memmove(p->bytes, p->bytes + used, p->count);
        }
    }
}

/* Ends a text: prints U+FFFD if its last character is not complete. */
static inline void talk_print_end(talk_printer *p)
{
    if (p->count > 0)
        fputs("\xef\xbf\xbd", p->out);
    p->count = 0;
}

/* ---- a chat ---------------------------------------------------------------------------------- */
/* Why an answer ended: with a token that ends it, after talk.most tokens, because the cache is full,
 * or by an interrupt. */
typedef enum { TALK_STOP, TALK_LENGTH, TALK_CONTEXT, TALK_INTERRUPT } talk_end;
static const char *const talk_ends[] = { "stop", "length", "context", "interrupt" };

typedef struct {
    int64_t tokens;    /* tokens of the chat before the answer */
    int64_t computed;  /* number of these that the cache did not hold yet */
    int64_t generated; /* tokens of the answer, including the one that ends it */
    int64_t forgotten; /* messages and answers that were forgotten before this answer */
    talk_end end;
} talk_answer;

typedef struct {
    chat_role role;
    char *text; /* owned by the chat */
    size_t size;
} talk_turn;

typedef struct {
    /* The caller sets these: a generator of one sample, and what belongs to its model. */
    generator *g;
    bpe *tokenizer;
    chat *format;
    FILE *in, *out, *notes; /* notes: for remarks of this program */
    sample_options how;     /* zeros select the most likely token */
    int64_t most;           /* most tokens of an answer; 0 means 1024 */
    const int32_t *stops;
    /* text before each message that is read, such as "> " on a terminal, or NULL */
    const char *prompt;
    /* NULL, or a flag that a signal handler sets: stops the answer, or ends the chat if no answer is
     * being computed. It is 0 again after an answer. A handler without SA_RESTART also ends the wait
     * for a message. */
    volatile sig_atomic_t *interrupted;
    /* NULL, or a function that is called after each answer */
    void (*on_answer)(void *user, const talk_answer *a);
    void *user;

    /* The rest is private, except `error`. turns[0] is the system's message if has_system is
     * nonzero; `rendered` has memory for as many turns. */
    talk_turn *turns;
    chat_turn *rendered;
    size_t count, capacity;
    int has_system;
    bpe_tokens held;   /* the tokens whose keys and values the cache holds come first */
    uint64_t answered; /* number of answers so far */
    talk_printer printer;
    char *line;
    size_t line_size, line_capacity;
    char error[512];
} talk;

static inline int talk_fail(talk *t, const char *text)
{
    snprintf(t->error, sizeof t->error, "%s", text);
    return -1;
}

static inline int talk_is_interrupted(const talk *t)
{
    return t->interrupted != NULL && *t->interrupted != 0;
}

/* Removes `n` turns from index `first` on. */
static inline void talk_remove(talk *t, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        free(t->turns[i].text);
    memmove(t->turns + first, t->turns + first + n, (t->count - first - n) * sizeof *t->turns);
    t->count -= n;
}

/* Inserts a copy of a text as turn number `at`. */
static inline int talk_insert(talk *t, size_t at, chat_role role, const char *text, size_t n)
{
    char *copy = (char *)malloc(n + 1);
    if (t->count == t->capacity) {
        const size_t capacity = 2 * t->capacity + 16;
        talk_turn *more = (talk_turn *)realloc(t->turns, capacity * sizeof *more);
        t->turns = more != NULL ? more : t->turns;
        chat_turn *rendered = (chat_turn *)realloc(t->rendered, capacity * sizeof *rendered);
        t->rendered = rendered != NULL ? rendered : t->rendered;
        t->capacity = more != NULL && rendered != NULL ? capacity : t->capacity;
    }
    if (copy == NULL || t->count == t->capacity) {
        free(copy);
        return talk_fail(t, "out of memory for the chat");
    }
    memcpy(copy, text, n);
    copy[n] = 0;
    memmove(t->turns + at + 1, t->turns + at, (t->count - at) * sizeof *t->turns);
    t->turns[at].role = role;
    t->turns[at].text = copy;
    t->turns[at].size = n;
    t->count++;
    return 0;
}

/* Replaces `to` by the tokens of the chat without the first `skipped` messages after the system's, up
 * to the point where the model answers. All that this file requires of a chat template is here and in
 * talk_set_system. */
static inline int talk_encode(talk *t, size_t skipped, bpe_tokens *to)
{
    size_t n = 0;
    for (size_t i = 0; i < t->count; i++)
        if ((i == 0 && t->has_system) || i >= skipped + (size_t)t->has_system) {
            t->rendered[n].role = t->turns[i].role;
            t->rendered[n].text = t->turns[i].text;
            t->rendered[n++].size = t->turns[i].size;
        }
    to->count = 0;
    if (chat_encode(t->format, t->tokenizer, t->rendered, n, 1, 0, to, NULL) == 0)
        return 0;
    return talk_fail(t, t->format->error);
}

/* Forgets all messages except the system's. */
static inline void talk_reset(talk *t)
{
    talk_remove(t, (size_t)t->has_system, t->count - (size_t)t->has_system);
}

static inline void talk_free(talk *t)
{
    talk_remove(t, 0, t->count);
    free(t->turns);
    free(t->rendered);
    free(t->line);
    bpe_tokens_free(&t->held);
    t->turns = NULL;
    t->rendered = NULL;
    t->line = NULL;
}

/* Begins a new chat with this message of the system; if n is 0, without one. Returns 0, or -1 with
 * t->error, for example if the template has no place for it; then the chat is unchanged. */
static inline int talk_set_system(talk *t, const char *text, size_t n)
{
    bpe_tokens tokens = { NULL, 0, 0, "" };
    const chat_turn turns[] = { { CHAT_SYSTEM, text, n }, { CHAT_USER, "x", 1 } };
    const int failed =
        n > 0 && chat_encode(t->format, t->tokenizer, turns, 2, 1, 0, &tokens, NULL) != 0;
    bpe_tokens_free(&tokens);
    if (failed)
        return talk_fail(t, t->format->error);
    talk_remove(t, 0, t->count);
    t->has_system = n > 0;
    return n > 0 ? talk_insert(t, 0, CHAT_SYSTEM, text, n) : 0;
}

/* ---- an answer ------------------------------------------------------------------------------- */
/* Sets `to` to the tokens of the chat. Forgets the oldest messages if the chat would leave too little
 * of the cache for an answer. It then frees half of the cache, because the rest must be computed
 * again. Returns -1 with t->error and an unchanged chat if even the last message does not fit. */
static inline int talk_fit(talk *t, bpe_tokens *to, talk_answer *a)
{
    const int64_t room = t->g->capacity - t->g->prefix.length;
    const int64_t answer = t->most < room / 4 ? t->most : room / 4;
    const size_t first = (size_t)t->has_system;
    int64_t limit = room - (answer > 1 ? answer : 1);
    size_t skipped = 0;
    if (talk_encode(t, 0, to) != 0)
        return -1;
    while ((int64_t)to->count > limit && t->count > first + skipped + 1) {
        skipped += 2;
        limit = room / 2;
        if (talk_encode(t, skipped, to) != 0)
            return -1;
    }
    if ((int64_t)to->count >= room) {
        snprintf(t->error, sizeof t->error,
                 "the message was left out: with the system's message it needs %.0f tokens of a "
                 "context of %.0f, which leaves none for an answer; shorten one of them",
                 (double)to->count, (double)room);
        return -1;
    }
    talk_remove(t, first, skipped);
    a->forgotten = (int64_t)skipped;
    return 0;
}

/* Prints a token; an on_token function of generator_sample. */
static inline int talk_on_token(void *user, int64_t at, const int32_t *tokens)
{
    talk *t = (talk *)user;
    size_t size;
    (void)at;
    if (!generator_is_stop(t->stops, tokens[0])) {
        const char *bytes = bpe_bytes(t->tokenizer, tokens[0], &size);
        talk_print(&t->printer, bytes, size);
        fflush(t->out);
    }
    return talk_is_interrupted(t);
}

/* Adds the answer of n tokens to the chat. As templates of reasoning models do with earlier answers,
 * omits what comes before </think>. */
static inline int talk_add_answer(talk *t, const int32_t *tokens, int64_t n)
{
    static const char end[] = "</think>";
    size_t size, at = 0;
    n -= n > 0 && generator_is_stop(t->stops, tokens[n - 1]);
    char *text = bpe_decode(t->tokenizer, tokens, (size_t)n, &size);
    if (text == NULL)
        return talk_fail(t, "out of memory for an answer");
    for (size_t i = 0; i + sizeof end - 1 <= size; i++)
        if (memcmp(text + i, end, sizeof end - 1) == 0)
            at = i + sizeof end - 1;
    while (at > 0 && at < size && text[at] == '\n')
        at++;
    const int failed = talk_insert(t, t->count, CHAT_ASSISTANT, text + at, size - at);
    free(text);
    return failed;
}

/* Computes and prints the answer to the chat's last message. Returns as talk_say. */
static inline int talk_compute(talk *t, bpe_tokens *to, talk_answer *a)
{
    generator *g = t->g;
    int64_t kept = 0;
    const int64_t length = generator_length(g);
    const int64_t room = g->capacity - g->prefix.length - (int64_t)to->count + 1;
    const int64_t most = t->most < room ? t->most : room;
    const int64_t held = length < (int64_t)t->held.count ? length : (int64_t)t->held.count;
    while (kept < held && kept < (int64_t)to->count - 1 && t->held.ids[kept] == to->ids[kept])
        kept++;
    kept = generator_rewind(g, kept);
    a->tokens = (int64_t)to->count;
    a->computed = a->tokens - kept;
    if (bpe_reserve(to, (size_t)most) != 0)
        return talk_fail(t, to->error);
    const float *logits =
        kept < 0 ? NULL : generator_append(g, to->ids + kept, (int64_t)to->count - kept);
    const int64_t n = generator_sample(g, logits, t->answered, &t->how, most, t->stops,
                                       to->ids + to->count, talk_on_token, t);
    const int stopped = talk_is_interrupted(t);
    talk_print_end(&t->printer);
    if (n < 0 && !stopped)
        return talk_fail(t, g->model->error);
    a->generated = n > 0 ? n : 0;
    a->end = stopped ? TALK_INTERRUPT
             : n > 0 && generator_is_stop(t->stops, to->ids[to->count + (size_t)n - 1]) ? TALK_STOP
             : n == t->most ? TALK_LENGTH
                            : TALK_CONTEXT;
    const int failed = a->generated > 0 ? talk_add_answer(t, to->ids + to->count, n) : 1;
    to->count += (size_t)a->generated;
    if (a->generated == 0) /* interrupted before the first token: as if it had not been said */
        talk_remove(t, t->count - 1, 1);
    return a->generated > 0 ? failed : 0;
}

/* Says a message of n bytes to the model, and prints the answer. Returns 0; 1 with t->error if the
 * message cannot be rendered or is too long, and then is no part of the chat; or -1 with t->error if
 * the chat cannot go on. */
static inline int talk_say(talk *t, const char *text, size_t n)
{
    bpe_tokens to = { NULL, 0, 0, "" };
    talk_answer a;
    memset(&a, 0, sizeof a);
    t->most = t->most > 0 ? t->most : 1024;
    t->printer.out = t->out;
    if (talk_insert(t, t->count, CHAT_USER, text, n) != 0)
        return -1;
    if (talk_fit(t, &to, &a) != 0) {
        talk_remove(t, t->count - 1, 1);
        bpe_tokens_free(&to);
        return 1;
    }
    if (a.forgotten > 0)
        fprintf(t->notes,
                "(The context of %.0f tokens is full: forgot the oldest %.0f messages.)\n",
                (double)t->g->capacity, (double)a.forgotten);
    const int failed = talk_compute(t, &to, &a);
    bpe_tokens_free(&t->held);
    t->held = to;
    t->answered++;
    fputc('\n', t->out);
    fflush(t->out);
    if (!failed && a.end != TALK_STOP)
        fprintf(t->notes, "(%s)\n",
                a.end == TALK_INTERRUPT ? "Stopped."
                : a.end == TALK_LENGTH  ? "The answer was cut: it has as many tokens as allowed."
                                        : "The answer was cut: the context is full.");
    if (t->interrupted != NULL)
        *t->interrupted = 0;
    if (!failed && t->on_answer != NULL)
        t->on_answer(t->user, &a);
    return failed;
}

/* ---- reading messages ------------------------------------------------------------------------ */
/* Reads a message into t->line: a line, and further lines as long as each ends with a backslash.
 * Returns 1, or 0 at the end of the input or after an interrupt. */
static inline int talk_read(talk *t)
{
    int c = 0;
    t->line_size = 0;
    if (t->prompt != NULL)
        fputs(t->prompt, t->out);
    fflush(t->out);
    while (!talk_is_interrupted(t) && (c = fgetc(t->in)) != EOF) {
        const int escaped = t->line_size > 0 && t->line[t->line_size - 1] == '\\';
        if (c == '\n' && !escaped)
            break;
        if (t->line_size + 1 >= t->line_capacity) {
            const size_t capacity = 2 * t->line_capacity + 256;
            char *more = (char *)realloc(t->line, capacity);
            if (more == NULL)
                return 0;
            t->line = more;
            t->line_capacity = capacity;
        }
        t->line_size -= c == '\n'; /* a newline in the place of the backslash */
        t->line[t->line_size++] = (char)c;
        t->line[t->line_size] = 0;
    }
    return !talk_is_interrupted(t) && (c != EOF || t->line_size > 0);
}

/* Obeys a line that begins with a slash. Returns 1 if the chat ends, else 0. */
static inline int talk_obey(talk *t, const char *line)
{
    const int system = strncmp(line, "/system", 7) == 0 && (line[7] == 0 || line[7] == ' ');
    const char *text = system && line[7] == ' ' ? line + 8 : "";
    if (strcmp(line, "/exit") == 0)
        return 1;
    if (strcmp(line, "/reset") == 0)
        talk_reset(t);
    else if (!system)
        fputs(
            "(Commands: /reset begins a new chat; /system TEXT begins one with another message of\n"
            "the system; /exit ends. A message that begins with / may begin with a blank.)\n",
            t->notes);
    else if (talk_set_system(t, text, strlen(text)) != 0)
        fprintf(t->notes, "(%s)\n", t->error);
    return 0;
}

/* Reads messages and prints answers until the end of the input, /exit, or an interrupt between
 * answers. Returns 0, or -1 with t->error. */
static inline int talk_run(talk *t)
{
    int failed = 0;
    while (failed >= 0 && talk_read(t)) {
        if (t->line_size == 0)
            continue;
        if (t->line[0] == '/') {
            if (talk_obey(t, t->line))
                return 0;
            continue;
        }
        failed = talk_say(t, t->line, t->line_size);
        if (failed > 0)
            fprintf(t->notes, "(%s)\n", t->error);
    }
    return failed < 0 ? -1 : 0;
}
#endif
