#include "planner/internal.h"
#include "store/store.h"

#ifndef GCKPT_NO_PRINT
/* ---- a plan as text, and as Chrome's trace events (examples/pictures.h draws plans) ---- */
/* Prints an instruction as one line: kind, tensor, offsets of its results, live bytes. */
static void gckpti_print_instruction(gckpti_sink *k, const gckpt_plan *plan, int x)
{
    static const char *const verbs[] = { "forward ", "backward", "update  ", "offload ",
                                         "reload  ", "reduce  ", "hold    " };
    const gckpti_ins *ins = &plan->ins[x];
    int id = gckpti_ins_node(plan, ins);
    const gckpti_plan_node *node = &plan->nodes[id];
    const gckpt_shape shape = gckpti_planned_shape(plan, node);
    gckpti_operands o;
    gckpt_usage u;
    gckpt_plan_usage(plan, x, &u);
    gckpti_operands_of(plan->operands, ins, node->inputs, &o);
    gckpti_print(k, "%i\t%s %s #%i %s %S%s", x, verbs[ins->kind],
                 node->op ? node->op->name : "param", id,
                 node->name != GCKPTI_NAMELESS ? plan->names + node->name : "", &shape,
                 u.recompute ? " again" : "");
    if (plan->fused && node->op && node->data) {
        const gckpti_fused *b =
            (const gckpti_fused *)(const void *)(plan->words + node->attributes);
        const gckpti_fused_step *step = (const gckpti_fused_step *)(b + 1);
        int ops = 0, first = id;
        for (int i = b->steps; i-- > 0; ops += step[i].id >= 0)
            first = step[i].id >= 0 ? step[i].id : first;
        gckpti_print(k, " of %i ops, from %s #%i on,", ops, gckpti_planned_name(plan, first),
                     first);
    }
    if ((ins->kind == GCKPT_FORWARD || ins->kind == GCKPT_RELOAD) && o.out != GCKPTI_NO_OFFSET)
        gckpti_print(k, " at %z", o.out);
    if (u.moved)
        gckpti_print(k, ", %z bytes", u.moved);
    for (int i = 0; i < node->inputs; i++)
        if (o.in[i].gradient != GCKPTI_NO_OFFSET)
            gckpti_print(k, "%s #%i at %z", ins->accumulate & (1 << i) ? " adds to" : " writes",
                         node->in[i], o.in[i].gradient);
    if (ins->kind == GCKPT_UPDATE)
        gckpti_print(k, " from %z", o.gradient);
    if (ins->kind == GCKPT_REDUCE)
        gckpti_print(k, o.shard == GCKPTI_NO_OFFSET ? " at %z" : " at %z, shard to %z", o.gradient,
                     o.shard);
    gckpti_print(k, ", %z live\n", u.live);
}

static const char *gckpti_shard_name(gckpt_shard shard)
{
    static const char *const names[] = { "nothing", "state", "state and gradients",
                                         "state, gradients and values" };
    return names[shard];
}

GCKPT_API gckpt_result gckpt_plan_print(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    static const char *const kinds[] = { "parameters",  "optimiser state",   "gradients",
                                         "activations", "workspace",         "tables",
                                         "caches",      "bf16 copies",       "reduction tree",
                                         "gathered",    "padding, contained" };
    static const char *const precisions[] = { "", ", bf16", ", bf16 rounded by chance",
                                              ", fast bf16" };
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    if (!plan || !write)
        return GCKPT_E_ARG;
    gckpti_print(&k,
                 "plan %s: %z bytes (parameters + state + arena of %z, lower bound %z), "
                 "%g %% recomputed, %i instructions\n",
                 gckpt_mode_name(plan->mode), gckpt_plan_bytes(plan), plan->arena, plan->peak,
                 100 * plan->recompute, (int)plan->length);
    gckpti_print(&k,
                 "cost %u a micro-batch; proven: no schedule in its budget has less than %u, none "
                 "fits in less than %z bytes\n",
                 plan->cost, plan->proven_cost, plan->proven_bytes);
    gckpti_print(&k, "micro-batch %I of a batch of %I, %i thread%s, offsets aligned to %z%s\n",
                 plan->rows, plan->batch, plan->threads, plan->threads == 1 ? "" : "s",
                 plan->alignment, precisions[plan->precision]);
    if (plan->virtual_ranks > 1 || plan->ranks > 1)
        gckpti_print(&k, "%i virtual ranks a batch, %i rank%s, sharded: %s\n", plan->virtual_ranks,
                     plan->ranks, plan->ranks == 1 ? "" : "s", gckpti_shard_name(plan->shard));
    if (plan->mixer >= 0)
        gckpti_print(&k, "another split of the batch gives other results: %s #%i mixes rows\n",
                     gckpti_planned_name(plan, plan->mixer), plan->mixer);
    for (int i = 0; i < GCKPT_BYTES_TABLES; i++)
        gckpti_print(&k, "  %s: %z bytes\n", kinds[i], plan->kind_bytes[i]);
    for (int i = GCKPT_BYTES_CACHES; i < GCKPT_BYTES_KINDS; i++)
        if (plan->kind_bytes[i])
            gckpti_print(&k, "  %s: %z bytes\n", kinds[i], plan->kind_bytes[i]);
    if (plan->offloaded)
        gckpti_print(&k, "  offloaded: %z bytes of slower memory%s\n", plan->offloaded,
                     plan->overlap_offload ? ", overlapped with computation" : "");
    if (plan->overlap_offload)
        gckpti_print(&k, "  hidden: %u of the cost of copies\n", plan->hidden);
    for (int x = 0; x < (int)plan->length && !k.failed; x++) {
        if (x == plan->epilogue)
            gckpti_print(&k, "-- once a step, at the end\n");
        else if (x == plan->body)
            gckpti_print(&k, plan->accumulates ? "-- for each micro-batch\n" : "-- batch\n");
        gckpti_print_instruction(&k, plan, x);
    }
    return gckpti_sink_flush(&k);
}

