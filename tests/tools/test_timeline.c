/* test_timeline.c - reports of a plan's memory: buffers add up and never overlap, getters agree with each other, an
 * SVG picture (examples/pictures.h) and a trace parse with any names of tensors, and a writer may fail anywhere. */
#include "store/store.h"
#include "plan/internal.h"
#include "check.h"
#include "examples/pictures.h"
#include "examples/print.h"
#include "util.h"
#include "text.h"

/* Checks that each counter event of a trace adds up to the live bytes of the instruction before it. */
static void check_counters(const gckpt_plan *plan, const text *t)
{
    size_t x = 0;
    for (const char *s = t->bytes; (s = find(s, "\"live\":")) != NULL && x < plan->length; x++) {
        size_t live = (size_t)strtoull(s + 7, NULL, 10), sum = 0;
        const char *end;
        s = find(s, "\"live bytes\"");
        end = s ? find(s, "}}") : NULL;
        if (!CHECK(s && end))
            return;
        s = find(s, "\"args\"") + 8;
        while (s < end && (s = find(s, "\":")) != NULL && s < end) {
            sum += (size_t)strtoull(s + 2, NULL, 10);
            s += 2;
        }
        s = end;
        CHECK(live == sum && live == plan->live_bytes[x]);
    }
    CHECK(x == plan->length);
}

/* Checks that all numbers of an attribute in the SVG are between `least` and `most`. */
static void check_range(const text *t, const char *attribute, double least, double most)
{
    for (const char *s = t->bytes; (s = find(s, attribute)) != NULL;) {
        s += strlen(attribute);
        double v = strtod(s, NULL);
        CHECK_MSG(v >= least && v <= most, "%s%g is off the page", attribute, v);
    }
}

static void check_pictures(const gckpt_plan *plan, size_t most)
{
    text svg = { 0 };
    text json = { 0 };
    CHECK(pictures_plan(plan, write_text, &svg) == GCKPT_OK);
    CHECK(is_valid_text(&svg) && is_valid_xml(&svg));
    CHECK_MSG(svg.size < most, "%lu bytes of SVG", (unsigned long)svg.size);
    check_range(&svg, " x=\"", 0, 1260);
    check_range(&svg, " y=\"", 0, 846);
    check_range(&svg, " width=\"", 0.1, 1260);
    check_range(&svg, " height=\"", 0.1, 846);
    CHECK(!find(svg.bytes, "nan") && !find(svg.bytes, "inf,"));
    CHECK(print_trace(plan, write_text, &json) == GCKPT_OK);
    CHECK(is_valid_text(&json) && is_valid_json(&json));
    check_counters(plan, &json);
    free(svg.bytes);
    free(json.bytes);
}

/* Checks the getters of instructions and tensors against the plan's contents and the plan's other reports. */
static void check_getters(const gckpt_plan *plan, int64_t batch)
{
    const gckpt_plan_info plan_info = gckpt_plan_describe(plan);
    int length = plan_info.instructions;
    unsigned char *seen = (unsigned char *)calloc(plan->node_count, 1);
    uint64_t work = 0, once = 0;
    gckpt_instruction in;
    gckpt_usage u;
    for (int x = 0; x < length; x++) {
        CHECK(gckpt_plan_usage(plan, x, &u) == GCKPT_OK);
        CHECK(gckpt_plan_get(plan, x, &in) == GCKPT_OK);
        CHECK(u.live == plan->live_bytes[x] && u.live <= plan_info.peak);
        CHECK(u.recompute == (in.kind == GCKPT_FORWARD && seen[in.id]));
        CHECK(u.once == (x < plan->body || x >= plan->epilogue));
        CHECK(u.cost == (in.kind == GCKPT_FORWARD    ? plan->info[in.id].cost.forward
                         : in.kind == GCKPT_BACKWARD ? plan->info[in.id].cost.backward
                                                     : 0));
        if (in.kind == GCKPT_FORWARD)
            seen[in.id] = 1;
        work += u.cost;
        once += u.once ? u.cost : 0;
    }
    CHECK(work > 0 && work == plan_info.cost);
    CHECK(plan_info.batch == batch && batch >= plan_info.rows);
    work = (work - once) * (uint64_t)batch / (uint64_t)plan_info.rows + once;
    CHECK(plan_info.step_cost == work);
    CHECK(gckpt_plan_usage(plan, -1, &u) == GCKPT_E_ARG);
    CHECK(gckpt_plan_usage(plan, length, &u) == GCKPT_E_ARG);
    CHECK(gckpt_plan_usage(plan, 0, NULL) == GCKPT_E_ARG);
    for (int i = 0; i < (int)plan->node_count; i++) {
        const gckpt_op *op = plan->nodes[i].op;
        CHECK(!strcmp(gckpt_plan_op(plan, i), op ? op->name : ""));
    }
    CHECK(!*gckpt_plan_op(plan, -1) && !*gckpt_plan_op(plan, (int)plan->node_count));
    free(seen);
}

