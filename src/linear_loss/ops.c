#ifndef GCKPT_NO_LINEAR_LOSS
#include "linear_loss/linear_loss.h"
#include "ops/internal.h"
#include "graph/graph.h"

/* ---- linear_cross_entropy: cross_entropy(linear_transposed(x, w)), in f32 plans with the same
 * bits (in mixed plans its logits are not rounded: manual, 5l) ----
 * Logits: chains over C from +0. Backward, d being the logits' gradient: chains dx += d w over the
 * classes, dw += d x over the rows. Ignored rows (target < 0) take part with d = +0, as in the two
 * ops: otherwise a -0 could stay in dw, or an infinity in w stay hidden. The products round d.
 * With a cap, a logit z is gckpti_softcap(z, 1 / cap, cap) as soon as its chain is complete.
 * Its lowering (linear_loss/plan.c) is a number of rows: the backward computes loss and gradient
 * of that many rows at a time, and their logits only once; the forward only counts rows. */
typedef struct {
    int64_t block, chunk;            /* rows and classes per pass */
    int64_t logits, dx, saved, size; /* offsets in the workspace, and its size, in floats */
} gckpti_loss_layout;

/* The workspace has: scratch of the products; logits of a block of rows (one, with plain kernels)
 * and a chunk of classes, or all; in mixed plans dx of the block; the saved values if the op has no
 * saved buffer. There a backward takes 32 rows at a time if it has so many, as dw adds blocks. */
static gckpti_loss_layout gckpti_loss_layout_of(const gckpt_call *call, int backward)
{
    int64_t c = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    int mixed = gckpti_is_mixed(call);
    int blocks = mixed && backward && gckpti_sample_rows(&call->in[0].shape) >= GCKPTI_K_BLOCK;
    const int block_rows = gckpti_linear_loss_block(call);
    gckpti_loss_layout p = { 1, GCKPTI_LOSS_CHUNK, 0, 0, 0, 0 };
    if (block_rows && !backward)
        return p;
    if (!gckpti_is_plain(call))
        p.block = block_rows ? block_rows : mixed ? GCKPTI_LOSS_MAX_ROWS : GCKPTI_LOSS_ROWS;
    else if (blocks && !block_rows)
        p.chunk = GCKPTI_K_BLOCK;
    if (blocks && p.block < GCKPTI_K_BLOCK)
        p.block = GCKPTI_K_BLOCK;
    p.block = gckpti_min(rows, p.block);
    int64_t n = gckpti_min(call->in[1].shape.d[0], p.chunk);
    int64_t products = gckpti_threads_workspace(call, p.block, n, c);
    if (backward) {
        int64_t dx = gckpti_threads_workspace(call, p.block, c, n);
        int64_t dw = gckpti_threads_workspace(call, n, c, p.block), most = dx > dw ? dx : dw;
        products = products > most ? products : most;
    }
    p.logits = products;
    p.dx = p.logits + p.block * (block_rows ? call->in[1].shape.d[0] : n);
    p.saved = p.dx + (mixed && backward ? p.block * c : 0);
    p.size = p.saved + (block_rows ? 2 * p.block : 0);
    return p;
}

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
    call->saved_bytes =
        gckpti_linear_loss_block(call) ? 0 : (size_t)gckpti_rows(x) * 2 * sizeof(float);
    call->workspace_forward = (size_t)gckpti_loss_layout_of(call, 0).size * sizeof(float);
    call->workspace_backward = (size_t)gckpti_loss_layout_of(call, 1).size * sizeof(float);
    return GCKPT_OK;
}

GCKPTI_FN int64_t gckpti_loss_block_rows(const gckpt_call *call, int64_t row, int64_t most)
{
    const gckpt_shape *x = &call->in[0].shape;
    const int64_t left = gckpti_rows(x) - row, sample = gckpti_sample_rows(x);
    if (left <= most || most < GCKPTI_K_BLOCK || !gckpti_is_mixed(call) || sample < GCKPTI_K_BLOCK)
        return gckpti_min(left, most);
    return most - (row + most) % sample % GCKPTI_K_BLOCK;
}

