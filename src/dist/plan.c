#if !defined(GCKPT_NO_RANKS) && !defined(GCKPT_SMALL)
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- plans of several virtual ranks: reductions of gradients, shards, receive buffers ---- */
/* The REDUCE of a tensor's gradient, which adds it up over virtual ranks, after the last backward
 * of the body that writes it. Its buffers are indices of gradients, or -1. */
typedef struct {
    int next;     /* tensor of the next REDUCE after the same backward, or -1 */
    int partials; /* the first of tree_depth partial sums */
    int recv;     /* receive buffer, shared by all REDUCEs after one backward */
    int shard;    /* this rank's shard of the sum, if it has a buffer apart from the accumulator */
} gckpti_reduction;

typedef struct gckpti_dist_model {
    int tree_depth;              /* number of partial sums of each reduction */
    gckpti_reduction *reduction; /* by tensor */
    int *first; /* by backward_index: tensor of the first REDUCE after that backward, or -1 */
} gckpti_dist_model;

static gckpt_result gckpti_check_vranks(gckpt_graph *g, const gckpt_plan_desc *d)
{
    const int ranks = gckpti_ranks_of(g->store);
    int vranks = d->ranks.virtual_ranks ? d->ranks.virtual_ranks : 1;
    /* the square of the greatest number fits into 32 bits */
    const gckpti_range range = { "ranks.virtual_ranks", vranks, 0, 32768 };
    if (!gckpti_check_ranges(g, "plan", &range, 1))
        return GCKPT_E_ARG;
    const char *fault = NULL;
    if (vranks & (vranks - 1))
        fault = "plan: desc.ranks.virtual_ranks is %i: must be a power of two";
    else if (d->mode != GCKPT_INFERENCE && ranks > vranks)
        fault = "plan: %i virtual ranks, %i ranks: each rank needs at least one: set "
                "desc.ranks.virtual_ranks to %i or more, the same for any number of ranks";
    else if (d->mode != GCKPT_INFERENCE && d->optimiser == GCKPT_CUSTOM_OPTIMISER &&
             d->state_bytes && g->store->shard)
        fault =
            "plan: desc.state_bytes is the state of a whole parameter, which ranks cannot share: "
            "use GCKPT_SHARD_NONE, or floats per element (desc.custom_state)";
    else if (vranks > 1 && d->update_in_backward)
        fault = "plan: update_in_backward needs desc.ranks.virtual_ranks 1: gradients are "
                "complete only when those of all %i virtual ranks are added";
    return fault ? gckpti_error(g, GCKPT_E_ARG, fault, vranks, ranks, ranks) : GCKPT_OK;
}

/* Checks the request, and begins the model of a plan of several virtual ranks. */
static gckpt_result gckpti_start_dist(gckpti_planner *p)
{
    const gckpt_result result = gckpti_check_vranks(p->g, p->desc);
    const int vranks = p->inference ? 1 : p->desc->ranks.virtual_ranks;
    const int local = vranks / gckpti_ranks_of(p->g->store); /* of each rank */
    const int64_t rows = p->g->rows, batch = p->desc->batch > 0 ? p->desc->batch : rows;
    p->dist = NULL;
    if (result != GCKPT_OK || vranks <= 1)
        return result;
    p->dist = (gckpti_dist_model *)gckpti_scratch_alloc(&p->scratch, 1, sizeof *p->dist);
    while (p->dist && local >> p->dist->tree_depth > 1)
        p->dist->tree_depth++;
    p->accumulates = (batch + vranks - 1) / vranks > rows || (p->dist && p->dist->tree_depth > 0);
    return GCKPT_OK;
}

/* Returns whether each rank has only its shard of the gradient of t, a trained parameter. */
static int gckpti_has_sharded_gradient(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_is_updated(p, t->id) && gckpti_is_sharded(gckpti_update_shard(p, t));
}

