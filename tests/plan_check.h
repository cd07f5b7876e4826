/* plan_check.h - checks that a plan keeps the promises of the manual, independently of the planner.
 *   const char *problem = plan_check(plan, graph, desc); returns NULL if nothing is wrong, else a text that names the
 *                                                        instruction, valid until the next call
 *
 * Tests check every plan that they make. If gradckpt.h and this file are included (check.h includes this file),
 * then gckpt_plan_new, gckpt_frontier_plan, and fit_plan of examples/fit.h are macros that check returned
 * plans; a problem counts as a failed check. Printing the operands of a plan takes about 10 times as long as all
 * other checks, so operands are checked only for a test's first 32 plans and for every 8th plan after these, or as
 * the test defines PLAN_CHECK_PRINTS. A test that makes wrong plans on purpose defines PLAN_CHECK_OFF "why" before
 * its includes.
 *
 * The checker shares no code with the planner. It reads the graph through gckpt_graph_node, and the plan through its
 * public getters, its numbers (struct gckpt_plan) and, if the plan can be printed, its C constant (gckpt_plan_c), which
 * has the operands that the executor uses. A table below lists the inputs that ops read. Macros record the op descriptors
 * and policies that tests pass. With these facts and the manual (3, 5f, 6), all instructions are checked in one pass:
 *   - Each instruction is in its part of the list. Each input that an instruction reads is the current definition, in a
 *     live buffer. Every forward has a reader.
 *   - Each backward that a trained parameter or a fetch needs occurs once, and so does each update. Each loss occurs at
 *     least once, each side effect exactly once. No parameter is read after its update.
 *   - Gradients are complete when they are used, and added up in the order of the numeric specification. A REDUCE
 *     follows when the sums of a virtual rank are complete, and its receive buffer lives until the next REDUCE.
 *   - A reloaded value was offloaded after its forward, an offload_done belongs to an offload, and offloaded values fit
 *     into slower memory. With desc.offload.overlap, the cost is the time of two queues, as the manual defines it.
 *   - Buffers begin where they are written and end where they are read last. Two buffers that are live at the same time
 *     do not overlap. The sizes of buffers add up to the live bytes, the peak and the arena, and the costs of
 *     instructions add up to the plan's cost.
 * plan_facts holds everything that the checker has read about a plan, so that a test can change a fact and check
 * again. desc is the request of the plan, or NULL; without desc, budget, policies, costs and plans of backends are
 * not checked. */
#ifndef TESTS_PLAN_CHECK_H
#define TESTS_PLAN_CHECK_H
#include "names.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "unary.h"

#define PC_NONE ((size_t)-1)
#if defined(__GNUC__) && __GNUC__ >= 4
#define PC_LOCAL __thread /* in some tests each rank is a thread, so each thread needs its own variables */
#else
#define PC_LOCAL
#endif

enum { PC_BACKWARD = 1 << 30 }; /* this flag says that the op has a backward */
typedef struct {
    const char *name;
    unsigned flags, needs[GCKPT_MAX_INPUTS]; /* as in gckpt_op */
} pc_op;
/* ---- the facts that the checker has read about a graph and a plan ---- */
typedef enum { PC_OP, PC_INPUT, PC_CONSTANT, PC_PARAM, PC_VIEW } pc_kind;
typedef struct {
    pc_kind kind;
    pc_op op;
    /* in: ids of the inputs; base: for a view, the id of the tensor with which it shares bytes, otherwise the node's
     * id */
    int base, inputs, in[GCKPT_MAX_INPUTS];
    /* indices: nonzero for i32 elements; bytes: nonzero for u8 elements */
    int batch_invariant, keep, recompute, indices, bytes;
    int64_t n;                               /* elements */
    /* saved: bytes of saved data, or PC_NONE if unknown; shape: index of its shape in the C constant */
    size_t saved, shape;
} pc_node;
typedef struct {
    int count, terms, *term;
    pc_node *node;
} pc_graph;
/* An instruction as the C constant has it; the operands begin at operand[at]. */
typedef struct {
    int kind, first, accumulate, zero, id, uses, at;
} pc_ins;
typedef struct {
    int id, gradient;
    size_t offset; /* PC_NONE if unknown */
} pc_fetch;
typedef struct {
    int count, params; /* tensors; parameters */
    pc_node *node;
    int terms, *term, fetches;
    pc_fetch *fetch;
    unsigned char *trained; /* trained[id]: nonzero if the plan updates the parameter */
    /* streamed[id]: nonzero if its state passes through the workspace of its update; streams: of any parameter */
    unsigned char *streamed, streams;
    gckpt_cost *cost;       /* costs of the ops, indexed by id */
    /* offset in slower memory, or PC_NONE: [2 id] of the value, [2 id + 1] of the saved data */
    size_t *host_offset;
    int length, buffers;
    gckpt_instruction *list;
    gckpt_usage *usage;
    gckpt_buffer *buffer; /* the buffers, sorted by the instruction with which they end */
    pc_ins *ins;          /* instructions with their operands, or NULL if the plan cannot be printed as C */
    size_t *operand, operands;
    gckpt_mode mode;
    gckpt_precision precision;
    gckpt_shard shard;
    int64_t rows, batch;
    int in_backward, virtual_ranks, ranks, has_fused; /* has_fused: nonzero if the plan has fused groups */
    int custom; /* nonzero if the program updates the parameters: an UPDATE has a workspace, or none, as its last operand */
    size_t budget; /* budget of the request, or 0 if there is no budget or the request is unknown */
    int by_model;  /* nonzero if the planner estimated the costs of ops, 0 if they are measured */
    size_t alignment, arena, bound, bytes, kind[GCKPT_BYTES_KINDS], offloaded, offload_bytes;
    uint64_t work, hidden, least, proven_work, offload_work;
    int overlap_offload;
    size_t proven_bytes;
    double recompute, overhead;
    char wrong[200]; /* the first error found while reading the plan */
} plan_facts;

/* The Makefile compiles these functions only once, as an object file for which PLAN_CHECK_BODY is defined. */
#ifdef PLAN_CHECK_LINKED
#define PC_API
#else
#define PC_API static inline
#endif
PC_API const char *plan_check(const gckpt_plan *plan, const gckpt_graph *graph,
                              const gckpt_plan_desc *desc);
/* The steps of plan_check, for tests that change facts between them. The terms and the fetches of desc are needed
 * only for the plan of a backend. */
PC_API pc_graph *pc_graph_new(const gckpt_graph *graph, const gckpt_term *terms, int count);
PC_API void pc_graph_free(pc_graph *g);
PC_API int plan_facts_read(plan_facts *f, const gckpt_plan *plan, const pc_graph *g,
                           const gckpt_plan_desc *desc);
/* Reads the operands from the C code of the plan. Returns 0 if the plan cannot be printed as C. */
PC_API int plan_facts_print(plan_facts *f, const gckpt_plan *plan);
PC_API const char *plan_facts_check(const plan_facts *f);
PC_API void plan_facts_free(plan_facts *f);
/* These functions record an op descriptor or a policy that a test passes to the library. */
PC_API void pc_note_op(const gckpt_tensor *t, const gckpt_op *op);
PC_API void pc_note_policy(const gckpt_tensor *t, int keep);
PC_API void pc_reset_graph(const gckpt_graph *graph);
PC_API const pc_op *pc_find_op(const char *name); /* returns NULL if the library has no op with this name */

#if !defined(PLAN_CHECK_LINKED) || defined(PLAN_CHECK_BODY)
#ifndef GRADCKPT_IMPLEMENTATION
#include "plan/plan.h"
#ifdef __cplusplus
} /* of the extern "C" that base/config.h begins */
#endif
#endif
/* ---- table of the library's ops: what the backward reads; which inputs' bytes the output may take over, and which
 * gradients may take over those of the output's gradient ---- */
enum {
    PC_0 = GCKPT_IN(0),
    PC_1 = GCKPT_IN(1),
    PC_2 = GCKPT_IN(2),
    PC_3 = GCKPT_IN(3),
    PC_O = GCKPT_OUT,
    PC_A = GCKPT_SAVED,
    PC_S = GCKPT_SUMS,
    PC_ELEMENT = PC_BACKWARD | GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD,
    PC_PAIR = PC_BACKWARD | GCKPT_INPLACE(0) | GCKPT_INPLACE(1),
    PC_LOSS = PC_BACKWARD | GCKPT_LOSS,
    PC_CELL = PC_1 | PC_2 | PC_3 | PC_O | PC_A,
    PC_DELTA = PC_0 | PC_1 | PC_2 | PC_3 | GCKPT_IN(4)
};
static const pc_op pc_ops[] = {
#define PC_UNARY(name, reads, ...) { #name, PC_ELEMENT, { reads } },
    UNARY_TESTS(PC_UNARY)
#undef PC_UNARY
    { "softmax", PC_ELEMENT, { PC_O } },
    { "log_softmax", PC_ELEMENT, { PC_O } },
    { "pow", PC_ELEMENT, { PC_0 } },
    { "clamp", PC_ELEMENT, { PC_0 } },
    { "leaky_relu", PC_ELEMENT, { PC_O } },
    { "elu", PC_ELEMENT, { PC_0 } },
    { "where",
      PC_BACKWARD | GCKPT_INPLACE(1) | GCKPT_INPLACE(2),
      { 0, PC_0 | PC_S, PC_0 | PC_S } },
    { "detach", GCKPT_INPLACE(0), { 0 } },
    { "scale", PC_ELEMENT, { 0 } },
    { "dropout", PC_ELEMENT, { 0 } },
    { "from_u8", 0, { 0 } },
    { "rotary", PC_ELEMENT, { 0 } },
    { "add", PC_PAIR | GCKPT_PASSES_GRAD(0) | GCKPT_PASSES_GRAD(1), { PC_S, PC_S } },
    { "sub", PC_PAIR | GCKPT_PASSES_GRAD(0), { PC_S, PC_S } },
    { "mul", PC_PAIR, { PC_1 | PC_S, PC_0 | PC_S } },
    { "div", PC_PAIR, { PC_1 | PC_S, PC_0 | PC_1 | PC_S } },
    { "prelu", PC_PAIR, { PC_0 | PC_1 | PC_S, PC_0 | PC_S } },
    { "maximum", PC_PAIR, { PC_0 | PC_1 | PC_S, PC_0 | PC_1 | PC_S } },
    { "minimum", PC_PAIR, { PC_0 | PC_1 | PC_S, PC_0 | PC_1 | PC_S } },
    { "permute", PC_BACKWARD, { 0 } },
    { "slice", PC_BACKWARD, { 0 } },
    { "concat", PC_BACKWARD, { 0 } },
    { "pad", PC_BACKWARD, { 0 } },
    { "sum", PC_BACKWARD, { 0 } },
    { "mean", PC_BACKWARD, { 0 } },
    { "max", PC_BACKWARD, { PC_A } },
    { "argmax", 0, { 0 } },
    { "top_k", PC_BACKWARD, { PC_A } },
    { "top_k_indices", 0, { 0 } },
    { "fused", 0, { 0 } },
    { "cache", GCKPT_SIDE_EFFECT, { 0 } },
    { "delta_state", GCKPT_SIDE_EFFECT, { 0 } },
    { "embed", PC_BACKWARD, { PC_1 } },
    { "gather", PC_BACKWARD, { PC_1 } },
    { "matmul", PC_BACKWARD, { PC_1, PC_0 } },
    { "broadcast_matmul", PC_BACKWARD, { PC_1, PC_0 } },
    { "linear", PC_BACKWARD, { PC_1, PC_0, PC_S } },
    { "conv2d", PC_BACKWARD, { PC_1, PC_0, PC_S } },
    { "layernorm", PC_BACKWARD, { PC_0 | PC_1 | PC_A, PC_0 | PC_A | PC_S, PC_S } },
    { "rmsnorm", PC_BACKWARD, { PC_0 | PC_1 | PC_A, PC_0 | PC_A | PC_S } },
    { "groupnorm", PC_BACKWARD, { PC_0 | PC_1 | PC_A, PC_0 | PC_A | PC_S, PC_S } },
    { "batchnorm",
      PC_BACKWARD,
      { PC_0 | PC_3 | PC_A, PC_A | PC_S, PC_A | PC_S, PC_0 | PC_A | PC_S, PC_S } },
    { "attention",
      PC_BACKWARD,
      { PC_0 | PC_1 | PC_2 | PC_O | PC_A, PC_0 | PC_1 | PC_2 | PC_O | PC_A, PC_0 | PC_1 | PC_A } },
    { "masked_attention",
      PC_BACKWARD,
      { PC_0 | PC_1 | PC_2 | PC_3 | PC_O | PC_A, PC_0 | PC_1 | PC_2 | PC_3 | PC_O | PC_A, PC_0 | PC_1 | PC_3 | PC_A,
        PC_0 | PC_1 | PC_2 | PC_3 | PC_O | PC_A } },
    { "gru", PC_BACKWARD, { PC_CELL, PC_CELL, PC_CELL | PC_S, PC_CELL } },
    { "gru_reset_before", PC_BACKWARD, { PC_CELL, PC_CELL, PC_CELL | PC_S, PC_CELL } },
    { "lstm", PC_BACKWARD, { PC_CELL, PC_CELL, PC_CELL, PC_CELL } },
    { "delta_rule", PC_BACKWARD, { PC_DELTA, PC_DELTA, PC_DELTA, PC_DELTA, PC_DELTA } },
    { "max_pool", PC_BACKWARD, { PC_A } },
    { "average_pool", PC_BACKWARD, { 0 } },
    { "upsample", PC_BACKWARD, { 0 } },
    { "cross_entropy", PC_LOSS, { PC_0 | PC_1 | PC_A } },
    { "linear_cross_entropy", PC_LOSS, { PC_0 | PC_1 | PC_2 | PC_A, PC_0 | PC_1 | PC_2 | PC_A } },
    { "cross_entropy_with", PC_LOSS, { PC_0 | PC_1 | PC_2 | PC_A, 0, PC_0 | PC_1 | PC_A } },
    { "soft_cross_entropy",
      PC_LOSS,
      { PC_0 | PC_1 | PC_2 | PC_A, PC_0 | PC_1 | PC_2 | PC_A, PC_0 | PC_1 | PC_A } },
    { "mean_squared_error", PC_LOSS, { PC_0 | PC_1, PC_0 | PC_1 } },
    { "mean_squared_error_with", PC_LOSS, { PC_0 | PC_1 | PC_2, PC_0 | PC_1 | PC_2, PC_0 | PC_1 } },
    { "huber", PC_LOSS, { PC_0 | PC_1 | PC_2, PC_0 | PC_1 | PC_2, PC_0 | PC_1 } },
    { "binary_cross_entropy", PC_LOSS, { PC_0 | PC_1 | PC_2, PC_0 | PC_1 | PC_2, PC_0 | PC_1 } },
    { "sum_loss", PC_LOSS, { 0 } },
};

