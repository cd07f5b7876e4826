#include "export/export.h"
#include "base/base.h"
#include "num/num.h"
#include "store/store.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "planner/planner.h"
#include "run/run.h"

#ifndef GCKPT_NO_EXPORT
#define GCKPTI_PLAN_MAGIC UINT64_C(0x6e6c707470636b67)

/* Writes numbers, and adds them to *check, the hash of all numbers written. */
static void gckpti_write_numbers(gckpti_sink *out, uint64_t *check, const uint64_t *numbers, int n)
{
    for (int i = 0; i < n; i++) {
        *check = gckpti_fnv_number(*check, numbers[i]);
        gckpti_sink_number(out, numbers[i], 8);
    }
}

static void gckpti_write_number(gckpti_sink *out, uint64_t *check, uint64_t number)
{
    gckpti_write_numbers(out, check, &number, 1);
}

GCKPT_API gckpt_result gckpt_plan_write(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    uint64_t check = GCKPTI_FNV_START;
    gckpti_sink out = { write, user, 0, 0, 0, { 0 } };
    gckpt_instruction in;
    if (!plan || !plan->info || !write || plan->backend_id > GCKPTI_BACKEND_PLAIN)
        return GCKPT_E_ARG;
    const uint64_t header[] = { GCKPTI_PLAN_MAGIC, (uint64_t)plan->format, (uint64_t)plan->contract,
                              plan->node_count };
    gckpti_write_numbers(&out, &check, header, 4);
    for (size_t i = 0; i < plan->node_count; i++) {
        const gckpt_cost *cost = &plan->info[i].cost;
        const uint64_t tensor[] = { plan->info[i].hash, cost->forward, cost->backward };
        gckpti_write_numbers(&out, &check, tensor, 3);
    }
#define GCKPTI_SAVE(type, name, most)                                                              \
    if ((uint64_t)(most) > 0)                                                                      \
        gckpti_write_number(&out, &check, (uint64_t)plan->name);
    GCKPTI_PLAN_NUMBERS(GCKPTI_SAVE)
#undef GCKPTI_SAVE
    for (size_t i = 0; i < plan->term_count; i++) {
        const gckpti_plan_term *t = &plan->terms[i];
        const uint64_t term[] = { (uint64_t)t->id, t->weight, t->regulariser != 0,
                                  t->built_cost.forward, t->built_cost.backward };
        gckpti_write_numbers(&out, &check, term, 5);
    }
    gckpti_write_number(&out, &check, plan->fetch_count);
    for (size_t i = 0; i < plan->fetch_count; i++) {
        const uint64_t fetch[] = { (uint64_t)plan->fetches[i].id, plan->fetches[i].gradient != 0 };
        gckpti_write_numbers(&out, &check, fetch, 2);
    }
    gckpti_write_number(&out, &check, plan->length);
    for (int x = 0; gckpt_plan_get(plan, x, &in) == GCKPT_OK; x++)
        gckpti_write_number(&out, &check, 8 * (uint64_t)in.id + (uint64_t)in.kind);
    gckpti_write_number(&out, &check, plan->param_count);
    for (size_t i = 0; i < plan->param_count; i++)
        gckpti_write_number(&out, &check,
                            2 * (uint64_t)plan->params[i].storage +
                                (uint64_t)gckpti_has_update(&plan->params[i]));
    gckpti_write_number(&out, &check, plan->buffer_count);
    for (size_t i = 0; i < plan->buffer_count; i++)
        gckpti_write_number(&out, &check, plan->buffers[i].offset);
    gckpti_write_number(&out, &check, check);
    return gckpti_sink_flush(&out);
}
/* ---- reading ---- */
typedef struct {
    gckpt_read_fn read;
    void *user;
    uint64_t check, schedule_hash;
    size_t bytes_read;
    int truncated; /* read() returned too few bytes */
    int invalid;   /* a number was out of range */
    gckpti_planner planner;
    gckpt_plan meta; /* receives the numbers of GCKPTI_PLAN_NUMBERS */
    gckpt_plan_desc desc;
    gckpt_cost *costs, *built;
    gckpt_term *terms;
    gckpt_fetch_spec *fetches;
    gckpt_instruction *schedule;
    gckpti_scratch scratch; /* memory of the arrays above */
} gckpti_plan_reader;

