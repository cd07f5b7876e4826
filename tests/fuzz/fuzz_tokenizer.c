/* fuzz_tokenizer.c - reads any bytes as the files of a tokenizer, and encodes any text with the tokenizer.
 *
 * The input is tokenizer.json and a text, or vocab.json, merges.txt and a text, or the name of another file,
 * tokenizer_config.json (or nothing), a text and the file, with the byte 0x1e between them.
 * The files are read, and the text is encoded in each way, also in pieces, and decoded. The rules: a refusal has an
 * error text and leaves nothing allocated; tokens are in the vocabulary; the same text gives the same tokens again;
 * decoded text is UTF-8; if each byte has a token and nothing normalises the text, decoding returns the text. One
 * input in eight is tried in all ways and with all tokens, any other in one way and with some tokens. */
#define _GNU_SOURCE
/* number of words whose tokens are remembered; few, since clearing 1 MB for each input took a quarter of the time */
#define BPE_CACHE 256
#include "gradckpt.h"
#include "tokenizer.h"
#include "input_hash.h"
#include "memfs.h"
#include "reader.h"

enum { TEXT_MOST = 600 };

static int is_utf8(const char *s, size_t n)
{
    uint32_t c;
    int length = 1;
    for (size_t i = 0; i < n && length > 0; i += (size_t)length)
        length = json_utf8(s + i, n - i, &c);
    return length > 0;
}

/* Returns whether decoding must return any encoded text: each byte has a token, and texts are only split, not
 * normalised. */
static int is_lossless(const bpe *b)
{
    int is = b->byte_level && b->normalizers == 0 && b->strip == 0;
    for (int i = 0; i < 256; i++)
        is = is && b->byte[i] >= 0;
    for (int i = 0; i < b->step_count; i++)
        is = is && b->steps[i].kind >= BPE_REGEX;
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < b->added_count[list]; i++) {
            const bpe_added *a = &b->added[list][i];
            is = is && !a->lstrip && !a->rstrip;
            for (size_t k = 0; k < a->name_size;
                 k++) /* tokens that are not characters decode to the bytes after which they are named */
                is = is && a->name[k] > 32 && a->name[k] < 127;
        }
    return is;
}

/* Encodes and decodes the text; bit i of `ways` selects way i of the eight ways to encode it. */
static void try_text(bpe *b, const char *text, size_t n, unsigned ways)
{
    size_t size, replaced;
    bpe_tokens pieces = { NULL, 0, 0, "" };
    char *valid = bpe_to_utf8(text, n, &replaced);
    must(valid != NULL);
    for (int flags = 0; flags < 8; flags++) {
        if ((ways >> flags & 1) == 0)
            continue;
        bpe_tokens t = { NULL, 0, 0, "" }, again = { NULL, 0, 0, "" };
        must(bpe_encode(b, text, n, flags, &t) == 0 && t.error[0] == 0);
        for (size_t i = 0; i < t.count; i++)
            must(t.ids[i] >= 0 && t.ids[i] < b->count);
        char *back = bpe_decode(b, t.ids, t.count, &size);
        must(back != NULL && back[size] == 0 && (!b->byte_level || is_utf8(back, size)));
        if ((flags & BPE_TEMPLATE) == 0 && is_lossless(b))
            must(size == replaced && memcmp(back, valid, size) == 0);
        if (ways == 255) {
            must(bpe_encode(b, valid, replaced, flags, &again) == 0 && again.count == t.count);
            must(t.count == 0 || memcmp(t.ids, again.ids, t.count * sizeof *t.ids) == 0);
        }
        if (t.count > 0)
            bpe_first_bytes(b, t.ids[0], &size);
        free(back);
        bpe_tokens_free(&t);
        bpe_tokens_free(&again);
    }
    must(bpe_encode(b, text, n / 2, BPE_SPECIALS, &pieces) == 0);
    must(bpe_encode(b, text + n / 2, n - n / 2, BPE_NOT_FIRST, &pieces) == 0);
    bpe_tokens_free(&pieces);
    free(valid);
}

