/* net.h - random graphs and requests for tests. A seed determines a graph of random ops (build); a seed and
 * a way determine a request for its plans with random options (net_open).
 *
 * How it works. build grows a graph op by op. step draws an op and its inputs from a pool of results; weight
 * draws an input that is a weight: a parameter, new or shared, or a function of weights. Blocks are segments,
 * nested up to three deep. Results that nothing reads lead to the last loss, so nearly all ops matter. There
 * are up to two more losses and a regulariser. Some parameters are frozen.
 *     build(seed, rows)           builds net.s and net.g for micro-batches of `rows` rows (0 selects net.batch)
 *     net_open(seed, way, rows)   builds, and fills the request net.d. If rows is NET_ROWS, draws the rows as
 *                                 well. Options that change bits (optimiser, precision, virtual ranks,
 *                                 quantised parameters) depend on the seed only; all other options (micro-batches,
 *                                 policies, ranks, fetches, offloading, ...) depend on seed and way, and have
 *                                 their defaults if way is 0. The request is legal.
 *     destroy()                   frees net.s and net.g
 *     net_print()                 prints the net and the request
 * Options; set them before build, they stay set:
 *     net_features      features that only some tests can handle: NET_MIXING: batch norms (every sixth net);
 *                       NET_CACHES: caches in nets that only run forward (net.cached, every eighth net);
 *                       NET_ALONE: in every 16th net only the regulariser's parameter is trained;
 *                       NET_RANKS: requests of one of several ranks
 *     net_op_count      upper limit of the number of ops to grow; 0 selects 5 to 18
 *     net_backend       backend that some requests use; NULL selects none
 *     net_target_graph  graph to build into, of the store net_store (for fit_plan); NULL makes new ones
 * Invariants.
 *  1. A seed gives the same net on every machine and compiler, in every test with the same options, and for
 *     every micro-batch size. So no draw may depend on net.rows, on sizes of types, or on the order in which
 *     a compiler evaluates arguments.
 *  2. A way changes no bits.
 *  3. Losses stay finite on most nets. Losses of nets with even seeds are smooth.
 *  4. Every net has a trained parameter with a gradient: p0, which is never frozen and from which a gradient path leads
 *     to a loss; in nets with only a trained regulariser, the regulariser's.
 * A header without a part (GCKPT_NO_IMAGES) gives other nets, which have no op and no option of this part; seeds and
 * ways are then comparable only among headers that lack the same parts.
 * Coverage. The nets count which builders, op descriptors, fields of gckpt_plan_desc and enumerators they use.
 * net_check_coverage reads the complete lists from gradckpt.h and fails for each one that no net has used.
 */
#ifndef TESTS_NET_H
#define TESTS_NET_H
#include "util.h"
#include <math.h>

typedef gckpt_tensor T;

enum { MOST = 900, READS = 6, BATCH = 8, V = 11, LARGEST = 360, VALUES = BATCH * LARGEST };
enum { NET_MIXING = 1, NET_CACHES = 2, NET_ALONE = 4, NET_RANKS = 8 };
enum { NET_KINDS = 48, NET_FETCHES = 6, NET_CAPACITY = 9, NET_FEEDS = 6, NET_LENGTH = 3 };
static unsigned net_features;
static int net_op_count;
static const gckpt_backend *net_backend;
static gckpt_graph *net_target_graph;
static gckpt_store *net_store;

/* Starts a stream of random numbers that is independent of the streams of other seeds and stream numbers. The two
 * numbers are mixed, since streams that start at multiples of a seed would be correlated. Stream 0 belongs to build,
 * 1 to options that change bits, 2 to 15 to tests, and 16 + way to the options of a way. */
static inline void net_seed(unsigned seed, unsigned stream)
{
    uint64_t mixed = seed | (uint64_t)stream << 32;
    random_state = next_random(&mixed);
}

/* ---- counters of the features that nets have used ---- */
enum { NET_NAMES = 320 };
static struct {
    const char *name;
    long count;
} net_covered[NET_NAMES];
static int net_names;

static long *net_count(const char *name)
{
    int i = 0;
    while (i < net_names && net_covered[i].name != name && strcmp(net_covered[i].name, name))
        i++;
    if (i == net_names && CHECK(i < NET_NAMES))
        net_covered[net_names++].name = name;
    return &net_covered[i < NET_NAMES ? i : 0].count;
}
static int net_cover(const char *name) { return ++*net_count(name) > 0; }
/* Calls a builder of the library and counts the call. */
#define B(builder)     (net_cover("gckpt_" #builder), gckpt_##builder)
#define NET_COVER(value) (net_cover(#value), value)

/* ---- the graph under construction ---- */
static struct {
    gckpt_store *s;
    gckpt_graph *g;
    int64_t rows, batch, t, c;
    unsigned seed;
    int mixes, cached, alone, smooth, params, count, pooled, weights, terms, depth, dropout;
    struct {
        int in[READS], base, is_op, data;
        T *t;
    } nodes[MOST];
    T *pool[MOST], *weight[MOST], *x, *tokens, *targets[2], *lengths, *bytes;
    unsigned char used[MOST], kept[MOST], recomputed[MOST];
    gckpt_term term[5];
    gckpt_plan_desc d; /* the request, which net_open fills; fetch and cost are its arrays */
    gckpt_fetch_spec fetch[NET_FETCHES];
    gckpt_cost cost[MOST];
    int ranks, packed; /* ranks, shard: as in gckpt_store_ranks; packed: number of quantised parameters */
    gckpt_shard shard;
} net;
static float constant_data[LARGEST];
static const int32_t constant_rows[LARGEST] = { 2, 0, 1, 0, 0, 2, 1, 1, 0, 2 };

/* ---- feeds ---- */
static float x_data[VALUES];
static int32_t token_data[VALUES], target_data[2][VALUES], length_data[BATCH];
static unsigned char byte_data[VALUES];

static inline void net_fill(void)
{
    for (int i = 0; i < VALUES; i++) {
        x_data[i] = ((float)below(2001) - 1000.0f) / 700.0f;
        token_data[i] = (int32_t)below(V);
        target_data[0][i] = chance(20) ? -1 : (int32_t)below(V);
        target_data[1][i] = chance(40) ? -1 : (int32_t)below(V);
    }
    for (int i = 0; i < BATCH; i++)
        length_data[i] = (int32_t)below(NET_LENGTH + 1);
    for (int i = 0; i < VALUES; i++)
        byte_data[i] = (unsigned char)(167 * i + token_data[i]);
}

/* Fills the feeds with the data from row `row` of the batch on, and returns their number; a callback of util_step. */
static inline int net_feed(const void *user, int64_t row, gckpt_feed *f)
{
    (void)user;
    f[0] = (gckpt_feed){ gckpt_id(net.x), x_data + row * net.t * net.c };
    f[1] = (gckpt_feed){ gckpt_id(net.tokens), token_data + row * net.t };
    f[2] = (gckpt_feed){ gckpt_id(net.targets[0]), target_data[0] + row * net.t };
    f[3] = (gckpt_feed){ gckpt_id(net.targets[1]), target_data[1] + row * net.t };
    f[4] = (gckpt_feed){ gckpt_id(net.lengths), length_data + row };
    f[5] = (gckpt_feed){ gckpt_id(net.bytes), byte_data + row * net.t * net.c };
    return NET_FEEDS;
}

/* ---- user-defined ops ---- */
static inline gckpt_result net_saving_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    call->saved_bytes = (size_t)count_of(&call->shape) * sizeof(float);
    return GCKPT_OK;
}
static inline gckpt_result net_once_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
/* Returns x |x| / 2 + x; saves the derivative. */
static inline void net_saving_forward(const gckpt_call *call)
{
    const float *x = call->in[0].data;
    for (int64_t i = 0, n = count_of(&call->shape); i < n; i++) {
        const float deriv = 1 + (x[i] < 0 ? -x[i] : x[i]);
        if (call->out)
            call->out[i] = x[i] * (0.5f + 0.5f * deriv);
        if (call->saved)
            ((float *)call->saved)[i] = deriv;
    }
}
static inline void net_saving_backward(const gckpt_call *call)
{
    const float *deriv = (const float *)call->saved;
    float *grad = call->in[0].grad;
    for (int64_t i = 0, n = count_of(&call->shape); i < n && grad; i++)
        grad[i] = call->in[0].accumulate ? gckpt_fma(call->grad_out[i], deriv[i], grad[i])
                                         : call->grad_out[i] * deriv[i];
}
/* User-defined op y = x with a side effect, so that it must run once in each micro-batch. */
static inline void net_once_forward(const gckpt_call *call)
{
    if (call->out && call->out != call->in[0].data)
        memcpy(call->out, call->in[0].data, (size_t)count_of(&call->shape) * sizeof(float));
}
static inline void net_once_backward(const gckpt_call *call)
{
    float *grad = call->in[0].grad;
    for (int64_t i = 0, n = count_of(&call->shape); i < n && grad && grad != call->grad_out; i++)
        grad[i] = call->in[0].accumulate ? grad[i] + call->grad_out[i] : call->grad_out[i];
}
static const gckpt_op net_saving = { .name = "net_own",
                                  .shape = net_saving_shape,
                                  .forward = net_saving_forward,
                                  .backward = net_saving_backward,
                                  .needs = { GCKPT_SAVED },
                                  .flags = GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD };
