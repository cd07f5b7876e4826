/* test_graph.c - what a graph tells of itself (gckpt_graph_node), and its picture
 * (examples/pictures.h): every tensor, name, shape, value and gradient is in it, boxes do not overlap,
 * lines end at boxes, whatever the graph, the names and the writer. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"

#include "rig.h"
#include "text.h"

static const gckpt_init normal = { 0.3f, 0, 0 };

static int is(const gckpt_node *n, const char *op, const char *name, int dims, int inputs)
{
    return !strcmp(n->op, op) && !strcmp(n->name, name) && n->shape.n == dims &&
           n->inputs == inputs;
}

/* Every kind of tensor once: two inputs, a constant, a tied parameter, a view, a loss. */
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
    CHECK(y == NULL); /* another batch: the graph has an error, and tells what it has all the same */
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
    gckpt_tensor *loss = gckpt_linear_cross_entropy(mean, again, y);
    gckpt_tensor *square = gckpt_mul(w, w);
    gckpt_node n;
    CHECK_MSG(square != NULL && gckpt_graph_size(g) == gckpt_id(square) + 1, "%s",
              gckpt_error_text(g));
    CHECK(gckpt_graph_node(g, gckpt_id(x), &n) == GCKPT_OK && is(&n, "input", "x", 2, 0));
    CHECK(n.type == GCKPT_I32 && !n.loss && !n.batchless && n.data == NULL && n.shape.d[1] == 4);
    CHECK(gckpt_graph_node(g, gckpt_id(w), &n) == GCKPT_OK && is(&n, "param", "table", 2, 0));
    CHECK(again == w && n.batchless && n.type == GCKPT_F32);
    CHECK(gckpt_graph_node(g, gckpt_id(h), &n) == GCKPT_OK && is(&n, "embed", "", 3, 2));
    CHECK(n.input[0] == gckpt_id(w) && n.input[1] == gckpt_id(x) && !n.batchless);
    CHECK(gckpt_graph_node(g, gckpt_id(c), &n) == GCKPT_OK && is(&n, "constant", "two", 1, 0));
    CHECK(n.data == two && n.batchless);
    CHECK(gckpt_graph_node(g, gckpt_id(product), &n) == GCKPT_OK && is(&n, "mul", "scaled", 3, 2));
    CHECK(gckpt_graph_node(g, gckpt_id(view), &n) == GCKPT_OK && is(&n, "reshape", "", 3, 1));
    CHECK(n.input[0] == gckpt_id(product) && n.shape.d[1] == 2 && n.shape.d[2] == 4);
    CHECK(gckpt_graph_node(g, gckpt_id(view) + 1, &n) == GCKPT_OK && n.input[0] == gckpt_id(view));
    CHECK(gckpt_graph_node(g, gckpt_id(loss), &n) == GCKPT_OK &&
          is(&n, "linear_cross_entropy", "", 0, 3));
    CHECK(n.loss && !n.batchless && n.input[1] == gckpt_id(w) && n.input[2] == gckpt_id(y));
    CHECK(gckpt_graph_node(g, gckpt_id(square), &n) == GCKPT_OK && is(&n, "mul", "", 2, 2));
    CHECK(n.batchless && n.input[0] == gckpt_id(w) && n.input[1] == gckpt_id(w));
    CHECK(gckpt_graph_node(g, -1, &n) == GCKPT_E_ARG);
    CHECK(gckpt_graph_node(g, gckpt_graph_size(g), &n) == GCKPT_E_ARG);
    CHECK(gckpt_graph_node(NULL, 0, &n) == GCKPT_E_ARG);
    CHECK(gckpt_graph_node(g, 0, NULL) == GCKPT_E_ARG);
    for (int id = 0; id < gckpt_graph_size(g); id++) { /* all are there, in an order that runs */
        CHECK(gckpt_graph_node(g, id, &n) == GCKPT_OK);
        for (int i = 0; i < n.inputs; i++)
            CHECK(n.input[i] >= 0 && n.input[i] < id);
    }
    rig_free(NULL, NULL, g, s);
}

int main(void)
{
    nodes();
    return check_report("graph");
}
