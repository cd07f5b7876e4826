#include "tables/tables.h"
#include "base/base.h"
#include "num/num.h"
#include "store/store.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "ask/ask.h"
#include "run/run.h"

#ifndef GCKPT_NO_EXPORT
/* ---- as a file ---- */
#define GCKPTI_PLAN_MAGIC UINT64_C(0x6e6c707470636b67)

/* Numbers, and into the hash of all that were written. */
static void gckpti_put_numbers(gckpti_sink *k, uint64_t *check, const uint64_t *numbers, int n)
{
    for (int i = 0; i < n; i++) {
        *check = gckpti_fnv_number(*check, numbers[i]);
        gckpti_sink_number(k, numbers[i], 8);
    }
}

static void gckpti_put_number(gckpti_sink *k, uint64_t *check, uint64_t number)
{
    gckpti_put_numbers(k, check, &number, 1);
}

GCKPT_API gckpt_result gckpt_plan_write(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    uint64_t check = GCKPTI_FNV_START;
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    gckpt_instruction in;
    if (!plan || !plan->told || !write || plan->made_for > GCKPTI_FOR_PLAIN)
        return GCKPT_E_ARG;
    const uint64_t head[] = { GCKPTI_PLAN_MAGIC, (uint64_t)plan->format, (uint64_t)plan->contract,
                              plan->node_count };
    gckpti_put_numbers(&k, &check, head, 4);
    for (size_t i = 0; i < plan->node_count; i++) {
        const gckpt_cost *cost = &plan->told[i].cost;
        const uint64_t tensor[] = { plan->told[i].hash, cost->forward, cost->backward };
        gckpti_put_numbers(&k, &check, tensor, 3);
    }
#define GCKPTI_SAVE(type, name, most)                                                              \
    if ((uint64_t)(most) > 0)                                                                      \
        gckpti_put_number(&k, &check, (uint64_t)plan->name);
    GCKPTI_PLAN_NUMBERS(GCKPTI_SAVE)
#undef GCKPTI_SAVE
    for (size_t i = 0; i < plan->term_count; i++) {
        const gckpti_plan_term *t = &plan->terms[i];
        const uint64_t term[] = { (uint64_t)t->id, t->weight, t->regulariser != 0, t->built.forward,
                                  t->built.backward };
        gckpti_put_numbers(&k, &check, term, 5);
    }
    gckpti_put_number(&k, &check, plan->pick_count);
    for (size_t i = 0; i < plan->pick_count; i++) {
        const uint64_t pick[] = { (uint64_t)plan->picks[i].id, plan->picks[i].gradient != 0 };
        gckpti_put_numbers(&k, &check, pick, 2);
    }
    gckpti_put_number(&k, &check, plan->length);
    for (int x = 0; gckpt_plan_get(plan, x, &in) == GCKPT_OK; x++)
        gckpti_put_number(&k, &check, 8 * (uint64_t)in.id + (uint64_t)in.kind);
    gckpti_put_number(&k, &check, plan->param_count);
    for (size_t i = 0; i < plan->param_count; i++)
        gckpti_put_number(&k, &check,
                          2 * (uint64_t)plan->params[i].storage +
                              (uint64_t)gckpti_updates(&plan->params[i]));
    gckpti_put_number(&k, &check, plan->life_count);
    for (size_t i = 0; i < plan->life_count; i++)
        gckpti_put_number(&k, &check, plan->lives[i].offset);
    gckpti_put_number(&k, &check, check);
    return gckpti_sink_flush(&k);
}
/* ---- read again ---- */
typedef struct {
    gckpt_read_fn read;
    void *user;
    uint64_t check, list_hash;
    size_t at;      /* bytes read */
    int ended, bad; /* nothing more to read; a number was out of range */
    gckpti_planner p;
    gckpt_plan head; /* its numbers alone */
    gckpt_plan_desc d;
    gckpt_cost *costs, *built;
    gckpt_term *terms;
    gckpt_fetch_spec *picks;
    gckpt_instruction *list;
    gckpti_scratch scratch; /* of the arrays above */
} gckpti_plan_reader;

