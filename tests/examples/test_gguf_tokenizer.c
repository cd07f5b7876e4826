/* test_gguf_tokenizer.c - tests examples/gguf_tokenizer.h: a tokenizer made from the keys of a GGUF file must give the
 * tokens of Hugging Face's tokenizers package (golden/make_gguf_tokenizer.py). Further tests: chat templates, refused
 * files and their error texts, every allocation failing, and damaged files. */
#include <math.h>
#include "check.h"
#include "counted.h"
#include "examples/gguf_tokenizer.h"
#include "tokens.h"

#define GOLDEN  "tests/golden/gguf_tokenizer/"
#define SCRATCH "build/test_gguf_tokenizer.tmp"

/* ---- files with changed keys ------------------------------------------------------------------- */
typedef struct {
    /* A change of the key `name`. If type is negative, the key is removed. A string key gets the value `text`. An array
     * gets items of type `of`; their number becomes `count` (-1 keeps the number), and item `at` (-2 for every item)
     * becomes `value` or `text`. Any other key gets `value`. */
    const char *name, *text;
    int type, of;
    int64_t count, at;
    double value;
} change;

typedef struct {
    unsigned char bytes[65536];
    size_t size;
} file_bytes;

static void put(file_bytes *f, const void *bytes, size_t n)
{
    CHECK(f->size + n <= sizeof f->bytes);
    memcpy(f->bytes + f->size, bytes, n);
    f->size += n;
}

static void put_number(file_bytes *f, uint64_t number, int bytes)
{
    for (; bytes > 0; bytes--, number >>= 8) {
        const unsigned char byte = (unsigned char)(number & 255);
        put(f, &byte, 1);
    }
}

static void put_value(file_bytes *f, int type, double value)
{
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    put_number(f, type == GGUF_F32 ? bits : (uint64_t)(int64_t)value, gguf_types[type].bytes);
}

/* Writes the array of key k with the change c. */
static void put_array(file_bytes *f, gguf *g, const gguf_key *k, const change *c)
{
    gguf_items all = gguf_array(g, k->name, k->item_type);
    const int of = c != NULL && c->of >= 0 ? c->of : (int)k->item_type;
    const uint64_t count = c != NULL && c->count >= 0 ? (uint64_t)c->count : all.count;
    put_number(f, (uint64_t)of, 4);
    put_number(f, count, 8);
    for (uint64_t i = 0; i < count && gguf_next(&all); i++) {
        const int here = c != NULL && (c->at == -2 || c->at == (int64_t)i);
        if (k->item_type == GGUF_STRING) {
            const char *text = here ? c->text : all.text;
            const size_t n = here ? strlen(c->text) : all.size;
            put_number(f, n, 8);
            put(f, text, n);
        } else {
            put_value(f, of,
                      here                       ? c->value
                      : k->item_type == GGUF_F32 ? all.real
                                                 : (double)all.integer);
        }
    }
}

/* Writes a copy of the file at `path`, with n changed keys, to SCRATCH. */
static void put_changed(const char *path, const change *changes, int n)
{
    static file_bytes f;
    gguf g;
    f.size = 0;
    CHECK(gguf_open(&g, path) == 0);
    put(&f, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16);
    put_number(&f, 0, 8);
    uint64_t keys = 0;
    for (size_t i = 0; i < g.key_count + (size_t)n; i++) {
        const gguf_key *k = i < g.key_count ? &g.keys[i] : NULL;
        const change *c = k == NULL ? &changes[i - g.key_count] : NULL;
        const char *name = k != NULL ? k->name : c->name;
        for (int j = 0; j < n && k != NULL; j++)
            c = strcmp(changes[j].name, k->name) == 0 ? &changes[j] : c;
        const int type = c != NULL ? c->type : (int)k->type;
        if (type < 0 || (k == NULL && gguf_find(&g, name) != NULL))
            continue; /* the key is removed, or is already written */
        put_number(&f, strlen(name), 8);
        put(&f, name, strlen(name));
        put_number(&f, (uint64_t)type, 4);
        if (type == GGUF_STRING) {
            const char *text = c != NULL ? c->text : (const char *)k->value;
            put_number(&f, strlen(text), 8);
            put(&f, text, strlen(text));
        } else if (type == GGUF_ARRAY) {
            put_array(&f, &g, k, c);
        } else {
            double value = c != NULL ? c->value : 0;
            int64_t whole = 0;
            if (c == NULL)
                gguf_decode(k->type, k->value, &whole, &value);
            put_value(&f, type, value);
        }
        keys++;
    }
    f.bytes[16] = (unsigned char)keys;
    put_file(SCRATCH, f.bytes, f.size);
    gguf_close(&g);
}

