#include "graph/graph.h"
#include "store/store.h"

static const char *gckpti_kind_name(const gckpt_tensor *t)
{
    static const char *const others[] = { "", "input", "param", "constant", "reshape" };
    return t->kind == GCKPTI_OP ? t->op->name : others[t->kind];
}

GCKPTI_FN void gckpti_text_tensor(gckpti_text *t, const gckpt_tensor *tensor)
{
    char label[64];
    gckpti_text limited = { label, sizeof label - 1 };
    if (tensor && tensor->name)
        gckpti_text_add(&limited, "%s \"%s\"", gckpti_kind_name(tensor), tensor->name);
    else if (tensor)
        gckpti_text_add(&limited, "%s #%i", gckpti_kind_name(tensor), tensor->id);
    gckpti_text_add(t, "%s", tensor ? label : "NULL");
}

GCKPTI_FN gckpt_tensor *gckpti_fail(gckpt_graph *g, gckpt_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    gckpti_set_error(g, result, 1, format, args);
    va_end(args);
    return NULL;
}

GCKPT_API gckpt_result gckpt_fail(gckpt_call *call, gckpt_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    gckpti_set_error(call ? call->graph : NULL, result, 1, format, args);
    va_end(args);
    return result;
}

GCKPT_API gckpt_graph *gckpt_graph_new(gckpt_store *store, const gckpt_memory *memory)
{
    gckpti_allocator a = gckpti_allocator_of(memory);
    if (!store)
        return NULL;
    if (!GCKPTI_RUNS_BUILT) { /* GCKPT_SMALL: op descriptors lack their planning functions */
        gckpti_error(store, GCKPT_E_ARG, "graph: GCKPT_SMALL runs only printed plans");
        return NULL;
    }
    gckpt_graph *g = (gckpt_graph *)gckpti_new(&a, 1, sizeof *g);
    if (!g) {
        gckpti_error(store, GCKPT_E_MEMORY, "graph: no memory for %z bytes", sizeof *g);
        gckpti_hint_block(store, "graph", &a, 0);
        return NULL;
    }
    g->object.magic = GCKPTI_MAGIC;
    g->memory = a;
    g->scratch = gckpti_scratch_new(&g->memory, &g->no_memory);
    g->scratch.next_size = g->scratch.min_size = 8192;
    g->store = store;
    g->segment = -1;
    if (store->object.sticky != GCKPT_OK)
        gckpti_fail(g, store->object.sticky, "%s", store->object.text);
    return g;
}

GCKPT_API void gckpt_graph_free(gckpt_graph *graph)
{
    if (!graph)
        return;
    gckpti_allocator a = graph->memory;
    gckpti_scratch_free(&graph->scratch);
    gckpti_delete(&a, graph, 1, sizeof *graph);
}

static void *gckpti_fail_memory(gckpt_graph *g, const char *what, size_t n)
{
    if (g->object.sticky == GCKPT_OK) {
        gckpti_fail(g, GCKPT_E_MEMORY, what, n);
        gckpti_hint_block(g, "graph", &g->memory, 0);
    }
    return NULL;
}

/* Returns a copy that lives as long as the graph, or NULL, with an error, without memory. */
static const void *gckpti_graph_copy(gckpt_graph *g, const void *bytes, size_t n)
{
    void *copy = gckpti_scratch_copy(&g->scratch, bytes, n, 1);
    return copy ? copy : gckpti_fail_memory(g, "graph: no memory for %z bytes", n);
}

/* Returns a new tensor of the open segment, or NULL; the caller sets the fields of its kind. */
static gckpt_tensor *gckpti_tensor_new(gckpt_graph *g, int kind, const gckpt_shape *shape,
                                       gckpt_type type)
{
    gckpt_tensor *t = NULL;
    if (g->count < INT32_MAX &&
        gckpti_reserve(&g->scratch, &g->tensors, g->count, sizeof *g->tensors))
        t = (gckpt_tensor *)gckpti_scratch_alloc(&g->scratch, 1, sizeof *t);
    if (!t)
        return (gckpt_tensor *)gckpti_fail_memory(g, "graph: no memory for tensor %z", g->count);
    t->graph = g;
    t->base = t;
    t->kind = kind;
    t->shape = *shape;
    t->type = type;
    t->id = (int)g->count;
    t->index = -1;
    t->segment = g->segment;
    g->tensors[g->count++] = t;
    return t;
}

