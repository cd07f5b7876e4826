#include "plan/own.h"
#include "graph/graph.h"

/* ---- drafts: a schedule's instructions, the buffers they use, and how long these live ---- */
static int gckpti_draft_room(gckpti_planner *p, gckpti_draft *d)
{
    size_t n = (size_t)d->s.length + 1, operands = 0, offloads = 0;
    size_t buffers = (size_t)p->gradients;
    const size_t copies = p->desc->precision != GCKPT_FP32;
    for (int x = 0; x < d->s.length; x++) {
        int i = d->s.item[x], id = p->unit[gckpti_unit_of(p, i)].id;
        size_t inputs = (size_t)p->tensors[id]->inputs;
        operands += (i < 0 ? 4 + 3 * inputs : 3 + inputs) + copies * (2 + 2 * inputs);
        buffers += i < 0 ? p->work_backward[id] > 0
                         : (p->work_forward[id] > 0) + (size_t)(d->s.value_end[x] >= 0) +
                               (d->s.aux_end[x] >= 0);
        offloads += i >= 0 && d->s.offloaded[x];
    }
    gckpti_scratch *s = &d->scratch;
    operands +=
        (size_t)(2 * p->targets + p->n) + 2 * offloads; /* added up, of updates and offloads */
    size_t reductions = (size_t)p->reductions, most = n + offloads + (size_t)p->n + reductions;
    operands += reductions * (size_t)(3 + p->levels);
    d->place = (int *)gckpti_scratch_take(s, n, sizeof(int));
    d->backward = (int *)gckpti_scratch_take(s, (size_t)p->backwards + 2, sizeof(int));
    d->ins = (gckpti_ins *)gckpti_scratch_take(s, most, sizeof *d->ins);
    d->live = (size_t *)gckpti_scratch_take(s, most, sizeof *d->live);
    d->buffers = (gckpt_buffer *)gckpti_scratch_take(s, buffers, sizeof *d->buffers);
    d->operands = (size_t *)gckpti_scratch_take(s, operands, sizeof *d->operands);
    d->value = (int *)gckpti_scratch_take(s, n, sizeof(int));
    d->aux = (int *)gckpti_scratch_take(s, n, sizeof(int));
    d->gradient = (int *)gckpti_scratch_take(s, (size_t)p->gradients, sizeof(int));
    d->latest = (int *)gckpti_scratch_take(s, (size_t)p->units, sizeof(int));
    d->far = (size_t *)gckpti_scratch_take(s, 2 * (size_t)p->units, sizeof *d->far);
    d->length = d->buffer_count = d->operand_count = 0;
    return !p->failed;
}

static void gckpti_add_instruction(gckpti_draft *d, gckpt_kind kind, int id)
{
    gckpti_ins *ins = &d->ins[d->length++];
    ins->kind = (unsigned char)kind;
    ins->id = (gckpti_id)id;
    ins->uses = 1;
}

/* Puts updates behind item x of the schedule if it is the last to touch a parameter, but not before
 * all losses have counted what gradients are divided by, which they have with item `counted` (a
 * schedule may run them late). */
static void gckpti_update_behind(gckpti_planner *p, gckpti_draft *d, int x, int counted, int *last)
{
    int i = d->s.item[x];
    const gckpt_tensor *t = p->tensors[p->unit[i < 0 ? ~i : i].id];
    int all = x == counted;
    for (int k = 0; k < (all ? p->n : t->inputs) && x >= counted; k++) {
        int q = all ? k : t->in[k]->base->id;
        if (!gckpti_is_updated(p, q) || last[q] < 0 || last[q] > x)
            continue;
        gckpti_add_instruction(d, GCKPT_UPDATE, q);
        last[q] = -1;
    }
}

/* Finds the last item that touches each parameter, by id, and the one by which all losses have
 * counted. */
