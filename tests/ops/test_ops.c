/* test_ops.c - tests every op in three ways: values compared with double precision (ref.c), gradients compared with
 * central differences of that reference, and bits compared over plans, splits, kernels and threads.
 *
 *     test_ops [-v] [-b] [part of a case's name]   -v prints the error of each case; -b only compares bits
 *
 * A case is one builder function that runs twice: with a graph the builder makes tensors, and without a graph it
 * evaluates the reference. Every op here takes a pair of a tensor and a reference value, of which one is NULL, and
 * returns such a pair. Compile with ref.c and -lm. */
#include "gradckpt.h"
#include "examples/gradcheck.h"
#include "util.h"
#include "ref.h"
#include <math.h>

/* == cases, leaves, and pairs of tensor and reference ========================================== */
typedef struct { gckpt_tensor *t; ref_value *r; } pair;
static const pair none = { NULL, NULL };

typedef struct net net;
typedef struct {
    const char *name;
    void (*build)(net *n, const int *a);
    int a[8];                   /* sizes and options, whose meaning the comment before the builder lists */
    int batch;
    unsigned flags;
    /* allowed errors of values and of gradients, in 2^-24 of the largest value; 0 selects the defaults below */
    double ulps, grad_ulps;
} test_case;
enum { MIXES = 1,               /* the graph has ops that mix rows, so micro-batches have other results */
       NO_REF = 2,              /* the case draws random values, so there is no reference and only bits are compared */
       NO_STREAM = 4,           /* there are several losses, so streaming is refused */
       /* some gradients are 0 except for rounding errors, which are at most those of rsqrt(1e-5) */
       FLAT = 8,
       OTHER = 16 };            /* inference gives other results than training */

/* Default error bounds. An elementwise op rounds a few times; a sum of n fma loses between sqrt(n) and n/2 units of
 * the sum of magnitudes. The cases keep n near 64, and set larger bounds where needed: scores of 200, many ops in a
 * row, caps whose derivative 1 - y y cancels. Most errors are a tenth of the bound (see -v), while a wrong formula
 * gives thousands of units. */
#define DEFAULT_ULPS 8.0
#define DEFAULT_GRAD_ULPS 24.0

typedef struct {                /* a leaf: an input ('x' f32, 'i' i32), a parameter ('p') or a constant ('c') */
    char name[16], kind;
    gckpt_shape shape;          /* axis 0 of an input is the whole batch */
    int64_t elements;
    float *values;
    int32_t *index;
    /* t: the tensor in the graph that was built last; id: its number, which stays valid after the graph is freed */
    gckpt_tensor *t;
    int id;
} leaf;
struct net {
    const test_case *c;
    gckpt_graph *graph;         /* if NULL, the builder evaluates the reference */
    int64_t rows;               /* axis 0 of the inputs */
    leaf leaves[24];
    int n_leaves;
    gckpt_tensor *probes[8];    /* activations whose gradients are compared */
    long probe_elements[8];
    int n_probes;
    unsigned fixed;             /* bit i: the i-th tensor that could have a gradient is built without one */
    int n_bearers;              /* number of tensors that could have a gradient */
    /* leaf or probe to one element of which the reference adds `bump`, or -1 */
    int bump_leaf, bump_probe;
    long bump_element;
    double bump;
    pair out;                   /* the result that is fetched and compared */
    gckpt_term terms[3];
    ref_value *sums[3];
    int n_terms;
};

static double uniform(uint64_t *state)
{
    return (double)(next_random(state) >> 40) / 16777216.0;
}

/* Returns a shape with the sizes a, b, c up to the first 0; if rows > 0, an axis of `rows` precedes them. */
static gckpt_shape sizes(int64_t rows, int a, int b, int c)
{
    gckpt_shape s = gckpt_shape1(1);
    int list[3];
    list[0] = a, list[1] = b, list[2] = c;
    s.n = 0;
    if (rows > 0)
        s.d[s.n++] = rows;
    for (int i = 0; i < 3 && list[i]; i++)
        s.d[s.n++] = list[i];
    return s;
}

/* Finds or adds the leaf with this name and returns its pair. Its values are about normally distributed, times scale;
 * integers are 0..top-1, and if `ignored` is nonzero, about one in `ignored` of them is -1. */
static pair use_leaf(net *n, char kind, const char *name, gckpt_shape shape, double scale, int top,
                     int ignored)
{
    const gckpt_init zero = { 0, 0, 0 };
    pair p = { NULL, NULL };
    leaf *l;
    int k = 0;
    while (k < n->n_leaves && strcmp(n->leaves[k].name, name) != 0)
        k++;
    l = &n->leaves[k];
    if (k == n->n_leaves) {
        uint64_t state = 77;
        for (const char *s = name; *s; s++)
            state = state * 31 + (unsigned char)*s;
        n->n_leaves++;
        strcpy(l->name, name);
        l->kind = kind;
        l->shape = shape;
        if (kind == 'x' || kind == 'i')
            l->shape.d[0] = n->c->batch;
        l->elements = 1;
        for (int i = 0; i < shape.n; i++)
            l->elements *= l->shape.d[i];
        l->values = (float *)calloc((size_t)l->elements, sizeof(float));
        l->index = (int32_t *)calloc((size_t)l->elements, sizeof(int32_t));
        for (int64_t i = 0; i < l->elements; i++) {
            double sum = uniform(&state) + uniform(&state) + uniform(&state) - 1.5;
            l->values[i] = (float)(2 * scale * sum);
            if (kind == 'i')
                l->index[i] = (int32_t)(next_random(&state) % (uint64_t)top);
            if (kind == 'i' && ignored && next_random(&state) % (uint64_t)ignored == 0)
                l->index[i] = -1;
        }
    }
    if (n->graph) {
        if (kind == 'p')
            p.t = gckpt_param(n->graph, name, shape, zero);
        else if (kind == 'c')
            p.t = gckpt_constant(n->graph, name, GCKPT_F32, shape, l->values);
        else
            p.t = gckpt_input(n->graph, name, kind == 'i' ? GCKPT_I32 : GCKPT_F32, shape);
        l->t = p.t;
        l->id = gckpt_id(p.t);
    } else {
        long d[6] = { 0 };
        for (int i = 0; i < shape.n; i++)
            d[i] = (long)l->shape.d[i];
        p.r = ref_new(shape.n, d);
        for (int64_t i = 0; i < l->elements; i++)
            p.r->v[i] = kind == 'i' ? (double)l->index[i] : (double)l->values[i];
        if (n->bump_leaf == k)
            p.r->v[n->bump_element] += n->bump;
    }
    return p;
}

/* Returns a parameter, or a constant if the parameter's bit in n->fixed is set. */
static pair param(net *n, const char *name, double scale, int a, int b, int c)
{
    char kind = n->fixed >> n->n_bearers++ & 1 ? 'c' : 'p';
    return use_leaf(n, kind, name, sizes(0, a, b, c), scale, 0, 0);
}
static pair input(net *n, const char *name, int a, int b, int c)
{
    return use_leaf(n, 'x', name, sizes(n->rows, a, b, c), 1, 0, 0);
}
static pair indices(net *n, const char *name, int a, int top, int ignored)
{
    return use_leaf(n, 'i', name, sizes(n->rows, a, 0, 0), 1, top, ignored);
}

/* Marks an activation x, so that the gradient of x is compared as well. */
static pair mark(net *n, pair x)
{
    int k = n->n_probes++;
    if (n->graph) {
        n->probes[k] = x.t;
        return x;
    }
    n->probe_elements[k] = ref_elements(x.r);
    if (n->bump_probe == k)
        x.r->v[n->bump_element] += n->bump;
    return x;
}
/* Like mark, but does nothing if any tensor is fixed, since x might then have no gradient. */
static pair probe(net *n, pair x)
{
    return n->fixed ? x : mark(n, x);
}

/* == ops on pairs of tensor and reference ====================================================== */
static pair both(gckpt_tensor *t, ref_value *r)
{
    pair p;
    p.t = t;
    p.r = r;
    return p;
}
#define UNARY(name, ...) KIND_##name,
enum { UNARY_TESTS(UNARY) SOFTMAX, LOG_SOFTMAX, POW, CLAMP, LEAKY_RELU, ELU };
#undef UNARY
#define UNARY(name, reads, kind, value, ...) static double value_of_##name(double x) { return value; }
UNARY_TESTS(UNARY)
#undef UNARY
/* `by`, in eighths: the exponent, the parameter of leaky_relu or elu, or the limit of clamp (-by to by) */
static pair unary_by(int kind, pair x, int by)
{
    const double eighths = by / 8.0;
    switch (kind) {
#define UNARY(name, ...) case KIND_##name: return both(gckpt_##name(x.t), ref_map(x.r, value_of_##name));
    UNARY_TESTS(UNARY)
#undef UNARY
    case LOG_SOFTMAX: return both(gckpt_log_softmax(x.t), ref_log_softmax(x.r));
    case POW: return both(gckpt_pow(x.t, (float)eighths), ref_pow(x.r, eighths));
    case CLAMP:
        return both(gckpt_clamp(x.t, -(float)eighths, (float)eighths),
                    ref_clamp(x.r, -eighths, eighths));
    case LEAKY_RELU:
        return both(gckpt_activation(x.t, GCKPT_LEAKY_RELU, (float)eighths), ref_leaky_relu(x.r, eighths));
    case ELU: return both(gckpt_activation(x.t, GCKPT_ELU, (float)eighths), ref_elu(x.r, eighths));
    default: return both(gckpt_softmax(x.t), ref_softmax(x.r));
    }
}
static pair unary(int kind, pair x) { return unary_by(kind, x, 0); }
static pair binary(char op, pair a, pair b)
{
    gckpt_tensor *t = op == '+' ? gckpt_add(a.t, b.t)
                    : op == '-' ? gckpt_sub(a.t, b.t)
                    : op == '*' ? gckpt_mul(a.t, b.t)
                    : op == '/' ? gckpt_div(a.t, b.t)
                    : op == 'p' ? gckpt_prelu(a.t, b.t)
                    : op == '>' ? gckpt_maximum(a.t, b.t) : gckpt_minimum(a.t, b.t);
    return both(t, ref_binary(op, a.r, b.r));
}
static pair where(pair condition, pair a, pair b)
{
    return both(gckpt_where(condition.t, a.t, b.t), ref_where(condition.r, a.r, b.r));
}
static pair add(pair a, pair b) { return binary('+', a, b); }
static pair mul(pair a, pair b) { return binary('*', a, b); }
static pair scale(pair x, double f)
{
    return both(gckpt_scale(x.t, (float)f), ref_scale(x.r, (double)(float)f));
}
static pair embed(pair table, pair index)
{
    return both(gckpt_embed(table.t, index.t), ref_embed(table.r, index.r));
}
static pair gather(pair x, pair index)
{
    return both(gckpt_gather(x.t, index.t), ref_gather(x.r, index.r));
}
/* a[0]: nonzero if the reset gate comes before the product */
static pair gru(pair x, pair wx, pair bx, pair wh, pair bh, pair h0, pair lengths, const int *a)
{
    const gckpt_recurrent_desc desc = { h0.t, NULL, lengths.t, a[0] };
    return both(gckpt_gru(x.t, wx.t, bx.t, wh.t, bh.t, &desc),
                ref_gru(ref_linear(x.r, wx.r, bx.r, 0), wh.r, bh.r, h0.r, lengths.r, a[0]));
}
static pair lstm(pair x, pair wx, pair wh, pair bias, pair h0, pair c0, pair lengths)
{
    const gckpt_recurrent_desc desc = { h0.t, c0.t, lengths.t, 0 };
    return both(gckpt_lstm(x.t, wx.t, wh.t, bias.t, &desc),
                ref_lstm(ref_linear(x.r, wx.r, bias.r, 0), wh.r, h0.r, c0.r, lengths.r));
}
static pair matmul(pair a, pair b, int transposed)
{
    return both(transposed ? gckpt_matmul_transposed(a.t, b.t) : gckpt_matmul(a.t, b.t),
                ref_matmul(a.r, b.r, transposed));
}
static pair linear(pair x, pair w, pair b, int transposed)
{
    return both(transposed ? gckpt_linear_transposed(x.t, w.t, b.t) : gckpt_linear(x.t, w.t, b.t),
                ref_linear(x.r, w.r, b.r, transposed));
}
/* axes: number of axes along which w moves: 2 for images, 1 for signals */
static pair convolution(pair x, pair w, pair b, const ref_window *z, int axes)
{
    gckpt_window to = { .groups = z->groups };
    memcpy(to.stride, z->stride, sizeof to.stride);
    memcpy(to.padding, z->padding, sizeof to.padding);
    memcpy(to.dilation, z->dilation, sizeof to.dilation);
    memcpy(to.output_padding, z->more, sizeof to.output_padding);
    gckpt_tensor *(*const make[])(gckpt_tensor *, gckpt_tensor *, gckpt_tensor *,
                                  const gckpt_window *) = {
        gckpt_conv1d, gckpt_conv1d_transposed, gckpt_conv2d, gckpt_conv2d_transposed
    };
    return both(make[2 * axes - 2 + z->transposed](x.t, w.t, b.t, &to),
                ref_convolution(x.r, w.r, b.r, z));
}
static pair layernorm(pair x, pair gain, pair bias)
{
    return both(gckpt_layernorm(x.t, gain.t, bias.t, 0), ref_layernorm(x.r, gain.r, bias.r, 1e-5));
}
static pair rmsnorm(pair x, pair gain)
{
    return both(gckpt_rmsnorm(x.t, gain.t, 0), ref_rmsnorm(x.r, gain.r, 1e-5));
}
static pair groupnorm(pair x, int groups, pair gain, pair bias)
{
    return both(gckpt_groupnorm(x.t, groups, gain.t, bias.t, 0),
                ref_groupnorm(x.r, groups, gain.r, bias.r));
}
static pair batchnorm(pair x, pair gain, pair bias)
{
    gckpt_tensor *mean = NULL, *variance = NULL;
    if (x.t) {
        gckpt_graph *g = gckpt_graph_of(x.t);
        gckpt_shape s = gckpt_shape_of(x.t), c = gckpt_shape1(s.d[s.n - 1]);
        const gckpt_init zero = { 0, 0, 0 };
        mean = gckpt_running(g, "mean", c, zero, 0.1f);
        variance = gckpt_running(g, "variance", c, zero, 0.1f);
    }
    return both(gckpt_batchnorm(x.t, gain.t, bias.t, mean, variance, 0),
                ref_groupnorm(x.r, 0, gain.r, bias.r));
}
static pair pool(pair x, const gckpt_window *w, int average)
{
    const int dilation[2] = { w->dilation[0] + !w->dilation[0], w->dilation[1] + !w->dilation[1] };
    return both(average ? gckpt_average_pool(x.t, w) : gckpt_max_pool(x.t, w),
                ref_pool(x.r, w->size, w->stride, w->padding, dilation, w->ceil, average + w->exclude_padding));
}
static pair attention(pair q, pair k, pair v, int heads, int causal)
{
    const ref_mask o = { heads, heads, causal, NULL, 0, 0, 0, NULL };
    return both(gckpt_attention(q.t, k.t, v.t, &(gckpt_attention_desc){ .heads = heads, .causal = causal }),
                ref_attention(q.r, k.r, v.r, &o));
}
static pair attention_with(pair q, pair k, pair v, int heads, int key_heads, int causal, pair lengths)
{
    const gckpt_attention_desc desc = { .heads = heads, .key_heads = key_heads, .causal = causal, .lengths = lengths.t };
    const ref_mask o = { heads, key_heads, causal, lengths.r, 0, 0, 0, NULL };
    return both(gckpt_attention(q.t, k.t, v.t, &desc), ref_attention(q.r, k.r, v.r, &o));
}
/* Causal attention. a[0]: the window; a[1], a[2]: cap and scale in hundredths; 0 selects the default of each. */
static pair attention_more(pair q, pair k, pair v, int heads, int key_heads, pair lengths, const int *a)
{
    const gckpt_attention_desc desc = { heads, key_heads, 1, lengths.t, a[0], (float)a[1] / 100, (float)a[2] / 100, NULL, NULL, NULL };
    const ref_mask o = { heads, key_heads, 1, lengths.r, a[0], (double)desc.cap, (double)desc.scale, NULL };
    return both(gckpt_attention(q.t, k.t, v.t, &desc), ref_attention(q.r, k.r, v.r, &o));
}
static pair attention_masked(pair q, pair k, pair v, int heads, int key_heads, pair mask, int cap)
{
    const gckpt_attention_desc desc = { .heads = heads, .key_heads = key_heads, .cap = (float)cap, .mask = mask.t };
    const ref_mask o = { heads, key_heads, 0, NULL, 0, (double)desc.cap, 0, mask.r };
    return both(gckpt_attention(q.t, k.t, v.t, &desc), ref_attention(q.r, k.r, v.r, &o));
}
static pair rotary(pair x, int heads, double base, int first)
{
    const ref_rotation by = { heads, base, first, 0, NULL, 0 };
    const gckpt_rotary_desc desc = { .heads = heads, .base = (float)base, .position = first };
    return both(gckpt_rotary(x.t, &desc), ref_rotary(x.r, &by));
}
static pair positions(pair x, pair table, int first)
{
    return both(gckpt_positions(x.t, table.t, first), ref_positions(x.r, table.r, first));
}
static pair reshape(pair x, int a, int b, int c, int d)
{
    gckpt_shape s = gckpt_shape4(a, b, c, d);
    long l[4];
    l[0] = a, l[1] = b, l[2] = c, l[3] = d;
    while (s.n > 1 && s.d[s.n - 1] == 0)
        s.n--;
    return both(gckpt_reshape(x.t, s), ref_reshape(x.r, s.n, l));
}
static pair permute(pair x, int n, int a, int b, int c, int d)
{
    int axes[4];
    axes[0] = a, axes[1] = b, axes[2] = c, axes[3] = d;
    return both(gckpt_permute(x.t, axes, n), ref_permute(x.r, axes));
}
static pair slice(pair x, int axis, int begin, int end)
{
    const gckpt_shape s = gckpt_shape_of(x.t);
    /* size of the axis, or 0 if only the reference is evaluated */
    const int at = axis < 0 ? axis + s.n : axis, size = at < 0 ? 0 : (int)s.d[at];
    return both(gckpt_slice(x.t, axis, begin - size, end < size ? end - size : end), ref_slice(x.r, axis, begin, end));
}
static pair concat(pair a, pair b, pair c, int axis)
{
    gckpt_tensor *t[3];
    const ref_value *r[3];
    t[0] = a.t, t[1] = b.t, t[2] = c.t;
    r[0] = a.r, r[1] = b.r, r[2] = c.r;
    return both(t[0] ? gckpt_concat(t, 3, axis) : NULL, ref_concat(r, 3, axis));
}
static pair reduce(pair x, int axis, int mean)
{
    return both(mean ? gckpt_mean(x.t, axis) : gckpt_sum(x.t, axis), ref_reduce(x.r, axis, mean));
}
static pair pad(pair x, int axis, int before, int after, int mode, double value)
{
    return both(gckpt_pad(x.t, axis, before, after, (gckpt_pad_mode)mode, (float)value),
                ref_pad(x.r, axis, before, after, mode, value));
}
static pair greatest(pair x, int axis) { return both(gckpt_max(x.t, axis), ref_max(x.r, axis, 0)); }
static pair top_k(pair x, int axis, int k)
{
    return both(gckpt_top_k(x.t, axis, k, NULL), ref_top_k(x.r, axis, k, 0));
}
static pair top_k_indices(pair x, int axis, int k)
{
    gckpt_tensor *indices;
    gckpt_top_k(x.t, axis, k, &indices);
    return both(indices, ref_top_k(x.r, axis, k, 1));
}
static pair argmax(pair x, int axis) { return both(gckpt_argmax(x.t, axis), ref_max(x.r, axis, 1)); }
static pair upsample(pair x, int height, int width, int how)
{
    return both(gckpt_upsample(x.t, height, width, (gckpt_upsampling)how), ref_upsample(x.r, height, width, how));
}
static pair dropout(pair x, double p) { return both(gckpt_dropout(x.t, (float)p), x.r); }
static pair cross_entropy(pair logits, pair targets)
{
    return both(gckpt_cross_entropy(logits.t, targets.t, NULL, 0), ref_cross_entropy(logits.r, targets.r));
}
static pair linear_cross_entropy(pair x, pair w, pair targets)
{
    return both(gckpt_linear_cross_entropy(x.t, w.t, targets.t, NULL),
                ref_cross_entropy(ref_linear(x.r, w.r, NULL, 1), targets.r));
}
static pair capped_head(pair x, pair w, pair targets, double cap)
{
    const gckpt_linear_loss_desc desc = { (float)cap };
    return both(gckpt_linear_cross_entropy(x.t, w.t, targets.t, &desc),
                ref_cross_entropy(ref_cap(ref_linear(x.r, w.r, NULL, 1), cap), targets.r));
}
static pair mean_squared_error(pair p, pair t)
{
    return both(gckpt_mean_squared_error(p.t, t.t, NULL), ref_mean_squared_error(p.r, t.r));
}
static pair cross_entropy_with(pair logits, pair targets, pair weights, int soft, double smoothing)
{
    return both(soft ? gckpt_soft_cross_entropy(logits.t, targets.t, weights.t)
                     : gckpt_cross_entropy(logits.t, targets.t, weights.t, (float)smoothing),
                ref_cross_entropy_with(logits.r, targets.r, weights.r, smoothing));
}
enum { SQUARED, HUBER, BINARY_ENTROPY };
static pair error(int kind, pair p, pair t, pair w)
{
    const double delta = 0.75;
    switch (kind) {
    case SQUARED:
        return both(gckpt_mean_squared_error(p.t, t.t, w.t),
                    ref_errors(p.r, t.r, w.r, ref_squared, 0));
    case HUBER:
        return both(gckpt_huber(p.t, t.t, w.t, (float)delta),
                    ref_errors(p.r, t.r, w.r, ref_huber, delta));
    default:
        return both(gckpt_binary_cross_entropy(p.t, t.t, w.t),
                    ref_errors(p.r, t.r, w.r, ref_binary_entropy, 0));
    }
}
static pair sum_loss(pair x) { return both(gckpt_sum_loss(x.t), ref_sum_loss(x.r)); }

