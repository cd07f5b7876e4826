/* test_frontier.c - the frontier as text, as JSON, and in the pictures of examples/pictures.h together with other
 * modes: text lines fit a terminal, pictures and JSON objects parse, labels do not touch, numbers are exact. Writers
 * and allocations may fail anywhere; printing does no planning. */
#include "store/store.h"
#include "graph/graph.h"
#include "planner/internal.h"
#include "check.h"
#include "examples/pictures.h"
#include "examples/print.h"
#include "util.h"
#include "text.h"

/* A chain of layers and its frontier, whose memory is counted. */
typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_term term;
    gckpt_plan_desc desc;
    pictures_modes modes;
    heap h;
} model;

enum { TEXT, PICTURE, JSON, TABLE, WRITERS };

static gckpt_result write_frontier(int writer, const model *m, const gckpt_frontier *f, size_t mark, text *t)
{
    return writer == TEXT      ? print_frontier(f, mark, write_text, t)
           : writer == PICTURE ? pictures_frontier(f, &m->modes, mark, write_text, t)
           : writer == JSON    ? print_frontier_json(f, mark, write_text, t)
                               : pictures_table(f, &m->modes, write_text, t);
}

static void make(model *m, int layers, int64_t rows, int64_t width)
{
    char name[32];
    gckpt_init init = { 0.2f, 0, 0 };
    memset(m, 0, sizeof *m);
    m->store = gckpt_store_new(NULL);
    m->graph = gckpt_graph_new(m->store, NULL);
    gckpt_tensor *x = gckpt_input(m->graph, "x", GCKPT_F32, gckpt_shape2(rows, width));
    gckpt_tensor *y = gckpt_input(m->graph, "y", GCKPT_F32, gckpt_shape2(rows, width));
    for (int i = 0; i < layers; i++) {
        snprintf(name, sizeof name, "w%d", i);
        gckpt_tensor *w = gckpt_param(m->graph, name, gckpt_shape2(width, width), init);
        gckpt_segment_begin(m->graph);
        x = gckpt_add(x, gckpt_tanh(gckpt_linear(x, w, NULL)));
        gckpt_segment_end(m->graph);
    }
    m->term.loss = gckpt_mean_squared_error(x, y, NULL);
    m->term.weight = 1;
    m->desc.memory = heap_memory(&m->h);
}

static gckpt_frontier *frontier_of(model *m)
{
    gckpt_frontier *f = gckpt_frontier_new(m->graph, &m->term, 1, &m->desc);
    CHECK_MSG(f != NULL, "%s", gckpt_error_text(m->graph));
    CHECK(pictures_compare(m->graph, &m->term, 1, &m->desc, &m->modes) == GCKPT_OK);
    return f;
}

static void free_model(model *m)
{
    CHECK(m->h.blocks == 0);
    util_free(NULL, NULL, m->graph, m->store);
}

static void check_text(const gckpt_frontier *f, size_t mark, const text *t)
{
    int rows = 0, marks = 0, points = gckpt_frontier_describe(f).points;
    int at = mark ? gckpt_frontier_find(f, mark) : -1;
    for (const char *s = t->bytes; *s; s++) {
        size_t n = strcspn(s, "\n");
        const char *bar = (const char *)memchr(s, '|', n);
        CHECK_MSG(n <= 80 && s[n] == '\n' && (n == 0 || s[n - 1] != ' '), "%.*s", (int)n, s);
        rows += bar != NULL;
        marks += bar != NULL && bar[-2] == '>';
        /* within a bar, the proven part comes before the rest */
        for (size_t i = bar ? (size_t)(bar - s) + 1 : n; i + 1 < n; i++)
            CHECK(s[i] == '#' || s[i + 1] != '#');
        s += n;
    }
    for (size_t i = 0; i < t->size; i++)
        CHECK(t->bytes[i] == '\n' || (t->bytes[i] >= ' ' && t->bytes[i] < 127));
    CHECK_MSG(rows <= 22 && rows >= (points < 16 ? points : 16), "%d rows, %d points", rows,
              points);
    CHECK(marks == (at >= 0) && (find(t->bytes, "is too small") != NULL) == (mark && at < 0));
    CHECK((find(t->bytes, "stopped at its limit") != NULL) == !gckpt_frontier_describe(f).complete);
}

