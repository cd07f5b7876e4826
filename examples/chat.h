/* chat.h - renders chats as a model's chat template does, as text and as tokens. To copy, with
 * tokenizer.h, the headers that it includes, and json.h.
 *
 *     chat c;
 *     if (chat_open(&c, "SmolLM2-135M-Instruct", NULL) != 0) // the template of this model's folder
 *         fprintf(stderr, "%s\n", c.error);
 *     const chat_turn turns[] = { { CHAT_USER, "Hello!", 6 } };
 *     chat_encode(&c, &tokenizer, turns, 1, 1, 0, &tokens, NULL); // before an answer
 *
 * A model's chat_template is a Jinja program. This file does not run Jinja: it recognises the
 * templates below by their length and a 128-bit hash, and tests compare its output with Jinja's
 * for each of them (tests/golden/chat.py). For another template, call chat_set_turn with the
 * text before and after each kind of turn. Special tokens in a template's text become these
 * tokens. A user's text stays text even if it spells a special token. An answer is tokenised
 * separately from the prompt, as it is during generation. Not supported: tools, pictures,
 * reasoning. C99 or C++11. */
#ifndef CHAT_H
#define CHAT_H
#include "tokenizer.h"

typedef enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES } chat_role;
static const char *const chat_roles[] = { "system", "user", "assistant" };

typedef struct {
    chat_role role;
    const char *text;
    size_t size;
} chat_turn;

/* The parts of a rendered chat: text of the template, text of a turn, text of an answer, and the
 * end of an answer. Training has CHAT_ANSWER and CHAT_END as targets. */
typedef enum { CHAT_TEMPLATE, CHAT_CONTENT, CHAT_ANSWER, CHAT_END } chat_part;

enum {
    /* strips white space around the text of each turn, as Python's str.strip does */
    CHAT_TRIMS = 1,
    CHAT_TRIMS_ANSWERS = 2, /* strips white space around answers only */
    /* requires that turns alternate after a system turn: user, assistant, user, .. */
    CHAT_ALTERNATES = 4,
    /* puts the system text at the beginning of the first user turn, followed by an empty line, and
     * surrounds the system text by turns[CHAT_SYSTEM], unless these texts are NULL */
    CHAT_JOINS_SYSTEM = 8,
    /* puts chat_format.prefix only before answers after which there is no user turn */
    CHAT_LEADS_LAST = 16
};

/* The texts of a template. In them, \1 stands for the model's begin-of-text token, \2 for its
 * end-of-text token. */
typedef struct {
    const char *name, *begin;
    /* texts before and after a turn of each role; NULL if the template does not have the role */
    const char *turns[CHAT_ROLES][2];
    /* text at the beginning of each answer, which is a target, or NULL */
    const char *prefix;
    /* text after the end of an answer, which is not a target, or NULL */
    const char *suffix;
    const char *default_system; /* system text of chats that have none, or NULL */
    /* replaces turns[CHAT_SYSTEM][0] if the system turn comes first, or NULL */
    const char *first_prefix;
    int rules;
} chat_format;

#define CHAT_ML(name, begin, system, lead, rules)                                                  \
    {                                                                                              \
        name, begin,                                                                               \
            { { "<|im_start|>system\n", "<|im_end|>\n" },                                          \
              { "<|im_start|>user\n", "<|im_end|>\n" },                                            \
              { "<|im_start|>assistant\n", "<|im_end|>" } },                                       \
            lead, "\n", system, NULL, rules                                                        \
    }
#define CHAT_LLAMA(name, system, first)                                                            \
    {                                                                                              \
        name, "\1",                                                                                \
            { { "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>" },                  \
              { "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>" },                    \
              { "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>" } },             \
            "", "", system, first, CHAT_TRIMS                                                      \
    }
#define CHAT_GEMMA(name, rules)                                                                    \
    {                                                                                              \
        name, "\1",                                                                                \
            { { NULL, NULL },                                                                      \
              { "<start_of_turn>user\n", "<end_of_turn>\n" },                                      \
              { "<start_of_turn>model\n", "<end_of_turn>" } },                                     \
            "", "\n", NULL, NULL, CHAT_TRIMS | CHAT_ALTERNATES | (rules)                           \
    }