/* ---- op descriptors and policies, recorded from the calls of the test ---- */
typedef struct {
    const gckpt_graph *graph;
    int id, policy; /* policy: 1 for must_save, -1 for must_recompute, 0 for none */
    pc_op op;    /* descriptor of a user-defined op; name is NULL for an op of the library */
} pc_note;
static PC_LOCAL pc_note *pc_notes;
static PC_LOCAL size_t pc_note_count, pc_note_capacity;

static inline void *pc_alloc(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (!p)
        abort();
    return p;
}

static inline pc_note *pc_note_new(const gckpt_tensor *t)
{
    if (pc_note_count == pc_note_capacity) {
        pc_note_capacity = 2 * pc_note_capacity + 64;
        pc_notes = (pc_note *)realloc(pc_notes, pc_note_capacity * sizeof *pc_notes);
        if (!pc_notes)
            abort();
    }
    pc_note *p = &pc_notes[pc_note_count++];
    memset(p, 0, sizeof *p);
    p->graph = gckpt_graph_of(t);
    p->id = gckpt_id(t);
    return p;
}

PC_API void pc_note_op(const gckpt_tensor *t, const gckpt_op *op)
{
    if (!t)
        return;
    pc_op *q = &pc_note_new(t)->op;
    q->name = op->name;
    q->flags = (op->flags & ~(unsigned)PC_BACKWARD) | (op->backward ? (unsigned)PC_BACKWARD : 0u);
    memcpy(q->needs, op->needs, sizeof q->needs);
}

PC_API void pc_note_policy(const gckpt_tensor *t, int keep)
{
    if (t)
        pc_note_new(t)->policy = keep ? 1 : -1;
}

/* A new graph has this address: deletes the records of an earlier, freed graph with the same address. */
PC_API void pc_reset_graph(const gckpt_graph *graph)
{
    size_t kept = 0;
    for (size_t i = 0; i < pc_note_count; i++)
        if (pc_notes[i].graph != graph)
            pc_notes[kept++] = pc_notes[i];
    pc_note_count = kept;
}

static inline int64_t pc_elements(const gckpt_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->n; i++)
        n *= s->d[i];
    return n;
}

PC_API const pc_op *pc_find_op(const char *name)
{
    for (size_t i = 0; i < sizeof pc_ops / sizeof *pc_ops; i++)
        if (!strcmp(pc_ops[i].name, name))
            return &pc_ops[i];
    return NULL;
}

PC_API pc_graph *pc_graph_new(const gckpt_graph *graph, const gckpt_term *terms, int count)
{
    pc_graph *g = (pc_graph *)pc_alloc(1, sizeof *g);
    const char *last = NULL; /* name of the preceding node's op, since consecutive nodes often have the same op */
    const pc_op *found = NULL;
    g->count = gckpt_graph_size(graph);
    g->node = (pc_node *)pc_alloc((size_t)g->count, sizeof *g->node);
    g->terms = count;
    g->term = (int *)pc_alloc((size_t)count, sizeof *g->term);
    for (int i = 0; i < count; i++)
        g->term[i] = gckpt_id(terms[i].loss);
    for (int i = 0; i < g->count; i++) {
        gckpt_node t;
        pc_node *q = &g->node[i];
        gckpt_graph_node(graph, i, &t);
        q->kind = t.inputs && !strcmp(t.op, "reshape") ? PC_VIEW
                  : t.inputs                           ? PC_OP
                  : !strcmp(t.op, "input")             ? PC_INPUT
                  : !strcmp(t.op, "param")             ? PC_PARAM
                                                       : PC_CONSTANT;
        q->base = q->kind == PC_VIEW ? g->node[t.input[0]].base : i;
        q->inputs = t.inputs;
        memcpy(q->in, t.input, sizeof q->in);
        q->batch_invariant = t.batch_invariant;
        q->indices = t.type == GCKPT_I32;
        q->bytes = t.type == GCKPT_U8;
        q->n = pc_elements(&t.shape);
        q->saved = PC_NONE;
        if (q->kind == PC_OP && t.op != last)
            found = pc_find_op(last = t.op);
        if (q->kind == PC_OP && found)
            q->op = *found;
    }
    for (size_t i = 0; i < pc_note_count; i++) {
        const pc_note *p = &pc_notes[i];
        if (p->graph != graph || p->id >= g->count)
            continue;
        pc_node *q = &g->node[p->op.name ? p->id : g->node[p->id].base];
        if (p->op.name)
            q->op = p->op;
        else
            q->keep = p->policy > 0, q->recompute = p->policy < 0;
    }
    return g;
}

PC_API void pc_graph_free(pc_graph *g)
{
    if (g)
        free(g->node), free(g->term);
    free(g);
}

/* ---- reading a plan: from its fields and from its C code ---- */
typedef struct {
    char *bytes;
    size_t count, capacity, at;
    int truncated; /* nonzero once a read went beyond the end of the text */
} pc_text;

static inline size_t pc_write(void *user, const void *bytes, size_t size)
{
    pc_text *t = (pc_text *)user;
    if (t->capacity - t->count <= size) {
        t->capacity = 2 * t->capacity + size + 65536;
        t->bytes = (char *)realloc(t->bytes, t->capacity);
        if (!t->bytes)
            abort();
    }
    memcpy(t->bytes + t->count, bytes, size);
    t->count += size;
    t->bytes[t->count] = 0;
    return size;
}

static inline void pc_read_error(plan_facts *f, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!*f->wrong)
        vsnprintf(f->wrong, sizeof f->wrong, format, args);
    va_end(args);
}

/* Reads those facts that no getter reports from the fields of the plan. */
static inline void pc_read_fields(plan_facts *f, const gckpt_plan *plan)
{
    size_t params = 0;
    f->cost = (gckpt_cost *)pc_alloc((size_t)f->count, sizeof *f->cost);
    if (plan->node_count != (size_t)f->count) {
        pc_read_error(f, "it has %lu tensors, the graph %d", (unsigned long)plan->node_count, f->count);
        return;
    }
    for (int i = 0; i < f->count; i++)
        f->cost[i] = plan->info[i].cost;
    f->least = plan->least_cost;
    f->offload_work = plan->host_cost;
    f->precision = plan->precision;
    if (plan->fused < f->has_fused)
        pc_read_error(f, "it knows nothing of fused groups");
    f->virtual_ranks = plan->virtual_ranks;
    f->ranks = plan->ranks;
    f->shard = plan->shard;
    f->overlap_offload = plan->overlaps_copies;
    f->alignment = plan->alignment;
    f->terms = (int)plan->term_count;
    f->term = (int *)pc_alloc((size_t)f->terms, sizeof *f->term);
    for (int i = 0; i < f->terms; i++)
        f->term[i] = plan->terms[i].id;
    f->fetches = (int)plan->fetch_count;
    f->fetch = (pc_fetch *)pc_alloc((size_t)f->fetches, sizeof *f->fetch);
    for (int i = 0; i < f->fetches; i++) {
        f->fetch[i].id = plan->fetches[i].id;
        f->fetch[i].gradient = plan->fetches[i].gradient != 0;
        f->fetch[i].offset = PC_NONE;
    }
    for (int i = 0; i < f->count; i++)
        if (f->node[i].kind == PC_PARAM && params++ < plan->param_count) {
            const gckpti_plan_param *q = &plan->params[params - 1];
            f->trained[i] = q->trained || q->running;
        }
    if (params != plan->param_count || plan->buffer_count != (size_t)f->buffers)
        pc_read_error(f, "it has other parameters or buffers");
}

/* Moves to the place after the next `what` in the text of a plan's C constant. */
static inline void pc_seek(pc_text *t, const char *what)
{
    const char *at = strstr(t->bytes + t->at, what);
    t->truncated = t->truncated || !at;
    if (at)
        t->at = (size_t)(at - t->bytes) + strlen(what);
}

/* Reads the next number in the text of a plan's C constant. SIZE_MAX is read as PC_NONE. */
static inline size_t pc_word(pc_text *t)
{
    const char *at = t->bytes + t->at;
    size_t n = 0;
    int minus;
    while (*at && (*at < '0' || *at > '9') && *at != 'S')
        at++;
    minus = at > t->bytes && at[-1] == '-';
    if (*at == 'S') {
        t->at = (size_t)(at - t->bytes) + 8;
        return PC_NONE;
    }
    t->truncated = t->truncated || !*at;
    while (*at >= '0' && *at <= '9')
        n = 10 * n + (size_t)(*at++ - '0');
    t->at = (size_t)(at - t->bytes);
    return minus ? 0 - n : n;
}

/* Reads from the C constant: operands of instructions, sizes of saved data, offsets in slower memory, offsets of
 * fetches. */
static inline void pc_read_printed(plan_facts *f, pc_text *t)
{
    free(f->ins), free(f->host_offset), free(f->operand); /* from an earlier call */
    f->operands = 0;
    pc_seek(t, "gckpti_x_nodes[] = {");
    for (int i = 0; i < f->count && !t->truncated; i++) {
        pc_node *q = &f->node[i];
        pc_seek(t, "\n    { ");
        pc_seek(t, ", ");
        pc_seek(t, ", "); /* op and data */
        q->saved = pc_word(t);
        pc_word(t), pc_word(t); /* attributes */
        q->shape = pc_word(t);
        pc_word(t); /* name */
        int base = (int)pc_word(t);
        pc_word(t);
        if (base != q->base)
            pc_read_error(f, "tensor %d has base %d in C", i, base);
        for (int k = 0; k < GCKPT_MAX_INPUTS; k++)
            if (pc_word(t) != (size_t)(k < q->inputs ? q->in[k] : 0))
                pc_read_error(f, "tensor %d has another input %d in C", i, k);
    }
    f->host_offset = (size_t *)pc_alloc(2 * (size_t)f->count, sizeof *f->host_offset);
    pc_seek(t, "gckpti_x_info[] = {\n");
    for (int i = 0; i < 2 * f->count && !t->truncated; i++) {
        for (int k = i % 2 ? 0 : 4; k > 0; k--)
            pc_word(t); /* skips two costs; UINT64_C(cost) is read as two numbers, 64 and the cost */
        f->host_offset[i] = pc_word(t);
    }
    pc_seek(t, "gckpti_x_sizes[] = {\n");
    for (size_t at = 0, end = 0; at <= end && !t->truncated; at++) {
        int64_t n = 1;
        const size_t first = at;
        for (size_t k = pc_word(t); k > 0; k--, at++)
            n *= (int64_t)pc_word(t);
        for (int i = 0; i < f->count; i++) {
            end = f->node[i].shape > end ? f->node[i].shape : end;
            if (f->node[i].shape == first && f->node[i].n != n)
                pc_read_error(f, "tensor %d has another shape in C", i);
        }
    }
    f->ins = (pc_ins *)pc_alloc((size_t)f->length, sizeof *f->ins);
    if (f->length)
        pc_seek(t, "gckpti_x_ins[] = {\n");
    for (int x = 0; x < f->length && !t->truncated; x++) {
        pc_ins *n = &f->ins[x];
        n->kind = (int)pc_word(t), n->first = (int)pc_word(t);
        n->accumulate = (int)pc_word(t), n->zero = (int)pc_word(t);
        n->id = (int)pc_word(t), n->uses = (int)pc_word(t), n->at = (int)pc_word(t);
    }
    const char *begin = strstr(t->bytes + t->at, "gckpti_x_operands[] = {");
    const char *end = begin ? strchr(begin, '}') : NULL;
    f->operand = (size_t *)pc_alloc(end ? (size_t)(end - begin) / 3 : 0, sizeof *f->operand);
    if (end)
        pc_seek(t, "gckpti_x_operands[] = {\n");
    while (end && t->bytes + t->at + 2 < end)
        f->operand[f->operands++] = pc_word(t);
    if (f->fetches)
        pc_seek(t, "gckpti_x_fetches[] = {\n");
    for (int i = 0; i < f->fetches && !t->truncated; i++) {
        pc_word(t), pc_word(t);
        f->fetch[i].offset = pc_word(t);
    }
    if (t->truncated)
        pc_read_error(f, "its C constant is not as expected");
}

PC_API int plan_facts_print(plan_facts *f, const gckpt_plan *plan)
{
    pc_text t;
    memset(&t, 0, sizeof t);
#ifndef GCKPT_NO_EXPORT
    int printed = gckpt_plan_c(plan, "x", pc_write, &t) == GCKPT_OK;
#else
    int printed = 0;
    (void)plan;
#endif
    if (printed)
        pc_read_printed(f, &t);
    free(t.bytes);
    return printed;
}

/* Finds whether a loss runs in another lowering than the one in which it was built; the loss then reads the inputs of
 * its logits instead of the logits. */
