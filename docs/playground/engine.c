/* engine.c - the functions of gradckpt.h for the playground's page: models, frontiers, plans, steps.
 * Compiled to WebAssembly without a C library (the few functions needed are below), and natively by
 * the tests, which compare the two. Results are JSON with a final NUL, valid until the next call of
 * the same function. */
#define GCKPT_STATIC
#define GCKPT_NO_HEAP
#define GCKPT_NO_STDIO
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "examples/print.h"

#include "libc.h"
static const gckpt_memory memory = { resize, NULL, NULL, 0 };

#include "text.h"

#include "../course/relay.h"

static struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_term term;
    gckpt_frontier *frontier;
    text model, points, plan;
} now;

static gckpt_plan_desc wanted(int mode, double budget)
{
    gckpt_plan_desc d;
    memset(&d, 0, sizeof d);
    d.mode = (gckpt_mode)mode, d.budget = (size_t)budget, d.memory = memory;
    return d;
}

static void close_model(void)
{
    gckpt_frontier_free(now.frontier);
    gckpt_graph_free(now.graph);
    gckpt_store_free(now.store);
    now.frontier = NULL, now.graph = NULL, now.store = NULL;
}

/* Writes the tensors of a graph up to its loss: ["op",[shape],[inputs]] for each. */
static void put_nodes(text *t, const gckpt_graph *g, int last)
{
    put(t, "\"nodes\":[");
    for (int id = 0; id <= last; id++) {
        gckpt_node n;
        uint64_t shape[8], reads[GCKPT_MAX_INPUTS];
        gckpt_graph_node(g, id, &n);
        for (int i = 0; i < n.shape.n; i++)
            shape[i] = (uint64_t)n.shape.d[i];
        for (int i = 0; i < n.inputs; i++)
            reads[i] = (uint64_t)n.input[i];
        put(t, id > 0 ? ",[" : "[");
        put_name(t, n.op);
        put_list(t, 0, shape, n.shape.n);
        put_list(t, 0, reads, n.inputs);
        put(t, "]");
    }
    put(t, "]");
}

/* Builds a model; returns its number of parameters and its tensors, or an error. */
const char *EXPORT(playground_model)(int which, int a, int b, int c, int d, int e, int rows)
{
    const gckpt_store_desc store = { .memory = memory, .seed = 1 };
    const sizes s = { { a, b, c, d, e }, rows };
    text *t = &now.model;
    close_model();
    empty(t);
    if (which < 0 || (size_t)which >= sizeof presets / sizeof presets[0])
        return complain(t, "no such model");
    now.store = gckpt_store_new(&store);
    now.graph = gckpt_graph_new(now.store, &memory);
    if (now.graph == NULL)
        return complain(t, "out of memory");
    now.term.loss = presets[which](now.graph, &s);
    now.term.weight = 1;
    if (gckpt_error(now.graph) != GCKPT_OK)
        return complain(t, gckpt_error_text(now.graph));
    put(t, "{");
    put_member(t, "parameters", (uint64_t)gckpt_store_count(now.store));
    put_nodes(t, now.graph, gckpt_id(now.term.loss));
    put(t, "}");
    return end(t);
}

/* Returns the frontier, as print_frontier_json prints it. */
const char *EXPORT(playground_frontier)(void)
{
    text *t = &now.points;
    empty(t);
    if (now.graph == NULL)
        return complain(t, "no model");
    const gckpt_plan_desc d = wanted(GCKPT_OPTIMAL, 0);
    gckpt_frontier_free(now.frontier);
    now.frontier = gckpt_frontier_new(now.graph, &now.term, 1, &d);
    if (now.frontier == NULL)
        return complain(t, gckpt_error_text(now.graph));
    print_frontier_json(now.frontier, 0, put_bytes, t);
    return end(t);
}

/* Returns the offset to which instruction i of a plan, a forward, writes its result, plus 1, or 0 if
 * it is no forward or writes outside the arena. The list of buffers does not say it if the result
 * overwrites an input. */
