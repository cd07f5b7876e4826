/* net.h - random graphs from the whole op set: nested segments, weights that are functions of weights,
 * frozen parameters, several losses. A seed gives the same graph for every micro-batch. */
#ifndef TESTS_NET_H
#define TESTS_NET_H
#ifndef NET_KINDS
#define NET_KINDS 39 /* kinds of growth; 31: without recurrent layers, convolutions, pools, norms of images */
#endif
#ifndef NET_MIXES
#define NET_MIXES 0 /* 1: some graphs have batch norms */
#endif
#include "rig.h"

typedef gckpt_tensor T;

enum { MOST = 900, READS = 4, BATCH = 8, V = 11, LARGEST = 360, VALUES = BATCH * LARGEST };

/* ---- the graph under construction. No decision may depend on net.rows, nor on the order in which a compiler evaluates
 * arguments: a seed gives the same graph for every micro-batch and everywhere. ---- */
static struct {
    gckpt_store *s;
    gckpt_graph *g;
    int64_t rows, batch, t, c;
    unsigned seed;
    int mixes, smooth, params, count, pooled, weights, terms, depth, dropout;
    struct { int in[READS], base, is_op, data; T *t; } nodes[MOST];
    T *pool[MOST], *weight[MOST], *x, *tokens, *targets[2];
    unsigned char used[MOST];
    gckpt_term term[4];
} net;
static float constant_data[LARGEST];

/* ---- what is fed ---- */
static float x_data[VALUES];
static int32_t token_data[VALUES], target_data[2][VALUES];

static inline void net_fill(void)
{
    for (int i = 0; i < VALUES; i++) {
        x_data[i] = ((float)below(2001) - 1000.0f) / 700.0f;
        token_data[i] = (int32_t)below(V);
        target_data[0][i] = chance(20) ? -1 : (int32_t)below(V);
        target_data[1][i] = chance(40) ? -1 : (int32_t)below(V);
    }
}

/* From this row of the batch on, as rig_step asks for it. */
static inline int net_feed(const void *user, int64_t row, gckpt_feed *f)
{
    (void)user;
    f[0] = (gckpt_feed){ gckpt_id(net.x), x_data + row * net.t * net.c };
    f[1] = (gckpt_feed){ gckpt_id(net.tokens), token_data + row * net.t };
    f[2] = (gckpt_feed){ gckpt_id(net.targets[0]), target_data[0] + row * net.t };
    f[3] = (gckpt_feed){ gckpt_id(net.targets[1]), target_data[1] + row * net.t };
    return 4;
}

/* ---- a plan again, through a file: the same file, and nothing lost ---- */
static inline gckpt_plan *through_file(gckpt_plan *p, const char *what)
{
    file f = { 0 }, again = { 0 };
    CHECK(gckpt_plan_write(p, file_write, &f) == GCKPT_OK);
    gckpt_plan *q = gckpt_plan_read(net.g, file_read, &f, NULL);
    CHECK_MSG(q && gckpt_plan_write(q, file_write, &again) == GCKPT_OK && same_file(&f, &again) &&
                  gckpt_plan_bytes(q) == gckpt_plan_bytes(p) &&
                  gckpt_plan_bound(q) == gckpt_plan_bound(p) && gckpt_plan_work(q) == gckpt_plan_work(p),
              "%s: through a file: %s", what, gckpt_error_text(net.g));
    free(f.bytes);
    free(again.bytes);
    gckpt_plan_free(p);
    return q;
}

/* ---- the graph ---- */

/* Notes an op that the graph knows: one of several that a builder made. */
static void note_made(int id)
{
    gckpt_node n;
    CHECK(gckpt_graph_node(net.g, id, &n) == GCKPT_OK && n.inputs <= READS);
    net.nodes[id].is_op = strcmp(n.op, "reshape") != 0;
    net.nodes[id].base = net.nodes[id].is_op ? id : net.nodes[n.input[0]].base;
    net.nodes[id].data = !n.batchless;
    for (int i = 0; i < READS; i++) {
        net.nodes[id].in[i] = i < n.inputs ? net.nodes[n.input[i]].base : -1;
        if (i < n.inputs)
            net.used[n.input[i]] = net.used[net.nodes[id].in[i]] = 1;
    }
}

