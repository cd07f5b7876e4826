/* oracle.h - least cost of a schedule within a number of bytes, computed without the library, for comparison with its
 * plans. Several methods:
 *
 *    oracle_exhaustive   any schedule that may drop and recompute anything at any time; Dijkstra's
 *                        algorithm over the states (live values, next backward), for about 8 ops
 *    oracle_rotor_*      chains: the best persistent schedule, by rotor's dynamic programme (Beaumont
 *                        et al. 2019, Herrmann et al. 2019), in exact integers
 *    oracle_revolve      uniform chains: Griewank & Walther 2000, closed form
 *    oracle_fits         whether blocks with given live ranges can be placed in a number of bytes
 *
 * All sizes are in the same unit (for example floats). Only sums of live sizes count, not offsets.
 * The model: a forward computes the value of its op, the op's saved data, or both; each of the two may be
 * dropped at any time. Backwards run in reverse order. The gradient of a value begins with the backward of
 * the value's last user and ends with the backward of the op that computes the value; `param_grad` is the
 * size of the gradients that a backward adds and that stay for the rest of the step (gradients of
 * parameters). Every loss runs before its backward. */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ORACLE_OPS = 160, ORACLE_INPUTS = 8 };
#define ORACLE_NEVER UINT64_MAX
typedef struct {
    int inputs, in[ORACLE_INPUTS]; /* input ops, or -1 for an input that takes no memory (fed data, parameters) */
    unsigned needs_in;             /* bit i: the op's backward reads input i */
    int needs_out, needs_saved;
    int active; /* has a backward */
    int loss;   /* nonzero for a loss, which has no value and must run at least once */
    uint64_t out, saved, work_forward, work_backward, param_grad;
    uint64_t forward, backward; /* cost */
} oracle_op;
typedef struct {
    int n;
    oracle_op op[ORACLE_OPS]; /* every op leads to a loss */
} oracle_graph;
typedef struct {
    int backward, op;
} oracle_step;

/* ---- exhaustive ---- */
typedef struct {
    const oracle_graph *g;
    int value_bit[ORACLE_OPS], saved_bit[ORACLE_OPS], done_bit[ORACLE_OPS], bits;
    /* bits: one for the value and one for the saved data of each op; size[b]: size of the data of bit b */
    uint64_t size[32];
    uint64_t gradients[ORACLE_OPS + 1]; /* size of gradients live while k is the next backward */
    uint64_t new_gradients[ORACLE_OPS];          /* size of the gradients that begin with backward k */
    uint32_t useful[ORACLE_OPS + 1];    /* bits of the data that may still be read when k is the next backward */
} oracle_search;

/* Returns the last active op that reads op i, or -1 if none does. */
static inline int oracle_last_user(const oracle_graph *g, int i)
{
    for (int u = g->n; u-- > 0;)
        for (int k = 0; k < g->op[u].inputs; k++)
            if (g->op[u].active && g->op[u].in[k] == i)
                return u;
    return -1;
}

static inline void oracle_prepare(oracle_search *s, const oracle_graph *g)
{
    memset(s, 0, sizeof *s);
    s->g = g;
    for (int i = 0; i < g->n; i++) {
        const oracle_op *o = &g->op[i];
        s->value_bit[i] = s->saved_bit[i] = s->done_bit[i] = -1;
        if (!o->loss) {
            s->size[s->bits] = o->out;
            s->value_bit[i] = s->bits++;
        } else {
            s->done_bit[i] = s->bits++;
        }
        if (o->active && o->needs_saved && o->saved) {
            s->size[s->bits] = o->saved;
            s->saved_bit[i] = s->bits++;
        }
    }
    /* state k: the backwards of ops k and later are done, that of op k - 1 is the next */
    for (int k = 0; k <= g->n; k++) {
        for (int i = 0; i < g->n; i++) {
            const oracle_op *o = &g->op[i];
            int last = oracle_last_user(g, i);
            if (i >= k && o->active)
                s->gradients[k] += o->param_grad;
            if (i < k && o->active && !o->loss && last >= k)
                s->gradients[k] += o->out;
            if (k > 0 && o->active && !o->loss && last == k - 1)
                s->new_gradients[k - 1] += o->out;
            if (i < k && s->saved_bit[i] >= 0)
                s->useful[k] |= 1u << s->saved_bit[i];
            if (i < k && s->value_bit[i] >= 0)
                s->useful[k] |= 1u << s->value_bit[i];
            if (s->done_bit[i] >= 0)
                s->useful[k] |= 1u << s->done_bit[i];
        }
        if (k > 0 && g->op[k - 1].active)
            s->new_gradients[k - 1] += g->op[k - 1].param_grad;
    }
}

