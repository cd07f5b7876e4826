/* fuzz_dataset.c - reads any bytes as training data: a text, a file of tokens, JSON lines.
 *
 * The first byte selects the kind: t for a text, b for a file of tokens, j for JSON lines. The tokenizer is
 * SmolLM2's, for texts also Llama 2's. The functions under test are dataset_open_as and dataset_open_pairs, with
 * rows of three lengths and batches of similar length. The rules: a refusal has an error text and leaves nothing
 * allocated; tokens are in the vocabulary; an epoch has each row once; each accepted line has a target; written
 * tokens can be read back. One input in eight is tried in all ways and lengths, any other in one way and length. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "dataset.h"
#include "reader.h"
#include "rows.h"

static bpe tokenizers[2];

/* Writes the tokens of a file in both formats and reads them back. */
static void try_tokens(const uint8_t *bytes, size_t size)
{
    bpe_tokens t = { NULL, 0, 0, "" };
    const char *folder;
    char from[96], to[96];
    memfs_put("x.bin", bytes, size);
    folder = memfs_folder(input_hash(bytes, size));
    snprintf(from, sizeof from, "%s/x.bin", folder);
    snprintf(to, sizeof to, "%s/y.bin", folder);
    if (bpe_read_bin(from, 50000, &t) != 0) {
        must(t.error[0] != 0 && t.count == 0);
    } else {
        for (int header = 0; header < 2; header++) {
            bpe_tokens again = { NULL, 0, 0, "" };
            must(bpe_write_bin(to, header, &t) == 0);
            if (bpe_read_bin(to, 50000, &again) == 0)
                must(again.count == t.count &&
                     (t.count == 0 || memcmp(again.ids, t.ids, t.count * sizeof *t.ids) == 0));
            else /* a file without a header whose tokens are, by chance, the beginning of a header of llm.c */
                must(!header && t.count > 1 && t.ids[0] == (BPE_BIN_MAGIC & 0xffff));
            bpe_tokens_free(&again);
        }
        if (memfs_on_disk)
            must(remove(to) == 0);
    }
    bpe_tokens_free(&t);
    memfs_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0)
        return 0;
    if (tokenizers[0].count == 0) {
        must(bpe_open(&tokenizers[0], "tests/golden/tokenizer/smollm2") == 0);
        must(bpe_open(&tokenizers[1], "tests/golden/tokenizer/llama2") == 0);
    }
    if (bytes[0] == 'b') {
        try_tokens(bytes + 1, size - 1);
        try_rows_of("x.bin", bytes + 1, size - 1, &tokenizers[0], NULL);
    } else {
        const char *name = bytes[0] == 'j' ? "x.jsonl" : "x.txt";
        try_rows_of(name, bytes + 1, size - 1, &tokenizers[size % 2], NULL);
    }
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const struct {
        const char *name, *text;
        size_t size;
    } seeds[] = {
#define SEED(name, text) { name, text, sizeof text - 1 }
        SEED("text", "tThe quick\nbrown <|im_end|> fox \xff\xfe jumps. \xe2\x96\x81\n\n"),
        SEED("mark", "t\xef\xbb\xbf[1, 2"),
        SEED("lines-as-text", "t{\"text\": \"a\"}\n{\"text\": \"b\"}\n"),
        SEED("array-as-text", "t[{\"text\": \"a\"}]"),
        SEED("archive", "tPK\3\4aaaa"),
        SEED("tokens", "b\1\0\2\0\3\0\4\0\5\0\6\0\7\0\10\0\11\0"),
        SEED("prompts", "j{\"prompt\": \"a b\", \"completion\": \" c\"}\n{\"prompt\": \"\", "
                        "\"answer\": \"c\"}\n\n"),
        SEED("instructions", "j{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}\n"
                             "{\"instruction\": \"a\", \"output\": \"\"}\n"),
        SEED("texts", "j{\"text\": \"abc\"}\n{\"text\": \"defghi jkl\"}\n{\"text\": \"x y\"}\n"),
        SEED("pairs", "j{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n{\"chosen\": "
                      "\"the same a\", \"rejected\": \"the same b\"}\n"),
        SEED("array", "j[{\"text\": \"a\"}]\n"),
        SEED("chat", "j{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                     "\"assistant\", \"content\": \"b\"}]}\n"),
        SEED("llm.c", "b\x88\xf0\x34\1\1\0\0\0\2\0\0\0"),
#undef SEED
    };
    reader_seed s = { NULL, 0 };
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        reader_add(&s, seeds[i].text, seeds[i].size);
        if (strcmp(seeds[i].name, "llm.c") == 0) { /* adds the rest of llm.c's header, and two tokens */
            static const char zeros[BPE_BIN_HEADER + 4];
            reader_add(&s, zeros, 1 + BPE_BIN_HEADER + 4 - seeds[i].size);
        }
        reader_end_seed(&s, seeds[i].name);
    }
    exit(0);
}

static const char *const words[] = { "\"prompt\"",
                                     "\"completion\"",
                                     "\"answer\"",
                                     "\"text\"",
                                     "\"instruction\"",
                                     "\"input\"",
                                     "\"output\"",
                                     "\"chosen\"",
                                     "\"rejected\"",
                                     "\"the same \\u00e9\"",
                                     "\"the same \\u00e8\"",
                                     "\"half \\ud83d\"",
                                     "\"messages\"",
                                     "\"<|im_end|>\"",
                                     "\" \"",
                                     "{\"text\": \"a\"}\n{\"text\": \"b\"}",
                                     NULL };

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    if (size < 2 || bytes[0] == 'b' || most < size + 1)
        return reader_mutate_bytes(bytes, size, most);
    return 1 + reader_mutate_json(bytes + 1, size - 1, most - 1, seed, words);
}