static int gckpti_last_touch(const gckpti_planner *p, const gckpti_draft *d, int *last)
{
    int counted = 0;
    for (int x = 0; x < d->s.length; x++) {
        int i = d->s.item[x], u = i < 0 ? ~i : i;
        const gckpt_tensor *t = p->tensors[p->unit[u].id];
        if (i >= p->prologue && gckpti_is_loss(t) && !d->latest[u])
            counted = x;
        if (i >= 0)
            d->latest[u] = 1;
        for (int k = 0; k < t->inputs; k++)
            last[t->in[k]->base->id] = x;
    }
    return counted;
}

/* The instructions of a schedule, updates included; which forwards are first. */
static void gckpti_list_instructions(gckpti_planner *p, gckpti_draft *d)
{
    int early = !p->inference && p->desc->update_in_backward, counted = 0;
    int *last = early ? (int *)gckpti_scratch_take(&d->scratch, (size_t)p->n, sizeof(int)) : NULL;
    if (early && last)
        counted = gckpti_last_touch(p, d, last);
    memset(d->latest, 0, (size_t)p->units * sizeof(int));
    d->body = (size_t)p->prologue; /* each runs once and is needed */
    for (int x = 0; x < d->s.length && !p->failed; x++) {
        int i = d->s.item[x], u = gckpti_unit_of(p, i);
        if (i < 0 && p->unit[u].nth == p->body_backwards)
            d->epilogue = d->length;
        d->place[x] = (int)d->length;
        gckpti_add_instruction(d,
                               i < 0                  ? GCKPT_BACKWARD
                               : gckpti_is_hold(p, i) ? GCKPT_OFFLOAD_DONE
                               : gckpti_reloads(p, i) ? GCKPT_RELOAD
                                                      : GCKPT_FORWARD,
                               p->unit[u].id);
        if (i < 0) {
            d->backward[p->unit[u].nth] = d->place[x];
            for (int k = 0; k < p->unit[u].reduces; k++) {
                int id = p->reduction[p->unit[u].reduce + k].id;
                gckpti_add_instruction(d, GCKPT_REDUCE, id);
                d->ins[d->length - 1].accumulate = (unsigned char)gckpti_scatters(p, id);
            }
        } else if (i == u) {
            d->ins[d->place[x]].first = !d->latest[u];
            d->latest[u] = 1;
            if (d->s.offloaded[x])
                gckpti_add_instruction(d, GCKPT_OFFLOAD, p->unit[u].id);
        }
        if (early)
            gckpti_update_behind(p, d, x, counted, last);
    }
    if (p->body_backwards == p->backwards)
        d->epilogue = d->length;
    for (int id = 0; id < p->n && !p->inference && !early; id++)
        if (gckpti_is_updated(p, id))
            gckpti_add_instruction(d, GCKPT_UPDATE, id);
    d->backward[p->backwards] = (int)d->epilogue - 1;
    d->backward[p->backwards + 1] = d->place[d->s.length] = (int)d->length;
}

/* A new buffer, from instruction `start` to `end`. Returns its number. */
static int gckpti_buffer_new(gckpti_draft *d, size_t size, int start, int end, int id,
                             gckpt_buffer_kind kind)
{
    gckpt_buffer b = { start, end, 0, size, id, kind };
    d->buffers[d->buffer_count] = b;
    return (int)d->buffer_count++;
}

/* Notes that an instruction uses a buffer (-1: none), as its next operand. */
static void gckpti_operand(gckpti_draft *d, int buffer, int x)
{
    if (buffer >= 0 && d->buffers[buffer].end < x)
        d->buffers[buffer].end = x;
    d->operands[d->operand_count++] = buffer < 0 ? GCKPTI_NONE : (size_t)buffer;
}

/* The buffer of a gradient (-1: of none), which begins at instruction x if it is not there yet: its
 * own, or that of the gradient which passes its bytes on. */