static const gckpt_op net_once = { .name = "net_once",
                                   .shape = net_once_shape,
                                   .forward = net_once_forward,
                                   .backward = net_once_backward,
                                   .needs = { 0 },
                                   .flags = GCKPT_SIDE_EFFECT | GCKPT_PASSES_GRAD(0) };

/* ---- the graph ---- */

/* Records a node of the graph; called for every node, since some builders make several nodes. */
static void note_built(int id)
{
    gckpt_node n;
    CHECK(gckpt_graph_node(net.g, id, &n) == GCKPT_OK && n.inputs <= READS);
    net.nodes[id].is_op = strcmp(n.op, "reshape") != 0;
    net.nodes[id].base = net.nodes[id].is_op ? id : net.nodes[n.input[0]].base;
    net.nodes[id].data = !n.batch_invariant;
    for (int i = 0; i < READS; i++) {
        net.nodes[id].in[i] = i < n.inputs ? net.nodes[n.input[i]].base : -1;
        if (i < n.inputs)
            net.used[n.input[i]] = net.used[net.nodes[id].in[i]] = 1;
    }
}

/* Notes the inputs of t. */
static T *note5(T *t, T *a, T *b, T *c, T *d, T *e)
{
    T *in[READS] = { a, b, c, d, e };
    int id = gckpt_id(t), fresh = id > net.count;
    if (!CHECK_MSG(t != NULL && id < MOST, "build: %s", gckpt_error_text(net.g)))
        exit(check_report("random graphs"));
    if (net.nodes[id].t) /* a parameter that an earlier op uses as well */
        return t;
    for (; net.count < id; net.count++)
        note_built(net.count);
    net.nodes[id].t = t;
    net.count = id + 1;
    if (fresh) {
        note_built(id);
        return t;
    }
    net.nodes[id].base = id;
    net.nodes[id].is_op = a != NULL;
    for (int i = 0; i < READS; i++) {
        net.nodes[id].in[i] = in[i] ? net.nodes[gckpt_id(in[i])].base : -1;
        if (in[i]) {
            net.used[gckpt_id(in[i])] = net.used[net.nodes[id].in[i]] = 1;
            net.nodes[id].data |= net.nodes[gckpt_id(in[i])].data;
        }
    }
    return t;
}
static T *note4(T *t, T *a, T *b, T *c, T *d) { return note5(t, a, b, c, d, NULL); }
static T *note3(T *t, T *a, T *b, T *c) { return note4(t, a, b, c, NULL); }
static T *note(T *t, T *a) { return note3(t, a, NULL, NULL); }
static T *note2(T *t, T *a, T *b) { return note3(t, a, b, NULL); }
static T *mul(T *a, T *b) { return note2(B(mul)(a, b), a, b); }
static T *view(T *x, gckpt_shape shape)
{
    T *t = note(B(reshape)(x, shape), x);
    net.nodes[gckpt_id(t)].is_op = 0;
    net.nodes[gckpt_id(t)].base = net.nodes[gckpt_id(x)].base;
    return t;
}
static T *concat(T *a, T *b, T *c, int axis)
{
    T *in[3] = { a, b, c };
    return note3(B(concat)(in, c ? 3 : 2, axis), a, b, c);
}
static T *net_apply(const gckpt_op *row, T *x)
{
    T *in[1] = { x };
    net_cover("gckpt_apply");
    return note(gckpt_apply(row, in, 1, NULL, 0), x);
}
static int64_t elements(const T *t)
{
    gckpt_shape s = gckpt_shape_of(t);
    return count_of(&s);
}
static T *param(gckpt_shape shape, float normal, float constant)
{
    char name[16];
    snprintf(name, sizeof name, "p%d", net.params++);
    return net.weight[net.weights++] =
               note(B(param)(net.g, name, shape, (gckpt_init){ normal, 0, constant }), NULL);
}

/* Returns a weight of shape (i,o): a parameter or a function of parameters, new or already used by another op. */
static T *weight(int64_t i, int64_t o)
{
    static const int swap[2] = { 1, 0 };
    T *t = NULL, *u;
    for (int k = 0, reuse = chance(45); reuse && k < net.weights; k++) {
        gckpt_shape s = gckpt_shape_of(net.weight[k]);
        t = s.n == 2 && s.d[0] == i && s.d[1] == o && (!t || chance(40)) ? net.weight[k] : t;
    }
    if (t || net.depth > 1)
        return t ? t : param(gckpt_shape2(i, o), 0.4f, 0);
    net.depth++;
    switch (below(20)) {
    case 12: /* the weight is made of rows of a table that a constant selects */
        if (i <= LARGEST) {
            u = note(B(constant)(net.g, "rows", GCKPT_I32, gckpt_shape1(i), constant_rows), NULL);
            t = weight(i + 2, o), t = note2(B(embed)(t, u), t, u);
        }
        break;
    case 13: t = net_apply(&net_saving, weight(i, o)); break;
    case 0: t = weight(i, o), t = note(B(tanh)(t), t), t = note(B(scale)(t, 1.5f), t); break;
    case 1: t = view(weight(o, i), gckpt_shape2(i, o)); break;
    case 2: t = weight(o, i), t = note(B(permute)(t, swap, 2), t); break;
    case 3: t = weight(i, o), t = mul(t, t); break;
    case 4: t = weight(i + 2, o), t = note(B(slice)(t, 0, 1, i + 1), t); break;
    case 5: t = o % 2 ? NULL : weight(i, o / 2), t = t ? concat(t, t, NULL, 1) : NULL; break;
    case 6: t = weight(i, 3), u = weight(3, o), t = note2(B(matmul)(t, u), t, u); break;
    case 7:
        t = weight(i, o), t = note(chance(50) ? B(softmax)(t) : B(layernorm)(t, NULL, NULL, 0), t);
        break;
    case 8:
        t = weight(i, o), u = note(B(sum)(t, 1), t), t = mul(t, view(u, gckpt_shape2(i, 1)));
        break;
    case 9: t = weight(i, o), u = weight(i, o), t = note2(B(add)(t, u), t, u); break;
    case 10: t = weight(i, o), t = note(B(dropout)(t, 0.25f), t), net.dropout = 1; break;
    case 11: t = weight(i, o), u = weight(o, o), t = note2(B(linear)(t, u, NULL), t, u); break;
    default: break;
    }
    net.depth--;
    return t ? net.weight[net.weights++] = t : param(gckpt_shape2(i, o), 0.4f, 0);
}

static T *vector(int64_t n, float constant)
{
    T *t;
    switch (below(6)) {
    case 0: t = weight(3, n); return note(B(mean)(t, 0), t);
    case 1: return view(weight(1, n), gckpt_shape1(n));
    case 2: return view(param(gckpt_shape2(n, 1), 0.2f, constant), gckpt_shape1(n));
    default: return param(gckpt_shape1(n), 0.2f, constant);
    }
}

/* Returns a tensor of the pool that can be broadcast with x (if `equal`, one with the shape of x); or x itself. */
static T *partner(T *x, int equal)
{
    T *found = x;
    gckpt_shape a = gckpt_shape_of(x);
    for (int k = 0, self = chance(20); k < net.pooled && !self; k++) {
        gckpt_shape b = gckpt_shape_of(net.pool[k]);
        int fits = a.n == b.n && a.d[0] == b.d[0];
        int64_t n = a.d[0] / net.rows;
        for (int i = 1; i < a.n && fits; i++) {
            fits = a.d[i] == b.d[i] || (!equal && (a.d[i] == 1 || b.d[i] == 1));
            n *= a.d[i] > b.d[i] ? a.d[i] : b.d[i];
        }
        found = fits && n <= LARGEST && chance(40) ? net.pool[k] : found;
    }
    return found;
}

/* Returns loss weights between 0 and 1 for the first n axes of x, or NULL. */
static T *loss_weights(T *x, int n)
{
    T *t = x;
    if (chance(30))
        return NULL;
    for (int k = gckpt_shape_of(x).n; k > n; k--)
        t = note(B(mean)(t, k - 1), t);
    return note(B(sigmoid)(t), t);
}

/* Returns an elementwise loss of x. Its targets are t, or sigmoid(t) for cross-entropy. */
static T *loss_elements(int kind, T *x, T *t)
{
    T *w = loss_weights(x, 1 + (int)below(gckpt_shape_of(x).n));
#ifdef GCKPT_NO_LOSSES
    kind = 5, w = NULL;
#endif
    if (kind == 5)
        return note3(B(mean_squared_error)(x, t, w), x, t, w);
#ifndef GCKPT_NO_LOSSES
    if (kind == 6)
        return note3(B(huber)(x, t, w, 0.7f), x, t, w);
    t = note(B(sigmoid)(t), t);
    return note3(B(binary_cross_entropy)(x, t, w), x, t, w);
#endif
}

