/* test_random.c - random graphs from the whole op set: every plan, split, feed style, thread count and debug aid gives
 * the bits of one plain store-all run over the whole batch, and the bytes that were promised; gradients agree with
 * finite differences.       build/test_random [first seed] [graphs] */
#include "gradckpt.h"

#include <math.h>

#include "rig.h"

enum { MOST = 900, BATCH = 8, STEPS = 2, PICKS = 8, V = 11, LARGEST = 360, VALUES = BATCH * LARGEST };
typedef gckpt_tensor T;

/* ---- the graph under construction. No decision may depend on m.rows, nor on the order in which a compiler evaluates
 * arguments: a seed gives the same graph for every micro-batch and everywhere. ---- */
static struct {
    gckpt_store *s;
    gckpt_graph *g;
    int64_t rows, batch, t, c;
    int smooth, params, count, pooled, weights, terms, depth, dropout;
    struct { int in[3], base, is_op, data; T *t; } nodes[MOST];
    T *pool[MOST], *weight[MOST], *x, *tokens, *targets[2];
    unsigned char used[MOST];
    gckpt_term term[4];
} m;
static float x_data[VALUES], constant_data[LARGEST];
static int32_t token_data[VALUES], target_data[2][VALUES];

/* Notes what t reads. */
static T *note3(T *t, T *a, T *b, T *c)
{
    T *in[3] = { a, b, c };
    int id = gckpt_id(t);
    if (!CHECK_MSG(t != NULL && id < MOST, "build: %s", gckpt_error_text(m.g)))
        exit(check_report("test_random"));
    if (m.nodes[id].t) /* a parameter that was there before */
        return t;
    for (; m.count < id; m.count++) /* an op made of several: what it reads is not known */
        m.nodes[m.count].is_op = 1, memset(m.nodes[m.count].in, -1, sizeof m.nodes[m.count].in);
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
static T *note(T *t, T *a) { return note3(t, a, NULL, NULL); }
static T *note2(T *t, T *a, T *b) { return note3(t, a, b, NULL); }
static T *mul(T *a, T *b) { return note2(gckpt_mul(a, b), a, b); }
static T *view(T *x, gckpt_shape shape)
{
    T *t = note(gckpt_reshape(x, shape), x);
    m.nodes[gckpt_id(t)].is_op = 0;
    m.nodes[gckpt_id(t)].base = m.nodes[gckpt_id(x)].base;
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
    int64_t n = 1;
    for (int i = 0; i < s.n; i++)
        n *= s.d[i];
    return n;
}
static T *param(gckpt_shape shape, float normal, float constant)
{
    char name[16];
    snprintf(name, sizeof name, "p%d", m.params++);
    return m.weight[m.weights++] = note(gckpt_param(m.g, name, shape, (gckpt_init){ normal, 0, constant }), NULL);
}

/* (i,o): a parameter or a function of parameters, new or used before. */
static T *weight(int64_t i, int64_t o)
{
    static const int swap[2] = { 1, 0 };
    T *t = NULL, *u;
    for (int k = 0, again = chance(45); again && k < m.weights; k++) {
        gckpt_shape s = gckpt_shape_of(m.weight[k]);
        t = s.n == 2 && s.d[0] == i && s.d[1] == o && (!t || chance(40)) ? m.weight[k] : t;
    }
    if (t || m.depth > 1)
        return t ? t : param(gckpt_shape2(i, o), 0.4f, 0);
    m.depth++;
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
    case 10: t = weight(i, o), t = note(gckpt_dropout(t, 0.25f), t), m.dropout = 1; break;
    case 11: t = weight(i, o), u = weight(o, o), t = note2(gckpt_linear(t, u, NULL), t, u); break;
    default: break;
    }
    m.depth--;
    return t ? m.weight[m.weights++] = t : param(gckpt_shape2(i, o), 0.4f, 0);
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
    for (int k = 0, self = chance(20); k < m.pooled && !self; k++) {
        gckpt_shape b = gckpt_shape_of(m.pool[k]);
        int fits = a.n == b.n && a.d[0] == b.d[0];
        int64_t n = a.d[0] / m.rows;
        for (int i = 1; i < a.n && fits; i++) {
            fits = a.d[i] == b.d[i] || (!equal && (a.d[i] == 1 || b.d[i] == 1));
            n *= a.d[i] > b.d[i] ? a.d[i] : b.d[i];
        }
        found = fits && n <= LARGEST && chance(40) ? m.pool[k] : found;
    }
    return found;
}

