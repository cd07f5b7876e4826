/* test_random.c - random graphs from the whole op set: every plan, split, feed style, thread count
 * and debug aid gives the bits of one plain store-all run over the whole batch, and the bytes that
 * were promised; gradients agree with finite differences.
 *
 *     build/test_random [first seed] [graphs]
 */
#define GRADCKPT_IMPLEMENTATION
#include "../gradckpt.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"

enum { MOST = 900, BATCH = 8, STEPS = 2, PICKS = 8, V = 11, LARGEST = 360, VALUES = BATCH * LARGEST };

static uint64_t state;
static unsigned below(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((state >> 33) % (uint64_t)n);
}
static int chance(unsigned percent) { return below(100) < percent; }

/* ---- the graph under construction. No decision may depend on m.rows: the same seed gives the same
 * graph for every micro-batch. ---- */
typedef struct { int in[3], base, is_op, data; gckpt_tensor *t; } node;
static struct {
    gckpt_store *s;
    gckpt_graph *g;
    int64_t rows, batch, t, c;
    int smooth, params, count, pooled, weights, terms, depth, dropout;
    node nodes[MOST];
    gckpt_tensor *pool[MOST], *weight[MOST], *x, *tokens, *targets[2];
    unsigned char used[MOST];
    gckpt_term term[4];
} m;
static float x_data[VALUES], constant_data[LARGEST];
static int32_t token_data[VALUES], target_data[2][VALUES];

/* Notes what t reads; ids are those of the tensors. */
static gckpt_tensor *note(gckpt_tensor *t, gckpt_tensor *a, gckpt_tensor *b, gckpt_tensor *c)
{
    gckpt_tensor *in[3];
    int id = gckpt_id(t);
    in[0] = a, in[1] = b, in[2] = c;
    if (!CHECK_MSG(t != NULL && id < MOST, "build: %s", gckpt_error_text(m.g)))
        exit(check_report("test_random"));
    if (m.nodes[id].t)
        return t;
    m.nodes[id].t = t;
    m.nodes[id].base = id;
    m.nodes[id].is_op = a != NULL;
    for (int i = 0; i < 3; i++) {
        m.nodes[id].in[i] = in[i] ? m.nodes[gckpt_id(in[i])].base : -1;
        if (in[i]) {
            m.used[gckpt_id(in[i])] = m.used[m.nodes[id].in[i]] = 1;
            m.nodes[id].data |= m.nodes[gckpt_id(in[i])].data;
        }
    }
    m.count = id + 1;
    return t;
}
static gckpt_tensor *view(gckpt_tensor *x, gckpt_shape shape)
{
    gckpt_tensor *t = note(gckpt_reshape(x, shape), x, NULL, NULL);
    m.nodes[gckpt_id(t)].is_op = 0;
    m.nodes[gckpt_id(t)].base = m.nodes[gckpt_id(x)].base;
    return t;
}
static gckpt_tensor *unary(gckpt_tensor *(*op)(gckpt_tensor *), gckpt_tensor *x) { return note(op(x), x, NULL, NULL); }
static gckpt_tensor *binary(gckpt_tensor *(*op)(gckpt_tensor *, gckpt_tensor *), gckpt_tensor *a, gckpt_tensor *b)
{
    return note(op(a, b), a, b, NULL);
}
static gckpt_tensor *concat(gckpt_tensor *a, gckpt_tensor *b, gckpt_tensor *c, int axis)
{
    gckpt_tensor *in[3];
    in[0] = a, in[1] = b, in[2] = c;
    return note(gckpt_concat(in, c ? 3 : 2, axis), a, b, c);
}
static int64_t elements(const gckpt_tensor *t)
{
    gckpt_shape s = gckpt_shape_of(t);
    int64_t n = 1;
    for (int i = 0; i < s.n; i++)
        n *= s.d[i];
    return n;
}

static gckpt_tensor *param(gckpt_shape shape, float normal, float constant)
{
    char name[16];
    gckpt_init init;
    init.normal = normal, init.uniform = 0, init.constant = constant;
    snprintf(name, sizeof name, "p%d", m.params++);
    gckpt_tensor *t = note(gckpt_param(m.g, name, shape, init), NULL, NULL, NULL);
    return m.weight[m.weights++] = t;
}