static inline uint64_t oracle_live(const oracle_search *s, uint32_t live)
{
    uint64_t sum = 0;
    for (int b = 0; b < s->bits; b++)
        sum += live >> b & 1 ? s->size[b] : 0;
    return sum;
}

/* Returns the bits of the data that must be live for a forward of op i, or if `backward` is nonzero, for its
 * backward. */
static inline uint32_t oracle_reads(const oracle_search *s, int i, int backward)
{
    const oracle_op *o = &s->g->op[i];
    uint32_t mask = 0;
    for (int k = 0; k < o->inputs; k++)
        if (o->in[k] >= 0 && (!backward || o->needs_in >> k & 1))
            mask |= 1u << s->value_bit[o->in[k]];
    if (backward && o->needs_out)
        mask |= 1u << s->value_bit[i];
    if (backward && s->saved_bit[i] >= 0)
        mask |= 1u << s->saved_bit[i];
    if (backward && o->loss)
        mask |= 1u << s->done_bit[i];
    return mask;
}

typedef struct {
    uint64_t cost;
    uint32_t state;
} oracle_entry;
typedef struct {
    oracle_entry *heap;
    size_t count, capacity;
    uint32_t *cost, *parent;
    int16_t *step; /* how a state was reached: i for forward i, -1 for a backward, -2 for dropping data */
} oracle_queue;

static inline void oracle_push(oracle_queue *q, uint64_t cost, uint32_t state)
{
    if (q->count == q->capacity) {
        q->capacity = 2 * q->capacity + 1024;
        q->heap = (oracle_entry *)realloc(q->heap, q->capacity * sizeof *q->heap);
        if (!q->heap)
            abort();
    }
    size_t at = q->count++;
    for (; at > 0 && q->heap[(at - 1) / 2].cost > cost; at = (at - 1) / 2)
        q->heap[at] = q->heap[(at - 1) / 2];
    q->heap[at].cost = cost;
    q->heap[at].state = state;
}

static inline oracle_entry oracle_pop(oracle_queue *q)
{
    oracle_entry top = q->heap[0], last = q->heap[--q->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < q->count && q->heap[child + 1].cost < q->heap[child].cost)
            child++;
        if (child >= q->count || q->heap[child].cost >= last.cost)
            break;
        q->heap[at] = q->heap[child];
        at = child;
    }
    q->heap[at] = last;
    return top;
}

static inline void oracle_relax(oracle_queue *q, uint64_t cost, uint32_t state, uint32_t from,
                                int step)
{
    if (q->cost[state] != UINT32_MAX && q->cost[state] <= cost)
        return;
    q->cost[state] = (uint32_t)cost;
    q->parent[state] = from;
    q->step[state] = (int16_t)step;
    oracle_push(q, cost, state);
}

/* Adds to the queue all states that one forward, backward or drop leads to. Costs exclude backwards, since every
 * schedule runs each once. Data that no later step can read are dropped at once. */