static int gckpti_gradient_buffer(const gckpti_planner *p, gckpti_draft *d, int gradient, int x)
{
    if (gradient < 0)
        return -1;
    const gckpti_gradient *v = &p->gradient[gradient];
    if (d->gradient[gradient] < 0)
        d->gradient[gradient] = v->storage != gradient
                                    ? d->gradient[v->storage]
                                    : gckpti_buffer_new(d, v->size, x, x, v->id, v->kind);
    return d->gradient[gradient];
}

/* The buffer of the value of a tensor that an instruction reads; -1: it is not in the arena. */
static int gckpti_value_buffer(const gckpti_planner *p, const gckpti_draft *d, int id)
{
    int u = p->of[id];
    return u < 0 ? -1 : d->value[d->latest[u]];
}

/* The buffer of a value that the forward of unit u, at position at of the schedule, reads for the
 * last time and may replace; -1: there is none. The next micro-batch may not read it again. */
static int gckpti_taken_over(const gckpti_planner *p, const gckpti_draft *d, const gckpti_unit *u,
                             int at)
{
    for (int k = 0; u->in_place >> k; k++) {
        int from = u->in_place >> k & 1 ? d->latest[p->links[u->in + k]] : -1;
        int again = p->looped && from < p->prologue && at >= p->prologue;
        if (from >= 0 && d->s.value_end[from] == at && !again)
            return d->value[from];
    }
    return -1;
}

/* Buffers and operands of a forward or a reload, position at of the schedule. */
static void gckpti_forward_buffers(gckpti_planner *p, gckpti_draft *d, int at, int x)
{
    const int item = d->s.item[at], unit = gckpti_unit_of(p, item), reload = item != unit;
    const gckpt_tensor *t = p->tensors[p->unit[unit].id];
    int out = -1, aux = -1, work = -1;
    if (d->s.value_end[at] >= 0) {
        int end = d->place[d->s.value_end[at]];
        out = reload ? -1 : gckpti_taken_over(p, d, &p->unit[unit], at);
        if (out < 0)
            out = gckpti_buffer_new(d, gckpti_value_bytes(p, t), x, x, t->id, GCKPT_BUFFER_VALUE);
        d->buffers[out].end = d->buffers[out].end > end ? d->buffers[out].end : end;
    }
    if (d->s.aux_end[at] >= 0)
        aux = gckpti_buffer_new(d, t->aux_bytes, x, d->place[d->s.aux_end[at]], t->id,
                                GCKPT_BUFFER_SAVED);
    if (p->work_forward[t->id] && !reload)
        work = gckpti_buffer_new(d, p->work_forward[t->id], x, x, t->id, GCKPT_BUFFER_WORKSPACE);
    gckpti_operand(d, out, x);
    gckpti_operand(d, aux, x);
    if (!reload)
        gckpti_operand(d, work, x);
    for (int i = 0; i < t->inputs && !reload; i++)
        gckpti_operand(d, gckpti_value_buffer(p, d, t->in[i]->base->id), x);
    d->value[at] = out;
    d->aux[at] = aux;
    d->latest[unit] = at;
}

/* The REDUCE of a tensor's gradient, or NULL. */
static const gckpti_reduction *gckpti_reduction_of(const gckpti_planner *p, int id)
{
    int k = p->reductions > 0 ? p->reduction_of[id] : -1;
    return k < 0 ? NULL : &p->reduction[k];
}

/* Operands that are added up to the gradient of a tensor (none of a loss): the first one, or the
 * others, which only a looped plan's sums over uses have: those of the body by a REDUCE, where
 * there is one. Returns how many there are in all. */
