/* pictures.h - draws plans, frontiers and graphs as SVG pictures. To use it, copy it: it calls the
 * public API of gradckpt.h only.
 *
 *     #include "gradckpt.h"
 *     #include "pictures.h"
 *
 *     pictures_plan(plan, write, user);            instructions, live bytes, the arena, the peak
 *
 *     pictures_modes modes;                        fixed modes, for comparison with a frontier
 *     pictures_compare(graph, terms, count, &desc, &modes);
 *     pictures_frontier(frontier, &modes, mark, write, user);
 *     pictures_table(frontier, &modes, write, user);          the comparison as text
 *
 *     pictures_graph(graph, &overlay, write, user);  tensors and ops with values and gradients
 *
 *     pictures_bars(title, names, n, kind_names, kinds, bytes, write, user);      bytes by kind
 *
 * `write` is a gckpt_write_fn. Each function returns GCKPT_E_ARG for NULL (except for the modes of
 * a picture, which are optional) and GCKPT_E_FILE if `write` failed. No heap, independent of the
 * locale, C99 or C++11. */
#ifndef PICTURES_H
#define PICTURES_H
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- buffered output; after a failed write, nothing more is written ---- */
typedef struct {
    gckpt_write_fn write;
    void *user;
    size_t used;
    int failed;
    char block[4096];
} pictures_out;

typedef struct {
    char text[48];
} pictures_number;

static inline void pictures_put(pictures_out *o, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        o->block[o->used++] = s[i];
        if (o->used == sizeof o->block) {
            o->failed = o->failed || o->write(o->user, o->block, o->used) != o->used;
            o->used = 0;
        }
    }
}

static inline gckpt_result pictures_close(pictures_out *o)
{
    if (!o->failed && o->used)
        o->failed = o->write(o->user, o->block, o->used) != o->used;
    return o->failed ? GCKPT_E_FILE : GCKPT_OK;
}

/* Formats v with six significant digits and a decimal point in any locale: 0.25, 1234.5. */
static inline pictures_number pictures_format(double v)
{
    pictures_number out;
    const char *sign = v < 0 ? "-" : "";
    double scale = 1e6;
    int decimals = 6;
    v = v < 0 ? -v : v;
    v = v < 1e15 ? v : 1e15;
    for (double most = 1; decimals > 0 && v >= most; most *= 10, scale /= 10)
        decimals--;
    unsigned long long all = (unsigned long long)(v * scale + 0.5);
    unsigned long long one = (unsigned long long)scale;
    for (; decimals > 0 && all % 10 == 0; decimals--) {
        all /= 10;
        one /= 10;
    }
    if (decimals > 0)
        snprintf(out.text, sizeof out.text, "%s%llu.%0*llu", sign, all / one, decimals, all % one);
    else
        snprintf(out.text, sizeof out.text, "%s%llu", sign, all);
    return out;
}

/* Returns the largest unit (1, 1024, 1024^2, ..) that is at most `bytes`, and sets *name to its
 * name. */
