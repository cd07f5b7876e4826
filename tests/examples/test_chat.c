/* test_chat.c - tests examples/chat.h and jinja.h: chats must be rendered as Jinja renders them (tests/golden/chat.jsonl,
 * made by chat.py). Further tests: which template a folder has, the tokens of a chat and which of them are trained,
 * refused chats, limits of time and memory, and every allocation failing.
 *
 *     build/test_chat            runs the tests
 *     build/test_chat FILE       compares the lines of another file
 *     build/test_chat render     reads such lines without "text" from standard input and prints each one's text, or
 * null */
#include "check.h"
#include "counted.h"
#include "examples/chat.h"

static bpe tokenizer;

/* Adds the messages and tools of a line. Returns 0, or -1 if one is refused. */
static int add_line(json *d, chat *c)
{
    const uint32_t messages = json_find(d, JSON_ROOT, "messages"), tools = json_find(d, JSON_ROOT, "tools");
    int failed = 0;
    chat_begin(c);
    if (json_kind_of(d, tools) == JSON_ARRAY)
        failed = chat_set_tools(c, d, tools) != 0;
    for (uint32_t i = json_first(d, messages); i != 0 && !failed; i = json_next(d, i))
        failed = chat_add_json(c, d, i) != 0;
    return failed ? -1 : 0;
}

/* Renders the chat of a line, by the built-in template "format", the text "template", or the template of the line before.
 * Returns 0 if it is refused. */
static int render_line(json *d, chat *c)
{
    const uint32_t format = json_find(d, JSON_ROOT, "format"), text = json_find(d, JSON_ROOT, "template");
    strcpy(c->bos_eos[0], "<BOS>");
    strcpy(c->bos_eos[1], "<EOS>");
    c->error[0] = 0;
    if (format != 0)
        CHECK_MSG(chat_select(c, json_text(d, format)) == 0, "format %s", json_text(d, format));
    if (text != 0)
        CHECK(chat_use(c, "model", json_text(d, text), json_size(d, text)) == 0);
    if (c->name[0] == 0)
        chat_fail(c, "%s", c->problem);
    return c->name[0] != 0 && add_line(d, c) == 0 && chat_render_added(c, NULL, 0, json_bool(d, JSON_ROOT, "asks", 0)) == 0;
}

static const char *text_or_empty(const chat *c) { return c->out.text != NULL ? c->out.text : ""; }

static void render_all(void)
{
    static chat c;
    json d;
    json_init(&d, "standard input");
    while (json_read_line(&d, stdin) == 1) {
        if (render_line(&d, &c))
            json_write_string(stdout, text_or_empty(&c), c.out.size);
        else
            fputs("null", stdout);
        putchar('\n');
    }
    CHECK_MSG(d.error[0] == 0, "%s", d.error);
    chat_free(&c);
    json_free(&d);
}

static void compare(const char *path)
{
    static chat c;
    int lines = 0, used[CHAT_TEMPLATES] = { 0 }, others = 0;
    json d;
    FILE *f = fopen(path, "rb");
    CHECK_MSG(f != NULL, "%s", path);
    json_init(&d, path);
    while (f != NULL && json_read_line(&d, f) == 1) {
        const uint32_t text = json_find(&d, JSON_ROOT, "text"), says = json_find(&d, JSON_ROOT, "says");
        const int done = render_line(&d, &c);
        for (int i = 0; i < CHAT_TEMPLATES; i++)
            used[i] += json_is(&d, json_find(&d, JSON_ROOT, "format"), chat_templates[i].name);
        others += json_find(&d, JSON_ROOT, "format") == 0;
        lines++;
        if (json_kind_of(&d, text) == JSON_STRING)
            CHECK_MSG(done && c.out.size == json_size(&d, text) &&
                          memcmp(text_or_empty(&c), json_text(&d, text), c.out.size) == 0,
                      "%s:%d: %.*s (%s)", path, lines, done ? (int)c.out.size : 0, text_or_empty(&c),
                      done ? "other text" : c.error);
        else
            CHECK_MSG(!done && c.error[0] != 0, "%s:%d: taken, Jinja refuses it", path, lines);
        if (says != 0)
            CHECK_MSG(strstr(c.error, json_text(&d, says)) != NULL, "%s:%d: %s", path, lines, c.error);
    }
    CHECK_MSG(d.error[0] == 0 && lines > 100 && others > 60, "%s, %d lines, %d other", d.error, lines, others);
    for (int i = 0; i < CHAT_TEMPLATES; i++)
        CHECK_MSG(used[i] > 5, "format %s: %d lines", chat_templates[i].name, used[i]);
    chat_free(&c);
    json_free(&d);
    if (f != NULL)
        fclose(f);
}