/* Adds a loss term to the net. */
static void term(net *n, pair loss, double weight, int regulariser)
{
    gckpt_term *t = &n->terms[n->n_terms];
    t->loss = loss.t;
    t->weight = (float)weight;
    t->regulariser = regulariser;
    n->sums[n->n_terms++] = loss.r;
}

/* Returns an input times a parameter: an activation that has a gradient and differs from row to row. If the
 * parameter's bit in n->fixed is set, returns just the input. */
static pair batched(net *n, const char *name, int a, int b, int c)
{
    char weight[16];
    if (n->fixed >> n->n_bearers++ & 1)
        return input(n, name, a, b, c);
    strcpy(weight, name);
    strcat(weight, ".w");
    return mark(n, mul(input(n, name, a, b, c),
                       use_leaf(n, 'p', weight, sizes(0, a, b, c), 1, 0, 0)));
}

/* Adds the loss sum(y * r), where r is an input of y's shape; if y is batch-invariant (has_batch is 0), y is repeated
 * for all rows. */
static void finish(net *n, pair y, int has_batch)
{
    int64_t d[6] = { 0, 0, 0, 0, 0, 0 };
    int axes = 0;
    if (n->graph) {
        gckpt_shape s = gckpt_shape_of(y.t);
        for (int i = has_batch ? 1 : 0; i < s.n; i++)
            d[axes++] = s.d[i];
    } else {
        for (int i = has_batch ? 1 : 0; i < y.r->n; i++)
            d[axes++] = y.r->d[i];
    }
    n->out = y;
    term(n, sum_loss(mul(input(n, "r", (int)d[0], (int)d[1], (int)d[2]), y)), 1, 0);
}

/* == user-defined ops and losses =============================================================== */
/* square: y = x^2 */
static gckpt_result square_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static void square_forward(const gckpt_call *call)
{
    for (int64_t i = 0; i < count_of(&call->shape); i++)
        call->out[i] = call->in[0].data[i] * call->in[0].data[i];
}
static void square_backward_by(const gckpt_call *call, float factor)
{
    const gckpt_arg *x = &call->in[0];
    for (int64_t i = 0; i < count_of(&call->shape); i++) {
        float g = factor * x->data[i] * call->grad_out[i];
        x->grad[i] = x->accumulate ? x->grad[i] + g : g;
    }
}
static void square_backward(const gckpt_call *call) { square_backward_by(call, 2); }
static void wrong_backward(const gckpt_call *call) { square_backward_by(call, 2.1f); }
static const gckpt_op square_op = {
    "square", square_shape, square_forward, square_backward, NULL, NULL,
    { GCKPT_IN(0) }, GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD, NULL, NULL
};
static const gckpt_op wrong_op = {
    "wrong_square", square_shape, square_forward, wrong_backward, NULL, NULL,
    { GCKPT_IN(0) }, 0, NULL, NULL
};

/* User-defined op whose forward returns other values at each call, like one with hidden state. */
static void noisy_forward(const gckpt_call *call)
{
    static int calls;
    calls++;
    for (int64_t i = 0; i < count_of(&call->shape); i++)
        call->out[i] = call->in[0].data[i] * (float)calls;
}
static const gckpt_op noisy_op = {
    "noisy", square_shape, noisy_forward, square_backward, NULL, NULL,
    { GCKPT_IN(0) }, 0, NULL, NULL
};

/* User-defined op y = s x with s = 1 / sqrt(x.x + 1) for each row x. s is saved for the backward. The row is copied
 * to the workspace first, so that the workspace is tested. */
static gckpt_result unit_norm_shape(gckpt_call *call)
{
    const gckpt_shape *s = &call->in[0].shape;
    if (s->n < 1)
        return gckpt_fail(call, GCKPT_E_SHAPE, "unit: needs an axis, got %S", s);
    call->shape = *s;
    call->saved_bytes = (size_t)(count_of(s) / s->d[s->n - 1]) * sizeof(float);
    call->workspace_forward = (size_t)s->d[s->n - 1] * sizeof(float);
    return GCKPT_OK;
}
static void unit_norm_forward(const gckpt_call *call)
{
    int64_t c = call->shape.d[call->shape.n - 1], rows = count_of(&call->shape) / c;
    float *row = (float *)call->workspace, *saved = (float *)call->saved;
    for (int64_t r = 0; r < rows; r++) {
        double square = 1;
        float s;
        for (int64_t j = 0; j < c; j++) {
            row[j] = call->in[0].data[r * c + j];
            square += (double)row[j] * (double)row[j];
        }
        s = (float)(1 / sqrt(square));
        for (int64_t j = 0; j < c && call->out; j++)
            call->out[r * c + j] = s * row[j];
        if (saved)
            saved[r] = s;
    }
}
/* dx = s g - s^3 (x.g) x */
static void unit_norm_backward(const gckpt_call *call)
{
    int64_t c = call->shape.d[call->shape.n - 1], rows = count_of(&call->shape) / c;
    const gckpt_arg *x = &call->in[0];
    const float *saved = (const float *)call->saved;
    for (int64_t r = 0; r < rows; r++) {
        double dot = 0, s = (double)saved[r];
        for (int64_t j = 0; j < c; j++)
            dot += (double)x->data[r * c + j] * (double)call->grad_out[r * c + j];
        for (int64_t j = 0; j < c; j++) {
            float g = (float)(s * (double)call->grad_out[r * c + j] -
                              s * s * s * dot * (double)x->data[r * c + j]);
            x->grad[r * c + j] = x->accumulate ? x->grad[r * c + j] + g : g;
        }
    }
}
static const gckpt_op unit_norm_op = {
    "unit", unit_norm_shape, unit_norm_forward, unit_norm_backward, NULL, NULL,
    { GCKPT_IN(0) | GCKPT_SAVED }, GCKPT_INPLACE(0), NULL, NULL
};

/* User-defined loss: the sum of (a - b)^4; its count is the number of elements. */
static gckpt_result fourth_shape(gckpt_call *call)
{
    if (count_of(&call->in[0].shape) != count_of(&call->in[1].shape))
        return gckpt_fail(call, GCKPT_E_SHAPE, "fourth: %S and %S", &call->in[0].shape,
                          &call->in[1].shape);
    call->shape.n = 0;
    return GCKPT_OK;
}
static void fourth_forward(const gckpt_call *call)
{
    int64_t n = count_of(&call->in[0].shape);
    if (!call->loss_sum)
        return;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)call->in[0].data[i] - (double)call->in[1].data[i];
        *call->loss_sum += d * d * d * d;
    }
    *call->loss_count += n;
}
static void fourth_backward(const gckpt_call *call)
{
    for (int k = 0; k < 2; k++) {
        const gckpt_arg *x = &call->in[k];
        for (int64_t i = 0; i < count_of(&x->shape) && x->grad; i++) {
            double d = (double)call->in[0].data[i] - (double)call->in[1].data[i];
            float g = (float)((k ? -4 : 4) * d * d * d * (double)call->loss_scale);
            x->grad[i] = x->accumulate ? x->grad[i] + g : g;
        }
    }
}
static const gckpt_op fourth_op = {
    "fourth", fourth_shape, fourth_forward, fourth_backward, NULL, NULL,
    { GCKPT_IN(0) | GCKPT_IN(1), GCKPT_IN(0) | GCKPT_IN(1) }, GCKPT_LOSS, NULL, NULL
};

static double ref_square(double x) { return x * x; }
static double ref_fourth(double x) { return x * x * x * x; }
static pair square(pair x)
{
    return both(gckpt_apply(&square_op, &x.t, 1, NULL, 0), ref_map(x.r, ref_square));
}
static pair unit_norm(pair x)
{
    ref_value *y = x.r ? ref_scale(x.r, 1) : NULL;
    for (long c = y ? y->d[y->n - 1] : 0, i = 0; y && i < ref_elements(y); i += c) {
        double sum = 1;
        for (long j = 0; j < c; j++)
            sum += y->v[i + j] * y->v[i + j];
        for (long j = 0; j < c; j++)
            y->v[i + j] /= sqrt(sum);
    }
    return both(gckpt_apply(&unit_norm_op, &x.t, 1, NULL, 0), y);
}
static pair fourth(pair a, pair b)
{
    gckpt_tensor *in[2];
    ref_value *power = ref_map(ref_binary('-', a.r, b.r), ref_fourth);
    in[0] = a.t, in[1] = b.t;
    return both(gckpt_apply(&fourth_op, in, 2, NULL, 0), ref_sum_loss(power));
}

/* == builders; the comment before each one lists the meaning of a[0], a[1], ..; T, C: axes 1 and 2 of x == */
/* a[0]: kind; a[1], a[2]: T and C; a[3]: a factor of x, or 0; a[4]: argument of unary_by; a[5]: nonzero to make x
 * positive */
static void build_unary(net *n, const int *a)
{
    pair x = batched(n, "x", a[1], a[2], 0);
    if (a[3])
        x = scale(x, a[3]);
    if (a[5])
        x = unary(KIND_sigmoid, x);
    finish(n, unary_by(a[0], x, a[4]), 1);
}
/* a[0]: kind; a[1], a[2]: rows and C. The op is applied to a parameter, without an input. */
static void build_unary_free(net *n, const int *a)
{
    finish(n, unary(a[0], param(n, "w", 2, a[1], a[2], 0)), 0);
}
/* a[0]: the operator; a[1], a[2]: T and C of x; a[3], a[4]: T and C of y; a[5]: 0 if y depends on the batch, 1 if y
 * is a parameter, 2 if y is a parameter and the left operand, 3 if y is a constant */
static void build_binary(net *n, const int *a)
{
    pair x = batched(n, "x", a[1], a[2], 0), y;
    if (a[5] == 0)
        y = batched(n, "y", a[3], a[4], 0);
    else if (a[5] == 3)
        y = use_leaf(n, 'c', "k", sizes(0, a[3], a[4], 0), 1, 0, 0);
    else
        y = param(n, "p", 1, a[3], a[4], 0);
    finish(n, a[5] == 2 ? binary((char)a[0], y, x) : binary((char)a[0], x, y), 1);
}
/* a[0], a[1]: T and C of x; a[2], a[3]: T and C of y; a[4]: nonzero if y is a parameter. Divides x by a positive
 * function of y. */
static void build_ratio(net *n, const int *a)
{
    pair x = batched(n, "x", a[0], a[1], 0);
    pair y = a[4] ? param(n, "p", 1, a[2], a[3], 0) : batched(n, "y", a[2], a[3], 0);
    finish(n, binary('/', x, unary(KIND_sigmoid, y)), 1);
}
static void build_same(net *n, const int *a)
{
    pair x = batched(n, "x", 3, 5, 0);
    finish(n, binary((char)a[0], x, x), 1);
}
static void build_same_free(net *n, const int *a)
{
    pair w = param(n, "w", 1, 3, 5, 0);
    finish(n, binary((char)a[0], w, w), 0);
}
/* a[0]: the operator; its operands are parameters of shapes (3,1) and (1,4) */
static void build_binary_free(net *n, const int *a)
{
    finish(n, binary((char)a[0], param(n, "u", 1, 3, 1, 0), param(n, "v", 1, 1, 4, 0)), 0);
}
/* Returns operand x or y of build_where. kind: 0 for (T,C), 1 for (1,C), 2 for (T,1), 3 for a parameter (C), 4 for a
 * parameter (1). The builder's list: a[0]: nonzero if the condition is an i32 input, 0 if it is computed; a[1], a[2]:
 * T and C of the condition; a[3], a[4]: kinds of x and y, where 5 for y means the tensor x. */
static pair chosen(net *n, const char *name, int kind)
{
    return kind == 3   ? param(n, name, 1, 4, 0, 0)
           : kind == 4 ? param(n, name, 1, 1, 0, 0)
                       : batched(n, name, kind == 1 ? 1 : 3, kind == 2 ? 1 : 4, 0);
}
static void build_where(net *n, const int *a)
{
    pair c = a[0] ? use_leaf(n, 'i', "c", sizes(n->rows, a[1], a[2], 0), 1, 2, 0)
                  : unary(KIND_relu, input(n, "c", a[1], a[2], 0));
    pair x = chosen(n, "x", a[3]), y = a[4] == 5 ? x : chosen(n, "y", a[4]);
    finish(n, where(c, x, y), 1);
}
static void build_scale(net *n, const int *a)
{
    finish(n, scale(batched(n, "x", 4, 5, 0), a[0] / 8.0), 1);
}
/* a[0]: T, or 0 for no such axis; a[1], a[2]: columns of x and of the result; a[3]: nonzero with a bias; a[4]:
 * nonzero if w is transposed */
static void build_linear(net *n, const int *a)
{
    pair x = a[0] ? batched(n, "x", a[0], a[1], 0) : batched(n, "x", a[1], 0, 0);
    pair w = a[4] ? param(n, "w", 0.4, a[2], a[1], 0) : param(n, "w", 0.4, a[1], a[2], 0);
    finish(n, linear(x, w, a[3] ? param(n, "b", 1, a[2], 0, 0) : none, a[4]), 1);
}
/* a[0], a[1]: H and W of x; a[2], a[3]: rows and columns of w; a[4]: nonzero if x is a parameter; a[5]: index in
 * `list`. For a signal, the reference has a further axis H = 1. */
static void build_convolution(net *n, const int *a)
{
    static const struct { ref_window z; int i, o, bias, axes; } list[] = {
        { { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, { 0, 0 }, 0 }, 3, 4, 1, 2 },
        { { { 2, 3 }, { 1, 0 }, { 1, 1 }, 1, { 0, 0 }, 0 }, 2, 3, 1, 2 },
        { { { 1, 2 }, { 2, 1 }, { 2, 3 }, 1, { 0, 0 }, 0 }, 2, 3, 0, 2 },
        { { { 2, 1 }, { 1, 1 }, { 1, 1 }, 2, { 0, 0 }, 0 }, 4, 6, 1, 2 },
        { { { 1, 1 }, { 1, 1 }, { 1, 1 }, 5, { 0, 0 }, 0 }, 5, 5, 1, 2 },  /* depthwise: each channel is a group */
        { { { 2, 2 }, { 3, 2 }, { 2, 1 }, 3, { 0, 0 }, 0 }, 3, 6, 0, 2 },
        /* from this entry on, convolutions are transposed */
        { { { 1, 1 }, { 0, 0 }, { 1, 1 }, 1, { 0, 0 }, 1 }, 3, 2, 1, 2 },
        { { { 2, 2 }, { 1, 1 }, { 1, 1 }, 1, { 1, 0 }, 1 }, 3, 2, 1, 2 },
        { { { 3, 2 }, { 1, 0 }, { 2, 2 }, 2, { 2, 1 }, 1 }, 4, 6, 0, 2 },
        { { { 4, 6 }, { 0, 1 }, { 6, 4 }, 2, { 0, 0 }, 1 }, 2, 4, 1, 2 },
        { { { 2, 1 }, { 1, 2 }, { 1, 2 }, 3, { 0, 0 }, 1 }, 3, 3, 1, 2 },
        /* from this entry on, convolutions are of signals (one axis) */
        { { { 1, 2 }, { 0, 1 }, { 1, 1 }, 1, { 0, 0 }, 0 }, 3, 4, 1, 1 },
        { { { 1, 3 }, { 0, 1 }, { 1, 2 }, 2, { 0, 1 }, 1 }, 4, 2, 1, 1 },
    };
    const ref_window *z = &list[a[5]].z;
    const int i = list[a[5]].i, o = list[a[5]].o, axes = list[a[5]].axes;
    const int c = (z->transposed ? o : i) / z->groups, across = z->transposed ? i : o;
    pair x = a[4] ? param(n, "x", 1, 2, a[0] * a[1] * i, 0) : batched(n, "x", a[0] * a[1] * i, 0, 0);
    pair w = param(n, "w", 0.5, a[2] * a[3] * c, across, 0);
    pair b = list[a[5]].bias ? param(n, "b", 1, o, 0, 0) : none;
    x = axes == 2 || x.r ? reshape(x, -1, a[0], a[1], i) : reshape(x, -1, a[1], i, 0);
    w = axes == 2 || w.r ? reshape(w, a[2], a[3], c, -1) : reshape(w, a[3], c, -1, 0);
    x = convolution(x, w, b, z, axes);
    finish(n, reshape(x, a[4] ? 2 : n->graph ? (int)n->rows : n->c->batch, -1, 0, 0), !a[4]);
}
/* a[0]: rows; a[1], a[2]: columns of x and of the result; a[3]: nonzero if w is transposed. There is no input; x is a
 * parameter. */
static void build_linear_free(net *n, const int *a)
{
    pair w = a[3] ? param(n, "w", 0.4, a[2], a[1], 0) : param(n, "w", 0.4, a[1], a[2], 0);
    finish(n, linear(param(n, "x", 1, a[0], a[1], 0), w, param(n, "b", 1, a[2], 0, 0), a[3]), 0);
}
/* a[0]: width. linear and linear_transposed share one weight and one bias. */
static void build_linear_tied(net *n, const int *a)
{
    pair w = param(n, "w", 0.4, a[0], a[0], 0), b = param(n, "b", 1, a[0], 0, 0);
    pair x = linear(batched(n, "x", 3, a[0], 0), w, b, 0);
    finish(n, linear(unary(KIND_tanh, x), w, b, 1), 1);
}
/* a[0..2]: M, K, N of a product of (M,K) and (K,N); a[3]: 0 if both operands depend on the batch, 1 if the right one is
 * a parameter, 2 for operands of four axes, 3 to 9 for broadcasts; a[4]: nonzero if the right operand is transposed */
static void build_matmul(net *n, const int *a)
{
    int rows = a[4] ? a[2] : a[1], columns = a[4] ? a[1] : a[2];
    if (a[3] >= 3) {
        const int kind = a[3], vector = kind >= 8;
        pair left = kind == 3   ? param(n, "w", 1, a[0], a[1], 0)
                    : kind == 4 ? param(n, "w", 1, 3, a[0], a[1])
                    : kind == 8 ? param(n, "w", 1, a[1], 0, 0)
                    : kind == 9 ? batched(n, "x", a[0], a[1], 0)
                                : batched(n, "x", kind == 6 ? 1 : 2, a[0], a[1]);
        pair right = kind == 5   ? batched(n, "y", 1, rows, columns)
                     : kind == 6 ? param(n, "u", 1, 3, rows, columns)
                     : kind == 7 ? param(n, "u", 1, 1, rows, columns)
                     : vector    ? kind == 8 ? batched(n, "y", rows, columns, 0) : param(n, "u", 1, rows, 0, 0)
                                 : batched(n, "y", kind == 4 ? 1 : 2, rows, columns);
        finish(n, matmul(left, right, a[4]), 1);
        return;
    }
    pair x = a[3] == 2 ? batched(n, "x", 2, a[0], a[1]) : batched(n, "x", a[0], a[1], 0);
    pair y = a[3] == 2 ? batched(n, "y", 2, rows, columns)
           : a[3] == 1 ? param(n, "w", 1, rows, columns, 0) : batched(n, "y", rows, columns, 0);
    finish(n, matmul(x, y, a[4]), 1);
}
static void build_matmul_same(net *n, const int *a)
{
    pair x = batched(n, "x", a[0], a[0], 0);
    finish(n, matmul(x, x, a[1]), 1);
}
static void build_matmul_free(net *n, const int *a)
{
    pair w = param(n, "w", 1, 4, 4, 0);
    finish(n, matmul(w, matmul(w, param(n, "u", 1, 4, 4, 0), a[0]), a[0]), 0);
}
/* a[0]: T, or 0 if the indices have no such axis; a[1], a[2]: rows and columns of the table */
static void build_embed(net *n, const int *a)
{
    pair table = param(n, "table", 1, a[1], a[2], 0);
    finish(n, probe(n, embed(table, indices(n, "tokens", a[0], a[1], 0))), 1);
}
static void build_embed_tied(net *n, const int *a)
{
    pair table = param(n, "table", 1, a[0], 4, 0);
    pair x = positions(embed(table, indices(n, "tokens", 5, a[0], 0)), param(n, "wpe", 1, 8, 4, 0), 0);
    finish(n, linear(unary(KIND_gelu, x), table, none, 1), 1);
}
/* a[0]: H, or 0 for signals; a[1], a[2]: W and C; a[3]: nonzero for the mean, 0 for the maximum; a[4]: index in
 * `windows` */