/* Checks that labels stay on the page and do not touch each other, assuming the widths of a wide font. */
static void check_svg(const text *t)
{
    double box[64][4];
    int n = 0;
    CHECK(is_valid_xml(t));
    for (const char *s = t->bytes; (s = find(s, "<text x=\"")) != NULL && n < 64; n++) {
        char tag[200] = "";
        const char *begin = find(s, ">") + 1, *end = find(begin, "<");
        if (!CHECK((size_t)(begin - s) < sizeof tag))
            break;
        memcpy(tag, s, (size_t)(begin - s));
        double x = strtod(tag + 9, NULL), y = strtod(strstr(tag, " y=\"") + 4, NULL);
        double letter = strstr(tag, "\"20\"") ? 12.5 : 7.9;
        for (; *begin == ' '; begin++) /* the columns of the table are right-aligned */
            x += letter;
        double width = letter * (double)(end - begin);
        x -= strstr(tag, "\"c\"")                                  ? width / 2
             : strstr(tag, "e\">") && !strstr(tag, "preserve\"") ? width
                                                                 : 0;
        CHECK_MSG(x >= 0 && x + width <= 800 && y >= 12 && y <= 640, "%.40s is outside the page",
                  begin);
        for (int i = 0; i < n; i++)
            CHECK_MSG(x + width < box[i][0] || x > box[i][1] || y - 11 > box[i][3] ||
                          y + 3 < box[i][2],
                      "%.40s touches another text", begin);
        box[n][0] = x, box[n][1] = x + width, box[n][2] = y - 11, box[n][3] = y + 3;
        s = end;
    }
    CHECK(n >= 10 && n < 64);
    for (const char *s = t->bytes; (s = find(s, "translate(")) != NULL; s++) {
        double x = strtod(s + 10, NULL), y = strtod(find(s + 10, " "), NULL);
        CHECK(x >= 0 && x <= 800 && y >= 0 && y <= 640);
    }
    CHECK(!find(t->bytes, "nan") && !find(t->bytes, "inf\"") && !find(t->bytes, "infH"));
}

/* Checks that a mode with more than twice the cost of another mode is clearly higher in the picture, even far above the
 * curve. */
static void check_heights(const model *m, const text *t)
{
    double y[PICTURES_MODES] = { 0 };
    const char *s = t->bytes;
    for (int i = 0; i < PICTURES_MODES; i++) {
        if (!m->modes.mode[i].bytes)
            continue;
        s = find(s, "class=\"w\" transform=\"translate(");
        if (!CHECK(s != NULL))
            return;
        y[i] = strtod(strchr(find(s, "translate("), ' '), NULL);
        s = find(s + 10, "class=\"w\"") + 1; /* the next match is the entry of the legend */
        for (int k = 0; k < i; k++)
            if (m->modes.mode[k].bytes && m->modes.mode[i].cost > 2 * m->modes.mode[k].cost)
                CHECK_MSG(y[i] < y[k] - 2, "%s is not above %s", pictures_mode_names[i],
                          pictures_mode_names[k]);
    }
}

static int alike(double a, double b)
{
    return a - b <= 1e-5 * b + 1e-9 && b - a <= 1e-5 * b + 1e-9;
}

/* Compares the point with the next object of the JSON text, which begins at {"bytes":. */
static int same_point(const char **s, const gckpt_point *p)
{
    char *end;
    *s = find(*s, "{\"bytes\":");
    if (!*s || (size_t)strtoull(*s + 9, &end, 10) != p->bytes || strncmp(end, ",\"work\":", 8) ||
        strtoull(end + 8, &end, 10) != p->cost || strncmp(end, ",\"recompute\":", 13) ||
        !alike(strtod(end + 13, &end), p->recompute) || strncmp(end, ",\"overhead\":", 12) ||
        !alike(strtod(end + 12, &end), p->overhead) || strncmp(end, ",\"proven_work\":", 15) ||
        strtoull(end + 15, &end, 10) != p->proven_cost || *end != '}')
        return 0;
    *s = end;
    return 1;
}