static uint64_t gckpti_read_number(gckpti_plan_reader *r)
{
    unsigned char little[8];
    uint64_t value = 0;
    if (r->truncated || r->invalid || r->read(r->user, little, 8) != 8) {
        r->truncated = r->truncated || !r->invalid;
        return 0;
    }
    for (int i = 8; i-- > 0;)
        value = value << 8 | little[i];
    r->check = gckpti_fnv_number(r->check, value);
    r->bytes_read += 8;
    return value;
}

/* Reads a number from 0 to `most`; sets `invalid` and returns 0 if it is greater. */
static uint64_t gckpti_read_up_to(gckpti_plan_reader *r, uint64_t most)
{
    uint64_t value = gckpti_read_number(r);
    r->invalid = r->invalid || value > most;
    return value > most ? 0 : value;
}

/* Returns GCKPT_OK, or the error of reading: memory, a number out of range, the file's end. */
static gckpt_result gckpti_reader_result(gckpti_plan_reader *r)
{
    if (r->planner.failed)
        return gckpti_error(r->planner.g, GCKPT_E_MEMORY, "load plan: no memory for the plan");
    if (r->invalid)
        return gckpti_error(r->planner.g, GCKPT_E_DATA,
                            "load plan: the number at byte %z is out of range: the file is damaged",
                            r->bytes_read - 8);
    if (r->truncated)
        return gckpti_error(r->planner.g, GCKPT_E_FILE,
                            "load plan: it ends, or cannot be read, after %z bytes", r->bytes_read);
    return GCKPT_OK;
}

