#include "plan/own.h"
#include "graph/graph.h"

/* ---- the model: what gets a gradient, what ops ask for, units and their links ---- */
GCKPTI_FN void gckpti_find_active(gckpti_planner *p)
{
    const gckpt_plan_desc *d = p->desc;
    unsigned char *reach = (unsigned char *)gckpti_scratch_take(&p->scratch, (size_t)p->n, 1);
    memset(p->active, 0, (size_t)p->n);
    for (int i = 0; i < p->term_count && reach; i++)
        reach[p->terms[i].loss->id] = 1;
    for (int i = p->n; i-- > 0 && reach;) {
        const gckpt_tensor *t = p->tensors[i];
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++)
            if (reach[i] && t->op->backward)
                reach[t->in[k]->base->id] = 1;
    }
    for (int i = 0; i < d->fetches && reach && !p->inference; i++) {
        const gckpt_tensor *t = d->fetch[i].tensor;
        if (t && t->graph == p->g && d->fetch[i].gradient && t->type == GCKPT_F32)
            p->active[t->base->id] = reach[t->base->id] ? GCKPTI_WANTED : 0;
    }
    for (int i = 0; i < p->n && reach; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind == GCKPTI_PARAM && !p->inference && !p->g->store->params[t->index].p.frozen)
            p->active[i] = reach[i] ? GCKPTI_WANTED : 0;
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++)
            if (reach[i] && t->op->backward && p->active[t->in[k]->base->id])
                p->active[i] = GCKPTI_WANTED | GCKPTI_RUNS;
    }
}

/* x * a / b, cut down, for a / b that is not much more than 1; b > 0. */
static uint64_t gckpti_in_proportion(uint64_t x, uint64_t a, uint64_t b)
{
    for (; a >> 31 || b >> 31; a /= 2)
        b = b / 2 + (b < 2);
    return x / b * a + x % b * a / b;
}

/* What op t, a form, would cost by desc.costs, which are of the graph as it was built: as much as
 * what it runs in place of, in proportion to the model's. */
static gckpt_cost gckpti_form_cost(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_tensor *gone = p->g->tensors[t->id]->in[0]->base;
    const gckpt_cost *given = p->desc->costs, *model = p->built_model, *own = &p->model[t->id];
    uint64_t before = model[t->id].forward + model[t->id].backward;
    uint64_t cost = gckpti_add_work(given[t->id].forward, given[t->id].backward);
    if (gone != t->in[0]->base) {
        before += model[gone->id].forward + model[gone->id].backward;
        cost = gckpti_add_work(cost,
                               gckpti_add_work(given[gone->id].forward, given[gone->id].backward));
    }
    gckpt_cost c = { gckpti_in_proportion(cost, own->forward, before),
                     gckpti_in_proportion(cost, own->backward, before) };
    return c;
}

GCKPTI_FN gckpt_result gckpti_ask_op(gckpti_planner *p, const gckpt_tensor *t)
{
    int i = t->id, mixes;
    uint16_t narrow;
    gckpt_call call;
    gckpt_result result;
    const gckpt_backend *b = p->desc->backend;
    gckpt_precision precision;
    if (p->desc->precision == GCKPT_BF16_FAST && b->find_fast(b->context, t->op, GCKPT_FORWARD))
        p->rounding[i] |= GCKPTI_FAST_OP;
    do { /* once more where the backend declines it */
        precision = gckpti_op_precision(p->rounding[i], t->batchless, p->desc->precision);
        result = gckpti_shape_call(t->op, t->in, t->inputs, t->attributes, 1, p->threads, p->plain,
                                   precision, NULL, &call);
        mixes = call.mixes_rows;
        for (int k = 0; k < t->inputs; k++)
            if (p->rounding[t->in[k]->base->id] & GCKPTI_NARROW_VALUE)
                call.in[k].bf16 = &narrow;
        call.out_bf16 = p->rounding[i] & GCKPTI_NARROW_VALUE ? &narrow : NULL;
        call.grad_out_bf16 = p->rounding[i] & GCKPTI_NARROW_GRADIENT ? &narrow : NULL;
        if (result == GCKPT_OK && b && b->workspace)
            result = b->workspace(b->context, t->op, &call);
        p->rounding[i] &= (unsigned char)~(call.precision == precision ? 0 : GCKPTI_FAST_OP);
    } while (result == GCKPT_OK && precision == GCKPT_BF16_FAST && call.precision != precision);
    if (result != GCKPT_OK && p->desc->backend)
        return gckpti_graph_error(p->g, result, "%T: backend %s does not plan it", t,
                                  p->desc->backend->name);
    if (result != GCKPT_OK || call.work_forward > PTRDIFF_MAX / 4 ||
        call.work_backward > PTRDIFF_MAX / 4)
        return gckpti_graph_error(p->g, GCKPT_E_SHAPE, "%T: cannot be planned for %i threads", t,
                                  p->threads);
    if (p->active[i] & GCKPTI_RUNS && call.mixes_rows > mixes)
        p->rounding[i] |= GCKPTI_MIXES;
    p->work_forward[i] = call.work_forward;
    p->work_backward[i] = call.work_backward;
    size_t forward = gckpti_copy_bytes(p, t, 0);
    size_t backward = p->active[i] & GCKPTI_RUNS ? gckpti_copy_bytes(p, t, 1) : 0;
    p->work_forward[i] += call.work_forward ? gckpti_round_up(forward, 64) : forward;
    p->work_backward[i] += call.work_backward ? gckpti_round_up(backward, 64) : backward;
    call.shape = t->shape;
    p->model[i] = gckpti_model_cost(p, t, &call);
    p->cost[i] = !p->desc->costs                           ? p->model[i]
                 : p->built_model && t != p->g->tensors[i] ? gckpti_form_cost(p, t)
                                                           : p->desc->costs[i];
    return GCKPT_OK;
}

