#include "run/internal.h"
#include "graph/graph.h"

GCKPTI_FN const char *gckpti_plan_problem(const gckpt_plan *p)
{
    const size_t n = GCKPTI_RUNS_BUILT ? p->node_count : 0;
    uint64_t check = GCKPTI_FNV_START;
    if (p->format != GCKPT_PLAN_FORMAT || p->contract != GCKPT_CONTRACT)
        return "the plan was printed by another version of gradckpt.h: print it again with "
               "gckpt_plan_c";
    for (size_t i = 0; i < n; i++)
        check = gckpti_hash_plan_node(check, p, i);
    if (n && gckpti_fnv_number(check, p->hash) != p->check)
        return "the hash of the plan's graph is not what it was made with: an op or the table was "
               "changed; print it again with gckpt_plan_c";
    return p->threads >= 1 && p->threads <= 1024 && p->alignment >= sizeof(float) &&
                   !(p->alignment & (p->alignment - 1))
               ? NULL
               : "the plan has impossible threads or alignment: its table is damaged; print it "
                 "again with gckpt_plan_c";
}

/* The parts that plan p or desc d may need: X(part, condition that one of them needs it). */
#define GCKPTI_EXEC_USES(X)                                                                        \
    X(TRAINING, p->mode != GCKPT_INFERENCE) X(QUANT, p->compressed) X(OFFLOAD, p->host_bytes)      \
    X(DEVICES, d->backend) X(CACHES, d->caches_of) X(DEBUG, d->debug)

/* Returns the switch of the part that plan or desc needs and this build lacks, or NULL. */
static const char *gckpti_missing_part(const gckpt_plan *p, const gckpt_exec_desc *d)
{
#define GCKPTI_IF_MISSING(part, needs) !GCKPTI_RUNS_##part && (needs) ? "GCKPT_NO_" #part :
    return GCKPTI_EXEC_USES(GCKPTI_IF_MISSING)
           !GCKPTI_RUNS_BACKENDS && (d->custom_optimiser || d->parallel_for) ? "GCKPT_SMALL"
           : !GCKPTI_RUNS_FAST && p->backend_id == GCKPTI_BACKEND_CPU
               ? "GCKPT_NO_FAST (plan with desc.kernels.plain = 1)"
               : NULL;
}

static gckpt_result gckpti_check_exec_desc(gckpt_store *s, const gckpt_plan *p,
                                           const gckpt_exec_desc *d)
{
    const gckpti_range ranges[] = { { "isa", (int)d->isa, 0, GCKPT_ISA_COUNT - 1 },
                                    { "debug", (int64_t)d->debug, 0, 2 * GCKPT_DEBUG_FINITE - 1 } };
    if (!gckpti_check_ranges(s, "exec", ranges, sizeof ranges / sizeof *ranges))
        return GCKPT_E_ARG;
    const char *problem = p ? NULL : "the plan is NULL (see gckpt_error_text of its graph)";
    if (!problem && !p->block) /* a constant of the program */
        problem = gckpti_plan_problem(p);
    if (!problem && p->optimiser == GCKPT_CUSTOM_OPTIMISER && p->mode != GCKPT_INFERENCE &&
        !d->custom_optimiser)
        problem = "the plan has GCKPT_CUSTOM_OPTIMISER; desc.custom_optimiser is missing: set it "
                  "to your update function";
    if (!problem && d->skip_nonfinite && p->update_in_backward)
        problem = "skip_nonfinite needs all gradients before the first update; this plan updates "
                  "in the backward (desc.update_in_backward)";
    if (problem)
        return gckpti_error(s, GCKPT_E_ARG, "exec: %s", problem);
    const char *missing = gckpti_missing_part(p, d);
    if (missing)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan or the desc needs what %s left out of this build",
                            missing);
    return GCKPT_OK;
}

/* Checks that the store's parameter q has the storage and state that parameter i of the plan needs.
 * If in_step is 0, e is being created, and its store gets the error; else e gets it. */