#define CHAT_MISTRAL(name, before, behind, lead, after, rules)                                     \
    {                                                                                              \
        name, "\1", { { NULL, NULL }, { before, behind }, { "", "\2" } }, lead, after, NULL, NULL, \
            CHAT_ALTERNATES | (rules)                                                              \
    }
static const chat_format chat_formats[] = {
    CHAT_ML("chatml", "", NULL, "", 0),
    CHAT_ML("chatml-begin", "\1", NULL, "", 0),
    CHAT_ML("qwen2", "", "You are a helpful assistant.", "", 0),
    CHAT_ML("qwen2.5", "", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
            "", 0),
    CHAT_ML("qwen3", "", NULL, "<think>\n\n</think>\n\n", CHAT_LEADS_LAST),
    CHAT_ML("smollm2", "", "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
            "", 0),
    CHAT_LLAMA("llama3", NULL, NULL),
    /* This date is the one that Llama's template uses without a clock. So tokens do not change from
     * day to day. */
    CHAT_LLAMA(
        "llama3.1", "",
        "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\n"),
    CHAT_GEMMA("gemma", 0),
    CHAT_GEMMA("gemma3", CHAT_JOINS_SYSTEM),
    CHAT_MISTRAL("mistral", "[INST] ", " [/INST]", "", "", 0),
    CHAT_MISTRAL("mistral-0.1", "[INST] ", " [/INST]", "", " ", 0),
    CHAT_MISTRAL("mistral-v1", " [INST] ", " [/INST]", " ", "", CHAT_JOINS_SYSTEM),
    CHAT_MISTRAL("mistral-v3", "[INST] ", "[/INST]", " ", "", CHAT_TRIMS_ANSWERS),
    CHAT_MISTRAL("mistral-nemo", "[INST]", "[/INST]", "", "", 0),
    { "mistral-v7",
      "\1",
      { { "[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]" }, { "[INST] ", "[/INST]" }, { "", "\2" } },
      " ",
      "",
      NULL,
      NULL,
      0 },
    { "llama2",
      "",
      { { "<<SYS>>\n", "\n<</SYS>>" }, { "\1[INST] ", " [/INST]" }, { "", " \2" } },
      " ",
      "",
      NULL,
      NULL,
      CHAT_TRIMS | CHAT_ALTERNATES | CHAT_JOINS_SYSTEM },
    { "zephyr",
      "",
      { { "<|system|>\n", "\2\n" }, { "<|user|>\n", "\2\n" }, { "<|assistant|>\n", "\2" } },
      "",
      "\n",
      NULL,
      NULL,
      0 },
};
#undef CHAT_ML
#undef CHAT_LLAMA
#undef CHAT_GEMMA
#undef CHAT_MISTRAL
enum { CHAT_FORMATS = sizeof chat_formats / sizeof chat_formats[0] };

/* Known templates: length in bytes, FNV-1a hashes with two initial values, and the name of the
 * format. */