static void build_pool(net *n, const int *a)
{
    static const gckpt_window windows[] = {
        { .size = { 3, 2 }, .stride = { 2, 1 }, .padding = { 1, 0 } },
        { .size = { 2, 3 }, .stride = { 2, 3 } },
        { .size = { 1, 3 }, .stride = { 1, 2 }, .padding = { 0, 2 } },
        { .size = { 3, 2 }, .stride = { 2, 3 }, .padding = { 1, 1 }, .dilation = { 1, 2 }, .ceil = 1 },
        { .size = { 2, 3 }, .stride = { 3, 2 }, .padding = { 1, 1 }, .ceil = 1, .exclude_padding = 1 },
    };
    pair x = a[0] ? batched(n, "x", a[0], a[1], a[2]) : batched(n, "x", a[1], a[2], 0);
    finish(n, probe(n, pool(x, &windows[a[4]], a[3])), 1);
}

/* a[0]: pixels, or 0 for no such axis; a[1]: channels; a[2]: groups, or 0 for batchnorm; a[3], a[4]: nonzero with a
 * gain, with a bias */
static void build_channels(net *n, const int *a)
{
    pair x = a[0] ? batched(n, "x", a[0], a[1], 0) : batched(n, "x", a[1], 0, 0);
    pair gain = a[3] ? param(n, "gain", 1, a[1], 0, 0) : none;
    pair bias = a[4] ? param(n, "bias", 1, a[1], 0, 0) : none;
    finish(n, probe(n, a[2] ? groupnorm(x, a[2], gain, bias) : batchnorm(x, gain, bias)), 1);
}

static void build_gather(net *n, const int *a)
{
    pair x = batched(n, "x", a[0], a[1], 0);
    finish(n, probe(n, gather(x, indices(n, "index", a[2], a[0], 0))), 1);
}
/* a[0..2]: T, input columns, units; a[3]: 0 for no bias, 1 for all biases, 2 for the bias of x only; a[4]: 0 for no
 * initial state, 1 with one, 2 if h0 and c0 are the same tensor; a[5]: nonzero for lstm, 0 for gru; a[6]: nonzero for
 * lengths; a[7]: nonzero if the reset gate comes before the product */
static void build_layer(net *n, const int *a)
{
    int gates = a[5] ? 4 * a[2] : 3 * a[2];
    pair x = batched(n, "x", a[0], a[1], 0), wx = param(n, "wx", 0.5, a[1], gates, 0);
    pair bx = a[3] ? param(n, "bx", 0.5, gates, 0, 0) : none;
    pair wh = param(n, "wh", 0.5, a[2], gates, 0);
    pair bh = a[3] == 1 && !a[5] ? param(n, "bh", 0.5, gates, 0, 0) : none;
    pair h0 = a[4] ? batched(n, "h0", a[2], 0, 0) : none;
    pair c0 = a[4] == 1 && a[5] ? batched(n, "c0", a[2], 0, 0) : h0;
    pair lengths = a[6] ? indices(n, "lengths", 0, a[0] + 1, 0) : none;
    pair y = a[5] ? lstm(x, wx, wh, bx, h0, c0, lengths) : gru(x, wx, bx, wh, bh, h0, lengths, a + 7);
    finish(n, probe(n, y), 1);
}
/* a[0]: nonzero for lstm, 0 for gru; a[1]: as a[7] above. The sequence, its initial state and the weights are parameters, and wx and wh
 * are the same parameter. */
static void build_layer_free(net *n, const int *a)
{
    int gates = a[0] ? 16 : 12;
    pair x = param(n, "x", 1, 2, 3, 4), w = param(n, "w", 0.5, 4, gates, 0);
    pair b = param(n, "b", 1, gates, 0, 0), h0 = param(n, "h0", 1, 2, 4, 0);
    finish(n, a[0] ? lstm(x, w, w, b, h0, h0, none) : gru(x, w, b, w, b, h0, none, a + 1), 0);
}
static void build_norm(net *n, const int *a)
{
    pair x = batched(n, "x", a[0], a[1], 0);
    pair gain = a[2] ? param(n, "gain", 1, a[1], 0, 0) : none;
    pair bias = a[3] ? param(n, "bias", 1, a[1], 0, 0) : none;
    finish(n, a[4] ? rmsnorm(x, gain) : layernorm(x, gain, bias), 1);
}
/* a[0]: width; a[1]: nonzero for rmsnorm, 0 for layernorm. Epsilon is large compared with the variance of a row. */
static void build_norm_epsilon(net *n, const int *a)
{
    pair x = scale(batched(n, "x", 3, a[0], 0), 0.0625), gain = param(n, "gain", 1, a[0], 0, 0);
    pair bias = a[1] ? none : param(n, "bias", 1, a[0], 0, 0);
    finish(n,
           a[1] ? both(gckpt_rmsnorm(x.t, gain.t, 0.015625f), ref_rmsnorm(x.r, gain.r, 0.015625))
                : both(gckpt_layernorm(x.t, gain.t, bias.t, 0.015625f),
                       ref_layernorm(x.r, gain.r, bias.r, 0.015625)),
           1);
}
static void build_norm_free(net *n, const int *a)
{
    pair gain = param(n, "gain", 1, 6, 0, 0), x = param(n, "x", 1, 3, 6, 0);
    finish(n, a[0] ? rmsnorm(x, gain) : layernorm(x, gain, gain), 0);
}
/* a[0], a[1]: number of queries and keys; a[2]: columns; a[3]: heads; a[4]: nonzero if causal; a[5]: a factor of q,
 * or 0 */
static void build_attention(net *n, const int *a)
{
    pair q = batched(n, "q", a[0], a[2], 0);
    pair k = batched(n, "k", a[1], a[2], 0), v = batched(n, "v", a[1], a[2], 0);
    if (a[5])
        q = scale(q, a[5]);
    finish(n, attention(q, k, v, a[3], a[4]), 1);
}
/* a[0], a[1]: T and columns; a[2]: heads; a[3]: nonzero if causal; a[4]: 3 if q, k and v are the same tensor, 2 if
 * only k and v are, 1 if only q and k are */
static void build_attention_same(net *n, const int *a)
{
    pair x = batched(n, "x", a[0], a[1], 0), y = a[4] == 3 ? x : batched(n, "y", a[0], a[1], 0);
    if (a[4] == 1)
        finish(n, attention(x, x, y, a[2], a[3]), 1);
    else
        finish(n, attention(x, y, y, a[2], a[3]), 1);
}
/* a[0], a[1]: number of queries and keys; a[2], a[3]: heads and key_heads; a[4]: columns of a head; a[5]: nonzero if
 * causal; a[6]: largest length, or 0 for no lengths; a[7]: 1 if k and v are the same tensor, 2 if both are the first
 * columns of q */
static void build_attention_with(net *n, const int *a)
{
    const int keys = (a[3] ? a[3] : a[2]) * a[4];
    pair lengths = a[6] ? indices(n, "lengths", 0, a[6] + 1, 0) : none;
    pair q = batched(n, "q", a[0], a[2] * a[4], 0);
    pair k = a[7] == 2 ? slice(q, 2, 0, keys) : batched(n, "k", a[1], keys, 0);
    pair v = a[7] ? k : batched(n, "v", a[1], keys, 0);
    finish(n, attention_with(q, k, v, a[2], a[3], a[5], lengths), 1);
}
/* a[0], a[1]: number of queries and keys; a[2], a[3]: heads and key_heads; a[4]: columns of a head; a[5]: window,
 * negated if lengths are given as well; a[6], a[7]: cap and scale in hundredths */
static void build_attention_more(net *n, const int *a)
{
    const int keys = (a[3] ? a[3] : a[2]) * a[4];
    const int more[3] = { a[5] < 0 ? -a[5] : a[5], a[6], a[7] };
    pair lengths = a[5] < 0 ? indices(n, "lengths", 0, a[1] + 1, 0) : none;
    pair q = batched(n, "q", a[0], a[2] * a[4], 0);
    pair k = batched(n, "k", a[1], keys, 0), v = batched(n, "v", a[1], keys, 0);
    finish(n, attention_more(q, k, v, a[2], a[3], lengths, more), 1);
}
/* The gated delta rule. a[0]: T; a[1], a[2]: heads and key_heads; a[3], a[4]: columns of a head of k and of v; a[5]:
 * scale in hundredths, or 0; a[6]: 1 if q, k and v are the same tensor, 2 if decay and beta are */
static void build_delta(net *n, const int *a)
{
    const int key_heads = a[2] ? a[2] : a[1];
    pair q = batched(n, "q", a[0], key_heads * a[3], 0);
    pair k = a[6] == 1 ? q : batched(n, "k", a[0], key_heads * a[3], 0);
    pair v = a[6] == 1 ? q : batched(n, "v", a[0], a[1] * a[4], 0);
    pair beta = batched(n, "beta", a[0], a[1], 0), decay = a[6] == 2 ? beta : batched(n, "decay", a[0], a[1], 0);
    const gckpt_attention_desc desc = { .heads = a[1], .key_heads = a[2], .causal = 1, .scale = (float)a[5] / 100,
                                        .decay = decay.t, .beta = beta.t };
    finish(n, probe(n, both(gckpt_attention(q.t, k.t, v.t, &desc),
                            ref_delta(q.r, k.r, v.r, decay.r, beta.r, a[1], key_heads, a[5] / 100.0))), 1);
}
/* a[0], a[1]: number of queries and keys; a[2], a[3]: heads and key_heads; a[4]: columns of a head; a[5]: the mask: 0
 * (T,S), 1 (heads,T,S), 2 (S), 3 (B,1,1,S), 4 (B,heads,T,S), 5 (heads,T,1), 6 (heads,1,1); a[6]: cap */
static void build_attention_masked(net *n, const int *a)
{
    const int keys = (a[3] ? a[3] : a[2]) * a[4], t = a[0], s = a[1], heads = a[2];
    pair q = batched(n, "q", t, heads * a[4], 0);
    pair k = batched(n, "k", s, keys, 0), v = batched(n, "v", s, keys, 0);
    pair mask = a[5] == 0   ? param(n, "m", 1, t, s, 0)
                : a[5] == 1 ? param(n, "m", 1, heads, t, s)
                : a[5] == 2 ? param(n, "m", 1, s, 0, 0)
                : a[5] == 3 ? batched(n, "m", 1, 1, s)
                : a[5] == 4 ? batched(n, "m", heads, t, s)
                : a[5] == 5 ? param(n, "m", 1, heads, t, 1)
                            : param(n, "m", 1, heads, 1, 1);
    finish(n, attention_masked(q, k, v, heads, a[3], mask, a[6]), 1);
}
static void build_attention_free(net *n, const int *a)
{
    pair k = param(n, "k", 1, 2, 5, 4);
    finish(n, attention(param(n, "q", 1, 2, 5, 4), k, k, 2, a[0]), 0);
}
/* a[0], a[1]: T and columns; a[2]: heads; a[3]: base; a[4]: first position */
static void build_rotary(net *n, const int *a)
{
    finish(n, rotary(batched(n, "x", a[0], a[1], 0), a[2], a[3], a[4]), 1);
}
/* a[0], a[1]: T and columns; a[2]: heads; a[3]: rotated columns; a[4]: first position; a[5]: scale in eighths, odd
 * for computed and even for given frequencies */
static void build_rotary_with(net *n, const int *a)
{
    static const float frequencies[4] = { 1.0f, 0.0f, 0.37f, 2.5e-3f };
    pair x = batched(n, "x", a[0], a[1], 0);
    const ref_rotation by = { a[2], 0, a[4], a[3], a[5] % 2 ? NULL : frequencies, a[5] / 8.0 };
    const gckpt_rotary_desc desc = { by.heads,       0, by.first, by.turned,
                                     by.frequencies, (float)by.scale };
    finish(n, both(gckpt_rotary(x.t, &desc), ref_rotary(x.r, &by)), 1);
}
static void build_rotary_free(net *n, const int *a)
{
    finish(n, rotary(param(n, "x", 1, 2, 3, 4), a[0], 0, 0), 0);
}
/* a[0]: T; a[1]: rows of the table of positions; a[2]: first position */
static void build_positions(net *n, const int *a)
{
    finish(n, positions(batched(n, "x", a[0], 4, 0), param(n, "wpe", 1, a[1], 4, 0), a[2]), 1);
}
static void build_reshape(net *n, const int *a)
{
    pair x = batched(n, "x", 4, 6, 0);
    if (a[0] == 0)
        x = reshape(x, -1, 24, 0, 0);
    else if (a[0] == 1)
        x = reshape(unary(KIND_tanh, reshape(x, -1, 6, 0, 0)), -1, 4, 6, 0); /* merges axes, then splits them */
    else
        x = reshape(x, -1, 2, 3, 4);
    finish(n, square(x), 1);
}
static void build_reshape_free(net *n, const int *a)
{
    pair w = param(n, "w", 1, 4, 6, 0);
    finish(n, mul(reshape(w, a[0], -1, 0, 0), reshape(w, a[0], -1, 0, 0)), 0);
}
static void build_permute(net *n, const int *a)
{
    pair x = batched(n, "x", 3, 4, 2);
    finish(n, permute(x, 4, a[0], a[1], a[2], a[3]), 1);
}
static void build_permute_batch(net *n, const int *a)
{
    pair x = batched(n, "x", a[0], 0, 0);
    pair y = permute(permute(x, 2, 1, 0, 0, 0), 2, 1, 0, 0, 0);
    finish(n, mul(x, y), 1);
}
static void build_permute_free(net *n, const int *a)
{
    pair w = param(n, "w", 1, 3, 4, 0);
    finish(n, matmul(w, permute(w, 2, a[0], a[1], 0, 0), 0), 0);
}
/* a[0]: axis; a[1], a[2]: begin and end of the slice */
static void build_slice(net *n, const int *a)
{
    pair x = batched(n, "x", 5, 4, 3);
    finish(n, slice(x, a[0], a[1], a[2]), 1);
}
static void build_slice_free(net *n, const int *a)
{
    pair w = param(n, "w", 1, 6, 4, 0);
    finish(n, mul(slice(w, a[0], 0, 2), slice(w, a[0], 1, 3)), 0);
}
static void build_concat(net *n, const int *a)
{
    pair x = batched(n, "x", 3, 4, 0), y = batched(n, "y", a[0] == 1 ? 2 : 3, a[0] == 1 ? 4 : 5, 0);
    finish(n, concat(x, y, x, a[0]), 1);
}
static void build_concat_free(net *n, const int *a)
{
    pair u = param(n, "u", 1, 2, 3, 0), v = param(n, "v", 1, 2, 3, 0);
    finish(n, concat(u, v, u, a[0]), 0);
}
/* a[0]: axis; a[1]: nonzero for the mean, 0 for the sum; a[2..4]: sizes of the axes after the batch axis */
static void build_reduce(net *n, const int *a)
{
    finish(n, reduce(batched(n, "x", a[2], a[3], a[4]), a[0], a[1]), 1);
}
static void build_reduce_free(net *n, const int *a)
{
    finish(n, reduce(param(n, "w", 1, 3, 4, 0), a[0], a[1]), 0);
}
static void build_reduce_batch(net *n, const int *a)
{
    pair x = batched(n, "x", 4, 0, 0);
    finish(n, binary('-', x, reduce(x, 0, a[0])), 1);
}
/* a[0]: axis; a[1], a[2]: elements added before and after; a[3]: their value in eighths; a[4]: the mode */
static void build_pad(net *n, const int *a)
{
    finish(n, probe(n, pad(probe(n, batched(n, "x", 3, 4, 2)), a[0], a[1], a[2], a[4], a[3] / 8.0)), 1);
}
static void build_pad_free(net *n, const int *a)
{
    pair w = param(n, "w", 1, 3, 2, 0);
    finish(n, mul(pad(w, a[0], 1, 2, 0, 0.5), pad(w, a[0], 3, 0, GCKPT_PAD_REPLICATE, 0)), 0);
}
static void build_pad_batch(net *n, const int *a)
{
    pair x = batched(n, "x", 4, 0, 0);
    finish(n, mul(x, slice(pad(x, 0, a[0], a[1], 0, 1), 0, 0, (int)n->c->batch)), 1);
}
/* a[0]: axis; a[1..3]: sizes of the axes after the batch axis; a[4]: nonzero if a second maximum, of x squared, reads
 * x as well */
static void build_max(net *n, const int *a)
{
    pair x = batched(n, "x", a[1], a[2], a[3]);
    pair y = probe(n, greatest(x, a[0]));
    finish(n, a[4] ? add(y, greatest(mul(x, x), a[0])) : y, 1);
}
/* a[0..3]: as of build_max; a[4]: k; a[5]: nonzero if the k largest of x squared are added */
static void build_top_k(net *n, const int *a)
{
    pair x = batched(n, "x", a[1], a[2], a[3]);
    pair y = probe(n, top_k(x, a[0], a[4]));
    finish(n, a[5] ? add(y, top_k(mul(x, x), a[0], a[4])) : y, 1);
}
static void build_max_free(net *n, const int *a)
{
    finish(n, greatest(param(n, "w", 1, 3, 4, 0), a[0]), 0);
}
static void build_max_batch(net *n, const int *a)
{
    pair x = batched(n, "x", 4, 0, 0);
    finish(n, binary('-', x, greatest(x, a[0])), 1);
}
/* a[0] says how indices from argmax, or, if a[0] is 6, from top_k, are used: 0 to select rows of a table, 1 to select rows of x, 2 as targets of
 * cross_entropy, 3 as targets of linear_cross_entropy, 4 and 5 to select rows of a table. With 4, argmax is along axis
 * 0 of a parameter; with 5, along the batch axis of x (rows,5); with 6, rows of x are selected. */
static void build_argmax(net *n, const int *a)
{
    pair x = batched(n, "x", a[0] < 4 ? 3 : 5, a[0] != 5 ? 5 : 0, 0);
    if (a[0] == 6)
        finish(n, gather(mul(x, x), top_k_indices(reduce(x, 2, 1), 1, 3)), 1);
    else if (a[0] == 0)
        finish(n, mul(embed(param(n, "w", 1, 6, 5, 0), argmax(x, 2)), x), 1);
    else if (a[0] == 1)
        finish(n, gather(mul(x, x), argmax(permute(x, 3, 0, 2, 1, 0), -1)), 1);
    else if (a[0] == 2)
        n->out = unary(KIND_tanh, x),
        term(n, cross_entropy(linear(n->out, param(n, "v", 1, 5, 6, 0), none, 0), argmax(x, -1)), 1, 0);
    else if (a[0] == 3)
        n->out = mul(x, x), term(n, linear_cross_entropy(x, param(n, "v", 1, 7, 5, 0), argmax(n->out, 2)), 1, 0);
    else if (a[0] == 4) {
        pair w = param(n, "w", 1, 3, 5, 0);
        finish(n, mul(x, embed(w, argmax(w, 0))), 1);
    } else
        finish(n, mul(x, embed(param(n, "w", 1, 6, 5, 0), argmax(x, 0))), 1);
}
/* a[0..2]: H, W, C; a[3], a[4]: new H and W; a[5]: `how` of ref_upsample; a[6]: nonzero to square x first */
static void build_upsample(net *n, const int *a)
{
    pair x = batched(n, "x", a[0], a[1], a[2]);
    finish(n, probe(n, upsample(a[6] ? mul(x, x) : x, a[3], a[4], a[5])), 1);
}
/* a[0]: T, or 0 for no such axis; a[1]: classes; a[2]: factor of the logits; a[3]: about one in a[3] targets is
 * ignored */
