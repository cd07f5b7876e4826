/* chat.h - renders chats by a model's chat template, as text and as tokens, and finds the answers
 * in them. To copy, with jinja.h, tokenizer.h and the headers that they include.
 *
 *     chat c;
 *     if (chat_open(&c, "SmolLM2-135M-Instruct", NULL) != 0) // the template of this model's folder
 *         fprintf(stderr, "%s\n", c.error);
 *     const chat_turn turns[] = { { CHAT_USER, "Hello!", 6 } };
 *     chat_encode(&c, &tokenizer, turns, 1, 1, 0, &tokens, NULL); // before an answer
 *     chat_free(&c);
 *
 * A model's chat_template is a Jinja program, which jinja.h runs. For messages with tools,
 * reasoning and other keys, call chat_begin, chat_add_json for each message, and chat_encode_added. Special
 * tokens in a template's text become these tokens. A message's text stays text even if it spells a
 * special token: each byte of the rendered text carries a mark of the message that it comes from.
 * An answer is tokenised separately from the text before it, as it is during generation.
 *
 * The targets of training are the bytes that the template marks by {% generation %}. Without such
 * marks, a target begins after the request for an answer (the text of add_generation_prompt) and
 * ends with the token that ends the turn. A chat is refused if the template
 * omits a message, or if it does not write the request for an answer before the answer.
 * C99 or C++11. */
#ifndef CHAT_H
#define CHAT_H
#include "jinja.h"
#include "tokenizer.h"

typedef enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES } chat_role;
static const char *const chat_roles[] = { "system", "user", "assistant" };

typedef struct {
    chat_role role;
    const char *text;
    size_t size;
} chat_turn;

/* The parts of a rendered chat: text of the template, text of a message, text of an answer, and
 * text of the template in an answer, such as its end. The last two are the targets. */
typedef enum { CHAT_TEMPLATE, CHAT_CONTENT, CHAT_ANSWER, CHAT_END } chat_part;

/* The marks of jinja.h: CHAT_GIVEN for data outside messages, CHAT_MESSAGE + i for message i. */
enum { CHAT_GIVEN = 1, CHAT_MESSAGE = 2, CHAT_MOST_MESSAGES = 32000 };

/* Templates for models that have none. */
static const struct {
    const char *name, *text;
} chat_templates[] = {
    { "chatml",
      "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}" },
    { "llama3", "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' ~ m.role ~ "
                "'<|end_header_id|>\\n\\n' ~ m.content | trim ~ '<|eot_id|>' }}{% endfor %}"
                "{% if add_generation_prompt %}"
                "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}" },
    { "gemma",
      "{{ bos_token }}{% set system = messages and messages[0].role == 'system' %}"
      "{% for m in messages[1 if system else 0:] %}"
      "{% if m.role != ('assistant' if loop.index0 % 2 else 'user') %}"
      "{{ raise_exception('user and assistant must alternate') }}{% endif %}"
      "{{ '<start_of_turn>' ~ ('user' if m.role == 'user' else 'model') ~ '\\n' ~ "
      "(messages[0].content ~ '\\n\\n' if system and loop.first else '') ~ m.content | trim ~ "
      "'<end_of_turn>\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}" },
    { "mistral", "{{ bos_token }}{% for m in messages %}"
                 "{% if m.role != ('assistant' if loop.index0 % 2 else 'user') %}"
                 "{{ raise_exception('user and assistant must alternate') }}{% endif %}"
                 "{{ '[INST] ' ~ m.content ~ '[/INST]' if m.role == 'user' else "
                 "' ' ~ m.content | trim ~ eos_token }}"
                 "{% endfor %}" },
    { "zephyr",
      "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ eos_token ~ '\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}" },
};
enum { CHAT_TEMPLATES = sizeof chat_templates / sizeof chat_templates[0] };

/* A template and a chat. All zero is a chat without a template. */
typedef struct {
    char name[32]; /* of a template above, "own", or "model" for the model's; "" for no template */
    /* texts of the begin-of-text token and the end-of-text token */
    char bos_eos[2][64];
    char custom[CHAT_ROLES][2][256]; /* texts before and after a turn, set by chat_set_turn */
    char source[96];   /* name of the file that contains the model's template, or "" */
    char problem[400]; /* why the model's template cannot be used, or "" */
    char error[512];
    jinja program;
    jinja_memory base; /* memory without messages */
    /* the text after an answer that is followed by another turn; its first tail_common bytes also
     * follow the last answer of a chat, which all of `last` follows */
    char tail[256], last[256];
    size_t tail_size, tail_common, last_size;
    int probed; /* nonzero if tail and last have been determined */
    /* the messages and tools of the chat that is being made */
    jinja_value messages, tools;
    size_t capacity;
    /* the rendered chat, and for each byte 1 if it is a target; valid until the next call */
    jinja_text out;
    unsigned char *targets;
    size_t spelled; /* number of special tokens that the messages of that chat spell out */
    size_t empty;   /* number of its answers that are empty */
} chat;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
chat_fail(chat *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->error, sizeof c->error, format, args);
    va_end(args);
    return -1;
}

/* ---- the template ---------------------------------------------------------------------------- */
/* Frees the template and the messages of a chat. */
static inline void chat_free(chat *c)
{
    jinja_free(&c->program);
    c->name[0] = 0;
    c->probed = 0;
}

/* Sets a template. If it has a construct that jinja.h does not know, c->name becomes "" and
 * c->problem names it. Returns 0, or -1 with c->error if out of memory. */
