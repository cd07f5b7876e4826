/* models.h - the networks of the playground and of tiny.h, by public calls only. Include gradckpt.h
 * first. A comment lists the sizes of each network; the page has their names and limits. */
#ifndef MODELS_H
#define MODELS_H
#include <string.h>

typedef struct {
    int size[5];
    int64_t rows;
} sizes;

/* "part 3" */
static const char *numbered(char *name, const char *part, int number)
{
    size_t n = 0;
    for (; *part != 0 && n < 32; part++)
        name[n++] = *part;
    name[n++] = ' ';
    if (number > 99)
        name[n++] = (char)('0' + number / 100 % 10);
    if (number > 9)
        name[n++] = (char)('0' + number / 10 % 10);
    name[n++] = (char)('0' + number % 10);
    name[n] = 0;
    return name;
}

/* "part name", where numbered adds a number */
static const char *joined(char name[40], const char *part, const char *what)
{
    size_t n = 0;
    for (; *part != 0 && n < 20; part++)
        name[n++] = *part;
    name[n++] = ' ';
    for (; *what != 0 && n < 38; what++)
        name[n++] = *what;
    name[n] = 0;
    return name;
}

static gckpt_tensor *named(gckpt_tensor *x, const char *part, int number)
{
    char name[48];
    return gckpt_name(x, numbered(name, part, number));
}

static gckpt_tensor *weight(gckpt_tensor *x, const char *part, int number, gckpt_shape shape,
                            float normal, float constant)
{
    char name[48];
    const gckpt_init init = { normal, 0, constant };
    return gckpt_param(gckpt_graph_of(x), numbered(name, part, number), shape, init);
}

static int64_t width_of(gckpt_tensor *x)
{
    const gckpt_shape s = gckpt_shape_of(x);
    return s.n > 0 ? s.d[s.n - 1] : 0;
}

/* Returns 1 / sqrt(n), by Newton's method, because the page has no math library. */
static float inverse_root(int64_t n)
{
    double r = (double)n;
    for (int i = 0; i < 40; i++)
        r = (r + (double)n / r) / 2;
    return (float)(1 / r);
}

static gckpt_tensor *dense(gckpt_tensor *x, const char *part, int number, int64_t out)
{
    const gckpt_shape shape = gckpt_shape2(width_of(x), out);
    gckpt_tensor *w = weight(x, part, number, shape, inverse_root(width_of(x)), 0);
    char bias[40];
    gckpt_tensor *b = weight(x, joined(bias, part, "bias"), number, gckpt_shape1(out), 0, 0);
    return named(gckpt_linear(x, w, b), part, number);
}

static gckpt_tensor *norm(gckpt_tensor *x, const char *part, int number)
{
    gckpt_tensor *gain = weight(x, part, number, gckpt_shape1(width_of(x)), 0, 1);
    return named(gckpt_rmsnorm(x, gain, 0), part, number);
}

/* size: layers, width; segments of six layers */
static inline gckpt_tensor *chain(gckpt_graph *g, const sizes *s)
{
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(s->rows, s->size[1]));
    for (int i = 0; i < s->size[0]; i++) {
        if (i % 6 == 0)
            gckpt_segment_begin(g);
        x = named(gckpt_tanh(dense(x, "layer", i, s->size[1])), "tanh", i);
        if (i % 6 == 5 || i + 1 == s->size[0])
            gckpt_segment_end(g);
    }
    return gckpt_name(gckpt_sum_loss(gckpt_name(gckpt_mul(x, x), "square")), "loss");
}

/* (rows,inputs) -> (rows,classes). size: inputs, hidden layers, width, classes */
static gckpt_tensor *mlp_logits(gckpt_graph *g, const sizes *s)
{
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(s->rows, s->size[0]));
    for (int i = 0; i < s->size[1]; i++)
        x = named(gckpt_tanh(dense(x, "hidden", i, s->size[2])), "tanh", i);
    return dense(x, "classes", 0, s->size[3]);
}

static inline gckpt_tensor *mlp(gckpt_graph *g, const sizes *s)
{
    gckpt_tensor *logits = mlp_logits(g, s);
    return gckpt_cross_entropy(logits, gckpt_input(g, "class", GCKPT_I32, gckpt_shape1(s->rows)), NULL, 0);
}

typedef struct {
    int layer, heads, causal;
    gckpt_tensor *other; /* its keys are attended to as well */
} place;

/* Rotates the queries or keys of each head by their position. */
static gckpt_tensor *turned(gckpt_tensor *x, const char *part, const place *at)
{
    char name[40];
    return named(gckpt_rotary(x, &(gckpt_rotary_desc){ .heads = at->heads }), joined(name, "rotary", part), at->layer);
}

static gckpt_tensor *attend(gckpt_tensor *x, gckpt_tensor *to, const char *q, const char *k,
                            const char *v, const char *out, const place *at)
{
    const int64_t c = width_of(x);
    gckpt_tensor *queries = turned(dense(x, q, at->layer, c), q, at);
    gckpt_tensor *keys = turned(dense(to, k, at->layer, c), k, at);
    gckpt_tensor *a = gckpt_attention(queries, keys, dense(to, v, at->layer, c),
                                      &(gckpt_attention_desc){ .heads = at->heads, .causal = at->causal });
    return dense(named(a, "attention", at->layer), out, at->layer, c);
}

