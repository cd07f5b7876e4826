/* test_contents.c - the Contents table of gradckpt.h says what is there: every section once, in that
 * order, within its budget; and a section uses only what stands above it.
 *
 * "Uses": a gckpt_ or gckpti_ name, outside comments and strings, of a function or a private struct
 * whose body stands in a later section. What is declared ahead all the same stands in `ahead`, with
 * the reason; an entry that is no longer needed is a violation too. (Names that macros paste together
 * are not seen.) The same rules are then shown to fail on copies that were tampered with.
 */
#include <stdlib.h>

#include "check.h"

static const struct {
    const char *section, *name, *reason;
} ahead[] = {
    { "base", "gckpti_tensor_label", "%T in error texts: a tensor by its name" },
    { "store", "gckpti_factors", "a product that reads packed values: linked by what packs them" },
    { "store", "gckpti_fp32_stored", "the same" },
    { "graph", "gckpti_product", "what the kernels of an instruction set are called with" },
    { "graph", "gckpti_columns", "the same" },
    { "graph", "gckpti_heads", "the same" },
    { "graph", "gckpti_classes", "the same" },
    { "graph", "gckpti_errors", "the same" },
    { "graph", "gckpti_cell", "the same" },
    { "graph", "gckpti_windows", "the same" },
    { "graph", "gckpti_pooling", "the same" },
    { "graph", "gckpti_channel_pass", "the same" },
    { "graph", "gckpti_mixed_kernels", "the same" },
    { "graph", "gckpti_kernels_for", "fast kernels can be left out, so they come last" },
    { "plan", "gckpti_bound", "what is proven about a model is kept beside it" },
    { "plan", "gckpti_bind_picks", "what only some plans need is linked by what names it in them" },
    { "plan", "gckpti_check_collected", "the same" },
    { "plan", "gckpti_collect_rows", "the same" },
    { "plan", "gckpti_add_uses", "the same" },
    { "plan", "gckpti_exec_caches", "the same" },
    { "plan", "gckpti_check_caches", "the same" },
    { "plan", "gckpti_crew_tables", "the same" },
    { "plan", "gckpti_crew_bind", "the same" },
    { "plan", "gckpti_crew_rows", "the same" },
    { "plan", "gckpti_crew_batches", "the same" },
    { "plan", "gckpti_crew_begin", "the same" },
    { "plan", "gckpti_crew_call", "the same" },
    { "plan", "gckpti_set_round", "the same" },
    { "plan", "gckpti_next_round", "the same" },
    { "plan", "gckpti_end_stream", "the same" },
    { "plan", "gckpti_skips", "the same" },
    { "plan", "gckpti_meet", "the same" },
    { "plan", "gckpti_drain", "the same" },
    { "plan", "gckpti_run_reduce", "the same" },
    { "plan", "gckpti_run_gather", "the same" },
    { "plan", "gckpti_pass_share", "the same" },
    { "plan", "gckpti_gather_updated", "the same" },
    { "plan", "gckpti_gather_squares", "the same" },
    { "plan", "gckpti_leave", "the same" },
    { "exec", "gckpti_cpu_backend", "fast kernels can be left out, so they come last" },
};
enum { AHEAD = sizeof ahead / sizeof ahead[0], SECTIONS = 40, NAMES = 8192, MOST = 400 };

typedef struct {
    char name[20];
    long budget, lines;
    const char *begin;
} section;

/* A copy of a header's text, and what is wrong with it. */
typedef struct {
    char *text;
    section sections[SECTIONS];
    int count, wrong;
    char says[MOST][160];
} header;

typedef struct {
    const char *at;
    int length, section;
} place;
static place defined[NAMES]; /* a hash table of the names with a body */

static void violation(header *h, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (h->wrong < MOST)
        vsnprintf(h->says[h->wrong++], sizeof h->says[0], format, args);
    va_end(args);
    for (int i = 0; i < h->wrong - 1; i++)
        if (!strcmp(h->says[i], h->says[h->wrong - 1])) /* once is enough */
            h->wrong--;
}