static void add_loss(T *x)
{
    gckpt_shape s = gckpt_shape_of(x);
    T *t = partner(x, 1), *w;
    int kind = (int)below(10), index = (int)below(2);
    if (net.terms >= 3)
        return;
    if (kind == 0) {
        t = t != x ? t : elements(x) == elements(net.x) ? view(net.x, s) : note(B(sigmoid)(x), x);
        t = note2(B(mean_squared_error)(x, t, NULL), x, t);
    } else if (kind == 1) {
        /* squares before summing: in a sum whose terms cancel, differences in rounding could disappear */
        t = net.smooth || chance(70) ? mul(x, x) : x;
        t = note(B(sum_loss)(t), t);
#ifndef GCKPT_NO_LOSSES
    } else if (kind == 8) {
        t = note(B(softmax)(t), t), w = loss_weights(x, s.n - 1);
        t = note3(B(soft_cross_entropy)(x, t, w), x, t, w);
#endif
    } else if (kind >= 5 && kind <= 7) {
        t = loss_elements(kind, x, t == x && elements(x) == elements(net.x) ? view(net.x, s) : t);
    } else {
        if (s.n != 3 || s.d[0] != net.rows || s.d[1] != net.t) {
            t = view(x, gckpt_shape2(net.rows, -1));
            w = weight(elements(t) / net.rows, net.t * 4);
            x = view(note2(B(linear)(t, w, NULL), t, w), gckpt_shape3(net.rows, net.t, 4));
        }
        t = net.targets[index], w = weight(V, gckpt_shape_of(x).d[2]);
#ifndef GCKPT_NO_LINEAR_LOSS
        if (kind < 4) {
            const gckpt_linear_loss_desc capped = { chance(50) ? 2.5f : 0 };
            t = note3(chance(50) ? B(linear_cross_entropy)(x, w, t, NULL) : B(linear_cross_entropy)(x, w, t, &capped),
                      x, w, t);
        } else
#endif
        {
            x = note2(B(linear_transposed)(x, w, NULL), x, w);
#ifndef GCKPT_NO_LOSSES
            w = kind == 9 ? loss_weights(x, 1 + (int)below(2)) : NULL;
            t = kind == 9 ? note3(B(cross_entropy)(x, t, w, 0.125f), x, t, w)
                          : note2(B(cross_entropy)(x, t, NULL, 0), x, t);
#else
            t = note2(B(cross_entropy)(x, t, NULL, 0), x, t);
#endif
        }
    }
    net.term[net.terms] = (gckpt_term){ t, net.terms == 0 || chance(50) ? 1.0f : 0.3f, 0 };
    net.terms++;
}

#ifndef GCKPT_NO_RECURRENT
/* Returns a recurrent layer over x; bias and start (the initial state) may be NULL. */
static T *recurrent(T *x, int gru, int64_t units, T *bias, T *start)
{
    gckpt_shape s = gckpt_shape_of(x);
    gckpt_recurrent_desc desc = { .h0 = start, .c0 = gru ? NULL : start, .reset_before = gru && chance(40) };
    desc.lengths = s.d[0] == net.rows && s.d[1] >= NET_LENGTH && chance(40) ? net.lengths : NULL;
    T *wx = weight(s.d[2], (gru ? 3 : 4) * units), *wh = weight(units, (gru ? 3 : 4) * units);
    T *t = gru ? B(gru)(x, wx, NULL, wh, bias, &desc) : B(lstm)(x, wx, wh, bias, &desc);
    return note4(t, x, wx, wh, desc.lengths);
}
#endif

#ifndef GCKPT_NO_IMAGES
/* Returns a convolution of x, which is an image or a signal. */
static T *convolution(T *x, T *bias, int64_t o, int transposed)
{
    gckpt_shape s = gckpt_shape_of(x);
    const int signal = s.n == 3, full = chance(30);
    const int64_t c = s.d[s.n - 1], groups = full && (!transposed || o == c) ? c
                                             : c % 2 == 0 && o % 2 == 0      ? 1 + chance(50)
                                                                             : 1;
    const int64_t results = full && groups == c ? c : o, each = (transposed ? results : c) / groups;
    gckpt_window to = { .groups = (int)groups };
    int64_t taps[2] = { 1, 1 };
    for (int i = signal; i < 2; i++) {
        taps[i] = 1 + (int64_t)below(3);
        to.stride[i] = 1 + (int)below(3), to.dilation[i] = 1 + chance(30);
        /* adds so much padding that x of any size gives a result */
        to.padding[i] = (int)((taps[i] - 1) * to.dilation[i] / 2);
        to.padding[i] += !transposed && (taps[i] - 1) * to.dilation[i] % 2;
        to.output_padding[i] = transposed ? (int)below(to.stride[i]) : 0;
    }
    T *w = weight(taps[0] * taps[1] * each, transposed ? c : results), *t;
    bias = bias && gckpt_shape_of(bias).d[0] == results ? bias : NULL;
    if (signal) {
        w = view(w, gckpt_shape3(taps[1], each, -1));
        t = transposed ? B(conv1d_transposed)(x, w, bias, &to) : B(conv1d)(x, w, bias, &to);
    } else {
        w = view(w, gckpt_shape4(taps[0], taps[1], each, -1));
        t = transposed ? B(conv2d_transposed)(x, w, bias, &to) : B(conv2d)(x, w, bias, &to);
    }
    return note3(t, x, w, bias);
}

/* Returns a frozen parameter of this shape. */
static T *net_frozen(gckpt_shape shape)
{
    char name[16];
    float terms = 1;
    for (int i = 0; i + 1 < shape.n; i++)
        terms *= (float)shape.d[i];
    T *t = param(shape, 1 / sqrtf(terms), 0);
    snprintf(name, sizeof name, "p%d", net.params - 1);
    gckpt_store_freeze(net.s, name, 1);
    return t;
}
/* Returns frozen layers on an image made of x, which may run in row tiles, and then the mean over the pixels. */
static T *net_trunk(T *x)
{
    /* the image is wide, since row tiles only save memory if its values take most of the bytes */
    T *t = view(x, gckpt_shape4(net.rows, -1, 2, 1)), *y, *z;
    for (int i = 4 + (int)below(5); i > 0; i--) {
        const gckpt_shape s = gckpt_shape_of(t);
        const int64_t c = s.d[3], o = 6 + (int64_t)below(15);
        const gckpt_window to = { .stride = { 1 + chance(15), 1 },
                                  .padding = { 1 - chance(20), 1 } };
        const gckpt_window pool = { .size = { 1 + (int)below(3), 1 }, .stride = { 1, 1 } };
        y = t;
        if (s.d[1] > 2 && chance(50))
            z = net_frozen(gckpt_shape4(3, 3, c, o)), t = note2(B(conv2d)(t, z, NULL, &to), t, z);
        else if (s.d[1] > 2 && chance(20))
            t = note(chance(50) && !net.smooth ? B(max_pool)(t, &pool) : B(average_pool)(t, &pool),
                     t);
        else if (chance(30))
            z = net_frozen(gckpt_shape2(c, o)), t = note2(B(linear)(t, z, NULL), t, z);
        else if (chance(50))
            z = note(B(silu)(t), t), t = note2(B(add)(y, z), y, z);
        else
            t = note(B(tanh)(t), t);
    }
    const gckpt_shape s = gckpt_shape_of(t);
    t = view(t, gckpt_shape3(net.rows, s.d[1], -1));
    return note(B(mean)(t, 1), t);
}
/* Applies an op on images to x. random_op has drawn the other arguments: o is a number of channels. */
static T *image_op(T *x, int kind, int64_t o, int a, int b)
{
    const gckpt_shape s = gckpt_shape_of(x);
    int64_t c = s.d[s.n - 1], per_row = elements(x) / net.rows;
    gckpt_window w = { .groups = 0 };
    char name[16];
    T *y, *z;
    switch (kind) {
    case 34:
    case 35: /* a convolution of x; an x with two axes, and sometimes one with three, becomes an image first */
        if (s.n == 2 || (s.n == 3 && chance(50)))
            x = view(x, gckpt_shape4(net.rows, s.n == 2 ? 1 : s.d[1], -1, s.n == 2 ? 1 : c));
        return gckpt_shape_of(x).n < 5 ? convolution(x, a ? vector(o, 0) : NULL, o, kind == 34)
                                       : NULL;
    case 36: /* pools an image or a signal; max pooling has kinks */
        if (s.n < 3 || s.n > 4 || (net.smooth && b))
            return NULL;
        for (int i = 0; i < 2; i++) {
            const int64_t n = s.d[s.n - 3 + i];
            o = 1 + (int64_t)below(3), w.size[i] = (int)(i || s.n == 4 ? o < n ? o : n : 1);
            w.stride[i] = (int)below(3), w.padding[i] = (int)below(w.size[i]);
            w.dilation[i] = chance(30) && (w.size[i] - 1) * 2 < n ? 2 : 0;
        }
        w.ceil = chance(30), w.exclude_padding = !b && chance(30);
        return note(b ? B(max_pool)(x, &w) : B(average_pool)(x, &w), x);
    case 37:
        if (s.n > 2 && chance(30))
            return note(B(global_average_pool)(x), x);
        /* with few values to normalise, the function would be too nonlinear for finite differences */
        o = c % 4 == 0   ? 1 << below(3)
            : chance(50) ? c
                         : 1;
        o = per_row / o < 6 ? 1 : o, y = a ? vector(c, 1) : NULL, z = b ? vector(c, 0) : NULL;
        int64_t values = 1; /* values that share an index of the first axis, which is not always a row of the batch */
        for (int i = 1; i < s.n; i++)
            values *= s.d[i];
        if (values == o) /* groupnorm refuses groups of one value */
            return NULL;
        return note3(B(groupnorm)(x, (int)o, y, z, chance(50) ? 1e-3f : 0), x, y, z);
    case 38: /* batch norm mixes rows; its running statistics are not trained */
        if (!(net_features & NET_MIXING) || net.seed % 6 != 2 || s.d[0] != net.rows || per_row == c)
            return NULL; /* batch norm needs two values per channel, which a micro-batch of one row would not have */
        snprintf(name, sizeof name, "m%d", net.mixes++);
        y = note(B(running)(net.g, name, gckpt_shape1(c), (gckpt_init){ 0, 0, 0 }, 0.25f), NULL);
        name[0] = 'v';
        z = note(B(running)(net.g, name, gckpt_shape1(c), (gckpt_init){ 0, 0, 1 }, 0.25f), NULL);
        return note3(B(batchnorm)(x, NULL, a ? vector(c, 0) : NULL, y, z, 0), x, y, z);
    default: /* upsampling; an x with two or three axes becomes an image first */
        if (s.n > 4)
            return NULL;
        x = s.n == 4 ? x : view(x, gckpt_shape4(s.d[0], s.n == 2 ? 1 : s.d[1], -1, s.n == 2 || a ? 1 : c));
        o = 1 + below(5), c = 1 + below(5);
        y = note(B(upsample)(x, o, c, (gckpt_upsampling)below(3)), x);
        return s.n == 4 ? y : view(y, gckpt_shape3(s.d[0], gckpt_shape_of(y).d[1], -1));
    }
}
#endif

