/* synthetic.h - graphs of synthetic ops, which have any sizes, costs and inputs of backwards, and kernels that never
 * run. m.o is the graph for oracle.h, m.g the same graph for the library, and m.d the request. Graphs are made by:
 *
 *    synth_start, synth_param, synth_op.., synth_finish                         by hand
 *    random_chain, random_graph, skip_chain, large_graph, flagged_graph         random
 *    synth_shape_count, synth_shape_of                                          all graphs of a given number of ops
 *                                                                               of five kinds, by index
 *
 * synth_free frees a graph. Random graphs do not depend on the order in which compilers evaluate arguments. */
#ifndef TESTS_SYNTHETIC_H
#define TESTS_SYNTHETIC_H
#include "oracle.h"
#include "util.h"

enum { FLOAT_BYTES = (int)sizeof(float) };
static int param_times = 1; /* the sizes of synthetic parameters are multiplied by this factor */

typedef struct {
    int out, saved, work_forward, work_backward; /* sizes in floats */
    unsigned flags;                            /* of the op descriptor */
} synth_attributes;

static gckpt_result synth_shape(gckpt_call *call)
{
    const synth_attributes *a = (const synth_attributes *)call->attributes;
    call->shape = gckpt_shape2(call->in[0].shape.d[0], a->out > 0 ? a->out : 1);
    call->saved_bytes = (size_t)a->saved * FLOAT_BYTES;
    call->workspace_forward = (size_t)a->work_forward * FLOAT_BYTES;
    call->workspace_backward = (size_t)a->work_backward * FLOAT_BYTES;
    return GCKPT_OK;
}
static inline void synth_kernel(const gckpt_call *call) { (void)call; }

static struct {
    gckpt_store *store;
    gckpt_graph *g;
    gckpt_tensor *x, *t[ORACLE_OPS], *param[ORACLE_OPS];
    gckpt_op row[ORACLE_OPS];
    oracle_graph o;
    /* for each input of an op, the bits of the inputs that the backward reads for the gradient of that input */
    unsigned needs[ORACLE_OPS][ORACLE_INPUTS];
    int param_of[ORACLE_OPS], param_size[ORACLE_OPS], params, used[ORACLE_OPS];
    gckpt_cost cost[4 * ORACLE_OPS];
    gckpt_term term[4];
    /* prologue: nonzero if the ops read a function of a parameter instead of the parameter itself */
    int terms, prologue;
    size_t base;         /* bytes of the plan outside the arena */
    gckpt_plan_desc d;
} m;

static inline void synth_start(void)
{
    memset(&m, 0, sizeof m);
    m.store = gckpt_store_new(NULL);
    m.g = gckpt_graph_new(m.store, NULL);
    m.x = gckpt_input(m.g, "x", GCKPT_F32, gckpt_shape2(1, 1));
}
static inline void synth_free(void) { util_free(NULL, NULL, m.g, m.store); }

static inline int synth_param(int size)
{
    char name[16];
    gckpt_init zero = { 0, 0, 0 };
    size *= param_times;
    snprintf(name, sizeof name, "p%d", m.params);
    m.param[m.params] = gckpt_param(m.g, name, gckpt_shape1(size), zero);
    m.param_size[m.params] = size;
    return m.params++;
}

/* Adds an op that reads the ops in[0..inputs-1] (-1 is the data) and, if param is not negative, a parameter as its
 * last input. needs[k] says which data the backward reads for the gradient of input k. */