/* Refuses fetches of gradients of which each rank has only its shard. */
static gckpt_result gckpti_check_sharded_fetches(const gckpti_planner *p)
{
    for (int i = 0; i < p->desc->fetch.count; i++) {
        const gckpt_fetch_spec *fetch = &p->desc->fetch.specs[i];
        if (fetch->gradient && gckpti_has_sharded_gradient(p, fetch->tensor->base))
            return gckpti_error(p->g, GCKPT_E_ARG,
                                "plan: fetch %i: each rank has only its shard of the gradient of "
                                "%T; with GCKPT_SHARD_NONE it is whole",
                                i, fetch->tensor);
    }
    return GCKPT_OK;
}

/* Lists a reduction after each backward of the body that is the last to write some gradient, and
 * marks the gradient's targets. Allocates p->gradient, with space for the buffers of reductions. */
static void gckpti_list_reductions(gckpti_planner *p)
{
    gckpti_dist_model *d = p->dist;
    const size_t n = (size_t)p->n, gradients = (size_t)p->targets * (size_t)(3 + d->tree_depth);
    d->reduction = (gckpti_reduction *)gckpti_scratch_alloc(&p->scratch, n, sizeof *d->reduction);
    d->first = (int *)gckpti_scratch_alloc(&p->scratch, (size_t)p->backwards, sizeof(int));
    p->gradient =
        (gckpti_gradient *)gckpti_scratch_alloc(&p->scratch, gradients, sizeof *p->gradient);
    if (p->failed)
        return;
    memset(d->first, 0xff, (size_t)p->backwards * sizeof *d->first);
    for (int r = 0; r < p->body_backwards; r++) {
        const gckpt_tensor *t = p->tensors[p->node[p->backward[r]].id];
        for (int i = 0; i < t->inputs; i++) {
            const gckpt_tensor *q = t->in[i]->base;
            if (!p->active[q->id] || !gckpti_is_use_sum(q) || gckpti_is_repeated(t, i) ||
                gckpti_next_write(p, q->id, r) < p->body_backwards)
                continue;
            int *at = &d->first[r]; /* the largest comes last: it overlaps the next backward */
            while (*at >= 0 &&
                   gckpti_elements(&p->tensors[*at]->shape) <= gckpti_elements(&q->shape))
                at = &d->reduction[*at].next;
            const gckpti_reduction sum = { *at, -1, -1, -1 };
            d->reduction[q->id] = sum;
            *at = q->id;
            for (int k = p->first_use[q->id]; k >= 0; k = p->target[k].next)
                p->target[k].reduced = gckpti_is_in_body(p, k);
        }
    }
}

/* Adds the partial sums of each reduction, which live through the whole step. */
static void gckpti_add_partial_sums(gckpti_planner *p)
{
    gckpti_dist_model *d = p->dist;
    for (int r = 0; r < p->body_backwards; r++)
        for (int id = d->first[r]; id >= 0; id = d->reduction[id].next)
            for (int k = 0; k < d->tree_depth; k++) {
                const gckpt_tensor *t = p->tensors[id];
                const int v = gckpti_add_resident(p, t, gckpti_f32_bytes(t));
                p->gradient[v].kind = GCKPT_BUFFER_REDUCTION;
                d->reduction[id].partials = k ? d->reduction[id].partials : v;
            }
}

/* Returns whether the ranks need only their shards of a parameter's gradient after its REDUCE. */
static int gckpti_is_scattered(const gckpti_planner *p, int id)
{
    int use = p->first_use[id];
    while (use >= 0 && gckpti_is_in_body(p, use))
        use = p->target[use].next;
    return use < 0 && gckpti_has_sharded_gradient(p, p->tensors[id]);
}

/* Adds receive buffers, and shards of sums that are stored apart. Receive buffers live until the
 * next backward that is followed by REDUCEs, since collectives may be in flight until then. */