static inline void pc_read_lowering(plan_facts *f, const gckpt_plan *plan, int id)
{
    pc_node *q = &f->node[id];
    const char *name = gckpt_plan_op(plan, id);
    if (q->kind != PC_OP || !q->op.name || !(q->op.flags & GCKPT_LOSS) || !strcmp(name, q->op.name))
        return;
    const pc_node *logits = &f->node[q->in[0]];
    if (strcmp(q->op.name, "cross_entropy") || strcmp(name, "linear_cross_entropy") ||
        logits->kind != PC_OP || logits->inputs != 2) {
        pc_read_error(f, "tensor %d, %s, runs as %s", id, q->op.name, name);
        return;
    }
    q->in[2] = q->in[1];
    q->in[0] = logits->in[0];
    q->in[1] = logits->in[1];
    q->inputs = 3;
    q->op = *pc_find_op("linear_cross_entropy");
}

/* An op that the plan runs as `fused` is the last op of a fused group. The other ops of the group do not run by
 * themselves, and their results are read only within the group. Finds the ops and the inputs of the group. */
static inline void pc_read_fused(plan_facts *f, const gckpt_plan *plan, int id)
{
    pc_node *q = &f->node[id], as = *q;
    const char *name = gckpt_plan_op(plan, id);
    if (q->kind != PC_OP || !q->op.name || !name || strcmp(name, "fused"))
        return;
    unsigned char *alone = (unsigned char *)pc_alloc((size_t)f->count, 1);
    unsigned char *inside = (unsigned char *)pc_alloc((size_t)f->count, 1);
    int ops = 0;
    for (int x = 0; x < f->length; x++)
        if (f->list[x].kind == GCKPT_FORWARD)
            alone[f->list[x].id] = 1;
    inside[id] = 1;
    as.inputs = 0;
    for (int i = id; i >= 0; i--)
        for (int k = 0; k < f->node[i].inputs && inside[i]; k++) {
            const int in = f->node[f->node[i].in[k]].base;
            inside[in] |= f->node[in].kind == PC_OP && !f->node[in].batch_invariant && !alone[in];
        }
    for (int i = 0; i < f->count; i++)
        for (int k = 0; f->node[i].kind == PC_OP && k < f->node[i].inputs; k++) {
            const int in = f->node[i].in[k], base = f->node[in].base;
            int m = 0;
            if (inside[base] && base != id && !inside[i])
                pc_read_error(f, "tensor %d of the group of %d is read by %d", base, id, i);
            if (!inside[i] || inside[base] || f->node[base].kind == PC_PARAM ||
                f->node[base].kind == PC_CONSTANT)
                continue;
            while (m < as.inputs && as.in[m] != in)
                m++;
            if (m == GCKPT_MAX_INPUTS)
                pc_read_error(f, "the group of %d has too many inputs", id);
            else if (m == as.inputs)
                as.in[as.inputs++] = in;
        }
    for (int i = 0; i < f->count; i++)
        ops += inside[i];
    if (ops < 2)
        pc_read_error(f, "the group of %d has one op", id);
    as.op = *pc_find_op("fused");
    *q = as;
    f->has_fused = 1;
    free(alone), free(inside);
}

/* Reads all facts about the plan. Returns 0 if the plan cannot be checked, since it is for a backend and desc is NULL or
 * has virtual ranks. */
PC_API int plan_facts_read(plan_facts *f, const gckpt_plan *plan, const pc_graph *g,
                           const gckpt_plan_desc *desc)
{
    const gckpt_plan_info info = gckpt_plan_describe(plan);
    memset(f, 0, sizeof *f);
    f->count = g->count;
    f->node = (pc_node *)pc_alloc((size_t)f->count, sizeof *f->node);
    memcpy(f->node, g->node, (size_t)f->count * sizeof *f->node);
    f->trained = (unsigned char *)pc_alloc((size_t)f->count, 1);
    f->streamed = (unsigned char *)pc_alloc((size_t)f->count, 1);
    for (int i = 0; i < f->count; i++)
        pc_read_lowering(f, plan, i);
    f->length = info.instructions;
    f->list = (gckpt_instruction *)pc_alloc((size_t)f->length, sizeof *f->list);
    f->usage = (gckpt_usage *)pc_alloc((size_t)f->length, sizeof *f->usage);
    for (int x = 0; x < f->length; x++) {
        gckpt_plan_get(plan, x, &f->list[x]);
        gckpt_plan_usage(plan, x, &f->usage[x]);
        if (f->list[x].kind == GCKPT_UPDATE && f->list[x].id >= 0 && f->list[x].id < f->count)
            f->trained[f->list[x].id] = 1;
    }
    for (int i = 0; i < f->count; i++)
        pc_read_fused(f, plan, i);
    f->buffers = info.buffers;
    f->buffer = (gckpt_buffer *)pc_alloc((size_t)f->buffers, sizeof *f->buffer);
    for (int b = 0; b < f->buffers; b++)
        gckpt_plan_buffer(plan, b, &f->buffer[b]);
    f->mode = info.mode;
    f->in_backward = info.update_in_backward;
    f->custom = plan->optimiser == GCKPT_CUSTOM_OPTIMISER;
    f->rows = info.rows;
    f->arena = info.arena;
    f->bound = info.peak;
    f->bytes = gckpt_plan_bytes(plan);
    for (int k = 0; k < GCKPT_BYTES_KINDS; k++)
        f->kind[k] = k == GCKPT_BYTES_TABLES ? 0 : gckpt_plan_kind_bytes(plan, k);
    f->work = info.cost;
    f->hidden = info.hidden_cost;
    f->recompute = info.recompute;
    f->overhead = info.overhead;
    f->offload_bytes = desc ? desc->offload.bytes : info.offloaded;
    f->budget = desc ? desc->budget : 0;
    f->by_model = desc && !desc->costs.by_id && !desc->backend;
    f->batch = info.batch;
    f->offloaded = info.offloaded;
    for (size_t i = 0; i < plan->param_count && !f->custom && f->kind[GCKPT_BYTES_HOST_STATE]; i++)
        if (plan->params[i].node >= 0 && plan->params[i].node < f->count)
            f->streams |= f->streamed[plan->params[i].node] = plan->params[i].slots > 0;
    const int for_cpu = plan->backend_id <= GCKPTI_BACKEND_PLAIN;
    if (for_cpu) {
        f->proven_work = info.proven_cost;
        f->proven_bytes = info.proven_bytes;
        pc_read_fields(f, plan);
    } else if (desc) {
        f->precision = desc->bf16.precision;
        f->alignment = desc->kernels.alignment ? desc->kernels.alignment : 64;
        f->offload_work = desc->offload.cost;
        f->overlap_offload = desc->offload.overlap;
        f->virtual_ranks = f->ranks = 1;
        f->terms = g->terms;
        f->term = (int *)pc_alloc((size_t)f->terms, sizeof *f->term);
        memcpy(f->term, g->term, (size_t)f->terms * sizeof *f->term);
        f->fetches = desc->fetch.count;
        f->fetch = (pc_fetch *)pc_alloc((size_t)f->fetches, sizeof *f->fetch);
        for (int i = 0; i < f->fetches; i++) {
            f->fetch[i].id = gckpt_id(desc->fetch.specs[i].tensor);
            f->fetch[i].gradient = desc->fetch.specs[i].gradient;
            f->fetch[i].offset = PC_NONE;
        }
    }
    return for_cpu || (desc && desc->ranks.virtual_ranks <= 1);
}

PC_API void plan_facts_free(plan_facts *f)
{
    free(f->node), free(f->term), free(f->fetch), free(f->trained), free(f->streamed), free(f->cost);
    free(f->host_offset);
    free(f->list), free(f->usage), free(f->buffer), free(f->ins), free(f->operand);
    memset(f, 0, sizeof *f);
}

/* ---- checking all instructions in one pass ---- */
/* A definition and the buffer that should hold it. Each write to a buffer changes the buffer's stamp; if that differs
 * from the stamp stored here, another definition has overwritten this one. */
typedef struct {
    int buffer; /* index of the buffer, or -1 if this definition was never written */
    int stamp, writer, first, parts;
} pc_content;
enum { PC_LEVELS = 24 };
typedef struct {
    const plan_facts *f;
    char *text;
    size_t text_size;
    int failed, x, body, epilogue, accumulates, backward_seen, barrier_seen, updates_seen;
    /* arrays indexed by id: */
    unsigned char *reaches, *active, *runs_backward, *staged, *has_saved, *is_term, *narrow;
    unsigned char *forwards, *backwards, *updated, *reduced, *offloaded_now, *live_value, *live_saved;
    int *expected, *first_use;
    /* current definitions by id; only sum is indexed by use: id * GCKPT_MAX_INPUTS + number of the input */
    pc_content *value, *saved, *gradient, *shard, *sum;
    int *next_use, *order;
    /* arrays indexed by instruction: */
    int *first_buffer;
    unsigned char *keeps_value, *keeps_saved, *dies, *offloaded;
    /* arrays indexed by buffer: */
    int *next_buffer, *stamp, *last_read;
    unsigned char *claimed;
    const size_t *operand, *operand_end; /* operands of the current instruction, if they are known */
    /* pending: id of the REDUCE in progress, or -1; before: index of the last backward, or -1 */
    int pending, before;
    int exchange;                        /* the receive buffer of the REDUCE in progress */
    int workspace;                            /* the buffer that is the current instruction's workspace, or -1 */
    int scratch;                              /* the last backward's workspace, which updates may use, or -1 */
    /* offset of the op's own workspace in that buffer, after the bf16 conversions */
    size_t own_workspace;
} pc_state;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void
pc_fail(pc_state *w, const char *format, ...)
{
    static const char *const kinds[] = { GCKPT_KIND_NAMES };
    const plan_facts *f = w->f;
    va_list args;
    size_t n = 0;
    if (w->failed++)
        return;
    if (w->x < f->length) {
        gckpt_instruction in = f->list[w->x];
        const char *op = in.id >= 0 && in.id < f->count ? f->node[in.id].op.name : NULL;
        n = (size_t)snprintf(w->text, w->text_size, "instruction %d, %s of %d%s%s: ", w->x,
                             (unsigned)in.kind < 7 ? kinds[in.kind] : "?", in.id, op ? " " : "",
                             op ? op : "");
    } else {
        n = (size_t)snprintf(w->text, w->text_size, "after instruction %d: ", w->x - 1);
    }
    va_start(args, format);
    if (n < w->text_size)
        vsnprintf(w->text + n, w->text_size - n, format, args);
    va_end(args);
}

static inline int pc_base(const plan_facts *f, const pc_node *q, int i)
{
    return f->node[q->in[i]].base;
}
static inline int pc_is_loss(const pc_node *q) { return (q->op.flags & GCKPT_LOSS) != 0; }
static inline int pc_is_cache(const pc_node *q)
{
    return q->kind == PC_OP && q->op.name && (!strcmp(q->op.name, "cache") || !strcmp(q->op.name, "delta_state"));
}
/* Returns whether an op that reads the tensor reads it from the arena. */
static inline int pc_in_arena(const pc_state *w, int id)
{
    const pc_node *q = &w->f->node[id];
    return q->kind == PC_OP ? !pc_is_cache(q) : w->staged[id];
}
enum { PC_VALUE = 1, PC_GRADIENT = 2 };
static inline size_t pc_bytes(const pc_state *w, int id, int narrow)
{
    const pc_node *q = &w->f->node[id];
    return (size_t)q->n * (q->bytes ? 1 : w->narrow[id] & narrow ? 2 : 4);
}
/* Returns which inputs and results the backward of the node reads, as bits (see gckpt_op.needs). */
static inline unsigned pc_needs(const pc_state *w, const pc_node *q)
{
    unsigned mask = 0;
    for (int i = 0; i < q->inputs; i++) {
        const pc_node *in = &w->f->node[pc_base(w->f, q, i)];
        mask |= w->active[pc_base(w->f, q, i)] ? q->op.needs[i] : 0;
        /* a backward also reads indices that an op has computed */
        mask |= in->indices && in->kind == PC_OP ? GCKPT_IN(i) : 0;
    }
    return mask;
}
/* Returns whether input i is the same tensor as an earlier input or, if `any` is nonzero, as any other input. */
static inline int pc_repeats(const plan_facts *f, const pc_node *q, int i, int any)
{
    for (int k = 0; k < (any ? q->inputs : i); k++)
        if (k != i && pc_base(f, q, k) == pc_base(f, q, i))
            return 1;
    return 0;
}
/* Returns 2 if the gradient sum of input i has a compensation (manual, 5e) during the whole step, 1 if it has one
 * only during the instruction, 0 if it has none. */
static inline int pc_comp(const pc_state *w, const pc_node *q, int i)
{
    const pc_node *in = &w->f->node[q->in[i]];
    if (!(q->op.needs[i] & GCKPT_SUMS))
        return 0;
    if (in->batch_invariant && !q->batch_invariant)
        return w->accumulates ? 2 : 1;
    return in->n != q->n;
}
/* Returns whether the gradient has a separate accumulator for each use of the tensor (manual, 5f). This is so for
 * batch-invariant tensors in a plan that accumulates. */
static inline int pc_has_sums(const pc_state *w, int id)
{
    return w->accumulates && w->f->node[id].batch_invariant;
}

/* ---- buffers ---- */
/* Returns the buffer of this tensor and kind that begins at instruction x, or -1. If ends is 1, the buffer must end
 * with this instruction; if 0, it must end later; if -1, it may do either. hint: offset of the buffer, if known. */
static inline int pc_claim_buffer(pc_state *w, int x, int id, gckpt_buffer_kind kind, size_t size,
                            int ends, size_t hint)
{
    int found = -1;
    for (int b = w->first_buffer[x]; b >= 0; b = w->next_buffer[b]) {
        const gckpt_buffer *q = &w->f->buffer[b];
        if (w->claimed[b] || q->id != id || q->kind != kind ||
            (size != PC_NONE && q->size != size) || (ends >= 0 && (q->end == x) != ends))
            continue;
        if (found < 0 || q->offset == hint)
            found = b;
    }
    if (found >= 0)
        w->claimed[found] = 1;
    return found;
}

