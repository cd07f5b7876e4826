/* test_dataset.c - tests examples/dataset.h. Data are texts, files of tokens, or lines with prompts and answers. The
 * tests check which tokens are targets, the order of rows, the texts of errors, and that a failed allocation is
 * reported. */
#include "check.h"
#include "counted.h"
#include "examples/dataset.h"

enum { T = 8, END = 0 };
static bpe tokenizer;
static const char *path = "build/test_dataset.jsonl";

static void put_file(const char *to, const char *bytes, size_t n)
{
    FILE *f = fopen(to, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n);
    if (f != NULL)
        fclose(f);
}

static int open_text(dataset *d, const char *to, const char *text)
{
    put_file(to, text, strlen(text));
    return dataset_open(d, to, &tokenizer, tokenizer.count, END);
}

/* Every token of a text except the first must be a target exactly once, at the position of the token before it. */
static void test_windows(void)
{
    dataset d;
    int32_t tokens[T], targets[T];
    char text[400];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i + 1 < sizeof text ? (char)('a' + i * i % 23) : 0;
    CHECK(open_text(&d, "build/test_dataset.txt", text) == 0 && d.examples == NULL && d.tokens.count > 3 * T);
    const uint64_t rows = dataset_rows(&d, T);
    CHECK(rows == (d.tokens.count - 1 + T - 1) / T && dataset_truncated(&d, T) == 0 && dataset_longest(&d) == 0);
    for (uint64_t row = 0; row < rows; row++) {
        dataset_row(&d, row, T, tokens, targets);
        for (size_t t = 0; t < T; t++) {
            const size_t at = row * T + t;
            CHECK(tokens[t] == (at < d.tokens.count ? d.tokens.ids[at] : END));
            CHECK(targets[t] == (at + 1 < d.tokens.count ? d.tokens.ids[at + 1] : -1));
        }
    }
    dataset_free(&d);
    CHECK(open_text(&d, "build/test_dataset.txt", "") == 0 && dataset_rows(&d, T) == 0);
    dataset_free(&d);
    put_file("build/test_dataset.bin", "\1\0\2\0\3\1", 6);
    CHECK(dataset_open(&d, "build/test_dataset.bin", NULL, 260, END) == 0 && dataset_rows(&d, T) == 1);
    dataset_row(&d, 0, T, tokens, targets);
    CHECK(tokens[0] == 1 && tokens[2] == 259 && targets[1] == 259 && targets[2] == -1 && targets[T - 1] == -1);
    dataset_free(&d);
    CHECK(dataset_open(&d, "build/test_dataset.bin", NULL, 259, END) != 0 && strstr(d.error, "is 259"));
    CHECK(dataset_open(&d, "build/test_dataset.none", &tokenizer, 259, END) != 0 && strstr(d.error, "No such file"));
    put_file("build/test_dataset.txt", "far", 3);
    CHECK(dataset_open(&d, "build/test_dataset.txt", &tokenizer, 3, END) != 0 &&
          strstr(d.error, "but the model knows 3"));
}

