/* test_chat.c - tests examples/chat.h: chats must be rendered as Jinja renders them (tests/golden/chat.jsonl, made by
 * chat.py). Further tests: which templates are recognised, the tokens of a chat and which of them are trained, refused
 * chats, and every allocation failing.
 *
 *     build/test_chat            runs the tests
 *     build/test_chat FILE       compares the lines of another file
 *     build/test_chat render     reads such lines without "text" from standard input and prints each one's text, or
 * null */
#include "check.h"
#include "counted.h"
#include "examples/chat.h"

enum { TURNS = 64 };
static bpe tokenizer;

static chat_role role_of(json *d, uint32_t at)
{
    for (int i = 0; i < CHAT_ROLES; i++)
        if (json_is(d, at, chat_roles[i]))
            return (chat_role)i;
    return CHAT_ROLES;
}

static size_t turns_of(json *d, chat_turn *turns)
{
    size_t n = 0;
    const uint32_t messages = json_require(d, JSON_ROOT, "messages", JSON_ARRAY);
    for (uint32_t i = json_first(d, messages); i != 0 && n < TURNS; i = json_next(d, i)) {
        const uint32_t text = json_require(d, i, "content", JSON_STRING);
        turns[n].role = role_of(d, json_find(d, i, "role"));
        turns[n].text = json_text(d, text);
        turns[n++].size = json_size(d, text);
    }
    return n;
}

typedef struct {
    char text[65536];
    size_t size;
} page;

static int put_page(void *user, chat_part part, const char *text, size_t n)
{
    page *p = (page *)user;
    (void)part;
    if (p->size + n > sizeof p->text)
        return -1;
    memcpy(p->text + p->size, text, n);
    p->size += n;
    return 0;
}

/* Renders the chat of a line to *p. Returns 0 if the chat is refused. */
static int render_line(json *d, chat *c, page *p)
{
    static chat_turn turns[TURNS];
    memset(c, 0, sizeof *c);
    strcpy(c->bos_eos[0], "<BOS>");
    strcpy(c->bos_eos[1], "<EOS>");
    p->size = 0;
    const uint32_t format = json_require(d, JSON_ROOT, "format", JSON_STRING);
    CHECK_MSG(chat_select(c, json_text(d, format)) == 0, "format %s", json_text(d, format));
    const size_t n = turns_of(d, turns);
    return chat_render(c, turns, n, json_bool(d, JSON_ROOT, "asks", 0), put_page, p) == 0;
}

static void render_all(void)
{
    static page p;
    static chat c;
    json d;
    json_init(&d, "standard input");
    while (json_read_line(&d, stdin) == 1) {
        if (render_line(&d, &c, &p))
            json_write_string(stdout, p.text, p.size);
        else
            fputs("null", stdout);
        putchar('\n');
    }
    CHECK_MSG(d.error[0] == 0, "%s", d.error);
    json_free(&d);
}