static void put_file(const char *to, const char *bytes)
{
    FILE *f = fopen(to, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, strlen(bytes), f) == strlen(bytes));
    if (f != NULL)
        fclose(f);
}

/* Writes the text of the tokens whose mask is `learns` to `to`; if learns is -1, the text of all tokens. Returns its
 * length. */
static size_t text_of(const bpe_tokens *t, const chat_mask *marks, int learns, char *to)
{
    size_t n = 0, size;
    for (size_t i = 0; i < t->count; i++)
        if (learns < 0 || marks->flags[i] == learns) {
            const char *bytes = bpe_bytes(&tokenizer, t->ids[i], &size);
            memcpy(to + n, bytes, size);
            n += size;
        }
    to[n] = 0;
    return n;
}

/* The mask must cover exactly the answers with their end tokens. The tokens before an answer must be those of a chat
 * that ends with the request for this answer. Special tokens of the template become ids, but the same characters within
 * a message are plain text. */
static void test_tokens(void)
{
    static const char *const words[] = { "one",           "\n",       " two",      "",    "1 2 3",
                                         "<|endoftext|>", "<|user|>", "\xc3\xbc ", "a\nb" };
    static const struct {
        const char *format, *lead, *end;
        int trims;
    } formats[] = { { "own", "", "<|endoftext|>", 0 },     { "chatml", "", "<|im_end|>", 0 },
                    { "llama3", "", "<|eot_id|>", 1 },     { "gemma", "", "<end_of_turn>", 1 },
                    { "mistral", " ", "<|endoftext|>", 1 }, { "zephyr", "", "<|endoftext|>", 0 } };
    enum { FORMATS = sizeof formats / sizeof *formats };
    static char said[8][128], text[8192], want[8192];
    static chat c;
    uint64_t draw = 1;
    for (int round = 0; round < 300; round++) {
        chat_turn turns[8];
        const char *format = formats[round % FORMATS].format;
        if (round % FORMATS > 0)
            CHECK(chat_select(&c, format) == 0);
        else
            CHECK(chat_set_turn(&c, CHAT_USER, "<|user|>{}\\n") == 0 &&
                  chat_set_turn(&c, CHAT_ASSISTANT, "A:\\t{}<|endoftext|>\\n") == 0);
        strcpy(c.bos_eos[0], "<|user|>");
        strcpy(c.bos_eos[1], "<|endoftext|>");
        size_t count = 2 + (draw >> 20) % 5, spelled = 0, wanted = 0;
        for (size_t i = 0; i < count; i++) {
            said[i][0] = 0;
            for (int k = 0; k < 3; k++) {
                draw = draw * 6364136223846793005u + 1442695040888963407u;
                const char *word = words[(draw >> 40) % 9];
                strcat(said[i], word);
                spelled += *word == '<';
            }
            if (strspn(said[i], " \n") == strlen(said[i]))
                strcat(said[i], "x");
            turns[i].role = i % 2 == 0 ? CHAT_USER : CHAT_ASSISTANT;
            turns[i].text = said[i];
            turns[i].size = strlen(said[i]);
        }
        bpe_tokens all = { 0 }, begin = { 0 };
        chat_mask marks = { 0 };
        CHECK_MSG(chat_encode(&c, &tokenizer, turns, count, 0, 0, &all, &marks) == 0, "%s: %s", format, c.error);
        CHECK(c.spelled == spelled);
        CHECK_MSG(text_of(&all, &marks, -1, text) == c.out.size && memcmp(text, c.out.text, c.out.size) == 0, "%s: %s",
                  format, text);
        size_t ids = 0;
        for (size_t i = 0; i < all.count; i++)
            ids += all.ids[i] == 0 || all.ids[i] == 600;
        CHECK_MSG(ids + spelled == chat_count_special(&tokenizer, c.out.text, c.out.size), "%s: %d ids", format,
                  (int)ids);
        for (size_t i = 1; i < count; i += 2) {
            begin.count = 0;
            CHECK(chat_encode(&c, &tokenizer, turns, i, 1, 0, &begin, NULL) == 0);
            const int same = begin.count < all.count && memcmp(begin.ids, all.ids, begin.count * sizeof *all.ids) == 0;
            CHECK_MSG(same && marks.flags[begin.count] == 1 && marks.flags[begin.count - 1] == 0, "%s, turn %d", format,
                      (int)i);
            jinja_value answer = jinja_string(said[i], strlen(said[i]), 0);
            if (formats[round % FORMATS].trims)
                answer = jinja_strip(answer, 1, 1, NULL);
            wanted += (size_t)sprintf(want + wanted, "%s%.*s%s", formats[round % FORMATS].lead, (int)answer.size,
                                      answer.text, formats[round % FORMATS].end);
        }
        CHECK_MSG(text_of(&all, &marks, 1, text) == wanted && memcmp(text, want, wanted) == 0, "%s: learns %s, not %s",
                  format, text, want);
        CHECK((chat_end_token(&c, &tokenizer) == 0) == (round % FORMATS == 0 || round % FORMATS > 3));
        bpe_tokens_free(&begin);
        bpe_tokens_free(&all);
        free(marks.flags);
    }
    const chat_turn spells[] = { { CHAT_USER, "<|user|>", 8 }, { CHAT_ASSISTANT, "a<|endoftext|>", 14 } };
    bpe_tokens t = { 0 };
    CHECK(chat_set_turn(&c, CHAT_USER, "{}:") == 0 && chat_set_turn(&c, CHAT_ASSISTANT, "{};") == 0);
    CHECK(chat_encode(&c, &tokenizer, spells, 2, 0, 1, &t, NULL) == 0 && t.count == 5 && t.ids[0] == 600 &&
          t.ids[3] == 0);
    bpe_tokens_free(&t);
    chat_free(&c);
}