/* Only tokens of the answer and the end token are targets, wherever the row is cut off. */
static void test_answers(void)
{
    dataset d;
    int32_t tokens[T], targets[T];
    CHECK(open_text(&d, path,
                    "{\"prompt\": \"1 2\", \"answer\": \" 3\"}\n\n"
                    "{\"answer\": \"x\", \"more\": [1], \"prompt\": \"\"}\n"
                    "{\"prompt\": \"1 2 3 4 5 6 7 8 9 1 2\", \"answer\": \" 3 4\"}\n"
                    "{\"prompt\": \"7 8 9\", \"answer\": \"1 2 3 4 5 6 7 8 9\"}\n"
                    "{\"prompt\": \"<|endoftext|>\", \"answer\": \"\\u00e9\"}") == 0);
    CHECK(d.count == 5 && dataset_rows(&d, T) == 5 && dataset_truncated(&d, T) == 3);
    const int64_t longest = dataset_longest(&d);
    CHECK(dataset_truncated(&d, longest) == 0 && dataset_truncated(&d, longest - 1) > 0);
    for (size_t i = 0; i < d.count; i++) {
        const dataset_example *e = &d.examples[i];
        const size_t size = e->end - e->begin, answer = e->end - e->answer;
        size_t counted = 0, first = 0, last = 0;
        /* The first token of a row is never a target. */
        const size_t first_target = e->answer > e->begin ? e->answer : e->begin + 1;
        CHECK(d.tokens.ids[e->end - 1] == END && (e->answer > e->begin) == (i != 1) && answer > 1);
        dataset_row(&d, i, T, tokens, targets);
        for (size_t t = 0; t < T; t++) {
            first = targets[t] >= 0 && !counted ? t : first;
            last = targets[t] >= 0 ? t : last;
            counted += targets[t] >= 0;
        }
        CHECK_MSG(counted == (e->end - first_target < T ? e->end - first_target : T), "row %d: %d targets", (int)i,
                  (int)counted);
        CHECK(counted == last - first + 1 && targets[first] == d.tokens.ids[first_target]);
        CHECK(tokens[first] == d.tokens.ids[first_target - 1]);
        if (answer <= T)
            CHECK(targets[last] == END && (size <= T + 1 || last == T - 1));
        for (size_t t = last + 1; t < T; t++)
            CHECK(tokens[t] == END);
        for (size_t t = 0; t + 1 < T && t < last; t++)
            CHECK(targets[t] < 0 || targets[t] == tokens[t + 1]);
    }
    CHECK(d.examples[1].end - d.examples[1].begin == 2 && d.tokens.ids[d.examples[1].begin] != END);
    CHECK(d.examples[4].answer - d.examples[4].begin > 1); /* in this line, the end token is written as plain text */
    dataset_free(&d);
    static const struct {
        const char *text, *says;
    } wrong[] = { { "", "no lines: expected {" },
                  { "{\"prompt\": \"a\"}", ":1: expected {\"prompt\"" },
                  { "{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": 1, \"answer\": \"b\"}",
                    ":2: prompt: expected a string" },
                  { "[]", ":1: the line has an array: expected one object per line" },
                  { " [\n{\"prompt\": \"a\", \"answer\": \"b\"}]", ":1: the line has an array: expected one object per line" },
                  { "{\"prompt\": \"a\", \"answer\": \"b\"", ":1: " } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_MSG(open_text(&d, path, wrong[i].text) != 0 && strstr(d.error, wrong[i].says), "%s: %s",
                  wrong[i].text, d.error);
}

/* Returns the text of a row's tokens. The character '|' separates tokens that are targets from tokens that are not. */
static const char *shown(const dataset *d, size_t row)
{
    static char text[1024];
    size_t n = 0, size;
    for (size_t i = d->examples[row].begin; i < d->examples[row].end; i++) {
        if (i > d->examples[row].begin && d->targets.flags[i] != d->targets.flags[i - 1])
            text[n++] = '|';
        const char *bytes = bpe_bytes(&tokenizer, d->tokens.ids[i], &size);
        memcpy(text + n, bytes, size);
        n += size;
    }
    text[n] = 0;
    return text;
}

/* The keys of a line determine what kind of row it is; a chat needs a template. */
static void test_lines(void)
{
    static chat c;
    dataset d;
    dataset_desc desc = { END, 0, &c, NULL };
    int32_t tokens[64], targets[64];
    static const struct {
        const char *line, *plain, *chats; /* the expected row without (plain) and with (chats) a chat template */
    } lines[] = {
        { "{\"prompt\": \"1 2\", \"completion\": \" 3\"}", "1 2| 3<|endoftext|>", "1 2| 3<|endoftext|>" },
        { "{\"instruction\": \"add\", \"input\": \"1 2\", \"output\": \"3\"}",
          "### Instruction:\nadd\n\n### Input:\n1 2\n\n### Response:\n|3<|endoftext|>",
          "<|user|>add\n\n1 2\nA:|3<|endoftext|>" },
        { "{\"instruction\": \"add\", \"input\": \"\", \"output\": \"3\"}",
          "### Instruction:\nadd\n\n### Response:\n|3<|endoftext|>", "<|user|>add\nA:|3<|endoftext|>" },
        { "{\"output\": \"3\", \"text\": \"x\", \"instruction\": \"add\"}",
          "### Instruction:\nadd\n\n### Response:\n|3<|endoftext|>", "<|user|>add\nA:|3<|endoftext|>" },
        { "{\"text\": \"three\", \"prompt\": \"no\"}", "three<|endoftext|>", "three<|endoftext|>" },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"assistant\", \"content\": \"two\"}, "
          "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"th\"}, {\"text\": \"ree\", \"type\": \"text\"}]}, "
          "{\"role\": \"assistant\", \"content\": [], \"tool_calls\": []}, {\"role\": \"user\", \"content\": \"lost\"}], "
          "\"prompt\": \"\", \"completion\": \"\"}",
          NULL, "<|user|>one\nA:|two<|endoftext|>|\n<|user|>three\nA:|<|endoftext|>" },
        { "{\"conversations\": [{\"from\": \"human\", \"value\": \"one\"}, {\"from\": \"gpt\", \"value\": \"two\"}], "
          "\"id\": 7}",
          NULL, "<|user|>one\nA:|two<|endoftext|>" },
        { "{\"prompt\": [{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"assistant\", \"content\": \"two\"}, "
          "{\"role\": \"user\", \"content\": \"three\"}], \"completion\": [{\"role\": \"assistant\", "
          "\"content\": \"four\"}]}",
          NULL, "<|user|>one\nA:two<|endoftext|>\n<|user|>three\nA:|four<|endoftext|>" },
        { "{\"instruction\": \"add\", \"context\": \"1 2\", \"response\": \"3\", \"category\": \"x\"}",
          "### Instruction:\nadd\n\n### Input:\n1 2\n\n### Response:\n|3<|endoftext|>",
          "<|user|>add\n\n1 2\nA:|3<|endoftext|>" },
        { "{\"question\": \"1+2\", \"answer\": \"3\"}", "### Instruction:\n1+2\n\n### Response:\n|3<|endoftext|>",
          "<|user|>1+2\nA:|3<|endoftext|>" },
    };
    enum { LINES = sizeof lines / sizeof *lines, CHATS = 3 };
    memset(&c, 0, sizeof c);
    for (int chats = 0; chats < 2; chats++) {
        FILE *f = fopen(path, "wb");
        for (int i = 0; i < LINES; i++)
            if (chats || lines[i].plain != NULL)
                fprintf(f, "%s\n", lines[i].line);
        fclose(f);
        if (chats)
            CHECK(chat_set_turn(&c, CHAT_USER, "<|user|>{}\\n") == 0 &&
                  chat_set_turn(&c, CHAT_ASSISTANT, "A:{}<|endoftext|>\\n") == 0);
        CHECK_MSG(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &desc) == 0, "%s", d.error);
        CHECK(d.count == LINES - !chats * CHATS && d.lines[DATASET_CHATS] == (size_t)chats * CHATS &&
              d.lines[DATASET_PROMPTS] == 1 && d.lines[DATASET_INSTRUCTIONS] == 5 && d.lines[DATASET_TEXTS] == 1 && d.special_texts == 0);
        for (size_t i = 0, k = 0; i < d.count; i++, k++) {
            while (!chats && lines[k].plain == NULL)
                k++;
            const char *want = chats ? lines[k].chats : lines[k].plain;
            CHECK_MSG(strcmp(shown(&d, i), want) == 0, "line %d: %s", (int)i, shown(&d, i));
            dataset_row(&d, i, 64, tokens, targets);
            for (size_t t = 0; t < 64; t++) {
                const size_t at = d.examples[i].begin + t + 1;
                CHECK(targets[t] == (at < d.examples[i].end && d.targets.flags[at] ? d.tokens.ids[at] : -1));
            }
        }
        dataset_free(&d);
    }
    tokenizer.prefix[0] = 600;
    tokenizer.prefix_count = 1;
    CHECK(open_text(&d, path, "") != 0);
    put_file(path, lines[0].line, strlen(lines[0].line));
    CHECK(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &desc) == 0 &&
          !strcmp(shown(&d, 0), "<|user|>1 2| 3<|endoftext|>"));
    dataset_free(&d);
    static const char spells[] = "{\"prompt\": \"<|user|><|endoftext|>\", \"completion\": \"<|user|>:<\"}";
    put_file(path, spells, sizeof spells - 1);
    tokenizer.prefix_count = 0;
    for (desc.specials = 0; desc.specials < 2; desc.specials++) {
        CHECK(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &desc) == 0 && d.special_texts == 3);
        CHECK((d.tokens.ids[0] == 600) == desc.specials && (d.tokens.ids[1] == 0) == desc.specials);
        dataset_free(&d);
    }
    CHECK(open_text(&d, "build/test_dataset.txt", "one<|endoftext|>two") == 0 && d.special_texts == 1);
    dataset_free(&d);
    desc.specials = 0;
    static const struct {
        const char *text, *says;
        int chats;
    } wrong[] = {
        { "{\"instruction\": 1, \"output\": \"b\"}", ":1: instruction: expected a string", 0 },
        { "{\"instruction\": \"a\", \"input\": [], \"output\": \"b\"}", ":1: input: expected a string", 1 },
        { "\n{\"text\": null}", ":2: text: expected a string", 0 },
        { "{\"conversations\": []}", "the chat has no messages", 1 },
        { "{\"problem\": \"a\"}", ":1: expected {\"prompt\": \"..\", \"completion\"", 1 },
        { "{\"problem\": \"a\", \"n\": 1}",
          "or {\"text\": \"..\"}; for other keys, give --fields prompt=KEY,answer=KEY (the line has \"problem\", \"n\")", 0 },
        { "{}", "(the line has no keys)", 0 },
        { "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"wizard\", \"value\": \"b\"}]}",
          ":1: message 2: from: 'wizard' is not known; known are human, user, gpt", 1 },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
          "the model has no template; --chat NAME takes one of these: chatml, ", 0 },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "the chat has no turn of the assistant",
          1 },
        { "{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}",
          "the template refuses the chat: a turn of the tool is not known", 1 },
        { "{\"messages\": [{\"role\": \"<|user|>\", \"content\": \"a\"}]}", "message 1: role: expected letters", 1 },
        { "{\"messages\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\"}]}",
          "message 2: content: expected a string", 1 },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": \"[\"}", "tools:1: expected a value", 1 },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": \"{\\\"a\\\": 1}\"}",
          "tools: expected an array", 1 },
        { "{\"messages\": [{\"role\": \"user\", \"content\": 1}]}",
          "content: expected a string, or a list of {\"type\"", 1 },
        { "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}", "content: expected a string",
          1 },
        { "{\"messages\": [{\"content\": \"a\"}]}", "role", 1 },
        { "{\"messages\": \"a\"}", "messages: expected an array", 1 },
        { "{\"messages\": []}", "the chat has no messages", 1 },
        { "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}]}", "a turn of the system needs --system-turn", 1 },
    };
    static chat none;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        desc.chats = wrong[i].chats ? &c : &none;
        put_file(path, wrong[i].text, strlen(wrong[i].text));
        CHECK_MSG(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &desc) != 0 && strstr(d.error, wrong[i].says),
                  "%s: %s", wrong[i].text, d.error);
    }
    strcpy(none.source, "chat_template.jinja");
    strcpy(none.problem, "line 1");
    CHECK(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &(dataset_desc){ END, 0, NULL, NULL }) != 0);
    desc.chats = &none;
    CHECK(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &desc) != 0 &&
          strstr(d.error, "a chat, but the model's chat_template.jinja cannot be used: line 1; --chat"));
    chat_free(&c);
}