static void compare(const char *path)
{
    static page p;
    static chat c;
    int lines = 0, used[CHAT_FORMATS] = { 0 };
    json d;
    FILE *f = fopen(path, "rb");
    CHECK_MSG(f != NULL, "%s", path);
    json_init(&d, path);
    while (f != NULL && json_read_line(&d, f) == 1) {
        const uint32_t text = json_find(&d, JSON_ROOT, "text");
        const int done = render_line(&d, &c, &p);
        for (int i = 0; i < CHAT_FORMATS; i++)
            used[i] += json_is(&d, json_find(&d, JSON_ROOT, "format"), chat_formats[i].name);
        lines++;
        if (json_kind_of(&d, text) == JSON_STRING)
            CHECK_MSG(done && p.size == json_size(&d, text) && memcmp(p.text, json_text(&d, text), p.size) == 0,
                      "%s:%d: %.*s (%s)", path, lines, (int)p.size, p.text, done ? "other text" : c.error);
        else
            CHECK_MSG(!done && c.error[0] != 0, "%s:%d: taken, Jinja refuses it", path, lines);
    }
    CHECK_MSG(d.error[0] == 0 && lines > 100, "%s, %d lines", d.error, lines);
    for (int i = 0; i < CHAT_FORMATS; i++)
        CHECK_MSG(used[i] > 5, "format %s: %d lines", chat_formats[i].name, used[i]);
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
    static const char *const formats[] = { "own",      "chatml", "qwen2",      "qwen3",      "llama3",
                                           "llama3.1", "gemma",  "mistral-v1", "mistral-v3", "zephyr" };
    static char said[8][128], text[8192], want[8192];
    static page p;
    static chat c;
    uint64_t draw = 1;
    for (int round = 0; round < 400; round++) {
        chat_turn turns[8];
        const char *format = formats[round % 10];
        memset(&c, 0, sizeof c);
        if (round % 10 > 0)
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
            turns[i].role = i % 2 == 0 ? CHAT_USER : CHAT_ASSISTANT;
            turns[i].text = said[i];
            turns[i].size = strlen(said[i]);
        }
        bpe_tokens all = { 0 }, begin = { 0 };
        chat_mask marks = { 0 };
        CHECK_MSG(chat_encode(&c, &tokenizer, turns, count, 0, 0, &all, &marks) == 0, "%s: %s", format, c.error);
        p.size = 0;
        CHECK(chat_render(&c, turns, count, 0, put_page, &p) == 0);
        CHECK_MSG(text_of(&all, &marks, -1, text) == p.size && memcmp(text, p.text, p.size) == 0, "%s: %s", format,
                  text);
        size_t ids = 0;
        for (size_t i = 0; i < all.count; i++)
            ids += all.ids[i] == 0 || all.ids[i] == 600;
        CHECK_MSG(ids + spelled == chat_count_special(&tokenizer, p.text, p.size), "%s: %d ids", format, (int)ids);
        for (size_t i = 1; i < count; i += 2) {
            begin.count = 0;
            CHECK(chat_encode(&c, &tokenizer, turns, i, 1, 0, &begin, NULL) == 0);
            const int same = begin.count < all.count && memcmp(begin.ids, all.ids, begin.count * sizeof *all.ids) == 0;
            CHECK_MSG(same && marks.flags[begin.count] == 1 && marks.flags[begin.count - 1] == 0, "%s, turn %d", format,
                      (int)i);
            const char *lead = (c.format.rules & CHAT_LEADS_LAST) == 0 || i + 1 == count ? c.format.prefix : "";
            const char *end = c.format.turns[CHAT_ASSISTANT][1];
            const char *answer = said[i];
            size_t size = strlen(answer);
            if (c.format.rules & (CHAT_TRIMS | CHAT_TRIMS_ANSWERS))
                chat_trim(&answer, &size);
            if (*lead == '<')
                for (; size > 0 && *answer == '\n'; size--)
                    answer++;
            wanted +=
                (size_t)sprintf(want + wanted, "%s%.*s%s", lead, (int)size, answer, *end == 2 ? c.bos_eos[1] : end);
        }
        CHECK_MSG(text_of(&all, &marks, 1, text) == wanted && memcmp(text, want, wanted) == 0, "%s: learns %s, not %s",
                  format, text, want);
        CHECK((chat_end_token(&c, &tokenizer) == 0) == (round % 10 == 0 || round % 10 > 6));
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
}

/* Tokens must equal those of the tokenizers package, for a tokenizer of each family. */
static void test_families(void)
{
    static chat c;
    static chat_turn turns[TURNS];
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
        memset(&c, 0, sizeof c);
        CHECK(chat_select(&c, name) == 0);
        strcpy(c.bos_eos[0], json_text(&d, json_find(&d, JSON_ROOT, "bos")));
        strcpy(c.bos_eos[1], json_text(&d, json_find(&d, JSON_ROOT, "eos")));
        const size_t n = turns_of(&d, turns);
        bpe_tokens t = { 0 };
        CHECK_MSG(chat_encode(&c, &family, turns, n, json_bool(&d, JSON_ROOT, "asks", 0), 0, &t, NULL) == 0, "%s",
                  c.error);
        size_t i = 0;
        const uint32_t ids = json_find(&d, JSON_ROOT, "ids");
        for (uint32_t k = json_first(&d, ids); k != 0; k = json_next(&d, k), i++)
            if (i >= t.count || t.ids[i] != (int32_t)json_int_of(&d, k))
                break;
        CHECK_MSG(i == t.count && i == json_size(&d, ids), "%s, %s, line %d: token %d of %d", folder, name, lines + 1,
                  (int)i, (int)json_size(&d, ids));
        bpe_tokens_free(&t);
        lines++;
    }
    CHECK_MSG(d.error[0] == 0 && lines > 50, "%s: %d lines", d.error, lines);
    bpe_free(&family);
    json_free(&d);
    if (f != NULL)
        fclose(f);
}

/* chat_template.jinja takes precedence over tokenizer_config.json, which may have one template or several named ones.
 * The template's special tokens are tested as well. */