#ifndef GCKPT_NO_ATTENTION
#ifndef GCKPT_NO_RECURRENT
/* Returns the gated delta rule of x, y and z; its factors are columns of them, or computed from them. */
static T *delta(T *x, T *y, T *z, int heads)
{
    const int64_t c = gckpt_shape_of(x).d[2];
    T *w = weight(c, heads), *decay = chance(50) ? note(B(slice)(z, 2, 0, heads), z) : note2(B(linear)(y, w, NULL), y, w);
    T *beta = decay;
    if (chance(70)) {
        beta = note2(B(linear)(x, w, NULL), x, w);
        beta = note(B(sigmoid)(beta), beta);
    }
    y = note(B(scale)(y, 0.25f), y); /* large keys would let the state grow */
#ifndef GCKPT_NO_CACHES
    T **const in[4] = { &y, &z, &decay, &beta };
    for (int i = 0; net.cached && i < 4; i++)
        *in[i] = note(B(cache)(*in[i], NET_CAPACITY), *in[i]);
#endif
    const gckpt_attention_desc desc = { .heads = heads, .causal = 1, .scale = chance(50) ? 0.4f : 0, .decay = decay,
                                        .beta = beta };
    return note5(B(attention)(x, y, z, &desc), x, y, z, decay, beta);
}
#endif

/* Returns attention with queries x, keys y and values z. Two heads may share the first half of keys and values, or
 * keys and values may be cached. */
static T *attention(T *x, T *y, T *z, int heads)
{
    const gckpt_shape s = gckpt_shape_of(x);
    const int shared = heads == 2 && chance(50), same = y == z, own = z == x;
    const int cached = net.cached && s.d[0] == net.rows && s.d[1] == net.t;
    gckpt_attention_desc desc = { .heads = heads, .key_heads = shared };
#ifndef GCKPT_NO_RECURRENT
    /* decided without chance(), so that nets without it stay as they were */
    if (gckpt_id(x) % 4 == 2 && !shared && cached == net.cached && gckpt_shape_of(y).d[1] == s.d[1])
        return delta(x, y, z, heads);
#endif
    if (shared) {
        y = note(B(slice)(y, 2, 0, s.d[2] / 2), y);
        z = same ? y : note(B(slice)(z, 2, 0, s.d[2] / 2), z);
    }
#ifndef GCKPT_NO_CACHES
    if (cached && gckpt_id(y) % 4 == 1) { /* the rows of y once more, as the latest ones of a cache */
        T *held = note(B(cache)(y, NET_CAPACITY), y);
        y = note(B(slice)(held, 1, -gckpt_shape_of(y).d[1], NET_CAPACITY), held);
    }
    if (cached) {
        y = note(chance(50) ? B(cache)(y, NET_CAPACITY) : B(cache_window)(y, NET_CAPACITY, 1 + below(4)), y);
        z = own || chance(50) ? y : note(B(cache)(z, NET_CAPACITY), z);
    }
#endif
    if (!cached && chance(30)) { /* a mask: one column of keys for all, or each pair of positions of one or all heads */
        const int64_t t = s.d[1], keys = gckpt_shape_of(y).d[1], h = chance(50) ? heads : 1;
        desc.mask = chance(30)   ? view(weight(1, keys), gckpt_shape1(keys))
                    : chance(50) ? weight(t, keys)
                                 : view(weight(h * t, keys), gckpt_shape4(1, h, t, keys));
        desc.cap = chance(30) ? 1.5f : 0;
        return note4(B(attention)(x, y, z, &desc), x, y, z, desc.mask);
    }
    desc.causal = cached || chance(50);
    if (!cached && s.d[0] == net.rows && s.d[1] >= NET_LENGTH && chance(50))
        desc.lengths = net.lengths;
    if (chance(40))
        desc.cap = chance(50) ? 1.5f : 0, desc.scale = chance(50) ? 0.4f : 0,
        desc.window = desc.causal ? (int64_t)below(5) : 0;
    if (!shared && !desc.lengths && !desc.window && !(desc.cap > 0) && !(desc.scale > 0) && chance(50))
        return note3(B(attention)(x, y, z, &(gckpt_attention_desc){ .heads = heads, .causal = desc.causal }), x, y, z);
    return note4(B(attention)(x, y, z, &desc), x, y, z, desc.lengths);
}

/* Returns x with rotary positions on some columns of each head, with given frequencies or a base, with or without a
 * scale. */
static T *rotary_of(T *x, int heads)
{
    static const float frequencies[3] = { 1.0f, 0.25f, 0.01f };
    const gckpt_shape s = gckpt_shape_of(x);
    const int64_t pairs = s.n == 3 ? s.d[2] / heads / 2 : 0;
    gckpt_rotary_desc desc = { heads, 0, below(4), 0, chance(50) ? frequencies : NULL, 0 };
    if (pairs < 1)
        return NULL;
    desc.columns = 2 * (1 + below(pairs < 3 ? (unsigned)pairs : 3));
    desc.scale = chance(50) ? 1.25f : 0;
    return note(B(rotary)(x, &desc), x);
}
#endif

/* The next functions apply one or a few random ops to x, and return NULL if an op does not fit. */
/* Returns a selection between a and b by condition; sometimes replaces b by a parameter first, or exchanges a and b. */
static T *choice(T *condition, T *a, T *b)
{
    T *t;
    if (chance(30))
        b = chance(50) ? vector(gckpt_shape_of(a).d[gckpt_shape_of(a).n - 1], 0) : weight(1, 1);
    if (chance(50))
        t = a, a = b, b = t;
    return note3(B(where)(condition, a, b), condition, a, b);
}
static T *net_elu(T *x) { return gckpt_activation(x, GCKPT_ELU, 0.5f); }

static T *net_prelu(T *x) { return gckpt_prelu(x, vector(gckpt_shape_of(x).d[gckpt_shape_of(x).n - 1], 0)); }