/* Checks that the file is a plan of this version and of this graph. */
static gckpt_result gckpti_read_graph(gckpti_plan_reader *r)
{
    gckpt_graph *g = r->planner.g;
    uint64_t hash = GCKPTI_FNV_START;
    if (gckpti_read_number(r) != GCKPTI_PLAN_MAGIC && !r->truncated)
        return gckpti_error(g, GCKPT_E_DATA, "load plan: this is not a plan of gradckpt.h");
    int format = (int)gckpti_read_up_to(r, INT32_MAX),
        contract = (int)gckpti_read_up_to(r, INT32_MAX);
    uint64_t tensors = gckpti_read_number(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(g);
    if (format != GCKPT_PLAN_FORMAT || contract != GCKPT_CONTRACT)
        return gckpti_error(g, GCKPT_E_DATA,
                            "load plan: saved by another version of gradckpt.h (format %i, "
                            "contract %i; here %i, %i); make it again",
                            format, contract, GCKPT_PLAN_FORMAT, GCKPT_CONTRACT);
    for (size_t i = 0; i < g->count && i < tensors; i++) {
        hash = gckpti_hash_tensor(hash, g->tensors[i]);
        uint64_t saved = gckpti_read_number(r);
        r->costs[i].forward = gckpti_read_number(r);
        r->costs[i].backward = gckpti_read_number(r);
        if (gckpti_reader_result(r) != GCKPT_OK)
            return gckpt_error(g);
        if (saved != hash)
            return gckpti_error(g, GCKPT_E_ARG,
                                "load plan: made for another graph: %T %S (tensor %i) differs: op, "
                                "attributes, shape, type, inputs or name",
                                g->tensors[i], &g->tensors[i]->shape, (int)i);
    }
    return tensors == g->count
               ? GCKPT_OK
               : gckpti_error(g, GCKPT_E_ARG,
                              "load plan: made for a graph of %u tensors; this one has %z", tensors,
                              g->count);
}

/* Reads the schedule. Skips instructions that the planner adds to every schedule. */
static void gckpti_read_schedule(gckpti_plan_reader *r)
{
    const gckpt_graph *g = r->planner.g;
    int length = (int)gckpti_read_up_to(r, INT32_MAX);
    r->schedule_hash = GCKPTI_FNV_START;
    for (int x = 0; x < length && !r->planner.failed; x++) {
        int word = (int)gckpti_read_up_to(r, 8 * g->count - 1);
        gckpt_instruction in = { (gckpt_kind)(word % 8), word / 8 };
        r->schedule_hash = gckpti_fnv_number(r->schedule_hash, (uint64_t)word);
        if (r->truncated || r->invalid || !g->count)
            break; /* `word` was not read */
        const gckpt_tensor *t = g->tensors[in.id];
        if (in.kind == GCKPT_UPDATE || in.kind == GCKPT_OFFLOAD || in.kind == GCKPT_REDUCE ||
            (t->batch_invariant && t->kind == GCKPTI_OP))
            continue;
        r->desc.stage_parameters = r->desc.stage_parameters ||
                                   (t->kind == GCKPTI_PARAM && !gckpti_is_staged(&r->planner, t));
        if (gckpti_reserve(&r->scratch, &r->schedule, (size_t)x + 1, sizeof *r->schedule))
            r->schedule[r->desc.instructions++] = in;
    }
}

/* Reads the fields of r->desc and the schedule, and checks the range of each. */
static gckpt_result gckpti_read_request(gckpti_plan_reader *r)
{
    gckpt_graph *g = r->planner.g;
    gckpt_plan_desc *d = &r->desc;
    size_t n = g->count;
    gckpt_plan *meta = &r->meta;
#define GCKPTI_LOAD(type, name, most)                                                              \
    if ((uint64_t)(most) > 0)                                                                      \
        meta->name = (type)gckpti_read_up_to(r, (uint64_t)(most));
    GCKPTI_PLAN_NUMBERS(GCKPTI_LOAD)
#undef GCKPTI_LOAD
    r->invalid = r->invalid || (!r->truncated && (!meta->alignment || meta->term_count > n));
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(g);
    if (meta->fused && !GCKPTI_RUNS_FUSED)
        return gckpti_error(g, GCKPT_E_ARG,
                            "load plan: it has fused groups of ops, which this build leaves out "
                            "(GCKPT_NO_TILES)");
    d->mode = meta->mode == GCKPT_INFERENCE ? GCKPT_INFERENCE : GCKPT_SCHEDULE;
    d->optimiser = meta->optimiser;
    d->custom_state = meta->state_slots;
    d->update_in_backward = meta->update_in_backward;
    d->threads = meta->threads;
    d->alignment = meta->alignment;
    d->batch = meta->batch;
    d->plain = meta->backend_id;
    d->precision = meta->precision;
    d->bf16_weights = meta->bf16_weights;
    d->offload_bytes = meta->offloaded;
    d->offload_cost = meta->offload_cost;
    d->overlap_offload = meta->overlap_offload;
    d->virtual_ranks = meta->virtual_ranks; /* link_cost stays 0: `costs` include it */
    r->planner.term_count = (int)meta->term_count;
    for (int i = 0; i < r->planner.term_count; i++) {
        int id = (int)gckpti_read_up_to(r, n - 1);
        r->terms[i].loss = g->tensors[id];
        r->terms[i].weight = gckpti_float((uint32_t)gckpti_read_number(r));
        r->terms[i].regulariser = (int)gckpti_read_up_to(r, 1);
        r->built[id].forward = gckpti_read_number(r);
        r->built[id].backward = gckpti_read_number(r);
    }
    d->fetches = (int)gckpti_read_up_to(r, 2 * n);
    for (int i = 0; i < d->fetches; i++) {
        r->fetches[i].tensor = g->tensors[gckpti_read_up_to(r, n - 1)];
        r->fetches[i].gradient = (int)gckpti_read_up_to(r, 1);
    }
    r->planner.desc = d;
    gckpti_read_schedule(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(g);
    if (meta->ranks != g->store->ranks || meta->shard != g->store->shard)
        return gckpti_error(g, GCKPT_E_ARG,
                            "load plan: made for %i ranks that shard %s; the store is for %i that "
                            "shard %s (%s)",
                            meta->ranks, gckpti_shard_name(meta->shard), g->store->ranks,
                            gckpti_shard_name(g->store->shard),
                            GCKPTI_RUNS_RANKS ? "gckpt_store_ranks"
                                              : "this build leaves out ranks: GCKPT_NO_RANKS");
    if (GCKPTI_ALWAYS_PLAIN && !d->plain)
        return gckpti_error(g, GCKPT_E_ARG,
                            "load plan: its workspace is that of the fast kernels, which this "
                            "build (GCKPT_NO_FAST) does not have; make it with "
                            "gckpt_plan_desc.plain = 1");
    d->costs = r->costs;
    d->cost_count = (int)n;
    d->fetch = r->fetches;
    d->schedule = r->schedule;
    return GCKPT_OK;
}

/* Checks that graph and file train the same parameters, whose gradients the schedule has. */
static gckpt_result gckpti_read_trained(gckpti_plan_reader *r)
{
    const gckpt_graph *g = r->planner.g;
    uint64_t count = gckpti_read_number(r), seen = 0;
    for (size_t i = 0; i < g->count; i++) {
        if (g->tensors[i]->kind != GCKPTI_PARAM)
            continue;
        seen++;
        int word = (int)gckpti_read_up_to(r, 2 * GCKPT_STORAGE_I4 + 1), trained = word & 1;
        gckpt_storage storage = g->store->params[g->tensors[i]->index].p.storage;
        if (r->invalid || r->truncated)
            break;
        if (!gckpti_has_storage(word / 2))
            return gckpti_error(r->planner.g, GCKPT_E_ARG,
                                "load plan: %T was stored as %s, which this build leaves out "
                                "(GCKPT_NO_QUANT)",
                                g->tensors[i], gckpti_storage_name((gckpt_storage)(word / 2)));
        if (trained != gckpti_is_updated(&r->planner, (int)i))
            return gckpti_error(r->planner.g, GCKPT_E_ARG,
                                "load plan: %T was %s when the plan was made: freeze the same "
                                "parameters, or make it again",
                                g->tensors[i], trained ? "trained" : "not trained");
        if (word / 2 != (int)storage)
            return gckpti_error(r->planner.g, GCKPT_E_ARG,
                                "load plan: %T was stored as %s when the plan was made, now as %s: "
                                "quantise it so, or make it again",
                                g->tensors[i], gckpti_storage_name((gckpt_storage)(word / 2)),
                                gckpti_storage_name(storage));
    }
    r->invalid = r->invalid || (!r->truncated && count != seen);
    return gckpti_reader_result(r);
}

/* Adds buffer `number` to `live`, sorted by offset; returns 1 if it overlaps no live buffer. */
static int gckpti_is_disjoint(const gckpt_buffer *all, int number, int *live, size_t *count)
{
    const gckpt_buffer *b = &all[number];
    size_t kept = 0, at = 0, n = *count;
    for (size_t out = 0; out < n; out++)
        if (all[live[out]].end >= b->start)
            live[kept++] = live[out];
    while (at < kept && all[live[at]].offset < b->offset)
        at++;
    const gckpt_buffer *below = at > 0 ? &all[live[at - 1]] : NULL;
    int disjoint = (!below || below->offset + below->size <= b->offset) &&
                   (at == kept || all[live[at]].offset >= b->offset + b->size);
    memmove(live + at + 1, live + at, (kept - at) * sizeof *live);
    live[at] = number;
    *count = kept + 1;
    return disjoint;
}

/* Reads the buffers' offsets; checks that they are aligned, addressable and never overlap. */
static gckpt_result gckpti_read_offsets(gckpti_plan_reader *r)
{
    gckpti_planner *p = &r->planner;
    gckpti_lowered *d = &p->lowered;
    uint64_t hash = GCKPTI_FNV_START;
    size_t n = d->buffer_count, count = 0;
    for (size_t x = 0; x < d->length; x++)
        hash = gckpti_fnv_number(hash, 8 * (uint64_t)d->ins[x].id + d->ins[x].kind);
    uint64_t saved = gckpti_read_number(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(p->g);
    if (r->schedule_hash != hash || saved != n)
        return gckpti_error(p->g, GCKPT_E_DATA,
                            "load plan: this graph keeps or recomputes other tensors "
                            "(gckpt_keep, gckpt_recompute) than the plan, or the file is damaged; "
                            "make it again");
    const int *order = gckpti_buffers_by_end(p, d);
    for (size_t i = 0; i < n && order; i++) {
        gckpt_buffer *b = &d->buffers[order[i]];
        uint64_t offset = gckpti_read_number(r);
        if (offset > (uint64_t)GCKPTI_ARENA_MAX - b->size)
            return gckpti_error(p->g, GCKPT_E_DATA,
                                "load plan: a buffer at %u is beyond what this machine addresses",
                                offset);
        r->invalid = r->invalid || offset % r->desc.alignment;
        b->offset = (size_t)offset;
        d->arena = b->offset + b->size > d->arena ? b->offset + b->size : d->arena;
    }
    uint64_t check = r->check;
    if (gckpti_read_number(r) != check && !r->invalid && !r->truncated)
        return gckpti_error(p->g, GCKPT_E_DATA, "load plan: the file is damaged (its hash)");
    int *live = (int *)gckpti_scratch_alloc(&d->scratch, n + 1, sizeof(int)); /* sorted by offset */
    for (size_t i = 0; i < n && gckpti_reader_result(r) == GCKPT_OK; i++)
        r->invalid = r->invalid || !gckpti_is_disjoint(d->buffers, (int)i, live, &count);
    return gckpti_reader_result(r);
}

/* Makes the plan by the file's decisions. Returns NULL on errors, with the graph's error. */
static gckpt_plan *gckpti_read_plan(gckpti_plan_reader *r)
{
    gckpti_planner *p = &r->planner;
    size_t n = p->g->count;
    r->costs = (gckpt_cost *)gckpti_scratch_alloc(&r->scratch, n, sizeof *r->costs);
    r->built = (gckpt_cost *)gckpti_scratch_alloc(&r->scratch, n + 1, sizeof *r->built);
    r->terms = (gckpt_term *)gckpti_scratch_alloc(&r->scratch, n, sizeof *r->terms);
    r->fetches = (gckpt_fetch_spec *)gckpti_scratch_alloc(&r->scratch, 2 * n, sizeof *r->fetches);
    if (p->failed || gckpti_read_graph(r) != GCKPT_OK || gckpti_read_request(r) != GCKPT_OK)
        return NULL;
    if (gckpti_planner_start(p, p->memory, p->g, r->terms, p->term_count, &r->desc) != GCKPT_OK)
        return NULL;
    p->variant.lowering = r->meta.lowering;
    p->variant.fused = r->meta.fused;
    if (gckpti_build_model(p) != GCKPT_OK || gckpti_read_trained(r) != GCKPT_OK)
        return NULL;
    r->invalid = !gckpti_variant_applies(p) || r->meta.least_cost > p->least_cost ||
                 !r->meta.least_cost != !p->least_cost;
    p->least_cost = r->meta.least_cost;
    for (int i = 0; i < p->n; i++) /* nodes that never run: their cost */
        r->built[i] = p->node_of[i] < 0 ? p->cost[i] : r->built[i];
    p->built_cost = r->built;
    if (gckpti_reader_result(r) != GCKPT_OK ||
        gckpti_lower_mode(p, GCKPT_SCHEDULE, 0) != GCKPT_OK || gckpti_read_offsets(r) != GCKPT_OK)
        return NULL;
    gckpt_plan *plan = gckpti_encode_plan(p, &p->lowered, r->meta.mode);
    r->invalid =
        plan && (r->meta.proven_cost > plan->cost || r->meta.proven_bytes > gckpt_plan_bytes(plan));
    if (plan) {
        plan->proven_cost = r->meta.proven_cost;
        plan->proven_bytes = r->meta.proven_bytes;
        plan->comm_cost = r->meta.comm_cost;
    }
    if (gckpti_reader_result(r) == GCKPT_OK)
        return plan;
    gckpt_plan_free(plan);
    return NULL;
}

GCKPT_API gckpt_plan *gckpt_plan_read(gckpt_graph *graph, gckpt_read_fn read, void *user,
                                      const gckpt_memory *memory)
{
    gckpti_plan_reader r;
    gckpti_allocator a = gckpti_allocator_of(memory);
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    if (!read) {
        gckpti_error(graph, GCKPT_E_ARG, "load plan: the callback is NULL");
        return NULL;
    }
    memset(&r, 0, sizeof r);
    r.read = read;
    r.user = user;
    r.check = GCKPTI_FNV_START;
    r.planner.g = graph;
    r.planner.memory = &a;
    r.scratch = gckpti_scratch_new(&a, &r.planner.failed);
    gckpti_ok(graph);
    gckpt_plan *plan = gckpti_read_plan(&r);
    gckpti_planner_free(&r.planner);
    gckpti_scratch_free(&r.scratch);
    if (!plan && (r.planner.failed || graph->object.last == GCKPT_OK)) {
        gckpti_error(graph, GCKPT_E_MEMORY, "load plan: no memory for the plan");
        gckpti_hint_block(graph, "plan", &a, 0);
    }
    return gckpti_plan_compact(plan);
}
#endif
