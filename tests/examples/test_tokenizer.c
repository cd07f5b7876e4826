/* test_tokenizer.c - tests examples/tokenizer.h and json.h. Tokens must equal those of Hugging Face's tokenizers
 * package (golden/make_tokenizer.py). Further tests: refused files and their error texts, long words, files of tokens,
 * and every allocation failing. */
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"
#include "counted.h"
#include "examples/tokenizer.h"
#include "tokens.h"

#define GOLDEN  "tests/golden/tokenizer/"
#define SCRATCH "build/test_tokenizer.tmp"
#define EIGHTY  "123456789 123456789 123456789 123456789 123456789 123456789 123456789 123456789 "
#define WIDENS                                                                                     \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"                                        \
    "\"content\":\"                              \"}"

/* Writes a copy of the file at `path` to SCRATCH, with the first occurrence of `from` replaced by `to`. */
static void put_edited(const char *path, const char *from, const char *to)
{
    json d;
    size_t n;
    char *s = json_read_text(&d, path, &n), *at = s != NULL ? strstr(s, from) : NULL;
    CHECK_MSG(at != NULL, "%s is not in %s", from, path);
    FILE *f = fopen(SCRATCH, "wb");
    if (at != NULL) {
        fwrite(s, 1, (size_t)(at - s), f);
        fputs(to, f);
        fputs(at + strlen(from), f);
    }
    fclose(f);
    json_free(&d);
}

/* ---- JSON ------------------------------------------------------------------------------------ */
/* Parses a copy of the text. Returns 0, or -1 after an error. */
static int parse(json *d, const char *text)
{
    size_t n = strlen(text);
    json_init(d, "t");
    d->owned = (char *)malloc(n + 1);
    memcpy(d->owned, text, n + 1);
    return json_parse(d, d->owned, n);
}

static void test_json_refuses(void)
{
    static const char *const refused[][2] = {
        { "", "t:1: expected a value, found the end of the text" },
        { " \n\n{", "t:3: expected a key in quotes, found the end of the text" },
        { "[1,\n]", "t:2: expected a value, found ']' (byte 5)" },
        { "[", "a value" },
        { "[,1]", "a value, found ','" },
        { "{\"a\":1,}", "a key in quotes, found '}'" },
        { "{1:2}", "a key in quotes, found '1'" },
        { "{\"a\"}", "':' after a key, found '}'" },
        { "{\"a\":}", "a value, found '}'" },
        { "{\"a\" 1}", "':' after a key" },
        { "[1 2]", "',' or ']', found '2'" },
        { "[1}", "',' or ']', found '}'" },
        { "{\"a\":1]", "',' or '}', found ']'" },
        { "1 2", "nothing after the value, found '2'" },
        { "]", "a value" },
        { "01", "nothing after the value" },
        { "-", "a digit, found the end" },
        { "1.", "a digit" },
        { ".5", "a value" },
        { "1e", "a digit" },
        { "1e+x", "a digit, found 'x'" },
        { "+1", "a value" },
        { "0x1", "nothing after the value, found 'x'" },
        { "NaN", "a value" },
        { "-Infinity", "a digit" },
        { "nul", "a value" },
        { "truefalse", "nothing after" },
        { "'a'", "a value" },
        { "\"abc", "the rest of a string, found the end" },
        { "\"a\tb\"", "the rest of a string, found byte 0x09" },
        { "\"\\x\"", "after a backslash, found 'x'" },
        { "\"\\u12\"", "4 hexadecimal digits" },
        { "\"\\u12g4\"", "4 hexadecimal digits" },
        { "\"\\ud800\"", "surrogates in pairs" },
        { "\"\\udc00\"", "surrogates in pairs" },
        { "\"\\ud800\\u0041\"", "surrogates in pairs" },
        { "\"\\ud800\\ud801\"", "surrogates in pairs" },
        { "\"\xff\"", "UTF-8, found byte 0xff" },
        { "\"\xed\xa0\x80\"", "UTF-8, found byte 0xed" },
        { "\"\xc3\"", "UTF-8, found byte 0xc3" },
        { "\xef\xbb\xbf{}", "a value, found byte 0xef" },
        { "{} // end", "nothing after the value, found '/'" },
    };
    char deep[2 * JSON_DEPTH + 3];
    json d;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        CHECK_MSG(parse(&d, refused[i][0]) == -1 && strstr(d.error, refused[i][1]), "%s: %s",
                  refused[i][0], d.error);
        json_free(&d);
    }
    for (int depth = JSON_DEPTH; depth <= JSON_DEPTH + 1; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        deep[2 * depth] = 0;
        CHECK((parse(&d, deep) == 0) == (depth == JSON_DEPTH));
        json_free(&d);
    }
    CHECK(json_read_file(&d, "build/is not there.json") == -1);
    CHECK_MSG(strstr(d.error, "build/is not there.json: cannot open it: ") == d.error, "%s",
              d.error);
    json_free(&d);
    CHECK(json_read_file(&d, "tests") == -1 && strstr(d.error, "tests: cannot ") == d.error);
    json_free(&d);
    FILE *f = fopen("tests", "rb"); /* a directory, which some systems open but cannot read */
    json_init(&d, "tests");
    CHECK(f == NULL || json_read_line(&d, f) == -1);
    CHECK(f == NULL || strstr(d.error, "tests: cannot read it: ") == d.error);
    if (f != NULL)
        fclose(f);
    json_free(&d);
}

/* A byte order mark of UTF-8 must be ignored. A file with a byte order mark of another encoding must be refused. */
static void test_json_marks(void)
{
    json d;
    put_file(SCRATCH, "\xef\xbb\xbf\n{\"a\": 1}", 12);
    CHECK_MSG(json_read_file(&d, SCRATCH) == 0 && json_int(&d, JSON_ROOT, "a", 0) == 1, "%s",
              d.error);
    json_free(&d);
    put_file(SCRATCH, "\xff\xfe{\0}\0", 6);
    CHECK(json_read_file(&d, SCRATCH) == -1 &&
          strstr(d.error, "it is in UTF-16, by its byte order mark"));
    json_free(&d);
    put_file(SCRATCH, "\xef\xbb\xbf\xef\xbb\xbf{}", 8);
    CHECK(json_read_file(&d, SCRATCH) == -1 &&
          strstr(d.error, "expected a value, found byte 0xef"));
    json_free(&d);
}

/* Values that are written must be read as the same values, and writing these must give the same text. */
static void test_json_writing(void)
{
    static const char text[] =
        "{\"s\": \"a\\\"\\\\/\\u0008\\n\\t\xc3\xa9\\u0000z\", \"\": [], \"o\": {}, "
        "\"n\": [0, -1, 1e-05, 1.50, [[2], {\"x\": null}]], \"t\": true, \"f\": false}";
    char back[sizeof text + 1] = { 0 };
    json d;
    CHECK(parse(&d, text) == 0);
    FILE *f = fopen(SCRATCH, "w+b");
    json_write_value(f, &d, JSON_ROOT);
    rewind(f);
    CHECK(fread(back, 1, sizeof back, f) == sizeof text - 1);
    CHECK_MSG(strcmp(back, text) == 0, "%s", back);
    fclose(f);
    json_free(&d);
}

static void test_json_values(void)
{
    static const char text[] =
        "{ \"s\" : \"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD83d\\ude00\\u0000z\", \"e\":\"\",\n"
        "  \"n\":[0,-1,9223372036854775,1.5,-2e3,1E-2 , 12345678901234567890],\"o\":{},\"a\":[],\n"
        "  \"t\":true,\"f\":false,\"u\":null,\"k\\u0065y\":{\"x\":[[1,2],[3]]},\"twice\":1,\"twice\":2}";
    json d;
    CHECK(parse(&d, text) == 0);
    uint32_t s = json_find(&d, JSON_ROOT, "s"), n = json_find(&d, JSON_ROOT, "n");
    CHECK(json_size(&d, s) == 17 &&
          memcmp(json_text(&d, s), "a\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80\0z", 18) == 0);
    CHECK(json_size(&d, JSON_ROOT) == 11 && json_size(&d, n) == 7);
    CHECK(json_is(&d, json_find(&d, JSON_ROOT, "e"), "") && !json_is(&d, n, ""));
    uint32_t i = json_first(&d, n);
    CHECK(json_int_of(&d, i) == 0);
    CHECK(json_int_of(&d, i = json_next(&d, i)) == -1);
    CHECK(json_int_of(&d, i = json_next(&d, i)) == 9223372036854775);
    CHECK(json_real_of(&d, i = json_next(&d, i)) == 1.5);
    CHECK(json_real_of(&d, i = json_next(&d, i)) == -2000);
    CHECK(json_real_of(&d, i = json_next(&d, i)) == 0.01);
    i = json_next(&d, i);
    CHECK(json_next(&d, i) == 0 && json_real_of(&d, i) == 12345678901234567890.0);
    uint32_t x = json_find(&d, json_find(&d, JSON_ROOT, "key"), "x"), first = json_first(&d, x);
    CHECK(json_size(&d, x) == 2 && json_int_of(&d, json_first(&d, json_next(&d, first))) == 3);
    CHECK(json_first(&d, json_find(&d, JSON_ROOT, "o")) == 0);
    CHECK(json_first(&d, json_find(&d, JSON_ROOT, "a")) == 0);
    CHECK(json_kind_of(&d, json_find(&d, JSON_ROOT, "u")) == JSON_NULL);
    CHECK(json_int(&d, JSON_ROOT, "u", 7) == 7 && json_int(&d, JSON_ROOT, "none", 8) == 8);
    CHECK(json_real(&d, JSON_ROOT, "u", 0.5) == 0.5 && json_bool(&d, JSON_ROOT, "u", 1) == 1);
    CHECK(json_bool(&d, JSON_ROOT, "t", 0) == 1 && json_bool(&d, JSON_ROOT, "f", 1) == 0);
    CHECK(json_find(&d, 0, "x") == 0 && json_find(&d, n, "x") == 0 && json_next(&d, 0) == 0);
    CHECK(json_kind_of(&d, d.count) == JSON_NOTHING && d.error[0] == 0);

    /* Each of these calls requests a value of a type that the document does not have there. */
    const char *const errors[] = {
        "t:2: n: expected a whole number, found an array",
        "t:2: expected a whole number, found a number 12345678901234567890",
        "t:2: expected a whole number, found a number 1.5",
        "t:3: t: expected a number, found true",
        "t:3: u: expected a string, found null",
        "t:1: e: expected true or false, found a string ",
        "t: expected a string, found nothing",
        "t:3: twice: this key occurs twice",
        "t:1: expected an object with the key q (an array), which is not there",
        "t:2: n: expected an object, found an array",
        "t: expected an object with the key q (a value), which is not there"
    };
    for (int k = 0; k < 11; k++) {
        d.error[0] = 0;
        CHECK(k != 0 || json_int(&d, JSON_ROOT, "n", 1) == 0);
        CHECK(k != 1 || json_int_of(&d, i) == 0);
        CHECK(k != 2 || json_int_of(&d, json_first(&d, n) + 3) == 0);
        CHECK(k != 3 || json_real(&d, JSON_ROOT, "t", 1) == 0);
        CHECK(k != 4 || json_text(&d, json_find(&d, JSON_ROOT, "u"))[0] == 0);
        CHECK(k != 5 || json_bool(&d, JSON_ROOT, "e", 1) == 0);
        CHECK(k != 6 || json_text(&d, 0)[0] == 0);
        CHECK(k != 7 || json_int(&d, JSON_ROOT, "twice", 0) == 2);
        CHECK(k != 8 || json_require(&d, JSON_ROOT, "q", JSON_ARRAY) == 0);
        CHECK(k != 9 || json_require(&d, JSON_ROOT, "n", JSON_OBJECT) == 0);
        CHECK(k != 10 || json_require(&d, 0, "q", JSON_NOTHING) == 0);
        CHECK_MSG(strcmp(d.error, errors[k]) == 0, "%s", d.error);
        json_fail(&d, 0, "later");
        CHECK(strcmp(d.error, errors[k]) == 0);
    }
    json_free(&d);
}