static void add_loss(T *x)
{
    gckpt_shape s = gckpt_shape_of(x);
    T *t = partner(x, 1), *w;
    int kind = (int)below(5), index = (int)below(2);
    if (m.terms >= 3)
        return;
    if (kind == 0) {
        t = t != x ? t : elements(x) == elements(m.x) ? view(m.x, s) : note(gckpt_sigmoid(x), x);
        t = note2(gckpt_mean_squared_error(x, t), x, t);
    } else if (kind == 1) {
        t = m.smooth || chance(70) ? mul(x, x) : x; /* a sum that cancels drowns differences in rounding */
        t = note(gckpt_sum_loss(t), t);
    } else {
        if (s.n != 3 || s.d[0] != m.rows || s.d[1] != m.t) {
            t = view(x, gckpt_shape2(m.rows, -1)), w = weight(elements(t) / m.rows, m.t * 4);
            x = view(note2(gckpt_linear(t, w, NULL), t, w), gckpt_shape3(m.rows, m.t, 4));
        }
        t = m.targets[index], w = weight(V, gckpt_shape_of(x).d[2]);
        if (kind == 2)
            t = note3(gckpt_linear_cross_entropy(x, w, t), x, w, t);
        else
            x = note2(gckpt_linear_transposed(x, w, NULL), x, w), t = note2(gckpt_cross_entropy(x, t), x, t);
    }
    m.term[m.terms] = (gckpt_term){ t, m.terms == 0 || chance(50) ? 1.0f : 0.3f, 0 };
    m.terms++;
}

