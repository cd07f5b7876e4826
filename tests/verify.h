/* verify.h - replays a plan over a shadow of its arena, and says what is wrong with it.
 *
 *   const char *problem = verify_plan(plan, graph); NULL: nothing; else a text, until the next call
 *
 * graph: for what gckpt_keep and gckpt_recompute promise; may be NULL.
 * The shadow knows which tensor's value, aux or gradient every byte range holds. A write makes
 * everything it overlaps unreadable; a read must find exactly what the op's row and the manual say,
 * whole and latest. The body of a looped plan is run twice; where there are leaves, each is one of
 * them. What a REDUCE exchanges with other ranks is under way until the next one, or the epilogue.
 * Written from the manual (3, 5f, 6), the
 * comments at gckpt_call, gckpt_op, gckpti_ins and gckpt_buffer, and what the executor does with
 * operands; nothing of the planner's lifetimes is used. Include it after the implementation. */
#ifndef TESTS_VERIFY_H
#define TESTS_VERIFY_H
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERIFY_NONE ((size_t)-1) /* offset of an operand that is not there */

/* What a range can hold, per tensor: its value, aux, gradient, this rank's share of that, room for
 * what another rank sends, sums of leaves that wait; for an op in a looped plan: the accumulator of
 * each of its uses of something that does not depend on the batch. */
enum {
    VERIFY_VALUE,
    VERIFY_AUX,
    VERIFY_GRADIENT,
    VERIFY_SHARD,
    VERIFY_ROOM,
    VERIFY_WAITS,
    VERIFY_LEVELS = 4,
    VERIFY_USE = VERIFY_WAITS + VERIFY_LEVELS,
    VERIFY_SLOTS = VERIFY_USE + 8
};
typedef struct {
    size_t at, size;
    int held;        /* is it there */
    int parts;       /* gradients: contributions so far */
    int before_body; /* written by the prologue */
    int first;       /* written by the first forward of its tensor, before any backward */
    int buffer;      /* of gckpt_plan_buffer */
} verify_content;
typedef struct {
    size_t at, size;
    int input;   /* the gradient of which input is written there; -1: something else */
    int total;   /* it is that input's total */
    int scratch; /* there is a total beside it */
    int plain;   /* passed on: nothing is written */
} verify_range;

typedef struct {
    const gckpt_plan *p;
    const gckpt_graph *g;
    char text[256];
    int failed, round, rounds, x, backward_seen;
    int before,
        flight; /* instructions: the last backward, the REDUCE that is under way; -1: none */
    int staged; /* all parameters are read from copies in the arena; packed ones always are */
    size_t top;
    unsigned char *active, *updated, *backwards, *forwards, *reaches, *runs, *reduced;
    int *expected, *parts, *last_read, *next_buffer, *first_buffer, *claimed;
    verify_content *slots;
    int *present; /* slots that hold something */
    int present_count;
} verifier;

static inline void verify_say(verifier *v, const char *format, ...)
{
    va_list args;
    if (v->failed++)
        return;
    int n = snprintf(v->text, sizeof v->text, "instruction %d (round %d): ", v->x, v->round);
    va_start(args, format);
    vsnprintf(v->text + n, sizeof v->text - (size_t)n, format, args);
    va_end(args);
}

static inline const gckpti_node *verify_base(const gckpt_plan *p, const gckpti_node *node, int i)
{
    return &p->nodes[p->nodes[node->in[i]].base];
}
static inline int verify_base_id(const gckpt_plan *p, const gckpti_node *node, int i)
{
    return p->nodes[node->in[i]].base;
}
static inline size_t verify_bytes(const gckpti_node *node)
{
    size_t n = sizeof(float);
    for (int i = 0; i < node->shape.n; i++)
        n *= (size_t)node->shape.d[i];
    return n;
}
/* Input i's gradient has a low part (manual, 5e), of a sum that ends with the instruction (1) or,
 * behind the accumulator, with the step (2). */
static inline int verify_low(const gckpt_plan *p, const gckpti_node *node, int i)
{
    const gckpti_node *q = &p->nodes[node->in[i]];
    if (!(node->op->needs[i] & GCKPT_SUMS))
        return 0;
    if (q->batchless && !node->batchless)
        return p->looped ? 2 : 1;
    return verify_bytes(q) != verify_bytes(node);
}
/* What there is of low parts in front of a backward's own workspace. */
static inline size_t verify_work(const verifier *v, const gckpti_node *node, size_t own)
{
    size_t n = 0;
    for (int i = 0; i < node->inputs; i++)
        if (v->active[verify_base_id(v->p, node, i)] && verify_low(v->p, node, i) == 1)
            n = (n + 63) / 64 * 64 + verify_bytes(&v->p->nodes[node->in[i]]);
    return own ? (n + 63) / 64 * 64 + own : n;
}
static inline int verify_is_loss(const gckpti_node *node)
{
    return node->op && node->op->flags & GCKPT_LOSS;
}
static inline unsigned verify_needs(const verifier *v, const gckpti_node *node)
{
    unsigned mask = 0;
    for (int i = 0; i < node->inputs; i++)
        mask |= v->active[verify_base_id(v->p, node, i)] ? node->op->needs[i] : 0;
    return mask;
}
/* An input before i is the same tensor. */
static inline int verify_repeats(const gckpt_plan *p, const gckpti_node *node, int i)
{
    for (int k = 0; k < i; k++)
        if (verify_base_id(p, node, k) == verify_base_id(p, node, i))
            return 1;
    return 0;
}
static inline int verify_overlap(size_t a, size_t a_size, size_t b, size_t b_size)
{
    return a_size && b_size && a < b + b_size && b < a + a_size;
}
static inline verify_content *verify_slot(verifier *v, int id, int kind)
{
    return &v->slots[id * VERIFY_SLOTS + kind];
}

/* The range is touched: it must be in the arena, in its place. */
static inline void verify_touch(verifier *v, size_t at, size_t size, const char *what)
{
    if (at == VERIFY_NONE)
        verify_say(v, "%s has no place", what);
    else if (at % v->p->alignment)
        verify_say(v, "%s at %lu is not aligned", what, (unsigned long)at);
    else if (size > v->p->arena || at > v->p->arena - size)
        verify_say(v, "%s at %lu, %lu bytes, leaves the arena", what, (unsigned long)at,
                   (unsigned long)size);
    else if (at + size > v->top)
        v->top = at + size;
}

/* The last instruction that reads what is in c. What the prologue leaves is read in every round of
 * the body, so it has to outlive all of it (a REDUCE reads none of it, nor begins anything). */
static inline void verify_mark_read(verifier *v, const verify_content *c, int x)
{
    const gckpt_plan *p = v->p;
    int end = p->epilogue - 1;
    while (end > x && p->list[end].kind == GCKPT_REDUCE)
        end--;
    if (!p->looped || !c->before_body || x < p->body || x >= p->epilogue)
        end = x;
    if (c->buffer >= 0 && v->last_read[c->buffer] < end)
        v->last_read[c->buffer] = end;
}