/* A written line must be read back as the same text; bytes that are not UTF-8 become U+FFFD. */
static void test_json_lines(void)
{
    static const char all[] = "\x01\n\t\"\\/ \x7f\xc3\xa9\xf0\x9f\x98\x80 \xff\xed\xa0\x80";
    static const char back[] = "\x01\n\t\"\\/ \x7f\xc3\xa9\xf0\x9f\x98\x80 \xef\xbf\xbd\xef\xbf\xbd"
                               "\xef\xbf\xbd\xef\xbf\xbd";
    json d;
    FILE *f = fopen(SCRATCH, "w+b");
    fputs("\n  \r\n{\"a\":1}\r\n", f);
    json_write_string(f, all, sizeof all - 1);
    fputs("\n\n[\n2", f);
    rewind(f);
    json_init(&d, "lines");
    CHECK(json_read_line(&d, f) == 1 && json_int(&d, JSON_ROOT, "a", 0) == 1 && d.line == 3);
    CHECK(json_read_line(&d, f) == 1 && json_is(&d, JSON_ROOT, back) && d.line == 4);
    CHECK(json_read_line(&d, f) == -1 && d.line == 6);
    CHECK_MSG(strcmp(d.error, "lines:6: expected a value, found the end of the text (byte 2)") == 0,
              "%s", d.error);
    d.error[0] = 0;
    CHECK(json_read_line(&d, f) == 1 && json_int_of(&d, JSON_ROOT) == 2 && d.line == 7);
    CHECK(json_read_line(&d, f) == 0 && d.error[0] == 0);
    json_free(&d);
    fclose(f);
}

/* ---- comparison with Hugging Face's tokenizers ----------------------------------------------- */
/* Checks that the bytes of a text's tokens, in order, are the text. One added token is an exception: its name stands
 * for other bytes. */
static void check_whole(bpe *b, const char *text, size_t n)
{
    size_t size, at = 0, valid_size;
    char *valid = bpe_to_utf8(text, n, &valid_size);
    bpe_tokens t = { NULL, 0, 0, "" };
    CHECK(bpe_encode(b, text, n, 1, &t) == 0);
    for (size_t k = 0; k < t.count; k++) {
        const char *bytes = bpe_bytes(b, t.ids[k], &size);
        if (size == 1 && *bytes == '\xe9' && at + 1 < valid_size && valid[at] == '\xc3')
            size = 2; /* this added token has the name that also stands for byte e9 */
        else
            CHECK(at + size <= valid_size && memcmp(valid + at, bytes, size) == 0);
        at += size;
    }
    CHECK(at == valid_size);
    free(valid);
    bpe_tokens_free(&t);
}

static void check_hash(json *d, uint64_t hash)
{
    char hex[17];
    snprintf(hex, sizeof hex, "%08x%08x", (unsigned)(hash >> 32), (unsigned)(hash & 0xffffffff));
    CHECK_MSG(json_is(d, json_find(d, JSON_ROOT, "hash"), hex), "%s", hex);
}

static void check_classes(json *d)
{
    uint64_t hash = 0xcbf29ce484222325u;
    int64_t counts[4] = { 0 };
    for (uint32_t c = 0; c < 0x110000; c++) {
        int kind = unicode_class(c);
        counts[kind]++;
        hash = (hash ^ (uint64_t)kind) * 0x100000001b3u;
    }
    check_hash(d, hash);
    uint32_t i = json_first(d, json_find(d, JSON_ROOT, "classes"));
    for (int k = 1; k < 4; k++, i = json_next(d, i))
        CHECK(json_int_of(d, i) == counts[k]);
}

/* Compares the NFC form of each Unicode character with a hash from Python. */
static void check_composed(json *d)
{
    uint64_t hash = 0xcbf29ce484222325u;
    int64_t changed = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[4], *to = NULL;
        size_t n = (size_t)json_put_utf8(text, c), size = 0;
        uint32_t one = 0;
        if (c >= 0xd800 && c < 0xe000)
            continue;
        CHECK(bpe_compose(BPE_NFC, text, n, &to, &size) == 0);
        const char *s = to != NULL ? to : text;
        changed += size != n || memcmp(s, text, n) != 0;
        for (size_t i = 0; i < size;) {
            i += (size_t)json_utf8(s + i, size - i, &one);
            hash = (hash ^ one) * 0x100000001b3u;
        }
        free(to);
    }
    check_hash(d, hash);
    CHECK(changed == json_int(d, JSON_ROOT, "composed", 0));
}

/* Compares where a pre-tokenizer splits the text, whatever the tokens are. */
static void check_split(json *d, const bpe *b)
{
    uint32_t text = json_find(d, JSON_ROOT, "text");
    const char *s = json_text(d, text), *end = s + json_size(d, text);
    const bpe_step *p = &b->steps[b->normalizers + json_int(d, JSON_ROOT, "step", 0)];
    bpe_begin_pieces(p);
    for (uint32_t i = json_first(d, json_find(d, JSON_ROOT, "sizes")); i != 0;
         i = json_next(d, i)) {
        const char *next = s < end ? bpe_piece_end(p, s, end) : s;
        CHECK_MSG(next - s == json_int_of(d, i), "%s:%u: %d bytes", d->name, (unsigned)d->line,
                  (int)(next - s));
        s = next;
    }
    CHECK(s == end);
}

/* Checks all lines of a folder's cases.jsonl with tokenizer b and returns their number. If `files` is not NULL, also
 * checks `files`, a tokenizer read from vocab.json and merges.txt. */
static int check_cases(bpe *b, bpe *files, const char *path)
{
    json d;
    int lines = 0, status;
    FILE *f = fopen(path, "rb");
    json_init(&d, path);
    while (f != NULL && (status = json_read_line(&d, f)) != 0) {
        uint32_t text = json_find(&d, JSON_ROOT, "text"), hex = json_find(&d, JSON_ROOT, "hex");
        uint32_t ids = json_find(&d, JSON_ROOT, "ids");
        uint32_t plain = json_find(&d, JSON_ROOT, "plain"),
                 whole = json_find(&d, JSON_ROOT, "template"),
                 other = json_find(&d, JSON_ROOT, "files");
        CHECK_MSG(status == 1 && d.error[0] == 0, "%s", d.error);
        lines++;
        if (status < 0)
            break;
        if (json_find(&d, JSON_ROOT, "decode") != 0) {
            check_decoded(&d, b);
        } else if (json_find(&d, JSON_ROOT, "classes") != 0) {
            check_classes(&d);
        } else if (json_find(&d, JSON_ROOT, "sizes") != 0) {
            check_split(&d, b);
        } else if (json_find(&d, JSON_ROOT, "composed") != 0) {
            check_composed(&d);
        } else {
            char *s = d.text + d.nodes[text ? text : hex].at;
            size_t n = text ? json_size(&d, text) : from_hex(s);
            check_ids(&d, ids, b, s, n, BPE_SPECIALS);
            check_ids(&d, plain ? plain : ids, b, s, n, 0);
            if (whole != 0)
                check_ids(&d, whole, b, s, n, BPE_SPECIALS | BPE_TEMPLATE);
            if (files != NULL) {
                check_ids(&d, other ? other : ids, files, s, n, BPE_SPECIALS);
                check_whole(b, s, n);
            }
        }
    }
    json_free(&d);
    if (f != NULL)
        fclose(f);
    return lines;
}

static void check_folder(const char *folder)
{
    char path[1024];
    bpe b;
    snprintf(path, sizeof path, "%s/cases.jsonl", folder);
    CHECK_MSG(bpe_open(&b, folder) == 0, "%s", b.error);
    int lines = b.error[0] ? 0 : check_cases(&b, NULL, path);
    CHECK_MSG(lines > 150, "%s: %d lines", path, lines);
    bpe_free(&b);
}

static void test_golden(void)
{
    static const char *const families[] = { "llama3",  "qwen2", "smollm2",     "llama2",
                                            "mistral", "gemma", "odd",         "prefix",
                                            "bert",    "cased", "xlmr",        "t5",
                                            "regex",   "spm",   "spm_unigram", "tekken" };
    bpe b, files;
    char path[64];
    CHECK(bpe_open(&b, "tests/golden/tokenizer") == 0 && b.count == 605);
    CHECK(bpe_read_files(&files, GOLDEN "vocab.json", GOLDEN "merges.txt") == 0);
    CHECK(files.count == 600);
    CHECK(check_cases(&b, &files, GOLDEN "cases.jsonl") > 500);
    CHECK(bpe_find_added(&b, "<|user|>")->id == 600 && bpe_find_added(&b, "<|user|>")->special);
    CHECK(!bpe_find_added(&b, "sum +=")->special && bpe_find_added(&b, "sum") == NULL);
    CHECK(bpe_find_added(&files, "<|endoftext|>")->id == 0);
    size_t size;
    CHECK(bpe_bytes(&b, -1, &size)[0] == 0 && size == 0);
    CHECK(bpe_bytes(&b, 605, &size)[0] == 0 && size == 0);
    CHECK(memcmp(bpe_bytes(&b, 604, &size), "user", 4) == 0 && size == 4);
    bpe_free(&b);
    bpe_free(&files);
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        snprintf(path, sizeof path, GOLDEN "%s", families[i]);
        check_folder(path);
    }
}