static void test_folders(void)
{
    static const struct {
        const char *config, *format, *found;
    } folders[] = {
        { "{}", NULL, "" },
        { "{\"chat_template\": null}", NULL, "" },
        { "{\"chat_template\": \"%s\"}", "chatml", "tokenizer_config.json" },
        { "{\"chat_template\": \"%s \"}", NULL, "tokenizer_config.json" },
        { "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"\"}, {\"name\": \"default\", \"template\": "
          "\"%s\"}], \"bos_token\": {\"content\": \"<b>\"}}",
          "chatml", "tokenizer_config.json" },
        { "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"%s\"}]}", NULL, "tokenizer_config.json" },
        { "{\"bos_token\": \"<b>\", \"eos_token\": \"</b>\"}", NULL, "" }
    };
    static char template[1024], escaped[2048], config[4096];
    static chat c;
    FILE *f = fopen("tests/golden/chat_template.jinja", "rb");
    CHECK(f != NULL && fread(template, 1, sizeof template - 1, f) > 200);
    fclose(f);
    for (char *from = template, *to = escaped; *from != 0; from++) {
        if (*from == '\n' || *from == '\\' || *from == '"')
            *to++ = '\\';
        *to++ = *from == '\n' ? 'n' : *from;
    }
    CHECK(system("rm -rf build/chat_folder && mkdir build/chat_folder") == 0);
    CHECK(chat_open(&c, "build/chat_folder", NULL) == 0 && c.format.name == NULL && c.source[0] == 0);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *at = strstr(folders[i].config, "%s");
        snprintf(config, sizeof config, "%.*s%s%s", at != NULL ? (int)(at - folders[i].config) : 1000,
                 folders[i].config, at != NULL ? escaped : "", at != NULL ? at + 2 : "");
        put_file("build/chat_folder/tokenizer_config.json", config);
        CHECK_MSG(chat_open(&c, "build/chat_folder", NULL) == 0, "%s", c.error);
        CHECK_MSG(c.format.name == NULL ? folders[i].format == NULL
                                        : folders[i].format != NULL && !strcmp(c.format.name, folders[i].format),
                  "folder %d: %s", (int)i, c.format.name != NULL ? c.format.name : "none");
        CHECK(strcmp(c.source, folders[i].found) == 0 && strcmp(c.bos_eos[0], i == 4 || i == 6 ? "<b>" : "") == 0);
    }
    CHECK(strcmp(c.bos_eos[1], "</b>") == 0);
    CHECK(chat_open(&c, "build/chat_folder", "gemma") == 0 && !strcmp(c.format.name, "gemma") &&
          !strcmp(c.bos_eos[0], "<b>"));
    CHECK(chat_open(&c, "build/chat_folder", "klingon") != 0 && strstr(c.error, "klingon: allowed is chatml, "));
    put_file("build/chat_folder/chat_template.jinja", template);
    CHECK(chat_open(&c, "build/chat_folder", NULL) == 0 && !strcmp(c.format.name, "chatml") &&
          !strcmp(c.source, "chat_template.jinja"));
    char *to = escaped; /* the same template with lines that end in \r\n, as on Windows */
    for (char *from = template; *from != 0; *to++ = *from++)
        if (*from == '\n')
            *to++ = '\r';
    *to = 0;
    put_file("build/chat_folder/chat_template.jinja", escaped);
    CHECK(chat_open(&c, "build/chat_folder", NULL) == 0 && c.format.name != NULL && !strcmp(c.format.name, "chatml"));
    template[3]++;
    put_file("build/chat_folder/chat_template.jinja", template);
    CHECK(chat_open(&c, "build/chat_folder", NULL) == 0 && c.format.name == NULL &&
          !strcmp(c.source, "chat_template.jinja"));
    put_file("build/chat_folder/tokenizer_config.json", "{");
    CHECK(chat_open(&c, "build/chat_folder", NULL) != 0 && strstr(c.error, "tokenizer_config.json"));
    for (int i = 0; i < CHAT_FORMATS; i++)
        for (int k = 0; k < i; k++)
            CHECK(strcmp(chat_formats[i].name, chat_formats[k].name) != 0);
}

static void test_refusals(void)
{
    static chat c;
    chat_turn turns[3] = { { CHAT_SYSTEM, "s", 1 }, { CHAT_USER, "u", 1 }, { CHAT_USER, "v", 1 } };
    bpe_tokens t = { 0 };
    memset(&c, 0, sizeof c);
    CHECK(chat_set_turn(&c, CHAT_USER, "no place") != 0 &&
          strstr(c.error, "a turn of the user, \"no place\": expected {}"));
    CHECK(chat_select(&c, "gemma") == 0 && chat_encode(&c, &tokenizer, turns, 2, 0, 0, &t, NULL) != 0 &&
          strstr(c.error, "a turn of the system cannot be rendered by this chat template, gemma"));
    CHECK(chat_encode(&c, &tokenizer, turns + 1, 2, 0, 0, &t, NULL) != 0 && strstr(c.error, "turn 2 is of the user"));
    CHECK(chat_select(&c, "gemma3") == 0 && chat_encode(&c, &tokenizer, turns, 1, 0, 0, &t, NULL) != 0 &&
          strstr(c.error, "the chat has no turns"));
    CHECK(chat_select(&c, "qwen3") == 0);
    turns[1].role = CHAT_ASSISTANT;
    turns[1].text = "a</think>";
    turns[1].size = 9;
    CHECK(chat_encode(&c, &tokenizer, turns, 2, 0, 0, &t, NULL) != 0 && strstr(c.error, "turn 2 has reasoning"));
    CHECK(t.count == 0);
    bpe_tokens_free(&t);
}

static void test_memory(void)
{
    const chat_turn turns[] = { { CHAT_USER, "one two", 7 }, { CHAT_ASSISTANT, "three", 5 } };
    static chat c;
    put_file("build/chat_folder/tokenizer_config.json", "{}");
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
        CHECK(n < 50 && (!failed || t.count == 0));
        bpe_tokens_free(&t);
        free(marks.flags);
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
    test_refusals();
    test_memory();
    bpe_free(&tokenizer);
    CHECK(live_blocks == 0);
    return check_report("chat");
}