static inline int chat_use(chat *c, const char *name, const char *text, size_t size)
{
    chat_free(c);
    c->problem[0] = 0;
    const int failed = jinja_open(&c->program, text, size) != 0;
    c->program.now = 1721952000; /* 26 Jul 2024: tokens do not change from day to day */
    c->base = jinja_keep(&c->program);
    if (failed && strstr(c->program.error, "out of memory") != NULL)
        return chat_fail(c, "%s", c->program.error);
    if (failed)
        snprintf(c->problem, sizeof c->problem, "%s", c->program.error);
    else
        snprintf(c->name, sizeof c->name, "%s", name);
    return 0;
}

/* Selects a template of chat_templates. Returns 0, or -1 for an unknown name (then c->error is
 * empty) or if memory is short. */
static inline int chat_select(chat *c, const char *name)
{
    c->error[0] = 0;
    for (int i = 0; i < CHAT_TEMPLATES; i++)
        if (strcmp(name, chat_templates[i].name) == 0)
            return chat_use(c, name, chat_templates[i].text, strlen(chat_templates[i].text));
    return -1;
}

/* Writes the names of all templates above to `to`, separated by commas, and returns `to`. */
static inline const char *chat_list_names(char *to, size_t size)
{
    size_t n = 0;
    for (int i = 0; i < CHAT_TEMPLATES && n < size; i++)
        n += (size_t)snprintf(to + n, size - n, "%s%s", i > 0 ? ", " : "", chat_templates[i].name);
    return to;
}

/* Selects a template by its name, with an error that lists all names. */
static inline int chat_select_named(chat *c, const char *name)
{
    char names[256];
    if (chat_select(c, name) == 0)
        return 0;
    return c->error[0] != 0
               ? -1
               : chat_fail(c, "%s: allowed is %s", name, chat_list_names(names, sizeof names));
}

/* Reads a token of tokenizer_config.json into c->bos_eos[which]. It is a string, or an object whose
 * "content" is a string. */
static inline void chat_read_token(chat *c, int which, json *d, const char *key)
{
    uint32_t at = json_find(d, JSON_ROOT, key);
    if (json_kind_of(d, at) == JSON_OBJECT)
        at = json_find(d, at, "content");
    if (json_kind_of(d, at) == JSON_STRING && json_size(d, at) < sizeof c->bos_eos[0])
        memcpy(c->bos_eos[which], json_text(d, at), json_size(d, at) + 1);
}

/* Reads tokenizer_config.json. Its chat_template is a string, or a list of templates with names, of
 * which the one named "default" is used. */
static inline int chat_read_config(chat *c, json *d)
{
    uint32_t at = json_find(d, JSON_ROOT, "chat_template"), several = 0;
    chat_read_token(c, 0, d, "bos_token");
    chat_read_token(c, 1, d, "eos_token");
    if (json_kind_of(d, at) == JSON_ARRAY) {
        several = at;
        at = 0;
        for (uint32_t i = json_first(d, several); i != 0; i = json_next(d, i))
            if (json_is(d, json_find(d, i, "name"), "default"))
                at = json_find(d, i, "template");
        snprintf(c->problem, sizeof c->problem, "none of its templates has the name default");
    }
    if (json_kind_of(d, at) == JSON_STRING || several != 0)
        snprintf(c->source, sizeof c->source, "tokenizer_config.json");
    if (d->error[0] != 0)
        return chat_fail(c, "%s", d->error);
    return json_kind_of(d, at) == JSON_STRING
               ? chat_use(c, "model", json_text(d, at), json_size(d, at))
               : 0;
}

/* Opens a template. If `name` is not NULL, it is a name in chat_templates. Otherwise it is the one
 * of the folder's chat_template.jinja or, without that file, of its tokenizer_config.json; without
 * any, or with one that jinja.h cannot run, c->name becomes "". Returns 0, or -1 with c->error, for
 * example for an unknown `name`. Call chat_free in both cases. */
static inline int chat_open(chat *c, const char *folder, const char *name)
{
    json d;
    char path[1024];
    size_t size;
    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    if (json_file_exists(path)) {
        const int failed =
            json_read_file(&d, path) != 0 ? chat_fail(c, "%s", d.error) : chat_read_config(c, &d);
        json_free(&d);
        if (failed)
            return -1;
    }
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    if (json_file_exists(path)) {
        snprintf(c->source, sizeof c->source, "chat_template.jinja");
        const char *text = json_read_text(&d, path, &size);
        const int failed =
            text == NULL ? chat_fail(c, "%s", d.error) : chat_use(c, "model", text, size);
        json_free(&d);
        if (failed)
            return -1;
    }
    return name != NULL ? chat_select_named(c, name) : 0;
}

/* Appends a text as a string of Jinja. */
static inline void chat_quote(char *to, size_t *n, const char *text)
{
    to[(*n)++] = '"';
    for (; *text != 0; text++) {
        if (*text == '"' || *text == '\\')
            to[(*n)++] = '\\';
        to[(*n)++] = *text;
    }
    to[(*n)++] = '"';
}