/* Pairs of texts must have the tokens and types of the tokenizers package, also if they are cut off. */
static void test_pairs(void)
{
    json d;
    bpe b;
    char folder[64], opened[64] = "";
    int lines = 0, shortened = 0;
    FILE *f = fopen(GOLDEN "pairs.jsonl", "rb");
    json_init(&d, "pairs.jsonl");
    memset(&b, 0, sizeof b);
    while (CHECK(f != NULL) && json_read_line(&d, f) > 0) {
        bpe_tokens t = { 0 };
        const char *texts[2];
        size_t sizes[2], second = 0, n = 0;
        uint32_t at = json_first(&d, json_find(&d, JSON_ROOT, "texts"));
        for (int i = 0; i < 2; i++, at = json_next(&d, at)) {
            texts[i] = json_text(&d, at);
            sizes[i] = json_size(&d, at);
        }
        snprintf(folder, sizeof folder, GOLDEN "%s",
                 json_text(&d, json_find(&d, JSON_ROOT, "tokenizer")));
        if (strcmp(folder, opened) != 0) {
            bpe_free(&b);
            CHECK_MSG(bpe_open(&b, folder) == 0, "%s", b.error);
            memcpy(opened, folder, sizeof opened);
        }
        const size_t most = (size_t)json_int(&d, JSON_ROOT, "most", 0);
        CHECK_MSG(bpe_encode_pair(&b, texts, sizes, BPE_SPECIALS, most, &t, &second) == 0, "%s",
                  t.error);
        uint32_t id = json_first(&d, json_find(&d, JSON_ROOT, "ids"));
        uint32_t type = json_first(&d, json_find(&d, JSON_ROOT, "types"));
        for (; id != 0; id = json_next(&d, id), type = json_next(&d, type), n++)
            CHECK_MSG(n < t.count && t.ids[n] == json_int_of(&d, id) &&
                          (n >= second) == json_int_of(&d, type),
                      "pairs.jsonl:%u: token %d", (unsigned)d.line, (int)n);
        CHECK_MSG(n == t.count, "pairs.jsonl:%u: %d tokens", (unsigned)d.line, (int)t.count);
        shortened += t.count == most;
        lines++;
        if (lines == 1)
            CHECK(bpe_encode_pair(&b, texts, sizes, 0, 1, &t, &second) == -1 && t.count == n &&
                  strstr(t.error, "expected no fewer") != NULL);
        bpe_tokens_free(&t);
    }
    CHECK(lines == 98 && shortened > 30);
    bpe_free(&b);
    json_free(&d);
    if (f != NULL)
        fclose(f);
}

static void check_refused(int status, bpe *b, const char *error)
{
    CHECK_MSG(status == -1 && strstr(b->error, error) != NULL, "expected \"%s\", got \"%s\"", error,
              b->error);
    CHECK(b->bytes == NULL && b->merges == NULL); /* the failed call has freed everything */
    bpe_free(b);
}

/* BERT's vocab.txt, with and without tokenizer_config.json, must give the tokens of its tokenizer.json. */
static void test_vocab(void)
{
    static const char *const configs[] = {
        NULL,
        "{\"tokenizer_class\": \"BertTokenizerFast\", \"do_lower_case\": true, \"strip_accents\": null,"
        " \"mask_token\": {\"content\": \"[MASK]\"}}",
        "{\"added_tokens_decoder\": {\"0\": {\"content\": \"[PAD]\", \"special\": true}, \"1\": {\"content\":"
        " \"[UNK]\", \"special\": true}, \"2\": {\"content\": \"[CLS]\", \"special\": true}, \"3\": {\"content\":"
        " \"[SEP]\", \"special\": true}, \"4\": {\"content\": \"[MASK]\", \"special\": true}}}",
    };
    static const char *const refused[][2] = {
        { "{\"tokenizer_class\": \"BertJapaneseTokenizer\"}",
          "tokenizer_class: expected the class of BERT, DistilBERT, ELECTRA, MobileBERT or MPNet, whose "
          "vocab.txt is read; for others, in Python, AutoTokenizer" },
        { "{\"tokenizer_class\": \"MPNetTokenizer\"}",
          "cls_token \"<s>\" is not in vocab.txt: name the token in tokenizer_config.json" },
        { "{\"do_lower_case\": 1}", "do_lower_case: expected true or false" },
        { "{\"added_tokens_decoder\": {\"0\": 1}}", "the key content (a string)" },
        { "{", "expected a key in quotes" },
    };
    bpe b, back;
    CHECK(bpe_open(&b, GOLDEN "bert") == 0);
    FILE *f = fopen(SCRATCH ".vocab", "wb");
    for (int32_t i = 0; i < b.count; i++)
        fprintf(f, "%.*s\r\n", (int)(b.name_start[i + 1] - b.name_start[i]),
                b.names + b.name_start[i]);
    fclose(f);
    bpe_free(&b);
    for (int i = 0; i < 3; i++) {
        if (configs[i] != NULL)
            put_file(SCRATCH, configs[i], strlen(configs[i]));
        CHECK_MSG(bpe_read_vocab(&back, SCRATCH ".vocab", configs[i] != NULL ? SCRATCH : NULL) == 0,
                  "%s", back.error);
        CHECK(check_cases(&back, NULL, GOLDEN "bert/cases.jsonl") > 150);
        bpe_free(&back);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        put_file(SCRATCH, refused[i][0], strlen(refused[i][0]));
        check_refused(bpe_read_vocab(&back, SCRATCH ".vocab", SCRATCH), &back, refused[i][1]);
    }
    put_file(SCRATCH, "a\n\xff\n[CLS]\n[SEP]\n[UNK]\n", 22);
    check_refused(bpe_read_vocab(&back, SCRATCH, NULL), &back, "expected UTF-8, found byte 0xff");
    check_refused(bpe_read_vocab(&back, "build/none", NULL), &back, "build/none: cannot open");
    put_file(SCRATCH, "[CLS]\n[SEP]\n[UNK]\na\nb\na\n", 24); /* an error names the line */
    check_refused(bpe_read_vocab(&back, SCRATCH, NULL), &back, ":6: token \"a\" occurs twice");
    put_file(SCRATCH, "[CLS]\n[SEP]\n[UNK]\n\0b\nq\n", 23); /* a zero byte does not end a line */
    CHECK(bpe_read_vocab(&back, SCRATCH, NULL) == 0 && back.count == 5);
    bpe_free(&back);
    remove(SCRATCH ".vocab");
}

/* Changed files of SentencePiece, and settings that are not known, must be refused; a file that is cut off must be
 * refused or have fewer tokens. */
static void test_spm(void)
{
    static const char *const configs[][2] = {
        { "{\"tokenizer_class\": \"XLMRobertaTokenizer\"}",
          "tokenizer_class: expected LlamaTokenizer or GemmaTokenizer, whose tokenizer.model is read; for others, in "
          "Python, AutoTokenizer" },
        { "{\"added_tokens_decoder\": {\"480\": {\"content\": \"<pad>\"}}}",
          "tokenizer_config.json adds token 480, but there are 480 tokens; in Python" },
        { "{\"add_bos_token\": 1}", "add_bos_token: expected true or false" },
        { "{", "expected a key in quotes" },
    };
    static const struct {
        const char *bytes;
        size_t size;
        const char *error;
    } files[] = {
        { "", 0, "it is not a SentencePiece model, or it is cut off" },
        { "\n", 1, "it is not a SentencePiece model, or it is cut off" },
        { "\n\3\n\1a\13", 6, "it is not a SentencePiece model, or it is cut off" },
        { "\n\3\n\1a\n\3\n\1a", 10, "tokens 0 and 1 are equal" },
        { "\n\3\n\1a\n\3\n\1b\22\3\300\2\5", 15, "unk_id 5: expected the id of a token" },
        { "\n\3\n\1a\22\2\30\3", 9, "model_type 3: expected 1 (Unigram) or 2 (BPE)" },
        { "\n\3\n\1a\22\3\300\1\1", 10, "treat_whitespace_as_suffix is not supported; in Python" },
        { "\n\3\n\1a\32\2\50\0", 9, "escape_whitespaces is off, which is not supported" },
        { "\n\3\n\1a\n\3\n\1b\32\3\22\1A", 15,
          "precompiled_charsmap: expected a map of SentencePiece" },
        { "\n\10\n\1a\25\0\0\200\177\n\3\n\1b", 15,
          "token 0: its score is not between -1e30 and 1e30" },
        { "\n\3\n\1\377\n\3\n\1b", 10, "expected UTF-8, found byte 0xff" },
        { "\n\3\n\1a", 5,
          "the token that begins or ends a text is missing: set add_bos_token or add_eos_token" },
    };
    bpe b;
    json d;
    size_t n = 0;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        put_file(SCRATCH, configs[i][0], strlen(configs[i][0]));
        check_refused(bpe_read_spm(&b, GOLDEN "spm/tokenizer.model", SCRATCH), &b, configs[i][1]);
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        put_file(SCRATCH, files[i].bytes, files[i].size);
        check_refused(bpe_read_spm(&b, SCRATCH, NULL), &b, files[i].error);
    }
    static const char config[] = "{\"tokenizer_class\": \"LlamaTokenizerFast\", "
                                 "\"add_bos_token\": false, \"add_eos_token\": true}";
    put_file(SCRATCH ".config", config, sizeof config - 1);
    CHECK_MSG(bpe_read_spm(&b, GOLDEN "spm/tokenizer.model", SCRATCH ".config") == 0, "%s",
              b.error);
    CHECK(b.prefix_count == 0 && b.suffix_count == 1 && b.suffix[0] == 2 && b.count == 480);
    bpe_free(&b);
    remove(SCRATCH ".config");
    const char *s = json_read_text(&d, GOLDEN "spm/tokenizer.model", &n);
    for (size_t cut = 0; cut < n; cut += 97) {
        put_file(SCRATCH, s, cut);
        const int status = bpe_read_spm(&b, SCRATCH, NULL);
        CHECK(status == 0 ? b.count < 480 : b.error[0] != 0);
        if (status == 0)
            bpe_free(&b);
    }
    json_free(&d);
}

/* With remove_extra_whitespaces, a run of spaces is one space, and takes linear time: with quadratic time, this test
 * would take minutes. */
static void test_space_run(void)
{
    enum { SPACES = 200000 };
    char *text = (char *)malloc(SPACES + 2);
    bpe b;
    bpe_tokens one = { 0 }, many = { 0 };
    CHECK_MSG(bpe_read_spm(&b, GOLDEN "spm_unigram/tokenizer.model", NULL) == 0, "%s", b.error);
    memset(text, ' ', SPACES + 2);
    text[0] = 'a', text[SPACES + 1] = 'b';
    CHECK(bpe_encode(&b, "a b", 3, 0, &one) == 0);
    CHECK(bpe_encode(&b, text, SPACES + 2, 0, &many) == 0 && many.count == one.count);
    CHECK(memcmp(one.ids, many.ids, one.count * sizeof *one.ids) == 0);
    bpe_tokens_free(&one);
    bpe_tokens_free(&many);
    bpe_free(&b);
    free(text);
}

