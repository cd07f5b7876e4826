/* audit.c - checks the ledger of a training, and repeats any of its steps to the same bits.
 *
 *     ./gpt --data text.txt --steps 5000 --save a.safetensors --ledger a.ledger
 *     ./audit a.ledger                                   # the records, their chain and signatures
 *     ./audit a.ledger --step all --data text.txt        # repeats the training from its seed
 *     ./audit a.ledger --step 4711 --from a.safetensors --data text.txt --budget 20M --threads 3
 *
 * The program that trained (gpt or finetune, next to this one) repeats the steps, with the options
 * that the ledger states and with any budget, mode, micro-batch, number of threads and device; it
 * compares every record and names the first one, and the first tensor, that differ. Exit status: 0
 * equal, 1 not, 2 wrong option or value. */
#define _XOPEN_SOURCE 700
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "ledger_file.h"
#include "options.h"

#include <signal.h>
#include <sys/wait.h>

static struct {
    int64_t help, unfinished;
    const char *ledger, *step, *from, *key, *program;
    /* passed on to the program that repeats the steps */
    const char *data, *validation, *model, *adapter, *teacher, *reference, *budget, *micro_batch,
        *checkpoint, *threads, *device;
} o;

static const options_desc option_descs[] = {
    { "step", OPTIONS_TEXT, &o.step, NULL, 0, 0, NULL,
      "steps to repeat: 4711, 100-200, or all; without this option none" },
    { "from", OPTIONS_FILE, &o.from, NULL, 0, 0, NULL,
      "file written by --save at a step before them; default: the beginning of the training" },
    { "key", OPTIONS_TEXT, &o.key, NULL, 0, 0, NULL,
      "public key that must have signed the ledger: 64 hexadecimal digits" },
    { "unfinished", OPTIONS_FLAG, &o.unfinished, NULL, 0, 0, NULL,
      "accept a ledger without an end: of a training that is still running or lost its power" },
    { "program", OPTIONS_TEXT, &o.program, NULL, 0, 0, NULL,
      "program that repeats the steps, as words: \"mpirun -n 2 build/gpt-mpi\"; default: gpt or "
      "finetune in the folder of this program" },
    { "data", OPTIONS_FILE, &o.data, NULL, 0, 0, NULL,
      "data of the training; this and the next five default to the paths of the ledger" },
    { "validation", OPTIONS_FILE, &o.validation, NULL, 0, 0, NULL, "its validation data" },
    { "model", OPTIONS_PATH, &o.model, NULL, 0, 0, NULL, "finetune: its model" },
    { "adapter", OPTIONS_PATH, &o.adapter, NULL, 0, 0, NULL, "finetune: its adapter" },
    { "teacher", OPTIONS_PATH, &o.teacher, NULL, 0, 0, NULL, "finetune: its teacher" },
    { "reference", OPTIONS_PATH, &o.reference, NULL, 0, 0, NULL, "finetune: its reference" },
    { "budget", OPTIONS_TEXT, &o.budget, NULL, 0, 0, NULL,
      "limit in bytes; this and the next four change no bit" },
    { "micro-batch", OPTIONS_TEXT, &o.micro_batch, NULL, 0, 0, NULL, "rows per pass" },
    { "checkpoint", OPTIONS_TEXT, &o.checkpoint, NULL, 0, 0, NULL,
      "choice of the activations to recompute" },
    { "threads", OPTIONS_TEXT, &o.threads, NULL, 0, 0, NULL, "number of threads" },
    { "device", OPTIONS_TEXT, &o.device, NULL, 0, 0, NULL, "cpu or cuda" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "print this text" },
};
enum { FIRST_PASSED = 5, LAST_PASSED = 15 }; /* --data to --device */
static const options_table options = {
    "audit", option_descs, sizeof option_descs / sizeof option_descs[0], 14, "WHICH", NULL, 0, NULL
};

/* Options that a ledger may state, by the kind of their lines. Others, which would write files, are
 * refused. */