/* Makes a template of the texts in c->custom. */
static inline int chat_use_custom(chat *c)
{
    char text[CHAT_ROLES * 1400 + 400];
    size_t n = (size_t)sprintf(text, "{%% for m in messages %%}");
    for (int i = 0; i < CHAT_ROLES; i++) {
        const int known = c->custom[i][0][0] != 0 || c->custom[i][1][0] != 0;
        n += (size_t)sprintf(text + n, "{%% %s m.role == '%s' %%}{{ ", i > 0 ? "elif" : "if",
                             chat_roles[i]);
        if (known) {
            chat_quote(text, &n, c->custom[i][0]);
            n += (size_t)sprintf(text + n, " ~ m.content ~ ");
            chat_quote(text, &n, c->custom[i][1]);
        } else {
            n += (size_t)sprintf(text + n,
                                 i == CHAT_SYSTEM
                                     ? "raise_exception('a turn of the system needs --system-turn')"
                                     : "m.content");
        }
        n += (size_t)sprintf(text + n, " }}");
    }
    n += (size_t)sprintf(
        text + n, "{%% else %%}{{ raise_exception('a turn of the ' ~ m.role ~ ' is not known') }}"
                  "{%% endif %%}{%% endfor %%}{%% if add_generation_prompt %%}{{ ");
    chat_quote(text, &n, c->custom[CHAT_ASSISTANT][0]);
    n += (size_t)sprintf(text + n, " }}{%% endif %%}");
    return chat_use(c, "own", text, n);
}

/* Sets the texts around turns of a role. `text` is "BEFORE{}AFTER", with the escapes \n, \t and \\.
 * For answers, AFTER is a target up to its last character that is not white space. */
static inline int chat_set_turn(chat *c, chat_role role, const char *text)
{
    size_t n = 0;
    int side = 0;
    if (strcmp(c->name, "own") != 0)
        memset(c->custom, 0, sizeof c->custom);
    for (const char *p = text; *p != 0; p++) {
        if (side == 0 && p[0] == '{' && p[1] == '}') {
            c->custom[role][side++][n] = 0;
            n = 0;
            p++;
            continue;
        }
        char ch = *p;
        if (ch == '\\' && (p[1] == 'n' || p[1] == 't' || p[1] == '\\')) {
            ch = p[1] == 'n' ? '\n' : p[1] == 't' ? '\t' : '\\';
            p++;
        }
        if (n + 1 == sizeof c->custom[role][side])
            return chat_fail(c,
                             "a turn of the %s: the texts before and after {} may have at most "
                             "255 bytes each",
                             chat_roles[role]);
        c->custom[role][side][n++] = ch;
    }
    c->custom[role][side][n] = 0;
    if (side == 0)
        return chat_fail(
            c,
            "a turn of the %s, \"%.80s\": expected {} in the place of the message, as in "
            "\"<|user|>\\n{}</s>\\n\"",
            chat_roles[role], text);
    return chat_use_custom(c);
}

/* ---- messages -------------------------------------------------------------------------------- */
/* Arguments of the bodies below, which jinja_run calls. */
typedef struct {
    chat *c;
    json *d;
    uint32_t at;
    const chat_turn *turn;
    size_t count, first;
    int asks;
    const char *says; /* the error of a body, or NULL */
    size_t ends[2];   /* bytes of the text that ends an answer, and of that of the last one */
} chat_task;

/* Runs a body. Returns 0, or -1 with c->error. */
static inline int chat_run(chat *c, void (*body)(jinja *j, void *user), chat_task *task)
{
    task->c = c;
    task->says = NULL;
    if (jinja_run(&c->program, body, task) == 0 && task->says == NULL)
        return 0;
    if (task->says != NULL)
        return chat_fail(c, "message %d: %s", (int)c->messages.size + 1, task->says);
    return chat_fail(c, "%s%s", c->program.at != SIZE_MAX ? "the chat template, " : "",
                     c->program.error);
}

static inline void chat_clear(chat *c)
{
    jinja_release(&c->program, c->base);
    c->messages = jinja_make(JINJA_LIST);
    c->tools = jinja_make(JINJA_NONE);
    c->capacity = 0;
}

static inline void chat_append_message(jinja *j, chat *c, jinja_value message)
{
    if (c->messages.size == CHAT_MOST_MESSAGES)
        jinja_fail(j, "a chat of more than %d messages", CHAT_MOST_MESSAGES);
    jinja_push(j, &c->messages, &c->capacity, message);
}

static inline void chat_add_body(jinja *j, void *user)
{
    const chat_task *t = (const chat_task *)user;
    jinja_value m = jinja_list(j, JINJA_DICT, 2);
    m.items[0] = jinja_c_string("role");
    m.items[1] = jinja_c_string(chat_roles[t->turn->role]);
    m.items[2] = jinja_c_string("content");
    m.items[3] =
        jinja_string(t->turn->text, t->turn->size, (uint16_t)(CHAT_MESSAGE + t->c->messages.size));
    chat_append_message(j, t->c, m);
}

/* Appends a turn, whose text must stay valid. Returns 0, or -1 with c->error. */
static inline int chat_add(chat *c, const chat_turn *turn)
{
    chat_task t = { NULL, NULL, 0, turn, 0, 0, 0, NULL, { 0, 0 } };
    return chat_run(c, chat_add_body, &t);
}

/* Returns a role as templates name it. ShareGPT, where its key is "from", has other names, and no
 * more than these. A role is part of the template's text, so it may not have characters that special
 * tokens consist of. */