static void build_cross_entropy(net *n, const int *a)
{
    pair x = a[0] ? batched(n, "x", a[0], a[1], 0) : batched(n, "x", a[1], 0, 0);
    n->out = scale(x, a[2]);
    term(n, cross_entropy(n->out, indices(n, "targets", a[0], a[1], a[3])), 1, 0);
}
/* a[0], a[1]: T and columns; a[2]: classes; a[3]: factor of x; a[4]: about one in a[4] targets is ignored; a[5]:
 * nonzero for linear_cross_entropy, 0 for linear and cross_entropy; a[6]: cap of the logits in hundredths, or 0 for
 * none */
static void build_head(net *n, const int *a)
{
    pair x = scale(batched(n, "x", a[0], a[1], 0), a[3]), w = param(n, "w", 0.5, a[2], a[1], 0);
    pair targets = indices(n, "targets", a[0], a[2], a[4]);
    n->out = x;
    if (a[6])
        term(n, capped_head(x, w, targets, a[6] / 100.0), 1, 0);
    else if (a[5])
        term(n, linear_cross_entropy(x, w, targets), 1, 0);
    else
        term(n, cross_entropy(linear(x, w, none, 1), targets), 1, 0);
}
static void build_tied_head(net *n, const int *a)
{
    pair table = param(n, "table", 1, 13, 6, 0);
    pair x = unary(KIND_gelu, embed(table, indices(n, "tokens", 4, 13, 0)));
    n->out = x;
    term(n, linear_cross_entropy(x, table, indices(n, "targets", 4, 13, a[0])), 1, 0);
}
static void build_mean_squared_error(net *n, const int *a)
{
    n->out = scale(batched(n, "x", 3, 4, 0), 0.75);
    term(n, mean_squared_error(n->out, a[0] == 1 ? batched(n, "y", 3, 4, 0)
                                       : a[0] == 2 ? n->out : input(n, "y", 3, 4, 0)), 1, 0);
}
/* Returns loss weights for the first `axes` axes of (B,T,C), or no weights if axes is 0. */
static pair loss_weights(net *n, int axes, int t, int c)
{
    return axes ? batched(n, "w", axes > 1 ? t : 0, axes > 2 ? c : 0, 0) : none;
}
/* a[0]: T, or 0 for no such axis; a[1]: classes; a[2]: factor of the logits; a[3]: about one in a[3] targets is
 * ignored, or -1 for soft targets; a[4]: axes of the weights; a[5]: smoothing in percent */
static void build_cross_entropy_with(net *n, const int *a)
{
    int soft = a[3] < 0;
    int t = a[0] ? a[0] : a[1], v = a[0] ? a[1] : 0; /* the axes after the batch: (B,T,V), or (B,V) if a[0] is 0 */
    n->out = scale(batched(n, "x", t, v, 0), a[2]);
    pair targets = soft ? batched(n, "t", t, v, 0) : indices(n, "targets", a[0], a[1], a[3]);
    pair w = loss_weights(n, a[4], a[0], 0);
    term(n, cross_entropy_with(n->out, targets, w, soft, a[5] / 100.0), 1, 0);
}
/* a[0]: kind of the loss; a[1], a[2]: T and C; a[3]: axes of the weights; a[4]: 0 if the target is fed, 1 if the
 * target has a gradient, 2 if the target is the prediction itself */
static void build_error(net *n, const int *a)
{
    n->out = scale(batched(n, "x", a[1], a[2], 0), 2);
    pair y = a[4] == 1 ? batched(n, "y", a[1], a[2], 0)
           : a[4] == 2 ? n->out : input(n, "y", a[1], a[2], 0);
    term(n, error(a[0], n->out, y, loss_weights(n, a[3], a[1], a[2])), 1, 0);
}
/* a[0]: nonzero for a Huber loss, 0 for cross-entropy. The loss reads only parameters and is a regulariser. */
static void build_weighted_regulariser(net *n, const int *a)
{
    pair w = param(n, "w", 1, 3, 5, 0), u = param(n, "u", 1, 3, 0, 0);
    finish(n, linear(batched(n, "x", 4, 3, 0), w, none, 0), 1);
    term(n, a[0] ? error(HUBER, w, param(n, "v", 1, 3, 5, 0), u)
                 : cross_entropy_with(w, param(n, "v", 1, 3, 5, 0), u, 1, 0), 0.3, 1);
}
/* Builds three losses. If a[0] is nonzero, all of them count rows; if 0, some count rows and others elements. */
static void build_counts(net *n, const int *a)
{
    pair x = batched(n, "x", 3, 6, 0), targets = indices(n, "targets", 3, 6, 3);
    pair soft = input(n, "soft", 3, 6, 0), w = input(n, "weights", 3, 0, 0);
    n->out = x;
    if (a[0]) {
        pair one = reduce(x, 2, 1), few = slice(x, 2, 0, 4);
        term(n, cross_entropy_with(x, soft, w, 1, 0), 1, 0);
        term(n, error(BINARY_ENTROPY, one, reduce(soft, 2, 0), none), 0.5, 0);
        term(n, cross_entropy_with(few, slice(soft, 2, 2, 6), none, 1, 0), 0.5, 0);
        return;
    }
    term(n, cross_entropy_with(x, soft, w, 1, 0), 1, 0);
    term(n, cross_entropy_with(x, targets, w, 0, 0.2), 0.7, 0);
    term(n, error(HUBER, x, soft, none), 0.3, 0);
}
static void build_sum_loss(net *n, const int *a)
{
    n->out = scale(batched(n, "x", a[0], 4, 0), 0.75);
    term(n, sum_loss(n->out), 0.5, 0);
}
/* a[0]: nonzero to add a squared error, which has another count than the cross-entropy; a[1]: nonzero to add a
 * regulariser */
static void build_terms(net *n, const int *a)
{
    pair w = param(n, "w", 0.5, 6, 5, 0), b = param(n, "b", 1, 5, 0, 0);
    pair x = input(n, "x", 3, 6, 0), h = probe(n, unary(KIND_tanh, linear(x, w, b, 0)));
    pair head = param(n, "head", 0.5, 9, 5, 0);
    n->out = h;
    term(n, linear_cross_entropy(h, head, indices(n, "targets", 3, 9, 3)), 1, 0);
    if (a[0])
        term(n, mean_squared_error(linear(h, w, none, 1), x), 0.3, 0);
    if (a[1])
        term(n, sum_loss(mul(w, w)), 0.01, 1);
}
/* a[0]: about one in a[0] targets is ignored. Two losses read the same targets. */
static void build_deep_supervision(net *n, const int *a)
{
    pair head = param(n, "head", 0.5, 9, 5, 0), targets = indices(n, "targets", 3, 9, a[0]);
    pair h = unary(KIND_silu, batched(n, "x", 3, 5, 0));
    term(n, linear_cross_entropy(h, head, targets), 1, 0);
    n->out = add(h, linear(h, param(n, "w", 0.5, 5, 5, 0), none, 0));
    term(n, linear_cross_entropy(n->out, head, targets), 0.25, 0);
}
/* Builds a graph in which several ops read one tensor, and one op reads the tensor twice. */
static void build_fan_out(net *n, const int *a)
{
    pair x = batched(n, "x", 3, 5, 0), y = unary(KIND_tanh, x);
    (void)a;
    y = add(add(mul(x, x), y), mul(y, x));
    finish(n, add(binary('-', y, scale(x, 0.5)), add(x, x)), 1);
}
/* a[0]: time steps of a recurrent net, which share their weights; gckpt_keep applies to one value, gckpt_recompute to
 * another */
static void build_recurrent(net *n, const int *a)
{
    pair w = param(n, "w", 0.6, 6, 6, 0), u = param(n, "u", 0.6, 4, 6, 0);
    pair b = param(n, "b", 0.3, 6, 0, 0), h = none;
    for (int i = 0; i < a[0]; i++) {
        char name[8] = { 'x', (char)('0' + i), 0 };
        pair x = linear(input(n, name, 4, 0, 0), u, b, 0);
        h = unary(KIND_tanh, i ? add(x, linear(h, w, none, 0)) : x);
        if (i == 1)
            h.t = gckpt_keep(h.t);
        if (i == 2)
            h.t = gckpt_recompute(h.t);
    }
    finish(n, h, 1);
}
/* a[0]: 0 if every value must be recomputed (whose recompute then needs further recomputes), 1 if every second value
 * is kept, 2 if all values are kept */
static void build_policies(net *n, const int *a)
{
    pair x = batched(n, "x", 3, 5, 0), w = param(n, "w", 0.6, 5, 5, 0);
    for (int i = 0; i < 6; i++) {
        pair y = unary(i % 2 ? KIND_gelu : KIND_tanh, linear(x, w, none, 0));
        y = mul(y, i % 3 == 2 ? unary(KIND_sigmoid, x) : x);
        if (a[0] == 2 || (a[0] == 1 && i % 2))
            gckpt_keep(y.t);
        else
            gckpt_recompute(y.t);
        x = i == 3 ? add(x, y) : y;
    }
    finish(n, x, 1);
}
/* a[0]: nonzero if two linear layers read the computed weight, 0 if only one does. This weight is gain * v / rms(v)
 * with parameters v and gain, computed by ops without a batch axis. */
static void build_computed_weight(net *n, const int *a)
{
    pair v = param(n, "v", 1, 6, 5, 0), gain = param(n, "gain", 1, 5, 0, 0);
    pair w = mul(rmsnorm(v, none), gain), h = linear(batched(n, "x", 3, 6, 0), w, none, 0);
    h = linear(unary(KIND_gelu, h), a[0] ? w : v, none, 1);
    finish(n, h, 1);
}
/* Adds a transformer block. The builder's list: a[0], a[1]: T and columns; a[2]: heads; a[3]: vocabulary; a[4]:
 * layers; a[5]: nonzero if the head shares its weight with the embedding. */
static pair gpt_block(net *n, pair x, int layer, int c, int heads)
{
    static const char *const names[8] = { "g1.", "wq.", "wk.", "wv.", "wo.", "g2.", "up.", "dn." };
    pair w[8], a, q, k;
    for (int i = 0; i < 8; i++) {
        char name[8];
        strcpy(name, names[i]);
        name[3] = (char)('0' + layer);
        name[4] = 0;
        if (i == 0 || i == 5)
            w[i] = param(n, name, 1, c, 0, 0);
        else
            w[i] = param(n, name, 0.3, i == 7 ? 2 * c : c, i == 6 ? 2 * c : c, 0);
    }
    if (n->graph)
        gckpt_segment_begin(n->graph);
    a = layernorm(x, w[0], w[0]);
    q = rotary(linear(a, w[1], none, 0), heads, 0, 0);
    k = rotary(linear(a, w[2], none, 0), heads, 0, 0);
    a = attention(q, k, linear(a, w[3], none, 0), heads, 1);
    x = add(x, linear(a, w[4], none, 0));
    if (n->graph)
        gckpt_segment_begin(n->graph);
    a = linear(unary(KIND_gelu, linear(rmsnorm(x, w[5]), w[6], none, 0)), w[7], none, 0);
    if (n->graph)
        gckpt_segment_end(n->graph);
    x = add(x, a);
    if (n->graph)
        gckpt_segment_end(n->graph);
    return x;
}
static void build_gpt(net *n, const int *a)
{
    pair table = param(n, "wte", 0.5, a[3], a[1], 0);
    pair x = embed(table, indices(n, "tokens", a[0], a[3], 0));
    for (int i = 0; i < a[4]; i++)
        x = gpt_block(n, x, i, a[1], a[2]);
    n->out = probe(n, layernorm(x, none, none));
    term(n, linear_cross_entropy(n->out, a[5] ? table : param(n, "head", 0.5, a[3], a[1], 0),
                                 indices(n, "targets", a[0], a[3], 4)), 1, 0);
}
static void build_dropout(net *n, const int *a)
{
    pair x = dropout(batched(n, "x", 5, 4, 0), a[0] / 100.0);
    x = linear(x, param(n, "w", 0.4, 4, 6, 0), none, 0);
    finish(n, dropout(unary(KIND_gelu, x), a[0] / 100.0), 1);
}
static void build_user(net *n, const int *a)
{
    pair x = unit_norm(square(batched(n, "x", 3, 5, 0)));
    x = unit_norm(linear(x, param(n, "w", 0.5, 5, 5, 0), none, 0));
    n->out = x;
    if (a[0])
        term(n, fourth(x, input(n, "y", 3, 5, 0)), 1, 0);
    else
        finish(n, add(square(x), square(x)), 1);
}