static void gckpti_add_recv_buffers(gckpti_planner *p)
{
    const gckpti_dist_model *d = p->dist;
    for (int r = 0; r < p->body_backwards && p->g->store->peers; r++) {
        int recv = -1;
        for (int id = d->first[r]; id >= 0; id = d->reduction[id].next) {
            gckpti_reduction *sum = &d->reduction[id];
            const gckpt_tensor *t = p->tensors[id];
            size_t half = (size_t)gckpti_shard_of(gckpti_elements(&t->shape), 0, 2).count * 4;
            recv = recv < 0 ? gckpti_gradient_new(p, t, 0, r) : recv;
            gckpti_gradient *buffer = &p->gradient[recv];
            buffer->kind = GCKPT_BUFFER_REDUCTION;
            buffer->id = half > buffer->size ? id : buffer->id;
            buffer->size = half > buffer->size ? half : buffer->size;
            sum->recv = recv;
            if (!p->accumulates && p->g->store->shard >= GCKPT_SHARD_GRADIENTS &&
                gckpti_is_scattered(p, id)) {
                size_t bytes = sizeof(float) * (size_t)gckpti_update_shard(p, t).capacity;
                sum->shard = gckpti_gradient_new(p, t, bytes, r);
                p->gradient[sum->shard].last = p->backwards - 1;
                p->gradient[p->total[id]].result = sum->shard;
            }
        }
    }
    for (int r = p->body_backwards, last = r; r-- > 0; last = d->first[r] >= 0 ? r : last)
        for (int id = d->first[r]; id >= 0; id = d->reduction[id].next) {
            const gckpti_reduction *sum = &d->reduction[id];
            if (sum->recv >= 0)
                p->gradient[sum->recv].last = last;
            if (sum->shard >= 0)
                p->gradient[p->total[id]].last = last;
        }
}

/* Lists the REDUCEs that follow an entry, if it is a backward of the body. */
static void gckpti_list_reduces(gckpti_planner *p, int entry)
{
    int id = entry < 0 ? p->dist->first[p->node[~entry].backward_index] : -1;
    for (; id >= 0 && !p->failed; id = p->dist->reduction[id].next) {
        gckpti_add_instruction(&p->lowered, GCKPT_REDUCE, id);
        p->lowered.ins[p->lowered.length - 1].accumulate =
            (unsigned char)gckpti_is_scattered(p, id);
    }
}

/* Adds the operands of a REDUCE. Its receive buffer and shard begin at the backward before it. */
static void gckpti_add_reduce_operands(gckpti_planner *p, const gckpti_ins_at *at)
{
    const gckpti_dist_model *m = p->dist;
    gckpti_lowered *d = &p->lowered;
    gckpti_ins *ins = &d->ins[at->x];
    if (ins->kind == GCKPT_BACKWARD) {
        int id = m->first[p->node[~d->sched.entry[at->position]].backward_index];
        for (; id >= 0; id = m->reduction[id].next) {
            gckpti_get_or_add_gradient(p, d, m->reduction[id].recv, at->x);
            gckpti_get_or_add_gradient(p, d, m->reduction[id].shard, at->x);
        }
    } else if (ins->kind == GCKPT_REDUCE) {
        const gckpti_reduction *sum = &m->reduction[ins->id];
        gckpti_add_gradient(p, d, sum->recv, at->x);
        gckpti_add_gradient(p, d, p->total[ins->id], at->x);
        gckpti_add_gradient(p, d, sum->shard, at->x);
        gckpti_add_addends(p, d, ins->id, 1, at->x);
        for (int k = 0; k < m->tree_depth; k++)
            gckpti_add_gradient(p, d, sum->partials + k, at->x);
    } else if (ins->kind == GCKPT_UPDATE) {
        ins->accumulate = p->gradient[p->total[ins->id]].result != p->total[ins->id];
    }
}

/* ---- prefetch: gathers of sharded values begin before they are read, if there is space ---- */
/* In the model, collectives run one after another and overlap computation, which waits at the first
 * reader of a gather. Gathers keep their order, and none begins or ends later. Times are costs. */
typedef struct {
    int from, to;              /* position of the gather; position before which it moves */
    uint64_t transfer, latest; /* its communication; latest start at which no reader waits */
} gckpti_gather;

/* Returns the first position after x that reads the value of the entry at x. */
static int gckpti_first_read(const gckpti_planner *p, const gckpti_schedule *s, int x)
{
    for (int y = x + 1, count; y < s->length; y++)
        for (const int *edges = gckpti_entry_reads(p, s->entry[y], &count); count-- > 0;)
            if (edges[count] == s->entry[x])
                return y;
    return s->length;
}

/* Lists the gathers in the body of p->best, with their latest starts. Returns how many there are.
 * before[x]: cost of the computation before position x. */
