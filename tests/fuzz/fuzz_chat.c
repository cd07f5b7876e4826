/* fuzz_chat.c - reads any bytes as a model's chat template, as a template given by the user, and as chats to train
 * on.
 *
 * The input is tokenizer_config.json, chat_template.jinja, three lines with the texts around turns of system, user
 * and assistant (or a line with the name of a format), and JSON lines with chats, with the byte 0x1e between these
 * parts. The tokenizer is SmolLM2's or, for inputs with an odd number of bytes, Llama 2's, which puts a space
 * before texts. The functions under test are chat_open, chat_set_turn, chat_encode, and dataset_open_as and
 * dataset_open_pairs of all chats.
 *
 * The rules: A refusal has an error text and leaves the tokens unchanged. The rendered text equals the decoded
 * tokens, apart from the spaces of Llama 2's tokenizer and from white space that a token strips. Only answers are
 * trained on, and rows are complete for every length. One input in eight is encoded and opened in all ways, any
 * other in one way. One in four of these other inputs has the tokens of its turns compared with its text. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "dataset.h"
#include "reader.h"
#include "rows.h"

enum { TURNS = 16 };
static bpe tokenizers[2];

/* Returns whether a run of bytes of one origin begins within a UTF-8 character, for whose parts there may be no token. */
static int is_cut(const chat *c)
{
    for (size_t i = 0; i < c->out.size; i++)
        if ((c->out.text[i] & 0xc0) == 0x80 &&
            (i == 0 || (chat_origin(&c->out, i) == 0) != (chat_origin(&c->out, i - 1) == 0) ||
             c->targets[i] != c->targets[i - 1]))
            return 1;
    return 0;
}

/* Removes from a text, in place, spaces and the character that Llama 2's tokenizer writes for them, since this
 * tokenizer adds a space after each special token. If `white` is nonzero, removes all white space. Returns the new
 * size. */
static size_t spaceless(char *text, size_t n, int white)
{
    size_t kept = 0, size;
    for (size_t i = 0; i < n; i += size) {
        const int is = jinja_is_white(text + i, n - i, &size) && (white || text[i] == ' ');
        if (is || (size == 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0))
            continue;
        memmove(text + kept, text + i, size);
        kept += size;
    }
    return kept;
}

/* Returns whether a text contains an added token that strips the white space next to it. */
static int is_stripped(const bpe *b, const char *text, size_t n)
{
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < b->added_count[list]; i++) {
            const bpe_added *a = &b->added[list][i];
            if ((a->lstrip || a->rstrip) && memmem(text, n, a->name, a->name_size) != NULL)
                return 1;
        }
    return 0;
}

/* Splits the text `lines` at its commas into turns, whose roles depend on their numbers and sizes. Renders a chat of
 * these turns and, for some inputs, encodes it; the decoded tokens must equal the rendered text. */