/* == the table of cases ======================================================================== */
static const test_case cases[] = {
#define SMOOTH   0
#define KINKED   0
#define STEEP    0
#define POSITIVE 1
#define UNARY(name, reads, kind, ...) { #name, build_unary, { KIND_##name, 5, 7, 0, 0, kind }, 3, 0, 0, 0 },
    UNARY_TESTS(UNARY)
#undef UNARY
    { "gelu, wide", build_unary, { KIND_gelu, 3, 37, 4 }, 2, 0, 0, 0 },
    { "gelu_erf, wide", build_unary, { KIND_gelu_erf, 3, 37, 4 }, 2, 0, 0, 0 },
    { "silu, wide", build_unary, { KIND_silu, 3, 37, 60 }, 2, 0, 0, 0 },
    { "tanh, wide", build_unary, { KIND_tanh, 3, 37, 8 }, 2, 0, 0, 0 },
    { "sigmoid, wide", build_unary, { KIND_sigmoid, 3, 37, 60 }, 2, 0, 0, 0 },
    { "softmax", build_unary, { SOFTMAX, 5, 7 }, 3, 0, 0, 0 },
    { "softmax of 1", build_unary, { SOFTMAX, 5, 1 }, 3, 0, 0, 0 },
    { "softmax of 70", build_unary, { SOFTMAX, 2, 70, 3 }, 3, 0, 0, 0 },
    { "softmax of 8200", build_unary, { SOFTMAX, 1, 8200, 3 }, 2, 0, 16, 0 },
    { "gelu of 8200", build_unary, { KIND_gelu, 1, 8200 }, 2, 0, 0, 0 },
    { "softmax at 1e4", build_unary, { SOFTMAX, 2, 40, 10000 }, 2, 0, 0, 0 },
    { "gelu of a parameter", build_unary_free, { KIND_gelu, 3, 33 }, 3, 0, 0, 0 },
    { "softmax of a parameter", build_unary_free, { SOFTMAX, 4, 6 }, 3, 0, 0, 0 },
    { "log_softmax", build_unary, { LOG_SOFTMAX, 5, 7 }, 3, 0, 0, 0 },
    { "log_softmax of 1", build_unary, { LOG_SOFTMAX, 5, 1 }, 3, FLAT, 0, 0 },
    { "log_softmax of 70", build_unary, { LOG_SOFTMAX, 2, 70, 3 }, 3, 0, 0, 0 },
    { "log_softmax of 8200", build_unary, { LOG_SOFTMAX, 1, 8200, 3 }, 2, 0, 0, 0 },
    { "log_softmax at 1e4", build_unary, { LOG_SOFTMAX, 2, 40, 10000 }, 2, 0, 0, 0 },
    { "log_softmax of a parameter", build_unary_free, { LOG_SOFTMAX, 4, 6 }, 3, 0, 0, 0 },
    { "exp, wide", build_unary, { KIND_exp, 3, 37, 9 }, 2, 0, 32, 0 },
    { "log, wide", build_unary, { KIND_log, 3, 37, 20, 0, 1 }, 2, 0, 0, 0 },
    { "pow 2", build_unary, { POW, 5, 7, 0, 16 }, 3, 0, 0, 0 },
    { "pow 3", build_unary, { POW, 5, 7, 0, 24 }, 3, 0, 0, 0 },
    { "pow 4", build_unary, { POW, 5, 7, 0, 32 }, 3, 0, 0, 0 },
    { "pow 1", build_unary, { POW, 5, 7, 0, 8 }, 3, 0, 0, 0 },
    { "pow 2.5", build_unary, { POW, 5, 7, 0, 20, 1 }, 3, 0, 0, 0 },
    { "pow -1/2", build_unary, { POW, 5, 7, 0, -4, 1 }, 3, 0, 0, 0 },
    { "pow -1", build_unary, { POW, 5, 7, 0, -8, 1 }, 3, 0, 0, 0 },
    { "clamp", build_unary, { CLAMP, 5, 7, 0, 4 }, 3, 0, 0, 0 },
    { "leaky_relu", build_unary, { LEAKY_RELU, 5, 7, 0, 2 }, 3, 0, 0, 0 },
    { "elu", build_unary, { ELU, 5, 7, 0, 12 }, 3, 0, 0, 0 },
    { "leaky_relu, steeper below", build_unary, { LEAKY_RELU, 3, 37, 0, 12 }, 2, 0, 0, 0 },
    { "softplus, wide", build_unary, { KIND_softplus, 3, 37, 9 }, 2, 0, 0, 0 },
    { "sin, wide", build_unary, { KIND_sin, 3, 37, 2 }, 2, 0, 0, 0 },
    { "cos, wide", build_unary, { KIND_cos, 3, 37, 2 }, 2, 0, 0, 0 },
    { "softplus of a parameter", build_unary_free, { KIND_softplus, 3, 33 }, 3, 0, 0, 0 },
    { "exp of a parameter", build_unary_free, { KIND_exp, 3, 33 }, 3, 0, 0, 0 },
    { "abs of a parameter", build_unary_free, { KIND_abs, 3, 33 }, 3, 0, 0, 0 },
    { "scale", build_scale, { -20 }, 3, 0, 0, 0 },
    { "scale by 0", build_scale, { 0 }, 3, 0, 0, 0 },

    { "add", build_binary, { '+', 3, 4, 3, 4, 0 }, 3, 0, 0, 0 },
    { "sub", build_binary, { '-', 3, 4, 3, 4, 0 }, 3, 0, 0, 0 },
    { "mul", build_binary, { '*', 3, 4, 3, 4, 0 }, 3, 0, 0, 0 },
    { "add (C)", build_binary, { '+', 3, 35, 35, 0, 1 }, 3, 0, 0, 0 },
    { "sub (C)", build_binary, { '-', 3, 4, 4, 0, 1 }, 3, 0, 0, 0 },
    { "mul (C)", build_binary, { '*', 3, 4, 4, 0, 1 }, 3, 0, 0, 0 },
    { "mul (T,C)", build_binary, { '*', 3, 4, 3, 4, 1 }, 3, 0, 0, 0 },
    { "mul (T,1)", build_binary, { '*', 3, 4, 3, 1, 1 }, 3, 0, 0, 0 },
    { "sub (1)", build_binary, { '-', 3, 4, 1, 0, 1 }, 3, 0, 0, 0 },
    { "mul (1,1)", build_binary, { '*', 3, 4, 1, 1, 1 }, 3, 0, 0, 0 },
    { "sub from (C)", build_binary, { '-', 3, 4, 4, 0, 2 }, 3, 0, 0, 0 },
    { "mul from (T,1)", build_binary, { '*', 3, 4, 3, 1, 2 }, 3, 0, 0, 0 },
    { "add (B,T,1) + (T,C)", build_binary, { '+', 3, 1, 3, 4, 1 }, 3, 0, 0, 0 },
    { "mul (B,1,C) * (T,1)", build_binary, { '*', 1, 4, 3, 1, 1 }, 3, 0, 0, 0 },
    { "sub (T,1) - (B,1,C)", build_binary, { '-', 1, 4, 3, 1, 2 }, 3, 0, 0, 0 },
    { "mul (B,T,1) * (B,1,C)", build_binary, { '*', 3, 1, 1, 4, 0 }, 3, 0, 0, 0 },
    { "sub (B,T,C) - (B,1,1)", build_binary, { '-', 3, 4, 1, 1, 0 }, 3, 0, 0, 0 },
    { "mul by a constant", build_binary, { '*', 3, 4, 4, 0, 3 }, 3, 0, 0, 0 },
    { "add a constant", build_binary, { '+', 3, 4, 3, 4, 3 }, 3, 0, 0, 0 },
    { "div", build_ratio, { 3, 4, 3, 4 }, 3, 0, 0, 0 },
    { "div (T,1)", build_ratio, { 3, 4, 3, 1, 1 }, 3, 0, 0, 0 },
    { "div (C)", build_ratio, { 3, 35, 35, 0, 1 }, 3, 0, 0, 0 },
    { "div (B,T,1)", build_ratio, { 3, 4, 3, 1 }, 3, 0, 0, 0 },
    { "div of (B,T,1)", build_ratio, { 3, 1, 3, 4 }, 3, 0, 0, 0 },
    { "div of (B,1,C) by (T,1)", build_ratio, { 1, 4, 3, 1, 1 }, 3, 0, 0, 0 },
    { "prelu", build_binary, { 'p', 3, 4, 3, 4, 0 }, 3, 0, 0, 0 },
    { "prelu (C)", build_binary, { 'p', 3, 4, 4, 0, 1 }, 3, 0, 0, 0 },
    { "maximum", build_binary, { '>', 3, 4, 3, 4, 0 }, 3, 0, 0, 0 },
    { "maximum (C)", build_binary, { '>', 3, 4, 4, 0, 1 }, 3, 0, 0, 0 },
    { "maximum (B,T,1) (B,1,C)", build_binary, { '>', 3, 1, 1, 4, 0 }, 3, 0, 0, 0 },
    { "maximum with a constant", build_binary, { '>', 3, 4, 3, 4, 3 }, 3, 0, 0, 0 },
    { "minimum", build_binary, { '<', 3, 4, 3, 4, 0 }, 3, 0, 0, 0 },
    { "minimum (1)", build_binary, { '<', 3, 4, 1, 0, 2 }, 3, 0, 0, 0 },
    { "maximum(x, x)", build_same, { '>' }, 3, 0, 0, 0 },
    { "where", build_where, { 1, 3, 4, 0, 0 }, 3, 0, 0, 0 },
    { "where (B,T,1), of f32", build_where, { 0, 3, 1, 0, 0 }, 3, 0, 0, 0 },
    { "where, b (C)", build_where, { 0, 3, 4, 0, 3 }, 3, 0, 0, 0 },
    { "where, a (1)", build_where, { 1, 3, 4, 4, 0 }, 3, 0, 0, 0 },
    { "where (B,1,C), a (B,T,1), b (C)", build_where, { 0, 1, 4, 2, 3 }, 3, 0, 0, 0 },
    { "where (B,T,C), a (B,1,C), b (B,T,1)", build_where, { 1, 3, 4, 1, 2 }, 3, 0, 0, 0 },
    { "where (c, x, x)", build_where, { 1, 3, 4, 0, 5 }, 3, 0, 0, 0 },
    { "minimum(w, w)", build_same_free, { '<' }, 3, 0, 0, 0 },
    { "(3,1) max (1,4) of parameters", build_binary_free, { '>' }, 3, 0, 0, 0 },
    { "x + x", build_same, { '+' }, 3, 0, 0, 0 },
    { "x - x", build_same, { '-' }, 3, 0, 0, 0 },
    { "x * x", build_same, { '*' }, 3, 0, 0, 0 },
    { "w + w", build_same_free, { '+' }, 3, 0, 0, 0 },
    { "w * w", build_same_free, { '*' }, 3, 0, 0, 0 },
    { "(3,1) + (1,4) of parameters", build_binary_free, { '+' }, 3, 0, 0, 0 },
    { "(3,1) * (1,4) of parameters", build_binary_free, { '*' }, 3, 0, 0, 0 },

    { "gather", build_gather, { 4, 5, 7 }, 3, 0, 0, 0 },
    { "gather, wide", build_gather, { 2, 70, 1 }, 3, 0, 0, 0 },
    { "gru", build_layer, { 4, 3, 5, 1, 0, 0 }, 3, 0, 0, 0 },
    { "gru, first state", build_layer, { 3, 2, 9, 1, 1, 0 }, 3, 0, 0, 0 },
    { "gru, no biases, first state", build_layer, { 3, 3, 4, 0, 1, 0 }, 3, 0, 0, 0 },
    { "gru, one bias", build_layer, { 3, 3, 4, 2, 0, 0 }, 3, 0, 0, 0 },
    { "gru of one step", build_layer, { 1, 3, 1, 1, 0, 0 }, 3, 0, 0, 0 },
    { "lstm", build_layer, { 4, 3, 5, 1, 0, 1 }, 3, 0, 0, 0 },
    { "lstm, first state", build_layer, { 3, 2, 9, 1, 1, 1 }, 3, 0, 0, 0 },
    { "lstm, no bias, one first state", build_layer, { 3, 3, 4, 0, 2, 1 }, 3, 0, 0, 0 },
    { "lstm of one step", build_layer, { 1, 3, 1, 1, 0, 1 }, 3, 0, 0, 0 },
    { "gru, lengths", build_layer, { 4, 3, 5, 1, 1, 0, 1, 0 }, 4, 0, 0, 0 },
    { "gru, reset before", build_layer, { 4, 3, 5, 1, 1, 0, 0, 1 }, 3, 0, 0, 0 },
    { "gru, reset before, no biases", build_layer, { 3, 2, 9, 0, 0, 0, 0, 1 }, 3, 0, 0, 0 },
    { "gru, reset before, lengths", build_layer, { 5, 3, 4, 2, 1, 0, 1, 1 }, 4, 0, 0, 0 },
    { "lstm, lengths", build_layer, { 4, 3, 5, 1, 0, 1, 1, 0 }, 4, 0, 0, 0 },
    { "lstm, first state, lengths", build_layer, { 3, 2, 4, 0, 1, 1, 1, 0 }, 4, 0, 0, 0 },
    { "gru of parameters", build_layer_free, { 0 }, 3, 0, 0, 0 },
    { "gru of parameters, reset before", build_layer_free, { 0, 1 }, 3, 0, 0, 0 },
    { "lstm of parameters", build_layer_free, { 1 }, 3, 0, 0, 0 },
    { "linear", build_linear, { 3, 5, 7, 1, 0 }, 3, 0, 0, 0 },
    { "linear, no bias", build_linear, { 3, 5, 7, 0, 0 }, 3, 0, 0, 0 },
    { "linear of (B,I)", build_linear, { 0, 5, 7, 1, 0 }, 5, 0, 0, 0 },
    { "linear, tiles and edges", build_linear, { 11, 37, 67, 1, 0 }, 2, 0, 0, 0 },
    { "linear to 1", build_linear, { 3, 9, 1, 1, 0 }, 3, 0, 0, 0 },
    { "linear from 1", build_linear, { 3, 1, 9, 1, 0 }, 3, 0, 0, 0 },
    { "linear_transposed", build_linear, { 3, 5, 7, 1, 1 }, 3, 0, 0, 0 },
    { "linear_transposed, no bias", build_linear, { 3, 5, 7, 0, 1 }, 3, 0, 0, 0 },
    { "linear_transposed, tiles and edges", build_linear, { 11, 37, 67, 1, 1 }, 2, 0, 0, 0 },
    { "linear of parameters", build_linear_free, { 4, 5, 6, 0 }, 3, 0, 0, 0 },
    { "linear_transposed of parameters", build_linear_free, { 4, 5, 6, 1 }, 3, 0, 0, 0 },
    { "conv2d", build_convolution, { 5, 4, 3, 3, 0, 0 }, 3, 0, 0, 0 },
    { "conv2d of 1 x 1", build_convolution, { 1, 1, 1, 2, 0, 0 }, 3, 0, 0, 0 },
    { "conv2d, strides", build_convolution, { 6, 8, 3, 2, 0, 1 }, 3, 0, 0, 0 },
    { "conv2d, dilation", build_convolution, { 5, 7, 2, 3, 0, 2 }, 3, 0, 0, 0 },
    { "conv2d, groups", build_convolution, { 5, 4, 3, 2, 0, 3 }, 3, 0, 0, 0 },
    { "conv2d, depthwise", build_convolution, { 4, 5, 3, 3, 0, 4 }, 3, 0, 0, 0 },
    { "conv2d, depthwise to more", build_convolution, { 4, 5, 3, 3, 0, 5 }, 3, 0, 0, 0 },
    { "conv2d, w beyond x", build_convolution, { 1, 2, 3, 2, 0, 0 }, 3, 0, 0, 0 },
    { "conv2d of parameters", build_convolution, { 3, 3, 2, 2, 1, 1 }, 3, 0, 0, 0 },
    { "conv2d_transposed", build_convolution, { 3, 4, 3, 2, 0, 6 }, 3, 0, 0, 0 },
    { "conv2d_transposed, strides", build_convolution, { 3, 3, 3, 3, 0, 7 }, 3, 0, 0, 0 },
    { "conv2d_transposed, dilation, groups", build_convolution, { 3, 3, 3, 3, 0, 8 }, 2, 0, 0, 0 },
    { "conv2d_transposed, common factors", build_convolution, { 3, 2, 3, 4, 0, 9 }, 2, 0, 0, 0 },
    { "conv2d_transposed, w below the stride", build_convolution, { 3, 3, 2, 3, 0, 9 }, 2, 0, 0, 0 },
    { "conv2d_transposed, depthwise", build_convolution, { 3, 4, 3, 3, 0, 10 }, 3, 0, 0, 0 },
    { "conv2d_transposed of parameters", build_convolution, { 2, 2, 3, 3, 1, 7 }, 3, 0, 0, 0 },
    { "conv1d", build_convolution, { 1, 9, 1, 3, 0, 11 }, 3, 0, 0, 0 },
    { "conv1d_transposed", build_convolution, { 1, 4, 1, 3, 0, 12 }, 3, 0, 0, 0 },
    { "linear, tied", build_linear_tied, { 6 }, 3, 0, 0, 0 },
    { "matmul", build_matmul, { 3, 5, 4, 0, 0 }, 3, 0, 0, 0 },
    { "matmul, shared", build_matmul, { 3, 5, 4, 1, 0 }, 3, 0, 0, 0 },
    { "matmul, four axes", build_matmul, { 3, 5, 4, 2, 0 }, 3, 0, 0, 0 },
    { "matmul, tiles and edges", build_matmul, { 19, 35, 41, 0, 0 }, 2, 0, 0, 0 },
    { "matmul_transposed", build_matmul, { 3, 5, 4, 0, 1 }, 3, 0, 0, 0 },
    { "matmul_transposed, shared", build_matmul, { 3, 5, 4, 1, 1 }, 3, 0, 0, 0 },
    { "matmul_transposed, four axes", build_matmul, { 3, 5, 4, 2, 1 }, 3, 0, 0, 0 },
    { "matmul_transposed, tiles and edges", build_matmul, { 19, 35, 41, 0, 1 }, 2, 0, 0, 0 },
    { "matmul, left matrix for all rows", build_matmul, { 3, 5, 4, 3, 0 }, 3, 0, 0, 0 },
    { "matmul_transposed, left matrix for all rows", build_matmul, { 3, 5, 4, 3, 1 }, 3, 0, 0, 0 },
    { "matmul, both broadcast", build_matmul, { 3, 5, 4, 4, 0 }, 3, 0, 0, 0 },
    { "matmul_transposed, both broadcast", build_matmul, { 3, 5, 4, 4, 1 }, 2, 0, 0, 0 },
    { "matmul, right broadcast", build_matmul, { 3, 5, 4, 5, 0 }, 3, 0, 0, 0 },
    { "matmul_transposed, right broadcast", build_matmul, { 3, 5, 4, 5, 1 }, 3, 0, 0, 0 },
    { "matmul, a missing axis", build_matmul, { 3, 5, 4, 6, 0 }, 2, 0, 0, 0 },
    { "matmul, an axis of 1", build_matmul, { 3, 5, 4, 7, 1 }, 2, 0, 0, 0 },
    { "matmul, broadcast tiles and edges", build_matmul, { 19, 35, 41, 4, 0 }, 2, 0, 0, 0 },
    { "matmul, vector left", build_matmul, { 1, 5, 4, 8, 0 }, 3, 0, 0, 0 },
    { "matmul, vector right", build_matmul, { 3, 5, 1, 9, 0 }, 3, 0, 0, 0 },
    { "matmul(x, x)", build_matmul_same, { 4, 0 }, 3, 0, 0, 0 },
    { "matmul_transposed(x, x)", build_matmul_same, { 4, 1 }, 3, 0, 0, 0 },
    { "matmul of parameters", build_matmul_free, { 0 }, 3, 0, 0, 0 },
    { "matmul_transposed of parameters", build_matmul_free, { 1 }, 3, 0, 0, 0 },

    { "embed", build_embed, { 6, 5, 4 }, 3, 0, 0, 0 },
    { "embed of (B)", build_embed, { 0, 5, 4 }, 5, 0, 0, 0 },
    { "embed, tied, positions", build_embed_tied, { 7 }, 3, 0, 0, 0 },
    { "layernorm", build_norm, { 3, 6, 1, 1, 0 }, 3, 0, 0, 0 },
    { "layernorm, no gain", build_norm, { 3, 6, 0, 1, 0 }, 3, 0, 0, 0 },
    { "layernorm, no bias", build_norm, { 3, 6, 1, 0, 0 }, 3, 0, 0, 0 },
    { "layernorm, neither", build_norm, { 3, 6, 0, 0, 0 }, 3, 0, 0, 0 },
    { "layernorm of 1", build_norm, { 3, 1, 1, 1, 0 }, 3, FLAT, 0, 0 },
    { "layernorm of 100", build_norm, { 3, 100, 1, 1, 0 }, 3, 0, 0, 0 },
    { "layernorm of 8200", build_norm, { 1, 8200, 1, 1, 0 }, 2, 0, 0, 0 },
    { "max_pool", build_pool, { 5, 4, 3, 0, 0 }, 3, 0, 0, 0 },
    { "max_pool, apart", build_pool, { 5, 7, 2, 0, 1 }, 3, 0, 0, 0 },
    { "max_pool of signals", build_pool, { 0, 6, 3, 0, 2 }, 3, 0, 0, 0 },
    { "max_pool, dilated, ceil", build_pool, { 5, 6, 3, 0, 3 }, 3, 0, 0, 0 },
    { "average_pool, dilated, ceil", build_pool, { 5, 6, 3, 1, 3 }, 3, 0, 0, 0 },
    { "average_pool without padding", build_pool, { 5, 6, 2, 1, 4 }, 3, 0, 0, 0 },
    { "average_pool", build_pool, { 5, 4, 3, 1, 0 }, 3, 0, 0, 0 },
    { "average_pool, apart", build_pool, { 5, 7, 2, 1, 1 }, 3, 0, 0, 0 },
    { "average_pool of signals", build_pool, { 0, 6, 3, 1, 2 }, 3, 0, 0, 0 },
    { "groupnorm", build_channels, { 5, 6, 2, 1, 1 }, 3, 0, 0, 0 },
    { "groupnorm, no gain", build_channels, { 5, 6, 3, 0, 1 }, 3, 0, 0, 0 },
    { "groupnorm, no bias, one group", build_channels, { 4, 35, 1, 1, 0 }, 3, 0, 0, 0 },
    { "groupnorm, neither, each channel", build_channels, { 9, 3, 3, 0, 0 }, 3, 0, 0, 0 },
    { "groupnorm without places", build_channels, { 0, 12, 2, 1, 1 }, 3, 0, 0, 0 },
    { "batchnorm", build_channels, { 5, 6, 0, 1, 1 }, 3, MIXES | OTHER, 0, 0 },
    { "batchnorm, no gain", build_channels, { 4, 3, 0, 0, 1 }, 3, MIXES | OTHER, 0, 0 },
    { "batchnorm, neither, no places", build_channels, { 0, 5, 0, 0, 0 }, 8, MIXES | OTHER | FLAT, 0, 0 },
    { "layernorm, epsilon", build_norm_epsilon, { 6, 0 }, 3, 0, 0, 0 },
    { "rmsnorm, epsilon", build_norm_epsilon, { 6, 1 }, 3, 0, 0, 0 },
    { "rmsnorm of 100, epsilon", build_norm_epsilon, { 100, 1 }, 3, 0, 0, 0 },
    { "layernorm of parameters", build_norm_free, { 0 }, 3, 0, 0, 0 },
    { "rmsnorm", build_norm, { 3, 6, 1, 0, 1 }, 3, 0, 0, 0 },
    { "rmsnorm, no gain", build_norm, { 3, 6, 0, 0, 1 }, 3, 0, 0, 0 },
    { "rmsnorm of 100", build_norm, { 3, 100, 1, 0, 1 }, 3, 0, 0, 0 },
    { "rmsnorm of parameters", build_norm_free, { 1 }, 3, 0, 0, 0 },

    { "attention, causal", build_attention, { 5, 5, 6, 2, 1 }, 3, 0, 0, 0 },
    { "attention, full", build_attention, { 5, 5, 6, 3, 0 }, 3, 0, 0, 0 },
    { "attention, cross S > T", build_attention, { 3, 7, 6, 2, 0 }, 3, 0, 0, 0 },
    { "attention, cross S < T", build_attention, { 7, 3, 6, 2, 0 }, 3, 0, 0, 0 },
    { "attention, heads of 1", build_attention, { 5, 5, 3, 3, 1 }, 2, 0, 0, 0 },
    { "attention, T = 1", build_attention, { 1, 1, 4, 2, 1 }, 2, FLAT, 0, 0 },
    { "attention, causal, T = 64", build_attention, { 64, 64, 4, 1, 1 }, 2, 0, 0, 0 },
    { "attention, causal, T = 70", build_attention, { 70, 70, 8, 2, 1 }, 2, 0, 0, 0 },
    { "attention, full, S = 130", build_attention, { 9, 130, 8, 2, 0 }, 2, 0, 0, 0 },
    { "attention, causal, S > T", build_attention, { 3, 7, 6, 2, 1 }, 3, 0, 0, 0 },
    { "attention, causal, T = 1", build_attention, { 1, 70, 6, 2, 1 }, 3, 0, 0, 0 },
    { "attention, causal, S = T + 63", build_attention, { 5, 68, 8, 1, 1 }, 2, 0, 24, 0 },
    { "attention, causal, S = T + 65", build_attention, { 66, 131, 8, 2, 1 }, 2, 0, 0, 0 },
    { "attention, head of 40", build_attention, { 6, 6, 40, 1, 1 }, 2, 0, 0, 0 },
    { "attention, sharp", build_attention, { 70, 70, 4, 1, 1, 30 }, 2, 0, 40, 80 },
    { "delta", build_delta, { 5, 2, 0, 3, 4 }, 3, 0, 0, 0 },
    { "delta, shared keys, scale", build_delta, { 7, 4, 2, 4, 3, 60 }, 2, 0, 0, 0 },
    { "delta of one step", build_delta, { 1, 1, 0, 5, 1 }, 3, 0, 0, 0 },
    { "delta, heads of 37 and 70", build_delta, { 4, 1, 0, 37, 70, 10 }, 2, 0, 0, 0 },
    { "delta, keys of 1", build_delta, { 3, 2, 1, 1, 2 }, 2, 0, 0, 0 },
    { "delta(x, x, x)", build_delta, { 5, 2, 0, 3, 3, 0, 1 }, 3, 0, 0, 0 },
    { "delta, beta as decay", build_delta, { 10, 2, 1, 3, 2, 0, 2 }, 3, 0, 0, 0 },
    { "attention(x, x, x)", build_attention_same, { 5, 6, 2, 1, 3 }, 3, 0, 0, 0 },
    { "attention(x, x, x), full, T = 70", build_attention_same, { 70, 4, 1, 0, 3 }, 2, 0, 0, 0 },
    { "attention(x, y, y)", build_attention_same, { 5, 6, 2, 0, 2 }, 3, 0, 0, 0 },
    { "attention(x, x, y)", build_attention_same, { 5, 6, 2, 1, 1 }, 3, 0, 0, 0 },
    { "attention of parameters", build_attention_free, { 1 }, 3, 0, 0, 0 },
    { "attention, mask (T,S)", build_attention_masked, { 5, 4, 4, 2, 3, 0, 0 }, 3, 0, 0, 0 },
    { "attention, mask (heads,T,S), cap", build_attention_masked, { 4, 5, 2, 2, 3, 1, 2 }, 3, 0, 0, 0 },
    { "attention, mask (S)", build_attention_masked, { 3, 5, 2, 1, 4, 2, 0 }, 3, 0, 0, 0 },
    { "attention, mask (B,1,1,S)", build_attention_masked, { 5, 6, 2, 2, 3, 3, 0 }, 3, 0, 0, 0 },
    { "attention, mask (B,heads,T,S)", build_attention_masked, { 4, 5, 2, 1, 3, 4, 1 }, 2, 0, 0, 0 },
    { "attention, mask (heads,T,1)", build_attention_masked, { 4, 5, 2, 2, 3, 5, 0 }, 2, FLAT, 0, 0 },
    { "attention, mask (heads,1,1)", build_attention_masked, { 4, 5, 2, 2, 3, 6, 0 }, 2, FLAT, 0, 0 },
    { "attention, mask, T = 70, S = 130", build_attention_masked, { 70, 130, 2, 1, 4, 0, 0 }, 2, 0, 24, 0 },
    { "attention, shared keys", build_attention_with, { 5, 5, 4, 2, 3, 1 }, 3, 0, 0, 0 },
    { "attention, shared by all", build_attention_with, { 3, 7, 3, 1, 2, 0 }, 3, 0, 0, 0 },
    { "attention, shared, T = 70", build_attention_with, { 70, 70, 4, 2, 2, 1 }, 2, 0, 0, 0 },
    { "attention, shared, S = 130", build_attention_with, { 9, 130, 2, 1, 4, 0 }, 2, 0, 0, 0 },
    { "attention, shared, T = 1", build_attention_with, { 1, 70, 6, 2, 2, 1 }, 3, 0, 0, 0 },
    { "attention, lengths", build_attention_with, { 3, 5, 2, 0, 3, 0, 5 }, 4, 0, 0, 0 },
    { "attention, lengths, causal", build_attention_with, { 5, 5, 2, 0, 3, 1, 5 }, 4, 0, 0, 0 },
    { "attention, lengths, S = 130", build_attention_with, { 66, 130, 1, 1, 4, 1, 130 }, 3, 0, 0, 0 },
    { "attention, lengths to 1", build_attention_with, { 4, 4, 2, 1, 3, 0, 1 }, 4, FLAT, 0, 0 },
    { "attention, lengths, shared", build_attention_with, { 5, 9, 4, 2, 2, 0, 9 }, 4, 0, 0, 0 },
    { "attention, lengths, shared, T = 70", build_attention_with, { 70, 70, 3, 1, 3, 1, 70 }, 3, 0, 0, 0 },
    { "attention, window", build_attention_more, { 5, 5, 2, 0, 3, 2, 0, 0 }, 3, 0, 0, 0 },
    { "attention, window of 1", build_attention_more, { 4, 7, 2, 1, 3, 1, 0, 0 }, 3, FLAT, 0, 0 },
    { "attention, window of S", build_attention_more, { 5, 7, 2, 0, 3, 7, 0, 0 }, 3, 0, 0, 0 },
    { "attention, window of S - 1", build_attention_more, { 5, 7, 4, 2, 2, 6, 0, 0 }, 3, 0, 0, 0 },
    { "attention, window, T = 1", build_attention_more, { 1, 130, 4, 2, 2, 65, 0, 0 }, 3, 0, 16, 0 },
    { "attention, window of 63", build_attention_more, { 5, 131, 2, 0, 2, 63, 0, 0 }, 2, 0, 16, 0 },
    { "attention, window of 64", build_attention_more, { 66, 130, 2, 1, 2, 64, 0, 0 }, 2, 0, 16, 0 },
    { "attention, window of 65", build_attention_more, { 6, 129, 1, 0, 3, 65, 0, 0 }, 2, 0, 16, 0 },
    { "attention, window of 127", build_attention_more, { 5, 200, 2, 0, 2, 127, 0, 0 }, 2, 0, 24, 0 },
    { "attention, window, lengths", build_attention_more, { 66, 130, 2, 1, 2, -9, 0, 0 }, 3, 0, 0, 0 },
    { "attention, cap", build_attention_more, { 5, 7, 2, 0, 3, 0, 50, 0 }, 3, 0, 0, 0 },
    { "attention, small cap", build_attention_more, { 5, 5, 2, 0, 3, 0, 1, 0 }, 3, 0, 0, 160 },
    { "attention, great cap", build_attention_more, { 5, 5, 2, 0, 3, 0, 1000000, 0 }, 3, 0, 40, 80 },
    { "attention, scale", build_attention_more, { 5, 5, 4, 2, 3, 0, 0, 150 }, 3, 0, 0, 0 },
    { "attention, window, cap, scale", build_attention_more, { 66, 90, 4, 2, 2, 20, 150, 125 }, 2, 0, 0, 0 },
    { "attention, cap, scale, lengths", build_attention_more, { 12, 12, 2, 0, 3, -5, 80, 250 }, 4, 0, 0, 0 },
    { "attention, shared k = v", build_attention_with, { 5, 5, 4, 2, 3, 1, 5, 1 }, 3, 0, 0, 0 },
    { "attention, shared q = k = v", build_attention_with, { 5, 5, 4, 2, 3, 1, 5, 2 }, 3, 0, 0, 0 },
    { "rotary", build_rotary, { 5, 8, 2, 0 }, 3, 0, 0, 0 },
    { "rotary, base 500", build_rotary, { 40, 12, 2, 500 }, 2, 0, 0, 0 },
    { "rotary from position 9", build_rotary, { 5, 8, 2, 50, 9 }, 3, 0, 0, 0 },
    { "rotary, half of a head", build_rotary_with, { 5, 16, 2, 4, 0, 9 }, 3, 0, 0, 0 },
    { "rotary, odd head", build_rotary_with, { 3, 10, 2, 2, 7, 7 }, 3, 0, 0, 0 },
    { "rotary, frequencies", build_rotary_with, { 9, 16, 2, 0, 0, 0 }, 3, 0, 0, 0 },
    { "rotary, some frequencies, scaled", build_rotary_with, { 9, 18, 2, 6, 3, 10 }, 3, 0, 0, 0 },
    { "rotary, scaled", build_rotary_with, { 5, 8, 2, 0, 0, 11 }, 3, 0, 0, 0 },
    { "rotary of a parameter", build_rotary_free, { 2 }, 3, 0, 0, 0 },
    { "positions", build_positions, { 3, 3 }, 3, 0, 0, 0 },
    { "positions, longer table", build_positions, { 3, 5 }, 3, 0, 0, 0 },
    { "positions from 2 on", build_positions, { 3, 6, 2 }, 3, 0, 0, 0 },
    { "positions, the last", build_positions, { 3, 5, 2 }, 3, 0, 0, 0 },

    { "reshape", build_reshape, { 0 }, 3, 0, 0, 0 },
    { "reshape, batch merged", build_reshape, { 1 }, 3, 0, 0, 0 },
    { "reshape to four axes", build_reshape, { 2 }, 3, 0, 0, 0 },
    { "reshape of a parameter", build_reshape_free, { 3 }, 3, 0, 0, 0 },
    { "permute 0213", build_permute, { 0, 2, 1, 3 }, 3, 0, 0, 0 },
    { "permute 0231", build_permute, { 0, 2, 3, 1 }, 3, 0, 0, 0 },
    { "permute 0123", build_permute, { 0, 1, 2, 3 }, 3, 0, 0, 0 },
    { "permute of the batch axis", build_permute_batch, { 4 }, 4, MIXES, 0, 0 },
    { "permute of a parameter", build_permute_free, { 1, 0 }, 3, 0, 0, 0 },
    { "slice axis 1", build_slice, { 1, 1, 4 }, 3, 0, 0, 0 },
    { "slice axis 2", build_slice, { 2, 0, 1 }, 3, 0, 0, 0 },
    { "slice last axis", build_slice, { -1, 1, 3 }, 3, 0, 0, 0 },
    { "slice of a parameter", build_slice_free, { 0 }, 3, 0, 0, 0 },
    { "concat axis 1", build_concat, { 1 }, 3, 0, 0, 0 },
    { "concat axis 2", build_concat, { 2 }, 3, 0, 0, 0 },
    { "concat last axis", build_concat, { -1 }, 3, 0, 0, 0 },
    { "concat of parameters", build_concat_free, { 0 }, 3, 0, 0, 0 },
    { "sum axis 1 of 4", build_reduce, { 1, 0, 3, 4, 2 }, 3, 0, 0, 0 },
    { "mean axis 2 of 4", build_reduce, { 2, 1, 3, 4, 2 }, 3, 0, 0, 0 },
    { "sum axis 1", build_reduce, { 1, 0, 3, 4 }, 3, 0, 0, 0 },
    { "sum last axis", build_reduce, { -1, 0, 3, 40 }, 3, 0, 0, 0 },
    { "mean axis 1", build_reduce, { 1, 1, 3, 4 }, 3, 0, 0, 0 },
    { "mean last axis", build_reduce, { 2, 1, 3, 40 }, 3, 0, 0, 0 },
    { "sum axis 0 of a parameter", build_reduce_free, { 0, 0 }, 3, 0, 0, 0 },
    { "mean axis 1 of a parameter", build_reduce_free, { 1, 1 }, 3, 0, 0, 0 },
    { "mean over the batch", build_reduce_batch, { 1 }, 4, MIXES, 0, 0 },
    { "pad axis 1", build_pad, { 1, 1, 2, 4 }, 3, 0, 0, 0 },
    { "pad axis 2, before", build_pad, { -2, 3, 0, -8 }, 3, 0, 0, 0 },
    { "pad last axis", build_pad, { -1, 0, 5, 0 }, 3, 0, 0, 0 },
    { "pad, reflect", build_pad, { 2, 3, 2, 0, GCKPT_PAD_REFLECT }, 3, 0, 0, 0 },
    { "pad, replicate", build_pad, { -3, 4, 1, 0, GCKPT_PAD_REPLICATE }, 3, 0, 0, 0 },
    { "pad by nothing", build_pad, { 3, 0, 0, 0 }, 3, 0, 0, 0 },
    { "pad of a parameter", build_pad_free, { 0 }, 3, 0, 0, 0 },
    { "pad, last axis of a parameter", build_pad_free, { -1 }, 3, 0, 0, 0 },
    { "pad of the batch axis", build_pad_batch, { 1, 2 }, 4, MIXES, 0, 0 },
    { "max axis 1", build_max, { 1, 5, 3, 0, 0 }, 3, 0, 0, 0 },
    { "max axis 2 of 4", build_max, { 2, 3, 4, 17, 0 }, 3, 0, 0, 0 },
    { "max last axis, twice", build_max, { -1, 3, 40, 0, 1 }, 3, 0, 0, 0 },
    { "max of 1", build_max, { 1, 1, 4, 0, 1 }, 3, 0, 0, 0 },
    { "top_k of 3 axis 1", build_top_k, { 1, 5, 3, 0, 3, 0 }, 3, 0, 0, 0 },
    { "top_k of 4 axis 2 of 4", build_top_k, { 2, 3, 4, 5, 4, 0 }, 3, 0, 0, 0 },
    { "top_k of 5 last axis, twice", build_top_k, { -1, 3, 40, 0, 5, 1 }, 3, 0, 0, 0 },
    { "max axis 0 of a parameter", build_max_free, { 0 }, 3, 0, 0, 0 },
    { "max axis 1 of a parameter", build_max_free, { 1 }, 3, 0, 0, 0 },
    { "max over the batch", build_max_batch, { 0 }, 4, MIXES, 0, 0 },
    { "argmax, embedded", build_argmax, { 0 }, 3, 0, 0, 0 },
    { "argmax, gathered", build_argmax, { 1 }, 3, 0, 0, 0 },
    { "argmax as targets", build_argmax, { 2 }, 3, 0, 0, 0 },
    { "argmax as targets, in chunks", build_argmax, { 3 }, 3, 0, 0, 0 },
    { "argmax of a parameter", build_argmax, { 4 }, 3, 0, 0, 0 },
    { "top_k, gathered", build_argmax, { 6 }, 3, 0, 0, 0 },
    { "argmax over the batch", build_argmax, { 5 }, 5, MIXES, 0, 0 },
    { "upsample, nearest", build_upsample, { 3, 2, 3, 5, 4, 0, 0 }, 3, 0, 0, 0 },
    { "upsample, nearest, smaller", build_upsample, { 5, 7, 2, 3, 3, 0, 1 }, 3, 0, 0, 0 },
    { "upsample, bilinear", build_upsample, { 3, 4, 3, 7, 8, 1, 0 }, 3, 0, 0, 0 },
    { "upsample, bilinear, smaller", build_upsample, { 7, 6, 2, 3, 4, 1, 1 }, 3, 0, 0, 0 },
    { "upsample, aligned", build_upsample, { 3, 4, 17, 6, 9, 2, 0 }, 3, 0, 0, 0 },
    { "upsample, aligned, to 1 row", build_upsample, { 3, 4, 1, 1, 3, 2, 1 }, 3, 0, 0, 0 },
    { "upsample from 1 pixel", build_upsample, { 1, 1, 2, 3, 2, 1, 0 }, 3, 0, 0, 0 },

    { "cross_entropy", build_cross_entropy, { 3, 11, 1, 0 }, 3, 0, 0, 0 },
    { "cross_entropy of (B,V)", build_cross_entropy, { 0, 5, 1, 0 }, 4, 0, 0, 0 },
    { "cross_entropy, ignored", build_cross_entropy, { 5, 11, 1, 2 }, 4, 0, 0, 0 },
    { "cross_entropy, V = 1024", build_cross_entropy, { 2, 1024, 2, 0 }, 2, 0, 0, 0 },
    { "cross_entropy, V = 1025", build_cross_entropy, { 2, 1025, 2, 3 }, 2, 0, 0, 0 },
    { "cross_entropy, V = 2100", build_cross_entropy, { 1, 2100, 2, 0 }, 3, 0, 0, 0 },
    { "cross_entropy at 1e4", build_cross_entropy, { 3, 11, 10000, 0 }, 3, 0, 0, 0 },
    { "cross_entropy of 1 class", build_cross_entropy, { 3, 1, 1, 0 }, 2, 0, 0, 0 },
    { "linear_cross_entropy", build_head, { 3, 5, 11, 1, 0, 1 }, 3, 0, 0, 0 },
    { "linear_cross_entropy, ignored", build_head, { 5, 5, 11, 1, 2, 1 }, 4, 0, 0, 0 },
    { "linear_cross_entropy, V = 1100", build_head, { 3, 6, 1100, 1, 3, 1 }, 2, 0, 0, 0 },
    { "linear_cross_entropy, V = 2050", build_head, { 9, 3, 2050, 2, 0, 1 }, 2, 0, 0, 0 },
    { "linear_cross_entropy at 1e4", build_head, { 3, 5, 11, 10000, 0, 1 }, 3, 0, 0, 0 },
    { "linear_cross_entropy, cap", build_head, { 5, 5, 11, 1, 2, 1, 150 }, 4, 0, 0, 0 },
    { "linear_cross_entropy, small cap", build_head, { 3, 5, 11, 2, 0, 1, 2 }, 3, 0, 0, 160 },
    { "linear_cross_entropy, great cap", build_head, { 3, 5, 11, 1, 3, 1, 1000000 }, 3, 0, 40, 80 },
    { "linear_cross_entropy, cap, V = 2050", build_head, { 9, 3, 2050, 2, 0, 1, 300 }, 2, 0, 0, 0 },
    { "linear_cross_entropy, cap, V = 1100", build_head, { 3, 6, 1100, 1, 3, 1, 50 }, 2, 0, 0, 0 },
    { "linear_cross_entropy, tied", build_tied_head, { 3 }, 3, 0, 0, 0 },
    { "mean_squared_error", build_mean_squared_error, { 0 }, 3, 0, 0, 0 },
    { "mean_squared_error, both sides", build_mean_squared_error, { 1 }, 3, 0, 0, 0 },
    { "mean_squared_error(x, x)", build_mean_squared_error, { 2 }, 3, 0, 0, 0 },
    { "sum_loss, weighted", build_sum_loss, { 3 }, 3, 0, 0, 0 },
    { "cross_entropy_with (B)", build_cross_entropy_with, { 0, 5, 1, 0, 1, 0 }, 4, 0, 0, 0 },
    { "cross_entropy_with (B) of (B,T)", build_cross_entropy_with, { 35, 5, 1, 3, 1, 0 }, 3, 0, 0, 0 },
    { "cross_entropy_with (B,T)", build_cross_entropy_with, { 5, 11, 2, 3, 2, 0 }, 4, 0, 0, 0 },
    { "cross_entropy, smoothed", build_cross_entropy_with, { 5, 11, 1, 3, 0, 10 }, 4, 0, 0, 0 },
    { "cross_entropy, smoothed by 1", build_cross_entropy_with, { 2, 7, 2, 0, 0, 100 }, 3, 0, 0, 0 },
    { "cross_entropy, smoothed, weights", build_cross_entropy_with, { 3, 1030, 1, 3, 2, 25 }, 2, 0, 0, 0 },
    { "soft_cross_entropy", build_cross_entropy_with, { 0, 7, 2, -1, 0, 0 }, 4, 0, 0, 0 },
    { "soft_cross_entropy (B) of (B,T)", build_cross_entropy_with, { 35, 5, 1, -1, 1, 0 }, 3, 0, 0, 0 },
    { "soft_cross_entropy (B,T)", build_cross_entropy_with, { 3, 1030, 1, -1, 2, 0 }, 2, 0, 0, 0 },
    { "mean_squared_error (B)", build_error, { SQUARED, 3, 14, 1, 1 }, 3, 0, 0, 0 },
    { "mean_squared_error (B,T)", build_error, { SQUARED, 5, 3, 2, 0 }, 3, 0, 0, 0 },
    { "mean_squared_error (B,T,C)", build_error, { SQUARED, 5, 8, 3, 1 }, 3, 0, 0, 0 },
    { "huber", build_error, { HUBER, 5, 8, 0, 0 }, 3, 0, 0, 0 },
    { "huber (B,T), both sides", build_error, { HUBER, 5, 7, 2, 1 }, 3, 0, 0, 0 },
    { "huber(x, x)", build_error, { HUBER, 5, 7, 1, 2 }, 3, FLAT, 0, 0 },
    { "binary_cross_entropy", build_error, { BINARY_ENTROPY, 5, 8, 0, 0 }, 3, 0, 0, 0 },
    { "binary_cross_entropy of (B)", build_error, { BINARY_ENTROPY, 0, 0, 1, 1 }, 3, 0, 0, 0 },
    { "binary_cross_entropy (B,T), both sides", build_error, { BINARY_ENTROPY, 5, 7, 2, 1 }, 3, 0, 0, 0 },
    { "binary_cross_entropy(x, x)", build_error, { BINARY_ENTROPY, 5, 7, 3, 2 }, 3, 0, 0, 0 },
    { "huber of parameters", build_weighted_regulariser, { 1 }, 3, 0, 0, 0 },
    { "soft_cross_entropy of parameters", build_weighted_regulariser, { 0 }, 3, 0, 0, 0 },
    { "losses that count rows", build_counts, { 1 }, 5, NO_STREAM, 0, 0 },
    { "losses that count apart", build_counts, { 0 }, 5, NO_STREAM, 0, 0 },

    { "two losses", build_terms, { 1, 0 }, 5, NO_STREAM, 0, 0 },
    { "loss and regulariser", build_terms, { 0, 1 }, 5, 0, 0, 0 },
    { "two losses and regulariser", build_terms, { 1, 1 }, 5, NO_STREAM, 0, 0 },
    { "two losses, shared targets", build_deep_supervision, { 3 }, 5, NO_STREAM, 0, 0 },
    { "fan-out", build_fan_out, { 0 }, 3, 0, 0, 0 },
    { "recurrent", build_recurrent, { 5 }, 4, 0, 0, 0 },
    { "pins, all let go", build_policies, { 0 }, 3, 0, 0, 0 },
    { "pins, mixed", build_policies, { 1 }, 3, 0, 0, 0 },
    { "pins, all kept", build_policies, { 2 }, 3, 0, 0, 0 },
    { "computed weight", build_computed_weight, { 0 }, 3, 0, 0, 0 },
    { "computed weight, tied", build_computed_weight, { 1 }, 3, 0, 0, 0 },
    { "GPT", build_gpt, { 6, 8, 2, 11, 2, 1 }, 4, 0, 40, 160 },
    { "GPT, T = 70", build_gpt, { 70, 4, 1, 5, 1, 0 }, 2, 0, 0, 0 },
    { "dropout", build_dropout, { 30 }, 4, NO_REF, 0, 0 },
    { "dropout of nothing", build_dropout, { 0 }, 4, 0, 0, 0 },
    { "user op", build_user, { 0 }, 4, 0, 0, 0 },
    { "user loss", build_user, { 1 }, 4, 0, 0, 0 }
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* == running a case ============================================================================ */
static void net_build(net *n, gckpt_graph *graph, int64_t rows)
{
    n->graph = graph;
    n->rows = rows;
    n->n_probes = n->n_terms = n->n_bearers = 0;
    n->out = none;
    if (graph)
        gckpt_segment_begin(graph);
    n->c->build(n, n->c->a);
    if (graph)
        gckpt_segment_end(graph);
}

static void net_start(net *n, const test_case *c, unsigned fixed)
{
    memset(n, 0, sizeof *n);
    n->c = c;
    n->fixed = fixed;
    n->bump_leaf = n->bump_probe = -1;
}

static void net_free(net *n)
{
    for (int i = 0; i < n->n_leaves; i++) {
        free(n->leaves[i].values);
        free(n->leaves[i].index);
    }
    ref_reset();
}

/* Copies the case's values into the store's parameters. */
static void set_parameters(const net *n, gckpt_store *store)
{
    for (int i = 0; i < n->n_leaves; i++) {
        gckpt_parameter p;
        if (n->leaves[i].kind == 'p' &&
            gckpt_store_get(store, gckpt_store_find(store, n->leaves[i].name), &p) == GCKPT_OK)
            memcpy(p.values, n->leaves[i].values, (size_t)p.elements * sizeof(float));
    }
}

/* Fills feeds[] with the inputs' data from batch row `row` on; returns the number of feeds. */
static int make_feeds(const void *user, int64_t row, gckpt_feed *feeds)
{
    const net *n = (const net *)user;
    int k = 0;
    for (int i = 0; i < n->n_leaves; i++) {
        const leaf *l = &n->leaves[i];
        int64_t at = row * (l->elements / n->c->batch);
        if (l->kind != 'x' && l->kind != 'i')
            continue;
        feeds[k++] = (gckpt_feed){ l->id, l->values + at };
        if (l->kind == 'i')
            feeds[k - 1].data = l->index + at;
    }
    return k;
}

/* Fills fetches[] with the gradients of all parameters; returns the number of fetches. */
static int fetch_parameters(const net *n, gckpt_fetch_spec *fetches)
{
    int k = 0;
    for (int i = 0; i < n->n_leaves; i++)
        if (n->leaves[i].kind == 'p') {
            fetches[k++] = (gckpt_fetch_spec){ n->leaves[i].t, 1 };
        }
    return k;
}

/* == (a) values and (b) gradients compared with the reference ================================== */
static int verbose, only_bits;
static int recomputing;                         /* number of plans that recompute anything */
static double worst_value, worst_gradient;      /* largest errors of the current case, in 2^-24 of the largest value */

/* Returns the total loss of the reference; *count receives the count of the first loss. */
static double ref_loss(net *n, double *count)
{
    double total = 0;
    ref_reset();
    net_build(n, NULL, n->c->batch);
    for (int i = 0; i < n->n_terms; i++) {
        double w = (double)n->terms[i].weight, sum = n->sums[i]->v[0], of = n->sums[i]->v[1];
        total += n->terms[i].regulariser ? w * sum : of > 0 ? w * sum / of : 0;
    }
    if (count)
        *count = n->sums[0]->v[1];
    return total;
}

/* Returns the derivative of the reference loss by the bumped element, from four points; its error is about h^4 +
 * 1e-16 / h. */
static double difference(net *n)
{
    const double h = 2.5e-4;
    double f[4];
    for (int i = 0; i < 4; i++) {
        n->bump = h * (i < 2 ? i - 2 : i - 1);
        f[i] = ref_loss(n, NULL);
    }
    n->bump = 0;
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
}

/* Compares up to 16 elements of the gradient g with differences of the reference; g is `factor` times the gradient of
 * the mean loss. */
static void check_gradient(net *n, const char *what, const float *g, int64_t elements,
                           double factor)
{
    double limit = (n->c->grad_ulps > 0 ? n->c->grad_ulps : DEFAULT_GRAD_ULPS) / 16777216.0;
    double most = 0, worst = 0, want_worst = 0, got_worst = 0;
    /* the error allowed where the exact gradient is 0 is about the accuracy of the differences */
    double floor = n->c->flags & FLAT ? 316.0 * 4 / 16777216.0 : 1e-9 * factor;
    int64_t step = elements <= 16 ? 1 : elements / 16 + 1, worst_at = 0;
    if (!CHECK_MSG(g != NULL, "%s: no gradient of %s", n->c->name, what))
        return;
    for (int64_t i = 0; i < elements; i++)
        most = fabs((double)g[i]) > most || g[i] != g[i] ? fabs((double)g[i]) : most;
    for (int64_t i = 0; i < elements; i += step) {
        double want, error;
        n->bump_element = (long)i;
        want = factor * difference(n);
        error = fabs((double)g[i] - want);
        most = fabs(want) > most ? fabs(want) : most;
        if (!(error <= worst)) {
            worst = error;
            worst_at = i;
            want_worst = want;
            got_worst = (double)g[i];
        }
    }
    CHECK_MSG(worst <= limit * most + floor,
              "%s: gradient of %s, element %ld is %.9g, not %.9g (%.0f of %.0f)", n->c->name, what,
              (long)worst_at, got_worst, want_worst, worst / most * 16777216.0, limit * 16777216.0);
    if (most > 1e-6 * factor && worst / most * 16777216.0 > worst_gradient)
        worst_gradient = worst / most * 16777216.0;
}

static void check_values(net *n, const char *what, const float *y, const ref_value *want)
{
    double limit = (n->c->ulps > 0 ? n->c->ulps : DEFAULT_ULPS) / 16777216.0, most = 0, worst = 0;
    if (!CHECK_MSG(y != NULL, "%s: no value of %s", n->c->name, what))
        return;
    for (long i = 0; i < ref_elements(want); i++) {
        double error = fabs((double)y[i] - want->v[i]);
        most = fabs(want->v[i]) > most ? fabs(want->v[i]) : most;
        worst = !(error <= worst) ? error : worst;
    }
    CHECK_MSG(worst <= limit * most, "%s: %s differs by %.9g (%.1f of %.1f)", n->c->name, what,
              worst, worst / most * 16777216.0, limit * 16777216.0);
    if (most > 0 && worst / most * 16777216.0 > worst_value)
        worst_value = worst / most * 16777216.0;
}

/* The names of the ops that the cases have, each between blanks. */
static char names_of_ops[2048] = " ";

static void note_ops(const gckpt_graph *graph)
{
    gckpt_node node;
    for (int i = 0; gckpt_graph_node(graph, i, &node) == GCKPT_OK; i++) {
        char name[64];
        snprintf(name, sizeof name, " %s ", node.op);
        if (!strstr(names_of_ops, name) && CHECK(strlen(names_of_ops) + strlen(name) < sizeof names_of_ops))
            strcat(names_of_ops, name + 1);
    }
}

/* Checks that the cases have every op, except those that test_bytes.c and test_cache.c compare. */
static void test_complete(void)
{
    char op[48], name[64];
    for (int i = 0; op_name(i, op); i++) {
        snprintf(name, sizeof name, " %s ", op);
        CHECK_MSG(strstr(" from_u8 cache delta_state ", name) || strstr(names_of_ops, name), "no case has %s", op);
    }
    CHECK(op_name(50, op));
}

static void test_reference(const test_case *c, unsigned fixed)
{
    static const gckpt_mode modes[3] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_INFERENCE };
    float *out = NULL;                          /* result of the first mode */
    double loss = 0;
    for (int m = 0; m < 3; m++) {
        gckpt_store *store = gckpt_store_new(NULL);
        gckpt_graph *graph = gckpt_graph_new(store, NULL);
        net n;
        gckpt_feed feeds[24];
        gckpt_fetch_spec fetches[40];
        gckpt_result result;
        gckpt_hyper still = gckpt_hyper_lr(0);
        int n_feeds, n_fetches, n_probes, inference = modes[m] == GCKPT_INFERENCE;

        net_start(&n, c, fixed);
        net_build(&n, graph, c->batch);
        note_ops(graph);
        set_parameters(&n, store);
        n_feeds = make_feeds(&n, 0, feeds);
        n_fetches = fetch_parameters(&n, fetches);
        n_probes = n.n_probes;
        for (int i = 0; i < n_probes; i++) {
            fetches[n_fetches++] = (gckpt_fetch_spec){ n.probes[i], 1 };
        }
        fetches[n_fetches] = (gckpt_fetch_spec){ n.out.t, 0 };
        gckpt_report report = { 0 };
        gckpt_plan_desc desc = { .mode = modes[m], .fetch.specs = inference ? fetches + n_fetches : fetches,
                .fetch.count = inference ? 1 : n_fetches + 1 };
        gckpt_exec_desc exec_desc = { .debug = m ? GCKPT_DEBUG_POISON : 0 };
        gckpt_plan *plan = gckpt_plan_new(graph, n.terms, n.n_terms, &desc);
        CHECK_MSG(plan != NULL, "%s: %s", c->name, gckpt_error_text(graph));
        gckpt_exec *exec = gckpt_exec_new(plan, store, &exec_desc);
        result = inference ? gckpt_forward(exec, feeds, n_feeds, c->batch, &report)
                           : gckpt_step(exec, feeds, n_feeds, c->batch, &still, &report);
        CHECK_MSG(result == GCKPT_OK, "%s: %s", c->name, gckpt_error_text(exec));
        if (result == GCKPT_OK) {
            const float *y = gckpt_fetch(exec, gckpt_id(n.out.t), 0);
            int ids[8];
            double count = 0, want;
            size_t bytes;
            for (int i = 0; i < n_probes; i++)
                ids[i] = gckpt_id(n.probes[i]);
            want = ref_loss(&n, &count);
            bytes = (size_t)ref_elements(n.out.r) * sizeof(float);
            CHECK_MSG(report.count == (int64_t)count, "%s: count %ld", c->name, (long)report.count);
            if (m == 0) {
                loss = report.loss;
                out = (float *)malloc(bytes);
                if (y)
                    memcpy(out, y, bytes);
            } else if (!inference || !(c->flags & (NO_REF | OTHER))) {
                CHECK_MSG(y && out && memcmp(out, y, bytes) == 0, "%s: values, mode %d", c->name,
                          (int)modes[m]);
                CHECK_MSG(memcmp(&loss, &report.loss, sizeof loss) == 0,
                          "%s: loss, mode %d: %.17g, %.17g", c->name, (int)modes[m], loss,
                          report.loss);
            }
            if (m == 0 && !(c->flags & NO_REF)) {
                double limit = (c->ulps > 0 ? c->ulps : DEFAULT_ULPS) / 16777216.0;
                double size = fabs(want);
                check_values(&n, "output", y, n.out.r);
                /* terms of the loss may cancel, so the allowed error is relative to the largest element */
                for (long i = 0; i < ref_elements(n.out.r); i++)
                    size = fabs(n.out.r->v[i]) > size ? fabs(n.out.r->v[i]) : size;
                CHECK_MSG(fabs(report.loss - want) <= limit * size, "%s: loss %.9g, not %.9g",
                          c->name, report.loss, want);
                for (int i = 0; i < n.n_leaves; i++)
                    if (n.leaves[i].kind == 'p') {
                        n.bump_leaf = i;
                        check_gradient(&n, n.leaves[i].name, gckpt_fetch(exec, n.leaves[i].id, 1),
                                       n.leaves[i].elements, 1);
                    }
                n.bump_leaf = -1;
                for (int i = 0; i < n_probes; i++) {
                    const float *g = gckpt_fetch(exec, ids[i], 1);
                    char what[24];
                    sprintf(what, "activation %d", i);
                    n.bump_probe = i;
                    check_gradient(&n, what, g, n.probe_elements[i], count);
                    n.bump_probe = -1;
                }
            }
        }
        util_free(exec, plan, graph, store);
        net_free(&n);
    }
    free(out);
}