static inline void verify_forget(verifier *v, int slot)
{
    v->slots[slot].held = 0;
    for (int i = 0; i < v->present_count; i++)
        if (v->present[i] == slot) {
            v->present[i] = v->present[--v->present_count];
            return;
        }
}

/* Something is written: whatever was there is gone. `but`: the slot that is written itself. */
static inline void verify_destroy(verifier *v, size_t at, size_t size, int but)
{
    for (int i = v->present_count; i-- > 0;) {
        const verify_content *c = &v->slots[v->present[i]];
        if (v->present[i] != but && verify_overlap(c->at, c->size, at, size))
            verify_forget(v, v->present[i]);
    }
}

/* The buffer that begins here with this instruction and belongs to tensor id; else `shared`, that
 * of what was there before. */
static inline int verify_buffer(verifier *v, size_t at, size_t size, int id, gckpt_buffer_kind kind,
                                int shared, int start)
{
    for (int b = v->first_buffer[start]; b >= 0; b = v->next_buffer[b]) {
        const gckpt_buffer *q = &v->p->lives[b];
        if (q->offset != at || q->size != size || q->id != id || q->kind != kind)
            continue;
        v->claimed[b] = 1;
        if (v->last_read[b] < start)
            v->last_read[b] = start;
        return b;
    }
    if (shared < 0 || v->p->lives[shared].size != size)
        verify_say(v, "no buffer is told for tensor %d, kind %d, at %lu", id, (int)kind,
                   (unsigned long)at);
    return shared;
}

static inline verify_content *verify_put(verifier *v, int id, int slot, size_t at, size_t size,
                                         int buffer)
{
    int number = id * VERIFY_SLOTS + slot;
    verify_content *c = &v->slots[number];
    if (!c->held)
        v->present[v->present_count++] = number;
    memset(c, 0, sizeof *c);
    c->at = at;
    c->size = size;
    c->held = 1;
    c->before_body = v->x < v->p->body;
    c->first = v->x < (int)v->p->length && v->p->list[v->x].first && !v->backward_seen;
    c->buffer = buffer;
    return c;
}

/* The range must hold this slot of tensor id. */
static inline verify_content *verify_read(verifier *v, int id, int slot, size_t at,
                                          const char *what)
{
    verify_content *c = verify_slot(v, id, slot);
    if (!c->held)
        verify_say(v, "reads the %s of tensor %d, which was never made or is overwritten", what,
                   id);
    else if (c->at != at)
        verify_say(v, "reads the %s of tensor %d at %lu; it is at %lu", what, id, (unsigned long)at,
                   (unsigned long)c->at);
    else
        verify_mark_read(v, c, v->x);
    if (v->g && slot <= VERIFY_AUX && v->g->tensors[id]->recompute && !v->p->nodes[id].batchless &&
        c->first && v->x >= v->p->body && v->x < v->p->epilogue &&
        !(v->p->nodes[id].op->flags & GCKPT_SIDE_EFFECT) &&
        (v->backward_seen || v->p->list[v->x].kind == GCKPT_BACKWARD))
        verify_say(v, "reads the %s of tensor %d, kept from the forward against its pin", what, id);
    return v->failed ? NULL : c;
}

/* The k-th use of a tensor, as node * 8 + input: users that depend on the batch first, each group in
 * reverse order, inputs ascending (manual, 5f). -1: no more. */
static inline int verify_use(const verifier *v, int id, int k)
{
    const gckpt_plan *p = v->p;
    for (int once = 0; once < 2; once++)
        for (int u = (int)p->node_count; u-- > 0;)
            for (int i = 0; v->runs[u] && p->nodes[u].batchless == once && i < p->nodes[u].inputs;
                 i++)
                if (verify_base_id(p, &p->nodes[u], i) == id && k-- == 0)
                    return u * GCKPT_MAX_INPUTS + i;
    return -1;
}

/* Where the backward of `user` puts the gradient of its input. */
static inline size_t verify_place(const gckpt_plan *p, int user, int input)
{
    for (size_t x = 0; x < p->length; x++)
        if (p->list[x].kind == GCKPT_BACKWARD && p->list[x].id == user)
            return p->operands[p->list[x].operands + 5 + 3 * (size_t)input];
    return VERIFY_NONE;
}

/* A use that depends on the batch. */
static inline int verify_in_body(const verifier *v, int use)
{
    return use >= 0 && !v->p->nodes[use / GCKPT_MAX_INPUTS].batchless;
}
/* How many of tensor id there are. */
static inline int verify_body_uses(const verifier *v, int id)
{
    int n = 0;
    while (verify_in_body(v, verify_use(v, id, n)))
        n++;
    return n;
}
/* Sums of leaves of its gradient are made by a REDUCE. */
static inline int verify_is_reduced(const verifier *v, int id)
{
    return v->p->leaves > 1 && v->p->nodes[id].batchless && v->active[id] &&
           verify_body_uses(v, id) > 0;
}

/* The complete gradient of tensor id: all contributions are there. In looped plans the accumulators
 * of all uses are added into the first, which then is the gradient; where there was a REDUCE, those
 * of the epilogue, to what that made. */
static inline void verify_sum(verifier *v, int id, size_t first, const size_t *others, int uses)
{
    const gckpti_node *node = &v->p->nodes[id];
    if (verify_is_reduced(v, id) && !v->reduced[id])
        verify_say(v, "the gradient of tensor %d is used, and was not reduced", id);
    if (!v->p->looped || !node->batchless) {
        const verify_content *c = verify_read(v, id, VERIFY_GRADIENT, first, "gradient");
        if (c && c->parts != v->expected[id])
            verify_say(v, "the gradient of tensor %d has %d of %d contributions", id, c->parts,
                       v->expected[id]);
        if (uses != 1)
            verify_say(v, "adds up %d accumulators of tensor %d", uses, id);
        return;
    }
    int done = verify_is_reduced(v, id) ? verify_body_uses(v, id) : 0, count = done > 0;
    int use = verify_use(v, id, done), buffer = -1;
    if (done) {
        const verify_content *c = verify_read(v, id, VERIFY_GRADIENT, first, "reduced gradient");
        if (c && c->parts != done)
            verify_say(v, "the gradient of tensor %d has %d of %d contributions", id, c->parts,
                       done);
        buffer = c ? c->buffer : -1;
        done--;
    }
    for (; use >= 0 && !v->failed; use = verify_use(v, id, done + ++count)) {
        int user = use / GCKPT_MAX_INPUTS, slot = VERIFY_USE + use % GCKPT_MAX_INPUTS;
        int rounds = v->p->nodes[user].batchless ? 1 : v->rounds;
        size_t at = count == 0 ? first : count < uses ? others[count - 1] : VERIFY_NONE;
        const verify_content *c = verify_read(v, user, slot, at, "accumulator");
        if (c && c->parts != rounds)
            verify_say(v, "an accumulator of tensor %d has %d of %d contributions", id, c->parts,
                       rounds);
        if (c && count == 0)
            buffer = c->buffer;
        verify_forget(v, user * VERIFY_SLOTS + slot);
    }
    if (count != uses)
        verify_say(v, "adds up %d accumulators of tensor %d, which has %d", uses, id, count);
    if (v->failed)
        return;
    verify_destroy(v, first, verify_bytes(node), -1);
    verify_put(v, id, VERIFY_GRADIENT, first, verify_bytes(node), buffer)->parts = v->expected[id];
}