static const struct {
    uint32_t size;
    uint64_t hash[2];
    const char *format;
} chat_templates[] = {
    { 189, { 0x0a01800d6ec3b423, 0xee32c1109a78e933 }, "chatml" },
    { 192, { 0x515df9e5e2dae077, 0x5bd03015f1c0ea87 }, "chatml" },
    { 196, { 0x88bf4138d5c826f0, 0x8b5832debef351a0 }, "chatml" },
    { 199, { 0xa41d6bae9b9141bc, 0x01eb42b9a6888c6c }, "chatml" },
    { 291, { 0x773d13e188afc917, 0x8da586575c0a8367 }, "chatml" },
    { 294, { 0x17fde6ecda9c7c01, 0xc94f20f5a6af34d1 }, "chatml" },
    { 297, { 0x77b2ec37fdf9727d, 0xb653eec980a0a22d }, "chatml" },
    { 2630, { 0x3751fe8ea48448ab, 0xabc492c130a9223b }, "chatml" },
    { 3165, { 0xe8faca59b0472e66, 0xdadb7ad2ed9a6016 }, "chatml" },
    { 4063, { 0x81d45424a0beddda, 0xc08414d009f0534a }, "chatml" },
    { 6147, { 0x21dc9ed0659009cb, 0xcb5cbdaf3323a19b }, "chatml" },
    { 6652, { 0x9a3bbe51238e1cf0, 0x2efdaee1f23c1b00 }, "chatml" },
    { 6721, { 0xff53d7337ccbb396, 0x05202d9238390466 }, "chatml" },
    { 209, { 0x89bcbd75ce6a3d28, 0x5d49541334b72218 }, "chatml-begin" },
    { 211, { 0x52642d07ab0602d8, 0x734e7ebc393da6c8 }, "chatml-begin" },
    { 212, { 0x3d431dbc3308b134, 0x0a7b56514c6e4da4 }, "chatml-begin" },
    { 214, { 0x852314cd81861fe4, 0xc7ecf1d6560b47d4 }, "chatml-begin" },
    { 328, { 0x8a87094e0e1e24c5, 0xdb9634da80a10935 }, "qwen2" },
    { 333, { 0x75e88977b2787cd7, 0x9f006b13b62e0107 }, "qwen2" },
    { 341, { 0x245313a714bda899, 0x17408f3e41f89969 }, "qwen2" },
    { 1017, { 0x71242f76359e71e8, 0xc3803c082eb0fc38 }, "qwen2" },
    { 3239, { 0x59dd975ef5774b65, 0x3df8bd3e97d94df5 }, "qwen2" },
    { 2506, { 0xe642ce246d7f2e3d, 0xb0c6d4adf131fbad }, "qwen2.5" },
    { 2508, { 0xadaa2a0bbac0305f, 0xfac08dba0f8073cf }, "qwen2.5" },
    { 2558, { 0xefc577352ade125d, 0xfeb7de4e79e9184d }, "qwen2.5" },
    { 2964, { 0xdedd22c04194d239, 0x91dbac651c418d09 }, "qwen2.5" },
    { 4116, { 0x2bfdb7aa9754484e, 0xbb067b5accdb167e }, "qwen3" },
    { 4168, { 0x959a4551391a6549, 0xd0069ccc0e9aa9b9 }, "qwen3" },
    { 368, { 0x45ec583d4d25bc3a, 0x2ae4d6fa3d46c54a }, "smollm2" },
    { 373, { 0x09b5156a5cf6abfc, 0xf2fb4ef0386190cc }, "smollm2" },
    { 389, { 0x0e60067a5537498e, 0x2b5003d3a234709e }, "llama3" },
    { 393, { 0x32844fd43eab01d2, 0x62991ea0255317a2 }, "llama3" },
    { 696, { 0x58f97c63c2f8bd77, 0x429189328ed68947 }, "llama3" },
    { 862, { 0xf2a9dd138dc335ee, 0x648816623874c9be }, "llama3" },
    { 3826, { 0x368f4c34b8554414, 0x0631b77aaa71f044 }, "llama3.1" },
    { 4613, { 0xcc0368e1ffb6b958, 0xc40c59d089b38f28 }, "llama3.1" },
    { 591, { 0x5c10ee65212d93b3, 0x9cc6cad2fe888a03 }, "gemma" },
    { 594, { 0x70f3cded3fb90051, 0x3e5f5dd2783f4621 }, "gemma" },
    { 814, { 0x11e389fb3a2aad74, 0xd3351dbfd30bd264 }, "gemma" },
    { 1362, { 0xca32624169bacac9, 0x24c028387cdd9e79 }, "gemma" },
    { 1374, { 0x5e86a815daeaa1a5, 0x6099c1e708986f55 }, "gemma" },
    { 1531, { 0xd19b6ff3a49deea5, 0x5d65f773c0c03655 }, "gemma3" },
    { 1776, { 0xcb3e9bb118802275, 0xe8e6fa91360bbc85 }, "gemma3" },
    { 1870, { 0x11ed3bbebdc13df7, 0xad9966da990279c7 }, "gemma3" },
    { 2721, { 0xef9e42aa2c564290, 0xf167732872da81a0 }, "gemma3" },
    { 470, { 0x8c734b90b4f8d84d, 0x9e8aeade2dbbfdbd }, "mistral" },
    { 477, { 0xc730acc029ce6ee0, 0x0a679c45276eec70 }, "mistral-0.1" },
    { 1057, { 0x46eac0bf5c765c47, 0xea2652a4b8458817 }, "mistral-v1" },
    { 1490, { 0x7959c3cbc5cd4fed, 0x11d8650a2d03545d }, "mistral-v1" },
    { 4674, { 0x4c047ddf01c6c1d9, 0x99cf09eab8eb2789 }, "mistral-v3" },
    { 415, { 0x71e04a49fb8f1f9d, 0xe8dd1d9c9cad4acd }, "mistral-nemo" },
    { 3021, { 0x496038b6b1dbbc85, 0x4fdfdf299fd613b5 }, "mistral-nemo" },
    { 3777, { 0xc134bf40d6f56d76, 0xf4f86ee8ddb7bf26 }, "mistral-nemo" },
    { 3944, { 0x20783e9d94168233, 0xc627dccb98fb6743 }, "mistral-nemo" },
    { 4658, { 0x16bcbbaa728db9f2, 0x969a8df75b5203c2 }, "mistral-nemo" },
    { 423, { 0xe4a9cc594604808a, 0x59606458248694fa }, "mistral-v7" },
    { 815, { 0xf344eecf1bd3a427, 0x49ad64cb84f28097 }, "llama2" },
    { 410, { 0xcd8b49000db02c2c, 0x97f10faad2da877c }, "zephyr" },
};

