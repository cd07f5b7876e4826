#include "images/kernels.h"
#include "cpu/internal.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_IMAGES)
/* ---- convolutions are products (cpu/products.c), one for each phase and group, or
 * (images/grouped.c) run in vectors of channels ---- */
static void gckpti_conv_c_block(const gckpti_products *base, const gckpti_c_block *block,
                                float *scratch, int64_t floats)
{
    gckpti_conv_gemm w = *(const gckpti_conv_gemm *)(const void *)base->t;
    w.from += block->matrix * w.t.a.batch_stride, w.t.b.f32 += block->matrix * w.t.b.batch_stride;
    w.t.c += block->matrix * w.t.n;
    if (w.t.initial)
        w.t.initial += block->matrix * w.t.n;
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
    t->a.batch_stride = group, t->b.batch_stride = z->group_o, t->n = up ? z->group_c : z->group_o;
    t->m = z->rows * s->r[0].results * x->results, t->k = s->r[0].taps * x->taps * group;
    t->a.k_stride = 1, t->batch = z->window.groups;
    if (s->kind == GCKPTI_CONV_DW) {
        const int64_t windows = t->m;
        t->m = t->k, t->k = windows, t->a.stride = 1, t->a.k_stride = GCKPTI_GATHER_ROWS;
    }
    t->b.f32 = s->w, t->b.k_stride = up ? 1 : z->o, t->b.stride = up ? z->o : 1;
    t->c = s->out, t->c_stride = up ? z->c : z->o;
    t->initial = s->start, t->accumulate = s->accumulate && !s->start;
    return w;
}

GCKPTI_FN void gckpti_grouped_begin(const gckpti_conv *s, gckpti_grouped_tile *tile,
                                    const float *pack, int64_t at)
{
    const gckpti_axis_map rows = s->r[0], cols = s->r[1];
    const int64_t g = s->z->group_c, all = s->z->c, line = at / cols.results;
    tile->j = at % cols.results, tile->i = line % rows.results, tile->row = line / rows.results;
    tile->w_term = pack ? tile->n : all;
    for (int64_t k = 0; k < tile->taps; k++) {
        const int64_t ky = (tile->first + k) / cols.taps, kx = (tile->first + k) % cols.taps;
        const int64_t w = gckpti_conv_tap(s->z, s->r, ky, kx) * g * all + tile->c;
        tile->w[k] = pack ? pack + k * g * tile->n : s->w + w;
        tile->dw[k] = s->out + w;
        tile->y[k] = ky * rows.dilation, tile->x[k] = kx * cols.dilation;
        tile->offset[k] = (tile->y[k] * cols.size + tile->x[k]) * all;
    }
}

GCKPTI_FN int gckpti_grouped_next(const gckpti_conv *s, gckpti_grouped_tile *tile, int64_t left)
{
    const gckpti_axis_map rows = s->r[0], cols = s->r[1];
    const int64_t all = s->z->c, taps = tile->taps;
    const int dw = s->kind == GCKPTI_CONV_DW, adds = tile->first || (s->accumulate && !s->start);
    const int large = s->z->rows * rows.size * cols.size * all > GCKPTI_LARGE_FLOATS;
    const float *from = s->from, *zeros = tile->zeros;
    const float *start = s->start ? s->start + tile->c : zeros;
    const int64_t last = (cols.taps - 1) * cols.dilation;
    tile->windows = 0;
    for (int p = 0; p < GCKPTI_TILE_WINDOWS; p++) {
        const int here = p < left && tile->row < s->z->rows;
        const int64_t to = gckpti_conv_place_of(s, tile->row, tile->i, tile->j) * all + tile->c;
        const int64_t y = tile->i * rows.stride + rows.first;
        const int64_t x = tile->j * cols.stride + cols.first;
        const uint64_t high = here ? (uint64_t)rows.size : 0, wide = (uint64_t)cols.size;
        const int64_t at = ((tile->row * rows.size + y) * cols.size + x) * all + tile->c;
        const int whole = taps > 0 && (uint64_t)(y + tile->y[0]) < high &&
                          (uint64_t)(y + tile->y[taps - 1]) < high && (uint64_t)x < wide &&
                          (uint64_t)(x + last) < wide;
        for (int64_t k = 0; k < taps; k++) {
            const int inside =
                whole || ((uint64_t)(y + tile->y[k]) < high && (uint64_t)(x + tile->x[k]) < wide);
            tile->from[k][p] = inside ? from + (at + tile->offset[k]) : zeros;
        }
        tile->to[p] = here && !dw ? s->out + to : tile->unused;
        tile->start[p] = !here ? zeros : dw ? s->w + to : adds ? s->out + to : start;
        tile->windows += here;
        if (here && ++tile->j == cols.results)
            tile->j = 0, tile->i++;
        if (tile->i == rows.results)
            tile->i = 0, tile->row++;
    }
    for (int p = 0; p < GCKPTI_TILE_WINDOWS && large && taps > 0; p++) /* the last tap */
        for (int64_t c = 0; c < tile->n; c += 16)
            __builtin_prefetch(tile->from[taps - 1][p] + c);
    return tile->windows > 0;
}

/* Divides a convolution into items: blocks of channels, then results or (DW, whose chains are over
 * all windows) taps. */
static void gckpti_conv_grouped(const gckpt_call *call, const gckpti_conv *s)
{
    const gckpti_image_kernels *kernels = gckpti_kernels_of(call)->images;
    const int dw = s->kind == GCKPTI_CONV_DW;
    const int64_t g = s->z->group_c, all = s->z->c, taps = s->r[0].taps * s->r[1].taps;
    const int64_t results = s->z->rows * s->r[0].results * s->r[1].results;
    const int64_t step = gckpti_ceil_to(2 * kernels->lanes, 16); /* whole groups */
    const int64_t wanted = call->threads > 1 ? 4 * call->threads : 1;
    gckpti_grouped u = { s, results, 1, GCKPTI_GROUPED_CHANNELS, GCKPTI_TILE_TAPS, 0 };
    int64_t parts;
    u.packs = s->kind == GCKPTI_CONV_UP && g > 1;
    if (u.packs)
        u.width = gckpti_min(u.width, GCKPTI_STACK_FLOATS / (taps * g + !taps) / step * step);
    if (dw && all > 64)
        u.width = gckpti_min(u.width, 64 + all / wanted);
    u.blocks = (all + u.width - 1) / u.width;
    u.width = gckpti_ceil_to((all + u.blocks - 1) / u.blocks, step);
    if (dw) {
        gckpti_zero_unless(s->out, gckpti_elements(&call->in[1].shape), s->accumulate);
        parts = (call->threads + u.blocks - 1) / u.blocks;
        u.taps = gckpti_min(u.taps, (taps + parts - 1) / parts);
        parts = (taps + u.taps - 1) / u.taps;
    } else {
        parts = (wanted + u.blocks - 1) / u.blocks;
        u.each = gckpti_ceil_to((results + parts - 1) / parts, GCKPTI_TILE_WINDOWS);
        parts = (results + u.each - 1) / u.each;
    }
    parts *= u.blocks;
    gckpt_parallel(call, parts, results * taps * g * all / parts, kernels->conv_grouped, &u);
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