/* Adds an input, parameter or constant (a graph leaf) after checking its name, type and shape. */
static gckpt_tensor *gckpti_leaf_new(gckpt_graph *g, int kind, const char *name, gckpt_type type,
                                     const gckpt_shape *shape)
{
    if (!g || g->object.sticky != GCKPT_OK)
        return NULL;
    if (!name || !*name)
        return gckpti_fail(g, GCKPT_E_ARG, "graph: inputs, parameters and constants need a name");
    if (kind == GCKPTI_PARAM && gckpti_name_problem(name))
        return gckpti_fail(g, GCKPT_E_ARG, "param \"%s\": the name %s; choose another", name,
                           gckpti_name_problem(name));
    if (type != GCKPT_F32 && type != GCKPT_I32 && (type != GCKPT_U8 || kind != GCKPTI_INPUT))
        return gckpti_fail(g, GCKPT_E_ARG,
                           "\"%s\": the type must be GCKPT_F32 or GCKPT_I32, or, of an input, "
                           "GCKPT_U8",
                           name);
    if (!gckpti_shape_fits(shape))
        return gckpti_fail(g, GCKPT_E_SHAPE, "\"%s\": %S: %s", name, shape,
                           gckpti_shape_problem(shape));
    gckpt_tensor *t = gckpti_tensor_new(g, kind, shape, type);
    if (t)
        t->name = (const char *)gckpti_graph_copy(g, name, strlen(name) + 1);
    return t && t->name ? t : NULL;
}

GCKPT_API gckpt_tensor *gckpt_input(gckpt_graph *graph, const char *name, gckpt_type type,
                                    gckpt_shape shape)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    if (name && shape.n < 1)
        return gckpti_fail(graph, GCKPT_E_SHAPE, "input \"%s\": needs at least the batch axis",
                           name);
    if (name && graph->rows && shape.n <= GCKPT_MAX_DIMS && shape.d[0] != graph->rows)
        return gckpti_fail(
            graph, GCKPT_E_SHAPE,
            "input \"%s\": %S: axis 0 is the batch and must be %I, as for the other inputs", name,
            &shape, graph->rows);
    for (size_t i = 0; name && i < graph->count; i++)
        if (graph->tensors[i]->kind == GCKPTI_INPUT && !strcmp(graph->tensors[i]->name, name))
            return gckpti_fail(graph, GCKPT_E_ARG,
                               "input \"%s\": the graph has one of this name, tensor %i; choose "
                               "another, by which messages and printed plans can tell them apart",
                               name, (int)i);
    gckpt_tensor *t = gckpti_leaf_new(graph, GCKPTI_INPUT, name, type, &shape);
    if (t)
        graph->rows = shape.d[0];
    return t;
}

GCKPT_API gckpt_tensor *gckpt_constant(gckpt_graph *graph, const char *name, gckpt_type type,
                                       gckpt_shape shape, const void *data)
{
    if (graph && name && !data)
        return gckpti_fail(graph, GCKPT_E_ARG, "constant \"%s\": its data is NULL", name);
    gckpt_tensor *t = gckpti_leaf_new(graph, GCKPTI_CONSTANT, name, type, &shape);
    if (t) {
        t->data = data;
        t->batch_invariant = 1;
    }
    return t;
}

GCKPT_API gckpt_tensor *gckpt_param(gckpt_graph *graph, const char *name, gckpt_shape shape,
                                    gckpt_init init)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    gckpt_store *s = graph->store;
    int index = name ? gckpti_find_param(s, name) : -1;
    if (index >= 0 && !gckpti_same_shape(&s->params[index].p.shape, &shape))
        return gckpti_fail(graph, GCKPT_E_SHAPE,
                           "param \"%s\": it is %S here, but %S in the store: use another name",
                           name, &shape, &s->params[index].p.shape);
    for (size_t i = 0; index >= 0 && i < graph->count; i++)
        if (graph->tensors[i]->kind == GCKPTI_PARAM && graph->tensors[i]->index == index)
            return graph->tensors[i];
    gckpt_tensor *t = gckpti_leaf_new(graph, GCKPTI_PARAM, name, GCKPT_F32, &shape);
    if (!t)
        return NULL;
    if (index < 0) {
        if (!gckpti_param_new(s, name, &shape, init)) {
            gckpti_fail(graph, GCKPT_E_MEMORY,
                        "param \"%s\": the store has no memory for %I floats", name,
                        gckpti_elements(&shape));
            gckpti_hint_block(graph, "store", &s->memory, 0);
            return NULL;
        }
        index = (int)s->count - 1;
    }
    t->index = index;
    t->init = init;
    t->batch_invariant = 1;
    return t;
}

