/* test_summary.c - tests examples/summary.h. A table of a small net must equal the expected text. For random nets, sums
 * must equal those of store, plan and profile, and lines must not be wider than requested. Writers that fail are tested
 * as well. */
#include "gradckpt.h"
#include "net.h"
#include "examples/summary.h"

#include <math.h>

/* ---- a small net with named, unnamed, shared, frozen and quantised parameters, and dropout ---- */
static gckpt_graph *small_net(gckpt_store *s, gckpt_term *term)
{
    const gckpt_init normal = { 0.1f, 0, 0 }, none = { 0, 0, 0 }, one = { 0, 0, 1 };
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *h = gckpt_input(g, "pixels", GCKPT_F32, gckpt_shape4(4, 8, 8, 3));
    gckpt_tensor *y = gckpt_input(g, "digit", GCKPT_I32, gckpt_shape1(4));
    gckpt_window w = { .padding = { 1, 1 } };
    h = gckpt_conv2d(h, gckpt_param(g, "conv.weight", gckpt_shape4(3, 3, 3, 16), normal), NULL, &w);
    h = gckpt_batchnorm(h, gckpt_param(g, "bn.weight", gckpt_shape1(16), one),
                        gckpt_param(g, "bn.bias", gckpt_shape1(16), none),
                        gckpt_running(g, "bn.running_mean", gckpt_shape1(16), none, 0.1f),
                        gckpt_running(g, "bn.running_var", gckpt_shape1(16), one, 0.1f), 0);
    h = gckpt_global_average_pool(gckpt_relu(h));
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "block.%d.weight", i);
        gckpt_tensor *z = gckpt_linear(h, gckpt_param(g, name, gckpt_shape2(16, 16), normal), NULL);
        h = gckpt_name(gckpt_add(h, gckpt_dropout(gckpt_gelu(z), 0.1f)), i == 11 ? "trunk" : NULL);
    }
    gckpt_tensor *shared = gckpt_param(g, "head.weight", gckpt_shape2(16, 1000), normal);
    h = gckpt_linear(gckpt_linear_transposed(gckpt_linear(h, shared, NULL), shared, NULL),
                     gckpt_param(g, "out", gckpt_shape2(16, 10), normal),
                     gckpt_param(g, "out_bias", gckpt_shape1(10), none));
    *term = (gckpt_term){ gckpt_cross_entropy(h, y, NULL, 0), 1, 0 };
    return g;
}

static const char *report_of(gckpt_result result, file *f)
{
    CHECK(result == GCKPT_OK);
    return f->bytes ? (const char *)f->bytes : "";
}

static void test_table(void)
{
    static const char want[] =
        "layer       op                   output      x trained frozen  kept again work %\n"
        "--------------------------------------------------------------------------------\n"
        "pixels      input                (4,8,8,3)\n"
        "digit       input                (4)\n"
        "conv        conv2d               (4,8,8,16)        432        16.0K     0    4.8\n"
        "bn          batchnorm+relu+res\xe2\x80\xa6  (4,16)             32        16.4K     0   21.1\n"
        "block.0-9   linear+gelu+dropou\xe2\x80\xa6  (4,16)      9   2,304        4.50K     0   19.0\n"
        "block.1-10  linear+gelu+dropou\xe2\x80\xa6  (4,16)      2            512   512     0    4.0\n"
        "block.11    linear+gelu+dropout  (4,16)                   256   256     0    1.5\n"
        "trunk       add                  (4,16)                           0     0    0.4\n"
        "head        linear               (4,1000)       16,000        15.6K     0   23.2\n"
        "head        linear               (4,16)         shared          256     0   24.8\n"
        "out         linear               (4,10)            170          160     0    0.6\n"
        "loss        cross_entropy                                        32     0    0.4\n"
        "--------------------------------------------------------------------------------\n"
        "all                                             18,938    768 53.7K     0  100.0\n"
        "besides: 32 measured values (running statistics)\n"
        "micro-batch of 4 rows: bytes kept for its backward, made again in it\n"
        "plan: store-all, ";
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_term term;
    gckpt_graph *g = small_net(s, &term);
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    summary m;
    file out = { 0 };
    gckpt_store_freeze(s, "block.1*", 1);
    gckpt_plan_free(p);
    p = gckpt_plan_new(g, &term, 1, NULL);
    CHECK(summary_open(&m, g, s, p) == GCKPT_OK);
    const char *got = report_of(summary_print(&m, 80, file_write, &out), &out);
    CHECK_MSG(!strncmp(got, want, strlen(want)), "\n%s", got);
    summary_close(&m);
    free(out.bytes);
    util_free(NULL, p, g, s);
}

/* ---- random nets ---- */
static double tick(void *user)
{
    double *t = (double *)user;
    return *t += 0.001 * (double)(1 + below(50));
}

