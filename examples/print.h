/* print.h - prints plans and frontiers as text, a plan as a trace, and a frontier as JSON. To use
 * it, copy it: it calls the public API of gradckpt.h only, and needs no heap, stdio or locale. */
#ifndef PRINT_H
#define PRINT_H
#include <float.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- buffered output; after a failed write, nothing more is written ---- */
typedef struct {
    gckpt_write_fn write;
    void *user;
    size_t used;
    int failed;
    char block[1024];
} printer;

static inline gckpt_result printer_flush(printer *o)
{
    if (!o->failed && o->used)
        o->failed = o->write(o->user, o->block, o->used) != o->used;
    o->used = 0;
    return o->failed ? GCKPT_E_FILE : GCKPT_OK;
}

static inline void printer_put(printer *o, const char *s, size_t n)
{
    for (size_t i = 0; i < n && !o->failed; i++) {
        o->block[o->used++] = s[i];
        if (o->used == sizeof o->block)
            printer_flush(o);
    }
}

/* Writes the decimal digits of a number before `end`, and returns the first one. */
static inline char *printer_digits(char *end, uint64_t value)
{
    do {
        *--end = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    return end;
}

static inline void printer_uint(printer *o, uint64_t value)
{
    char digits[20], *first = printer_digits(digits + 20, value);
    printer_put(o, first, (size_t)(digits + 20 - first));
}

/* Prints six significant digits with a decimal point in any locale: 0.0123457, 12345.7, 1.5e-9. */
static inline void printer_double(printer *o, double value)
{
    int point = 6; /* digits before the decimal point */
    if (value < 0) {
        printer_put(o, "-", 1);
        value = -value;
    }
    if (!(value <= DBL_MAX)) {
        printer_put(o, value > DBL_MAX ? "inf" : "nan", 3);
        return;
    }
    for (; value >= 1e6; point++)
        value /= 10;
    for (; value > 0 && value < 1e5; point--)
        value *= 10;
    const uint64_t number = (uint64_t)(value + 0.5); /* six digits, or 1000000, or 0 */
    char digits[20];
    const char *d = printer_digits(digits + 20, number);
    int n = (int)(digits + 20 - d);
    point += n > 6;
    const int exponent = number && (point > 9 || point < -3) ? point - 1 : 0;
    point = exponent || !number ? 1 : point;
    while (n > 1 && d[n - 1] == '0')
        n--;
    for (int i = point < 1 ? point - 1 : 0; i < n || i < point; i++) {
        if (i == point)
            printer_put(o, ".", 1);
        printer_put(o, i < 0 || i >= n ? "0" : d + i, 1);
    }
    if (exponent) {
        printer_put(o, exponent < 0 ? "e-" : "e", exponent < 0 ? 2 : 1);
        printer_uint(o, (uint64_t)(exponent < 0 ? -exponent : exponent));
    }
}

/* Returns the largest power of 1024 that is at most `bytes` (at least 1), and its name (KiB). */
static inline double printer_unit(double bytes, const char **name)
{
    static const char *const names[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double unit = 1;
    int i = 0;
    for (; bytes >= 1024 * unit && i < 4; i++)
        unit *= 1024;
    *name = names[i];
    return unit;
}

/* Prints bytes in three digits: 12.8 MiB. */
static inline void printer_bytes(printer *o, size_t bytes)
{
    const char *name;
    double unit = printer_unit((double)bytes, &name), scale = 1;
    while (unit > 1 && (double)bytes / unit * scale < 100)
        scale *= 10;
    printer_double(o, (double)(uint64_t)((double)bytes / unit * scale + 0.5) / scale);
    printer_put(o, " ", 1);
    printer_put(o, name, strlen(name));
}

/* Prints like printf, with these formats: %s text, %i int and %I int64_t of at least 0, %z size_t,
 * %b size_t as in 12.8 MiB, %u uint64_t, %g double. */
static inline void printer_print(printer *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    for (const char *f = format; *f; f++) {
        const char *s;
        if (*f != '%') {
            printer_put(o, f, 1);
            continue;
        }
        switch (*++f) {
        case 's':
            s = va_arg(args, const char *);
            printer_put(o, s, strlen(s));
            break;
        case 'i': printer_uint(o, (uint64_t)va_arg(args, int)); break;
        case 'I': printer_uint(o, (uint64_t)va_arg(args, int64_t)); break;
        case 'z': printer_uint(o, va_arg(args, size_t)); break;
        case 'b': printer_bytes(o, va_arg(args, size_t)); break;
        case 'u': printer_uint(o, va_arg(args, uint64_t)); break;
        case 'g': printer_double(o, va_arg(args, double)); break;
        default: printer_put(o, f, 1); break;
        }
    }
    va_end(args);
}

/* ---- a plan as text ---- */
/* Prints the offset of the result of instruction x, if it has a buffer of its own: a result that
 * overwrites another has none. *first is the first buffer that begins at x or later. */
static inline void printer_offset(printer *o, const gckpt_plan *plan, int x, int id, int *first)
{
    gckpt_buffer b;
    while (gckpt_plan_buffer(plan, *first, &b) == GCKPT_OK && b.start < x)
        ++*first;
    for (int i = *first; gckpt_plan_buffer(plan, i, &b) == GCKPT_OK && b.start == x; i++)
        if (b.id == id && b.kind == GCKPT_BUFFER_VALUE)
            printer_print(o, " at %z", b.offset);
}

/* If an op mixes the rows of a batch, prints the op's name, and the tensor's number if only one
 * tensor has this name. */
static inline void printer_mixer(printer *o, const gckpt_plan *plan)
{
    const char *op;
    gckpt_instruction at;
    int id = -1, several = 0;
    if (gckpt_plan_split_exact(plan, &op))
        return;
    for (int x = 0; gckpt_plan_get(plan, x, &at) == GCKPT_OK; x++)
        if (gckpt_plan_name(plan, at.id) == op) {
            several = several || (id >= 0 && id != at.id);
            id = at.id;
        }
    printer_print(o, "another split of the batch gives other results: %s", op);
    printer_print(o, id >= 0 && !several ? " #%i mixes rows\n" : " mixes rows\n", id);
}

/* Prints a header, then each instruction with its result and the live bytes. Returns E_FILE, as the
 * functions below, if `write` fails, and E_ARG for NULL. */
static inline gckpt_result print_plan(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    static const char *const verbs[] = { "forward ", "backward", "update  ", "offload ",
                                         "reload  ", "reduce  ", "hold    ", "begin   ",
                                         "next    ", "barrier " };
    static const char *const kinds[] = {
        "parameters", "optimiser state", "gradients",      "activations", "workspace",
        "tables",     "caches",          "reduction tree", "gathered",    "optimiser state on the host"
    };
    printer o = { write, user, 0, 0, { 0 } };
    gckpt_instruction ins;
    gckpt_usage u;
    int overlap = 0, part = 0, first = 0; /* part: 0 before the micro-batches, 1 in one, 2 after */
    if (!plan || !write)
        return GCKPT_E_ARG;
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    int64_t rows = info.batch; /* of one rank */
#ifndef GCKPT_NO_RANKS
    rows = gckpt_plan_rank_rows(plan, info.batch, 0, NULL);
#endif
    const int repeats = info.mode != GCKPT_INFERENCE && rows > info.rows;
    for (int x = 0; gckpt_plan_get(plan, x, &ins) == GCKPT_OK; x++)
        overlap = overlap || ins.kind == GCKPT_OFFLOAD_DONE;
    printer_print(&o,
                  "plan %s: %z bytes (parameters + state + arena of %z, lower bound %z), "
                  "%g %% recomputed, %i instructions\n",
                  info.mode_name, gckpt_plan_bytes(plan), info.arena, info.peak,
                  100 * info.recompute, info.instructions);
    printer_print(&o,
                  "cost %u a micro-batch; proven: no schedule in its budget has less than %u, none "
                  "fits in less than %z bytes\n",
                  info.cost, info.proven_cost, info.proven_bytes);
    printer_print(&o, "micro-batch %I of a batch of %I\n", info.rows, info.batch);
    printer_mixer(&o, plan);
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++) {
        const size_t bytes = gckpt_plan_kind_bytes(plan, i);
        if (i != GCKPT_BYTES_TABLES && (i < GCKPT_BYTES_CACHES || bytes))
            printer_print(&o, "  %s: %z bytes\n", kinds[i], bytes);
    }
    if (info.offloaded)
        printer_print(&o, "  offloaded: %z bytes of slower memory%s\n", info.offloaded,
                      overlap ? ", overlapped with computation" : "");
    if (overlap)
        printer_print(&o, "  hidden: %u of the cost of copies\n", info.hidden_cost);
    for (int x = 0; gckpt_plan_usage(plan, x, &u) == GCKPT_OK && !o.failed; x++) {
        gckpt_plan_get(plan, x, &ins);
        const char *op = gckpt_plan_op(plan, ins.id), *name = gckpt_plan_name(plan, ins.id);
        if (part == 1 && u.once)
            printer_print(&o, "-- once a step, at the end\n");
        if (part == 0 && !u.once)
            printer_print(&o, repeats ? "-- for each micro-batch\n" : "-- batch\n");
        part = !u.once ? 1 : part ? 2 : 0;
        printer_print(&o, "%i\t%s", x, verbs[ins.kind]);
        if (ins.id >= 0)
            printer_print(&o, " %s #%i%s%s%s", *op ? op : "param", ins.id, name == op ? "" : " ",
                          name == op ? "" : name, u.recompute ? " again" : "");
        if (ins.kind == GCKPT_FORWARD || ins.kind == GCKPT_RELOAD)
            printer_offset(&o, plan, x, ins.id, &first);
        if (u.moved)
            printer_print(&o, ", %z bytes", u.moved);
        printer_print(&o, ", %z live\n", u.live);
    }
    return printer_flush(&o);
}

/* ---- a plan as a trace ---- */
/* Live bytes by kind of buffer at PRINTER_WINDOW consecutive instructions. One pass over all
 * buffers of the plan computes such a window. */
enum { PRINTER_WINDOW = 128, PRINTER_KINDS = GCKPT_BUFFER_REDUCTION + 1 };
typedef struct {
    int from; /* first instruction, or -1 */
    size_t live[PRINTER_WINDOW][PRINTER_KINDS];
} printer_window;

static inline const size_t *printer_live(const gckpt_plan *plan, printer_window *w, int x)
{
    const int from = x - x % PRINTER_WINDOW;
    gckpt_buffer b;
    if (w->from == from)
        return w->live[x - from];
    w->from = from;
    memset(w->live, 0, sizeof w->live);
    for (int i = 0; gckpt_plan_buffer(plan, i, &b) == GCKPT_OK; i++) {
        const int end = b.end + 1;
        if (b.start >= from + PRINTER_WINDOW || end <= from)
            continue;
        w->live[b.start > from ? b.start - from : 0][b.kind] += b.size; /* a difference */
        if (end < from + PRINTER_WINDOW)
            w->live[end - from][b.kind] -= b.size;
    }
    for (int i = 1; i < PRINTER_WINDOW; i++)
        for (int k = 0; k < PRINTER_KINDS; k++)
            w->live[i][k] += w->live[i - 1][k];
    return w->live[x - from];
}

/* Returns the number of bytes of the UTF-8 character at s, or 0 if the character is invalid:
 * overlong, a surrogate, or incomplete. */
static inline int printer_character(const char *s)
{
    static const unsigned least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    unsigned c = (unsigned char)*s;
    const int n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    c &= n > 1 ? 0x7fu >> n : 0xffu;
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0; /* also at the final 0 of the text */
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return c < least[n] || c > 0x10ffff || c >> 11 == 0x1b ? 0 : n;
}

/* Prints a name as JSON: escapes quotes; prints invalid and invisible characters as "?". */
static inline void printer_name(printer *o, const char *s)
{
    for (int n; *s; s += n ? n : 1) {
        n = printer_character(s);
        if (n == 0 || *s == 127 || (n == 1 && *s < 32) ||
            (n == 3 && (!memcmp(s, "\xef\xbf\xbe", 3) || !memcmp(s, "\xef\xbf\xbf", 3))))
            printer_put(o, "?", 1);
        else if (*s == '"' || *s == '\\')
            printer_put(o, *s == '"' ? "\\\"" : "\\\\", 2);
        else
            printer_put(o, s, (size_t)n);
    }
}

/* Prints nanoseconds as microseconds, the unit of the format. */
static inline void printer_time(printer *o, const char *prefix, uint64_t t)
{
    printer_print(o, "%s%u.%u%u%u", prefix, t / 1000, t / 100 % 10, t / 10 % 10, t % 10);
}

/* Writes a micro-batch as Chrome trace events (chrome://tracing, ui.perfetto.dev): a bar for each
 * instruction, a nanosecond per unit of cost (gckpt_cost), and live bytes by kind. */
static inline gckpt_result print_trace(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    static const char *const phases[] = { GCKPT_KIND_NAMES };
    static const char *const kinds[] = {
        "values",    "kept for backward",    "gradients of activations", "gradients of parameters",
        "workspace", "sums of virtual ranks"
    };
    printer o = { write, user, 0, 0, { 0 } };
    printer_window window;
    gckpt_instruction ins;
    gckpt_usage u;
    gckpt_buffer b;
    uint64_t now = 0;
    int kind_count = PRINTER_KINDS - 1;
    window.from = -1;
    if (!plan || !write)
        return GCKPT_E_ARG;
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    for (int i = 0; gckpt_plan_buffer(plan, i, &b) == GCKPT_OK; i++)
        if (b.kind == GCKPT_BUFFER_REDUCTION)
            kind_count = PRINTER_KINDS;
    printer_print(&o,
                  "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"mode\":\"%s\",\"bytes\":%z,"
                  "\"arena\":%z,\"lower_bound\":%z,\"work\":%u,\"proven_work\":%u,"
                  "\"proven_bytes\":%z},\"traceEvents\":[\n",
                  info.mode_name, gckpt_plan_bytes(plan), info.arena, info.peak,
                  info.cost, info.proven_cost, info.proven_bytes);
    printer_print(&o, "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":"
                      "\"plan: 1 ns is one unit of cost\"}},\n"
                      "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{"
                      "\"name\":\"instructions\"}}");
    for (int x = 0; gckpt_plan_usage(plan, x, &u) == GCKPT_OK && !o.failed; x++) {
        const size_t *live = printer_live(plan, &window, x);
        gckpt_plan_get(plan, x, &ins);
        const char *phase = u.recompute ? "recompute" : phases[ins.kind];
        const char *op = gckpt_plan_op(plan, ins.id), *name = gckpt_plan_name(plan, ins.id);
        u.cost += !u.cost; /* a bar of cost 0 would be invisible */
        printer_print(&o, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"cat\":\"%s\",\"name\":\"%s ",
                      phase, phase);
        printer_name(&o, op); /* a label such as "linear h.0.fc", "gelu #7" or "h.0.fc.weight" */
        if (*op)
            printer_print(&o, name == op ? " #%i" : " ", ins.id);
        if (name != op)
            printer_name(&o, name);
        printer_time(&o, "\",\"ts\":", now);
        printer_time(&o, ",\"dur\":", u.cost);
        printer_print(&o, ",\"args\":{\"instruction\":%i,\"tensor\":%i,\"live\":%z}},\n", x, ins.id,
                      u.live);
        printer_time(&o, "{\"ph\":\"C\",\"pid\":1,\"name\":\"live bytes\",\"ts\":", now);
        for (int i = 0; i < kind_count; i++)
            printer_print(&o, "%s\"%s\":%z", i ? "," : ",\"args\":{", kinds[i], live[i]);
        printer_print(&o, "}}");
        now += u.cost;
    }
    printer_print(&o, "\n]}\n");
    return printer_flush(&o);
}

#ifndef GCKPT_NO_FRONTIER
/* ---- a frontier as text and as JSON ---- */
/* Prints v >= 0 with one decimal between two texts, right-aligned in 12 columns. */
static inline void printer_tenths(printer *o, const char *prefix, double v, const char *suffix)
{
    const uint64_t tenths = (uint64_t)((v < 1e12 ? v : 1e12) * 10 + 0.5);
    char digits[20];
    const size_t n = (size_t)(digits + 20 - printer_digits(digits + 20, tenths / 10)) + 2 +
                     strlen(prefix) + strlen(suffix);
    printer_put(o, "            ", n < 12 ? 12 - n : 0);
    printer_print(o, "%s%u.%u%s", prefix, tenths / 10, tenths % 10, suffix);
}

/* Prints the frontier in 80 columns and some 20 rows, and marks the point for the budget `mark`,
 * unless that is 0. */
static inline gckpt_result print_frontier(const gckpt_frontier *f, size_t mark,
                                          gckpt_write_fn write, void *user)
{
    printer o = { write, user, 0, 0, { 0 } };
    const char *name;
    gckpt_point p;
    const int n = gckpt_frontier_describe(f).points, marked = mark ? gckpt_frontier_find(f, mark) : -1;
    if (!f || !write)
        return GCKPT_E_ARG;
    gckpt_frontier_get(f, 0, &p);
    const double top = p.overhead < 0.01 ? 0.01 : p.overhead < 0.6 ? p.overhead : 0.6;
    const double unit = printer_unit((double)p.bytes / 10, &name);
    printer_print(&o,
                  "What bytes cost in time: %i plan%s. Bytes are parameters, optimiser state\n"
                  "and step arena. Extra time is that of a step; a full bar is %g %%,\n"
                  "'#' is proven: no schedule takes less in these bytes. None fits in\n"
                  "less than %b.\n",
                  n, n == 1 ? "" : "s", (double)(int)(1000 * top + 0.5) / 10, /* 1 to 60 % */
                  gckpt_frontier_describe(f).proven_bytes);
    if (mark)
        printer_print(
            &o, marked < 0 ? "A budget of %b is too small.\n" : "> is what a budget of %b gets.\n",
            mark);
    if (!gckpt_frontier_describe(f).complete)
        printer_print(&o,
                      "The search stopped at its limit: plans may cost more than they need.\n");
    printer_print(&o, "\n%s%s  extra time    at least  recomputed\n",
                  unit > 1 ? "         " : "       ", name);
    for (int i = n; i-- > 0;) {
        char bar[] = "---------------------------";
        gckpt_frontier_get(f, i, &p);
        const double least = p.cost ? (double)p.cost / (1 + p.overhead) : 1; /* cost of store-all */
        const double proven = p.overhead - (double)(p.cost - p.proven_cost) / least;
        const double part = p.overhead / top, proven_part = proven / top;
        if (i && i + 1 < n && i != marked && (int64_t)i * 20 / n == (int64_t)(i - 1) * 20 / n)
            continue; /* many points: prints one of each group */
        bar[part < 1 ? (int)(part * 27 + 0.5) : 27] = 0;
        memset(bar, '#', (size_t)(proven_part < 1 ? (int)(proven_part * 27 + 0.5) : 27));
        bar[26] = part > 1.0001 ? '>' : bar[26];
        printer_tenths(&o, "", (double)p.bytes / unit, "");
        printer_tenths(&o, "+", 100 * p.overhead, " %");
        printer_tenths(&o, "+", 100 * proven, " %");
        printer_tenths(&o, "", 100 * p.recompute, " %");
        printer_print(&o, i == marked ? " > |%s\n" : "   |%s\n", bar);
    }
    return printer_flush(&o);
}

/* Prints the frontier as a JSON object with points (gckpt_point, ascending bytes), marked (index of
 * the point for the budget `mark`; null if mark is 0 or too small), complete and proven_bytes. */
static inline gckpt_result print_frontier_json(const gckpt_frontier *f, size_t mark,
                                               gckpt_write_fn write, void *user)
{
    printer o = { write, user, 0, 0, { 0 } };
    gckpt_point p;
    const int marked = mark ? gckpt_frontier_find(f, mark) : -1;
    if (!f || !write)
        return GCKPT_E_ARG;
    for (int i = 0; gckpt_frontier_get(f, i, &p) == GCKPT_OK; i++) {
        printer_print(&o, "%s\n{\"bytes\":%z,\"work\":%u,\"recompute\":%g,\"overhead\":%g,",
                      i ? "," : "{\"points\":[", p.bytes, p.cost, p.recompute, p.overhead);
        printer_print(&o, "\"proven_work\":%u}", p.proven_cost);
    }
    printer_print(&o, marked < 0 ? "],\n\"marked\":null" : "],\n\"marked\":%i", marked);
    printer_print(&o, ",\"complete\":%s,\"proven_bytes\":%z}\n",
                  gckpt_frontier_describe(f).complete ? "true" : "false", gckpt_frontier_describe(f).proven_bytes);
    return printer_flush(&o);
}
#endif
#endif