static void gckpti_loss_cap_row(void *context, int64_t r, int64_t worker)
{
    const gckpti_loss *loss = (const gckpti_loss *)context;
    (void)worker;
    loss->classes->cap(gckpti_f32(loss->d) + r * loss->n, loss->n, 1.0f / loss->cap, loss->cap);
}

/* For each chunk of classes of a block: logits = x w', dx += d w, dw += d' x. Narrow dx is
 * in the workspace, since it is rounded once, after the last class. */
static void gckpti_loss_products(gckpti_loss *loss, int backward, const gckpti_loss_layout *layout)
{
    const gckpt_call *call = loss->call;
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    int64_t c = gckpti_last(&x->shape), v = w->shape.d[0], at = loss->row * c;
    const int64_t sample = gckpti_sample_rows(&x->shape);
    const int block_rows = gckpti_linear_loss_block(call), has_logits = backward && block_rows;
    float *workspace = (float *)call->workspace, *dw = backward ? w->grad : NULL;
    const gckpti_destination to = backward ? gckpti_arg_gradient(x) : gckpti_f32_destination(NULL);
    float *dx = gckpti_open(call, to, at, loss->rows * c, x->accumulate, workspace + layout->dx);
    for (loss->first = 0; loss->first < v; loss->first += loss->n) {
        loss->n = gckpti_min(v - loss->first, layout->chunk);
        float *logits = workspace + layout->logits + (block_rows ? loss->rows * loss->first : 0);
        loss->d = gckpti_f32_destination(logits), loss->x = gckpti_source_of(loss->d);
        const gckpti_operand a = gckpti_operand_of(gckpti_arg_values(x), at, c, 1, 0);
        const gckpti_operand b = gckpti_operand_of(gckpti_arg_values(w), loss->first * c, c, 1, 0);
        const gckpti_operand d = gckpti_matrix(logits, loss->n, 1);
        gckpti_factors f = {
            loss->rows, loss->n, c, a, b, d, 1, 1, sample, loss->row % sample, NULL
        };
        gckpti_compressed rows;
        if (gckpti_call_compressed(call)) {
            rows = gckpti_compressed_from(gckpti_call_compressed(call), loss->first * c);
            GCKPTI_IF_COMPRESSED(gckpti_use_compressed(call, &rows, &f.b));
        }
        (void)rows;
        if (loss->counted > 0 && !has_logits)
            gckpti_run_factors(call, gckpti_run_product, &f, 0, loss->d, 0);
        if (loss->counted > 0 && !has_logits && loss->cap > 0.0f)
            gckpt_parallel(call, loss->rows, 16 * loss->n, gckpti_loss_cap_row, loss);
        gckpt_parallel(call, loss->rows, 16 * loss->n,
                       backward ? gckpti_loss_backward_row : gckpti_loss_forward_row, loss);
        gckpti_run_factors(call, gckpti_run_product, &f, 1, gckpti_f32_destination(dx),
                           x->accumulate || loss->first > 0);
        if (dw)
            gckpti_run_factors(call, gckpti_run_product, &f, 2,
                               gckpti_f32_destination(dw + loss->first * c),
                               w->accumulate || loss->row > 0);
    }
    gckpti_close(call, to, at, loss->rows * c, dx);
}