static void check_json(const gckpt_frontier *f, size_t mark, const text *t)
{
    const char *s = t->bytes;
    char wanted[80];
    gckpt_point p;
    int at = mark ? gckpt_frontier_find(f, mark) : -1;
    CHECK(is_valid_json(t));
    for (int i = 0; gckpt_frontier_get(f, i, &p) == GCKPT_OK; i++)
        CHECK(same_point(&s, &p) && p.proven_cost <= p.cost);
    int n = at < 0 ? snprintf(wanted, sizeof wanted, "\"marked\":null,")
                   : snprintf(wanted, sizeof wanted, "\"marked\":%d,", at);
    snprintf(wanted + n, sizeof wanted - (size_t)n, "\"complete\":%s,\"proven_bytes\":%zu}",
             gckpt_frontier_describe(f).complete ? "true" : "false", gckpt_frontier_describe(f).proven_bytes);
    CHECK_MSG(find(s, wanted) != NULL, "no %s", wanted);
    CHECK(!find(s, "{\"bytes\":"));
}

static void check_modes(const model *m, int ops)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_SEGMENTS, GCKPT_SQRT,
                                        GCKPT_MEMORY_POOR };
    CHECK_MSG(m->modes.ops == ops, "%d ops, not %d", m->modes.ops, ops);
    for (int i = 0; i < PICTURES_MODES; i++) {
        const gckpt_point *p = &m->modes.mode[i];
        gckpt_plan_desc d = m->desc;
        d.mode = modes[i];
        if (d.mode == GCKPT_MEMORY_POOR && ops > PICTURES_POOR_OPS) {
            CHECK(p->bytes == 0);
            continue;
        }
        gckpt_plan *plan = gckpt_plan_new(m->graph, &m->term, 1, &d);
        const gckpt_plan_info info = gckpt_plan_describe(plan);
        CHECK(plan && p->bytes == gckpt_plan_bytes(plan) && p->cost == info.cost);
        CHECK(memcmp(&p->recompute, &(double){ info.recompute }, sizeof(double)) == 0);
        CHECK(memcmp(&p->overhead, &(double){ info.overhead }, sizeof(double)) == 0);
        CHECK(m->modes.resident == gckpt_plan_bytes(plan) - info.arena);
        gckpt_plan_free(plan);
    }
}

/* Checks the table of the picture: a line for each planned mode, with right-aligned numbers and then the mode's
 * name. */
static void check_table(const model *m, const text *t)
{
    int lines = 0, planned = m->modes.ops > PICTURES_POOR_OPS;
    for (const char *s = t->bytes; *s; s += strcspn(s, "\n") + 1, lines++)
        CHECK_MSG(strcspn(s, "\n") <= 80 && strchr(s, '\n'), "%s", s);
    for (int i = 0; i < PICTURES_MODES; i++) {
        planned += m->modes.mode[i].bytes != 0;
        /* a mode that was not planned is named in a last line, "(not memory-poor: ..." */
        CHECK(find(t->bytes, pictures_mode_names[i]) != NULL);
    }
    CHECK(lines == 1 + planned && !find(t->bytes, "nan"));
}

static void check_all(model *m, const gckpt_frontier *f, size_t mark)
{
    long calls = m->h.calls;
    for (int i = 0; i < WRITERS; i++) {
        text t = { 0 };
        CHECK(write_frontier(i, m, f, mark, &t) == GCKPT_OK && is_valid_text(&t));
        if (i == TEXT)
            check_text(f, mark, &t);
        else if (i == PICTURE) {
            check_svg(&t);
            check_heights(m, &t);
        }
        else if (i == JSON)
            check_json(f, mark, &t);
        else
            check_table(m, &t);
        free(t.bytes);
    }
    CHECK_MSG(m->h.calls == calls, "showing a frontier takes memory: %ld times",
              m->h.calls - calls);
}

static void sizes(void)
{
    static const int layers[] = { 1, 2, 6, 24, 60, 140 };
    for (int k = 0; k < 6; k++) {
        model m;
        gckpt_point least, most;
        make(&m, layers[k], k == 3 ? 500 : 7, k % 2 ? 16 : 3);
        m.desc.batch = k == 4 ? 14 : 0;
        gckpt_frontier *f = frontier_of(&m);
        int points = gckpt_frontier_describe(f).points, ops = 3 * layers[k] + 1;
        gckpt_frontier_get(f, 0, &least);
        gckpt_frontier_get(f, points - 1, &most);
        CHECK_MSG(most.cost == m.modes.mode[0].cost, "%d layers: none stores all", layers[k]);
        check_modes(&m, ops);
        check_all(&m, f, 0);
        for (int i = 0; i < 12 && layers[k] < 60; i++)
            check_all(&m, f, least.bytes + (most.bytes - least.bytes) / 11 * (size_t)i);
        f->info.complete = 0;
        check_all(&m, f, most.bytes);
        if (k < 3) {
            check_all(&m, f, 1);
            check_all(&m, f, least.bytes - 1);
            check_all(&m, f, SIZE_MAX);
        }
        gckpt_frontier_free(f);
        free_model(&m);
    }
}

