/* fuzz_jinja.c - reads any bytes as a template, and renders it with values from JSON.
 *
 * The input is a template and a JSON text, with the byte 0x1e between them; keys of the JSON object are variables. The
 * functions under test are jinja_open, jinja_from_json and jinja_render. The rules: A refusal has an error text, and
 * limits of steps and memory hold. Rendering twice gives the same text. Bytes of values keep their mark: the character
 * U+E000, which the template does not contain, is never marked as the template's. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "jinja.h"
#include "reader.h"

enum { STEPS = 1 << 16, MEMORY = 1 << 24, MARK = 5 };

typedef struct {
    json *d;
    jinja_text out;
} rendering;

static void render(jinja *j, void *user)
{
    rendering *r = (rendering *)user;
    for (uint32_t k = json_first(r->d, JSON_ROOT); k != 0; k = json_next(r->d, k))
        if (json_kind_of(r->d, JSON_ROOT) == JSON_OBJECT)
            jinja_set(j, json_text(r->d, k), jinja_from_json(j, r->d, k + 1, MARK));
    jinja_render(j, &r->out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const reader_parts p = reader_split(bytes, size);
    const char *template = p.size[0] > 0 ? p.at[0] : "";
    jinja j;
    json d;
    rendering first = { &d, { NULL, NULL, 0, 0 } }, second = first;
    char *text = (char *)malloc(p.size[1] + 1);
    must(text != NULL);
    if (p.size[1] > 0)
        memcpy(text, p.at[1], p.size[1]);
    text[p.size[1]] = 0;
    json_init(&d, "values");
    const int parsed = json_parse(&d, text, p.size[1]) == 0;
    const int opened = jinja_open(&j, template, p.size[0]) == 0;
    must(opened == (j.error[0] == 0));
    j.max_steps = STEPS;
    j.max_bytes = MEMORY;
    if (opened && parsed) {
        const jinja_memory before = jinja_keep(&j);
        const int failed = jinja_run(&j, render, &first) != 0;
        must(failed == (j.error[0] != 0) && j.steps <= STEPS + (1 << 22) && j.bytes <= MEMORY);
        for (size_t i = 0; !failed && i + 3 <= first.out.size; i++)
            if (memcmp(first.out.text + i, "\xee\x80\x80", 3) == 0 && memmem(template, p.size[0], "\\", 1) == NULL &&
                memmem(template, p.size[0], "\xee\x80\x80", 3) == NULL)
                must((first.out.marks[i] & ~JINJA_GENERATED) == MARK);
        char *copy = (char *)malloc(first.out.size + 1);
        must(copy != NULL);
        if (!failed && first.out.size > 0)
            memcpy(copy, first.out.text, first.out.size);
        jinja_release(&j, before);
        must((jinja_run(&j, render, &second) != 0) == failed);
        must(failed || (second.out.size == first.out.size &&
                        (first.out.size == 0 || memcmp(copy, second.out.text, first.out.size) == 0)));
        free(copy);
    }
    jinja_free(&j);
    json_free(&d);
    free(text);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char values[] = "{\"messages\": [{\"role\": \"user\", \"content\": \" \xee\x80\x80 a\"}, {\"role\": "
                                 "\"assistant\", \"content\": \"b</think>c\", \"tool_calls\": [{\"function\": {\"name\": "
                                 "\"f\", \"arguments\": {\"x\": [1, 2.5, null, true, \"\xee\x80\x80\\n\"]}}}]}], \"tools\": "
                                 "[], \"bos_token\": \"<s>\", \"add_generation_prompt\": true}";
    reader_seed s = { NULL, 0 };
    json d;
    int n = 0;
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    FILE *f = fopen("tests/golden/chat.jsonl", "rb");
    must(f != NULL);
    json_init(&d, "chat.jsonl");
    while (json_read_line(&d, f) == 1) {
        const uint32_t template = json_find(&d, JSON_ROOT, "template");
        char name[16];
        if (template == 0)
            continue;
        reader_add_part(&s, json_text(&d, template), json_size(&d, template));
        reader_add_part(&s, values, sizeof values - 1);
        snprintf(name, sizeof name, "golden-%d", n++);
        reader_end_seed(&s, name);
    }
    fclose(f);
    json_free(&d);
    exit(0);
}