static uint64_t gckpti_get_number(gckpti_plan_reader *r)
{
    unsigned char little[8];
    uint64_t value = 0;
    if (r->ended || r->bad || r->read(r->user, little, 8) != 8) {
        r->ended = r->ended || !r->bad;
        return 0;
    }
    for (int i = 8; i-- > 0;)
        value = value << 8 | little[i];
    r->check = gckpti_fnv_number(r->check, value);
    r->at += 8;
    return value;
}

/* A number from 0 to most; 0 and `bad` when it is another one. */
static uint64_t gckpti_get_to(gckpti_plan_reader *r, uint64_t most)
{
    uint64_t value = gckpti_get_number(r);
    r->bad = r->bad || value > most;
    return value > most ? 0 : value;
}

/* E_OK, or the error that reading met. */
static gckpt_result gckpti_reader_result(gckpti_plan_reader *r)
{
    if (r->p.failed)
        return gckpti_error(r->p.g, GCKPT_E_MEMORY, "load plan: no memory for it");
    if (r->bad)
        return gckpti_error(r->p.g, GCKPT_E_DATA,
                            "load plan: the number at byte %z is out of range: the file is damaged",
                            r->at - 8);
    if (r->ended)
        return gckpti_error(r->p.g, GCKPT_E_FILE,
                            "load plan: it ends, or cannot be read, after %z bytes", r->at);
    return GCKPT_OK;
}