static inline double pictures_unit(double bytes, const char **name)
{
    static const char *const names[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double unit = 1;
    int i = 0;
    for (; bytes >= 1024 * unit && i < 4; i++)
        unit *= 1024;
    *name = names[i];
    return unit;
}

/* Formats bytes with three digits: 12.8 MiB. */
static inline pictures_number pictures_bytes(size_t bytes)
{
    const char *name;
    double unit = pictures_unit((double)bytes, &name), scale = 1;
    while (unit > 1 && (double)bytes / unit * scale < 100)
        scale *= 10;
    pictures_number out =
        pictures_format((double)(uint64_t)((double)bytes / unit * scale + 0.5) / scale);
    size_t n = strlen(out.text);
    snprintf(out.text + n, sizeof out.text - n, " %s", name);
    return out;
}

/* Prints like vprintf, with these formats: %s text, %i int, %I int64_t, %z size_t, %b size_t
 * printed as in 12.8 MiB, %g double. */
static inline void pictures_vprintf(pictures_out *o, const char *format, va_list args)
{
    pictures_number number;
    for (const char *f = format; *f; f++) {
        const char *s = number.text;
        if (*f != '%') {
            pictures_put(o, f, 1);
            continue;
        }
        switch (*++f) {
        case 's': s = va_arg(args, const char *); break;
        case 'i': snprintf(number.text, sizeof number.text, "%d", va_arg(args, int)); break;
        case 'I':
            snprintf(number.text, sizeof number.text, "%lld", (long long)va_arg(args, int64_t));
            break;
        case 'z':
            snprintf(number.text, sizeof number.text, "%llu",
                     (unsigned long long)va_arg(args, size_t));
            break;
        case 'b': number = pictures_bytes(va_arg(args, size_t)); break;
        case 'g': number = pictures_format(va_arg(args, double)); break;
        default: s = "%"; break;
        }
        pictures_put(o, s, strlen(s));
    }
}

static inline void pictures_printf(pictures_out *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pictures_vprintf(o, format, args);
    va_end(args);
}

static inline void pictures_text(pictures_out *o, double x, double y, const char *attributes,
                                 const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pictures_printf(o, "<text x=\"%g\" y=\"%g\"%s>", x, y, attributes);
    pictures_vprintf(o, format, args);
    pictures_printf(o, "</text>\n");
    va_end(args);
}

/* ---- names ---- */
/* Returns the number of bytes of the UTF-8 character at s, or 0 if the character is invalid:
 * overlong, a surrogate, or incomplete. */
static inline int pictures_character(const char *s)
{
    static const unsigned least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    unsigned c = (unsigned char)*s;
    int n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    c &= n > 1 ? 0x7fu >> n : 0xffu;
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0; /* also at the final 0 of the text */
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return c < least[n] || c > 0x10ffff || c >> 11 == 0x1b ? 0 : n;
}

/* Prints the name s in at most `most` columns and returns the columns used. A character that is not
 * ASCII counts as two columns, "?" replaces invalid bytes, and dots replace a part that is cut
 * off. */
static inline int pictures_name(pictures_out *o, const char *s, int most)
{
    int columns = 0, last = 0; /* last: columns before the place where the dots would begin */
    for (const char *c = s; *c && last <= most; c++)
        last += (unsigned char)*c < 0x80 ? 1 : ((unsigned char)*c & 0xc0) == 0x80 ? 0 : 2;
    last = last > most ? most - 1 : most;
    for (int n; *s; s += n ? n : 1) {
        n = pictures_character(s);
        if (columns + (n > 1 ? 2 : 1) > last) {
            pictures_printf(o, "\xe2\x80\xa6");
            return columns + 1;
        }
        int unseen = n == 0 || (n == 1 && (*s < 32 || *s == 127)) ||
                     (n == 3 && (!memcmp(s, "\xef\xbf\xbe", 3) || !memcmp(s, "\xef\xbf\xbf", 3)));
        const char *escaped = unseen      ? "?"
                              : *s == '&' ? "&amp;"
                              : *s == '<' ? "&lt;"
                              : *s == '>' ? "&gt;"
                              : *s == '"' ? "&quot;"
                                          : NULL;
        pictures_put(o, escaped ? escaped : s, escaped ? strlen(escaped) : (size_t)n);
        columns += n > 1 ? 2 : 1;
    }
    return columns;
}

/* Prints the label of tensor `id`, op and name ("linear h.0.fc", "gelu #7"), in at most `most`
 * columns. A parameter, or a tensor for whose op there is no space, has the name alone. */
static inline void pictures_label(pictures_out *o, const gckpt_plan *plan, int id, int most)
{
    const char *op = gckpt_plan_op(plan, id), *name = gckpt_plan_name(plan, id);
    name = *name && strcmp(name, op) ? name : NULL;
    if (*op && (!name || strlen(op) + 1 + strlen(name) <= (size_t)most)) {
        most -= pictures_name(o, op, most) + 1;
        if (name)
            pictures_printf(o, " ");
        else if (most > 6)
            pictures_printf(o, " #%i", id);
    }
    if (name)
        pictures_name(o, name, most);
}

static inline double pictures_round(double v) { return (double)(int64_t)(v * 10 + 0.5) / 10; }

/* ---- the picture of a plan; all lengths are in pixels ---- */
#define PICTURES_PAGE         1260
#define PICTURES_LEFT         96  /* left edge of the charts */
#define PICTURES_WIDTH        860 /* width of the charts, in pixels and columns of one pixel */
#define PICTURES_SIDE         972
#define PICTURES_LANES        130
#define PICTURES_LANE         16
#define PICTURES_LIVE_TOP     236
#define PICTURES_LIVE_HEIGHT  200
#define PICTURES_ARENA_TOP    490
#define PICTURES_ARENA_HEIGHT 300
#define PICTURES_BOTTOM       790
enum {
    PICTURES_RECOMPUTE = GCKPT_UPDATE + 1,
    PICTURES_COPY,
    PICTURES_REDUCE,
    PICTURES_PHASES,
    PICTURES_KINDS = GCKPT_BUFFER_REDUCTION + 1
};
typedef struct {
    pictures_out out;
    const gckpt_plan *plan;
    /* length: number of instructions; columns: number of columns, each of which shows one or more
     * instructions */
    size_t length, columns;
    /* for each column, the one of its instructions with most live bytes */
    size_t most_at[PICTURES_WIDTH];
    /* peak: instruction with most live bytes; body: first instruction of the plan's body; body_end:
     * the instruction after the body */
    size_t peak, body, body_end;
    uint64_t work;                  /* cost of all instructions, at least 1 */
    /* number of kinds of buffers shown; the last kind, reduction, exists only with several virtual
     * ranks */
    int kinds;
} pictures_timeline;

/* Returns the lane in which instruction x is drawn: forward, backward or update (the gckpt_kind),
 * recompute, copy (to or from slower memory), or reduce; PICTURES_PHASES if in none. */
static inline int pictures_phase(const gckpt_plan *plan, size_t x, gckpt_usage *u)
{
    gckpt_instruction ins;
    gckpt_plan_get(plan, (int)x, &ins);
    gckpt_plan_usage(plan, (int)x, u);
    return u->recompute                    ? (int)PICTURES_RECOMPUTE
           : ins.id < 0                ? (int)PICTURES_PHASES
           : ins.kind == GCKPT_REDUCE  ? (int)PICTURES_REDUCE
           : ins.kind >= GCKPT_OFFLOAD ? (int)PICTURES_COPY
                                       : (int)ins.kind;
}

/* Reads the plan once and sets the fields of *s: costs, peak, body, and the instruction that each
 * column shows. */
static inline void pictures_measure(pictures_timeline *s)
{
    /* for each column, its most live bytes + 1, or 0 */
    size_t most[PICTURES_WIDTH] = { 0 }, top = 0;
    gckpt_usage u;
    for (size_t x = 0; x < s->length; x++) {
        size_t column = x * s->columns / s->length;
        int reduces = pictures_phase(s->plan, x, &u) == PICTURES_REDUCE;
        s->kinds = PICTURES_KINDS - (!reduces && s->kinds < PICTURES_KINDS);
        s->work += u.cost;
        if (u.live >= most[column]) {
            most[column] = u.live + 1;
            s->most_at[column] = x;
        }
        if (u.live >= top) {
            top = u.live + 1;
            s->peak = x;
        }
        if (!u.once && s->body_end == 0)
            s->body = x;
        if (!u.once)
            s->body_end = x + 1;
    }
    s->work += !s->work;
}

static inline double pictures_x(const pictures_timeline *s, size_t column)
{
    return pictures_round(PICTURES_LEFT + (double)column * PICTURES_WIDTH / (double)s->columns);
}

/* Draws the title, the style sheet and the legend. */
static inline void pictures_header(pictures_timeline *s)
{
    static const int legend_x[] = { 96, 176, 328, 520, 714, 820 };
    static const char *const kinds[] = {
        "values",    "kept for backward", "gradients of activations", "gradients of parameters",
        "workspace", "sums of virtual ranks"
    };
    const gckpt_plan *plan = s->plan;
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    pictures_out *o = &s->out;
    int height = PICTURES_BOTTOM + 56;
    pictures_printf(o,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%i\" height=\"%i\" "
                  "viewBox=\"0 0 %i %i\" font-family=\"sans-serif\" font-size=\"13\" "
                  "fill=\"#222\"><style>",
                  PICTURES_PAGE, height, PICTURES_PAGE, height);
    pictures_printf(o,
                  ".k0{fill:#0072b2}.k1{fill:#7cc4f0}.k2{fill:#e69f00}.k3{fill:#cc79a7}"
                  ".k4{fill:#999}.e{text-anchor:end}.c{text-anchor:middle}"
                  ".p0{fill:#009e73}.p1{fill:#5d3a9b}.p2{fill:#333}.p3{fill:#d55e00}"
                  ".g{stroke:#ddd}.l{stroke:#222;stroke-dasharray:5 4}"
                  ".s{stroke:#fff;stroke-width:.8}.b{font-weight:bold}.n{font-size:11px}"
                  ".m{font-size:12px}.m,.n{font-family:monospace}%s%s</style>\n",
                  info.offloaded ? ".p4{fill:#56b4e9}" : "",
                  s->kinds == PICTURES_KINDS ? ".p5{fill:#882255}.k5{fill:#44aa99}" : "");
    pictures_printf(o, "<path fill=\"#fff\" d=\"M0 0h%iv%iH0z\"/>\n", PICTURES_PAGE, height);
    pictures_text(o, 16, 34, " font-size=\"20\" class=\"b\"",
                  info.mode == GCKPT_INFERENCE
                      ? "Memory of a forward pass (%s): %b"
                      : "Memory of a training step (%s): %b, recomputing adds %g %% work",
                  info.mode_name, gckpt_plan_bytes(plan),
                  pictures_round(100 * info.overhead));
    const size_t caches = gckpt_plan_kind_bytes(plan, GCKPT_BYTES_CACHES);
    pictures_text(o, 16, 60, "",
                  caches ? "%z bytes: parameters %b, optimiser state and caches %b, and the step "
                           "arena, drawn here, %b. %I of %I rows at a time."
                         : "%z bytes: parameters %b, optimiser state %b, and the step arena, drawn "
                           "here, %b. %I of %I rows at a time.",
                  gckpt_plan_bytes(plan),
                  gckpt_plan_kind_bytes(plan, GCKPT_BYTES_PARAMETERS),
                  gckpt_plan_kind_bytes(plan, GCKPT_BYTES_STATE) + caches, info.arena,
                  info.rows, info.batch);
    for (int k = 0; k < s->kinds; k++) {
        pictures_printf(o, "<path class=\"k%i\" d=\"M%i 80h12v12h-12z\"/>", k, legend_x[k]);
        pictures_text(o, legend_x[k] + 17, 91, "", "%s", kinds[k]);
    }
}

/* Draws a lane for each phase of a step (see pictures_phase), and marks the body of the plan. */
static inline void pictures_lanes(pictures_timeline *s)
{
    const gckpt_plan_info info = gckpt_plan_describe(s->plan);
    static const char *const names[] = { "forward",   "backward",        "update",
                                         "recompute", "offload, reload", "reduce" };
    const int copies = info.offloaded > 0;
    const int lane_of[] = { 0, 2, 3, 1, 4, 4 + copies };
    const int64_t rows = info.rows;
    const int64_t batch = gckpt_plan_rank_rows(s->plan, info.batch, 0, NULL);
    pictures_out *o = &s->out;
    gckpt_usage u;
    for (int phase = 0; phase < PICTURES_PHASES; phase++) {
        if (phase == PICTURES_COPY ? !copies
                                   : phase == PICTURES_REDUCE && s->kinds < PICTURES_KINDS)
            continue;
        double y = PICTURES_LANES + lane_of[phase] * PICTURES_LANE;
        /* count: number of instructions of this phase; begin: first column of the bar being drawn;
         * end: the column after that bar */
        size_t count = 0, begin = 0, end = 0;
        uint64_t work = 0;
        pictures_text(o, PICTURES_LEFT - 8, y + 11, " class=\"e\"", "%s", names[phase]);
        pictures_printf(o, "<path fill=\"#f3f3f3\" d=\"M%i %gh%iv%ih-%iz\"/>", PICTURES_LEFT, y,
                      PICTURES_WIDTH, PICTURES_LANE - 3, PICTURES_WIDTH);
        pictures_printf(o, "<path class=\"p%i\" d=\"M0 0", phase);
        for (size_t x = 0; x <= s->length; x++) {
            size_t column = x * s->columns / s->length;
            int here = x < s->length && pictures_phase(s->plan, x, &u) == phase;
            if (end > begin && (x == s->length || (here && column > end)))
                pictures_printf(o, "M%g %gH%gv%iH%gz", pictures_x(s, begin), y, pictures_x(s, end),
                              PICTURES_LANE - 3, pictures_x(s, begin));
            if (!here)
                continue;
            count++;
            work += u.cost;
            begin = column > end || end == 0 ? column : begin;
            end = column + 1;
        }
        pictures_printf(o, "\"/>");
        pictures_text(o, PICTURES_SIDE, y + 11, "",
                      work ? "%I instruction%s, %g %% of the work" : "%I instruction%s",
                      (int64_t)count, count == 1 ? "" : "s",
                      pictures_round(100 * (double)work / (double)s->work));
    }
    if (batch > rows && info.mode != GCKPT_INFERENCE) {
        double from = pictures_x(s, s->body * s->columns / s->length),
               to = pictures_x(s, s->body_end * s->columns / s->length);
        pictures_printf(o, "<path fill=\"none\" stroke=\"#222\" d=\"M%g %iv-5H%gv5\"/>", from,
                      PICTURES_LANES - 4, to);
        pictures_text(o, (from + to) / 2, PICTURES_LANES - 13, " class=\"c\"",
                      s->kinds == PICTURES_KINDS ? "runs for each micro-batch of each leaf"
                                                 : "runs for each micro-batch: %I times",
                      (batch + rows - 1) / rows);
    }
}

/* Draws a chart's title and horizontal lines for bytes; the chart's full height means `most`
 * bytes. */
static inline void pictures_grid(pictures_out *o, double top, double height, size_t most,
                                 const char *title, const char *name)
{
    const char *unit;
    double v = (double)(most + !most), step = 1;
    pictures_text(o, PICTURES_LEFT, top - 12, " class=\"b\"", "%s", title);
    v /= pictures_unit(v, &unit);
    for (int i = 0; v / step > 6; i++)
        step *= i % 3 == 1 ? 2.5 : 2;
    if (most >= 1024 && v < 3)
        step = v < 1.5 ? 0.25 : 0.5;
    for (int i = 0; i * step <= v; i++) {
        double y = pictures_round(top + height - height * i * step / v);
        pictures_printf(o, "<path class=\"g\" d=\"M%i %gh%i\"/>", PICTURES_LEFT, y, PICTURES_WIDTH);
        pictures_text(o, PICTURES_LEFT - 8, y + 4, " class=\"e\"", "%g", i * step);
    }
    pictures_printf(o, "<text transform=\"translate(28 %g) rotate(-90)\" class=\"c\">%s, %s</text>\n",
                  top + height / 2, name, unit);
}

/* Draws the chart of live bytes: one area for each kind of buffer, stacked. A column that has
 * several instructions shows the one with most live bytes. */
static inline void pictures_live(pictures_timeline *s)
{
    static const int order[] = {
        GCKPT_BUFFER_PARAMETER_GRADIENT, GCKPT_BUFFER_VALUE,     GCKPT_BUFFER_SAVED,
        GCKPT_BUFFER_GRADIENT,           GCKPT_BUFFER_WORKSPACE, GCKPT_BUFFER_REDUCTION
    };
    size_t live[PICTURES_WIDTH + 1][PICTURES_KINDS] = { { 0 } }, bound = gckpt_plan_describe(s->plan).peak;
    double scale = PICTURES_LIVE_HEIGHT / (double)(bound + !bound);
    gckpt_buffer b;
    /* first, live[column] is the change of live bytes at that column; the loop after this one adds
     * the changes up */
    for (int i = 0; gckpt_plan_buffer(s->plan, i, &b) == GCKPT_OK; i++) {
        size_t from = (size_t)b.start * s->columns / s->length, to = s->columns;
        if ((size_t)b.end < s->length)
            to = (size_t)b.end * s->columns / s->length;
        from += s->most_at[from] < (size_t)b.start;
        to += to < s->columns && s->most_at[to] <= (size_t)b.end;
        live[from][b.kind] += from < to ? b.size : 0;
        live[to][b.kind] -= from < to ? b.size : 0;
    }
    for (size_t column = 1; column < s->columns; column++)
        for (int k = 0; k < PICTURES_KINDS; k++)
            live[column][k] += live[column - 1][k];
    for (int top = s->kinds - 1; top >= 0; top--) {
        double y = -1;
        pictures_printf(&s->out, "<path class=\"k%i\" d=\"M%i %i", order[top], PICTURES_LEFT,
                      PICTURES_LIVE_TOP + PICTURES_LIVE_HEIGHT);
        for (size_t column = 0; column < s->columns; column++) {
            size_t here = 0;
            for (int k = 0; k <= top; k++)
                here += live[column][order[k]];
            double now =
                pictures_round(PICTURES_LIVE_TOP + PICTURES_LIVE_HEIGHT - scale * (double)here);
            if (now < y || now > y)
                pictures_printf(&s->out, "H%gV%g", pictures_x(s, column), now);
            y = now;
        }
        pictures_printf(&s->out, "H%iV%iz\"/>\n", PICTURES_LEFT + PICTURES_WIDTH,
                      PICTURES_LIVE_TOP + PICTURES_LIVE_HEIGHT);
    }
}

/* Draws the arena: a rectangle for each buffer over its live range. A column that has several
 * instructions shows the first one, and omits buffers that live only between two of them. */
static inline void pictures_arena(pictures_timeline *s)
{
    static const char *const what[] = { "value of",    "kept by",      "gradient of",
                                        "gradient of", "workspace of", "sums of virtual ranks of" };
    pictures_out *o = &s->out;
    size_t arena = gckpt_plan_describe(s->plan).arena;
    double scale = PICTURES_ARENA_HEIGHT / (double)(arena + !arena);
    gckpt_buffer b;
    for (int i = 0; gckpt_plan_buffer(s->plan, i, &b) == GCKPT_OK; i++) {
        size_t start = (size_t)b.start, end = (size_t)b.end + 1;
        start = (start * s->columns + s->length - 1) / s->length;
        end = end < s->length ? (end * s->columns + s->length - 1) / s->length : s->columns;
        if (start >= end)
            continue;
        double x = pictures_x(s, start), width = pictures_round(pictures_x(s, end) - x);
        double y = pictures_round(PICTURES_BOTTOM - scale * (double)(b.offset + b.size));
        double height = scale * (double)b.size;
        height = height < 0.5 ? 0.5 : pictures_round(height);
        int fits = (int)((width - 6) / 6.7), seen = width >= 4 && height >= 4;
        pictures_printf(o, "<rect class=\"k%i%s\" x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"",
                      (int)b.kind, seen ? " s" : "", x, y, width, height);
        if (width < 2 || height < 2) {
            pictures_printf(o, "/>");
            continue;
        }
        pictures_printf(o, "><title>%s ", what[b.kind]);
        pictures_label(o, s->plan, b.id, 200);
        pictures_printf(o, ": %z bytes at %z, instructions %i to %i</title></rect>\n", b.size,
                      b.offset, b.start, b.end);
        if (height >= 12 && (fits > 9 || strlen(gckpt_plan_name(s->plan, b.id)) <= (size_t)fits)) {
            pictures_printf(o, "<text x=\"%g\" y=\"%g\" class=\"n\"%s>", x + 4,
                          pictures_round(y + height / 2 + 4),
                          b.kind == GCKPT_BUFFER_VALUE ? " fill=\"#fff\"" : "");
            pictures_label(o, s->plan, b.id, fits);
            pictures_printf(o, "</text>\n");
        }
    }
}

/* Returns the number of the largest buffer that is live at the peak and comes after buffer `last`
 * in the order of size, or a negative number after the last one. */
static inline int pictures_next_largest(const pictures_timeline *s, int last, gckpt_buffer *best)
{
    gckpt_buffer b, before;
    int found = -1;
    if (last >= 0)
        gckpt_plan_buffer(s->plan, last, &before);
    for (int i = 0; gckpt_plan_buffer(s->plan, i, &b) == GCKPT_OK; i++)
        if ((size_t)b.start <= s->peak && s->peak <= (size_t)b.end &&
            (last < 0 || b.size < before.size || (b.size == before.size && i > last)) &&
            (found < 0 || b.size > best->size)) {
            *best = b;
            found = i;
        }
    return found;
}

static inline void pictures_side_label(pictures_timeline *s, double x, double y, int id, int most)
{
    pictures_printf(&s->out, "<text x=\"%g\" y=\"%g\" class=\"m\">", x, y);
    pictures_label(&s->out, s->plan, id, most);
    pictures_printf(&s->out, "</text>\n");
}

/* Writes the peak and the largest buffers in it, to the right of the chart of live bytes. */
static inline void pictures_side_live(pictures_timeline *s)
{
    static const char *const verbs[] = { "forward of", "backward of", "update of",
                                         "forward again of" };
    pictures_out *o = &s->out;
    size_t bound = gckpt_plan_describe(s->plan).peak, rest = bound;
    double y = PICTURES_LIVE_TOP + 4;
    gckpt_instruction ins;
    gckpt_usage u;
    gckpt_buffer b;
    gckpt_plan_get(s->plan, (int)s->peak, &ins);
    pictures_text(o, PICTURES_SIDE, y, " class=\"b\"", "peak: %z bytes = %b", bound, bound);
    pictures_text(o, PICTURES_SIDE, y += 18, "", "in instruction %i, %s", (int)s->peak,
                  verbs[pictures_phase(s->plan, s->peak, &u)]);
    pictures_side_label(s, PICTURES_SIDE, y += 17, ins.id, 38);
    pictures_text(o, PICTURES_SIDE, y += 23, "", "largest buffers there:");
    for (int i = 0, k = -1; i < 5 && (k = pictures_next_largest(s, k, &b)) >= 0; i++) {
        rest -= b.size;
        y += 18;
        pictures_printf(o, "<path class=\"k%i\" d=\"M%i %gh10v10h-10z\"/>", (int)b.kind,
                      PICTURES_SIDE, y - 9);
        pictures_side_label(s, PICTURES_SIDE + 16, y, b.id, 25);
        pictures_text(o, PICTURES_PAGE - 16, y, " class=\"e\"", "%b", b.size);
    }
    if (rest) {
        pictures_text(o, PICTURES_SIDE + 16, y += 18, "", "the others together");
        pictures_text(o, PICTURES_PAGE - 16, y, " class=\"e\"", "%b", rest);
    }
}

/* Writes, to the right of the arena, how many bytes larger the arena is than the peak of live
 * bytes. */
static inline void pictures_side_arena(pictures_timeline *s)
{
    const gckpt_plan_info info = gckpt_plan_describe(s->plan);
    pictures_out *o = &s->out;
    size_t arena = info.arena, above = arena - info.peak;
    double y = PICTURES_ARENA_TOP + 4, part = (double)above / (double)(arena + !arena);
    pictures_text(o, PICTURES_SIDE, y, " class=\"b\"", "arena: %z bytes = %b", arena, arena);
    pictures_text(o, PICTURES_SIDE, y += 18, "",
                  above == 0     ? "as small as the peak allows"
                  : part < 0.015 ? "%z bytes more than the peak"
                                 : "%z bytes more than the peak (line)",
                  above);
    if (part >= 0.015)
        pictures_printf(o, "<path class=\"l\" d=\"M%i %gh%i\"/>\n", PICTURES_LEFT,
                      pictures_round(PICTURES_ARENA_TOP + PICTURES_ARENA_HEIGHT * part),
                      PICTURES_WIDTH);
    pictures_text(o, PICTURES_SIDE, y += 28, "", "A rectangle is one buffer: from its");
    pictures_text(o, PICTURES_SIDE, y + 17, "", "first to its last use, at its place.");
}

/* Marks the peak in both charts, and writes the instructions' numbers below them. */
static inline void pictures_peak(pictures_timeline *s)
{
    pictures_out *o = &s->out;
    double wide = PICTURES_WIDTH / (double)s->length;
    double x = pictures_round(PICTURES_LEFT + ((double)s->peak + 0.5) * wide);
    size_t step = 1;
    pictures_printf(o, "<path class=\"l\" d=\"M%i %ih%iM%i %ih%i", PICTURES_LEFT, PICTURES_LIVE_TOP,
                  PICTURES_WIDTH + 10, PICTURES_LEFT, PICTURES_ARENA_TOP, PICTURES_WIDTH + 10);
    pictures_printf(o, "M%g %iv%iM%g %iv%i\"/>", x, PICTURES_LANES, 4 * PICTURES_LANE, x,
                  PICTURES_LIVE_TOP, PICTURES_LIVE_HEIGHT + 8);
    pictures_printf(o, "<circle cx=\"%g\" cy=\"%i\" r=\"4\"/>", x, PICTURES_LIVE_TOP);
    pictures_printf(o, "<path d=\"M%g %il-4 -7h8z\"/>\n", x, PICTURES_ARENA_TOP);
    for (int i = 0; s->length / step > 10; i++)
        step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    for (size_t i = 0; i < s->length; i += step)
        pictures_text(o, pictures_round(PICTURES_LEFT + ((double)i + 0.5) * wide),
                      PICTURES_BOTTOM + 18, " class=\"c\"", "%z", i);
    pictures_text(o, PICTURES_LEFT + PICTURES_WIDTH / 2, PICTURES_BOTTOM + 40, " class=\"c\"",
                  "instruction, in the order they run");
}

/* Draws a step: the phases over time, live bytes over the instructions, the arena with all buffers,
 * and the buffers at the peak. The plan may have any size; above 860 instructions, several
 * instructions share a column. */
static inline gckpt_result pictures_plan(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    pictures_timeline s;
    if (!plan || !write || !info.instructions)
        return GCKPT_E_ARG;
    memset(&s, 0, sizeof s);
    s.out.write = write;
    s.out.user = user;
    s.plan = plan;
    s.length = (size_t)info.instructions;
    s.columns = s.length < PICTURES_WIDTH ? s.length : PICTURES_WIDTH;
    pictures_measure(&s);
    pictures_header(&s);
    pictures_lanes(&s);
    pictures_grid(&s.out, PICTURES_LIVE_TOP, PICTURES_LIVE_HEIGHT, info.peak,
                  "Live bytes while each instruction runs", "live");
    pictures_live(&s);
    pictures_grid(&s.out, PICTURES_ARENA_TOP, PICTURES_ARENA_HEIGHT, info.arena,
                  "The arena: every buffer at its offset", "offset");
    pictures_arena(&s);
    pictures_side_live(&s);
    pictures_side_arena(&s);
    pictures_peak(&s);
    pictures_printf(&s.out, "</svg>\n");
    return pictures_close(&s.out);
}

/* ---- the picture of a frontier, compared with the fixed modes ---- */
enum { PICTURES_MODES = 4, PICTURES_POOR_OPS = 400 };
static const char *const pictures_mode_names[] = {
    "store-all", "segments", "sqrt", "memory-poor", "optimal, least bytes", "optimal, this budget"
};
typedef struct {
    /* results of store-all, segments, sqrt and memory-poor; bytes is 0 for a mode without a plan */
    gckpt_point mode[PICTURES_MODES];
    /* bytes of parameters and optimiser state, which are the same for each plan */
    size_t resident;
    int ops;
} pictures_modes;

/* Plans each fixed mode with `desc`, the options with which the frontier was computed (NULL if it
 * had none). Skips memory-poor if the graph has many ops, since the length of its plan grows with
 * their square. If a mode has no plan, its error stays on the graph and its point has 0 bytes.
 * Returns GCKPT_E_MEMORY if planning runs out of memory. */
static inline gckpt_result pictures_compare(gckpt_graph *graph, const gckpt_term *terms, int count,
                                            const gckpt_plan_desc *desc, pictures_modes *modes)
{
    static const gckpt_mode all[] = { GCKPT_STORE_ALL, GCKPT_SEGMENTS, GCKPT_SQRT,
                                      GCKPT_MEMORY_POOR };
    gckpt_plan_desc d;
    if (!graph || !modes)
        return GCKPT_E_ARG;
    memset(modes, 0, sizeof *modes);
    memset(&d, 0, sizeof d);
    if (desc)
        d = *desc;
    d.budget = 0;
    for (int i = 0; i < PICTURES_MODES; i++) {
        gckpt_instruction ins;
        gckpt_usage u;
        d.mode = all[i];
        if (d.mode == GCKPT_MEMORY_POOR && modes->ops > PICTURES_POOR_OPS)
            continue;
        gckpt_plan *plan = gckpt_plan_new(graph, terms, count, &d);
        const gckpt_plan_info info = gckpt_plan_describe(plan);
        if (!plan && gckpt_error(graph) == GCKPT_E_MEMORY)
            return GCKPT_E_MEMORY;
        if (!plan)
            continue;
        modes->mode[i].bytes = gckpt_plan_bytes(plan);
        modes->mode[i].cost = info.cost;
        modes->mode[i].recompute = info.recompute;
        modes->mode[i].overhead = info.overhead;
        modes->resident = gckpt_plan_bytes(plan) - info.arena;
        for (int x = 0; i == 0 && gckpt_plan_get(plan, x, &ins) == GCKPT_OK; x++) {
            gckpt_plan_usage(plan, x, &u);
            modes->ops += ins.kind == GCKPT_FORWARD && !u.recompute && !u.once;
        }
        gckpt_plan_free(plan);
    }
    return GCKPT_OK;
}

typedef struct {
    pictures_out out;
    const gckpt_frontier *f;
    const pictures_modes *modes;
    /* top: extra time at which the axis breaks; beyond: largest extra time to show */
    double top, beyond;
    /* least, most: ends of the axis of bytes; unit: unit in which bytes are printed */
    double least, most, unit;
    double step;              /* cost of a step of the fastest plan, without recomputation */
    const char *unit_name;
    /* if nonzero, the axis of bytes is logarithmic, because it spans more than a factor of four */
    int log;
} pictures_chart;

/* Returns the extra time of a plan's cost, as a fraction of c->step, a step of the fastest plan on
 * the frontier. A fixed mode is compared with the same step, although its own step may be longer
 * because the frontier chose a faster lowering of an op. */
static inline double pictures_overhead(const pictures_chart *c, uint64_t work)
{
    return c->step > 0 && (double)work > c->step ? (double)work / c->step - 1 : 0;
}

/* Sets the ranges of both axes and the unit of bytes. */
static inline gckpt_result pictures_chart_open(pictures_chart *c, const gckpt_frontier *f,
                                               const pictures_modes *modes, gckpt_write_fn write,
                                               void *user)
{
    gckpt_point first, last;
    if (!write || gckpt_frontier_get(f, 0, &first) != GCKPT_OK ||
        gckpt_frontier_get(f, gckpt_frontier_describe(f).points - 1, &last) != GCKPT_OK)
        return GCKPT_E_ARG;
    memset(c, 0, sizeof *c);
    c->out.write = write;
    c->out.user = user;
    c->f = f;
    c->modes = modes;
    c->top = first.overhead > 0.01 ? first.overhead : 0.01;
    /* the linear part of the axis ends at the largest extra time, but at most at 0.6, because only
     * the smallest budgets need more */
    c->top = c->top < 0.6 ? c->top : 0.6;
    c->beyond = first.overhead;
    c->step = (double)last.cost / (1 + last.overhead);
    c->least = (double)first.bytes;
    c->most = (double)last.bytes;
    c->unit = pictures_unit(c->least / 10, &c->unit_name);
    for (int i = 0; modes && i < PICTURES_MODES; i++) {
        double bytes = (double)modes->mode[i].bytes;
        c->least = bytes > 0 && bytes < c->least ? bytes : c->least;
        c->most = bytes > c->most ? bytes : c->most;
        if (bytes > 0 && pictures_overhead(c, modes->mode[i].cost) > c->beyond)
            c->beyond = pictures_overhead(c, modes->mode[i].cost);
    }
    c->log = c->most > 4 * c->least && c->least >= 1;
    return GCKPT_OK;
}

/* Prints v >= 0 with one decimal between the texts `before` and `after`, right-aligned in 12
 * columns. */
static inline void pictures_column(pictures_out *o, const char *before, double v,
                                   const char *after)
{
    char number[48];
    unsigned long long tenths = (unsigned long long)((v < 1e12 ? v : 1e12) * 10 + 0.5);
    snprintf(number, sizeof number, "%s%llu.%llu%s", before, tenths / 10, tenths % 10, after);
    size_t n = strlen(number);
    pictures_put(o, "            ", n < 12 ? 12 - n : 0);
    pictures_put(o, number, n);
}

/* Prints a line of the table for a mode: bytes, extra time, share of recomputation, and the extra
 * time of the frontier at the same bytes. */
static inline void pictures_row(pictures_chart *c, const gckpt_point *p, const char *name)
{
    gckpt_point least;
    int at = gckpt_frontier_find(c->f, p->bytes);
    pictures_column(&c->out, "", (double)p->bytes / c->unit, "");
    pictures_column(&c->out, "+", 100 * pictures_overhead(c, p->cost), " %");
    pictures_column(&c->out, "", 100 * p->recompute, " %");
    if (gckpt_frontier_get(c->f, at, &least) == GCKPT_OK)
        pictures_column(&c->out, "+", 100 * least.overhead, " %");
    else
        pictures_printf(&c->out, "           -");
    pictures_printf(&c->out, "  %s", name);
}

/* Prints a table of the fixed modes; its columns match the table of print_frontier. */
static inline gckpt_result pictures_table(const gckpt_frontier *f, const pictures_modes *modes,
                                          gckpt_write_fn write, void *user)
{
    pictures_chart c;
    if (!modes || pictures_chart_open(&c, f, modes, write, user) != GCKPT_OK)
        return GCKPT_E_ARG;
    pictures_printf(&c.out, "For comparison, with the least extra time in as many bytes:\n");
    for (int i = 0; i < PICTURES_MODES; i++)
        if (modes->mode[i].bytes) {
            pictures_row(&c, &modes->mode[i], pictures_mode_names[i]);
            pictures_printf(&c.out, "\n");
        }
    if (modes->ops > PICTURES_POOR_OPS)
        pictures_printf(&c.out, "(not memory-poor: its list is too long for %i ops)\n", modes->ops);
    return pictures_close(&c.out);
}

/* Returns the natural logarithm of x >= 1. Uses x = 2^n m with log m = 2 (z + z^3 / 3 + ...), where
 * z = (m - 1) / (m + 1). */
static inline double pictures_log(double x)
{
    double n = 0, sum = 0;
    for (; x >= 1.5; x /= 2)
        n++;
    double z = (x - 1) / (x + 1), power = z;
    for (int i = 1; i < 24; i += 2, power *= z * z)
        sum += power / i;
    return 0.69314718055994531 * n + 2 * sum;
}

static inline double pictures_chart_x(const pictures_chart *c, double bytes)
{
    double span = c->log ? pictures_log(c->most / c->least) : c->most - c->least;
    double at = c->log ? pictures_log(bytes / c->least) : bytes - c->least;
    return pictures_round(100 + 640 * (span > 0 ? at / span : 0.5));
}

/* Returns the y coordinate for an extra time. Up to c->top the axis is linear; above c->top it
 * breaks and continues logarithmically, because plans of few bytes may need a lot of extra time. */
static inline double pictures_chart_y(const pictures_chart *c, double overhead)
{
    const int broken = c->beyond > c->top;
    const double zero = 412, top = broken ? 190 : 112, begin = 172, end = 112;
    if (overhead <= c->top || !broken)
        return pictures_round(zero - (zero - top) * (overhead < c->top ? overhead / c->top : 1));
    const double part = pictures_log(overhead / c->top) / pictures_log(c->beyond / c->top);
    return pictures_round(begin - (begin - end) * (part < 1 ? part : 1));
}

/* Returns the distance between ticks on an axis: 1, 2 or 5 times a power of ten, times `unit`, such
 * that at most `most` ticks are in `range`. */
static inline double pictures_tick(double range, double unit, double most)
{
    double step = unit / 10000;
    for (int i = 0; range / step > most; i++)
        step *= i % 3 == 1 ? 2.5 : 2;
    return step;
}

static inline void pictures_hline(pictures_chart *c, double v)
{
    pictures_printf(&c->out, "<path class=\"g\" d=\"M84 %gh692\"/>", pictures_chart_y(c, v));
    pictures_text(&c->out, 76, pictures_chart_y(c, v) + 4, " class=\"e\"", "+%g %%",
                  v < 1 ? pictures_round(1000 * v) / 10 : (double)(int64_t)(100 * v + 0.5));
}

/* Draws the grid, ticks with labels, and titles of the axes. */
static inline void pictures_axes(pictures_chart *c)
{
    pictures_out *o = &c->out;
    const char *name;
    double unit = pictures_unit(c->most, &name), step = pictures_tick(c->top, 1, 6);
    for (double v = 0; v <= c->top * 1.0001; v += step)
        pictures_hline(c, v);
    if (c->beyond > c->top)
        pictures_hline(c, c->beyond);
    /* ticks above the break, if there is space for them */
    for (double v = 1; v < c->beyond; v *= 10)
        if (v > c->top && pictures_chart_y(c, v) > pictures_chart_y(c, c->beyond) + 15 &&
            pictures_chart_y(c, v) < 170)
            pictures_hline(c, v);
    step = pictures_tick(c->most - c->least, unit, 7);
    double v = c->log ? 1 : step * (double)(uint64_t)(c->least / step);
    step = !c->log ? step : c->most > 256 * c->least ? 4 : 2;
    for (; v <= c->most; v = c->log ? v * step : v + step) {
        if (v < c->least)
            continue;
        unit = c->log ? pictures_unit(v, &name) : unit;
        pictures_printf(o, "<path class=\"g\" d=\"M%g 104v316\"/>", pictures_chart_x(c, v));
        pictures_text(o, pictures_chart_x(c, v), 436, " class=\"c\"", "%g %s", v / unit, name);
    }
    pictures_text(o, 430, 458, " class=\"c\"",
                  "bytes of parameters and optimiser state (%b) and step arena%s",
                  c->modes ? c->modes->resident : (size_t)0, c->log ? "; log scale" : "");
    pictures_printf(o, "<text transform=\"translate(20 262) rotate(-90)\" class=\"c\">"
                     "extra time of a step</text>\n");
}

/* Shades the area between the frontier's line and the proven lower bound of the extra time. Between
 * two points of the frontier, the bound of the second point applies. */
static inline void pictures_unproven(pictures_chart *c)
{
    pictures_out *o = &c->out;
    gckpt_point p;
    int last = gckpt_frontier_describe(c->f).points - 1;
    gckpt_frontier_get(c->f, 0, &p);
    pictures_printf(o, "<path fill=\"#f6d9c0\" d=\"M%g %g", pictures_chart_x(c, (double)p.bytes),
                  pictures_chart_y(c, p.overhead));
    for (int i = 0; gckpt_frontier_get(c->f, i, &p) == GCKPT_OK; i++)
        pictures_printf(o, "H%gV%g", pictures_chart_x(c, (double)p.bytes),
                      pictures_chart_y(c, p.overhead));
    for (int i = last; gckpt_frontier_get(c->f, i, &p) == GCKPT_OK; i--)
        pictures_printf(o, "H%gV%g", pictures_chart_x(c, (double)p.bytes),
                      pictures_chart_y(c, pictures_overhead(c, p.proven_cost)));
    pictures_printf(o, "z\"/>\n");
}

/* Draws the frontier as a line with its points. */
static inline void pictures_line(pictures_chart *c)
{
    pictures_out *o = &c->out;
    gckpt_point p;
    for (int dots = 0; dots < 2; dots++) {
        gckpt_frontier_get(c->f, 0, &p);
        pictures_printf(o,
                      dots ? "<path class=\"v\" style=\"stroke-width:6;stroke-linecap:round\" d=\""
                           : "<path class=\"v\" d=\"M%g 112",
                      pictures_chart_x(c, (double)p.bytes));
        for (int i = 0; gckpt_frontier_get(c->f, i, &p) == GCKPT_OK; i++)
            pictures_printf(o, dots ? "M%g %gh0" : "H%gV%g", pictures_chart_x(c, (double)p.bytes),
                          pictures_chart_y(c, p.overhead));
        pictures_printf(o, dots ? "\"/>\n" : "H776\"/>\n");
    }
}

/* Interrupts the chart's frame and line where the axis of extra time breaks. */
static inline void pictures_break(pictures_chart *c)
{
    if (c->beyond <= c->top)
        return;
    pictures_printf(&c->out, "<path fill=\"#fff\" d=\"M80 175h700v12h-700z\"/>"
                           "<path fill=\"none\" stroke=\"#999\" stroke-dasharray=\"2 3\" "
                           "d=\"M80 175h700M80 187h700\"/>\n");
    pictures_text(&c->out, 776, 170, " fill=\"#777\" class=\"e\"", "logarithmic above the break");
}

/* Draws point i in the chart, and its line in the table that serves as legend. */
static inline void pictures_point(pictures_chart *c, int i, const gckpt_point *p, double y)
{
    /* marker and colour of each point: square, two triangles, diamond, dash, circle, in colours of
     * Okabe and Ito */
    static const char *const looks[] = {
        "#009e73\" d=\"M-6 -6h12v12h-12z", "#e69f00\" d=\"M0 -7l7 12h-14z",
        "#cc79a7\" d=\"M0 7l7 -12h-14z",   "#5d3a9b\" d=\"M0 -8l8 8l-8 8l-8 -8z",
        "#0072b2\" d=\"M-9 0h18",          "#d55e00\" d=\"M-7 0a7 7 0 1 0 14 0a7 7 0 1 0 -14 0"
    };
    pictures_out *o = &c->out;
    pictures_printf(o, "<path class=\"w\" transform=\"translate(%g %g)\" stroke=\"%s\"/>",
                  pictures_chart_x(c, (double)p->bytes),
                  pictures_chart_y(c, pictures_overhead(c, p->cost)), looks[i]);
    pictures_printf(o, "<path class=\"w\" transform=\"translate(104 %g)\" stroke=\"%s\"/>\n", y - 5,
                  looks[i]);
    pictures_printf(o, "<text x=\"100\" y=\"%g\" class=\"m\" xml:space=\"preserve\">", y);
    pictures_row(c, p, pictures_mode_names[i]);
    pictures_printf(o, "</text>\n");
}

/* Draws the least extra time for every budget. Adds the fixed modes unless `modes` is NULL, and
 * marks the plan for a budget of `mark` bytes unless it is 0. */
static inline gckpt_result pictures_frontier(const gckpt_frontier *f, const pictures_modes *modes,
                                             size_t mark, gckpt_write_fn write, void *user)
{
    pictures_chart c;
    pictures_out *o = &c.out;
    gckpt_point p;
    double y = 490;
    if (pictures_chart_open(&c, f, modes, write, user) != GCKPT_OK)
        return GCKPT_E_ARG;
    pictures_printf(o, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"640\" "
                     "viewBox=\"0 0 800 640\" font-family=\"sans-serif\" font-size=\"13\" "
                     "fill=\"#222\"><style>.e{text-anchor:end}.c{text-anchor:middle}"
                     ".b{font-weight:bold}.g{stroke:#ddd}.v{fill:none;stroke:#0072b2}"
                     ".m{font-family:monospace;white-space:pre}.v,.w{fill:none;stroke-width:2}"
                     "</style>\n<path fill=\"#fff\" d=\"M0 0h800v640H0z\"/>\n");
    pictures_text(o, 16, 34, " font-size=\"20\" class=\"b\"", "What bytes cost in time");
    pictures_text(o, 16, 58, "",
                  "The line is optimal, a dot a plan; below what is shaded is none: proven.%s",
                  gckpt_frontier_describe(f).complete ? "" : " The search stopped early.");
    pictures_unproven(&c);
    pictures_axes(&c);
    pictures_line(&c);
    pictures_break(&c);
    pictures_text(o, 100, y, " class=\"m\" xml:space=\"preserve\"",
                  "%s%s  extra time  recomputed     optimal", c.unit > 1 ? "         " : "       ",
                  c.unit_name);
    for (int i = 0; modes && i < PICTURES_MODES; i++)
        if (modes->mode[i].bytes)
            pictures_point(&c, i, &modes->mode[i], y += 22);
    gckpt_frontier_get(f, 0, &p);
    pictures_point(&c, PICTURES_MODES, &p, y += 22);
    if (mark && gckpt_frontier_get(f, gckpt_frontier_find(f, mark), &p) == GCKPT_OK) {
        double x = pictures_chart_x(&c, (double)p.bytes);
        pictures_point(&c, PICTURES_MODES + 1, &p, y += 22);
        pictures_printf(o,
                      "<path class=\"w\" stroke=\"#d55e00\" stroke-dasharray=\"5 4\" "
                      "d=\"M%g 98V%gH84\"/>",
                      x, pictures_chart_y(&c, p.overhead));
        pictures_text(o, x, 90, x > 420 ? " class=\"b e\"" : " class=\"b\"",
                      "in a budget of %b: %b, +%g %%", mark, p.bytes,
                      pictures_round(100 * p.overhead));
    }
    if (modes && modes->ops > PICTURES_POOR_OPS)
        pictures_text(o, 120, y + 22, "", "Not memory-poor: its list is too long for %i ops.",
                      modes->ops);
    pictures_printf(o, "</svg>\n");
    return pictures_close(o);
}

/* ---- a graph ------------------------------------------------------------------------------------
 * Boxes are inputs and results of ops, each below the boxes that it reads; parameters and constants
 * are listed in the boxes of their readers. Rows are longest paths (Sugiyama 1981). Within a row,
 * boxes and passing lines are sorted by the mean position of their neighbours and placed as near to
 * it as their widths allow (isotonic regression). */
#define PICTURES_LINE 16
#define PICTURES_GAP  30
enum { PICTURES_NODES = 4096, PICTURES_CELLS = 4096, PICTURES_NUMBERS = 6, PICTURES_SWEEPS = 24 };
/* Data that the picture of a graph can show in addition to ops and shapes. All fields may be
 * NULL. */
typedef struct {
    const gckpt_plan *plan; /* if not NULL, tensors that get a gradient are marked */
    /* executor whose fetched values and gradients are shown, as of its last call */
    gckpt_exec *exec;
    gckpt_store *store;     /* provides the values of parameters */
    const gckpt_feed *feeds;
    int feed_count;             /* number of feeds, whose values are shown for inputs */
    /* provides the loss, and the count by which gradients were divided */
    const gckpt_report *report;
} pictures_overlay;

typedef struct {
    /* box: nonzero for a tensor's box, 0 for a line that passes through the row */
    int id, row, box;
    double x, half, height; /* x: centre of the cell; half: half of its width */
    /* position at which the cell should be, and how much that counts against other cells */
    double target, weight;
    int group;            /* first cell of the group of touching cells whose last cell this is */
} pictures_cell;

typedef struct {
    pictures_out out, line; /* out: the whole picture; line: the current line of text in a box */
    const gckpt_graph *graph;
    const pictures_overlay *overlay;
    int nodes, rows, cells, losses, params;
    int64_t floats;                   /* number of elements of all parameters */
    /* draw: nonzero to draw the current box, 0 to measure it; lines, columns: its number of lines
     * and longest line */
    int draw, lines, columns, length;
    /* x, y, box: position and width of the current box; width: width of the page */
    double x, y, box, width;
    /* for each node: its row, and the row of its last reader */
    short row[PICTURES_NODES], last[PICTURES_NODES];
    short readers[PICTURES_NODES];
    unsigned char gradient[PICTURES_NODES];
    int first[PICTURES_NODES + 1]; /* for each row, the index of its first cell */
    double top[PICTURES_NODES + 1];
    pictures_cell cell[PICTURES_CELLS];
} pictures_layout;

static inline int pictures_is_leaf(const gckpt_node *n)
{
    return !strcmp(n->op, "param") || !strcmp(n->op, "constant");
}

static inline int64_t pictures_elements(const gckpt_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->n; i++)
        n *= s->d[i];
    return n;
}