typedef struct {
    chat_format format;  /* the selected format; its name is NULL if the format is unknown */
    /* bos_eos[0]: text of the begin-of-text token, \1; bos_eos[1]: text of the end-of-text token,
     * \2 */
    char bos_eos[2][64];
    char custom[3][2][256]; /* texts set by chat_set_turn, for which `format` has pointers */
    char custom_suffix[256];
    char source[96]; /* name of the file that contains the template, or "" */
    char error[512];
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

/* ---- the format ------------------------------------------------------------------------------ */
static inline uint64_t chat_hash(const char *text, size_t size, uint64_t hash)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] != '\r' || i + 1 == size || text[i + 1] != '\n')
            hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

static inline int chat_select(chat *c, const char *name)
{
    for (int i = 0; i < CHAT_FORMATS; i++)
        if (strcmp(name, chat_formats[i].name) == 0) {
            c->format = chat_formats[i];
            return 0;
        }
    return -1;
}

/* Writes the names of all known formats to `to`, separated by commas, and returns `to`. */
static inline const char *chat_list_names(char *to, size_t size)
{
    size_t n = 0;
    for (int i = 0; i < CHAT_FORMATS && n < size; i++)
        n += (size_t)snprintf(to + n, size - n, "%s%s", i > 0 ? ", " : "", chat_formats[i].name);
    return to;
}

/* Sets c->format if `text` is a known template. As Jinja does, ignores a newline at the end and
 * reads CR LF as a newline. */
static inline void chat_recognise(chat *c, const char *text, size_t size)
{
    size -= size > 0 && text[size - 1] == '\n';
    size -= size > 0 && text[size - 1] == '\r';
    size_t bytes = size;
    for (size_t i = 0; i + 1 < size; i++)
        bytes -= text[i] == '\r' && text[i + 1] == '\n';
    const uint64_t a = chat_hash(text, size, 14695981039346656037u),
                   b = chat_hash(text, size, 0x9e3779b97f4a7c15u);
    for (size_t i = 0; i < sizeof chat_templates / sizeof chat_templates[0]; i++)
        if (chat_templates[i].size == bytes && chat_templates[i].hash[0] == a && chat_templates[i].hash[1] == b)
            chat_select(c, chat_templates[i].format);
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
    }
    if (json_kind_of(d, at) == JSON_STRING || several != 0)
        snprintf(c->source, sizeof c->source, "tokenizer_config.json");
    if (json_kind_of(d, at) == JSON_STRING)
        chat_recognise(c, json_text(d, at), json_size(d, at));
    return d->error[0] != 0 ? chat_fail(c, "%s", d->error) : 0;
}

/* Selects a format. If `name` is not NULL, it is the format's name. Otherwise the folder's
 * chat_template.jinja or, without that file, its tokenizer_config.json determines the format; if
 * there is no template or an unknown one, c->format.name becomes NULL. Returns 0, or -1 with
 * c->error, for example for an unknown `name`. */