/* Live bytes by kind of buffer, in a window of instructions. Each window is a pass over buffers. */
enum { GCKPTI_WINDOW = 128, GCKPTI_BUFFER_KINDS = GCKPT_BUFFER_REDUCTION + 1 };
typedef struct {
    size_t from, live[GCKPTI_WINDOW][GCKPTI_BUFFER_KINDS];
} gckpti_window;

static const size_t *gckpti_live_by_kind(const gckpt_plan *plan, gckpti_window *window, size_t x)
{
    size_t from = x - x % GCKPTI_WINDOW;
    if (window->from == from)
        return window->live[x - from];
    window->from = from;
    memset(window->live, 0, sizeof window->live);
    for (size_t i = 0; i < plan->buffer_count; i++) {
        const gckpt_buffer *b = &plan->buffers[i];
        size_t start = (size_t)b->start, end = (size_t)b->end + 1;
        if (start >= from + GCKPTI_WINDOW || end <= from)
            continue;
        window->live[start > from ? start - from : 0][b->kind] += b->size; /* a difference */
        if (end < from + GCKPTI_WINDOW)
            window->live[end - from][b->kind] -= b->size;
    }
    for (size_t i = 1; i < GCKPTI_WINDOW; i++)
        for (size_t k = 0; k < GCKPTI_BUFFER_KINDS; k++)
            window->live[i][k] += window->live[i - 1][k];
    return window->live[x - from];
}

/* Prints a name as JSON: escapes quotes; prints invalid and invisible characters as "?". */
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

/* Prints nanoseconds as microseconds, the unit of the format. */
static void gckpti_print_time(gckpti_sink *k, const char *prefix, uint64_t t)
{
    gckpti_print(k, "%s%u.%u%u%u", prefix, t / 1000, t / 100 % 10, t / 10 % 10, t % 10);
}

/* Prints a label such as "linear h.0.fc", "gelu #7" or "h.0.fc.weight". */
static void gckpti_print_label(gckpti_sink *k, const gckpt_plan *plan, int id)
{
    const gckpti_plan_node *node = &plan->nodes[id];
    if (node->op) {
        gckpti_print_name(k, node->op->name);
        gckpti_print(k, node->name == GCKPTI_NAMELESS ? " #%i" : " ", id);
    }
    if (node->name != GCKPTI_NAMELESS)
        gckpti_print_name(k, plan->names + node->name);
}

GCKPT_API gckpt_result gckpt_plan_trace(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    static const char *const phases[] = { "forward", "backward", "update",      "offload",
                                          "reload",  "reduce",   "offload_done" };
    static const char *const kinds[] = {
        "values",    "kept for backward",    "gradients of activations", "gradients of parameters",
        "workspace", "sums of virtual ranks"
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
                 gckpt_mode_name(plan->mode), gckpt_plan_bytes(plan), plan->arena, plan->peak,
                 plan->cost, plan->proven_cost, plan->proven_bytes);
    gckpti_print(&k, "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":"
                     "\"plan: 1 ns is one unit of cost\"}},\n"
                     "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{"
                     "\"name\":\"instructions\"}}");
    for (int x = 0; gckpt_plan_usage(plan, x, &u) == GCKPT_OK && !k.failed; x++) {
        const size_t *live = gckpti_live_by_kind(plan, &window, (size_t)x);
        const char *phase = u.recompute ? "recompute" : phases[plan->ins[x].kind];
        int id = gckpti_ins_node(plan, &plan->ins[x]);
        u.cost += !u.cost; /* a bar of cost 0 would be invisible */
        gckpti_print(&k, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"cat\":\"%s\",\"name\":\"%s ",
                     phase, phase);
        gckpti_print_label(&k, plan, id);
        gckpti_print_time(&k, "\",\"ts\":", now);
        gckpti_print_time(&k, ",\"dur\":", u.cost);
        gckpti_print(&k, ",\"args\":{\"instruction\":%i,\"tensor\":%i,\"live\":%z}},\n", x, id,
                     u.live);
        gckpti_print_time(&k, "{\"ph\":\"C\",\"pid\":1,\"name\":\"live bytes\",\"ts\":", now);
        for (int i = 0; i < GCKPTI_BUFFER_KINDS - (plan->virtual_ranks < 2); i++)
            gckpti_print(&k, "%s\"%s\":%z", i ? "," : ",\"args\":{", kinds[i], live[i]);
        gckpti_print(&k, "}}");
        now += u.cost;
    }
    gckpti_print(&k, "\n]}\n");
    return gckpti_sink_flush(&k);
}
#endif
