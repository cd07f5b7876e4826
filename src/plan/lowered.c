#ifndef GCKPT_SMALL
#include "plan/internal.h"
#include "graph/graph.h"

/* ---- lowering: the instructions of a schedule, their buffers, and live ranges of these ---- */
/* Allocates the arrays of a lowered plan; those of instructions, operands and buffers grow. */
static int gckpti_reserve_lowered(gckpti_planner *p, gckpti_lowered *d)
{
    gckpti_scratch *s = &d->scratch;
    size_t n = (size_t)d->sched.length + 1;
    gckpti_reserve(s, &d->ins, n, sizeof *d->ins);
    d->operand_capacity = 8 * n;
    gckpti_reserve(s, &d->operands, d->operand_capacity, sizeof *d->operands);
    gckpti_reserve(s, &d->buffers, 2 * n, sizeof *d->buffers); /* one exists in any case */
    d->entry_ins = (int *)gckpti_scratch_alloc(s, n, sizeof(int));
    d->backward_ins = (int *)gckpti_scratch_alloc(s, (size_t)p->backwards + 2, sizeof(int));
    d->value = (int *)gckpti_scratch_alloc(s, n, sizeof(int));
    d->saved = (int *)gckpti_scratch_alloc(s, n, sizeof(int));
    d->gradient = (int *)gckpti_scratch_alloc(s, (size_t)p->gradients, sizeof(int));
    d->latest_def = (int *)gckpti_scratch_alloc(s, (size_t)p->nodes, sizeof(int));
    return !p->failed;
}

/* Appends an instruction, and before the first UPDATE a BARRIER. Returns its index. */
GCKPTI_FN int gckpti_add_instruction(gckpti_lowered *d, gckpt_kind kind, int id)
{
    if (kind == GCKPT_UPDATE && !d->has_updates++)
        gckpti_add_instruction(d, GCKPT_BARRIER, 0);
    if (gckpti_reserve(&d->scratch, &d->ins, d->length + 1, sizeof *d->ins)) {
        gckpti_ins *ins = &d->ins[d->length++];
        memset(ins, 0, sizeof *ins); /* with its padding: equal plans have equal bytes */
        ins->kind = (unsigned char)kind;
        ins->id = (gckpti_id)id;
        ins->uses = 1;
    }
    return (int)d->length - 1;
}

/* Returns whether features may add instructions to those of the entries. */
static int gckpti_inserts_instructions(const gckpti_planner *p) { return p->dist || p->can_copy; }

/* Lists the instructions of a schedule, with updates, and marks first forwards. */
static void gckpti_build_instructions(gckpti_planner *p, gckpti_lowered *d)
{
    const int early = !p->inference && p->desc->update_in_backward;
    const int inserts = gckpti_inserts_instructions(p);
    const int epilogue = d->sched.length - (p->backwards - p->body_backwards);
    int *last = early ? (int *)gckpti_scratch_alloc(&d->scratch, (size_t)p->n, sizeof(int)) : NULL;
    for (int x = 0; x < d->sched.length && last; x++) { /* by id: position of the last use */
        const gckpt_tensor *t = p->tensors[p->node[gckpti_entry_node(p, d->sched.entry[x])].id];
        for (int k = 0; k < t->inputs; k++)
            last[t->in[k]->base->id] = x;
    }
    memset(d->latest_def, 0, (size_t)p->nodes * sizeof(int));
    for (int x = 0; x <= d->sched.length && !p->failed; x++) {
        if (x == p->prologue) /* each of its nodes runs once, and its result is read */
            d->body = gckpti_add_instruction(d, GCKPT_BEGIN, 0);
        if (x == epilogue)
            d->epilogue = gckpti_add_instruction(d, GCKPT_NEXT, 0) + 1;
        if (x == d->sched.length)
            break;
        const int i = d->sched.entry[x], u = gckpti_entry_node(p, i);
        const gckpt_tensor *t = p->tensors[p->node[u].id];
        d->entry_ins[x] = gckpti_add_instruction(d, gckpti_entry_kind(p, i), p->node[u].id);
        if (i < 0)
            d->backward_ins[p->node[u].backward_index] = d->entry_ins[x];
        if (i == u && !p->failed)
            d->ins[d->entry_ins[x]].first = !d->latest_def[u]++;
        if (inserts)
            (void)gckpti_pass(p, GCKPTI_PASS_ENTRY, &x);
        for (int k = 0; k < t->inputs && early; k++) {
            const int id = t->in[k]->base->id;
            if (last[id] == x && gckpti_is_updated(p, id)) {
                gckpti_add_instruction(d, GCKPT_UPDATE, id);
                last[id] = -1;
            }
        }
    }
    for (int id = 0; id < p->n && !p->inference && !early; id++)
        if (gckpti_is_updated(p, id))
            gckpti_add_instruction(d, GCKPT_UPDATE, id);
    d->backward_ins[p->backwards] = d->epilogue - 1;
    d->backward_ins[p->backwards + 1] = d->entry_ins[d->sched.length] = (int)d->length;
}