/* One random op on x, or a few; NULL when the one drawn does not fit. */
static T *grow(T *x)
{
    static T *(*const curves[])(T *) = { gckpt_gelu, gckpt_gelu_erf, gckpt_silu, gckpt_tanh, gckpt_sigmoid, gckpt_softmax, gckpt_relu };
    T *y, *z;
    gckpt_shape s = gckpt_shape_of(x);
    int64_t c = s.d[s.n - 1], o = chance(50) ? m.c : chance(50) ? c : 4, per_row = elements(x) / m.rows;
    int heads = c % 4 == 0 && chance(50) ? 2 : 1, axis = 1 + (int)below(s.n - 1), even = s.n == 3 && c % (2 * heads) == 0;
    int a = chance(50), b = chance(50), axes[GCKPT_MAX_DIMS] = { 0, 1, 2, 3, 4, 5 };
    switch (below(26)) {
    case 0: case 1: return note(curves[below(m.smooth ? 6 : 7)](x), x);
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
        return s.n == 3 && a ? view(x, gckpt_shape2(s.d[0] * s.d[1], c)) : c % 2 == 0 && b ? view(x, gckpt_shape3(m.rows, c / 2, -1))
               : per_row % m.c == 0 ? view(x, gckpt_shape3(m.rows, per_row / m.c, m.c)) : view(x, gckpt_shape4(m.rows, 1, -1, c));
    case 16: case 17:
        y = note(a ? gckpt_sum(x, axis) : gckpt_mean(x, axis - s.n), x), s.d[axis] = 1;
        return s.n == 2 || b ? view(y, s) : y;
    case 18: m.dropout = 1; return note(gckpt_dropout(x, 0.3f), x);
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
            y = note(gckpt_constant(m.g, "k", GCKPT_F32, gckpt_shape1(c), constant_data), NULL);
        else if (chance(25))
            z = vector(5, 0), y = note(gckpt_sum(z, 0), z); /* a scalar */
        y = chance(50) ? mul(y, y) : y;
        return a ? mul(y, x) : note2(b ? gckpt_add(x, y) : gckpt_sub(y, x), x, y);
    case 24: y = s.n == 3 ? weight(s.d[1] + 2, c) : NULL; return y ? note2(gckpt_positions(x, y), x, y) : NULL;
    default: y = weight(V, m.c); return note2(gckpt_embed(y, m.tokens), y, m.tokens);
    }
}
static void step(void)
{
    T *y = grow(m.pool[chance(50) && m.pooled > 3 ? m.pooled - 1 - (int)below(3) : (int)below(m.pooled)]);
    if (y && elements(y) / m.rows <= LARGEST)
        m.pool[m.pooled++] = y;
    if (chance(6))
        add_loss(m.pool[m.pooled - 1]);
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
    memset(&m, 0, sizeof m);
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    m.s = gckpt_store_new(&desc);
    m.g = gckpt_graph_new(m.s, NULL);
    m.batch = 3 + (int64_t)below(BATCH - 2);
    m.t = chance(4) ? 67 : 1 + (int64_t)below(6); /* 67: more than one tile of keys */
    m.c = m.t > 60 ? 4 : chance(15) ? 20 : 4 * (1 + (int64_t)below(3));
    m.smooth = seed % 2 == 0;
    m.rows = rows = rows ? rows : m.batch;
    m.x = note(gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape3(rows, m.t, m.c)), NULL);
    m.tokens = note(gckpt_input(m.g, "tokens", GCKPT_I32, gckpt_shape2(rows, m.t)), NULL);
    m.targets[0] = note(gckpt_input(m.g, "a", GCKPT_I32, gckpt_shape2(rows, m.t)), NULL);
    m.targets[1] = note(gckpt_input(m.g, "b", GCKPT_I32, gckpt_shape2(rows, m.t)), NULL);
    for (int i = 0; i < 4; i++)
        m.nodes[i].data = 1;
    t = param(gckpt_shape2(m.c, m.c), 0.5f, 0); /* never frozen */
    m.pool[m.pooled++] = note2(gckpt_linear(m.x, t, NULL), m.x, t);
    m.pool[m.pooled++] = m.x;
    for (int i = 5 + (int)below(m.smooth ? 6 : 14); i > 0; i--)
        if (chance(30))
            gckpt_checkpoint(block, m.x, &depth);
        else
            step();
    for (int k = m.pooled; k-- > 0 && unused < 6;) /* let nearly everything lead to a loss */
        if (!m.used[gckpt_id(m.pool[k])]) {
            t = view(m.pool[k], gckpt_shape2(rows, -1));
            t = unused++ && chance(50) ? note(gckpt_mean(t, 1), t) : t;
            t = view(t, gckpt_shape2(rows, -1));
            end = end ? concat(end, t, NULL, 1) : t;
        }
    m.terms = m.terms > 2 ? 2 : m.terms;
    add_loss(end ? end : m.pool[m.pooled - 1]);
    if (chance(40)) {
        t = m.weight[below(m.weights)], t = m.smooth || chance(80) ? mul(t, t) : t;
        m.term[m.terms++] = (gckpt_term){ note(gckpt_sum_loss(t), t), 0.01f, 1 };
    }
    for (int i = 1; i < m.params; i++) {
        snprintf(name, sizeof name, "p%d", i);
        CHECK(!chance(12) || gckpt_store_freeze(m.s, name, 1) == GCKPT_OK);
    }
    random_state = saved;
}
static void destroy(void)
{
    rig_free(NULL, NULL, m.g, m.s);
}