#define DROP(name)                                                                                 \
    {                                                                                              \
        "tokenizer." name, NULL, -1, -1, -1, -1, 0                                                 \
    }
#define TEXT(name, text)                                                                           \
    {                                                                                              \
        "tokenizer." name, text, GGUF_STRING, -1, -1, -1, 0                                        \
    }
#define NUMBER(name, value)                                                                        \
    {                                                                                              \
        "tokenizer." name, NULL, GGUF_U32, -1, -1, -1, value                                       \
    }
#define BOOL(name, value)                                                                          \
    {                                                                                              \
        "tokenizer." name, NULL, GGUF_BOOL, -1, -1, -1, value                                      \
    }
#define ITEM(name, at, x)                                                                          \
    {                                                                                              \
        "tokenizer." name, NULL, GGUF_ARRAY, -1, -1, at, x                                         \
    }
#define WORD(name, at, text)                                                                       \
    {                                                                                              \
        "tokenizer." name, text, GGUF_ARRAY, -1, -1, at, 0                                         \
    }
#define FEWER(name, count)                                                                         \
    {                                                                                              \
        "tokenizer." name, NULL, GGUF_ARRAY, -1, count, -1, 0                                      \
    }

static void open_changed(gguf *g, const char *path, const change *changes, int n)
{
    put_changed(path, changes, n);
    CHECK_MSG(gguf_open(g, SCRATCH) == 0, "%s", g->error);
}

/* ---- tokens ---------------------------------------------------------------------------------- */
/* Returns the value of the line's key "KIND KEY", or "KEY" if `kind` is empty; 0 if the line lacks that key. */
static uint32_t expected(json *d, const char *kind, const char *key)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", kind, *kind != 0 ? " " : "", key);
    return json_find(d, JSON_ROOT, name);
}

static int check_cases(bpe *b, const char *path, const char *kind)
{
    json d;
    int lines = 0;
    FILE *f = fopen(path, "rb");
    CHECK_MSG(f != NULL, "%s", path);
    json_init(&d, path);
    for (; f != NULL && json_read_line(&d, f) == 1; lines++) {
        uint32_t text = json_find(&d, JSON_ROOT, "text"), hex = json_find(&d, JSON_ROOT, "hex");
        uint32_t ids = expected(&d, kind, "ids"), plain = expected(&d, kind, "plain");
        uint32_t whole = expected(&d, kind, "template");
        if (json_find(&d, JSON_ROOT, "decode") != 0) {
            if (*kind == 0)
                check_decoded(&d, b);
            continue;
        }
        char *s = d.text + d.nodes[text ? text : hex].at;
        size_t n = text ? json_size(&d, text) : from_hex(s);
        ids = ids ? ids : json_find(&d, JSON_ROOT, "ids");
        plain = plain ? plain : json_find(&d, JSON_ROOT, "ids");
        whole =
            /* short texts have an entry "template" only where it differs from "ids" */
            whole == 0 && n < 20 ? json_find(&d, JSON_ROOT, "ids") : whole;
        check_ids(&d, ids, b, s, n, BPE_SPECIALS);
        check_ids(&d, plain, b, s, n, 0);
        if (whole != 0)
            check_ids(&d, whole, b, s, n, BPE_SPECIALS | BPE_TEMPLATE);
    }
    CHECK_MSG(d.error[0] == 0, "%s", d.error);
    json_free(&d);
    if (f != NULL)
        fclose(f);
    return lines;
}

