/* simulate.h - simulates a step of many ranks from its plan: its duration and the bytes it sends.
 * Nothing runs and no values are computed. To use it, copy it: it calls the public API only. C99 or
 * C++11; include gradckpt.h first.
 *
 *     simulate_ranks all = { 0, 64, 64, GCKPT_SHARD_STATE }; // rank 0 of 64, 64 virtual ranks
 *     simulate_step s = simulate_run(plan, graph, &all, &machine);
 *     printf("%g s, of it %g s waiting; %.0f bytes sent\n", s.seconds, s.exposed, (double)s.sent);
 *
 * It simulates the executor, with one rank representing all:
 * - Instructions run one after the other, with the costs of gckpt_plan_usage, in every micro-batch
 *   of every virtual rank; instructions that depend on parameters only run once per step.
 * - An exchange with a rank takes latency + bytes / bandwidth, sends and receives at the same time,
 *   and is the only one in flight. Partners differ in one bit of their rank; a node's ranks and
 *   different nodes are joined by different networks.
 * - A REDUCE waits for the previous one, adds up the virtual rank, and starts a reduce-scatter:
 *   half of a rank's elements go to each partner. The processor adds the received ones.
 * - A FORWARD of a sharded parameter copies this rank's shard into place and starts an all-gather;
 *   the first instruction that reads the parameter waits for it. After the updates, values that are
 *   updated in shards but held whole are gathered as well; only the end of the step waits for
 *   those.
 * - A collective starts after the pending ones and makes progress between instructions only, so one
 *   that could finish during an instruction waits for its end.
 * - All ranks agree at the beginning, before the first update (the norm needs square sums), and at
 *   the end.
 *
 * Regularisers and fetched gradients are not simulated. */
#ifndef SIMULATE_H
#define SIMULATE_H
#include <stdint.h>
#include <string.h>

typedef struct {
    /* bandwidth: bytes per second in each direction; latency: additional seconds per exchange */
    double bandwidth, latency;
} simulate_link;

typedef struct {
    double throughput;   /* cost units (gckpt_cost) that a rank computes per second */
    double mem_bandwidth; /* bytes per second that sums, copies and updates read and write */
    /* number of ranks that are joined by `intra_node`, a power of two; 1 if each rank is a node */
    int node_size;
    simulate_link intra_node, inter_node;
    /* If nonzero, nothing overlaps with communication, because the processor itself moves the bytes
     * (MPI within a machine). */
    int no_overlap;
} simulate_machine;

typedef struct {
    /* rank: number of the simulated rank; ranks and virtual_ranks are powers of two, virtual_ranks
     * as in the plan */
    int rank, ranks, virtual_ranks;
    gckpt_shard shard;
} simulate_ranks;

typedef struct {
    /* duration of the step, the sum of compute (time of computation) and exposed (time of
     * waiting) */
    double seconds;
    double compute, exposed;
    /* time during which a collective is pending, whether or not the rank waits for it */
    double comm;
    uint64_t sent, exchanges;
} simulate_step;

/* One level of a collective: an exchange with the rank whose number differs in `bit`. Numbers of
 * elements to send, to receive, and to add after receiving. */
typedef struct {
    int bit;
    int64_t send, receive, add;
} simulate_exchange;
/* SIMULATE_AGREE_BYTES: a status barrier (errors, and values that must agree).
 * SIMULATE_TOTAL_BYTES: sum and count of a loss. SIMULATE_UPDATE_BYTES: memory that the norm
 * and AdamW read and write for each element. */
enum {
    SIMULATE_PENDING = 8,
    SIMULATE_LEVELS = 31,
    SIMULATE_AGREE_BYTES = 320,
    SIMULATE_TOTAL_BYTES = 16,
    SIMULATE_UPDATE_BYTES = 36
};

