/* test_graph.c - getters of a graph (gckpt_graph_node) and the picture of a graph that examples/pictures.h draws. For
 * any graph, names and writer, the picture has every tensor with its name, shape, value and gradient; its boxes do
 * not overlap, and its lines end at boxes. */
#include "store/store.h"
#include "check.h"
#include "examples/pictures.h"
#include "util.h"
#include "text.h"

static const gckpt_init normal = { 0.3f, 0, 0 };

static int is(const gckpt_node *n, const char *op, const char *name, int dims, int inputs)
{
    return !strcmp(n->op, op) && !strcmp(n->name, name) && n->shape.n == dims &&
           n->inputs == inputs;
}

/* Tests gckpt_graph_node on a graph that has every kind of tensor: two inputs, a constant, a tied parameter, a view,
 * a loss. */
static void nodes(void)
{
    static const float two[2] = { 1, 2 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    CHECK(gckpt_graph_size(g) == 0 && gckpt_graph_size(NULL) == 0);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(3, 4));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(6));
    (void)y;
    g = gckpt_graph_of(x);
    CHECK(y == NULL); /* an input with another batch size sets the graph's error; the graph's nodes can still be read */
    CHECK(gckpt_graph_size(g) == 1);
    gckpt_graph_free(g);

    g = gckpt_graph_new(s, NULL);
    x = gckpt_input(g, "x", GCKPT_I32, gckpt_shape2(3, 4));
    y = gckpt_input(g, "y", GCKPT_I32, gckpt_shape1(12 / 4));
    gckpt_tensor *w = gckpt_param(g, "table", gckpt_shape2(5, 2), normal);
    gckpt_tensor *h = gckpt_embed(w, x);
    gckpt_tensor *c = gckpt_constant(g, "two", GCKPT_F32, gckpt_shape1(2), two);
    gckpt_tensor *product = gckpt_name(gckpt_mul(h, c), "scaled");
    gckpt_tensor *view = gckpt_reshape(product, gckpt_shape3(3, 2, 4));
    gckpt_tensor *again = gckpt_param(g, "table", gckpt_shape2(5, 2), normal);
    gckpt_tensor *mean = gckpt_mean(gckpt_reshape(view, gckpt_shape3(3, 4, 2)), 1);
    gckpt_tensor *loss = gckpt_linear_cross_entropy(mean, again, y, NULL);
    gckpt_tensor *square = gckpt_mul(w, w);
    gckpt_node n;
    CHECK_MSG(square != NULL && gckpt_graph_size(g) == gckpt_id(square) + 1, "%s",
              gckpt_error_text(g));
    CHECK(gckpt_graph_node(g, gckpt_id(x), &n) == GCKPT_OK && is(&n, "input", "x", 2, 0));
    CHECK(n.type == GCKPT_I32 && !n.loss && !n.batch_invariant && n.data == NULL && n.shape.d[1] == 4);
    CHECK(gckpt_graph_node(g, gckpt_id(w), &n) == GCKPT_OK && is(&n, "param", "table", 2, 0));
    CHECK(again == w && n.batch_invariant && n.type == GCKPT_F32);
    CHECK(gckpt_graph_node(g, gckpt_id(h), &n) == GCKPT_OK && is(&n, "embed", "", 3, 2));
    CHECK(n.input[0] == gckpt_id(w) && n.input[1] == gckpt_id(x) && !n.batch_invariant);
    CHECK(gckpt_graph_node(g, gckpt_id(c), &n) == GCKPT_OK && is(&n, "constant", "two", 1, 0));
    CHECK(n.data == two && n.batch_invariant);
    CHECK(gckpt_graph_node(g, gckpt_id(product), &n) == GCKPT_OK && is(&n, "mul", "scaled", 3, 2));
    CHECK(gckpt_graph_node(g, gckpt_id(view), &n) == GCKPT_OK && is(&n, "reshape", "", 3, 1));
    CHECK(n.input[0] == gckpt_id(product) && n.shape.d[1] == 2 && n.shape.d[2] == 4);
    CHECK(gckpt_graph_node(g, gckpt_id(view) + 1, &n) == GCKPT_OK && n.input[0] == gckpt_id(view));
    CHECK(gckpt_graph_node(g, gckpt_id(loss), &n) == GCKPT_OK &&
          is(&n, "linear_cross_entropy", "", 0, 3));
    CHECK(n.loss && !n.batch_invariant && n.input[1] == gckpt_id(w) && n.input[2] == gckpt_id(y));
    CHECK(gckpt_graph_node(g, gckpt_id(square), &n) == GCKPT_OK && is(&n, "mul", "", 2, 2));
    CHECK(n.batch_invariant && n.input[0] == gckpt_id(w) && n.input[1] == gckpt_id(w));
    CHECK(gckpt_graph_node(g, -1, &n) == GCKPT_E_ARG);
    CHECK(gckpt_graph_node(g, gckpt_graph_size(g), &n) == GCKPT_E_ARG);
    CHECK(gckpt_graph_node(NULL, 0, &n) == GCKPT_E_ARG);
    CHECK(gckpt_graph_node(g, 0, NULL) == GCKPT_E_ARG);
    for (int id = 0; id < gckpt_graph_size(g); id++) { /* all nodes are in the list, each one after its inputs */
        CHECK(gckpt_graph_node(g, id, &n) == GCKPT_OK);
        for (int i = 0; i < n.inputs; i++)
            CHECK(n.input[i] >= 0 && n.input[i] < id);
    }
    util_free(NULL, NULL, g, s);
}