/* (i,o): a parameter or a function of parameters, new or used before. */
static gckpt_tensor *weight(int64_t i, int64_t o)
{
    static const int swap[2] = { 1, 0 };
    gckpt_tensor *t = NULL, *u;
    if (chance(45))
        for (int k = 0; k < m.weights; k++) {
            gckpt_shape s = gckpt_shape_of(m.weight[k]);
            if (s.n == 2 && s.d[0] == i && s.d[1] == o && (!t || chance(40)))
                t = m.weight[k];
        }
    if (t || m.depth > 1)
        return t ? t : param(gckpt_shape2(i, o), 0.4f, 0);
    m.depth++;
    switch (below(18)) {
    case 0: t = unary(gckpt_tanh, weight(i, o)), t = note(gckpt_scale(t, 1.5f), t, NULL, NULL); break;
    case 1: t = view(weight(o, i), gckpt_shape2(i, o)); break;
    case 2: t = weight(o, i), t = note(gckpt_permute(t, swap, 2), t, NULL, NULL); break;
    case 3: t = weight(i, o), t = binary(gckpt_mul, t, t); break;
    case 4: t = weight(i + 2, o), t = note(gckpt_slice(t, 0, 1, i + 1), t, NULL, NULL); break;
    case 5:
        if (o % 2 == 0)
            t = weight(i, o / 2), t = concat(t, t, NULL, 1);
        break;
    case 6: t = weight(i, 3), t = binary(gckpt_matmul, t, weight(3, o)); break;
    case 7: t = weight(i, o), t = chance(50) ? unary(gckpt_softmax, t) : note(gckpt_layernorm(t, NULL, NULL), t, NULL, NULL); break;
    case 8: t = weight(i, o), t = binary(gckpt_mul, t, view(note(gckpt_sum(t, 1), t, NULL, NULL), gckpt_shape2(i, 1))); break;
    case 9: t = weight(i, o), t = binary(gckpt_add, t, weight(i, o)); break;
    case 10: t = weight(i, o), t = note(gckpt_dropout(t, 0.25f), t, NULL, NULL), m.dropout = 1; break;
    case 11: t = weight(i, o), u = weight(o, o), t = note(gckpt_linear(t, u, NULL), t, u, NULL); break;
    default: break;
    }
    m.depth--;
    return t ? m.weight[m.weights++] = t : param(gckpt_shape2(i, o), 0.4f, 0);
}

static gckpt_tensor *vector(int64_t n, float constant)
{
    gckpt_tensor *t;
    switch (below(6)) {
    case 0: t = weight(3, n), t = note(gckpt_mean(t, 0), t, NULL, NULL); break;
    case 1: t = view(weight(1, n), gckpt_shape1(n)); break;
    case 2: t = view(param(gckpt_shape2(n, 1), 0.2f, constant), gckpt_shape1(n)); break;
    default: t = param(gckpt_shape1(n), 0.2f, constant); break;
    }
    return t;
}

static gckpt_tensor *(*const curves[])(gckpt_tensor *) = { gckpt_gelu, gckpt_gelu_erf, gckpt_silu, gckpt_tanh, gckpt_sigmoid, gckpt_softmax, gckpt_relu };

/* A pool tensor that can stand beside x in a broadcast; x itself is fine. Equal: the same shape. */
static gckpt_tensor *partner(gckpt_tensor *x, int equal)
{
    gckpt_tensor *found = x;
    gckpt_shape a = gckpt_shape_of(x);
    if (chance(20))
        return x;
    for (int k = 0; k < m.pooled; k++) {
        gckpt_shape b = gckpt_shape_of(m.pool[k]);
        int fits = a.n == b.n && a.d[0] == b.d[0];
        int64_t n = 1;
        for (int i = 1; i < a.n && fits; i++) {
            fits = a.d[i] == b.d[i] || (!equal && (a.d[i] == 1 || b.d[i] == 1));
            n *= a.d[i] > b.d[i] ? a.d[i] : b.d[i];
        }
        if (fits && n * a.d[0] / m.rows <= LARGEST && chance(40))
            found = m.pool[k];
    }
    return found;
}

static void push(gckpt_tensor *t)
{
    if (t && elements(t) / m.rows <= LARGEST)
        m.pool[m.pooled++] = t;
}