/* Returns the end of the match from operation `op` on, by the definition. */
static const char *match_slowly(const bpe_regex *r, int op, const char *begin, const char *s,
                                const char *end)
{
    const bpe_op *o = &r->ops[op];
    const char *ends[16], *found = NULL;
    size_t n = 0, size;
    switch (o->kind) {
    case BPE_OP_MATCH: return s;
    case BPE_OP_JUMP: return match_slowly(r, o->to, begin, s, end);
    case BPE_OP_START: return s == begin ? match_slowly(r, op + 1, begin, s, end) : NULL;
    case BPE_OP_END: return s == end ? match_slowly(r, op + 1, begin, s, end) : NULL;
    case BPE_OP_LOOK:
        return (bpe_set_at(r, o->set, s, end) > 0) == (o->min > 0)
                   ? match_slowly(r, op + 1, begin, s, end)
                   : NULL;
    case BPE_OP_SPLIT:
        found = match_slowly(r, op + 1, begin, s, end);
        return found != NULL || o->to < 0 ? found : match_slowly(r, o->to, begin, s, end);
    default:
        for (ends[0] = s; n < o->max && (size = bpe_set_at(r, o->set, s, end)) > 0; s += size)
            ends[++n] = s + size;
        for (size_t k = n; found == NULL && k + 1 > o->min && k + 1 > (o->possessive ? n : 0); k--)
            found = match_slowly(r, op + 1, begin, ends[k], end);
        return found;
    }
}

/* Random expressions: all matches in random texts must be those by the definition. */
static void test_regex_random(void)
{
    static const char *const parts[] = { "a",        "b",           "[ab]",  "[^a]",
                                         "\xc3\xa4", "[a\xc3\xa4]", "(?!b)", "(?=a)" };
    static const char *const quantifiers[] = { "",      "",      "*",    "+",  "?", "{2}",
                                               "{0,2}", "{1,3}", "{2,}", "*+", "++" };
    static const char *const characters[] = { "a", "b", "a", "b", "\xc3\xa4" };
    uint32_t random = 1;
    for (int i = 0; i < 4000; i++) {
        char expression[256] = "", text[32] = "";
        const char *error = NULL, *match_end;
        int groups = 0;
        for (int k = 0; k < 7; k++) {
            const uint32_t x = (random = random * 1664525u + 1013904223u) >> 8;
            const char *part = parts[x % 8];
            if (x / 8 % 8 == 0 && groups < 2) {
                strcat(expression, "(");
                groups++;
            } else if (x / 8 % 8 == 1 && groups > 0 && expression[strlen(expression) - 1] != '(') {
                strcat(expression, x / 64 % 2 ? ")?" : ")");
                groups--;
            } else if (x / 8 % 8 == 2) {
                strcat(expression, "|");
            } else {
                strcat(expression, part);
                strcat(expression, part[0] == '(' ? "" : quantifiers[x / 64 % 11]);
            }
        }
        while (groups-- > 0)
            strcat(expression, ")");
        for (int k = 0; k < 10; k++)
            strcat(text, characters[((random = random * 1664525u + 1013904223u) >> 8) % 5]);
        bpe_regex *r = bpe_regex_new(expression, strlen(expression), &error);
        if (!CHECK_MSG(r != NULL, "%s: %s", expression, error))
            continue;
        const char *end = text + strlen(text);
        bpe_regex_forget(r);
        for (const char *s = text; s < end; s = match_end) {
            const char *match = bpe_regex_find(r, text, s, end, &match_end);
            for (; s < end; s++) {
                const char *want =
                    ((unsigned char)*s & 0xc0) == 0x80 ? NULL : match_slowly(r, 0, text, s, end);
                if (want == NULL || want == s)
                    continue;
                CHECK_MSG(match == s && match_end == want, "%s in %s: %d to %d, not %d to %d",
                          expression, text, (int)(match - text), (int)(match_end - text),
                          (int)(s - text), (int)(want - text));
                break;
            }
            CHECK_MSG(s < end || match == end, "%s in %s: a match at %d", expression, text,
                      (int)(match - text));
        }
        free(r);
    }
}

/* All matches in a long text together must take a number of steps in proportion to its length. */
static void test_regex_time(void)
{
    static const char *const expressions[] = { "a*a*b",
                                               "a*b*a*b*c",
                                               "a+a+a+a+b",
                                               "(a*c|a*d|a*a*c|a)",
                                               "[ab]*[ab]*a{2}a*c|b",
                                               "a*+c|a++b+c",
                                               "(a+b)?[ab]*a*c",
                                               "a{0,9}a{0,9}a{0,9}c",
                                               "[ab]{3,}a?b?a*b*(a|b)?c",
                                               "(a*|[ab]+)(b+|[ab]*)c",
                                               "a?b?a?b?a?b?a?b?a?b?a?b?a?b?c" };
    enum { LONG = 20000 };
    char *text = malloc(LONG);
    for (size_t i = 0; i < sizeof expressions / sizeof expressions[0]; i++)
        for (int period = 1; period < LONG; period *= 20) {
            const char *error = NULL, *s = text, *match_end;
            bpe_regex *r = bpe_regex_new(expressions[i], strlen(expressions[i]), &error);
            if (!CHECK_MSG(r != NULL, "%s: %s", expressions[i], error))
                continue;
            for (int k = 0; k < LONG; k++)
                text[k] = k / period % 2 || period == 1 ? 'a' : 'b';
            for (bpe_regex_forget(r); s < text + LONG; s = match_end)
                bpe_regex_find(r, text, s, text + LONG, &match_end);
            CHECK_MSG(r->steps < (size_t)(LONG * 20) * (size_t)r->op_count, "%s: %.0f steps",
                      expressions[i], (double)r->steps);
            free(r);
        }
    free(text);
}

/* A wrong tekken.json must be refused; one that lists special tokens has their names. */
static void test_tekken(void)
{
    static const char path[] = GOLDEN "tekken/tekken.json";
    static const char *const refused[][3] = {
        { "\"default_vocab_size\": 486", "\"default_vocab_size\": 30",
          "default_vocab_size 30, default_num_special" },
        { "\"default_vocab_size\": 486", "\"default_vocab_size\": 4860",
          "expected special tokens, and as many" },
        { "\"default_num_special_tokens\": 30", "\"default_num_special_tokens\": 0",
          "expected special tokens" },
        { "\"pattern\": \"", "\"pattern\": \"(?", "the regular expression \"(?[^" },
        { "\"rank\": 7,", "\"rank\": 8,", "rank: expected ranks from 0 on, in order" },
        { "\"AQ==\"", "\"*Q==\"", "token_bytes: expected 1 to 1024 bytes in base64" },
        { "\"AQ==\"", "\"\"", "token_bytes: expected 1 to 1024 bytes in base64" },
        { "\"AQ==\"", "\"AA==\"", "tokens 30 and 31 are equal" },
        { "\"token_bytes\": \"AQ==\"", "\"token\": \"AQ==\"",
          "an object with the key token_bytes (a string)" },
        { "\"vocab\"", "\"special_tokens\": [{\"rank\": 1, \"token_str\": \"<a>\"}], \"vocab\"",
          "rank: expected ranks from 0 on, in order" },
        { "\"vocab\"", "\"special_tokens\": [{\"rank\": 0}], \"vocab\"",
          "with the key token_str (a string)" },
    };
    bpe b;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        put_edited(path, refused[i][0], refused[i][1]);
        check_refused(bpe_read_tekken(&b, SCRATCH), &b, refused[i][2]);
    }
    put_edited(path, "\"vocab\"",
               "\"special_tokens\": [{\"rank\": 0, \"token_str\": \"<begin>\"}, {\"rank\": 1, "
               "\"token_str\": \"[END]\"}], \"vocab\"");
    CHECK_MSG(bpe_read_tekken(&b, SCRATCH) == 0 && b.count == 486, "%s", b.error);
    CHECK(bpe_find_added(&b, "[END]")->id == 1 && bpe_find_added(&b, "<SPECIAL_2>")->id == 2 &&
          bpe_find_added(&b, "<s>") == NULL && b.prefix_count == 0);
    bpe_free(&b);
    CHECK(bpe_read_tekken(&b, path) == 0 && bpe_find_added(&b, "[TOOL_CONTENT]")->id == 19 &&
          bpe_find_added(&b, "<SPECIAL_29>")->id == 29 && b.prefix_count == 1 && b.prefix[0] == 1);
    bpe_free(&b);
}

/* Each expression must be refused, with this reason. */
static void test_regex(void)
{
    static const char *const refused[][2] = {
        { "(a", "a ( without )" },
        { "a)", "a ) without (" },
        { "(?=", "(? of another kind than (?: (?i: (?! (?=" },
        { "(?=ab)", "(?! or (?= with more than one character" },
        { "(a)*", "a group that is repeated" },
        { "((((((((((a))))))))))", "groups within too many groups" },
        { "a{2", "a { that does not begin {n}, {n,} or {n,m}" },
        { "a{3,2}", "a { that does not begin" },
        { "a{12345}", "a number of more than 4 digits" },
        { "a+?", "two quantifiers in a row" },
        { "a{2}+", "two quantifiers in a row" },
        { "(a|b)(c|d)(e|f)(g|h)(i|j)(k|l)(m|n)(o|p)(q|r)",
          "a sequence with so many groups that a match could take too long" },
        { ".", "one of . ^ $ * + ? { in this place" },
        { "+", "one of . ^ $" },
        { "a$", "one of . ^ $" },
        { "[a", "a [ without ]" },
        { "[", "it ends too early" },
        { "a\\", "it ends too early" },
        { "[[:alpha:]]", "[ within [..]" },
        { "[b-a]", "a range from a larger to a smaller character" },
        { "\\w", "a backslash before a letter or digit other than r n t s S d p A z" },
        { "\\p{Han}", "a backslash before a letter" },
        { "(?i:\xc3\xa4)", "(?i: with other than single ASCII characters" },
        { "(?i:[a-c])", "(?i: with other than single ASCII characters" },
        { "\xff", "it is not UTF-8" },
    };
    const char *error = NULL, *match_end = NULL, *text = "xaab";
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        bpe_regex *r = bpe_regex_new(refused[i][0], strlen(refused[i][0]), &error);
        CHECK_MSG(r == NULL && error != NULL && strstr(error, refused[i][1]) == error, "%s: %s",
                  refused[i][0], error != NULL ? error : "");
        free(r);
    }
    bpe_regex *r = bpe_regex_new("a++a|a*b", 8, &error);
    CHECK(r != NULL && bpe_regex_match(r, text, text, text + 4) == NULL);
    CHECK(bpe_regex_find(r, text, text, text + 4, &match_end) == text + 1 && match_end == text + 4);
    CHECK(bpe_regex_find(r, text, text, text + 3, &match_end) == text + 3 && match_end == text + 3);
    free(r);
}

/* ---- words ----------------------------------------------------------------------------------- */
/* Merges a word by the definition: takes the lowest rank and the leftmost pair of that rank, until no pair can be
 * merged. */