static void check_kind(const char *path, const char *cases, const char *kind, const change *c,
                       int n)
{
    gguf g;
    bpe b;
    open_changed(&g, path, c, n);
    CHECK_MSG(gguf_tokenizer(&g, &b) == 0, "%s", g.error);
    gguf_close(&g);
    CHECK(b.error[0] != 0 || b.count == (strstr(path, "spm")    ? 481
                                         : strstr(path, "bert") ? 400
                                         : strstr(path, "t5")   ? 445
                                                                : 404));
    CHECK_MSG(b.error[0] != 0 || check_cases(&b, cases, kind) > 20, "%s", cases);
    bpe_free(&b);
}

static void test_kinds(void)
{
    static const struct {
        const char *name;
        change c[4];
        int n;
    } bpes[] = {
        { "", { DROP("none") }, 1 },
        { "", { TEXT("ggml.pre", "llama-v3"), DROP("ggml.add_bos_token") }, 2 },
        { "", { TEXT("ggml.pre", "smaug-bpe") }, 1 },
        { "gpt-2", { TEXT("ggml.pre", "gpt-2"), BOOL("ggml.add_eos_token", 1) }, 2 },
        { "gpt-2",
          { DROP("ggml.pre"),
            BOOL("ggml.add_eos_token", 1),
            { "general.architecture", "gpt2", GGUF_STRING, -1, -1, -1, 0 } },
          3 },
        { "qwen2", { TEXT("ggml.pre", "qwen2"), DROP("ggml.add_bos_token") }, 2 },
        { "qwen2", { TEXT("ggml.pre", "deepseek-r1-qwen"), DROP("ggml.add_bos_token") }, 2 },
        { "qwen35", { TEXT("ggml.pre", "qwen35"), DROP("ggml.add_bos_token") }, 2 },
        { "tekken", { TEXT("ggml.pre", "tekken"), DROP("ggml.add_bos_token") }, 2 },
        { "gpt-4o", { TEXT("ggml.pre", "gpt-4o"), DROP("ggml.add_bos_token") }, 2 },
        { "gpt-4o", { TEXT("ggml.pre", "llama4"), DROP("ggml.add_bos_token") }, 2 },
        { "smollm", { TEXT("ggml.pre", "refact"), BOOL("ggml.add_bos_token", 0) }, 2 },
        { "smollm", { TEXT("ggml.pre", "smollm"), BOOL("ggml.add_bos_token", 0) }, 2 },
    };
    static const change retype = ITEM("ggml.token_type", 3, BPE_TOKEN_USER);
    static const change filler =
        ITEM("ggml.token_type", 482, BPE_TOKEN_USER); /* token 482, whose text is [PAD482] */
    const change spms[][3] = {
        { filler, DROP("none"), DROP("none") },
        { retype, DROP("ggml.add_space_prefix"), DROP("ggml.add_bos_token") },
        { BOOL("ggml.add_space_prefix", 0), BOOL("ggml.add_eos_token", 1), DROP("none") }
    };
    static const char *const names[] = { "", "prepend", "never" };
    for (size_t i = 0; i < sizeof bpes / sizeof bpes[0]; i++)
        check_kind(GOLDEN "bpe.gguf", GOLDEN "bpe.jsonl", bpes[i].name, bpes[i].c, bpes[i].n);
    for (size_t i = 0; i < 3; i++)
        check_kind(GOLDEN "spm.gguf", GOLDEN "spm.jsonl", names[i], spms[i], 3);
    const change none = DROP("none");
    const change cased[] = { DROP("ggml.bos_token_id"), NUMBER("ggml.cls_token_id", 2),
                             BOOL("ggml.normalizer.lowercase", 1) };
    check_kind(GOLDEN "bert.gguf", GOLDEN "bert.jsonl", "", &none, 1);
    check_kind(GOLDEN "bert.gguf", GOLDEN "bert.jsonl", "", cased, 3);
    check_kind(GOLDEN "t5.gguf", GOLDEN "t5.jsonl", "", &none, 1);
}

/* Some converters have no scores of tokens and set all of them to one value. Then the ids decide which pair is merged.
 * For this tokenizer, whose scores fall with the ids, the tokens must stay equal. */
