#include "images/kernels.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_IMAGES)
/* ---- convolutions are products (cpu/products.c), one for each phase and group, or
 * (images/grouped.c) run in vectors of channels ---- */
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

static void gckpti_grouped_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_grouped *u = (const gckpti_grouped *)context;
    (void)worker;
    gckpti_kernels_of(u->call)->images->conv_grouped(u, item);
}

static void gckpti_conv_grouped(const gckpt_call *call, const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const gckpti_axis_map *r = s->r;
    const int64_t g = z->group_c, lanes = gckpti_kernels_of(call)->images->lanes;
    const int64_t lines = z->rows * r[0].results, terms = r[0].taps * r[1].taps * g;
    gckpti_grouped u = { call, s, 0, 1, 0, lanes };
    int64_t items;
    if (s->kind == GCKPTI_CONV_DW) {
        gckpti_zero_unless(s->out, gckpti_elements(&call->in[1].shape), s->accumulate);
        u.width *= g > 1 ? 1 : GCKPTI_DW_COLUMNS;
        u.tiles = (z->c + u.width - 1) / u.width * r[0].taps;
        u.tiles *= (r[1].taps + GCKPTI_DW_TAPS - 1) / GCKPTI_DW_TAPS;
        u.tiles *= g > 1 ? (g + GCKPTI_DW_COLUMNS - 1) / GCKPTI_DW_COLUMNS : 1;
        items = gckpti_min(call->threads > 1 ? 4 * call->threads : 1, u.tiles);
        u.each = (u.tiles + items - 1) / items;
        items = (u.tiles + u.each - 1) / u.each;
    } else {
        const int packs = s->kind == GCKPTI_CONV_UP && g > 1;
        if (packs)
            u.blocks = (z->c + 2 * lanes - 1) / (2 * lanes);
        u.each = (packs ? 512 : 64) / r[1].results + 1;
        items = (lines + u.each - 1) / u.each * u.blocks;
    }
    gckpt_parallel(call, items, lines * r[1].results * terms * z->c / items, gckpti_grouped_item,
                   &u);
}

GCKPTI_FN void gckpti_conv_fast(const gckpt_call *call, gckpti_conv *s)
{
    if (gckpti_conv_is_grouped(s->z)) {
        gckpti_conv_grouped(call, s);
        return;
    }
    gckpti_conv_gemm w = gckpti_conv_gemm_of(s);
    gckpti_products base = { call, &w.t, 0, 0, 0, 0, 0, gckpti_conv_c_block };
    w.t.workspace = call->workspace;
    base.floats = gckpti_conv_workspace(w.t.m, w.t.n, w.t.k);
    gckpti_products_split(&base);
    gckpti_run_products(&base);
}
#endif