static const struct {
    const char *line, *options;
} stated[] = {
    { "flag ", "bf16 rslora dora ensure-weight-tying special-tokens no-shuffle" },
    { "file ", LEDGER_FILES },
    { "option ",
      "layers heads dim context vocabulary tie dropout seed steps batch lr min-lr warmup "
      "weight-decay beta1 beta2 clip virtual-ranks eval-every method objective size alpha "
      "lora-dropout targets rank-pattern alpha-pattern bias modules-to-save hidden store "
      "layers-to-transform chat user-turn assistant-turn system-turn beta label-smoothing "
      "teacher-store distill-temperature distill-alpha optimiser" }
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int
fail(int status, const char *format, ...)
{
    char text[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fputs("audit: ", stderr);
    ledger_print(stderr, text, strlen(text));
    fputc('\n', stderr);
    return status;
}

/* Returns the exit status of a run that ended with `status`: an error if output was lost. */
static int end(int status)
{
    const int lost = fflush(stdout) != 0 || ferror(stdout);
    return lost && status == 0 ? fail(1, "standard output: %s", strerror(errno)) : status;
}

static struct {
    unsigned char *bytes;
    ledger_report report;
    ledger_sodium sodium;
    int has_sodium;
    /* step of --from, or of the first record; last step to repeat, or 0 for all; last step that
     * must be compared */
    uint64_t first, until, last;
} run;

/* Prints "NAME VALUE" of the run's text, if it has that line. */
static void print_line(const ledger_record *r, const char *name)
{
    size_t n;
    const char *value = ledger_value(r, name, &n);
    if (value == NULL)
        return;
    printf("%-9s", name);
    ledger_print(stdout, value, n);
    putchar('\n');
}

static void print_hex(const char *name, const unsigned char *bytes, const char *after)
{
    char hex[2 * LEDGER_HASH + 1];
    ledger_text t = { hex, sizeof hex, 0 };
    ledger_put_hex(&t, bytes, LEDGER_HASH);
    printf("%-9s%s%s\n", name, hex, after);
}

static void print_summary(void)
{
    const ledger_report *r = &run.report;
    ledger_record first;
    ledger_read(run.bytes, r->bytes, 0, &first);
    printf("ledger   %s: %llu records, %zu bytes, steps %llu to %llu, %llu run%s\n", o.ledger,
           (unsigned long long)r->end.index, r->bytes, (unsigned long long)first.state.step,
           (unsigned long long)r->state.step, (unsigned long long)r->runs, r->runs == 1 ? "" : "s");
    print_line(&r->run, "program");
    print_line(&r->run, "contract");
    print_line(&r->run, "loss");
    print_line(&r->run, "data");
    if (r->has_key)
        print_hex("key", r->end.key,
                  run.has_sodium ? ", which signed all records"
                                 : "; signatures not checked, which needs libsodium");
    else
        puts("key      none: not signed, so this does not show who trained");
    print_hex("hash", r->end.hash, r->has_end ? "" : "; without an end");
}

/* Reads and checks the ledger. */
static int check(void)
{
    size_t size = 0;
    unsigned char key[LEDGER_KEY];
    const int fd = open(o.ledger, O_RDONLY | O_NONBLOCK); /* does not wait for a pipe's writer */
    run.bytes = fd >= 0 ? ledger_read_file(fd, &size) : NULL;
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (run.bytes == NULL)
        return fail(1, "%s: %s", o.ledger, ledger_error(error));
    run.has_sodium = ledger_load_sodium(&run.sodium);
    if (!ledger_verify(run.bytes, size, run.has_sodium ? ledger_check_sodium : NULL, &run.sodium,
                       &run.report))
        return fail(1, "%s: %s%s", o.ledger, run.report.error,
                    size > 0 && ledger_is_unfinished(run.bytes, size, &run.report)
                        ? "; if the training lost its power, resume it, which cuts the record off"
                        : "");
    print_summary();
    if (o.key != NULL &&
        (strlen(o.key) != 2 * LEDGER_KEY || !ledger_get_hex(o.key, key, LEDGER_KEY)))
        return fail(2, "--key %s: a key is 64 hexadecimal digits, 0 to 9 and a to f", o.key);
    if (o.key != NULL && (!run.report.has_key || memcmp(key, run.report.end.key, LEDGER_KEY) != 0))
        return fail(1, "%s: record 0 %s", o.ledger,
                    run.report.has_key ? "is signed with another key" : "is not signed");
    if (o.key != NULL && !run.has_sodium)
        return fail(1, "--key %s: checking signatures needs libsodium, which is not installed",
                    o.key);
    if (!run.report.has_end && !o.unfinished)
        return fail(1,
                    "%s: record %llu is missing, an end: the training is not finished, or records "
                    "were cut off; --unfinished accepts that",
                    o.ledger, (unsigned long long)run.report.end.index);
    return 0;
}

static const char *skip_all(void *user, const char *name) { return (void)name, (const char *)user; }

/* Sets run.first to the step at which the repetition begins. */
static int find_first(void)
{
    static char path[4096];
    const gckpt_file_desc nothing = { .rename = skip_all };
    struct stat info;
    ledger_record first;
    ledger_read(run.bytes, run.report.bytes, 0, &first);
    run.first = first.state.step;
    if (o.from == NULL && run.first > 0)
        return fail(1,
                    "%s begins at step %llu: give the file saved at that step or a later one "
                    "with --from",
                    o.ledger, (unsigned long long)run.first);
    if (o.from == NULL)
        return 0;
    if (stat(o.from, &info) == 0 && S_ISDIR(info.st_mode)) { /* as --resume of finetune takes it */
        snprintf(path, sizeof path, "%s/training.safetensors", o.from);
        o.from = path;
    }
    gckpt_store *store = gckpt_store_new(NULL);
    const gckpt_result result = gckpt_store_load(store, o.from, &nothing);
    const int failed = result != GCKPT_OK && result != GCKPT_OTHER_CONTRACT;
    run.first = failed ? 0 : gckpt_store_step(store);
    if (failed)
        fail(1, "--from %s: %s", o.from, gckpt_error_text(store));
    gckpt_store_free(store);
    return failed;
}

/* Sets run.until to the first step with a record at or after the last one of --step, of those that
 * no later run went back before, and run.last to the last step that is to be compared. */
static int find_until(void)
{
    const int all = strcmp(o.step, "all") == 0, range = strchr(o.step, '-') != NULL;
    char *end = NULL, *after = NULL;
    const uint64_t begin = strtoull(o.step, &end, 10),
                   last = range && *end == '-' ? strtoull(end + 1, &after, 10) : begin;
    const int whole =
        range ? *end == '-' && end[1] >= '0' && end[1] <= '9' && *after == 0 : *end == 0;
    ledger_record r;
    if (!all && (!whole || o.step[0] < '0' || o.step[0] > '9' || begin == 0 || last < begin))
        return fail(2, "--step %s: allowed is a step from 1, a range such as 100-200, or all",
                    o.step);
    if (!all && begin <= run.first && run.first > 0)
        return fail(2, "--step %s: --from %s is of step %llu, which is not before it", o.step,
                    o.from, (unsigned long long)run.first);
    for (size_t at = 0; at < run.report.bytes; at += r.bytes) {
        ledger_parse(run.bytes + at, &r);
        if (!all && r.kind == LEDGER_RUN && r.state.step < run.until)
            run.until = 0;
        if (!all && r.state.step >= last && (run.until == 0 || r.state.step < run.until))
            run.until = r.state.step;
        if (all && r.state.step > run.last)
            run.last = r.state.step;
    }
    if (!all)
        run.last = run.until;
    if (!all && run.until == 0)
        return fail(1, "--step %s: the last record of %s is of step %llu", o.step, o.ledger,
                    (unsigned long long)run.report.state.step);
    return 0;
}

/* ---- the command ------------------------------------------------------------------------------ */
enum { WORDS = 192 };
static struct {
    char *word[WORDS + 1];
    int count, failed;
} command;

static void add(const char *name, const char *value, size_t length)
{
    const size_t size = strlen(name) + length + 4;
    char *word = command.count < WORDS ? (char *)malloc(size) : NULL;
    if (word == NULL) {
        command.failed = 1;
        return;
    }
    snprintf(word, size, "%s%s%s%.*s", *name != 0 ? "--" : "", name,
             *name != 0 && value != NULL ? "=" : "", (int)length, value != NULL ? value : "");
    command.word[command.count++] = word;
}

static void add_option(const char *name, const char *value)
{
    if (value != NULL)
        add(name, value, strlen(value));
}

/* Returns 1 if `words`, separated by blanks, have `word`, which has no blank. */
static int is_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = words; *p != 0; p += strcspn(p, " "), p += *p == ' ')
        if (strncmp(p, word, n) == 0 && (p[n] == ' ' || p[n] == 0))
            return 1;
    return 0;
}