/* dataset_desc.fields gives the keys of lines other names. */
static void test_fields(void)
{
    static const struct {
        const char *fields, *line, *want;
    } cases[] = {
        { "prompt=problem,answer=solution", "{\"problem\": \"1\", \"solution\": \"2\", \"prompt\": 3}",
          "1|2<|endoftext|>" },
        { "instruction=q,output=a", "{\"q\": \"1\", \"a\": \"2\", \"input\": null}", "<|user|>1\nA:|2<|endoftext|>" },
        { "messages=dialog", "{\"dialog\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", "
                             "\"content\": \"2\"}]}",
          "<|user|>1\nA:|2<|endoftext|>" },
        { "text=body", "{\"body\": \"1 2\"}", "1 2<|endoftext|>" },
    };
    static chat c;
    dataset d;
    memset(&c, 0, sizeof c);
    CHECK(chat_set_turn(&c, CHAT_USER, "<|user|>{}\n") == 0 &&
          chat_set_turn(&c, CHAT_ASSISTANT, "A:{}<|endoftext|>\n") == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dataset_desc desc = { END, 0, &c, cases[i].fields };
        CHECK(dataset_fields_valid(cases[i].fields));
        put_file(path, cases[i].line, strlen(cases[i].line));
        CHECK_MSG(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &desc) == 0, "%s", d.error);
        CHECK_MSG(d.count == 1 && strcmp(shown(&d, 0), cases[i].want) == 0, "%s", d.count == 1 ? shown(&d, 0) : "");
        dataset_free(&d);
    }
    static const struct {
        const char *fields, *says;
    } wrong[] = {
        { "prompt=problm,answer=solution", "--fields prompt=problm: the line has no key \"problm\"; it has \"problem\", "
                                           "\"solution\"; did you mean \"problem\"?" },
        { "prompt=problem,answer=x", "--fields answer=x: the line has no key \"x\"; it has \"problem\", \"solution\"" },
        { "prompt=problem", "(the line has \"problem\", \"solution\")" },
    };
    static const char line[] = "{\"problem\": \"1\", \"solution\": \"2\"}";
    put_file(path, line, sizeof line - 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const dataset_desc desc = { END, 0, &c, wrong[i].fields };
        CHECK_MSG(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &desc) != 0 && strstr(d.error, wrong[i].says),
                  "%s", d.error);
    }
    CHECK(!dataset_fields_valid("prompt") && !dataset_fields_valid("prompt=") && !dataset_fields_valid("x=y") &&
          !dataset_fields_valid("prompt=a,answer"));
    chat_free(&c);
}

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define PAIR(chosen, rejected) "\"chosen\": " chosen ", \"rejected\": " rejected "}"