static inline void verify_shape_call(const verifier *v, const gckpti_node *node, gckpt_call *call)
{
    memset(call, 0, sizeof *call);
    call->inputs = node->inputs;
    call->attributes = node->attribute_bytes ? v->p->words + node->attributes : NULL;
    call->threads = v->p->threads;
    call->plain = v->p->made_for != 0;
    for (int i = 0; i < node->inputs; i++)
        call->in[i].shape = v->p->nodes[node->in[i]].shape;
    node->op->shape(call);
}

/* Parameters of more than a block are cut; with their values, if these are the store's, as floats. */
static inline int verify_is_cut(const gckpt_plan *p, const gckpti_node *q)
{
    return q->kind == GCKPTI_PARAM && p->ranks > 1 && p->shard != GCKPT_SHARD_NONE &&
           verify_bytes(q) > 4096 * sizeof(float);
}
static inline int verify_is_gathered(const gckpt_plan *p, const gckpti_node *q)
{
    return verify_is_cut(p, q) && p->shard == GCKPT_SHARD_VALUES && !p->params[q->index].external &&
           p->params[q->index].storage == GCKPT_STORED_F32;
}
/* Bytes of the first of n equal parts of a tensor's blocks, halved again and again, rounded up. */
static inline size_t verify_part(const gckpti_node *q, int n)
{
    size_t bytes = verify_bytes(q), block = 4096 * sizeof(float),
           blocks = (bytes + block - 1) / block;
    for (; n > 1; n /= 2)
        blocks = (blocks + 1) / 2;
    return blocks * block < bytes ? blocks * block : bytes;
}

static inline int verify_in_arena(const verifier *v, const gckpti_node *q)
{
    return (q->kind == GCKPTI_OP && !gckpti_is_cache(q->op)) ||
           (q->kind == GCKPTI_PARAM &&
            (v->staged || v->p->params[q->index].storage != GCKPT_STORED_F32 ||
             verify_is_gathered(v->p, q)));
}

/* Values of inputs in `mask`; others and what is not in the arena have no place. */
static inline int verify_inputs(verifier *v, const gckpti_node *node, unsigned mask,
                                const size_t *at, size_t stride, verify_range *reads)
{
    int count = 0;
    for (int i = 0; i < node->inputs && !v->failed; i++) {
        const gckpti_node *q = verify_base(v->p, node, i);
        int id = verify_base_id(v->p, node, i);
        if (q->kind == GCKPTI_PARAM && mask & GCKPT_IN(i) && v->updated[id])
            verify_say(v, "reads parameter %d after its update", id);
        if (!verify_in_arena(v, q) || !(mask & GCKPT_IN(i))) {
            if (at[(size_t)i * stride] != VERIFY_NONE)
                verify_say(v, "input %d has a place, but is not in the arena or not read", i);
            continue;
        }
        if (!verify_read(v, id, VERIFY_VALUE, at[(size_t)i * stride], "value"))
            break;
        memset(&reads[count], 0, sizeof reads[count]);
        reads[count].at = at[(size_t)i * stride];
        reads[count].size = verify_bytes(q);
        reads[count++].input = i;
    }
    return count;
}

static inline void verify_workspace(verifier *v, size_t at, size_t size, int id)
{
    if (size == 0) {
        if (at != VERIFY_NONE)
            verify_say(v, "a workspace that the op does not ask for");
        return;
    }
    verify_touch(v, at, size, "workspace");
    if (!v->failed)
        verify_buffer(v, at, size, id, GCKPT_BUFFER_WORKSPACE, -1, v->x);
}

/* Each written range against all that is read, but for what `allowed` says, and one another. */
static inline void verify_apart(verifier *v, const gckpti_node *node, const verify_range *reads,
                                int read_count, const verify_range *writes, int write_count,
                                int (*allowed)(const gckpti_node *, const verify_range *,
                                               const verify_range *))
{
    for (int w = 0; w < write_count; w++) {
        const verify_range *a = &writes[w];
        for (int r = 0; r < read_count; r++)
            if (verify_overlap(a->at, a->size, reads[r].at, reads[r].size) &&
                !(a->at == reads[r].at && a->size == reads[r].size && allowed(node, a, &reads[r])))
                verify_say(v, "writes %lu..%lu, which it reads", (unsigned long)a->at,
                           (unsigned long)(a->at + a->size));
        for (int o = 0; o < w; o++) {
            const verify_range *b = &writes[o];
            int same = a->at == b->at && a->size == b->size, pass = a->plain && b->plain;
            if (verify_overlap(a->at, a->size, b->at, b->size) &&
                !(same && (pass || (a->total && b->input >= 0 && !b->scratch))))
                verify_say(v, "writes %lu..%lu twice", (unsigned long)a->at,
                           (unsigned long)(a->at + a->size));
        }
    }
}

/* ---- forward ---- */
static inline int verify_in_place(const gckpti_node *node, const verify_range *write,
                                  const verify_range *read)
{
    return write->input == 0 && node->op->flags & GCKPT_INPLACE(read->input);
}