static void add_loss(gckpt_tensor *x)
{
    gckpt_shape s = gckpt_shape_of(x);
    gckpt_tensor *t, *w;
    gckpt_term *term = &m.term[m.terms];
    if (m.terms >= 3)
        return;
    switch (below(4)) {
    case 0:
        t = partner(x, 1);
        t = t == x ? (elements(x) == elements(m.x) && chance(60) ? view(m.x, s) : unary(gckpt_sigmoid, x)) : t;
        t = note(gckpt_mean_squared_error(x, t), x, t, NULL);
        break;
    case 1: t = unary(gckpt_sum_loss, chance(70) ? binary(gckpt_mul, x, x) : x); break;
    default:
        if (s.n != 3 || s.d[0] != m.rows || s.d[1] != m.t) {
            t = view(x, gckpt_shape2(m.rows, -1));
            w = weight(elements(t) / m.rows, m.t * 4);
            x = note(gckpt_linear(t, w, NULL), t, w, NULL);
            x = view(x, gckpt_shape3(m.rows, m.t, 4));
        }
        s = gckpt_shape_of(x);
        w = weight(V, s.d[2]);
        t = m.targets[below(2)];
        if (chance(50))
            t = note(gckpt_linear_cross_entropy(x, w, t), x, w, t);
        else
            x = note(gckpt_linear_transposed(x, w, NULL), x, w, NULL), t = note(gckpt_cross_entropy(x, t), x, t, NULL);
        break;
    }
    term->loss = t;
    term->weight = m.terms == 0 || chance(50) ? 1.0f : 0.3f;
    term->regulariser = 0;
    m.terms++;
}

/* One random op, or a few. */
static void step(void)
{
    gckpt_tensor *x = m.pool[chance(50) && m.pooled > 3 ? m.pooled - 1 - (int)below(3) : (int)below(m.pooled)], *y = NULL, *z;
    gckpt_shape s = gckpt_shape_of(x);
    int64_t c = s.d[s.n - 1], o = chance(50) ? m.c : chance(50) ? c : 4, per_row = elements(x) / m.rows;
    int heads = c % 4 == 0 && chance(50) ? 2 : 1, axis = 1 + (int)below(s.n - 1), axes[GCKPT_MAX_DIMS];
    switch (below(26)) {
    case 0: case 1: y = unary(curves[below(m.smooth ? 6 : 7)], x); break;
    case 2: y = note(gckpt_scale(x, 0.75f), x, NULL, NULL); break;
    case 3: case 4: y = weight(c, o), z = chance(50) ? vector(o, 0) : NULL, y = note(gckpt_linear(x, y, z), x, y, z); break;
    case 5: y = weight(o, c), z = chance(50) ? vector(o, 0) : NULL, y = note(gckpt_linear_transposed(x, y, z), x, y, z); break;
    case 6: y = chance(60) ? vector(c, 1) : NULL, z = chance(60) ? vector(c, 0) : NULL, y = note(gckpt_layernorm(x, y, z), x, y, z); break;
    case 7: y = chance(60) ? vector(c, 1) : NULL, y = note(gckpt_rmsnorm(x, y), x, y, NULL); break;
    case 8: case 9:
        if (s.n != 3)
            break;
        if (c % (2 * heads) == 0 && chance(40))
            x = note(gckpt_rotary(x, heads, 0), x, NULL, NULL);
        y = partner(x, 1), z = chance(50) ? y : partner(y, 1);
        y = note(gckpt_attention(x, y, z, heads, chance(50)), x, y, z);
        break;
    case 10:
        if (s.n == 3 && c % (2 * heads) == 0)
            y = note(gckpt_rotary(x, heads, chance(50) ? 0 : 100.0f), x, NULL, NULL);
        break;
    case 11: y = partner(x, 1), y = chance(50) ? concat(x, y, x, axis) : concat(y, x, NULL, axis - s.n); break;
    case 12:
        o = (int64_t)below(2);
        if (s.d[axis] > 1)
            y = note(gckpt_slice(x, axis, o, s.d[axis] - (s.d[axis] > 2 && chance(50))), x, NULL, NULL);
        break;
    case 13:
        for (int i = 0; i < s.n; i++)
            axes[i] = i;
        axes[axis] = s.n - 1, axes[s.n - 1] = axis;
        y = note(gckpt_permute(x, axes, s.n), x, NULL, NULL);
        break;
    case 14: case 15:
        if (s.n == 3 && chance(50))
            y = view(x, gckpt_shape2(s.d[0] * s.d[1], c));
        else if (c % 2 == 0 && chance(50))
            y = view(x, gckpt_shape3(m.rows, c / 2, -1));
        else if (per_row % m.c == 0)
            y = view(x, gckpt_shape3(m.rows, per_row / m.c, m.c));
        else
            y = view(x, gckpt_shape4(m.rows, 1, -1, c));
        break;
    case 16: case 17:
        y = note(chance(50) ? gckpt_sum(x, axis) : gckpt_mean(x, axis - s.n), x, NULL, NULL);
        s.d[axis] = 1;
        if (s.n == 2 || chance(60))
            y = view(y, s);
        break;
    case 18: y = note(gckpt_dropout(x, 0.3f), x, NULL, NULL), m.dropout = 1; break;
    case 19: y = partner(x, 0), y = binary(chance(70) ? gckpt_add : gckpt_sub, x, y); break;
    case 20: y = partner(x, 0), y = unary(gckpt_tanh, binary(gckpt_mul, y, x)); break;
    case 21:
        if (s.n < 3)
            break;
        y = partner(x, 1), z = binary(gckpt_matmul_transposed, x, y);
        y = chance(50) ? z : binary(gckpt_matmul, chance(50) ? unary(gckpt_softmax, z) : note(gckpt_scale(z, 0.2f), z, NULL, NULL), y);
        break;
    case 22: y = weight(c, o), y = binary(gckpt_matmul, x, y); break;
    case 23: /* with something that has no batch axis */
        y = chance(30) ? weight(s.n > 2 ? s.d[s.n - 2] : 1, c) : chance(30) ? weight(1, 1) : vector(c, 1);
        if (chance(25))
            y = note(gckpt_constant(m.g, "k", GCKPT_F32, gckpt_shape1(c), constant_data), NULL, NULL, NULL);
        else if (chance(25))
            y = vector(5, 0), y = note(gckpt_sum(y, 0), y, NULL, NULL); /* a scalar */
        y = chance(50) ? binary(gckpt_mul, y, y) : y;
        y = binary(chance(40) ? gckpt_add : chance(40) ? gckpt_sub : gckpt_mul, x, y);
        break;
    case 24:
        if (s.n == 3)
            y = weight(s.d[1] + 2, c), y = note(gckpt_positions(x, y), x, y, NULL);
        break;
    default: y = weight(V, m.c), y = note(gckpt_embed(y, m.tokens), y, m.tokens, NULL); break;
    }
    push(y);
    if (chance(6))
        add_loss(m.pool[m.pooled - 1]);
}

