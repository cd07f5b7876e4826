#include "ops/own.h"
#include "graph/graph.h"

/* ---- linear_cross_entropy: cross_entropy(linear_transposed(x, w)), in f32 plans to the same bits
 * (in bf16 plans its logits are not rounded: manual, 5l) ----
 * Logits: chains over C from +0. Backward, d being the logits' gradient: chains dx += d w over the
 * classes, dw += d x over the rows. Rows left out take part with d = +0, as in the two ops: else a
 * -0 could stay in the accumulator, or an infinity in w stay hidden. d is rounded where it enters
 * the products.
 * With a cap, a logit z is gckpti_capped(z, 1 / cap, cap) as soon as its chain is done.
 * A form of it (gckpti_form) says how many rows: the backward computes loss and gradient of so
 * many rows at a time, whose logits are computed once, and kept meanwhile; the forward counts. */
typedef struct {
    int64_t block, chunk, logits, dx, aux, size; /* rows, classes at a time; in floats: where parts
                                                    of work begin; all */
} gckpti_loss_parts;

/* work: scratch of the products, where these look for it; the logits of a block of rows (one in a
 * plain plan) and a chunk of classes, or all chunks; in bf16 plans dx of the block, rounded when
 * all classes are added; what is aux otherwise. In bf16 plans a backward takes whole blocks of dw's
 * links, which may be 32 rows; a plain one then as many classes. */
static gckpti_loss_parts gckpti_loss_parts_of(const gckpt_call *call, int backward)
{
    int64_t c = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    int mixed = gckpti_is_mixed(call);
    int blocks = mixed && backward && gckpti_entry_rows(&call->in[0].shape) >= GCKPTI_LINKS;
    const int once = gckpti_head_once(call);
    gckpti_loss_parts p = { 1, GCKPTI_LOSS_CHUNK, 0, 0, 0, 0 };
    if (once && !backward)
        return p;
    if (!gckpti_is_plain(call))
        p.block = once ? once : mixed ? GCKPTI_LOSS_ROWS_MOST : GCKPTI_LOSS_ROWS;
    else if (blocks && !once)
        p.chunk = GCKPTI_LINKS;
    if (blocks && p.block < GCKPTI_LINKS)
        p.block = GCKPTI_LINKS;
    p.block = gckpti_min(rows, p.block);
    int64_t n = gckpti_min(call->in[1].shape.d[0], p.chunk);
    int64_t products = gckpti_product_scratch(call, p.block, n, c);
    if (backward) {
        int64_t dx = gckpti_product_scratch(call, p.block, c, n);
        int64_t dw = gckpti_product_scratch(call, n, c, p.block), most = dx > dw ? dx : dw;
        products = products > most ? products : most;
    }
    p.logits = products;
    p.dx = p.logits + p.block * (once ? call->in[1].shape.d[0] : n);
    p.aux = p.dx + (mixed && backward ? p.block * c : 0);
    p.size = p.aux + (once ? 2 * p.block : 0);
    return p;
}

/* aux: max and log(sum) of each row. */
static gckpt_result gckpti_linear_cross_entropy_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *w = &call->in[1].shape;
    const gckpt_shape *targets = &call->in[2].shape;
    gckpt_shape rows = *x;
    rows.n--;
    if (x->n < 1 || w->n != 2 || w->d[1] != gckpti_last(x))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "linear_cross_entropy: x %S, w %S must be (..,C), (V,C)", x, w);
    if (!gckpti_same_shape(&rows, targets))
        return gckpti_targets_fail(call, "linear_cross_entropy", targets, &rows, "x", x);
    call->saved_bytes = gckpti_head_once(call) ? 0 : (size_t)gckpti_rows(x) * 2 * sizeof(float);
    call->workspace_forward = (size_t)gckpti_loss_parts_of(call, 0).size * sizeof(float);
    call->workspace_backward = (size_t)gckpti_loss_parts_of(call, 1).size * sizeof(float);
    return GCKPT_OK;
}

