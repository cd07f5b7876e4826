#include "run/own.h"

/* ---- own memory: what the host does itself, it does on copies ---- */
GCKPTI_FN const float *gckpti_on_host(const gckpt_exec *e, const float *x, size_t n)
{
    if (!gckpti_on(e)->own_memory)
        return x;
    gckpti_on(e)->copy_out(gckpti_on(e)->context, e->blocks.borrowed, x, n * sizeof *x);
    return (const float *)(const void *)e->blocks.borrowed;
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
        s->pieces[s->count].here = gckpti_carve(s->e->blocks.borrowed, &s->used, bytes, 1);
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
    c.work = c.work ? e->blocks.borrowed + s.used : NULL; /* all the rest */
    c.plain = 1;
    c.kernels = NULL;
    c.backend = NULL;
    kernel(&c);
    for (int i = 0; i < s.count; i++)
        if (s.pieces[i].to)
            gckpti_on(e)->copy_in(gckpti_on(e)->context, s.pieces[i].to, s.pieces[i].here,
                                  s.pieces[i].bytes);
}