static inline void pc_touch(pc_state *w, int b, int x)
{
    if (w->last_read[b] < x)
        w->last_read[b] = x;
}

/* Records that the current instruction writes a new definition into buffer b, which overwrites the one before. */
static inline pc_content pc_put(pc_state *w, int b)
{
    pc_content h = { b, ++w->stamp[b], w->x, 0, 0 };
    pc_touch(w, b, w->x);
    return h;
}

/* Returns the last instruction of the body that is neither a REDUCE nor the NEXT. */
static inline int pc_body_end(const pc_state *w)
{
    int x = w->epilogue - 1;
    while (x > w->body && (w->f->list[x].kind == GCKPT_REDUCE || w->f->list[x].kind == GCKPT_NEXT))
        x--;
    return x;
}

/* Checks that the definition h is complete and still there when an instruction reads it. Results of the prologue are
 * read in every micro-batch, so they must live to the end of the body. */
static inline int pc_read(pc_state *w, const pc_content *h, const char *what, int id)
{
    int x = w->x;
    if (h->buffer < 0) {
        pc_fail(w, "reads the %s of %d, which was never computed", what, id);
        return 0;
    }
    const gckpt_buffer *b = &w->f->buffer[h->buffer];
    if (h->stamp != w->stamp[h->buffer]) {
        pc_fail(w, "reads the %s of %d, which something was written over", what, id);
        return 0;
    }
    if (w->accumulates && h->writer < w->body && x >= w->body && x < w->epilogue && x < pc_body_end(w))
        x = pc_body_end(w);
    if (x > b->end)
        pc_fail(w, "reads the %s of %d, whose buffer %d ends with instruction %d%s", what, id,
               h->buffer, b->end, x > w->x ? " in the midst of a loop" : "");
    pc_touch(w, h->buffer, x);
    return !w->failed;
}

static inline size_t pc_offset(const pc_state *w, const pc_content *h)
{
    return h && h->buffer >= 0 ? w->f->buffer[h->buffer].offset : PC_NONE;
}

/* Returns the operand that is `ahead` places after the next one, or PC_NONE if operands are unknown. */
static inline size_t pc_hint(const pc_state *w, int ahead)
{
    return w->operand && w->operand + ahead < w->operand_end ? w->operand[ahead] : PC_NONE;
}
static inline void pc_operand(pc_state *w, const char *what, int i, size_t offset)
{
    if (!w->operand || w->failed)
        return;
    if (w->operand >= w->operand_end)
        pc_fail(w, "has too few operands");
    else if (*w->operand++ != offset)
        pc_fail(w, "runs with operand %s %d at %lu; it is at %lu", what, i,
               (unsigned long)w->operand[-1], (unsigned long)offset);
}

/* ---- which instruction reads which value, computed from the last instruction to the first ---- */
static inline void pc_find_live(pc_state *w)
{
    const plan_facts *f = w->f;
    unsigned char *offloaded = w->offloaded_now;
    for (int i = 0; i < f->fetches; i++)
        if (!f->fetch[i].gradient)
            w->live_value[f->node[f->fetch[i].id].base] = 1;
    for (int x = f->length; x-- > 0;) {
        int id = f->list[x].id, kind = (int)f->list[x].kind, body = !f->usage[x].once;
        const pc_node *q = &f->node[id < 0 ? 0 : id];
        if (kind == GCKPT_UPDATE || kind == GCKPT_REDUCE || id < 0)
            continue;
        if (kind == GCKPT_OFFLOAD) {
            w->offloaded[x] = offloaded[id];
            w->live_value[id] |= offloaded[id] & 1;
            w->live_saved[id] |= offloaded[id] >> 1;
            offloaded[id] = 0;
            continue;
        }
        if (kind == GCKPT_OFFLOAD_DONE) {
            w->offloaded[x] = offloaded[id];
            w->live_value[id] |= offloaded[id] & 1;
            w->live_saved[id] |= offloaded[id] >> 1;
            continue;
        }
        if (kind == GCKPT_BACKWARD) {
            unsigned mask = pc_needs(w, q);
            for (int i = 0; i < q->inputs; i++)
                if (mask & GCKPT_IN(i))
                    w->live_value[pc_base(f, q, i)] = 1;
            w->live_value[id] |= (mask & GCKPT_OUT) != 0;
            w->live_saved[id] |= mask & GCKPT_SAVED && w->has_saved[id];
            continue;
        }
        w->keeps_value[x] = w->live_value[id];
        w->keeps_saved[x] = w->live_saved[id];
        w->live_value[id] = w->live_saved[id] = 0;
        if (kind == GCKPT_RELOAD) {
            offloaded[id] |= (unsigned char)(w->keeps_value[x] | w->keeps_saved[x] << 1);
            continue;
        }
        for (int i = 0; i < q->inputs; i++) {
            int in = pc_base(f, q, i),
                lasts = f->node[in].kind == PC_PARAM ? w->staged[in] > 1 : f->node[in].batch_invariant;
            if (!w->live_value[in] && !(w->accumulates && body && lasts))
                w->dies[x] |= (unsigned char)(1u << i);
        }
        for (int i = 0; i < q->inputs; i++)
            w->live_value[pc_base(f, q, i)] = 1;
    }
    memset(offloaded, 0, (size_t)f->count);
}

/* ---- forwards, offloads, reloads ---- */
static inline void pc_check_policy(pc_state *w, int id, const pc_content *h)
{
    const pc_node *q = &w->f->node[id];
    if (q->recompute && !q->batch_invariant && !(q->op.flags & GCKPT_SIDE_EFFECT) && h->first &&
        !w->f->usage[w->x].once && (w->backward_seen || w->f->list[w->x].kind == GCKPT_BACKWARD))
        pc_fail(w, "reads the value that %d, which must be recomputed for the backward, computed in the forward",
               id);
}

static inline void pc_reads_parameter(pc_state *w, int id)
{
    if (w->updated[id])
        pc_fail(w, "reads parameter %d after its update", id);
}

/* Starts the definitions that a forward or a reload writes, the value and the saved data, as far as a later
 * instruction reads them. */
static inline void pc_results(pc_state *w, int id, int reload)
{
    const plan_facts *f = w->f;
    const pc_node *q = &f->node[id];
    int x = w->x, b = -1, first = !w->forwards[id] && !w->backward_seen, source = -1;
    size_t size = pc_bytes(w, id, PC_VALUE);
    int has_value = q->kind == PC_PARAM || (!pc_is_loss(q) && !pc_is_cache(q));
    w->value[id].buffer = w->saved[id].buffer = -1;
    if (has_value && w->keeps_value[x]) {
        b = pc_claim_buffer(w, x, id, GCKPT_BUFFER_VALUE, size, -1, PC_NONE);
        for (int i = 0; i < q->inputs && b < 0 && !reload; i++) { /* computed in place */
            int in = pc_base(f, q, i);
            const pc_content *h = &w->value[in];
            if (q->op.flags & GCKPT_INPLACE(i) && pc_in_arena(w, in) && w->dies[x] >> i & 1 &&
                f->node[in].n == q->n && pc_bytes(w, in, PC_VALUE) == size && h->buffer >= 0 &&
                f->buffer[h->buffer].end > x && source < 0)
                source = h->buffer;
        }
        b = b < 0 ? source : b;
        if (b < 0)
            pc_fail(w, "its value (%lu bytes), which is read later, has no place",
                   (unsigned long)size);
        else
            w->value[id] = pc_put(w, b);
        w->value[id].first = first;
    }
    pc_operand(w, "out", 0, pc_offset(w, &w->value[id]));
    if (w->keeps_saved[x]) {
        b = pc_claim_buffer(w, x, id, GCKPT_BUFFER_SAVED, q->saved, -1, PC_NONE);
        if (b < 0)
            pc_fail(w, "its saved, which is read later, has no place");
        else
            w->saved[id] = pc_put(w, b);
        w->saved[id].first = first;
    }
    pc_operand(w, "saved", 0, pc_offset(w, &w->saved[id]));
}

static inline void pc_workspace(pc_state *w, int id, int backward, size_t least)
{
    const int ends = backward && (w->f->custom || w->f->streams) ? -1 : 1; /* updates may use it later */
    int b = pc_claim_buffer(w, w->x, id, GCKPT_BUFFER_WORKSPACE, PC_NONE, ends, PC_NONE);
    size_t size = b < 0 ? 0 : w->f->buffer[b].size;
    if (b >= 0)
        pc_put(w, b);
    if (size < least)
        pc_fail(w, "has %lu bytes of workspace; compensations of its sums need %lu", (unsigned long)size,
               (unsigned long)least);
    w->workspace = b;
    if (backward)
        w->scratch = b;
    w->own_workspace = pc_hint(w, 0); /* the op's workspace begins after the bf16 conversions, if there are any */
    if (w->f->precision == GCKPT_FP32 || w->f->node[id].kind != PC_OP)
        pc_operand(w, "work", 0, b < 0 ? PC_NONE : w->f->buffer[b].offset);
    else if (w->operand && w->operand < w->operand_end)
        w->operand++;
}

/* Checks the bf16 conversions in the workspace: in a bf16 plan, the workspace begins with float copies of the bf16
 * operands. Each copy has a separate place, unless the op computes in place or passes a gradient on. The op's own
 * workspace follows. */
static inline void pc_copies(pc_state *w, int id, int backward)
{
    const pc_node *q = &w->f->node[id];
    const gckpt_buffer *b = w->workspace < 0 ? NULL : &w->f->buffer[w->workspace];
    size_t at[2 * GCKPT_MAX_INPUTS + 2], size[2 * GCKPT_MAX_INPUTS + 2];
    int n = 2 * q->inputs + 2;
    if (!w->operand || w->failed || w->f->precision == GCKPT_FP32)
        return;
    for (int k = 0; k < n && !w->failed; k++) {
        int tensor = k / 2 < q->inputs ? q->in[k / 2] : id;
        at[k] = pc_hint(w, 0);
        size[k] = 4 * (size_t)w->f->node[tensor].n;
        if (w->operand == w->operand_end)
            pc_fail(w, "has too few copies");
        else if (w->operand++, at[k] == PC_NONE)
            continue;
        if (!(w->narrow[w->f->node[tensor].base] & (k % 2 ? PC_GRADIENT : PC_VALUE)) || k % 2 > backward)
            pc_fail(w, "copies %d, which is no bf16", k);
        else if (!b || at[k] < b->offset || at[k] + size[k] > b->offset + b->size || (at[k] - b->offset) % 64 ||
                 (w->own_workspace != PC_NONE && at[k] + size[k] > w->own_workspace))
            pc_fail(w, "copies %d to %lu", k, (unsigned long)at[k]);
        for (int i = 0; i < k && !w->failed; i++)
            if (at[i] == at[k] ? k < n - 2 || !(q->op.flags & (k % 2 ? GCKPT_PASSES_GRAD(i / 2) : GCKPT_INPLACE(i / 2)))
                               : at[i] != PC_NONE && at[i] < at[k] + size[k] && at[k] < at[i] + size[i])
                pc_fail(w, "copies %d and %d to the same place", i, k);
    }
    if (w->own_workspace != PC_NONE && (!b || w->own_workspace < b->offset || w->own_workspace >= b->offset + b->size))
        pc_fail(w, "has its own workspace at %lu", (unsigned long)w->own_workspace);
}

static inline void pc_forward(pc_state *w, int id)
{
    const plan_facts *f = w->f;
    const pc_node *q = &f->node[id];
    int x = w->x, effect = w->is_term[id] || q->op.flags & GCKPT_SIDE_EFFECT;
    size_t at[GCKPT_MAX_INPUTS];
    if (q->kind == PC_PARAM)
        pc_reads_parameter(w, id);
    if (q->kind != PC_PARAM && q->batch_invariant != f->usage[x].once)
        pc_fail(w, "is in the wrong part of the list");
    if (f->usage[x].recompute != (w->forwards[id] != 0))
        pc_fail(w, "is reported to run %s", f->usage[x].recompute ? "again" : "for the first time");
    if (w->forwards[id] && (q->keep || q->op.flags & GCKPT_SIDE_EFFECT || q->batch_invariant) &&
        q->kind == PC_OP)
        pc_fail(w, "runs again, though it has a side effect, has a policy or depends on no input");
    for (int i = 0; i < q->inputs; i++) {
        int in = pc_base(f, q, i);
        at[i] = PC_NONE;
        if (f->node[in].kind == PC_PARAM)
            pc_reads_parameter(w, in);
        if (pc_in_arena(w, in) && pc_read(w, &w->value[in], "value", in)) {
            at[i] = pc_offset(w, &w->value[in]);
            if (w->backward_seen)
                pc_check_policy(w, in, &w->value[in]);
        }
    }
    if (!w->keeps_value[x] && !w->keeps_saved[x] && !(effect && !w->forwards[id]))
        pc_fail(w, "no op reads its result");
    pc_results(w, id, 0);
    pc_workspace(w, id, 0, 0);
    for (int i = 0; i < q->inputs; i++)
        pc_operand(w, "value", i, at[i]);
    if (q->kind == PC_OP)
        pc_copies(w, id, 0);
    w->forwards[id] = 1;
    w->offloaded_now[id] = 0;
}

static inline void pc_offload(pc_state *w, int id, int is_done)
{
    const plan_facts *f = w->f;
    int x = w->x, parts = w->offloaded[x];
    if (is_done && (w->offloaded_now[id] & parts) != parts)
        pc_fail(w, "the awaited value is not being offloaded");
    if (!is_done && (x == 0 || f->list[x - 1].kind != GCKPT_FORWARD || f->list[x - 1].id != id))
        pc_fail(w, "does not follow its forward");
    if (!parts)
        pc_fail(w, "nothing of it is reloaded");
    if (parts & 1)
        pc_read(w, &w->value[id], "value", id);
    pc_operand(w, "out", 0, parts & 1 ? pc_offset(w, &w->value[id]) : PC_NONE);
    if (parts & 2)
        pc_read(w, &w->saved[id], "saved", id);
    pc_operand(w, "saved", 0, parts & 2 ? pc_offset(w, &w->saved[id]) : PC_NONE);
    if (!is_done)
        w->offloaded_now[id] = (unsigned char)parts;
}