static void check_buffers(const gckpt_plan *plan)
{
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    int n = info.buffers, length = info.instructions, before = -1;
    size_t *live = (size_t *)calloc((size_t)length + 1, sizeof *live), most = 0, top = 0;
    size_t at_peak[GCKPT_BYTES_KINDS];
    int peak = 0;
    gckpt_buffer a, b;
    CHECK(n > 0 && gckpt_plan_buffer(plan, n, &a) == GCKPT_E_ARG);
    for (int i = 0; i < n; i++) {
        CHECK(gckpt_plan_buffer(plan, i, &a) == GCKPT_OK);
        CHECK(0 <= a.start && a.start <= a.end && a.end <= length && a.start < length);
        CHECK(a.start >= before && a.size > 0);
        CHECK(a.id >= 0 && (size_t)a.id < plan->node_count && gckpt_plan_name(plan, a.id));
        CHECK(a.kind != GCKPT_BUFFER_WORKSPACE || a.start == a.end);
        CHECK(a.kind != GCKPT_BUFFER_PARAMETER_GRADIENT || plan->nodes[a.id].batch_invariant);
        CHECK(a.kind != GCKPT_BUFFER_GRADIENT || !plan->nodes[a.id].batch_invariant);
        before = a.start;
        for (int x = a.start; x <= a.end; x++)
            live[x] += a.size;
        top = a.offset + a.size > top ? a.offset + a.size : top;
        for (int k = 0; k < i; k++) {
            gckpt_plan_buffer(plan, k, &b);
            CHECK(a.end < b.start || b.end < a.start || a.offset + a.size <= b.offset ||
                  b.offset + b.size <= a.offset);
        }
    }
    for (int x = 0; x < length; x++) {
        CHECK(live[x] == plan->live_bytes[x]);
        peak = live[x] > live[peak] ? x : peak;
    }
    most = live[peak];
    CHECK(most == info.peak && top == info.arena);
    memset(at_peak, 0, sizeof at_peak);
    for (int i = 0; i < n; i++) {
        gckpt_plan_buffer(plan, i, &a);
        if (a.start <= peak && peak <= a.end)
            at_peak[a.kind == GCKPT_BUFFER_PARAMETER_GRADIENT ? GCKPT_BYTES_GRADIENTS
                    : a.kind == GCKPT_BUFFER_WORKSPACE        ? GCKPT_BYTES_WORKSPACE
                    : a.kind == GCKPT_BUFFER_REDUCTION        ? GCKPT_BYTES_REDUCTION
                                                              : GCKPT_BYTES_ACTIVATIONS] += a.size;
    }
    for (int k = GCKPT_BYTES_GRADIENTS; k <= GCKPT_BYTES_WORKSPACE; k++)
        CHECK(at_peak[k] == gckpt_plan_kind_bytes(plan, k));
    /* everything that an instruction reads or writes must be in buffers that are live */
    for (int x = 0; x < length; x++) {
        const int has_operands = gckpti_ins_node(plan, &plan->ins[x]) >= 0;
        size_t out = has_operands ? plan->operands[plan->ins[x].operands] : SIZE_MAX;
        int found = out == SIZE_MAX;
        for (int i = 0; i < n && !found; i++) {
            gckpt_plan_buffer(plan, i, &a);
            found = a.offset == out && a.start <= x && x <= a.end;
        }
        CHECK(found);
    }
    free(live);
}

/* An MLP with norms, a table and a residual connection; make() gives `names` to its activations in order. */
typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_term term;
} model;