static inline jinja_value chat_role_of(jinja *j, chat_task *t, jinja_value role, int is_from)
{
    static const char *const others[][2] = {
        { "human", "user" },        { "user", "user" },
        { "gpt", "assistant" },     { "assistant", "assistant" },
        { "chatgpt", "assistant" }, { "model", "assistant" },
        { "bot", "assistant" },     { "system", "system" },
        { "observation", "tool" },  { "tool", "tool" }
    };
    role.mark = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (jinja_is(&role, others[i][0]))
            return jinja_c_string(others[i][1]);
    if (is_from)
        jinja_fail(j,
                   "message %d: from: '%.*s' is not known; known are human, user, gpt, assistant, "
                   "chatgpt, model, bot, system, observation and tool",
                   (int)t->c->messages.size + 1, JINJA_SHORT(&role));
    for (size_t i = 0; i < role.size; i++)
        if (!jinja_is_name(role.text[i], 0) && role.text[i] != '-' && role.text[i] != ' ')
            t->says = "role: expected letters, such as user, assistant, system or tool";
    /* a template that has no developer takes the system's turn in its place */
    if (jinja_is(&role, "developer") && strstr(t->c->program.source, "developer") == NULL)
        return jinja_c_string("system");
    return role;
}

/* Returns a message's content as one string: texts in a list are joined. */
static inline jinja_value chat_content_of(jinja *j, chat_task *t, jinja_value content)
{
    const jinja_value type = jinja_c_string("type"), text = jinja_c_string("text");
    jinja_text all = { NULL, NULL, 0, 0 };
    if (content.kind == JINJA_STRING)
        return content;
    for (size_t i = 0; content.kind == JINJA_LIST && i < content.size; i++) {
        const jinja_value *part = &content.items[i];
        const jinja_value *kind = part->kind == JINJA_DICT ? jinja_find(j, part, &type) : NULL;
        const jinja_value *found =
            kind != NULL && jinja_is(kind, "text") ? jinja_find(j, part, &text) : NULL;
        if (found == NULL || found->kind != JINJA_STRING) {
            content.kind = JINJA_NONE;
            break;
        }
        jinja_print(j, &all, found);
    }
    if (content.kind != JINJA_LIST)
        t->says = "content: expected a string, or a list of {\"type\": \"text\", \"text\": \"..\"}";
    return jinja_text_value(&all);
}

static inline void chat_add_json_body(jinja *j, void *user)
{
    static const char *const names[][2] = { { "from", "role" }, { "value", "content" } };
    static const char *const reasoning[] = { "reasoning_content", "thinking", "reasoning" };
    chat_task *t = (chat_task *)user;
    const jinja_value from =
        jinja_from_json(j, t->d, t->at, (uint16_t)(CHAT_MESSAGE + t->c->messages.size));
    const jinja_value role = jinja_c_string("role"), content = jinja_c_string("content"),
                      calls = jinja_c_string("tool_calls");
    if (from.kind != JINJA_DICT) {
        t->says = "expected an object with the keys role and content";
        return;
    }
    jinja_value m = jinja_list(j, JINJA_DICT, from.size + 2);
    m.size = 0;
    for (size_t i = 0; i < from.size; i++) {
        jinja_value key = from.items[2 * i], value = from.items[2 * i + 1];
        const int is_from = jinja_is(&key, names[0][0]);
        for (int k = 0; k < 2; k++)
            key = jinja_is(&key, names[k][0]) ? jinja_c_string(names[k][1]) : key;
        if (value.kind == JINJA_NONE || jinja_find(j, &m, &key) != NULL)
            continue; /* as in transformers, keys that are null are absent */
        if (jinja_is(&key, "content"))
            value = chat_content_of(j, t, value);
        if (jinja_is(&key, "role") && value.kind == JINJA_STRING)
            value = chat_role_of(j, t, value, is_from);
        m.items[2 * m.size] = key;
        m.items[2 * m.size++ + 1] = value;
    }
    const jinja_value *found = jinja_find(j, &m, &role);
    if (found == NULL || found->kind != JINJA_STRING)
        t->says = "role: expected a string";
    else if (jinja_find(j, &m, &content) == NULL && jinja_find(j, &m, &calls) == NULL)
        t->says = "content: expected a string, or a list of {\"type\": \"text\", \"text\": \"..\"}";
    for (int i = 0; i < 3; i++) { /* as in transformers, reasoning has two names */
        const jinja_value key = jinja_c_string(reasoning[i]);
        found = jinja_find(j, &m, &key);
        if (found == NULL)
            continue;
        const jinja_value value = *found;
        for (int k = 0; k < 2; k++) {
            const jinja_value name = jinja_c_string(reasoning[k]);
            if (jinja_find(j, &m, &name) == NULL) {
                m.items[2 * m.size] = name;
                m.items[2 * m.size++ + 1] = value;
            }
        }
        break;
    }
    if (t->says == NULL)
        chat_append_message(j, t->c, m);
}

/* Appends a message that is value `at` of a JSON text: {"role": .., "content": ..} with any other
 * keys, such as tool_calls or reasoning_content, or {"from": .., "value": ..}. The text must stay
 * valid. Returns 0, or -1 with c->error. */
static inline int chat_add_json(chat *c, json *d, uint32_t at)
{
    chat_task t = { NULL, d, at, NULL, 0, 0, 0, NULL, { 0, 0 } };
    return chat_run(c, chat_add_json_body, &t);
}

static inline void chat_tools_body(jinja *j, void *user)
{
    const chat_task *t = (const chat_task *)user;
    t->c->tools = jinja_from_json(j, t->d, t->at, CHAT_GIVEN);
}

/* Sets the tools, a list of JSON. Returns 0, or -1 with c->error. */
static inline int chat_set_tools(chat *c, json *d, uint32_t at)
{
    chat_task t = { NULL, d, at, NULL, 0, 0, 0, NULL, { 0, 0 } };
    return chat_run(c, chat_tools_body, &t);
}