/* Formats a number with at most three digits after the point: 0.125, -3.46, 120, nan. Numbers near
 * 0 have six. */
static inline pictures_number pictures_short(double v)
{
    pictures_number out;
    double size = v < 0 ? -v : v, scale = size < 0.01 ? 1e6 : size < 10 ? 1e3 : size < 1e3 ? 10 : 1;
    if (size < 1e12)
        size = (double)(int64_t)(size * scale + 0.5) / scale;
    if (size < 1e12)
        return pictures_format(v < 0 && size > 0 ? -size : size);
    snprintf(out.text, sizeof out.text, "%s", v > 0 ? "huge" : v < 0 ? "-huge" : "nan");
    return out;
}

/* ---- boxes: their lines of text are first measured, then drawn ---- */
static inline void pictures_word(pictures_layout *m, const char *s)
{
    m->length += pictures_name(&m->line, s, 40);
}

/* Ends the current line of a box: draws it, or counts it if the box is being measured. `style` is
 * the style of the line's background, or NULL. */
static inline void pictures_line_end(pictures_layout *m, const char *style, const char *look, int bar)
{
    pictures_out *o = &m->out;
    const double y = m->y + 5 + PICTURES_LINE * m->lines++;
    m->columns = m->length > m->columns ? m->length : m->columns;
    if (m->draw) {
        if (style)
            pictures_printf(o, "<path class=\"%s\" d=\"M%g %gh%gv%ih-%gz\"/>", style, m->x + 5, y,
                          m->box - 6, PICTURES_LINE, m->box - 6);
        if (bar)
            pictures_printf(o, "<path class=\"g\" d=\"M%g %gh5v%ih-5z\"/>", m->x, y, PICTURES_LINE);
        pictures_printf(o, "<text x=\"%g\" y=\"%g\"%s>", m->x + 11, y + 12, look);
        pictures_put(o, m->line.block, m->line.used);
        pictures_printf(o, "</text>\n");
    }
    m->line.used = 0;
    m->length = 0;
}