static void test_unscored(void)
{
    static const char text[] = "intaoi ain, plain; memory";
    const change same = ITEM("ggml.scores", -2, -1000);
    bpe b[2];
    bpe_tokens t[2] = { { NULL, 0, 0, "" }, { NULL, 0, 0, "" } };
    put_changed(GOLDEN "spm.gguf", &same, 1);
    CHECK(gguf_open_tokenizer(&b[0], GOLDEN "spm.gguf") == 0);
    CHECK(gguf_open_tokenizer(&b[1], SCRATCH) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(bpe_encode(&b[i], text, sizeof text - 1, 0, &t[i]) == 0);
    CHECK(t[0].count == t[1].count && t[0].count > 5 &&
          memcmp(t[0].ids, t[1].ids, t[0].count * sizeof *t[0].ids) == 0);
    for (int i = 0; i < 2; i++) {
        bpe_tokens_free(&t[i]);
        bpe_free(&b[i]);
    }
}

/* The name of a special token within a text must not give the special token, neither by merges nor as a whole word. */
static void test_plain(void)
{
    static const struct {
        const char *path, *text;
        change c;
        int32_t id;
    } tries[] = { { GOLDEN "bpe.gguf", "zq", WORD("ggml.tokens", 401, "zq"), 401 },
                  { GOLDEN "spm.gguf", "xanxan", ITEM("ggml.token_type", 390, 3), 390 } };
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        bpe b;
        bpe_tokens t = { NULL, 0, 0, "" };
        put_changed(tries[i].path, &tries[i].c, 1);
        CHECK_MSG(gguf_open_tokenizer(&b, SCRATCH) == 0, "%s", b.error);
        CHECK(bpe_encode(&b, tries[i].text, strlen(tries[i].text), 0, &t) == 0 && t.count > 1);
        for (size_t k = 0; k < t.count; k++)
            CHECK(t.ids[k] != tries[i].id);
        t.count = 0;
        CHECK(bpe_encode(&b, tries[i].text, strlen(tries[i].text), BPE_SPECIALS, &t) == 0);
        int found = 0;
        for (size_t k = 0; k < t.count; k++)
            found += t.ids[k] == tries[i].id;
        CHECK(found > 0);
        bpe_tokens_free(&t);
        bpe_free(&b);
    }
}

/* ---- chats ----------------------------------------------------------------------------------- */
static void test_chat(void)
{
    static const char template[] = /* the chatml template, as in the tests of chat.h */
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\n' }}{% endif %}";
    const change changes[] = { TEXT("chat_template", template) };
    const change other[] = { TEXT("chat_template", "{% include 'x' %}") };
    gguf g;
    chat c;
    open_changed(&g, GOLDEN "spm.gguf", changes, 1);
    CHECK_MSG(gguf_chat(&g, &c, NULL) == 0 && strcmp(c.name, "model") == 0, "%s", c.error);
    CHECK(c.problem[0] == 0);
    CHECK(strcmp(c.source, "tokenizer.chat_template") == 0);
    CHECK(strcmp(c.bos_eos[0], "<s>") == 0 && strcmp(c.bos_eos[1], "</s>") == 0);
    chat_free(&c);
    CHECK(gguf_chat(&g, &c, "gemma") == 0 && strcmp(c.name, "gemma") == 0);
    chat_free(&c);
    CHECK(gguf_chat(&g, &c, "gemini") == -1 && strstr(c.error, "gemini: allowed is chatml,"));
    CHECK(strstr(g.error, "gemini: allowed is chatml,") != NULL);
    chat_free(&c);
    gguf_close(&g);
    open_changed(&g, GOLDEN "bpe.gguf", other, 1);
    CHECK(gguf_chat(&g, &c, NULL) == 0 && c.name[0] == 0 && c.source[0] != 0 && c.problem[0] != 0);
    CHECK(strcmp(c.bos_eos[0], "<|begin|>") == 0 && strcmp(c.bos_eos[1], "<|end|>") == 0);
    chat_free(&c);
    gguf_close(&g);
    open_changed(&g, GOLDEN "bpe.gguf", NULL, 0);
    CHECK(gguf_chat(&g, &c, NULL) == 0 && c.name[0] == 0 && c.source[0] == 0);
    gguf_close(&g);
}

