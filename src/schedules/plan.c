#if !defined(GCKPT_NO_SCHEDULES) && !defined(GCKPT_SMALL)
#include "plan/internal.h"
#include "graph/graph.h"

static const char *const gckpti_kind_names[] = { GCKPT_KIND_NAMES };

/* ---- GCKPT_SCHEDULE: order of backwards and body of a schedule that the user gives ---- */
/* Returns whether the body's backward u may come next in the user's order: backwards of all users
 * of its result have run, as have those that add to one of its gradients before it. Of a sum over
 * uses the first two may change places; if the plan accumulates, all may. */
static int gckpti_is_next(const gckpti_planner *p, int u)
{
    const gckpti_node *q = &p->node[u];
    const gckpt_tensor *t = p->tensors[q->id];
    for (int k = p->first_use[q->id]; k >= 0 && gckpti_is_in_body(p, k); k = p->target[k].next)
        if (p->node[p->target[k].node].backward_index == INT32_MAX)
            return 0;
    for (int i = 0; i < t->inputs; i++) {
        const gckpt_tensor *in = t->in[i]->base;
        int n = 0, waits = 0;
        for (int k = p->first_use[in->id]; k != q->target + i; k = p->target[k].next, n++)
            waits |=
                p->target[k].node != u && p->node[p->target[k].node].backward_index == INT32_MAX;
        if (waits && p->active[in->id] && !(gckpti_is_use_sum(in) && (p->accumulates || n == 1)))
            return 0;
    }
    return 1;
}

/* Checks the instructions of the user's schedule, and takes its order of backwards. */
static gckpt_result gckpti_order_user(gckpti_planner *p)
{
    if (!p->desc->schedule.instructions || p->desc->schedule.count <= 0)
        return gckpti_error(
            p->g, GCKPT_E_ARG,
            "plan: GCKPT_SCHEDULE needs desc.schedule.instructions and, as its length, "
            "desc.schedule.count; they are %s and %i",
            p->desc->schedule.instructions ? "there" : "NULL", p->desc->schedule.count);
    for (int i = 0; i < p->desc->schedule.count; i++) {
        const gckpt_instruction in = p->desc->schedule.instructions[i];
        const gckpt_tensor *t = in.id < 0 || in.id >= p->n ? NULL : p->tensors[in.id];
        const int copies = t && gckpti_is_staged(p, t) && in.kind == GCKPT_FORWARD;
        if (!copies &&
            (!t || t->kind != GCKPTI_OP || in.kind == GCKPT_UPDATE || in.kind == GCKPT_REDUCE ||
             (unsigned)in.kind >= GCKPT_BEGIN)) /* this and later kinds are added by lowering */
            return gckpti_error(p->g, GCKPT_E_ARG,
                                "schedule: instruction %i: id %i is no op that its kind can run", i,
                                in.id);
        const int u = p->node_of[in.id];
        if (in.kind > GCKPT_UPDATE && u >= 0 && !p->node[u].can_copy)
            return gckpti_error(
                p->g, GCKPT_E_ARG,
                "schedule: instruction %i: %T cannot be offloaded: desc.offload.bytes is 0, "
                "update_in_backward is set, the tensor has gckpt_recompute, or it depends on "
                "parameters only",
                i, t);
        if (in.kind == GCKPT_FORWARD && u >= p->prologue && gckpti_is_loss(t)) {
            if (!p->computed[u] && p->backwards > 0 && p->desc->update_in_backward)
                return gckpti_error(p->g, GCKPT_E_ARG,
                                    "schedule: instruction %i: %T is a loss, and comes after a "
                                    "backward; with update_in_backward all losses come first",
                                    i, t);
            p->computed[u] = 1;
        }
        if (in.kind != GCKPT_BACKWARD || u < p->prologue || p->node[u].backward_index < 0)
            continue;
        if (p->node[u].backward_index != INT32_MAX || !gckpti_is_next(p, u))
            return gckpti_error(p->g, GCKPT_E_ARG,
                                "schedule: instruction %i: backward of %T is repeated, or precedes "
                                "that of one of its readers, or of an op that adds to the same "
                                "gradient first (readers in reverse order of creation)",
                                i, t);
        p->node[u].backward_index = p->backwards;
        p->backward[p->backwards++] = u;
    }
    return GCKPT_OK;
}