/* Whether an op finds a tensor in the arena, since a unit makes it. */
static int gckpti_in_arena(const gckpti_planner *p, const gckpt_tensor *t)
{
    return t->kind == GCKPTI_OP ? !gckpti_is_cache(t->op) : gckpti_is_staged(p, t);
}

/* Marks, by id, what any schedule computes: what backwards, losses, side effects and fetches read,
 * and what that reads in turn. */
static void gckpti_find_needed(const gckpti_planner *p, unsigned char *needed)
{
    for (int i = 0; i < p->term_count; i++)
        needed[p->terms[i].loss->id] = 1;
    for (int i = 0; i < p->desc->fetches; i++)
        if (!p->desc->fetch[i].gradient)
            needed[p->desc->fetch[i].tensor->base->id] = 1;
    for (int i = p->n; i-- > 0;) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind != GCKPTI_OP)
            continue;
        unsigned mask = p->active[i] & GCKPTI_RUNS ? gckpti_needs(p, t) : 0;
        if (t->op->flags & GCKPT_SIDE_EFFECT && !gckpti_is_loss(t))
            needed[i] = 1;
        needed[i] |= mask & GCKPT_OUT || (mask & GCKPT_AUX && t->aux_bytes > 0);
        for (int k = 0; k < t->inputs; k++)
            needed[t->in[k]->base->id] |= needed[i] || mask & GCKPT_IN(k);
    }
}

/* Adds a link to a unit, unless it is among those from `first` on. Returns its place there. */
static int gckpti_add_link(gckpti_planner *p, int first, int unit)
{
    int at = first;
    while (at < p->link_count && p->links[at] != unit)
        at++;
    if (at == p->link_count)
        p->links[p->link_count++] = unit;
    return at - first;
}

/* What unit u, an op, reads: its forward, its backward; what it may replace. */
static void gckpti_link_unit(gckpti_planner *p, gckpti_unit *u, const gckpt_tensor *t)
{
    unsigned mask = p->active[u->id] & GCKPTI_RUNS ? gckpti_needs(p, t) : 0;
    u->in = p->link_count;
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k]->base;
        if (!gckpti_in_arena(p, q))
            continue;
        int at = gckpti_add_link(p, u->in, p->of[q->id]);
        if (t->op->flags & GCKPT_INPLACE(k) &&
            gckpti_value_bytes(p, q) == gckpti_value_bytes(p, t) &&
            gckpti_elements(&q->shape) == gckpti_elements(&t->shape))
            u->in_place |= (unsigned char)(1u << at);
    }
    u->inputs = p->link_count - u->in;
    u->read = p->link_count;
    for (int k = 0; k < t->inputs; k++)
        if (mask & GCKPT_IN(k) && gckpti_in_arena(p, t->in[k]->base))
            gckpti_add_link(p, u->read, p->of[t->in[k]->base->id]);
    if (mask & GCKPT_OUT)
        gckpti_add_link(p, u->read, p->of[u->id]);
    u->reads = p->link_count - u->read;
    u->reads_aux = mask & GCKPT_AUX && t->aux_bytes > 0;
}