/* Reads the values that a model's folder would have in its config files. Other file names must be refused. */
static void test_config(void)
{
    static const char config[] =
        "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
        "  \"clean_up_tokenization_spaces\": false,\n  \"bos_token\": \"<s>\",\n"
        "  \"eos_token\": \"</s>\",\n  \"unk_token\": \"<unk>\",\n"
        "  \"chat_template\": \"{{ '\\u000a\\\"\\\\' }}\"\n}\n";
    const change template = TEXT("chat_template", "{{ '\n\"\\' }}");
    gguf g;
    bpe b;
    chat c;
    size_t size = 0;
    open_changed(&g, GOLDEN "spm.gguf", &template, 1);
    char *text = gguf_tokenizer_config(&g, &size);
    CHECK_MSG(size == sizeof config - 1 && text != NULL && strcmp(text, config) == 0, "%s", text);
    free(text);
    gguf_close(&g);
    CHECK(gguf_open_tokenizer(&b, SCRATCH) == 0 && b.count == 481);
    bpe_free(&b);
    CHECK(gguf_open_chat(&c, SCRATCH, "gemma") == 0 && strcmp(c.name, "gemma") == 0);
    chat_free(&c);
    CHECK(gguf_open_tokenizer(&b, "build/none.gguf") == -1 && strstr(b.error, "cannot open it"));
    CHECK(gguf_open_chat(&c, "build/none.gguf", NULL) == -1 && strstr(c.error, "cannot open it"));
    CHECK(gguf_open_chat(&c, SCRATCH, "x") == -1 && strstr(c.error, "x: allowed is chatml"));
    chat_free(&c);
}

/* ---- files that must be refused --------------------------------------------------------------- */
static void check_refused(const char *path, const change *c, int n, const char *error)
{
    gguf g;
    bpe b;
    open_changed(&g, path, c, n);
    const int status = gguf_tokenizer(&g, &b);
    CHECK_MSG(status == -1 && strstr(g.error, error) != NULL &&
                  strstr(g.error, SCRATCH ": ") == g.error && strcmp(g.error, b.error) == 0,
              "expected \"%s\", got \"%s\"", error, g.error);
    gguf_close(&g);
    if (status == 0)
        bpe_free(&b);
}

