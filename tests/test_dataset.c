/* test_dataset.c - examples/dataset.h: rows of texts, tokens, prompts and answers; what is a target; the order of
 * rows; what is refused; every failing allocation. */
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

/* Every token but the first is a target once, behind the one before it. */
static void test_windows(void)
{
    dataset d;
    int32_t tokens[T], targets[T];
    char text[400];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i + 1 < sizeof text ? (char)('a' + i * i % 23) : 0;
    CHECK(open_text(&d, "build/test_dataset.txt", text) == 0 && d.examples == NULL && d.all.count > 3 * T);
    const uint64_t rows = dataset_rows(&d, T);
    CHECK(rows == (d.all.count - 1 + T - 1) / T && dataset_cut(&d, T) == 0 && dataset_longest(&d) == 0);
    for (uint64_t row = 0; row < rows; row++) {
        dataset_row(&d, row, T, tokens, targets);
        for (size_t t = 0; t < T; t++) {
            const size_t at = row * T + t;
            CHECK(tokens[t] == (at < d.all.count ? d.all.ids[at] : END));
            CHECK(targets[t] == (at + 1 < d.all.count ? d.all.ids[at + 1] : -1));
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

/* Targets are the answer's tokens and the end behind them, whatever of the row is cut off. */
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
    CHECK(d.count == 5 && dataset_rows(&d, T) == 5 && dataset_cut(&d, T) == 3);
    const int64_t longest = dataset_longest(&d);
    CHECK(dataset_cut(&d, longest) == 0 && dataset_cut(&d, longest - 1) > 0);
    for (size_t i = 0; i < d.count; i++) {
        const dataset_example *e = &d.examples[i];
        const size_t size = e->end - e->begin, answer = e->end - e->answer;
        size_t counted = 0, first = 0, last = 0;
        CHECK(d.all.ids[e->end - 1] == END && e->answer > e->begin && answer > 1);
        dataset_row(&d, i, T, tokens, targets);
        for (size_t t = 0; t < T; t++) {
            first = targets[t] >= 0 && !counted ? t : first;
            last = targets[t] >= 0 ? t : last;
            counted += targets[t] >= 0;
        }
        CHECK_MSG(counted == (answer < T ? answer : T), "row %d: %d targets", (int)i, (int)counted);
        CHECK(counted == last - first + 1 && targets[first] == d.all.ids[e->answer]);
        CHECK(tokens[first] == d.all.ids[e->answer - 1]);
        if (answer <= T)
            CHECK(targets[last] == END && (size <= T + 1 || last == T - 1));
        for (size_t t = last + 1; t < T; t++)
            CHECK(tokens[t] == END);
        for (size_t t = 0; t + 1 < T && t < last; t++)
            CHECK(targets[t] < 0 || targets[t] == tokens[t + 1]);
    }
    CHECK(d.examples[1].answer - d.examples[1].begin == 1 && d.all.ids[d.examples[1].begin] == END);
    CHECK(d.examples[4].answer - d.examples[4].begin > 1); /* it is text here */
    dataset_free(&d);
    static const struct {
        const char *text, *says;
    } wrong[] = { { "", "no lines: expected {" },
                  { "{\"prompt\": \"a\"}", ":1: expected an object with the key answer" },
                  { "{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": 1, \"answer\": \"b\"}", ":2: prompt" },
                  { "[]", ":1: " },
                  { "{\"prompt\": \"a\", \"answer\": \"b\"", ":1: " } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_MSG(open_text(&d, path, wrong[i].text) != 0 && strstr(d.error, wrong[i].says), "%s: %s",
                  wrong[i].text, d.error);
}

/* Each epoch has each row once, in an order of its own. */
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

static void test_memory(void)
{
    static const char *const files[] = { "build/test_dataset.jsonl", "build/test_dataset.txt", "build/test_dataset.bin" };
    put_file(files[0], "{\"prompt\": \"one\", \"answer\": \"two\"}\n", 35);
    put_file(files[1], "three four", 10);
    for (int i = 0; i < 3; i++) {
        int failed = 1;
        for (long n = 1; failed; n++) {
            dataset d;
            allocations = 0;
            fail_at = n;
            failed = dataset_open(&d, files[i], &tokenizer, tokenizer.count, END) != 0;
            fail_at = 0;
            CHECK_MSG(!failed || strstr(d.error, "out of memory"), "%s: %s", files[i], d.error);
            CHECK(n < 50);
            dataset_free(&d);
        }
    }
}

int main(void)
{
    CHECK(bpe_open(&tokenizer, "tests/golden/tokenizer") == 0);
    test_windows();
    test_answers();
    test_order();
    test_memory();
    bpe_free(&tokenizer);
    CHECK(living == 0);
    return check_report("dataset");
}