static inline int synth_op(const int *in, int inputs, int param, const synth_attributes *a,
                          const unsigned *needs, int loss, gckpt_cost cost)
{
    gckpt_tensor *list[GCKPT_MAX_INPUTS];
    int i = m.o.n++, n = 0;
    oracle_op *o = &m.o.op[i];
    gckpt_op *row = &m.row[i];
    row->name = loss ? "loss" : "made";
    row->shape = synth_shape;
    row->forward = row->backward = synth_kernel;
    row->flags = a->flags | (loss ? GCKPT_LOSS : 0);
    for (; n < inputs; n++) {
        list[n] = in[n] < 0 ? m.x : m.t[in[n]];
        o->in[n] = in[n];
        if (in[n] >= 0)
            m.used[in[n]] = 1;
    }
    o->inputs = inputs;
    m.param_of[i] = param;
    if (param >= 0)
        list[n++] = m.param[param];
    for (int k = 0; k < n; k++)
        row->needs[k] = m.needs[i][k] = loss ? needs[k] & ~GCKPT_OUT : needs[k];
    o->loss = loss;
    o->out = loss ? 0 : (uint64_t)a->out;
    o->saved = (uint64_t)a->saved;
    o->work_forward = (uint64_t)a->work_forward;
    o->work_backward = (uint64_t)a->work_backward;
    o->forward = cost.forward;
    o->backward = cost.backward;
    m.t[i] = gckpt_apply(row, list, n, a, sizeof *a);
    if (!CHECK_MSG(m.t[i] != NULL, "%s", gckpt_error_text(m.g)))
        exit(check_report("made graphs"));
    if (loss) {
        gckpt_term term = { m.t[i], 1, 0 };
        m.term[m.terms++] = term;
    }
    m.cost[gckpt_id(m.t[i])] = cost;
    return i;
}

/* Returns an op's attributes; `saved` is the probability of saved data in percent. This is a function because
 * compilers evaluate the expressions of an initialiser list in different orders, which would change the random
 * numbers. */
static inline synth_attributes synth_sizes(int out, unsigned percent, int saved, int workspace)
{
    synth_attributes a = { 0 };
    a.out = between(1, out);
    a.saved = chance(percent) ? between(1, saved) : 0;
    a.work_forward = between(0, workspace);
    a.work_backward = between(0, workspace);
    return a;
}
static inline gckpt_cost synth_costs(int forward, int backward)
{
    gckpt_cost cost;
    cost.forward = (uint64_t)between(1, forward);
    cost.backward = (uint64_t)between(1, backward);
    return cost;
}

/* Ends a graph: computes for each op whether it needs a gradient, which inputs its backward reads, and which sizes
 * the oracle takes for it. */
static inline void synth_finish(void)
{
    int seen[ORACLE_OPS] = { 0 };
    for (int i = 0; i < m.o.n; i++) {
        oracle_op *o = &m.o.op[i];
        unsigned mask = 0;
        for (int k = 0; k < o->inputs; k++)
            if (o->in[k] >= 0 && m.o.op[o->in[k]].active)
                mask |= m.needs[i][k], o->active = 1;
        if (m.param_of[i] >= 0)
            mask |= m.needs[i][o->inputs], o->active = 1;
        o->needs_in = mask & 0xff;
        o->needs_out = (mask & GCKPT_OUT) != 0;
        o->needs_saved = (mask & GCKPT_SAVED) != 0;
    }
    for (int i = m.o.n; i-- > 0;) {
        int q = m.param_of[i];
        if (q < 0)
            continue;
        *(seen[q] ? &m.o.op[i].work_backward : &m.o.op[i].param_grad) += (uint64_t)m.param_size[q];
        seen[q] = 1;
    }
    for (int q = 0; q < m.params; q++)
        m.base += (size_t)m.param_size[q] * FLOAT_BYTES;
    m.d.optimiser = GCKPT_SGD;
    m.d.kernels.alignment = FLOAT_BYTES;
    /* the oracles know one order of backwards and no lowerings, so the plan must not choose others */
    m.d.schedule.as_built = 1;
    m.d.costs.by_id = m.cost;
    m.d.costs.count = gckpt_graph_size(m.g);
}

/* ---- random graphs ---- */
/* Builds a chain of ops whose backwards read their input, output and saved data. If `any` is nonzero, the inputs of
 * backwards are random. */
static inline void random_chain(int stages, int any)
{
    int last = -1;
    synth_start();
    for (int i = 0; i < stages; i++) {
        synth_attributes a = synth_sizes(4, 100, 4, 2);
        a.saved = between(0, 4);
        unsigned needs[2];
        for (int k = 0; k < 2; k++) {
            needs[k] = any && chance(40) ? 0 : GCKPT_IN(0);
            needs[k] |= any && chance(40) ? 0 : GCKPT_OUT;
            needs[k] |= any && chance(30) ? 0 : GCKPT_SAVED;
        }
        const int param = i == 0 ? synth_param(between(1, 4)) : -1;
        const gckpt_cost cost = synth_costs(5, 8);
        last = synth_op(&last, 1, param, &a, needs, 0, cost);
    }
    synth_attributes loss = { 0 };
    loss.saved = any ? between(0, 2) : 0;
    unsigned needs[1] = { any ? GCKPT_IN(0) | GCKPT_SAVED : 0 };
    const gckpt_cost cost = { (uint64_t)any, (uint64_t)any };
    synth_op(&last, 1, -1, &loss, needs, 1, cost);
    synth_finish();
}