/* Lines that are valid, but probably a mistake, must be counted. A line without any target must be skipped. */
static void test_counts(void)
{
    static const char lines[] =
        "{\"text\": \"\"}\n{\"text\": \"one two\"}\n{\"text\": \"a\"}\n"
        "{\"prompt\": \"1\", \"completion\": \"\"}\n"
        "{\"instruction\": \"add\", \"output\": \"\"}\n"
        "{\"prompt\": \"\\ud83d\\ude00\", \"completion\": \"a\\ud83d\\udc00\\ud800\"}\n"
        "{\"prompt\": \"\\ud800b\", \"completion\": \"\\ud800\\u0041\\ude00\", \"\\ud801\": 1}\n";
    static const char same[] = "{\"prompt\": \"a\", " PAIR("\"b\"", "\"b\"") "\n{\"prompt\": \"a\", " PAIR(
        "\"b\"", "\"c\"") "\n{\"prompt\": \"a\", " PAIR("\"\"", "\"c\"") "\n";
    static chat c;
    dataset d;
    const dataset_desc plain = { END, 0, NULL, NULL }, chats = { END, 0, &c, NULL }, endless = { -1, 0, NULL, NULL };
    put_file(path, lines, sizeof lines - 1);
    CHECK_MSG(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &plain) == 0, "%s", d.error);
    CHECK_MSG(d.count == 6 && d.skipped == 1 && d.empty == 2 && d.replaced == 5,
              "%d rows, %d left out, %d empty, %d replaced", (int)d.count, (int)d.skipped, (int)d.empty,
              (int)d.replaced);
    if (d.count == 6) {
        CHECK(!strcmp(shown(&d, 0), "one two<|endoftext|>") && !strcmp(shown(&d, 2), "1|<|endoftext|>"));
        CHECK_MSG(!strcmp(shown(&d, 4), "\xf0\x9f\x98\x80|a\xf0\x9f\x90\x80\xef\xbf\xbd<|endoftext|>"), "%s",
                  shown(&d, 4));
        CHECK_MSG(!strcmp(shown(&d, 5), "\xef\xbf\xbd"
                                        "b|\xef\xbf\xbd"
                                        "A\xef\xbf\xbd<|endoftext|>"),
                  "%s", shown(&d, 5));
    }
    dataset_free(&d);
    CHECK(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &endless) == 0 && d.skipped == 4 && d.count == 3);
    dataset_free(&d);
    CHECK(open_text(&d, path, "{\"text\": \"\"}\n{\"text\": \"\"}\n") != 0 &&
          strstr(d.error, "none of the 2 lines has a target"));
    memset(&c, 0, sizeof c);
    CHECK(chat_select(&c, "chatml") == 0);
    static const char said[] = "{\"messages\": [" SAYS("user", "a") ", " SAYS("assistant", "") "]}";
    put_file(path, said, sizeof said - 1);
    CHECK(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &chats) == 0 && d.empty == 1 && d.count == 1);
    dataset_free(&d);
    put_file(path, same, sizeof same - 1);
    CHECK_MSG(dataset_open_pairs(&d, path, &tokenizer, tokenizer.count, &plain) == 0, "%s", d.error);
    CHECK(dataset_rows(&d, 1) == 3 && d.same_pairs == 1 && d.empty == 1);
    dataset_free(&d);
    static const char none[] = "{" PAIR("\"\"", "\"ab\"") "\n";
    put_file(path, none, sizeof none - 1);
    CHECK(dataset_open_pairs(&d, path, &tokenizer, tokenizer.count, &plain) != 0 &&
          strstr(d.error, ":1: \"chosen\": nothing to compare"));
    static const char marked[] = "{\"text\": \"one<|endoftext|>\"}";
    put_file(path, marked, sizeof marked - 1);
    const dataset_desc specials = { END, 1, NULL, NULL };
    CHECK(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &specials) == 0 &&
          !strcmp(shown(&d, 0), "one<|endoftext|>"));
    CHECK(d.tokens.ids[d.tokens.count - 2] != END);
    dataset_free(&d);
    chat_free(&c);
}

/* Writes 120 rows of 8 to 91 tokens, 24.8 on average. */
static void write_ragged(void)
{
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < 120; i++) {
        const int n = i == 77 ? 90 : 8 + (int)(sample_random(3, 0, (uint64_t)i) % 12) + (i % 5 == 0 ? i % 53 : i % 13);
        fprintf(f, "{\"prompt\": \"7\", \"completion\": \"");
        for (int k = 0; k < n; k++)
            fputc("!?"[k % 2], f);
        fprintf(f, "\"}\n");
    }
    fclose(f);
}

/* Each epoch must have each row once, in whatever order batches are requested. Rows must be grouped into a few lengths
 * with little padding. */