/* Prints `what` and the first values of x, such as "value 0.5 -1.2; 3 4"; a semicolon ends a row of
 * the last axis. */
static inline void pictures_numbers(pictures_layout *m, const char *what, const float *x,
                                    const int32_t *index, const gckpt_shape *shape, double unit)
{
    const int64_t n = pictures_elements(shape), wide = shape->n ? shape->d[shape->n - 1] : 1;
    pictures_word(m, what);
    for (int64_t i = 0; i < n && i < PICTURES_NUMBERS; i++) {
        pictures_number v = pictures_short((x ? (double)x[i] : (double)index[i]) / unit);
        pictures_word(m, i && i % wide == 0 ? "; " : " ");
        pictures_word(m, v.text);
    }
    if (n > PICTURES_NUMBERS)
        pictures_word(m, " \xe2\x80\xa6");
}

static inline const void *pictures_value(const pictures_layout *m, const gckpt_node *n, int id)
{
    const pictures_overlay *s = m->overlay;
    gckpt_parameter p;
    for (int i = 0; s && i < s->feed_count; i++)
        if (s->feeds[i].input == id)
            return s->feeds[i].data;
    if (n->data)
        return n->data;
    if (s && s->store && !strcmp(n->op, "param"))
        return gckpt_store_get(s->store, gckpt_store_find(s->store, n->name), &p) ? NULL : p.values;
    return s && s->exec ? gckpt_fetch(s->exec, id, 0) : NULL;
}