/* Renders a line and writes the rendered chat with its targets in angle brackets, or the error, to `to`. */
static void mark_targets(chat *c, const char *template, const char *line, char *to, size_t size)
{
    char copy[4096];
    json d;
    json_init(&d, "line");
    snprintf(copy, sizeof copy, "%s", line);
    CHECK_MSG(json_parse(&d, copy, strlen(copy)) == 0, "%s", d.error);
    CHECK(chat_use(c, "model", template, strlen(template)) == 0 && c->problem[0] == 0);
    strcpy(c->bos_eos[1], "<|endoftext|>");
    if (add_line(&d, c) != 0 || chat_render_added(c, &tokenizer, 0, 0) != 0) {
        snprintf(to, size, "%s", c->error);
    } else {
        size_t n = 0;
        for (size_t i = 0; i <= c->out.size; i++) {
            if (i > 0 && c->targets[i - 1] && (i == c->out.size || !c->targets[i]))
                to[n++] = ']';
            if (i < c->out.size && c->targets[i] && (i == 0 || !c->targets[i - 1]))
                to[n++] = '[';
            if (i < c->out.size)
                to[n++] = c->out.text[i];
        }
        to[n] = 0;
    }
    json_free(&d);
}

/* Templates that rewrite, omit or reorder: the targets must be the answers as the template writes them, or the chat
 * must be refused. */