static inline void oracle_expand(const oracle_search *s, oracle_queue *q, uint64_t memory,
                                uint64_t cost, uint32_t state)
{
    const oracle_graph *g = s->g;
    uint32_t live = state & ((1u << s->bits) - 1);
    int k = (int)(state >> s->bits);
    uint64_t base = oracle_live(s, live) + s->gradients[k];
    for (int b = 0; b < s->bits; b++)
        if (live >> b & 1 && s->size[b])
            oracle_relax(q, cost, state & ~(1u << b), state, -2);
    for (int i = 0; i < g->n; i++) {
        const oracle_op *o = &g->op[i];
        uint32_t reads = oracle_reads(s, i, 0);
        if ((live & reads) != reads)
            continue;
        for (int what = 1; what < 4; what++) {
            uint32_t makes = 0;
            if (what & 1)
                makes |= 1u << (o->loss ? s->done_bit[i] : s->value_bit[i]);
            if (what & 2 && s->saved_bit[i] >= 0)
                makes |= 1u << s->saved_bit[i];
            if (o->loss)
                makes |= 1u << s->done_bit[i];
            if (!(makes & ~live) || (what & 2 && s->saved_bit[i] < 0) || (!o->loss && makes & live))
                continue;
            if (base + oracle_live(s, makes & ~live) + o->work_forward <= memory)
                oracle_relax(q, cost + o->forward, state | (makes & s->useful[k]), state, i);
        }
    }
    const oracle_op *o = &g->op[k - 1];
    uint32_t reads = o->active ? oracle_reads(s, k - 1, 1) : 0;
    if ((live & reads) == reads &&
        (!o->active || base + s->new_gradients[k - 1] + o->work_backward <= memory))
        oracle_relax(q, cost, (live & s->useful[k - 1]) | (uint32_t)(k - 1) << s->bits, state, -1);
}

/* Writes the steps that lead to `state` to list, and returns the largest sum of live sizes among them. */
static inline uint64_t oracle_trace(const oracle_search *s, const oracle_queue *q, uint32_t state,
                                    oracle_step *list, int *length)
{
    uint64_t peak = 0;
    int count = 0;
    for (uint32_t at = state; q->step[at] != -3; at = q->parent[at])
        count += q->step[at] >= 0 || (q->step[at] == -1 && s->g->op[at >> s->bits].active);
    if (length)
        *length = count;
    for (uint32_t at = state; q->step[at] != -3; at = q->parent[at]) {
        uint32_t from = q->parent[at], before = from & ((1u << s->bits) - 1);
        int k = (int)(from >> s->bits), i = q->step[at] == -1 ? k - 1 : q->step[at];
        uint64_t base = oracle_live(s, before) + s->gradients[k];
        if (q->step[at] == -2 || (q->step[at] == -1 && !s->g->op[i].active))
            continue;
        if (q->step[at] == -1)
            base += s->new_gradients[i] + s->g->op[i].work_backward;
        else
            base += oracle_live(s, at & ~from & ((1u << s->bits) - 1)) + s->g->op[i].work_forward;
        peak = base > peak ? base : peak;
        if (list) {
            list[--count].op = i;
            list[count].backward = q->step[at] == -1;
        }
    }
    return peak;
}

/* Returns the least total cost of a schedule whose live sizes fit into `memory`, or ORACLE_NEVER if none does.
 * Stores its largest sum of live sizes in *peak, and unless list is NULL, its steps (at most 4096) in list. */
static inline uint64_t oracle_exhaustive(const oracle_graph *g, uint64_t memory, uint64_t *peak,
                                         oracle_step *list, int *length)
{
    oracle_search s;
    uint64_t best = ORACLE_NEVER, backwards = 0;
    oracle_prepare(&s, g);
    size_t states = (size_t)(g->n + 1) << s.bits;
    if (s.bits > 24)
        abort();
    oracle_queue q = { 0 };
    q.cost = (uint32_t *)malloc(states * sizeof *q.cost);
    q.parent = (uint32_t *)malloc(states * sizeof *q.parent);
    q.step = (int16_t *)malloc(states * sizeof *q.step);
    if (!q.cost || !q.parent || !q.step)
        abort();
    memset(q.cost, 0xff, states * sizeof *q.cost);
    for (int i = 0; i < g->n; i++)
        backwards += g->op[i].active ? g->op[i].backward : 0;
    uint32_t start = (uint32_t)g->n << s.bits;
    oracle_relax(&q, 0, start, start, -3);
    while (q.count > 0) {
        oracle_entry e = oracle_pop(&q);
        if (e.cost > q.cost[e.state])
            continue;
        if (e.state >> s.bits == 0) {
            uint64_t needed = oracle_trace(&s, &q, e.state, list, length);
            if (peak)
                *peak = needed;
            best = e.cost + backwards;
            break;
        }
        oracle_expand(&s, &q, memory, e.cost, e.state);
    }
    free(q.step);
    free(q.parent);
    free(q.cost);
    free(q.heap);
    return best;
}