static void test_refusals(void)
{
    static const char byte[] = "\xc3";
    const struct {
        change c;
        const char *error;
    } bpes[] = {
        { DROP("ggml.model"), "key tokenizer.ggml.model is missing: the file has no tokenizer" },
        { NUMBER("ggml.model", 1), "key tokenizer.ggml.model: string expected, found u32" },
        { TEXT("ggml.model", "plamo2"),
          "is \"plamo2\", PLaMo 2's own; supported are gpt2 (byte-level BPE)" },
        { TEXT("ggml.model", "none"), "is \"none\": the file has no tokenizer; supported are" },
        { TEXT("ggml.model", "gpt3"), "is \"gpt3\"; supported are" },
        { TEXT("ggml.pre", "bloom"),
          "key tokenizer.ggml.pre is \"bloom\": how its text is split is not supported; supported are "
          "gpt-2, olmo, llama-bpe, smaug-bpe, dbrx, glm4, qwen2, qwen35, tekken, gpt-4o, smollm" },
        { TEXT("ggml.pre", "default"), "is \"default\": how its text is split is not stored" },
        { DROP("ggml.pre"), "key tokenizer.ggml.pre is missing: how its text is split is not" },
        { DROP("ggml.tokens"), "key tokenizer.ggml.tokens is missing or empty" },
        { FEWER("ggml.tokens", 0), "key tokenizer.ggml.tokens is missing or empty" },
        { TEXT("ggml.tokens", "a"),
          "tokenizer.ggml.tokens: an array of strings expected, found s" },
        { FEWER("ggml.tokens", 9), "key tokenizer.ggml.token_type: 406 types for 9 tokens" },
        { FEWER("ggml.token_type", 9), "key tokenizer.ggml.token_type: 9 types for 406 tokens" },
        { FEWER("ggml.token_type", 0), "key tokenizer.ggml.token_type: 0 types for 406 tokens" },
        { WORD("ggml.tokens", 300, byte), "the text of token 300 is not valid UTF-8" },
        { WORD("ggml.tokens", 300, "!"), "are both \"!\"" },
        { ITEM("ggml.token_type", 1, 7), "token 1, \"!\": type 7; expected 1 to 6" },
        { ITEM("ggml.token_type", 1, -1), "token 1, \"!\": type -1; expected 1 to 6" },
        { ITEM("ggml.token_type", 1, 6), "token 1, \"!\", has the type byte" },
        { DROP("ggml.merges"), "key tokenizer.ggml.merges is missing" },
        { WORD("ggml.merges", 7, "ab"), "merge 7, \"ab\": two tokens and a space between them" },
        { WORD("ggml.merges", 7, "a "), "merge 7, \"a \": two tokens" },
        { WORD("ggml.merges", 7, " a"), "merge 7, \" a\": two tokens" },
        { WORD("ggml.merges", 7, ""), "merge 7, \"\": two tokens" },
        { WORD("ggml.merges", 7, "a b c"), "merge 7, \"a b c\": two tokens" },
        { WORD("ggml.merges", 7, "qqq a"), "merge 7 has \"qqq\", which is not a token" },
        { WORD("ggml.merges", 7, "a qqq"), "merge 7 has \"qqq\", which is not a token" },
        { WORD("ggml.merges", 7, "! $"), "merge 7 has \"!$\", which is not a token" },
        { NUMBER("ggml.bos_token_id", 407),
          "key tokenizer.ggml.bos_token_id is 407: the ids of tokens are 0 to 405" },
        { NUMBER("ggml.eos_token_id", 4294967295.0),
          "key tokenizer.ggml.eos_token_id is 429496729" },
        { NUMBER("ggml.eot_token_id", 500), "key tokenizer.ggml.eot_token_id is 500" },
        { NUMBER("ggml.eom_token_id", 500), "key tokenizer.ggml.eom_token_id is 500" },
        { NUMBER("ggml.padding_token_id", 500), "key tokenizer.ggml.padding_token_id is 500" },
        { NUMBER("ggml.bos_token_id", 405), "tokens from 404 on are unused, but one of them" },
        { TEXT("ggml.eos_token_id", "2"),
          "ggml.eos_token_id: a whole number expected, found string" },
        { DROP("ggml.bos_token_id"),
          "a text begins with the token of key tokenizer.ggml.bos_token_id, which is" },
        { NUMBER("ggml.add_bos_token", 1), "key tokenizer.ggml.add_bos_token: bool expected" },
    };
    static char longest[BPE_TOKEN_LONGEST + 2];
    memset(longest, 'e', sizeof longest - 1);
    const struct {
        change c;
        const char *error;
    } spms[] = {
        { DROP("ggml.scores"), "key tokenizer.ggml.scores: 0 scores for 483 tokens" },
        { FEWER("ggml.scores", 482), "key tokenizer.ggml.scores: 482 scores for 483 tokens" },
        { ITEM("ggml.scores", 400, (double)NAN), "a score of nan" },
        { ITEM("ggml.scores", 400, (double)INFINITY), "a score of inf" },
        { NUMBER("ggml.unknown_token_id", 483), "key tokenizer.ggml.unknown_token_id is 483" },
        { WORD("ggml.tokens", 400, longest),
          "token 400 has 1025 bytes: at most 1024 are expected" },
        { NUMBER("ggml.add_space_prefix", 1), "add_space_prefix: bool expected, found u32" },
    };
    for (size_t i = 0; i < sizeof bpes / sizeof bpes[0]; i++)
        check_refused(GOLDEN "bpe.gguf", &bpes[i].c, 1, bpes[i].error);
    for (size_t i = 0; i < sizeof spms / sizeof spms[0]; i++)
        check_refused(GOLDEN "spm.gguf", &spms[i].c, 1, spms[i].error);
    const change ends[] = { DROP("ggml.eos_token_id"), BOOL("ggml.add_eos_token", 1) };
    check_refused(GOLDEN "bpe.gguf", ends, 2,
                  "a text ends with the token of key tokenizer.ggml.eos_token_id");
}