/* Notes what t reads. */
static T *note3(T *t, T *a, T *b, T *c)
{
    T *in[READS] = { a, b, c };
    int id = gckpt_id(t), made = id > net.count;
    if (!CHECK_MSG(t != NULL && id < MOST, "build: %s", gckpt_error_text(net.g)))
        exit(check_report("random graphs"));
    if (net.nodes[id].t) /* a parameter that was there before */
        return t;
    for (; net.count < id; net.count++)
        note_made(net.count);
    net.nodes[id].t = t;
    net.count = id + 1;
    if (made) {
        note_made(id);
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
static T *note(T *t, T *a) { return note3(t, a, NULL, NULL); }
static T *note2(T *t, T *a, T *b) { return note3(t, a, b, NULL); }
static T *mul(T *a, T *b) { return note2(gckpt_mul(a, b), a, b); }
static T *view(T *x, gckpt_shape shape)
{
    T *t = note(gckpt_reshape(x, shape), x);
    net.nodes[gckpt_id(t)].is_op = 0;
    net.nodes[gckpt_id(t)].base = net.nodes[gckpt_id(x)].base;
    return t;
}
static T *concat(T *a, T *b, T *c, int axis)
{
    T *in[3] = { a, b, c };
    return note3(gckpt_concat(in, c ? 3 : 2, axis), a, b, c);
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
    return net.weight[net.weights++] = note(gckpt_param(net.g, name, shape, (gckpt_init){ normal, 0, constant }), NULL);
}

/* (i,o): a parameter or a function of parameters, new or used before. */
static T *weight(int64_t i, int64_t o)
{
    static const int swap[2] = { 1, 0 };
    T *t = NULL, *u;
    for (int k = 0, again = chance(45); again && k < net.weights; k++) {
        gckpt_shape s = gckpt_shape_of(net.weight[k]);
        t = s.n == 2 && s.d[0] == i && s.d[1] == o && (!t || chance(40)) ? net.weight[k] : t;
    }
    if (t || net.depth > 1)
        return t ? t : param(gckpt_shape2(i, o), 0.4f, 0);
    net.depth++;
    switch (below(18)) {
    case 0: t = weight(i, o), t = note(gckpt_tanh(t), t), t = note(gckpt_scale(t, 1.5f), t); break;
    case 1: t = view(weight(o, i), gckpt_shape2(i, o)); break;
    case 2: t = weight(o, i), t = note(gckpt_permute(t, swap, 2), t); break;
    case 3: t = weight(i, o), t = mul(t, t); break;
    case 4: t = weight(i + 2, o), t = note(gckpt_slice(t, 0, 1, i + 1), t); break;
    case 5: t = o % 2 ? NULL : weight(i, o / 2), t = t ? concat(t, t, NULL, 1) : NULL; break;
    case 6: t = weight(i, 3), u = weight(3, o), t = note2(gckpt_matmul(t, u), t, u); break;
    case 7: t = weight(i, o), t = note(chance(50) ? gckpt_softmax(t) : gckpt_layernorm(t, NULL, NULL), t); break;
    case 8: t = weight(i, o), u = note(gckpt_sum(t, 1), t), t = mul(t, view(u, gckpt_shape2(i, 1))); break;
    case 9: t = weight(i, o), u = weight(i, o), t = note2(gckpt_add(t, u), t, u); break;
    case 10: t = weight(i, o), t = note(gckpt_dropout(t, 0.25f), t), net.dropout = 1; break;
    case 11: t = weight(i, o), u = weight(o, o), t = note2(gckpt_linear(t, u, NULL), t, u); break;
    default: break;
    }
    net.depth--;
    return t ? net.weight[net.weights++] = t : param(gckpt_shape2(i, o), 0.4f, 0);
}

static T *vector(int64_t n, float constant)
{
    T *t;
    switch (below(6)) {
    case 0: t = weight(3, n); return note(gckpt_mean(t, 0), t);
    case 1: return view(weight(1, n), gckpt_shape1(n));
    case 2: return view(param(gckpt_shape2(n, 1), 0.2f, constant), gckpt_shape1(n));
    default: return param(gckpt_shape1(n), 0.2f, constant);
    }
}

/* A pool tensor that can stand beside x in a broadcast, or (equal) has its shape; x itself will do. */
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

static void add_loss(T *x)
{
    gckpt_shape s = gckpt_shape_of(x);
    T *t = partner(x, 1), *w;
    int kind = (int)below(5), index = (int)below(2);
    if (net.terms >= 3)
        return;
    if (kind == 0) {
        t = t != x ? t : elements(x) == elements(net.x) ? view(net.x, s) : note(gckpt_sigmoid(x), x);
        t = note2(gckpt_mean_squared_error(x, t), x, t);
    } else if (kind == 1) {
        t = net.smooth || chance(70) ? mul(x, x) : x; /* a sum that cancels drowns differences in rounding */
        t = note(gckpt_sum_loss(t), t);
    } else {
        if (s.n != 3 || s.d[0] != net.rows || s.d[1] != net.t) {
            t = view(x, gckpt_shape2(net.rows, -1)), w = weight(elements(t) / net.rows, net.t * 4);
            x = view(note2(gckpt_linear(t, w, NULL), t, w), gckpt_shape3(net.rows, net.t, 4));
        }
        t = net.targets[index], w = weight(V, gckpt_shape_of(x).d[2]);
        if (kind == 2)
            t = note3(gckpt_linear_cross_entropy(x, w, t), x, w, t);
        else
            x = note2(gckpt_linear_transposed(x, w, NULL), x, w), t = note2(gckpt_cross_entropy(x, t), x, t);
    }
    net.term[net.terms] = (gckpt_term){ t, net.terms == 0 || chance(50) ? 1.0f : 0.3f, 0 };
    net.terms++;
}

/* bias, start: or NULL */
static T *recurrent(T *x, int gru, int64_t units, T *bias, T *start)
{
    gckpt_shape s = gckpt_shape_of(x);
    T *wx = weight(s.d[2], (gru ? 3 : 4) * units), *wh = weight(units, (gru ? 3 : 4) * units);
    T *t = gru ? gckpt_gru(x, wx, NULL, wh, bias, start) : gckpt_lstm(x, wx, wh, bias, start, start);
    return note3(t, x, wx, wh);
}

/* Of an image or a signal. */
static T *convolution(T *x, T *bias, int64_t o, int transposed)
{
    gckpt_shape s = gckpt_shape_of(x);
    const int signal = s.n == 3, full = chance(30);
    const int64_t c = s.d[s.n - 1], groups = full && (!transposed || o == c) ? c : c % 2 == 0 && o % 2 == 0 ? 1 + chance(50) : 1;
    const int64_t results = full && groups == c ? c : o, each = (transposed ? results : c) / groups;
    gckpt_window to = { .groups = (int)groups };
    int64_t taps[2] = { 1, 1 };
    for (int i = signal; i < 2; i++) {
        taps[i] = 1 + (int64_t)below(3);
        to.stride[i] = 1 + (int)below(3), to.dilation[i] = 1 + chance(30);
        to.padding[i] = (int)((taps[i] - 1) * to.dilation[i] / 2); /* any size has room for it then, or is 1 too small */
        to.padding[i] += !transposed && (taps[i] - 1) * to.dilation[i] % 2;
        to.output_padding[i] = transposed ? (int)below(to.stride[i]) : 0;
    }
    T *w = weight(taps[0] * taps[1] * each, transposed ? c : results), *t;
    bias = bias && gckpt_shape_of(bias).d[0] == results ? bias : NULL;
    if (signal) {
        w = view(w, gckpt_shape3(taps[1], each, -1));
        t = transposed ? gckpt_conv1d_transposed(x, w, bias, &to) : gckpt_conv1d(x, w, bias, &to);
    } else {
        w = view(w, gckpt_shape4(taps[0], taps[1], each, -1));
        t = transposed ? gckpt_conv2d_transposed(x, w, bias, &to) : gckpt_conv2d(x, w, bias, &to);
    }
    return note3(t, x, w, bias);
}

/* One random op on x, or a few; NULL when the one drawn does not fit. */
static T *grow(T *x)
{
    static T *(*const curves[])(T *) = { gckpt_gelu, gckpt_gelu_erf, gckpt_silu, gckpt_tanh, gckpt_sigmoid, gckpt_softmax, gckpt_relu };
    T *y, *z;
    gckpt_shape s = gckpt_shape_of(x);
    int64_t c = s.d[s.n - 1], o = chance(50) ? net.c : chance(50) ? c : 4, per_row = elements(x) / net.rows;
    int heads = c % 4 == 0 && chance(50) ? 2 : 1, axis = 1 + (int)below(s.n - 1), even = s.n == 3 && c % (2 * heads) == 0;
    int a = chance(50), b = chance(50), axes[GCKPT_MAX_DIMS] = { 0, 1, 2, 3, 4, 5 };
    const int kind = (int)below(NET_KINDS);
    gckpt_window w = { .groups = 0 };
    char name[16];
    switch (kind) {
    case 0: case 1: return note(curves[below(net.smooth ? 6 : 7)](x), x);
    case 2: return note(gckpt_scale(x, 0.75f), x);
    case 3: case 4: y = weight(c, o), z = a ? vector(o, 0) : NULL; return note3(gckpt_linear(x, y, z), x, y, z);
    case 5: y = weight(o, c), z = a ? vector(o, 0) : NULL; return note3(gckpt_linear_transposed(x, y, z), x, y, z);
    case 6: y = a ? vector(c, 1) : NULL, z = b ? vector(c, 0) : NULL; return note3(gckpt_layernorm(x, y, z), x, y, z);
    case 7: y = a ? vector(c, 1) : NULL; return note2(gckpt_rmsnorm(x, y), x, y);
    case 8: case 9:
        x = even && b ? note(gckpt_rotary(x, heads, 0), x) : x;
        y = partner(x, 1), z = a ? y : partner(y, 1);
        return s.n == 3 ? note3(gckpt_attention(x, y, z, heads, chance(50)), x, y, z) : NULL;
    case 10: return even ? note(gckpt_rotary(x, heads, a ? 0 : 100.0f), x) : NULL;
    case 11: y = partner(x, 1); return a ? concat(x, y, x, axis) : concat(y, x, NULL, axis - s.n);
    case 12: return s.d[axis] > 2 ? note(gckpt_slice(x, axis - (b ? s.n : 0), a, s.d[axis] - b), x) : NULL;
    case 13: axes[axis] = s.n - 1, axes[s.n - 1] = axis; return note(gckpt_permute(x, axes, s.n), x);
    case 14: case 15:
        return s.n == 3 && a ? view(x, gckpt_shape2(s.d[0] * s.d[1], c)) : c % 2 == 0 && b ? view(x, gckpt_shape3(net.rows, c / 2, -1))
               : per_row % net.c == 0 ? view(x, gckpt_shape3(net.rows, per_row / net.c, net.c)) : view(x, gckpt_shape4(net.rows, 1, -1, c));
    case 16: case 17:
        y = note(a ? gckpt_sum(x, axis) : gckpt_mean(x, axis - s.n), x), s.d[axis] = 1;
        return s.n == 2 || b ? view(y, s) : y;
    case 18: net.dropout = 1; return note(gckpt_dropout(x, 0.3f), x);
    case 19: y = partner(x, 0); return note2(a ? gckpt_add(x, y) : gckpt_sub(y, x), x, y);
    case 20: y = mul(partner(x, 0), x); return note(gckpt_tanh(y), y);
    case 21:
        if (s.n < 3)
            return NULL;
        y = partner(x, 1), z = note2(gckpt_matmul_transposed(x, y), x, y);
        z = a ? note(gckpt_softmax(z), z) : note(gckpt_scale(z, 0.2f), z);
        return b ? z : note2(gckpt_matmul(z, y), z, y);
    case 22: y = weight(c, o); return note2(gckpt_matmul(x, y), x, y);
    case 23: /* with something that has no batch axis */
        y = chance(30) ? weight(s.n > 2 ? s.d[s.n - 2] : 1, c) : chance(30) ? weight(1, 1) : vector(c, 1);
        if (chance(25))
            y = note(gckpt_constant(net.g, "k", GCKPT_F32, gckpt_shape1(c), constant_data), NULL);
        else if (chance(25))
            z = vector(5, 0), y = note(gckpt_sum(z, 0), z); /* a scalar */
        y = chance(50) ? mul(y, y) : y;
        return a ? mul(y, x) : note2(b ? gckpt_add(x, y) : gckpt_sub(y, x), x, y);
    case 24: y = s.n == 3 ? weight(s.d[1] + 2, c) : NULL; return y ? note2(gckpt_positions(x, y), x, y) : NULL;
    case 25: /* what wants positive values */
        y = note(gckpt_sigmoid(x), x);
        return note(a ? (b ? gckpt_log(y) : gckpt_sqrt(y)) : gckpt_pow(y, b ? 2.5f : -0.5f), y);
    case 26: y = note(gckpt_tanh(x), x), y = note(gckpt_exp(y), y), z = partner(x, 0); return note2(a ? gckpt_div(z, y) : gckpt_div(y, y), a ? z : y, y);
    case 27:
        y = a || b ? x : note(gckpt_sigmoid(x), x);
        return note(a ? gckpt_log_softmax(y) : b ? gckpt_pow(y, 2) : gckpt_exp(y), y);
    case 28: case 29: /* kinks, and what differences do not see */
        if (net.smooth)
            return NULL;
        y = partner(x, 0), z = chance(50) ? note(gckpt_detach(x), x) : x;
        return a ? note2(b ? gckpt_maximum(z, y) : gckpt_minimum(y, z), z, y)
               : b ? note(gckpt_abs(z), z) : note(gckpt_clamp(z, -0.5f, 0.75f), z);
    case 31: case 32: /* a recurrent layer, whose first state is a mean over its steps */
        if (s.n != 3)
            return NULL;
        o = 1 + (int64_t)below(4), y = a ? weight(c, o) : NULL;
        z = a ? note2(gckpt_linear(x, y, NULL), x, y) : NULL;
        z = z ? note(gckpt_mean(z, 1), z) : NULL;
        return recurrent(x, kind == 31, o, b ? vector(kind == 31 ? 3 * o : 4 * o, 0) : NULL, z);
    case 33: /* rows of x's other shape, by the tokens */
        y = per_row % (V + 1) == 0 ? view(x, gckpt_shape3(net.rows, V + 1, -1)) : NULL;
        y = !y && per_row > V ? view(x, gckpt_shape3(net.rows, per_row, 1)) : y;
        return y ? note2(gckpt_gather(y, net.tokens), y, net.tokens) : NULL;
    case 34: case 35: /* of what has one axis: an image of one channel */
        x = s.n == 2 ? view(x, gckpt_shape4(net.rows, 1, -1, 1)) : x;
        return gckpt_shape_of(x).n < 5 ? convolution(x, a ? vector(o, 0) : NULL, o, kind == 34) : NULL;
    case 36: /* windows of an image or a signal; greatest ones have kinks */
        if (s.n < 3 || s.n > 4 || (net.smooth && b))
            return NULL;
        for (int i = 0; i < 2; i++) {
            const int64_t n = s.d[s.n - 3 + i];
            o = 1 + (int64_t)below(3), w.size[i] = (int)(i || s.n == 4 ? o < n ? o : n : 1);
            w.stride[i] = (int)below(3), w.padding[i] = (int)below(w.size[i]);
        }
        return note(b ? gckpt_max_pool(x, &w) : gckpt_average_pool(x, &w), x);
    case 37:
        if (s.n > 2 && chance(30))
            return note(gckpt_global_average_pool(x), x);
        o = c % 4 == 0 ? 1 << below(3) : chance(50) ? c : 1; /* of few values the norm is all curves */
        o = per_row / o < 6 ? 1 : o, y = a ? vector(c, 1) : NULL, z = b ? vector(c, 0) : NULL;
        return note3(gckpt_groupnorm(x, (int)o, y, z), x, y, z);
    case 38: /* mixes rows; what it measures is no weight */
        if (!NET_MIXES || net.seed % 6 != 2 || s.d[0] != net.rows)
            return NULL;
        snprintf(name, sizeof name, "m%d", net.mixes++);
        y = note(gckpt_running(net.g, name, gckpt_shape1(c), (gckpt_init){ 0, 0, 0 }, 0.25f), NULL);
        name[0] = 'v';
        z = note(gckpt_running(net.g, name, gckpt_shape1(c), (gckpt_init){ 0, 0, 1 }, 0.25f), NULL);
        return note3(gckpt_batchnorm(x, NULL, a ? vector(c, 0) : NULL, y, z), x, y, z);
    default: y = weight(V, net.c); return note2(gckpt_embed(y, net.tokens), y, net.tokens);
    }
}
static void step(void)
{
    T *y = grow(net.pool[chance(50) && net.pooled > 3 ? net.pooled - 1 - (int)below(3) : (int)below(net.pooled)]);
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
            gckpt_checkpoint(block, x, &depth);
        else
            step();
    return x;
}

static void build(unsigned seed, int64_t rows)
{
    uint64_t saved = random_state;
    gckpt_store_desc desc = { .seed = seed };
    char name[16];
    int depth = 0, unused = 0;
    T *end = NULL, *t;
    memset(&net, 0, sizeof net);
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    net.s = gckpt_store_new(&desc);
    net.g = gckpt_graph_new(net.s, NULL);
    net.batch = 3 + (int64_t)below(BATCH - 2);
    net.t = chance(4) ? 67 : 1 + (int64_t)below(6); /* 67: more than one tile of keys */
    net.c = net.t > 60 ? 4 : chance(15) ? 20 : 4 * (1 + (int64_t)below(3));
    net.smooth = seed % 2 == 0;
    net.seed = seed;
    net.rows = rows = rows ? rows : net.batch;
    net.x = note(gckpt_input(net.g, "x", GCKPT_F32, gckpt_shape3(rows, net.t, net.c)), NULL);
    net.tokens = note(gckpt_input(net.g, "tokens", GCKPT_I32, gckpt_shape2(rows, net.t)), NULL);
    net.targets[0] = note(gckpt_input(net.g, "a", GCKPT_I32, gckpt_shape2(rows, net.t)), NULL);
    net.targets[1] = note(gckpt_input(net.g, "b", GCKPT_I32, gckpt_shape2(rows, net.t)), NULL);
    for (int i = 0; i < 4; i++)
        net.nodes[i].data = 1;
    t = param(gckpt_shape2(net.c, net.c), 0.5f, 0); /* never frozen */
    net.pool[net.pooled++] = note2(gckpt_linear(net.x, t, NULL), net.x, t);
    net.pool[net.pooled++] = net.x;
    for (int i = 5 + (int)below(net.smooth ? 6 : 14); i > 0; i--)
        if (chance(30))
            gckpt_checkpoint(block, net.x, &depth);
        else
            step();
    for (int k = net.pooled; k-- > 0 && unused < 6;) /* let nearly everything lead to a loss */
        if (!net.used[gckpt_id(net.pool[k])]) {
            t = view(net.pool[k], gckpt_shape2(rows, -1));
            t = unused++ && chance(50) ? note(gckpt_mean(t, 1), t) : t;
            t = view(t, gckpt_shape2(rows, -1));
            end = end ? concat(end, t, NULL, 1) : t;
        }
    net.terms = net.terms > 2 ? 2 : net.terms;
    add_loss(end ? end : net.pool[net.pooled - 1]);
    if (chance(40)) {
        t = net.weight[below(net.weights)], t = net.smooth || chance(80) ? mul(t, t) : t;
        net.term[net.terms++] = (gckpt_term){ note(gckpt_sum_loss(t), t), 0.01f, 1 };
    }
    for (int i = 1; i < net.params; i++) {
        snprintf(name, sizeof name, "p%d", i);
        CHECK(!chance(12) || gckpt_store_freeze(net.s, name, 1) == GCKPT_OK);
    }
    random_state = saved;
}
static void destroy(void)
{
    rig_free(NULL, NULL, net.g, net.s);
}
#endif