/* ---- rotor ---- */
/* Returns whether the graph is a chain: op i reads only op i - 1, op 0 reads an input without memory, and the last op
 * is the loss. */
static inline int oracle_is_chain(const oracle_graph *g)
{
    for (int i = 0; i < g->n; i++) {
        const oracle_op *o = &g->op[i];
        if (o->inputs != 1 || o->in[0] != i - 1 || !o->active || o->loss != (i == g->n - 1) ||
            (i > 0 && o->param_grad))
            return 0;
    }
    return 1;
}

typedef struct {
    const oracle_graph *g;
    uint64_t memory;
    /* cost[s][t][m], as one array: least cost to run stages s to t backward in memory m, excluding the input of s */
    uint32_t *cost;
} oracle_rotor;

static inline uint32_t *oracle_rotor_at(const oracle_rotor *r, int s, int t, uint64_t m)
{
    return &r->cost[((size_t)s * (size_t)r->g->n + (size_t)t) * (size_t)(r->memory + 1) + m];
}

/* The next functions return sizes of stage s: its input, its output, and the data that a forward keeps for the
 * backward ("taped"). */
static inline uint64_t oracle_in(const oracle_rotor *r, int s)
{
    return s > 0 ? r->g->op[s - 1].out : 0;
}
static inline uint64_t oracle_out(const oracle_rotor *r, int s)
{
    return r->g->op[s].loss ? 0 : r->g->op[s].out;
}
static inline uint64_t oracle_kept(const oracle_rotor *r, int s)
{
    return oracle_out(r, s) + (r->g->op[s].needs_saved ? r->g->op[s].saved : 0);
}
/* Returns the memory that the forward of stage s needs if its data are kept for its backward while the gradient of
 * the output of stage t is live. */
static inline uint64_t oracle_taped(const oracle_rotor *r, int s, int t)
{
    const oracle_op *o = &r->g->op[s];
    uint64_t forward = oracle_out(r, t) + oracle_kept(r, s) + o->work_forward;
    uint64_t backward =
        oracle_out(r, s) + oracle_kept(r, s) + o->work_backward + o->param_grad + oracle_in(r, s);
    return forward > backward ? forward : backward;
}
static inline uint64_t oracle_sweep(const oracle_rotor *r, int s, int t)
{
    uint64_t d = oracle_out(r, t);
    uint64_t need = d + oracle_out(r, s) + r->g->op[s].work_forward;
    for (int j = s + 1; j < t; j++) {
        uint64_t at = d + oracle_in(r, j) + oracle_out(r, j) + r->g->op[j].work_forward;
        need = at > need ? at : need;
    }
    return need;
}

/* Returns the best first decision for stages s to t in memory m: 0 to run stage s and keep its data for its backward;
 * k > s to run stages s to k - 1 without keeping data, then stages k to t forward and backward, then s to k - 1
 * again; -1 if nothing fits. */