static void test_batches(void)
{
    dataset d;
    int64_t lengths[LENGTHS_MOST];
    write_ragged();
    CHECK_MSG(dataset_open(&d, path, &tokenizer, tokenizer.count, END) == 0, "%s", d.error);
    const int64_t most = dataset_longest(&d);
    for (uint64_t batch = 1; batch < 300; batch = batch < 10 ? batch + 1 : 2 * batch - 3) {
        const uint64_t first = batch % 2 == 0 ? 0 : 7, rows = 120 - first;
        dataset_batches b = { &d, first, rows, batch, batch, most, 0, 0, NULL, NULL }, other = b;
        unsigned char seen[120];
        double real = 0, computed = 0, padded = 0;
        uint64_t same = 0, steps = 0;
        CHECK(dataset_batches_new(&b) == 0 && dataset_batches_new(&other) == 0);
        const int classes = dataset_classes(&b, LENGTHS_MOST, lengths);
        CHECK(classes > 0 && classes <= LENGTHS_MOST && lengths[classes - 1] == most);
        for (int i = 1; i < classes; i++)
            CHECK(lengths[i - 1] < lengths[i] && lengths[i - 1] > 0);
        for (uint64_t p = 0, n; p < 3 * rows; p += n, steps++) {
            if (p % rows == 0)
                memset(seen, 0, sizeof seen);
            n = dataset_batch(&b, p);
            CHECK(n == (p % rows + batch <= rows ? batch : rows % batch));
            CHECK(dataset_batch(&other, (p * 7919) % (3 * rows)) > 0); /* requests another batch first: no effect */
            CHECK(dataset_batch(&other, p) == n && memcmp(other.current, b.current, n * sizeof *b.current) == 0);
            const int64_t length = dataset_batch_length(&b, n);
            int k = 0;
            while (lengths[k] < length)
                k++;
            for (uint64_t i = 0; i < n; i++) {
                CHECK(b.current[i] >= first && b.current[i] < 120 && !seen[b.current[i]]++);
                CHECK(dataset_length(&d, b.current[i], most) <= lengths[k]);
                real += (double)dataset_length(&d, b.current[i], most);
                same += p >= rows && b.current[i] == first + p % rows + i;
            }
            computed += (double)(n * (uint64_t)lengths[k]);
            padded += (double)(n * (uint64_t)most);
        }
        CHECK(steps == 3 * dataset_steps(&b) && (batch > 8 || same < rows / 4));
        if (batch == 8) {
            CHECK_MSG(padded / real > 3.5 && computed / real <= 1.15,
                      "%.2f computed tokens a real one, padded %.2f, %d classes", computed / real, padded / real,
                      classes);
            printf("%.3f computed tokens a real one in %d classes, padded to the longest %.3f (mean %.1f)\n",
                   computed / real, classes, padded / real, real / 360);
        }
        dataset_batches_free(&b);
        dataset_batches_free(&other);
    }
    dataset_free(&d);
}

/* With many batches, rows are sorted by length only within windows of several batches. Windows must not share rows, and
 * rows of similar length must be adjacent within a window. */
static void test_many_batches(void)
{
    static uint32_t seen[5003];
    enum { ROWS = 5003, BATCH = 4 };
    dataset d = { 0 };
    int64_t lengths[LENGTHS_MOST];
    dataset_batches b = { &d, 0, ROWS, BATCH, 5, 900, 0, 0, NULL, NULL };
    uint64_t real = 0, longest = 0, first_epoch = 0;
    d.count = ROWS;
    d.examples = (dataset_example *)calloc(ROWS, sizeof *d.examples);
    for (uint64_t i = 0; i < ROWS; i++)
        d.examples[i].end = 2 + sample_random(1, 2, i) % 20 * (sample_random(1, 3, i) % 50);
    CHECK(dataset_batches_new(&b) == 0 && dataset_steps(&b) == 1251);
    for (uint64_t p = 0, n; p < 2 * ROWS; p += n) {
        n = dataset_batch(&b, p);
        const uint64_t length = (uint64_t)dataset_batch_length(&b, n);
        longest += n * length;
        for (uint64_t i = 0; i < n; i++) {
            CHECK(seen[b.current[i]]++ == p / ROWS);
            real += (uint64_t)dataset_length(&d, b.current[i], 900);
            first_epoch += p < ROWS ? b.current[i] * p : 0;
        }
    }
    CHECK_MSG((double)longest < 1.02 * (double)real && first_epoch > 0, "%g", (double)longest / (double)real);
    const int classes = dataset_classes(&b, LENGTHS_MOST, lengths);
    CHECK_MSG(classes > 4 && lengths[classes - 1] == 900, "%d classes", classes);
    dataset_batches_free(&b);
    free(d.examples);
}

/* A binary file must be refused with the name of its format; text in any language must be accepted; a byte order mark
 * must not become a token. */