static void gckpti_run_linear_cross_entropy(const gckpt_call *call, int backward)
{
    const gckpti_loss_layout layout = gckpti_loss_layout_of(call, backward);
    int64_t rows = gckpti_rows(&call->in[0].shape);
    const int block_rows = gckpti_linear_loss_block(call);
    gckpti_loss loss;
    memset(&loss, 0, offsetof(gckpti_loss, max));
    loss.call = call, loss.e.kind = GCKPTI_LOSS_CLASSES;
    loss.classes = GCKPTI_KERNEL_OF(call, class_losses, &gckpti_class_loss_kernels);
    loss.cap = gckpti_linear_loss_cap(call);
    loss.v = call->in[1].shape.d[0], loss.targets = call->in[2].index;
    for (int64_t row = 0; row < rows; row += loss.rows) {
        gckpti_loss_begin_block(&loss, row, gckpti_loss_block_rows(call, row, layout.block));
        if (block_rows && !backward) {
            if (call->loss_count)
                *call->loss_count += loss.counted;
            continue;
        }
        loss.saved = block_rows ? (float *)call->workspace + layout.saved : loss.saved;
        if (block_rows || !backward) {
            gckpti_loss_products(&loss, 0, &layout);
            gckpti_loss_finish_block(&loss);
        }
        if (backward)
            gckpti_loss_products(&loss, 1, &layout);
    }
}

GCKPTI_OP_KERNELS(linear_cross_entropy, gckpti_run_linear_cross_entropy(call, backward))

static uint64_t gckpti_linear_cross_entropy_flops(const gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape;
    uint64_t logits = (uint64_t)gckpti_rows(x) * (uint64_t)call->in[1].shape.d[0];
    return logits *
           (2 * (uint64_t)gckpti_last(x) + (gckpti_linear_loss_cap(call) > 0.0f ? 33 : 13));
}

/* Smaller blocks, whose logits the backward computes, cost more: it reads w and dw more often. */
static uint64_t gckpti_linear_cross_entropy_flops_backward(const gckpt_call *call)
{
    const uint64_t block = (uint64_t)gckpti_linear_loss_block(call);
    uint64_t forward = gckpti_linear_cross_entropy_flops(call), more = 0;
    uint64_t rows = (uint64_t)gckpti_rows(&call->in[0].shape);
    if (block && !gckpti_is_plain(call) && block < GCKPTI_LOSS_ROWS)
        more = (rows + block - 1) / block - (rows + GCKPTI_LOSS_ROWS - 1) / GCKPTI_LOSS_ROWS;
    return gckpti_gradients_flops(call, forward) + forward +
           more * 40 * (uint64_t)gckpti_elements(&call->in[1].shape);
}

GCKPTI_DESC_WITH(linear_cross_entropy, gckpti_linear_cross_entropy_shape,
                 gckpti_linear_cross_entropy_flops, gckpti_linear_cross_entropy_flops_backward,
                 gckpti_table_rows,
                 GCKPT_LOSS | GCKPT_COUNT_FROM_FEEDS | GCKPT_TAKES_BF16 | GCKPT_INDEX(2) |
                     GCKPTI_BACKWARD_LOSS,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_SAVED,
                 GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_SAVED);

GCKPT_API gckpt_tensor *gckpt_linear_cross_entropy(gckpt_tensor *x, gckpt_tensor *w,
                                                   gckpt_tensor *targets,
                                                   const gckpt_linear_loss_desc *desc)
{
    gckpt_tensor *in[3] = { x, w, targets };
    const gckpti_linear_loss o = { 0, desc ? desc->cap : 0.0f };
    if (x && !gckpti_is_valid_cap(o.cap))
        return gckpti_fail(x->graph, GCKPT_E_ARG,
                           "linear_cross_entropy: a cap of %g; it must be 1e-30 to 1e30, or 0: "
                           "none",
                           (double)o.cap);
    if (x && w && targets && !w->batch_invariant)
        return gckpti_fail(w->graph, GCKPT_E_ARG,
                           "linear_cross_entropy: w, %T, depends on the batch; it must be "
                           "a function of parameters",
                           w);
    gckpt_tensor *t =
        gckpt_apply(&gckpti_op_linear_cross_entropy, in, 3, &o, o.cap > 0.0f ? sizeof o : 0);
    if (t)
        w->f32_uses--;
    return t;
}
#endif
