#include "ask/own.h"
#include "store/store.h"

/* =================================================================================================
 * pictures: a plan as a trace, the frontier as text; drawings are examples/pictures.h's
 * ============================================================================================== */

/* ---- Chrome's trace events ---- */
/* Live bytes at instruction x by kind of buffer. A window of instructions is kept, so that walking
 * costs one look at all buffers a window. */
enum { GCKPTI_WINDOW = 128, GCKPTI_BUFFER_KINDS = GCKPT_BUFFER_TREE + 1 };
typedef struct {
    size_t from, live[GCKPTI_WINDOW][GCKPTI_BUFFER_KINDS];
} gckpti_window;

static const size_t *gckpti_live(const gckpt_plan *plan, gckpti_window *window, size_t x)
{
    size_t from = x - x % GCKPTI_WINDOW;
    if (window->from == from)
        return window->live[x - from];
    window->from = from;
    memset(window->live, 0, sizeof window->live);
    for (size_t i = 0; i < plan->life_count; i++) {
        const gckpt_buffer *b = &plan->lives[i];
        size_t start = (size_t)b->start, end = (size_t)b->end + 1;
        if (start >= from + GCKPTI_WINDOW || end <= from)
            continue;
        window->live[start > from ? start - from : 0][b->kind] += b->size; /* a change */
        if (end < from + GCKPTI_WINDOW)
            window->live[end - from][b->kind] -= b->size;
    }
    for (size_t i = 1; i < GCKPTI_WINDOW; i++)
        for (size_t k = 0; k < GCKPTI_BUFFER_KINDS; k++)
            window->live[i][k] += window->live[i - 1][k];
    return window->live[x - from];
}

/* What JSON's readers take: quotes escaped; what is no character, or cannot be seen, as "?". */
static void gckpti_print_name(gckpti_sink *k, const char *s)
{
    for (int n; *s; s += n ? n : 1) {
        n = gckpti_utf8_length(s, strlen(s));
        if (n == 0 || *s == 127 || (n == 1 && *s < 32) ||
            (n == 3 && (!memcmp(s, "\xef\xbf\xbe", 3) || !memcmp(s, "\xef\xbf\xbf", 3))))
            gckpti_print(k, "?");
        else if (*s == '"' || *s == '\\')
            gckpti_print(k, *s == '"' ? "\\\"" : "\\\\");
        else
            gckpti_sink_put(k, s, (size_t)n);
    }
}

/* Nanoseconds as microseconds, the unit of the format. */
static void gckpti_print_time(gckpti_sink *k, const char *before, uint64_t t)
{
    gckpti_print(k, "%s%u.%u%u%u", before, t / 1000, t / 100 % 10, t / 10 % 10, t % 10);
}

/* "linear h.0.fc", "gelu #7", "h.0.fc.weight" */
static void gckpti_print_label(gckpti_sink *k, const gckpt_plan *plan, int id)
{
    const gckpti_node *node = &plan->nodes[id];
    if (node->op) {
        gckpti_print_name(k, node->op->name);
        gckpti_print(k, node->name == GCKPTI_NAMELESS ? " #%i" : " ", id);
    }
    if (node->name != GCKPTI_NAMELESS)
        gckpti_print_name(k, plan->names + node->name);
}

GCKPT_API gckpt_result gckpt_plan_trace(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    static const char *const phases[] = { "forward", "backward", "update",
                                          "offload", "reload",   "reduce" };
    static const char *const kinds[] = {
        "values",    "kept for backward", "gradients of activations", "gradients of parameters",
        "workspace", "sums of leaves"
    };
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    gckpti_window window;
    gckpt_usage u;
    uint64_t now = 0;
    window.from = SIZE_MAX;
    if (!plan || !write)
        return GCKPT_E_ARG;
    gckpti_print(&k,
                 "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"mode\":\"%s\",\"bytes\":%z,"
                 "\"arena\":%z,\"lower_bound\":%z,\"work\":%u,\"proven_work\":%u,"
                 "\"proven_bytes\":%z},\"traceEvents\":[\n",
                 gckpt_mode_name(plan->mode), gckpt_plan_bytes(plan), plan->arena, plan->bound,
                 plan->work, plan->proven_work, gckpt_plan_proven_bytes(plan));
    gckpti_print(&k, "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":"
                     "\"plan: 1 ns is one unit of work\"}},\n"
                     "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{"
                     "\"name\":\"instructions\"}}");
    for (int x = 0; gckpt_plan_usage(plan, x, &u) == GCKPT_OK && !k.failed; x++) {
        const size_t *live = gckpti_live(plan, &window, (size_t)x);
        const char *phase = u.again ? "recompute" : phases[plan->list[x].kind];
        int id = gckpti_ins_tensor(plan, &plan->list[x]);
        u.work += !u.work; /* a bar that can be seen */
        gckpti_print(&k, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"cat\":\"%s\",\"name\":\"%s ",
                     phase, phase);
        gckpti_print_label(&k, plan, id);
        gckpti_print_time(&k, "\",\"ts\":", now);
        gckpti_print_time(&k, ",\"dur\":", u.work);
        gckpti_print(&k, ",\"args\":{\"instruction\":%i,\"tensor\":%i,\"live\":%z}},\n", x, id,
                     u.live);
        gckpti_print_time(&k, "{\"ph\":\"C\",\"pid\":1,\"name\":\"live bytes\",\"ts\":", now);
        for (int i = 0; i < GCKPTI_BUFFER_KINDS - (plan->leaves < 2); i++)
            gckpti_print(&k, "%s\"%s\":%z", i ? "," : ",\"args\":{", kinds[i], live[i]);
        gckpti_print(&k, "}}");
        now += u.work;
    }
    gckpti_print(&k, "\n]}\n");
    return gckpti_sink_flush(&k);
}

