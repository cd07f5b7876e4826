#include "images/kernels.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_IMAGES)
/* ---- convolutions are products (cpu/products.c), one for each phase and group; if groups have one
 * channel, a work item is a line of results, or 64 channels of dw ---- */
static void gckpti_conv_c_block(const gckpti_products *base, const gckpti_c_block *block,
                                float *scratch, int64_t floats)
{
    gckpti_conv_gemm w = *(const gckpti_conv_gemm *)(const void *)base->t;
    w.from += block->matrix * w.from_next, w.t.b.f32 += block->matrix * w.t.b.batch_stride;
    w.t.c += block->matrix * w.c_next;
    if (w.t.initial)
        w.t.initial += block->matrix * w.c_next;
    gckpti_kernels_of(base->call)->images->conv_block(&w, block, scratch, floats);
}

/* Returns the product of one kind of a convolution, for UP of one phase. */
static gckpti_conv_gemm gckpti_conv_gemm_of(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const int up = s->kind == GCKPTI_CONV_UP;
    const int64_t channels = up ? z->o : z->c, group = up ? z->group_o : z->group_c;
    const gckpti_axis_map *x = &s->r[1];
    gckpti_conv_gemm w;
    gckpti_product *t = &w.t;
    memset(&w, 0, sizeof w);
    w.conv = s, w.from = s->from;
    w.width = x->size * channels, w.image = s->r[0].size * w.width;
    w.step = x->stride * channels, w.tap = x->dilation * channels, w.first = x->first * channels;
    w.tap_len = group, w.line_taps = x->taps + !x->taps;
    if (w.tap == group)
        w.tap_len *= w.line_taps, w.line_taps = 1;
    w.from_next = group, t->b.batch_stride = z->group_o, w.c_next = up ? z->group_c : z->group_o;
    t->m = z->rows * s->r[0].results * x->results, t->k = s->r[0].taps * x->taps * group;
    t->n = w.c_next, t->a.k_stride = 1, t->batch = z->window.groups;
    if (s->kind == GCKPTI_CONV_DW) {
        const int64_t windows = t->m;
        t->m = t->k, t->k = windows, t->a.stride = 1, t->a.k_stride = GCKPTI_GATHER_ROWS;
    }
    t->b.f32 = s->w, t->b.k_stride = up ? 1 : z->o, t->b.stride = up ? z->o : 1;
    t->c = s->out, t->c_stride = up ? z->c : z->o;
    t->initial = s->start, t->accumulate = s->accumulate && !s->start;
    return w;
}

/* Computes an item for groups of one channel: a line of results, or 64 channels of dw. */
static void gckpti_conv_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_conv *s = (const gckpti_conv *)context;
    const int64_t line = s->r[1].results, c = i * GCKPTI_COLUMNS;
    (void)worker;
    if (s->kind == GCKPTI_CONV_DW)
        gckpti_conv_results(s, 0, s->z->rows * s->r[0].results * line, c,
                            gckpti_min(s->z->c - c, GCKPTI_COLUMNS));
    else
        gckpti_conv_results(s, i * line, (i + 1) * line, 0, s->z->c);
}

GCKPTI_FN void gckpti_conv_fast(const gckpt_call *call, gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const int64_t windows = z->rows * s->r[0].results, taps = s->r[0].taps * s->r[1].taps;
    if (z->group_c > 1 || z->group_o > 1) {
        gckpti_conv_gemm w = gckpti_conv_gemm_of(s);
        gckpti_products base = { call, &w.t, 0, 0, 0, 0, 0, gckpti_conv_c_block };
        w.t.workspace = call->workspace;
        base.floats = gckpti_conv_workspace(w.t.m, w.t.n, w.t.k);
        gckpti_products_split(&base);
        gckpti_run_products(&base);
        return;
    }
    if (s->kind == GCKPTI_CONV_DW) {
        gckpti_zero_unless(s->out, gckpti_elements(&call->in[1].shape), s->accumulate);
        gckpt_parallel(call, (z->c + GCKPTI_COLUMNS - 1) / GCKPTI_COLUMNS,
                       4 * windows * s->r[1].results * taps * GCKPTI_COLUMNS, gckpti_conv_item, s);
    } else {
        gckpt_parallel(call, windows, 4 * s->r[1].results * taps * z->c, gckpti_conv_item, s);
    }
}
#endif