static gckpt_tensor *block(gckpt_tensor *x, void *user)
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
    uint64_t saved = state;
    gckpt_store_desc desc;
    char name[16];
    int depth = 0, unused = 0;
    gckpt_tensor *end = NULL;
    memset(&desc, 0, sizeof desc);
    memset(&m, 0, sizeof m);
    state = seed * 0x9e3779b97f4a7c15u + 1;
    below(2);
    desc.seed = seed;
    m.s = gckpt_store_new(&desc);
    m.g = gckpt_graph_new(m.s, NULL);
    m.rows = rows;
    m.batch = 3 + (int64_t)below(BATCH - 2);
    m.t = chance(4) ? 67 : 1 + (int64_t)below(6);
    m.c = m.t > 60 ? 4 : chance(15) ? 20 : 4 * (1 + (int64_t)below(3));
    m.smooth = seed % 2 == 0;
    m.rows = rows = rows ? rows : m.batch;
    m.x = note(gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape3(rows, m.t, m.c)), NULL, NULL, NULL);
    m.tokens = note(gckpt_input(m.g, "tokens", GCKPT_I32, gckpt_shape2(rows, m.t)), NULL, NULL, NULL);
    m.targets[0] = note(gckpt_input(m.g, "a", GCKPT_I32, gckpt_shape2(rows, m.t)), NULL, NULL, NULL);
    m.targets[1] = note(gckpt_input(m.g, "b", GCKPT_I32, gckpt_shape2(rows, m.t)), NULL, NULL, NULL);
    for (int i = 0; i < 4; i++)
        m.nodes[i].data = 1;
    gckpt_tensor *w = param(gckpt_shape2(m.c, m.c), 0.5f, 0); /* never frozen */
    push(note(gckpt_linear(m.x, w, NULL), m.x, w, NULL));
    if (chance(50))
        push(m.x);
    for (int i = 5 + (int)below(m.smooth ? 6 : 14); i > 0; i--)
        if (chance(30))
            gckpt_checkpoint(block, m.pool[m.pooled - 1], &depth);
        else
            step();
    for (int k = m.pooled; k-- > 0 && unused < 6;) /* let nearly everything lead to a loss */
        if (!m.used[gckpt_id(m.pool[k])]) {
            gckpt_tensor *t = view(m.pool[k], gckpt_shape2(rows, -1));
            t = chance(50) && unused ? note(gckpt_mean(t, 1), t, NULL, NULL) : t;
            t = view(t, gckpt_shape2(rows, -1));
            end = end ? concat(end, t, NULL, 1) : t;
            unused++;
        }
    m.terms = m.terms > 2 ? 2 : m.terms;
    add_loss(end ? end : m.pool[m.pooled - 1]);
    if (chance(40)) {
        gckpt_tensor *t = m.weight[below(m.weights)];
        m.term[m.terms].loss = unary(gckpt_sum_loss, chance(80) ? binary(gckpt_mul, t, t) : t);
        m.term[m.terms].weight = 0.01f;
        m.term[m.terms++].regulariser = 1;
    }
    for (int i = 1; i < m.params; i++)
        if (chance(12)) {
            snprintf(name, sizeof name, "p%d", i);
            CHECK(gckpt_store_freeze(m.s, name, 1) == GCKPT_OK);
        }
    state = saved;
}

