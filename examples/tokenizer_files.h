/* tokenizer_files.h - converts other files of tokenizers to the text of a tokenizer.json, for
 * tokenizer.h: vocab.txt of BERT. To copy, with json.h. C99 or C++11. */
#ifndef TOKENIZER_FILES_H
#define TOKENIZER_FILES_H
#include "json.h"

#define BPE_SAVE_HINT                                                                              \
    "in Python, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes tokenizer.json"

/* Ends a conversion. Returns the text, which the caller must free, and its *size; or NULL with
 * d->error if there was an error or memory ran out. Frees d's memory. */
static inline char *bpe_end_text(json *d, json_buffer *out, size_t *size)
{
    if (out->failed)
        json_fail(d, 0, "out of memory for %.0f bytes of tokens", (double)out->capacity);
    if (d->error[0])
        free(out->text);
    json_free(d);
    *size = out->size;
    return d->error[0] ? NULL : out->text;
}

/* ---- vocab.txt -------------------------------------------------------------------------------- */
/* Appends an added token to a tokenizer.json. `flags` is an object with its flags, or 0 for a special
 * token that is searched for in the text as it is. */
static inline void bpe_add_token(json_buffer *out, json *d, uint32_t flags, const char *text,
                                 size_t n, int64_t id)
{
    static const char *const names[] = { "special", "normalized", "lstrip", "rstrip",
                                         "single_word" };
    json_add_text(out, out->text[out->size - 1] == '[' ? "{\"id\":" : ",\n{\"id\":");
    json_add_int(out, id);
    json_add_text(out, ",\"content\":");
    json_add_string(out, text, n);
    for (int i = 0; i < 5; i++) {
        json_add_text(out, ",\"");
        json_add_text(out, names[i]);
        json_add_text(out,
                      json_bool(d, flags, names[i], flags == 0 && i == 0) ? "\":true" : "\":false");
    }
    json_add_text(out, "}");
}

/* Returns the index of the line `name` in a text, or -1. */
static inline int64_t bpe_line_of(const char *text, const char *end, const char *name, size_t size)
{
    for (int64_t i = 0; text < end; i++) {
        const char *next = (const char *)memchr(text, '\n', (size_t)(end - text));
        const char *stop = next != NULL ? next : end;
        stop -= stop > text && stop[-1] == '\r';
        if ((size_t)(stop - text) == size && memcmp(text, name, size) == 0)
            return i;
        text = next != NULL ? next + 1 : end;
    }
    return -1;
}

/* Returns the text of a special token in tokenizer_config.json, a string or an object with a content,
 * or `fallback` without one. */
static inline const char *bpe_special_text(json *d, const char *key, const char *fallback,
                                           size_t *size)
{
    uint32_t at = json_find_nonnull(d, JSON_ROOT, key);
    if (json_kind_of(d, at) == JSON_OBJECT)
        at = json_require(d, at, "content", JSON_STRING);
    const char *text = at ? json_text(d, at) : fallback;
    *size = at ? json_size(d, at) : strlen(fallback);
    return text;
}

/* Appends the added tokens, and the post-processor that adds the tokens before and after a text. */
static inline void bpe_add_specials(json_buffer *out, json *d, const char *text, const char *end,
                                    int mpnet)
{
    static const char *const keys[] = { "cls_token", "sep_token", "unk_token", "pad_token",
                                        "mask_token" };
    static const char *const names[2][5] = { { "[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]" },
                                             { "<s>", "</s>", "[UNK]", "<pad>", "<mask>" } };
    uint32_t all = json_find_nonnull(d, JSON_ROOT, "added_tokens_decoder");
    int64_t ids[5];
    const char *specials[5];
    size_t sizes[5];
    json_add_text(out, "{\"added_tokens\":[");
    for (uint32_t i = json_first(d, all); i != 0 && !d->error[0] && !out->failed;
         i = json_next(d, i)) {
        uint32_t content = json_require(d, i + 1, "content", JSON_STRING);
        if (!d->error[0])
            bpe_add_token(out, d, i + 1, json_text(d, content), json_size(d, content),
                          strtol(json_text(d, i), NULL, 10));
    }
    for (int i = 0; i < 5 && !d->error[0] && !out->failed; i++) {
        specials[i] = bpe_special_text(d, keys[i], names[mpnet][i], &sizes[i]);
        ids[i] = bpe_line_of(text, end, specials[i], sizes[i]);
        if (ids[i] < 0 && i < 3)
            json_fail(d, 0,
                      "%s \"%.80s\" is not in vocab.txt: name the token in tokenizer_config.json",
                      keys[i], specials[i]);
        if (all == 0 && ids[i] >= 0)
            bpe_add_token(out, d, 0, specials[i], sizes[i], ids[i]);
    }
    if (d->error[0] || out->failed)
        return;
    json_add_text(out, "],\n\"post_processor\":{\"type\":\"BertProcessing\"");
    for (int i = 0; i < 2; i++) {
        json_add_text(out, i == 0 ? ",\"cls\":[" : ",\"sep\":[");
        json_add_string(out, specials[i], sizes[i]);
        json_add_text(out, ",");
        json_add_int(out, ids[i]);
        json_add_text(out, "]");
    }
    json_add_text(out, "},\n\"model\":{\"type\":\"WordPiece\",\"unk_token\":");
    json_add_string(out, specials[2], sizes[2]);
}