GCKPTI_FN int64_t gckpti_loss_rows(const gckpt_call *call, int64_t row, int64_t most)
{
    const gckpt_shape *x = &call->in[0].shape;
    const int64_t left = gckpti_rows(x) - row, entry = gckpti_entry_rows(x);
    if (left <= most || most < GCKPTI_LINKS || !gckpti_is_mixed(call) || entry < GCKPTI_LINKS)
        return gckpti_min(left, most);
    return most - (row + most) % entry % GCKPTI_LINKS;
}

static void gckpti_loss_cap_row(void *context, int64_t r, int64_t worker)
{
    const gckpti_loss *l = (const gckpti_loss *)context;
    (void)worker;
    l->by.cap(l->d + r * l->n, l->n, 1.0f / l->cap, l->cap);
}

/* Three products for each block and chunk: logits = x w', dx += d w, dw += d' x. In bf16 plans dx
 * has its chains in work, since it is rounded once, when all classes are added. */
static void gckpti_loss_products(gckpti_loss *l, int backward, const gckpti_loss_parts *parts)
{
    const gckpt_call *call = l->call;
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    int64_t c = gckpti_last(&x->shape), v = w->shape.d[0], at = l->row * c;
    const int once = gckpti_head_once(call), have = backward && once;
    float *work = (float *)call->workspace, *dw = backward ? w->grad : NULL;
    uint16_t *rounded = backward && gckpti_is_narrow(x->grad_bf16) ? x->grad_bf16 + at : NULL;
    float *dx = rounded ? work + parts->dx : backward && x->grad ? x->grad + at : NULL;
    if (rounded && x->accumulate)
        l->by.widen(rounded, dx, l->rows * c);
    for (l->first = 0; l->first < v; l->first += l->n) {
        l->n = gckpti_min(v - l->first, parts->chunk);
        l->x = l->d = work + parts->logits + (once ? l->rows * l->first : 0);
        const gckpti_factor d = { l->d, NULL, l->n, 1, 0, NULL };
        gckpt_dequantisation rows;
        gckpti_product t;
        t.run = t.before = 0;
        t.a = gckpti_factor_of(x, at, c, 1, 0), t.b = gckpti_factor_of(w, l->first * c, c, 1, 0);
        if (gckpti_stored_of(call)) {
            rows = gckpti_unpacking_from(gckpti_stored_of(call), l->first * c);
            gckpti_read_stored(call, &rows, &t.b);
        }
        if (l->counted > 0 && !have)
            gckpti_product_to(call, l->by.product, &t, l->rows, l->n, c, l->d, 0);
        if (l->counted > 0 && !have && l->cap > 0.0f)
            gckpt_parallel(call, l->rows, 16 * l->n, gckpti_loss_cap_row, l);
        gckpt_parallel(call, l->rows, 16 * l->n,
                       backward ? gckpti_loss_backward_row : gckpti_loss_forward_row, l);
        t.a = d, t.b = gckpti_turned(&t.b);
        if (dx)
            gckpti_product_to(call, l->by.product, &t, l->rows, c, l->n, dx,
                              x->accumulate || l->first > 0);
        t.b = gckpti_factor_of(x, at, c, 1, 0);
        t.a = gckpti_turned(&d), t.b = gckpti_turned(&t.b);
        t.run = gckpti_entry_rows(&x->shape), t.before = l->row % t.run;
        if (dw)
            gckpti_product_to(call, l->by.product, &t, l->n, c, l->rows, dw + l->first * c,
                              w->accumulate || l->row > 0);
    }
    if (rounded)
        l->by.narrow(dx, rounded, l->rows * c);
}