static void destroy(void)
{
    gckpt_graph_free(m.g);
    gckpt_store_free(m.s);
}

/* ---- runs ---- */
typedef struct {
    const char *what;
    gckpt_mode mode;
    int64_t rows, stream;
    int pieces, in_backward, threads, pins, instructions, alignment, no_clip;
    unsigned debug;
    size_t budget;
    const gckpt_instruction *schedule;
} run;
typedef struct { double loss[STEPS], norm[STEPS]; int64_t count; uint64_t hash; size_t bytes; int skipped; } outcome;
static struct { int id, gradient, data; int64_t n; float *values; } picks[PICKS];
static int pick_count, not_finite;

/* Forwards follow those of their inputs; backwards come once, in descending order within the batch's
 * part and within the rest, after a forward of theirs; updates once, after all backwards that lead to
 * the parameter. */
static void verify(const gckpt_plan *p, const char *what)
{
    static int seen[MOST], back[MOST], updated[MOST];
    int last[2] = { MOST, MOST };
    gckpt_instruction in;
    memset(seen, 0, sizeof seen);
    memset(back, 0, sizeof back);
    memset(updated, 0, sizeof updated);
    for (int i = 0; i < gckpt_plan_length(p); i++) {
        CHECK(gckpt_plan_get(p, i, &in) == GCKPT_OK && in.id >= 0 && in.id < m.count);
        const node *q = &m.nodes[in.id];
        int good = 1;
        for (int k = 0; k < 3 && in.kind == GCKPT_FORWARD; k++)
            good = good && (q->in[k] < 0 || !m.nodes[q->in[k]].is_op || seen[q->in[k]]);
        for (int k = 0; k < 3 && in.kind == GCKPT_BACKWARD; k++)
            good = good && (q->in[k] < 0 || !updated[q->in[k]]);
        if (in.kind == GCKPT_BACKWARD) {
            good = good && !back[in.id]++ && in.id < last[!q->data];
            good = good && (!q->data || last[1] == MOST);
            last[!q->data] = in.id;
        } else if (in.kind == GCKPT_UPDATE) {
            good = good && !updated[in.id]++ && !q->is_op;
        } else {
            seen[in.id] = 1;
        }
        CHECK_MSG(good, "%s: instruction %d (%d of tensor %d) is out of order", what, i, (int)in.kind, in.id);
    }
    for (int i = 0; i < m.terms; i++)
        CHECK(seen[gckpt_id(m.term[i].loss)]);
}

static void feed(gckpt_feed *f, int64_t row)
{
    f[0].input = gckpt_id(m.x), f[0].data = x_data + row * m.t * m.c;
    f[1].input = gckpt_id(m.tokens), f[1].data = token_data + row * m.t;
    f[2].input = gckpt_id(m.targets[0]), f[2].data = target_data[0] + row * m.t;
    f[3].input = gckpt_id(m.targets[1]), f[3].data = target_data[1] + row * m.t;
}

static gckpt_result one_step(gckpt_exec *e, const run *r, gckpt_report *report)
{
    gckpt_feed f[4];
    gckpt_hyper hyper;
    gckpt_result result = GCKPT_OK;
    memset(&hyper, 0, sizeof hyper);
    hyper.lr = 0.02f;
    hyper.weight_decay = 0.1f;
    hyper.clip = r->in_backward || r->no_clip ? 0 : 0.3f;
    feed(f, 0);
    if (r->stream) {
        result = gckpt_step_begin(e, &hyper);
        for (int64_t row = 0; row < m.batch && result == GCKPT_OK; row += r->stream) {
            feed(f, row);
            result = gckpt_step_add(e, f, 4, m.batch - row < r->stream ? m.batch - row : r->stream);
        }
        return result == GCKPT_OK ? gckpt_step_end(e, report) : result;
    }
    if (!r->pieces)
        return gckpt_step(e, f, 4, m.batch, &hyper, report);
    result = gckpt_step_start(e, f, 4, m.batch, &hyper);
    while (result == GCKPT_OK && (result = gckpt_run_some(e, r->pieces, report)) == GCKPT_MORE)
        result = GCKPT_OK;
    return result;
}