/* Adds a buffer that is live from instruction `start` to `end`. Returns its index; without memory,
 * that of another buffer. */
static int gckpti_add_buffer(gckpti_lowered *d, size_t size, int start, int end, int id,
                             gckpt_buffer_kind kind)
{
    gckpt_buffer b = { start, end, 0, size, id, kind };
    if (gckpti_reserve(&d->scratch, &d->buffers, d->buffer_count, sizeof b))
        d->buffers[d->buffer_count++] = b;
    return d->buffer_count > 0 ? (int)d->buffer_count - 1 : 0;
}

/* Adds an operand of instruction x: a buffer, whose live range it extends, or -1. */
GCKPTI_FN void gckpti_add_operand(gckpti_lowered *d, int buffer, int x)
{
    if (buffer >= 0 && d->buffers[buffer].end < x)
        d->buffers[buffer].end = x;
    if (d->operand_count == d->operand_capacity) {
        if (!gckpti_reserve(&d->scratch, &d->operands, 2 * d->operand_count, sizeof *d->operands))
            return;
        d->operand_capacity *= 2;
    }
    d->operands[d->operand_count++] = buffer < 0 ? GCKPTI_NO_OFFSET : (size_t)buffer;
}

/* Returns the buffer of a gradient (or of its alias root), or -1 if `gradient` is -1. If there is
 * none yet, adds a buffer that begins at instruction x. */
GCKPTI_FN int gckpti_get_or_add_gradient(const gckpti_planner *p, gckpti_lowered *d, int gradient,
                                         int x)
{
    if (gradient < 0)
        return -1;
    const gckpti_gradient *v = &p->gradient[gradient];
    if (d->gradient[gradient] < 0)
        d->gradient[gradient] = v->alias_root != gradient
                                    ? d->gradient[v->alias_root]
                                    : gckpti_add_buffer(d, v->size, x, x, v->id, v->kind);
    return d->gradient[gradient];
}

/* Returns the buffer of a tensor's current value, or -1 if that is not in the arena. */
static int gckpti_value_buffer(const gckpti_planner *p, const gckpti_lowered *d, int id)
{
    int u = p->node_of[id];
    return u < 0 ? -1 : d->value[d->latest_def[u]];
}

/* Returns the buffer of a value that the forward of node u at `position` reads for the last time
 * and may overwrite, or -1. The next micro-batch must not read it again. */
static int gckpti_in_place_buffer(const gckpti_planner *p, const gckpti_lowered *d,
                                  const gckpti_node *u, int position)
{
    for (int k = 0; u->in_place >> k; k++) {
        int from = u->in_place >> k & 1 ? d->latest_def[p->edges[u->in + k]] : -1;
        int reread = p->accumulates && from < p->prologue && position >= p->prologue;
        if (from >= 0 && d->sched.value_end[from] == position && !reread)
            return d->value[from];
    }
    return -1;
}

/* Adds the buffers and operands of an instruction that defines results: a forward, or a copy. */
static void gckpti_add_defined_operands(gckpti_planner *p, gckpti_lowered *d, int position, int x)
{
    const int entry = d->sched.entry[position], node = gckpti_entry_node(p, entry);
    const gckpt_tensor *t = p->tensors[p->node[node].id];
    int out = -1, saved = -1, workspace = -1;
    const int computes = entry == node;
    if (d->sched.value_end[position] >= 0) {
        int end = d->entry_ins[d->sched.value_end[position]];
        out = computes ? gckpti_in_place_buffer(p, d, &p->node[node], position) : -1;
        if (out < 0)
            out = gckpti_add_buffer(d, gckpti_value_bytes(p, t), x, x, t->id, GCKPT_BUFFER_VALUE);
        d->buffers[out].end = d->buffers[out].end > end ? d->buffers[out].end : end;
    }
    if (d->sched.saved_end[position] >= 0)
        saved = gckpti_add_buffer(d, t->saved_bytes, x, d->entry_ins[d->sched.saved_end[position]],
                                  t->id, GCKPT_BUFFER_SAVED);
    if (p->workspace_forward[t->id] && computes)
        workspace =
            gckpti_add_buffer(d, p->workspace_forward[t->id], x, x, t->id, GCKPT_BUFFER_WORKSPACE);
    gckpti_add_operand(d, out, x);
    gckpti_add_operand(d, saved, x);
    if (computes)
        gckpti_add_operand(d, workspace, x);
    for (int i = 0; i < t->inputs && computes; i++)
        gckpti_add_operand(d, gckpti_value_buffer(p, d, t->in[i]->base->id), x);
    d->value[position] = out;
    d->saved[position] = saved;
    d->latest_def[node] = position;
}