GCKPT_API gckpt_graph *gckpt_graph_of(const gckpt_tensor *tensor)
{
    return tensor ? tensor->graph : NULL;
}
GCKPT_API int gckpt_id(const gckpt_tensor *tensor) { return tensor ? tensor->id : -1; }
GCKPT_API gckpt_shape gckpt_shape_of(const gckpt_tensor *tensor)
{
    return tensor ? tensor->shape : gckpti_shape(-1, 0, 0, 0, 0);
}

GCKPT_API gckpt_tensor *gckpt_name(gckpt_tensor *tensor, const char *name)
{
    if (tensor && name)
        tensor->name = (const char *)gckpti_graph_copy(tensor->graph, name, strlen(name) + 1);
    return tensor;
}

GCKPT_API int gckpt_graph_size(const gckpt_graph *graph) { return graph ? (int)graph->count : 0; }

GCKPT_API gckpt_result gckpt_graph_node(const gckpt_graph *graph, int id, gckpt_node *out)
{
    if (!out || id < 0 || id >= gckpt_graph_size(graph))
        return GCKPT_E_ARG;
    const gckpt_tensor *t = graph->tensors[id];
    memset(out, 0, sizeof *out);
    out->op = gckpti_kind_name(t);
    out->name = t->name ? t->name : "";
    out->shape = t->shape;
    out->type = t->type;
    out->loss = t->op && t->op->flags & GCKPT_LOSS;
    out->batch_invariant = t->batch_invariant;
    out->inputs = t->inputs;
    for (int i = 0; i < t->inputs; i++)
        out->input[i] = t->in[i]->id;
    out->data = t->data;
    out->attributes = t->attributes, out->attribute_bytes = t->attribute_bytes;
    return GCKPT_OK;
}

GCKPT_API gckpt_tensor *gckpt_keep(gckpt_tensor *x)
{
    if (x)
        x->base->must_save = 1, x->base->must_recompute = 0;
    return x;
}

GCKPT_API void gckpt_segment_begin(gckpt_graph *graph)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return;
    if (!gckpti_reserve(&graph->scratch, &graph->segments, graph->segment_count,
                        sizeof *graph->segments)) {
        gckpti_fail_memory(graph, "graph: no memory for segment %z", graph->segment_count);
        return;
    }
    gckpti_segment *s = &graph->segments[graph->segment_count];
    s->parent = graph->segment;
    s->ordinal = s->parent < 0 ? graph->top_segments++ : -1;
    graph->segment = (int)graph->segment_count++;
}

GCKPT_API void gckpt_segment_end(gckpt_graph *graph)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return;
    if (graph->segment < 0)
        gckpti_fail(graph, GCKPT_E_ARG, "gckpt_segment_end without gckpt_segment_begin");
    else
        graph->segment = graph->segments[graph->segment].parent;
}

GCKPT_API gckpt_tensor *gckpt_checkpoint(gckpt_block_fn block, gckpt_tensor *x, void *user)
{
    if (!block || !x)
        return NULL;
    gckpt_graph *g = x->graph;
    gckpt_segment_begin(g);
    gckpt_tensor *y = block(x, user);
    gckpt_segment_end(g);
    return y;
}

GCKPT_API gckpt_tensor *gckpt_reshape(gckpt_tensor *x, gckpt_shape shape)
{
    if (!x)
        return NULL;
    gckpt_graph *g = x->graph;
    const gckpt_shape requested = shape;
    const int64_t elements = gckpti_elements(&x->shape);
    int inferred = -1;
    for (int i = 0; i < shape.n && i < GCKPT_MAX_DIMS; i++)
        if (shape.d[i] == -1 && inferred < 0) {
            inferred = i;
            shape.d[i] = 1;
        }
    if (inferred >= 0 && gckpti_shape_fits(&shape))
        shape.d[inferred] = elements / gckpti_elements(&shape);
    if (g->check_op && !gckpti_same_shape(&shape, &x->shape) && !g->check_op(NULL, &x, 1, NULL))
        return NULL;
    if ((x->op && x->op->flags & GCKPT_LOSS) || !gckpti_shape_fits(&shape) ||
        gckpti_elements(&shape) != elements)
        return gckpti_fail(g, GCKPT_E_SHAPE, "reshape: %S to %S: the sizes do not multiply to %I",
                           &x->shape, &requested, elements);
    gckpt_tensor *t = gckpti_tensor_new(g, GCKPTI_VIEW, &shape, x->type);
    if (!t)
        return NULL;
    t->base = x->base;
    t->in[0] = x;
    t->inputs = 1;
    t->batch_invariant = x->batch_invariant;
    t->variable = x->variable;
    t->mixes_rows = x->mixes_rows;
    if (!t->batch_invariant && (shape.n == 0 || shape.d[0] % g->rows))
        t->mixes_rows |= GCKPTI_MIXES_ALWAYS;
    return t;
}