static T *random_op(T *x)
{
    static const struct {
        const char *name;
        T *(*unary)(T *);
    } unaries[] = {
#define LISTED(name)   { "gckpt_" #name, gckpt_##name },
#define NOT_LISTED(name)
#define SMOOTH   LISTED
#define KINKED   NOT_LISTED
#define POSITIVE NOT_LISTED
#define STEEP    NOT_LISTED
#define UNARY(name, reads, kind, ...) kind(name)
        UNARY_TESTS(UNARY){ "gckpt_softmax", gckpt_softmax },
#undef SMOOTH
#undef KINKED
#define SMOOTH NOT_LISTED
#define KINKED LISTED
        UNARY_TESTS(UNARY){ "gckpt_activation", net_elu }, /* those with kinks come last */
        { "gckpt_prelu", net_prelu },
#undef SMOOTH
#undef KINKED
#undef POSITIVE
#undef STEEP
#undef LISTED
#undef NOT_LISTED
#undef UNARY
    };
    enum { KINKS = 6 }; /* relu, abs, selu, hardswish, elu, prelu */
    const int unary_count = (int)(sizeof unaries / sizeof *unaries);
    T *y, *z;
    gckpt_shape s = gckpt_shape_of(x);
    int64_t c = s.d[s.n - 1],
            o = chance(50)   ? net.c
                : chance(50) ? c
                             : 4,
            per_row = elements(x) / net.rows;
    int heads = c % 4 == 0 && chance(50) ? 2 : 1, axis = 1 + (int)below(s.n - 1),
        even = s.n == 3 && c % (2 * heads) == 0;
    int a = chance(50), b = chance(50), axes[GCKPT_MAX_DIMS] = { 0, 1, 2, 3, 4, 5 };
    const int kind = (int)below(NET_KINDS);
    switch (kind) {
    case 0:
    case 1:
        for (int i = 0; i < 2; i++, x = y) {
            a = (int)below(unary_count - (net.smooth ? KINKS : 0)), net_cover(unaries[a].name);
            y = note(unaries[a].unary(x), x);
        }
        return y;
    case 2: y = note(B(scale)(x, 0.75f), x); return a && b ? note(B(sin)(y), y) : y;
    case 3:
    case 4:
        y = weight(c, o), z = a ? vector(o, 0) : NULL;
        return note3(B(linear)(x, y, z), x, y, z);
    case 5:
        y = weight(o, c), z = a ? vector(o, 0) : NULL;
        return note3(B(linear_transposed)(x, y, z), x, y, z);
    case 6:
        y = a ? vector(c, 1) : NULL, z = b ? vector(c, 0) : NULL;
        return note3(chance(70) ? B(layernorm)(x, y, z, 0) : B(layernorm)(x, y, z, 0.0625f), x, y, z);
    case 7:
        y = a ? vector(c, 1) : NULL;
        return note2(b ? B(rmsnorm)(x, y, 0) : B(rmsnorm)(x, y, 1e-6f), x, y);
#ifndef GCKPT_NO_ATTENTION
    case 8:
    case 9:
        x = even && b ? note(B(rotary)(x, &(gckpt_rotary_desc){ .heads = heads }), x) : x;
        y = partner(x, 1), z = a ? y : partner(y, 1);
        return s.n == 3 ? attention(x, y, z, heads) : NULL;
    case 10:
        return even && chance(60)
                   ? note(b ? B(rotary)(x, &(gckpt_rotary_desc){ .heads = heads, .base = a ? 0 : 100.0f })
                            : B(rotary)(x, &(gckpt_rotary_desc){ .heads = heads, .position = 3 }),
                          x)
                   : rotary_of(x, heads);
    case 24:
        y = s.n == 3 ? weight(net.cached ? 2 + NET_CAPACITY : s.d[1] + 2, c) : NULL;
        if (!y || (net.cached && s.d[1] > NET_CAPACITY))
            return NULL;
        return note2(B(positions)(x, y, a || net.cached ? 2 : 0), x, y);
#endif
    case 11: y = partner(x, 1); return a ? concat(x, y, x, axis) : concat(y, x, NULL, axis - s.n);
    case 12:
        return s.d[axis] > 2 ? note(B(slice)(x, axis - (b ? s.n : 0), a, s.d[axis] - b), x) : NULL;
    case 13: axes[axis] = s.n - 1, axes[s.n - 1] = axis; return note(B(permute)(x, axes, s.n), x);
    case 14:
    case 15:
        return s.n == 3 && a          ? view(x, gckpt_shape2(s.d[0] * s.d[1], c))
               : c % 2 == 0 && b      ? view(x, gckpt_shape3(net.rows, c / 2, -1))
               : per_row % net.c == 0 ? view(x, gckpt_shape3(net.rows, per_row / net.c, net.c))
                                      : view(x, gckpt_shape4(net.rows, 1, -1, c));
    case 16:
    case 17:
        y = note(a ? B(sum)(x, axis) : B(mean)(x, axis - s.n), x), s.d[axis] = 1;
        return s.n == 2 || b ? view(y, s) : y;
    case 18: net.dropout = 1; return note(B(dropout)(x, 0.3f), x);
    case 19: y = partner(x, 0); return note2(a ? B(add)(x, y) : B(sub)(y, x), x, y);
    case 20: y = mul(partner(x, 0), x); return note(B(tanh)(y), y);
    case 21:
        if (s.n < 3)
            return NULL;
        y = partner(x, 1), z = note2(B(matmul_transposed)(x, y), x, y);
        z = a ? note(B(softmax)(z), z) : note(B(scale)(z, 0.2f), z);
        return b ? z : note2(B(matmul)(z, y), z, y);
    case 22:
        y = weight(c, o);
        if (s.n == 3 && a && chance(50)) /* a left matrix for all rows */
            return y = weight(o, s.d[1]), note2(B(matmul)(y, x), y, x);
        if (s.n == 3 && b && chance(50)) /* both are broadcast */
            y = weight(2 * c, o), y = view(y, gckpt_shape3(2, c, o)),
            x = view(x, gckpt_shape4(s.d[0], 1, s.d[1], c));
        return note2(B(matmul)(x, y), x, y);
    case 23: /* one operand has no batch axis */
        y = chance(30)   ? weight(s.n > 2 ? s.d[s.n - 2] : 1, c)
            : chance(30) ? weight(1, 1)
                         : vector(c, 1);
        if (chance(25))
            y = note(B(constant)(net.g, "k", GCKPT_F32, gckpt_shape1(c), constant_data), NULL);
        else if (chance(25))
            z = vector(5, 0), y = note(B(sum)(z, 0), z); /* scalar */
        y = chance(50) ? mul(y, y) : y;
        return a ? mul(y, x) : note2(b ? B(add)(x, y) : B(sub)(y, x), x, y);
    case 25: /* ops whose inputs must be positive */
        y = note(B(sigmoid)(x), x);
        return note(a ? (b ? B(log)(y) : B(sqrt)(y)) : B(pow)(y, b ? 2.5f : -0.5f), y);
    case 26:
        y = note(B(tanh)(x), x), y = note(B(exp)(y), y), z = partner(x, 0);
        return a && b ? note(B(pow)(y, -1), y) : note2(B(div)(a ? z : y, y), a ? z : y, y);
    case 27:
        y = a || b ? x : note(B(sigmoid)(x), x);
        return note(a ? B(log_softmax)(y) : b ? B(pow)(y, 2) : B(exp)(y), y);
    case 28:
    case 29: /* ops with kinks, and gckpt_detach; finite differences cannot check their gradients */
        if (net.smooth)
            return NULL;
        y = partner(x, 0), z = chance(50) ? note(B(detach)(x), x) : x;
        if (chance(30))
            return chance(50) ? note(B(activation)(x, GCKPT_LEAKY_RELU, 0.25f), x) : choice(z, x, y);
        if (a)
            z = note2(b ? B(maximum)(z, y) : B(minimum)(y, z), z, y), b = !b;
        return b ? note(B(abs)(z), z) : a ? z : note(B(clamp)(z, -0.5f, 0.75f), z);
    case 47: /* the tokens, some of which are 0, are the condition of a selection */
        z = s.d[0] != net.rows || s.n > 3 ? NULL
            : s.n == 3 && s.d[1] == net.t ? view(net.tokens, gckpt_shape3(net.rows, net.t, 1))
            : s.n == 2 && c == net.t      ? net.tokens
                                          : NULL;
        return z ? choice(z, x, partner(x, 0)) : NULL;
#ifndef GCKPT_NO_RECURRENT
    case 31:
    case 32: /* a recurrent layer whose initial state is a mean of x over time */
        if (s.n != 3)
            return NULL;
        o = 1 + (int64_t)below(4), y = a ? weight(c, o) : NULL;
        z = a ? note2(B(linear)(x, y, NULL), x, y) : NULL;
        z = z ? note(B(mean)(z, 1), z) : NULL;
        return recurrent(x, kind == 31, o, b ? vector(kind == 31 ? 3 * o : 4 * o, 0) : NULL, z);
#endif
    case 33: /* gathers elements of x, reshaped, at indices from the tokens */
        y = per_row % (V + 1) == 0 ? view(x, gckpt_shape3(net.rows, V + 1, -1)) : NULL;
        y = !y && per_row > V ? view(x, gckpt_shape3(net.rows, per_row, 1)) : y;
        return y ? note2(B(gather)(y, net.tokens), y, net.tokens) : NULL;
#ifndef GCKPT_NO_IMAGES
    case 34:
    case 35:
    case 36:
    case 37:
    case 38:
    case 46: return image_op(x, kind, o, a, b);
#endif
    case 39: return net_apply(&net_saving, x);
    case 40: return chance(30) ? net_apply(&net_once, x) : NULL;
    case 41: /* an op that reads x twice: a matrix product, a sum or an elementwise product */
        if (s.n == 3 && s.d[1] == c)
            return note2(B(matmul)(x, x), x, x);
        return note2(a ? B(add)(x, x) : B(mul)(x, x), x, x);
    case 42: B(name)(x, "named"); return NULL;
    case 43: /* x + x * y, where y is a tensor of the pool, so that branches join */
        y = partner(x, 0), z = mul(x, y);
        return note2(B(add)(z, x), z, x);
    case 44:
        o = below(3), c = a ? 0 : 1 + below(2);
        return note(B(pad)(x, axis - (b ? s.n : 0), o, c, chance(30) ? GCKPT_PAD_REPLICATE : GCKPT_PAD_VALUE,
                           b ? 0.5f : 0), x);
    /* max, the largest elements, or a table lookup at indices from argmax; they have ties and kinks, so finite
     * differences do not apply */
    case 45:
        if (net.smooth)
            return NULL;
        if (chance(30)) { /* a table has one column */
            c = 1 + (int64_t)below(s.d[axis]), y = a ? weight(s.d[axis], 1) : NULL;
            T *sorted = note(B(top_k)(x, axis, (int)c, a ? &z : NULL), x);
            if (!a)
                return sorted;
            note(z, x), z = note2(B(embed)(y, z), y, z), s.d[axis] = c;
            return view(z, s);
        }
        z = a ? note(B(argmax)(x, axis), x) : NULL, y = a ? weight(s.d[axis] + b, o) : NULL;
        y = a ? note2(B(embed)(y, z), y, z) : note(B(max)(x, axis - s.n), x), s.d[axis] = 1;
        return !a && (s.n == 2 || b) ? view(y, s) : y;
    default: /* adds an input of bytes, or an embedding of the tokens */
        if (a) {
            y = b ? view(net.bytes, gckpt_shape2(net.rows, -1)) : net.bytes;
            y = note(B(from_u8)(y, 1.0f / 128, -1), y);
            return b ? view(y, gckpt_shape3(net.rows, net.t, net.c)) : y;
        }
        y = weight(V, net.c);
        return note2(B(embed)(y, net.tokens), y, net.tokens);
    }
}
static void step(void)
{
    T *y = random_op(net.pool[chance(50) && net.pooled > 3 ? net.pooled - 1 - (int)below(3)
                                                      : (int)below(net.pooled)]);
    if (y && elements(y) / net.rows <= LARGEST)
        net.pool[net.pooled++] = y;
    if (chance(6))
        add_loss(net.pool[net.pooled - 1]);
}
static T *block(T *x, void *user)
{
    int depth = *(const int *)user + 1;
    for (int i = 1 + (int)below(4); i > 0; i--)
        if (depth < 3 && chance(25))
            B(checkpoint)(block, x, &depth);
        else
            step();
    return x;
}
/* Adds the same ops as block(), with gckpt_segment_begin and gckpt_segment_end instead of gckpt_checkpoint. */
static void manual_segment(void)
{
    B(segment_begin)(net.g);
    for (int i = 1 + (int)below(3); i > 0; i--)
        step();
    B(segment_end)(net.g);
}