static void try_all(bpe *b, int failed, const char *text, size_t n, uint64_t chosen)
{
    const int32_t odd[] = { -1, 0, 1, INT32_MAX, b->count - 1, b->count };
    size_t size;
    if (failed) {
        must(b->error[0] != 0 && b->bytes == NULL && b->merges == NULL && b->words == NULL);
        return;
    }
    must(b->error[0] == 0);
    const int32_t step = chosen % 8 == 0 ? 1 : 1 + (int32_t)(chosen / 8 % 61);
    try_text(b, text, n < TEXT_MOST ? n : TEXT_MOST,
             chosen % 8 == 0 ? 255 : 1u << chosen / 512 % 8);
    try_text(b, "", 0, 1u << chosen / 512 % 8);
    for (int32_t i = 0; i < b->count && i < 4096; i += step) {
        free(bpe_decode(b, &i, 1, &size));
        bpe_bytes(b, i, &size);
    }
    char *back = bpe_decode(b, odd, sizeof odd / sizeof odd[0], &size);
    must(back != NULL);
    free(back);
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < b->added_count[list]; i++) {
            const bpe_added *a = &b->added[list][i];
            must(a->id >= 0 && a->id < b->count && a->size > 0);
        }
    bpe_find_added(b, "<s>");
    bpe_free(b);
}

static const char *const others[] = { "vocab.txt", "tokenizer.model" };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const reader_parts p = reader_split(bytes, size);
    const uint64_t chosen = input_hash(bytes, size);
    bpe b;
    if (p.count == 3) {
        memfs_put("vocab.json", p.at[0], p.size[0]);
        memfs_put("merges.txt", p.at[1], p.size[1]);
        const int failed = bpe_open(&b, memfs_folder(chosen / 32768)) != 0;
        memfs_end();
        try_all(&b, failed, p.at[2], p.size[2], chosen);
    } else if (p.count >= 4) {
        char name[32] = { 0 };
        memcpy(name, p.at[0], p.size[0] < sizeof name ? p.size[0] : sizeof name - 1);
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            if (strcmp(name, others[i]) == 0)
                memfs_put(name, p.at[3], (size_t)((const char *)bytes + size - p.at[3]));
        if (p.size[1] > 0)
            memfs_put("tokenizer_config.json", p.at[1], p.size[1]);
        const int failed = bpe_open(&b, memfs_folder(chosen / 32768)) != 0;
        memfs_end();
        try_all(&b, failed, p.at[2], p.size[2], chosen);
    } else if (p.count <= 2) {
        char *text = (char *)malloc(p.size[0] + 1);
        must(text != NULL);
        memcpy(text, p.at[0], p.size[0]);
        text[p.size[0]] = 0;
        const int failed = bpe_read_text(&b, "tokenizer.json", text, p.size[0]) != 0;
        try_all(&b, failed, p.at[1] != NULL ? p.at[1] : "", p.size[1], chosen);
    }
    return 0;
}

static const char said[] = "The  quick\n\n brown 1234 fox's <|im_start|>x<s> e\xcc\x81\xef\xbf\xbd"
                           "\xf0\x9f\x98\x80\xff\xe2\x96\x81 \t don't";

