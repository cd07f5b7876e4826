#include "plan/own.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- forms: what else returns the bits of an op, with other bytes and other work ---- */
/* Makes of a copy of a loss what runs in its place; 0: it has no such form. All but the last form
 * of a head compute each logit once, of so many rows at a time; the last twice, in chunks. */
static int gckpti_form(gckpt_tensor *t, int form)
{
    enum { LAST = GCKPTI_FORMS - 1 };
    static const int rows[LAST - 1] = { 256, 64, 16 };
    const gckpt_tensor *logits = t->in[0];
    if (t->op == &gckpti_op_cross_entropy) {
        if ((logits->op != &gckpti_op_matmul && logits->op != &gckpti_op_linear) ||
            logits->inputs != 2 || !*(const int *)logits->attributes || logits->mixes ||
            logits->batchless || logits->in[1]->shape.n != 2 || !logits->in[1]->batchless)
            return 0;
        t->op = &gckpti_op_linear_cross_entropy;
        t->in[2] = t->in[1];
        t->in[1] = logits->in[1];
        t->in[0] = logits->in[0];
        t->inputs = 3;
    } else if (t->op != &gckpti_op_linear_cross_entropy || form == LAST) {
        return 0;
    }
    if (form < LAST) {
        t->attributes = &rows[form - 1];
        t->attribute_bytes = sizeof *rows;
        t->aux_bytes = 0;
    }
    return 1;
}

/* Whether `as` may run in place of t. A tensor it does not read any more is not computed: nobody
 * else may want it, nor may its rounding be part of the numbers; and what sent gradients to the
 * inputs of that tensor sends them from t, so nobody may add to them in between. */
static int gckpti_form_fits(const gckpti_planner *p, const gckpt_tensor *t, const gckpt_tensor *as)
{
    const gckpt_tensor *gone = t->in[0]->base;
    if (t->batchless || !(p->active[t->id] & GCKPTI_RUNS) || p->desc->precision == GCKPT_BF16_FAST)
        return 0; /* a backend's fast kernels have one form */
    if (as->in[0]->base == gone)
        return 1;
    if (gone->keep || gone->recompute || p->rounding[gone->id])
        return 0;
    for (int i = 0; i < p->desc->fetches; i++)
        if (p->desc->fetch[i].tensor && p->desc->fetch[i].tensor->base == gone)
            return 0;
    for (int i = gone->id + 1; i < p->n; i++) {
        const gckpt_tensor *user = p->g->tensors[i];
        for (int k = 0; user != t && user->kind == GCKPTI_OP && k < user->inputs; k++) {
            const gckpt_tensor *q = user->in[k]->base;
            if (q == gone || (i < t->id && (q == as->in[0]->base || q == as->in[1]->base)))
                return 0;
        }
    }
    return 1;
}

GCKPTI_FN void gckpti_take_form(gckpti_planner *p)
{
    for (int i = 0; i < p->n && !p->failed; i++) {
        const gckpt_tensor *t = p->g->tensors[i];
        for (int form = gckpti_is_loss(t) ? p->variant.form : 0; form > 0; form--) {
            gckpt_tensor as = *t;
            if (!gckpti_form(&as, form) || !gckpti_form_fits(p, t, &as))
                continue;
            p->tensors[i] =
                (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &as, 1, sizeof as);
            p->offered = p->offered || form == p->variant.form;
            break;
        }
    }
}

/* Bytes that an op, which runs forward and backward once, takes beside its operands. */
static size_t gckpti_bytes_beside(const gckpti_planner *p, int id)
{
    size_t forward = p->work_forward[id], backward = p->work_backward[id];
    return p->tensors[id]->aux_bytes + (forward > backward ? forward : backward);
}

GCKPTI_FN int gckpti_is_of_use(const gckpti_planner *q, const gckpti_planner *p)
{
    int better = p->units != q->units || p->link_count != q->link_count;
    for (int i = 0; i < p->n && !better; i++)
        better =
            q->cost[i].forward + q->cost[i].backward < p->cost[i].forward + p->cost[i].backward ||
            gckpti_bytes_beside(q, i) < gckpti_bytes_beside(p, i);
    return better;
}

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
        backward += t->op->flags & GCKPT_PASSES(k) ? 0 : gckpti_gradient_bytes(p, t->in[k]);
    }
    backward += needs & GCKPT_OUT ? out : 0;
    gckpt_cost cost = { flops > 10 * forward ? flops : 10 * forward, 0 };
    if (t->op->flags & GCKPTI_LATE && t->attribute_bytes)
        cost.forward = 0; /* the backward does it all */
    cost.forward += GCKPTI_INSTRUCTION_WORK;
    if (gradients == 0)
        return cost;
    flops =
        t->op->flops_backward ? t->op->flops_backward(call) : gckpti_gradients_flops(call, flops);
    cost.backward = (flops > 10 * backward ? flops : 10 * backward) + GCKPTI_INSTRUCTION_WORK;
    return cost;
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