/* Returns whether a gradient passes from t to p0. */
static int trains_first(const T *t)
{
    unsigned char passes[MOST] = { 0 };
    for (int i = 0; i <= gckpt_id(t); i++) {
        gckpt_node n;
        CHECK(gckpt_graph_node(net.g, i, &n) == GCKPT_OK);
        passes[i] = i == gckpt_id(net.weight[0]);
        for (int k = 0; k < n.inputs && strcmp(n.op, "detach") && strcmp(n.op, "argmax") && strcmp(n.op, "top_k_indices"); k++)
            passes[i] |= passes[n.input[k]];
    }
    return passes[gckpt_id(t)];
}

/* Adds the last loss, which reads nearly all results that no op reads. It also reads the first result, a product
 * with p0, if no other path leads from a loss to p0. */
static void join_outputs(void)
{
    int trained = 0;
    T *end = NULL, *t;
    for (int k = net.pooled, unused = 0; k-- > 0 && unused < 6;)
        if (!net.used[gckpt_id(net.pool[k])]) {
            t = view(net.pool[k], gckpt_shape2(net.rows, -1));
            t = unused++ && chance(50) ? note(B(mean)(t, 1), t) : t;
            t = view(t, gckpt_shape2(net.rows, -1));
            end = end ? concat(end, t, NULL, 1) : t;
        }
    net.terms = net.terms > 2 ? 2 : net.terms;
    end = end ? end : net.pool[net.pooled - 1];
    for (int i = 0; i < net.terms; i++)
        trained |= trains_first(net.term[i].loss);
    if (!trained && !trains_first(end))
        end = concat(view(end, gckpt_shape2(net.rows, -1)), view(net.pool[0], gckpt_shape2(net.rows, -1)), NULL, 1);
    add_loss(end);
}

/* Draws the batch size. This is always the first random number of a net. */
static inline int64_t net_batch(void) { return 3 + (int64_t)below(BATCH - 2); }

static void build(unsigned seed, int64_t rows)
{
    uint64_t saved = random_state;
    gckpt_store_desc desc = { .seed = seed };
    char name[16];
    int depth = 0;
    T *t;
    memset(&net, 0, sizeof net);
    net_seed(seed, 0);
    net.s = net_target_graph ? net_store : gckpt_store_new(&desc);
    net.g = net_target_graph ? net_target_graph : gckpt_graph_new(net.s, NULL);
    net.batch = net_batch();
    net.t = chance(4) ? 67 : 1 + (int64_t)below(6); /* 67 is more keys than one tile of attention has */
#ifndef GCKPT_NO_CACHES
    net.cached = net_features & NET_CACHES && seed % 8 == 3;
#endif
    net.alone = net_features & NET_ALONE && seed % 16 == 5;
    net.t = net.cached && net.t > NET_CAPACITY ? 2 : net.t;
    net.c = net.t > 60 ? 4 : chance(15) ? (seed % 2 ? 20 : 32) : 4 * (1 + (int64_t)below(3));
    net.smooth = seed % 2 == 0;
    net.seed = seed;
    net.rows = rows = rows ? rows : net.batch;
    net.x = note(B(input)(net.g, "x", GCKPT_F32, gckpt_shape3(rows, net.t, net.c)), NULL);
    net.tokens = note(B(input)(net.g, "tokens", GCKPT_I32, gckpt_shape2(rows, net.t)), NULL);
    net.targets[0] = note(B(input)(net.g, "a", GCKPT_I32, gckpt_shape2(rows, net.t)), NULL);
    net.targets[1] = note(B(input)(net.g, "b", GCKPT_I32, gckpt_shape2(rows, net.t)), NULL);
    net.lengths = note(B(input)(net.g, "lengths", GCKPT_I32, gckpt_shape1(rows)), NULL);
    net.bytes = note(B(input)(net.g, "bytes", GCKPT_U8, gckpt_shape3(rows, net.t, net.c)), NULL);
    net_cover("GCKPT_U8");
    for (int i = 0; i < NET_FEEDS; i++)
        net.nodes[i].data = 1;
    /* The first parameter. It is frozen only if net.alone is set: then only the regulariser's parameter is trained. */
    t = param(gckpt_shape2(net.c, net.c), 0.5f, 0);
    net.pool[net.pooled++] = note2(B(linear)(net.x, t, NULL), net.x, t);
    net.pool[net.pooled++] = net.x;
#ifndef GCKPT_NO_CACHES
    if (net.cached) { /* at least one op reads a cache */
        const uint64_t rest = random_state;
        T *seen = attention(net.x, net.x, net.x, 1);
        net.pool[net.pooled] = seen;
        net.pooled += seen != NULL;
#if !defined(GCKPT_NO_ATTENTION) && !defined(GCKPT_NO_RECURRENT)
        if (seed / 8 % 2)
            net.pool[net.pooled++] = delta(net.x, net.x, net.x, 1);
#endif
        random_state = rest;
    }
#endif
#ifndef GCKPT_NO_IMAGES
    if (seed % 4 == 2) {
        /* the random numbers after the frozen layers must not depend on these layers */
        const uint64_t rest = random_state;
        net.pool[net.pooled++] = net_trunk(net.x);
        random_state = rest;
    }
#endif
    int grown = net_op_count ? 1 + (int)below(net_op_count) : 5 + (int)below(net.smooth ? 6 : 14);
    for (; grown > 0; grown -= net_op_count ? 2 : 1)
        if (chance(25))
            B(checkpoint)(block, net.x, &depth);
        else if (chance(8))
            manual_segment();
        else
            step();
    join_outputs();
    if (chance(40) || net.alone) {
        t = net.alone ? param(gckpt_shape2(3, 3), 0.4f, 0) : net.weight[below(net.weights)];
        t = net.smooth || chance(80) ? mul(t, t) : t;
        net.term[net.terms++] = (gckpt_term){ note(B(sum_loss)(t), t), 0.01f, 1 };
    }
    for (int i = !net.alone; i < net.params - net.alone; i++) {
        snprintf(name, sizeof name, "p%d", i);
        CHECK(!(chance(12) || net.alone) || gckpt_store_freeze(net.s, name, 1) == GCKPT_OK);
    }
    for (int i = 0; i < net.count; i++) {
        gckpt_node n;
        CHECK(gckpt_graph_node(net.g, i, &n) == GCKPT_OK && net_cover(n.op));
    }
    random_state = saved;
}
static void destroy(void) { util_free(NULL, NULL, net.g, net.s); }

