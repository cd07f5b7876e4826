#include "cpu/own.h"

#if GCKPTI_HAS_FAST
/* ---- linear, matmul: `batch` products, each cut into pieces of c ---- */

#ifdef GCKPT_OPENBLAS
/* The kernel product_piece by OpenBLAS, whose sums have an order of their own (manual, 5). */
static void gckpti_openblas_piece(const gckpti_product *t, const gckpti_rectangle *at)
{
    const int64_t i0 = at->i0, i1 = at->i1, j0 = at->j0, j1 = at->j1;
    const gckpti_factor *a = &t->a, *b = &t->b;
    int rows = (int)(i1 - i0), cols = (int)(j1 - j0);
    /* of a single row what comes next is not read, but sgemm refuses less */
    int a_next = (int)(a->step != 1 ? a->step : t->m == 1 ? t->k : a->row);
    int b_next = (int)(b->row != 1 ? b->row : t->k == 1 ? t->n : b->step);
    float *c = t->c + i0 * t->c_row + j0;
    for (int64_t i = i0; t->start && !t->accumulate && i < i1; i++)
        memcpy(t->c + i * t->c_row + j0, gckpti_starts(t, i, j0), (size_t)cols * sizeof(float));
    cblas_sgemm(CblasRowMajor, a->step == 1 ? CblasNoTrans : CblasTrans,
                b->row == 1 ? CblasNoTrans : CblasTrans, rows, cols, (int)t->k, 1.0f,
                a->f32 + i0 * a->row, a_next, b->f32 + j0 * b->row, b_next,
                t->start || t->accumulate ? 1.0f : 0.0f, c, (int)t->c_row);
}

/* What sgemm takes: rows that are as far apart as they are long, at least. */
static int gckpti_openblas_can(const gckpti_product *t)
{
    const gckpti_factor *a = &t->a, *b = &t->b;
    const int64_t most = INT32_MAX, a_next = a->step == 1 ? a->row : a->step;
    const int64_t b_next = b->row == 1 ? b->step : b->row;
    int a_can = a->step == 1 ? t->m == 1 || a_next >= t->k : a->row == 1 && a_next >= t->m;
    int b_can = b->row == 1 ? t->k == 1 || b_next >= t->n : b->step == 1 && b_next >= t->k;
    return !gckpti_is_stored(b) && t->m <= most && t->n <= most && t->k <= most && t->k > 0 &&
           a_next <= most && b_next <= most && a_can && b_can && t->c_row >= t->n &&
           t->c_row <= most;
}
#endif

static void gckpti_fp32_piece(const gckpti_products *s, const gckpti_rectangle *at, float *room,
                              int64_t floats)
{
    gckpti_product t = *s->t;
    const int64_t c_next = at->matrix * t.m * t.c_row;
    t.a.f32 += at->matrix * t.a.next, t.c += c_next;
    if (!gckpti_is_stored(&t.b))
        t.b.f32 += at->matrix * t.b.next;
#ifdef GCKPT_OPENBLAS
    if (gckpti_openblas_can(&t)) {
        gckpti_openblas_piece(&t, at);
        return;
    }
#endif
    gckpti_kernels_of(s->call)->product_piece(&t, at, room, floats);
}

static void gckpti_products_piece(const gckpti_products *s, int64_t i, float *room, int64_t floats)
{
    gckpti_rectangle at = { 0, 0, 0, 0, i / (s->down * s->across), i };
    at.i0 = i / s->across % s->down * s->rows, at.j0 = i % s->across * s->cols;
    at.i1 = at.i0 + gckpti_min(s->t->m - at.i0, s->rows);
    at.j1 = at.j0 + gckpti_min(s->t->n - at.j0, s->cols);
    s->piece(s, &at, room, floats);
}

static void gckpti_products_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_products *s = (const gckpti_products *)context;
    gckpti_products_piece(s, i, (float *)s->t->room + worker * s->room, s->room);
}

static void gckpti_products_small_item(void *context, int64_t i, int64_t worker)
{
    float room[GCKPTI_SMALL_ROOM] GCKPTI_ALIGNED;
    (void)worker;
    gckpti_products_piece((const gckpti_products *)context, i, room, GCKPTI_SMALL_ROOM);
}

/* All pieces of all products; s: the first member of what s->piece needs to know. */
GCKPTI_FN void gckpti_products_run(gckpti_products *s)
{
    gckpt_parallel(s->call, s->t->batch * s->down * s->across, s->rows * s->cols * s->t->k,
                   s->room ? gckpti_products_item : gckpti_products_small_item, s);
}

/* Cuts c into pieces, as square as may be, since each fetches its part of a and b: 4 for each
 * thread, so that one that loses its core delays the others little (1 if a row alone goes over rows
 * of b: long ones are read faster); 1 if it is small. A b that must be transposed is cut by columns
 * first, lest two pieces do it again; and the part of a must stay in a cache while a piece goes
 * over it for every GCKPTI_NC columns. */
GCKPTI_FN void gckpti_products_cut(gckpti_products *s)
{
    enum { LOW = 256, HIGH = 1024 };
    const gckpti_product *t = s->t;
    int64_t narrow = t->m == 1 ? 512 : 2 * GCKPTI_PANEL; /* a row alone: runs of b that are long */
    int small = t->m * t->n * t->k < 65536;
    int64_t threads = s->call->threads, each = t->m == 1 && t->b.row == 1 ? 1 : 4;
    int64_t pieces = small || threads < 2 ? 1 : each * threads / t->batch;
    s->rows = t->m, s->cols = t->n;
    for (int64_t have = 1; have < pieces || (s->rows > HIGH && !small); have *= 2)
        if (have < pieces && s->cols > narrow &&
            (t->b.row != 1 || s->cols >= s->rows || s->rows <= LOW))
            s->cols = gckpti_multiple((s->cols + 1) / 2, GCKPTI_PANEL);
        else if (s->rows > 4 * GCKPTI_STRIP)
            s->rows = gckpti_multiple((s->rows + 1) / 2, GCKPTI_STRIP);
    s->across = (t->n + s->cols - 1) / s->cols;
    s->down = (t->m + s->rows - 1) / s->rows;
}

/* What gckpti_fp32_plain does. */
GCKPTI_FN void gckpti_fp32_fast(const gckpt_call *call, const gckpti_product *t)
{
    gckpti_products s = { call, t, 0, 0, 0, 0, 0, gckpti_fp32_piece };
    s.room = gckpti_product_room(t->m, t->n, t->k);
    gckpti_products_cut(&s);
    gckpti_products_run(&s);
}

GCKPTI_FN gckpti_product_run gckpti_fast_products(const gckpt_call *call)
{
    return !gckpti_is_mixed(call) ? gckpti_fp32_fast : gckpti_mixed_fast;
}

GCKPTI_BOTH_WAYS(fast_matmul, (backward ? gckpti_linear_gradients
                                        : gckpti_linear_out)(call, gckpti_fast_products(call)))
#endif