/* ---- runs ---- */
typedef struct {
    const char *what;
    gckpt_mode mode;
    int64_t rows, stream; /* stream: rows at once */
    int pieces, in_backward, threads, pins, instructions, no_clip;
    unsigned debug;
    size_t budget, alignment;
    const gckpt_instruction *schedule;
} run;
typedef struct { double loss[STEPS], norm[STEPS]; int64_t count; uint64_t hash; size_t bytes; } outcome;
static struct { int id, gradient, data; int64_t n; float *values; } picks[PICKS];
static int pick_count, not_finite;

/* Forwards follow those of their inputs; backwards come once, in descending order, what depends on the batch first, and
 * before the updates of their inputs; every loss is run. */
static void verify(const gckpt_plan *p, const char *what)
{
    unsigned char seen[MOST] = { 0 }, back[MOST] = { 0 }, updated[MOST] = { 0 };
    int last[2] = { MOST, MOST };
    gckpt_instruction in;
    for (int i = 0; i < gckpt_plan_length(p); i++) {
        int good = gckpt_plan_get(p, i, &in) == GCKPT_OK, q = in.id, once = !m.nodes[q].data;
        for (int k = 0, from; k < 3; k++)
            if ((from = m.nodes[q].in[k]) >= 0)
                good = good && !(in.kind == GCKPT_FORWARD && m.nodes[from].is_op && !seen[from]) && !updated[from];
        if (in.kind == GCKPT_BACKWARD) {
            good = good && !back[q]++ && q < last[once] && (once || last[1] == MOST);
            last[once] = q;
        } else {
            good = good && (in.kind == GCKPT_FORWARD ? m.nodes[q].is_op : !updated[q] && !m.nodes[q].is_op);
            *(in.kind == GCKPT_UPDATE ? &updated[q] : &seen[q]) = 1;
        }
        CHECK_MSG(good, "%s: instruction %d (%d of tensor %d) is out of order", what, i, (int)in.kind, q);
    }
    for (int i = 0; i < m.terms; i++)
        CHECK(seen[gckpt_id(m.term[i].loss)]);
}

static int feed(const void *user, int64_t row, gckpt_feed *f)
{
    (void)user;
    f[0] = (gckpt_feed){ gckpt_id(m.x), x_data + row * m.t * m.c };
    f[1] = (gckpt_feed){ gckpt_id(m.tokens), token_data + row * m.t };
    f[2] = (gckpt_feed){ gckpt_id(m.targets[0]), target_data[0] + row * m.t };
    f[3] = (gckpt_feed){ gckpt_id(m.targets[1]), target_data[1] + row * m.t };
    return 4;
}

static gckpt_result one_step(gckpt_exec *e, const run *r, gckpt_report *report)
{
    gckpt_feed f[4];
    gckpt_hyper hyper = { .lr = 0.02f, .weight_decay = 0.1f, .clip = r->in_backward || r->no_clip ? 0 : 0.3f };
    if (r->mode == GCKPT_INFERENCE)
        return gckpt_forward(e, f, feed(NULL, 0, f), m.batch, report);
    return rig_step(e, feed, NULL, m.batch, r->stream, r->pieces, &hyper, report);
}

/* The plan again, through a file: the same file, and nothing lost. */
static gckpt_plan *through_file(gckpt_plan *p, unsigned seed, const char *what)
{
    file f = { 0 }, again = { 0 };
    CHECK(gckpt_plan_write(p, file_write, &f) == GCKPT_OK);
    gckpt_plan *q = gckpt_plan_read(m.g, file_read, &f, NULL);
    CHECK_MSG(q && gckpt_plan_write(q, file_write, &again) == GCKPT_OK && same_file(&f, &again) && gckpt_plan_bytes(q) == gckpt_plan_bytes(p) &&
                  gckpt_plan_bound(q) == gckpt_plan_bound(p) && gckpt_plan_work(q) == gckpt_plan_work(p),
              "seed %u %s: the plan through a file: %s", seed, what, gckpt_error_text(m.g));
    free(f.bytes);
    free(again.bytes);
    gckpt_plan_free(p);
    return q;
}

