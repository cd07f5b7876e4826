#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- the model: what gets a gradient, what ops ask for, units and their links ---- */
/* Takes what lives as long as a planner of p->n tensors. 0: no memory. */
static int gckpti_model_memory(gckpti_planner *p)
{
    gckpti_scratch *s = &p->scratch;
    size_t n = (size_t)p->n, units = 0;
    for (size_t i = 0; i < n; i++)
        units += p->g->tensors[i]->kind == GCKPTI_OP || gckpti_is_staged(p, p->g->tensors[i]);
    *s = gckpti_scratch_new(p->memory, &p->failed);
    p->tensors =
        (const gckpt_tensor **)gckpti_scratch_copy(s, p->g->tensors, n, sizeof *p->tensors);
    p->active = (unsigned char *)gckpti_scratch_take(s, n, 1);
    p->rounding = (unsigned char *)gckpti_scratch_take(s, n, 1);
    p->work_forward = (size_t *)gckpti_scratch_take(s, n, sizeof(size_t));
    p->work_backward = (size_t *)gckpti_scratch_take(s, n, sizeof(size_t));
    p->cost = (gckpt_cost *)gckpti_scratch_take(s, n, sizeof *p->cost);
    p->model = (gckpt_cost *)gckpti_scratch_take(s, n, sizeof *p->model);
    p->body = (int *)gckpti_scratch_take(s, units, sizeof(int));
    p->unit = (gckpti_unit *)gckpti_scratch_take(s, units, sizeof *p->unit);
    p->of = (int *)gckpti_scratch_take(s, n, sizeof(int));
    p->backward = (int *)gckpti_scratch_take(s, units, sizeof(int));
    p->first_use = (int *)gckpti_scratch_take(s, n, sizeof(int));
    p->whole = (int *)gckpti_scratch_take(s, n, sizeof(int));
    p->note = (gckpti_note *)gckpti_scratch_take(s, units, sizeof *p->note);
    p->queue = (int *)gckpti_scratch_take(s, units, sizeof(int));
    p->computed = (unsigned char *)gckpti_scratch_take(s, units, 1);
    return !p->failed;
}

/* Which tensors get a gradient: they reach a loss and are picked, or depend on a trainable
 * parameter or on what is picked. Which backwards run: those of which an input gets one. */
static void gckpti_find_active(gckpti_planner *p)
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
GCKPTI_FN uint64_t gckpti_in_proportion(uint64_t x, uint64_t a, uint64_t b)
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

/* The work of op t by the roofline model (Williams 2009): flops, or 10 x bytes moved when that is
 * more, + what an instruction costs however small it is (about 100 ns where a flop is 7 ps);
 * integers, so that a plan is the same on every machine. A backward does the forward's flops for
 * one or two of its inputs (as a matmul does), or what the op says; it moves what it reads, the
 * gradient that comes in and those that go out. */
static gckpt_cost gckpti_model_cost(const gckpti_planner *p, const gckpt_tensor *t,
                                    gckpt_call *call)
{
    uint64_t flops = t->op->flops ? t->op->flops(call) : (uint64_t)gckpti_elements(&t->shape);
    uint64_t out = gckpti_value_bytes(p, t), forward = out, backward = out;
    unsigned needs = gckpti_needs(p, t), gradients = 0;
    float wanted;
    for (int k = 0; k < t->inputs; k++) {
        forward += gckpti_value_bytes(p, t->in[k]);
        backward += needs & GCKPT_IN(k) ? gckpti_value_bytes(p, t->in[k]) : 0;
        if (!p->active[t->in[k]->base->id])
            continue;
        gradients++;
        call->in[k].grad = &wanted;
        backward += t->op->flags & GCKPT_PASSES_GRAD(k) ? 0 : gckpti_gradient_bytes(p, t->in[k]);
    }
    backward += needs & GCKPT_OUT ? out : 0;
    gckpt_cost cost = { flops > 10 * forward ? flops : 10 * forward, 0 };
    if (gckpti_is_loss(t) && t->op->flags & GCKPTI_LATE && gckpti_head_once(call))
        cost.forward = 0; /* the backward does it all */
    cost.forward += GCKPTI_INSTRUCTION_WORK;
    if (gradients == 0)
        return cost;
    flops =
        t->op->flops_backward ? t->op->flops_backward(call) : gckpti_gradients_flops(call, flops);
    cost.backward = (flops > 10 * backward ? flops : 10 * backward) + GCKPTI_INSTRUCTION_WORK;
    return cost;
}