/* Returns the value of a key of message i, or NULL. */
static inline const jinja_value *chat_value(jinja *j, const chat *c, size_t i, const char *key)
{
    const jinja_value name = jinja_c_string(key);
    return jinja_find(j, &c->messages.items[i], &name);
}

/* ---- rendering ------------------------------------------------------------------------------- */
/* Renders the first `count` messages to *to. */
static inline void chat_render_some(jinja *j, chat *c, size_t count, int asks, jinja_text *to)
{
    jinja_value messages = c->messages;
    messages.size = count;
    jinja_set(j, "messages", messages);
    jinja_set(j, "tools", c->tools);
    jinja_set(j, "documents", jinja_make(JINJA_NONE));
    jinja_set(j, "bos_token", jinja_c_string(c->bos_eos[0]));
    jinja_set(j, "eos_token", jinja_c_string(c->bos_eos[1]));
    jinja_set(j, "add_generation_prompt", jinja_bool(asks));
    jinja_render(j, to);
}

/* Returns the message's mark of a byte, without JINJA_GENERATED. */
static inline unsigned chat_origin(const jinja_text *t, size_t i)
{
    return t->marks[i] & (JINJA_GENERATED - 1u);
}

/* Returns the offset after the last byte before `end` that does not come from the template. */
static inline size_t chat_last_data(const jinja_text *t, size_t end)
{
    while (end > 0 && chat_origin(t, end - 1) == 0)
        end--;
    return end;
}

/* Returns the offset of the first byte from `at` on whose mark is `least` or more. */
static inline size_t chat_first_data(const jinja_text *t, size_t at, unsigned least)
{
    while (at < t->size && chat_origin(t, at) < least)
        at++;
    return at;
}

static inline void chat_probe_body(jinja *j, void *user)
{
    static const chat_turn turns[] = { { CHAT_USER, "a", 1 }, { CHAT_ASSISTANT, "b", 1 } };
    chat_task *t = (chat_task *)user;
    chat *c = t->c;
    jinja_text all;
    for (int i = 0; i < 4; i++) {
        t->turn = &turns[i % 2];
        chat_add_body(j, t);
    }
    chat_render_some(j, c, 4, 0, &all);
    size_t first = chat_first_data(&all, 0, CHAT_MESSAGE + 1) + 1,
           last = chat_first_data(&all, 0, CHAT_MESSAGE + 3) + 1;
    while (last < all.size && c->last_size < sizeof c->last)
        c->last[c->last_size++] = all.text[last++];
    while (first < all.size && chat_origin(&all, first) == 0 && c->tail_size < sizeof c->tail) {
        c->tail[c->tail_size] = all.text[first++];
        c->tail_common += c->tail_common == c->tail_size && c->tail_size < c->last_size &&
                          c->last[c->tail_size] == c->tail[c->tail_size];
        c->tail_size++;
    }
}

/* Determines c->tail by rendering a small chat, unless that has been done. */
static inline void chat_probe(chat *c)
{
    chat_task t = { c, NULL, 0, NULL, 0, 0, 0, NULL, { 0, 0 } };
    if (c->probed || c->name[0] == 0)
        return;
    c->probed = 1;
    c->tail_size = c->tail_common = c->last_size = 0;
    chat_clear(c);
    /* a template may refuse this chat; then it is not known how its answers end */
    if (jinja_run(&c->program, chat_probe_body, &t) != 0)
        c->tail_size = c->tail_common = c->last_size = 0;
}

/* Begins a chat without messages and tools. */
static inline void chat_begin(chat *c)
{
    chat_probe(c);
    chat_clear(c);
}

/* Returns the offset in the rendered chat at which answer i begins: after the text that the
 * template writes before it and also at the end of a chat with a request for it. Text of earlier
 * messages may differ between the two. Fails if no part of the request for the answer agrees. */
static inline size_t chat_answer_begin(jinja *j, chat *c, size_t i)
{
    const jinja_memory before = jinja_keep(j);
    const jinja_text *all = &c->out;
    const size_t first = chat_last_data(all, chat_first_data(all, 0, (unsigned)(CHAT_MESSAGE + i)));
    jinja_text asked, ended;
    size_t n = 0;
    chat_render_some(j, c, i, 1, &asked);
    const size_t from = chat_last_data(&asked, asked.size), most = asked.size - from;
    while (n < most && first + n < all->size && all->text[first + n] == asked.text[from + n] &&
           chat_origin(all, first + n) == 0)
        n++;
    if (n < most) {
        chat_render_some(j, c, i, 0, &ended);
        j->at = SIZE_MAX;
        if (n <= ended.size - chat_last_data(&ended, ended.size))
            jinja_fail(
                j,
                "message %d: the request for this answer is not before the answer, so it is not "
                "clear where the answer begins; leave out earlier answers, or use a template with "
                "{%% generation %%}",
                (int)i + 1);
    }
    jinja_release(j, before);
    return first + n;
}

/* Returns the offset at which an answer that begins at `first` ends: after the text `end`, or if it
 * has none after the message's last byte. */
static inline size_t chat_answer_end(const chat *c, size_t i, size_t first, const char *end,
                                     size_t n)
{
    const jinja_text *all = &c->out;
    const size_t most = chat_first_data(all, first, (unsigned)(CHAT_MESSAGE + i + 1));
    size_t last = most;
    for (size_t at = first; n > 0 && at + n <= most; at++)
        if (memcmp(all->text + at, end, n) == 0 && chat_first_data(all, at, 1) >= at + n)
            return at + n;
    while (last > first && chat_origin(all, last - 1) != CHAT_MESSAGE + i)
        last--;
    return last;
}

