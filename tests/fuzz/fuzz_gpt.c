/* fuzz_gpt.c - any words as the command line of examples/gpt.c, and any file from which to resume or on which to
 * train.
 *
 * The input has parts: the words, one a line (FILE is the file, GONE does not exist); notes of
 * options, "name=value", for FILE as a checkpoint; or, in a third part, the bytes of FILE: an index
 * of ranks, a checkpoint, a text. In addition to the rules of command_line.h:
 * - An index of ranks is recognised by its first eight bytes alone.
 * - A file from which training cannot resume gives a line on stderr; from another file, resumed options have
 *   allowed values.
 * - An accepted text has a window for training and one for validation, both made of its bytes. */
#define PROGRAM "examples/gpt.c"
#include "command_line.h"

enum { LINE, KEPT, RAW };

static void fresh(void)
{
    gckpt_store_free(run.store);
    free(text.bytes);
    memset(&o, 0, sizeof o);
    memset(&lm, 0, sizeof lm);
    memset(&run, 0, sizeof run);
    memset(&text, 0, sizeof text);
    memset(&reports, 0, sizeof reports);
    while (session.text_count > 0)
        free(session.texts[--session.text_count]);
    memset(&session, 0, sizeof session);
    session.program = "gpt";
    session.out = messages;
    reset_messages();
}

static void try_window(size_t start, size_t end)
{
    enum { MOST = 64 };
    int32_t tokens[MOST], targets[MOST];
    const size_t T = (size_t)o.context;
    if (T > MOST)
        return;
    put_window(tokens, targets, start, end);
    for (size_t t = 0; t < T; t++) {
        must(tokens[t] >= 0 && tokens[t] < BYTES && targets[t] >= -1 && targets[t] < BYTES);
        must((targets[t] == -1) == (start + t + 1 >= end));
    }
}

static void try_line(int argc, char **argv)
{
    if (!parse_both_ways(argc, argv))
        return;
    if (lm.help) {
        options_print_option(&options, options_at(&options, argc % options_count(&options)));
        return;
    }
    int status = open_store(argc, argv);
    must_have_message(status);
    if (status == 0) {
        must_be_allowed();
        status = check_options();
    }
    must_have_message(status);
    if (status != 0)
        return;
    must(o.dim % (2 * o.heads) == 0 && lm.batch > 0);
    if (lm.data != file || (lm.validation != NULL && lm.validation != file))
        return;
    status = load_text(argv[0]);
    must_have_message(status);
    if (status != 0)
        return;
    must(text.train >= (size_t)o.context + 1 && text.size >= text.train + 2);
    try_window(text.train - (size_t)o.context - 1, text.train);
    try_window(text.size - 2, text.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static char line[TEXT];
    char *argv[WORDS + 1];
    const reader_parts p = reader_split(bytes, size);
    const int raw = p.count > RAW;
    if (p.size[LINE] >= sizeof line)
        return 0;
    memcpy(line, p.at[LINE], p.size[LINE]);
    line[p.size[LINE]] = 0;
    const int argc = parse_line(line, argv);
    if (raw)
        reader_write_to(file, p.at[RAW], p.size[RAW]);
    else if (p.count > KEPT)
        words_note(p.at[KEPT], p.size[KEPT]);
    else
        remove(file);
    try_line(argc, argv);
    fresh();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    static const char *const values[] = {
        "0",    "1",     "-1",    "auto",       "0.5",
        "nan",  "20M",   "20MB",  "1e999",      "1e-3",
        "FILE", "GONE",  "",      "256",        "257",
        "-",    "cuda",  "none",  "4294967296", "2",
        "8",    "--dim", "a.svg", "a.json",     "9007199254740993"
    };
    return words_mutate(bytes, size, most, seed, values, sizeof values / sizeof *values);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const seeds[] = {
        "--steps\n10\n--save=a\n--budget\n24M\n--sample=400",
        "--data=FILE\n--context\n4\x1e\x1eThe quick brown fox jumps over the lazy dog, it seems.",
        "--data=FILE\n--validation\nFILE\n--context=8\x1e\x1e to learn and to validate with\n",
        "--resume\nFILE\n--lr\n1e-4\x1elayers=2\ndim=16\nheads=2\nsteps=100\n.data=00",
        "--resume=FILE\x1e\x1e{\"gckpt\":[1,7,2],\"files\":{\"file.0\":[8,1]}}",
        "--resume=FILE\n--save\nGONE\x1e\x1e{\"gckpt",
        "--micro-batch=auto\n--tune-seconds\n2\n--checkpoint\n1",
        "--layers\n8\n--summary\n--dim=64\n--heads\n4\n--tie=0\n--vocabulary\n512",
        "--plan\n--bf16-fast\n--device=cuda",
        "--help"
    };
    (void)argc, (void)argv;
    words_begin(seeds, sizeof seeds / sizeof *seeds);
    return 0;
}