static model make(int layers, int64_t rows, const char *const *names, int count)
{
    model m;
    char name[32];
    gckpt_init init = { 0.2f, 0, 0 }, one = { 0, 0, 1 };
    m.store = gckpt_store_new(NULL);
    m.graph = gckpt_graph_new(m.store, NULL);
    gckpt_tensor *tokens = gckpt_input(m.graph, "tokens", GCKPT_I32, gckpt_shape2(rows, 3));
    gckpt_tensor *targets = gckpt_input(m.graph, "targets", GCKPT_I32, gckpt_shape2(rows, 3));
    gckpt_tensor *table = gckpt_param(m.graph, "table", gckpt_shape2(19, 8), init);
    gckpt_tensor *x = gckpt_embed(table, tokens);
    for (int i = 0; i < layers; i++) {
        snprintf(name, sizeof name, "w%d", i);
        gckpt_tensor *w = gckpt_param(m.graph, name, gckpt_shape2(8, 8), init);
        snprintf(name, sizeof name, "gain%d", i);
        gckpt_tensor *gain = gckpt_param(m.graph, name, gckpt_shape1(8), one);
        gckpt_segment_begin(m.graph);
        gckpt_tensor *h = gckpt_linear(gckpt_rmsnorm(x, gain, 0), w, NULL);
        if (count > 0)
            gckpt_name(h, names[i % count]);
        x = gckpt_add(x, gckpt_dropout(gckpt_gelu(h), 0.1f));
        gckpt_segment_end(m.graph);
    }
    m.term.loss = gckpt_linear_cross_entropy(x, table, targets, NULL);
    m.term.weight = 1;
    m.term.regulariser = 0;
    return m;
}

static gckpt_plan *plan_of(const model *m, gckpt_mode mode, int64_t batch, int early)
{
    gckpt_plan_desc d = { .mode = mode, .batch = batch, .update_in_backward = early };
    gckpt_plan *plan = gckpt_plan_new(m->graph, &m->term, 1, &d);
    CHECK_MSG(plan != NULL, "%s", gckpt_error_text(m->graph));
    return plan;
}

static void free_model(model *m) { util_free(NULL, NULL, m->graph, m->store); }

static void all_plan_kinds(void)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS,
                                        GCKPT_SQRT, GCKPT_INFERENCE };
    for (int layers = 1; layers <= 9; layers += 4) {
        model m = make(layers, 4, NULL, 0);
        for (int i = 0; i < 5; i++)
            for (int way = 0; way < 3; way++) {
                if (way && modes[i] == GCKPT_INFERENCE)
                    continue;
                gckpt_plan *plan = plan_of(&m, modes[i], way == 1 ? 10 : 0, way == 2);
                check_getters(plan, way == 1 ? 10 : 4);
                check_buffers(plan);
                check_pictures(plan, 100000);
                gckpt_plan_free(plan);
            }
        free_model(&m);
    }
}

/* Tests a plan with a regulariser of parameters alone and with fetched tensors: it has a prologue, an epilogue, and
 * live ranges that last until the end. */
static void once_and_fetched(void)
{
    model m = make(2, 4, NULL, 0);
    gckpt_init init = { 0.2f, 0, 0 };
    gckpt_tensor *w = gckpt_param(m.graph, "extra", gckpt_shape2(8, 8), init);
    gckpt_term terms[2] = { m.term, { gckpt_sum_loss(gckpt_tanh(gckpt_mul(w, w))), 0.1f, 1 } };
    gckpt_fetch_spec fetch = { w, 1 };
    for (int batch = 4; batch <= 12; batch += 8) {
        gckpt_plan_desc d = { .batch = batch, .fetch.specs = &fetch, .fetch.count = 1 };
        gckpt_plan *plan = gckpt_plan_new(m.graph, terms, 2, &d);
        if (CHECK_MSG(plan != NULL, "%s", gckpt_error_text(m.graph))) {
            check_getters(plan, batch);
            check_buffers(plan);
            check_pictures(plan, 100000);
        }
        gckpt_plan_free(plan);
    }
    free_model(&m);
}

static void tiny_and_huge(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init init = { 1, 0, 0 };
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(1, 1));
    gckpt_tensor *h = gckpt_linear(x, gckpt_param(g, "w", gckpt_shape2(1, 1), init), NULL);
    gckpt_term term = { gckpt_mean_squared_error(h, y, NULL), 1, 0 };
    gckpt_plan *plan = gckpt_plan_new(g, &term, 1, NULL);
    CHECK(gckpt_plan_describe(plan).instructions == 8);
    check_buffers(plan);
    check_pictures(plan, 10000);
    util_free(NULL, plan, g, s);

    s = gckpt_store_new(NULL); /* a plan whose arena has no bytes */
    g = gckpt_graph_new(s, NULL);
    x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 1));
    y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(1, 1));
    term.loss = gckpt_mean_squared_error(x, y, NULL);
    gckpt_plan_desc d = { .mode = GCKPT_INFERENCE };
    plan = gckpt_plan_new(g, &term, 1, &d);
    CHECK(gckpt_plan_describe(plan).arena == 0 && gckpt_plan_describe(plan).buffers == 0);
    check_pictures(plan, 10000);
    util_free(NULL, plan, g, s);

    model m = make(60, 2, NULL, 0);
    plan = plan_of(&m, GCKPT_MEMORY_POOR, 0, 0);
    CHECK(gckpt_plan_describe(plan).instructions > 5000);
    check_pictures(plan, 700000);
    gckpt_plan_free(plan);
    plan = plan_of(&m, GCKPT_SEGMENTS, 8, 0);
    check_buffers(plan);
    check_pictures(plan, 400000);
    gckpt_plan_free(plan);
    free_model(&m);
}