static int is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* ---- the table ---- */
/* Rows are " *     >>name   words   budget"; the last two, manual and in all, have no ">>". */
static long read_table(header *h)
{
    const char *row = strstr(h->text, " * Contents (");
    long all = -1;
    h->count = 0;
    while (row && (row = strchr(row, '\n')) != NULL && !strncmp(++row, " *     ", 7) &&
           h->count < SECTIONS) {
        const char *end = strchr(row, '\n'), *name = row + 7, *digits = end;
        int length = 0, sum = !strncmp(name, "           ", 11), numbers = 0;
        name += strspn(name, " >");
        while (is_letter(name[length]) || name[length] == '-')
            length++;
        while (digits > row && digits[-1] >= '0' && digits[-1] <= '9')
            digits--;
        for (const char *c = digits; c > row && (c[-1] == ' ' || (c[-1] >= '0' && c[-1] <= '9'));
             c--)
            numbers += c[-1] == ' ' && *c != ' ';
        if ((digits == end || numbers != 1 || length >= 20) && h->wrong == 0)
            violation(h,
                      "Contents, %.*s: a row is a name, words and one number, the budget (lines "
                      "are counted here and would go stale there)",
                      length, name);
        if (sum) {
            all = strtol(digits, NULL, 10);
            break;
        }
        section *s = &h->sections[h->count++];
        memset(s, 0, sizeof *s);
        memcpy(s->name, name, (size_t)length % sizeof s->name);
        s->budget = strtol(digits, NULL, 10);
    }
    if (all < 0)
        violation(h, "Contents: the last row must be the budget of all lines");
    return all;
}

/* Where a section's first line begins; NULL: this line has no anchor. A box's first line is the one
 * above its name. */
static const char *anchor(const char *text, const char *line, char *name)
{
    const char *c = !strncmp(line, "/* ---- >>", 10) ? line + 10
                    : !strncmp(line, "/* >>", 5)     ? line + 5
                    : !strncmp(line, " * >>", 5)     ? line + 5
                                                     : NULL;
    int n = 0;
    if (!c || *c < 'a' || *c > 'z' || !strncmp(c, "api-", 4))
        return NULL;
    for (; n < 19 && (is_letter(c[n]) || c[n] == '-'); n++)
        name[n] = c[n];
    name[n] = 0;
    for (c = line - 1; *line == ' ' && c > text && c[-1] != '\n'; c--)
        ;
    return *line == ' ' ? c : line;
}

/* Sections as they stand against the table's order, which has the manual last, being about itself. */
static void check_sections(header *h)
{
    long all = read_table(h), lines = 0;
    int next = 0;
    char name[20];
    section *open = NULL;
    for (int i = 0; i < h->count; i++) {
        if (!strcmp(h->sections[i].name, "manual"))
            (open = &h->sections[i])->begin = h->text;
    }
    if (!open)
        violation(h, "Contents: no row for the manual");
    for (const char *line = h->text; *line; line = strchr(line, '\n') + 1, lines++) {
        const char *begin = anchor(h->text, line, name);
        section *s = NULL;
        for (int i = 0; begin && i < h->count; i++)
            if (!strcmp(h->sections[i].name, name))
                s = &h->sections[i];
        if (begin && !s)
            violation(h, ">>%s has no row in Contents", name);
        if (s && s->begin)
            violation(h, ">>%s stands there twice", name);
        else if (s) {
            long box = begin < line;
            if (s != &h->sections[next])
                violation(h, ">>%s stands where Contents has >>%s", name, h->sections[next].name);
            next = (int)(s - h->sections) + 1;
            s->begin = begin;
            s->lines = box;
            if (open)
                open->lines -= box;
            open = s;
        }
        if (open)
            open->lines++;
    }
    for (int i = 0; i < h->count; i++) {
        const section *s = &h->sections[i];
        if (!s->begin)
            violation(h, ">>%s is in Contents, but nowhere else", s->name);
        if (s->lines > s->budget)
            violation(h, ">>%s has %ld lines, its budget is %ld", s->name, s->lines, s->budget);
    }
    if (lines > all)
        violation(h, "the header has %ld lines, its budget is %ld", lines, all);
}

/* ---- who uses what ---- */
/* Blanks out comments, strings and characters, so that only code is left. */
static void blank(char *c)
{
    while (*c) {
        char quote = *c == '"' || *c == '\'' ? *c : 0;
        int comment = c[0] == '/' && c[1] == '*';
        if (quote) {
            for (*c++ = ' '; *c && *c != quote; *c++ = ' ')
                if (*c == '\\' && c[1])
                    *c++ = ' ';
            *c++ = ' ';
        } else if (comment) {
            for (; *c && !(c[0] == '*' && c[1] == '/'); c++)
                *c = *c == '\n' ? '\n' : ' ';
            memset(c, ' ', 2);
            c += 2;
        } else {
            c++;
        }
    }
}