/* Is it a plan, of this version, of this graph? */
static gckpt_result gckpti_read_graph(gckpti_plan_reader *r)
{
    gckpt_graph *g = r->p.g;
    uint64_t hash = GCKPTI_FNV_START;
    if (gckpti_get_number(r) != GCKPTI_PLAN_MAGIC && !r->ended)
        return gckpti_error(g, GCKPT_E_DATA, "load plan: this is not a plan of gradckpt.h");
    int format = (int)gckpti_get_to(r, INT32_MAX), contract = (int)gckpti_get_to(r, INT32_MAX);
    uint64_t tensors = gckpti_get_number(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(g);
    if (format != GCKPT_PLAN_FORMAT || contract != GCKPT_CONTRACT)
        return gckpti_error(g, GCKPT_E_DATA,
                            "load plan: saved by another version of gradckpt.h (format %i, "
                            "contract %i; here %i, %i); make it again",
                            format, contract, GCKPT_PLAN_FORMAT, GCKPT_CONTRACT);
    for (size_t i = 0; i < g->count && i < tensors; i++) {
        hash = gckpti_hash_tensor(hash, g->tensors[i]);
        uint64_t saved = gckpti_get_number(r);
        r->costs[i].forward = gckpti_get_number(r);
        r->costs[i].backward = gckpti_get_number(r);
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

/* The schedule, without what the library adds to any. */
static void gckpti_read_list(gckpti_plan_reader *r)
{
    const gckpt_graph *g = r->p.g;
    int length = (int)gckpti_get_to(r, INT32_MAX);
    r->list_hash = GCKPTI_FNV_START;
    for (int x = 0; x < length && !r->p.failed; x++) {
        int word = (int)gckpti_get_to(r, 8 * g->count - 1);
        gckpt_instruction in = { (gckpt_kind)(word % 8), word / 8 };
        r->list_hash = gckpti_fnv_number(r->list_hash, (uint64_t)word);
        if (r->ended || r->bad || !g->count)
            break; /* the id is none */
        const gckpt_tensor *t = g->tensors[in.id];
        if (in.kind == GCKPT_UPDATE || in.kind == GCKPT_OFFLOAD || in.kind == GCKPT_REDUCE ||
            (t->batchless && t->kind == GCKPTI_OP))
            continue;
        r->d.stage_parameters =
            r->d.stage_parameters || (t->kind == GCKPTI_PARAM && !gckpti_is_staged(&r->p, t));
        if (gckpti_want(&r->scratch, &r->list, (size_t)x + 1, sizeof *r->list))
            r->list[r->d.instructions++] = in;
    }
}

/* What was asked for, and the list, as gckpt_plan_new takes them. (More than 60 lines: the
 * fields in the order in which a file has them, and what each may be.) */
static gckpt_result gckpti_read_request(gckpti_plan_reader *r)
{
    gckpt_graph *g = r->p.g;
    gckpt_plan_desc *d = &r->d;
    size_t n = g->count;
    gckpt_plan *head = &r->head;
#define GCKPTI_LOAD(type, name, most)                                                              \
    if ((uint64_t)(most) > 0)                                                                      \
        head->name = (type)gckpti_get_to(r, (uint64_t)(most));
    GCKPTI_PLAN_NUMBERS(GCKPTI_LOAD)
#undef GCKPTI_LOAD
    r->bad = r->bad || (!r->ended && (!head->alignment || head->term_count > n));
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(g);
    if (head->bands && !GCKPTI_RUNS_BANDS)
        return gckpti_error(g, GCKPT_E_ARG,
                            "load plan: it has runs of ops in bands of rows, which this build "
                            "leaves out (GCKPT_NO_TILES)");
    d->mode = head->mode == GCKPT_INFERENCE ? GCKPT_INFERENCE : GCKPT_SCHEDULE;
    d->optimiser = head->optimiser;
    d->custom_state = head->state_slots;
    d->update_in_backward = head->update_in_backward;
    d->threads = head->threads;
    d->alignment = head->alignment;
    d->batch = head->batch;
    d->plain = head->made_for;
    d->precision = head->precision;
    d->bf16_weights = head->bf16_weights;
    d->offload_bytes = head->offloaded;
    d->offload_cost = head->offload_work;
    d->overlap_offload = head->offload_beside;
    d->virtual_ranks = head->leaves; /* link_work: the costs have it already */
    r->p.term_count = (int)head->term_count;
    for (int i = 0; i < r->p.term_count; i++) {
        int id = (int)gckpti_get_to(r, n - 1);
        r->terms[i].loss = g->tensors[id];
        r->terms[i].weight = gckpti_float((uint32_t)gckpti_get_number(r));
        r->terms[i].regulariser = (int)gckpti_get_to(r, 1);
        r->built[id].forward = gckpti_get_number(r);
        r->built[id].backward = gckpti_get_number(r);
    }
    d->fetches = (int)gckpti_get_to(r, 2 * n);
    for (int i = 0; i < d->fetches; i++) {
        r->picks[i].tensor = g->tensors[gckpti_get_to(r, n - 1)];
        r->picks[i].gradient = (int)gckpti_get_to(r, 1);
    }
    r->p.desc = d;
    gckpti_read_list(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(g);
    if (head->ranks != g->store->ranks || head->shard != g->store->shard)
        return gckpti_error(g, GCKPT_E_ARG,
                            "load plan: made for %i ranks that shard %s; the store is for %i that "
                            "shard %s (%s)",
                            head->ranks, gckpti_shard_name(head->shard), g->store->ranks,
                            gckpti_shard_name(g->store->shard),
                            GCKPTI_RUNS_LEAVES ? "gckpt_store_ranks"
                                               : "this build leaves out ranks: GCKPT_NO_RANKS");
    if (GCKPTI_ALWAYS_PLAIN && !d->plain)
        return gckpti_error(g, GCKPT_E_ARG,
                            "load plan: its workspace is that of the fast kernels, which this "
                            "build (GCKPT_NO_FAST) does not have; make it with "
                            "gckpt_plan_desc.plain = 1");
    d->costs = r->costs;
    d->cost_count = (int)n;
    d->fetch = r->picks;
    d->schedule = r->list;
    return GCKPT_OK;
}

/* Are the parameters trained that were when it was made? Their gradients are in the list. */
static gckpt_result gckpti_read_trained(gckpti_plan_reader *r)
{
    const gckpt_graph *g = r->p.g;
    uint64_t count = gckpti_get_number(r), seen = 0;
    for (size_t i = 0; i < g->count; i++) {
        if (g->tensors[i]->kind != GCKPTI_PARAM)
            continue;
        seen++;
        int word = (int)gckpti_get_to(r, 2 * GCKPT_STORAGE_I4 + 1), trained = word & 1;
        gckpt_storage storage = g->store->params[g->tensors[i]->index].p.storage;
        if (r->bad || r->ended)
            break;
        if (!gckpti_has_storage(word / 2))
            return gckpti_error(r->p.g, GCKPT_E_ARG,
                                "load plan: %T was stored as %s, which this build leaves out "
                                "(GCKPT_NO_QUANT)",
                                g->tensors[i], gckpti_storage_name((gckpt_storage)(word / 2)));
        if (trained != gckpti_is_updated(&r->p, (int)i))
            return gckpti_error(r->p.g, GCKPT_E_ARG,
                                "load plan: %T was %s when the plan was made: freeze the same "
                                "parameters, or make it again",
                                g->tensors[i], trained ? "trained" : "not trained");
        if (word / 2 != (int)storage)
            return gckpti_error(r->p.g, GCKPT_E_ARG,
                                "load plan: %T was stored as %s when the plan was made, now as %s: "
                                "pack it so, or make it again",
                                g->tensors[i], gckpti_storage_name((gckpt_storage)(word / 2)),
                                gckpti_storage_name(storage));
    }
    r->bad = r->bad || (!r->ended && count != seen);
    return gckpti_reader_result(r);
}

/* Whether a buffer lies apart from those that live with it: `live`, by offset, which it joins. */
static int gckpti_is_apart(const gckpt_buffer *all, int number, int *live, size_t *count)
{
    const gckpt_buffer *b = &all[number];
    size_t kept = 0, at = 0, n = *count;
    for (size_t k = 0; k < n; k++)
        if (all[live[k]].end >= b->start)
            live[kept++] = live[k];
    while (at < kept && all[live[at]].offset < b->offset)
        at++;
    const gckpt_buffer *below = at > 0 ? &all[live[at - 1]] : NULL;
    int apart = (!below || below->offset + below->size <= b->offset) &&
                (at == kept || all[live[at]].offset >= b->offset + b->size);
    memmove(live + at + 1, live + at, (kept - at) * sizeof *live);
    live[at] = number;
    *count = kept + 1;
    return apart;
}

/* Takes the offsets instead of a layout's: aligned, addressable, without overlaps at any time. */
static gckpt_result gckpti_read_offsets(gckpti_plan_reader *r)
{
    gckpti_planner *p = &r->p;
    gckpti_draft *d = &p->draft;
    uint64_t hash = GCKPTI_FNV_START;
    size_t n = d->buffer_count, count = 0;
    for (size_t x = 0; x < d->length; x++)
        hash = gckpti_fnv_number(hash, 8 * (uint64_t)d->ins[x].id + d->ins[x].kind);
    uint64_t saved = gckpti_get_number(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(p->g);
    if (r->list_hash != hash || saved != n)
        return gckpti_error(
            p->g, GCKPT_E_DATA,
            "load plan: this graph keeps or recomputes other tensors (gckpt_keep, "
            "gckpt_recompute) than the plan, or the file is damaged; make it again");
    const int *order = gckpti_buffers_by_end(p, d);
    for (size_t i = 0; i < n && order; i++) {
        gckpt_buffer *b = &d->buffers[order[i]];
        uint64_t offset = gckpti_get_number(r);
        if (offset > (uint64_t)GCKPTI_ADDRESSABLE - b->size)
            return gckpti_error(p->g, GCKPT_E_DATA,
                                "load plan: a buffer at %u is beyond what this machine addresses",
                                offset);
        r->bad = r->bad || offset % r->d.alignment;
        b->offset = (size_t)offset;
        d->arena = b->offset + b->size > d->arena ? b->offset + b->size : d->arena;
    }
    uint64_t check = r->check;
    if (gckpti_get_number(r) != check && !r->bad && !r->ended)
        return gckpti_error(p->g, GCKPT_E_DATA, "load plan: the file is damaged (its hash)");
    int *live = (int *)gckpti_scratch_take(&d->scratch, n + 1, sizeof(int)); /* by offset */
    for (size_t i = 0; i < n && gckpti_reader_result(r) == GCKPT_OK; i++)
        r->bad = r->bad || !gckpti_is_apart(d->buffers, (int)i, live, &count);
    return gckpti_reader_result(r);
}

/* The steps of planning, with the file's decisions; NULL: the graph's error, or no memory. */
static gckpt_plan *gckpti_read_plan(gckpti_plan_reader *r)
{
    gckpti_planner *p = &r->p;
    size_t n = p->g->count;
    r->costs = (gckpt_cost *)gckpti_scratch_take(&r->scratch, n, sizeof *r->costs);
    r->built = (gckpt_cost *)gckpti_scratch_take(&r->scratch, n + 1, sizeof *r->built);
    r->terms = (gckpt_term *)gckpti_scratch_take(&r->scratch, n, sizeof *r->terms);
    r->picks = (gckpt_fetch_spec *)gckpti_scratch_take(&r->scratch, 2 * n, sizeof *r->picks);
    if (p->failed || gckpti_read_graph(r) != GCKPT_OK || gckpti_read_request(r) != GCKPT_OK)
        return NULL;
    if (gckpti_planner_start(p, p->memory, p->g, r->terms, p->term_count, &r->d) != GCKPT_OK)
        return NULL;
    p->variant.form = r->head.form;
    p->variant.bands = r->head.bands;
    if (gckpti_make_model(p) != GCKPT_OK || gckpti_read_trained(r) != GCKPT_OK)
        return NULL;
    r->bad = !gckpti_is_offered(p) || r->head.least_work > p->least_work ||
             !r->head.least_work != !p->least_work;
    p->least_work = r->head.least_work;
    for (int i = 0; i < p->n; i++) /* of what does not run as well */
        r->built[i] = p->of[i] < 0 ? p->cost[i] : r->built[i];
    p->built = r->built;
    if (gckpti_reader_result(r) != GCKPT_OK ||
        gckpti_draft_mode(p, GCKPT_SCHEDULE, 0) != GCKPT_OK || gckpti_read_offsets(r) != GCKPT_OK)
        return NULL;
    gckpt_plan *plan = gckpti_encode(p, &p->draft, r->head.mode);
    r->bad =
        plan && (r->head.proven_work > plan->work || r->head.proven_bytes > gckpt_plan_bytes(plan));
    if (plan) {
        plan->proven_work = r->head.proven_work;
        plan->proven_bytes = r->head.proven_bytes;
        plan->link_work = r->head.link_work;
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
    r.p.g = graph;
    r.p.memory = &a;
    r.scratch = gckpti_scratch_new(&a, &r.p.failed);
    gckpti_ok(graph);
    gckpt_plan *plan = gckpti_read_plan(&r);
    gckpti_planner_free(&r.p);
    gckpti_scratch_free(&r.scratch);
    if (!plan && (r.p.failed || graph->object.last == GCKPT_OK)) {
        gckpti_error(graph, GCKPT_E_MEMORY, "load plan: no memory for it");
        gckpti_tell_block(graph, "plan", &a, 0);
    }
    return gckpti_plan_settle(plan);
}
#endif