/* Adds a gradient as an operand of instruction x; -1 if there is none. */
GCKPTI_FN void gckpti_add_gradient(const gckpti_planner *p, gckpti_lowered *d, int gradient, int x)
{
    gckpti_add_operand(d, gckpti_get_or_add_gradient(p, d, gradient, x), x);
}

/* Appends the further accumulators that instruction x adds up, in a plan that accumulates: those
 * that a feature adds up before the update (`reduced`), or the others. Counts them in its uses. */
GCKPTI_FN void gckpti_add_addends(const gckpti_planner *p, gckpti_lowered *d, int id, int reduced,
                                  int x)
{
    int use = p->accumulates && gckpti_is_use_sum(p->tensors[id]) ? p->first_use[id] : -1;
    for (use = use < 0 ? -1 : p->target[use].next; use >= 0; use = p->target[use].next)
        if (p->target[use].reduced == reduced) {
            gckpti_add_gradient(p, d, p->target[use].gradient, x);
            d->ins[x].uses++;
        }
}

/* Adds the buffers and operands of a backward. Returns its workspace, or -1. */
static int gckpti_add_backward_operands(gckpti_planner *p, gckpti_lowered *d, int node, int x)
{
    const gckpti_node *u = &p->node[node];
    const gckpt_tensor *t = p->tensors[u->id];
    unsigned mask = gckpti_backward_needs(p, t);
    int workspace = -1;
    gckpti_ins *ins = &d->ins[x];
    ins->accumulate = u->accumulate;
    ins->zero = u->zero;
    gckpti_add_operand(d, mask & GCKPT_OUT ? gckpti_value_buffer(p, d, u->id) : -1, x);
    gckpti_add_operand(d, u->reads_saved ? d->saved[d->latest_def[node]] : -1, x);
    if (p->workspace_backward[u->id])
        workspace =
            gckpti_add_buffer(d, p->workspace_backward[u->id], x, x, u->id, GCKPT_BUFFER_WORKSPACE);
    gckpti_add_operand(d, workspace, x);
    gckpti_add_gradient(p, d, p->total[u->id], x);
    for (int i = 0; i < t->inputs; i++) {
        const gckpti_target *target = &p->target[u->target + i];
        int value = mask & GCKPT_IN(i) ? gckpti_value_buffer(p, d, t->in[i]->base->id) : -1;
        gckpti_add_operand(d, value, x);
        gckpti_add_gradient(p, d, target->gradient, x);
        gckpti_add_gradient(p, d, target->total, x);
    }
    gckpti_add_addends(p, d, u->id, 0, x);
    return workspace;
}

static void gckpti_build_buffers(gckpti_planner *p, gckpti_lowered *d)
{
    int end = (int)d->length, workspace = -1;
    const int inserts = gckpti_inserts_instructions(p);
    memset(d->gradient, 0xff, (size_t)p->gradients * sizeof(int));
    for (int v = 0; v < p->gradients && p->gradient[v].resident; v++)
        gckpti_get_or_add_gradient(p, d, v, 0);
    for (int y = 0, x = 0; y < end && !p->failed; y++) {
        gckpti_ins *ins = &d->ins[y];
        gckpti_ins_at at = { y, d->entry_ins[x] == y ? x++ : -1 };
        ins->operands = (gckpti_offset)d->operand_count;
        if (gckpti_defines(ins->kind)) {
            gckpti_add_defined_operands(p, d, at.position, y);
        } else if (ins->kind == GCKPT_BACKWARD) {
            workspace = gckpti_add_backward_operands(p, d, ~d->sched.entry[at.position], y);
        } else if (ins->kind == GCKPT_UPDATE) {
            gckpti_add_gradient(p, d, p->gradient[p->total[ins->id]].result, y);
            gckpti_add_addends(p, d, ins->id, 0, y);
            size_t n = gckpti_custom_bytes(p, p->tensors[ins->id], p->desc->workspace_bytes) +
                       gckpti_state_workspace(p, p->tensors[ins->id]);
            if (n > 0 && (workspace < 0 || d->buffers[workspace].size < n))
                workspace = gckpti_add_buffer(d, n, y, y, ins->id, GCKPT_BUFFER_WORKSPACE);
            if (n > 0 || p->desc->optimiser == GCKPT_CUSTOM_OPTIMISER)
                gckpti_add_operand(d, n > 0 ? workspace : -1, y);
        }
        for (size_t k = gckpti_copy_operands(p, ins->kind, p->tensors[ins->id]); k > 0; k--)
            gckpti_add_operand(d, -1, y); /* gckpti_encode_copies writes these */
        if (inserts)
            (void)gckpti_pass(p, GCKPTI_PASS_OPERANDS, &at);
    }
    for (int v = 0; v < p->gradients; v++) { /* some outlive their last use */
        int b = d->gradient[v], last_use = d->backward_ins[p->gradient[v].last_use];
        if (b >= 0 && d->buffers[b].end < last_use)
            d->buffers[b].end = last_use;
    }
}