static place *find_name(const char *name, int length)
{
    uint32_t hash = 2166136261u;
    for (int i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 16777619u;
    place *p = &defined[hash % NAMES];
    while (p->at && (p->length != length || memcmp(p->at, name, (size_t)length)))
        p = p == &defined[NAMES - 1] ? defined : p + 1;
    return p;
}

/* The next name of ours at or after c; NULL: none before `end`. */
static const char *next_name(const char *c, const char *end, int *length)
{
    for (; c < end; c++)
        if (*c == 'g' && !is_letter(c[-1]) && !strncmp(c, "gckpt", 5) &&
            (c[5] == '_' || !strncmp(c + 5, "i_", 2))) {
            for (*length = 0; is_letter(c[*length]);)
                ++*length;
            return c;
        }
    return NULL;
}

/* Records the functions, and the private structs, that have their bodies in section i: outside all
 * braces, a name before ( ... ) { or after struct and before {. */
static void find_bodies(const char *c, const char *end, int i)
{
    const char *name = NULL;
    int depth = 0, parens = 0, length = 0, name_length = 0;
    for (; c < end; c++) {
        if (*c == '#') { /* a directive, with the lines that it goes on */
            while (c + 1 < end && (*c != '\n' || c[-1] == '\\'))
                c++;
        } else if (*c == '{') {
            if (depth++ == 0 && name) {
                place *p = find_name(name, name_length);
                if (!p->at) {
                    p->at = name;
                    p->length = name_length;
                    p->section = i;
                }
            }
            name = NULL;
        } else if (*c == '}') {
            depth -= depth > 0;
            name = NULL;
        } else if (depth == 0 && (*c == ';' || *c == '=')) {
            name = NULL;
        } else if (depth == 0 && (*c == '(' || *c == ')')) {
            parens += *c == '(' ? 1 : -1;
        } else if (depth == 0 && parens == 0 && next_name(c, c + 1, &length) == c) {
            int tag = c[5] == 'i' && !strncmp(c - 7, "struct ", 7) && !strncmp(c + length, " {", 2);
            if (c[length] == '(' || tag) {
                name = c;
                name_length = length;
            }
            c += length - 1;
        }
    }
}

static const char *end_of(const header *h, int i)
{
    const char *begin = h->sections[i].begin;
    return i + 1 < h->count && h->sections[i + 1].begin > begin ? h->sections[i + 1].begin
                                                                : begin + strlen(begin);
}

/* Names used in a section above the one where their bodies stand. */
static void check_uses(header *h, int *needed)
{
    blank(h->text);
    memset(defined, 0, sizeof defined);
    memset(needed, 0, AHEAD * sizeof *needed);
    for (int i = 0; i < h->count; i++) {
        const section *s = &h->sections[i];
        if (strcmp(s->name, "api") && strcmp(s->name, "manual"))
            find_bodies(s->begin, end_of(h, i), i);
    }
    for (int i = 0; i < h->count; i++) {
        const char *begin = h->sections[i].begin;
        const char *end = end_of(h, i);
        if (!strcmp(h->sections[i].name, "api") || !strcmp(h->sections[i].name, "manual"))
            continue;
        for (int n = 0; (begin = next_name(begin, end, &n)) != NULL; begin += n) {
            place *p = find_name(begin, n);
            int excused = 0;
            if (!p->at || p->section <= i)
                continue;
            for (int k = 0; k < AHEAD; k++)
                if (!strcmp(ahead[k].section, h->sections[i].name) &&
                    (int)strlen(ahead[k].name) == n && !memcmp(ahead[k].name, begin, (size_t)n))
                    excused = needed[k] = 1;
            if (!excused)
                violation(h, ">>%s uses %.*s of >>%s, which stands below it", h->sections[i].name,
                          n, begin, h->sections[p->section].name);
        }
    }
    for (int k = 0; k < AHEAD; k++)
        if (!needed[k])
            violation(h, "the exception %s in >>%s is not needed", ahead[k].name, ahead[k].section);
}

static void check_header(header *h)
{
    int needed[AHEAD], first = h->wrong;
    check_sections(h);
    for (int i = first; i < h->wrong; i++)
        if (strstr(h->says[i], "nowhere") || strstr(h->says[i], "manual"))
            return; /* no sections to look into */
    check_uses(h, needed);
}

/* ---- copies that were tampered with ---- */
static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = (char *)calloc(1, 4 << 20);
    if (!CHECK_MSG(f != NULL && text != NULL, "%s cannot be read", path))
        exit(check_report("contents"));
    CHECK(fread(text, 1, (4 << 20) - 1, f) < (4 << 20) - 1);
    fclose(f);
    return text;
}

