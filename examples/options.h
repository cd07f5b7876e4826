/* options.h - command-line options from one table, which drives both the parser and the --help
 * text. To use it, copy the file; it needs C99 and the C library only.
 *
 *     static struct { int64_t steps, help; double lr; const char *save; } o;
 *     static const options_desc descs[] = {
 *         { "steps", OPTIONS_INT, &o.steps, "1000", 0, 1e12, NULL, "steps in all" },
 *         { "lr", OPTIONS_REAL, &o.lr, "1e-3", 0, 10, NULL, "learning rate" },
 *         { "save", OPTIONS_FILE, &o.save, NULL, 0, 0, NULL, "file for the weights" },
 *         { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "print this text" },
 *     };
 *     static const options_table options = { "train", descs, sizeof descs / sizeof descs[0], 14,
 *                                            "", NULL, 0, NULL };
 *
 *     if (options_parse(&options, argc, argv) != 0)
 *         return 2;
 *     if (o.help)
 *         options_print(&options);
 *
 * "--name value" and "--name=value" are equivalent, and -h is --help. If an option is given
 * twice, the last one counts. Options that several programs share go into a second table,
 * options_table.common. */
#ifndef OPTIONS_H
#define OPTIONS_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    OPTIONS_INT,         /* int64_t from min to max */
    OPTIONS_INT_OR_AUTO, /* int64_t from min to max, or OPTIONS_AUTO for the text "auto" */
    OPTIONS_REAL,          /* double from min to max */
    OPTIONS_BYTES,  /* int64_t from min to max; 20M and 20MiB are 20 * 2^20, 20MB is 20 * 10^6 */
    OPTIONS_CHOICE, /* int64_t, an index into `choices` */
    OPTIONS_TEXT,   /* const char *, any text */
    OPTIONS_FILE,   /* const char *, not empty: a file */
    OPTIONS_FOLDER, /* const char *, not empty: a folder */
    OPTIONS_PATH,   /* const char *, not empty: a folder or a file */
    OPTIONS_FLAG    /* int64_t, 1 if given; takes no value */
} options_kind;
enum { OPTIONS_AUTO = -1 };

typedef struct {
    const char *name; /* name without the leading "--" */
    options_kind kind;
    void *variable;         /* the variable that the option sets, of the type that its kind says */
    /* default value, as text; if NULL, the variable keeps its value */
    const char *default_text;
    double min, max;
    const char *const *choices; /* the allowed texts of an OPTIONS_CHOICE; NULL ends the list */
    const char *help;
} options_desc;

typedef struct {
    const char *program; /* name of the program for error texts */
    const options_desc *options;
    int count;
    int width;                 /* width of the column of names in the help */
    /* word that stands for the value of an OPTIONS_CHOICE in the help */
    const char *choice_label;
    /* further options, which several programs share, or NULL */
    const options_desc *common;
    int common_count;
    const char *const
        *defaults; /* defaults of common options that differ in this program: name, value, name,
                    * value, .., NULL; or NULL */
} options_table;

/* Rows that the tables of training programs share. The variables are fields of the struct v; a program
 * with another default states it in options_table.defaults. */
#define OPTIONS_BATCH(v) { "batch", OPTIONS_INT, &v.batch, "8", 1, 1 << 20, NULL, "rows per step" }
#define OPTIONS_WARMUP(v)                                                                          \
    {                                                                                              \
        "warmup", OPTIONS_INT, &v.warmup, "10", 0, 1e12, NULL, "steps of linear warm-up"           \
    }
#define OPTIONS_WEIGHT_DECAY(v)                                                                    \
    {                                                                                              \
        "weight-decay", OPTIONS_REAL, &v.weight_decay, "0", 0, 100, NULL,                          \
            "weight decay of matrices, not of biases and gains"                                    \
    }
#define OPTIONS_CLIP(v)                                                                            \
    {                                                                                              \
        "clip", OPTIONS_REAL, &v.clip, "1", 0, 1e9, NULL,                                          \
            "largest norm of the gradient; 0 turns clipping off, which also lets the backward "    \
            "update parameters where that saves memory"                                            \
    }
#define OPTIONS_DROPOUT(v)                                                                         \
    {                                                                                              \
        "dropout", OPTIONS_REAL, &v.dropout, "0", 0, 0.99, NULL,                                   \
            "dropout rate of embeddings, both residual branches and pooled vectors"                \
    }
#define OPTIONS_SEED(v)                                                                            \
    {                                                                                              \
        "seed", OPTIONS_INT, &v.seed, "1", 0, 9007199254740992.0, NULL,                            \
            "seed of new weights, batches, dropout and sampling"                                   \
    }
