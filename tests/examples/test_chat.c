/* test_chat.c - examples/chat.h: chats as Jinja renders them (tests/golden/chat.jsonl, by chat.py); which templates are
 * known; tokens, and which of them are learned; what is refused; every failing allocation.
 *
 *     build/test_chat            the tests
 *     build/test_chat FILE       compares the lines of another file
 *     build/test_chat render     reads such lines without "text", prints the text of each, or null */
#include "check.h"
#include "counted.h"
#include "examples/chat.h"

enum { TURNS = 64 };

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
    const uint32_t messages = json_need(d, JSON_ROOT, "messages", JSON_ARRAY);
    for (uint32_t i = json_first(d, messages); i != 0 && n < TURNS; i = json_next(d, i)) {
        const uint32_t text = json_need(d, i, "content", JSON_STRING);
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

/* Renders a line; 0: refused. */
static int render_line(json *d, chat *c, page *p)
{
    static chat_turn turns[TURNS];
    memset(c, 0, sizeof *c);
    strcpy(c->marks[0], "<BOS>");
    strcpy(c->marks[1], "<EOS>");
    p->size = 0;
    const uint32_t format = json_need(d, JSON_ROOT, "format", JSON_STRING);
    CHECK_MSG(chat_named(c, json_text(d, format)) == 0, "format %s", json_text(d, format));
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

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "render") == 0) {
        render_all();
        return 0;
    }
    compare(argc > 1 ? argv[1] : "tests/golden/chat.jsonl");
    return check_report("chat");
}