/* Builds a random graph with skip connections, diamonds, branches without a gradient, tied parameters and up to two
 * losses. */
static inline void random_graph(int ops)
{
    synth_start();
    int shared = synth_param(between(1, 3)), losses = chance(35) ? 2 : 1, in[ORACLE_INPUTS];
    for (int i = 0; i < ops + losses; i++) {
        int loss =
            i == ops + losses - 1 || (losses == 2 && m.terms == 0 && i >= ops / 2 && chance(40));
        int inputs = 0, param = -1;
        unsigned needs[ORACLE_INPUTS + 1];
        if (m.terms == losses)
            break;
        if (i == ops + losses - 1) /* the last loss also reads results that no op reads */
            for (int k = 0; k < i && inputs < 6; k++)
                if (!m.used[k] && !m.o.op[k].loss)
                    in[inputs++] = k;
        for (int want = inputs ? 0 : between(1, 3), tries = 0; inputs < want && tries < 9;
             tries++) {
            int q = i == 0 ? -1 : chance(60) ? i - 1 : between(-1, i - 1), repeats = 0;
            for (int k = 0; k < inputs; k++)
                repeats = repeats || in[k] == q;
            if (!repeats && (q < 0 || !m.o.op[q].loss))
                in[inputs++] = q;
        }
        if (inputs == 0)
            in[inputs++] = -1;
        if (!loss && (i == 0 || chance(30)))
            param = i == 0 || chance(30) ? shared : synth_param(between(1, 3));
        if (m.o.n == 0 && chance(20))
            param = -1;
        for (int k = 0; k <= inputs; k++) {
            needs[k] = chance(50) ? GCKPT_IN(below(inputs)) : 0;
            needs[k] |= chance(30) ? GCKPT_OUT : 0;
            needs[k] |= chance(40) ? GCKPT_SAVED : 0;
            needs[k] |= chance(20) ? GCKPT_IN(below(inputs)) : 0;
        }
        synth_attributes a = synth_sizes(4, 60, 4, 2);
        a.out = loss ? 0 : a.out;
        synth_op(in, inputs, param, &a, needs, loss, synth_costs(5, 8));
    }
    synth_finish();
}

/* Builds a chain of n ops, the first with a parameter, then a loss. `skips` percent of the ops read one value more;
 * sizes are at most `most`. If `segments` is nonzero, some ops are in segments. */
static inline void skip_chain(int n, unsigned skips, int most, int segments)
{
    int depth = 0;
    synth_start();
    const int param = synth_param(between(1, most));
    for (int i = 0; i <= n; i++) {
        const int loss = i == n, other = i > 1 && !loss && chance(skips) ? (int)below(i - 1) : -1;
        const int in[2] = { i - 1, other }, reads = other >= 0 || i == 0 ? 2 : 1;
        unsigned needs[2] = { GCKPT_IN(0), GCKPT_IN(0) };
        synth_attributes a = synth_sizes(most, 50, most, most / 2);
        if (loss)
            a = (synth_attributes){ .out = 1 };
        if (segments && depth == 0 && chance(40)) {
            gckpt_segment_begin(m.g);
            depth = 1;
        }
        for (int k = 0; k < reads && !loss; k++) {
            needs[k] = chance(60) ? GCKPT_IN(below(reads)) : 0;
            needs[k] |= chance(40) ? GCKPT_OUT : 0;
            needs[k] |= chance(40) ? GCKPT_SAVED : 0;
        }
        if (i == 0)
            needs[1] &= ~(unsigned)GCKPT_IN(1);
        const gckpt_cost cost = synth_costs(9, 9);
        synth_op(in, i == 0 ? 1 : reads, i == 0 ? param : -1, &a, needs, loss, cost);
        if (depth && chance(40)) {
            gckpt_segment_end(m.g);
            depth = 0;
        }
    }
    if (depth)
        gckpt_segment_end(m.g);
    synth_finish();
}