static inline int oracle_rotor_choice(const oracle_rotor *r, int s, int t, uint64_t m,
                                      uint64_t *best)
{
    const oracle_op *o = &r->g->op[s];
    uint64_t forwards = 0;
    int choice = -1;
    *best = UINT32_MAX;
    if (m >= oracle_taped(r, s, t)) {
        uint64_t rest = s == t ? 0 : *oracle_rotor_at(r, s + 1, t, m - oracle_kept(r, s));
        if (rest != UINT32_MAX) {
            *best = o->forward + o->backward + rest;
            choice = 0;
        }
    }
    if (s == t || m < oracle_sweep(r, s, t))
        return choice;
    for (int k = s + 1; k <= t; k++) {
        forwards += r->g->op[k - 1].forward;
        if (m < oracle_in(r, k))
            continue;
        uint64_t right = *oracle_rotor_at(r, k, t, m - oracle_in(r, k));
        uint64_t left = *oracle_rotor_at(r, s, k - 1, m);
        if (right == UINT32_MAX || left == UINT32_MAX || forwards + right + left >= *best)
            continue;
        *best = forwards + right + left;
        choice = k;
    }
    return choice;
}

static inline void oracle_rotor_new(oracle_rotor *r, const oracle_graph *chain, uint64_t memory)
{
    r->g = chain;
    r->memory = memory;
    size_t n = (size_t)chain->n;
    r->cost = (uint32_t *)malloc(n * n * (size_t)(memory + 1) * sizeof *r->cost);
    if (!r->cost)
        abort();
    for (int length = 0; length < chain->n; length++)
        for (int s = 0; s + length < chain->n; s++)
            for (uint64_t m = 0; m <= memory; m++) {
                uint64_t best;
                oracle_rotor_choice(r, s, s + length, m, &best);
                *oracle_rotor_at(r, s, s + length, m) = (uint32_t)best;
            }
}
static inline void oracle_rotor_free(oracle_rotor *r) { free(r->cost); }

static inline uint64_t oracle_rotor_cost(const oracle_rotor *r, uint64_t memory)
{
    uint32_t cost = *oracle_rotor_at(r, 0, r->g->n - 1, memory);
    return cost == UINT32_MAX ? ORACLE_NEVER : cost;
}

/* Writes the steps of the best schedule for `memory`, at most `most`, and returns their number. */
static inline int oracle_rotor_list(const oracle_rotor *r, uint64_t memory, oracle_step *list,
                                    int most)
{
    struct {
        int s, t, tape;
        uint64_t m;
    } stack[4 * ORACLE_OPS];
    int depth = 1, count = 0;
    memset(&stack[0], 0, sizeof stack[0]);
    stack[0].t = r->g->n - 1;
    stack[0].m = memory;
    while (depth > 0 && count + ORACLE_OPS < most) {
        int s = stack[depth - 1].s, t = stack[depth - 1].t, k;
        uint64_t m = stack[depth - 1].m, best;
        if (stack[--depth].tape) {
            list[count].backward = 1;
            list[count++].op = s;
            continue;
        }
        k = oracle_rotor_choice(r, s, t, m, &best);
        for (int i = s; i < (k > s ? k : s + 1); i++) {
            list[count].backward = 0;
            list[count++].op = i;
        }
        stack[depth].s = s;
        stack[depth].t = k > s ? k - 1 : s;
        stack[depth].m = m;
        stack[depth++].tape = k <= s;
        if (k > s || s < t) {
            stack[depth].s = k > s ? k : s + 1;
            stack[depth].t = t;
            stack[depth].m = m - (k > s ? oracle_in(r, k) : oracle_kept(r, s));
            stack[depth++].tape = 0;
        }
    }
    return depth > 0 ? 0 : count;
}

/* ---- Revolve ---- */
/* C(n, k), or a number above `most`. */
static inline uint64_t oracle_choose(uint64_t n, uint64_t k, uint64_t most)
{
    uint64_t c = 1;
    for (uint64_t i = 1; i <= k; i++) {
        c = c * (n - k + i) / i;
        if (c > most)
            return most + 1;
    }
    return c;
}

/* Returns the least number of forwards to run n steps backward with s checkpoints, the first state being one of them: t
 * n - C(s + t, t - 1), where t is the least number with C(s + t, s) >= n. C(a, b) is the binomial coefficient. */