static int gckpti_sum_operands(const gckpti_planner *p, gckpti_draft *d, int id, int others, int x)
{
    int count = 1, several = p->looped && gckpti_sums_uses(p->tensors[id]);
    int use = others && several ? p->first_use[id] : -1, reduces = d->ins[x].kind == GCKPT_REDUCE;
    const gckpti_reduction *sum = gckpti_reduction_of(p, id);
    int first =
        d->ins[x].kind == GCKPT_UPDATE && sum && sum->shard >= 0 ? sum->shard : p->whole[id];
    if (!others)
        gckpti_operand(d, gckpti_gradient_buffer(p, d, first, x), x);
    for (use = use < 0 ? -1 : p->target[use].next; use >= 0; use = p->target[use].next) {
        if (sum && gckpti_in_body(p, use) != reduces)
            continue;
        gckpti_operand(d, gckpti_gradient_buffer(p, d, p->target[use].gradient, x), x);
        count++;
    }
    return count;
}

/* Buffers and operands of a REDUCE; what it exchanges with has room since the backward before. */
static void gckpti_reduce_buffers(const gckpti_planner *p, gckpti_draft *d, int x)
{
    gckpti_ins *ins = &d->ins[x];
    const gckpti_reduction *sum = gckpti_reduction_of(p, ins->id);
    gckpti_operand(d, gckpti_gradient_buffer(p, d, sum->work, x), x);
    gckpti_sum_operands(p, d, ins->id, 0, x);
    gckpti_operand(d, gckpti_gradient_buffer(p, d, sum->shard, x), x);
    ins->uses = (gckpti_id)gckpti_sum_operands(p, d, ins->id, 1, x);
    for (int k = 0; k < p->levels; k++)
        gckpti_operand(d, gckpti_gradient_buffer(p, d, sum->waits + k, x), x);
}

/* Buffers and operands of the backward of unit u. */
static void gckpti_backward_buffers(gckpti_planner *p, gckpti_draft *d, int unit, int x)
{
    const gckpti_unit *u = &p->unit[unit];
    const gckpt_tensor *t = p->tensors[u->id];
    unsigned mask = gckpti_needs(p, t);
    int work = -1;
    gckpti_ins *ins = &d->ins[x];
    ins->accumulate = u->accumulate;
    ins->zero = u->zero;
    gckpti_operand(d, mask & GCKPT_OUT ? gckpti_value_buffer(p, d, u->id) : -1, x);
    gckpti_operand(d, u->reads_aux ? d->aux[d->latest[unit]] : -1, x);
    if (p->work_backward[u->id])
        work = gckpti_buffer_new(d, p->work_backward[u->id], x, x, u->id, GCKPT_BUFFER_WORKSPACE);
    gckpti_operand(d, work, x);
    gckpti_sum_operands(p, d, u->id, 0, x);
    for (int i = 0; i < t->inputs; i++) {
        const gckpti_target *target = &p->target[u->target + i];
        int value = mask & GCKPT_IN(i) ? gckpti_value_buffer(p, d, t->in[i]->base->id) : -1;
        gckpti_operand(d, value, x);
        gckpti_operand(d, gckpti_gradient_buffer(p, d, target->gradient, x), x);
        gckpti_operand(d, gckpti_gradient_buffer(p, d, target->total, x), x);
    }
    ins->uses = (gckpti_id)gckpti_sum_operands(p, d, u->id, 1, x);
    for (int k = u->reduce; k < u->reduce + u->reduces; k++) { /* for the REDUCEs behind it */
        gckpti_gradient_buffer(p, d, p->reduction[k].work, x);
        gckpti_gradient_buffer(p, d, p->reduction[k].shard, x);
    }
}