/* Builds a graph of ops with skip connections, losses between them, tied parameters, nested segments and policies. If
 * `chain` is nonzero, it is a chain with one loss, without skip connections, tied parameters and policies. */
static inline void large_graph(int ops, int chain, int most)
{
    int last = -1, depth = 0, shared;
    int in[ORACLE_INPUTS], losses = chain ? 1 : between(1, 3), skips = chain ? 0 : between(0, 50);
    int policies = !chain && chance(30), segments = chance(60);
    synth_start();
    shared = synth_param(between(1, most));
    for (int i = 0; i < ops; i++) {
        int inputs = 1, param = i == 0 ? shared : -1;
        unsigned needs[ORACLE_INPUTS + 1];
        for (; segments && depth < 3 && chance(20); depth++)
            gckpt_segment_begin(m.g);
        in[0] = last;
        while (i > 1 && inputs < 4 && chance((unsigned)skips)) {
            int q = between(0, i - 1), repeats = m.o.op[q].loss;
            for (int k = 0; k < inputs; k++)
                repeats = repeats || in[k] == q;
            if (!repeats)
                in[inputs++] = q;
        }
        if (!chain && i > 0 && chance(30))
            param = chance(40) ? shared : synth_param(between(1, most));
        for (int k = 0; k <= inputs; k++) {
            needs[k] = chance(50) ? GCKPT_IN(below(inputs)) : 0;
            needs[k] |= chance(30) ? GCKPT_OUT : 0;
            needs[k] |= chance(40) ? GCKPT_SAVED : 0;
        }
        synth_attributes a = synth_sizes(most, 50, most, most / 2);
        if (m.terms < losses - 1 && i > 1 && chance(10)) {
            needs[0] = GCKPT_IN(0) | GCKPT_SAVED;
            synth_op(&last, 1, -1, &a, needs, 1, synth_costs(50, 80));
            i++;
        }
        last = synth_op(in, inputs, param, &a, needs, 0, synth_costs(50, 80));
        if (policies && chance(15))
            (chance(50) ? gckpt_keep : gckpt_recompute)(m.t[last]);
        for (; depth > 0 && chance(25); depth--)
            gckpt_segment_end(m.g);
    }
    for (; depth > 0; depth--)
        gckpt_segment_end(m.g);
    synth_attributes loss = { 0 };
    loss.saved = chance(50) ? between(1, most) : 0;
    unsigned needs[1] = { GCKPT_IN(0) | GCKPT_SAVED };
    const gckpt_cost cost = { 1, 1 };
    synth_op(&last, 1, -1, &loss, needs, 1, cost);
    synth_finish();
}

/* Builds a chain of n ops, of which the last is a loss and another one may be. Some ops read further values, some work
 * in place, some run only once. Sizes are at most `most` floats times `scale`; costs are multiples of `costs`. */
static inline void flagged_graph(int n, int most, int scale, uint64_t costs)
{
    synth_start();
    const int param = synth_param(scale);
    if (chance(30)) {
        m.prologue = 1;
        m.param[param] = gckpt_tanh(m.param[param]);
        m.cost[gckpt_id(m.param[param])].forward = costs * below(6);
        m.cost[gckpt_id(m.param[param])].backward = costs * below(9);
    }
    for (int i = 0; i < n; i++) {
        const int loss = i == n - 1 || (i > 1 && !m.terms && chance(8));
        int in[ORACLE_INPUTS], inputs = 1, before = i - 1;
        unsigned needs[ORACLE_INPUTS + 1];
        synth_attributes a = synth_sizes(most, 50, most, most / 2);
        before -= i > 0 && m.o.op[i - 1].loss;
        in[0] = before;
        for (int k = 0; i == n - 1 && k < i && inputs < 4; k++)
            if (!m.used[k] && !m.o.op[k].loss && k != before)
                in[inputs++] = k;
        const int reads = i == 0 || (!loss && chance(20)) ? param : -1;
        const int other = i > 1 && !loss && chance(40) ? between(0, i - 2) : -1;
        if (other >= 0 && other != before && !m.o.op[other].loss)
            in[inputs++] = other;
        const int count = inputs + (reads >= 0);
        if (!loss && chance(50)) {
            a.flags = chance(20) && count < 3 ? GCKPT_SIDE_EFFECT
                      : chance(50)            ? GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD
                                              : GCKPT_PASSES_GRAD(0) | GCKPT_INPLACE(0);
        }
        for (int k = 0; k < count; k++) {
            needs[k] = chance(60) ? GCKPT_IN(below(count)) : 0;
            needs[k] |= chance(40) && !loss ? GCKPT_OUT : 0;
            needs[k] |= chance(40) ? GCKPT_SAVED : 0;
        }
        a.out *= scale, a.saved *= scale, a.work_forward *= scale, a.work_backward *= scale;
        if (a.flags & GCKPT_INPLACE(0) && before >= 0)
            a.out = (int)m.o.op[before].out;
        gckpt_cost cost = { costs * below(6), 0 };
        cost.backward = costs * below(9);
        synth_op(in, inputs, reads, &a, needs, loss, cost);
    }
    synth_finish();
}