static inline void verify_forward(verifier *v, const gckpti_ins *ins)
{
    const gckpt_plan *p = v->p;
    const gckpti_node *node = &p->nodes[ins->id];
    const size_t *o = p->operands + ins->operands;
    verify_range reads[GCKPT_MAX_INPUTS], writes[3];
    size_t out_size = verify_bytes(node);
    int writes_out = o[0] != VERIFY_NONE, writes_aux = o[1] != VERIFY_NONE, count = 0, id = ins->id;
    int effect = (node->op->flags & (GCKPT_LOSS | GCKPT_SIDE_EFFECT)) != 0, shared = -1;
    gckpt_call call;
    verify_shape_call(v, node, &call);
    if (ins->first != !v->forwards[id] && v->round == 0)
        verify_say(v, "forward of tensor %d: the flag `first` is wrong", id);
    if ((node->op->flags & GCKPT_SIDE_EFFECT || (v->g && v->g->tensors[id]->keep)) && !ins->first)
        verify_say(v, "tensor %d has a side effect or is kept, and is computed again", id);
    if (!writes_out && !writes_aux && !(effect && ins->first))
        verify_say(v, "forward of tensor %d makes nothing", id);
    if (writes_out && verify_is_loss(node))
        verify_say(v, "the loss %d has an output", id);
    if (writes_aux && !node->aux_bytes)
        verify_say(v, "tensor %d has no aux", id);
    v->forwards[id] = 1;
    int read_count = verify_inputs(v, node, ~0u, o + 3, 1, reads);
    memset(writes, 0, sizeof writes);
    if (writes_out) {
        verify_touch(v, o[0], out_size, "out");
        writes[count].at = o[0];
        writes[count].size = out_size;
        writes[count++].input = 0;
    }
    if (writes_aux) {
        verify_touch(v, o[1], node->aux_bytes, "aux");
        writes[count].at = o[1];
        writes[count].size = node->aux_bytes;
        writes[count++].input = -1;
    }
    verify_workspace(v, o[2], call.work_forward, id);
    if (call.work_forward) {
        writes[count].at = o[2];
        writes[count].size = call.work_forward;
        writes[count++].input = -1;
    }
    if (v->failed)
        return;
    verify_apart(v, node, reads, read_count, writes, count, verify_in_place);
    for (int i = 0; i < node->inputs && writes_out; i++) {
        const verify_content *c = verify_slot(v, verify_base_id(p, node, i), VERIFY_VALUE);
        if (verify_in_arena(v, verify_base(p, node, i)) && c->at == o[0] && c->size == out_size)
            shared = c->buffer;
    }
    for (int w = 0; w < count; w++)
        verify_destroy(v, writes[w].at, writes[w].size, -1);
    if (writes_out)
        verify_put(v, id, VERIFY_VALUE, o[0], out_size,
                   verify_buffer(v, o[0], out_size, id, GCKPT_BUFFER_VALUE, shared, v->x));
    if (writes_aux)
        verify_put(v, id, VERIFY_AUX, o[1], node->aux_bytes,
                   verify_buffer(v, o[1], node->aux_bytes, id, GCKPT_BUFFER_AUX, -1, v->x));
}

/* A parameter is brought in: its own value, as long as that is the one that the step began with. */
static inline void verify_copy(verifier *v, const gckpti_ins *ins)
{
    const gckpti_node *node = &v->p->nodes[ins->id];
    const size_t *o = v->p->operands + ins->operands;
    size_t size = verify_bytes(node);
    int id = ins->id;
    if (v->updated[id])
        verify_say(v, "brings parameter %d in after its update", id);
    if (ins->first != !v->forwards[id] && v->round == 0)
        verify_say(v, "copy of parameter %d: the flag `first` is wrong", id);
    if (o[1] != VERIFY_NONE || o[2] != VERIFY_NONE)
        verify_say(v, "the copy of parameter %d has aux or workspace", id);
    v->forwards[id] = 1;
    verify_touch(v, o[0], size, "copy");
    if (v->failed)
        return;
    verify_destroy(v, o[0], size, -1);
    verify_put(v, id, VERIFY_VALUE, o[0], size,
               verify_buffer(v, o[0], size, id, GCKPT_BUFFER_VALUE, -1, v->x));
}

/* ---- backward ---- */
/* Reads with input -2: the gradient of the output. */
static inline int verify_passed_on(const gckpti_node *node, const verify_range *write,
                                   const verify_range *read)
{
    return read->input == -2 && write->input >= 0 && !write->total &&
           (write->plain || (write->input == 0 && node->op->flags & GCKPT_INPLACE_GRAD));
}

/* Contributions come in the contract's order. The first two of a sum over uses may change places:
 * they are computed apart, and a + b = b + a; in looped plans all have accumulators of their own. */
static inline void verify_turn(verifier *v, int user, int i, int id)
{
    int use = user * GCKPT_MAX_INPUTS + i, batchless = v->p->nodes[id].batchless, k = v->parts[id];
    if ((batchless && v->p->looped) || use == verify_use(v, id, k) ||
        (batchless && k < 2 && use == verify_use(v, id, 1 - k)))
        return;
    verify_say(v, "contribution %d to the gradient of tensor %d is out of its turn", k, id);
}

/* Where input i's gradient goes: a new gradient, one that is added to, or scratch that is added to
 * the total. Appends to writes. */
static inline int verify_gradient(verifier *v, const gckpti_ins *ins, int i, verify_range *writes)
{
    const gckpt_plan *p = v->p;
    const gckpti_node *node = &p->nodes[ins->id], *q = verify_base(p, node, i);
    const size_t *o = p->operands + ins->operands;
    size_t gradient = o[5 + 3 * i], total = o[6 + 3 * i], size = verify_bytes(q);
    int id = verify_base_id(p, node, i), add = (ins->accumulate >> i) & 1;
    int zero = (ins->zero >> i) & 1, want_add, want_zero, want_total = 0;
    if (!v->active[id]) {
        if (gradient != VERIFY_NONE || total != VERIFY_NONE || add || zero)
            verify_say(v, "input %d needs no gradient, but has a place for one", i);
        return 0;
    }
    verify_turn(v, ins->id, i, id);
    if (p->looped && q->batchless) {
        verify_read(v, ins->id, VERIFY_USE + i, gradient, "accumulator");
        want_add = 1, want_zero = 0;
    } else if (v->parts[id] == 0) {
        want_add = want_zero = q->batchless;
    } else {
        want_total = q->batchless || verify_repeats(p, node, i);
        want_add = q->batchless || !want_total;
        want_zero = want_add && want_total;
        if (!verify_repeats(p, node, i))
            verify_read(v, id, VERIFY_GRADIENT, want_total ? total : gradient, "gradient so far");
        for (int k = i; k-- > 0;) /* where the input before it with this tensor put it */
            if (verify_base_id(p, node, k) == id) {
                if (total != (o[6 + 3 * k] != VERIFY_NONE ? o[6 + 3 * k] : o[5 + 3 * k]))
                    verify_say(v, "the gradients of inputs %d and %d do not meet", k, i);
                break;
            }
    }
    if (add != want_add || zero != want_zero || (total != VERIFY_NONE) != want_total)
        verify_say(v, "input %d: accumulate %d, zero %d, total %d; expected %d, %d, %d", i, add,
                   zero, total != VERIFY_NONE, want_add, want_zero, want_total);
    size *= verify_low(p, node, i) == 2 ? 2 : 1;
    verify_touch(v, gradient, size, "gradient");
    writes[0].at = gradient;
    writes[0].size = size;
    writes[0].input = i;
    writes[0].total = 0;
    writes[0].scratch = want_total;
    writes[0].plain =
        node->op->flags & GCKPT_PASSES(i) && !add && gradient == o[3] && size == verify_bytes(node);
    writes[1] = writes[0];
    writes[1].at = total;
    writes[1].total = 1;
    writes[1].scratch = writes[1].plain = 0;
    v->parts[id]++;
    return 1 + want_total;
}