static inline void pc_reload(pc_state *w, int id)
{
    int parts = w->keeps_value[w->x] | w->keeps_saved[w->x] << 1;
    if ((w->offloaded_now[id] & parts) != parts)
        pc_fail(w, "the reloaded value was not offloaded since its forward");
    if (!parts)
        pc_fail(w, "no op reads the reloaded value");
    if (w->f->node[id].recompute || w->f->node[id].batch_invariant)
        pc_fail(w, "may not be offloaded");
    pc_results(w, id, 1);
}

/* ---- gradients ---- */
/* Checks that the gradient is complete. Returns the offset of its first (or only) accumulator, and stores the offsets
 * of further accumulators in `others`. */
static inline size_t pc_complete(pc_state *w, int id, const char *who, size_t *others, int *count)
{
    const plan_facts *f = w->f;
    pc_content *h = &w->gradient[id];
    int use = w->first_use[id], done = 0, need = w->expected[id];
    *count = 0;
    if (f->virtual_ranks > 1 && f->node[id].batch_invariant && use >= 0 && !w->reduced[id] &&
        !f->node[use / GCKPT_MAX_INPUTS].batch_invariant)
        pc_fail(w, "the gradient of %d was not reduced", id);
    if (pc_has_sums(w, id)) {
        done = h->buffer >= 0 ? h->parts : 0;
        for (int k = 0; use >= 0; use = w->next_use[use], k++) {
            pc_content *sum = &w->sum[use];
            if (k < done)
                continue;
            if (sum->buffer < 0 || !sum->parts) {
                pc_fail(w, "%s the gradient of %d before input %d of %d has added to it", who, id,
                       use % GCKPT_MAX_INPUTS, use / GCKPT_MAX_INPUTS);
                return PC_NONE;
            }
            pc_read(w, sum, "accumulator", id);
            if (k == 0)
                *h = *sum;
            else if (*count < 64)
                others[(*count)++] = pc_offset(w, sum);
        }
        h->parts = need;
        if (!w->failed && h->buffer >= 0)
            h->stamp = ++w->stamp[h->buffer]; /* the first accumulator now contains the sum of all accumulators */
    }
    if (pc_read(w, h, "gradient", id) && h->parts != need)
        pc_fail(w, "%s the gradient of %d, which has %d of %d contributions", who, id, h->parts,
               need);
    return pc_offset(w, h);
}

/* Checks that the contributions to a gradient are added in the order of the manual (5f). The first two contributions
 * to a sum over uses may be exchanged, since each is computed separately and a + b = b + a. If every use has a
 * separate accumulator, any order is allowed. */
static inline void pc_check_order(pc_state *w, int use, int id)
{
    int k = w->gradient[id].buffer >= 0 ? w->gradient[id].parts : 0, order = w->order[use];
    if (order != k && !(w->f->node[id].batch_invariant && k < 2 && order < 2))
        pc_fail(w, "adds to the gradient of %d as number %d; it is number %d", id, k, order);
}

/* Finds the offset to which the gradient of input i is written. Returns bits: 1 if the gradient is added to what is
 * there, 2 if the place is cleared first. */
static inline unsigned pc_target(pc_state *w, int id, int i, size_t *at, size_t *total)
{
    const plan_facts *f = w->f;
    const pc_node *q = &f->node[id];
    int in = pc_base(f, q, i), use = id * GCKPT_MAX_INPUTS + i, b, sums = f->node[in].batch_invariant;
    gckpt_buffer_kind kind = sums ? GCKPT_BUFFER_PARAMETER_GRADIENT : GCKPT_BUFFER_GRADIENT;
    pc_content *h = &w->gradient[in], *out = &w->gradient[id];
    size_t wide = pc_bytes(w, in, 0), size = pc_bytes(w, in, PC_GRADIENT);
    size_t hint = pc_hint(w, 3 * i + 1);
    *at = *total = PC_NONE;
    if (pc_has_sums(w, in)) {
        pc_content *sum = &w->sum[use];
        b = pc_claim_buffer(w, 0, in, kind, wide * (pc_comp(w, q, i) == 2 ? 2 : 1), 0, hint);
        if (b < 0 || f->buffer[b].end != f->length) {
            pc_fail(w, "input %d, %d: its sum has no accumulator through the step", i, in);
            return 0;
        }
        *sum = pc_put(w, b);
        sum->parts = 1;
        *at = pc_offset(w, sum);
        return 1;
    }
    pc_check_order(w, use, in);
    if (h->buffer < 0) {
        b = pc_claim_buffer(w, w->x, in, kind, size, 0, hint);
        if (b >= 0) {
            *h = pc_put(w, b);
        } else if (!sums && !q->batch_invariant && out->buffer >= 0 && f->node[in].n == q->n &&
                   pc_bytes(w, id, PC_GRADIENT) == size && !pc_repeats(f, q, i, 1) &&
                   q->op.flags & (GCKPT_PASSES_GRAD(i) | (i ? 0 : GCKPT_INPLACE_GRAD))) {
            if (q->op.flags & GCKPT_PASSES_GRAD(i))
                /* the op passes its gradient on without writing anything, so both tensors share one definition */
                *h = *out;
            else
                *h = pc_put(w, out->buffer);
            h->writer = w->x;
        } else {
            pc_fail(w, "input %d: the gradient of %d (%lu bytes) has no place", i, in,
                   (unsigned long)size);
            return 0;
        }
        h->parts = 1;
        *at = pc_offset(w, h);
        return sums ? 3 : 0;
    }
    if (!pc_read(w, h, "gradient so far", in))
        return 0;
    h->stamp = ++w->stamp[h->buffer];
    h->parts++;
    if (!sums && !pc_repeats(f, q, i, 0)) {
        *at = pc_offset(w, h);
        return 1;
    }
    b = pc_claim_buffer(w, w->x, in, kind, wide, 1, hint);
    if (b < 0) {
        pc_fail(w, "input %d: the contribution to the gradient of %d has no place", i, in);
        return 0;
    }
    pc_put(w, b);
    *at = f->buffer[b].offset;
    *total = pc_offset(w, h);
    return sums ? 3 : 0;
}

static inline void pc_backward(pc_state *w, int id)
{
    const plan_facts *f = w->f;
    const pc_node *q = &f->node[id];
    unsigned mask = pc_needs(w, q), add = 0, clear = 0;
    size_t at[3][GCKPT_MAX_INPUTS], others[64], comp_bytes = 0, gradient = PC_NONE;
    int count = 0;
    if (!w->runs_backward[id])
        pc_fail(w, "nothing needs it");
    if (w->backwards[id]++)
        pc_fail(w, "runs a second time");
    if (q->batch_invariant != f->usage[w->x].once)
        pc_fail(w, "is in the wrong part of the list");
    if (w->updates_seen && !f->in_backward)
        pc_fail(w, "comes after an update");
    if (pc_is_loss(q) && !w->forwards[id])
        pc_fail(w, "comes before its forward");
    for (int i = 0; i < q->inputs; i++) {
        int in = pc_base(f, q, i);
        at[0][i] = PC_NONE;
        if (!(mask & GCKPT_IN(i)))
            continue;
        if (f->node[in].kind == PC_PARAM)
            pc_reads_parameter(w, in);
        if (pc_in_arena(w, in) && pc_read(w, &w->value[in], "value", in)) {
            at[0][i] = pc_offset(w, &w->value[in]);
            pc_check_policy(w, in, &w->value[in]);
        }
    }
    int out = (mask & GCKPT_OUT) != 0, saved = mask & GCKPT_SAVED && w->has_saved[id];
    if (out && pc_read(w, &w->value[id], "value", id))
        pc_check_policy(w, id, &w->value[id]);
    pc_operand(w, "out", 0, out ? pc_offset(w, &w->value[id]) : PC_NONE);
    if (saved && pc_read(w, &w->saved[id], "saved", id))
        pc_check_policy(w, id, &w->saved[id]);
    pc_operand(w, "saved", 0, saved ? pc_offset(w, &w->saved[id]) : PC_NONE);
    if (!pc_is_loss(q))
        gradient = pc_complete(w, id, "uses", others, &count);
    for (int i = 0; i < q->inputs; i++)
        if (w->active[pc_base(f, q, i)] && pc_comp(w, q, i) == 1)
            comp_bytes = (comp_bytes + 63) / 64 * 64 + 4 * (size_t)f->node[q->in[i]].n;
    pc_workspace(w, id, 1, comp_bytes);
    pc_operand(w, "gradient", 0, gradient);
    for (int i = 0; i < q->inputs && !w->failed; i++) {
        at[1][i] = at[2][i] = PC_NONE;
        unsigned bits = w->active[pc_base(f, q, i)] ? pc_target(w, id, i, &at[1][i], &at[2][i]) : 0;
        add |= (bits & 1) << i;
        clear |= bits >> 1 << i;
    }
    for (int i = 0; i < q->inputs && !w->failed; i++) {
        pc_operand(w, "value", i, at[0][i]);
        pc_operand(w, "gradient of input", i, at[1][i]);
        pc_operand(w, "total of input", i, at[2][i]);
    }
    for (int k = 0; k < count; k++)
        pc_operand(w, "accumulator", k + 1, others[k]);
    pc_copies(w, id, 1);
    const pc_ins *ins = f->ins ? &f->ins[w->x] : NULL;
    if (ins && (ins->accumulate != (int)add || ins->zero != (int)clear || ins->uses != count + 1))
        pc_fail(w, "accumulates %x, clears %x, adds up %d; it should %x, %x, %d", ins->accumulate,
               ins->zero, ins->uses, add, clear, count + 1);
    w->backward_seen |= !f->usage[w->x].once;
    w->before = w->x;
}

/* ---- reduces and updates ---- */
/* Returns the bytes of the largest shard of a tensor whose blocks of 4096 elements are halved repeatedly until there
 * are n shards. */
static inline size_t pc_shard_bytes(int64_t elements, int n)
{
    int64_t blocks = (elements + 4095) / 4096;
    for (; n > 1; n /= 2)
        blocks = (blocks + 1) / 2;
    return 4 * (size_t)(blocks * 4096 < elements ? blocks * 4096 : elements);
}

/* Ends the exchange in progress, whose buffers had to live until the instruction before x. */
static inline void pc_end_exchange(pc_state *w, int x)
{
    int id = w->pending;
    if (id < 0)
        return;
    pc_touch(w, w->exchange, x - 1);
    if (w->gradient[id].buffer >= 0)
        pc_touch(w, w->gradient[id].buffer, x - 1);
    if (w->shard[id].buffer >= 0) {
        pc_touch(w, w->shard[id].buffer, x - 1);
        w->gradient[id].buffer = -1; /* after the REDUCE, only this rank's shard of the gradient is needed */
    }
    w->pending = -1;
}

/* Checks the buffer that receives other ranks' data. All REDUCEs after one backward use the same buffer, so it has
 * the size that the largest of them needs. */
static inline void pc_exchange(pc_state *w, int id)
{
    const plan_facts *f = w->f;
    size_t most = 0;
    int largest = id;
    if (w->before == w->x - 1) {
        for (int x = w->x; x < f->length && f->list[x].kind == GCKPT_REDUCE; x++) {
            size_t half = pc_shard_bytes(f->node[f->list[x].id].n, 2);
            largest = half > most ? f->list[x].id : largest;
            most = half > most ? half : most;
        }
        w->exchange = pc_claim_buffer(w, w->before, largest, GCKPT_BUFFER_REDUCTION, most, -1, PC_NONE);
    }
    if (w->exchange < 0)
        pc_fail(w, "there is no receive buffer (%lu bytes) for other ranks", (unsigned long)most);
}