static uint64_t written(const gckpt_plan *p, int i)
{
    const gckpti_ins *ins = &p->ins[i];
    gckpti_operands o;
    if (ins->kind != GCKPT_FORWARD)
        return 0;
    gckpti_operands_of(p->operands, ins, p->nodes[ins->id].inputs, &o);
    return o.out == SIZE_MAX ? 0 : (uint64_t)o.out + 1;
}

static void put_instructions(text *t, const gckpt_plan *p)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    put(t, "\"instructions\":[");
    for (int i = 0; i < info.instructions; i++) {
        gckpt_instruction at;
        gckpt_usage use;
        gckpt_plan_get(p, i, &at);
        gckpt_plan_usage(p, i, &use);
        const uint64_t all[] = { (uint64_t)at.kind,  at.id < 0 ? 0 : (uint64_t)at.id,
                                 use.cost,           use.live,
                                 use.recompute != 0, written(p, i) };
        put_list(t, i == 0, all, 6);
    }
    put(t, "],\"buffers\":[");
    for (int i = 0; i < info.buffers; i++) {
        gckpt_buffer b;
        gckpt_plan_buffer(p, i, &b);
        const uint64_t all[] = { (uint64_t)b.start, (uint64_t)b.end, b.offset, b.size,
                                 (uint64_t)b.id,    (uint64_t)b.kind };
        put_list(t, i == 0, all, 6);
    }
    put(t, "],\"names\":[");
    for (int i = 0; i <= gckpt_id(now.term.loss); i++) {
        put(t, i > 0 ? "," : "");
        put_name(t, gckpt_plan_name(p, i));
    }
    put(t, "]");
}

/* Returns a plan: mode 5 (optimal) from the frontier if it exists, other modes as in gckpt_mode. */
const char *EXPORT(playground_plan)(int mode, double budget)
{
    text *t = &now.plan;
    empty(t);
    if (now.graph == NULL)
        return complain(t, "no model");
    const gckpt_plan_desc d = wanted(mode, budget);
    gckpt_plan *p = mode == GCKPT_OPTIMAL && now.frontier != NULL
                        ? gckpt_frontier_plan(now.frontier, d.budget)
                        : gckpt_plan_new(now.graph, &now.term, 1, &d);
    const gckpt_plan_info info = gckpt_plan_describe(p);
    if (p == NULL)
        return complain(t, gckpt_error_text(now.graph));
    put(t, "{");
    put_member(t, "bytes", gckpt_plan_bytes(p));
    put_member(t, "arena", info.arena);
    put_member(t, "live", info.peak);
    put_member(t, "work", info.cost);
    put_member(t, "proven_work", info.proven_cost);
    put_member(t, "proven_bytes", info.proven_bytes);
    put_member(t, "rows", (uint64_t)info.rows);
    put(t, "\"overhead\":");
    put_fraction(t, info.overhead);
    put(t, ",\"mode\":");
    put_name(t, info.mode_name);
    put(t, ",");
    put_instructions(t, p);
    put(t, "}");
    gckpt_plan_free(p);
    return end(t);
}

/* ---- training: one model at a time ---- */
static struct {
    tiny tiny;
    unsigned char *text;
    size_t size;
    text answer;
} run;

/* Returns space for a text of `size` bytes, which the page fills. */
unsigned char *EXPORT(playground_text)(int size)
{
    run.text = (unsigned char *)resize(NULL, run.text, run.size, (size_t)size);
    run.size = run.text == NULL ? 0 : (size_t)size;
    return run.text;
}

/* Writes "again":[names of recomputed results], and "results", the number of computed ones. */
static void put_again(text *t, const gckpt_plan *p)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    int results = 0, first = 1;
    put(t, ",\"again\":[");
    for (int i = 0; i < info.instructions; i++) {
        gckpt_instruction at;
        gckpt_usage use;
        gckpt_plan_get(p, i, &at);
        gckpt_plan_usage(p, i, &use);
        if (at.kind != GCKPT_FORWARD)
            continue;
        if (use.recompute) {
            put(t, first ? "" : ",");
            put_name(t, gckpt_plan_name(p, at.id));
            first = 0;
        } else
            results++;
    }
    put(t, "],\"results\":");
    put_number(t, (uint64_t)results);
}