/* After the kernel: the gradient of input i is there. */
static inline void verify_gradient_made(verifier *v, const gckpti_ins *ins, int i, int plain)
{
    const gckpt_plan *p = v->p;
    const gckpti_node *node = &p->nodes[ins->id], *q = verify_base(p, node, i);
    const size_t *o = p->operands + ins->operands;
    size_t gradient = o[5 + 3 * i], total = o[6 + 3 * i], size = verify_bytes(q);
    int id = verify_base_id(p, node, i), slot = id * VERIFY_SLOTS + VERIFY_GRADIENT, shared = -1;
    gckpt_buffer_kind kind = q->batchless ? GCKPT_BUFFER_PARAMETER_GRADIENT : GCKPT_BUFFER_GRADIENT;
    if (p->looped && q->batchless) {
        size *= verify_low(p, node, i) == 2 ? 2 : 1;
        slot = ins->id * VERIFY_SLOTS + VERIFY_USE + i;
        verify_destroy(v, gradient, size, slot);
        v->slots[slot].parts++;
        return;
    }
    if (total != VERIFY_NONE) { /* the scratch is gone with this instruction */
        verify_buffer(v, gradient, size, id, kind, -1, v->x);
        verify_destroy(v, gradient, size, -1);
        verify_destroy(v, total, size, slot);
        if (v->slots[slot].held)
            verify_mark_read(v, &v->slots[slot], v->x);
        v->slots[slot].parts++;
        return;
    }
    if ((ins->accumulate >> i) & 1 && !((ins->zero >> i) & 1)) {
        verify_destroy(v, gradient, size, slot);
        v->slots[slot].parts++;
        return;
    }
    const verify_content *out = verify_slot(v, ins->id, VERIFY_GRADIENT);
    if (gradient == o[3] && !q->batchless)
        shared = out->buffer;
    if (!plain)
        verify_destroy(v, gradient, size, -1);
    verify_put(v, id, VERIFY_GRADIENT, gradient, size,
               verify_buffer(v, gradient, size, id, kind, shared, v->x))
        ->parts = 1;
}

static inline void verify_backward(verifier *v, const gckpti_ins *ins)
{
    const gckpt_plan *p = v->p;
    const gckpti_node *node = &p->nodes[ins->id];
    const size_t *o = p->operands + ins->operands;
    verify_range reads[GCKPT_MAX_INPUTS + 3], writes[2 * GCKPT_MAX_INPUTS + 1];
    unsigned mask = verify_needs(v, node);
    int id = ins->id, wants_aux = mask & GCKPT_AUX && node->aux_bytes, write_count = 0;
    gckpt_call call;
    verify_shape_call(v, node, &call);
    call.work_backward = verify_work(v, node, call.work_backward);
    if (!v->runs[id])
        verify_say(v, "backward of tensor %d, which needs none", id);
    if (v->backwards[id]++)
        verify_say(v, "backward of tensor %d a second time", id);
    int read_count = verify_inputs(v, node, mask, o + 4, 3, reads);
    memset(reads + read_count, 0, 3 * sizeof *reads);
    memset(writes, 0, sizeof writes);
    if ((o[0] != VERIFY_NONE) != ((mask & GCKPT_OUT) != 0) ||
        (o[1] != VERIFY_NONE) != (wants_aux != 0))
        verify_say(v, "has places for out and aux that differ from what tensor %d needs", id);
    if (mask & GCKPT_OUT) {
        verify_read(v, id, VERIFY_VALUE, o[0], "value");
        reads[read_count].at = o[0];
        reads[read_count].size = verify_bytes(node);
        reads[read_count++].input = -1;
    }
    if (wants_aux) {
        verify_read(v, id, VERIFY_AUX, o[1], "aux");
        reads[read_count].at = o[1];
        reads[read_count].size = node->aux_bytes;
        reads[read_count++].input = -1;
    }
    if (verify_is_loss(node)) {
        if (o[3] != VERIFY_NONE || ins->uses != 1)
            verify_say(v, "the loss %d has a gradient", id);
    } else {
        verify_sum(v, id, o[3], o + 4 + 3 * node->inputs, ins->uses);
        reads[read_count].at = o[3];
        reads[read_count].size = verify_bytes(node);
        reads[read_count++].input = -2;
    }
    verify_workspace(v, o[2], call.work_backward, id);
    if (call.work_backward) {
        writes[0].at = o[2];
        writes[0].size = call.work_backward;
        writes[0].input = -1;
        write_count = 1;
    }
    for (int i = 0; i < node->inputs && !v->failed; i++)
        write_count += verify_gradient(v, ins, i, writes + write_count);
    if (v->failed)
        return;
    verify_apart(v, node, reads, read_count, writes, write_count, verify_passed_on);
    if (call.work_backward)
        verify_destroy(v, o[2], call.work_backward, -1);
    for (int w = 0; w < write_count && !v->failed; w++)
        if (writes[w].input >= 0 && !writes[w].total)
            verify_gradient_made(v, ins, writes[w].input, writes[w].plain);
}

/* ---- reduce ---- */
/* What was under way is over when instruction x begins. */
static inline void verify_land(verifier *v, int x)
{
    const gckpti_ins *ins = v->flight < 0 ? NULL : &v->p->list[v->flight];
    const size_t *o = ins ? v->p->operands + ins->operands : NULL;
    int now = v->x;
    if (!ins)
        return;
    v->x = x - 1;
    verify_read(v, ins->id, VERIFY_ROOM, o[0], "exchange's room");
    verify_read(v, ins->id, VERIFY_GRADIENT, o[1], "sum under way");
    verify_forget(v, ins->id * VERIFY_SLOTS + VERIFY_ROOM);
    if (o[2] != VERIFY_NONE) {
        verify_read(v, ins->id, VERIFY_SHARD, o[2], "share under way");
        verify_forget(v, ins->id * VERIFY_SLOTS + VERIFY_GRADIENT);
    }
    v->x = now;
    v->flight = -1;
}

/* Room for what another rank sends, which the REDUCEs behind one backward share: as large as the
 * largest needs. */
static inline void verify_room(verifier *v, int id, size_t at)
{
    const gckpt_plan *p = v->p;
    size_t size = verify_part(&p->nodes[id], 2), most = 0;
    int buffer = -1, largest = -1;
    for (int x = v->before + 1; x < (int)p->length && p->list[x].kind == GCKPT_REDUCE; x++) {
        size_t other = verify_part(&p->nodes[p->list[x].id], 2);
        largest = other > most ? p->list[x].id : largest;
        most = other > most ? other : most;
    }
    verify_touch(v, at, size, "exchange's room");
    if (!v->failed)
        buffer = verify_buffer(v, at, most, largest, GCKPT_BUFFER_TREE, -1, v->before);
    if (v->failed)
        return;
    verify_destroy(v, at, size, -1);
    verify_put(v, id, VERIFY_ROOM, at, size, buffer);
}