static inline int chat_open(chat *c, const char *folder, const char *name)
{
    json d;
    char path[1024];
    size_t size;
    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    FILE *f = fopen(path, "rb");
    if (f != NULL) {
        fclose(f);
        const int failed =
            json_read_file(&d, path) != 0 ? chat_fail(c, "%s", d.error) : chat_read_config(c, &d);
        json_free(&d);
        if (failed)
            return -1;
    }
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    f = fopen(path, "rb");
    if (f != NULL) {
        fclose(f);
        memset(&c->format, 0, sizeof c->format);
        snprintf(c->source, sizeof c->source, "chat_template.jinja");
        const char *text = json_read_text(&d, path, &size);
        if (text != NULL)
            chat_recognise(c, text, size);
        const int failed = text == NULL ? chat_fail(c, "%s", d.error) : 0;
        json_free(&d);
        if (failed)
            return -1;
    }
    if (name != NULL && chat_select(c, name) != 0)
        return chat_fail(c, "%s: allowed is %s", name, chat_list_names(path, sizeof path));
    return 0;
}

/* Sets the texts around turns of a role. `text` is "BEFORE{}AFTER", with the escapes \n, \t and \\.
 * For answers, AFTER is a target up to its last character that is not white space. */
static inline int chat_set_turn(chat *c, chat_role role, const char *text)
{
    size_t n = 0;
    int side = 0;
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
        if (n + 1 == sizeof c->custom[role][side] || ch == '\1' || ch == '\2')
            return chat_fail(c, "a turn of the %s: the texts before and after {} may have at most "
                                "255 bytes each",
                             chat_roles[role]);
        c->custom[role][side][n++] = ch;
    }
    c->custom[role][side][n] = 0;
    if (side == 0)
        return chat_fail(c,
                         "a turn of the %s, \"%.80s\": expected {} in the place of the message, "
                                                    "as in "
                         "\"<|user|>\\n{}</s>\\n\"",
                         chat_roles[role], text);
    if (c->format.name == NULL || strcmp(c->format.name, "own") != 0) {
        memset(&c->format, 0, sizeof c->format);
        c->format.name = "own";
        c->format.begin = c->format.prefix = c->format.suffix = "";
    }
    c->format.turns[role][0] = c->custom[role][0];
    c->format.turns[role][1] = c->custom[role][1];
    if (role == CHAT_ASSISTANT) {
        while (n > 0 && strchr(" \n\t", c->custom[role][1][n - 1]) != NULL)
            n--;
        c->custom_suffix[0] = 0;
        if (n > 0) {
            strcpy(c->custom_suffix, c->custom[role][1] + n);
            c->custom[role][1][n] = 0;
        }
        c->format.suffix = c->custom_suffix;
    }
    return 0;
}

/* ---- the text of a chat ---------------------------------------------------------------------- */
/* A function that receives the next n bytes of a rendered chat, which are a `part`. Returns 0, or
 * another value to stop after a failure. */
typedef int (*chat_put)(void *user, chat_part part, const char *text, size_t n);

/* Passes a text of the format to `put`, with \1 and \2 replaced by their tokens. */
static inline int chat_put_template(const chat *c, chat_part part, const char *text, chat_put put,
                                 void *user)
{
    while (*text != 0) {
        const size_t n = strcspn(text, "\1\2");
        const char *piece = n == 0 ? c->bos_eos[*text - 1] : text;
        if (put(user, part, piece, n == 0 ? strlen(piece) : n) != 0)
            return -1;
        text += n == 0 ? 1 : n;
    }
    return 0;
}

/* Returns whether the text s begins with white space in the sense of Python's str.strip: Unicode's
 * white space and characters 28 to 31. Sets *size to its bytes. */
static inline int chat_is_white(const char *s, size_t n, size_t *size)
{
    uint32_t ch = 'x';
    const int length = json_utf8(s, n, &ch);
    *size = (size_t)(length < 0 ? -length : length);
    return length > 0 && (unicode_class(ch) == UNICODE_SPACE || (ch >= 28 && ch <= 31));
}