/* Checks that no line of the text is wider than `columns`. */
static void check_width(const char *text, int columns, unsigned seed)
{
    for (const char *end; *text; text = end + (*end != 0)) {
        int n = 0;
        end = strchr(text, '\n');
        end = end ? end : text + strlen(text);
        for (const char *c = text; c < end; c++)
            n += ((unsigned char)*c & 0xc0) != 0x80;
        CHECK_MSG(n <= columns && (end == text || end[-1] != ' '), "seed %u: %d columns of %d: %.*s", seed, n, columns,
                  (int)(end - text), text);
    }
}

static void check_rows(const summary *m, const gckpt_plan *p, unsigned seed)
{
    int64_t parameters = 0, counted = 0;
    size_t kept = 0, waits = 0;
    uint64_t work = 0, planned = 0;
    gckpt_node n;
    gckpt_parameter q;
    gckpt_instruction in;
    gckpt_usage u;
    gckpt_buffer b;
    for (int i = 0; i < m->count; i++) {
        counted += m->rows[i].trained + m->rows[i].frozen + m->rows[i].running_stats;
        kept += m->rows[i].saved;
        work += m->rows[i].work;
        CHECK(m->rows[i].count >= 1 && m->rows[i].name[0]);
    }
    for (int id = 0; gckpt_graph_node(net.g, id, &n) == GCKPT_OK; id++)
        if (m->row_of[id] >= 0 && !strcmp(n.op, "param") &&
            gckpt_store_peek(net.s, gckpt_store_find(net.s, n.name), &q) == GCKPT_OK)
            parameters += q.elements;
    for (int id = 0; gckpt_graph_node(net.g, id, &n) == GCKPT_OK; id++)
        for (int i = 0; i < n.inputs && strcmp(n.op, "reshape") != 0; i++) /* inputs of ops belong to table rows */
            CHECK(m->row_of[n.input[i]] >= 0);
    CHECK_MSG(counted == parameters, "seed %u: %d parameters of %d", seed, (int)counted, (int)parameters);
    int last_forward = 0;
    for (int i = 0; gckpt_plan_get(p, i, &in) == GCKPT_OK && gckpt_plan_usage(p, i, &u) == GCKPT_OK; i++) {
        last_forward = !last_forward && in.kind == GCKPT_BACKWARD ? i : last_forward;
        planned += u.cost;
        CHECK_MSG(in.id < 0 || m->row_of[in.id] >= 0, "seed %u: tensor %d has no row", seed, in.id);
    }
    CHECK_MSG(work == planned, "seed %u: work %u of %u", seed, (unsigned)work, (unsigned)planned);
    gckpt_plan_usage(p, last_forward, &u);
    waits = u.live; /* bytes live when the backward begins; the loop subtracts gradients and workspace */
    for (int i = 0; gckpt_plan_buffer(p, i, &b) == GCKPT_OK; i++)
        waits -= b.kind > GCKPT_BUFFER_SAVED && b.start <= last_forward && b.end >= last_forward ? b.size : 0;
    CHECK_MSG(!last_forward || kept == waits, "seed %u: %zu bytes kept, not %zu", seed, kept, waits);
}

/* Checks that the milliseconds in the lines add up to the total. */
static void check_time(const char *text, const tune_profile *p, unsigned seed)
{
    double sum = 0, all = 1e3 * p->total_seconds / (double)p->steps;
    int tables = 0, lines = 0;
    size_t ends = 0;
    for (const char *next; *text; text = next) {
        const char *head = strstr(text, "ms a step");
        next = strchr(text, '\n') + 1;
        if (head && head < next) {
            ends = (size_t)(head - text) + 9;
            sum = lines = 0;
        } else if (next - text > (ptrdiff_t)ends && text[0] != '-') {
            size_t at = ends, extra = 0; /* extra: number of continuation bytes in UTF-8 characters */
            for (const char *c = text; c < next; c++)
                extra += ((unsigned char)*c & 0xc0) == 0x80;
            at += extra;
            while (text[at - 1] != ' ')
                at--;
            double ms = strtod(text + at, NULL);
            if (!strncmp(text, "all ", 4)) {
                CHECK_MSG(fabs(sum - ms) < 0.006 * (lines + 1) && fabs(ms - all) < 0.006,
                          "seed %u: %g in lines, %g in all, %g", seed, sum, ms, all);
                tables++;
            }
            sum += ms;
            lines++;
        }
    }
    CHECK(tables == 2);
}