GCKPTI_FN void gckpti_linear_cross_entropy_by(const gckpt_call *call, int backward,
                                              gckpti_loss_by by)
{
    const gckpti_loss_parts parts = gckpti_loss_parts_of(call, backward);
    int64_t rows = gckpti_rows(&call->in[0].shape);
    const int once = gckpti_head_once(call);
    gckpti_loss l;
    memset(&l, 0, offsetof(gckpti_loss, max));
    l.call = call, l.by = by(call), l.e.kind = GCKPTI_CLASSES;
    l.cap = gckpti_head_cap(call);
    l.v = call->in[1].shape.d[0], l.targets = call->in[2].index;
    if (!l.by.product)
        l.by.product = gckpti_plain_products(call);
    for (int64_t row = 0; row < rows; row += l.rows) {
        gckpti_loss_begin(&l, row, gckpti_loss_rows(call, row, parts.block));
        if (once && !backward) {
            if (call->loss_count)
                *call->loss_count += l.counted;
            continue;
        }
        l.aux = once ? (float *)call->workspace + parts.aux : l.aux;
        if (once || !backward) {
            gckpti_loss_products(&l, 0, &parts);
            gckpti_loss_finish(&l);
        }
        if (backward)
            gckpti_loss_products(&l, 1, &parts);
    }
}

GCKPTI_BOTH_WAYS(linear_cross_entropy,
                 gckpti_linear_cross_entropy_by(call, backward, gckpti_plain_loss))

static uint64_t gckpti_linear_cross_entropy_flops(const gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape;
    uint64_t logits = (uint64_t)gckpti_rows(x) * (uint64_t)call->in[1].shape.d[0];
    return logits * (2 * (uint64_t)gckpti_last(x) + (gckpti_head_cap(call) > 0.0f ? 33 : 13));
}

/* The logits are computed again, or here only; blocks smaller than usual go over w and dw more
 * often, which moves as much as if dw were written that often. */
static uint64_t gckpti_linear_cross_entropy_flops_backward(const gckpt_call *call)
{
    const uint64_t once = (uint64_t)gckpti_head_once(call);
    uint64_t forward = gckpti_linear_cross_entropy_flops(call), more = 0;
    uint64_t rows = (uint64_t)gckpti_rows(&call->in[0].shape);
    if (once && !gckpti_is_plain(call) && once < GCKPTI_LOSS_ROWS)
        more = (rows + once - 1) / once - (rows + GCKPTI_LOSS_ROWS - 1) / GCKPTI_LOSS_ROWS;
    return gckpti_gradients_flops(call, forward) + forward +
           more * 40 * (uint64_t)gckpti_elements(&call->in[1].shape);
}

GCKPTI_ROW_WITH(linear_cross_entropy, GCKPTI_FAST, gckpti_linear_cross_entropy_shape,
                gckpti_linear_cross_entropy_flops, gckpti_linear_cross_entropy_flops_backward,
                gckpti_table_rows,
                GCKPT_LOSS | GCKPT_COUNT_FROM_FEEDS | GCKPT_TAKES_BF16 | GCKPT_INDEX(2) | GCKPTI_LATE,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_SAVED,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_SAVED);

GCKPT_API gckpt_tensor *gckpt_linear_cross_entropy_with(gckpt_tensor *x, gckpt_tensor *w,
                                                        gckpt_tensor *targets,
                                                        const gckpt_linear_loss_desc *desc)
{
    gckpt_tensor *in[3] = { x, w, targets };
    const gckpti_head o = { 0, desc ? desc->cap : 0.0f };
    if (x && !gckpti_is_cap(o.cap))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "linear_cross_entropy: a cap of %g; it must be 1e-30 to 1e30, or 0: "
                           "none",
                           (double)o.cap);
    if (x && w && targets && !w->batchless)
        return gckpti_fail(w->graph, GCKPT_E_ARG,
                           "linear_cross_entropy: w, %T, depends on the batch; it must be "
                           "a function of parameters",
                           w);
    gckpt_tensor *t = gckpt_apply(&gckpti_op_linear_cross_entropy, in, 3, &o,
                                  o.cap > 0.0f ? sizeof o : 0);
    if (t)
        w->floats--;
    return t;
}

GCKPT_API gckpt_tensor *gckpt_linear_cross_entropy(gckpt_tensor *x, gckpt_tensor *w,
                                                   gckpt_tensor *targets)
{
    return gckpt_linear_cross_entropy_with(x, w, targets, NULL);
}