GCKPTI_FN gckpt_result gckpti_check_plan_param(gckpt_exec *e, int i, const gckpti_param *q,
                                               int in_step)
{
    const gckpti_plan_param *planned = &e->plan->params[i];
    const char *who = in_step ? "step" : "exec", *name = q->p.name;
    void *object = in_step ? (void *)e : e->store;
    if (GCKPTI_HAS_COMPRESSED && planned->storage != (gckpti_byte)q->p.storage)
        return gckpti_error(object, GCKPT_E_ARG,
                            "%s: \"%s\" is stored as %s, the plan was made for %s: quantise it "
                            "so (gckpt_store_quantise), or make a new plan",
                            who, name, gckpti_kind_of((int)q->p.storage)->name,
                            gckpti_kind_of(planned->storage)->name);
    if ((planned->trained || planned->running) && q->p.frozen)
        return gckpti_error(object, GCKPT_E_ARG,
                            "%s: \"%s\" was frozen after planning; make a new plan", who, name);
    const int resized = q->p.state[0] && q->p.state_bytes != planned->state_bytes;
    if (planned->slots &&
        (resized || (q->optimiser && q->optimiser != (int)e->plan->optimiser + 1)))
        return gckpti_error(
            object, GCKPT_E_ARG, "%s: \"%s\" %s state of another %s%s; gckpt_store_reset %s", who,
            name, in_step ? "got" : "holds", resized ? "size" : "optimiser",
            in_step ? " after this executor was made" : "",
            resized ? "frees it (on the heap, and when no executor uses the store)" : "clears it");
    if (GCKPTI_HAS_COMPRESSED && in_step && gckpti_state_slots(q) < planned->slots)
        return gckpti_error(e, GCKPT_E_ARG,
                            "step: \"%s\" lost its state as it was quantised; make a new executor",
                            name);
    return GCKPT_OK;
}

/* Finds the plan's parameters in the store, and checks them. Without tables, only checks. */
static gckpt_result gckpti_bind_params(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->param_count; i++) {
        const char *name = p->names + p->params[i].name;
        int index = gckpti_find_param(e->store, name);
        if (index < 0 || e->store->params[index].p.elements != p->params[i].elements)
            return gckpti_error(
                e->store, GCKPT_E_ARG,
                "exec: the store has no parameter \"%s\" of %I elements; the plan was "
                "made for another store (gckpt_plan_params creates what is missing)",
                name, p->params[i].elements);
        if (gckpti_check_plan_param(e, (int)i, &e->store->params[index], 0) != GCKPT_OK)
            return GCKPT_E_ARG;
        if (!GCKPTI_RUNS_TRAINING && !gckpti_has_values(&e->store->params[index]) &&
            gckpti_is_random(&e->store->params[index].init))
            return gckpti_error(e->store, GCKPT_E_ARG,
                                "exec: \"%s\" has no values, and GCKPT_NO_TRAINING cannot "
                                "initialise it: load it, or write values (gckpt_store_get) before",
                                name);
        if (!e->tables.params)
            continue;
        e->tables.params[i].index = index;
        e->tables.params[i].slots_before = gckpti_state_slots(&e->store->params[index]);
        size_t at = i;
        for (; at > 0 && e->tables.params[e->tables.params[at - 1].store_order].index > index; at--)
            e->tables.params[at].store_order = e->tables.params[at - 1].store_order;
        e->tables.params[at].store_order = (int)i;
    }
    return GCKPT_OK;
}

/* Returns store.memory.used as it would be with the missing values and states. */
static size_t gckpti_store_bytes_needed(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_store *s = e->store;
    size_t used = s->memory.used;
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = gckpti_param_of(e, e->tables.params[i].store_order);
        gckpti_count_alloc(&used, !gckpti_has_values(q), gckpti_array_bytes(s, q, 0));
    }
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = gckpti_param_of(e, (int)i);
        const size_t bytes = p->params[i].state_bytes;
        int slot = e->tables.params[i].slots_before;
        for (; GCKPTI_RUNS_TRAINING && slot < p->params[i].slots; slot++)
            gckpti_count_alloc(&used, bytes ? bytes : gckpti_array_bytes(s, q, 1), 1);
    }
    return used;
}

/* Checks that the heap has the bytes of the missing values and states, by one allocation of all: a
 * system that overcommits memory refuses it if it is impossible, but would grant many small ones
 * and end the program when it writes to them. */
static gckpt_result gckpti_check_heap(gckpt_exec *e)
{
    gckpti_allocator *a = &e->store->memory;
    if (sizeof(size_t) <= 4 || a->desc.memory || a->desc.resize)
        return GCKPT_OK;
    const size_t bytes = gckpti_store_bytes_needed(e) - a->used;
    void *all = bytes ? gckpti_resize(a, NULL, 0, bytes) : NULL;
    gckpti_delete(a, all, bytes, 1);
    return all || !bytes ? GCKPT_OK
                         : gckpti_error(e->store, GCKPT_E_MEMORY,
                                        "exec: no memory for the %z bytes of values and optimiser "
                                        "state that the plan's parameters still need",
                                        bytes);
}