static size_t merge_slowly(const bpe *b, const char *s, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = b->byte[(unsigned char)s[i]];
    for (;;) {
        const bpe_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const bpe_merge *m = bpe_merge_slot(b, ids[i], ids[i + 1]);
            if (m->pair != BPE_NO_PAIR && (best == NULL || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (best == NULL)
            return n;
        ids[at] = best->id;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
    }
}

static void test_words(void)
{
    enum { LONG = 1000000 };
    static const char *const alphabets[] = { "a", "the ", "aeinrst", "m\xd0\xbc\xd0\xb5",
                                             "' \n1s" };
    bpe b;
    bpe_tokens t = { NULL, 0, 0, "" };
    char word[64];
    int32_t slowly[64];
    uint32_t state = 7;
    CHECK(bpe_open(&b, "tests/golden/tokenizer") == 0);
    for (int k = 0; k < 6000; k++) {
        const char *alphabet = alphabets[k % 5];
        size_t n = 1 + (size_t)k % sizeof word;
        if (k % 100 == 0) { /* permutes the ranks of merges into an order that no training gives */
            for (uint32_t i = 0; i <= b.merge_mask; i++)
                b.merges[i].rank = b.merges[i].rank * 197 % 1009;
            memset(b.words, 0, BPE_CACHE * sizeof *b.words);
        }
        for (size_t i = 0; i < n; i++) {
            state = state * 1664525 + 1013904223;
            word[i] = alphabet[(state >> 16) % strlen(alphabet)];
        }
        if (k % 2) /* a word made of the texts of consecutive tokens */
            memcpy(word, b.bytes + b.start[257] + (state >> 16) % 1000, n);
        size_t count = merge_slowly(&b, word, n, slowly);
        for (int again = 0; again < 2;
             again++) { /* the second time, a short word comes from the cache */
            t.count = 0;
            CHECK(bpe_encode_word(&b, word, n, &t) == 0 && t.count == count);
            CHECK(memcmp(t.ids, slowly, count * sizeof *slowly) == 0);
        }
    }
    /* Words and runs of a million bytes: an algorithm with n * n steps would take minutes. */
    char *text = (char *)malloc(LONG);
    for (int k = 0; k < 4; k++) {
        static const char *const of[] = { "a", "th", " ", " \n" };
        size_t period = strlen(of[k]), size = 0;
        for (size_t i = 0; i < LONG; i++)
            text[i] = of[k][i % period];
        t.count = 0;
        CHECK(bpe_encode(&b, text, LONG, 1, &t) == 0);
        for (size_t i = 0; i < t.count; i++) {
            size_t n;
            bpe_bytes(&b, t.ids[i], &n);
            size += n;
        }
        CHECK(size == LONG);
    }
    bpe_free(&b);
    for (int k = 0; k < 21; k++) {
        static const char *const of[] = {
            "qwen2", "llama3", "llama2", "gemma", "xlmr", "t5", "bert"
        };
        static const char *const parts[] = { " ", "\xcc\x81\xcc\xa3", "a" };
        char path[64];
        snprintf(path, sizeof path, GOLDEN "%s", of[k % 7]);
        CHECK(bpe_open(&b, path) == 0);
        for (size_t i = 0; i < LONG; i++)
            text[i] = parts[k / 7][i % strlen(parts[k / 7])];
        t.count = 0;
        CHECK(bpe_encode(&b, text, LONG, 1, &t) == 0);
        CHECK((t.count > 0) ==
              (k != 4 && k != 5 && k != 6 && k != 13)); /* some drop spaces; BERT drops accents */
        bpe_free(&b);
    }
    free(text);
    bpe_tokens_free(&t);
}

/* ---- special tokens, and texts encoded in pieces ---------------------------------------------- */
static void encode(bpe *b, const char *text, int flags, bpe_tokens *t)
{
    CHECK(bpe_encode(b, text, strlen(text), flags, t) == 0);
}

static void check_same(const bpe_tokens *t, const bpe_tokens *u)
{
    CHECK_MSG(t->count == u->count && memcmp(t->ids, u->ids, t->count * sizeof *t->ids) == 0,
              "%d and %d tokens", (int)t->count, (int)u->count);
}

/* A chat that is encoded in pieces must have the tokens of the whole text. Names of special tokens within a piece's
 * text must be counted. */
static void test_pieces(void)
{
    bpe b;
    bpe_tokens t = { NULL, 0, 0, "" }, u = { NULL, 0, 0, "" };
    CHECK(bpe_open(&b, GOLDEN "mistral") == 0);
    encode(&b, "<s>[INST] the memory [/INST] is</s>", BPE_SPECIALS, &t);
    const char *const parts[] = { "<s>", "[INST]", " the memory ", "[/INST]", " is", "</s>" };
    for (int i = 0; i < 6; i++) {
        const bpe_added *special = bpe_find_added(&b, parts[i]);
        CHECK((special != NULL) == (i != 2 && i != 4) && (special == NULL || special->special));
        CHECK(special != NULL ||
              bpe_encode(&b, parts[i], strlen(parts[i]), BPE_NOT_FIRST, &u) == 0);
        if (special != NULL && bpe_reserve(&u, 1) == 0)
            u.ids[u.count++] = special->id;
    }
    check_same(&t, &u);
    CHECK(b.special_texts == 0 && t.ids[0] == 1 && t.ids[t.count - 1] == 2);

    /* Llama 2's tokenizer puts a space before the start of a text; decoding must remove it. */
    size_t size, count = t.count;
    t.count = u.count = 0;
    encode(&b, "the", 0, &t);
    encode(&b, " the", BPE_NOT_FIRST, &u);
    check_same(&t, &u);
    u.count = 0;
    encode(&b, "the", BPE_NOT_FIRST, &u);
    CHECK(u.count > 0 && u.ids[0] != t.ids[0]);
    CHECK(bpe_bytes(&b, t.ids[0], &size)[0] == ' ' && size > 1);
    CHECK(bpe_first_bytes(&b, t.ids[0], &size)[0] == 't' && size < 4);
    char *text = bpe_decode(&b, t.ids, t.count, &size);
    CHECK(size == 3 && strcmp(text, "the") == 0);
    free(text);
    count = t.count;
    t.count = 0;
    encode(&b, "the", BPE_TEMPLATE, &t);
    CHECK(t.count == count + 2 && t.ids[0] == 1 && t.ids[t.count - 1] == 2);
    t.count = 0;
    encode(&b, "", BPE_TEMPLATE, &t);
    CHECK(t.count == 2 && t.ids[0] == 1 && t.ids[1] == 2);

    /* Names of special tokens within a text must not become special tokens. */
    t.count = 0;
    encode(&b, "[INST] a </s></s", 0, &t);
    CHECK(b.special_texts == 2);
    for (size_t i = 0; i < t.count; i++)
        CHECK(t.ids[i] > 2 && t.ids[i] < 520);
    encode(&b, "[INST] a </s></s", BPE_SPECIALS, &t);
    CHECK(b.special_texts == 2);
    bpe_free(&b);
    CHECK(bpe_open(&b, GOLDEN "qwen2") == 0);
    t.count = 0;
    encode(&b, "<think>A\xcc\x8a\xe2\x84\xab", 0,
           &t); /* <think> is not special; both forms of U+00C5 are */
    CHECK(b.special_texts == 2 && t.ids[0] == 423 && bpe_find_added(&b, "\xc3\x85")->id == 129);
    CHECK(bpe_find_added(&b, "e\xcc\x81t")->id == 424 && bpe_find_added(&b, "\xc3\xa9t") == NULL);
    bpe_free(&b);
    bpe_tokens_free(&t);
    bpe_tokens_free(&u);
}

/* If no merge crosses a U+2581, the tokenizer splits a text there, and tokens must be those of the whole text. If a
 * merge crosses one, the tokenizer must not split. */
static void test_spaces(void)
{
    static const char *const parts[] = { " ",   "  ",  "\xe2\x96\x81", "the",
                                         " is", "ing", "\xff",         "\xe5\xad\xa6",
                                         "n",   "\n",  "<0x0A>",       "e" };
    static const char *const of[] = { "llama2", "mistral", "gemma" };
    uint32_t state = 3;
    int32_t count = 0;
    char path[64], text[256];
    for (int k = 2; k >= 0; k--) {
        bpe b, whole;
        bpe_tokens t = { NULL, 0, 0, "" }, u = { NULL, 0, 0, "" };
        snprintf(path, sizeof path, GOLDEN "%s", of[k]);
        CHECK(bpe_open(&b, path) == 0 && bpe_open(&whole, path) == 0);
        const bpe_step *p = &b.steps[b.step_count - 1];
        static const char run[] = "\xe2\x96\x81\xe2\x96\x81"
                                  "a\xe2\x96\x82\xe2\x96\x81";
        CHECK(p->kind == BPE_SPACES && bpe_piece_end(p, run, run + 13) == run + 10);
        whole.step_count--;
        for (int i = 0; i < 2000; i++) {
            text[0] = 0;
            for (int n = 0; n < 1 + i % 20; n++) {
                state = state * 1664525 + 1013904223;
                strcat(text, parts[(state >> 16) % 12]);
            }
            t.count = u.count = 0;
            encode(&b, text, 0, &t);
            encode(&whole, text, 0, &u);
            check_same(&t, &u);
        }
        bpe_tokens_free(&t);
        bpe_tokens_free(&u);
        count = b.count;
        bpe_free(&b);
        bpe_free(&whole);
    }
    bpe b;
    put_edited(GOLDEN "llama2/tokenizer.json", "\"merges\":[",
               "\"merges\":[[\"s\",\"\xe2\x96\x81\"],");
    snprintf(text, sizeof text, "\"vocab\":{\"s\xe2\x96\x81\":%d,", (int)count);
    put_edited(SCRATCH, "\"vocab\":{", text);
    CHECK_MSG(bpe_read_json(&b, SCRATCH) == 0, "%s", b.error);
    CHECK(b.step_count == 2 && b.steps[1].kind == BPE_REPLACE);
    bpe_free(&b);
}

/* ---- files that must be refused --------------------------------------------------------------- */
/* Each entry changes a file so that it must be refused: the family's folder, the replaced text, the new text, and the
 * expected error. */
static void test_family_refusals(void)
{
    static const char *const of[][4] = {
        { "llama3", "\"Regex\":\"(?i:'s", "\"Regex\":\"(?<!'s",
          "pre_tokenizer: the regular expression \"(?<!'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?"
          "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\" is not "
          "supported: it has (? of another kind than (?: (?i: (?! (?=; what is supported is in "
          "tokenizer_regex.h" },
        { "llama3", "\"Regex\":\"(?i:'s", "\"Regex\":\"\\\\A(?i:'s",
          "is not supported: it has \\A" },
        { "llama3", "\"Isolated\"", "\"Removed\"",
          "behavior: expected Isolated, or Removed with \"invert\", found a string Removed" },
        { "llama3", "\"invert\":false", "\"invert\":true", "invert: expected null, false or" },
        { "llama3", "\"behavior\":", "\"behaviour\":", "the key behavior (a string)" },
        { "llama3", "\"pattern\":{\"Regex\"", "\"pattern\":{\"Rgx\"",
          "the key String (a string), which is not there" },
        { "llama3", "\"pattern\":{", "\"pattern\":\"a\",\"p\":{", "pattern: expected an object" },
        { "llama3", "\"use_regex\":false}]}", "\"use_regex\":false},{\"type\":\"Digits\"}]}",
          "pre_tokenizer: expected ByteLevel to be the last" },
        { "llama3", "\"single\":[", "\"single\":[{\"SpecialToken\":{\"id\":\"<|x|>\"}},",
          "the key <|x|> (an object), which is not there" },
        { "llama3", "\"ids\":[420]", "\"ids\":[424]",
          "expected the id of a token, found a number 424" },
        { "llama3", "\"ids\":[420]", "\"ids\":[-1]", "expected the id of a token" },
        { "llama3", "\"ids\":[420]", "\"ids\":[\"a\"]", "expected a whole number, found a string" },
        { "llama3", "\"ids\":[420]", "\"ids\":[1,2,3,4,5,6,7,8,9]",
          "post_processor: more than 8 special tokens" },
        { "llama3", "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}", "{\"Sequence\":{\"id\":\"B\"}}",
          "id: expected one text, A, in the template \"single\", found a string B" },
        { "llama3", ",{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}", "",
          "post_processor: expected the text, {\"Sequence\": {\"id\": \"A\"}}, in \"single\"" },
        { "llama3", "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}", "{\"Sequence\":7}",
          "expected an object with the key id (a string)" },
        { "llama3", "\"processors\":[{\"type\":\"ByteLevel\"",
          "\"processors\":[{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}}]},{\"type\":"
          "\"ByteLevel\"",
          "post_processor: expected one template" },
        { "llama3", "\"processors\":[{", "\"processors\":[null,{",
          "post_processor: expected TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel or "
          "Sequence, found null" },
        { "smollm2", "\"individual_digits\":true", "\"individual_digits\":[]",
          "individual_digits: expected true or false" },
        { "smollm2", "\"byte_fallback\":false", "\"byte_fallback\":true",
          "byte 0xc0 has no token (\"\xc3\x80\"): expected all 256 in a byte-level vocabulary with "
          "byte_fallback" },
        { "smollm2", "\"unk_token\":null", "\"unk_token\":\"<?>\"",
          "unk_token: expected a token of the vocabulary, found a string <?>" },
        { "llama2", "\"prepend\":\"\xe2\x96\x81\"", "\"prepend\":1",
          "prepend: expected a string, found a number 1" },
        { "llama2", "\"prepend\":\"", "\"prepend\":\"01234567890123456789012345678",
          "prepend: expected a text of 0 to 31 bytes" },
        { "llama2", "\"String\":\" \"", "\"Regex\":\" +?\"",
          "normalizer: the regular expression \" +?\" is not supported: it has two quantifiers in a row" },
        { "llama2", "\"String\":\" \"", "\"String\":\"\"",
          "String: expected a text of 1 to 31 bytes, found a string" },
        { "llama2", "\"normalizers\":[", "\"normalizers\":[7,",
          "normalizer: expected NFC, NFD, Lowercase, Strip, Prepend, Replace, BertNormalizer, Precompiled or Sequence, found a "
          "number" },
        { "llama2", "\"unk_token\":\"<unk>\"", "\"unk_token\":\"<pad>\"",
          "unk_token: expected a token of the vocabulary, found a string <pad>" },
        { "llama2", "{\"type\":\"ByteFallback\"},", "{\"type\":\"WordPiece\"},",
          "decoder: expected the type Metaspace, or Replace, ByteFallback, Fuse or Strip in a Sequence" },
        { "llama2", "{\"type\":\"Fuse\"},", "",
          "decoder: expected the type Metaspace, or Replace, Byte" },
        { "llama2", "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},",
          "{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"},", "this order (with ByteLevel as" },
        { "llama2", "\"decoders\":[", "\"decoders\":7,\"d\":[", "decoders: expected an array" },
        { "llama2", "\"start\":1", "\"start\":2",
          "decoder: expected a Strip of at most one space at the start" },
        { "llama2", "\"stop\":0", "\"stop\":1", "decoder: expected a Strip of at most one" },
        { "llama2", "\"content\":\" \",\"start\"", "\"content\":\"a\",\"start\"",
          "decoder: expected a Strip of at most one" },
        { "mistral", "\"replacement\":\"\xe2\x96\x81\"", "\"replacement\":\"ab\"",
          "replacement: expected one character, found a string ab" },
        { "mistral", "\"replacement\":\"\xe2\x96\x81\"",
          "\"replacement\":\"" EIGHTY EIGHTY EIGHTY EIGHTY "\"",
          "replacement: expected a text of 1 to 31 bytes" },
        { "mistral", "\"replacement\":\"\xe2\x96\x81\"", "\"replacement\":\"\"",
          "replacement: expected a text of 1 to 31 bytes" },
        { "mistral", "\"prepend_scheme\":\"first\"", "\"prepend_scheme\":\"last\"",
          "prepend_scheme: expected always, first or never, found a string last" },
        { "mistral", "\"prepend_scheme\":\"first\"",
          "\"add_prefix_space\":false,\"prepend_scheme\":\"first\"",
          "add_prefix_space: expected true, or \"never\" as prepend_scheme, found false" },
        { "mistral", "\"normalizer\":null", "\"normalizer\":{\"type\":\"Strip\"}",
          "prepend_scheme: expected always or never, with an earlier pre_tokenizer and a normalizer, or with a "
          "normalizer that removes text, found a string first" },
        { "mistral", "\"split\":false", "\"split\":0", "split: expected true or false" },
        { "gemma", "\"MergedWithPrevious\"", "\"Contiguous\"",
          "behavior: expected Isolated, MergedWithPrevious or MergedWithNext, found a string "
          "Contiguous" },
        { "gemma",
          "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"",
          "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"<pad>\"},\"content\":\"\"},"
          "\"n\":{\"a\":\"",
          "added token \"<pad>\" is empty once normalized" },
        { "bert", "\"unk_token\":\"[UNK]\"", "\"unk_token\":\"[X]\"",
          "unk_token: expected a token of the vocabulary, found a string [X]" },
        { "bert", "\"unk_token\":\"[UNK]\"", "\"unk_token\":null", "unk_token: expected a string" },
        { "bert", "_word\":100", "_word\":-1", "max_input_chars_per_word: expected 0 or more" },
        { "bert", "\"prefix\":\"##\"", "\"prefix\":\"#\"",
          "prefix: expected the model's continuing_subword_prefix, found a string #" },
        { "bert", "\"decoder\":{\"type\":\"WordPiece\"", "\"decoder\":{\"type\":\"Fuse\"",
          "decoder: expected the type WordPiece, as the model is, found \"Fuse\"" },
        { "bert", "{\"type\":\"BertPreTokenizer\"}", "{\"type\":\"ByteLevel\"}",
          "pre_tokenizer: ByteLevel is expected only with the model BPE" },
        { "bert", "\"strip_accents\":null", "\"strip_accents\":7",
          "strip_accents: expected true or false" },
        { "cased", "\"Isolated\"", "\"Removed\"",
          "behavior: expected Isolated, found a string Removed" },
        { "cased", "\"sep\":[\"[SEP]\",3]", "\"sep\":[\"[SEP]\",300]",
          "expected the id of a token, found a number 300" },
        { "cased", "\"sep\":[\"[SEP]\",3]", "\"sep\":[\"[SEP]\"]",
          "expected a whole number, found nothing" },
        { "xlmr", "\"precompiled_charsmap\":\"", "\"precompiled_charsmap\":\"*",
          "precompiled_charsmap: expected a map of SentencePiece in base64" },
        { "xlmr", "\"precompiled_charsmap\":\"AA", "\"precompiled_charsmap\":\"//",
          "precompiled_charsmap: expected a map of SentencePiece in base64" },
        { "xlmr", "\"precompiled_charsmap\":\"", "\"precompiled_charsmap\":\"AAAAAP8=\",\"c\":\"",
          "precompiled_charsmap: expected texts in UTF-8 in a map of SentencePiece" },
        { "xlmr", "\"normalizer\":",
          "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":1},\"n\":",
          "precompiled_charsmap: expected a string, found a number 1" },
        { "xlmr", "\"unk_id\":3", "\"unk_id\":null", "unk_id: expected a number, found null" },
        { "xlmr", "\"unk_id\":3", "\"unk_id\":444",
          "unk_id: expected the id of a token of the vocabulary" },
        { "xlmr", "[\"<pad>\",0.0]", "[\"<s>\",0.0]", "token \"<s>\" occurs twice" },
        { "xlmr", "[\"<pad>\",0.0]", "[\"<pad>\",\"0\"]", "expected a number, found a string 0" },
        { "xlmr", "[\"<pad>\",0.0]", "[\"<pad>\",1e999]",
          "expected a score between -1e30 and 1e30" },
        { "xlmr", "[\"<pad>\",0.0]", "[\"<pad>\"]", "expected a token and its score" },
        { "xlmr", "\"vocab\":[", "\"vocab\":{},\"v\":[", "vocab: expected an array" },
        { "t5", "\"strip_left\":false", "\"strip_left\":true",
          "prepend_scheme: expected always or never, with an earlier pre_tokenizer and a normalizer" },
        { "t5", "\"decoder\":", "\"decoder\":{\"type\":\"Metaspace\"},\"d\":",
          "expected an object with the key replacement" },
        { "cased", "\"cls\":[", "\"cls\":7,\"c\":[", "cls: expected an array" },
    };
    char path[64], many[2048] = "\"normalizers\":[";
    bpe b;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        snprintf(path, sizeof path, GOLDEN "%s/tokenizer.json", of[i][0]);
        put_edited(path, of[i][1], of[i][2]);
        if (strstr(of[i][3], "once normalized")) /* for a token that matches after normalisation */
            put_edited(SCRATCH, "\"normalized\":false", "\"normalized\":true");
        check_refused(bpe_read_json(&b, SCRATCH), &b, of[i][3]);
    }
    for (int i = 0; i <= BPE_STEPS; i++)
        strcat(many, "{\"type\":\"NFC\"},");
    put_edited(GOLDEN "llama2/tokenizer.json", "\"normalizers\":[", many);
    check_refused(bpe_read_json(&b, SCRATCH), &b, "more than 16 normalizers and pre-tokenizers");
}

static void test_refusals(void)
{
    static const char *const of_json[][3] = {
        { "\"BPE\"", "\"WordLevel\"",
          ":1: model: expected the type BPE, WordPiece or Unigram, found \"WordLevel\"" },
        { "\"BPE\"", "\"WordPiece\"", "unk_token: expected a string, found null" },
        { "\"model\":{", "\"model\":7,\"m\":{", ":1: model: expected an object, found a number 7" },
        { "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}",
          "normalizer: expected the type NFC, NFD, Lowercase, Strip, Prepend, Replace, BertNormalizer, Precompiled or Sequence, "
          "found \"NFKC\"" },
        { "\"normalizer\":null",
          "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" WIDENS "," WIDENS "]}",
          "normalizer: these lengthen a text up to 900 times; at most 256 times is allowed" },
        { "\"normalizer\":null", "\"normalizer\":[]",
          "normalizer: expected NFC, NFD, Lowercase, Strip, Prepend, Replace, BertNormalizer, Precompiled or Sequence, found an "
          "array" },
        { "\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Whitespace\"",
          "pre_tokenizer: expected the type ByteLevel, Digits, Metaspace, Split, WhitespaceSplit, Punctuation, "
          "BertPreTokenizer or Sequence, found \"Whitespace\"" },
        { "\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Sequence\"",
          "expected an object with the key pretokenizers (an array), which is not there" },
        { "\"pre_tokenizer\"", "\"pre\"",
          "decoder: expected the type Metaspace, or Replace, ByteFallback, Fuse or Strip in a Sequence of this "
          "order (with ByteLevel as pre_tokenizer: ByteLevel), found \"ByteLevel\"" },
        { "\"add_prefix_space\":false", "\"add_prefix_space\":0",
          "add_prefix_space: expected true or false, found a number 0" },
        { "\"use_regex\":true", "\"use_regex\":\"\"", "use_regex: expected true or false" },
        { "\"post_processor\":{\"type\":\"ByteLevel\"", "\"post_processor\":{\"type\":\"T\"",
          "post_processor: expected the type TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel "
          "or Sequence, found \"T\"" },
        { "\"post_processor\":{\"type\":\"ByteLevel\"",
          "\"post_processor\":{\"type\":\"TemplateProcessing\"",
          "key single (an array), which is not there" },
        { "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":1",
          "decoder: expected the type ByteLevel, as the pre_tokenizer is, found \"\"" },
        { "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":null,\"d\":{\"type\":1",
          "decoder: expected an object, found null" },
        { "\"dropout\":null", "\"dropout\":0.1",
          "dropout: expected null, false or \"\": this option is not supported, found a number 0.1" },
        { "\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"",
          "continuing_subword_prefix: expected null, false or \"\": this option is not supported, found a "
          "string ##" },
        { "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix" },
        { "\"ignore_merges\":false", "\"ignore_merges\":1",
          "ignore_merges: expected true or false" },
        { "\"fuse_unk\":false", "\"fuse_unk\":{}", "fuse_unk: expected true or false" },
        { "\"added_tokens\":[", "\"added_tokens\":{},\"x\":[", "added_tokens: expected an array" },
        { "\"single_word\":false", "\"single_word\":true", "single_word: expected null, false or" },
        { "\"lstrip\":false", "\"lstrip\":3", "lstrip: expected true or false" },
        { "\"normalized\":false", "\"normalized\":\"no\"", "normalized: expected true or false" },
        { "\"id\":600", "\"id\":605", "id 605 occurs twice, or leaves a gap among 605 tokens" },
        { "\"id\":600", "\"id\":607", "\"<|user|>\" has id 607, which" },
        { "\"id\":600", "\"id\":601", "id 601 occurs twice" },
        { "\"id\":166", "\"id\":167", "has id 167, which is not its id in the vocabulary" },
        { "\"id\":600,\"content\":\"<|user|>\"", "\"id\":0,\"content\":\"<|endoftext|>\"",
          "occurs twice" },
        { "\"content\":\"<|user|>\",", "", "key content (a string), which is not there" },
        { "\"vocab\":{", "\"vocab\":[],\"v\":{", "vocab: expected an object, found an array" },
        { "\"!\":1", "\"!\":2", "id 2 occurs twice" },
        { "\"!\":1", "\"!\":-1",
          "!: expected ids without gaps, from 0 to the number of tokens, found a number -1" },
        { "\"!\":1", "\"!\":4294967297", "ids without gaps" },
        { "\"!\":1", "\"!\":1.5", "!: expected a whole number, found a number 1.5" },
        { "\"!\":1,\"\\\"\":2", "\"!\":1,\"!\":2", "token \"!\" occurs twice" },
        { "\"merges\":[", "\"merges\":{},\"m\":[", "merges: expected an array" },
        { "\"merges\":[", "\"merges\":[1,", "expected a merge: two tokens in an array" },
        { "\"merges\":[", "\"merges\":[\"ab\",", "found a string ab" },
        { "\"merges\":[", "\"merges\":[[\"a\",\"b\",\"c\"],", "expected a merge" },
        { "\"merges\":[", "\"merges\":[[\"a\",1],", "expected a merge" },
        { "\"merges\":[", "\"merges\":[\"q zqz\",",
          "a merge has \"zqz\", which is not in the vocabulary" },
        { "\"merges\":[", "\"merges\":[[\"zq\",\"z\"],",
          "a merge has \"zq\", which is not in the vocabulary" },
        { "\"merges\":[", "\"merges\":[[\"q\",\"z\"],",
          "a merge has \"qz\", which is not in the vocabulary" },
        { "\"merges\":[", "\"merges\":[[\"\",\"\"],",
          "a merge has \"\", which is not in the vocabulary" },
        { "\"merges\":[", "\"merges\":[[\"<|user|>\",\":\"],", "a merge has \"<|user|>\"" },
    };
    static const char *const of_merges[][3] = {
        { "\n", "\nab\n", ":2: expected two tokens with a space between them" },
        { "\n", "\na b c\n", ":2: expected two tokens with a space between them" },
        { "\n", "\n\n#version\nq z\r\n", ":4: a merge has \"qz\", which is not in the vocabulary" },
    };
    bpe b;
    for (size_t i = 0; i < sizeof of_json / sizeof of_json[0]; i++) {
        put_edited(GOLDEN "tokenizer.json", of_json[i][0], of_json[i][1]);
        check_refused(bpe_read_json(&b, SCRATCH), &b, of_json[i][2]);
    }
    for (size_t i = 0; i < sizeof of_merges / sizeof of_merges[0]; i++) {
        put_edited(GOLDEN "merges.txt", of_merges[i][0], of_merges[i][1]);
        check_refused(bpe_read_files(&b, GOLDEN "vocab.json", SCRATCH), &b, of_merges[i][2]);
    }
    put_edited(GOLDEN "merges.txt", "#version", "\xef\xbb\xbf#version");
    CHECK_MSG(bpe_read_files(&b, GOLDEN "vocab.json", SCRATCH) == 0, "%s", b.error);
    bpe_free(&b);
    put_edited(GOLDEN "merges.txt", "#version", "\xfe\xff#version");
    check_refused(bpe_read_files(&b, GOLDEN "vocab.json", SCRATCH), &b, "it is in UTF-16");
    put_file(SCRATCH, "[]", 2);
    check_refused(bpe_read_files(&b, SCRATCH, GOLDEN "merges.txt"), &b,
                  ":1: expected an object of tokens and their ids, found an array");
    check_refused(bpe_read_files(&b, GOLDEN "vocab.json", "build/none"), &b,
                  "build/none: cannot open");
    check_refused(bpe_read_files(&b, "build/none", GOLDEN "merges.txt"), &b,
                  "build/none: cannot open");
    check_refused(bpe_open(&b, "build"), &b,
                  "build: expected a directory with tokenizer.json, with ");

    /* A file that is cut off must be refused. */
    json d;
    size_t n = 0;
    const char *s = json_read_text(&d, GOLDEN "tokenizer.json", &n);
    for (size_t cut = 0; cut < n; cut += cut < 200 ? 1 : 211) {
        put_file(SCRATCH, s, cut);
        check_refused(bpe_read_json(&b, SCRATCH), &b, ":1: expected ");
    }
    json_free(&d);

    /* A directory in place of each file must be refused. An added token without text is ignored. */
    mkdir(SCRATCH "d", 0777);
    put_edited(GOLDEN "vocab.json", "{", "{ ");
    CHECK(rename(SCRATCH, SCRATCH "d/vocab.json") == 0);
    check_refused(bpe_open(&b, SCRATCH "d"), &b, "expected a directory with tokenizer.json, with ");
    put_edited(GOLDEN "merges.txt", "\n", "\n\n");
    CHECK(rename(SCRATCH, SCRATCH "d/merges.txt") == 0);
    CHECK_MSG(bpe_open(&b, SCRATCH "d") == 0 && b.count == 600, "%s", b.error);
    bpe_free(&b);
    remove(SCRATCH "d/vocab.json");
    remove(SCRATCH "d/merges.txt");
    put_file(SCRATCH "d/tekken.json", "{}", 2);
    check_refused(bpe_open(&b, SCRATCH "d"), &b,
                  "d/tekken.json:1: expected an object with the key config");
    put_file(SCRATCH "d/tokenizer.model", "\n", 1);
    check_refused(bpe_open(&b, SCRATCH "d"), &b,
                  "it is not a SentencePiece model, or it is cut off");
    remove(SCRATCH "d/tekken.json");
    remove(SCRATCH "d/tokenizer.model");
    rmdir(SCRATCH "d");
    put_edited(GOLDEN "tokenizer.json", "\"content\":\"<|user|>\"", "\"content\":\"\"");
    CHECK(bpe_read_json(&b, SCRATCH) == 0 && b.added_count[0] == 4 && b.added_count[1] == 2);
    bpe_free(&b);

    /* RoBERTa's vocab.json has other special tokens, which it does not name either. */
    static const char roberta[] =
        "{\"<s>\":0,\"<pad>\":1,\"</s>\":2,\"<unk>\":3,\"a\":4,\"<mask>\":5,\"\xc4\xa0\":6}";
    static const int32_t expected[] = { 0, 4, 5, 6, 4, 1, 2 };
    bpe_tokens t = { NULL, 0, 0, "" };
    put_file(SCRATCH, roberta, sizeof roberta - 1);
    put_file(SCRATCH ".merges", "#version: 0.2\n", 14);
    CHECK_MSG(bpe_read_files(&b, SCRATCH, SCRATCH ".merges") == 0, "%s", b.error);
    CHECK(bpe_encode(&b, "a <mask> a<pad>", 15, BPE_SPECIALS | BPE_TEMPLATE, &t) == 0 &&
          t.count == 7);
    CHECK(t.count == 7 && memcmp(t.ids, expected, sizeof expected) == 0);
    bpe_tokens_free(&t);
    bpe_free(&b);
    remove(SCRATCH ".merges");

    /* A template that adds no token is valid. */
    put_edited(
        GOLDEN "tokenizer.json", "\"post_processor\":{\"type\":\"ByteLevel\"",
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}}]");
    CHECK_MSG(bpe_read_json(&b, SCRATCH) == 0, "%s", b.error);
    bpe_free(&b);

    /* If a merge occurs twice, its later rank counts. */
    put_edited(GOLDEN "tokenizer.json", "\"merges\":[", "\"merges\":[[\"\xc4\xa0\",\"t\"],");
    CHECK(bpe_read_json(&b, SCRATCH) == 0);
    CHECK(bpe_merge_slot(&b, b.byte[' '], b.byte['t'])->rank == 2);
    bpe_free(&b);

    /* The oldest files have no type, and merges as text; they must load. */
    put_edited(GOLDEN "tokenizer.json", "\"type\":\"BPE\",", "");
    CHECK(bpe_read_json(&b, SCRATCH) == 0);
    bpe_free(&b);
    put_edited(GOLDEN "tokenizer.json", "\"merges\":[[\"i\",\"n\"]", "\"merges\":[\"i n\"");
    CHECK_MSG(bpe_read_json(&b, SCRATCH) == 0, "%s", b.error);
    bpe_free(&b);
}