static void test_kinds(void)
{
#define KIND(text, says) { text, sizeof text - 1, says }
    static const struct {
        const char *text;
        size_t size;
        const char *says; /* the expected error, or NULL if the file is text */
    } kinds[] = {
        KIND("a\0b", "byte 2 is 0: this is not text"),
        KIND("h\0e\0l\0l\0o\0", "save it as UTF-8"),
        KIND("\xff\xfeh\0i\0", "in UTF-16, by its byte order mark: save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"),
        KIND("\xfe\xff\0h\0i", "in UTF-16"),
        KIND("\xff\xfe\0\0h\0\0\0", "in UTF-32"),
        KIND("\0\0\xfe\xff\0\0\0h", "in UTF-32"),
        KIND("\x40\0\0\0\0\0\0\0{\"a\":", "weights (safetensors)"),
        KIND("GGUF\3\0\0\0\1", "weights (GGUF)"),
        KIND("\x80\2}q", "Python pickle"),
        KIND("PK\3\4\24\0", "a zip archive"),
        KIND("\x1f\x8b\10\0abc", "a gzip archive, not text; unpack it: gunzip"),
        KIND("BZh91AY&SYabc", "a bzip2 archive"),
        KIND("\xfd\x37zXZ\0", "an xz archive"),
        KIND("\x28\xb5\x2f\xfd\4", "a zstd archive"),
        KIND("7z\xbc\xaf\x27\x1c\0", "a 7z archive"),
        KIND("Rar!\x1a\7\1", "a rar archive"),
        KIND("%PDF-1.7\n", "a PDF, not text; save its text"),
        KIND("\xd0\xcf\x11\xe0\xa1", "an Office document"),
        KIND("PAR1\x15\4", "a Parquet table"),
        KIND("\x93NUMPY\1", "a NumPy array"),
        KIND("\x89PNG\r\n\x1a\n\0", "a PNG picture"),
        KIND("\xff\xd8\xff\xe0", "a JPEG picture"),
        KIND("\177ELF\2", "a program"),
        KIND("\xef\xbb\xbf [{\"prompt\": \"a\",\n\"answer\": \"b\"}]\n", "an array of JSON, not text; write FILE.jsonl"),
        KIND("[\"one\",\n \"two\"]", "an array of JSON"),
        KIND("{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": 3", "name the file FILE.jsonl"),
        KIND("[1] see [2]", NULL),
        KIND("[Verse 1]\nla la", NULL),
        KIND("[\"no\", she said]", NULL),
        KIND("{\"other\": 1}\n", NULL),
        KIND("{ int x; }\n[]", NULL),
        KIND("GGUF is a format, PK too, %PDF- is not", NULL),
        KIND("BZh9", NULL),
        KIND("PNG? Rar! PAR1 7z {", NULL),
        KIND("Gr\xc3\xbc\xc3\x9f Gott", NULL),
        KIND("\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c", NULL),
        KIND("\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 \xf0\x9f\x98\x80\t\r\n\33[1m", NULL),
        KIND("\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d \xd9\x85\xd8\xb1\xd8\xad\xd8\xa8\xd8\xa7", NULL),
    };
    const char *text = "build/test_dataset.txt";
    dataset d, e;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        put_file(text, kinds[i].text, kinds[i].size);
        const int failed = dataset_open(&d, text, &tokenizer, tokenizer.count, END) != 0;
        CHECK_MSG(kinds[i].says == NULL ? !failed && d.tokens.count > 0 && d.replaced == 0
                                        : failed && strstr(d.error, kinds[i].says),
                  "kind %d: %s", (int)i, failed ? d.error : "is taken");
        if (!failed)
            dataset_free(&d);
    }
    static char tar[512] = "name";
    memcpy(tar + 257, "ustar", 5);
    put_file(text, tar, sizeof tar);
    CHECK(dataset_open(&d, text, &tokenizer, tokenizer.count, END) != 0 && strstr(d.error, "a tar archive"));
    CHECK(dataset_open(&d, "tests/golden/gpt2/model/model.safetensors", &tokenizer, tokenizer.count, END) != 0 &&
          strstr(d.error, "weights (safetensors)"));
    CHECK(open_text(&d, text, "Gr\xfc\xdf Gott") == 0 && d.replaced == 2);
    dataset_free(&d);
    static const char *const marked[][2] = {
        { "build/test_dataset.txt", "\xef\xbb\xbf" "three four" },
        { "build/test_dataset.jsonl", "\xef\xbb\xbf\n{\"prompt\": \"one\", \"answer\": \"two\"}\n" },
        { "build/test_dataset.jsonl", "\xef\xbb\xbf{\"prompt\": \"one\", \"answer\": \"two\"}\n" }
    };
    for (size_t i = 0; i < sizeof marked / sizeof *marked; i++) {
        CHECK_MSG(open_text(&d, marked[i][0], marked[i][1]) == 0, "%s", d.error);
        CHECK_MSG(open_text(&e, marked[i][0], marked[i][1] + 3) == 0, "%s", e.error);
        CHECK(d.tokens.count == e.tokens.count && d.tokens.count > 1 && d.count == e.count &&
              memcmp(d.tokens.ids, e.tokens.ids, d.tokens.count * sizeof *d.tokens.ids) == 0);
        dataset_free(&d);
        dataset_free(&e);
    }
    static const char utf16[] = "\xff\xfe{\0\"\0\n\0";
    put_file(path, utf16, sizeof utf16 - 1);
    CHECK_MSG(dataset_open(&d, path, &tokenizer, tokenizer.count, END) != 0 && strstr(d.error, "in UTF-16"), "%s",
              d.error);
    CHECK_MSG(open_text(&d, path, "{\"prompt\": \"\", \"answer\": \"b\"}\n\xef\xbb\xbf{}") != 0 &&
                  strstr(d.error, ":2: expected a value"), "%s", d.error);
}

/* Each epoch must have each row once, in a new order. */
static void test_order(void)
{
    static unsigned char seen[1000];
    for (uint64_t n = 1; n <= 1000; n = n < 20 ? n + 1 : n * 3 / 2) {
        uint64_t same = 0, in_place = 0;
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < n; i++) {
                const uint64_t row = dataset_shuffled(7, epoch * n + i, n);
                CHECK(row < n && !seen[row]);
                seen[row < n ? row : 0] = 1;
                in_place += row == i;
                same += row == dataset_shuffled(7, (epoch + 1) * n + i, n);
            }
        }
        CHECK_MSG(n < 100 || (same < n / 10 && in_place < n / 10), "%d rows: %d come as before", (int)n, (int)same);
    }
    CHECK(dataset_shuffled(7, 5, 1000) != dataset_shuffled(8, 5, 1000));
}

/* Tests lines with a preferred and a rejected answer. Answers are texts or messages; the prompt is separate, repeated
 * in both answers, or a text before messages. Wrong lines must be refused. */