/* ---- the picture ---- */
enum { BOXES = 4096 };
typedef struct {
    double x, y, width, height;
} box_area;

static double number_after(const char *s, const char *what)
{
    return strtod(find(s, what) + strlen(what), NULL);
}

/* Reads the boxes of a picture and checks that they are on the page and do not overlap. Returns their number, or -1
 * on an error. */
static int boxes_of(const text *svg, box_area *box)
{
    const double width = number_after(svg->bytes, "width=\""),
                 height = number_after(svg->bytes, "height=\"");
    int n = 0, apart = 1;
    for (const char *s = svg->bytes; n < BOXES && (s = find(s, "<rect")) != NULL; s++) {
        const box_area r = { number_after(s, "x=\""), number_after(s, "y=\""),
                              number_after(s, "width=\""), number_after(s, "height=\"") };
        apart = apart && r.x >= 0 && r.y >= 100 && r.x + r.width <= width &&
                r.y + r.height <= height;
        for (int i = 0; i < n; i++)
            apart = apart && (r.x + r.width < box[i].x || box[i].x + box[i].width < r.x ||
                              r.y + r.height < box[i].y || box[i].y + box[i].height < r.y);
        box[n++] = r;
    }
    return apart ? n : -1;
}

/* Returns whether each text below the legend lies within the width of a box (a character takes 7.23
   pixels). */
static int texts_fit(const text *svg, const box_area *box, int n)
{
    const char *s = find(svg->bytes, "<rect");
    for (; s && (s = find(s, "<text")) != NULL; s++) {
        const double x = number_after(s, "x=\""), y = number_after(s, "y=\"");
        int columns = 0, inside = 0;
        for (const char *c = strchr(s, '>') + 1; *c != '<'; c++) {
            columns += (unsigned char)*c < 0x80 ? 1 : (unsigned char)*c >= 0xc0 ? 2 : 0;
            c = *c == '&' ? strchr(c, ';') : c;
        }
        for (int i = 0; i < n; i++)
            inside = inside || (x > box[i].x && x + 7.23 * columns < box[i].x + box[i].width &&
                                y > box[i].y + 10 && y < box[i].y + box[i].height);
        if (!inside)
            return 0;
    }
    return 1;
}

static int ends_at_tops(const text *svg, const box_area *box, int n) /* the ends of arrows */
{
    int arrows = 0;
    for (const char *s = svg->bytes; (s = find(s, "<path d=\"M")) != NULL; s++) {
        char *end;
        const double x = strtod(s + 10, &end), y = strtod(end, NULL);
        int hit = 0;
        for (int i = 0; i < n; i++)
            hit = hit || (x > box[i].x && x < box[i].x + box[i].width && y >= box[i].y - 0.1 &&
                          y <= box[i].y + 0.1);
        arrows += hit ? 1 : -BOXES;
    }
    return arrows;
}