/* Adds lines to a box: name, shape, value and gradient of tensor `id`. */
static inline void pictures_tensor(pictures_layout *m, int id)
{
    gckpt_node n;
    gckpt_graph_node(m->graph, id, &n);
    const int is_leaf = pictures_is_leaf(&n), bar = m->gradient[id];
    const char *style = is_leaf ? (*n.op == 'p' ? "p" : "n") : NULL;
    if (!is_leaf)
        pictures_word(m, n.op);
    if (!is_leaf && *n.name)
        pictures_word(m, " ");
    pictures_word(m, n.name);
    if (!is_leaf)
        pictures_line_end(m, style, " class=\"b\"", bar);
    for (int i = 0; i < n.shape.n; i++) {
        char size[32];
        snprintf(size, sizeof size, "%s%lld",
                 i        ? ","
                 : is_leaf ? " ("
                          : "(",
                 (long long)n.shape.d[i]);
        pictures_word(m, size);
    }
    pictures_word(m, n.shape.n ? ")" : n.loss ? "sum, count" : is_leaf ? " ()" : "()");
    if (n.type == GCKPT_I32)
        pictures_word(m, " i32");
    if (is_leaf && m->readers[id] > 1)
        pictures_word(m, ", shared");
    pictures_line_end(m, style, "", bar);
    const void *value = pictures_value(m, &n, id);
    if (value) {
        pictures_numbers(m, "value", n.type == GCKPT_F32 ? (const float *)value : NULL,
                         (const int32_t *)value, &n.shape, 1);
        pictures_line_end(m, style, " class=\"v\"", bar);
    } else if (n.loss && m->losses == 1 && m->overlay && m->overlay->report) {
        pictures_number v = pictures_short(m->overlay->report->loss);
        pictures_word(m, "value ");
        pictures_word(m, v.text);
        pictures_line_end(m, style, " class=\"v\"", bar);
    }
    const float *gradient = m->overlay && m->overlay->exec ? gckpt_fetch(m->overlay->exec, id, 1) : NULL;
    if (gradient) {
        const gckpt_report *r = n.batch_invariant ? NULL : m->overlay->report;
        pictures_numbers(m, "gradient", gradient, NULL, &n.shape,
                         r && r->count ? (double)r->count : 1);
        pictures_line_end(m, style, " class=\"d\"", bar);
    }
}