/* ---- files of tokens ------------------------------------------------------------------------- */
static void check_bin(const char *bytes, size_t size, const char *error)
{
    bpe_tokens t = { NULL, 0, 0, "" };
    put_file(SCRATCH, bytes, size);
    int status = bpe_read_bin(SCRATCH, 300, &t);
    CHECK_MSG(status == -1 && strstr(t.error, error), "expected \"%s\", got \"%s\"", error,
              t.error);
    CHECK(t.count == 0);
    bpe_tokens_free(&t);
}

static void test_bin(void)
{
    int32_t ids[3] = { 1, 299, 65535 };
    bpe_tokens t = { ids, 3, 3, "" }, back = { NULL, 0, 0, "" };
    char bytes[1024 + 7] = { 0 };
    for (int header = 0; header < 2; header++) {
        CHECK(bpe_write_bin(SCRATCH, header, &t) == 0);
        FILE *f = fopen(SCRATCH, "rb");
        size_t n = fread(bytes, 1, sizeof bytes, f), at = header ? 1024 : 0;
        fclose(f);
        CHECK(n == at + 6 && memcmp(bytes + at, "\1\0\x2b\1\xff\xff", 6) == 0);
        CHECK(!header || memcmp(bytes, "\x88\xd8\x34\x01\1\0\0\0\3\0\0\0\0", 13) == 0);
        CHECK(bpe_read_bin(SCRATCH, 65536, &back) == 0 &&
              back.count == 3u * (unsigned)(header + 1));
        CHECK(memcmp(back.ids + back.count - 3, ids, sizeof ids) == 0);
        CHECK(bpe_read_bin(SCRATCH, 65535, &back) == -1 &&
              back.count == 3u * (unsigned)(header + 1));
        CHECK_MSG(strstr(back.error, "token 2 is 65535, but the vocabulary has 65535"), "%s",
                  back.error);
    }
    check_bin(bytes, 1024 + 5,
              "3 tokens, but the file has 1029 bytes: expected 1024 bytes and 2 per token");
    check_bin(bytes, 1024 + 7, "3 tokens, but the file has 1031 bytes");
    bytes[4] = 7;
    check_bin(bytes, 1024 + 6, "version 7: expected 1");
    check_bin("abc", 3, "3 bytes: expected an even number");
    CHECK(bpe_read_bin("build/none", 9, &back) == -1 &&
          strstr(back.error, "build/none: cannot open"));
    put_file(SCRATCH, "", 0);
    back.count = 0;
    CHECK(bpe_read_bin(SCRATCH, 1, &back) == 0 && back.count == 0);

    ids[1] = 65536;
    CHECK(bpe_write_bin(SCRATCH, 0, &t) == -1 &&
          strstr(t.error, "token 1 is 65536, which does not fit into 16 bits"));
    ids[1] = -1;
    CHECK(bpe_write_bin(SCRATCH, 0, &t) == -1 && strstr(t.error, "token 1 is -1"));
    ids[1] = 0;
    CHECK(bpe_write_bin("build/none/x", 0, &t) == -1 &&
          strstr(t.error, "build/none/x: cannot open it"));
    bpe_tokens_free(&back);

    /* The disk is full: the link at the path is removed, but not the file it points to. */
    ids[1] = 1;
    remove(SCRATCH);
    if (access("/dev/full", W_OK) == 0 && symlink("/dev/full", SCRATCH) == 0) {
        CHECK(bpe_write_bin(SCRATCH, 0, &t) == -1 && strstr(t.error, "cannot write it"));
        CHECK(access(SCRATCH, F_OK) != 0 && access("/dev/full", W_OK) == 0);
    }
}