/* == (c) the same bits ========================================================================= */
enum { STEPS = 2, RANDOM_SCHEDULES = 12 };
enum { ROW_BY_ROW = 1, PIECES = 2, NO_CLIP = 4, IN_BACKWARD = 8, LEAST_BUDGET = 16 };
typedef struct {
    const char *name;
    gckpt_mode mode;
    int micro;                  /* rows of a micro-batch; 0 for the whole batch */
    unsigned debug;
    int threads;
    unsigned how;
    int random;                 /* seed of a random schedule */
    int group;
} run_config;
static gckpt_isa kernels = GCKPT_ISA_AUTO;      /* kernels that train() uses */
typedef struct {
    double loss[STEPS], norm[STEPS];
    int64_t count[STEPS];
    uint64_t hash;
    float *gradients;           /* gradients of all parameters in the last step */
    size_t n_gradients;
} outcome;

/* Trains STEPS steps in the configuration v. If that fails, reports the failure and returns 0. */
static int train(const test_case *c, const run_config *v, unsigned fixed, outcome *o)
{
    enum { MOST = 20000 };
    int64_t batch = c->batch, rows = v->micro && v->micro < batch ? v->micro : batch;
    int split_exact = (c->flags & MIXES) == 0, clip = !(v->how & (NO_CLIP | IN_BACKWARD));
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_instruction *schedule = NULL;
    gckpt_fetch_spec fetches[24];
    gckpt_result result;
    const char *op = NULL;
    net n;

    memset(o, 0, sizeof *o);
    net_start(&n, c, fixed);
    net_build(&n, graph, rows);
    set_parameters(&n, store);
    gckpt_plan_desc desc = { .mode = v->mode, .batch = batch, .threads = v->threads,
            .schedule.segment_size = v->group, .fetch.specs = fetches,
            .fetch.count = v->how & IN_BACKWARD ? 0 : fetch_parameters(&n, fetches),
            .update_in_backward = (v->how & IN_BACKWARD) != 0 };
    if (v->mode == GCKPT_SCHEDULE) {
        schedule = (gckpt_instruction *)malloc(MOST * sizeof *schedule);
        desc.schedule.instructions = schedule;
        random_state = (uint64_t)v->random;
        desc.schedule.count = random_schedule(graph, n.terms, n.n_terms, schedule, MOST);
    }
    if (v->how & LEAST_BUDGET) {
        gckpt_plan *poor;
        desc.mode = GCKPT_MEMORY_POOR;
        poor = gckpt_plan_new(graph, n.terms, n.n_terms, &desc);
        desc.budget = gckpt_plan_bytes(poor);
        desc.mode = v->mode;
        gckpt_plan_free(poor);
    }
    gckpt_plan *plan = gckpt_plan_new(graph, n.terms, n.n_terms, &desc);
    CHECK_MSG(plan != NULL, "%s, %s: plan: %s", c->name, v->name, gckpt_error_text(graph));
    if (plan)
        CHECK_MSG(gckpt_plan_split_exact(plan, &op) == split_exact && (split_exact || (op && *op)),
                  "%s: split_exact", c->name);
    recomputing += gckpt_plan_describe(plan).recompute > 0;
    if (plan && v->how & LEAST_BUDGET)
        CHECK_MSG(gckpt_plan_bytes(plan) <= desc.budget, "%s: over the budget", c->name);
    gckpt_graph_free(graph);                    /* a plan does not need its graph any more */

    gckpt_exec_desc exec_desc = { .debug = v->debug,
            .parallel_for = v->threads > 1 ? any_order : NULL, .isa = kernels };
    gckpt_exec *exec = gckpt_exec_new(plan, store, &exec_desc);
    if (plan)
        CHECK_MSG(exec != NULL, "%s, %s: exec: %s", c->name, v->name, gckpt_error_text(store));
    CHECK(kernels == GCKPT_ISA_AUTO || gckpt_exec_isa(exec) == kernels);
    gckpt_hyper hyper = { .lr = 0.01f, .weight_decay = 0.1f, .clip = clip ? 0.5f : 0 };
    result = exec ? GCKPT_OK : GCKPT_E_ARG;
    for (int i = 0; i < STEPS && result == GCKPT_OK; i++) {
        gckpt_report report = { 0 };
        result = util_step(exec, make_feeds, &n, batch, v->how & ROW_BY_ROW ? i == 1 ? -2 : 1 : 0,
                          v->how & PIECES ? 3 : 0, &hyper, &report);
        CHECK_MSG(result == GCKPT_OK, "%s, %s: step: %s", c->name, v->name, gckpt_error_text(exec));
        o->loss[i] = report.loss;
        o->norm[i] = report.grad_norm;
        o->count[i] = report.count;
    }
    if (result == GCKPT_OK) {
        o->hash = gckpt_store_hash(store);
        for (int i = 0; i < n.n_leaves && desc.fetch.count; i++) {
            const leaf *l = &n.leaves[i];
            const float *g = l->kind == 'p' ? gckpt_fetch(exec, l->id, 1) : NULL;
            if (l->kind != 'p')
                continue;
            size_t had = o->n_gradients * sizeof(float);
            size_t bytes = (size_t)l->elements * sizeof(float);
            o->gradients = (float *)realloc(o->gradients, had + bytes);
            if (CHECK_MSG(g != NULL, "%s, %s: no gradient of %s", c->name, v->name, l->name))
                memcpy(o->gradients + o->n_gradients, g, bytes);
            else
                memset(o->gradients + o->n_gradients, 0, bytes);
            o->n_gradients += (size_t)l->elements;
        }
        if (v->debug & GCKPT_DEBUG_MEASURE)
            CHECK_MSG(gckpt_bytes_measured(exec) == gckpt_plan_bytes(plan),
                      "%s, %s: measured %lu of %lu bytes", c->name, v->name,
                      (unsigned long)gckpt_bytes_measured(exec),
                      (unsigned long)gckpt_plan_bytes(plan));
    }
    util_free(exec, plan, NULL, store);
    net_free(&n);
    free(schedule);
    return result == GCKPT_OK;
}