static inline uint64_t oracle_revolve(uint64_t n, uint64_t s)
{
    uint64_t t = 0;
    while (oracle_choose(s + t, s, n) < n)
        t++;
    return t == 0 ? 0 : t * n - oracle_choose(s + t, t - 1, UINT32_MAX);
}

/* ---- placement ---- */
enum { ORACLE_LIVE = 16, ORACLE_LAYOUTS = 1 << 18 };
typedef struct {
    int start, end, size;
} oracle_block;
/* A set of placements of the blocks that are live at one point: for each placement, the offset of the block in each
 * slot (0xff for a free slot). */
typedef struct {
    unsigned char (*all)[ORACLE_LIVE], (*next)[ORACLE_LIVE];
    int *table, count, next_count;
} oracle_places;

static inline void oracle_place_add(oracle_places *q, const unsigned char *at)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < ORACLE_LIVE; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    size_t mask = 2 * ORACLE_LAYOUTS - 1, i = (size_t)(hash >> 20) & mask;
    for (; q->table[i]; i = (i + 1) & mask)
        if (memcmp(q->next[q->table[i] - 1], at, ORACLE_LIVE) == 0)
            return;
    memcpy(q->next[q->next_count++], at, ORACLE_LIVE);
    q->table[i] = q->next_count;
}

/* Returns 1 if the blocks, given by increasing start, can be placed in `memory` units (at most 254), 0 if they
 * cannot, and -1 if there are too many placements to try. */
static inline int oracle_fits(const oracle_block *b, int n, int memory)
{
    oracle_places q;
    int slot[ORACLE_LIVE], result = 1; /* slot[i]: the live block in slot i */
    q.all = (unsigned char(*)[ORACLE_LIVE])malloc((size_t)ORACLE_LAYOUTS * ORACLE_LIVE);
    q.next = (unsigned char(*)[ORACLE_LIVE])malloc((size_t)ORACLE_LAYOUTS * ORACLE_LIVE);
    q.table = (int *)malloc(2 * ORACLE_LAYOUTS * sizeof(int));
    if (!q.all || !q.next || !q.table)
        abort();
    memset(slot, 0xff, sizeof slot);
    memset(q.all[0], 0xff, ORACLE_LIVE);
    q.count = 1;
    for (int i = 0; i < n && result == 1; i++) {
        int mine = -1;
        unsigned char at[ORACLE_LIVE];
        memset(q.table, 0, 2 * ORACLE_LAYOUTS * sizeof(int));
        q.next_count = 0;
        for (int k = 0; k < ORACLE_LIVE; k++) {
            if (slot[k] >= 0 && b[slot[k]].end < b[i].start)
                slot[k] = -1;
            mine = slot[k] < 0 ? k : mine;
        }
        for (int s = 0; s < q.count && mine >= 0 && result == 1; s++) {
            for (int k = 0; k < ORACLE_LIVE; k++)
                at[k] = slot[k] < 0 ? 0xff : q.all[s][k];
            for (int o = 0; o + b[i].size <= memory && result == 1; o++) {
                int clash = 0;
                for (int k = 0; k < ORACLE_LIVE && !clash; k++)
                    clash = slot[k] >= 0 && at[k] < o + b[i].size && o < at[k] + b[slot[k]].size;
                if (clash)
                    continue;
                at[mine] = (unsigned char)o;
                oracle_place_add(&q, at);
                at[mine] = 0xff;
                result = q.next_count < ORACLE_LAYOUTS ? 1 : -1;
            }
        }
        if (result == 1)
            result = mine < 0 ? -1 : q.next_count > 0;
        if (mine >= 0)
            slot[mine] = i;
        unsigned char(*swap)[ORACLE_LIVE] = q.all;
        q.all = q.next;
        q.next = swap;
        q.count = q.next_count;
    }
    free(q.all);
    free(q.next);
    free(q.table);
    return result;
}
#endif
