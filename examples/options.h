/* options.h - command-line options from one table, which is the parser and the --help text. To copy;
 * C99 and the C library suffice.
 *
 *     static struct { int64_t steps, help; double lr; const char *save; } o;
 *     static const options_row rows[] = {
 *         { "steps", OPTIONS_WHOLE, &o.steps, "1000", 0, 1e12, NULL, "steps in all" },
 *         { "lr", OPTIONS_REAL, &o.lr, "1e-3", 0, 10, NULL, "learning rate" },
 *         { "save", OPTIONS_FILE, &o.save, NULL, 0, 0, NULL, "where the weights go" },
 *         { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "this text" },
 *     };
 *     static const options_table options = { "train", rows, sizeof rows / sizeof rows[0], 14, "" };
 *
 *     if (options_parse(&options, argc, argv) != 0)
 *         return 2;
 *     if (o.help)
 *         options_print(&options);
 */
#ifndef OPTIONS_H
#define OPTIONS_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    OPTIONS_WHOLE,         /* an int64_t from min to max */
    OPTIONS_WHOLE_OR_AUTO, /* the same, or OPTIONS_AUTO for "auto" */
    OPTIONS_REAL,          /* a double from min to max */
    OPTIONS_BYTES,         /* an int64_t from min to max; K, M and G are powers of 1024 */
    OPTIONS_CHOICE,        /* an int64_t: which of the row's choices */
    OPTIONS_TEXT,          /* a const char * */
    OPTIONS_FILE,          /* the same, not empty */
    OPTIONS_FLAG           /* an int64_t: 1 when given; takes no value */
} options_kind;
enum { OPTIONS_AUTO = -1 };

typedef struct {
    const char *name; /* without the -- */
    options_kind kind;
    void *where;         /* the variable, of the type above */
    const char *initial; /* read like an argument; NULL: the variable is left as it is */
    double min, max;
    const char *const *choices; /* of a CHOICE, ended by NULL */
    const char *help;
} options_row;

typedef struct {
    const char *program; /* in messages */
    const options_row *rows;
    int count;
    int width;          /* of the names in the help */
    const char *choice; /* what stands for the value of a CHOICE in the help */
} options_table;

/* What values an option takes, in words. */
static void options_print_allowed(FILE *f, const options_row *p)
{
    if (p->kind == OPTIONS_WHOLE || p->kind == OPTIONS_WHOLE_OR_AUTO)
        fprintf(f, "a whole number from %.0f to %.0f%s", p->min, p->max,
                p->kind == OPTIONS_WHOLE ? "" : " or auto");
    else if (p->kind == OPTIONS_REAL)
        fprintf(f, "a number from %g to %g", p->min, p->max);
    else if (p->kind == OPTIONS_BYTES)
        fprintf(f, "a number of bytes such as 65536, 64K, 1.5M or 2G");
    else if (p->kind == OPTIONS_TEXT || p->kind == OPTIONS_FILE)
        fprintf(f, p->kind == OPTIONS_TEXT ? "text" : "a file");
    else
        for (int i = 0; p->choices[i] != NULL; i++)
            fprintf(f, "%s%s",
                    i == 0                      ? ""
                    : p->choices[i + 1] == NULL ? " or "
                                                : ", ",
                    p->choices[i]);
}

/* The help: a line an option, and one more with what is allowed where that needs telling. */
static void options_print(const options_table *t)
{
    const char *const value[] = { "N", "N", "X", "BYTES", t->choice, "TEXT", "FILE", "" };
    for (int i = 0; i < t->count; i++) {
        const options_row *p = &t->rows[i];
        printf("  --%s %-*s  %s", p->name, t->width - (int)strlen(p->name), value[p->kind],
               p->help);
        if (p->kind < OPTIONS_TEXT) {
            printf("\n%*s(", t->width + 7, "");
            options_print_allowed(stdout, p);
            printf(p->initial != NULL ? "; default %s)" : ")", p->initial);
        } else if (p->initial != NULL) {
            printf(" (default %s)", p->initial);
        }
        printf("\n");
    }
}