static void any_name(void)
{
    static char lengthy[5000];
    static const char *const names[] = {
        "<svg>&\"'",
        "a\\\"b\\",
        "\x01\x1f\x7f\n\t",
        "\xc3\xa4\xe6\xbc\xa2\xf0\x9f\x98\x80\xef\xbf\xa5",
        "\xff\xfe broken \xc3",
        "]]>-->",
        "",
        "\xef\xbf\xbe\xef\xbf\xbf",
        lengthy,
        "%s%n%i",
    };
    for (size_t i = 0; i + 3 < sizeof lengthy; i += 3)
        memcpy(lengthy + i, "\xe6\xbc\xa2", 3);
    model m = make(10, 4, names, 10);
    for (int early = 0; early < 2; early++) {
        gckpt_plan *plan = plan_of(&m, GCKPT_STORE_ALL, 0, early);
        check_pictures(plan, 200000);
        text trace = { 0 };
        CHECK(print_trace(plan, write_text, &trace) == GCKPT_OK);
        /* the name with valid UTF-8 appears as it is; the name with invalid characters does not */
        CHECK(find(trace.bytes, names[3]) && !find(trace.bytes, names[7]));
        free(trace.bytes);
        for (size_t i = 0; i < plan->node_count; i++) {
            text t = { 0 };
            for (int most = 4; most < 40; most++) { /* as wide as requested */
                pictures_out out;
                memset(&out, 0, sizeof out);
                out.write = write_text;
                out.user = &t;
                t.size = 0;
                int columns = pictures_name(&out, gckpt_plan_name(plan, (int)i), most);
                CHECK(pictures_close(&out) == GCKPT_OK && columns <= most);
                CHECK(t.size == 0 || is_valid_text(&t));
            }
            free(t.bytes);
        }
        gckpt_plan_free(plan);
    }
    free_model(&m);
}

static int has_buffer(const gckpt_plan *plan, gckpt_buffer_kind kind, int id)
{
    gckpt_buffer b;
    int found = 0;
    for (int i = 0; gckpt_plan_buffer(plan, i, &b) == GCKPT_OK; i++)
        found = found || (b.kind == kind && b.id == id);
    return found;
}

/* Tests a plan with virtual ranks: partial sums have a separate kind of buffer, every gradient that a backward writes
 * has a buffer, including the gradient of its first input, and values are printed with their offsets. */
static void vranks_and_offsets(void)
{
    const gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 4));
    gckpt_tensor *h = gckpt_linear(x, gckpt_param(g, "v", gckpt_shape2(4, 6), normal), NULL);
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(6, 3), normal);
    gckpt_term term = { gckpt_sum_loss(gckpt_linear(h, w, NULL)), 1, 0 };
    for (int leaves = 1; leaves <= 4; leaves += 3) {
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .batch = 8, .ranks.virtual_ranks = leaves };
        gckpt_plan *plan = gckpt_plan_new(g, &term, 1, &d);
        const gckpt_plan_info info = gckpt_plan_describe(plan);
        CHECK_MSG(plan != NULL, "%s", gckpt_error_text(g));
        gckpt_buffer b = { 0 };
        int waits = 0;
        for (int i = 0; i < info.buffers; i++)
            waits += gckpt_plan_buffer(plan, i, &b) == GCKPT_OK && b.kind == GCKPT_BUFFER_REDUCTION;
        CHECK((waits > 0) == (leaves > 1));
        check_pictures(plan, 100000);
        text t = { 0 };
        CHECK(has_buffer(plan, GCKPT_BUFFER_GRADIENT, gckpt_id(h)));
        CHECK(has_buffer(plan, GCKPT_BUFFER_PARAMETER_GRADIENT, gckpt_id(w)));
        CHECK(!has_buffer(plan, GCKPT_BUFFER_GRADIENT, gckpt_id(x))); /* no one reads it */
        CHECK(print_plan(plan, write_text, &t) == GCKPT_OK);
        /* a value is printed with its offset; a loss, an update and a reduce without one */
        int values = 0, updates = 0;
        for (char *at = t.bytes, *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
            *end = 0;
            if ((at = strchr(at, '\t')) == NULL) { /* no instruction */
                at = end;
                continue;
            }
            const int value = !strncmp(at, "\tforward  linear ", 17);
            CHECK_MSG(!value == !strstr(at, " at "), "%s", at);
            values += value;
            updates += !strncmp(at, "\tupdate  ", 9);
        }
        CHECK(values == 2 && updates > 0);
        free(t.bytes);
        gckpt_plan_free(plan);
    }
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