/* ---- live bytes ---- */
/* The gckpt_plan_kind_bytes to which each gckpt_buffer_kind belongs. */
static const unsigned char gckpti_bytes_kinds[] = {
    GCKPT_BYTES_ACTIVATIONS, GCKPT_BYTES_ACTIVATIONS, GCKPT_BYTES_ACTIVATIONS,
    GCKPT_BYTES_GRADIENTS,   GCKPT_BYTES_WORKSPACE,   GCKPT_BYTES_REDUCTION
};

/* Sums the live bytes at each instruction with a difference array, exactly in size_t and, to detect
 * overflow, in double; finds the peak and its bytes by kind. */
static gckpt_result gckpti_sum_live(gckpti_planner *p, gckpti_lowered *d)
{
    const size_t slots = d->length + 2;
    double estimate = 0;
    size_t live = 0;
    int peak = 0;
    gckpti_scratch_clear(&p->temp);
    d->live_bytes = (size_t *)gckpti_scratch_alloc(&d->scratch, slots, sizeof *d->live_bytes);
    double *change = (double *)gckpti_scratch_alloc(&p->temp, slots, sizeof *change);
    if (p->failed)
        return GCKPT_E_MEMORY;
    for (size_t i = 0; i < d->buffer_count; i++) {
        const gckpt_buffer *b = &d->buffers[i];
        change[b->start] += (double)b->size;
        change[b->end + 1] -= (double)b->size;
        d->live_bytes[b->start] += b->size;
        d->live_bytes[b->end + 1] -= b->size; /* unsigned wrap-around, undone by the sum */
    }
    for (int x = 0; x <= (int)d->length; x++) {
        estimate += change[x];
        live += d->live_bytes[x];
        d->live_bytes[x] = live;
        d->peak_estimate = estimate > d->peak_estimate ? estimate : d->peak_estimate;
        peak = live > d->peak ? x : peak;
        d->peak = live > d->peak ? live : d->peak;
    }
    d->peak = d->peak_estimate > (double)GCKPTI_ARENA_MAX ? SIZE_MAX : d->peak;
    for (size_t i = 0; i < d->buffer_count && d->peak < SIZE_MAX; i++) {
        const gckpt_buffer *b = &d->buffers[i];
        int kind = gckpti_bytes_kinds[b->kind];
        if (b->kind == GCKPT_BUFFER_VALUE && gckpti_is_gathered(p, p->tensors[b->id]))
            kind = GCKPT_BYTES_GATHERED;
        if (b->start <= peak && peak <= b->end)
            d->kind_bytes[kind] += b->size;
    }
    if (d->peak < SIZE_MAX)
        return GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_MEMORY,
                        "plan: the step arena would need %g bytes, more than "
                        "this machine can address; use fewer rows or another mode",
                        d->peak_estimate);
}

GCKPTI_FN gckpt_result gckpti_lower_schedule(gckpti_planner *p, const int *entries, int length)
{
    gckpti_lowered *d = &p->lowered;
    gckpti_scratch scratch = d->scratch;
    memset(d, 0, sizeof *d);
    d->scratch = scratch;
    gckpti_scratch_clear(&d->scratch);
    if (!gckpti_finish_schedule(p, entries, length, &d->scratch, &d->sched))
        return GCKPT_E_MEMORY;
    gckpt_result result = gckpti_pass(p, GCKPTI_PASS_SCHEDULE, &d->sched);
    if (result != GCKPT_OK)
        return result;
    if (!gckpti_reserve_lowered(p, d))
        return GCKPT_E_MEMORY;
    d->cost = gckpti_add_cost(p->base_cost,
                              gckpti_add_cost(d->sched.recompute_cost, d->sched.transfer_cost));
    gckpti_build_instructions(p, d);
    if (p->failed)
        return GCKPT_E_MEMORY;
    result = gckpti_pass(p, GCKPTI_PASS_LISTED, NULL);
    if (result != GCKPT_OK)
        return result;
    gckpti_build_buffers(p, d);
    return gckpti_sum_live(p, d);
}
#endif
