/* relay_picture.c - draws lesson 8's relay as SVG, from the files that relay.sh writes: STEPS has a
 * line "step loss hash machine" for each step, AUDITS a line "first last wrong machine" for each
 * audit.
 *
 *     relay_picture STEPS AUDITS > relay.svg */
#include "plot.h"
#include <string.h>

enum { MOST = 1000, SPANS = 16 };
/* steps first to last on one machine; hash: that of the last step; wrong: where it found a wrong
 * bit in another ledger */
typedef struct {
    int first, last, wrong;
    char hash[20], machine[32];
} span;
static double steps[MOST + 1], losses[MOST + 1]; /* from 1 */

/* Returns the number of a machine's colour, which is plot_line's. */
static int number_of(const char *machine)
{
    static const char *const names[] = { "native", "WebAssembly", "Cortex-M4F", "2 MPI ranks" };
    int i = 0;
    while (i < 4 && strcmp(machine, names[i]) != 0)
        i++;
    return i;
}

static const char *colour_of(const char *machine)
{
    static const char *const colours[] = { "#1f5fa8", "#d1495b", "#b86b00", "#3a8f5c", "#7a4fa3" };
    return colours[number_of(machine)];
}

/* Returns the number of parts, which end where the machine changes; 0 if the file is wrong. */
static int read_steps(FILE *f, span parts[SPANS])
{
    span s = { 0 };
    int n = 0, step = 0;
    double loss;
    while (fscanf(f, "%d %lf %19s %31[^\n]", &s.last, &loss, s.hash, s.machine) == 4) {
        if (s.last != ++step || step > MOST || n == SPANS)
            return 0;
        steps[step] = step, losses[step] = loss;
        if (n == 0 || strcmp(parts[n - 1].machine, s.machine) != 0)
            s.first = step, n++;
        parts[n - 1] = s;
    }
    return n;
}

static int read_audits(FILE *f, span audits[SPANS])
{
    int n = 0;
    for (span *s = audits; n < SPANS && fscanf(f, "%d %d %d %31[^\n]", &s->first, &s->last,
                                               &s->wrong, s->machine) == 4;
         s++)
        n++;
    return n;
}

/* Writes a text; `anchor` is start, middle or end, and `more` other attributes. */
static void put(double x, double y, const char *anchor, const char *colour, const char *more,
                const char *words)
{
    printf("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\"%s>%s</text>\n", x, y, anchor,
           colour, more, words);
}

/* Draws the loss of each part in the colour of its machine, and the hash at each handover. */
static void draw_parts(plot *p, const span *parts, int n)
{
    plot_axes(p, stdout, 0);
    for (const span *s = parts; s < parts + n; s++) {
        const int begin = s->first > 1 ? s->first - 1 : 1;
        const double x = plot_x(p, s->last);
        char more[80];
        p->lines = number_of(s->machine);
        plot_line(p, NULL, 2.5, steps + begin, losses + begin, s->last + 1 - begin, 0, 0);
        printf("<path d=\"M%.1f 40V320\" stroke=\"#777777\" stroke-dasharray=\"4 3\"/>\n", x);
        put((plot_x(p, s->first - 1) + x) / 2, 56, "middle", colour_of(s->machine),
            " font-size=\"11\" font-weight=\"bold\"", s->machine);
        snprintf(more, sizeof more, " font-family=\"monospace\" transform=\"rotate(-90 %.1f 188)\"",
                 x - 5);
        put(x - 5, 188, "start", "#333333", more, s->hash);
    }
}

/* Draws a bar over the steps that each machine repeated, and a cross at the wrong bit. */
static void draw_audits(plot *p, const span *audits, int n)
{
    p->left = PLOT_WIDTH;
    put(p->left + PLOT_WIDTH / 2.0, 24, "middle", "black", " font-size=\"15\"", p->title);
    put(p->left + PLOT_WIDTH / 2.0, 356, "middle", "black", "", p->x_name);
    for (int v = (int)p->x0; v <= (int)p->x1; v += (int)plot_tick(p->x1 - p->x0)) {
        char number[16];
        snprintf(number, sizeof number, "%d", v);
        printf("<path d=\"M%.1f 40V320\" stroke=\"#e4e4e4\"/>", plot_x(p, v));
        put(plot_x(p, v), 336, "middle", "black", "", number);
    }
    for (int i = 0; i < n; i++) {
        const span *s = &audits[i];
        const double x = plot_x(p, s->first - 1), wide = plot_x(p, s->last) - x, y = 56 + 52 * i;
        const double at = plot_x(p, s->wrong - 0.5);
        const char *colour = colour_of(s->machine);
        printf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"22\" rx=\"3\" fill=\"%s\"/>", x,
               y, wide, colour);
        printf("<path d=\"M%.1f %.1fl8 8m0 -8l-8 8\" stroke=\"white\" stroke-width=\"2\"/>\n",
               at - 4, y + 7);
        put(i < (n + 1) / 2 ? x + wide + 8 : x - 8, y + 15, i < (n + 1) / 2 ? "start" : "end",
            colour, " font-weight=\"bold\"", s->machine);
    }
}

int main(int argc, char **argv)
{
    plot train = { .title = "One training, handed from machine to machine",
                   .x_name = "step; the last hash is that of one machine",
                   .y_name = "nats per byte",
                   .y0 = 2,
                   .y1 = 6 };
    plot check = { .title = "Its ledger, repeated; × is where each finds a wrong bit",
                   .x_name = "step" };
    span parts[SPANS], audits[SPANS];
    FILE *train_log = argc == 3 ? fopen(argv[1], "r") : NULL,
         *all = argc == 3 ? fopen(argv[2], "r") : NULL;
    const int n = train_log == NULL ? 0 : read_steps(train_log, parts);
    if (n == 0 || all == NULL) {
        fprintf(stderr, "relay_picture: STEPS AUDITS: the two files that relay.sh writes\n");
        return 1;
    }
    train.x1 = check.x1 = parts[n - 1].last;
    plot_open(stdout, 2);
    draw_parts(&train, parts, n);
    draw_audits(&check, audits, read_audits(all, audits));
    plot_close(stdout);
    fclose(train_log), fclose(all);
    return ferror(stdout) != 0;
}