static void test_targets(void)
{
#define EACH "{% for m in messages %}"
#define END "{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    static const char *const said = "{\"messages\": [{\"role\": \"user\", \"content\": \"p\"}, {\"role\": \"assistant\", "
                                    "\"content\": \"<think>t</think>a\"}, {\"role\": \"user\", \"content\": \"q\"}, "
                                    "{\"role\": \"assistant\", \"content\": \"<think>u</think>b\"}]}";
    static const char *const calls =
        "{\"tools\": [{\"name\": \"f\"}], \"messages\": [{\"role\": \"user\", \"content\": \"p\"}, {\"role\": \"assistant\", "
        "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}, {\"role\": \"tool\", "
        "\"content\": \"1\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}";
    static const struct {
        const char *template, *line, *want;
    } cases[] = {
        /* a header, and an end token with a newline that is no target */
        { EACH "{{ m.role[0] | upper ~ ':' ~ m.content ~ eos_token }}\n" END, said,
          "U:p<|endoftext|>\nA:[<think>t</think>a<|endoftext|>]\nU:q<|endoftext|>\nA:[<think>u</think>b<|endoftext|>]\n" },
        /* earlier answers lose their reasoning, and the last one has it as text of the template */
        { EACH "{% set c = m.content.split('</think>')[-1] if not loop.last else m.content %}"
               "{{ ('A:' if m.role == 'assistant' else 'U:') ~ c ~ eos_token }}" END,
          said, "U:p<|endoftext|>A:[a<|endoftext|>]U:q<|endoftext|>A:[<think>u</think>b<|endoftext|>]" },
        /* the request for an answer begins the reasoning, which the template then omits */
        { EACH "{{ ('A:' if m.role == 'assistant' else 'U:') ~ m.content.split('</think>')[-1] ~ eos_token }}"
               "{% endfor %}{% if add_generation_prompt %}A:<think>\n{% endif %}",
          said, "U:p<|endoftext|>A:[a<|endoftext|>]U:q<|endoftext|>A:[b<|endoftext|>]" },
        /* an end of the text at the end of the chat is not the end of a turn */
        { EACH "{{ ('A:' if m.role == 'assistant' else 'U:') ~ m.content ~ '<|user|>' }}{% endfor %}"
               "{{ 'A:' if add_generation_prompt else eos_token }}",
          said, "U:p<|user|>A:[<think>t</think>a<|user|>]U:q<|user|>A:[<think>u</think>b<|user|>]<|endoftext|>" },
        /* as in gpt-oss, the last answer ends with another token */
        { EACH "{{ ('A:' if m.role == 'assistant' else 'U:') ~ m.content ~ "
               "('<|endoftext|>' if loop.last and m.role == 'assistant' else '<|user|>') }}" END,
          said, "U:p<|user|>A:[<think>t</think>a<|user|>]U:q<|user|>A:[<think>u</think>b<|endoftext|>]" },
        /* without an end token, white space at the end is no target */
        { EACH "{{ ('A:' if m.role == 'assistant' else 'U:') ~ m.content ~ ';\n' }}" END, said,
          "U:p;\nA:[<think>t</think>a;]\nU:q;\nA:[<think>u</think>b;]\n" },
        { EACH "{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}!{% endgeneration %}{% else %}"
               "{{ m.content }}{% endif %}\n{% endfor %}",
          said, "pA:[<think>t</think>a!]qA:[<think>u</think>b!]" },
        /* tools come before the last turn of the user; an answer is a call */
        { EACH "{% if m.role == 'user' %}{{ tools | tojson }}{% endif %}{{ 'A:' if m.role == 'assistant' else m.role ~ ':' }}"
               "{% for t in m.tool_calls %}{{ t.function.name ~ '(' ~ t.function.arguments | tojson ~ ')' }}{% endfor %}"
               "{{ m.content | default('') ~ eos_token }}" END,
          calls, "[{\"name\": \"f\"}]user:p<|endoftext|>A:[f({\"x\": 1})<|endoftext|>]tool:1<|endoftext|>A:[b<|endoftext|>]" },
        { EACH "{{ m.content if m.role == 'user' else '' }}" END, said, "the template omits message 2 (assistant)" },
        { EACH "{{ ('user: ' if m.role == 'user' else 'model: ') ~ m.content ~ '.' }}{% endfor %}"
               "{{ '*' if add_generation_prompt else '' }}",
          said, "message 2: the request for this answer is not before the answer" },
        { EACH "{{ m.content | title | wordcount }}{% endfor %}", said,
          "the chat template, line 1, column 47: unknown filter 'wordcount'" },
        { EACH "{{ m.content }}{% endfor %}", "{\"messages\": [{\"role\": \"<|user|>\", \"content\": \"a\"}]}",
          "message 1: role: expected letters" },
    };
    static chat c;
    char text[8192];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mark_targets(&c, cases[i].template, cases[i].line, text, sizeof text);
        const int refused = strstr(cases[i].want, "message") != NULL || strstr(cases[i].want, "unknown") != NULL;
        CHECK_MSG(refused ? strncmp(text, cases[i].want, strlen(cases[i].want)) == 0 : strcmp(text, cases[i].want) == 0,
                  "case %d: %s", (int)i, text);
    }
    static const char other[] = EACH "{{ m.content ~ ('<|endoftext|>' if loop.last else '<|user|>') }}{% endfor %}";
    CHECK(chat_use(&c, "model", other, strlen(other)) == 0 && chat_end_token(&c, &tokenizer) == 0);
    chat_free(&c);
}