/* ---- collectives ----------------------------------------------------------------------------- */
static inline int64_t simulate_blocks(int64_t elements)
{
    return (elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
}

/* Returns the number of elements, in whole blocks, that a rank keeps in a reduce-scatter after it
 * has given one half to each rank whose number differs in a bit below `bit`. If bit is `ranks`,
 * this is the rank's shard. */
static inline int64_t simulate_shard_size(int64_t elements, int rank, int bit)
{
    int64_t low = 0, high = simulate_blocks(elements);
    for (int b = 1; b < bit; b *= 2) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (rank & b)
            low = middle;
        else
            high = middle;
    }
    low *= GCKPT_UPDATE_BLOCK;
    high *= GCKPT_UPDATE_BLOCK;
    return (high < elements ? high : elements) - (low < elements ? low : elements);
}

/* Fills x with the exchanges of a reduce-scatter (recursive halving): each rank gets its shard of
 * the sum over all ranks. Returns the number of levels. */
static inline int simulate_reduce_scatter(simulate_exchange *x, int64_t elements, const simulate_ranks *r)
{
    int n = 0;
    for (int bit = 1; bit < r->ranks; bit *= 2, n++) {
        x[n].bit = bit;
        x[n].send = simulate_shard_size(elements, r->rank ^ bit, 2 * bit);
        x[n].receive = x[n].add = simulate_shard_size(elements, r->rank, 2 * bit);
    }
    return n;
}

/* Fills x with the exchanges of an all-gather (recursive doubling): each rank gets the whole tensor
 * from all shards. Returns the number of levels. */
static inline int simulate_all_gather(simulate_exchange *x, int64_t elements, const simulate_ranks *r)
{
    int n = 0;
    for (int bit = r->ranks / 2; bit > 0; bit /= 2, n++) {
        x[n].bit = bit;
        x[n].send = simulate_shard_size(elements, r->rank, 2 * bit);
        x[n].receive = simulate_shard_size(elements, r->rank ^ bit, 2 * bit);
        x[n].add = 0;
    }
    return n;
}

/* Fills x with the exchanges of an all-reduce of a small tensor, which is sent whole at each level.
 * Returns the number of levels. */
static inline int simulate_all_reduce(simulate_exchange *x, int64_t elements, const simulate_ranks *r)
{
    int n = 0;
    for (int bit = 1; bit < r->ranks; bit *= 2, n++) {
        x[n].bit = bit;
        x[n].send = x[n].receive = x[n].add = elements;
    }
    return n;
}

/* Returns the duration of one exchange in seconds. */
static inline double simulate_seconds(const simulate_machine *m, const simulate_exchange *x)
{
    const simulate_link *l = x->bit < m->node_size ? &m->intra_node : &m->inter_node;
    const int64_t most = x->send > x->receive ? x->send : x->receive;
    return most > 0 ? l->latency + 4 * (double)most / l->bandwidth : 0;
}

/* ---- the simulated rank ---------------------------------------------------------------------- */
/* A pending collective: its exchanges, of which `next` is in progress, and `due`, the instruction
 * that waits for it. */
typedef struct {
    simulate_exchange x[2 * SIMULATE_LEVELS];
    int next, count, due;
} simulate_pending;

typedef struct {
    const simulate_machine *machine;
    const simulate_ranks *ranks;
    /* nonzero if gradients live through the step, because there are several micro-batches or
     * virtual ranks */
    int accumulates;
    int length; /* number of instructions of the plan */
    /* in the order in which they were started; only the first one has an exchange in flight */
    simulate_pending pending[SIMULATE_PENDING];
    int pending_count;
    double end_time; /* time at which the exchange in flight ends */
    simulate_step result;
} simulate_state;

/* Starts the next exchange of the first pending collective at time `from`. */
static inline void simulate_begin(simulate_state *s, double from)
{
    const simulate_exchange *x = &s->pending[0].x[s->pending[0].next];
    s->end_time = from + simulate_seconds(s->machine, x);
    s->result.comm += s->end_time - from;
    s->result.sent += 4 * (uint64_t)x->send;
    s->result.exchanges += x->send > 0 || x->receive > 0;
}