/* Trains and compares with `want`; without it, fills the picks' values. */
static outcome train(unsigned seed, const run *r, const outcome *want)
{
    gckpt_report report = { 0 };
    gckpt_pick fetch[PICKS];
    gckpt_parameter q;
    build(seed, r->rows);
    for (int i = 0; r->pins && i < m.count; i++)
        if (m.nodes[i].is_op && chance(25))
            (chance(50) ? gckpt_keep : gckpt_recompute)(m.nodes[i].t);
    int inference = r->mode == GCKPT_INFERENCE, fetches = inference ? 0 : pick_count;
    for (int i = 0; i < fetches; i++)
        fetch[i] = (gckpt_pick){ m.nodes[picks[i].id].t, picks[i].gradient };
    gckpt_plan_desc d = { .mode = r->mode, .batch = m.batch, .budget = r->budget, .update_in_backward = r->in_backward,
                          .threads = r->threads, .alignment = r->alignment, .schedule = r->schedule,
                          .instructions = r->instructions, .fetch = fetch, .fetches = fetches };
    gckpt_exec_desc x = { .debug = r->debug };
    gckpt_plan *p = gckpt_plan_new(m.g, m.term, m.terms, &d);
    if (p && want)
        p = through_file(p, seed, r->what);
    gckpt_exec *e = p ? gckpt_exec_new(p, m.s, &x) : NULL;
    if (!CHECK_MSG(e != NULL, "seed %u %s: %s %s", seed, r->what, gckpt_error_text(m.g), gckpt_error_text(m.s)))
        exit(check_report("test_random"));
    verify(p, r->what);
    outcome o = { .bytes = gckpt_plan_bytes(p) };
    CHECK(gckpt_plan_split_exact(p, NULL) && gckpt_plan_arena(p) >= gckpt_plan_bound(p));
    CHECK(!r->budget || o.bytes <= r->budget);
    gckpt_result result = GCKPT_OK;
    for (int i = 0; i < STEPS && result == GCKPT_OK; i++) {
        result = one_step(e, r, &report);
        o.loss[i] = report.loss, o.norm[i] = report.grad_norm, o.count = report.count;
    }
    int refused = r->stream && result == GCKPT_E_ARG && strstr(gckpt_error_text(e), "count of its own");
    CHECK_MSG(refused || result == GCKPT_OK, "seed %u %s rows %d: %s", seed, r->what, (int)r->rows, gckpt_error_text(e));
    o.hash = gckpt_store_hash(m.s);
    for (int i = 0; gckpt_store_get(m.s, i, &q) == GCKPT_OK; i++)
        for (int64_t k = 0; k < 2 * q.elements && q.state[1]; k++) {
            uint32_t word;
            memcpy(&word, q.state[k % 2] + k / 2, 4);
            o.hash = (o.hash ^ word) * 1099511628211u;
        }
    int64_t at_once = r->stream ? r->stream : m.batch, tail = (m.batch - 1) % at_once % m.rows + 1; /* last micro-batch */
    for (int i = 0; i < fetches && result == GCKPT_OK; i++) {
        const float *got = gckpt_fetch(e, picks[i].id, picks[i].gradient);
        int64_t n = picks[i].data ? picks[i].n / m.batch * tail : picks[i].n;
        if (!want)
            memcpy(picks[i].values, got, (size_t)n * sizeof(float));
        CHECK_MSG(got && memcmp(got, picks[i].values + picks[i].n - n, (size_t)n * sizeof(float)) == 0,
                  "seed %u %s rows %d: fetched %s of tensor %d differs", seed, r->what, (int)r->rows,
                  picks[i].gradient ? "gradient" : "value", picks[i].id);
    }
    if (want && !refused)
        CHECK_MSG(o.count == want->count && memcmp(o.loss, want->loss, inference ? sizeof(double) : sizeof o.loss) == 0 &&
                      (inference || (o.hash == want->hash && memcmp(o.norm, want->norm, sizeof o.norm) == 0)),
                  "seed %u %s rows %d: other bits (loss %.9g, %.9g; norm %.9g, %.9g)", seed, r->what, (int)r->rows, o.loss[1],
                  want->loss[1], o.norm[1], want->norm[1]);
    if (r->debug & GCKPT_DEBUG_MEASURE && !(r->debug & GCKPT_DEBUG_PAINT) && (!r->stream || r->stream >= m.rows) && !refused)
        CHECK_MSG(gckpt_bytes_measured(e) == o.bytes, "seed %u %s rows %d: %lu bytes planned, %lu measured", seed, r->what,
                  (int)r->rows, (unsigned long)o.bytes, (unsigned long)gckpt_bytes_measured(e));
    rig_free(e, p, NULL, NULL);
    destroy();
    return o;
}