static inline void pictures_box(pictures_layout *m, int id)
{
    gckpt_node n, leaf;
    m->lines = m->columns = 0;
    gckpt_graph_node(m->graph, id, &n);
    pictures_tensor(m, id);
    for (int i = 0; i < n.inputs; i++) {
        gckpt_graph_node(m->graph, n.input[i], &leaf);
        if (pictures_is_leaf(&leaf))
            pictures_tensor(m, n.input[i]);
    }
}

/* ---- layout ---- */
/* Assigns a row to each tensor: below the tensors that it reads and, where there is a choice, just
 * above its first reader. */
static inline void pictures_rows(pictures_layout *m)
{
    gckpt_node n, from;
    for (int id = 0; id < m->nodes; id++) {
        gckpt_graph_node(m->graph, id, &n);
        m->row[id] = 0;
        m->last[id] = -1;
        m->losses += n.loss;
        if (!strcmp(n.op, "param")) {
            m->params++;
            m->floats += pictures_elements(&n.shape);
        }
        for (int i = 0; i < n.inputs; i++) {
            gckpt_graph_node(m->graph, n.input[i], &from);
            m->readers[n.input[i]]++;
            if (!pictures_is_leaf(&from) && m->row[id] <= m->row[n.input[i]])
                m->row[id] = (short)(m->row[n.input[i]] + 1);
        }
    }
    /* in this loop, last[] is the row of the first reader */
    for (int id = m->nodes - 1; id >= 0; id--) {
        gckpt_graph_node(m->graph, id, &n);
        if (m->last[id] > 0)
            m->row[id] = (short)(m->last[id] - 1);
        for (int i = 0; i < n.inputs; i++)
            if (m->last[n.input[i]] < 0 || m->row[id] < m->last[n.input[i]])
                m->last[n.input[i]] = m->row[id];
    }
    for (int id = 0; id < m->nodes; id++) {
        gckpt_graph_node(m->graph, id, &n);
        for (int i = 0; i < n.inputs; i++)
            if (m->row[id] > m->last[n.input[i]])
                m->last[n.input[i]] = m->row[id];
        if (!pictures_is_leaf(&n) && m->row[id] >= m->rows)
            m->rows = m->row[id] + 1;
    }
}