/* Sums that wait: each is written by some leaf, and read by a later one. */
static inline void verify_waiting(verifier *v, int id, const size_t *at)
{
    const gckpt_plan *p = v->p;
    size_t size = verify_bytes(&p->nodes[id]);
    for (int k = 0; (p->leaves / p->ranks) >> k > 1 && !v->failed; k++) {
        if (k == VERIFY_LEVELS)
            verify_say(v, "more levels than this test has room for");
        else if (v->round > 0) {
            verify_read(v, id, VERIFY_WAITS + k, at[k], "waiting sum");
        } else {
            verify_touch(v, at[k], size, "waiting sum");
            if (v->failed)
                return;
            verify_destroy(v, at[k], size, -1);
            verify_put(v, id, VERIFY_WAITS + k, at[k], size,
                       verify_buffer(v, at[k], size, id, GCKPT_BUFFER_TREE, -1, 0));
        }
    }
}

/* The uses of a leaf are added up to the first, with what waits; in the last leaf, with what other
 * ranks have. */
static inline void verify_reduce(verifier *v, const gckpti_ins *ins)
{
    const gckpt_plan *p = v->p;
    const size_t *o = p->operands + ins->operands;
    const gckpti_node *q = &p->nodes[ins->id];
    int id = ins->id, uses = verify_body_uses(v, id), buffer = -1, last = v->round == v->rounds - 1;
    int scatters =
        verify_is_cut(p, q) && gckpti_updates(&p->params[q->index]) && verify_use(v, id, uses) < 0;
    int shard = scatters && !p->looped && p->shard >= GCKPT_SHARD_GRADIENTS;
    if (!verify_is_reduced(v, id) || v->reduced[id]++)
        verify_say(v, "tensor %d is reduced twice, or has no sums of leaves", id);
    if (v->x - 1 != v->before && p->list[v->x - 1].kind != GCKPT_REDUCE)
        verify_say(v, "REDUCE does not stand behind a backward");
    if (ins->accumulate != scatters || (o[2] != VERIFY_NONE) != shard ||
        (o[0] != VERIFY_NONE) != (p->ranks > 1) || ins->uses != (p->looped ? uses : 1))
        verify_say(v, "REDUCE of tensor %d: scatters %d, shard %d, room %d, uses %d", id,
                   ins->accumulate, o[2] != VERIFY_NONE, o[0] != VERIFY_NONE, ins->uses);
    verify_land(v, v->x);
    for (int k = 0; k < ins->uses && p->looped && !v->failed; k++) {
        int use = verify_use(v, id, k), user = use / GCKPT_MAX_INPUTS;
        int slot = VERIFY_USE + use % GCKPT_MAX_INPUTS;
        verify_content *c = verify_read(v, user, slot, k ? o[2 + k] : o[1], "accumulator");
        if (c && c->parts != 1)
            verify_say(v, "a leaf's accumulator of tensor %d has %d contributions", id, c->parts);
        buffer = c && k == 0 ? c->buffer : buffer;
        if (c && last)
            verify_forget(v, user * VERIFY_SLOTS + slot);
        else if (c)
            c->parts = 0;
    }
    verify_waiting(v, id, o + 3 + ins->uses - 1);
    if (v->failed || !last)
        return;
    if (p->looped) {
        verify_destroy(v, o[1], verify_bytes(q), -1);
        verify_put(v, id, VERIFY_GRADIENT, o[1], verify_bytes(q), buffer)->parts = uses;
    }
    const verify_content *c = verify_read(v, id, VERIFY_GRADIENT, o[1], "gradient");
    if (c && c->parts != uses)
        verify_say(v, "the gradient of tensor %d is reduced with %d of %d contributions", id,
                   c->parts, uses);
    if (!v->failed && p->ranks > 1) {
        v->flight = v->x;
        verify_room(v, id, o[0]);
    }
    size_t size = verify_part(q, p->ranks);
    if (!v->failed && shard) {
        verify_touch(v, o[2], size, "share");
        verify_destroy(v, o[2], size, -1);
        verify_put(
            v, id, VERIFY_SHARD, o[2], size,
            verify_buffer(v, o[2], size, id, GCKPT_BUFFER_PARAMETER_GRADIENT, -1, v->before));
    }
}

/* ---- update ---- */
/* A parameter's gradient is there as this rank's share of it. */
static inline int verify_is_share(const verifier *v, int id)
{
    return verify_slot((verifier *)v, id, VERIFY_SHARD)->held;
}

static inline void verify_update(verifier *v, const gckpti_ins *ins)
{
    const gckpt_plan *p = v->p;
    int id = p->params[ins->id].node, first = 1;
    for (int i = 0; i < (int)p->node_count; i++)
        first = first && !v->updated[i];
    for (size_t i = 0; i < p->term_count && first; i++)
        if (!v->forwards[p->terms[i].id])
            verify_say(v, "updates before the loss %d has counted", p->terms[i].id);
    /* Clipping needs every gradient before the first update. */
    for (size_t y = 0; y < p->length && !v->failed; y++) {
        const gckpti_ins *u = &p->list[y];
        if (u->kind == GCKPT_UPDATE && (p->update_in_backward ? u == ins : first) &&
            !verify_is_share(v, p->params[u->id].node))
            verify_sum(v, p->params[u->id].node, p->operands[u->operands],
                       p->operands + u->operands + 1, u->uses);
    }
    if (!p->params[ins->id].trained || v->updated[id])
        verify_say(v, "parameter %d is updated twice, or not trained", id);
    verify_read(v, id, verify_is_share(v, id) ? VERIFY_SHARD : VERIFY_GRADIENT,
                p->operands[ins->operands], "gradient");
    v->updated[id] = 1;
}

/* A picked gradient that no instruction adds up: in a looped plan its uses are, when the step ends. */
static inline void verify_picked(verifier *v, int id, size_t first)
{
    const gckpt_plan *p = v->p;
    const gckpti_node *q = &p->nodes[id];
    size_t others[64];
    int n = 0, use, done = verify_is_reduced(v, id) ? verify_body_uses(v, id) - 1 : 0;
    if (!p->looped || !q->batchless || v->runs[id] ||
        (q->kind == GCKPTI_PARAM && p->params[q->index].trained))
        return;
    for (use = verify_use(v, id, done); use >= 0 && n < 64; use = verify_use(v, id, done + ++n))
        if (n > 0)
            others[n - 1] = verify_place(p, use / GCKPT_MAX_INPUTS, use % GCKPT_MAX_INPUTS);
    verify_sum(v, id, first, others, n);
}

/* ---- the whole plan ---- */
/* Which tensors need a gradient: they lead to a loss and are picked, or depend on what is picked or
 * on a trained parameter. Which ops run backwards: an input needs one. */