/* From store-all's list: losses at any time before their backward, stretches of forwards repeated anywhere. */
static int own_schedule(unsigned seed, const gckpt_instruction *list, int n, gckpt_instruction *out, int most)
{
    int count = 0, forwards = 0, late[4] = { 0, 0, 0, 0 };
    build(seed, 0);
    for (int i = 0; i < n; i++) {
        int loss = -1, back = list[i].kind == GCKPT_BACKWARD;
        for (int k = 0; k < m.terms; k++) {
            loss = gckpt_id(m.term[k].loss) == list[i].id ? k : loss;
            if (late[k] && ((back && k == loss) || chance(10)))
                out[count++] = (gckpt_instruction){ GCKPT_FORWARD, late[k] }, late[k] = 0;
        }
        if (!back && loss >= 0 && chance(50)) {
            late[loss] = list[i].id;
            continue;
        }
        for (int again = (int)below(3); again > 0 && forwards > 0; again--) {
            int a = (int)below(forwards), b = a + (int)below(forwards - a + 1);
            for (; a < b && count < most; a++)
                out[count++] = list[a];
        }
        forwards += !back && forwards == i;
        out[count++] = list[i];
    }
    for (int k = 0; k < m.terms; k++) /* a loss of frozen parameters only has no backward */
        if (late[k])
            out[count++] = (gckpt_instruction){ GCKPT_FORWARD, late[k] };
    destroy();
    return count;
}

/* Data; picks of what has a value or a gradient; store-all's schedule of what depends on the batch. */
static int prepare(unsigned seed, gckpt_instruction *list)
{
    gckpt_pick all[PICKS];
    gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL };
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
    pick_count = 0;
    for (int i = 0; i < 20 && pick_count < PICKS; i++) {
        T *t = m.nodes[below(m.count)].t;
        gckpt_pick *pick = &all[pick_count];
        pick->tensor = t, pick->gradient = chance(50), d.fetch = pick, d.fetches = 1;
        gckpt_plan *p = t ? gckpt_plan_new(m.g, m.term, m.terms, &d) : NULL;
        if (p) {
            picks[pick_count].id = gckpt_id(t), picks[pick_count].gradient = pick->gradient;
            picks[pick_count].data = m.nodes[gckpt_id(t)].data, picks[pick_count].n = elements(t);
            picks[pick_count++].values = (float *)malloc((size_t)elements(t) * sizeof(float));
        }
        gckpt_plan_free(p);
    }
    d.fetch = all, d.fetches = pick_count;
    gckpt_plan *p = gckpt_plan_new(m.g, m.term, m.terms, &d);
    CHECK_MSG(p != NULL, "seed %u: %s", seed, gckpt_error_text(m.g));
    for (int i = 0; i < gckpt_plan_length(p); i++)
        n += gckpt_plan_get(p, i, &list[n]) == GCKPT_OK && m.nodes[list[n].id].data;
    gckpt_plan_free(p);
    destroy();
    return n;
}