/* Completes the exchange in flight. If a collective is pending, starts the next exchange at time
 * `from`. */
static inline void simulate_advance(simulate_state *s, double from)
{
    simulate_pending *f = &s->pending[0];
    if (++f->next == f->count)
        memmove(f, f + 1, (size_t)--s->pending_count * sizeof *f);
    if (s->pending_count > 0)
        simulate_begin(s, from);
}

/* Advances time by a computation. Meanwhile all-gathers make progress, since nothing is added to
 * received elements. */
static inline void simulate_compute(simulate_state *s, double seconds)
{
    s->result.compute += seconds;
    s->result.seconds += seconds;
    while (s->pending_count > 0 && s->end_time < s->result.seconds && s->pending[0].x[s->pending[0].next].add == 0)
        simulate_advance(s, s->end_time);
}

/* Advances time by reading and writing `bytes` bytes of memory. */
static inline void simulate_memory(simulate_state *s, double bytes)
{
    simulate_compute(s, bytes / s->machine->mem_bandwidth);
}

/* Completes exchanges that have ended by now: adds received elements, then starts the next
 * exchange. Called between instructions. */
static inline void simulate_poll(simulate_state *s)
{
    while (s->pending_count > 0 && s->end_time <= s->result.seconds) {
        simulate_memory(s, 12 * (double)s->pending[0].x[s->pending[0].next].add);
        simulate_advance(s, s->result.seconds);
    }
}

/* Waits until at most `left` collectives are pending. */
static inline void simulate_wait(simulate_state *s, int left)
{
    for (simulate_poll(s); s->pending_count > left; simulate_poll(s)) {
        s->result.exposed += s->end_time - s->result.seconds;
        s->result.seconds = s->end_time;
    }
}

/* Returns the array for the exchanges of a new collective, which simulate_start then starts. Waits
 * if too many are pending. */
static inline simulate_exchange *simulate_slot(simulate_state *s)
{
    simulate_wait(s, SIMULATE_PENDING - 1);
    return s->pending[s->pending_count].x;
}

static inline void simulate_start(simulate_state *s, int count, int due)
{
    simulate_pending *f = &s->pending[s->pending_count];
    f->next = 0;
    f->count = count;
    f->due = due;
    s->pending_count += count > 0;
    if (s->pending_count == 1 && count > 0)
        simulate_begin(s, s->result.seconds);
    simulate_wait(s, s->machine->no_overlap ? 0 : SIMULATE_PENDING);
}

/* Waits for the pending collectives that instruction i needs. */
static inline void simulate_wait_due(simulate_state *s, int i)
{
    int left = SIMULATE_PENDING;
    for (int k = 0; k < s->pending_count; k++)
        left = s->pending[k].due <= i ? s->pending_count - 1 - k : left;
    simulate_wait(s, left);
}

/* ---- a step ---------------------------------------------------------------------------------- */
/* Returns the number of elements of a tensor, and sets *parameter to whether the tensor is a
 * parameter. */
static inline int64_t simulate_elements(const gckpt_graph *graph, int id, int *parameter)
{
    gckpt_node node;
    int64_t n = 1;
    memset(&node, 0, sizeof node);
    *parameter = gckpt_graph_node(graph, id, &node) == GCKPT_OK && strcmp(node.op, "param") == 0;
    for (int i = 0; i < node.shape.n; i++)
        n *= node.shape.d[i];
    return n;
}

static inline int simulate_is_sharded(const simulate_state *s, int64_t elements, int parameter)
{
    return parameter && s->ranks->shard != GCKPT_SHARD_NONE && s->ranks->ranks > 1 &&
           elements > GCKPT_UPDATE_BLOCK;
}

/* Simulates the end of a virtual rank for one gradient: adds its sum to the partial sums that are
 * waiting. After the last virtual rank, starts the reduction over all ranks. */