#define OPTIONS_THREADS(v)                                                                         \
    {                                                                                              \
        "threads", OPTIONS_INT, &v.threads, "0", 0, 1024, NULL,                                    \
            "number of threads; 0 takes all processors"                                            \
    }
#define OPTIONS_BUDGET(v)                                                                          \
    {                                                                                              \
        "budget", OPTIONS_BYTES, &v.budget, "0", 0, 9007199254740992.0, NULL,                      \
            "limit for weights, optimiser state and step arena together; 0 sets no limit"          \
    }
#define OPTIONS_HELP(v) { "help", OPTIONS_FLAG, &v.help, NULL, 0, 0, NULL, "print this text" }

static inline int options_is_text(options_kind kind)
{
    return kind >= OPTIONS_TEXT && kind < OPTIONS_FLAG;
}

static inline int options_count(const options_table *t) { return t->count + t->common_count; }

static const options_desc *options_at(const options_table *t, int i)
{
    return i < t->count ? &t->options[i] : &t->common[i - t->count];
}

/* Returns the default of an option as text, or NULL if the option has no default. */
static const char *options_default(const options_table *t, const options_desc *p)
{
    for (int i = 0; t->defaults != NULL && t->defaults[i] != NULL; i += 2)
        if (strcmp(t->defaults[i], p->name) == 0)
            return t->defaults[i + 1];
    return p->default_text;
}

/* Writes the allowed values of an option, in words, to `to`, at most `capacity` bytes, and returns
 * `to`. */
static const char *options_allowed(char *to, size_t capacity, const options_desc *p)
{
    if (p->kind == OPTIONS_INT || p->kind == OPTIONS_INT_OR_AUTO)
        snprintf(to, capacity, "a whole number from %.0f to %.0f%s", p->min, p->max,
                 p->kind == OPTIONS_INT ? "" : " or auto");
    else if (p->kind == OPTIONS_REAL)
        snprintf(to, capacity, "a number from %g to %g", p->min, p->max);
    else if (p->kind == OPTIONS_BYTES)
        snprintf(to, capacity, "bytes: 65536, 20MB (20 * 10^6), 20MiB or 20M (20 * 2^20)");
    else if (options_is_text(p->kind))
        snprintf(to, capacity,
                 p->kind == OPTIONS_TEXT     ? "text"
                 : p->kind == OPTIONS_FILE   ? "a file"
                 : p->kind == OPTIONS_FOLDER ? "a folder"
                                             : "a folder or a file");
    size_t used = 0;
    for (int i = 0; p->kind == OPTIONS_CHOICE && p->choices[i] != NULL && used < capacity; i++)
        used += (size_t)snprintf(to + used, capacity - used, "%s%s",
                                 i == 0                      ? ""
                                 : p->choices[i + 1] == NULL ? " or "
                                                             : ", ",
                                 p->choices[i]);
    return to;
}

/* Prints text in lines of at most 80 columns. The first line continues at column `indent`; the next
 * lines are indented by it. */
static void options_wrap(const char *text, int indent)
{
    for (int column = indent; *text != 0;) {
        const int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word > 80) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            putchar(' '), column++;
        }
        printf("%.*s", word, text);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    putchar('\n');
}

/* Prints an option with its help. Its allowed values (except of texts and flags) and its default
 * follow in brackets. */
static void options_print_option(const options_table *t, const options_desc *p)
{
    const char *const value[] = { "N",    "N",    "X",   "BYTES", t->choice_label,
                                  "TEXT", "FILE", "DIR", "PATH",  "" };
    const char *default_text = options_default(t, p);
    char allowed[512], text[2048], limits[700] = "";
    const int indent = t->width + 7;
    const int used = printf("  --%s%s%s", p->name, *value[p->kind] != 0 ? " " : "", value[p->kind]);
    printf(used + 2 > indent ? "\n%*s" : "%*s", used + 2 > indent ? indent : indent - used, "");
    options_allowed(allowed, sizeof allowed, p);
    if (p->kind <= OPTIONS_REAL)
        snprintf(allowed, sizeof allowed, "%.10g to %.10g%s", p->min, p->max,
                 p->kind == OPTIONS_INT_OR_AUTO ? ", or auto" : "");
    if (p->kind <= OPTIONS_REAL && p->max >= 1e9)
        snprintf(allowed, sizeof allowed, "%.10g or more", p->min);
    if (p->kind < OPTIONS_TEXT)
        snprintf(limits, sizeof limits, "%s%s", allowed, default_text != NULL ? "; " : "");
    snprintf(text, sizeof text,
             default_text != NULL ? "%s (%sdefault %s)"
             : *limits != 0  ? "%s (%s)"
                             : "%s",
             p->help, limits, default_text);
    options_wrap(text, indent);
}