/* Converts vocab.txt, a token a line, to the text of a tokenizer.json. `config` is the path of
 * tokenizer_config.json, or NULL: then the settings are those of bert-base-uncased. It is read for
 * tokenizer_class, do_lower_case, strip_accents, tokenize_chinese_chars, added_tokens_decoder and the
 * names of special tokens. Returns a text that the caller must free, and its *size, or NULL with
 * d->error. */
static inline char *bpe_vocab_json(json *d, const char *vocabulary, const char *config,
                                   size_t *size)
{
    static const char *const classes[] = { "BertTokenizer", "DistilBertTokenizer",
                                           "ElectraTokenizer", "MobileBertTokenizer",
                                           "MPNetTokenizer" };
    static const char *const keys[] = { "do_lower_case", "strip_accents",
                                        "tokenize_chinese_chars" };
    static const char *const options[] = { "lowercase", "strip_accents", "handle_chinese_chars" };
    json in;
    json_buffer out = { NULL, 0, 0, 0 };
    size_t n = 0;
    const char *s = json_read_text(&in, vocabulary, &n);
    const int bom = s != NULL ? json_bom_size(&in, s, n) : 0;
    const char *text = bom > 0 ? s + bom : s, *end = s != NULL ? s + n : s;
    json_init(d, config != NULL ? config : vocabulary);
    if (in.error[0])
        memcpy(d->error, in.error, sizeof d->error);
    else if (config != NULL)
        json_read_file(d, config);
    uint32_t class_name = json_find_nonnull(d, JSON_ROOT, "tokenizer_class");
    int known = class_name == 0 || d->error[0] ? 5 : 0;
    for (; known < 5; known++) {
        const size_t length = strlen(classes[known]);
        if (strncmp(json_text(d, class_name), classes[known], length) == 0)
            break;
    }
    if (class_name && !d->error[0] && known == 5)
        json_mismatch(d, class_name,
                      "the class of BERT, DistilBERT, ELECTRA, MobileBERT or MPNet, whose "
                      "vocab.txt is read; for others, " BPE_SAVE_HINT);
    if (!d->error[0])
        bpe_add_specials(&out, d, text, end, known == 4);
    json_add_text(&out, ",\"vocab\":{");
    for (int64_t i = 0; text < end; i++) {
        const size_t line = strcspn(text, "\n"), cut = line > 0 && text[line - 1] == '\r';
        json_add_text(&out, i > 0 ? ",\n" : "");
        json_add_string(&out, text, line - cut);
        json_add_text(&out, ":");
        json_add_int(&out, i);
        text += line + 1;
    }
    json_add_text(&out, "}},\n\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\n\"decoder\":"
                        "{\"type\":\"WordPiece\"},\n\"normalizer\":{\"type\":\"BertNormalizer\"");
    for (int i = 0; i < 3; i++) {
        uint32_t value = json_find_nonnull(d, JSON_ROOT, keys[i]);
        if (value == 0)
            continue;
        json_add_text(&out, ",\"");
        json_add_text(&out, options[i]);
        json_add_text(&out, json_bool(d, JSON_ROOT, keys[i], 0) ? "\":true" : "\":false");
    }
    json_add_text(&out, "}}\n");
    json_free(&in);
    return bpe_end_text(d, &out, size);
}
#endif