static gckpt_result as_c(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    return gckpt_plan_c(plan, "name", write, user);
}

static void failing_writers(void)
{
    model m = make(2, 4, NULL, 0);
    gckpt_plan *plan = plan_of(&m, GCKPT_SEGMENTS, 8, 0);
    gckpt_result (*const draw[4])(const gckpt_plan *, gckpt_write_fn,
                                  void *) = { pictures_plan, print_trace, print_plan,
                                              as_c };
    for (int i = 0; i < 4; i++) {
        text t = { 0 };
        CHECK(draw[i](plan, write_text, &t) == GCKPT_OK);
        long calls = t.calls;
        CHECK(calls > 1);
        for (long k = 1; k <= calls; k++) {
            t.size = 0;
            t.calls = 0;
            t.fail_at = k;
            CHECK(draw[i](plan, write_text, &t) == GCKPT_E_FILE && t.calls == k);
        }
        t.size = 0;
        t.calls = 0;
        t.fail_at = calls + 1;
        CHECK(draw[i](plan, write_text, &t) == GCKPT_OK);
        CHECK(draw[i](NULL, write_text, &t) == GCKPT_E_ARG &&
              draw[i](plan, NULL, &t) == GCKPT_E_ARG);
        free(t.bytes);
    }
    gckpt_buffer b;
    CHECK(gckpt_plan_describe(NULL).buffers == 0 && gckpt_plan_buffer(NULL, 0, &b) == GCKPT_E_ARG);
    CHECK(gckpt_plan_buffer(plan, 0, NULL) == GCKPT_E_ARG);
    CHECK(gckpt_plan_buffer(plan, -1, &b) == GCKPT_E_ARG);
    CHECK(!strcmp(gckpt_plan_name(NULL, 0), "") && !strcmp(gckpt_plan_name(plan, -1), ""));
    CHECK(!strcmp(gckpt_plan_name(plan, 1 << 20), "") &&
          !strcmp(gckpt_plan_name(plan, 2), "table"));
    gckpt_plan_free(plan);
    free_model(&m);
}

/* Tests the picture of bars: each bar ends where its bytes add up, and the largest bar ends at the right edge. */
static void bars(void)
{
    static const char *const names[] = { "one", "two" }, *const kinds[] = { "red", "green", "blue" };
    static const size_t bytes[6] = { 1000, 2000, 1000, 0, 2000, 0 }, none[6] = { 0 };
    text t = { 0 };
    CHECK(pictures_bars("title", names, 2, kinds, 3, bytes, write_text, &t) == GCKPT_OK);
    CHECK(strstr(t.bytes, "title</text>") && strstr(t.bytes, "blue") && strstr(t.bytes, "</svg>"));
    CHECK(strstr(t.bytes, "M110 112H262.5v20H110z") && strstr(t.bytes, "M262.5 112H567.5") &&
          strstr(t.bytes, "M567.5 112H720v20") && strstr(t.bytes, ">3.91 KiB<"));
    CHECK(strstr(t.bytes, "M110 146H415v20H110z") && strstr(t.bytes, ">1.95 KiB<"));
    long calls = t.calls;
    t.calls = 0;
    t.fail_at = calls;
    CHECK(pictures_bars("title", names, 2, kinds, 3, bytes, write_text, &t) == GCKPT_E_FILE);
    t.fail_at = 0;
    CHECK(pictures_bars("title", names, 2, kinds, 3, none, write_text, &t) == GCKPT_OK);
    CHECK(pictures_bars(NULL, names, 2, kinds, 3, bytes, write_text, &t) == GCKPT_E_ARG &&
          pictures_bars("t", names, 0, kinds, 3, bytes, write_text, &t) == GCKPT_E_ARG &&
          pictures_bars("t", names, 2, kinds, 7, bytes, write_text, &t) == GCKPT_E_ARG &&
          pictures_bars("t", names, 2, kinds, 3, bytes, NULL, &t) == GCKPT_E_ARG);
    free(t.bytes);
}

int main(void)
{
    bars();
    all_plan_kinds();
    once_and_fetched();
    tiny_and_huge();
    any_name();
    vranks_and_offsets();
    failing_writers();
    return check_report("timeline");
}