static void test_pairs(void)
{
    static const struct {
        const char *line, *chosen, *rejected;
    } lines[] = {
        { "{\"prompt\": \"1 2\", " PAIR("\" 3\"", "\" 4 5\""), "1 2| 3<|endoftext|>", "1 2| 4 5<|endoftext|>" },
        { "{" PAIR("\"1 2 3\"", "\"1 2 4 5\""), "1 2| 3<|endoftext|>", "1 2| 4 5<|endoftext|>" },
        { "{\"prompt\": null, " PAIR("\"\\u00fca\"", "\"\\u00f6a\""),
          "\xc3\xbc"
          "a<|endoftext|>",
          "\xc3\xb6"
          "a<|endoftext|>" },
        { "{\"prompt\": [" SAYS("user", "one") "], \"messages\": [], " PAIR("[" SAYS("assistant", "two") "]",
                                                                            "[" SAYS("assistant", "six") "]"),
          "<|user|>one\nA:|two<|endoftext|>", "<|user|>one\nA:|six<|endoftext|>" },
        { "{" PAIR("[" SAYS("user", "one") "," SAYS("assistant", "two") "]",
                   "[" SAYS("user", "one") "," SAYS("assistant", "six") "]"),
          "<|user|>one\nA:|two<|endoftext|>", "<|user|>one\nA:|six<|endoftext|>" },
        { "{\"prompt\": \"one\", " PAIR("[" SAYS("user", "one") "," SAYS("assistant", "two") "]",
                                        "[" SAYS("user", "one") "," SAYS("assistant", "six") "]"),
          "<|user|>one\nA:|two<|endoftext|>", "<|user|>one\nA:|six<|endoftext|>" },
        { "{\"prompt\": \"one\", " PAIR("[" SAYS("assistant", "two") "]", "[" SAYS("assistant", "six") "]"),
          "<|user|>one\nA:|two<|endoftext|>", "<|user|>one\nA:|six<|endoftext|>" },
        { "{\"prompt\": [" SAYS("user", "a") "," SAYS("assistant", "b") "," SAYS("user", "c") "], " PAIR(
              "[" SAYS("assistant", "two") "," SAYS("user", "x") "," SAYS("assistant", "three") "]",
              "[" SAYS("assistant", "b") "]"),
          "<|user|>a\nA:b<|endoftext|>\n<|user|>c\nA:|two<|endoftext|>|\n<|user|>x\nA:|three<|endoftext|>",
          "<|user|>a\nA:b<|endoftext|>\n<|user|>c\nA:|b<|endoftext|>" },
    };
    static const struct {
        const char *text, *says;
    } wrong[] = {
        { "{\"prompt\": \"a\", \"rejected\": \"b\"}",
          ":1: \"chosen\" is missing: expected {\"prompt\": \"..\", \"chosen\"" },
        { "\n{\"prompt\": \"a\", \"chosen\": \"b\"}", ":2: \"rejected\" is missing" },
        { "{\"prompt\": \"a\", \"completion\": \"b\"}", "\"chosen\" is missing" },
        { "{\"prompt\": 1, " PAIR("\"a\"", "\"b\""), "\"prompt\": expected a text, as the answers are" },
        { "{\"prompt\": [" SAYS("user", "a") "], " PAIR("\"a\"", "\"b\""),
          "\"prompt\": expected a text, as the answers are" },
        { "{\"prompt\": 1, " PAIR("[" SAYS("assistant", "a") "]", "[" SAYS("assistant", "b") "]"),
          "\"prompt\": expected a text, or a list of messages" },
        { "{" PAIR("1", "2"), "\"chosen\": expected a text, or a list of messages" },
        { "{" PAIR("\"a\"", "[" SAYS("assistant", "b") "]"), "\"rejected\": expected the kind of \"chosen\"" },
        { "{" PAIR("[" SAYS("user", "a") "]", "[" SAYS("assistant", "b") "]"),
          "\"chosen\" has no turn of the assistant" },
        { "{" PAIR("[" SAYS("user", "a") "," SAYS("assistant", "b") "]", "[" SAYS("user", "a") "]"),
          "\"rejected\" has no turn of the assistant after the prompt" },
        { "{" PAIR("[" SAYS("tool", "a") "]", "[" SAYS("assistant", "b") "]"), "a turn of the tool is not known" },
        { "{" PAIR("[1]", "[2]"), "role" },
        { "{\"prompt\": [], " PAIR("[]", "[]"), "the chat has no messages" },
        { "", "no lines: expected {\"prompt\": \"..\", \"chosen\"" },
        { "[]", "the line has an array: expected one object per line" },
    };
    enum { LINES = sizeof lines / sizeof *lines, LONG = 24 };
    static chat c;
    dataset d;
    const dataset_desc desc = { END, 0, &c, NULL }, plain = { END, 0, NULL, NULL };
    int32_t tokens[2 * LONG], targets[2 * LONG];
    memset(&c, 0, sizeof c);
    CHECK(chat_set_turn(&c, CHAT_USER, "<|user|>{}\n") == 0 &&
          chat_set_turn(&c, CHAT_ASSISTANT, "A:{}<|endoftext|>\n") == 0);
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < LINES; i++)
        fprintf(f, "%s\n", lines[i].line);
    fclose(f);
    CHECK_MSG(dataset_open_pairs(&d, path, &tokenizer, tokenizer.count, &desc) == 0, "%s", d.error);
    CHECK(d.count == 2 * LINES && dataset_rows(&d, 1) == LINES && d.lines[DATASET_CHATS] == LINES - 3);
    for (uint64_t i = 0; i < LINES && i < d.count / 2; i++) {
        int64_t length[2];
        for (int k = 0; k < 2; k++) {
            const dataset_example *e = &d.examples[2 * i + (uint64_t)k];
            const char *want = k == 0 ? lines[i].chosen : lines[i].rejected;
            CHECK_MSG(strcmp(shown(&d, 2 * i + (uint64_t)k), want) == 0, "pair %d: %s", (int)i,
                      shown(&d, 2 * i + (uint64_t)k));
            length[k] = (int64_t)(e->end - e->begin) - 1;
            length[k] = length[k] < LONG ? length[k] : LONG;
        }
        CHECK(dataset_length(&d, i, LONG) == (length[0] > length[1] ? length[0] : length[1]));
        CHECK(dataset_real_tokens(&d, i, LONG) == length[0] + length[1]);
        dataset_row(&d, i, LONG, tokens, targets);
        for (size_t t = 0; t < 2 * LONG; t++) {
            const dataset_example *e = &d.examples[2 * i + t / LONG];
            const size_t spare = e->end - e->begin > LONG + 1 ? e->end - e->begin - LONG - 1 : 0,
                         at = e->begin + spare + t % LONG;
            CHECK(tokens[t] == (at < e->end ? d.tokens.ids[at] : END));
            CHECK(targets[t] == (at + 1 < e->end && d.targets.flags[at + 1] ? d.tokens.ids[at + 1] : -1));
        }
    }
    dataset_free(&d);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put_file(path, wrong[i].text, strlen(wrong[i].text));
        CHECK_MSG(dataset_open_pairs(&d, path, &tokenizer, tokenizer.count, &desc) != 0 &&
                      strstr(d.error, wrong[i].says),
                  "%s: %s", wrong[i].text, d.error);
    }
    put_file(path, lines[3].line, strlen(lines[3].line));
    CHECK(dataset_open_pairs(&d, path, &tokenizer, tokenizer.count, &plain) != 0 &&
          strstr(d.error, "the model has no template"));
    put_file(path, lines[1].line, strlen(lines[1].line));
    CHECK(dataset_open_as(&d, path, &tokenizer, tokenizer.count, &desc) != 0 &&
          strstr(d.error, ":1: the line has a pair of answers, which only --objective dpo"));
    CHECK(dataset_open_pairs(&d, "build/test_dataset.txt", &tokenizer, tokenizer.count, &desc) != 0 &&
          strstr(d.error, "pairs are lines of FILE.jsonl"));
    chat_free(&c);
}