/* Tokens must equal those of the tokenizers package, for a tokenizer of each family. */
static void test_families(void)
{
    static chat c;
    static char folder[256], opened[256];
    bpe family = { 0 };
    int lines = 0;
    json d;
    FILE *f = fopen("tests/golden/chat_tokens.jsonl", "rb");
    CHECK(f != NULL);
    json_init(&d, "chat_tokens.jsonl");
    while (f != NULL && json_read_line(&d, f) == 1) {
        const char *name = json_text(&d, json_find(&d, JSON_ROOT, "format"));
        snprintf(folder, sizeof folder, "tests/golden/tokenizer/%s", json_text(&d, json_find(&d, JSON_ROOT, "folder")));
        if (strcmp(folder, opened) != 0) {
            bpe_free(&family);
            CHECK_MSG(bpe_open(&family, folder) == 0, "%s", family.error);
            strcpy(opened, folder);
        }
        CHECK(chat_select(&c, name) == 0);
        strcpy(c.bos_eos[0], json_text(&d, json_find(&d, JSON_ROOT, "bos")));
        strcpy(c.bos_eos[1], json_text(&d, json_find(&d, JSON_ROOT, "eos")));
        bpe_tokens t = { 0 };
        chat_mask marks = { 0 };
        CHECK_MSG(add_line(&d, &c) == 0 && chat_encode_added(&c, &family, 0, json_bool(&d, JSON_ROOT, "asks", 0), 0, &t,
                                                             &marks) == 0,
                  "%s", c.error);
        size_t i = 0;
        const uint32_t ids = json_find(&d, JSON_ROOT, "ids");
        for (uint32_t k = json_first(&d, ids); k != 0; k = json_next(&d, k), i++)
            if (i >= t.count || t.ids[i] != (int32_t)json_int_of(&d, k))
                break;
        CHECK_MSG(i == t.count && i == json_size(&d, ids), "%s, %s, line %d: token %d of %d", folder, name, lines + 1,
                  (int)i, (int)json_size(&d, ids));
        bpe_tokens_free(&t);
        free(marks.flags);
        lines++;
    }
    CHECK_MSG(d.error[0] == 0 && lines > 50, "%s: %d lines", d.error, lines);
    chat_free(&c);
    bpe_free(&family);
    json_free(&d);
    if (f != NULL)
        fclose(f);
}