/* ---- all graphs of a given number of ops of five kinds; one loss reads all values that no op reads ---- */
enum { SYNTH_READS_INPUT, SYNTH_READS_OUTPUT, SYNTH_READS_NOTHING, SYNTH_LAYER, SYNTH_PRODUCT };

/* Returns the number of choices for op i: each of four kinds can read any earlier value (the data or an op), and the
 * fifth kind any pair of earlier values. Op 0 has a parameter whatever its kind is; an op of kind SYNTH_LAYER always
 * has one. */
static inline int64_t synth_ways(int i) { return 4 * (i + 1) + (i + 1) * i / 2; }
static inline int64_t synth_shape_count(int ops)
{
    int64_t n = 1;
    for (int i = 0; i < ops; i++)
        n *= synth_ways(i);
    return n;
}

/* Builds graph number `which` of all graphs with this number of ops. If `drawn` is nonzero, sizes and costs are
 * random; if 0, they depend on the kind and the position of the op. */
static inline void synth_shape_of(int ops, int64_t which, int drawn)
{
    static const int outs[] = { 2, 3, 1, 2, 3 };
    synth_start();
    for (int i = 0; i <= ops; i++) {
        int in[ORACLE_INPUTS] = { -1, -1 }, inputs = 1, kind = SYNTH_READS_INPUT, param = -1;
        const int loss = i == ops;
        unsigned needs[ORACLE_INPUTS + 1] = { 0 };
        if (loss) {
            inputs = 0;
            for (int k = 0; k < i; k++)
                if (!m.used[k])
                    in[inputs++] = k;
            for (int k = 0; k < inputs; k++)
                needs[k] = GCKPT_IN(k);
        } else {
            int way = (int)(which % synth_ways(i));
            which /= synth_ways(i);
            kind = way < 4 * (i + 1) ? way % 4 : SYNTH_PRODUCT;
            if (kind == SYNTH_PRODUCT) {
                way -= 4 * (i + 1);
                for (in[1] = 0; way > in[1]; in[1]++)
                    way -= in[1] + 1;
                in[0] = way - 1; /* less than in[1] */
                inputs = 2;
            } else {
                in[0] = way / 4 - 1;
            }
            param =
                i == 0 || kind == SYNTH_LAYER ? synth_param(drawn ? between(1, 3) : 1 + i % 2) : -1;
        }
        if (kind == SYNTH_PRODUCT) {
            needs[0] = GCKPT_IN(1);
            needs[1] = GCKPT_IN(0);
        } else if (!loss) {
            needs[0] = kind == SYNTH_READS_INPUT    ? GCKPT_IN(0)
                       : kind == SYNTH_READS_OUTPUT ? GCKPT_OUT
                       : kind == SYNTH_LAYER        ? GCKPT_SAVED
                                                   : 0;
        }
        if (param >= 0)
            needs[inputs] = GCKPT_IN(0);
        synth_attributes a = { 0 };
        gckpt_cost cost = { 1 + (uint64_t)(kind + i) % 4, 2 + (uint64_t)(2 * kind + i) % 5 };
        if (drawn) {
            a = synth_sizes(3, kind == SYNTH_LAYER ? 100 : 0, 2, 1);
            cost = synth_costs(5, 8);
        } else if (!loss) {
            a.out = outs[(kind + i) % 5];
            a.saved = kind == SYNTH_LAYER ? 1 + i % 2 : 0;
            a.work_forward = i == 2 && kind == SYNTH_LAYER;
        }
        synth_op(in, inputs, param, &a, needs, loss, cost);
    }
    synth_finish();
}
#endif