/* Asks op t for its workspace at this thread count and its work. */
static gckpt_result gckpti_ask_op(gckpti_planner *p, const gckpt_tensor *t)
{
    int i = t->id, mixes;
    uint16_t narrow;
    gckpt_call call;
    gckpt_result result;
    const gckpt_backend *b = p->desc->backend;
    gckpt_precision precision = t->batchless ? GCKPT_FP32 : p->desc->precision;
    if (precision == GCKPT_BF16_FAST && !b->find_fast(b->context, t->op, GCKPT_FORWARD))
        precision = GCKPT_BF16;
    for (;;) {
        call = gckpti_shape_call(t->in, t->inputs, t->attributes);
        call.threads = p->threads;
        call.plain = p->plain;
        call.precision = precision;
        result = t->op->shape(&call);
        mixes = call.mixes_rows;
        for (int k = 0; k < t->inputs; k++)
            if (p->rounding[t->in[k]->base->id] & GCKPTI_NARROW_VALUE)
                call.in[k].bf16 = &narrow;
        call.out_bf16 = p->rounding[i] & GCKPTI_NARROW_VALUE ? &narrow : NULL;
        call.grad_out_bf16 = p->rounding[i] & GCKPTI_NARROW_GRADIENT ? &narrow : NULL;
        if (result == GCKPT_OK && b && b->workspace)
            result = b->workspace(b->context, t->op, &call);
        if (result != GCKPT_OK || precision != GCKPT_BF16_FAST || call.precision == precision)
            break;
        precision = GCKPT_BF16; /* once more: the backend declines it */
    }
    if (result != GCKPT_OK && p->desc->backend)
        return gckpti_error(p->g, result, "%T: backend %s does not plan it", t,
                            p->desc->backend->name);
    p->g->other_rows = result != GCKPT_OK || call.workspace_forward > PTRDIFF_MAX / 4 ||
                  call.workspace_backward > PTRDIFF_MAX / 4;
    if (p->g->other_rows)
        return gckpti_error(p->g, GCKPT_E_SHAPE, "%T: cannot be planned for %i threads", t,
                            p->threads);
    p->g->other_rows = !p->inference && gckpti_is_single(t->op, &t->shape, 1);
    if (p->g->other_rows)
        return gckpti_error(p->g, GCKPT_E_SHAPE,
                            "plan: %T normalises one value per channel in micro-batches of %I "
                            "rows; training needs 2 or more: build it with more rows",
                            t, p->g->rows);
    if (p->active[i] & GCKPTI_RUNS && call.mixes_rows > mixes)
        p->rounding[i] |= GCKPTI_MIXES;
    p->work_forward[i] = call.workspace_forward;
    p->work_backward[i] = call.workspace_backward;
    gckpti_mark_op(p, t, precision);
    size_t forward = gckpti_copy_bytes(p, t, 0);
    size_t backward = p->active[i] & GCKPTI_RUNS ? gckpti_copy_bytes(p, t, 1) : 0;
    p->work_forward[i] += call.workspace_forward ? gckpti_round_up(forward, 64) : forward;
    p->work_backward[i] += call.workspace_backward ? gckpti_round_up(backward, 64) : backward;
    call.shape = t->shape;
    p->model[i] = gckpti_model_cost(p, t, &call);
    p->cost[i] = !p->desc->costs                           ? p->model[i]
                 : p->built_model && t != p->g->tensors[i] ? gckpti_form_cost(p, t)
                                                           : p->desc->costs[i];
    return GCKPT_OK;
}

GCKPTI_FN gckpt_result gckpti_model_ops(gckpti_planner *p)
{
    gckpt_result result = GCKPT_OK;
    if (!gckpti_model_memory(p))
        return GCKPT_E_MEMORY;
    gckpti_mark_rounding(p);
    gckpti_find_active(p);
    if (p->variant.form) {
        gckpti_take_form(p);
        if (!p->failed)
            gckpti_find_active(p);
    }
    for (int i = 0;
         i < p->n && !p->failed && result == GCKPT_OK && (p->offered || !p->variant.form); i++)
        if (p->tensors[i]->kind == GCKPTI_OP)
            result = gckpti_ask_op(p, p->tensors[i]);
    if (p->variant.bands && p->desc->precision == GCKPT_FP32 && !p->failed && result == GCKPT_OK)
        gckpti_take_bands(p);
    return p->failed ? GCKPT_E_MEMORY : result;
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
        needed[i] |= mask & GCKPT_OUT || (mask & GCKPT_SAVED && t->aux_bytes > 0);
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
    u->reads_aux = mask & GCKPT_SAVED && t->aux_bytes > 0;
}

/* Appends tensor t, an op or a staged parameter, to the units; prologue: it is computed there. */
static void gckpti_add_unit(gckpti_planner *p, const gckpt_tensor *t, int prologue)
{
    gckpti_unit *u = &p->unit[p->units];
    int effect = t->op && t->op->flags & GCKPT_SIDE_EFFECT;
    u->id = t->id;
    u->nth = p->active[t->id] & GCKPTI_RUNS ? 0 : -1;
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
                    p->cost[q->id].forward, gckpti_copy_work(p->desc->link_cost, (int64_t)bytes));
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