/* The text with the first `from` after the first `after` made `to`; frees the text. */
static char *changed(char *text, const char *after, const char *from, const char *to)
{
    char *at = strstr(text, after), *copy = (char *)calloc(1, strlen(text) + strlen(to) + 1);
    at = at ? strstr(at, from) : NULL;
    if (!CHECK_MSG(at && copy, "\"%s\" is not there", from))
        exit(check_report("contents"));
    memcpy(copy, text, (size_t)(at - text));
    strcat(strcat(copy, to), at + strlen(from));
    free(text);
    return copy;
}

/* Whether something is said of this text that contains `words`; frees the text. */
static int is_said(char *text, const char *words)
{
    static header h;
    int said = 0;
    memset(&h, 0, sizeof h);
    h.text = text;
    check_header(&h);
    for (int i = 0; i < h.wrong; i++)
        said = said || strstr(h.says[i], words) != NULL;
    free(text);
    return said;
}

/* Each rule is broken once, in a copy. `now` is the header, which may break some itself. */
static void test_rules(const char *now)
{
    static char lines[20001];
    memset(lines, '\n', sizeof lines - 1);
#define COPY              strcpy((char *)malloc(strlen(now) + 1), now)
#define SAID(text, words) CHECK_MSG(is_said(text, words), "not noticed: %s", words)
    SAID(changed(COPY, "* >>check", ">>", ""), ">>check is in Contents, but nowhere else");
    SAID(changed(COPY, "* >>check", ">>check", ">>store"), ">>store stands there twice");
    SAID(changed(COPY, "* >>check", ">>check", ">>checks"), ">>checks has no row in Contents");
    SAID(changed(COPY, " *     >>check", ">>check", ">>chock"), ">>check has no row in Contents");
    SAID(changed(changed(COPY, "* >>check", ">>check", ">>files"),
                 "* >>files:", "\n * >>files: save", "\n * >>check: save"),
         ">>files stands where Contents has >>check");
    SAID(changed(COPY, " *     manual", "manual", "annual"), "no row for the manual");
    SAID(changed(COPY, "                  in all", "                  ", "     >>"),
         "the last row must be the budget of all");
    SAID(changed(COPY, " *     >>check", "differences", "differences  17"), "one number");
    SAID(changed(COPY, "* >>check", "\n", lines), ">>check has 2");
    SAID(changed(COPY, "* >>check", "\n", lines), "the header has ");

    const char *const call =
        "\nstatic int gckpti_early(void) { return gckpti_json_space(0); }\nstatic ";
    SAID(changed(COPY, "* >>check", "\nstatic ", call),
         ">>check uses gckpti_json_space of >>files");
    CHECK(!is_said(changed(COPY, "* >>tables", "\nstatic ", call), "gckpti_json_space"));
    CHECK(!is_said(changed(COPY, "* >>check", "\nstatic ",
                           "\n/* gckpti_json_space */ char q[] = \"gckpti_json_space\";\nstatic "),
                   "gckpti_json_space"));
    char *late = changed(COPY, "* >>check", "\nstatic ", "\nstruct gckpti_late;\nstatic ");
    SAID(changed(late, "* >>files", "\nstatic ", "\nstruct gckpti_late { int i; };\nstatic "),
         ">>check uses gckpti_late of >>files");
    SAID(changed(COPY, "* >>check", "\nstatic ",
                 "\nint gckpti_no(void) { gckpt_store_write(0, 0, 0); }\nstatic "),
         ">>check uses gckpt_store_write of >>files");
    char *unused = changed(COPY, "* >>base", "gckpti_tensor_label", "gckpti_another");
    while (strstr(unused, "gckpti_tensor_label") < strstr(unused, "* >>store"))
        unused = changed(unused, "* >>base", "gckpti_tensor_label", "gckpti_another");
    SAID(unused, "the exception gckpti_tensor_label in >>base is not needed");
#undef SAID
#undef COPY
}

int main(void)
{
    static header h;
    char *text = read_all("gradckpt.h");
    h.text = (char *)calloc(1, strlen(text) + 1);
    strcpy(h.text, text);
    check_header(&h);
    for (int i = 0; i < h.wrong; i++)
        fprintf(stderr, "%s\n", h.says[i]);
    CHECK(h.wrong == 0);
    long lines = 0;
    for (int i = 0; i < h.count; lines += h.sections[i++].lines)
        printf("%-12s %6ld lines, budget %6ld\n", h.sections[i].name, h.sections[i].lines,
               h.sections[i].budget);
    printf("%-12s %6ld lines\n", "in all", lines);
    for (int k = 0; k < AHEAD; k++)
        printf(">>%s uses %s ahead of its section: %s\n", ahead[k].section, ahead[k].name,
               ahead[k].reason);
    free(h.text);

    test_rules(text);
    free(text);
    return check_report("contents");
}