static inline void simulate_reduce(simulate_state *s, int64_t elements, int parameter, int vrank,
                                   int due)
{
    const simulate_ranks *r = s->ranks;
    const int last = vrank == r->virtual_ranks / r->ranks - 1;
    int n = 0;
    for (int rest = vrank; rest & 1; rest >>= 1)
        simulate_memory(s, 12 * (double)elements);
    if (!last)
        /* copies the sum and sets the accumulator to zero */
        simulate_memory(s, 8 * (double)elements);
    if (!last || r->ranks == 1)
        return;
    if (simulate_is_sharded(s, elements, parameter) && r->shard > GCKPT_SHARD_STATE && !s->accumulates)
        /* copies the shard, which is kept in another place */
        simulate_memory(s, 8 * (double)simulate_shard_size(elements, r->rank, r->ranks));
    simulate_exchange *x = simulate_slot(s);
    if (elements <= GCKPT_UPDATE_BLOCK)
        n = simulate_all_reduce(x, elements, r);
    else
        n = simulate_reduce_scatter(x, elements, r);
    if (elements > GCKPT_UPDATE_BLOCK && !simulate_is_sharded(s, elements, parameter))
        n += simulate_all_gather(x + n, elements, r);
    simulate_start(s, n, due);
}

/* Starts the all-gather of a sharded parameter of `elements` elements; instruction `due` waits for
 * it. */
static inline void simulate_start_gather(simulate_state *s, int64_t elements, int due)
{
    simulate_exchange *x = simulate_slot(s);
    simulate_start(s, simulate_all_gather(x, elements, s->ranks), due);
}

/* Simulates an all-reduce of `bytes` bytes that all ranks wait for, such as a status barrier. */
static inline void simulate_agree(simulate_state *s, int64_t bytes)
{
    simulate_wait(s, 0);
    simulate_start(s, simulate_all_reduce(s->pending[0].x, bytes / 4, s->ranks), 0);
    simulate_wait(s, 0);
}

/* Returns whether an op reads tensor `id`, or a view of that tensor. */
static inline int simulate_reads(const gckpt_graph *graph, int op, int id)
{
    gckpt_node node, view;
    memset(&node, 0, sizeof node);
    gckpt_graph_node(graph, op, &node);
    for (int i = 0; i < node.inputs; i++) {
        int from = node.input[i];
        while (gckpt_graph_node(graph, from, &view) == GCKPT_OK && strcmp(view.op, "reshape") == 0)
            from = view.input[0];
        if (from == id)
            return 1;
    }
    return 0;
}

/* Returns the first instruction after i that needs the collective that instruction i starts. For a
 * REDUCE this is the next REDUCE, the BARRIER or an update; for a gathered parameter, the first
 * instruction that reads the parameter. */
static inline int simulate_due(const gckpt_plan *plan, const gckpt_graph *graph, int i)
{
    gckpt_instruction in, next;
    gckpt_plan_get(plan, i, &in);
    for (i++; gckpt_plan_get(plan, i, &next) == GCKPT_OK; i++)
        if (in.kind == GCKPT_REDUCE ? next.kind == GCKPT_REDUCE || next.kind == GCKPT_BARRIER ||
                                          next.kind == GCKPT_UPDATE
                                    : next.kind <= GCKPT_BACKWARD &&
                                          simulate_reads(graph, next.id, in.id))
            break;
    return i;
}