/* Allocates the missing values and optimiser states (all or none), then initialises the values. */
static gckpt_result gckpti_bind_state(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpt_store *s = e->store;
    gckpt_result result = GCKPT_OK;
    size_t states = 0;
    if (GCKPTI_RUNS_BACKENDS) /* firmware has no heap that overcommits */
        result = gckpti_check_heap(e);
    for (size_t i = 0; i < p->param_count && result == GCKPT_OK; i++)
        result = gckpti_values_new(s, gckpti_param_of(e, e->tables.params[i].store_order), "exec");
    for (; states < p->param_count && result == GCKPT_OK; states++) {
        gckpti_param *q = gckpti_param_of(e, (int)states);
        const int slots = p->params[states].slots;
        if (slots) /* a state that it has already is of this size */
            q->p.state_bytes = p->params[states].state_bytes;
        const size_t size = gckpti_array_bytes(s, q, 1);
        if (GCKPTI_RUNS_TRAINING && !gckpti_ensure_state(s, q, slots))
            result = gckpti_error(s, GCKPT_E_MEMORY,
                                  "exec: no memory for the optimiser state "
                                  "of \"%s\": %i times %z bytes",
                                  q->p.name, slots, size);
    }
    if (result == GCKPT_OK) {
        gckpti_init_all_values(s);
        return GCKPT_OK;
    }
    while (GCKPTI_RUNS_TRAINING && states-- > 0)
        gckpti_state_shrink(s, gckpti_param_of(e, (int)states),
                            e->tables.params[states].slots_before);
    gckpti_values_undo(s);
    gckpti_hint_block(s, "store", &s->memory,
                      gckpti_count_block(gckpti_store_bytes_needed(e) + s->memory.name_bytes));
    return result;
}

/* Completes a new executor. Returns 0, with an error, if it failed. */
static int gckpti_bind_exec(gckpt_exec *e)
{
    if (gckpti_choose_backend(e) != GCKPT_OK || gckpti_bind_params(e) != GCKPT_OK)
        return 0;
    const gckpt_result memory = gckpti_alloc_exec(e);
    if (memory == GCKPT_E_MEMORY)
        gckpti_hint_block(e->store, "executor", &e->memory, gckpt_exec_need(e->plan, &e->desc));
    if (memory != GCKPT_OK || gckpti_bind_params(e) != GCKPT_OK ||
        gckpti_notify(e, GCKPTI_ON_BIND, NULL) != GCKPT_OK || gckpti_bind_state(e) != GCKPT_OK)
        return 0;
    if (GCKPTI_RUNS_BACKENDS)
        gckpti_bind(e->store, &e->device.binding,
                    GCKPTI_OF(gckpti_backend(e), own_memory) ? e->desc.backend : NULL);
    if (GCKPTI_RUNS_DEVICES) {
        for (size_t i = 0; i < e->plan->param_count; i++)
            if (gckpti_sync_param(e, gckpti_param_of(e, (int)i), 0) != GCKPT_OK)
                return 0;
    }
    e->store->bound = 1;
    return 1;
}

GCKPT_API gckpt_exec *gckpt_exec_new(const gckpt_plan *plan, gckpt_store *store,
                                     const gckpt_exec_desc *desc)
{
    gckpt_exec_desc d;
    memset(&d, 0, sizeof d);
    d = desc ? *desc : d;
    if (!store || gckpti_check_exec_desc(store, plan, &d) != GCKPT_OK)
        return NULL;
    gckpti_allocator a = gckpti_allocator_of(&d.memory);
    gckpt_exec *e = (gckpt_exec *)gckpti_new(&a, 1, sizeof *e);
    if (!e) {
        gckpti_error(store, GCKPT_E_MEMORY, "exec: no memory for %z bytes", sizeof *e);
        gckpti_hint_block(store, "executor", &a, gckpt_exec_need(plan, desc));
        return NULL;
    }
    e->object.magic = GCKPTI_MAGIC;
    e->memory = a;
    e->plan = plan;
    e->store = store;
    e->desc = d;
    e->device.runner.parallel_for = d.parallel_for;
    e->device.runner.user = d.user;
    if (!gckpti_bind_exec(e)) {
        gckpt_exec_free(e);
        return NULL;
    }
    /* to start and end a team takes 100 us, and is not worth it in shorter steps */
    const int worth = (double)plan->cost * (double)plan->batch / (double)plan->rows >= 5e7;
    const int teams = GCKPTI_RUNS_BACKENDS && !GCKPTI_OF(gckpti_backend(e), own_memory) && worth;
    e->device.team = teams ? plan->threads : 1;
    e->update.writes_back |= (unsigned char)(plan->optimiser == GCKPT_CUSTOM_OPTIMISER);
    e->update.all_first |= (unsigned char)(d.skip_nonfinite != 0);
    gckpti_ok(store);
    return e;
}

GCKPT_API void gckpt_exec_free(gckpt_exec *exec)
{
    if (!exec)
        return;
    gckpti_allocator a = exec->memory;
    (void)gckpti_notify(exec, GCKPTI_ON_FREE, NULL);
    gckpti_unbind(&exec->device.binding);
    gckpti_delete(&a, exec->blocks.host, exec->blocks.host_size, 1);
    gckpti_delete(&a, exec, 1, sizeof *exec);
}