static void compare(const test_case *c, const run_config *v, const outcome *a, const outcome *b)
{
    for (int i = 0; i < STEPS; i++) {
        CHECK_MSG(memcmp(&a->loss[i], &b->loss[i], sizeof(double)) == 0,
                  "%s, %s: step %d: loss %.17g, not %.17g", c->name, v->name, i, b->loss[i],
                  a->loss[i]);
        CHECK_MSG(a->count[i] == b->count[i], "%s, %s: count", c->name, v->name);
        if (!(v->how & IN_BACKWARD))
            CHECK_MSG(memcmp(&a->norm[i], &b->norm[i], sizeof(double)) == 0,
                      "%s, %s: step %d: norm %.17g, not %.17g", c->name, v->name, i, b->norm[i],
                      a->norm[i]);
    }
    if (!(v->how & IN_BACKWARD))
        CHECK_MSG(a->n_gradients == b->n_gradients &&
                  memcmp(a->gradients, b->gradients, a->n_gradients * sizeof(float)) == 0,
                  "%s, %s: gradients differ", c->name, v->name);
    CHECK_MSG(a->hash == b->hash, "%s, %s: weights differ", c->name, v->name);
}

#define PAINT GCKPT_DEBUG_POISON
#define HASH GCKPT_DEBUG_RECOMPUTE
#define MEASURE GCKPT_DEBUG_MEASURE
#define PLAIN GCKPT_DEBUG_PLAIN
/* configurations whose bits must equal those of plain kernels, store-all and a single micro-batch */
static const run_config run_configs[] = {
    { "store-all", GCKPT_STORE_ALL, 0, 0, 0, 0, 0, 0 },
    { "store-all, measured", GCKPT_STORE_ALL, 0, HASH | MEASURE, 0, 0, 0, 0 },
    { "store-all, plain, painted", GCKPT_STORE_ALL, 0, PAINT | PLAIN, 0, 0, 0, 0 },
    { "store-all, in pieces", GCKPT_STORE_ALL, 0, 0, 0, PIECES, 0, 0 },
    { "memory-poor", GCKPT_MEMORY_POOR, 0, PAINT, 0, 0, 0, 0 },
    { "memory-poor, measured", GCKPT_MEMORY_POOR, 0, HASH | MEASURE, 0, 0, 0, 0 },
    { "segments", GCKPT_SEGMENTS, 0, PAINT | HASH, 0, 0, 0, 0 },
    { "segments, measured", GCKPT_SEGMENTS, 0, MEASURE, 0, 0, 0, 0 },
    { "sqrt", GCKPT_SQRT, 0, MEASURE, 0, 0, 0, 0 },
    { "sqrt, groups of 2", GCKPT_SQRT, 0, PAINT, 0, 0, 0, 2 },
    { "auto, least budget", GCKPT_AUTO, 0, 0, 0, LEAST_BUDGET, 0, 0 },
    { "schedule 1", GCKPT_SCHEDULE, 0, PAINT | HASH, 0, 0, 1, 0 },
    { "schedule 2", GCKPT_SCHEDULE, 0, MEASURE, 0, 0, 2, 0 },
    { "schedule 3", GCKPT_SCHEDULE, 0, PAINT, 2, 0, 3, 0 },
    { "two threads", GCKPT_STORE_ALL, 0, MEASURE, 2, 0, 0, 0 },
    { "three threads", GCKPT_SEGMENTS, 0, PAINT, 3, 0, 0, 0 },
    { "rows of 1", GCKPT_STORE_ALL, 1, MEASURE, 0, 0, 0, 0 },
    { "rows of 2", GCKPT_SEGMENTS, 2, PAINT | HASH, 0, 0, 0, 0 },
    { "rows of 2, plain", GCKPT_MEMORY_POOR, 2, PLAIN, 0, 0, 0, 0 },
    { "rows of 3", GCKPT_SQRT, 3, MEASURE, 0, 0, 0, 0 },
    { "rows of 2, schedule", GCKPT_SCHEDULE, 2, PAINT, 0, 0, 4, 0 },
    { "rows of 2, in pieces, two threads", GCKPT_MEMORY_POOR, 2, 0, 2, PIECES, 0, 0 },
    { "row by row", GCKPT_STORE_ALL, 1, 0, 0, ROW_BY_ROW, 0, 0 },
    { "row by row in rows of 2", GCKPT_MEMORY_POOR, 2, PAINT, 0, ROW_BY_ROW, 0, 0 }
};
static const run_config baseline = { "baseline", GCKPT_STORE_ALL, 0, PLAIN, 0, 0, 0, 0 };
static const run_config unclipped = { "unclipped", GCKPT_STORE_ALL, 0, 0, 0, NO_CLIP, 0, 0 };
static const run_config in_backward[2] = {
    { "update in backward", GCKPT_STORE_ALL, 0, MEASURE, 0, IN_BACKWARD, 0, 0 },
    { "update in backward, memory-poor", GCKPT_MEMORY_POOR, 0, PAINT, 0, IN_BACKWARD, 0, 0 }
};