static inline void pc_reduce(pc_state *w, int id)
{
    const plan_facts *f = w->f;
    const pc_node *q = &f->node[id];
    int uses = 0, count = 0, use = w->first_use[id], cut, shard;
    pc_content *h = &w->gradient[id];
    size_t more[64], tree[PC_LEVELS];
    pc_end_exchange(w, w->x);
    for (; use >= 0 && !f->node[use / GCKPT_MAX_INPUTS].batch_invariant; use = w->next_use[use], uses++) {
        pc_content *sum = &w->sum[use];
        if (!w->accumulates)
            continue;
        if (sum->buffer < 0)
            pc_fail(w, "input %d of %d has not added to it yet", use % GCKPT_MAX_INPUTS,
                   use / GCKPT_MAX_INPUTS);
        else if (pc_read(w, sum, "accumulator", id) && uses > 0 && count < 64)
            more[count++] = pc_offset(w, sum);
    }
    if (w->failed)
        return;
    if (f->virtual_ranks <= 1 || !q->batch_invariant || !w->active[id] || !uses || w->reduced[id]++)
        pc_fail(w, "it has no sums of virtual ranks, or none any more");
    if (f->usage[w->x].once || (w->before != w->x - 1 && f->list[w->x - 1].kind != GCKPT_REDUCE))
        pc_fail(w, "does not follow a backward of the body");
    cut = f->ranks > 1 && f->shard != GCKPT_SHARD_NONE && q->kind == PC_PARAM && q->n > 4096 &&
          f->trained[id] && use < 0;
    shard = cut && !w->accumulates && f->shard >= GCKPT_SHARD_GRADIENTS;
    if (w->accumulates && !w->failed) {
        *h = w->sum[w->first_use[id]];
        h->stamp = ++w->stamp[h->buffer];
        h->parts = uses;
    }
    if (pc_read(w, h, "gradient", id) && h->parts != uses)
        pc_fail(w, "has %d of %d contributions of the body", h->parts, uses);
    for (int k = 0; (f->virtual_ranks / f->ranks) >> k > 1 && k < PC_LEVELS; k++) {
        int b =
            pc_claim_buffer(w, 0, id, GCKPT_BUFFER_REDUCTION, 4 * (size_t)q->n, 0, pc_hint(w, 3 + count + k));
        if (b < 0 || f->buffer[b].end != f->length) {
            pc_fail(w, "sums of virtual ranks that wait have no place through the step");
            return;
        }
        pc_put(w, b);
        pc_touch(w, b, w->x);
        tree[k] = f->buffer[b].offset;
    }
    if (f->ranks > 1) {
        pc_exchange(w, id);
        if (w->failed)
            return;
        w->pending = id;
        pc_touch(w, w->exchange, w->x);
    }
    if (shard) {
        int b = pc_claim_buffer(w, w->before, id, GCKPT_BUFFER_PARAMETER_GRADIENT,
                          pc_shard_bytes(q->n, f->ranks), -1, PC_NONE);
        if (b < 0)
            pc_fail(w, "this rank's shard of it has no place");
        else
            w->shard[id] = pc_put(w, b);
    }
    pc_operand(w, "exchange", 0,
               f->ranks > 1 && !w->failed ? f->buffer[w->exchange].offset : PC_NONE);
    pc_operand(w, "gradient", 0, pc_offset(w, h));
    pc_operand(w, "share", 0, pc_offset(w, &w->shard[id]));
    for (int k = 0; k < count; k++)
        pc_operand(w, "accumulator", k + 1, more[k]);
    for (int k = 0; (f->virtual_ranks / f->ranks) >> k > 1 && k < PC_LEVELS; k++)
        pc_operand(w, "sum that waits", k, tree[k]);
    if (f->ins && (f->ins[w->x].accumulate != cut || f->ins[w->x].uses != count + 1))
        pc_fail(w, "adds up %d, of %d", f->ins[w->x].uses, count + 1);
}

static inline void pc_update(pc_state *w, int id)
{
    const plan_facts *f = w->f;
    size_t others[64], at;
    int count = 0;
    if (!f->trained[id] || w->updated[id])
        pc_fail(w, w->updated[id] ? "is there a second time" : "is not trained");
    if (!w->barrier_seen || (!f->in_backward && !f->usage[w->x].once))
        pc_fail(w, "is in the wrong part of the list");
    for (int i = 0; i < f->terms && !w->updates_seen; i++)
        if (!w->forwards[f->term[i]])
            pc_fail(w, "comes before the loss %d has counted", f->term[i]);
    if (w->shard[id].buffer >= 0)
        at = pc_read(w, &w->shard[id], "share", id) ? pc_offset(w, &w->shard[id]) : PC_NONE;
    else
        at = pc_complete(w, id, "updates by", others, &count);
    pc_operand(w, "gradient", 0, at);
    for (int k = 0; k < count; k++)
        pc_operand(w, "accumulator", k + 1, others[k]);
    if (f->custom || f->streamed[id]) {
        const int b = pc_claim_buffer(w, w->x, id, GCKPT_BUFFER_WORKSPACE, PC_NONE, -1, PC_NONE);
        w->scratch = b >= 0 ? b : w->scratch;
        const int lives = w->scratch >= 0 && f->buffer[w->scratch].end >= w->x;
        const int used = b >= 0 || (w->operand ? pc_hint(w, 0) != PC_NONE : lives);
        if (used && !lives)
            pc_fail(w, "its workspace has ended");
        pc_operand(w, "workspace", 0, used && lives ? f->buffer[w->scratch].offset : PC_NONE);
        if (used && lives)
            pc_touch(w, w->scratch, w->x);
    }
    w->updated[id] = 1;
    w->updates_seen = 1;
}

/* ---- the whole list of instructions ---- */
/* Finds which tensors get a gradient: those that have a path to a loss and that are fetched, trained, or depend on
 * such a tensor. Also finds which backwards run, and the uses of each tensor in the order of the manual (5f): first
 * the users that depend on the batch, then the others, both in reverse order of creation, with the inputs of one user
 * in ascending order. */
static inline void pc_find_active(pc_state *w)
{
    const plan_facts *f = w->f;
    for (int i = 0; i < f->terms; i++)
        w->reaches[f->term[i]] = w->is_term[f->term[i]] = 1;
    for (int i = f->count; i-- > 0;)
        for (int k = 0; f->node[i].kind == PC_OP && k < f->node[i].inputs; k++)
            if (w->reaches[i] && f->node[i].op.flags & PC_BACKWARD)
                w->reaches[pc_base(f, &f->node[i], k)] = 1;
    for (int i = 0; i < f->fetches && f->mode != GCKPT_INFERENCE; i++)
        if (f->fetch[i].gradient)
            w->active[f->node[f->fetch[i].id].base] = w->reaches[f->node[f->fetch[i].id].base];
    for (int i = 0; i < f->count; i++) {
        const pc_node *q = &f->node[i];
        w->first_use[i] = -1;
        if (f->trained[i])
            w->active[i] = 1;
        if (f->trained[i] && (!w->reaches[i] || f->mode == GCKPT_INFERENCE))
            pc_fail(w, "parameter %d is trained, but leads to no loss", i);
        for (int k = 0; q->kind == PC_OP && k < q->inputs; k++)
            if (w->reaches[i] && q->op.flags & PC_BACKWARD && w->active[pc_base(f, q, k)])
                w->active[i] = w->runs_backward[i] = 1;
    }
    for (int once = 1; once >= 0; once--)
        for (int i = 0; i < f->count; i++)
            for (int k = f->node[i].inputs;
                 k-- > 0 && w->runs_backward[i] && f->node[i].batch_invariant == once;) {
                int in = pc_base(f, &f->node[i], k), use = i * GCKPT_MAX_INPUTS + k;
                w->next_use[use] = w->first_use[in];
                w->first_use[in] = use;
                w->expected[in]++;
            }
    for (int i = 0; i < f->count; i++)
        for (int use = w->first_use[i], k = 0; use >= 0; use = w->next_use[use])
            w->order[use] = k++;
}

/* Finds where prologue, body and epilogue begin, and fills the arrays that are indexed by tensor id and by buffer. */
static inline int pc_start(pc_state *w)
{
    const plan_facts *f = w->f;
    int x = 0;
    int64_t vrank_rows =
        f->virtual_ranks > 0 ? f->batch / f->virtual_ranks + (f->batch % f->virtual_ranks != 0) : f->batch;
    w->pending = w->before = w->scratch = -1;
    w->accumulates = f->mode != GCKPT_INFERENCE && (f->virtual_ranks > f->ranks || vrank_rows > f->rows);
    for (int i = 0; i < f->count; i++)
        w->value[i].buffer = w->saved[i].buffer = w->gradient[i].buffer = w->shard[i].buffer = -1;
    for (int i = 0; i < f->count * GCKPT_MAX_INPUTS; i++)
        w->sum[i].buffer = -1;
    for (; x < f->length; x++) {
        gckpt_instruction in = f->list[x];
        w->x = x;
        if ((in.kind == GCKPT_BEGIN || in.kind == GCKPT_NEXT || in.kind == GCKPT_BARRIER) && in.id == -1)
            continue;
        if ((unsigned)in.kind > GCKPT_OFFLOAD_DONE || in.id < 0 || in.id >= f->count ||
            (f->node[in.id].kind != PC_OP && f->node[in.id].kind != PC_PARAM &&
             in.kind != GCKPT_REDUCE)) {
            pc_fail(w, "there is no such instruction");
            return 0;
        }
        if (f->node[in.id].kind == PC_OP && !f->node[in.id].op.name) {
            pc_fail(w, "its op is not known: include check.h before the code that calls gckpt_apply");
            return 0;
        }
        if (f->node[in.id].kind == PC_PARAM && in.kind == GCKPT_FORWARD)
            /* 2 if the parameter is staged in the prologue, 1 if it is staged in the body */
            w->staged[in.id] = f->usage[x].once ? 2 : 1;
    }
    for (x = 0; x < f->length && f->usage[x].once && f->list[x].kind == GCKPT_FORWARD;)
        x++;
    for (w->body = x; x < f->length && !f->usage[x].once;)
        x++;
    w->x = x - 1;
    if (x == w->body || f->list[w->body].kind != GCKPT_BEGIN || f->list[x - 1].kind != GCKPT_NEXT) {
        pc_fail(w, "ends a body that does not begin with a BEGIN and end with a NEXT");
        return 0;
    }
    for (w->epilogue = x; x < f->length; x++) {
        w->x = x;
        if (!f->usage[x].once || f->list[x].kind == GCKPT_FORWARD) {
            pc_fail(w, "is in the wrong part of the list");
            return 0;
        }
    }
    w->x = f->length;
    for (x = 0; x <= f->length; x++)
        w->first_buffer[x] = -1;
    for (int b = f->buffers; b-- > 0;) {
        const gckpt_buffer *q = &f->buffer[b];
        if (q->start < 0 || q->end < q->start || q->end > f->length || !q->size || q->id < 0 ||
            q->id >= f->count || (b > 0 && q->start < f->buffer[b - 1].start)) {
            pc_fail(w, "buffer %d, of %d, is live from %d to %d", b, q->id, q->start, q->end);
            return 0;
        }
        w->last_read[b] = -1;
        w->next_buffer[b] = w->first_buffer[q->start];
        w->first_buffer[q->start] = b;
        if (q->kind == GCKPT_BUFFER_SAVED && f->node[q->id].saved == PC_NONE)
            w->has_saved[q->id] = 1;
    }
    for (int i = 0; i < f->count; i++) {
        const pc_node *q = &f->node[i];
        w->has_saved[i] |= q->saved != PC_NONE && q->saved > 0;
        if (f->precision != GCKPT_FP32 && q->kind == PC_OP && !q->batch_invariant && !q->indices &&
            strcmp(q->op.name, "delta_state") != 0)
            w->narrow[i] = PC_VALUE | PC_GRADIENT;
    }
    for (int i = 0; i < f->fetches; i++) /* fetches are floats */
        w->narrow[f->node[f->fetch[i].id].base] &=
            (unsigned char)~(f->fetch[i].gradient ? PC_GRADIENT : PC_VALUE);
    pc_find_active(w);
    pc_find_live(w);
    return !w->failed;
}

static inline void pc_instruction(pc_state *w, int x)
{
    const plan_facts *f = w->f;
    int id = f->list[x].id, index = id < 0 ? 0 : id;
    w->x = x;
    if (x >= w->epilogue)
        pc_end_exchange(w, w->epilogue);
    if (f->ins) {
        const pc_ins *ins = &f->ins[x];
        int next = x + 1 < f->length ? ins[1].at : (int)f->operands;
        if (f->list[x].kind == GCKPT_UPDATE)
            for (int i = index = 0; i < id; i++)
                index += f->node[i].kind == PC_PARAM;
        w->operand = f->operand + ins->at;
        w->operand_end = f->operand + next;
        if (ins->kind != (int)f->list[x].kind || ins->id != index || ins->at < 0 ||
            next < ins->at || (size_t)next > f->operands ||
            ins->first != (f->list[x].kind == GCKPT_FORWARD && !w->forwards[index])) {
            pc_fail(w, "runs as kind %d of %d, first %d", ins->kind, ins->id, ins->first);
            return;
        }
    }
    switch (f->list[x].kind) {
    case GCKPT_FORWARD: pc_forward(w, id); break;
    case GCKPT_BACKWARD: pc_backward(w, id); break;
    case GCKPT_UPDATE: pc_update(w, id); break;
    case GCKPT_OFFLOAD: pc_offload(w, id, 0); break;
    case GCKPT_OFFLOAD_DONE: pc_offload(w, id, 1); break;
    case GCKPT_RELOAD: pc_reload(w, id); break;
    case GCKPT_BEGIN:
    case GCKPT_NEXT:
        if (x != (f->list[x].kind == GCKPT_BEGIN ? w->body : w->epilogue - 1))
            pc_fail(w, "is in the wrong part of the list");
        break;
    case GCKPT_BARRIER:
        if (w->barrier_seen || w->updates_seen || f->list[x + 1 < f->length ? x + 1 : x].kind != GCKPT_UPDATE)
            pc_fail(w, "is not before the first update");
        w->barrier_seen = 1;
        break;
    default: pc_reduce(w, id); break;
    }
    if (f->ins && !w->failed && w->operand != w->operand_end)
        pc_fail(w, "has %d operands too many", (int)(w->operand_end - w->operand));
}