/* Adds the words of --program, or the path of the ledger's program next to this one. */
static int add_program(const char *self, const ledger_record *r)
{
    char path[4096];
    size_t n;
    const char *name = ledger_value(r, "program", &n), *slash = strrchr(self, '/');
    const char *const names[] = { "gpt", "finetune" };
    int known = 0;
    for (int i = 0; i < 2 && name != NULL; i++)
        known |= n == strlen(names[i]) && memcmp(name, names[i], n) == 0;
    if (!known)
        return fail(1,
                    "record %llu states another program than gpt or finetune; its own program "
                    "can audit it by the calls of ledger.h",
                    (unsigned long long)r->index);
    snprintf(path, sizeof path, "%.*s%.*s", slash == NULL ? 0 : (int)(slash - self) + 1, self,
             (int)n, name);
    if (o.program == NULL)
        add("", path, strlen(path));
    for (const char *p = o.program; p != NULL && *p != 0; p += n) {
        p += strspn(p, " ");
        n = strcspn(p, " ");
        if (n > 0)
            add("", p, n);
    }
    return 0;
}

/* Adds the options that the run `r` states. An option's kind follows from its line, and values stand
 * behind "=", so that no option takes the next word as its value. */
static int add_stated(const ledger_record *r)
{
    enum { KINDS = sizeof stated / sizeof stated[0] };
    const char *line = r->text, *end = r->text + r->length, *next;
    for (; line < end; line = next + 1) {
        char name[64] = "";
        size_t kind = 0, n = 0;
        next = (const char *)memchr(line, '\n', (size_t)(end - line));
        next = next != NULL ? next : end;
        for (; kind < KINDS; kind++) {
            n = strlen(stated[kind].line);
            if ((size_t)(next - line) > n && memcmp(line, stated[kind].line, n) == 0)
                break;
        }
        if (kind == KINDS)
            continue;
        const char *value = (const char *)memchr(line + n, ' ', (size_t)(next - line) - n);
        if (value != NULL && (size_t)(value - line) - n < sizeof name)
            snprintf(name, sizeof name, "%.*s", (int)(value - line - (ptrdiff_t)n), line + n);
        int control = 0; /* the program would print the value as it is, if it refuses it */
        for (const char *p = line; p < next; p++)
            control |= (unsigned char)*p < 32 || *p == 127;
        if (name[0] == 0 || control || !is_word(stated[kind].options, name))
            return fail(1, "record %llu states an option that an audit does not take: %.*s",
                        (unsigned long long)r->index, (int)(next - line), line);
        add(name, kind == 0 ? NULL : value + 1, kind == 0 ? 0 : (size_t)(next - value) - 1);
    }
    return 0;
}