/* Trains, and compares with `want`; without it, fills the picks' values. */
static outcome train(unsigned seed, const run *r, const outcome *want)
{
    outcome o;
    gckpt_plan_desc d;
    gckpt_exec_desc x;
    gckpt_report report;
    gckpt_pick fetch[PICKS];
    gckpt_parameter q;
    memset(&o, 0, sizeof o);
    memset(&d, 0, sizeof d);
    memset(&x, 0, sizeof x);
    memset(&report, 0, sizeof report);
    build(seed, r->rows);
    for (int i = 0; r->pins && i < m.count; i++)
        if (m.nodes[i].is_op && chance(25))
            CHECK((chance(50) ? gckpt_keep : gckpt_recompute)(m.nodes[i].t) == m.nodes[i].t);
    for (int i = 0; i < pick_count; i++)
        fetch[i].tensor = m.nodes[picks[i].id].t, fetch[i].gradient = picks[i].gradient;
    d.mode = r->mode;
    d.batch = m.batch;
    d.budget = r->budget;
    d.update_in_backward = r->in_backward;
    d.threads = r->threads;
    d.alignment = (size_t)r->alignment;
    d.schedule = r->schedule;
    d.instructions = r->instructions;
    d.fetch = fetch;
    d.fetches = pick_count;
    gckpt_plan *p = gckpt_plan_new(m.g, m.term, m.terms, &d);
    x.debug = r->debug;
    gckpt_exec *e = p ? gckpt_exec_new(p, m.s, &x) : NULL;
    gckpt_result result = e ? GCKPT_OK : GCKPT_E_ARG;
    CHECK_MSG(e != NULL, "seed %u %s: %s %s", seed, r->what, gckpt_error_text(m.g), gckpt_error_text(m.s));
    CHECK(gckpt_plan_split_exact(p, NULL) && gckpt_plan_arena(p) >= gckpt_plan_bound(p));
    verify(p, r->what);
    o.bytes = gckpt_plan_bytes(p);
    CHECK(!r->budget || o.bytes <= r->budget);
    for (int i = 0; i < STEPS && result == GCKPT_OK; i++) {
        result = one_step(e, r, &report);
        o.loss[i] = report.loss, o.norm[i] = report.grad_norm, o.count = report.count;
    }
    o.skipped = r->stream && result == GCKPT_E_ARG && strstr(gckpt_error_text(e), "count of its own");
    CHECK_MSG(o.skipped || result == GCKPT_OK, "seed %u %s rows %d: %s", seed, r->what, (int)r->rows, gckpt_error_text(e));
    o.hash = gckpt_store_hash(m.s);
    for (int i = 0; gckpt_store_get(m.s, i, &q) == GCKPT_OK; i++)
        for (int64_t k = 0; k < 2 * q.elements; k++) {
            uint32_t word = 0;
            if (q.state[k % 2])
                memcpy(&word, q.state[k % 2] + k / 2, 4);
            o.hash = (o.hash ^ word) * 1099511628211u;
        }
    int64_t rows = m.rows, at_once = r->stream ? r->stream : m.batch, tail = ((m.batch - 1) % at_once + 1 - 1) % rows + 1;
    for (int i = 0; i < pick_count && result == GCKPT_OK; i++) {
        const float *got = gckpt_fetch(e, picks[i].id, picks[i].gradient);
        int64_t n = picks[i].data ? picks[i].n / m.batch * tail : picks[i].n;
        if (!CHECK(got != NULL))
            continue;
        if (want)
            CHECK_MSG(memcmp(got, picks[i].values + picks[i].n - n, (size_t)n * sizeof(float)) == 0,
                      "seed %u %s rows %d: fetched %s of tensor %d differs", seed, r->what, (int)r->rows,
                      picks[i].gradient ? "gradient" : "value", picks[i].id);
        else
            memcpy(picks[i].values, got, (size_t)n * sizeof(float));
    }
    if (want && !o.skipped)
        CHECK_MSG(o.hash == want->hash && o.count == want->count && memcmp(o.loss, want->loss, sizeof o.loss) == 0 &&
                      memcmp(o.norm, want->norm, sizeof o.norm) == 0,
                  "seed %u %s rows %d: other bits (loss %.9g, %.9g; norm %.9g, %.9g)", seed, r->what, (int)r->rows, o.loss[1],
                  want->loss[1], o.norm[1], want->norm[1]);
    if (r->debug & GCKPT_DEBUG_MEASURE && !(r->debug & GCKPT_DEBUG_PAINT) && (!r->stream || r->stream >= rows) && !o.skipped)
        CHECK_MSG(gckpt_bytes_measured(e) == o.bytes, "seed %u %s rows %d: %lu bytes planned, %lu measured", seed, r->what,
                  (int)r->rows, (unsigned long)o.bytes, (unsigned long)gckpt_bytes_measured(e));
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    destroy();
    return o;
}