/* Checks at the end of the list that everything required has happened, and that all fetches exist. */
static inline void pc_end(pc_state *w)
{
    const plan_facts *f = w->f;
    size_t others[64], at;
    int count;
    pc_end_exchange(w, w->epilogue);
    w->x = f->length;
    for (int i = 0; i < f->terms; i++)
        if (!w->forwards[f->term[i]])
            pc_fail(w, "the loss %d was never computed", f->term[i]);
    for (int i = 0; i < f->count && !w->failed; i++) {
        const pc_node *q = &f->node[i];
        if (w->runs_backward[i] && !w->backwards[i])
            pc_fail(w, "%d, %s, had no backward", i, q->op.name);
        if (f->trained[i] && !w->updated[i])
            pc_fail(w, "parameter %d was not updated", i);
        if (q->kind == PC_OP && q->op.name && q->op.flags & GCKPT_SIDE_EFFECT &&
            !(q->op.flags & GCKPT_LOSS) && !w->forwards[i])
            pc_fail(w, "%d, %s, which has a side effect, never ran", i, q->op.name);
    }
    for (int i = 0; i < f->fetches && !w->failed; i++) {
        int id = f->node[f->fetch[i].id].base;
        if (f->fetch[i].gradient)
            at = pc_complete(w, id, "fetches", others, &count);
        else
            at = pc_read(w, &w->value[id], "value", id) ? pc_offset(w, &w->value[id]) : PC_NONE;
        if (f->fetch[i].offset != PC_NONE && f->fetch[i].offset != at)
            pc_fail(w, "%d is fetched at %lu; it is at %lu", id, (unsigned long)f->fetch[i].offset,
                   (unsigned long)at);
    }
    for (int b = 0; b < f->buffers && !w->failed; b++) {
        const gckpt_buffer *q = &f->buffer[b];
        int loose = w->accumulates && q->start == 0 && q->end == f->length;
        loose = loose || (f->ranks > 1 && (q->kind == GCKPT_BUFFER_REDUCTION ||
                                           q->kind == GCKPT_BUFFER_PARAMETER_GRADIENT));
        w->x = q->start;
        if (!w->claimed[b])
            pc_fail(w, "nothing of it is written to buffer %d (kind %d, of %d, %lu bytes)", b,
                   (int)q->kind, q->id, (unsigned long)q->size);
        else if (loose ? q->end < w->last_read[b] : q->end != w->last_read[b])
            pc_fail(w,
                   "buffer %d (kind %d, of %d) ends with instruction %d; %d is the last to use it",
                   b, (int)q->kind, q->id, q->end, w->last_read[b]);
    }
}

/* Returns whether two sums of bytes are equal. Sums of 2^53 bytes and more are reported rounded, since they are added
 * in double. */
static inline int pc_same(size_t a, size_t b)
{
    const uint64_t exact = UINT64_C(1) << 53;
    return a == b || ((uint64_t)a >= exact && (uint64_t)b >= exact &&
                      (double)a - (double)b < 4096 && (double)b - (double)a < 4096);
}

/* Checks that buffers which are live at the same time do not overlap, that all are aligned, and that they add up to
 * the reported bytes. */
static inline void pc_check_sizes(pc_state *w)
{
    const plan_facts *f = w->f;
    int *live = (int *)pc_alloc((size_t)f->buffers, sizeof *live), count = 0; /* sorted by offset */
    size_t top = 0, most = 0, kinds[4] = { 0, 0, 0, 0 }, best[4] = { 0, 0, 0, 0 }, sum = 0;
    static const int kind_of[] = { 0, 0, 0, 1, 2, 3 };
    for (int x = 0; x <= f->length && !w->failed; x++) {
        int kept = 0;
        w->x = x;
        for (int k = 0; k < count; k++) {
            const gckpt_buffer *q = &f->buffer[live[k]];
            if (q->end >= x)
                live[kept++] = live[k];
            else
                sum -= q->size, kinds[kind_of[q->kind]] -= q->size;
        }
        count = kept;
        for (int b = w->first_buffer[x]; b >= 0; b = w->next_buffer[b]) {
            const gckpt_buffer *q = &f->buffer[b];
            int low = 0, high = count;
            while (low < high) {
                int middle = (low + high) / 2;
                if (f->buffer[live[middle]].offset < q->offset)
                    low = middle + 1;
                else
                    high = middle;
            }
            const gckpt_buffer *below = low ? &f->buffer[live[low - 1]] : NULL;
            const gckpt_buffer *above = low < count ? &f->buffer[live[low]] : NULL;
            if (f->alignment && q->offset % f->alignment)
                pc_fail(w, "buffer %d at %lu is not aligned", b, (unsigned long)q->offset);
            if (q->size > f->arena || q->offset > f->arena - q->size)
                pc_fail(w, "buffer %d, %lu bytes at %lu, exceeds the arena of %lu", b,
                       (unsigned long)q->size, (unsigned long)q->offset, (unsigned long)f->arena);
            if (below && below->offset + below->size > q->offset)
                pc_fail(w, "buffers %d, of %d, and %d, of %d, overlap", live[low - 1], below->id, b,
                       q->id);
            if (above && q->offset + q->size > above->offset)
                pc_fail(w, "buffers %d, of %d, and %d, of %d, overlap", b, q->id, live[low],
                       above->id);
            memmove(live + low + 1, live + low, (size_t)(count - low) * sizeof *live);
            live[low] = b;
            count++;
            sum += q->size;
            kinds[kind_of[q->kind]] += q->size;
            top = q->offset + q->size > top ? q->offset + q->size : top;
        }
        if (x < f->length && !pc_same(sum, f->usage[x].live))
            pc_fail(w, "%lu bytes are reported as live; there are %lu", (unsigned long)f->usage[x].live,
                   (unsigned long)sum);
        if (sum > most) {
            most = sum;
            memcpy(best, kinds, sizeof best);
        }
    }
    free(live);
    if (top != f->arena || !pc_same(most, f->bound))
        pc_fail(w, "arena %lu, bound %lu are reported; they are %lu, %lu", (unsigned long)f->arena,
               (unsigned long)f->bound, (unsigned long)top, (unsigned long)most);
    if ((uint64_t)most >> 53 == 0 &&
        (f->kind[GCKPT_BYTES_ACTIVATIONS] + f->kind[GCKPT_BYTES_GATHERED] != best[0] ||
         f->kind[GCKPT_BYTES_GRADIENTS] != best[1] || f->kind[GCKPT_BYTES_WORKSPACE] != best[2] ||
         f->kind[GCKPT_BYTES_REDUCTION] != best[3]))
        pc_fail(w, "bytes by kind are reported wrong");
    if (f->bytes != f->arena + f->kind[GCKPT_BYTES_PARAMETERS] + f->kind[GCKPT_BYTES_STATE] +
                        f->kind[GCKPT_BYTES_CACHES])
        pc_fail(w, "%lu bytes are reported in all, not the sum of its kinds", (unsigned long)f->bytes);
    if (f->budget && (f->mode == GCKPT_OPTIMAL || f->mode == GCKPT_STORE_ALL) &&
        f->bytes > f->budget)
        pc_fail(w, "%lu bytes exceed the budget of %lu", (unsigned long)f->bytes,
               (unsigned long)f->budget);
}

/* Returns the cost of copying `bytes` bytes to slower memory or back: desc.offload.cost, which is for 2^20 bytes, in
 * proportion and rounded up. */
static inline uint64_t pc_copy_cost(const plan_facts *f, size_t bytes)
{
    return (bytes >> 20) * f->offload_work +
           (((bytes & 0xfffff) * f->offload_work + 0xfffff) >> 20);
}

/* Returns how instruction x uses the current definition of a tensor, as bits: 1 if it reads the value, 2 if it reads
 * the saved data, 4 if it is a forward that may overwrite the value. */
static inline int pc_uses(const pc_state *w, int x, int id)
{
    const plan_facts *f = w->f;
    const gckpt_instruction *in = &f->list[x];
    const pc_node *q = &f->node[in->id < 0 ? 0 : in->id];
    unsigned needs = in->kind == GCKPT_BACKWARD ? pc_needs(w, q) : ~0u;
    int bits = 0;
    if (in->kind == GCKPT_OFFLOAD_DONE)
        return in->id == id ? w->offloaded[x] : 0;
    for (int i = 0; i < q->inputs && in->kind <= GCKPT_BACKWARD; i++) {
        if (pc_base(f, q, i) != id || !(needs & GCKPT_IN(i)))
            continue;
        bits |= 1;
        if (in->kind == GCKPT_FORWARD && q->op.flags & GCKPT_INPLACE(i) && f->node[id].n == q->n &&
            pc_bytes(w, id, PC_VALUE) == pc_bytes(w, in->id, PC_VALUE))
            bits |= 4;
    }
    if (in->kind == GCKPT_BACKWARD && in->id == id)
        bits |= (needs & GCKPT_OUT ? 1 : 0) | (needs & GCKPT_SAVED && w->has_saved[id] ? 2 : 0);
    return bits;
}

/* Returns the time of a micro-batch in which ops run one after the other and copies overlap with them. */
static inline uint64_t pc_time(pc_state *w)
{
    const plan_facts *f = w->f;
    uint64_t now = 0, copied = 0, *ready, *may_go;
    ready = (uint64_t *)pc_alloc((size_t)(f->count + f->length + 2), sizeof *ready);
    /* by instruction: earliest time from which the computation of this instruction, and so of all later ones, can
     * start */
    may_go = ready + f->count;
    memset(ready, 0, (size_t)(f->count + f->length + 2) * sizeof *ready);
    for (int x = 0; x < f->length; x++) {
        int id = f->list[x].id, kind = (int)f->list[x].kind;
        if (x > 0 && may_go[x - 1] > may_go[x])
            may_go[x] = may_go[x - 1];
        if (kind == GCKPT_OFFLOAD || kind == GCKPT_RELOAD) {
            copied = (copied > now ? copied : now) + f->usage[x].cost;
            if (kind == GCKPT_RELOAD)
                ready[id] = copied;
        }
        if (kind == GCKPT_OFFLOAD) {
            int last[2] = { x, x }, latest = 1;
            for (int y = x + 1; y < f->length && latest; y++) {
                latest = f->list[y].id != id ||
                         (f->list[y].kind != GCKPT_FORWARD && f->list[y].kind != GCKPT_RELOAD);
                if (!latest)
                    break;
                int uses = pc_uses(w, y, id);
                if (uses & 1)
                    last[0] = uses & 4 ? -y : y;
                if (uses & 2)
                    last[1] = y;
            }
            for (int i = 0; i < f->fetches && latest; i++)
                if (!f->fetch[i].gradient && f->node[f->fetch[i].id].base == id)
                    last[0] = f->length;
            last[0] = last[0] < 0 ? -last[0] - 1 : last[0];
            int until = !(w->offloaded[x] & 2) ? last[0]
                        : w->offloaded[x] & 1 && last[0] < last[1] ? last[0]
                                                             : last[1];
            if (copied > may_go[until + 1 > f->length ? f->length : until + 1])
                may_go[until + 1 > f->length ? f->length : until + 1] = copied;
        }
        if (kind > GCKPT_BACKWARD)
            continue;
        if (x >= w->epilogue && copied > now) /* all copies must have ended when the body ends */
            now = copied;
        now = may_go[x] > now ? may_go[x] : now;
        for (int i = 0; i < f->count; i++)
            if (ready[i] > now && pc_uses(w, x, i) & 3)
                now = ready[i];
        now += f->usage[x].cost;
        if (kind == GCKPT_FORWARD)
            ready[id] = 0;
    }
    now = now > copied ? now : copied;
    free(ready);
    return now;
}

/* Checks that the costs of instructions add up to the plan's cost, and that a cost estimated by the planner is at
 * least the bytes that the op moves. Also checks that offloaded values do not overlap in slower memory. */
static inline void pc_check_costs(pc_state *w)
{
    const plan_facts *f = w->f;
    uint64_t work = 0, once = 0, recomputed = 0, backward = 0;
    size_t alignment = f->alignment ? f->alignment : 1, host_bytes = 0;
    /* by id: the parts (value, saved data) that are offloaded at the current instruction */
    unsigned char *offloaded = w->offloaded_now;
    memset(offloaded, 0, (size_t)f->count);
    for (int x = 0; x < f->length && !w->failed; x++) {
        int id = f->list[x].id < 0 ? 0 : f->list[x].id, kind = (int)f->list[x].kind;
        const pc_node *q = &f->node[id];
        size_t moved = 0, copied = 0, parts;
        uint64_t cost = f->usage[x].cost, least = 0;
        w->x = x;
        work += cost;
        if (kind == GCKPT_FORWARD)
            *(f->usage[x].recompute ? &recomputed : &once) += cost;
        backward += kind == GCKPT_BACKWARD ? cost : 0;
        if (f->cost && kind <= GCKPT_BACKWARD &&
            cost != (kind == GCKPT_FORWARD ? f->cost[id].forward : f->cost[id].backward))
            pc_fail(w, "its work is reported as %lu, unlike in its fields", (unsigned long)cost);
        parts = kind == GCKPT_OFFLOAD  ? w->offloaded[x]
                : kind == GCKPT_RELOAD ? (size_t)(w->keeps_value[x] | w->keeps_saved[x] << 1)
                                       : 0;
        for (int k = 0; k < 2; k++) {
            size_t size = !(parts >> k & 1)        ? 0
                          : !k                     ? pc_bytes(w, id, PC_VALUE)
                          : q->saved != PC_NONE      ? q->saved
                          : w->saved[id].buffer >= 0 ? f->buffer[w->saved[id].buffer].size
                                                   : 0;
            moved += size;
            copied += (size + alignment - 1) / alignment * alignment;
            if (size && !(offloaded[id] >> k & 1)) {
                host_bytes += size;
                offloaded[id] |= (unsigned char)(1 << k);
            }
        }
        if (f->usage[x].moved != moved || (kind >= GCKPT_UPDATE && cost != pc_copy_cost(f, copied)))
            pc_fail(w, "moves %lu bytes by %lu work; reported are %lu", (unsigned long)moved,
                   (unsigned long)cost, (unsigned long)f->usage[x].moved);
        if (!f->by_model || kind > GCKPT_BACKWARD || q->kind != PC_OP ||
            !strcmp(q->op.name, "linear_cross_entropy"))
            continue;
        size_t out = pc_bytes(w, id, PC_VALUE);
        unsigned mask = pc_needs(w, q);
        least = out * (kind == GCKPT_FORWARD ? 1 : mask & GCKPT_OUT ? 2 : 1);
        for (int i = 0; i < q->inputs; i++) {
            int in = pc_base(f, q, i);
            if (kind == GCKPT_FORWARD || mask & GCKPT_IN(i))
                least += pc_bytes(w, in, PC_VALUE);
            if (kind == GCKPT_BACKWARD && w->active[in] && !(q->op.flags & GCKPT_PASSES_GRAD(i)))
                least += pc_bytes(w, in, PC_GRADIENT);
        }
        if (cost < 10 * least + 16384)
            pc_fail(w, "its work is %lu; the bytes that it moves cost %lu", (unsigned long)cost,
                   (unsigned long)(10 * least + 16384));
    }
    double part = once ? (double)recomputed / (double)once : 0;
    w->x = f->length;
    uint64_t time = f->overlap_offload && f->offloaded ? pc_time(w) : work;
    if (f->work + f->hidden != work || f->work != time)
        pc_fail(w, "work %lu, %lu hidden are reported; it is %lu in a time of %lu",
               (unsigned long)f->work, (unsigned long)f->hidden, (unsigned long)work,
               (unsigned long)time);
    work = f->work;
    if (part < f->recompute - 1e-9 || part > f->recompute + 1e-9)
        pc_fail(w, "work %lu, %g of it again, are reported; it is %lu, %g", (unsigned long)f->work,
               f->recompute, (unsigned long)work, part);
    part = f->least ? (double)(work - f->least) / (double)f->least : 0;
    if (f->cost && (f->least > once + backward || (!f->least && once + backward) ||
                    f->overhead < part - 1e-9 || f->overhead > part + 1e-9))
        pc_fail(w, "the least work is reported as %lu, the overhead as %g", (unsigned long)f->least,
               f->overhead);
    if (f->proven_work > work || f->proven_bytes > f->bytes)
        pc_fail(w, "it has less work or fewer bytes than are proven to be the least");
    if (host_bytes > f->offloaded || f->offloaded > f->offload_bytes)
        pc_fail(w, "%lu bytes are offloaded; %lu are reported, %lu allowed", (unsigned long)host_bytes,
               (unsigned long)f->offloaded, (unsigned long)f->offload_bytes);
    for (int i = 0; i < 2 * f->count && f->host_offset; i++) {
        int in = offloaded[i / 2] >> (i % 2) & 1;
        size_t size = i % 2 ? f->node[i / 2].saved : pc_bytes(w, i / 2, PC_VALUE);
        if ((f->host_offset[i] != PC_NONE) != in || (in && f->host_offset[i] + size > f->offloaded))
            pc_fail(w, "%d has no place in slower memory, or one for nothing", i / 2);
        for (int k = 0; k < i && in; k++)
            if (f->host_offset[k] != PC_NONE && f->host_offset[k] < f->host_offset[i] + size &&
                f->host_offset[i] < f->host_offset[k] + (k % 2 ? f->node[k / 2].saved : pc_bytes(w, k / 2, PC_VALUE)))
                pc_fail(w, "%d and %d overlap in slower memory", k / 2, i / 2);
    }
}