/* ---- the frontier ---- */
/* 1, 1024 and so on, at most `bytes` */
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

/* 12.8 MiB: three digits, in text */
static const char *gckpti_round_bytes(size_t bytes, char text[32])
{
    gckpti_text t = { text, 31 };
    const char *name;
    double unit = gckpti_byte_unit((double)bytes, &name), round = 1;
    while (unit > 1 && (double)bytes / unit * round < 100)
        round *= 10;
    round = (double)(uint64_t)((double)bytes / unit * round + 0.5) / round;
    gckpti_text_add(&t, "%g %s", round, name);
    return text;
}

/* v >= 0 with one decimal between two texts, right-aligned in 12 columns */
static void gckpti_print_tenths(gckpti_sink *k, const char *before, double v, const char *behind)
{
    char number[32];
    gckpti_text t = { number, sizeof number - 1 };
    uint64_t tenths = (uint64_t)((v < 1e12 ? v : 1e12) * 10 + 0.5);
    gckpti_text_add(&t, "%s%u.%u%s", before, tenths / 10, tenths % 10, behind);
    size_t n = (size_t)(t.at - number);
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
    double least = f->p.least_work ? (double)f->p.least_work : 1;
    int marked = mark ? gckpt_frontier_find(f, mark) : -1;
    double top = f->points[0].overhead,
           unit = gckpti_byte_unit((double)f->points[0].bytes / 10, &name);
    top = top < 0.01 ? 0.01 : top < 0.6 ? top : 0.6; /* more is paid only where nothing else fits */
    gckpti_print(&k,
                 "What bytes cost in time: %i plan%s. Bytes are parameters, optimiser state (both\n"
                 "%s) and step arena. Extra time is that of a step; a full bar is %g %%,\n"
                 "'#' is proven: no schedule takes less in these bytes. None fits in",
                 (int)n, n == 1 ? "" : "s", gckpti_round_bytes(f->resident, text),
                 (double)(int)(1000 * top + 0.5) / 10);
    gckpti_print(&k, "\nless than %s.\n", gckpti_round_bytes(f->proven_bytes, text));
    if (mark)
        gckpti_print(
            &k, marked < 0 ? "A budget of %s is too small.\n" : "> is what a budget of %s gets.\n",
            gckpti_round_bytes(mark, text));
    if (!f->complete)
        gckpti_print(&k, "The search stopped at its limit: plans may cost more than they need.\n");
    gckpti_print(&k, "\n%s%s  extra time    at least  recomputed\n",
                 unit > 1 ? "         " : "       ", name);
    for (size_t i = n; i-- > 0;) {
        char bar[] = "---------------------------";
        const gckpt_point *p = &f->points[i];
        double proven = p->overhead - (double)(p->work - p->proven_work) / least,
               part = p->overhead / top, sure = proven / top;
        if (i && i + 1 < n && (int)i != marked && i * rows / n == (i - 1) * rows / n)
            continue; /* many points: the least of each run of them */
        bar[part < 1 ? (int)(part * 27 + 0.5) : 27] = 0;
        memset(bar, '#', (size_t)(sure < 1 ? (int)(sure * 27 + 0.5) : 27));
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
                     i ? "," : "{\"points\":[", p->bytes, p->work, p->recompute, p->overhead);
        gckpti_print(&k, "\"proven_work\":%u}", p->proven_work);
    }
    gckpti_print(&k, marked < 0 ? "],\n\"marked\":null" : "],\n\"marked\":%i", marked);
    gckpti_print(&k, ",\"complete\":%s,\"proven_bytes\":%z}\n", f->complete ? "true" : "false",
                 f->proven_bytes);
    return gckpti_sink_flush(&k);
}