/* ---- failing allocations, damaged files ------------------------------------------------------ */
static void test_allocations(void)
{
    static const char *const paths[] = { GOLDEN "bpe.gguf", GOLDEN "spm.gguf", GOLDEN "bert.gguf",
                                         GOLDEN "t5.gguf" };
    for (int k = 0; k < 4; k++) {
        const long before = live_blocks;
        long n = 0;
        for (int done = 0; !done && n < 1000;) {
            gguf g;
            bpe b;
            CHECK(gguf_open(&g, paths[k]) == 0);
            allocations = 0;
            fail_at = ++n;
            const int status = gguf_tokenizer(&g, &b);
            done = allocations < fail_at;
            fail_at = 0;
            CHECK((status == 0) == done);
            CHECK_MSG(done || strstr(g.error, "out of memory for "), "%s", g.error);
            gguf_close(&g);
            if (status == 0)
                bpe_free(&b);
            CHECK_MSG(live_blocks == before, "%s, allocation %ld: %ld are not freed", paths[k], n,
                      live_blocks - before);
        }
        CHECK(n > 15 && n < 1000);
    }
}

static uint32_t seed = 1;
static uint32_t some(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

/* Changes random bytes of a file. The result must be a working tokenizer or an error. The error text may name keys, but
 * must not quote the JSON text that the library makes from the keys. */
static void test_damage(int rounds)
{
    static const char *const paths[] = { GOLDEN "bpe.gguf", GOLDEN "spm.gguf", GOLDEN "bert.gguf",
                                         GOLDEN "t5.gguf" };
    static const unsigned char favourites[] = { 0, 1, 2, 3, 4, 5, 6, 7, 32, '"', 0x7f, 0x80, 0xff };
    static const char text[] = "the e\xcc\x81t <s> [INST]\n\n\nx  y <|end|>\xff 12 don't";
    int made = 0, refused = 0;
    for (int i = 0; i < rounds; i++) {
        json d;
        size_t size = 0;
        char *bytes = json_read_text(&d, paths[i % 4], &size);
        for (uint32_t k = 1 + some(3); bytes != NULL && k > 0; k--)
            bytes[some((uint32_t)size)] = (char)(some(2) ? favourites[some(13)] : some(256));
        put_file(SCRATCH, bytes, some(20) ? size : some((uint32_t)size));
        json_free(&d);
        gguf g;
        bpe b;
        chat c;
        bpe_tokens t = { NULL, 0, 0, "" };
        memset(&c, 0, sizeof c);
        if (gguf_open(&g, SCRATCH) == 0 && gguf_chat(&g, &c, NULL) == 0 &&
            gguf_tokenizer(&g, &b) == 0) {
            CHECK_MSG(bpe_encode(&b, text, sizeof text - 1, 3, &t) == 0, "%s", t.error);
            char *back = bpe_decode(&b, t.ids, t.count, &size);
            CHECK(back != NULL);
            free(back);
            bpe_tokens_free(&t);
            bpe_free(&b);
            made++;
        } else {
            CHECK_MSG(g.error[0] != 0 && strstr(g.error, SCRATCH ":1:") == NULL &&
                          strstr(g.error, "\": expected") == NULL,
                      "%s", g.error);
            refused++;
        }
        chat_free(&c);
        gguf_close(&g);
    }
    CHECK_MSG(made > rounds / 50 && refused > rounds / 10, "%d, %d", made, refused);
}

/* With folders as arguments (made by golden/make_gguf_tokenizer.py DIR N), tests only the cases in them. With -N, tests
 * N damaged files. */
int main(int argc, char **argv)
{
    char cases[512], file[512];
    for (int i = 1; i < argc; i++) {
        if (*argv[i] == '-') {
            test_damage(atoi(argv[i] + 1));
            continue;
        }
        snprintf(file, sizeof file, "%.400s/model.gguf", argv[i]);
        snprintf(cases, sizeof cases, "%.400s/cases.jsonl", argv[i]);
        gguf g;
        bpe b;
        CHECK_MSG(gguf_open(&g, file) == 0 && gguf_tokenizer(&g, &b) == 0, "%s", g.error);
        if (g.error[0] == 0) {
            CHECK(check_cases(&b, cases, "") > 0);
            bpe_free(&b);
        }
        gguf_close(&g);
    }
    if (argc > 1)
        return check_report("test_gguf_tokenizer");
    test_kinds();
    test_unscored();
    test_plain();
    test_chat();
    test_config();
    test_refusals();
    test_allocations();
    test_damage(400);
    CHECK(live_blocks == 0);
    remove(SCRATCH);
    return check_report("test_gguf_tokenizer");
}