/* Sums of work must stay below 2^64, although the search and the makers repeat a forward for each
 * backward there is. */
static gckpt_result gckpti_check_work(const gckpti_planner *p)
{
    uint64_t most = UINT64_MAX / 2 / ((uint64_t)p->n + 1), sum = 0;
    most = most < UINT64_C(1) << 53 ? most : UINT64_C(1) << 53;
    for (int i = 0; i < p->n; i++) {
        sum = gckpti_add_work(sum, p->cost[i].forward); /* 0 for what is no op */
        sum = gckpti_add_work(sum, p->cost[i].backward);
        if (p->of[i] >= 0 && p->unit[p->of[i]].offloads)
            sum =
                gckpti_add_work(sum, 2 * gckpti_parts_work(p, p->of[i], GCKPTI_VALUE | GCKPTI_AUX));
    }
    return sum <= most ? GCKPT_OK
                       : gckpti_error(p->g, GCKPT_E_ARG,
                                      "plan: the work of all ops adds up to more than %u; %s", most,
                                      p->desc->costs || p->offloads || p->g->rows < 2
                                          ? "give costs in a larger unit (desc.costs, link_work)"
                                          : "use fewer rows, or desc.costs in a larger unit");
}

/* All units; what losses and fetches ask of them; the order of their backwards. */
static void gckpti_find_units(gckpti_planner *p)
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

/* Finds p->late, the body's forwards, each as late as it may come: before the first backward (of
 * nth is p->when) that needs it for what it reads, or for its loss; and, where its first reader is
 * far away, just before that. What one loss keeps is gone, then, before the next is computed. Side
 * effects stay where they are, and losses that updates wait for. */
static void gckpti_find_late(gckpti_planner *p)
{
    enum { APART = 8 }; /* units between it and its first reader (reader[]) */
    size_t n = (size_t)p->units, from = (size_t)p->prologue;
    int fixed = 0;
    gckpti_keyed *key = (gckpti_keyed *)gckpti_scratch_take(&p->scratch, 2 * n, sizeof *key);
    p->late = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    p->turn = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    p->when = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    int *reader = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    int *before = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int)); /* what it precedes */
    for (int u = 0; u < p->units && !p->failed; u++) {
        fixed = fixed || (p->unit[u].effect && !gckpti_is_loss(p->tensors[p->unit[u].id]));
        reader[u] = before[u] = u;
        p->when[u] = INT32_MAX;
    }
    for (int u = p->prologue; u < p->units && !p->failed; u++) { /* for what backwards read */
        const gckpti_unit *q = &p->unit[u];
        for (int k = q->read; k < q->read + q->reads && q->nth >= 0; k++)
            gckpti_lower(&p->when[p->links[k]], q->nth);
        if (q->nth >= 0 && (q->effect || q->reads_aux))
            gckpti_lower(&p->when[u], q->nth);
    }
    for (int u = p->units; u-- > p->prologue && !p->failed;) { /* for what that reads, in turn */
        const gckpti_unit *q = &p->unit[u];
        if (fixed || p->when[u] == INT32_MAX || (q->effect && p->desc->update_in_backward))
            p->when[u] = 0;
        before[u] = fixed || reader[u] - u <= APART ? u : before[u];
        for (int k = q->in; k < q->in + q->inputs; k++) {
            int v = p->links[k];
            gckpti_lower(&p->when[v], p->when[u]);
            before[v] = before[v] == v ? before[u] : before[v];
            gckpti_lower(&before[v], before[u]);
            reader[v] = u;
        }
        key[u].item = u;
        key[u].key = (uint64_t)p->when[u] << 32 | (uint64_t)before[u];
    }
    if (p->failed)
        return;
    gckpti_sort_keys(key + from, key + n, n - from);
    for (size_t i = from; i < n; i++) {
        p->late[i] = key[i].item;
        p->turn[key[i].item] = (int)i;
    }
}

GCKPTI_FN gckpt_result gckpti_model_units(gckpti_planner *p)
{
    gckpti_find_units(p);
    if (!p->failed)
        gckpti_model_gradients(p);
    gckpti_find_late(p);
    for (int u = 0; u < p->units; u++) {
        const gckpt_cost *cost = &p->cost[p->unit[u].id];
        p->forward_work = gckpti_add_work(p->forward_work, cost->forward);
        p->own_work = gckpti_add_work(p->own_work, p->unit[u].nth < 0 ? 0 : cost->backward);
    }
    p->least_work = p->own_work = gckpti_add_work(p->own_work, p->forward_work);
    return p->failed ? GCKPT_E_MEMORY : gckpti_check_work(p);
}