static void test_random(unsigned seed)
{
    net_open(seed, 0, 0);
    gckpt_plan_desc d = { .mode = seed % 3 ? GCKPT_MEMORY_POOR : GCKPT_AUTO, .batch = net.batch };
    if (seed % 4 == 0)
        gckpt_store_freeze(net.s, "*1*", 1);
    gckpt_plan *p = gckpt_plan_new(net.g, net.term, net.terms, &d);
    double clock = 0;
    gckpt_exec_desc x = { .debug = 0 };
    tune_profile prof = { .clock = tick, .user = &clock };
    CHECK(p == NULL || tune_open(&prof, p, &x) == GCKPT_OK);
    gckpt_exec *e = p ? gckpt_exec_new(p, net.s, &x) : NULL;
    if (!e) { /* the random net has no trained parameter left */
        tune_close(&prof);
        util_free(e, p, NULL, NULL);
        destroy();
        return;
    }
    summary m;
    file f = { 0 };
    CHECK(summary_open(&m, net.g, net.s, p) == GCKPT_OK);
    check_rows(&m, p, seed);
    gckpt_feed feeds[NET_FEEDS];
    const gckpt_hyper hyper = { .lr = 0.01f };
    for (int i = 0; i < 3; i++)
        CHECK_MSG(tune_step(&prof, e, feeds, net_feed(NULL, 0, feeds), net.batch, &hyper, NULL) == GCKPT_OK,
                  "seed %u: %s", seed, gckpt_error_text(e));
    for (int columns = 80; columns <= 120; columns += 20) {
        f.size = 0;
        check_width(report_of(summary_print(&m, columns, file_write, &f), &f), columns, seed);
        f.size = 0;
        const char *text = report_of(summary_time(&m, &prof, columns, file_write, &f), &f);
        check_width(text, columns, seed);
        check_time(text, &prof, seed);
    }
    for (int i = 1; i < 4 && seed < 4; i++) { /* writers that fail at call i */
        f.calls = f.size = 0;
        f.fail_call = (size_t)i;
        CHECK(summary_print(&m, 0, file_write, &f) == (f.calls >= (size_t)i ? GCKPT_E_FILE : GCKPT_OK));
        f.calls = f.size = 0;
        CHECK(summary_time(&m, &prof, 0, file_write, &f) == (f.calls >= (size_t)i ? GCKPT_E_FILE : GCKPT_OK));
    }
    tune_close(&prof);
    free(f.bytes);
    summary_close(&m);
    CHECK(summary_open(&m, net.g, net.s, NULL) == GCKPT_OK); /* a summary without a plan */
    f = (file){ 0 };
    CHECK(!strstr(report_of(summary_print(&m, 80, file_write, &f), &f), "kept"));
    CHECK(summary_time(&m, &prof, 80, file_write, &f) == GCKPT_E_ARG);
    free(f.bytes);
    summary_close(&m);
    CHECK(summary_print(&m, 80, file_write, &f) == GCKPT_E_ARG && summary_open(&m, NULL, net.s, p) == GCKPT_E_ARG);
    util_free(e, p, NULL, NULL);
    destroy();
}

static void test_names(void)
{
    static const struct { const char *a, *b, *range; int alike; } names[] = {
        { "h.0.fc", "h.11.fc", "h.0-11.fc", 1 },   { "h.0.fc", "h.0.fc", "h.0.fc", 1 },
        { "h.0.ln_1", "h.0.ln_2", "", 0 },         { "0", "12", "0-12", 1 },
        { "a.1.b.2", "a.3.b.2", "a.1-3.b.2", 1 },  { "a.1", "a.1.2", "", 0 },
        { "a.1.", "a.2.", "a.1-2.", 1 },           { "a.1b", "a.2b", "", 0 },
        { "", "1", "", 0 },                        { "a.", "a.1", "", 0 },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_MSG(summary_alike(names[i].a, names[i].b) == names[i].alike, "%s %s", names[i].a, names[i].b);
        if (names[i].alike)
            CHECK_MSG(!strcmp(summary_range(names[i].a, names[i].b).text, names[i].range), "%s", names[i].range);
    }
    char name[72];
    memset(name, '7', 71);
    name[71] = 0;
    CHECK(strlen(summary_range(name, name).text) >= 60);
    CHECK(!strcmp(summary_number(-1234567).text, "-1,234,567") && !strcmp(summary_number(100).text, "100"));
    CHECK(!strcmp(summary_number(1000).text, "1,000") && !strcmp(summary_number(0).text, "0"));
    CHECK(!strcmp(summary_bytes(1023).text, "1023") && !strcmp(summary_bytes(1024).text, "1.00K"));
    CHECK(!strcmp(summary_bytes(13421773).text, "12.8M") && !strcmp(summary_bytes(402653184).text, "384M"));
    CHECK(!strcmp(summary_fixed(99.996, 2).text, "100.00") && !strcmp(summary_fixed(-1, 1).text, "0.0"));
}

int main(int argc, char **argv)
{
    const unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : check_seed();
    const int graphs = argc > 2 ? atoi(argv[2]) : check_iterations(30);
    test_names();
    test_table();
    for (int i = 0; i < graphs; i++)
        test_random(first + (unsigned)i);
    return check_report("test_summary");
}
