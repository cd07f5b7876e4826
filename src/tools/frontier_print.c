#include "planner/internal.h"

#if !defined(GCKPT_NO_PRINT) && !defined(GCKPT_NO_FRONTIER)
/* ---- the frontier as text and as JSON ---- */
/* Returns the largest power of 1024 that is at most `bytes` (at least 1), and its name (KiB). */
static double gckpti_byte_unit(double bytes, const char **name)
{
    static const char *const names[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double unit = 1;
    int i = 0;
    for (; bytes >= 1024 * unit && i < 4; i++)
        unit *= 1024;
    *name = names[i];
    return unit;
}

/* Formats bytes in three digits, as "12.8 MiB", in `text`. */
static const char *gckpti_format_bytes(size_t bytes, char text[32])
{
    gckpti_text t = { text, 31 };
    const char *name;
    double unit = gckpti_byte_unit((double)bytes, &name), scale = 1;
    while (unit > 1 && (double)bytes / unit * scale < 100)
        scale *= 10;
    scale = (double)(uint64_t)((double)bytes / unit * scale + 0.5) / scale;
    gckpti_text_add(&t, "%g %s", scale, name);
    return text;
}

/* Prints v >= 0 with one decimal between two texts, right-aligned in 12 columns. */
static void gckpti_print_tenths(gckpti_sink *k, const char *prefix, double v, const char *suffix)
{
    char number[32];
    gckpti_text t = { number, sizeof number - 1 };
    uint64_t tenths = (uint64_t)((v < 1e12 ? v : 1e12) * 10 + 0.5);
    gckpti_text_add(&t, "%s%u.%u%s", prefix, tenths / 10, tenths % 10, suffix);
    size_t n = (size_t)(t.end - number);
    gckpti_sink_put(k, "            ", n < 12 ? 12 - n : 0);
    gckpti_sink_put(k, number, n);
}

GCKPT_API gckpt_result gckpt_frontier_print(const gckpt_frontier *f, size_t mark,
                                            gckpt_write_fn write, void *user)
{
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    const char *name;
    char text[32];
    if (!f || !write)
        return GCKPT_E_ARG;
    size_t n = f->count, rows = 20;
    double least = f->p.least_cost ? (double)f->p.least_cost : 1;
    int marked = mark ? gckpt_frontier_find(f, mark) : -1;
    double top = f->points[0].overhead,
           unit = gckpti_byte_unit((double)f->points[0].bytes / 10, &name);
    top = top < 0.01 ? 0.01 : top < 0.6 ? top : 0.6; /* the scale ends at 1 to 60 % */
    gckpti_print(&k,
                 "What bytes cost in time: %i plan%s. Bytes are parameters, optimiser state (both\n"
                 "%s) and step arena. Extra time is that of a step; a full bar is %g %%,\n"
                 "'#' is proven: no schedule takes less in these bytes. None fits in",
                 (int)n, n == 1 ? "" : "s", gckpti_format_bytes(f->resident, text),
                 (double)(int)(1000 * top + 0.5) / 10);
    gckpti_print(&k, "\nless than %s.\n", gckpti_format_bytes(f->proven_bytes, text));
    if (mark)
        gckpti_print(
            &k, marked < 0 ? "A budget of %s is too small.\n" : "> is what a budget of %s gets.\n",
            gckpti_format_bytes(mark, text));
    if (!f->complete)
        gckpti_print(&k, "The search stopped at its limit: plans may cost more than they need.\n");
    gckpti_print(&k, "\n%s%s  extra time    at least  recomputed\n",
                 unit > 1 ? "         " : "       ", name);
    for (size_t i = n; i-- > 0;) {
        char bar[] = "---------------------------";
        const gckpt_point *p = &f->points[i];
        double proven = p->overhead - (double)(p->cost - p->proven_cost) / least,
               part = p->overhead / top, proven_part = proven / top;
        if (i && i + 1 < n && (int)i != marked && i * rows / n == (i - 1) * rows / n)
            continue; /* many points: prints one of each group */
        bar[part < 1 ? (int)(part * 27 + 0.5) : 27] = 0;
        memset(bar, '#', (size_t)(proven_part < 1 ? (int)(proven_part * 27 + 0.5) : 27));
        bar[26] = part > 1.0001 ? '>' : bar[26];
        gckpti_print_tenths(&k, "", (double)p->bytes / unit, "");
        gckpti_print_tenths(&k, "+", 100 * p->overhead, " %");
        gckpti_print_tenths(&k, "+", 100 * proven, " %");
        gckpti_print_tenths(&k, "", 100 * p->recompute, " %");
        gckpti_print(&k, (int)i == marked ? " > |%s\n" : "   |%s\n", bar);
    }
    return gckpti_sink_flush(&k);
}

GCKPT_API gckpt_result gckpt_frontier_json(const gckpt_frontier *f, size_t mark,
                                           gckpt_write_fn write, void *user)
{
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    if (!f || !write)
        return GCKPT_E_ARG;
    int marked = mark ? gckpt_frontier_find(f, mark) : -1;
    for (size_t i = 0; i < f->count; i++) {
        const gckpt_point *p = &f->points[i];
        gckpti_print(&k, "%s\n{\"bytes\":%z,\"work\":%u,\"recompute\":%g,\"overhead\":%g,",
                     i ? "," : "{\"points\":[", p->bytes, p->cost, p->recompute, p->overhead);
        gckpti_print(&k, "\"proven_work\":%u}", p->proven_cost);
    }
    gckpti_print(&k, marked < 0 ? "],\n\"marked\":null" : "],\n\"marked\":%i", marked);
    gckpti_print(&k, ",\"complete\":%s,\"proven_bytes\":%z}\n", f->complete ? "true" : "false",
                 f->proven_bytes);
    return gckpti_sink_flush(&k);
}
#endif
