#include "cpu/own.h"

#if GCKPTI_HAS_FAST
/* ---- linear, matmul: `batch` products, each cut into pieces of c ---- */

#ifdef GCKPT_OPENBLAS
/* gckpti_product_piece by OpenBLAS, whose sums have an order of their own (manual, 5). */
static void gckpti_openblas_piece(const gckpti_product *t, int64_t i0, int64_t i1, int64_t j0,
                                  int64_t j1)
{
    int rows = (int)(i1 - i0), cols = (int)(j1 - j0);
    int a_next = (int)(t->a_step == 1 ? t->a_row : t->a_step);
    int b_next = (int)(t->b_col == 1 ? t->b_step : t->b_col);
    float *c = t->c + i0 * t->c_row + j0;
    if (t->a_step == 1 && t->a_row < t->k) /* a single row: what comes next is not read, but */
        a_next = (int)t->k;                /* sgemm refuses less */
    if (t->b_col == 1 && b_next < cols)
        b_next = cols;
    for (int64_t i = i0; t->from && t->from != t->c && i < i1; i++)
        memcpy(t->c + i * t->c_row + j0, t->from + i * t->from_row + j0,
               (size_t)cols * sizeof(float));
    cblas_sgemm(CblasRowMajor, t->a_step == 1 ? CblasNoTrans : CblasTrans,
                t->b_col == 1 ? CblasNoTrans : CblasTrans, rows, cols, (int)t->k, 1.0f,
                t->a + i0 * t->a_row, a_next, t->b + j0 * t->b_col, b_next, t->from ? 1.0f : 0.0f,
                c, (int)t->c_row);
}
#endif

/* Piece i of all products: from its number to its rows and columns. */
static void gckpti_products_piece(const gckpti_products *s, int64_t i, float *pack, int64_t room)
{
    const gckpti_product *t = s->t;
    gckpti_product next;
    int64_t at = i / (s->down * s->across), i0 = i / s->across % s->down * s->rows;
    int64_t j0 = i % s->across * s->cols;
    if (at) {
        next = *t, t = &next;
        next.a += at * s->a_next, next.c += at * s->c_next;
        if (!gckpti_is_as_stored(&next))
            next.b += at * s->b_next;
        if (next.from && next.from_row)
            next.from += at * s->c_next;
    }
    int64_t i1 = i0 + gckpti_min(t->m - i0, s->rows), j1 = j0 + gckpti_min(t->n - j0, s->cols);
#ifdef GCKPT_OPENBLAS
    if (!gckpti_is_as_stored(t) && t->m <= INT32_MAX && t->n <= INT32_MAX && t->k <= INT32_MAX &&
        t->k > 0 && (t->a_step == 1 || t->a_row == 1) && (t->b_step == 1 || t->b_col == 1)) {
        gckpti_openblas_piece(t, i0, i1, j0, j1);
        return;
    }
#endif
    gckpti_kernels_of(s->call)->product_piece(t, i0, i1, j0, j1, pack, room);
}

static void gckpti_products_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_products *s = (const gckpti_products *)context;
    gckpti_products_piece(s, i, s->pack + worker * s->room, s->room);
}

static void gckpti_products_small_item(void *context, int64_t i, int64_t worker)
{
    float pack[GCKPTI_SMALL_ROOM] __attribute__((aligned(64)));
    (void)worker;
    gckpti_products_piece((const gckpti_products *)context, i, pack, GCKPTI_SMALL_ROOM);
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
    int64_t threads = s->call->threads, each = t->m == 1 && t->b_col == 1 ? 1 : 4;
    int64_t pieces = small || threads < 2 ? 1 : each * threads / s->batch;
    s->rows = t->m, s->cols = t->n;
    for (int64_t have = 1; have < pieces || (s->rows > HIGH && !small); have *= 2)
        if (have < pieces && s->cols > narrow &&
            (t->b_col != 1 || s->cols >= s->rows || s->rows <= LOW))
            s->cols = gckpti_multiple((s->cols + 1) / 2, GCKPTI_PANEL);
        else if (s->rows > 4 * GCKPTI_STRIP)
            s->rows = gckpti_multiple((s->rows + 1) / 2, GCKPTI_STRIP);
    s->across = (t->n + s->cols - 1) / s->cols;
    s->down = (t->m + s->rows - 1) / s->rows;
}

/* `batch` products t, the next one's a and b being a_next and b_next further on. pack:
 * gckpti_product_room(m, n, k) floats a thread. */
GCKPTI_FN void gckpti_products_run(const gckpt_call *call, const gckpti_product *t, int64_t batch,
                                   int64_t a_next, int64_t b_next, float *pack)
{
    gckpti_products s;
    memset(&s, 0, sizeof s);
    s.call = call, s.t = t, s.batch = batch;
    s.a_next = a_next, s.b_next = b_next, s.c_next = t->m * t->c_row;
    s.pack = pack, s.room = gckpti_product_room(t->m, t->n, t->k);
    gckpti_products_cut(&s);
    gckpt_parallel(call, batch * s.down * s.across, s.rows * s.cols * t->k,
                   s.room ? gckpti_products_item : gckpti_products_small_item, &s);
}

/* What gckpti_fp32_plain does. */
static void gckpti_fp32_fast(const gckpt_call *call, const gckpti_factors *f)
{
    const gckpti_factor *a = &f->a, *b = &f->b;
    const float *from = f->accumulate ? f->c : f->start;
    int64_t from_row = f->accumulate ? f->n : 0;
    gckpti_product t = { f->m,    f->n,   f->k, a->f32,   a->row, a->step, b->f32,
                         b->step, b->row, from, from_row, f->c,   f->n,    NULL };
    t.stored = b->stored;
    gckpti_products_run(call, &t, f->batch, f->a.next, f->b.next, (float *)f->room);
}

GCKPTI_FN gckpti_product_run gckpti_fast_products(const gckpt_call *call)
{
    return !gckpti_is_mixed(call) ? gckpti_fp32_fast : gckpti_mixed_fast;
}

GCKPTI_FN void gckpti_fast_matmul_forward(const gckpt_call *call)
{
    gckpti_linear_out(call, gckpti_fast_products(call));
}

GCKPTI_FN void gckpti_fast_linear_forward(const gckpt_call *call)
{
    gckpti_fast_matmul_forward(call);
}

GCKPTI_FN void gckpti_fast_matmul_backward(const gckpt_call *call)
{
    gckpti_linear_gradients(call, gckpti_fast_products(call));
}
#endif