/* Tests costs given by the user: all 0; 2^40 for each forward and 1 for each backward; or 0 for each forward and 1 for
 * each backward. */
static void odd_costs(void)
{
    for (int k = 0; k < 3; k++) {
        model m;
        make(&m, 6, 8, 8);
        gckpt_cost costs[64];
        CHECK(m.graph->count <= 64);
        for (int i = 0; i < 64; i++) {
            costs[i] = (gckpt_cost){ k == 1 ? UINT64_C(1) << 40 : 0, k == 0 ? 0 : 1 };
        }
        m.desc.costs.by_id = costs;
        m.desc.costs.count = (int)m.graph->count;
        gckpt_frontier *f = frontier_of(&m);
        check_modes(&m, 19);
        check_all(&m, f, 0);
        check_all(&m, f, 2200);
        gckpt_frontier_free(f);
        free_model(&m);
    }
}

static void failures(void)
{
    model m;
    make(&m, 6, 8, 8);
    gckpt_frontier *f = frontier_of(&m);
    for (int i = 0; i < WRITERS; i++) {
        text t = { 0 };
        CHECK(write_frontier(i, &m, NULL, 0, &t) == GCKPT_E_ARG && t.calls == 0);
        CHECK(write_frontier(i, &m, f, SIZE_MAX, &t) == GCKPT_OK && t.calls > 0);
        long calls = t.calls, blocks = m.h.blocks;
        for (long k = 1; k <= calls; k++) {
            t.size = 0;
            t.calls = 0;
            t.fail_at = k;
            CHECK(write_frontier(i, &m, f, SIZE_MAX, &t) == GCKPT_E_FILE && t.calls == k);
            CHECK(m.h.blocks == blocks);
        }
        free(t.bytes);
    }
    CHECK(print_frontier(f, 0, NULL, NULL) == GCKPT_E_ARG);
    CHECK(print_frontier_json(f, 0, NULL, NULL) == GCKPT_E_ARG);
    CHECK(pictures_frontier(f, &m.modes, 0, NULL, NULL) == GCKPT_E_ARG);
    CHECK(pictures_table(f, &m.modes, NULL, NULL) == GCKPT_E_ARG);
    text alone = { 0 };
    CHECK(pictures_table(f, NULL, write_text, &alone) == GCKPT_E_ARG && alone.calls == 0);
    CHECK(pictures_frontier(f, NULL, 0, write_text, &alone) == GCKPT_OK);
    CHECK(is_valid_xml(&alone) && find(alone.bytes, "least bytes") && !find(alone.bytes, "sqrt"));
    free(alone.bytes);
    CHECK(pictures_compare(NULL, &m.term, 1, NULL, &m.modes) == GCKPT_E_ARG);
    CHECK(pictures_compare(m.graph, &m.term, 1, NULL, NULL) == GCKPT_E_ARG);
    pictures_modes all;
    CHECK(pictures_compare(m.graph, &m.term, 1, &m.desc, &all) == GCKPT_OK);
    long refused = 0;
    for (long k = 1;; k++) { /* lets allocation number k fail, while a mode is planned or a bound is computed */
        long blocks = m.h.blocks;
        memset(&m.h, 0, sizeof m.h);
        m.h.blocks = blocks;
        m.h.fail_at = k;
        gckpt_result result = pictures_compare(m.graph, &m.term, 1, &m.desc, &m.modes);
        CHECK(m.h.blocks == blocks);
        if (m.h.calls < k) {
            CHECK(result == GCKPT_OK && k > 20 && refused > k * 3 / 4);
            break;
        }
        refused += result == GCKPT_E_MEMORY;
        CHECK(result == GCKPT_OK ? !memcmp(&all, &m.modes, sizeof all) : result == GCKPT_E_MEMORY);
        CHECK(gckpt_error(m.graph) == result);
    }
    m.h.fail_at = 0;
    gckpt_frontier_free(f);
    static unsigned char block[1 << 16];
    gckpt_plan_desc d = m.desc;
    d.memory.memory = block;
    d.memory.size = sizeof block;
    CHECK(!gckpt_frontier_new(m.graph, &m.term, 1, &d) && gckpt_error(m.graph) == GCKPT_E_ARG);
    d = m.desc;
    d.mode = GCKPT_INFERENCE;
    CHECK(!gckpt_frontier_new(m.graph, &m.term, 1, &d) && gckpt_error(m.graph) == GCKPT_E_ARG);
    free_model(&m);
}