/* ---- failing allocations --------------------------------------------------------------------- */
/* Reads the file of each family, then encodes and decodes a text, with allocation number 1, 2, .. failing. */
static void test_family_allocations(void)
{
    static const char text[] = "the e\xcc\x81t A\xcc\x8a\xcc\xa3\xff<|im_end|> </s>the   x";
    static const char *const of[] = { "llama3", "qwen2", "llama2", "mistral", "gemma",
                                      "bert",   "xlmr",  "t5",     "regex" };
    char path[64];
    for (int k = 0; k < 9; k++) {
        long n = 0, before = live_blocks;
        int stage = 0; /* stages that succeeded; 3 means all */
        snprintf(path, sizeof path, GOLDEN "%s/tokenizer.json", of[k]);
        while (stage < 3 && n < 1000) {
            bpe b;
            bpe_tokens t = { NULL, 0, 0, "" };
            size_t size;
            allocations = 0;
            fail_at = ++n;
            stage = bpe_read_json(&b, path) == 0;
            if (stage == 1) {
                stage += bpe_encode(&b, text, sizeof text - 1, 1, &t) == 0;
                char *back = stage == 2 ? bpe_decode(&b, t.ids, t.count, &size) : NULL;
                stage += back != NULL;
                free(back);
            }
            fail_at = 0;
            CHECK_MSG(stage > 0 || strstr(b.error, "out of memory for "), "%s", b.error);
            CHECK_MSG(stage != 1 || (t.count == 0 && strstr(t.error, "out of memory for ")), "%s",
                      t.error);
            bpe_tokens_free(&t);
            if (stage > 0)
                bpe_free(&b);
            CHECK_MSG(live_blocks == before, "%s, allocation %ld: %ld are not freed", of[k], n,
                      live_blocks - before);
        }
        CHECK(n > 20 && n < 1000);
    }
}