/* Opens build/chat_folder; the name of the template must be `name`. */
static void check_folder(chat *c, const char *name, const char *source)
{
    chat_free(c);
    CHECK_MSG(chat_open(c, "build/chat_folder", NULL) == 0, "%s", c->error);
    CHECK_MSG(strcmp(c->name, name) == 0 && strcmp(c->source, source) == 0, "%s, %s", c->name, c->source);
}

/* chat_template.jinja takes precedence over tokenizer_config.json, which may have one template or several named ones.
 * The template's special tokens are tested as well. */
static void test_folders(void)
{
    static const struct {
        const char *config, *name, *found;
    } folders[] = {
        { "{}", "", "" },
        { "{\"chat_template\": null}", "", "" },
        { "{\"chat_template\": \"%s\"}", "model", "tokenizer_config.json" },
        { "{\"chat_template\": \"%s {%% include 'x' %%}\"}", "", "tokenizer_config.json" },
        { "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"\"}, {\"name\": \"default\", \"template\": "
          "\"%s\"}], \"bos_token\": {\"content\": \"<b>\"}}",
          "model", "tokenizer_config.json" },
        { "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"%s\"}]}", "", "tokenizer_config.json" },
        { "{\"bos_token\": \"<b>\", \"eos_token\": \"</b>\"}", "", "" }
    };
    static char config[4096];
    static chat c;
    CHECK(system("rm -rf build/chat_folder && mkdir build/chat_folder") == 0);
    check_folder(&c, "", "");
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(config, sizeof config, folders[i].config, "{{ messages }}");
        put_file("build/chat_folder/tokenizer_config.json", config);
        check_folder(&c, folders[i].name, folders[i].found);
        CHECK(strcmp(c.bos_eos[0], i == 4 || i == 6 ? "<b>" : "") == 0);
        if (i == 3)
            CHECK_MSG(strstr(c.problem, "line 1, column 19: unknown tag {% include %}; known are if"), "%s", c.problem);
    }
    CHECK(strcmp(c.bos_eos[1], "</b>") == 0);
    CHECK(chat_open(&c, "build/chat_folder", "gemma") == 0 && !strcmp(c.name, "gemma") && !strcmp(c.bos_eos[0], "<b>"));
    chat_free(&c);
    CHECK(chat_open(&c, "build/chat_folder", "klingon") != 0 && strstr(c.error, "klingon: allowed is chatml, "));
    put_file("build/chat_folder/chat_template.jinja", "a\r\n{% if 1 %}\r\nb\r\n{% endif %}\r\n"); /* as on Windows */
    check_folder(&c, "model", "chat_template.jinja");
    const chat_turn none[] = { { CHAT_USER, "", 0 } };
    bpe_tokens t = { 0 };
    CHECK(chat_encode(&c, &tokenizer, none, 1, 0, 0, &t, NULL) == 0 && c.out.size == 4 && !memcmp(c.out.text, "a\nb\n", 4));
    bpe_tokens_free(&t);
    put_file("build/chat_folder/chat_template.jinja", "{{ {'a': 1, 'b': 2, 'a': 3, 1: 4, true: 5} }}"); /* equal keys */
    check_folder(&c, "model", "chat_template.jinja");
    CHECK(chat_encode(&c, &tokenizer, none, 1, 0, 0, &t, NULL) == 0 && c.out.size == 22 &&
          !memcmp(c.out.text, "{'a': 3, 'b': 2, 1: 5}", 22));
    bpe_tokens_free(&t);
    put_file("build/chat_folder/tokenizer_config.json", "{");
    chat_free(&c);
    CHECK(chat_open(&c, "build/chat_folder", NULL) != 0 && strstr(c.error, "tokenizer_config.json"));
    chat_free(&c);
}