static inline void chat_trim(const char **text, size_t *size)
{
    size_t n;
    while (*size > 0 && chat_is_white(*text, *size, &n)) {
        *text += n;
        *size -= n;
    }
    while (*size > 0) {
        size_t at = *size - 1;
        while (at > 0 && *size - at < 4 && ((unsigned char)(*text)[at] & 0xc0) == 0x80)
            at--;
        if (!chat_is_white(*text + at, *size - at, &n) || at + n != *size)
            break;
        *size = at;
    }
}

static inline int chat_contains(const chat_turn *turn, const char *text)
{
    const size_t n = strlen(text);
    for (size_t i = 0; i + n <= turn->size; i++)
        if (memcmp(turn->text + i, text, n) == 0)
            return 1;
    return 0;
}

/* Checks that the format can render the turns. Returns the index of the first turn to render after
 * a system turn that will be joined to the next turn, or -1 with c->error. */
static inline int chat_check(chat *c, const chat_turn *turns, size_t count)
{
    const chat_format *f = &c->format;
    const int joined = (f->rules & CHAT_JOINS_SYSTEM) != 0 && count > 0 && turns[0].role == CHAT_SYSTEM;
    for (size_t i = (size_t)joined; i < count; i++) {
        const size_t position = i - (size_t)joined;
        if (f->turns[turns[i].role][0] == NULL)
            return chat_fail(c, "a turn of the %s cannot be rendered by this chat template, %s%s",
                             chat_roles[turns[i].role], f->name,
                             f->rules & CHAT_JOINS_SYSTEM ? ", except at the beginning"
                                                   : ": its text can begin the user's turn");
        if ((f->rules & CHAT_ALTERNATES) != 0 &&
            turns[i].role != (position % 2 == 0 ? CHAT_USER : CHAT_ASSISTANT))
            return chat_fail(c,
                             "turn %d is of the %s, but in this chat template, %s, user and "
                             "assistant must alternate, and the user begins",
                             (int)i + 1, chat_roles[turns[i].role], f->name);
        if ((f->rules & CHAT_LEADS_LAST) != 0 &&
            (turns[i].role == CHAT_ASSISTANT
                 ? chat_contains(&turns[i], "</think>")
                 : turns[i].role == CHAT_USER && chat_contains(&turns[i], "<tool_response>")))
            return chat_fail(
                c,
                "turn %d has reasoning or a tool's response, which is not supported for this chat "
                "template, %s; remove it",
                (int)i + 1, f->name);
    }
    if (count == (size_t)joined)
        return chat_fail(c, "the chat has no turns; give at least one");
    return joined;
}

static inline int chat_put_answer(chat *c, const chat_turn *turn, int last, chat_put put,
                                  void *user)
{
    const chat_format *f = &c->format;
    const char *text = turn->text;
    size_t size = turn->size;
    if ((f->rules & (CHAT_TRIMS | CHAT_TRIMS_ANSWERS)) != 0)
        chat_trim(&text, &size);
    const int leads = f->prefix[0] != 0 && ((f->rules & CHAT_LEADS_LAST) == 0 || last);
    for (; leads && (f->rules & CHAT_LEADS_LAST) != 0 && size > 0 && *text == '\n'; size--)
        text++;
    return chat_put_template(c, CHAT_TEMPLATE, f->turns[CHAT_ASSISTANT][0], put, user) != 0 ||
           put(user, CHAT_ANSWER, leads ? f->prefix : "", leads ? strlen(f->prefix) : 0) != 0 ||
           put(user, CHAT_ANSWER, text, size) != 0 ||
           chat_put_template(c, CHAT_END, f->turns[CHAT_ASSISTANT][1], put, user) != 0 ||
           chat_put_template(c, CHAT_TEMPLATE, f->suffix, put, user) != 0;
}