PC_API const char *plan_facts_check(const plan_facts *f)
{
    static PC_LOCAL char text[320];
    pc_state state, *w = &state;
    size_t n = (size_t)f->count + 1, uses = n * GCKPT_MAX_INPUTS, length = (size_t)f->length + 2;
    size_t buffers = (size_t)f->buffers + 1;
    if (*f->wrong) {
        snprintf(text, sizeof text, "%s", f->wrong);
        return text;
    }
    memset(w, 0, sizeof *w);
    w->f = f;
    w->text = text;
    w->text_size = sizeof text;
    w->x = f->length;
    unsigned char *flags = (unsigned char *)pc_alloc(14 * n + 4 * length + buffers, 1), *at = flags;
    unsigned char **const by_id[] = { &w->reaches,    &w->active,  &w->runs_backward,    &w->staged,
                                      &w->has_saved,    &w->is_term, &w->narrow,  &w->forwards,
                                      &w->backwards,  &w->updated, &w->reduced, &w->offloaded_now,
                                      &w->live_value, &w->live_saved };
    unsigned char **const by_x[] = { &w->keeps_value, &w->keeps_saved, &w->dies, &w->offloaded };
    for (size_t i = 0; i < 14; i++, at += n)
        *by_id[i] = at;
    for (size_t i = 0; i < 4; i++, at += length)
        *by_x[i] = at;
    w->claimed = at;
    int *numbers = (int *)pc_alloc(2 * n + 2 * uses + length + 3 * buffers, sizeof(int));
    w->expected = numbers;
    w->first_use = w->expected + n;
    w->next_use = w->first_use + n;
    w->order = w->next_use + uses;
    w->first_buffer = w->order + uses;
    w->next_buffer = w->first_buffer + length;
    w->stamp = w->next_buffer + buffers;
    w->last_read = w->stamp + buffers;
    w->value = (pc_content *)pc_alloc(4 * n + uses, sizeof *w->value);
    w->saved = w->value + n;
    w->gradient = w->saved + n;
    w->shard = w->gradient + n;
    w->sum = w->shard + n;
    if (pc_start(w)) {
        for (int x = 0; x < f->length && !w->failed; x++)
            pc_instruction(w, x);
        w->operand = NULL;
        if (!w->failed)
            pc_end(w);
        if (!w->failed)
            pc_check_sizes(w);
        if (!w->failed)
            pc_check_costs(w);
    }
    free(w->value);
    free(numbers);
    free(flags);
    return w->failed ? text : NULL;
}

PC_API const char *plan_check(const gckpt_plan *plan, const gckpt_graph *graph,
                              const gckpt_plan_desc *desc)
{
    pc_graph *g = pc_graph_new(graph, NULL, 0);
    plan_facts f;
    const char *problem = NULL;
    if (plan_facts_read(&f, plan, g, desc)) {
        plan_facts_print(&f, plan);
        problem = plan_facts_check(&f);
    }
    plan_facts_free(&f);
    pc_graph_free(g);
    return problem;
}
#endif /* PLAN_CHECK_BODY */

/* ---- the macros that check every plan which a test makes ---- */
#if defined(TESTS_CHECK_H) && !defined(PLAN_CHECK_OFF)
#ifndef PLAN_CHECK_PRINTS
#define PLAN_CHECK_PRINTS 8
#endif
static PC_LOCAL unsigned pc_plans;

static inline gckpt_plan *pc_checked(gckpt_plan *plan, const pc_graph *g,
                                     const gckpt_plan_desc *desc, const char *file, int line)
{
    plan_facts f;
    const char *problem = NULL;
    if (plan_facts_read(&f, plan, g, desc)) {
        if (pc_plans++ < 32 || pc_plans % PLAN_CHECK_PRINTS == 0)
            plan_facts_print(&f, plan);
        problem = plan_facts_check(&f);
    }
    if (problem)
        check_record(0, file, line, "wrong plan (%s): %s", mode_name((int)f.mode), problem);
    plan_facts_free(&f);
    return plan;
}

static inline gckpt_plan *pc_checked_of(gckpt_plan *plan, const gckpt_graph *graph,
                                        const gckpt_term *terms, int count,
                                        const gckpt_plan_desc *desc, const char *file, int line)
{
    pc_graph *g = plan ? pc_graph_new(graph, terms, count) : NULL;
    if (plan)
        pc_checked(plan, g, desc, file, line);
    pc_graph_free(g);
    return plan;
}

/* Returns a request without the options of parts that the header lacks, so that tests of other parts run with it. */
static inline gckpt_plan_desc pc_without_missing_parts(const gckpt_plan_desc *desc)
{
    gckpt_plan_desc d;
    memset(&d, 0, sizeof d);
    if (desc)
        d = *desc;
#ifdef GCKPT_NO_BF16
    d.bf16.precision = GCKPT_FP32;
#endif
#ifdef GCKPT_NO_RANKS
    d.ranks.virtual_ranks = d.ranks.overlap = 0;
    d.ranks.link_cost = 0;
#endif
#ifdef GCKPT_NO_OFFLOAD
    d.offload.bytes = 0;
    d.offload.overlap = 0;
#endif
    return d;
}

static inline gckpt_plan *pc_plan_new(const char *file, int line, gckpt_graph *graph,
                                      const gckpt_term *terms, int count,
                                      const gckpt_plan_desc *desc)
{
    const gckpt_plan_desc d = pc_without_missing_parts(desc);
    return pc_checked_of(gckpt_plan_new(graph, terms, count, desc ? &d : NULL), graph, terms, count,
                         &d, file, line);
}

#ifndef GCKPT_NO_FRONTIER
typedef struct {
    const gckpt_frontier *frontier;
    const gckpt_graph *graph;
    gckpt_plan_desc desc;
} pc_frontier;
static PC_LOCAL pc_frontier pc_frontiers[64]; /* the latest frontiers */
static PC_LOCAL unsigned pc_frontier_count;

static inline gckpt_frontier *pc_frontier_new(gckpt_graph *graph, const gckpt_term *terms,
                                              int count, const gckpt_plan_desc *desc)
{
    pc_frontier *p = &pc_frontiers[pc_frontier_count % 64];
    const gckpt_plan_desc d = pc_without_missing_parts(desc);
    gckpt_frontier *frontier = gckpt_frontier_new(graph, terms, count, desc ? &d : NULL);
    if (frontier) {
        pc_frontier_count++;
        memset(p, 0, sizeof *p);
        p->frontier = frontier;
        p->graph = graph;
        p->desc = d;
        p->desc.mode = GCKPT_OPTIMAL;
    }
    return frontier;
}

/* Checks the plan of a frontier. Plans of a backend are not checked, since the tensors that they
 * fetch may be freed. */
static inline gckpt_plan *pc_frontier_plan(const char *file, int line,
                                           const gckpt_frontier *frontier, size_t budget)
{
    gckpt_plan *plan = gckpt_frontier_plan(frontier, budget);
    for (unsigned i = 64; plan && i-- > 0;) {
        pc_frontier *p = &pc_frontiers[(pc_frontier_count + i) % 64];
        if (p->frontier != frontier)
            continue;
        p->desc.budget = budget;
        if (!p->desc.backend)
            pc_checked_of(plan, p->graph, NULL, 0, &p->desc, file, line);
        break;
    }
    return plan;
}
#define gckpt_frontier_new(...)  pc_frontier_new(__VA_ARGS__)
#define gckpt_frontier_plan(...) pc_frontier_plan(__FILE__, __LINE__, __VA_ARGS__)
#endif

#include "../examples/fit.h"
typedef struct {
    fit_build_fn build;
    fit_measure_fn measure;
    void *user;
    pc_graph **graph; /* an array with a graph for each number of rows that the build function has built */
    int64_t *rows;
    size_t count;
} pc_builds;

static inline int pc_build(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *user)
{
    pc_builds *b = (pc_builds *)user;
    pc_reset_graph(graph);
    int count = b->build(graph, rows, terms, b->user);
    if (count < 0 || count > FIT_MAX_TERMS)
        return count;
    b->graph = (pc_graph **)realloc(b->graph, (b->count + 1) * sizeof *b->graph);
    b->rows = (int64_t *)realloc(b->rows, (b->count + 1) * sizeof *b->rows);
    if (!b->graph || !b->rows)
        abort();
    b->rows[b->count] = rows;
    b->graph[b->count++] = pc_graph_new(graph, NULL, 0);
    for (int i = 0; i < count; i++)
        if (!terms[i].loss)
            return count;
    pc_graph_free(b->graph[b->count - 1]);
    b->graph[b->count - 1] = pc_graph_new(graph, terms, count);
    return count;
}

static inline gckpt_result pc_measure(gckpt_graph *graph, const gckpt_term *terms, int count,
                                      gckpt_cost *costs, int cost_count, void *user)
{
    pc_builds *b = (pc_builds *)user;
    return b->measure(graph, terms, count, costs, cost_count, b->user);
}

static inline gckpt_plan *pc_fitted(gckpt_plan *plan, pc_builds *b, const gckpt_plan_desc *desc,
                                    const char *file, int line)
{
    static gckpt_cost measured;
    gckpt_plan_desc d = pc_without_missing_parts(desc);
    d.costs.by_id = b->measure ? &measured : NULL;
    for (size_t i = b->count; i-- > 0;) {
        if (plan && b->rows[i] == gckpt_plan_describe(plan).rows) {
            pc_checked(plan, b->graph[i], &d, file, line);
            break;
        }
    }
    for (size_t i = 0; i < b->count; i++)
        pc_graph_free(b->graph[i]);
    free(b->graph);
    free(b->rows);
    return plan;
}

static inline gckpt_plan *pc_fit(const char *file, int line, gckpt_store *store, fit_build_fn build,
                                 void *user, int64_t batch, const gckpt_plan_desc *desc,
                                 fit_measure_fn measure, fit_error *error)
{
    pc_builds b = { build, measure, user, NULL, NULL, 0 };
    const gckpt_plan_desc d = pc_without_missing_parts(desc);
    gckpt_plan *plan = fit_plan(store, build ? pc_build : NULL, &b, batch, desc ? &d : NULL,
                                measure ? pc_measure : NULL, error);
    return pc_fitted(plan, &b, desc, file, line);
}
#define fit_plan(...) pc_fit(__FILE__, __LINE__, __VA_ARGS__)

static inline gckpt_graph *pc_graph_begin(gckpt_store *store, const gckpt_memory *memory)
{
    gckpt_graph *graph = gckpt_graph_new(store, memory);
    pc_reset_graph(graph);
    return graph;
}

static inline gckpt_tensor *pc_apply(const gckpt_op *op, gckpt_tensor *const *in, int n,
                                     const void *attributes, size_t bytes)
{
    gckpt_tensor *t = gckpt_apply(op, in, n, attributes, bytes);
    pc_note_op(t, op);
    return t;
}

static inline gckpt_tensor *pc_set_policy(gckpt_tensor *t, int keep)
{
    pc_note_policy(t, keep);
    return keep ? gckpt_keep(t) : gckpt_recompute(t);
}

#define gckpt_plan_new(...)  pc_plan_new(__FILE__, __LINE__, __VA_ARGS__)
#define gckpt_graph_new(...) pc_graph_begin(__VA_ARGS__)
#define gckpt_apply(...)     pc_apply(__VA_ARGS__)
#define gckpt_keep(t)        pc_set_policy(t, 1)
#define gckpt_recompute(t)   pc_set_policy(t, 0)
#endif /* checks of every plan */
#endif
