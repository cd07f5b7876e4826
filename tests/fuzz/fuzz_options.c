/* fuzz_options.c - any words as the command line of examples/finetune.c, which has the longest table of options;
 * with --resume, a checkpoint whose notes give any options; and an event log to which the program appends.
 *
 * The input has parts: the words, one a line (FILE is a checkpoint with the notes, GONE does not exist); notes, one
 * a line, "name=value"; and the event log. The rules:
 * - Refused words give a nonzero status and a complete line on stderr.
 * - Accepted values are within the limits of the option's row in the table, and equal for "--name value" and
 *   "--name=value". If an option is given twice, the last value counts.
 * - Resuming cuts the log at the end of a line, before events of later steps. A file that is no event log is
 *   unchanged. */
#define PROGRAM "examples/finetune.c"
#include "command_line.h"

enum { LINE, KEPT, EVENTS };

static void fresh(void)
{
    memset(&o, 0, sizeof o);
    memset(&lm, 0, sizeof lm);
    memset(&run, 0, sizeof run);
    while (session.text_count > 0)
        free(session.texts[--session.text_count]);
    memset(&session, 0, sizeof session);
    session.program = "finetune";
    session.out = messages;
    reset_messages();
}

static void try_line(int argc, char **argv)
{
    if (!parse_both_ways(argc, argv))
        return;
    if (lm.help) {
        options_print_option(&options, options_at(&options, argc % options_count(&options)));
        return;
    }
    int status = lm.resume != NULL ? restore_options(argc, argv) : 0;
    must_have_message(status);
    if (status == 0)
        must_be_allowed();
    if (status == 0)
        status = check_steps(argc, argv);
    if (status == 0)
        status = check_options();
    if (status == 0)
        status = check_objective(argc, argv);
    must_have_message(status);
    if (status == 0 && o.new_model != NULL) {
        static model_any m;
        memset(&m, 0, sizeof m);
        size_model(&m);
    }
    if (status == 0)
        must(o.model != NULL && lm.batch > 0);
}

static void try_events(const char *bytes, size_t size, uint64_t step)
{
    char path[256];
    size_t n;
    fresh();
    snprintf(path, sizeof path, "%s", reader_path("events"));
    reader_write_to(path, bytes, size);
    const int status = session_append_log(path, step);
    if (session.json != NULL)
        fclose(session.json);
    session.json = NULL;
    must_have_message(status);
    char *left = reader_read(path, &n);
    must(n <= size && memcmp(left, bytes, n) == 0);
    must(status == 0 || n == size);
    must(status != 0 || n == 0 || left[n - 1] == '\n');
    const char *key = status == 0 ? strstr(left, "\"step\":") : NULL;
    must(key == NULL || strtoull(key + 7, NULL, 10) <= step);
    free(left);
    remove(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static char line[TEXT];
    char *argv[WORDS + 1];
    const reader_parts p = reader_split(bytes, size);
    if (p.size[LINE] >= sizeof line)
        return 0;
    memcpy(line, p.at[LINE], p.size[LINE]);
    line[p.size[LINE]] = 0;
    const int argc = parse_line(line, argv);
    if (p.count > KEPT)
        words_note(p.at[KEPT], p.size[KEPT]);
    else
        remove(file);
    try_line(argc, argv);
    if (p.count > EVENTS)
        try_events(p.at[EVENTS], p.size[EVENTS], p.size[LINE] % 9);
    fresh();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    static const char *const values[] = { "0",          "1",
                                          "-1",         "auto",
                                          "0.5",        "1e999",
                                          "nan",        "20M",
                                          "20MB",       "9007199254740993",
                                          "1e-3",       "FILE",
                                          "GONE",       "x.gguf",
                                          "",           "all",
                                          "lora",       "full",
                                          "dpo",        "distill",
                                          "2x8x2x16",   "llama:1x8x2x1x16x300",
                                          "c_attn=4",   "{}",
                                          "0-3,5",      "--steps",
                                          "4294967296", "i4",
                                          "last" };
    return words_mutate(bytes, size, most, seed, values, sizeof values / sizeof *values);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const seeds[] = {
        "--model\nGONE\n--data\nGONE\n--steps\n10\n--save=tuned",
        "--model=GONE\n--method=all\n--data=x\n--save\nd\n--memory-svg\np.svg\n--budget\n20MB",
        "--resume\nFILE\n--lr\n1e-4\x1emodel=GONE\nmethod=lora\ndata=GONE\nsize=4\nsteps=100\n.data=00",
        "--model\nm\n--generate\n--prompt\nx\n--sample\n5\n--temperature=0.5",
        "--model\nm\n--objective\ndpo\n--beta\n0.2\n--data\nd.jsonl\n--reference\nr",
        "--model\nm\n--objective=distill\n--teacher\nt\n--data\nd\n--distill-alpha\n0.1",
        "--new\n2x8x2x16\n--model\nm\n--data\nd\n--context\n8\n--epochs\n2\n--micro-batch\nauto",
        "--help",
        "-h\n--stpes\n3",
        "\x1e\x1e{\"event\":\"options\",\"step\":0}\n{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\","
        "\"step\":9}\n{\"event\"",
        "--merge\nm2\n--adapter\na\n--model\nm\n--export\nbf16",
        "--model\nm.gguf\n--export-gguf\na.gguf\n--adapter\na\n--store\nauto"
    };
    (void)argc, (void)argv;
    words_begin(seeds, sizeof seeds / sizeof *seeds);
    return 0;
}
