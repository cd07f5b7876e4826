#include "run/own.h"
#include "graph/graph.h"

/* ---- own memory: what the host does itself, it does on copies ---- */

/* What the host may borrow at once: a parameter's gradient, a piece of one that it unpacks, all
 * square sums, the operands of an op that the backend has no kernel for, or what a callback
 * offloads. */
static size_t gckpti_borrow_bytes(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t most = e->square_count * sizeof(float);
    for (size_t i = 0; i < p->param_count; i++) {
        int64_t n = p->params[i].trained                       ? p->params[i].elements
                    : p->params[i].storage != GCKPT_STORED_F32 ? GCKPTI_JOB
                                                               : 0;
        most = (size_t)n * sizeof(float) > most ? (size_t)n * sizeof(float) : most;
    }
    for (size_t id = 0; id < p->node_count; id++) {
        const gckpti_node *node = &p->nodes[id];
        gckpt_call c;
        if (node->kind != GCKPTI_OP || node->index < 0)
            continue;
        gckpti_exec_node n = gckpti_bind_kernels(e, node);
        if (n.forward && (n.backward || !node->op->backward))
            continue;
        gckpti_call_start(e, node, (int)id, p->rows, &c);
        c.plain = 1;
        (void)node->op->shape(&c);
        size_t bytes = c.work_forward > c.work_backward ? c.work_forward : c.work_backward;
        bytes += node->aux_bytes + 8 * (size_t)gckpti_elements(&node->shape);
        for (int i = 0; i < node->inputs; i++) /* values, gradient, low part */
            bytes += 12 * (size_t)gckpti_elements(&c.in[i].shape);
        bytes += GCKPTI_ALIGN * (size_t)(6 + 3 * node->inputs);
        most = bytes > most ? bytes : most;
    }
    return e->desc.offload && p->offloaded > most ? p->offloaded : most; /* no copy is larger */
}

GCKPTI_FN const float *gckpti_on_host(const gckpt_exec *e, const float *x, size_t n)
{
    if (!gckpti_on(e)->own_memory)
        return x;
    gckpti_on(e)->copy_out(gckpti_on(e)->context, e->borrowed, x, n * sizeof *x);
    return (const float *)(const void *)e->borrowed;
}

/* As gckpti_exec_tables, for copies on the host: with desc.copy_feeds the whole batch of every
 * input that is fed; beside memory of a backend's own, room for gckpti_on_host and gckpti_borrow,
 * and for what gckpt_fetch returns; what is offloaded. */
GCKPTI_FN size_t gckpti_exec_copies(gckpt_exec *e, unsigned char *base)
{
    const gckpt_plan *p = e->plan;
    size_t used = 0, picked = 0, borrowed = gckpti_on(e)->own_memory ? gckpti_borrow_bytes(e) : 0;
    for (size_t i = 0; i < p->node_count && e->desc.copy_feeds && p->mode != GCKPT_INFERENCE; i++) {
        const gckpti_node *q = &p->nodes[i];
        void *to = gckpti_is_fed(p, i)
                       ? gckpti_carve(base, &used, (size_t)gckpt_plan_share(p, p->batch, 0, NULL),
                                      gckpti_row_bytes(p, q))
                       : NULL;
        if (to)
            e->inputs[q->index].copy = (unsigned char *)to;
    }
    for (size_t i = 0; i < p->pick_count && gckpti_on(e)->own_memory; i++)
        gckpti_carve(NULL, &picked, gckpti_pick_bytes(p, &p->picks[i]), 1);
    e->borrowed = (unsigned char *)gckpti_carve(base, &used, borrowed, 1);
    e->picks = (unsigned char *)gckpti_carve(base, &used, picked, 1);
    if (!e->moves && !e->desc.offload)
        e->far = (unsigned char *)gckpti_carve(base, &used, p->offloaded, 1);
    return used;
}

typedef struct {
    const gckpt_exec *e;
    size_t used;
    int count;
    struct {
        const void *from;
        void *to, *here; /* to: where it goes back; NULL: it was read only */
        size_t bytes;
    } pieces[4 * GCKPT_MAX_INPUTS + 8];
} gckpti_borrowing;

/* The host's copy of an operand; the same one for the same address. */
static void *gckpti_borrow(gckpti_borrowing *s, const void *from, void *to, size_t bytes)
{
    int i = 0;
    if (!from)
        return NULL;
    while (i < s->count && s->pieces[i].from != from)
        i++;
    if (i == s->count) {
        s->pieces[s->count].here = gckpti_carve(s->e->borrowed, &s->used, bytes, 1);
        s->pieces[s->count].from = from;
        s->pieces[s->count].to = NULL;
        s->pieces[s->count++].bytes = bytes;
        gckpti_on(s->e)->copy_out(gckpti_on(s->e)->context, s->pieces[i].here, from, bytes);
    }
    if (to)
        s->pieces[i].to = to;
    return s->pieces[i].here;
}

static void *gckpti_borrow_out(gckpti_borrowing *s, void *at, size_t bytes)
{
    return gckpti_borrow(s, at, at, bytes);
}

/* Runs an op's own kernel on copies of its operands. */
GCKPTI_FN void gckpti_run_on_host(const gckpt_exec *e, gckpt_kernel kernel, const gckpt_call *call)
{
    gckpt_call c = *call;
    gckpti_borrowing s;
    size_t n = (size_t)gckpti_elements(&c.shape);
    memset(&s, 0, sizeof s);
    s.e = e;
    for (int i = 0; i < c.inputs; i++) {
        gckpt_arg *arg = &c.in[i];
        size_t size = (size_t)gckpti_elements(&arg->shape);
        arg->data = (const float *)gckpti_borrow(&s, arg->data, NULL, size * 4);
        arg->index = (const int32_t *)gckpti_borrow(&s, arg->index, NULL, size * 4);
        arg->bf16 = (const uint16_t *)gckpti_borrow(&s, arg->bf16, NULL, size * 2);
        arg->grad = (float *)gckpti_borrow_out(&s, arg->grad, size * 4);
        arg->low = (float *)gckpti_borrow_out(&s, arg->low, size * 4);
        arg->grad_bf16 = (uint16_t *)gckpti_borrow_out(&s, arg->grad_bf16, size * 2);
    }
    c.grad_out = (const float *)gckpti_borrow(&s, c.grad_out, NULL, n * 4);
    c.grad_out_bf16 = (const uint16_t *)gckpti_borrow(&s, c.grad_out_bf16, NULL, n * 2);
    c.out = (float *)gckpti_borrow_out(&s, c.out, n * 4);
    c.out_bf16 = (uint16_t *)gckpti_borrow_out(&s, c.out_bf16, n * 2);
    c.aux = gckpti_borrow_out(&s, c.aux, e->plan->nodes[c.id].aux_bytes);
    c.loss_sum = (double *)gckpti_borrow_out(&s, c.loss_sum, sizeof *c.loss_sum);
    c.loss_count = (int64_t *)gckpti_borrow_out(&s, c.loss_count, sizeof *c.loss_count);
    c.work = c.work ? e->borrowed + s.used : NULL; /* all the rest */
    c.plain = 1;
    c.kernels = NULL;
    c.backend = NULL;
    kernel(&c);
    for (int i = 0; i < s.count; i++)
        if (s.pieces[i].to)
            gckpti_on(e)->copy_in(gckpti_on(e)->context, s.pieces[i].to, s.pieces[i].here,
                                  s.pieces[i].bytes);
}
