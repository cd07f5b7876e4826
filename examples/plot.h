/* plot.h - line charts side by side as SVG, for the examples and benchmarks.
 *
 *     plot p = { "loss", "step", "nats per token", 0, 100, 0, 5, NULL, 0, 0, 0 };
 *     plot_open(file, 1);
 *     plot_axes(&p, file, 0);
 *     plot_line(&p, "micro-batch 4", 2, x, y, n, 0.6, 0.1);
 *     plot_close(file);
 */
#ifndef PLOT_H
#define PLOT_H
#include <stdio.h>

enum { PLOT_WIDTH = 560, PLOT_HEIGHT = 380 };

typedef struct {
    const char *title, *x_name, *y_name;
    double x0, x1, y0, y1; /* x0, x1: range of the x axis; y0, y1: range of the y axis */
    FILE *file;
    double left; /* x coordinate of this chart's left edge in the picture */
    int lines;
    int log; /* if nonzero, the y axis is logarithmic, and y0 must be above 0 */
} plot;

/* Returns the distance between ticks of an axis: 1, 2 or 5 times a power of ten, so that `range`
 * has at most 8 ticks. */
static double plot_tick(double range)
{
    static const double steps[] = { 1, 2, 5, 10 };
    double unit = 1;
    int i = 0;
    while (unit * 8 > range)
        unit /= 10;
    while (unit * 80 < range)
        unit *= 10;
    while (i < 3 && unit * steps[i] * 8 < range)
        i++;
    return unit * steps[i];
}

static double plot_x(const plot *p, double x)
{
    return p->left + 64 + (x - p->x0) / (p->x1 - p->x0) * (PLOT_WIDTH - 84);
}

/* Returns log2(x) for x > 0, so that programs need no math library. Uses x = 2^n m with log m = 2
 * (z + z^3 / 3 + ...), where z = (m - 1) / (m + 1). */
static double plot_log2(double x)
{
    double n = 0, sum = 0;
    for (; x >= 1.5; x /= 2)
        n++;
    for (; x < 0.75; x *= 2)
        n--;
    double z = (x - 1) / (x + 1), power = z;
    for (int i = 1; i < 24; i += 2, power *= z * z)
        sum += power / i;
    return n + 2 * sum / 0.69314718055994531;
}

static double plot_y(const plot *p, double y)
{
    double fraction =
        p->log ? plot_log2(y / p->y0) / plot_log2(p->y1 / p->y0) : (y - p->y0) / (p->y1 - p->y0);
    return 320 - fraction * 280;
}

/* Begins a picture that has `panels` charts side by side. */
static void plot_open(FILE *f, int panels)
{
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n",
            PLOT_WIDTH * panels, PLOT_HEIGHT);
    fprintf(f, "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n");
}

/* Draws title, axes and grid of chart number `panel`. */
static void plot_axes(plot *p, FILE *f, int panel)
{
    p->file = f;
    p->left = PLOT_WIDTH * panel;
    double step = plot_tick(p->x1 - p->x0);
    for (int i = 0; i <= (int)((p->x1 - p->x0) / step + 1e-9); i++) {
        double v = p->x0 + i * step, x = plot_x(p, v);
        fprintf(f, "<path d=\"M%.1f 40V320\" stroke=\"#e4e4e4\"/>", x);
        fprintf(f, "<text x=\"%.1f\" y=\"336\" text-anchor=\"middle\">%g</text>\n", x, v);
    }
    step = plot_tick(p->y1 - p->y0);
    double v = p->y0;
    for (int i = 1; v <= p->y1 * (1 + 1e-9); i++) {
        double y = plot_y(p, v);
        fprintf(f, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#e4e4e4\"/>", p->left + 64, y,
                p->left + PLOT_WIDTH - 20);
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", p->left + 58,
                y + 4, v);
        v = p->log ? 10 * v : p->y0 + i * step;
    }
    fprintf(f, "<text x=\"%.1f\" y=\"24\" font-size=\"15\" text-anchor=\"middle\">%s</text>\n",
            p->left + PLOT_WIDTH / 2.0, p->title);
    fprintf(f, "<text x=\"%.1f\" y=\"356\" text-anchor=\"middle\">%s</text>\n",
            p->left + PLOT_WIDTH / 2.0, p->x_name);
    fprintf(
        f, "<text transform=\"translate(%.1f 180) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
        p->left + 14, p->y_name);
}

/* Draws a line through n points, and its entry in the legend unless name is NULL. The entry is at
 * (legend_x, legend_y) of the chart, both from 0 to 1. Parts of the line outside the chart are cut
 * off. A negative width draws a dashed line. */
static void plot_line(plot *p, const char *name, double width, const double *x, const double *y,
                      int n, double legend_x, double legend_y)
{
    static const char *const colours[] = { "#1f5fa8", "#d1495b", "#e08e1b",
                                           "#3a8f5c", "#7a4fa3", "#777777" };
    const char *colour = colours[p->lines % 6];
    const char *dash = width < 0 ? " stroke-dasharray=\"5 4\"" : "";
    double lx = p->left + 64 + legend_x * (PLOT_WIDTH - 84),
           ly = 40 + legend_y * 280 + 16 * p->lines;
    int pen = 0;
    width = width < 0 ? -width : width;
    fprintf(p->file, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"%g\"%s d=\"", colour, width,
            dash);
    for (int i = 0; i < n; i++) {
        int inside = y[i] >= p->y0 && y[i] <= p->y1; /* false for NaN as well */
        if (!inside && pen && y[i] > p->y1)
            fprintf(p->file, "L%.1f %.1f", plot_x(p, x[i]), plot_y(p, p->y1));
        else if (inside)
            fprintf(p->file, "%c%.1f %.1f", pen ? 'L' : 'M', plot_x(p, x[i]), plot_y(p, y[i]));
        pen = inside;
    }
    fprintf(p->file, "\"/>\n");
    p->lines++;
    if (name == NULL)
        return;
    fprintf(p->file, "<path d=\"M%.1f %.1fh24\" stroke=\"%s\" stroke-width=\"%g\"%s/>", lx, ly - 4,
            colour, width, dash);
    fprintf(p->file, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", lx + 30, ly, name);
}

static void plot_close(FILE *f) { fprintf(f, "</svg>\n"); }
#endif