/* Fails if a message with text has no byte in the rendered chat. */
static inline void chat_check_omitted(jinja *j, const chat *c)
{
    unsigned char *seen = (unsigned char *)jinja_alloc(j, CHAT_MESSAGE + c->messages.size);
    memset(seen, 0, CHAT_MESSAGE + c->messages.size);
    for (size_t i = 0; i < c->out.size; i++)
        seen[chat_origin(&c->out, i)] = 1;
    for (size_t i = 0; i < c->messages.size; i++) {
        const jinja_value *text = chat_value(j, c, i, "content"),
                          *who = chat_value(j, c, i, "role");
        j->at = SIZE_MAX;
        if (!seen[CHAT_MESSAGE + i] && text != NULL && text->kind == JINJA_STRING &&
            jinja_strip(*text, 1, 1, NULL).size > 0)
            jinja_fail(
                j,
                "the template omits message %d (%.*s); remove it, or move its text to another one",
                (int)i + 1, (int)(who != NULL && who->size < 40 ? who->size : 0),
                who != NULL ? who->text : "");
    }
}

static inline void chat_render_body(jinja *j, void *user)
{
    const chat_task *t = (const chat_task *)user;
    chat *c = t->c;
    int generated = 0;
    chat_render_some(j, c, c->messages.size, t->asks, &c->out);
    chat_check_omitted(j, c);
    c->targets = (unsigned char *)jinja_alloc(j, c->out.size + 1);
    memset(c->targets, 0, c->out.size + 1);
    for (size_t i = 0; i < c->out.size; i++)
        generated |= c->out.marks[i] & JINJA_GENERATED;
    for (size_t i = 0, end; generated && i < c->out.size; i = end) {
        unsigned most = 0;
        for (end = i;
             end < c->out.size && ((c->out.marks[end] ^ c->out.marks[i]) & JINJA_GENERATED) == 0;
             end++)
            most = chat_origin(&c->out, end) > most ? chat_origin(&c->out, end) : most;
        if ((c->out.marks[i] & JINJA_GENERATED) != 0 &&
            most >= (t->first > 0 ? CHAT_MESSAGE + t->first : 0))
            memset(c->targets + i, 1, end - i);
    }
    c->empty = 0;
    for (size_t i = t->first; i < c->messages.size; i++) {
        const jinja_value *role = chat_value(j, c, i, "role"),
                          *text = chat_value(j, c, i, "content");
        if (role == NULL || !jinja_is(role, chat_roles[CHAT_ASSISTANT]))
            continue;
        c->empty += (text == NULL || text->size == 0) && chat_value(j, c, i, "tool_calls") == NULL;
        if (!generated && t->count > 0) {
            const size_t begin = chat_answer_begin(j, c, i);
            const int last = i + 1 == c->messages.size;
            const size_t end =
                chat_answer_end(c, i, begin, last ? c->last : c->tail, t->ends[last]);
            memset(c->targets + begin, 1, end - begin);
        }
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */
typedef struct { /* for each token, 1 if it is a target of training, else 0 */
    unsigned char *flags;
    size_t capacity;
} chat_mask;

/* Returns the longest special token with which the text s begins, or NULL. */
static inline const bpe_added *chat_match_special(const bpe *b, const char *s, size_t n)
{
    const bpe_added *best = NULL;
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < b->added_count[list]; i++) {
            const bpe_added *a = &b->added[list][i];
            if (n >= a->name_size && *s == *a->name && a->special &&
                memcmp(s, a->name, a->name_size) == 0 &&
                (best == NULL || a->name_size > best->name_size))
                best = a;
        }
    return best;
}

/* Returns the number of special tokens that `text` spells out. */
static inline size_t chat_count_special(const bpe *b, const char *text, size_t size)
{
    unsigned char first[256] = { 0 };
    size_t n = 0;
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < b->added_count[list]; i++)
            first[(unsigned char)*b->added[list][i].name] |=
                (unsigned char)(b->added[list][i].special != 0);
    for (size_t i = 0; i < size; i++) {
        const bpe_added *a =
            first[(unsigned char)text[i]] != 0 ? chat_match_special(b, text + i, size - i) : NULL;
        n += a != NULL;
        i += a != NULL ? a->name_size - 1 : 0;
    }
    return n;
}

/* Returns the bytes of c->tail that end an answer: what follows every answer, up to its last
 * special token or, if it has none, to its last character that is not white space. */
static inline size_t chat_end_size(const chat *c, const bpe *b)
{
    size_t size = 0, n = 1, i;
    for (i = 0; i < c->tail_common; i += n) {
        const bpe_added *a = chat_match_special(b, c->tail + i, c->tail_size - i);
        n = a != NULL ? a->name_size : 1;
        if (a != NULL && i + n <= c->tail_common)
            size = i + n;
        if (i + n > c->tail_common)
            break;
    }
    if (size == 0)
        for (size = i < c->tail_common ? i : c->tail_common;
             size > 0 && strchr(" \n\t\r", c->tail[size - 1]) != NULL;)
            size--;
    return size;
}

/* Sets the bytes of c->tail that end an answer, and of c->last that end the last one. They are the
 * same, unless each begins with another special token, as in gpt-oss. */