static void try_turns(chat *c, bpe *tokenizer, const char *lines, size_t size, uint64_t chosen)
{
    chat_turn turns[TURNS];
    size_t count = 0;
    for (size_t i = 0; i < size && count < TURNS; count++) {
        const char *end = (const char *)memchr(lines + i, ',', size - i);
        const size_t n = end != NULL ? (size_t)(end - lines) - i : size - i;
        turns[count].role =
            (chat_role)(count == 0 && n % 3 == 0 ? CHAT_SYSTEM : 1 + (count + n / 64) % 2);
        turns[count].text = lines + i;
        turns[count].size = n;
        i += n + 1;
    }
    for (int flags = 0; flags < 4; flags++) {
        if (chosen % 8 > 0 && chosen / 8 % 4 != (uint64_t)flags)
            continue;
        bpe_tokens t = { NULL, 0, 0, "" };
        chat_mask marks = { NULL, 0 };
        c->error[0] = 0;
        const int refused = chat_encode(c, tokenizer, turns, count, flags & 1, flags >> 1, &t, &marks) != 0;
        must(refused == (c->error[0] != 0));
        must(!refused || t.count == 0);
        if (!refused && (chosen % 8 == 0 || chosen / 32 % 4 == 0)) {
            size_t back, valid;
            const char *all = c->out.text != NULL ? c->out.text : "";
            char *text = bpe_decode(tokenizer, t.ids, t.count, &back);
            char *whole = bpe_to_utf8(all, c->out.size, &valid);
            must(text != NULL && whole != NULL && marks.capacity >= t.count);
            const int cut = is_cut(c) || valid != c->out.size || memcmp(whole, all, valid) != 0;
            const int white = is_stripped(tokenizer, whole, valid);
            if (!tokenizer->byte_level || white) {
                back = spaceless(text, back, white);
                valid = spaceless(whole, valid, white);
            }
            must(cut || (back == valid && memcmp(text, whole, back) == 0));
            free(text);
            free(whole);
        }
        free(marks.flags);
        bpe_tokens_free(&t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const reader_parts p = reader_split(bytes, size);
    char own[3][600];
    static chat c;
    chat_free(&c);
    if (tokenizers[0].count == 0) {
        must(bpe_open(&tokenizers[0], "tests/golden/tokenizer/smollm2") == 0);
        must(bpe_open(&tokenizers[1], "tests/golden/tokenizer/llama2") == 0);
    }
    bpe *tokenizer = &tokenizers[size % 2];
    if (p.size[0] > 0)
        memfs_put("tokenizer_config.json", p.at[0], p.size[0]);
    if (p.size[1] > 0)
        memfs_put("chat_template.jinja", p.at[1], p.size[1]);
    memset(own, 0, sizeof own);
    for (size_t i = 0, line = 0, n = 0; i < p.size[2] && line < 3; i++)
        if (p.at[2][i] == '\n')
            line++, n = 0;
        else if (n + 1 < sizeof own[0])
            own[line][n++] = p.at[2][i];
    const int named = own[0][0] != 0 && own[1][0] == 0;
    int failed = chat_open(&c, memfs_folder(input_hash(bytes, size)), named ? own[0] : NULL) != 0;
    memfs_end();
    must((c.error[0] != 0) == failed);
    for (int i = 0; i < 3 && !named && !failed && own[i][0] != 0; i++) {
        failed = chat_set_turn(&c, (chat_role)i, own[i]) != 0;
        must((c.error[0] != 0) == failed);
    }
    if (failed)
        return 0;
    c.program.max_steps = 1 << 18; /* a template may take these steps for each answer */
    c.program.max_bytes = 1 << 26;
    if (c.name[0] != 0) {
        try_turns(&c, tokenizer, p.size[3] > 0 ? p.at[3] : "", p.size[3], input_hash(bytes, size));
        must(chat_end_token(&c, tokenizer) < tokenizer->count);
    }
    if (p.size[3] > 0)
        try_rows_of("x.jsonl", p.at[3], p.size[3], tokenizer, &c);
    chat_free(&c);
    return 0;
}

/* Writes a seed, and the same seed with one empty line more, which selects the other tokenizer. */
static void end_seeds(reader_seed *s, const char *name)
{
    reader_seed more = { NULL, 0 };
    char other[64];
    snprintf(other, sizeof other, "%s-more", name);
    reader_add(&more, s->text, s->size);
    reader_add(&more, "\n", 1);
    reader_end_seed(s, name);
    reader_end_seed(&more, other);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char own[] = "<s>{}</s>\n<|user|>\\n{}\\n\n<|a|>{}<|im_end|>\\n\n";
    static const char pairs[] =
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"p\"}], \"chosen\": [{\"role\": "
        "\"assistant\", \"content\": \"a\"}], \"rejected\": [{\"role\": \"assistant\", "
        "\"content\": \"b\"}]}\n{\"prompt\": \"p\", \"chosen\": [{\"role\": \"assistant\", "
        "\"content\": \"a\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n"
        "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
    static const char config[] =
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"<|im_end|>\"}, "
        "\"chat_template\": [{\"name\": \"default\", \"template\": \"x\"}]}";
    size_t size, line;
    reader_seed s = { NULL, 0 };
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    char *chats = reader_read("tests/golden/chat.jsonl", &size);
    for (int i = -2; i < CHAT_TEMPLATES; i++) {
        line = size < 1500 ? size : 1500;
        while (line > 0 && chats[line - 1] != '\n')
            line--;
        reader_add_part(&s, config, sizeof config - 1);
        if (i < 0)
            reader_add_file(&s, "tests/golden/chat_template.jinja");
        else
            reader_add_part(&s, "", 0);
        if (i == -1)
            reader_add_part(&s, own, sizeof own - 1);
        else
            reader_add_part(&s, i < 0 ? "" : chat_templates[i].name,
                            i < 0 ? 0 : strlen(chat_templates[i].name));
        const char said[] =
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a b\"}, {\"role\": \"assistant\", "
            "\"content\": [{\"type\": \"text\", \"text\": \"c\"}]}]}\n{\"instruction\": \"x\", "
            "\"input\": \"y\", \"output\": \"z\"}\n{\"prompt\": \"p\", \"completion\": \"q\"}\n";
        reader_add_part(&s, i % 2 == 0 ? said : chats, i % 2 == 0 ? sizeof said - 1 : line);
        end_seeds(&s, i == -2 ? "template" : i == -1 ? "own" : chat_templates[i].name);
    }
    /* variants of a seed with different numbers of empty lines, since the bytes choose how an input is opened */
    for (int i = 0; i < 8; i++) {
        char name[16];
        reader_add_part(&s, config, sizeof config - 1);
        reader_add_part(&s, "", 0);
        reader_add_part(&s, own, sizeof own - 1);
        reader_add_part(&s, pairs, sizeof pairs - 1);
        reader_add(&s, "\n\n\n\n\n\n\n", (size_t)i);
        snprintf(name, sizeof name, "pairs-%d", i);
        reader_end_seed(&s, name);
    }
    free(chats);
    exit(0);
}

static const char *const words[] = { "\"user\"",
                                     "\"assistant\"",
                                     "\"system\"",
                                     "\"messages\"",
                                     "\"content\"",
                                     "\"<|im_end|>\"",
                                     "\"<|im_start|>\"",
                                     "\"</think>\"",
                                     "{\"role\": \"assistant\", \"content\": \"\"}",
                                     "{\"role\": \"user\", \"content\": \" x\\n\"}",
                                     "[{\"role\": \"user\", \"content\": \"x\"}]",
                                     "[{\"type\": \"text\", \"text\": \"c\"}]",
                                     NULL };

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    return reader_mutate_json(bytes, size, most, seed, words);
}