/* Copies the output of the program to standard output. Returns 1 if a line of it says that all
 * records of the steps from run.first to run.last are equal. */
static int copy_output(int fd)
{
    char bytes[4096], line[256], want[64];
    size_t used = 0;
    ssize_t n;
    int equal = 0;
    snprintf(want, sizeof want, ", steps %llu to %llu", (unsigned long long)run.first,
             (unsigned long long)run.last);
    while ((n = read(fd, bytes, sizeof bytes)) > 0 || (n < 0 && errno == EINTR)) {
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] != '\n') {
                line[used] = bytes[i];
                used += used + 1 < sizeof line;
                continue;
            }
            line[used] = 0;
            equal |= strncmp(line, "audit  equal: ", 14) == 0 && used > strlen(want) &&
                     strcmp(line + used - strlen(want), want) == 0;
            used = 0;
        }
        if (n > 0)
            fwrite(bytes, 1, (size_t)n, stdout);
        fflush(stdout);
    }
    return equal;
}

/* Runs the command. Returns 0 if it ended with 0 and said that the steps are equal, else its exit
 * status or 1. */
static int execute(void)
{
    int status = 0, out[2];
    command.word[command.count] = NULL;
    fflush(stdout);
    if (pipe(out) != 0)
        return fail(1, "%s: %s", command.word[0], strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        close(out[1]);
        execvp(command.word[0], command.word);
        _exit(fail(127, "%s: %s", command.word[0], strerror(errno)));
    }
    close(out[1]);
    signal(SIGINT, SIG_IGN); /* the child stops at the end of its step */
    const int equal = child > 0 && copy_output(out[0]);
    close(out[0]);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return fail(1, "%s: %s", command.word[0], strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 127)
        return 1;
    if (WEXITSTATUS(status) == 0 && !equal)
        return fail(1, "%s did not report that steps %llu to %llu are equal", command.word[0],
                    (unsigned long long)run.first, (unsigned long long)run.last);
    return WEXITSTATUS(status);
}