static void test_memory(void)
{
    static const char *const files[] = { "build/test_dataset.jsonl",  "build/test_dataset.txt",
                                         "build/test_dataset.bin",    "build/test_dataset.md",
                                         "build/test_dataset2.jsonl", "build/test_dataset3.jsonl" };
    static const char pairs[] =
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n{\"prompt\": \"a\", " PAIR(
            "[" SAYS("assistant", "a") "]", "[" SAYS("assistant", "b") "]") "\n";
    static chat c;
    const dataset_desc desc = { END, 0, &c, NULL };
    static const char lines[] = "{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}\n"
                                "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                                "\"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"b\"}]}]}\n";
    CHECK(chat_select(&c, "chatml") == 0);
    put_file(files[4], lines, sizeof lines - 1);
    put_file(files[0], "{\"prompt\": \"one\", \"answer\": \"two\"}\n", 35);
    put_file(files[1], "three four", 10);
    put_file(files[3], "[5] six", 7);
    put_file(files[5], pairs, sizeof pairs - 1);
    for (int i = 0; i < 6; i++) {
        int failed = 1;
        for (long n = 1; failed; n++) {
            dataset d;
            allocations = 0;
            fail_at = n;
            failed = (i == 5 ? dataset_open_pairs
                             : dataset_open_as)(&d, files[i], &tokenizer, tokenizer.count, &desc) != 0;
            fail_at = 0;
            CHECK_MSG(!failed || strstr(d.error, "out of memory"), "%s: %s", files[i], d.error);
            CHECK(n < 80);
            dataset_free(&d);
        }
    }
    chat_free(&c);
}

/* Llama 2's tokenizer puts a space before a text, but an answer must continue its prompt without that space, even where
 * a merge of the whole text would cross the border. Only the answer's text may be trained. */
static void test_blank_before(void)
{
    static const char *const prompts[] = { "a b", "a b ", "a b\n", "sing: ", "(", "the", " " };
    static const char *const answers[] = { "don't", "an end", " two", "is", "\xc3\xa9" };
    bpe other = tokenizer;
    dataset d;
    int merged = 0;
    CHECK(bpe_open(&tokenizer, "tests/golden/tokenizer/llama2") == 0);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        for (size_t k = 0; k < sizeof answers / sizeof *answers; k++) {
            char line[128], want[128], whole[64];
            bpe_tokens all = { NULL, 0, 0, "" };
            snprintf(whole, sizeof whole, "%s%s", prompts[i], answers[k]);
            snprintf(want, sizeof want, "|%s</s>", answers[k]);
            snprintf(line, sizeof line, "{\"prompt\": \"%s%s\", \"completion\": \"%s\"}",
                     i == 2 ? "a b" : prompts[i], i == 2 ? "\\n" : "", answers[k]);
            put_file(path, line, strlen(line));
            CHECK_MSG(dataset_open(&d, path, &tokenizer, tokenizer.count, 2) == 0, "%s", d.error);
            const char *seen = strchr(shown(&d, 0), '|');
            CHECK_MSG(seen != NULL && strcmp(seen, want) == 0, "%s: %s", line, shown(&d, 0));
            CHECK(bpe_encode(&tokenizer, whole, strlen(whole), 0, &all) == 0);
            merged += all.count + 2 != d.tokens.count;
            bpe_tokens_free(&all);
            dataset_free(&d);
        }
    CHECK(merged > 0);
    bpe_free(&tokenizer);
    tokenizer = other;
}

int main(void)
{
    CHECK(bpe_open(&tokenizer, "tests/golden/tokenizer") == 0);
    test_windows();
    test_answers();
    test_lines();
    test_fields();
    test_pairs();
    test_counts();
    test_blank_before();
    test_batches();
    test_many_batches();
    test_kinds();
    test_order();
    test_memory();
    bpe_free(&tokenizer);
    CHECK(live_blocks == 0);
    return check_report("dataset");
}