/* Finite differences, on graphs without relu (whose kink they would step over). */
static void check_gradients(unsigned seed)
{
    gckpt_plan_desc d = { .mode = GCKPT_SQRT };
    gckpt_feed f[4];
    double worst = 0;
    build(seed, 0);
    gckpt_plan *p = gckpt_plan_new(m.g, m.term, m.terms, &d);
    gckpt_exec *e = gckpt_exec_new(p, m.s, NULL);
    gckpt_result result = gckpt_check_gradients(e, f, feed(NULL, 0, f), m.batch, &worst);
    CHECK_MSG(result == GCKPT_OK && worst < 0.01, "seed %u: %s", seed, gckpt_error_text(e));
    rig_free(e, p, NULL, NULL);
    destroy();
}

static void test_graph(unsigned seed)
{
    static gckpt_instruction list[4 * MOST], schedule[20000];
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SEGMENTS, GCKPT_SQRT, GCKPT_SCHEDULE };
    static const char *const names[] = { "store-all", "memory-poor", "segments", "sqrt", "schedule" };
    size_t least = SIZE_MAX, most = 0;
    random_state = seed + 77u;
    int length = prepare(seed, list), dropout = m.dropout;
    int64_t batch = m.batch;
    run plain = { .what = "plain", .mode = GCKPT_STORE_ALL, .rows = batch, .debug = GCKPT_DEBUG_PLAIN };
    outcome want = train(seed, &plain, NULL);
    not_finite += !isfinite(want.loss[1]) || !isfinite(want.norm[1]);
    for (int k = 0; k < 5 && isfinite(want.loss[1]) && isfinite(want.norm[1]); k++)
        for (int64_t rows = batch; rows >= 1; rows = rows > 1 ? 1 + (int64_t)below(rows - 1) : 0) {
            run r = { .what = names[k], .mode = modes[k], .rows = rows, .schedule = schedule };
            r.instructions = k == 4 ? own_schedule(seed, list, length, schedule, 15000) : 0;
            r.debug = GCKPT_DEBUG_MEASURE | (chance(25) ? GCKPT_DEBUG_PLAIN : 0);
            outcome o = train(seed, &r, &want);
            if (rows == batch && k < 4)
                least = o.bytes < least ? o.bytes : least, most = o.bytes > most ? o.bytes : most;
            r.pins = chance(50);
            r.pieces = chance(40) ? 1 + (int)below(5) : 0;
            r.stream = chance(30) && rows < batch && !r.pieces ? 1 + (int64_t)below(batch) : 0;
            r.threads = chance(30) ? 1 + (int)below(3) : 0;
            r.alignment = chance(20) ? (size_t)4 << below(6) : 0;
            r.debug = (chance(60) ? GCKPT_DEBUG_PAINT : GCKPT_DEBUG_MEASURE) | (chance(50) ? GCKPT_DEBUG_RECOMPUTE : 0);
            train(seed, &r, &want);
        }
    if (most > 0) {
        run r = { .what = "budget", .rows = batch, .budget = least + below((int64_t)(most - least) + 1) };
        train(seed, &r, &want);
        r = (run){ .what = "inference", .mode = GCKPT_INFERENCE, .rows = 1 + (int64_t)below(batch) };
        train(seed, &r, dropout ? NULL : &want);
        plain.no_clip = 1;
        outcome late = train(seed, &plain, NULL);
        for (int k = 0; k < 5; k++) {
            r = (run){ .what = "update in backward", .mode = modes[k], .rows = batch, .in_backward = 1, .schedule = schedule };
            r.instructions = k == 4 ? own_schedule(seed, list, length, schedule, 15000) : 0;
            r.pins = chance(40);
            r.debug = chance(50) ? GCKPT_DEBUG_PAINT | GCKPT_DEBUG_RECOMPUTE : GCKPT_DEBUG_MEASURE;
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
    unsigned count = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 32;
    for (unsigned i = 0; i < count; i++)
        test_graph(first + i);
    CHECK_MSG(not_finite * 5 <= (int)count, "%d of %u graphs overflowed", not_finite, count);
    return check_report("test_random");
}