static inline void chat_end_sizes(const chat *c, const bpe *b, size_t ends[2])
{
    const bpe_added *a = chat_match_special(b, c->tail, c->tail_size),
                    *last = chat_match_special(b, c->last, c->last_size);
    ends[0] = ends[1] = chat_end_size(c, b);
    if (ends[0] == 0 && a != NULL && last != NULL) {
        ends[0] = a->name_size;
        ends[1] = last->name_size;
    }
}

/* Returns the first special token in the text that ends the last answer, or -1. */
static inline int32_t chat_end_token(chat *c, const bpe *b)
{
    size_t ends[2];
    chat_probe(c);
    chat_end_sizes(c, b, ends);
    for (size_t i = 0; i < ends[1]; i++) {
        const bpe_added *a = chat_match_special(b, c->last + i, ends[1] - i);
        if (a != NULL)
            return a->id;
    }
    return -1;
}

typedef struct {
    chat *c;
    bpe *b;
    bpe_tokens *to;
    chat_mask *mask;
    /* text: the text since the last special token; its first `done` bytes have been appended to
     * `to` already, as the tokens from index `from` on */
    char *text;
    size_t size, capacity, done, from;
    size_t begin; /* index of the first token of the chat */
    int is_target, specials;
} chat_writer;

/* Marks the tokens from index `first` on as targets if is_target is 1, or as other tokens if it is
 * 0. Returns 0, or -1 if out of memory. */
static inline int chat_mark_tokens(const bpe_tokens *to, chat_mask *mask, size_t first,
                                   int is_target)
{
    if (to->count > mask->capacity) {
        const size_t capacity = to->capacity > to->count ? to->capacity : to->count;
        unsigned char *more = (unsigned char *)realloc(mask->flags, capacity);
        if (more == NULL)
            return -1;
        mask->flags = more;
        mask->capacity = capacity;
    }
    if (to->count > first)
        memset(mask->flags + first, is_target, to->count - first);
    return 0;
}

/* Tokenises n bytes of text. If the first `count` tokens equal `known`, appends the tokens after
 * them and returns 1. If they differ, appends nothing and returns 0. Returns -1 with to->error
 * after an error. */
static inline int chat_append_tail(bpe *b, const char *text, size_t n, int flags,
                                   const int32_t *known, size_t count, bpe_tokens *to)
{
    bpe_tokens all = { NULL, 0, 0, "" };
    int status = bpe_encode(b, text, n, flags, &all) != 0 ? -1 : 0;
    if (status < 0)
        memcpy(to->error, all.error, sizeof to->error);
    else if (all.count >= count && count > 0 && memcmp(all.ids, known, count * sizeof *known) == 0)
        status = bpe_reserve(to, all.count - count) != 0 ? -1 : 1;
    if (status == 1 && all.count > count) {
        memcpy(to->ids + to->count, all.ids + count, (all.count - count) * sizeof *all.ids);
        to->count += all.count - count;
    }
    bpe_tokens_free(&all);
    return status;
}

/* Appends the tokens that a text has if a newline precedes it; few tokenizers merge text across a
 * newline. Returns as chat_append_tail. */
static inline int chat_after_newline(bpe *b, const char *text, size_t n, int flags, bpe_tokens *to)
{
    bpe_tokens one = { NULL, 0, 0, "" };
    char *anchored = (char *)malloc(n + 1);
    int status = anchored == NULL ? -1 : 0;
    if (status < 0)
        snprintf(to->error, sizeof to->error, "out of memory for %.0f bytes", (double)n + 1);
    if (status == 0) {
        anchored[0] = '\n';
        memcpy(anchored + 1, text, n);
        status = bpe_encode(b, anchored, 1, flags, &one) != 0 ? -1 : 0;
        if (status < 0)
            memcpy(to->error, one.error, sizeof to->error);
    }
    if (status == 0)
        status = chat_append_tail(b, anchored, n + 1, flags, one.ids, one.count, to);
    bpe_tokens_free(&one);
    free(anchored);
    return status;
}

/* Appends tokens of the bytes done to n of a text; the tokens from index `from` on are those of its
 * first `done` bytes. Usually tokenises these bytes as a text. But some tokenizers put a character
 * before every text (Llama 2's "Prepend"): then takes the last tokens of the whole text or, if one
 * of its tokens extends across `done`, the tokens of the bytes after a newline. flags: flags of
 * bpe_encode for the whole text. */
static inline int chat_append(bpe *b, const char *text, size_t done, size_t n, int flags,
                              size_t from, bpe_tokens *to)
{
    bpe_tokens one = { NULL, 0, 0, "" };
    const int inside = flags | (done > 0 ? BPE_NOT_FIRST : 0);
    size_t size = 0;
    int status = 0;
    if (done > 0 && n > done && bpe_encode(b, "x", 1, BPE_NOT_FIRST, &one) != 0) {
        memcpy(to->error, one.error, sizeof to->error);
        status = -1;
    }
    if (one.count > 0)
        bpe_bytes(b, one.ids[0], &size);
    if (status == 0 && (one.count > 1 || size > 1)) {
        status = chat_append_tail(b, text, n, flags, to->ids + from, to->count - from, to);
        if (status == 0)
            status = chat_after_newline(b, text + done, n - done, flags, to);
    }
    bpe_tokens_free(&one);
    return status != 0 ? -(status < 0) : bpe_encode(b, text + done, n - done, inside, to);
}