/* Repeats steps by the program that trained. */
static int repeat(const char *self)
{
    char until[32];
    ledger_record r, run_of = run.report.run, from;
    size_t n;
    int status = find_first();
    status = status == 0 ? find_until() : status;
    if (status != 0)
        return status;
    if (!ledger_find(run.bytes, run.report.bytes, run.first, &from))
        return fail(1, "--from %s is of step %llu, of which %s has no record", o.from,
                    (unsigned long long)run.first, o.ledger);
    for (size_t at = 0; at < run.report.bytes; at += r.bytes) {
        ledger_parse(run.bytes + at, &r);
        if (r.kind == LEDGER_RUN && r.index <= from.index)
            run_of = r;
    }
    const char *contract = ledger_value(&run_of, "contract", &n);
    if (contract == NULL || strtol(contract, NULL, 10) != GCKPT_CONTRACT)
        return fail(1,
                    "record %llu is of numeric contract %.*s, and this program computes by "
                    "contract %d: build the version of gradckpt.h that trained",
                    (unsigned long long)run_of.index, contract != NULL ? (int)n : 0, contract,
                    GCKPT_CONTRACT);
    status = add_program(self, &run_of);
    snprintf(until, sizeof until, "%llu", (unsigned long long)run.until);
    add_option("audit", o.ledger);
    add_option("audit-until", until);
    status = status == 0 ? add_stated(&run_of) : status;
    if (status != 0)
        return status;
    add_option("resume", o.from);
    for (size_t i = FIRST_PASSED; i <= LAST_PASSED; i++)
        add_option(option_descs[i].name, *(const char **)option_descs[i].variable);
    return command.failed ? fail(1, "out of memory for a command, or more than %d words", WORDS)
                          : execute();
}

int main(int argc, char **argv)
{
    const int named = argc > 1 && argv[1][0] != '-';
    o.ledger = named ? argv[1] : NULL;
    int status = options_parse(&options, argc - named, argv + named);
    if (status == 0 && o.help) {
        printf("audit - checks the ledger of a training, and repeats steps to the same bits\n\n"
               "Usage: audit LEDGER [--step STEPS [--from FILE] [--OPTION VALUE ..]]\n\n");
        options_print(&options);
        printf("\nExit status: 0 equal, 1 not equal or refused, 2 wrong option or value.\n");
        return end(0);
    }
    if (status == 0 && o.ledger == NULL)
        status = fail(2, "give the ledger first: audit LEDGER");
    if (status == 0)
        status = check();
    if (status == 0 && o.step != NULL)
        status = repeat(argv[0]);
    else if (status == 0)
        puts(
            "audit    the records are whole; --step repeats steps, which shows that they are true");
    while (command.count > 0)
        free(command.word[--command.count]);
    free(run.bytes);
    return end(status);
}