/* A small tokenizer with a step of each kind; the golden tokenizers have some KB. */
static const char small[] =
    "{\"added_tokens\": [{\"id\": 6, \"content\": \"<s>\", \"special\": true, \"lstrip\": true,"
    " \"rstrip\": true, \"normalized\": true}], \"normalizer\": {\"type\": \"Sequence\","
    " \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Prepend\", \"prepend\": \"\xe2\x96\x81\"},"
    " {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}]},"
    " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\","
    " \"individual_digits\": true}, {\"type\": \"Metaspace\", \"replacement\": \"\xe2\x96\x81\","
    " \"prepend_scheme\": \"always\", \"split\": true}, {\"type\": \"Split\", \"pattern\":"
    " {\"String\": \"x\"}, \"behavior\": \"MergedWithNext\", \"invert\": false}]}, \"decoder\":"
    " {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\":"
    " \"\xe2\x96\x81\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"},"
    " {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}, \"post_processor\":"
    " {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}},"
    " {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [6]}}}, \"model\":"
    " {\"type\": \"BPE\", \"unk_token\": \"?\", \"byte_fallback\": true, \"fuse_unk\": true,"
    " \"ignore_merges\": false, \"vocab\": {\"?\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"<0x0A>\": 4,"
    " \"\xe2\x96\x81\": 5}, \"merges\": [[\"a\", \"b\"]]}}";

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const kinds[] = { "",       "/gemma",  "/llama2", "/llama3",  "/mistral",
                                         "/odd",   "/prefix", "/qwen2",  "/smollm2", "/bert",
                                         "/cased", "/xlmr",   "/t5",     "/regex" };
    static const char vocab[] = "[UNK]\n[CLS]\n[SEP]\na\n##b\n.\n\xe5\xad\xa6\n";
    static const char config[] =
        "{\"do_lower_case\": true, \"strip_accents\": null, \"tokenizer_class\":"
        " \"BertTokenizer\", \"cls_token\": {\"content\": \"[CLS]\"}}";
    reader_seed s = { NULL, 0 };
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char path[256];
        snprintf(path, sizeof path, "tests/golden/tokenizer%s/tokenizer.json", kinds[i]);
        reader_add_file(&s, path);
        reader_add_part(&s, said, sizeof said - 1);
        reader_end_seed(&s, path);
    }
    reader_add_part(&s, small, sizeof small - 1);
    reader_add_part(&s, said, sizeof said - 1);
    reader_end_seed(&s, "small");
    reader_add_file(&s, "tests/golden/tokenizer/vocab.json");
    reader_add_file(&s, "tests/golden/tokenizer/merges.txt");
    reader_add_part(&s, said, sizeof said - 1);
    reader_end_seed(&s, "files");
    reader_add_part(&s, "vocab.txt", 9);
    reader_add_part(&s, config, sizeof config - 1);
    reader_add_part(&s, said, sizeof said - 1);
    reader_add_part(&s, vocab, sizeof vocab - 1);
    reader_end_seed(&s, "vocab");
    for (int i = 0; i < 2; i++) {
        reader_add_part(&s, "tokenizer.model", 15);
        reader_add_part(&s, "", 0);
        reader_add_part(&s, said, sizeof said - 1);
        reader_add_file(&s, i == 0 ? "tests/golden/tokenizer/spm/tokenizer.model"
                                   : "tests/golden/tokenizer/spm_unigram/tokenizer.model");
        reader_end_seed(&s, i == 0 ? "spm" : "spm_unigram");
    }
    exit(0);
}

static const char *const words[] = { "\"NFC\"",
                                     "\"Prepend\"",
                                     "\"Replace\"",
                                     "\"Sequence\"",
                                     "\"ByteLevel\"",
                                     "\"Digits\"",
                                     "\"Metaspace\"",
                                     "\"Split\"",
                                     "\"Isolated\"",
                                     "\"MergedWithPrevious\"",
                                     "\"MergedWithNext\"",
                                     "\"ByteFallback\"",
                                     "\"Fuse\"",
                                     "\"Strip\"",
                                     "\"BertNormalizer\"",
                                     "\"Precompiled\"",
                                     "{\"Regex\": \"a+(?!b)|[^a-c]?\\\\p{L}{1,3}\"}",
                                     "\"Removed\"",
                                     "\"Unigram\"",
                                     "[\"a\", -1]",
                                     "\"BertPreTokenizer\"",
                                     "\"BertProcessing\"",
                                     "\"WordPiece\"",
                                     "\"TemplateProcessing\"",
                                     "\"first\"",
                                     "\"never\"",
                                     "\"always\"",
                                     "\"A\"",
                                     "\"<s>\"",
                                     "\"a\"",
                                     "\"ab\"",
                                     "\"a b\"",
                                     "[\"a\", \"b\"]",
                                     "\"\xc4\xa0\"",
                                     "\"<0xFF>\"",
                                     "{\"String\": \" \"}",
                                     "\"                              \"",
                                     "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
                                     "\"content\": \"          \"}",
                                     NULL };

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    return reader_mutate_json(bytes, size, most, seed, words);
}