/* Tokenises the text that chat_write has collected. */
static inline int chat_flush(chat_writer *w)
{
    const size_t first = w->to->count;
    if (w->done == 0)
        w->from = first;
    const int flags = w->from > w->begin ? BPE_NOT_FIRST : 0;
    if (w->size > w->done &&
        chat_append(w->b, w->text, w->done, w->size, flags, w->from, w->to) != 0)
        return chat_fail(w->c, "%s", w->to->error);
    w->done = w->size;
    if (w->mask != NULL && chat_mark_tokens(w->to, w->mask, first, w->is_target) != 0)
        return chat_fail(w->c, "out of memory for marks of %.0f tokens", (double)w->to->count);
    return 0;
}

static inline int chat_push(chat_writer *w, const char *text, size_t n)
{
    if (w->size + n > w->capacity) {
        const size_t capacity = 2 * (w->size + n) + 256;
        char *more = (char *)realloc(w->text, capacity);
        if (more == NULL)
            return chat_fail(w->c, "out of memory for %.0f bytes of a chat", (double)capacity);
        w->text = more;
        w->capacity = capacity;
    }
    if (n > 0)
        memcpy(w->text + w->size, text, n);
    w->size += n;
    return 0;
}

/* Appends the tokens of n bytes of a part. Text of the template and of messages is collected, and
 * tokenised as
 * one text when a special token or an answer follows. */
static inline int chat_write(chat_writer *w, chat_part part, const char *text, size_t n)
{
    const int is_target = part == CHAT_ANSWER || part == CHAT_END;
    if (is_target != w->is_target && chat_flush(w) != 0)
        return -1;
    w->is_target = is_target;
    if ((part == CHAT_CONTENT || part == CHAT_ANSWER) && !w->specials)
        return chat_push(w, text, n);
    for (size_t i = 0, size; i < n; i += size) {
        const bpe_added *a = chat_match_special(w->b, text + i, n - i);
        size = a != NULL ? a->name_size : 1;
        if (a == NULL && chat_push(w, text + i, 1) != 0)
            return -1;
        if (a == NULL)
            continue;
        if (chat_flush(w) != 0)
            return -1;
        w->size = w->done = 0;
        const size_t first = w->to->count;
        if (bpe_reserve(w->to, 1) != 0)
            return chat_fail(w->c, "%s", w->to->error);
        w->to->ids[w->to->count++] = a->id;
        if (w->mask != NULL && chat_mark_tokens(w->to, w->mask, first, is_target) != 0)
            return chat_fail(w->c, "out of memory for marks of %.0f tokens", (double)first);
    }
    return 0;
}

/* Renders the messages that were added, to c->out and c->targets. If add_prompt is nonzero, ends
 * with the request for an answer. Answers before message `first` are no targets. b may be
 * NULL; then there are no targets, unless the template marks them. Returns 0, or -1 with
 * c->error. */
static inline int chat_render_added(chat *c, bpe *b, size_t first, int add_prompt)
{
    chat_task t = { NULL, NULL, 0, NULL, b != NULL, first, add_prompt, NULL, { 0, 0 } };
    if (c->messages.size == 0)
        return chat_fail(c, "the chat has no messages; give at least one");
    if (b != NULL)
        chat_end_sizes(c, b, t.ends);
    return chat_run(c, chat_render_body, &t);
}

/* Appends the tokens of the messages that were added. If mask is not NULL, marks the tokens of
 * answers and of their ends as targets, except those of answers before message `first`. If
 * add_prompt is nonzero, ends with the request for an answer. If specials is nonzero, special
 * tokens that messages spell out become these tokens. Returns 0, or -1 with c->error and unchanged
 * tokens. */
static inline int chat_encode_added(chat *c, bpe *b, size_t first, int add_prompt, int specials,
                                    bpe_tokens *to, chat_mask *mask)
{
    chat_writer w;
    const size_t before = to->count;
    memset(&w, 0, sizeof w);
    w.c = c;
    w.b = b;
    w.to = to;
    w.mask = mask;
    w.begin = before;
    w.specials = specials;
    c->spelled = 0;
    int failed = chat_render_added(c, b, first, add_prompt) != 0;
    if (failed && mask == NULL) /* without training, no answer needs a known place */
        failed = chat_render_added(c, NULL, first, add_prompt) != 0;
    for (size_t i = 0, end; !failed && i < c->out.size; i = end) {
        const int data = chat_origin(&c->out, i) != 0, is_target = c->targets[i];
        for (end = i + 1; end < c->out.size && (chat_origin(&c->out, end) != 0) == data &&
                          c->targets[end] == is_target;)
            end++;
        c->spelled += data ? chat_count_special(b, c->out.text + i, end - i) : 0;
        failed = chat_write(&w,
                            data        ? is_target ? CHAT_ANSWER : CHAT_CONTENT
                            : is_target ? CHAT_END
                                        : CHAT_TEMPLATE,
                            c->out.text + i, end - i) != 0;
    }
    failed = failed || chat_flush(&w) != 0;
    free(w.text);
    if (failed)
        to->count = before;
    return failed ? -1 : 0;
}

/* Appends the tokens of a chat of turns, as chat_encode_added does. */
static inline int chat_encode(chat *c, bpe *b, const chat_turn *turns, size_t count, int add_prompt,
                              int specials, bpe_tokens *to, chat_mask *mask)
{
    int failed = 0;
    chat_begin(c);
    for (size_t i = 0; i < count && !failed; i++)
        failed = chat_add(c, &turns[i]) != 0;
    return failed || chat_encode_added(c, b, 0, add_prompt, specials, to, mask) != 0 ? -1 : 0;
}
#endif