/* Creates the cells: a box for each tensor except parameters and constants, and a line in each row
 * between a tensor and its last reader. Returns 0 if there are too many cells, else 1. */
static inline int pictures_cells(pictures_layout *m)
{
    gckpt_node n;
    for (int row = 0; row < m->rows; row++) {
        m->first[row] = m->cells;
        for (int id = 0; id < m->nodes; id++) {
            gckpt_graph_node(m->graph, id, &n);
            if (pictures_is_leaf(&n) || row < m->row[id] || (row > m->row[id] && row >= m->last[id]))
                continue;
            if (m->cells == PICTURES_CELLS)
                return 0;
            pictures_cell *c = &m->cell[m->cells++];
            c->id = id;
            c->row = row;
            c->box = row == m->row[id];
            c->half = 4;
            c->weight = 1;
            if (c->box) {
                pictures_box(m, id);
                c->half = (24 + 7.3 * m->columns) / 2;
                c->height = PICTURES_LINE * m->lines + 10;
            }
        }
    }
    m->first[m->rows] = m->cells;
    return m->cells > 0;
}

static inline pictures_cell *pictures_find(pictures_layout *m, int id, int row)
{
    for (int i = m->first[row]; i < m->first[row + 1]; i++)
        if (m->cell[i].id == id)
            return &m->cell[i];
    return NULL;
}

static inline void pictures_pull(pictures_cell *c, const pictures_cell *other, double weight)
{
    if (!other)
        return;
    c->target += weight * other->x;
    c->weight += weight;
}

/* Sets the target position of a cell from its neighbours in the row above (sides 1), below (2) or
 * both (3). */
static inline void pictures_target(pictures_layout *m, pictures_cell *c, int sides)
{
    gckpt_node n;
    c->target = c->weight = 0;
    gckpt_graph_node(m->graph, c->id, &n);
    if (sides & 1 && !c->box)
        pictures_pull(c, pictures_find(m, c->id, c->row - 1), 2);
    for (int i = 0; sides & 1 && c->box && c->row && i < n.inputs; i++) {
        pictures_cell *from = pictures_find(m, n.input[i], c->row - 1);
        pictures_pull(c, from, from && from->box ? 4 : 1);
    }
    if (sides & 2 && c->row + 1 < m->last[c->id])
        pictures_pull(c, pictures_find(m, c->id, c->row + 1), c->box ? 1 : 2);
    const int below = c->row + 1 < m->rows ? m->first[c->row + 2] : 0;
    for (int k = m->first[c->row + 1]; sides & 2 && k < below; k++) {
        gckpt_graph_node(m->graph, m->cell[k].id, &n);
        for (int i = 0; m->cell[k].box && i < n.inputs; i++)
            if (n.input[i] == c->id)
                pictures_pull(c, &m->cell[k], c->box ? 4 : 1);
    }
    c->target = c->weight > 0 ? c->target / c->weight : c->x;
    c->weight = c->weight > 0 ? c->weight : 0.01;
}

/* Places the cells of a row in their order, each as near to its target as possible. Cells that
 * would overlap form a group, whose mean target decides (pool adjacent violators). */
static inline void pictures_place(pictures_layout *m, int row)
{
    const int begin = m->first[row], end = m->first[row + 1];
    pictures_cell *const all = m->cell;
    double at = 0; /* position of cell i if all cells were as close together as allowed */
    for (int i = begin; i < end; i++) {
        if (i > begin)
            at += all[i - 1].half + all[i].half + (all[i - 1].box || all[i].box ? 20 : 4);
        all[i].x = at;
        double target = all[i].target - at, weight = all[i].weight;
        int first = i;
        while (first > begin && all[all[first - 1].group].target > target) {
            const pictures_cell *before = &all[first = all[first - 1].group];
            target = (target * weight + before->target * before->weight) / (weight + before->weight);
            weight += before->weight;
        }
        all[first].target = target;
        all[first].weight = weight;
        all[i].group = first;
    }
    for (int i = end - 1, first; i >= begin; i = first - 1) {
        first = all[i].group;
        for (int k = first; k <= i; k++)
            all[k].x += all[first].target;
    }
}

/* Sorts the cells of a row by their targets if `sort` is nonzero, then places them. */
static inline void pictures_sort_row(pictures_layout *m, int row, int sides, int sort)
{
    for (int i = m->first[row]; i < m->first[row + 1]; i++) {
        pictures_target(m, &m->cell[i], sides);
        for (int k = i; sort && k > m->first[row] && m->cell[k - 1].target > m->cell[k].target; k--) {
            const pictures_cell c = m->cell[k];
            m->cell[k] = m->cell[k - 1];
            m->cell[k - 1] = c;
        }
    }
    pictures_place(m, row);
}

/* Sorts the rows several times, alternately downwards and upwards. Then places the cells in that
 * order by neighbours on both sides, and shifts all of them so that the page's margin is
 * respected. */
static inline void pictures_arrange(pictures_layout *m)
{
    double left = 0, right = 0, y = 130;
    for (int row = 0; row < m->rows; row++)
        pictures_place(m, row);
    for (int sweep = 0; sweep < PICTURES_SWEEPS; sweep++)
        for (int i = 0; i < m->rows; i++) {
            const int late = sweep >= PICTURES_SWEEPS / 2, down = sweep % 2 == 0;
            pictures_sort_row(m, down ? i : m->rows - 1 - i, late ? 3 : down ? 1 : 2, !late);
        }
    for (int i = 0; i < m->cells; i++) {
        const pictures_cell *c = &m->cell[i];
        left = i == 0 || c->x - c->half < left ? c->x - c->half : left;
        right = i == 0 || c->x + c->half > right ? c->x + c->half : right;
    }
    m->width = right - left + 40 > 760 ? right - left + 40 : 760;
    for (int i = 0; i < m->cells; i++)
        m->cell[i].x += m->width / 2 - (left + right) / 2;
    for (int row = 0; row < m->rows; row++) {
        double height = 0;
        for (int i = m->first[row]; i < m->first[row + 1]; i++)
            height = m->cell[i].height > height ? m->cell[i].height : height;
        m->top[row] = y;
        y += height + PICTURES_GAP;
    }
    m->top[m->rows] = y;
}

/* ---- drawing ---- */
/* Draws the lines from the row above to a cell. At a box, the lines end in the order in which they
 * begin; an input that is read twice has two lines. */
static inline void pictures_edges(pictures_layout *m, const pictures_cell *c)
{
    const double y = m->top[c->row], from_y = y - PICTURES_GAP;
    gckpt_node n;
    gckpt_graph_node(m->graph, c->id, &n);
    for (int i = 0; i < (c->box ? n.inputs : 1); i++) {
        const pictures_cell *from = pictures_find(m, c->box ? n.input[i] : c->id, c->row - 1);
        int rank = 0, others = 0;
        if (!from)
            continue;
        for (int k = 0; c->box && k < n.inputs; k++) {
            const pictures_cell *other = pictures_find(m, n.input[k], c->row - 1);
            others += other != NULL;
            rank += other && (other->x < from->x || (other == from && k < i));
        }
        const double x = pictures_round(c->x + (c->box ? 8 * (2 * rank - others + 1) : 0));
        pictures_printf(&m->out, "<path class=\"e\" d=\"M%g %gC%g %g %g %g %g %g\"/>",
                      pictures_round(from->x), from_y, pictures_round(from->x), from_y + 18, x,
                      y - 20, x, y);
        if (c->box)
            pictures_printf(&m->out, "<path d=\"M%g %gl-3.5 -8h7z\"/>", x, y);
    }
}