/* All forwards in order, losses at any time before their backward, stretches repeated anywhere. */
static int random_schedule(const gckpt_instruction *list, int n, gckpt_instruction *out, int most)
{
    int count = 0, forwards = 0, late[4] = { 0, 0, 0, 0 };
    for (int i = 0; i < n; i++) {
        int loss = -1, back = list[i].kind == GCKPT_BACKWARD;
        for (int k = 0; k < m.terms; k++)
            loss = gckpt_id(m.term[k].loss) == list[i].id ? k : loss;
        for (int k = 0; k < m.terms; k++)
            if (late[k] && ((back && k == loss) || chance(10)))
                out[count].kind = GCKPT_FORWARD, out[count++].id = late[k], late[k] = 0;
        if (!back && loss >= 0 && chance(50)) {
            late[loss] = list[i].id;
            continue;
        }
        for (int again = (int)below(3); again > 0 && forwards > 0 && count < most; again--) {
            int a = (int)below(forwards), b = a + (int)below(forwards - a + 1);
            for (; a < b && count < most; a++)
                out[count++] = list[a];
        }
        forwards += !back && forwards == i;
        out[count++] = list[i];
    }
    return count;
}

/* Data, and picks of what has a value or a gradient; the schedule of a plain store-all plan. */
static int prepare(unsigned seed, gckpt_instruction *list)
{
    gckpt_plan_desc d;
    int n = 0;
    build(seed, 0);
    for (int64_t i = 0; i < VALUES; i++) {
        x_data[i] = ((float)below(2001) - 1000.0f) / 700.0f;
        token_data[i] = (int32_t)below(V);
        target_data[0][i] = chance(20) ? -1 : (int32_t)below(V);
        target_data[1][i] = chance(40) ? -1 : (int32_t)below(V);
    }
    for (int i = 0; i < LARGEST; i++)
        constant_data[i] = (float)below(9) / 4.0f - 1.0f;
    memset(&d, 0, sizeof d);
    d.mode = GCKPT_STORE_ALL;
    pick_count = 0;
    for (int i = 0; i < 20 && pick_count < PICKS; i++) {
        gckpt_pick pick;
        pick.tensor = m.nodes[below(m.count)].t, pick.gradient = chance(50);
        d.fetch = &pick, d.fetches = pick.tensor != NULL;
        gckpt_plan *p = pick.tensor ? gckpt_plan_new(m.g, m.term, m.terms, &d) : NULL;
        if (p) {
            picks[pick_count].id = gckpt_id(pick.tensor), picks[pick_count].gradient = pick.gradient;
            picks[pick_count].data = m.nodes[gckpt_id(pick.tensor)].data;
            picks[pick_count].n = elements(pick.tensor);
            picks[pick_count].values = (float *)malloc((size_t)elements(pick.tensor) * sizeof(float));
            if (!picks[pick_count++].values)
                exit(1);
        }
        gckpt_plan_free(p);
    }
    gckpt_pick all[PICKS];
    for (int i = 0; i < pick_count; i++)
        all[i].tensor = m.nodes[picks[i].id].t, all[i].gradient = picks[i].gradient;
    d.fetch = all, d.fetches = pick_count;
    gckpt_plan *p = gckpt_plan_new(m.g, m.term, m.terms, &d);
    CHECK_MSG(p != NULL, "seed %u: %s", seed, gckpt_error_text(m.g));
    for (int i = 0; i < gckpt_plan_length(p); i++)
        if (gckpt_plan_get(p, i, &list[n]) == GCKPT_OK && m.nodes[list[n].id].data)
            n++;
    gckpt_plan_free(p);
    return n;
}