static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    const place *at = (const place *)user;
    const int decodes = at->other != NULL, i = at->layer;
    gckpt_tensor *a = norm(x, decodes ? "decoder norm" : "norm", i);
    a = decodes ? attend(a, a, "decoder q", "decoder k", "decoder v", "decoder out", at)
                : attend(a, a, "q", "k", "v", "out", at);
    x = named(gckpt_add(x, a), decodes ? "decoder add" : "add", i);
    if (decodes) {
        place all = *at;
        all.causal = 0;
        a = attend(norm(x, "cross norm", i), at->other, "cross q", "cross k", "cross v",
                   "cross out", &all);
        x = named(gckpt_add(x, a), "cross add", i);
    }
    a = norm(x, decodes ? "decoder norm2" : "norm2", i);
    a = gckpt_gelu(dense(a, decodes ? "decoder up" : "up", i, 4 * width_of(x)));
    a = named(a, decodes ? "decoder gelu" : "gelu", i);
    a = dense(a, decodes ? "decoder down" : "down", i, width_of(x));
    return named(gckpt_add(x, a), decodes ? "decoder sum" : "sum", i);
}

static gckpt_tensor *blocks(gckpt_tensor *x, int layers, place at)
{
    for (at.layer = 0; at.layer < layers; at.layer++)
        x = gckpt_checkpoint(block, x, &at);
    return x;
}

static gckpt_tensor *tokens_of(gckpt_graph *g, const char *name, int64_t rows, int64_t t,
                               gckpt_tensor **table, int64_t vocabulary, int64_t width)
{
    gckpt_tensor *tokens = gckpt_input(g, name, GCKPT_I32, gckpt_shape2(rows, t));
    if (*table == NULL)
        *table = weight(tokens, "table", 0, gckpt_shape2(vocabulary, width), 0.02f, 0);
    return gckpt_embed(*table, tokens);
}

/* (rows,tokens) -> (rows,tokens,vocabulary). size: blocks, heads, width, tokens, vocabulary */
static gckpt_tensor *gpt_logits(gckpt_graph *g, const sizes *s)
{
    const place at = { 0, s->size[1], 1, NULL };
    gckpt_tensor *table = NULL;
    gckpt_tensor *x = tokens_of(g, "tokens", s->rows, s->size[3], &table, s->size[4], s->size[2]);
    return gckpt_linear_transposed(norm(blocks(x, s->size[0], at), "last", 0), table, NULL);
}

static inline gckpt_tensor *gpt(gckpt_graph *g, const sizes *s)
{
    gckpt_tensor *logits = gpt_logits(g, s);
    return gckpt_cross_entropy(
        logits, gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(s->rows, s->size[3])), NULL, 0);
}

/* size: blocks of each, heads, width, tokens, vocabulary */
static inline gckpt_tensor *encoder_decoder(gckpt_graph *g, const sizes *s)
{
    const int64_t t = s->size[3];
    place at = { 0, s->size[1], 0, NULL };
    gckpt_tensor *table = NULL;
    gckpt_tensor *x = tokens_of(g, "source", s->rows, t, &table, s->size[4], s->size[2]);
    at.other = blocks(x, s->size[0], at), at.causal = 1;
    x = tokens_of(g, "target", s->rows, t, &table, s->size[4], s->size[2]);
    x = norm(blocks(x, s->size[0], at), "last", 0);
    return gckpt_cross_entropy(gckpt_linear_transposed(x, table, NULL),
                               gckpt_input(g, "next", GCKPT_I32, gckpt_shape2(s->rows, t)), NULL, 0);
}

/* Applies several convolutions of 3 x 3 in sequence, with `out` channels each. */
static inline gckpt_tensor *convolve(gckpt_tensor *x, const char *part, int first, int count,
                                     int64_t out)
{
    const gckpt_window same = { .padding = { 1, 1 } };
    char name[40];
    for (int i = first; i < first + count; i++) {
        gckpt_tensor *w = weight(x, part, i, gckpt_shape4(3, 3, width_of(x), out), 0.1f, 0);
        x = named(gckpt_conv2d(x, w, NULL, &same), part, i);
        x = named(gckpt_relu(x), joined(name, part, "relu"), i);
    }
    return x;
}

/* size: levels, channels of the first, rows and columns of the image, convolutions of a level */
static inline gckpt_tensor *u_net(gckpt_graph *g, const sizes *s)
{
    const gckpt_window half = { .size = { 2, 2 } }, twice = { .stride = { 2, 2 } };
    const int levels = s->size[0], edge = s->size[2], n = s->size[3];
    const gckpt_shape image = gckpt_shape4(s->rows, edge, edge, 1);
    gckpt_tensor *x = gckpt_input(g, "image", GCKPT_F32, image), *skip[8];
    int64_t c = s->size[1];
    for (int i = 0; i < levels; i++, c *= 2) {
        skip[i] = convolve(x, "down", n * i, n, c);
        x = named(gckpt_max_pool(skip[i], &half), "pool", i);
    }
    x = convolve(x, "middle", 0, n, c);
    for (int i = levels - 1; i >= 0; i--, c /= 2) {
        gckpt_tensor *w = weight(x, "wider", i, gckpt_shape4(2, 2, c / 2, c), 0.1f, 0);
        x = named(gckpt_conv2d_transposed(x, w, NULL, &twice), "wider", i);
        gckpt_tensor *both[2] = { skip[i], x };
        x = convolve(named(gckpt_concat(both, 2, 3), "both", i), "up", n * i, n, c / 2);
    }
    x = dense(x, "guess", 0, 1);
    return gckpt_mean_squared_error(x, gckpt_input(g, "mask", GCKPT_F32, image), NULL);
}

typedef gckpt_tensor *(*preset)(gckpt_graph *g, const sizes *s);
static const preset presets[] = { chain, mlp, gpt, encoder_decoder, u_net };

#endif