/* ---- requests ---- */
#ifndef GCKPT_NO_QUANT
/* Quantises some parameters, which also freezes them; the first parameter stays trainable. */
static inline void net_pack(void)
{
    char name[16];
    for (int i = 1; i < net.params - net.alone; i++) {
        int how = (int)below(5);
        snprintf(name, sizeof name, "p%d", i);
        if (!chance(40))
            continue;
        net.packed++;
        gckpt_store_freeze(net.s, name, 1);
        CHECK(gckpt_store_quantise(net.s, name,
                               how == 0   ? NET_COVER(GCKPT_STORAGE_BF16)
                               : how == 1 ? NET_COVER(GCKPT_STORAGE_F16)
                               : how == 2 ? NET_COVER(GCKPT_STORAGE_I8)
                               : how == 3 ? NET_COVER(GCKPT_STORAGE_I4)
                                          : NET_COVER(GCKPT_STORAGE_F32)) == GCKPT_OK);
    }
}
#endif

/* Chooses values and gradients to fetch, such that the planner accepts the request. Returns their number. */
static inline int net_choose_fetches(int most)
{
    int n = 0;
    for (int tried = 0; tried < 3 * most && n < most; tried++) {
        gckpt_plan_desc d = net.d;
        gckpt_fetch_spec *fetch = &net.fetch[n];
        T *t = net.nodes[below(net.count)].t;
        *fetch = (gckpt_fetch_spec){ t, chance(50) };
        d.mode = net.cached ? GCKPT_INFERENCE : GCKPT_STORE_ALL;
        d.fetch.specs = fetch;
        d.fetch.count = 1;
        gckpt_plan *p = t ? gckpt_plan_new(net.g, net.term, net.terms, &d) : NULL;
        n += p != NULL;
        gckpt_plan_free(p);
    }
    return n;
}

static inline void net_set_policies(void)
{
    for (int i = NET_FEEDS; i < net.count; i++)
        if (net.nodes[i].t && chance(net.nodes[i].is_op ? 15 : 3)) {
            int keep = net.kept[i] = (unsigned char)chance(50);
            net.recomputed[i] = !keep;
            net_cover(keep ? "gckpt_keep" : "gckpt_recompute");
            if (keep)
                gckpt_keep(net.nodes[i].t);
            else
                gckpt_recompute(net.nodes[i].t);
        }
}

/* Returns the bytes of a float for each element, as net_update needs, and three more. */
static inline size_t net_state_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    CHECK(user == &net && name && rows > 0 && columns > 0);
    return (size_t)(rows * columns) * sizeof(float) + 3;
}

/* Returns the bytes that net_update writes before it reads them: two floats for each element. */
static inline size_t net_workspace_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    CHECK(user == &net && name && rows > 0 && columns > 0);
    return (size_t)(rows * columns) * 2 * sizeof(float);
}

/* Draws the options of the request that change bits. */
static inline void net_numeric_options(gckpt_plan_desc *d)
{
    switch (below(6)) {
    case 0: d->optimiser = NET_COVER(GCKPT_SGD); break;
    case 1: d->optimiser = NET_COVER(GCKPT_MOMENTUM); break;
    case 2: d->optimiser = NET_COVER(GCKPT_CUSTOM_OPTIMISER), d->custom_state = (int)below(5); break;
    default: d->optimiser = NET_COVER(GCKPT_ADAMW);
    }
    d->bf16.precision = NET_COVER(GCKPT_FP32);
#ifndef GCKPT_NO_BF16
    if (chance(35))
        d->bf16.precision = NET_COVER(GCKPT_BF16);
#endif
#ifndef GCKPT_NO_RANKS
    if (chance(25))
        d->ranks.virtual_ranks = 2 << below(3);
#endif
    if (d->custom_state > 2 && !d->ranks.virtual_ranks) /* such a state cannot be sharded */
        d->custom_state = 0, d->state_bytes = net_state_bytes, d->user = &net;
#ifndef GCKPT_NO_QUANT
    if (chance(30))
        net_pack();
#endif
}

/* Draws the options of the request that do not change bits. */
static inline void net_neutral_options(gckpt_plan_desc *d)
{
    static const size_t alignments[] = { 4, 4, 8, 16, 128, 256, 4096 };
    d->schedule.as_built = chance(40);
    d->update_in_backward = d->batch <= net.rows && d->ranks.virtual_ranks < 2 && !net.cached && chance(30);
    if (d->optimiser == GCKPT_CUSTOM_OPTIMISER && chance(60))
        d->workspace_bytes = net_workspace_bytes, d->user = &net;
    d->threads = chance(30) ? 1 + (int)below(4) : 0;
    d->kernels.alignment = chance(50) ? alignments[below(7)] : 0;
    d->kernels.stage_parameters = chance(20);
    d->kernels.plain = chance(25);
    d->offload.state = (int)(d->batch & 1);
    d->schedule.segment_size = chance(30) ? (int)below(9) - 4 : 0;
#ifndef GCKPT_NO_OFFLOAD
    if (chance(25)) {
        d->offload.bytes = (size_t)64 << below(14);
        d->offload.cost = 1 + below(60);
        d->offload.cost <<= chance(50) ? 20 : 12;
        d->offload.overlap = chance(60);
    }
#endif
#ifndef GCKPT_NO_RANKS
    if (d->ranks.virtual_ranks > 1 && chance(50) && net_features & NET_RANKS) {
        net.ranks = 2 << below(3);
        net.ranks = net.ranks < d->ranks.virtual_ranks ? net.ranks : d->ranks.virtual_ranks;
        switch (below(4)) {
        case 0: net.shard = NET_COVER(GCKPT_SHARD_NONE); break;
        case 1: net.shard = NET_COVER(GCKPT_SHARD_STATE); break;
        case 2: net.shard = NET_COVER(GCKPT_SHARD_GRADIENTS); break;
        default: net.shard = NET_COVER(GCKPT_SHARD_VALUES);
        }
        d->ranks.link_cost = (uint64_t)below(1000000);
        d->ranks.overlap = (int)(d->ranks.link_cost & 1);
        CHECK(gckpt_store_ranks(net.s, (int)below(net.ranks), net.ranks, net.shard) == GCKPT_OK);
    }
#endif
    if (chance(20) && !net_target_graph && net.count <= MOST) {
        for (int i = 0; i < net.count; i++) {
            net.cost[i].forward = 1 + (uint64_t)below(chance(50) ? 9 : 100000);
            net.cost[i].backward = 1 + (uint64_t)below(chance(50) ? 9 : 100000);
        }
        d->costs.by_id = net.cost;
        d->costs.count = gckpt_graph_size(net.g);
    }
    if (chance(30))
        net_set_policies();
#ifndef GCKPT_NO_DEVICES
    if (net_backend && chance(10))
        d->backend = net_backend;
#endif
    if (chance(35) && !net_target_graph) {
        d->fetch.count = net_choose_fetches(1 + (int)below(NET_FETCHES));
        d->fetch.specs = d->fetch.count ? net.fetch : NULL;
    }
}

/* Builds the net of this seed and its request; the caller sets mode and budget. */
enum { NET_ROWS = -1 };
static inline void net_open(unsigned seed, int way, int64_t rows)
{
    const uint64_t saved = random_state;
    net_seed(seed, 0);
    const int64_t batch = net_batch();
    net_seed(seed, 16 + (unsigned)way);
    const int64_t drawn = way && chance(40) ? 1 + (int64_t)below(batch) : 0;
    const uint64_t of_way = random_state;
    rows = rows == NET_ROWS ? drawn : rows;
    build(seed, rows);
    net.d.batch = rows ? batch : 0;
    net_seed(seed, 1);
    net_numeric_options(&net.d);
    random_state = of_way;
    if (way)
        net_neutral_options(&net.d);
    random_state = saved;
}

/* The update of GCKPT_CUSTOM_OPTIMISER: w = w - lr g. Each optimiser state is a decaying sum of the gradients. */
static inline void net_update(void *user, const gckpt_update *u)
{
    float *copy = net.d.workspace_bytes ? (float *)u->call->workspace : NULL;
    (void)user;
    CHECK(!net.d.workspace_bytes || copy);
    for (int64_t i = 0; i < 2 * u->elements && copy; i++)
        copy[i] = u->gradient[i % u->elements];
    for (int64_t i = 0; i < u->elements; i++) {
        const float g = u->clip_scale * (copy ? copy[i + u->elements] : u->gradient[i]);
        for (int k = 0; k < 4 && u->state[k]; k++)
            u->state[k][i] = 0.5f * u->state[k][i] + g;
        u->values[i] -= u->options->lr * u->lr_scale * g;
    }
}