/* Tests a step whose only bytes are parameters and their gradients: its frontier has one point. */
static void nothing_kept(void)
{
    const gckpt_init init = { 0.2f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(2, 3));
    const gckpt_plan_desc desc = { .batch = 4 };
    gckpt_term terms[2] = { { NULL, 1, 0 }, { NULL, 1, 0 } };
    for (int i = 0; i < 2; i++) {
        gckpt_segment_begin(g);
        terms[i].loss = gckpt_mean_squared_error(gckpt_param(g, i ? "v" : "w", gckpt_shape2(2, 3), init), y, NULL);
        gckpt_segment_end(g);
    }
    gckpt_frontier *f = gckpt_frontier_new(g, terms, 2, &desc);
    gckpt_plan *all = gckpt_plan_new(g, terms, 2, &desc);
    gckpt_point p = { 0, 0, 0, 0, 0 };
    CHECK_MSG(gckpt_frontier_describe(f).points == 1 && gckpt_frontier_get(f, 0, &p) == GCKPT_OK &&
                  p.bytes == gckpt_plan_bytes(all),
              "%d points, %lu of %lu bytes: %s", gckpt_frontier_describe(f).points, (unsigned long)p.bytes,
              (unsigned long)gckpt_plan_bytes(all), gckpt_error_text(g));
    gckpt_plan_free(all);
    gckpt_frontier_free(f);
    util_free(NULL, NULL, g, s);
}

/* Lets each allocation of gckpt_frontier_new fail once: the call returns NULL and an error, and nothing leaks. */
static void no_memory(void)
{
    const gckpt_init init = { 0.2f, 0, 0 };
    for (int ops = 1; ops < 40; ops += 3) {
        gckpt_frontier *f = NULL;
        for (long at = 1; !f; at++) {
            heap h = { .fail_at = at };
            gckpt_store *s = gckpt_store_new(NULL);
            gckpt_graph *g = gckpt_graph_new(s, NULL);
            gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 3));
            x = gckpt_linear(x, gckpt_param(g, "w", gckpt_shape2(3, 3), init), NULL);
            for (int i = 1; i < ops; i++)
                x = gckpt_tanh(x);
            const gckpt_term term = { gckpt_sum_loss(gckpt_mul(x, x)), 1, 0 };
            const gckpt_plan_desc desc = { .memory = heap_memory(&h) };
            f = gckpt_frontier_new(g, &term, 1, &desc);
            CHECK(f ? h.calls < at : gckpt_error(g) == GCKPT_E_MEMORY && h.live == 0);
            gckpt_frontier_free(f);
            util_free(NULL, NULL, g, s);
        }
    }
}

/* Tests a failed allocation for the copy of the costs, which is a separate one if there are many costs. */
static void no_memory_for_costs(void)
{
    static gckpt_cost costs[400];
    model m;
    make(&m, 80, 2, 8);
    const int count = gckpt_id(m.term.loss) + 1;
    CHECK(count <= 400);
    for (int i = 0; i < count; i++)
        costs[i] = (gckpt_cost){ 100, 200 };
    m.desc.costs.by_id = costs, m.desc.costs.count = count;
    for (long at = 1; at < 16; at++) {
        m.h.fail_at = m.h.calls + at;
        CHECK(!gckpt_frontier_new(m.graph, &m.term, 1, &m.desc) && gckpt_error(m.graph) == GCKPT_E_MEMORY);
        CHECK(m.h.blocks == 0);
    }
    free_model(&m);
}

int main(void)
{
    sizes();
    odd_costs();
    failures();
    nothing_kept();
    no_memory();
    no_memory_for_costs();
    return check_report("frontier");
}