/* Begins a training; the parameters are the options of tiny_options in their order. */
const char *EXPORT(playground_open)(int points, int layers, int heads, int width, int context,
                                    int rows, int micro, int mode, double budget, int unequal,
                                    int fault, double lr, double seed)
{
    const tiny_options o = { points,         layers,  heads, width,
                             context,        rows,    micro, (gckpt_mode)mode,
                             (size_t)budget, unequal, fault, (float)lr,
                             (uint64_t)seed, 1,       NULL,  NULL };
    text *t = &run.answer;
    tiny_close(&run.tiny);
    empty(t);
    if (!tiny_open(&run.tiny, &o, &memory, run.text, run.size))
        return complain(t, run.tiny.error);
    const gckpt_plan_info info = gckpt_plan_describe(run.tiny.plan);
    put(t, "{");
    put_member(t, "bytes", gckpt_plan_bytes(run.tiny.plan));
    put_member(t, "arena", info.arena);
    put(t, "\"mode\":");
    put_name(t, info.mode_name);
    put(t, ",\"overhead\":");
    put_fraction(t, info.overhead);
    put_again(t, run.tiny.plan);
    put(t, "}");
    return end(t);
}

/* Runs one step; returns its loss, and the hash of all weights after it. */
const char *EXPORT(playground_step)(void)
{
    static const char digit[] = "0123456789abcdef";
    text *t = &run.answer;
    double loss;
    char hash[17] = "";
    empty(t);
    if (run.tiny.exec == NULL || !tiny_step(&run.tiny, &loss))
        return complain(t, run.tiny.error[0] ? run.tiny.error : "no model");
    const uint64_t h = gckpt_store_hash(run.tiny.store);
    for (int i = 0; i < 16; i++)
        hash[i] = digit[h >> (60 - 4 * i) & 15];
    put(t, "{");
    put_member(t, "step", run.tiny.step);
    put(t, "\"loss\":");
    put_fraction(t, loss);
    put(t, ",\"hash\":");
    put_name(t, hash);
    put(t, "}");
    return end(t);
}

/* Returns bytes that a GPT generates after the first half window of its text, or the map of points. */
const char *EXPORT(playground_shows)(int count)
{
    enum { MOST = 2048 };
    static unsigned char shown[MOST + 1];
    tiny *m = &run.tiny;
    text *t = &run.answer;
    const int begin = m->o.context / 2, n = begin + count < MOST ? begin + count : MOST;
    empty(t);
    if (m->exec == NULL ||
        !(m->o.points ? tiny_map(m, (char *)shown) : tiny_write(m, shown, n, begin)))
        return complain(t, m->error[0] ? m->error : "no model");
    put(t, "{\"shows\":[");
    for (int i = 0; i < (m->o.points ? TINY_SIDE * TINY_SIDE : n); i++) {
        put(t, i > 0 ? "," : "");
        put_number(t, m->o.points ? (uint64_t)(shown[i] - '0') : shown[i]);
    }
    put(t, "]}");
    return end(t);
}

/* ---- lesson 8: the audit of a ledger ---- */
/* Repeats `steps` steps of the relay from a checkpoint of `size` bytes, or from the start if it is 0, and
 * compares each with its record in the ledger; the text has the checkpoint, then the ledger. Returns
 * the first and the last step, or the first record that differs. */
const char *EXPORT(playground_audit)(int size, int steps)
{
    static relay_ledger l;
    static tiny t;
    text *to = &run.answer;
    memset(&l, 0, sizeof l);
    empty(to);
    int fine = relay_begin(&t, &memory, NULL, NULL);
    if (fine && size > 0 && gckpt_store_map(t.store, run.text, (size_t)size, NULL) != GCKPT_OK)
        fine = tiny_fails(&t, gckpt_error_text(t.store));
    const uint64_t first = fine ? gckpt_store_step(t.store) + 1 : 0;
    fine = fine && relay_audit(&t, &l, run.text + size, run.size - (size_t)size, steps);
    put(to, "{");
    put_member(to, "first", first);
    put_member(to, "last", t.step);
    put(to, "\"says\":");
    put_name(to, t.error);
    put(to, ",\"equal\":");
    put_number(to, (uint64_t)fine);
    put(to, "}");
    tiny_close(&t);
    return end(to);
}