static const run_config of_each_isa[] = {
    { "store-all", GCKPT_STORE_ALL, 0, 0, 0, 0, 0, 0 },
    { "memory-poor", GCKPT_MEMORY_POOR, 0, PAINT, 0, 0, 0, 0 },
    { "two threads", GCKPT_STORE_ALL, 0, MEASURE, 2, 0, 0, 0 },
    { "rows of 2", GCKPT_SEGMENTS, 2, PAINT, 0, 0, 0, 0 }
};

/* Trains with each instruction set that GCKPT_ISA_AUTO does not choose, and compares the bits with `want`. */
static void test_each_isa(const test_case *c, const outcome *want)
{
    int automatic = GCKPT_ISA_COUNT - 1;
    while (automatic > GCKPT_ISA_PLAIN && !gckpt_isa_available((gckpt_isa)automatic))
        automatic--;
    for (int isa = GCKPT_ISA_C; isa < automatic; isa++)
        for (size_t i = 0; i < sizeof of_each_isa / sizeof of_each_isa[0]; i++) {
            run_config v = of_each_isa[i];
            char name[40];
            outcome got;
            if ((v.micro && c->flags & MIXES) || !gckpt_isa_available((gckpt_isa)isa))
                continue;
            kernels = (gckpt_isa)isa;
            sprintf(name, "%s, %s", isa_name(kernels), v.name);
            v.name = name;
            if (train(c, &v, 0, &got))
                compare(c, &v, want, &got);
            free(got.gradients);
            kernels = GCKPT_ISA_AUTO;
        }
}

static unsigned sweep; /* counts the configurations of test_bits and test_fixed, of which only a sample runs */
static void test_bits(const test_case *c)
{
    outcome want, got;
    if (train(c, &baseline, 0, &want))
        for (size_t i = 0; i < sizeof run_configs / sizeof run_configs[0]; i++) {
            const run_config *v = &run_configs[i];
            if (!check_sampled(sweep++, 3))
                continue;
            if (v->micro && c->flags & MIXES)
                continue;
            if (v->how & ROW_BY_ROW && (c->flags & NO_STREAM || v->micro >= c->batch))
                continue;               /* streaming needs at least two micro-batches */
            if (train(c, v, 0, &got))
                compare(c, v, &want, &got);
            free(got.gradients);
        }
    if (want.gradients && check_sampled(sweep++, 3))
        test_each_isa(c, &want);
    for (int seed = 5; seed < 5 + RANDOM_SCHEDULES && want.gradients; seed++) {
        if (!check_sampled(sweep++, 7))
            continue;
        static const unsigned debug[3] = { 0, PAINT, HASH };
        run_config v = { "random schedule", GCKPT_SCHEDULE, 0, 0, 0, 0, 0, 0 };
        v.random = seed;
        v.micro = c->flags & MIXES ? 0 : seed % 4;
        v.debug = debug[seed % 3];
        v.threads = seed % 2 ? 2 : 1;
        if (train(c, &v, 0, &got))
            compare(c, &v, &want, &got);
        free(got.gradients);
    }
    free(want.gradients);
    if (train(c, &unclipped, 0, &want))
        for (int i = 0; i < 2; i++) {
            if (train(c, &in_backward[i], 0, &got))
                compare(c, &in_backward[i], &want, &got);
            free(got.gradients);
        }
    free(want.gradients);
}

/* Kernels must compute any subset of an op's gradients. Runs the case again with some tensors fixed (parameters
 * become constants, activations plain inputs), compares results with the reference and, in a short run, bits between
 * configurations. */
static void test_fixed(const test_case *c)
{
    static const run_config some[3] = {
        { "some fixed", GCKPT_STORE_ALL, 0, 0, 2, 0, 0, 0 },
        { "some fixed, memory-poor, measured", GCKPT_MEMORY_POOR, 0, HASH | MEASURE, 0, 0, 0, 0 },
        { "some fixed, rows of 2", GCKPT_SEGMENTS, 2, PAINT, 0, 0, 0, 0 }
    };
    int bearers;
    net n;
    net_start(&n, c, 0);
    net_build(&n, NULL, c->batch);
    bearers = n.n_bearers;
    net_free(&n);
    for (unsigned fixed = 1; bearers <= 4 && fixed + 1 < 1u << bearers; fixed++) {
        outcome want, got;
        if (!check_sampled(sweep++, 9))
            continue;
        if (!only_bits)
            test_reference(c, fixed);
        if (train(c, &baseline, fixed, &want))
            for (int i = 0; i < 3; i++) {
                if (some[i].micro && c->flags & MIXES)
                    continue;
                if (train(c, &some[i], fixed, &got))
                    compare(c, &some[i], &want, &got);
                free(got.gradients);
            }
        free(want.gradients);
    }
}

/* == single tests ============================================================================== */
/* Tests that linear_cross_entropy gives the same bits as linear followed by cross_entropy (manual, 5i). */
static void test_fused(void)
{
    static const test_case heads[3][2] = {
        { { "head, fused", build_head, { 5, 6, 11, 1, 3, 1 }, 3, 0, 0, 0 },
          { "head, in parts", build_head, { 5, 6, 11, 1, 3, 0 }, 3, 0, 0, 0 } },
        { { "head of 1030, fused", build_head, { 3, 6, 1030, 1, 3, 1 }, 3, 0, 0, 0 },
          { "head of 1030, in parts", build_head, { 3, 6, 1030, 1, 3, 0 }, 3, 0, 0, 0 } },
        { { "head of 2049 at 1e4, fused",
            build_head, { 2, 6, 2049, 10000, 0, 1 }, 3, 0, 0, 0 },
          { "head of 2049 at 1e4, in parts",
            build_head, { 2, 6, 2049, 10000, 0, 0 }, 3, 0, 0, 0 } }
    };
    for (int i = 0; i < 3; i++) {
        outcome fused, parts;
        int trained = train(&heads[i][0], &run_configs[0], 0, &fused);
        if (train(&heads[i][1], &baseline, 0, &parts) && trained)
            compare(&heads[i][0], &baseline, &parts, &fused);
        free(fused.gradients);
        free(parts.gradients);
    }
}

/* Tests dropout with rate p: about 1 - p of the values remain and are scaled, the gradient uses the mask of the
 * forward, and each step draws a new mask. */
static void test_dropout(void)
{
    enum { ROWS = 8, COLUMNS = 500, N = ROWS * COLUMNS };
    static float x[N], r[N], first[N];
    const gckpt_init one = { 0, 0, 1 };
    gckpt_store *store = gckpt_store_new(NULL);
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *in = gckpt_input(graph, "x", GCKPT_F32, gckpt_shape2(ROWS, COLUMNS));
    gckpt_tensor *by = gckpt_input(graph, "r", GCKPT_F32, gckpt_shape2(ROWS, COLUMNS));
    gckpt_tensor *h = gckpt_mul(in, gckpt_param(graph, "one", gckpt_shape1(1), one));
    gckpt_tensor *y = gckpt_dropout(h, 0.25f);
    gckpt_term loss = { NULL, 1, 0 };
    gckpt_feed feeds[2];
    gckpt_hyper still = gckpt_hyper_lr(0);
    uint64_t state = 9;
    loss.loss = gckpt_sum_loss(gckpt_mul(y, by));
    gckpt_fetch_spec fetches[2] = { { y, 0 }, { h, 1 } };
    gckpt_plan_desc desc = { .mode = GCKPT_MEMORY_POOR, .fetch.specs = fetches, .fetch.count = 2 };
    for (int i = 0; i < N; i++) {
        x[i] = (float)(1 + uniform(&state));
        r[i] = (float)(1 + uniform(&state));
    }
    feeds[0] = (gckpt_feed){ gckpt_id(in), x };
    feeds[1] = (gckpt_feed){ gckpt_id(by), r };
    gckpt_plan *plan = gckpt_plan_new(graph, &loss, 1, &desc);
    gckpt_exec *exec = gckpt_exec_new(plan, store, NULL);
    CHECK_MSG(exec != NULL, "dropout: %s %s", gckpt_error_text(graph), gckpt_error_text(store));
    for (int at = 0; at < 2 && exec; at++) {
        const float *v, *g;
        int kept = 0, wrong = 0, same = 0;
        CHECK(gckpt_step(exec, feeds, 2, ROWS, &still, NULL) == GCKPT_OK);
        v = gckpt_fetch(exec, gckpt_id(y), 0);
        g = gckpt_fetch(exec, gckpt_id(h), 1);
        if (!CHECK(v && g))
            break;
        for (int i = 0; i < N; i++) {
            double s = v[i] != 0 ? 1 / 0.75 : 0;
            kept += v[i] != 0;
            wrong += fabs((double)v[i] - s * (double)x[i]) > 1e-6 ||
                     fabs((double)g[i] - s * (double)r[i]) > 1e-6;
            same += (v[i] != 0) == (first[i] != 0);
            first[i] = v[i];
        }
        CHECK_MSG(wrong == 0, "dropout: %d wrong", wrong);
        /* expected N * 3 / 4; 5 standard deviations are 137 */
        CHECK_MSG(abs(kept - N * 3 / 4) < 130, "dropout kept %d", kept);
        CHECK_MSG(at == 0 || abs(same - N * 5 / 8) < 155, "dropout: %d as before", same);
    }
    util_free(exec, plan, graph, store);
}

/* Tests the loss sum(h detach(exp(w x))) with h = u x, compared with the same loss without detach but with w frozen
 * (cut = 0). The gradient of h is exp(w x), no op before detach runs backward, and detach takes no memory but a
 * gradient buffer of w. */
static void test_detach(void)
{
    enum { ROWS = 3, C = 40, N = ROWS * C };
    const gckpt_init some = { 0.5f, 0, 1 };
    float x[N];
    size_t bytes[2];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 7 - 3) / 2;
    for (int cut = 0; cut < 2; cut++) {
        gckpt_store *store = gckpt_store_new(NULL);
        gckpt_graph *graph = gckpt_graph_new(store, NULL);
        gckpt_tensor *in = gckpt_input(graph, "x", GCKPT_F32, gckpt_shape2(ROWS, C));
        gckpt_tensor *u = gckpt_param(graph, "u", gckpt_shape1(C), some);
        gckpt_tensor *w = gckpt_param(graph, "w", gckpt_shape1(C), some);
        gckpt_tensor *h = gckpt_mul(in, u), *f = gckpt_exp(gckpt_mul(in, w));
        f = cut ? gckpt_detach(f) : f;
        gckpt_store_freeze(store, "w", !cut);
        gckpt_term loss = { gckpt_sum_loss(gckpt_mul(h, f)), 1, 0 };
        gckpt_fetch_spec fetch = { h, 1 };
        gckpt_plan_desc desc = { .mode = GCKPT_STORE_ALL, .fetch.specs = &fetch, .fetch.count = 1 };
        gckpt_hyper still = { 0 };
        gckpt_feed feed = { gckpt_id(in), x };
        gckpt_plan *plan = gckpt_plan_new(graph, &loss, 1, &desc);
        gckpt_exec *exec = gckpt_exec_new(plan, store, NULL);
        gckpt_instruction at;
        gckpt_parameter p;
        CHECK_MSG(gckpt_step(exec, &feed, 1, ROWS, &still, NULL) == GCKPT_OK, "detach: %s %s",
                  gckpt_error_text(graph), gckpt_error_text(exec));
        gckpt_store_get(store, gckpt_store_find(store, "w"), &p);
        const float *d = gckpt_fetch(exec, gckpt_id(h), 1);
        for (int i = 0; i < N && CHECK(d && p.values); i++)
            CHECK(fabs((double)d[i] - exp((double)(x[i] * p.values[i % C]))) < 1e-6 * (double)d[i]);
        for (int i = 0; gckpt_plan_get(plan, i, &at) == GCKPT_OK; i++)
            CHECK(at.kind != GCKPT_BACKWARD || at.id == gckpt_id(h) || at.id > gckpt_id(f));
        bytes[cut] = gckpt_plan_describe(plan).arena;
        util_free(exec, plan, graph, store);
        /* a graph whose parameters are all detached is refused, like a graph without parameters */
        store = gckpt_store_new(NULL), graph = gckpt_graph_new(store, NULL);
        w = gckpt_param(graph, "w", gckpt_shape1(C), some);
        in = gckpt_input(graph, "x", GCKPT_F32, gckpt_shape2(ROWS, C));
        loss.loss = gckpt_sum_loss(gckpt_detach(gckpt_mul(in, w)));
        desc.fetch.count = 0;
        plan = gckpt_plan_new(graph, &loss, 1, &desc);
        CHECK_MSG(!plan && gckpt_error(graph) == GCKPT_E_ARG, "nothing to train: %s",
                  gckpt_error_text(graph));
        util_free(NULL, plan, graph, store);
    }
    /* compared with freezing w, detaching costs at most the gradient buffer of w, which is zeroed and scaled like any
     * other */
    CHECK_MSG(bytes[1] - bytes[0] <= C * sizeof(float) + 64, "detached: %zu bytes, frozen: %zu",
              bytes[1], bytes[0]);
}

/* Tests gradcheck: it reports a small error for correct gradients, and restores the weights. */
static void test_check_gradients(void)
{
    static const test_case nets[] = {
        { "check of an MLP", build_linear_tied, { 6 }, 3, 0, 0, 0 },
        { "check of a GPT", build_gpt, { 6, 8, 2, 11, 2, 1 }, 4, 0, 0, 0 },
        { "check of two losses and a regulariser", build_terms, { 1, 1 }, 5, NO_STREAM, 0, 0 },
        { "check of user ops", build_user, { 1 }, 4, 0, 0, 0 }
    };
    for (size_t i = 0; i < sizeof nets / sizeof nets[0]; i++) {
        gckpt_store *store = gckpt_store_new(NULL);
        gckpt_graph *graph = gckpt_graph_new(store, NULL);
        net n;
        gckpt_feed feeds[24];
        gradcheck_result check;
        uint64_t before;
        net_start(&n, &nets[i], 0);
        net_build(&n, graph, nets[i].batch);
        set_parameters(&n, store);
        int n_feeds = make_feeds(&n, 0, feeds);
        before = gckpt_store_hash(store);
        const gckpt_plan_desc desc = { .batch = nets[i].batch };
        gckpt_result result = gradcheck(store, n.terms, n.n_terms, &desc, feeds, n_feeds, nets[i].batch, &check);
        CHECK_MSG(result == GCKPT_OK, "%s: %s", nets[i].name, check.text);
        CHECK_MSG(check.worst > 0 && check.worst < 0.01, "%s: worst %g (%s)", nets[i].name, check.worst, check.text);
        CHECK_MSG(gckpt_store_hash(store) == before && gckpt_store_step(store) == 0,
                  "%s: store changed", nets[i].name);
        if (verbose)
            printf("%-40s worst %.2g resolution %.2g\n", nets[i].name, check.worst, check.resolution);
        util_free(NULL, NULL, graph, store);
        net_free(&n);
    }
}

/* Builds a graph with the loss sum(op(x w) r) and its executor, where op may have a deliberate fault. */
static gckpt_exec *bad_net(const gckpt_op *op, gckpt_mode mode, unsigned debug, gckpt_store *store,
                           gckpt_term *loss, gckpt_plan **plan, gckpt_feed *feeds)
{
    static const float data[12] = { 1, -2, 3, 0.5f, -1, 2, -0.25f, 1.5f, 1, 2, -3, 0.75f };
    const gckpt_init normal = { 0.7f, 0, 0 };
    gckpt_graph *graph = gckpt_graph_new(store, NULL);
    gckpt_tensor *x = gckpt_input(graph, "x", GCKPT_F32, gckpt_shape2(3, 4));
    gckpt_tensor *a = gckpt_param(graph, "weight_a", gckpt_shape2(4, 5), normal);
    gckpt_tensor *b = gckpt_param(graph, "weight_b", gckpt_shape2(5, 2), normal);
    gckpt_tensor *h = gckpt_tanh(gckpt_linear(x, a, NULL));
    gckpt_exec *exec;
    gckpt_plan_desc desc = { .mode = mode };
    gckpt_exec_desc exec_desc = { .debug = debug };
    h = gckpt_linear(gckpt_apply(op, &h, 1, NULL, 0), b, NULL);
    *loss = (gckpt_term){ gckpt_sum_loss(gckpt_gelu(h)), 1, 0 };
    *plan = gckpt_plan_new(graph, loss, 1, &desc);
    CHECK_MSG(*plan != NULL, "%s", gckpt_error_text(graph));
    exec = gckpt_exec_new(*plan, store, &exec_desc);
    CHECK_MSG(exec != NULL, "%s", gckpt_error_text(store));
    feeds[0] = (gckpt_feed){ gckpt_id(x), data };
    return exec;
}

static void test_bad_ops(void)
{
    const gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    /* i: 0 for square_op, 1 for wrong_op, 2 for noisy_op without the recompute check, 3 for noisy_op with it */
    for (int i = 0; i < 4; i++) {
        gckpt_store *store = gckpt_store_new(NULL);
        gckpt_plan *plan;
        gckpt_term loss;
        gckpt_feed feeds[1];
        const gckpt_op *op = i == 0 ? &square_op : i == 1 ? &wrong_op : &noisy_op;
        gckpt_exec *exec = bad_net(op, i < 2 ? GCKPT_STORE_ALL : GCKPT_MEMORY_POOR,
                                   i == 3 ? HASH : 0, store, &loss, &plan, feeds);
        if (exec && i < 2) {
            gradcheck_result check;
            gradcheck(store, &loss, 1, NULL, feeds, 1, 3, &check);
            CHECK_MSG(i == 0 ? check.worst > 0 && check.worst < 0.01 : check.worst > 0.02,
                      "%s backward: worst %g (%s)", op->name, check.worst, check.text);
            /* a wrong backward shows first in the gradient of the parameter that the op's input depends on */
            if (i == 1)
                CHECK_MSG(strstr(check.text, "weight_a") != NULL, "%s", check.text);
        } else if (exec) {
            gckpt_result result = gckpt_step(exec, feeds, 1, 3, &hyper, NULL);
            CHECK_MSG(result == (i == 3 ? GCKPT_E_DATA : GCKPT_OK), "noisy: %s",
                      gckpt_result_text(result));
            if (i == 3)
                CHECK_MSG(strstr(gckpt_error_text(exec), "noisy") != NULL, "noisy: %s",
                          gckpt_error_text(exec));
        }
        util_free(exec, plan, gckpt_graph_of(loss.loss), store);
    }
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            verbose = 1;
        else if (strcmp(argv[i], "-b") == 0)
            only_bits = 1;
        else
            only = argv[i];
    }
    for (int i = 0; i < CASES; i++) {
        if (only && !strstr(cases[i].name, only))
            continue;
        worst_value = worst_gradient = 0;
        if (!only_bits)
            test_reference(&cases[i], 0);
        if (verbose)
            printf("%-40s value %6.1f  gradient %6.1f\n", cases[i].name, worst_value,
                   worst_gradient);
        test_bits(&cases[i]);
        test_fixed(&cases[i]);
    }
    if (!only) {
        if (!only_bits)
            test_complete();
        CHECK_MSG(recomputing > check_iterations(1000), "only %d plans recompute", recomputing);
        test_fused();
        test_dropout();
        test_detach();
        test_check_gradients();
        test_bad_ops();
    }
    return check_report("ops");
}