/* What is offloaded of each unit has a place of its own in slower memory, one behind the other. */
static void gckpti_place_far(const gckpti_planner *p, gckpti_draft *d)
{
    size_t at = 0;
    for (int x = 0; x < d->s.length; x++)
        for (int part = 0; part < 2; part++)
            d->far[2 * gckpti_unit_of(p, d->s.item[x]) + part] |= d->s.offloaded[x] >> part & 1;
    for (int k = 0; k < 2 * p->units; k++) {
        const gckpt_tensor *t = p->tensors[p->unit[k / 2].id];
        int here = d->far[k] != 0;
        at = here ? gckpti_round_up(at, p->alignment) : at;
        d->far[k] = here ? at : GCKPTI_NONE;
        at += !here ? 0 : k % 2 ? t->aux_bytes : gckpti_value_bytes(p, t);
        at = at < PTRDIFF_MAX / 2 ? at : PTRDIFF_MAX / 2;
    }
    d->offloaded = at;
}

/* Buffers and operands of all instructions, in their order. */
static void gckpti_list_buffers(gckpti_planner *p, gckpti_draft *d)
{
    int end = (int)d->length;
    memset(d->gradient, 0xff, (size_t)p->gradients * sizeof(int));
    for (int v = 0; v < p->gradients && p->gradient[v].resident; v++)
        gckpti_gradient_buffer(p, d, v, 0);
    for (int y = 0, x = 0; y < end; y++) {
        gckpti_ins *ins = &d->ins[y];
        const gckpt_tensor *t = p->tensors[ins->id];
        int copies = p->desc->precision != GCKPT_FP32 && t->op && ins->kind <= GCKPT_BACKWARD;
        ins->operands = (gckpti_nth)d->operand_count;
        if (ins->kind == GCKPT_FORWARD || ins->kind == GCKPT_RELOAD) {
            gckpti_forward_buffers(p, d, x++, y);
        } else if (ins->kind == GCKPT_OFFLOAD || ins->kind == GCKPT_OFFLOAD_DONE) {
            int v = d->latest[p->of[ins->id]];
            int far = d->s.offloaded[ins->kind == GCKPT_OFFLOAD_DONE ? x++ : v];
            gckpti_operand(d, far & GCKPTI_VALUE ? d->value[v] : -1, y);
            gckpti_operand(d, far & GCKPTI_AUX ? d->aux[v] : -1, y);
        } else if (ins->kind == GCKPT_BACKWARD) {
            gckpti_backward_buffers(p, d, ~d->s.item[x++], y);
        } else if (ins->kind == GCKPT_REDUCE) {
            gckpti_reduce_buffers(p, d, y);
        } else {
            gckpti_sum_operands(p, d, ins->id, 0, y);
            ins->uses = (gckpti_id)gckpti_sum_operands(p, d, ins->id, 1, y);
        }
        for (int k = 0; k < copies * (2 + 2 * t->inputs); k++) /* gckpti_encode_copies */
            gckpti_operand(d, -1, y);
    }
    for (int v = 0; v < p->gradients; v++) { /* some live longer than instructions use them */
        int b = d->gradient[v], last = d->backward[p->gradient[v].until];
        if (b >= 0 && d->buffers[b].end < last)
            d->buffers[b].end = last;
    }
}

/* ---- live bytes of a draft ---- */
GCKPTI_FN int gckpti_bytes_kind(gckpt_buffer_kind kind)
{
    return kind == GCKPT_BUFFER_WORKSPACE            ? GCKPT_BYTES_WORKSPACE
           : kind == GCKPT_BUFFER_PARAMETER_GRADIENT ? GCKPT_BYTES_GRADIENTS
           : kind == GCKPT_BUFFER_REDUCTION               ? GCKPT_BYTES_REDUCTION
                                                     : GCKPT_BYTES_ACTIVATIONS;
}

/* Live bytes at each instruction, from a difference array; the bound: the greatest of these sums,
 * and what it is made of. They are exact in size_t; in double, whether they are too many. */