/* Prints the net and its request. */
static inline void net_print(void)
{
    const gckpt_plan_desc *d = &net.d;
    gckpt_node n;
    printf(
        "    rows %d of %d, threads %d, virtual ranks %d, ranks %d (shard %d), precision %d, alignment %d"
        "%s%s%s%s%s%s%s%s, group %d, optimiser %d, offload %lu (%lu%s)\n",
        (int)net.rows, (int)d->batch, d->threads, d->ranks.virtual_ranks, net.ranks, (int)net.shard,
        (int)d->bf16.precision, (int)d->kernels.alignment, d->update_in_backward ? ", in backward" : "",
        d->schedule.as_built ? ", as built" : "", d->kernels.stage_parameters ? ", staged" : "",
        d->kernels.plain ? ", plain" : "", d->costs.by_id ? ", costs" : "", d->backend ? ", backend" : "",
        net.packed ? ", quantised" : "", net.cached ? ", cached" : "", d->schedule.segment_size, (int)d->optimiser,
        (unsigned long)d->offload.bytes, (unsigned long)d->offload.cost,
        d->offload.overlap ? ", overlapped" : "");
    for (int i = 0; i < d->fetch.count; i++)
        printf("    fetch %s of %d\n", net.fetch[i].gradient ? "gradient" : "value",
               gckpt_id(net.fetch[i].tensor));
    for (int i = 0; gckpt_graph_node(net.g, i, &n) == GCKPT_OK; i++) {
        printf("    %3d %s %s [", i, n.op, n.name);
        for (int k = 0; k < n.shape.n; k++)
            printf("%s%d", k ? "," : "", (int)n.shape.d[k]);
        printf("]");
        for (int k = 0; k < n.inputs; k++)
            printf(" %d", n.input[k]);
        printf("%s%s\n", net.kept[i] ? " keep" : "", net.recomputed[i] ? " recompute" : "");
    }
    for (int i = 0; i < net.terms; i++)
        printf("    term %d%s\n", gckpt_id(net.term[i].loss),
               net.term[i].regulariser ? ", a regulariser" : "");
    for (int i = 0; i < gckpt_store_count(net.s); i++) {
        gckpt_parameter q;
        if (gckpt_store_peek(net.s, i, &q) == GCKPT_OK && (q.frozen || q.storage))
            printf("    %s frozen, stored as %d\n", q.name, (int)q.storage);
    }
}

/* ---- coverage ---- */
#define NET_FIELDS(X)                                                                              \
    X(mode)                                                                                        \
    X(budget)                                                                                      \
    X(batch)                                                                                       \
    X(threads)                                                                                     \
    X(optimiser)                                                                                   \
    X(custom_state)                                                                                \
    X(state_bytes)                                                                                 \
    X(workspace_bytes)                                                                             \
    X(user)                                                                                        \
    X(update_in_backward)                                                                          \
    X(backend)                                                                                     \
    X(memory)                                                                                      \
    X(ranks.virtual_ranks)                                                                         \
    X(ranks.link_cost)                                                                             \
    X(ranks.overlap)                                                                               \
    X(offload.bytes)                                                                               \
    X(offload.cost)                                                                                \
    X(offload.overlap)                                                                             \
    X(offload.state)                                                                               \
    X(bf16.precision)                                                                              \
    X(fetch.specs)                                                                                 \
    X(fetch.count)                                                                                 \
    X(schedule.instructions)                                                                       \
    X(schedule.count)                                                                              \
    X(schedule.segment_size)                                                                       \
    X(schedule.as_built)                                                                           \
    X(costs.by_id)                                                                                 \
    X(costs.count)                                                                                 \
    X(kernels.plain)                                                                               \
    X(kernels.stage_parameters)                                                                    \
    X(kernels.alignment)
/* Counts each field in which a request that was planned differs from its default. */
static inline void net_planned(const gckpt_plan_desc *d)
{
    static const gckpt_plan_desc none;
    static const char *const modes[] = { "GCKPT_AUTO",     "GCKPT_STORE_ALL", "GCKPT_MEMORY_POOR",
                                         "GCKPT_SEGMENTS", "GCKPT_SQRT",      "GCKPT_OPTIMAL",
                                         "GCKPT_SCHEDULE", "GCKPT_INFERENCE" };
    net_cover(modes[d->mode]);
#define NET_FIELD(name)                                                                            \
    if (memcmp(&d->name, &none.name, sizeof d->name))                                              \
        net_cover("gckpt_plan_desc." #name);
    NET_FIELDS(NET_FIELD)
#undef NET_FIELD
}

/* Copies the next identifier at or after *at to `name` and moves *at after it. Returns 0 if `end` comes first. */
static inline int net_word(const char **at, const char *end, char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    for (size_t n; *at < end; *at += n ? n : 1) {
        if (!strncmp(*at, "/*", 2)) {
            const char *close = strstr(*at, "*/");
            *at = close ? close + 1 : end;
        }
        n = strspn(*at, letters);
        if (n && n < 48 && *at + n <= end) {
            memcpy(name, *at, n);
            name[n] = 0;
            *at += n;
            return 1;
        }
    }
    return 0;
}

static inline void net_require(const char *prefix, const char *name, int unless)
{
    char *full = (char *)malloc(128);
    snprintf(full, 128, "%s%s", prefix, name);
    const int known = net_names;
    const long n = *net_count(full);
    CHECK_MSG(n > 0 || unless, "no net has %s", full);
    if (net_names == known) /* the name is known, so the table has not kept this copy */
        free(full);
}

/* Returns the fields of the struct type `name`, declared in text; *end becomes their end. NULL if there is none. */
static inline const char *net_struct(const char *text, const char *name, const char **end)
{
    char last[64];
    snprintf(last, sizeof last, "\n} %s;", name);
    const char *at = *end = strstr(text, last);
    while (at && at > text && strncmp(at, "\ntypedef struct", 15))
        at--;
    return at ? at + 15 : NULL;
}

/* Checks that the nets have used each field of the struct at..end: "ranks.overlap" is a field of its sub-struct
 * "ranks", which stands in the struct or has a type gckpt_.._options declared in text. Returns the number of fields. */
static inline int net_require_fields(const char *text, const char *at, const char *end, const char *outer)
{
    char word[48], type[48] = "", inner[48] = "", full[100];
    const char *inner_end = at; /* the end of the sub-struct's name, which follows its fields */
    int found = 0;
    while (net_word(&at, end, word)) {
        if (!strcmp(word, "struct")) {
            inner_end = strstr(at, "\n    } ");
            inner_end += 7;
            net_word(&inner_end, end, inner);
        } else if (*at == ';' && at != inner_end && strstr(type, "_options")) {
            const char *last, *first = net_struct(text, type, &last);
            snprintf(full, sizeof full, "%s.", word);
            found += first ? net_require_fields(text, first, last, full) : 0;
        } else if (*at == ';' && at != inner_end) {
            snprintf(full, sizeof full, "%s%s%s%s", outer, inner, at < inner_end ? "." : "", word);
            net_require("gckpt_plan_desc.", full, 0);
            found++;
        } else if (at == inner_end) {
            inner[0] = 0;
        }
        memcpy(type, word, sizeof type);
    }
    return found;
}

/* Checks that the nets have used every builder and op descriptor of gradckpt.h, every field of gckpt_plan_desc, every
 * enumerator of the five types below except GCKPT_BF16_FAST, and fused groups. */
static inline void net_check_coverage(void)
{
    static const char *const enums[] = { "gckpt_mode", "gckpt_optimiser", "gckpt_precision",
                                         "gckpt_storage", "gckpt_shard" };
    static const char builder[] = "\nGCKPT_API gckpt_tensor *gckpt_";
    file f = { 0 };
    char part[4096], word[48];
    size_t n;
    FILE *in = fopen("gradckpt.h", "rb");
    if (!CHECK_MSG(in != NULL, "gradckpt.h is not here"))
        return;
    while ((n = fread(part, 1, sizeof part, in)) > 0)
        file_write(&f, part, n);
    fclose(in);
    const char *text = (const char *)f.bytes, *at, *end;
    int found = 0;
    for (at = text; (at = strstr(at, builder)) != NULL; found++) {
        at += sizeof builder - 1;
        net_word(&at, text + f.size, word);
        net_require("gckpt_", word, 0);
    }
    CHECK(found > 70);
    for (found = 0; op_name(found, word); found++)
        net_require("", word, 0);
    CHECK(found > 50);
    at = net_struct(text, "gckpt_plan_desc", &end);
    found = at ? net_require_fields(text, at, end, "") : 0;
    CHECK(found >= 25);
    for (int k = 0; k < 5; k++) {
        snprintf(part, sizeof part, "} %s;", enums[k]);
        end = strstr(text, part);
        for (at = end; at && at > text && strncmp(at, "typedef enum", 12);)
            at--;
        /* GCKPT_BF16_FAST is not required, since none of the processors that run the tests has this precision */
        for (found = 0, at += 12; end && net_word(&at, end, word); found++)
            net_require("", word, !strcmp(word, "GCKPT_BF16_FAST"));
        CHECK_MSG(found >= 3, "%s", enums[k]);
    }
    net_require("", "runs in bands", 0);
    free(f.bytes);
}
#endif