/* Appends tensor t, an op or a staged parameter, to the units; prologue: it is computed there. */
static void gckpti_add_unit(gckpti_planner *p, const gckpt_tensor *t, int prologue)
{
    gckpti_unit *u = &p->unit[p->units];
    int effect = t->op && t->op->flags & GCKPT_SIDE_EFFECT;
    u->id = t->id;
    u->rank = p->active[t->id] & GCKPTI_RUNS ? 0 : -1;
    u->out = gckpti_is_loss(t) || gckpti_is_cache(t->op)
                 ? 0
                 : gckpti_model_size(p, gckpti_value_bytes(p, t));
    u->aux = gckpti_model_size(p, t->aux_bytes);
    u->work = gckpti_model_size(p, p->work_forward[t->id]);
    u->cost = p->cost[t->id].forward;
    u->fixed = prologue || t->keep || effect;
    u->recompute = (unsigned char)(t->recompute && !u->fixed);
    p->pinned += u->recompute;
    u->effect = (unsigned char)effect;
    u->offloads = p->far > 0 && !prologue && t->op && !u->recompute;
    p->offloads = p->offloads || u->offloads;
    p->note[p->units].out = u->out;
    p->note[p->units].aux = u->aux;
    p->of[t->id] = p->units++;
    if (t->kind == GCKPTI_OP)
        gckpti_link_unit(p, u, t);
}

/* The units of one part: of the prologue, which depends on parameters only and is computed once a
 * step, or of the body. A staged parameter stands before its first reader, and belongs to the
 * prologue if that does. */
static void gckpti_add_part(gckpti_planner *p, int prologue, const unsigned char *needed)
{
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind != GCKPTI_OP || t->batchless != prologue)
            continue;
        for (int k = 0; k < t->inputs && needed[i]; k++) {
            const gckpt_tensor *q = t->in[k]->base;
            if (!gckpti_is_staged(p, q) || p->of[q->id] >= 0)
                continue;
            const gckpt_parameter *stored = &p->g->store->params[q->index].p;
            const uint64_t moved = (uint64_t)gckpti_values_bytes(stored) + gckpti_value_bytes(p, q);
            const gckpt_cost copy = { 10 * moved + GCKPTI_INSTRUCTION_WORK, 0 };
            p->cost[q->id] = p->desc->costs ? p->desc->costs[q->id] : copy;
            if (gckpti_is_gathered(p, q)) {
                size_t bytes = gckpti_value_bytes(p, q) - gckpti_share_bytes(p, q);
                p->cost[q->id].forward = gckpti_add_work(
                    p->cost[q->id].forward, gckpti_copy_work(p->desc->link_work, (int64_t)bytes));
            }
            gckpti_add_unit(p, q, prologue);
            if (!prologue)
                p->body[p->body_count++] = q->id;
        }
        if (needed[i])
            gckpti_add_unit(p, t, prologue);
        if (!prologue)
            p->body[p->body_count++] = i;
    }
}

GCKPTI_FN void gckpti_model_units(gckpti_planner *p)
{
    unsigned char *needed = (unsigned char *)gckpti_scratch_take(&p->scratch, (size_t)p->n, 1);
    size_t links = 0;
    for (int i = 0; i < p->n; i++)
        links += p->tensors[i]->kind == GCKPTI_OP ? 2 * (size_t)p->tensors[i]->inputs + 1 : 0;
    p->links = (int *)gckpti_scratch_take(&p->scratch, links, sizeof(int));
    if (p->failed)
        return;
    gckpti_find_needed(p, needed);
    memset(p->of, 0xff, (size_t)p->n * sizeof(int));
    gckpti_add_part(p, 1, needed);
    p->prologue = p->units;
    int body = p->link_count;
    gckpti_add_part(p, 0, needed);
    for (int k = body; k < p->link_count && p->looped; k++)
        p->note[p->links[k]].held = p->links[k] < p->prologue;
    for (int i = 0; i < p->term_count; i++)
        p->unit[p->of[p->terms[i].loss->id]].effect = 1;
    for (int i = 0; i < p->desc->fetches; i++)
        if (!p->desc->fetch[i].gradient)
            p->unit[p->of[p->desc->fetch[i].tensor->base->id]].fetched = 1;
    gckpti_list_uses(p);
    if (!p->failed)
        gckpti_order_backwards(p);
}