static int gckpti_list_gathers(const gckpti_planner *p, gckpti_gather *gathers, uint64_t *before)
{
    const gckpti_schedule *s = &p->best.sched;
    uint64_t deadline = UINT64_MAX; /* latest start of the gather after it */
    int n = 0;
    for (int x = 0; x < s->length; x++) {
        const int i = s->entry[x], u = gckpti_entry_node(p, i);
        const int in_body = i >= p->prologue && i < p->nodes; /* a forward */
        const gckpt_tensor *t = p->tensors[p->node[u].id];
        const uint64_t transfer = in_body ? gckpti_gather_transfer(p, t) : 0;
        before[x + 1] = gckpti_add_cost(before[x], i > u ? 0 : gckpti_entry_cost(p, i) - transfer);
        gathers[n].from = x;
        gathers[n].transfer = transfer;
        n += transfer > 0;
    }
    for (int k = n; k-- > 0;) {
        const int x = gathers[k].from;
        const uint64_t read = before[gckpti_first_read(p, s, x)], cost = before[x + 1] - before[x];
        const uint64_t transfer = gathers[k].transfer;
        deadline = deadline < read ? deadline : read;
        deadline = deadline > transfer ? deadline - transfer : 0;
        gathers[k].latest = deadline > cost ? deadline - cost : 0;
    }
    return n;
}

/* Moves each gather up to its latest start, as far as live bytes stay within `most`, but not before
 * the previous gather or the last use of the node's previous value. Returns how many move. */
static int gckpti_move_gathers(gckpti_planner *p, gckpti_gather *gathers, int n,
                               const uint64_t *before, size_t most)
{
    const gckpti_lowered *d = &p->best;
    const gckpti_schedule *s = &d->sched;
    int moved = 0, earliest = p->prologue;
    size_t *live = (size_t *)gckpti_scratch_alloc(&p->temp, (size_t)s->length, sizeof *live);
    int *used = (int *)gckpti_scratch_alloc(&p->temp, (size_t)p->nodes, sizeof *used);
    for (int x = 0; x < s->length && !p->failed; x++)
        for (int y = d->entry_ins[x]; y < d->entry_ins[x + 1]; y++)
            live[x] = d->live_bytes[y] > live[x] ? d->live_bytes[y] : live[x];
    for (int k = 0; k < n && !p->failed; k++) {
        const int x = gathers[k].from, u = s->entry[x];
        const size_t bytes = gckpti_value_bytes(p, p->tensors[p->node[u].id]);
        earliest = earliest > used[u] ? earliest : used[u];
        gathers[k].to = x;
        for (int y = x;
             y-- > earliest && before[y + 1] > gathers[k].latest && live[y] + bytes <= most;) {
            live[y] += bytes;
            gathers[k].to = y;
        }
        moved += gathers[k].to < x;
        earliest = gathers[k].to;
        used[u] = s->value_end[x] + 1;
    }
    return moved;
}

/* Lowers p->best with gathers moved. Returns 0 if none moves or it is out of memory. */
static int gckpti_lower_prefetched(gckpti_planner *p, size_t most, gckpt_result *result)
{
    const gckpti_schedule *s = &p->best.sched;
    const size_t length = (size_t)s->length + 1;
    gckpti_scratch_clear(&p->temp);
    gckpti_gather *list = (gckpti_gather *)gckpti_scratch_alloc(&p->temp, length, sizeof *list);
    uint64_t *before = (uint64_t *)gckpti_scratch_alloc(&p->temp, length, sizeof *before);
    int n = p->failed ? 0 : gckpti_list_gathers(p, list, before), next = 0, passed = 0;
    if (!n || !gckpti_move_gathers(p, list, n, before, most))
        return 0;
    for (int x = p->prologue; x < s->length; x++) {
        const int i = s->entry[x];
        for (; next < n && list[next].to == x; next++)
            gckpti_emit(p, s->entry[list[next].from]);
        if (passed < n && list[passed].from == x)
            passed++;
        else if (i >= 0 || p->node[~i].backward_index < p->body_backwards)
            gckpti_emit(p, i);
    }
    *result = gckpti_lower_schedule(p, p->entries, (int)p->entry_count);
    p->entry_count = 0;
    return !p->failed;
}