/* Returns 1 if `names`, words separated by blanks, contains `name`, else 0. */
static int options_is_in(const char *names, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = names; (at = strstr(at, name)) != NULL; at += n)
        if ((at == names || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0))
            return 1;
    return 0;
}

/* Prints the help of all options under headings. `groups` is a list: a heading, a text with the
 * names of its options, the next heading and so on; NULL ends it. Options that are in no group come
 * last, under "Others". If `groups` is NULL, prints the options without headings, in the order of
 * the table. */
static void options_print_groups(const options_table *t, const char *const *groups)
{
    static const char *const none[] = { NULL };
    const char *const *all = groups != NULL ? groups : none;
    for (; *all != NULL; all += 2) {
        printf("%s%s:\n", all == groups ? "" : "\n", all[0]);
        for (const char *name = all[1]; *name != 0; name += strspn(name, " ")) {
            const size_t n = strcspn(name, " ");
            for (int i = 0; i < options_count(t); i++)
                if (strlen(options_at(t, i)->name) == n &&
                    strncmp(options_at(t, i)->name, name, n) == 0)
                    options_print_option(t, options_at(t, i));
            name += n;
        }
    }
    for (int i = 0, heading = groups != NULL; i < options_count(t); i++) {
        int named = 0;
        for (all = groups != NULL ? groups : none; *all != NULL; all += 2)
            named = named || options_is_in(all[1], options_at(t, i)->name);
        if (!named && heading)
            printf("\nOthers:\n"), heading = 0;
        if (!named)
            options_print_option(t, options_at(t, i));
    }
    putchar('\n');
    options_wrap("--name=value is the same as --name value, and -h the same as --help. If an option "
                 "is given twice, the last one counts.",
                 0);
}

static inline void options_print(const options_table *t) { options_print_groups(t, NULL); }

/* Returns the number of bytes that a unit means, such as "MiB" in upper or lower case; 0 if the
 * text is not a unit. */
static double options_unit(const char *text)
{
    static const char units[] = "kmgKMG";
    const char *unit = *text != 0 ? strchr(units, *text) : NULL;
    const char *rest = text + (unit != NULL);
    const int binary = *rest == 'i' || *rest == 'I';
    double multiplier = 1;
    if (strcmp(rest + binary, "b") != 0 && strcmp(rest + binary, "B") != 0 && *rest != 0)
        return 0;
    for (long i = unit == NULL ? -1 : (unit - units) % 3; i >= 0; i--)
        multiplier *= binary || *rest == 0 ? 1024 : 1000;
    return binary && unit == NULL ? 0 : multiplier;
}

/* Sets the option's variable to the number in `text`. Returns 1, or 0 if the text is not an allowed
 * value. */
static int options_set_number(const options_desc *p, const char *text)
{
    char *end;
    double x = strtod(text, &end);
    const double multiplier = p->kind == OPTIONS_BYTES ? options_unit(end) : *end == 0;
    const int empty = end == text || multiplier == 0;
    x *= multiplier;
    if (empty || !(x >= p->min && x <= p->max) ||
        (p->kind == OPTIONS_BYTES && x > 0 && x < 1) || /* refuses fractions of a byte, such as
                                                         * 0.5 */
        (p->kind <= OPTIONS_INT_OR_AUTO && (double)(int64_t)x != x))
        return 0;
    if (p->kind == OPTIONS_REAL)
        *(double *)p->variable = x;
    else
        *(int64_t *)p->variable = (int64_t)x;
    return 1;
}

/* Sets the option's variable to the value in `text`. Returns 1, or 0 if the text is not an allowed
 * value. */
static int options_set(const options_desc *p, const char *text)
{
    if (p->kind == OPTIONS_FLAG)
        return *(int64_t *)p->variable = 1, 1;
    if (options_is_text(p->kind))
        return *(const char **)p->variable = text, p->kind == OPTIONS_TEXT || *text != 0;
    if (p->kind == OPTIONS_INT_OR_AUTO && strcmp(text, "auto") == 0)
        return *(int64_t *)p->variable = OPTIONS_AUTO, 1;
    if (p->kind != OPTIONS_CHOICE)
        return options_set_number(p, text);
    for (int i = 0; p->choices[i] != NULL; i++)
        if (strcmp(text, p->choices[i]) == 0)
            return *(int64_t *)p->variable = i, 1;
    return 0;
}

/* Returns the number of letters to change, insert, delete or swap with the next one in order to
 * turn a into b (Wagner 1974). Returns 99 if a name has more than 31 letters. */