static gckpt_result gckpti_sum_live(gckpti_planner *p, gckpti_draft *d)
{
    double about = 0;
    size_t live = 0, slots = d->length + 2;
    int peak = 0;
    gckpti_scratch_clear(&p->pass);
    double *abouts = (double *)gckpti_scratch_take(&p->pass, slots, sizeof *abouts);
    size_t *change = (size_t *)gckpti_scratch_take(&p->pass, slots, sizeof *change);
    if (p->failed)
        return GCKPT_E_MEMORY;
    for (size_t i = 0; i < d->buffer_count; i++) {
        const gckpt_buffer *b = &d->buffers[i];
        abouts[b->start] += (double)b->size;
        abouts[b->end + 1] -= (double)b->size;
        change[b->start] += b->size;
        change[b->end + 1] -= b->size; /* wraps, and back when summed */
    }
    for (int x = 0; x <= (int)d->length; x++) {
        about += abouts[x];
        live += change[x];
        d->live[x] = live;
        d->most = about > d->most ? about : d->most;
        peak = live > d->bound ? x : peak;
        d->bound = live > d->bound ? live : d->bound;
    }
    d->bound = d->most > (double)GCKPTI_ADDRESSABLE ? SIZE_MAX : d->bound;
    for (size_t i = 0; i < d->buffer_count && d->bound < SIZE_MAX; i++) {
        const gckpt_buffer *b = &d->buffers[i];
        const gckpt_tensor *t = p->tensors[b->id];
        if (b->start > peak || b->end < peak)
            continue;
        size_t whole = gckpti_bytes(p, t, 0);
        int gathered = b->kind == GCKPT_BUFFER_VALUE && gckpti_is_gathered(p, t);
        int kind = gathered ? GCKPT_BYTES_GATHERED : gckpti_bytes_kind(b->kind);
        d->kind_bytes[kind] += b->size;
        if (kind == GCKPT_BYTES_GRADIENTS && b->size < whole) /* a shard */
            d->kind_bytes[GCKPT_BYTES_PADDING] += b->size - whole / (size_t)p->g->store->ranks;
    }
    if (d->bound < SIZE_MAX)
        return GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_MEMORY,
                        "plan: the step arena would need %g bytes, more than "
                        "this machine can address; use fewer rows or another mode",
                        d->most);
}

GCKPTI_FN gckpt_result gckpti_make_draft(gckpti_planner *p, const int *made, int length)
{
    gckpti_draft *d = &p->draft;
    gckpti_scratch scratch = d->scratch;
    memset(d, 0, sizeof *d);
    d->scratch = scratch;
    gckpti_scratch_clear(&d->scratch);
    if (!gckpti_finish(p, made, length, &d->scratch, &d->s))
        return GCKPT_E_MEMORY;
    gckpt_result result = gckpti_check_reads(p, &d->s);
    if (result != GCKPT_OK)
        return result;
    if (!gckpti_draft_room(p, d))
        return GCKPT_E_MEMORY;
    d->work = gckpti_add_work(p->own_work, gckpti_add_work(d->s.again, d->s.moved));
    d->hidden = p->beside ? d->work - gckpti_time(p, &d->s, 0, NULL) : 0;
    d->work -= d->hidden;
    gckpti_list_instructions(p, d);
    if (p->failed)
        return GCKPT_E_MEMORY;
    gckpti_place_far(p, d);
    gckpti_list_buffers(p, d);
    if (d->offloaded > p->desc->offload_bytes || d->offloaded >= PTRDIFF_MAX / 2)
        return gckpti_error(p->g, GCKPT_E_BUDGET,
                            "schedule: it offloads %z bytes; desc.offload_bytes is %z",
                            d->offloaded, p->desc->offload_bytes);
    return gckpti_sum_live(p, d);
}

GCKPTI_FN gckpt_result gckpti_draft_runs(gckpti_planner *p, const gckpti_span *run, int length)
{
    gckpti_scratch_clear(&p->pass);
    int *item = (int *)gckpti_scratch_take(&p->pass, (size_t)length, sizeof *item);
    if (!item)
        return GCKPT_E_MEMORY;
    gckpti_from_runs(run, length, item);
    return gckpti_make_draft(p, item, length);
}