/* Draws the picture and makes the checks that hold for every picture: boxes and arrows match the graph. */
static void check_picture(const gckpt_graph *g, const pictures_overlay *shown, text *svg)
{
    static box_area box[BOXES];
    gckpt_node n, from;
    int boxes = 0, arrows = 0;
    svg->size = 0;
    CHECK(pictures_graph(g, shown, write_text, svg) == GCKPT_OK);
    CHECK(is_valid_text(svg) && is_valid_xml(svg));
    CHECK(!find(svg->bytes, "=\"nan") && !find(svg->bytes, "=\"inf"));
    for (int id = 0; id < gckpt_graph_size(g); id++) {
        gckpt_graph_node(g, id, &n);
        boxes += strcmp(n.op, "param") && strcmp(n.op, "constant");
        for (int i = 0; i < n.inputs; i++) {
            gckpt_graph_node(g, n.input[i], &from);
            arrows += strcmp(from.op, "param") && strcmp(from.op, "constant");
        }
    }
    CHECK_MSG(boxes_of(svg, box) == boxes, "%d boxes, not %d", boxes_of(svg, box), boxes);
    CHECK(texts_fit(svg, box, boxes));
    CHECK_MSG(ends_at_tops(svg, box, boxes) == arrows, "%d arrows, not %d",
              ends_at_tops(svg, box, boxes), arrows);
}

/* Tests the picture of a neuron whose values and gradients are computed by hand: each box must show both to three
 * decimals. */
static void numbers(void)
{
    static const char *const says[] = {
        ">input x<",      ">value 2 -0.5<", ">gradient 0.25 0.125<", ">w (2), shared<",
        ">value 1 0.5<",  ">mul y<",        ">value 2 -0.25<",       ">half (1)<",
        ">value 0.5<",    ">value 3 0.25<", ">gradient 0.75 0.125<", ">gradient 0.25 0.25<",
        ">sum_loss<",     ">value 0.813<",  ">(1,2)<",               ">reshape square<",
        ">input unread<", ">(1) i32<",      ">value 7<",             "gets a gradient",
    };
    const float x_data[2] = { 2, -0.5f }, half[1] = { 0.5f };
    const int32_t unread_data[1] = { 7 };
    const gckpt_init zero = { 0, 0, 0 };
    gckpt_parameter p;
    text svg = { 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 2));
    gckpt_tensor *unread = gckpt_input(g, "unread", GCKPT_I32, gckpt_shape1(1));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape1(2), zero);
    gckpt_tensor *c = gckpt_constant(g, "half", GCKPT_F32, gckpt_shape1(1), half);
    gckpt_tensor *y = gckpt_name(gckpt_mul(x, w), "y");
    gckpt_tensor *more = gckpt_add(y, w);
    gckpt_tensor *square = gckpt_name(gckpt_reshape(more, gckpt_shape1(2)), "square");
    const gckpt_term loss = { gckpt_sum_loss(gckpt_mul(square, c)), 1, 0 };
    const gckpt_fetch_spec fetches[] = { { y, 0 }, { more, 0 }, { x, 1 }, { w, 1 }, { more, 1 } };
    gckpt_plan_desc d = { .fetch.specs = fetches, .fetch.count = 5 };
    gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, &d);
    gckpt_exec *e = gckpt_exec_new(plan, s, NULL);
    const gckpt_feed feeds[] = { { gckpt_id(x), x_data }, { gckpt_id(unread), unread_data } };
    gckpt_report report;
    CHECK(gckpt_store_get(s, 0, &p) == GCKPT_OK);
    p.values[0] = 1;
    p.values[1] = 0.5f;
    CHECK_MSG(gckpt_gradients(e, feeds, 1, 1, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
    const pictures_overlay shown = { plan, e, s, feeds, 2, &report };
    check_picture(g, &shown, &svg);
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++)
        CHECK_MSG(find(svg.bytes, says[i]) != NULL, "no %s", says[i]);
    check_picture(g, NULL, &svg); /* only shapes */
    /* without a plan, the picture shows the values of constants, which are part of the graph */
    CHECK(find(svg.bytes, ">value 0.5<") != NULL);
    CHECK(!find(svg.bytes, ">value 2") && !find(svg.bytes, "gradient"));
    free(svg.bytes);
    util_free(e, plan, g, s);
}