/* If ranks.overlap is nonzero, replaces p->best by a plan whose gathers begin earlier, to finish
 * before their first readers, if it fits into the budget or, without one, the bytes of p->best. */
static void gckpti_prefetch_gathers(gckpti_planner *p)
{
    const size_t budget = p->desc->budget;
    const size_t arena = budget ? budget - gckpti_resident_bytes(p, NULL) : p->best.arena;
    size_t most = arena;
    gckpt_result result = GCKPT_OK;
    int tries = p->desc->ranks.overlap && p->desc->mode != GCKPT_SCHEDULE ? 4 : 0;
    for (; tries > 0 && gckpti_lower_prefetched(p, most, &result); tries--) {
        if (result == GCKPT_OK)
            result = gckpti_place_buffers(p, arena);
        if (result != GCKPT_OK)
            return;
        if (p->lowered.arena <= arena) {
            gckpti_keep_lowered(p);
            return;
        }
        most -= p->lowered.arena - arena < most ? p->lowered.arena - arena : most;
    }
}

GCKPTI_PASSES(dist)
{
    gckpti_encoder *e = (gckpti_encoder *)arg;
    const int vranks = p->desc->ranks.virtual_ranks;
    switch ((int)stage) {
    case GCKPTI_PASS_START: return gckpti_start_dist(p);
    case GCKPTI_PASS_ORDER: return gckpti_check_sharded_fetches(p);
    case GCKPTI_PASS_CHOSEN: gckpti_prefetch_gathers(p); break;
    case GCKPTI_PASS_ENCODED:
        if (vranks > 1) { /* the bits of results depend on their number */
            e->plan.virtual_ranks = vranks;
            e->plan.hash = gckpti_fnv_number(e->plan.hash, (uint64_t)vranks);
        }
        e->plan.ranks = gckpti_ranks_of(p->g->store);
        e->plan.shard = p->g->store->shard;
    }
    switch (p->dist ? (int)stage : -1) { /* only with several virtual ranks */
    case GCKPTI_PASS_BACKWARDS: gckpti_list_reductions(p); break;
    case GCKPTI_PASS_ACCUMULATORS: gckpti_add_partial_sums(p); break;
    case GCKPTI_PASS_GRADIENTS: gckpti_add_recv_buffers(p); break;
    case GCKPTI_PASS_ENTRY:
        gckpti_list_reduces(p, p->lowered.sched.entry[*(const int *)arg]);
        break;
    case GCKPTI_PASS_OPERANDS: gckpti_add_reduce_operands(p, (const gckpti_ins_at *)arg);
    }
    return GCKPT_OK;
}

/* ---- rows of steps, as planned ---- */
GCKPTI_FN int64_t gckpti_rows_left(const gckpt_plan *p, int64_t rows)
{
    int64_t least = 0;
    for (int vrank = 0; vrank < p->virtual_ranks; vrank++) {
        const int64_t rest = gckpti_vrank_rows(p, rows, vrank) % p->rows;
        least = rest && (!least || rest < least) ? rest : least;
    }
    return least;
}

GCKPTI_FN uint64_t gckpti_counted_rows(const gckpt_plan *p)
{
    const int64_t rows = (p->batch + p->virtual_ranks - 1) / p->virtual_ranks;
    if (p->virtual_ranks == 1)
        return (uint64_t)p->batch;
    return (uint64_t)((rows > p->rows ? rows : p->rows) * gckpti_local_vranks(p));
}

GCKPTI_FN void gckpti_price_gather(const gckpt_plan *p, int i, gckpt_usage *u)
{
    const uint64_t vranks = (uint64_t)gckpti_local_vranks(p), rows = (uint64_t)p->rows;
    const uint64_t n = (gckpti_counted_rows(p) / vranks + rows - 1) / rows * vranks;
    if (p->ranks == 1 || u->once || p->nodes[p->ins[i].id].kind != GCKPTI_PARAM)
        return;
    u->once = 1;
    u->cost = u->cost > UINT64_MAX / n ? UINT64_MAX : u->cost * n;
}
#endif