static void test_refusals(void)
{
    static chat c;
    chat_turn turns[3] = { { CHAT_SYSTEM, "s", 1 }, { CHAT_USER, "u", 1 }, { CHAT_USER, "v", 1 } };
    bpe_tokens t = { 0 };
    CHECK(chat_set_turn(&c, CHAT_USER, "no place") != 0 &&
          strstr(c.error, "a turn of the user, \"no place\": expected {}"));
    CHECK(chat_set_turn(&c, CHAT_USER, "{}") == 0 && chat_encode(&c, &tokenizer, turns, 2, 0, 0, &t, NULL) != 0 &&
          strstr(c.error, "a turn of the system needs --system-turn"));
    CHECK(chat_select(&c, "mistral") == 0 && chat_encode(&c, &tokenizer, turns, 2, 0, 0, &t, NULL) != 0 &&
          strstr(c.error, "the template refuses the chat: user and assistant must alternate"));
    CHECK(chat_encode(&c, &tokenizer, turns, 0, 0, 0, &t, NULL) != 0 && strstr(c.error, "the chat has no messages"));
    CHECK(t.count == 0);
    bpe_tokens_free(&t);
    chat_free(&c);
}

/* Templates that never end or that fill the memory must be refused, as must be deep nesting. */
static void test_limits(void)
{
    static const struct {
        const char *template, *says;
    } cases[] = {
        { "{% for i in range(3000) %}{% for k in range(3000) if k < 0 %}{% endfor %}{% endfor %}", "steps" },
        { "{% set n = namespace(a='x') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}", "memory" },
        { "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels" },
        { "{% set n = namespace(a=[]) %}{% for i in range(999) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a }}", "levels" },
        { "{{ 'x' * 99999999 }}", "steps" },
        { "{{ range(999999999) }}", "steps" },
    };
    static chat c;
    const chat_turn turn = { CHAT_USER, "u", 1 };
    bpe_tokens t = { 0 };
    char deep[4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(chat_use(&c, "model", cases[i].template, strlen(cases[i].template)) == 0);
        c.probed = 1;
        c.program.max_bytes = 1 << 28;
        c.program.max_steps = 1 << 20;
        CHECK_MSG(chat_encode(&c, &tokenizer, &turn, 1, 0, 0, &t, NULL) != 0 && strstr(c.error, cases[i].says), "%s: %s",
                  cases[i].template, c.error);
    }
    for (int i = 0; i < 4; i++) {
        memset(deep, "([-{"[i], sizeof deep);
        memcpy(deep, "{{", 2);
        CHECK(chat_use(&c, "model", deep, sizeof deep) == 0 && strstr(c.problem, "levels") != NULL);
    }
    chat_free(&c);
}

static void test_memory(void)
{
    const chat_turn turns[] = { { CHAT_USER, "one two", 7 }, { CHAT_ASSISTANT, "three", 5 } };
    static chat c;
    put_file("build/chat_folder/tokenizer_config.json", "{\"chat_template\": \"{{ messages }}\"}");
    for (int failed = 1, n = 1; failed; n++) {
        bpe_tokens t = { 0 };
        chat_mask marks = { 0 };
        allocations = 0;
        fail_at = n;
        failed = chat_open(&c, "build/chat_folder", "zephyr") != 0;
        strcpy(c.bos_eos[1], "<|endoftext|>");
        failed = failed || chat_encode(&c, &tokenizer, turns, 2, 0, 0, &t, &marks) != 0;
        fail_at = 0;
        CHECK_MSG(!failed || strstr(c.error, "out of memory"), "%s", c.error);
        CHECK(n < 60 && (!failed || t.count == 0));
        bpe_tokens_free(&t);
        free(marks.flags);
        chat_free(&c);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "render") == 0) {
        render_all();
        return 0;
    }
    compare(argc > 1 ? argv[1] : "tests/golden/chat.jsonl");
    CHECK(bpe_open(&tokenizer, "tests/golden/tokenizer") == 0);
    test_tokens();
    test_families();
    test_folders();
    test_targets();
    test_refusals();
    test_limits();
    test_memory();
    bpe_free(&tokenizer);
    CHECK(live_blocks == 0);
    return check_report("chat");
}