static inline void verify_find_active(verifier *v)
{
    const gckpt_plan *p = v->p;
    for (size_t i = 0; i < p->term_count; i++)
        v->reaches[p->terms[i].id] = 1;
    for (size_t i = p->node_count; i-- > 0;)
        for (int k = 0; p->nodes[i].kind == GCKPTI_OP && k < p->nodes[i].inputs; k++)
            if (v->reaches[i] && p->nodes[i].op->backward)
                v->reaches[verify_base_id(p, &p->nodes[i], k)] = 1;
    for (size_t i = 0; i < p->pick_count && p->mode != GCKPT_INFERENCE; i++)
        if (p->picks[i].gradient)
            v->active[p->nodes[p->picks[i].id].base] = 1;
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_node *node = &p->nodes[i];
        if (node->kind == GCKPTI_PARAM && p->params[node->index].trained) {
            v->active[i] = 1;
            if (!v->reaches[i] || p->mode == GCKPT_INFERENCE)
                verify_say(v, "parameter %d is trained, but leads to no loss", (int)i);
        }
        for (int k = 0; node->kind == GCKPTI_OP && k < node->inputs; k++)
            if (v->reaches[i] && node->op->backward && v->active[verify_base_id(p, node, k)])
                v->active[i] = v->runs[i] = 1;
        for (int k = 0; v->runs[i] && k < node->inputs; k++)
            v->expected[verify_base_id(p, node, k)]++;
    }
}

static inline void verify_instruction(verifier *v, int x)
{
    const gckpt_plan *p = v->p;
    const gckpti_ins *ins = &p->list[x];
    const gckpti_node *node = ins->kind == GCKPT_UPDATE ? NULL : &p->nodes[ins->id];
    int part = x < p->body ? 0 : x < p->epilogue ? 1 : 2;
    v->x = x;
    int copy = node && node->kind == GCKPTI_PARAM && ins->kind == GCKPT_FORWARD && part < 2;
    if (part == 2)
        verify_land(v, p->epilogue);
    if (copy)
        verify_copy(v, ins);
    else if (ins->kind == GCKPT_REDUCE && part == 1)
        verify_reduce(v, ins);
    else if (node && node->kind != GCKPTI_OP)
        verify_say(v, "tensor %d is not an op's", ins->id);
    else if (node && node->batchless != (part != 1))
        verify_say(v, "tensor %d is in the wrong part of the list", ins->id);
    else if (ins->kind == GCKPT_FORWARD && part == 2)
        verify_say(v, "a forward in the epilogue");
    else if (ins->kind == GCKPT_BACKWARD && part == 0)
        verify_say(v, "a backward in the prologue");
    else if (!node && part != 2 && !(p->update_in_backward && part == 1))
        verify_say(v, "an update in the wrong part");
    else if (ins->kind == GCKPT_FORWARD)
        verify_forward(v, ins);
    else if (ins->kind == GCKPT_BACKWARD)
        verify_backward(v, ins);
    else
        verify_update(v, ins);
    v->backward_seen = v->backward_seen || (part == 1 && ins->kind == GCKPT_BACKWARD);
    v->before = ins->kind == GCKPT_BACKWARD ? x : v->before;
}

static inline void verify_round_start(verifier *v)
{
    memset(v->reduced, 0, v->p->node_count);
    for (size_t i = 0; i < v->p->node_count; i++) {
        verify_content *value = verify_slot(v, (int)i, VERIFY_VALUE);
        if (value->held && v->p->nodes[i].kind == GCKPTI_PARAM && !value->before_body)
            verify_forget(v, (int)i * VERIFY_SLOTS + VERIFY_VALUE);
        for (int s = 0; s < VERIFY_USE && !v->p->nodes[i].batchless; s++) {
            v->parts[i] = 0;
            v->backwards[i] = 0;
            if (verify_slot(v, (int)i, s)->held)
                verify_forget(v, (int)i * VERIFY_SLOTS + s);
        }
    }
    v->backward_seen = 0;
}

static inline void verify_end(verifier *v)
{
    const gckpt_plan *p = v->p;
    uint64_t work = 0, least = 0, once = 0, again = 0;
    v->x = (int)p->length;
    for (size_t i = 0; i < p->term_count; i++)
        if (!v->forwards[p->terms[i].id])
            verify_say(v, "the loss %d is never computed", p->terms[i].id);
    for (size_t i = 0; i < p->node_count && !v->failed; i++) {
        if (v->runs[i] && !v->backwards[i])
            verify_say(v, "no backward of tensor %d", (int)i);
        if (p->nodes[i].kind == GCKPTI_PARAM && p->params[p->nodes[i].index].trained &&
            !v->updated[i])
            verify_say(v, "no update of parameter %d", (int)i);
    }
    for (size_t i = 0; i < p->pick_count && !v->failed; i++) {
        const gckpti_plan_pick *k = &p->picks[i];
        int id = p->nodes[k->id].base, seen = 0;
        for (size_t j = 0; j < i; j++)
            seen = seen || (p->picks[j].gradient && p->nodes[p->picks[j].id].base == id);
        if (k->gradient && !seen)
            verify_picked(v, id, k->offset);
        const verify_content *c = verify_read(v, id, k->gradient ? VERIFY_GRADIENT : VERIFY_VALUE,
                                              k->offset, "picked tensor");
        if (c && k->gradient && c->parts != v->expected[id])
            verify_say(v, "the picked gradient of tensor %d is not complete", id);
    }
    for (size_t x = 0; x < p->length; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpt_cost *cost = ins->kind == GCKPT_UPDATE ? NULL : &p->told[ins->id].cost;
        uint64_t forward = cost && ins->kind == GCKPT_FORWARD ? cost->forward : 0;
        uint64_t backward = cost && ins->kind == GCKPT_BACKWARD ? cost->backward : 0;
        *(ins->first ? &once : &again) += forward;
        work += forward + backward;
        least += (ins->first ? forward : 0) + backward;
    }
    if (gckpt_plan_work(p) != work || p->least_work > least || (!p->least_work && least))
        verify_say(v, "work is told as %lu; it is %lu", (unsigned long)gckpt_plan_work(p),
                   (unsigned long)work);
    double recompute = once ? (double)again / (double)once : 0, told = gckpt_plan_recompute(p);
    double overhead = least ? (double)(work - p->least_work) / (double)p->least_work : 0;
    if (told < recompute - 1e-9 || told > recompute + 1e-9 ||
        gckpt_plan_overhead(p) < overhead - 1e-9 || gckpt_plan_overhead(p) > overhead + 1e-9)
        verify_say(v, "recompute or overhead is told wrong");
}

/* Buffers begin with the write that makes them and end with the last read; those live at an
 * instruction do not overlap and add up to its live bytes, at most to the bound. */