static inline int chat_put_turn(chat *c, const chat_turn *turn, const chat_turn *joined,
                                const char *before, chat_put put, void *user)
{
    const chat_format *f = &c->format;
    const char *text = turn->text;
    size_t size = turn->size;
    const char *const *around = f->turns[CHAT_SYSTEM];
    const int wraps = joined != NULL && around[0] != NULL;
    if ((f->rules & CHAT_TRIMS) != 0)
        chat_trim(&text, &size);
    /* system text and user text are stripped as one text: white space between them remains */
    if (wraps && size > 0) {
        size += (size_t)(text - turn->text);
        text = turn->text;
    }
    if (chat_put_template(c, CHAT_TEMPLATE, before, put, user) != 0)
        return -1;
    if (joined != NULL && (chat_put_template(c, CHAT_TEMPLATE, wraps ? around[0] : "", put, user) != 0 ||
                           put(user, CHAT_CONTENT, joined->text, joined->size) != 0 ||
                           chat_put_template(c, CHAT_TEMPLATE, wraps ? around[1] : "", put, user) != 0))
        return -1;
    if (joined != NULL && (!wraps || size > 0) && put(user, CHAT_TEMPLATE, "\n\n", 2) != 0)
        return -1;
    return put(user, CHAT_CONTENT, text, size) != 0 ||
           chat_put_template(c, CHAT_TEMPLATE, f->turns[turn->role][1], put, user) != 0;
}

/* Renders turns: passes the text to `put`, piece by piece. If add_prompt is nonzero, ends with the
 * text that begins an answer. Returns 0, or -1 with c->error or after put has failed. */
static inline int chat_render(chat *c, const chat_turn *turns, size_t count, int add_prompt, chat_put put,
                              void *user)
{
    const chat_format *f = &c->format;
    const int joined = chat_check(c, turns, count);
    size_t last_user = count;
    if (joined < 0 || chat_put_template(c, CHAT_TEMPLATE, f->begin, put, user) != 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        last_user = turns[i].role == CHAT_USER ? i : last_user;
    if (f->default_system != NULL && turns[0].role != CHAT_SYSTEM) {
        const chat_turn system = { CHAT_SYSTEM, f->default_system, strlen(f->default_system) };
        const char *before = f->first_prefix != NULL ? f->first_prefix : f->turns[CHAT_SYSTEM][0];
        if (chat_put_turn(c, &system, NULL, before, put, user) != 0)
            return -1;
    }
    for (size_t i = (size_t)joined; i < count; i++) {
        const chat_turn *turn = &turns[i];
        const int first = i == 0 && turn->role == CHAT_SYSTEM && f->first_prefix != NULL;
        const char *before = first ? f->first_prefix : f->turns[turn->role][0];
        if (turn->role == CHAT_ASSISTANT
                ? chat_put_answer(c, turn, i > last_user && i + 1 == count, put, user) != 0
                : chat_put_turn(c, turn, joined && i == 1 ? &turns[0] : NULL, before, put, user) !=
                      0)
            return -1;
    }
    return add_prompt ? chat_put_template(c, CHAT_TEMPLATE, f->turns[CHAT_ASSISTANT][0], put, user) : 0;
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
            if (*s == *a->name && a->special && n >= a->name_size &&
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

/* Returns the first special token in the format's text after an answer, or -1 if that text has no
 * special token. */
static inline int32_t chat_end_token(const chat *c, const bpe *b)
{
    const char *end = c->format.name != NULL ? c->format.turns[CHAT_ASSISTANT][1] : "";
    for (; *end != 0; end++) {
        const char *text = *end == 1 || *end == 2 ? c->bos_eos[*end - 1] : end;
        const bpe_added *a = *text != 0 ? chat_match_special(b, text, strlen(text)) : NULL;
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
static inline int chat_append_tail(bpe *b, const char *text, size_t n, int flags, const int32_t *known,
                            size_t count, bpe_tokens *to)
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

/* A chat_put that appends tokens. Text of the template and of turns is collected, and tokenised as
 * one text when a special token or an answer follows. */
static inline int chat_write(void *user, chat_part part, const char *text, size_t n)
{
    chat_writer *w = (chat_writer *)user;
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

/* Appends a chat's tokens. If mask is not NULL, marks the tokens of answers and of their ends as
 * targets. If add_prompt is nonzero, ends with the text that begins an answer. If specials is
 * nonzero, special tokens that turns spell out become these tokens. Returns 0, or -1 with c->error
 * and unchanged tokens. */
static inline int chat_encode(chat *c, bpe *b, const chat_turn *turns, size_t count, int add_prompt,
                              int specials, bpe_tokens *to, chat_mask *mask)
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
    const int failed =
        chat_render(c, turns, count, add_prompt, chat_write, &w) != 0 || chat_flush(&w) != 0;
    free(w.text);
    if (failed)
        to->count = before;
    return failed ? -1 : 0;
}
#endif