static int options_distance(const char *a, const char *b)
{
    const size_t n = strlen(a), m = strlen(b);
    int d[32][32];
    if (n > 31 || m > 31)
        return 99;
    for (size_t i = 0; i <= n; i++)
        for (size_t k = 0; k <= m; k++) {
            int least = (int)(i + k);
            if (i > 0 && k > 0) {
                least = d[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
                least = d[i - 1][k] + 1 < least ? d[i - 1][k] + 1 : least;
                least = d[i][k - 1] + 1 < least ? d[i][k - 1] + 1 : least;
            }
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1] &&
                d[i - 2][k - 2] + 1 < least)
                least = d[i - 2][k - 2] + 1;
            d[i][k] = least;
        }
    return d[n][m];
}

/* Reports an unknown option on stderr. Suggests the option with the most similar name, if a few
 * letters differ or if its name begins with the given one. Returns 2. */
static int options_suggest(const options_table *t, const char *word)
{
    char name[32];
    const options_desc *nearest = NULL;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + strspn(word, "-"), "="),
             word + strspn(word, "-"));
    const size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        name[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + 'a' - 'A' : name[i]);
    int least = n < 6 ? 3 : 4; /* only names at a smaller distance are suggested */
    for (int i = 0; i < options_count(t) && n > 1; i++) {
        const options_desc *p = options_at(t, i);
        int distance = options_distance(name, p->name);
        if (distance > 1 && strncmp(p->name, name, n) == 0)
            distance = 1;
        if (distance < least && (size_t)distance < n) {
            least = distance;
            nearest = p;
        }
    }
    if (nearest != NULL && nearest->kind == OPTIONS_FLAG && least == 0 && strchr(word, '=')) {
        fprintf(stderr, "%s: %s: --%s takes no value\n", t->program, word, nearest->name);
        return 2;
    }
    fprintf(stderr, "%s: %s: unknown option; ", t->program, word);
    if (nearest != NULL)
        fprintf(stderr, "did you mean --%s? ", nearest->name);
    fprintf(stderr, "see --help\n");
    return 2;
}

/* Returns the description of the option at argv[*i], or NULL if there is no such option or if it is
 * a flag with a value. Sets *text to the option's value ("" for a flag, NULL if the value is
 * missing), and *i to the index of the last argument used. */
static const options_desc *options_parse_one(const options_table *t, int argc, char **argv, int *i,
                                       const char **text)
{
    const char *word = strcmp(argv[*i], "-h") == 0 ? "--help" : argv[*i];
    const size_t n = strcspn(word, "=");
    for (int k = 0; k < options_count(t); k++) {
        const options_desc *p = options_at(t, k);
        if (strncmp(word, "--", 2) != 0 || strlen(p->name) + 2 != n ||
            strncmp(word + 2, p->name, n - 2) != 0 || (p->kind == OPTIONS_FLAG && word[n] == '='))
            continue;
        if (p->kind == OPTIONS_FLAG)
            *text = "";
        else if (word[n] == '=')
            *text = word + n + 1;
        else
            *text = ++*i < argc ? argv[*i] : NULL;
        return p;
    }
    return NULL;
}

/* Returns the value that the command line gives option `name`, and the last one if the option
 * occurs twice; "" for a flag; NULL if it does not occur. Call options_parse first. */
static inline const char *options_given(const options_table *t, int argc, char **argv,
                                        const char *name)
{
    const char *text = NULL, *given;
    for (int i = 1; i < argc; i++) {
        const options_desc *p = options_parse_one(t, argc, argv, &i, &given);
        if (p != NULL && strcmp(p->name, name) == 0)
            text = given;
    }
    return text;
}

/* Sets the variables of all options: first to the defaults, then to the values on the command line.
 * Returns 0. After an error, prints the error with the allowed values on stderr and returns 2, the
 * program's exit status. */
static int options_parse(const options_table *t, int argc, char **argv)
{
    for (int i = 0; i < options_count(t); i++)
        if (options_default(t, options_at(t, i)) != NULL)
            options_set(options_at(t, i), options_default(t, options_at(t, i)));
    for (int i = 1; i < argc; i++) {
        const char *text, *word = argv[i];
        const options_desc *p = options_parse_one(t, argc, argv, &i, &text);
        if (p == NULL)
            return options_suggest(t, word);
        if (text != NULL && options_set(p, text))
            continue;
        fprintf(stderr,
                text != NULL ? "%s: --%s %s: allowed is " : "%s: --%s needs a value: ", t->program,
                p->name, text);
        char allowed[512];
        fprintf(stderr, "%s\n", options_allowed(allowed, sizeof allowed, p));
        return 2;
    }
    return 0;
}
#endif