/* Finite differences, on graphs without relu. */
static void check_gradients(unsigned seed)
{
    gckpt_plan_desc d;
    gckpt_feed f[4];
    double worst = 0;
    build(seed, 0);
    memset(&d, 0, sizeof d);
    d.mode = GCKPT_SQRT;
    gckpt_plan *p = gckpt_plan_new(m.g, m.term, m.terms, &d);
    gckpt_exec *e = gckpt_exec_new(p, m.s, NULL);
    feed(f, 0);
    gckpt_result result = gckpt_check_gradients(e, f, 4, m.batch, &worst);
    CHECK_MSG(result == GCKPT_OK && worst < 0.01, "seed %u: %g %s", seed, worst, gckpt_error_text(e));
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    destroy();
}

static void test_graph(unsigned seed)
{
    static gckpt_instruction list[4 * MOST], schedule[20000];
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS, GCKPT_SQRT };
    static const char *const names[] = { "store-all", "memory-poor", "segments", "sqrt" };
    run r, plain;
    size_t least = SIZE_MAX, most = 0;
    memset(&plain, 0, sizeof plain);
    state = seed + 77u;
    int length = prepare(seed, list);
    int64_t batch = m.batch;
    destroy();
    plain.mode = GCKPT_STORE_ALL;
    plain.rows = batch;
    plain.debug = GCKPT_DEBUG_PLAIN;
    plain.what = "plain";
    outcome want = train(seed, &plain, NULL);
    if (!isfinite(want.loss[1]) || !isfinite(want.norm[1])) {
        not_finite++;
    } else {
        for (int k = 0; k < 4; k++)
            for (int64_t rows = batch; rows >= 1; rows = rows > 1 ? 1 + (int64_t)below(rows - 1) : 0) {
                memset(&r, 0, sizeof r);
                r.mode = modes[k];
                r.what = names[k];
                r.rows = rows;
                r.debug = GCKPT_DEBUG_MEASURE | (chance(25) ? GCKPT_DEBUG_PLAIN : 0);
                outcome o = train(seed, &r, &want);
                if (rows == batch)
                    least = o.bytes < least ? o.bytes : least, most = o.bytes > most ? o.bytes : most;
                r.pins = chance(50);
                r.pieces = chance(40) ? 1 + (int)below(5) : 0;
                r.stream = chance(30) && rows < batch && !r.pieces ? 1 + (int64_t)below(batch) : 0;
                r.threads = chance(30) ? 1 + (int)below(3) : 0;
                r.alignment = chance(20) ? 4 << below(6) : 0;
                r.debug = (chance(60) ? GCKPT_DEBUG_PAINT : GCKPT_DEBUG_MEASURE) | (chance(50) ? GCKPT_DEBUG_RECOMPUTE : 0);
                train(seed, &r, &want);
            }
        for (int k = 0; k < 4; k++) {
            memset(&r, 0, sizeof r);
            r.mode = GCKPT_SCHEDULE;
            r.what = "schedule";
            r.rows = k % 2 ? batch : 1 + (int64_t)below(batch);
            r.debug = k & 2 ? GCKPT_DEBUG_PAINT | GCKPT_DEBUG_RECOMPUTE : GCKPT_DEBUG_MEASURE;
            r.pins = k == 3;
            build(seed, 0);
            r.instructions = random_schedule(list, length, schedule, 15000);
            r.schedule = schedule;
            destroy();
            train(seed, &r, &want);
        }
        memset(&r, 0, sizeof r);
        r.what = "budget";
        r.rows = batch;
        r.budget = least + (most > least ? below((int64_t)(most - least) + 1) : 0);
        train(seed, &r, &want);
        plain.what = "plain, no clipping";
        plain.no_clip = 1;
        outcome late = train(seed, &plain, NULL);
        r.what = "update in backward";
        r.in_backward = 1;
        r.budget = 0;
        for (int k = 0; k < 5; k++) {
            r.mode = k == 4 ? GCKPT_SCHEDULE : modes[k];
            r.pins = chance(40);
            r.debug = chance(50) ? GCKPT_DEBUG_PAINT | GCKPT_DEBUG_RECOMPUTE : GCKPT_DEBUG_MEASURE;
            r.schedule = schedule;
            r.instructions = 0;
            if (k == 4) {
                build(seed, 0);
                r.instructions = random_schedule(list, length, schedule, 15000);
                destroy();
            }
            train(seed, &r, &late);
        }
        if (seed % 2 == 0)
            check_gradients(seed);
    }
    for (int i = 0; i < pick_count; i++)
        free(picks[i].values);
    pick_count = 0;
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    unsigned count = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 60;
    for (unsigned i = 0; i < count; i++)
        test_graph(first + i);
    CHECK_MSG(not_finite * 5 <= (int)count, "%d of %u graphs overflowed", not_finite, count);
    return check_report("test_random");
}