/* Reads a number into where the option says; 0 when it is not allowed. */
static int options_set_number(const options_row *p, const char *text)
{
    static const char units[] = "kKmMgG";
    char *end;
    double x = strtod(text, &end);
    int empty = end == text;
    const char *unit = p->kind == OPTIONS_BYTES && *end != 0 ? strchr(units, *end) : NULL;
    for (long power = unit == NULL ? -1 : (unit - units) / 2; power >= 0; power--)
        x *= 1024;
    end += unit != NULL;
    if (empty || *end != 0 || !(x >= p->min && x <= p->max) ||
        (p->kind <= OPTIONS_WHOLE_OR_AUTO && (double)(int64_t)x != x))
        return 0;
    if (p->kind == OPTIONS_REAL)
        *(double *)p->where = x;
    else
        *(int64_t *)p->where = (int64_t)x;
    return 1;
}

/* Reads `text` into where the option says; 0 when it is not allowed. */
static int options_set(const options_row *p, const char *text)
{
    if (p->kind == OPTIONS_FLAG)
        return *(int64_t *)p->where = 1, 1;
    if (p->kind == OPTIONS_TEXT || p->kind == OPTIONS_FILE)
        return *(const char **)p->where = text, p->kind == OPTIONS_TEXT || *text != 0;
    if (p->kind == OPTIONS_WHOLE_OR_AUTO && strcmp(text, "auto") == 0)
        return *(int64_t *)p->where = OPTIONS_AUTO, 1;
    if (p->kind != OPTIONS_CHOICE)
        return options_set_number(p, text);
    for (int i = 0; p->choices[i] != NULL; i++)
        if (strcmp(text, p->choices[i]) == 0)
            return *(int64_t *)p->where = i, 1;
    return 0;
}

/* The text that option `name` is given on the command line, the last one ("" of a flag); NULL: it is
 * not given. Of a line that options_parse took. */
static inline const char *options_given(const options_table *t, int argc, char **argv,
                                        const char *name)
{
    const char *text = NULL;
    for (int i = 1; i < argc; i++) {
        int flag = 0, same = strcmp(argv[i] + 2, name) == 0;
        for (int k = 0; k < t->count; k++)
            flag = flag ||
                   (strcmp(argv[i] + 2, t->rows[k].name) == 0 && t->rows[k].kind == OPTIONS_FLAG);
        text = !same ? text : flag ? "" : argv[i + 1];
        i += !flag;
    }
    return text;
}

/* Sets all options; 0, or 2, an exit status, after saying on stderr what is allowed. */
static int options_parse(const options_table *t, int argc, char **argv)
{
    for (int i = 0; i < t->count; i++)
        if (t->rows[i].initial != NULL)
            options_set(&t->rows[i], t->rows[i].initial);
    for (int i = 1; i < argc; i++) {
        const options_row *p = NULL;
        for (int k = 0; k < t->count; k++)
            if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, t->rows[k].name) == 0)
                p = &t->rows[k];
        if (p == NULL) {
            fprintf(stderr, "%s: %s: no such option; allowed are", t->program, argv[i]);
            for (int k = 0; k < t->count; k++)
                fprintf(stderr, " --%s", t->rows[k].name);
            fprintf(stderr, "\n");
            return 2;
        }
        const char *text = p->kind == OPTIONS_FLAG ? "" : ++i < argc ? argv[i] : NULL;
        if (text != NULL && options_set(p, text))
            continue;
        fprintf(stderr,
                text != NULL ? "%s: --%s %s: allowed is " : "%s: --%s needs a value: ", t->program,
                p->name, text);
        options_print_allowed(stderr, p);
        fprintf(stderr, "\n");
        return 2;
    }
    return 0;
}
#endif