/* Simulates instruction i for a micro-batch that has the given fraction of the plan's rows. */
static inline void simulate_instruction(simulate_state *s, const gckpt_plan *plan,
                                        const gckpt_graph *graph, int i, double fraction, int vrank)
{
    int parameter;
    gckpt_instruction ins, *in = &ins;
    gckpt_usage usage;
    gckpt_plan_get(plan, i, in);
    gckpt_plan_usage(plan, i, &usage);
    const int64_t n = simulate_elements(graph, in->id, &parameter);
    const int sharded = simulate_is_sharded(s, n, parameter);
    const int64_t shard = sharded ? simulate_shard_size(n, s->ranks->rank, s->ranks->ranks) : n;
    simulate_wait_due(s, i);
    if (in->id < 0)
        return;
    if (in->kind == GCKPT_REDUCE) {
        simulate_reduce(s, n, parameter, vrank, simulate_due(plan, graph, i));
    } else if (in->kind == GCKPT_UPDATE) {
        simulate_memory(s, SIMULATE_UPDATE_BYTES * (double)shard);
        if (sharded && s->ranks->shard < GCKPT_SHARD_VALUES)
            simulate_start_gather(s, n, s->length);
    } else if (in->kind == GCKPT_FORWARD && sharded && s->ranks->shard == GCKPT_SHARD_VALUES) {
        simulate_memory(s, 8 * (double)shard);
        simulate_start_gather(s, n, simulate_due(plan, graph, i));
    } else {
        simulate_compute(s, fraction * (double)usage.cost / s->machine->throughput);
    }
}

/* Simulates a step of desc.batch rows. Instructions that run once per step are simulated in the
 * first micro-batch if they come before the end of the body, else in the last one. */
static inline simulate_step simulate_run(const gckpt_plan *plan, const gckpt_graph *graph,
                                         const simulate_ranks *ranks,
                                         const simulate_machine *machine)
{
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    const int per_rank = ranks->virtual_ranks / ranks->ranks;
    const int64_t batch = info.batch, most = info.rows;
    /* largest number of rows that a virtual rank has */
    const int64_t rows = (batch + ranks->virtual_ranks - 1) / ranks->virtual_ranks;
    const int64_t micros = (rows + most - 1) / most;
    gckpt_instruction in;
    gckpt_usage usage;
    simulate_state s;
    int64_t blocks = 0;
    int body = 0; /* index after the last instruction that runs in each micro-batch */
    int parameter;
    memset(&s, 0, sizeof s);
    s.machine = machine;
    s.ranks = ranks;
    s.length = info.instructions;
    s.accumulates = per_rank * micros > 1;
    for (int i = 0; i < s.length; i++) {
        gckpt_plan_get(plan, i, &in);
        gckpt_plan_usage(plan, i, &usage);
        body = usage.once ? body : i + 1;
        blocks += in.kind == GCKPT_UPDATE
                      ? simulate_blocks(simulate_elements(graph, in.id, &parameter))
                      : 0;
    }
    simulate_agree(&s, SIMULATE_AGREE_BYTES);
    simulate_agree(&s, SIMULATE_TOTAL_BYTES);
    for (int64_t micro = 0; micro < per_rank * micros; micro++) {
        const int64_t of_vrank = micro % micros, left = rows - of_vrank * most;
        const double fraction = (double)(left < most ? left : most) / (double)most;
        const int first = micro == 0, last = micro == per_rank * micros - 1;
        for (int i = 0; i < s.length; i++) {
            gckpt_plan_get(plan, i, &in);
            gckpt_plan_usage(plan, i, &usage);
            if (usage.once ? !(i < body ? first : last)
                           : in.kind == GCKPT_REDUCE && of_vrank < micros - 1)
                continue;
            if (in.kind == GCKPT_BARRIER) { /* all ranks agree on the norm and on errors */
                simulate_agree(&s, SIMULATE_AGREE_BYTES);
                simulate_agree(&s, SIMULATE_TOTAL_BYTES);
                if (ranks->shard != GCKPT_SHARD_NONE)
                    simulate_agree(&s, 4 * blocks);
                simulate_agree(&s, SIMULATE_AGREE_BYTES);
            }
            simulate_instruction(&s, plan, graph, i, usage.once ? 1 : fraction,
                                 (int)(micro / micros));
        }
    }
    simulate_agree(&s, SIMULATE_AGREE_BYTES);
    return s.result;
}
#endif