static inline void pictures_draw_cell(pictures_layout *m, const pictures_cell *c)
{
    static const char *const looks[] = { "o", "i", "l" };
    const double y = m->top[c->row], bottom = m->top[c->row + 1] - PICTURES_GAP;
    gckpt_node n;
    gckpt_graph_node(m->graph, c->id, &n);
    if (c->row)
        pictures_edges(m, c);
    if (m->last[c->id] > c->row)
        pictures_printf(&m->out, "<path class=\"e\" d=\"M%g %gV%g\"/>\n", pictures_round(c->x),
                      y + c->height, bottom);
    if (!c->box)
        return;
    m->x = pictures_round(c->x - c->half);
    m->y = y;
    m->box = pictures_round(2 * c->half);
    pictures_printf(&m->out, "<rect class=\"%s\" x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"/>\n",
                  looks[n.loss ? 2 : !strcmp(n.op, "input")], m->x, y, m->box, c->height);
    pictures_box(m, c->id);
}

static inline void pictures_graph_header(pictures_layout *m)
{
    static const char *const looks[] = { "i", "o", "p", "n", "l", "g" };
    static const char *const names[] = { "input", "result of an op", "parameter", "constant",
                                         "loss",  "gets a gradient" };
    pictures_out *o = &m->out;
    const double height = m->top[m->rows] - PICTURES_GAP + 20;
    double x = 20;
    int boxes = 0;
    for (int i = 0; i < m->cells; i++)
        boxes += m->cell[i].box;
    pictures_printf(o,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
                  "viewBox=\"0 0 %g %g\" font-family=\"monospace\" font-size=\"12\" "
                  "fill=\"#222\"><style>.t{font-family:sans-serif;font-size:13px}"
                  ".b{font-weight:bold}.i,.o,.l{stroke:#666}.i{fill:#d3e9f8}.o{fill:#fff}"
                  ".l{fill:#e2d9f3}.p{fill:#cdeadf}.n{fill:#e4e4e4}.g{fill:#e69f00}"
                  ".e{fill:none;stroke:#666}.v{fill:#0072b2}.d{fill:#b35900}</style>\n"
                  "<path fill=\"#fff\" d=\"M0 0h%gv%gH0z\"/>\n",
                  m->width, height, m->width, height, m->width, height);
    pictures_text(o, 20, 34, " font-family=\"sans-serif\" font-size=\"20\" class=\"b\"",
                  "The graph: %i boxes, %i parameter%s of %I numbers", boxes, m->params,
                  m->params == 1 ? "" : "s", m->floats);
    pictures_text(o, 20, 60, " class=\"t\"",
                  "A box reads what leads to it from above, and the parameters and constants that "
                  "stand in it.");
    for (int i = 0; i < 6 - !(m->overlay && m->overlay->plan); i++) {
        pictures_printf(o, "<path class=\"%s\" d=\"M%g 80h%iv12h-%iz\"/>", looks[i], x,
                      i == 5 ? 5 : 12, i == 5 ? 5 : 12);
        pictures_text(o, x + 17, 91, " class=\"t\"", "%s", names[i]);
        x += 42 + 6.6 * (double)strlen(names[i]);
    }
}

/* Marks the tensors whose gradients a plan computes: results of ops by the plan's backwards, inputs
 * and parameters by buffers for their gradients. */
static inline void pictures_mark_grads(pictures_layout *m, const gckpt_plan *plan)
{
    gckpt_instruction ins;
    gckpt_buffer b;
    gckpt_node n;
    for (int i = 0; gckpt_plan_get(plan, i, &ins) == GCKPT_OK; i++)
        if (ins.kind == GCKPT_BACKWARD && ins.id < m->nodes)
            m->gradient[ins.id] = 1;
    for (int i = 0; gckpt_plan_buffer(plan, i, &b) == GCKPT_OK; i++)
        if ((b.kind == GCKPT_BUFFER_GRADIENT || b.kind == GCKPT_BUFFER_PARAMETER_GRADIENT) &&
            b.id < m->nodes)
            m->gradient[b.id] = 1;
    /* a view has a gradient if the tensor that it views has one */
    for (int id = 0; id < m->nodes; id++) {
        gckpt_graph_node(m->graph, id, &n);
        if (!strcmp(n.op, "reshape"))
            m->gradient[id] = m->gradient[n.input[0]];
    }
}

/* Draws a graph: ops, names, shapes, and the data in `overlay` unless it is NULL. Returns
 * GCKPT_E_MEMORY if the graph has more than PICTURES_NODES tensors, or if the picture needs more
 * than PICTURES_CELLS cells. */
static inline gckpt_result pictures_graph(const gckpt_graph *graph, const pictures_overlay *overlay,
                                          gckpt_write_fn write, void *user)
{
    pictures_layout m;
    if (gckpt_graph_size(graph) < 1 || !write)
        return GCKPT_E_ARG;
    if (gckpt_graph_size(graph) > PICTURES_NODES)
        return GCKPT_E_MEMORY;
    memset(&m, 0, sizeof m);
    m.out.write = write;
    m.out.user = user;
    m.graph = graph;
    m.overlay = overlay;
    m.nodes = gckpt_graph_size(graph);
    if (overlay && overlay->plan)
        pictures_mark_grads(&m, overlay->plan);
    pictures_rows(&m);
    if (!pictures_cells(&m))
        return GCKPT_E_MEMORY;
    pictures_arrange(&m);
    pictures_graph_header(&m);
    m.draw = 1;
    for (int i = 0; i < m.cells; i++)
        pictures_draw_cell(&m, &m.cell[i]);
    pictures_printf(&m.out, "</svg>\n");
    return pictures_close(&m.out);
}

/* ---- bars ------------------------------------------------------------------------------------ */
/* Draws n horizontal bars, one below the other. Each bar is divided into up to 6 kinds of bytes;
 * bytes[i * kinds + k] is kind k of bar i. */
static inline gckpt_result pictures_bars(const char *title, const char *const *names, int n,
                                         const char *const *kind_names, int kinds,
                                         const size_t *bytes, gckpt_write_fn write, void *user)
{
    enum { LEFT = 110, WIDTH = 610, TOP = 112, EACH = 34, BAR = 20 };
    static const char *const colours[] = { "#bbb",    "#0072b2", "#7cc4f0",
                                           "#cc79a7", "#e69f00", "#555" };
    pictures_out out, *o = &out;
    const char *unit;
    size_t most = 1;
    double legend = 16, step = 1;
    const int height = TOP + EACH * n + 40;
    if (!title || !names || !kind_names || !bytes || !write || n < 1 || kinds < 1 || kinds > 6)
        return GCKPT_E_ARG;
    memset(o, 0, offsetof(pictures_out, block));
    o->write = write;
    o->user = user;
    for (int i = 0; i < n; i++) {
        size_t sum = 0;
        for (int k = 0; k < kinds; k++)
            sum += bytes[i * kinds + k];
        most = sum > most ? sum : most;
    }
    double v = (double)most;
    v /= pictures_unit(v, &unit);
    for (int i = 0; v / step > 8; i++)
        step *= i % 3 == 1 ? 2.5 : 2;
    step = v < 1.5 ? 0.25 : v < 3 ? 0.5 : step;
    pictures_printf(o,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"820\" height=\"%i\" "
                  "viewBox=\"0 0 820 %i\" font-family=\"sans-serif\" font-size=\"13\" "
                  "fill=\"#222\"><style>.e{text-anchor:end}.c{text-anchor:middle}"
                  ".b{font-weight:bold}.g{stroke:#ddd}</style>\n"
                  "<path fill=\"#fff\" d=\"M0 0h820v%iH0z\"/>\n",
                  height, height, height);
    pictures_text(o, 16, 34, " font-size=\"20\" class=\"b\"", "%s", title);
    for (int k = 0; k < kinds; k++) {
        pictures_printf(o, "<path fill=\"%s\" d=\"M%g 56h12v12h-12z\"/>", colours[k], legend);
        pictures_text(o, legend + 17, 67, "", "%s", kind_names[k]);
        legend += 34 + 7.2 * (double)strlen(kind_names[k]);
    }
    for (int i = 0; i * step <= v; i++) {
        const double x = pictures_round((double)LEFT + WIDTH * i * step / v);
        pictures_printf(o, "<path class=\"g\" d=\"M%g %iv%i\"/>", x, TOP - 8, EACH * n + 8);
        pictures_text(o, x, TOP + EACH * n + 18, " class=\"c\"", "%g", i * step);
    }
    pictures_text(o, LEFT - 10, TOP + EACH * n + 18, " class=\"e\"", "%s", unit);
    for (int i = 0; i < n; i++) {
        const double y = TOP + EACH * i;
        double x = LEFT;
        size_t sum = 0;
        pictures_text(o, LEFT - 10, y + 15, " class=\"e b\"", "%s", names[i]);
        for (int k = 0; k < kinds; k++) {
            sum += bytes[i * kinds + k];
            const double end =
                pictures_round((double)LEFT + (double)WIDTH * ((double)sum / (double)most));
            if (end > x)
                pictures_printf(o, "<path fill=\"%s\" d=\"M%g %gH%gv%iH%gz\"/>", colours[k], x, y,
                              end, BAR, x);
            x = end > x ? end : x;
        }
        pictures_text(o, x + 6, y + 15, "", "%b", sum);
    }
    pictures_printf(o, "</svg>\n");
    return pictures_close(o);
}
#endif
