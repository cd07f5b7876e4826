#include "cpu/own.h"

#if GCKPTI_HAS_FAST && !defined(GCKPT_NO_IMAGES)
/* ---- pools, upsample, norms: as in ops; conv2d: products as in cpu/products, by phases, groups;
 * groups of one channel: an item is a line of results, of dw 64 channels ---- */
typedef struct {
    gckpti_products by;
    gckpti_windows w;
} gckpti_windows_job;

static void gckpti_windows_cut(const gckpti_products *by, const gckpti_rectangle *at, float *room,
                               int64_t floats)
{
    gckpti_windows w = ((const gckpti_windows_job *)(const void *)by)->w;
    w.from += at->matrix * w.from_next, w.t.b.f32 += at->matrix * w.t.b.next;
    w.t.c += at->matrix * w.c_next;
    if (w.t.start)
        w.t.start += at->matrix * w.c_next;
    gckpti_kernels_of(by->call)->windows_piece(&w, at, room, floats);
}

/* What lies where, of one kind and phase. */
static gckpti_windows gckpti_windows_of(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const int up = s->kind == GCKPTI_CONV_UP;
    const int64_t channels = up ? z->o : z->c, group = up ? z->group_o : z->group_c;
    const gckpti_reach *x = &s->r[1];
    gckpti_windows w;
    gckpti_product *t = &w.t;
    memset(&w, 0, sizeof w);
    w.kind = s->kind, w.z = z, w.from = s->from;
    w.r[0] = s->r[0], w.r[1] = s->r[1];
    w.width = x->size * channels, w.image = w.r[0].size * w.width;
    w.step = x->step * channels, w.tap = x->tap * channels, w.first = x->first * channels;
    w.run = group, w.across = x->taps + !x->taps;
    if (w.tap == group)
        w.run *= w.across, w.across = 1;
    w.from_next = group, t->b.next = z->group_o, w.c_next = up ? z->group_c : z->group_o;
    t->m = z->rows * w.r[0].results * x->results, t->k = w.r[0].taps * x->taps * group;
    t->n = w.c_next, t->a.step = 1, t->batch = z->window.groups;
    if (s->kind == GCKPTI_CONV_DW) {
        const int64_t places = t->m;
        t->m = t->k, t->k = places, t->a.row = 1, t->a.step = GCKPTI_GATHERED;
    }
    t->b.f32 = s->w, t->b.step = up ? 1 : z->o, t->b.row = up ? z->o : 1;
    t->c = s->out, t->c_row = up ? z->c : z->o;
    t->start = s->start, t->accumulate = s->accumulate && !s->start;
    return w;
}

/* Groups of one channel: a line of results, 64 channels of dw. */
static void gckpti_conv_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_conv *s = (const gckpti_conv *)context;
    const int64_t line = s->r[1].results, c = i * GCKPTI_COLUMNS;
    (void)worker;
    if (s->kind == GCKPTI_CONV_DW)
        gckpti_conv_walk(s, 0, s->z->rows * s->r[0].results * line, c,
                         gckpti_min(s->z->c - c, GCKPTI_COLUMNS));
    else
        gckpti_conv_walk(s, i * line, (i + 1) * line, 0, s->z->c);
}

/* gckpti_conv_plain */
static void gckpti_conv_fast(const gckpt_call *call, gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const int64_t places = z->rows * s->r[0].results, taps = s->r[0].taps * s->r[1].taps;
    if (z->group_c > 1 || z->group_o > 1) {
        gckpti_windows_job job = { { call, NULL, 0, 0, 0, 0, 0, gckpti_windows_cut },
                                   gckpti_windows_of(s) };
        job.w.t.room = call->workspace, job.by.t = &job.w.t;
        job.by.room = gckpti_windows_room(job.w.t.m, job.w.t.n, job.w.t.k);
        gckpti_products_cut(&job.by);
        gckpti_products_run(&job.by);
        return;
    }
    if (s->kind == GCKPTI_CONV_DW) {
        gckpti_start(s->out, gckpti_elements(&call->in[1].shape), s->accumulate);
        gckpt_parallel(call, (z->c + GCKPTI_COLUMNS - 1) / GCKPTI_COLUMNS,
                       4 * places * s->r[1].results * taps * GCKPTI_COLUMNS, gckpti_conv_item, s);
    } else {
        gckpt_parallel(call, places, 4 * s->r[1].results * taps * z->c, gckpti_conv_item, s);
    }
}

GCKPTI_BOTH_WAYS(fast_conv2d, gckpti_conv_by(call, backward, gckpti_conv_fast,
                                             gckpti_kernels_of(call)->multiply_add);
                 if (backward) gckpti_columns_run(call, 0, call->inputs == 3 ? 2 : 0))

GCKPTI_BOTH_WAYS(fast_max_pool,
                 gckpti_max_pool_by(call, backward, gckpti_kernels_of(call)->max_window))
GCKPTI_BOTH_WAYS(fast_average_pool,
                 gckpti_average_pool_by(call, backward, gckpti_kernels_of(call)->add,
                                        gckpti_kernels_of(call)->divide))

GCKPTI_BOTH_WAYS(fast_upsample, (void)backward;
                 gckpti_upsample_by(call, gckpti_kernels_of(call)->scaled_add))

static void gckpti_fast_channels(const gckpt_call *call, int backward)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    const gckpti_channel_kernels by = { k->channel_sums, k->channel_out, k->channel_dx };
    gckpti_channels_by(call, backward, &by);
}

GCKPTI_BOTH_WAYS(fast_groupnorm, gckpti_fast_channels(call, backward))
GCKPTI_BOTH_WAYS(fast_batchnorm, gckpti_fast_channels(call, backward))
#endif