/* Runs every function that allocates, with allocation number 1, 2, .. failing, until no allocation fails. */
static void test_allocations(void)
{
    enum {
        JSON,
        FILES,
        VOCAB,
        SPM,
        SPM2,
        TEKKEN,
        BIN,
        TEXTS
    }; /* TEXTS and larger numbers encode a text */
    char texts[3][900] = { "the", "", "" };
    for (size_t i = 0; i + 8 <= sizeof texts[1]; i++) {
        texts[0][i + 3] = " the"[i % 4]; /* short words, which the tokenizer caches */
        texts[1][i] = 'a';               /* a single long word */
        texts[2][i] = i == 100 ? '\xff' : "a <|user|> b"[i % 12];
    }
    put_file(SCRATCH, texts[2], 300);
    put_file(SCRATCH ".vocab", "[UNK]\n[CLS]\n[SEP]\na\n", 20);
    static const char config[] = "{\"tokenizer_class\": \"LlamaTokenizerFast\", "
                                 "\"add_bos_token\": false, \"add_eos_token\": true}";
    put_file(SCRATCH ".config", config, sizeof config - 1);
    put_file(SCRATCH ".config", "{\"do_lower_case\": false}", 24);
    for (int what = 0; what < TEXTS + 3; what++) {
        const char *s = texts[what < TEXTS ? 0 : what - TEXTS];
        long n = 0, before = live_blocks;
        for (int done = 0; !done && n < 1000;) {
            bpe b;
            bpe_tokens t = { NULL, 0, 0, "" };
            memset(&b, 0, sizeof b);
            CHECK(what < TEXTS || bpe_open(&b, "tests/golden/tokenizer") == 0);
            allocations = 0;
            fail_at = ++n;
            int status = what == JSON ? bpe_read_json(&b, GOLDEN "tokenizer.json")
                         : what == FILES
                             ? bpe_read_files(&b, GOLDEN "vocab.json", GOLDEN "merges.txt")
                         : what == VOCAB ? bpe_read_vocab(&b, SCRATCH ".vocab", SCRATCH ".config")
                         : what == SPM || what == SPM2
                             ? bpe_read_spm(&b,
                                            what == SPM ? GOLDEN "spm/tokenizer.model"
                                                        : GOLDEN "spm_unigram/tokenizer.model",
                                            SCRATCH ".config")
                         : what == TEKKEN ? bpe_read_tekken(&b, GOLDEN "tekken/tekken.json")
                         : what == BIN    ? bpe_read_bin(SCRATCH, 65536, &t)
                                          : bpe_encode(&b, s, strlen(s), 1, &t);
            done = allocations < fail_at;
            fail_at = 0;
            const char *error = what < BIN ? b.error : t.error;
            CHECK((status == 0) == done && (done || t.count == 0));
            CHECK_MSG(done || strstr(error, "out of memory for "), "%d: \"%s\"", what, error);
            if (what >= TEXTS) { /* after a failure, the next call must succeed */
                size_t count = t.count;
                t.count = 0;
                CHECK(bpe_encode(&b, s, strlen(s), 1, &t) == 0);
                CHECK(t.count > 0 && (!done || t.count == count));
            }
            bpe_tokens_free(&t);
            if (done || what >= TEXTS)
                bpe_free(&b);
            CHECK_MSG(live_blocks == before, "%d, allocation %ld: %ld are not freed", what, n,
                      live_blocks - before);
        }
        CHECK(n > (what < BIN ? 10 : 2) && n < 1000);
    }
    remove(SCRATCH ".vocab");
    remove(SCRATCH ".config");
    test_family_allocations();
    json d;
    FILE *f = fopen(GOLDEN "cases.jsonl", "rb");
    for (int i = 1; i < 4 && f != NULL; i++) { /* allocation i fails while a line is read */
        rewind(f);
        json_init(&d, "cases");
        allocations = 0;
        fail_at = i;
        int status = json_read_line(&d, f);
        CHECK(i == 3 ? status == 1
                     : status == -1 && strstr(d.error, "cases:1: out of memory for "));
        fail_at = 0;
        json_free(&d);
    }
    if (f != NULL)
        fclose(f);
}

/* With folders as arguments (made by golden/make_tokenizer.py DIR N), tests only the cases in them. */
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        check_folder(argv[i]);
    if (argc > 1)
        return check_report("test_tokenizer");
    test_json_refuses();
    test_json_marks();
    test_json_writing();
    test_json_values();
    test_json_lines();
    test_golden();
    test_pairs();
    test_vocab();
    test_spm();
    test_space_run();
    test_tekken();
    test_regex();
    test_regex_random();
    test_regex_time();
    test_words();
    test_pieces();
    test_spaces();
    test_refusals();
    test_family_refusals();
    test_bin();
    test_allocations();
    CHECK(live_blocks == 0);
    remove(SCRATCH);
    return check_report("test_tokenizer");
}