static inline void verify_buffers(verifier *v)
{
    const gckpt_plan *p = v->p;
    size_t most = 0, top = 0, slots = p->length + 1;
    for (size_t b = 0; b < p->life_count && !v->failed; b++) {
        const gckpt_buffer *q = &p->lives[b];
        int whole_step =
            p->looped && q->start == 0 && q->end == (int)p->length &&
            (q->kind == GCKPT_BUFFER_PARAMETER_GRADIENT || q->kind == GCKPT_BUFFER_TREE);
        int last = v->last_read[b];
        /* what is under way to the end may end with the epilogue's first backward */
        if (p->ranks > 1 && last == p->epilogue - 1 && q->end == p->epilogue &&
            p->list[q->end].kind == GCKPT_BACKWARD)
            last = q->end;
        v->x = q->start;
        top = q->offset + q->size > top ? q->offset + q->size : top;
        if (!v->claimed[b])
            verify_say(v, "buffer %d of tensor %d holds nothing", (int)b, q->id);
        else if (whole_step ? q->end < last : q->end != last)
            verify_say(v, "buffer %d of tensor %d ends with instruction %d; it is last read by %d",
                       (int)b, q->id, q->end, last);
        if (b > 0 && q->end < p->lives[b - 1].end)
            verify_say(v, "buffers are not in order");
    }
    int *live = (int *)malloc((p->life_count + 1) * sizeof(int)), count = 0;
    for (size_t x = 0; x < slots && !v->failed; x++) {
        size_t sum = 0;
        int kept = 0;
        v->x = (int)x;
        for (int i = 0; i < count; i++)
            if (p->lives[live[i]].end >= (int)x)
                live[kept++] = live[i];
        count = kept;
        for (int b = v->first_buffer[x]; b >= 0; b = v->next_buffer[b]) {
            for (int i = 0; i < count; i++)
                if (verify_overlap(p->lives[live[i]].offset, p->lives[live[i]].size,
                                   p->lives[b].offset, p->lives[b].size))
                    verify_say(v, "buffers %d and %d overlap", live[i], b);
            live[count++] = b;
        }
        for (int i = 0; i < count; i++)
            sum += p->lives[live[i]].size;
        if (x < p->length && sum != p->live[x])
            verify_say(v, "%lu bytes are told as live; there are %lu", (unsigned long)p->live[x],
                       (unsigned long)sum);
        most = sum > most ? sum : most;
    }
    free(live);
    size_t kinds = gckpt_plan_kind_bytes(p, GCKPT_BYTES_GRADIENTS) +
                   gckpt_plan_kind_bytes(p, GCKPT_BYTES_ACTIVATIONS) +
                   gckpt_plan_kind_bytes(p, GCKPT_BYTES_WORKSPACE) +
                   gckpt_plan_kind_bytes(p, GCKPT_BYTES_TREE) +
                   gckpt_plan_kind_bytes(p, GCKPT_BYTES_GATHERED);
    v->x = (int)p->length;
    if (most != gckpt_plan_bound(p) || kinds != most || gckpt_plan_arena(p) < most)
        verify_say(v, "bound %lu, its kinds %lu, arena %lu; %lu bytes are live at most",
                   (unsigned long)gckpt_plan_bound(p), (unsigned long)kinds,
                   (unsigned long)gckpt_plan_arena(p), (unsigned long)most);
    if (top != gckpt_plan_arena(p) || v->top != top)
        verify_say(v, "arena of %lu bytes; buffers end at %lu, operands at %lu",
                   (unsigned long)gckpt_plan_arena(p), (unsigned long)top, (unsigned long)v->top);
}

static inline int verify_start(verifier *v)
{
    const gckpt_plan *p = v->p;
    size_t n = p->node_count;
    for (size_t b = p->life_count; b-- > 0;) {
        const gckpt_buffer *q = &p->lives[b];
        v->last_read[b] = -1;
        if (q->start < 0 || q->end < q->start || (size_t)q->end > p->length || !q->size) {
            verify_say(v, "buffer %d has no sensible life", (int)b);
            return 0;
        }
    }
    for (size_t x = 0; x <= p->length; x++)
        v->first_buffer[x] = -1;
    for (size_t b = p->life_count; b-- > 0;) {
        v->next_buffer[b] = v->first_buffer[p->lives[b].start];
        v->first_buffer[p->lives[b].start] = (int)b;
    }
    verify_find_active(v);
    for (size_t x = 0; x < p->length; x++)
        v->staged =
            v->staged ||
            (p->list[x].kind == GCKPT_FORWARD && p->nodes[p->list[x].id].kind == GCKPTI_PARAM &&
             !verify_is_gathered(p, &p->nodes[p->list[x].id]) &&
             p->params[p->nodes[p->list[x].id].index].storage == GCKPT_STORED_F32);
    for (size_t i = 0; i < n && p->looped; i++) /* cleared when a step starts */
        for (int k = 0; v->runs[i] && k < p->nodes[i].inputs; k++) {
            const gckpti_node *q = verify_base(p, &p->nodes[i], k);
            int id = verify_base_id(p, &p->nodes[i], k);
            size_t at = verify_place(p, (int)i, k);
            if (at == VERIFY_NONE || !q->batchless || !v->active[id])
                continue;
            size_t size = verify_bytes(q) * (verify_low(p, &p->nodes[i], k) == 2 ? 2 : 1);
            verify_touch(v, at, size, "accumulator");
            if (v->failed)
                return 0;
            verify_destroy(v, at, size, -1);
            verify_put(v, (int)i, VERIFY_USE + k, at, size,
                       verify_buffer(v, at, size, id, GCKPT_BUFFER_PARAMETER_GRADIENT, -1, 0));
        }
    return !v->failed;
}

/* What is wrong with the plan, or NULL. */
static inline const char *verify_plan(const gckpt_plan *p, const gckpt_graph *g)
{
    static verifier v;
    size_t n = p->node_count + 1, length = p->length + 2, lives = p->life_count + 1;
    memset(&v, 0, sizeof v);
    v.p = p;
    v.g = g;
    v.rounds = p->looped ? 2 : 1;
    unsigned char *flags = (unsigned char *)calloc(n, 7);
    int *numbers = (int *)calloc(2 * n + n * VERIFY_SLOTS + length + 3 * lives, sizeof(int));
    v.slots = (verify_content *)calloc(n * VERIFY_SLOTS, sizeof *v.slots);
    v.active = flags;
    v.updated = flags + n;
    v.backwards = flags + 2 * n;
    v.forwards = flags + 3 * n;
    v.reaches = flags + 4 * n;
    v.runs = flags + 5 * n;
    v.reduced = flags + 6 * n;
    v.before = v.flight = -1;
    v.expected = numbers;
    v.parts = numbers + n;
    v.present = numbers + 2 * n;
    v.first_buffer = v.present + n * VERIFY_SLOTS;
    v.next_buffer = v.first_buffer + length;
    v.last_read = v.next_buffer + lives;
    v.claimed = v.last_read + lives;
    if (verify_start(&v)) {
        for (int x = 0; x < p->body && !v.failed; x++)
            verify_instruction(&v, x);
        for (v.round = 0; v.round < v.rounds && !v.failed; v.round++) {
            verify_round_start(&v);
            for (int x = p->body; x < p->epilogue && !v.failed; x++)
                verify_instruction(&v, x);
        }
        v.round--;
        for (int x = p->epilogue; x < (int)p->length && !v.failed; x++)
            verify_instruction(&v, x);
        if (!v.failed)
            verify_end(&v);
        if (!v.failed)
            verify_buffers(&v);
    }
    free(v.slots);
    free(numbers);
    free(flags);
    return v.failed ? v.text : NULL;
}
#endif