/* Copies the user's schedule, and adds missing staged parameters before their first reader. */
static gckpt_result gckpti_build_user(gckpti_planner *p)
{
    enum { FORWARD = 1 << GCKPT_FORWARD, BACKWARD = 1 << GCKPT_BACKWARD };
    unsigned char *seen = (unsigned char *)gckpti_scratch_alloc(&p->scratch, (size_t)p->n, 1);
    for (int i = 0; i < p->desc->schedule.count && seen; i++) {
        const gckpt_instruction in = p->desc->schedule.instructions[i];
        const gckpt_tensor *t = p->tensors[in.id];
        for (int k = 0; k < t->inputs; k++) {
            int q = t->in[k]->base->id;
            if (!gckpti_is_staged(p, p->tensors[q]))
                continue;
            if (p->node_of[q] >= p->prologue && !seen[q])
                gckpti_emit(p, p->node_of[q]);
            seen[q] = 1;
        }
        int u = p->node_of[in.id];
        seen[in.id] |= (unsigned char)(1 << in.kind);
        if (u >= p->prologue && in.kind == GCKPT_BACKWARD && p->node[u].backward_index >= 0)
            gckpti_emit(p, ~u);
        for (int entry = u; u >= p->prologue && entry < 3 * p->nodes; entry += p->nodes)
            if (gckpti_entry_kind(p, entry) == in.kind) /* some kinds have no entry */
                gckpti_emit(p, entry);
    }
    for (int u = p->prologue; u < p->nodes && seen; u++) {
        const gckpti_node *q = &p->node[u];
        int required = q->backward_index >= 0 ? FORWARD | BACKWARD : q->side_effect || q->fetched;
        if ((seen[q->id] & required) != required)
            return gckpti_error(p->g, GCKPT_E_ARG, "schedule: %T needs a forward%s",
                                p->tensors[q->id], q->backward_index >= 0 ? " and a backward" : "");
    }
    return GCKPT_OK;
}

/* Checks that all values are computed before they are read. */
static gckpt_result gckpti_check_reads(gckpti_planner *p, const gckpti_schedule *s)
{
    memset(p->computed, 0, (size_t)p->nodes);
    for (int x = 0; x < s->length; x++) {
        int i = s->entry[x], self = gckpti_entry_node(p, i), count;
        int needs_self = i >= p->nodes || (i < 0 && p->node[self].reads_saved);
        int missing = needs_self && !p->computed[self] ? self : -1;
        for (const int *edges = gckpti_entry_reads(p, i, &count); count-- > 0;)
            missing = p->computed[edges[count]] ? missing : edges[count];
        if (missing >= 0)
            return gckpti_error(p->g, GCKPT_E_ARG,
                                "schedule: %s of %T reads %T before any forward of it",
                                gckpti_kind_names[gckpti_entry_kind(p, i)],
                                p->tensors[p->node[self].id], p->tensors[p->node[missing].id]);
        p->computed[self] |= i == self;
    }
    return GCKPT_OK;
}

/* ---- gckpt_recompute: values that are recomputed for the backwards ---- */
/* Appends to s the forwards of dropped values (gckpt_recompute) that an entry reads, and of dropped
 * values that these forwards read; inputs before users. */
static void gckpti_recompute_dropped(gckpti_planner *p, int entry, gckpti_schedule *s)
{
    const int first = s->length;
    int count = 0, reads;
    for (int i = -1; i < count; i++) {
        const int reader = i < 0 ? entry : p->queue[i];
        const int *edges = gckpti_entry_reads(p, reader, &reads);
        const int saved = reader < 0 && p->node[~reader].reads_saved;
        for (int k = 0; k < reads + saved; k++) {
            const int u = k < reads ? edges[k] : ~reader;
            if (p->state[u].dropped)
                p->queue[count++] = u;
            p->state[u].dropped = 0;
        }
    }
    for (int i = 0; i < count; i++) {
        int x = s->length++;
        for (; x > first && s->entry[x - 1] > p->queue[i]; x--)
            s->entry[x] = s->entry[x - 1];
        s->entry[x] = p->queue[i];
    }
}

/* From the first backward on, recomputes values of gckpt_recompute for readers, unless the schedule
 * does. Each value is recomputed at most once. */
static void gckpti_add_recomputes(gckpti_planner *p, gckpti_schedule *s)
{
    const int length = s->length, *entry = s->entry + p->recompute_count;
    int backward_seen = 0, firsts = 0;
    memmove(s->entry + p->recompute_count, s->entry, (size_t)length * sizeof *entry);
    gckpti_reset_states(p);
    s->length = 0;
    for (int x = 0; x < length; x++) {
        const int i = entry[x], u = gckpti_entry_node(p, i);
        if (i < 0 && !backward_seen++)
            for (int k = p->prologue; k < p->nodes; k++)
                p->state[k].dropped = p->node[k].must_recompute && p->state[k].start < firsts;
        if (backward_seen)
            gckpti_recompute_dropped(p, i, s);
        if (i >= 0) {
            firsts = p->state[u].start < 0 ? s->length + 1 : firsts;
            p->state[u].start = s->length;
            p->state[u].dropped = 0;
        }
        s->entry[s->length++] = i;
    }
}

GCKPTI_PASSES(schedules)
{
    gckpti_node *u = (gckpti_node *)arg;
    if (stage == GCKPTI_PASS_NODE) {
        u->must_recompute = (unsigned char)(p->tensors[u->id]->must_recompute && !u->runs_once);
        p->recompute_count += u->must_recompute;
    }
    if (stage == GCKPTI_PASS_POLICY)
        gckpti_add_recomputes(p, (gckpti_schedule *)arg);
    if (p->desc->mode != GCKPT_SCHEDULE)
        return GCKPT_OK;
    return stage == GCKPTI_PASS_ORDER      ? gckpti_order_user(p)
           : stage == GCKPTI_PASS_BODY     ? gckpti_build_user(p)
           : stage == GCKPTI_PASS_SCHEDULE ? gckpti_check_reads(p, (const gckpti_schedule *)arg)
                                           : GCKPT_OK;
}
#endif