/* Builds a graph of blocks with skip connections, `width` next to each other and `depth` below each other. */
static gckpt_graph *blocks(gckpt_store *s, int depth, int width, const char *name)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    char label[32];
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 8)), *first = x;
    for (int i = 0; i < depth; i++) {
        gckpt_tensor *sum = gckpt_add(x, x);
        for (int k = 0; k < width; k++) {
            snprintf(label, sizeof label, "w%d", i * width + k);
            gckpt_tensor *w = gckpt_param(g, label, gckpt_shape2(8, 8), normal);
            sum = gckpt_add(sum, gckpt_name(gckpt_linear(x, w, NULL), name));
        }
        x = gckpt_add(sum, i % 3 ? x : first);
        first = i % 5 ? first : x;
    }
    gckpt_mean_squared_error(x, first, NULL);
    return g;
}

/* Tests which boxes of a picture have the bar that marks a gradient: all, or, with the layer below frozen, only the nodes
 * above that layer. One of these nodes is a view. */
static void marks(void)
{
    text svg = { 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 4));
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(4, 4), normal);
    gckpt_tensor *v = gckpt_param(g, "v", gckpt_shape2(4, 4), normal);
    gckpt_tensor *h = gckpt_linear(gckpt_tanh(gckpt_linear(x, w, NULL)), v, NULL);
    h = gckpt_reshape(h, gckpt_shape2(4, 2));
    const gckpt_term loss = { gckpt_sum_loss(h), 1, 0 };
    /* number of bars: two in each box of an op, one in the box of a parameter */
    const int bars[2] = { 5 * 2 + 2, 3 * 2 + 1 };
    for (int frozen = 0; frozen < 2; frozen++) {
        int seen = 0;
        gckpt_store_freeze(s, "w", frozen);
        gckpt_plan *plan = gckpt_plan_new(g, &loss, 1, NULL);
        const pictures_overlay shown = { plan, NULL, NULL, NULL, 0, NULL };
        check_picture(g, &shown, &svg);
        for (const char *c = svg.bytes; (c = find(c, "class=\"g\" d")) != NULL; c++)
            seen++;
        seen--; /* without the legend's */
        CHECK_MSG(seen == bars[frozen], "%d bars", seen);
        gckpt_plan_free(plan);
    }
    free(svg.bytes);
    util_free(NULL, NULL, g, s);
}

static void sizes_and_names(void)
{
    static const char *const names[] = { "h", "<&>\"", "\xc3\xa4\xe6\xbc\xa2", "\xff\x01",
                                         "a name that is longer than forty columns, by a lot" };
    text svg = { 0 };
    for (int i = 0; i < 5; i++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = blocks(s, i == 0 ? 40 : 3, i, names[i]);
        check_picture(g, NULL, &svg);
        svg.fail_at = svg.calls;
        svg.calls = 0;
        CHECK(pictures_graph(g, NULL, write_text, &svg) == GCKPT_E_FILE);
        svg.fail_at = svg.calls = 0;
        CHECK(pictures_graph(g, NULL, NULL, &svg) == GCKPT_E_ARG);
        util_free(NULL, NULL, g, s);
    }
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    CHECK(pictures_graph(NULL, NULL, write_text, &svg) == GCKPT_E_ARG);
    CHECK(pictures_graph(g, NULL, write_text, &svg) == GCKPT_E_ARG); /* an empty graph */
    gckpt_graph_free(g);
    g = blocks(s, 1, 1400, "h"); /* a graph with more tensors than a picture can have; then one with more lines */
    CHECK(gckpt_graph_size(g) > PICTURES_NODES);
    CHECK(pictures_graph(g, NULL, write_text, &svg) == GCKPT_E_MEMORY);
    gckpt_graph_free(g);
    g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x[100] = { gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 8)) };
    for (int i = 1; i < 100; i++)
        x[i] = gckpt_tanh(x[i - 1]);
    for (int i = 99; i-- > 0;)
        x[99] = gckpt_add(x[99], x[i]);
    svg.calls = 0;
    CHECK(pictures_graph(g, NULL, write_text, &svg) == GCKPT_E_MEMORY && svg.calls == 0);
    free(svg.bytes);
    util_free(NULL, NULL, g, s);
}

int main(void)
{
    nodes();
    numbers();
    marks();
    sizes_and_names();
    return check_report("graph");
}
